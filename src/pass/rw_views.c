/* Rewrites of views, and of what lies side by side. */
#include "rewrites.h"

ir_val rw_view_of_splat(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_op *d = ir_def(r->b.fn, in[0]);
	ir_type t = r->from->val.p[o->out].type;
	const struct ir_type_info *ti = ir_type_of(r->m, t);
	/* a splat of any shape is one constant; of what is broadcast later the broadcast stays */
	const void *splat = d && ti->count && (o->kind != IR_broadcast || d->kind == IR_constant) ? ir_splat(r->m, r->b.fn, in[0]) : NULL;
	return splat ? ir_const(&r->b, t, splat, dtype_info[ti->dtype].bytes) : 0;
}

ir_val rw_broadcast_twice(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	int n;
	const struct ir_op *d = made_by(r, in[0], IR_broadcast);
	if (!d)
		return 0;
	const int64_t *out = ir_attrs(r->from, o, AT_dims, &n), *inner = ir_attrs(r->b.fn, d, AT_dims, &n);
	int64_t dims[IR_MAX_RANK];
	for (int i = 0; i < n; i++)
		dims[i] = out[inner[i]];
	return ir_broadcast(&r->b, ir_in(r->b.fn, d, 0), r->from->val.p[o->out].type, dims);
}

ir_val rw_turned_broadcast(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	int n, n2;
	const struct ir_op *d = made_by(r, in[0], IR_broadcast);
	if (!d)
		return 0;
	const int64_t *perm = ir_attrs(r->from, o, AT_perm, &n), *inner = ir_attrs(r->b.fn, d, AT_dims, &n2);
	int64_t dims[IR_MAX_RANK];
	for (int i = 0; i < n2; i++) {
		for (int k = 0; k < n; k++)
			if (perm[k] == inner[i])
				dims[i] = k;
		if (i && dims[i] < dims[i - 1])
			return 0;
	}
	return ir_broadcast(&r->b, ir_in(r->b.fn, d, 0), r->from->val.p[o->out].type, dims);
}

ir_val rw_turned_dot(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	int n;
	if (!made_by(r, in[0], IR_dot) || r->from->val.p[ir_in(r->from, o, 0)].nuse != 1 || ir_shard_of(r->b.fn, in[0]))
		return 0;
	return ir_turned_dot(&r->b, in[0], ir_attrs(r->from, o, AT_perm, &n));
}

ir_val rw_reverse_twice(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	int n, n2;
	const struct ir_op *d = made_by(r, in[0], IR_reverse);
	if (!d)
		return 0;
	const int64_t *a = ir_attrs(r->from, o, AT_dims, &n), *b = ir_attrs(r->b.fn, d, AT_dims, &n2);
	bool turned[IR_MAX_RANK] = {0};
	int64_t w[IR_MAX_RANK + 1] = {0};
	for (int i = 0; i < n; i++)
		turned[a[i]] ^= true;
	for (int i = 0; i < n2; i++)
		turned[b[i]] ^= true;
	for (int k = 0; k < IR_MAX_RANK; k++)
		if (turned[k])
			w[1 + w[0]++] = k;
	ir_val x = ir_in(r->b.fn, d, 0);
	return ir_emit(&r->b, IR_reverse, 1, &x, r->from->val.p[o->out].type, w, (uint32_t)w[0] + 1);
}

/* --- slices ---------------------------------------------------------------------------------- */

struct box { int rank; int64_t start[IR_MAX_RANK], limit[IR_MAX_RANK], stride[IR_MAX_RANK]; };

static struct box box_of(const struct ir_fn *fn, const struct ir_op *o)
{
	struct box b;
	memcpy(b.start, ir_attrs(fn, o, AT_start, &b.rank), sizeof *b.start * (size_t)ir_attrs_n(fn, o, AT_start));
	memcpy(b.limit, ir_attrs(fn, o, AT_limit, &b.rank), sizeof *b.limit * (size_t)b.rank);
	memcpy(b.stride, ir_attrs(fn, o, AT_stride, &b.rank), sizeof *b.stride * (size_t)b.rank);
	return b;
}

static ir_val slice_of(struct rewrite *r, ir_val x, const struct box *b)
{
	return ir_slice(&r->b, x, b->start, b->limit, b->stride);
}

/* The place behind the last element that is taken along d, of those there are. */
static int64_t behind(const struct box *b, int d, int64_t count)
{
	return count ? b->start[d] + (count - 1) * b->stride[d] + 1 : b->start[d];
}

ir_val rw_slice_twice(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_op *d = made_by(r, in[0], IR_slice);
	const struct ir_type_info *t = result_type(r, o);
	if (!d || !t->count)
		return 0;
	struct box outer = box_of(r->from, o), inner = box_of(r->b.fn, d);
	for (int k = 0; k < inner.rank; k++) {
		inner.start[k] += outer.start[k] * inner.stride[k];
		inner.stride[k] *= outer.stride[k];
		inner.limit[k] = behind(&inner, k, t->dim[k]);
	}
	return slice_of(r, ir_in(r->b.fn, d, 0), &inner);
}

ir_val rw_slice_of_part(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_op *d = made_by(r, in[0], IR_concatenate);
	const struct ir_type_info *t = result_type(r, o);
	if (!d || !t->count)
		return 0;
	int along = (int)ir_attr(r->b.fn, d, AT_dim);
	struct box b = box_of(r->from, o);
	int64_t from = b.start[along], to = behind(&b, along, t->dim[along]);
	for (uint32_t k = 0; k < d->nin; k++) {
		ir_val x = ir_in(r->b.fn, d, k);
		int64_t n = type_of(r, x)->dim[along];
		if (from >= 0 && to <= n) {
			b.start[along] = from;
			b.limit[along] = to;
			return slice_of(r, x, &b);
		}
		from -= n;
		to -= n;
	}
	return 0;
}

ir_val rw_slice_of_pad(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_op *d = made_by(r, in[0], IR_pad);
	const struct ir_type_info *t = result_type(r, o);
	if (!d || !t->count)
		return 0;
	int n;
	const int64_t *low = ir_attrs(r->b.fn, d, AT_low, &n), *inside = ir_attrs(r->b.fn, d, AT_interior, &n);
	ir_val x = ir_in(r->b.fn, d, 0);
	struct box b = box_of(r->from, o);
	for (int k = 0; k < n; k++) {
		b.start[k] -= low[k];
		b.limit[k] = behind(&b, k, t->dim[k]);
		if (inside[k] || b.start[k] < 0 || b.limit[k] > type_of(r, x)->dim[k])
			return 0;
	}
	return slice_of(r, x, &b);
}

ir_val rw_slice_of_broadcast(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_op *d = made_by(r, in[0], IR_broadcast);
	if (!d)
		return 0;
	int n;
	const int64_t *at = ir_attrs(r->b.fn, d, AT_dims, &n);
	ir_val x = ir_in(r->b.fn, d, 0);
	int64_t dims[IR_MAX_RANK];
	struct box b = box_of(r->from, o), inner = { .rank = n };
	for (int k = 0; k < n; k++) {
		bool spread = type_of(r, x)->dim[k] == 1 && type_of(r, in[0])->dim[at[k]] != 1;
		dims[k] = at[k];
		inner.start[k] = spread ? 0 : b.start[at[k]];
		inner.limit[k] = spread ? 1 : b.limit[at[k]];
		inner.stride[k] = spread ? 1 : b.stride[at[k]];
	}
	return ir_broadcast(&r->b, slice_of(r, x, &inner), r->from->val.p[o->out].type, dims);
}

/* --- side by side ---------------------------------------------------------------------------------- */

ir_val rw_join_of_slices(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	int along = (int)ir_attr(r->from, o, AT_dim);
	struct box all = {0};
	ir_val x = 0;
	for (uint32_t k = 0; k < o->nin; k++) {
		const struct ir_op *d = made_by(r, in[k], IR_slice);
		if (!d || (x && ir_in(r->b.fn, d, 0) != x))
			return 0;
		struct box b = box_of(r->b.fn, d);
		if (!x) {
			x = ir_in(r->b.fn, d, 0);
			all = b;
		}
		for (int i = 0; i < b.rank; i++)
			if (b.stride[i] != all.stride[i] || (i != along && (b.start[i] != all.start[i] || b.limit[i] != all.limit[i])) ||
			    (i == along && (b.stride[i] != 1 || (k && b.start[i] != all.limit[i]))))
				return 0;
		all.limit[along] = b.limit[along];
	}
	return x ? slice_of(r, x, &all) : 0;
}

ir_val rw_join_of_joins(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	enum { MOST = 256 };
	int64_t along = ir_attr(r->from, o, AT_dim);
	ir_val x[MOST];
	uint32_t n = 0;
	bool any = false;
	for (uint32_t k = 0; k < o->nin; k++) {
		const struct ir_op *d = made_by(r, in[k], IR_concatenate);
		bool open = d && ir_attr(r->b.fn, d, AT_dim) == along;
		uint32_t more = open ? d->nin : 1;
		if (n + more > MOST)
			return 0;
		for (uint32_t j = 0; j < more; j++)
			x[n++] = open ? ir_in(r->b.fn, d, j) : in[k];
		any |= open;
	}
	return any ? ir_emit(&r->b, IR_concatenate, n, x, r->from->val.p[o->out].type, &along, 1) : 0;
}

/* jnp.pad puts such beside an array that grows along other dimensions. */
ir_val rw_join_of_empty(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	int64_t along = ir_attr(r->from, o, AT_dim);
	ir_val *x = ARENA_NEW(r->a, ir_val, o->nin);
	uint32_t n = 0;

	for (uint32_t k = 0; k < o->nin; k++)
		if (ir_vtype(r->m, r->b.fn, in[k])->count)
			x[n++] = in[k];
	if (n == o->nin || !n)
		return 0;
	return n == 1 ? x[0] : ir_emit(&r->b, IR_concatenate, n, x, r->from->val.p[o->out].type, &along, 1);
}

ir_val rw_pad_twice(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_op *d = made_by(r, in[0], IR_pad);
	if (!d || ir_in(r->b.fn, d, 1) != in[1])
		return 0;
	int n;
	int64_t w[3 * (IR_MAX_RANK + 1)], *q = w;
	static const enum ir_at at[3] = { AT_low, AT_high, AT_interior };
	for (int k = 0; k < 3; k++) {
		const int64_t *a = ir_attrs(r->from, o, at[k], &n), *b = ir_attrs(r->b.fn, d, at[k], &n);
		*q++ = n;
		for (int i = 0; i < n; i++) {
			if (a[i] < 0 || b[i] < 0 || (at[k] == AT_interior && (a[i] || b[i])))
				return 0;
			*q++ = a[i] + b[i];
		}
	}
	return ir_emit(&r->b, IR_pad, 2, (ir_val[]){ ir_in(r->b.fn, d, 0), in[1] }, r->from->val.p[o->out].type, w, (uint32_t)(q - w));
}

/* Does it change nothing to combine v once more with a result that began with it? */
static bool counts_once(enum redop op, enum dtype dt, const void *v)
{
	static const char zeros[16];
	char id[16];
	kern_identity(op, dt, id);
	return !memcmp(v, id, dtype_info[dt].bytes) || op == RED_max || op == RED_min || op == RED_and || op == RED_or ||
	       (op == RED_add && !memcmp(v, zeros, dtype_info[dt].bytes));
}

ir_val rw_window_of_pad(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_op *d = made_by(r, in[0], IR_pad);
	enum redop op = (enum redop)ir_attr(r->from, o, AT_redop);
	if (!d || o->nin != 2 || op == RED_fn || r->from->val.p[ir_in(r->from, o, 0)].nuse != 1)
		return 0;
	const struct ir_type_info *t = type_of(r, in[0]), *of = type_of(r, ir_in(r->b.fn, d, 0));
	const void *pad = ir_splat(r->m, r->b.fn, ir_in(r->b.fn, d, 1)), *init = ir_splat(r->m, r->b.fn, in[1]);
	if (!pad || !init || !of->count || memcmp(pad, init, dtype_info[t->dtype].bytes) || !counts_once(op, (enum dtype)t->dtype, init))
		return 0;
	int rank;
	const int64_t *low = ir_attrs(r->b.fn, d, AT_low, &rank), *high = ir_attrs(r->b.fn, d, AT_high, &rank), *gap = ir_attrs(r->b.fn, d, AT_interior, &rank);
	uint32_t n;
	int64_t *w = ir_attr_copy(r->a, r->from, o, &n);
	int64_t *base = ir_attr_word(IR_reduce_window, w, AT_base_dilation) + 1, *before = ir_attr_word(IR_reduce_window, w, AT_low) + 1, *after = ir_attr_word(IR_reduce_window, w, AT_high) + 1;
	for (int i = 0; i < rank; i++) {
		if (low[i] < 0 || high[i] < 0)
			return 0;
		before[i] += low[i] * base[i];
		after[i] += high[i] * base[i];
		base[i] *= gap[i] + 1;
	}
	return ir_emit(&r->b, IR_reduce_window, 2, (ir_val[]){ ir_in(r->b.fn, d, 0), in[1] }, r->from->val.p[o->out].type, w, n);
}

ir_val rw_static_slice(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_type_info *t = type_of(r, in[0]), *rt = result_type(r, o);
	struct box b = { .rank = t->rank };
	for (int d = 0; d < t->rank; d++) {
		if (rt->dim[d] != t->dim[d] && !ir_const_int(r->m, r->b.fn, in[d + 1], &b.start[d]))
			return 0;
		b.start[d] = MAX(0, MIN(b.start[d], t->dim[d] - rt->dim[d]));
		b.limit[d] = b.start[d] + rt->dim[d];
		b.stride[d] = 1;
	}
	return slice_of(r, in[0], &b);
}

ir_val rw_update_of_all(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	return r->b.fn->val.p[in[0]].type == r->b.fn->val.p[in[1]].type ? in[1] : 0;
}

ir_val rw_reduce_of_one(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_type_info *t = result_type(r, o), *from = ir_vtype(r->m, r->b.fn, in[0]);
	enum elem e = redop_elem[ir_attr(r->from, o, AT_redop)];
	int n;
	const int64_t *dims = ir_attrs(r->from, o, AT_dims, &n);
	if (o->nout != 1 || e == ELEM_COUNT)
		return 0;
	for (int i = 0; i < n; i++)
		if (from->dim[dims[i]] != 1)
			return 0;
	ir_val start = ir_splat_of(&r->b, in[1], r->from->val.p[o->out].type);
	return ir_bin(&r->b, e, start, ir_reshape(&r->b, in[0], t->rank, t->dim));
}

ir_val rw_reduce_of_row(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_op *v = ir_def(r->b.fn, in[0]), *x = v && v->kind == IR_reshape ? ir_def(r->b.fn, ir_in(r->b.fn, v, 0)) : NULL;
	if (!x || x->kind != IR_slice || o->nout != 1 || redop_elem[ir_attr(r->from, o, AT_redop)] == ELEM_COUNT)
		return 0;
	const struct ir_type_info *of = type_of(r, x->out), *t = type_of(r, in[0]);
	int n, k = 0, e = 0;
	const int64_t *dims = ir_attrs(r->from, o, AT_dims, &n);
	int64_t all[IR_MAX_RANK];
	for (int d = 0; d < of->rank; d++) {
		bool row = e == t->rank || of->dim[d] != t->dim[e], gone = row;
		if (row && of->dim[d] != 1)
			return 0;
		for (int i = 0; i < n && !row; i++)
			gone |= dims[i] == e;
		if (gone)
			all[k++] = d;
		e += !row;
	}
	return e < t->rank ? 0 : ir_reduce1(&r->b, (enum redop)ir_attr(r->from, o, AT_redop), x->out, in[1], k, all);
}

/* Under explicit axes JAX puts one behind every op, counters and indices of loops too. */
ir_val rw_placed_number(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_type_info *t = result_type(r, o);
	const struct ir_op *x = ir_def(r->b.fn, in[0]);
	bool number = dtype_info[t->dtype].cls != DT_FLOAT && dtype_info[t->dtype].cls != DT_COMPLEX;
	return !t->rank && (number || (x && x->kind == IR_constant)) && !r->m->shard.p[ir_attr(r->from, o, AT_sharding)].npart ? in[0] : 0;
}

ir_val rw_iota_of_one(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_type_info *t = result_type(r, o);
	return t->dim[ir_attr(r->from, o, AT_dim)] == 1 ? ir_const_i(&r->b, r->from->val.p[o->out].type, 0) : 0;
}

/* Where the dimensions of o's result that are not of extent 1 are among those of its operand, by their order: place[].  False: it is no such view. */
static bool moved(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, int *place)
{
	const struct ir_type_info *t = ir_vtype(m, fn, o->out), *s = ir_vtype(m, fn, ir_in(fn, o, 0));
	int n = 0, rank;
	const int64_t *perm = o->kind == IR_transpose ? ir_attrs(fn, o, AT_perm, &rank) : NULL;
	for (int d = 0, e = 0; d < t->rank; d++) {
		if (t->dim[d] == 1)
			continue;
		while (!perm && e < s->rank && s->dim[e] == 1)
			e++;
		if (!perm && (e == s->rank || s->dim[e] != t->dim[d]))
			return false;
		int of = perm ? (int)perm[d] : e++;
		place[n] = 0;
		for (int i = 0; i < of; i++)
			place[n] += s->dim[i] != 1;
		n++;
	}
	return true;
}

ir_val rw_turned_back(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	enum { LONG = 8 };
	int at[IR_MAX_RANK], place[IR_MAX_RANK], n = 0;
	const struct ir_type_info *t = ir_vtype(r->m, r->from, o->out);
	if (!t->count || !moved(r->m, r->from, o, at))
		return 0;
	for (int d = 0; d < t->rank; d++)
		n += t->dim[d] != 1;
	ir_val x = in[0];
	for (int k = 0; k < LONG; k++) {
		const struct ir_op *p = ir_def(r->b.fn, x);
		bool same = r->b.fn->val.p[x].type == r->from->val.p[o->out].type;
		for (int i = 0; i < n; i++)
			same &= at[i] == i;
		if (same)
			return x;
		if (!p || (p->kind != IR_transpose && p->kind != IR_reshape) || !moved(r->m, r->b.fn, p, place))
			return 0;
		for (int i = 0; i < n; i++)
			at[i] = place[at[i]];
		x = ir_in(r->b.fn, p, 0);
	}
	return 0;
}

/* Each device can tell then which updates are its own, along a dimension that is cut; jax.vmap of dynamic_update_slice writes these. */
ir_val rw_scatter_of_ones(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_fn *fn = r->from;
	int nw, ngone, nbatch, nsbatch, nto, nw_left = 0, d = 0, rank = 0;
	const int64_t *window = ir_attrs(fn, o, AT_window_dims, &nw), *gone = ir_attrs(fn, o, AT_inserted, &ngone), *batch = ir_attrs(fn, o, AT_ibatch, &nbatch),
	              *sbatch = ir_attrs(fn, o, AT_sbatch, &nsbatch), *to = ir_attrs(fn, o, AT_to_operand, &nto);
	const struct ir_type_info x = *type_of(r, in[0]), u = *type_of(r, in[o->nin == 3 ? 2 : 0]);
	int64_t dim[IR_MAX_RANK], w[8 + 6 * IR_MAX_RANK], left[IR_MAX_RANK], *p = w;
	bool is_gone[IR_MAX_RANK] = { false }, is_batch[IR_MAX_RANK] = { false };
	if (o->nin != 3)
		return 0;
	for (int k = 0; k < ngone; k++)
		is_gone[gone[k]] = true;
	for (int k = 0; k < nbatch; k++)
		is_batch[batch[k]] = true;
	for (int k = 0, next = 0; k < u.rank; k++) {
		if (next == nw || window[next] != k) {
			dim[rank++] = u.dim[k];
			continue;
		}
		next++;
		while (is_gone[d] || is_batch[d])
			d++;
		if (u.dim[k] == 1 && x.dim[d] > 1) {
			is_gone[d] = true;
		} else {
			left[nw_left++] = rank;
			dim[rank++] = u.dim[k];
		}
		d++;
	}
	if (nw_left == nw)
		return 0;
	*p++ = nw_left;
	for (int k = 0; k < nw_left; k++)
		*p++ = left[k];
	int64_t *n = p++;
	*n = 0;
	for (int k = 0; k < x.rank; k++)
		if (is_gone[k]) {
			*p++ = k;
			++*n;
		}
	*p++ = nbatch;
	for (int k = 0; k < nbatch; k++)
		*p++ = batch[k];
	*p++ = nsbatch;
	for (int k = 0; k < nsbatch; k++)
		*p++ = sbatch[k];
	*p++ = nto;
	for (int k = 0; k < nto; k++)
		*p++ = to[k];
	*p++ = ir_attr(fn, o, AT_index_dim);
	*p++ = ir_attr(fn, o, AT_sorted);
	*p++ = ir_attr(fn, o, AT_unique);
	*p++ = ir_attr(fn, o, AT_redop);
	*p++ = ir_attr(fn, o, AT_fn);
	ir_type t = fn->val.p[o->out].type;
	return ir_emit_raw(&r->b, IR_scatter, 3, (ir_val[]){ in[0], in[1], ir_reshape(&r->b, in[2], rank, dim) }, 1, &t, w, (uint32_t)(p - w));
}
