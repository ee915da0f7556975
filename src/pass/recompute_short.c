/* Where memory is short: of what loops stack for the loops that go back over them, those make again what takes least time for each byte. */
#include "recompute.h"

#include <math.h>

/* A loop and what of the stacks that it reads nobody else does. */
struct pair { struct edit *e; struct cand_stack { int operand, result; int64_t bytes; bool taken; } *of; int n; double cost; int64_t saves; };

struct budget { double ns; int64_t stacked; };     /* of what is made again in all turns; bytes that are stacked for it */

/* How the second loop has x of the first one's body, where stacks that are dropped are not there: any pure op may be done again, and what is carried
 * into a turn, or comes of an op that is not done again, is stacked. */
static void remake(struct edits *w, const struct plan_table *t, struct edit *e, ir_val x, struct budget *b)
{
	struct edit *f = e->first;
	const struct ir_fn *body = f->l.body;
	const struct ir_op *o = ir_def(body, x);
	struct from *to = &e->from[x];
	int r = recompute_stacked(w, f, x);
	if (to->how != NONE)
		return;
	if (r >= 0 && !f->dropped[r]) {
		*to = (struct from){ RESULT, r };
	} else if (o && o->nout == 1 && ir_info(o->kind)->flags & IR_PURE && !(ir_info(o->kind)->flags & IR_COLL) && o->kind != IR_optimization_barrier) {
		*to = (struct from){ CLONE, 0 };
		b->ns += spmd_op_time(t, w->m, body, o) * (double)f->l.trip;
		for (uint32_t k = 0; k < o->nin; k++)
			remake(w, t, e, ir_in(body, o, k), b);
	} else if (o || !recompute_param(e, x, to)) {
		*to = (struct from){ ADDED, (int)f->out.n };
		b->stacked += ir_vtype(w->m, body, x)->bytes * f->l.trip;
		arr_push(&f->out, x);
	}
}

/* What it takes, and saves, to make again what is taken. */
static void weigh(struct edits *w, const struct plan_table *t, struct pair *p)
{
	struct edit *e = p->e, *f = e->first;
	struct budget b = { 0 };
	memset(e->from, 0, sizeof *e->from * f->l.body->val.n);
	memset(f->dropped, 0, sizeof *f->dropped * (size_t)f->l.nmade);
	f->out.n = 0;
	p->saves = 0;
	for (int i = 0; i < p->n; i++)
		f->dropped[p->of[i].result] |= p->of[i].taken;
	for (int i = 0; i < p->n; i++)
		if (p->of[i].taken) {
			p->saves += p->of[i].bytes;
			remake(w, t, e, f->l.body->result.p[p->of[i].result], &b);
		}
	p->saves -= b.stacked;
	p->cost = b.ns;
}

/* All loops that go back over one, each over its own. */
static int find_stacks(struct edits *w, struct pair *pair)
{
	bool *has = ARENA_NEW(w->a, bool, w->fn->op.n + 1);
	int n = 0;
	for (uint32_t i = 0; i < w->fn->op.n; i++) {
		if (w->fn->op.p[i].kind != IR_loop)
			continue;
		struct edit *e = recompute_edit(w, i);
		struct pair p = { .e = e, .of = ARENA_NEW(w->a, struct cand_stack, e->l.n + 1) };
		for (int k = 0; k < e->l.n && !e->l.cond; k++) {
			int r;
			struct edit *f = w->fn->val.p[e->l.x[k].v].nuse == 1 ? recompute_maker(w, e, k, &r) : NULL;
			if (f && !has[f->o - w->fn->op.p] && recompute_follows(w, e, f, r, k))
				p.of[p.n++] = (struct cand_stack){ k, r, ir_vtype(w->m, w->fn, e->l.x[k].v)->bytes, false };
		}
		if (!p.n)
			continue;
		has[e->first->o - w->fn->op.p] = true;
		e->first->dropped = ARENA_NEW(w->a, bool, e->first->l.nmade + 1);
		pair[n++] = p;
	}
	return n;
}

/* One stack after the other, each time that which costs least for a byte that it saves, until so much is saved; where single ones save nothing, all of a pair. */
static int64_t choose(struct edits *w, const struct plan_table *t, struct pair *pair, int n, int64_t want)
{
	int64_t saved = 0;
	while (saved < want) {
		double least = INFINITY;
		struct pair *where = NULL;
		int which = 0;
		for (int i = 0; i < n; i++) {
			struct pair *p = &pair[i], was = *p;
			for (int k = 0; k <= p->n; k++) {        /* behind the last one: all of them */
				struct cand_stack *of = p->of;
				p->of = arena_copy(w->a, of, sizeof *of * (size_t)p->n);
				for (int j = 0; j < p->n; j++)
					p->of[j].taken |= j == k || k == p->n;
				weigh(w, t, p);
				double rate = p->saves > was.saves ? (p->cost - was.cost) / (double)(p->saves - was.saves) : INFINITY;
				if (rate < least && (k == p->n || !of[k].taken)) {
					least = rate;
					where = p;
					which = k;
				}
				p->of = of;
			}
			p->saves = was.saves;
			p->cost = was.cost;
		}
		if (!where)
			break;
		for (int j = 0; j < where->n; j++)
			where->of[j].taken |= j == which || which == where->n;
		saved -= where->saves;
		weigh(w, t, where);
		saved += where->saves;
	}
	return saved;
}

struct wanted { const struct plan_table *table; int64_t bytes; };

static void find_short(struct edits *w, void *user)
{
	struct wanted *want = user;
	struct pair *pair = ARENA_NEW(w->a, struct pair, w->fn->op.n + 1);
	int n = find_stacks(w, pair);
	want->bytes -= choose(w, want->table, pair, n, want->bytes);
	for (int i = 0; i < n; i++) {
		struct edit *e = pair[i].e;
		weigh(w, want->table, &pair[i]);
		for (int k = 0; k < pair[i].n; k++) {
			const struct cand_stack *c = &pair[i].of[k];
			if (!c->taken)
				continue;
			struct str at = {0};
			ir_val y = e->first->l.body->result.p[c->result];
			const struct ir_op *o = ir_def(e->first->l.body, y);
			pass_add_place(&at, w->m, o ? o->loc : e->o->loc);
			log_line(LOG_INFO, "memory is short: %lld bytes of %s, %s, are made again instead of kept", (long long)c->bytes, at.p, o ? ir_info(o->kind)->name : "parameter");
			str_free(&at);
			e->gone[c->operand] = true;
			arr_push(&e->swap, ((struct swap){ e->l.x[c->operand].param, y }));
			w->any = true;
		}
	}
}

struct err *pass_remake(const struct pass_opts *o, struct ir_module *m)
{
	struct recomputed done = {0};
	if (o->save > 0)
		recompute_everywhere(m, find_short, &(struct wanted){ o->plan.table, o->save }, &done);
	arr_free(&done);
	return NULL;
}
