/* Attention forward: what its files share, a pass over some rows and keys. */
#ifndef RONDO_KERN_ATTENTION_FORWARD_H
#define RONDO_KERN_ATTENTION_FORWARD_H

#include "attention.h"

enum { CK = 256, TILES = CK / ATT_COLS, ITEM = 32 };
#define NOTHING (-104.0f)            /* exp of less is 0 */
#define FILL (-1e9)                  /* scores that a mask makes, not a product */
#define LOG2E 1.4426950408889634f

struct fwd {
	struct att_plan p;
	struct att_rows q, k, v, o, l, z;      /* l: or m */
	int64_t rq, qb, nblk, nkb, parts;      /* rows of an item and of a tile; blocks of rows and of keys; parts of keys */
	bool lazy, bounds, norms;              /* keys are packed where they are read; scores have bounds; by the lengths of q and k */
	int64_t distinct, *same;               /* batches whose keys differ; of each batch dimension the factor of the index, 0: same */
	int64_t some;                          /* of those, how many are packed at once */
	/* steps of a product with keys; bytes of a row of q, a row of p, a tile of keys; exponents of 2 of a product */
	int64_t steps, q_row, p_row, k_tile;
	float c2;
	/* a packed block of keys */
	size_t kb_k, kb_v, kb_norm, kb_bad, kb_lo, kb_hi, kb_bytes;
	/* scratch */
	size_t q_at, o_at, p_at, s_at, w_at, l_at, top_at, m_at, lo_at, hi_at, norm_at, row_at, dense_at, tmp_at, fn_at, kb_at;
	/* shared: blocks of keys, then a state of each tile */
	size_t part_at, part_bytes, part_m, part_m2, part_top, part_low;
};

/* A row's reference, in scores, in products, and as an exponent of 2; what exceeds most makes it be raised. */
struct ref { float *m, *mx, *m2, *most, *mostx; };

struct run {
	const struct fwd *f;
	const struct prog_kern *k;
	char *const *ptr;
	char *mem;
	int64_t b, r0, nr;               /* batch and rows of the tile */
	char *to_o, *to_l, *to_z;        /* results of the batch */
	const char *kb;                  /* the block of keys */
	int64_t k0;
	int nt;                          /* its tiles */
	struct ref ref;
	float *s, *o;
	float (*l)[ATT_LANES], (*top)[ATT_LANES];      /* sums, and the highest scores, if they are asked for, in parts of a row */
	bool second;
	float low;                       /* the highest score that was left out for being low */
	bool clear;                      /* of all rows with the block of keys is known what there is to know */
	struct att_known known;
	long long done, left;
};

enum kind { NONE, PLAIN, SCORE };

/* Rows row .. of the tile, at most rq, with the block of keys. */
void att_item(struct run *r, int64_t row);
/* Of all rows with a new block of keys: what is known. */
void att_ask(struct run *r);
/* The reference of row i: m in scores, mx in products. */
void att_set_ref(const struct run *r, int64_t i, float m, float mx);

#endif
