/* Shardings into local programs: shardings flow to every value, and the program of whole arrays becomes the one that each device runs on
 * its shards, with the communication that this takes. */
#ifndef RONDO_SPMD_H
#define RONDO_SPMD_H

#include "../base/base.h"
#include "../ir/ir.h"
#include "../plan/plan.h"

/* --- record.c: what was decided and why, for who asks -------------------------------------
 *
 * Ids in it (types, shardings, places in the source) are the module's, which lives on through the passes.  Index 0 of each array is
 * nothing.  Owned by who makes it; of one thread. */

/* Where a dimension of a value has an axis from: an annotation, or what is at the other end of an op. */
enum spmd_source { SPMD_OP, SPMD_ARGUMENT, SPMD_RESULT, SPMD_CONSTRAINT, SPMD_IN, SPMD_OUT, SPMD_GIVEN };
struct spmd_origin {
	uint8_t source;
	uint16_t op;             /* kind of the op; of an annotation, of what it stands at */
	ir_loc loc;
	int dim;
	struct ir_axis_ref axis;
	uint32_t index;          /* of an annotation: number of the argument, result, operand */
	uint32_t from;           /* SPMD_OP: the origin at its other end; 0: not known */
	uint32_t next;           /* of the same value, older */
};

/* A value of the program of whole arrays.  op: the kind of what makes it; 0: it is main's argument number index.  result: it is main's
 * result number index.  inside: of a manual computation, whose axes it does not show.  It lies as the annotations say that have come to it
 * (said), unless it is cheaper to leave it as it is made. */
struct spmd_value { uint16_t op; bool result, inside; uint32_t index; ir_type type; ir_shard lies, said; ir_loc loc; uint32_t origin; };

/* A constraint that cuts dimension dim into parts parts, which do not divide it. */
struct spmd_uneven { ir_loc loc; ir_type type; ir_shard asked, lies; };

/* Why something is moved.  If it is parts of a sum (from has some that `to` has not), they are added. */
enum spmd_reason {
	SPMD_WRITTEN,            /* the program says so: a collective of a manual computation */
	SPMD_OPERAND,            /* an op reads operand k so */
	SPMD_MADE,               /* result k of an op shall lie so */
	SPMD_ENTERS,             /* parameter k of a loop's body or a branch shall lie so */
	SPMD_LEAVES,             /* result k of one; of main: op is 0 */
	SPMD_LOCAL,              /* so an op does its part where dimensions are cut */
	SPMD_SHARED,             /* half of operand k of an op, which gives its device more work than others */
	SPMD_RETURNED,           /* half of result k of one, whose device has done it for another */
	SPMD_TRADED,             /* what operand k of an op has of the heads that another host does */
	SPMD_GIVEN_BACK,         /* what result k of one has of heads that another host has done */
};
/* One value brought from one sharding to another, or summed: it may take several collectives, or none. */
struct spmd_move {
	uint8_t reason;
	bool inside;             /* of a loop's body or a branch */
	uint16_t op;
	int k;
	ir_loc loc;              /* of op */
	uint16_t maker;          /* of an operand: what made it; 0: not known */
	ir_loc maker_loc;
	ir_type type;            /* of the whole value; 0 where SPMD_WRITTEN or SPMD_LOCAL */
	ir_shard from, to;
	double need;             /* bytes that some device lacks, at least; -1: not known */
	int cannot;              /* of an operand: the dimension that is cut and along which op has no part for each device; -1: none */
	ir_shard advice;         /* then: how the operand could lie, with no dimension cut that may not be */
	uint32_t way;
	uint32_t others;         /* moves that came to travel with it, in one exchange */
};
/* How an op might have been cut: nanoseconds for it and what moves for it, as chosen and next best; how its operands, and behind them its
 * results, lie then. */
struct spmd_way { double chosen, other; int nin, n; const ir_shard *lies; };
/* The collectives that a move became: each has a place in the source of its own, which passes keep. */
struct spmd_comm { ir_loc loc; uint32_t move; };

struct spmd_record {
	struct arena a;
	ARR(struct spmd_origin) origin;
	ARR(struct spmd_value) value;
	ARR(struct spmd_uneven) uneven;
	ARR(struct spmd_move) move;
	ARR(struct spmd_way) way;
	ARR(struct spmd_comm) comm;      /* in order of loc */
	uint32_t **of;                   /* [function][value] before it is cut: its newest origin */
	uint32_t *result;                /* the same of main's results */
};
void spmd_record_init(struct spmd_record *r);
void spmd_record_fini(struct spmd_record *r);
/* The move that a collective at loc is of, or 0. */
uint32_t spmd_move_of(const struct spmd_record *r, ir_loc loc);
/* The place in the source for a collective that takes part of operand or result k of o from device to device; why: SPMD_SHARED .. SPMD_GIVEN_BACK.  r NULL:
 * o's. */
ir_loc spmd_shared(struct spmd_record *r, struct ir_module *m, const struct ir_op *o, enum spmd_reason why, int k);
/* A collective at `to`, the newest place, is of the same move as the one at loc. */
void spmd_move_at(struct spmd_record *r, ir_loc loc, ir_loc to);
/* What the collective at `other` is of, travels with what the one at loc is of. */
void spmd_went_with(struct spmd_record *r, ir_loc loc, ir_loc other);
/* Where dimension dim has axis (or a part of it) from, among the origins from newest on; 0: not known. */
uint32_t spmd_origin_of(const struct spmd_record *r, uint32_t newest, int dim, struct ir_axis_ref axis);

/* --- custom.c -------------------------------------------------------------------------------- */

/* How an array lies: dim[0 .. n) tiles, those behind its rank copies of each other; the devices in their order, row-major.  n 0: whole. */
struct spmd_tiles { int n; int64_t *dim, *device; };

/* A custom call whose maker is asked how it is cut.  Arrays have an entry for each operand, then for each result. */
struct spmd_call {
	const struct ir_module *m;
	struct arena *a;                         /* for the answers */
	const char *target;
	const void *key; size_t nkey;
	uint32_t nin, n;                         /* operands; operands and results */
	const ir_type *type;                     /* of the whole value */
	struct ir_blob_info *sharding;           /* how it lies: xla.OpSharding */
	struct spmd_tiles *tiles;                /* answered: how it shall lie */
	struct ir_module *local;                 /* answered, owned: what each device computes on its parts; the passes before partition have run */
};

/* What only the maker of a program can say, with whom the module has keys (ir_key).  Its errors are the program's. */
struct spmd_maker {
	void *user;
	bool (*partitions)(void *user, const char *target);     /* does it say how calls of target are cut? */
	bool (*batches)(void *user, const char *target);        /* may they be made on parts of the leading dimensions that all operands and results share? */
	bool (*of_parts)(void *user, const char *target);       /* does each device make them on its parts, however these lie?  They give no arrays */
	struct err *(*partition)(void *user, struct spmd_call *c);
	struct err *(*inspect)(void *user, const void *key, size_t nkey, const struct ir_blob_info *sharding);
};

/* --- partition.c, propagate.c ------------------------------------------------------------------ */

/* Replace whole-array operations by the ones each device runs on its shard.
 *   needs   calls inlined
 *   gives   a main whose types are local, no manual, sharding_constraint or sharding_group left; m->arg and
 *           m->res have the shardings of the interface
 *   fails   UNIMPLEMENTED naming the sharding that there is no way to hold: of another number of devices, one that does not divide an
 *           argument or result, an unreduced one by anything but a sum
 * plan: the prices by which ways are chosen, of positions 0 .. ndev-1; NULL: one host, the default table.  maker: NULL if nobody can be
 * asked.  rec: gets what was decided and why, and changes nothing of it; NULL: nobody asks. */
struct err *spmd_partition(struct ir_module *m, int ndev, const struct plan_on *plan, const struct spmd_maker *maker, struct spmd_record *rec);

/* Every value's sharding, from what the interface, constraints and manual computations say.
 *   needs   calls inlined
 *   gives   shardings of all values (ir_shard_of), and of main's parameters and results; nothing else changes */
struct err *spmd_propagate(struct ir_module *m, struct spmd_record *rec);

/* --- price.c ------------------------------------------------------------------------------------ */

/* What an op takes, about, in ns of a device that computes: nothing of a collective. */
double spmd_op_time(const struct plan_table *t, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o);
/* What a collective takes, about, where nobody is late, in ns. */
double spmd_coll_time(const struct plan_on *p, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o);
/* Has collective o a link between two hosts? */
bool spmd_between_hosts(const struct plan_on *p, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o);
/* What a run of fn, of the program of one device, takes, about, in ns: its ops, and all its collectives, one after the other. */
double spmd_fn_time(const struct plan_on *p, const struct ir_module *m, const struct ir_fn *fn);

/* --- shard.c ------------------------------------------------------------------------------------ */

/* Append the serialized xla.OpSharding of sharding h for an array of the given rank. */
void spmd_op_sharding(struct str *s, const struct ir_module *m, ir_shard h, int rank, int ndev);
void spmd_op_sharding_manual(struct str *s);      /* the same of what is within a manual computation over all axes */

/* Box of the whole array that the device at position pos holds: start[d], size[d] for global extents
 * dim.  False if a dimension does not divide. */
bool spmd_shard_box(const struct ir_module *m, ir_shard h, int pos, int rank, const int64_t *dim,
                    int64_t *start, int64_t *size);

#endif
