/* Short counted loops over large arrays whose bodies are elementwise become straight-line code: one fused
 * kernel then passes over the arrays once instead of once a turn (the five rounds of threefry). */
#include "passes.h"

enum { MOST_TURNS = 8, MOST_OPS = 400, LARGE = 1024 };

static bool worth(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	int64_t trip = ir_attr(fn, o, AT_trip);
	if (trip < 1 || trip > MOST_TURNS)
		return false;
	const struct ir_fn *body = ir_fn_of(m, (ir_fnid)ir_attr(fn, o, AT_body));
	if ((int64_t)body->op.n * trip > MOST_OPS)
		return false;
	int n;
	const int64_t *role = ir_attrs(fn, o, AT_role, &n);
	bool large = false;
	for (int k = 0; k < n; k++) {
		const struct ir_type_info *t = ir_vtype(m, fn, ir_in(fn, o, (uint32_t)k));
		large |= role[k] == ROLE_CARRY && t->count >= LARGE;
		if ((role[k] == ROLE_OUT || role[k] == ROLE_OUT_REV) && t->dim[0] != trip)
			return false;
	}
	for (size_t i = 0; i < body->op.n; i++)
		switch (body->op.p[i].kind) {
		case IR_constant: case IR_iota: case IR_broadcast: case IR_reshape: case IR_transpose: case IR_reverse:
		case IR_slice: case IR_concatenate: case IR_pad: case IR_dynamic_slice:
			break;
		default:
			if (!ir_is_elem(body->op.p[i].kind))
				return false;
		}
	return large;
}

/* Slice i of a stack. */
static ir_val row(struct rewrite *r, ir_val x, int64_t i)
{
	struct ir_type_info t = *ir_vtype(r->m, r->b.fn, x);
	int64_t start[IR_MAX_RANK] = { i }, limit[IR_MAX_RANK], step[IR_MAX_RANK], dim[IR_MAX_RANK];
	for (int d = 0; d < t.rank; d++) {
		limit[d] = d ? t.dim[d] : i + 1;
		step[d] = 1;
		if (d)
			dim[d - 1] = t.dim[d];
	}
	return ir_reshape(&r->b, ir_slice(&r->b, x, start, limit, step), t.rank - 1, dim);
}

static ir_val on_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	if (o->kind != IR_loop || !worth(r->m, r->from, o))
		return 0;
	int n, ncarry = 0, nout = 0;
	const int64_t *attr = ir_attrs(r->from, o, AT_role, &n), *role = arena_copy(r->a, attr, sizeof *attr * (size_t)n);
	int64_t trip = ir_attr(r->from, o, AT_trip);
	ir_fnid f = (ir_fnid)ir_attr(r->from, o, AT_body);
	for (int k = 0; k < n; k++) {
		ncarry += role[k] == ROLE_CARRY;
		nout += role[k] == ROLE_OUT || role[k] == ROLE_OUT_REV;
	}
	ir_val *x = arena_copy(r->a, in, sizeof *in * (size_t)n), *arg = ARENA_NEW(r->a, ir_val, n + 1),
		*res = ARENA_NEW(r->a, ir_val, n + 1), *piece = ARENA_NEW(r->a, ir_val, nout * trip + 1);
	for (int64_t i = 0; i < trip; i++) {
		int na = 0, c = 0, w = 0;
		arg[na++] = ir_const_i(&r->b, ir_scalar(r->m, DT_i32), i);
		for (int k = 0; k < n; k++) {
			if (role[k] == ROLE_CARRY || role[k] == ROLE_CONST)
				arg[na++] = x[k];
			else if (role[k] == ROLE_IN || role[k] == ROLE_IN_REV)
				arg[na++] = row(r, x[k], role[k] == ROLE_IN ? i : trip - 1 - i);
		}
		ir_inline(&r->b, f, arg, res);
		for (int k = 0; k < n; k++)
			if (role[k] == ROLE_CARRY)
				x[k] = res[c++];
		for (int k = 0; k < n; k++)
			if (role[k] == ROLE_OUT || role[k] == ROLE_OUT_REV) {
				struct ir_type_info t = *ir_vtype(r->m, r->b.fn, res[ncarry + w]);
				int64_t dim[IR_MAX_RANK] = { 1 };
				memcpy(dim + 1, t.dim, sizeof *dim * t.rank);
				int64_t at = role[k] == ROLE_OUT ? i : trip - 1 - i;
				piece[w * trip + at] = ir_reshape(&r->b, res[ncarry + w], t.rank + 1, dim);
				w++;
			}
	}
	int c = 0;
	for (int k = 0; k < n; k++)
		if (role[k] == ROLE_CARRY)
			r->map[o->out + (uint32_t)c++] = x[k];
	for (int w = 0; w < nout; w++) {
		ir_type t = r->from->val.p[o->out + (uint32_t)(ncarry + w)].type;
		int64_t dim = 0;
		r->map[o->out + (uint32_t)(ncarry + w)] = trip == 1 ? piece[w] : ir_emit(&r->b, IR_concatenate, (uint32_t)trip, &piece[w * trip], t, &dim, 1);
	}
	return REWRITE_MAPPED;
}

struct err *pass_unroll(const struct pass_opts *o, struct ir_module *m)
{
	for (size_t f = 1; f < m->fn.n; f++)
		for (size_t i = 0; i < m->fn.p[f]->op.n; i++)
			if (m->fn.p[f]->op.p[i].kind == IR_loop && worth(m, m->fn.p[f], &m->fn.p[f]->op.p[i])) {
				pass_rewrite(m, on_op, NULL, NULL);
				return NULL;
			}
	return NULL;
}
