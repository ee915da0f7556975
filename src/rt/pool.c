/* Workers of a device: tiles of one kernel at a time, claimed by fetch-and-add.
 *
 * The walker opens the kernel, takes tiles itself, closes it and waits until nobody is inside.  Whoever has time
 * (a worker, or another device's walker that waits for a message) enters with users, looks whether the kernel is
 * open and leaves again: a thread that sleeps is never waited for. */
#include "impl.h"

enum { POLLS = 300, LINGER_NS = 50000 };

static void tiles_take(struct tiles *j, int max, void *scratch, struct coll_lane *lane)
{
	const struct kernel *k = j->k;

	while (max-- > 0) {
		int64_t t0 = atomic_fetch_add_explicit(&j->next, j->step, memory_order_relaxed), t1 = MIN(t0 + j->step, j->ntile);
		if (t0 >= j->ntile)
			return;
		if (k->code)
			k->code(j->ptr, t0, t1);
		else
			kern_run(k->k, k->state, j->phase, j->ptr, t0, t1, scratch);
		if (lane && coll_flying(lane))
			coll_look(lane);
	}
}

/* A place for one more thread; -1: none is free.  What needs no scratch needs none. */
static int place_take(struct tiles *j)
{
	uint64_t m = atomic_load_explicit(&j->places, memory_order_relaxed);

	if (!j->k->scratch)
		return 0;
	while (m)
		if (atomic_compare_exchange_weak_explicit(&j->places, &m, m & (m - 1), memory_order_acquire, memory_order_relaxed))
			return __builtin_ctzll(m);
	return -1;
}

static void place_give(struct tiles *j, int i)
{
	if (i)
		atomic_fetch_or_explicit(&j->places, (uint64_t)1 << i, memory_order_release);
}

bool pool_help(struct rt_device *d, int max)
{
	struct tiles *j = &d->tiles;
	bool did = false;

	if (!(atomic_load(&j->seq) & 1))
		return false;
	atomic_fetch_add(&j->users, 1);
	if ((atomic_load(&j->seq) & 1) && atomic_load_explicit(&j->next, memory_order_relaxed) < j->ntile) {
		int place = place_take(j);
		if (place >= 0) {
			tiles_take(j, max, j->scratch + (size_t)place * j->k->scratch, NULL);
			place_give(j, place);
			did = true;
		}
	}
	atomic_fetch_sub_explicit(&j->users, 1, memory_order_release);
	return did;
}

static _Atomic int64_t helped;
int64_t rt_helped(void) { return atomic_load(&helped); }

bool pool_help_others(struct rt_device *d)
{
	struct rt_client *c = d->c;

	for (int i = 1; i < c->ndev; i++)
		if (pool_help(&c->dev[(d->local + i) % c->ndev], 1)) {
			atomic_fetch_add_explicit(&helped, 1, memory_order_relaxed);
			return true;
		}
	return false;
}

/* Devices that sleep, with nothing to do or in a wait, come to help with a kernel that is worth it, as many as there are cores without work.  Where
 * other processes want the cores they would come late, and lose them with a tile in hand. */
static void call_idle(struct rt_device *d)
{
	struct rt_client *c = d->c;
	int cores = MIN(c->cores, cpu_get()->cores) - (1 + d->nworker);
	uint32_t idle = 0;

	if (sym_aside())
		return;
	for (int i = 1; i < c->ndev && cores > 0; i++) {
		struct rt_device *o = &c->dev[(d->local + i) % c->ndev];
		uint32_t state = atomic_load_explicit(&o->state, memory_order_relaxed);
		if (state & STATE_INLINE || (state && !atomic_load_explicit(&o->asleep, memory_order_relaxed) && !sym_rests(o->ep)))
			cores -= 1 + d->nworker;
	}
	for (int i = 1; i < c->ndev && cores > 0; i++) {
		struct rt_device *o = &c->dev[(d->local + i) % c->ndev];
		if (sym_rests(o->ep))
			sym_ring(c->world, o->id);
		else if (atomic_load_explicit(&o->asleep, memory_order_relaxed))
			idle |= device_bell(o);
		else
			continue;
		cores--;
	}
	device_wake(c, idle);
}

void pool_run(struct rt_device *d, const struct kernel *k, char *const *ptr, char *scratch, struct coll_lane *lane)
{
	struct tiles *j = &d->tiles;

	for (int phase = 0; phase < k->phases; phase++) {
		j->k = k;
		j->ptr = ptr;
		j->scratch = scratch;
		atomic_store_explicit(&j->places, (k->places < 64 ? ((uint64_t)1 << k->places) : 0) - 2, memory_order_relaxed);
		j->phase = phase;
		j->ntile = k->tiles;
		j->step = MAX(MIN(k->tiles / (8 * k->places), k->slice), 1);
		atomic_store_explicit(&j->next, 0, memory_order_relaxed);
		atomic_fetch_add(&j->seq, 1);
		if (d->nworker) {
			atomic_fetch_add(&d->tilebell, 1);
			if (atomic_load(&d->tileasleep))
				sym_wake(&d->tilebell, INT32_MAX);
		}
		if (k->wakes && (atomic_load(&d->c->idle) || sym_resting()))
			call_idle(d);
		tiles_take(j, INT32_MAX, scratch, lane);
		atomic_fetch_add(&j->seq, 1);
		/* Who is inside has a slice left to do; with more threads than cores it may need this one. */
		for (int i = 0; atomic_load(&j->users); i++)
			i < MAX(d->c->spins, POLLS) ? sym_pause() : (void)sched_yield();
	}
}

void device_pin(struct rt_device *d, int k)
{
	struct rt_client *c = d->c;
	int n = (c->seat + d->local) * (1 + d->nworker) + k;
	cpu_set_t one;

	if (!c->pinned)
		return;
	if (k < 0) {
		pthread_setaffinity_np(pthread_self(), sizeof c->cpus, &c->cpus);
		return;
	}
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &c->cpus) && !n--) {
			CPU_ZERO(&one);
			CPU_SET(i, &one);
			pthread_setaffinity_np(pthread_self(), sizeof one, &one);
			return;
		}
}

void *worker_main(void *v)
{
	struct worker *w = v;
	struct rt_device *d = w->d;
	struct rt_client *c = d->c;

	cpu_set_ftz();
	device_pin(d, 1 + (int)(w - d->worker));
	while (!atomic_load(&c->stop)) {
		uint32_t seen = atomic_load(&d->tilebell);
		if (pool_help(d, INT32_MAX))
			continue;
		/* The next kernel of a program follows at once; the next program may need this core for its caller. */
		for (int i = 0; i < MIN(c->spins, POLLS) && atomic_load_explicit(&d->tilebell, memory_order_relaxed) == seen; i++)
			sym_pause();
		for (uint64_t t = clock_ns(); atomic_load_explicit(&d->tilebell, memory_order_relaxed) == seen && clock_ns() - t < LINGER_NS && sym_give_way();)
			;
		if (atomic_load(&d->tilebell) != seen)
			continue;
		atomic_fetch_add(&d->tileasleep, 1);
		while (atomic_load(&d->tilebell) == seen && !atomic_load(&c->stop))
			sym_sleep(&d->tilebell, seen, -1);
		atomic_fetch_sub(&d->tileasleep, 1);
	}
	return NULL;
}
