/* A transport for tests: heaps of peers are not mapped, and everything arrives late.
 *
 * Whatever is asked for waits in a queue until a moment drawn at random.  Lines and atomics keep behind all that
 * was done before to the same PE; puts and gets overtake each other and lines unless a fence stands between; pairs
 * know nothing of each other.  A nonblocking put reads its source as late as it may.  What survives this depends
 * on nothing but the stated order.  PEs whose heap is really not mapped are reached through the transport beneath. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "impl.h"

enum { REST_NS = 2000000, PARTING_S = 2 };
enum kind { PUT, GET, LINE, AMO };

struct item {
	struct item *next;
	uint64_t due;                     /* ns */
	enum kind kind;
	int from, pe;
	size_t off, n;
	char *at;                         /* the caller's memory: source or destination; NULL: the data is here, */
	char *own;                        /* or, if not NULL, there: a source, or a destination that is copied from in the end */
	_Atomic uint32_t *left;
	enum sym_amo op;
	uint64_t v, cond, *old;
	bool fetch;                       /* of an atomic: v is wanted */
	_Alignas(8) char data[];
};

struct pair { uint64_t last, fence; };        /* due of the last item, and of the last before a fence */

struct chaos {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond, done;
	struct item *head, *now;          /* by due, then by arrival; the one that is being delivered */
	struct pair *pair;                /* nlocal x npe */
	int64_t *open;                    /* nlocal: items not delivered */
	uint64_t seed;
	bool stop;
	_Atomic int over;                 /* nothing is waited for any more */
};

static uint64_t draw(struct chaos *c)          /* xorshift64* */
{
	c->seed ^= c->seed >> 12;
	c->seed ^= c->seed << 25;
	c->seed ^= c->seed >> 27;
	return c->seed * 0x2545f4914f6cdd1dull;
}

/* The caller's memory is not used any more until the end. */
static void own(struct item *i)
{
	if (!i->at || i->own)
		return;
	i->own = mem_grow(NULL, MAX(i->n, 1));
	if (i->kind == PUT && i->n)
		memcpy(i->own, i->at, i->n);
}

/* Under the lock: it is done, or forgotten, and the caller may go on. */
static void end(struct item *i)
{
	atomic_fetch_sub_explicit(i->left, 1, memory_order_release);
	i->left = NULL;
	i->old = NULL;
}

/* Mostly a little, sometimes much. */
static uint64_t delay(struct chaos *c)
{
	uint64_t r = draw(c);

	return r % 64 == 0 ? (r >> 32) % 2000000 : r % 4 == 0 ? (r >> 32) % 100000 : (r >> 32) % 5000;
}

static void deliver(struct sym_world *w, struct item *i)
{
	char *p = w->peer[i->pe].base, *data = i->own ? i->own : i->at ? i->at : i->data;
	const struct sym_transport *net = p ? NULL : w->net;

	switch (i->kind) {
	case PUT:
		if (p)
			memcpy(p + i->off, data, i->n);
		else
			net->put(w, i->from, i->pe, i->off, data, i->n);
		break;
	case GET:
		if (p)
			memcpy(data, p + i->off, i->n);
		else
			net->get(w, i->from, i->pe, data, i->off, i->n);
		break;
	case AMO:
		if (p)
			i->v = sym_amo_at(p + i->off, (int)i->n, i->op, i->v, i->cond);
		else
			net->amo(w, i->from, i->pe, i->op, (int)i->n, i->off, i->v, i->cond, i->fetch ? &i->v : NULL);
		break;
	case LINE: {
		const uint64_t *v = (const uint64_t *)i->data;
		if (!p) {
			net->line(w, i->from, i->pe, i->off, v, (int)(i->n / 8));
			break;
		}
		sym_deliver(w, i->pe, p + i->off, v, (int)(i->n / 8));
	}
	}
	if (p && i->kind != GET && i->kind != LINE)
		sym_notify(w, i->pe);
}

static void *chaos_main(void *v)
{
	struct sym_world *w = v;
	struct chaos *c = w->tr_data;

	sym_stop = &c->over;
	pthread_mutex_lock(&c->lock);
	while (!c->stop || c->head) {
		struct item *i = c->head;
		uint64_t now = clock_ns();
		if (i && (i->due <= now || c->stop)) {
			c->head = i->next;
			c->now = i;
			if (!w->peer[i->pe].base)     /* the network may take its time */
				own(i);
			pthread_mutex_unlock(&c->lock);
			deliver(w, i);
			pthread_mutex_lock(&c->lock);
			if (i->left && i->own && i->kind == GET && i->n)
				memcpy(i->at, i->own, i->n);
			if (i->left && i->old)
				*i->old = i->v;
			if (i->left)
				end(i);
			c->now = NULL;
			c->open[i->from - w->first]--;
			free(i->own);
			free(i);
			pthread_cond_broadcast(&c->done);
		} else if (i) {
			struct timespec ts;
			clock_gettime(CLOCK_MONOTONIC, &ts);
			uint64_t at = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec + (i->due - now);
			ts.tv_sec = (time_t)(at / 1000000000u);
			ts.tv_nsec = (long)(at % 1000000000u);
			pthread_cond_timedwait(&c->cond, &c->lock, &ts);
		} else
			pthread_cond_wait(&c->cond, &c->lock);
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

static inline struct pair *pair_of(struct sym_world *w, int from, int pe)
{
	struct chaos *c = w->tr_data;

	return &c->pair[(size_t)(from - w->first) * (size_t)w->npe + (size_t)pe];
}

/* Under the lock: until something was delivered, or a little while; false if this thread is not to wait any more. */
static bool rest(struct sym_world *w)
{
	struct chaos *c = w->tr_data;
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_nsec += REST_NS;
	t.tv_sec += t.tv_nsec / 1000000000;
	t.tv_nsec %= 1000000000;
	if (!pthread_cond_timedwait(&c->done, &c->lock, &t) || !sym_halted(w))
		return true;
	sym_halt.gave_up = ERR_CANCELLED;
	return false;
}

static void forget_item(struct item *i, const _Atomic uint32_t *left)
{
	if (i->left != left)
		return;
	own(i);
	if (i->kind == GET)
		memset(i->at, 0, i->n);
	if (i->old)
		*i->old = 0;
	end(i);
}

/* Under the lock. */
static void forget(struct sym_world *w, const _Atomic uint32_t *left)
{
	struct chaos *c = w->tr_data;

	for (struct item *i = c->head; i; i = i->next)
		forget_item(i, left);
	while (c->now && c->now->left == left && w->peer[c->now->pe].base)
		pthread_cond_wait(&c->done, &c->lock);
	if (c->now)
		forget_item(c->now, left);
}

static void chaos_forget(struct sym_world *w, _Atomic uint32_t *left)
{
	struct chaos *c = w->tr_data;

	pthread_mutex_lock(&c->lock);
	forget(w, left);
	pthread_mutex_unlock(&c->lock);
}

/* what: data to keep, n bytes, or NULL.  wait: until it is delivered. */
static void submit(struct sym_world *w, const struct item *x, const void *what, bool wait)
{
	struct chaos *c = w->tr_data;
	struct item *i = mem_grow(NULL, sizeof *i + (what ? x->n : 0)), **at;
	_Atomic uint32_t left = 1;

	*i = *x;
	if (what)
		memcpy(i->data, what, x->n);
	if (wait)
		i->left = &left;
	pthread_mutex_lock(&c->lock);
	struct pair *p = pair_of(w, i->from, i->pe);
	uint64_t at_ns = clock_ns() + delay(c), least = i->kind == LINE || i->kind == AMO ? p->last : p->fence;
	i->due = MAX(at_ns, least);
	p->last = MAX(p->last, i->due);
	for (at = &c->head; *at && (*at)->due <= i->due; at = &(*at)->next) { }
	i->next = *at;
	*at = i;
	c->open[i->from - w->first]++;
	pthread_cond_signal(&c->cond);
	while (wait && atomic_load_explicit(&left, memory_order_acquire))
		if (!rest(w))
			forget(w, &left);
	pthread_mutex_unlock(&c->lock);
}

static void chaos_line(struct sym_world *w, int from, int pe, size_t off, const uint64_t *word, int n)
{
	submit(w, &(struct item){ .kind = LINE, .from = from, .pe = pe, .off = off, .n = (size_t)n * 8 }, word, false);
}

static void chaos_put(struct sym_world *w, int from, int pe, size_t off, const void *src, size_t n)
{
	submit(w, &(struct item){ .kind = PUT, .from = from, .pe = pe, .off = off, .n = n }, src, false);
}

static void chaos_get(struct sym_world *w, int from, int pe, void *dst, size_t off, size_t n)
{
	submit(w, &(struct item){ .kind = GET, .from = from, .pe = pe, .off = off, .n = n, .at = dst }, NULL, true);
}

static void chaos_put_nb(struct sym_world *w, int from, int pe, size_t off, const void *src, size_t n, _Atomic uint32_t *left)
{
	submit(w, &(struct item){ .kind = PUT, .from = from, .pe = pe, .off = off, .n = n, .at = (char *)src, .left = left }, NULL, false);
}

static void chaos_get_nb(struct sym_world *w, int from, int pe, void *dst, size_t off, size_t n, _Atomic uint32_t *left)
{
	submit(w, &(struct item){ .kind = GET, .from = from, .pe = pe, .off = off, .n = n, .at = dst, .left = left }, NULL, false);
}

static void chaos_amo(struct sym_world *w, int from, int pe, enum sym_amo op, int bytes, size_t off, uint64_t v, uint64_t cond, uint64_t *old)
{
	submit(w, &(struct item){ .kind = AMO, .from = from, .pe = pe, .off = off, .n = (size_t)bytes, .op = op, .v = v, .cond = cond, .old = old, .fetch = old != NULL }, NULL, old != NULL);
}

static void chaos_fence(struct sym_world *w, int from, int pe)
{
	struct chaos *c = w->tr_data;
	struct pair *p = pair_of(w, from, pe);

	pthread_mutex_lock(&c->lock);
	p->fence = p->last;
	pthread_mutex_unlock(&c->lock);
	if (!w->peer[pe].base)
		w->net->fence(w, from, pe);
}

static void chaos_quiet(struct sym_world *w, int from)
{
	struct chaos *c = w->tr_data;

	pthread_mutex_lock(&c->lock);
	while (c->open[from - w->first] && rest(w)) { }
	pthread_mutex_unlock(&c->lock);
	if (w->net)
		w->net->quiet(w, from);
}

static struct err *chaos_open(struct sym_world *w)
{
	struct chaos *c = mem_alloc(sizeof *c);
	pthread_condattr_t a;

	w->tr_data = c;
	c->seed = w->seed * 2 + 1;
	c->pair = mem_alloc((size_t)w->nlocal * (size_t)w->npe * sizeof *c->pair);
	c->open = mem_alloc((size_t)w->nlocal * sizeof *c->open);
	pthread_mutex_init(&c->lock, NULL);
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&c->cond, &a);
	pthread_cond_init(&c->done, &a);
	pthread_condattr_destroy(&a);
	int r = pthread_create(&c->thread, NULL, chaos_main, w);
	if (r) {
		free(c->pair);
		free(c->open);
		free(c);
		return ERR(EXHAUSTED, "cannot start a thread: %s", strerror(r));
	}
	return NULL;
}

static void chaos_close(struct sym_world *w)
{
	struct chaos *c = w->tr_data;
	struct timespec t;

	pthread_mutex_lock(&c->lock);
	c->stop = true;
	pthread_cond_signal(&c->cond);
	pthread_mutex_unlock(&c->lock);
	clock_gettime(CLOCK_REALTIME, &t);       /* the join that thread sanitizers know has no other clock */
	t.tv_sec += PARTING_S;
	if (pthread_timedjoin_np(c->thread, NULL, &t)) {
		atomic_store(&c->over, 1);
		pthread_join(c->thread, NULL);
	}
	pthread_mutex_destroy(&c->lock);
	pthread_cond_destroy(&c->cond);
	pthread_cond_destroy(&c->done);
	free(c->pair);
	free(c->open);
	free(c);
}

static void chaos_put_line(struct sym_world *w, int from, int pe, size_t off, const void *src, size_t n, size_t loff, const uint64_t *word, int nword)
{
	chaos_put(w, from, pe, off, src, n);
	chaos_line(w, from, pe, loff, word, nword);
}

const struct sym_transport sym_chaos = {
	"chaos", chaos_open, chaos_close, chaos_get, chaos_put, chaos_get_nb, chaos_put_nb, chaos_line, chaos_put_line, chaos_amo, chaos_fence, chaos_quiet, chaos_forget,
};
