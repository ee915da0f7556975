/* Running a user's program, which writes into a folder what it did: for `rondo trace` and `rondo explain`. */
#include "tool.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t child;

static void forward(int sig) { kill(child, sig); }

const char *script_python(void)
{
	const char *python = getenv("RONDO_PYTHON");
	return python && *python ? python : "python3";
}

void script_beside(struct str *s, const char *path) { str_addf(s, "%s.XXXXXX", path); }

struct err *script_run(const char *command, const char *more, char **argv, const char *setting, const char *folder, int *status)
{
	ARR(char *) all = {0};
	int st;

	if (!strcmp(argv[0], "-m") && !argv[1])
		return ERR(INVALID, "rondo %s -m needs the name of a module", command);
	if (!args_runs(argv[0]) && access(argv[0], F_OK))
		return ERR(NOT_FOUND, "cannot run '%s': there is no such file, and no such program in PATH", argv[0]);
	if (!args_runs(argv[0]))
		return ERR(INVALID, "rondo %s cannot run '%s': a script's name ends in .py, a program must be executable%s", command, argv[0], more);
	if (args_ends(argv[0], ".py") || !strcmp(argv[0], "-m"))
		arr_push(&all, (char *)script_python());
	do
		arr_push(&all, *argv);
	while (*argv++);
	fflush(stdout);
	pid_t pid = child = fork();
	if (!pid) {
		char *whole = realpath(folder, NULL);          /* the program may go elsewhere */
		setenv(setting, whole ? whole : folder, 1);
		signal(SIGXFSZ, SIG_DFL);
		execvp(all.p[0], all.p);
		fprintf(stderr, "rondo %s: cannot run '%s': %s\n", command, all.p[0], strerror(errno));
		_exit(127);
	}
	arr_free(&all);
	if (pid < 0)
		return ERR(EXHAUSTED, "fork: %s", strerror(errno));
	signal(SIGINT, SIG_IGN);                  /* the terminal tells the program, too, which writes what it has */
	signal(SIGQUIT, SIG_IGN);
	signal(SIGTERM, forward);
	signal(SIGHUP, forward);
	while (waitpid(pid, &st, 0) < 0)
		if (errno != EINTR)
			return ERR(INTERNAL, "waitpid: %s", strerror(errno));
	signal(SIGINT, SIG_DFL);
	signal(SIGQUIT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	signal(SIGHUP, SIG_DFL);
	*status = WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
	if (WIFSIGNALED(st))
		fprintf(stderr, "rondo %s: the program was ended by signal %d (%s)\n", command, WTERMSIG(st), strsignal(WTERMSIG(st)));
	return NULL;
}

struct err *script_output(char *const *argv, struct str *to, int *status)
{
	char buf[1 << 16];
	int fd[2], st;

	if (pipe(fd))
		return ERR(EXHAUSTED, "pipe: %s", strerror(errno));
	fflush(stdout);
	pid_t pid = fork();
	if (!pid) {
		dup2(fd[1], 1);
		close(fd[0]);
		close(fd[1]);
		execvp(argv[0], argv);
		_exit(127);
	}
	close(fd[1]);
	for (ssize_t n; pid > 0 && ((n = read(fd[0], buf, sizeof buf)) > 0 || (n < 0 && errno == EINTR));)
		str_addn(to, buf, (size_t)MAX(n, 0));
	close(fd[0]);
	if (pid < 0)
		return ERR(EXHAUSTED, "fork: %s", strerror(errno));
	while (waitpid(pid, &st, 0) < 0)
		if (errno != EINTR)
			return ERR(INTERNAL, "waitpid: %s", strerror(errno));
	*status = WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
	return NULL;
}

struct err *script_nothing(void)
{
	return ERR(NOT_FOUND, "the program has run nothing on Rondo%s", getenv("JAX_PLATFORMS") ? "" : ": JAX_PLATFORMS=rondo,cpu chooses it");
}
