/* Functions that ops hold, on their way: loops and branches.
 *
 * What they are handed and give lies as propagation has it.  Where a dimension does not divide into the parts that it would have so, it is handed on with
 * more elements behind the last ones, which nobody reads (struct view), unless that takes much longer than whole. */
#include "moved.h"

/* Who goes on with the results of a loop's body that are rows of stacks: the stacks' values outside, by result; 0: it is none.  longer: rows may have more elements. */
struct onward { struct scope *outside; const ir_val *stack; bool longer; };

/* Row v of a stack as it lies, or as it was brought for another reader, if that is better for who reads the stack. */
static ir_shard row_place(struct part *p, struct scope *s, ir_val v, struct scope *outside, ir_val stack)
{
	ir_shard lies = s->sh[v], copy = s->kept[v].sh;
	if (!part_copy(scope_values(s), v, copy) || part_sum(p, copy))
		return lies;
	int rank = scope_type(p, outside, stack)->rank;
	const struct values *o = scope_values(outside);
	return part_readers(p, o, stack, part_shifted(p, copy, rank, -1)) < part_readers(p, o, stack, part_shifted(p, lies, rank, -1)) ? copy : lies;
}

/* How value v lies, or, not made yet, would. */
static ir_shard lies(struct part *p, const struct scope *s, ir_val v) { return s->map[v] ? s->sh[v] : part_summed(p, scope_wanted(s, v)); }

static struct handed as_it_is(ir_shard h) { return (struct handed){ 0, h }; }

/* How value v, which waits, is as it was made, or else would be handed on.  keep: as of moved_longer. */
static struct handed as_made(struct part *p, struct scope *s, ir_val v, int keep)
{
	const struct view *x = s->view[v];
	bool so = x && x->made && x->npiece == 1 && !part_sum(p, x->source[0].sh);
	for (int d = 0; d < keep && so; d++)
		so = ir_shard_parts(p->m, x->source[0].sh, d) == 1 && x->source[0].dim[d] == x->dim[d];
	if (!so)
		return moved_longer(p, s, v, v, keep);
	return (struct handed){ ir_tensor(p->m, (enum dtype)scope_type(p, s, v)->dtype, x->rank, x->source[0].dim), x->source[0].sh };
}

/* Function f on parts: parameters come as in says, and results are brought to want[k] (PART_ANY: to nowhere, or where onward, if not NULL, has them best); *got:
 * where they are.  *adds: the parts of a sum that are added to a parameter, and to nothing else, to make them. */
static struct err *do_region(struct part *p, ir_fnid f, const struct handed *in, const struct handed *want, ir_fnid *out, struct handed *got, ir_shard *adds, const struct onward *onward)
{
	const struct ir_fn *fn = ir_fn_of(p->m, f);
	struct ir_fn *g = ir_fn_new(p->m, ir_text(p->m, fn->name));
	struct scope s;
	scope_init(p, &s, fn, g);
	for (size_t i = 0; i < fn->result.n; i++)
		s.end[fn->result.p[i]] = want[i].h;
	for (uint32_t i = 1; i <= fn->nparam; i++) {
		const struct handed *q = &in[i - 1];
		enum dtype wide = part_wide(p, scope_type(p, &s, i)->dtype, q->h);
		ir_val v = ir_param(g, part_type(p, q->t ? q->t : fn->val.p[i].type, q->h, wide));
		if (q->t)
			moved_give_longer(p, &s, i, v, *q);
		else {
			s.map[i] = v;
			s.sh[i] = q->h;
		}
	}
	TRY(p->ops(p, &s));
	for (size_t i = 0; i < fn->result.n; i++) {
		ir_val v = fn->result.p[i];
		struct handed to = want[i];
		bool any = to.h == (ir_shard)PART_ANY;
		scope_at_maker(&s, v);
		if (any && onward && onward->longer && onward->stack[i] && !s.map[v])
			to = as_made(p, &s, v, 0);
		if (!to.t)
			moved_need(p, &s, v);
		if (any && !to.t) {
			if (part_local(p, fn->val.p[v].type, s.sh[v]) > part_local(p, fn->val.p[v].type, scope_wanted(&s, v)))
				scope_finish(p, &s, v, scope_wanted(&s, v));
			to.h = onward && onward->stack[i] ? row_place(p, &s, v, onward->outside, onward->stack[i]) : s.sh[v];
		}
		if (got)
			got[i] = to;
		if (adds)
			adds[i] = s.adds[v];
		ir_result(g, to.t ? moved_fetch_longer(p, &s, v, to, 0) : ir_convert(&s.b, scope_fetch(p, &s, v, to.h), part_wide(p, scope_type(p, &s, v)->dtype, to.h)));
	}
	*out = g->id;
	return NULL;
}

/* Where a constant of the loop lies, of which v is the body's: where it is, where propagation has it, or whole, so that what travels in each
 * turn need not. */
static ir_shard const_place(struct part *p, const struct values *body, ir_val v, ir_shard have, double turns)
{
	ir_type t = body->fn->val.p[v].type;
	ir_shard at[3] = { have, part_summed(p, body->want[v]), 0 }, best = have;
	double least = -1;
	for (int i = 0; i < 3; i++) {
		double more = part_local(p, t, at[i]) - part_local(p, t, have), s = part_travel(p, t, have, at[i]).ns + turns * part_readers(p, body, v, at[i]);
		if ((least < 0 || s < least) && more <= p->spare) {
			least = s;
			best = at[i];
		}
	}
	p->spare -= MAX(0, part_local(p, t, best) - part_local(p, t, have));
	return best;
}

/* --- loops --------------------------------------------------------------------------------------- */

enum { ROUNDS = 3 };       /* that look for loops' sums */
enum { WORSE = 2 };        /* times what is handed whole takes: what lies as annotations say takes as many times less memory as there are parts */

/* A loop in the making.  How operands lie outside (at), and by parameter and result of the body, parameter of the condition; then what these became, and
 * where results are (got) or what is added to a parameter to make them (adds).  longer: some have more elements. */
struct turning {
	const struct ir_op *o;
	struct ir_loop l;
	const struct values *values;
	struct handed *at, *par, *res, *asked, *got;
	ir_shard *adds;
	ir_val *stack;
	ir_fnid body, cond;
	double turns;
	bool longer;
};

/* A row of what lies so. */
static struct handed row_of(struct part *p, struct handed x)
{
	const struct ir_type_info *t = ir_type_of(p->m, x.t);
	int64_t dim[IR_MAX_RANK];
	memcpy(dim, t->dim + 1, sizeof *dim * (size_t)(t->rank - 1));
	int rank = t->rank - 1;
	return (struct handed){ ir_tensor(p->m, (enum dtype)t->dtype, rank, dim), part_shifted(p, x.h, rank, 1) };
}

/* A stack, of type t if it has no more elements than that, whose rows lie so. */
static struct handed stack_of(struct part *p, struct handed row, const struct ir_type_info *t)
{
	struct handed r = { 0, part_shifted(p, row.h, t->rank, -1) };
	int64_t dim[IR_MAX_RANK] = { t->dim[0] };
	if (row.t) {
		memcpy(dim + 1, ir_type_of(p->m, row.t)->dim, sizeof *dim * (size_t)(t->rank - 1));
		r.t = ir_tensor(p->m, (enum dtype)t->dtype, t->rank, dim);
	}
	return r;
}

/* How everything is handed: what has no need to be made whole before, and carries and stacks, with more elements, if `longer` says so. */
static void hand(struct part *p, struct scope *s, struct turning *w, bool longer)
{
	const struct ir_fn *fn = s->from;
	w->longer = false;
	for (int k = 0; k < w->l.n; k++) {
		const struct ir_loop_operand *q = &w->l.x[k];
		bool in = ir_role_is_in(q->role), made = in || (q->result < 0 && !ir_role_is_out(q->role));      /* it gives nothing */
		ir_val x = made ? q->v : w->o->out + (uint32_t)q->result;
		int rank = scope_type(p, s, q->v)->rank;
		ir_type t = fn->val.p[q->v].type;
		ir_shard parts = 0;
		if (ir_role_is_out(q->role))
			parts = scope_read_in_parts(p, fn, x);
		else if (!made)
			parts = scope_says_parts(p, w->l.body, ir_def(w->l.body, w->l.body->result.p[q->result]));
		bool stack = ir_role_is_stack(q->role), out = ir_role_is_out(q->role);
		struct handed y = as_it_is(0);
		if (longer && !parts)
			y = !made ? moved_longer(p, s, x, q->role == ROLE_CARRY ? q->v : 0, stack) : s->map[q->v] ? y : as_made(p, s, q->v, stack);
		w->longer |= y.t != 0;
		if (out)                             /* as the body makes its rows */
			y.t = 0;
		if (y.t) {
			;
		} else if (in) {
			double ns;
			y.h = part_stack_place(p, w->values, q->param, t, lies(p, s, q->v), w->turns, &ns);
			p->spare -= MAX(0, part_local(p, t, y.h) - part_local(p, t, lies(p, s, q->v)));
		} else if (out) {
			w->res[q->result] = as_it_is(parts ? part_shifted(p, parts, rank - 1, 1) : (ir_shard)PART_ANY);
		} else if (!made) {
			y.h = parts ? parts : part_summed(p, scope_wanted(s, x));
		} else {
			y.h = const_place(p, w->values, q->param, lies(p, s, q->v), w->turns);
		}
		w->at[k] = y;
		struct handed one = !stack ? y : y.t ? row_of(p, y) : as_it_is(part_shifted(p, y.h, rank - 1, 1));
		if (q->param)
			w->par[q->param - 1] = one;
		if (q->result >= 0 && !out)
			w->res[q->result] = one;
	}
}

/* The body and the condition on parts.  What only adds up parts of a sum is one itself, that is made when all turns are: if what is added to it still is
 * one then. */
static struct err *turn(struct part *p, struct scope *s, struct turning *w)
{
	const struct ir_loop *l = &w->l;
	const struct onward onward = { s, w->stack, w->longer };
	ir_fnid body = l->body->id;
	struct part_mark before = part_mark(p, &s->b);
	double left = p->spare;
	TRY(do_region(p, body, w->par, w->res, &w->body, w->got, w->adds, &onward));
	bool *tried = ARENA_NEW(&p->a, bool, l->n + 1), again = true;
	for (int round = 0; again; round++) {
		again = false;
		for (int k = 0; k < l->n; k++) {
			const struct ir_loop_operand *q = &l->x[k];
			const struct ir_op *add = q->role == ROLE_CARRY && !w->at[k].t ? ir_def(l->body, l->body->result.p[q->result]) : NULL;
			if (!add || add->kind != IR_add || (ir_in(l->body, add, 0) != q->param && ir_in(l->body, add, 1) != q->param))
				continue;
			ir_shard was = w->res[q->result].h, h = part_sum(p, was) ? part_summed(p, scope_wanted(s, w->o->out + (uint32_t)q->result)) : w->adds[q->result];
			if (w->adds[q->result] == (part_sum(p, was) ? was : 0))
				continue;
			ir_type t = l->body->val.p[q->param].type;
			double more = part_local(p, t, h) - part_local(p, t, was);
			if (part_sum(p, h) && (tried[k] || round >= ROUNDS || more > left || (q->asked && l->cond->val.p[q->asked].nuse)))
				continue;
			tried[k] = again = true;
			left -= more;
			w->res[q->result] = w->par[q->param - 1] = w->at[k] = as_it_is(h);
		}
		if (again) {
			part_go_back(p, &s->b, before);
			p->spare = left;
			TRY(do_region(p, body, w->par, w->res, &w->body, w->got, w->adds, &onward));
		}
	}
	for (int k = 0; k < l->n; k++)
		if (l->x[k].asked)
			w->asked[l->x[k].asked - 1] = w->at[k];
	return l->cond ? do_region(p, l->cond->id, w->asked, &(struct handed){ 0, 0 }, &w->cond, NULL, NULL, NULL) : NULL;
}

/* What all turns take. */
static double takes(struct part *p, const struct turning *w)
{
	double ns = spmd_fn_time(p->plan, p->m, ir_fn_of(p->m, w->body)) + (w->cond ? spmd_fn_time(p->plan, p->m, ir_fn_of(p->m, w->cond)) : 0);
	return w->turns * ns;
}

/* What it takes to have whole what is not made yet of n values v that might be handed so, as x. */
static double whole(struct part *p, struct scope *s, int n, const struct handed *x, const ir_val *v)
{
	double ns = 0;
	for (int k = 0; k < n; k++)
		if (x[k].t && v[k] && !s->map[v[k]])
			ns += part_travel(p, x[k].t, x[k].h, part_summed(p, scope_wanted(s, v[k]))).ns;
	return ns;
}

struct err *part_loop(struct part *p, struct scope *s, const struct ir_op *o)
{
	const struct ir_fn *fn = s->from;
	struct turning w = { .o = o, .l = ir_loop_view(&p->a, p->m, fn, o), .turns = ir_turns(fn, o) };
	const struct ir_loop *l = &w.l;
	w.values = part_body(p, l);
	w.at = ARENA_NEW(&p->a, struct handed, l->n + 1);
	w.asked = ARENA_NEW(&p->a, struct handed, l->n + 1);
	w.par = ARENA_NEW(&p->a, struct handed, l->body->nparam + 1);
	w.res = ARENA_NEW(&p->a, struct handed, l->nmade + 1);
	w.got = ARENA_NEW(&p->a, struct handed, l->nmade + 1);
	w.adds = ARENA_NEW(&p->a, ir_shard, l->nmade + 1);
	w.stack = ARENA_NEW(&p->a, ir_val, l->nmade + 1);
	ir_val *in = ARENA_NEW(&p->a, ir_val, l->n + 1);
	for (uint32_t k = 0; k < o->nout; k++)
		if (ir_role_is_out(l->x[l->made[k]].role))
			w.stack[l->x[l->made[k]].result] = o->out + k;
	struct part_mark before = part_mark(p, &s->b);
	double spare = p->spare;
	hand(p, s, &w, true);
	p->spare = spare;
	for (int k = 0; k < l->n; k++) {
		const struct ir_loop_operand *q = &l->x[k];
		bool given = ir_role_is_out(q->role) || q->result >= 0;
		in[k] = q->v;
		if (!w.at[k].t)
			moved_need(p, s, q->v);
		if (s->map[q->v] && !given)
			scope_finish(p, s, q->v, ir_role_is_in(q->role) ? scope_wanted(s, q->v) : w.values->want[q->param]);
	}
	if (w.longer) {
		before = part_mark(p, &s->b);
		const struct handed *longer = arena_copy(&p->a, w.at, sizeof *w.at * (size_t)l->n);
		hand(p, s, &w, false);
		TRY(turn(p, s, &w));
		double ns = takes(p, &w) + whole(p, s, l->n, longer, in);
		part_go_back(p, &s->b, before);
		p->spare = spare;
		hand(p, s, &w, true);
		TRY(turn(p, s, &w));
		if (takes(p, &w) > WORSE * ns) {
			part_go_back(p, &s->b, before);
			p->spare = spare;
			w.longer = false;
		}
	}
	if (!w.longer) {
		hand(p, s, &w, false);
		TRY(turn(p, s, &w));
	}
	for (int k = 0; k < l->n; k++) {
		const struct ir_loop_operand *q = &l->x[k];
		const struct ir_type_info t = *scope_type(p, s, q->v);
		struct handed *x = &w.at[k];
		if (ir_role_is_out(q->role)) {
			*x = stack_of(p, w.got[q->result], &t);
			if (!x->t && !part_sum(p, x->h))
				scope_finish(p, s, q->v, 0);
		}
		if (!x->t)
			moved_need(p, s, q->v);
		in[k] = x->t ? moved_fetch_longer(p, s, q->v, *x, 0) : ir_convert(&s->b, scope_fetch(p, s, q->v, x->h), part_wide(p, (enum dtype)t.dtype, x->h));
	}
	uint32_t words;
	int64_t *attr = ir_attr_copy(&p->a, fn, o, &words);
	*ir_attr_word(IR_loop, attr, AT_body) = w.body;
	*ir_attr_word(IR_loop, attr, AT_cond) = w.cond;
	ir_type *t = ARENA_NEW(&p->a, ir_type, o->nout + 1);
	for (uint32_t k = 0; k < o->nout; k++)
		t[k] = s->b.fn->val.p[in[l->made[k]]].type;
	s->b.loc = o->loc;
	ir_val v = ir_emit_raw(&s->b, IR_loop, o->nin, in, o->nout, t, attr, words);
	for (uint32_t k = 0; k < o->nout; k++) {
		struct handed x = w.at[l->made[k]];
		if (x.t)
			moved_give_longer(p, s, o->out + k, v + k, x);
		else
			scope_give(p, s, o->out + k, v + k, x.h);
	}
	return NULL;
}

/* --- branches ------------------------------------------------------------------------------------- */

/* The branches of o, handed and giving that; *ns: what they take, one as likely as another. */
static struct err *branches(struct part *p, const struct scope *s, const struct ir_op *o, const struct handed *in, const struct handed *end, int64_t *f, double *ns)
{
	int n;
	const int64_t *branch = ir_attrs(s->from, o, AT_branch, &n);
	*ns = 0;
	for (int j = 0; j < n; j++) {
		ir_fnid g;
		TRY(do_region(p, (ir_fnid)branch[j], in, end, &g, NULL, NULL, NULL));
		f[j] = g;
		*ns += spmd_fn_time(p->plan, p->m, ir_fn_of(p->m, g)) / n;
	}
	return NULL;
}

struct err *part_case(struct part *p, struct scope *s, const struct ir_op *o)
{
	const struct ir_fn *fn = s->from;
	int n;
	ir_attrs(fn, o, AT_branch, &n);
	struct handed *longer = ARENA_NEW(&p->a, struct handed, o->nin + 1), *end = ARENA_NEW(&p->a, struct handed, o->nout + 1), *as = ARENA_NEW(&p->a, struct handed, o->nin + 1),
	              *to = ARENA_NEW(&p->a, struct handed, o->nout + 1);
	ir_val *in = ARENA_NEW(&p->a, ir_val, o->nin + 1);
	int64_t *w = ARENA_NEW(&p->a, int64_t, n + 1);
	double ns, more;
	bool any = false;
	for (uint32_t k = 0; k < o->nin; k++) {
		ir_val v = in[k] = ir_in(fn, o, k);
		if (k && !s->map[v])
			longer[k] = moved_longer(p, s, v, v, 0);
		any |= longer[k].t != 0;
		if (!longer[k].t)
			moved_need(p, s, v);
		scope_summed(p, s, v);
		as[k] = as_it_is(lies(p, s, v));
		longer[k] = longer[k].t ? longer[k] : as[k];
	}
	for (uint32_t k = 0; k < o->nout; k++) {
		to[k] = as_it_is(part_summed(p, scope_wanted(s, o->out + k)));
		end[k] = moved_longer(p, s, o->out + k, 0, 0);
		any |= end[k].t != 0;
		end[k] = end[k].t ? end[k] : to[k];
	}
	w[0] = n;
	struct part_mark before = part_mark(p, &s->b);
	TRY(branches(p, s, o, as + 1, to, w + 1, &ns));
	if (any) {
		part_go_back(p, &s->b, before);
		ns += whole(p, s, (int)o->nin, longer, in);
		TRY(branches(p, s, o, longer + 1, end, w + 1, &more));
		any = more <= WORSE * ns;
		if (!any) {
			part_go_back(p, &s->b, before);
			TRY(branches(p, s, o, as + 1, to, w + 1, &ns));
		}
	}
	ir_type *t = ARENA_NEW(&p->a, ir_type, o->nout + 1);
	for (uint32_t k = 0; k < o->nin; k++) {
		const struct handed *x = any ? &longer[k] : &as[k];
		if (!x->t)
			moved_need(p, s, in[k]);
		in[k] = x->t ? moved_fetch_longer(p, s, in[k], *x, 0) : scope_fetch(p, s, in[k], k ? x->h : 0);
	}
	for (uint32_t k = 0; k < o->nout; k++) {
		to[k] = any ? end[k] : to[k];
		t[k] = part_type(p, to[k].t ? to[k].t : fn->val.p[o->out + k].type, to[k].h, DT_token);
	}
	s->b.loc = o->loc;
	ir_val v = ir_emit_raw(&s->b, IR_case, o->nin, in, o->nout, t, w, (uint32_t)n + 1);
	for (uint32_t k = 0; k < o->nout; k++) {
		if (to[k].t)
			moved_give_longer(p, s, o->out + k, v + k, to[k]);
		else
			scope_give(p, s, o->out + k, v + k, to[k].h);
	}
	return NULL;
}
