/* What the Python package calls: settings, callbacks, handlers of custom calls. */
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

EXPORT void rondo_ffi_register(const char *target, void *handler)
{
	rt_ffi_register(target, handler);
}

/* --- Python callbacks ------------------------------------------------------- */

static _Atomic(rondo_callback *) callback;
static _Atomic(rondo_count *) count;
static _Atomic(rondo_resolve *) resolver;

static bool find_id(const struct prog_custom *c, uint64_t *id)
{
	struct ir_dict_it it = { .p = c->dict, .end = (const uint8_t *)c->dict + c->ndict };
	while (ir_dict_next(&it))
		if (it.name_n == 5 && !memcmp(it.name, "index", 5) && it.kind == 0 && dtype_info[it.dtype].bytes == 8) {
			memcpy(id, it.data, sizeof *id);
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

static struct err *python_callback(void *user, const struct rt_custom_call *call)
{
	const struct prog_custom *c = call->c;
	rondo_callback *fn = atomic_load(&callback);
	uint64_t id;
	char msg[4096] = "";
	if (!find_id(c, &id))
		return ERR(INVALID, "a call to Python without its number");
	if (!fn)
		return ERR(PRECONDITION, "a call to Python, which has ended");
	void *small[32];
	size_t n = (size_t)c->nin + c->nout;
	void **p = n <= NELEM(small) ? small : mem_alloc(sizeof *p * n);
	void **out = arrays(call->in, c->v, c->nin, p);
	arrays(call->out, c->v + c->nin, c->nout, out);
	int rc = fn(id, p, out, rt_device_id(call->device), msg, sizeof msg);
	if (p != small)
		free(p);
	return rc ? ERR(INTERNAL, "CpuCallback error calling callback: %s", msg) : NULL;
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
		if (!strcmp(p->custom[i].target, PYTHON_TARGET) && find_id(&p->custom[i], &id)) {
			any = true;
			if (fn)
				fn(id, change);
		}
	return any;
}
