/* Short counted loops over large arrays whose bodies are elementwise become straight-line code: one fused
 * kernel then passes over the arrays once instead of once a turn (the five rounds of threefry). */
#include "passes.h"

enum { MOST_TURNS = 8, MOST_OPS = 400, LARGE = 1024 };

static bool worth(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	struct ir_loop l = ir_loop_view(a, m, fn, o);
	if (l.trip < 1 || l.trip > MOST_TURNS || (int64_t)l.body->op.n * l.trip > MOST_OPS)
		return false;
	bool large = false;
	for (int k = 0; k < l.n; k++) {
		const struct ir_type_info *t = ir_vtype(m, fn, l.x[k].v);
		large |= l.x[k].role == ROLE_CARRY && t->count >= LARGE;
		if (ir_role_is_out(l.x[k].role) && t->dim[0] != l.trip)
			return false;
	}
	for (size_t i = 0; i < l.body->op.n; i++)
		switch (l.body->op.p[i].kind) {
		case IR_constant: case IR_iota: case IR_broadcast: case IR_reshape: case IR_transpose: case IR_reverse:
		case IR_slice: case IR_concatenate: case IR_pad: case IR_dynamic_slice:
			break;
		default:
			if (!ir_is_elem(l.body->op.p[i].kind))
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
	if (o->kind != IR_loop || !worth(r->a, r->m, r->from, o))
		return 0;
	struct ir_loop l = ir_loop_view(r->a, r->m, r->from, o);
	ir_val *x = arena_copy(r->a, in, sizeof *in * (size_t)l.n), *arg = ARENA_NEW(r->a, ir_val, l.body->nparam + 1),
		*res = ARENA_NEW(r->a, ir_val, l.nmade + 1), *piece = ARENA_NEW(r->a, ir_val, l.nmade * l.trip + 1);
	for (int64_t i = 0; i < l.trip; i++) {
		arg[IR_LOOP_TURN - 1] = ir_const_i(&r->b, ir_scalar(r->m, DT_i32), i);
		for (int k = 0; k < l.n; k++)
			if (l.x[k].param)
				arg[l.x[k].param - 1] = ir_role_is_in(l.x[k].role) ? row(r, x[k], ir_role_is_reversed(l.x[k].role) ? l.trip - 1 - i : i) : x[k];
		ir_inline(&r->b, l.body->id, arg, res);
		for (int j = 0; j < l.nmade; j++) {
			const struct ir_loop_operand *k = &l.x[l.made[j]];
			if (k->role == ROLE_CARRY) {
				x[l.made[j]] = res[j];
				continue;
			}
			struct ir_type_info t = *ir_vtype(r->m, r->b.fn, res[j]);
			int64_t dim[IR_MAX_RANK] = { 1 };
			memcpy(dim + 1, t.dim, sizeof *dim * t.rank);
			piece[j * l.trip + (ir_role_is_reversed(k->role) ? l.trip - 1 - i : i)] = ir_reshape(&r->b, res[j], t.rank + 1, dim);
		}
	}
	for (int j = 0; j < l.nmade; j++) {
		ir_val v = o->out + (uint32_t)j, *rows = &piece[j * l.trip];
		int64_t dim = 0;
		r->map[v] = l.x[l.made[j]].role == ROLE_CARRY ? x[l.made[j]] : l.trip == 1 ? rows[0]
		          : ir_emit(&r->b, IR_concatenate, (uint32_t)l.trip, rows, r->from->val.p[v].type, &dim, 1);
	}
	return REWRITE_MAPPED;
}

struct err *pass_unroll(const struct pass_opts *o, struct ir_module *m)
{
	struct arena a;
	arena_init(&a);
	bool any = false;
	for (size_t f = 1; f < m->fn.n && !any; f++)
		for (size_t i = 0; i < m->fn.p[f]->op.n && !any; i++)
			any = m->fn.p[f]->op.p[i].kind == IR_loop && worth(&a, m, m->fn.p[f], &m->fn.p[f]->op.p[i]);
	arena_fini(&a);
	if (any)
		pass_rewrite(m, on_op, NULL, NULL);
	return NULL;
}
