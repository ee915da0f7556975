/* Cases that the turn of a loop decides: the branch that they take stands in their place.
 *
 * A ring of n devices that saves a permute, cond(i < n - 1, permute, same), hides from everybody behind this pass that its blocks go round: they
 * would be copied, and in the gradient as well, whose loop gets the index that each turn had as a stack.  What an index is in each turn is
 * calculated from what follows from the turn's number alone, wherever it was stacked.  A branch that all turns take is taken.  One that all take
 * but the first or the last is too, if nobody can tell:
 *   the last turn   what the case gives is neither stacked nor read behind the loop in any way;
 *   the first turn  both branches give the same: what starts as zeros is zeros after a permute.
 * Else a case that permutes moves into the turn before, or into the next one, and the branch that one turn alone takes out of the loop:
 *   the first turn  it takes what the turn gets, which nobody else reads: before the loop, and at the end of each turn;
 *   the last turn   it gives what the turn hands on, which starts as what a permute leaves as it is: at the start of each turn, and behind the loop.
 * The branch of all other turns then runs once more than the program says, so it may hold nothing that costs: permutes within a host, whose blocks
 * are read where they lie (lower/loan.c), and views.  All devices take the same branches, so collectives in them stay in step. */
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

/* Are the elements of broadcast o those of its operand, in its order, or all one? */
static bool keeps_order(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	int n;
	const int64_t *dim = ir_attrs(fn, o, AT_dims, &n);
	int k = 1;
	while (k < n && dim[k] > dim[k - 1])
		k++;
	return k >= n || ir_vtype(m, fn, ir_in(fn, o, 0))->count == 1;
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
	} else if (o->kind == IR_reshape || (o->kind == IR_broadcast && keeps_order(s->m, fn, o))) {
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
		bool free = o->kind == IR_constant || o->kind == IR_optimization_barrier || ir_info(o->kind)->flags & IR_VIEW;
		if (o->kind == IR_collective_permute ? spmd_between_hosts(&opts->plan, m, fn, o) : !free)
			return false;
	}
	return true;
}

static bool permutes(const struct ir_module *m, ir_fnid f)
{
	const struct ir_fn *fn = ir_fn_of(m, f);
	bool any = false;
	for (size_t i = 0; i < fn->op.n; i++)
		any |= fn->op.p[i].kind == IR_collective_permute;
	return any;
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

/* --- what becomes of a case ---------------------------------------------------------- */

/* TAKEN: branch most stands for it.  LATER, EARLIER: once is the branch of the first turn, or of the last, most that of all others, and the case
 * goes to the end of the turn before, or to the start of the next one. */
enum way { STAYS, TAKEN, LATER, EARLIER };
struct plan {
	enum way way;
	ir_fnid most, once;
	int *at;                 /* LATER: per operand of a branch the loop's operand; EARLIER: per result */
	const char **start;      /* EARLIER: per operand of a branch the element that it has everywhere */
	int added;               /* the first of the loop's new operands: LATER: per result; EARLIER: per operand of a branch */
	ir_val *x;               /* room for the operands of a branch */
};

/* It takes operands of the loop that nobody else reads, in the body or behind the loop. */
static bool later(const struct rewrite *r, const struct ir_op *o, const struct ir_loop *l, const struct ir_op *c, struct plan *p)
{
	if (!permutes(r->m, p->most))
		return false;
	p->at = ARENA_NEW(r->a, int, c->nin);
	p->x = ARENA_NEW(r->a, ir_val, c->nin);
	for (uint32_t q = 1; q < c->nin; q++) {
		ir_val v = ir_in(l->body, c, q);
		const struct ir_loop_operand *x = ir_def(l->body, v) ? NULL : operand_of(l, v);
		if (!x || ir_role_is_stack(x->role) || (x->role == ROLE_CARRY && (l->body->val.p[v].nuse != 1 || r->live[o->out + (ir_val)x->result] & 1)))
			return false;
		p->at[q - 1] = (int)(x - l->x);
	}
	return true;
}

/* What it gives are carries, and read by nobody else in the turn; they start with what branch most makes of something. */
static bool earlier(const struct rewrite *r, const struct ir_loop *l, const struct ir_op *c, struct plan *p)
{
	const struct ir_fn *most = ir_fn_of(r->m, p->most);
	if (!permutes(r->m, p->most))
		return false;
	p->at = ARENA_NEW(r->a, int, c->nout + 1);
	p->start = ARENA_NEW(r->a, const char *, c->nin);
	p->x = ARENA_NEW(r->a, ir_val, c->nin);
	for (uint32_t j = 0; j < c->nout; j++) {
		bool zeros = false;
		int k = 0;
		while (k < l->ncarry && l->body->result.p[k] != c->out + j)
			k++;
		if (k == l->ncarry || l->body->val.p[c->out + j].nuse != 1)
			return false;
		p->at[j] = l->made[k];
		ir_val q = shown(r->m, most, most->result.p[j], &zeros), v = l->x[p->at[j]].v;
		const char *e = ir_splat(r->m, r->from, v);
		size_t bytes = (size_t)dtype_info[ir_vtype(r->m, r->from, v)->dtype].bytes;
		for (size_t i = 0; e && zeros && i < bytes; i++)
			e = e[i] ? NULL : e;
		if (!e || ir_def(most, q) || (p->start[q - 1] && memcmp(p->start[q - 1], e, bytes)))
			return false;
		p->start[q - 1] = e;
	}
	for (uint32_t q = 1; q < c->nin; q++)
		if (!p->start[q - 1])
			return false;
	return true;
}

/* live: of the body's values, those that are seen behind the loop o, or whose effects are. */
static struct plan planned(struct rewrite *r, const struct ir_op *o, const struct ir_loop *l, const struct ir_op *c, const uint8_t *live)
{
	const struct pass_opts *opts = ((const struct turns *)r->user)->opts;
	struct plan p = { .way = STAYS };
	int n;
	const int64_t *branch = ir_attrs(l->body, c, AT_branch, &n);
	const int *by = taken(r, l, c);
	int64_t turns = l->trip, same = 1, as_last = 1;
	bool seen = false;
	if (!by)
		return p;
	while (same < turns && by[same] == by[0])
		same++;
	while (as_last < turns && by[turns - 1 - as_last] == by[turns - 1])
		as_last++;
	ir_fnid first = (ir_fnid)branch[by[0]], last = (ir_fnid)branch[by[turns - 1]];
	for (uint32_t j = 0; j < c->nout; j++)
		seen |= live[c->out + j] & 1;
	if (same == turns) {
		p.way = TAKEN;
		p.most = first;
	}
	if (!p.way && same == turns - 1 && costs_nothing(opts, r->m, first)) {
		p.most = first;
		p.once = last;
		p.way = !seen && missed_by_nobody(r->m, last) ? TAKEN : costs_nothing(opts, r->m, last) && earlier(r, l, c, &p) ? EARLIER : STAYS;
	}
	if (!p.way && as_last == turns - 1 && costs_nothing(opts, r->m, last)) {
		p.most = last;
		p.once = first;
		p.way = missed_by_nobody(r->m, first) && same_at_first(r, l, c, first, last) ? TAKEN
		      : costs_nothing(opts, r->m, first) && later(r, o, l, c, &p) ? LATER : STAYS;
	}
	return p;
}

/* --- the loop ------------------------------------------------------------------------ */

/* What branch f of case c makes of p's operands, at b. */
static const ir_val *branch(struct rewrite *r, const struct ir_b *b, const struct ir_op *c, const struct plan *p, ir_fnid f)
{
	ir_val *out = ARENA_NEW(r->a, ir_val, c->nout + 1);
	ir_inline(&(struct ir_b){ b->m, b->fn, c->loc }, f, p->x, out);
	return out;
}

/* Operands that the loop has more than before. */
static void add_operands(struct rewrite *r, const struct ir_loop *l, const struct ir_op *c, struct plan *p, const ir_val *in, struct ir_loop_new *g)
{
	p->added = (int)g->x.n;
	for (uint32_t q = 1; q < c->nin; q++)
		if (p->way == LATER) {
			p->x[q - 1] = in[p->at[q - 1]];
		} else if (p->way == EARLIER) {
			ir_type t = l->body->val.p[ir_in(l->body, c, q)].type;
			ir_loop_add(g, ir_const(&r->b, t, p->start[q - 1], (size_t)dtype_info[ir_type_of(r->m, t)->dtype].bytes), ROLE_CARRY);
		}
	const ir_val *out = p->way == LATER ? branch(r, &r->b, c, p, p->once) : NULL;
	for (uint32_t j = 0; out && j < c->nout; j++)
		ir_loop_add(g, out[j], ROLE_CARRY);
}

/* The ops of the body but cases that went.  map: its values in the new one. */
static void refill(struct rewrite *r, const struct ir_loop *l, const struct plan *plan, struct ir_loop_new *g, ir_val *map)
{
	const struct ir_fn *fn = l->body;
	struct ir_b b = { r->m, g->body, 0 };
	map[IR_LOOP_TURN] = IR_LOOP_TURN;
	for (int k = 0; k < l->n; k++)
		if (l->x[k].param)
			map[l->x[k].param] = g->x.p[k].param;
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *c = &fn->op.p[i];
		const struct plan *p = &plan[i];
		if (p->way != EARLIER)
			continue;
		for (uint32_t q = 1; q < c->nin; q++)
			p->x[q - 1] = g->x.p[p->added + (int)q - 1].param;
		const ir_val *out = branch(r, &b, c, p, p->most);
		for (uint32_t j = 0; j < c->nout; j++)
			map[l->x[p->at[j]].param] = map[c->out + j] = out[j];          /* the old carry is read by nobody any more */
	}
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		ir_val *x = ARENA_NEW(r->a, ir_val, o->nin + 1), *out = ARENA_NEW(r->a, ir_val, o->nout + 1);
		for (uint32_t k = 0; k < o->nin; k++)
			x[k] = map[ir_in(fn, o, k)];
		b.loc = o->loc;
		if (plan[i].way == EARLIER)
			continue;
		if (plan[i].way == TAKEN) {
			ir_inline(&b, plan[i].most, x + 1, out);
		} else {
			ir_val v = plan[i].way == LATER ? g->x.p[plan[i].added].param : ir_clone(&b, fn, o, x);
			for (uint32_t j = 0; j < o->nout; j++)
				out[j] = v + j;
		}
		for (uint32_t j = 0; j < o->nout; j++)
			map[o->out + j] = out[j];
	}
	for (int j = 0; j < l->nmade; j++)
		ir_loop_give(g, l->made[j], map[fn->result.p[j]]);
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *c = &fn->op.p[i];
		const struct plan *p = &plan[i];
		for (uint32_t q = 1; q < c->nin; q++)
			if (p->way == EARLIER) {
				ir_loop_give(g, p->added + (int)q - 1, map[ir_in(fn, c, q)]);
			} else if (p->way == LATER) {
				const struct ir_loop_operand *k = &l->x[p->at[q - 1]];
				p->x[q - 1] = map[k->role == ROLE_CARRY ? fn->result.p[k->result] : k->param];
			}
		const ir_val *out = p->way == LATER ? branch(r, &b, c, p, p->most) : NULL;
		for (uint32_t j = 0; out && j < c->nout; j++)
			ir_loop_give(g, p->added + (int)j, out[j]);
	}
}

static ir_val on_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	if (o->kind != IR_loop)
		return 0;
	const struct ir_loop l = ir_loop_view(r->a, r->m, r->from, o);
	const struct ir_fn *fn = l.body;
	struct plan *plan = ARENA_NEW(r->a, struct plan, fn->op.n + 1);
	uint8_t *live = NULL;
	bool has[EARLIER + 1] = { 0 };
	for (size_t i = 0; i < fn->op.n && l.trip > 0 && l.trip <= MOST_TURNS; i++)
		if (fn->op.p[i].kind == IR_case) {
			if (!live) {
				bool *wanted = ARENA_NEW(r->a, bool, fn->result.n + 1);
				for (int j = 0; j < l.nmade; j++)
					wanted[j] = r->live[o->out + (ir_val)j] & 1;
				live = ir_live(r->a, r->m, fn, wanted);
			}
			plan[i] = planned(r, o, &l, &fn->op.p[i], live);
			if ((plan[i].way == EARLIER && has[LATER]) || (plan[i].way == LATER && has[EARLIER]))
				plan[i].way = STAYS;               /* one would have to come before the other, and behind it */
			has[plan[i].way] = true;
		}
	if (!has[TAKEN] && !has[LATER] && !has[EARLIER])
		return 0;
	((struct turns *)r->user)->any = true;
	struct ir_loop_new g = { 0 };
	for (int k = 0; k < l.n; k++)
		ir_loop_add(&g, in[k], l.x[k].role);
	for (size_t i = 0; i < fn->op.n; i++)
		add_operands(r, &l, &fn->op.p[i], &plan[i], in, &g);
	int *result = ARENA_NEW(r->a, int, g.x.n + 1);
	ir_loop_open(&g, &r->b, l.trip, ir_text(r->m, fn->name), NULL);
	refill(r, &l, plan, &g, ARENA_NEW(r->a, ir_val, fn->val.n));
	ir_val v = ir_loop_close(&g, result);
	for (int j = 0; j < l.nmade; j++)
		r->map[o->out + (ir_val)j] = v + (ir_val)result[l.made[j]];
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *c = &fn->op.p[i];
		const struct plan *p = &plan[i];
		for (uint32_t q = 1; q < c->nin && p->way == EARLIER; q++)
			p->x[q - 1] = v + (ir_val)result[p->added + (int)q - 1];
		const ir_val *out = p->way == EARLIER ? branch(r, &r->b, c, p, p->once) : NULL;
		for (uint32_t j = 0; out && j < c->nout; j++)
			r->map[o->out + (ir_val)l.x[p->at[j]].result] = out[j];
	}
	return REWRITE_MAPPED;
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
