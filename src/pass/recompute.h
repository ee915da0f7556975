/* What recompute.c and recompute_same.c share: pairs of loops, of which the second one goes back over the first one, and of cases, of which the second one
 * reads what the first one gives.  Of a case each branch is a pair of its own, of bodies whose operands are all ROLE_CONST. */
#ifndef RONDO_PASS_RECOMPUTE_H
#define RONDO_PASS_RECOMPUTE_H

#include "passes.h"

enum how { NONE, CLONE, TURN, OPERAND, RESULT, ADDED, NEVER };     /* NEVER: not without stacking more */
struct from { uint8_t how; int ref; };         /* where the second loop gets a value of the first one's body: ref: operand, result, added out */

struct swap { ir_val v, by; };

/* A loop, a case or a branch of one, and what changes of it. */
struct edit {
	const struct ir_op *o;
	struct ir_loop l;
	bool *around, *kept;     /* per value of its body, of a first loop; kept: it stacks that, of what a case gives beside scores */
	ARR(ir_val) out;         /* values of its body that it is to stack */
	ir_val *in, made, *stack;                  /* in the new function: its operands, its first result, the added stacks */
	struct edit *first;      /* the loop that it goes back over */
	bool flip;               /* iteration i of the first loop is trip-1-i here */
	struct from *from;       /* per value of the first loop's body */
	bool *gone;              /* per operand: not read any more */
	bool scores;             /* matrices of scores are made again */
	bool *dropped;           /* per result: it is not stacked any more; of a first loop, where memory is short */
	ARR(struct swap) swap;   /* values of this body, and those of the first one's body that they are */
	ir_val *twin;            /* per value of the first one's body: a smaller one that is the same; NULL: none has any */
	bool *drop;              /* per op of this body: all it gives is swapped or read by such ops; NULL: none */
	struct edit **branch;    /* of a case */
	int nbranch;
};

struct edits { struct arena *a; struct ir_module *m; const struct ir_fn *fn; struct edit **of; struct map same; bool all, any; };     /* of: per op; same: what recompute_same has found; all: small attentions, too */

static inline bool is_view(enum ir_kind k)
{
	return k == IR_broadcast || k == IR_reshape || k == IR_transpose;
}

/* --- recompute_same.c --- */

struct edit *recompute_edit(struct edits *w, uint32_t op);
/* The counted loop, of as many turns, that makes the stack which loop e reads as operand k, and which of its results that is; NULL: there is none. */
struct edit *recompute_maker(struct edits *w, const struct edit *e, int k, int *result);
/* v, or what a barrier has taken it from. */
ir_val recompute_unbarred(const struct ir_fn *fn, ir_val v);
/* e goes back over f; false: it goes over another one, or in another way. */
bool recompute_follows(struct edits *w, struct edit *e, struct edit *f, int result, int operand);
/* Is operand `in` of e what e->first gives, of a loop what it stacks, in the turn that e goes back over?  result: which. */
bool recompute_crosses(struct edits *w, const struct edit *e, const struct ir_loop_operand *in, int *result);

/* A value as another one, root, with its dimensions in another order; those of extent 1 do not count. */
struct turned { ir_val root; int n; int from[IR_MAX_RANK]; };      /* its dimension i is from[i] of root */
struct turned recompute_turned(const struct ir_module *m, const struct ir_fn *fn, ir_val v);

/* Is x of e's body what y is in the body of the first loop, in the turn that e goes back over?  What is made before the loops and what is made in them
 * is the same if it is made by the same ops of the same values; barriers do not count.  False: it is not seen to be so. */
bool recompute_same(struct edits *w, struct edit *e, ir_val x, ir_val y);
/* The same of two values of the function. */
bool recompute_alike(struct edits *w, ir_val v, ir_val u);

/* --- recompute_around.c --- */

/* v without what only adds or takes away dimensions of extent 1, or groups the same elements otherwise. */
ir_val recompute_base(const struct ir_module *m, const struct ir_fn *fn, ir_val v);
/* The result of loop e, or of the case that branch e is of, that gives v, its dimensions in any order; -1: none. */
int recompute_stacked(const struct edits *w, const struct edit *e, ir_val v);
/* Is v an operand, seen through views, or one number? */
bool recompute_is_given(const struct ir_module *m, const struct ir_fn *fn, ir_val v);
bool recompute_is_result(const struct ir_fn *fn, ir_val v);
/* These need f->around, which recompute_around makes: does a view of v meet a matrix of scores; does v, seen without its own views (a mask does, or what
 * dropout keeps); is v scores, or a mask of theirs? */
void recompute_around(struct edits *w, struct edit *f);
bool recompute_seen(const struct edit *f, ir_val v);
bool recompute_meets(const struct edit *f, ir_val v);
bool recompute_is_scores(const struct edits *w, const struct edit *f, ir_val v);
/* v of e's body is `by` of the first one's, which that stacks. */
void recompute_take(struct edits *w, struct edit *e, ir_val v, ir_val by);

/* How e has x, a parameter of the first one's body, if that is no carry: from what that one reads. */
bool recompute_param(struct edit *e, ir_val x, struct from *to);

/* --- recompute_apart.c --- */

/* Loops whose scores others read, but not turn by turn, become straight-line code, and so do these.  True: there are such. */
bool recompute_apart(struct ir_module *m, bool all);

/* --- recompute_join.c --- */

/* Cases of one index around attention, of which the second one reads the first one, become one.  True: there are such. */
bool recompute_join(struct ir_module *m, bool all);

/* --- recompute_new.c --- */

/* Every function in which find finds something becomes a new one; done: gets them. */
void recompute_everywhere(struct ir_module *m, void (*find)(struct edits *, void *user), void *user, struct recomputed *done);

#endif
