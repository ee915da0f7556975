/* Transforms of all kinds, lengths and layouts, with every instruction set's loops, against sums in double, one
 * dimension after the other. */
#include <complex.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "kern/kern.h"

static uint64_t seed = 7;
static int64_t below(int64_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (int64_t)((seed >> 33) % (uint64_t)n);
}

/* Strides of a rank-r array, some dimensions padded, at times in another order; elements it spans. */
static int64_t lay_out(int r, const int64_t *dim, int64_t *stride, bool plain)
{
	int order[3] = { 0, 1, 2 };
	if (!plain && r > 1 && below(2)) {
		order[r - 1] = r - 2;
		order[r - 2] = r - 1;
	}
	int64_t n = 1;
	for (int i = r; i-- > 0;) {
		stride[order[i]] = n;
		n *= dim[order[i]] + (plain ? 0 : below(3));
	}
	return n;
}

static int64_t place(int r, const int64_t *dim, const int64_t *stride, int64_t lin)
{
	int64_t o = 0;
	for (int d = r; d-- > 0; lin /= dim[d])
		o += lin % dim[d] * stride[d];
	return o;
}

/* x [before][n][after] -> y [before][m][after]; sign -1 forward. */
static void dft(int64_t before, int64_t n, int64_t m, int64_t after, int sign, const double complex *x, double complex *y)
{
	double complex *root = malloc(sizeof *root * (size_t)n);
	for (int64_t i = 0; i < n; i++)
		root[i] = cexp(sign * 2 * M_PI * I * (double)i / (double)n);
	for (int64_t b = 0; b < before; b++)
		for (int64_t k = 0; k < m; k++)
			for (int64_t a = 0; a < after; a++) {
				double re = 0, im = 0;
				for (int64_t i = 0, q = 0; i < n; i++, q += q + k < n ? k : k - n) {      /* q = i * k % n */
					double complex v = x[(b * n + i) * after + a];
					re += creal(v) * creal(root[q]) - cimag(v) * cimag(root[q]);
					im += creal(v) * cimag(root[q]) + cimag(v) * creal(root[q]);
				}
				y[(b * m + k) * after + a] = (re + im * I) / (sign > 0 ? (double)n : 1);
			}
	free(root);
}

static void one(int kind, int r, int nd, const int64_t *full, bool wide, bool plain)
{
	int64_t in[3], out[3], is[3], os[3], count = 1, nin = 1, nout = 1, attr[5] = { kind, nd };
	for (int d = 0; d < r; d++) {
		in[d] = d == r - 1 && kind == 3 ? full[d] / 2 + 1 : full[d];
		out[d] = d == r - 1 && kind == 2 ? full[d] / 2 + 1 : full[d];
		count *= full[d];
		nin *= in[d];
		nout *= out[d];
	}
	memcpy(attr + 2, full + r - nd, sizeof *full * (size_t)nd);
	int64_t si = lay_out(r, in, is, plain), so = lay_out(r, out, os, plain);
	enum dtype c = wide ? DT_c128 : DT_c64, f = wide ? DT_f64 : DT_f32;
	struct prog_view v[2] = { { .dtype = kind == 2 ? f : c, .rank = (uint8_t)r, .dim = in, .stride = is },
	                          { .dtype = kind == 3 ? f : c, .rank = (uint8_t)r, .dim = out, .stride = os } };
	int ie = dtype_info[v[0].dtype].bytes, oe = dtype_info[v[1].dtype].bytes;
	char *pi = calloc((size_t)si, (size_t)ie), *po = calloc((size_t)so, (size_t)oe);
	double complex *x = calloc((size_t)count, sizeof *x), *y = calloc((size_t)count, sizeof *y);
	for (int64_t i = 0; i < nin; i++) {
		float re = (float)below(2001) / 500 - 2, im = kind == 2 ? 0 : (float)below(2001) / 500 - 2;
		int64_t k = i % in[r - 1];
		if (kind == 3 && nd == 1 && (k == 0 || (full[r - 1] % 2 == 0 && k == in[r - 1] - 1)))
			im = 0;
		double d[2] = { re, im };
		float s[2] = { re, im };
		memcpy(pi + place(r, in, is, i) * ie, wide ? (void *)d : (void *)s, (size_t)ie);
		x[i] = re + im * I;
	}
	/* the inverse real transform mirrors last, the others start with the last dimension */
	int64_t after = 1, dim[3];
	memcpy(dim, in, sizeof dim);
	for (int i = 0; i < nd; i++) {
		int d = kind == 3 ? i == nd - 1 ? r - 1 : r - 2 - i : r - 1 - i;
		int64_t before = 1;
		after = 1;
		for (int j = 0; j < r; j++)
			*(j < d ? &before : &after) *= j == d ? 1 : dim[j];
		if (kind == 3 && d == r - 1) {
			int64_t n = full[d], h = in[d];
			for (int64_t b = before; b-- > 0;)
				for (int64_t k = n; k-- > 0;) {
					double complex z = k < h ? x[b * h + k] : 0;
					if (k == 0 || 2 * k == n)
						z = creal(z);
					y[b * n + k] = z;
				}
			for (int64_t b = 0; b < before; b++)
				for (int64_t k = h; k < n; k++)
					y[b * n + k] = conj(y[b * n + n - k]);
			memcpy(x, y, sizeof *x * (size_t)(before * n));
			dim[d] = n;
		}
		dft(before, dim[d], kind == 2 && d == r - 1 ? out[d] : dim[d], after, kind == 0 || kind == 2 ? -1 : 1, x, y);
		dim[d] = out[d];
		double complex *t = x;
		x = y;
		y = t;
	}
	struct prog_kern k = { .id = KERN_fft, .nin = 1, .nout = 1, .v = v, .nattr = 2 + (uint32_t)nd, .attr = attr, .code = -1 };
	struct kern_state *st;
	assert_null(kern_prepare(&k, &st));
	char *shared = malloc(kern_shared(&k, st) + 64), *scratch = aligned_alloc(64, (kern_scratch(&k, st) + 127) & ~(size_t)63), *ptr[] = { pi, po, shared };
	int64_t tiles = kern_tiles(&k, st);
	for (int p = 0; p < kern_phases(&k, st); p++) {
		kern_run(&k, st, p, ptr, tiles / 3, tiles, scratch);
		kern_run(&k, st, p, ptr, 0, tiles / 3, scratch);
	}
	double rms = 0, worst = 0;
	for (int64_t i = 0; i < nout; i++) {
		double d[2] = { 0, 0 };
		float s[2] = { 0, 0 };
		memcpy(wide ? (void *)d : (void *)s, po + place(r, out, os, i) * oe, (size_t)oe);
		double complex got = wide ? d[0] + d[1] * I : (double)s[0] + (double)s[1] * I, want = kind == 3 ? creal(x[i]) : x[i];
		rms += cabs(want) * cabs(want);
		worst = fmax(worst, cabs(got - want));
	}
	if (worst > (wide ? 1e-14 : 2e-6) * (sqrt(rms / (double)nout) + 1e-6) * 8)
		fail_msg("fft kind %d over %d of [%d,%d,%d]: off by %g of %g", kind, nd, (int)full[0], r > 1 ? (int)full[1] : 0, r > 2 ? (int)full[2] : 0, worst,
		         sqrt(rms / (double)nout));
	kern_release(st);
	free(shared);
	free(scratch);
	free(pi);
	free(po);
	free(x);
	free(y);
}

static void shapes(void **state)
{
	for (int i = 0; i < 400; i++) {
		int r = (int)below(3) + 1, nd = (int)below(r) + 1;
		int64_t full[3];
		for (int d = 0; d < r; d++)
			full[d] = below(2) ? 1 + below(24) : (int64_t[]){ 8, 12, 16, 25, 30, 32, 37, 41 }[below(8)];
		one((int)below(4), r, nd, full, below(2), below(2));
	}
}

/* One line cut into a matrix, long factors, chirps. */
static void lengths(void **state)
{
	static const int64_t n[] = { 1, 2, 3, 5, 7, 11, 64, 97, 121, 210, 243, 961, 1024, 1000, 1031, 1536, 2048, 2310, 2187 };
	for (size_t i = 0; i < NELEM(n); i++)
		for (int kind = 0; kind < 4; kind++)
			for (int wide = 0; wide < 2; wide++) {
				one(kind, 1, 1, (int64_t[]){ n[i] }, wide, below(2));
				if (n[i] < 300)
					one(kind, 2, 1, (int64_t[]){ 1 + below(20), n[i] }, wide, below(2));
			}
	one(0, 2, 2, (int64_t[]){ 2, 1200 }, false, true);
	one(3, 2, 2, (int64_t[]){ 1200, 3 }, false, true);
}

/* A line beyond LONG in fft.c: a few terms of the sum. */
static void longest(void **state)
{
	for (int wide = 0; wide < 2; wide++) {
		int64_t n = 3 << 13, dim[1] = { n }, one_[1] = { 1 }, attr[3] = { 0, 1, n };
		enum dtype c = wide ? DT_c128 : DT_c64;
		struct prog_view v[2] = { { .dtype = c, .rank = 1, .dim = dim, .stride = one_ }, { .dtype = c, .rank = 1, .dim = dim, .stride = one_ } };
		struct prog_kern k = { .id = KERN_fft, .nin = 1, .nout = 1, .v = v, .nattr = 3, .attr = attr, .code = -1 };
		double *x = malloc((size_t)n * 16), *y = malloc((size_t)n * 16);
		float *xf = (float *)x, *yf = (float *)y;
		double *keep = malloc((size_t)n * 16);
		for (int64_t i = 0; i < 2 * n; i++) {
			keep[i] = (double)below(1001) / 500 - 1;
			if (!wide)
				keep[i] = (float)keep[i];
		}
		for (int64_t i = 0; i < 2 * n; i++)
			wide ? (void)(x[i] = keep[i]) : (void)(xf[i] = (float)keep[i]);
		assert_null(kern_run_all(&k, (char *[]){ (char *)x, (char *)y }));
		for (int j = 0; j < 20; j++) {
			int64_t at = below(n);
			double complex s = 0;
			for (int64_t i = 0; i < n; i++)
				s += (keep[2 * i] + keep[2 * i + 1] * I) * cexp(-2 * M_PI * I * (double)(i * at % n) / (double)n);
			double complex got = wide ? y[2 * at] + y[2 * at + 1] * I : (double)yf[2 * at] + (double)yf[2 * at + 1] * I;
			assert_true(cabs(got - s) < (wide ? 1e-10 : 1e-3));
		}
		free(x);
		free(y);
		free(keep);
	}
}

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(shapes), cmocka_unit_test(lengths), cmocka_unit_test(longest) };
	return cmocka_run_group_tests(t, NULL, NULL);
}
