/* Lists of mesh axes, major to minor, and how they lie on the factors of an op.
 *
 * An axis reference (struct ir_axis_ref) is an axis or a part of it: an axis of size n split as [pre, size, n / (pre * size)],
 * the middle one.  Two parts of one axis overlap where their ranges [pre, pre * size) do. */
#ifndef RONDO_SPMD_AXIS_H
#define RONDO_SPMD_AXIS_H

#include "spmd.h"

/* A list is never changed in place: who makes another one shares or copies the references, in an arena. */
struct axes { int n; const struct ir_axis_ref *p; };

static inline bool ref_equal(struct ir_axis_ref a, struct ir_axis_ref b) { return a.axis == b.axis && a.pre == b.pre && a.size == b.size; }
bool ref_overlaps(struct ir_axis_ref a, struct ir_axis_ref b);
/* Is a a major part of b, smaller than b? */
static inline bool ref_begins(struct ir_axis_ref a, struct ir_axis_ref b) { return a.axis == b.axis && a.pre == b.pre && a.size < b.size && b.size % a.size == 0; }
/* The largest major part of a that has nothing of b.  False: there is none. */
bool ref_before(struct ir_axis_ref a, struct ir_axis_ref b, struct ir_axis_ref *out);
int64_t axes_size(struct axes l);                       /* product; 1 if empty */
bool axes_equal(struct axes a, struct axes b);
/* Is a a list that b goes on from: the same references, the last one of a perhaps a major part of b's? */
bool axes_begin(struct axes a, struct axes b);
/* Cut l, at ref i, before it overlaps anything of taken. */
struct axes axes_without(struct arena *a, struct axes l, struct axes taken);
/* l, r behind; references that are neighbours in one axis become one. */
struct axes axes_join(struct arena *a, struct axes l, struct axes r);

/* How the dimensions of one tensor of an op are cut, seen on the op's factors. */
struct factor_axes {
	bool has;                /* the tensor has this factor */
	bool closed, minor;      /* may not be cut further; the least significant factor of its dimension, which takes axes that do not divide it */
	struct axes axes, over;  /* over: what is left of the dimension's axes and fits no factor */
};
/* h: of the tensor, 0: open; out: of nfactor entries.  Returns the axes that cut dimensions without factors, or are kept out of the tensor
 * (replicated, unreduced). */
struct axes factors_of(struct arena *a, const struct ir_module *m, const struct ir_axes *x, int tensor, ir_shard h, struct factor_axes *out);
/* The way back: h with the dimensions' axes as the factors have them. */
ir_shard factors_to(struct arena *a, struct ir_module *m, const struct ir_axes *x, int tensor, ir_shard h, uint32_t mesh, const struct factor_axes *f);

#endif
