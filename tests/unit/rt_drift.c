/* A decode step again and again, each on what the one before has left: after the first tenth nothing grows, on the host or on a device, nor does a launch take
 * longer.  Of time the least counts that a few launches took, of the second and third tenth and of the last two: others may want the cores nearly all of the time.
 * They may do so all of the time, too, so it is tried again; what grows does so each time.
 *
 *     rt_drift [LAUNCHES]     prints what each tenth took */
#include <malloc.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "ir/ir.h"
#include "pass/pass.h"

enum { NDEV = 2, LONG = 256, WIDE = 64, STATES = 4, ALL = STATES + 4 };
#include "rt_help.h"
#include "draws.h"
#include "counted.h"

/* What the process has from the C library. */
static _Atomic int64_t bytes, blocks;
#if COUNTED

static void *more(void *p)
{
	if (p) {
		atomic_fetch_add(&bytes, (int64_t)malloc_usable_size(p));
		atomic_fetch_add(&blocks, 1);
	}
	return p;
}

static void less(void *p)
{
	if (p) {
		atomic_fetch_sub(&bytes, (int64_t)malloc_usable_size(p));
		atomic_fetch_sub(&blocks, 1);
	}
}

void *malloc(size_t n) { return more(__libc_malloc(n)); }
void *calloc(size_t k, size_t n) { return more(__libc_calloc(k, n)); }
void *aligned_alloc(size_t align, size_t n) { return more(__libc_memalign(align, n)); }
void *memalign(size_t align, size_t n) { return more(__libc_memalign(align, n)); }
int posix_memalign(void **p, size_t align, size_t n) { return (*p = more(__libc_memalign(align, n))) ? 0 : 12; }

void free(void *p)
{
	less(p);
	__libc_free(p);
}

void *realloc(void *p, size_t n)
{
	less(p);
	void *q = __libc_realloc(p, n);
	more(q || !n ? q : p);
	return q;
}
#endif

/* One head of attention over what is remembered, a row of which is written; the heads of all devices are summed up. */
static const char step[] =
	"fn @main(%1: f32[256,64] alias=0, %2: f32[256,64] alias=1, %3: f32[1,64] alias=2, %4: i32[] alias=3, %5: f32[64,64], %6: f32[64,64], %7: f32[64,64], %8: f32[64,64])"
	" -> (f32[256,64], f32[256,64], f32[1,64], i32[]) {\n"
	"  %9 = dot %3, %5 lc=[1] rc=[0] components=1 : f32[1,64]\n"
	"  %10 = dot %3, %6 lc=[1] rc=[0] components=1 : f32[1,64]\n"
	"  %11 = dot %3, %7 lc=[1] rc=[0] components=1 : f32[1,64]\n"
	"  %12 = constant data=0 : i32[]\n"
	"  %13 = dynamic_update_slice %1, %10, %4, %12 : f32[256,64]\n"
	"  %14 = dynamic_update_slice %2, %11, %4, %12 : f32[256,64]\n"
	"  %15 = dot %9, %13 lc=[1] rc=[1] components=1 : f32[1,256]\n"
	"  %16 = constant data=-inf : f32[]\n"
	"  %17 = reduce %15, %16 dims=[1] redop=max : f32[1]\n"
	"  %18 = broadcast %17 dims=[0] : f32[1,256]\n"
	"  %19 = subtract %15, %18 : f32[1,256]\n"
	"  %20 = exponential %19 : f32[1,256]\n"
	"  %21 = constant data=0 : f32[]\n"
	"  %22 = reduce %20, %21 dims=[1] redop=add : f32[1]\n"
	"  %23 = broadcast %22 dims=[0] : f32[1,256]\n"
	"  %24 = divide %20, %23 : f32[1,256]\n"
	"  %25 = dot %24, %14 lc=[1] rc=[0] components=1 : f32[1,64]\n"
	"  %26 = dot %25, %8 lc=[1] rc=[0] components=1 : f32[1,64]\n"
	"  %27 = %s : f32[1,64]\n"
	"  %28 = tanh %27 : f32[1,64]\n"
	"  %29 = constant data=1 : i32[]\n"
	"  %30 = add %4, %29 : i32[]\n"
	"  %31 = constant data=255 : i32[]\n"
	"  %32 = and %30, %31 : i32[]\n"
	"  return %13, %14, %28, %32\n"
	"}\n";

struct task { int ndev; struct prog *p; };

static struct err *compile(void *v)
{
	struct task *t = v;
	struct pass_opts o = { .ndev = t->ndev, .tier = TIER_REF };
	struct ir_module *m;
	struct str s = { 0 };

	str_addf(&s, "module @decode partitions=%d replicas=1\n", t->ndev);
	const char *mark = strstr(step, "%s");
	str_addn(&s, step, (size_t)(mark - step));
	str_add(&s, t->ndev > 1 ? "all_reduce %26 group=[[0,1]] redop=add" : "add %26, %3");
	str_add(&s, mark + 2);
	struct err *e = ir_parse(s.p, s.n, &m);
	str_free(&s);
	TRY(e);
	e = pass_compile(&o, m, &t->p);
	ir_module_free(m);
	return e;
}

static struct rt_buffer *array(int d, enum dtype dt, int rank, int64_t rows, int64_t cols, uint32_t seed)
{
	struct rt_shape s = { dt, rank, { rows, cols } };
	float x[LONG * WIDE] = { 0 };
	struct rt_buffer *b;

	for (int64_t i = 0; i < rows * cols && seed; i++)
		x[i] = (float)((seed = seed * 1664525u + 1013904223u) >> 16 & 255) / 1024 - 0.125f;
	ok(rt_buffer_from_host(rt_client_device(cl, d), 0, &s, x, NULL, &b));
	return b;
}

static int launches;

/* A device does nothing until its gate is opened: as many launches wait as ever will. */
static _Atomic bool open;

static struct err *gate(void *user, const struct rt_custom_call *c)
{
	while (!atomic_load(&open))
		sched_yield();
	return NULL;
}

static const char gated[] =
	"prog \"gated\" devices 1 registers 1 zone 0 flops 0 fingerprint 02 comm 00\narg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\n"
	"buf 0 arg 0 size 16\nbuf 1 out 0 size 16\ncustom 0 \"gate\" api 4 (f32[4]) -> (f32[4])\nrun {\n custom 0 \"gate\" (b0) -> (b1)\n}\n";

enum { DEPTH = 16 };              /* launches that wait at most, but for those behind gates */

struct counts { int64_t bytes, blocks; struct rt_stats device[NDEV]; };

static void count(struct counts *c, int ndev, struct rt_buffer *const *last)
{
	for (int d = 0; d < ndev; d++)
		ok(rt_event_wait(rt_buffer_ready(last[d * ALL])));
	*c = (struct counts){ atomic_load(&bytes), atomic_load(&blocks), { { 0 } } };
	for (int d = 0; d < ndev; d++)
		c->device[d] = rt_device_stats(rt_client_device(cl, d));
}

/* Launches of a window, which ends with a wait; how much longer the quickest may take at the end than at the beginning; tries. */
enum { WINDOW = 2 * DEPTH, TRIES = 3 };
static const double LONGER = 1.5;

/* Does it take no longer in the end? */
static bool replay(int ndev)
{
	static const int dev[NDEV] = { 0, 1 };
	struct task t = { ndev, NULL };
	struct rt_exec *x;
	struct rt_buffer *a[NDEV * ALL], *out[NDEV * STATES];
	struct rt_event *done[NDEV];
	struct counts early, late;
	float token[NDEV][WIDE];
	int32_t at;
	uint64_t least[2] = { UINT64_MAX, UINT64_MAX }, since = 0;

	ok(mem_guard(compile, &t, true));
	ok(rt_exec_new(cl, t.p, dev, &x));
	for (int d = 0; d < ndev; d++)
		for (int i = 0; i < ALL; i++)
			a[d * ALL + i] = i < 2 ? array(d, DT_f32, 2, LONG, WIDE, 0) : i == 2 ? array(d, DT_f32, 2, 1, WIDE, 7)
			               : i == 3 ? array(d, DT_i32, 0, 1, 1, 0) : array(d, DT_f32, 2, WIDE, WIDE, (uint32_t)(100 * d + i));
	atomic_store(&open, false);
	for (int d = 0; d < ndev; d++) {
		struct rt_exec *g = load(gated, &dev[d]);
		struct rt_buffer *in = vec(d, 4, (float[4]){ 0 }), *result;
		ok(rt_exec_run(g, &in, NULL, 0, 0, &result, done));
		rt_event_unref(*done);
		rt_buffer_unref(in);
		rt_buffer_unref(result);
		rt_exec_unref(g);
	}
	for (int k = 0, tenth = launches / 10; k < launches; k++) {
		uint64_t start = clock_ns();
		for (int end = k + tenth; k < end; k++) {
			if (k == DEPTH + 4)
				atomic_store(&open, true);
			ok(rt_exec_run(x, a, NULL, 0, k, out, done));
			for (int d = 0; d < ndev; d++) {
				if (k > DEPTH + 4 && k % DEPTH == 0)
					ok(rt_event_wait(done[d]));
				if (d == ndev - 1 && k % WINDOW == 0) {
					uint64_t now = clock_ns(), *best = &least[k >= 8 * tenth];
					if (since && ((k >= tenth && k < 3 * tenth) || k >= 8 * tenth))
						*best = MIN(*best, now - since);
					since = now;
				}
				rt_event_unref(done[d]);
				for (int i = 0; i < STATES; i++) {
					rt_buffer_unref(a[d * ALL + i]);
					a[d * ALL + i] = out[d * STATES + i];
				}
			}
		}
		since = 0;                /* what is counted takes time */
		count(k == tenth ? &early : &late, ndev, a);
		print_message("%d devices, %6d launches: %.2f us each; the process has %lld bytes in %lld blocks, device 0 %lld\n", ndev, k, (double)(clock_ns() - start) / 1e3 / tenth,
		              (long long)(k == tenth ? &early : &late)->bytes, (long long)(k == tenth ? &early : &late)->blocks, (long long)(k == tenth ? &early : &late)->device[0].in_use);
		k--;
	}
	assert_int_equal(late.bytes, early.bytes);
	assert_int_equal(late.blocks, early.blocks);
	for (int d = 0; d < ndev; d++) {
		assert_int_equal(late.device[d].in_use, early.device[d].in_use);
		assert_int_equal(late.device[d].peak, early.device[d].peak);
		assert_int_equal(late.device[d].reserved, early.device[d].reserved);
		assert_int_equal(late.device[d].allocs, early.device[d].allocs);
		ok(get(a[d * ALL + 2], WIDE, token[d]));
		ok(get(a[d * ALL + 3], 1, (float *)&at));
		assert_int_equal(at, launches & (LONG - 1));
		assert_memory_equal(token[d], token[0], sizeof *token);
	}
	for (int i = 0; i < WIDE; i++)
		assert_true(token[0][i] == token[0][i] && token[0][i] > -1.01f && token[0][i] < 1.01f);
	for (int i = 0; i < ndev * ALL; i++)
		rt_buffer_unref(a[i]);
	rt_exec_unref(x);
	print_message("%d devices: at best %.2f us each at the beginning, %.2f at the end\n", ndev, (double)least[0] / 1e3 / WINDOW, (double)least[1] / 1e3 / WINDOW);
	return (double)least[1] <= LONGER * (double)least[0];
}

static void again(int ndev)
{
	int k = 0;

	while (k < TRIES && !replay(ndev))
		k++;
	assert_true(k < TRIES);
}

static void alone(void **state) { again(1); }
static void two(void **state) { again(2); }

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(alone), cmocka_unit_test(two) };

	launches = MAX(argc > 1 ? atoi(argv[1]) : draws(100000), 1000) / 10 * 10;
	rt_custom_register("gate", gate, NULL);
	return cmocka_run_group_tests(tests, setup, teardown);
}
