/* The queue of each device, and the walker that takes its launches. */
#include <errno.h>
#include <time.h>

#include "impl.h"

enum { LINGER_NS = 100000, SHORT_NAP_NS = 100000, LONG_NAP_NS = 50000000 };

/* --- the walker's sleep --------------------------------------------------------------- */

/* The walker has nothing to do until its bell is not as it was seen; it helps others meanwhile. */
static void walker_rest(struct rt_device *d, uint32_t seen)
{
	struct rt_client *c = d->c;

	/* The next launch of a loop in Python is some tens of microseconds away, less than waking up takes; so is the next kernel of a
	 * device that works.  The thread that will make it needs a core, perhaps this one: yield, do not poll. */
	for (uint64_t t = clock_ns(); atomic_load_explicit(&d->bell, memory_order_relaxed) == seen && clock_ns() - t < LINGER_NS;)
		if (pool_help_others(d))
			t = clock_ns();
		else if (!sym_give_way())
			break;
	if (atomic_load(&d->bell) != seen)
		return;
	int64_t nap = SHORT_NAP_NS;
	atomic_store(&d->asleep, 1);
	atomic_fetch_add(&c->idle, 1);
	if (!pool_help_others(d))
		for (;;) {               /* peers may still be in a launch that failed here */
			uint32_t all = atomic_load(&c->bell);
			if (atomic_load(&d->bell) != seen)
				break;
			sym_sleep_in(&c->bell, all, sym_clear(d->ep, false) ? -1 : nap, device_bit(d));
			nap = MIN(2 * nap, LONG_NAP_NS);
		}
	atomic_fetch_sub(&c->idle, 1);
	atomic_store(&d->asleep, 0);
}

/* --- the queue --------------------------------------------------------------------- */

/* Under the device's lock.  Who waits for a place is woken when there are many: a call takes less than to be woken. */
static void place_back(struct rt_device *d)
{
	d->taken--;
	if (d->full && d->taken <= RT_QUEUE / 2) {
		d->full = false;
		pthread_cond_broadcast(&d->space);
	}
}

static bool reads(const struct part *p, const struct store *s)
{
	bool any = false;

	for (int64_t k = 0; k < p->l->x->narg && !any; k++)
		any = p->arg[k] == s;
	return any;
}

/* Does p write to storage that a launch reads that runs, or is before place k of the queue?  Under the device's lock. */
static bool overwrites(const struct rt_device *d, const struct part *p, unsigned k)
{
	bool any = false;

	for (int64_t a = 0; a < p->l->x->narg && !any; a++) {
		const struct store *s = p->arg[a];
		if (!p->took[a] || atomic_load(&s->ref) == 1)
			continue;
		for (const struct part *q = d->under; q && !any; q = q->next)
			any = q != p && reads(q, s);
		for (unsigned h = atomic_load(&d->head); h != k && !any; h++)
			any = reads(&d->q[h % RT_RING].l->part[d->q[h % RT_RING].i], s);
	}
	return any;
}

/* What runs beside the walker was before p, which is the walker's next. */
static void wait_beside(struct rt_device *d, struct part *p)
{
	for (bool wait = true; wait && atomic_load(&d->beside);) {
		pthread_mutex_lock(&d->lock);
		wait = overwrites(d, p, atomic_load(&d->head));
		pthread_mutex_unlock(&d->lock);
		if (wait)
			nanosleep(&(struct timespec){ 0, ROOM_NAP_NS }, NULL);
	}
}

void *walker_main(void *v)
{
	struct rt_device *d = v;
	struct rt_client *c = d->c;

	cpu_set_ftz();
	device_pin(d, 0);
	walking = d;
	for (;;) {
		uint32_t seen = atomic_load(&d->bell);
		bool last = atomic_load(&c->stop);        /* before the look at the queue: what is in it by then is run */
		if (atomic_load(&d->tail) != atomic_load(&d->head)) {
			pthread_mutex_lock(&d->lock);
			unsigned head = atomic_load(&d->head);
			struct launch *l = atomic_load(&d->tail) == head ? NULL : d->q[head % RT_RING].l;      /* relief.c may have had it */
			int i = d->q[head % RT_RING].i;
			if (l) {
				atomic_store(&d->head, head + 1);
				place_back(d);
				part_runs(d, &l->part[i]);
			}
			pthread_mutex_unlock(&d->lock);
			if (!l)
				continue;
			for (int k = 0; atomic_load(&d->state) & STATE_INLINE; k++)
				k < c->spins ? sym_pause() : (void)sched_yield();
			wait_beside(d, &l->part[i]);
			part_run(l, i, &l->x->ctx[i], &d->room);
			continue;
		}
		if (last)
			return NULL;
		walker_rest(d, seen);
	}
}

/* May what is at place k of the queue run before what is before it?  If the order is nobody's business: the program does not communicate, its arguments are
 * ready, and it overwrites nothing. */
static bool may_pass(const struct rt_device *d, unsigned k)
{
	const struct part *p = &d->q[k % RT_RING].l->part[d->q[k % RT_RING].i];
	bool may = !p->l->x->comm;

	for (uint32_t w = 0; w < p->nwait && may; w++)
		may = rt_event_ready(p->wait[w]);
	return may && !overwrites(d, p, k);
}

struct launch *queue_passes(struct rt_device *d, int *i)
{
	struct launch *l = NULL;

	pthread_mutex_lock(&d->lock);
	unsigned head = atomic_load(&d->head), tail = atomic_load(&d->tail), k = head;
	while (k != tail && !may_pass(d, k))
		k++;
	if (k != tail && !(atomic_load(&d->state) & STATE_INLINE)) {
		l = d->q[k % RT_RING].l;
		*i = d->q[k % RT_RING].i;
		for (; k != head; k--)           /* those before it move up */
			d->q[k % RT_RING] = d->q[(k - 1) % RT_RING];
		atomic_store(&d->head, head + 1);
		atomic_fetch_add(&d->beside, 1);
		part_runs(d, &l->part[*i]);
		place_back(d);
	}
	pthread_mutex_unlock(&d->lock);
	return l;
}

void queue_places_back(struct rt_exec *x, int n)
{
	for (int i = 0; i < x->nlocal; i++) {
		struct rt_device *d = x->dev[i];
		if (d->local >= n)
			continue;
		pthread_mutex_lock(&d->lock);
		place_back(d);
		pthread_mutex_unlock(&d->lock);
	}
}

struct err *queue_places(struct rt_exec *x, bool inside)
{
	struct rt_client *c = x->c;
	bool full = false;

	for (int k = 0; k < c->ndev && !full; k++) {         /* in one order for everybody */
		struct rt_device *d = &c->dev[k];
		bool mine = false;
		for (int i = 0; i < x->nlocal; i++)
			mine |= x->dev[i] == d;
		if (!mine)
			continue;
		pthread_mutex_lock(&d->lock);
		bool given_up = false;
		while ((d->full |= d->taken >= RT_QUEUE) && !inside && !given_up) {
			struct timespec until;
			clock_gettime(CLOCK_MONOTONIC, &until);
			until.tv_nsec += EVENT_ASK_NS;
			until.tv_sec += until.tv_nsec / 1000000000;
			until.tv_nsec %= 1000000000;
			if (pthread_cond_clockwait(&d->space, &d->lock, CLOCK_MONOTONIC, &until) == ETIMEDOUT) {
				pthread_mutex_unlock(&d->lock);
				given_up = event_gives_up();
				pthread_mutex_lock(&d->lock);
			}
		}
		full = d->taken >= RT_RING;
		if (!full)
			d->taken++;
		pthread_mutex_unlock(&d->lock);
		if (full)
			queue_places_back(x, k);
	}
	return full ? ERR(EXHAUSTED, "host callbacks have queued %d programs that wait for them", RT_RING - RT_QUEUE) : NULL;
}

uint32_t queue_append(struct rt_device *d, struct launch *l, int i)
{
	pthread_mutex_lock(&d->lock);
	unsigned t = atomic_load(&d->tail);
	l->part[i].queued = true;
	d->q[t % RT_RING].l = l;
	d->q[t % RT_RING].i = i;
	atomic_fetch_add(&d->state, 1);
	atomic_store(&d->tail, t + 1);
	pthread_mutex_unlock(&d->lock);
	return device_bell(d);
}
