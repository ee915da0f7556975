/* FFI handlers as jaxlib has them: what a handler finds in its call frame, how its errors and exceptions come back. */
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unwind.h>

#include <cmocka.h>

#include "rt/rt.h"

/* The frame by its documented offsets, independent of the caller's declarations. */
static size_t word(const void *p, size_t off) { size_t v; memcpy(&v, (const char *)p + off, sizeof v); return v; }
static void *ptr(const void *p, size_t off) { return (void *)word(p, off); }
static int num(const void *p, size_t off) { int v; memcpy(&v, (const char *)p + off, sizeof v); return v; }

static int metadata, executed;
static int version[2] = { 0, 3 };    /* of the ABI that the handler is built for */
static bool queued;                  /* the handler has an effect: its program runs on the device's thread */
static void (*instead)(void);        /* what the handler does */

static void *refuse(const void *frame, const char *msg)
{
	struct { size_t size; void *ext; const char *msg; int code; } a = { 32, NULL, msg, 3 };
	void *(*create)(void *);
	void *f = ptr(ptr(frame, 16), 48);

	memcpy(&create, &f, sizeof f);
	return create(&a);
}

static void *handler(void *frame)
{
	assert_int_equal(word(frame, 0), 168);
	assert_non_null(ptr(frame, 16));
	void *ext = ptr(frame, 8);
	if (ext) {
		assert_int_equal(num(ext, 8), 1);
		void *m = ptr(ext, 24);
		memcpy((char *)m + 8 + 16, version, 8);
		metadata++;
		return NULL;
	}
	executed++;
	if (instead)
		instead();
	assert_int_equal(num(frame, 32), 3);
	const char *args = (char *)frame + 40, *rets = (char *)frame + 80, *attrs = (char *)frame + 120;
	assert_int_equal(word(args, 0), 40);
	assert_int_equal(word(args, 16), 1);
	assert_int_equal(word(rets, 16), 1);
	assert_int_equal(word(attrs, 0), 48);
	assert_int_equal(word(attrs, 16), 3);
	void *in = ((void **)ptr(args, 32))[0], *out = ((void **)ptr(rets, 32))[0];
	assert_int_equal(num(in, 16), 11);                /* F32 */
	assert_int_equal(word(in, 32), 2);
	assert_int_equal(((int64_t *)ptr(in, 40))[1], 2);
	/* In order of name: lower is a pred, scales an array, text a string. */
	void **name = ptr(attrs, 32), **value = ptr(attrs, 40);
	const int *type = ptr(attrs, 24);
	assert_memory_equal(ptr(name[0], 0), "lower", 5);
	assert_int_equal(word(name[0], 8), 5);
	assert_int_equal(type[0], 3);
	assert_int_equal(num(value[0], 0), 1);
	assert_int_equal(*(char *)ptr(value[0], 8), 1);
	assert_int_equal(type[1], 1);
	assert_int_equal(num(value[1], 0), 5);            /* S64 */
	assert_int_equal(word(value[1], 8), 2);
	const int64_t *scale = ptr(value[1], 16);
	assert_int_equal(type[2], 4);
	assert_int_equal(word(value[2], 8), 2);
	if (!memcmp(ptr(value[2], 0), "no", 2))
		return refuse(frame, "not today");
	const float *x = ptr(in, 24);
	float *y = ptr(out, 24);
	for (int i = 0; i < 4; i++)
		y[i] = x[i] * (float)scale[i / 2];
	return NULL;
}

static void attr(struct str *s, const char *name, uint8_t kind, uint8_t dtype, uint32_t count, const void *p, size_t n)
{
	uint32_t len = (uint32_t)strlen(name);
	uint8_t h[4] = { kind, dtype, 0, 0 };

	str_addn(s, (char *)&len, 4);
	str_addn(s, name, len);
	str_addn(s, (char *)h, 4);
	str_addn(s, (char *)&count, 4);
	str_addn(s, p, n);
}

static struct err *launch(struct rt_client *c, const char *text, size_t cut, float *out)
{
	struct str d = { 0 };
	struct prog *p = prog_new();
	struct arena *a = &p->arena;
	int64_t scale[2] = { 3, 5 }, dim[2] = { 2, 2 };
	int dev = 0;
	struct rt_exec *x;
	struct err *e;

	attr(&d, "lower", 0, DT_pred, 1, "\1", 1);
	attr(&d, "scales", 1, DT_i64, 2, scale, 16);
	attr(&d, "text", 2, 0, 2, text, 2);
	p->name = arena_str(a, "ffi", 3);
	p->ndev = 1;
	p->nreg = 1;
	p->narg = p->nres = p->ncustom = p->nsite = p->nblock = 1;
	p->nbuf = p->nopnd = 2;
	p->arg = ARENA_NEW(a, struct prog_arg, 1);
	p->arg[0] = (struct prog_arg){ .dtype = DT_f32, .rank = 2, .dim = arena_copy(a, dim, 16), .bytes = 16, .alias = -1 };
	p->res = ARENA_NEW(a, struct prog_arg, 1);
	p->res[0] = p->arg[0];
	p->buf = ARENA_NEW(a, struct prog_buf, 2);
	p->buf[0] = (struct prog_buf){ .kind = BUF_ARG, .size = 16, .alias = -1 };
	p->buf[1] = (struct prog_buf){ .kind = BUF_OUT, .size = 16, .alias = -1 };
	p->opnd = ARENA_NEW(a, struct prog_opnd, 2);
	p->opnd[1].buf = 1;
	p->site = ARENA_NEW(a, struct prog_site, 1);
	p->site[0].text = arena_str(a, "", 0);
	p->custom = ARENA_NEW(a, struct prog_custom, 1);
	p->custom[0] = (struct prog_custom){ .target = arena_str(a, "scale_ffi", 9), .api = 4, .nin = 1, .nout = 1, .ndict = d.n - cut, .effect = queued };
	p->custom[0].dict = arena_copy(a, d.p, d.n);
	p->custom[0].v = ARENA_NEW(a, struct prog_view, 2);
	for (int i = 0; i < 2; i++)
		prog_view_make(a, &p->custom[0].v[i], DT_f32, 2, dim);
	p->block = ARENA_NEW(a, struct prog_block, 1);
	p->block[0].n = 1;
	p->block[0].cmd = ARENA_NEW(a, struct prog_cmd, 1);
	p->block[0].cmd[0] = (struct prog_cmd){ .op = CMD_CUSTOM, .nopnd = 2 };
	str_free(&d);
	e = rt_exec_new(c, p, &dev, &x);
	if (e)
		return e;

	struct rt_shape s = { DT_f32, 2, { 2, 2 } };
	float in[4] = { 1, 2, 3, 4 };
	struct rt_buffer *b, *o;
	struct rt_event *done, *got;
	assert_null(rt_buffer_from_host(rt_client_device(c, 0), 0, &s, in, NULL, &b));
	e = rt_exec_run(x, &b, NULL, 0, 7, &o, &done);
	if (!e) {
		e = rt_event_wait(done);
		got = rt_buffer_to_host(o, 0, 16, out);
		err_free(rt_event_wait(got));
		rt_event_unref(got);
		rt_event_unref(done);
		rt_buffer_unref(o);
	}
	rt_buffer_unref(b);
	rt_exec_unref(x);
	return e;
}

static void ffi(void **state)
{
	struct rt_opts o = { .ndev = 1 };
	struct rt_client *c;
	float r[4] = { 0 };
	void *(*fn)(void *) = handler;
	void *h;

	assert_null(rt_client_new(&o, &c));
	struct err *e = launch(c, "ok", 0, r);
	assert_non_null(e);
	assert_int_equal(e->code, ERR_UNIMPLEMENTED);
	assert_non_null(strstr(e->msg, "scale_ffi"));
	err_free(e);
	memcpy(&h, &fn, sizeof h);
	rt_ffi_register("scale_ffi", h);
	e = launch(c, "ok", 0, r);
	assert_null(e);
	assert_true(r[0] == 3 && r[1] == 6 && r[2] == 15 && r[3] == 20);
	e = launch(c, "no", 0, r);
	assert_non_null(e);
	assert_int_equal(e->code, ERR_INVALID);
	assert_non_null(strstr(e->msg, "not today"));
	err_free(e);
	assert_int_equal(metadata, 1);
	assert_int_equal(executed, 2);
	e = launch(c, "ok", 3, r);                        /* attributes cut short */
	assert_non_null(e);
	assert_int_equal(e->code, ERR_INVALID);
	err_free(e);
	rt_client_free(c);
}

/* --- versions of the ABI --------------------------------------------------------- */

static void *slot(const void *frame, size_t i, void *arg)
{
	void *(*fn)(void *);
	void *f = ptr(ptr(frame, 16), 48 + 8 * i);

	memcpy(&fn, &f, sizeof f);
	return fn(arg);
}

/* What 0.5 has that 0.3 had not: the code of an error, extensions, options of an execution. */
static void *newer(void *frame)
{
	void *ext = ptr(frame, 8);
	struct { size_t size; void *ext, *e; const char *msg; int code; } m = { .code = -7 };
	struct { size_t size; void *ext, *ctx; int64_t type; const void *found; } x = { 40, NULL, NULL, 128, frame };
	struct { size_t size; void *ext, *ctx, *attrs; } o = { 32, NULL, NULL, NULL };

	if (ext) {
		memcpy((char *)ptr(ext, 24) + 8 + 16, version, 8);
		return NULL;
	}
	assert_int_equal(word(frame, 0), 168);
	assert_int_equal(num(ptr(frame, 16), 16 + 16 + 4), 5);
	m.e = refuse(frame, "too cold");
	m.size = 32;                                      /* as 0.3 asks */
	slot(frame, 1, &m);
	assert_string_equal(m.msg, "too cold");
	assert_int_equal(m.code, -7);
	m.size = 36;                                      /* as 0.5 does */
	slot(frame, 1, &m);
	assert_int_equal(m.code, 3);
	assert_null(slot(frame, 18, &x));
	assert_null(x.found);
	assert_null(slot(frame, 19, &o));
	assert_int_equal(word(o.attrs, 0), 48);
	assert_int_equal(word(o.attrs, 16), 0);
	executed++;
	return m.e;
}

static void versions(void **state)
{
	static const struct { int v[2]; const char *says; } try[] = {
		{ { 0, 1 }, "too cold" }, { { 0, 3 }, "too cold" }, { { 0, 5 }, "too cold" },
		{ { 0, 6 }, "speaks version 0.6 of the FFI, newer than 0.5" }, { { 1, 0 }, "speaks version 1.0 of the FFI, newer than 0.5" },
	};
	struct rt_opts o = { .ndev = 1 };
	struct rt_client *c;
	void *(*fn)(void *) = newer;
	float r[4];
	void *h;

	assert_null(rt_client_new(&o, &c));
	memcpy(&h, &fn, sizeof h);
	executed = 0;
	for (size_t i = 0; i < NELEM(try); i++) {
		memcpy(version, try[i].v, sizeof version);
		rt_ffi_register("scale_ffi", h);          /* anew: it is asked again */
		struct err *e = launch(c, "ok", 0, r);
		assert_non_null(e);
		assert_non_null(strstr(e->msg, try[i].says));
		err_free(e);
	}
	assert_int_equal(executed, 3);
	rt_client_free(c);
	memcpy(version, (int[]){ 0, 3 }, sizeof version);
}

/* --- exceptions -------------------------------------------------------------------- */

static int deleted;

static void foreign_gone(_Unwind_Reason_Code why, struct _Unwind_Exception *e)
{
	deleted++;
	free(e);
}

static void foreign(void)
{
	struct _Unwind_Exception *e = aligned_alloc(64, 64);

	memset(e, 0, sizeof *e);
	memcpy(&e->exception_class, "RDNTEST", 8);
	e->exception_cleanup = foreign_gone;
	_Unwind_RaiseException(e);
	fail_msg("nobody catches the exception");
}

static void *cxx;

static void *cxx_find(const char *name)
{
	void *p = dlsym(cxx, name);

	if (!p)
		fail_msg("libstdc++ has no '%s'", name);
	return p;
}

static void throw(const void *object, size_t n, const char *type)
{
	void *(*allocate)(size_t), (*raise)(void *, void *, void (*)(void *)), *p = cxx_find("__cxa_allocate_exception");

	memcpy(&allocate, &p, sizeof p);
	p = cxx_find("__cxa_throw");
	memcpy(&raise, &p, sizeof p);
	p = allocate(n);
	memcpy(p, object, n);
	raise(p, cxx_find(type), NULL);
}

/* throw std::bad_alloc(); throw 42; */
static void bad_alloc(void)
{
	void **vtable = (void **)cxx_find("_ZTVSt9bad_alloc") + 2;

	throw(&vtable, sizeof vtable, "_ZTISt9bad_alloc");
}

static void number(void)
{
	int n = 42;

	throw(&n, sizeof n, "_ZTIi");
}

static void expect(struct rt_client *c, void (*what)(void), const char *text)
{
	float r[4] = { 0 };

	for (int k = 0; k < 4; k++) {
		queued = k & 1;
		instead = what;
		struct err *e = launch(c, "ok", 0, r);
		assert_non_null(e);
		assert_int_equal(e->code, ERR_UNKNOWN);
		assert_string_equal(e->msg, text);
		err_free(e);
		instead = NULL;
		assert_null(launch(c, "ok", 0, r));         /* and the device goes on */
		assert_true(r[3] == 20);
	}
}

static void exceptions(void **state)
{
	struct rt_opts o = { .ndev = 1 };
	struct rt_client *c;
	void *(*fn)(void *) = handler;
	void *h;

	assert_null(rt_client_new(&o, &c));
	memcpy(&h, &fn, sizeof h);
	rt_ffi_register("scale_ffi", h);
	expect(c, foreign, "XLA FFI call failed: an exception that is not one of C++");
	assert_int_equal(deleted, 4);
	cxx = dlopen("libstdc++.so.6", RTLD_NOW);
	if (cxx) {
		expect(c, bad_alloc, "XLA FFI call failed: std::bad_alloc");
		expect(c, number, "XLA FFI call failed: an exception of type 'i'");
	}
	rt_client_free(c);
}

/* A thread that ends itself inside a handler does end: forced unwinding is nobody's to catch. */
static void leave(void)
{
	pthread_exit(&metadata);
}

static void *thread_that_ends(void *client)
{
	float r[4];

	instead = leave;
	queued = false;
	err_free(launch(client, "ok", 0, r));
	return NULL;
}

static void ending(void **state)
{
	struct rt_opts o = { .ndev = 1 };
	static struct rt_client *c;          /* stays: the thread has left it in the midst of a launch */
	pthread_t t;
	void *how;

	assert_null(rt_client_new(&o, &c));
	assert_int_equal(pthread_create(&t, NULL, thread_that_ends, c), 0);
	assert_int_equal(pthread_join(t, &how), 0);
	assert_ptr_equal(how, &metadata);
}

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(ffi), cmocka_unit_test(versions), cmocka_unit_test(exceptions), cmocka_unit_test(ending) };

	return cmocka_run_group_tests(t, NULL, NULL);
}
