/* What longer.c has of moved.c. */
#ifndef RONDO_SPMD_MOVED_H
#define RONDO_SPMD_MOVED_H

#include "impl.h"

/* Values that were made on the way to another one, as they were before, and how many may yet be made for one that is. */
struct way { int deep, n; struct undo { ir_val x, map; ir_shard sh; struct view *view; } was[64]; };
/* Those behind the first n are what they were. */
void moved_undo(struct scope *s, struct way *w, int n);
/* v, of dim[d] elements along d, of which more than it has are fill, or, if that is 0, anything, as `to`; 0: that is no better than to gather what
 * it is made of. */
ir_val moved_brought(struct part *p, struct scope *s, struct way *w, ir_val v, const int64_t *dim, ir_val fill, ir_shard to);
/* i32 positions along d in an array of type t, which lies as h. */
ir_val moved_position(struct part *p, struct ir_b *b, ir_type t, ir_shard h, int d);
/* v, which is of type t and lies as h, with `fill` behind the first had[d] elements along d. */
ir_val moved_filled(struct part *p, struct ir_b *b, ir_val v, ir_type t, ir_shard h, const int64_t *had, ir_val fill);
/* The first elements of v, which lies as h and is of type t: of dim[d] along d. */
struct view *moved_shorter(struct part *p, ir_type t, ir_val v, ir_shard h, const int64_t *dim);

/* The axes that cut dimension d of value x where it lies, or, not made yet, of the first of what it is made of that is cut there. */
struct axes moved_cut_of(struct part *p, struct scope *s, ir_val x, int d, uint32_t *mesh);
/* h, of an array of that rank, with the dimensions that have axes in l cut by those, and others as they are if these are free. */
ir_shard moved_cut_as(struct part *p, ir_shard h, int rank, uint32_t mesh, const struct axes *l);
bool moved_overlap(struct axes a, struct axes b);
bool moved_overlap_any(struct axes a, const struct axes *l, int n);
/* Are elements of view x, of one value, where that lies if there are more behind the last one? */
bool moved_in_front(struct part *p, const struct view *x);
/* What divides into that many parts, n or a little more. */
static inline int64_t moved_divisible(int64_t n, int64_t parts) { return (n + parts - 1) / parts * parts; }

#endif
