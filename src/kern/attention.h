/* Attention (docs/attention.md): what its kernels share. */
#ifndef RONDO_KERN_ATTENTION_H
#define RONDO_KERN_ATTENTION_H

#include "impl.h"

#include <math.h>

/* Operands and results by name; what scores are made from begins at ATT_EXTRA or ATT_GRAD_EXTRA. */
enum { ATT_TALLIES = 4, ATT_OUT = 3 + ATT_TALLIES };             /* sums by an index, and results of the function, at most */
enum { ATT_Q, ATT_K, ATT_V, ATT_EXTRA, ATT_L = 3, ATT_DO, ATT_DELTA, ATT_GRAD_EXTRA };
struct attention {
	bool grad, add, part, log, below;/* add: results are added to what is there; part: results are o, m and z, else o, and l if log; below: and what o lacks */
	int nb;                          /* batch dimensions, of every view the first ones */
	int64_t batch, g, t, s, d, e;    /* batch: product of the batch dimensions */
	struct { int n; int64_t len; } keys, rows;      /* keys and values, and of a gradient q and do, lie in so many arrays, one after the other, of len each */
	enum dtype sum;                  /* f32 or f64 */
	int first, nextra;               /* the first operand that scores are made from, and how many */
	int nout;                        /* results of the function: score, slope if grad, weight if it has one, then an index for each tally */
	int ntally;                      /* sums of dx by an index, results behind dk and dv */
	bool weighted;
	struct plan *fn;                 /* inputs: x in the type of sums, then a scalar of each such operand */
};
/* How many elements input i of the function has, if it is a table; 0: it is a scalar; -1: it is used as both. */
int32_t attention_table(const struct prog_expr *e, int i);
/* INVALID where the kernel's views are not those of an attention. */
struct err *attention_make(const struct prog_kern *k, struct arena *a, struct attention *x);
/* Of batch b of view i: where its element 0 .. 0 of the other dimensions lies. */
char *attention_at(const struct prog_kern *k, char *const *ptr, const struct attention *x, int i, int64_t b);
/* The same of the piece of view i, which is ATT_K, ATT_V, ATT_Q or, of a gradient, ATT_DO, that has row j (key j; query j % t of group j / t).
 * *row: which of its rows that is, counted in the same way; *left: of how many rows from there on that is so. */
char *attention_piece(const struct prog_kern *k, char *const *ptr, const struct attention *x, int i, int64_t b, int64_t j, int64_t *row, int64_t *left);

/* Fill s if a fast form exists for k's types and shapes (x is k's); false: the reference does it. */
bool attention_forward(const struct prog_kern *k, const struct attention *x, struct kern_state *s);
bool attention_backward(const struct prog_kern *k, const struct attention *x, struct kern_state *s);

/* --- micro-kernels (attention_micro.c, attention_soft.c) ---------------------------- */

/* All products are of a few rows that lie as they are with a panel of ATT_COLS columns: of each step of the contraction the
 * panel has ATT_COLS words of 4 bytes, a float or a pair of bf16 (k, k + 1).  A tile of numbers is [rows][ATT_COLS] f32. */
enum { ATT_COLS = 32, ATT_LANES = 16, ATT_MOST_MR = 32, ATT_HALF = 4 };

/* Exponentials of tiles, on one instruction set and for one type of p; exponents are of 2. */
struct att_soft {
	/* Is a score of row r above most[r]? */
	bool (*over)(int rows, const float *s, const float *most);
	/* s[r] *= c. */
	void (*scale)(int rows, float *s, float c);
	/* The highest of each row's scores that are numbers. */
	void (*tops)(int rows, const float *s, float *top);
	/* top[r] = the highest of itself and s[r] * c, lane by lane, of what are numbers; c is above 0. */
	void (*raise)(int rows, const float *s, float c, float (*top)[ATT_LANES]);
	/* p[r] = exp2((s[r] - m[r]) * c2 - less[r]), rows ldp bytes apart, times w if there is one; what p is before that is added to z[r], if that is there (beside bf16 alone), and
	 * with what rounding made of it (of p times w) to l[r]. */
	void (*forward)(int rows, const float *s, const float *m, float c2, const float *less, const float *w, char *p, int64_t ldp, float (*l)[ATT_LANES], float (*z)[ATT_LANES]);
	/* Of the transposed tile, rows are keys, columns queries: p = exp2((s - l) * c2 - less), dx = p (y w c - delta) slope; with no slope 1, no w 1.
	 * p w and dx as rows ld bytes apart; dx as steps of a panel, too. */
	void (*backward)(int rows, const float *s, const float *y, const float *l, float c2, const float *less, const float *delta, float c, const float *slope,
	                 const float *w, char *p, char *dx, int64_t ld, char *panel);
};

/* A row's reference is raised when a score exceeds it by so much: 2^8 about. */
#define ATT_LAZY 5.5f
/* On tiles that is seen of the sums of ATT_HALF tiles only, of each of which some exponentials may be so much. */
#define ATT_GROWN 4096.0f
#define LOG2E ((float)M_LOG2E)
/* A row's first reference may be 0, as long as its exponentials have sums of at least that. */
#define ATT_LEAST 0.00390625f

/* micro and forward in one, of some groups of rows with a tile, and then with those that follow it: p = exp2((x - m) * c2 - less), of products beside f32
 * p = exp2((x * by - m) * c2 - less), rows ldp bytes apart; p is 0 in columns that a row's bits in mask do not have.  raise, too, if top is not NULL, of products times by.
 * How many tiles are made: of the next one some x - m is more than most; all x - m are at s, which are x where m is 0, nothing else of it is written. */
struct att_fuse {
	int64_t steps, lda, ldp;
	const char *a, *b;
	const uint32_t *mask;            /* or NULL: all columns */
	bool words;                      /* p may be made of integers, of bf16 and without z: as struct att_step */
	const float *m, *less;
	float by, c2, most;
	float *s;
	char *p;
	float (*l)[ATT_LANES], (*z)[ATT_LANES], (*top)[ATT_LANES];
};
typedef int att_fused(const struct att_fuse *q, int groups, int tiles);
extern att_fused att_fused_bf16_512, att_fused_f32_512;

/* What a variant for tiles does at once, beside one another: of the ATT_HALF tiles of keys of some rows, of which the first one's products are made,
 * the products of the others and of the first of the rows that come next; exponentials p = exp2(s c2 - m) of all of them, and their sums; and
 * panels of values, vp times each panel from v on, added to o: vp is a p that was made before.  Meanwhile lines of memory are fetched.
 * True: a sum is above ATT_GROWN, so that a score may exceed its row's reference by more than exponentials are made for; l and z are as they were.  Else sums
 * of p are added to l, those of what it was before it was rounded to z, if that is there. */
struct att_step {
	int64_t steps, lda;              /* words of the contraction; bytes between rows of a */
	const char *a, *b;               /* a NULL: only values; tiles of b lie side by side */
	const char *next_a, *next_b;     /* or NULL */
	float *s;                        /* products of two tiles: of the first now, of the next one's first then; and of the second */
	bool words;                      /* p may be made of integers, and nothing is asked for beside it; |s c2| is below 2^22, and m is 256 (m - 127) + 1/2 */
	const float *m;
	float c2, by, (*sum)[ATT_LANES], (*l)[ATT_LANES], (*z)[ATT_LANES], (*top)[ATT_LANES];      /* sum: room for both; top, which is there only if z is, is raised by products times by */
	char *p;
	int64_t ldp;                     /* bytes between rows, of vp, too */
	int panels;
	const char *vp, *v;
	int64_t v_bytes;                 /* between panels of values; those of o lie side by side */
	float *o;
	const char *fetch, *fetch_end;
};
typedef bool att_stream(const struct att_step *q);
typedef void att_micro(int64_t steps, const void *a, int64_t lda, const void *b, float *c, bool add);
extern att_micro att_amx_micro, att_model_micro;
extern att_stream att_amx_stream, att_model_stream;

/* Products of a few rows with ATT_COLS keys or values, which lie ld bytes apart as they are, in whole lines of numbers. */
struct att_few {
	/* s[i] = rows of q, `bytes` long, times those of k. */
	void (*dot)(int rows, int64_t bytes, const char *q, int64_t ldq, const char *k, int64_t ldk, float *s);
	/* o[i] += rows of p times panels of ATT_COLS columns of v, which lie side by side, and of o `next` floats apart; at most ATT_MIX rows, and panels one, two or
	 * four, of more than two rows no four.  False, and nothing is done: a product is infinite or NaN. */
	bool (*mix)(int rows, int panels, const char *p, int64_t ldp, const char *v, int64_t ldv, float *o, int64_t next);
};
enum { ATT_MIX = 4 };
extern const struct att_few att_few_bf16_512, att_few_f32_512, att_few_f32_256;

struct att_variant {
	const char *name;
	int es;                  /* bytes of a packed element: 4 f32, 2 bf16 */
	int mr, kstep;           /* rows of a tile; contraction is padded with zeros to a multiple of kstep */
	bool (*has)(void);       /* can this machine run it */
	bool (*best)(void);      /* is it the one to choose here, asked in order of the table */
	/* c = or += a b: mr rows of a, lda bytes apart, times a panel.  The product is one sum, which is then added. */
	att_micro *micro;
	const struct att_soft *soft;
	void (*begin)(void);     /* per thread and run, or NULL */
	void (*end)(void);
	att_fused *fused;        /* or NULL */
	att_stream *stream;      /* or NULL */
	const struct att_few *few;                 /* or NULL: not for gradients, and for no more rows than mr; there is no micro then */
};
extern const struct att_variant att_variant[];
extern const int att_nvariant;
extern const struct att_soft att_soft_512_bf16, att_soft_512, att_soft_256, att_soft_bf16_model, att_soft_f32_model;
/* Tests: use this variant wherever the types allow, or the reference; NULL: choose. */
extern const struct att_variant *att_force, att_reference;

/* --- scores (attention_range.c, attention_score.c) ------------------------------------ */

#define ATT_FILL (-1e9)              /* scores that a mask makes, not a product */

/* What is known of a value in some tiles, a lane each: it lies in lo .. hi, or is NaN where the tile's bit is set. */
enum { ATT_WIDE = 8 };
struct att_bound { double lo[ATT_WIDE], hi[ATT_WIDE]; unsigned nan; };

/* A score function as one asks it for bounds. */
struct att_range {
	const struct prog_expr *e;
	bool plain;              /* somewhere the score is x * c, and of a gradient the slope c there, and the weight 1 */
	float c;
	uint8_t *is_plain;       /* registers that are x * c */
	uint8_t *is_slope;       /* registers that are c */
	uint8_t *is_one;         /* registers that are 1 */
	int weight;              /* the output that is the weight; 0: there is none */
	int pred;                /* the register that says where the score is x * c; elsewhere it is fill, which is at most ATT_FILL, and nothing depends on x; 0: there is none */
	bool pred_not;           /* it is so where that is false */
	double fill;
	bool always;             /* the score is x * c, whatever operands are */
	bool grad;
};
void att_range_make(struct arena *a, const struct prog_expr *e, const struct attention *x, struct att_range *r);
/* The function of what pred is made from alone. */
const struct prog_expr *att_range_pred(struct arena *a, const struct att_range *r);
/* Constants among the registers, once before they are used. */
void att_range_start(const struct att_range *r, struct att_bound *reg);
/* reg: nin + n bounds, of which the inputs' and constants are filled.  What is known of n tiles: plain: bit i: scores of tile i are x * c;
 * score: the register that bounds the score. */
struct att_known { unsigned plain; const struct att_bound *score; };
struct att_known att_range_run(const struct att_range *r, int n, struct att_bound *reg);
void att_bound_any(enum dtype dt, struct att_bound *b);
/* Number at p of a type, and whether the bounds of it can be kept in an f64. */
bool att_number(enum dtype dt, const char *p, double *out);

/* An operand that scores are made from, in bytes; stride 0 where it is the same along a dimension. */
struct att_extra { int view, es; enum dtype dt; int64_t sg, st, ss; bool by_row, by_key; int32_t table; size_t at; };      /* table: its length, if it is one; at: where in the function's scratch it is brought, 0: it is read where it lies */

/* How a gradient or a forward pass sees an attention: a tile's rows and columns are queries and keys, or, turned, keys and queries.
 * Queries that share keys are one row of rows: row r is query r % t of group r / t. */
struct att_plan {
	struct attention x;
	const struct att_variant *v;
	bool turned;
	bool raw;                /* of plain tiles products are compared, not scores: beside bf16; else both passes have each score as the program rounds it */
	int64_t rows;            /* g * t */
	int64_t dk, ek, dc, ec;  /* d and e padded to steps and to panels */
	struct att_extra *extra;
	struct att_range range;
	struct plan *mask;       /* of range.pred, or NULL */
	/* scratch of the function for one strip, from its begin */
	size_t fn_base, fn_have, fn_in, fn_mem, fn_mask, fn_reg, fn_table, fn_bytes;      /* fn_table: bounds of tables */
};
/* False: no fast form for the types. */
bool att_plan_make(const struct prog_kern *k, const struct attention *x, bool turned, struct arena *a, struct att_plan *p);

/* Operands of batch b are what att_score and att_tile_bounds read from here on; mem: scratch of the function. */
void att_extra_start(const struct att_plan *p, const struct prog_kern *k, char *const *ptr, int64_t b, char *mem);
/* What a function gives beside scores, as [rows][ATT_COLS]; NULL where there is none. */
struct att_rest { float *slope, *weight; int32_t *at[ATT_TALLIES]; };
/* Scores and what else the function gives of a tile: n0 rows from i0 on, n1 columns from j0 on, products in x; columns from n1 on are made -inf.
 * x is overwritten by the scores. */
void att_score(const struct att_plan *p, int64_t i0, int n0, int64_t j0, int n1, float *x, const struct att_rest *rest, char *mem);

/* Of a tile whose score is x * c or nothing: bits of columns where it is x * c are kept in each row's mask. */
void att_mask(const struct att_plan *p, int64_t i0, int n0, int64_t j0, uint32_t *mask, char *mem);

/* Bounds of operands along one side: of count groups of size positions of n from i0 on; groups are step doubles apart in lo and hi, of
 * operand i from i * span on.  Operands that are not by that side alone are left out. */
void att_side_bounds(const struct att_plan *p, const struct prog_kern *k, char *const *ptr, int64_t b, bool keys, int64_t i0, int64_t n, int size,
                     double *lo, double *hi, int64_t span);
/* Those of operand x that is one number for all rows and keys.  False: it is none, and may be anything. */
bool att_number_bound(const struct att_plan *p, int x, int lanes, const char *mem, struct att_bound *o);
/* Bounds of those that are by both or neither side, of some tiles, into reg[1 ..]. */
void att_tile_bounds(const struct att_plan *p, int64_t i0, int n0, int64_t j0, int64_t nj, int tiles, const char *mem, struct att_bound *reg);
/* Of an operand: what all of n bounds hold, for each of some lanes; or a bound for each lane. */
void att_bound_one(enum dtype dt, const double *lo, const double *hi, int64_t n, int lanes, struct att_bound *out);
void att_bound_each(enum dtype dt, const double *lo, const double *hi, int lanes, struct att_bound *out);
/* Of products: the longest of n rows, times each lane's longest column; lanes where that is no number stay. */
void att_norm_bounds(const float *rows, int64_t n, const float *cols, int lanes, struct att_bound *out);

/* --- packing (attention_pack.c) ---------------------------------------------------------- */

/* Rows of an operand or a result: row r lies at r / inner * outer + r % inner * step bytes. */
struct att_rows { int es; enum dtype dt; int64_t w, inner, outer, step, unit; kern_strip *in, *out; };
static inline int64_t att_row(const struct att_rows *r, int64_t row) { return row / r->inner * r->outer + row % r->inner * r->step; }    /* bytes */
void att_rows_make(const struct att_plan *p, const struct prog_kern *k, int view, struct att_rows *r);
enum { ATT_FETCH = 32 };
/* n <= ATT_FETCH rows from r0 on as rows of ld elements of the variant's type, zeros to the right and below, up to ATT_FETCH rows.  tmp: att_fetch_bytes. */
void att_fetch(const struct att_plan *p, const struct att_rows *r, const char *base, int64_t r0, int64_t n, char *out, int64_t ld, char *tmp);
size_t att_fetch_bytes(const struct att_plan *p);
/* The same of a view that may be in pieces, of batch b; up to ATT_FETCH rows of zeros behind them. */
void att_fetch_from(const struct att_plan *p, const struct att_rows *r, const struct prog_kern *k, char *const *ptr, int view, int64_t b, int64_t r0, int64_t n,
                    char *out, int64_t ld, char *tmp);
/* As att_fetch, but rows that are such stay where they are; ld_bytes apart. */
const char *att_take(const struct att_plan *p, const struct att_rows *r, const char *base, int64_t r0, int64_t n, char *dense, int64_t ld, char *tmp,
                     int64_t *ld_bytes);
/* The same of a view that may be in pieces, of batch b; dense: att_dense_rows rows. */
const char *att_take_from(const struct att_plan *p, const struct att_rows *r, const struct prog_kern *k, char *const *ptr, int view, int64_t b, int64_t r0, int64_t n,
                          char *dense, int64_t ld, char *tmp, int64_t *ld_bytes);
int64_t att_dense_rows(const struct att_plan *p);
/* Panel whose columns are those ATT_FETCH rows: steps words of each. */
void att_columns(const char *rows, int64_t ld_bytes, int64_t steps, char *panel);
/* Panels whose steps are those rows; each panel (ATT_COLS columns of w) bytes after the one before.  True: all numbers are finite. */
bool att_steps(int es, const char *rows, int64_t ld_bytes, int64_t w, char *panel, size_t bytes);
/* Length of the longest of n packed rows, at least; NaN or infinite if one is. */
float att_longest(const struct att_plan *p, const char *rows, int64_t n, int64_t ld_bytes);
/* The largest magnitude of n bf16, infinite if one is or is NaN.  For AVX-512. */
float att_most(const char *x, int64_t n);
/* Is one of n numbers infinite or NaN? */
bool att_not_finite(int es, const char *x, int64_t n);
/* The numbers of a row of a result are added to x; tmp: 8 w elements. */
void att_add(const struct att_rows *r, const char *base, int64_t row, float *x, char *tmp);
/* What (x - at) * c leaves of x - whole, as an exponent of 2: whole is a row's reference or logarithm, of which at, times c, is the nearest float. */
static inline float att_less(double whole, double at, float c)
{
	double less = (whole - at * c) * M_LOG2E;
	return isfinite(at) && isfinite(less) ? (float)less : 0;
}

/* Numbers to a row of a result; tmp: w elements. */
void att_store(const struct att_rows *r, char *base, int64_t row, const float *x, char *tmp);
/* n panels of a row, step numbers apart, times by, as bf16 side by side.  For AVX-512 BF16. */
void att_store_panels(int64_t n, const float *x, int64_t step, float by, char *to);
/* What the bf16 that o has at high lacks of the numbers, a byte each (src/attn/parts.c), to a row of i8. */
void att_store_below(const struct att_rows *o, const char *high, const struct att_rows *r, char *base, int64_t row, const float *x);
/* That of one number: the bits by which it differs from high, without the lower 8. */
static inline int8_t att_below(float x, uint16_t high)
{
	int32_t all;
	memcpy(&all, &x, sizeof all);
	int32_t d = (int32_t)((uint32_t)all - ((uint32_t)high << 16)) >> 8;
	return (int8_t)(d < INT8_MAX ? d : INT8_MAX);
}

static inline int64_t att_pad(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static inline size_t att_room(size_t *at, int64_t bytes)
{
	size_t x = *at;
	*at += ((size_t)bytes + 63) & ~(size_t)63;
	return x;
}
/* Tests: tiles whose products were made, and those left out, since the last time they were set to 0. */
extern long long att_tiles_done, att_tiles_left;

#endif
