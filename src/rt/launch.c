/* Launching: into the queue of each device, or past it.
 *
 * A launch is appended to the queues of all its local devices under the client's launch lock, so all devices
 * see one order.  Each queue is walked by one thread, unless it is empty and the program is small: then the
 * caller's thread takes the device for a moment (waking a thread costs more than the work). */
#include <time.h>

#include "impl.h"

/* Room for a launch.  NULL: there is none. */
static struct launch *launch_new(struct rt_exec *x, int32_t id)
{
	struct launch *l = spare_take(&x->launches);
	size_t each = launch_each(x);

	if (!l)
		return NULL;
	atomic_init(&l->ref, x->nlocal);
	l->x = x;
	l->id = id;
	l->by = behalf ? behalf : (unsigned long)pthread_self();
	atomic_init(&l->stop, 0);
	atomic_flag_clear(&l->lock);
	l->err = NULL;
	for (int i = 0; i < x->nlocal; i++) {
		struct part *p = &l->part[i];
		p->arg = (struct store **)((char *)l + sizeof *l + (size_t)x->nlocal * sizeof *p + each * (size_t)i);
		p->wait = (struct rt_event **)(p->arg + x->narg);
		p->out = (struct store **)(p->wait + x->narg);
		p->st = p->out + x->nres;
		p->took = (uint8_t *)(p->st + x->nres);
		p->promised = 0;
		p->queued = false;
		p->l = l;
	}
	return l;
}

/* The call fails with e.  The peers, which may have room, and have begun or will, hear of it as of a launch that failed here. */
static struct err *refuse(struct rt_exec *x, int32_t id, struct err *e)
{
	struct launch *l = launch_new(x, id);
	int n = 0;

	while (l && n < x->nlocal && (l->part[n].done = rt_event_new()))
		n++;
	struct err *no = n == x->nlocal ? queue_places(x, false) : no_room(x->launches.size);
	if (no) {
		err_free(no);
		while (n)
			rt_event_unref(l->part[--n].done);
		if (l)
			spare_give(&x->launches, l);
		return e;
	}
	l->err = err_copy(e);
	atomic_store(&l->stop, 1);
	for (int i = 0; i < n; i++) {
		struct part *p = &l->part[i];
		memset(p->arg, 0, sizeof *p->arg * (size_t)x->narg);
		memset(p->out, 0, sizeof *p->out * (size_t)x->nres);
		memset(p->took, 0, (size_t)x->narg);
		p->nwait = p->waited = 0;
		p->bound = 0;
	}
	rt_exec_ref(x);
	pthread_mutex_lock(&x->c->launch);
	uint32_t who = 0;
	for (int i = 0; i < n; i++)
		who |= queue_append(x->dev[i], l, i);
	pthread_mutex_unlock(&x->c->launch);
	device_wake(x->c, who);
	return e;
}

/* On the caller's thread.  Gives false if the device is busy or an argument is not ready. */
static bool run_inline(struct rt_exec *x, struct rt_buffer *const *arg, const int64_t *no_donate, size_t nkeep, int32_t id,
                       struct rt_buffer **out, struct rt_event **done, struct err **err)
{
	struct rt_device *d = x->dev[0];
	uint32_t idle = 0;

	for (int64_t k = 0; k < x->narg; k++)
		if (atomic_load_explicit(&buffer_ready(arg[k])->state, memory_order_acquire) != 1)
			return false;
	if (!atomic_compare_exchange_strong(&d->state, &idle, STATE_INLINE))
		return false;
	struct launch *l = launch_new(x, id);
	struct part *p = l ? &l->part[0] : NULL;
	struct err *e = l ? part_check(p, x, 0, arg) : no_room(x->launches.size);
	bool got = false;
	if (!e && !(e = part_spare(p, x, 0, true, out))) {
		if (x->donates)
			pthread_mutex_lock(&x->c->launch);
		/* Who was queued meanwhile may read what is donated, and runs behind this one. */
		bool alone = atomic_load(&d->state) == STATE_INLINE;
		got = !(e = part_take(p, x, arg, alone, no_donate, nkeep)) && !(e = part_make(p, x, 0, arg, &event_ok));
		if (x->donates)
			pthread_mutex_unlock(&x->c->launch);
		if (!got)
			part_drop(p);
	}
	if (got) {
		unsigned fp = cpu_set_ftz();
		e = part_go(x, 0, &x->ctx[0], p, &d->room, NULL, id);
		cpu_restore_fp(fp);
	}
	atomic_fetch_and(&d->state, ~STATE_INLINE);
	*err = e;
	if (got)
		part_arguments_drop(p);
	if (l)
		spare_give(&x->launches, l);
	for (int64_t r = 0; r < x->nres && got && e; r++)
		rt_buffer_unref(out[r]);
	*done = e ? NULL : &event_ok;
	return true;
}

/* Registers of a launch inside another one on the same device. */
struct inner { const struct rt_exec *x; struct ctx c; };

static struct err *inner_init(void *v)
{
	struct inner *in = v;

	ctx_init(&in->c, in->x);
	return NULL;
}

/* On this thread, beside what the device does. */
static void run_aside(struct launch *l, int i)
{
	struct rt_device *d = l->x->dev[i];
	struct inner in = { l->x, { 0 } };
	struct room room = { 0 };
	unsigned fp = cpu_set_ftz();
	struct err *e = mem_guard(inner_init, &in, true);

	if (e)
		err_free(launch_fail(l, e));
	part_run(l, i, &in.c, &room);
	atomic_fetch_sub(&d->beside, 1);
	cpu_restore_fp(fp);
	ctx_fini(&in.c);
	store_unref(room.zone);
}

static void pass(struct launch *l, int i)
{
	walking = l->x->dev[i];           /* its own callbacks are callbacks of the device */
	run_aside(l, i);
	walking = NULL;
}

struct passing { struct launch *l; int i; };

static void pass_later(void *v)
{
	struct passing p = *(struct passing *)v;

	free(v);
	pass(p.l, p.i);
}

void launch_relieve(struct rt_device *d)
{
	int i;

	for (struct launch *l; (l = queue_passes(d, &i));) {
		struct passing *p = l->x->calls ? malloc(sizeof *p) : NULL;
		if (p)
			*p = (struct passing){ l, i };
		if (!p || !relief_more(d->c, pass_later, p)) {
			free(p);
			pass(l, i);
		}
	}
	d->head_seen = atomic_load(&d->head);
}

/* Waits for what a callback is to compute with, which launches behind its program may make (relief.c).  False: the caller gives up. */
static bool comes(struct rt_event *e)
{
	for (int k = 1; !rt_event_ready(e); k++) {
		if (k % ASK_NAPS == 0 && event_gives_up())
			return false;
		nanosleep(&(struct timespec){ 0, ROOM_NAP_NS }, NULL);
	}
	return true;
}

struct err *rt_exec_run(struct rt_exec *x, struct rt_buffer *const *arg, const int64_t *no_donate, size_t nkeep,
                        int32_t launch_id, struct rt_buffer **out, struct rt_event **done)
{
	struct rt_client *c = x->c;
	struct err *e = NULL;

	if (!x->nlocal)               /* a program of other processes */
		return NULL;
	if (client_forked(c))
		return ERR(PRECONDITION, "%s", rt_forked);
	if (x->p->launches.n)
		atomic_fetch_add_explicit(x->p->launches.n, 1, memory_order_relaxed);
	bool inside = walking && walking->c == c, self = false, ready = true;
	if (!inside && (e = room_for(x)))
		return x->comm && exec_spans(x) ? refuse(x, launch_id, e) : e;
	if (x->inlined && run_inline(x, arg, no_donate, nkeep, launch_id, out, done, &e))
		return e;

	/* A call from inside a host callback cannot wait for its turn on its own device, nor on one that may be waiting for it in
	 * a collective: it runs here and now, and takes no storage, which queued programs may still read. */
	int64_t narg = x->narg, nres = x->nres;
	for (int i = 0; i < x->nlocal && inside; i++)
		self |= x->dev[i] == walking;
	bool here = !x->comm && (self || (inside && x->nlocal == 1));
	for (int64_t k = 0; k < narg * x->nlocal && here; k++)
		ready &= self ? comes(buffer_ready(arg[k])) : rt_event_ready(buffer_ready(arg[k]));
	bool nested = here && ready;
	if (self && x->comm)
		return ERR(PRECONDITION, "a host callback of device %d cannot launch a program in which this device communicates with others", walking->id);
	if (self && !nested)
		return ERR(CANCELLED, "a host callback of device %d has given up waiting for what the device has yet to compute", walking->id);
	struct launch *l = launch_new(x, launch_id);
	if (!l)
		return no_room(x->launches.size);
	int ok = 0;
	for (; ok < x->nlocal && !e; ok += !e) {
		struct part *p = &l->part[ok];
		e = part_check(p, x, ok, arg + narg * ok);
		p->done = e ? NULL : rt_event_new();
		if (!e)
			e = p->done ? part_spare(p, x, ok, !nested, out + nres * ok) : no_room(sizeof *p->done);
		if (e)
			rt_event_unref(p->done);
	}
	bool queued = false;
	if (!e && !nested)
		e = queue_places(x, inside);
	bool locked = !e;
	if (locked)
		pthread_mutex_lock(&c->launch);
	if (locked && !nested) {
		queued = true;
		e = atomic_load(&c->stop) ? ERR(CANCELLED, "the client is closed") : NULL;
	}
	int had = 0;
	for (; had < x->nlocal && !e; had += !e) {
		struct part *p = &l->part[had];
		e = part_take(p, x, arg + narg * had, !nested, no_donate, nkeep);
		if (!e)
			e = part_make(p, x, had, arg + narg * had, p->done);
	}
	if (e) {
		for (int i = 0; i < had; i++)
			part_undo(&l->part[i], x, arg + narg * i);
		if (queued)
			queue_places_back(x, c->ndev);
		if (locked)
			pthread_mutex_unlock(&c->launch);
		for (int i = 0; i < ok; i++) {
			if (i >= had)
				part_drop(&l->part[i]);
			rt_event_unref(l->part[i].done);
		}
		spare_give(&x->launches, l);
		return e;
	}
	rt_exec_ref(x);
	uint32_t who = 0;
	for (int i = 0; i < x->nlocal; i++) {
		struct part *p = &l->part[i];
		part_wait_for(p, x, arg + narg * i);
		done[i] = rt_event_ref(p->done);
	}
	for (int i = 0; i < x->nlocal && !nested; i++) {
		room_promise(x, &l->part[i], i);
		who |= queue_append(x->dev[i], l, i);
	}
	for (int i = 0; i < x->nlocal && nested; i++) {          /* who is queued from now on does not overwrite what it reads */
		struct rt_device *d = x->dev[i];
		pthread_mutex_lock(&d->lock);
		l->part[i].queued = true;
		atomic_fetch_add(&d->state, 1);
		atomic_fetch_add(&d->beside, 1);
		part_runs(d, &l->part[i]);
		pthread_mutex_unlock(&d->lock);
	}
	pthread_mutex_unlock(&c->launch);
	device_wake(c, who);
	for (int i = 0; i < x->nlocal && nested; i++)
		run_aside(l, i);
	return NULL;
}
