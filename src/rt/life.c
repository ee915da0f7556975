/* How long a client lives: as long as anything refers to it; and what a fork leaves of it. */
#include "impl.h"

/* Threads do not survive a fork: a child may free what it has, and is told so if it asks for more. */
static _Atomic unsigned forks;
static void in_child(void)
{
	trace_release();
	timeline_disown();
	atomic_fetch_add(&forks, 1);
}
static void fork_watch(void) { pthread_atfork(trace_hold, trace_release, in_child); }

void client_begin(struct rt_client *c)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, fork_watch);
	atomic_init(&c->ref, 1);
	c->fork_gen = atomic_load(&forks);
}

const char rt_forked[] = "this process was forked from the one that started the devices: start workers by 'spawn' or 'forkserver', or fork before JAX is used";
bool client_forked(const struct rt_client *c) { return c->fork_gen != atomic_load_explicit(&forks, memory_order_relaxed); }
void client_ref(struct rt_client *c) { atomic_fetch_add_explicit(&c->ref, 1, memory_order_relaxed); }

void client_unref(struct rt_client *c)
{
	if (atomic_fetch_sub_explicit(&c->ref, 1, memory_order_acq_rel) > 1)
		return;
	for (int i = 0; i < c->ndev && c->dev; i++) {
		struct rt_device *d = &c->dev[i];
		free(d->worker);
		trace_device_gone(d->trace);
		coll_lane_free(d->lane);
		coll_free(d->coll);
	}
	sym_close(c->world);
	map_free(&c->published);
	free(c->place);
	free(c->dev);
	free(c);
}
