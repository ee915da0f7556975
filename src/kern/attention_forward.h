/* Attention forward: what its files share, a pass over some rows and keys. */
#ifndef RONDO_KERN_ATTENTION_FORWARD_H
#define RONDO_KERN_ATTENTION_FORWARD_H

#include "attention.h"

enum { CK = 256, TILES = CK / ATT_COLS, ITEM = 32, NEAR = 4, HALF = ATT_HALF };
#define NOTHING (-104.0f)            /* exp of less is 0 */

struct fwd {
	struct att_plan p;
	struct att_rows q, k, v, o, l, z;      /* l: or m; z: or what o lacks */
	int64_t rq, qb, nblk, nkb, parts;      /* rows of an item and of a tile; blocks of rows and of keys; parts of keys */
	int64_t near;                          /* so many blocks of keys meet the rows of an item one after the other: its sums stay near */
	bool lazy, bounds, norms, words;       /* keys are packed where they are read, by each tile; scores have bounds; by the lengths of q and k; p may be made of integers */
	int64_t distinct, *same;               /* batches whose keys differ; of each batch dimension the factor of the index, 0: same */
	int64_t some;                          /* of those, how many are packed at once */
	/* steps of a product with keys; bytes of a row of q, a row of p, a tile of keys; exponents of 2 of what plain tiles compare */
	int64_t steps, q_row, p_row, k_tile;
	float c2;
	double as_exponent, as_score, as_product;      /* times a score; times an exponent of 2; times a score */
	/* a packed block of keys; or a place of each tile's keys, and of its values, and room for those that must be copied */
	size_t kb_k, kb_v, kb_dense, kb_norm, kb_top, kb_bad, kb_lo, kb_hi, kb_bytes;
	/* scratch */
	bool direct;                           /* o leaves as bf16 side by side */
	bool two;                              /* sums of p as it is multiplied, and of what it was before it was rounded */
	size_t q_at, o_at, p_at, s_at, one_at, sum_at, w_at, l_at, z_at, top_at, m_at, whole_at, lo_at, hi_at, norm_at, row_at, dense_at, tmp_at, fn_at, kb_at;
	/* shared: blocks of keys, then a state of each tile */
	size_t part_at, part_bytes, part_row, part_row2, part_top, part_low;
};

/* A row's reference: whole; the float next to it in scores and in products, and what they lack, as exponents of 2; what exceeds most makes it be raised.
 * m2: the reference as an exponent of 2, exact where products are compared (struct att_plan, raw); none yet, or REF_MOST and more: infinite.
 * words: 256 (m2 - 127) + 1/2. */
struct ref { double *whole; float *m, *mx, *less, *lessx, *most, *mostx, *m2, *words; };
enum { REF_FLOATS = 8, REF_MOST = 1 << 20 };

/* Where a tile's keys or values lie, rows ld bytes apart, if they are not packed. */
struct place { const char *at; int64_t ld; };

/* A packed block of keys, and what is known of all rows with it. */
struct block {
	const char *kb;
	int64_t k0;
	int nt;                          /* its tiles */
	float top;                       /* the largest magnitude of its numbers, where p may be made of integers */
	bool clear;                      /* there is no more to know */
	struct att_known known;
	struct att_bound score;
};

/* Tiles t0 .. t0 + HALF of rows i0 on with a block: their p, and values times which sum up to o. */
struct half { int64_t i0; struct block *at; int t0; const char *q, *k; char *p; const char *v; float *o; bool words; };

/* What streams: half now, of whose first tile products are made, at s; and values of the half before, which are to be added.  i0 < 0: there is none. */
struct flow { struct half now, before; };

struct run {
	const struct fwd *f;
	const struct prog_kern *k;
	char *const *ptr;
	char *mem;
	int64_t b, r0, nr;               /* batch and rows of the tile */
	char *to_o, *to_l, *to_z;        /* results of the batch */
	struct block block[NEAR], *at;   /* of keys; the one that an item meets */
	const char *fetch, *fetch_end;   /* of the blocks that come next, what is not fetched yet */
	struct flow flow;
	struct ref ref;
	float top_q;                     /* as a block's, of the tile's rows */
	float *s, *one, *o;              /* s: two tiles that stream; one: one that is made by itself */
	float (*sum)[ATT_LANES];         /* of a half, both */
	uint64_t referred;               /* groups of rows whose references exponents are made with, a bit each; of what streams there are no more than that */
	uint64_t set, met;               /* and those known to have some, where there is a fused, of whose there are no more, either; and those that have more than that has made */
	/* in parts of a row: sums of p as it is multiplied, which o is divided by; of p as it was, if they are asked for and others; the highest scores, if asked for */
	float (*l)[ATT_LANES], (*z)[ATT_LANES], (*top)[ATT_LANES];
	int t0;                          /* the first tile of an item that counts */
	bool second;
	float low;                       /* the highest score that was left out for being low */
	long long done, left;
};

enum kind { NONE, PLAIN, SCORE };

/* The sum of a row's parts. */
static inline float att_sum(const float x[ATT_LANES])
{
	float a[8], b[4];
	for (int j = 0; j < 8; j++)
		a[j] = x[j] + x[j + 8];
	for (int j = 0; j < 4; j++)
		b[j] = a[j] + a[j + 4];
	return (b[0] + b[2]) + (b[1] + b[3]);
}

/* Rows row .. of the tile, at most rq, with the block of keys. */
void att_item(struct run *r, int64_t row);
/* What streams ends. */
void att_settle(struct run *r);
/* Of all rows with a new block of keys: what is known. */
void att_ask(struct run *r);
/* The reference of row i, in scores. */
void att_set_ref(const struct run *r, int64_t i, double whole);

#endif
