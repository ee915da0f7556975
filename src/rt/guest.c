/* A device's guest: the thread on which code outside Rondo runs while the walker looks after what is under way. */
#include <errno.h>

#include "impl.h"

enum { REST, WORK, OVER };

_Thread_local struct rt_device *walking;
_Thread_local unsigned long behalf;

struct guest {
	struct rt_device *d;
	pthread_t thread;
	_Atomic uint32_t state;
	struct err *(*fn)(void *arg);     /* from WORK to REST */
	void *arg;
	struct err *err;
};

static void go_to(struct guest *g, uint32_t state)
{
	atomic_store(&g->state, state);
	sym_wake(&g->state, INT32_MAX);
}

static void *guest_main(void *v)
{
	struct guest *g = v;
	struct rt_device *d = g->d;

	cpu_set_ftz();
	device_pin(d, -1);
	walking = d;
	for (;;) {
		uint32_t state = atomic_load(&g->state);
		if (state == OVER)
			return NULL;
		if (state == REST) {
			sym_sleep(&g->state, REST, -1);
			continue;
		}
		g->err = mem_guard(g->fn, g->arg, false);
		go_to(g, REST);
		sym_ring(d->c->world, d->id);
	}
}

struct err *guest_start(struct rt_device *d)
{
	struct guest *g = NULL;
	struct err *e = NULL;

	pthread_mutex_lock(&d->lock);
	if (!d->guest) {
		g = calloc(1, sizeof *g);
		int r = g ? 0 : ENOMEM;
		if (g) {
			g->d = d;
			r = pthread_create(&g->thread, NULL, guest_main, g);
		}
		if (r) {
			free(g);
			e = ERR(EXHAUSTED, "cannot start a thread for device %d: %s", d->id, strerror(r));
		} else
			d->guest = g;
	}
	pthread_mutex_unlock(&d->lock);
	return e;
}

void guest_close(struct rt_device *d)
{
	if (!d->guest)
		return;
	go_to(d->guest, OVER);
	pthread_join(d->guest->thread, NULL);
	free(d->guest);
	d->guest = NULL;
}

static bool is_back(void *v) { return atomic_load(&((struct guest *)v)->state) == REST; }

struct err *guest_run(struct rt_device *d, struct coll_lane *lane, struct err *(*fn)(void *arg), void *arg)
{
	struct guest *g = d->guest;

	g->fn = fn;
	g->arg = arg;
	go_to(g, WORK);
	coll_stay(lane, is_back, g);
	while (!is_back(g))
		sym_sleep(&g->state, WORK, -1);
	return g->err;
}
