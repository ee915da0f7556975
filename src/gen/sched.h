/* The schedule of a group: scalar code over loop variables, without LLVM.
 *
 * A group is turned into a graph of *nodes*: the value of one element as a function of loop
 * variables.  Views (broadcast, transpose, slice, reverse, reshape, gather, ...) disappear into the
 * addresses of loads, which are linear forms over loop variables and integer nodes.  Equal nodes are one
 * node.  What is left is emitted as it stands: each node at the outermost loop whose variables it
 * needs, as a vector if it depends on the lane variable and as a scalar if it does not. */
#ifndef RONDO_GEN_SCHED_H
#define RONDO_GEN_SCHED_H

#include "gen.h"
#include "target.h"

enum { GEN_VERSION = 16, GEN_NV = 14, GEN_NT = 4, GEN_MAX_OUT = 32,
       GEN_SOURCES = 8,       /* vectors of memory that one whose elements lie apart, as its period says, is made of */
       GEN_WOVEN = 8 };       /* columns that are woven */
#define GEN_SYMBOL "rondo_kernel"     /* of the function in the code */

/* c + sum k[i] * variable i + sum tk[j] * node tn[j] (i64) */
struct gen_lin { int64_t c, k[GEN_NV], tk[GEN_NT]; uint32_t tn[GEN_NT]; };

enum gen_kind {
	GN_CONST,      /* imm: the element's bytes */
	GN_LOAD,       /* element lin of buffer a[0] */
	GN_LIN,        /* lin, converted to dtype */
	GN_ELEM,       /* elementwise function elem: from -> dtype */
	GN_ROUND,      /* reduce_precision, lo exponent and hi mantissa bits */
	GN_RED,        /* result hi of reduction lo of this body */
	GN_DIV,        /* lin / imm0 and lin % imm0, lin >= 0; i64 */
	GN_MOD,
	GN_CLAMP,      /* a[0] (integer of type from) as i64, clamped to 0 .. hi */
	GN_INR,        /* lo' <= lin < hi' (imm0, imm1); pred */
	GN_LCLAMP,     /* lin clamped to 0 .. hi; i64 */
	GN_ARG,        /* input lo of a reducer */
};
struct gen_node {
	uint8_t kind, dtype, from, elem;
	uint16_t mask;            /* loop variables it depends on */
	uint16_t level;           /* reductions on the longest path below it */
	uint32_t a[3];
	uint32_t lin;
	int64_t lo, hi;           /* see the kinds; of GN_DIV, GN_MOD, GN_CLAMP, GN_LCLAMP, i64 GN_LIN: the value's range */
	int64_t imm[2];
};

/* A loop variable: digit of an axis, of place value unit. */
struct gen_var { int axis; int64_t ext, unit; bool outer; };

/* One loop nest: ranges of its inner variables, and what it does per element. */
struct gen_nest {
	uint16_t vars;                    /* inner variables */
	int64_t lo[GEN_NV], hi[GEN_NV];
	int nred; struct { int red; uint32_t node[GEN_MAX_OUT]; } *red;      /* accumulate */
	int nst; struct gen_store { int res; uint32_t node, lin; } *st;      /* store */
	int nkeep; uint32_t *keep;                                           /* nodes that a later nest over the same range reads back */
	int nuse; struct gen_use { int nest, keep; uint32_t node; } *use;    /* nodes that an earlier nest has kept */
	uint16_t level;
};

struct gen_red {
	const struct ir_op *o;
	uint32_t lin;                     /* where its result is read */
	int n;                            /* operands */
	uint8_t redop;
	uint8_t dtype[GEN_MAX_OUT], acc[GEN_MAX_OUT];    /* of the result, of the accumulator */
	uint32_t init[GEN_MAX_OUT];       /* nodes */
	uint32_t fn[GEN_MAX_OUT];         /* redop fn: results of the reducer over GN_ARG 0 .. 2n-1 */
	uint16_t vars, level;
};

/* The program of one choice of segments of the outer variables. */
struct gen_body {
	int64_t lo[GEN_NV], hi[GEN_NV];
	int nred; struct gen_red *red;
	int nnest; struct gen_nest *nest;     /* in order; level l's reductions are complete after its nests */
	int nlevel;
};

struct gen_buf { uint8_t dtype; const void *data; size_t n; int64_t count; bool result; };    /* data: constants */

struct gen_sched {
	const struct gen_target *t;
	const struct ir_module *m;
	const struct ir_fn *fn;
	int nvar; struct gen_var var[GEN_NV];
	uint16_t outer;
	int lane;                         /* variable that is vectorised, -1 if none */
	int low;                          /* a short outer variable inside the lane, a period: element i of the lane is turn i / ext of s->lane and
	                                   * turn i % ext of this one; -1: none */
	int weave;                        /* a short outer variable along which results lie side by side, so many apart along the lane: all of its turns, of
	                                   * whatever bodies, are made beside each other and woven into dense vectors; -1: none */
	int width;                        /* lanes */
	int down;                         /* a reduced variable of which a few turns are made for every column before the next few, whose sums are kept
	                                   * in memory: rows are read beside each other, as memory likes it; -1: each column has all its turns at once */
	int norder; uint8_t order[GEN_NV];    /* outer variables, outermost first */
	int across, across_block;         /* loads that run along this variable, not along the lane, are transposed in
	                                   * blocks of that many turns, inside the lane loop; -1: none */
	int split;                        /* order[0 .. split-1]: one value a tile; order[split] is cut into blocks */
	int64_t block, tiles;
	bool repeats;                     /* linear, and all of it several times over: tile t * times + k is tile t of repetition k */
	bool linear;                      /* tile t: elements [t * block, (t + 1) * block) of all operands and results that have more than one */
	int64_t rows;                     /* tile t: so many elements, rows, of all operands and results that have as many as the largest, and of
	                                   * other results the same part; smaller operands as it likes.  0: no such rule */
	int nbody; struct gen_body *body;
	struct gen_node *node; uint32_t nnode;
	struct gen_lin *lin; uint32_t nlin;
	struct gen_buf *buf; int nbuf;        /* parameters, results, constants */
	bool wide;                        /* 64-bit elements occur */
	bool past;                        /* results are written past the caches */
	int64_t bytes;
	int64_t *under;                   /* per operand: bit r: it is only read at the element of result r that the same turn of the
	                                   * same nest writes next, so the two may be one array */
};

/* Schedule fn for target t.  On failure NULL, and why is a static text. */
struct gen_sched *gen_schedule(struct arena *a, const struct gen_target *t, const struct ir_module *m, const struct ir_fn *fn,
                               const struct prog_view *view, const char **why);
/* Can fn be one piece of code with control flow?  Then, how many elements a value in registers has at most: larger ones are in
 * memory.  0: no, and why is a static text. */
int64_t gen_tiny_most(const struct gen_target *t, const struct ir_module *m, const struct ir_fn *fn, const char **why);
bool gen_has_control(const struct ir_module *m, const struct ir_fn *fn);
/* A dot or convolution as sums of products: element i of the result is the sum, over the terms k, of the products of elements
 * at[0][k * n + i] and at[1][k * n + i] of the operands, in row-major order; at[0] -1: there is none, at a border. */
struct gen_products { int64_t n, terms, *at[2]; };
void gen_products_of(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, struct gen_products *p);
int64_t gen_products_terms(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o);
/* shape.c: choose the lane, the order of the loops and the tiles of s, whose nodes and nests are complete. */
void gen_shape(struct arena *a, struct gen_sched *s);
/* The inner variable of nest x that is best vectorised, -1 if it has none. */
int gen_nest_lane(const struct gen_sched *s, const struct gen_nest *x);
/* Elements of a buffer that keeps a node of nest x: one for each turn of all its variables. */
int64_t gen_kept_count(const struct gen_sched *s, const struct gen_nest *x);
/* used[node]: does body b need it?  Addresses of the others mean nothing within its ranges. */
void gen_body_nodes(const struct gen_sched *s, const struct gen_body *b, bool *used);
/* Turns of s->lane after which vectors of so many lanes begin at the same place of the period again. */
int gen_lane_turn(const struct gen_sched *s, int width);
/* Is l a number of elements further with each element of the lane, where low is its period (-1: none)? */
bool gen_lane_even(const struct gen_sched *s, const struct gen_lin *l, int lane, int low);
/* Does load n run along s->across? */
bool gen_across(const struct gen_sched *s, const struct gen_node *n);
void gen_strides(int rank, const int64_t *dim, int64_t *st);    /* row-major, in elements */
bool gen_dtype_ok(int dt);
bool gen_elem_ok(enum elem e);
/* Estimated cost of a node itself, in units of a cheap vector instruction. */
int gen_node_cost(const struct gen_node *n);

#endif
