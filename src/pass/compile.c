/* The path of a program through the compiler, top to bottom. */
#include "ring.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static struct err *partition(const struct pass_opts *o, struct ir_module *m)
{
	return spmd_partition(m, o->ndev, &o->plan, o->maker, o->record);
}

/* Needs: what a pass counts on; gives: what holds after it, to the end. */
static const struct pass { const char *name; struct err *(*run)(const struct pass_opts *, struct ir_module *); unsigned needs, gives; } pass[] = {
	{ "repro",     pass_repro,  0, 0 },                     /* a mesh of n devices -> one of as many as RONDO_REPRO says */
	{ "round",     pass_round,  0, 0 },                     /* where each sum rounds: it may change a number, as may small.c, and sum_of_products of canon */
	{ "inline",    pass_inline, 0, NO_CALL },               /* calls -> bodies */
	{ "fold",      pass_canon,  NO_CALL, 0 },               /* constants known before loops are read */
	{ "loops",     pass_loops,  NO_CALL, 0 },               /* while -> loop with roles; cheap invariants into bodies */
	{ "canon",     pass_canon,  NO_CALL, 0 },
	{ "cse",       pass_cse,    0, 0 },
	{ "attention", pass_attention, NO_CALL, 0 },            /* attention, however it is written -> its ops */
	{ "leave",     pass_leave,  NO_CALL, 0 },               /* what is the same in each turn -> before the loop */
	{ "remake",    pass_remake, NO_CALL, 0 },               /* where memory is short: what loops keep for their gradients -> made again */
	{ "unroll",    pass_unroll, NO_CALL, 0 },               /* short elementwise loops over large arrays -> straight-line code */
	{ "partition", partition,   NO_CALL, LOCAL },           /* whole arrays -> one device's shards */
	{ "joint",     pass_joint,  NO_CALL | LOCAL, NO_JOINT },/* joint reducers -> the collectives that there are */
	{ "layouts",   pass_layouts,NO_CALL | LOCAL, 0 },       /* arguments and results as they lie in memory */
	{ "canon2",    pass_canon,  NO_CALL, 0 },
	{ "beside",    pass_beside, NO_CALL | LOCAL, 0 },       /* sums of what zeros are put around -> one beside the other */
	{ "cse2",      pass_cse_local, 0, 0 },
	{ "leave2",    pass_leave_local, NO_CALL | LOCAL, 0 },
	{ "turns",     pass_turns,  NO_CALL | LOCAL, 0 },       /* cases that the turn of a loop decides -> the branch that they take */
	{ "attention2",pass_attention, NO_CALL, 0 },            /* what the bodies of shard_map, which are in line now, show together */
	{ "heads",     pass_heads,  NO_CALL | LOCAL, 0 },       /* attention over a sequence that hosts share -> of all rows of some heads on each */
	{ "balance",   pass_balance, NO_CALL | LOCAL, 0 },      /* attention that a mask deals unevenly -> halves of the same work for all */
	{ "ring",      pass_ring,   NO_CALL | LOCAL, 0 },       /* gradients whose keys or queries are gathered -> a loop round the devices */
	{ "combine",   pass_combine,NO_CALL | LOCAL | NO_JOINT, 0 }, /* small sums of one group -> one exchange */
	{ "fuse",      pass_fuse,   NO_CALL | LOCAL, 0 },       /* groups that become one kernel */
	{ "share",     pass_share,  NO_CALL | LOCAL, 0 },       /* groups alike but for constants -> one kernel, the constants operands */
	{ "schedule",  pass_schedule, NO_CALL | LOCAL, 0 },     /* collectives begin early, what reads them comes late */
};
enum { LOWER_NEEDS = NO_CALL | LOCAL | NO_JOINT };

const char *const *pass_names(void)
{
	static const char *names[NELEM(pass) + 1];
	for (size_t i = 0; i < NELEM(pass); i++)
		names[i] = pass[i].name;
	return names;
}

void pass_opts_from_conf(struct pass_opts *o)
{
	const char *t = conf_str(CONF_TIER), *d = conf_str(CONF_DUMP);
	*o = (struct pass_opts){ .ndev = 1, .check = conf_int(CONF_CHECK) != 0, .dump = *d ? d : NULL };
	o->tier = !strcmp(t, "ref") ? TIER_REF : !strcmp(t, "gen") ? TIER_GEN : TIER_AUTO;
}

static void dump(const struct pass_opts *o, int k, const char *name, const char *module, const struct str *text)
{
	if (mkdir(o->dump, 0777) && errno != EEXIST) {
		conf_useless(CONF_DUMP, "the program's texts are not written, since the folder cannot be made: %s", strerror(errno));
		return;
	}
	struct str path = {0};
	str_addf(&path, "%s/%s.%d.%02d-%s.txt", o->dump, *module ? module : "module", (int)getpid(), k, name);
	struct err *e = str_write_file(path.p, text->p ? text->p : "", text->n);
	if (e)
		conf_useless(CONF_DUMP, "a text is not written: %s", e->msg);
	err_free(e);
	str_free(&path);
}

static void dump_ir(const struct pass_opts *o, int k, const char *name, const struct ir_module *m)
{
	struct str s = {0};
	ir_print(&s, m);
	dump(o, k, name, ir_text(m, m->name), &s);
	str_free(&s);
}

static struct err *no_pass(const char *name)
{
	const char *near = str_nearest(name, pass_names(), NELEM(pass));
	return ERR(INVALID, "no pass '%s'%s%s%s; 'rondo opt --list' has them", name, near ? ", did you mean '" : "", near ? near : "", near ? "'" : "");
}

struct err *pass_run(const struct pass_opts *o, struct ir_module *m)
{
	if (o->dump)
		dump_ir(o, 0, "read", m);
	if (o->check)
		TRY(ir_verify(m));
	if (o->stop && !strcmp(o->stop, "read"))
		return NULL;
	unsigned facts = 0;
	for (size_t i = 0; i < NELEM(pass); i++) {
		assert(!(pass[i].needs & ~facts));
		TRY(pass[i].run(o, m));
		ir_sweep(m);
		facts |= pass[i].gives;
		if (o->dump)
			dump_ir(o, (int)i + 1, pass[i].name, m);
		if (o->check || (o->ndev > 1 && pass[i].gives & LOCAL)) {       /* parts that do not fit together are a wrong number, not a crash */
			struct err *e = ir_verify(m);
			if (!e && o->check)
				e = pass_holds(m, facts);
			if (e) {
				e->code = ERR_INTERNAL;
				return err_wrap(e, "after pass '%s'", pass[i].name);
			}
		}
		if (o->stop && !strcmp(o->stop, pass[i].name))
			return NULL;
	}
	assert(!(LOWER_NEEDS & ~facts));
	return o->stop ? no_pass(o->stop) : NULL;
}

struct err *pass_run_only(const struct pass_opts *o, struct ir_module *m, const char *name)
{
	size_t i = 0;
	while (i < NELEM(pass) && strcmp(name, pass[i].name))
		i++;
	if (i == NELEM(pass))
		return no_pass(name);
	struct err *e = pass_holds(m, pass[i].needs);
	if (e) {
		e->code = ERR_INVALID;
		return err_wrap(e, "pass '%s' alone", name);
	}
	TRY(pass[i].run(o, m));
	ir_sweep(m);
	return NULL;
}

static struct ir_arg *unnamed(struct arena *a, const struct ir_arg *arg, size_t n)
{
	struct ir_arg *r = arg && n ? arena_copy(a, arg, sizeof *r * n) : NULL;
	for (size_t i = 0; r && i < n; i++)
		r[i].name = 0;
	return r;
}

/* What a program says, wherever its source lies and whatever it calls its arguments: the processes of a job may have come to it by different
 * calls. */
static uint64_t meaning(const struct ir_module *m)
{
	struct str s = {0};
	struct ir_module said = *m;
	struct arena a;
	uint64_t h = 0;

	arena_init(&a);
	said.arg = unnamed(&a, m->arg, ir_main(m)->nparam);
	said.res = unnamed(&a, m->res, ir_main(m)->result.n);
	ir_print(&s, &said);
	arena_fini(&a);
	for (const char *p = s.p, *end; p && *p; p = end + 1) {
		end = strchrnul(p, '\n');
		const char *loc = p, *next;
		while ((next = memmem(loc + 1, (size_t)(end - loc - (loc < end)), " loc(", 5)))
			loc = next;
		h = hash_bytes(p, (size_t)((loc > p ? loc : end) - p), h);
		if (!*end)
			break;
	}
	str_free(&s);
	return h;
}

struct err *pass_lower(const struct pass_opts *o, struct ir_module *m, struct lower_choice *choice, struct map *lent, struct prog **out)
{
	struct lower_opts l = { .plan = &o->plan, .ndev = o->ndev, .tier = o->tier, .fingerprint = o->fingerprint, .custom_known = o->custom_known, .lent = lent };
	if (m->key.n)                  /* what its maker has answered is part of what it says */
		l.fingerprint = hash_bytes(&l.fingerprint, sizeof l.fingerprint, meaning(m));
	return lower_module(&l, m, choice, out);
}

struct err *pass_explain(struct str *s, const struct pass_opts *o, struct ir_module *m, unsigned flags, struct prog **out)
{
	struct pass_opts mine = *o;
	struct spmd_record r;
	struct attn_record attention = {0};
	struct ring_record rings = {0};
	struct map lent = {0};
	struct arena a;
	struct prog *p = NULL;
	struct err *e;
	spmd_record_init(&r);
	arena_init(&a);
	mine.stop = NULL;
	mine.record = &r;
	mine.attention = &attention;
	mine.rings = &rings;
	TRY_GOTO(e, pass_run(&mine, m), out);
	str_addf(s, "'%s' for %d device%s", ir_text(m, m->name), o->ndev, o->ndev > 1 ? "s" : "");
	if (o->parts > 1)
		str_addf(s, ", of which %d each are parts of one (RONDO_REPRO)", o->parts);
	str_add(s, "\n");
	struct lower_choice *choice = lower_choices(&a, o->tier, o->plan.table, m);
	struct pass_account account;
	e = pass_lower(&mine, m, choice, &lent, &p);
	pass_explain_sharded(s, &a, m, &r, o, e ? NULL : &lent, flags & PASS_ALL);
	pass_explain_rings(s, m, &rings);
	if (!e) {
		p->needs = o->of ? o->needs(o->of, p) : 0;
		pass_account(&a, p, &o->plan, &account);
	}
	if (!e && flags & PASS_SHARDED) {
		pass_explain_memory(s, m, &account);
	} else if (!e) {
		pass_explain_attention(s, m, &attention);
		pass_explain_compiled(s, &a, m, o->plan.table, choice, &account);
	} else if (flags & PASS_SHARDED) {       /* what lies where is known all the same */
		str_addf(s, "memory of a device: not known, %s\n", e->msg);
		err_free(e);
		e = NULL;
	}
out:
	map_free(&lent);
	arena_fini(&a);
	spmd_record_fini(&r);
	arr_free(&attention.said);
	arr_free(&rings.said);
	if (out)
		*out = p;
	else
		prog_free(p);
	return e;
}

/* What RONDO_EXPLAIN asks for. */
static enum where { NOWHERE, STDERR, TO_FILE, TO_FOLDER } explain_where(void)
{
	const char *t = conf_str(CONF_EXPLAIN);
	struct stat st;
	if (!*t || !strcmp(t, "0"))
		return NOWHERE;
	if (!strcmp(t, "1"))
		return STDERR;
	if (!strpbrk(t, "/.")) {
		conf_useless(CONF_EXPLAIN, "nothing is explained, since it is neither 0, nor 1 (standard error), nor a path, which has a / or a . in it");
		return NOWHERE;
	}
	return !stat(t, &st) && S_ISDIR(st.st_mode) ? TO_FOLDER : TO_FILE;
}

/* One program's text, behind those of others.  What cannot be written is said once, and stops nothing. */
static void explain_write(const struct str *s, enum where where, const struct plan_on *on, struct prog *p)
{
	const char *t = conf_str(CONF_EXPLAIN);
	struct err *e = where == TO_FOLDER ? pass_told_write(t, s, on, p) : NULL;
	int fd = where == TO_FILE ? open(t, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : 2;
	ssize_t n = 0;
	for (size_t at = 0; where != TO_FOLDER && fd >= 0 && n >= 0 && at < s->n; at += (size_t)MAX(n, 0))
		n = write(fd, s->p + at, s->n - at);
	if (e || fd < 0 || n < 0)
		conf_useless(CONF_EXPLAIN, "what was decided cannot be written: %s", e ? e->msg : *t && t[strlen(t) - 1] == '/' ? "there is no such folder" : strerror(errno));
	err_free(e);
	if (fd > 2)
		close(fd);
}

/* Programs that JAX makes of one call, of which there are hundreds, are not worth a text that somebody reads. */
enum { EAGER = 4 };

struct err *pass_compile(const struct pass_opts *o, struct ir_module *m, struct prog **out)
{
	enum where where = explain_where();
	if (where == TO_FOLDER || (where && (o->ndev > 1 || ir_main(m)->op.n > EAGER))) {
		struct str s = {0};
		struct err *bad = pass_explain(&s, o, m, 0, out);
		if (!bad)
			explain_write(&s, where, &o->plan, *out);
		str_free(&s);
		TRY(bad);
	} else {
		TRY(pass_run(o, m));
		TRY(pass_lower(o, m, NULL, NULL, out));
	}
	if (o->dump) {
		struct str s = {0};
		prog_print(&s, *out);
		dump(o, (int)NELEM(pass) + 1, "prog", (*out)->name, &s);
		str_free(&s);
	}
	struct err *e = o->check ? prog_check(*out) : NULL;
	if (e) {
		prog_free(*out);
		*out = NULL;
	}
	return e;
}

/* --- the cache on disk -------------------------------------------------------- */

/* Tells one build of Rondo from another: size and time of the file this code is in. */
static int64_t build_stamp(void)
{
	Dl_info here;
	struct stat st;
	if (!dladdr((void *)(uintptr_t)pass_compile_cached, &here) || !here.dli_fname || stat(here.dli_fname, &st))
		return 0;
	int64_t v[3] = { st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec };
	return (int64_t)hash_bytes(v, sizeof v, 3);
}

/* Programs that compile faster than a file opens are not kept; longer ones than MOST are not read. */
enum { CACHE_LEAST = 4096, CACHE_MOST = 1 << 30 };

struct err *pass_compile_cached(const struct pass_opts *o, pass_reader *read, const void *code, size_t n, struct prog **out)
{
	struct str path = {0}, bytes = {0};
	bool use = n >= CACHE_LEAST && !conf_int(CONF_CHECK) && !conf_is_set(CONF_DUMP) && !explain_where() && conf_cache(&path, true);
	if (use) {
		const char *attention = conf_str(CONF_ATTENTION);
		int64_t key[9] = { RONDO_VERSION, build_stamp(), o->ndev, o->tier, conf_int(CONF_EXCESS_PRECISION), (int64_t)hash_bytes(attention, strlen(attention), 4), (int64_t)plan_hash(&o->plan, o->ndev), o->parts, o->save };
		uint64_t a = hash_bytes(code, n, hash_bytes(key, sizeof key, 1)), b = hash_bytes(code, n, hash_bytes(key, sizeof key, 2));
		const struct cpu_info *c = cpu_get();
		a = hash_bytes(kern_isa(), strlen(kern_isa()), hash_bytes(c->name, strlen(c->name), a));
		str_addf(&path, "%016llx%016llx.rondo", (unsigned long long)a, (unsigned long long)b);
		if (!access(path.p, R_OK)) {
			struct err *e = cache_read(&bytes, path.p, CACHE_MOST);
			if (!e)
				e = prog_load(bytes.p, bytes.n, out);
			str_free(&bytes);
			if (!e) {
				str_free(&path);
				return NULL;
			}
			log_line(LOG_INFO, "compiled anew: %s", e->msg);
			err_free(e);
		}
	}
	struct ir_module *m;
	struct err *e = read(code, n, &m);
	if (e)
		return str_free(&path), e;
	use = use && !m->key.n;        /* its maker is asked each time */
	struct pass_opts q = *o;
	if (o->ndev > 1) {             /* by other prices it may have become another program */
		uint64_t by = plan_hash(&o->plan, o->ndev);
		q.fingerprint = hash_bytes(&by, sizeof by, meaning(m));
	}
	e = pass_compile(&q, m, out);
	ir_module_free(m);
	if (!e && use) {
		prog_save(&bytes, *out);
		struct err *we = cache_write(path.p, bytes.p, bytes.n);
		if (we && conf_is_set(CONF_CACHE))
			conf_useless(CONF_CACHE, "compiled programs are not kept: %s", we->msg);
		else if (we)
			log_line(LOG_INFO, "the compiled program is not kept: %s", we->msg);
		err_free(we);
	}
	str_free(&bytes);
	str_free(&path);
	return e;
}
