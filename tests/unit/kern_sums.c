/* Long sums of floats: the error against f64 stays at the level of rounding, however many elements there are.  Contracted
 * and reduced dimensions walk over the same numbers again and again (stride 0), so that millions of terms take little
 * memory; DRAWS percent of them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "draws.h"
#include "kern/matmul.h"

/* The error of a sum of positive numbers, in parts of it.  Half a unit of the last place is 6e-8; since the numbers come
 * again and again, errors hardly cancel. */
#define BOUND 4e-6

static uint64_t seed = 88172645463325252u;
static double uniform(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (double)(seed >> 40) / (double)(1 << 24);
}

static const char *what;
static double worst;
static void near(double got, double want)
{
	double e = fabs(got - want) / fabs(want);
	worst = fmax(worst, e);
	/* a micro-kernel for tiles adds up more numbers one by one */
	if (!(e < (matmul_force && matmul_force->tiles ? 2 : 1) * BOUND))
		fail_msg("%s: %.9g, not %.9g: error %.2g", what, got, want, e);
}

static double get(enum dtype dt, const char *p, int64_t i)
{
	float f;
	uint16_t h;
	switch (dt) {
	case DT_f32: memcpy(&f, p + 4 * i, 4); return (double)f;
	case DT_c64: memcpy(&f, p + 8 * i, 4); return (double)f;
	case DT_bf16: memcpy(&h, p + 2 * i, 2); return (double)bf16_to_f32(h);
	default: memcpy(&h, p + 2 * i, 2); return (double)f16_to_f32(h);
	}
}

/* n numbers of [0, 1); complex: the same in both parts. */
static char *numbers(enum dtype dt, int64_t n)
{
	int es = dtype_info[dt].bytes;
	char *p = malloc((size_t)(n * es) + 64);
	for (int64_t i = 0; i < n; i++) {
		float f[2] = { (float)uniform(), 0 };
		f[1] = f[0];
		kern_elem(ELEM_convert, DT_f32, dt == DT_c64 ? DT_f32 : dt)(dt == DT_c64 ? 2 : 1, p + i * es, f, NULL, NULL);
	}
	return p;
}

static void run(const struct prog_kern *k, char *const *ptr)
{
	struct err *e = kern_run_all(k, ptr);
	if (e)
		fail_msg("%s: %s", what, e->msg);
}

/* --- products ------------------------------------------------------------------- */

enum { SAME = 1024 };       /* different numbers along a contracted dimension */

/* [m, times, SAME] x [times, SAME, n], or with operands turned: how 0 .. 3. */
static void product(enum dtype dt, int64_t m, int64_t n, int64_t times, int how)
{
	static char name[100];
	times = draws((int)times);
	snprintf(name, sizeof name, "product of %s %lldx%lldx%lld, layout %d, %s", dtype_info[dt].name, (long long)m, (long long)(times * SAME), (long long)n, how,
	         matmul_force ? matmul_force->name : "chosen");
	what = name;
	enum dtype ot = dt == DT_c64 ? dt : DT_f32;
	char *l = numbers(dt, m * SAME), *r = numbers(dt, n * SAME), *o = malloc((size_t)(m * n * dtype_info[ot].bytes));
	int64_t ld[3] = { m, times, SAME }, rd[3] = { times, SAME, n }, od[2] = { m, n }, os[2] = { n, 1 };
	int64_t ls[3] = { how & 1 ? 1 : SAME, 0, how & 1 ? m : 1 }, rs[3] = { 0, how & 2 ? 1 : n, how & 2 ? SAME : 1 };
	int64_t attr[] = { 0, 2, 1, 2, 0, 1, 0, DT_token, DT_token, DT_token, 1 };
	struct prog_view v[3] = { { (uint8_t)dt, 3, 0, ld, ls }, { (uint8_t)dt, 3, 0, rd, rs }, { (uint8_t)ot, 2, 0, od, os } };
	struct prog_kern k = { .id = KERN_dot, .nin = 2, .nout = 1, .v = v, .nattr = NELEM(attr), .attr = attr, .code = -1 };
	run(&k, (char *[]){ l, r, o });
	for (int64_t i = 0; i < m; i++)
		for (int64_t j = 0; j < n; j++) {
			double want = 0;
			for (int64_t x = 0; x < SAME; x++)
				want += get(dt, l, i * ls[0] + x * ls[2]) * get(dt, r, j * rs[2] + x * rs[1]);
			want *= (double)times;
			if (dt == DT_c64) {       /* (1 + i) (1 + i) = 2 i */
				float f;
				memcpy(&f, o + (i * n + j) * 8 + 4, 4);
				near((double)f, 2 * want);
			} else {
				near(get(ot, o, i * n + j), want);
			}
		}
	free(l);
	free(r);
	free(o);
}

static void products(void **state)
{
	for (int how = 0; how < 4; how++) {
		product(DT_f32, 1, 1, 4096, how);
		product(DT_f32, 4, 3, 1024, how);
		product(DT_f32, 3, 40, 1024, how);
		product(DT_f32, 30, 40, 1024, how);
		product(DT_f32, 100, 70, 256, how);
		product(DT_bf16, 1, 1, 1024, how);
		product(DT_bf16, 16, 100, 512, how);
		product(DT_f16, 5, 3, 1024, how);
		product(DT_f16, 20, 33, 1024, how);
		product(DT_c64, 2, 5, 128, how);
		product(DT_c64, 1, 1, 256, how);
	}
	/* Who is told to do with less (RONDO_ISA) runs what is chosen then: each by itself runs where all may. */
	for (int v = 0; v < (*conf_str(CONF_ISA) ? 0 : matmul_nvariant); v++) {
		const struct matmul_variant *x = matmul_force = &matmul_variant[v];
		bool model = strstr(x->name, "model");
		/* both layouts of each side: they are packed one by one */
		for (int how = 0; how < (model ? 1 : 4) && x->has() && x->es > 1; how += 3)
			product(x->es == 2 ? DT_bf16 : DT_f32, model ? 9 : 33, model ? 10 : 65, model ? 128 : 1024, how);
	}
	matmul_force = NULL;
	printf("products: %.2g\n", worst);
	worst = 0;
}

/* A vector times itself.  The squares of bf16 numbers end where a sum of some hundreds of them does, all in the same way, so
 * that one running sum of so many is rounded down each time. */
static void squares(void **state)
{
	int64_t n = 1 << 18, dim[2] = { n, 1 }, one[2] = { 1, 1 }, st[2] = { 1, 1 }, attr[] = { 0, 1, 0, 0, 0, DT_token, DT_token, DT_token, 1 };
	char *x = numbers(DT_bf16, n), o[4];
	struct prog_view v[3] = { { DT_bf16, 2, 0, dim, st }, { DT_bf16, 2, 0, dim, st }, { DT_f32, 2, 0, one, st } };
	struct prog_kern k = { .id = KERN_dot, .nin = 2, .nout = 1, .v = v, .nattr = NELEM(attr), .attr = attr, .code = -1 };
	run(&k, (char *[]){ x, x, o });
	double want = 0;
	for (int64_t i = 0; i < n; i++)
		want += get(DT_bf16, x, i) * get(DT_bf16, x, i);
	double e = fabs(get(DT_f32, o, 0) - want) / want;
	free(x);
	if (!(e < 2e-7))
		fail_msg("%lld squares: error %.2g", (long long)n, e);
}

/* --- reductions ------------------------------------------------------------------ */

/* [times, SAME, n] summed over the first two, or with n first. */
static void reduction(enum dtype dt, int64_t times, int64_t n, bool rows)
{
	static char name[80];
	times = draws((int)times);
	snprintf(name, sizeof name, "sum of %s %lldx%lld%s", dtype_info[dt].name, (long long)(times * SAME), (long long)n, rows ? ", rows" : "");
	what = name;
	char *x = numbers(dt, SAME * n), init[16] = { 0 }, *o = malloc((size_t)n * 16);
	int64_t dim[3] = { times, SAME, n }, st[3] = { 0, rows ? 1 : n, rows ? SAME : 1 }, one = 1, attr[] = { 2, 0, 1, RED_add };
	struct prog_view v[3] = { { (uint8_t)dt, 3, 0, dim, st }, { (uint8_t)dt, 0, 0, &one, &one }, { (uint8_t)dt, 1, 0, &n, &one } };
	struct prog_kern k = { .id = KERN_reduce, .nin = 2, .nout = 1, .v = v, .nattr = NELEM(attr), .attr = attr, .code = -1 };
	run(&k, (char *[]){ x, init, o });
	for (int64_t j = 0; j < n; j++) {
		double want = 0;
		for (int64_t i = 0; i < SAME; i++)
			want += get(dt, x, i * st[1] + j * st[2]);
		near(get(dt, o, j), want * (double)times);
	}
	free(x);
	free(o);
}

static void reductions(void **state)
{
	for (int rows = 0; rows < 2; rows++) {
		reduction(DT_f32, 4096, 1, rows);
		reduction(DT_f32, 1024, 3, rows);
		reduction(DT_f32, 1024, 40, rows);
		reduction(DT_c64, 256, 20, rows);
	}
	printf("reductions: %.2g\n", worst);
	worst = 0;
}

/* One window over all of times x SAME elements of n columns. */
static void window(int64_t times, int64_t n)
{
	what = "reduce_window";
	times = draws((int)times);
	char *x = numbers(DT_f32, SAME * n), init[4] = { 0 }, *o = malloc((size_t)n * 4);
	int64_t dim[3] = { times, SAME, n }, st[3] = { 0, n, 1 }, one = 1, od[3] = { 1, 1, n }, os[3] = { n, n, 1 };
	int64_t attr[] = { times, SAME, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, RED_add };
	struct prog_view v[3] = { { DT_f32, 3, 0, dim, st }, { DT_f32, 0, 0, &one, &one }, { DT_f32, 3, 0, od, os } };
	struct prog_kern k = { .id = KERN_reduce_window, .nin = 2, .nout = 1, .v = v, .nattr = NELEM(attr), .attr = attr, .code = -1 };
	run(&k, (char *[]){ x, init, o });
	for (int64_t j = 0; j < n; j++) {
		double want = 0;
		for (int64_t i = 0; i < SAME; i++)
			want += get(DT_f32, x, i * n + j);
		near(get(DT_f32, o, j), want * (double)times);
	}
	free(x);
	free(o);
}

static void windows(void **state)
{
	window(1024, 1);
	window(256, 7);
	printf("windows: %.2g\n", worst);
	worst = 0;
}

/* Running sums of n numbers in each of m rows, along the last dimension or along the first. */
static void running(int64_t m, int64_t n, bool columns, bool reverse)
{
	static char name[80];
	n = draws((int)n);
	snprintf(name, sizeof name, "running sum of %lldx%lld%s", (long long)m, (long long)n, columns ? ", columns" : "");
	what = name;
	char *x = numbers(DT_f32, m * n), *o = malloc((size_t)(m * n) * 4);
	int64_t dim[2] = { columns ? n : m, columns ? m : n }, st[2] = { dim[1], 1 }, attr[] = { !columns, reverse, RED_add };
	struct prog_view v[2] = { { DT_f32, 2, 0, dim, st }, { DT_f32, 2, 0, dim, st } };
	struct prog_kern k = { .id = KERN_cumulative, .nin = 1, .nout = 1, .v = v, .nattr = NELEM(attr), .attr = attr, .code = -1 };
	run(&k, (char *[]){ x, o });
	for (int64_t i = 0; i < m; i++) {
		double want = 0;
		for (int64_t a = 0; a < n; a++) {
			int64_t j = reverse ? n - 1 - a : a, p = columns ? j * m + i : i * n + j;
			want += get(DT_f32, x, p);
			if (want > 0)
				near(get(DT_f32, o, p), want);
		}
	}
	free(x);
	free(o);
}

static void running_sums(void **state)
{
	for (int reverse = 0; reverse < 2; reverse++) {
		running(1, 1 << 20, false, reverse);
		running(9, 1 << 17, false, reverse);
		running(16, 1 << 18, true, reverse);
	}
	printf("running sums: %.2g\n", worst);
	worst = 0;
}

/* --- convolutions ------------------------------------------------------------------ */

/* A window of times x SAME positions over `in` features, times out of them by dilation 0 .. : one output position. */
static void convolution(enum dtype dt, int64_t times, int64_t in, int64_t out, int64_t groups)
{
	static char name[80];
	times = draws((int)times);
	snprintf(name, sizeof name, "convolution of %s, window %lld, %lld to %lld features", dtype_info[dt].name, (long long)(times * SAME), (long long)in, (long long)out);
	what = name;
	int64_t nif = in / groups;
	char *x = numbers(dt, SAME * in), *w = numbers(dt, SAME * nif * out), *o = malloc((size_t)out * 8);
	/* batch, times, position, feature; times, position, feature, feature */
	int64_t xd[4] = { 1, times, SAME, in }, xs[4] = { SAME * in, 0, in, 1 }, wd[4] = { times, SAME, nif, out }, ws[4] = { 0, nif * out, out, 1 };
	int64_t od[4] = { 1, 1, 1, out }, os[4] = { out, out, out, 1 };
	int64_t attr[] = { 4, 0, 3, 1, 2, 4, 2, 3, 0, 1, 4, 0, 3, 1, 2, 2, 1, 1, 2, 0, 0, 2, 0, 0, 2, 1, 1, 2, 1, 1, 2, 0, 0, groups, 1, 0 };
	struct prog_view v[3] = { { (uint8_t)dt, 4, 0, xd, xs }, { (uint8_t)dt, 4, 0, wd, ws }, { (uint8_t)dt, 4, 0, od, os } };
	struct prog_kern k = { .id = KERN_convolution, .nin = 2, .nout = 1, .v = v, .nattr = NELEM(attr), .attr = attr, .code = -1 };
	run(&k, (char *[]){ x, w, o });
	for (int64_t f = 0; f < out; f++) {
		double want = 0;
		for (int64_t i = 0; i < SAME; i++)
			for (int64_t c = 0; c < nif; c++)
				want += get(dt, x, i * in + (groups > 1 ? f / (out / groups) * nif : 0) + c) * get(dt, w, (i * nif + c) * out + f);
		want *= (double)times;
		if (dt == DT_c64) {
			float y;
			memcpy(&y, o + f * 8 + 4, 4);
			near((double)y, 2 * want);
		} else {
			near(get(dt, o, f), want);
		}
	}
	free(x);
	free(w);
	free(o);
}

static void convolutions(void **state)
{
	convolution(DT_f32, 1024, 1, 1, 1);
	convolution(DT_f32, 512, 3, 20, 1);
	convolution(DT_f32, 1024, 16, 16, 16);
	convolution(DT_c64, 128, 1, 2, 1);
	printf("convolutions: %.2g\n", worst);
	worst = 0;
}

int main(void)
{
	const struct CMUnitTest t[] = {
		cmocka_unit_test(products), cmocka_unit_test(squares), cmocka_unit_test(reductions), cmocka_unit_test(windows), cmocka_unit_test(running_sums), cmocka_unit_test(convolutions),
	};
	return cmocka_run_group_tests(t, NULL, NULL);
}
