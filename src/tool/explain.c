/* rondo explain: what the compiler decided for a program, and why. */
#include "tool.h"

static const char *tier, *devices;

static const struct opt opts[] = {
	{"devices", "N", "partitions; the program says by itself", &devices},
	{"tier", "T", "ref, gen or auto", &tier},
};

static struct err *run(char **file, int nfile, int *status)
{
	struct ir_module *m;
	struct pass_opts o;
	struct str s = {0};
	TRY(source_read(file[0], &m));
	struct err *e = source_opts(tier, devices, m, &o);
	if (!e)
		e = pass_explain(&s, &o, m);
	if (!e && s.p)
		fputs(s.p, stdout);
	str_free(&s);
	ir_module_free(m);
	return e;
}

const struct command cmd_explain = {"explain", "FILE [options]", "say what the compiler decided: loops, groups, collectives, memory", opts, NELEM(opts), 1, 1, run};
