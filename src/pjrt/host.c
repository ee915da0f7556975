/* What the Python package calls: settings, callbacks, handlers of custom calls. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "../ir/ir.h"
#include "impl.h"
#include "pjrt.h"

#define PYTHON_TARGET "rondo_python_callback"
#define PYTHON_PARTS_TARGET "rondo_python_callback_of_parts"      /* each device calls, with its parts of the operands */
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

EXPORT const char *rondo_forked(void)
{
	return rt_forked;
}

/* --- Python callbacks ------------------------------------------------------- */

static _Atomic(rondo_callback *) callback;
static _Atomic(rondo_count *) count;
static _Atomic(rondo_resolve *) resolver;

/* --- Ctrl-C ------------------------------------------------------------------ */

static struct rondo_python python;
static atomic_bool has_python;
static struct { atomic_bool taken; _Atomic unsigned long thread; } calling[64];       /* Python functions that the main thread's programs call; those beyond are not interrupted */
static void *raised[3];                           /* on its way to the main thread's Python; under the GIL */
static bool inside;                               /* the main thread is in a function that must not see it; likewise */

/* The place of a call, -1 if it is not to be interrupted. */
static int called(unsigned long by)
{
	for (int i = 0; i < (int)NELEM(calling) && by == python.main; i++) {
		bool none = false;
		if (atomic_compare_exchange_strong(&calling[i].taken, &none, true))
			return i;
	}
	return -1;
}

static bool is_main(void) { return atomic_load(&has_python) && (unsigned long)pthread_self() == python.main; }

/* Has a signal's handler raised something? */
static bool caught(void)
{
	if (!raised[0] && python.check())
		python.fetch(&raised[0], &raised[1], &raised[2]);
	return raised[0];
}

/* It comes as what a handler raises does: before a collection of garbage, whose Python functions would swallow it, and as the object that it is. */
static int raise_it(void *none)
{
	void *e[] = { raised[0], raised[1], raised[2] };

	if (!e[0] || inside)
		return 0;
	memset(raised, 0, sizeof raised);
	python.restore(e[0], e[1], e[2]);
	return -1;
}

static void pass_on(void)
{
	if (raised[0] && python.later(raise_it, NULL)) {       /* no room: it has its type alone */
		python.raise(python.main, raised[0]);
		raise_it(NULL);
		python.restore(NULL, NULL, NULL);
	}
}

/* The package's functions that C calls have nobody to raise anything to: what has come until then, or is on its way while what it leaves behind is freed,
 * goes on behind them. */
struct aside { bool python; int state; void *e[3]; };

static struct aside call_begins(void)
{
	struct aside a = { .python = atomic_load(&has_python) };

	if (!a.python)
		return a;
	a.state = python.ensure();
	python.fetch(&a.e[0], &a.e[1], &a.e[2]);
	if (is_main()) {
		caught();
		inside = true;
	}
	return a;
}

static void call_ends(struct aside a)
{
	if (!a.python)
		return;
	python.restore(a.e[0], a.e[1], a.e[2]);
	if (is_main()) {
		inside = false;
		pass_on();
	}
	python.release(a.state);
}

static bool interrupted(void)
{
	if (!is_main())
		return false;
	int state = python.ensure();
	bool before = raised[0], yes = caught();
	if (yes && !before) {
		for (size_t i = 0; i < NELEM(calling); i++)
			if (atomic_load(&calling[i].thread))
				python.raise(atomic_load(&calling[i].thread), python.interrupt);
		pass_on();
	}
	python.release(state);
	return yes;
}

EXPORT void rondo_set_python(const struct rondo_python *p)
{
	atomic_store(&has_python, false);
	if (p)
		python = *p;
	atomic_store(&has_python, p != NULL);
	rt_set_give_up(p ? interrupted : NULL);
}

/* --- calls ------------------------------------------------------------------- */

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

static bool is_python(const char *target) { return !strcmp(target, PYTHON_TARGET) || !strcmp(target, PYTHON_PARTS_TARGET); }

bool pjrt_custom_of_parts(const char *target) { return !strcmp(target, PYTHON_PARTS_TARGET); }

/* Pointers and extents of what is no token, in order: returns how many they are. */
static size_t arrays(void *const *p, const struct prog_view *v, int n, void **out, const int64_t **dim)
{
	size_t k = 0;
	for (int i = 0; i < n; i++)
		if (v[i].dtype != DT_token) {
			out[k] = p[i];
			dim[k++] = v[i].dim;
		}
	return k;
}

static struct err *call_python(void *user, const struct rt_custom_call *call)
{
	const struct prog_custom *c = call->c;
	rondo_callback *fn = atomic_load(&callback);
	uint64_t id;
	char msg[4096] = "";
	if (!find_u64(c, "index", &id))
		return ERR(INVALID, "a call to Python without its number");
	if (!fn)
		return ERR(PRECONDITION, "a call to Python, which has ended");
	void *small[64];
	size_t n = (size_t)c->nin + c->nout;
	void **p = 2 * n <= NELEM(small) ? small : malloc(sizeof *p * 2 * n);
	if (!p)
		return no_room(sizeof *p * 2 * n);
	const int64_t **dim = (const int64_t **)(p + n);
	size_t nin = arrays(call->in, c->v, c->nin, p, dim);
	arrays(call->out, c->v + c->nin, c->nout, p + nin, dim + nin);
	int here = called(call->by);
	bool done = fn(id, p, p + nin, dim, ((struct pjrt_device *)rt_device_user(call->device))->id, here < 0 ? NULL : &calling[here].thread, msg, sizeof msg) == 1;
	if (here >= 0) {
		atomic_store(&calling[here].thread, 0);
		atomic_store(&calling[here].taken, false);
	}
	if (p != small)
		free(p);
	return done ? NULL : ERR(INTERNAL, "CpuCallback error calling callback: %s", *msg ? msg : "interrupted");
}

EXPORT void rondo_set_callback(rondo_callback *fn, rondo_count *change)
{
	atomic_store(&callback, fn);
	atomic_store(&count, change);
	rt_custom_register(PYTHON_TARGET, call_python, NULL);
	rt_custom_register(PYTHON_PARTS_TARGET, call_python, NULL);
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
		if (!is_python(p->custom[i].target)) {
			struct aside a = call_begins();
			fn(p->custom[i].target);
			call_ends(a);
		}
}

static atomic_llong called_runs;

void pjrt_calls(int change) { atomic_fetch_add(&called_runs, change); }
EXPORT int64_t rondo_calling(void) { return atomic_load(&called_runs); }

bool pjrt_custom_count(const struct prog *p, int change)
{
	rondo_count *fn = atomic_load(&count);
	uint64_t id;
	bool any = false;
	for (uint32_t i = 0; i < p->ncustom; i++)
		if (is_python(p->custom[i].target) && find_u64(&p->custom[i], "index", &id)) {
			any = true;
			if (!fn)
				continue;
			struct aside a = call_begins();
			fn(id, change);
			call_ends(a);
		}
	return any;
}

__attribute__((visibility("default"))) void rondo_permuted(int64_t *copied, int64_t *in_place)
{
	rt_permuted(copied, in_place);
}

__attribute__((visibility("default"))) int64_t rondo_followed(void) { return rt_followed(); }
