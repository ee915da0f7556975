/* rondo opt: print a program as text, as it is or after passes. */
#include "tool.h"
#include "../pass/pass.h"

int tool_opt(int argc, char **argv)
{
	const char *path = NULL, *stop = NULL;
	bool quiet = false;
	for (int i = 0; i < argc; i++) {
		if (strcmp(argv[i], "-p") == 0 && i + 1 < argc)
			stop = argv[++i];
		else if (strcmp(argv[i], "-V") == 0)
			quiet = true;
		else if (argv[i][0] == '-' && argv[i][1])
			return tool_usage("opt");
		else
			path = argv[i];
	}
	if (!path)
		return tool_usage("opt");
	struct ir_module *m = NULL;
	struct err *e = tool_read(path, &m);
	if (!e)
		e = ir_verify(m);
	if (!e && stop) {
		struct pass_opts o = {0};
		pass_opts_from_conf(&o);
		o.ndev = m->num_partitions;
		o.stop = stop;
		e = pass_run(&o, m);
	}
	if (!e && !quiet) {
		struct str s = {0};
		ir_print(&s, m);
		fwrite(s.p, 1, s.n, stdout);
		str_free(&s);
	}
	ir_module_free(m);
	return e ? tool_fail(e) : 0;
}
