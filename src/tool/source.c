/* Reading programs: bytecode, our text, compiled programs. */
#include "tool.h"

#include "../hlo/hlo.h"

enum { MOST_DEVICES = 1 << 16 };

enum form { BYTECODE, TEXT, PROG_TEXT, PROG_BINARY };

static enum form form_of(const struct str *s)
{
	if (s->n >= 4 && memcmp(s->p, "ML\xefR", 4) == 0)
		return BYTECODE;
	if (s->n >= 8 && memcmp(s->p, "RONDOPRG", 8) == 0)
		return PROG_BINARY;
	size_t i = 0;
	while (i < s->n && s->p[i] == '#') {      /* comment lines */
		const char *nl = memchr(s->p + i, '\n', s->n - i);
		i = nl ? (size_t)(nl - s->p) + 1 : s->n;
	}
	return s->n - i >= 5 && memcmp(s->p + i, "prog ", 5) == 0 ? PROG_TEXT : TEXT;
}

static struct err *read_module(const struct str *s, struct ir_module **out)
{
	switch (form_of(s)) {
	case BYTECODE: return hlo_read(s->p, s->n, out);
	case TEXT:
		if (s->n > 7 && memcmp(s->p, "module ", 7) == 0 && memmem(s->p, s->n, "stablehlo.", 10))
			return ERR(INVALID, "this is MLIR text; give the portable bytecode (.mlirbc) instead");
		return ir_parse(s->p, s->n, out);
	default: return ERR(INVALID, "this is a compiled program, which has no operations any more; 'rondo prog' shows it");
	}
}

struct err *source_read(const char *path, struct ir_module **out)
{
	struct str s = {0};
	struct err *e = str_read_file(&s, path);
	if (!e && !s.n)
		e = ERR(INVALID, "'%s' is empty", path);
	if (!e)
		e = err_wrap(read_module(&s, out), "%s", path);
	str_free(&s);
	return e;
}

struct err *source_prog(const char *path, const struct pass_opts *o, struct prog **out)
{
	struct str s = {0};
	struct ir_module *m = NULL;
	struct err *e = str_read_file(&s, path);
	if (e)
		return e;
	enum form f = form_of(&s);
	if (f == PROG_TEXT) {
		e = prog_parse(s.p, s.n, out);
	} else if (f == PROG_BINARY) {
		e = prog_load(s.p, s.n, out);
	} else {
		struct pass_opts mine = *o;
		e = read_module(&s, &m);
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
	TRY(arg_int("--devices", devices, 1, MOST_DEVICES, &n));
	TRY(arg_int("--hosts", hosts, 1, n, &nhost));
	if (n % nhost)
		return ERR(INVALID, "option '--hosts' is '%s', which does not divide %ld devices", hosts, (long)n);
	for (int64_t i = 0; i < n; i++)
		host[i] = (int)(i / (n / nhost));
	o->ndev = (int)n;
	o->plan = (struct plan_on){ &table, (int)n, (int)nhost * cpu_get()->cores, nhost > 1 ? host : NULL };
	return arg_tier(tier, &o->tier);
}
