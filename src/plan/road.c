/* Which algorithm a collective takes: that of the least price, of those that were measured. */
#include <math.h>

#include "plan.h"

const int64_t plan_size[PLAN_SIZES] = { 8, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20 };

/* The points of a curve, from the first size on. */
static int points(const float *ns)
{
	int n = 0;
	while (n < PLAN_SIZES && ns[n] > 0)
		n++;
	return n;
}

double plan_curve(const struct plan_table *t, enum coll_topo topo, enum coll_kind k, enum coll_algo a, double bytes)
{
	const float *ns = t->ns[topo][k][a];
	int n = points(ns), i = 1;
	if (n < 2 || bytes <= (double)plan_size[0])
		return n ? ns[0] : 0;
	while (i < n - 1 && bytes > (double)plan_size[i])
		i++;
	double x0 = (double)plan_size[i - 1], x1 = (double)plan_size[i], y0 = ns[i - 1], y1 = ns[i];
	return y0 + MAX(y1 - y0, 0) * (bytes - x0) / (x1 - x0);
}

/* Where two curves, straight between two sizes, cross: a begins below b and ends above; behind n0, and at n1 at the latest. */
static int64_t crossing(int64_t n0, int64_t n1, double a0, double a1, double b0, double b1)
{
	double d0 = b0 - a0, d1 = a1 - b1, f = d0 + d1 > 0 ? d0 / (d0 + d1) : 0.5;
	return n0 + MAX((int64_t)ceil((double)(n1 - n0) * MIN(MAX(f, 0), 1)), 1);
}

/* Of all ways to give each size an algorithm, with as many switches as there are rules, the one that takes the least time (the product over all
 * sizes), where a switch costs a twentieth: noise is worth none.  Then no switch would be better a size earlier or later, so the curves of the two
 * cross between the sizes beside it.  There it is made: it takes no latency back. */
bool plan_rules(const struct plan_table *t, enum coll_topo topo, enum coll_kind k, struct coll_rule rule[COLL_RULES])
{
	const double SWITCH = log(1.05);
	double cost[PLAN_SIZES][COLL_RULES][COLL_ALGOS];      /* up to this size, with so many switches, this algorithm in the end */
	uint8_t from[PLAN_SIZES][COLL_RULES][COLL_ALGOS], algo[PLAN_SIZES];
	int sizes = 0, n = 0, last = 0, switches = 0;

	for (int a = 1; a < COLL_ALGOS; a++)
		sizes = MAX(sizes, points(t->ns[topo][k][a]));
	for (int i = 0; i < sizes; i++)
		for (int s = 0; s < COLL_RULES; s++)
			for (int a = 1; a < COLL_ALGOS; a++) {
				double *c = &cost[i][s][a], ns = i < points(t->ns[topo][k][a]) ? t->ns[topo][k][a][i] : 0;
				*c = i ? cost[i - 1][s][a] : s ? INFINITY : 0;
				from[i][s][a] = (uint8_t)a;
				for (int b = 1; b < COLL_ALGOS && i && s; b++)
					if (b != a && cost[i - 1][s - 1][b] + SWITCH < *c) {
						*c = cost[i - 1][s - 1][b] + SWITCH;
						from[i][s][a] = (uint8_t)b;
					}
				*c += ns > 0 ? log(ns) : INFINITY;
				if (i == sizes - 1 && *c < (last ? cost[i][switches][last] : INFINITY))
					switches = s, last = a;
			}
	if (!last)
		return false;
	for (int i = sizes - 1; i >= 0; i--) {
		int before = from[i][switches][last];
		algo[i] = (uint8_t)last;
		switches -= before != last;
		last = before;
	}
	memset(rule, 0, COLL_RULES * sizeof *rule);
	for (int i = 1; i < sizes; i++) {
		int p = algo[i - 1], a = algo[i];
		const float *x = t->ns[topo][k][p], *y = t->ns[topo][k][a];
		int64_t at = p == a ? 0 : crossing(plan_size[i - 1], plan_size[i], x[i - 1], x[i] > 0 ? x[i] : INFINITY, y[i - 1] > 0 ? y[i - 1] : INFINITY, y[i]);
		if (at > (n ? rule[n - 1].below : 0))
			rule[n++] = (struct coll_rule){ at, (uint8_t)p };
	}
	rule[n] = (struct coll_rule){ INT64_MAX, algo[sizes - 1] };
	return true;
}

void plan_rules_all(struct plan_table *t)
{
	prog_rules_init(t->rule);
	for (int topo = 0; topo < COLL_TOPOS; topo++)
		for (int k = 0; k < COLL_COUNT; k++)
			plan_rules(t, (enum coll_topo)topo, (enum coll_kind)k, t->rule[topo][k]);
}

/* --- the setting --------------------------------------------------------------------------- */

static int index_in(const char *const *name, int n, const char *word)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(name[i], word))
			return i;
	return -1;
}

static void only(struct plan_table *t, enum coll_kind k, enum coll_algo a)
{
	for (int topo = 0; topo < COLL_TOPOS; topo++) {
		memset(t->rule[topo][k], 0, sizeof t->rule[topo][k]);
		t->rule[topo][k][0] = (struct coll_rule){ INT64_MAX, (uint8_t)a };
	}
}

static struct err *unknown(const char *what, const char *word, const char *const *name, size_t n)
{
	const char *near = str_nearest(word, name, n);
	struct str all = { 0 };

	str_words(&all, name, n);
	struct err *e = ERR(INVALID, "no %s '%s'%s%s%s: it is one of %s", what, word, near ? ", did you mean '" : "", near ? near : "", near ? "'" : "", all.p);
	str_free(&all);
	return e;
}

static struct err *cannot(enum coll_kind k, enum coll_algo a)
{
	const char *can[COLL_ALGOS];
	struct str all = { 0 };
	size_t n = 0;

	for (int i = 0; i < COLL_ALGOS; i++)
		if (prog_algo_has((enum coll_algo)i, k))
			can[n++] = prog_algo_name[i];
	str_words(&all, can, n);
	struct err *e = ERR(INVALID, "'%s' cannot be done by '%s'; there is %s", prog_coll_name[k], prog_algo_name[a], all.p);
	str_free(&all);
	return e;
}

struct err *plan_table_override(struct plan_table *t, const char *text)
{
	char copy[512], *save, *word[sizeof copy / 2];
	int n = 0, by[COLL_COUNT];
	struct plan_table *was = mem_new(sizeof *was);
	struct err *e = NULL;

	*was = *t;
	memset(by, -1, sizeof by);
	if (strlen(text) >= sizeof copy) {
		e = ERR(INVALID, "it is longer than %zu bytes", sizeof copy);
		goto out;
	}
	memcpy(copy, text, strlen(text) + 1);
	for (char *w = strtok_r(copy, ", ", &save); w; w = strtok_r(NULL, ", ", &save)) {
		char *eq = strchr(w, '=');
		const char *algo = eq ? eq + 1 : w;
		int a = index_in(prog_algo_name, COLL_ALGOS, algo), k = -1;
		if (eq) {
			*eq = 0;
			k = index_in(prog_coll_name, COLL_COUNT, w);
			if (k < 0)
				e = unknown("collective", w, prog_coll_name, COLL_COUNT);
			*eq = '=';
		}
		if (!e && a < 0)
			e = unknown("algorithm", algo, prog_algo_name, COLL_ALGOS);
		if (!e && k >= 0 && !prog_algo_has((enum coll_algo)a, (enum coll_kind)k))
			e = cannot((enum coll_kind)k, (enum coll_algo)a);
		TRY_GOTO(e, e, out);
		for (int i = 0; i < COLL_COUNT; i++) {
			if ((k >= 0 && k != i) || !prog_algo_has((enum coll_algo)a, (enum coll_kind)i))
				continue;
			by[i] = n;
			if (a != COLL_auto)
				only(t, (enum coll_kind)i, (enum coll_algo)a);
			for (int topo = 0; topo < COLL_TOPOS && a == COLL_auto; topo++)
				memcpy(t->rule[topo][i], was->rule[topo][i], sizeof t->rule[topo][i]);
		}
		word[n++] = w;
	}
	if (*text && !n)
		e = ERR(INVALID, "it names nothing");
	for (int i = 0, k; i < n && !e; i++) {
		for (k = 0; k < COLL_COUNT && by[k] != i; k++) { }
		if (k == COLL_COUNT)
			e = ERR(INVALID, "'%s' has no effect, for what follows it", word[i]);
	}
out:
	if (e)
		*t = *was;
	free(was);
	return e;
}
