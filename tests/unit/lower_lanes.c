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

static void open_lw(struct lw *w, cmd_list *list, void **saved)
{
	arena_init(&a);
	p = calloc(1, sizeof *p);
	arena_init(&p->arena);
	*w = (struct lw){ .tmp = &a, .p = p };
	lw_block_begin(w, list, saved);
}

static void close_lw(struct lw *w, cmd_list *list)
{
	arr_free(list);
	arr_free(&w->buf); arr_free(&w->opnd); arr_free(&w->store); arr_free(&w->mark); arr_free(&w->block); arr_free(&w->loops);
	arena_fini(&p->arena);
	free(p);
	arena_fini(&a);
}

static struct place *temp(struct lw *w)
{
	return lw_temp(w, DT_i8, 1, (int64_t[]){ BYTES });
}

/* A command of the lane that uses x, and y if it is not NULL. */
static void use(struct lw *w, int lane, struct place *x, struct place *y)
{
	w->lane = lane;
	lw_opnds(w, lw_cmd(w, CMD_COLL), y ? 2 : 1, (struct place *[]){ x, y });
}

static bool share(const struct lw *w, const struct place *x, const struct place *y)
{
	int64_t i = w->buf.p[w->store.p[x->store].buf].off, j = w->buf.p[w->store.p[y->store].buf].off;
	return i < j + BYTES && j < i + BYTES;
}

static void one_lane(void **state)
{
	struct lw w;
	cmd_list list;
	void *saved;
	open_lw(&w, &list, &saved);
	struct place *x = temp(&w), *y, *z;
	use(&w, 0, x, NULL);
	y = temp(&w);
	use(&w, 0, x, y);
	z = temp(&w);
	use(&w, 0, y, z);
	lw_memory_plan(&w);
	assert_true(share(&w, x, z));
	assert_false(share(&w, x, y) || share(&w, y, z));
	assert_int_equal(p->zone, 2 * BYTES);
	close_lw(&w, &list);
}

/* Lane 1 works on x that lane 0 has made; lane 0 wants z afterwards, without and with an await of lane 1. */
static void two_lanes(bool await)
{
	struct lw w;
	cmd_list list;
	void *saved;
	open_lw(&w, &list, &saved);
	struct place *x = temp(&w), *y, *z;
	use(&w, 0, x, NULL);
	int made = lw_mark(&w);
	w.lane = 1;
	lw_await(&w, made);
	y = temp(&w);
	use(&w, 1, x, y);
	int done = lw_mark(&w);
	w.lane = 0;
	if (await)
		lw_await(&w, done);
	z = temp(&w);
	use(&w, 0, z, NULL);
	lw_memory_plan(&w);
	assert_int_equal(share(&w, x, z), await);
	assert_int_equal(share(&w, y, z), await && !share(&w, x, z));
	assert_false(share(&w, x, y));
	close_lw(&w, &list);
}

static void unordered(void **state) { two_lanes(false); }
static void awaited(void **state) { two_lanes(true); }

/* What a lane knows it hands on: 0 -> 1 -> 2. */
static void handed_on(void **state)
{
	struct lw w;
	cmd_list list;
	void *saved;
	open_lw(&w, &list, &saved);
	struct place *x = temp(&w), *y;
	use(&w, 0, x, NULL);
	int m = lw_mark(&w);
	w.lane = 1;
	lw_await(&w, m);
	m = lw_mark(&w);
	w.lane = 2;
	lw_await(&w, m);
	y = temp(&w);
	use(&w, 2, y, NULL);
	lw_memory_plan(&w);
	assert_true(share(&w, x, y));
	close_lw(&w, &list);
}

/* What was made before a loop and is used in it by lane 1 is needed to the end of the loop by that lane, whichever closes the loop. */
static void in_a_loop(void **state)
{
	struct lw w;
	cmd_list list;
	void *saved;
	open_lw(&w, &list, &saved);
	w.lane = 1;
	struct place *x = temp(&w), *y, *z;
	use(&w, 1, x, NULL);
	lw_loop_begin(&w);
	use(&w, 1, x, NULL);
	int m = lw_mark(&w);
	y = temp(&w);                            /* after the last use in the text, before the next turn's */
	use(&w, 1, y, NULL);
	w.lane = 0;
	lw_await(&w, m);
	lw_loop_end(&w);
	z = temp(&w);                            /* lane 0 knows nothing of what lane 1 did after the mark */
	use(&w, 0, z, NULL);
	lw_memory_plan(&w);
	assert_false(share(&w, x, y) || share(&w, x, z) || share(&w, y, z));
	close_lw(&w, &list);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_lane), cmocka_unit_test(unordered), cmocka_unit_test(awaited), cmocka_unit_test(handed_on), cmocka_unit_test(in_a_loop),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
