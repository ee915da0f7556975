/* Which values of a loop, and of the loop that goes back over it, are the same. */
#include "recompute.h"

static struct edit *branch_of(struct edits *w, const struct ir_op *o, ir_fnid body)
{
	struct edit *e = ARENA_NEW(w->a, struct edit, 1);
	e->o = o;
	e->l = (struct ir_loop){ .trip = 1, .body = ir_fn_of(w->m, body), .n = (int)o->nin - 1, .nmade = (int)o->nout };
	e->l.x = ARENA_NEW(w->a, struct ir_loop_operand, o->nin);
	for (int k = 0; k < e->l.n; k++)
		e->l.x[k] = (struct ir_loop_operand){ .v = ir_in(w->fn, o, (uint32_t)k + 1), .role = ROLE_CONST, .param = (ir_val)k + 1, .result = -1 };
	return e;
}

struct edit *recompute_edit(struct edits *w, uint32_t op)
{
	const struct ir_op *o = &w->fn->op.p[op];
	if (w->of[op])
		return w->of[op];
	struct edit *e = w->of[op] = ARENA_NEW(w->a, struct edit, 1);
	e->o = o;
	e->gone = ARENA_NEW(w->a, bool, o->nin + 1);
	if (o->kind == IR_case) {
		const int64_t *f = ir_attrs(w->fn, o, AT_branch, &e->nbranch);
		e->branch = ARENA_NEW(w->a, struct edit *, e->nbranch);
		for (int b = 0; b < e->nbranch; b++)
			e->branch[b] = branch_of(w, o, (ir_fnid)f[b]);
	} else {
		e->l = ir_loop_view(w->a, w->m, w->fn, o);
	}
	return e;
}

struct edit *recompute_maker(struct edits *w, const struct edit *e, int k, int *result)
{
	ir_val v = e->l.x[k].v;
	const struct ir_op *o = ir_role_is_in(e->l.x[k].role) ? ir_def(w->fn, v) : NULL;
	if (!o || o->kind != IR_loop)
		return NULL;
	struct edit *f = recompute_edit(w, (uint32_t)(o - w->fn->op.p));
	*result = (int)(v - o->out);
	return !f->l.cond && f->l.trip == e->l.trip && *result >= f->l.ncarry ? f : NULL;
}

ir_val recompute_unbarred(const struct ir_fn *fn, ir_val v)
{
	for (const struct ir_op *o; (o = ir_def(fn, v)) && o->kind == IR_optimization_barrier;)
		v = ir_in(fn, o, v - o->out);
	return v;
}

bool recompute_crosses(struct edits *w, const struct edit *e, const struct ir_loop_operand *in, int *result)
{
	const struct edit *f = e->first;
	ir_val v = recompute_unbarred(w->fn, in->v);
	const struct ir_op *o = ir_def(w->fn, v);
	if (!f || o != f->o)
		return false;
	*result = (int)(v - o->out);
	return o->kind == IR_case || (ir_role_is_in(in->role) && *result >= f->l.ncarry &&
	                              (ir_role_is_reversed(in->role) != ir_role_is_reversed(f->l.x[f->l.made[*result]].role)) == e->flip);
}

bool recompute_follows(struct edits *w, struct edit *e, struct edit *f, int result, int operand)
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

/* --- views -------------------------------------------------------------------------- */

/* The place of dimension d among those that are not of extent 1. */
static int place(const struct ir_type_info *t, int64_t d)
{
	int n = 0;
	for (int64_t i = 0; i < d; i++)
		n += t->dim[i] != 1;
	return n;
}

/* Where dimensions of o's result are in its operand: to, by places; -1: spread over one.  False: it is no such view. */
static bool view(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, int *to)
{
	const struct ir_type_info *t = ir_vtype(m, fn, o->out), *s = o->nin == 1 ? ir_vtype(m, fn, ir_in(fn, o, 0)) : NULL;
	const int64_t *dims;
	int n;
	for (int d = 0; d < t->rank; d++)
		to[d] = -1;
	switch (o->kind) {
	case IR_transpose:
		dims = ir_attrs(fn, o, AT_perm, &n);
		for (int d = 0; d < n; d++)
			if (t->dim[d] != 1)
				to[place(t, d)] = place(s, dims[d]);
		return true;
	case IR_broadcast:
		dims = ir_attrs(fn, o, AT_dims, &n);
		for (int d = 0; d < n; d++)
			if (s->dim[d] != 1)
				to[place(t, dims[d])] = place(s, d);
		return true;
	case IR_reshape:                 /* the same dimensions, some of extent 1 more or less */
		for (int d = 0, e = 0; d < t->rank; d++) {
			if (t->dim[d] == 1)
				continue;
			while (e < s->rank && s->dim[e] == 1)
				e++;
			if (e == s->rank || s->dim[e] != t->dim[d])
				return false;
			to[place(t, d)] = place(s, e++);
		}
		return s->count == t->count;
	default:
		return false;
	}
}

/* x through o, which makes its root, if that is a view; spread: one that repeats elements is one, too. */
static bool through(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, struct turned *x, bool spread)
{
	const struct ir_type_info *t = ir_vtype(m, fn, o->out);
	int to[IR_MAX_RANK];
	if (!view(m, fn, o, to))
		return false;
	for (int i = place(t, t->rank); i-- > 0 && !spread;)
		if (to[i] < 0)
			return false;
	for (int i = 0; i < x->n; i++)
		x->from[i] = x->from[i] < 0 ? -1 : to[x->from[i]];
	x->root = ir_in(fn, o, 0);
	return true;
}

static struct turned whole(const struct ir_module *m, const struct ir_fn *fn, ir_val v)
{
	struct turned x = { .root = v, .n = place(ir_vtype(m, fn, v), ir_vtype(m, fn, v)->rank) };
	for (int i = 0; i < x.n; i++)
		x.from[i] = i;
	return x;
}

struct turned recompute_turned(const struct ir_module *m, const struct ir_fn *fn, ir_val v)
{
	struct turned x = whole(m, fn, v);
	for (const struct ir_op *o; (o = ir_def(fn, x.root)) && through(m, fn, o, &x, false); )
		;
	return x;
}

/* --- the same --------------------------------------------------------------------------- */

/* A value of the body of a loop, or, of none, of the function. */
struct at { const struct edit *e; ir_val v; };
struct seen { const struct edit *e; struct turned x; };

static const struct ir_fn *fn_of(const struct edits *w, const struct edit *e) { return e ? e->l.body : w->fn; }

static const struct ir_loop_operand *param_of(const struct edit *e, ir_val v)
{
	for (int k = 0; e && k < e->l.n; k++)
		if (e->l.x[k].param == v)
			return &e->l.x[k];
	return NULL;
}

/* A value seen through views and barriers, before a loop that takes it in whole, and in the loop that stacks it, which e goes back over. */
static struct seen see(struct edits *w, const struct edit *e, struct at at)
{
	struct seen s = { at.e, whole(w->m, fn_of(w, at.e), at.v) };
	for (;;) {
		const struct ir_fn *fn = fn_of(w, s.e);
		const struct ir_op *o = ir_def(fn, s.x.root);
		const struct ir_loop_operand *in = o ? NULL : param_of(s.e, s.x.root);
		int r;
		if (o && o->kind == IR_optimization_barrier) {
			s.x.root = ir_in(fn, o, s.x.root - o->out);
		} else if (o && through(w->m, fn, o, &s.x, true)) {
			continue;
		} else if (in && s.e == e && recompute_crosses(w, e, in, &r)) {
			s.x.root = e->first->l.body->result.p[r];
			s.e = e->first;
		} else if (in && in->role == ROLE_CONST) {
			s.x.root = in->v;
			s.e = NULL;
		} else {
			return s;
		}
	}
}

static bool as_large(const struct ir_module *m, const struct ir_type_info *s, const struct ir_type_info *t)
{
	int i = 0, k = 0;
	for (;; i++, k++) {
		while (i < s->rank && s->dim[i] == 1)
			i++;
		while (k < t->rank && t->dim[k] == 1)
			k++;
		if (i == s->rank || k == t->rank)
			return i == s->rank && k == t->rank && s->dtype == t->dtype;
		if (s->dim[i] != t->dim[k])
			return false;
	}
}

/* The same slice of the same value, in both loops. */
static bool same_slice(const struct edit *e, const struct seen *s, const struct seen *t)
{
	const struct ir_loop_operand *a = param_of(s->e, s->x.root), *b = param_of(t->e, t->x.root);
	bool turned = (s->e == e) != (t->e == e) && e->flip;
	return a && b && ir_role_is_in(a->role) && ir_role_is_in(b->role) && a->v == b->v && (ir_role_is_reversed(a->role) != ir_role_is_reversed(b->role)) == turned;
}

/* The number of the first loop's turn, in both. */
static bool same_turn(const struct edits *w, const struct edit *e, const struct seen *s, const struct seen *t)
{
	ir_val v = s->x.root;
	if (!e || e->o->kind != IR_loop || s->e != e || t->e != e->first || t->x.root != IR_LOOP_TURN)
		return false;
	const struct ir_op *o = e->flip ? ir_def(e->l.body, v) : NULL;
	if (o && o->kind == IR_subtract) {
		const void *last = ir_splat(w->m, e->l.body, ir_in(e->l.body, o, 0));
		v = last && dtype_real((enum dtype)ir_vtype(w->m, e->l.body, v)->dtype, last) == (double)(e->l.trip - 1) ? ir_in(e->l.body, o, 1) : 0;
	}
	return v == IR_LOOP_TURN && (o || !e->flip);
}

static bool same(struct edits *w, const struct edit *e, struct at x, struct at y, int depth);

static bool same_op(struct edits *w, const struct edit *e, const struct seen *s, const struct seen *t, int depth)
{
	const struct ir_fn *fx = fn_of(w, s->e), *fy = fn_of(w, t->e);
	const struct ir_op *o = ir_def(fx, s->x.root), *p = ir_def(fy, t->x.root);
	if (!o || !p || depth > 400 || o->kind != p->kind || o->nin != p->nin || o->nout != 1 || p->nout != 1 || !(ir_info(o->kind)->flags & IR_PURE))
		return false;
	const struct ir_type_info *a = ir_vtype(w->m, fx, o->out), *b = ir_vtype(w->m, fy, p->out);
	const void *k = ir_splat(w->m, fx, o->out), *j = ir_splat(w->m, fy, p->out);
	if (!as_large(w->m, a, b))
		return false;
	if (k && j)
		return !memcmp(k, j, (size_t)dtype_info[a->dtype].bytes);
	if (o->kind == IR_iota)
		return place(a, ir_attr(fx, o, AT_dim)) == place(b, ir_attr(fy, p, AT_dim)) && a->dim[ir_attr(fx, o, AT_dim)] == b->dim[ir_attr(fy, p, AT_dim)];
	if (!ir_is_elem(o->kind) && o->kind != IR_reshape) {     /* a reshape to the same dimensions groups the same elements */
		uint32_t n = ir_attr_words(fx, o);
		bool alike = a == b && n == ir_attr_words(fy, p) && !memcmp(&fx->attr.p[o->attr], &fy->attr.p[p->attr], n * sizeof *fx->attr.p);
		for (uint32_t i = 0; i < o->nin; i++)
			alike = alike && fx->val.p[ir_in(fx, o, i)].type == fy->val.p[ir_in(fy, p, i)].type;
		if (!alike)
			return false;
	}
	for (uint32_t i = 0; i < o->nin; i++)
		if (!same(w, e, (struct at){ s->e, ir_in(fx, o, i) }, (struct at){ t->e, ir_in(fy, p, i) }, depth + 1))
			return false;
	return true;
}

static bool same(struct edits *w, const struct edit *e, struct at x, struct at y, int depth)
{
	enum { YES = 1, NO };
	struct { const struct edit *e[3]; uint64_t v, by; } key = { { e, x.e, y.e }, x.v, y.v };
	if (!as_large(w->m, ir_vtype(w->m, fn_of(w, x.e), x.v), ir_vtype(w->m, fn_of(w, y.e), y.v)))
		return false;
	uint64_t *known = map_get(&w->same, &key, sizeof key);
	if (known)
		return *known == YES;
	struct seen s = see(w, e, x), t = see(w, e, y);
	bool alike = !memcmp(s.x.from, t.x.from, sizeof *s.x.from * (size_t)s.x.n);
	alike = alike && ((s.e == t.e && s.x.root == t.x.root) || same_slice(e, &s, &t) || same_turn(w, e, &s, &t) || same_op(w, e, &s, &t, depth));
	*map_put(&w->same, &key, sizeof key) = alike ? YES : NO;
	return alike;
}

bool recompute_same(struct edits *w, struct edit *e, ir_val x, ir_val y)
{
	return same(w, e, (struct at){ e, x }, (struct at){ e->first, y }, 0);
}

bool recompute_alike(struct edits *w, ir_val v, ir_val u)
{
	return same(w, NULL, (struct at){ NULL, v }, (struct at){ NULL, u }, 0);
}
