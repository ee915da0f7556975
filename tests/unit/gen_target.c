/* The table of targets: each row is whole, and makes code for all kinds of groups, also where that code cannot run. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "gen_run.h"

static bool power_of_2(int64_t n, int64_t most)
{
	return n > 0 && n <= most && !(n & (n - 1));
}

/* Only numbers that the emitter relies on. */
static void rows(void **state)
{
	const struct gen_target *t;
	int n = 0;
	for (; (t = gen_target_row(n)); n++) {
		print_message("%s\n", t->name);
		assert_int_equal(t->id, n);
		for (int k = 0; k < n; k++)
			assert_string_not_equal(t->name, gen_target_row(k)->name);
		assert_non_null(t->here);
		assert_true(t->lacks || (t->triple && t->cpu && t->features));
		assert_true(power_of_2(t->vbytes, 128) && power_of_2(t->vectors, 4) && power_of_2(t->columns, 4));
		assert_true(t->vbytes / 4 * t->vectors * t->columns <= 128);       /* lanes */
		for (int k = 0; k < 4; k++)
			assert_true(power_of_2(t->transpose[k], 16) && t->across % t->transpose[k] == 0);
		assert_true(power_of_2(t->line, 4096) && t->mask_from > 0 && t->gather_from >= 0 && t->scales >= 0);
		assert_true(t->gather_cost > 0 && t->scatter_cost > 0 && t->chunk > 0 && t->kept >= 0 && t->past >= 0);
		assert_true(t->work > 0 && t->tiles > 0 && t->tiles_most >= t->tiles && t->unroll > 0 && t->tiny > 0 && t->tiny <= 256);
	}
	assert_true(n > 1);
	assert_null(gen_target_row(n));
}

static const struct { const char *what, *text; } groups[] = {
	{ "rounding, exponentials, quotients, and what the library has to do",
	  "fn @f(%1: bf16[9,100], %2: f32[9,100], %3: f64[9,100]) -> (bf16[9,100], bf16[9,100], f32[9,100], f64[9,100]) {\n"
	  "  %4 = tanh %1 : bf16[9,100]\n  %5 = exponential %4 : bf16[9,100]\n  %6 = logistic %5 : bf16[9,100]\n"
	  "  %7 = tanh %2 : f32[9,100]\n  %8 = logistic %7 : f32[9,100]\n  %9 = sine %8 : f32[9,100]\n  %10 = remainder %9, %2 : f32[9,100]\n"
	  "  %11 = convert %2 : bf16[9,100]\n  %12 = power %3, %3 : f64[9,100]\n"
	  "  return %6, %11, %10, %12\n}\n" },
	{ "transposed blocks",
	  "fn @f(%1: i8[100,90], %2: bf16[100,90], %3: f32[100,90], %4: f64[100,90]) -> (i8[90,100], bf16[90,100], f32[90,100], f64[90,100]) {\n"
	  "  %5 = transpose %1 perm=[1,0] : i8[90,100]\n  %6 = transpose %2 perm=[1,0] : bf16[90,100]\n"
	  "  %7 = transpose %3 perm=[1,0] : f32[90,100]\n  %8 = transpose %4 perm=[1,0] : f64[90,100]\n"
	  "  return %5, %6, %7, %8\n}\n" },
	{ "elements that lie apart, and places that are read",
	  "fn @f(%1: f32[200,700], %2: bf16[100,200], %3: f32[50], %4: i32[100,1]) -> (f32[100,100], bf16[100,100], f32[100,100]) {\n"
	  "  %5 = slice %1 start=[0,0] limit=[200,700] stride=[2,7] : f32[100,100]\n"
	  "  %6 = slice %2 start=[0,0] limit=[100,200] stride=[1,2] : bf16[100,100]\n"
	  "  %7 = gather %3, %4 offset_dims=[] collapsed=[0] index_map=[0] index_dim=1 size=[1] sorted=0 : f32[100]\n"
	  "  %8 = broadcast %7 dims=[1] : f32[100,100]\n"
	  "  return %5, %6, %8\n}\n" },
	{ "sums of rows, whose exponentials are kept",
	  "fn @f(%1: f32[9,300]) -> (f32[9,300]) {\n  %2 = constant data=[0] : f32[]\n  %3 = exponential %1 : f32[9,300]\n"
	  "  %4 = reduce %3, %2 dims=[1] redop=add : f32[9]\n  %5 = broadcast %4 dims=[0] : f32[9,300]\n  %6 = divide %3, %5 : f32[9,300]\n"
	  "  return %6\n}\n" },
	{ "the largest of columns",
	  "fn @f(%1: bf16[200,3000]) -> (bf16[3000]) {\n  %2 = constant data=[0] : bf16[]\n"
	  "  %3 = reduce %1, %2 dims=[0] redop=max : bf16[3000]\n  return %3\n}\n" },
	{ "results that go past the caches, and a constant",
	  "fn @f(%1: f32[9,5000,1000]) -> (f32[9,5000,1000]) {\n  %2 = constant data=[1,2,3,4,5,6,7,8,9] : f32[9]\n"
	  "  %3 = broadcast %2 dims=[0] : f32[9,5000,1000]\n  %4 = multiply %1, %3 : f32[9,5000,1000]\n  return %4\n}\n" },
	{ "a loop over small values",
	  "fn @f(%1: f32[4,4], %2: f32[4,4]) -> (f32[4,4]) {\n  %3 = loop %1, %2 trip=30 body=@b role=[carry,const] : f32[4,4]\n  return %3\n}\n"
	  "fn @b(%1: i32[], %2: f32[4,4], %3: f32[4,4]) -> (f32[4,4]) {\n  %4 = tanh %2 : f32[4,4]\n  %5 = add %4, %3 : f32[4,4]\n  return %5\n}\n" },
};

static void every_group(void **state)
{
	setenv("RONDO_CACHE", "", 1);
	setenv("RONDO_CHECK", "1", 1);
	int made = 0;
	for (size_t g = 0; g < NELEM(groups); g++) {
		struct str s = { 0 };
		struct ir_module *m;
		str_addf(&s, "module @m\n%s", groups[g].text);
		struct err *e = ir_parse(s.p, s.n, &m);
		if (e)
			fail_msg("%s: %s", groups[g].what, e->msg);
		const struct gen_target *t;
		struct gen_out last = { 0 };
		for (int i = 0; (t = gen_target_row(i)); i++) {
			struct gen_out o;
			struct rt_code *c;
			e = gen_group_for(t, m, ir_main(m), NULL, &o);
			if (t->lacks) {
				assert_non_null(e);
				assert_int_equal(e->code, ERR_UNAVAILABLE);
				assert_string_equal(e->msg, t->lacks);
				err_free(e);
				continue;
			}
			if (e)
				fail_msg("%s, %s: %s", groups[g].what, t->name, e->msg);
			/* what it calls is there, wherever its code may run */
			e = rt_code_load(o.obj, o.nobj, &c);
			if (e)
				fail_msg("%s, %s: %s", groups[g].what, t->name, e->msg);
			assert_non_null(rt_code_symbol(c, o.symbol));
			rt_code_free(c);
			if (g == 0 && last.nobj)
				assert_true(last.nobj != o.nobj || memcmp(last.obj, o.obj, o.nobj));
			last = o;
			made++;
		}
		str_free(&s);
		ir_module_free(m);
	}
	assert_true(made > (int)NELEM(groups));
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(rows), cmocka_unit_test(every_group) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
