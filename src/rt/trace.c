/* What devices have run, and when: one recording, which a timeline (timeline.c) and profilers (rt_trace_*) are windows of.
 *
 * Each device records into its own list, in pieces that are never moved; a list has a bound, and what comes later is counted.  Nothing is
 * kept once nobody needs it. */
#include <stdlib.h>
#include <time.h>

#include "impl.h"

enum { PIECE = 4096 /* events */, MOST = 1 << 20 /* of a device */ };

struct piece { struct piece *next; size_t n; struct rt_trace_event ev[PIECE]; };
struct trace_device {
	struct trace_device *next;
	int id;
	double flops, bytes;              /* in a nanosecond at most */
	bool gone;                        /* its client is; under the lock below */
	atomic_flag lock;                 /* guards what follows */
	bool on;
	size_t n;
	struct piece *first, *last;
};
struct rt_trace {
	bool started, stopped;
	uint64_t t0, t1, lost0, lost1;
	int64_t wall;
};

_Atomic int trace_running;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;      /* guards what follows */
static int users;                         /* that have begun, and still want what was recorded */
static struct trace_device *devices;
static struct trace_prog *progs;
static _Atomic uint64_t lost;

static void pieces_free(struct trace_device *d)
{
	for (struct piece *p = d->first, *next; p; p = next) {
		next = p->next;
		mem_free(p);
	}
	d->first = d->last = NULL;
	d->n = 0;
}

static void prog_drop(struct trace_prog *p)
{
	arena_fini(&p->arena);
	mem_free(p);
}

/* Under the lock: all lists are on, or off and empty; what is left of devices and programs that are gone goes. */
static void set_on(bool on)
{
	for (struct trace_device **q = &devices, *d; (d = *q);) {
		spin_lock(&d->lock);
		d->on = on;
		if (!on)
			pieces_free(d);
		spin_unlock(&d->lock);
		if (!on && d->gone) {
			*q = d->next;
			mem_free(d);
		} else
			q = &d->next;
	}
	for (struct trace_prog **q = &progs, *p; !on && (p = *q);)
		if (p->gone) {
			*q = p->next;
			prog_drop(p);
		} else
			q = &p->next;
}

/* --- of devices and programs ------------------------------------------------------ */

struct trace_device *trace_device_new(int id, const struct plan_table *plan, int cores)
{
	struct trace_device *d = mem_malloc(sizeof *d);

	if (!d)
		return NULL;
	*d = (struct trace_device){ .id = id, .flops = cores * plan_peak_flops(plan), .bytes = cores * plan_peak_bytes(plan), .lock = ATOMIC_FLAG_INIT };
	pthread_mutex_lock(&lock);
	d->on = users > 0;
	d->next = devices;
	devices = d;
	pthread_mutex_unlock(&lock);
	return d;
}

void trace_device_gone(struct trace_device *d)
{
	if (!d)
		return;
	pthread_mutex_lock(&lock);
	d->gone = true;
	if (!users)
		set_on(false);
	pthread_mutex_unlock(&lock);
}

void trace_prog_keep(struct trace_prog *p)
{
	pthread_mutex_lock(&lock);
	p->next = progs;
	progs = p;
	pthread_mutex_unlock(&lock);
}

void trace_prog_gone(struct trace_prog *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&lock);
	p->gone = true;
	if (!users)
		set_on(false);
	pthread_mutex_unlock(&lock);
}

void trace_add(struct trace_device *d, const struct rt_trace_event *e)
{
	spin_lock(&d->lock);
	struct piece *p = d->last;
	if (d->on && d->n < MOST && (!p || p->n == PIECE) && (p = mem_malloc(sizeof *p))) {
		p->next = NULL;
		p->n = 0;
		*(d->last ? &d->last->next : &d->first) = p;
		d->last = p;
	}
	if (d->on && d->n < MOST && p) {
		p->ev[p->n++] = *e;
		d->n++;
	} else if (d->on)
		atomic_fetch_add_explicit(&lost, 1, memory_order_relaxed);
	spin_unlock(&d->lock);
}

void trace_lost(void) { atomic_fetch_add_explicit(&lost, 1, memory_order_relaxed); }

/* --- windows -------------------------------------------------------------------------- */

struct err *rt_trace_new(struct rt_trace **out)
{
	*out = mem_malloc(sizeof **out);
	if (!*out)
		return ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", sizeof **out);
	**out = (struct rt_trace){ 0 };
	return NULL;
}

struct err *rt_trace_start(struct rt_trace *t)
{
	struct timespec w;
	struct err *e = NULL;

	pthread_mutex_lock(&lock);
	if (t->started)
		e = ERR(PRECONDITION, "this trace was started before%s", t->stopped ? ", and stopped" : "");
	else {
		clock_gettime(CLOCK_REALTIME, &w);
		t->wall = (int64_t)w.tv_sec * 1000000000 + w.tv_nsec;
		t->started = true;
		t->lost0 = atomic_load(&lost);
		if (!users++)
			set_on(true);
		t->t0 = clock_ns();
		atomic_fetch_add(&trace_running, 1);
	}
	pthread_mutex_unlock(&lock);
	return e;
}

struct err *rt_trace_stop(struct rt_trace *t)
{
	struct err *e = NULL;

	pthread_mutex_lock(&lock);
	if (!t->started || t->stopped)
		e = ERR(PRECONDITION, "this trace was %s", t->stopped ? "stopped before" : "never started");
	else {
		t->stopped = true;
		t->t1 = clock_ns();
		t->lost1 = atomic_load(&lost);
		atomic_fetch_sub(&trace_running, 1);
		if (t->lost1 > t->lost0)
			log_line(LOG_WARN, "the trace lacks %llu events: a device keeps the first %d", (unsigned long long)(t->lost1 - t->lost0), MOST);
	}
	pthread_mutex_unlock(&lock);
	return e;
}

void rt_trace_free(struct rt_trace *t)
{
	if (!t)
		return;
	if (t->started && !t->stopped)
		err_free(rt_trace_stop(t));
	pthread_mutex_lock(&lock);
	if (t->started && !--users)
		set_on(false);
	pthread_mutex_unlock(&lock);
	mem_free(t);
}

/* In order of their begin; who holds others before them. */
static int by_begin(const void *a, const void *b)
{
	const struct rt_trace_event *x = a, *y = b;

	if (x->t0 != y->t0)
		return x->t0 < y->t0 ? -1 : 1;
	return x->t1 == y->t1 ? 0 : x->t1 > y->t1 ? -1 : 1;
}

/* The program that has run longest makes the steps: one begins with each of its launches, and has its number. */
static void steps(struct rt_trace_read *r)
{
	struct of { uint64_t id, ns; };
	ARR(struct of) all = { 0 };
	struct of *most = NULL;

	for (size_t i = 0; i < r->ndev; i++)
		for (size_t k = 0; k < r->dev[i].n; k++) {
			const struct rt_trace_event *e = &r->dev[i].ev[k];
			size_t j = 0;
			if (e->lane != RT_LANE_LAUNCH)
				continue;
			while (j < all.n && all.p[j].id != e->op->prog->id)
				j++;
			if (j == all.n)
				arr_push(&all, ((struct of){ .id = e->op->prog->id }));
			all.p[j].ns += e->t1 - e->t0;
		}
	for (size_t j = 0; j < all.n; j++)
		if (!most || all.p[j].ns > most->ns)
			most = &all.p[j];
	for (size_t i = 0; i < r->ndev; i++) {
		uint32_t step = 0;
		for (size_t k = 0; k < r->dev[i].n; k++) {
			struct rt_trace_event *e = &r->dev[i].ev[k];
			e->begins = most && e->lane == RT_LANE_LAUNCH && e->op->prog->id == most->id;
			step = e->begins ? e->step : step;
			e->step = step;
		}
	}
	arr_free(&all);
}

void rt_trace_read(struct rt_trace *t, struct rt_trace_read *out)
{
	struct mem_undo u;
	struct { size_t n, cap; struct rt_trace_device *p; } all = { 0 };

	mem_lock(&u, &lock);
	*out = (struct rt_trace_read){ .t0 = t->t0, .t1 = t->stopped ? t->t1 : clock_ns(), .wall = t->wall };
	out->lost = (t->stopped ? t->lost1 : atomic_load(&lost)) - t->lost0;
	for (struct trace_device *d = devices; d && t->started; d = d->next) {
		size_t i = 0, n;
		while (i < all.n && all.p[i].id != d->id)
			i++;
		if (i == all.n)
			arr_push(&all, ((struct rt_trace_device){ .id = d->id, .flops = d->flops, .bytes = d->bytes }));
		struct rt_trace_device *o = &all.p[i];
		spin_lock(&d->lock);
		n = d->n;
		struct piece *p = d->first;
		spin_unlock(&d->lock);
		/* What is there stays as it is while there are users, of whom this is one. */
		o->ev = mem_grow(o->ev, MAX(o->n + n, 1) * sizeof *o->ev);
		for (size_t k = 0; k < n; k++) {
			p = k && k % PIECE == 0 ? p->next : p;
			if (p->ev[k % PIECE].t0 >= out->t0 && p->ev[k % PIECE].t1 <= out->t1)
				o->ev[o->n++] = p->ev[k % PIECE];
		}
	}
	mem_unlock(&u);
	out->ndev = all.n;
	out->dev = all.p;
	for (size_t i = 0; i < all.n; i++)
		qsort(all.p[i].ev, all.p[i].n, sizeof *all.p[i].ev, by_begin);
	for (size_t i = 1; i < all.n; i++)
		for (size_t k = i; k && all.p[k].id < all.p[k - 1].id; k--) {
			struct rt_trace_device d = all.p[k];
			all.p[k] = all.p[k - 1];
			all.p[k - 1] = d;
		}
	steps(out);
}

void rt_trace_read_free(struct rt_trace_read *r)
{
	for (size_t i = 0; i < r->ndev; i++)
		mem_free(r->dev[i].ev);
	mem_free(r->dev);
	*r = (struct rt_trace_read){ 0 };
}
