/* Streams: a queue of operations and a thread that does them.
 *
 * The thread has a context of its own.  A put begins at once and its data is on the way when the next operation begins; order
 * at the target comes from signals being seen after puts.  Before an event is recorded, and before sync returns, the
 * context is quiet.  A stream whose queue is empty polls a little, then sleeps on the queue's word. */
#include <pthread.h>
#include <stdlib.h>

#include "impl.h"

enum kind { PUT, GET, PUT_SIGNAL, SIGNAL, WAIT, COLLECTIVE, CALL, RECORD, AWAIT };
static const char *const kind_name[] = { "put", "get", "put_signal", "signal", "wait", "", "", "record of an event", "wait for an event" };

/* One record of an event: shared by the event, the stream that will reach it, and streams that wait for it. */
struct mark {
	_Atomic int refs;
	_Atomic uint32_t done;
	struct err *err;                  /* set before done */
};

struct sym_event { pthread_mutex_t lock; struct mark *last; };

struct op {
	struct op *next;
	enum kind kind;
	struct sym_mem *m, *sig;
	size_t off, n, sigoff;
	const void *src;
	void *dst;
	int rank;
	enum sym_amo amo;
	uint64_t v;
	enum sym_type type; enum sym_cmp cmp;
	struct sym_team *team;
	char *what;
	struct err *(*fn)(void *user);
	void *user;
	void (*drop)(void *user);
	struct mark *mark;
	uint64_t ticket;                  /* of a collective, among its PE's */
};

struct sym_stream {
	struct sym_world *w;
	int pe;
	char name[64];
	pthread_t thread;
	struct sym_ctx *cx;
	pthread_mutex_t lock;             /* of the queue */
	struct op *head, **tail;
	uint64_t enqueued;
	_Atomic uint64_t finished;
	_Atomic uint32_t work;            /* changes when something was enqueued */
	_Atomic bool stop;
	_Atomic int cancelled;
	struct err *err;                  /* the first; the thread's alone */
};

/* --- marks -------------------------------------------------------------------------------- */

static struct mark *mark_ref(struct mark *m)
{
	atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
	return m;
}

static void mark_unref(struct mark *m)
{
	if (m && atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) == 1) {
		err_free(m->err);
		free(m);
	}
}

/* Done, whether it went well or not. */
static void mark_set(struct mark *m, const struct err *e)
{
	m->err = err_copy(e);
	atomic_store_explicit(&m->done, 1, memory_order_release);
	sym_wake(&m->done, INT32_MAX);
}

/* Of a thread that is no PE's: the stream sees what ends its waits. */
static void mark_wait(struct mark *m)
{
	for (int k = 0; !atomic_load_explicit(&m->done, memory_order_acquire); k++)
		if (k < 100)
			sym_pause();
		else
			sym_sleep(&m->done, 0, -1);
}

/* --- the thread ----------------------------------------------------------------------------- */

/* Collectives of a PE's streams are done one at a time, by ticket.  Every ticket is served, also one whose collective is not done. */
static void turn_take(struct sym_stream *s, const struct op *o)
{
	struct sym_side *side = &s->w->side[s->pe - s->w->first];

	pthread_mutex_lock(&side->turn_lock);
	while (side->served != o->ticket)
		pthread_cond_wait(&side->turn_cond, &side->turn_lock);
	pthread_mutex_unlock(&side->turn_lock);
}

static void turn_pass(struct sym_stream *s)
{
	struct sym_side *side = &s->w->side[s->pe - s->w->first];

	pthread_mutex_lock(&side->turn_lock);
	side->served++;
	pthread_cond_broadcast(&side->turn_cond);
	pthread_mutex_unlock(&side->turn_lock);
}

/* In round k a word from the rank 2^k below, one to the rank 2^k above: then all have come. */
static struct err *barrier(struct sym_stream *s, const struct sym_team *t)
{
	struct sym_ep *ep = sym_stream_ep(s->w, s->pe);
	struct sym_msg m;
	void *room;

	sym_quiet_all(s->w, s->pe);
	for (int d = 1; d < t->n; d *= 2) {
		int to = t->pe_of[(t->me + d) % t->n], from = t->pe_of[(t->me + t->n - d) % t->n];
		TRY(sym_slot_room(ep, to, 0, &room));
		sym_slot_send(ep, to, 1, 0);
		TRY(sym_recv(ep, from, 1, SYM_SLOT_MSG, &m));
		sym_return(ep, from, false);
	}
	return NULL;
}

/* Take part in o; why: by failing. */
static struct err *collective(struct sym_stream *s, const struct op *o, const struct err *why)
{
	struct sym_ep *ep = sym_stream_ep(s->w, s->pe);
	const struct sym_team *t = o->team;

	if (!t || t->pe != s->pe)
		return why ? NULL : ERR(INVALID, "no team of PE %d", s->pe);
	struct sym_launch l = { .prog = (uint32_t)hash_bytes(o->what, strlen(o->what), 0) | 1, .name = o->what, .stop = &s->cancelled };
	int *peer = mem_alloc((size_t)t->n * sizeof *peer);
	struct err *e = NULL;

	for (int r = 0; r < t->n; r++)
		if (r != t->me)
			peer[l.npeer++] = t->pe_of[r];
	l.peer = peer;
	sym_begin(ep, &l);
	if (why) {
		sym_quit(ep, why, NULL, NULL);
		free(peer);
		return NULL;
	}
	e = o->fn ? o->fn(o->user) : barrier(s, t);
	if (!e)
		e = sym_lost(ep);
	bool cancelled = e && atomic_load(&s->cancelled);
	if (cancelled) {
		err_free(e);
		e = ERR(CANCELLED, "PE %d was cancelled", s->pe);
	}
	if (cancelled)
		sym_quit(ep, e, NULL, NULL);
	else
		sym_end(ep, e);
	free(peer);
	return e;
}

static struct err *perform(struct sym_stream *s, const struct op *o)
{
	switch (o->kind) {
	case PUT:
		sym_ctx_put(s->cx, o->m, o->off, o->src, o->n, o->rank);
		break;
	case GET:
		/* What this stream put there comes first. */
		if (s->w->tr)
			TRY(sym_ctx_quiet(s->cx));
		sym_ctx_get(s->cx, o->dst, o->m, o->off, o->n, o->rank);
		break;
	case PUT_SIGNAL:
		sym_ctx_put_signal(s->cx, o->m, o->off, o->src, o->n, o->sig, o->sigoff, o->amo, o->v, o->rank);
		break;
	case SIGNAL:
		sym_ctx_signal(s->cx, o->sig, o->sigoff, o->amo, o->v, o->rank);
		break;
	case WAIT:
		return sym_wait_until(s->cx, o->m, o->off, o->type, o->cmp, (int64_t)o->v, o->rank, NULL);
	case COLLECTIVE:
		return collective(s, o, NULL);
	case CALL:
		return o->fn ? o->fn(o->user) : ERR(INVALID, "no function");
	case RECORD:
		return sym_ctx_quiet(s->cx);
	case AWAIT:
		TRY(sym_wait_mark(s->w, s->pe, &o->mark->done));
		return o->mark->err ? err_copy(o->mark->err) : NULL;
	}
	return sym_ctx_failed(s->cx) ? sym_ctx_quiet(s->cx) : NULL;
}

static void describe(struct str *t, const struct op *o)
{
	str_add(t, o->what ? o->what : kind_name[o->kind]);
	if (o->kind == PUT || o->kind == GET || o->kind == PUT_SIGNAL)
		str_addf(t, " of %zu bytes", o->n);
	const struct sym_mem *m = o->m ? o->m : o->sig;
	if (m && (o->kind == PUT || o->kind == GET || o->kind == PUT_SIGNAL || o->kind == SIGNAL))
		str_addf(t, " with PE %d", sym_team_pe(m->team, o->rank));
}

static void step(struct sym_stream *s, struct op *o, uint64_t number)
{
	struct err *e = NULL;

	if (o->kind == COLLECTIVE)
		turn_take(s, o);
	bool cancelled = !s->err && atomic_load(&s->cancelled);
	if (cancelled)
		e = ERR(CANCELLED, "PE %d was cancelled", s->pe);
	else if (!s->err)
		e = perform(s, o);
	if (o->kind == COLLECTIVE) {
		if (s->err || cancelled)
			collective(s, o, s->err ? s->err : e);
		turn_pass(s);
	}
	if (e) {
		struct str t = { 0 };
		describe(&t, o);
		e = err_wrap(e, "stream '%s', operation %llu, %s", s->name, (unsigned long long)number, t.p);
		str_free(&t);
		s->err = e;
	}
	atomic_store_explicit(&s->finished, number, memory_order_release);
	if (o->kind == RECORD)
		mark_set(o->mark, s->err);
	mark_unref(o->mark);
	if (o->drop)
		o->drop(o->user);
	free(o->what);
	free(o);
}

static struct op *next(struct sym_stream *s)
{
	pthread_mutex_lock(&s->lock);
	struct op *o = s->head;
	if (o && !(s->head = o->next))
		s->tail = &s->head;
	pthread_mutex_unlock(&s->lock);
	return o;
}

static void *stream_main(void *v)
{
	struct sym_stream *s = v;
	uint64_t number = 0;

	sym_stop = &s->cancelled;
	for (int idle = 0;;) {
		uint32_t seen = atomic_load(&s->work);
		bool last = atomic_load(&s->stop);        /* before the look at the queue: what is in it by then is done */
		struct op *o = next(s);
		if (o) {
			step(s, o, ++number);
			idle = 0;
		} else if (last)
			break;
		else if (++idle < s->w->spins / 4)
			sym_pause();
		else
			sym_sleep(&s->work, seen, -1);
	}
	sym_ctx_free(s->cx);              /* by this thread, which need not wait when the stream is cancelled */
	return NULL;
}

/* --- enqueueing -------------------------------------------------------------------------------- */

static void enqueue(struct sym_stream *s, const struct op *x)
{
	struct sym_side *side = &s->w->side[s->pe - s->w->first];
	struct op *o = mem_alloc(sizeof *o);

	*o = *x;
	pthread_mutex_lock(&s->lock);
	if (o->kind == COLLECTIVE) {
		pthread_mutex_lock(&side->turn_lock);
		o->ticket = side->given++;
		pthread_mutex_unlock(&side->turn_lock);
	}
	*s->tail = o;
	s->tail = &o->next;
	s->enqueued++;
	pthread_mutex_unlock(&s->lock);
	atomic_fetch_add(&s->work, 1);
	sym_wake(&s->work, 1);
}

struct err *sym_stream_new(struct sym_world *w, int pe, const char *name, struct sym_stream **out)
{
	struct sym_stream *s = mem_alloc(sizeof *s);

	*out = NULL;
	s->w = w;
	s->pe = pe;
	s->tail = &s->head;
	snprintf(s->name, sizeof s->name, "%s", name ? name : "");
	struct err *e = sym_ctx_new(w, pe, SYM_SERIAL, &s->cx);
	if (e) {
		free(s);
		return e;
	}
	pthread_mutex_init(&s->lock, NULL);
	int r = pthread_create(&s->thread, NULL, stream_main, s);
	if (r) {
		pthread_mutex_destroy(&s->lock);
		sym_ctx_free(s->cx);
		free(s);
		return ERR(EXHAUSTED, "cannot start a thread for stream '%s': %s", name ? name : "", strerror(r));
	}
	*out = s;
	return NULL;
}

void sym_stream_free(struct sym_stream *s)
{
	if (!s)
		return;
	atomic_store(&s->stop, true);
	atomic_fetch_add(&s->work, 1);
	sym_wake(&s->work, 1);
	pthread_join(s->thread, NULL);
	err_free(s->err);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

void sym_stream_cancel(struct sym_stream *s)
{
	atomic_store(&s->cancelled, 1);
	sym_ring(s->w, s->pe);
}

struct err *sym_stream_sync(struct sym_stream *s)
{
	struct sym_event *v = sym_event_new();

	sym_event_record(v, s);
	struct err *e = sym_event_wait(v);
	sym_event_free(v);
	return e;
}

bool sym_stream_idle(struct sym_stream *s)
{
	pthread_mutex_lock(&s->lock);
	bool idle = atomic_load_explicit(&s->finished, memory_order_acquire) == s->enqueued;
	pthread_mutex_unlock(&s->lock);
	return idle;
}

void sym_stream_put(struct sym_stream *s, struct sym_mem *m, size_t off, const void *src, size_t n, int rank)
{
	enqueue(s, &(struct op){ .kind = PUT, .m = m, .off = off, .src = src, .n = n, .rank = rank });
}

void sym_stream_get(struct sym_stream *s, void *dst, struct sym_mem *m, size_t off, size_t n, int rank)
{
	enqueue(s, &(struct op){ .kind = GET, .dst = dst, .m = m, .off = off, .n = n, .rank = rank });
}

void sym_stream_put_signal(struct sym_stream *s, struct sym_mem *m, size_t off, const void *src, size_t n,
                           struct sym_mem *sig, size_t sigoff, enum sym_amo op, uint64_t v, int rank)
{
	enqueue(s, &(struct op){ .kind = PUT_SIGNAL, .m = m, .off = off, .src = src, .n = n, .sig = sig, .sigoff = sigoff, .amo = op, .v = v, .rank = rank });
}

void sym_stream_signal(struct sym_stream *s, struct sym_mem *sig, size_t off, enum sym_amo op, uint64_t v, int rank)
{
	enqueue(s, &(struct op){ .kind = SIGNAL, .sig = sig, .sigoff = off, .amo = op, .v = v, .rank = rank });
}

void sym_stream_wait(struct sym_stream *s, struct sym_mem *m, size_t off, enum sym_type type, enum sym_cmp cmp, int64_t v, int from)
{
	enqueue(s, &(struct op){ .kind = WAIT, .m = m, .off = off, .type = type, .cmp = cmp, .v = (uint64_t)v, .rank = from });
}

static char *copy_text(const char *text)
{
	size_t n = text ? strlen(text) : 0;

	return memcpy(mem_alloc(n + 1), text ? text : "", n);
}

void sym_stream_call(struct sym_stream *s, const char *what, struct err *(*fn)(void *user), void *user)
{
	enqueue(s, &(struct op){ .kind = CALL, .what = copy_text(what), .fn = fn, .user = user });
}

void sym_stream_barrier(struct sym_stream *s, struct sym_team *t)
{
	enqueue(s, &(struct op){ .kind = COLLECTIVE, .what = copy_text("barrier"), .team = t });
}

void sym_stream_collective(struct sym_stream *s, struct sym_team *t, const char *what, struct err *(*fn)(void *user), void *user, void (*drop)(void *user))
{
	enqueue(s, &(struct op){ .kind = COLLECTIVE, .what = copy_text(what), .team = t, .fn = fn, .user = user, .drop = drop });
}

/* --- events --------------------------------------------------------------------------------------- */

static struct mark *mark_new(void)
{
	struct mark *m = mem_alloc(sizeof *m);

	atomic_store(&m->refs, 1);
	return m;
}

struct sym_event *sym_event_new(void)
{
	struct sym_event *v = mem_alloc(sizeof *v);

	pthread_mutex_init(&v->lock, NULL);
	v->last = mark_new();
	atomic_store(&v->last->done, 1);
	return v;
}

void sym_event_free(struct sym_event *v)
{
	if (!v)
		return;
	mark_unref(v->last);
	pthread_mutex_destroy(&v->lock);
	free(v);
}

static struct mark *latest(struct sym_event *v)
{
	pthread_mutex_lock(&v->lock);
	struct mark *m = mark_ref(v->last);
	pthread_mutex_unlock(&v->lock);
	return m;
}

void sym_event_record(struct sym_event *v, struct sym_stream *s)
{
	struct mark *m = mark_new(), *old;

	pthread_mutex_lock(&v->lock);
	old = v->last;
	v->last = m;
	mark_ref(m);
	pthread_mutex_unlock(&v->lock);
	mark_unref(old);
	enqueue(s, &(struct op){ .kind = RECORD, .mark = m });
}

void sym_stream_await(struct sym_stream *s, struct sym_event *v) { enqueue(s, &(struct op){ .kind = AWAIT, .mark = latest(v) }); }

bool sym_event_done(struct sym_event *v)
{
	struct mark *m = latest(v);
	bool done = atomic_load_explicit(&m->done, memory_order_acquire);

	mark_unref(m);
	return done;
}

struct err *sym_event_wait(struct sym_event *v)
{
	struct mark *m = latest(v);

	mark_wait(m);
	struct err *e = m->err ? err_copy(m->err) : NULL;
	mark_unref(m);
	return e;
}
