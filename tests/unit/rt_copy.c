/* Copies to the host beside launches that donate what is copied, and beside the end of the client; arrays in parts. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { NDEV = 1 };
#include "rt_help.h"

static const int dev0[] = { 0 };

/* -x of n elements, into the argument's storage.  *p, borrowed: the program. */
static struct rt_exec *negate(int64_t n, struct prog **p)
{
	struct rt_exec *x;
	char text[1000];

	snprintf(text, sizeof text,
	         "prog \"negate\" devices 1 registers 1 zone 0 flops 0 fingerprint 01 comm 00\n"
	         "arg 0 f32[%1$lld] bytes %2$lld alias 0\nres 0 f32[%1$lld] bytes %2$lld\nbuf 0 arg 0 size %2$lld\nbuf 1 out 0 size %2$lld alias 0\n"
	         "kern 0 elem (f32[%1$lld]) -> (f32[%1$lld]) expr (f32) { %%1 = negate f32 %%0 -> f32 } (%%1)\nrun {\n kern 0 elem (b0) -> (b1)\n}\n",
	         (long long)n, (long long)n * 4);
	ok(prog_parse(text, strlen(text), p));
	ok(rt_exec_new(cl, *p, dev0, &x));
	return x;
}

/* --- a copy that is stopped in its middle ------------------------------------------------- */

static char *room;                     /* its second half, where something is wanted, cannot be read or written until `let` */
static size_t half;
static _Atomic bool stuck, let;

static void on_fault(int sig)
{
	atomic_store(&stuck, true);
	while (!atomic_load(&let))
		sched_yield();
	mprotect(room + half, half, PROT_READ | PROT_WRITE);
}

struct copying { struct rt_buffer *b; struct err *err; };

static void *copying(void *v)
{
	struct copying *c = v;
	struct rt_event *e = rt_buffer_to_host(c->b, 0, (int64_t)(2 * half), room);

	c->err = rt_event_wait(e);
	rt_event_unref(e);
	return NULL;
}

/* n elements are copied; when half of them are there, a launch that may take the array runs.  What was copied is of one time. */
static void beside_launch(int64_t n)
{
	struct prog *p;
	struct rt_exec *x = negate(n, &p);
	float *v = malloc((size_t)n * 4);
	pthread_t t;

	half = (size_t)n * 2;
	room = mmap(NULL, 2 * half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(room != MAP_FAILED);
	assert_int_equal(mprotect(room + half, half, PROT_NONE), 0);
	for (int64_t i = 0; i < n; i++)
		v[i] = 1;
	atomic_store(&stuck, false);
	atomic_store(&let, false);
	struct copying c = { .b = vec(0, n, v) };
	struct rt_buffer *out;
	struct rt_event *done;
	pthread_create(&t, NULL, copying, &c);
	while (!atomic_load(&stuck))
		sched_yield();
	ok(rt_exec_run(x, &c.b, NULL, 0, 0, &out, &done));
	ok(rt_event_wait(done));
	atomic_store(&let, true);
	pthread_join(t, NULL);
	ok(c.err);
	for (int64_t i = 0; i < n; i++)
		assert_true(((float *)(void *)room)[i] == 1);
	rt_event_unref(done);
	ok(get(out, n, v));
	assert_true(v[0] == -1 && v[n - 1] == -1);
	rt_buffer_unref(out);
	rt_buffer_unref(c.b);
	rt_exec_unref(x);
	munmap(room, 2 * half);
	free(v);
}

static void torn(void **state)
{
	struct sigaction a = { .sa_handler = on_fault }, old;

	sigaction(SIGSEGV, &a, &old);
	beside_launch(1 << 14);               /* done by who asks for it */
	beside_launch(1 << 20);               /* on the side lane */
	sigaction(SIGSEGV, &old, NULL);
}

struct launching { struct rt_exec *x; struct rt_buffer *b, *out; struct rt_event *done; struct err *err; };

static void *launching(void *v)
{
	struct launching *l = v;

	l->err = rt_exec_run(l->x, &l->b, NULL, 0, 0, &l->out, &l->done);
	return NULL;
}

/* A launch on its caller's thread has the device, and is stopped where it looks at the shapes of its arguments.  One that is queued
 * meanwhile, and so runs behind it, reads what the first may take: it finds what was there. */
static void overtaken(void **state)
{
	enum { N = 8 };
	static const char text[] =
		"prog \"same\" devices 1 registers 1 zone 0 flops 0 fingerprint 02 comm 00\n"
		"arg 0 f32[8] bytes 32\nres 0 f32[8] bytes 32\nbuf 0 arg 0 size 32\nbuf 1 out 0 size 32\n"
		"kern 0 copy (f32[8]) -> (f32[8])\nrun {\n kern 0 copy (b0) -> (b1)\n}\n";
	struct sigaction a = { .sa_handler = on_fault }, old;
	float v[N] = { 1, 2, 3, 4, 5, 6, 7, 8 }, r[N];
	struct rt_buffer *same;
	struct rt_event *done;
	struct prog *p;
	pthread_t t;

	half = 1 << 16;
	room = mmap(NULL, 2 * half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(room != MAP_FAILED);
	struct launching l = { .x = negate(N, &p), .b = vec(0, N, v) };
	struct rt_exec *y = load(text, dev0);
	ok(rt_event_wait(rt_buffer_ready(l.b)));
	p->arg = memcpy(room + half, p->arg, sizeof *p->arg * p->narg);
	assert_int_equal(mprotect(room + half, half, PROT_NONE), 0);
	atomic_store(&stuck, false);
	atomic_store(&let, false);
	sigaction(SIGSEGV, &a, &old);
	pthread_create(&t, NULL, launching, &l);
	while (!atomic_load(&stuck))
		sched_yield();
	ok(rt_exec_run(y, &l.b, NULL, 0, 0, &same, &done));
	assert_false(rt_event_ready(done));
	atomic_store(&let, true);
	pthread_join(t, NULL);
	sigaction(SIGSEGV, &old, NULL);
	ok(l.err);
	ok(get(same, N, r));
	assert_memory_equal(r, v, sizeof v);
	ok(get(l.out, N, r));
	for (int i = 0; i < N; i++)
		assert_true(r[i] == -v[i]);
	rt_event_unref(done);
	rt_event_unref(l.done);
	rt_buffer_unref(same);
	rt_buffer_unref(l.out);
	rt_buffer_unref(l.b);
	rt_exec_unref(l.x);
	rt_exec_unref(y);
	munmap(room, 2 * half);
}

/* --- the end of the client ------------------------------------------------------------------ */

static int count;
static struct err *slow(void *user, const struct rt_custom_call *c)
{
	nanosleep(&(struct timespec){ 0, 4000000 }, NULL);
	memcpy(c->out[0], c->in[0], 4 << 20);
	count++;
	return NULL;
}

static long pages(void)
{
	long n = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%ld", &n), 1);
	fclose(f);
	return n;
}

/* A client that is closed while a launch runs and a copy of its result waits: the copy is done, and no thread is left. */
static void closed(void **state)
{
	static const char text[] =
		"prog \"slow\" devices 1 registers 1 zone 0 flops 0 fingerprint 01 comm 00\n"
		"arg 0 f32[1048576] bytes 4194304\nres 0 f32[1048576] bytes 4194304\nbuf 0 arg 0 size 4194304\nbuf 1 out 0 size 4194304\n"
		"custom 0 \"slow\" api 4 (f32[1048576]) -> (f32[1048576])\n"
		"run {\n custom 0 \"slow\" (b0) -> (b1)\n}\n";
	enum { N = 1 << 20, CLIENTS = 24 };
	struct rt_client *mine = cl;
	float *v = malloc(N * 4), *r = malloc(N * 4);
	long before = 0;

	rt_custom_register("slow", slow, NULL);
	for (int i = 0; i < N; i++)
		v[i] = (float)i;
	for (int k = 0; k < CLIENTS; k++) {
		setup(NULL);
		struct rt_exec *x = load(text, dev0);
		struct rt_buffer *a = vec(0, N, v), *out;
		struct rt_event *done, *first, *e;
		ok(rt_exec_run(x, &a, NULL, 0, 0, &out, &done));
		memset(r, 0, N * 4);
		first = rt_buffer_to_host(a, 0, N * 4, r);            /* starts the side lane, which has nothing more to do then */
		e = rt_buffer_to_host(out, 0, N * 4, r);
		rt_exec_unref(x);
		rt_client_free(cl);
		ok(rt_event_wait(first));
		ok(rt_event_wait(e));
		assert_memory_equal(r, v, N * 4);
		ok(rt_event_wait(done));
		rt_event_unref(first);
		rt_event_unref(e);
		rt_event_unref(done);
		rt_buffer_unref(a);
		rt_buffer_unref(out);
		if (k == CLIENTS / 3)
			before = pages();
	}
	assert_int_equal(count, CLIENTS);
	assert_true(pages() - before < 6 * 2048);       /* of 8 MB of stack a thread */
	cl = mine;
	free(v);
	free(r);
}

/* --- arrays in parts ------------------------------------------------------------------------ */

/* An array of these extents, in layout l, cut into n along d and put together: both as indices say. */
static void cut(const int64_t *dim, const struct layout *l, int d, int n)
{
	struct rt_shape s = { DT_f32, 3, { dim[0], dim[1], dim[2] }, l };
	int64_t all = dim[0] * dim[1] * dim[2], part[3] = { dim[0], dim[1], dim[2] };
	float *v = malloc((size_t)all * 4), *r = malloc((size_t)all * 4);
	struct rt_buffer *b, *p[4], *whole;

	part[d] /= n;
	for (int64_t i = 0; i < all; i++)
		v[i] = (float)i;
	ok(rt_buffer_from_host(rt_client_device(cl, 0), 0, &s, v, NULL, &b));
	for (int k = 0; k < n; k++) {
		ok(rt_buffer_part(b, d, k, n, rt_client_device(cl, 0), &p[k]));
		struct rt_event *e = rt_buffer_read(p[k], NULL, r);
		ok(rt_event_wait(e));
		rt_event_unref(e);
		for (int64_t i = 0; i < all / n; i++) {
			int64_t at[3] = { i / part[2] / part[1], i / part[2] % part[1], i % part[2] };
			at[d] += k * part[d];
			assert_true(r[i] == (float)((at[0] * dim[1] + at[1]) * dim[2] + at[2]));
		}
	}
	rt_buffer_unref(b);
	ok(rt_buffer_join(p, d, n, rt_client_device(cl, 0), &whole));
	for (int k = 0; k < n; k++)
		rt_buffer_unref(p[k]);
	assert_memory_equal(rt_buffer_shape(whole)->dim, dim, sizeof s.dim[0] * 3);
	assert_ptr_equal(rt_buffer_shape(whole)->layout, l);
	struct rt_event *e = rt_buffer_read(whole, NULL, r);
	ok(rt_event_wait(e));
	rt_event_unref(e);
	assert_memory_equal(r, v, (size_t)all * 4);
	rt_buffer_unref(whole);
	free(v);
	free(r);
}

static void in_parts(void **state)
{
	const struct layout *turned;
	struct rt_shape s = { DT_f32, 1, { 4 } };

	assert_true(layout_new(3, (int64_t[]){ 1, 0, 2 }, &turned));
	for (int d = 0; d < 3; d++) {
		cut((int64_t[]){ 4, 8, 12 }, NULL, d, 4);
		cut((int64_t[]){ 4, 8, 12 }, turned, d, 2);
	}
	cut((int64_t[]){ 64, 64, 128 }, NULL, 1, 2);                  /* beside who asks */
	cut((int64_t[]){ 2, 0, 3 }, NULL, 0, 2);

	/* An error of a part is the whole's. */
	struct rt_buffer *p[2] = { vec(0, 4, (float[4]){ 0 }), rt_buffer_error(rt_client_device(cl, 0), 0, &s, ERR(INTERNAL, "no second part")) }, *b;
	ok(rt_buffer_join(p, 0, 2, rt_client_device(cl, 0), &b));
	struct err *e = rt_event_wait(rt_buffer_ready(b));
	assert_string_equal(e->msg, "no second part");
	err_free(e);
	rt_buffer_unref(b);
	rt_buffer_unref(p[1]);

	/* Twins are found until who has them is gone. */
	ok(rt_buffer_copy(p[0], rt_client_device(cl, 0), 0, &b));
	assert_null(rt_buffer_twin(p[0], 0));
	assert_true(rt_buffer_twins(p[0], &b, 1));
	assert_false(rt_buffer_twins(p[0], &b, 1));
	struct rt_buffer *t = rt_buffer_twin(p[0], 0);
	assert_ptr_equal(t, b);
	assert_null(rt_buffer_twin(p[0], 1));
	rt_buffer_delete(t);
	assert_null(rt_buffer_twin(p[0], 0));
	rt_buffer_unref(t);
	rt_buffer_delete(p[0]);
	rt_buffer_unref(p[0]);
}

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(torn), cmocka_unit_test(overtaken), cmocka_unit_test(closed), cmocka_unit_test(in_parts) };

	return cmocka_run_group_tests(t, setup, teardown);
}
