/* Cases that the turn of a loop decides: the branch that they take stands in their place.
 *
 * A ring of n devices that saves its last permute, cond(i < n - 1, permute, same), hides from everybody behind this pass that its blocks go round:
 * they would be copied, and in the gradient as well, whose loop gets the index that each turn had as a stack.  What an index is in each turn is
 * calculated from what follows from the turn's number alone, wherever it was stacked.  A branch that all turns take is taken.  One that all take
 * but one is too, if nobody can tell:
 *   the last turn   what the case gives is neither stacked nor read behind the loop in any way;
 *   the first turn  both branches give the same: what starts as zeros is zeros after a permute.
 * It then runs once more than the program says, so it may hold nothing that costs: permutes within a host, whose blocks are read where they lie
 * (lower/loan.c), and views.  All devices take the same branches, so collectives in them stay in step. */
#include "passes.h"

/* Turns that are looked at; ops that an index is made of. */
enum { MOST_TURNS = 1 << 14, MOST_OPS = 64 };

/* --- what follows from the turn ------------------------------------------------------ */

/* held: per function, of which loop it is the body, if of one alone; b: a scratch function without parameters. */
struct held { ir_fnid fn; uint32_t op, times; };
struct known { struct ir_module *m; struct arena *a; const struct held *held; struct ir_b b; int left; };

/* x, of one element or n, as n. */
static ir_val fit(struct known *s, ir_val x, int64_t n)
{
	const struct ir_type_info *t = x ? ir_vtype(s->m, s->b.fn, x) : NULL;
	if (!t || t->count == n)
		return x;
	if (t->count != 1)
		return 0;
	ir_type row = ir_tensor(s->m, (enum dtype)t->dtype, 1, &n);
	return ir_splat_of(&s->b, ir_reshape(&s->b, x, 0, NULL), row);
}

static ir_val backwards(struct known *s, ir_val x)
{
	int64_t dims[2] = { 1, 0 };
	return x ? ir_emit(&s->b, IR_reverse, 1, &x, s->b.fn->val.p[x].type, dims, 2) : 0;
}

/* Elementwise op o of fn on n elements; in: its operands. */
static ir_val elementwise(struct known *s, const struct ir_fn *fn, const struct ir_op *o, const ir_val *in, int64_t n)
{
	uint32_t words;
	const int64_t *w = ir_attr_copy(s->a, fn, o, &words);
	ir_val *x = ARENA_NEW(s->a, ir_val, o->nin + 1);
	for (uint32_t k = 0; k < o->nin; k++)
		if (!(x[k] = fit(s, in[k], n)))
			return 0;
	return ir_emit(&s->b, o->kind, o->nin, x, ir_tensor(s->m, ir_vtype(s->m, fn, o->out)->dtype, 1, &n), w, words);
}

static ir_val in_turns(struct known *s, const struct ir_fn *outer, const struct ir_loop *l, ir_val v);

/* Whose parameter of the body v is; NULL: the number of the turn. */
static const struct ir_loop_operand *operand_of(const struct ir_loop *l, ir_val v)
{
	int k = 0;
	while (k < l->n && l->x[k].param != v)
		k++;
	return k < l->n ? &l->x[k] : NULL;
}

/* The elements of v, of fn, in one row; 0: not known. */
static ir_val in_a_row(struct known *s, const struct ir_fn *fn, ir_val v)
{
	const struct ir_op *o = ir_def(fn, v);
	const struct ir_type_info t = *ir_vtype(s->m, fn, v);
	int64_t n = t.count;
	if (n < 1 || n > MOST_TURNS || s->left-- <= 0)
		return 0;
	if (!o) {                              /* what does not change in the loop around this one */
		const struct ir_fn *outer = ir_fn_of(s->m, s->held[fn->id].fn);
		if (!outer)
			return 0;
		const struct ir_loop l = ir_loop_view(s->a, s->m, outer, &outer->op.p[s->held[fn->id].op]);
		const struct ir_loop_operand *x = operand_of(&l, v);
		return x && x->role == ROLE_CONST ? in_a_row(s, outer, x->v) : 0;
	}
	ir_type row = ir_tensor(s->m, (enum dtype)t.dtype, 1, &n);
	ir_val x = 0;
	if (o->kind == IR_constant) {
		size_t bytes;
		const void *p = ir_blob_data(s->m, (ir_blob)ir_attr(fn, o, AT_data), &bytes);
		x = ir_const(&s->b, row, p, bytes);
	} else if (o->kind == IR_iota && t.dim[ir_attr(fn, o, AT_dim)] == n) {
		x = ir_iota(&s->b, row, 0);
	} else if (o->kind == IR_reshape || o->kind == IR_broadcast) {
		x = fit(s, in_a_row(s, fn, ir_in(fn, o, 0)), n);
	} else if (o->kind == IR_optimization_barrier) {
		x = in_a_row(s, fn, ir_in(fn, o, v - o->out));
	} else if (o->kind == IR_reverse && t.rank == 1) {
		x = backwards(s, in_a_row(s, fn, ir_in(fn, o, 0)));
	} else if (ir_is_elem(o->kind)) {
		ir_val *in = ARENA_NEW(s->a, ir_val, o->nin + 1);
		for (uint32_t k = 0; k < o->nin; k++)
			in[k] = in_a_row(s, fn, ir_in(fn, o, k));
		x = elementwise(s, fn, o, in, n);
	} else if (o->kind == IR_loop) {
		const struct ir_loop l = ir_loop_view(s->a, s->m, fn, o);
		uint32_t j = v - o->out;
		enum ir_role role = l.x[l.made[j]].role;
		if (!ir_role_is_out(role) || t.dim[0] != l.trip)
			return 0;
		x = in_turns(s, fn, &l, l.body->result.p[j]);
		x = ir_role_is_reversed(role) ? backwards(s, x) : x;
	}
	return x && ir_vtype(s->m, s->b.fn, x)->count == n ? x : 0;
}

/* What v of the body of loop l, of outer, is in each turn, if it has one element; 0: not known. */
static ir_val in_turns(struct known *s, const struct ir_fn *outer, const struct ir_loop *l, ir_val v)
{
	const struct ir_fn *fn = l->body;
	const struct ir_op *o = ir_def(fn, v);
	if (ir_vtype(s->m, fn, v)->count != 1 || s->left-- <= 0)
		return 0;
	if (v == IR_LOOP_TURN)
		return ir_iota(&s->b, ir_tensor(s->m, DT_i32, 1, &l->trip), 0);
	if (!o) {
		const struct ir_loop_operand *x = operand_of(l, v);
		ir_val all = x->role == ROLE_CARRY ? 0 : in_a_row(s, outer, x->v);
		if (!all || x->role == ROLE_CONST)
			return fit(s, all, l->trip);
		int64_t from = 0, step = 1;
		all = ir_slice(&s->b, all, &from, &l->trip, &step);
		return ir_role_is_reversed(x->role) ? backwards(s, all) : all;
	}
	if (o->kind == IR_constant)
		return fit(s, in_a_row(s, fn, v), l->trip);
	if (o->kind == IR_reshape || o->kind == IR_broadcast || o->kind == IR_optimization_barrier)
		return in_turns(s, outer, l, ir_in(fn, o, v - o->out));
	if (!ir_is_elem(o->kind))
		return 0;
	ir_val *in = ARENA_NEW(s->a, ir_val, o->nin + 1);
	for (uint32_t k = 0; k < o->nin; k++)
		in[k] = in_turns(s, outer, l, ir_in(fn, o, k));
	return elementwise(s, fn, o, in, l->trip);
}

struct turns { const struct pass_opts *opts; const struct held *held; bool any; };

/* The branch that case c of the body takes in each turn; NULL: not known. */
static const int *taken(struct rewrite *r, const struct ir_loop *l, const struct ir_op *c)
{
	struct known s = { r->m, r->a, ((const struct turns *)r->user)->held, { r->m, ir_fn_new(r->m, ""), 0 }, MOST_OPS };
	ir_val v = in_turns(&s, r->from, l, ir_in(l->body, c, 0));
	int branches = (int)ir_attrs_n(l->body, c, AT_branch), *branch = NULL;
	if (v) {
		struct eval_array out = {0};
		ir_result(s.b.fn, v);
		struct err *e = eval_fn(r->m, s.b.fn, NULL, &out);
		branch = e ? NULL : ARENA_NEW(r->a, int, l->trip);
		for (int64_t i = 0; branch && i < l->trip; i++) {
			int32_t at = ((const int32_t *)out.p)[i];
			branch[i] = at < 0 || at >= branches ? branches - 1 : at;
		}
		err_free(e);
		eval_array_free(&out);
	}
	ir_fn_drop(r->m);                      /* the scratch function was the last one */
	return branch;
}

/* --- who could tell ------------------------------------------------------------------ */

/* Nothing but permutes within a host, and what is free. */
static bool costs_nothing(const struct pass_opts *opts, const struct ir_module *m, ir_fnid f)
{
	const struct ir_fn *fn = ir_fn_of(m, f);
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		int n;
		if (o->kind == IR_collective_permute) {
			const int64_t *pair = ir_attrs(fn, o, AT_pairs, &n);
			if (plan_groups_of(&opts->plan, n / 2, 2, pair).hosts > 1)
				return false;
		} else if (o->kind != IR_constant && o->kind != IR_optimization_barrier && !(ir_info(o->kind)->flags & IR_VIEW)) {
			return false;
		}
	}
	return true;
}

/* No effect but collectives. */
static bool missed_by_nobody(const struct ir_module *m, ir_fnid f)
{
	const struct ir_fn *fn = ir_fn_of(m, f);
	bool none = true;
	for (size_t i = 0; i < fn->op.n; i++)
		none &= ir_info(fn->op.p[i].kind)->flags & IR_COLL || !ir_effect(m, fn, &fn->op.p[i]);
	return none;
}

/* The value of fn that v shows if all its elements are equal; of zeros alone if something gets nothing on the way (zeros). */
static ir_val shown(const struct ir_module *m, const struct ir_fn *fn, ir_val v, bool *zeros)
{
	for (const struct ir_op *o; (o = ir_def(fn, v));) {
		if (o->kind == IR_collective_permute)
			*zeros |= ir_attrs_n(fn, o, AT_pairs) < 2 * m->num_partitions;
		else if (o->kind == IR_bitcast_convert || !(o->kind == IR_optimization_barrier || ir_info(o->kind)->flags & IR_VIEW))
			break;
		v = ir_in(fn, o, v - o->out);
	}
	return v;
}

/* The element that result j of branch f has everywhere in the first turn; NULL: not known. */
static const char *at_first(const struct rewrite *r, const struct ir_loop *l, const struct ir_op *c, ir_fnid f, uint32_t j)
{
	const struct ir_fn *fn = ir_fn_of(r->m, f);
	bool zeros = false, is = true;
	ir_val v = shown(r->m, fn, fn->result.p[j], &zeros);
	if (!ir_def(fn, v)) {
		fn = l->body;
		v = shown(r->m, fn, ir_in(fn, c, v), &zeros);
	}
	if (fn == l->body && !ir_def(fn, v)) {
		const struct ir_loop_operand *x = operand_of(l, v);
		if (!x || ir_role_is_stack(x->role))
			return NULL;
		fn = r->from;
		v = shown(r->m, fn, x->v, &zeros);
	}
	const char *p = ir_splat(r->m, fn, v);
	for (int i = 0; p && zeros && i < dtype_info[ir_vtype(r->m, fn, v)->dtype].bytes; i++)
		is &= !p[i];
	return is ? p : NULL;
}

static bool same_at_first(const struct rewrite *r, const struct ir_loop *l, const struct ir_op *c, ir_fnid f, ir_fnid g)
{
	bool same = true;
	for (uint32_t j = 0; j < c->nout && same; j++) {
		const char *p = at_first(r, l, c, f, j), *q = at_first(r, l, c, g, j);
		same = p && q && !memcmp(p, q, (size_t)dtype_info[ir_vtype(r->m, l->body, c->out + j)->dtype].bytes);
	}
	return same;
}

/* --- the branch ---------------------------------------------------------------------- */


/* Which branch stands for case c; 0: none.  live: of the body's values, those that are seen behind the loop, or whose effects are. */
static ir_fnid stands(struct rewrite *r, const struct ir_loop *l, const struct ir_op *c, const uint8_t *live)
{
	int n;
	const int64_t *branch = ir_attrs(l->body, c, AT_branch, &n);
	const int *by = taken(r, l, c);
	int64_t turns = l->trip, same = 1, as_last = 1;
	if (!by)
		return 0;
	while (same < turns && by[same] == by[0])
		same++;
	while (as_last < turns && by[turns - 1 - as_last] == by[turns - 1])
		as_last++;
	ir_fnid first = (ir_fnid)branch[by[0]], last = (ir_fnid)branch[by[turns - 1]];
	if (same == turns)
		return first;
	const struct pass_opts *opts = ((struct turns *)r->user)->opts;
	bool seen = false;
	for (uint32_t j = 0; j < c->nout; j++)
		seen |= live[c->out + j] & 1;
	if (same == turns - 1 && !seen && costs_nothing(opts, r->m, first) && missed_by_nobody(r->m, last))
		return first;
	if (as_last == turns - 1 && costs_nothing(opts, r->m, last) && missed_by_nobody(r->m, first) && same_at_first(r, l, c, first, last))
		return last;
	return 0;
}

static ir_val on_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	if (o->kind != IR_loop)
		return 0;
	const struct ir_loop l = ir_loop_view(r->a, r->m, r->from, o);
	const struct ir_fn *fn = l.body;
	ir_fnid *branch = ARENA_NEW(r->a, ir_fnid, fn->op.n + 1);
	uint8_t *live = NULL;
	bool any = false;
	for (size_t i = 0; i < fn->op.n && l.trip > 0 && l.trip <= MOST_TURNS; i++)
		if (fn->op.p[i].kind == IR_case) {
			if (!live) {
				bool *wanted = ARENA_NEW(r->a, bool, fn->result.n + 1);
				for (int j = 0; j < l.nmade; j++)
					wanted[j] = r->live[o->out + (ir_val)j] & 1;
				live = ir_live(r->a, r->m, fn, wanted);
			}
			branch[i] = stands(r, &l, &fn->op.p[i], live);
			any |= branch[i] != 0;
		}
	if (!any)
		return 0;
	((struct turns *)r->user)->any = true;
	struct ir_b b = { r->m, ir_fn_new(r->m, ir_text(r->m, fn->name)), 0 };
	ir_val *map = ARENA_NEW(r->a, ir_val, fn->val.n);
	for (uint32_t k = 1; k <= fn->nparam; k++)
		map[k] = ir_param(b.fn, fn->val.p[k].type);
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *p = &fn->op.p[i];
		ir_val *x = ARENA_NEW(r->a, ir_val, p->nin + 1), *out = ARENA_NEW(r->a, ir_val, p->nout + 1);
		for (uint32_t k = 0; k < p->nin; k++)
			x[k] = map[ir_in(fn, p, k)];
		b.loc = p->loc;
		if (branch[i]) {
			ir_inline(&b, branch[i], x + 1, out);
		} else {
			ir_val v = ir_clone(&b, fn, p, x);
			for (uint32_t k = 0; k < p->nout; k++)
				out[k] = v + k;
		}
		for (uint32_t k = 0; k < p->nout; k++)
			map[p->out + k] = out[k];
	}
	for (size_t k = 0; k < fn->result.n; k++)
		ir_result(b.fn, map[fn->result.p[k]]);
	uint32_t words;
	int64_t *w = ir_attr_copy(r->a, r->from, o, &words);
	*ir_attr_word(IR_loop, w, AT_body) = b.fn->id;
	ir_type *t = ARENA_NEW(r->a, ir_type, o->nout + 1);
	for (uint32_t k = 0; k < o->nout; k++)
		t[k] = r->from->val.p[o->out + k].type;
	return ir_emit_raw(&r->b, IR_loop, o->nin, in, o->nout, t, w, words);
}

struct err *pass_turns(const struct pass_opts *o, struct ir_module *m)
{
	if (!pass_has(m, IR_loop) || !pass_has(m, IR_case))
		return NULL;
	struct arena a;
	arena_init(&a);
	struct held *held = ARENA_NEW(&a, struct held, m->fn.n);
	for (ir_fnid f = 1; f < m->fn.n; f++) {
		const struct ir_fn *fn = ir_fn_of(m, f);
		for (size_t i = 0; i < fn->op.n; i++) {
			if (fn->op.p[i].kind != IR_loop)
				continue;
			struct held *h = &held[ir_attr(fn, &fn->op.p[i], AT_body)];
			*h = (struct held){ h->times ? 0 : f, (uint32_t)i, h->times + 1 };
		}
	}
	struct turns s = { o, held, false };
	pass_rewrite(m, on_op, NULL, &s);
	for (int i = 0; i < 2 && s.any; i++)   /* stacks of indices; then who made them */
		pass_drop_operands(m);
	arena_fini(&a);
	return NULL;
}
