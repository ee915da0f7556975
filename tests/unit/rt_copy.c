/* Copies to the host beside launches that donate what is copied, and beside the end of the client. */
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

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(torn), cmocka_unit_test(overtaken), cmocka_unit_test(closed) };

	return cmocka_run_group_tests(t, setup, teardown);
}
