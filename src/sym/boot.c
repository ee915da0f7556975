/* Stores for processes that JAX does not start: a server on a socket, or files in a folder.
 *
 * The server speaks lines: the client shows "rondo <token>", then "put <key> <n>" and n bytes (answer "ok" or
 * "exists"), or "get <key> <ms>" (answer "value <n>" and n bytes, or "late").  One thread serves all; whoever does
 * not show the token within a few seconds is cut off, earlier if many others wait to be heard: strangers may not take the
 * descriptors that the process needs itself. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
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

/* A line of less than n bytes, without its end. */
static bool recv_line(int s, char *out, size_t n)
{
	for (size_t k = 0; k + 1 < n; k++) {
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

struct pair { struct pair *next; size_t n; char key[KEY], value[]; };

/* Whoever has come: what it has said, what it waits for, what is to be sent to it.  It is asked for more only when it has its answer. */
struct client {
	int fd;
	bool heard;                       /* has shown the token */
	double since;
	char line[KEY + 64];              /* nline bytes of it have come */
	size_t nline, got;
	struct pair *put;                 /* whose value comes, got bytes so far; NULL: a line comes */
	double until;                     /* key is asked for until then; 0: nothing is */
	char key[KEY];
	struct pair *seen;                /* it is not this one nor any that was there before */
	char *out;                        /* sent of nout bytes are sent; NULL: nothing is to be sent */
	size_t nout, sent;
};

/* One thread does it all; a client for whom there is no memory is cut off. */
struct sym_server {
	int fd, wake;                     /* wake: an eventfd; somebody else has changed what is under the lock */
	pthread_t thread;
	pthread_mutex_t lock;             /* of all and stop */
	struct pair *all;                 /* the newest first; they stay while the server lives */
	bool stop;
	char want[KEY + 64];              /* the first line of whoever is no stranger */
	struct client **client;           /* CLIENTS, in the order in which they came */
	struct pollfd *poll;              /* of wake, fd and each client */
	int nclient;
	double deaf;                      /* nobody is taken until then */
	unsigned strangers;               /* so far */
};

static struct pair *newest(struct sym_server *v)
{
	pthread_mutex_lock(&v->lock);
	struct pair *p = v->all;
	pthread_mutex_unlock(&v->lock);
	return p;
}

static struct pair *find(struct pair *p, const struct pair *before, const char *key)
{
	while (p != before && strcmp(p->key, key))
		p = p->next;
	return p == before ? NULL : p;
}

/* Keeps p, unless there is one of its key; false: there is, and p is not kept. */
static bool keep(struct sym_server *v, struct pair *p)
{
	pthread_mutex_lock(&v->lock);
	bool is_new = !find(v->all, NULL, p->key);
	if (is_new) {
		p->next = v->all;
		v->all = p;
	}
	pthread_mutex_unlock(&v->lock);
	return is_new;
}

static void wake(struct sym_server *v)
{
	uint64_t one = 1;

	while (write(v->wake, &one, sizeof one) < 0 && errno == EINTR) { }
}

void sym_server_gone(struct sym_server *v, int process)
{
	struct pair *p = mem_grow(NULL, sizeof *p);

	snprintf(p->key, sizeof p->key, "gone/%d", process);
	p->n = 0;
	if (keep(v, p))
		wake(v);
	else
		free(p);
}

static bool later(ssize_t r) { return r < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR); }

/* To be sent: a line and n bytes.  False: there is no memory. */
static bool reply(struct client *c, const char *line, const void *p, size_t n)
{
	size_t k = strlen(line);

	if (!(c->out = mem_try(k + n)))
		return false;
	memcpy(c->out, line, k);
	if (n)
		memcpy(c->out + k, p, n);
	c->nout = k + n;
	c->sent = 0;
	return true;
}

/* Sends what can be sent now.  False: it has gone. */
static bool send_more(struct client *c)
{
	while (c->out) {
		ssize_t r = send(c->fd, c->out + c->sent, c->nout - c->sent, MSG_NOSIGNAL);
		if (r < 0)
			return later(r);
		if ((c->sent += (size_t)r) == c->nout) {
			free(c->out);
			c->out = NULL;
		}
	}
	return true;
}

/* A line has come; false: nobody who knows us says that. */
static bool understand(struct sym_server *v, struct client *c)
{
	long long n;

	if (!c->heard)
		return c->heard = !strcmp(c->line, v->want);
	if (sscanf(c->line, "put %127s %lld", c->key, &n) == 2 && n >= 0 && n <= VALUE) {
		if (!(c->put = mem_try(sizeof *c->put + (size_t)n)))
			return false;
		memcpy(c->put->key, c->key, sizeof c->key);
		c->put->n = (size_t)n;
		c->got = 0;
		return true;
	}
	if (sscanf(c->line, "get %127s %lld", c->key, &n) == 2 && n >= 0 && n <= INT32_MAX) {
		c->until = clock_s() + (double)n / 1e3;
		c->seen = NULL;
		return true;
	}
	return false;
}

/* What it says, up to its next question.  False: it has gone, or speaks nonsense. */
static bool hear(struct sym_server *v, struct client *c)
{
	while (!c->out && !c->until) {
		if (c->put && c->got == c->put->n) {
			bool kept = keep(v, c->put);
			if (!kept)
				free(c->put);
			c->put = NULL;
			if (!reply(c, kept ? "ok\n" : "exists\n", NULL, 0))
				return false;
			break;
		}
		char *to = c->put ? c->put->value + c->got : c->line + c->nline;
		ssize_t r = recv(c->fd, to, c->put ? c->put->n - c->got : 1, 0);
		if (r <= 0)
			return later(r);
		if (c->put) {
			c->got += (size_t)r;
		} else if (*to == '\n') {
			*to = '\0';
			c->nline = 0;
			if (!understand(v, c))
				return false;
		} else if (++c->nline == sizeof c->line) {
			return false;
		}
	}
	return true;
}

/* What can be done for it now.  False: it is to be cut off. */
static bool attend(struct sym_server *v, struct client *c, short events, double now)
{
	char line[40];

	if (c->until) {
		struct pair *all = newest(v), *p = find(all, c->seen, c->key);
		c->seen = all;
		if (!p && now < c->until)
			return !events;           /* it has gone */
		c->until = 0;
		snprintf(line, sizeof line, "value %zu\n", p ? p->n : 0);
		return (p ? reply(c, line, p->value, p->n) : reply(c, "late\n", NULL, 0)) && send_more(c);
	}
	if (events && !(send_more(c) && hear(v, c) && send_more(c)))
		return false;
	return c->heard || now < c->since + GREET_S;
}

static void let_go(struct client *c)
{
	close(c->fd);
	free(c->put);
	free(c->out);
	free(c);
}

static void cut_off(struct sym_server *v, struct client *c)
{
	unsigned which = c->heard ? 0 : ++v->strangers;

	if (which && !(which & (which - 1)))         /* one more line for twice as many */
		log_line(LOG_WARN, which > 1 ? "%u strangers so far were cut off from the job's store" : "%u stranger was cut off from the job's store", which);
	let_go(c);
}

/* One more client.  Whoever was too fast for us, or took all descriptors, may be gone soon. */
static void take(struct sym_server *v, double now)
{
	int s = accept4(v->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), one = 1;
	struct client *c = s < 0 ? NULL : mem_try(sizeof *c);

	if (c && v->nclient < CLIENTS) {
		setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		*c = (struct client){ .fd = s, .since = now };
		v->client[v->nclient++] = c;
		return;
	}
	if (s >= 0 || (!later(s) && errno != ECONNABORTED))
		v->deaf = now + RETRY_MS / 1e3;
	if (s >= 0)
		close(s);
	free(c);
}

/* Wait until there is something to do: for a client, whose place in v->poll is 2 behind its own, or by time, all pairs being as seen.  Returns
 * who must go if it says nothing now: the oldest of too many that have not said who they are, NULL: nobody. */
static const struct client *await(struct sym_server *v, const struct pair *seen)
{
	double now = clock_s(), next = now + STATUS_S;
	struct pollfd *f = v->poll;
	const struct client *oldest = NULL;
	int unheard = 0;

	for (int i = 0; i < v->nclient; i++) {
		const struct client *c = v->client[i];
		f[2 + i] = (struct pollfd){ c->fd, (short)(c->until ? POLLRDHUP : c->out ? POLLOUT : POLLIN), 0 };
		if (c->until)
			next = c->seen != seen ? now : MIN(next, c->until);
		if (!c->heard && !unheard++)
			next = MIN(next, c->since + GREET_S), oldest = c;
	}
	bool full = unheard >= UNHEARD;
	f[0] = (struct pollfd){ v->wake, POLLIN, 0 };
	f[1] = (struct pollfd){ full || now < v->deaf ? -1 : v->fd, POLLIN, 0 };
	if (full)
		next = MIN(next, oldest->since + UNHEARD_MS / 1e3);
	else if (now < v->deaf)
		next = MIN(next, v->deaf);
	poll(f, (nfds_t)v->nclient + 2, (int)(MAX(next - now, 0) * 1e3) + (next > now));
	return full ? oldest : NULL;
}

static void *server_main(void *u)
{
	struct sym_server *v = u;
	uint64_t many;

	for (;;) {
		pthread_mutex_lock(&v->lock);
		bool stop = v->stop;
		const struct pair *all = v->all;
		pthread_mutex_unlock(&v->lock);
		if (stop)
			return NULL;
		const struct client *oldest = await(v, all);
		double now = clock_s();
		while (v->poll[0].revents && read(v->wake, &many, sizeof many) > 0) { }
		int n = 0;
		for (int i = 0; i < v->nclient; i++) {
			struct client *c = v->client[i];
			if (attend(v, c, v->poll[2 + i].revents, now) && !(c == oldest && !c->heard && now > c->since + UNHEARD_MS / 1e3))
				v->client[n++] = c;
			else
				cut_off(v, c);
		}
		v->nclient = n;
		if (v->poll[1].revents)
			take(v, now);
	}
}

/* All of it but its thread, which is not there or no more. */
static void server_drop(struct sym_server *v)
{
	for (int i = 0; i < v->nclient; i++)
		let_go(v->client[i]);
	for (struct pair *p = v->all, *q; p; p = q) {
		q = p->next;
		free(p);
	}
	close(v->fd);
	if (v->wake >= 0)
		close(v->wake);
	pthread_mutex_destroy(&v->lock);
	free(v->client);
	free(v->poll);
	free(v);
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
	v->poll = mem_alloc((CLIENTS + 2) * sizeof *v->poll);
	snprintf(v->want, sizeof v->want, "rondo %s", token);
	pthread_mutex_init(&v->lock, NULL);
	v->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	fcntl(s, F_SETFL, O_NONBLOCK);
	int r = v->wake < 0 ? errno : pthread_create(&v->thread, NULL, server_main, v);
	if (r) {
		e = ERR(EXHAUSTED, "cannot serve the job's store: %s", strerror(r));
		server_drop(v);
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
	pthread_mutex_unlock(&v->lock);
	wake(v);
	pthread_join(v->thread, NULL);
	server_drop(v);
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
	if (!send_all(b->fd, line, strlen(line)) || !send_all(b->fd, value, n) || !recv_line(b->fd, line, sizeof line))
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
	if (!send_all(b->fd, line, strlen(line)) || !recv_line(b->fd, line, sizeof line))
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
	if (!n && *at)
		conf_useless(CONF_RENDEZVOUS, "nothing says of how many processes this is one: RONDO_PROCESSES, and which: RONDO_PROCESS");
	who = who ? who : "RONDO_PROCESSES";
	if (n <= 1)
		return NULL;
	if (process < 0 || process >= n || n > 1 << 16)
		return ERR(INVALID, "%s says that this is process %lld of %lld", who, (long long)process, (long long)n);
	if (!*at)
		return ERR(INVALID, "%s says that this is one of %lld processes: set RONDO_RENDEZVOUS to tcp://host:port or to a folder that all see", who, (long long)n);
	if (strlen(token) >= KEY || strpbrk(token, " \n"))
		return ERR(INVALID, "setting 'RONDO_TOKEN' cannot have spaces, nor more than %d letters", KEY - 1);
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
