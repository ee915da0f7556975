/* Other hosts over TCP: one stream for each pair of processes (dial.c makes them).
 *
 * The stream keeps the order, so a message says nothing of it: what changes memory is done by whoever reads the stream, one
 * message after the other.  Data goes from where it lies into the socket, and from the socket to where it belongs; only
 * short messages are read through a small buffer, several at a time.
 *
 * Nobody waits for room in a socket: what does not fit is queued, and written by whoever makes progress, which is also
 * reading.  Whoever waits for something makes progress himself, and looks at the sockets directly: asking epoll first costs
 * as much as reading.  A thread of our own does it otherwise, so that memory is one-sided also while the process computes.
 *
 * Locks: a link has one for what is read, one for what is written, one for what was asked for; taken in this order. */
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <linux/sockios.h>
#include <time.h>
#include <unistd.h>

#include "impl.h"

enum { ROOM = 8 << 10, BRIEF = 2 << 10, PART = 256 << 10, ASKED = 512 << 10, TURN = 256 << 10, PIECES = 32, DIRECT = 4, AT_ONCE = 64, QUEUE = 4096, STAMP = 16, RESERVE = 32, REST_NS = 500000, PARTING_S = 2 };
/* A host that is off the network is found after this: seconds, not the minutes of TCP; a cable that is out for a moment is not. */
enum { SILENT_MS = 20000, LISTEN_MS = 1000 };
enum kind { LINE = 1, PUT, PUT_LINE, GET, DATA, AMO, VALUE, BYE };

/* A message: this, then words, then n bytes. */
struct head {
	uint8_t kind, words, op, zero;    /* op: enum sym_amo */
	int32_t pe;                       /* whose heap is meant */
	uint64_t n;                       /* bytes of data that follow, or are asked for, or of the word of an atomic */
	uint64_t off, loff;               /* where the data, where the line goes; of an AMO, loff: its value is wanted */
};
enum { WORDS = 8 };

/* What did not go out at once. */
struct msg {
	struct msg *next, **home;         /* the list that it goes back to */
	size_t nhead, n;                  /* bytes of head that are left; of data */
	const char *data;
	_Atomic uint32_t *left;           /* of PE from: counted down when the data is out; may be NULL */
	int from;
	bool answer;                      /* to what was asked here: what is asked there may go before it */
	char *own;                        /* where data is if it was forgotten; else NULL */
	const char *at;                   /* what is left of: */
	char head[sizeof(struct head) + WORDS * 8];
};

/* An answer that is waited for: n bytes to dst, or to nowhere (NULL).  Answers come in the order in which they were asked for.  left NULL: it was
 * forgotten, and what comes is dropped. */
struct fetch { struct fetch *next; void *dst; uint64_t n, proves; _Atomic uint32_t *left; int from; bool value; };

struct link {
	int fd, proc;                     /* fd -1: there is none */
	_Atomic bool dead;                /* nothing goes either way any more */
	bool silent;                      /* when the thread last looked; */
	uint64_t moved;                   /* bytes so far, then, */
	double since;                     /* and since when no others, though more were to */
	struct {
		_Alignas(64) pthread_mutex_t lock;
		char *buf;
		size_t lo, hi;            /* read, but not looked at */
		bool busy;                /* in the data of a message: */
		struct head h;
		uint64_t word[WORDS];
		char *to;                 /* where the rest of it goes; NULL: nowhere */
		size_t rest;
	} in;
	struct {
		_Alignas(64) pthread_mutex_t lock;
		struct msg *first, *last, *spare, *reserve;     /* queued; for what is begun here, and for answers: not in use */
		struct fetch *idle;       /* another that asks has one */
		int n;
		_Atomic bool some, broken;        /* there are messages; nothing can be written: whether it has left or died says what can be read */
		uint64_t done;            /* messages so far that change memory */
	} out;
	struct {
		_Alignas(64) pthread_mutex_t lock;
		struct fetch *first, *last;
		uint64_t proven;          /* of out.done: known to be done there */
	} ask;
};

struct tcp {
	struct sym_world *w;
	struct link *link;                /* nproc */
	int *proc, nlink;                 /* those that have one */
	struct pollfd *poll;              /* the thread's */
	_Atomic uint32_t *open;           /* nlocal: what of a PE has a `left` that is not down yet */
	_Atomic uint32_t *quiet;          /* nlocal: whom it has asked whether all is done there, and who has not answered */
	int stop;                         /* eventfd: the thread has to look, or to end */
	_Atomic bool asleep, over;
	_Atomic uint64_t polled;          /* when somebody who waits last made progress, ns */
	pthread_t thread;
	bool started;
};

static struct tcp *of(struct sym_world *w) { return w->net_data; }
static bool tcp_poll(struct sym_world *w);

/* That something comes after what another thread has sent, since a third process was told of it in between, is more than the
 * thread sanitizer can see: for it alone, what goes and what comes is in one order. */
#ifdef __SANITIZE_THREAD__
static pthread_mutex_t wire = PTHREAD_MUTEX_INITIALIZER;
static void wire_lock(void) { pthread_mutex_lock(&wire); }
static void wire_unlock(void) { pthread_mutex_unlock(&wire); }
#else
static void wire_lock(void) { }
static void wire_unlock(void) { }
#endif

/* --- endings --------------------------------------------------------------------------------------- */

/* left may be NULL. */
static void down(struct tcp *x, int from, _Atomic uint32_t *left)
{
	if (!left)
		return;
	atomic_fetch_sub_explicit(left, 1, memory_order_release);
	atomic_fetch_sub_explicit(&x->open[from - x->w->first], 1, memory_order_release);
}

static void lost(struct tcp *x, struct link *l, int from, void *dst, size_t n, _Atomic uint32_t *left)
{
	if (dst)
		memset(dst, 0, n);
	sym_lost_data(x->w, from, l->proc);
	down(x, from, left);
}

/* Under in.lock, and no other: it has come, or never will. */
static void fetched(struct tcp *x, struct link *l, struct fetch *f, bool ever)
{
	if (!ever && f->left)
		lost(x, l, f->from, f->dst, f->n, f->left);
	else
		down(x, f->from, f->left);
	pthread_mutex_lock(&l->out.lock);
	f->next = l->out.idle;
	l->out.idle = f;
	pthread_mutex_unlock(&l->out.lock);
}

/* Under out.lock: its data may be written again. */
static void msg_over(struct tcp *x, struct msg *m)
{
	down(x, m->from, m->left);
	free(m->own);
	m->next = *m->home;
	*m->home = m;
}

/* Under out.lock: nothing more can be written. */
static void drop_all(struct tcp *x, struct link *l)
{
	for (struct msg *m = l->out.first, *next; m; m = next) {
		next = m->next;
		msg_over(x, m);
	}
	l->out.first = l->out.last = NULL;
	l->out.n = 0;
	atomic_store(&l->out.some, false);
}

/* Under in.lock: nothing more comes, nothing more goes. */
static void forsake(struct tcp *x, struct link *l, enum sym_life how)
{
	if (atomic_load(&l->dead))
		return;
	sym_gone(x->w, l->proc, how);         /* first: who sees that a count is down may ask */
	atomic_store(&l->dead, true);
	pthread_mutex_lock(&l->out.lock);
	drop_all(x, l);
	shutdown(l->fd, SHUT_RDWR);
	pthread_mutex_unlock(&l->out.lock);
	pthread_mutex_lock(&l->ask.lock);
	struct fetch *f = l->ask.first, *next;
	l->ask.first = l->ask.last = NULL;
	pthread_mutex_unlock(&l->ask.lock);
	for (; f; f = next) {
		next = f->next;
		fetched(x, l, f, false);
	}
}

/* --- writing --------------------------------------------------------------------------------------------- */

/* Write what is in v as far as it goes; under out.lock.  Gives how much went. */
static ssize_t push(struct link *l, struct iovec *v, int n)
{
	struct msghdr m = { .msg_iov = v, .msg_iovlen = (size_t)n };
	ssize_t k;

	wire_lock();
	do
		k = n == 1 ? send(l->fd, v->iov_base, v->iov_len, MSG_DONTWAIT | MSG_NOSIGNAL) : sendmsg(l->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (k < 0 && errno == EINTR);
	wire_unlock();
	if (k < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS)
		atomic_store(&l->out.broken, true);
	return MAX(k, 0);
}

/* Write some of what is queued; under out.lock.  Gives how much went. */
static size_t flush(struct tcp *x, struct link *l)
{
	struct iovec v[2 * PIECES];
	size_t went = 0;

	if (l->out.first && !atomic_load_explicit(&l->out.broken, memory_order_relaxed)) {
		size_t room = PART;
		int n = 0;
		for (struct msg *m = l->out.first; m && n < 2 * PIECES - 1 && room; m = m->next) {
			size_t a = m->nhead, b = MIN(m->n, room);
			if (a)
				v[n++] = (struct iovec){ (char *)(uintptr_t)m->at, a };
			if (b)
				v[n++] = (struct iovec){ (char *)(uintptr_t)m->data, b };
			room -= b;
		}
		ssize_t k = push(l, v, n);
		went = (size_t)k;
		for (struct msg *m; k > 0 && (m = l->out.first);) {
			size_t a = MIN((size_t)k, m->nhead), b = MIN((size_t)k - a, m->n);
			m->at += a, m->nhead -= a;
			if (b)
				m->data += b, m->n -= b;
			k -= (ssize_t)(a + b);
			if (m->nhead || m->n)
				break;
			if (!(l->out.first = m->next))
				l->out.last = NULL;
			l->out.n--;
			msg_over(x, m);
		}
	}
	if (!l->out.first)
		atomic_store(&l->out.some, false);
	return went;
}

/* Is there a message to queue with, and something to ask by?  Under out.lock. */
static bool spare(struct link *l, bool asks)
{
	if (!l->out.spare && (l->out.spare = mem_try(sizeof *l->out.spare)))
		l->out.spare->next = NULL;
	if (asks && !l->out.idle && (l->out.idle = mem_try(sizeof *l->out.idle)))
		l->out.idle->next = NULL;
	return l->out.spare && (!asks || l->out.idle);
}

/* What is to be sent to l, and whether it asks. */
struct opening { struct link *l; bool asks; };

/* Take out.lock, with what `spare` says unless l is dead; false without memory: it is not taken. */
static bool open_out(void *user)
{
	const struct opening *o = user;

	pthread_mutex_lock(&o->l->out.lock);
	if (atomic_load(&o->l->dead) || spare(o->l, o->asks))
		return true;
	pthread_mutex_unlock(&o->l->out.lock);
	return false;
}

/* Under in.lock, and no other: it takes nothing, and there is no memory to keep that. */
static void cut(struct tcp *x, struct link *l)
{
	log_line(LOG_WARN, "process %d: there is no memory for what it does not take", l->proc);
	forsake(x, l, SYM_DEAD);
}

/* Take out.lock for what cannot be left out; who takes nothing by the time `until` counts as dead. */
static void begin_by(struct tcp *x, struct link *l, double until)
{
	while (!open_out(&(struct opening){ l, false }))
		if (clock_s() > until) {
			pthread_mutex_lock(&l->in.lock);
			cut(x, l);
			pthread_mutex_unlock(&l->in.lock);
		} else if (!tcp_poll(x->w))
			nanosleep(&(struct timespec){ 0, REST_NS }, NULL);
}

/* Take out.lock for a message.  Without memory, until some of what is under way has arrived.  Who is not to wait any more has asked nothing then,
 * and no lock: false.  What changes memory goes all the same, or its process is cut off: others are told what stands behind it. */
static bool begin(struct tcp *x, struct link *l, bool asks)
{
	bool begun = sym_net_until(x->w, open_out, &(struct opening){ l, asks });

	if (!begun && !asks)
		begin_by(x, l, clock_s() + PARTING_S);
	return begun || !asks;
}

/* Send h, its words and n bytes of data, or queue what does not go at once, and all but `first` bytes, with a message of the list home, which has one
 * unless the link is dead; under out.lock.  left, if any, of PE from is counted down when the data may be written again; without it the data has to stay. */
static void put_out(struct tcp *x, struct link *l, struct msg **home, const struct head *h, const uint64_t *word, const void *data, size_t n, size_t first, int from, _Atomic uint32_t *left)
{
	char head[sizeof *h + WORDS * 8 + BRIEF];
	size_t nhead = sizeof *h + h->words * 8u, went = 0;

	memcpy(head, h, sizeof *h);
	if (h->words)
		memcpy(head + sizeof *h, word, h->words * 8u);
	if (!l->out.first && !atomic_load_explicit(&l->out.broken, memory_order_relaxed)) {
		bool brief = n <= BRIEF;          /* a copy costs less than a list */
		if (brief && n)
			memcpy(head + nhead, data, n);
		struct iovec v[2] = { { head, nhead + (brief ? n : 0) }, { (char *)(uintptr_t)data, MIN(n, first) } };
		went = (size_t)push(l, v, brief ? 1 : 2);
	}
	if (went == nhead + n || atomic_load(&l->dead)) {
		down(x, from, left);
		return;
	}
	size_t a = MIN(went, nhead);
	struct msg *m = *home;
	*home = m->next;
	*m = (struct msg){ .home = home, .nhead = nhead - a, .n = n - (went - a), .data = n ? (const char *)data + (went - a) : NULL, .left = left, .from = from,
	                   .answer = h->kind == DATA || h->kind == VALUE };
	memcpy(m->head, head, nhead);
	m->at = m->head + a;
	/* Behind an answer of megabytes a question would wait until all of them are there, and both ways of a link would go in turn.  It changes no memory, nor do answers. */
	struct msg *before = l->out.last;
	if (h->kind == GET && before && before->answer) {
		before = l->out.first;                 /* which has begun */
		for (struct msg *q = before->next; q; q = q->next)
			before = q->answer ? before : q;
	}
	m->next = before ? before->next : NULL;
	if (before)
		before->next = m;
	else
		l->out.first = m;
	l->out.last = before == l->out.last ? m : l->out.last;
	l->out.n++;
	atomic_store(&l->out.some, true);
	if (atomic_load(&x->asleep))          /* it waits for what comes only */
		eventfd_write(x->stop, 1);
}

/* Under in.lock, where what goes out cannot be waited for. */
static void answer(struct tcp *x, struct link *l, const struct head *h, const uint64_t *word, const void *data, size_t n)
{
	pthread_mutex_lock(&l->out.lock);
	bool room = l->out.reserve || spare(l, false);
	if (room)
		put_out(x, l, l->out.reserve ? &l->out.reserve : &l->out.spare, h, word, data, n, PART, 0, NULL);
	pthread_mutex_unlock(&l->out.lock);
	if (!room) {
		log_line(LOG_WARN, "process %d: there is no memory for the answers that it waits for", l->proc);
		forsake(x, l, SYM_DEAD);
	}
}

/* --- reading: under in.lock ---------------------------------------------------------------------------------- */

/* n bytes of a heap of ours; NULL if they are not in it. */
static char *place(struct tcp *x, int pe, uint64_t off, uint64_t n)
{
	struct sym_world *w = x->w;

	if (!sym_local(w, pe) || off > w->region.each || n > w->region.each - off)
		return NULL;
	return w->region.base + (size_t)(pe - w->first) * w->region.each + off;
}

/* The next answer, if it is of this form. */
static struct fetch *asked(struct link *l, const struct head *h)
{
	pthread_mutex_lock(&l->ask.lock);
	struct fetch *f = l->ask.first;
	pthread_mutex_unlock(&l->ask.lock);
	return f && f->n == h->n && f->value == (h->kind == VALUE) ? f : NULL;
}

static void arrived(struct tcp *x, struct link *l)
{
	pthread_mutex_lock(&l->ask.lock);
	struct fetch *f = l->ask.first;
	if (!(l->ask.first = f->next))
		l->ask.last = NULL;
	l->ask.proven = MAX(l->ask.proven, f->proves);
	pthread_mutex_unlock(&l->ask.lock);
	fetched(x, l, f, true);
}

/* A message whose data, if any, has come. */
static void complete(struct tcp *x, struct link *l)
{
	const struct head *h = &l->in.h;

	switch (h->kind) {
	case PUT:                         /* whoever sees what a later message writes sees this */
		atomic_thread_fence(memory_order_release);
		break;
	case LINE:
	case PUT_LINE:
		sym_deliver(x->w, h->pe, place(x, h->pe, h->loff, h->words * 8u), l->in.word, h->words);
		break;
	case DATA:
		arrived(x, l);
		break;
	case VALUE:
		if (l->ask.first->left && l->ask.first->dst)
			memcpy(l->ask.first->dst, l->in.word, 8);
		arrived(x, l);
		break;
	case GET:
		answer(x, l, &(struct head){ .kind = DATA, .n = h->n }, NULL, place(x, h->pe, h->off, h->n), h->n);
		break;
	case AMO: {
		uint64_t was = 0;
		if (h->n) {
			was = sym_amo_at(place(x, h->pe, h->off, h->n), (int)h->n, (enum sym_amo)h->op, l->in.word[0], l->in.word[1]);
			sym_notify(x->w, h->pe);
		}
		if (h->loff)
			answer(x, l, &(struct head){ .kind = VALUE, .words = 1, .n = 8 }, &was, NULL, 0);
		break;
	}
	case BYE:
		forsake(x, l, SYM_LEFT);
		break;
	}
}

/* Is h a message that a process of this job sends?  Sets where its data goes. */
static bool sound(struct tcp *x, struct link *l)
{
	struct head *h = &l->in.h;
	struct fetch *f;

	l->in.rest = 0;
	l->in.to = NULL;
	switch (h->kind) {
	case LINE:
	case PUT_LINE:
		if (h->words < 1 || h->loff % 8 || !place(x, h->pe, h->loff, h->words * 8u))
			return false;
		if (h->kind == LINE)
			return !h->n;
		/* fall through */
	case PUT:
		l->in.to = place(x, h->pe, h->off, h->n);
		l->in.rest = h->n;
		return l->in.to && (h->kind == PUT_LINE || !h->words);
	case GET:
		return !h->words && place(x, h->pe, h->off, h->n);
	case DATA:
		if (h->words || !(f = asked(l, h)))
			return false;
		l->in.to = f->left ? f->dst : NULL;
		l->in.rest = h->n;
		return true;
	case VALUE:
		return h->words == 1 && asked(l, h);
	case AMO:
		return h->words == 2 && h->op <= SYM_CAS && (h->n == 0 || ((h->n == 4 || h->n == 8) && h->off % h->n == 0 && place(x, h->pe, h->off, h->n)));
	case BYE:
		return !h->words;
	}
	return false;
}

/* Take messages from the buffer. */
static void take(struct tcp *x, struct link *l)
{
	while (!atomic_load_explicit(&l->dead, memory_order_relaxed)) {
		size_t have = l->in.hi - l->in.lo;
		if (!l->in.busy) {
			if (have < sizeof l->in.h)
				return;
			memcpy(&l->in.h, l->in.buf + l->in.lo, sizeof l->in.h);
			size_t n = sizeof l->in.h + l->in.h.words * 8u;
			if (l->in.h.words <= WORDS && have < n)
				return;
			if (l->in.h.words > WORDS || !sound(x, l)) {
				log_line(LOG_WARN, "process %d sent what is no message", l->proc);
				forsake(x, l, SYM_DEAD);
				return;
			}
			memcpy(l->in.word, l->in.buf + l->in.lo + sizeof l->in.h, l->in.h.words * 8u);
			l->in.lo += n;
			have -= n;
			l->in.busy = true;
		}
		size_t k = MIN(have, l->in.rest);
		if (k && l->in.to) {
			memcpy(l->in.to, l->in.buf + l->in.lo, k);
			l->in.to += k;
		}
		l->in.lo += k;
		l->in.rest -= k;
		if (l->in.rest)
			return;
		l->in.busy = false;
		complete(x, l);
	}
}

/* Read what has come, but not for too long; true if something has. */
static bool look(struct tcp *x, struct link *l)
{
	size_t all = 0;

	while (all < TURN && !atomic_load_explicit(&l->dead, memory_order_relaxed)) {
		struct iovec v[2];
		int n = 0;
		if (l->in.lo) {
			memmove(l->in.buf, l->in.buf + l->in.lo, l->in.hi - l->in.lo);
			l->in.hi -= l->in.lo;
			l->in.lo = 0;
		}
		bool there = l->in.busy && l->in.to;
		if (there)
			v[n++] = (struct iovec){ l->in.to, l->in.rest };
		v[n++] = (struct iovec){ l->in.buf + l->in.hi, ROOM - l->in.hi };
		size_t want = v[0].iov_len + (n == 2 ? v[1].iov_len : 0);
		struct msghdr m = { .msg_iov = v, .msg_iovlen = (size_t)n };
		wire_lock();
		ssize_t k = n == 1 ? recv(l->fd, v[0].iov_base, v[0].iov_len, MSG_DONTWAIT) : recvmsg(l->fd, &m, MSG_DONTWAIT);
		wire_unlock();
		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM))
			break;
		if (k <= 0) {
			log_line(LOG_INFO, "process %d: its connection has ended: %s", l->proc, k ? strerror(errno) : "closed");
			/* To a goodbye the other answers by closing. */
			forsake(x, l, atomic_load(&x->over) ? SYM_LEFT : SYM_DEAD);
			return true;
		}
		all += (size_t)k;
		bool drained = (size_t)k < want;
		if (there) {
			size_t d = MIN((size_t)k, l->in.rest);
			l->in.to += d;
			l->in.rest -= d;
			k -= (ssize_t)d;
			if (!l->in.rest) {
				l->in.busy = false;
				complete(x, l);
			}
		}
		l->in.hi += (size_t)k;
		take(x, l);
		if (drained)
			break;
	}
	return all;
}

/* --- progress ----------------------------------------------------------------------------------------------------- */

static bool serve(struct tcp *x, struct link *l)
{
	bool some = false;

	if (atomic_load_explicit(&l->dead, memory_order_relaxed))
		return false;
	if (atomic_load_explicit(&l->out.some, memory_order_relaxed) && !pthread_mutex_trylock(&l->out.lock)) {
		some = flush(x, l);
		pthread_mutex_unlock(&l->out.lock);
	}
	if (!pthread_mutex_trylock(&l->in.lock)) {
		some |= look(x, l);
		pthread_mutex_unlock(&l->in.lock);
	} else
		sched_yield();                /* whoever is at it may have lost the core to this thread */
	return some;
}

/* For poll: n links from lo on. */
static void to_poll(struct tcp *x, struct pollfd *f, int lo, int n)
{
	for (int i = 0; i < n; i++) {
		struct link *l = &x->link[x->proc[lo + i]];
		f[i] = (struct pollfd){ atomic_load(&l->dead) ? -1 : l->fd, (short)(POLLIN | (atomic_load(&l->out.some) ? POLLOUT : 0)), 0 };
	}
}

static bool turn(struct tcp *x)
{
	bool some = false;

	if (x->nlink <= DIRECT) {
		for (int i = 0; i < x->nlink; i++)
			some |= serve(x, &x->link[x->proc[i]]);
		return some;
	}
	for (int lo = 0; lo < x->nlink; lo += AT_ONCE) {
		struct pollfd f[AT_ONCE];
		int n = MIN(AT_ONCE, x->nlink - lo);
		to_poll(x, f, lo, n);
		for (int i = 0, k = poll(f, (nfds_t)n, 0); i < n && k > 0; i++)
			if (f[i].revents)
				some |= serve(x, &x->link[x->proc[lo + i]]);
	}
	return some;
}

static bool tcp_poll(struct sym_world *w)
{
	static _Thread_local unsigned polls;
	struct tcp *x = of(w);

	bool some = turn(x);
	if (some || !(polls++ % STAMP))
		atomic_store_explicit(&x->polled, clock_ns(), memory_order_relaxed);
	return some;
}

/* Has the other side's kernel been asked, and not been heard for long?  Ours asks in time, whether something is in flight, nothing
 * is, or there is no room for it.  Its own limit does not do: TCP_USER_TIMEOUT begins anew with what is sent into the silence, and
 * ends a connection whose other side is there but does not read. */
static bool silent(const struct tcp_info *i)
{
	return (i->tcpi_probes || (i->tcpi_unacked && i->tcpi_retransmits)) && MIN(i->tcpi_last_ack_recv, i->tcpi_last_data_recv) > SILENT_MS;
}

/* Who is silent twice in a row is gone: once, the answer may be on its way.  Who is there, but takes and sends nothing of what is
 * under way, counts as gone after RONDO_TIMEOUT: what has been begun cannot be called back otherwise. */
static void listen_for(struct tcp *x)
{
	double now = clock_s(), patience = x->w->patience;

	for (int k = 0; k < x->nlink; k++) {
		struct link *l = &x->link[x->proc[k]];
		struct tcp_info i = { 0 };
		socklen_t n = sizeof i;
		bool was = l->silent;
		if (atomic_load(&l->dead) || getsockopt(l->fd, IPPROTO_TCP, TCP_INFO, &i, &n))
			continue;
		pthread_mutex_lock(&l->ask.lock);
		bool more = l->ask.first || atomic_load(&l->out.some);
		pthread_mutex_unlock(&l->ask.lock);
		uint64_t moved = i.tcpi_bytes_acked + i.tcpi_bytes_received;
		if (!more || moved != l->moved)
			l->since = now;
		l->moved = moved;
		l->silent = silent(&i);
		bool stuck = patience && now - l->since > patience;
		if (!stuck && !(was && l->silent))
			continue;
		log_line(stuck ? LOG_WARN : LOG_INFO, "process %d: %s for %.0f s", l->proc, stuck ? "it has taken and sent nothing (RONDO_TIMEOUT)" : "nothing has come from its host",
		         stuck ? now - l->since : SILENT_MS / 1e3);
		pthread_mutex_lock(&l->in.lock);
		forsake(x, l, SYM_DEAD);
		pthread_mutex_unlock(&l->in.lock);
	}
}

static void *progress_main(void *v)
{
	struct tcp *x = v;
	struct pollfd *f = x->poll;
	uint64_t listened = clock_ns();

	while (!atomic_load(&x->over)) {
		if (clock_ns() - listened > LISTEN_MS * 1000000ull) {
			listen_for(x);
			listened = clock_ns();
		}
		f[0] = (struct pollfd){ x->stop, POLLIN, 0 };
		/* Who waits makes progress itself; two at it are in each other's way. */
		if (clock_ns() - atomic_load_explicit(&x->polled, memory_order_relaxed) < REST_NS)
			ppoll(f, 1, &(struct timespec){ 0, REST_NS }, NULL);
		else if (turn(x))
			continue;
		else {
			atomic_store(&x->asleep, true);
			to_poll(x, f + 1, 0, x->nlink);     /* looks at what is queued after that */
			poll(f, (nfds_t)x->nlink + 1, LISTEN_MS);
			atomic_store(&x->asleep, false);
		}
		eventfd_t n;
		if (f[0].revents)
			eventfd_read(x->stop, &n);
	}
	return NULL;
}

/* --- the calls of a transport --------------------------------------------------------------------------------------- */

static struct link *link_of(struct sym_world *w, int pe) { return &of(w)->link[w->peer[pe].proc]; }

/* A message has been given to l: nothing is left to find out, nor too much to remember. */
static void given(struct tcp *x, struct link *l)
{
	if (atomic_load_explicit(&l->out.broken, memory_order_relaxed) && !atomic_load(&l->dead)) {
		pthread_mutex_lock(&l->in.lock);
		while (!atomic_load(&l->dead))
			if (!look(x, l)) {        /* it can still be read, but not written */
				forsake(x, l, SYM_DEAD);
				break;
			}
		pthread_mutex_unlock(&l->in.lock);
	}
	for (;;) {
		pthread_mutex_lock(&l->out.lock);
		bool much = l->out.n > QUEUE;
		pthread_mutex_unlock(&l->out.lock);
		if (!much || sym_halted(x->w))
			return;
		if (!tcp_poll(x->w))
			sched_yield();
	}
}

/* Send something that changes memory.  Of data that is waited for, the rest goes by turns with what comes; who does not wait may
 * do something else now, so as much as possible goes first. */
static void post(struct sym_world *w, int from, int pe, struct head h, const uint64_t *word, const void *data, size_t n, size_t first, _Atomic uint32_t *left)
{
	struct tcp *x = of(w);
	struct link *l = link_of(w, pe);

	h.pe = pe;
	if (left)
		atomic_fetch_add(&x->open[from - w->first], 1);
	begin(x, l, false);
	l->out.done++;
	put_out(x, l, &l->out.spare, &h, word, data, n, first, from, left);
	bool busy = l->out.n > QUEUE || atomic_load_explicit(&l->out.broken, memory_order_relaxed);
	pthread_mutex_unlock(&l->out.lock);
	if (busy)
		given(x, l);
}

/* Ask for n bytes, or a value, to dst. */
static void ask(struct sym_world *w, int from, int pe, struct head h, const uint64_t *word, void *dst, size_t n, _Atomic uint32_t *left)
{
	struct tcp *x = of(w);
	struct link *l = link_of(w, pe);

	h.pe = pe;
	atomic_fetch_add(&x->open[from - w->first], 1);
	if (!begin(x, l, true)) {
		if (dst)
			memset(dst, 0, n);
		down(x, from, left);
		return;
	}
	l->out.done += h.kind == AMO && h.n;
	pthread_mutex_lock(&l->ask.lock);
	bool dead = atomic_load(&l->dead);
	if (!dead) {
		struct fetch *f = l->out.idle;
		l->out.idle = f->next;
		*f = (struct fetch){ .dst = dst, .n = n, .proves = l->out.done, .left = left, .from = from, .value = h.kind == AMO };
		if (l->ask.last)
			l->ask.last->next = f;
		else
			l->ask.first = f;
		l->ask.last = f;
	}
	pthread_mutex_unlock(&l->ask.lock);
	if (!dead)
		put_out(x, l, &l->out.spare, &h, word, NULL, 0, 0, 0, NULL);
	bool broken = atomic_load_explicit(&l->out.broken, memory_order_relaxed);
	pthread_mutex_unlock(&l->out.lock);
	if (dead)
		lost(x, l, from, dst, n, left);
	else if (broken)
		given(x, l);
}

/* False without memory for what has not gone. */
static bool forget_sent(struct tcp *x, struct link *l, const _Atomic uint32_t *left)
{
	bool all = true;

	for (struct msg *m = l->out.first; m; m = m->next)
		if (m->left == left && m->n && !(m->own = malloc(m->n)))
			all = false;
		else if (m->left == left) {
			if (m->n)
				m->data = memcpy(m->own, m->data, m->n);
			down(x, m->from, m->left);
			m->left = NULL;
		}
	return all;
}

static void forget_asked(struct tcp *x, struct link *l, const _Atomic uint32_t *left)
{
	for (struct fetch *f = l->ask.first; f; f = f->next)
		if (f->left == left) {
			if (l->in.busy && l->in.h.kind == DATA && f == l->ask.first)
				l->in.to = NULL;
			if (f->dst)
				memset(f->dst, 0, f->n);
			down(x, f->from, f->left);
			f->left = NULL;
		}
}

static void tcp_forget(struct sym_world *w, _Atomic uint32_t *left)
{
	double until = clock_s() + PARTING_S;
	struct tcp *x = of(w);

	while (atomic_load_explicit(left, memory_order_acquire)) {
		bool all = true;
		for (int i = 0; i < x->nlink; i++) {
			struct link *l = &x->link[x->proc[i]];
			pthread_mutex_lock(&l->in.lock);
			pthread_mutex_lock(&l->out.lock);
			bool kept = forget_sent(x, l, left);
			pthread_mutex_lock(&l->ask.lock);
			forget_asked(x, l, left);
			pthread_mutex_unlock(&l->ask.lock);
			pthread_mutex_unlock(&l->out.lock);
			if (!kept && clock_s() > until)
				cut(x, l);
			pthread_mutex_unlock(&l->in.lock);
			all &= kept;
		}
		if (!all && !tcp_poll(w))         /* some of it has to go */
			nanosleep(&(struct timespec){ 0, REST_NS }, NULL);
	}
}

/* What counts left down is waited for, or forgotten. */
static void await(struct sym_world *w, _Atomic uint32_t *left)
{
	if (!sym_net_await(w, left))
		tcp_forget(w, left);
}

static void tcp_get_nb(struct sym_world *w, int from, int pe, void *dst, size_t off, size_t n, _Atomic uint32_t *left)
{
	if (!n) {
		atomic_fetch_sub_explicit(left, 1, memory_order_release);
		return;
	}
	/* In pieces, between which what the other side asks can go. */
	atomic_fetch_add_explicit(left, (uint32_t)((n - 1) / ASKED), memory_order_relaxed);
	for (size_t at = 0, some; at < n; at += some) {
		some = MIN((size_t)ASKED, n - at);
		ask(w, from, pe, (struct head){ .kind = GET, .n = some, .off = off + at }, NULL, (char *)dst + at, some, left);
	}
}

static void tcp_put_nb(struct sym_world *w, int from, int pe, size_t off, const void *src, size_t n, _Atomic uint32_t *left)
{
	post(w, from, pe, (struct head){ .kind = PUT, .n = n, .off = off }, NULL, src, n, SIZE_MAX, left);
}

static void tcp_put(struct sym_world *w, int from, int pe, size_t off, const void *src, size_t n)
{
	_Atomic uint32_t left = 1;

	post(w, from, pe, (struct head){ .kind = PUT, .n = n, .off = off }, NULL, src, n, PART, &left);
	await(w, &left);
}

static void tcp_line(struct sym_world *w, int from, int pe, size_t off, const uint64_t *word, int n)
{
	post(w, from, pe, (struct head){ .kind = LINE, .words = (uint8_t)n, .loff = off }, word, NULL, 0, 0, NULL);
}

static void tcp_put_line(struct sym_world *w, int from, int pe, size_t off, const void *src, size_t n, size_t loff, const uint64_t *word, int nword)
{
	_Atomic uint32_t left = 1;

	post(w, from, pe, (struct head){ .kind = PUT_LINE, .words = (uint8_t)nword, .n = n, .off = off, .loff = loff }, word, src, n, PART, &left);
	await(w, &left);
}

static void tcp_amo(struct sym_world *w, int from, int pe, enum sym_amo op, int bytes, size_t off, uint64_t v, uint64_t cond, uint64_t *old)
{
	struct head h = { .kind = AMO, .words = 2, .op = (uint8_t)op, .n = (uint64_t)bytes, .off = off, .loff = old != NULL };
	uint64_t word[2] = { v, cond };
	_Atomic uint32_t left = 1;

	if (!old) {
		post(w, from, pe, h, word, NULL, 0, 0, NULL);
		return;
	}
	ask(w, from, pe, h, word, old, 8, &left);
	await(w, &left);
}

/* The stream keeps the order, and who reads it does. */
static void tcp_fence(struct sym_world *w, int from, int pe) { }

static void tcp_quiet(struct sym_world *w, int from)
{
	static const uint64_t nothing[2];
	struct tcp *x = of(w);
	_Atomic uint32_t *left = &x->quiet[from - w->first];

	/* Ask those that do not know yet whether all was done: an atomic on no bytes. */
	for (int i = 0; i < x->nlink; i++) {
		struct link *l = &x->link[x->proc[i]];
		pthread_mutex_lock(&l->out.lock);
		pthread_mutex_lock(&l->ask.lock);
		bool known = atomic_load(&l->dead) || l->ask.proven == l->out.done;
		pthread_mutex_unlock(&l->ask.lock);
		pthread_mutex_unlock(&l->out.lock);
		if (known)
			continue;
		atomic_fetch_add(left, 1);
		ask(w, from, w->process[l->proc].first, (struct head){ .kind = AMO, .words = 2, .loff = 1 }, nothing, NULL, 8, left);
	}
	await(w, left);
	sym_net_await(w, &x->open[from - w->first]);      /* each is somebody's, who waits for it or has it forgotten */
}

/* Say goodbye, and stay until it has arrived: a socket that is closed with something unread takes back what is on its way. */
static void part(struct tcp *x)
{
	double until = clock_s() + PARTING_S;

	for (int i = 0; i < x->nlink; i++) {
		struct link *l = &x->link[x->proc[i]];
		begin_by(x, l, until);
		put_out(x, l, &l->out.spare, &(struct head){ .kind = BYE }, NULL, NULL, 0, 0, 0, NULL);
		pthread_mutex_unlock(&l->out.lock);
	}
	for (int open = 1; open && clock_s() < until;) {
		open = 0;
		bool some = turn(x);
		for (int i = 0; i < x->nlink; i++) {
			struct link *l = &x->link[x->proc[i]];
			int n = 0;
			if (!atomic_load(&l->dead))
				open += atomic_load(&l->out.some) || (!ioctl(l->fd, SIOCOUTQ, &n) && n);
		}
		if (open && !some)
			nanosleep(&(struct timespec){ 0, REST_NS }, NULL);
	}
}

static void messages_free(struct msg *m)
{
	for (struct msg *next; m; m = next) {
		next = m->next;
		free(m);
	}
}

static void fetches_free(struct fetch *f)
{
	for (struct fetch *next; f; f = next) {
		next = f->next;
		free(f);
	}
}

static void tcp_close(struct sym_world *w)
{
	struct tcp *x = of(w);

	if (!x)
		return;
	if (x->started) {
		atomic_store(&x->over, true);
		eventfd_write(x->stop, 1);
		pthread_join(x->thread, NULL);
		part(x);
	}
	for (int k = 0; k < w->nproc && x->link; k++) {
		struct link *l = &x->link[k];
		if (l->fd < 0)
			continue;
		pthread_mutex_lock(&l->out.lock);
		drop_all(x, l);
		pthread_mutex_unlock(&l->out.lock);
		fetches_free(l->ask.first);
		fetches_free(l->out.idle);
		messages_free(l->out.spare);
		messages_free(l->out.reserve);
		close(l->fd);
		free(l->in.buf);
		pthread_mutex_destroy(&l->in.lock);
		pthread_mutex_destroy(&l->out.lock);
		pthread_mutex_destroy(&l->ask.lock);
	}
	if (x->stop >= 0)
		close(x->stop);
	free(x->link);
	free(x->proc);
	free(x->poll);
	free(x->open);
	free(x->quiet);
	free(x);
	w->net_data = NULL;
}

struct err *sym_tcp_open(struct sym_world *w, const struct kv *kv, const char *token, const bool *reach, double until)
{
	int *fd = mem_alloc((size_t)w->nproc * sizeof *fd);
	struct err *e = NULL;

	w->net = &sym_tcp;
	struct tcp *x = w->net_data = mem_alloc(sizeof *x);
	x->w = w;
	x->stop = -1;
	x->link = mem_lines((size_t)w->nproc * sizeof *x->link);
	for (int k = 0; k < w->nproc; k++)
		x->link[k].fd = -1;
	x->proc = mem_alloc((size_t)w->nproc * sizeof *x->proc);
	x->open = mem_alloc((size_t)w->nlocal * sizeof *x->open);
	x->quiet = mem_alloc((size_t)w->nlocal * sizeof *x->quiet);
	x->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (x->stop < 0) {
		e = ERR(EXHAUSTED, "eventfd: %s", strerror(errno));
		goto out;
	}
	TRY_GOTO(e, sym_dial(w, kv, token, reach, until, fd), out);
	for (int k = 0; k < w->nproc; k++) {
		struct link *l = &x->link[k];
		if (fd[k] < 0)
			continue;
		l->fd = fd[k];
		l->proc = k;
		pthread_mutex_init(&l->in.lock, NULL);
		pthread_mutex_init(&l->out.lock, NULL);
		pthread_mutex_init(&l->ask.lock, NULL);
		x->proc[x->nlink++] = k;
	}
	for (int i = 0; i < x->nlink; i++) {
		struct link *l = &x->link[x->proc[i]];
		l->in.buf = mem_lines(ROOM);
		for (int n = 0; n < 2 * RESERVE; n++) {
			struct msg *m = mem_alloc(sizeof *m), **list = n < RESERVE ? &l->out.reserve : &l->out.spare;
			m->next = *list;
			*list = m;
		}
		for (int n = 0; n < RESERVE; n++) {
			struct fetch *f = mem_alloc(sizeof *f);
			f->next = l->out.idle;
			l->out.idle = f;
		}
	}
	x->poll = mem_alloc((size_t)(x->nlink + 1) * sizeof *x->poll);
	int r = pthread_create(&x->thread, NULL, progress_main, x);
	if (r)
		e = ERR(EXHAUSTED, "cannot start a thread: %s", strerror(r));
	else
		x->started = true;
out:
	free(fd);
	return e;
}

const struct sym_transport sym_tcp = { .name = "tcp", .close = tcp_close, .get = sym_net_get, .put = tcp_put, .get_nb = tcp_get_nb, .put_nb = tcp_put_nb,
                                      .line = tcp_line, .put_line = tcp_put_line, .amo = tcp_amo, .fence = tcp_fence, .quiet = tcp_quiet, .forget = tcp_forget, .poll = tcp_poll };
