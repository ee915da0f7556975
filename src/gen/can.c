/* What can be compiled: asked by the compiler for every group it thinks of, so it must be cheap. */
#include "sched.h"

/* Beyond this a group's code would be too long. */
enum { MAX_OPS = 1500 };

enum gen_isa gen_isa(void)
{
	const struct cpu_info *c = cpu_get();
	return c->avx512_bf16 ? GEN_ISA_BF16 : c->avx512 ? GEN_ISA_AVX512 : c->avx2 ? GEN_ISA_AVX2 : GEN_ISA_NONE;
}

bool gen_has_control(const struct ir_module *m, const struct ir_fn *fn)
{
	for (size_t i = 0; i < fn->op.n; i++)
		if (fn->op.p[i].kind == IR_loop || fn->op.p[i].kind == IR_case || fn->op.p[i].kind == IR_call)
			return true;
	return false;
}

static bool elem_can(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	int from = ir_vtype(m, fn, ir_in(fn, o, o->nin > 1 ? 1 : 0))->dtype;
	enum elem e = ir_elem(o->kind);
	if (!gen_elem_ok(e) || !gen_dtype_ok(from))
		return false;
	if (e == ELEM_bitcast) {
		int to = ir_vtype(m, fn, o->out)->dtype;
		return dtype_info[from].bits == dtype_info[to].bits;
	}
	return true;
}

bool gen_can(const struct ir_module *m, const struct ir_fn *fn, const char **why)
{
	const char *dummy;
	if (!why)
		why = &dummy;
	*why = NULL;
	if (fn->op.n > MAX_OPS)
		*why = "more operations than one kernel should have";
	for (size_t v = 1; !*why && v < fn->val.n; v++)
		if (!gen_dtype_ok(ir_vtype(m, fn, (ir_val)v)->dtype))
			*why = "an element type that generated code does not have";
	if (*why)
		return false;
	if (gen_has_control(m, fn)) {
		*why = "control flow";
		return false;
	}
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		switch (o->kind) {
		case IR_constant: case IR_iota: case IR_broadcast: case IR_reshape: case IR_transpose: case IR_reverse:
		case IR_slice: case IR_dynamic_slice: case IR_concatenate: case IR_pad: case IR_gather: case IR_reduce:
		case IR_reduce_precision: case IR_sharding_constraint:
			continue;
		case IR_bitcast_convert:
			if (ir_vtype(m, fn, ir_in(fn, o, 0))->count == ir_vtype(m, fn, o->out)->count &&
			    dtype_info[ir_vtype(m, fn, ir_in(fn, o, 0))->dtype].bits == dtype_info[ir_vtype(m, fn, o->out)->dtype].bits)
				continue;
			*why = "bitcast_convert to another width";
			return false;
		default:
			if (ir_is_elem(o->kind) && elem_can(m, fn, o))
				continue;
			*why = "an operation that generated code does not have";
			return false;
		}
	}
	struct arena a;
	arena_init(&a);
	bool ok = gen_schedule(&a, m, fn, NULL, 64, why) != NULL;
	arena_fini(&a);
	return ok;
}
