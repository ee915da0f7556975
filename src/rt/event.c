#include "impl.h"

/* Most events are born ready with success: they share one that is never freed. */
struct rt_event event_ok = { .ref = 1, .state = 1, .lock = ATOMIC_FLAG_INIT };
/* And those for which there was no memory. */
static struct err no_memory = { .code = ERR_EXHAUSTED, .file = __FILE__, .msg = (char[]){ "out of host memory" }, .fixed = true };
struct rt_event event_none = { .ref = 1, .state = 2, .lock = ATOMIC_FLAG_INIT, .err = &no_memory };

static bool shared(const struct rt_event *e) { return e == &event_ok || e == &event_none; }

struct rt_event *rt_event_done(void) { return &event_ok; }

static struct spare events = SPARE(sizeof(struct rt_event)), callbacks = SPARE(sizeof(struct callback));

void event_fill(size_t n)
{
	spare_fill(&events, n);
	spare_fill(&callbacks, n);
}

struct rt_event *rt_event_new(void)
{
	struct rt_event *e = spare_take(&events);

	if (!e)
		return NULL;
	atomic_init(&e->ref, 1);
	atomic_init(&e->state, 0);
	atomic_init(&e->waiters, 0);
	atomic_flag_clear_explicit(&e->lock, memory_order_relaxed);
	e->asked = false;
	e->err = NULL;
	e->cb = NULL;
	return e;
}

struct rt_event *event_refs(struct rt_event *e, int n)
{
	if (!shared(e))
		atomic_fetch_add_explicit(&e->ref, n, memory_order_relaxed);
	return e;
}

struct rt_event *rt_event_ref(struct rt_event *e) { return event_refs(e, 1); }

void rt_event_unref(struct rt_event *e)
{
	if (!e || shared(e) || !ref_drop(&e->ref))
		return;
	/* Callbacks hold a reference, so none is left here. */
	err_free(e->err);
	spare_give(&events, e);
}

void rt_event_set(struct rt_event *e, struct err *error)
{
	spin_lock(&e->lock);
	assert(!atomic_load(&e->state));
	e->err = error;
	if (e->asked)
		err_heard(error);
	struct callback *cb = e->cb, *turn = NULL, *next;
	e->cb = NULL;
	atomic_store(&e->state, error ? 2 : 1);
	spin_unlock(&e->lock);
	if (atomic_load(&e->waiters))
		sym_wake(&e->state, INT32_MAX);
	for (; cb; cb = next) {        /* in the order of registration */
		next = cb->next;
		cb->next = turn;
		turn = cb;
	}
	for (; turn; turn = next) {
		next = turn->next;
		bool lent = turn->lent;
		turn->fn(err_copy(e->err), turn->user);
		if (!lent)
			spare_give(&callbacks, turn);
		rt_event_unref(e);
	}
}

bool rt_event_ready(const struct rt_event *e) { return atomic_load_explicit(&e->state, memory_order_acquire) != 0; }

static struct err *event_error(const struct rt_event *e)
{
	return atomic_load_explicit(&e->state, memory_order_acquire) == 2 ? err_copy(e->err) : NULL;
}

struct err *rt_event_error(const struct rt_event *e)
{
	struct err *error = event_error(e);

	err_heard(error);
	return error;
}

void rt_event_ask(struct rt_event *e)
{
	if (atomic_load_explicit(&e->state, memory_order_acquire) == 1)
		return;
	spin_lock(&e->lock);
	e->asked = true;
	err_heard(e->err);
	spin_unlock(&e->lock);
}

struct err *rt_event_wait(struct rt_event *e)
{
	struct err *error = event_wait(e);

	err_heard(error);
	return error;
}

static _Atomic(rt_give_up *) give_up;

void rt_set_give_up(rt_give_up *fn) { atomic_store(&give_up, fn); }

bool event_gives_up(void)
{
	rt_give_up *fn = atomic_load(&give_up);
	return fn && fn();
}

bool rt_event_wait_or(struct rt_event *e)
{
	bool ready, gave_up = false;

	for (int i = 0; i < 200 && !rt_event_ready(e); i++)
		sym_pause();
	atomic_fetch_add(&e->waiters, 1);
	while (!(ready = atomic_load(&e->state)) && !gave_up) {
		sym_sleep(&e->state, 0, EVENT_ASK_NS);
		gave_up = !atomic_load(&e->state) && event_gives_up();
	}
	atomic_fetch_sub(&e->waiters, 1);
	return ready;
}

struct err *event_wait(struct rt_event *e)
{
	for (int i = 0; i < 200 && !rt_event_ready(e); i++)
		sym_pause();
	if (!rt_event_ready(e)) {
		atomic_fetch_add(&e->waiters, 1);
		while (!atomic_load(&e->state))
			sym_sleep(&e->state, 0, -1);
		atomic_fetch_sub(&e->waiters, 1);
	}
	return event_error(e);
}

bool event_then(struct rt_event *e, struct callback *cb)
{
	if (rt_event_ready(e))
		return false;
	spin_lock(&e->lock);
	bool pending = !atomic_load(&e->state);
	if (pending) {
		rt_event_ref(e);
		cb->next = e->cb;
		e->cb = cb;
	}
	spin_unlock(&e->lock);
	return pending;
}

bool rt_event_on_ready(struct rt_event *e, void (*fn)(struct err *error, void *user), void *user)
{
	if (!rt_event_ready(e)) {
		struct callback *cb = spare_take(&callbacks);
		if (!cb)
			return false;
		*cb = (struct callback){ .fn = fn, .user = user };
		if (event_then(e, cb))
			return true;
		spare_give(&callbacks, cb);
	}
	fn(event_error(e), user);
	return true;
}

struct all { struct rt_event *end; _Atomic(struct err *) err; _Atomic int left; };

static void all_one(struct err *e, void *user)
{
	struct all *a = user;
	struct err *none = NULL;

	if (e && !atomic_compare_exchange_strong(&a->err, &none, e))
		err_free(e);
	if (atomic_fetch_sub(&a->left, 1) > 1)
		return;
	rt_event_set(a->end, atomic_load(&a->err));
	rt_event_unref(a->end);
	free(a);
}

struct rt_event *rt_event_all(struct rt_event **e, int n)
{
	struct all *a = malloc(sizeof *a);
	struct rt_event *end = a ? rt_event_new() : NULL;

	if (end) {
		a->end = rt_event_ref(end);
		atomic_init(&a->err, NULL);
		atomic_init(&a->left, n);
	} else
		free(a);
	for (int i = 0; i < n; i++) {
		if (end && !rt_event_on_ready(e[i], all_one, a))
			all_one(no_room(sizeof(struct callback)), a);
		rt_event_unref(e[i]);
	}
	return end ? end : &event_none;
}
