/* Where the values of a function may lie: over an operand that dies, where a result is wanted, or in storage of
 * their own; and the copies when they lie elsewhere. */
#include "lw.h"

#include <limits.h>

bool lw_is_alias(const struct lw *w, const struct ir_fn *fn, const struct ir_op *o)
{
	if (o->kind == IR_bitcast || o->kind == IR_bitcast_convert)      /* less than a byte is kept in one */
		return dtype_info[ir_vtype(w->m, fn, ir_in(fn, o, 0))->dtype].bits >= 8 && dtype_info[ir_vtype(w->m, fn, o->out)->dtype].bits >= 8;
	return (ir_info(o->kind)->flags & IR_VIEW) || o->kind == IR_optimization_barrier || o->kind == IR_sharding_constraint;
}

void lw_roots(const struct lw *w, const struct ir_fn *fn, ir_val *root, int *last)
{
	for (size_t v = 0; v < fn->val.n; v++) {
		root[v] = (ir_val)v;
		last[v] = -1;
	}
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		for (uint32_t k = 0; k < o->nin; k++) {
			ir_val r = root[ir_in(fn, o, k)];
			last[r] = (int)i;
			if (lw_is_alias(w, fn, o) && k < o->nout)
				root[o->out + k] = r;
		}
	}
	for (size_t i = 0; i < fn->result.n; i++)
		last[root[fn->result.p[i]]] = INT_MAX;
}

void lw_frame_init(struct lw *w, struct frame *f, const struct ir_fn *fn)
{
	size_t n = fn->val.n;
	f->id = ++w->nframe;
	f->fn = fn;
	f->at = ARENA_NEW(w->tmp, struct place *, n);
	f->target = ARENA_NEW(w->tmp, struct place *, n);
	f->root = ARENA_NEW(w->tmp, ir_val, n);
	f->last = ARENA_NEW(w->tmp, int, n);
	f->steal = ARENA_NEW(w->tmp, bool, n);
	f->loan = f->ring = NULL;
	f->lent = NULL;
	f->pieces = NULL;
	lw_roots(w, fn, f->root, f->last);
}

struct place *lw_dense(struct lw *w, struct frame *f, ir_val v)
{
	struct place *p = f->at[v];
	if (lw_place_dense(p))
		return p;
	f->root[v] = v;              /* it no longer shows the other's bytes; its storage is its own */
	return f->at[v] = lw_copy(w, p);
}

int lw_uses(const struct frame *f, const struct ir_op *o, ir_val r)
{
	int n = 0;
	for (uint32_t k = 0; k < o->nin; k++)
		n += f->root[ir_in(f->fn, o, k)] == r;
	return n;
}

struct place *lw_steal(struct lw *w, struct frame *f, int i, ir_val v)
{
	const struct ir_op *o = &f->fn->op.p[i];
	ir_val r = f->root[v];
	struct place *p = f->at[v];
	const struct ir_op *def = ir_def(f->fn, r);
	if (f->last[r] != i || lw_uses(f, o, r) != 1 || !(lw_place_dense(p) || o->kind == IR_attention_grad_add) || !f->at[r])
		return NULL;
	if (!def && !f->steal[r])
		return NULL;
	struct store *s = &w->store.p[p->store];
	if (p->store != f->at[r]->store)
		return p;                    /* a copy of its own */
	if (!s->fixed)
		return p;
	if (s->donated_to < 0 || def)
		return NULL;
	struct place *q = lw_place_like(w, p);      /* the argument's memory under the output's name */
	q->store = s->donated_to;
	return q;
}

bool lw_free_at(struct lw *w, struct frame *f, int i, const struct place *t)
{
	int s = t->store, arg = -1;
	uint32_t b = w->store.p[s].buf;
	if (w->buf.p[b].alias >= 0)
		arg = w->buf.p[b].alias;
	const struct store *st = &w->store.p[s];
	if (st->holder == f->id && st->held && f->last[f->root[st->held]] >= i)
		return false;
	for (ir_val v = 1; v <= f->fn->nparam; v++)
		if (f->at[v] && (f->at[v]->store == s || (arg >= 0 && w->store.p[f->at[v]->store].buf == (uint32_t)arg)))
			if (f->last[f->root[v]] >= i)
				return false;
	return true;
}

bool lw_same_index(const struct lw *w, const struct ir_fn *g, uint32_t k)
{
	const struct ir_type_info *pt = ir_vtype(w->m, g, k + 1);
	for (size_t i = 0; i < g->result.n; i++) {
		const struct ir_type_info *rt = ir_vtype(w->m, g, g->result.p[i]);
		if (pt->rank != rt->rank || memcmp(pt->dim, rt->dim, sizeof *rt->dim * rt->rank) || (g->result.n > 1 && !ir_def(g, g->result.p[i])))
			return false;
	}
	bool *of = ARENA_NEW(w->tmp, bool, g->val.n);        /* has the operand's elements, each at its index */
	of[k + 1] = true;
	for (size_t i = 0; i < g->op.n; i++) {
		const struct ir_op *o = &g->op.p[i];
		bool elem = ir_is_elem(o->kind), view = ir_info(o->kind)->flags & IR_VIEW;
		if (!elem && !view && o->kind != IR_constant && o->kind != IR_iota)
			return false;
		for (uint32_t j = 0; j < o->nin; j++)
			of[o->out] |= of[ir_in(g, o, j)];
		if (of[o->out] && !elem)
			return false;
	}
	return true;
}

/* Do both show the same elements of what they begin at, in one order? */
static bool same_shape(const struct place *a, const struct place *b)
{
	bool same = a->rank == b->rank;
	for (int d = 0; d < a->rank && same; d++)
		same = a->dim[d] == b->dim[d] && (a->dim[d] == 1 || a->stride[d] == b->stride[d]);
	return same || (lw_place_dense(a) && lw_place_dense(b));
}

bool lw_same_place(const struct lw *w, const struct place *a, const struct place *b)
{
	return (a->store == b->store || w->store.p[a->store].donated_to == b->store) && a->off == b->off && same_shape(a, b) &&
	       a->reg[0] == b->reg[0] && a->reg[1] == b->reg[1] && a->mul[0] == b->mul[0] && a->mul[1] == b->mul[1];
}

bool lw_in_place(const struct lw *w, const struct ir_fn *fn, const struct ir_op *o)
{
	if (o->kind == IR_all_reduce)
		return true;
	if (o->kind != IR_collective_permute)
		return false;
	int n, all[COLL_CYCLE], ndev = w->p->ndev;
	const int64_t *p = ir_attrs(fn, o, AT_pairs, &n);
	int64_t *from = ARENA_NEW(w->tmp, int64_t, 2 * ndev), *to = from + ndev;
	bool open;
	for (int d = 0; d < 2 * ndev; d++)
		from[d] = -1;
	for (int k = 0; k + 1 < n; k += 2) {
		if (p[k] < 0 || p[k] >= ndev || p[k + 1] < 0 || p[k + 1] >= ndev)
			return false;
		to[p[k]] = p[k + 1];
		from[p[k + 1]] = p[k];
	}
	for (int d = 0; d < ndev; d++)
		if (!prog_cycle(from, to, d, all, &open))
			return false;
	return true;
}

static bool same_size(const struct ir_type_info *x, const struct ir_type_info *t)
{
	return t->bytes && x->bytes == t->bytes && dtype_info[x->dtype].bytes == dtype_info[t->dtype].bytes;
}

/* May o leave its results over operands? */
static bool goes_over(const struct lw *w, const struct ir_fn *fn, const struct ir_op *o)
{
	if (o->kind == IR_sort)
		return prog_sort_over((int)o->nin, (enum dtype)ir_vtype(w->m, fn, ir_in(fn, o, 0))->dtype);
	return o->kind == IR_fused || (o->nout == 1 && ir_is_elem(o->kind));
}

/* Is place q, an operand's, where another result of o than v lies, or is wanted? */
static bool is_anothers(const struct frame *f, const struct ir_op *o, ir_val v, const struct place *q)
{
	for (ir_val u = o->out; u < o->out + o->nout; u++)
		if ((u < v && f->at[u] && f->at[u]->store == q->store) || (u != v && f->target[u] && f->target[u]->store == q->store && !(f->target[v] && f->target[v]->store == q->store)))
			return true;
	return false;
}

/* Over operand k, if that is such an op? */
static bool reads_where_it_writes(const struct lw *w, const struct ir_fn *fn, const struct ir_op *o, uint32_t k)
{
	return o->kind != IR_fused || lw_same_index(w, ir_fn_of(w->m, (ir_fnid)ir_attr(fn, o, AT_fn)), k);
}

/* Notes of an operand of op i that dies there whether it may lie where result v, at p, of all of that alone, is made. */
static void lies_under(struct lw *w, const struct frame *f, int i, ir_val v, const struct place *p)
{
	const struct ir_op *o = &f->fn->op.p[i];
	for (uint32_t k = 0; k < o->nin; k++) {
		ir_val x = ir_in(f->fn, o, k), r = f->root[x];
		const struct place *q = f->at[x];
		struct store *s = &w->store.p[q->store];
		if (w->buf.p[s->buf].kind == BUF_TEMP && !s->under && f->last[r] == i && lw_uses(f, o, r) == 1 && lw_place_dense(q) && !q->off && lw_place_dense(p) && !p->off &&
		    same_size(ir_vtype(w->m, f->fn, x), ir_vtype(w->m, f->fn, v)) && w->buf.p[s->buf].size == w->buf.p[w->store.p[p->store].buf].size &&
		    reads_where_it_writes(w, f->fn, o, k)) {
			s->under = p->store;
			return;
		}
	}
}

struct place *lw_result_at(struct lw *w, struct frame *f, int i, ir_val v)
{
	const struct ir_op *o = &f->fn->op.p[i];
	const struct ir_type_info *t = ir_vtype(w->m, f->fn, v);
	struct place *p = NULL, *q;
	bool alone = goes_over(w, f->fn, o), comm = lw_in_place(w, f->fn, o);   /* whose operands are apart from each other */
	const int over = o->kind == IR_fused ? gen_loop_over(w->tmp, w->m, ir_fn_of(w->m, (ir_fnid)ir_attr(f->fn, o, AT_fn)), v - o->out) : -1;
	if (alone || comm || over >= 0)
		for (uint32_t k = 0; k < o->nin && !(p && f->target[v] && p->store == f->target[v]->store); k++) {      /* best what lies where it is wanted */
			ir_val x = ir_in(f->fn, o, k);
			if ((comm && o->out + k != v) || (over >= 0 && (int)k != over))
				continue;
			if (!same_size(ir_vtype(w->m, f->fn, x), t))
				continue;
			if (over < 0 && !reads_where_it_writes(w, f->fn, o, k))
				continue;
			if ((q = lw_steal(w, f, i, x)) && f->target[v] && q->store != f->target[v]->store && (p || lw_free_at(w, f, i, f->target[v])))
				q = NULL;
			if (q && o->nout > 1 && alone && is_anothers(f, o, v, q))
				q = NULL;
			/* A permute whose result is wanted elsewhere had better be read where it comes from. */
			if (q && o->kind == IR_collective_permute && (!f->target[v] || !lw_same_place(w, q, f->target[v])))
				q = NULL;
			if (q && (!p || f->target[v])) {
				p = lw_place_like(w, q);
				p->dtype = t->dtype;
				p->rank = t->rank;
				p->dim = t->dim;
				struct place *d = lw_place_new(w, p->store, t->dtype, t->rank, t->dim);
				p->stride = d->stride;
			}
		}
	if (!p && f->target[v] && lw_free_at(w, f, i, f->target[v])) {
		p = f->target[v];
		if (alone)
			lies_under(w, f, i, v, p);
	}
	return p ? p : lw_temp(w, t->dtype, t->rank, t->dim);
}

static bool attends(const struct ir_op *o) { return o->kind == IR_attention || o->kind == IR_attention_grad || o->kind == IR_attention_grad_add; }

/* May op o of fn leave its result v at any strides?  A loop's, if each turn adds to it in place. */
static bool makes_strides(const struct lw *w, const struct ir_fn *fn, const struct ir_op *o, ir_val v)
{
	if (o->kind != IR_loop)
		return attends(o);
	const struct ir_loop l = ir_loop_view(w->tmp, w->m, fn, o);
	const struct ir_loop_operand *x = &l.x[l.made[v - o->out]];
	ir_val y = l.body->result.p[x->result];
	const struct ir_op *by = ir_def(l.body, y);
	return x->role == ROLE_CARRY && !x->asked && by && by->kind == IR_attention_grad_add && ir_in(l.body, by, by->nin - 3 + (y - by->out)) == x->param && l.body->val.p[x->param].nuse == 1;
}

/* Where the operand of the view that makes v lies, if that lies at t; NULL: strides cannot say it. */
static struct place *behind(struct lw *w, const struct ir_fn *fn, ir_val v, struct place *t)
{
	const struct ir_op *o = ir_def(fn, v);
	const struct ir_type_info *have = ir_vtype(w->m, fn, ir_in(fn, o, v - o->out));
	if (o->kind == IR_reshape)
		return lw_place_reshape(w, t, have->dtype, have->rank, have->dim);
	if (o->kind != IR_transpose)
		return o->kind == IR_optimization_barrier || o->kind == IR_sharding_constraint ? t : NULL;
	int n;
	const int64_t *perm = ir_attrs(fn, o, AT_perm, &n);
	struct place *q = lw_place_like(w, t);
	q->dim = have->dim;
	for (int d = 0; d < n; d++)
		q->stride[perm[d]] = t->stride[d];
	return q;
}

void lw_target(struct lw *w, struct frame *f, ir_val v, struct place *t)
{
	const struct ir_fn *fn = f->fn;
	ir_val r = f->root[v];
	const struct ir_op *def = ir_def(fn, r), *o;
	bool any = v == r || (def && makes_strides(w, fn, def, r));
	for (; t && v != r; v = ir_in(fn, o, v - o->out)) {
		o = ir_def(fn, v);
		if (o->kind == IR_reshape)
			f->target[v] = f->target[v] ? f->target[v] : t;
		t = behind(w, fn, v, t);
	}
	if (t && def && !f->target[r] && (any || lw_place_dense(t)))
		f->target[r] = t;
}

void lw_lay_as_read(struct lw *w, struct frame *f, const struct ir_op *o, ir_val v)
{
	const struct ir_fn *fn = f->fn;
	ir_val z = v;
	if (f->target[v] || !attends(o))
		return;
	for (const struct ir_op *by; fn->val.p[z].nuse == 1 && ir_use_first(fn, z) && ((by = &fn->op.p[ir_use_op(fn, ir_use_first(fn, z))])->kind == IR_transpose || by->kind == IR_reshape);)
		z = by->out;
	const struct ir_type_info *t = ir_vtype(w->m, fn, z);
	struct place *p = z == v || f->last[v] == INT_MAX ? NULL : lw_place_new(w, 0, t->dtype, t->rank, t->dim);
	for (ir_val y = z; p && y != v; y = ir_in(fn, ir_def(fn, y), 0))
		p = behind(w, fn, y, p);
	if (p && !lw_place_dense(p) && p->stride[p->rank - 1] == 1)
		lw_target(w, f, z, lw_temp(w, t->dtype, t->rank, t->dim));
}

bool lw_reshape_into(struct lw *w, struct frame *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	ir_val x = ir_in(f->fn, o, 0);
	const struct ir_type_info *have = ir_vtype(w->m, f->fn, x);
	struct place *t = f->target[o->out], *to = t && o->kind == IR_reshape ? lw_place_reshape(w, t, have->dtype, have->rank, have->dim) : NULL;
	if (!to || !lw_free_at(w, f, i, t))
		return false;
	lw_emit_copy(w, f->at[x], to);
	f->at[o->out] = t;
	f->last[o->out] = f->last[f->root[o->out]];
	f->root[o->out] = o->out;
	return true;
}

/* The operand of o that its result r is written over; -1: none. */
static int updates(struct lw *w, const struct ir_fn *fn, const struct ir_op *o, uint32_t r)
{
	if (o->kind == IR_dynamic_update_slice || (o->kind == IR_scatter && o->nout == 1))
		return 0;
	if (o->kind == IR_ragged_all_to_all)
		return 1;
	if (o->kind == IR_all_reduce)
		return (int)r;
	if (o->kind == IR_fused)
		return gen_loop_over(w->tmp, w->m, ir_fn_of(w->m, (ir_fnid)ir_attr(fn, o, AT_fn)), r);
	if (o->kind != IR_loop)
		return -1;
	const struct ir_loop l = ir_loop_view(w->tmp, w->m, fn, o);
	return l.made[r];
}

void lw_targets_back(struct lw *w, struct frame *f)
{
	const struct ir_fn *fn = f->fn;
	for (size_t i = fn->op.n; i-- > 0;) {
		const struct ir_op *o = &fn->op.p[i];
		for (uint32_t r = 0; r < o->nout; r++) {
			int k = f->target[o->out + r] ? updates(w, fn, o, r) : -1;
			ir_val x = k < 0 ? 0 : ir_in(fn, o, (uint32_t)k);
			const struct ir_op *def = x ? ir_def(fn, x) : NULL;
			if (def && !f->target[x] && f->root[x] == x && f->last[x] == (int)i && (lw_place_dense(f->target[o->out + r]) || makes_strides(w, fn, def, x)))
				f->target[x] = f->target[o->out + r];
		}
	}
}

void lw_move_all(struct lw *w, struct move *mv, int n)
{
	for (int i = 0; i < n; i++)
		for (int j = 0; j <= i; j++)
			if (!lw_same_place(w, mv[i].src, mv[i].dst) && !lw_same_place(w, mv[j].src, mv[j].dst) &&
			    lw_shares(w, mv[j].dst->store, mv[i].src->store)) {
				mv[i].src = lw_copy(w, mv[i].src);
				break;
			}
	for (int i = 0; i < n; i++)
		if (!lw_same_place(w, mv[i].src, mv[i].dst))
			lw_emit_copy(w, mv[i].src, mv[i].dst);
}
