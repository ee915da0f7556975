/* Complex functions.  c64 is computed in double and rounded once, which leaves no overflow to care for;
 * c128 in long double where a formula could overflow or cancel.  Special values follow C's Annex G. */
#include <complex.h>
#include <math.h>

#include "impl.h"

#undef I
#define MK(a, b) __builtin_complex((a), (b))

/* hypot's symbol is of glibc 2.35, and a wheel is for 2.34. */
static inline double hypot_d(double a, double b) { return cabs(MK(a, b)); }

/* x ** y by logarithms; 0 ** y is 0 but for 0 ** 0 = 1. */
static double _Complex pow_d(double _Complex x, double _Complex y)
{
	if (creal(x) == 0 && cimag(x) == 0)
		return creal(y) == 0 && cimag(y) == 0 ? MK(1., 0.) : creal(y) > 0 ? MK(0., 0.) : creal(y) < 0 && cimag(y) == 0 ? MK((double)INFINITY, 0.) : MK((double)NAN, (double)NAN);
	if (creal(y) == 0 && cimag(y) == 0)
		return MK(1., 0.);
	double l = log(cabs(x)), t = carg(x), a = creal(y), b = cimag(y);
	double r = exp(a * l - b * t), p = b * l + a * t;
	return MK(r * cos(p), r == 0 && sin(p) == 0 ? 0. : r * sin(p));
}
static double _Complex pow_l(double _Complex x, double _Complex y)
{
	if (creal(x) == 0 && cimag(x) == 0)
		return pow_d(x, y);
	if (creal(y) == 0 && cimag(y) == 0)
		return MK(1., 0.);
	long double l = logl(cabsl(x)), t = cargl(x), a = creal(y), b = cimag(y);
	long double r = expl(a * l - b * t), p = b * l + a * t;
	return MK((double)(r * cosl(p)), (double)(r * sinl(p)));
}

static long double _Complex log1p_l(long double _Complex z)
{
	long double a = creall(z), b = cimagl(z), re;
	if (fabsl(a) < 0x1p100L && fabsl(b) < 0x1p100L)
		re = 0.5L * log1pl(a * (2 + a) + b * b);
	else
		re = logl(hypotl(1 + a, b));
	return MK(re, atan2l(b, 1 + a));
}
static long double _Complex expm1_l(long double _Complex z)
{
	long double a = creall(z), b = cimagl(z), s = sinl(b / 2);
	if (b == 0)
		return MK(expm1l(a), b);
	return MK(expm1l(a) * cosl(b) - 2 * s * s, expl(a) * sinl(b));
}
static double _Complex expm1_d(double _Complex z)
{
	double a = creal(z), b = cimag(z), s = sin(b / 2);
	if (b == 0)
		return MK(expm1(a), b);
	return MK(expm1(a) * cos(b) - 2 * s * s, exp(a) * sin(b));
}
static double _Complex log1p_d(double _Complex z)
{
	double a = creal(z), b = cimag(z), re;
	if (fabs(a) < 0x1p300 && fabs(b) < 0x1p300)
		re = 0.5 * log1p(a * (2 + a) + b * b);
	else
		re = log(hypot_d(1 + a, b));
	return MK(re, atan2(b, 1 + a));
}
/* e^z with real infinity times a zero sine giving zero, not NaN */
static double _Complex exp_d(double _Complex z)
{
	return cimag(z) == 0 ? MK(exp(creal(z)), cimag(z)) : cexp(z);
}
static double _Complex sign_d(double _Complex z)
{
	double a = cabs(z);
	return a == 0 ? z : a != a ? MK((double)NAN, (double)NAN) : MK(creal(z) / a, cimag(z) / a);
}
static double _Complex rsqrt_d(double _Complex z)
{
	if (creal(z) == 0 && cimag(z) == 0)
		return MK((double)INFINITY, (double)NAN);
	if (isinf(creal(z)) || isinf(cimag(z)))
		return MK(0., copysign(0., -cimag(z)));
	return 1 / csqrt(z);
}
static double _Complex rsqrt_l(double _Complex z)
{
	if (!isfinite(creal(z)) || !isfinite(cimag(z)) || (creal(z) == 0 && cimag(z) == 0))
		return rsqrt_d(z);
	long double _Complex r = 1 / csqrtl(z);
	return MK((double)creall(r), (double)cimagl(r));
}
static double _Complex logistic_d(double _Complex z)
{
	return 1 / (1 + exp_d(-z));
}
/* angle of (b, a): -i log((b + i a) / sqrt(a a + b b)) */
static double _Complex atan2_d(double _Complex a, double _Complex b)
{
	double _Complex l = clog((b + MK(-cimag(a), creal(a))) / csqrt(a * a + b * b));
	return MK(cimag(l), -creal(l));
}
/* At a real infinity there is no limit on the real axis either. */
static double _Complex tan_d(double _Complex z)
{
	return isinf(creal(z)) && cimag(z) == 0 ? MK((double)NAN, (double)NAN) : ctan(z);
}
static double _Complex narrow(long double _Complex z) { return MK((double)creall(z), (double)cimagl(z)); }

/* Directly, since nothing overflows in long double; special values as C has them. */
static double _Complex divide_l(double _Complex x, double _Complex y)
{
	long double a = creal(x), b = cimag(x), c = creal(y), d = cimag(y), size = c * c + d * d;
	long double re = (a * c + b * d) / size, im = (b * c - a * d) / size;
	return re != re && im != im ? narrow((long double _Complex)x / y) : MK((double)re, (double)im);
}

static bool less(double _Complex x, double _Complex y)
{
	return creal(x) < creal(y) || (creal(x) == creal(y) && cimag(x) < cimag(y));
}
static bool any_nan(double _Complex x) { return creal(x) != creal(x) || cimag(x) != cimag(x); }
static double _Complex max_d(double _Complex x, double _Complex y)
{
	return any_nan(x) ? x : any_nan(y) ? y : less(x, y) ? y : x;
}
static double _Complex min_d(double _Complex x, double _Complex y)
{
	return any_nan(x) ? x : any_nan(y) ? y : less(y, x) ? y : x;
}

#define ARGS int64_t n, void *out, const void *a_, const void *b_, const void *c_
#define F1(P, T, fn, e) static void P##_##fn(ARGS) { const T _Complex *a = a_; T _Complex *o = out; \
	for (int64_t i = 0; i < n; i++) { double _Complex x = a[i]; o[i] = (T _Complex)(e); } }
#define F2(P, T, fn, e) static void P##_##fn(ARGS) { const T _Complex *a = a_, *b = b_; T _Complex *o = out; \
	for (int64_t i = 0; i < n; i++) { double _Complex x = a[i], y = b[i]; o[i] = (T _Complex)(e); } }
/* in the type itself, part by part */
#define P1(P, T, fn, er, ei) static void P##_##fn(ARGS) { const T *a = a_; T *o = out; \
	for (int64_t i = 0; i < n; i++) { T xr = a[2 * i], xi = a[2 * i + 1]; o[2 * i] = er; o[2 * i + 1] = ei; } }
#define P2(P, T, fn, er, ei) static void P##_##fn(ARGS) { const T *a = a_, *b = b_; T *o = out; \
	for (int64_t i = 0; i < n; i++) { T xr = a[2 * i], xi = a[2 * i + 1], yr = b[2 * i], yi = b[2 * i + 1]; \
		o[2 * i] = er; o[2 * i + 1] = ei; } }
#define R1(P, T, fn, e) static void P##_##fn(ARGS) { const T *a = a_; T *o = out; \
	for (int64_t i = 0; i < n; i++) { UNUSED T xr = a[2 * i]; UNUSED T xi = a[2 * i + 1]; o[i] = e; } }
#define B2(P, T, fn, e) static void P##_##fn(ARGS) { const T *a = a_, *b = b_; uint8_t *o = out; \
	for (int64_t i = 0; i < n; i++) { T xr = a[2 * i], xi = a[2 * i + 1], yr = b[2 * i], yi = b[2 * i + 1]; o[i] = e; } }

/* In double nothing overflows; an infinite part wins over NaN. */
static inline float hypot_f(float x, float y)
{
	double a = x, b = y;
	float r = (float)__builtin_sqrt(a * a + b * b), u = __builtin_fabsf(x), v = __builtin_fabsf(y), inf = __builtin_inff();
	return ((u == inf) | (v == inf)) ? inf : r;
}

#define COMPLEX_FNS(P, T, HYPOT)                                                                  \
	F2(P, T, atan2, atan2_d(x, y))                                                                \
	F2(P, T, maximum, max_d(x, y))                                                                \
	F2(P, T, minimum, min_d(x, y))                                                                \
	B2(P, T, compare_eq, xr == yr && xi == yi)                                                    \
	B2(P, T, compare_ne, xr != yr || xi != yi)                                                    \
	B2(P, T, compare_lt, xr < yr || (xr == yr && xi < yi))                                        \
	B2(P, T, compare_le, xr < yr || (xr == yr && xi <= yi))                                       \
	B2(P, T, compare_gt, xr > yr || (xr == yr && xi > yi))                                        \
	B2(P, T, compare_ge, xr > yr || (xr == yr && xi >= yi))                                       \
	R1(P, T, abs, HYPOT(xr, xi))                                                                  \
	F1(P, T, sign, sign_d(x))                                                                     \
	F1(P, T, exponential, exp_d(x))                                                               \
	F1(P, T, log, clog(x))                                                                        \
	F1(P, T, logistic, logistic_d(x))                                                             \
	F1(P, T, tanh, ctanh(x))                                                                      \
	F1(P, T, tan, tan_d(x))                                                                       \
	F1(P, T, sine, csin(x))                                                                       \
	F1(P, T, cosine, ccos(x))                                                                     \
	F1(P, T, sqrt, csqrt(x))                                                                      \
	static void P##_clamp(ARGS) { const T _Complex *a = a_, *b = b_, *c = c_; T _Complex *o = out; \
		for (int64_t i = 0; i < n; i++) o[i] = (T _Complex)min_d(max_d(b[i], a[i]), c[i]); }

COMPLEX_FNS(c64, float, hypot_f)
F2(c64, float, divide, x / y)
F2(c64, float, power, pow_d(x, y))
F1(c64, float, exponential_minus_one, expm1_d(x))
F1(c64, float, log_plus_one, log1p_d(x))
F1(c64, float, rsqrt, rsqrt_d(x))
F1(c64, float, cbrt, pow_d(x, MK(1. / 3, 0.)))

COMPLEX_FNS(c128, double, hypot_d)
static void c128_select(ARGS)
{
	const uint8_t *a = a_;
	const double *b = b_, *c = c_;
	double *o = out;
	for (int64_t i = 0; i < n; i++) {
		const double *s = a[i] ? b : c;
		double re = s[2 * i], im = s[2 * i + 1];
		o[2 * i] = re;
		o[2 * i + 1] = im;
	}
}
F2(c128, double, divide, divide_l(x, y))
F2(c128, double, power, pow_l(x, y))
F1(c128, double, exponential_minus_one, narrow(expm1_l(x)))
F1(c128, double, log_plus_one, narrow(log1p_l(x)))
F1(c128, double, rsqrt, rsqrt_l(x))
F1(c128, double, cbrt, pow_l(x, MK(1. / 3, 0.)))

#define ROW(P, fn) [ELEM_##fn] = P##_##fn
#define ROWS(P) ROW(P, divide), ROW(P, maximum), ROW(P, minimum), \
	ROW(P, power), ROW(P, atan2), ROW(P, compare_eq), ROW(P, compare_ne), ROW(P, compare_lt), ROW(P, compare_le),   \
	ROW(P, compare_gt), ROW(P, compare_ge), [ELEM_total_eq] = P##_compare_eq, [ELEM_total_ne] = P##_compare_ne,        \
	[ELEM_total_lt] = P##_compare_lt, [ELEM_total_le] = P##_compare_le, [ELEM_total_gt] = P##_compare_gt,              \
	[ELEM_total_ge] = P##_compare_ge, ROW(P, abs), ROW(P, sign),           \
	ROW(P, exponential), ROW(P, exponential_minus_one), ROW(P, log), ROW(P, log_plus_one), ROW(P, logistic),           \
	ROW(P, tanh), ROW(P, tan), ROW(P, sine), ROW(P, cosine), ROW(P, sqrt), ROW(P, rsqrt), ROW(P, cbrt),                \
	ROW(P, clamp)
kern_strip *const kern_complex64[ELEM_COUNT] = { ROWS(c64) };
kern_strip *const kern_complex128[ELEM_COUNT] = { ROWS(c128), ROW(c128, select) };
