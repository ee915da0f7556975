/* What can be compiled: asked by the compiler for every group it thinks of, so it must be cheap. */
#include "sched.h"

/* Beyond this a group's code would be too long. */
enum { MAX_OPS = 1500 };

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


static bool touches_large(const struct ir_fn *fn, const struct ir_op *o, const uint8_t *large)
{
	for (uint32_t k = 0; k < o->nin; k++)
		if (large[ir_in(fn, o, k)])
			return true;
	for (uint32_t k = 0; k < o->nout; k++)
		if (large[o->out + k])
			return true;
	return false;
}

/* ops, work: operations, and vectors of values, seen so far. */
struct tiny { const struct gen_target *t; const struct ir_module *m; int ops, work; const char *why; };

static bool tiny_fn(struct tiny *t, const struct ir_fn *fn, int depth);

static bool tiny_loop(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, int depth, const uint8_t *large)
{
	const struct ir_module *m = t->m;
	struct arena a;
	arena_init(&a);
	struct ir_loop l = ir_loop_view(&a, m, fn, o);
	bool ok = tiny_fn(t, l.body, depth + 1) && (!l.cond || tiny_fn(t, l.cond, depth + 1));
	for (int k = 0; k < l.n && ok; k++) {
		if (large[l.x[k].v] && !ir_role_is_stack(l.x[k].role)) {
			t->why = "a loop over large values";
			ok = false;
		} else if (ir_role_is_out(l.x[k].role) && ir_vtype(m, fn, l.x[k].v)->bytes > 1 << 16) {
			bool res = false;        /* has to be the function's result: nothing else has the room */
			for (size_t r = 0; r < fn->result.n; r++)
				res |= fn->result.p[r] == o->out + (ir_val)l.x[k].result;
			if (!res || depth) {
				t->why = "a large stack inside control flow";
				ok = false;
			}
		}
	}
	arena_fini(&a);
	return ok;
}

/* Control flow over small values. */
static bool tiny_fn(struct tiny *t, const struct ir_fn *fn, int depth)
{
	const struct ir_module *m = t->m;
	if (depth > 12 || (t->ops += (int)fn->op.n) > 600) {
		t->why = "control flow with too many operations";
		return false;
	}
	if (!gen_types(m, fn)) {
		t->why = "an element type that generated code does not have";
		return false;
	}
	/* large values may only be parameters that are passed on, stacks, or equal elements */
	uint8_t large[4096];
	if (fn->val.n > sizeof large) {
		t->why = "control flow with too many operations";
		return false;
	}
	for (size_t v = 1; v < fn->val.n; v++)
		large[v] = ir_vtype(m, fn, (ir_val)v)->count > t->t->tiny;
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		const struct ir_type_info *to = o->nout ? ir_vtype(m, fn, o->out) : NULL;
		int n;
		t->work += to ? (int)((MIN(to->count, t->t->tiny) + 15) / 16) : 0;
		if (t->work > 4000) {
			t->why = "control flow with too many operations";
			return false;
		}
		switch (o->kind) {
		case IR_loop: {
			if (!tiny_loop(t, fn, o, depth, large))
				return false;
			continue;
		}
		case IR_case: {
			const int64_t *f = ir_attrs(fn, o, AT_branch, &n);
			for (int k = 0; k < n; k++)
				if (!tiny_fn(t, ir_fn_of(m, (ir_fnid)f[k]), depth + 1))
					return false;
			if (touches_large(fn, o, large)) {
				t->why = "a branch over large values";
				return false;
			}
			continue;
		}
		case IR_call:
			if (!tiny_fn(t, ir_fn_of(m, (ir_fnid)ir_attr(fn, o, AT_fn)), depth + 1))
				return false;
			if (touches_large(fn, o, large)) {
				t->why = "a call with large values";
				return false;
			}
			continue;
		case IR_constant: case IR_broadcast:
			if (large[o->out] && (o->kind == IR_constant ? ir_splat(m, fn, o->out) != NULL : ir_vtype(m, fn, ir_in(fn, o, 0))->count == 1))
				continue;
			break;
		case IR_dynamic_slice: case IR_slice: case IR_transpose: case IR_reverse:
			if (!large[o->out])
				continue;             /* a part of a stack */
			break;
		case IR_reduce: {
			enum redop r = (enum redop)ir_attr(fn, o, AT_redop);
			if (o->nin > 16)
				t->why = "reduction of many operands";
			else if (r == RED_lse || (r == RED_fn && !tiny_fn(t, ir_fn_of(m, (ir_fnid)ir_attr(fn, o, AT_fn)), depth + 1)))
				t->why = "a reducer that generated code does not have";
			if (t->why)
				return false;
			t->work += (int)ir_vtype(m, fn, ir_in(fn, o, 0))->count * (r == RED_fn ? 4 : 1);
			break;
		}
		case IR_iota: case IR_reshape: case IR_concatenate: case IR_pad: case IR_reduce_precision:
		case IR_sharding_constraint: case IR_dynamic_update_slice:
			break;
		case IR_bitcast_convert:
			if (ir_vtype(m, fn, ir_in(fn, o, 0))->count != to->count ||
			    dtype_info[ir_vtype(m, fn, ir_in(fn, o, 0))->dtype].bits != dtype_info[to->dtype].bits) {
				t->why = "bitcast_convert to another width";
				return false;
			}
			break;
		default:
			if (ir_is_elem(o->kind) && elem_can(m, fn, o))
				break;
			t->why = "an operation that generated code does not have";
			return false;
		}
		for (uint32_t k = 0; k < o->nout; k++)
			if (large[o->out + k])
				t->why = "control flow over large values";
		for (uint32_t k = 0; k < o->nin; k++)
			if (large[ir_in(fn, o, k)])
				t->why = "control flow over large values";
		if (t->why)
			return false;
	}
	/* a large result has to be a stack that a loop wrote, or a parameter */
	for (size_t r = 0; r < fn->result.n; r++)
		if (large[fn->result.p[r]] && depth) {
			t->why = "control flow over large values";
			return false;
		}
	return true;
}

bool gen_tiny_can(const struct gen_target *t, const struct ir_module *m, const struct ir_fn *fn, const char **why)
{
	struct tiny x = { .t = t, .m = m };
	bool ok = tiny_fn(&x, fn, 0);
	*why = x.why;
	return ok;
}

bool gen_types(const struct ir_module *m, const struct ir_fn *fn)
{
	for (size_t v = 1; v < fn->val.n; v++)
		if (!gen_dtype_ok(ir_vtype(m, fn, (ir_val)v)->dtype))
			return false;
	return true;
}

bool gen_can(const struct ir_module *m, const struct ir_fn *fn, const char **why)
{
	const struct gen_target *t = gen_target_get();
	const char *dummy;
	if (!why)
		why = &dummy;
	*why = NULL;
	if (fn->op.n > MAX_OPS)
		*why = "more operations than one kernel should have";
	if (!*why && !gen_types(m, fn))
		*why = "an element type that generated code does not have";
	if (*why)
		return false;
	if (gen_has_control(m, fn))
		return gen_tiny_can(t, m, fn, why);
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
	bool ok = gen_schedule(&a, t, m, fn, NULL, why) != NULL;
	arena_fini(&a);
	return ok;
}
