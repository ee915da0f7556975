/* Which algorithm: the machine table, its file, the setting that overrides it. */
#include <stdlib.h>
#include <unistd.h>

#include "impl.h"

static const uint32_t kinds_of[COLL_ALGOS] = {
#define ALGO(id, name, kinds, meaning) [COLL_##id] = kinds,
#include "../base/algo.def"
#undef ALGO
};
static const char *const topo_name[COLL_TOPOS] = { "pair", "group", "crowd", "many", "far", "hosts" };

bool coll_algo_has(enum coll_algo a, enum coll_kind k) { return a < COLL_ALGOS && k < COLL_COUNT && kinds_of[a] >> k & 1; }

struct err *coll_algo_fits(enum coll_kind k, enum coll_algo a)
{
	if (k >= COLL_COUNT || a >= COLL_ALGOS)
		return ERR(INVALID, "collective %d by algorithm %d", (int)k, (int)a);
	if (coll_algo_has(a, k))
		return NULL;
	struct str s = { 0 };
	for (int i = 0; i < COLL_ALGOS; i++)
		if (coll_algo_has((enum coll_algo)i, k))
			str_addf(&s, "%s%s", s.n ? ", " : "", prog_algo_name[i]);
	struct err *e = ERR(INVALID, "'%s' cannot be done by '%s'; there is %s", prog_coll_name[k], prog_algo_name[a], s.p);
	str_free(&s);
	return e;
}

enum coll_algo coll_choose(const struct coll_table *t, enum coll_kind k, enum coll_topo topo, int64_t bytes)
{
	const struct coll_rule *r = t->rule[topo][k];

	while (bytes >= r->below && r->below != INT64_MAX)
		r++;
	return (enum coll_algo)r->algo;
}

/* Shaped by measurements on two kinds of machines.  Up to a few lines the data travels in the message; then the copy
 * through the ring is cheaper than lines that are written again while the other side still holds them, or a wait for a
 * loan to come back; where the caches are full anyway a copy less counts. */
#define K(n) ((n) << 10)
#define END INT64_MAX
#define SHORT (K(1) + 1)
static const struct coll_rule pair_rule[COLL_COUNT][COLL_RULES] = {
	[COLL_all_reduce]     = { { SHORT, COLL_slot }, { K(56), COLL_stage }, { K(16384), COLL_two_shot }, { END, COLL_ring } },
	[COLL_reduce_scatter] = { { SHORT, COLL_slot }, { K(128), COLL_stage }, { END, COLL_loan } },
	[COLL_all_gather]     = { { SHORT, COLL_slot }, { K(192), COLL_stage }, { END, COLL_direct } },
	[COLL_all_to_all]     = { { SHORT, COLL_slot }, { K(192), COLL_stage }, { END, COLL_direct } },
	[COLL_permute]        = { { SHORT, COLL_slot }, { K(64), COLL_stage }, { END, COLL_direct } },
	[COLL_broadcast]      = { { 128, COLL_slot }, { END, COLL_stage } },
	[COLL_scan]           = { { 128, COLL_slot }, { K(2048), COLL_stage }, { END, COLL_ring } },
	[COLL_barrier]        = { { END, COLL_slot } },
};
static const struct coll_rule more_rule[COLL_COUNT][COLL_RULES] = {
	[COLL_all_reduce]     = { { SHORT, COLL_slot }, { K(8), COLL_stage }, { K(16384), COLL_two_shot }, { END, COLL_ring } },
	[COLL_reduce_scatter] = { { K(8), COLL_slot }, { END, COLL_loan } },
	[COLL_all_gather]     = { { 64, COLL_slot }, { K(128), COLL_stage }, { END, COLL_direct } },
	[COLL_all_to_all]     = { { K(6), COLL_slot }, { END, COLL_direct } },
	[COLL_permute]        = { { SHORT, COLL_slot }, { K(24), COLL_stage }, { END, COLL_direct } },
	[COLL_broadcast]      = { { 64, COLL_slot }, { K(256), COLL_stage }, { END, COLL_direct } },
	[COLL_scan]           = { { 64, COLL_slot }, { K(256), COLL_stage }, { END, COLL_ring } },
	[COLL_barrier]        = { { END, COLL_slot } },
};
/* More PEs than cores: a message that waits costs no more than one that comes at once, since all wait for their core; no
 * ring was found to be faster, each step of it waits until somebody has left a core. */
static const struct coll_rule crowd_rule[COLL_COUNT][COLL_RULES] = {
	[COLL_all_reduce]     = { { SHORT, COLL_slot }, { END, COLL_two_shot } },
	[COLL_reduce_scatter] = { { K(24), COLL_slot }, { END, COLL_loan } },
	[COLL_all_gather]     = { { SHORT, COLL_slot }, { K(3), COLL_stage }, { END, COLL_direct } },
	[COLL_all_to_all]     = { { K(10), COLL_slot }, { END, COLL_direct } },
	[COLL_permute]        = { { K(40), COLL_slot }, { END, COLL_direct } },
	[COLL_broadcast]      = { { 64, COLL_slot }, { K(256), COLL_stage }, { END, COLL_direct } },
	[COLL_scan]           = { { 64, COLL_slot }, { K(256), COLL_stage }, { END, COLL_ring } },
	[COLL_barrier]        = { { END, COLL_slot } },
};

/* What each member tells all others goes in rounds: in few bytes, for all of them travel in the last one. */
static const struct coll_rule many_rule[COLL_COUNT][COLL_RULES] = {
	[COLL_all_reduce]     = { { 128, COLL_doubling }, { END, COLL_two_shot } },
	[COLL_reduce_scatter] = { { END, COLL_loan } },
	[COLL_all_gather]     = { { 128, COLL_doubling }, { END, COLL_direct } },
	[COLL_all_to_all]     = { { END, COLL_direct } },
	[COLL_permute]        = { { K(40), COLL_slot }, { END, COLL_direct } },
	[COLL_broadcast]      = { { END, COLL_direct } },
	[COLL_scan]           = { { END, COLL_ring } },
	[COLL_barrier]        = { { END, COLL_doubling } },
};

/* Through a network (TCP was measured) a message that carries its data saves those that speak of it; of long data a
 * copy less counts, and what is put needs one message less than what is asked for. */
static const struct coll_rule far_rule[COLL_COUNT][COLL_RULES] = {
	[COLL_all_reduce]     = { { K(192), COLL_slot }, { END, COLL_push } },
	[COLL_reduce_scatter] = { { K(192), COLL_slot }, { END, COLL_loan } },
	[COLL_all_gather]     = { { K(192), COLL_slot }, { END, COLL_direct } },
	[COLL_all_to_all]     = { { K(128), COLL_slot }, { END, COLL_direct } },
	[COLL_permute]        = { { K(128), COLL_slot }, { END, COLL_push } },
	[COLL_broadcast]      = { { K(256), COLL_slot }, { END, COLL_direct } },
	[COLL_scan]           = { { END, COLL_slot } },
	[COLL_barrier]        = { { END, COLL_slot } },
};

/* Where some share a host, what goes between hosts goes once; all else as above. */
static const struct coll_rule hosts_rule[COLL_COUNT][COLL_RULES] = {
	[COLL_all_reduce]     = { { K(2), COLL_slot }, { END, COLL_levels } },
	[COLL_reduce_scatter] = { { K(16), COLL_slot }, { END, COLL_levels } },
	[COLL_all_gather]     = { { END, COLL_levels } },
};

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
	for (int topo = 0; topo < COLL_TOPOS; topo++)
		memcpy(t->rule[topo], topo == COLL_PAIR ? pair_rule : topo == COLL_MANY ? many_rule : topo == COLL_FAR || topo == COLL_HOSTS ? far_rule : topo == COLL_CROWD ? crowd_rule : more_rule, sizeof pair_rule);
	for (int k = 0; k < COLL_COUNT; k++)
		if (hosts_rule[k][0].algo)
			memcpy(t->rule[COLL_HOSTS][k], hosts_rule[k], sizeof hosts_rule[k]);
}

/* --- text ----------------------------------------------------------------------------- */

/* What decides what is fast.  The name alone is the same for machines that differ. */
static void machine(char out[200])
{
	const struct cpu_info *cpu = cpu_get();

	snprintf(out, 200, "%s, %s, caches %zuK %zuK %zuK", cpu->name, cpu->model, cpu->l1 >> 10, cpu->l2 >> 10, cpu->l3 >> 10);
}

/* machine "NAME, VENDOR FAMILY.MODEL.STEPPING, caches 32K 1024K 32768K" cores 2 ring 4194304 chunk 65536
 * pair all_reduce slot 2048 stage 262144 two_shot 16777216 ring */
void coll_table_print(struct str *s, const struct coll_table *t)
{
	char here[200];

	machine(here);
	str_addf(s, "machine \"%s\" cores %d ring %lld chunk %lld\n", here, t->cores, (long long)t->ring, (long long)t->chunk);
	for (int topo = 0; topo < COLL_TOPOS; topo++)
		for (int k = 0; k < COLL_COUNT; k++) {
			const struct coll_rule *r = t->rule[topo][k];
			str_addf(s, "%s %s", topo_name[topo], prog_coll_name[k]);
			for (;; r++) {
				str_addf(s, " %s", prog_algo_name[r->algo]);
				if (r->below == INT64_MAX)
					break;
				str_addf(s, " %lld", (long long)r->below);
			}
			str_add(s, "\n");
		}
}

static int index_in(const char *const *name, int n, const char *word)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(name[i], word))
			return i;
	return -1;
}

static struct err *bad_line(int line) { return ERR(INVALID, "line %d of the table of collectives is not understood", line); }

/* One line of rules, words separated by blanks, into t. */
static struct err *rules(struct coll_table *t, char *p, int line)
{
	char *save, *topo = strtok_r(p, " ", &save), *kind = topo ? strtok_r(NULL, " ", &save) : NULL;
	int i = topo ? index_in(topo_name, COLL_TOPOS, topo) : -1, k = kind ? index_in(prog_coll_name, COLL_COUNT, kind) : -1;
	struct coll_rule r[COLL_RULES] = { 0 };
	int n = 0;

	if (i < 0 || k < 0)
		return bad_line(line);
	for (;; n++) {
		char *name = strtok_r(NULL, " ", &save), *below = name ? strtok_r(NULL, " ", &save) : NULL, *end = NULL;
		int a = name ? index_in(prog_algo_name, COLL_ALGOS, name) : -1;
		if (n == COLL_RULES || a <= 0 || !coll_algo_has((enum coll_algo)a, (enum coll_kind)k))
			return bad_line(line);
		r[n] = (struct coll_rule){ below ? strtoll(below, &end, 10) : INT64_MAX, (uint8_t)a };
		if (!below)
			break;
		if (*end || r[n].below <= (n ? r[n - 1].below : 0))
			return bad_line(line);
	}
	memcpy(t->rule[i][k], r, sizeof r);
	return NULL;
}

struct err *coll_table_parse(struct coll_table *t, const char *text, size_t n)
{
	char *copy = mem_alloc(n + 1), *p = copy, here[200];
	struct err *e = NULL;
	int cores, at = 0;
	long long ring, chunk;

	memcpy(copy, text, n);
	machine(here);
	struct coll_table u = *t;
	memset(u.rule, 0, sizeof u.rule);
	for (int line = 1; p && *p && !e; line++) {
		char *nl = strchr(p, '\n');
		if (nl)
			*nl = 0;
		if (line == 1) {
			char *q = strrchr(p, '"');
			if (strncmp(p, "machine \"", 9) || !q || sscanf(q + 1, " cores %d ring %lld chunk %lld%n", &cores, &ring, &chunk, &at) != 3 || q[1 + at] ||
			    cores < 1 || ring < 1 << 16 || ring > 1 << 30 || chunk < 4096 || chunk > ring || chunk % 4096 || ring % 4096)
				e = bad_line(line);
			else if ((size_t)(q - p - 9) != strlen(here) || memcmp(p + 9, here, (size_t)(q - p - 9)) || cores != cpu_get()->cores)
				e = ERR(PRECONDITION, "the table of collectives was measured on another machine");
			else
				u.ring = ring, u.chunk = chunk;
		} else if (*p)
			e = rules(&u, p, line);
		p = nl ? nl + 1 : NULL;
	}
	for (int i = 0; i < COLL_TOPOS * COLL_COUNT && !e; i++)
		if (!u.rule[i / COLL_COUNT][i % COLL_COUNT][0].algo || text[n - 1] != '\n')
			e = ERR(INVALID, "the table of collectives is not whole");
	if (!e)
		*t = u;
	free(copy);
	return e;
}

void coll_table_path(struct str *s)
{
	char here[200];

	if (!conf_cache(s, false))
		return;
	machine(here);
	str_addf(s, "coll-%08x.txt", (unsigned)hash_bytes(here, strlen(here), (uint64_t)cpu_get()->cores | (uint64_t)COLL_TOPOS << 32));
}

/* --- the setting --------------------------------------------------------------------------- */

enum { MOST = 1 << 20 };                  /* bytes of the file */

static void only(struct coll_table *t, enum coll_kind k, enum coll_algo a)
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
	struct err *e = ERR(INVALID, "RONDO_COLL: no %s '%s'%s%s%s: it is one of %s", what, word, near ? ", did you mean '" : "", near ? near : "", near ? "'" : "", all.p);
	str_free(&all);
	return e;
}

struct err *coll_table_override(struct coll_table *t, const char *text)
{
	const struct coll_table measured = *t;
	char copy[512], *save, *word[sizeof copy / 2];
	int n = 0, by[COLL_COUNT];

	memset(by, -1, sizeof by);
	if (strlen(text) >= sizeof copy)
		return ERR(INVALID, "RONDO_COLL is longer than %zu bytes", sizeof copy);
	memcpy(copy, text, strlen(text) + 1);
	for (char *w = strtok_r(copy, ", ", &save); w; w = strtok_r(NULL, ", ", &save)) {
		char *eq = strchr(w, '=');
		const char *algo = eq ? eq + 1 : w;
		int a = index_in(prog_algo_name, COLL_ALGOS, algo), k = -1;
		if (eq) {
			*eq = 0;
			if ((k = index_in(prog_coll_name, COLL_COUNT, w)) < 0)
				return unknown("collective", w, prog_coll_name, COLL_COUNT);
			*eq = '=';
		}
		if (a < 0)
			return unknown("algorithm", algo, prog_algo_name, COLL_ALGOS);
		if (k >= 0)
			TRY(err_wrap(coll_algo_fits((enum coll_kind)k, (enum coll_algo)a), "RONDO_COLL"));
		for (int i = 0; i < COLL_COUNT; i++) {
			if ((k >= 0 && k != i) || !coll_algo_has((enum coll_algo)a, (enum coll_kind)i))
				continue;
			by[i] = n;
			if (a != COLL_auto)
				only(t, (enum coll_kind)i, (enum coll_algo)a);
			for (int topo = 0; topo < COLL_TOPOS && a == COLL_auto; topo++)
				memcpy(t->rule[topo][i], measured.rule[topo][i], sizeof t->rule[topo][i]);
		}
		word[n++] = w;
	}
	if (*text && !n)
		return ERR(INVALID, "RONDO_COLL names nothing");
	for (int i = 0, k; i < n; i++) {
		for (k = 0; k < COLL_COUNT && by[k] != i; k++) { }
		if (k == COLL_COUNT)
			return ERR(INVALID, "RONDO_COLL: '%s' has no effect, for what follows it", word[i]);
	}
	return NULL;
}

struct err *coll_table_get(struct coll_table *t)
{
	struct str path = { 0 }, text = { 0 };

	coll_table_init(t);
	coll_table_path(&path);
	if (path.n && !access(path.p, R_OK)) {
		struct err *e = str_read_entry(&text, path.p, MOST);
		if (!e)
			e = coll_table_parse(t, text.p, text.n);
		if (e) {
			log_line(e->code == ERR_PRECONDITION ? LOG_INFO : LOG_WARN, "'%s' is not used: %s", path.p, e->msg);
			err_free(e);
		}
	}
	str_free(&path);
	str_free(&text);
	return coll_table_override(t, conf_str(CONF_COLL));
}
