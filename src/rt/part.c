/* A launch on one device: its arguments are waited for, the program is walked, and what it held is given back when nobody touches it any more. */
#include "impl.h"

static void launch_unref(struct launch *l)
{
	struct rt_exec *x = l->x;

	if (atomic_fetch_sub_explicit(&l->ref, 1, memory_order_acq_rel) > 1)
		return;
	err_free(l->err);
	spare_give(&x->launches, l);
	rt_exec_unref(x);
}

struct err *launch_fail(struct launch *l, struct err *e)
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
	for (int64_t j = 0; j < (same ? x->nrest : x->narg); j++) {
		int64_t k = same ? x->rest[j] : j;
		if (x->argbuf[k] >= 0)
			c->base[x->argbuf[k]] = store_enter(l->arg[k]);
	}
	for (int64_t j = 0; j < (same ? x->nfresh : x->nres); j++) {
		int64_t k = same ? x->fresh[j] : j;
		if (x->outbuf[k] >= 0)
			c->base[x->outbuf[k]] = store_enter(l->out[k]);
	}
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

	TRY(room_take(x, d, p, room));
	for (int64_t r = 0; r < x->nres && !p->bound; r++)
		if (x->donor[r] >= 0 && !(p->took[x->donor[r]] && x->taker[x->donor[r]] == r))
			store_copy(p->out[r], 0, p->arg[x->donor[r]], 0, (size_t)x->p->buf[x->outbuf[r]].size);
	bind(x, i, c, p, room->zone);
	struct frame f = { .x = x, .d = d, .c = c, .coll = { d->coll, x->p, x->id, x->pos[i] }, .local = i, .pos = x->pos[i], .launch_id = id, .by = l ? l->by : 0, .solo = room != &d->room, .stop = l ? &l->stop : NULL };
	f.work = c->zone + x->work;
	f.lane = x->nflown ? d->lane : NULL;
	return walk(&f);
}

/* Nothing allocates while a program runs; but handlers of custom calls, messages and some collectives do. */
struct err *part_go(struct rt_exec *x, int i, struct ctx *c, struct part *p, struct room *room, struct launch *l, int32_t id)
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

void part_arguments_drop(const struct part *p)
{
	const struct rt_exec *x = p->l->x;

	for (int64_t j = 0; j < (p->bound ? x->nrest : x->narg); j++) {
		int64_t k = p->bound ? x->rest[j] : j;
		if (!p->took[k] || x->taker[k] < 0)
			store_unref(p->arg[k]);
	}
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
	part_arguments_drop(p);
	for (int64_t r = 0; r < l->x->nres && p->kept; r++)
		store_unref(p->out[r]);
	store_unref(p->zone);
	if (p->kept)
		atomic_fetch_sub(&l->x->c->owed, 1);
	launch_unref(l);
}

/* --- from the queue ------------------------------------------------------------------------ */

static void lane_clear(struct coll_lane *lane)
{
	const void *what;

	coll_finish(lane, coll_begun(lane));
	err_free(coll_lane_error(lane, &what));
}

void part_runs(struct rt_device *d, struct part *p)
{
	p->next = d->under;
	d->under = p;
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

void part_run(struct launch *l, int i, struct ctx *c, struct room *room)
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
		e = part_go(x, i, c, p, room, l, l->id);
	room_kept(x, p);
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
