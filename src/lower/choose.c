/* How each group of a program runs: the one place that decides, by price. */
#include "lower.h"
#include "../gen/gen.h"

/* Rows that kernels go through one after the other for o, if they are short: each takes about as long as an op then.  Rows end where elements of an
 * operand, or what is added up, begin anew. */
static double short_rows(const struct ir_module *m, const struct ir_fn *g, const struct ir_op *o)
{
	enum { SHORT = 16 };
	bool reduce = o->kind == IR_reduce;
	if (!reduce && o->kind != IR_broadcast)
		return 0;
	const struct ir_type_info *in = ir_vtype(m, g, ir_in(g, o, 0)), *t = reduce ? in : ir_vtype(m, g, o->out);
	int n, d = t->rank - 1;
	const int64_t *dims = ir_attrs(g, o, AT_dims, &n);
	double row = 1;
	if (!n || in->count < SHORT)
		return 0;
	for (int seen = -1; d >= 0; d--) {
		int listed = 0;
		for (int i = 0; i < n; i++)
			listed |= dims[i] == d;
		if (t->dim[d] == 1)
			continue;
		if (seen >= 0 && seen != listed)
			break;
		seen = listed;
		row *= (double)t->dim[d];
	}
	return d >= 0 && row < SHORT ? (double)t->count / row : 0;
}

/* All ops of g, and of the functions they hold, once each. */
static void text_of(const struct ir_module *m, const struct ir_fn *g, double *nops, double *adds, double *rows, bool *elem)
{
	for (size_t i = 0; i < g->op.n; i++) {
		const struct ir_op *o = &g->op.p[i];
		ir_fnid held[64];
		int n = ir_regions(g, o, held, NELEM(held));
		++*nops;
		*adds += ir_cost_each(m, g, o);
		*rows = MAX(*rows, short_rows(m, g, o));
		*elem &= ir_is_elem(o->kind) || o->kind == IR_constant || (ir_info(o->kind)->flags & IR_VIEW);
		for (int k = 0; k < n; k++)
			text_of(m, ir_fn_of(m, held[k]), nops, adds, rows, elem);
	}
}

double *lower_runs(struct arena *a, const struct plan_table *t, const struct ir_module *m)
{
	double *runs = ir_runs(a, m);
	struct ir_cost c = ir_cost_of_fn(m, ir_main(m));
	double launches = plan_launches(plan_time(t, &(struct plan_work){ c.flops, c.adds, c.bytes, c.ops }, PLAN_apart), c.ops);
	for (size_t f = 1; f < m->fn.n; f++)
		runs[f] *= launches;
	return runs;
}

struct lower_choice lower_choose(enum lower_tier tier, const struct plan_table *t, const struct ir_module *m, const struct ir_fn *g, double runs)
{
	struct ir_cost c = ir_cost_of_group(m, g);
	struct lower_choice x = { .runs = runs, .work = { c.flops, c.adds, c.bytes, c.ops } };
	double rows = 0;
	bool elem = true;
	text_of(m, g, &x.nops, &x.adds, &rows, &elem);
	x.work.ops += rows;
	x.otherwise = elem ? PLAN_strips : PLAN_apart;
	if (tier == TIER_REF)
		x.why = "reference kernels are asked for";
	else if (!gen_types(m, g))
		x.why = "generated code has no such numbers";
	else if (tier == TIER_AUTO && !plan_worth_compiling(t, &x.work, x.otherwise, x.nops, x.adds, runs))
		x.why = "it does not pay";
	x.code = !x.why;
	return x;
}

struct lower_choice *lower_choices(struct arena *a, enum lower_tier tier, const struct plan_table *t, const struct ir_module *m)
{
	struct lower_choice *x = ARENA_NEW(a, struct lower_choice, m->fn.n);
	const double *runs = lower_runs(a, t, m);
	int n;
	const ir_fnid *f = ir_reachable(a, m, &n);
	for (int i = 0; i < n; i++) {
		const struct ir_fn *fn = ir_fn_of(m, f[i]);
		for (size_t k = 0; k < fn->op.n; k++) {
			ir_fnid g = fn->op.p[k].kind == IR_fused ? (ir_fnid)ir_attr(fn, &fn->op.p[k], AT_fn) : 0;
			if (g && !x[g].nops)
				x[g] = lower_choose(tier, t, m, ir_fn_of(m, g), runs[g]);
		}
	}
	return x;
}
