/* Joint reducers become what collectives have: the parts (o, l) of a softmax over devices (redop.def) are weighted and added.
 *
 * Small parts are gathered, and combined on each device: one exchange.  Large ones are added: the greatest l first, then
 * sum exp(l - max) o and sum exp(l - max) as one all_reduce, which moves each byte twice, not once for each member. */
#include "passes.h"

#include <math.h>

enum { GATHER_BYTES = 32 << 10 };            /* gathered, on each device; above it the sums were faster on mapped memory, with 2, 4 and 8 devices */

/* The type that o is added up in; logarithms are f64. */
static enum dtype wider(const struct rewrite *r, const ir_val *in) { return ir_vtype(r->m, r->b.fn, in[0])->dtype == DT_f64 ? DT_f64 : DT_f32; }

/* x, whose dimensions are those of t from first on, as many as it has. */
static ir_val over(struct ir_b *b, ir_val x, ir_type t, int first)
{
	int64_t dims[IR_MAX_RANK];
	for (int d = 0; d < ir_vtype(b->m, b->fn, x)->rank; d++)
		dims[d] = first + d;
	return ir_broadcast(b, x, t, dims);
}

static ir_val one_of(struct ir_b *b, ir_val x, double v)
{
	return ir_const_f(b, b->fn->val.p[x].type, v);
}

/* exp(l - most); 0 where l is -inf, where most may be, too. */
static ir_val weight(struct ir_b *b, ir_val l, ir_val most)
{
	ir_val e = ir_un(b, ELEM_exponential, ir_bin(b, ELEM_subtract, l, most)), none = ir_bin(b, ELEM_compare_eq, l, one_of(b, l, -INFINITY));
	return ir_select(b, none, one_of(b, l, 0), e);
}

/* x * w; what weighs nothing counts nothing, whatever it is. */
static ir_val weighed(struct ir_b *b, ir_val x, ir_val w)
{
	ir_val each = over(b, w, b->fn->val.p[x].type, 0), y = ir_bin(b, ELEM_multiply, x, each);
	ir_val none = ir_bin(b, ELEM_compare_eq, each, one_of(b, each, 0));
	return ir_select(b, none, one_of(b, x, 0), y);
}

/* sum / weights, 0 where there is none. */
static ir_val over_weights(struct ir_b *b, ir_val sum, ir_val weights)
{
	ir_val all = over(b, weights, b->fn->val.p[sum].type, 0);
	ir_val none = ir_bin(b, ELEM_compare_eq, all, one_of(b, all, 0)), v = ir_bin(b, ELEM_divide, sum, all);
	return ir_select(b, none, one_of(b, sum, 0), v);
}

ir_val pass_soft_log(struct ir_b *b, ir_val most, ir_val weights)
{
	ir_val m = ir_convert(b, most, DT_f64), w = ir_convert(b, weights, DT_f64);
	return ir_bin(b, ELEM_add, m, ir_un(b, ELEM_log, w));
}

/* In the types of the op's results; weights are f64. */
static void finish(struct rewrite *r, const struct ir_op *op, uint32_t k, ir_val sum, ir_val weights, ir_val most)
{
	ir_val v[2];
	ir_val shares = ir_convert(&r->b, weights, ir_vtype(r->m, r->b.fn, sum)->dtype);
	v[0] = over_weights(&r->b, sum, shares);
	v[1] = pass_soft_log(&r->b, most, weights);
	for (uint32_t j = 0; j < 2; j++)
		r->map[op->out + k + j] = ir_convert(&r->b, v[j], ir_vtype(r->m, r->from, op->out + k + j)->dtype);
}

void pass_soft_add(struct ir_b *b, ir_val *part, const ir_val *more)
{
	ir_val most = ir_bin(b, ELEM_maximum, part[1], more[1]);
	ir_val w = ir_bin(b, ELEM_multiply, weight(b, part[1], most), part[2]), x = ir_bin(b, ELEM_multiply, weight(b, more[1], most), more[2]);
	ir_val o = weighed(b, part[0], w), p = weighed(b, more[0], x), sum = ir_bin(b, ELEM_add, o, p);
	part[1] = most;
	part[2] = ir_bin(b, ELEM_add, w, x);
	part[0] = over_weights(b, sum, part[2]);
}

static void by_gather(struct rewrite *r, const struct ir_op *op, uint32_t k, const ir_val *in, ir_group group, int64_t n)
{
	struct ir_b *b = &r->b;
	enum dtype dt = wider(r, in);
	int64_t w[2] = { 0, group }, dim[IR_MAX_RANK], first[1] = { 0 };
	ir_val one[2];
	ir_type all[2];
	for (int j = 0; j < 2; j++) {
		const struct ir_type_info *t = ir_vtype(r->m, b->fn, in[j]);
		int rank = t->rank;
		enum dtype own = t->dtype;
		dim[0] = 1;
		memcpy(dim + 1, t->dim, sizeof *dim * (size_t)rank);
		one[j] = ir_reshape(b, in[j], rank + 1, dim);
		dim[0] = n;
		all[j] = ir_tensor(r->m, own, rank + 1, dim);
	}
	ir_val v = ir_emit_raw(b, IR_all_gather, 2, one, 2, all, w, 2), o = ir_convert(b, v, dt), l = ir_convert(b, v + 1, DT_f64);
	ir_val most = ir_reduce1(b, RED_max, l, ir_const_f(b, ir_scalar(r->m, DT_f64), -INFINITY), 1, first);
	ir_val each = weight(b, l, over(b, most, b->fn->val.p[l].type, 1)), shares = ir_convert(b, each, dt);
	ir_val weights = ir_reduce1(b, RED_add, each, ir_const_f(b, ir_scalar(r->m, DT_f64), 0), 1, first), zero = ir_const_f(b, ir_scalar(r->m, dt), 0);
	finish(r, op, k, ir_reduce1(b, RED_add, weighed(b, o, shares), zero, 1, first), weights, most);
}

static void by_sum(struct rewrite *r, const struct ir_op *op, uint32_t k, const ir_val *in, ir_group group)
{
	struct ir_b *b = &r->b;
	enum dtype dt = wider(r, in);
	bool scatter = op->kind == IR_reduce_scatter;
	ir_val o = ir_convert(b, in[0], dt), l = ir_convert(b, in[1], DT_f64);
	ir_type tl = b->fn->val.p[l].type, t[2];
	int64_t w[3] = { group, RED_max, 0 }, ws[4] = { scatter ? ir_attr(r->from, op, AT_dim) : 0, group, RED_add, 0 };
	ir_val most = ir_emit_raw(b, IR_all_reduce, 1, &l, 1, &tl, w, 3), part[2];
	part[1] = weight(b, l, most);
	part[0] = weighed(b, o, ir_convert(b, part[1], dt));
	for (uint32_t j = 0; j < 2; j++) {
		const struct ir_type_info *to = ir_vtype(r->m, r->from, op->out + k + j);
		int64_t dim[IR_MAX_RANK];
		int rank = to->rank;
		memcpy(dim, to->dim, sizeof *dim * (size_t)rank);
		t[j] = ir_tensor(r->m, j ? DT_f64 : dt, rank, dim);
	}
	if (scatter) {                       /* each device's block of most */
		ws[2] = RED_max;
		most = ir_emit_raw(b, IR_reduce_scatter, 1, &l, 1, &t[1], ws, 4);
		ws[2] = RED_add;
	}
	w[1] = RED_add;
	ir_val v = scatter ? ir_emit_raw(b, IR_reduce_scatter, 2, part, 2, t, ws, 4) : ir_emit_raw(b, IR_all_reduce, 2, part, 2, t, w, 3);
	finish(r, op, k, v, v + 1, most);
}

/* Members of each row of the group; 0: rows differ, or some device is in none. */
static int64_t members(const struct rewrite *r, ir_group group)
{
	const struct ir_group_info *g = &r->m->group.p[group];
	for (int64_t i = 0; i < (int64_t)g->nrow * g->ncol; i++)
		if (g->id[i] < 0)
			return 0;
	return (int64_t)g->nrow * g->ncol == r->m->num_partitions ? g->ncol : 0;
}

static ir_val joint(struct rewrite *r, const struct ir_op *op, const ir_val *in)
{
	if ((op->kind != IR_all_reduce && op->kind != IR_reduce_scatter) || ir_attr(r->from, op, AT_redop) != RED_softmax)
		return 0;
	ir_group group = (ir_group)ir_attr(r->from, op, AT_group);
	int64_t n = members(r, group);
	for (uint32_t k = 0; k < op->nin; k += 2) {
		int64_t bytes = n * (ir_vtype(r->m, r->b.fn, in[k])->bytes + ir_vtype(r->m, r->b.fn, in[k + 1])->bytes);
		if (op->kind == IR_all_reduce && n && bytes <= GATHER_BYTES)
			by_gather(r, op, k, in + k, group, n);
		else
			by_sum(r, op, k, in + k, group);
	}
	return REWRITE_MAPPED;
}

struct err *pass_joint(const struct pass_opts *o, struct ir_module *m)
{
	if (pass_has(m, IR_all_reduce) || pass_has(m, IR_reduce_scatter))
		pass_rewrite(m, joint, NULL, NULL);
	return NULL;
}
