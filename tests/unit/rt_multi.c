/* Programs on several devices: collectives in loops, overlapping device sets from several threads, one device
 * failing, devices that go different ways, waits that cost nothing. */
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

enum { NDEV = 4 };
#include "rt_help.h"

/* How often this thread has woken others. */
static _Thread_local int wakes;

long syscall(long n, ...)
{
	static long (*_Atomic next)(long, ...);
	va_list ap;
	long a[6];

	if (!next)
		next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	va_start(ap, n);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(ap, long);
	va_end(ap);
	int op = (int)a[1] & FUTEX_CMD_MASK;
	wakes += n == SYS_futex && (op == FUTEX_WAKE || op == FUTEX_WAKE_BITSET);
	return next(n, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* Four times v on device d. */
static struct rt_buffer *four(int d, float v)
{
	return vec(d, 4, (float[]){ v, v, v, v });
}

/* The first of four. */
static struct err *one_of(struct rt_buffer *b, float *v)
{
	float r[4];
	struct err *e = get(b, 4, r);

	*v = r[0];
	return e;
}

/* n times: sum over all, then pass to the neighbour. */
static char *ring_text(int n, int turns)
{
	struct str s = { 0 };

	str_addf(&s, "prog \"ring\" devices %d registers 4 zone 64 flops 0 fingerprint 01 comm 00\n"
	             "site 0 \"\"\nsite 1 \"train.py:3 psum\"\n"
	             "arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\nbuf 0 arg 0 size 16\nbuf 1 out 0 size 16\nbuf 2 temp at 0 size 16\n", n);
	str_add(&s, "table 0 [");
	for (int i = 0; i < n; i++)
		str_addf(&s, "%s%d", i ? "," : "", (i + n - 1) % n);
	str_add(&s, "]\ntable 1 [");
	for (int i = 0; i < n; i++)
		str_addf(&s, "%s%d", i ? "," : "", (i + 1) % n);
	str_addf(&s, "]\ngroup 0 1 %d [", n);
	for (int i = 0; i < n; i++)
		str_addf(&s, "%s%d", i ? "," : "", i);
	str_addf(&s, "]\nkern 0 copy (f32[4]) -> (f32[4])\n"
	             "coll 0 all_reduce f32 n 1 algo auto group 0 redop max outer 1 inner 16\n"
	             "coll 1 permute f32 n 1 algo auto pairs 0 redop add outer 1 inner 16\n"
	             "run {\n kern 0 copy (b0) -> (b1)\n loop r1 < %d {\n coll 0 all_reduce (b1) -> (b2) site 1\n coll 1 permute (b1) -> (b1) site 1\n }\n}\n", turns);
	return s.p;
}

static void ring(void **state)
{
	int dev[NDEV] = { 2, 0, 3, 1 };
	char *text = ring_text(NDEV, 1001);
	struct rt_exec *x = load(text, dev);
	struct rt_buffer *a[NDEV], *out[NDEV];
	struct rt_event *done[NDEV];
	float v;

	assert_int_equal(rt_exec_nlocal(x), NDEV);
	for (int i = 0; i < NDEV; i++)
		a[i] = four(dev[i], (float)i);
	for (int k = 0; k < 5; k++) {
		ok(rt_exec_run(x, a, NULL, 0, k, out, done));
		for (int i = 0; i < NDEV; i++) {
			ok(one_of(out[i], &v));
			assert_true(v == (float)((i + NDEV - 1001 % NDEV) % NDEV));
			rt_event_unref(done[i]);
			rt_buffer_unref(out[i]);
		}
	}
	for (int i = 0; i < NDEV; i++)
		rt_buffer_unref(a[i]);
	rt_exec_unref(x);
	free(text);
}

struct job { pthread_t t; int dev[2]; int rounds; };

static void *pairs(void *v)
{
	struct job *j = v;
	char *text = ring_text(2, 20);
	struct rt_exec *x = load(text, j->dev);
	struct rt_buffer *a[2] = { four(j->dev[0], 1), four(j->dev[1], 2) }, *out[2];
	struct rt_event *done[2];
	float f;

	for (int k = 0; k < j->rounds; k++) {
		ok(rt_exec_run(x, a, NULL, 0, k, out, done));
		for (int i = 0; i < 2; i++) {
			rt_event_unref(done[i]);
			rt_buffer_unref(a[i]);
			a[i] = out[i];
		}
		if (k % 7 == 0) {
			ok(one_of(a[0], &f));
			assert_true(f == 1);
		}
	}
	for (int i = 0; i < 2; i++) {
		ok(one_of(a[i], &f));
		assert_true(f == (float)(i + 1));
		rt_buffer_unref(a[i]);
	}
	rt_exec_unref(x);
	free(text);
	return NULL;
}

static void overlapping(void **state)
{
	struct job j[3] = { { .dev = { 0, 1 } }, { .dev = { 1, 2 } }, { .dev = { 2, 0 } } };

	for (int i = 0; i < 3; i++) {
		j[i].rounds = 200;
		pthread_create(&j[i].t, NULL, pairs, &j[i]);
	}
	for (int i = 0; i < 3; i++)
		pthread_join(j[i].t, NULL);
}

/* --- failure ----------------------------------------------------------------- */

static struct err *maybe(void *user, const struct rt_custom_call *c)
{
	if (c->position == *(int *)user)
		return ERR(DATA_LOSS, "device %d gives up", c->position);
	memcpy(c->out[0], c->in[0], 16);
	return NULL;
}

static const char fails[] =
	"prog \"fails\" devices 4 registers 2 zone 0 flops 0 fingerprint 02 comm 00\n"
	"site 0 \"\"\nsite 1 \"train.py:9 call\"\n"
	"arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\nbuf 0 arg 0 size 16\nbuf 1 out 0 size 16\n"
	"group 0 1 4 [0,1,2,3]\n"
	"custom 0 \"maybe\" api 4 (f32[4]) -> (f32[4])\n"
	"coll 0 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 16\n"
	"run {\n loop r1 < 3 {\n custom 0 \"maybe\" (b0) -> (b1) site 1\n coll 0 all_reduce (b1) -> (b1)\n }\n}\n";

static void failure(void **state)
{
	int dev[NDEV] = { 0, 1, 2, 3 }, who = -1;
	struct rt_exec *x = load(fails, dev);
	struct rt_buffer *a[NDEV], *out[NDEV];
	struct rt_event *done[NDEV];
	float v;

	rt_custom_register("maybe", maybe, &who);
	for (int i = 0; i < NDEV; i++)
		a[i] = four(i, 1);
	for (int k = 0; k < 12; k++) {
		who = k % 5 - 1;
		ok(rt_exec_run(x, a, NULL, 0, k, out, done));
		for (int i = 0; i < NDEV; i++) {
			struct err *e = one_of(out[i], &v);
			if (who < 0) {
				ok(e);
				assert_true(v == 4);
			} else {
				assert_non_null(e);
				assert_int_equal(e->code, ERR_DATA_LOSS);
				assert_non_null(strstr(e->msg, "train.py:9 call: device"));
				err_free(e);
			}
		}
		for (int i = 0; i < NDEV; i++) {
			rt_event_unref(done[i]);
			rt_buffer_unref(out[i]);
		}
	}
	/* An argument that is an error on one device. */
	struct rt_shape s = { DT_f32, 1, { 4 } };
	rt_buffer_unref(a[2]);
	a[2] = rt_buffer_error(rt_client_device(cl, 2), 0, &s, ERR(NOT_FOUND, "no data"));
	who = -1;
	ok(rt_exec_run(x, a, NULL, 0, 0, out, done));
	for (int i = 0; i < NDEV; i++) {
		struct err *e = one_of(out[i], &v);
		assert_non_null(e);
		assert_int_equal(e->code, ERR_NOT_FOUND);
		err_free(e);
		rt_event_unref(done[i]);
		rt_buffer_unref(out[i]);
		rt_buffer_unref(a[i]);
	}
	rt_exec_unref(x);
}

/* The number of turns comes from the data: device 1 takes one more. */
static const char apart[] =
	"prog \"apart\" devices 2 registers 4 zone 0 flops 0 fingerprint 03 comm 00\n"
	"site 0 \"\"\nsite 1 \"loop.py:5 psum\"\nsite 2 \"loop.py:8 psum\"\n"
	"arg 0 i32[] bytes 4\nres 0 i32[] bytes 4\nbuf 0 arg 0 size 4\nbuf 1 out 0 size 4\n"
	"group 0 1 2 [0,1]\n"
	"kern 0 copy (i32[]) -> (i32[])\n"
	"coll 0 all_reduce i32 n 1 algo auto group 0 redop add outer 1 inner 4\n"
	"run {\n kern 0 copy (b0) -> (b1)\n ld r1 = i32 b0\n loop r2 < r1 {\n coll 0 all_reduce (b0) -> (b1) site 1\n }\n"
	" coll 0 all_reduce (b0) -> (b1) site 2\n}\n";

static void diverging(void **state)
{
	int dev[2] = { 0, 1 };
	struct rt_exec *x = load(apart, dev);
	struct rt_buffer *a[2], *out[2];
	struct rt_event *done[2];
	struct rt_shape s = { DT_i32, 0, { 0 } };
	bool named = false;

	for (int i = 0; i < 2; i++) {
		int32_t n = 3 + i;
		ok(rt_buffer_from_host(rt_client_device(cl, i), 0, &s, &n, NULL, &a[i]));
	}
	for (int k = 0; k < 3; k++) {
		ok(rt_exec_run(x, a, NULL, 0, k, out, done));
		for (int i = 0; i < 2; i++) {
			struct err *e = rt_event_wait(done[i]);
			assert_non_null(e);
			assert_int_equal(e->code, ERR_INTERNAL);
			named |= strstr(e->msg, "loop.py:5 psum") && strstr(e->msg, "loop.py:8 psum") && strstr(e->msg, "'apart'");
			err_free(e);
			rt_event_unref(done[i]);
			rt_buffer_unref(out[i]);
		}
	}
	assert_true(named);
	for (int i = 0; i < 2; i++)
		rt_buffer_unref(a[i]);
	rt_exec_unref(x);
}

/* --- beside ------------------------------------------------------------------------ */

/* Device 0 comes to a sum only when device 1, which has begun it, has gone on to what stands behind it. */
static _Atomic int gone_on;

static struct err *gate(void *user, const struct rt_custom_call *c)
{
	enum { PATIENCE_S = 60 };

	memcpy(c->out[0], c->in[0], 16);
	for (double t = clock_s(); c->position == 0 && !atomic_load(&gone_on); usleep(100))
		if (clock_s() - t > PATIENCE_S)
			return ERR(DEADLINE, "nobody has gone on");
	return NULL;
}

static struct err *opens(void *user, const struct rt_custom_call *c)
{
	memcpy(c->out[0], c->in[0], 16);
	if (c->position == 1)
		atomic_store(&gone_on, 1);
	return c->position == *(int *)user ? ERR(DATA_LOSS, "device %d gives up", c->position) : NULL;
}

static const char aside[] =
	"prog \"aside\" devices 2 registers 3 zone 192 flops 0 fingerprint 11 comm 00\n"
	"site 0 \"\"\nsite 1 \"train.py:7 psum\"\nsite 2 \"train.py:9 call\"\n"
	"arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\nbuf 0 arg 0 size 16\nbuf 1 out 0 size 16\nbuf 2 temp at 0 size 16\nbuf 3 temp at 64 size 16\nbuf 4 temp at 128 size 16\n"
	"group 0 1 2 [0,1]\n"
	"kern 0 elem (f32[4], f32[4]) -> (f32[4]) expr (f32, f32) { %2 = add f32 %0 %1 -> f32 } (%2)\n"
	"kern 1 copy (f32[4]) -> (f32[4])\n"
	"custom 0 \"gate\" api 4 (f32[4]) -> (f32[4])\n"
	"custom 1 \"opens\" api 4 (f32[4]) -> (f32[4])\n"
	"coll 0 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 16\n"
	"run {\n kern 1 copy (b0) -> (b1)\n loop r1 < 3 {\n custom 0 \"gate\" (b0) -> (b2)\n mark 0\n await 0 lane 1\n coll 0 all_reduce (b2) -> (b3) lane 1 site 1\n"
	" coll 0 all_reduce (b3) -> (b3) lane 1 site 1\n mark 1 lane 1\n custom 1 \"opens\" (b0) -> (b4) site 2\n await 1\n kern 0 elem (b1, b3) -> (b1)\n }\n}\n";

/* who: the device that fails while its sums are under way, -1 none. */
static void aside_run(struct rt_exec *x, struct rt_buffer *const *a, int who)
{
	struct rt_buffer *out[2];
	struct rt_event *done[2];
	float v;

	atomic_store(&gone_on, 0);
	rt_custom_register("opens", opens, &who);
	ok(rt_exec_run(x, a, NULL, 0, 0, out, done));
	for (int i = 0; i < 2; i++) {
		struct err *e = one_of(out[i], &v);
		if (who < 0) {
			ok(e);
			assert_true(v == 1 + (float)i + 3 * 6);
		} else {
			assert_non_null(e);
			assert_int_equal(e->code, ERR_DATA_LOSS);
			assert_non_null(strstr(e->msg, "train.py:9 call: device"));
			err_free(e);
		}
	}
	for (int i = 0; i < 2; i++) {            /* both have left the launch: what the failing one was told to be is read no more */
		err_free(rt_event_wait(done[i]));
		rt_event_unref(done[i]);
		rt_buffer_unref(out[i]);
	}
}

static void beside(void **state)
{
	int dev[2] = { 0, 1 };
	struct prog *p;
	struct rt_exec *x;
	struct rt_buffer *a[2] = { four(0, 1), four(1, 2) };

	ok(prog_parse(aside, strlen(aside), &p));
	ok(prog_check(p));
	rt_custom_register("gate", gate, NULL);
	ok(rt_exec_new(cl, p, dev, &x));
	for (int k = 0; k < 20; k++)
		aside_run(x, a, k % 3 - 1);
	aside_run(x, a, -1);
	rt_exec_unref(x);
	for (int i = 0; i < 2; i++)
		rt_buffer_unref(a[i]);
}

/* Device 0 has begun a sum before device 1 comes, and calls host code twice: that waits for what device 1 does behind the sum, or device 1 comes at the second call. */
static _Atomic int entered, passed;
static struct { bool waits, fails; } way;

static struct err *patiently(const _Atomic int *n, int least)
{
	enum { PATIENCE_S = 20 };

	for (double t = clock_s(); atomic_load(n) < least; usleep(100))
		if (clock_s() - t > PATIENCE_S)
			return ERR(DEADLINE, "it does not come");
	return NULL;
}

static struct err *comes_late(void *user, const struct rt_custom_call *c)
{
	return c->position == 1 ? patiently(&entered, way.waits ? 1 : 2) : NULL;
}

static struct err *passes(void *user, const struct rt_custom_call *c)
{
	atomic_fetch_add(&passed, c->position == 1);
	return NULL;
}

static struct err *waits(void *user, const struct rt_custom_call *c)
{
	if (c->position == 1)
		return NULL;
	atomic_fetch_add(&entered, 1);
	if (way.waits)
		TRY(patiently(&passed, 1));
	return way.fails ? ERR(DATA_LOSS, "device 0 gives up") : NULL;
}

static void call_run(struct rt_exec *x, struct rt_buffer *const *a)
{
	struct rt_buffer *out[2];
	struct rt_event *done[2];
	float v;

	atomic_store(&entered, 0);
	atomic_store(&passed, 0);
	ok(rt_exec_run(x, a, NULL, 0, 0, out, done));
	for (int i = 0; i < 2; i++) {
		struct err *e = one_of(out[i], &v);
		assert_int_equal(e ? e->code : 0, way.fails && (i == 0 || e) ? ERR_DATA_LOSS : 0);
		assert_true(e || v == 3);
		err_free(e);
	}
	for (int i = 0; i < 2; i++) {
		err_free(rt_event_wait(done[i]));
		rt_event_unref(done[i]);
		rt_buffer_unref(out[i]);
	}
}

static void beside_call(void **state)
{
	int dev[2] = { 0, 1 };

	rt_custom_register("comes", comes_late, NULL);
	rt_custom_register("waits", waits, NULL);
	rt_custom_register("passes", passes, NULL);
	for (int n = 4; n <= 1 << 20; n *= 32) {
		struct str s = { 0 };
		int bytes = 4 * n, round = MAX(bytes, 64);
		str_addf(&s, "prog \"call\" devices 2 registers 1 zone %d flops 0 fingerprint 12 comm 00\n"
		             "arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\nbuf 0 arg 0 size 16\nbuf 1 out 0 size 16\nbuf 2 temp at 0 size %d\nbuf 3 temp at %d size %d\n"
		             "group 0 1 2 [0,1]\nkern 0 copy (f32[4]) -> (f32[4])\n"
		             "custom 0 \"comes\" api 4 () -> ()\ncustom 1 \"waits\" api 4 () -> ()\ncustom 2 \"passes\" api 4 () -> ()\n"
		             "coll 0 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner %d\n", 2 * round, bytes, round, bytes, bytes);
		str_add(&s, "run {\n kern 0 copy (b0) -> (b2)\n custom 0 \"comes\" () -> ()\n mark 0\n await 0 lane 1\n coll 0 all_reduce (b2) -> (b3) lane 1\n mark 1 lane 1\n"
		            " custom 1 \"waits\" () -> ()\n custom 1 \"waits\" () -> ()\n await 1\n custom 2 \"passes\" () -> ()\n kern 0 copy (b3) -> (b1)\n}\n");
		struct rt_exec *x = load(s.p, dev);
		struct rt_buffer *a[2] = { four(0, 1), four(1, 2) };
		for (int k = 0; k < 24; k++) {
			way.waits = k % 2;
			way.fails = k % 6 == 3;
			call_run(x, a);
		}
		for (int i = 0; i < 2; i++)
			rt_buffer_unref(a[i]);
		rt_exec_unref(x);
		str_free(&s);
	}
}

/* What stands between two devices is in one order: a collective of lane 0 comes behind those that are under way, be they of arrays of their own. */
static void behind(void **state)
{
	static const char text[] =
		"prog \"behind\" devices 2 registers 1 zone 256 flops 0 fingerprint 12 comm 00\n"
		"site 0 \"\"\nsite 1 \"train.py:7 psum\"\nsite 2 \"train.py:8 pmax\"\n"
		"arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\nbuf 0 arg 0 size 16\nbuf 1 out 0 size 16\n"
		"buf 2 temp at 0 size 16\nbuf 3 temp at 64 size 16\nbuf 4 temp at 128 size 16\nbuf 5 temp at 192 size 16\n"
		"group 0 1 2 [0,1]\n"
		"kern 0 elem (f32[4], f32[4]) -> (f32[4]) expr (f32, f32) { %2 = add f32 %0 %1 -> f32 } (%2)\n"
		"custom 0 \"gate\" api 4 (f32[4]) -> (f32[4])\n"
		"custom 1 \"opens\" api 4 (f32[4]) -> (f32[4])\n"
		"coll 0 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 16\n"
		"coll 1 all_reduce f32 n 1 algo auto group 0 redop max outer 1 inner 16\n"
		"run {\n custom 0 \"gate\" (b0) -> (b2)\n mark 0\n await 0 lane 1\n coll 0 all_reduce (b2) -> (b3) lane 1 site 1\n mark 1 lane 1\n"
		" custom 1 \"opens\" (b0) -> (b4)\n coll 1 all_reduce (b0) -> (b5) site 2\n await 1\n kern 0 elem (b3, b5) -> (b1)\n}\n";
	int dev[2] = { 0, 1 }, nobody = -1;
	struct prog *p;
	struct rt_exec *x;
	struct rt_buffer *a[2] = { four(0, 1), four(1, 2) }, *out[2];
	struct rt_event *done[2];
	float v;

	ok(prog_parse(text, strlen(text), &p));
	ok(prog_check(p));
	rt_custom_register("gate", gate, NULL);
	rt_custom_register("opens", opens, &nobody);
	ok(rt_exec_new(cl, p, dev, &x));
	for (int k = 0; k < 20; k++) {
		atomic_store(&gone_on, 0);
		ok(rt_exec_run(x, a, NULL, 0, k, out, done));
		for (int i = 0; i < 2; i++) {
			ok(one_of(out[i], &v));
			assert_true(v == 3 + 2);
			rt_event_unref(done[i]);
			rt_buffer_unref(out[i]);
		}
	}
	rt_exec_unref(x);
	for (int i = 0; i < 2; i++)
		rt_buffer_unref(a[i]);
}

/* --- waiting -------------------------------------------------------------------- */

static struct err *slow(void *user, const struct rt_custom_call *c)
{
	if (c->position == 0)
		usleep(400000);
	memcpy(c->out[0], c->in[0], 16);
	return NULL;
}

static void idle(void **state)
{
	int dev[NDEV] = { 0, 1, 2, 3 };
	struct rt_exec *x = load(fails, dev);
	struct rt_buffer *a[NDEV], *out[NDEV];
	struct rt_event *done[NDEV];
	struct rusage r0, r1;

	rt_custom_register("maybe", slow, NULL);
	for (int i = 0; i < NDEV; i++)
		a[i] = four(i, 1);
	getrusage(RUSAGE_SELF, &r0);
	ok(rt_exec_run(x, a, NULL, 0, 0, out, done));
	for (int i = 0; i < NDEV; i++) {
		ok(rt_event_wait(done[i]));
		rt_event_unref(done[i]);
		rt_buffer_unref(out[i]);
		rt_buffer_unref(a[i]);
	}
	getrusage(RUSAGE_SELF, &r1);
	double used = (double)(r1.ru_utime.tv_sec + r1.ru_stime.tv_sec - r0.ru_utime.tv_sec - r0.ru_stime.tv_sec) +
	              1e-6 * (double)(r1.ru_utime.tv_usec + r1.ru_stime.tv_usec - r0.ru_utime.tv_usec - r0.ru_stime.tv_usec);
	print_message("CPU while three devices waited 1.2 s: %.1f ms\n", used * 1e3);
	assert_true(used < 0.2);
	rt_exec_unref(x);
}

static atomic_bool released;

static struct err *stuck(void *user, const struct rt_custom_call *c)
{
	while (c->position == 0 && !atomic_load(&released))
		usleep(1000);
	memcpy(c->out[0], c->in[0], 16);
	return NULL;
}

/* RONDO_TIMEOUT: a wait ends with an error that says where both are and how long it was, though nobody ever comes. */
static void patience(void **state)
{
	struct rt_client *mine = cl;
	int dev[NDEV] = { 0, 1, 2, 3 };
	struct rt_buffer *a[NDEV], *out[NDEV];
	struct rt_event *done[NDEV];

	ok(conf_set("TIMEOUT", "1"));
	setup(NULL);
	struct rt_exec *x = load(fails, dev);
	rt_custom_register("maybe", stuck, NULL);
	for (int i = 0; i < NDEV; i++)
		a[i] = four(i, 1);
	double t = clock_s();
	ok(rt_exec_run(x, a, NULL, 0, 0, out, done));
	for (int i = NDEV; i-- > 0;) {
		if (i == 0)
			atomic_store(&released, true);
		struct err *e = rt_event_wait(done[i]);
		double took = clock_s() - t, said;
		assert_non_null(e);
		assert_int_equal(e->code, ERR_DEADLINE);
		const char *says = strstr(e->msg, "has waited ");
		assert_non_null(says);
		assert_int_equal(sscanf(says, "has waited %lf s at ", &said), 1);
		assert_true(took > 1 && said >= 1 && said <= took + 0.5);       /* it says whole seconds */
		assert_non_null(strstr(e->msg, "for device 0, which is at"));
		err_free(e);
		rt_event_unref(done[i]);
		rt_buffer_unref(out[i]);
		rt_buffer_unref(a[i]);
	}
	rt_exec_unref(x);
	rt_client_free(cl);
	ok(conf_set("TIMEOUT", "0"));
	cl = mine;
}

/* An array of device d that is there when `released`. */
static struct rt_buffer *later(int d)
{
	static const char text[] =
		"prog \"later\" devices 1 registers 1 zone 0 flops 0 fingerprint 23 comm 00\n"
		"arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\nbuf 0 arg 0 size 16\nbuf 1 out 0 size 16\n"
		"custom 0 \"maybe\" api 4 (f32[4]) -> (f32[4])\nrun {\n custom 0 \"maybe\" (b0) -> (b1)\n}\n";
	int dev[1] = { NDEV - 1 };
	struct rt_exec *x = load(text, dev);
	struct rt_buffer *a = four(NDEV - 1, 1), *out, *copy;
	struct rt_event *done;

	rt_custom_register("maybe", stuck, NULL);
	ok(rt_exec_run(x, &a, NULL, 0, 0, &out, &done));
	ok(rt_buffer_copy(out, rt_client_device(cl, d), 0, &copy));
	assert_false(rt_event_ready(rt_buffer_ready(copy)));
	rt_event_unref(done);
	rt_buffer_unref(out);
	rt_buffer_unref(a);
	rt_exec_unref(x);
	return copy;
}

/* Two devices, of which the first is given what is not there: the launch ends, as the second one's argument or RONDO_TIMEOUT has it; and the device goes on. */
static void not_given(bool talks, bool bad)
{
	static const char text[] =
		"prog \"given\" devices 2 registers 1 zone 64 flops 0 fingerprint 24 comm 00\n"
		"arg 0 f32[4] bytes 16 alias 0\nres 0 f32[4] bytes 16\nbuf 0 arg 0 size 16\nbuf 1 out 0 size 16 alias 0\nbuf 2 temp at 0 size 16\n"
		"%skern 0 elem (f32[4], f32[4]) -> (f32[4]) expr (f32, f32) { %%2 = add f32 %%0 %%1 -> f32 } (%%2)\n"
		"%srun {\n%s kern 0 elem (b0, b0) -> (b1)\n}\n";
	const struct rt_shape four_of = { DT_f32, 1, { 4 } };
	struct rt_client *mine = cl;
	int dev[2] = { 0, 1 }, next[1] = { 0 };
	struct rt_buffer *a[2], *out[2];
	struct rt_event *done[2];
	struct str s = { 0 };
	float v;

	if (!bad)
		ok(conf_set("TIMEOUT", "1"));
	setup(NULL);
	ok(conf_set("TIMEOUT", "0"));
	atomic_store(&released, false);
	str_addf(&s, text, talks ? "group 0 1 2 [0,1]\n" : "", talks ? "coll 0 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 16\n" : "",
	         talks ? " coll 0 all_reduce (b0) -> (b2)\n" : "");
	struct rt_exec *x = load(s.p, dev);
	a[0] = later(0);
	a[1] = bad ? rt_buffer_error(rt_client_device(cl, 1), 0, &four_of, ERR(NOT_FOUND, "no data")) : four(1, 1);
	ok(rt_exec_run(x, a, NULL, 0, 0, out, done));
	for (int i = 0; i < 2; i++) {
		struct err *e = rt_event_wait(done[i]);
		if (talks || bad || !i) {
			assert_non_null(e);
			assert_int_equal(e->code, bad ? ERR_NOT_FOUND : ERR_DEADLINE);
		} else
			ok(e);
		if (!bad && !i && !talks)     /* else either may be the first */
			assert_non_null(strstr(e->msg, " s for an argument of program 'given'"));
		err_free(e);
		rt_event_unref(done[i]);
		rt_buffer_unref(out[i]);
		rt_buffer_unref(a[i]);
	}
	struct rt_exec *y = load("prog \"next\" devices 1 registers 1 zone 0 flops 0 fingerprint 25 comm 00\n"
	                         "arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\nbuf 0 arg 0 size 16\nbuf 1 out 0 size 16\n"
	                         "kern 0 copy (f32[4]) -> (f32[4])\nrun {\n kern 0 copy (b0) -> (b1)\n}\n", next);
	a[0] = four(0, 3);
	ok(rt_exec_run(y, a, NULL, 0, 0, out, done));
	ok(one_of(out[0], &v));
	assert_true(v == 3);
	atomic_store(&released, true);
	rt_event_unref(done[0]);
	rt_buffer_unref(out[0]);
	rt_buffer_unref(a[0]);
	rt_exec_unref(y);
	rt_exec_unref(x);
	rt_client_free(cl);
	str_free(&s);
	cl = mine;
}

static void ungiven(void **state)
{
	for (int k = 0; k < 4; k++)
		not_given(k & 1, k & 2);
}

/* Devices that wait in a collective take tiles of the one they wait for. */
static void helping(void **state)
{
	static const char text[] =
		"prog \"help\" devices 4 registers 2 zone 1048576 flops 0 fingerprint 08 comm 00\n"
		"arg 0 f32[512,512] bytes 1048576\nres 0 f32[512,512] bytes 1048576\n"
		"buf 0 arg 0 size 1048576\nbuf 1 out 0 size 1048576\nbuf 2 temp at 0 size 1048576\n"
		"table 0 [1,0,0,0]\ngroup 0 1 4 [0,1,2,3]\n"
		"kern 0 copy (f32[512,512]) -> (f32[512,512])\n"
		"kern 1 dot (f32[512,512], f32[512,512]) -> (f32[512,512]) attr [0,1,1,0,0,11,11,11,1] flops 268435456\n"
		"coll 0 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 1048576\n"
		"run {\n kern 0 copy (b0) -> (b2)\n table r1 = 0\n case r1 { } {\n kern 1 dot (b0, b0) -> (b2)\n }\n coll 0 all_reduce (b2) -> (b1)\n}\n";
	int dev[NDEV] = { 0, 1, 2, 3 };
	struct rt_exec *x = load(text, dev);
	struct rt_shape s = { DT_f32, 2, { 512, 512 } };
	struct rt_buffer *a[NDEV], *out[NDEV];
	struct rt_event *done[NDEV];
	static float v[512 * 512], r[512 * 512];

	for (int i = 0; i < 512 * 512; i++)
		v[i] = (float)(i % 3);
	for (int i = 0; i < NDEV; i++)
		ok(rt_buffer_from_host(rt_client_device(cl, i), 0, &s, v, NULL, &a[i]));
	int64_t before = rt_helped();
	double until = clock_s() + 100;           /* on a busy machine the others seldom run at the same time */
	for (int k = 0; k < 10 || (rt_helped() == before && clock_s() < until); k++) {
		ok(rt_exec_run(x, a, NULL, 0, k, out, done));
		for (int i = 0; i < NDEV; i++) {
			struct rt_event *e = rt_buffer_to_host(out[i], 0, sizeof r, r);
			ok(rt_event_wait(e));
			rt_event_unref(e);
			for (int q = 0; q < 512 * 512; q += 513 * 9) {
				float want = 3 * v[q];
				for (int z = 0; z < 512; z++)
					want += v[q / 512 * 512 + z] * v[z * 512 + q % 512];
				assert_true(r[q] == want);
			}
			rt_event_unref(done[i]);
			rt_buffer_unref(out[i]);
		}
	}
	assert_true(rt_helped() > before);
	for (int i = 0; i < NDEV; i++)
		rt_buffer_unref(a[i]);
	rt_exec_unref(x);
}

static atomic_bool launched;

/* A while after all was launched, in which others fall asleep; what this thread has woken between the two calls. */
static struct err *slept(void *user, const struct rt_custom_call *c)
{
	while (c->position == 0 && !atomic_load(&launched))
		usleep(1000);
	if (c->position == 0)
		usleep(50000);
	wakes = 0;
	return NULL;
}

static struct err *count(void *user, const struct rt_custom_call *c)
{
	if (c->position == 0)
		*(int *)user += wakes;
	return NULL;
}

#define DOT \
	"buf 0 arg 0 size 1048576\nbuf 1 out 0 size 1048576\nbuf 2 temp at 0 size 1048576\n" \
	"kern 0 copy (f32[512,512]) -> (f32[512,512])\n" \
	"kern 1 dot (f32[512,512], f32[512,512]) -> (f32[512,512]) attr [0,1,1,0,0,11,11,11,1] flops 268435456\n" \
	"custom 0 \"slept\" api 4 () -> ()\ncustom 1 \"count\" api 4 () -> ()\n"

/* Who sleeps in a wait, for a device or for an argument, is called for a kernel that is worth it. */
static void called(void **state)
{
	static const char waits[] =
		"prog \"waits\" devices 4 registers 2 zone 1048576 flops 0 fingerprint 0a comm 00\n"
		"arg 0 f32[512,512] bytes 1048576\nres 0 f32[512,512] bytes 1048576\n"
		"table 0 [1,0,0,0]\ngroup 0 1 4 [0,1,2,3]\n" DOT
		"coll 0 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 1048576\n"
		"run {\n kern 0 copy (b0) -> (b2)\n table r1 = 0\n custom 0 \"slept\" () -> ()\n case r1 { } {\n kern 1 dot (b0, b0) -> (b2)\n }\n"
		" custom 1 \"count\" () -> ()\n coll 0 all_reduce (b2) -> (b1)\n}\n";
	static const char makes[] =
		"prog \"makes\" devices 1 registers 2 zone 1048576 flops 0 fingerprint 0b comm 00\n"
		"arg 0 f32[512,512] bytes 1048576\nres 0 f32[512,512] bytes 1048576\n" DOT
		"run {\n custom 0 \"slept\" () -> ()\n kern 1 dot (b0, b0) -> (b1)\n custom 1 \"count\" () -> ()\n}\n";
	static const char takes[] =
		"prog \"takes\" devices 1 registers 2 zone 1048576 flops 0 fingerprint 0c comm 00\n"
		"arg 0 f32[512,512] bytes 1048576\nres 0 f32[512,512] bytes 1048576\n" DOT
		"run {\n kern 0 copy (b0) -> (b1)\n}\n";
	struct rt_client *four = cl;
	struct rt_shape s = { DT_f32, 2, { 512, 512 } };
	struct rt_buffer *a[NDEV], *out[NDEV], *moved;
	struct rt_event *done[NDEV];
	static float v[512 * 512];
	double until = clock_s() + 100;           /* where other processes want the cores nobody is called */
	int n = 0;

	if (cpu_get()->cores < 2)
		skip();
	rt_custom_register("slept", slept, NULL);
	rt_custom_register("count", count, &n);
	struct rt_exec *x = load(waits, (int[]){ 0, 1, 2, 3 });
	for (int i = 0; i < NDEV; i++)
		ok(rt_buffer_from_host(rt_client_device(cl, i), 0, &s, v, NULL, &a[i]));
	for (int k = 0; !n && clock_s() < until; k++) {
		ok(rt_exec_run(x, a, NULL, 0, k, out, done));
		atomic_store(&launched, true);
		for (int i = 0; i < NDEV; i++) {
			ok(rt_event_wait(done[i]));
			rt_event_unref(done[i]);
			rt_buffer_unref(out[i]);
		}
	}
	assert_true(n > 0);
	for (int i = 0; i < NDEV; i++)
		rt_buffer_unref(a[i]);
	rt_exec_unref(x);

	ok(rt_client_new(&(struct rt_opts){ .ndev = 2 }, &cl));
	struct rt_exec *m = load(makes, (int[]){ 0 }), *t = load(takes, (int[]){ 1 });
	ok(rt_buffer_from_host(rt_client_device(cl, 0), 0, &s, v, NULL, &a[0]));
	n = 0;
	for (int k = 0; !n && clock_s() < until; k++) {
		atomic_store(&launched, false);
		ok(rt_exec_run(m, a, NULL, 0, k, out, done));
		ok(rt_buffer_copy(out[0], rt_client_device(cl, 1), 0, &moved));
		ok(rt_exec_run(t, &moved, NULL, 0, k, out + 1, done + 1));
		rt_buffer_unref(moved);
		atomic_store(&launched, true);
		for (int i = 0; i < 2; i++) {
			ok(rt_event_wait(done[i]));
			rt_event_unref(done[i]);
			rt_buffer_unref(out[i]);
		}
	}
	assert_true(n > 0);
	rt_buffer_unref(a[0]);
	rt_exec_unref(m);
	rt_exec_unref(t);
	rt_client_free(cl);
	cl = four;
}

/* However many devices sleep: who launches wakes them by one call. */
static void woken_at_once(void **state)
{
	int dev[NDEV] = { 0, 1, 2, 3 }, most = 0;
	char *text = ring_text(NDEV, 1);
	struct rt_exec *x = load(text, dev);
	struct rt_buffer *a[NDEV], *out[NDEV];
	struct rt_event *done[NDEV];

	for (int i = 0; i < NDEV; i++)
		a[i] = four(i, 1);
	for (int k = 0; k < 20 || (!most && k < 200); k++) {
		usleep(5000);
		wakes = 0;
		ok(rt_exec_run(x, a, NULL, 0, k, out, done));
		most = MAX(most, wakes);
		for (int i = 0; i < NDEV; i++) {
			ok(rt_event_wait(done[i]));
			rt_event_unref(done[i]);
			rt_buffer_unref(out[i]);
		}
	}
	assert_int_equal(most, 1);
	for (int i = 0; i < NDEV; i++)
		rt_buffer_unref(a[i]);
	rt_exec_unref(x);
	free(text);
}

static void memory(void **state)
{
	/* A device cannot have its outputs: the call that launches says so, with sizes, and nothing is left of it. */
	static const char big[] =
		"prog \"big\" devices 2 registers 2 zone 0 flops 0 fingerprint 04 comm 00\n"
		"arg 0 f32[4] bytes 16\nres 0 f32[1099511627776] bytes 4398046511104\nbuf 0 arg 0 size 16\nbuf 1 out 0 size 4398046511104\n"
		"group 0 1 2 [0,1]\n"
		"coll 0 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 16\n"
		"run {\n coll 0 all_reduce (b0) -> (b1)\n}\n";
	int dev[2] = { 0, 1 };
	struct rt_exec *x = load(big, dev);
	struct rt_buffer *a[2] = { four(0, 1), four(1, 1) }, *out[2];
	struct rt_event *done[2];

	struct err *e = rt_exec_run(x, a, NULL, 0, 0, out, done);
	assert_non_null(e);
	assert_int_equal(e->code, ERR_EXHAUSTED);
	assert_non_null(strstr(e->msg, "program 'big', result 0, made at (no line): out of memory: "));
	assert_non_null(strstr(e->msg, "4.4 TB"));
	err_free(e);
	for (int i = 0; i < 2; i++)
		rt_buffer_unref(a[i]);
	rt_exec_unref(x);
}

/* Device 0 fails when device 1 is in the launch, which stays there. */
struct stays { atomic_bool in, leave; };

static struct err *fails_or_stays(void *user, const struct rt_custom_call *c)
{
	enum { PATIENCE_S = 100 };
	struct stays *s = user;

	if (c->position == 1)
		atomic_store(&s->in, true);
	for (double t = clock_s(); !atomic_load(c->position ? &s->leave : &s->in) && clock_s() - t < PATIENCE_S;)
		usleep(200);
	if (c->position == 0)
		return ERR(DATA_LOSS, "device 0 gives up");
	memcpy(c->out[0], c->in[0], 16);
	return NULL;
}

/* Results of a device that has failed are there until its peers, which may still read or write them, have left, though nobody holds
 * them any more; and then they go. */
static void results_stay(void **state)
{
	static const char text[] =
		"prog \"stays\" devices 2 registers 1 zone 64 flops 0 fingerprint 13 comm 00\n"
		"arg 0 f32[4] bytes 16\nres 0 f32[4194304] bytes 16777216\nbuf 0 arg 0 size 16\nbuf 1 out 0 size 16777216\nbuf 2 temp at 0 size 16\n"
		"group 0 1 2 [0,1]\n"
		"kern 0 fill () -> (f32[4194304]) imm 00000000\n"
		"custom 0 \"stays\" api 4 (f32[4]) -> (f32[4])\n"
		"coll 0 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 16\n"
		"run {\n custom 0 \"stays\" (b0) -> (b2)\n coll 0 all_reduce (b2) -> (b2)\n kern 0 fill () -> (b1)\n}\n";
	enum { BYTES = 16777216 };
	int dev[2] = { 0, 1 };
	struct rt_exec *x = load(text, dev);
	struct rt_buffer *a[2] = { four(0, 1), four(1, 1) }, *out[2];
	struct rt_event *done[2];
	struct stays s = { false, false };
	struct rt_device *failed = rt_client_device(cl, 0);
	int64_t before = rt_device_stats(failed).in_use;

	rt_custom_register("stays", fails_or_stays, &s);
	ok(rt_exec_run(x, a, NULL, 0, 0, out, done));
	struct err *e = rt_event_wait(done[0]);
	assert_non_null(e);
	assert_int_equal(e->code, ERR_DATA_LOSS);
	err_free(e);
	rt_buffer_unref(out[0]);
	int64_t kept = rt_device_stats(failed).in_use;
	atomic_store(&s.leave, true);
	err_free(rt_event_wait(done[1]));
	rt_buffer_unref(out[1]);
	assert_true(kept >= BYTES);
	for (double t = clock_s(); rt_device_stats(failed).in_use > before && clock_s() - t < 100;)
		usleep(1000);
	assert_true(rt_device_stats(failed).in_use <= before);
	for (int i = 0; i < 2; i++) {
		rt_event_unref(done[i]);
		rt_buffer_unref(a[i]);
	}
	rt_exec_unref(x);
}

static void nested_call(void *user, float *v)
{
	struct rt_exec *x = user;
	struct rt_buffer *a = four(0, *v), *out;
	struct rt_event *done;

	ok(rt_exec_run(x, &a, NULL, 0, 0, &out, &done));
	ok(one_of(out, v));
	rt_event_unref(done);
	rt_buffer_unref(a);
	rt_buffer_unref(out);
}

static struct err *calls_back(void *user, const struct rt_custom_call *c)
{
	float *r = c->out[0];

	memcpy(r, c->in[0], 16);
	nested_call(user, r);
	return NULL;
}

static void nested(void **state)
{
	static const char twice[] =
		"prog \"twice\" devices 1 registers 1 zone 16 flops 0 fingerprint 05 comm 00\n"
		"arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\nbuf 0 arg 0 size 16\nbuf 1 out 0 size 16\nbuf 2 temp at 0 size 16\n"
		"kern 0 elem (f32[4], f32[4]) -> (f32[4]) expr (f32, f32) { %2 = add f32 %0 %1 -> f32 } (%2)\n"
		"kern 1 copy (f32[4]) -> (f32[4])\n"
		"run {\n kern 0 elem (b0, b0) -> (b2)\n kern 1 copy (b2) -> (b1)\n}\n";
	static const char outer[] =
		"prog \"outer\" devices 1 registers 1 zone 16 flops 0 fingerprint 06 comm 00\n"
		"arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\nbuf 0 arg 0 size 16\nbuf 1 out 0 size 16\nbuf 2 temp at 0 size 16\n"
		"kern 1 copy (f32[4]) -> (f32[4])\n"
		"kern 0 elem (f32[4], f32[4]) -> (f32[4]) expr (f32, f32) { %2 = add f32 %0 %1 -> f32 } (%2)\n"
		"custom 0 \"back\" api 4 (f32[4]) -> (f32[4])\n"
		"run {\n kern 0 copy (b0) -> (b2)\n custom 0 \"back\" (b0) -> (b1)\n kern 1 elem (b1, b2) -> (b1)\n}\n";
	int dev[1] = { 0 };
	struct str fixed = { 0 };

	str_add(&fixed, outer);
	char *k = strstr(fixed.p, "kern 1 copy");
	k[5] = '0';
	k = strstr(fixed.p, "kern 0 elem");
	k[5] = '1';
	struct rt_exec *in = load(twice, dev), *x = load(fixed.p, dev);
	struct rt_buffer *a = four(0, 5), *out;
	struct rt_event *done;
	float v;

	rt_custom_register("back", calls_back, in);
	for (int i = 0; i < 20; i++) {
		ok(rt_exec_run(x, &a, NULL, 0, 0, &out, &done));
		ok(one_of(out, &v));
		assert_true(v == 15);
		rt_event_unref(done);
		rt_buffer_unref(out);
	}
	rt_buffer_unref(a);
	rt_exec_unref(x);
	rt_exec_unref(in);
	str_free(&fixed);
}

/* A client that is closed runs what was launched before. */
static void closed(void **state)
{
	enum { CLIENTS = 10 };
	int dev[2] = { 0, 1 };
	struct rt_client *all = cl;
	char *text = ring_text(2, 1);

	for (int i = 0; i < CLIENTS; i++) {
		ok(rt_client_new(&(struct rt_opts){ .ndev = NDEV }, &cl));
		struct rt_exec *x = load(text, dev);
		struct rt_buffer *a[2] = { four(0, 1), four(1, 2) }, *out[2];
		struct rt_event *done[2];
		ok(rt_exec_run(x, a, NULL, 0, 0, out, done));
		rt_client_free(cl);
		for (int k = 0; k < 2; k++) {
			assert_true(rt_event_ready(done[k]));
			ok(rt_event_wait(done[k]));
			rt_event_unref(done[k]);
			rt_buffer_unref(out[k]);
			rt_buffer_unref(a[k]);
		}
		rt_exec_unref(x);
	}
	free(text);
	cl = all;
}

int main(void)
{
	const struct CMUnitTest t[] = {
		cmocka_unit_test(ring), cmocka_unit_test(overlapping), cmocka_unit_test(failure), cmocka_unit_test(diverging), cmocka_unit_test(idle), cmocka_unit_test(patience), cmocka_unit_test(ungiven), cmocka_unit_test(helping), cmocka_unit_test(called), cmocka_unit_test(woken_at_once),
		cmocka_unit_test(beside), cmocka_unit_test(beside_call), cmocka_unit_test(behind), cmocka_unit_test(memory), cmocka_unit_test(results_stay), cmocka_unit_test(nested), cmocka_unit_test(closed),
	};

	return cmocka_run_group_tests(t, setup, teardown);
}
