/* Several processes as one world: every kind of bootstrap, devices spread unevenly, and the death of a peer. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "leave.h"
#include "sym/sym.h"

enum { MAXP = 8, BIG = 1 << 20 };
static char dir[64];

/* What the children of one test share.  lone: a process, not the first or last, that maps nobody's memory though the others would. */
struct job { int nproc, ndev[MAXP]; const char *road; uint64_t chaos; int victim, lone; };

static void say(const char *what, struct err *e)
{
	fprintf(stderr, "process %d: %s: %s\n", (int)getpid(), what, e ? e->msg : "wrong");
	_exit(1);
}

struct pe { pthread_t t; struct sym_world *w; int pe, rounds; struct err *err; };

/* Rings and exchanges over every verb with all others; what arrives must be what was sent. */
static void *chat(void *v)
{
	struct pe *d = v;
	struct sym_ep *ep = sym_ep_of(d->w, d->pe);
	int n = sym_npe(d->w), peer[64], npeer = 0;
	struct sym_block *b;
	struct sym_msg m;
	uint64_t buf[1024];
	void *room;

	for (int i = 0; i < n; i++)
		if (i != d->pe)
			peer[npeer++] = i;
	d->err = sym_alloc(sym_heap_of(d->w, d->pe), 64 << 10, "chat", -1, &b);
	for (int r = 0; r < d->rounds && !d->err; r++) {
		struct sym_launch l = { .prog = 7 + (uint32_t)(r & 1), .name = r & 1 ? "odd" : "even", .peer = peer, .npeer = npeer };
		uint64_t *mine = (uint64_t *)(sym_ep_base(ep) + b->off);
		size_t words = 1 + (size_t)r * 37 % 1000, bytes = words * 8;
		sym_begin(ep, &l);
		for (size_t i = 0; i < words; i++)
			mine[i] = (uint64_t)d->pe << 32 | (uint64_t)r << 16 | i;
		for (int k = 0; k < npeer && !d->err; k++)
			d->err = sym_tell(ep, peer[k], 1, SYM_LEND, b->off, bytes);
		for (int k = 0; k < npeer && !d->err; k++) {
			if ((d->err = sym_recv(ep, peer[k], 1, SYM_LEND, &m)))
				break;
			const uint64_t *x = sym_at(ep, peer[k], m.off, m.n, buf);
			for (size_t i = 0; i < words && !d->err; i++)
				if ((m.n != bytes || x[i] != ((uint64_t)peer[k] << 32 | (uint64_t)r << 16 | i)) && !(d->err = sym_check(ep, peer[k], 1, 0)))
					d->err = ERR(INTERNAL, "round %d: word %zu from %d is %llx", r, i, peer[k], (unsigned long long)x[i]);
			sym_return(ep, peer[k], true);
		}
		for (int k = 0; k < npeer && !d->err; k++)
			d->err = sym_settle(ep, &peer[k], 1);
		size_t small = 1 + (size_t)r * 13 % SYM_SLOT;
		for (int k = 0; k < npeer && !d->err; k++)
			if (!(d->err = sym_slot_room(ep, peer[k], small, &room))) {
				memset(room, d->pe + r, small);
				sym_slot_send(ep, peer[k], 2, small);
			}
		for (int k = 0; k < npeer && !d->err; k++) {
			if ((d->err = sym_recv(ep, peer[k], 2, SYM_SLOT_MSG, &m)))
				break;
			for (size_t i = 0; i < small && !d->err; i++)
				if (m.n != small || ((const char *)m.data)[i] != (char)(peer[k] + r))
					d->err = ERR(INTERNAL, "round %d: byte %zu of a slot from %d: %d, %zu of %zu bytes", r, i, peer[k], ((const char *)m.data)[i], m.n, small);
			sym_return(ep, peer[k], false);
		}
		sym_end(ep, d->err);
	}
	sym_free(b);
	return NULL;
}

static void world_open(const struct job *j, int i, struct kv **kv, struct sym_world **w)
{
	char text[80];

	conf_set("PROCESSES", (snprintf(text, sizeof text, "%d", j->nproc), text));
	conf_set("PROCESS", (snprintf(text, sizeof text, "%d", i), text));
	conf_set("TRANSPORT", j->lone && i == j->lone ? "tcp" : j->road);
	struct err *e = sym_boot_env(kv);
	if (e)
		say("boot", e);
	struct sym_opts o = { .nlocal = j->ndev[i], .boot = *kv, .threads = j->ndev[i], .chaos = j->chaos != 0, .seed = j->chaos + (uint64_t)i };
	if ((e = sym_open(&o, w)))
		say("open", e);
}

static void talk(struct sym_world *w, int rounds)
{
	struct pe d[MAXP];
	int n = 0;

	for (int pe = sym_first(w); pe < sym_npe(w) && sym_proc_of(w, pe) == sym_proc(w); pe++, n++) {
		d[n] = (struct pe){ .w = w, .pe = pe, .rounds = rounds };
		pthread_create(&d[n].t, NULL, chat, &d[n]);
	}
	for (int k = 0; k < n; k++) {
		pthread_join(d[k].t, NULL);
		if (d[k].err)
			say("chat", d[k].err);
	}
}

static const char *road_of(const struct job *j) { return j->chaos ? "chaos" : j->lone ? "tcp" : !strcmp(j->road, "tcp") || !strcmp(j->road, "ucx") ? j->road : "shm"; }
static bool far(const struct job *j) { return strcmp(road_of(j), "shm") != 0; }

static void member(const struct job *j, int i)
{
	struct sym_world *w;
	struct kv *kv;
	int all = 0;

	world_open(j, i, &kv, &w);
	for (int k = 0; k < j->nproc; k++)
		for (int x = 0; x < j->ndev[k]; x++, all++)
			if (sym_proc_of(w, all) != k || (k != i && strcmp(sym_road(w, all), road_of(j))))
				say(sym_road(w, all), NULL);
	if (sym_npe(w) != all || sym_nproc(w) != j->nproc)
		say("numbers", NULL);
	talk(w, j->chaos ? 20 : far(j) ? 50 : 200);
	sym_close(w);
	sym_boot_free(kv);
	leave(0);
}

static int run(const struct job *j, void (*fn)(const struct job *, int), int *status)
{
	pid_t pid[MAXP];
	int bad = 0;

	fflush(NULL);
	for (int i = 0; i < j->nproc; i++)
		if (!(pid[i] = fork())) {
			alarm(300);
			fn(j, i);
		}
	for (int i = 0; i < j->nproc; i++) {
		int st;
		assert_int_equal(waitpid(pid[i], &st, 0), pid[i]);
		if (status)
			status[i] = st;
		bad += st != 0;
	}
	return bad;
}

static void fresh_dir(void)
{
	snprintf(dir, sizeof dir, "/tmp/rondo-procs-XXXXXX");
	assert_non_null(mkdtemp(dir));
	conf_set("RENDEZVOUS", dir);
}

static void drop_dir(void)
{
	char cmd[100];

	snprintf(cmd, sizeof cmd, "rm -r %s", dir);
	assert_int_equal(system(cmd), 0);
}

static void shapes(void **state)
{
	static const struct job row[] = {
		{ 2, { 1, 1 }, "auto", 0, -1 }, { 2, { 2, 2 }, "shm", 0, -1 }, { 4, { 1, 1, 1, 1 }, "auto", 0, -1 }, { 3, { 2, 1, 4 }, "auto", 0, -1 },
		{ 2, { 1, 2 }, "auto", 11, -1 }, { 2, { 1, 1 }, "pidfd", 0, -1 },
		{ 2, { 1, 1 }, "tcp", 0, -1 }, { 3, { 2, 1, 2 }, "tcp", 0, -1 }, { 2, { 1, 2 }, "tcp", 13, -1 },
		{ 3, { 1, 1, 2 }, "auto", 0, -1, 1 }, { 4, { 1, 1, 1, 1 }, "auto", 0, -1, 2 },
		{ 2, { 1, 1 }, "ucx", 0, -1 }, { 3, { 2, 1, 2 }, "ucx", 0, -1 }, { 2, { 1, 2 }, "ucx", 12, -1 },
	};
	for (size_t i = 0; i < NELEM(row); i++) {
		struct job j = row[i];
		fresh_dir();
		assert_int_equal(run(&j, member, NULL), 0);
		drop_dir();
	}
}

/* Strangers on the store's port: more than there are descriptors, silent, slow, or talking nonsense, as soon as it is there. */
static void crowd_main(int port)
{
	static const char junk[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n", slow[] = "rondo secre";
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int drip = -1, n = 0;

	for (double t = clock_s(); clock_s() - t < 20;) {
		int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (n > 300 || s < 0 || connect(s, (struct sockaddr *)&a, sizeof a)) {
			if (s >= 0)
				close(s);
			usleep(5000);
			if (drip >= 0)
				send(drip, "x", 1, MSG_NOSIGNAL);
			continue;
		}
		switch (n++ % 4) {
		case 0: break;                                                              /* says nothing */
		case 1: send(s, junk, sizeof junk - 1, MSG_NOSIGNAL); break;
		case 2: send(s, slow, sizeof slow - 1, MSG_NOSIGNAL); drip = s; break;      /* never comes to an end */
		default: setsockopt(s, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 }, sizeof(struct linger)); close(s);
		}
	}
	_exit(0);
}

/* A port that is free, and that no connection out is given meanwhile. */
static int free_port(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	for (int port = 10000 + (int)getpid() % 20000;; port++) {
		int s = socket(AF_INET, SOCK_STREAM, 0);
		a.sin_port = htons((uint16_t)port);
		bool free = !bind(s, (struct sockaddr *)&a, sizeof a);
		close(s);
		if (free)
			return port;
	}
}

static void crowd(void **state)
{
	struct job j = { 3, { 1, 1, 1 }, "auto", 0, -1 };
	struct rlimit had, few = { 120, 120 };
	char at[80];
	int port = free_port(), st;

	snprintf(at, sizeof at, "tcp://127.0.0.1:%d", port);
	conf_set("RENDEZVOUS", at);
	conf_set("TOKEN", "secret");
	fflush(NULL);
	pid_t pid = fork();
	if (!pid)
		crowd_main(port);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &had), 0);
	few.rlim_max = had.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	assert_int_equal(run(&j, member, NULL), 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &had), 0);
	kill(pid, SIGKILL);
	waitpid(pid, &st, 0);
	conf_set("TOKEN", "");
}

/* What answers at the store's address is no store, and silent: an error when the time to join is over. */
static void no_store(void **state)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof a;
	struct str v = { 0 };
	struct kv *kv;
	char at[80];
	int s = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(bind(s, (struct sockaddr *)&a, n), 0);
	assert_int_equal(listen(s, 5), 0);
	assert_int_equal(getsockname(s, (struct sockaddr *)&a, &n), 0);
	snprintf(at, sizeof at, "tcp://127.0.0.1:%d", ntohs(a.sin_port));
	conf_set("RENDEZVOUS", at);
	conf_set("PROCESSES", "2");
	conf_set("PROCESS", "1");
	conf_set("JOIN_TIMEOUT", "1");
	double t = clock_s();
	assert_null(sym_boot_env(&kv));
	struct err *e = kv->get(kv->user, "process/0", 100, &v);
	assert_non_null(e);
	assert_int_equal(e->code, ERR_UNAVAILABLE);
	assert_non_null(strstr(e->msg, "has not answered for 1 s"));
	assert_true(clock_s() - t < 60);
	err_free(e);
	e = kv->put(kv->user, "token", "x", 1);
	assert_non_null(e);
	assert_non_null(strstr(e->msg, "has gone"));      /* it is not asked again */
	err_free(e);
	sym_boot_free(kv);
	close(s);
	conf_set("JOIN_TIMEOUT", "600");
}

static void refused_folder(const struct job *j, int i)
{
	struct sym_world *w;
	struct kv *kv;

	conf_set("PROCESS", i ? "1" : "0");
	struct err *e = sym_boot_env(&kv);
	if (!e)
		e = sym_open(&(struct sym_opts){ .nlocal = 1, .boot = kv, .threads = 1 }, &w);
	if (!e || e->code != ERR_ALREADY_EXISTS || !strstr(e->msg, "a fresh folder for every job"))
		say("a used folder", e);
	_exit(0);
}

/* A folder that an older job has used: whose files are these?  Nobody takes them for the new job's. */
static void twice_in_one_folder(void **state)
{
	struct job j = { 2, { 1, 1 }, "auto", 0, -1 };

	fresh_dir();
	assert_int_equal(run(&j, member, NULL), 0);
	conf_set("PROCESSES", "2");
	conf_set("JOIN_TIMEOUT", "10");
	assert_int_equal(run(&j, refused_folder, NULL), 0);
	conf_set("JOIN_TIMEOUT", "600");
	drop_dir();
}

/* One world after another, and two at the same time, of the same processes. */
static void several_worlds(const struct job *j, int i)
{
	struct sym_world *w[2];
	struct kv *kv[2];

	for (int r = 0; r < 3; r++) {
		for (int k = 0; k < 2; k++)
			world_open(j, i, &kv[k], &w[k]);
		if (i == r)
			usleep(20000);             /* who is late: others come back before it has gone */
		for (int k = 0; k < 2; k++)
			talk(w[k], 2);
		for (int k = 0; k < 2; k++) {
			sym_close(w[k]);
			sym_boot_free(kv[k]);
		}
	}
	_exit(0);
}

static void worlds(void **state)
{
	struct job j = { 3, { 1, 2, 1 }, "auto", 0, -1 };
	char at[40];

	fresh_dir();
	assert_int_equal(run(&j, several_worlds, NULL), 0);
	drop_dir();
	snprintf(at, sizeof at, "tcp://127.0.0.1:%d", free_port());
	conf_set("RENDEZVOUS", at);
	assert_int_equal(run(&j, several_worlds, NULL), 0);
}

/* Process 0 serves the store itself; a stranger with a wrong token and one with garbage are kept out. */
static void over_tcp(void **state)
{
	struct job j = { 3, { 1, 1, 1 }, "auto", 0, -1 };
	struct sym_server *v;
	char at[80];
	int port = 0;

	assert_null(sym_server_new("127.0.0.1", &port, "secret", &v));
	sym_server_free(v);
	port = free_port();
	snprintf(at, sizeof at, "tcp://127.0.0.1:%d", port);
	conf_set("RENDEZVOUS", at);
	conf_set("TOKEN", "secret");
	assert_int_equal(run(&j, member, NULL), 0);

	assert_null(sym_server_new("127.0.0.1", &port, "other", &v));
	conf_set("PROCESSES", "2");
	conf_set("PROCESS", "1");
	struct kv *kv;
	struct str s = { 0 };
	assert_null(sym_boot_env(&kv));
	struct err *e = kv->get(kv->user, "token", 100, &s);
	assert_non_null(e);
	assert_int_equal(e->code, ERR_UNAVAILABLE);
	err_free(e);
	sym_boot_free(kv);
	sym_server_free(v);
	conf_set("TOKEN", "");
}

static void *nothing(void *u) { return u; }

/* A store that is gone has left no thread behind, however many came to it: whoever unloads the library then, or forks (which
 * ThreadSanitizer looks at), does so alone. */
static void nobody_stays(void **state)
{
	for (int k = 0; k < 20; k++) {
		struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
		struct sym_server *v;
		pthread_t t;
		int s[8], port = 0, st;
		assert_null(sym_server_new("127.0.0.1", &port, "secret", &v));
		a.sin_port = htons((uint16_t)port);
		for (size_t i = 0; i < NELEM(s); i++) {
			s[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
			assert_int_equal(connect(s[i], (struct sockaddr *)&a, sizeof a), 0);
			assert_int_equal(send(s[i], "rondo secret\n", 13, MSG_NOSIGNAL), 13);
		}
		for (size_t i = 0; i < NELEM(s) / 2; i++)
			close(s[i]);
		sym_server_free(v);
		fflush(NULL);
		pid_t pid = fork();
		if (!pid)
			_exit(pthread_create(&t, NULL, nothing, NULL) || pthread_join(t, NULL));
		for (size_t i = NELEM(s) / 2; i < NELEM(s); i++)
			close(s[i]);
		assert_int_equal(waitpid(pid, &st, 0), pid);
		assert_int_equal(st, 0);
	}
}

/* Who serves the store knows which processes have ended: nobody waits for one of them, though it never spoke. */
static void ended_before_it_spoke(void **state)
{
	struct sym_server *v;
	struct kv *kv;
	char at[80];
	int port = 0;

	assert_null(sym_server_new("127.0.0.1", &port, "secret", &v));
	snprintf(at, sizeof at, "tcp://127.0.0.1:%d", port);
	conf_set("RENDEZVOUS", at);
	conf_set("TOKEN", "secret");
	conf_set("PROCESSES", "2");
	conf_set("PROCESS", "0");
	assert_null(sym_boot_env(&kv));
	/* As much as a value may be, more than a socket takes at once; a second value is refused; what is not there is late. */
	char *big = mem_new(BIG);
	for (size_t i = 0; i < BIG; i++)
		big[i] = (char)(i * 7 >> 3);
	struct str got = { 0 };
	assert_null(kv->put(kv->user, "big", big, BIG));
	assert_null(kv->get(kv->user, "big", 1000, &got));
	assert_int_equal(got.n, BIG);
	assert_memory_equal(got.p, big, BIG);
	str_free(&got);
	mem_free(big);
	struct err *late = kv->get(kv->user, "absent", 20, &got);
	assert_non_null(late);
	err_free(late);
	assert_null(kv->put(kv->user, "empty", "", 0));
	assert_null(kv->get(kv->user, "empty", 1000, &got));
	assert_int_equal(got.n, 0);
	str_free(&got);
	assert_null(sym_missing(kv, 1));
	sym_server_gone(v, 1);
	sym_server_gone(v, 1);
	struct err *e = sym_missing(kv, 1);
	assert_non_null(e);
	assert_string_equal(e->msg, "process 1 has died before it joined the job");
	err_free(e);
	assert_null(sym_missing(kv, 0));
	sym_boot_free(kv);
	sym_server_free(v);
	conf_set("TOKEN", "");
}

/* What launchers other than ours say of process I of two, and of what else there is. */
static const struct { const char *name, *var[6]; } said[] = {
	{ "Open MPI 4", { "OMPI_COMM_WORLD_RANK=I", "OMPI_COMM_WORLD_SIZE=2", "OMPI_MCA_ess_base_jobid=J", "OMPI_MCA_orte_hnp_uri=J.0;tcp://127.0.0.1,10.0.0.1:5;tcp6://[::1]:6" } },
	{ "Open MPI 5", { "OMPI_COMM_WORLD_RANK=I", "OMPI_COMM_WORLD_SIZE=2", "PMIX_RANK=I", "PMIX_NAMESPACE=prterun-localhost-J@1" } },
	{ "Slurm", { "SLURM_PROCID=I", "SLURM_NTASKS=2", "SLURM_JOB_ID=J.3", "SLURM_STEP_NODELIST=localhos[t-u]" } },
	{ "a step of Slurm", { "SLURM_PROCID=I", "SLURM_NTASKS=2", "SLURM_JOB_ID=J", "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=localhost,x" } },
	{ "another step of it", { "SLURM_PROCID=I", "SLURM_NTASKS=2", "SLURM_JOB_ID=J", "SLURM_STEP_ID=1", "SLURM_STEP_NODELIST=localhost" } },
	{ "Slurm that speaks PMI", { "PMI_RANK=I", "PMI_SIZE=2", "SLURM_PROCID=I", "SLURM_NTASKS=2", "SLURM_JOB_ID=J.2", "SLURM_STEP_NODELIST=localhost" } },
	{ "MPICH", { "PMI_RANK=I", "PMI_SIZE=2", "PMI_ID=I", "RONDO_RENDEZVOUS=tcp://[::1]:P" } },
};

static void say_as(size_t k, int i)
{
	for (size_t v = 0; v < NELEM(said[k].var) && said[k].var[v]; v++) {
		const char *value = strchr(said[k].var[v], '=') + 1;
		struct str name = { 0 }, s = { 0 };
		str_addn(&name, said[k].var[v], (size_t)(value - said[k].var[v]) - 1);
		for (const char *p = value; *p; p++)
			if (*p == 'I')
				str_addf(&s, "%d", i);
			else if (*p == 'J')
				str_addf(&s, "%d", (int)getppid());
			else if (*p == 'P')
				str_addf(&s, "%d", 10000 + (int)getppid() % 22000);
			else
				str_addn(&s, p, 1);
		if (strstr(name.p, "RENDEZVOUS"))
			conf_set("RENDEZVOUS", s.p);
		else
			setenv(name.p, s.p, 1);
		str_free(&name);
		str_free(&s);
	}
}

/* All of these jobs at the same time. */
static void launchers(void **state)
{
	pid_t pid[NELEM(said)][2];
	struct kv *kv;
	int st;

	conf_set("PROCESSES", "0");
	conf_set("PROCESS", "0");
	conf_set("RENDEZVOUS", "");
	conf_set("TRANSPORT", "auto");
	fflush(NULL);
	for (size_t k = 0; k < NELEM(said); k++)
		for (int i = 0; i < 2; i++) {
			if ((pid[k][i] = fork()))
				continue;
			struct sym_world *w = NULL;
			alarm(300);
			say_as(k, i);
			struct err *e = sym_boot_env(&kv);
			if (!e)
				e = sym_open(&(struct sym_opts){ .nlocal = 1, .boot = kv, .threads = 1 }, &w);
			if (e || sym_nproc(w) != 2 || sym_proc(w) != i)
				say(said[k].name, e);
			e = sym_team_sync(sym_team_world(w, i));
			if (e)
				say(said[k].name, e);
			sym_close(w);
			sym_boot_free(kv);
			leave(0);
		}
	for (size_t k = 0; k < NELEM(said); k++)
		for (int i = 0; i < 2; i++) {
			assert_int_equal(waitpid(pid[k][i], &st, 0), pid[k][i]);
			assert_int_equal(st, 0);
		}
	/* A script of Slurm's, outside a step, is one process; what is no number is no process. */
	setenv("SLURM_PROCID", "0", 1);
	setenv("SLURM_NTASKS", "2", 1);
	setenv("SLURM_JOB_ID", "1", 1);
	assert_null(sym_boot_env(&kv));
	assert_null(kv);
	setenv("SLURM_STEP_NODELIST", "localhost", 1);
	setenv("SLURM_NTASKS", "2(x2)", 1);
	struct err *e = sym_boot_env(&kv);
	assert_non_null(e);
	assert_non_null(strstr(e->msg, "Slurm says that this is process '0' of '2(x2)'"));
	err_free(e);
	unsetenv("SLURM_PROCID");
}

/* One process ends in the middle: the others get an error that names it, at once, and can go on without it. */
static _Atomic pid_t *doomed;     /* the victim's: all share it */

/* Waits for its end as any process can, beside the library: when a thread of this process learned of it, ns.  That time has in it
 * how long the kernel took to end the victim and what else ran meanwhile; only what comes after it is the library's. */
static void *watch(void *v)
{
	struct pollfd p = { .fd = (int)syscall(SYS_pidfd_open, atomic_load(doomed), 0), .events = POLLIN };

	if (p.fd >= 0) {
		poll(&p, 1, -1);
		close(p.fd);
	}
	*(uint64_t *)v = clock_ns();
	return NULL;
}

static void with_victim(const struct job *j, int i)
{
	struct sym_world *w;
	struct kv *kv;
	struct pe d[MAXP];
	uint64_t seen;
	pthread_t watcher;
	int n = 0;

	if (i == j->victim)
		atomic_store(doomed, getpid());
	world_open(j, i, &kv, &w);
	talk(w, 20);
	if (i == j->victim) {
		if (j->chaos)              /* in order */
			sym_close(w), leave(0);
		raise(SIGKILL);
	}
	pthread_create(&watcher, NULL, watch, &seen);
	for (int pe = sym_first(w); pe < sym_npe(w) && sym_proc_of(w, pe) == i; pe++, n++) {
		d[n] = (struct pe){ .w = w, .pe = pe, .rounds = 1 };
		pthread_create(&d[n].t, NULL, chat, &d[n]);
	}
	for (int k = 0; k < n; k++) {
		char want[40];
		pthread_join(d[k].t, NULL);
		snprintf(want, sizeof want, "process %d (pid", j->victim);
		if (!d[k].err || !strstr(d[k].err->msg, want) || !strstr(d[k].err->msg, "even"))
			say("no error that names the victim and the program", d[k].err);
		err_free(d[k].err);
	}
	uint64_t now = clock_ns();
	pthread_join(watcher, NULL);
	double late = ((double)now - (double)seen) / 1e9;
	if (late > 15)
		say("the error came late", ERR(INTERNAL, "%.1f s after the death", late));
	sym_close(w);
	sym_boot_free(kv);
	leave(0);
}

static void death(void **state)
{
	static const struct job row[] = { { 2, { 1, 1 }, "auto", 0, 0 }, { 4, { 1, 2, 1, 1 }, "auto", 0, 2 }, { 3, { 1, 1, 1 }, "tcp", 0, 1 }, { 3, { 1, 1, 1 }, "ucx", 0, 1 } };

	doomed = mmap(NULL, sizeof *doomed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(doomed, MAP_FAILED);
	for (size_t i = 0; i < NELEM(row); i++) {
		int st[MAXP];
		fresh_dir();
		assert_int_equal(run(&row[i], with_victim, st), 1);
		assert_true(WIFSIGNALED(st[row[i].victim]));
		drop_dir();
	}
}

/* What is to be read from a process that has died is not there, and the launch says so, though it waits for nothing more; the next one
 * knows nothing of it. */
static void with_lender(const struct job *j, int i)
{
	enum { N = 4096 };
	struct sym_launch l = { .prog = 7, .name = "p", .peer = &(const int){ !i }, .npeer = 1 };
	struct sym_block *b;
	struct sym_world *w;
	struct sym_msg m = { 0 };
	struct kv *kv;
	char got[N], who[40];
	double t = clock_s();

	world_open(j, i, &kv, &w);
	struct sym_ep *ep = sym_ep_of(w, i);
	struct err *e = sym_alloc(sym_heap_of(w, i), N, "lent", -1, &b);
	sym_begin(ep, &l);
	if (i == j->victim) {
		memset(sym_ep_base(ep) + b->off, 5, N);
		if (!e)
			e = sym_tell(ep, !i, 1, SYM_LEND, b->off, N);
		if (!e)
			e = sym_recv(ep, !i, 2, SYM_SLOT_MSG, &m);
		if (e)
			say("the lender", e);
		raise(SIGKILL);
	}
	if (!e)
		e = sym_recv(ep, !i, 1, SYM_LEND, &m);
	if (!e)
		sym_get(ep, !i, got, m.off, N);
	if (!e)
		e = sym_lost(ep);
	for (int k = 0; k < N && !e; k++)
		if (got[k] != 5)
			say("what was lent", NULL);
	if (!e)
		e = sym_slot_put(ep, !i, 2, "now", 3);
	if (e)
		say("before the death", e);
	while (!(e = sym_check(ep, !i, 3, 0)))
		if (clock_s() - t > 100)
			say("nobody has died", NULL);
	err_free(e);
	if ((e = sym_lost(ep)))
		say("nothing was asked for since", e);
	sym_get(ep, !i, got, m.off, N);
	snprintf(who, sizeof who, "process %d (pid", j->victim);
	e = sym_lost(ep);
	if (!e || e->code != ERR_UNAVAILABLE || !strstr(e->msg, who) || !strstr(e->msg, "did not get all data from it"))
		say("no error that names whose data is lost", e);
	sym_end(ep, e);
	err_free(e);
	sym_begin(ep, &(struct sym_launch){ .prog = 8, .name = "q" });
	if ((e = sym_lost(ep)))
		say("the next launch", e);
	sym_end(ep, NULL);
	sym_free(b);
	sym_close(w);
	sym_boot_free(kv);
	leave(0);
}

static void lost(void **state)
{
	static const struct job row[] = { { 2, { 1, 1 }, "tcp", 0, 1 }, { 2, { 1, 1 }, "ucx", 0, 1 } };

	for (size_t i = 0; i < NELEM(row); i++) {
		int st[MAXP];
		fresh_dir();
		assert_int_equal(run(&row[i], with_lender, st), 1);
		assert_true(WIFSIGNALED(st[row[i].victim]));
		drop_dir();
	}
}

/* A process that is stopped for a while is only slow. */
static void stopped(const struct job *j, int i)
{
	struct sym_world *w;
	struct kv *kv;

	world_open(j, i, &kv, &w);
	talk(w, 10);
	if (i == 1 && !fork()) {
		pid_t other = getppid();
		usleep(20000);
		kill(other, SIGSTOP);
		usleep(1500000);
		kill(other, SIGCONT);
		_exit(0);
	}
	talk(w, 3000);
	sym_close(w);
	sym_boot_free(kv);
	leave(0);
}

static void slow(void **state)
{
	struct job j = { 2, { 1, 1 }, "auto", 0, -1 };

	fresh_dir();
	assert_int_equal(run(&j, stopped, NULL), 0);
	drop_dir();
}

/* Somebody else talks to the socket of a process that still waits for its peer: garbage, a wrong token, silence. */
static void strangers(void **state)
{
	struct job j = { 2, { 1, 1 }, "auto", 0, -1 };
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	char path[100], name[64] = "", junk[512];
	pid_t pid[2];
	int s[3], st;

	fresh_dir();
	fflush(NULL);
	if (!(pid[0] = fork()))
		member(&j, 0);
	snprintf(path, sizeof path, "%s/process-0", dir);
	for (int k = 0; k < 500 && !name[0]; k++) {
		FILE *f = fopen(path, "r");
		usleep(10000);
		if (f && fscanf(f, "rondo %*d %*d %*d %*d %*d %*d %*d %*d %*c %63s", name) != 1)
			name[0] = '\0';
		if (f)
			fclose(f);
	}
	assert_true(name[0]);
	memset(junk, 'x', sizeof junk);
	memcpy(a.sun_path + 1, name, strlen(name));
	for (int k = 0; k < 3; k++) {
		s[k] = socket(AF_UNIX, SOCK_SEQPACKET, 0);
		assert_int_equal(connect(s[k], (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))), 0);
		if (k < 2)
			assert_true(send(s[k], junk, k ? 176 : sizeof junk, MSG_NOSIGNAL) > 0);
	}
	assert_int_equal(recv(s[0], junk, sizeof junk, 0), 0);         /* cut off */
	if (!geteuid()) {                 /* another user is cut off at once, and sees no memory of this one */
		fflush(NULL);
		pid_t other = fork();
		if (!other) {
			snprintf(path, sizeof path, "/proc/%d/fd", (int)pid[0]);
			if (setgid(65534) || setuid(65534))
				_exit(2);
			int c = socket(AF_UNIX, SOCK_SEQPACKET, 0);
			bool cut = connect(c, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))) || recv(c, junk, 1, 0) <= 0;
			_exit(cut && access(path, R_OK) && access(dir, R_OK) ? 0 : 3);
		}
		assert_int_equal(waitpid(other, &st, 0), other);
		assert_int_equal(st, 0);
	}
	if (!(pid[1] = fork()))
		member(&j, 1);
	for (int k = 0; k < 2; k++) {
		assert_int_equal(waitpid(pid[k], &st, 0), pid[k]);
		assert_int_equal(st, 0);
	}
	for (int k = 0; k < 3; k++)
		close(s[k]);
	drop_dir();
}

/* One process never comes, or is of a kind that cannot be. */
static void absent(void **state)
{
	struct sym_world *w;
	struct kv *kv;
	struct err *e;

	fresh_dir();
	conf_set("PROCESSES", "2");
	conf_set("PROCESS", "0");
	conf_set("JOIN_TIMEOUT", "1");
	assert_null(sym_boot_env(&kv));
	struct sym_opts o = { .nlocal = 1, .boot = kv, .threads = 1 };
	e = sym_open(&o, &w);
	assert_non_null(e);
	assert_int_equal(e->code, ERR_UNAVAILABLE);
	assert_non_null(strstr(e->msg, "process 1 of 2 has not joined"));
	err_free(e);
	sym_boot_free(kv);
	drop_dir();
	fresh_dir();
	assert_null(sym_boot_env(&kv));
	o.boot = kv;
	assert_null(kv->put(kv->user, "process/1", "rondo 999 1 1 1 1 1 a b c d", 27));
	e = sym_open(&o, &w);
	assert_non_null(e);
	assert_int_equal(e->code, ERR_PRECONDITION);
	err_free(e);
	sym_boot_free(kv);
	conf_set("JOIN_TIMEOUT", "600");
	drop_dir();
	/* One that has said where it is and then dies is not waited for, whether its parent has buried it or not. */
	for (int buried = 0; buried < 2; buried++) {
		double since = clock_s();
		fresh_dir();
		pid_t pid = fork();
		if (!pid) {
			conf_set("PROCESS", "1");
			if (!sym_boot_env(&kv))
				sym_here(kv);
			raise(SIGKILL);
		}
		if (buried)
			assert_int_equal(waitpid(pid, NULL, 0), pid);
		assert_null(sym_boot_env(&kv));
		o.boot = kv;
		e = sym_open(&o, &w);
		assert_non_null(e);
		assert_int_equal(e->code, ERR_UNAVAILABLE);
		assert_non_null(strstr(e->msg, "process 1 (pid "));
		assert_non_null(strstr(e->msg, "has died before it joined the job"));
		assert_true(clock_s() - since < 60);
		err_free(e);
		sym_boot_free(kv);
		drop_dir();
		if (!buried)
			assert_int_equal(waitpid(pid, NULL, 0), pid);
	}
}

/* Does the first process say that it is not over yet?  The others hear of it by a message. */
static bool go_on(struct sym_world *w, double until)
{
	int peer[64], npeer = 0;
	struct sym_ep *ep = sym_ep_of(w, sym_first(w));
	bool more = clock_s() < until;
	struct err *e = NULL;
	struct sym_msg m;

	for (int pe = 1; pe < sym_npe(w) && !sym_proc(w); pe++)
		if (sym_proc_of(w, pe) != sym_proc_of(w, pe - 1))
			peer[npeer++] = pe;
	if (sym_proc(w))
		peer[npeer++] = 0;
	sym_begin(ep, &(struct sym_launch){ .prog = 9, .name = "go on", .peer = peer, .npeer = npeer });
	for (int k = 0; k < npeer && !sym_proc(w) && !e; k++)
		e = sym_slot_put(ep, peer[k], 1, &more, sizeof more);
	if (sym_proc(w) && !(e = sym_recv(ep, 0, 1, SYM_SLOT_MSG, &m))) {
		memcpy(&more, m.data, sizeof more);
		sym_return(ep, 0, false);
	}
	sym_end(ep, e);
	if (e)
		say("go on", e);
	return more;
}

/* As one process of a job that somebody else started: sym_procs member DEVICES ROUNDS [ROAD that must be taken or any
 * [MEGABYTES that each device takes]].  ROUNDS may be a time: 5s. */
static int member_main(int argc, char **argv)
{
	struct sym_world *w;
	struct kv *kv;
	struct err *e = sym_boot_env(&kv);

	if (e)
		say("boot", e);
	struct sym_opts o = { .nlocal = atoi(argv[2]), .boot = kv, .threads = atoi(argv[2]), .chaos = conf_int(CONF_CHAOS) != 0, .seed = (uint64_t)conf_int(CONF_CHAOS) };
	o.limit = cpu_get()->ram / 10 * 9 / MAX(kv ? kv->nprocess : 1, 1);
	if ((e = sym_open(&o, &w)))
		say("open", e);
	for (int pe = 0; pe < sym_npe(w) && argc > 4; pe++)
		if (sym_proc_of(w, pe) != sym_proc(w) && strcmp(argv[4], "any") && strcmp(sym_road(w, pe), argv[4]))
			say(sym_road(w, pe), NULL);
	for (int pe = sym_first(w); pe < sym_first(w) + o.nlocal && argc > 5; pe++) {
		struct sym_block *b;
		size_t n = (size_t)atoi(argv[5]) << 20;
		if ((e = sym_alloc(sym_heap_of(w, pe), n, "the test", -1, &b)))
			say("alloc", e);
		memset(sym_base(sym_heap_of(w, pe)) + b->off, 1, n);
	}
	double t = clock_s();
	printf("joined\n");
	fflush(stdout);
	if (strchr(argv[3], 's'))
		do
			talk(w, 50);
		while (go_on(w, t + atoi(argv[3])));
	else
		talk(w, atoi(argv[3]));
	printf("process %d of %d: %s rounds in %.2f s\n", sym_proc(w), sym_nproc(w), argv[3], clock_s() - t);
	sym_close(w);
	sym_boot_free(kv);
	return 0;
}

/* As one process of such a job: sym_procs parcel FILE MEGABYTES: the first sends as much to the last when there is such a file. */
static int parcel_main(char **argv)
{
	size_t n = (size_t)atoi(argv[3]) << 20;
	struct sym_world *w;
	struct sym_ctx *c;
	struct sym_mem *m;
	struct kv *kv;
	struct err *e = sym_boot_env(&kv);

	if (e)
		say("boot", e);
	if ((e = sym_open(&(struct sym_opts){ .nlocal = 1, .boot = kv, .threads = 1, .limit = cpu_get()->ram / 4 }, &w)))
		say("open", e);
	struct sym_team *t = sym_team_world(w, sym_first(w));
	if ((e = sym_mem_new(t, n, "a parcel", &m)) || (e = sym_ctx_new(w, sym_first(w), SYM_PRIVATE, &c)))
		say("memory", e);
	char *at = sym_mem_at(m);
	printf("joined\n");
	fflush(stdout);
	if (sym_proc(w) == 0) {
		memset(at, 7, n);
		while (access(argv[2], F_OK))
			usleep(5000);
		sym_ctx_put(c, m, 0, at, n, sym_npe(w) - 1);
		if ((e = sym_ctx_quiet(c)))
			say("quiet", e);
	}
	if ((e = sym_team_sync(t)))
		say("sync", e);
	for (size_t i = 0; i < n && sym_first(w) == sym_npe(w) - 1; i++)
		if (at[i] != 7)
			say("what has come", NULL);
	sym_ctx_free(c);
	sym_mem_free(m);
	sym_close(w);
	sym_boot_free(kv);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 3 && !strcmp(argv[1], "member"))
		return member_main(argc, argv);
	if (argc > 3 && !strcmp(argv[1], "parcel"))
		return parcel_main(argv);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(shapes), cmocka_unit_test(over_tcp), cmocka_unit_test(nobody_stays), cmocka_unit_test(ended_before_it_spoke), cmocka_unit_test(death), cmocka_unit_test(lost), cmocka_unit_test(slow), cmocka_unit_test(strangers), cmocka_unit_test(absent),
		cmocka_unit_test(crowd), cmocka_unit_test(no_store), cmocka_unit_test(twice_in_one_folder), cmocka_unit_test(worlds),
		cmocka_unit_test(launchers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
