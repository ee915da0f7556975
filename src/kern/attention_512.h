/* What the AVX-512 sources of attention share: the product of a few rows and a panel, in registers, and what differs between bf16 and f32. */
#ifndef RONDO_KERN_ATTENTION_512_H
#define RONDO_KERN_ATTENTION_512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define T512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl")))
#define TBF16 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16")))
#define IN512 T512 __attribute__((always_inline)) static inline
#define INBF16 TBF16 __attribute__((always_inline)) static inline
#define K512(x) _mm512_set1_ps(x)

/* s + x y: of pairs of bf16, of f32. */
#define PAIRS(s, x, y) _mm512_dpbf16_ps(s, (__m512bh)(x), (__m512bh)(y))
#define FLOATS(s, x, y) _mm512_fmadd_ps(x, y, s)

/* Of two rows of 32 bf16 the pairs of their first and of their last 16 columns (vpermt2w). */
#define PAIRS_LOW _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0)
#define PAIRS_HIGH _mm512_add_epi16(PAIRS_LOW, _mm512_set1_epi16(16))

/* Each 32 bits' two bf16, added. */
IN512 __m512 add_pairs(__m512bh x)
{
	__m512i all = (__m512i)x;
	return _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32(all, 16)), _mm512_castsi512_ps(_mm512_and_si512(all, _mm512_set1_epi32(-65536))));
}

/* f of 0 .. 1 and the whole number below: vreduceps gives 0 for -inf, of which vscalefps, which takes the whole number itself, makes 0. */
IN512 __m512 exp2_short(__m512 x)
{
	__m512 f = _mm512_reduce_ps(x, 9);
	__m512 p = _mm512_fmadd_ps(f, K512(0x1.bb7cd4p-7f), K512(0x1.aa13f0p-5f));
	p = _mm512_fmadd_ps(f, p, K512(0x1.ee798ap-3f));
	p = _mm512_fmadd_ps(f, p, K512(0x1.62d166p-1f));
	p = _mm512_fmadd_ps(f, p, K512(0x1.00002cp+0f));
	return _mm512_scalef_ps(p, x);
}

/* The highest score of a row is raised by x and y times c: it is one of them, bit by bit. */
IN512 void raise_top(float *top, __m512 x, __m512 y, float c)
{
	__m512 a = _mm512_mul_ps(x, K512(c)), b = _mm512_mul_ps(y, K512(c)), old = _mm512_load_ps(top);
	_mm512_store_ps(top, _mm512_max_ps(b, _mm512_max_ps(a, old)));
}

/* 2^x as a bf16, to 0.66 of its last place, where the sum of what it is before is not asked for: 32 at once as integers of 16 bits, which takes 7 cycles
 * of the port that vectors have beside products, not 18.  t = 256 (x + 127), rounded down, at least 0, has the exponent in its upper 8 bits and
 * below them the fraction f, where 2^f - 1 belongs: so much, in 256ths, is f above that, four f alike.  The mean is right, and the deviation 1.14 times that of
 * numbers that are rounded.  What is too large is infinite or NaN. */
static const uint8_t above[64] __attribute__((aligned(64))) = {
	1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 15, 16, 17, 17, 18, 18, 19, 19, 20, 20, 21, 21, 21, 21, 22, 22, 22,
	22, 22, 22, 22, 22, 22, 22, 21, 21, 21, 20, 20, 20, 19, 18, 18, 17, 16, 16, 15, 14, 13, 12, 11, 10, 9, 8, 6, 5, 4, 2, 1,
};
#define TVBMI __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx512vbmi")))
#define TWORDS TVBMI __attribute__((always_inline)) static inline
TWORDS __m512i to_words(__m512 t0, __m512 t1) { return _mm512_packus_epi32(_mm512_cvtps_epi32(t0), _mm512_cvtps_epi32(t1)); }      /* eight by eight of both */
TWORDS __m512i exp2_words(__m512i t)
{
	__m512i f = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x3232222212120202), t);      /* bits 2 .. 7 of each */
	t = _mm512_subs_epu16(t, _mm512_maskz_permutexvar_epi8(0x5555555555555555, f, _mm512_load_si512(above)));
	t = _mm512_avg_epu16(t, _mm512_setzero_si512());
	return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), t);
}

enum { M512 = 8 };      /* rows of a product */

/* x[i] = row i of a, lda bytes apart, times the panel b: steps words of each row, 32 columns. */
#define PRODUCT_512(x, product, steps, a, lda, b) do { \
	for (int i = 0; i < M512; i++) \
		x[i][0] = x[i][1] = _mm512_setzero_ps(); \
	_Pragma("GCC unroll 4") \
	for (int64_t k = 0; k < (steps); k++) { \
		__m512 b0 = _mm512_load_ps((b) + 128 * k), b1 = _mm512_load_ps((b) + 128 * k + 64); \
		_Pragma("GCC unroll 8") \
		for (int i = 0; i < M512; i++) { \
			float word; \
			memcpy(&word, (a) + i * (lda) + 4 * k, 4); \
			x[i][0] = product(x[i][0], K512(word), b0); \
			x[i][1] = product(x[i][1], K512(word), b1); \
		} \
	} \
} while (0)

#endif
