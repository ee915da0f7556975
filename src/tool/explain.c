/* rondo explain: what the compiler decided for a program, and why. */
#include "tool.h"

static const char *tier, *devices, *hosts, *all, *sharded;

static const struct opt opts[] = {
	{"devices", "N", "partitions; the program says by itself", &devices},
	{"hosts", "N", "as many hosts, which have equal parts of the devices one after the other (1)", &hosts},
	{"tier", "T", "ref, gen or auto", &tier},
	{"all", NULL, "of a sharded program every value and communication, not only those of weight", &all},
	{"sharded", NULL, "nothing but what lies where on the devices, and what travels between them", &sharded},
};

static struct err *run(char **file, int nfile, int *status)
{
	struct ir_module *m;
	struct pass_opts o;
	struct str s = {0};
	TRY(source_read(file[0], &m));
	struct err *e = source_opts(tier, devices, hosts, m, &o);
	if (!e)
		e = pass_explain(&s, &o, m, (all ? PASS_ALL : 0) | (sharded ? PASS_SHARDED : 0), NULL);
	if (!e && s.p)
		fputs(s.p, stdout);
	str_free(&s);
	ir_module_free(m);
	return e;
}

const struct command cmd_explain = {"explain", "FILE [options]", "say what the compiler decided: what lies where and travels, loops, groups, memory", opts, NELEM(opts), 1, 1, run};
