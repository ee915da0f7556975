/* rondo trace: run a program, say where its steps' time went, and leave the timeline. */
#include "tool.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *out, *top;

static const struct opt opts[] = {
	{"out", "FILE", "where the timeline goes, of several processes FILE with a number each (rondo-trace.json)", &out},
	{"top", "N", "lines of each list (10)", &top},
};

/* Processes in the order of their numbers. */
static int by_name(const void *a, const void *b)
{
	const char *x = *(char *const *)a, *y = *(char *const *)b;
	size_t n = strlen(x), k = strlen(y);
	return n != k ? (n > k) - (n < k) : strcmp(x, y);
}

struct files { size_t n, cap; char **p; };

/* The timelines of a folder, which are moved to where they shall be; their names.  The folder is gone then, unless they cannot be moved.
 * *begun: there are some of which nothing was written. */
static struct err *fetch(const char *folder, const char *to, struct files *file, bool *begun)
{
	DIR *d = opendir(folder);
	struct err *e = NULL;
	struct stat st;

	for (struct dirent *i; d && (i = readdir(d));) {
		struct str s = {0};
		str_addf(&s, "%s/%s", folder, i->d_name);
		if (args_ends(i->d_name, ".json") && !stat(s.p, &st) && st.st_size) {
			arr_push(file, s.p);
			continue;
		}
		*begun |= !unlink(s.p);   /* one that was not finished */
		str_free(&s);
	}
	if (d)
		closedir(d);
	if (file->n)
		qsort(file->p, file->n, sizeof *file->p, by_name);
	for (size_t k = 0; k < file->n; k++) {
		struct str s = {0};
		bool one = file->n == 1, of_several = one && conf_int(CONF_PROCESSES) > 1;      /* each of them is run by a command like this */
		if (one && !of_several)
			str_add(&s, to);
		else
			str_addf(&s, "%.*s-%zu.json", (int)(strlen(to) - (args_ends(to, ".json") ? 5 : 0)), to, of_several ? (size_t)conf_int(CONF_PROCESS) : k);
		if (rename(file->p[k], s.p) && !e)
			e = ERR(UNAVAILABLE, "cannot write '%s': %s; what there is stays in '%s'", s.p, strerror(errno), folder);
		free(file->p[k]);
		file->p[k] = s.p;
	}
	rmdir(folder);
	return e;
}

static struct err *run(char **argv, int nfile, int *status)
{
	int64_t lines = 10;
	const char *to = out ? out : "rondo-trace.json";
	struct files file = {0};
	struct stat st;
	struct err *e = NULL;
	bool begun = false;

	TRY(arg_int("top", top, 1, 1000000, &lines));
	if (args_ends(argv[0], ".json"))
		return trace_table(argv, (size_t)nfile, lines);
	if (!stat(to, &st) && S_ISDIR(st.st_mode))
		return ERR(INVALID, "cannot write '%s': it is a folder", to);
	struct str folder = {0};
	script_beside(&folder, to);
	if (!mkdtemp(folder.p)) {
		e = ERR(UNAVAILABLE, "cannot write beside '%s': %s", to, strerror(errno));
		goto no;
	}
	e = script_run("trace", ", the name of a timeline that is to be read ends in .json", argv, "RONDO_TRACE", folder.p, status);
	struct err *lost = fetch(folder.p, to, &file, &begun);
	if (e)
		err_free(lost);
	else
		e = lost;
	const char *none = "ended without writing a timeline: it is written as a process ends by itself, not by a signal or by _exit";
	if (!e && begun && !file.n && !*status)
		e = ERR(NOT_FOUND, "the program has %s", none);
	else if (!e && begun)
		fprintf(stderr, "rondo trace: a process has %s\n", none);
	else if (!e && !file.n && !*status)
		e = script_nothing();
	if (!e && file.n) {
		printf("\n");
		e = trace_table(file.p, file.n, lines);
		for (size_t k = 0; k < file.n && !e; k++)
			printf("%s%s%s", k ? ", " : "\nui.perfetto.dev opens ", file.p[k], k + 1 < file.n ? "" : "\n");
		if (e && *status) {               /* the program has said why */
			err_free(e);
			e = NULL;
		}
	}
	for (size_t k = 0; k < file.n; k++)
		free(file.p[k]);
	arr_free(&file);
no:
	str_free(&folder);
	return e;
}

const struct command cmd_trace = {
	.name = "trace", .args = "[options] SCRIPT.py [its arguments]", .help = "runs a script (or -m MODULE, or any program, or reads a timeline), says where the time of its steps went",
	.opt = opts, .nopt = NELEM(opts), .nfile_min = 1, .nfile_max = -1, .run = run, .module = true,
};
