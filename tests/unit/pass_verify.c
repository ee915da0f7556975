/* A device's program whose parts do not fit together is an error of the compiler, not a number, also where nobody asked for checks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "parsed.h"
#include "pass/pass.h"

static bool always(void *user, const char *target) { return true; }
static bool never(void *user, const char *target) { return false; }

/* The product of a device's part with one that has half as many rows, or as many. */
static struct err *product(void *user, struct spmd_call *c)
{
	c->local = parsed("module @part partitions=2\n\nfn @main(%1: f32[8,8]) -> (f32[8,8]) {\n  %2 = constant data=1 : f32[8,8]\n"
	                  "  %3 = dot %1, %2 lc=[1] rc=[0] precision=0 components=1 : f32[8,8]\n  return %3\n}\n");
	if (*(bool *)user)
		c->local->fn.p[1]->val.p[2].type = ir_tensor(c->local, DT_f32, 2, (int64_t[]){ 4, 8 });
	return NULL;
}

static void cut(bool wrong)
{
	struct spmd_maker maker = { &wrong, always, never, never, product, NULL };
	struct pass_opts o = { .ndev = 2, .maker = &maker };
	struct ir_module *m = parsed("module @m partitions=2\n\nfn @main(%1: f32[8,8]) -> (f32[8,8]) {\n"
	                             "  %2 = custom_call %1 target=\"t\" api=4 effect=0 config={\"key\"=0:i64} : f32[8,8]\n  return %2\n}\n");
	assert_int_equal(ir_key_add(m, "k", 1), 0);
	struct err *e = pass_run(&o, m);
	if (wrong) {
		assert_non_null(e);
		assert_int_equal(e->code, ERR_INTERNAL);
		assert_non_null(strstr(e->msg, "after pass 'partition'"));
		assert_non_null(strstr(e->msg, "dot"));
		err_free(e);
	} else if (e) {
		fail_msg("%s", e->msg);
	}
	ir_module_free(m);
}

static void right(void **state) { (void)state; cut(false); }
static void wrong(void **state) { (void)state; cut(true); }

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(right), cmocka_unit_test(wrong) };
	return cmocka_run_group_tests(t, NULL, NULL);
}
