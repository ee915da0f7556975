/* Attention in a loop and in the loop that goes back over it.
 *
 * The derivative of a loop over layers is a second loop, which reads what the first one has stacked.  Of an attention those are whole matrices of
 * queries by keys.  Here the second loop makes them again from queries and keys, which are stacked instead, so that its body has
 * forward and backward of an attention like any function; what is not read any more is stacked no more.  Once both bodies have their ops,
 * the second loop reads the first one's o and l. */
#include "passes.h"

#include <math.h>

enum how { NONE, CLONE, TURN, OPERAND, RESULT, ADDED, NEVER };     /* NEVER: not without stacking more */
struct from { uint8_t how; int ref; };         /* where the second loop gets a value of the first one's body: ref: operand, result, added out */

struct swap { ir_val v, by; };

/* A loop and what changes of it. */
struct edit {
	const struct ir_op *o;
	struct ir_loop l;
	bool *around;            /* per value of its body; of a first loop */
	ARR(ir_val) out;         /* values of its body that it is to stack */
	ir_val *in, made, *stack;                  /* in the new function: its operands, its first result, the added stacks */
	struct edit *first;      /* the loop that it goes back over */
	bool flip;               /* iteration i of the first loop is trip-1-i here */
	struct from *from;       /* per value of the first loop's body */
	bool *gone;              /* per operand: not read any more */
	bool scores;             /* matrices of scores are made again */
	bool *dropped;           /* per result: it is not stacked any more; of a first loop, where memory is short */
	ARR(struct swap) swap;   /* values of this body, and those of the first one's body that they are */
	bool *drop;              /* per op of this body: all it gives is swapped or read by such ops; NULL: none */
};

struct edits { struct arena *a; struct ir_module *m; const struct ir_fn *fn; struct edit **of; bool any; };     /* of: per op */

/* v without what only adds or takes away dimensions of extent 1, or groups the same elements otherwise. */
static ir_val base(const struct ir_module *m, const struct ir_fn *fn, ir_val v)
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

/* A value as another one, root, with its dimensions in another order; those of extent 1 do not count. */
struct turned { ir_val root; int n; int from[IR_MAX_RANK]; };      /* its dimension i is from[i] of root */

/* The place of dimension d among those that are not of extent 1. */
static int place(const struct ir_type_info *t, int64_t d)
{
	int n = 0;
	for (int64_t i = 0; i < d; i++)
		n += t->dim[i] != 1;
	return n;
}

static struct turned turned(const struct ir_module *m, const struct ir_fn *fn, ir_val v)
{
	struct turned x = { .root = v, .n = place(ir_vtype(m, fn, v), ir_vtype(m, fn, v)->rank) };
	for (int i = 0; i < x.n; i++)
		x.from[i] = i;
	for (const struct ir_op *o; (o = ir_def(fn, x.root)); ) {
		ir_val in = o->nin == 1 ? ir_in(fn, o, 0) : 0;
		const struct ir_type_info *t = ir_vtype(m, fn, x.root), *s = in ? ir_vtype(m, fn, in) : NULL;
		int n, to[IR_MAX_RANK] = {0};
		if (o->kind == IR_transpose) {
			const int64_t *perm = ir_attrs(fn, o, AT_perm, &n);
			for (int d = 0; d < n; d++)
				if (t->dim[d] != 1)
					to[place(t, d)] = place(s, perm[d]);
			for (int i = 0; i < x.n; i++)
				x.from[i] = to[x.from[i]];
		} else if (o->kind != IR_reshape && base(m, fn, x.root) == x.root) {
			break;
		} else {                 /* the same dimensions, some of extent 1 more or less */
			if (place(s, s->rank) != place(t, t->rank) || s->count != t->count)
				break;
			bool alike = true;
			for (int d = 0, e = 0; d < t->rank; d++) {
				while (t->dim[d] != 1 && s->dim[e] == 1)
					e++;
				alike &= t->dim[d] == 1 || t->dim[d] == s->dim[e++];
			}
			if (!alike)
				break;
		}
		x.root = in;
	}
	return x;
}

static bool is_view(enum ir_kind k)
{
	return k == IR_broadcast || k == IR_reshape || k == IR_transpose;
}

/* The result of loop e that stacks v, its dimensions in any order; -1: none. */
static int stacked(const struct edits *w, const struct edit *e, ir_val v)
{
	struct turned x = turned(w->m, e->l.body, v);
	for (int r = e->l.ncarry; r < e->l.nmade; r++)
		if (turned(w->m, e->l.body, e->l.body->result.p[r]).root == x.root)
			return r;
	return -1;
}

/* v of body from y of body, whose roots are the same and whose value here is `have`. */
static ir_val turn(struct ir_b *b, const struct ir_fn *body, ir_val v, ir_val y, ir_val have)
{
	struct turned x = turned(b->m, body, v), z = turned(b->m, body, y);
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

/* --- where values come from -------------------------------------------------------- */

static bool plan(struct edits *w, struct edit *e, ir_val x, bool strict);

static bool plan_operands(struct edits *w, struct edit *e, const struct ir_op *o, bool strict)
{
	for (uint32_t k = 0; k < o->nin; k++)
		if (!plan(w, e, ir_in(e->first->l.body, o, k), strict))
			return false;
	return true;
}

static bool plan_param(struct edit *e, ir_val x, struct from *to)
{
	struct ir_loop *l = &e->first->l;
	if (x == IR_LOOP_TURN) {
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

/* Does a view of v meet a matrix of scores? */
static bool seen_by_scores(const struct edit *f, ir_val v)
{
	const struct ir_fn *body = f->l.body;
	for (uint32_t u = ir_use_first(body, v); u; u = ir_use_next(body, u)) {
		uint32_t i = ir_use_op(body, u);
		const struct ir_op *o = i < body->op.n ? &body->op.p[i] : NULL;
		if (o && o->nout == 1 && (f->around[o->out] || ((is_view((enum ir_kind)o->kind) || o->kind == IR_convert) && seen_by_scores(f, o->out))))
			return true;
	}
	return false;
}

/* A mask does, or what dropout keeps. */
static bool meets(const struct edit *f, ir_val v)
{
	for (const struct ir_op *o; (o = ir_def(f->l.body, v)) && is_view((enum ir_kind)o->kind); )
		v = ir_in(f->l.body, o, 0);
	return seen_by_scores(f, v);
}

/* Is v, which the second loop makes again, many times as large as all that it is made from? */
static bool spread(const struct edits *w, const struct edit *e, ir_val v)
{
	enum { TIMES = 16 };
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
	bool cheap = pure && (o->kind == IR_constant || o->kind == IR_iota || o->kind == IR_slice || o->kind == IR_concatenate || is_view((enum ir_kind)o->kind) || ir_is_elem(o->kind));
	bool follow = pure && (f->around[x] || is_view((enum ir_kind)o->kind));
	if (!f->around[x] && (r = stacked(w, f, x)) >= 0) {
		*to = (struct from){ CLONE, 0 };
		if (!cheap || !meets(f, x) || !plan_operands(w, e, o, true) || !spread(w, e, x))
			*to = (struct from){ RESULT, r };
		return true;
	}
	if (!o && plan_param(e, x, to))
		return true;
	if ((f->around[x] || cheap) && plan_operands(w, e, o, strict || !follow)) {
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

static struct edit *edit_of(struct edits *w, uint32_t op)
{
	const struct ir_op *o = &w->fn->op.p[op];
	if (!w->of[op]) {
		struct edit *e = w->of[op] = ARENA_NEW(w->a, struct edit, 1);
		e->o = o;
		e->l = ir_loop_view(w->a, w->m, w->fn, o);
		e->gone = ARENA_NEW(w->a, bool, e->l.n + 1);
	}
	return w->of[op];
}

/* The counted loop that makes v as a stack, and which of its results v is. */
static struct edit *maker(struct edits *w, ir_val v, int *result)
{
	const struct ir_op *o = ir_def(w->fn, v);
	if (!o || o->kind != IR_loop)
		return NULL;
	struct edit *f = edit_of(w, (uint32_t)(o - w->fn->op.p));
	*result = (int)(v - o->out);
	return !f->l.cond && *result >= f->l.ncarry ? f : NULL;
}

/* e goes back over f; false: it goes over another one, or in another way. */
static bool follows(struct edits *w, struct edit *e, struct edit *f, int result, int operand)
{
	bool flip = ir_role_is_reversed(f->l.x[f->l.made[result]].role) != ir_role_is_reversed(e->l.x[operand].role);
	if (e->first && (e->first != f || e->flip != flip))
		return false;
	if (!e->first) {
		e->first = f;
		e->flip = flip;
		e->from = ARENA_NEW(w->a, struct from, f->l.body->val.n);
	}
	return true;
}

static void find_pairs(struct edits *w, void *all)
{
	for (uint32_t i = 0; i < w->fn->op.n; i++) {
		if (w->fn->op.p[i].kind != IR_loop)
			continue;
		struct edit *e = edit_of(w, i);
		for (int k = 0; k < e->l.n && !e->l.cond; k++) {
			int r;
			struct edit *f = ir_role_is_in(e->l.x[k].role) ? maker(w, e->l.x[k].v, &r) : NULL;
			if (!f || f->l.trip != e->l.trip)
				continue;
			if (!f->around) {
				f->around = ARENA_NEW(w->a, bool, f->l.body->val.n);
				attn_around(w->a, w->m, f->l.body, *(bool *)all, f->around);
			}
			ir_val y = f->l.body->result.p[r];
			y = base(w->m, f->l.body, y);
			bool scores = f->around[y];
			if ((!scores && !meets(f, y)) || !follows(w, e, f, r, k))
				continue;
			size_t had = f->out.n;
			if (!plan(w, e, y, !scores) || e->from[y].how == RESULT) {
				f->out.n = had;
				continue;
			}
			e->gone[k] = true;
			e->scores |= scores;
			arr_reserve(&e->swap, 1);
			e->swap.p[e->swap.n].v = e->l.x[k].param;
			e->swap.p[e->swap.n++].by = y;
			w->any = true;
		}
	}
}

/* --- the new loops --------------------------------------------------------------------------- */

static enum ir_role in_role(bool reversed) { return reversed ? ROLE_IN_REV : ROLE_IN; }

/* A second loop in the making: for each value of the first one's body its value here, and the operand that brings it. */
struct making { struct edits *w; struct edit *e; struct ir_loop_new *l; struct ir_b b; int *operand; ir_val *have; };

/* The operand, + 1, that brings v in that role: one that is there, or a new one. */
static int operand(struct making *g, ir_val v, enum ir_role role)
{
	for (size_t i = 0; i < g->l->x.n; i++)
		if (g->l->x.p[i].v == v && g->l->x.p[i].role == role)
			return (int)i + 1;
	return ir_loop_add(g->l, v, role) + 1;
}

/* Operands for what is needed of the first loop's body. */
static void bring(struct making *g)
{
	struct edit *e = g->e, *f = e->first;
	for (ir_val x = 1; x < f->l.body->val.n; x++) {
		const struct from *s = &e->from[x];
		int ref = s->ref;
		switch (s->how) {
		case OPERAND: {
			enum ir_role r = f->l.x[ref].role;
			g->operand[x] = operand(g, f->in[ref], r == ROLE_CONST ? r : in_role(ir_role_is_reversed(r) != e->flip));
			break;
		}
		case RESULT:
			g->operand[x] = operand(g, f->made + (ir_val)ref, in_role(ir_role_is_reversed(f->l.x[f->l.made[ref]].role) != e->flip));
			break;
		case ADDED:
			g->operand[x] = operand(g, f->stack[ref], in_role(e->flip));
			break;
		default: break;
		}
	}
}

static ir_val again(struct making *g, ir_val x)
{
	struct edit *e = g->e;
	const struct ir_fn *body = e->first->l.body;
	const struct ir_type_info *t = ir_vtype(g->b.m, body, x);
	if (g->have[x])
		return g->have[x];
	ir_val v;
	if (e->from[x].how == RESULT) {
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
		v = ir_clone(&g->b, body, o, in);
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
	map[IR_LOOP_TURN] = IR_LOOP_TURN;
	for (int k = 0; k < e->l.n; k++) {
		ir_val p = e->l.x[k].param;
		if (!p)
			continue;
		made[p] = e->gone[k];
		map[p] = e->gone[k] ? swapped(g, p) : g->l->x.p[slot[k]].param;
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

static ir_val rebuilt(void *user, struct ir_b *b, const struct ir_op *o, const ir_val *in)
{
	struct edits *w = user;
	struct edit *e = w->of[o - w->fn->op.p];
	if (!e)
		return 0;
	e->in = arena_copy(w->a, in, sizeof *in * (o->nin + 1));
	struct ir_loop_new l = {0};
	struct making g = { .w = w, .e = e, .l = &l };
	const struct ir_fn *body = e->l.body;
	int *slot = ARENA_NEW(w->a, int, e->l.n + 1), *extra = ARENA_NEW(w->a, int, e->out.n + 1);
	if (e->l.cond || (!e->out.n && !e->swap.n)) {
		e->made = ir_clone(b, w->fn, o, in);
		return e->made;
	}
	for (int k = 0; k < e->l.n; k++)
		slot[k] = e->gone[k] ? -1 : ir_loop_add(&l, in[k], e->l.x[k].role);
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
	for (size_t i = 0; i < w.fn->op.n; i++)
		if (w.of[i]) {
			arr_free(&w.of[i]->out);
			arr_free(&w.of[i]->swap);
		}
	arena_fini(&a);
}

static void everywhere(struct ir_module *m, void (*find)(struct edits *, void *user), void *user, struct recomputed *done)
{
	struct arena a;
	int n;
	if (!pass_has(m, IR_loop))
		return;
	arena_init(&a);
	const ir_fnid *f = ir_reachable(&a, m, &n);
	for (int k = 0; k < n; k++)
		in_function(m, f[k], find, user, done);
	arena_fini(&a);
	if (done->n)
		pass_drop_operands(m);
}

void pass_recompute(struct ir_module *m, bool all, struct recomputed *done)
{
	everywhere(m, find_pairs, &all, done);
}

/* Loops of fn whose body has the gradient of an attention. */
static int gradients(const struct ir_module *m, const struct ir_fn *fn)
{
	int n = 0;
	for (size_t i = 0; i < fn->op.n; i++) {
		ir_fnid held[1];
		bool any = false;
		if (fn->op.p[i].kind != IR_loop)
			continue;
		held[0] = (ir_fnid)ir_attr(fn, &fn->op.p[i], AT_body);
		const struct ir_fn *body = ir_fn_of(m, held[0]);
		for (size_t k = 0; k < body->op.n; k++)
			any |= body->op.p[k].kind == IR_attention_grad;
		n += any;
	}
	return n;
}

bool pass_recompute_undo(struct ir_module *m, struct recomputed *done)
{
	bool any = false;
	for (size_t i = 0; i < done->n; i++) {
		const struct recomputed_fn *f = &done->p[i];
		if (gradients(m, ir_fn_of(m, f->id)) >= f->loops)
			continue;
		pass_replace(m, f->id, f->was);
		any = true;
	}
	arr_free(done);
	return any;
}

/* --- outputs ------------------------------------------------------------------------------------ */

/* Functions of scalars that say the same. */
static bool same_function(const struct ir_module *m, ir_fnid f, ir_fnid g)
{
	struct str s[2] = {{0}};
	ir_fn_bytes(&s[0], m, ir_fn_of(m, f), NULL, NULL);
	ir_fn_bytes(&s[1], m, ir_fn_of(m, g), NULL, NULL);
	bool same = s[0].n == s[1].n && !memcmp(s[0].p, s[1].p, s[0].n);
	str_free(&s[0]);
	str_free(&s[1]);
	return same;
}

/* Is x of e's body what y is in the first loop's, in the turn that it goes back over? */
static bool same(struct edits *w, struct edit *e, struct edit *f, ir_val x, ir_val y, int depth)
{
	const struct ir_fn *bx = e->l.body, *by = f->l.body;
	struct turned tx = turned(w->m, bx, x), ty = turned(w->m, by, y);
	bool alike = tx.n == ty.n && !memcmp(tx.from, ty.from, sizeof *tx.from * (size_t)tx.n);
	x = tx.root;
	y = ty.root;
	const struct ir_op *o = ir_def(bx, x), *p = ir_def(by, y);
	if (!o) {
		for (int k = 0; k < e->l.n; k++) {
			const struct ir_loop_operand *in = &e->l.x[k];
			int r;
			if (in->param != x)
				continue;
			for (int j = 0; j < f->l.n; j++)         /* the same operand of both loops */
				if (f->l.x[j].param == y && f->l.x[j].v == in->v)
					return !alike ? false : in->role == ROLE_CONST ? f->l.x[j].role == ROLE_CONST
					                              : ir_role_is_in(in->role) && ir_role_is_in(f->l.x[j].role) &&
					                                (ir_role_is_reversed(in->role) != ir_role_is_reversed(f->l.x[j].role)) == e->flip;
			struct edit *made = ir_role_is_in(in->role) ? maker(w, in->v, &r) : NULL;
			if (made != f || (ir_role_is_reversed(in->role) != ir_role_is_reversed(f->l.x[f->l.made[r]].role)) != e->flip)
				return false;
			struct turned z = turned(w->m, by, by->result.p[r]);
			alike = z.root == y && z.n == tx.n;
			for (int i = 0; i < tx.n && alike; i++)
				alike = z.from[tx.from[i]] == ty.from[i];
			return alike;
		}
		return false;
	}
	if (!p || !alike || depth > 32 || o->kind != p->kind || o->nin != p->nin || o->nout != 1 || !(ir_info(o->kind)->flags & IR_PURE) || bx->val.p[x].type != by->val.p[y].type ||
	    !(is_view((enum ir_kind)o->kind) || ir_is_elem(o->kind) || o->kind == IR_constant || o->kind == IR_iota))
		return false;
	uint32_t n = ir_attr_words(bx, o);
	if (n != ir_attr_words(by, p) || memcmp(&bx->attr.p[o->attr], &by->attr.p[p->attr], n * sizeof(int64_t)))
		return false;
	for (uint32_t k = 0; k < o->nin; k++)
		if (!same(w, e, f, ir_in(bx, o, k), ir_in(by, p, k), depth + 1))
			return false;
	return true;
}

static bool same_attention(struct edits *w, struct edit *e, struct edit *f, const struct ir_op *o, const struct ir_op *p)
{
	if (o->nin != p->nin || e->l.body->val.p[o->out].type != f->l.body->val.p[p->out].type ||
	    !same_function(w->m, (ir_fnid)ir_attr(e->l.body, o, AT_fn), (ir_fnid)ir_attr(f->l.body, p, AT_fn)))
		return false;
	for (uint32_t k = 0; k < o->nin; k++)
		if (!same(w, e, f, ir_in(e->l.body, o, k), ir_in(f->l.body, p, k), 0))
			return false;
	return true;
}

/* v of e's body is `by` of f's, which f stacks. */
static void take(struct edits *w, struct edit *e, struct edit *f, ir_val v, ir_val by)
{
	int r = stacked(w, f, by);
	e->from[by] = r >= 0 ? (struct from){ RESULT, r } : (struct from){ ADDED, (int)f->out.n };
	if (r < 0)
		arr_push(&f->out, by);
	arr_reserve(&e->swap, 1);
	e->swap.p[e->swap.n].v = v;
	e->swap.p[e->swap.n++].by = by;
}

/* Loop e does attention o of its body, which loop f has done. */
static void keep(struct edits *w, struct edit *e, struct edit *f, const struct ir_op *o)
{
	for (size_t i = 0; i < f->l.body->op.n; i++) {
		const struct ir_op *p = &f->l.body->op.p[i];
		if (p->kind != IR_attention || !same_attention(w, e, f, o, p))
			continue;
		int here[ATTN_BETWEEN], there[ATTN_BETWEEN];
		const struct ir_op *parts = attn_parts_of(w->m, e->l.body, o, here), *made = attn_parts_of(w->m, f->l.body, p, there);
		if (!parts != !made)
			continue;
		if (!e->drop)
			e->drop = ARENA_NEW(w->a, bool, e->l.body->op.n);
		e->drop[o - e->l.body->op.p] = true;
		for (int k = 0; parts && k < ATTN_BETWEEN; k++)
			e->drop[here[k]] = true;
		if (parts) {
			e->drop[parts - e->l.body->op.p] = true;
			take(w, e, f, parts->out, made->out);
			take(w, e, f, parts->out + 1, made->out + 1);
		} else {
			take(w, e, f, o->out, p->out);
		}
		take(w, e, f, o->out + 1, p->out + 1);
		w->any = true;
		return;
	}
}

static void find_outputs(struct edits *w, void *none)
{
	(void)none;
	for (uint32_t i = 0; i < w->fn->op.n; i++) {
		if (w->fn->op.p[i].kind != IR_loop)
			continue;
		struct edit *e = edit_of(w, i);
		for (int k = 0; k < e->l.n && !e->l.cond && !e->first; k++) {
			int r;
			struct edit *f = ir_role_is_in(e->l.x[k].role) ? maker(w, e->l.x[k].v, &r) : NULL;
			if (f && f->l.trip == e->l.trip)
				follows(w, e, f, r, k);
		}
		for (size_t k = 0; k < e->l.body->op.n && e->first; k++)
			if (e->l.body->op.p[k].kind == IR_attention)
				keep(w, e, e->first, &e->l.body->op.p[k]);
	}
}

void pass_keep_outputs(struct ir_module *m)
{
	struct recomputed done = {0};
	if (pass_has(m, IR_attention))
		everywhere(m, find_outputs, NULL, &done);
	arr_free(&done);
}

/* --- where memory is short ------------------------------------------------------------------------ */

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
	int r = stacked(w, f, x);
	if (to->how != NONE)
		return;
	if (r >= 0 && !f->dropped[r]) {
		*to = (struct from){ RESULT, r };
	} else if (o && o->nout == 1 && ir_info(o->kind)->flags & IR_PURE && !(ir_info(o->kind)->flags & IR_COLL) && o->kind != IR_optimization_barrier) {
		*to = (struct from){ CLONE, 0 };
		b->ns += lower_op_time(t, w->m, body, o) * (double)f->l.trip;
		for (uint32_t k = 0; k < o->nin; k++)
			remake(w, t, e, ir_in(body, o, k), b);
	} else if (o || !plan_param(e, x, to)) {
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
		struct edit *e = edit_of(w, i);
		struct pair p = { .e = e, .of = ARENA_NEW(w->a, struct cand_stack, e->l.n + 1) };
		for (int k = 0; k < e->l.n && !e->l.cond; k++) {
			int r;
			struct edit *f = ir_role_is_in(e->l.x[k].role) && w->fn->val.p[e->l.x[k].v].nuse == 1 ? maker(w, e->l.x[k].v, &r) : NULL;
			if (f && f->l.trip == e->l.trip && !has[f->o - w->fn->op.p] && follows(w, e, f, r, k))
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
			arr_reserve(&e->swap, 1);
			e->swap.p[e->swap.n].v = e->l.x[c->operand].param;
			e->swap.p[e->swap.n++].by = y;
			w->any = true;
		}
	}
}

struct err *pass_remake(const struct pass_opts *o, struct ir_module *m)
{
	struct recomputed done = {0};
	if (o->save > 0)
		everywhere(m, find_short, &(struct wanted){ o->plan.table, o->save }, &done);
	arr_free(&done);
	return NULL;
}
