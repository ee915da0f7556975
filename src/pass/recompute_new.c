/* Loops and cases once more: the second one of a pair makes again what the first one stacked or gave, which stacks what that is made from. */
#include "recompute.h"

/* v of body from y of body, whose roots are the same and whose value here is `have`. */
static ir_val turn(struct ir_b *b, const struct ir_fn *body, ir_val v, ir_val y, ir_val have)
{
	struct turned x = recompute_turned(b->m, body, v), z = recompute_turned(b->m, body, y);
	const struct ir_type_info *t = ir_vtype(b->m, body, y), *to = ir_vtype(b->m, body, v);
	int64_t dim[IR_MAX_RANK], perm[IR_MAX_RANK], last[IR_MAX_RANK];
	int n = 0, rank = to->rank;
	for (int d = 0; d < t->rank; d++)
		if (t->dim[d] != 1)
			dim[n++] = t->dim[d];
	for (int i = 0; i < x.n; i++)
		for (int k = 0; k < z.n; k++)
			if (z.from[k] == x.from[i])
				perm[i] = k;
	memcpy(last, to->dim, sizeof *last * (size_t)rank);
	have = ir_reshape(b, have, n, dim);
	have = ir_transpose(b, have, perm);
	return ir_reshape(b, have, rank, last);
}

static enum ir_role in_role(bool reversed) { return reversed ? ROLE_IN_REV : ROLE_IN; }

/* A second loop in the making: for each value of the first one's body its value here, and the operand that brings it. */
struct making { struct edits *w; struct edit *e; const struct ir_fn *outside; struct ir_loop_new *l; struct ir_b b; int *operand; ir_val *have; };

/* The operand, + 1, that brings v in that role: one that is there, or a new one. */
static int operand(struct making *g, ir_val v, enum ir_role role)
{
	for (size_t i = 0; i < g->l->x.n; i++)
		if (recompute_unbarred(g->outside, g->l->x.p[i].v) == recompute_unbarred(g->outside, v) && g->l->x.p[i].role == role)
			return (int)i + 1;
	return ir_loop_add(g->l, v, role) + 1;
}

/* What loop e reads as operand k, v now: of several stacks of one value the first. */
static ir_val one_stack(struct edits *w, const struct edit *e, int k, ir_val v)
{
	const struct ir_loop *l = e->first ? &e->first->l : NULL;
	int r;
	if (!l || !recompute_crosses(w, e, &e->l.x[k], &r))
		return v;
	for (int i = l->ncarry; i < r; i++)
		if (l->body->result.p[i] == l->body->result.p[r] && l->x[l->made[i]].role == l->x[l->made[r]].role)
			return e->first->made + (ir_val)i;
	return v;
}

/* The role in which e has what its first loop has, or stacks, so. */
static enum ir_role back(const struct edit *e, enum ir_role r)
{
	return r == ROLE_CONST ? r : in_role(ir_role_is_reversed(r) != e->flip);
}

/* The operand, + 1, that brings result r of the first loop. */
static int brought(struct making *g, int r)
{
	struct edit *f = g->e->first;
	return operand(g, f->made + (ir_val)r, back(g->e, f->l.made ? f->l.x[f->l.made[r]].role : ROLE_CONST));
}

/* Operands for what is needed of the first loop's body. */
static void bring(struct making *g)
{
	struct edit *e = g->e, *f = e->first;
	const struct ir_fn *body = f->l.body;
	bool *need = ARENA_NEW(g->w->a, bool, body->val.n);
	for (size_t i = 0; i < e->swap.n; i++)
		need[e->swap.p[i].by] = true;
	for (ir_val x = body->val.n; x-- > 1;) {
		if (need[x] && e->twin && e->twin[x]) {
			need[e->twin[x]] = true;
			need[x] = false;
		}
		const struct ir_op *o = need[x] && e->from[x].how == CLONE ? ir_def(body, x) : NULL;
		for (uint32_t k = 0; o && k < o->nin; k++)
			need[ir_in(body, o, k)] = true;
	}
	for (ir_val x = 1; x < body->val.n; x++) {
		const struct from *s = &e->from[x];
		const struct ir_op *o = need[x] && s->how == CLONE ? ir_def(body, x) : NULL;
		int ref = s->ref;
		for (uint32_t k = 0; o && o->kind == IR_case && k < o->nout; k++)
			if (f->kept[o->out + k])
				brought(g, recompute_stacked(g->w, f, o->out + k));
		switch (need[x] ? s->how : NONE) {
		case OPERAND:
			g->operand[x] = operand(g, f->in[ref], back(e, f->l.x[ref].role));
			break;
		case RESULT:
			g->operand[x] = brought(g, ref);
			break;
		case ADDED:
			g->operand[x] = operand(g, f->stack[ref], back(e, f->l.made ? ROLE_OUT : ROLE_CONST));
			break;
		default: break;
		}
	}
}

/* A branch of a case once more: what the case gives that is stacked, kept[], is taken from there, but scores are made. */
static ir_fnid branch_again(struct making *g, const struct ir_op *o, ir_fnid id, const ir_val *kept)
{
	struct ir_module *m = g->b.m;
	struct edit own = { .o = o, .l = { .body = ir_fn_of(m, id), .nmade = (int)o->nout } };
	const struct ir_fn *body = own.l.body;
	struct ir_b b = { m, ir_fn_new(m, ir_text(m, body->name)), o->loc };
	ir_val *map = ARENA_NEW(g->w->a, ir_val, body->val.n), *have = ARENA_NEW(g->w->a, ir_val, o->nout + 1);
	recompute_around(g->w, &own);
	for (uint32_t p = 1; p <= body->nparam; p++)
		map[p] = ir_param(b.fn, body->val.p[p].type);
	for (uint32_t j = 0; j < o->nout; j++)
		have[j] = kept[j] ? ir_param(b.fn, body->val.p[body->result.p[j]].type) : 0;
	for (size_t i = 0; i < body->op.n; i++) {
		const struct ir_op *p = &body->op.p[i];
		ir_val *in = ARENA_NEW(g->w->a, ir_val, p->nin + 1);
		int r = p->nout == 1 && !own.around[p->out] && !is_view((enum ir_kind)p->kind) && !ir_splat(m, body, p->out) ? recompute_stacked(g->w, &own, p->out) : -1;
		for (uint32_t k = 0; k < p->nin; k++)
			in[k] = map[ir_in(body, p, k)];
		b.loc = p->loc;
		ir_val v = r >= 0 && have[r] && !recompute_is_scores(g->w, &own, p->out) ? turn(&b, body, p->out, body->result.p[r], have[r]) : ir_clone(&b, body, p, in);
		for (uint32_t k = 0; k < p->nout; k++)
			map[p->out + k] = v + k;
	}
	for (uint32_t j = 0; j < o->nout; j++)
		ir_result(b.fn, map[body->result.p[j]]);
	return b.fn->id;
}

/* A case of body once more, with branches of its own. */
static ir_val case_again(struct making *g, const struct ir_fn *body, const struct ir_op *o, const ir_val *in)
{
	int n;
	const int64_t *f = ir_attrs(body, o, AT_branch, &n);
	int64_t *words = ARENA_NEW(g->w->a, int64_t, n + 1);
	ir_val *kept = ARENA_NEW(g->w->a, ir_val, o->nout + 1), *all = ARENA_NEW(g->w->a, ir_val, o->nin + o->nout);
	ir_type *t = ARENA_NEW(g->w->a, ir_type, o->nout + 1);
	uint32_t nin = o->nin;
	memcpy(all, in, sizeof *in * nin);
	words[0] = n;
	for (uint32_t j = 0; j < o->nout; j++) {
		ir_val v = o->out + j;
		const struct ir_type_info *x = ir_vtype(g->b.m, body, v);
		t[j] = body->val.p[v].type;
		if (g->e->first->kept[v])
			all[nin++] = kept[j] = ir_reshape(&g->b, g->l->x.p[brought(g, recompute_stacked(g->w, g->e->first, v)) - 1].param, x->rank, x->dim);
	}
	for (int k = 0; k < n; k++)
		words[1 + k] = branch_again(g, o, (ir_fnid)f[k], kept);
	return ir_emit_raw(&g->b, IR_case, nin, all, o->nout, t, words, (uint32_t)n + 1);
}

static ir_val again(struct making *g, ir_val x)
{
	struct edit *e = g->e;
	const struct ir_fn *body = e->first->l.body;
	const struct ir_type_info *t = ir_vtype(g->b.m, body, x);
	if (g->have[x])
		return g->have[x];
	ir_val v;
	if (e->twin && e->twin[x]) {
		v = ir_reshape(&g->b, again(g, e->twin[x]), t->rank, t->dim);
	} else if (e->from[x].how == RESULT) {
		v = turn(&g->b, body, x, body->result.p[e->from[x].ref], g->l->x.p[g->operand[x] - 1].param);
	} else if (g->operand[x]) {
		v = ir_reshape(&g->b, g->l->x.p[g->operand[x] - 1].param, t->rank, t->dim);
	} else if (e->from[x].how == TURN) {
		v = IR_LOOP_TURN;
		if (e->flip) {
			ir_val last = ir_const_i(&g->b, ir_scalar(g->b.m, DT_i32), e->l.trip - 1);
			v = ir_bin(&g->b, ELEM_subtract, last, v);
		}
	} else {
		const struct ir_op *o = ir_def(body, x);
		ir_val *in = ARENA_NEW(g->w->a, ir_val, o->nin + 1);
		for (uint32_t k = 0; k < o->nin; k++)
			in[k] = again(g, ir_in(body, o, k));
		g->b.loc = o->loc;
		v = o->kind == IR_case ? case_again(g, body, o, in) : ir_clone(&g->b, body, o, in);
		for (uint32_t k = 0; k < o->nout; k++)
			g->have[o->out + k] = v + k;
		return g->have[x];
	}
	return g->have[x] = v;
}

/* What takes the place of v of the loop's body; 0: nothing does. */
static ir_val swapped(struct making *g, ir_val v)
{
	struct edit *e = g->e;
	for (size_t i = 0; i < e->swap.n; i++)
		if (e->swap.p[i].v == v) {
			const struct ir_type_info *t = ir_vtype(g->b.m, e->l.body, v);
			return ir_reshape(&g->b, again(g, e->swap.p[i].by), t->rank, t->dim);
		}
	return 0;
}

/* A barrier lets pass what is made again: nothing is kept apart by it. */
static void barrier(struct making *g, const struct ir_op *o, ir_val *map, const bool *made)
{
	const struct ir_fn *body = g->e->l.body;
	ir_val *in = ARENA_NEW(g->w->a, ir_val, o->nin + 1);
	ir_type *t = ARENA_NEW(g->w->a, ir_type, o->nin + 1);
	uint32_t n = 0;
	for (uint32_t k = 0; k < o->nin; k++)
		if (!made[ir_in(body, o, k)]) {
			t[n] = body->val.p[ir_in(body, o, k)].type;
			in[n++] = map[ir_in(body, o, k)];
		}
	ir_val v = n ? ir_emit_raw(&g->b, IR_optimization_barrier, n, in, n, t, NULL, 0) : 0;
	for (uint32_t k = 0; k < o->nin; k++)
		map[o->out + k] = made[ir_in(body, o, k)] ? map[ir_in(body, o, k)] : v++;
}

static void fill(struct making *g, const int *slot, ir_val *map)
{
	struct edit *e = g->e;
	const struct ir_fn *body = e->l.body;
	bool *made = ARENA_NEW(g->w->a, bool, body->val.n);
	if (e->o->kind == IR_loop)
		map[IR_LOOP_TURN] = IR_LOOP_TURN;
	for (int k = 0; k < e->l.n; k++) {
		ir_val p = e->l.x[k].param;
		if (!p)
			continue;
		map[p] = swapped(g, p);
		made[p] = map[p];
		if (!map[p] && slot[k] >= 0)
			map[p] = g->l->x.p[slot[k]].param;
	}
	for (size_t i = 0; i < body->op.n; i++) {
		const struct ir_op *o = &body->op.p[i];
		if (e->drop && e->drop[i]) {
			for (uint32_t k = 0; k < o->nout; k++)
				map[o->out + k] = swapped(g, o->out + k);
			continue;
		}
		if (o->kind == IR_optimization_barrier) {
			g->b.loc = o->loc;
			barrier(g, o, map, made);
			continue;
		}
		ir_val *in = ARENA_NEW(g->w->a, ir_val, o->nin + 1), v;
		for (uint32_t k = 0; k < o->nin; k++) {
			in[k] = map[ir_in(body, o, k)];
			made[o->out] |= is_view((enum ir_kind)o->kind) && made[ir_in(body, o, k)];
		}
		g->b.loc = o->loc;
		v = ir_clone(&g->b, body, o, in);
		for (uint32_t k = 0; k < o->nout; k++)
			map[o->out + k] = v + k;
	}
}

/* The case with all its branches: what the second one of a pair reads besides becomes operands of all, what the first one is to give besides is zero in the others. */
static ir_val rebuilt_case(struct edits *w, struct edit *e, struct ir_b *b, const ir_val *in)
{
	const struct ir_op *o = e->o;
	bool changed = false;
	for (int i = 0; i < e->nbranch; i++) {
		e->branch[i]->in = arena_copy(w->a, in + 1, sizeof *in * (o->nin - 1));
		changed |= e->branch[i]->out.n || e->branch[i]->swap.n;
	}
	if (!changed) {
		e->made = ir_clone(b, w->fn, o, in);
		for (int i = 0; i < e->nbranch; i++)
			e->branch[i]->made = e->made;
		return e->made;
	}
	struct ir_loop_new l = {0};
	struct making *g = ARENA_NEW(w->a, struct making, e->nbranch);
	int *slot = ARENA_NEW(w->a, int, o->nin);
	ARR(ir_type) t = {0};
	int64_t *words = ARENA_NEW(w->a, int64_t, e->nbranch + 1);
	for (uint32_t k = 1; k < o->nin; k++)
		slot[k - 1] = e->gone[k - 1] ? -1 : operand(&(struct making){ .outside = b->fn, .l = &l }, in[k], ROLE_CONST) - 1;
	for (uint32_t k = 0; k < o->nout; k++)
		arr_push(&t, w->fn->val.p[o->out + k].type);
	for (int i = 0; i < e->nbranch; i++) {
		struct edit *x = e->branch[i];
		g[i] = (struct making){ .w = w, .e = x, .outside = b->fn, .l = &l };
		for (size_t k = 0; k < x->out.n; k++)
			arr_push(&t, x->l.body->val.p[x->out.p[k]].type);
		if (!x->first)
			continue;
		g[i].operand = ARENA_NEW(w->a, int, x->first->l.body->val.n);
		g[i].have = ARENA_NEW(w->a, ir_val, x->first->l.body->val.n);
		bring(&g[i]);
	}
	size_t at = o->nout;
	words[0] = e->nbranch;
	for (int i = 0; i < e->nbranch; i++) {
		struct edit *x = e->branch[i];
		const struct ir_fn *body = x->l.body;
		g[i].b = (struct ir_b){ b->m, ir_fn_new(b->m, ir_text(b->m, body->name)), o->loc };
		for (size_t k = 0; k < l.x.n; k++)
			l.x.p[k].param = ir_param(g[i].b.fn, b->fn->val.p[l.x.p[k].v].type);
		ir_val *map = ARENA_NEW(w->a, ir_val, body->val.n);
		fill(&g[i], slot, map);
		for (uint32_t k = 0; k < o->nout; k++)
			ir_result(g[i].b.fn, map[body->result.p[k]]);
		for (size_t k = o->nout; k < t.n; k++)
			ir_result(g[i].b.fn, k >= at && k < at + x->out.n ? map[x->out.p[k - at]] : ir_const_i(&g[i].b, t.p[k], 0));
		at += x->out.n;
		words[1 + i] = g[i].b.fn->id;
	}
	ir_val *all = ARENA_NEW(w->a, ir_val, l.x.n + 1);
	all[0] = in[0];
	for (size_t k = 0; k < l.x.n; k++)
		all[1 + k] = l.x.p[k].v;
	ir_val made = ir_emit_raw(b, IR_case, (uint32_t)l.x.n + 1, all, (uint32_t)t.n, t.p, words, (uint32_t)e->nbranch + 1), next = made + o->nout;
	for (uint32_t k = 0; k < o->nout; k++)
		ir_shard_set(b->fn, made + k, ir_shard_of(w->fn, o->out + k));
	for (int i = 0; i < e->nbranch; i++) {
		struct edit *x = e->branch[i];
		x->made = made;
		x->stack = ARENA_NEW(w->a, ir_val, x->out.n + 1);
		for (size_t k = 0; k < x->out.n; k++)
			x->stack[k] = next++;
	}
	arr_free(&l.x);
	arr_free(&t);
	return made;
}

/* Is v read, but only by loops and cases as what they make again? */
static bool only_gone(const struct edits *w, ir_val v)
{
	bool any = false;
	for (uint32_t u = ir_use_first(w->fn, v); u; u = ir_use_next(w->fn, u)) {
		uint32_t i = ir_use_op(w->fn, u);
		const struct edit *e = i < w->fn->op.n ? w->of[i] : NULL;
		if (!e || ir_use_operand(w->fn, u) < (e->branch != NULL) || !e->gone[ir_use_operand(w->fn, u) - (e->branch != NULL)])
			return false;
		any = true;
	}
	return any && !recompute_is_result(w->fn, v);
}

/* A barrier without what is gone. */
static ir_val less_barred(struct edits *w, struct ir_b *b, const struct ir_op *o, const ir_val *in)
{
	ir_val *x = ARENA_NEW(w->a, ir_val, o->nin + 1);
	ir_type *t = ARENA_NEW(w->a, ir_type, o->nin + 1);
	bool any = false;
	for (uint32_t k = 0; k < o->nin; k++) {
		bool gone = only_gone(w, o->out + k);
		x[k] = gone ? ir_const_i(b, ir_scalar(b->m, DT_i32), 0) : in[k];
		t[k] = b->fn->val.p[x[k]].type;
		any |= gone;
	}
	return any ? ir_emit_raw(b, IR_optimization_barrier, o->nin, x, o->nin, t, NULL, 0) : 0;
}

static ir_val rebuilt(void *user, struct ir_b *b, const struct ir_op *o, const ir_val *in)
{
	struct edits *w = user;
	struct edit *e = w->of[o - w->fn->op.p];
	if (o->kind == IR_optimization_barrier)
		return less_barred(w, b, o, in);
	if (!e)
		return 0;
	if (e->branch)
		return rebuilt_case(w, e, b, in);
	e->in = arena_copy(w->a, in, sizeof *in * (o->nin + 1));
	struct ir_loop_new l = {0};
	struct making g = { .w = w, .e = e, .outside = b->fn, .l = &l };
	const struct ir_fn *body = e->l.body;
	int *slot = ARENA_NEW(w->a, int, e->l.n + 1), *extra = ARENA_NEW(w->a, int, e->out.n + 1);
	if (e->l.cond || (!e->out.n && !e->swap.n)) {
		e->made = ir_clone(b, w->fn, o, in);
		return e->made;
	}
	for (int k = 0; k < e->l.n; k++)
		slot[k] = e->gone[k] ? -1 : e->l.x[k].role == ROLE_CONST || ir_role_is_in(e->l.x[k].role) ? operand(&g, one_stack(w, e, k, in[k]), e->l.x[k].role) - 1
		                                                                                          : ir_loop_add(&l, in[k], e->l.x[k].role);
	for (size_t i = 0; i < e->out.n; i++) {
		const struct ir_type_info *t = ir_vtype(b->m, body, e->out.p[i]);
		int64_t dim[IR_MAX_RANK] = { e->l.trip };
		enum dtype dt = (enum dtype)t->dtype;
		int rank = t->rank + 1;
		memcpy(dim + 1, t->dim, sizeof *dim * t->rank);
		extra[i] = ir_loop_add(&l, ir_const_i(b, ir_tensor(b->m, dt, rank, dim), 0), ROLE_OUT);
	}
	if (e->first && e->swap.n) {
		g.operand = ARENA_NEW(w->a, int, e->first->l.body->val.n);
		g.have = ARENA_NEW(w->a, ir_val, e->first->l.body->val.n);
		bring(&g);
	}
	ir_loop_open(&l, b, e->l.trip, ir_text(b->m, body->name), NULL);
	g.b = (struct ir_b){ b->m, l.body, o->loc };
	ir_val *map = ARENA_NEW(w->a, ir_val, body->val.n);
	fill(&g, slot, map);
	for (int k = 0; k < e->l.n; k++)
		if (e->l.x[k].result >= 0)
			ir_loop_give(&l, slot[k], map[body->result.p[e->l.x[k].result]]);
	for (size_t i = 0; i < e->out.n; i++)
		ir_loop_give(&l, extra[i], map[e->out.p[i]]);
	int *result = ARENA_NEW(w->a, int, l.x.n + 1);
	e->made = ir_loop_close(&l, result);
	e->stack = ARENA_NEW(w->a, ir_val, e->out.n + 1);
	for (size_t i = 0; i < e->out.n; i++)
		e->stack[i] = e->made + (ir_val)result[extra[i]];
	return e->made;
}

static void free_edit(struct edit *e)
{
	if (!e)
		return;
	arr_free(&e->out);
	arr_free(&e->swap);
}

static void in_function(struct ir_module *m, ir_fnid id, void (*find)(struct edits *, void *user), void *user, struct recomputed *done)
{
	struct arena a;
	arena_init(&a);
	struct edits w = { .a = &a, .m = m, .fn = ir_fn_of(m, id) };
	w.of = ARENA_NEW(&a, struct edit *, w.fn->op.n + 1);
	find(&w, user);
	if (w.any) {
		struct ir_fn *was = ir_fn_of(m, id);
		int loops = 0;
		pass_replace(m, id, pass_replace_regions(m, &a, w.fn, NULL, 0, &(struct region_change){ .other = rebuilt, .user = &w, .in_order = true }));
		for (size_t i = 0; i < w.fn->op.n; i++)
			loops += w.of[i] && w.of[i]->scores;
		arr_push(done, ((struct recomputed_fn){ id, was, loops }));
	}
	for (size_t i = 0; i < w.fn->op.n; i++) {
		free_edit(w.of[i]);
		for (int k = 0; w.of[i] && k < w.of[i]->nbranch; k++)
			free_edit(w.of[i]->branch[k]);
	}
	map_free(&w.same);
	arena_fini(&a);
}

void recompute_everywhere(struct ir_module *m, void (*find)(struct edits *, void *user), void *user, struct recomputed *done)
{
	struct arena a;
	int n;
	if (!pass_has(m, IR_loop) && !pass_has(m, IR_case))
		return;
	arena_init(&a);
	const ir_fnid *f = ir_reachable(&a, m, &n);
	for (int k = 0; k < n; k++)
		in_function(m, f[k], find, user, done);
	arena_fini(&a);
	if (done->n)
		pass_drop_operands(m);
}
