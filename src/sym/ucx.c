/* Other hosts, through UCX (openucx.org): whatever network it finds, TCP at the least.
 *
 * Everything is an active message to the process of the target, which copies into the heap itself: nothing has to
 * be registered, so a heap may be as large and as sparse as it likes.  UCX does not promise that messages of
 * different sizes arrive in the order in which they were sent, so what changes memory carries a number for each pair of
 * processes; a line is written, an atomic done, when all numbers before it are.  A put needs no answer for that.
 *
 * One worker a process, under one lock.  A thread of our own makes progress, so that memory is one-sided also
 * while the process computes; whoever waits makes progress as well.  The library is loaded when it is needed. */
#include "ucx.h"

#if __has_include(<ucp/api/ucp.h>)

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { HEAD = 32 << 10, ADDRESS = 1 << 16, PARTING_S = 2, LOOK_MS = 50 };

static struct ucx *of(struct sym_world *w) { return w->net_data; }

static bool ucx_poll(struct sym_world *w)
{
	struct ucx *x = of(w);
	bool some = false;

	atomic_store_explicit(&x->polled, clock_ns(), memory_order_relaxed);
	if (!pthread_mutex_trylock(&x->lock)) {
		some = ucx.ucp_worker_progress(x->worker);
		pthread_mutex_unlock(&x->lock);
		if (some)                     /* which took its time */
			atomic_store_explicit(&x->polled, clock_ns(), memory_order_relaxed);
	}
	return some;
}

/* Ask for n bytes to dst: h but for its cookie. */
static void ask(struct ucx *x, int from, int proc, struct head *h, void *dst, size_t n, _Atomic uint32_t *left)
{
	size_t slot = x->idle;

	while (slot < x->nget && x->get[slot].left)
		slot++;
	x->idle = slot;
	if (slot == x->nget) {
		struct fetch *more = realloc(x->get, (slot + 1) * sizeof *more);
		if (!more) {
			memset(dst, 0, n);
			sym_lost_data(x->w, from, proc);
			atomic_fetch_sub_explicit(left, 1, memory_order_release);
			ucx_give_up(x, proc);
			return;
		}
		x->get = more;
		x->nget++;
	}
	x->get[slot] = (struct fetch){ dst, n, left, proc, from, false, false };
	h->cookie = slot + 1;
	atomic_fetch_add(&x->open[from - x->w->first], 1);
	if (x->link[proc].ep && atomic_load(&x->w->process[proc].life) == SYM_HERE)
		ucx_post(x, proc, h, NULL, 0, true, 0, NULL);
	else
		ucx_fetched(x, h->cookie, true);
}

/* Long data goes in two parts.  The tail is announced, and sent when the receiver has said where to; the head is sent after
 * the announcement, and fills the time until the answer.  The tail goes in pieces: see ucx_post. */
static size_t head_of(size_t n) { return n > WHOLE ? HEAD : n; }

static void ucx_get_nb(struct sym_world *w, int from, int pe, void *dst, size_t off, size_t n, _Atomic uint32_t *left)
{
	struct ucx *x = of(w);

	if (!n) {
		atomic_fetch_sub_explicit(left, 1, memory_order_release);
		return;
	}
	size_t head = head_of(n);
	atomic_fetch_add(left, (uint32_t)((n - head + PIECE - 1) / PIECE));
	pthread_mutex_lock(&x->lock);
	for (size_t k = head; k < n; k += PIECE) {
		struct head h = { GET, (uint32_t)MIN(n - k, (size_t)PIECE), w->proc, pe, off + k, 0, 0, { 0 } };
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

	for (size_t k = head; k < n; k += PIECE) {
		struct head h = { PUT, 0, x->w->proc, pe, off + k, x->link[proc].sent++, 0, { 0 } };
		atomic_fetch_add(left, 1);
		atomic_fetch_add(&x->open[from - x->w->first], 1);
		ucx_post(x, proc, &h, (const char *)src + k, MIN(n - k, (size_t)PIECE), false, from, left);
	}
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
	ucx_post(x, proc, &h, src, n, n <= COPY, from, n <= COPY ? NULL : left);
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
		ucx_down(x, f->from, left);
	}
	for (bool late = false; atomic_load_explicit(left, memory_order_acquire); late = clock_s() > until) {
		bool hold = false;
		for (size_t i = 0; late && i < x->nget; i++)
			if (x->get[i].left == left && x->link[x->get[i].proc].ep) {
				ucx_cut(x, x->get[i].proc);
				hold = true;
			}
		struct msg *m = late && !hold ? x->lent : NULL;
		while (m && (m->left != left || !x->link[m->proc].ep))
			m = m->next;
		if (m) {
			ucx_cut(x, m->proc);              /* the list is another then, and m may be gone */
			hold = true;
		}
		if (ucx_turn(x) || hold)
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
	ucx_post(x, proc, &h, NULL, 0, true, 0, NULL);
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
	ucx_post(x, proc, &h, src, n, false, from, &left);
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
		ucx_post(x, proc, &h, NULL, 0, true, 0, NULL);
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
		ucx_turn(x);
		ucs_status_t s = ucx.ucp_worker_arm(x->worker);
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
			ucx_post(x, k, &h, NULL, 0, true, 0, NULL);
		}
	for (double until = clock_s() + PARTING_S; x->started && x->flying && clock_s() < until;)
		ucx_turn(x);
	double until = clock_s() + PARTING_S;
	for (int k = 0; k < n; k++) {
		ucs_status_ptr_t r = x->link[k].ep ? ucx.ucp_ep_flush_nbx(x->link[k].ep, &q) : NULL;
		while (UCS_PTR_IS_PTR(r) && ucx.ucp_request_check_status(r) == UCS_INPROGRESS && clock_s() < until)
			ucx_turn(x);
		if (UCS_PTR_IS_PTR(r))
			ucx.ucp_request_free(r);
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
		ucx_end(x, k);
		ucx_drop(&x->link[k]);
	}
	pthread_mutex_unlock(&x->lock);
	if (x->worker)
		ucx.ucp_worker_destroy(x->worker);
	if (x->ctx)
		ucx.ucp_cleanup(x->ctx);
	if (x->stop >= 0)
		close(x->stop);
	free(x->get);
	pthread_mutex_destroy(&x->lock);
	free(x->link);
	free(x->open);
	free(x);
	w->net_data = NULL;
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
	TRY(ucx_start(x));
	ucp_am_handler_param_t hp = { .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG |
	                                            UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
	                              .id = 0, .cb = ucx_receive, .arg = x, .flags = UCP_AM_FLAG_WHOLE_MSG };
	ucs_status_t st = ucx.ucp_worker_set_am_recv_handler(x->worker, &hp);
	if (st != UCS_OK)
		return ucx_fail("worker", st);
	snprintf(x->token, sizeof x->token, "%s", token);
	x->open = mem_alloc((size_t)w->nlocal * sizeof *x->open);
	x->link = mem_alloc((size_t)w->nproc * sizeof *x->link);
	ucp_address_t *a;
	size_t n;
	st = ucx.ucp_worker_get_address(x->worker, &a, &n);
	if (st != UCS_OK)
		return ucx_fail("address", st);
	char *hex = mem_try(2 * n + 1);
	for (size_t i = 0; i < n && hex; i++)
		snprintf(hex + 2 * i, 3, "%02x", ((const unsigned char *)a)[i]);
	ucx.ucp_worker_release_address(x->worker, a);
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
		                      .address = (const ucp_address_t *)s.p, .err_mode = UCP_ERR_HANDLING_MODE_PEER, .err_handler = { ucx_lost, x } };
		st = ucx.ucp_ep_create(x->worker, &p, &x->link[k].ep);
		if (st != UCS_OK) {
			x->link[k].ep = NULL;
			e = sym_joins(w, kv, k, INFINITY, &coming);      /* it may have said why */
			if (!e)
				e = err_wrap(ucx_fail("endpoint", st), "process %d on host '%s'", k, w->process[k].host);
			goto out;
		}
		struct head h = { .kind = HELLO, .from = w->proc };
		memcpy(h.word, x->token, sizeof h.word);
		ucx_post(x, k, &h, NULL, 0, true, 0, NULL);
	}
	x->met = !x->poor;
	for (int k = 0; k < w->nproc; k++)
		while (reach[k] && !x->link[k].greeted && !x->poor) {
			if (!ucx_turn(x))
				nanosleep(&(struct timespec){ 0, 200000 }, NULL);
			if (!x->link[k].ep || clock_s() >= look) {
				e = sym_joins(w, kv, k, INFINITY, &coming);
				look = clock_s() + LOOK_MS / 1e3;
				while (e && ucx_turn(x)) { }
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

struct err *sym_ucx_open(struct sym_world *w, const struct kv *kv, const char *token, const bool *reach, double until)
{
	return ERR(UNIMPLEMENTED, "other hosts: this build has no UCX (package libucx-dev)");
}

const struct sym_transport sym_ucx = { .name = "ucx" };

#endif
