/* Which algorithm: what a PE's collectives go by. */
#include "impl.h"

struct err *coll_algo_fits(enum coll_kind k, enum coll_algo a)
{
	if (k >= COLL_COUNT || a >= COLL_ALGOS)
		return ERR(INVALID, "collective %d by algorithm %d", (int)k, (int)a);
	if (prog_algo_has(a, k))
		return NULL;
	struct str s = { 0 };
	for (int i = 0; i < COLL_ALGOS; i++)
		if (prog_algo_has((enum coll_algo)i, k))
			str_addf(&s, "%s%s", s.n ? ", " : "", prog_algo_name[i]);
	struct err *e = ERR(INVALID, "'%s' cannot be done by '%s'; there is %s", prog_coll_name[k], prog_algo_name[a], s.p);
	str_free(&s);
	return e;
}

enum coll_algo coll_choose(const struct coll_table *t, enum coll_kind k, enum coll_topo topo, int64_t bytes) { return prog_rule_pick(t->rule[topo][k], bytes); }

bool coll_table_has(const struct coll_table *t, enum coll_algo a)
{
	for (int topo = 0; topo < COLL_TOPOS; topo++)
		for (int k = 0; k < COLL_COUNT; k++)
			for (const struct coll_rule *r = t->rule[topo][k];; r++) {
				if (r->algo == a)
					return true;
				if (r->below == INT64_MAX)
					break;
			}
	return false;
}

void coll_table_init(struct coll_table *t)
{
	const struct cpu_info *cpu = cpu_get();

	memset(t, 0, sizeof *t);
	t->cores = cpu->cores;
	/* Twice the peer's second-level cache: when a line's turn comes again the peer has lost its copy. */
	t->ring = (int64_t)MAX(MIN(2 * cpu->l2, (size_t)8 << 20), (size_t)1 << 20) & ~(int64_t)4095;
	t->chunk = 64 << 10;
	prog_rules_init(t->rule);
}

void coll_table_from(struct coll_table *t, const struct coll_rule rule[COLL_TOPOS][COLL_COUNT][COLL_RULES])
{
	coll_table_init(t);
	memcpy(t->rule, rule, sizeof t->rule);
}
