/* How each group of a program runs: the one place that decides, by price. */
#include "lower.h"
#include "../gen/gen.h"

/* All ops of g, and of the functions they hold, once each. */
static void text_of(const struct ir_module *m, const struct ir_fn *g, double *nops, double *adds, bool *elem)
{
	for (size_t i = 0; i < g->op.n; i++) {
		const struct ir_op *o = &g->op.p[i];
		ir_fnid held[64];
		int n = ir_regions(g, o, held, NELEM(held));
		++*nops;
		*adds += ir_cost_each(m, g, o);
		*elem &= ir_is_elem(o->kind) || o->kind == IR_constant || (ir_info(o->kind)->flags & IR_VIEW);
		for (int k = 0; k < n; k++)
			text_of(m, ir_fn_of(m, held[k]), nops, adds, elem);
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
	bool elem = true;
	text_of(m, g, &x.nops, &x.adds, &elem);
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
