/* Cases of one index of which the next reads what the one before gives become one case, in whose branches attention and gradient are seen as in any function: layers that are
 * chosen, several in a turn, are a chain of such where they are made again. */
#include "recompute.h"

struct join { bool all; const struct ir_fn *fn; int n; const struct ir_op *op[2]; };       /* op[1] reads op[0]; or one that reads something twice */

/* Does o read a value that is marked? */
static bool reads(const struct ir_fn *fn, const struct ir_op *o, const bool *mark)
{
	bool any = false;
	for (uint32_t k = 0; k < o->nin; k++)
		any |= mark[ir_in(fn, o, k)];
	return any;
}

/* Does b read what a gives, but nothing that others make of that? */
static bool follows(struct arena *a, const struct ir_fn *fn, const struct ir_op *f, const struct ir_op *e)
{
	bool *own = ARENA_NEW(a, bool, fn->val.n), *made = ARENA_NEW(a, bool, fn->val.n);
	for (uint32_t k = 0; k < f->nout; k++)
		own[f->out + k] = true;
	for (const struct ir_op *o = f + 1; o < e; o++)
		for (uint32_t k = 0; k < o->nout; k++)
			made[o->out + k] = reads(fn, o, own) || reads(fn, o, made);
	return reads(fn, e, own) && !reads(fn, e, made);
}

static bool is_around(struct edits *w, const struct edit *e)
{
	bool any = false;
	for (int i = 0; i < e->nbranch && !any; i++) {
		recompute_around(w, e->branch[i]);
		for (ir_val v = 1; v < e->branch[i]->l.body->val.n; v++)
			any |= e->branch[i]->around[v];
	}
	return any;
}

/* Does it read a value both behind a barrier and not, or twice? */
static bool twice(const struct ir_fn *fn, const struct ir_op *o)
{
	for (uint32_t k = 2; k < o->nin; k++)
		for (uint32_t i = 1; i < k; i++)
			if (recompute_unbarred(fn, ir_in(fn, o, i)) == recompute_unbarred(fn, ir_in(fn, o, k)))
				return true;
	return false;
}

/* The first two that are to be one, or the first that reads something twice. */
static void find(struct edits *w, void *user)
{
	struct join *j = user;
	const struct ir_fn *fn = w->fn;
	w->all = j->all;
	for (uint32_t i = 0; i < fn->op.n && !j->fn; i++) {
		const struct ir_op *e = &fn->op.p[i];
		if (e->kind == IR_case && twice(fn, e) && !ir_effect(w->m, fn, e) && is_around(w, recompute_edit(w, i)))
			*j = (struct join){ j->all, fn, 1, { e } };
		for (uint32_t k = 1; e->kind == IR_case && k < e->nin && !j->fn; k++) {
			const struct ir_op *f = ir_def(fn, ir_in(fn, e, k));
			if (!f || f->kind != IR_case || !recompute_alike(w, ir_in(fn, f, 0), ir_in(fn, e, 0)) || !follows(w->a, fn, f, e) || ir_effect(w->m, fn, f) || ir_effect(w->m, fn, e))
				continue;
			struct edit *x = recompute_edit(w, i), *y = recompute_edit(w, (uint32_t)(f - fn->op.p));
			if (x->nbranch == y->nbranch && (is_around(w, x) || is_around(w, y)))
				*j = (struct join){ j->all, fn, 2, { f, e } };
		}
	}
}

/* The new case: its operands, the first is the index, and how many results it has. */
struct joined { struct join *j; struct arena *a; ir_val *in, *out; int nin; uint32_t nout; };

/* Its branch: what the first one's gives, and what the second one's makes of that. */
static ir_fnid branch(const struct joined *x, struct ir_module *m, int which)
{
	const struct join *j = x->j;
	const struct ir_op *first = j->op[0], *last = j->op[j->n - 1];
	struct ir_b b = { m, ir_fn_new(m, ""), last->loc };
	ir_val *out[2] = { NULL, NULL };
	for (int i = 1; i < x->nin; i++)
		ir_param(b.fn, j->fn->val.p[x->in[i]].type);
	for (int n = 0; n < j->n; n++) {
		const struct ir_op *o = j->op[n];
		int all;
		ir_fnid f = (ir_fnid)ir_attrs(j->fn, o, AT_branch, &all)[which];
		ir_val *arg = ARENA_NEW(x->a, ir_val, o->nin);
		out[n] = ARENA_NEW(x->a, ir_val, o->nout + 1);
		b.fn->name = ir_fn_of(m, f)->name;
		for (uint32_t k = 1; k < o->nin; k++) {
			ir_val v = ir_in(j->fn, o, k);
			arg[k - 1] = n && ir_def(j->fn, v) == first ? out[0][v - first->out] : 0;
			for (int i = 1; i < x->nin && !arg[k - 1]; i++)
				arg[k - 1] = recompute_unbarred(j->fn, x->in[i]) == recompute_unbarred(j->fn, v) ? (ir_val)i : 0;
		}
		ir_inline(&b, f, arg, out[n]);
	}
	for (int n = 0; n < j->n; n++)
		for (uint32_t k = 0; k < j->op[n]->nout; k++)
			ir_result(b.fn, out[n][k]);
	return b.fn->id;
}

static void emit(void *user, struct ir_b *b, int r, const ir_val *in, ir_val *out)
{
	const struct joined *x = user;
	const struct ir_fn *fn = x->j->fn;
	const struct ir_op *last = x->j->op[x->j->n - 1];
	int n;
	ir_attrs(fn, last, AT_branch, &n);
	int64_t *words = ARENA_NEW(x->a, int64_t, n + 1);
	ir_type *t = ARENA_NEW(x->a, ir_type, x->nout + 1);
	words[0] = n;
	for (int i = 0; i < n; i++)
		words[1 + i] = branch(x, b->m, i);
	for (uint32_t k = 0; k < x->nout; k++)
		t[k] = fn->val.p[x->out[k]].type;
	b->loc = last->loc;
	ir_val v = ir_emit_raw(b, IR_case, (uint32_t)x->nin, in, x->nout, t, words, (uint32_t)n + 1);
	for (uint32_t k = 0; k < x->nout; k++) {
		out[k] = v + k;
		ir_shard_set(b->fn, v + k, ir_shard_of(fn, x->out[k]));
	}
}

static void make_one(struct ir_module *m, struct join *j)
{
	struct arena a;
	int op[2];
	arena_init(&a);
	struct joined x = { .j = j, .a = &a };
	x.in = ARENA_NEW(&a, ir_val, j->op[0]->nin + j->op[j->n - 1]->nin);
	x.out = ARENA_NEW(&a, ir_val, j->op[0]->nout + j->op[j->n - 1]->nout);
	x.in[x.nin++] = ir_in(j->fn, j->op[0], 0);
	for (int n = 0; n < j->n; n++) {
		const struct ir_op *o = j->op[n];
		op[n] = (int)(o - j->fn->op.p);
		for (uint32_t k = 1; k < o->nin; k++) {
			ir_val v = ir_in(j->fn, o, k);
			int i = 1;
			while (i < x.nin && recompute_unbarred(j->fn, x.in[i]) != recompute_unbarred(j->fn, v))
				i++;
			if (ir_def(j->fn, v) == j->op[0])
				continue;
			x.in[i] = i < x.nin ? MAX(x.in[i], v) : v;         /* behind the barrier, where one reads it there */
			x.nin = MAX(x.nin, i + 1);
		}
		for (uint32_t k = 0; k < o->nout; k++)
			x.out[x.nout++] = o->out + k;
	}
	struct region r = { .op = op, .nop = j->n, .in = x.in, .nin = (size_t)x.nin, .out = x.out, .nout = x.nout };
	ir_fnid id = j->fn->id;
	pass_replace(m, id, pass_replace_regions(m, &a, j->fn, &r, 1, &(struct region_change){ .region = emit, .user = &x, .in_order = true }));
	arena_fini(&a);
}

bool recompute_join(struct ir_module *m, bool all)
{
	bool any = false;
	for (;; any = true) {
		struct recomputed none = {0};
		struct join j = { .all = all };
		recompute_everywhere(m, find, &j, &none);
		arr_free(&none);
		if (!j.fn)
			return any;
		make_one(m, &j);
	}
}
