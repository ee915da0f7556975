/* Memory of launches: what each takes when it begins, and whether there is enough when it is queued. */
#include <time.h>

#include "impl.h"

enum { STILL_S = 3 };

/* What helps where temporaries are too large: of what JAX has been told to calculate again it says so in the names. */
static const char *less(const struct prog *p)
{
	bool back = false, again = false;

	for (uint32_t i = 0; i < p->nsite; i++) {
		const char *name = p->site[i].scope ? p->site[i].scope : "";
		back |= strstr(name, "transpose(") != NULL;
		again |= strstr(name, "rematted_computation") != NULL;
	}
	if (again)
		return "; a smaller batch, a jax.checkpoint that keeps less (around more layers at a time, or by its policy), or more devices to cut it for need less";
	return back ? "; a smaller batch, jax.checkpoint, or more devices to cut it for need less"
	            : "; a smaller batch, one part of it after the other (jax.lax.map with batch_size), or more devices to cut it for need less";
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
	struct err *n = ERR(EXHAUSTED, "%s: %s%s", s.p, e->msg, r < 0 ? less(x->p) : "");
	err_free(e);
	str_free(&s);
	arena_fini(&a);
	return n;
}

/* Memory for the outputs that have none yet, and the program zone. */
static struct err *take_memory(struct rt_exec *x, struct rt_device *d, struct part *p, struct store **zone)
{
	for (int64_t j = 0; j < (p->bound ? x->nfresh : x->nres); j++) {
		int64_t r = p->bound ? x->fresh[j] : j;
		if (!p->out[r]->addr)
			TRY(store_alloc(p->out[r], x->what, (int)r));
	}
	if (*zone ? (*zone)->bytes < x->zone : x->zone > 0) {
		store_unref(*zone);
		*zone = store_new(d, 0, x->zone);
		struct err *e = store_alloc(*zone, "temporaries of programs", -1);
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

void room_kept(struct rt_exec *x, struct part *p)
{
	if (p->promised)
		atomic_fetch_sub_explicit(&x->c->promised, p->promised, memory_order_relaxed);
	p->promised = 0;
}

struct err *room_take(struct rt_exec *x, struct rt_device *d, struct part *p, struct room *room)
{
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
	room_kept(x, p);
	if (!e || e->code != ERR_EXHAUSTED)
		return e;
	int64_t r = 0;
	while (r < x->nres && ((p->bound && x->donor[r] >= 0) || !p->out[r] || p->out[r]->addr))
		r++;
	return short_of(x, r < x->nres ? r : -1, e);
}

static bool of_processes(const struct rt_exec *x) { return x->nlocal < x->p->ndev; }

static bool same_type(const struct prog_arg *a, const struct prog_arg *b)
{
	size_t n = sizeof *a->dim * a->rank;

	return a->dtype == b->dtype && a->rank == b->rank && (!n || (!memcmp(a->dim, b->dim, n) && !memcmp(a->global_dim, b->global_dim, n)));
}

/* Bytes of one device, of arguments, results and temporaries.  least: at least, since arguments of one type may be one array.  What kernels work in
 * depends on the cores that a device has: in a program of several processes, who all must get the same answer, it is left out. */
static int64_t takes(const struct rt_exec *x, bool least)
{
	const struct prog *p = x->p;
	int64_t n = x->results + (of_processes(x) ? p->zone : (int64_t)x->zone);

	for (uint32_t k = 0; k < p->narg; k++) {
		bool seen = false;
		for (uint32_t j = 0; j < k && least && !seen; j++)
			seen = same_type(&p->arg[j], &p->arg[k]);
		n += seen ? 0 : p->arg[k].bytes;
	}
	return n;
}

/* What each of the program's devices may have, or what somebody has said that it may.  Programs of several processes ask what these have agreed on, so
 * that all get the same answer. */
static int64_t share(const struct rt_exec *x, bool said)
{
	if (of_processes(x))
		return sym_allowed(x->c->world, said);
	return said && conf_int(CONF_MEMORY) <= 0 ? INT64_MAX : x->c->memory / x->nlocal;
}

int64_t rt_exec_lacks(const struct rt_exec *x) { return MAX(takes(x, false) - share(x, false), 0); }

struct err *rt_exec_fits(const struct rt_exec *x)
{
	int64_t have = share(x, true), r = -1;
	struct str s = { 0 };

	if (takes(x, true) <= have)
		return NULL;
	for (int64_t k = 0; k < x->nres; k++)
		if (x->p->res[k].bytes > (r < 0 ? (int64_t)x->zone : x->p->res[r].bytes))
			r = k;
	str_add(&s, "arguments, results and temporaries of a device are ");
	str_bytes(&s, (uint64_t)takes(x, false));
	str_add(&s, ", and there are ");
	str_bytes(&s, (uint64_t)have);
	struct err *e = ERR(EXHAUSTED, "out of device memory: %s (RONDO_MEMORY, %s)", s.p,
	                    of_processes(x) ? "for a device of the process that has least of it" : "for all devices of the process");
	str_free(&s);
	return short_of(x, r, e);
}

/* Bytes that a launch takes on local device i. */
static int64_t wants(const struct rt_exec *x, int i)
{
	return x->results + (x->zone > atomic_load_explicit(&x->dev[i]->zoned, memory_order_relaxed) ? (int64_t)x->zone : 0);
}

void room_promise(struct rt_exec *x, struct part *p, int i)
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
			e = store_alloc(got[n++], zone ? "temporaries of programs" : x->what, (int)r);
			if (e && e->code == ERR_EXHAUSTED && got[n - 1])
				e = short_of(x, r, e);
		}
	}
	while (n)
		store_unref(got[--n]);
	free(got);
	return e;
}

/* Has a device waited long in a program that other processes have a part in? */
static bool stuck(struct rt_client *c)
{
	bool any = false;

	for (int i = 0; i < c->ndev && !any; i++) {
		struct rt_device *d = &c->dev[i];
		pthread_mutex_lock(&d->lock);
		for (const struct part *p = d->under; p; p = p->next)
			any |= p->l->x->comm && exec_spans(p->l->x) && sym_waited(d->ep) > STILL_S;
		pthread_mutex_unlock(&d->lock);
	}
	return any;
}

struct err *room_for(struct rt_exec *x)
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
