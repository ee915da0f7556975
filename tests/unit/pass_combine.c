/* Pass combine: random programs of small sums, and of what reads them, give the same bits before and after it; and sums that stand side by side
 * do become one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "draws.h"
#include "eval/eval.h"
#include "parsed.h"
#include "pass/pass.h"

enum { DEVICES = 4, PARAMS = 4, MOST = 64, RESULTS = 6 };
static uint64_t seed;
static const char *const shape[] = { "f32[]", "f32[8]", "f32[2,4]", "f32[16,8]" };
static const int64_t count[] = { 1, 8, 8, 128 };

static uint32_t draw(uint32_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % n;
}

static int sums(const struct ir_module *m)
{
	int n = 0;
	for (size_t i = 0; i < ir_main(m)->op.n; i++)
		n += ir_main(m)->op.p[i].kind == IR_all_reduce;
	return n;
}

/* How many sums the program has before and after the pass. */
static void both(const char *text, int *before, int *after)
{
	struct ir_module *m = parsed(text);
	*before = sums(m);
	struct eval_array a[DEVICES * PARAMS], want[DEVICES * RESULTS] = {0}, have[DEVICES * RESULTS] = {0};
	for (int i = 0; i < DEVICES * PARAMS; i++) {
		float *x = calloc((size_t)count[i % PARAMS] + 4, sizeof *x);
		for (int64_t n = 0; n < count[i % PARAMS]; n++)
			x[n] = (float)(int32_t)draw(1 << 20) / (1 << 18) - 2;
		a[i] = (struct eval_array){ .dtype = DT_f32, .p = x, .bytes = (size_t)count[i % PARAMS] * sizeof *x };
	}
	struct eval_opts o = { .ndev = DEVICES, .max_iter = 10 };
	struct err *e = eval_main(m, &o, a, want);
	if (!e)
		e = pass_run_only(&(struct pass_opts){ .ndev = DEVICES, .check = true }, m, "combine");
	if (!e)
		e = eval_main(m, &o, a, have);
	if (e)
		fail_msg("%s\n%s", e->msg, text);
	*after = sums(m);
	for (int i = 0; i < DEVICES * RESULTS; i++) {
		if (want[i].bytes != have[i].bytes || (want[i].bytes && memcmp(want[i].p, have[i].p, want[i].bytes) != 0))
			fail_msg("result %d of device %d differs\n%s", i % RESULTS, i / RESULTS, text);
		eval_array_free(&want[i]);
		eval_array_free(&have[i]);
	}
	for (int i = 0; i < DEVICES * PARAMS; i++)
		free(a[i].p);
	ir_module_free(m);
}

static void random_sums(void **state)
{
	static const char *const rows[] = { "[[0,1,2,3]]", "[[0,1,2,3]]", "[[0,1],[2,3]]" }, *const redop[] = { "add", "add", "max" };
	static const char *const one[] = { "negate", "tanh", "exponential" }, *const two[] = { "add", "multiply", "subtract" };
	int all = 0, left = 0;
	(void)state;
	for (int round = 0; round < draws(600); round++) {
		struct str t = {0};
		int of[MOST] = { 0, 0, 1, 2, 3 }, n = PARAMS, before, after;      /* of each value its shape */
		seed = (uint64_t)round;
		str_addf(&t, "module @m partitions=%d replicas=1\nfn @main(%%1: f32[], %%2: f32[8], %%3: f32[2,4], %%4: f32[16,8]) -> (", DEVICES);
		struct str ops = {0}, out = {0};
		for (int k = 10 + (int)draw(30); k-- > 0;) {
			int x = 1 + (int)(draw(2) ? draw((uint32_t)n) : (uint32_t)n - 1 - draw((uint32_t)MIN(n, 4))), y = 1 + (int)draw((uint32_t)n), s = of[x];
			switch (draw(8)) {
			case 0: case 1: case 2:
				str_addf(&ops, "  %%%d = all_reduce %%%d group=%s redop=%s : %s\n", n + 1, x, rows[draw(3)], redop[draw(3)], shape[s]);
				break;
			case 3:
				if (of[y] != s)
					continue;
				str_addf(&ops, "  %%%d = %s %%%d, %%%d : %s\n", n + 1, two[draw(3)], x, y, shape[s]);
				break;
			case 4:
				if (s == 0 || s == 3)
					continue;
				s = 3 - s;
				str_addf(&ops, "  %%%d = reshape %%%d : %s\n", n + 1, x, shape[s]);
				break;
			case 5:
				if (s == 3) {            /* large ones are summed up, small ones spread */
					str_addf(&ops, "  %%%d = constant data=0 : f32[]\n  %%%d = reduce %%%d, %%%d dims=[0] redop=add : f32[8]\n", n + 1, n + 2, x, n + 1);
					of[++n] = 0;
					s = 1;
				} else if (s == 1) {
					str_addf(&ops, "  %%%d = broadcast %%%d dims=[1] : f32[16,8]\n", n + 1, x);
					s = 3;
				} else {
					continue;
				}
				break;
			default:
				str_addf(&ops, "  %%%d = %s %%%d : %s\n", n + 1, one[draw(3)], x, shape[s]);
			}
			of[++n] = s;
		}
		for (int k = 0; k < RESULTS; k++) {
			int v = k < 2 ? n - k : 1 + (int)draw((uint32_t)n);
			str_addf(&t, "%s%s", k ? ", " : "", shape[of[v]]);
			str_addf(&out, "%s%%%d", k ? ", " : "", v);
		}
		str_addf(&t, ") {\n%s  return %s\n}\n", ops.p, out.p);
		both(t.p, &before, &after);
		all += before;
		left += after;
		str_free(&t);
		str_free(&ops);
		str_free(&out);
	}
	assert_true(left < all * 4 / 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(random_sums) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
