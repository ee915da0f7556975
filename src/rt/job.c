/* The processes of a job: what each says of itself, what all must agree on, which of them share this machine, and
 * the communication of each program, by which two that have diverged are told apart.
 *
 * Everything goes through the job's store (struct kv): "card/<process>" is what a process says of itself; "table"
 * is the machine table of process 0, which all take; "prog/<identity>" lists the communication of a program, one
 * line "site, tab, what" each, after a line with its name. */
#include <limits.h>
#include <errno.h>
#include <stdlib.h>

#include "impl.h"

enum { CARD = 0x44524352, ASK_MS = 300, MASK_WORDS = 16 };

/* Settings by which programs are compiled otherwise. */
static const struct { const char *name; enum conf_id key; bool text; } agreed[] = {
	{ "RONDO_REPRO", CONF_REPRO, false }, { "RONDO_RING", CONF_RING, true }, { "RONDO_ATTENTION", CONF_ATTENTION, true }, { "RONDO_EXCESS_PRECISION", CONF_EXCESS_PRECISION, false },
};
enum { AGREED = NELEM(agreed) };

struct card {
	uint32_t magic, version;
	int32_t ndev;
	struct cpu_info cpu;
	char kind[80], boot[40], group[200], setting[AGREED][32];
	uint64_t mask[MASK_WORDS];
};

/* The first line of a file, or nothing. */
static void first_line(const char *path, char *out, size_t n)
{
	FILE *f = fopen(path, "re");

	out[0] = '\0';
	if (!f)
		return;
	if (!fgets(out, (int)n, f))
		out[0] = '\0';
	out[strcspn(out, "\n")] = '\0';
	fclose(f);
}

static void card_fill(struct card *k, int ndev)
{
	cpu_set_t set;

	*k = (struct card){ .magic = CARD, .version = RONDO_VERSION, .ndev = ndev, .cpu = *cpu_get() };
	for (int i = 0; i < AGREED; i++)
		if (agreed[i].text)
			snprintf(k->setting[i], sizeof k->setting[i], "%s", conf_str(agreed[i].key));
		else
			snprintf(k->setting[i], sizeof k->setting[i], "%d", (int)conf_int(agreed[i].key));
	snprintf(k->kind, sizeof k->kind, "%s", cpu_get()->name[0] ? cpu_get()->name : "cpu");
	first_line("/proc/sys/kernel/random/boot_id", k->boot, sizeof k->boot);
	first_line("/proc/self/cgroup", k->group, sizeof k->group);
	if (!sched_getaffinity(0, sizeof set, &set))
		for (int i = 0; i < MASK_WORDS * 64 && i < CPU_SETSIZE; i++)
			if (CPU_ISSET(i, &set))
				k->mask[i / 64] |= 1ull << i % 64;
}

static bool same_cores(const struct card *a, const struct card *b)
{
	bool meet = false;

	for (int i = 0; i < MASK_WORDS; i++)
		meet |= (a->mask[i] & b->mask[i]) != 0;
	return meet && !strcmp(a->boot, b->boot);
}

/* What process who has to write. */
static struct err *fetch(const struct kv *kv, int who, const char *key, struct str *out)
{
	double until = clock_s() + (double)conf_int(CONF_JOIN_TIMEOUT);
	struct sym_coming c = { 0 };

	for (;;) {
		struct err *e = kv->get(kv->user, key, sym_slice(&c, until), out);
		if (!e || (e->code != ERR_DEADLINE && e->code != ERR_NOT_FOUND))
			return err_wrap(e, "joining the job, process %d of %d", kv->process, kv->nprocess);
		err_free(e);
		TRY(sym_coming(kv, who, until, &c));
	}
}

static struct err *card_get(const struct kv *kv, int who, struct card *out)
{
	struct str s = { 0 };
	char key[32];

	snprintf(key, sizeof key, "card/%d", who);
	struct err *e = fetch(kv, who, key, &s);

	if (!e && (s.n < 2 * sizeof(uint32_t) || memcmp(s.p, &(uint32_t){ CARD }, sizeof(uint32_t))))
		e = ERR(PRECONDITION, "what process %d wrote into the job's store is no card of Rondo's", who);
	uint32_t version = 0;
	if (!e)
		memcpy(&version, s.p + sizeof(uint32_t), sizeof version);
	if (!e && (version != RONDO_VERSION || s.n != sizeof *out))
		e = ERR(PRECONDITION, "process %d runs version %u of Rondo, this one version %d", who, version, RONDO_VERSION);
	if (!e) {
		memcpy(out, s.p, sizeof *out);
		for (int i = 0; i < AGREED; i++)
			out->setting[i][sizeof out->setting[i] - 1] = '\0';
		out->kind[sizeof out->kind - 1] = out->boot[sizeof out->boot - 1] = out->group[sizeof out->group - 1] = '\0';
		if (out->ndev < 1 || out->ndev > 4096)
			e = ERR(PRECONDITION, "process %d says that it has %d devices", who, out->ndev);
	}
	str_free(&s);
	return e;
}

static struct err *same_settings(const struct card *card, int n, int me)
{
	for (int i = 0; i < n; i++)
		for (int k = 0; k < AGREED; k++)
			if (strcmp(card[i].setting[k], card[me].setting[k]))
				return ERR(PRECONDITION, "setting '%s' is '%s' here, in process %d '%s': all processes of a job must have the same", agreed[k].name, card[me].setting[k], i, card[i].setting[k]);
	return NULL;
}

/* All use what each of them has, so that a replicated number has the same bits in all. */
static void same_instructions(const struct card *card, int n)
{
	for (int i = 0; i < n; i++)
		if (!cpu_lower(&card[i].cpu))
			log_line(LOG_WARN, "process %d of the job lacks instruction sets that this machine has: they are left unused here, so that all make the same numbers", i);
}

/* Each device of the job becomes as many as make all parts together. */
static struct err *deal(struct rt_client *c, struct card *card, int n, int parts)
{
	int ndev = 0;

	c->parts = 1;
	for (int i = 0; i < n; i++)
		ndev += card[i].ndev;
	if (!parts)
		return NULL;
	if (parts % ndev)
		return ERR(INVALID, "setting 'RONDO_REPRO' is %d: as many parts cannot be dealt to %d devices, let it be a multiple of all numbers of devices that are to be compared", parts, ndev);
	c->parts = parts / ndev;
	c->ndev *= c->parts;
	for (int i = 0; i < n; i++)
		card[i].ndev *= c->parts;
	return NULL;
}

/* Threads of a call of LAPACK, whose last bits depend on how many they are: the same in all processes, what the device has that has the fewest; under
 * RONDO_REPRO one.  0: as many as it likes, on the only device. */
static int lapack_threads(const struct card *card, int n, int parts)
{
	int least = INT_MAX, total = 0;

	for (int i = 0; i < n; i++) {
		int sharers = 0;
		for (int k = 0; k < n; k++)
			sharers += k == i || same_cores(&card[i], &card[k]) ? card[k].ndev : 0;
		least = MIN(least, MAX(card[i].cpu.cores / sharers, 1));
		total += card[i].ndev;
	}
	return parts ? 1 : total > 1 ? least : 0;
}

struct err *job_join(struct rt_client *c, const struct rt_opts *o)
{
	const struct kv *boot = o->boot;
	int n = boot ? boot->nprocess : 1, me = boot ? boot->process : 0, total = 0;
	struct card *card = mem_alloc(sizeof *card * (size_t)n);
	struct err *e = NULL;
	char key[32];

	c->boot = boot;
	c->process = me;
	c->nprocess = n;
	card_fill(&card[me], c->ndev);
	if (boot) {
		sym_here(boot);
		snprintf(key, sizeof key, "card/%d", me);
		TRY_GOTO(e, sym_claim(boot, key, &card[me], sizeof card[me]), out);
		for (int i = 0; i < n; i++)
			if (i != me)
				TRY_GOTO(e, card_get(boot, i, &card[i]), out);
	}
	TRY_GOTO(e, same_settings(card, n, me), out);
	same_instructions(card, n);
	TRY_GOTO(e, deal(c, card, n, o->parts), out);
	c->lapack = lapack_threads(card, n, o->parts);
	for (int i = 0; i < n; i++) {
		total += card[i].ndev;
		if (same_cores(&card[me], &card[i]) || i == me) {
			c->sharers += card[i].ndev;
			c->seat += i < me ? card[i].ndev : 0;
		}
		if ((!strcmp(card[me].boot, card[i].boot) && !strcmp(card[me].group, card[i].group)) || i == me)
			c->housemates += card[i].ndev;
	}
	for (int i = 0; i < n; i++) {
		bool seen = false;
		for (int k = 0; k < i; k++)
			seen |= same_cores(&card[i], &card[k]);
		c->cores += seen ? 0 : card[i].cpu.cores;
	}
	c->nplace = total;
	c->place = mem_alloc(sizeof *c->place * (size_t)total);
	mem_keep(c->place);
	for (int i = 0, id = 0; i < n; i++)
		for (int k = 0; k < card[i].ndev; k++, id++) {
			struct rt_place *p = &c->place[id];
			p->process = i;
			p->local = k;
			p->cores = card[i].cpu.cores;
			snprintf(p->kind, sizeof p->kind, "%s", card[i].kind);
		}
out:
	free(card);
	return err_wrap(e, "process %d of %d", me, n);
}

/* What process 0 publishes: how collectives are done, then the text of its machine table. */
static void table_text(struct str *s, const struct rt_client *c)
{
	str_addn(s, (const char *)&c->table, sizeof c->table);
	plan_table_print(s, &c->plan);
}

static struct err *table_take(struct rt_client *c, const struct str *s)
{
	struct coll_table *t = &c->table;

	if (s->n < sizeof *t)
		return ERR(PRECONDITION, "the machine table of process 0 has %zu bytes, not %zu and more", s->n, sizeof *t);
	uint64_t mine = plan_table_hash(&c->plan);
	TRY(plan_table_parse(&c->plan, s->p + sizeof *t, s->n - sizeof *t, false));
	memcpy(t, s->p, sizeof *t);
	memcpy(c->plan.rule, t->rule, sizeof t->rule);       /* as RONDO_COLL of process 0 says */
	if (plan_table_hash(&c->plan) != mine) {
		log_line(LOG_INFO, "process %d takes the machine table of process 0, which is not its own", c->process);
		c->plan.source = PLAN_JOB;
	}
	return NULL;
}

struct err *job_table(struct rt_client *c)
{
	const struct kv *kv = c->boot;
	struct str s = { 0 };
	struct err *e = NULL;

	if (!kv)
		return NULL;
	if (!c->process) {
		table_text(&s, c);
		e = kv->put(kv->user, "table", s.p, s.n);
	} else {
		e = fetch(kv, 0, "table", &s);
		if (!e)
			e = err_wrap(table_take(c, &s), "the machine table of process 0");
	}
	str_free(&s);
	return e;
}

int rt_client_nplace(const struct rt_client *c) { return c->nplace; }
const struct rt_place *rt_client_place(const struct rt_client *c, int id) { return id >= 0 && id < c->nplace ? &c->place[id] : NULL; }
int rt_client_process(const struct rt_client *c) { return c->process; }

struct plan_on rt_client_plan(const struct rt_client *c, int n, const int *device, int *host)
{
	bool far = false;

	for (int i = 0; i < n; i++) {
		host[i] = sym_host_of(c->world, device[i]);
		far |= host[i] != host[0];
	}
	return (struct plan_on){ &c->plan, sym_npe(c->world), c->cores, far ? host : NULL, plan_ring() };
}

/* --- what a process does outside programs ------------------------------------------- */

void rt_client_busy(struct rt_client *c, const char *text)
{
	pthread_mutex_lock(&c->side_lock);
	c->nbusy += text ? 1 : -1;
	if (text)
		sym_phase(c->world, text);
	else if (!c->nbusy)
		sym_phase(c->world, NULL);
	pthread_mutex_unlock(&c->side_lock);
}

/* --- programs that have diverged ------------------------------------------------------ */

static void prog_key(char key[32], uint32_t ident) { snprintf(key, 32, "prog/%08x", ident); }

/* Whom a command talks to. */
static void add_peers(struct str *s, const struct prog *p, const struct prog_coll *c)
{
	enum { MOST = 256 };
	bool permute = c->kind == COLL_permute;
	int n = permute ? p->ndev : p->group[c->group].nrow * p->group[c->group].ncol;

	str_add(s, permute ? "\tfrom" : "\tgroups");
	for (int i = 0; i < MIN(n, MOST); i++) {
		int64_t who = permute ? p->table[c->pairs].v[i] : p->group[c->group].id[i];
		str_addf(s, !permute && i && i % p->group[c->group].ncol == 0 ? "; %lld" : " %lld", (long long)who);
	}
	str_add(s, n > MOST ? " .." : "");
}

static void add_dims(struct str *s, int rank, const int64_t *dim)
{
	for (int d = 0; d < rank; d++)
		str_addf(s, "%c%lld", d ? ',' : '[', (long long)dim[d]);
	str_add(s, rank ? "]" : "[]");
}

/* What a device has of them, and of what. */
static void add_sides(struct str *s, const char *what, uint32_t n, const struct prog_arg *a)
{
	enum { MOST = 256 };
	for (uint32_t i = 0; i < MIN(n, MOST); i++) {
		str_addf(s, "=%s %u\t%s", what, i, dtype_info[a[i].dtype].name ? dtype_info[a[i].dtype].name : "?");
		add_dims(s, a[i].rank, a[i].dim);
		if (a[i].global_dim && a[i].rank && memcmp(a[i].dim, a[i].global_dim, sizeof *a[i].dim * a[i].rank)) {
			str_add(s, " of ");
			add_dims(s, a[i].rank, a[i].global_dim);
		}
		if (a[i].alias >= 0)
			str_addf(s, " donated to result %d", a[i].alias);
		else
			str_add(s, a[i].alias == -1 ? "" : " donated to no result");
		str_add(s, "\n");
	}
}

/* A program's name and the devices that it runs on, in its order; then a line for each command that sends and receives, of place, what, and
 * whom it talks to; then one for each argument and result.  There are tabs between. */
static void list(struct str *s, const struct rt_exec *x)
{
	const struct prog *p = x->p;

	str_addf(s, "%s\t", x->name);
	for (int i = 0; i < p->ndev; i++)
		str_addf(s, " %d", x->id[i]);
	str_add(s, "\n");
	for (uint32_t i = 1; i <= x->ncomm; i++) {
		const struct ins *k = &x->ins[x->comm_ins[i]];
		const struct prog_coll *c = k->ref;
		bool reduces = c->kind == COLL_all_reduce || c->kind == COLL_reduce_scatter || c->kind == COLL_scan;
		str_addf(s, "%s\t%s%s%s of %s, %lld bytes", k->site < p->nsite ? p->site[k->site].text : "", prog_coll_name[c->kind],
		         reduces ? " by " : "", reduces ? redop_name[c->redop] : "", dtype_info[c->dtype].name ? dtype_info[c->dtype].name : "?",
		         (long long)(c->outer * c->inner));
		add_peers(s, p, c);
		str_add(s, "\n");
	}
	add_sides(s, "argument", p->narg, p->arg);
	add_sides(s, "result", p->nres, p->res);
}

void job_publish(struct rt_exec *x)
{
	struct rt_client *c = x->c;
	struct str s = { 0 };
	char key[32];

	prog_key(key, x->ident);
	list(&s, x);
	struct mem_undo u;
	bool was = mem_persist(true);
	mem_lock(&u, &c->kv_lock);
	uint64_t *seen = map_put(&c->published, &x->ident, sizeof x->ident);
	if (!*seen)
		err_free(c->boot->put(c->boot->user, key, s.p, s.n));   /* it only serves messages; a peer may have written it */
	*seen = 1;
	mem_unlock(&u);
	mem_persist(was);
	str_free(&s);
}

/* Where the devices of two lists part; false: nowhere. */
static bool elsewhere(const char *own, const char *its, struct str *s)
{
	own += strcspn(own, "\t\n");
	its += strcspn(its, "\t\n");
	for (int i = 0; *own && *own != '\n' && *its && *its != '\n'; i++) {
		char *a, *b;
		long here = strtol(own + 1, &a, 10), there = strtol(its + 1, &b, 10);
		if (here != there) {
			str_addf(s, " (whose mesh has other devices, or these in another order: at position %d here device %ld, there %ld)", i, here, there);
			return true;
		}
		own = a;
		its = b;
	}
	return false;
}

/* Line k of a list. */
static bool line_of(const char *text, uint32_t k, char *out, size_t n)
{
	for (; k; k--) {
		text = strchr(text, '\n');
		if (!text)
			return false;
		text++;
	}
	size_t len = strcspn(text, "\n");
	snprintf(out, n, "%.*s", (int)len, text);
	return len > 0;
}

/* Two programs have one name, and do not say the same: where do they part? */
static void differs(const char *own, const char *its, struct str *s)
{
	char here[400], there[400];
	bool a, b;
	uint32_t k = 0;

	if (elsewhere(own, its, s))
		return;
	do {
		k++;
		a = line_of(own, k, here, sizeof here);
		b = line_of(its, k, there, sizeof there);
	} while (a && b && !strcmp(here, there));
	bool command = (a && *here != '=') || (b && *there != '=');
	size_t n = strcspn(here, "\t");
	str_add(s, " (which differs from this device's");
	if (command)
		str_addf(s, " first in command %u: here %s, there %s)", k, a && *here != '=' ? here : "none", b && *there != '=' ? there : "none");
	else if (!a && !b)
		str_add(s, ", though not in what is communicated, nor in arguments and results: in constants, or in what a device does by itself)");
	else if (a && b && !strncmp(here, there, n + 1))
		str_addf(s, ", though not in what is communicated, in %.*s: here %s, there %s)", (int)n - 1, here + 1, here + n + 1, there + n + 1);
	else
		str_add(s, ", though not in what is communicated, in the number of arguments or results)");
	for (char *t = s->p; (t = strchr(t, '\t'));)
		*t = ' ';
}

bool job_describe(struct rt_client *c, const struct rt_exec *mine, uint32_t ident, uint32_t site, struct str *s)
{
	struct str its = { 0 }, own = { 0 };
	char name[200], line[400], key[32];
	bool found = false;

	pthread_mutex_lock(&c->side_lock);
	for (struct rt_exec *x = c->execs; x && !found; x = x->next)
		if (x->ident == ident) {
			list(&its, x);
			found = true;
		}
	pthread_mutex_unlock(&c->side_lock);
	if (!found && c->boot) {
		prog_key(key, ident);
		pthread_mutex_lock(&c->kv_lock);
		struct err *e = c->boot->get(c->boot->user, key, ASK_MS, &its);
		pthread_mutex_unlock(&c->kv_lock);
		found = !e;
		err_free(e);
	}
	if (found && line_of(its.p, 0, name, sizeof name)) {
		name[strcspn(name, "\t")] = '\0';
		if (!site || !line_of(its.p, site, line, sizeof line))
			line[0] = '\0';
		if (site) {
			char *what = strchr(line, '\t');
			if (what) {
				*what++ = '\0';
				what[strcspn(what, "\t")] = '\0';
			}
			if (*line)
				str_addf(s, "'%s', ", line);
			if (what)
				str_addf(s, "%s, ", what);
			str_addf(s, "command %u of program '%s'", site, name);
		} else
			str_addf(s, "the start of program '%s'", name);
		if (mine && mine->ident != ident && !strcmp(mine->name, name)) {
			list(&own, mine);
			differs(own.p, its.p, s);
		}
	}
	str_free(&its);
	str_free(&own);
	return found;
}
