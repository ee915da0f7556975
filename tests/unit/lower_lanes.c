/* The memory plan over several lanes: storage is used again when the lane that wants it knows the others to be done with it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lower/lw.h"

enum { BYTES = 4096 };
static struct arena a;
static struct prog *p;
static struct lw w;
static cmd_list list;

static int begin(void **state)
{
	void *saved;
	arena_init(&a);
	p = calloc(1, sizeof *p);
	arena_init(&p->arena);
	w = (struct lw){ .tmp = &a, .p = p };
	lw_block_begin(&w, &list, &saved);
	return 0;
}

static int end(void **state)
{
	arr_free(&list);
	arr_free(&w.buf); arr_free(&w.opnd); arr_free(&w.store); arr_free(&w.mark); arr_free(&w.block); arr_free(&w.loops);
	arena_fini(&p->arena);
	free(p);
	arena_fini(&a);
	return 0;
}

static struct place *temp(void)
{
	return lw_temp(&w, DT_i8, 1, (int64_t[]){ BYTES });
}

/* A command of the lane that uses x, and y if it is not NULL. */
static void use(int lane, struct place *x, struct place *y)
{
	w.lane = lane;
	lw_opnds(&w, lw_cmd(&w, CMD_COLL), y ? 2 : 1, (struct place *[]){ x, y });
}

static bool share(const struct place *x, const struct place *y)
{
	int64_t i = w.buf.p[w.store.p[x->store].buf].off, j = w.buf.p[w.store.p[y->store].buf].off;
	return i < j + BYTES && j < i + BYTES;
}

static void one_lane(void **state)
{
	struct place *x = temp(), *y, *z;
	use(0, x, NULL);
	y = temp();
	use(0, x, y);
	z = temp();
	use(0, y, z);
	lw_memory_plan(&w);
	assert_true(share(x, z));
	assert_false(share(x, y) || share(y, z));
	assert_int_equal(p->zone, 2 * BYTES);
}

/* Lane 1 works on x that lane 0 has made; lane 0 wants z afterwards, without and with an await of lane 1. */
static void two_lanes(bool await)
{
	struct place *x = temp(), *y, *z;
	use(0, x, NULL);
	int made = lw_mark(&w);
	w.lane = 1;
	lw_await(&w, made);
	y = temp();
	use(1, x, y);
	int done = lw_mark(&w);
	w.lane = 0;
	if (await)
		lw_await(&w, done);
	z = temp();
	use(0, z, NULL);
	lw_memory_plan(&w);
	assert_int_equal(share(x, z), await);
	assert_int_equal(share(y, z), await && !share(x, z));
	assert_false(share(x, y));
}

static void unordered(void **state) { two_lanes(false); }
static void awaited(void **state) { two_lanes(true); }

/* What a lane knows it hands on: 0 -> 1 -> 2. */
static void handed_on(void **state)
{
	struct place *x = temp(), *y;
	use(0, x, NULL);
	int m = lw_mark(&w);
	w.lane = 1;
	lw_await(&w, m);
	m = lw_mark(&w);
	w.lane = 2;
	lw_await(&w, m);
	y = temp();
	use(2, y, NULL);
	lw_memory_plan(&w);
	assert_true(share(x, y));
}

/* What was made before a loop and is used in it by lane 1 is needed to the end of the loop by that lane, whichever closes the loop. */
static void in_a_loop(void **state)
{
	w.lane = 1;
	struct place *x = temp(), *y, *z;
	use(1, x, NULL);
	lw_loop_begin(&w);
	use(1, x, NULL);
	int m = lw_mark(&w);
	y = temp();                            /* after the last use in the text, before the next turn's */
	use(1, y, NULL);
	w.lane = 0;
	lw_await(&w, m);
	lw_loop_end(&w);
	z = temp();                            /* lane 0 knows nothing of what lane 1 did after the mark */
	use(0, z, NULL);
	lw_memory_plan(&w);
	assert_false(share(x, y) || share(x, z) || share(y, z));
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(one_lane), TEST(unordered), TEST(awaited), TEST(handed_on), TEST(in_a_loop),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
