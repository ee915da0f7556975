/* Joint reducers: what pass joint makes of them gives what they mean, and parts of an attention join to the whole. */
#include <math.h>
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

enum { DEVICES = 4, MOST = 8 };
static uint64_t seed;

static uint32_t draw(uint32_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % n;
}

static double number(void)
{
	return (double)draw(1 << 20) / (1 << 18) - 2;
}

static void put(enum dtype dt, void *p, int64_t i, double v)
{
	if (dt == DT_f64)
		((double *)p)[i] = v;
	else
		kern_elem(ELEM_convert, DT_f64, dt)(1, (char *)p + i * dtype_info[dt].bytes, &v, NULL, NULL);
}

static double get(enum dtype dt, const void *p, int64_t i)
{
	double v;
	if (dt == DT_f64)
		return ((const double *)p)[i];
	kern_elem(ELEM_convert, dt, DT_f64)(1, &v, (const char *)p + i * dtype_info[dt].bytes, NULL, NULL);
	return v;
}

/* The results of text on DEVICES positions with inputs a, after the passes up to stop (NULL: as it is). */
static void results(const char *text, const char *stop, struct eval_array *a, struct eval_array *r)
{
	struct ir_module *m = parsed(text);
	struct pass_opts p = { .ndev = DEVICES, .stop = stop, .check = true };
	struct err *e = stop ? pass_run(&p, m) : NULL;
	if (!e)
		e = eval_main(m, &(struct eval_opts){ .ndev = DEVICES, .max_iter = 10 }, a, r);
	if (e)
		fail_msg("%s\n%s", e->msg, text);
	ir_module_free(m);
}

static const char *const rows[] = { "[[0,1,2,3]]", "[[0,1],[2,3]]", "[[2,0],[3,1]]", "[[0,1,2],[3,-1,-1]]", "[[3,1]]" };

static void one(void)
{
	static const enum dtype types[] = { DT_f32, DT_f32, DT_bf16, DT_f16, DT_f64 };
	static const int64_t extents[] = { 1, 2, 4, 8, 12, 64, 128 };
	enum dtype dt[2] = { types[draw(NELEM(types))], types[draw(NELEM(types))] };
	bool scatter = draw(3) == 0;
	int g = (int)draw(scatter ? 3 : NELEM(rows)), rank = 1 + (int)draw(3), inner = (int)draw(3), pairs = 1 + (int)draw(2), members = g == 0 ? 4 : 2;
	int64_t dim[MOST], count[2] = { 1, 1 };
	struct str shape[2] = {0}, part[2] = {0}, in = {0}, out = {0}, operands = {0}, names = {0}, text = {0};
	for (int d = 0; d < rank + inner; d++) {
		dim[d] = d == 0 && scatter ? 4 : extents[draw(count[0] > 4000 ? 2 : NELEM(extents))];
		for (int k = 0; k < 2; k++)
			if (k == 0 || d < rank) {
				count[k] *= dim[d];
				str_addf(&shape[k], "%s%ld", d ? "," : "", (long)dim[d]);
				str_addf(&part[k], "%s%ld", d ? "," : "", (long)(d == 0 && scatter ? dim[d] / members : dim[d]));
			}
	}
	for (int k = 0; k < 2 * pairs; k++) {
		const char *comma = k ? ", " : "";
		str_addf(&in, "%s%%%d: %s[%s]", comma, k + 1, dtype_info[dt[k % 2]].name, shape[k % 2].p);
		str_addf(&out, "%s%s[%s]", comma, dtype_info[dt[k % 2]].name, part[k % 2].p);
		str_addf(&operands, "%s%%%d", comma, k + 1);
		str_addf(&names, "%s%%%d", comma, 2 * pairs + k + 1);
	}
	str_addf(&text, "module @m partitions=%d replicas=1\nfn @main(%s) -> (%s) {\n  %s = %s %s %sgroup=%s redop=softmax : %s\n  return %s\n}\n", DEVICES, in.p, out.p,
	         names.p, scatter ? "reduce_scatter" : "all_reduce", operands.p, scatter ? "dim=0 " : "", rows[g], out.p, names.p);

	struct eval_array a[DEVICES * 4] = {0}, want[DEVICES * 4] = {0}, have[DEVICES * 4] = {0};
	for (int i = 0; i < DEVICES * 2 * pairs; i++) {
		enum dtype t = dt[i % 2];
		a[i].bytes = (size_t)count[i % 2] * dtype_info[t].bytes;
		a[i].p = calloc(1, a[i].bytes + 16);
		for (int64_t k = 0; k < count[i % 2]; k++) {
			double v = number() * (i % 2 ? 8 : 1);
			uint32_t s = draw(40);
			if (i % 2 && s < 6)
				v = s < 4 ? -INFINITY : s == 4 ? NAN : INFINITY;
			if (!(i % 2) && s == 0)
				v = draw(2) ? NAN : INFINITY;
			put(t, a[i].p, k, v);
		}
	}
	results(text.p, NULL, a, want);
	results(text.p, "joint", a, have);
	for (int i = 0; i < DEVICES * 2 * pairs; i++) {
		enum dtype t = dt[i % 2];
		bool wide = dt[0] == DT_f64 || dt[1] == DT_f64;
		double step = t == DT_bf16 ? 0x1p-7 : t == DT_f16 ? 0x1p-10 : t == DT_f64 ? 0x1p-40 : 0x1p-18;
		if (!wide)
			step = fmax(step, 0x1p-18);
		assert_int_equal(want[i].bytes, have[i].bytes);
		for (int64_t k = 0; k < (int64_t)(want[i].bytes / dtype_info[t].bytes); k++) {
			double x = get(t, want[i].p, k), y = get(t, have[i].p, k);
			if (!(x == y || (x != x && y != y) || fabs(x - y) <= step * fmax(1, fabs(x))))
				fail_msg("result %d element %ld: %.9g, not %.9g\n%s", i, (long)k, y, x, text.p);
		}
		free(a[i].p);
		eval_array_free(&want[i]);
		eval_array_free(&have[i]);
	}
	struct str *all[] = { &shape[0], &shape[1], &part[0], &part[1], &in, &out, &operands, &names, &text };
	for (size_t i = 0; i < NELEM(all); i++)
		str_free(all[i]);
}

static void random_pairs(void **state)
{
	const char *given = getenv("SEED");
	uint64_t first = given ? strtoull(given, NULL, 0) : 20000;
	for (uint64_t s = first; s < first + (uint64_t)draws(300); s++) {
		seed = s * 2 + 1;
		for (int i = 0; i < 4; i++)
			draw(2);
		one();
	}
}

/* Attention over 4 x 8 keys: each device has 8 of them; masked rows on some, one row masked on all. */
static void attention(void **state)
{
	enum { T = 6, S = 8, D = 5 };
	static const char text[] =
		"module @m partitions=4 replicas=1\n"
		"fn @main(%1: f32[6,5], %2: f32[6]) -> (f32[6,5], f32[6]) {\n"
		"  %3, %4 = all_reduce %1, %2 group=[[0,1,2,3]] redop=softmax : f32[6,5], f32[6]\n"
		"  return %3, %4\n}\n";
	struct eval_array a[DEVICES * 2] = {0}, r[DEVICES * 2] = {0};
	double o[T][D] = {{0}}, sum[T] = {0};
	seed = 5;
	for (int d = 0; d < DEVICES; d++) {
		float *po = (a[2 * d].p = calloc(T * D, 4)), *pl = (a[2 * d + 1].p = calloc(T, 4));
		a[2 * d].bytes = T * D * 4;
		a[2 * d + 1].bytes = T * 4;
		for (int t = 0; t < T; t++) {
			double mine[D] = {0}, weight = 0;
			for (int s = 0; s < S; s++) {
				double w = t == 0 || (t == d && t > 0) ? 0 : exp(number() * 3);
				weight += w;
				for (int k = 0; k < D; k++)
					mine[k] += w * (double)(1 + (t + s * 3 + k * 7 + d) % 11);
			}
			sum[t] += weight;
			for (int k = 0; k < D; k++) {
				o[t][k] += mine[k];
				po[t * D + k] = (float)(mine[k] / weight);      /* NaN where all keys are masked */
			}
			pl[t] = (float)log(weight);
		}
	}
	for (int way = 0; way < 2; way++) {
		results(text, way ? "joint" : NULL, a, r);
		for (int d = 0; d < DEVICES; d++)
			for (int t = 0; t < T; t++) {
				double l = ((float *)r[2 * d + 1].p)[t];
				assert_true(t == 0 ? l == -INFINITY : fabs(l - log(sum[t])) < 1e-5);
				for (int k = 0; k < D; k++)
					assert_true(fabs(((float *)r[2 * d].p)[t * D + k] - (t == 0 ? 0 : o[t][k] / sum[t])) < 1e-5);
			}
		for (int i = 0; i < DEVICES * 2; i++)
			eval_array_free(&r[i]);
	}
	for (int i = 0; i < DEVICES * 2; i++)
		free(a[i].p);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(attention), cmocka_unit_test(random_pairs) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
