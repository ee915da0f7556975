/* What the compiler decided, in words: loops and their roles, groups, kernels by where their time goes, memory; read off the operations after
 * the last pass and off the prog. */
#include "passes.h"

/* --- loops ------------------------------------------------------------------- */

static void loop(struct str *s, struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, const char *how)
{
	struct ir_loop l = ir_loop_view(a, m, fn, o);
	int count[NELEM(ir_role_name)] = {0};
	int64_t size[NELEM(ir_role_name)] = {0};
	for (int k = 0; k < l.n; k++) {
		count[l.x[k].role]++;
		size[l.x[k].role] += ir_vtype(m, fn, l.x[k].v)->bytes;
	}
	str_add(s, "  ");
	pass_add_place(s, m, o->loc);
	if (l.trip >= 0)
		str_addf(s, "  %ld turns%s:", (long)l.trip, how);
	else
		str_addf(s, "  while a condition holds%s:", how);
	for (size_t r = 0; r < NELEM(ir_role_name); r++)
		if (count[r]) {
			str_addf(s, " %s %d (", ir_role_name[r], count[r]);
			pass_add_bytes(s, (double)size[r]);
			str_add(s, ")");
		}
	str_add(s, "\n");
}

static void loops(struct str *s, struct arena *a, const struct ir_module *m)
{
	int n, found = 0;
	const ir_fnid *f = ir_reachable(a, m, &n);
	str_add(s, "loops: a carry keeps its storage, const is made once, in and out are slices of stacked arrays used where they lie\n");
	for (int i = n - 1; i >= 0; i--) {
		const struct ir_fn *fn = ir_fn_of(m, f[i]);
		bool group = strncmp(ir_text(m, fn->name), "group", 5) == 0;
		for (size_t k = 0; k < fn->op.n; k++)
			if (fn->op.p[k].kind == IR_loop) {
				loop(s, a, m, fn, &fn->op.p[k], group ? ", one piece of code" : "");
				found++;
			}
	}
	if (!found)
		str_add(s, "  none\n");
}

/* --- kernels ------------------------------------------------------------------- */

/* Where it comes from, and its name there. */
static void site(struct str *s, const struct prog_site *x)
{
	x = x && x->text[0] ? x : NULL;
	str_addf(s, x && x->scope ? "%s  %s\n" : "%s\n", x ? x->text : "(no line)", x ? x->scope : NULL);
}

static void kernels(struct str *s, const struct pass_account *t)
{
	enum { MOST = 24 };
	double total = t->ns[PASS_COMPUTES], count = 0;
	int n = 0, left = 0;
	for (size_t i = 0; i < t->n; i++)
		count += t->cost[i].sort == PASS_COMPUTES ? t->cost[i].times : 0;
	str_addf(s, "kernels: %.0f runs of %u, on one core with all operands in memory about ", count, t->p->nkern);
	pass_add_time(s, total);
	str_add(s, "; the heaviest first\n");
	for (size_t i = 0; i < t->n; i++) {
		const struct pass_cost *u = &t->cost[i];
		size_t from = s->n;
		if (u->sort != PASS_COMPUTES)
			continue;
		if (++n > MOST) {
			left++;
			continue;
		}
		str_addf(s, "  %5.1f %%  ", total > 0 ? 100 * u->ns / total : 0);
		pass_add_time(s, u->ns);
		str_addf(s, "%*s%-22s x%-6.0f ", (int)MAX(22 - (int)(s->n - from), 1), "", u->work, u->times);
		str_addf(s, "%-16s ", u->name);
		pass_add_shape(s, u->made);
		str_add(s, "  ");
		site(s, u->site);
	}
	if (left)
		str_addf(s, "  and %d lighter ones\n", left);
}

/* --- groups ------------------------------------------------------------------------ */

/* The price of a group without code. */
static void group(struct str *s, const struct plan_table *t, const struct ir_module *m, ir_loc at, const struct lower_choice *c)
{
	double run = plan_time(t, &c->work, c->otherwise), code = plan_time(t, &c->work, PLAN_gen);
	str_add(s, "  ");
	pass_add_place(s, m, at);
	str_addf(s, "  %.0f ops x%.4g: %s; ", c->work.ops, c->runs, c->why);
	pass_add_time(s, run);
	str_add(s, " a run, ");
	pass_add_time(s, code);
	str_add(s, " as code, which would save ");
	pass_add_time(s, MAX(run - code, 0) * c->runs);
	str_add(s, " and take ");
	pass_add_time(s, plan_compile_time(t, c->nops, c->adds));
	str_add(s, " to make\n");
}

static void groups(struct str *s, struct arena *a, const struct plan_table *table, const struct ir_module *m, const struct lower_choice *choice)
{
	enum { MOST = 24 };
	int n, count[2] = {0};
	bool *seen = ARENA_NEW(a, bool, m->fn.n);
	const ir_fnid *f = ir_reachable(a, m, &n);
	struct str t = {0};
	for (int i = n; i-- > 0;) {
		const struct ir_fn *fn = ir_fn_of(m, f[i]);
		for (size_t k = 0; k < fn->op.n; k++) {
			ir_fnid g = fn->op.p[k].kind == IR_fused ? (ir_fnid)ir_attr(fn, &fn->op.p[k], AT_fn) : 0;
			if (!g || seen[g])
				continue;
			seen[g] = true;
			if (!choice[g].code && count[0] < MOST)
				group(&t, table, m, fn->op.p[k].loc, &choice[g]);
			count[choice[g].code]++;
		}
	}
	str_addf(s, "groups of operations that are one kernel: %d as generated code, %d not%s\n", count[1], count[0],
	         count[0] ? ", in all launches that a program is compiled for:" : "");
	if (t.n)
		str_addn(s, t.p, t.n);
	if (count[0] > MOST)
		str_addf(s, "  and %d others\n", count[0] - MOST);
	str_free(&t);
}

void pass_explain_compiled(struct str *s, struct arena *a, const struct ir_module *m, const struct plan_table *t, const struct lower_choice *choice, const struct pass_account *account)
{
	loops(s, a, m);
	groups(s, a, t, m, choice);
	kernels(s, account);
	pass_explain_memory(s, m, account);
}
