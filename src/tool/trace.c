/* rondo trace: run a program, say where its steps' time went, and leave the timeline. */
#include "tool.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *out, *top;

static const struct opt opts[] = {
	{"out", "FILE", "where the timeline goes, of several processes FILE with a number each (rondo-trace.json)", &out},
	{"top", "N", "lines of each list (10)", &top},
};

enum { FILES = 4096 };

static bool ends(const char *s, const char *with)
{
	size_t n = strlen(s), k = strlen(with);
	return n >= k && !strcmp(s + n - k, with);
}

/* Its exit status, or 128 and the signal. */
static struct err *ran(char **argv, const char *folder, int *status)
{
	const char *python = getenv("RONDO_PYTHON");
	ARR(char *) all = {0};
	int st;

	if (ends(argv[0], ".py"))
		arr_push(&all, (char *)(python && *python ? python : "python3"));
	do
		arr_push(&all, *argv);
	while (*argv++);
	fflush(stdout);
	pid_t pid = fork();
	if (!pid) {
		setenv("RONDO_TRACE", folder, 1);
		signal(SIGXFSZ, SIG_DFL);
		execvp(all.p[0], all.p);
		fprintf(stderr, "rondo trace: cannot run '%s': %s\n", all.p[0], strerror(errno));
		_exit(127);
	}
	arr_free(&all);
	if (pid < 0)
		return ERR(EXHAUSTED, "fork: %s", strerror(errno));
	signal(SIGINT, SIG_IGN);                  /* the terminal tells the program, too, which writes what it has */
	signal(SIGQUIT, SIG_IGN);
	while (waitpid(pid, &st, 0) < 0)
		if (errno != EINTR)
			return ERR(INTERNAL, "waitpid: %s", strerror(errno));
	signal(SIGINT, SIG_DFL);
	signal(SIGQUIT, SIG_DFL);
	*status = WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
	if (WIFSIGNALED(st))
		fprintf(stderr, "rondo trace: the program was ended by signal %d (%s), and has written no timeline\n", WTERMSIG(st), strsignal(WTERMSIG(st)));
	return NULL;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The timelines of a folder, which are moved to where they shall be; their names.  The folder is gone then. */
static struct err *fetch(const char *folder, const char *to, char **file, size_t *n)
{
	DIR *d = opendir(folder);
	struct err *e = NULL;
	struct str s = {0};

	*n = 0;
	for (struct dirent *i; d && (i = readdir(d));)
		if (ends(i->d_name, ".json") && *n < FILES) {
			s = (struct str){0};
			str_addf(&s, "%s/%s", folder, i->d_name);
			file[(*n)++] = s.p;
		}
	if (d)
		closedir(d);
	qsort(file, *n, sizeof *file, by_name);
	for (size_t k = 0; k < *n; k++) {
		s = (struct str){0};
		if (*n == 1)
			str_add(&s, to);
		else
			str_addf(&s, "%.*s-%zu.json", (int)(strlen(to) - (ends(to, ".json") ? 5 : 0)), to, k);
		if (rename(file[k], s.p) && !e)
			e = ERR(UNAVAILABLE, "cannot write '%s': %s", s.p, strerror(errno));
		if (e)
			unlink(file[k]);
		free(file[k]);
		file[k] = s.p;
	}
	rmdir(folder);
	return e;
}

static struct err *run(char **argv, int nfile, int *status)
{
	int64_t lines = 10;
	const char *to = out ? out : "rondo-trace.json";
	char **file = NULL;
	size_t n = 0;
	struct err *e = NULL;

	TRY(arg_int("top", top, 1, 1000000, &lines));
	if (ends(argv[0], ".json"))
		return trace_table(argv, (size_t)nfile, lines);
	struct str folder = {0};
	str_addf(&folder, "%s.XXXXXX", to);       /* beside it: a name is all that changes then */
	if (!mkdtemp(folder.p)) {
		e = ERR(UNAVAILABLE, "cannot write beside '%s': %s", to, strerror(errno));
		goto no;
	}
	file = mem_alloc((FILES + 1) * sizeof *file);
	e = ran(argv, folder.p, status);
	struct err *lost = fetch(folder.p, to, file, &n);
	if (e)
		err_free(lost);
	else
		e = lost;
	if (!e && !n && !*status)
		e = ERR(NOT_FOUND, "the program has run nothing on Rondo%s", getenv("JAX_PLATFORMS") ? "" : ": JAX_PLATFORMS=rondo,cpu chooses it");
	if (!e && n) {
		printf("\n");
		e = trace_table(file, n, lines);
		if (e && *status) {               /* the program has said why */
			err_free(e);
			e = NULL;
			n = 0;
		}
		if (!e && n)
			printf("\nui.perfetto.dev opens ");
		for (size_t k = 0; k < n && !e; k++)
			printf("%s%s", file[k], k + 1 < n ? ", " : "\n");
	}
	for (size_t k = 0; file[k]; k++)
		free(file[k]);
	free(file);
no:
	str_free(&folder);
	return e;
}

const struct command cmd_trace = {
	.name = "trace", .args = "[options] SCRIPT.py [its arguments]", .help = "runs a script (or any program, or reads a timeline), says where the time of its steps went",
	.opt = opts, .nopt = NELEM(opts), .nfile_min = 1, .nfile_max = -1, .run = run,
};
