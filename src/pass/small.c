/* Products of many matrices of a few elements each: a call of the product's kernel for each of them costs many times what is calculated.  They
 * become multiplications and short sums, which are one kernel, with what stands around them.  There each product is rounded before it is added. */
#include "passes.h"

enum { LEAST_BATCH = 32, MOST_EXTENT = 16, MOST_WORK = 512 };

static ir_val on_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	if (o->kind != IR_dot || ir_attr(r->from, o, AT_components) != 1 || ir_attr(r->from, o, AT_acc) != DT_token)
		return 0;
	const struct ir_type_info t = *ir_vtype(r->m, r->from, o->out);
	enum dtype x = ir_vtype(r->m, r->b.fn, in[0])->dtype, dt = gen_products_sum(x, (enum dtype)t.dtype);
	if (dt == DT_token || ir_vtype(r->m, r->b.fn, in[1])->dtype != x)
		return 0;
	/* of all there is, dimension place[f] is factor f: what is contracted stands before what is free in rhs, along which the lanes go */
	const struct ir_axes *ax = ir_axes_of(r->a, r->m, r->from, o);
	int64_t dim[IR_MAX_RANK], *place = ARENA_NEW(r->a, int64_t, ax->nfactor + 1), to[2][IR_MAX_RANK], sum[IR_MAX_RANK], each = 1, batch = 1;
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
		if (!both && ax->factor[f].size > MOST_EXTENT)
			return 0;
	}
	if (batch < LEAST_BATCH || each > MOST_WORK || !each)
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
	if (pass_has(m, IR_dot))
		pass_rewrite(m, on_op, NULL, NULL);
}
