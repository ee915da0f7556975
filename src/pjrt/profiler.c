/* The extension by which jaxlib's profiler asks what devices have run: a window of the recording, given as an XSpace. */
#include <stdlib.h>

#include "impl.h"

struct pjrt_profiler {
	struct rt_trace *trace;
	bool collected;
	struct str data;
};

static void error_destroy(struct pjrt_profiler_destroy_error *a) { err_free(a->error); }

static void error_message(struct pjrt_profiler_message *a)
{
	a->message = a->error->msg;
	a->message_size = strlen(a->error->msg);
}

static struct err *error_code(struct pjrt_profiler_code *a)
{
	a->code = (int)a->error->code;
	return NULL;
}

/* The options are jaxlib's defaults, whatever its user has asked for. */
static struct err *create(struct pjrt_profiler_create *a)
{
	struct pjrt_profiler *p = calloc(1, sizeof *p);
	struct err *e = p ? rt_trace_new(&p->trace) : ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", sizeof *p);

	if (e) {
		free(p);
		return e;
	}
	a->profiler = p;
	return NULL;
}

static struct err *destroy(struct pjrt_profiler_args *a)
{
	if (a->profiler) {
		rt_trace_free(a->profiler->trace);
		str_free(&a->profiler->data);
		free(a->profiler);
	}
	return NULL;
}

static struct err *start(struct pjrt_profiler_args *a) { return rt_trace_start(a->profiler->trace); }
static struct err *stop(struct pjrt_profiler_args *a) { return rt_trace_stop(a->profiler->trace); }

static struct err *make(void *v)
{
	struct pjrt_profiler *p = v;
	struct str s = { 0 };
	struct rt_trace_read r;

	rt_trace_read(p->trace, &r);
	pjrt_xspace_write(&s, &r);
	rt_trace_read_free(&r);
	p->data = s;
	p->collected = true;
	return NULL;
}

static struct err *collect(struct pjrt_profiler_collect *a)
{
	struct pjrt_profiler *p = a->profiler;

	if (!p->collected)
		TRY(mem_guard(make, p, true));
	if (a->buffer && a->buffer_size_in_bytes < p->data.n)
		return ERR(INVALID, "a buffer of %zu bytes for a profile of %zu", a->buffer_size_in_bytes, p->data.n);
	if (!a->buffer)
		a->buffer = (uint8_t *)p->data.p;
	else if (p->data.n)
		memcpy(a->buffer, p->data.p, p->data.n);
	a->buffer_size_in_bytes = p->data.n;
	return NULL;
}

static const struct pjrt_profiler_api table = {
	.struct_size = sizeof table,
	.error_destroy = error_destroy,
	.error_message = error_message,
	.error_code = error_code,
	.create = create,
	.destroy = destroy,
	.start = start,
	.stop = stop,
	.collect = collect,
};
struct pjrt_profiler_ext pjrt_profilers = {
	.base = { .struct_size = sizeof pjrt_profilers, .type = EXT_PROFILER },
	.api = &table,
};
