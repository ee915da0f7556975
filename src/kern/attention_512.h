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

/* The highest score of a row is raised by x and y, which are exponents of 2 beside m but for less. */
IN512 void raise_top(float *top, __m512 x, __m512 y, float less, float m)
{
	__m512 x2 = _mm512_add_ps(_mm512_add_ps(_mm512_max_ps(x, y), K512(less)), K512(m));
	_mm512_store_ps(top, _mm512_max_ps(_mm512_mul_ps(x2, K512(0.693147181f)), _mm512_load_ps(top)));
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
