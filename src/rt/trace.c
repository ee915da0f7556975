/* What devices have run, and when, as windows of time keep it: that of a timeline (timeline.c), those of profilers.
 *
 * A window has a list for each device, in pieces that are never moved, to which the device adds while the window is open.  So each is
 * bounded by itself, and goes with all it has; what finds no room is counted.  What programs say of themselves stays as long as there
 * are windows that may speak of it. */
#include <stdlib.h>
#include <time.h>

#include "impl.h"

enum { PIECE = 4096 /* events */, MOST = 1 << 20 /* events of a device */, PIECES = 4096 /* of all devices of a window */ };

struct piece { struct piece *next; struct rt_trace_event ev[PIECE]; };
/* What one device has run, as one window keeps it. */
struct list {
	struct rt_trace *of;
	struct list *next;                /* of the window */
	struct trace_device *from;        /* NULL: it adds no more */
	struct list *beside;              /* the next of the device */
	int id;
	double flops, bytes;
	size_t n, cap;
	uint64_t lost;
	struct piece *first, *at;         /* at: that with the last event */
};
struct trace_device {
	struct trace_device *next;
	int id;
	double flops, bytes;              /* in a nanosecond at most */
	atomic_flag lock;                 /* guards what follows, and the lists in it */
	struct list *list;                /* of windows that are open */
};
struct rt_trace {
	bool started, stopped;
	uint64_t t0, t1;
	int64_t wall;
	struct rt_trace *next;            /* open */
	struct list *list;
	_Atomic int pieces;
};

_Atomic int trace_running;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;      /* guards what follows */
static int users;                         /* windows that have begun, and are not freed */
static struct rt_trace *opened;           /* those that are open */
static struct trace_device *devices;
static struct trace_prog *progs;

static struct err *no_memory(size_t n) { return ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", n); }

/* Under the lock: nobody adds anything. */
static void hold(void)
{
	for (struct trace_device *d = devices; d; d = d->next)
		spin_lock(&d->lock);
}

static void release(void)
{
	for (struct trace_device *d = devices; d; d = d->next)
		spin_unlock(&d->lock);
}

void trace_hold(void)
{
	pthread_mutex_lock(&lock);
	hold();
}

void trace_release(void)
{
	release();
	pthread_mutex_unlock(&lock);
}

static void lists_free(struct list *l)
{
	for (struct list *next; l; l = next) {
		next = l->next;
		for (struct piece *p = l->first, *q; p; p = q) {
			q = p->next;
			mem_free(p);
		}
		mem_free(l);
	}
}

/* --- of devices and programs ------------------------------------------------------ */

/* Under the lock: the first list of t is one of d, which does not add to it yet. */
static struct err *list_new(struct rt_trace *t, struct trace_device *d)
{
	struct list *l = mem_malloc(sizeof *l);

	if (!l)
		return no_memory(sizeof *l);
	*l = (struct list){ .of = t, .next = t->list, .from = d, .id = d->id, .flops = d->flops, .bytes = d->bytes };
	t->list = l;
	return NULL;
}

static void list_open(struct list *l)
{
	l->beside = l->from->list;
	l->from->list = l;
}

/* Its device adds no more. */
static void list_close(struct list *l)
{
	struct list **q = l->from ? &l->from->list : NULL;

	while (q && *q != l)
		q = &(*q)->beside;
	if (q)
		*q = l->beside;
	l->from = NULL;
}

struct err *trace_device_new(int id, const struct plan_table *plan, int cores, struct trace_device **out)
{
	struct trace_device *d = *out = mem_malloc(sizeof *d);
	struct err *e = NULL;

	if (!d)
		return no_memory(sizeof *d);
	*d = (struct trace_device){ .id = id, .flops = cores * plan_peak_flops(plan), .bytes = cores * plan_peak_bytes(plan), .lock = ATOMIC_FLAG_INIT };
	pthread_mutex_lock(&lock);
	d->next = devices;
	devices = d;
	for (struct rt_trace *t = opened; t && !e; t = t->next)
		if (!(e = list_new(t, d)))
			list_open(t->list);
	pthread_mutex_unlock(&lock);
	return e;
}

void trace_device_gone(struct trace_device *d)
{
	if (!d)
		return;
	pthread_mutex_lock(&lock);
	while (d->list)
		list_close(d->list);
	struct trace_device **q = &devices;
	while (*q != d)
		q = &(*q)->next;
	*q = d->next;
	pthread_mutex_unlock(&lock);
	mem_free(d);
}

void trace_prog_keep(struct trace_prog *p)
{
	pthread_mutex_lock(&lock);
	p->next = progs;
	progs = p;
	pthread_mutex_unlock(&lock);
}

/* Under the lock: programs that are gone, and of which nobody will speak. */
static void progs_drop(void)
{
	for (struct trace_prog **q = &progs, *p; (p = *q);)
		if (p->gone && !(users && p->used)) {
			*q = p->next;
			arena_fini(&p->arena);
			mem_free(p);
		} else
			q = &p->next;
}

void trace_prog_gone(struct trace_prog *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&lock);
	p->gone = true;
	if (!users || !p->used)
		progs_drop();
	pthread_mutex_unlock(&lock);
}

/* Room for n more? */
static bool room(struct list *l, size_t n)
{
	struct piece *p;

	if (l->n + n <= l->cap)
		return true;
	if (l->cap >= MOST || atomic_load_explicit(&l->of->pieces, memory_order_relaxed) >= PIECES || !(p = mem_malloc(sizeof *p)))
		return false;
	atomic_fetch_add_explicit(&l->of->pieces, 1, memory_order_relaxed);
	p->next = NULL;
	*(l->at ? &l->at->next : &l->first) = p;
	l->at = l->at ? l->at : p;
	l->cap += PIECE;
	return true;
}

void trace_add(struct trace_device *d, struct trace_prog *p, const struct rt_trace_event *e, uint64_t began)
{
	bool kept = false;

	spin_lock(&d->lock);
	for (struct list *l = d->list; l; l = l->beside) {
		if (began < l->of->t0)
			continue;
		if (!e || !room(l, e->lane == RT_LANE_LAUNCH ? 1 : 2)) {      /* the last place is for the launch that is under way */
			l->lost++;
			continue;
		}
		if (l->n && l->n % PIECE == 0)
			l->at = l->at->next;
		l->at->ev[l->n++ % PIECE] = *e;
		kept = true;
	}
	spin_unlock(&d->lock);
	if (kept && !atomic_load_explicit(&p->used, memory_order_relaxed))
		atomic_store_explicit(&p->used, true, memory_order_relaxed);
}

/* --- windows -------------------------------------------------------------------------- */

struct err *rt_trace_new(struct rt_trace **out)
{
	*out = mem_calloc(1, sizeof **out);
	return *out ? NULL : no_memory(sizeof **out);
}

struct err *rt_trace_start(struct rt_trace *t)
{
	struct err *e = NULL;

	pthread_mutex_lock(&lock);
	if (t->started)
		e = ERR(PRECONDITION, "this trace was started before%s", t->stopped ? ", and stopped" : "");
	for (struct trace_device *d = devices; d && !e; d = d->next)
		e = list_new(t, d);
	if (!e) {
		struct timespec w;
		hold();
		for (struct list *l = t->list; l; l = l->next)
			list_open(l);
		t->t0 = clock_ns();
		clock_gettime(CLOCK_REALTIME, &w);
		release();
		t->wall = (int64_t)w.tv_sec * 1000000000 + w.tv_nsec;
		t->started = true;
		t->next = opened;
		opened = t;
		users++;
		atomic_fetch_add(&trace_running, 1);
	} else if (!t->started) {
		lists_free(t->list);
		t->list = NULL;
	}
	pthread_mutex_unlock(&lock);
	return e;
}

struct err *rt_trace_stop(struct rt_trace *t)
{
	struct err *e = NULL;
	uint64_t lost = 0;

	pthread_mutex_lock(&lock);
	if (!t->started || t->stopped)
		e = ERR(PRECONDITION, "this trace was %s", t->stopped ? "stopped before" : "never started");
	else {
		struct rt_trace **q = &opened;
		while (*q != t)
			q = &(*q)->next;
		*q = t->next;
		hold();
		for (struct list *l = t->list; l; l = l->next) {
			list_close(l);
			lost += l->lost;
		}
		t->t1 = clock_ns();
		release();
		t->stopped = true;
		atomic_fetch_sub(&trace_running, 1);
	}
	pthread_mutex_unlock(&lock);
	if (lost)
		log_line(LOG_WARN, "the trace lacks %llu events: the first %d of a device are kept, and %d of all", (unsigned long long)lost, MOST, PIECES * PIECE);
	return e;
}

void rt_trace_free(struct rt_trace *t)
{
	if (!t)
		return;
	if (t->started && !t->stopped)
		err_free(rt_trace_stop(t));
	lists_free(t->list);
	pthread_mutex_lock(&lock);
	if (t->started && !--users)
		progs_drop();
	pthread_mutex_unlock(&lock);
	mem_free(t);
}

/* In order of their begin; who holds others before them. */
static int by_begin(const void *a, const void *b)
{
	const struct rt_trace_event *x = a, *y = b;

	if (x->t0 != y->t0)
		return x->t0 < y->t0 ? -1 : 1;
	if (x->t1 != y->t1)
		return x->t1 > y->t1 ? -1 : 1;
	return (int)x->lane - (int)y->lane;
}

/* What belongs to no launch goes: that was under way at the end. */
static size_t whole(struct rt_trace_event *ev, size_t n)
{
	size_t m = 0;
	uint64_t until = 0;

	for (size_t k = 0; k < n; k++) {
		if (ev[k].lane == RT_LANE_LAUNCH)
			until = MAX(until, ev[k].t1);
		if (ev[k].t1 <= until)
			ev[m++] = ev[k];
	}
	return m;
}

/* The program that has run longest makes the steps: one begins with each of its launches, and has its number. */
static void steps(struct rt_trace_read *r)
{
	struct map of = { 0 };                    /* ns of each program */
	uint64_t most = 0, longest = 0;           /* ids are not 0 */

	for (size_t i = 0; i < r->ndev; i++)
		for (size_t k = 0; k < r->dev[i].n; k++) {
			const struct rt_trace_event *e = &r->dev[i].ev[k];
			if (e->lane != RT_LANE_LAUNCH)
				continue;
			uint64_t *ns = map_put(&of, &e->op->prog->id, sizeof e->op->prog->id);
			*ns += e->t1 - e->t0;
			if (*ns >= longest) {
				longest = *ns;
				most = e->op->prog->id;
			}
		}
	map_free(&of);
	for (size_t i = 0; i < r->ndev; i++) {
		uint32_t step = 0;
		for (size_t k = 0; k < r->dev[i].n; k++) {
			struct rt_trace_event *e = &r->dev[i].ev[k];
			e->begins = e->lane == RT_LANE_LAUNCH && e->op->prog->id == most;
			step = e->begins ? e->step : step;
			e->step = step;
		}
	}
}

static int by_id(const void *a, const void *b) { return ((const struct rt_trace_device *)a)->id - ((const struct rt_trace_device *)b)->id; }

void rt_trace_read(struct rt_trace *t, struct rt_trace_read *out)
{
	struct mem_undo u;
	struct { size_t n, cap; struct rt_trace_device *p; } all = { 0 };

	mem_lock(&u, &lock);
	for (struct list *l = t->list; l; l = l->next) {
		size_t i = 0;
		while (i < all.n && all.p[i].id != l->id)          /* of two clients, one after the other */
			i++;
		if (i == all.n)
			arr_push(&all, ((struct rt_trace_device){ .id = l->id, .flops = l->flops, .bytes = l->bytes }));
		struct rt_trace_device *o = &all.p[i];
		if (l->from)
			spin_lock(&l->from->lock);
		size_t n = l->n;
		struct piece *p = l->first;
		o->lost += l->lost;
		if (l->from)
			spin_unlock(&l->from->lock);
		/* What is there stays as it is. */
		o->ev = mem_grow(o->ev, MAX(o->n + n, 1) * sizeof *o->ev);
		for (size_t k = 0, m; k < n; k += m, p = k < n ? p->next : NULL) {
			m = MIN(n - k, PIECE);
			memcpy(o->ev + o->n, p->ev, m * sizeof *o->ev);
			o->n += m;
		}
	}
	*out = (struct rt_trace_read){ .t0 = t->t0, .t1 = t->stopped ? t->t1 : clock_ns(), .wall = t->wall, .ndev = all.n, .dev = all.p };
	mem_unlock(&u);
	for (size_t i = 0; i < all.n; i++) {
		qsort(all.p[i].ev, all.p[i].n, sizeof *all.p[i].ev, by_begin);
		all.p[i].n = whole(all.p[i].ev, all.p[i].n);
	}
	if (all.n)
		qsort(all.p, all.n, sizeof *all.p, by_id);
	steps(out);
}

void rt_trace_read_free(struct rt_trace_read *r)
{
	for (size_t i = 0; i < r->ndev; i++)
		mem_free(r->dev[i].ev);
	mem_free(r->dev);
	*r = (struct rt_trace_read){ 0 };
}
