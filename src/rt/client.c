/* The client: devices, their threads, the side lane. */
#include <errno.h>

#include "impl.h"

/* --- fork ------------------------------------------------------------------ */

/* Threads do not survive a fork: a child may free what it has, and is told so if it asks for more. */
static _Atomic unsigned forks;
static void in_child(void) { atomic_fetch_add(&forks, 1); }
static void fork_watch(void) { pthread_atfork(NULL, NULL, in_child); }
bool client_forked(const struct rt_client *c) { return c->fork_gen != atomic_load_explicit(&forks, memory_order_relaxed); }

/* --- names that live for ever ------------------------------------------------ */

const char *intern(const char *text)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct map names;

	struct mem_undo u;
	bool was = mem_persist(true);
	mem_lock(&u, &lock);
	uint64_t *v = map_put(&names, text, strlen(text));
	if (!*v) {
		size_t n = strlen(text) + 1;
		*v = (uint64_t)(uintptr_t)memcpy(mem_new(n), text, n);
	}
	const char *r = (const char *)(uintptr_t)*v;
	mem_unlock(&u);
	mem_persist(was);
	return r;
}

/* --- life ---------------------------------------------------------------------- */

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

static int devices_wanted(const struct rt_opts *o)
{
	static const char flag[] = "--xla_force_host_platform_device_count=";
	const char *f = getenv("XLA_FLAGS");
	int64_t n = o->ndev > 0 ? o->ndev : conf_int(CONF_DEVICES);

	if (n <= 0 && f && (f = strstr(f, flag)))
		n = strtol(f + sizeof flag - 1, NULL, 10);
	return (int)MAX(MIN(n, 1024), 1);
}

struct err *rt_client_new(const struct rt_opts *o, struct rt_client **out)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const struct rt_device_ops *ops = rt_device_ops_find(conf_str(CONF_DEVICE));
	struct rt_client *c = mem_alloc(sizeof *c);
	struct err *e = NULL;

	*out = NULL;
	pthread_once(&once, fork_watch);
	atomic_init(&c->ref, 1);
	c->ndev = devices_wanted(o);
	c->fork_gen = atomic_load(&forks);
	pthread_mutex_init(&c->launch, NULL);
	pthread_mutex_init(&c->side_lock, NULL);
	pthread_mutex_init(&c->kv_lock, NULL);
	pthread_cond_init(&c->side_cond, NULL);
	c->side_tail = &c->side_head;
	if (!ops) {
		e = ERR(INVALID, "RONDO_DEVICE is '%s', not cpu or far", conf_str(CONF_DEVICE));
		goto out;
	}
	TRY_GOTO(e, coll_table_get(&c->table), out);
	TRY_GOTO(e, job_join(c, o->boot), out);
	TRY_GOTO(e, job_table(c, &c->table), out);
	c->table.cores = c->cores;
	int nworker = MAX(cpu_get()->cores / c->sharers - 1, 0);
	c->spins = sym_spins(c->sharers * (1 + nworker));
	/* Devices that wait for each other must not share a core by the scheduler's whim.  With a quota or RONDO_CORES below the
	 * mask it is the scheduler that knows which cores are free. */
	if (!sched_getaffinity(0, sizeof c->cpus, &c->cpus))
		c->pinned = c->sharers > 1 && c->sharers * (1 + nworker) <= cpu_get()->cores && cpu_get()->cores == CPU_COUNT(&c->cpus);
	struct sym_opts so = { .nlocal = c->ndev, .boot = o->boot, .threads = c->ndev * (1 + nworker),
	                       .guard = conf_int(CONF_CHECK) != 0 };
	so.chaos = conf_int(CONF_CHAOS) != 0;
	so.seed = (uint64_t)conf_int(CONF_CHAOS);
	so.limit = conf_int(CONF_MEMORY) > 0 ? conf_int(CONF_MEMORY) : cpu_get()->ram / 10 * 9 / c->housemates * c->ndev;
	if (so.limit > cpu_get()->ram)
		conf_useless(CONF_MEMORY, "more than the %lld bytes that this process may use", (long long)cpu_get()->ram);
	TRY_GOTO(e, sym_open(&so, &c->world), out);
	if (coll_table_has(&c->table, COLL_mpi)) {
		struct err *no = coll_mpi_open(c->world);
		if (no && strstr(conf_str(CONF_COLL), "mpi")) {
			e = err_wrap(no, "RONDO_COLL");
			goto out;
		}
		err_free(no);
	}
	c->dev = mem_lines(sizeof *c->dev * (size_t)c->ndev);
	for (int i = 0; i < c->ndev; i++) {
		struct rt_device *d = &c->dev[i];
		d->c = c;
		d->local = i;
		d->id = sym_first(c->world) + i;
		d->ops = ops;
		d->heap = sym_heap_of(c->world, d->id);
		d->trace = trace_on() ? trace_new(d->id) : NULL;
		d->ep = sym_ep_of(c->world, d->id);
		d->coll = coll_new(c->world, d->id, &c->table);
		d->nworker = nworker;
		d->places = MIN(1 + nworker + MIN(c->ndev - 1, MAX(cpu_get()->cores - 1 - nworker, 1)), 64);
		d->worker = mem_alloc(sizeof *d->worker * (size_t)MAX(nworker, 1));
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
			if (r)
				d->nworker = k;
		}
		if (r) {
			for (int k = i + 1; k < c->ndev; k++)
				c->dev[k].nworker = 0;
			if (!d->started)
				d->nworker = 0;
			e = ERR(EXHAUSTED, "cannot start a thread for device %d: %s", d->id, strerror(r));
			goto out;
		}
	}
	log_line(LOG_INFO, "%d %s device%s, %d worker%s each, %lld bytes", c->ndev, ops->name, c->ndev > 1 ? "s" : "", nworker,
	         nworker == 1 ? "" : "s", (long long)so.limit);
out:
	if (e && o->boot && !c->world)
		job_refuse(o->boot, e);
	if (e)
		rt_client_free(c);
	else
		*out = c;
	return e;
}

void client_ref(struct rt_client *c) { atomic_fetch_add_explicit(&c->ref, 1, memory_order_relaxed); }

void client_unref(struct rt_client *c)
{
	if (atomic_fetch_sub_explicit(&c->ref, 1, memory_order_acq_rel) > 1)
		return;
	for (int i = 0; i < c->ndev && c->dev; i++) {
		struct rt_device *d = &c->dev[i];
		free(d->worker);
		coll_free(d->coll);
	}
	sym_close(c->world);
	map_free(&c->published);
	free(c->place);
	free(c->dev);
	free(c);
}

void rt_client_free(struct rt_client *c)
{
	if (!c)
		return;
	if (client_forked(c)) {
		client_unref(c);
		return;
	}
	pthread_mutex_lock(&c->launch);
	atomic_store(&c->stop, true);
	pthread_mutex_unlock(&c->launch);
	for (int i = 0; i < c->ndev && c->dev; i++) {
		struct rt_device *d = &c->dev[i];
		atomic_fetch_add(&d->bell, 1);
		sym_wake(&d->bell, INT32_MAX);
	}
	for (int i = 0; i < c->ndev && c->dev; i++)
		if (c->dev[i].started)
			pthread_join(c->dev[i].walker, NULL);
	for (int i = 0; i < c->ndev && c->dev; i++) {
		struct rt_device *d = &c->dev[i];
		atomic_fetch_add(&d->jobbell, 1);
		sym_wake(&d->jobbell, INT32_MAX);
		for (int k = 0; k < d->nworker; k++)
			pthread_join(d->worker[k].thread, NULL);
		store_unref(d->room.zone);
		d->room.zone = NULL;
		sym_clear(d->ep, true);           /* what peers may still read stays as it is: nobody takes memory here any more */
	}
	if (trace_on())
		trace_write();
	pthread_mutex_lock(&c->side_lock);
	bool side = c->side_started;
	c->side_over = true;              /* once it has done what the walkers gave it; from now on who asks for a copy does it */
	c->side_started = false;
	pthread_cond_signal(&c->side_cond);
	pthread_mutex_unlock(&c->side_lock);
	if (side)
		pthread_join(c->side_thread, NULL);
	client_unref(c);
}

int rt_client_ndev(const struct rt_client *c) { return c->ndev; }
struct rt_device *rt_client_device(const struct rt_client *c, int i) { return &c->dev[i]; }

/* --- side lane -------------------------------------------------------------------- */

struct side {
	struct side *next;
	void (*fn)(void *user);
	void *user;
};

static void *side_main(void *v)
{
	struct rt_client *c = v;

	pthread_mutex_lock(&c->side_lock);
	for (;;) {
		struct side *s = c->side_head;
		if (s) {
			if (!(c->side_head = s->next))
				c->side_tail = &c->side_head;
			pthread_mutex_unlock(&c->side_lock);
			s->fn(s->user);
			free(s);
			pthread_mutex_lock(&c->side_lock);
		} else if (c->side_over)
			break;
		else
			pthread_cond_wait(&c->side_cond, &c->side_lock);
	}
	pthread_mutex_unlock(&c->side_lock);
	return NULL;
}

void client_side(struct rt_client *c, void (*fn)(void *user), void *user)
{
	struct side *s = malloc(sizeof *s);

	if (!s) {
		fn(user);
		return;
	}
	*s = (struct side){ NULL, fn, user };
	pthread_mutex_lock(&c->side_lock);
	if (!c->side_started && !c->side_over)
		c->side_started = !pthread_create(&c->side_thread, NULL, side_main, c);
	if (!c->side_started) {               /* no thread to be had: do it here */
		pthread_mutex_unlock(&c->side_lock);
		fn(user);
		free(s);
		return;
	}
	*c->side_tail = s;
	c->side_tail = &s->next;
	pthread_cond_signal(&c->side_cond);
	pthread_mutex_unlock(&c->side_lock);
}
