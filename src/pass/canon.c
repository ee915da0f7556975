/* Canonical form: small constants are folded by the oracle, views compose, a product without contraction
 * is a multiplication, a windowed sum over everything before is a scan. */
#include "passes.h"

#include <stdlib.h>

enum { FOLD_BYTES = 4096 };

static bool is_const(const struct ir_fn *fn, ir_val v)
{
	const struct ir_op *o = ir_def(fn, v);
	return o && o->kind == IR_constant;
}

/* All operands constant and small: run the op. */
static ir_val fold(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	struct ir_module *m = r->m;
	unsigned flags = ir_info(o->kind)->flags;
	if (o->nout != 1 || o->nin == 0 || !(flags & IR_PURE) || flags & (IR_BARRIER | IR_COLL) || o->kind == IR_broadcast)
		return 0;
	if (!(flags & (IR_ELEM | IR_VIEW)) && o->kind != IR_concatenate && o->kind != IR_reduce && o->kind != IR_dynamic_slice)
		return 0;
	ir_type t = r->from->val.p[o->out].type;
	if (ir_type_of(m, t)->bytes > FOLD_BYTES || ir_type_of(m, t)->bytes == 0)
		return 0;
	for (uint32_t k = 0; k < o->nin; k++)
		if (!is_const(r->b.fn, in[k]) || ir_vtype(m, r->b.fn, in[k])->bytes > FOLD_BYTES || ir_vtype(m, r->b.fn, in[k])->bytes == 0)
			return 0;
	struct ir_fn *f = ir_fn_new(m, "");
	struct ir_b b = { m, f, 0 };
	struct eval_array *a = ARENA_NEW(r->a, struct eval_array, o->nin), out = {0};
	ir_val *p = ARENA_NEW(r->a, ir_val, o->nin);
	for (uint32_t k = 0; k < o->nin; k++) {
		const struct ir_type_info *ti = ir_vtype(m, r->b.fn, in[k]);
		p[k] = ir_param(f, r->b.fn->val.p[in[k]].type);
		size_t n;
		const char *d = ir_blob_data(m, (ir_blob)ir_attr(r->b.fn, ir_def(r->b.fn, in[k]), AT_data), &n);
		a[k].dtype = ti->dtype;
		a[k].rank = ti->rank;
		memcpy(a[k].dim, ti->dim, sizeof *ti->dim * ti->rank);
		a[k].bytes = (size_t)ti->bytes;
		a[k].p = arena_alloc(r->a, a[k].bytes);
		for (size_t at = 0; at < a[k].bytes; at += n)
			memcpy((char *)a[k].p + at, d, n);
	}
	uint32_t words;
	const int64_t *w = ir_attr_copy(r->a, r->from, o, &words);
	ir_result(f, ir_emit_raw(&b, o->kind, o->nin, p, 1, &t, w, words));
	struct err *e = eval_fn(m, f, a, &out);
	ir_val v = 0;
	if (!e) {
		size_t es = dtype_info[out.dtype].bytes;
		bool splat = true;
		for (size_t i = es; i < out.bytes && splat; i += es)
			splat = !memcmp(out.p, (char *)out.p + i, es);
		v = ir_const(&r->b, t, out.p, splat ? es : out.bytes);
	}
	err_free(e);
	eval_array_free(&out);
	ir_fn_drop(m);                         /* the scratch function was the last one */
	return v;
}

/* dot without contraction: both operands broadcast to the result, multiplied in its type. */
static ir_val dot_as_multiply(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	struct ir_module *m = r->m;
	const struct ir_axes *ax = ir_axes_of(r->a, m, r->from, o);
	ir_type t = r->from->val.p[o->out].type;
	enum dtype dt = ir_type_of(m, t)->dtype;
	for (int f = 0; f < ax->nfactor; f++)
		if (ax->factor[f].kind == FACTOR_SUM || dt == DT_pred)
			return 0;
	ir_val x[2];
	for (int s = 0; s < 2; s++) {
		int rank = ir_vtype(m, r->b.fn, in[s])->rank;
		int64_t dims[IR_MAX_RANK];
		for (int d = 0; d < rank; d++)
			dims[d] = ir_axes_find(ax, 2, ax->dim[s][d].factor[0]);
		ir_val c = ir_convert(&r->b, in[s], dt);
		/* broadcast wants its operand's dimensions in the order of the result's */
		int64_t perm[IR_MAX_RANK], sorted[IR_MAX_RANK];
		for (int d = 0; d < rank; d++) {
			int at = 0;
			for (int k = 0; k < rank; k++)
				at += dims[k] < dims[d];
			perm[at] = d;
			sorted[at] = dims[d];
		}
		x[s] = ir_broadcast(&r->b, ir_transpose(&r->b, c, perm), t, sorted);
	}
	return ir_bin(&r->b, ELEM_multiply, x[0], x[1]);
}

static ir_val compose(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	if (!o->nin || !o->nout)
		return 0;
	struct ir_module *m = r->m;
	struct ir_fn *fn = r->b.fn;
	ir_type t = r->from->val.p[o->out].type;
	const struct ir_type_info *ti = ir_type_of(m, t);
	const struct ir_op *d = o->nin ? ir_def(fn, in[0]) : NULL;
	int n, n2;
	if (!d)
		return 0;
	const void *splat = ti->count ? ir_splat(m, fn, in[0]) : NULL;
	switch (o->kind) {
	case IR_broadcast: {
		if (splat && d->kind == IR_constant)        /* a splat of any shape is one constant */
			return ir_const(&r->b, t, splat, dtype_info[ti->dtype].bytes);
		if (d->kind != IR_broadcast)
			return 0;
		const int64_t *out = ir_attrs(r->from, o, AT_dims, &n), *inner = ir_attrs(fn, d, AT_dims, &n2);
		int64_t dims[IR_MAX_RANK];
		ir_val x = ir_in(fn, d, 0);
		for (int i = 0; i < n2; i++)
			dims[i] = out[inner[i]];
		return ir_broadcast(&r->b, x, t, dims);
	}
	case IR_transpose: case IR_reshape: case IR_slice: case IR_reverse:
		if (splat)
			return ir_const(&r->b, t, splat, dtype_info[ti->dtype].bytes);
		if (o->kind == IR_transpose && d->kind == IR_broadcast) {
			const int64_t *perm = ir_attrs(r->from, o, AT_perm, &n), *inner = ir_attrs(fn, d, AT_dims, &n2);
			int64_t dims[IR_MAX_RANK];
			bool rising = true;
			for (int i = 0; i < n2; i++) {
				for (int k = 0; k < n; k++)
					if (perm[k] == inner[i])
						dims[i] = k;
				rising &= i == 0 || dims[i] > dims[i - 1];
			}
			if (rising)
				return ir_broadcast(&r->b, ir_in(fn, d, 0), t, dims);
		}
		return 0;
	case IR_dynamic_slice: {
		if (splat)
			return ir_const(&r->b, t, splat, dtype_info[ti->dtype].bytes);
		return 0;
	}
	default:
		return 0;
	}
}

/* Starts that are known: a slice. */
static ir_val static_slice(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_type_info *t = ir_vtype(r->m, r->b.fn, in[0]), *rt = ir_vtype(r->m, r->from, o->out);
	int64_t start[IR_MAX_RANK], limit[IR_MAX_RANK], one[IR_MAX_RANK];
	for (int d = 0; d < t->rank; d++) {
		if (rt->dim[d] == t->dim[d])
			start[d] = 0;
		else if (!ir_const_int(r->m, r->b.fn, in[d + 1], &start[d]))
			return 0;
		start[d] = MAX(0, MIN(start[d], t->dim[d] - rt->dim[d]));
		limit[d] = start[d] + rt->dim[d];
		one[d] = 1;
	}
	return ir_slice(&r->b, in[0], start, limit, one);
}

static ir_val algebra(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	struct ir_module *m = r->m;
	struct ir_fn *fn = r->b.fn;
	switch (o->kind) {
	case IR_multiply:
	case IR_divide: {                          /* by one */
		enum dtype dt = ir_vtype(m, fn, in[0])->dtype;
		const void *p = ir_splat(m, fn, in[1]);
		float one = 1;
		if (p && dt == DT_f32 && !memcmp(p, &one, 4))
			return in[0];
		if (p && dt == DT_bf16 && *(const uint16_t *)p == 0x3f80)
			return in[0];
		p = o->kind == IR_multiply ? ir_splat(m, fn, in[0]) : NULL;
		if (p && dt == DT_f32 && !memcmp(p, &one, 4))
			return in[1];
		return 0;
	}
	case IR_and:
	case IR_or: {                              /* true & x, false | x */
		if (ir_vtype(m, fn, in[0])->dtype != DT_pred)
			return 0;
		for (int k = 0; k < 2; k++) {
			const uint8_t *p = ir_splat(m, fn, in[k]);
			if (p && (*p != 0) == (o->kind == IR_and))
				return in[1 - k];
			if (p)
				return in[k];
		}
		return 0;
	}
	case IR_not: {
		const struct ir_op *d = ir_def(fn, in[0]);
		return d && d->kind == IR_not ? ir_in(fn, d, 0) : 0;
	}
	case IR_convert: {                         /* wider and back: the same; integer chains by their ends */
		const struct ir_op *d = ir_def(fn, in[0]);
		if (!d || d->kind != IR_convert)
			return 0;
		ir_val x = ir_in(fn, d, 0);
		enum dtype a = ir_vtype(m, fn, x)->dtype, b = ir_vtype(m, fn, in[0])->dtype, c = ir_vtype(m, r->from, o->out)->dtype;
		bool small = a == DT_bf16 || a == DT_f16;
		if (a == c && ((small && (b == DT_f32 || b == DT_f64)) || (a == DT_f32 && b == DT_f64)))
			return x;
		if (a == DT_pred && (dtype_info[b].cls == DT_INT || dtype_info[b].cls == DT_UINT || b == DT_f32) && dtype_info[b].bits > 1)
			return ir_convert(&r->b, x, c);
		return 0;
	}
	default:
		return 0;
	}
}

/* A result without elements is a constant: who reads it waits for nobody, and who makes nothing else is dead, such as a call of
 * LAPACK on an empty matrix, which LAPACK does not take. */
static ir_val empty(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	unsigned flags = ir_info(o->kind)->flags;
	bool custom = o->kind == IR_custom_call && !ir_attr(r->from, o, AT_effect), any = false;
	if (o->kind == IR_constant || !(custom || (flags & IR_PURE && !(flags & (IR_BARRIER | IR_COLL)))))
		return 0;
	for (uint32_t k = 0; k < o->nout; k++)
		any |= !ir_vtype(r->m, r->from, o->out + k)->count;
	if (!any)
		return 0;
	ir_val v = o->nout > 1 ? ir_clone(&r->b, r->from, o, in) : 0;
	for (uint32_t k = 0; k < o->nout; k++) {
		ir_type t = r->from->val.p[o->out + k].type;
		r->map[o->out + k] = ir_type_of(r->m, t)->count ? v + k : ir_const(&r->b, t, NULL, 0);
	}
	return REWRITE_MAPPED;
}

static ir_val on_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	ir_val v = empty(r, o, in);
	if (!v)
		v = fold(r, o, in);
	if (!v)
		v = compose(r, o, in);
	if (!v && o->kind == IR_dot)
		v = dot_as_multiply(r, o, in);
	if (!v && o->kind == IR_reduce_window)
		v = pass_as_scan(r, o, in);
	if (!v && o->kind == IR_dynamic_slice)
		v = static_slice(r, o, in);
	if (!v)
		v = algebra(r, o, in);
	if (!v && o->kind == IR_case) {            /* a branch that is known */
		int64_t i;
		int n;
		const int64_t *f = ir_attrs(r->from, o, AT_branch, &n);
		if (n == 1 || ir_const_int(r->m, r->b.fn, in[0], &i)) {
			i = n == 1 || i < 0 || i >= n ? n - 1 : i;
			ir_val *out = ARENA_NEW(r->a, ir_val, o->nout + 1);
			ir_inline(&r->b, (ir_fnid)f[i], in + 1, out);
			for (uint32_t k = 0; k < o->nout; k++)
				r->map[o->out + k] = out[k];
			return REWRITE_MAPPED;
		}
	}
	return v;
}

struct err *pass_canon(const struct pass_opts *o, struct ir_module *m)
{
	pass_rewrite(m, on_op, NULL, NULL);
	return NULL;
}
