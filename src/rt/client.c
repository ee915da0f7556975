/* The client: devices and their threads, begun and ended. */
#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

#include "impl.h"

static int devices_wanted(const struct rt_opts *o)
{
	static const char flag[] = "--xla_force_host_platform_device_count=";
	const char *f = getenv("XLA_FLAGS");
	int64_t n = o->ndev > 0 ? o->ndev : conf_int(CONF_DEVICES);

	if (n <= 0 && f && (f = strstr(f, flag)))
		n = strtol(f + sizeof flag - 1, NULL, 10);
	return (int)MAX(MIN(n, RT_MOST_DEVICES), 1);
}

/* Bytes of address space that threads may take, ours and those of jaxlib, which ends the process when it cannot start one: each has a
 * stack, and malloc gives the first of them an arena each. */
static size_t room_for_threads(int ndev)
{
	enum { ARENA = 64 << 20, ARENAS = 8, STACK = 2 << 20, SOME = 16, OF_CORE = 4, OF_DEVICE = 2 };
	size_t cores = (size_t)MAX(sysconf(_SC_NPROCESSORS_ONLN), 1), threads = SOME + OF_CORE * cores + OF_DEVICE * (size_t)ndev;
	struct rlimit stack;
	bool known = !getrlimit(RLIMIT_STACK, &stack) && stack.rlim_cur != RLIM_INFINITY;

	return threads * (known ? (size_t)stack.rlim_cur : STACK) + MIN(threads, ARENAS * cores) * ARENA;
}

struct making { const struct rt_opts *o; struct rt_client *c; };

/* With whom, and what is known of this machine. */
static struct err *meet(void *v)
{
	struct making *m = v;
	struct rt_client *c = m->c;

	plan_table_use(&c->here);
	c->plan = c->here;
	coll_table_from(&c->table, c->plan.rule);
	TRY(job_join(c, m->o));
	return job_table(c);
}

static struct err *make(void *v)
{
	struct making *m = v;
	const struct rt_opts *o = m->o;
	const struct rt_device_ops *ops = rt_device_ops_find(conf_str(CONF_DEVICE));
	struct rt_client *c = mem_alloc(sizeof *c);

	m->c = c;
	client_begin(c);
	c->ndev = devices_wanted(o);
	pthread_mutex_init(&c->launch, NULL);
	pthread_mutex_init(&c->side_lock, NULL);
	pthread_mutex_init(&c->kv_lock, NULL);
	pthread_cond_init(&c->side_cond, NULL);
	pthread_mutex_init(&c->relief_lock, NULL);
	pthread_cond_init(&c->relief_cond, NULL);
	c->relieve = launch_relieve;
	c->side_tail = &c->side_head;
	if (!ops)
		return ERR(INVALID, "RONDO_DEVICE is '%s', not cpu or far", conf_str(CONF_DEVICE));
	if (!o->boot && *conf_str(CONF_RENDEZVOUS) && conf_int(CONF_PROCESSES) != 1)
		conf_useless(CONF_RENDEZVOUS, "this process joins no others: a JAX program does by jax.distributed.initialize(), any other by RONDO_PROCESSES");
	TRY(mem_guard(meet, m, true));
	c->table.cores = c->cores;
	int nworker = MAX(cpu_get()->cores / c->sharers - 1, 0);
	c->spins = sym_spins(c->sharers * (1 + nworker));
	/* Devices that wait for each other must not share a core by the scheduler's whim.  With a quota or RONDO_CORES below the
	 * mask it is the scheduler that knows which cores are free. */
	if (!sched_getaffinity(0, sizeof c->cpus, &c->cpus))
		c->pinned = c->sharers > 1 && c->sharers * (1 + nworker) <= cpu_get()->cores && cpu_get()->cores == CPU_COUNT(&c->cpus);
	struct sym_opts so = { .nlocal = c->ndev, .boot = o->boot, .threads = c->ndev * (1 + nworker),
	                       .guard = conf_int(CONF_CHECK) != 0 };
	so.room = room_for_threads(c->ndev);
	so.chaos = conf_int(CONF_CHAOS) != 0;
	so.seed = (uint64_t)conf_int(CONF_CHAOS);
	so.limit = conf_int(CONF_MEMORY) > 0 ? conf_int(CONF_MEMORY) : cpu_get()->ram / 10 * 9 / c->housemates * c->ndev;
	so.said = conf_int(CONF_MEMORY) > 0;
	if (so.limit > cpu_get()->ram)
		conf_useless(CONF_MEMORY, "more than the %lld bytes that this process may use", (long long)cpu_get()->ram);
	c->memory = so.limit;
	TRY(sym_open(&so, &c->world));
	if (coll_table_has(&c->table, COLL_mpi)) {
		struct err *no = coll_mpi_open(c->world);
		if (no && strstr(conf_str(CONF_COLL), "mpi"))
			return err_wrap(no, "setting 'RONDO_COLL' cannot be '%s'", conf_str(CONF_COLL));
		err_free(no);
	}
	timeline_begin();
	c->dev = mem_lines(sizeof *c->dev * (size_t)c->ndev);
	for (int i = 0; i < c->ndev; i++) {
		struct rt_device *d = &c->dev[i];
		d->c = c;
		d->local = i;
		d->id = sym_first(c->world) + i;
		d->ops = ops;
		d->heap = sym_heap_of(c->world, d->id);
		TRY(trace_device_new(d->id, &c->here, 1 + nworker, &d->trace));
		d->ep = sym_ep_of(c->world, d->id);
		d->coll = coll_new(c->world, d->id, &c->table);
		d->places = MIN(1 + nworker + MIN(c->ndev - 1, MAX(cpu_get()->cores - 1 - nworker, 1)), 64);
		d->worker = mem_alloc(sizeof *d->worker * (size_t)MAX(nworker, 1));
		d->nworker = nworker;
		pthread_mutex_init(&d->lock, NULL);
		pthread_cond_init(&d->space, NULL);
	}
	for (int i = 0; i < c->ndev; i++) {
		struct rt_device *d = &c->dev[i];
		int r = pthread_create(&d->walker, NULL, walker_main, d);
		d->started = !r;
		for (int k = 0; k < nworker && !r; k++) {
			d->worker[k].d = d;
			r = pthread_create(&d->worker[k].thread, NULL, worker_main, &d->worker[k]);
			d->worker[k].started = !r;
		}
		if (r)
			return ERR(EXHAUSTED, "cannot start a thread for device %d: %s", d->id, strerror(r));
	}
	log_line(LOG_INFO, "%d %s device%s, %d worker%s each, %lld bytes", c->ndev, ops->name, c->ndev > 1 ? "s" : "", nworker,
	         nworker == 1 ? "" : "s", (long long)so.limit);
	return NULL;
}

struct err *rt_client_new(const struct rt_opts *o, struct rt_client **out)
{
	struct making m = { o, NULL };
	/* Without memory, too, the others hear of it. */
	struct err *e = mem_guard(make, &m, false);

	*out = e ? NULL : m.c;
	if (e && o->boot && o->boot->nprocess > 1 && (!m.c || !m.c->world))
		sym_give_up(o->boot, e);
	if (e)
		rt_client_free(m.c);
	return e;
}

void rt_client_stop(struct rt_client *c)
{
	if (client_forked(c))
		return;
	pthread_mutex_lock(&c->launch);
	atomic_store(&c->stop, true);
	pthread_mutex_unlock(&c->launch);
	for (int i = 0; i < c->ndev && c->dev; i++)
		device_wake(c, device_bell(&c->dev[i]));
	for (int i = 0; i < c->ndev && c->dev; i++)
		if (c->dev[i].started) {
			pthread_join(c->dev[i].walker, NULL);
			c->dev[i].started = false;
		}
	relief_close(c);
	for (int i = 0; i < c->ndev && c->dev; i++) {
		struct rt_device *d = &c->dev[i];
		atomic_fetch_add(&d->tilebell, 1);
		sym_wake(&d->tilebell, INT32_MAX);
		for (int k = 0; k < d->nworker; k++)
			if (d->worker[k].started) {
				pthread_join(d->worker[k].thread, NULL);
				d->worker[k].started = false;
			}
		guest_close(d);
		store_unref(d->room.zone);
		d->room.zone = NULL;
		if (d->ep)
			sym_clear(d->ep, true);   /* what peers may still read stays as it is: nobody takes memory here any more */
	}
	timeline_write();
	pthread_mutex_lock(&c->side_lock);
	bool side = c->side_started;
	c->side_over = true;              /* once it has done what the walkers gave it; from now on who asks for a copy does it */
	c->side_started = false;
	pthread_cond_signal(&c->side_cond);
	pthread_mutex_unlock(&c->side_lock);
	if (side)
		pthread_join(c->side_thread, NULL);
}

void rt_client_free(struct rt_client *c)
{
	if (!c)
		return;
	rt_client_stop(c);
	client_unref(c);
}

void rt_client_end(struct rt_client *c)
{
	if (client_forked(c))
		return;
	rt_client_stop(c);
	sym_leave_job(c->world);
}

bool rt_client_runs(struct rt_client *c, char *text, size_t n)
{
	bool any = false;

	for (int i = 0; i < c->ndev && !any; i++) {
		struct rt_device *d = &c->dev[i];
		pthread_mutex_lock(&d->lock);
		any = d->under;
		if (any)
			snprintf(text, n, "%s'%s'", atomic_load(&d->called) ? "a host callback of " : "", d->under->l->x->name);
		pthread_mutex_unlock(&d->lock);
	}
	return any;
}

/* Under its device's lock. */
static void given_up(struct part *p, const struct rt_event *of)
{
	if (of && p->done != of)
		return;
	struct err *why = launch_fail(p->l, ERR(CANCELLED, "the launch was given up by who waited for it"));
	err_heard(why);
	err_free(why);
}

void rt_client_give_up(struct rt_client *c, const struct rt_event *of)
{
	for (int i = 0; i < c->ndev; i++) {
		struct rt_device *d = &c->dev[i];
		pthread_mutex_lock(&d->lock);
		for (struct part *p = d->under; p; p = p->next)
			given_up(p, of);
		for (unsigned h = atomic_load(&d->head); h != atomic_load(&d->tail); h++)
			given_up(&d->q[h % RT_RING].l->part[d->q[h % RT_RING].i], of);
		pthread_mutex_unlock(&d->lock);
	}
}

int rt_client_ndev(const struct rt_client *c) { return c->ndev; }
int rt_client_parts(const struct rt_client *c) { return c->parts; }
struct rt_device *rt_client_device(const struct rt_client *c, int i) { return &c->dev[i]; }
