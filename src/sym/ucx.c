/* Other hosts, through UCX (openucx.org): whatever network it finds, TCP at the least.
 *
 * Everything is an active message to the process of the target, which copies into the heap itself: nothing has to
 * be registered, so a heap may be as large and as sparse as it likes.  UCX does not promise that messages of
 * different sizes arrive in the order in which they were sent, so what changes memory carries a number for each pair of
 * processes; a line is written, an atomic done, when all numbers before it are.  A put needs no answer for that.
 *
 * One worker a process, under one lock.  A thread of our own makes progress, so that memory is one-sided also
 * while the process computes; whoever waits makes progress as well.  The library is loaded when it is needed. */
#include "impl.h"

#if __has_include(<ucp/api/ucp.h>)

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <ucp/api/ucp.h>

enum { SMALL = 1 << 10, COPY = 16 << 10, HEAD = 32 << 10, WHOLE = 72 << 10, ADDRESS = 1 << 16, REST_NS = 200000, PARTING_S = 2, LOOK_MS = 50, SETTLE_S = 5 };
#define PLUGGED 0x10000 /* IFF_LOWER_UP, which only linux/if.h has */
enum kind { LINE = 1, PUT, PUT_LINE, GET, DATA, AMO, VALUE, HELLO, BYE };

/* --- the library ------------------------------------------------------------------------------ */

#define UCP(X) \
	X(ucp_init_version) X(ucp_cleanup) X(ucp_config_read) X(ucp_config_modify) X(ucp_config_release) X(ucp_worker_create) \
	X(ucp_worker_destroy) X(ucp_worker_get_address) X(ucp_worker_release_address) X(ucp_worker_progress) X(ucp_worker_get_efd) \
	X(ucp_worker_arm) X(ucp_worker_set_am_recv_handler) X(ucp_ep_create) X(ucp_ep_flush_nbx) X(ucp_ep_close_nbx) X(ucp_am_send_nbx) \
	X(ucp_am_recv_data_nbx) X(ucp_request_free) X(ucp_request_check_status) X(ucp_get_version) X(ucp_context_print_info)

static struct {
#define X(name) __typeof__(name) *name;
	UCP(X)
#undef X
	const char *(*ucs_status_string)(ucs_status_t s);
} u;

static struct err *load(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static void *lib;
	struct err *e = NULL;

	pthread_mutex_lock(&lock);
	if (!lib) {
		lib = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
		const char *missing = NULL;
		void *f = NULL;
#define X(name) \
		if (lib && !(f = dlsym(lib, #name))) \
			missing = #name; \
		else if (lib) \
			memcpy(&u.name, &f, sizeof f);
		UCP(X)
		X(ucs_status_string)
#undef X
		if (!lib)
			e = ERR(UNAVAILABLE, "cannot load UCX, the road to other hosts (package libucx0): %s", dlerror());
		else if (missing) {
			e = ERR(UNAVAILABLE, "this UCX has no function '%s'", missing);
			dlclose(lib);
			lib = NULL;
		}
	}
	pthread_mutex_unlock(&lock);
	return e;
}

/* --- state ------------------------------------------------------------------------------------- */

struct head {
	uint32_t kind, n;                 /* n: words of a line, bytes of anything else */
	int32_t from, pe;                 /* process that sends; PE whose heap is meant */
	uint64_t off, seq, cookie;        /* cookie: of an answer; of a PUT_LINE where the line goes */
	uint64_t word[8];                 /* of a line; operation, operands and value of an atomic; the token of a greeting */
};

/* A message under way.  left is counted down when what it points to may be written again; then it is in the list of such. */
struct msg { struct head h; struct spare *of; _Atomic uint32_t *left; struct ucx *x; struct msg *next, **at; int pe, proc; char data[]; };   /* pe: whose left it is */

struct waiting { struct waiting *next; struct head h; };
/* Of one process. */
struct link {
	ucp_ep_h ep;
	uint64_t sent;                    /* numbers given */
	uint64_t next;                    /* the first that is not done here */
	struct waiting *line;             /* what came, but not all before it */
	bool greeted;
};

/* An answer that is waited for: n bytes to dst.  left is counted down when it has come, or never will.  dst NULL: it was forgotten,
 * and left is nobody's. */
struct fetch { void *dst; size_t n; _Atomic uint32_t *left; int proc, from; bool busy, lost; };

struct ucx {
	struct sym_world *w;
	ucp_context_h ctx;
	ucp_worker_h worker;
	pthread_mutex_t lock;             /* of all below, and of every call into the library */
	struct link *link;                /* nproc */
	struct fetch *get;                /* nget, by cookie - 1; left NULL: free */
	size_t nget;
	_Atomic uint32_t *open;           /* nlocal: what of a PE has a `left` that is not down yet */
	struct msg *lent;                 /* messages with a left */
	_Atomic uint32_t nobody;
	int efd, stop, flying;            /* flying: messages under way */
	_Atomic uint64_t polled;          /* when somebody who waits last made progress, ns */
	pthread_t thread;
	bool met, started, poor;          /* met: progress has begun; poor: there was no memory for a message */
	char token[64];
};

/* What is received straight into a heap. */
struct landing { struct ucx *x; struct head h; };

/* What comes and goes with every message is kept: messages by how much data is copied into them. */
static struct spare bare = SPARE(sizeof(struct msg)), small = SPARE(sizeof(struct msg) + SMALL), full = SPARE(sizeof(struct msg) + COPY), waitings = SPARE(sizeof(struct waiting)), landings = SPARE(sizeof(struct landing));

static struct err *fail(const char *what, ucs_status_t s) { return ERR(UNAVAILABLE, "UCX: %s: %s", what, u.ucs_status_string(s)); }

/* --- receiving: inside progress, so under the lock ------------------------------------------------- */

static char *place(struct ucx *x, const struct head *h, size_t n)
{
	struct sym_world *w = x->w;

	if (!sym_local(w, h->pe) || h->off > w->region.each || n > w->region.each - h->off)
		return NULL;
	return w->region.base + (size_t)(h->pe - w->first) * w->region.each + h->off;
}

static void post(struct ucx *x, int proc, const struct head *h, const void *data, size_t n, bool copy, int from, _Atomic uint32_t *left);

/* One of from's is complete. */
static void down(struct ucx *x, int from, _Atomic uint32_t *left)
{
	atomic_fetch_sub_explicit(left, 1, memory_order_release);
	atomic_fetch_sub_explicit(&x->open[from - x->w->first], 1, memory_order_release);
}

/* The answer with this cookie has come, or will not. */
static void fetched(struct ucx *x, uint64_t cookie, bool lost)
{
	struct fetch *f = &x->get[cookie - 1];
	_Atomic uint32_t *left = f->left;

	f->left = NULL;
	if (!f->dst)
		return;
	if (lost || f->lost) {
		memset(f->dst, 0, f->n);
		sym_lost_data(x->w, f->from, f->proc);
	}
	down(x, f->from, left);
}

/* No answers will come from proc any more. */
static void forsake(struct ucx *x, int proc, enum sym_life how)
{
	sym_gone(x->w, proc, how);
	for (size_t i = 0; i < x->nget; i++) {
		struct fetch *f = &x->get[i];
		if (f->left && f->proc == proc && !f->busy)
			fetched(x, i + 1, true);
		else if (f->left && f->proc == proc)
			f->lost = true;           /* the library ends what it has begun */
	}
}

/* There was no memory for a message of proc, or to it.  A jump to a guard would leave the lock closed, and pass the library. */
static void give_up(struct ucx *x, int proc)
{
	log_line(LOG_WARN, "out of host memory: messages between this process and process %d are lost", proc);
	x->poor = true;
	forsake(x, proc, SYM_DEAD);
}

/* What changes memory, and whose turn has come.  What a PUT brought is in its place already. */
static void act(struct ucx *x, const struct head *h)
{
	struct head l = *h;

	if (h->kind == PUT)
		return;
	if (h->kind == PUT_LINE)
		l.off = h->cookie;
	char *at = place(x, &l, h->kind == AMO ? h->n : h->n * 8);
	if (h->kind != AMO && at)
		sym_deliver(x->w, h->pe, at, h->word, (int)h->n);
	if (h->kind == AMO) {
		struct head r = { VALUE, 8, x->w->proc, h->pe, 0, 0, h->cookie, { 0 } };
		if (at && h->n) {
			r.word[0] = sym_amo_at(at, (int)h->n, (enum sym_amo)h->word[0], h->word[1], h->word[2]);
			sym_notify(x->w, h->pe);
		}
		if (h->cookie)
			post(x, h->from, &r, NULL, 0, true, 0, NULL);
	}
}

/* Do what waited for number l->next, one after the other. */
static void advance(struct ucx *x, struct link *l)
{
	for (bool more = true; more;) {
		more = false;
		for (struct waiting **q = &l->line; *q; q = &(*q)->next)
			if ((*q)->h.seq == l->next) {
				struct waiting *v = *q;
				*q = v->next;
				act(x, &v->h);
				spare_give(&waitings, v);
				l->next++;
				more = true;
				break;
			}
	}
}

static void in_turn(struct ucx *x, struct link *l, const struct head *h)
{
	if (h->seq == l->next) {
		act(x, h);
		l->next++;
		advance(x, l);
		return;
	}
	struct waiting *v = spare_take(&waitings);
	if (!v) {
		give_up(x, h->from);
		return;
	}
	v->h = *h;
	v->next = l->line;
	l->line = v;
}

static void landed(void *request, ucs_status_t status, size_t n, void *user)
{
	struct landing *g = user;

	if (g->h.kind == DATA)
		fetched(g->x, g->h.cookie, status != UCS_OK);
	else if (status == UCS_OK)
		in_turn(g->x, &g->x->link[g->h.from], &g->h);
	spare_give(&landings, g);
	if (request)
		u.ucp_request_free(request);
}

static struct fetch *asked(struct ucx *x, const struct head *h, size_t n)
{
	if (h->cookie == 0 || h->cookie > x->nget)
		return NULL;
	struct fetch *f = &x->get[h->cookie - 1];
	return f->left && f->n == n && f->proc == h->from ? f : NULL;
}

static ucs_status_t receive(void *user, const void *header, size_t nheader, void *data, size_t n, const ucp_am_recv_param_t *p)
{
	struct ucx *x = user;
	struct head h;

	if (nheader != sizeof h)
		return UCS_OK;
	memcpy(&h, header, sizeof h);
	if (h.from < 0 || h.from >= x->w->nproc || !x->link)
		return UCS_OK;
	struct link *l = &x->link[h.from];
	if (h.kind == HELLO) {
		l->greeted |= !memcmp(h.word, x->token, sizeof h.word);
		return UCS_OK;
	}
	if (h.kind == BYE) {
		forsake(x, h.from, SYM_LEFT);
		return UCS_OK;
	}
	if ((h.kind == LINE && h.n >= 1 && h.n <= 8) || (h.kind == AMO && (h.n == 0 || h.n == 4 || h.n == 8))) {
		in_turn(x, l, &h);
		return UCS_OK;
	}
	if (h.kind == VALUE) {
		struct fetch *f = asked(x, &h, 8);
		if (f && f->dst)
			memcpy(f->dst, h.word, 8);
		if (f)
			fetched(x, h.cookie, false);
		return UCS_OK;
	}
	if (h.kind == GET) {
		char *at = place(x, &h, h.n);
		struct head r = { DATA, h.n, x->w->proc, h.pe, 0, 0, h.cookie, { 0 } };
		if (at)
			post(x, h.from, &r, at, h.n, false, 0, NULL);
		return UCS_OK;
	}
	if (h.kind != PUT && h.kind != DATA && (h.kind != PUT_LINE || h.n < 1 || h.n > 8))
		return UCS_OK;
	struct fetch *f = h.kind == DATA ? asked(x, &h, n) : NULL;
	char *to = h.kind != DATA ? place(x, &h, n) : f ? f->dst : NULL;
	if (f && !to)
		fetched(x, h.cookie, false);
	if (!to)
		return UCS_OK;
	if (!(p->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
		memcpy(to, data, n);
		if (f)
			fetched(x, h.cookie, false);
		else
			in_turn(x, l, &h);
		return UCS_OK;
	}
	struct landing *g = spare_take(&landings);
	if (!g) {
		if (f)
			fetched(x, h.cookie, true);
		give_up(x, h.from);
		return UCS_OK;
	}
	*g = (struct landing){ x, h };
	if (f)
		f->busy = true;
	ucp_request_param_t q = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA, .cb.recv_am = landed, .user_data = g };
	ucs_status_ptr_t r = u.ucp_am_recv_data_nbx(x->worker, data, to, n, &q);
	if (!UCS_PTR_IS_PTR(r))
		landed(NULL, UCS_PTR_STATUS(r), n, g);
	return UCS_INPROGRESS;
}

/* --- sending: under the lock ------------------------------------------------------------------------- */

static void sent(void *request, ucs_status_t status, void *user)
{
	struct msg *m = user;

	m->x->flying--;
	if (m->left) {
		if ((*m->at = m->next))
			m->next->at = m->at;
		down(m->x, m->pe, m->left);
	}
	spare_give(m->of, m);
	if (request)
		u.ucp_request_free(request);
}

/* left, if any, of PE from is counted down when data may be written again. */
static void post(struct ucx *x, int proc, const struct head *h, const void *data, size_t n, bool copy, int from, _Atomic uint32_t *left)
{
	struct link *l = &x->link[proc];
	struct spare *of = !copy || !n ? &bare : n <= SMALL ? &small : &full;
	struct msg *m = spare_take(of);

	if (!m) {
		if (left)
			down(x, from, left);
		give_up(x, proc);
		return;
	}
	m->h = *h;
	m->of = of;
	m->x = x;
	m->left = left;
	m->pe = from;
	m->proc = proc;
	if (left) {
		if ((m->next = x->lent))
			m->next->at = &m->next;
		m->at = &x->lent;
		x->lent = m;
	}
	if (copy && n)
		memcpy(m->data, data, n);
	x->flying++;
	if (!l->ep) {                         /* it has died */
		sent(NULL, UCS_ERR_CONNECTION_RESET, m);
		return;
	}
	ucp_request_param_t q = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA, .cb.send = sent, .user_data = m };
	ucs_status_ptr_t r = u.ucp_am_send_nbx(l->ep, 0, &m->h, sizeof m->h, copy ? m->data : data, n, &q);
	if (!UCS_PTR_IS_PTR(r))
		sent(NULL, UCS_PTR_STATUS(r), m);
}

static bool turn(struct ucx *x)
{
	unsigned n = 0, k;

	while ((k = u.ucp_worker_progress(x->worker)))
		n += k;
	return n;
}

/* Nothing goes to proc any more, or comes from it. */
static void end(struct ucx *x, int proc)
{
	ucp_ep_h ep = x->link[proc].ep;
	ucp_request_param_t q = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE };

	x->link[proc].ep = NULL;
	ucs_status_ptr_t r = ep ? u.ucp_ep_close_nbx(ep, &q) : NULL;
	if (UCS_PTR_IS_PTR(r))
		u.ucp_request_free(r);
}

/* The same, since proc takes nothing. */
static void cut(struct ucx *x, int proc)
{
	end(x, proc);
	forsake(x, proc, SYM_DEAD);
}

/* The library has ended what was under way.  The endpoint stays until the worker goes, for a request to connect that is still on its
 * way (start). */
static void lost(void *user, ucp_ep_h ep, ucs_status_t s)
{
	struct ucx *x = user;

	for (int k = 0; k < x->w->nproc; k++)
		if (x->link[k].ep == ep) {
			x->link[k].ep = NULL;
			forsake(x, k, SYM_DEAD);
		}
}

/* --- the calls of a transport ------------------------------------------------------------------------------ */

static struct ucx *of(struct sym_world *w) { return w->net_data; }

static bool ucx_poll(struct sym_world *w)
{
	struct ucx *x = of(w);
	bool some = false;

	atomic_store_explicit(&x->polled, clock_ns(), memory_order_relaxed);
	if (!pthread_mutex_trylock(&x->lock)) {
		some = u.ucp_worker_progress(x->worker);
		pthread_mutex_unlock(&x->lock);
		if (some)                     /* which took its time */
			atomic_store_explicit(&x->polled, clock_ns(), memory_order_relaxed);
	}
	return some;
}

/* Ask for n bytes to dst: h but for its cookie. */
static void ask(struct ucx *x, int from, int proc, struct head *h, void *dst, size_t n, _Atomic uint32_t *left)
{
	size_t slot = 0;

	while (slot < x->nget && x->get[slot].left)
		slot++;
	if (slot == x->nget) {
		struct fetch *more = realloc(x->get, (slot + 1) * sizeof *more);
		if (!more) {
			memset(dst, 0, n);
			sym_lost_data(x->w, from, proc);
			atomic_fetch_sub_explicit(left, 1, memory_order_release);
			give_up(x, proc);
			return;
		}
		x->get = more;
		x->nget++;
	}
	x->get[slot] = (struct fetch){ dst, n, left, proc, from, false, false };
	h->cookie = slot + 1;
	atomic_fetch_add(&x->open[from - x->w->first], 1);
	if (x->link[proc].ep && atomic_load(&x->w->process[proc].life) == SYM_HERE)
		post(x, proc, h, NULL, 0, true, 0, NULL);
	else
		fetched(x, h->cookie, true);
}

/* Long data goes in two parts.  The tail is announced, and sent when the receiver has said where to; the head is sent after
 * the announcement, and fills the time until the answer. */
static size_t head_of(size_t n) { return n > WHOLE ? HEAD : n; }

static void ucx_get_nb(struct sym_world *w, int from, int pe, void *dst, size_t off, size_t n, _Atomic uint32_t *left)
{
	struct ucx *x = of(w);
	const size_t most = (size_t)1 << 30;      /* a message's length has 32 bits */

	if (!n) {
		atomic_fetch_sub_explicit(left, 1, memory_order_release);
		return;
	}
	size_t head = head_of(n);
	atomic_fetch_add(left, (uint32_t)((n - head + most - 1) / most));
	pthread_mutex_lock(&x->lock);
	for (size_t k = head; k < n; k += most) {
		struct head h = { GET, (uint32_t)MIN(n - k, most), w->proc, pe, off + k, 0, 0, { 0 } };
		ask(x, from, w->peer[pe].proc, &h, (char *)dst + k, h.n, left);
	}
	struct head h = { GET, (uint32_t)head, w->proc, pe, off, 0, 0, { 0 } };
	ask(x, from, w->peer[pe].proc, &h, dst, head, left);
	pthread_mutex_unlock(&x->lock);
}

/* Send the tail of n bytes; returns what is left to send: the head. */
static size_t put_tail(struct ucx *x, int from, int pe, size_t off, const void *src, size_t n, _Atomic uint32_t *left)
{
	size_t head = head_of(n);
	int proc = x->w->peer[pe].proc;

	if (head == n)
		return n;
	struct head h = { PUT, 0, x->w->proc, pe, off + head, x->link[proc].sent++, 0, { 0 } };
	atomic_fetch_add(left, 1);
	atomic_fetch_add(&x->open[from - x->w->first], 1);
	post(x, proc, &h, (const char *)src + head, n - head, false, from, left);
	return head;
}

static void ucx_put_nb(struct sym_world *w, int from, int pe, size_t off, const void *src, size_t n, _Atomic uint32_t *left)
{
	struct ucx *x = of(w);
	int proc = w->peer[pe].proc;

	pthread_mutex_lock(&x->lock);
	size_t head = put_tail(x, from, pe, off, src, n, left);
	struct head h = { PUT, 0, w->proc, pe, off, x->link[proc].sent++, 0, { 0 } };
	n = head;
	if (n <= COPY)
		atomic_fetch_sub_explicit(left, 1, memory_order_release);
	else
		atomic_fetch_add(&x->open[from - w->first], 1);
	post(x, proc, &h, src, n, n <= COPY, from, n <= COPY ? NULL : left);
	pthread_mutex_unlock(&x->lock);
}

/* An answer that has not begun to come is dropped when it does.  What the library has begun cannot be called back: a process that
 * takes no more of it, or sends no more, counts as dead after a while. */
static void ucx_forget(struct sym_world *w, _Atomic uint32_t *left)
{
	struct ucx *x = of(w);
	double until = clock_s() + PARTING_S;

	pthread_mutex_lock(&x->lock);
	for (size_t i = 0; i < x->nget; i++) {
		struct fetch *f = &x->get[i];
		if (f->left != left || f->busy)
			continue;
		memset(f->dst, 0, f->n);
		f->dst = NULL;
		f->left = &x->nobody;
		down(x, f->from, left);
	}
	for (bool late = false; atomic_load_explicit(left, memory_order_acquire); late = clock_s() > until) {
		bool hold = false;
		for (size_t i = 0; late && i < x->nget; i++)
			if (x->get[i].left == left && x->link[x->get[i].proc].ep) {
				cut(x, x->get[i].proc);
				hold = true;
			}
		for (struct msg *m = late ? x->lent : NULL; m && !hold; m = m->next)
			if (m->left == left && x->link[m->proc].ep) {
				cut(x, m->proc);      /* the list is another then */
				hold = true;
			}
		if (turn(x) || hold)
			continue;
		pthread_mutex_unlock(&x->lock);
		nanosleep(&(struct timespec){ 0, REST_NS }, NULL);
		pthread_mutex_lock(&x->lock);
	}
	pthread_mutex_unlock(&x->lock);
}

/* What counts left down is waited for, or forgotten. */
static void await(struct sym_world *w, _Atomic uint32_t *left)
{
	if (!sym_net_await(w, left))
		ucx_forget(w, left);
}

static void ucx_put(struct sym_world *w, int from, int pe, size_t off, const void *src, size_t n)
{
	_Atomic uint32_t left = 1;

	ucx_put_nb(w, from, pe, off, src, n, &left);
	await(w, &left);
}

static void ucx_line(struct sym_world *w, int from, int pe, size_t off, const uint64_t *word, int n)
{
	struct ucx *x = of(w);
	int proc = w->peer[pe].proc;

	pthread_mutex_lock(&x->lock);
	struct head h = { LINE, (uint32_t)n, w->proc, pe, off, x->link[proc].sent++, 0, { 0 } };
	memcpy(h.word, word, (size_t)n * 8);
	post(x, proc, &h, NULL, 0, true, 0, NULL);
	pthread_mutex_unlock(&x->lock);
}

static void ucx_put_line(struct sym_world *w, int from, int pe, size_t off, const void *src, size_t n, size_t loff, const uint64_t *word, int nword)
{
	struct ucx *x = of(w);
	int proc = w->peer[pe].proc;
	_Atomic uint32_t left = 1;

	pthread_mutex_lock(&x->lock);
	n = put_tail(x, from, pe, off, src, n, &left);
	struct head h = { PUT_LINE, (uint32_t)nword, w->proc, pe, off, x->link[proc].sent++, loff, { 0 } };
	memcpy(h.word, word, (size_t)nword * 8);
	atomic_fetch_add(&x->open[from - w->first], 1);
	post(x, proc, &h, src, n, false, from, &left);
	pthread_mutex_unlock(&x->lock);
	await(w, &left);
}

/* bytes 0: nothing is done, but in its turn. */
static void ucx_amo(struct sym_world *w, int from, int pe, enum sym_amo op, int bytes, size_t off, uint64_t v, uint64_t cond, uint64_t *old)
{
	struct ucx *x = of(w);
	int proc = w->peer[pe].proc;
	_Atomic uint32_t left = 1;

	pthread_mutex_lock(&x->lock);
	struct head h = { AMO, (uint32_t)bytes, w->proc, pe, off, x->link[proc].sent++, 0, { (uint64_t)op, v, cond } };
	if (old)
		ask(x, from, proc, &h, old, 8, &left);
	else
		post(x, proc, &h, NULL, 0, true, 0, NULL);
	pthread_mutex_unlock(&x->lock);
	if (old)
		await(w, &left);
}

static void ucx_fence(struct sym_world *w, int from, int pe)
{
	uint64_t nothing;

	ucx_amo(w, from, pe, SYM_FETCH, 0, 0, 0, 0, &nothing);
}

static void ucx_quiet(struct sym_world *w, int from)
{
	struct ucx *x = of(w);

	for (int k = 0; k < w->nproc; k++) {
		pthread_mutex_lock(&x->lock);
		bool there = x->link[k].ep;
		pthread_mutex_unlock(&x->lock);
		if (there)
			ucx_fence(w, from, w->process[k].first);
	}
	sym_net_await(w, &x->open[from - w->first]);      /* each is somebody's, who waits for it or has it forgotten */
}

static void *progress_main(void *v)
{
	struct ucx *x = v;

	for (;;) {
		struct pollfd f[2] = { { x->stop, POLLIN, 0 }, { x->efd, POLLIN, 0 } };
		/* Who waits makes progress itself; two at it are in each other's way. */
		if (clock_ns() - atomic_load_explicit(&x->polled, memory_order_relaxed) < REST_NS) {
			struct timespec rest = { 0, REST_NS };
			if (ppoll(f, 1, &rest, NULL) > 0)
				return NULL;
			continue;
		}
		pthread_mutex_lock(&x->lock);
		turn(x);
		ucs_status_t s = u.ucp_worker_arm(x->worker);
		pthread_mutex_unlock(&x->lock);
		if (s == UCS_ERR_BUSY)
			continue;
		poll(f, 2, 100);
		if (f[0].revents)
			return NULL;
	}
}

/* All that was sent leaves, and who connects has connected, as far as others do their part: 1.13 may abort in another process when this
 * one goes in the midst of that. */
static void part(struct ucx *x)
{
	ucp_request_param_t q = { 0 };
	int n = x->w->nproc;

	for (int k = 0; k < n && x->started; k++)
		if (x->link[k].ep) {
			struct head h = { .kind = BYE, .from = x->w->proc };
			post(x, k, &h, NULL, 0, true, 0, NULL);
		}
	for (double until = clock_s() + PARTING_S; x->started && x->flying && clock_s() < until;)
		turn(x);
	double until = clock_s() + PARTING_S;
	for (int k = 0; k < n; k++) {
		ucs_status_ptr_t r = x->link[k].ep ? u.ucp_ep_flush_nbx(x->link[k].ep, &q) : NULL;
		while (UCS_PTR_IS_PTR(r) && u.ucp_request_check_status(r) == UCS_INPROGRESS && clock_s() < until)
			turn(x);
		if (UCS_PTR_IS_PTR(r))
			u.ucp_request_free(r);
	}
}

static void ucx_close(struct sym_world *w)
{
	struct ucx *x = of(w);

	if (!x)
		return;
	if (x->started) {
		eventfd_write(x->stop, 1);
		pthread_join(x->thread, NULL);
	}
	pthread_mutex_lock(&x->lock);
	if (x->met)
		part(x);
	for (int k = 0; k < w->nproc && x->link; k++) {
		end(x, k);
		for (struct waiting *v = x->link[k].line, *next; v; v = next) {
			next = v->next;
			spare_give(&waitings, v);
		}
	}
	pthread_mutex_unlock(&x->lock);
	if (x->worker)
		u.ucp_worker_destroy(x->worker);
	if (x->ctx)
		u.ucp_cleanup(x->ctx);
	if (x->stop >= 0)
		close(x->stop);
	free(x->get);
	pthread_mutex_destroy(&x->lock);
	free(x->link);
	free(x->open);
	free(x);
	w->net_data = NULL;
}

/* Over TCP a message that fills a slot goes and comes in one piece.  Longer ones are asked for by who receives them, and
 * received where they go.  It is progress that connects, so nobody has to answer who leaves before he has made any.  What the
 * environment says is left alone. */
static void tune(ucp_config_t *conf)
{
	static const char *const row[][2] = { { "TCP_TX_SEG_SIZE", "256k" }, { "TCP_RX_SEG_SIZE", "256k" }, { "RNDV_THRESH", "72k" }, { "RNDV_SCHEME", "put_zcopy" },
		{ "TCP_CONN_NB", "y" } };
	unsigned major, minor, release;
	char name[64];

	u.ucp_get_version(&major, &minor, &release);
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		bool tcp = !strncmp(row[i][0], "TCP_", 4);
		snprintf(name, sizeof name, "UCX_%s", row[i][0]);
		/* Up to 1.16 the names of a transport's settings go without its own. */
		if (!getenv(name))
			u.ucp_config_modify(conf, row[i][0] + (tcp && major == 1 && minor < 17 ? 4 : 0), row[i][1]);
	}
}

/* An interface whose cable was just put in: the kernel takes up to a second to say that it runs, and until then UCX neither
 * takes it nor looks again. */
static bool settling(void)
{
	struct ifaddrs *all = NULL;
	bool yes = false;

	if (getifaddrs(&all))
		return false;
	for (struct ifaddrs *i = all; i && !yes; i = i->ifa_next)
		yes = i->ifa_addr && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6) &&
		      (i->ifa_flags & (IFF_UP | IFF_RUNNING | PLUGGED)) == (IFF_UP | PLUGGED);
	freeifaddrs(all);
	return yes;
}

static struct err *start(struct ucx *x)
{
	for (double until = clock_s() + SETTLE_S; settling() && clock_s() < until;)
		nanosleep(&(struct timespec){ 0, 20 * REST_NS }, NULL);
	ucp_config_t *conf;
	ucs_status_t s = u.ucp_config_read(NULL, NULL, &conf);

	if (s != UCS_OK)
		return fail("configuration", s);
	/* 1.13 aborts for an answer to a request to connect that is not sent yet when the other process or the worker goes, but on an
	 * endpoint that has asked itself.  So ours ask at once, whatever the environment says; and no progress is made before all are
	 * there, for whoever asks for one that is not gets one that the library makes. */
	u.ucp_config_modify(conf, "RESOLVE_REMOTE_EP_ID", "y");
	/* What is gone is found by asking, where nothing is on its way to it. */
	if (!getenv("UCX_KEEPALIVE_INTERVAL"))
		u.ucp_config_modify(conf, "KEEPALIVE_INTERVAL", "1s");
	/* It takes shared files without a look at whether they can be made, and does not start. */
	if (!getenv("UCX_TLS") && access("/dev/shm", W_OK))
		u.ucp_config_modify(conf, "TLS", "^posix");
	tune(conf);
	ucp_params_t p = { .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
	                   .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP, .estimated_num_eps = (size_t)x->w->nproc };
	s = u.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &p, conf, &x->ctx);
	u.ucp_config_release(conf);
	if (s != UCS_OK)
		return fail("start", s);
	ucp_worker_params_t wp = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SERIALIZED };
	s = u.ucp_worker_create(x->ctx, &wp, &x->worker);
	if (s != UCS_OK)
		return fail("worker", s);
	ucp_am_handler_param_t hp = { .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG |
	                                            UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
	                              .id = 0, .cb = receive, .arg = x, .flags = UCP_AM_FLAG_WHOLE_MSG };
	s = u.ucp_worker_set_am_recv_handler(x->worker, &hp);
	if (s == UCS_OK)
		s = u.ucp_worker_get_efd(x->worker, &x->efd);
	if (s != UCS_OK)
		return fail("worker", s);
	x->stop = eventfd(0, EFD_CLOEXEC);
	return x->stop < 0 ? ERR(EXHAUSTED, "eventfd: %s", strerror(errno)) : NULL;
}

/* A line of what UCX prints of itself names a transport and a device, "rc_mlx5/mlx5_0:1". */
static bool is_fabric(const char *line)
{
	static const char *const known[] = { "tcp", "self", "sysv", "posix", "cma", "knem", "xpmem", "memory" };
	const char *slash = strchr(line, '/'), *p = slash;

	if (!strstr(line, "resource") || !slash)
		return false;
	while (p > line && p[-1] != ' ')
		p--;
	for (size_t i = 0; i < NELEM(known); i++)
		if ((size_t)(slash - p) == strlen(known[i]) && !memcmp(p, known[i], (size_t)(slash - p)))
			return false;
	return slash > p;
}

bool sym_ucx_fabric(void)
{
	ucp_params_t p = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP };
	DIR *d = opendir("/sys/class/infiniband");
	ucp_config_t *conf;
	ucp_context_h ctx;
	bool found = false;
	char *text = NULL, *save;
	size_t n;

	for (struct dirent *f; d && !found && (f = readdir(d));)
		found = f->d_name[0] != '.';
	if (d)
		closedir(d);
	if (!found)                       /* the library takes its time, and much of the process */
		return false;
	struct err *e = load();
	if (e) {
		log_line(LOG_WARN, "there is a fabric, but not the library for it: TCP is used; %s", e->msg);
		err_free(e);
		return false;
	}
	if (u.ucp_config_read(NULL, NULL, &conf) != UCS_OK)
		return false;
	ucs_status_t s = u.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &p, conf, &ctx);
	u.ucp_config_release(conf);
	FILE *f = s == UCS_OK ? open_memstream(&text, &n) : NULL;
	if (f) {
		u.ucp_context_print_info(ctx, f);
		fclose(f);
	}
	if (s == UCS_OK)
		u.ucp_cleanup(ctx);
	found = false;
	for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line && !found; line = strtok_r(NULL, "\n", &save))
		found = is_fabric(line);
	free(text);
	return found;
}

struct err *sym_ucx_open(struct sym_world *w, const struct kv *kv, const char *token, const bool *reach, double until)
{
	struct sym_coming coming = { 0 };
	struct str s = { 0 };
	struct err *e = NULL;
	double look = 0;
	char key[32];

	w->net = &sym_ucx;
	struct ucx *x = w->net_data = mem_alloc(sizeof *x);
	x->w = w;
	x->stop = x->efd = -1;
	pthread_mutex_init(&x->lock, NULL);
	TRY(load());
	TRY(start(x));
	snprintf(x->token, sizeof x->token, "%s", token);
	x->open = mem_alloc((size_t)w->nlocal * sizeof *x->open);
	x->link = mem_alloc((size_t)w->nproc * sizeof *x->link);
	ucp_address_t *a;
	size_t n;
	ucs_status_t st = u.ucp_worker_get_address(x->worker, &a, &n);
	if (st != UCS_OK)
		return fail("address", st);
	char *hex = mem_try(2 * n + 1);
	for (size_t i = 0; i < n && hex; i++)
		snprintf(hex + 2 * i, 3, "%02x", ((const unsigned char *)a)[i]);
	u.ucp_worker_release_address(x->worker, a);
	if (!hex)
		return ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", 2 * n + 1);
	snprintf(key, sizeof key, "ucx/%d", w->proc);
	e = kv->put(kv->user, key, hex, 2 * n);
	free(hex);
	TRY(e);
	for (int k = 0; k < w->nproc; k++) {
		if (!reach[k])
			continue;
		str_free(&s);
		snprintf(key, sizeof key, "ucx/%d", k);
		TRY_GOTO(e, sym_fetch(w, kv, key, k, until, &s), out);
		if (s.n > ADDRESS) {
			e = ERR(DATA_LOSS, "the network address of process %d is %zu bytes long", k, s.n);
			goto out;
		}
		for (size_t i = 0; i + 1 < s.n; i += 2) {
			unsigned v = 0;
			sscanf(s.p + i, "%2x", &v);
			s.p[i / 2] = (char)v;
		}
		ucp_ep_params_t p = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
		                      .address = (const ucp_address_t *)s.p, .err_mode = UCP_ERR_HANDLING_MODE_PEER, .err_handler = { lost, x } };
		st = u.ucp_ep_create(x->worker, &p, &x->link[k].ep);
		if (st != UCS_OK) {
			x->link[k].ep = NULL;
			e = sym_joins(w, kv, k, INFINITY, &coming);      /* it may have said why */
			if (!e)
				e = err_wrap(fail("endpoint", st), "process %d on host '%s'", k, w->process[k].host);
			goto out;
		}
		struct head h = { .kind = HELLO, .from = w->proc };
		memcpy(h.word, x->token, sizeof h.word);
		post(x, k, &h, NULL, 0, true, 0, NULL);
	}
	x->met = !x->poor;
	for (int k = 0; k < w->nproc; k++)
		while (reach[k] && !x->link[k].greeted && !x->poor) {
			if (!turn(x))
				nanosleep(&(struct timespec){ 0, 200000 }, NULL);
			if (!x->link[k].ep || clock_s() >= look) {
				e = sym_joins(w, kv, k, INFINITY, &coming);
				look = clock_s() + LOOK_MS / 1e3;
				while (e && turn(x)) { }
				if (e && !x->link[k].greeted)
					goto out;
				err_free(e);      /* it has ended, but after it had done its part */
				e = NULL;
			}
			if (clock_s() > until) {
				e = ERR(UNAVAILABLE, "process %d on host '%s' cannot be reached through the network", k, w->process[k].host);
				goto out;
			}
		}
	int r = x->poor ? 0 : pthread_create(&x->thread, NULL, progress_main, x);
	if (r)
		e = ERR(EXHAUSTED, "cannot start a thread: %s", strerror(r));
	else
		x->started = !x->poor;
out:
	str_free(&s);
	if (x->poor) {                        /* which is why others seem to be dead */
		err_free(e);
		e = ERR(EXHAUSTED, "out of host memory for messages");
	}
	return e;
}

const struct sym_transport sym_ucx = { .name = "ucx", .close = ucx_close, .get = sym_net_get, .put = ucx_put,
                                      .get_nb = ucx_get_nb, .put_nb = ucx_put_nb, .line = ucx_line, .put_line = ucx_put_line, .amo = ucx_amo, .fence = ucx_fence,
                                      .quiet = ucx_quiet, .forget = ucx_forget, .poll = ucx_poll, .asks = true };

#else

bool sym_ucx_fabric(void) { return false; }

struct err *sym_ucx_open(struct sym_world *w, const struct kv *kv, const char *token, const bool *reach, double until)
{
	return ERR(UNIMPLEMENTED, "other hosts: this build has no UCX (package libucx-dev)");
}

const struct sym_transport sym_ucx = { .name = "ucx" };

#endif
