/* rondo launch: the same program as many processes, which find each other. */
#include "tool.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../sym/sym.h"

static const char *count, *hosts, *agent, *tag, *going;

static const struct opt opts[] = {
	{"n", "N", "processes (1)", &count},
	{"hosts", "LIST", "a,b:4,..: where they run, with slots (1 each unless said); empty: here", &hosts},
	{"agent", "CMD", "how to reach a host (ssh)", &agent},
	{"tag", NULL, "put the process' number before each line it prints", &tag},
	{"keep-going", NULL, "let the others run on when one fails", &going},
};

enum { MAXPROC = 4096, GRACE_MS = 5000 };

struct child { pid_t pid; int out; char line[1024]; size_t n; const char *host; };

/* told: by the terminal, which has told the processes as well; a second time would end what they do about the first. */
static volatile sig_atomic_t caught, told;
static void on_signal(int s, siginfo_t *i, void *context)
{
	caught = s;
	told = i->si_code == SI_KERNEL;
}

/* A port that is free now, for JAX's own coordination service. */
static int free_port(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t n = sizeof a;
	int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 0;

	if (s >= 0 && !bind(s, (struct sockaddr *)&a, sizeof a) && !getsockname(s, (struct sockaddr *)&a, &n))
		port = ntohs(a.sin_port);
	if (s >= 0)
		close(s);
	return port;
}

/* The host of each process: filled slot by slot, then round again. */
static struct err *place(char *list, int n, struct child *c)
{
	const char *name[MAXPROC];
	int nslot = 0;

	for (char *p, *rest = list; (p = strsep(&rest, ","));) {
		char *colon = strchr(p, ':');
		int64_t slots = 1;
		if (!*p || p == colon)
			return ERR(INVALID, "option 'hosts' has a host without a name");
		if (colon) {
			TRY(arg_int("hosts", colon + 1, 1, MAXPROC, &slots));
			*colon = '\0';
		}
		for (int64_t k = 0; k < slots && nslot < MAXPROC; k++)
			name[nslot++] = p;
	}
	if (!nslot)
		return ERR(INVALID, "option 'hosts' names no host");
	for (int i = 0; i < n; i++)
		c[i].host = name[i % nslot];
	return NULL;
}

/* What a host is told besides: these are settings of the job, which an agent need not pass on. */
static bool passed_on(const char *var)
{
	static const char *const name[] = { "RONDO_", "JAX_", "XLA_" };

	for (size_t i = 0; i < NELEM(name); i++)
		if (!strncmp(var, name[i], strlen(name[i])))
			return strchr(var, '=');
	return false;
}

static void quote(struct str *s, const char *word)
{
	str_add(s, "'");
	for (; *word; word++)
		if (*word == '\'')
			str_add(s, "'\\''");
		else
			str_addn(s, word, 1);
	str_add(s, "' ");
}

/* In the child. */
static void become(struct child *c, char **argv)
{
	struct str s = { 0 };

	prctl(PR_SET_PDEATHSIG, SIGKILL);         /* JAX takes SIGTERM for a notice, and nobody would be there to insist */
	signal(SIGXFSZ, SIG_DFL);
	if (!c->host) {
		execvp(argv[0], argv);
		int no = errno;
		bool here = no == ENOENT && !strchr(argv[0], '/') && !access(argv[0], F_OK);
		fprintf(stderr, "rondo launch: cannot run '%s': %s\n", argv[0], here ? "it is in no folder of PATH; what is here is called by ./" : strerror(no));
		_exit(127);
	}
	char dir[4096], *word[] = { (char *)(agent ? agent : "ssh"), (char *)c->host, NULL, NULL };
	str_add(&s, "cd ");
	quote(&s, getcwd(dir, sizeof dir) ? dir : ".");
	str_add(&s, "&& exec env ");
	for (char **v = environ; *v; v++)
		if (passed_on(*v))
			quote(&s, *v);
	for (char **a = argv; *a; a++)
		quote(&s, *a);
	word[2] = s.p;
	execvp(word[0], word);
	fprintf(stderr, "rondo launch: cannot run '%s': %s\n", word[0], strerror(errno));
	_exit(127);
}

static struct err *start(struct child *c, int i, int n, const char *where, const char *token, const char *coordinator, char **argv)
{
	int fd[2] = { -1, -1 };

	if (tag && pipe(fd))
		return ERR(EXHAUSTED, "pipe: %s", strerror(errno));
	c->pid = fork();
	if (c->pid < 0)
		return ERR(EXHAUSTED, "fork: %s", strerror(errno));
	if (!c->pid) {
		if (tag) {
			dup2(fd[1], 1);
			dup2(fd[1], 2);
			close(fd[0]);
			close(fd[1]);
		}
		char number[2][12];
		snprintf(number[0], sizeof number[0], "%d", i);
		snprintf(number[1], sizeof number[1], "%d", n);
		setenv("RONDO_RENDEZVOUS", where, 1);
		setenv("RONDO_PROCESS", number[0], 1);
		setenv("RONDO_PROCESSES", number[1], 1);
		setenv("RONDO_TOKEN", token, 1);
		setenv("JAX_COORDINATOR_ADDRESS", coordinator, 0);
		become(c, argv);
	}
	if (tag)
		close(fd[1]);
	c->out = fd[0];
	return NULL;
}

/* What a child has printed, line by line; false at its end. */
static bool relay(struct child *c, int i)
{
	char buf[4096];
	ssize_t n = read(c->out, buf, sizeof buf);

	for (ssize_t k = 0; k < n; k++) {
		c->line[c->n++] = buf[k];
		if (buf[k] == '\n' || c->n == sizeof c->line - 1) {
			printf("[%d] %.*s%s", i, (int)c->n, c->line, buf[k] == '\n' ? "" : "\n");
			c->n = 0;
		}
	}
	if (n <= 0 && c->n) {
		printf("[%d] %.*s\n", i, (int)c->n, c->line);
		c->n = 0;
	}
	fflush(stdout);
	return n > 0 || (n < 0 && errno == EINTR);
}

static void kill_all(struct child *c, int n, int sig)
{
	for (int i = 0; i < n; i++)
		if (c[i].pid > 0)
			kill(c[i].pid, sig);
}

/* Until all have ended: the first exit status that is not 0, or 128 and the signal. */
static int attend(struct child *c, int n, struct sym_server *server)
{
	struct pollfd f[MAXPROC];
	int left = n, status = 0;
	double since = 0;
	bool killed = false;

	while (left) {
		int st, nf = 0, who[MAXPROC];
		for (int i = 0; i < n; i++)
			if (c[i].out >= 0) {
				f[nf] = (struct pollfd){ c[i].out, POLLIN, 0 };
				who[nf++] = i;
			}
		poll(f, (nfds_t)nf, 20);
		for (int k = 0; k < nf; k++)
			if (f[k].revents && !relay(&c[who[k]], who[k])) {
				close(c[who[k]].out);
				c[who[k]].out = -1;
			}
		for (pid_t p; (p = waitpid(-1, &st, WNOHANG)) > 0;)
			for (int i = 0; i < n; i++) {
				if (c[i].pid != p)
					continue;
				int code = WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
				while (c[i].out >= 0 && relay(&c[i], i)) { }
				if (c[i].out >= 0)
					close(c[i].out);
				c[i].pid = 0;
				c[i].out = -1;
				left--;
				sym_server_gone(server, i);
				if (!code || since)
					continue;
				if (WIFSIGNALED(st))
					fprintf(stderr, "rondo launch: process %d was ended by signal %d (%s)\n", i, WTERMSIG(st), strsignal(WTERMSIG(st)));
				else
					fprintf(stderr, "rondo launch: process %d exited with %d\n", i, code);
				status = status ? status : code;
				if (!going)
					caught = caught ? caught : SIGTERM;
			}
		if (caught && !since) {
			if (!told)
				kill_all(c, n, caught);
			status = status ? status : 128 + caught;
			since = clock_s();
		}
		if (since && !killed && clock_s() - since > GRACE_MS / 1000.) {
			kill_all(c, n, SIGKILL);
			killed = true;
		}
	}
	return status;
}

static struct err *run(char **file, int nfile, int *status)
{
	struct sigaction act = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
	struct child *c = NULL;
	struct sym_server *server = NULL;
	unsigned char raw[16];
	char token[2 * sizeof raw + 1], host[256] = "127.0.0.1", where[300], coordinator[300], *list = NULL;
	int64_t n = 1;
	int port = 0, started = 0;
	struct err *e = NULL;

	TRY(arg_int("n", count, 1, MAXPROC, &n));
	c = mem_alloc((size_t)n * sizeof *c);
	for (int64_t i = 0; i < n; i++)
		c[i].out = -1;
	hosts = hosts && *hosts ? hosts : NULL;
	if (hosts) {
		struct str s = { 0 };
		str_add(&s, hosts);
		list = s.p;
		TRY_GOTO(e, place(list, (int)n, c), out);
		gethostname(host, sizeof host - 1);
	}
	if (getrandom(raw, sizeof raw, 0) != sizeof raw) {
		e = ERR(UNAVAILABLE, "the system gives no random bytes: %s", strerror(errno));
		goto out;
	}
	for (size_t i = 0; i < sizeof raw; i++)
		snprintf(token + 2 * i, 3, "%02x", raw[i]);
	TRY_GOTO(e, sym_server_new(hosts ? "" : host, &port, token, &server), out);
	snprintf(where, sizeof where, "tcp://%s:%d", host, port);
	snprintf(coordinator, sizeof coordinator, "%s:%d", hosts ? c[0].host : host, free_port());
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	sigaction(SIGHUP, &act, NULL);
	for (; started < n && !e; started++)
		e = start(&c[started], started, (int)n, where, token, coordinator, file);
	if (e)
		caught = SIGTERM;
	int st = attend(c, started - (e ? 1 : 0), server);
	*status = st;
out:
	sym_server_free(server);
	free(list);
	free(c);
	return e;
}

const struct command cmd_launch = {
	.name = "launch", .args = "[options] PROGRAM [its arguments]", .help = "runs PROGRAM as processes that find each other",
	.opt = opts, .nopt = NELEM(opts), .nfile_min = 1, .nfile_max = -1, .run = run,
};
