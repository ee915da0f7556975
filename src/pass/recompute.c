/* Attention in a loop and in the loop that goes back over it.
 *
 * The derivative of a loop over layers is a second loop, which reads what the first one has stacked.  Of an attention those are whole matrices of
 * queries by keys.  Here the second loop makes them again from queries and keys, which are stacked instead, so that its body has
 * forward and backward of an attention like any function; what is not read any more is stacked no more.  Once both bodies have their ops,
 * the second loop reads the first one's o and l. */
#include "recompute.h"

/* --- where values come from -------------------------------------------------------- */

static bool plan(struct edits *w, struct edit *e, ir_val x, bool strict);

static bool plan_operands(struct edits *w, struct edit *e, const struct ir_op *o, bool strict)
{
	for (uint32_t k = 0; k < o->nin; k++)
		if (!plan(w, e, ir_in(e->first->l.body, o, k), strict))
			return false;
	return true;
}

enum { TIMES = 16 };

/* Is v, which the second loop makes again, many times as large as all that it is made from? */
static bool spread(const struct edits *w, const struct edit *e, ir_val v)
{
	const struct ir_fn *body = e->first->l.body;
	bool *made = ARENA_NEW(w->a, bool, v + 1);
	int64_t most = 1;
	made[v] = true;
	for (ir_val x = v; x; x--) {
		const struct ir_op *o = made[x] ? ir_def(body, x) : NULL;
		bool again = made[x] && e->from[x].how == CLONE && !ir_splat(w->m, body, x);
		for (uint32_t k = 0; again && k < o->nin; k++)
			made[ir_in(body, o, k)] = true;
		if (made[x] && e->from[x].how != CLONE)
			most = MAX(most, ir_vtype(w->m, body, x)->count);
	}
	return ir_vtype(w->m, body, v)->count >= TIMES * most;
}

/* Are few elements taken again and again, of a table that scores are looked up in, say? */
static bool is_looked_up(const struct edits *w, const struct ir_fn *body, const struct ir_op *o)
{
	return o->kind == IR_gather && ir_vtype(w->m, body, o->out)->count >= TIMES * ir_vtype(w->m, body, ir_in(body, o, 0))->count;
}

/* How the second loop has x, a value of the first one's body; strict: nothing may be stacked for it. */
static bool plan(struct edits *w, struct edit *e, ir_val x, bool strict)
{
	struct edit *f = e->first;
	const struct ir_fn *body = f->l.body;
	const struct ir_op *o = ir_def(body, x);
	struct from *to = &e->from[x];
	int r;
	if (to->how == NEVER && strict)
		return false;
	if (to->how != NONE && to->how != NEVER)
		return true;
	bool pure = o && ir_info(o->kind)->flags & IR_PURE && o->nout == 1;
	bool cheap = pure && (o->kind == IR_constant || o->kind == IR_iota || o->kind == IR_slice || o->kind == IR_concatenate || is_view((enum ir_kind)o->kind) || ir_is_elem(o->kind) ||
	                      is_looked_up(w, body, o));
	bool follow = (pure && is_view((enum ir_kind)o->kind)) || (o && f->around[x]);
	bool given = e->o->kind == IR_case && recompute_is_given(w->m, body, x);
	if (!f->around[x] && !given && (r = recompute_stacked(w, f, x)) >= 0) {
		*to = (struct from){ CLONE, 0 };
		if (!cheap || !recompute_meets(f, x) || !plan_operands(w, e, o, true) || !spread(w, e, x))
			*to = (struct from){ RESULT, r };
		return true;
	}
	if (!o && recompute_param(e, x, to))
		return true;
	if (((o && f->around[x]) || cheap) && plan_operands(w, e, o, strict || !follow)) {
		*to = (struct from){ CLONE, 0 };
		return true;
	}
	*to = (struct from){ NEVER, 0 };
	if (strict || f->around[x])
		return false;
	*to = (struct from){ ADDED, (int)f->out.n };
	arr_push(&f->out, x);
	return true;
}

/* --- pairs of loops ------------------------------------------------------------------------ */

/* Queries, say, that are made again and that e's body makes for itself, too, are one: attention's gradient asks for the same ones.  whole: all that is. */
static void merge(struct edits *w, struct edit *e, bool whole)
{
	struct edit *f = e->first;
	const struct ir_fn *body = e->l.body;
	e->drop = ARENA_NEW(w->a, bool, body->op.n);
	e->twin = ARENA_NEW(w->a, ir_val, f->l.body->val.n);
	for (ir_val y = 1; y < f->l.body->val.n; y++) {
		const struct ir_op *o = ir_def(f->l.body, y);
		if ((o && (!o->nin || is_view((enum ir_kind)o->kind))) || e->from[y].how == NONE || e->from[y].how == NEVER || (!whole && (f->around[y] || !recompute_seen(f, y))))
			continue;
		for (size_t i = 0; i < body->op.n; i++) {
			ir_val x = body->op.p[i].out;
			if (body->op.p[i].nout != 1 || is_view((enum ir_kind)body->op.p[i].kind) || !recompute_same(w, e, x, y))
				continue;
			if (e->drop[i]) {
				for (size_t k = 0; k < e->swap.n && !e->twin[y]; k++)
					e->twin[y] = e->swap.p[k].v == x && e->swap.p[k].by < y ? e->swap.p[k].by : 0;
				continue;
			}
			e->drop[i] = true;
			arr_push(&e->swap, ((struct swap){ x, y }));
		}
	}
}

/* Of what the first one of a pair gives several times, in other views (queries that are the keys, too), the second one reads the first: in its body it is one
 * value.  gone: per operand, it is not read any more (of a case: but for other branches). */
static void read_once(struct edits *w, struct edit *e, const bool *gone)
{
	struct edit *f = e->first;
	for (int k = 0, r; k < e->l.n; k++) {
		if (gone[k] || !recompute_crosses(w, e, &e->l.x[k], &r))
			continue;
		ir_val y = f->l.body->result.p[r];
		int first = recompute_stacked(w, f, y);
		if (first < 0 || first == r || f->around[y] || !plan(w, e, y, true))
			continue;
		if (e->gone)
			e->gone[k] = true;
		arr_push(&e->swap, ((struct swap){ e->l.x[k].param, y }));
	}
}

static void find_pairs(struct edits *w, void *all)
{
	w->all = *(bool *)all;
	for (uint32_t i = 0; i < w->fn->op.n; i++) {
		if (w->fn->op.p[i].kind != IR_loop)
			continue;
		struct edit *e = recompute_edit(w, i);
		for (int k = 0; k < e->l.n && !e->l.cond; k++) {
			int r;
			struct edit *f = recompute_maker(w, e, k, &r);
			if (!f)
				continue;
			recompute_around(w, f);
			ir_val y = f->l.body->result.p[r];
			y = recompute_base(w->m, f->l.body, y);
			bool scores = f->around[y];
			if ((!scores && !recompute_meets(f, y)) || !recompute_follows(w, e, f, r, k))
				continue;
			if (!plan(w, e, y, !scores) || e->from[y].how == RESULT)
				continue;
			e->gone[k] = true;
			e->scores |= scores;
			arr_push(&e->swap, ((struct swap){ e->l.x[k].param, y }));
			w->any = true;
		}
		if (e->scores) {
			merge(w, e, false);
			read_once(w, e, e->gone);
		}
	}
}

/* What operand k of the second branch is in the first one; 0: it is none of that one's results. */
static ir_val crossing(struct edits *w, struct edit *e, int k)
{
	int r;
	const struct ir_fn *body = e->first->l.body;
	return recompute_crosses(w, e, &e->l.x[k], &r) ? recompute_base(w->m, body, body->result.p[r]) : 0;
}

/* Can the branch make y again?  scores: of an attention; else what is given as it is. */
static bool can_again(struct edits *w, struct edit *e, ir_val y, bool scores)
{
	const struct ir_fn *body = e->first->l.body;
	if (ir_splat(w->m, body, y))
		e->from[y] = (struct from){ CLONE, 0 };
	else if (!recompute_is_given(w->m, body, y) && !(scores && recompute_is_scores(w, e->first, y)))
		return false;
	return plan(w, e, y, !e->first->around[y]) && e->from[y].how != RESULT;
}

/* Branches of e make operand k again.  True: all that read it do. */
static bool pair_operand(struct edits *w, struct edit *e, int k, bool scores)
{
	bool any = !scores, all = true, *can = ARENA_NEW(w->a, bool, e->nbranch);
	for (int i = 0; i < e->nbranch; i++) {
		struct edit *x = e->branch[i];
		ir_val y = crossing(w, x, k);
		ir_val p = x->l.x[k].param;
		bool read = ir_use_first(x->l.body, p) || recompute_is_result(x->l.body, p);
		any |= y && recompute_is_scores(w, x->first, y);
		can[i] = read && y && can_again(w, x, y, scores);
		all &= can[i] || !read;
	}
	for (int i = 0; i < e->nbranch && any && (all || !scores); i++)
		if (can[i])
			arr_push(&e->branch[i]->swap, ((struct swap){ e->branch[i]->l.x[k].param, crossing(w, e->branch[i], k) }));
	return any && all;
}

/* Does only e read what f gives, which is products, where e has exponentials?  Then f is a part of e, and what they are around is told from both. */
static bool is_part(const struct edits *w, const struct edit *e, const struct edit *f)
{
	bool dot = false, exp = false;
	for (uint32_t k = 0; k < f->o->nout; k++) {
		for (uint32_t u = ir_use_first(w->fn, f->o->out + k); u; u = ir_use_next(w->fn, u))
			if (ir_use_op(w->fn, u) != (uint32_t)(e->o - w->fn->op.p))
				return false;
		if (recompute_is_result(w->fn, f->o->out + k))
			return false;
	}
	for (int i = 0; i < e->nbranch; i++) {
		const struct ir_fn *x = e->branch[i]->l.body, *y = f->branch[i]->l.body;
		for (size_t k = 0; k < x->op.n; k++)
			exp |= x->op.p[k].kind == IR_exponential || x->op.p[k].kind == IR_power;
		for (size_t k = 0; k < y->op.n; k++)
			dot |= y->op.p[k].kind == IR_dot;
	}
	return dot && exp && !ir_effect(w->m, w->fn, f->o);
}

/* Cases of the same index, of which the second one reads scores that the first one gives. */
static void pair_cases(struct edits *w, struct edit *e, struct edit *f)
{
	int n = (int)e->o->nin - 1;
	bool part = is_part(w, e, f);
	for (int i = 0; i < e->nbranch; i++) {
		struct edit *x = e->branch[i];
		x->first = f->branch[i];
		x->from = ARENA_NEW(w->a, struct from, x->first->l.body->val.n);
		recompute_around(w, x->first);
		for (ir_val v = 1; v < x->first->l.body->val.n && part; v++)
			x->first->around[v] = ir_def(x->first->l.body, v);
	}
	for (int turn = 0; turn <= e->scores && turn < 2; turn++)
		for (int k = 0; k < n; k++)
			if (!e->gone[k] && pair_operand(w, e, k, !turn)) {
				e->gone[k] = true;
				e->scores = w->any = true;
			}
	for (int i = 0; i < e->nbranch && e->scores; i++) {
		merge(w, e->branch[i], part);
		read_once(w, e->branch[i], e->gone);
	}
}

/* Does case e read scores that f gives? */
static bool reads_scores(struct edits *w, const struct edit *e, const struct edit *f)
{
	for (int i = 0; i < f->nbranch; i++) {
		struct edit *x = f->branch[i];
		recompute_around(w, x);
		for (int k = 0; k < e->branch[i]->l.n; k++) {
			ir_val v = recompute_unbarred(w->fn, e->branch[i]->l.x[k].v);
			if (ir_def(w->fn, v) == f->o && recompute_is_scores(w, x, recompute_base(w->m, x->l.body, x->l.body->result.p[v - f->o->out])))
				return true;
		}
	}
	return false;
}

/* The case of the same index as e that it reads scores of, or that is a part of it. */
static struct edit *case_before(struct edits *w, struct edit *e)
{
	for (uint32_t k = 1; k < e->o->nin; k++) {
		const struct ir_op *p = ir_def(w->fn, recompute_unbarred(w->fn, ir_in(w->fn, e->o, k)));
		if (!p || p->kind != IR_case || !recompute_alike(w, ir_in(w->fn, p, 0), ir_in(w->fn, e->o, 0)))
			continue;
		struct edit *f = recompute_edit(w, (uint32_t)(p - w->fn->op.p));
		if (f->nbranch == e->nbranch && (reads_scores(w, e, f) || is_part(w, e, f)))
			return f;
	}
	return NULL;
}

static void find_cases(struct edits *w, void *all)
{
	w->all = *(bool *)all;
	for (uint32_t i = 0; i < w->fn->op.n; i++) {
		struct edit *e = w->fn->op.p[i].kind == IR_case ? recompute_edit(w, i) : NULL, *f = e ? case_before(w, e) : NULL;
		if (f)
			pair_cases(w, e, f);
	}
}

/* --- stacks of pieces ------------------------------------------------------------------------ */

/* The operand of concatenation o that slice s of its result is; -1: it is another part. */
static int piece_of(const struct ir_module *m, const struct ir_fn *body, const struct ir_op *o, const struct ir_fn *reader, const struct ir_op *s)
{
	int n, d = (int)ir_attr(body, o, AT_dim);
	const int64_t *start = ir_attrs(reader, s, AT_start, &n), *limit = ir_attrs(reader, s, AT_limit, &n), *stride = ir_attrs(reader, s, AT_stride, &n);
	const struct ir_type_info *t = ir_vtype(m, body, o->out);
	int64_t at = 0;
	for (int i = 0; i < n; i++)
		if (stride[i] != 1 || (i != d && limit[i] - start[i] != t->dim[i]))
			return -1;
	for (uint32_t k = 0; k < o->nin && at <= start[d]; k++) {
		int64_t end = at + ir_vtype(m, body, ir_in(body, o, k))->dim[d];
		if (start[d] == at && limit[d] == end)
			return (int)k;
		at = end;
	}
	return -1;
}

/* What result r of loop f stacks, if it is a concatenation of which e's operand k is read piece by piece; NULL: it is not. */
static const struct ir_op *in_pieces(const struct edits *w, const struct edit *e, const struct edit *f, int r, int k)
{
	const struct ir_fn *body = e->l.body;
	const struct ir_op *o = ir_def(f->l.body, f->l.body->result.p[r]);
	if (!o || o->kind != IR_concatenate)
		return NULL;
	for (uint32_t u = ir_use_first(body, e->l.x[k].param); u; u = ir_use_next(body, u)) {
		uint32_t i = ir_use_op(body, u);
		if (i >= body->op.n || body->op.p[i].kind != IR_slice || piece_of(w->m, f->l.body, o, body, &body->op.p[i]) < 0)
			return NULL;
	}
	return o;
}

static void take_pieces(struct edits *w, struct edit *e, const struct ir_op *o, int k)
{
	const struct ir_fn *body = e->l.body;
	if (!e->drop)
		e->drop = ARENA_NEW(w->a, bool, body->op.n);
	for (uint32_t u = ir_use_first(body, e->l.x[k].param); u; u = ir_use_next(body, u)) {
		const struct ir_op *s = &body->op.p[ir_use_op(body, u)];
		e->drop[ir_use_op(body, u)] = true;
		recompute_take(w, e, s->out, ir_in(e->first->l.body, o, (uint32_t)piece_of(w->m, e->first->l.body, o, body, s)));
	}
	e->gone[k] = true;
	w->any = true;
}

/* Several layers that are one turn: where it stacks scores, or masks, side by side, all that it stacks so is as many stacks. */
static void find_pieces(struct edits *w, void *all)
{
	w->all = *(bool *)all;
	for (uint32_t i = 0; i < w->fn->op.n; i++) {
		if (w->fn->op.p[i].kind != IR_loop)
			continue;
		struct edit *e = recompute_edit(w, i);
		for (int turn = 0, scores = 0; turn < 2 && turn <= scores; turn++)
			for (int k = 0; k < e->l.n && !e->l.cond; k++) {
				int r;
				struct edit *f = recompute_maker(w, e, k, &r);
				const struct ir_op *o = f ? in_pieces(w, e, f, r, k) : NULL;
				if (!o || !recompute_follows(w, e, f, r, k))
					continue;
				recompute_around(w, f);
				for (uint32_t j = 0; j < o->nin && !turn; j++) {
					ir_val y = recompute_base(w->m, f->l.body, ir_in(f->l.body, o, j));
					scores |= f->around[y] || recompute_meets(f, y);
				}
				if (turn)
					take_pieces(w, e, o, k);
			}
	}
}

/* Cases that can be one are; of each one operand is one value then. */
static void join_cases(const struct pass_opts *o, struct ir_module *m, bool all)
{
	bool any = pass_has(m, IR_case) && recompute_join(m, all);
	if (any)
		pass_canon(o, m);
	pass_cse(o, m);
	if (any)
		pass_drop_operands(m);
}

void pass_recompute(const struct pass_opts *o, struct ir_module *m, bool all, struct recomputed *done)
{
	enum { CHAIN = 4 };              /* cases that hand on what others give: policies of jax.checkpoint make three in a row */
	struct recomputed pieces = {0};
	if (recompute_apart(m, all)) {
		pass_canon(o, m);
		pass_cse(o, m);
	}
	recompute_everywhere(m, find_pieces, &all, &pieces);
	arr_free(&pieces);
	recompute_everywhere(m, find_pairs, &all, done);
	size_t n = done->n + 1;
	bool cases = pass_has(m, IR_case);
	for (int turn = 0; turn < CHAIN && cases && n != done->n; turn++) {
		n = done->n;
		join_cases(o, m, all);
		recompute_everywhere(m, find_cases, &all, done);
		for (size_t i = n; i < done->n; i++)
			done->p[i].loops = MIN(done->p[i].loops, 1);         /* a case between others may end */
		if (done->n > n)
			pass_drop_operands(m);       /* of loops that do not stack for each other any more what cases have as operands */
	}
	if (cases)
		join_cases(o, m, all);
}

static bool has_gradient(const struct ir_module *m, const struct ir_fn *fn)
{
	bool any = false;
	for (size_t i = 0; i < fn->op.n && !any; i++) {
		const struct ir_op *o = &fn->op.p[i];
		int n = 0;
		const int64_t *f = o->kind == IR_case ? ir_attrs(fn, o, AT_branch, &n) : NULL;
		any = o->kind == IR_attention_grad;
		for (int k = 0; k < n && !any; k++)
			any = has_gradient(m, ir_fn_of(m, (ir_fnid)f[k]));
	}
	return any;
}

/* Loops and cases of fn that have the gradient of an attention. */
static int gradients(const struct ir_module *m, const struct ir_fn *fn)
{
	int n = 0;
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		int nf = 0;
		const int64_t *f = o->kind == IR_case ? ir_attrs(fn, o, AT_branch, &nf) : NULL;
		bool any = o->kind == IR_loop && has_gradient(m, ir_fn_of(m, (ir_fnid)ir_attr(fn, o, AT_body)));
		for (int k = 0; k < nf && !any; k++)
			any = has_gradient(m, ir_fn_of(m, (ir_fnid)f[k]));
		n += any;
	}
	return n;
}

bool pass_recompute_undo(struct ir_module *m, struct recomputed *done)
{
	bool any = false;
	for (size_t i = done->n; i-- > 0;) {         /* what was changed twice is what it was at first */
		const struct recomputed_fn *f = &done->p[i];
		if (gradients(m, ir_fn_of(m, f->id)) >= f->loops)
			continue;
		pass_replace(m, f->id, f->was);
		any = true;
	}
	arr_free(done);
	return any;
}

