/* What of a body is around an attention, and what a loop or a case gives of that. */
#include "recompute.h"

ir_val recompute_base(const struct ir_module *m, const struct ir_fn *fn, ir_val v)
{
	for (const struct ir_op *o; (o = ir_def(fn, v)) && (o->kind == IR_reshape || o->kind == IR_broadcast); ) {
		ir_val x = ir_in(fn, o, 0);
		int n;
		const int64_t *dims = o->kind == IR_broadcast ? ir_attrs(fn, o, AT_dims, &n) : NULL;
		if (ir_vtype(m, fn, x)->count != ir_vtype(m, fn, v)->count)
			break;
		bool ordered = true;
		for (int d = 1; dims && d < n; d++)
			ordered &= dims[d] > dims[d - 1];
		if (!ordered)
			break;
		v = x;
	}
	return v;
}

int recompute_stacked(const struct edits *w, const struct edit *e, ir_val v)
{
	struct turned x = recompute_turned(w->m, e->l.body, v);
	for (int r = e->l.ncarry; r < e->l.nmade; r++)
		if (recompute_turned(w->m, e->l.body, e->l.body->result.p[r]).root == x.root)
			return r;
	return -1;
}

bool recompute_is_given(const struct ir_module *m, const struct ir_fn *fn, ir_val v)
{
	return !ir_def(fn, recompute_turned(m, fn, recompute_base(m, fn, v)).root) || ir_splat(m, fn, v);
}

/* Does a view of v meet a matrix of scores? */
bool recompute_seen(const struct edit *f, ir_val v)
{
	const struct ir_fn *body = f->l.body;
	for (uint32_t u = ir_use_first(body, v); u; u = ir_use_next(body, u)) {
		uint32_t i = ir_use_op(body, u);
		const struct ir_op *o = i < body->op.n ? &body->op.p[i] : NULL;
		if (o && o->nout == 1 && (f->around[o->out] || ((is_view((enum ir_kind)o->kind) || o->kind == IR_convert) && recompute_seen(f, o->out))))
			return true;
	}
	return false;
}

/* A mask does, or what dropout keeps. */
bool recompute_meets(const struct edit *f, ir_val v)
{
	for (const struct ir_op *o; (o = ir_def(f->l.body, v)) && is_view((enum ir_kind)o->kind); )
		v = ir_in(f->l.body, o, 0);
	return recompute_seen(f, v);
}

/* Scores, or a mask of theirs. */
bool recompute_is_scores(const struct edits *w, const struct edit *f, ir_val y)
{
	return f->around[y] || (ir_vtype(w->m, f->l.body, y)->dtype == DT_pred && !ir_splat(w->m, f->l.body, y) && recompute_meets(f, y));
}

/* The branches of a case that is made again as it is. */
static bool plain_branches(const struct edits *w, const struct ir_fn *fn, const struct ir_op *o)
{
	int n;
	const int64_t *f = ir_attrs(fn, o, AT_branch, &n);
	for (int b = 0; b < n; b++) {
		const struct ir_fn *g = ir_fn_of(w->m, (ir_fnid)f[b]);
		for (size_t i = 0; i < g->op.n; i++)
			if (g->op.p[i].kind == IR_loop || g->op.p[i].kind == IR_case)
				return false;
	}
	return !ir_effect(w->m, fn, o);
}

/* What is around an attention, also what a case gives of one: scores, masks, and what is stacked and in a branch an operand of the case, or given by it twice, so that
 * it is known to be that where the case is made again. */
void recompute_around(struct edits *w, struct edit *f)
{
	if (f->around)
		return;
	const struct ir_fn *body = f->l.body;
	f->around = ARENA_NEW(w->a, bool, body->val.n);
	f->kept = ARENA_NEW(w->a, bool, body->val.n);
	attn_around(w->a, w->m, body, w->all, f->around);
	for (size_t i = 0; i < body->op.n; i++) {
		const struct ir_op *o = &body->op.p[i];
		int n = 0;
		const int64_t *g = o->kind == IR_case && plain_branches(w, body, o) ? ir_attrs(body, o, AT_branch, &n) : NULL;
		bool any = false, *operand = ARENA_NEW(w->a, bool, o->nout + 1);
		for (int b = 0; b < n; b++) {
			struct edit own = { .l = { .body = ir_fn_of(w->m, (ir_fnid)g[b]), .nmade = (int)o->nout } };
			recompute_around(w, &own);
			for (uint32_t k = 0; k < o->nout; k++) {
				ir_val y = recompute_base(w->m, own.l.body, own.l.body->result.p[k]);
				bool here = recompute_is_scores(w, &own, y);
				f->around[o->out + k] |= here;
				any |= here;
				operand[k] |= !ir_splat(w->m, own.l.body, y) && (recompute_is_given(w->m, own.l.body, y) || recompute_stacked(w, &own, y) < (int)k);
			}
		}
		for (uint32_t k = 0; k < o->nout && any; k++) {
			ir_val v = o->out + k;
			f->kept[v] = !f->around[v] && recompute_stacked(w, f, v) >= 0;
			f->around[v] |= f->kept[v] && operand[k];
		}
	}
}

bool recompute_is_result(const struct ir_fn *fn, ir_val v)
{
	for (size_t i = 0; i < fn->result.n; i++)
		if (fn->result.p[i] == v)
			return true;
	return false;
}

void recompute_take(struct edits *w, struct edit *e, ir_val v, ir_val by)
{
	struct edit *f = e->first;
	int r = recompute_stacked(w, f, by);
	if (r >= 0) {
		e->from[by] = (struct from){ RESULT, r };
	} else if (e->from[by].how != ADDED) {
		e->from[by] = (struct from){ ADDED, (int)f->out.n };
		arr_push(&f->out, by);
	}
	arr_push(&e->swap, ((struct swap){ v, by }));
}

bool recompute_param(struct edit *e, ir_val x, struct from *to)
{
	struct ir_loop *l = &e->first->l;
	if (x == IR_LOOP_TURN && e->o->kind == IR_loop) {
		*to = (struct from){ TURN, 0 };
		return true;
	}
	for (int k = 0; k < l->n; k++)
		if (l->x[k].param == x && l->x[k].role != ROLE_CARRY) {
			*to = (struct from){ OPERAND, k };
			return true;
		}
	return false;
}
