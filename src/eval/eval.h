/* The oracle: walks a function of the IR with reference kernels.  Slow, correct, serial (several
 * devices: all positions step by step, collectives by looking at every position's value). */
#ifndef RONDO_EVAL_H
#define RONDO_EVAL_H

#include "../base/base.h"
#include "../ir/ir.h"
#include "../prog/prog.h"
#include "../kern/kern.h"

/* One kernel of an op.  arg[i] for the k->nin + k->nout views: >= 0 operand of the op, < 0 result
 * ~arg[i].  init: the step only copies operand arg[0] to the result (left out when both share storage). */
struct eval_step { struct prog_kern k; int16_t *arg; bool init; };

/* The kernels that compute op o, for dense operands and results, allocated in a.  n = 0: nothing to do
 * (a view whose bytes are its operand's: result 0 is operand 0; a constant, whose bytes are the blob's; a
 * token).  UNIMPLEMENTED for control flow, collectives, partition_id and custom calls, which the caller
 * handles, and for what has no kernel: a region that is not an expression, see eval_expr. */
struct err *eval_steps(struct arena *a, const struct ir_module *m, const struct ir_fn *fn,
                       const struct ir_op *o, struct eval_step **out, int *n);
/* Region f (scalars to scalars, straight-line elementwise, constants; calls and converts looked through)
 * as an expression.  Of a parameter of rank 1, a table, single elements may be taken (dynamic_slice).  UNIMPLEMENTED names the op that does not fit. */
struct err *eval_expr(struct arena *a, const struct ir_module *m, ir_fnid f, struct prog_expr **out);
/* True if eval_steps makes kernels for o and each of them can be prepared.  The oracle itself walks the region
 * of a reducer, comparator or scatter element by element where this is false. */
bool eval_has_kernel(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o);

/* What values of function fn can be on position dev, by intervals, as far as that follows from constants, indices and the number of the position.
 * param: of fn's parameters; NULL: they can be anything.  known: eval_known's; NULL: all is looked at, of a function that is short.  work: steps that may
 * be made, counted down; after the last one everything can be anything. */
struct eval_bounds { const struct ir_module *m; const struct ir_fn *fn; int dev; const struct kern_bound *param; const uint8_t *known; int64_t *work; };
/* Elements of v at indices lo[k] .. hi[k] - 1 of each dimension k; there is one at least. */
struct kern_bound eval_bound(const struct eval_bounds *c, ir_val v, const int64_t *lo, const int64_t *hi);
/* Per value, for eval_bound: 0 where it depends on something else, or on very many ops one after the other.  Array of fn->val.n, owned by the arena. */
uint8_t *eval_known(struct arena *a, const struct ir_module *m, const struct ir_fn *fn);

struct eval_array { enum dtype dtype; int rank; int64_t dim[IR_MAX_RANK]; void *p; size_t bytes; };   /* dense; p owned, malloc */
void eval_array_free(struct eval_array *a);

/* Host code for custom_call: set once per process; NULL entries are UNIMPLEMENTED.  in, out: dense arrays;
 * out's are allocated. */
typedef struct err *eval_custom_fn(void *user, const char *target, const void *dict, size_t ndict,
                                   int nin, struct eval_array *in, int nout, struct eval_array *out);
struct eval_opts {
	int ndev;                /* positions; >= 1 */
	eval_custom_fn *custom; void *user;
	int64_t max_iter;        /* of a while; 0 = no limit */
};
/* Run main.  args[d * nparam + i] are position d's (local) arrays; res likewise, allocated. */
struct err *eval_main(const struct ir_module *m, const struct eval_opts *o,
                      const struct eval_array *args, struct eval_array *res);
/* One function on one position: for constant folding and for validation. */
struct err *eval_fn(const struct ir_module *m, const struct ir_fn *fn, const struct eval_array *args, struct eval_array *res);

#endif
