/* The machine table: its defaults, its text, where it is kept. */
#include <stdlib.h>
#include <unistd.h>

#include "plan.h"

enum { VERSION = 1, MOST_BYTES = 1 << 20, MOST_MEMBERS = 1 << 16 };

const char *const plan_way_name[PLAN_WAYS] = {
#define RATE(id, dflt, least, most, meaning)
#define WAY(id, start, op, point, add, byte, meaning) #id,
#include "rates.def"
#undef WAY
#undef RATE
};
const char *const plan_way_meaning[PLAN_WAYS] = {
#define RATE(id, dflt, least, most, meaning)
#define WAY(id, start, op, point, add, byte, meaning) meaning,
#include "rates.def"
#undef WAY
#undef RATE
};
const char *const plan_rate_name[PLAN_RATES] = {
#define WAY(id, start, op, point, add, byte, meaning)
#define RATE(id, dflt, least, most, meaning) #id,
#include "rates.def"
#undef RATE
#undef WAY
};
const char *const plan_rate_meaning[PLAN_RATES] = {
#define WAY(id, start, op, point, add, byte, meaning)
#define RATE(id, dflt, least, most, meaning) meaning,
#include "rates.def"
#undef RATE
#undef WAY
};
static const struct limits { double dflt, least, most; } limits[PLAN_RATES] = {
#define WAY(id, start, op, point, add, byte, meaning)
#define RATE(id, dflt, least, most, meaning) { dflt, least, most },
#include "rates.def"
#undef RATE
#undef WAY
};

static struct plan_table dflt;

static void init(void)
{
	static const double way[PLAN_WAYS][PLAN_PARTS] = {
#define RATE(id, dflt, least, most, meaning)
#define WAY(id, start, op, point, add, byte, meaning) { start, op, point, add, byte },
#include "rates.def"
#undef WAY
#undef RATE
	};
	memcpy(dflt.way, way, sizeof way);
	for (int i = 0; i < PLAN_RATES; i++)
		dflt.rate[i] = limits[i].dflt;
	prog_rules_init(dflt.rule);
}

const struct plan_table *plan_default(void)
{
	static struct mem_once once;
	mem_once(&once, init);
	return &dflt;
}

uint64_t plan_table_hash(const struct plan_table *t)
{
	uint64_t h = hash_bytes(t->rate, sizeof t->rate, hash_bytes(t->way, sizeof t->way, VERSION));
	h = hash_bytes(t->ns, sizeof t->ns, hash_bytes(t->members, sizeof t->members, h));
	for (int i = 0; i < COLL_TOPOS * COLL_COUNT; i++)        /* rules have gaps */
		for (const struct coll_rule *r = t->rule[i / COLL_COUNT][i % COLL_COUNT];; r++) {
			int64_t v[2] = { r->below, r->algo };
			h = hash_bytes(v, sizeof v, h);
			if (r->below == INT64_MAX || !r->algo)
				break;
		}
	return h;
}

/* --- whose it is ------------------------------------------------------------------------ */

/* What decides what is fast.  The name alone is the same for machines that differ. */
void plan_machine(struct str *s)
{
	const struct cpu_info *c = cpu_get();
	const struct { bool on; const char *name; } has[] = { { c->avx2, "avx2" }, { c->avx512, "avx512" }, { c->avx512_bf16, "avx512_bf16" },
		{ c->avx512_fp16, "avx512_fp16" }, { c->amx_bf16, "amx_bf16" }, { c->amx_int8, "amx_int8" } };

	str_addf(s, "%s,", c->model);
	for (size_t i = 0; i < NELEM(has); i++)
		if (has[i].on)
			str_addf(s, " %s", has[i].name);
	str_addf(s, ", caches %zuK %zuK %zuK, cores %d", c->l1 >> 10, c->l2 >> 10, c->l3 >> 10, c->cores);
}

void plan_table_path(struct str *s, bool make)
{
	struct str here = { 0 };

	if (!conf_cache(s, make)) {
		s->n = 0;
		return;
	}
	plan_machine(&here);
	str_addf(s, "machine-%08x.txt", (unsigned)hash_bytes(here.p, here.n, VERSION));
	str_free(&here);
}

/* --- text --------------------------------------------------------------------------------- */

/* rondo machine table 1
 * machine VENDOR FAMILY.MODEL.STEPPING, FEATURES, caches 32K 1024K 32768K, cores 2
 * way gen 8 1.5 0.03 0.01 0.004
 * rate wait 250
 * sizes 8 64 ..
 * members pair 2
 * time pair all_reduce slot 410 415 ..
 * end */
void plan_table_print(struct str *s, const struct plan_table *t)
{
	str_addf(s, "rondo machine table %d\nmachine ", VERSION);
	plan_machine(s);
	str_add(s, "\n");
	for (int i = 0; i < PLAN_WAYS; i++) {
		str_addf(s, "way %s", plan_way_name[i]);
		for (int k = 0; k < PLAN_PARTS; k++)
			str_addf(s, " %.6g", t->way[i][k]);
		str_add(s, "\n");
	}
	for (int i = 0; i < PLAN_RATES; i++)
		str_addf(s, "rate %s %.6g\n", plan_rate_name[i], t->rate[i]);
	str_add(s, "sizes");
	for (int i = 0; i < PLAN_SIZES; i++)
		str_addf(s, " %lld", (long long)plan_size[i]);
	str_add(s, "\n");
	for (int topo = 0; topo < COLL_TOPOS; topo++) {
		if (t->members[topo])
			str_addf(s, "members %s %d\n", prog_topo_name[topo], t->members[topo]);
		for (int k = 0; k < COLL_COUNT; k++)
			for (int a = 1; a < COLL_ALGOS; a++) {
				const float *ns = t->ns[topo][k][a];
				if (ns[0] <= 0)
					continue;
				str_addf(s, "time %s %s %s", prog_topo_name[topo], prog_coll_name[k], prog_algo_name[a]);
				for (int i = 0; i < PLAN_SIZES && ns[i] > 0; i++)
					str_addf(s, " %.6g", (double)ns[i]);
				str_add(s, "\n");
			}
	}
	str_add(s, "end\n");
}

struct reader {
	struct plan_table *t;
	int line;
	bool way[PLAN_WAYS], rate[PLAN_RATES], sizes, end;
	char *save;
};

/* What print gives back. */
static double rounded(double x)
{
	char s[32];
	snprintf(s, sizeof s, "%.6g", x);
	return strtod(s, NULL);
}

static char *word(struct reader *r) { return strtok_r(NULL, " ", &r->save); }

static int one_of(const char *const *name, int n, const char *word)
{
	for (int i = 0; i < n && word; i++)
		if (!strcmp(name[i], word))
			return i;
	return -1;
}

/* A number of [least, most]; *there: false, and 0, if the line is at its end. */
static struct err *number(struct reader *r, double least, double most, bool *there, double *out)
{
	char *w = word(r), *end;

	*there = w != NULL;
	*out = 0;
	if (!w)
		return NULL;
	*out = rounded(strtod(w, &end));
	if (end == w || *end || !(*out >= least && *out <= most))
		return ERR(INVALID, "line %d: '%s' is no number from %g to %g", r->line, w, least, most);
	return NULL;
}

/* The next word as a whole number, or -1. */
static int64_t whole(struct reader *r)
{
	char *w = word(r), *end;
	int64_t n = w ? strtoll(w, &end, 10) : -1;
	return w && *w >= '0' && *w <= '9' && !*end ? n : -1;
}

static struct err *odd(const struct reader *r, const char *what) { return ERR(INVALID, "line %d: %s", r->line, what); }

static struct err *way(struct reader *r)
{
	int i = one_of(plan_way_name, PLAN_WAYS, word(r));
	bool there;

	if (i < 0 || r->way[i])
		return odd(r, i < 0 ? "no such way to run" : "a way to run for the second time");
	r->way[i] = true;
	for (int k = 0; k < PLAN_PARTS; k++) {
		TRY(number(r, 0, 1e9, &there, &r->t->way[i][k]));
		if (!there)
			return odd(r, "a way to run has five numbers");
	}
	return NULL;
}

static struct err *rate(struct reader *r)
{
	int i = one_of(plan_rate_name, PLAN_RATES, word(r));
	bool there;

	if (i < 0 || r->rate[i])
		return odd(r, i < 0 ? "no such rate" : "a rate for the second time");
	r->rate[i] = true;
	TRY(number(r, limits[i].least, limits[i].most, &there, &r->t->rate[i]));
	return there ? NULL : odd(r, "a rate has a number");
}

static struct err *sizes(struct reader *r)
{
	for (int i = 0; i < PLAN_SIZES; i++)
		if (whole(r) != plan_size[i])
			return odd(r, "curves of other sizes");
	r->sizes = true;
	return NULL;
}

static struct err *members(struct reader *r)
{
	int topo = one_of(prog_topo_name, COLL_TOPOS, word(r));

	if (topo < 0 || r->t->members[topo])
		return odd(r, topo < 0 ? "no such group" : "members of a group for the second time");
	int64_t n = whole(r);
	if (n < 2 || n > MOST_MEMBERS)
		return odd(r, "members are a whole number, 2 at least");
	r->t->members[topo] = (int)n;
	return NULL;
}

/* A curve may be noisy, but what is eight times and more the data does not take half the time. */
static struct err *curve(struct reader *r)
{
	int topo = one_of(prog_topo_name, COLL_TOPOS, word(r)), k = one_of(prog_coll_name, COLL_COUNT, word(r)), a = one_of(prog_algo_name, COLL_ALGOS, word(r));
	bool there = true;
	double ns;

	if (topo < 0 || k < 0 || a <= 0 || !prog_algo_has((enum coll_algo)a, (enum coll_kind)k))
		return odd(r, "no such curve: a group, a collective, and an algorithm that does it");
	if (!r->sizes || !r->t->members[topo])
		return odd(r, "a curve before its sizes and the members of its group");
	float *to = r->t->ns[topo][k][a];
	if (to[0] > 0)
		return odd(r, "a curve for the second time");
	for (int i = 0; i < PLAN_SIZES; i++) {
		TRY(number(r, 1, 1e12, &there, &ns));
		if (!there && !i)
			return odd(r, "a curve without a point");
		if (!there)
			break;
		to[i] = (float)ns;
		if (i && to[i] < to[i - 1] / 2)
			return odd(r, "a curve that falls by half");
	}
	return NULL;
}

static struct err *line(struct reader *r, char *p, bool here)
{
	static const struct { const char *word; struct err *(*read)(struct reader *); } kind[] = {
		{ "way", way }, { "rate", rate }, { "sizes", sizes }, { "members", members }, { "time", curve },
	};
	char head[64];

	snprintf(head, sizeof head, "rondo machine table %d", VERSION);
	if (r->line == 1)
		return strcmp(p, head) ? ERR(INVALID, "line 1 is not '%s'", head) : NULL;
	if (r->line == 2) {
		struct str m = { 0 };
		str_add(&m, "machine ");
		plan_machine(&m);
		struct err *e = strncmp(p, "machine ", 8) ? odd(r, "not of which machine it is")
		              : here && strcmp(p, m.p) ? ERR(PRECONDITION, "it is of another machine, '%s', not of this one, '%s'", p + 8, m.p + 8) : NULL;
		str_free(&m);
		return e;
	}
	if (!*p || *p == '#')
		return NULL;
	if (r->end)
		return odd(r, "something behind the end");
	char *w = strtok_r(p, " ", &r->save);
	if (w && !strcmp(w, "end"))
		r->end = true;
	else {
		size_t i = 0;
		while (i < NELEM(kind) && (!w || strcmp(kind[i].word, w)))
			i++;
		if (i == NELEM(kind))
			return odd(r, "it begins with none of way, rate, sizes, members, time, end");
		TRY(kind[i].read(r));
	}
	return word(r) ? odd(r, "more than there should be") : NULL;
}

struct err *plan_table_parse(struct plan_table *t, const char *text, size_t n, bool here)
{
	char *copy = mem_alloc(n + 1);
	struct plan_table *u = mem_alloc(sizeof *u);
	struct reader r = { .t = u };
	struct err *e = NULL;

	if (n)
		memcpy(copy, text, n);
	if (memchr(copy, 0, n))
		e = ERR(INVALID, "a NUL in a text");
	for (char *p = copy, *nl; !e && p && *p; p = nl ? nl + 1 : NULL) {
		nl = strchr(p, '\n');
		if (nl)
			*nl = 0;
		r.line++;
		e = line(&r, p, here);
	}
	for (int i = 0; i < PLAN_WAYS && !e; i++)
		if (!r.way[i])
			e = ERR(INVALID, "it is not whole: no way '%s'", plan_way_name[i]);
	for (int i = 0; i < PLAN_RATES && !e; i++)
		if (!r.rate[i])
			e = ERR(INVALID, "it is not whole: no rate '%s'", plan_rate_name[i]);
	if (!e && (!r.end || text[n - 1] != '\n'))
		e = ERR(INVALID, "it is not whole: no end");
	if (!e) {
		plan_rules_all(u);
		u->source = t->source;
		*t = *u;
	}
	free(u);
	free(copy);
	return e;
}

/* --- which one ------------------------------------------------------------------------------- */

static struct err *from_file(struct plan_table *t, const char *path, bool here)
{
	struct str text = { 0 };
	struct err *e = here ? str_read_entry(&text, path, MOST_BYTES) : str_read_file(&text, path);

	if (!e)
		e = plan_table_parse(t, text.p, text.n, here);
	str_free(&text);
	return e;
}

/* Products at the rates of the micro-kernels of src/kern that this machine runs. */
static void products_here(struct plan_table *t)
{
	const struct cpu_info *c = cpu_get();

	if (!c->avx512) {
		t->rate[PLAN_dot_f32] *= 2;
		t->rate[PLAN_dot_f64] *= 2;
	}
	if (!c->avx512_bf16)
		t->rate[PLAN_dot_bf16] = t->rate[PLAN_dot_f32];
	if (!c->avx512)
		t->rate[PLAN_dot_i8] = t->rate[PLAN_dot_f32];
	if (c->amx_bf16)
		t->rate[PLAN_dot_bf16] = 0.0017;
	if (c->amx_int8)
		t->rate[PLAN_dot_i8] = 0.0009;
}

struct err *plan_table_get(struct plan_table *t)
{
	const char *name = conf_str(CONF_TABLE);
	bool named = *name && strcmp(name, "default");
	char shown[STR_SHOWN];
	struct err *no = NULL, *e;

	*t = *plan_default();
	if (named && !(no = from_file(t, name, false))) {
		t->source = PLAN_FILE;
	} else if (!*name || no) {
		struct str path = { 0 };
		products_here(t);
		plan_table_path(&path, false);
		if (path.n && !access(path.p, R_OK)) {
			if ((e = from_file(t, path.p, true)))
				log_line(LOG_WARN, "the machine table '%s' is not used: %s", path.p, e->msg);
			else
				t->source = PLAN_MEASURED;
			err_free(e);
		}
		str_free(&path);
	}
	no = err_wrap(no, "setting 'RONDO_TABLE' cannot be '%s', not default nor a file that rondo info --table wrote", str_shown(name, shown));
	e = err_wrap(plan_table_override(t, conf_str(CONF_COLL)), "setting 'RONDO_COLL' cannot be '%s'", str_shown(conf_str(CONF_COLL), shown));
	if (no)
		err_free(e);
	return no ? no : e;
}

void plan_table_use(struct plan_table *t)
{
	struct err *no = plan_table_get(t);
	if (no)
		log_line(LOG_WARN, "%s; the setting is ignored", no->msg);
	err_free(no);
}

void plan_table_where(struct str *s, const struct plan_table *t)
{
	struct str path = { 0 };

	switch ((enum plan_source)t->source) {
	case PLAN_DEFAULT: str_add(s, "default: nothing was measured here (rondo bench machine)"); break;
	case PLAN_MEASURED:
		plan_table_path(&path, false);
		str_addf(s, "measured, '%s'", path.p);
		break;
	case PLAN_FILE: str_addf(s, "'%s', as RONDO_TABLE says", conf_str(CONF_TABLE)); break;
	case PLAN_JOB: str_add(s, "of process 0"); break;
	}
	str_free(&path);
}
