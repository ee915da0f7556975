/* What the Python package calls: settings, callbacks, handlers of custom calls. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "../ir/ir.h"
#include "impl.h"
#include "pjrt.h"

#define PYTHON_TARGET "rondo_python_callback"
#define EXPORT __attribute__((visibility("default")))

EXPORT const char *rondo_set_option(const char *name, const char *value)
{
	static _Thread_local char text[512];
	struct err *e = conf_set(name, value);
	if (!e)
		return NULL;
	snprintf(text, sizeof text, "%s", e->msg);
	err_free(e);
	return text;
}

EXPORT int64_t rondo_get_option(const char *name)
{
	return conf_number(name);
}

EXPORT void rondo_ffi_register(const char *target, void *handler)
{
	rt_ffi_register(target, handler);
}

/* --- Python callbacks ------------------------------------------------------- */

static _Atomic(rondo_callback *) callback;
static _Atomic(rondo_count *) count;
static _Atomic(rondo_resolve *) resolver;

static struct err *no_room(size_t n) { return ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", n); }

static bool find_u64(const struct prog_custom *c, const char *name, uint64_t *v)
{
	struct ir_dict_it it = { .p = c->dict, .end = (const uint8_t *)c->dict + c->ndict };
	while (ir_dict_next(&it))
		if (it.name_n == strlen(name) && !memcmp(it.name, name, it.name_n) && it.kind == 0 && dtype_info[it.dtype].bytes == 8) {
			memcpy(v, it.data, sizeof *v);
			return true;
		}
	return false;
}

/* The pointers of what is no token, in order. */
static void **arrays(void *const *p, const struct prog_view *v, int n, void **out)
{
	for (int i = 0; i < n; i++)
		if (v[i].dtype != DT_token)
			*out++ = p[i];
	return out;
}

static struct err *call_python(const struct rt_custom_call *call)
{
	const struct prog_custom *c = call->c;
	rondo_callback *fn = atomic_load(&callback);
	uint64_t id;
	char msg[4096] = "";
	if (!find_u64(c, "index", &id))
		return ERR(INVALID, "a call to Python without its number");
	if (!fn)
		return ERR(PRECONDITION, "a call to Python, which has ended");
	void *small[32];
	size_t n = (size_t)c->nin + c->nout;
	void **p = n <= NELEM(small) ? small : malloc(sizeof *p * n);
	if (!p)
		return no_room(sizeof *p * n);
	void **out = arrays(call->in, c->v, c->nin, p);
	arrays(call->out, c->v + c->nin, c->nout, out);
	int rc = fn(id, p, out, rt_device_id(call->device), msg, sizeof msg);
	if (p != small)
		free(p);
	return rc ? ERR(INTERNAL, "CpuCallback error calling callback: %s", msg) : NULL;
}

/* --- one call for all devices ------------------------------------------------ */

/* Outside of shard_map a function is called once for the whole array, however many devices run the
 * program: whoever arrives first calls, the others take its results.  The k-th arrival of one device in a
 * launch belongs to the k-th of every other, since all run the same commands. */
struct turn {
	struct turn *next;
	uint32_t number, arrived;
	bool done;
	struct err *e;
	char *results;
};
struct meeting {
	struct meeting *next;
	const struct prog_custom *c;
	int32_t launch;
	uint32_t n;
	struct turn *turn;
	uint32_t count[];           /* turns each position has come to */
};
static pthread_mutex_t meet_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t meet_done = PTHREAD_COND_INITIALIZER;
static struct meeting *meetings;

static struct meeting *meet(const struct rt_custom_call *call, uint32_t n)
{
	struct meeting *m = meetings;
	while (m && (m->c != call->c || m->launch != call->launch_id))
		m = m->next;
	if (!m) {
		m = calloc(1, sizeof *m + sizeof *m->count * n);
		if (!m)
			return NULL;
		m->next = meetings;
		m->c = call->c;
		m->launch = call->launch_id;
		m->n = n;
		meetings = m;
	}
	return m;
}

/* Over once nobody is behind anybody else. */
static void leave(struct meeting *m, struct turn *t)
{
	if (++t->arrived < m->n)
		return;
	struct turn **p = &m->turn;
	while (*p != t)
		p = &(*p)->next;
	*p = t->next;
	err_free(t->e);
	free(t->results);
	free(t);
	if (m->turn)
		return;
	struct meeting **q = &meetings;
	while (*q != m)
		q = &(*q)->next;
	*q = m->next;
	free(m);
}

/* Results to (or from) one block. */
static void move_results(const struct rt_custom_call *call, char *block, bool out)
{
	for (int i = 0; i < call->c->nout; i++) {
		size_t n = (size_t)prog_view_bytes(&call->c->v[call->c->nin + i]);
		if (out)
			memcpy(block, call->out[i], n);
		else
			memcpy(call->out[i], block, n);
		block += n;
	}
}

static struct err *call_once(const struct rt_custom_call *call, uint32_t n)
{
	pthread_mutex_lock(&meet_lock);
	struct meeting *m = meet(call, n);
	if (!m) {
		pthread_mutex_unlock(&meet_lock);
		return no_room(sizeof *m);
	}
	uint32_t number = m->count[call->position]++;
	struct turn *t = m->turn;
	while (t && t->number != number)
		t = t->next;
	if (!t) {
		t = malloc(sizeof *t);
		if (!t) {
			pthread_mutex_unlock(&meet_lock);
			return no_room(sizeof *t);
		}
		*t = (struct turn){ .next = m->turn, .number = number };
		m->turn = t;
		pthread_mutex_unlock(&meet_lock);
		struct err *e = call_python(call);
		size_t bytes = 0;
		for (int i = 0; i < call->c->nout; i++)
			bytes += (size_t)prog_view_bytes(&call->c->v[call->c->nin + i]);
		t->results = malloc(bytes + 1);
		if (!e && !t->results)
			e = no_room(bytes);
		if (!e)
			move_results(call, t->results, true);
		pthread_mutex_lock(&meet_lock);
		t->e = e;
		t->done = true;
		pthread_cond_broadcast(&meet_done);
	} else {
		while (!t->done)
			pthread_cond_wait(&meet_done, &meet_lock);
		if (!t->e)
			move_results(call, t->results, false);
	}
	struct err *e = err_copy(t->e);
	leave(m, t);
	pthread_mutex_unlock(&meet_lock);
	return e;
}

static struct err *python_callback(void *user, const struct rt_custom_call *call)
{
	uint64_t n = 1;
	if (find_u64(call->c, "devices", &n) && n > 1 && call->position < (int64_t)n)
		return call_once(call, (uint32_t)n);
	return call_python(call);
}

EXPORT void rondo_set_callback(rondo_callback *fn, rondo_count *change)
{
	atomic_store(&callback, fn);
	atomic_store(&count, change);
	rt_custom_register(PYTHON_TARGET, python_callback, NULL);
}

EXPORT void rondo_set_resolver(rondo_resolve *fn)
{
	atomic_store(&resolver, fn);
}

/* --- executables ------------------------------------------------------------ */

void pjrt_custom_resolve(const struct prog *p)
{
	rondo_resolve *fn = atomic_load(&resolver);
	for (uint32_t i = 0; fn && i < p->ncustom; i++)
		if (strcmp(p->custom[i].target, PYTHON_TARGET))
			fn(p->custom[i].target);
}

bool pjrt_custom_count(const struct prog *p, int change)
{
	rondo_count *fn = atomic_load(&count);
	uint64_t id;
	bool any = false;
	for (uint32_t i = 0; i < p->ncustom; i++)
		if (!strcmp(p->custom[i].target, PYTHON_TARGET) && find_u64(&p->custom[i], "index", &id)) {
			any = true;
			if (fn)
				fn(id, change);
		}
	return any;
}

__attribute__((visibility("default"))) void rondo_permuted(int64_t *copied, int64_t *in_place)
{
	rt_permuted(copied, in_place);
}

__attribute__((visibility("default"))) int64_t rondo_followed(void) { return rt_followed(); }
