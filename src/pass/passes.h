/* The passes, for compile.c, and what they share. */
#ifndef RONDO_PASS_PASSES_H
#define RONDO_PASS_PASSES_H

#include "pass.h"
#include "../attn/attn.h"
#include "../eval/eval.h"
#include "../gen/gen.h"
#include "../spmd/spmd.h"

/* --- rewrite.c: rebuild every function that main reaches, regions before their users --- */

struct rewrite {
	struct ir_module *m;
	const struct ir_fn *from;
	struct ir_b b;           /* b.fn is the new function */
	ir_val *map;             /* old value -> new */
	const uint8_t *live;     /* per old value: 1, it is read; 2, another result of its op may be */
	struct arena *a;         /* reset after each function */
	void *user;
};
/* Called for each live op, operands already mapped; gives the first result, 0 = copy the op,
 * REWRITE_MAPPED = r->map has the results. */
#define REWRITE_MAPPED UINT32_MAX
typedef ir_val rewrite_op(struct rewrite *r, const struct ir_op *o, const ir_val *in);
/* Before a function's ops (NULL = nothing to prepare).  False: the function stays as it is; b.fn is not to be used. */
typedef bool rewrite_begin(struct rewrite *r);
void pass_rewrite(struct ir_module *m, rewrite_op *op, rewrite_begin *begin, void *user);
/* x in the element type of t and spread to t, of which its dimension d is to[d], in whatever order. */
ir_val pass_spread(struct ir_b *b, ir_val x, ir_type t, const int64_t *to);
/* All stays but what nothing reads. */
void pass_drop(struct ir_module *m);
/* The same as pass_rewrite, users before regions: those that op makes are rewritten too. */
void pass_rewrite_down(struct ir_module *m, rewrite_op *op);
/* Some function of m has an op of this kind: most programs need not be rebuilt by passes that look for few kinds. */
bool pass_has(const struct ir_module *m, enum ir_kind k);
/* Put g in the place of f; g keeps f's id. */
void pass_replace(struct ir_module *m, ir_fnid f, struct ir_fn *g);

/* --- region.c --- */

/* Each result shows the bytes of one operand, the first of a single result. */
static inline bool pass_shows(const struct ir_op *o)
{
	return (ir_info(o->kind)->flags & IR_VIEW) || o->kind == IR_optimization_barrier || o->kind == IR_bitcast || o->kind == IR_bitcast_convert;
}

/* Ops that give way, in order; what of the function the new ones read, and what they give in the place of the old ones' results.  Arrays
 * are the caller's. */
struct region { const int *op; int nop; const ir_val *in, *out; size_t nin, nout; };
struct region_change {
	/* Emits what takes the place of region k; out: its results. */
	void (*region)(void *user, struct ir_b *b, int k, const ir_val *in, ir_val *out);
	/* The same of an op outside; 0, or no such function: a copy. */
	ir_val (*other)(void *user, struct ir_b *b, const struct ir_op *o, const ir_val *in);
	void *user;
	bool in_order;         /* all ops outside stay in their order as far as that goes; else each comes when it is needed, unless that takes much more memory */
};
/* A new function like fn, with each region as what change makes of it.  Needs: regions share no op, no path leads out of one and back in,
 * and what is read of its results by ops that stay, or as what another region reads, is in out.  Gives: effects in the order of before, each op after what it reads, nothing
 * that no result and no effect needs.  The caller puts it in fn's place.  Regions may hold effects themselves: those that come instead stand where the region
 * does. */
struct ir_fn *pass_replace_regions(struct ir_module *m, struct arena *a, const struct ir_fn *fn, const struct region *r, int n, const struct region_change *c);

/* --- stage.c --- */

/* What holds of the whole program once a pass has given it. */
enum pass_fact {
	NO_CALL = 1,             /* no call */
	LOCAL = 2,               /* types are those of one device: no manual computation, no constraint or group of shardings */
	NO_JOINT = 4,            /* no collective has a joint reducer */
};
struct err *pass_holds(const struct ir_module *m, unsigned facts);    /* INTERNAL names who breaks one */

/* --- the passes ------------------------------------------------------------
 * Each takes a module that ir_verify accepts and leaves one.  What a pass needs and gives is in the table of compile.c, and checked;
 * what else it promises, and what not, is said here.  Where no failure is named there is none. */

/* Where each device stands for several (parts), it becomes these.  What a program says by itself of devices, a manual computation, has no such meaning:
 * pass_repro_parts. */
struct err *pass_repro(const struct pass_opts *o, struct ir_module *m);
/* Sums of narrow floats round as XLA:CPU does without excess precision, if that is asked for.  Beside it small.c may change a number, and canon's sum_of_products. */
struct err *pass_round(const struct pass_opts *o, struct ir_module *m);
/* Calls that the reader kept become their bodies.  Recursion does not come here: ir_verify refuses it. */
struct err *pass_inline(const struct pass_opts *o, struct ir_module *m);
/* Roles of loop operands, trip counts, sinking of cheap invariants.  Loops are in the form of ir.h where that can be recovered; the
 * others stay a while: nobody may count on a trip count. */
struct err *pass_loops(const struct pass_opts *o, struct ir_module *m);
/* Constant folding of small values, algebra, products without contraction as multiplications.  To a fixpoint of its rewrites
 * (rewrites.def), not to a normal form: equal values may still be written in two ways. */
struct err *pass_canon(const struct pass_opts *o, struct ir_module *m);
/* Equal pure ops of a function are shared; never across an optimization_barrier, never collectives.  Large cheap values are not: each
 * reader makes its own.  _local: of a device's part; before that, on several devices, nor are arrays made of no array. */
struct err *pass_cse(const struct pass_opts *o, struct ir_module *m);
struct err *pass_cse_local(const struct pass_opts *o, struct ir_module *m);
/* What the turns of a loop make anew, each the same, is made before the loop; collectives, too.  Not what is cheap, nor what takes more memory than it saves
 * time.  _local: of a device's part; before that, on several devices, nor arrays made of no array. */
struct err *pass_leave(const struct pass_opts *o, struct ir_module *m);
struct err *pass_leave_local(const struct pass_opts *o, struct ir_module *m);
/* Short counted elementwise loops over large arrays become straight-line code; the others stay. */
struct err *pass_unroll(const struct pass_opts *o, struct ir_module *m);
/* Collectives with a joint reducer become weights and sums.  Which way is a rule on sizes. */
struct err *pass_joint(const struct pass_opts *o, struct ir_module *m);
/* The order in which arguments and results of main lie in memory is settled, and becomes that of their dimensions; who reads them transposes. */
struct err *pass_layouts(const struct pass_opts *o, struct ir_module *m);
/* Sums of values with zeros around them, along one dimension and no two at the same place, become concatenations. */
struct err *pass_beside(const struct pass_opts *o, struct ir_module *m);
/* Attention, forward and backward, however it is written, becomes the ops attention and attention_grad, where both agree on samples.  What is not
 * recognised stays. */
struct err *pass_attention(const struct pass_opts *o, struct ir_module *m);
/* A case in a counted loop whose index follows from the turn, and is the same in all turns, becomes the branch that it takes; so does one that takes
 * another only in the last turn, where nobody sees what it gives, or only in the first, where both give the same.  If only the first or the last turn is
 * another, and both branches do no more than permute, the case leaves the loop. */
struct err *pass_turns(const struct pass_opts *o, struct ir_module *m);
/* Attention over a sequence that hosts share, where it takes least: each host has all rows of some heads, and of the sequence its devices have shares. */
struct err *pass_heads(const struct pass_opts *o, struct ir_module *m);
/* Attention over a sequence that devices share: where a mask gives some of them more work than others, and it pays, pairs exchange halves, and what comes of
 * these.  Sums of gradients are added in another order then. */
struct err *pass_balance(const struct pass_opts *o, struct ir_module *m);
/* Attention whose keys are gathered, and its gradients, go round in turns: of one host's blocks each where there are several hosts, of gradients of one device's
 * in a loop where it is one.  Sums go in the order of the turns, in f32 or f64. */
struct err *pass_ring(const struct pass_opts *o, struct ir_module *m);
/* Small sums over one group that do not need each other become one, of their operands side by side, where that is cheaper. */
struct err *pass_combine(const struct pass_opts *o, struct ir_module *m);
/* split.c: large reductions to few results in two steps, an extreme and its place as two, few of many elements alone; fuse begins with it. */
void pass_split(struct ir_module *m);
/* small.c: products of many matrices of a few elements each as multiplications and sums; fuse begins with it, too. */
void pass_small(struct ir_module *m);
/* rows.c: scatters of many short rows as groups, loops over the rows, where compiling them pays; fuse begins with it, too. */
void pass_rows(struct ir_module *m, const struct pass_opts *o);
/* Groups of ops that become one kernel: fused ops.  Ops that are in no group stay as they are; the order of effects stays. */
struct err *pass_fuse(const struct pass_opts *o, struct ir_module *m);
/* Groups that are the same, or differ in constants only, hold one function.  From here on a function may be held more than once. */
struct err *pass_share(const struct pass_opts *o, struct ir_module *m);
/* Collectives begin early and what reads them comes late, so that work lies between; effects keep their order, and a function takes an
 * eighth more memory than before at most.  No number changes. */
struct err *pass_schedule(const struct pass_opts *o, struct ir_module *m);

/* --- joint.c --- */

/* The parts (o, m, z) of a softmax over keys and over more keys, those of attention_part, become those over all: arrays in the type of the sums, m and z with
 * o's dimensions but the last.  What has no keys counts nothing.  A logarithm instead of m and z would not do: beside a large number that a mask
 * fills in it does not hold how many keys there were.  pass_soft_log: m + log z, which is l. */
void pass_soft_add(struct ir_b *b, ir_val *part, const ir_val *more);
ir_val pass_soft_log(struct ir_b *b, ir_val m, ir_val z);

/* --- words.c --- */

void pass_add_place(struct str *s, const struct ir_module *m, ir_loc l);     /* file:line, as in all of explain */
enum { PASS_WIDTH = 120 };
/* text, indented, in lines that are not too long: broken at blanks, rather not at those between brackets. */
void pass_add_wrapped(struct str *s, const char *text, int indent);

/* --- sharded.c --- */

/* Bytes that come into a device by collective o, at least. */
double pass_coll_bytes(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o);
/* What lies where, why, and what travels: m is the program after all passes, r the partitioner's record of it; of: what is read in place
 * (struct lower_opts.lent), NULL if that is not known. */
void pass_explain_sharded(struct str *s, struct arena *a, const struct ir_module *m, const struct spmd_record *r, const struct pass_opts *o, const struct map *of, bool all);

/* --- held.c --- */

/* Memory of a device: what JAX's memory_analysis says, but for what kernels work in, which depends on the machine; and the temporaries that
 * are alive when most is needed, with the lines that they come from. */
void pass_explain_memory(struct str *s, const struct ir_module *m, const struct pass_account *t);

/* --- explain.c --- */

/* Loops, groups, kernels, memory: of m after all passes, choice as the groups were lowered, account of the program. */
void pass_explain_compiled(struct str *s, struct arena *a, const struct ir_module *m, const struct plan_table *t, const struct lower_choice *choice, const struct pass_account *account);

/* --- loops.c --- */

/* Operands and results of loops that nobody needs go. */
void pass_drop_operands(struct ir_module *m);

/* --- parts.c --- */

/* Values concatenated of scores and a few others, of which exponentials are taken, are two values each. */
void pass_parts(struct ir_module *m);

/* --- recompute.c: attention in a loop and in the loop that goes back over it --- */

/* What a loop stacks of an attention, matrices and rows of sums, for a later loop: that one makes it again from queries and keys, so that its body has
 * an attention's forward and backward.  all: small ones, too. */
struct recomputed_fn { ir_fnid id; struct ir_fn *was; int loops; };      /* a function that was changed, what it was, how many loops of it make something again */
struct recomputed { struct recomputed_fn *p; size_t n, cap; };
void pass_recompute(const struct pass_opts *o, struct ir_module *m, bool all, struct recomputed *done);
/* Functions of which not all such loops have got the gradient of an attention are what they were.  True: there is one; ends done. */
bool pass_recompute_undo(struct ir_module *m, struct recomputed *done);
/* An attention op that a later loop does again with operands that an earlier one has stacked: its results are stacked as well.  One that is done
 * again behind a barrier, outside of loops: its results are those of the first. */
void pass_keep_outputs(struct ir_module *m);

/* --- unroll.c --- */

/* Counted loops, by function and op, that become straight-line code; a stack has a row for each turn. */
struct unrolled { struct { const struct ir_fn *fn; ptrdiff_t op; } *p; size_t n, cap; };
void pass_unroll_these(struct ir_module *m, struct unrolled *u);
/* Where memory is short (o->save): of what loops stack for those that go back over them, so many bytes are made again there instead, what takes least time for
 * each first. */
struct err *pass_remake(const struct pass_opts *o, struct ir_module *m);
/* Attention whose o is in two parts (src/attn/parts.c): o itself where only it is read; late: the op gives both where they are. */
void pass_attention_parts(struct ir_module *m, bool late);

/* --- attention.c --- */

/* What became of each product that looked like an attention. */
void pass_explain_attention(struct str *s, const struct ir_module *m, const struct attn_record *r);
void pass_explain_rings(struct str *s, const struct ir_module *m, const struct ring_record *r);

/* --- compile.c --- */
/* What follows the passes: lower_module; lent as there. */
struct err *pass_lower(const struct pass_opts *o, struct ir_module *m, struct lower_choice *choice, struct map *lent, struct prog **out);

#endif
