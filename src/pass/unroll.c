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

/* Row i of a stack, taken from where its rows are put together. */
static ir_val row(struct ir_b *b, ir_val x, int64_t i)
{
	enum { MOST = 64 };
	const struct ir_fn *fn = b->fn;
	const struct ir_op *o = ir_def(fn, x);
	struct ir_type_info t = *ir_vtype(b->m, fn, x), s = o && o->nin ? *ir_vtype(b->m, fn, ir_in(fn, o, 0)) : t;
	int64_t start[IR_MAX_RANK] = { i }, limit[IR_MAX_RANK] = { i + 1 }, step[IR_MAX_RANK] = { 1 }, n = t.count / t.dim[0], m = s.rank && s.count ? s.count / s.dim[0] : 0;
	int rank;
	bool whole = true;
	if (o && o->kind == IR_concatenate && !ir_attr(fn, o, AT_dim)) {
		uint32_t k = 0;
		for (int64_t rows; i >= (rows = ir_vtype(b->m, fn, ir_in(fn, o, k))->dim[0]); i -= rows)
			k++;
		return row(b, ir_in(fn, o, k), i);
	}
	if (o && o->kind == IR_slice) {
		const int64_t *from = ir_attrs(fn, o, AT_start, &rank), *by = ir_attrs(fn, o, AT_stride, &rank);
		for (int d = 1; d < rank; d++)
			whole &= s.dim[d] == t.dim[d];
		if (whole)
			return row(b, ir_in(fn, o, 0), from[0] + i * by[0]);
	}
	if (t.dim[0] == 1)
		return ir_reshape(b, x, t.rank - 1, t.dim + 1);
	if (o && o->kind == IR_reshape && m && m % n == 0 && m > n) {           /* a row of what it is made of has several */
		int64_t dim[IR_MAX_RANK] = { m / n };
		memcpy(dim + 1, t.dim + 1, sizeof *dim * (t.rank - 1u));
		x = ir_reshape(b, row(b, ir_in(fn, o, 0), i * n / m), t.rank, dim);
		i %= m / n;
		const struct ir_op *all = ir_def(fn, x), *in = all && all->kind == IR_reshape ? ir_def(fn, ir_in(fn, all, 0)) : all;
		if (in && in->kind == IR_concatenate)
			return row(b, x, i);
		start[0] = i;
		limit[0] = i + 1;
		o = NULL;
	}
	if (o && o->kind == IR_reshape && m && n % m == 0 && n / m <= MOST) {
		ir_val part[MOST], in = ir_in(fn, o, 0);
		int64_t along = 0, dim[IR_MAX_RANK] = { 1 };
		memcpy(dim + 1, s.dim + 1, sizeof *dim * (s.rank - 1u));
		for (int64_t k = 0; k < n / m; k++)
			part[k] = ir_reshape(b, row(b, in, i * (n / m) + k), s.rank, dim);
		dim[0] = n / m;
		x = n == m ? part[0] : ir_emit(b, IR_concatenate, (uint32_t)(n / m), part, ir_tensor(b->m, (enum dtype)t.dtype, s.rank, dim), &along, 1);
		return ir_reshape(b, x, t.rank - 1, t.dim + 1);
	}
	for (int d = 1; d < t.rank; d++) {
		start[d] = 0;
		limit[d] = t.dim[d];
		step[d] = 1;
	}
	return ir_reshape(b, ir_slice(b, x, start, limit, step), t.rank - 1, t.dim + 1);
}

/* Loops that are asked for; else those that are worth it. */
static bool wanted(const struct rewrite *r, const struct ir_op *o)
{
	const struct unrolled *u = r->user;
	for (size_t i = 0; u && i < u->n; i++)
		if (u->p[i].fn == r->from && u->p[i].op == o - r->from->op.p)
			return true;
	return !u && worth(r->a, r->m, r->from, o);
}

/* A slice that is one row of a stack; 0: it is none. */
static ir_val one_row(struct rewrite *r, const struct ir_op *o, ir_val x)
{
	const struct ir_type_info *t = ir_vtype(r->m, r->from, o->out), *s = ir_vtype(r->m, r->b.fn, x);
	int n;
	bool one = t->rank && t->dim[0] == 1;
	for (int d = 1; d < t->rank; d++)
		one &= t->dim[d] == s->dim[d];
	return one ? ir_reshape(&r->b, row(&r->b, x, ir_attrs(r->from, o, AT_start, &n)[0]), t->rank, t->dim) : 0;
}

static ir_val on_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	if (r->user && o->kind == IR_slice)
		return one_row(r, o, in[0]);
	if (o->kind != IR_loop || !wanted(r, o))
		return 0;
	struct ir_loop l = ir_loop_view(r->a, r->m, r->from, o);
	ir_val *x = arena_copy(r->a, in, sizeof *in * (size_t)l.n), *arg = ARENA_NEW(r->a, ir_val, l.body->nparam + 1),
		*res = ARENA_NEW(r->a, ir_val, l.nmade + 1), *piece = ARENA_NEW(r->a, ir_val, l.nmade * l.trip + 1);
	for (int64_t i = 0; i < l.trip; i++) {
		arg[IR_LOOP_TURN - 1] = ir_const_i(&r->b, ir_scalar(r->m, DT_i32), i);
		for (int k = 0; k < l.n; k++)
			if (l.x[k].param)
				arg[l.x[k].param - 1] = ir_role_is_in(l.x[k].role) ? row(&r->b, x[k], ir_role_is_reversed(l.x[k].role) ? l.trip - 1 - i : i) : x[k];
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

void pass_unroll_these(struct ir_module *m, struct unrolled *u)
{
	if (u->n)
		pass_rewrite(m, on_op, NULL, u);
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
