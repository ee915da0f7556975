/* Products of small values: which elements of the two operands meet for each element of the result. */
#include "sched.h"

enum dtype gen_products_sum(enum dtype x, enum dtype t)
{
	int cls = dtype_info[t].cls;

	if (cls == DT_FLOAT && dtype_info[x].bits == 16 && dtype_info[x].cls == DT_FLOAT)
		return t == x || t == DT_f32 ? DT_f32 : DT_token;
	return x == t && dtype_info[t].bits >= 32 && (cls == DT_FLOAT || cls == DT_INT || cls == DT_UINT) ? t : DT_token;
}

int64_t gen_products_terms(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	int64_t n = 1;

	if (o->kind == IR_convolution) {
		const struct ir_type_info *y = ir_vtype(m, fn, ir_in(fn, o, 1));
		int rank;
		const int64_t *rhs = ir_attrs(fn, o, AT_rhs, &rank);
		for (int d = 0; d < rank; d++)
			n *= d == rhs[1] ? 1 : y->dim[d];
		return n;
	}
	const struct ir_axes *ax = ir_axes_of(a, m, fn, o);
	for (int f = 0; f < ax->nfactor; f++)
		n *= ax->factor[f].kind == FACTOR_SUM ? ax->factor[f].size : 1;
	return n;
}

/* The next index of an array of these dimensions, row-major; false behind the last. */
static bool next(int rank, const int64_t *dim, int64_t *ix)
{
	int d = rank - 1;

	while (d >= 0 && ++ix[d] == dim[d])
		ix[d--] = 0;
	return d >= 0;
}

static void dot(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, struct gen_products *p)
{
	const struct ir_axes *ax = ir_axes_of(a, m, fn, o);
	int64_t *by[2], *ix = ARENA_NEW(a, int64_t, ax->nfactor + 1), *dim = ARENA_NEW(a, int64_t, ax->nfactor + 1), st[IR_MAX_RANK], at = 0;
	int *order = ARENA_NEW(a, int, ax->nfactor + 1), n = 0;

	/* all factors: those of the sum, then the result's as its dimensions are */
	for (int f = 0; f < ax->nfactor; f++)
		if (ax->factor[f].kind == FACTOR_SUM)
			order[n++] = f;
	for (int d = 0; d < ax->rank[2]; d++)
		order[n++] = ax->dim[2][d].factor[0];
	for (int s = 0; s < 2; s++) {
		const struct ir_type_info *t = ir_vtype(m, fn, ir_in(fn, o, (uint32_t)s));
		gen_strides(t->rank, t->dim, st);
		by[s] = ARENA_NEW(a, int64_t, n + 1);
		for (int i = 0; i < n; i++) {
			int d = ir_axes_find(ax, s, order[i]);
			by[s][i] = d < 0 ? 0 : st[d];
			dim[i] = ax->factor[order[i]].size;
		}
	}
	do {
		for (int s = 0; s < 2; s++)
			for (int i = 0; i < n; i++)
				p->at[s][at] += ix[i] * by[s][i];
		at++;
	} while (next(n, dim, ix));
}

static void convolution(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, struct gen_products *p)
{
	const struct ir_type_info *x = ir_vtype(m, fn, ir_in(fn, o, 0)), *y = ir_vtype(m, fn, ir_in(fn, o, 1)), *to = ir_vtype(m, fn, o->out);
	int n, c;
	const int64_t *lhs = ir_attrs(fn, o, AT_lhs, &n), *rhs = ir_attrs(fn, o, AT_rhs, &n), *out = ir_attrs(fn, o, AT_out, &n),
	              *stride = ir_attrs(fn, o, AT_stride, &c), *low = ir_attrs(fn, o, AT_low, &c), *between = ir_attrs(fn, o, AT_lhs_dilation, &c),
	              *apart = ir_attrs(fn, o, AT_rhs_dilation, &c), *turned = ir_attrs(fn, o, AT_reversal, &c);
	int64_t fg = ir_attr(fn, o, AT_feature_groups), bg = ir_attr(fn, o, AT_batch_groups), xs[IR_MAX_RANK], ys[IR_MAX_RANK], dim[IR_MAX_RANK],
	        k[IR_MAX_RANK] = {0}, at = 0;

	gen_strides(x->rank, x->dim, xs);
	gen_strides(y->rank, y->dim, ys);
	dim[0] = y->dim[rhs[0]];              /* input features, positions of the kernel */
	for (int i = 0; i < c; i++)
		dim[1 + i] = y->dim[rhs[2 + i]];
	do {
		int64_t ix[IR_MAX_RANK] = {0};
		do {
			int64_t f = ix[out[1]], features = to->dim[out[1]], off = (ix[out[0]] + f / (features / bg) * to->dim[out[0]]) * xs[lhs[0]];
			off += (f / (features / fg) * dim[0] + k[0]) * xs[lhs[1]];
			p->at[1][at] = k[0] * ys[rhs[0]] + f * ys[rhs[1]];
			for (int i = 0; i < c; i++) {
				int64_t q = ix[out[2 + i]] * stride[i] + k[1 + i] * apart[i] - low[i];
				bool in = q >= 0 && q % between[i] == 0 && q / between[i] < x->dim[lhs[2 + i]];
				off = off < 0 || !in ? -1 : off + q / between[i] * xs[lhs[2 + i]];
				p->at[1][at] += (turned[i] ? dim[1 + i] - 1 - k[1 + i] : k[1 + i]) * ys[rhs[2 + i]];
			}
			p->at[0][at++] = off;
		} while (next(to->rank, to->dim, ix));
	} while (next(c + 1, dim, k));
}

void gen_products_of(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, struct gen_products *p)
{
	p->n = ir_vtype(m, fn, o->out)->count;
	p->terms = gen_products_terms(a, m, fn, o);
	for (int s = 0; s < 2; s++)
		p->at[s] = ARENA_NEW(a, int64_t, p->n * p->terms + 1);
	if (p->n && p->terms)
		o->kind == IR_dot ? dot(a, m, fn, o, p) : convolution(m, fn, o, p);
}
