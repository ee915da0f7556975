/* Reading programs: bytecode, our text, compiled programs. */
#include "tool.h"

#include <ctype.h>
#include <sys/stat.h>

#include "../hlo/hlo.h"

enum { MOST_DEVICES = 1 << 16 };

enum form { BYTECODE, TEXT, PROG_TEXT, PROG_BINARY, TOLD, HLO_TEXT, OF_JAX, SCRIPT, NOTHING };

static bool begins(const char *s, size_t n, const char *with) { return n >= strlen(with) && !memcmp(s, with, strlen(with)); }

/* How far comment lines and space go; of MLIR what stands for locations is comment. */
static size_t skipped(const struct str *s)
{
	size_t i = 0;
	while (i < s->n && (s->p[i] == '#' || isspace((unsigned char)s->p[i]))) {
		const char *nl = s->p[i] == '#' ? memchr(s->p + i, '\n', s->n - i) : s->p + i;
		i = nl ? (size_t)(nl - s->p) + 1 : s->n;
	}
	return i;
}

static enum form form_of(const struct str *s)
{
	if (begins(s->p, s->n, "ML\xefR"))
		return BYTECODE;
	if (begins(s->p, s->n, "RONDOPRG"))
		return PROG_BINARY;
	if (pass_told_is(s->p, s->n))
		return TOLD;
	if (begins(s->p, s->n, "#!"))
		return SCRIPT;
	size_t i = skipped(s);
	if (begins(s->p + i, s->n - i, "prog "))
		return PROG_TEXT;
	if (begins(s->p + i, s->n - i, "HloModule"))
		return HLO_TEXT;
	if (memchr(s->p, '\0', s->n) || memmem(s->p, s->n, "func.func", 9))
		return OF_JAX;
	return begins(s->p + i, s->n - i, "module") || begins(s->p + i, s->n - i, "mesh") || begins(s->p + i, s->n - i, "fn") ? TEXT : NOTHING;
}

static struct err *of_jax(const char *path, struct ir_module **out)
{
	struct str s = {0}, version = {0};
	int status = 0;
	str_addf(&version, "%d.%d.0", HLO_MAJOR, HLO_MINOR);
	struct err *e = script_output((char *[]){ (char *)script_python(), "-m", "rondo.portable", version.p, (char *)path, NULL }, &s, &status);
	if (!e && status == 1 && s.n)
		e = ERR(INVALID, "%s", s.p);
	else if (!e && status)
		e = ERR(UNAVAILABLE, "this is for JAX to read, and '%s -m rondo.portable' cannot: in the environment that has JAX and rondo, run its own 'rondo'", script_python());
	if (!e)
		e = hlo_read(s.p, s.n, out);
	str_free(&s);
	str_free(&version);
	return e;
}

static struct err *read_module(const char *path, const struct str *s, struct ir_module **out)
{
	switch (form_of(s)) {
	case BYTECODE: return hlo_read(s->p, s->n, out);
	case TEXT: return ir_parse(s->p, s->n, out);
	case NOTHING:
		if (args_ends(path, ".py"))
			return ERR(INVALID, "this is a Python script: 'rondo explain' runs it and shows what it compiled, lowered.as_text() in it writes what is read here");
		return ERR(INVALID, "this is neither StableHLO, as lowered.as_text() writes it or as bytecode, nor what jax.export serializes, nor a text of 'rondo opt'");
	case OF_JAX: return of_jax(path, out);
	case HLO_TEXT: return ERR(INVALID, "this is HLO; what is read is StableHLO: lowered.as_text() writes it");
	case SCRIPT: return ERR(INVALID, "this is a script: its name must end in .py, or it must be executable, for 'rondo explain' to run it");
	case TOLD: return ERR(INVALID, "this is what RONDO_EXPLAIN leaves of a program that was compiled; 'rondo explain' and 'rondo prog' show it");
	default: return ERR(INVALID, "this is a compiled program, which has no operations any more; 'rondo prog' shows it");
	}
}

static struct err *contents(const char *path, struct str *s)
{
	struct stat st;
	if (!stat(path, &st) && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)))         /* it is read more than once, and by others */
		return ERR(INVALID, "'%s' is a pipe: what comes through it must be in a file", path);
	TRY(str_read_file(s, path));
	return skipped(s) < s->n || begins(s->p, s->n, "#!") ? NULL : ERR(INVALID, "'%s' is empty", path);
}

struct err *source_read(const char *path, struct ir_module **out)
{
	struct str s = {0};
	struct err *e = contents(path, &s);
	if (!e)
		e = err_wrap(read_module(path, &s, out), "%s", path);
	str_free(&s);
	return e;
}

struct err *source_told(const char *path, struct pass_told *out)
{
	struct str s = {0};
	struct err *e = contents(path, &s);
	bool is = !e && pass_told_is(s.p, s.n);
	*out = (struct pass_told){ .prog = NULL };
	if (is)
		e = err_wrap(pass_told_read(s.p, s.n, out), "%s", path);
	str_free(&s);
	return e;
}

struct err *source_prog(const char *path, const struct pass_opts *o, struct prog **out)
{
	struct str s = {0};
	struct ir_module *m = NULL;
	struct err *e = contents(path, &s);
	if (e)
		return e;
	enum form f = form_of(&s);
	if (f == PROG_TEXT) {
		e = prog_parse(s.p, s.n, out);
	} else if (f == PROG_BINARY) {
		e = prog_load(s.p, s.n, out);
	} else if (f == TOLD) {
		struct pass_told t;
		e = pass_told_read(s.p, s.n, &t);
		*out = t.prog;
		t.prog = NULL;
		pass_told_free(&t);
	} else {
		struct pass_opts mine = *o;
		e = read_module(path, &s, &m);
		if (!e) {
			mine.ndev = mine.ndev > 1 ? mine.ndev : MAX(m->num_partitions, 1);
			e = pass_compile(&mine, m, out);
		}
	}
	ir_module_free(m);
	str_free(&s);
	return err_wrap(e, "%s", path);
}

struct err *source_opts(const char *tier, const char *devices, const char *hosts, const struct ir_module *m, struct pass_opts *o)
{
	static struct plan_table table;
	static int host[MOST_DEVICES];
	int64_t n = m ? MAX(m->num_partitions, 1) : 1, nhost = 1;
	pass_opts_from_conf(o);
	TRY(plan_table_get(&table));
	TRY(arg_int("devices", devices, 1, MOST_DEVICES, &n));
	if (m) {
		TRY(pass_repro_parts(m, (int)n, &o->parts));
		n *= o->parts;
	}
	TRY(arg_int("hosts", hosts, 1, n, &nhost));
	if (n % nhost)
		return ERR(INVALID, "option '--hosts' is '%s', which does not divide %ld devices", hosts, (long)n);
	for (int64_t i = 0; i < n; i++)
		host[i] = (int)(i / (n / nhost));
	o->ndev = (int)n;
	o->plan = (struct plan_on){ &table, (int)n, (int)nhost * cpu_get()->cores, nhost > 1 ? host : NULL, plan_ring() };
	return arg_tier(tier, &o->tier);
}
