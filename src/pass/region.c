/* Regions: ops of a function that give way to others. */
#include "passes.h"

/* What is emitted: an op, or a region as a whole. */
struct walk {
	struct ir_b b;
	struct arena *a;
	const struct ir_fn *fn;
	const struct region *r;
	int *of;                     /* per op: its region, -1 none */
	const int *before;
	ir_val *map;
	uint8_t *done;               /* per op */
	const struct region_change *c;
};

static const ir_val *needs(const struct walk *w, int i, size_t *n)
{
	const struct ir_op *o = &w->fn->op.p[i];
	*n = w->of[i] >= 0 ? w->r[w->of[i]].nin : o->nin;
	return w->of[i] >= 0 ? w->r[w->of[i]].in : &w->fn->ref.p[o->in];
}

/* An op that must come before i does, -1: none. */
static int missing(const struct walk *w, int i)
{
	size_t n;
	const ir_val *in = needs(w, i, &n);
	for (size_t k = 0; k < n; k++)
		if (!w->map[in[k]])
			return (int)w->fn->val.p[in[k]].def;
	return w->before[i] >= 0 && !w->done[w->before[i]] ? w->before[i] : -1;
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
		for (int k = 0; k < r->nop; k++)
			w->done[r->op[k]] = 1;
		return;
	}
	v = w->c->other ? w->c->other(w->c->user, &w->b, o, in) : 0;
	if (!v)
		v = ir_clone(&w->b, w->fn, o, in);
	for (uint32_t k = 0; k < o->nout; k++)
		w->map[o->out + k] = v + k;
	w->done[i] = 1;
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
	int nop = (int)fn->op.n, last, *stack = ARENA_NEW(a, int, (int)fn->ref.n + nop + 16);
	uint8_t *wanted = ARENA_NEW(a, uint8_t, nop + 1), *asked = ARENA_NEW(a, uint8_t, n + 1);
	struct walk w = { .b = { m, ir_fn_new(m, ""), 0 }, .a = a, .fn = fn, .r = r, .of = ARENA_NEW(a, int, nop + 1),
	                  .map = ARENA_NEW(a, ir_val, fn->val.n), .done = ARENA_NEW(a, uint8_t, nop + 1), .c = c };
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
	if (c->in_order)
		want_all(&w, nop, wanted, stack);
	for (int i = 0; i < nop; i++)
		if (w.of[i] >= 0)
			asked[w.of[i]] |= wanted[i];
	for (int start = 0; start < nop; start++) {
		int sp = 0, k = w.of[start];
		if (k < 0 ? wanted[start] : asked[k] && start == r[k].op[r[k].nop - 1])
			stack[sp++] = start;
		while (sp) {                     /* a stack of our own, since programs are long */
			int i = stack[sp - 1], need = w.done[i] ? -1 : missing(&w, i);
			if (need >= 0) {
				assert(sp < (int)fn->ref.n + nop + 16);      /* else a path leads out of a region and back in */
				stack[sp++] = need;
				continue;
			}
			sp--;
			if (!w.done[i])
				emit(&w, i);
		}
	}
	for (size_t i = 0; i < fn->result.n; i++)
		ir_result(w.b.fn, w.map[fn->result.p[i]]);
	return w.b.fn;
}
