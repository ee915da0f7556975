/* The machine table: its text, whose it is, what a made-up one changes, and when none is stored. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "plan/plan.h"

static char dir[64];
static struct plan_table *t, *u;

static int set_up(void **state)
{
	t = mem_alloc(sizeof *t);
	u = mem_alloc(sizeof *u);
	*t = *plan_default();
	return 0;
}

static int tear_down(void **state)
{
	free(t);
	free(u);
	return 0;
}

static void fails(struct err *e, enum err_code code, const char *text)
{
	assert_non_null(e);
	if (e->code != code || !strstr(e->msg, text))
		fail_msg("'%s', not '%s'", e->msg, text);
	err_free(e);
}

static uint64_t rnd(uint64_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x;
}

/* A curve of k by a: start ns, then ns a byte. */
static void curve(enum coll_topo topo, enum coll_kind k, enum coll_algo a, double start, double byte, int points)
{
	for (int i = 0; i < points; i++)
		t->ns[topo][k][a][i] = (float)(start + byte * (double)plan_size[i]);
}

/* What a text has of it: six of them. */
static double digits(double x)
{
	char s[32];
	snprintf(s, sizeof s, "%.6g", x);
	return strtod(s, NULL);
}

/* Curves of random groups, collectives, algorithms and lengths; rates up to eight times the default's. */
static void draw(uint64_t *x)
{
	*t = *plan_default();
	for (int i = 0; i < PLAN_WAYS * PLAN_PARTS; i++)
		t->way[i / PLAN_PARTS][i % PLAN_PARTS] = digits(t->way[i / PLAN_PARTS][i % PLAN_PARTS] * (double)(1 + rnd(x) % 8));
	for (int i = 0; i < PLAN_RATES; i++)
		t->rate[i] = t->rate[i] > 0 ? digits(t->rate[i] * (double)(1 + rnd(x) % 8)) : (double)(rnd(x) % 3) / 64;
	for (int topo = 0; topo < COLL_TOPOS; topo++) {
		if (rnd(x) % 2)
			continue;
		t->members[topo] = 2 + (int)(rnd(x) % 63);
		for (int k = 0; k < COLL_COUNT; k++)
			for (int a = 1; a < COLL_ALGOS; a++)
				if (prog_algo_has((enum coll_algo)a, (enum coll_kind)k) && rnd(x) % 2)
					curve((enum coll_topo)topo, (enum coll_kind)k, (enum coll_algo)a, (double)(1 + rnd(x) % 100000), (double)(rnd(x) % 1000) / 1000, 1 + (int)(rnd(x) % PLAN_SIZES));
	}
	for (float *ns = &t->ns[0][0][0][0], *end = ns + sizeof t->ns / sizeof *ns; ns < end; ns++)
		*ns = (float)digits(*ns);
	plan_rules_all(t);
}

/* What is printed reads back, and says the same. */
static void text(void **state)
{
	uint64_t x = 88172645463325252u;

	for (int i = 0; i < 200; i++) {
		struct str s = { 0 }, again = { 0 };
		if (i)
			draw(&x);
		*u = *plan_default();
		plan_table_print(&s, t);
		struct err *e = plan_table_parse(u, s.p, s.n, true);
		if (e)
			fail_msg("%s", e->msg);
		assert_true(plan_table_hash(t) == plan_table_hash(u));
		plan_table_print(&again, u);
		assert_string_equal(s.p, again.p);
		/* anything else has another hash */
		u->rate[rnd(&x) % PLAN_RATES] += 1;
		assert_true(plan_table_hash(t) != plan_table_hash(u));
		str_free(&again);
		str_free(&s);
	}
}

/* Damaged text is refused, or says something else than before, and changes nothing if it is refused. */
static void damaged(void **state)
{
	struct str s = { 0 };
	uint64_t x = 362436069, before;

	draw(&x);
	plan_table_print(&s, t);
	before = plan_table_hash(t);
	for (size_t i = 0; i + 1 < s.n; i += 1 + rnd(&x) % 13) {
		char old = s.p[i];
		s.p[i] = "!-e.x 9\n"[rnd(&x) % 8];
		*u = *t;
		struct err *e = plan_table_parse(u, s.p, s.n, false);
		assert_true(!e || plan_table_hash(u) == before);
		err_free(e);
		s.p[i] = old;
	}
	for (size_t n = 0; n < s.n; n += n % 5 + 1) {             /* what has no end */
		*u = *t;
		struct err *e = plan_table_parse(u, s.p, n, false);
		assert_non_null(e);
		assert_memory_equal(t, u, sizeof *t);
		err_free(e);
	}
	str_free(&s);
}

/* The text of the default table with one line put in the place of the one that begins with `was`, or behind it. */
static struct err *with_line(const char *was, const char *line, bool behind)
{
	struct str s = { 0 }, n = { 0 };

	plan_table_print(&s, plan_default());
	char *at = s.p, *end;
	while (strncmp(at, was, strlen(was)))
		assert_non_null(at = strchr(at, '\n') + 1);
	end = strchr(at, '\n');
	str_addn(&n, s.p, (size_t)((behind ? end + 1 : at) - s.p));
	str_addf(&n, "%s\n%s", line, end + 1);
	struct err *e = plan_table_parse(t, n.p, n.n, true);
	str_free(&n);
	str_free(&s);
	return e;
}

static void nonsense(void **state)
{
	static const struct { const char *was, *line, *says; bool behind; } bad[] = {
		{ "rondo", "rondo machine table 2", "line 1 is not" }, { "machine", "cpu", "not of which machine" },
		{ "rate wait", "rate wait -1", "'-1' is no number from" }, { "rate wait", "rate wait nan", "'nan' is no number" },
		{ "rate wait", "rate wait inf", "'inf' is no number" }, { "rate wait", "rate wait 1e99", "'1e99' is no number" }, { "rate wait", "rate wait", "a rate has a number" },
		{ "rate wait", "rate wait 250 3", "more than there should be" }, { "rate wait", "rate weight 250", "no such rate" },
		{ "rate wait", "rate wait 100", "for the second time", true }, { "rate wait", "", "no rate 'wait'" }, { "rate dot_f32", "rate dot_f32 1e-9", "is no number from" },
		{ "way gen", "way gen 1 2 3 4", "five numbers" }, { "way gen", "way cold 1 2 3 4 5", "for the second time" }, { "way gen", "way genn 1 2 3 4 5", "no such way" },
		{ "sizes", "sizes 8 64", "curves of other sizes" }, { "sizes", "members pair 1", "whole number, 2 at least", true }, { "sizes", "members pear 2", "no such group", true },
		{ "sizes", "members pair 2.5", "whole number", true }, { "sizes", "time pair all_reduce slot 5", "before its sizes and the members", true },
		{ "sizes", "members pair 2\ntime pair all_gather loan 5", "no such curve", true }, { "sizes", "members pair 2\ntime pair all_reduce slot", "without a point", true },
		{ "sizes", "members pair 2\ntime pair all_reduce slot 100 40", "falls by half", true }, { "sizes", "members pair 2\ntime pair all_reduce slot 0", "is no number from 1", true },
		{ "sizes", "members pair 2\ntime pair all_reduce slot 5\ntime pair all_reduce slot 6", "a curve for the second time", true },
		{ "end", "rate wait 250", "something behind the end", true }, { "sizes", "tome", "begins with none of", true },
	};

	for (size_t i = 0; i < NELEM(bad); i++)
		fails(with_line(bad[i].was, bad[i].line, bad[i].behind), ERR_INVALID, bad[i].says);
	assert_null(with_line("sizes", "# a remark\n", true));
}

/* The table is of this kind of machine: not of another model of the same name, with other instructions, caches or cores. */
static void another(void **state)
{
	struct str s = { 0 };
	const char *const part[] = { cpu_get()->model, "avx", "caches ", "cores " };

	plan_table_print(&s, t);
	for (size_t i = 0; i < NELEM(part); i++) {
		char *at = strstr(s.p, part[i]);
		if (!at && i == 1)
			continue;                        /* it has none */
		assert_true(at && at < strstr(s.p, "\nway"));
		char *last = at + strlen(part[i]) - (i < 1), old = *last;
		*last = old == '7' ? '8' : '7';
		fails(plan_table_parse(u, s.p, s.n, true), ERR_PRECONDITION, "another machine");
		assert_null(plan_table_parse(u, s.p, s.n, false));
		*last = old;
	}
	str_free(&s);
}

/* --- which one is used ----------------------------------------------------------------------- */

static struct plan_gauge quiet(void)
{
	struct plan_gauge g = { 0 };
	for (int i = 0; i < 20; i++)
		assert_true(plan_gauge_add(&g, (double[]){ 1.02, 1, 1.1, 0.99, 30 }, 5) == 1.02);
	return g;
}

static void kept(void **state)
{
	struct plan_gauge g = quiet();
	struct str path = { 0 }, where = { 0 };
	char cmd[100];

	snprintf(cmd, sizeof cmd, "%s/new/one", dir);
	conf_set("CACHE", cmd);
	t->rate[PLAN_wait] = 1234.5678;
	t->members[COLL_PAIR] = 2;
	curve(COLL_PAIR, COLL_permute, COLL_direct, 123.456, 1, 3);
	assert_null(plan_table_store(t, &g, &path));       /* where there was no folder */
	assert_null(plan_table_get(u));
	assert_int_equal(u->source, PLAN_MEASURED);
	assert_true(u->rate[PLAN_wait] == 1235);
	assert_true(plan_table_hash(u) == plan_table_hash(t));
	assert_int_equal(prog_rule_pick(u->rule[COLL_PAIR][COLL_permute], 8), COLL_direct);
	plan_table_where(&where, u);
	assert_true(strstr(where.p, "measured") && strstr(where.p, path.p));
	/* the user names another one, whatever machine it is of; or none */
	struct str s = { 0 };
	plan_table_print(&s, plan_default());
	memcpy(strstr(s.p, "cores"), "c0res", 5);
	assert_null(str_write_file(path.p, s.p, s.n));
	assert_null(plan_table_get(u));                    /* a line says why it is not used */
	assert_int_equal(u->source, PLAN_DEFAULT);
	conf_set("TABLE", path.p);
	assert_null(plan_table_get(u));
	assert_int_equal(u->source, PLAN_FILE);
	conf_set("TABLE", "/nonexistent");
	fails(plan_table_get(u), ERR_NOT_FOUND, "setting 'RONDO_TABLE' cannot be '/nonexistent', not default");
	assert_null(str_write_file(path.p, "nonsense\n", 9));
	conf_set("TABLE", path.p);
	fails(plan_table_get(u), ERR_INVALID, "line 1 is not");
	conf_set("TABLE", "default");
	assert_null(plan_table_get(u));
	assert_int_equal(u->source, PLAN_DEFAULT);
	assert_true(plan_table_hash(u) == plan_table_hash(plan_default()));       /* on any machine */
	conf_set("TABLE", "");
	conf_set("COLL", "permute=slot");
	assert_null(plan_table_get(u));
	/* products where nothing was measured: of this machine's instructions */
	const double *r = u->rate, *as = plan_default()->rate;
	const struct cpu_info *c = cpu_get();
	assert_true(r[PLAN_dot_f32] == (c->avx512 ? 1 : 2) * as[PLAN_dot_f32]);
	assert_true(c->amx_bf16 ? r[PLAN_dot_bf16] < as[PLAN_dot_bf16] : r[PLAN_dot_bf16] == (c->avx512_bf16 ? as[PLAN_dot_bf16] : r[PLAN_dot_f32]));
	assert_int_equal(prog_rule_pick(u->rule[COLL_PAIR][COLL_permute], 1 << 30), COLL_slot);
	assert_true(plan_table_hash(u) != plan_table_hash(plan_default()));
	conf_set("COLL", "");
	snprintf(cmd, sizeof cmd, "rm -r %s/new", dir);
	assert_int_equal(system(cmd), 0);
	str_free(&s);
	str_free(&where);
	str_free(&path);
}

/* What was measured while others were at work is not kept. */
static void unquiet(void **state)
{
	struct plan_gauge g = quiet();
	struct str path = { 0 }, at = { 0 };

	conf_set("CACHE", dir);
	plan_table_path(&at, false);
	g.others = 0.4;
	fails(plan_table_store(t, &g, &path), ERR_PRECONDITION, "not quiet: others took 0.40 of its cores");
	g = quiet();
	for (int i = 0; i < 4; i++)                        /* their repeats disagree */
		assert_true(plan_gauge_add(&g, (double[]){ 2, 1, 1.5, 3, 1 }, 5) == 1.5);
	fails(plan_table_store(t, &g, &path), ERR_PRECONDITION, "the repeats of 4 of 24 measurements disagree");
	g = (struct plan_gauge){ 0 };
	fails(plan_table_store(t, &g, &path), ERR_PRECONDITION, "not quiet");      /* nothing says that it was */
	plan_gauge_add(&g, (double[]){ 1 }, 1);            /* nor does one time alone */
	fails(plan_table_store(t, &g, &path), ERR_PRECONDITION, "not quiet");
	assert_int_not_equal(access(at.p, F_OK), 0);
	g = quiet();
	t->rate[PLAN_wait] = 1e30;                         /* what would not be read is not written */
	fails(plan_table_store(t, &g, &path), ERR_INVALID, "no number from");
	assert_int_not_equal(access(at.p, F_OK), 0);
	conf_set("CACHE", "");
	path.n = 0;
	*t = *plan_default();
	fails(plan_table_store(t, &g, &path), ERR_PRECONDITION, "no place for the table");
	str_free(&at);
	str_free(&path);
}

/* --- what it changes ------------------------------------------------------------------------------ */

static enum coll_algo picks(enum coll_topo topo, enum coll_kind k, int64_t n) { return prog_rule_pick(t->rule[topo][k], n); }

/* Where curves cross, algorithms change; noise is worth no change; what was not measured has the default's rules. */
static void crossings(void **state)
{
	t->members[COLL_PAIR] = 2;
	curve(COLL_PAIR, COLL_all_gather, COLL_slot, 200, 1, PLAN_SIZES);
	curve(COLL_PAIR, COLL_all_gather, COLL_direct, 2200, 0.5, PLAN_SIZES);             /* they cross at 4000 bytes */
	curve(COLL_PAIR, COLL_all_gather, COLL_stage, 210, 1, PLAN_SIZES);
	curve(COLL_PAIR, COLL_permute, COLL_slot, 100, 1, 4);                               /* beyond 1 KB it was not measured */
	curve(COLL_PAIR, COLL_permute, COLL_direct, 5000, 0.1, PLAN_SIZES);
	curve(COLL_PAIR, COLL_broadcast, COLL_slot, 1000, 1, PLAN_SIZES);
	curve(COLL_PAIR, COLL_broadcast, COLL_stage, 1000, 1, PLAN_SIZES);
	t->ns[COLL_PAIR][COLL_broadcast][COLL_stage][3] *= 0.97f;
	curve(COLL_PAIR, COLL_barrier, COLL_slot, 300, 0, 1);
	curve(COLL_PAIR, COLL_barrier, COLL_doubling, 200, 0, 1);
	plan_rules_all(t);
	assert_int_equal(picks(COLL_PAIR, COLL_all_gather, 3990), COLL_slot);
	assert_int_equal(picks(COLL_PAIR, COLL_all_gather, 4010), COLL_direct);
	assert_int_equal(picks(COLL_PAIR, COLL_permute, 1000), COLL_slot);
	assert_int_equal(picks(COLL_PAIR, COLL_permute, 1 << 20), COLL_direct);
	for (int i = 0; i < PLAN_SIZES; i++)
		assert_int_equal(picks(COLL_PAIR, COLL_broadcast, plan_size[i]), picks(COLL_PAIR, COLL_broadcast, 8));
	assert_int_equal(picks(COLL_PAIR, COLL_barrier, 0), COLL_doubling);
	for (int topo = 0; topo < COLL_TOPOS; topo++)
		for (int k = 0; k < COLL_COUNT; k++)
			for (int64_t n = 0; n < (int64_t)1 << 40 && (topo != COLL_PAIR || k == COLL_all_reduce); n = 2 * n + 1)
				assert_int_equal(picks((enum coll_topo)topo, (enum coll_kind)k, n), prog_rule_pick(plan_default()->rule[topo][k], n));
}

/* Of random curves each size gets the least price, but for what a switch must be worth. */
static void least(void **state)
{
	uint64_t x = 521288629;

	for (int round = 0; round < 200; round++) {
		draw(&x);
		for (int topo = 0; topo < COLL_TOPOS; topo++)
			for (int k = 0; k < COLL_COUNT; k++) {
				double sum = 0;
				int was = 0, switches = 0;
				for (int i = 0; i < PLAN_SIZES; i++) {
					int best = 0;
					for (int a = 1; a < COLL_ALGOS; a++)
						if (t->ns[topo][k][a][i] > 0 && (!best || t->ns[topo][k][a][i] < t->ns[topo][k][best][i]))
							best = a;
					if (!best)
						break;
					double got = t->ns[topo][k][picks((enum coll_topo)topo, (enum coll_kind)k, plan_size[i])][i];
					assert_true(got > 0);              /* it was measured */
					sum += log(got / t->ns[topo][k][best][i]);
					switches += was && best != was;
					was = best;
				}
				assert_true(switches >= COLL_RULES || sum <= switches * log(1.05) + 1e-6);
				for (const struct coll_rule *r = t->rule[topo][k]; ; r++) {
					assert_true(prog_algo_has((enum coll_algo)r->algo, (enum coll_kind)k) && r < t->rule[topo][k] + COLL_RULES);
					if (r->below == INT64_MAX)
						break;
				}
			}
	}
}

/* Between points, before the first and beyond the last, and among more members than were measured. */
static void prices(void **state)
{
	const struct plan_on p = { .table = t, .ndev = 8, .cores = 8 };
	const struct plan_group two = { 2, 1, 2, 0 }, four = { 4, 1, 4, 0 };

	t->members[COLL_PAIR] = 2;
	t->members[COLL_GROUP] = 4;
	curve(COLL_PAIR, COLL_all_gather, COLL_slot, 200, 1, 6);
	curve(COLL_PAIR, COLL_all_gather, COLL_direct, 2200, 0.5, 6);
	curve(COLL_GROUP, COLL_all_gather, COLL_direct, 900, 3, 6);
	plan_rules_all(t);
	assert_true(plan_curve(t, COLL_PAIR, COLL_all_gather, COLL_slot, 0) == 208);
	assert_true(plan_curve(t, COLL_PAIR, COLL_all_gather, COLL_slot, 1000) == 1200);
	assert_true(plan_curve(t, COLL_PAIR, COLL_all_gather, COLL_slot, 1 << 20) == 200 + (1 << 20));
	assert_true(plan_curve(t, COLL_PAIR, COLL_all_gather, COLL_ring, 8) == 0);
	assert_true(plan_coll_time(&p, COLL_all_gather, two, 1000, COLL_auto) == 1200);
	assert_int_equal(plan_coll_algo(&p, COLL_all_gather, two, 1000), COLL_slot);
	assert_int_equal(plan_coll_other(&p, COLL_all_gather, two, 1000), COLL_direct);
	assert_true(plan_coll_time(&p, COLL_all_gather, two, 1000, COLL_direct) == 2700);
	assert_true(plan_coll_time(&p, COLL_all_gather, two, 1000, COLL_ring) == 0);
	assert_true(plan_coll_time(&p, COLL_all_gather, four, 1000, COLL_auto) == 3900);
	assert_true(plan_move_time(&p, COLL_all_gather, four, 3000) == 3900);
	/* seven others instead of three */
	double ns = plan_coll_time(&p, COLL_all_gather, (struct plan_group){ 8, 1, 8, 0 }, 1000, COLL_auto);
	assert_true(ns > 3900 * 7 / 3. - 1 && ns < 3900 * 7 / 3. + 1);
	assert_int_equal(plan_coll_other(&p, COLL_all_gather, four, 1000), COLL_auto);
	/* what was not measured: waits and bytes */
	assert_true(plan_coll_time(&p, COLL_permute, two, 1000, COLL_auto) == t->rate[PLAN_wait] + 1000 * t->rate[PLAN_byte]);
	assert_true(plan_coll_time(&(struct plan_on){ 0 }, COLL_permute, two, 1000, COLL_auto) == 250 + 250);
	assert_true(plan_coll_time(&p, COLL_all_gather, (struct plan_group){ 1, 1, 1, 0 }, 1000, COLL_auto) == 0);
}

/* More devices than cores are another group. */
static void crowd(void **state)
{
	t->members[COLL_CROWD] = 4;
	curve(COLL_CROWD, COLL_all_gather, COLL_direct, 7000, 1, 6);
	plan_rules_all(t);
	const struct plan_group four = { 4, 1, 4, 0 };
	assert_true(plan_coll_time(&(struct plan_on){ t, 4, 2, NULL }, COLL_all_gather, four, 1000, COLL_auto) == 8000);
	assert_true(plan_coll_time(&(struct plan_on){ t, 4, 4, NULL }, COLL_all_gather, four, 1000, COLL_auto) < 2000);
	assert_true(plan_hash(&(struct plan_on){ t, 4, 2, NULL }, 4) != plan_hash(&(struct plan_on){ t, 4, 4, NULL }, 4));
}

/* Who is on which host has a price. */
static void hosts(void **state)
{
	static const int host[8] = { 3, 3, 3, 3, 5, 5, 5, 5 };
	static const int64_t rows[8] = { 0, 1, 2, 3, 4, 5, 6, 7 }, columns[8] = { 0, 4, 1, 5, 2, 6, 3, 7 }, all[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	const struct plan_on p = { t, 8, 16, host }, near = { t, 8, 16, NULL };
	struct plan_group in = plan_groups_of(&p, 2, 4, rows), across = plan_groups_of(&p, 4, 2, columns), both = plan_groups_of(&p, 1, 8, all);

	assert_true(in.n == 4 && in.hosts == 1 && in.most == 4);
	assert_true(across.n == 2 && across.hosts == 2 && across.most == 1);
	assert_true(both.n == 8 && both.hosts == 2 && both.most == 4);
	assert_true(plan_groups_of(&near, 4, 2, columns).hosts == 1);
	assert_true(plan_groups_of(&p, 1, 4, (int64_t[]){ 0, 4, -1, -1 }).most == 1);      /* nobody */
	assert_true(plan_coll_time(&p, COLL_all_gather, in, 1 << 20, COLL_auto) == plan_coll_time(&near, COLL_all_gather, in, 1 << 20, COLL_auto));
	assert_true(plan_coll_time(&p, COLL_all_gather, across, 1 << 20, COLL_auto) > plan_coll_time(&near, COLL_all_gather, (struct plan_group){ 2, 1, 2, 0 }, 1 << 20, COLL_auto));
	/* what many of a host need goes once between hosts; what all exchange does not */
	double gather = plan_coll_time(&p, COLL_all_gather, both, 1 << 20, COLL_auto), exchange = plan_coll_time(&p, COLL_all_to_all, both, 1 << 20, COLL_auto);
	assert_true(exchange > 2 * gather);
	assert_int_equal(plan_coll_algo(&p, COLL_all_gather, both, 1 << 20), COLL_levels);
	assert_int_equal(plan_coll_algo(&p, COLL_all_to_all, both, 1 << 20), COLL_direct);
	assert_int_equal(plan_coll_algo(&p, COLL_all_gather, across, 1 << 20), COLL_direct);
	/* by price: a link as fast as memory, a host that is slow at levels */
	t->members[COLL_HOSTS] = 8;
	curve(COLL_HOSTS, COLL_all_gather, COLL_levels, 1e6, 10, PLAN_SIZES);
	curve(COLL_HOSTS, COLL_all_gather, COLL_direct, 1e5, 1, PLAN_SIZES);
	plan_rules_all(t);
	assert_int_equal(plan_coll_algo(&p, COLL_all_gather, both, 1 << 20), COLL_direct);
	assert_int_equal(plan_coll_other(&p, COLL_all_gather, both, 1 << 20), COLL_levels);
	assert_true(plan_hash(&p, 8) != plan_hash(&near, 8));
}

/* What several groups send at the same time goes over one link: prices by hand, of the default's rates. */
static void links(void **state)
{
	static const int host[8] = { 3, 3, 3, 3, 5, 5, 5, 5 }, woven[8] = { 0, 1, 0, 1, 0, 1, 0, 1 };
	static const int64_t columns[8] = { 0, 4, 1, 5, 2, 6, 3, 7 }, fours[8] = { 0, 1, 4, 5, 2, 3, 6, 7 }, some[8] = { 0, 4, 1, 5, 2, 3, 6, 7 }, back[16] = { 0, 4, 1, 5, 2, 6, 3, 7, 4, 0, 5, 1, 6, 2, 7, 3 },
		round[16] = { 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 0 };
	const struct plan_on p = { t, 8, 8, host }, x = { t, 8, 8, woven }, near = { t, 8, 8, NULL };
	const double far = t->rate[PLAN_far_wait], byte = t->rate[PLAN_far_byte], wait = t->rate[PLAN_wait], own = t->rate[PLAN_byte], b = 1 << 20;
	struct plan_group g = plan_groups_of(&p, 4, 2, columns);

	/* four pairs, each with a member on either host: a block comes to each of its four */
	assert_int_equal(g.beside, 3);
	assert_true(plan_coll_time(&p, COLL_all_gather, g, b, COLL_auto) == far + byte * 4 * b);
	assert_true(plan_coll_time(&p, COLL_all_to_all, g, b, COLL_auto) == far + byte * 4 * b);
	assert_true(plan_coll_time(&p, COLL_reduce_scatter, g, b, COLL_auto) == far + byte * 4 * b);
	assert_true(plan_sum_time(&p, g, b) == far + byte * 4 * b);
	assert_true(plan_move_time(&p, COLL_all_gather, g, b) == far + byte * 4 * b);
	/* two groups with two on either host: by levels the blocks of two come once for each group, exchanged they come to two */
	g = plan_groups_of(&p, 2, 4, fours);
	assert_true(g.hosts == 2 && g.most == 2 && g.beside == 1);
	assert_true(plan_coll_time(&p, COLL_all_gather, g, b, COLL_auto) == wait + own * b + far + byte * 2 * 2 * b);
	assert_true(plan_coll_time(&p, COLL_all_to_all, g, b, COLL_auto) == wait + own * b + far + byte * 2 * 4 * b);
	/* not those that stay on one host, nor the only one */
	g = plan_groups_of(&p, 4, 2, some);
	assert_true(g.hosts == 2 && g.beside == 1);
	assert_int_equal(plan_groups_of(&p, 1, 8, round).beside, 0);
	assert_int_equal(plan_groups_of(&p, 4, 2, (int64_t[]){ 0, 1, 2, 3, 4, 5, 6, 7 }).beside, 0);
	assert_int_equal(plan_groups_of(&near, 4, 2, columns).beside, 0);
	/* pairs: those alone that come to one host from others */
	assert_true(plan_coll_time(&p, COLL_permute, plan_pairs_of(&p, 8, back), b, COLL_auto) == far + byte * 4 * b);
	assert_true(plan_coll_time(&p, COLL_permute, plan_pairs_of(&p, 8, round), b, COLL_auto) == far + byte * b);
	assert_true(plan_coll_time(&x, COLL_permute, plan_pairs_of(&x, 8, round), b, COLL_auto) == far + byte * 4 * b);
	assert_true(plan_coll_time(&p, COLL_permute, plan_pairs_of(&p, 1, (int64_t[]){ 0, 1 }), b, COLL_auto) == wait + own * b);
	assert_true(plan_coll_time(&near, COLL_permute, plan_pairs_of(&near, 8, back), b, COLL_auto) == wait + own * b);
	/* where it was measured, of one group: what goes up with the bytes */
	t->members[COLL_FAR] = 2;
	curve(COLL_FAR, COLL_permute, COLL_push, 1e5, 2, PLAN_SIZES);
	curve(COLL_FAR, COLL_all_to_all, COLL_direct, 1e5, 3, PLAN_SIZES);
	plan_rules_all(t);
	assert_true(plan_coll_time(&p, COLL_permute, plan_pairs_of(&p, 8, back), b, COLL_auto) == 1e5 + 16 + 4 * 2 * (b - 8));
	assert_true(plan_coll_time(&p, COLL_all_to_all, plan_groups_of(&p, 4, 2, columns), b, COLL_auto) == 1e5 + 24 + 4 * 3 * (b - 8));
}

/* Rates decide what is compiled. */
static void compiling(void **state)
{
	const struct plan_work some = { 1e5, 1e5, 4e5, 4 };

	assert_true(plan_worth_compiling(t, &some, PLAN_strips, 4, 4, 1000));
	t->rate[PLAN_compile_first] *= 1000;
	assert_false(plan_worth_compiling(t, &some, PLAN_strips, 4, 4, 1000));
	assert_true(plan_part_time(t, DT_f32, 1e6, 0) == 1e4 && plan_part_time(t, DT_bf16, 1e6, 0) == 5e3);
	t->rate[PLAN_dot_f32] = 0.03;
	assert_true(plan_part_time(t, DT_f32, 1e6, 0) == 3e4 && plan_part_time(t, DT_bf16, 1e6, 0) == 5e3);
}

/* --- the setting --------------------------------------------------------------------------------------- */

static void setting(void **state)
{
	struct plan_table *as = mem_alloc(sizeof *as);

	assert_null(plan_table_override(t, "ring"));
	assert_int_equal(picks(COLL_PAIR, COLL_all_reduce, 8), COLL_ring);
	assert_int_not_equal(picks(COLL_PAIR, COLL_permute, 8), COLL_ring);
	assert_null(plan_table_override(t, "permute=stage,all_reduce=two_shot"));
	assert_int_equal(picks(COLL_CROWD, COLL_permute, 8), COLL_stage);
	assert_int_equal(picks(COLL_GROUP, COLL_all_reduce, 1 << 30), COLL_two_shot);
	/* the later word counts, and one that is left with nothing is refused */
	*t = *as = *plan_default();
	assert_null(plan_table_override(t, "slot,ring,all_reduce=auto"));
	assert_int_equal(picks(COLL_PAIR, COLL_permute, 1 << 30), COLL_slot);
	assert_int_equal(picks(COLL_PAIR, COLL_broadcast, 8), COLL_ring);
	assert_memory_equal(t->rule[COLL_PAIR][COLL_all_reduce], as->rule[COLL_PAIR][COLL_all_reduce], sizeof as->rule[0][0]);
	static const char *const bad[][2] = { { "ring,slot", "'ring' has no effect" }, { "all_reduce=ring,permute=slot,all_reduce=auto", "'all_reduce=ring' has no effect" }, { "rign", "'ring'" },
		{ "permte=slot", "'permute'" }, { "permute=ring", "direct" }, { "all_reduce=", "''" }, { ",, ", "names nothing" } };
	for (size_t i = 0; i < NELEM(bad); i++)
		fails(plan_table_override(t, bad[i][0]), ERR_INVALID, bad[i][1]);
	free(as);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(text), TEST(damaged), TEST(nonsense), TEST(another), TEST(kept), TEST(unquiet), TEST(crossings), TEST(least), TEST(prices), TEST(crowd), TEST(hosts), TEST(links), TEST(compiling), TEST(setting),
	};

	snprintf(dir, sizeof dir, "/tmp/rondo-table-XXXXXX");
	if (!mkdtemp(dir))
		return 1;
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	rmdir(dir);
	return failed;
}
