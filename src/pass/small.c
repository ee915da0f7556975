/* Products of many matrices of a few elements each: a call of the product's kernel for each of them costs many times what is calculated.  They
 * become multiplications and short sums, which are one kernel, with what stands around them.  There each product is rounded before it is added.
 * So do products of vectors, one number each, which are all reading: sums are made by all cores, and beside what makes the vectors.
 * So do convolutions of one feature with a kernel of a few elements (blurs, stencils), of which the product's kernel makes little, too. */
#include "passes.h"

enum { LEAST_BATCH = 32, MOST_EXTENT = 16, MOST_WORK = 512, LEAST_SUM = 128, MOST_PLACES = 9, LEAST_COUNT = 129 };    /* fewer elements are left to loops that are one kernel */

/* The sum, over the kernel's places, of what each adds where it meets an element of the operand. */
static ir_val convolution(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	int n, c;
	struct ir_b *b = &r->b;
	const struct ir_type_info to = *ir_vtype(r->m, r->from, o->out), k = *ir_vtype(r->m, b->fn, in[1]);
	const int64_t *lhs = ir_attrs(r->from, o, AT_lhs, &n), *rhs = ir_attrs(r->from, o, AT_rhs, &n), *out = ir_attrs(r->from, o, AT_out, &n),
	              *stride = ir_attrs(r->from, o, AT_stride, &c), *low = ir_attrs(r->from, o, AT_low, &c), *apart = ir_attrs(r->from, o, AT_rhs_dilation, &c),
	              *between = ir_attrs(r->from, o, AT_lhs_dilation, &c), *turned = ir_attrs(r->from, o, AT_reversal, &c);
	enum dtype from = ir_vtype(r->m, b->fn, in[0])->dtype, dt = gen_products_sum(from, to.dtype);
	int64_t perm[IR_MAX_RANK], ix[IR_MAX_RANK] = {0}, zero = 0;
	if (dt == DT_token || k.dtype != from || k.count > MOST_PLACES || !k.count || k.dim[rhs[0]] * k.dim[rhs[1]] != 1 || to.count < LEAST_COUNT ||
	    ir_attr(r->from, o, AT_feature_groups) * ir_attr(r->from, o, AT_batch_groups) != 1)
		return 0;
	for (int i = 0; i < c; i++)
		if (between[i] != 1)
			return 0;
	for (int i = 0; i < n; i++)
		perm[out[i]] = lhs[i];
	ir_val x = ir_transpose(b, in[0], perm), w = ir_convert(b, in[1], dt), sum = 0, none = ir_const_i(b, ir_scalar(r->m, dt), 0);
	const struct ir_type_info t = *ir_vtype(r->m, b->fn, x);
	for (int64_t place = 0; place < k.count; place++) {
		int64_t start[IR_MAX_RANK] = {0}, limit[IR_MAX_RANK], step[IR_MAX_RANK], at[IR_MAX_RANK], end[IR_MAX_RANK], one[IR_MAX_RANK], pad[3 * (IR_MAX_RANK + 1)] = {0};
		bool any = true;
		pad[0] = pad[n + 1] = pad[2 * n + 2] = n;
		for (int d = 0; d < n; d++) {
			limit[d] = t.dim[d];
			step[d] = one[d] = end[d] = 1;
			at[d] = 0;
		}
		for (int i = 0; i < c; i++) {
			/* it meets elements from .. of the operand at outputs first .. last */
			int d = (int)out[2 + i];
			int64_t shift = ix[i] * apart[i] - low[i], first = shift < 0 ? (-shift + stride[i] - 1) / stride[i] : 0,
			        room = t.dim[d] - 1 - shift, last = room < 0 ? -1 : MIN(room / stride[i], to.dim[d] - 1);
			any &= first <= last;
			start[d] = first * stride[i] + shift;
			limit[d] = last * stride[i] + shift + 1;
			step[d] = stride[i];
			pad[1 + d] = first;
			pad[n + 2 + d] = to.dim[d] - 1 - last;
			at[rhs[2 + i]] = turned[i] ? k.dim[rhs[2 + i]] - 1 - ix[i] : ix[i];
			end[rhs[2 + i]] = at[rhs[2 + i]] + 1;
		}
		if (any) {
			ir_val p = ir_convert(b, ir_slice(b, x, start, limit, step), dt), f = ir_reshape(b, ir_slice(b, w, at, end, one), 0, &zero);
			p = ir_bin(b, ELEM_multiply, p, ir_splat_of(b, f, b->fn->val.p[p].type));
			p = ir_emit(b, IR_pad, 2, (ir_val[]){ p, none }, ir_tensor(r->m, dt, n, to.dim), pad, (uint32_t)(3 * (n + 1)));
			sum = sum ? ir_bin(b, ELEM_add, sum, p) : p;
		}
		for (int i = c - 1; i >= 0 && ++ix[i] == k.dim[rhs[2 + i]]; i--)
			ix[i] = 0;
	}
	return sum ? ir_convert(b, sum, (enum dtype)to.dtype) : 0;
}

static ir_val on_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	if (o->kind == IR_convolution)
		return convolution(r, o, in);
	if (o->kind != IR_dot || ir_attr(r->from, o, AT_components) != 1 || ir_attr(r->from, o, AT_acc) != DT_token)
		return 0;
	const struct ir_type_info t = *ir_vtype(r->m, r->from, o->out);
	enum dtype x = ir_vtype(r->m, r->b.fn, in[0])->dtype, dt = gen_products_sum(x, (enum dtype)t.dtype);
	if (dt == DT_token || ir_vtype(r->m, r->b.fn, in[1])->dtype != x)
		return 0;
	/* of all there is, dimension place[f] is factor f: what is contracted stands before what is free in rhs, along which the lanes go */
	const struct ir_axes *ax = ir_axes_of(r->a, r->m, r->from, o);
	int64_t dim[IR_MAX_RANK], *place = ARENA_NEW(r->a, int64_t, ax->nfactor + 1), to[2][IR_MAX_RANK], sum[IR_MAX_RANK], each = 1, batch = 1, count = 1;
	bool wide = false;
	int n = ax->nfactor, nsum = n - t.rank, first = 0;
	if (n > IR_MAX_RANK || !nsum)
		return 0;
	while (first < t.rank && ir_axes_find(ax, 0, ax->dim[2][first].factor[0]) >= 0)
		first++;
	for (int d = 0; d < t.rank; d++)
		place[ax->dim[2][d].factor[0]] = d < first ? d : d + nsum;
	for (int f = 0, k = 0; f < n; f++)
		if (ax->factor[f].kind == FACTOR_SUM)
			place[f] = sum[k] = first + k, k++;
	for (int f = 0; f < n; f++) {
		bool both = ax->factor[f].kind != FACTOR_SUM && ir_axes_find(ax, 0, f) >= 0 && ir_axes_find(ax, 1, f) >= 0;
		dim[place[f]] = ax->factor[f].size;
		*(both ? &batch : &each) *= ax->factor[f].size;
		count *= ax->factor[f].kind == FACTOR_SUM ? ax->factor[f].size : 1;
		wide |= !both && ax->factor[f].size > MOST_EXTENT;
	}
	bool vectors = each == count && count >= LEAST_SUM, matrices = batch >= LEAST_BATCH && !wide && each <= MOST_WORK && each;
	if (!vectors && !matrices)
		return 0;
	for (int s = 0; s < 2; s++)
		for (int d = ir_vtype(r->m, r->b.fn, in[s])->rank; d-- > 0;)
			to[s][d] = place[ax->dim[s][d].factor[0]];
	ir_type all = ir_tensor(r->m, dt, n, dim);
	ir_val p = ir_bin(&r->b, ELEM_multiply, pass_spread(&r->b, in[0], all, to[0]), pass_spread(&r->b, in[1], all, to[1]));
	return ir_convert(&r->b, ir_reduce1(&r->b, RED_add, p, ir_const_i(&r->b, ir_scalar(r->m, dt), 0), nsum, sum), (enum dtype)t.dtype);
}

void pass_small(struct ir_module *m)
{
	if (pass_has(m, IR_dot) || pass_has(m, IR_convolution))
		pass_rewrite(m, on_op, NULL, NULL);
}
