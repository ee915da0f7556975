/* The walker's own structures. */
#ifndef RONDO_EVAL_WALK_H
#define RONDO_EVAL_WALK_H

#include "eval.h"

/* Bytes of a value, counted. */
struct blk { int ref; size_t n; _Alignas(64) char p[]; };

/* What an op needs each time it runs: made once. */
struct ready { struct eval_step *step; struct kern_state **state; int n; bool done, general; };
struct plan_fn { struct ready *op; uint32_t *last; bool comm; };

struct walk {
	struct arena a;
	const struct ir_module *m;
	const struct eval_opts *opt;
	int ndev;
	struct plan_fn **fn;         /* by function id */
	void *scratch, *shared;
	size_t nscratch, nshared;
};

/* A set of positions that walk a function together, in step. */
struct team { int n; const int *pos; };

/* --- blk.c --- */
struct blk *blk_new(size_t n);       /* not zeroed */
struct blk *blk_ref(struct blk *b);
void blk_unref(struct blk *b);

/* --- eval.c --- */
/* Run fn for every position of the team.  in[i * nparam + j], out[i * nresult + j]: of team member i.
 * in is taken, entry by entry, and NULL afterwards: what nobody else holds can be updated in place. */
struct err *walk_fn(struct walk *w, const struct ir_fn *fn, struct team t, struct blk **in, struct blk **out);
/* --- coll.c --- */
/* Collectives.  in[i * nin + j], out[i * nout + j] (allocated, not filled). */
struct err *walk_coll(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, struct team t,
                      struct blk *const *in, struct blk **out);
struct err *walk_manual(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, struct team t,
                        struct blk *const *in, struct blk **out);
/* --- region.c --- */
/* Operations whose region is more than an expression; position pos. */
struct err *walk_region(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, int pos,
                        struct blk *const *in, struct blk **out);

#endif
