/* Programs on one device: buffers, events, donation, loops, errors, inline and queued. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { NDEV = 1, CORES = 3 };
#include "rt_help.h"

static const int dev0[] = { 0 };

#define HEAD "prog \"t\" devices 1 registers 8 zone %d flops 0 fingerprint 01 comm 00\n"

static const char add1[] =
	"prog \"add\" devices 1 registers 1 zone 0 flops 0 fingerprint 01 comm 00\n"
	"arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\n"
	"buf 0 arg 0 size 16\nbuf 1 out 0 size 16\nbuf 2 const at 0 size 4\n"
	"data 4\n 0000803f\n"
	"kern 0 elem (f32[4], f32[4]:[0]) -> (f32[4]) expr (f32, f32) { %2 = add f32 %0 %1 -> f32 } (%2)\n"
	"run {\n kern 0 elem (b0, b2) -> (b1)\n}\n";

static void inline_run(void **state)
{
	struct rt_exec *x = load(add1, dev0);
	float v[4] = { 1, 2, 3, 4 }, r[4];
	struct rt_buffer *a = vec(0, 4, v), *out;
	struct rt_event *done;

	for (int i = 0; i < 100; i++) {
		ok(rt_exec_run(x, &a, NULL, 0, i, &out, &done));
		assert_true(rt_event_ready(done));
		rt_event_unref(done);
		rt_buffer_unref(a);
		a = out;
	}
	ok(get(a, 4, r));
	for (int i = 0; i < 4; i++)
		assert_true(r[i] == v[i] + 100);
	rt_buffer_unref(a);
	rt_exec_unref(x);
}

/* b = a + a, n times over in a loop whose trip count is data: never inline. */
static const char looped[] =
	"prog \"loop\" devices 1 registers 4 zone 16 flops 0 fingerprint 01 comm 00\n"
	"arg 0 f32[4] bytes 16\narg 1 i32[] bytes 4\nres 0 f32[4] bytes 16\nres 1 f32[8,4] bytes 128\n"
	"buf 0 arg 0 size 16\nbuf 1 arg 1 size 4\nbuf 2 out 0 size 16\nbuf 3 temp at 0 size 16\nbuf 4 out 1 size 128\n"
	"kern 0 copy (f32[4]) -> (f32[4])\n"
	"kern 1 elem (f32[4], f32[4]) -> (f32[4]) expr (f32, f32) { %2 = add f32 %0 %1 -> f32 } (%2)\n"
	"run {\n kern 0 copy (b0) -> (b3)\n ld r1 = i32 b1\n"
	" loop r2 < r1 {\n kern 1 elem (b3, b3) -> (b3)\n kern 0 copy (b3) -> (b4+r2*16)\n }\n"
	" kern 0 copy (b3) -> (b2)\n}\n";

static void queued(void **state)
{
	struct rt_exec *x = load(looped, dev0);
	float v[4] = { 1, 2, 3, 4 }, r[32];
	int32_t eight = 8;
	struct rt_shape s = { DT_i32, 0, { 0 } };
	struct rt_buffer *arg[2] = { vec(0, 4, v) }, *out[2];
	struct rt_event *done;

	ok(rt_buffer_from_host(rt_client_device(cl, 0), 0, &s, &eight, NULL, &arg[1]));
	for (int i = 0; i < 40; i++) {          /* more than the queue holds */
		ok(rt_exec_run(x, arg, NULL, 0, i, out, &done));
		if (i < 39) {
			rt_buffer_unref(out[0]);
			rt_buffer_unref(out[1]);
			rt_event_unref(done);
		}
	}
	ok(rt_event_wait(done));
	rt_event_unref(done);
	ok(get(out[0], 4, r));
	for (int i = 0; i < 4; i++)
		assert_true(r[i] == v[i] * 256);
	ok(get(out[1], 32, r));
	for (int i = 0; i < 32; i++)
		assert_true(r[i] == v[i % 4] * (float)(2 << i / 4));
	rt_buffer_unref(out[0]);
	rt_buffer_unref(out[1]);
	rt_buffer_unref(arg[0]);
	rt_buffer_unref(arg[1]);
	rt_exec_unref(x);
}

static const char donate[] =
	"prog \"donate\" devices 1 registers 1 zone 0 flops 0 fingerprint 01 comm 00\n"
	"arg 0 f32[4] bytes 16 alias 0\narg 1 f32[4] bytes 16\nres 0 f32[4] bytes 16\n"
	"buf 0 arg 0 size 16\nbuf 1 arg 1 size 16\nbuf 2 out 0 size 16 alias 0\n"
	"kern 0 elem (f32[4], f32[4]) -> (f32[4]) expr (f32, f32) { %2 = add f32 %0 %1 -> f32 } (%2)\n"
	"run {\n kern 0 elem (b2, b1) -> (b2)\n}\n";

static void donation(void **state)
{
	struct rt_exec *x = load(donate, dev0);
	float v[4] = { 1, 2, 3, 4 }, r[4];
	struct rt_buffer *arg[2] = { vec(0, 4, v), vec(0, 4, v) }, *out;
	struct rt_event *done;
	int64_t keep[] = { 0 };

	uint64_t addr = rt_buffer_addr(arg[0]);
	ok(rt_exec_run(x, arg, NULL, 0, 0, &out, &done));
	assert_true(rt_buffer_deleted(arg[0]));
	assert_int_equal(rt_buffer_addr(out), addr);
	ok(get(out, 4, r));
	assert_true(r[3] == 8);
	/* Deleted arguments are refused. */
	struct rt_buffer *o2;
	struct err *e = rt_exec_run(x, arg, NULL, 0, 0, &o2, &done);
	assert_non_null(e);
	assert_non_null(strstr(e->msg, "deleted"));
	err_free(e);
	/* Held, kept and given twice: copied, and still there. */
	rt_buffer_unref(arg[0]);
	arg[0] = out;
	rt_buffer_hold(arg[0]);
	ok(rt_exec_run(x, arg, NULL, 0, 0, &o2, &done));
	assert_false(rt_buffer_deleted(arg[0]));
	ok(get(o2, 4, r));
	assert_true(r[3] == 12);
	rt_buffer_unref(o2);
	rt_buffer_release(arg[0]);
	ok(rt_exec_run(x, arg, keep, 1, 0, &o2, &done));
	assert_false(rt_buffer_deleted(arg[0]));
	rt_buffer_unref(o2);
	struct rt_buffer *same[2] = { arg[0], arg[0] };
	ok(rt_exec_run(x, same, NULL, 0, 0, &o2, &done));
	assert_false(rt_buffer_deleted(arg[0]));
	ok(get(o2, 4, r));
	assert_true(r[3] == 16);
	ok(get(arg[0], 4, r));
	assert_true(r[3] == 8);
	rt_buffer_unref(o2);
	ok(rt_exec_run(x, arg, NULL, 0, 0, &o2, &done));
	assert_true(rt_buffer_deleted(arg[0]));
	rt_buffer_unref(o2);
	rt_buffer_unref(arg[0]);
	rt_buffer_unref(arg[1]);
	rt_exec_unref(x);
}

static void strides(void **state)
{
	float v[6] = { 0, 1, 2, 3, 4, 5 }, r[6];
	struct rt_shape s = { DT_f32, 2, { 3, 2 } };
	int64_t transposed[] = { 4, 12 }, reversed[] = { -8, 4 }, splat[] = { 0, 0 };
	struct rt_buffer *b;

	ok(rt_buffer_from_host(rt_client_device(cl, 0), 0, &s, v, transposed, &b));
	ok(get(b, 6, r));
	assert_true(r[0] == 0 && r[1] == 3 && r[2] == 1 && r[5] == 5);
	rt_buffer_unref(b);
	ok(rt_buffer_from_host(rt_client_device(cl, 0), 1, &s, v + 4, reversed, &b));
	ok(get(b, 6, r));
	assert_true(r[0] == 4 && r[1] == 5 && r[5] == 1);
	assert_non_null(rt_buffer_host_ptr(b));
	rt_buffer_unref(b);
	ok(rt_buffer_from_host(rt_client_device(cl, 0), 0, &s, v + 5, splat, &b));
	ok(get(b, 6, r));
	assert_true(r[0] == 5 && r[5] == 5);
	struct rt_buffer *c;
	ok(rt_buffer_copy(b, rt_client_device(cl, 0), 2, &c));
	rt_buffer_delete(b);
	assert_true(rt_buffer_deleted(b));
	ok(get(c, 6, r));
	assert_true(r[3] == 5);
	rt_buffer_unref(b);
	rt_buffer_unref(c);
	s.dim[0] = 0;
	ok(rt_buffer_from_host(rt_client_device(cl, 0), 0, &s, NULL, NULL, &b));
	struct rt_event *e = rt_buffer_to_host(b, 0, 0, r);
	ok(rt_event_wait(e));
	rt_event_unref(e);
	rt_buffer_unref(b);
}

static void count(struct err *e, void *user)
{
	err_free(e);
	atomic_fetch_add((_Atomic int *)user, e ? 100 : 1);
}

static void errors(void **state)
{
	struct rt_exec *x = load(add1, dev0);
	struct rt_shape s = { DT_f32, 1, { 4 } };
	_Atomic int n = 0;
	struct rt_buffer *bad = rt_buffer_error(rt_client_device(cl, 0), 0, &s, ERR(DATA_LOSS, "lost")), *out;
	struct rt_event *done;

	ok(rt_exec_run(x, &bad, NULL, 0, 0, &out, &done));
	rt_event_on_ready(done, count, &n);
	struct err *e = rt_event_wait(rt_buffer_ready(out));
	assert_non_null(e);
	assert_int_equal(e->code, ERR_DATA_LOSS);
	err_free(e);
	while (!n)
		usleep(100);
	assert_int_equal(n, 100);
	rt_event_unref(done);
	/* The error goes on to what depends on it. */
	struct rt_buffer *out2;
	ok(rt_exec_run(x, &out, NULL, 0, 0, &out2, &done));
	e = rt_event_wait(done);
	assert_non_null(e);
	err_free(e);
	rt_event_unref(done);
	rt_buffer_unref(bad);
	rt_buffer_unref(out);
	rt_buffer_unref(out2);
	/* Too much memory. */
	struct rt_shape big = { DT_f32, 2, { 1 << 20, 1 << 20 } };
	e = rt_buffer_uninit(rt_client_device(cl, 0), 0, &big, &out);
	assert_non_null(e);
	assert_int_equal(e->code, ERR_EXHAUSTED);
	assert_non_null(strstr(e->msg, "4.4 TB"));
	err_free(e);
	rt_exec_unref(x);
}

static struct err *handler(void *user, const struct rt_custom_call *c)
{
	if (user)
		return ERR(ABORTED, "refused");
	const float *a = c->in[0];
	float *r = c->out[0];
	for (int i = 0; i < 4; i++)
		r[i] = -a[i];
	return NULL;
}

static const char custom[] =
	"prog \"custom\" devices 1 registers 1 zone 0 flops 0 fingerprint 01 comm 00\n"
	"site 0 \"\"\nsite 1 \"train.py:7 call\"\n"
	"arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\n"
	"buf 0 arg 0 size 16\nbuf 1 out 0 size 16\n"
	"custom 0 \"negate\" api 4 (f32[4]) -> (f32[4])\n"
	"run {\n custom 0 \"negate\" (b0) -> (b1) site 1\n}\n";

static void customs(void **state)
{
	struct rt_exec *x = load(custom, dev0);
	float v[4] = { 1, 2, 3, 4 }, r[4];
	struct rt_buffer *a = vec(0, 4, v), *out;
	struct rt_event *done;

	rt_custom_register("negate", handler, NULL);
	assert_true(rt_custom_known("negate"));
	ok(rt_exec_run(x, &a, NULL, 0, 0, &out, &done));
	ok(get(out, 4, r));
	assert_true(r[2] == -3);
	rt_buffer_unref(out);
	rt_event_unref(done);
	rt_custom_register("negate", handler, "no");
	ok(rt_exec_run(x, &a, NULL, 0, 0, &out, &done));
	struct err *e = rt_event_wait(done);
	assert_non_null(e);
	assert_string_equal(e->msg, "train.py:7 call: refused");
	err_free(e);
	rt_buffer_unref(out);
	rt_event_unref(done);
	rt_buffer_unref(a);
	rt_exec_unref(x);
}

/* What a launch whose error reaches nobody leaves in the log: how many lines. */
static int logged(void (*body)(struct rt_exec *x, struct rt_buffer *a), struct rt_exec *x, struct rt_buffer *a)
{
	char text[4096];
	int old = dup(2), fd = memfd_create("log", 0), n = 0;

	dup2(fd, 2);
	body(x, a);
	dup2(old, 2);
	ssize_t got = pread(fd, text, sizeof text - 1, 0);
	text[MAX(got, 0)] = 0;
	for (char *p = text; (p = strstr(p, "nobody has read its results: train.py:7 call: refused\n")); p++)
		n++;
	close(old);
	close(fd);
	return n;
}

static void drop(struct rt_buffer *b, struct rt_event *done)
{
	_Atomic int n = 0;

	rt_event_on_ready(done, count, &n);     /* as jaxlib does, and keeps what it hears to itself */
	rt_event_unref(done);
	rt_buffer_unref(b);
	while (!n)
		usleep(100);
	usleep(1000);
}

static void unread(struct rt_exec *x, struct rt_buffer *a)
{
	struct rt_buffer *b, *c;
	struct rt_event *db, *dc;

	ok(rt_exec_run(x, &a, NULL, 0, 0, &b, &db));
	ok(rt_exec_run(x, &b, NULL, 0, 0, &c, &dc));
	drop(b, db);
	drop(c, dc);
}

static void read_last(struct rt_exec *x, struct rt_buffer *a)
{
	struct rt_buffer *b, *c;
	struct rt_event *db, *dc;
	float v[4];

	ok(rt_exec_run(x, &a, NULL, 0, 0, &b, &db));
	ok(rt_exec_run(x, &b, NULL, 0, 0, &c, &dc));
	drop(b, db);
	struct rt_event *read = rt_buffer_to_host(c, 0, 16, v);
	while (!rt_event_ready(read))
		usleep(100);
	rt_event_unref(read);
	drop(c, dc);
}

static void unheard(void **state)
{
	struct rt_exec *x = load(custom, dev0);
	float v[4] = { 1, 2, 3, 4 };
	struct rt_buffer *a = vec(0, 4, v);

	rt_custom_register("negate", handler, "no");
	assert_int_equal(logged(read_last, x, a), 0);
	assert_int_equal(logged(unread, x, a), 1);
	assert_int_equal(logged(unread, x, a), 0);       /* soon after */
	rt_buffer_unref(a);
	rt_exec_unref(x);
}

struct thread { pthread_t t; struct rt_exec *x; int seed; };

static void *hammer(void *v)
{
	struct thread *t = v;
	float one[4] = { 1, 1, 1, 1 }, r[4];

	for (int i = 0; i < 200; i++) {
		struct rt_buffer *a = vec(0, 4, one), *out;
		struct rt_event *done;
		for (int k = 0; k < 3; k++) {
			ok(rt_exec_run(t->x, &a, NULL, 0, i, &out, &done));
			rt_event_unref(done);
			rt_buffer_unref(a);
			a = out;
		}
		ok(get(a, 4, r));
		assert_true(r[0] == 4);
		rt_buffer_unref(a);
	}
	return NULL;
}

static void threads(void **state)
{
	struct thread t[4];
	struct rt_exec *x = load(add1, dev0);
	float one[4] = { 1, 1, 1, 1 };

	once(x, 4, one);
	int64_t zone = rt_device_stats(rt_client_device(cl, 0)).in_use;      /* which stays */
	for (int i = 0; i < 4; i++) {
		t[i] = (struct thread){ .x = x, .seed = i };
		pthread_create(&t[i].t, NULL, hammer, &t[i]);
	}
	for (int i = 0; i < 4; i++)
		pthread_join(t[i].t, NULL);
	rt_exec_unref(x);
	assert_true(rt_device_stats(rt_client_device(cl, 0)).in_use <= zone);
}

/* Large kernels are cut into tiles that workers take: same bits as one thread. */
static const char large[] =
	"prog \"large\" devices 1 registers 2 zone 4194304 flops 0 fingerprint 01 comm 00\n"
	"arg 0 f32[1024,1024] bytes 4194304\nres 0 f32[1024,1024] bytes 4194304\nres 1 f32[1024] bytes 4096\n"
	"buf 0 arg 0 size 4194304\nbuf 1 out 0 size 4194304\nbuf 2 temp at 0 size 4194304\nbuf 3 out 1 size 4096\nbuf 4 const at 0 size 4\n"
	"data 4\n 00000000\n"
	"kern 0 elem (f32[1024,1024], f32[1024,1024]) -> (f32[1024,1024]) expr (f32, f32) { %2 = multiply f32 %0 %1 -> f32 } (%2)\n"
	"kern 1 dot (f32[1024,1024], f32[1024,1024]) -> (f32[1024,1024]) attr [0,1,1,0,0,11,11,11,1] flops 2147483648\n"
	"kern 2 reduce (f32[1024,1024], f32[]) -> (f32[1024]) attr [1,0,0]\n"
	"run {\n loop r1 < 3 {\n kern 0 elem (b0, b0) -> (b2)\n }\n kern 1 dot (b2, b0) -> (b1)\n kern 2 reduce (b1, b4) -> (b3)\n}\n";

enum { LARGE = 1024 };

/* Column 7 of the sum over rows of (v*v) v, several times on a device of a client of ndev: the same bits. */
static void run_large(int ndev, const float *v, float *first)
{
	struct rt_client *mine = cl;
	struct rt_shape s = { DT_f32, 2, { LARGE, LARGE } };
	struct rt_buffer *a, *out[2];
	struct rt_event *done;
	float *r = malloc(LARGE * 4);

	ok(rt_client_new(&(struct rt_opts){ .ndev = ndev }, &cl));
	struct rt_exec *x = load(large, dev0);
	ok(rt_buffer_from_host(rt_client_device(cl, 0), 0, &s, v, NULL, &a));
	for (int i = 0; i < 3; i++) {
		ok(rt_exec_run(x, &a, NULL, 0, 0, out, &done));
		ok(rt_event_wait(done));
		ok(get(out[1], LARGE, i ? r : first));
		if (i)
			assert_memory_equal(r, first, LARGE * 4);
		rt_event_unref(done);
		rt_buffer_unref(out[0]);
		rt_buffer_unref(out[1]);
	}
	rt_buffer_unref(a);
	rt_exec_unref(x);
	rt_client_free(cl);
	cl = mine;
	free(r);
}

static void workers(void **state)
{
	float *v = malloc(LARGE * LARGE * 4), *many = malloc(LARGE * 4), *one = malloc(LARGE * 4);

	assert_int_equal(cpu_get()->cores, CORES);
	for (int i = 0; i < LARGE * LARGE; i++)
		v[i] = (float)(i * 37 % 1001) / 1001;
	run_large(1, v, many);                    /* its cores but one are workers */
	run_large(CORES, v, one);                 /* each device is one thread */
	assert_memory_equal(many, one, LARGE * 4);
	double want = 0;
	for (int k = 0; k < LARGE; k++) {
		double col = 0;
		for (int i = 0; i < LARGE; i++)
			col += (double)v[i * LARGE + k] * v[i * LARGE + k];
		want += col * v[k * LARGE + 7];
	}
	assert_true(many[7] > want * 0.999 && many[7] < want * 1.001);
	free(v);
	free(many);
	free(one);
}

static void forked(void **state)
{
	struct rt_exec *x = load(add1, dev0);
	float v[4] = { 1, 2, 3, 4 };
	struct rt_buffer *a = vec(0, 4, v), *out;
	struct rt_event *done;

	int pid = fork();
	if (!pid) {
		struct err *e = rt_exec_run(x, &a, NULL, 0, 0, &out, &done);
		int code = e && e->code == ERR_PRECONDITION ? 0 : 1;
		rt_buffer_unref(a);
		rt_exec_unref(x);
		rt_client_free(cl);
		_exit(code);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	ok(rt_exec_run(x, &a, NULL, 0, 0, &out, &done));
	rt_buffer_unref(a);
	rt_buffer_unref(out);
	rt_exec_unref(x);
}

int main(void)
{
	ok(conf_set("CORES", "3"));              /* before the machine is looked at */
	const struct CMUnitTest t[] = {
		cmocka_unit_test(inline_run), cmocka_unit_test(queued), cmocka_unit_test(donation), cmocka_unit_test(strides),
		cmocka_unit_test(errors), cmocka_unit_test(customs), cmocka_unit_test(unheard), cmocka_unit_test(threads), cmocka_unit_test(workers), cmocka_unit_test(forked),
	};

	return cmocka_run_group_tests(t, setup, teardown);
}
