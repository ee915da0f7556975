/* The `rondo` command: one file per subcommand. */
#include "tool.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static const struct command *const all[] = {&cmd_info, &cmd_doctor, &cmd_opt, &cmd_run, &cmd_explain, &cmd_prog, &cmd_bench, &cmd_launch, &cmd_trace, &cmd_completion, NULL};
enum { COMMANDS = NELEM(all) - 1 };

static void overview(FILE *f, const struct command *none)
{
	(void)none;
	fprintf(f, "rondo: compiler and runtime for JAX programs\n\n");
	for (size_t i = 0; i < COMMANDS; i++)
		fprintf(f, "  rondo %-10s %-34s %s\n", commands[i]->name, commands[i]->args, commands[i]->help);
	fprintf(f, "  rondo %-10s %-34s %s\n", "help", "[COMMAND | settings]", "this text, a command's options, the settings");
	fprintf(f, "  rondo %-10s %-34s %s\n\n", "--version", "", "version of this build");
	fprintf(f, "FILE is StableHLO portable bytecode, what jax.export serializes, the text of lowered.as_text(), or the text that 'rondo opt' prints.\n");
}

static void settings(FILE *f, const struct command *none)
{
	(void)none;
	conf_help(f);
}

/* What `say` writes, as wide as the terminal. */
static void show(void (*say)(FILE *f, const struct command *c), const struct command *c)
{
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);
	if (!f) {
		say(stdout, c);
		return;
	}
	say(f, c);
	if (fclose(f) == 0)
		screen_text(text);
	free(text);
}

static struct err *help(int argc, char **argv)
{
	if (argc < 1 || strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
		show(overview, NULL);
		return NULL;
	}
	if (strcmp(argv[0], "settings") == 0) {
		show(settings, NULL);
		return NULL;
	}
	const char *name[COMMANDS + 1];
	for (size_t i = 0; i < COMMANDS; i++) {
		name[i] = commands[i]->name;
		if (strcmp(argv[0], name[i]) == 0) {
			show(args_help, commands[i]);
			return NULL;
		}
	}
	name[COMMANDS] = "settings";
	return ERR(INVALID, "no help on '%s'%s", argv[0], args_hint(argv[0], name, NELEM(name)));
}

struct line { int argc; char **argv; int status; };

static struct err *run(void *v)
{
	struct line *line = v;
	int argc = line->argc, *status = &line->status;
	char **argv = line->argv;
	const char *name[COMMANDS + 1];
	if (argc < 2 || strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
		return help(argc - 2, argv + 2);
	if (strcmp(argv[1], "--version") == 0) {
		printf("rondo %s\n", RONDO_RELEASE);
		return NULL;
	}
	for (size_t i = 0; i < COMMANDS; i++) {
		const struct command *c = commands[i];
		name[i] = c->name;
		if (strcmp(argv[1], c->name) != 0)
			continue;
		for (int k = 2; k < argc && (args_is_option(c, argv[k]) || !args_hands_on(c, argv[k])); k++)
			if (strcmp(argv[k], "--help") == 0 || strcmp(argv[k], "-h") == 0) {
				show(args_help, c);
				return NULL;
			}
		char **file = mem_alloc((size_t)argc * sizeof *file);
		int nfile;
		struct err *e = args_parse(c, argc - 2, argv + 2, file, &nfile);
		if (!e)
			e = c->run(file, nfile, status);
		free(file);
		return e;
	}
	name[COMMANDS] = "help";
	return ERR(INVALID, "no command '%s'%s; see 'rondo help'", argv[1], args_hint(argv[1], name, NELEM(name)));
}

/* Has who reads standard output had enough of it? */
static bool nobody_reads(void)
{
	struct pollfd q = { .fd = STDOUT_FILENO, .events = POLLOUT };
	int was = errno;
	bool gone = poll(&q, 1, 0) > 0 && (q.revents & POLLERR);
	errno = was;
	return gone;
}

int main(int argc, char **argv)
{
	struct line line = { argc, argv, 0 };
	commands = all;
	if (argc > 1 && strcmp(argv[1], "doctor") == 0)
		conf_quietly();                   /* it tells by itself */
	signal(SIGXFSZ, SIG_IGN);                 /* what is more than files may be is an error of the write */
	struct err *e = mem_guard(run, &line, false);
	if ((fflush(stdout) || ferror(stdout)) && !e && !nobody_reads())
		e = ERR(UNAVAILABLE, "cannot write to standard output: %s", strerror(errno));
	if (e) {
		bool colour = isatty(2);
		fprintf(stderr, "rondo: %serror%s: %s\n", colour ? "\033[31m" : "", colour ? "\033[0m" : "", e->msg);
		if (conf_int(CONF_LOG) >= LOG_DEBUG)
			fprintf(stderr, "  made at %s:%d\n", e->file, e->line);
		err_free(e);
		return 2;
	}
	return line.status;
}
