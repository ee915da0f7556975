/* Calling XLA FFI handlers (the typed custom calls of jaxlib and of users) from C.
 *
 * The structures are those of the FFI's C ABI, versions 0.0 to 0.5, declared here by hand: only what a handler of the
 * execute stage can look at.  Sizes are compared for equality by the handlers, so each struct_size is the
 * end of the last member that the ABI's version knows; the frame has had the same members in all of them, and what a
 * handler hands to us says by its size what it has. */
#include <pthread.h>

#include "host.h"

#define SIZE_TO(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))

struct ffi_ext { size_t size; int type; struct ffi_ext *next; };
struct ffi_version { size_t size; struct ffi_ext *ext; int major, minor; };
struct ffi_buffer { size_t size; struct ffi_ext *ext; int dtype; void *data; int64_t rank; int64_t *dims; };
struct ffi_span { const char *p; size_t n; };
struct ffi_scalar { int dtype; void *value; };
struct ffi_array { int dtype; size_t n; void *data; };
struct ffi_args { size_t size; struct ffi_ext *ext; int64_t n; int *types; void **v; };
struct ffi_attrs { size_t size; struct ffi_ext *ext; int64_t n; int *types; struct ffi_span **names; void **v; };
struct ffi_frame {
	size_t size; struct ffi_ext *ext;
	const struct ffi_api *api; void *ctx; int stage;
	struct ffi_args args, rets;
	struct ffi_attrs attrs;
	void *future;
};
_Static_assert(SIZE_TO(struct ffi_frame, attrs) == 168, "size of the FFI call frame");
enum { FFI_MINOR = 5, FFI_EXECUTE = 3, FFI_METADATA = 1, FFI_BUFFER = 1 };
enum { FFI_ARRAY = 1, FFI_DICT, FFI_SCALAR, FFI_STRING };
struct ffi_meta { size_t size; struct ffi_version version; uint32_t traits; int64_t state_type; };
struct ffi_meta_ext { struct ffi_ext base; struct ffi_meta *meta; };

struct ffi_error { int code; char *msg; };
struct ffi_error_create { size_t size; struct ffi_ext *ext; const char *msg; int code; };
struct ffi_error_msg { size_t size; struct ffi_ext *ext; struct ffi_error *e; const char *msg; int code; };     /* code: since 0.5 */
struct ffi_error_destroy { size_t size; struct ffi_ext *ext; struct ffi_error *e; };
struct ffi_ctx_arg { size_t size; struct ffi_ext *ext; void *ctx; void *x, *y, *z; };
struct ffi_schedule { size_t size; struct ffi_ext *ext; void *ctx; void (*task)(void *); void *data; };
struct ffi_threads { size_t size; struct ffi_ext *ext; void *ctx; int64_t *n; };
struct ffi_memory { size_t size; struct ffi_ext *ext; void *ctx; size_t bytes, align; void *data; };
struct ffi_memory_free { size_t size; struct ffi_ext *ext; void *ctx; size_t bytes; void *data; };
struct ffi_run_id { size_t size; struct ffi_ext *ext; void *ctx; int64_t id; };
struct ffi_ordinal { size_t size; struct ffi_ext *ext; void *ctx; int32_t ordinal; };
struct ffi_future { struct ffi_error *e; _Atomic uint32_t done; };
struct ffi_future_arg { size_t size; struct ffi_ext *ext; struct ffi_future *future; struct ffi_error *e; };
struct ffi_extension_find { size_t size; struct ffi_ext *ext; void *ctx; int64_t type; const void *extension; };
struct ffi_options { size_t size; struct ffi_ext *ext; void *ctx; const struct ffi_attrs *attrs; };
struct ffi_type_id { int64_t id; };
struct ffi_type_register { size_t size; struct ffi_ext *ext; struct ffi_span name; struct ffi_type_id *id; const void *info; };

/* Handlers call these functions: they take memory without a jump. */
static struct ffi_error no_memory = { ERR_EXHAUSTED, (char[]){ "out of host memory" } };

static struct ffi_error *error_create(struct ffi_error_create *a)
{
	size_t n = strlen(a->msg ? a->msg : "") + 1;
	struct ffi_error *e = malloc(sizeof *e + n);

	if (!e)
		return &no_memory;
	e->code = a->code;
	e->msg = memcpy(e + 1, a->msg ? a->msg : "", n);
	return e;
}

static void error_message(struct ffi_error_msg *a)
{
	a->msg = a->e->msg;
	if (a->size >= SIZE_TO(struct ffi_error_msg, code))
		a->code = a->e->code;
}

static void error_destroy(struct ffi_error_destroy *a)
{
	if (a->e != &no_memory)
		free(a->e);
}

static struct ffi_error *refuse(const char *what)
{
	struct ffi_error_create c = { .msg = what, .code = ERR_UNIMPLEMENTED };

	return error_create(&c);
}

static struct ffi_error *handler_register(void *a) { return refuse("FFI: registration of handlers from a handler is not supported"); }
static struct ffi_error *stream_get(void *a) { return refuse("FFI: a CPU device has no stream"); }
static struct ffi_error *context_get(void *a) { return refuse("FFI: execution contexts are not supported"); }
static struct ffi_error *state_set(void *a) { return refuse("FFI: stateful handlers are not supported"); }
static struct ffi_error *state_get(void *a) { return refuse("FFI: stateful handlers are not supported"); }

static struct ffi_error *type_register(struct ffi_type_register *a)
{
	static _Atomic int64_t next = 1;

	if (a->id && !a->id->id)
		a->id->id = atomic_fetch_add(&next, 1);
	return NULL;
}

static struct ffi_error *memory_allocate(struct ffi_memory *a)
{
	if (posix_memalign(&a->data, MAX(a->align, 64), MAX(a->bytes, 1)))
		return &no_memory;
	return NULL;
}

static struct ffi_error *memory_free(struct ffi_memory_free *a)
{
	free(a->data);
	return NULL;
}

/* Tasks run at once: a handler must not rely on their running at the same time. */
static struct ffi_error *pool_schedule(struct ffi_schedule *a)
{
	a->task(a->data);
	return NULL;
}

static struct ffi_error *pool_threads(struct ffi_threads *a)
{
	*a->n = 1;
	return NULL;
}

static struct ffi_error *future_create(struct ffi_future_arg *a)
{
	a->future = calloc(1, sizeof *a->future);
	return a->future ? NULL : &no_memory;
}

static void future_finish(struct ffi_future *f, struct ffi_error *e)
{
	f->e = e;
	atomic_store(&f->done, 1);
	sym_wake(&f->done, 1);
}

static struct ffi_error *future_set(struct ffi_future_arg *a)
{
	future_finish(a->future, NULL);
	return NULL;
}

static struct ffi_error *future_error(struct ffi_future_arg *a)
{
	future_finish(a->future, a->e);
	return NULL;
}

static _Thread_local const struct rt_custom_call *calling;

static struct ffi_error *run_id(struct ffi_run_id *a)
{
	a->id = calling ? calling->launch_id : 0;
	return NULL;
}

static struct ffi_error *device_ordinal(struct ffi_ordinal *a)
{
	a->ordinal = calling ? rt_device_local(calling->device) : 0;
	return NULL;
}

/* A call has none: a handler that must have one says so itself. */
static struct ffi_error *extension_find(struct ffi_extension_find *a)
{
	a->extension = NULL;
	return NULL;
}

/* Options of one execution: nobody gives any. */
static struct ffi_error *options_get(struct ffi_options *a)
{
	static const struct ffi_attrs none = { .size = SIZE_TO(struct ffi_attrs, v) };

	a->attrs = &none;
	return NULL;
}

/* The table of functions, in the ABI's order. */
static const struct ffi_api {
	size_t size; struct ffi_ext *ext;
	struct ffi_version version;
	const void *internal;
	struct ffi_error *(*error_create)(struct ffi_error_create *);
	void (*error_message)(struct ffi_error_msg *);
	void (*error_destroy)(struct ffi_error_destroy *);
	struct ffi_error *(*handler_register)(void *);
	struct ffi_error *(*stream_get)(void *);
	struct ffi_error *(*type_register)(struct ffi_type_register *);
	struct ffi_error *(*context_get)(void *);
	struct ffi_error *(*state_set)(void *);
	struct ffi_error *(*state_get)(void *);
	struct ffi_error *(*memory_allocate)(struct ffi_memory *);
	struct ffi_error *(*memory_free)(struct ffi_memory_free *);
	struct ffi_error *(*schedule)(struct ffi_schedule *);
	struct ffi_error *(*threads)(struct ffi_threads *);
	struct ffi_error *(*future_create)(struct ffi_future_arg *);
	struct ffi_error *(*future_set)(struct ffi_future_arg *);
	struct ffi_error *(*future_error)(struct ffi_future_arg *);
	struct ffi_error *(*run_id)(struct ffi_run_id *);
	struct ffi_error *(*ordinal)(struct ffi_ordinal *);
	struct ffi_error *(*extension_find)(struct ffi_extension_find *);
	struct ffi_error *(*options_get)(struct ffi_options *);
} api = {
	sizeof api, NULL, { SIZE_TO(struct ffi_version, minor), NULL, 0, FFI_MINOR }, NULL,
	error_create, error_message, error_destroy, handler_register, stream_get, type_register, context_get, state_set, state_get,
	memory_allocate, memory_free, pool_schedule, pool_threads, future_create, future_set, future_error, run_id, device_ordinal,
	extension_find, options_get,
};

/* A dictionary blob (ir.h) -> attributes.  NULL if the bytes are malformed. */
static struct ffi_attrs *attributes(struct arena *a, const uint8_t *p, size_t n)
{
	struct ffi_attrs *r = ARENA_NEW(a, struct ffi_attrs, 1);
	const uint8_t *q = p, *end = p + n;
	int64_t k = 0;

	r->size = SIZE_TO(struct ffi_attrs, v);
	for (int pass = 0; pass < 2; pass++) {
		for (q = p, k = 0; q < end; k++) {
			uint32_t len, count;
			if (end - q < 4)
				return NULL;
			memcpy(&len, q, 4);
			if ((size_t)(end - q) < (size_t)len + 12)
				return NULL;
			const uint8_t *name = q + 4, *h = name + len;
			memcpy(&count, h + 4, 4);
			int kind = h[0], dt = h[1];
			if (kind > 3 || (kind < 2 && (dt >= DT_COUNT || !dtype_info[dt].name)))
				return NULL;
			size_t bytes = (size_t)count * (kind < 2 ? dtype_info[dt].bytes : 1);
			if ((size_t)(end - h - 8) < bytes)
				return NULL;
			q = h + 8 + bytes;
			if (!pass)
				continue;
			void *data = arena_str(a, (const char *)h + 8, bytes);
			struct ffi_span *s = ARENA_NEW(a, struct ffi_span, 1);
			*s = (struct ffi_span){ arena_str(a, (const char *)name, len), len };
			r->names[k] = s;
			if (kind == 0) {
				struct ffi_scalar *x = ARENA_NEW(a, struct ffi_scalar, 1);
				*x = (struct ffi_scalar){ dtype_xla(dt), data };
				r->types[k] = FFI_SCALAR;
				r->v[k] = x;
			} else if (kind == 1) {
				struct ffi_array *x = ARENA_NEW(a, struct ffi_array, 1);
				*x = (struct ffi_array){ dtype_xla(dt), count, data };
				r->types[k] = FFI_ARRAY;
				r->v[k] = x;
			} else if (kind == 2) {
				struct ffi_span *x = ARENA_NEW(a, struct ffi_span, 1);
				*x = (struct ffi_span){ data, count };
				r->types[k] = FFI_STRING;
				r->v[k] = x;
			} else {
				r->types[k] = FFI_DICT;
				if (!(r->v[k] = attributes(a, data, count)))
					return NULL;
			}
		}
		if (!pass) {
			r->n = k;
			r->types = ARENA_NEW(a, int, k + 1);
			r->names = ARENA_NEW(a, struct ffi_span *, k + 1);
			r->v = ARENA_NEW(a, void *, k + 1);
		}
	}
	return r;
}

struct err *ffi_attributes(struct arena *a, const struct prog_custom *c, struct ffi_attrs **out)
{
	*out = attributes(a, c->dict, c->ndict);
	return *out ? NULL : ERR(INVALID, "the attributes of custom call '%s' are malformed", c->target);
}

/* A call's operands or results: of few nothing is allocated. */
enum { FEW = 8 };
struct operands { struct ffi_buffer b[FEW]; int type[FEW]; void *p[FEW]; };
static void operands(struct arena *a, struct operands *few, struct ffi_args *r, int n, const struct prog_view *v, void *const *p)
{
	struct ffi_buffer *b = n <= FEW ? few->b : ARENA_NEW(a, struct ffi_buffer, n);
	r->size = SIZE_TO(struct ffi_args, v);
	r->n = n;
	r->types = n <= FEW ? few->type : ARENA_NEW(a, int, n);
	r->v = n <= FEW ? few->p : ARENA_NEW(a, void *, n);
	for (int i = 0; i < n; i++) {
		b[i] = (struct ffi_buffer){ SIZE_TO(struct ffi_buffer, dims), NULL, dtype_xla(v[i].dtype), p[i], v[i].rank, v[i].dim };
		r->types[i] = FFI_BUFFER;
		r->v[i] = &b[i];
	}
}

typedef void *ffi_handler(void *frame);      /* struct ffi_error *(struct ffi_frame *) */

static struct err *enter(ffi_handler *h, struct ffi_frame *f, struct ffi_error **out)
{
	void *r;
	struct err *e = catch_call(h, f, &r);

	*out = r;
	return e;
}

/* The handler's error, as ours. */
static struct err *taken(struct ffi_error *e, const char *target)
{
	struct ffi_error_destroy d = { .e = e };

	if (!e)
		return NULL;
	struct err *r = err_new(e->code > 0 && e->code <= ERR_DATA_LOSS ? (enum err_code)e->code : ERR_UNKNOWN, __FILE__, __LINE__, "%s", e->msg);
	error_destroy(&d);
	return r;
}

/* The handler says for which version of the ABI it was built. */
static struct err *version_check(ffi_handler *h, const char *target)
{
	struct ffi_meta m = { .size = SIZE_TO(struct ffi_meta, traits), .version = { .size = SIZE_TO(struct ffi_version, minor) } };
	struct ffi_meta_ext x = { { sizeof x, FFI_METADATA, NULL }, &m };
	struct ffi_frame f = { .size = SIZE_TO(struct ffi_frame, attrs), .ext = &x.base, .api = &api, .stage = FFI_EXECUTE };

	f.args.size = f.rets.size = SIZE_TO(struct ffi_args, v);
	f.attrs.size = SIZE_TO(struct ffi_attrs, v);
	struct ffi_error *fe;
	TRY(enter(h, &f, &fe));
	TRY(taken(fe, target));
	if (m.version.major != 0 || m.version.minor > FFI_MINOR)
		return ERR(UNIMPLEMENTED, "custom call '%s' speaks version %d.%d of the FFI, newer than 0.%d, the newest that is known here", target,
		           m.version.major, m.version.minor, FFI_MINOR);
	return NULL;
}

static void arena_end(void *a) { arena_fini(a); }

struct err *ffi_call(void *handler, _Atomic bool *checked, const struct rt_custom_call *call, const struct ffi_attrs *attrs)
{
	const struct prog_custom *c = call->c;
	const struct rt_custom_call *outer = calling;
	struct operands in, out;
	ffi_handler *h;
	struct arena a;

	memcpy(&h, &handler, sizeof h);
	if (!atomic_load_explicit(checked, memory_order_relaxed)) {
		TRY(version_check(h, c->target));
		atomic_store_explicit(checked, true, memory_order_relaxed);
	}
	struct mem_undo u;
	arena_init(&a);
	mem_undo(&u, arena_end, &a);
	struct ffi_frame f = { .size = SIZE_TO(struct ffi_frame, attrs), .api = &api, .stage = FFI_EXECUTE, .attrs = *attrs };
	operands(&a, &in, &f.args, c->nin, c->v, call->in);
	operands(&a, &out, &f.rets, c->nout, c->v + c->nin, call->out);
	mem_done(&u);
	calling = call;
	struct ffi_error *fe;
	struct err *e = enter(h, &f, &fe);
	calling = outer;
	if (!e && f.future) {
		struct ffi_future *fu = f.future;
		while (!atomic_load(&fu->done))
			sym_sleep(&fu->done, 0, -1);
		if (!fe)
			fe = fu->e;
		free(fu);
	}
	if (!e)
		e = taken(fe, c->target);
	arena_fini(&a);
	return e;
}
