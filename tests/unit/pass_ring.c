/* Attention over hosts goes round these where each has as many devices, one after the other, in the order of the group. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "parsed.h"
#include "pass/pass.h"

enum { MOST = 8, LEN = 512 };

/* Permutes that an attention over n devices on these hosts becomes; the order of the group is turned by `first`. */
static int permutes(int n, const int *host, int first)
{
	struct str s = {0}, group = {0};
	int found = 0;
	for (int i = 0; i < n; i++)
		str_addf(&group, "%s%d", i ? "," : "", (i + first) % n);
	str_addf(&s, "module @m partitions=%d replicas=1\nfn @main(%%1: f32[2,1,%d,64], %%2: f32[2,%d,64], %%3: f32[2,%d,64]) -> (f32[2,1,%d,64]) {\n", n, LEN, LEN, LEN, LEN);
	for (int i = 2; i < 4; i++)
		str_addf(&s, "  %%%d = all_gather %%%d dim=1 group=[[%s]] : f32[2,%d,64]\n", i + 2, i, group.p, n * LEN);
	str_addf(&s, "  %%6, %%7 = attention %%1, %%4, %%5 fn=@score : f32[2,1,%d,64], f32[2,1,%d]\n  return %%6\n}\nfn @score(%%1: f32[]) -> (f32[]) {\n  return %%1\n}\n", LEN, LEN);
	struct ir_module *m = parsed(s.p);
	struct pass_opts o = { .ndev = n, .plan = { .ndev = n, .host = host }, .stop = "ring", .check = true };
	assert_null(pass_run(&o, m));
	for (size_t i = 0; i < ir_main(m)->op.n; i++)
		found += ir_main(m)->op.p[i].kind == IR_collective_permute;
	ir_module_free(m);
	str_free(&s);
	str_free(&group);
	return found;
}

static void hosts(void **state)
{
	static const struct { int n, host[MOST], turns; } is[] = {
		{ 4, { 0, 0, 1, 1 }, 2 },
		{ 4, { 1, 1, 0, 0 }, 2 },
		{ 3, { 0, 1, 2 }, 3 },
		{ 6, { 2, 2, 0, 0, 1, 1 }, 3 },
		{ 8, { 0, 0, 1, 1, 0, 0, 1, 1 }, 4 },     /* it comes back */
		{ 4, { 0, 0, 0, 0 }, 1 },
		{ 3, { 0, 0, 1 }, 1 },
		{ 3, { 0, 1, 1 }, 1 },
		{ 4, { 0, 1, 1, 1 }, 1 },
		{ 4, { 0, 1, 1, 0 }, 1 },
		{ 5, { 0, 0, 1, 1, 1 }, 1 },
		{ 6, { 0, 0, 1, 1, 1, 1 }, 1 },
		{ 6, { 0, 1, 1, 0, 2, 2 }, 1 },
	};
	for (size_t i = 0; i < NELEM(is); i++)
		assert_int_equal(permutes(is[i].n, is[i].host, 0), 2 * (is[i].turns - 1));      /* keys and values */
	assert_int_equal(permutes(4, is[0].host, 2), 2);
	assert_int_equal(permutes(4, is[0].host, 1), 0);
	assert_int_equal(permutes(4, is[9].host, 1), 2);
	assert_int_equal(permutes(4, NULL, 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(hosts) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
