/* Launching: the queue of each device, and the way past it.
 *
 * A launch is appended to the queues of all its local devices under the client's launch lock, so all devices
 * see one order.  Each queue is walked by one thread, unless it is empty and the program is small: then the
 * caller's thread takes the device for a moment (waking a thread costs more than the work). */
#include <errno.h>
#include <time.h>

#include "impl.h"

enum { LINGER_NS = 100000, SHORT_NAP_NS = 100000, LONG_NAP_NS = 50000000, ROOM_NAP_NS = 50000, ASK_NAPS = EVENT_ASK_NS / ROOM_NAP_NS, STILL_S = 3 };

static void launch_unref(struct launch *l)
{
	struct rt_exec *x = l->x;

	if (atomic_fetch_sub_explicit(&l->ref, 1, memory_order_acq_rel) > 1)
		return;
	err_free(l->err);
	spare_give(&x->launches, l);
	rt_exec_unref(x);
}

/* The launch ends on all devices with the first error; e is taken.  Returns this device's copy. */
static struct err *launch_fail(struct launch *l, struct err *e)
{
	spin_lock(&l->lock);
	if (!l->err) {
		l->err = e;
		err_watch(e, "a launch has failed and nobody has read its results");
		e = NULL;
	}
	struct err *why = err_copy(l->err);
	spin_unlock(&l->lock);
	err_free(e);
	if (!atomic_exchange(&l->stop, 1))
		for (int i = 0; i < l->x->nlocal; i++)
			sym_ring(l->x->c->world, l->x->dev[i]->id);
	return why;
}

/* --- memory ------------------------------------------------------------------------ */

/* Memory for the outputs that have none yet, and the program zone. */
static struct err *take_memory(struct rt_exec *x, struct rt_device *d, struct part *p, struct store **zone)
{
	for (int64_t r = 0; r < x->nres; r++)
		if ((!p->bound || x->donor[r] < 0) && !p->out[r]->addr)
			TRY(store_alloc(p->out[r], x->what, (int)r));
	if (*zone ? (*zone)->bytes < x->zone : x->zone > 0) {
		store_unref(*zone);
		*zone = store_new(d, 0, x->zone);
		struct err *e = store_alloc(*zone, "the program zone", -1);
		if (e) {
			store_unref(*zone);
			*zone = NULL;
			return e;
		}
		if (zone == &d->room.zone)
			atomic_store(&d->zoned, x->zone);
	}
	return NULL;
}

/* e, by which there is no memory for result r of a launch, or for its zone (-1), with the program, and the line or the lines that want most of it. */
static struct err *short_of(const struct rt_exec *x, int64_t r, struct err *e)
{
	enum { MOST = 4 };
	struct str s = { 0 };
	struct arena a;
	struct prog_live v;

	arena_init(&a);
	prog_live(&a, x->p, &v);
	str_addf(&s, "program '%s'", x->name);
	if (r >= 0) {
		str_addf(&s, ", result %lld", (long long)r);
		if (x->outbuf[r] >= 0 && v.held[x->outbuf[r]].first >= 0)
			str_addf(&s, ", made at %s", prog_site_text(x->p, v.held[x->outbuf[r]].site));
	}
	for (size_t i = 0; r < 0 && i < v.nlike && i < MOST; i++) {
		str_add(&s, i ? ", " : ", whose largest temporaries are ");
		if (v.like[i].n > 1)
			str_addf(&s, "%lld of ", (long long)v.like[i].n);
		str_bytes(&s, (uint64_t)v.like[i].bytes);
		str_addf(&s, " (%s)", v.like[i].site);
	}
	int64_t work = (int64_t)x->zone - x->p->zone;
	if (r < 0 && work > x->p->zone / 8) {
		str_addf(&s, ",%s whose kernels work in ", v.nlike ? " and" : "");
		str_bytes(&s, (uint64_t)work);
	}
	struct err *n = ERR(EXHAUSTED, "%s: %s%s", s.p, e->msg, r < 0 ? "; a smaller batch, jax.checkpoint, or more devices to cut it for need less" : "");
	err_free(e);
	str_free(&s);
	arena_fini(&a);
	return n;
}

/* It has it, or will not. */
static void promise_over(struct rt_exec *x, struct part *p)
{
	if (p->promised)
		atomic_fetch_sub_explicit(&x->c->promised, p->promised, memory_order_relaxed);
	p->promised = 0;
}

/* Where every buffer lies; no zone: none is needed. */
static void bind(struct rt_exec *x, int i, struct ctx *c, const struct part *l, struct store *zone)
{
	static char nothing[1];
	const struct prog *p = x->p;
	char *z = zone ? store_enter(zone) : nothing, *data = x->data[i] ? store_enter(x->data[i]) : NULL;
	bool same = l->bound && c->bound == l->bound;        /* what goes by relay lies where it did */

	if (c->zone != z) {
		for (uint32_t b = 0; b < p->nbuf; b++)
			if (p->buf[b].kind == BUF_TEMP && p->buf[b].alias < 0)
				c->base[b] = z + p->buf[b].off;
			else if (p->buf[b].kind == BUF_CONST)
				c->base[b] = data + p->buf[b].off;
		c->zone = z;
	}
	for (int64_t k = 0; k < x->narg; k++)
		if (x->argbuf[k] >= 0 && (!same || x->taker[k] < 0))
			c->base[x->argbuf[k]] = store_enter(l->arg[k]);
	for (int64_t k = 0; k < x->nres; k++)
		if (x->outbuf[k] >= 0 && (!same || x->donor[k] < 0))
			c->base[x->outbuf[k]] = store_enter(l->out[k]);
	for (uint32_t k = 0; k < x->nlodger; k++)
		c->base[x->lodger[k]] = c->base[p->buf[x->lodger[k]].alias] + p->buf[x->lodger[k]].off;
	c->bound = l->bound;
}

/* Start and walk.  The caller owns the device. */
struct go { struct rt_exec *x; int i; struct ctx *c; struct part *part; struct room *room; struct launch *l; int32_t id; };

static struct err *started(void *v)
{
	struct go *g = v;
	struct rt_exec *x = g->x;
	int i = g->i;
	struct ctx *c = g->c;
	struct part *p = g->part;
	struct room *room = g->room;
	struct launch *l = g->l;
	int32_t id = g->id;
	struct rt_device *d = x->dev[i];
	struct store **zone = &room->zone;
	struct err *e = take_memory(x, d, p, zone);

	if (e && e->code == ERR_EXHAUSTED && *zone && (*zone)->bytes > x->zone) {
		/* The zone has the size of the largest program so far: this one can do with less. */
		store_unref(*zone);
		*zone = NULL;
		if (room == &d->room)
			atomic_store(&d->zoned, 0);
		err_free(e);
		e = take_memory(x, d, p, zone);
	}
	if (e && e->code == ERR_EXHAUSTED && zones_drop(d->c)) {
		err_free(e);
		e = take_memory(x, d, p, zone);
	}
	if (e && e->code == ERR_EXHAUSTED && room == &d->room && !sym_clear(d->ep, false)) {       /* launches that failed keep some */
		struct err *no = sym_clear_wait(d->ep);
		if (no) {
			err_free(e);
			return no;
		}
		err_free(e);
		e = take_memory(x, d, p, zone);
	}
	promise_over(x, p);
	if (e) {
		int64_t r = 0;
		while (r < x->nres && ((p->bound && x->donor[r] >= 0) || !p->out[r] || p->out[r]->addr))
			r++;
		return e->code == ERR_EXHAUSTED ? short_of(x, r < x->nres ? r : -1, e) : e;
	}
	for (int64_t r = 0; r < x->nres; r++)
		if (x->donor[r] >= 0 && !(p->took[x->donor[r]] && x->taker[x->donor[r]] == r))
			store_copy(p->out[r], 0, p->arg[x->donor[r]], 0, (size_t)x->p->buf[x->outbuf[r]].size);
	bind(x, i, c, p, *zone);
	struct frame f = { .x = x, .d = d, .c = c, .coll = { d->coll, x->p, x->id, x->pos[i] }, .local = i, .pos = x->pos[i], .launch_id = id, .solo = room != &d->room, .stop = l ? &l->stop : NULL };
	f.work = c->zone + x->work;
	f.lane = x->nflown ? d->lane : NULL;
	return walk(&f);
}

/* Nothing allocates while a program runs; but handlers of custom calls, messages and some collectives do. */
static struct err *go(struct rt_exec *x, int i, struct ctx *c, struct part *p, struct room *room, struct launch *l, int32_t id)
{
	struct go g = { x, i, c, p, room, l, id };

	return mem_guard(started, &g, false);
}

static bool describe(void *user, uint32_t ident, uint32_t site, struct str *s)
{
	struct rt_device *d = user;

	return job_describe(d->c, d->now, ident, site, s);
}

/* A waiting device works for the others: their kernels may be what it waits for. */
static bool help(void *device) { return pool_help_others(device); }

/* What a launch holds of one device's arguments. */
static void unref_arguments(struct rt_exec *x, struct store *const *arg, const uint8_t *took)
{
	for (int64_t k = 0; k < x->narg; k++)
		if (!took[k] || x->taker[k] < 0)
			store_unref(arg[k]);
}

/* --- arguments that are not there yet ---------------------------------------------------- */

enum { PENDING, COME, LEFT };     /* LEFT: the part is over, but for what makes its arguments */

static void part_over(void *user);

static void has_come(struct err *e, void *user)
{
	struct part *p = user;
	struct rt_device *d = p->l->x->dev[p - p->l->part];

	err_free(e);
	if (atomic_exchange(&p->come, COME) == LEFT)
		part_over(p);
	else
		sym_has_come(d->c->world, d->id);         /* p may be gone */
}

static bool is_here(void *part) { return atomic_load(&((struct part *)part)->come) == COME; }

/* p->come says when the next one is there.  False: it is. */
static bool comes_later(struct part *p)
{
	p->then = (struct callback){ .fn = has_come, .user = p, .lent = true };
	atomic_store(&p->come, PENDING);
	if (event_then(p->wait[p->waited], &p->then))
		return true;
	atomic_store(&p->come, COME);
	return false;
}

/* It is there. */
static struct err *argument(struct part *p)
{
	struct rt_event *e = p->wait[p->waited++];
	struct err *error = event_wait(e);

	rt_event_unref(e);
	return error;
}

static bool all_here(const struct part *p)
{
	bool all = true;

	for (uint32_t k = p->waited; k < p->nwait && all; k++)
		all = rt_event_ready(p->wait[k]);
	return all;
}

/* The first error of an argument; or that of a wait that ended before all were there.  Within a launch of the endpoint, unless all are there. */
static struct err *arguments_await(struct part *p, struct rt_device *d)
{
	struct err *first = NULL;

	while (p->waited < p->nwait) {
		struct err *e = comes_later(p) ? sym_wait_own(d->ep, is_here, p, "an argument") : NULL;
		if (e) {
			err_free(first);
			return e;
		}
		e = argument(p);
		if (first)
			err_free(e);
		else
			first = e;
	}
	return first;
}

/* Nobody touches the memory of this part any more, but what makes arguments that are not there. */
static void part_over(void *user)
{
	struct part *p = user;
	struct launch *l = p->l;

	while (p->waited < p->nwait) {
		if (atomic_exchange(&p->come, LEFT) == PENDING)
			return;           /* has_come goes on */
		err_free(argument(p));
		if (p->waited < p->nwait)
			comes_later(p);
	}
	unref_arguments(l->x, p->arg, p->took);
	for (int64_t r = 0; r < l->x->nres && p->kept; r++)
		store_unref(p->out[r]);
	store_unref(p->zone);
	if (p->kept)
		atomic_fetch_sub(&l->x->c->owed, 1);
	launch_unref(l);
}

static void lane_clear(struct coll_lane *lane)
{
	const void *what;

	coll_finish(lane, coll_begun(lane));
	err_free(coll_lane_error(lane, &what));
}

/* It is not in d->under any more. */
static void runs_no_more(struct rt_device *d, struct part *p)
{
	pthread_mutex_lock(&d->lock);
	struct part **at = &d->under;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	pthread_mutex_unlock(&d->lock);
}

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

/* The caller has put it into d->under. */
static void part_run(struct launch *l, int i, struct ctx *c, struct room *room)
{
	struct rt_exec *x = l->x;
	struct rt_device *d = x->dev[i];
	struct part *p = &l->part[i];
	bool begins = x->comm || !all_here(p);    /* of the walker alone: what passes others has its arguments */

	if (begins) {
		struct sym_launch s = { x->ident, x->name, x->comm ? x->peer[i] : NULL, x->comm ? x->npeer[i] : 0, &l->stop, help, describe, d };
		d->now = x;
		sym_begin(d->ep, &s);
	}
	struct err *e = arguments_await(p, d);
	if (!e && atomic_load(&l->stop))
		e = ERR(ABORTED, "launch aborted");
	bool began = !e;
	if (began)
		e = go(x, i, c, p, room, l, l->id);
	promise_over(x, p);
	if (!e && x->comm)
		e = sym_lost(d->ep);
	struct err *why = NULL;
	if (e) {
		e = launch_fail(l, e);
		why = begins ? err_copy(e) : NULL;
		if (x->nflown)                /* what is under way ends: the launch is stopped */
			lane_clear(d->lane);
	} else if (begins)
		sym_end(d->ep, NULL);
	struct rt_event *done = p->done;
	bool queued = p->queued;
	runs_no_more(d, p);
	p->zone = NULL;
	p->kept = (x->comm && why && began) || p->waited < p->nwait;
	if (p->kept && began) {           /* peers may read what was lent, and write what was granted: it is kept until they have left */
		p->zone = room->zone;
		room->zone = NULL;
		if (room == &d->room)
			atomic_store(&d->zoned, 0);
	}
	for (int64_t r = 0; r < x->nres && p->kept; r++)
		store_ref(p->out[r]);
	if (p->kept)
		atomic_fetch_add(&x->c->owed, 1);
	if (why) {
		sym_quit(d->ep, why, part_over, p);
		err_free(why);
	} else
		part_over(p);
	/* The device is free before anybody hears that the launch is done: who waited may find it idle. */
	if (queued)
		atomic_fetch_sub(&d->state, 1);
	rt_event_set(done, e);
	rt_event_unref(done);
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

/* Under the device's lock. */
static void runs(struct rt_device *d, struct part *p)
{
	p->next = d->under;
	d->under = p;
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
				runs(d, &l->part[i]);
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

/* Takes the first such launch off the queue; *i: which of its parts is of d.  NULL: there is none. */
static struct launch *passes(struct rt_device *d, int *i)
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
		runs(d, &l->part[*i]);
		place_back(d);
	}
	pthread_mutex_unlock(&d->lock);
	return l;
}

/* Give back what was promised on the first n devices of the client. */
static void places_back(struct rt_exec *x, int n)
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

/* Wait for a place in the queue of each device of x; a call from inside a host callback never waits.  No lock is
 * held meanwhile: a callback may need it for the queue to move on. */
static struct err *places(struct rt_exec *x, bool inside)
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
			places_back(x, k);
	}
	return full ? ERR(EXHAUSTED, "host callbacks have queued %d programs that wait for them", RT_RING - RT_QUEUE) : NULL;
}

/* Gives whom to wake when the launch is in all its queues. */
static uint32_t append(struct rt_device *d, struct launch *l, int i)
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

/* --- is there memory? ------------------------------------------------------------------ */

/* Bytes that a launch takes on local device i. */
static int64_t wants(const struct rt_exec *x, int i)
{
	return x->results + (x->zone > atomic_load_explicit(&x->dev[i]->zoned, memory_order_relaxed) ? (int64_t)x->zone : 0);
}

/* What a queued launch will take is not for others. */
static void promise(struct rt_exec *x, struct part *p, int i)
{
	if ((p->promised = wants(x, i)))
		atomic_fetch_add_explicit(&x->c->promised, p->promised, memory_order_relaxed);
}

/* All that a launch takes, and back again. */
static struct err *tried(struct rt_exec *x)
{
	size_t n = 0, most = (size_t)x->nlocal * (size_t)(x->nres + 1);
	struct store **got = malloc(most * sizeof(struct store *));
	struct err *e = got ? NULL : no_room(most * sizeof(struct store *));

	for (int i = 0; i < x->nlocal && !e; i++) {
		struct rt_device *d = x->dev[i];
		for (int64_t r = -1; r < x->nres && !e; r++) {
			bool zone = r < 0;
			if (zone ? x->zone <= atomic_load(&d->zoned) : x->donor[r] >= 0 || x->resmem[r])
				continue;
			got[n] = store_new(d, 0, zone ? x->zone : (size_t)x->p->res[r].bytes);
			e = store_alloc(got[n++], zone ? "the program zone" : x->what, (int)r);
			if (e && e->code == ERR_EXHAUSTED && got[n - 1])
				e = short_of(x, r, e);
		}
	}
	while (n)
		store_unref(got[--n]);
	free(got);
	return e;
}

static bool spans(const struct rt_exec *x) { return x->nlocal < x->p->ndev; }

/* Has a device waited long in a program that other processes have a part in? */
static bool stuck(struct rt_client *c)
{
	bool any = false;

	for (int i = 0; i < c->ndev && !any; i++) {
		struct rt_device *d = &c->dev[i];
		pthread_mutex_lock(&d->lock);
		for (const struct part *p = d->under; p; p = p->next)
			any |= p->l->x->comm && spans(p->l->x) && sym_waited(d->ep) > STILL_S;
		pthread_mutex_unlock(&d->lock);
	}
	return any;
}

/* Where memory is short, what was queued before is waited for, and what is lacking then is an error of this call, which has taken nothing from anybody.
 * The processes of a job launch in one order, so what is waited for begins in all of them.  Where one does otherwise, or comes only after what this one does
 * behind the call, there is an end to it: what is lacking is an error of the results then. */
static struct err *room_for(struct rt_exec *x)
{
	struct rt_client *c = x->c;

	for (int k = 1;; k++) {
		int64_t all = 0;
		bool idle = true;
		for (int i = 0; i < x->nlocal; i++)
			all += wants(x, i);
		if (!all || all <= sym_room(c->world) - atomic_load_explicit(&c->promised, memory_order_relaxed))
			return NULL;
		for (int i = 0; i < c->ndev; i++)
			idle &= !atomic_load(&c->dev[i].state);
		if (idle)
			break;
		if (k % ASK_NAPS == 0 && (stuck(c) || event_gives_up()))
			return NULL;
		nanosleep(&(struct timespec){ 0, ROOM_NAP_NS }, NULL);
	}
	struct err *e = tried(x);
	if (e && zones_drop(c)) {
		err_free(e);
		e = tried(x);
	}
	if (e && atomic_load(&c->owed)) {     /* the device waits for that, if it comes to it */
		err_free(e);
		e = NULL;
	}
	return e;
}

/* --- launching ------------------------------------------------------------------------ */

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
	struct err *no = n == x->nlocal ? places(x, false) : no_room(x->launches.size);
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
	}
	rt_exec_ref(x);
	pthread_mutex_lock(&x->c->launch);
	uint32_t who = 0;
	for (int i = 0; i < n; i++)
		who |= append(x->dev[i], l, i);
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
		e = go(x, 0, &x->ctx[0], p, &d->room, NULL, id);
		cpu_restore_fp(fp);
	}
	atomic_fetch_and(&d->state, ~STATE_INLINE);
	*err = e;
	if (got)
		unref_arguments(x, p->arg, p->took);
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

	for (struct launch *l; (l = passes(d, &i));) {
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
		return ERR(PRECONDITION, "this process was forked from the one that started the devices: start workers by 'spawn' or 'forkserver', or fork before JAX is used");
	if (x->p->launches.n)
		atomic_fetch_add_explicit(x->p->launches.n, 1, memory_order_relaxed);
	bool inside = walking && walking->c == c, self = false, ready = true;
	if (!inside && (e = room_for(x)))
		return x->comm && spans(x) ? refuse(x, launch_id, e) : e;
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
		e = places(x, inside);
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
			places_back(x, c->ndev);
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
		promise(x, &l->part[i], i);
		who |= append(x->dev[i], l, i);
	}
	for (int i = 0; i < x->nlocal && nested; i++) {          /* who is queued from now on does not overwrite what it reads */
		struct rt_device *d = x->dev[i];
		pthread_mutex_lock(&d->lock);
		l->part[i].queued = true;
		atomic_fetch_add(&d->state, 1);
		atomic_fetch_add(&d->beside, 1);
		runs(d, &l->part[i]);
		pthread_mutex_unlock(&d->lock);
	}
	pthread_mutex_unlock(&c->launch);
	device_wake(c, who);
	for (int i = 0; i < x->nlocal && nested; i++)
		run_aside(l, i);
	return NULL;
}
