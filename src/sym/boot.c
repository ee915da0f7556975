/* Stores for processes that JAX does not start: a server on a socket, or files in a folder.
 *
 * The server speaks lines: the client shows "rondo <token>", then "put <key> <n>" and n bytes (answer "ok" or
 * "exists"), or "get <key> <ms>" (answer "value <n>" and n bytes, or "late").  One thread a connection; whoever
 * does not show the token within a few seconds is cut off, earlier if many others wait to be heard: strangers may not
 * take the descriptors that the process needs itself. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "impl.h"

enum { KEY = 128, VALUE = 1 << 20, GREET_S = 5, CLIENTS = 4096, UNHEARD = 32, UNHEARD_MS = 200, RETRY_MS = 20, STATUS_S = 20 };

static char *text_copy(const char *s)
{
	size_t n = strlen(s) + 1;

	return memcpy(mem_alloc(n), s, n);
}

/* --- lines over a socket ---------------------------------------------------------------- */

/* All n bytes, one way or the other. */
static bool carry(int s, char *p, size_t n, ssize_t (*some)(int, char *, size_t))
{
	for (size_t k = 0; k < n;) {
		ssize_t r = some(s, p + k, n - k);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			return false;
		k += (size_t)r;
	}
	return true;
}

static ssize_t send_some(int s, char *p, size_t n) { return send(s, p, n, MSG_NOSIGNAL); }
static ssize_t recv_some(int s, char *p, size_t n) { return recv(s, p, n, 0); }
static bool send_all(int s, const void *p, size_t n) { return carry(s, (char *)(uintptr_t)p, n, send_some); }
static bool recv_all(int s, void *p, size_t n) { return carry(s, p, n, recv_some); }

/* A line of less than n bytes, without its end, that has come by the time until (0: whenever it comes). */
static bool recv_line(int s, char *out, size_t n, double until)
{
	for (size_t k = 0; k + 1 < n; k++) {
		struct pollfd f = { s, POLLIN, 0 };
		if (until && poll(&f, 1, (int)(MAX(until - clock_s(), 0) * 1000)) <= 0)
			return false;
		if (!recv_all(s, out + k, 1))
			return false;
		if (out[k] == '\n') {
			out[k] = '\0';
			return true;
		}
	}
	return false;
}

static void limit_waits(int s, double seconds)
{
	struct timeval t = { (time_t)MAX(seconds, 1), 0 };

	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
	setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);    /* of connect as well */
}

/* --- the server ---------------------------------------------------------------------------- */

struct pair { struct pair *next; char key[KEY]; size_t n; char value[]; };

struct sym_server {
	int fd;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond;              /* a key was put, a client left */
	struct pair *all;
	char *token;
	struct { int fd; bool heard; double since; } *client;     /* in the order in which they came; heard: has shown the token */
	int nclient;
	unsigned strangers;               /* so far */
	bool stop;
};

static struct pair *find(struct sym_server *v, const char *key)
{
	struct pair *p = v->all;

	while (p && strcmp(p->key, key))
		p = p->next;
	return p;
}

static bool serve_put(struct sym_server *v, int s, const char *key, size_t n)
{
	struct pair *p = mem_grow(NULL, sizeof *p + n);

	if (!recv_all(s, p->value, n)) {
		free(p);
		return false;
	}
	snprintf(p->key, sizeof p->key, "%s", key);
	p->n = n;
	pthread_mutex_lock(&v->lock);
	bool old = find(v, key);
	if (!old) {
		p->next = v->all;
		v->all = p;
		pthread_cond_broadcast(&v->cond);
	}
	pthread_mutex_unlock(&v->lock);
	if (old)
		free(p);
	return old ? send_all(s, "exists\n", 7) : send_all(s, "ok\n", 3);
}

void sym_server_gone(struct sym_server *v, int process)
{
	struct pair *p = mem_grow(NULL, sizeof *p);

	snprintf(p->key, sizeof p->key, "gone/%d", process);
	p->n = 0;
	pthread_mutex_lock(&v->lock);
	if (find(v, p->key)) {
		free(p);
	} else {
		p->next = v->all;
		v->all = p;
		pthread_cond_broadcast(&v->cond);
	}
	pthread_mutex_unlock(&v->lock);
}

static bool serve_get(struct sym_server *v, int s, const char *key, int ms)
{
	struct timespec until;
	struct pair *p;
	char line[40];

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += ms / 1000;
	until.tv_nsec += (long)(ms % 1000) * 1000000;
	if (until.tv_nsec >= 1000000000)
		until.tv_sec++, until.tv_nsec -= 1000000000;
	pthread_mutex_lock(&v->lock);
	while (!(p = find(v, key)) && !v->stop && pthread_cond_clockwait(&v->cond, &v->lock, CLOCK_MONOTONIC, &until) != ETIMEDOUT) { }
	pthread_mutex_unlock(&v->lock);
	if (!p)
		return send_all(s, "late\n", 5);
	snprintf(line, sizeof line, "value %zu\n", p->n);
	return send_all(s, line, strlen(line)) && send_all(s, p->value, p->n);     /* pairs stay while the server lives */
}

struct client { struct sym_server *v; int fd; };

/* Under the lock. */
static void forget(struct sym_server *v, int fd)
{
	for (int i = 0; i < v->nclient; i++)
		if (v->client[i].fd == fd) {
			memmove(v->client + i, v->client + i + 1, (size_t)(--v->nclient - i) * sizeof *v->client);
			break;
		}
	close(fd);
}

static void *client_main(void *u)
{
	struct client *c = u;
	struct sym_server *v = c->v;
	char line[KEY + 64], key[KEY], want[KEY + 64];
	long long n;
	int s = c->fd;

	free(c);
	snprintf(want, sizeof want, "rondo %s", v->token);
	bool ok = recv_line(s, line, sizeof line, clock_s() + GREET_S) && !strcmp(line, want);
	pthread_mutex_lock(&v->lock);
	unsigned which = ok || v->stop ? 0 : ++v->strangers;
	if (which && !(which & (which - 1)))         /* one more line for twice as many */
		log_line(LOG_WARN, which > 1 ? "%u strangers so far were cut off from the job's store" : "%u stranger was cut off from the job's store", which);
	for (int i = 0; i < v->nclient; i++)
		v->client[i].heard |= ok && v->client[i].fd == s;
	pthread_mutex_unlock(&v->lock);
	while (ok && recv_line(s, line, sizeof line, 0))
		if (sscanf(line, "put %127s %lld", key, &n) == 2 && n >= 0 && n <= VALUE)
			ok = serve_put(v, s, key, (size_t)n);
		else if (sscanf(line, "get %127s %lld", key, &n) == 2 && n >= 0 && n <= INT32_MAX)
			ok = serve_get(v, s, key, (int)n);
		else
			ok = false;
	pthread_mutex_lock(&v->lock);
	forget(v, s);
	pthread_cond_broadcast(&v->cond);
	pthread_mutex_unlock(&v->lock);
	return NULL;
}

/* Is there room for one more who has not shown the token?  Makes some for the next time. */
static bool room(struct sym_server *v)
{
	int unheard = 0, oldest = -1;

	pthread_mutex_lock(&v->lock);
	for (int i = v->nclient; i-- > 0;)
		if (!v->client[i].heard) {
			unheard++;
			oldest = i;
		}
	bool full = unheard >= UNHEARD;
	if (full && clock_s() - v->client[oldest].since > UNHEARD_MS / 1e3)
		shutdown(v->client[oldest].fd, SHUT_RDWR);      /* its thread does the rest */
	full &= !v->stop;                 /* accept says then that it is over */
	pthread_mutex_unlock(&v->lock);
	return !full;
}

static void *server_main(void *u)
{
	struct sym_server *v = u;
	int s, one = 1;

	for (;;) {
		struct client *c;
		pthread_t t;
		if (!room(v)) {
			nanosleep(&(struct timespec){ 0, RETRY_MS * 1000000 }, NULL);
			continue;
		}
		if ((s = accept4(v->fd, NULL, NULL, SOCK_CLOEXEC)) < 0) {
			if (errno == EINVAL || errno == EBADF)         /* shut down */
				return NULL;
			/* Whoever was too fast for us, or took all descriptors, may be gone soon. */
			if (errno != EINTR && errno != ECONNABORTED)
				nanosleep(&(struct timespec){ 0, RETRY_MS * 1000000 }, NULL);
			continue;
		}
		setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		pthread_mutex_lock(&v->lock);
		bool taken = v->nclient < CLIENTS && !v->stop;
		if (taken) {
			v->client[v->nclient].fd = s;
			v->client[v->nclient].heard = false;
			v->client[v->nclient++].since = clock_s();
		}
		pthread_mutex_unlock(&v->lock);
		c = mem_alloc(sizeof *c);
		*c = (struct client){ v, s };
		if (taken && !pthread_create(&t, NULL, client_main, c)) {
			pthread_detach(t);
			continue;
		}
		free(c);
		pthread_mutex_lock(&v->lock);
		forget(v, s);
		pthread_mutex_unlock(&v->lock);
	}
}

static struct err *resolve(const char *host, int port, bool passive, struct addrinfo **out)
{
	struct addrinfo hint = { .ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC, .ai_flags = passive ? AI_PASSIVE : 0 };
	char text[16];

	snprintf(text, sizeof text, "%d", port);
	int r = getaddrinfo(host && *host ? host : NULL, text, &hint, out);
	return r ? ERR(UNAVAILABLE, "host '%s': %s", host ? host : "", gai_strerror(r)) : NULL;
}

struct err *sym_server_new(const char *host, int *port, const char *token, struct sym_server **out)
{
	struct addrinfo *a = NULL;
	struct sockaddr_storage bound;
	socklen_t n = sizeof bound;
	struct err *e = NULL;
	int one = 1, s = -1;

	*out = NULL;
	if (*port < 0 || *port > 65535)
		return ERR(INVALID, "the job's store cannot be served at port %d", *port);
	TRY(resolve(host, *port, true, &a));
	for (struct addrinfo *i = a; i && s < 0; i = i->ai_next) {
		s = socket(i->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (s < 0)
			continue;
		setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (bind(s, i->ai_addr, i->ai_addrlen) || listen(s, 1024)) {
			int why = errno;
			close(s);
			s = -1;
			errno = why;
		}
	}
	freeaddrinfo(a);
	if (s < 0)
		return ERR(UNAVAILABLE, "cannot serve the job's store at %s:%d: %s", host ? host : "", *port, strerror(errno));
	getsockname(s, (struct sockaddr *)&bound, &n);
	*port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port : ((struct sockaddr_in *)&bound)->sin_port);
	struct sym_server *v = mem_alloc(sizeof *v);
	v->fd = s;
	v->client = mem_alloc(CLIENTS * sizeof *v->client);
	v->token = text_copy(token);
	pthread_mutex_init(&v->lock, NULL);
	pthread_cond_init(&v->cond, NULL);
	int r = pthread_create(&v->thread, NULL, server_main, v);
	if (r) {
		e = ERR(EXHAUSTED, "cannot start a thread: %s", strerror(r));
		close(s);
		free(v->client);
		free(v->token);
		free(v);
		return e;
	}
	*out = v;
	return NULL;
}

void sym_server_free(struct sym_server *v)
{
	if (!v)
		return;
	pthread_mutex_lock(&v->lock);
	v->stop = true;
	shutdown(v->fd, SHUT_RDWR);
	for (int i = 0; i < v->nclient; i++)
		shutdown(v->client[i].fd, SHUT_RDWR);
	pthread_cond_broadcast(&v->cond);
	while (v->nclient)
		pthread_cond_wait(&v->cond, &v->lock);
	pthread_mutex_unlock(&v->lock);
	pthread_join(v->thread, NULL);
	close(v->fd);
	for (struct pair *p = v->all, *q; p; p = q) {
		q = p->next;
		free(p);
	}
	pthread_mutex_destroy(&v->lock);
	pthread_cond_destroy(&v->cond);
	free(v->client);
	free(v->token);
	free(v);
}

/* --- clients ---------------------------------------------------------------------------------- */

struct boot {
	struct kv kv;
	int fd;
	char *at, *dir, prefix[24];       /* prefix: of the keys, where this process has come before */
	struct err *why;                  /* why process 0 does not serve the store; NULL: it does, or is not this one */
};

/* One end of a message: another program may listen where process 0 wanted to. */
static const char *not_served(const struct boot *b) { return b->why ? b->why->msg : ""; }

static struct err *no_answer(const struct boot *b)
{
	const char *why = not_served(b), *gap = *why ? "; " : "";

	bool silent = errno == EAGAIN || errno == EWOULDBLOCK;
	shutdown(b->fd, SHUT_RDWR);       /* no other call shall wait as long again */
	if (silent)
		return ERR(UNAVAILABLE, "the job's store at %s has not answered for %lld s%s%s", b->at, (long long)conf_int(CONF_JOIN_TIMEOUT), gap, why);
	return ERR(UNAVAILABLE, "the job's store at %s has gone (or the token is wrong)%s%s", b->at, gap, why);
}

static struct err *tcp_put(void *user, const char *key, const void *value, size_t n)
{
	struct boot *b = user;
	char line[KEY + 64];

	errno = 0;
	snprintf(line, sizeof line, "put %s%s %zu\n", b->prefix, key, n);
	if (!send_all(b->fd, line, strlen(line)) || !send_all(b->fd, value, n) || !recv_line(b->fd, line, sizeof line, 0))
		return no_answer(b);
	return strcmp(line, "ok") ? ERR(ALREADY_EXISTS, "the job's store has a key '%s' already: is the process number taken?", key) : NULL;
}

static struct err *tcp_get(void *user, const char *key, int ms, struct str *out)
{
	struct boot *b = user;
	char line[KEY + 64];
	size_t n;

	errno = 0;
	snprintf(line, sizeof line, "get %s%s %d\n", b->prefix, key, ms);
	if (!send_all(b->fd, line, strlen(line)) || !recv_line(b->fd, line, sizeof line, 0))
		return no_answer(b);
	if (sscanf(line, "value %zu", &n) != 1 || n > VALUE)
		return ERR(DEADLINE, "nobody has written '%s'", key);
	char some[256], *p = mem_try(n + 1);
	bool ok = true;
	for (size_t left = n, k; ok && !p && left; left -= k)        /* what was answered is taken all the same: others will ask */
		ok = recv_all(b->fd, some, k = MIN(left, sizeof some));
	if (ok && !p)
		return ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", n + 1);
	ok = ok && recv_all(b->fd, p, n);
	if (ok)
		str_addn(out, p, n);
	free(p);
	return ok ? NULL : ERR(UNAVAILABLE, "the job's store has gone");
}

/* What this process remembers of where it has met others: how often it came, and the store that it serves there as process 0, to the
 * end: others may come for the next time before it does. */
static pthread_mutex_t met_lock = PTHREAD_MUTEX_INITIALIZER;
static struct map met_times;
static struct met { struct met *next; char *at; struct sym_server *server; } *met;

static struct err *serve_at(const char *at, const char *host, int *port, const char *token)
{
	struct sym_server *v = NULL;
	struct err *e = NULL;
	struct met *m;

	pthread_mutex_lock(&met_lock);
	for (m = met; m && strcmp(m->at, at);)
		m = m->next;
	if (!m && !(e = sym_server_new(host, port, token, &v))) {
		m = mem_alloc(sizeof *m);
		*m = (struct met){ met, text_copy(at), v };
		met = m;
	}
	pthread_mutex_unlock(&met_lock);
	return e;
}

static int64_t times(const char *at)
{
	pthread_mutex_lock(&met_lock);
	int64_t n = (int64_t)++*map_put(&met_times, at, strlen(at));
	pthread_mutex_unlock(&met_lock);
	return n;
}

static struct err *tcp_open(struct boot *b, const char *at, const char *token)
{
	const char *colon = strrchr(at, ':');
	char host[256], line[KEY + 64];
	int port = colon ? atoi(colon + 1) : 0, one = 1;
	double since = clock_s(), until = since + (double)conf_int(CONF_JOIN_TIMEOUT);
	bool said = false;
	struct err *e = NULL;

	if (!colon || port <= 0 || port > 65535 || colon - at >= (ptrdiff_t)sizeof host)
		return ERR(INVALID, "'tcp://%s' is not tcp://host:port", at);
	b->at = text_copy(at);
	bool bracket = *at == '[' && colon > at && colon[-1] == ']';       /* an address of IPv6 */
	snprintf(host, sizeof host, "%.*s", (int)(colon - at) - 2 * bracket, at + bracket);
	/* Process 0 serves, unless the launcher does. */
	if (b->kv.process == 0)
		b->why = serve_at(at, host, &port, token);
	for (;;) {
		struct addrinfo *a = NULL;
		e = resolve(host, port, false, &a);
		int why = 0;
		for (struct addrinfo *i = a; i && b->fd < 0; i = i->ai_next) {
			int s = socket(i->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
			if (s >= 0)
				limit_waits(s, until - clock_s());
			if (s >= 0 && !connect(s, i->ai_addr, i->ai_addrlen))
				b->fd = s;
			else {
				why = errno == EINPROGRESS ? ETIMEDOUT : errno;
				if (s >= 0)
					close(s);
			}
		}
		if (a)
			freeaddrinfo(a);
		if (b->fd >= 0)
			break;
		const char *own = not_served(b), *gap = *own ? "; " : "";
		if (!e)
			e = ERR(UNAVAILABLE, "cannot reach the job's store at %s: %s%s%s", at, strerror(why), gap, own);
		if (clock_s() > until)
			return e;
		if (!said && clock_s() - since >= STATUS_S)
			log_line(LOG_WARN, "process %d goes on trying: %s", b->kv.process, e->msg), said = true;
		err_free(e);
		nanosleep(&(struct timespec){ 0, RETRY_MS * 1000000 }, NULL);
	}
	limit_waits(b->fd, (double)conf_int(CONF_JOIN_TIMEOUT));
	setsockopt(b->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	snprintf(line, sizeof line, "rondo %s\n", token);
	b->kv.put = tcp_put;
	b->kv.get = tcp_get;
	return send_all(b->fd, line, strlen(line)) ? NULL : ERR(UNAVAILABLE, "the job's store at %s has gone", at);
}

/* A key is a file: written under another name, then linked, so it is whole or not there. */
static void path_of(const struct boot *b, const char *key, const char *tail, char *out, size_t n)
{
	snprintf(out, n, "%s/%s%s%s", b->dir, b->prefix, key, tail);
	for (char *p = out + strlen(b->dir) + 1; *p; p++)
		if (*p == '/')
			*p = '-';
}

static struct err *dir_put(void *user, const char *key, const void *value, size_t n)
{
	struct boot *b = user;
	char path[4200], part[4200], tail[40];

	snprintf(tail, sizeof tail, ".%d.%d", b->kv.process, (int)getpid());
	path_of(b, key, "", path, sizeof path);
	path_of(b, key, tail, part, sizeof part);
	int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	bool ok = fd >= 0 && write(fd, value, n) == (ssize_t)n;
	int why = errno;
	if (fd >= 0)
		close(fd);
	if (ok && link(part, path)) {
		ok = false;
		why = errno;
	}
	unlink(part);
	if (!ok && why == EEXIST)
		return ERR(ALREADY_EXISTS, "'%s' exists already: use a fresh folder for every job", path);
	return ok ? NULL : ERR(UNAVAILABLE, "cannot write '%s': %s", path, strerror(why));
}

static struct err *dir_get(void *user, const char *key, int ms, struct str *out)
{
	struct boot *b = user;
	double until = clock_s() + ms / 1000.;
	char path[4200];

	path_of(b, key, "", path, sizeof path);
	for (;;) {
		if (!access(path, R_OK))
			return str_read_entry(out, path, VALUE);
		if (clock_s() >= until)
			return ERR(DEADLINE, "nobody has written '%s'", path);
		nanosleep(&(struct timespec){ 0, 2000000 }, NULL);
	}
}

static struct err *dir_open(struct boot *b, const char *dir)
{
	struct stat st;

	if (mkdir(dir, 0700) && errno != EEXIST)
		return ERR(UNAVAILABLE, "cannot make '%s': %s", dir, strerror(errno));
	if (stat(dir, &st) || !S_ISDIR(st.st_mode))
		return ERR(UNAVAILABLE, "'%s' is no folder", dir);
	if (st.st_uid != geteuid() || (st.st_mode & 022))
		return ERR(PERMISSION, "'%s' is not this user's alone: others could join the job", dir);
	b->dir = text_copy(dir);
	b->kv.put = dir_put;
	b->kv.get = dir_get;
	return NULL;
}

/* --- the environment ---------------------------------------------------------------------------- */

/* Launchers and what they say: number of this process, of all; the job and its part, if that can run beside others; where the
 * first process runs.  Open MPI 5 says the last by the name that it gives the job. */
static const struct launcher { const char *name, *rank, *size, *job, *part, *where; bool where_first; } launcher[] = {
	{ "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_MCA_ess_base_jobid", NULL, "OMPI_MCA_orte_hnp_uri", false },
	{ "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE", NULL, "PMIX_NAMESPACE", false },
	{ "PMIx", "PMIX_RANK", "PMIX_SIZE", "PMIX_NAMESPACE", NULL, "PMIX_SERVER_URI2", false },
	{ "PMI", "PMI_RANK", "PMI_SIZE", NULL, NULL, NULL, false },
	/* A batch script has a number and a count as well; only a step has a list of nodes. */
	{ "Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", true },
};

/* The host in "1234.0;tcp://10.0.0.1,10.1.0.1:5555", in "prterun-host-1234@1", or the first of "node[003-007,9],other". */
static bool first_host(const char *text, char *out, size_t n)
{
	const char *p = strstr(text, "://"), *at = strchr(text, '@');
	size_t k;

	if (!text[strspn(text, "0123456789")])
		return false;
	if (p) {
		k = strcspn(p + 3, ",:/");
		snprintf(out, n, "%.*s", (int)k, p + 3);
		return k > 0;
	}
	if (at) {
		p = strchr(text, '-');
		while (at > text && *at != '-')
			at--;
		if (!p || at <= p + 1)
			return false;
		snprintf(out, n, "%.*s", (int)(at - p - 1), p + 1);
		return true;
	}
	k = strcspn(text, "[,");
	snprintf(out, n, "%.*s", (int)k, text);
	if (text[k] == '[') {
		size_t d = strcspn(text + k + 1, "-,]"), m = strlen(out);
		snprintf(out + m, n - m, "%.*s", (int)d, text + k + 1);
	}
	return out[0] != '\0';
}

static const char *var(const char *name) { return name ? getenv(name) : NULL; }

static bool number(const char *text, int64_t *v)
{
	char *end;

	*v = strtoll(text, &end, 10);
	return end != text && !*end;
}

struct err *sym_boot_env(struct kv **out)
{
	const char *at = conf_str(CONF_RENDEZVOUS), *token = conf_str(CONF_TOKEN), *who = NULL;
	int64_t process = conf_int(CONF_PROCESS), n = conf_int(CONF_PROCESSES);
	char where[300], host[256], key[KEY];
	struct err *e = NULL;

	*out = NULL;
	/* The first that speaks says who this is; where the job meets, the first that says the same of who this is. */
	for (size_t i = 0; i < NELEM(launcher) && !conf_int(CONF_PROCESSES) && !(who && *at && *token); i++) {
		const struct launcher *l = &launcher[i];
		const char *rank = getenv(l->rank), *size = getenv(l->size), *job = var(l->job), *part = var(l->part), *first = var(l->where);
		int64_t its, all;
		if (!rank || !size || (l->where_first && !first))
			continue;
		if (!number(rank, &its) || !number(size, &all))
			return ERR(INVALID, "%s says that this is process '%s' of '%s' (%s, %s)", l->name, rank, size, l->rank, l->size);
		if (!who) {
			process = its;
			n = all;
			who = l->name;
		}
		if (its != process || all != n || !job || (!*at && !(first && first_host(first, host, sizeof host))))
			continue;
		snprintf(key, sizeof key, "job-%s%s%s", job, part ? "." : "", part ? part : "");
		if (!*at) {
			/* Below those that connections out are given (32768 and up): one of them may have it. */
			snprintf(where, sizeof where, "tcp://%s:%d", host, (int)(10000 + hash_bytes(key, strlen(key), 0) % 22000));
			at = where;
		}
		if (!*token)              /* no secret, but it keeps another job's processes out */
			token = key;
	}
	who = who ? who : "RONDO_PROCESSES";
	if (n <= 1)
		return NULL;
	if (process < 0 || process >= n || n > 1 << 16)
		return ERR(INVALID, "%s says that this is process %lld of %lld", who, (long long)process, (long long)n);
	if (!*at)
		return ERR(INVALID, "%s says that this is one of %lld processes: set RONDO_RENDEZVOUS to tcp://host:port or to a folder that all see", who, (long long)n);
	if (strlen(token) >= KEY || strpbrk(token, " \n"))
		return ERR(INVALID, "RONDO_TOKEN is too long or has spaces");
	struct boot *b = mem_alloc(sizeof *b);
	b->kv.process = (int)process;
	b->kv.nprocess = (int)n;
	b->kv.user = b;
	b->fd = -1;
	e = strncmp(at, "tcp://", 6) ? dir_open(b, at) : tcp_open(b, at + 6, *token ? token : "none");
	if (e) {
		sym_boot_free(&b->kv);
		return e;
	}
	int64_t came = times(at);
	if (came > 1)
		snprintf(b->prefix, sizeof b->prefix, "%lld.", (long long)came - 1);
	*out = &b->kv;
	return NULL;
}

void sym_boot_free(struct kv *k)
{
	struct boot *b = k ? k->user : NULL;

	if (!b)
		return;
	if (b->fd >= 0)
		close(b->fd);
	err_free(b->why);
	free(b->at);
	free(b->dir);
	free(b);
}
