/* How two processes that share no memory come to a connection of which each knows who is at the other end.
 *
 * Every process listens on a port of its own and writes it, with all addresses of its host, into the job's store; the one
 * with the higher number tries the other's addresses, one after the other, until somebody there proves to be the one.
 * An address may well be another host's, or lead to a stranger, so the job's token is never sent: each side draws a number,
 * and shows what becomes of both numbers under the token (SipHash-2-4: Aumasson and Bernstein, 2012).  Who was called proves
 * himself first; with his own proof the caller is bound to this connection.
 *
 * Strangers have a bounded number of sockets for a bounded time, and only until all have come. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/tcp.h>
#include <math.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "impl.h"

enum { GUESTS = 64, ADDRESSES = 32, PROOF = 16, TRY_MS = 1000, TRY_MOST_MS = 8000, AGAIN_MS = 50, GUEST_MS = 10000, UNHEARD_MS = 1000, BACKLOG = 1024 };
enum { GREETING = 0x54444e52, CALLER = 'c', CALLED = 'a' };
/* How often the kernel asks: whether an idle connection's other side is there, and again for what has had no answer. */
enum { IDLE_S = 10, PROBE_S = 2, AGAIN_MOST_MS = 4000, BUFFER = 2 << 20, WAITS = 1 << 19, SHORT_US = 2000 };
#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44                 /* since Linux 6.15 */
#endif

struct greeting { uint32_t magic, version; int32_t from, to; unsigned char drawn[16]; };
struct answer { struct greeting g; unsigned char proof[PROOF]; };
_Static_assert(sizeof(struct answer) == 48, "no gaps: it is sent as it is");

/* --- proofs ------------------------------------------------------------------------------- */

static inline uint64_t rol(uint64_t x, int n) { return x << n | x >> (64 - n); }

static inline void sip_round(uint64_t v[4])
{
	v[0] += v[1], v[2] += v[3];
	v[1] = rol(v[1], 13) ^ v[0], v[3] = rol(v[3], 16) ^ v[2];
	v[0] = rol(v[0], 32);
	v[2] += v[1], v[0] += v[3];
	v[1] = rol(v[1], 17) ^ v[2], v[3] = rol(v[3], 21) ^ v[0];
	v[2] = rol(v[2], 32);
}

/* n: a multiple of 8. */
uint64_t sym_sip(const uint64_t key[2], const void *data, size_t n)
{
	uint64_t v[4] = { key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u };

	for (size_t i = 0; i <= n; i += 8) {
		uint64_t m = (uint64_t)n << 56;
		if (i < n)
			memcpy(&m, (const char *)data + i, 8);
		v[3] ^= m;
		sip_round(v);
		sip_round(v);
		v[0] ^= m;
	}
	v[2] ^= 0xff;
	for (int i = 0; i < 4; i++)
		sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* What one side shows, in its role, of what the caller and the called have drawn. */
static void prove(const char *token, char role, const struct greeting *caller, const struct greeting *called, unsigned char out[PROOF])
{
	struct { uint64_t role, part; struct greeting caller, called; } d = { (uint64_t)role, 0, *caller, *called };
	char half[17] = "";
	uint64_t key[2], h;

	for (int i = 0; i < 2; i++) {
		memcpy(half, token + 16 * i, 16);
		key[i] = strtoull(half, NULL, 16);
	}
	for (int i = 0; i < PROOF / 8; i++) {
		d.part = (uint64_t)i;
		h = sym_sip(key, &d, sizeof d);
		memcpy(out + 8 * i, &h, 8);
	}
}

static bool same(const unsigned char *a, const unsigned char *b)
{
	unsigned char d = 0;

	for (int i = 0; i < PROOF; i++)
		d |= a[i] ^ b[i];
	return !d;
}

/* --- addresses ------------------------------------------------------------------------------ */

struct place { struct sockaddr_storage a; socklen_t n; bool near; };       /* near: on a network that this host is on */

struct dial {                             /* one call, until it is through */
	int fd;                           /* -1: none at the moment */
	enum { IDLE, CONNECTING, ASKED, DONE } at;
	struct place *place;              /* of the other process */
	int nplace, next, round;
	double since;                     /* of this try; of IDLE: when to try again */
	struct greeting mine;
	struct answer its;
	size_t got;
	int why;                          /* errno of the last try; 0: nobody there has the token, which says more than any later silence */
	bool stranger;                    /* it was 0 once */
};

struct guest { int fd; double since; bool answered; size_t got; struct greeting its, mine; unsigned char proof[PROOF]; };

struct call {
	struct sym_world *w;
	const char *token;
	const bool *reach;
	int *fd;                          /* nproc: what has come of it */
	bool all_here;
	int listen;
	struct ifaddrs *addresses;
	struct dial *dial;                /* nproc */
	struct guest guest[GUESTS];
	int nguest;
	struct sym_coming coming;         /* of whom has not been reached yet, */
	int who;                          /* the one that was looked at last, */
	double look;                      /* when to look at the next */
};

static size_t bits(const struct sockaddr *a, const unsigned char **p)
{
	*p = a->sa_family == AF_INET ? (const unsigned char *)&((const struct sockaddr_in *)a)->sin_addr : (const unsigned char *)&((const struct sockaddr_in6 *)a)->sin6_addr;
	return a->sa_family == AF_INET ? 4 : 16;
}

static bool usable(const struct ifaddrs *i, bool loopback)
{
	if (!i->ifa_addr || !i->ifa_netmask || !(i->ifa_flags & IFF_UP) || !(i->ifa_flags & IFF_LOOPBACK) != !loopback)
		return false;
	return i->ifa_addr->sa_family == AF_INET ||
	       (i->ifa_addr->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr));
}

/* All addresses of this host; its own ones only if there are no others. */
static void addresses(struct str *s, const struct ifaddrs *all)
{
	char text[INET6_ADDRSTRLEN];
	const unsigned char *p;
	int n = 0;

	for (int loopback = 0; loopback < 2 && !n; loopback++)
		for (const struct ifaddrs *i = all; i; i = i->ifa_next)
			if (usable(i, loopback) && n < ADDRESSES && bits(i->ifa_addr, &p) && inet_ntop(i->ifa_addr->sa_family, p, text, sizeof text)) {
				str_addf(s, " %s", text);
				n++;
			}
}

static bool near(const struct ifaddrs *all, const struct sockaddr *a)
{
	const unsigned char *p, *mine, *mask;
	size_t n = bits(a, &p), k;

	for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
		if (!i->ifa_addr || !i->ifa_netmask || i->ifa_addr->sa_family != a->sa_family)
			continue;
		bits(i->ifa_addr, &mine);
		bits(i->ifa_netmask, &mask);
		for (k = 0; k < n && !((p[k] ^ mine[k]) & mask[k]); k++) { }
		if (k == n)
			return true;
	}
	return false;
}

/* "port address address ..", as process proc wrote it. */
static struct err *places(struct dial *d, int proc, char *text, const struct ifaddrs *all)
{
	char *save, *word = strtok_r(text, " ", &save);
	int port = word ? atoi(word) : 0;

	d->place = mem_alloc(ADDRESSES * sizeof *d->place);
	while (port > 0 && port < 65536 && d->nplace < ADDRESSES && (word = strtok_r(NULL, " ", &save))) {
		struct place p = { 0 };
		struct sockaddr_in *v4 = (struct sockaddr_in *)&p.a;
		struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&p.a;
		if (inet_pton(AF_INET, word, &v4->sin_addr) == 1) {
			p.a.ss_family = AF_INET;
			v4->sin_port = htons((uint16_t)port);
			p.n = sizeof *v4;
		} else if (inet_pton(AF_INET6, word, &v6->sin6_addr) == 1) {
			p.a.ss_family = AF_INET6;
			v6->sin6_port = htons((uint16_t)port);
			p.n = sizeof *v6;
		} else
			break;
		p.near = near(all, (struct sockaddr *)&p.a);
		d->place[d->nplace++] = p;
	}
	if (!d->nplace)
		return ERR(DATA_LOSS, "process %d has no network address", proc);
	/* Those on a network of this host first. */
	for (int i = 0, k = 0; i < d->nplace; i++)
		if (d->place[i].near) {
			struct place p = d->place[i];
			memmove(d->place + k + 1, d->place + k, (size_t)(i - k) * sizeof p);
			d->place[k++] = p;
		}
	return NULL;
}

/* --- sockets ----------------------------------------------------------------------------------- */

/* Buffers of a fixed size where that is more than the kernel would give in the end, else as the kernel sees fit. */
static void buffers(int s)
{
	static const struct { const char *limit; int option; } row[] = { { "/proc/sys/net/core/rmem_max", SO_RCVBUF }, { "/proc/sys/net/core/wmem_max", SO_SNDBUF } };
	int want = BUFFER;

	for (size_t i = 0; i < NELEM(row); i++) {
		FILE *f = fopen(row[i].limit, "r");
		long most = 0;
		if (f && fscanf(f, "%ld", &most) == 1 && most >= want)
			setsockopt(s, SOL_SOCKET, row[i].option, &want, sizeof want);
		if (f)
			fclose(f);
	}
}

/* No more than WAITS that is not sent yet lies in the kernel, where nothing can go before it. */
static void options(int s)
{
	static const struct { int level, option, value; } row[] = {
		{ IPPROTO_TCP, TCP_NODELAY, 1 }, { SOL_SOCKET, SO_KEEPALIVE, 1 }, { IPPROTO_TCP, TCP_KEEPIDLE, IDLE_S }, { IPPROTO_TCP, TCP_KEEPINTVL, PROBE_S },
		{ IPPROTO_TCP, TCP_RTO_MAX_MS, AGAIN_MOST_MS }, { IPPROTO_TCP, TCP_NOTSENT_LOWAT, WAITS },
	};
	for (size_t i = 0; i < NELEM(row); i++)
		setsockopt(s, row[i].level, row[i].option, &row[i].value, sizeof row[i].value);
}

/* On a short way the simplest control of congestion does best: BBR sends by a timer, which took a third more time than the data
 * itself, and CUBIC stops growing its window at the first delay.  On a long one, or where the host has another, it is the host's. */
static void control(int s)
{
	static const char reno[] = "reno";
	struct tcp_info info = { 0 };
	char name[16] = "";
	socklen_t n = sizeof info, k = sizeof name - 1;

	if (getsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &n) || n < offsetof(struct tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt)
		return;
	if (!info.tcpi_min_rtt || info.tcpi_min_rtt > SHORT_US || getsockopt(s, IPPROTO_TCP, TCP_CONGESTION, name, &k))
		return;
	if (!strncmp(name, "bbr", 3) || !strcmp(name, "cubic"))
		setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, reno, sizeof reno - 1);
}

static struct err *listening(int *out, int *port)
{
	struct sockaddr_in6 a6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT };
	struct sockaddr_in a4 = { .sin_family = AF_INET };
	struct sockaddr_storage bound;
	socklen_t n = sizeof bound;
	int off = 0, s = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (s >= 0 && (setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) || bind(s, (struct sockaddr *)&a6, sizeof a6))) {
		close(s);
		s = -1;
	}
	if (s < 0) {                      /* no IPv6 here */
		s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (s < 0 || bind(s, (struct sockaddr *)&a4, sizeof a4))
			goto bad;
	}
	buffers(s);                       /* before the window's scale is settled */
	if (listen(s, BACKLOG) || getsockname(s, (struct sockaddr *)&bound, &n))
		goto bad;
	*port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port : ((struct sockaddr_in *)&bound)->sin_port);
	*out = s;
	return NULL;
bad:;
	struct err *e = ERR(EXHAUSTED, "cannot open a port for the other processes: %s", strerror(errno));
	if (s >= 0)
		close(s);
	return e;
}

static void draw(struct greeting *g)
{
	if (getrandom(g->drawn, sizeof g->drawn, 0) != sizeof g->drawn)
		abort();                  /* the kernel promises 256 bytes at once */
}

/* More of n bytes: 1 when all have come, 0 if more will, -1 if none. */
static int more(int s, void *to, size_t *got, size_t n)
{
	ssize_t k = recv(s, (char *)to + *got, n - *got, MSG_DONTWAIT);

	if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		return 0;
	if (k == 0)
		errno = ECONNRESET;
	if (k <= 0)
		return -1;
	*got += (size_t)k;
	return *got == n;
}

static bool tell(int s, const void *p, size_t n) { return send(s, p, n, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n; }

/* --- who calls ----------------------------------------------------------------------------------- */

static void hang_up(struct dial *d, int why)
{
	if (d->fd >= 0)
		close(d->fd);
	d->fd = -1;
	d->stranger |= why == 0;
	d->why = d->stranger ? 0 : why;
	d->at = IDLE;
	d->since = clock_s();
	if (++d->next == d->nplace) {
		d->next = 0;
		d->round++;
		d->since += AGAIN_MS / 1e3;
	}
}

static void asking(struct call *c, int proc)
{
	struct dial *d = &c->dial[proc];
	int why = 0;
	socklen_t n = sizeof why;

	if (getsockopt(d->fd, SOL_SOCKET, SO_ERROR, &why, &n) || why) {
		hang_up(d, why);
		return;
	}
	options(d->fd);
	d->mine = (struct greeting){ GREETING, RONDO_VERSION, c->w->proc, proc, { 0 } };
	draw(&d->mine);
	d->got = 0;
	d->at = ASKED;
	if (!tell(d->fd, &d->mine, sizeof d->mine))
		hang_up(d, errno);
}

static void call_up(struct call *c, int proc)
{
	struct dial *d = &c->dial[proc];
	const struct place *p = &d->place[d->next];

	d->since = clock_s();
	d->fd = socket(p->a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (d->fd < 0) {
		hang_up(d, errno);
		return;
	}
	buffers(d->fd);
	d->at = CONNECTING;
	if (!connect(d->fd, (const struct sockaddr *)&p->a, p->n))
		asking(c, proc);
	else if (errno != EINPROGRESS)
		hang_up(d, errno);
}

static void heard(struct call *c, int proc)
{
	struct dial *d = &c->dial[proc];
	unsigned char proof[PROOF];
	const struct greeting *g = &d->its.g;
	int r = more(d->fd, &d->its, &d->got, sizeof d->its);

	if (r < 0)
		hang_up(d, errno);
	if (r <= 0)
		return;
	prove(c->token, CALLED, &d->mine, g, proof);
	if (g->magic != GREETING || g->version != RONDO_VERSION || g->from != proc || g->to != c->w->proc || !same(proof, d->its.proof)) {
		hang_up(d, 0);
		return;
	}
	prove(c->token, CALLER, &d->mine, g, proof);
	if (!tell(d->fd, proof, sizeof proof)) {
		hang_up(d, errno);
		return;
	}
	c->fd[proc] = d->fd;
	d->at = DONE;
}

/* --- who is called --------------------------------------------------------------------------------- */

static void show_out(struct call *c, int i, const char *why)
{
	if (why)
		log_line(LOG_INFO, "process %d: a stranger on the job's port: %s", c->w->proc, why);
	close(c->guest[i].fd);
	c->guest[i] = c->guest[--c->nguest];
}

static void listen_to(struct call *c, int i)
{
	struct guest *g = &c->guest[i];
	unsigned char proof[PROOF];
	int r = g->answered ? more(g->fd, g->proof, &g->got, sizeof g->proof) : more(g->fd, &g->its, &g->got, sizeof g->its), from = g->its.from;

	if (r < 0)
		show_out(c, i, "it has left");
	if (r <= 0)
		return;
	if (g->answered) {
		prove(c->token, CALLER, &g->its, &g->mine, proof);
		if (!same(proof, g->proof) || c->fd[from] >= 0) {
			show_out(c, i, "it does not have the token");
			return;
		}
		c->fd[from] = g->fd;
		c->guest[i] = c->guest[--c->nguest];
		return;
	}
	if (g->its.magic != GREETING || g->its.version != RONDO_VERSION || g->its.to != c->w->proc || from <= c->w->proc || from >= c->w->nproc || !c->reach[from] || c->fd[from] >= 0) {
		show_out(c, i, "not a greeting");
		return;
	}
	struct answer a = { .g = { GREETING, RONDO_VERSION, c->w->proc, from, { 0 } } };
	draw(&a.g);
	g->mine = a.g;
	prove(c->token, CALLED, &g->its, &g->mine, a.proof);
	g->answered = true;
	g->got = 0;
	if (!tell(g->fd, &a, sizeof a))
		show_out(c, i, "it has left");
}

static void let_in(struct call *c)
{
	int s;

	while (c->nguest < GUESTS && (s = accept4(c->listen, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
		options(s);
		c->guest[c->nguest++] = (struct guest){ .fd = s, .since = clock_s() };
	}
	if (c->nguest < GUESTS && errno != EAGAIN && errno != EWOULDBLOCK)      /* no descriptors: some may be free soon */
		nanosleep(&(struct timespec){ 0, AGAIN_MS * 1000000 }, NULL);
}

/* --- both -------------------------------------------------------------------------------------------- */

/* One look at all that may have happened; true when everybody is linked. */
static bool turn(struct call *c, struct pollfd *f)
{
	int nproc = c->w->nproc, n = 0, missing = 0, ms = AGAIN_MS;
	double now = clock_s();

	for (int k = 0; k < nproc; k++) {
		struct dial *d = &c->dial[k];
		missing += c->reach[k] && c->fd[k] < 0;
		if (d->place && (d->at == CONNECTING || d->at == ASKED) && (now - d->since) * 1e3 > MIN(TRY_MS << MIN(d->round, 3), TRY_MOST_MS))
			hang_up(d, ETIMEDOUT);
		if (d->place && d->at == IDLE && now >= d->since)
			call_up(c, k);
		if (d->place && d->at == IDLE)        /* the next address */
			ms = 1;
		f[n++] = (struct pollfd){ d->place && d->at != DONE ? d->fd : -1, d->at == CONNECTING ? POLLOUT : POLLIN, 0 };
	}
	if (!missing)
		return true;
	int nguest = c->nguest, oldest = -1;
	for (int i = nguest; i-- > 0;)        /* from the end: showing out moves the last */
		if ((now - c->guest[i].since) * 1e3 > GUEST_MS)
			show_out(c, i, "it says nothing");
	nguest = c->nguest;
	for (int i = 0; i < nguest; i++) {
		f[n++] = (struct pollfd){ c->guest[i].fd, POLLIN, 0 };
		if (oldest < 0 || c->guest[i].since < c->guest[oldest].since)
			oldest = i;
	}
	f[n++] = (struct pollfd){ nguest < GUESTS ? c->listen : -1, POLLIN, 0 };
	poll(f, (nfds_t)n, ms);
	for (int k = 0; k < nproc; k++)
		if (f[k].revents && c->dial[k].at == CONNECTING)
			asking(c, k);
		else if (f[k].revents)
			heard(c, k);
	for (int i = nguest; i-- > 0;)
		if (f[nproc + i].revents)
			listen_to(c, i);
		else if (i == oldest && nguest == GUESTS && (now - c->guest[i].since) * 1e3 > UNHEARD_MS)
			show_out(c, i, "too many do not greet");
	if (f[n - 1].revents)
		let_in(c);
	return false;
}

/* Is there a reason to wait no more?  One look at a time: a look asks the job's store, while others call. */
static struct err *hopeless(struct call *c, const struct kv *kv, double until)
{
	int nproc = c->w->nproc;
	double now = clock_s();

	for (int k = 0; k < nproc && now > until; k++)
		if (c->reach[k] && c->fd[k] < 0) {
			const struct dial *d = &c->dial[k];
			c->who = k;
			return ERR(UNAVAILABLE, "process %d on host '%s' cannot be reached through the network%s%s", k, c->w->process[k].host, d->place ? ": " : "",
			           !d->place ? "" : d->why ? strerror(d->why) : "nobody at its addresses has the job's token");
		}
	for (int k = 0; k < nproc && now >= c->look; k++) {
		c->who = (c->who + 1) % nproc;
		if (!c->reach[c->who] || c->fd[c->who] >= 0)
			continue;
		TRY(sym_joins(c->w, kv, c->who, INFINITY, &c->coming));
		c->look = clock_s() + AGAIN_MS / 1e3;
	}
	return NULL;
}

/* What is open, but what was meant to be. */
static void call_over(void *v)
{
	struct call *c = v;

	for (int k = 0; k < c->w->nproc; k++) {
		if (c->dial[k].fd >= 0 && c->dial[k].at != DONE)
			close(c->dial[k].fd);
		if (!c->all_here && c->fd[k] >= 0) {
			close(c->fd[k]);
			c->fd[k] = -1;
		}
		free(c->dial[k].place);
	}
	while (c->nguest)
		show_out(c, c->nguest - 1, NULL);
	if (c->listen >= 0)
		close(c->listen);
	if (c->addresses)
		freeifaddrs(c->addresses);
	free(c->dial);
}

struct err *sym_dial(struct sym_world *w, const struct kv *kv, const char *token, const bool *reach, double until, int *fd)
{
	struct call c = { .w = w, .token = token, .reach = reach, .fd = fd, .listen = -1 };
	struct pollfd *f = mem_alloc((size_t)(w->nproc + GUESTS + 1) * sizeof *f);
	struct str s = { 0 };
	struct err *e = NULL;
	struct mem_undo u;
	char key[32];
	int port = 0;

	c.dial = mem_alloc((size_t)w->nproc * sizeof *c.dial);
	for (int k = 0; k < w->nproc; k++)
		fd[k] = c.dial[k].fd = -1;
	mem_undo(&u, call_over, &c);
	TRY_GOTO(e, listening(&c.listen, &port), out);
	if (getifaddrs(&c.addresses)) {
		e = ERR(EXHAUSTED, "cannot list the addresses of this host: %s", strerror(errno));
		goto out;
	}
	str_addf(&s, "%d", port);
	addresses(&s, c.addresses);
	snprintf(key, sizeof key, "tcp/%d", w->proc);
	TRY_GOTO(e, kv->put(kv->user, key, s.p, s.n), out);
	/* When all have written theirs, all are about to call and to listen. */
	for (int k = 0; k < w->nproc; k++) {
		if (!reach[k])
			continue;
		str_free(&s);
		snprintf(key, sizeof key, "tcp/%d", k);
		TRY_GOTO(e, sym_fetch(w, kv, key, k, until, &s), out);
		if (k < w->proc)
			TRY_GOTO(e, places(&c.dial[k], k, s.p, c.addresses), out);
	}
	while (!turn(&c, f))
		if ((e = hopeless(&c, kv, until))) {
			turn(&c, f);
			if (fd[c.who] < 0)
				goto out;
			err_free(e);      /* it has ended, but after it had done its part */
			e = NULL;
		}
	for (int k = 0; k < w->nproc; k++)
		if (fd[k] >= 0)
			control(fd[k]);
out:
	c.all_here = !e;
	mem_done(&u);
	call_over(&c);
	str_free(&s);
	free(f);
	return e;
}
