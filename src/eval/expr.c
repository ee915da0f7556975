/* Regions as scalar expressions. */
#include "eval.h"

struct builder {
	struct arena *a;
	const struct ir_module *m;
	struct prog_expr *e;
	int cap;
};

static struct prog_ins *add(struct builder *b)
{
	struct prog_expr *e = b->e;
	if (e->n == b->cap) {
		int cap = MAX(16, 2 * b->cap);
		struct prog_ins *p = ARENA_NEW(b->a, struct prog_ins, cap);
		if (e->n)
			memcpy(p, e->ins, sizeof *p * e->n);
		e->ins = p;
		b->cap = cap;
	}
	return &e->ins[e->n++];
}

/* One element of a table, a parameter, at an i32 index. */
static bool is_look(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	return o->kind == IR_dynamic_slice && o->nin == 2 && ir_in(fn, o, 0) <= fn->nparam && ir_vtype(m, fn, o->out)->count == 1 &&
	       ir_vtype(m, fn, ir_in(fn, o, 1))->dtype == DT_i32 && ir_vtype(m, fn, ir_in(fn, o, 0))->count <= INT32_MAX;
}

/* Inline f: reg_in are the registers of its parameters; out gets those of its results. */
static struct err *inline_fn(struct builder *b, ir_fnid f, const uint16_t *reg_in, uint16_t *out, int depth)
{
	const struct ir_fn *fn = ir_fn_of(b->m, f);
	if (depth > 32)
		return ERR(UNIMPLEMENTED, "region calls itself");
	uint16_t *reg = ARENA_NEW(b->a, uint16_t, fn->val.n + 1);
	for (uint32_t i = 0; i < fn->nparam; i++)
		reg[1 + i] = reg_in[i];
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		const char *name = ir_info(o->kind)->name;
		if (is_look(b->m, fn, o)) {
			uint8_t dt = ir_vtype(b->m, fn, o->out)->dtype;
			struct prog_ins x = { .fn = EXPR_LOOK, .from = dt, .to = dt, .src = { reg[ir_in(fn, o, 0)], reg[ir_in(fn, o, 1)] } };
			int32_t n = (int32_t)ir_vtype(b->m, fn, ir_in(fn, o, 0))->count;
			memcpy(x.imm, &n, sizeof n);
			reg[o->out] = (uint16_t)(b->e->nin + b->e->n);
			*add(b) = x;
			continue;
		}
		for (uint32_t r = 0; r < o->nout; r++)
			if (ir_vtype(b->m, fn, o->out + r)->count != 1)
				return ERR(UNIMPLEMENTED, "region has '%s' of an array", name);
		if (b->e->nin + b->e->n > 60000)
			return ERR(UNIMPLEMENTED, "region of more than 60000 operations");
		if (o->kind == IR_call || o->kind == IR_fused) {
			uint16_t *in = ARENA_NEW(b->a, uint16_t, o->nin + 1);
			for (uint32_t j = 0; j < o->nin; j++)
				in[j] = reg[ir_in(fn, o, j)];
			TRY(inline_fn(b, (ir_fnid)ir_attr(fn, o, AT_fn), in, &reg[o->out], depth + 1));
			continue;
		}
		if (((ir_info(o->kind)->flags & IR_VIEW) && o->kind != IR_bitcast_convert) || o->kind == IR_optimization_barrier ||
		    o->kind == IR_sharding_constraint) {
			for (uint32_t j = 0; j < o->nout; j++) {
				if (ir_vtype(b->m, fn, ir_in(fn, o, j))->count != 1)
					return ERR(UNIMPLEMENTED, "region has '%s' of an array", name);
				reg[o->out + j] = reg[ir_in(fn, o, j)];
			}
			continue;
		}
		enum dtype to = ir_vtype(b->m, fn, o->out)->dtype;
		struct prog_ins x = { .to = (uint8_t)to };
		if (o->kind == IR_constant) {
			size_t n;
			const void *p = ir_blob_data(b->m, (ir_blob)ir_attr(fn, o, AT_data), &n);
			size_t es = dtype_info[to].bytes;
			if (n < es)
				return ERR(INVALID, "region has a constant of %zu bytes for '%s'", n, dtype_info[to].name);
			x.fn = EXPR_IMM;
			x.from = x.to;
			memcpy(x.imm, p, es);
		} else if (o->kind == IR_reduce_precision) {
			x.fn = EXPR_ROUND;
			x.from = x.to;
			x.src[0] = reg[ir_in(fn, o, 0)];
			x.imm[0] = (uint8_t)ir_attr(fn, o, AT_exponent);
			x.imm[1] = (uint8_t)ir_attr(fn, o, AT_mantissa);
		} else if (o->kind == IR_bitcast_convert) {
			if (dtype_info[to].bytes != dtype_info[ir_vtype(b->m, fn, ir_in(fn, o, 0))->dtype].bytes)
				return ERR(UNIMPLEMENTED, "region has '%s' to another width", name);
			x.fn = ELEM_bitcast;
			x.from = ir_vtype(b->m, fn, ir_in(fn, o, 0))->dtype;
			x.src[0] = reg[ir_in(fn, o, 0)];
		} else if (ir_is_elem(o->kind)) {
			x.fn = (uint16_t)ir_elem(o->kind);
			for (uint32_t j = 0; j < o->nin && j < 3; j++)
				x.src[j] = reg[ir_in(fn, o, j)];
			x.from = ir_vtype(b->m, fn, ir_in(fn, o, x.fn == ELEM_select ? 1 : 0))->dtype;
		} else if (o->kind == IR_replica_id || (o->kind == IR_iota)) {
			x.fn = EXPR_IMM;      /* one element: 0 */
			x.from = x.to;
		} else {
			return ERR(UNIMPLEMENTED, "region has '%s', which is not elementwise", name);
		}
		reg[o->out] = (uint16_t)(b->e->nin + b->e->n);
		*add(b) = x;
	}
	for (size_t i = 0; i < fn->result.n; i++)
		out[i] = reg[fn->result.p[i]];
	return NULL;
}

struct err *eval_expr(struct arena *a, const struct ir_module *m, ir_fnid f, struct prog_expr **out)
{
	const struct ir_fn *fn = ir_fn_of(m, f);
	struct prog_expr *e = ARENA_NEW(a, struct prog_expr, 1);
	struct builder b = { a, m, e, 0 };
	e->nin = (uint16_t)fn->nparam;
	e->nout = (uint16_t)fn->result.n;
	e->in_type = ARENA_NEW(a, uint8_t, fn->nparam + 1);
	e->out = ARENA_NEW(a, uint16_t, fn->result.n + 1);
	uint16_t *in = ARENA_NEW(a, uint16_t, fn->nparam + 1);
	for (uint32_t i = 0; i < fn->nparam; i++) {
		const struct ir_type_info *t = ir_vtype(m, fn, 1 + i);
		if (t->count != 1 && (t->rank != 1 || !t->count))      /* a table, of which attention has some */
			return ERR(UNIMPLEMENTED, "region has an array as parameter");
		e->in_type[i] = t->dtype;
		in[i] = (uint16_t)i;
	}
	TRY(inline_fn(&b, f, in, e->out, 0));
	*out = e;
	return NULL;
}
