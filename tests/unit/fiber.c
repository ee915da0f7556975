/* Fibers: they go on where they left, on a stack of their own; who runs out of memory in one jumps inside it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"

enum { STACK = 256 << 10, FIBERS = 20, TURNS = 1000 };

struct turns { struct fiber *f; int id, sum; double x; };

/* Leaves from a depth of so many calls. */
static int deep(struct turns *t, int depth, int k)
{
	volatile char here[512];

	memset((char *)here, k, sizeof here);
	if (depth)
		return deep(t, depth - 1, k) + (here[depth] != (char)k);
	fiber_leave(t->f);
	return here[0] != (char)k;
}

static void takes_turns(void *v)
{
	struct turns *t = v;
	double x = t->id;

	for (int k = 0;; k++) {
		t->sum += k + t->id;
		x = x * 0.5 + k;
		t->x = x;
		assert_int_equal(deep(t, k % 50, k), 0);
	}
}

static void turns(void **state)
{
	static struct turns t[FIBERS];
	double x[FIBERS];

	for (int i = 0; i < FIBERS; i++) {
		t[i] = (struct turns){ .id = i };
		x[i] = i;
		assert_null(fiber_new(STACK, takes_turns, &t[i], &t[i].f));
	}
	for (int k = 0; k < TURNS; k++)
		for (int i = 0; i < FIBERS; i++) {
			fiber_enter(t[(i * 7 + k) % FIBERS].f);
			x[i] = x[i] * 0.5 + k;
		}
	for (int i = 0; i < FIBERS; i++) {
		assert_int_equal(t[i].sum, TURNS * (TURNS - 1) / 2 + TURNS * i);
		assert_true(t[i].x == x[i]);
		fiber_free(t[i].f);
	}
	fiber_free(NULL);
}

/* --- guards ------------------------------------------------------------------------ */

static bool refuse(size_t n) { return n == 77777; }

struct guarded { struct fiber *f; struct err *err; int undone; };

static void undo(void *v) { ((struct guarded *)v)->undone++; }

static struct err *takes(void *v)
{
	struct guarded *g = v;
	struct mem_undo u;

	mem_undo(&u, undo, g);
	fiber_leave(g->f);            /* its guard is not the caller's */
	mem_free(mem_alloc(77777));
	mem_done(&u);
	return NULL;
}

static void guarded_fiber(void *v)
{
	struct guarded *g = v;

	for (;;) {
		g->err = mem_guard(takes, g, false);
		fiber_leave(g->f);
	}
}

static struct err *outside(void *v)
{
	struct guarded *g = v;

	fiber_enter(g->f);
	assert_null(g->err);
	mem_free(mem_alloc(77777));   /* while the fiber is under a guard of its own */
	return NULL;
}

static struct err *nothing(void *v)
{
	fiber_enter(((struct guarded *)v)->f);
	return NULL;
}

static void guards(void **state)
{
	struct guarded g = { 0 };

	assert_null(fiber_new(STACK, guarded_fiber, &g, &g.f));
	for (int k = 0; k < 3; k++) {
		mem_refuse(refuse);
		struct err *e = mem_guard(outside, &g, false);
		assert_non_null(e);
		assert_int_equal(e->code, ERR_EXHAUSTED);
		err_free(e);
		assert_int_equal(g.undone, k);
		assert_null(g.err);
		assert_null(mem_guard(nothing, &g, false));      /* there it runs out of memory itself, under a guard that knows nothing of it */
		assert_non_null(g.err);
		assert_int_equal(g.err->code, ERR_EXHAUSTED);
		assert_int_equal(g.undone, k + 1);
		err_free(g.err);
		g.err = NULL;
		mem_refuse(NULL);
	}
	fiber_free(g.f);
}

static void no_room(void **state)
{
	struct fiber *f = NULL;
	struct err *e = fiber_new((size_t)1 << 60, takes_turns, NULL, &f);

	assert_non_null(e);
	assert_int_equal(e->code, ERR_EXHAUSTED);
	assert_null(f);
	err_free(e);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(turns), cmocka_unit_test(guards), cmocka_unit_test(no_room) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
