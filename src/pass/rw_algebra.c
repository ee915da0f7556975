/* Rewrites of elementwise ops.  What floats do with NaN, infinities and signs of zero stays as it is. */
#include "rewrites.h"

#include "../eval/eval.h"

/* Element v of the type is what every element of x is. */
static bool is_splat(const struct rewrite *r, ir_val x, double v)
{
	const struct ir_type_info *t = type_of(r, x);
	const void *p = ir_splat(r->m, r->b.fn, x);
	if (!p)
		return false;
	switch (t->dtype) {
	case DT_f64: return !memcmp(p, &v, 8);
	case DT_f32: return !memcmp(p, &(float){ (float)v }, 4);
	case DT_f16: return !memcmp(p, &(uint16_t){ f32_to_f16((float)v) }, 2);
	case DT_bf16: return !memcmp(p, &(uint16_t){ f32_to_bf16((float)v) }, 2);
	default: return false;
	}
}

static bool is_int(const struct rewrite *r, ir_val x, int64_t v)
{
	int64_t c;
	return whole_numbers(type_of(r, x)) && ir_const_int(r->m, r->b.fn, x, &c) && c == v;
}

static ir_val all_of(struct rewrite *r, const struct ir_op *o, int64_t v)
{
	return ir_const_i(&r->b, r->from->val.p[o->out].type, v);
}

ir_val rw_times_one(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	enum dtype dt = type_of(r, in[0])->dtype;
	if (dt != DT_f32 && dt != DT_bf16)
		return 0;
	if (is_splat(r, in[1], 1))
		return in[0];
	return o->kind == IR_multiply && is_splat(r, in[0], 1) ? in[1] : 0;
}

ir_val rw_times_zero(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	return is_int(r, in[0], 0) || is_int(r, in[1], 0) ? all_of(r, o, 0) : 0;
}

ir_val rw_and_or(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	if (type_of(r, in[0])->dtype != DT_pred)
		return 0;
	for (int k = 0; k < 2; k++) {
		const uint8_t *p = ir_splat(r->m, r->b.fn, in[k]);
		if (p)
			return (*p != 0) == (o->kind == IR_and) ? in[1 - k] : in[k];
	}
	return 0;
}

ir_val rw_same_twice(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	return in[0] == in[1] ? in[0] : 0;
}

ir_val rw_less_itself(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	return in[0] == in[1] && whole_numbers(type_of(r, in[0])) ? all_of(r, o, 0) : 0;
}

static bool has_nan(const struct ir_type_info *t)
{
	return !whole_numbers(t) && t->dtype != DT_pred;
}

ir_val rw_compare_itself(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	if (in[0] != in[1] || has_nan(type_of(r, in[0])))
		return 0;
	return all_of(r, o, o->kind == IR_compare_eq || o->kind == IR_compare_le || o->kind == IR_compare_ge);
}

ir_val rw_max_of_least(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_type_info *t = type_of(r, in[0]);
	char least[16];
	if (dtype_info[t->dtype].cls == DT_COMPLEX || t->dtype == DT_pred)
		return 0;
	kern_identity(o->kind == IR_maximum ? RED_max : RED_min, (enum dtype)t->dtype, least);
	for (int k = 0; k < 2; k++) {
		const void *p = ir_splat(r->m, r->b.fn, in[k]);
		if (p && !memcmp(p, least, dtype_info[t->dtype].bytes))
			return in[1 - k];
	}
	return 0;
}

ir_val rw_not_twice(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_op *d = made_by(r, in[0], IR_not);
	return d ? ir_in(r->b.fn, d, 0) : 0;
}

ir_val rw_not_of_compare(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	static const struct { uint16_t is, opposite; bool always; } row[] = {
		{ IR_compare_eq, IR_compare_ne, true }, { IR_compare_ne, IR_compare_eq, true }, { IR_compare_lt, IR_compare_ge, false },
		{ IR_compare_ge, IR_compare_lt, false }, { IR_compare_gt, IR_compare_le, false }, { IR_compare_le, IR_compare_gt, false },
	};
	for (size_t k = 0; k < NELEM(row); k++) {
		const struct ir_op *d = made_by(r, in[0], (enum ir_kind)row[k].is);
		if (!d)
			continue;
		ir_val x = ir_in(r->b.fn, d, 0), y = ir_in(r->b.fn, d, 1);
		return row[k].always || !has_nan(type_of(r, x)) ? ir_bin(&r->b, ir_elem((enum ir_kind)row[k].opposite), x, y) : 0;
	}
	return 0;
}

ir_val rw_negate_twice(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_op *d = made_by(r, in[0], IR_negate);
	return d ? ir_in(r->b.fn, d, 0) : 0;
}

ir_val rw_add_of_negative(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_op *left = made_by(r, in[0], IR_negate), *right = made_by(r, in[1], IR_negate);
	if (right)
		return ir_bin(&r->b, o->kind == IR_add ? ELEM_subtract : ELEM_add, in[0], ir_in(r->b.fn, right, 0));
	return left && o->kind == IR_add ? ir_bin(&r->b, ELEM_subtract, in[1], ir_in(r->b.fn, left, 0)) : 0;
}

ir_val rw_abs_of_sign(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_op *d = made_by(r, in[0], IR_negate);
	if (made_by(r, in[0], IR_abs))
		return in[0];
	return d ? ir_un(&r->b, ELEM_abs, ir_in(r->b.fn, d, 0)) : 0;
}

ir_val rw_square(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	return is_splat(r, in[1], 2) ? ir_bin(&r->b, ELEM_multiply, in[0], in[0]) : 0;
}

ir_val rw_select_of_bools(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const uint8_t *x = ir_splat(r->m, r->b.fn, in[1]), *y = ir_splat(r->m, r->b.fn, in[2]);
	if (result_type(r, o)->dtype != DT_pred || !x || !y || !*x == !*y || r->b.fn->val.p[in[0]].type != r->from->val.p[o->out].type)
		return 0;
	return *x ? in[0] : ir_un(&r->b, ELEM_not, in[0]);
}

ir_val rw_select_of_not(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_op *d = made_by(r, in[0], IR_not);
	return d ? ir_select(&r->b, ir_in(r->b.fn, d, 0), in[2], in[1]) : 0;
}

ir_val rw_select_twice(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	ir_val x[2] = { in[1], in[2] };
	bool any = false;
	for (int k = 0; k < 2; k++) {
		const struct ir_op *d = made_by(r, in[k + 1], IR_select);
		if (d && ir_in(r->b.fn, d, 0) == in[0]) {
			x[k] = ir_in(r->b.fn, d, (uint32_t)k + 1);
			any = true;
		}
	}
	return any ? ir_select(&r->b, in[0], x[0], x[1]) : 0;
}

ir_val rw_convert_back(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_op *d = made_by(r, in[0], IR_convert);
	if (!d)
		return 0;
	ir_val x = ir_in(r->b.fn, d, 0);
	enum dtype a = type_of(r, x)->dtype, b = type_of(r, in[0])->dtype, c = result_type(r, o)->dtype;
	bool small = a == DT_bf16 || a == DT_f16;
	return a == c && ((small && (b == DT_f32 || b == DT_f64)) || (a == DT_f32 && b == DT_f64)) ? x : 0;
}

ir_val rw_convert_of_bool(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_op *d = made_by(r, in[0], IR_convert);
	if (!d || type_of(r, ir_in(r->b.fn, d, 0))->dtype != DT_pred)
		return 0;
	const struct ir_type_info *by = type_of(r, in[0]);
	return (whole_numbers(by) || by->dtype == DT_f32) && dtype_info[by->dtype].bits > 1
	       ? ir_convert(&r->b, ir_in(r->b.fn, d, 0), result_type(r, o)->dtype) : 0;
}

/* The product of two bf16 or f16 is a number of f32: what is added up there, anyway, need not be rounded first. */
ir_val rw_sum_of_products(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_op *c = made_by(r, in[0], IR_convert), *x = c ? made_by(r, ir_in(r->b.fn, c, 0), IR_multiply) : NULL;
	if (!x || !conf_int(CONF_EXCESS_PRECISION) || o->nout != 1 || ir_attr(r->from, o, AT_redop) != RED_add || type_of(r, in[0])->dtype != DT_f32)
		return 0;
	enum dtype narrow = type_of(r, ir_in(r->b.fn, c, 0))->dtype;
	const struct ir_op *was = ir_def(r->from, ir_in(r->from, o, 0));
	bool once = was && r->from->val.p[ir_in(r->from, o, 0)].nuse == 1 && r->from->val.p[ir_in(r->from, was, 0)].nuse == 1;
	if (!once || (narrow != DT_bf16 && narrow != DT_f16))
		return 0;
	ir_val y[2] = { ir_in(r->b.fn, x, 0), ir_in(r->b.fn, x, 1) };
	ir_val wide = ir_convert(&r->b, y[0], DT_f32), other = y[1] == y[0] ? wide : ir_convert(&r->b, y[1], DT_f32), args[2] = { ir_bin(&r->b, ELEM_multiply, wide, other), in[1] };
	return ir_clone(&r->b, r->from, o, args);
}
