/* Matrix products at the speed of the machine: what dot.c hands over. */
#ifndef RONDO_KERN_MATMUL_H
#define RONDO_KERN_MATMUL_H

#include "impl.h"

/* Fill s for KERN_dot k if a fast form exists for its types and size; false: dot.c does it. */
bool kern_matmul(const struct prog_kern *k, struct kern_state *s);

/* Offsets (elements) of the n positions of some dimensions, last fastest: a table where they are few (and for a product that
 * comes with tables), else computed: memory and time to load do not grow with extents. */
struct matmul_axis { int64_t n; const int64_t *at; bool even; int64_t step; int rank; const int64_t *dim, *stride; };
enum { MATMUL_AXIS = 1 << 14, MATMUL_PANEL = 64 };
struct matmul_axis matmul_axis_make(struct arena *a, int c, const int64_t *dim, const int64_t *stride);
int64_t matmul_far(const struct matmul_axis *x, int64_t i);
static inline int64_t matmul_at(const struct matmul_axis *x, int64_t i) { return x->at ? x->at[i] : x->even ? i * x->step : matmul_far(x, i); }
/* Of positions i0 .. i0 + n, at most MATMUL_PANEL; perhaps in room. */
const int64_t *matmul_some(const struct matmul_axis *x, int64_t i0, int64_t n, int64_t *room);

/* A complex product is one of floats, of which offsets are then of; how an operand's numbers are that, MATMUL_WHOLE being of floats as they are.
 *   PARTS by PARTS: a number's parts are two positions of a free axis.  Of what the product gives, the second of two rows, times i, is added to the
 *     first (matmul_store).
 *   WHOLE by TIMES_I: the first has the parts of a number along k, the second has position 2 j + 1 of k for number j times i.  Only real parts are
 *     in its table of k, one for each number. */
enum matmul_parts { MATMUL_WHOLE, MATMUL_PARTS, MATMUL_TIMES_I };

/* One operand: element (free i, k j, batch b) lies at the sum of three offsets, in elements.  free: rows of lhs, columns of
 * rhs.  k: of all positions, or, k_even, of the first MATMUL_K of more, which are all k_step apart.  es, units and run are filled
 * by matmul_plan; run[i]: k's 32 i .. 32 i + 31 are neighbours, as numbers where k's are of numbers. */
struct matmul_side { enum dtype dt; int es; enum matmul_parts parts; struct matmul_axis free, batch; const int64_t *k; int64_t k_step; bool k_even, k_unit, free_unit; const uint8_t *run; };
enum { MATMUL_K = 1 << 14 };
static inline int64_t matmul_k(const struct matmul_side *o, int64_t k) { return o->k_even ? k * o->k_step : o->k[k]; }

/* A product given by tables.  lay, if there is one, first copies operand lay_of into lay_bytes of its own, which its
 * offsets are then of: part t0 .. t1 of tiles of the copy. */
struct matmul_tables {
	int64_t b, m, n, k;
	int64_t least;                   /* m * n * k from which on a plan pays */
	struct matmul_side l, r;
	enum dtype out;
	struct matmul_axis om, on, ob;   /* of the result: rows, columns, batch */
	bool i8;                         /* products of i8, summed in i32 */
	bool ints;                       /* of integers of at most 32 bits, modulo 2^32 */
	bool bf16, rounds;               /* products of bf16; operands are rounded to it */
	void (*lay)(const struct prog_kern *k, const void *arg, char *const *ptr, char *to, int64_t t0, int64_t t1, int64_t tiles);
	const void *lay_arg;
	size_t lay_bytes;
	int lay_of;
};
/* As kern_matmul. */
bool matmul_plan(const struct prog_kern *k, const struct matmul_tables *t, struct kern_state *s);
/* Offsets (elements) of the n positions of dims[0..c) of a view, last fastest. */
int64_t *matmul_offsets(struct arena *a, int c, const int64_t *dim, const int64_t *stride, int64_t *n);

/* Memory that is wanted soon: some rows, a line of each at each step, at most so many. */
struct matmul_ahead { const char *row; int64_t stride, lines; int rows; };

enum { MATMUL_ALONG = 16 };       /* rows of k that are read side by side, along whole rows of rhs */
/* A packed product: micro adds the product of MR rows and NR columns of packed panels to c.
 *   f32:  a [k][MR], b [k][NR]                             (steps = k)
 *   bf16: a [k/2][MR][2], b [k/2][NR][2]                   (steps = k/2), "pairs"
 *   i8:   a [k/4][MR][4], each 128 more, b [k/4][NR][4], sums are i32     (steps = k/4), "quads"
 *   tiles of bf16: a [k/32][MR/16][16][32], b [k/32][NR/16][16][16][2]   (steps = k/32)
 *   tiles of i8:   a [k/64][MR/16][16][64], b [k/64][NR/16][16][16][4]   (steps = k/64)
 * rows, cols: so many of the result are wanted, others may be made in c, whose rows are of NR. */
struct matmul_part {
	int64_t steps, chain;           /* the sum of so many steps goes to c, since roundings add up along it: of f32 and pairs; others make one sum */
	const char *a, *b;
	int64_t lda, ldb;               /* bytes, where rows are read where they lie */
	char *keep;                     /* in_place, of who keeps: what is read of b goes there as a packed panel; or NULL */
	float *c;
	bool add;                       /* to what is there */
	int rows, cols, panels;         /* panels: of along; what it gives of them lies MR * NR numbers apart */
	struct matmul_ahead next;
};
typedef void matmul_micro(const struct matmul_part *q);

struct matmul_variant {
	const char *name;
	int es;                  /* bytes of a panel's element: 4 f32, 2 bf16, 1 i8 */
	bool tiles;              /* AMX layout */
	int mr, nr, kstep;       /* kstep: k per step; packed k is padded with zeros */
	bool (*has)(void);       /* can this machine run it */
	bool (*best)(void);      /* is it the one to choose here, asked in order of the table */
	matmul_micro *micro;
	matmul_micro *in_place;  /* of all NR columns, b being rows of k where they lie; or NULL */
	bool keeps;              /* keep is honoured */
	matmul_micro *along;     /* as in_place, of MATMUL_ALONG rows of k and some panels; or NULL */
	matmul_micro *tall;      /* of no more rows than are wanted, a being rows where they lie; or NULL */
	void (*begin)(void);     /* per thread and run, or NULL */
	void (*end)(void);
};
extern const struct matmul_variant matmul_variant[];
extern const int matmul_nvariant;
/* A panel of lhs or rhs: w positions from i0 on, k0 .. k0 + kn, padded with zeros to mr or nr and whole steps. */
typedef void matmul_pack(const struct matmul_variant *v, const struct matmul_side *o, const char *base, int64_t i0, int w, int64_t k0, int64_t kn,
                         char *out);
matmul_pack matmul_pack_lhs, matmul_pack_rhs;
/* Position i of free of an operand that is TIMES_I, k0 .. k0 + kn, both even. */
void matmul_times_i(const struct matmul_side *o, const char *base, int64_t i, int64_t k0, int64_t kn, float *out);
/* Columns n0 .. n0 + nn of few rows, panels bytes apart; more: as many rows follow, which are wanted next. */
void matmul_pack_slab(const struct matmul_variant *v, const struct matmul_side *o, const char *base, int64_t n0, int64_t nn, int64_t k0, int64_t kn,
                      bool more, char *out, size_t bytes);
static inline float matmul_load(enum dtype dt, const char *p)
{
	uint16_t h;
	float f;
	switch (dt) {
	case DT_f32: memcpy(&f, p, 4); return f;
	case DT_bf16: memcpy(&h, p, 2); return bf16_to_f32(h);
	default: memcpy(&h, p, 2); return f16_to_f32(h);
	}
}

/* Tests: use this variant wherever its panel type allows; NULL = choose. */
extern const struct matmul_variant *matmul_force;
/* Tests: do what pays on some machines only (1), or do not (0); -1: as it is on this one. */
extern int matmul_habits;

#endif
