/* Attention of a few queries, as of a step of decoding: keys and values are read where they lie, and nothing is packed, which would take longer
 * than the products; lines are asked for a tile ahead.  A product with keys is sixteen sums of lanes, which are added up side by side. */
#include "attention.h"
#include "attention_512.h"

/* Sixteen sums of sixteen lanes.  Sum n is that of x[AT(n)]. */
#define AT(n) (((n) & 1) * 2 + ((n) >> 1 & 1) + ((n) >> 2 & 1) * 8 + ((n) >> 3) * 4)
IN512 __m512 sums(const __m512 x[16])
{
	__m512 h[8], q[4], p[2];
#pragma GCC unroll 8
	for (int i = 0; i < 8; i++)
		h[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x[i], x[i + 8], 0x44), _mm512_shuffle_f32x4(x[i], x[i + 8], 0xee));
#pragma GCC unroll 4
	for (int i = 0; i < 4; i++)
		q[i] = _mm512_add_ps(_mm512_shuffle_f32x4(h[i], h[i + 4], 0x88), _mm512_shuffle_f32x4(h[i], h[i + 4], 0xdd));
#pragma GCC unroll 2
	for (int i = 0; i < 2; i++)
		p[i] = _mm512_add_ps(_mm512_shuffle_ps(q[i], q[i + 2], 0x44), _mm512_shuffle_ps(q[i], q[i + 2], 0xee));
	return _mm512_add_ps(_mm512_shuffle_ps(p[0], p[1], 0x88), _mm512_shuffle_ps(p[0], p[1], 0xdd));
}

/* What is wanted when this tile is done, in memory of anyone or of no one. */
static inline const char *there(const char *at, int64_t ld) { return (const char *)((uintptr_t)at + (uintptr_t)(ATT_COLS * ld)); }

/* Row n < 8 from `at` on, by few registers. */
#define ROW(at, n) ((at) + ((n) & 1 ? (n) == 1 ? ld : (n) == 3 ? ld3 : (n) == 5 ? ld5 : ld7 : (n) == 6 ? 2 * ld3 : (n) * ld))

/* Row i of so many times ATT_COLS keys.  What lies as far on is fetched by the first row, or, of more rows than a few, a part by each: who asks for all at once waits. */
#define DOT(name, isa, in, product) \
in void name##_row(int i, int rows, int64_t bytes, const char *q, const char *k, int64_t ld, float *s) \
{ \
	int64_t ld3 = 3 * ld, ld5 = 5 * ld, ld7 = 7 * ld; \
	for (int h = 0; h < ATT_COLS; h += 16, k += 16 * ld) { \
		const char *a = k, *b = k + 8 * ld, *end = q + bytes, *a2 = there(a, ld), *b2 = there(b, ld); \
		bool fetch = rows <= ATT_MIX && !i; \
		for (int n = 16 * i / rows; n < 16 * (i + 1) / rows && rows > ATT_MIX; n++) \
			for (int64_t c = 0; c < bytes; c += 64) \
				__builtin_prefetch(a2 + n * ld + c); \
		__m512 x[16]; \
		_Pragma("GCC unroll 16") \
		for (int n = 0; n < 16; n++) \
			x[n] = _mm512_setzero_ps(); \
		for (const char *c = q; c < end; c += 64, a += 64, b += 64, a2 += 64, b2 += 64) { \
			__m512 y = _mm512_loadu_ps(c); \
			_Pragma("GCC unroll 8") \
			for (int n = 0; n < 8; n++) { \
				x[AT(n)] = product(x[AT(n)], y, _mm512_loadu_ps(ROW(a, n))); \
				x[AT(n + 8)] = product(x[AT(n + 8)], y, _mm512_loadu_ps(ROW(b, n))); \
				if (fetch) { \
					__builtin_prefetch(ROW(a2, n)); \
					__builtin_prefetch(ROW(b2, n)); \
				} \
			} \
		} \
		_mm512_storeu_ps(s + h, sums(x)); \
	} \
} \
isa static void name(int rows, int64_t bytes, const char *q, int64_t ldq, const char *k, int64_t ldk, float *s) \
{ \
	for (int i = 0; i < rows; i++) \
		name##_row(i, rows, bytes, q + i * ldq, k, ldk, s + i * ATT_COLS); \
}
DOT(dot_bf16, TBF16, INBF16, PAIRS)
DOT(dot_f32, T512, IN512, FLOATS)

/* R rows of p times P panels of values: of each row of them a run of memory.  A step is a word of p, a float or a pair of bf16, and two lines of a panel, the
 * second one so many bytes behind the first, from which low and high make the words of its columns.  o: panels lie next bytes apart. */
#define MIX(name, isa, product, low, high, rows, line, second, R, P) \
isa static bool name##_##R##_##P(const char *p, int64_t ldp, const char *v, int64_t ld, float *o, int64_t next) \
{ \
	__m512 x[R][P][2], none = _mm512_setzero_ps(); \
	const char *next_v = there(v, ld); \
	for (int i = 0; i < R; i++) \
		for (int e = 0; e < P; e++) \
			x[i][e][0] = x[i][e][1] = _mm512_setzero_ps(); \
	for (int j = 0; j < ATT_COLS; j += rows, v += rows * ld, next_v += rows * ld, p += 4) \
		_Pragma("GCC unroll 4") \
		for (int e = 0; e < P; e++) { \
			__m512i a = _mm512_loadu_si512(v + e * line), b = _mm512_loadu_si512(v + e * line + second), y0 = low(a, b), y1 = high(a, b); \
			__builtin_prefetch(next_v + e * line); \
			__builtin_prefetch(next_v + e * line + second); \
			_Pragma("GCC unroll 4") \
			for (int i = 0; i < R; i++) { \
				float word; \
				memcpy(&word, p + i * ldp, 4); \
				x[i][e][0] = product(x[i][e][0], K512(word), (__m512)y0); \
				x[i][e][1] = product(x[i][e][1], K512(word), (__m512)y1); \
			} \
		} \
	for (int i = 0; i < R; i++) \
		for (int e = 0; e < P; e++) \
			for (int c = 0; c < 2; c++) \
				none = _mm512_fmadd_ps(x[i][e][c], _mm512_setzero_ps(), none); \
	if (_mm512_cmp_ps_mask(none, none, _CMP_UNORD_Q)) \
		return false; \
	for (int i = 0; i < R; i++) \
		for (int e = 0; e < P; e++) \
			for (int c = 0; c < 2; c++) { \
				float *at = o + e * next + i * ATT_COLS + c * 16; \
				_mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), x[i][e][c])); \
			} \
	return true; \
}
#define LOW_BF16(a, b) _mm512_permutex2var_epi16(a, PAIRS_LOW, b)
#define HIGH_BF16(a, b) _mm512_permutex2var_epi16(a, PAIRS_HIGH, b)
#define LOW_F32(a, b) a
#define HIGH_F32(a, b) b
#define MIX_BF16(R, P) MIX(mix_bf16, TBF16, PAIRS, LOW_BF16, HIGH_BF16, 2, 64, ld, R, P)
#define MIX_F32(R, P) MIX(mix_f32, T512, FLOATS, LOW_F32, HIGH_F32, 1, 128, 64, R, P)

#define MIXES(name, M) M(1, 1) M(1, 2) M(1, 4) M(2, 1) M(2, 2) M(2, 4) M(3, 1) M(3, 2) M(4, 1) M(4, 2) \
static bool name(int rows, int panels, const char *p, int64_t ldp, const char *v, int64_t ld, float *o, int64_t next) \
{ \
	switch (rows * 8 + panels) { \
	case 9: return name##_1_1(p, ldp, v, ld, o, next); \
	case 10: return name##_1_2(p, ldp, v, ld, o, next); \
	case 12: return name##_1_4(p, ldp, v, ld, o, next); \
	case 17: return name##_2_1(p, ldp, v, ld, o, next); \
	case 18: return name##_2_2(p, ldp, v, ld, o, next); \
	case 20: return name##_2_4(p, ldp, v, ld, o, next); \
	case 25: return name##_3_1(p, ldp, v, ld, o, next); \
	case 26: return name##_3_2(p, ldp, v, ld, o, next); \
	case 33: return name##_4_1(p, ldp, v, ld, o, next); \
	default: return name##_4_2(p, ldp, v, ld, o, next); \
	} \
}
MIXES(mix_bf16, MIX_BF16)
MIXES(mix_f32, MIX_F32)

/* --- AVX2 -------------------------------------------------------------------------- */

#define T256 __attribute__((target("avx2,fma")))
#define IN256 T256 __attribute__((always_inline)) static inline

/* Eight sums of eight lanes, in their order. */
IN256 __m256 sums_256(const __m256 x[8])
{
	__m256 a = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
	__m256 b = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
	return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

T256 static void dot_256(int rows, int64_t bytes, const char *q, int64_t ldq, const char *k, int64_t ld, float *s)
{
	int64_t ld3 = 3 * ld, ld5 = 5 * ld, ld7 = 7 * ld;
	for (int h = 0; h < ATT_COLS; h += 8, k += 8 * ld)
		for (int i = 0; i < rows; i++) {
			const char *at = k, *next = there(k, ld), *c = q + i * ldq, *end = c + bytes;
			__m256 x[8];
#pragma GCC unroll 8
			for (int n = 0; n < 8; n++)
				x[n] = _mm256_setzero_ps();
			for (; c < end; c += 64, at += 64, next += 64)
#pragma GCC unroll 8
				for (int n = 0; n < 8; n++) {
					const float *y = (const float *)(const void *)ROW(at, n), *z = (const float *)(const void *)c;
					x[n] = _mm256_fmadd_ps(_mm256_loadu_ps(z), _mm256_loadu_ps(y), x[n]);
					x[n] = _mm256_fmadd_ps(_mm256_loadu_ps(z + 8), _mm256_loadu_ps(y + 8), x[n]);
					if (!i)
						__builtin_prefetch(ROW(next, n));
				}
			_mm256_storeu_ps(s + i * ATT_COLS + h, sums_256(x));
		}
}

/* R rows and one panel, to y. */
IN256 void mix_256_of(int R, const char *p, int64_t ldp, const char *v, int64_t ld, float *y)
{
	const char *next_v = there(v, ld);
	__m256 x[2][4];
	for (int i = 0; i < R; i++)
		for (int c = 0; c < 4; c++)
			x[i][c] = _mm256_setzero_ps();
	for (int j = 0; j < ATT_COLS; j++, v += ld, next_v += ld, p += 4) {
		const float *at = (const float *)(const void *)v;
		__builtin_prefetch(next_v);
		__builtin_prefetch(next_v + 64);
#pragma GCC unroll 2
		for (int i = 0; i < R; i++) {
			__m256 one = _mm256_broadcast_ss((const float *)(const void *)(p + i * ldp));
#pragma GCC unroll 4
			for (int c = 0; c < 4; c++)
				x[i][c] = _mm256_fmadd_ps(one, _mm256_loadu_ps(at + 8 * c), x[i][c]);
		}
	}
	for (int i = 0; i < R; i++)
		for (int c = 0; c < 4; c++)
			_mm256_storeu_ps(y + i * ATT_COLS + 8 * c, x[i][c]);
}

T256 static bool mix_256(int rows, int panels, const char *p, int64_t ldp, const char *v, int64_t ld, float *o, int64_t next)
{
	float y[4][ATT_MIX * ATT_COLS], none = 0;
	for (int e = 0; e < panels; e++)
		for (int i = 0; i < rows; i += 2)
			if (rows - i > 1)
				mix_256_of(2, p + i * ldp, ldp, v + e * ATT_COLS * 4, ld, y[e] + i * ATT_COLS);
			else
				mix_256_of(1, p + i * ldp, ldp, v + e * ATT_COLS * 4, ld, y[e] + i * ATT_COLS);
	for (int e = 0; e < panels; e++)
		for (int j = 0; j < rows * ATT_COLS; j++)
			none += y[e][j] * 0;
	if (isnan(none))
		return false;
	for (int e = 0; e < panels; e++)
		for (int j = 0; j < rows * ATT_COLS; j++)
			o[e * next + j] += y[e][j];
	return true;
}

const struct att_few att_few_bf16_512 = { dot_bf16, mix_bf16 }, att_few_f32_512 = { dot_f32, mix_f32 }, att_few_f32_256 = { dot_256, mix_256 };
