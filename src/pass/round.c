/* Rounding as XLA:CPU does it under --xla_allow_excess_precision=false: a sum (product) of bf16 or f16 rounds after
 * every addition, in the order of the elements.  A reduced dimension of more than 32 elements is added in two levels,
 * windows of 32 first, whose padding lies on both sides.  The dimensions that a product takes from one operand are one
 * to XLA, also behind elementwise operations with constants, if all of them are reduced. */
#include "passes.h"

enum { WINDOW = 32 };

static ir_fnid rounded(struct ir_module *m, enum redop op, enum dtype dt, ir_loc loc)
{
	struct ir_fn *g = ir_fn_new(m, "rounded");
	struct ir_b b = { m, g, loc };
	ir_type s = ir_scalar(m, dt);
	ir_val p = ir_param(g, s), q = ir_param(g, s), x = ir_convert(&b, p, DT_f32), y = ir_convert(&b, q, DT_f32);
	ir_val z = ir_bin(&b, op == RED_add ? ELEM_add : ELEM_multiply, x, y);
	ir_result(g, ir_convert(&b, z, dt));
	return g->id;
}

/* The first level: a window over each reduced dimension. */
static ir_val windows(struct rewrite *r, ir_val x, ir_val init, int nd, const int64_t *dims, ir_fnid f)
{
	struct ir_type_info t = *ir_vtype(r->m, r->b.fn, x);
	int n = t.rank;
	int64_t *w = ARENA_NEW(r->a, int64_t, 6 * (n + 1) + 2), *size = w + 1, *step = size + n + 1, *base = step + n + 1, *dilation = base + n + 1,
		*low = dilation + n + 1, *high = low + n + 1, dim[IR_MAX_RANK];
	for (int d = 0; d < n; d++) {
		bool reduced = in_list(dims, nd, d);
		size[d] = step[d] = reduced ? MIN(t.dim[d], WINDOW) : 1;
		base[d] = dilation[d] = 1;
		dim[d] = (t.dim[d] + size[d] - 1) / size[d];
		int64_t pad = dim[d] * size[d] - t.dim[d];
		low[d] = pad / 2;
		high[d] = pad - low[d];
	}
	for (int i = 0; i < 6; i++)
		w[i * (n + 1)] = n;
	w[6 * (n + 1)] = RED_fn;
	w[6 * (n + 1) + 1] = f;
	ir_val in[2] = { x, init };
	return ir_emit(&r->b, IR_reduce_window, 2, in, ir_tensor(r->m, t.dtype, n, dim), w, (uint32_t)(6 * (n + 1) + 2));
}

/* The product that v is, but for elementwise operations with constants; NULL: it is none. */
static const struct ir_op *product(const struct rewrite *r, ir_val v)
{
	const struct ir_fn *fn = r->b.fn;
	const struct ir_op *o = ir_def(fn, v);
	while (o && ir_is_elem(o->kind)) {
		ir_val next = 0;
		for (uint32_t k = 0; k < o->nin; k++)
			if (!ir_splat(r->m, fn, ir_in(fn, o, k))) {
				if (next)
					return NULL;
				next = ir_in(fn, o, k);
			}
		o = next ? ir_def(fn, next) : NULL;
	}
	return o && o->kind == IR_dot ? o : NULL;
}

/* x with the reduced dimensions of a product merged; rewrites the list of reduced dimensions. */
static ir_val merged(struct rewrite *r, ir_val x, int *nd, int64_t *dims)
{
	const struct ir_op *o = product(r, x);
	if (!o)
		return x;
	const struct ir_axes *ax = ir_axes_of(r->a, r->m, r->b.fn, o);
	const struct ir_type_info *t = ir_vtype(r->m, r->b.fn, x);
	bool reduced[IR_MAX_RANK] = {0}, whole[4] = { true, true, true, true };
	int of[IR_MAX_RANK], rank = 0, n = 0;     /* operands that a dimension is of, a bit each */
	int64_t dim[IR_MAX_RANK], list[IR_MAX_RANK];
	for (int i = 0; i < *nd; i++)
		reduced[dims[i]] = true;
	for (int d = 0; d < t->rank; d++) {
		int f = ax->dim[2][d].factor[0];
		of[d] = (ir_axes_find(ax, 0, f) >= 0) | (ir_axes_find(ax, 1, f) >= 0) << 1;
		whole[of[d]] &= reduced[d];
	}
	for (int d = 0; d < t->rank; d++) {
		if (d && of[d] == of[d - 1] && of[d] != 3 && whole[of[d]]) {    /* all that is free in one operand is summed */
			dim[rank - 1] *= t->dim[d];
			continue;
		}
		if (reduced[d])
			list[n++] = rank;
		dim[rank++] = t->dim[d];
	}
	memcpy(dims, list, sizeof *list * (size_t)n);
	*nd = n;
	return ir_reshape(&r->b, x, rank, dim);
}

static ir_val on_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_type_info *t = o->nout == 1 ? ir_vtype(r->m, r->from, o->out) : NULL;
	if (o->kind != IR_reduce || !t || dtype_info[t->dtype].cls != DT_FLOAT || dtype_info[t->dtype].bits > 16)
		return 0;
	enum redop op = (enum redop)ir_attr(r->from, o, AT_redop);
	if (op != RED_add && op != RED_mul)
		return 0;
	int nd;
	int64_t dims[IR_MAX_RANK];
	const int64_t *given = ir_attrs(r->from, o, AT_dims, &nd);
	enum dtype dt = t->dtype;
	memcpy(dims, given, sizeof *given * (size_t)nd);
	ir_val x[2] = { merged(r, in[0], &nd, dims), in[1] };
	const struct ir_type_info *xt = ir_vtype(r->m, r->b.fn, x[0]);
	bool large = false;
	for (int i = 0; i < nd; i++)
		large |= xt->dim[dims[i]] > WINDOW;
	large &= xt->count != 0;
	ir_fnid f = rounded(r->m, op, dt, o->loc);
	if (large)
		x[0] = windows(r, x[0], x[1], nd, dims, f);
	int64_t w[IR_MAX_RANK + 3] = { nd };
	memcpy(w + 1, dims, sizeof *dims * (size_t)nd);
	w[nd + 1] = RED_fn;
	w[nd + 2] = f;
	return ir_emit(&r->b, IR_reduce, 2, x, r->from->val.p[o->out].type, w, (uint32_t)nd + 3);
}

struct err *pass_round(const struct pass_opts *o, struct ir_module *m)
{
	if (!conf_int(CONF_EXCESS_PRECISION))
		pass_rewrite(m, on_op, NULL, NULL);
	return NULL;
}
