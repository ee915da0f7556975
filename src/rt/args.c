/* What a launch is given and what it gives: arguments are checked and taken, results made.
 *
 * Arguments that are the whole relay of an earlier launch, each for the parameter whose storage it has, were checked when that launch was,
 * and are taken at once. */
#include "impl.h"

static struct err *gone(const struct rt_exec *x, int64_t k) { return ERR(INVALID, "parameter %lld of '%s' has been deleted or donated", (long long)k, x->p->name); }

static bool suits(const struct rt_shape *s, const struct prog_arg *a)
{
	bool same = s->dtype == a->dtype && s->rank == a->rank;

	for (int i = 0; i < a->rank && same; i++)
		same = s->dim[i] == a->dim[i];
	return same || a->dtype == DT_token;         /* a token arrives as an empty array of pred */
}

/* Is a relay of the program among its arguments, and nothing else of that? */
static struct relay *relay_among(const struct rt_exec *x, int i, struct rt_buffer *const *arg)
{
	struct relay *y = x->relays ? arg[x->given[0]]->of : NULL;

	if (!y || y->home != x->relays[i])
		return NULL;
	for (int64_t j = 0; j < x->ndonor; j++)
		if (arg[x->given[j]] != &y->b[j])
			return NULL;
	for (int64_t j = 0; j < x->nrest; j++)
		if (arg[x->rest[j]]->of == y)
			return NULL;
	return y;
}

struct err *part_check(struct part *p, struct rt_exec *x, int i, struct rt_buffer *const *arg)
{
	const struct rt_device *d = x->dev[i];

	p->passed = relay_among(x, i, arg);
	for (int64_t j = 0, n = p->passed ? x->nrest : x->narg; j < n; j++) {
		int64_t k = p->passed ? x->rest[j] : j;
		if (arg[k]->dev != d)
			return ERR(INVALID, "parameter %lld of '%s' lies on device %d, not on device %d", (long long)k, x->p->name, arg[k]->dev->id, d->id);
		if (rt_buffer_deleted(arg[k]))
			return gone(x, k);
		const struct rt_shape *s = &arg[k]->shape;
		if (!suits(s, &x->p->arg[k]))
			return ERR(INVALID, "parameter %lld of '%s' has another shape or element type than what is given for it", (long long)k, x->p->name);
		if (s->layout != x->layout[k])           /* jit looks at the layout of committed arrays alone */
			return ERR(INVALID, "parameter %lld of '%s' lies in memory as %s, the program wants it as %s: jax.device_put(x, x.sharding) makes an array whose layout jit asks for",
			           (long long)k, x->p->name, layout_of(s->layout, s->rank)->text, layout_of(x->layout[k], s->rank)->text);
	}
	return NULL;
}

struct err *part_spare(struct part *p, struct rt_exec *x, int i, bool donate, struct rt_buffer **out)
{
	p->res = out;
	p->relay = donate && x->relays ? relay_take(x->relays[i]) : NULL;
	p->nbuf = (size_t)(p->relay ? x->nres - x->ndonor : x->nres);
	p->nst = (size_t)(x->nres - x->ndonor);
	if (!buffer_spares(p->nbuf, p->res))
		p->nbuf = 0;
	else if (store_spares(p->nst, p->st))
		return NULL;
	p->nst = 0;
	part_drop(p);
	return no_room(sizeof **p->res);
}

void part_drop(struct part *p)
{
	while (p->nbuf > 0)
		buffer_spare(p->res[--p->nbuf]);
	while (p->nst > 0)
		store_spare(p->st[--p->nst]);
	if (p->relay)
		relay_spare(p->relay);
	p->relay = NULL;
}

/* The first n of those that were taken one by one, or were not, are their owners' again. */
static void arguments_back(struct part *p, const struct rt_exec *x, struct rt_buffer *const *arg, int64_t n)
{
	for (int64_t j = 0; j < n; j++) {
		int64_t k = p->passed ? x->rest[j] : j;
		if (p->took[k])
			buffer_untake(arg[k], p->arg[k]);
		else
			store_unref(p->arg[k]);
	}
	if (p->passed)
		relay_back(p->passed);
}

static bool kept(int64_t k, const int64_t *no_donate, size_t nkeep)
{
	for (size_t i = 0; i < nkeep; i++)
		if (no_donate[i] == k)
			return true;
	return false;
}

struct err *part_take(struct part *p, struct rt_exec *x, struct rt_buffer *const *arg, bool donate, const int64_t *no_donate, size_t nkeep)
{
	uint64_t mark = 0;

	donate &= x->donates;
	if (p->passed && (!donate || nkeep || !relay_pass(p->passed)))
		p->passed = NULL;
	for (int64_t j = 0; j < x->ndonor && p->passed; j++) {
		p->arg[x->given[j]] = p->passed->b[j].st;
		p->took[x->given[j]] = true;
	}
	int64_t n = p->passed ? x->nrest : x->narg;
	if (donate) {
		mark = ++x->c->mark;
		for (int64_t j = 0; j < n; j++) {
			struct rt_buffer *b = arg[p->passed ? x->rest[j] : j];
			b->twice = b->mark == mark ? mark : b->twice;
			b->mark = mark;
		}
	}
	for (int64_t j = 0; j < n; j++) {
		int64_t k = p->passed ? x->rest[j] : j;
		int32_t r = x->taker[k];
		bool given = donate && x->p->arg[k].alias != -1 && (r < 0 || arg[k]->mem == x->resmem[r]) && !kept(k, no_donate, nkeep);
		p->took[k] = given && buffer_take(arg[k], mark, &p->arg[k]);
		if (!given)
			p->arg[k] = buffer_store(arg[k]);
		if (!p->arg[k]) {
			arguments_back(p, x, arg, j);
			return gone(x, k);
		}
	}
	return NULL;
}

/* Has result r the storage of its donor? */
static bool took_over(const struct part *p, const struct rt_exec *x, int64_t r)
{
	int32_t k = x->donor[r];

	return k >= 0 && p->took[k] && x->taker[k] == r;
}

/* Results that have storage of their own get what else they need.  False: no room; nothing has changed but what p has to spare. */
static bool room_for_more(struct part *p, const struct rt_exec *x)
{
	size_t n = 0;

	for (int64_t r = 0; r < x->nres; r++)
		n += !took_over(p, x, r);
	if (n > p->nst) {
		if (!store_spares(n - p->nst, p->st + p->nst))
			return false;
		p->nst = n;
		/* Some donor was not taken: these are no relay. */
		if (p->relay && !buffer_spares((size_t)x->nres - p->nbuf, p->res + p->nbuf))
			return false;
		if (p->relay)
			relay_spare(p->relay);
		p->relay = NULL;
		p->nbuf = (size_t)x->nres;
	}
	return true;
}

struct err *part_make(struct part *p, struct rt_exec *x, int i, struct rt_buffer *const *arg, struct rt_event *ready)
{
	struct rt_device *d = x->dev[i];

	if (!room_for_more(p, x)) {
		arguments_back(p, x, arg, p->passed ? x->nrest : x->narg);
		return no_room(sizeof **p->st);
	}
	struct relay *y = p->relay;
	event_refs(ready, (int)p->nbuf + (y != NULL));
	if (y) {
		y->bound = p->bound = p->passed ? p->passed->bound : ++x->c->mark;
		y->ready = ready;
	} else
		p->bound = 0;
	/* From the last one on: buffers that are not yet in their places lie in the first ones. */
	for (int64_t r = x->nres, j = x->ndonor; r-- > 0;) {
		const struct prog_arg *a = &x->p->res[r];
		bool over = took_over(p, x, r);
		if (over)
			p->out[r] = p->arg[x->donor[r]];        /* what the argument had goes to the result */
		else {
			p->out[r] = store_init(p->st[--p->nst], d, x->resmem[r], (size_t)a->bytes);
			atomic_store_explicit(&p->out[r]->handles, 1, memory_order_relaxed);
		}
		if (!y || !over)
			p->res[r] = buffer_init(p->res[--p->nbuf], d, x->resmem[r], a->dtype, x->layout[x->narg + r], a->rank, a->dim, p->out[r], ready);
		else if (p->res[r] = &y->b[--j], y->made)
			y->b[j].st = p->out[r];
		else {
			buffer_init(&y->b[j], d, x->resmem[r], a->dtype, x->layout[x->narg + r], a->rank, a->dim, p->out[r], NULL);
			y->b[j].of = y;
		}
	}
	if (y)
		y->made = true;
	p->relay = NULL;
	assert(!p->nst && !p->nbuf);
	return NULL;
}

void part_undo(struct part *p, const struct rt_exec *x, struct rt_buffer *const *arg)
{
	for (int64_t r = 0; r < x->nres; r++) {
		p->res[r]->st = NULL;
		rt_buffer_unref(p->res[r]);
		if (!took_over(p, x, r))                 /* else it is the argument's again */
			store_unref(p->out[r]);
	}
	arguments_back(p, x, arg, p->passed ? x->nrest : x->narg);
}

void part_wait_for(struct part *p, const struct rt_exec *x, struct rt_buffer *const *arg)
{
	p->nwait = p->waited = 0;
	for (int64_t j = p->passed ? -1 : 0, n = p->passed ? x->nrest : x->narg; j < n; j++) {
		struct rt_event *e = j < 0 ? p->passed->ready : buffer_ready(arg[p->passed ? x->rest[j] : j]);
		if (atomic_load_explicit(&e->state, memory_order_acquire) != 1 && (!p->nwait || p->wait[p->nwait - 1] != e))
			p->wait[p->nwait++] = rt_event_ref(e);         /* results of one launch have one */
	}
}
