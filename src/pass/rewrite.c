#include "passes.h"

bool pass_has(const struct ir_module *m, enum ir_kind k)
{
	for (ir_fnid id = 1; id < m->fn.n; id++) {
		const struct ir_fn *fn = ir_fn_of(m, id);
		for (size_t i = 0; i < fn->op.n; i++)
			if (fn->op.p[i].kind == k)
				return true;
	}
	return false;
}

void pass_replace(struct ir_module *m, ir_fnid f, struct ir_fn *g)
{
	struct ir_fn *old = m->fn.p[f];
	m->fn.p[f] = g;
	m->fn.p[g->id] = old;
	old->id = g->id;
	g->id = f;
	g->name = old->name;
}

static void rewrite(struct ir_module *m, struct arena *a, ir_fnid f, rewrite_op *op, rewrite_begin *begin, void *user)
{
	const struct ir_fn *fn = ir_fn_of(m, f);
	struct rewrite r = { .m = m, .from = fn, .a = a, .user = user };
	if (begin && !begin(&r))
		return;
	r.live = ir_live(a, m, fn, NULL);
	r.b = (struct ir_b){ m, ir_fn_new(m, ""), 0 };
	r.map = ARENA_NEW(a, ir_val, fn->val.n);
	for (uint32_t i = 1; i <= fn->nparam; i++) {
		r.map[i] = ir_param(r.b.fn, fn->val.p[i].type);
		ir_shard_set(r.b.fn, i, ir_shard_of(fn, i));
	}
	ir_val small[64];
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		bool need = o->nout == 0 && ir_effect(m, fn, o);
		for (uint32_t j = 0; j < o->nout; j++)
			need |= r.live[o->out + j] != 0;
		if (!need)
			continue;
		ir_val *in = o->nin <= NELEM(small) ? small : ARENA_NEW(a, ir_val, o->nin);
		for (uint32_t j = 0; j < o->nin; j++)
			in[j] = r.map[ir_in(fn, o, j)];
		r.b.loc = o->loc;
		ir_val v = op(&r, o, in);
		if (v == REWRITE_MAPPED)
			continue;
		if (!v)
			v = ir_clone(&r.b, fn, o, in);
		for (uint32_t j = 0; j < o->nout; j++)
			r.map[o->out + j] = v + j;
	}
	for (size_t i = 0; i < fn->result.n; i++)
		ir_result(r.b.fn, r.map[fn->result.p[i]]);
	pass_replace(m, f, r.b.fn);
	arena_reset(a);
}

void pass_rewrite(struct ir_module *m, rewrite_op *op, rewrite_begin *begin, void *user)
{
	struct arena order, a;
	arena_init(&order);
	arena_init(&a);
	int n;
	ir_fnid *f = ir_reachable(&order, m, &n);
	for (int k = 0; k < n; k++)
		rewrite(m, &a, f[k], op, begin, user);
	arena_fini(&a);
	arena_fini(&order);
}

static ir_val nothing(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	return 0;
}

ir_val pass_spread(struct ir_b *b, ir_val x, ir_type t, const int64_t *to)
{
	int64_t perm[IR_MAX_RANK], sorted[IR_MAX_RANK];      /* broadcast wants the dimensions in the order of the result's */
	int rank = ir_vtype(b->m, b->fn, x)->rank;

	for (int d = 0; d < rank; d++) {
		int at = 0;
		for (int k = 0; k < rank; k++)
			at += to[k] < to[d];
		perm[at] = d;
		sorted[at] = to[d];
	}
	return ir_broadcast(b, ir_convert(b, ir_transpose(b, x, perm), (enum dtype)ir_type_of(b->m, t)->dtype), t, sorted);
}

void pass_drop(struct ir_module *m)
{
	pass_rewrite(m, nothing, NULL, NULL);
}

void pass_rewrite_down(struct ir_module *m, rewrite_op *op)
{
	struct arena order, a;
	arena_init(&order);
	arena_init(&a);
	ARR(uint8_t) done = {0};
	int n;
	for (bool more = true; more;) {      /* until nothing new is reached */
		ir_fnid *f = ir_reachable(&order, m, &n);
		more = false;
		while (n-- > 0 && !more) {
			while (done.n <= f[n])
				arr_push(&done, (uint8_t)0);
			if (done.p[f[n]])
				continue;
			size_t before = m->fn.n;
			done.p[f[n]] = 1;
			rewrite(m, &a, f[n], op, NULL, NULL);
			more = m->fn.n > before + 1;     /* it holds new ones */
		}
		arena_reset(&order);
	}
	arr_free(&done);
	arena_fini(&a);
	arena_fini(&order);
}
