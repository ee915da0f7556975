/* A program that runs again and again takes no memory from the C library: what comes and goes with each launch is kept for the next. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { NDEV = 4, ARGS = 70, TURN = 7 };
#include "rt_help.h"
#include "counted.h"
#include "draws.h"

/* Before what is counted, and that; how often so many launches wait behind a product of milliseconds, more than a queue has places for. */
enum { WARM = 1, LAUNCHES = COUNTED ? 1500 : 300, EVERY = 200, DEEP = 40, SIDE = COUNTED ? 1024 : 256 };

/* Every allocation of the process. */
static _Atomic long taken;
#if COUNTED
void *malloc(size_t n) { atomic_fetch_add(&taken, 1); return __libc_malloc(n); }
void *calloc(size_t k, size_t n) { atomic_fetch_add(&taken, 1); return __libc_calloc(k, n); }
void *realloc(void *p, size_t n) { atomic_fetch_add(&taken, 1); return __libc_realloc(p, n); }
void *aligned_alloc(size_t align, size_t n) { atomic_fetch_add(&taken, 1); return __libc_memalign(align, n); }
int posix_memalign(void **p, size_t align, size_t n) { atomic_fetch_add(&taken, 1); return (*p = __libc_memalign(align, n)) ? 0 : 12; }
#endif

/* The other collectives, numbers `first` and on, of blocks of so many bytes: what they are, or the commands. */
static void moves(struct str *s, bool run, int first, int bytes)
{
	static const char *const kind[] = { "all_gather", "reduce_scatter", "all_to_all", "broadcast", "scan", "permute" };

	for (int k = 0; k < (int)NELEM(kind); k++)
		if (run)
			str_addf(s, " coll %d %s (b%d) -> (b%d)\n", first + k, kind[k], ARGS, 2 * ARGS + 4);
		else {
			str_addf(s, "coll %d %s f32 n 1 algo auto %s 0 redop add outer 1 inner %d", first + k, kind[k], k == 5 ? "pairs" : "group", bytes);
			str_addf(s, k == 2 ? " to 1 %d\n" : "\n", bytes);
		}
}

/* ARGS states that are given on, one array of data that is not, a result that is new each time; over devices sums of all sizes, in lane 1 as well,
 * and whatever else there is to communicate. */
static char *text_of(int n)
{
	struct str s = { 0 };

	str_addf(&s, "prog \"step\" devices %d registers 2 zone 4194304 flops 0 fingerprint 21 comm 00\n", n);
	for (int i = 0; i < ARGS; i++)
		str_addf(&s, "arg %d f32[1024] bytes 4096 alias %d\n", i, i);
	str_addf(&s, "arg %d f32[65536] bytes 262144\n", ARGS);
	for (int i = 0; i < ARGS; i++)
		str_addf(&s, "res %d f32[1024] bytes 4096\n", i);
	str_addf(&s, "res %d f32[65536] bytes 262144\n", ARGS);
	for (int i = 0; i < ARGS; i++)
		str_addf(&s, "buf %d arg %d size 4096\n", i, i);
	str_addf(&s, "buf %d arg %d size 262144\n", ARGS, ARGS);
	for (int i = 0; i < ARGS; i++)
		str_addf(&s, "buf %d out %d size 4096 alias %d\n", ARGS + 1 + i, i, i);
	str_addf(&s, "buf %d out %d size 262144\nbuf %d temp at 0 size 262144\nbuf %d temp at 262144 size 262144\nbuf %d temp at 524288 size 262144\n",
	         2 * ARGS + 1, ARGS, 2 * ARGS + 2, 2 * ARGS + 3, 2 * ARGS + 4);
	if (n > 1) {
		for (int way = 0; way < 2; way++) {
			str_addf(&s, "table %d [", way);
			for (int i = 0; i < n; i++)
				str_addf(&s, "%s%d", i ? "," : "", (i + (way ? 1 : n - 1)) % n);
			str_add(&s, "]\n");
		}
		str_addf(&s, "group 0 1 %d [", n);
		for (int i = 0; i < n; i++)
			str_addf(&s, "%s%d", i ? "," : "", i);
		str_add(&s, "]\n");
	}
	str_add(&s, "kern 0 elem (f32[1024], f32[1024]) -> (f32[1024]) expr (f32, f32) { %2 = maximum f32 %0 %1 -> f32 } (%2)\n"
	            "kern 1 elem (f32[65536], f32[65536]) -> (f32[65536]) expr (f32, f32) { %2 = add f32 %0 %1 -> f32 } (%2)\n"
	            "kern 2 dot (f32[256,256], f32[256,256]) -> (f32[256,256]) attr [0,1,1,0,0,23,23,23,1] flops 33554432\n");
	if (n > 1) {
		str_add(&s, "coll 0 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 262144\n"
		            "coll 1 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 16\n");
		moves(&s, false, 2, 1024);
		moves(&s, false, 8, 65536);
	}
	str_addf(&s, "run {\n kern 0 elem (b0, b0) -> (b%d)\n", ARGS + 1);
	if (n > 1)
		str_addf(&s, " mark 0\n await 0 lane 1\n coll 0 all_reduce (b%d) -> (b%d) lane 1\n mark 1 lane 1\n", ARGS, 2 * ARGS + 3);
	str_addf(&s, " kern 2 dot (b%d, b%d) -> (b%d)\n", ARGS, ARGS, 2 * ARGS + 2);
	if (n > 1)
		str_addf(&s, " await 1\n kern 1 elem (b%d, b%d) -> (b%d)\n coll 1 all_reduce (b%d) -> (b%d)\n", 2 * ARGS + 2, 2 * ARGS + 3, 2 * ARGS + 2, 2 * ARGS + 2, 2 * ARGS + 2);
	if (n > 1) {
		moves(&s, true, 2, 1024);
		moves(&s, true, 8, 65536);
	}
	str_addf(&s, " kern 1 elem (b%d, b%d) -> (b%d)\n}\n", 2 * ARGS + 2, ARGS, 2 * ARGS + 1);
	return s.p;
}

/* Milliseconds of work of each device: what is launched behind it waits. */
static char *slow_text(int n)
{
	struct str s = { 0 };

	str_addf(&s, "prog \"slow\" devices %d registers 1 zone 0 flops %ld fingerprint 22 comm 00\n", n, 2l * SIDE * SIDE * SIDE);
	for (int i = 0; i < 2; i++)
		str_addf(&s, "%s 0 f32[%d,%d] bytes %d\n", i ? "res" : "arg", SIDE, SIDE, 4 * SIDE * SIDE);
	str_addf(&s, "buf 0 arg 0 size %d\nbuf 1 out 0 size %d\n", 4 * SIDE * SIDE, 4 * SIDE * SIDE);
	str_addf(&s, "kern 0 dot (f32[%d,%d], f32[%d,%d]) -> (f32[%d,%d]) attr [0,1,1,0,0,23,23,23,1] flops %ld\nrun {\n kern 0 dot (b0, b0) -> (b1)\n}\n",
	         SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, 2l * SIDE * SIDE * SIDE);
	return s.p;
}

static void steady(int n)
{
	enum { NOUT = ARGS + 1 };
	static float v[SIDE * SIDE];
	float last[1024];
	int dev[NDEV] = { 0, 1, 2, 3 };
	char *text = text_of(n), *slow = slow_text(n);
	struct rt_exec *x = load(text, dev), *ahead = load(slow, dev);
	struct rt_buffer *a[NDEV * NOUT], *out[NDEV * NOUT], *square[NDEV], *product[NDEV];
	struct rt_event *done[NDEV];
	const struct rt_shape shape = { DT_f32, 2, { SIDE, SIDE } };
	long before = 0;

	for (int i = 0; i < SIDE * SIDE; i++)
		v[i] = 1;
	for (int d = 0; d < n; d++) {
		ok(rt_buffer_from_host(rt_client_device(cl, d), 0, &shape, v, NULL, &square[d]));
		for (int i = 0; i < NOUT; i++)
			a[d * NOUT + i] = vec(d, i < ARGS ? 1024 : 65536, v);
	}
	/* Whoever holds the last results of device 0 takes more of its memory than ever before, be there as many objects as on another device. */
	enum { HOLD = 16, THERE = 4 * HOLD };
	bool holds = n < NDEV;
	struct rt_buffer *held[THERE] = { NULL };
	for (int k = 0; k < THERE && holds; k++)
		held[k] = vec(NDEV - 1, 65536, v);
	for (int k = 0; k < WARM + draws(LAUNCHES); k++) {
		if (k == WARM) {
			for (int i = 0; i < THERE && holds; i++) {
				rt_buffer_unref(held[i]);
				held[i] = NULL;
			}
			before = atomic_load(&taken);
		}
		if (k % EVERY == 0) {
			ok(rt_exec_run(ahead, square, NULL, 0, k, product, done));
			for (int d = 0; d < n; d++) {
				rt_event_unref(done[d]);
				rt_buffer_unref(product[d]);
			}
		}
		ok(rt_exec_run(x, a, NULL, 0, k, out, done));
		for (int d = 0; d < n; d++) {
			if (k < WARM || (k % EVERY >= DEEP && k % TURN == 0))
				ok(rt_event_wait(done[d]));
			rt_event_unref(done[d]);
			for (int i = 0; i < ARGS; i++) {
				assert_true(rt_buffer_deleted(a[d * NOUT + i]));
				rt_buffer_unref(a[d * NOUT + i]);
				a[d * NOUT + i] = out[d * NOUT + i];
			}
			if (holds && !d && k >= WARM) {
				struct rt_buffer **h = &held[k * TURN % HOLD];
				if (*h)
					rt_buffer_unref(*h);
				*h = out[ARGS];
			} else
				rt_buffer_unref(out[d * NOUT + ARGS]);
		}
	}
	for (int i = 0; i < n * NOUT; i++)
		ok(rt_event_wait(rt_buffer_ready(a[i])));
	if (COUNTED)
		assert_int_equal(atomic_load(&taken), before);
	for (int k = 0; k < HOLD && holds; k++)
		if (held[k])
			rt_buffer_unref(held[k]);
	ok(get(a[0], 1024, last));
	assert_true(last[0] == 1 && last[1023] == 1);
	for (int i = 0; i < n * NOUT; i++)
		rt_buffer_unref(a[i]);
	for (int d = 0; d < n; d++)
		rt_buffer_unref(square[d]);
	rt_exec_unref(ahead);
	rt_exec_unref(x);
	free(slow);
	free(text);
}

static void alone(void **state) { steady(1); }
static void two(void **state) { steady(2); }
static void four(void **state) { steady(4); }

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(alone), cmocka_unit_test(two), cmocka_unit_test(four) };
	return cmocka_run_group_tests(tests, setup, teardown);
}
