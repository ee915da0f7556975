/* Loops that go back over others, but not turn by turn.
 *
 * Where a turn has several layers (unroll) and those that are left over stand behind the loop, the loop that goes back begins with these: its turns have other
 * layers together.  What the one stacks is put side by side with what is left over, and the other one reads that cut elsewhere.  Such loops become
 * straight-line code, in which each layer's attention is seen by itself; so do those of a single turn, which stack nothing. */
#include "recompute.h"

enum { MOST_OPS = 1 << 15 };

struct apart { bool all; struct unrolled u; };

/* Does it become no more code than anybody wants? */
static bool may_unroll(const struct edits *w, const struct ir_loop *l)
{
	bool may = !l->cond && l->trip >= 1 && l->trip <= MOST_OPS / (int64_t)(l->body->op.n + 1);
	for (int k = 0; k < l->n && may; k++)
		may = l->x[k].role == ROLE_CONST || l->x[k].role == ROLE_CARRY || ir_vtype(w->m, w->fn, l->x[k].v)->dim[0] == l->trip;
	return may;
}

static bool scores_in(struct edits *w, struct edit *f, int r)
{
	const struct ir_fn *body = f->l.body;
	const struct ir_op *o = ir_def(body, recompute_base(w->m, body, body->result.p[r]));
	bool any = false;
	recompute_around(w, f);
	for (uint32_t k = 0; o && o->kind == IR_concatenate && k < o->nin; k++)
		any |= recompute_is_scores(w, f, recompute_base(w->m, body, ir_in(body, o, k)));
	return any || recompute_is_scores(w, f, recompute_base(w->m, body, body->result.p[r]));
}

static void mark(struct edits *w, struct unrolled *u, const struct edit *e)
{
	ptrdiff_t op = e->o - w->fn->op.p;
	for (size_t i = 0; i < u->n; i++)
		if (u->p[i].fn == w->fn && u->p[i].op == op)
			return;
	arr_reserve(u, 1);
	u->p[u->n].fn = w->fn;
	u->p[u->n++].op = op;
}

/* Marks loops whose stacks of scores v is put together from.  True: there are such. */
static bool mark_makers(struct edits *w, struct unrolled *u, ir_val v, int depth)
{
	enum { DEEP = 8 };
	v = recompute_unbarred(w->fn, v);
	const struct ir_op *o = ir_def(w->fn, v);
	bool any = false;
	if (o && o->kind == IR_loop) {
		struct edit *f = recompute_edit(w, (uint32_t)(o - w->fn->op.p));
		int r = (int)(v - o->out);
		any = (f->l.trip == 1 || (depth && r >= f->l.ncarry)) && may_unroll(w, &f->l) && scores_in(w, f, r);
		if (any)
			mark(w, u, f);
	}
	for (uint32_t k = 0; o && depth < DEEP && (o->kind == IR_concatenate || o->kind == IR_slice || o->kind == IR_reshape) && k < o->nin; k++)
		any |= mark_makers(w, u, ir_in(w->fn, o, k), depth + 1);
	return any;
}

static void find_apart(struct edits *w, void *user)
{
	struct apart *x = user;
	w->all = x->all;
	for (uint32_t i = 0; i < w->fn->op.n; i++) {
		if (w->fn->op.p[i].kind != IR_loop)
			continue;
		struct edit *e = recompute_edit(w, i);
		for (int k = 0; k < e->l.n && may_unroll(w, &e->l); k++)
			if ((e->l.trip == 1 || ir_role_is_in(e->l.x[k].role)) && mark_makers(w, &x->u, e->l.x[k].v, 0))
				mark(w, &x->u, e);
	}
}

bool recompute_apart(struct ir_module *m, bool all)
{
	struct recomputed none = {0};
	struct apart x = { .all = all };
	recompute_everywhere(m, find_apart, &x, &none);
	pass_unroll_these(m, &x.u);
	bool any = x.u.n;
	arr_free(&x.u);
	arr_free(&none);
	return any;
}
