/* Shardings into local programs: shardings flow to every value, and the program of whole arrays becomes the one that each device runs on
 * its shards, with the communication that this takes. */
#ifndef RONDO_SPMD_H
#define RONDO_SPMD_H

#include "../base/base.h"
#include "../ir/ir.h"

/* Replace whole-array operations by the ones each device runs on its shard.
 *   needs   calls inlined
 *   gives   a main whose types are local, no manual, sharding_constraint or sharding_group left; m->arg and
 *           m->res have the shardings of the interface
 *   fails   UNIMPLEMENTED naming the sharding that there is no way to hold: of another number of devices, one that does not divide an
 *           argument or result, an unreduced one by anything but a sum */
struct err *spmd_partition(struct ir_module *m, int ndev);

/* Every value's sharding, from what the interface, constraints and manual computations say.
 *   needs   calls inlined
 *   gives   shardings of all values (ir_shard_of), and of main's parameters and results; nothing else changes */
struct err *spmd_propagate(struct ir_module *m);

/* Append the serialized xla.OpSharding of sharding h for an array of the given rank. */
void spmd_op_sharding(struct str *s, const struct ir_module *m, ir_shard h, int rank, int ndev);

/* Box of the whole array that the device at position pos holds: start[d], size[d] for global extents
 * dim.  False if a dimension does not divide. */
bool spmd_shard_box(const struct ir_module *m, ir_shard h, int pos, int rank, const int64_t *dim,
                    int64_t *start, int64_t *size);

#endif
