/* Other hosts, through UCX (openucx.org): whatever network it finds, TCP at the least.
 *
 * Everything is an active message to the process of the target, which copies into the heap itself: nothing has to
 * be registered, so a heap may be as large and as sparse as it likes.  UCX does not promise that messages of
 * different sizes arrive in the order in which they were sent, so puts and lines carry a number for each pair of
 * processes; a line is written when all numbers before it are done.  A put needs no answer for that.
 *
 * One worker a process, under one lock.  A thread of our own makes progress, so that memory is one-sided also
 * while the process computes; whoever waits makes progress as well.  The library is loaded when it is needed. */
#include "impl.h"

#if __has_include(<ucp/api/ucp.h>)

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <ucp/api/ucp.h>

enum { COPY = 16 << 10, ADDRESS = 1 << 16, IDLE_POLLS = 50 };
enum kind { LINE = 1, PUT, GET, DATA, HELLO, BYE };

/* --- the library ------------------------------------------------------------------------------ */

#define UCP(X) \
	X(ucp_init_version) X(ucp_cleanup) X(ucp_config_read) X(ucp_config_modify) X(ucp_config_release) X(ucp_worker_create) \
	X(ucp_worker_destroy) X(ucp_worker_get_address) X(ucp_worker_release_address) X(ucp_worker_progress) X(ucp_worker_get_efd) \
	X(ucp_worker_arm) X(ucp_worker_set_am_recv_handler) X(ucp_ep_create) X(ucp_ep_close_nbx) X(ucp_am_send_nbx) \
	X(ucp_am_recv_data_nbx) X(ucp_request_free) X(ucp_request_check_status)

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
		void *f;
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
	uint64_t off, seq, cookie;
	uint64_t word[8];                 /* of a line; the token of a greeting */
};

/* A message under way. */
struct msg { struct head h; _Atomic bool *done; struct ucx *x; char data[]; };

struct waiting { struct waiting *next; struct head h; };
/* Of one process. */
struct link {
	ucp_ep_h ep;
	uint64_t sent;                    /* numbers given */
	uint64_t next;                    /* the first that is not done here */
	ARR(uint64_t) early;              /* done, but not all before it */
	struct waiting *line;
	bool greeted;
};

struct fetch { void *dst; size_t n; _Atomic bool done; bool busy, lost; int proc; };

struct ucx {
	struct sym_world *w;
	ucp_context_h ctx;
	ucp_worker_h worker;
	pthread_mutex_t lock;             /* of all below, and of every call into the library */
	struct link *link;                /* nproc */
	ARR(struct fetch *) get;          /* by cookie - 1; NULL: free */
	int efd, stop, flying;            /* flying: messages under way */
	pthread_t thread;
	bool started;
	char token[64];
};

/* What is received straight into a heap. */
struct landing { struct ucx *x; struct head h; struct fetch *get; };

static struct err *fail(const char *what, ucs_status_t s) { return ERR(UNAVAILABLE, "UCX: %s: %s", what, u.ucs_status_string(s)); }

/* --- receiving: inside progress, so under the lock ------------------------------------------------- */

static char *place(struct ucx *x, const struct head *h, size_t n)
{
	struct sym_world *w = x->w;

	if (h->pe < w->first || h->pe >= w->first + w->nlocal || h->off > w->region.each || n > w->region.each - h->off)
		return NULL;
	return w->region.base + (size_t)(h->pe - w->first) * w->region.each + h->off;
}

/* Number seq of l is done: deliver the lines that waited for it. */
static void advance(struct ucx *x, struct link *l)
{
	for (bool more = true; more;) {
		more = false;
		for (size_t i = 0; i < l->early.n; i++)
			if (l->early.p[i] == l->next) {
				l->early.p[i] = l->early.p[--l->early.n];
				l->next++;
				more = true;
				break;
			}
		for (struct waiting **q = &l->line; *q; q = &(*q)->next)
			if ((*q)->h.seq == l->next) {
				struct waiting *v = *q;
				char *at = place(x, &v->h, v->h.n * 8);
				if (at)
					sym_deliver(x->w, v->h.pe, at, v->h.word, (int)v->h.n);
				*q = v->next;
				free(v);
				l->next++;
				more = true;
				break;
			}
	}
}

static void done(struct ucx *x, struct link *l, uint64_t seq)
{
	if (seq == l->next) {
		l->next++;
		advance(x, l);
	} else
		arr_push(&l->early, seq);
}

static void line(struct ucx *x, struct link *l, const struct head *h)
{
	char *at = place(x, h, h->n * 8);

	if (h->seq == l->next && at) {
		sym_deliver(x->w, h->pe, at, h->word, (int)h->n);
		l->next++;
		advance(x, l);
		return;
	}
	struct waiting *v = mem_alloc(sizeof *v);
	v->h = *h;
	v->next = l->line;
	l->line = v;
}

static void landed(void *request, ucs_status_t status, size_t n, void *user)
{
	struct landing *g = user;

	if (g->h.kind == PUT && status == UCS_OK)
		done(g->x, &g->x->link[g->h.from], g->h.seq);
	if (g->h.kind == DATA) {
		g->get->lost |= status != UCS_OK;
		atomic_store_explicit(&g->get->done, true, memory_order_release);
	}
	free(g);
	if (request)
		u.ucp_request_free(request);
}

static void post(struct ucx *x, int proc, const struct head *h, const void *data, size_t n, bool copy, _Atomic bool *flag);

/* The destination of a message with data; NULL: nobody wants it. */
static char *wanted(struct ucx *x, const struct head *h, size_t n, struct fetch **get)
{
	*get = NULL;
	if (h->kind == PUT)
		return place(x, h, n);
	if (h->cookie == 0 || h->cookie > x->get.n || !x->get.p[h->cookie - 1] || x->get.p[h->cookie - 1]->n != n)
		return NULL;
	*get = x->get.p[h->cookie - 1];
	return (*get)->dst;
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
		sym_gone(x->w, h.from, SYM_LEFT);
		return UCS_OK;
	}
	if (h.kind == LINE && h.n >= 1 && h.n <= 8) {
		line(x, l, &h);
		return UCS_OK;
	}
	if (h.kind == GET) {
		char *at = place(x, &h, h.n);
		struct head r = { DATA, h.n, x->w->proc, h.pe, 0, 0, h.cookie, { 0 } };
		if (at)
			post(x, h.from, &r, at, h.n, false, NULL);
		return UCS_OK;
	}
	if (h.kind != PUT && h.kind != DATA)
		return UCS_OK;
	struct fetch *get;
	char *to = wanted(x, &h, n, &get);
	if (!to)
		return UCS_OK;
	if (!(p->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
		memcpy(to, data, n);
		if (get)
			atomic_store_explicit(&get->done, true, memory_order_release);
		else
			done(x, l, h.seq);
		return UCS_OK;
	}
	struct landing *g = mem_alloc(sizeof *g);
	*g = (struct landing){ x, h, get };
	if (get)
		get->busy = true;
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
	if (m->done)
		atomic_store_explicit(m->done, true, memory_order_release);
	free(m);
	if (request)
		u.ucp_request_free(request);
}

/* flag is set when data may be written again; copy: at once. */
static void post(struct ucx *x, int proc, const struct head *h, const void *data, size_t n, bool copy, _Atomic bool *flag)
{
	struct link *l = &x->link[proc];
	struct msg *m = mem_grow(NULL, sizeof *m + (copy ? n : 0));

	m->h = *h;
	m->x = x;
	m->done = copy ? NULL : flag;
	if (copy && n)
		memcpy(m->data, data, n);
	x->flying++;
	if (copy && flag)
		atomic_store_explicit(flag, true, memory_order_relaxed);
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

static void lost(void *user, ucp_ep_h ep, ucs_status_t s)
{
	struct ucx *x = user;

	for (int k = 0; k < x->w->nproc; k++)
		if (x->link[k].ep == ep) {
			x->link[k].ep = NULL;
			ucp_request_param_t q = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE };
			ucs_status_ptr_t r = u.ucp_ep_close_nbx(ep, &q);
			if (UCS_PTR_IS_PTR(r))
				u.ucp_request_free(r);
			sym_gone(x->w, k, SYM_DEAD);
		}
}

/* --- the six calls ------------------------------------------------------------------------------------- */

static struct ucx *of(struct sym_world *w) { return w->net_data; }

/* Wait for a flag, making progress; false if the process is gone and the flag will not come. */
static bool await(struct ucx *x, _Atomic bool *flag, int proc, struct fetch *get)
{
	for (int k = 0;; k++) {
		if (atomic_load_explicit(flag, memory_order_acquire))
			return true;
		pthread_mutex_lock(&x->lock);
		bool some = turn(x);
		bool hopeless = get && !get->busy && atomic_load(&x->w->process[proc].life) != SYM_HERE;
		pthread_mutex_unlock(&x->lock);
		if (hopeless && !atomic_load_explicit(flag, memory_order_acquire))
			return false;
		if (!some && k > IDLE_POLLS)
			sched_yield();
	}
}

static void ucx_get(struct sym_world *w, int from, int pe, void *dst, size_t off, size_t n)
{
	struct ucx *x = of(w);
	int proc = w->peer[pe].proc;
	struct fetch get = { .dst = dst, .n = n, .proc = proc };
	size_t slot = 0;

	if (!n)
		return;
	pthread_mutex_lock(&x->lock);
	while (slot < x->get.n && x->get.p[slot])
		slot++;
	if (slot == x->get.n)
		arr_push(&x->get, NULL);
	x->get.p[slot] = &get;
	struct head h = { GET, (uint32_t)n, w->proc, pe, off, 0, slot + 1, { 0 } };
	post(x, proc, &h, NULL, 0, true, NULL);
	pthread_mutex_unlock(&x->lock);
	bool ok = await(x, &get.done, proc, &get);
	pthread_mutex_lock(&x->lock);
	x->get.p[slot] = NULL;
	pthread_mutex_unlock(&x->lock);
	if (!ok || get.lost) {
		memset(dst, 0, n);
		sym_lost_data(w, from, proc);
	}
}

static void ucx_put(struct sym_world *w, int from, int pe, size_t off, const void *src, size_t n)
{
	struct ucx *x = of(w);
	int proc = w->peer[pe].proc;
	_Atomic bool flag = false;

	if (!n)
		return;
	pthread_mutex_lock(&x->lock);
	struct head h = { PUT, (uint32_t)n, w->proc, pe, off, x->link[proc].sent++, 0, { 0 } };
	post(x, proc, &h, src, n, n <= COPY, &flag);
	pthread_mutex_unlock(&x->lock);
	await(x, &flag, proc, NULL);
}

static void ucx_line(struct sym_world *w, int from, int pe, size_t off, const uint64_t *word, int n)
{
	struct ucx *x = of(w);
	int proc = w->peer[pe].proc;

	pthread_mutex_lock(&x->lock);
	struct head h = { LINE, (uint32_t)n, w->proc, pe, off, x->link[proc].sent++, 0, { 0 } };
	memcpy(h.word, word, (size_t)n * 8);
	post(x, proc, &h, NULL, 0, true, NULL);
	pthread_mutex_unlock(&x->lock);
}

static bool ucx_poll(struct sym_world *w)
{
	struct ucx *x = of(w);
	bool some = false;

	if (!pthread_mutex_trylock(&x->lock)) {
		some = turn(x);
		pthread_mutex_unlock(&x->lock);
	}
	return some;
}

static void *progress_main(void *v)
{
	struct ucx *x = v;

	for (;;) {
		struct pollfd f[2] = { { x->stop, POLLIN, 0 }, { x->efd, POLLIN, 0 } };
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

static void ucx_close(struct sym_world *w)
{
	struct ucx *x = of(w);

	if (x->started) {
		eventfd_write(x->stop, 1);
		pthread_join(x->thread, NULL);
	}
	pthread_mutex_lock(&x->lock);
	for (int k = 0; k < w->nproc && x->link; k++)
		if (x->link[k].ep && x->started) {
			struct head h = { .kind = BYE, .from = w->proc };
			post(x, k, &h, NULL, 0, true, NULL);
		}
	for (double t = clock_s(); x->flying && clock_s() - t < 2;)
		turn(x);
	for (int k = 0; k < w->nproc && x->link; k++) {
		struct link *l = &x->link[k];
		if (l->ep) {
			ucp_request_param_t q = { 0 };
			ucp_ep_h ep = l->ep;
			l->ep = NULL;
			ucs_status_ptr_t r = u.ucp_ep_close_nbx(ep, &q);
			for (double t = clock_s(); UCS_PTR_IS_PTR(r) && u.ucp_request_check_status(r) == UCS_INPROGRESS && clock_s() - t < 2;)
				turn(x);
			if (UCS_PTR_IS_PTR(r))
				u.ucp_request_free(r);
		}
		for (struct waiting *v = l->line, *next; v; v = next) {
			next = v->next;
			free(v);
		}
		arr_free(&l->early);
	}
	pthread_mutex_unlock(&x->lock);
	if (x->worker)
		u.ucp_worker_destroy(x->worker);
	if (x->ctx)
		u.ucp_cleanup(x->ctx);
	if (x->stop >= 0)
		close(x->stop);
	arr_free(&x->get);
	pthread_mutex_destroy(&x->lock);
	free(x->link);
	free(x);
	w->net_data = NULL;
}

static struct err *start(struct ucx *x)
{
	ucp_config_t *conf;
	ucs_status_t s = u.ucp_config_read(NULL, NULL, &conf);

	if (s != UCS_OK)
		return fail("configuration", s);
	/* A host that is off the network is found by asking: seconds, not the minutes of TCP. */
	if (!getenv("UCX_KEEPALIVE_INTERVAL"))
		u.ucp_config_modify(conf, "KEEPALIVE_INTERVAL", "1s");
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

struct err *sym_ucx_open(struct sym_world *w, const struct kv *kv, const char *token, const bool *reach, double until)
{
	struct ucx *x = mem_alloc(sizeof *x);
	struct str s = { 0 };
	struct err *e = NULL;
	char key[32];

	w->net_data = x;
	x->w = w;
	x->stop = x->efd = -1;
	pthread_mutex_init(&x->lock, NULL);
	TRY_GOTO(e, load(), out);
	TRY_GOTO(e, start(x), out);
	snprintf(x->token, sizeof x->token, "%s", token);
	x->link = mem_alloc((size_t)w->nproc * sizeof *x->link);
	ucp_address_t *a;
	size_t n;
	ucs_status_t st = u.ucp_worker_get_address(x->worker, &a, &n);
	if (st != UCS_OK) {
		e = fail("address", st);
		goto out;
	}
	for (size_t i = 0; i < n; i++)
		str_addf(&s, "%02x", ((const unsigned char *)a)[i]);
	u.ucp_worker_release_address(x->worker, a);
	snprintf(key, sizeof key, "ucx/%d", w->proc);
	TRY_GOTO(e, kv->put(kv->user, key, s.p, s.n), out);
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
			e = err_wrap(fail("endpoint", st), "process %d on host '%s'", k, w->process[k].host);
			goto out;
		}
		struct head h = { .kind = HELLO, .from = w->proc };
		memcpy(h.word, x->token, sizeof h.word);
		post(x, k, &h, NULL, 0, true, NULL);
	}
	for (int k = 0; k < w->nproc; k++)
		while (reach[k] && !x->link[k].greeted) {
			if (!turn(x))
				nanosleep(&(struct timespec){ 0, 200000 }, NULL);
			if (!x->link[k].ep || clock_s() > until) {
				e = ERR(UNAVAILABLE, "process %d on host '%s' cannot be reached through the network", k, w->process[k].host);
				goto out;
			}
		}
	int r = pthread_create(&x->thread, NULL, progress_main, x);
	if (r)
		e = ERR(EXHAUSTED, "cannot start a thread: %s", strerror(r));
	else
		x->started = true;
out:
	str_free(&s);
	if (e)
		ucx_close(w);
	return e;
}

const struct sym_transport sym_ucx = { .name = "ucx", .close = ucx_close, .get = ucx_get, .put = ucx_put, .line = ucx_line, .poll = ucx_poll };

#else

struct err *sym_ucx_open(struct sym_world *w, const struct kv *kv, const char *token, const bool *reach, double until)
{
	return ERR(UNIMPLEMENTED, "other hosts: this build has no UCX (package libucx-dev)");
}

const struct sym_transport sym_ucx = { .name = "ucx" };

#endif
