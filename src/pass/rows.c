/* Scatters of many short rows become loops over them that are one kernel: what combines is compiled in, and so is what places are computed by, if that is
 * little (indices that count from the end).  Long rows are left to the kernel that shares them among threads, few ones to that which need not be compiled. */
#include "passes.h"

enum { LEAST_ROWS = 32, MOST_ROW = 16, MOST_SUNK = 16 };

struct rows_opts { const struct pass_opts *o; const double *runs; };

/* What a value is to the turns.  An array of rows * c elements, whatever its dimensions, is c elements in each of them. */
enum how { UNKNOWN, ARRAY, ONE, SPLAT, TURN, SAME, SUNK, JOINED };
struct rows {
	struct rewrite *r;
	int64_t rows;
	uint8_t *how;                    /* per value of r->from: enum how */
	ir_val *made;                    /* in the body */
	ARR(ir_val) from;                /* ARRAY and ONE: operands of the loop */
	struct ir_cost cost;             /* of all that goes into it */
	double nops, adds;
};

static const struct ir_type_info *type_of(const struct rows *s, ir_val v) { return ir_vtype(s->r->m, s->r->from, v); }

static void goes_in(struct rows *s, const struct ir_op *o)
{
	struct ir_cost c = ir_cost_of(s->r->m, s->r->from, o);
	s->cost.flops += c.flops;
	s->cost.adds += c.adds;
	s->cost.bytes += c.bytes;
	s->cost.ops += c.ops;
	s->nops++;
	s->adds += ir_cost_each(s->r->m, s->r->from, o);
}

/* The same elements in the same order. */
static bool keeps_order(const struct rows *s, const struct ir_op *o)
{
	int n = 0;
	const int64_t *dims = o->kind == IR_broadcast ? ir_attrs(s->r->from, o, AT_dims, &n) : NULL;
	if ((o->kind != IR_reshape && o->kind != IR_broadcast) || type_of(s, ir_in(s->r->from, o, 0))->count != type_of(s, o->out)->count)
		return false;
	for (int i = 1; i < n; i++)
		if (dims[i] < dims[i - 1])
			return false;
	return true;
}

static bool cheap_integers(const struct rows *s, const struct ir_op *o)
{
	const enum dtype_class c = dtype_info[type_of(s, o->out)->dtype].cls;
	bool is = ir_is_elem(o->kind) && (c == DT_INT || c == DT_UINT || c == DT_PRED) && ir_cost_each(s->r->m, s->r->from, o) <= 1;
	for (uint32_t k = 0; k < o->nin && is; k++)
		is = type_of(s, ir_in(s->r->from, o, k))->count == type_of(s, o->out)->count;
	return is;
}

/* Components of places, side by side. */
static bool joined(const struct rows *s, const struct ir_op *o)
{
	const struct ir_type_info *t = type_of(s, o->out);
	return o->kind == IR_concatenate && ir_attr(s->r->from, o, AT_dim) == t->rank - 1 && t->count == s->rows * t->dim[t->rank - 1];
}

/* Says of v, and of what it is made from, how the turns have it. */
static void look_at(struct rows *s, ir_val v)
{
	const struct ir_fn *fn = s->r->from;
	const struct ir_op *o = ir_def(fn, v);
	const struct ir_type_info *t = type_of(s, v);
	if (s->how[v])
		return;
	if (ir_splat(s->r->m, fn, v)) {
		s->how[v] = SPLAT;
		return;
	}
	if (t->count > 1 && o) {
		const struct ir_type_info *x = o->nin ? type_of(s, ir_in(fn, o, 0)) : NULL;
		s->how[v] = keeps_order(s, o) || (o->kind == IR_broadcast && x->count == 1) ? SAME
		          : o->kind == IR_iota && t->count == s->rows && t->dim[ir_attr(fn, o, AT_dim)] == s->rows ? TURN
		          : joined(s, o) ? JOINED : s->nops < MOST_SUNK && cheap_integers(s, o) ? SUNK : UNKNOWN;
	}
	if (!s->how[v]) {
		s->how[v] = t->count == 1 ? ONE : ARRAY;
		arr_push(&s->from, v);
		return;
	}
	if (s->how[v] == SUNK)
		goes_in(s, o);
	for (uint32_t k = 0; k < o->nin; k++)
		look_at(s, ir_in(fn, o, k));
}

/* v in a turn: one dimension of n elements. */
static ir_val in_turn(struct rows *s, struct ir_b *b, ir_val v, int64_t n)
{
	const struct ir_fn *fn = s->r->from;
	const struct ir_op *o = ir_def(fn, v);
	const ir_type t = ir_tensor(b->m, type_of(s, v)->dtype, 1, &n);
	ir_val in[8];
	if (s->how[v] == SAME)
		return in_turn(s, b, ir_in(fn, o, 0), n);
	if (s->made[v] && ir_vtype(b->m, b->fn, s->made[v])->count == n)
		return s->made[v];
	switch ((enum how)s->how[v]) {
	case SPLAT:
		return s->made[v] = ir_const(b, t, ir_splat(s->r->m, fn, v), (size_t)dtype_info[type_of(s, v)->dtype].bytes);
	case TURN:
		return s->made[v] = ir_reshape(b, ir_convert(b, IR_LOOP_TURN, type_of(s, v)->dtype), 1, &n);
	case JOINED: {
		ir_val *part = ARENA_NEW(s->r->a, ir_val, o->nin);
		for (uint32_t k = 0; k < o->nin; k++)
			part[k] = in_turn(s, b, ir_in(fn, o, k), type_of(s, ir_in(fn, o, k))->count / s->rows);
		return s->made[v] = ir_emit(b, IR_concatenate, o->nin, part, t, &(int64_t){ 0 }, 1);
	}
	case SUNK: {
		uint32_t words;
		const int64_t *w = ir_attr_copy(s->r->a, fn, o, &words);
		for (uint32_t k = 0; k < o->nin; k++)
			in[k] = in_turn(s, b, ir_in(fn, o, k), n);
		return s->made[v] = ir_emit_raw(b, o->kind, o->nin, in, 1, &t, w, words);
	}
	default:                             /* ONE, for what may be several */
		return ir_splat_of(b, ir_reshape(b, s->made[v], 0, NULL), t);
	}
}

/* Does each turn have one row, in its order, of what o adds to? */
static bool by_rows(struct rows *s, const struct ir_op *o)
{
	const struct ir_fn *fn = s->r->from;
	int nw, nb;
	if (o->kind != IR_scatter || o->nin != 3)
		return false;
	const struct ir_type_info *ti = type_of(s, ir_in(fn, o, 1)), *tu = type_of(s, ir_in(fn, o, 2));
	const int64_t *window = ir_attrs(fn, o, AT_window_dims, &nw), at = ir_attr(fn, o, AT_index_dim), n = at < ti->rank ? ti->dim[at] : 1;
	ir_attrs(fn, o, AT_sbatch, &nb);
	if (nb || n < 1 || (n > 1 && at != ti->rank - 1))
		return false;
	s->rows = ti->count / n;
	if (s->rows < LEAST_ROWS || tu->count < s->rows || tu->count > s->rows * MOST_ROW)
		return false;
	for (int k = 0; k < nw; k++)
		if (tu->count != s->rows && window[k] != tu->rank - nw + k)
			return false;
	return true;
}

static ir_val loop_of(struct rows *s, struct ir_b *b, const struct ir_op *o)
{
	struct rewrite *r = s->r;
	const struct ir_fn *fn = r->from;
	const struct ir_type_info tu = *type_of(s, ir_in(fn, o, 2));
	struct ir_loop_new l = { 0 };
	int64_t dim[IR_MAX_RANK];
	int nw, ndrop, nto;
	const int64_t *window = ir_attrs(fn, o, AT_window_dims, &nw), *drop = ir_attrs(fn, o, AT_inserted, &ndrop), *to = ir_attrs(fn, o, AT_to_operand, &nto);
	ir_loop_add(&l, 1, ROLE_CARRY);
	for (size_t k = 0; k < s->from.n; k++)
		ir_loop_add(&l, (ir_val)k + 2, s->how[s->from.p[k]] == ONE ? ROLE_CONST : ROLE_IN);
	ir_loop_open(&l, b, s->rows, "row", NULL);
	struct ir_b body = { r->m, l.body, b->loc };
	for (size_t k = 0; k < s->from.n; k++)
		s->made[s->from.p[k]] = l.x.p[k + 1].param;
	for (int k = 0; k < nw; k++)
		dim[k] = tu.dim[window[k]];
	ir_val i = in_turn(s, &body, ir_in(fn, o, 1), nto), u = ir_reshape(&body, in_turn(s, &body, ir_in(fn, o, 2), tu.count / s->rows), nw, dim);
	int64_t w[8 + 3 * IR_MAX_RANK], *p = w;
	*p++ = nw;
	for (int k = 0; k < nw; k++)
		*p++ = k;
	*p++ = ndrop;
	for (int k = 0; k < ndrop; k++)
		*p++ = drop[k];
	*p++ = 0;                            /* no batches */
	*p++ = 0;
	*p++ = nto;
	for (int k = 0; k < nto; k++)
		*p++ = to[k];
	*p++ = 0;                            /* the dimension of the index vector */
	*p++ = 1;                            /* one row is sorted, and has its place alone */
	*p++ = 1;
	*p++ = ir_attr(fn, o, AT_redop);
	*p++ = ir_attr(fn, o, AT_fn);
	ir_loop_give(&l, 0, ir_emit_raw(&body, IR_scatter, 3, (ir_val[]){ l.x.p[0].param, i, u }, 1, &fn->val.p[o->out].type, w, (uint32_t)(p - w)));
	return ir_loop_close(&l, NULL);
}

static ir_val on_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct rows_opts *q = r->user;
	const struct ir_fn *fn = r->from;
	struct rows s = { .r = r };
	if (!by_rows(&s, o))
		return 0;
	s.how = ARENA_NEW(r->a, uint8_t, fn->val.n);
	s.made = ARENA_NEW(r->a, ir_val, fn->val.n);
	look_at(&s, ir_in(fn, o, 1));
	look_at(&s, ir_in(fn, o, 2));
	goes_in(&s, o);
	struct plan_work work = { s.cost.flops, s.cost.adds, s.cost.bytes, s.cost.ops };
	ir_val v = 0, *outer = ARENA_NEW(r->a, ir_val, s.from.n + 1);
	if (q->o->tier == TIER_GEN || plan_worth_compiling(q->o->plan.table, &work, PLAN_apart, s.nops, s.adds, q->runs[fn->id])) {
		struct ir_fn *g = ir_fn_new(r->m, "group");
		struct ir_b b = { r->m, g, o->loc };
		ir_param(g, fn->val.p[o->out].type);
		outer[0] = in[0];
		for (size_t k = 0; k < s.from.n; k++) {
			const ir_val x = s.from.p[k];
			const int64_t dim[2] = { s.rows, type_of(&s, x)->count / s.rows };
			outer[k + 1] = s.how[x] == ONE ? ir_reshape(&r->b, r->map[x], 1, &(int64_t){ 1 }) : ir_reshape(&r->b, r->map[x], 2, dim);
			ir_param(g, r->b.fn->val.p[outer[k + 1]].type);
		}
		ir_result(g, loop_of(&s, &b, o));
		const char *why;
		if (gen_can(r->m, g, &why))
			v = ir_emit_raw(&r->b, IR_fused, (uint32_t)s.from.n + 1, outer, 1, &fn->val.p[o->out].type, &(int64_t){ g->id }, 1);
		else
			log_line(LOG_DEBUG, "a scatter of short rows is no kernel of its own: %s", why);
	}
	arr_free(&s.from);
	return v;
}

void pass_rows(struct ir_module *m, const struct pass_opts *o)
{
	struct arena a;
	if (!pass_has(m, IR_scatter))
		return;
	arena_init(&a);
	pass_rewrite(m, on_op, NULL, &(struct rows_opts){ o, lower_runs(&a, o->plan.table, m) });
	arena_fini(&a);
}
