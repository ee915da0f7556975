/* rondo: a subcommand a file. */
#include "tool.h"
#include "../hlo/hlo.h"

static const struct tool_cmd commands[] = {
	{ "opt", tool_opt, "[-p PASS] [-V] FILE", "print the program, after the passes up to PASS; -V: verify only" },
};

static void usage(FILE *f)
{
	fprintf(f, "usage: rondo COMMAND ..\n");
	for (size_t i = 0; i < NELEM(commands); i++)
		fprintf(f, "  %-8s %-24s %s\n", commands[i].name, commands[i].args, commands[i].help);
}

int tool_usage(const char *name)
{
	for (size_t i = 0; i < NELEM(commands); i++)
		if (strcmp(commands[i].name, name) == 0)
			fprintf(stderr, "usage: rondo %s %s\n  %s\n", name, commands[i].args, commands[i].help);
	return 2;
}

int tool_fail(struct err *e)
{
	fprintf(stderr, "rondo: %s\n", e->msg);
	err_free(e);
	return 1;
}

struct err *tool_read(const char *path, struct ir_module **out)
{
	struct str s = {0};
	struct err *e = str_read_file(&s, path);
	if (!e)
		e = s.n >= 4 && memcmp(s.p, "ML\xefR", 4) == 0 ? hlo_read(s.p, s.n, out) : ir_parse(s.p, s.n, out);
	str_free(&s);
	return e ? err_wrap(e, "%s", path) : NULL;
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		usage(stderr);
		return 2;
	}
	if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
		usage(stdout);
		return 0;
	}
	const char *names[NELEM(commands)];
	for (size_t i = 0; i < NELEM(commands); i++) {
		names[i] = commands[i].name;
		if (strcmp(argv[1], commands[i].name) == 0)
			return commands[i].run(argc - 2, argv + 2);
	}
	const char *near = str_nearest(argv[1], names, NELEM(names));
	fprintf(stderr, "rondo: no command '%s'%s%s%s\n", argv[1], near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
	usage(stderr);
	return 2;
}
