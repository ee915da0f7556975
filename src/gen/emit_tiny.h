/* Small values in registers: what the files that emit groups with control flow share.  emit_tiny.c says what a value is.  Strides and offsets are in elements. */
#ifndef RONDO_GEN_EMIT_TINY_H
#define RONDO_GEN_EMIT_TINY_H

#include "emit.h"

struct tv {
	LV ssa;                  /* or NULL: */
	LV ptr;                  /* in memory */
	LV splat;                /* every element the same: a scalar register value */
	const int64_t *stride;   /* of ptr; NULL: dense */
};

struct tiny {
	struct em *e;
	const struct ir_module *m;
	struct arena a;
	int64_t most;            /* elements of a value that is in registers */
	int depth;
	LLVMBasicBlockRef head;  /* of the innermost loop */
	/* A function's body, in the current block; out: where results that are memory should lie, or NULL. */
	void (*function)(struct tiny *t, const struct ir_fn *fn, struct tv *arg, struct tv *res, LV *out);
};

/* --- values (emit_tiny_value.c) -------------------------------------------------- */

int tiny_lanes(int64_t n);                                           /* of a vector of n elements; 0: a scalar */
LT tiny_reg(struct em *e, const struct ir_type_info *t);             /* the register type of all elements */
LV tiny_ssa(struct tiny *t, struct tv *v, const struct ir_type_info *ti);      /* v in a register, from now on */
LV tiny_lane(struct em *e, LV x, int64_t i);                         /* element i of x */
LV tiny_insert(struct em *e, LV x, LV u, LV i);                      /* x with u as its element i */
LV tiny_pick(struct em *e, LV x, const int64_t *idx, int64_t n);     /* elements idx[0 .. n) of x (-1: any of x); so are the spare lanes */
/* Flat positions of all elements of dims under strides. */
int64_t *tiny_positions(struct arena *a, int rank, const int64_t *dim, const int64_t *stride);
/* If n positions lie near each other, though in no order: how many elements there are from *first, the least of them, on to the greatest.  0: far. */
int64_t tiny_near_by(int64_t n, const int64_t *off, int64_t *first);
/* n elements at p, at the given offsets, as a register value; and back. */
LV tiny_load(struct tiny *t, int dt, int64_t n, LV p, const int64_t *off);
void tiny_store(struct tiny *t, int dt, int64_t n, LV p, const int64_t *off, LV x);
/* The value to memory at p, of the strides to (NULL: dense); a copy of it on the stack. */
void tiny_spill(struct tiny *t, struct tv *v, const struct ir_type_info *ti, LV p, const int64_t *to);
LV tiny_spill_new(struct tiny *t, struct tv *v, const struct ir_type_info *ti);
/* acc = acc combined with x, by rop or the function f: n values of types dt, of one shape. */
void tiny_merge(struct tiny *t, enum redop rop, ir_fnid f, int n, const int *dt, LV *acc, const LV *x);

/* --- ops: operands are in val, and so are results then ----------------------- */

void tiny_products(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val);      /* emit_tiny_products.c */
void tiny_gather(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val);        /* emit_tiny_rows.c */
void tiny_scatter(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val);
void tiny_case(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val);          /* emit_tiny_loop.c */
/* out: where results that are memory should lie, NULL = here. */
void tiny_loop(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val, LV *out);

#endif
