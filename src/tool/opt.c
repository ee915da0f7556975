/* rondo opt: a program's text, as read or after a pass. */
#include "tool.h"

static const char *pass, *tier, *devices, *list, *verify, *no_loc;

static const struct opt opts[] = {
	{"p", "PASS", "run the passes up to this one; without it the program is printed as it is read", &pass},
	{"V", NULL, "print nothing, only verify", &verify},
	{"L", NULL, "leave locations out", &no_loc},
	{"devices", "N", "partitions; the program says by itself", &devices},
	{"tier", "T", "ref, gen or auto", &tier},
	{"list", NULL, "list the passes in order", &list},
};

static struct err *run(char **file, int nfile, int *status)
{
	if (list) {
		for (const char *const *n = pass_names(); *n; n++)
			printf("%s\n", *n);
		return NULL;
	}
	if (!nfile)
		return ERR(INVALID, "rondo opt needs: %s", cmd_opt.args);
	struct ir_module *m;
	struct pass_opts o;
	struct str s = {0};
	TRY(source_read(file[0], &m));
	struct err *e = source_opts(tier, devices, m, &o);
	o.stop = pass;
	if (!e)
		e = ir_verify(m);
	if (!e && pass)
		e = pass_run(&o, m);
	if (!e && pass)
		e = ir_verify(m);
	if (!e && no_loc)
		for (size_t f = 1; f < m->fn.n; f++)
			for (size_t i = 0; i < m->fn.p[f]->op.n; i++)
				m->fn.p[f]->op.p[i].loc = 0;
	if (!e && !verify) {
		ir_print(&s, m);
		fputs(s.p, stdout);
	}
	str_free(&s);
	ir_module_free(m);
	return e;
}

const struct command cmd_opt = {"opt", "FILE [-p PASS] [options]", "print a program's operations, as read or after a pass", opts, NELEM(opts), 0, 1, run};
