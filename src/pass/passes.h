/* The passes, for compile.c, and what they share. */
#ifndef RONDO_PASS_PASSES_H
#define RONDO_PASS_PASSES_H

#include "pass.h"
#include "../eval/eval.h"
#include "../gen/gen.h"
#include "../spmd/spmd.h"

/* --- rewrite.c: rebuild every function that main reaches, regions before their users --- */

struct rewrite {
	struct ir_module *m;
	const struct ir_fn *from;
	struct ir_b b;           /* b.fn is the new function */
	ir_val *map;             /* old value -> new */
	const uint8_t *live;     /* per old value */
	struct arena *a;         /* reset after each function */
	void *user;
};
/* Called for each live op, operands already mapped; gives the first result, 0 = copy the op,
 * REWRITE_MAPPED = r->map has the results. */
#define REWRITE_MAPPED UINT32_MAX
typedef ir_val rewrite_op(struct rewrite *r, const struct ir_op *o, const ir_val *in);
/* Before a function's ops (NULL = nothing to prepare). */
typedef void rewrite_begin(struct rewrite *r);
void pass_rewrite(struct ir_module *m, rewrite_op *op, rewrite_begin *begin, void *user);
/* The same, users before regions: those that op makes are rewritten too. */
void pass_rewrite_down(struct ir_module *m, rewrite_op *op);
/* Functions reachable from main, regions before users; array owned by the arena. */
ir_fnid *pass_reachable(struct arena *a, const struct ir_module *m, int *n);
/* Put g in the place of f; g keeps f's id. */
void pass_replace(struct ir_module *m, ir_fnid f, struct ir_fn *g);

/* --- scan.c: a rewrite of canon --- */
/* A reduce_window over all positions before or behind each: by levels, or cumulative.  As rewrite_op. */
ir_val pass_as_scan(struct rewrite *r, const struct ir_op *o, const ir_val *in);

/* --- the passes ------------------------------------------------------------ */

/* Sums of narrow floats round as XLA:CPU does without excess precision, if that is asked for. */
struct err *pass_round(const struct pass_opts *o, struct ir_module *m);
/* Calls that the reader kept become their bodies.  gives: no call left. */
struct err *pass_inline(const struct pass_opts *o, struct ir_module *m);
/* Roles of loop operands, trip counts, sinking of cheap invariants.
 *   needs inline   gives loops in the form of ir.h where they can be recovered; the others stay a while */
struct err *pass_loops(const struct pass_opts *o, struct ir_module *m);
/* Constant folding of small values, algebra, products without contraction as multiplications. */
struct err *pass_canon(const struct pass_opts *o, struct ir_module *m);
/* Equal pure ops are shared; never across an optimization_barrier, never collectives. */
struct err *pass_cse(const struct pass_opts *o, struct ir_module *m);
/* Short counted elementwise loops over large arrays become straight-line code.   needs loops */
struct err *pass_unroll(const struct pass_opts *o, struct ir_module *m);
/* Groups of ops that become one kernel. */
struct err *pass_fuse(const struct pass_opts *o, struct ir_module *m);

/* Groups that differ in constants only become one kernel.   needs fuse */
struct err *pass_share(const struct pass_opts *o, struct ir_module *m);

/* --- compile.c --- */
struct err *pass_lower(const struct pass_opts *o, struct ir_module *m, struct prog **out);      /* what follows the passes */

#endif
