/* Inside the scheduler (sched.c says the idea): form.c counts in linear forms over loop variables, nest.c
 * gathers what is done over one range, want.c says what a value is at a flat index, sched.c finds the loops.
 *
 * A walk stops (cx->stop) when the group cannot be scheduled (gs_fail), or when it has to start again with a variable
 * split or a range cut (cx->restart); what a function returns then does not matter. */
#ifndef RONDO_GEN_WANT_H
#define RONDO_GEN_WANT_H

#include "sched.h"

enum { MAX_AXIS = 12, MAX_BRK = 24, MAX_SEG = 16, MAX_DEPTH = 600 };    /* depth: operations on a path, of which a group has MOST_OPS (fuse.c) */

struct axis { int64_t ext; bool outer; int ncut; int64_t cut[GEN_NV]; };    /* one loop of the domain, cut into variables */
struct axset { int n; int axis[GEN_NV]; int64_t ext[GEN_NV]; };             /* the axes of reductions of one shape */
struct brk { int axis; int64_t unit, pos; };                                /* the variable of that place value is cut at pos */

struct cx {
	struct arena *a;
	const struct gen_target *t;
	const struct ir_module *m;
	const struct ir_fn *fn;
	const struct prog_view *view;
	struct gen_sched *s;
	struct map memo, nodes, lins, ctxs;
	ARR(struct gen_node) node;
	ARR(struct gen_lin) lin;
	ARR(struct gen_red) red;
	ARR(struct gen_buf) buf;
	struct axis axis[MAX_AXIS]; int naxis;
	struct axset set[8]; int nset;
	struct brk brk[MAX_BRK]; int nbrk;
	bool nobrk, stop, restart;
	const char *why;
	int64_t lo[GEN_NV], hi[GEN_NV];    /* ranges of the variables now */
	uint64_t ctx;                      /* their number: what a value is may depend on them */
	const struct ir_op *anchor;        /* the largest reduction, NULL: none */
	int64_t unroll;                    /* reductions of at most so many elements are straight-line code */
	int depth;
};

/* The ranges that breaks cut the variables of mask into: gs_seg_init, then gs_seg_next until false. */
struct seg { int nv; int v[GEN_NV]; int n[GEN_NV], at[GEN_NV]; int64_t p[GEN_NV][MAX_BRK + 2]; };

/* --- form.c --- */
void gs_fail(struct cx *cx, const char *why);
void gs_clear(struct cx *cx);                                   /* no nodes, forms, reductions */
uint32_t gs_node_put(struct cx *cx, const struct gen_node *n);  /* equal nodes are one */
uint32_t gs_node_lin(struct cx *cx, struct gen_lin l, enum dtype dt);
uint32_t gs_lin_put(struct cx *cx, struct gen_lin l);
uint32_t gs_lin_const(struct cx *cx, int64_t c);
struct gen_lin gs_lin_of(struct cx *cx, uint32_t id);
bool gs_lin_is_const(const struct gen_lin *l);
void gs_lin_range(struct cx *cx, const struct gen_lin *l, bool with_c, int64_t *lo, int64_t *hi);
/* Variables that l depends on; raises *level to that of its nodes. */
uint16_t gs_lin_mask(struct cx *cx, const struct gen_lin *l, uint16_t *level);
void gs_lin_term(struct cx *cx, struct gen_lin *l, uint32_t node, int64_t k);                  /* l += k * node */
void gs_lin_add(struct cx *cx, struct gen_lin *a, const struct gen_lin *b, int64_t k);         /* a += k * b */
/* l = q * s + r with 0 <= r < s, everywhere. */
void gs_lin_divmod(struct cx *cx, const struct gen_lin *l, int64_t s, struct gen_lin *q, struct gen_lin *r);
/* Flat index over dims -> c0 + sum coordinate * stride. */
struct gen_lin gs_map_strided(struct cx *cx, uint32_t lin, int rank, const int64_t *dim, int64_t c0, const int64_t *stride);
int gs_axis_new(struct cx *cx, int64_t ext, bool outer);
struct gen_lin gs_axis_lin(struct cx *cx, int axis);
void gs_make_vars(struct cx *cx);                               /* variables of the axes that have none yet */
/* Ask that l, which depends on one variable, stays on one side of bound (l < bound or l >= bound). */
bool gs_want_break(struct cx *cx, const struct gen_lin *l, int64_t bound);
bool gs_seg_init(struct cx *cx, struct seg *g, uint16_t mask);  /* false: too many */
void gs_seg_set(struct cx *cx, const struct seg *g);
bool gs_seg_next(struct seg *g);

/* --- nest.c --- */
/* In a nest of body b over vars, reduction red takes in node[0 .. n). */
void gs_nest_red(struct cx *cx, struct gen_body *b, int red, const uint32_t *node, int n, uint16_t vars, uint16_t level);
/* In a nest of body b over vars, element lin of result res is node. */
void gs_nest_store(struct cx *cx, struct gen_body *b, int res, uint32_t node, uint32_t lin, uint16_t vars);

/* --- want.c --- */
/* The node of value v at flat index lin. */
uint32_t gs_want(struct cx *cx, ir_val v, uint32_t lin);

#endif
