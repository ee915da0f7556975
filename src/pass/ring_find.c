/* Attention that can be done in turns: which it is, and what both ways of turns emit. */
#include "ring.h"

#include <math.h>

enum { Q, K, V, L, D_O, DELTA, EXTRA };                  /* operands of attention_grad; of attention Q, K, V alone */

static bool grad(const struct ring *r) { return r->att->kind != IR_attention; }
uint32_t ring_first_extra(const struct ring *r) { return grad(r) ? EXTRA : L; }
static bool adds(const struct ring *r) { return r->att->kind == IR_attention_grad_add; }

static int rank_of(const struct ir_module *m, const struct ir_fn *fn, ir_val v) { return ir_vtype(m, fn, v)->rank; }

/* The dimension of operand k that is the side; -1: none. */
static int side_dim(const struct ir_module *m, const struct ir_fn *fn, const struct ring *r, uint32_t k)
{
	int rank = rank_of(m, fn, ir_in(fn, r->att, Q));
	if (adds(r) && k + 3 >= r->att->nin)                 /* sums of dq, dk and dv */
		return (k + 3 == r->att->nin) == (r->side == RING_QUERIES) ? rank_of(m, fn, ir_in(fn, r->att, k)) - 2 : -1;
	if (r->side == RING_QUERIES)
		return k == K || k == V ? -1 : rank - 2;
	return k == K || k == V ? rank_of(m, fn, ir_in(fn, r->att, k)) - 2 : k >= ring_first_extra(r) ? rank - 1 : -1;
}

int ring_own_dim(const struct ir_module *m, const struct ir_fn *fn, const struct ring *r, uint32_t k)
{
	int rank = rank_of(m, fn, ir_in(fn, r->att, Q));
	if (r->side == RING_KEYS)
		return k == K || k == V ? -1 : rank - 2;
	return k == K || k == V ? rank_of(m, fn, ir_in(fn, r->att, k)) - 2 : k >= ring_first_extra(r) ? rank - 1 : -1;
}

int ring_own_result_dim(const struct ir_module *m, const struct ir_fn *fn, const struct ring *r, int k)
{
	if (r->side == RING_KEYS)
		return !grad(r) || k == Q ? rank_of(m, fn, ir_in(fn, r->att, Q)) - 2 : -1;
	return k == K || k == V ? rank_of(m, fn, ir_in(fn, r->att, (uint32_t)k)) - 2 : -1;
}

int ring_result_dim(const struct ir_module *m, const struct ir_fn *fn, const struct ring *r, int k)
{
	return !grad(r) || (k == Q) != (r->side == RING_QUERIES) ? -1 : rank_of(m, fn, r->att->out + (ir_val)k) - 2;
}

/* Dimension d of the operand of o, a view that leaves it whole, as one of its result; -1: it is none by itself. */
static int shown_dim(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, int d)
{
	return o->kind != IR_slice ? ir_view_dim(m, fn, o, d) : ir_vtype(m, fn, o->out)->dim[d] == ir_vtype(m, fn, ir_in(fn, o, 0))->dim[d] ? d : -1;
}

/* The all_gather along dimension d that v shows, or a part of: of keys and values in one array, for one; false: there is none. */
static bool gathered(const struct ir_module *m, const struct ir_fn *fn, ir_val v, int d, struct ring_chain *c)
{
	const struct ir_op *view[RING_VIEWS], *o;
	int n = 0;
	while ((o = ir_def(fn, v)) && o->kind != IR_all_gather && n < RING_VIEWS && (o->kind == IR_reshape || o->kind == IR_transpose || o->kind == IR_slice)) {
		view[n++] = o;
		v = ir_in(fn, o, 0);
	}
	if (!o || o->kind != IR_all_gather || o->nin != 1)
		return false;
	int at = (int)ir_attr(fn, o, AT_dim);
	c->end = o;
	c->n = n;
	for (int k = 0; k < n && at >= 0; k++) {
		c->view[k] = view[n - 1 - k];
		at = shown_dim(m, fn, c->view[k], at);
	}
	return at == d;
}

/* The reduce_scatter along dimension d that alone reads v. */
static bool scattered(const struct ir_module *m, const struct ir_fn *fn, ir_val v, int d, struct ring_chain *c)
{
	for (c->n = 0; d >= 0 && c->n <= RING_VIEWS && fn->val.p[v].nuse == 1 && ir_use_first(fn, v);) {
		const struct ir_op *o = &fn->op.p[ir_use_op(fn, ir_use_first(fn, v))];
		if (o->kind == IR_reduce_scatter) {
			c->end = o;
			return o->nin == 1 && (enum redop)ir_attr(fn, o, AT_redop) == RED_add && (int)ir_attr(fn, o, AT_dim) == d;
		}
		if ((o->kind != IR_reshape && o->kind != IR_transpose) || c->n == RING_VIEWS)
			return false;
		d = ir_view_dim(m, fn, o, d);
		c->view[c->n++] = o;
		v = o->out;
	}
	return false;
}

/* Is every device of the program in a row of the group? */
static bool covers(const struct ir_module *m, ir_group g)
{
	const struct ir_group_info *i = &m->group.p[g];
	bool all = i->nrow * i->ncol == m->num_partitions && i->ncol > 1;
	for (int k = 0; all && k < m->num_partitions; k++)
		all = i->id[k] >= 0;
	return all;
}

void ring_take(struct ring *r, int op)
{
	int k = 0;
	while (k < r->nop && r->op[k] < op)
		k++;
	if (k < r->nop && r->op[k] == op)
		return;
	memmove(r->op + k + 1, r->op + k, sizeof *r->op * (size_t)(r->nop++ - k));
	r->op[k] = op;
}

bool ring_small_too(void) { return !strcmp(conf_str(CONF_ATTENTION), "on"); }

bool ring_any(const struct ir_module *m) { return pass_has(m, IR_all_gather) && (pass_has(m, IR_attention) || pass_has(m, IR_attention_grad)); }

bool ring_find(const struct ir_module *m, const struct ir_fn *fn, int i, struct ring *r)
{
	const struct ir_op *o = &fn->op.p[i];
	if ((o->kind != IR_attention && o->kind != IR_attention_grad && o->kind != IR_attention_grad_add) || o->nin > RING_IN)
		return false;
	bool tables = o->nout > 3;               /* sums by an index are of all turns, and blocks are no parts of a table: all is gathered */
	for (uint32_t k = 0; k < o->nin; k++)
		tables |= ir_attention_table(m, fn, o, k) > 0;
	if (tables)
		return false;
	*r = (struct ring){ .att = o, .side = RING_KEYS, .nres = o->kind == IR_attention ? 2 : 3 };
	r->nmust = ring_first_extra(r);
	if (!gathered(m, fn, ir_in(fn, o, K), side_dim(m, fn, r, K), &r->from[K])) {
		r->side = RING_QUERIES;
		if (!grad(r) || !gathered(m, fn, ir_in(fn, o, Q), side_dim(m, fn, r, Q), &r->from[Q]))
			return false;
	}
	uint32_t main = r->side == RING_KEYS ? K : Q;
	r->group = (ir_group)ir_attr(fn, r->from[main].end, AT_group);
	r->members = m->group.p[r->group].ncol;
	if (!covers(m, r->group))
		return false;
	r->len = ir_vtype(m, fn, ir_in(fn, o, main))->dim[side_dim(m, fn, r, main)] / r->members;
	for (uint32_t k = 0; k < o->nin; k++) {
		ir_val v = ir_in(fn, o, k);
		int d = r->dim[k] = side_dim(m, fn, r, k);
		r->way[k] = d < 0 || ir_vtype(m, fn, v)->dim[d] == 1 ? RING_FIXED : gathered(m, fn, v, d, &r->from[k]) && (ir_group)ir_attr(fn, r->from[k].end, AT_group) == r->group ? RING_ROUND : RING_WHOLE;
		if (r->way[k] == RING_WHOLE && k < r->nmust)
			return false;
		r->in[k] = r->way[k] == RING_ROUND ? ir_in(fn, r->from[k].end, 0) : v;
	}
	ring_take(r, i);
	for (int k = 0; k < r->nres; k++) {
		int d = ring_result_dim(m, fn, r, k);
		if (d >= 0 && (!scattered(m, fn, o->out + (ir_val)k, d, &r->to[k]) || (ir_group)ir_attr(fn, r->to[k].end, AT_group) != r->group))
			return false;
		r->out[k] = d < 0 ? o->out + (ir_val)k : r->to[k].end->out;
		for (int j = 0; d >= 0 && j < r->to[k].n; j++)
			ring_take(r, (int)(r->to[k].view[j] - fn->op.p));
		if (d >= 0)
			ring_take(r, (int)(r->to[k].end - fn->op.p));
	}
	return true;
}

static int row_of(const struct ir_group_info *g, int64_t id)
{
	for (int k = 0; k < g->nrow * g->ncol; k++)
		if (g->id[k] == id)
			return k / g->ncol;
	return -1;
}

/* Is each row of g within one of `of`? */
static bool within(const struct ir_module *m, ir_group g, ir_group of)
{
	const struct ir_group_info *x = &m->group.p[g], *y = &m->group.p[of];
	bool yes = true;
	for (int k = 0; k < x->nrow * x->ncol && yes && g != of; k++) {
		int row = row_of(y, x->id[k]);
		yes = row >= 0 && row == row_of(y, x->id[k / x->ncol * x->ncol]);
	}
	return yes;
}

/* Has v the same elements on all members of a row?  It follows from constants and from what is gathered from all of them. */
static bool same_for_all(const struct ir_module *m, const struct ir_fn *fn, ir_group g, ir_val v, int depth)
{
	const struct ir_op *o = ir_def(fn, v);
	if (!o || !depth)
		return false;
	if (o->kind == IR_all_gather || o->kind == IR_all_reduce)
		return within(m, g, (ir_group)ir_attr(fn, o, AT_group));
	if (o->kind != IR_constant && o->kind != IR_iota && !ir_is_elem(o->kind) && !(ir_info(o->kind)->flags & IR_VIEW) && o->kind != IR_dynamic_slice)
		return false;
	for (uint32_t k = 0; k < o->nin; k++)
		if (!same_for_all(m, fn, g, ir_in(fn, o, k), depth - 1))
			return false;
	return true;
}

bool ring_owned(const struct ir_module *m, const struct ir_fn *fn, const struct ring *r, enum ring_own *own)
{
	enum { DEEP = 12 };
	for (uint32_t k = 0; k < r->att->nin; k++) {
		ir_val v = ir_in(fn, r->att, k);
		int d = ring_own_dim(m, fn, r, k);
		const struct ir_type_info *t = ir_vtype(m, fn, v);
		bool score = k >= ring_first_extra(r), each = score && t->dim[d] == 1 && !same_for_all(m, fn, r->group, v, DEEP);
		if (each && r->dim[k] >= 0 && t->dim[r->dim[k]] > 1)
			return false;
		own[k] = each ? RING_EACH : d >= 0 && (!score || t->dim[d] > 1) ? RING_ROWS : RING_SAME;
	}
	return true;
}

/* --- what all of them emit ------------------------------------------------------------ */

/* x through views of a whole array, of which it is one of n blocks along dimension d. */
static ir_val viewed(struct ir_b *b, const struct ir_fn *fn, const struct ring_chain *c, ir_val x, int d, int64_t n)
{
	for (int k = 0; k < c->n; k++) {
		const struct ir_op *o = c->view[k];
		int some;
		int to = shown_dim(b->m, fn, o, d);
		if (o->kind == IR_slice) {
			int64_t limit[IR_MAX_RANK];
			memcpy(limit, ir_attrs(fn, o, AT_limit, &some), sizeof *limit * (size_t)ir_vtype(b->m, fn, o->out)->rank);
			limit[d] = ir_vtype(b->m, b->fn, x)->dim[d];
			x = ir_slice(b, x, ir_attrs(fn, o, AT_start, &some), limit, ir_attrs(fn, o, AT_stride, &some));
		} else if (o->kind == IR_transpose) {
			x = ir_transpose(b, x, ir_attrs(fn, o, AT_perm, &some));
		} else {
			const struct ir_type_info *t = ir_vtype(b->m, fn, o->out);
			int64_t dim[IR_MAX_RANK];
			memcpy(dim, t->dim, sizeof *dim * (size_t)t->rank);
			dim[to] /= n;
			x = ir_reshape(b, x, t->rank, dim);
		}
		d = to;
	}
	return x;
}

ir_val ring_read(struct ir_b *b, const struct ir_fn *fn, const struct ring *r, int k, ir_val x, int64_t n)
{
	return viewed(b, fn, &r->from[k], x, (int)ir_attr(fn, r->from[k].end, AT_dim), n);
}

void ring_give(struct ir_b *b, const struct ir_fn *fn, const struct ring *r, ir_val *x)
{
	for (int k = 0; k < r->nres; k++) {
		if (r->to[k].end)
			x[k] = viewed(b, fn, &r->to[k], x[k], ring_result_dim(b->m, fn, r, k), r->members);
		x[k] = ir_convert(b, x[k], ir_vtype(b->m, fn, r->out[k])->dtype);
	}
}

ir_val ring_whose(struct ir_b *b, ir_val own, ir_val turn, int64_t members)
{
	ir_type t = ir_scalar(b->m, DT_i32);
	ir_val n = ir_const_i(b, t, members), at = ir_bin(b, ELEM_add, own, turn), over = ir_bin(b, ELEM_compare_ge, at, n);
	return ir_select(b, over, ir_bin(b, ELEM_subtract, at, n), at);
}

ir_val ring_block(struct ir_b *b, ir_val x, int d, int64_t len, ir_val which)
{
	const struct ir_type_info *t = ir_vtype(b->m, b->fn, x);
	int rank = t->rank;
	int64_t attr[1 + IR_MAX_RANK] = { rank };
	memcpy(attr + 1, t->dim, sizeof *attr * (size_t)rank);
	attr[1 + d] = len;
	ir_type to = ir_tensor(b->m, t->dtype, rank, attr + 1), i = ir_scalar(b->m, DT_i32);
	ir_val in[1 + IR_MAX_RANK] = { x };
	for (int k = 0; k < rank; k++)
		in[1 + k] = k == d ? ir_bin(b, ELEM_multiply, which, ir_const_i(b, i, len)) : ir_const_i(b, i, 0);
	return ir_emit(b, IR_dynamic_slice, (uint32_t)rank + 1, in, to, attr, (uint32_t)rank + 1);
}

ir_val ring_for_each(struct ir_b *b, ir_val x, int d, int64_t n)
{
	const struct ir_type_info *t = ir_vtype(b->m, b->fn, x);
	int64_t dim[IR_MAX_RANK], at[IR_MAX_RANK];
	int rank = t->rank;
	enum dtype dt = t->dtype;
	for (int k = 0; k < rank; k++) {
		dim[k] = k == d ? n : t->dim[k];
		at[k] = k;
	}
	return ir_broadcast(b, x, ir_tensor(b->m, dt, rank, dim), at);
}

ir_val ring_send(struct ir_b *b, const struct ring *r, ir_val x, const int *to, ir_loc loc)
{
	const struct ir_group_info *g = &b->m->group.p[r->group];
	int n = g->nrow * g->ncol;
	ir_type t = b->fn->val.p[x].type;
	int64_t *attr = mem_alloc(sizeof *attr * (size_t)(2 * n + 1)), *at = attr + 1;
	for (int k = 0; k < n; k++)
		if (to[k % g->ncol] >= 0) {
			*at++ = g->id[k];
			*at++ = g->id[k / g->ncol * g->ncol + to[k % g->ncol]];
		}
	attr[0] = at - attr - 1;
	ir_val v = attr[0] ? ir_emit_raw(&(struct ir_b){ b->m, b->fn, loc }, IR_collective_permute, 1, &x, 1, &t, attr, (uint32_t)(at - attr)) : 0;
	mem_free(attr);
	return v;
}

ir_val ring_own(struct ir_b *b, const struct ring *r, int by)
{
	const struct ir_group_info *g = &b->m->group.p[r->group];
	int n = b->m->num_partitions;
	int32_t *table = mem_alloc(sizeof *table * (size_t)n);
	int64_t dim = n, one = 1, size[2] = { 1, 1 };
	for (int k = 0; k < n; k++)
		table[g->id[k]] = k % g->ncol / by;
	ir_val all = ir_const(b, ir_tensor(b->m, DT_i32, 1, &dim), table, sizeof *table * (size_t)n);
	mem_free(table);
	ir_val id = ir_convert(b, ir_emit(b, IR_partition_id, 0, NULL, ir_scalar(b->m, DT_u32), NULL, 0), DT_i32);
	ir_val v = ir_emit(b, IR_dynamic_slice, 2, (ir_val[]){ all, id }, ir_tensor(b->m, DT_i32, 1, &one), size, 2);
	return ir_reshape(b, v, 0, NULL);
}

/* A new function to which b points then, with the score function's parameters and perhaps one more, *is; what that gives for them: score, slope and weight. */
static void score_begin(struct ir_b *b, const char *name, const struct ir_fn *fn, const struct ring *r, ir_val *is, ir_val *out)
{
	ir_fnid of = (ir_fnid)ir_attr(fn, r->att, AT_fn);
	struct ir_fn *f = b->fn = ir_fn_new(b->m, name);
	ir_val in[RING_IN];
	for (uint32_t k = 0; k < ir_fn_of(b->m, of)->nparam; k++)
		in[k] = ir_param(f, ir_fn_of(b->m, of)->val.p[1 + k].type);
	if (is)
		*is = ir_param(f, ir_scalar(b->m, DT_pred));
	ir_inline(b, of, in, out);
}

static ir_fnid score_end(struct ir_b *b, const struct ir_fn *fn, const struct ring *r, const ir_val *out)
{
	size_t n = ir_fn_of(b->m, (ir_fnid)ir_attr(fn, r->att, AT_fn))->result.n;
	for (size_t k = 0; k < n; k++)
		ir_result(b->fn, out[k]);
	return b->fn->id;
}

/* Score and slope where `is`. */
static void only_where(struct ir_b *b, const struct ring *r, ir_val is, ir_val *out)
{
	for (int k = 0; k < (grad(r) ? 2 : 1); k++)
		out[k] = ir_select(b, is, out[k], ir_const_f(b, b->fn->val.p[out[k]].type, k ? 0 : -INFINITY));
}

/* v with -inf in the place of numbers up to `hidden` that are chosen for it; *any: there is one. */
static ir_val hide(struct ir_b *b, ir_val v, double hidden, bool *any)
{
	const struct ir_op *o = ir_def(b->fn, v);
	const struct ir_type_info *t = ir_vtype(b->m, b->fn, v);
	const void *one = o && o->kind == IR_constant ? ir_splat(b->m, b->fn, v) : NULL;
	struct kern_bound is = one ? kern_bound_of(t->dtype, one) : kern_bound_any(t->dtype);
	if (!is.nan && is.hi <= hidden) {
		*any = true;
		return ir_const_f(b, b->fn->val.p[v].type, -INFINITY);
	}
	if (!o || o->kind != IR_select)
		return v;
	ir_val c = ir_in(b->fn, o, 0), x = ir_in(b->fn, o, 1), y = ir_in(b->fn, o, 2);
	x = hide(b, x, hidden, any);
	y = hide(b, y, hidden, any);
	return ir_select(b, c, x, y);
}

/* Scores up to `hidden` are -inf.  Where it is a number that the program chooses, the score stays a plain product elsewhere, which kernels know. */
static void veil(struct ir_b *b, const struct ring *r, double hidden, ir_val *out)
{
	bool chosen = false;
	ir_val score = hide(b, out[0], hidden, &chosen);
	if (chosen)                      /* with a weight of 0, whatever its slope */
		out[0] = score;
	else                             /* a NaN is not hidden */
		only_where(b, r, ir_un(b, ELEM_not, ir_bin(b, ELEM_compare_le, out[0], ir_const_f(b, b->fn->val.p[out[0]].type, hidden))), out);
}

ir_fnid ring_there(struct ir_b *at, const struct ir_fn *fn, const struct ring *r)
{
	struct ir_b b = *at;
	ir_val is, out[3];
	score_begin(&b, "there", fn, r, &is, out);
	if (r->hidden > -INFINITY)
		veil(&b, r, r->hidden, out);
	only_where(&b, r, is, out);
	return ir_rebuild(b.m, ir_fn_of(b.m, score_end(&b, fn, r, out)))->id;      /* without the number */
}

ir_fnid ring_hidden(struct ir_b *at, const struct ir_fn *fn, const struct ring *r, double hidden)
{
	struct ir_b b = *at;
	ir_val out[3];
	score_begin(&b, "hidden", fn, r, NULL, out);
	veil(&b, r, hidden, out);
	return ir_rebuild(b.m, ir_fn_of(b.m, score_end(&b, fn, r, out)))->id;
}

ir_type ring_sum_type(struct ir_b *b, const struct ir_fn *fn, const struct ring *r, ir_val v, int d, int64_t n)
{
	const struct ir_type_info *t = ir_vtype(b->m, fn, v);
	int64_t dim[IR_MAX_RANK];
	int rank = t->rank;
	bool wide = false;
	for (uint32_t k = 0; k < L; k++)
		wide |= ir_vtype(b->m, fn, ir_in(fn, r->att, k))->dtype == DT_f64;
	memcpy(dim, t->dim, sizeof *dim * (size_t)rank);
	if (d >= 0)
		dim[d] = n;
	return ir_tensor(b->m, wide ? DT_f64 : DT_f32, rank, dim);
}
