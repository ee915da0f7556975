/* A transport for tests: heaps of peers are not mapped, and everything arrives late.
 *
 * Lines and puts wait in a queue until a moment drawn at random, in order for each pair but not between pairs;
 * gets take their time as well.  What survives this depends on nothing but the stated order. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "impl.h"

struct item {
	struct item *next;
	uint64_t due;                     /* ns */
	int from, pe;
	size_t off, n;
	bool line;
	_Alignas(8) char data[];
};

struct chaos {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct item *head;                /* by due, then by arrival */
	uint64_t *last;                   /* per (from, pe): due of the last item */
	uint64_t seed;
	bool stop;
};

static uint64_t draw(struct chaos *c)          /* xorshift64* */
{
	c->seed ^= c->seed >> 12;
	c->seed ^= c->seed << 25;
	c->seed ^= c->seed >> 27;
	return c->seed * 0x2545f4914f6cdd1dull;
}

/* Mostly a little, sometimes much. */
static uint64_t delay(struct chaos *c)
{
	uint64_t r = draw(c);

	return r % 64 == 0 ? (r >> 32) % 2000000 : r % 4 == 0 ? (r >> 32) % 100000 : (r >> 32) % 5000;
}

static void deliver(struct sym_world *w, struct item *i)
{
	char *p = w->peer[i->pe].base;
	const uint64_t *v = (const uint64_t *)i->data;

	if (!p && i->line)
		w->net->line(w, i->from, i->pe, i->off, v, (int)(i->n / 8));
	else if (!p)
		w->net->put(w, i->from, i->pe, i->off, i->data, i->n);
	else if (!i->line)
		memcpy(p + i->off, i->data, i->n);
	else
		sym_deliver(w, i->pe, p + i->off, v, (int)(i->n / 8));
}

static void *chaos_main(void *v)
{
	struct sym_world *w = v;
	struct chaos *c = w->tr_data;

	pthread_mutex_lock(&c->lock);
	while (!c->stop || c->head) {
		struct item *i = c->head;
		uint64_t now = clock_ns();
		if (i && (i->due <= now || c->stop)) {
			c->head = i->next;
			pthread_mutex_unlock(&c->lock);
			deliver(w, i);
			free(i);
			pthread_mutex_lock(&c->lock);
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

static void submit(struct sym_world *w, int from, int pe, size_t off, const void *p, size_t n, bool line)
{
	struct chaos *c = w->tr_data;
	struct item *i = mem_grow(NULL, sizeof *i + n), **at;

	*i = (struct item){ .from = from, .pe = pe, .off = off, .n = n, .line = line };
	memcpy(i->data, p, n);
	pthread_mutex_lock(&c->lock);
	uint64_t *last = &c->last[(size_t)(from - w->first) * (size_t)w->npe + (size_t)pe];
	i->due = clock_ns() + delay(c);
	i->due = *last = MAX(*last, i->due);
	for (at = &c->head; *at && (*at)->due <= i->due; at = &(*at)->next) { }
	i->next = *at;
	*at = i;
	pthread_cond_signal(&c->cond);
	pthread_mutex_unlock(&c->lock);
}

static void chaos_line(struct sym_world *w, int from, int pe, size_t off, const uint64_t *word, int n) { submit(w, from, pe, off, word, (size_t)n * 8, true); }
static void chaos_put(struct sym_world *w, int from, int pe, size_t off, const void *src, size_t n) { submit(w, from, pe, off, src, n, false); }

static void chaos_get(struct sym_world *w, int from, int pe, void *dst, size_t off, size_t n)
{
	struct chaos *c = w->tr_data;

	pthread_mutex_lock(&c->lock);
	uint64_t ns = delay(c) / 8;
	pthread_mutex_unlock(&c->lock);
	nanosleep(&(struct timespec){ 0, (long)ns }, NULL);
	if (w->peer[pe].base)
		memcpy(dst, w->peer[pe].base + off, n);
	else
		w->net->get(w, from, pe, dst, off, n);
}

static struct err *chaos_open(struct sym_world *w)
{
	struct chaos *c = mem_alloc(sizeof *c);
	pthread_condattr_t a;

	w->tr_data = c;
	c->seed = w->seed * 2 + 1;
	c->last = mem_alloc((size_t)w->nlocal * (size_t)w->npe * sizeof *c->last);
	pthread_mutex_init(&c->lock, NULL);
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&c->cond, &a);
	pthread_condattr_destroy(&a);
	int r = pthread_create(&c->thread, NULL, chaos_main, w);
	if (r) {
		free(c->last);
		free(c);
		return ERR(EXHAUSTED, "cannot start a thread: %s", strerror(r));
	}
	return NULL;
}

static void chaos_close(struct sym_world *w)
{
	struct chaos *c = w->tr_data;

	pthread_mutex_lock(&c->lock);
	c->stop = true;
	pthread_cond_signal(&c->cond);
	pthread_mutex_unlock(&c->lock);
	pthread_join(c->thread, NULL);
	pthread_mutex_destroy(&c->lock);
	pthread_cond_destroy(&c->cond);
	free(c->last);
	free(c);
}

const struct sym_transport sym_chaos = { "chaos", chaos_open, chaos_close, chaos_get, chaos_put, chaos_line };
