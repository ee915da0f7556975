/* What the files of the partitioner share.
 *
 * axis.c: lists of mesh axes, major to minor, and how they lie on the factors of an op.
 * An axis reference (struct ir_axis_ref) is an axis or a part of it: an axis of size n split as [pre, size, n / (pre * size)],
 * the middle one. */
#ifndef RONDO_SPMD_IMPL_H
#define RONDO_SPMD_IMPL_H

#include "spmd.h"

/* A list is never changed in place: who makes another one shares or copies the references, in an arena. */
struct axes { int n; const struct ir_axis_ref *p; };

static inline bool ref_equal(struct ir_axis_ref a, struct ir_axis_ref b) { return a.axis == b.axis && a.pre == b.pre && a.size == b.size; }
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

/* --- shard.c: where a device is in a mesh ------------------------------------------- */

int64_t mesh_position(const struct ir_mesh *m, int64_t device);
int64_t mesh_coordinate(const struct ir_mesh *m, int64_t position, struct ir_axis_ref r);
int64_t mesh_index(const struct ir_mesh *m, int64_t device, struct axes l);      /* number of the device's block along l */

/* --- settle.c ------------------------------------------------------------------------- */

/* h as a value may have it that is computed: closed, without axes of size 1 and without those from the first on that do not divide the
 * dimension, or, of an argument or a result that the compiler chose (border), are parts of axes; 0 if nothing is cut or to be summed. */
ir_shard shard_settled(struct arena *a, struct ir_module *m, ir_shard h, const struct ir_type_info *t, bool border);

/* --- reshard.c: code that moves a value from one sharding to another -------------------- */

/* apart: axes along which devices hold other values, not copies (those of the manual computation around), in mesh apart_of. */
struct part { struct ir_module *m; struct arena a; int ndev; struct axes apart; uint32_t apart_of; };

ir_type part_type(struct part *p, ir_type t, ir_shard h, enum dtype dt);        /* a device's part of t under h; of element type dt unless that is DT_token */
bool part_equal(struct part *p, ir_shard a, ir_shard b, int rank);              /* does every device hold the same box? */
ir_shard part_sum(struct part *p, ir_shard h);      /* the sum over devices that is still to be made: its axes cut the only dimension of a list; 0: none */
ir_shard part_summed(struct part *p, ir_shard h);   /* h without that sum */
struct axes part_axes(struct part *p, ir_shard h, int d);
/* How a tensor of an op lies whose factors are cut by f. */
ir_shard part_shard(struct part *p, const struct ir_axes *x, int tensor, uint32_t mesh, const struct axes *f);
ir_group part_group(struct part *p, uint32_t mesh, struct axes l);              /* devices that differ along l alone, in the order of l */
/* v of every device, combined over l by r.  Parts of a sum of narrow floats travel and add in f32: it rounds once, as the whole sum would; the
 * result is of type dt. */
ir_val part_combine(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, enum redop r, enum dtype dt);
bool part_rounds(enum dtype dt, enum redop r);      /* is a sum by r in dt made in f32? */
/* The i32 scalar that is, on each device, the number of its block along l times size. */
ir_val part_offset(struct part *p, struct ir_b *b, uint32_t mesh, struct axes l, int64_t size);
ir_val part_first(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, ir_val other);    /* v where the block along l is 0, else other */
ir_val part_reshard(struct part *p, struct ir_b *b, ir_val v, ir_shard from, ir_shard to);
/* The sum that v still is, made, of v's type; dimensions that `to` cuts by axes of the sum are so cut afterwards.  *from: how it lies, then. */
ir_val part_finish(struct part *p, struct ir_b *b, ir_val v, ir_shard *from, ir_shard to);
/* Bytes that come to each device on that way, at least; of a value of type t. */
double part_bytes(struct part *p, ir_type t, ir_shard from, ir_shard to);

/* --- choose.c --------------------------------------------------------------------------- */

/* How op o is cut: for each factor of x the axes, from how its operands lie (have) and its results shall (want). */
struct axes *part_choose(struct part *p, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, const ir_shard *have,
                         const ir_shard *want, uint32_t *mesh);

/* --- local.c ------------------------------------------------------------------------------ */

/* Can each device do its part of o along factor f on its own parts of the operands? */
bool part_can(struct part *p, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, int f);
/* The axes that cut factors which o sums over. */
struct axes part_sums(struct part *p, const struct ir_axes *x, const struct axes *f);
/* o on parts: in are the operands' parts, cut as f says; results go to out.  True: the one result is a sum that is still to be made (over
 * part_sums), of f32 where it is to be made in that. */
bool part_emit(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, uint32_t mesh,
               const struct axes *f, const ir_val *in, ir_val *out);

#endif
