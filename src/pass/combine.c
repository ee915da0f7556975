/* Small sums become one exchange: all_reduce ops of one function over the same group, of which none needs another's result, are done on their
 * operands side by side, where what is saved by waiting once is more than what laying them out costs.
 *
 * Ops keep their places.  The one sum stands behind the last of the operands and before the first that reads a result; what reads one and is
 * as small, a conversion or the update of a bias, may wait for it.  Elements are combined as they were, in the order of ranks: no bit changes. */
#include "passes.h"

#include <stdlib.h>

enum { NONE = -1, MOST_BYTES = 1 << 20, MOST_WAIT = 16 };    /* of what lies side by side; ops that wait for a sum */

/* Sums that go together.  They can be made after lo and before hi: before op i is 2 i, behind it 2 i + 1. */
struct together { ir_group group; enum redop redop; enum dtype dtype; int n, noperand, lo, hi, first, last, waits, waits_last; double bytes; bool made; };
struct combine {
	ARR(struct together) g;
	int *of;                     /* per op: the sums it is one of, or may wait for; NONE */
	bool *sum;                   /* per op: it is one of them */
	int *next;                   /* per op: the next sum, or the next that waits */
	int *order, done;            /* by lo: what is made so far */
	struct spmd_record *rec;
	const struct plan_on *plan;
};

static const struct ir_op *op_of(const struct ir_fn *fn, int i) { return &fn->op.p[i]; }

/* Is it a sum, product, maximum, .. of operands of one type, none of them empty? */
static bool fits(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	if (o->kind != IR_all_reduce || ir_attr(fn, o, AT_redop) == RED_fn || ir_attr(fn, o, AT_redop) == RED_softmax)
		return false;
	for (uint32_t k = 0; k < o->nin; k++) {
		const struct ir_type_info *t = ir_vtype(m, fn, ir_in(fn, o, k));
		if (!t->count || t->dtype != ir_vtype(m, fn, ir_in(fn, o, 0))->dtype)
			return false;
	}
	return true;
}

/* May the op that reads x wait until x is there?  One of few small ones that needs nothing else that is not there when the sum at `from` is. */
static bool light(const struct combine *c, const struct ir_module *m, const struct ir_fn *fn, int i, ir_val x, int from, int64_t bytes)
{
	const struct ir_op *o = op_of(fn, i);
	if (!(ir_info((enum ir_kind)o->kind)->flags & IR_PURE) || o->nout != 1 || ir_vtype(m, fn, o->out)->bytes > bytes || c->of[i] != NONE || fits(m, fn, o))
		return false;
	for (uint32_t k = 0; k < o->nin; k++) {
		ir_val y = ir_in(fn, o, k);
		if (y != x && ir_def(fn, y) && ((int)fn->val.p[y].def > from || c->of[fn->val.p[y].def] != NONE))
			return false;
	}
	return true;
}

/* What reads x, a result of the sum at `from` or of what waits for it, waits too, or is at g->hi or behind it. */
static void readers(struct combine *c, const struct ir_module *m, const struct ir_fn *fn, struct together *g, ir_val result, int from)
{
	ir_val seen[MOST_WAIT + 1] = { result };
	int64_t bytes = ir_vtype(m, fn, result)->bytes;
	for (int n = 1, k = 0; k < n; k++)
		for (uint32_t u = ir_use_first(fn, seen[k]); u; u = ir_use_next(fn, u)) {
			int i = (int)ir_use_op(fn, u);
			if (n <= MOST_WAIT && light(c, m, fn, i, seen[k], from, bytes)) {
				c->of[i] = c->of[from];
				seen[n++] = op_of(fn, i)->out;
			} else {
				g->hi = MIN(g->hi, 2 * i);
			}
		}
}

static struct together alone(struct combine *c, const struct ir_module *m, const struct ir_fn *fn, int i)
{
	const struct ir_op *o = op_of(fn, i);
	struct together g = { .group = (ir_group)ir_attr(fn, o, AT_group), .redop = (enum redop)ir_attr(fn, o, AT_redop), .dtype = ir_vtype(m, fn, ir_in(fn, o, 0))->dtype,
	                      .n = 1, .noperand = (int)o->nin, .lo = -1, .hi = 2 * (int)fn->op.n, .first = i, .last = i, .waits = NONE };
	c->of[i] = (int)c->g.n;
	c->sum[i] = true;
	for (uint32_t k = 0; k < o->nin; k++) {
		ir_val x = ir_in(fn, o, k);
		g.bytes += (double)ir_vtype(m, fn, x)->bytes;
		if (ir_def(fn, x))                       /* what may wait for another sum is there when this one is */
			g.lo = MAX(g.lo, c->of[fn->val.p[x].def] != NONE ? 2 * i : 2 * (int)fn->val.p[x].def + 1);
		readers(c, m, fn, &g, o->out + k, i);
	}
	return g;
}

/* Is one exchange for both cheaper than two? */
static bool pays(const struct combine *c, const struct ir_module *m, const struct together *a, const struct together *b)
{
	if (a->bytes + b->bytes > MOST_BYTES)
		return false;
	const struct ir_group_info *i = &m->group.p[a->group];
	struct plan_group n = plan_groups_of(c->plan, i->nrow, i->ncol, i->id);
	double laid_out = plan_part_time(c->plan->table, DT_f32, 0, 4 * b->bytes);       /* read and written before and after */
	return plan_sum_time(c->plan, n, a->bytes) + plan_sum_time(c->plan, n, b->bytes) > plan_sum_time(c->plan, n, a->bytes + b->bytes) + laid_out;
}

static int by_place(const void *x, const void *y)
{
	const struct together *const *a = x, *const *b = y;
	return ((*a)->lo > (*b)->lo) - ((*a)->lo < (*b)->lo);
}

static bool begin(struct rewrite *r)
{
	struct combine *c = r->user;
	const struct ir_fn *fn = r->from;
	int nop = (int)fn->op.n, sums = 0;
	for (int i = 0; i < nop; i++)
		sums += fits(r->m, fn, op_of(fn, i));
	if (!sums)
		return false;
	bool any = false;
	int *with = ARENA_NEW(r->a, int, sums + 1);      /* of each that began alone: what it went to */
	ARR(int) open = {0};                             /* of each group, redop and type, the last */
	c->g.n = 0;
	c->of = ARENA_NEW(r->a, int, nop + 1);
	c->next = ARENA_NEW(r->a, int, nop + 1);
	c->sum = ARENA_NEW(r->a, bool, nop + 1);
	for (int i = 0; i < nop; i++)
		c->of[i] = c->next[i] = NONE;
	for (int i = 0; i < nop; i++) {
		if (!fits(r->m, fn, op_of(fn, i)))
			continue;
		struct together one = alone(c, r->m, fn, i), *g = NULL;
		size_t k = 0;
		for (; k < open.n && !g; k++) {
			struct together *x = &c->g.p[open.p[k]];
			if (x->group == one.group && x->redop == one.redop && x->dtype == one.dtype)
				g = x;
		}
		with[c->g.n] = (int)c->g.n;
		if (g && MAX(g->lo, one.lo) < MIN(g->hi, one.hi) && pays(c, r->m, g, &one)) {
			with[c->g.n] = (int)(g - c->g.p);
			c->next[g->last] = i;
			g->last = i;
			g->n++;
			g->noperand += one.noperand;
			g->lo = MAX(g->lo, one.lo);
			g->hi = MIN(g->hi, one.hi);
			g->bytes += one.bytes;
			any = true;
		} else if (g) {
			open.p[k - 1] = (int)c->g.n;
		} else {
			arr_push(&open, (int)c->g.n);
		}
		arr_push(&c->g, one);
	}
	arr_free(&open);
	for (int i = 0; i < nop; i++)
		c->of[i] = c->of[i] < 0 ? NONE : with[c->of[i]];
	struct together **sorted = ARENA_NEW(r->a, struct together *, sums);
	c->order = ARENA_NEW(r->a, int, sums);
	for (int k = 0; k < sums; k++)
		sorted[k] = &c->g.p[k];
	qsort(sorted, (size_t)sums, sizeof *sorted, by_place);
	for (int k = 0; k < sums; k++)
		c->order[k] = (int)(sorted[k] - c->g.p);
	c->done = 0;
	return any;
}

static ir_val copy(struct rewrite *r, const struct ir_op *o)
{
	ir_val *in = ARENA_NEW(r->a, ir_val, o->nin + 1), v;
	for (uint32_t j = 0; j < o->nin; j++)
		in[j] = r->map[ir_in(r->from, o, j)];
	r->b.loc = o->loc;
	v = ir_clone(&r->b, r->from, o, in);
	for (uint32_t j = 0; j < o->nout; j++)
		r->map[o->out + j] = v + j;
	return REWRITE_MAPPED;
}

/* Of all the sums that go together. */
static ir_loc places(struct rewrite *r, const struct combine *c, const struct together *g)
{
	ir_loc *each = ARENA_NEW(r->a, ir_loc, g->n), all = 0, first = op_of(r->from, g->first)->loc;
	int n = 0;
	for (int i = g->first; i >= 0; i = c->next[i])
		each[n++] = op_of(r->from, i)->loc;
	while (n--)
		all = ir_loc_also(r->m, each[n], all);
	if (c->rec)
		spmd_move_at(c->rec, first, all);
	return all;
}

/* All operands as one line, and of its sum each result. */
static void make(struct rewrite *r, const struct combine *c, struct together *g)
{
	const struct ir_fn *fn = r->from;
	struct ir_b *b = &r->b;
	ir_val *x = ARENA_NEW(r->a, ir_val, g->noperand), v;
	int64_t all = 0, at = 0, one = 1, dim = 0, w[3] = { g->group, g->redop, 0 };
	int n = 0;
	b->loc = places(r, c, g);
	for (int i = g->first; i >= 0; i = c->next[i])
		for (uint32_t j = 0; j < op_of(fn, i)->nin; j++) {
			ir_val y = r->map[ir_in(fn, op_of(fn, i), j)];
			int64_t count = ir_vtype(r->m, b->fn, y)->count;
			x[n++] = ir_reshape(b, y, 1, &count);
			all += count;
		}
	ir_type t = ir_tensor(r->m, g->dtype, 1, &all);
	v = ir_emit(b, IR_concatenate, (uint32_t)n, x, t, &dim, 1);
	v = ir_emit_raw(b, IR_all_reduce, 1, &v, 1, &t, w, 3);
	for (int i = g->first; i >= 0; i = c->next[i]) {
		const struct ir_op *o = op_of(fn, i);
		b->loc = o->loc;
		for (uint32_t j = 0; j < o->nin; j++) {
			const struct ir_type_info *to = ir_vtype(r->m, fn, o->out + j);
			int64_t end = at + to->count, d[IR_MAX_RANK];
			int rank = to->rank;
			memcpy(d, to->dim, sizeof *d * (size_t)rank);
			r->map[o->out + j] = ir_reshape(b, ir_slice(b, v, &at, &end, &one), rank, d);
			at = end;
		}
		if (c->rec && i != g->first)
			spmd_went_with(c->rec, op_of(fn, g->first)->loc, o->loc);
	}
	for (int i = g->waits; i >= 0; i = c->next[i])
		copy(r, op_of(fn, i));
	g->made = true;
}

static ir_val combined(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	struct combine *c = r->user;
	(void)in;                                /* some may be made just now */
	int i = (int)(o - r->from->op.p);
	for (; c->done < (int)c->g.n && c->g.p[c->order[c->done]].lo <= 2 * i; c->done++)
		if (c->g.p[c->order[c->done]].n > 1)
			make(r, c, &c->g.p[c->order[c->done]]);
	struct together *g = c->of[i] >= 0 ? &c->g.p[c->of[i]] : NULL;
	if (!g || g->n == 1)
		return copy(r, o);
	if (c->sum[i])
		return REWRITE_MAPPED;
	if (g->made)
		return copy(r, o);
	if (g->waits < 0)
		g->waits = i;
	else
		c->next[g->waits_last] = i;
	g->waits_last = i;
	return REWRITE_MAPPED;
}

struct err *pass_combine(const struct pass_opts *o, struct ir_module *m)
{
	struct combine c = { .rec = o->record, .plan = &o->plan };
	pass_rewrite(m, combined, begin, &c);
	arr_free(&c.g);
	return NULL;
}
