/* The rules of the functions that an op holds: reducers, callees, loops, bodies of manual computations. */
#include "rule.h"

struct err *ru_sig_count(const struct at *a, int64_t f, uint32_t np, uint32_t nr)
{
	NEED(f > 0 && f < (int64_t)a->m->fn.n, "it has no function %lld", (long long)f);
	const struct ir_fn *g = a->m->fn.p[f];
	NEED(g->nparam == np && g->result.n == nr, "function '%s' takes %u values and gives %zu, not %u and %u", ir_text(a->m, g->name),
	     g->nparam, g->result.n, np, nr);
	return NULL;
}

ir_type ru_param_t(const struct at *a, int64_t f, uint32_t i)
{
	return a->m->fn.p[f]->val.p[i + 1].type;
}

ir_type ru_ret_t(const struct at *a, int64_t f, uint32_t i)
{
	const struct ir_fn *g = a->m->fn.p[f];
	return g->val.p[g->result.p[i]].type;
}

struct err *ru_is_type(const struct at *a, ir_type t, ir_type want, const char *what, uint32_t i)
{
	if (t == want)
		return NULL;
	struct str s = {0};
	ir_print_type(&s, a->m, t);
	str_add(&s, ", not ");
	ir_print_type(&s, a->m, want);
	struct err *e = ERR(INVALID, "%s %u is %s", what, i, s.p);
	str_free(&s);
	return e;
}

bool ru_scalar_of(const struct at *a, ir_type t, enum dtype dt)
{
	return a->m->type.p[t].dtype == dt && a->m->type.p[t].rank == 0;
}

struct err *ru_reducer(const struct at *a, uint32_t n, bool overwrite)
{
	int64_t f = num(a, AT_fn);
	if (num(a, AT_redop) != RED_fn || (overwrite && !f)) {
		NEED(!f, "a function beside operation '%s'", redop_name[num(a, AT_redop)]);
		NEED(n == 1 || overwrite, "operation '%s' on %u operands", redop_name[num(a, AT_redop)], n);
		return NULL;
	}
	TRY(ru_sig_count(a, f, 2 * n, n));
	for (uint32_t i = 0; i < n; i++) {
		enum dtype dt = operand(a, i)->dtype;
		NEED(ru_scalar_of(a, ru_param_t(a, f, i), dt) && ru_scalar_of(a, ru_param_t(a, f, n + i), dt) && ru_scalar_of(a, ru_ret_t(a, f, i), dt),
		     "function '%s' is not one of scalars of operand %u's type", ir_text(a->m, a->m->fn.p[f]->name), i);
	}
	return NULL;
}

struct err *ru_callee(const struct at *a, int64_t f, uint32_t from)
{
	TRY(ru_sig_count(a, f, a->o->nin - from, a->o->nout));
	for (uint32_t i = from; i < a->o->nin; i++)
		TRY(ru_is_type(a, operand_t(a, i), ru_param_t(a, f, i - from), "operand", i));
	for (uint32_t i = 0; i < a->o->nout; i++)
		TRY(ru_is_type(a, result_t(a, i), ru_ret_t(a, f, i), "result", i));
	return NULL;
}

static bool slice_of(const struct at *a, ir_type part, ir_type stack)
{
	const struct ir_type_info *p = &a->m->type.p[part], *s = &a->m->type.p[stack];
	return s->rank == p->rank + 1 && s->dtype == p->dtype &&
	       (p->rank == 0 || memcmp(s->dim + 1, p->dim, sizeof *p->dim * p->rank) == 0);
}

/* What operand i is inside and afterwards. */
static struct err *loop_operand(const struct at *a, const struct ir_loop *l, int i)
{
	const struct ir_loop_operand *x = &l->x[i];
	ir_type t = operand_t(a, (uint32_t)i), in = x->param ? l->body->val.p[x->param].type : 0,
	        next = x->result >= 0 ? l->body->val.p[l->body->result.p[x->result]].type : 0;
	bool stack = ir_role_is_stack(x->role);
	if (stack) {
		const struct ir_type_info *s = &a->m->type.p[t];
		NEED(s->rank > 0 && s->dim[0] >= l->trip, "operand %u has fewer than %lld slices", (unsigned)i, (long long)l->trip);
		NEED(!in || slice_of(a, in, t), "the body's parameter for operand %u is not its slice", (unsigned)i);
		NEED(!next || slice_of(a, next, t), "the body's result for operand %u is not its slice", (unsigned)i);
	} else {
		TRY(ru_is_type(a, in, t, "the body's parameter for operand", (uint32_t)i));
		TRY(next ? ru_is_type(a, next, t, "the body's result for operand", (uint32_t)i) : NULL);
	}
	if (x->result >= 0)
		TRY(ru_is_type(a, result_t(a, (uint32_t)x->result), t, "the result for operand", (uint32_t)i));
	return l->cond ? ru_is_type(a, l->cond->val.p[x->asked].type, t, "the condition's parameter", (uint32_t)i) : NULL;
}

struct err *ru_loop(const struct at *a)
{
	int64_t trip = num(a, AT_trip), cond = num(a, AT_cond), body = num(a, AT_body);
	uint32_t n = a->o->nin, carry = 0, outs = 0;
	TRY(length(a, AT_role, (int)n));
	const int64_t *role = list(a, AT_role);
	for (uint32_t i = 0; i < n; i++) {
		NEED(role[i] >= ROLE_CARRY && role[i] <= ROLE_OUT_REV, "role %lld", (long long)role[i]);
		NEED(trip >= 0 || !ir_role_is_stack((enum ir_role)role[i]), "a stack in a loop without a trip count");
		carry += role[i] == ROLE_CARRY;
		outs += ir_role_is_out((enum ir_role)role[i]);
	}
	NEED(trip >= -1, "trip count %lld", (long long)trip);
	NEED(trip < 0 || !cond, "a condition beside a trip count");
	NEED(a->o->nout == carry + outs, "it has %u results for %u carried values and %u stacks", a->o->nout, carry, outs);
	TRY(ru_sig_count(a, body, 1 + n - outs, carry + outs));
	if (trip < 0)
		TRY(ru_sig_count(a, cond, n, 1));
	struct arena tmp;
	arena_init(&tmp);
	const struct ir_loop l = ir_loop_view(&tmp, a->m, a->fn, a->o);
	struct err *e = ru_scalar_of(a, l.body->val.p[IR_LOOP_TURN].type, DT_i32)
	                ? NULL : ERR(INVALID, "the body's first parameter is not the i32 number of the iteration");
	for (int i = 0; i < l.n && !e; i++)
		e = loop_operand(a, &l, i);
	if (!e && l.cond && !ru_scalar_of(a, ru_ret_t(a, cond, 0), DT_pred))
		e = ERR(INVALID, "the condition does not give a pred");
	arena_fini(&tmp);
	return e;
}

/* Local is global with each dimension divided by the manual axes that cut it. */
static struct err *local_of(const struct at *a, ir_type global, ir_type local, ir_shard h, const char *what, uint32_t i)
{
	const struct ir_type_info *g = &a->m->type.p[global], *l = &a->m->type.p[local];
	const struct ir_shard_info *s = &a->m->shard.p[h];
	NEED(g->dtype == l->dtype && g->rank == l->rank, "%s %u has another type or rank inside", what, i);
	for (int d = 0; d < g->rank; d++) {
		int64_t cut = 1;
		for (int k = 0; h && d < s->rank && k < s->dim[d].naxis; k++)
			if (in_list(list(a, AT_axes), count(a, AT_axes), s->dim[d].axis[k].axis))
				cut *= s->dim[d].axis[k].size;
		NEED(g->dim[d] == l->dim[d] * cut, "%s %u: dimension %d is %lld outside and %lld inside, cut in %lld", what, i, d,
		     (long long)g->dim[d], (long long)l->dim[d], (long long)cut);
	}
	return NULL;
}

struct err *ru_shard_fits(const struct at *a, int64_t h, ir_type t)
{
	const struct ir_shard_info *s = &a->m->shard.p[h];
	NEED(!h || s->rank == a->m->type.p[t].rank || (s->rank == 0 && !a->m->mesh.p[s->mesh].naxis),
	     "a sharding of rank %d for a value of rank %d", s->rank, a->m->type.p[t].rank);
	return NULL;
}

struct err *ru_manual(const struct at *a)
{
	int64_t body = num(a, AT_body);
	TRY(length(a, AT_in, (int)a->o->nin));
	TRY(length(a, AT_out, (int)a->o->nout));
	TRY(ru_sig_count(a, body, a->o->nin, a->o->nout));
	int most = 0;
	for (size_t i = 0; i < a->m->mesh.n; i++)
		most = MAX(most, a->m->mesh.p[i].naxis);
	TRY(axes(a, AT_axes, most));
	for (uint32_t i = 0; i < a->o->nin; i++) {
		TRY(ru_shard_fits(a, list(a, AT_in)[i], operand_t(a, i)));
		TRY(local_of(a, operand_t(a, i), ru_param_t(a, body, i), (ir_shard)list(a, AT_in)[i], "operand", i));
	}
	for (uint32_t i = 0; i < a->o->nout; i++) {
		TRY(ru_shard_fits(a, list(a, AT_out)[i], result_t(a, i)));
		TRY(local_of(a, result_t(a, i), ru_ret_t(a, body, i), (ir_shard)list(a, AT_out)[i], "result", i));
	}
	for (uint32_t i = 0; i < a->o->nout; i++)
		if (ir_shard_joint(a->m, (ir_shard)list(a, AT_out)[i])) {
			NEED(i + 1 < a->o->nout && ir_shard_pair(a->m, (ir_shard)list(a, AT_out)[i], (ir_shard)list(a, AT_out)[i + 1]) &&
			     ir_is_pair(a->m, result_t(a, i), result_t(a, i + 1)), "result %u is a part of a joint sum, of which the next one is not the other part", i);
			i++;
		}
	return NULL;
}

/* Operand i is [B.., G, T, ..] as q, with the last extent E, or none if it is 0. */
static struct err *as_queries(const struct at *a, uint32_t i, int64_t last, const char *what)
{
	const struct ir_type_info *q = a->in[0], *t = operand(a, i);
	int rank = last < 0 ? q->rank - 1 : q->rank;
	NEED(t->rank == rank && !memcmp(t->dim, q->dim, sizeof *q->dim * (size_t)(q->rank - 1)) && (last < 0 || t->dim[rank - 1] == last),
	     "operand %u, %s, has not the extents that q has", i, what);
	return NULL;
}

/* Operand i is a table [B.., 1, 1, N], of which function f takes single elements of parameter p, and nothing else. */
static struct err *table(const struct at *a, uint32_t i, int64_t f, ir_val p, int nb)
{
	const struct ir_type_info *t = operand(a, i), *as = &a->m->type.p[ru_param_t(a, f, p - 1)];
	const struct ir_fn *fn = ir_fn_of(a->m, (ir_fnid)f);
	for (int d = 0; d < nb + 2; d++)
		NEED(t->dim[d] == 1 || (d < nb && t->dim[d] == a->in[0]->dim[d]), "dimension %d of operand %u, a table, is %lld", d, i, (long long)t->dim[d]);
	NEED(as->rank == 1 && as->dim[0] == t->dim[nb + 2] && as->dtype == t->dtype && as->dim[0] > 0, "operand %u is no such table as function '%s' takes", i, ir_text(a->m, fn->name));
	for (size_t k = 0; k < fn->op.n; k++)
		for (uint32_t j = 0; j < fn->op.p[k].nin; j++)
			NEED(ir_in(fn, &fn->op.p[k], j) != p || (!j && fn->op.p[k].kind == IR_dynamic_slice), "function '%s' takes more than elements of a table", ir_text(a->m, fn->name));
	return NULL;
}

struct err *ru_attention(const struct at *a)
{
	bool add = a->o->kind == IR_attention_grad_add, grad = add || a->o->kind == IR_attention_grad;
	uint32_t first = grad ? 6 : 3, n = a->o->nin;
	NEED(n >= first + 3 * add, "it has %u operands", n);
	uint32_t tallies = a->o->kind == IR_attention_grad && a->o->nout > 3 ? a->o->nout - 3 : 0;
	NEED(a->o->nout == 3 + tallies || (a->o->nout && a->o->nout < 3 && a->o->kind == IR_attention), "it has %u results", a->o->nout);
	n -= 3 * add;
	const struct ir_type_info *q = a->in[0], *k = a->in[1], *v = a->in[2];
	int nb = q->rank - 3;
	NEED(nb >= 0 && k->rank == nb + 2 && v->rank == nb + 2, "q, k and v of rank %d, %d and %d", q->rank, k->rank, v->rank);
	for (int i = 0; i < 3; i++)
		NEED(cls(a->in[i]) == DT_FLOAT, "operand %d is of %s", i, dtype_info[a->in[i]->dtype].name);
	for (int d = 0; d < nb; d++)
		NEED(q->dim[d] == k->dim[d] && q->dim[d] == v->dim[d], "batch dimension %d of q, k and v: %lld, %lld and %lld", d, (long long)q->dim[d],
		     (long long)k->dim[d], (long long)v->dim[d]);
	NEED(q->dim[nb + 2] == k->dim[nb + 1], "q . k of %lld and %lld elements", (long long)q->dim[nb + 2], (long long)k->dim[nb + 1]);
	NEED(k->dim[nb] == v->dim[nb], "%lld keys and %lld values", (long long)k->dim[nb], (long long)v->dim[nb]);
	enum dtype sum = DT_f32;
	for (int i = 0; i < 3; i++)
		sum = a->in[i]->dtype == DT_f64 ? DT_f64 : sum;
	if (grad) {
		TRY(as_queries(a, 3, -1, "l"));
		TRY(as_queries(a, 4, v->dim[nb + 1], "do"));
		TRY(as_queries(a, 5, -1, "delta"));
		NEED(cls(operand(a, 4)) == DT_FLOAT && (operand(a, 3)->dtype == sum || operand(a, 3)->dtype == DT_f64) && operand(a, 5)->dtype == sum, "l, do and delta of %s, %s and %s",
		     dtype_info[operand(a, 3)->dtype].name, dtype_info[operand(a, 4)->dtype].name, dtype_info[operand(a, 5)->dtype].name);
	}
	int64_t f = num(a, AT_fn);
	NEED(f > 0 && f < (int64_t)a->m->fn.n, "it has no function %lld", (long long)f);
	uint32_t least = grad ? 2 : 1, results = (uint32_t)a->m->fn.p[f]->result.n;
	NEED(results == least + tallies || results == least + 1 + tallies, "function '%s' gives %u values", ir_text(a->m, a->m->fn.p[f]->name), results);
	TRY(ru_sig_count(a, f, 1 + n - first, results));
	for (uint32_t i = 0; i < results; i++)
		NEED(ru_scalar_of(a, ru_ret_t(a, f, i), i < results - tallies ? sum : DT_i32), "result %u of function '%s' is no scalar of %s", i, ir_text(a->m, a->m->fn.p[f]->name), dtype_info[sum].name);
	NEED(ru_scalar_of(a, ru_param_t(a, f, 0), sum), "function '%s' does not take x as %s", ir_text(a->m, a->m->fn.p[f]->name), dtype_info[sum].name);
	for (uint32_t i = first; i < n; i++) {
		const struct ir_type_info *t = operand(a, i);
		NEED(t->rank == nb + 3, "operand %u of rank %d", i, t->rank);
		if (ir_attention_table(a->m, a->fn, a->o, i)) {
			TRY(table(a, i, f, (ir_val)(2 + i - first), nb));
			continue;
		}
		for (int d = 0; d < nb + 3; d++)
			NEED(t->dim[d] == 1 || t->dim[d] == (d < nb + 2 ? q->dim[d] : k->dim[nb]), "dimension %d of operand %u is %lld", d, i, (long long)t->dim[d]);
		NEED(ru_scalar_of(a, ru_param_t(a, f, 1 + i - first), (enum dtype)t->dtype), "function '%s' takes no scalar of operand %u's type",
		     ir_text(a->m, a->m->fn.p[f]->name), i);
	}
	for (uint32_t i = 0; i < 3 && add; i++) {
		const struct ir_type_info *t = operand(a, n + i);
		NEED(cls(t) == DT_FLOAT && t->rank == a->in[i]->rank && !memcmp(t->dim, a->in[i]->dim, sizeof *t->dim * t->rank) && (result_t(a, i) == 0 || a->m->type.p[result_t(a, i)].dtype == t->dtype),
		     "operand %u is not what result %u is added to", n + i, i);
	}
	for (uint32_t i = 3; i < 3 + tallies; i++)
		NEED(result_t(a, i) == 0 || a->m->type.p[result_t(a, i)].dtype == sum, "result %u is not of %s", i, dtype_info[sum].name);
	bool parts = a->o->kind == IR_attention && a->o->nout == 3;
	NEED(!parts || result_t(a, 0) == 0 || a->m->type.p[result_t(a, 0)].dtype == DT_bf16, "o in two parts of another type than bf16");
	for (uint32_t i = 1; i < (parts ? 2 : a->o->nout) && !grad; i++) {
		bool l = a->o->kind == IR_attention && a->m->type.p[result_t(a, i)].dtype == DT_f64;
		NEED(result_t(a, i) == 0 || l || a->m->type.p[result_t(a, i)].dtype == sum, "result %u is not of %s", i, dtype_info[sum].name);
	}
	return NULL;
}
