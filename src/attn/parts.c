/* o of an attention in two parts, the bf16 that the program has of it and what that lacks.
 *
 * Delta of a gradient is the sum of do o, and is subtracted from y = do . v.  Where values have a mean both are much larger than their
 * difference, and most of it would be the rounding of o to bf16 (docs/attention.md).  So the
 * op gives o in f32, which is taken apart where it is made: a number's bits as an integer are those of the bf16 next to it, and a
 * difference of 16 bits, of which the upper 8 are kept.  Delta has 16 bits of o's mantissa then, for a byte more. */
#include "attn.h"

enum { CUT = 8 };

ir_val attn_two_parts(struct ir_b *b, ir_val o, ir_val *below)
{
	ir_val high = ir_convert(b, o, DT_bf16), all = ir_bitcast(b, o, DT_i32), near = ir_bitcast(b, ir_convert(b, high, DT_f32), DT_i32);
	ir_val d = ir_bin(b, ELEM_subtract, all, near);
	ir_type t = b->fn->val.p[d].type;
	d = ir_bin(b, ELEM_shift_right_arithmetic, d, ir_const_i(b, t, CUT));
	d = ir_convert(b, ir_bin(b, ELEM_minimum, d, ir_const_i(b, t, INT8_MAX)), DT_i8);
	/* made here, so that nothing wider stays */
	ir_val part = ir_emit_raw(b, IR_optimization_barrier, 2, (ir_val[]){ high, d }, 2, (ir_type[]){ b->fn->val.p[high].type, b->fn->val.p[d].type }, NULL, 0);
	*below = part + 1;
	return part;
}

ir_val attn_whole(struct ir_b *b, ir_val high, ir_val below)
{
	ir_val x = ir_bitcast(b, ir_convert(b, high, DT_f32), DT_i32), d = ir_convert(b, below, DT_i32);
	d = ir_bin(b, ELEM_shift_left, d, ir_const_i(b, b->fn->val.p[d].type, CUT));
	return ir_bitcast(b, ir_bin(b, ELEM_add, x, d), DT_f32);
}

/* --- finding them ---------------------------------------------------------------------- */

struct found { const struct ir_module *m; const struct ir_fn *fn; int *op, n; };

/* What makes v, if that is of this kind and type, with so many readers; it is noted. */
static const struct ir_op *made(struct found *f, ir_val v, enum ir_kind kind, enum dtype dt, uint32_t readers)
{
	const struct ir_op *o = ir_def(f->fn, v);
	if (!o || o->kind != kind || ir_vtype(f->m, f->fn, v)->dtype != dt || f->fn->val.p[v].nuse != readers)
		return NULL;
	f->op[f->n++] = (int)(o - f->fn->op.p);
	return o;
}

static bool is_number(const struct found *f, ir_val v, int32_t n)
{
	const void *p = ir_splat(f->m, f->fn, v);
	return p && !memcmp(p, &n, sizeof n);
}

/* Of op, a barrier: is it what attn_two_parts makes of v? */
static bool two_parts(struct found *f, const struct ir_op *op, ir_val v)
{
	const struct ir_op *o;
	if (op->nin != 2 || !(o = made(f, ir_in(f->fn, op, 0), IR_convert, DT_bf16, 2)) || ir_in(f->fn, o, 0) != v)
		return false;
	if (!(o = made(f, ir_in(f->fn, op, 1), IR_convert, DT_i8, 1)))
		return false;
	if (!(o = made(f, ir_in(f->fn, o, 0), IR_minimum, DT_i32, 1)) || !is_number(f, ir_in(f->fn, o, 1), INT8_MAX))
		return false;
	if (!(o = made(f, ir_in(f->fn, o, 0), IR_shift_right_arithmetic, DT_i32, 1)) || !is_number(f, ir_in(f->fn, o, 1), CUT))
		return false;
	if (!(o = made(f, ir_in(f->fn, o, 0), IR_subtract, DT_i32, 1)))
		return false;
	const struct ir_op *all = made(f, ir_in(f->fn, o, 0), IR_bitcast, DT_i32, 1), *near = made(f, ir_in(f->fn, o, 1), IR_bitcast, DT_i32, 1);
	return all && ir_in(f->fn, all, 0) == v && near && (o = made(f, ir_in(f->fn, near, 0), IR_convert, DT_f32, 1)) && ir_in(f->fn, o, 0) == ir_in(f->fn, op, 0);
}

const struct ir_op *attn_parts_of(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, int between[ATTN_BETWEEN])
{
	if (o->kind != IR_attention || o->nout != 2 || ir_vtype(m, fn, o->out)->dtype != DT_f32 || fn->val.p[o->out].nuse != 2)
		return NULL;
	for (uint32_t u = ir_use_first(fn, o->out); u; u = ir_use_next(fn, u)) {
		const struct ir_op *high = &fn->op.p[ir_use_op(fn, u)];
		for (uint32_t w = high->kind == IR_convert ? ir_use_first(fn, high->out) : 0; w; w = ir_use_next(fn, w)) {
			const struct ir_op *part = &fn->op.p[ir_use_op(fn, w)];
			struct found f = { m, fn, between, 0 };
			if (part->kind == IR_optimization_barrier && two_parts(&f, part, o->out))
				return part;
		}
	}
	return NULL;
}
