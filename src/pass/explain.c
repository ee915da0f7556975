/* What the compiler decided, in words: loops and their roles, kernels by where their time goes, collectives,
 * memory.  Compiles the program and reads the answer off the operations after the last pass and off the prog. */
#include "passes.h"

#include <stdlib.h>

static void bytes(struct str *s, int64_t n)
{
	static const char *const unit[] = {"B", "KB", "MB", "GB", "TB"};
	double v = (double)n;
	int u = 0;
	for (; v >= 1024 && u < 4; u++)
		v /= 1024;
	str_addf(s, u ? "%.1f %s" : "%.0f %s", v, unit[u]);
}

static void where(struct str *s, const struct ir_module *m, ir_loc l)
{
	const struct ir_loc_info *i = l ? &m->loc.p[l] : NULL;
	if (i && i->file && *ir_text(m, i->file))
		str_addf(s, "%s:%d", ir_text(m, i->file), i->line);
	else
		str_add(s, "(no line)");
}

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
	where(s, m, o->loc);
	if (l.trip >= 0)
		str_addf(s, "  %ld turns%s:", (long)l.trip, how);
	else
		str_addf(s, "  while a condition holds%s:", how);
	for (size_t r = 0; r < NELEM(ir_role_name); r++)
		if (count[r]) {
			str_addf(s, " %s %d (", ir_role_name[r], count[r]);
			bytes(s, size[r]);
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

struct use { const struct prog_kern *k; uint32_t site; int64_t runs; double ns; };

static void uses(const struct prog *p, const int64_t *runs, struct use *use)
{
	for (uint32_t i = 0; i < p->nkern; i++)
		use[i] = (struct use){ .k = &p->kern[i], .runs = runs[i], .ns = (double)runs[i] * plan_kern_time(&p->kern[i]) };
	for (uint32_t b = 0; b < p->nblock; b++)
		for (uint32_t i = 0; i < p->block[b].n; i++)
			if (p->block[b].cmd[i].op == CMD_KERN)
				use[p->block[b].cmd[i].id].site = p->block[b].cmd[i].site;
}

static int heavier(const void *a, const void *b)
{
	const struct use *x = a, *y = b;
	return x->ns < y->ns ? 1 : x->ns > y->ns ? -1 : x->k < y->k ? -1 : x->k > y->k;
}

static const char *kind_of(const struct prog_kern *k)
{
	switch (k->id) {
	case KERN_gen: return "generated code";
	case KERN_dot: case KERN_convolution: return "matrix kernel";
	case KERN_copy: case KERN_fill: case KERN_iota: case KERN_pad: case KERN_dynamic_slice: case KERN_dynamic_update: return "data movement";
	case KERN_elem: return "strips of vector code";
	default: return "kernel of its own";
	}
}

/* Where it comes from, and its name there. */
static void site(struct str *s, const struct prog *p, uint32_t i)
{
	const struct prog_site *x = i < p->nsite && p->site[i].text[0] ? &p->site[i] : NULL;
	str_addf(s, x && x->scope ? "%s  %s\n" : "%s\n", x ? x->text : "(no line)", x ? x->scope : NULL);
}

static void kernels(struct str *s, const struct prog *p, struct use *use)
{
	enum { MOST = 24 };
	int64_t count = 0;
	double total = 0;
	qsort(use, p->nkern, sizeof *use, heavier);
	for (uint32_t i = 0; i < p->nkern; i++) {
		total += use[i].ns;
		count += use[i].runs;
	}
	str_addf(s, "kernels: %ld runs of %u, the heaviest first\n", (long)count, p->nkern);
	for (uint32_t i = 0; i < p->nkern && i < MOST && use[i].runs; i++) {
		const struct use *u = &use[i];
		str_addf(s, "  %5.1f %%  %-22s x%-6ld ", total > 0 ? 100 * u->ns / total : 0, kind_of(u->k), (long)u->runs);
		str_addf(s, "%-16s ", prog_kern_name[u->k->id]);
		if (u->k->nout) {
			const struct prog_view *v = &u->k->v[u->k->nin];
			str_addf(s, "%s[", dtype_info[v->dtype].name);
			for (int d = 0; d < v->rank; d++)
				str_addf(s, "%s%ld", d ? "," : "", (long)v->dim[d]);
			str_add(s, "]");
		}
		str_add(s, "  ");
		site(s, p, u->site);
	}
	if (p->nkern > MOST)
		str_addf(s, "  and %u lighter ones\n", p->nkern - MOST);
}

/* --- groups ------------------------------------------------------------------------ */

static void nanoseconds(struct str *s, double ns)
{
	str_addf(s, ns < 1e3 ? "%.0f ns" : ns < 1e6 ? "%.1f us" : ns < 1e9 ? "%.1f ms" : "%.1f s", ns < 1e3 ? ns : ns < 1e6 ? ns / 1e3 : ns < 1e9 ? ns / 1e6 : ns / 1e9);
}

/* The price of a group without code. */
static void group(struct str *s, const struct ir_module *m, ir_loc at, const struct lower_choice *c)
{
	double run = plan_time(&c->work, c->otherwise), code = plan_time(&c->work, PLAN_gen);
	str_add(s, "  ");
	where(s, m, at);
	str_addf(s, "  %.0f ops x%.4g: %s; ", c->work.ops, c->runs, c->why);
	nanoseconds(s, run);
	str_add(s, " a run, ");
	nanoseconds(s, code);
	str_add(s, " as code, which would save ");
	nanoseconds(s, MAX(run - code, 0) * c->runs);
	str_add(s, " and take ");
	nanoseconds(s, plan_compile_time(c->nops, c->adds));
	str_add(s, " to make\n");
}

static void groups(struct str *s, struct arena *a, const struct ir_module *m, const struct lower_choice *choice)
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
				group(&t, m, fn->op.p[k].loc, &choice[g]);
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

/* --- collectives and memory ------------------------------------------------------ */

static void collectives(struct str *s, const struct prog *p, const int64_t *runs)
{
	str_add(s, "collectives\n");
	if (!p->ncoll)
		str_add(s, "  none\n");
	for (uint32_t b = 0; b < p->nblock; b++)
		for (uint32_t i = 0; i < p->block[b].n; i++) {
			const struct prog_cmd *c = &p->block[b].cmd[i];
			if (c->op != CMD_COLL)
				continue;
			const struct prog_coll *k = &p->coll[c->id];
			str_addf(s, "  %-14s %-5s x%-6ld ", prog_coll_name[k->kind], dtype_info[k->dtype].name, (long)runs[c->id]);
			bytes(s, k->outer * k->inner * k->nin);
			if (k->kind == COLL_permute) {
				int n = 0;
				for (int d = 0; d < p->ndev; d++)
					n += p->table[k->pairs].v[d] >= 0;
				str_addf(s, " over %d pairs%s", n, prog_in_place(p, c) ? ", in place" : "");
			} else {
				str_addf(s, " in groups of %d", p->group[k->group].ncol);
			}
			str_addf(s, ", road %s  ", k->algo ? prog_algo_name[k->algo] : "chosen by size when it runs");
			site(s, p, c->site);
		}
}

static void memory(struct str *s, const struct prog *p)
{
	int64_t arg, res, shared;
	prog_sizes(p, &arg, &res, &shared);
	str_add(s, "memory of a device: arguments ");
	bytes(s, arg);
	str_add(s, ", results ");
	bytes(s, res);
	str_add(s, " (in the storage of donated arguments: ");
	bytes(s, shared);
	str_add(s, "), temporary ");
	bytes(s, p->zone);
	str_add(s, ", constants ");
	bytes(s, p->ndata);
	str_add(s, "\n");
	for (uint32_t i = 0; i < p->narg; i++)
		if (p->arg[i].alias == -2)
			str_addf(s, "  argument %u is donated, but no result can take its storage\n", i);
}

struct err *pass_explain(struct str *s, const struct pass_opts *o, struct ir_module *m)
{
	struct prog *p;
	struct pass_opts mine = *o;
	mine.stop = NULL;
	TRY(pass_run(&mine, m));
	struct arena a;
	arena_init(&a);
	str_addf(s, "'%s' for %d device%s\n", ir_text(m, m->name), o->ndev, o->ndev > 1 ? "s" : "");
	loops(s, &a, m);
	struct lower_choice *choice = lower_choices(&a, mine.tier, m);
	struct err *e = pass_lower(&mine, m, choice, &p);
	if (!e) {
		struct use *use = ARENA_NEW(&a, struct use, p->nkern + 1);
		int64_t *kern = ARENA_NEW(&a, int64_t, p->nkern + 1), *runs = ARENA_NEW(&a, int64_t, p->ncoll + 1);
		prog_runs(p, IR_TURNS, kern, runs);
		uses(p, kern, use);
		groups(s, &a, m, choice);
		kernels(s, p, use);
		collectives(s, p, runs);
		memory(s, p);
		prog_free(p);
	}
	arena_fini(&a);
	return e;
}
