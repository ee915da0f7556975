/* Elementwise functions: error in units of the last place against the C library in double, special values,
 * and integers against plain definitions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kern/kern.h"

static uint64_t seed = 88172645463325252u;
static uint64_t rnd(void) { seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; return seed; }

static double ulps(float got, double want)
{
	float w = (float)want;
	if (isnan(want))
		return isnan(got) ? 0 : 1e9;
	if (isinf(w) || isinf(got))
		return got == w ? 0 : fabs(want) > 3.4e38 && fabsf(got) > 3.4e38f ? 1 : 1e9;
	if (fabs(want) < 0x1p-126)                      /* flushing is allowed */
		return fabsf(got) <= 0x1p-126f ? 0 : 1e9;
	int e;
	frexp(want, &e);
	return fabs((double)got - want) / ldexp(1, e - 24);
}

struct fn1 { enum elem fn; double (*ref)(double); float lo, hi; double most; };
static double ref_logistic(double x) { return 1 / (1 + exp(-x)); }
static double ref_rsqrt(double x) { return 1 / sqrt(x); }
static const struct fn1 fns[] = {
	{ ELEM_exponential, exp, -110, 90, 2 }, { ELEM_exponential_minus_one, expm1, -20, 89, 2 },
	{ ELEM_exponential_minus_one, expm1, -1, 1, 2 }, { ELEM_log, log, 0, 4, 2 }, { ELEM_log, log, 0, 1e38f, 2 },
	{ ELEM_log_plus_one, log1p, -1, 3, 2 }, { ELEM_log_plus_one, log1p, -0.01f, 0.01f, 2 }, { ELEM_log_plus_one, log1p, 0, 1e30f, 2 },
	{ ELEM_tanh, tanh, -12, 12, 2 }, { ELEM_tanh, tanh, -0.7f, 0.7f, 2 }, { ELEM_logistic, ref_logistic, -90, 90, 2 },
	{ ELEM_logistic, ref_logistic, -2, 2, 2 },
	{ ELEM_sine, sin, -10, 10, 2 }, { ELEM_sine, sin, -5e5f, 5e5f, 2 }, { ELEM_sine, sin, -1e30f, 1e30f, 2 },
	{ ELEM_cosine, cos, -10, 10, 2 }, { ELEM_cosine, cos, -5e5f, 5e5f, 2 }, { ELEM_tan, tan, -10, 10, 2 },
	{ ELEM_erf, erf, -5, 5, 2 }, { ELEM_erf, erf, -0.1f, 0.1f, 2 }, { ELEM_sqrt, sqrt, 0, 1e6f, 1 },
	{ ELEM_rsqrt, ref_rsqrt, 0, 1e6f, 2 }, { ELEM_cbrt, cbrt, -1e6f, 1e6f, 2 },
};

static void errors(void **state)
{
	enum { N = 100000 };
	float *x = malloc(N * 4), *y = malloc(N * 4);
	for (size_t k = 0; k < NELEM(fns); k++) {
		const struct fn1 *f = &fns[k];
		for (int i = 0; i < N; i++)
			x[i] = f->lo + (f->hi - f->lo) * (float)(rnd() >> 40) * 0x1p-24f;
		kern_elem(f->fn, DT_f32, DT_f32)(N, y, x, NULL, NULL);
		double worst = 0;
		float at = 0;
		for (int i = 0; i < N; i++) {
			double u = ulps(y[i], f->ref(x[i]));
			if (u > worst)
				worst = u, at = x[i];
		}
		if (worst > f->most)
			fail_msg("%s in [%g, %g]: %.2f ulp at %a", elem_info[f->fn].name, f->lo, f->hi, worst, at);
	}
	free(x);
	free(y);
}

/* Of f64, beside the C library's of 80 bits. */
static const struct { enum elem fn; long double (*ref)(long double); double lo, hi, most; } wide[] = {
	{ ELEM_exponential, expl, -708, 709.7, 1 }, { ELEM_exponential, expl, -1, 1, 1 }, { ELEM_exponential_minus_one, expm1l, -40, 709.7, 2 },
	{ ELEM_exponential_minus_one, expm1l, -2, 2, 2 }, { ELEM_exponential_minus_one, expm1l, -1e-5, 1e-5, 0.6 }, { ELEM_log, logl, 0, 4, 1 },
	{ ELEM_log, logl, 0, 1e308, 1 }, { ELEM_log, logl, 0.99, 1.01, 1 }, { ELEM_log, logl, 0, 1e-300, 1 }, { ELEM_log_plus_one, log1pl, -1, 3, 2 },
	{ ELEM_log_plus_one, log1pl, -0.01, 0.01, 2 }, { ELEM_log_plus_one, log1pl, 0, 1e30, 2 }, { ELEM_tanh, tanhl, -25, 25, 2 }, { ELEM_tanh, tanhl, -1.5, 1.5, 2 },
	{ ELEM_tanh, tanhl, -1e-3, 1e-3, 1.5 }, { ELEM_sine, sinl, -10, 10, 2 }, { ELEM_sine, sinl, -9.99e4, 9.99e4, 2 }, { ELEM_sine, sinl, -1e12, 1e12, 2 },
	{ ELEM_cosine, cosl, -10, 10, 2 }, { ELEM_cosine, cosl, -9.99e4, 9.99e4, 2 }, { ELEM_cosine, cosl, -1e12, 1e12, 2 },
};

static void errors_of_doubles(void **state)
{
	enum { N = 100000 };
	double *x = malloc(N * 8), *y = malloc(N * 8);
	for (size_t k = 0; k < NELEM(wide); k++) {
		double worst = 0, at = 0;
		for (int i = 0; i < N; i++)
			x[i] = wide[k].lo + (wide[k].hi - wide[k].lo) * ((double)(rnd() >> 11) * 0x1p-53);
		/* near multiples of pi / 2, where it cancels */
		for (int i = 0; i < N && (wide[k].fn == ELEM_sine || wide[k].fn == ELEM_cosine); i += 7)
			x[i] = nearbyint(x[i] / M_PI_2) * M_PI_2;
		kern_elem(wide[k].fn, DT_f64, DT_f64)(N, y, x, NULL, NULL);
		for (int i = 0; i < N; i++) {
			long double want = wide[k].ref(x[i]);
			int e;
			frexpl(want, &e);
			double u = isinf(y[i]) || y[i] != y[i] ? 1e9 : (double)(fabsl(y[i] - want) / ldexpl(1, e - 53));
			if (want != 0 && u > worst)
				worst = u, at = x[i];
		}
if (worst > wide[k].most)
			fail_msg("%s in [%g, %g]: %.2f ulp at %a", elem_info[wide[k].fn].name, wide[k].lo, wide[k].hi, worst, at);
	}
	free(x);
	free(y);
}

static void specials_of_doubles(void **state)
{
	static const double v[] = { 0, -0., 1, -1, 0.5, 2, -2, 1e-20, -1e-20, INFINITY, -INFINITY, NAN, 1.7e308, -1.7e308, 1e10, 0x1p53, 709.5, 709.78, 709.79, 710, 711, -708.3, -708.39, -708.4, -709.5, -745,
		-746, -1e5, 1e5, -37, -40, -41, 22, 23, 0x1p-1022, -0x1p-1022, 0x1.8p-1022, 0x1p-1000, M_PI, -M_PI_2, 1e22 };
	static const struct { enum elem fn; double (*ref)(double); } one[] = {
		{ ELEM_exponential, exp }, { ELEM_exponential_minus_one, expm1 }, { ELEM_log, log }, { ELEM_log_plus_one, log1p }, { ELEM_tanh, tanh }, { ELEM_sine, sin }, { ELEM_cosine, cos },
	};
	for (size_t k = 0; k < NELEM(one); k++)
		for (size_t i = 0; i < NELEM(v); i++) {
			double y, x = v[i], w = one[k].ref(x);
			w = fabs(w) < 0x1p-1022 ? copysign(0, w) : w;
			kern_elem(one[k].fn, DT_f64, DT_f64)(1, &y, &x, NULL, NULL);
			if (!(fabs(y - w) <= fabs(w) * 0x1p-51 || y == w || (isnan(y) && isnan(w))) || (w == 0 && !signbit(w) != !signbit(y)))
				fail_msg("%s(%.17g) = %.17g, not %.17g", elem_info[one[k].fn].name, x, y, w);
		}
}

/* Where programs run, denormal numbers count as zero; the C library does not always know. */
static void flushed_doubles(void **state)
{
	static const double v[] = { 0, -0., 1e-310, -1e-310, 5e-324, 0x1p-1022, -0x1p-1022, 0x1.8p-1022, 1e-300 };
	static const struct { enum elem fn; double (*ref)(double); } one[] = {
		{ ELEM_exponential, exp }, { ELEM_exponential_minus_one, expm1 }, { ELEM_log, log }, { ELEM_log_plus_one, log1p }, { ELEM_tanh, tanh },
		{ ELEM_sine, sin }, { ELEM_cosine, cos }, { ELEM_tan, tan }, { ELEM_erf, erf }, { ELEM_sqrt, sqrt }, { ELEM_cbrt, cbrt },
	};
	for (size_t k = 0; k < NELEM(one); k++)
		for (size_t i = 0; i < NELEM(v); i++) {
			double x = v[i], y, w = one[k].ref(x), zero = one[k].ref(copysign(0, x));
			unsigned fp = cpu_set_ftz();
			kern_elem(one[k].fn, DT_f64, DT_f64)(1, &y, &x, NULL, NULL);
			cpu_restore_fp(fp);
			if (fabs(x) < 0x1p-1022 && (y == zero || (zero == 0 && fabs(y) < 0x1p-1022) || (isnan(y) && isnan(zero))))
				continue;
			if (!(fabs(y - w) <= fabs(w) * 0x1p-51 || y == w || (isnan(y) && isnan(w))))
				fail_msg("%s(%g) = %g, not %g", elem_info[one[k].fn].name, x, y, w);
		}
}

/* Quotients whose small part is what is left of large products, and absolute values, of any size: what they are is known. */
static void complex_doubles(void **state)
{
	enum { N = 999 };
	static double x[2 * N], y[2 * N], want[2 * N], got[2 * N];
	for (int turn = 0; turn < 40; turn++) {
		double size = turn < 20 ? 1 : ldexp(1, (int)(rnd() % 1750) - 875);
		for (int i = 0; i < N; i++) {
			double re = (double)(rnd() % 0x8000), im = (double)(rnd() % 8) - 4, a = 1 + (double)(rnd() % 0x100000), b = (double)(rnd() % 0x200000) - 0x100000, s = turn % 2 ? ldexp(1, (int)(rnd() % 60)) : 1;
			x[2 * i] = (re * a - im * b) * s * size;
			x[2 * i + 1] = (re * b + im * a) * s * size;
			y[2 * i] = a * s * size;
			y[2 * i + 1] = b * s * size;
			want[2 * i] = re;
			want[2 * i + 1] = im;
		}
		kern_elem(ELEM_divide, DT_c128, DT_c128)(N, got, x, y, NULL);
		for (int i = 0; i < 2 * N; i++)
			if (!(fabs(got[i] - want[i]) <= 0x1p-50 * fabs(want[i])))
				fail_msg("quotient %.17g for %g, sizes %g", got[i], want[i], size);
		for (int i = 0; i < N; i++) {
			double k = (double)(rnd() % 0x100000) * size;
			x[2 * i] = rnd() % 2 ? 3 * k : -20 * k;
			x[2 * i + 1] = fabs(x[2 * i]) == 3 * k ? -4 * k : 21 * k;
			want[i] = fabs(x[2 * i]) == 3 * k ? 5 * k : 29 * k;
		}
		kern_elem(ELEM_abs, DT_c128, DT_f64)(N, got, x, NULL, NULL);
		for (int i = 0; i < N; i++)
			if (!(fabs(got[i] - want[i]) <= 0x1.8p-52 * want[i]))
				fail_msg("absolute value %.17g for %.17g", got[i], want[i]);
	}
}

static void specials(void **state)
{
	double _Complex c, t = __builtin_complex(-(double)INFINITY, 0.);
	kern_elem(ELEM_tan, DT_c128, DT_c128)(1, &c, &t, NULL, NULL);
	assert_true(isnan(__real__ c) && isnan(__imag__ c));

	static const float v[] = { 0, -0.f, 1, -1, 0.5f, 2, -2, 3, -3, 1e-40f, INFINITY, -INFINITY, NAN, 3.4e38f, -3.4e38f, 1e10f, 0x1p24f, 88.f, -88.f,
		0x1p-126f, -0x1p-126f, 0x1.8p-126f, 0x1p-100f };
	static const struct { enum elem fn; float (*ref)(float); } one[] = {
		{ ELEM_exponential, expf }, { ELEM_exponential_minus_one, expm1f }, { ELEM_log, logf }, { ELEM_log_plus_one, log1pf },
		{ ELEM_tanh, tanhf }, { ELEM_sine, sinf }, { ELEM_cosine, cosf }, { ELEM_tan, tanf }, { ELEM_erf, erff }, { ELEM_sqrt, sqrtf },
		{ ELEM_ceil, ceilf }, { ELEM_floor, floorf }, { ELEM_round_nearest_afz, roundf }, { ELEM_round_nearest_even, rintf }, { ELEM_cbrt, cbrtf },
	};
	for (size_t k = 0; k < NELEM(one); k++)
		for (size_t i = 0; i < 2 * NELEM(v); i++) {
			bool flushed = i % 2;                          /* as programs run */
			float y, x = v[i / 2], w = one[k].ref(fabsf(x) < 0x1p-126f ? copysignf(0, x) : x);
			if (!flushed && x != 0 && fabsf(x) < 0x1p-126f)
				continue;
			unsigned fp = flushed ? cpu_set_ftz() : 0;
			kern_elem(one[k].fn, DT_f32, DT_f32)(1, &y, &x, NULL, NULL);
			if (flushed)
				cpu_restore_fp(fp);
			if (ulps(y, w) > 2 || (w == 0 && !signbit(w) != !signbit(y)))
				fail_msg("%s(%g) = %g, not %g", elem_info[one[k].fn].name, x, y, w);
		}
	for (size_t i = 0; i < NELEM(v); i++)
		for (size_t j = 0; j < NELEM(v); j++) {
			float a = v[i], b = v[j], p, r, mx, at;
			kern_elem(ELEM_power, DT_f32, DT_f32)(1, &p, &a, &b, NULL);
			kern_elem(ELEM_remainder, DT_f32, DT_f32)(1, &r, &a, &b, NULL);
			kern_elem(ELEM_maximum, DT_f32, DT_f32)(1, &mx, &a, &b, NULL);
			kern_elem(ELEM_atan2, DT_f32, DT_f32)(1, &at, &a, &b, NULL);
			if (ulps(p, pow(a, b)) > 2 || (pow(a, b) == 0 && !signbit(pow(a, b)) != !signbit(p)))
				fail_msg("pow(%g, %g) = %g, not %g", a, b, p, pow(a, b));
			assert_true(ulps(at, atan2(a, b)) <= 2);
			if (fabsf(a) < 0x1p-126f)       /* the others take these for zero */
				a = copysignf(0, a);
			if (fabsf(b) < 0x1p-126f)
				b = copysignf(0, b);
			if (ulps(r, fmod(a, b)) > 0 || (r == 0 && fmod(a, b) == 0 && !signbit(r) != !signbit(a)))
				fail_msg("fmod(%g, %g) = %g, not %g", a, b, r, fmod(a, b));
			assert_true(isnan(a) || isnan(b) ? isnan(mx) : mx == fmaxf(a, b));
			uint8_t lt;
			a = v[i], b = v[j];
			kern_elem(ELEM_total_lt, DT_f32, DT_pred)(1, &lt, &a, &b, NULL);
			int32_t ka, kb;
			memcpy(&ka, &a, 4);
			memcpy(&kb, &b, 4);
			ka ^= (int32_t)((uint32_t)(ka >> 31) >> 1);
			kb ^= (int32_t)((uint32_t)(kb >> 31) >> 1);
			assert_int_equal(lt, ka < kb);
		}
	enum { N = 20000 };
	static float x[N], y[N], z[N];
	for (int i = 0; i < N; i++) {
		x[i] = expf((float)(rnd() >> 40) * 0x1p-24f * 20 - 10);
		y[i] = (float)(rnd() >> 40) * 0x1p-24f * 16 - 8;
	}
	kern_elem(ELEM_power, DT_f32, DT_f32)(N, z, x, y, NULL);
	for (int i = 0; i < N; i++)
		assert_true(ulps(z[i], pow(x[i], y[i])) <= 2);
	kern_elem(ELEM_remainder, DT_f32, DT_f32)(N, z, x, y, NULL);
	for (int i = 0; i < N; i++)
		assert_true(z[i] == fmodf(x[i], y[i]));
}

static void integers(void **state)
{
#define DO(fn, T, DT, a, b) ({ T x_ = (T)(a), y_ = (T)(b), r_; kern_elem(ELEM_##fn, DT, DT)(1, &r_, &x_, &y_, NULL); r_; })
	assert_int_equal(DO(divide, int32_t, DT_i32, 7, 0), -1);
	assert_int_equal(DO(divide, int32_t, DT_i32, INT32_MIN, -1), INT32_MIN);
	assert_int_equal(DO(remainder, int32_t, DT_i32, 7, 0), 7);
	assert_int_equal(DO(remainder, int32_t, DT_i32, INT32_MIN, -1), 0);
	assert_int_equal(DO(divide, uint8_t, DT_u8, 7, 0), 255);
	assert_int_equal(DO(power, int32_t, DT_i32, 3, 4), 81);
	assert_int_equal(DO(power, int32_t, DT_i32, -1, -3), -1);
	assert_int_equal(DO(power, int32_t, DT_i32, 2, -3), 0);
	assert_int_equal(DO(shift_left, int32_t, DT_i32, 1, 32), 0);
	assert_int_equal(DO(shift_right_arithmetic, int32_t, DT_i32, -5, 40), -1);
	assert_int_equal(DO(shift_right_logical, int8_t, DT_i8, -1, 4), 15);
	assert_int_equal(DO(mulhi, uint32_t, DT_u32, 0x80000000u, 6), 3);
	assert_int_equal(DO(add, int8_t, DT_i4, 7, 1), -8);
	assert_int_equal(DO(divide, int8_t, DT_i4, -8, -1), -8);
	assert_int_equal(DO(shift_right_logical, int8_t, DT_i4, -1, 2), 3);
	assert_int_equal(DO(count_leading_zeros, uint8_t, DT_u4, 1, 0), 3);
	assert_int_equal(DO(popcnt, int8_t, DT_i4, -1, 0), 4);
	assert_int_equal(DO(not, uint8_t, DT_u4, 3, 0), 12);
	for (int k = 0; k < 1000; k++) {
		int64_t a = (int64_t)rnd(), b = (int64_t)rnd() >> (rnd() % 60);
		assert_int_equal(DO(multiply, int64_t, DT_i64, a, b), (int64_t)((uint64_t)a * (uint64_t)b));
		assert_int_equal(DO(divide, int16_t, DT_i16, a, (int16_t)b ? b : 1), (int16_t)((int16_t)a / ((int16_t)b ? (int16_t)b : 1)));
		assert_int_equal(DO(count_leading_zeros, uint16_t, DT_u16, a, 0), (uint16_t)a ? __builtin_clz((uint16_t)a) - 16 : 16);
	}
}

static void conversions(void **state)
{
#define CV(F, DF, T, DT, x) ({ F x_ = (x); T r_; kern_elem(ELEM_convert, DF, DT)(1, &r_, &x_, NULL, NULL); r_; })
	assert_int_equal(CV(float, DT_f32, int32_t, DT_i32, NAN), 0);
	assert_int_equal(CV(float, DT_f32, int32_t, DT_i32, 1e20f), INT32_MAX);
	assert_int_equal(CV(float, DT_f32, int32_t, DT_i32, -1e20f), INT32_MIN);
	assert_int_equal(CV(float, DT_f32, int8_t, DT_i8, -129.9f), -128);
	assert_int_equal(CV(float, DT_f32, uint8_t, DT_u8, -3.f), 0);
	assert_int_equal(CV(double, DT_f64, uint64_t, DT_u64, 1e30), UINT64_MAX);
	assert_int_equal(CV(double, DT_f64, int64_t, DT_i64, -1.5), -1);
	assert_int_equal(CV(int32_t, DT_i32, int8_t, DT_i8, 300), 44);
	assert_int_equal(CV(int32_t, DT_i32, int8_t, DT_i4, 9), -7);
	assert_int_equal(CV(float, DT_f32, int8_t, DT_i4, 9.f), 7);
	assert_int_equal(CV(float, DT_f32, uint8_t, DT_pred, NAN), 1);
	/* 1 + 2^-8 + 2^-40 is above the tie of bf16, f32 alone would lose it */
	assert_int_equal(CV(double, DT_f64, uint16_t, DT_bf16, 1 + 0x1p-8 + 0x1p-40), 0x3f81);
	assert_int_equal(CV(double, DT_f64, uint16_t, DT_bf16, 1 + 0x1p-8), 0x3f80);
	for (int a = 1; a < DT_COUNT; a++)
		for (int b = 1; b < DT_COUNT; b++)
			if (dtype_info[a].name && dtype_info[b].name && a != DT_token && b != DT_token) {
				_Alignas(16) uint8_t one[1024] = { 0 }, x[1024], y[1024];
				double d = 1;
				kern_elem(ELEM_convert, DT_f64, a)(1, one, &d, NULL, NULL);
				kern_elem(ELEM_convert, a, b)(1, x, one, NULL, NULL);
				kern_elem(ELEM_convert, b, DT_f64)(1, y, x, NULL, NULL);
				memcpy(&d, y, 8);
				if (a != DT_i1 && b != DT_i1)
					assert_true(d == 1);
			}
}

/* Long strips and short ones agree, in place too: the vector body and its rest. */
static void strips(void **state)
{
	for (int fn = 0; fn < ELEM_COUNT; fn++)
		for (int dt = 1; dt < DT_COUNT; dt++) {
			if (!dtype_info[dt].name || dt == DT_token || fn == ELEM_convert || fn == ELEM_bitcast || fn == ELEM_complex)
				continue;
			bool pred = elem_info[fn].flags & EL_PRED;
			bool real = (elem_info[fn].flags & EL_REAL) && dtype_info[dt].cls == DT_COMPLEX;
			enum dtype to = pred ? DT_pred : real ? (dt == DT_c64 ? DT_f32 : DT_f64) : (enum dtype)dt;
			kern_strip *f = kern_elem((enum elem)fn, (enum dtype)dt, to);
			if (!f)
				continue;
			enum { N = 131 };
			int es = dtype_info[dt].bytes, os = dtype_info[to].bytes;
			_Alignas(16) static uint8_t a[N * 16], b[N * 16], c[N * 16], p[N * 16], q[N * 16];
			for (int i = 0; i < N * es; i++) {
				a[i] = (uint8_t)rnd(), b[i] = (uint8_t)rnd(), c[i] = (uint8_t)rnd();
				if (dt == DT_pred || (fn == ELEM_select && i < N))
					a[i] &= 1;
				if (dt == DT_pred)
					b[i] &= 1, c[i] &= 1;
			}
			f(N, p, a, b, c);
			for (int i = 0; i < N; i++)
				f(1, q + i * os, fn == ELEM_select ? a + i : a + i * es, b + i * es, c + i * es);
			for (int i = 0; i < N; i++)
				if (memcmp(p + i * os, q + i * os, (size_t)os)) {
					/* NaN payloads and signs are free */
					double u = 0, v = 1;
					if (dtype_info[to].cls == DT_FLOAT) {
						kern_elem(ELEM_convert, to, DT_f64)(1, &u, p + i * os, NULL, NULL);
						kern_elem(ELEM_convert, to, DT_f64)(1, &v, q + i * os, NULL, NULL);
					}
					if (dtype_info[to].cls == DT_COMPLEX || (isnan(u) && isnan(v)) || (fn == ELEM_power && fabs(u - v) < 1e-6 * fabs(u)))
						continue;
					fail_msg("%s of %s: element %d differs between strip lengths (%g %g)", elem_info[fn].name, dtype_info[dt].name, i, u, v);
				}
			if (es == os && fn != ELEM_select) {
				f(N, a, a, b, c);
				for (int i = 0; i < N * es && dtype_info[dt].cls != DT_FLOAT && dtype_info[dt].cls != DT_COMPLEX; i++)
					assert_int_equal(a[i], p[i]);
			}
		}
}

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(errors), cmocka_unit_test(errors_of_doubles), cmocka_unit_test(specials_of_doubles), cmocka_unit_test(complex_doubles), cmocka_unit_test(specials), cmocka_unit_test(flushed_doubles), cmocka_unit_test(integers),
	                                cmocka_unit_test(conversions), cmocka_unit_test(strips) };
	return cmocka_run_group_tests(t, NULL, NULL);
}
