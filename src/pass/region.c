/* Regions: ops of a function that give way to others. */
#include "passes.h"

/* What is emitted: an op, or a region as a whole. */
struct walk {
	struct ir_b b;
	struct arena *a;
	const struct ir_fn *fn;
	const struct region *r;
	int nr;
	int *of;                     /* per op: its region, -1 none */
	const int *before;
	ir_val *map;
	const struct region_change *c;
};

static const ir_val *needs(const struct walk *w, int i, size_t *n)
{
	const struct ir_op *o = &w->fn->op.p[i];
	*n = w->of[i] >= 0 ? w->r[w->of[i]].nin : o->nin;
	return w->of[i] >= 0 ? w->r[w->of[i]].in : &w->fn->ref.p[o->in];
}

/* An op that must come before i does, -1: none. */
static int missing(const struct walk *w, const uint8_t *done, int i)
{
	size_t n;
	const ir_val *in = needs(w, i, &n);
	for (size_t k = 0; k < n; k++) {
		uint32_t def = w->fn->val.p[in[k]].def;
		if (def != IR_PARAM && !done[def])
			return (int)def;
	}
	return w->before[i] >= 0 && !done[w->before[i]] ? w->before[i] : -1;
}

/* Of what is wanted each op, a region as its last one, in an order in which it comes behind what it needs, right before what needs it if
 * that is not wanted by itself.  Gives their number. */
static int arrange(const struct walk *w, const uint8_t *wanted, int *stack, int *order)
{
	int nop = (int)w->fn->op.n, n = 0;
	uint8_t *done = ARENA_NEW(w->a, uint8_t, nop + 1), *asked = ARENA_NEW(w->a, uint8_t, w->nr + 1);
	for (int i = 0; i < nop; i++)
		if (w->of[i] >= 0)
			asked[w->of[i]] |= wanted[i];
	for (int start = 0; start < nop; start++) {
		int sp = 0, k = w->of[start];
		if (k < 0 ? wanted[start] : asked[k] && start == w->r[k].op[w->r[k].nop - 1])
			stack[sp++] = start;
		while (sp) {                     /* a stack of our own, since programs are long */
			int i = stack[sp - 1], need = done[i] ? -1 : missing(w, done, i);
			if (need >= 0) {
				assert(sp < (int)w->fn->ref.n + nop + 16);   /* else a path leads out of a region and back in */
				stack[sp++] = need;
				continue;
			}
			sp--;
			if (done[i])
				continue;
			const struct region *r = w->of[i] >= 0 ? &w->r[w->of[i]] : NULL;
			order[n++] = r ? r->op[r->nop - 1] : i;
			for (int j = 0; j < (r ? r->nop : 1); j++)
				done[r ? r->op[j] : i] = 1;
		}
	}
	return n;
}

/* Bytes of values that are alive in this order, at most; parameters are all the time. */
static int64_t most(const struct walk *w, const int *order, int n)
{
	const struct ir_fn *fn = w->fn;
	ir_val *root = ARENA_NEW(w->a, ir_val, fn->val.n);
	int *last = ARENA_NEW(w->a, int, fn->val.n);
	int64_t *ends = ARENA_NEW(w->a, int64_t, n + 1), live = 0, top = 0;
	for (uint32_t v = 0; v < fn->val.n; v++)
		root[v] = v;
	for (int i = 0; i < n; i++) {
		size_t nin;
		const ir_val *in = needs(w, order[i], &nin);
		const struct ir_op *o = &fn->op.p[order[i]];
		for (uint32_t k = 0; w->of[order[i]] < 0 && pass_shows(o) && k < o->nout; k++)
			root[o->out + k] = root[in[k]];
		for (size_t k = 0; k < nin; k++)
			last[root[in[k]]] = i;
	}
	for (size_t k = 0; k < fn->result.n; k++)
		last[root[fn->result.p[k]]] = n;
	for (int i = 0; i < n; i++) {
		const struct region *r = w->of[order[i]] >= 0 ? &w->r[w->of[order[i]]] : NULL;
		const struct ir_op *o = &fn->op.p[order[i]];
		for (size_t k = 0; k < (r ? r->nout : o->nout); k++) {
			ir_val v = r ? r->out[k] : o->out + (ir_val)k;
			int64_t bytes = root[v] == v && o->kind != IR_constant ? ir_vtype(w->b.m, fn, v)->bytes : 0;
			live += bytes;
			ends[MAX(last[v], i)] += bytes;
		}
		top = MAX(top, live);
		live -= ends[i];
	}
	return top;
}

static void emit(struct walk *w, int i)
{
	size_t n;
	const ir_val *from = needs(w, i, &n);
	ir_val *in = ARENA_NEW(w->a, ir_val, n + 1), v;
	for (size_t k = 0; k < n; k++)
		in[k] = w->map[from[k]];
	const struct region *r = w->of[i] >= 0 ? &w->r[w->of[i]] : NULL;
	const struct ir_op *o = &w->fn->op.p[r ? r->op[r->nop - 1] : i];
	w->b.loc = o->loc;
	if (r) {
		ir_val *out = ARENA_NEW(w->a, ir_val, r->nout + 1);
		w->c->region(w->c->user, &w->b, w->of[i], in, out);
		for (size_t k = 0; k < r->nout; k++)
			w->map[r->out[k]] = out[k];
		return;
	}
	v = w->c->other ? w->c->other(w->c->user, &w->b, o, in) : 0;
	if (!v)
		v = ir_clone(&w->b, w->fn, o, in);
	for (uint32_t k = 0; k < o->nout; k++)
		w->map[o->out + k] = v + k;
}

/* Per op with an effect: the one before it; -1: none, or no effect.  Those that give way are not among them: what comes instead stands where its region
 * does, and may need effects that lie between those of the region. */
static int *effects(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const int *of, int *last)
{
	int *before = ARENA_NEW(a, int, fn->op.n + 1);
	*last = -1;
	for (size_t i = 0; i < fn->op.n; i++) {
		before[i] = -1;
		if (of[i] < 0 && ir_effect(m, fn, &fn->op.p[i])) {
			before[i] = *last;
			*last = (int)i;
		}
	}
	return before;
}

/* Whatever is needed for what is wanted, is. */
static void want_all(const struct walk *w, int nop, uint8_t *wanted, int *stack)
{
	int sp = 0;
	for (int i = 0; i < nop; i++)
		if (wanted[i])
			stack[sp++] = i;
	while (sp) {
		size_t n;
		const ir_val *in = needs(w, stack[--sp], &n);
		for (size_t k = 0; k < n; k++) {
			uint32_t def = w->fn->val.p[in[k]].def;
			if (def != IR_PARAM && !wanted[def]) {
				wanted[def] = 1;
				stack[sp++] = (int)def;
			}
		}
	}
}

struct ir_fn *pass_replace_regions(struct ir_module *m, struct arena *a, const struct ir_fn *fn, const struct region *r, int n, const struct region_change *c)
{
	/* Memory that is worth an op's place beside what reads it: so much, and such a part of all. */
	enum { WORTH = 1 << 20, PART = 8 };
	int nop = (int)fn->op.n, last, *stack = ARENA_NEW(a, int, (int)fn->ref.n + nop + 16), *order = ARENA_NEW(a, int, nop + 1), count = 0;
	uint8_t *wanted = ARENA_NEW(a, uint8_t, nop + 1);
	struct walk w = { .b = { m, ir_fn_new(m, ""), 0 }, .a = a, .fn = fn, .r = r, .nr = n, .of = ARENA_NEW(a, int, nop + 1),
	                  .map = ARENA_NEW(a, ir_val, fn->val.n), .c = c };
	for (int i = 0; i < nop; i++)
		w.of[i] = -1;
	for (int k = 0; k < n; k++)
		for (int j = 0; j < r[k].nop; j++)
			w.of[r[k].op[j]] = k;
	w.before = effects(a, m, fn, w.of, &last);
	for (uint32_t i = 1; i <= fn->nparam; i++) {
		w.map[i] = ir_param(w.b.fn, fn->val.p[i].type);
		ir_shard_set(w.b.fn, i, ir_shard_of(fn, i));
	}
	/* Effects and results, and what they need; what nobody needs is left out. */
	for (int i = last; i >= 0; i = w.before[i])
		wanted[i] = 1;
	for (size_t i = 0; i < fn->result.n; i++)
		if (fn->val.p[fn->result.p[i]].def != IR_PARAM)
			wanted[fn->val.p[fn->result.p[i]].def] = 1;
	int64_t needed = INT64_MAX;
	if (!c->in_order) {
		count = arrange(&w, wanted, stack, order);
		needed = most(&w, order, count);
	}
	if (needed > WORTH) {
		int *other = ARENA_NEW(a, int, nop + 1);
		want_all(&w, nop, wanted, stack);
		int also = arrange(&w, wanted, stack, other);
		if (c->in_order || most(&w, other, also) < needed - needed / PART) {
			order = other;
			count = also;
		}
	}
	for (int i = 0; i < count; i++)
		emit(&w, order[i]);
	for (size_t i = 0; i < fn->result.n; i++)
		ir_result(w.b.fn, w.map[fn->result.p[i]]);
	return w.b.fn;
}
