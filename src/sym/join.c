/* How the processes of a job come to know each other, and hear of each other's end.
 *
 * Every process writes a record into the job's store, and reads all others'.  Whether two processes share a host
 * is tried, not guessed: the one with the higher number connects to the other's socket (a name in the abstract
 * space, so nothing is left behind), both pass the descriptor of their region, map what they got, and compare a
 * nonce in it with what the record said.  Who connects writes into the store whom it reached, so both take the
 * same road.  The socket stays open: its end without a goodbye is the death of the process.
 *
 * Strangers: a socket is served only to processes of the same user that show the job's token, and only until
 * all have come. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "join.h"

enum { HELLO_MS = 10000, HELLO = 0x4f444e52, GOODBYE = 0x21455942 };

static void draw(char out[TOKEN + 1])
{
	unsigned char b[TOKEN / 2];

	if (getrandom(b, sizeof b, 0) != sizeof b)
		abort();                  /* the kernel promises 256 bytes at once */
	for (int i = 0; i < TOKEN / 2; i++)
		snprintf(out + 2 * i, 3, "%02x", b[i]);
}

/* --- the store ----------------------------------------------------------------------- */

static void mask_text(char out[MASK / 4 + 1])
{
	cpu_set_t set;

	CPU_ZERO(&set);
	sched_getaffinity(0, sizeof set, &set);
	for (int i = 0; i < MASK / 4; i++) {
		int v = 0;
		for (int b = 0; b < 4; b++)
			v |= CPU_ISSET(i * 4 + b, &set) ? 1 << b : 0;
		out[i] = "0123456789abcdef"[v];
	}
	out[MASK / 4] = '\0';
}

static struct err *record_read(const char *text, int proc, struct record *r)
{
	if (sscanf(text, "rondo %d %d %d %d %d %d %" SCNd64 " %" SCNd64 " %c %63s %32s %63s %256s", &r->version, &r->npe, &r->pid, &r->threads, &r->cores, &r->barrier,
	           &r->share, &r->said, &r->net, r->sock, r->nonce, r->host, r->mask) != 13 || r->npe < 1 || r->npe > 1 << 16)
		return ERR(PRECONDITION, "what process %d wrote into the job's store is no record of this version of Rondo", proc);
	if (r->version != RONDO_VERSION)
		return ERR(PRECONDITION, "process %d runs version %d of Rondo, this one version %d", proc, r->version, RONDO_VERSION);
	return NULL;
}

/* --- regions ------------------------------------------------------------------------- */

static struct err *send_hello(int s, struct hello *h, int fd)
{
	union { struct cmsghdr h; char b[CMSG_SPACE(sizeof(int))]; } c = { 0 };
	struct iovec v = { h, sizeof *h };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };

	if (fd >= 0) {
		m.msg_control = c.b;
		m.msg_controllen = sizeof c.b;
		struct cmsghdr *p = CMSG_FIRSTHDR(&m);
		p->cmsg_level = SOL_SOCKET;
		p->cmsg_type = SCM_RIGHTS;
		p->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(p), &fd, sizeof fd);
	}
	if (sendmsg(s, &m, MSG_NOSIGNAL) != sizeof *h)
		return ERR(UNAVAILABLE, "sendmsg: %s", strerror(errno));
	return NULL;
}

/* One message; *fd is -1 if none came with it. */
static struct err *recv_hello(int s, struct hello *h, int *fd)
{
	union { struct cmsghdr h; char b[CMSG_SPACE(sizeof(int))]; } c;
	struct iovec v = { h, sizeof *h };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = c.b, .msg_controllen = sizeof c.b };
	ssize_t n = recvmsg(s, &m, MSG_CMSG_CLOEXEC);

	*fd = -1;
	for (struct cmsghdr *p = n > 0 ? CMSG_FIRSTHDR(&m) : NULL; p; p = CMSG_NXTHDR(&m, p))
		if (p->cmsg_level == SOL_SOCKET && p->cmsg_type == SCM_RIGHTS)
			memcpy(fd, CMSG_DATA(p), sizeof *fd);
	if (n == sizeof *h && h->magic == HELLO) {
		h->token[TOKEN] = h->nonce[TOKEN] = '\0';
		return NULL;
	}
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	return ERR(UNAVAILABLE, n < 0 ? "recvmsg: %s" : n ? "not a greeting" : "closed", strerror(errno));
}

/* Map what the other side showed; false if that cannot be done or is not what it said it is. */
static bool map_region(struct sym_process *p, const struct hello *h, int fd, int pidfd)
{
	if (fd < 0 && pidfd >= 0)
		fd = (int)syscall(SYS_pidfd_getfd, pidfd, h->fd, 0);
	if (fd < 0)
		return false;
	char *b = h->each > 0 && h->n > 0 && h->each <= ((uint64_t)1 << 46) / (uint64_t)h->n
	        ? mmap(NULL, h->each * (uint64_t)h->n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0) : MAP_FAILED;
	close(fd);
	if (b == MAP_FAILED)
		return false;
	p->region = (struct sym_region){ b, h->each, h->n, -1 };
	madvise(b, h->each * (uint64_t)h->n, MADV_DONTDUMP);
	madvise(b, h->each * (uint64_t)h->n, MADV_HUGEPAGE);
	if (!memcmp(((struct sym_control *)b)->nonce, h->nonce, TOKEN))
		return true;
	sym_region_free(&p->region);
	return false;
}

static int pidfd_of(int s)
{
	struct ucred u;
	socklen_t n = sizeof u;

	return getsockopt(s, SOL_SOCKET, SO_PEERCRED, &u, &n) ? -1 : (int)syscall(SYS_pidfd_open, u.pid, 0);
}

static bool same_user(int s)
{
	struct ucred u;
	socklen_t n = sizeof u;

	return !getsockopt(s, SOL_SOCKET, SO_PEERCRED, &u, &n) && u.uid == geteuid();
}

/* The other process is linked by s: its end will be seen. */
static void linked(struct sym_world *w, int proc, int s, int pidfd)
{
	struct join *j = w->join;

	pthread_mutex_lock(&j->lock);
	w->process[proc].pidfd = pidfd;
	w->process[proc].fd = s;
	pthread_cond_broadcast(&j->cond);
	pthread_mutex_unlock(&j->lock);
	eventfd_write(j->stop, 1);        /* look at one more descriptor */
}

/* Connect to a process with a lower number.  *reached: both have mapped each other. */
static struct err *greet(struct sym_world *w, int proc, bool *reached)
{
	struct join *j = w->join;
	struct sym_process *p = &w->process[proc];
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct timeval limit = { HELLO_MS / 1000, 0 };
	struct hello mine = j->mine, its;
	struct err *e = NULL;
	int fd = -1, pidfd = -1;

	*reached = false;
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (s < 0)
		return ERR(EXHAUSTED, "socket: %s", strerror(errno));
	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	size_t n = strnlen(j->rec[proc].sock, sizeof a.sun_path - 1);
	memcpy(a.sun_path + 1, j->rec[proc].sock, n);
	if (connect(s, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)) || !same_user(s))
		goto out;                 /* another host, another network namespace, another user */
	TRY_GOTO(e, send_hello(s, &mine, j->pass ? w->region.fd : -1), out);
	TRY_GOTO(e, recv_hello(s, &its, &fd), out);
	if (its.proc != proc || strcmp(its.token, j->token) || strcmp(its.nonce, j->rec[proc].nonce)) {
		if (fd >= 0)
			close(fd);
		goto out;
	}
	pidfd = pidfd_of(s);
	mine.ok = map_region(p, &its, fd, pidfd);
	TRY_GOTO(e, send_hello(s, &mine, -1), out);
	*reached = mine.ok && its.ok;
out:
	if (e) {                          /* it may be gone, or a stranger: not reached by this road */
		log_line(LOG_INFO, "process %d cannot greet process %d: %s", w->proc, proc, e->msg);
		err_free(e);
	}
	if (*reached) {
		linked(w, proc, s, pidfd);
		return NULL;
	}
	sym_region_free(&p->region);
	if (pidfd >= 0)
		close(pidfd);
	close(s);
	return NULL;
}

/* --- the watcher -------------------------------------------------------------------------- */

static void pending_drop(struct join *j, int i)
{
	close(j->pending[i].fd);
	j->pending[i] = j->pending[--j->npending];
}

/* A message on a socket that was accepted. */
static void pending_read(struct sym_world *w, int i)
{
	struct join *j = w->join;
	struct hello its, mine = j->mine;
	int fd, s = j->pending[i].fd, proc = j->pending[i].proc;
	struct err *e = recv_hello(s, &its, &fd);

	if (e || strcmp(its.token, j->token) || its.version != RONDO_VERSION || its.proc <= w->proc || its.proc >= w->nproc ||
	    (proc >= 0 && proc != its.proc) || (proc < 0 && w->process[its.proc].fd >= 0)) {
		log_line(LOG_INFO, "process %d: a stranger on the job's socket: %s", w->proc, e ? e->msg : "wrong token, version or number");
		err_free(e);
		if (fd >= 0)
			close(fd);
		if (proc >= 0)
			sym_region_free(&w->process[proc].region);
		pending_drop(j, i);
		return;
	}
	struct sym_process *p = &w->process[its.proc];
	if (proc < 0) {                   /* the greeting */
		int pidfd = pidfd_of(s);
		if (p->region.base)
			sym_region_free(&p->region);
		mine.ok = j->pending[i].maps = map_region(p, &its, fd, pidfd);
		if (pidfd >= 0)
			close(pidfd);
		j->pending[i].proc = its.proc;
		if ((e = send_hello(s, &mine, j->pass ? w->region.fd : -1))) {
			err_free(e);
			pending_drop(j, i);
		}
		return;
	}
	if (fd >= 0)
		close(fd);
	if (its.ok && j->pending[i].maps) {
		linked(w, proc, s, pidfd_of(s));
		j->pending[i] = j->pending[--j->npending];
	} else {
		sym_region_free(&p->region);
		pending_drop(j, i);
	}
}

static void *watch(void *v)
{
	struct sym_world *w = v;
	struct join *j = w->join;
	struct pollfd *f = j->poll;
	int *who = j->polled;

	for (;;) {
		int n = 0;
		pthread_mutex_lock(&j->lock);
		f[n] = (struct pollfd){ j->stop, POLLIN, 0 };
		who[n++] = -1;
		f[n] = (struct pollfd){ j->npending < PENDING ? j->listen : -1, POLLIN, 0 };
		who[n++] = -1;
		int base = n;
		for (int i = 0; i < j->npending; i++, n++)
			f[n] = (struct pollfd){ j->pending[i].fd, POLLIN, 0 };
		int npending = j->npending;
		for (int k = 0; k < w->nproc; k++)
			if (w->process[k].fd >= 0 && atomic_load(&w->process[k].life) == SYM_HERE) {
				f[n] = (struct pollfd){ w->process[k].fd, POLLIN, 0 };
				who[n++] = k;
				f[n] = (struct pollfd){ w->process[k].pidfd, POLLIN, 0 };
				who[n++] = k;
			}
		pthread_mutex_unlock(&j->lock);
		poll(f, (nfds_t)n, npending ? 1000 : -1);
		if (f[0].revents) {
			eventfd_t x;
			eventfd_read(j->stop, &x);
			if (x >= 1u << 20)
				break;
		}
		for (int i = base + npending; i < n; i++)
			if (f[i].revents && f[i].fd == w->process[who[i]].fd) {
				uint32_t word = 0;
				ssize_t got = recv(f[i].fd, &word, sizeof word, MSG_DONTWAIT);
				if (got < 0 && (errno == EAGAIN || errno == EINTR))
					continue;
				sym_gone(w, who[i], got == sizeof word && word == GOODBYE ? SYM_LEFT : SYM_DEAD);
			}
		for (int i = base + npending; i < n; i++)
			if (f[i].revents && f[i].fd == w->process[who[i]].pidfd)
				sym_gone(w, who[i], SYM_DEAD);
		for (int i = npending; i-- > 0;)      /* from the end: dropping one moves the last */
			if (f[base + i].revents)
				pending_read(w, i);
			else if (clock_s() - j->pending[i].since > HELLO_MS / 1000.)
				pending_drop(j, i);
		if (f[1].revents & POLLIN) {
			pthread_mutex_lock(&j->lock);     /* once all have come it is closed, and its number may be another's */
			int s = j->listen >= 0 ? accept4(j->listen, NULL, NULL, SOCK_CLOEXEC) : -1;
			pthread_mutex_unlock(&j->lock);
			if (s >= 0 && same_user(s)) {
				j->pending[j->npending].fd = s;
				j->pending[j->npending].proc = -1;
				j->pending[j->npending].maps = false;
				j->pending[j->npending++].since = clock_s();
			} else if (s >= 0)
				close(s);
		}
	}
	return NULL;
}

/* --- joining ---------------------------------------------------------------------------------- */

static struct err *listen_on(struct join *j, char name[TOKEN + 1])
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	draw(name);
	memcpy(a.sun_path + 1, "rondo-", 6);
	memcpy(a.sun_path + 7, name, TOKEN);
	j->listen = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (j->listen < 0 || bind(j->listen, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 7 + TOKEN)) || listen(j->listen, 1024))
		return ERR(EXHAUSTED, "cannot open a socket for the other processes: %s", strerror(errno));
	return NULL;
}

/* Are there more threads on this host than cores that they may use? */
static bool crowded(struct sym_world *w)
{
	struct join *j = w->join;
	char mask[MASK / 4 + 1];
	int threads = 0, cores = 0, most = 0;

	memset(mask, 0, sizeof mask);
	for (int k = 0; k < w->nproc; k++) {
		if (k != w->proc && !w->process[k].region.base)
			continue;
		threads += j->rec[k].threads;
		most += j->rec[k].cores;
		for (int i = 0; i < MASK / 4; i++) {
			char c = j->rec[k].mask[i];
			mask[i] |= (char)(c <= '9' ? c - '0' : c - 'a' + 10);
		}
	}
	for (int i = 0; i < MASK / 4; i++)
		cores += __builtin_popcount((unsigned)mask[i]);
	return threads > MIN(cores, most);
}

/* What is known of the PEs of a process; mapped: loads and stores are to reach them. */
static void peers(struct sym_world *w, int proc, bool mapped)
{
	const struct sym_process *p = &w->process[proc];
	const struct sym_region *r = proc == w->proc ? &w->region : &p->region;

	for (int i = 0; i < p->npe; i++)
		w->peer[p->first + i] = (struct sym_peer){ r->base ? r->base + (size_t)i * r->each : NULL, mapped && r->base, proc, 0 };
}

/* row[a * n + b], b < a: process a has reached b.  All must see the same groups of processes that map each other: group[a], the first
 * that a maps.  Are there three of which only one maps the others?  All find the same three, and each process is a group of its own. */
static bool in_pieces(const char *row, int n, int *group, int three[3])
{
	bool found = false;

	for (int a = 0; a < n && !found; a++) {
		group[a] = a;
		for (int b = a; b-- > 0;)
			group[a] = row[a * n + b] ? b : group[a];
		for (int b = 0; b < a && !found; b++)
			if ((found = row[a * n + b] != (group[a] == group[b])))
				three[0] = MIN(group[a], group[b]), three[1] = b, three[2] = a;
	}
	for (int a = 0; a < n && found; a++)
		group[a] = a;
	return found;
}

/* --- the road between hosts ----------------------------------------------------------------- */

/* What a process says of it: the setting names it, or does not and there is, or is not, a network that UCX knows better. */
enum net { NET_TCP = 't', NET_UCX = 'u', NET_FABRIC = 'f', NET_PLAIN = 'p' };

/* Is no memory to be mapped, whoever is on this host? */
static bool apart(const char *road) { return !strcmp(road, "tcp") || !strcmp(road, "ucx"); }

static char net_here(const char *road)
{
	const char *net = apart(road) ? road : conf_str(CONF_NET);

	return !strcmp(net, "tcp") ? NET_TCP : !strcmp(net, "ucx") ? NET_UCX : sym_ucx_fabric() ? NET_FABRIC : NET_PLAIN;
}

/* The same on all processes, for all have the same records: what a setting says anywhere; else UCX if all have a fabric. */
static struct err *net_of_all(const struct sym_world *w, bool *ucx)
{
	int tcp = -1, named = -1, fabric = 0;

	for (int k = 0; k < w->nproc; k++) {
		char net = w->join->rec[k].net;
		tcp = net == NET_TCP ? k : tcp;
		named = net == NET_UCX ? k : named;
		fabric += net == NET_FABRIC;
	}
	if (tcp >= 0 && named >= 0)
		return ERR(INVALID, "process %d is told to use tcp between hosts, process %d ucx (RONDO_NET, RONDO_TRANSPORT)", tcp, named);
	*ucx = named >= 0 || (tcp < 0 && fabric == w->nproc);
	return NULL;
}

/* One joining: what its steps hand on. */
struct joining {
	struct sym_world *w;
	const struct kv *kv;
	const char *road;       /* RONDO_TRANSPORT */
	double until;
	struct record me;
	char sock[TOKEN + 1];   /* where this process listens */
	char *row;              /* [i][k], k < i: process i reached k */
	bool *far;              /* over the network */
	int *group;             /* of each process: those who map each other */
};

/* Of another process, or of this one. */
static struct err *fetch(const struct joining *g, const char *what, int k, struct str *s)
{
	char key[32];

	str_free(s);
	snprintf(key, sizeof key, "%s/%d", what, k);
	return sym_fetch(g->w, g->kv, key, k, g->until, s);
}

/* Process 0 draws the job's token, the others learn it. */
static struct err *agree_token(struct joining *g)
{
	struct join *j = g->w->join;
	struct str s = { 0 };

	if (g->w->proc == 0) {
		draw(j->token);
		return sym_claim(g->kv, "token", j->token, TOKEN);
	}
	struct err *e = sym_fetch(g->w, g->kv, "token", 0, g->until, &s);
	if (!e)
		snprintf(j->token, sizeof j->token, "%s", s.p);
	str_free(&s);
	return e;
}

/* The token, then the watcher, then the record: whoever reads it may connect at once. */
static struct err *announce(struct joining *g)
{
	struct sym_world *w = g->w;
	struct join *j = w->join;
	struct record *me = &g->me;
	struct str s = { 0 };
	char key[32];

	draw(me->nonce);
	memcpy(((struct sym_control *)w->region.base)->nonce, me->nonce, TOKEN);
	TRY(agree_token(g));
	j->mine = (struct hello){ HELLO, RONDO_VERSION, w->proc, getpid(), w->region.fd, w->nlocal, w->region.each, "", "", 0 };
	memcpy(j->mine.token, j->token, sizeof j->token);
	memcpy(j->mine.nonce, me->nonce, sizeof me->nonce);
	int r = pthread_create(&j->thread, NULL, watch, w);
	if (r)
		return ERR(EXHAUSTED, "cannot start a thread: %s", strerror(r));
	j->started = true;
	mask_text(me->mask);
	if (gethostname(me->host, sizeof me->host - 1) || !me->host[0])
		snprintf(me->host, sizeof me->host, "unknown");
	str_addf(&s, "rondo %d %d %d %d %d %d %" PRId64 " %" PRId64 " %c rondo-%s %s %s %s", me->version, me->npe, me->pid, me->threads, me->cores, me->barrier, me->share, me->said, me->net, g->sock,
	         me->nonce, me->host, me->mask);
	snprintf(key, sizeof key, "process/%d", w->proc);
	struct err *e = sym_claim(g->kv, key, s.p, s.n);
	str_free(&s);
	return e;
}

/* Who the others are; from then on the network may bring something for the PEs of this process. */
static struct err *learn(struct joining *g)
{
	struct sym_world *w = g->w;
	struct join *j = w->join;
	struct str s = { 0 };
	struct err *e = NULL;

	for (int k = 0; k < w->nproc; k++) {
		struct sym_process *p = &w->process[k];
		TRY_GOTO(e, fetch(g, "process", k, &s), out);
		TRY_GOTO(e, record_read(s.p, k, &j->rec[k]), out);
		pthread_mutex_lock(&j->lock);
		p->first = w->npe;
		p->npe = j->rec[k].npe;
		p->pid = j->rec[k].pid;
		snprintf(p->host, sizeof p->host, "%s", j->rec[k].host);
		pthread_mutex_unlock(&j->lock);
		w->npe += p->npe;
		w->fence |= !j->rec[k].barrier;
		w->share = MIN(w->share, j->rec[k].share);
		w->said = MIN(w->said, j->rec[k].said);
	}
	w->first = w->process[w->proc].first;
	w->peer = mem_alloc((size_t)w->npe * sizeof *w->peer);
	peers(w, w->proc, true);
	atomic_store(&j->joined, true);
out:
	str_free(&s);
	return e;
}

/* Until process k, which says that it reached this one, has said hello here too. */
static struct err *greeted(struct joining *g, int k)
{
	struct join *j = g->w->join;
	struct sym_coming coming = { 0 };
	struct err *e = NULL;

	pthread_mutex_lock(&j->lock);
	while (g->w->process[k].fd < 0 && !e) {
		struct timespec t;
		clock_gettime(CLOCK_MONOTONIC, &t);
		int64_t ns = t.tv_nsec + (int64_t)sym_slice(&coming, g->until) * 1000000;
		t.tv_sec += ns / 1000000000;
		t.tv_nsec = ns % 1000000000;
		if (!pthread_cond_clockwait(&j->cond, &j->lock, CLOCK_MONOTONIC, &t))
			continue;
		pthread_mutex_unlock(&j->lock);
		e = sym_joins(g->w, g->kv, k, g->until, &coming);
		pthread_mutex_lock(&j->lock);
	}
	bool done = g->w->process[k].fd >= 0;
	pthread_mutex_unlock(&j->lock);
	if (done)                             /* it may have ended after that */
		err_free(e);
	return done ? NULL : e;
}

/* Each process tries to map those before it, and all learn who reached whom. */
static struct err *map_others(struct joining *g)
{
	struct sym_world *w = g->w;
	int n = w->nproc, me = w->proc;
	struct str s = { 0 };
	struct err *e = NULL;
	char key[32];

	for (int k = 0; k < me && !apart(g->road); k++) {
		bool reached = false;
		TRY(greet(w, k, &reached));
		g->row[me * n + k] = reached;
	}
	for (int k = 0; k < n; k++)
		str_addf(&s, "%d", g->row[me * n + k]);
	snprintf(key, sizeof key, "reached/%d", me);
	TRY_GOTO(e, g->kv->put(g->kv->user, key, s.p, s.n), out);
	for (int k = 0; k < n; k++) {
		if (k == me)
			continue;
		TRY_GOTO(e, fetch(g, "reached", k, &s), out);
		for (int i = 0; i < k && i < (int)s.n; i++)
			g->row[k * n + i] = s.p[i] == '1';
		if (k > me && g->row[k * n + me])
			TRY_GOTO(e, greeted(g, k), out);
	}
out:
	str_free(&s);
	return e;
}

/* Whom this process does not map, it reaches over the network, which all choose alike. */
static struct err *choose_roads(struct joining *g)
{
	struct sym_world *w = g->w;
	bool any = false, ucx = false;
	int three[3];
	bool pieces = in_pieces(g->row, w->nproc, g->group, three);

	if (pieces && !w->proc)
		log_line(LOG_WARN, "processes %d, %d and %d do not all map each other's memory: every process of the job uses the network for all others", three[0], three[1], three[2]);
	for (int k = 0; k < w->nproc; k++)
		any |= g->far[k] = k != w->proc && (pieces || w->process[k].fd < 0);
	if (any && (!strcmp(g->road, "shm") || !strcmp(g->road, "pidfd")))
		return ERR(UNAVAILABLE, "process %d on host '%s' cannot map the memory of all others, and RONDO_TRANSPORT is '%s'", w->proc, g->me.host, g->road);
	if (any) {
		TRY(net_of_all(w, &ucx));
		TRY((ucx ? sym_ucx_open : sym_tcp_open)(w, g->kv, w->join->token, g->far, g->until));
	}
	for (int k = 0; k < w->nproc; k++)
		if (k != w->proc)
			peers(w, k, !g->far[k]);
	for (int pe = 0; pe < w->npe; pe++)
		w->peer[pe].host = g->group[w->peer[pe].proc];
	return NULL;
}

static struct err *join_job(struct joining *g)
{
	struct sym_world *w = g->w;
	struct join *j = w->join;

	sym_here(g->kv);
	g->me.net = net_here(g->road);
	j->pass = strcmp(g->road, "pidfd") != 0;
	if (!j->pass)
		prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	j->stop = eventfd(0, EFD_CLOEXEC);
	TRY(listen_on(j, g->sock));
	TRY(announce(g));
	TRY(learn(g));
	TRY(map_others(g));
	w->spins = sym_spins(crowded(w) ? INT_MAX : 0);
	TRY(choose_roads(g));
	/* All have come: nobody else is let in. */
	pthread_mutex_lock(&j->lock);
	close(j->listen);
	j->listen = -1;
	pthread_mutex_unlock(&j->lock);
	return NULL;
}

struct err *sym_join(struct sym_world *w, const struct kv *kv)
{
	size_t n = (size_t)kv->nprocess;
	struct joining g = { .w = w, .kv = kv, .road = conf_str(CONF_TRANSPORT), .until = clock_s() + (double)conf_int(CONF_JOIN_TIMEOUT),
	                     .me = { RONDO_VERSION, w->nlocal, getpid(), w->threads, cpu_get()->cores, !w->fence, w->share, w->said, NET_PLAIN, "", "", "", "" },
	                     .row = mem_alloc(n * n), .far = mem_alloc(n * sizeof *g.far), .group = mem_alloc(n * sizeof *g.group) };
	struct join *j = mem_alloc(sizeof *j);

	w->process = mem_alloc(n * sizeof *w->process);
	j->rec = mem_alloc(n * sizeof *j->rec);
	j->poll = mem_alloc((2 + PENDING + 2 * n) * sizeof *j->poll);
	j->polled = mem_alloc((2 + PENDING + 2 * n) * sizeof *j->polled);
	w->shared = true;
	w->nproc = kv->nprocess;
	w->proc = kv->process;
	w->join = j;
	j->listen = j->stop = -1;
	pthread_mutex_init(&j->lock, NULL);
	pthread_cond_init(&j->cond, NULL);
	for (int k = 0; k < w->nproc; k++)
		w->process[k].fd = w->process[k].pidfd = w->process[k].region.fd = -1;
	struct err *e = join_job(&g);
	free(g.row);
	free(g.far);
	free(g.group);
	return e;
}

void sym_part(struct sym_world *w)
{
	struct join *j = w->join;
	uint32_t bye = GOODBYE;

	if (!j)
		return;
	if (j->started) {
		eventfd_write(j->stop, 1u << 20);
		pthread_join(j->thread, NULL);
	}
	for (int k = 0; k < w->nproc; k++) {
		struct sym_process *p = &w->process[k];
		if (p->fd >= 0) {
			send(p->fd, &bye, sizeof bye, MSG_NOSIGNAL | MSG_DONTWAIT);
			close(p->fd);
		}
		if (p->pidfd >= 0)
			close(p->pidfd);
		if (k != w->proc)
			sym_region_free(&p->region);
	}
	while (j->npending)
		pending_drop(j, 0);
	if (j->listen >= 0)
		close(j->listen);
	if (j->stop >= 0)
		close(j->stop);
	pthread_mutex_destroy(&j->lock);
	pthread_cond_destroy(&j->cond);
	free(j->rec);
	free(j->poll);
	free(j->polled);
	free(j);
	w->join = NULL;
}
