/* What is kept of a measurement: nothing, if the machine was not quiet. */
#include <stdlib.h>

#include "plan.h"

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

/* The quarters of a steady measurement are no further apart than that part of its median; of unsteady ones there may be that many. */
static const double APART = 0.25, SOME = 0.1, OTHERS = 0.1;

double plan_gauge_add(struct plan_gauge *g, double *sample, int n)
{
	enum { LEAST = 3 };

	qsort(sample, (size_t)n, sizeof *sample, by_value);
	double median = sample[n / 2];
	g->n++;
	g->unsteady += n < LEAST || !(median > 0) || sample[n - 1 - n / 4] - sample[n / 4] > APART * median;
	return median;
}

struct err *plan_gauge_load(const struct plan_gauge *g)
{
	return g->others > OTHERS ? ERR(PRECONDITION, "the machine was not quiet: others took %.2f of its cores", g->others) : NULL;
}

struct err *plan_gauge_quiet(const struct plan_gauge *g)
{
	TRY(plan_gauge_load(g));
	if (!g->n || g->unsteady > SOME * g->n)
		return ERR(PRECONDITION, "the machine was not quiet: the repeats of %d of %d measurements disagree", g->unsteady, g->n);
	return NULL;
}

/* Four digits: what a text of them gives back. */
static double rounded(double x)
{
	char s[32];
	snprintf(s, sizeof s, "%.4g", x);
	return strtod(s, NULL);
}

struct err *plan_table_store(struct plan_table *t, const struct plan_gauge *g, struct str *path)
{
	struct str s = { 0 };
	struct err *e = plan_gauge_quiet(g);

	if (e)
		return err_wrap(e, "nothing is stored");
	for (int i = 0; i < PLAN_WAYS * PLAN_PARTS; i++)
		t->way[i / PLAN_PARTS][i % PLAN_PARTS] = rounded(t->way[i / PLAN_PARTS][i % PLAN_PARTS]);
	for (int i = 0; i < PLAN_RATES; i++)
		t->rate[i] = rounded(t->rate[i]);
	for (float *ns = &t->ns[0][0][0][0], *end = ns + sizeof t->ns / sizeof *ns; ns < end; ns++)
		*ns = (float)rounded(*ns);
	plan_table_path(path, true);
	if (!path->n)
		return ERR(PRECONDITION, "RONDO_CACHE is '%s': there is no place for the table", conf_str(CONF_CACHE));
	plan_table_print(&s, t);
	e = plan_table_parse(t, s.p, s.n, true);          /* nothing that would be refused is written */
	if (!e)
		e = str_write_entry(path->p, s.p, s.n);
	str_free(&s);
	return e ? err_wrap(e, "the machine table '%s'", path->p) : NULL;
}
