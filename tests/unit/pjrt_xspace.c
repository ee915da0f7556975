/* Profiles: what a recording becomes in the bytes of an XSpace, read back; and the order in which jaxlib may ask for them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#include "pjrt/impl.h"
#include "pjrt/pjrt.h"

extern _Atomic int trace_running;             /* of src/rt: windows that are open */

/* --- a reader ------------------------------------------------------------------- */

struct msg { const uint8_t *p, *end; };
struct field { uint32_t id; int wire; uint64_t v; struct msg m; };

static uint64_t varint(struct msg *m)
{
	uint64_t v = 0;
	for (int shift = 0;; shift += 7) {
		assert_true(m->p < m->end && shift < 70);
		v |= (uint64_t)(*m->p & 127) << shift;
		if (!(*m->p++ & 128))
			return v;
	}
}

static bool next(struct msg *m, struct field *f)
{
	if (m->p == m->end)
		return false;
	uint64_t key = varint(m);
	f->id = (uint32_t)(key >> 3);
	f->wire = (int)(key & 7);
	f->m = (struct msg){ 0 };
	if (f->wire == 0)
		f->v = varint(m);
	else {
		size_t n = f->wire == 1 ? 8 : (size_t)varint(m);
		assert_true((f->wire == 1 || f->wire == 2) && n <= (size_t)(m->end - m->p));
		f->m = (struct msg){ m->p, m->p + n };
		m->p += n;
	}
	return true;
}

/* Field id of m, the k-th of its kind. */
static bool find(struct msg m, uint32_t id, int k, struct field *f)
{
	while (next(&m, f))
		if (f->id == id && !k--)
			return true;
	return false;
}

static uint64_t number(struct msg m, uint32_t id)
{
	struct field f;
	return find(m, id, 0, &f) ? f.v : 0;
}

static void text(struct msg m, uint32_t id, char *out)
{
	struct field f;
	size_t n = find(m, id, 0, &f) ? (size_t)(f.m.end - f.m.p) : 0;
	memcpy(out, n ? (const char *)f.m.p : "", n);
	out[n] = '\0';
}

/* The entry of a map (field `map` of a plane) by its key. */
static struct msg entry(struct msg plane, uint32_t map, uint64_t key)
{
	struct field f, v;
	for (int k = 0; find(plane, map, k, &f); k++)
		if (number(f.m, 1) == key) {
			assert_true(find(f.m, 2, 0, &v));
			assert_int_equal(number(v.m, 1), key);
			return v.m;
		}
	fail();
	return (struct msg){ 0 };
}

/* The stat of that name among fields `id` of m. */
static bool stat_of(struct msg plane, struct msg m, uint32_t id, const char *name, struct msg *out)
{
	struct field f;
	char is[200];
	for (int k = 0; find(m, id, k, &f); k++) {
		text(entry(plane, 5, number(f.m, 1)), 2, is);
		if (!strcmp(is, name)) {
			*out = f.m;
			return true;
		}
	}
	return false;
}

static struct msg line_of(struct msg plane, const char *name)
{
	struct field f;
	char is[200];
	for (int k = 0; find(plane, 3, k, &f); k++) {
		text(f.m, 2, is);
		if (!strcmp(is, name))
			return f.m;
	}
	return (struct msg){ 0 };
}

static void is_stat(struct msg plane, struct msg m, uint32_t id, const char *name, const char *want)
{
	struct msg s;
	char is[200];
	struct field f;
	if (!stat_of(plane, m, id, name, &s)) {
		print_error("no stat '%s'\n", name);
		fail();
	}
	if (find(s, 5, 0, &f))
		text(s, 5, is);
	else
		snprintf(is, sizeof is, "%llu", (unsigned long long)number(s, 4));
	assert_string_equal(is, want);
}

/* --- what is written ---------------------------------------------------------- */

static void written(void **state)
{
	static const struct rt_trace_prog prog = { "jit_step", 77, 4 };
	static const char *const peer[2] = { "from 1 to 1", "from 0 to 0" };
	static const struct rt_trace_op op[4] = {
		{ .prog = &prog, .number = 0, .name = "jit_step", .sort = "launch", .site = "", .flops = 5 },
		{ .prog = &prog, .number = 1, .name = "dot", .sort = "dot", .site = "my train.py:31 dot", .scope = "jit(step)/block/dot_general", .flops = 300, .bytes = 400, .limit_ns = 2.5 },
		{ .prog = &prog, .number = 2, .name = "permute", .sort = "collective-permute", .site = "collective_permute", .peer = peer, .bytes = 1 << 20 },
		{ .prog = &prog, .number = 3, .name = "all_reduce", .sort = "all-reduce", .site = "", .peer = peer },
	};
	struct rt_trace_event ev[] = {
		{ &op[0], 1000, 5000, 0, 1, 1, RT_LANE_LAUNCH, true },
		{ &op[3], 1100, 4000, 0, 1, 1, RT_LANE_BESIDE, false },
		{ &op[1], 1200, 2000, 0, 1, 1, RT_LANE_COMPUTE, false },
		{ &op[2], 2000, 2000, -4096, 1, 1, RT_LANE_COMM, false },
		{ &op[0], 7000, 9000, 0, 2, 1, RT_LANE_LAUNCH, true },
		{ &op[1], 7100, 7300, 0, 2, 1, RT_LANE_COMPUTE, false },
	};
	struct rt_trace_device dev[2] = { { .id = 2, .flops = 50, .bytes = 20 }, { .id = 5, .flops = 50, .bytes = 20, .lost = 3, .n = NELEM(ev), .ev = ev } };
	struct rt_trace_read r = { .t0 = 900, .t1 = 10000, .wall = 1700000000000000000, .ndev = 2, .dev = dev };
	struct str s = { 0 };
	struct field f, e;
	char is[300];

	pjrt_xspace_write(&s, &r);
	struct msg space = { (const uint8_t *)s.p, (const uint8_t *)s.p + s.n };
	assert_true(find(space, 1, 0, &f));
	struct msg plane = f.m;
	assert_false(find(space, 1, 1, &f));                 /* a device that has run nothing has none */
	assert_int_equal(number(plane, 1), 5);
	text(plane, 2, is);
	assert_string_equal(is, "/device:TPU:5");
	is_stat(plane, plane, 6, "dropped_traces", "3");
	struct msg peak;
	assert_true(stat_of(plane, plane, 6, "peak_teraflops_per_second", &peak));
	double tera;
	assert_true(find(peak, 2, 0, &f) && f.wire == 1);
	memcpy(&tera, f.m.p, 8);
	assert_true(tera == 0.05);

	struct msg ops = line_of(plane, "XLA Ops");
	assert_int_equal(number(ops, 3), 1700000000000000000);
	assert_true(find(ops, 4, 0, &e));
	assert_int_equal(number(e.m, 2), 300000);             /* ps from the begin of the window */
	assert_int_equal(number(e.m, 3), 800000);
	is_stat(plane, e.m, 4, "step", "1");
	struct msg dot = entry(plane, 4, number(e.m, 1));
	text(dot, 2, is);
	assert_string_equal(is, "dot.1 my train.py:31 dot jit(step)/block/dot_general");
	text(dot, 4, is);
	assert_string_equal(is, "dot.1");
	is_stat(plane, dot, 5, "tf_op", "jit(step)/block/dot_general:dot_general");
	is_stat(plane, dot, 5, "source", "my train.py:31");
	is_stat(plane, dot, 5, "flops", "300");
	is_stat(plane, dot, 5, "bytes_accessed", "400");
	struct msg of_memory;
	assert_true(stat_of(plane, dot, 5, "memory_access_breakdown", &of_memory) && find(of_memory, 6, 0, &f) && find(f.m, 1, 0, &f));
	assert_true(number(f.m, 1) == 1 && number(f.m, 2) == 1 && number(f.m, 3) == 400);      /* reads of the main memory */
	is_stat(plane, dot, 5, "limit_ps", "2500");
	is_stat(plane, dot, 5, "program_id", "77");
	is_stat(plane, dot, 5, "symbol_id", "1");
	struct msg none;
	assert_false(stat_of(plane, dot, 5, "peers", &none));
	assert_true(find(ops, 4, 1, &e));
	is_stat(plane, e.m, 4, "bytes_read_in_place", "4096");
	struct msg permute = entry(plane, 4, number(e.m, 1));
	is_stat(plane, permute, 5, "peers", "from 0 to 0");   /* of this device */
	is_stat(plane, permute, 5, "hlo_category", "collective-permute");
	assert_false(stat_of(plane, permute, 5, "source", &none));      /* an op's name alone is no line */
	assert_true(find(ops, 4, 2, &f) && number(f.m, 1) == number(entry(plane, 4, number(f.m, 1)), 1));
	assert_false(find(ops, 4, 3, &f));
	assert_true(find(ops, 4, 0, &e) && find(ops, 4, 2, &f));
	assert_int_equal(number(e.m, 1), number(f.m, 1));     /* said once */

	struct msg steps = line_of(plane, "Steps");
	assert_true(find(steps, 4, 0, &e));
	assert_int_equal(number(e.m, 3), 6000000);            /* until the next begins */
	text(entry(plane, 4, number(e.m, 1)), 2, is);
	assert_string_equal(is, "1");
	assert_true(find(steps, 4, 1, &e));
	assert_int_equal(number(e.m, 3), 2000000);            /* until its launch ends */
	assert_false(find(steps, 4, 2, &e));
	struct msg modules = line_of(plane, "XLA Modules");
	assert_true(find(modules, 4, 1, &e));
	text(entry(plane, 4, number(e.m, 1)), 2, is);
	assert_string_equal(is, "jit_step(77)");
	assert_true(find(line_of(plane, "Async XLA Ops"), 4, 0, &e));
	assert_int_equal(number(e.m, 3), 2900000);

	/* What nothing is known of is not there, and small and large numbers come back. */
	struct str v = { 0 };
	static const uint64_t all[] = { 0, 1, 127, 128, 16383, 16384, UINT32_MAX, INT64_MAX, UINT64_MAX };
	for (size_t i = 0; i < NELEM(all); i++)
		pjrt_put_int(&v, 9, all[i]);
	struct msg m = { (const uint8_t *)v.p, (const uint8_t *)v.p + v.n };
	for (size_t i = 0; i < NELEM(all); i++)
		assert_true(next(&m, &f) && f.id == 9 && f.wire == 0 && f.v == all[i]);
	assert_false(next(&m, &f));
	str_free(&v);
	str_free(&s);
}

/* --- how it is asked for ------------------------------------------------------- */

static const struct pjrt_profiler_api *api;

static void fails(struct err *e, const char *text)
{
	assert_non_null(e);
	struct pjrt_profiler_message m = { .struct_size = sizeof m, .error = e };
	struct pjrt_profiler_code c = { .struct_size = sizeof c, .error = e };
	api->error_message(&m);
	assert_null(api->error_code(&c));
	assert_int_equal(c.code, ERR_PRECONDITION);
	assert_int_equal(m.message_size, strlen(m.message));
	assert_non_null(strstr(m.message, text));
	api->error_destroy(&(struct pjrt_profiler_destroy_error){ .struct_size = sizeof(struct pjrt_profiler_destroy_error), .error = e });
}

static struct pjrt_profiler *made(void)
{
	struct pjrt_profiler_create c = { .struct_size = sizeof c };
	assert_null(api->create(&c));
	return c.profiler;
}

static void order(void **state)
{
	const struct pjrt_extension *x = GetPjrtApi()->extension_start;
	while (x && x->type != EXT_PROFILER)
		x = x->next;
	assert_non_null(x);
	api = ((const struct pjrt_profiler_ext *)(const void *)x)->api;

	struct pjrt_profiler_args a = { .struct_size = sizeof a, .profiler = made() }, b = { .struct_size = sizeof b, .profiler = made() };
	fails(api->stop(&a), "never started");
	assert_null(api->start(&a));
	fails(api->start(&a), "started before");
	assert_null(api->start(&b));                         /* another one is no second time */
	assert_null(api->stop(&a));
	fails(api->stop(&a), "stopped before");
	fails(api->start(&a), "started before, and stopped");
	struct pjrt_profiler_collect c = { .struct_size = sizeof c, .profiler = a.profiler };
	assert_null(api->collect(&c));
	assert_int_equal(c.buffer_size_in_bytes, 0);          /* nothing ran */
	assert_null(api->destroy(&a));
	assert_null(api->destroy(&b));                       /* in the middle */
	assert_int_equal((int)trace_running, 0);
	assert_null(api->destroy(&(struct pjrt_profiler_args){ .struct_size = sizeof a }));
}

int main(void)
{
	const struct CMUnitTest all[] = { cmocka_unit_test(written), cmocka_unit_test(order) };

	return cmocka_run_group_tests(all, NULL, NULL);
}
