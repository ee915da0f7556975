/* The recording of what devices run: windows, threads, steps, bounds, programs and clients that go. */
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { NDEV = 2, ROOM = 1 << 20 };
#include "rt_help.h"
#include "draws.h"

static const int dev0[] = { 0 }, dev1[] = { 1 }, both[] = { 0, 1 };

/* n times a sum, a copy behind it; one reads the line of the other. */
static const char looped[] =
	"prog \"loop\" devices 1 registers 4 zone 16 flops 0 fingerprint 01 comm 00\n"
	"arg 0 f32[4] bytes 16\narg 1 i32[] bytes 4\nres 0 f32[4] bytes 16\n"
	"buf 0 arg 0 size 16\nbuf 1 arg 1 size 4\nbuf 2 out 0 size 16\nbuf 3 temp at 0 size 16\n"
	"kern 0 copy (f32[4]) -> (f32[4])\n"
	"kern 1 elem (f32[4], f32[4]) -> (f32[4]) flops 4 expr (f32, f32) { %2 = add f32 %0 %1 -> f32 } (%2)\n"
	"site 0 \"\"\nsite 1 \"train.py:7 add\" in \"jit(loop)/body/add\"\n"
	"run {\n kern 0 copy (b0) -> (b3)\n ld r1 = i32 b1\n"
	" loop r2 < r1 {\n kern 1 elem (b3, b3) -> (b3) site 1\n }\n"
	" kern 0 copy (b3) -> (b2)\n}\n";

static const char summed[] =
	"prog \"sum\" devices 2 registers 1 zone 0 flops 0 fingerprint 02 comm 00\n"
	"arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\nbuf 0 arg 0 size 16\nbuf 1 out 0 size 16\n"
	"group 0 1 2 [0,1]\ncoll 0 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 16\n"
	"run {\n coll 0 all_reduce (b0) -> (b1)\n}\n";

static struct rt_buffer *count(int d, int32_t n)
{
	struct rt_shape s = { DT_i32, 0, { 0 } };
	struct rt_buffer *b;

	ok(rt_buffer_from_host(rt_client_device(cl, d), 0, &s, &n, NULL, &b));
	return b;
}

static void launch(struct rt_exec *x, int d, int32_t n)
{
	static const float v[4] = { 0 };
	struct rt_buffer *a[2] = { vec(d, 4, v), count(d, n) }, *out;
	struct rt_event *done;

	ok(rt_exec_run(x, a, NULL, 0, 0, &out, &done));
	ok(rt_event_wait(done));
	rt_event_unref(done);
	rt_buffer_unref(out);
	rt_buffer_unref(a[0]);
	rt_buffer_unref(a[1]);
}

static struct rt_trace *begun(void)
{
	struct rt_trace *t;

	ok(rt_trace_new(&t));
	ok(rt_trace_start(t));
	return t;
}

static size_t events(const struct rt_trace_read *r, int d)
{
	for (size_t i = 0; i < r->ndev; i++)
		if (r->dev[i].id == d)
			return r->dev[i].n;
	return 0;
}

/* In order, in the window, each in a launch. */
static void sound(const struct rt_trace_read *r)
{
	for (size_t i = 0; i < r->ndev; i++) {
		const struct rt_trace_event *launched = NULL;
		for (size_t k = 0; k < r->dev[i].n; k++) {
			const struct rt_trace_event *e = &r->dev[i].ev[k];
			assert_true(e->t0 >= r->t0 && e->t1 <= r->t1 && e->t0 <= e->t1);
			assert_true(!k || e->t0 >= e[-1].t0);
			if (e->lane == RT_LANE_LAUNCH)
				launched = e;
			else
				assert_true(launched && e->t1 <= launched->t1 && e->op->prog == launched->op->prog);
		}
	}
}

static void windows(void **state)
{
	struct rt_exec *x = load(looped, dev0);
	struct rt_trace_read r;

	launch(x, 0, 3);
	struct rt_trace *a = begun();
	launch(x, 0, 3);
	struct rt_trace *b = begun();
	launch(x, 0, 5);
	ok(rt_trace_stop(a));
	launch(x, 0, 1);
	ok(rt_trace_stop(b));
	launch(x, 0, 9);
	rt_trace_read(a, &r);
	assert_int_equal(events(&r, 0), 1 + 5 + 1 + 7);
	assert_int_equal(events(&r, 1), 0);
	assert_int_equal(r.dev[0].lost + r.dev[1].lost, 0);
	sound(&r);
	const struct rt_trace_event *e = r.dev[0].ev;
	assert_true(e[0].lane == RT_LANE_LAUNCH && e[0].begins && e[0].step == 2 && e[6].begins && e[6].step == 3 && e[13].step == 3);
	assert_string_equal(e[0].op->name, "loop");
	assert_string_equal(e[2].op->name, "elem");
	assert_string_equal(e[2].op->site, "train.py:7 add");
	assert_string_equal(e[2].op->scope, "jit(loop)/body/add");
	assert_true(e[2].op == e[3].op && e[2].op->flops == 4 && e[2].op->bytes == 48 && e[2].op->limit_ns > 0 && !e[2].op->peer);
	assert_string_equal(e[1].op->site, "");
	rt_trace_read_free(&r);
	rt_trace_free(a);
	rt_exec_unref(x);                 /* what it said of itself stays as long as anybody wants it */
	rt_trace_read(b, &r);
	assert_int_equal(events(&r, 0), 1 + 7 + 1 + 3);
	assert_string_equal(r.dev[0].ev[2].op->site, "train.py:7 add");
	rt_trace_read_free(&r);
	rt_trace_free(b);
	a = begun();
	rt_trace_read(a, &r);             /* so far */
	assert_int_equal(events(&r, 0), 0);
	rt_trace_read_free(&r);
	rt_trace_free(a);
	rt_trace_free(NULL);
}

static void peers(void **state)
{
	struct rt_exec *x = load(summed, both);
	static const float v[4] = { 1, 2, 3, 4 };
	struct rt_buffer *a[2] = { vec(0, 4, v), vec(1, 4, v) }, *out[2];
	struct rt_event *done[2];
	struct rt_trace_read r;

	struct rt_trace *t = begun();
	ok(rt_exec_run(x, a, NULL, 0, 0, out, done));
	for (int d = 0; d < 2; d++) {
		float sum[4];
		ok(rt_event_wait(done[d]));
		ok(get(out[d], 4, sum));
		assert_true(sum[3] == 8);
		rt_event_unref(done[d]);
		rt_buffer_unref(out[d]);
		rt_buffer_unref(a[d]);
	}
	ok(rt_trace_stop(t));
	rt_trace_read(t, &r);
	for (int d = 0; d < 2; d++) {
		assert_int_equal(events(&r, d), 2);
		const struct rt_trace_event *e = &r.dev[d].ev[1];
		assert_int_equal(e->lane, RT_LANE_COMM);
		assert_string_equal(e->op->sort, "all-reduce");
		assert_string_equal(e->op->peer[e->local], "0,1");
		assert_int_equal(e->op->bytes, 16);       /* 2 (n - 1) / n of them */
	}
	rt_trace_read_free(&r);
	rt_trace_free(t);
	rt_exec_unref(x);
}

static void bound(void **state)
{
	struct rt_exec *x = load(looped, dev0);
	struct rt_trace_read r;
	struct rt_trace *t = begun();

	launch(x, 0, ROOM + 100);
	ok(rt_trace_stop(t));
	rt_trace_read(t, &r);
	assert_int_equal(events(&r, 0), ROOM);
	assert_int_equal(r.dev[0].lost, 100 + 3);
	assert_int_equal(r.dev[1].lost, 0);
	assert_true(r.dev[0].ev[0].lane == RT_LANE_LAUNCH);       /* what is there belongs to something */
	rt_trace_read_free(&r);
	rt_trace_free(t);
	t = begun();                      /* there is room again */
	launch(x, 0, 3);
	rt_trace_read(t, &r);
	assert_true(events(&r, 0) == 6 && !r.dev[0].lost);
	rt_trace_read_free(&r);
	rt_trace_free(t);
	rt_exec_unref(x);
}

/* A window that is full takes no room from another one, and keeps nothing of programs that come and go. */
static void full(void **state)
{
	enum { MANY = 300 };
	struct rt_exec *x = load(looped, dev0);
	struct rt_trace_read r;
	struct rt_trace *t = begun();

	launch(x, 0, ROOM);
	struct rt_trace *b = begun();
	launch(x, 0, 3);
	ok(rt_trace_stop(b));
	rt_trace_read(b, &r);
	assert_true(events(&r, 0) == 6 && !r.dev[0].lost);
	rt_trace_read_free(&r);
	rt_trace_free(b);
	size_t held = 0;
	for (int i = 0; i < MANY; i++) {
		struct rt_exec *y = load(looped, dev0);
		launch(y, 0, 1);
		rt_exec_unref(y);
		held = i == MANY / 10 ? mallinfo2().uordblks : held;       /* what is kept from launch to launch is there */
	}
	assert_true(mallinfo2().uordblks <= held + 64 * MANY);
	rt_trace_read(t, &r);
	assert_int_equal(events(&r, 0), ROOM);
	rt_trace_read_free(&r);
	rt_trace_free(t);
	rt_exec_unref(x);
}

/* --- launches that are under way ------------------------------------------------ */

static const char called[] =
	"prog \"call\" devices 1 registers 1 zone 16 flops 0 fingerprint 03 comm 00\n"
	"arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\nbuf 0 arg 0 size 16\nbuf 1 out 0 size 16\nbuf 2 temp at 0 size 16\n"
	"kern 0 copy (f32[4]) -> (f32[4])\ncustom 0 \"meanwhile\" api 4 (f32[4]) -> (f32[4])\n"
	"run {\n kern 0 copy (b0) -> (b2)\n custom 0 \"meanwhile\" (b2) -> (b1)\n kern 0 copy (b1) -> (b2)\n}\n";

static struct { struct rt_trace *stops, *starts; } within;

static struct err *meanwhile(void *user, const struct rt_custom_call *c)
{
	ok(rt_trace_stop(within.stops));
	ok(rt_trace_start(within.starts));
	return NULL;
}

/* A launch is in a window as a whole, or not at all. */
static void under_way(void **state)
{
	static const float v[4] = { 0 };
	struct rt_trace_read r;

	rt_custom_register("meanwhile", meanwhile, NULL);
	struct rt_exec *x = load(looped, dev0), *y = load(called, dev0);
	struct rt_trace *around = begun();
	within.stops = begun();
	ok(rt_trace_new(&within.starts));
	launch(x, 0, 3);
	once(y, 4, v);
	launch(x, 0, 4);
	ok(rt_trace_stop(within.starts));
	struct { struct rt_trace *t; size_t n; } of[3] = { { around, 6 + 4 + 7 }, { within.stops, 6 }, { within.starts, 7 } };
	for (int i = 0; i < 3; i++) {
		rt_trace_read(of[i].t, &r);
		sound(&r);
		assert_int_equal(events(&r, 0), of[i].n);
		rt_trace_read_free(&r);
		rt_trace_free(of[i].t);
	}
	rt_exec_unref(x);
	rt_exec_unref(y);
}

static _Atomic bool over;

static void *runs(void *v)
{
	const int *dev = v;

	while (!atomic_load(&over)) {
		struct rt_exec *x = load(looped, dev);    /* programs come and go */
		for (int i = 0; i < 5; i++)
			launch(x, dev[0], 1 + i);
		rt_exec_unref(x);
	}
	return NULL;
}

static void *looks(void *v)
{
	size_t *seen = v;

	for (int i = 0; i < draws(200); i++) {
		struct rt_trace_read r;
		struct rt_trace *t = begun();
		for (int k = 0; k < 3; k++) {
			usleep(300);
			rt_trace_read(t, &r);
			sound(&r);
			rt_trace_read_free(&r);
		}
		if (i % 2)
			ok(rt_trace_stop(t));
		rt_trace_read(t, &r);
		sound(&r);
		for (size_t d = 0; d < r.ndev; d++)
			for (size_t k = 0; k < r.dev[d].n; k++)
				*seen += strlen(r.dev[d].ev[k].op->name);
		rt_trace_read_free(&r);
		rt_trace_free(t);
	}
	return NULL;
}

static void threads(void **state)
{
	pthread_t run[4], look[2];
	size_t seen[2] = { 0 };

	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&run[i], NULL, runs, (void *)(uintptr_t)(i % 2 ? dev1 : dev0)), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&look[i], NULL, looks, &seen[i]), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(look[i], NULL);
	atomic_store(&over, true);
	for (int i = 0; i < 4; i++)
		pthread_join(run[i], NULL);
	assert_true(seen[0] + seen[1] > 0);
}

static void *records(void *v)
{
	const int *dev = v;
	struct rt_exec *x = load(looped, dev);

	while (!atomic_load(&over))
		launch(x, dev[0], 10000);
	rt_exec_unref(x);
	return NULL;
}

/* A child that is forked while devices record can look, and end. */
static void forks(void **state)
{
	pthread_t run[2];
	struct rt_trace *t = begun();

	atomic_store(&over, false);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&run[i], NULL, records, (void *)(uintptr_t)(i ? dev1 : dev0)), 0);
	for (int i = 0; i < draws(100); i++) {
		int st;
		usleep(500);
		pid_t pid = fork();
		if (!pid) {
			alarm(20);
			ok(conf_set("LOG", "0"));         /* what is lost was said */
			ok(rt_trace_stop(t));
			rt_trace_free(t);
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &st, 0), pid);
		assert_int_equal(st, 0);
	}
	atomic_store(&over, true);
	for (int i = 0; i < 2; i++)
		pthread_join(run[i], NULL);
	rt_trace_free(t);
}

/* What its devices ran is there when a client is not. */
static void clients(void **state)
{
	struct rt_trace_read r;
	struct rt_trace *t = begun();

	for (int k = 0; k < 2; k++) {
		struct rt_exec *x = load(looped, dev1);
		launch(x, 1, 2);
		rt_exec_unref(x);
		rt_client_free(cl);
		setup(NULL);
	}
	ok(rt_trace_stop(t));
	rt_trace_read(t, &r);
	sound(&r);
	assert_int_equal(events(&r, 1), 2 * (1 + 4));
	rt_trace_read_free(&r);
	rt_trace_free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(windows), cmocka_unit_test(peers), cmocka_unit_test(bound), cmocka_unit_test(full), cmocka_unit_test(under_way),
		cmocka_unit_test(threads), cmocka_unit_test(forks), cmocka_unit_test(clients),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
