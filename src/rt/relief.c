/* What is queued behind a host callback.
 *
 * A callback may wait for another thread, one that fills a queue of batches say, whose program is queued on the same device behind the one
 * that called, or on another behind one that waits for that: it would wait for ever.  So while a callback takes longer than a moment, a thread
 * of the client runs what is queued where nothing goes on, and may go first (queue.c). */
#include <time.h>

#include "impl.h"

enum { LOOK_NS = 2000000, LOOKS = 100 /* without a callback: then it sleeps */ };

void relief_called(struct rt_device *d)
{
	struct rt_client *c = d->c;

	atomic_fetch_add(&d->calls, 1);
	atomic_fetch_add(&d->called, 1);
	if (atomic_load(&c->relief_awake))
		return;
	pthread_mutex_lock(&c->relief_lock);
	pthread_cond_broadcast(&c->relief_cond);
	pthread_mutex_unlock(&c->relief_lock);
}

void relief_back(struct rt_device *d) { atomic_fetch_sub(&d->called, 1); }

struct more { struct rt_client *c; void (*fn)(void *user); void *user; };

static void *more_main(void *v)
{
	struct more m = *(struct more *)v;

	free(v);
	m.fn(m.user);
	pthread_mutex_lock(&m.c->relief_lock);
	m.c->relief_threads--;
	pthread_cond_broadcast(&m.c->relief_cond);
	pthread_mutex_unlock(&m.c->relief_lock);
	return NULL;
}

bool relief_more(struct rt_client *c, void (*fn)(void *user), void *user)
{
	struct more *m = malloc(sizeof *m);
	pthread_t t;

	if (!m)
		return false;
	*m = (struct more){ c, fn, user };
	pthread_mutex_lock(&c->relief_lock);
	bool ok = !pthread_create(&t, NULL, more_main, m);
	c->relief_threads += ok;
	pthread_mutex_unlock(&c->relief_lock);
	if (ok)
		pthread_detach(t);
	else
		free(m);
	return ok;
}

/* Has a callback of d been under way since the last look? */
static bool lasts(struct rt_device *d)
{
	uint32_t calls = atomic_load(&d->calls);
	bool same = calls == d->calls_seen;

	d->calls_seen = calls;
	return same && atomic_load(&d->called);
}

/* Has its walker begun nothing since the last look? */
static bool stands(struct rt_device *d)
{
	unsigned head = atomic_load(&d->head);
	bool same = head == d->head_seen;

	d->head_seen = head;
	return same;
}

static void *relief_main(void *v)
{
	struct rt_client *c = v;
	int quiet = 0;

	for (;;) {
		pthread_mutex_lock(&c->relief_lock);
		atomic_store(&c->relief_awake, 1);
		if (quiet == LOOKS) {
			bool any = c->relief_over;
			atomic_store(&c->relief_awake, 0);
			for (int i = 0; i < c->ndev; i++)        /* who called just now may have seen it awake */
				any |= atomic_load(&c->dev[i].called) != 0;
			if (!any)
				pthread_cond_wait(&c->relief_cond, &c->relief_lock);
			atomic_store(&c->relief_awake, 1);
			quiet = 0;
		}
		bool over = c->relief_over;
		pthread_mutex_unlock(&c->relief_lock);
		if (over)
			return NULL;
		nanosleep(&(struct timespec){ 0, LOOK_NS }, NULL);
		quiet++;
		bool any = false;
		for (int i = 0; i < c->ndev; i++) {
			struct rt_device *d = &c->dev[i];
			if (atomic_load(&d->called) || atomic_load(&d->calls) != d->calls_seen)
				quiet = 0;
			any |= lasts(d);
		}
		for (int i = 0; i < c->ndev; i++)
			if (stands(&c->dev[i]) && any)
				c->relieve(&c->dev[i]);
	}
}

void relief_start(struct rt_client *c)
{
	int r = 0;

	pthread_mutex_lock(&c->relief_lock);
	if (!c->relief_started && !c->relief_over) {
		r = pthread_create(&c->relief_thread, NULL, relief_main, c);
		c->relief_started = !r;
	}
	pthread_mutex_unlock(&c->relief_lock);
	if (r)
		log_line(LOG_WARN, "what host callbacks wait for must not be queued behind them: no thread to be had (%s)", strerror(r));
}

void relief_close(struct rt_client *c)
{
	pthread_mutex_lock(&c->relief_lock);
	bool started = c->relief_started;
	c->relief_over = true;
	c->relief_started = false;
	pthread_cond_broadcast(&c->relief_cond);
	pthread_mutex_unlock(&c->relief_lock);
	if (started)
		pthread_join(c->relief_thread, NULL);
	pthread_mutex_lock(&c->relief_lock);
	while (c->relief_threads)
		pthread_cond_wait(&c->relief_cond, &c->relief_lock);
	pthread_mutex_unlock(&c->relief_lock);
}
