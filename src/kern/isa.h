/* The loops that are compiled once per instruction set: isa_base.c, isa_v3.c (AVX2, FMA), isa_v4.c
 * (AVX-512) include this with ISA_LEVEL and ISA(name) set.  Plain C that compilers vectorise; only the
 * conversions of f16 need intrinsics. */
#include <math.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "impl.h"

/* Pragmas do not expand macros. */
#if ISA_LEVEL == 3 && defined(__clang__)
#pragma clang attribute push (__attribute__((target("arch=x86-64-v3"))), apply_to = function)
#elif ISA_LEVEL == 3
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#elif ISA_LEVEL == 4 && defined(__clang__)
#pragma clang attribute push (__attribute__((target("arch=x86-64-v4"))), apply_to = function)
#elif ISA_LEVEL == 4
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#endif

#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed"     /* loops that call the C library stay as they are */
#endif

/* Results may lie on operands: element i is read before it is written, so the loops still vectorise. */
#ifdef __clang__
#define EACH _Pragma("clang loop vectorize(assume_safety)") for (int64_t i = 0; i < n; i++)
#else
#define EACH _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)
#endif
#define ARGS int64_t n, void *out, const void *a_, const void *b_, const void *c_

#include "math.h"

/* --- integers ------------------------------------------------------------ */

#define CAT3_(a, b, c) a##_##b##_##c
#define CAT3(a, b, c) CAT3_(a, b, c)

#define INT_HELP(N, T, S, U, W, BITS, SIGNED, D)                                                      \
	static T CAT3(ipow, N, h)(T x, T y)                                                               \
	{                                                                                                 \
		if (SIGNED && (S)y < 0)                                                                       \
			return x == 1 ? 1 : x == (T)-1 ? (y & 1 ? (T)-1 : 1) : 0;                                 \
		W r = 1, b = (W)x;                                                                            \
		for (U e = (U)y; e; e = (U)(e >> 1), b *= b)                                                  \
			if (e & 1)                                                                                \
				r *= b;                                                                               \
		return (T)r;                                                                                  \
	}                                                                                                 \
	/* truncated quotient; in double where that is exact: the error of a quotient below 2^32 is less than     \
	 * its distance from the next integer.  y = 0 and -1 are the caller's; they only must not trap */         \
	static inline T CAT3(quotient, N, h)(T x, T y)                                                    \
	{                                                                                                 \
		T d = y == 0 || (SIGNED && y == (T)-1) ? (T)1 : y;                                            \
		return BITS <= 32 ? (T)((double)x / (double)d) : (T)(x / d);                                  \
	}                                                                                                 \
	static inline T CAT3(mulhi_1, N, h)(T x, T y) { return (T)(((D)x * (D)y) >> BITS); }              \
	static inline T CAT3(clz_1, N, h)(T x)                                                            \
	{                                                                                                 \
		if (!x)                                                                                       \
			return (T)BITS;                                                                           \
		return (T)(BITS == 64 ? __builtin_clzll((uint64_t)(U)x) : __builtin_clz((uint32_t)(U)x) - (32 - (BITS & 63))); \
	}
__extension__ typedef __int128 int128;
__extension__ typedef unsigned __int128 uint128;
INT_HELP(i8, int8_t, int8_t, uint8_t, uint32_t, 8, 1, int32_t)
INT_HELP(i16, int16_t, int16_t, uint16_t, uint32_t, 16, 1, int32_t)
INT_HELP(i32, int32_t, int32_t, uint32_t, uint32_t, 32, 1, int64_t)
INT_HELP(i64, int64_t, int64_t, uint64_t, uint64_t, 64, 1, int128)
INT_HELP(u8, uint8_t, int8_t, uint8_t, uint32_t, 8, 0, uint32_t)
INT_HELP(u16, uint16_t, int16_t, uint16_t, uint32_t, 16, 0, uint32_t)
INT_HELP(u32, uint32_t, int32_t, uint32_t, uint32_t, 32, 0, uint64_t)
INT_HELP(u64, uint64_t, int64_t, uint64_t, uint64_t, 64, 0, uint128)

/* --- floats: what float.def leans on ------------------------------------- */

#define FLOAT_HELP(N, T, K, I, SIGN, INF, TRUNC, COPYSIGN, FABS)                                         \
	static inline K CAT3(bits, N, h)(T x) { K u; memcpy(&u, &x, sizeof u); return u; }                \
	static inline T CAT3(from, N, h)(K u) { T x; memcpy(&x, &u, sizeof x); return x; }                \
	/* a subnormal as the zero of its sign: for what does not calculate, or calculates with the bits */  \
	static inline T CAT3(flush, N, h)(T x)                                                            \
	{                                                                                                 \
		K u = CAT3(bits, N, h)(x);                                                                    \
		return CAT3(from, N, h)(u & INF ? u : u & SIGN);                                              \
	}                                                                                                 \
	/* the larger of 0 and -0 is 0; on bits, which compilers do not compute twice */                  \
	static inline T CAT3(max_1, N, h)(T x, T y)                                                       \
	{                                                                                                 \
		K u = CAT3(bits, N, h)(x), v = CAT3(bits, N, h)(y), r = ((x > y) | (x != x)) ? u : v;         \
		r = x == y ? u & v : r;                                                                       \
		return CAT3(from, N, h)(r & INF ? r : r & SIGN);                                              \
	}                                                                                                 \
	static inline T CAT3(min_1, N, h)(T x, T y)                                                       \
	{                                                                                                 \
		K u = CAT3(bits, N, h)(x), v = CAT3(bits, N, h)(y), r = ((x < y) | (x != x)) ? u : v;         \
		r = x == y ? u | v : r;                                                                       \
		return CAT3(from, N, h)(r & INF ? r : r & SIGN);                                              \
	}                                                                                                 \
	static inline I CAT3(order, N, h)(T x)                                                            \
	{                                                                                                 \
		I k = (I)CAT3(bits, N, h)(x);                                                                 \
		return k ^ ((k >> (sizeof(K) * 8 - 1)) & (I)(SIGN - 1));                                          \
	}                                                                                                 \
	/* In that order, with NaN of either sign at the upper end (down) or the lower: the larger, the smaller of many. */ \
	static inline I CAT3(down, N, h)(T x) { return (I)((K)CAT3(order, N, h)(x) - (SIGN - INF - 1)); }  \
	static inline I CAT3(up, N, h)(T x) { return (I)((K)CAT3(order, N, h)(x) + (SIGN - INF - 1)); }    \
	static inline T CAT3(unorder, N, h)(K k)                                                          \
	{                                                                                                 \
		return CAT3(flush, N, h)(CAT3(from, N, h)(k ^ ((K)((I)k >> (sizeof(K) * 8 - 1)) & (SIGN - 1))));   \
	}                                                                                                 \
	static inline T CAT3(undown, N, h)(I k) { return CAT3(unorder, N, h)((K)k + (SIGN - INF - 1)); }   \
	static inline T CAT3(unup, N, h)(I k) { return CAT3(unorder, N, h)((K)k - (SIGN - INF - 1)); }     \
	static inline T CAT3(afz_1, N, h)(T x)                                                            \
	{                                                                                                 \
		T t = TRUNC(x), r = FABS(x - t) >= (T)0.5 ? t + COPYSIGN((T)1, x) : t;                        \
		return COPYSIGN(r, x);                                                                        \
	}
#define REM_HELP(N, T, COPYSIGN, FABS, LIMIT)                                                         \
	/* quotients up to LIMIT: the product is exact in double, the difference too */                   \
	static inline T CAT3(rem_1, N, h)(T x, T y)                                                       \
	{                                                                                                 \
		double u = x, v = y, q = __builtin_trunc(u / v), r = u - q * v;                               \
		r = u >= 0 && r < 0 ? r + __builtin_fabs(v) : r;                                              \
		r = u <= 0 && r > 0 ? r - __builtin_fabs(v) : r;                                              \
		return COPYSIGN((T)r, x);                                                                     \
	}                                                                                                 \
	static inline bool CAT3(rem_ok, N, h)(T x, T y)                                                   \
	{ return FABS(x / y) < (T)LIMIT && FABS(y) < (T)1e30 && FABS(y) > (T)1e-30; }
FLOAT_HELP(f32, float, uint32_t, int32_t, 0x80000000u, 0x7f800000u, __builtin_truncf, __builtin_copysignf, __builtin_fabsf)
FLOAT_HELP(f64, double, uint64_t, int64_t, 0x8000000000000000u, 0x7ff0000000000000u, __builtin_trunc, __builtin_copysign, __builtin_fabs)
REM_HELP(f32, float, __builtin_copysignf, __builtin_fabsf, 0x1p28f)

/* Rows become functions, then the table of the type. */
#define FN(fn) CAT3(fn, TNAME, s)
#define NAME(fn) CAT3(fn, TNAME, h)

#define SET_INT 1
#define TNAME i8
#define T int8_t
#define S int8_t
#define U uint8_t
#define W uint32_t
#define BITS 8
#define SIGNED 1
#include "strips.h"
#define TNAME i16
#define T int16_t
#define S int16_t
#define U uint16_t
#define W uint32_t
#define BITS 16
#define SIGNED 1
#include "strips.h"
#define TNAME i32
#define T int32_t
#define S int32_t
#define U uint32_t
#define W uint32_t
#define BITS 32
#define SIGNED 1
#include "strips.h"
#define TNAME i64
#define T int64_t
#define S int64_t
#define U uint64_t
#define W uint64_t
#define BITS 64
#define SIGNED 1
#include "strips.h"
#define TNAME u8
#define T uint8_t
#define S int8_t
#define U uint8_t
#define W uint32_t
#define BITS 8
#define SIGNED 0
#include "strips.h"
#define TNAME u16
#define T uint16_t
#define S int16_t
#define U uint16_t
#define W uint32_t
#define BITS 16
#define SIGNED 0
#include "strips.h"
#define TNAME u32
#define T uint32_t
#define S int32_t
#define U uint32_t
#define W uint32_t
#define BITS 32
#define SIGNED 0
#include "strips.h"
#define TNAME u64
#define T uint64_t
#define S int64_t
#define U uint64_t
#define W uint64_t
#define BITS 64
#define SIGNED 0
#include "strips.h"
#undef SET_INT

#define SET_PRED 1
#define TNAME pred
#define T uint8_t
#include "strips.h"
#undef SET_PRED

#define SET_FLOAT 1
#define TNAME f32
#define T float
#define SIGNBIT 0x80000000u
#define LIBZ(x) (x)
#define INFBITS 0x7f800000u
#define C(fn) fn##f
#define F(fn) fn##_f
#define REST(fn) fn##_rest
#define WITHIN(x, most) (__builtin_fabsf(x) <= (float)(most))
#define REM(x, y) NAME(rem_1)(x, y)
#define REM_OK(x, y) NAME(rem_ok)(x, y)
#include "strips.h"
#undef SIGNBIT
#undef LIBZ
#undef INFBITS
#undef C
#undef F
#undef REST
#undef WITHIN
#undef REM
#undef REM_OK
#define TNAME f64
#define T double
#define SIGNBIT 0x8000000000000000u
#define LIBZ(x) flush_f64_h(x)
#define INFBITS 0x7ff0000000000000u
#define C(fn) fn
#define F(fn) fn##_d
#define REST(fn) fn
#define WITHIN(x, most) (__builtin_fabs(x) <= TRIG_WIDE)
#define REM(x, y) fmod(x, y)
#define REM_OK(x, y) ((void)(x), (void)(y), true)
#include "strips.h"
#undef SIGNBIT
#undef LIBZ
#undef INFBITS
#undef C
#undef F
#undef REST
#undef WITHIN
#undef REM
#undef REM_OK
#undef SET_FLOAT

/* --- conversions --------------------------------------------------------- */

#define CV(A, TA, B, TB, e)                                                                           \
	static void CAT3(cv, A, B)(ARGS)                                                                  \
	{                                                                                                 \
		(void)b_, (void)c_;                                                                           \
		const TA *a = a_;                                                                             \
		TB *o = out;                                                                                  \
		EACH { TA x = a[i]; o[i] = (TB)(e); }                                                         \
	}
/* Float to integer: truncate, saturate, NaN to 0.  TOP is the first float above the range. */
#define CVSAT(A, TA, B, TB, LOW, HIGH, TOP, BELOW)                                                    \
	static void CAT3(cv, A, B)(ARGS)                                                                  \
	{                                                                                                 \
		(void)b_, (void)c_;                                                                           \
		const TA *a = a_;                                                                             \
		TB *o = out;                                                                                  \
		EACH {                                                                                        \
			TA x = a[i], y = x == x ? x : 0;                                                          \
			y = y < (TA)(LOW) ? (TA)(LOW) : y;                                                        \
			bool over = y >= (TA)(TOP);                                                               \
			y = over ? (TA)(BELOW) : y;                                                               \
			TB r = (TB)y;                                                                             \
			o[i] = over ? HIGH : r;                                                                   \
		}                                                                                             \
	}
#define CV_TO_INTS(A, TA)                                                                             \
	CV(A, TA, i8, int8_t, x) CV(A, TA, i16, int16_t, x) CV(A, TA, i32, int32_t, x) CV(A, TA, i64, int64_t, x) \
	CV(A, TA, u8, uint8_t, x) CV(A, TA, u16, uint16_t, x) CV(A, TA, u32, uint32_t, x) CV(A, TA, u64, uint64_t, x)
#define CV_REST(A, TA) CV(A, TA, pred, uint8_t, x != 0) CV(A, TA, f32, float, x) CV(A, TA, f64, double, x)
CV_TO_INTS(pred, uint8_t) CV_REST(pred, uint8_t)
CV_TO_INTS(i8, int8_t) CV_REST(i8, int8_t)
CV_TO_INTS(i16, int16_t) CV_REST(i16, int16_t)
CV_TO_INTS(i32, int32_t) CV_REST(i32, int32_t)
CV_TO_INTS(i64, int64_t) CV_REST(i64, int64_t)
CV_TO_INTS(u8, uint8_t) CV_REST(u8, uint8_t)
CV_TO_INTS(u16, uint16_t) CV_REST(u16, uint16_t)
CV_TO_INTS(u32, uint32_t) CV_REST(u32, uint32_t)
CV_TO_INTS(u64, uint64_t) CV_REST(u64, uint64_t)
#define CV_FROM_FLOAT(A, TA, B32, BU32, B64, BU64)                                                    \
	CVSAT(A, TA, i8, int8_t, -128, 127, 128, 127)                                                     \
	CVSAT(A, TA, i16, int16_t, -32768, 32767, 32768, 32767)                                           \
	CVSAT(A, TA, i32, int32_t, -0x1p31, INT32_MAX, 0x1p31, B32)                                       \
	CVSAT(A, TA, i64, int64_t, -0x1p63, INT64_MAX, 0x1p63, B64)                                       \
	CVSAT(A, TA, u8, uint8_t, 0, 255, 256, 255)                                                       \
	CVSAT(A, TA, u16, uint16_t, 0, 65535, 65536, 65535)                                               \
	CVSAT(A, TA, u32, uint32_t, 0, UINT32_MAX, 0x1p32, BU32)                                          \
	CVSAT(A, TA, u64, uint64_t, 0, UINT64_MAX, 0x1p64, BU64)
CV_FROM_FLOAT(f32, float, 0x1.fffffep30, 0x1.fffffep31, 0x1.fffffep62, 0x1.fffffep63)
CV_REST(f32, float)
CV_FROM_FLOAT(f64, double, 0x1.fffffffcp30, 0x1.fffffffep31, 0x1.fffffffffffffp62, 0x1.fffffffffffffp63)
CV_REST(f64, double)

static void CAT3(cv, bf16, f32)(ARGS)
{
	(void)b_, (void)c_;
	const uint16_t *a = a_;
	uint32_t *o = out;
	EACH o[i] = (uint32_t)a[i] << 16;
}
static void CAT3(cv, f32, bf16)(ARGS)
{
	(void)b_, (void)c_;
	const uint32_t *a = a_;
	uint16_t *o = out;
	EACH {
		uint32_t u = a[i], r = (u + 0x7fff + (u >> 16 & 1)) >> 16;
		o[i] = (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? u >> 16 | 0x40 : r);
	}
}
#if ISA_LEVEL >= 3
#define FROM_F16(x) _cvtsh_ss(x)
#define TO_F16(x) (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)
#else
#define FROM_F16(x) f16_to_f32(x)
#define TO_F16(x) f32_to_f16(x)
#endif
static void CAT3(cv, f16, f32)(ARGS)
{
	(void)b_, (void)c_;
	const uint16_t *a = a_;
	float *o = out;
	int64_t i = 0;
#if ISA_LEVEL >= 3
	for (; i + 8 <= n; i += 8)
		_mm256_storeu_ps(o + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(a + i))));
#endif
	for (; i < n; i++)
		o[i] = FROM_F16(a[i]);
}
static void CAT3(cv, f32, f16)(ARGS)
{
	(void)b_, (void)c_;
	const float *a = a_;
	uint16_t *o = out;
	int64_t i = 0;
#if ISA_LEVEL >= 3
	for (; i + 8 <= n; i += 8)
		_mm_storeu_si128((__m128i *)(o + i), _mm256_cvtps_ph(_mm256_loadu_ps(a + i), _MM_FROUND_TO_NEAREST_INT));
#endif
	for (; i < n; i++)
		o[i] = TO_F16(a[i]);
}

#define CVROW(A) { CAT3(cv, A, pred), CAT3(cv, A, i8), CAT3(cv, A, i16), CAT3(cv, A, i32), CAT3(cv, A, i64), \
	CAT3(cv, A, u8), CAT3(cv, A, u16), CAT3(cv, A, u32), CAT3(cv, A, u64), CAT3(cv, A, f32), CAT3(cv, A, f64) }

/* --- folds --------------------------------------------------------------- */

/* A fixed tree: blocks of FOLD_BLOCK in FOLD_LANES running values each, blocks halved recursively. */
enum { FOLD_LANES = 64, FOLD_BLOCK = 1024 };
#define FOLD(R, N, T, ID, e) FOLD_AS(R, N, T, T, (T), (T), ID, e)
/* Of numbers that are load(x), from which last() makes the result. */
#define FOLD_AS(R, N, X, T, load, last, ID, e)                                                        \
	static inline __attribute__((always_inline)) T CAT3(R, N, lanes)(int64_t n, const X *x, int lanes)                               \
	{                                                                                                 \
		T acc[FOLD_LANES];                                                                            \
		int64_t i = 0;                                                                                \
		for (int j = 0; j < lanes; j++)                                                               \
			acc[j] = (T)(ID);                                                                         \
		for (; i + lanes <= n; i += lanes)                                                            \
			for (int j = 0; j < lanes; j++) {                                                         \
				T a = acc[j], b = load(x[i + j]);                                                     \
				acc[j] = (T)(e);                                                                      \
			}                                                                                         \
		for (int j = 0; i < n && j < lanes; i++, j++) {                                                            \
			T a = acc[j], b = load(x[i]);                                                             \
			acc[j] = (T)(e);                                                                          \
		}                                                                                             \
		for (int w = lanes / 2; w; w /= 2)                                                            \
			for (int j = 0; j < w; j++) {                                                             \
				T a = acc[j], b = acc[j + w];                                                         \
				acc[j] = (T)(e);                                                                      \
			}                                                                                         \
		return acc[0];                                                                                \
	}                                                                                                 \
	static T CAT3(R, N, block)(int64_t n, const X *x)                                                 \
	{                                                                                                 \
		return n < 4 * FOLD_LANES ? CAT3(R, N, lanes)(n, x, FOLD_LANES / 4) : CAT3(R, N, lanes)(n, x, FOLD_LANES); \
	}                                                                                                 \
	static T CAT3(R, N, tree)(int64_t n, const X *x)                                                  \
	{                                                                                                 \
		if (n <= FOLD_BLOCK)                                                                          \
			return CAT3(R, N, block)(n, x);                                                           \
		int64_t h = ((n + FOLD_BLOCK - 1) / FOLD_BLOCK / 2) * FOLD_BLOCK;                             \
		T a = CAT3(R, N, tree)(h, x), b = CAT3(R, N, tree)(n - h, x + h);                             \
		return (T)(e);                                                                                \
	}                                                                                                 \
	static void CAT3(R, N, fold)(int64_t n, const void *x, void *out)                                 \
	{                                                                                                 \
		X r = last(CAT3(R, N, tree)(n, x));                                                           \
		memcpy(out, &r, sizeof r);                                                                    \
	}
#define FOLD_INT(N, T, W, LOW, HIGH)                                                                  \
	FOLD(add, N, T, 0, (W)a + (W)b) FOLD(mul, N, T, 1, (W)a * (W)b)                                   \
	FOLD(min, N, T, HIGH, a < b ? a : b) FOLD(max, N, T, LOW, a > b ? a : b)
FOLD_INT(i8, int8_t, uint32_t, INT8_MIN, INT8_MAX)
FOLD_INT(u8, uint8_t, uint32_t, 0, UINT8_MAX)
FOLD_INT(i32, int32_t, uint32_t, INT32_MIN, INT32_MAX)
FOLD_INT(i64, int64_t, uint64_t, INT64_MIN, INT64_MAX)
FOLD_INT(u32, uint32_t, uint32_t, 0, UINT32_MAX)
FOLD_INT(u64, uint64_t, uint64_t, 0, UINT64_MAX)
FOLD(or, pred, uint8_t, 0, a | b)
FOLD(and, pred, uint8_t, 1, a & b)
FOLD(add, f32, float, -0.f, a + b)
FOLD(mul, f32, float, 1, a * b)
FOLD_AS(min, f32, float, int32_t, CAT3(up, f32, h), CAT3(unup, f32, h), INT32_MAX, a < b ? a : b)
FOLD_AS(max, f32, float, int32_t, CAT3(down, f32, h), CAT3(undown, f32, h), INT32_MIN, a > b ? a : b)
FOLD(add, f64, double, -0., a + b)
FOLD(mul, f64, double, 1, a * b)
FOLD_AS(min, f64, double, int64_t, CAT3(up, f64, h), CAT3(unup, f64, h), INT64_MAX, a < b ? a : b)
FOLD_AS(max, f64, double, int64_t, CAT3(down, f64, h), CAT3(undown, f64, h), INT64_MIN, a > b ? a : b)

#include "isa_each.h"

/* --- numbers of 16 bits as integers in their order ------------------------------ */

/* Those of bf16 that are subnormal are zeros (docs/numbers.md), FLUSH: bits of which those have none. */
#define KEY16(N, WAY, FLUSH, BEYOND)                                                                  \
	static void CAT3(key, N, WAY)(ARGS)                                                               \
	{                                                                                                 \
		const int16_t *a = a_;                                                                        \
		int16_t *o = out;                                                                             \
		EACH o[i] = (int16_t)((a[i] ^ ((a[i] >> 15) & 0x7fff)) + BEYOND);                             \
	}                                                                                                 \
	static void CAT3(unkey, N, WAY)(ARGS)                                                             \
	{                                                                                                 \
		const int16_t *a = a_;                                                                        \
		uint16_t *o = out;                                                                            \
		EACH {                                                                                        \
			int16_t k = (int16_t)(a[i] - BEYOND);                                                     \
			uint16_t u = (uint16_t)(k ^ ((k >> 15) & 0x7fff));                                        \
			o[i] = !FLUSH || u & FLUSH ? u : u & 0x8000;                                              \
		}                                                                                             \
	}
KEY16(bf16, max, 0x7f80, -0x7f) KEY16(bf16, min, 0x7f80, 0x7f)
KEY16(f16, max, 0, -0x3ff) KEY16(f16, min, 0, 0x3ff)

/* The lower halves of two vectors of so many elements in turn, and the upper ones. */
#define IL2L 0, 2
#define IL2H 1, 3
#define IL4L 0, 4, 1, 5
#define IL4H 2, 6, 3, 7
#define IL8L 0, 8, 1, 9, 2, 10, 3, 11
#define IL8H 4, 12, 5, 13, 6, 14, 7, 15
#define IL16L 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define IL16H 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31

#include "isa_products.h"

#include "isa_turn.h"

/* --- keys, small floats, random bits -------------------------------------- */

/* Order-preserving unsigned form of n values of es bytes (2 or 4), xor flip. */
#define KEY32(T, BITS)                                                                                \
	if (kind == 2) { EACH { uint32_t u = a[i]; out[i] = (u >> (BITS - 1) ? ~u & (uint32_t)(T)-1 : u | 1u << (BITS - 1)) ^ flip; } } \
	else { uint32_t top = kind == 1 ? 1u << (BITS - 1) : 0; EACH { out[i] = ((uint32_t)a[i] ^ top) ^ flip; } }
static void CAT3(keys, 32, h)(int kind, int es, uint32_t flip, int64_t n, const void *a_, uint32_t *out)
{
	if (es == 1) { const uint8_t *a = a_; KEY32(uint8_t, 8) }
	else if (es == 2) { const uint16_t *a = a_; KEY32(uint16_t, 16) }
	else { const uint32_t *a = a_; KEY32(uint32_t, 32) }
}

/* f32 to a format of at most 8 bits.  Normal numbers round in the integer; smaller ones by adding a number
 * whose last bit is the format's smallest step. */
static void CAT3(small, f8, h)(const struct small_fmt *fmt, int64_t n, uint8_t *out, const float *in)
{
	int shift = 23 - fmt->mbits, sign = fmt->sign;
	uint32_t half = (1u << (shift - 1)) - 1, rebias = (uint32_t)(127 - fmt->bias) << 23, least = (uint32_t)(128 - fmt->bias) << 23;
	float magic = f32_from((uint32_t)(127 + 1 - fmt->bias - fmt->mbits + 23) << 23);
	uint32_t magic_bits = f32_bits(magic), top = fmt->top, one_zero = fmt->one_zero ? 0 : 1;
	uint32_t over0 = fmt->over, over1 = fmt->neg_over, inf0 = fmt->pos_inf, inf1 = fmt->neg_inf, nan0 = fmt->pos_nan, nan1 = fmt->neg_nan;
	EACH {
		uint32_t u = f32_bits(in[i]), a = u & 0x7fffffffu, neg = u >> 31;
		uint32_t r = (a + half + (a >> shift & 1) - rebias) >> shift;
		uint32_t s = f32_bits(f32_from(a) + magic) - magic_bits;
		uint32_t c = a < least ? s : r;
		uint32_t minus = neg & ((c ? 1u : 0u) | one_zero);
		uint32_t out_of = neg ? over1 : over0, infinite = neg ? inf1 : inf0, none = neg ? nan1 : nan0;
		uint32_t v = c | minus << sign;
		v = c > top ? out_of : v;
		v = a >= 0x7f000000u ? out_of : v;
		v = a == 0x7f800000u ? infinite : v;
		v = a > 0x7f800000u ? none : v;
		out[i] = (uint8_t)v;
	}
}

#define ROUND(T)                                                                                      \
	static void CAT3(round, T, h)(const struct rounding *f, int64_t n, void *out, const void *in)     \
	{                                                                                                 \
		const T *a = in, inf = (T)f->inf, sign = (T)f->sign, half = (T)f->half, odd = (T)f->odd, keep = (T)f->keep; \
		const T over = (T)f->over, least = (T)f->least, quiet = (T)f->quiet;                          \
		T *o = out;                                                                                   \
		int drop = f->drop;                                                                           \
		EACH {                                                                                        \
			T u = a[i], r = (T)((u + half + (u >> drop & odd)) & keep), e = r & inf;                  \
			r = e > over ? (T)((u & sign) | inf) : r;                                                 \
			r = e < least ? (T)(u & sign) : r;                                                        \
			o[i] = (T)(u & (sign - 1)) > inf ? (T)(u | quiet) : r;                                    \
		}                                                                                             \
	}
ROUND(uint16_t) ROUND(uint32_t) ROUND(uint64_t)

#define TNAME fft32
#define T float
#if ISA_LEVEL >= 4
#define SWAP(v) __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#define SIGNS { -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1 }
#elif ISA_LEVEL >= 3
#define SWAP(v) __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6)
#define SIGNS { -1, 1, -1, 1, -1, 1, -1, 1 }
#else
#define SWAP(v) __builtin_shufflevector(v, v, 1, 0, 3, 2)
#define SIGNS { -1, 1, -1, 1 }
#endif
#include "fft_pass.h"
#define TNAME fft64
#define T double
#if ISA_LEVEL >= 4
#define SWAP(v) __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6)
#define SIGNS { -1, 1, -1, 1, -1, 1, -1, 1 }
#elif ISA_LEVEL >= 3
#define SWAP(v) __builtin_shufflevector(v, v, 1, 0, 3, 2)
#define SIGNS { -1, 1, -1, 1 }
#else
#define SWAP(v) __builtin_shufflevector(v, v, 1, 0)
#define SIGNS { -1, 1 }
#endif
#include "fft_pass.h"

/* --- complex: what gains by vectors; the rest, and what Annex G asks for, is in complex.c ------
 * Parts of a product are made apart: side by side, gcc rounds once where twice is meant, and x conj(x) would not be real. */

enum { BLOCK = 64 };

#define COMPLEX_FNS(P, T)                                                                                                 \
	static void CAT3(P, add, s)(ARGS) { const T *a = a_, *b = b_; T *o = out; n *= 2; EACH o[i] = a[i] + b[i]; }              \
	static void CAT3(P, subtract, s)(ARGS) { const T *a = a_, *b = b_; T *o = out; n *= 2; EACH o[i] = a[i] - b[i]; }         \
	static void CAT3(P, negate, s)(ARGS) { const T *a = a_; T *o = out; n *= 2; EACH o[i] = -a[i]; }                           \
	static void CAT3(P, multiply, s)(ARGS) { const T *a = a_, *b = b_; T *o = out;                                        \
		for (int64_t all = n, at = 0; at < all; at += BLOCK, a += 2 * BLOCK, b += 2 * BLOCK, o += 2 * BLOCK) {            \
			T re[BLOCK], im[BLOCK];                                                                                       \
			n = MIN(BLOCK, all - at);                                                                                     \
			EACH { T xr = a[2 * i], xi = a[2 * i + 1], yr = b[2 * i], yi = b[2 * i + 1];                                  \
			       re[i] = xr * yr - xi * yi; im[i] = xr * yi + xi * yr; }                                                \
			EACH { o[2 * i] = re[i]; o[2 * i + 1] = im[i]; }                                                              \
		} }                                                                                                               \
	static void CAT3(P, complex, s)(ARGS) { const T *a = a_, *b = b_; T *o = out;                                             \
		EACH { T re = a[i], im = b[i]; o[2 * i] = re; o[2 * i + 1] = im; } }                                                  \
	static void CAT3(P, real, s)(ARGS) { const T *a = a_; T *o = out; EACH o[i] = a[2 * i]; }                                  \
	static void CAT3(P, imag, s)(ARGS) { const T *a = a_; T *o = out; EACH o[i] = a[2 * i + 1]; }
COMPLEX_FNS(c64, float)
COMPLEX_FNS(c128, double)

/* The sum in double, where nothing overflows; its root too where it is beyond floats, or not a number: an infinite part wins
 * over NaN. */
static void CAT3(c64, abs, s)(ARGS)
{
	const float *a = a_;
	float *o = out;
	for (int64_t all = n, at = 0; at < all; at += BLOCK, a += 2 * BLOCK, o += BLOCK) {
		int odd = 0;
		n = MIN(BLOCK, all - at);
		for (int i = 0; i < 2 * BLOCK; i += 16)
			__builtin_prefetch(a + i + 8 * BLOCK);
		EACH {
			double x = a[2 * i], y = a[2 * i + 1];
			float sum = (float)(x * x + y * y);
			odd |= !(sum < 0x1p126f) | (sum < 0x1p-120f);
			o[i] = __builtin_sqrtf(sum);
		}
		for (int64_t i = 0; odd && i < n; i++) {
			double x = a[2 * i], y = a[2 * i + 1];
			float sum = (float)(x * x + y * y);
			if (!(sum < 0x1p126f) || sum < 0x1p-120f)
				o[i] = isinf(x) || isinf(y) ? __builtin_inff() : (float)__builtin_sqrt(x * x + y * y);
		}
	}
}

/* In double, block by block; where both parts come out as NaN, as C says. */
static void CAT3(c64, divide, s)(ARGS)
{
	const float *a = a_, *b = b_;
	float *o = out;
	for (int64_t all = n, at = 0; at < all; at += BLOCK, a += 2 * BLOCK, b += 2 * BLOCK, o += 2 * BLOCK) {
		float re[BLOCK], im[BLOCK];
		int bad = 0;
		n = MIN(BLOCK, all - at);
		EACH {
			double xr = a[2 * i], xi = a[2 * i + 1], yr = b[2 * i], yi = b[2 * i + 1], f = 1 / (yr * yr + yi * yi);
			float r = (float)((xr * yr + xi * yi) * f), m = (float)((xi * yr - xr * yi) * f);
			re[i] = r;
			im[i] = m;
			bad |= (r != r) & (m != m);
		}
		for (int64_t i = 0; bad && i < n; i++)
			if (re[i] != re[i] && im[i] != im[i]) {
				float z[2];
				kern_complex64[ELEM_divide](1, z, a + 2 * i, b + 2 * i, NULL);
				re[i] = z[0];
				im[i] = z[1];
			}
		EACH { o[2 * i] = re[i]; o[2 * i + 1] = im[i]; }
	}
}

/* Where squares neither overflow nor lose digits; the others as C does it. */
#define c128_is_odd(sum, a) ((!((sum) < 0x1p1000)) | (((sum) < 0x1p-900) & (((a)[0] != 0) | ((a)[1] != 0))))
static void CAT3(c128, abs, s)(ARGS)
{
	const double *a = a_;
	double *o = out;
	for (int64_t all = n, at = 0; at < all; at += BLOCK, a += 2 * BLOCK, o += BLOCK) {
		int64_t any = 0;
		n = MIN(BLOCK, all - at);
		EACH {
			double sum = a[2 * i] * a[2 * i] + a[2 * i + 1] * a[2 * i + 1];
			any |= c128_is_odd(sum, a + 2 * i);
			o[i] = __builtin_sqrt(sum);
		}
		for (int64_t i = 0; any && i < n; i++)
			if (c128_is_odd(a[2 * i] * a[2 * i] + a[2 * i + 1] * a[2 * i + 1], a + 2 * i))
				kern_complex128[ELEM_abs](1, o + i, a + 2 * i, NULL, NULL);
	}
}

#if ISA_LEVEL > 2
/* Sums of two products as if of what is exact (Kahan; Jeannerod, Louvet, Muller, "Further analysis of Kahan's algorithm", 2013), so that
 * parts are right where they cancel, too; what would overflow or lose digits on the way as C does it. */
static inline double products(double a, double b, double c, double d)
{
	double p = c * d;
	return __builtin_fma(a, b, p) + __builtin_fma(c, d, -p);
}
static void CAT3(c128, divide, s)(ARGS)
{
	const double *a = a_, *b = b_;
	double *o = out;
	for (int64_t all = n, at = 0; at < all; at += BLOCK, a += 2 * BLOCK, b += 2 * BLOCK, o += 2 * BLOCK) {
		double re[BLOCK], im[BLOCK];
		int64_t odd[BLOCK], any = 0;
		n = MIN(BLOCK, all - at);
		EACH {
			double xr = a[2 * i], xi = a[2 * i + 1], yr = b[2 * i], yi = b[2 * i + 1], f = products(yr, yr, yi, yi), size = xr * xr + xi * xi;
			odd[i] = (!(f < 0x1p900)) | (!(f > 0x1p-900)) | (!(size < 0x1p900)) | (!(size > 0x1p-900));
			any |= odd[i];
			re[i] = products(xr, yr, xi, yi) / f;
			im[i] = products(xi, yr, -xr, yi) / f;
		}
		for (int64_t i = 0; any && i < n; i++)
			if (odd[i]) {
				double z[2];
				kern_complex128[ELEM_divide](1, z, a + 2 * i, b + 2 * i, NULL);
				re[i] = z[0];
				im[i] = z[1];
			}
		EACH { o[2 * i] = re[i]; o[2 * i + 1] = im[i]; }
	}
}
#define C128_DIVIDE [ELEM_divide] = c128_divide_s,
#else
#define C128_DIVIDE
#endif

enum { RNG_STRIP = 64 };
/* n calls of Philox 4x32-10 with counters c0 ++, c1 (128 bits in all): four words each, in order. */
static void CAT3(philox, 4x32, h)(int64_t total, const uint32_t key[2], uint64_t c0, uint64_t c1, uint32_t *out)
{
	for (int64_t at = 0; at < total; at += RNG_STRIP) {
		uint32_t x0[RNG_STRIP], x1[RNG_STRIP], x2[RNG_STRIP], x3[RNG_STRIP], k0 = key[0], k1 = key[1];
		int64_t n = RNG_STRIP;
		for (int64_t i = 0; i < n; i++) {
			uint64_t c = c0 + (uint64_t)(at + i), d = c1 + (c < c0);
			x0[i] = (uint32_t)c, x1[i] = (uint32_t)(c >> 32), x2[i] = (uint32_t)d, x3[i] = (uint32_t)(d >> 32);
		}
		for (int r = 0; r < 10; r++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
			EACH {
				uint64_t a = (uint64_t)x0[i] * 0xD2511F53u, b = (uint64_t)x2[i] * 0xCD9E8D57u;
				uint32_t y0 = (uint32_t)(b >> 32) ^ x1[i] ^ k0, y2 = (uint32_t)(a >> 32) ^ x3[i] ^ k1;
				x0[i] = y0, x1[i] = (uint32_t)b, x2[i] = y2, x3[i] = (uint32_t)a;
			}
		uint32_t *o = out + 4 * at;
		n = MIN(n, total - at);
		for (int64_t i = 0; i < n; i++)
			o[4 * i] = x0[i], o[4 * i + 1] = x1[i], o[4 * i + 2] = x2[i], o[4 * i + 3] = x3[i];
	}
}
/* n calls of Threefry 2x32-20 with counters c ++. */
static void CAT3(threefry, 2x32, h)(int64_t n, const uint32_t key[2], uint64_t c, uint32_t *o0, uint32_t *o1)
{
	uint32_t ks[3] = { key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAu };
	EACH {
		uint64_t v = c + (uint64_t)i;
		uint32_t x0 = (uint32_t)v + ks[0], x1 = (uint32_t)(v >> 32) + ks[1];
#define MIX(r) x0 += x1, x1 = (x1 << r | x1 >> (32 - r)) ^ x0
		MIX(13), MIX(15), MIX(26), MIX(6), x0 += ks[1], x1 += ks[2] + 1;
		MIX(17), MIX(29), MIX(16), MIX(24), x0 += ks[2], x1 += ks[0] + 2;
		MIX(13), MIX(15), MIX(26), MIX(6), x0 += ks[0], x1 += ks[1] + 3;
		MIX(17), MIX(29), MIX(16), MIX(24), x0 += ks[1], x1 += ks[2] + 4;
		MIX(13), MIX(15), MIX(26), MIX(6), x0 += ks[2], x1 += ks[0] + 5;
#undef MIX
		o0[i] = x0;
		o1[i] = x1;
	}
}

/* --- rows of few bytes -------------------------------------------------------- */

/* Of each k = 2, 3 or 4 elements the first. */
#define EVERY(T, K)                                                                 \
	for (int64_t i = 0; i < n; i++) {                                               \
		T t;                                                                        \
		memcpy(&t, src + i * (K) * (int64_t)sizeof t, sizeof t);                    \
		memcpy(dst + i * (int64_t)sizeof t, &t, sizeof t);                          \
	}
#define EVERY_FEW(T) if (k == 2) { EVERY(T, 2) } else if (k == 3) { EVERY(T, 3) } else { EVERY(T, 4) }
static void every_h(int es, int64_t n, int64_t k, char *restrict dst, const char *restrict src) { BY_SIZE(es, EVERY_FEW) }

static void flip_h(int64_t n, int64_t dim, int es, const char *in, char *out)
{
	int64_t row = dim * es, i = 0;
#if defined(__x86_64__) && ISA_LEVEL >= 3
	int64_t some = 1;
	__m128i at = _mm_xor_si128(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm_set1_epi8((char)(16 - es)));      /* all, of a power of two, turned round */
	if (row < 16) {
		uint8_t from[16];
		some = 16 / row;
		for (int64_t b = 0; b < 16; b++)
			from[b] = (uint8_t)(b / row * row + (row - es - b % row / es * es) + b % es);
		at = _mm_loadu_si128((const void *)from);
	}
	/* as many rows as fit; what is stored behind them the next turn overwrites */
	for (; row <= 16 && i * row + 16 <= n * row; i += some)
		_mm_storeu_si128((void *)(out + i * row), _mm_shuffle_epi8(_mm_loadu_si128((const void *)(in + i * row)), at));
#if ISA_LEVEL >= 4
	const __m512i all = _mm512_broadcast_i32x4(at);
	for (; row >= 64 && i < n; i++)
		for (int64_t j = 0; j < row; j += 64) {
			int64_t k = j + 64 <= row ? j : row - 64;
			__m512i x = _mm512_loadu_si512((const void *)(in + i * row + row - 64 - k));
			_mm512_storeu_si512((void *)(out + i * row + k), _mm512_shuffle_epi8(_mm512_shuffle_i64x2(x, x, 0x1b), all));
		}
#endif
	/* or 16 bytes of a row, which the last ones meet again */
	for (; row > 16 && i < n; i++)
		for (int64_t j = 0; j < row; j += 16) {
			int64_t k = j + 16 <= row ? j : row - 16;
			_mm_storeu_si128((void *)(out + i * row + k), _mm_shuffle_epi8(_mm_loadu_si128((const void *)(in + i * row + row - 16 - k)), at));
		}
#endif
#define BACK(T)                                                                     \
	for (; i < n; i++)                                                              \
		for (int64_t j = 0; j < dim; j++) {                                         \
			T t;                                                                    \
			memcpy(&t, in + i * row + (dim - 1 - j) * (int64_t)sizeof t, sizeof t); \
			memcpy(out + i * row + j * (int64_t)sizeof t, &t, sizeof t);            \
		}
	BY_SIZE(es, BACK)
#undef BACK
}

const struct kern_isa CAT3(kern, isa, ISA_NAME) = {
	.name = ISA_TEXT,
	.elem = { [NAT_pred] = table_pred_s, [NAT_i8] = table_i8_s, [NAT_i16] = table_i16_s, [NAT_i32] = table_i32_s,
	          [NAT_i64] = table_i64_s, [NAT_u8] = table_u8_s, [NAT_u16] = table_u16_s, [NAT_u32] = table_u32_s,
	          [NAT_u64] = table_u64_s, [NAT_f32] = table_f32_s, [NAT_f64] = table_f64_s },
	.conv = { CVROW(pred), CVROW(i8), CVROW(i16), CVROW(i32), CVROW(i64), CVROW(u8), CVROW(u16), CVROW(u32),
	          CVROW(u64), CVROW(f32), CVROW(f64) },
	.bf16_f32 = cv_bf16_f32, .f32_bf16 = cv_f32_bf16, .f16_f32 = cv_f16_f32, .f32_f16 = cv_f32_f16,
	.fold = {
#define FOLDS(R) { [NAT_i8] = R##_i8_fold, [NAT_u8] = R##_u8_fold, [NAT_i32] = R##_i32_fold, [NAT_i64] = R##_i64_fold, \
	[NAT_u32] = R##_u32_fold, [NAT_u64] = R##_u64_fold, [NAT_f32] = R##_f32_fold, [NAT_f64] = R##_f64_fold, \
	[NAT_pred] = PRED_##R }
#define PRED_add or_pred_fold
#define PRED_max or_pred_fold
#define PRED_min and_pred_fold
#define PRED_mul and_pred_fold
		[RED_add] = FOLDS(add), [RED_mul] = FOLDS(mul), [RED_min] = FOLDS(min), [RED_max] = FOLDS(max),
		[RED_or] = { [NAT_pred] = or_pred_fold }, [RED_and] = { [NAT_pred] = and_pred_fold },
	},
	.each = {
#define EACH_INTS(R) [DT_i8] = R##_i8_each, [DT_i16] = R##_i16_each, [DT_i32] = R##_i32_each, [DT_i64] = R##_i64_each, \
	[DT_u8] = R##_u8_each, [DT_u16] = R##_u16_each, [DT_u32] = R##_u32_each, [DT_u64] = R##_u64_each
#define EACH_ALL(R) { EACH_INTS(R), [DT_f32] = R##_f32_each, [DT_f64] = R##_f64_each, [DT_bf16] = R##_bf16_each, [DT_f16] = R##_f16_each }
		[RED_add] = EACH_ALL(add), [RED_mul] = EACH_ALL(mul), [RED_min] = EACH_ALL(min), [RED_max] = EACH_ALL(max),
		[RED_and] = { EACH_INTS(and) }, [RED_or] = { EACH_INTS(or) }, [RED_xor] = { EACH_INTS(xor) },
	},
	.key16 = { { { key_bf16_max, unkey_bf16_max }, { key_f16_max, unkey_f16_max } }, { { key_bf16_min, unkey_bf16_min }, { key_f16_min, unkey_f16_min } } },
	.look = { look_4_h, look_8_h }, .place_i32 = place_i32_h, .put = { put_1_each, put_2_each, put_4_each, put_8_each, put_16_each },
	.gemm_f32 = gemm_f32_h, .gemm_f64 = gemm_f64_h, .gemm_i32 = gemm_i32_h, .gemm_i64 = gemm_i64_h,
	.gemm_nt_f32 = gemmnt_f32_h, .gemm_nt_f64 = gemmnt_f64_h, .gemm_nt_i32 = gemmnt_i32_h, .gemm_nt_i64 = gemmnt_i64_h,
#define FEW_INTS(P) { [NAT_i8] = P##_i8_h, [NAT_i16] = P##_i16_h, [NAT_i32] = P##_i32_h, [NAT_u8] = P##_u8_h, [NAT_u16] = P##_u16_h, [NAT_u32] = P##_u32_h }
	.dot_int = FEW_INTS(dotint), .axpy4_int = FEW_INTS(axpyint),
	.fft_pass = { pass_fft32_h, pass_fft64_h }, .fft_spin = { spin_fft32_h, spin_fft64_h }, .fft_weigh = { weigh_fft32_h, weigh_fft64_h },
	.fft_pairs = { pairs_fft32_h, pairs_fft64_h }, .fft_half = { half_fft32_h, half_fft64_h },
	.fft_widen = { widen_fft32_h, widen_fft64_h },
#define COMPLEX_ROWS(P) [ELEM_add] = P##_add_s, [ELEM_subtract] = P##_subtract_s, [ELEM_negate] = P##_negate_s,              \
	[ELEM_multiply] = P##_multiply_s, [ELEM_complex] = P##_complex_s, [ELEM_real] = P##_real_s, [ELEM_imag] = P##_imag_s
	.on_complex = { { COMPLEX_ROWS(c64), [ELEM_abs] = c64_abs_s, [ELEM_divide] = c64_divide_s, [ELEM_select] = select_u64_s }, { COMPLEX_ROWS(c128), C128_DIVIDE [ELEM_abs] = c128_abs_s } },
	.every = every_h, .flip = flip_h, .keys32 = keys_32_h, .small = small_f8_h, .round = { round_uint16_t_h, round_uint32_t_h, round_uint64_t_h }, .philox = philox_4x32_h, .threefry = threefry_2x32_h,
	.transpose = { transpose_or_weave_uint8_t_h, transpose_or_weave_uint16_t_h, transpose_words, transpose_uint64_t_h },
};

#if ISA_LEVEL >= 3
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
