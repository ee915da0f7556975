/* Micro-kernels of matmul.c: one row of the table per instruction set, with a plain C model of each layout
 * that runs anywhere. */
#include "matmul.h"
#include "micro.h"

#include <immintrin.h>

/* --- f32 ------------------------------------------------------------------------ */

enum { M512 = 14, N512 = 32, M256 = 6, N256 = 16, MBF = 12, NBF = 32, MI8 = 12, NI8 = 32 };

#define INLINE static inline __attribute__((always_inline))

/* Inlined for certain: gcc 12 takes a call that only fetches for one without effect. */
INLINE void fetch(const struct matmul_ahead *next, int64_t step)
{
	if (step < next->lines)
		for (int i = 0; i < next->rows; i++)
			_mm_prefetch(next->row + i * next->stride + 64 * step, _MM_HINT_T1);
}

/* What is added to: it may have gone to far memory since. */
INLINE void fetch_sums(const float *c, int floats)
{
	for (int i = 0; i < floats; i += 16)
		_mm_prefetch((const char *)(c + i), _MM_HINT_T0);
}

/* Where row i of a begins.  Fours have a place of their own, from which the others are within what an address can tell. */
#define ROW_OF(at, i, lda) ((at)[(i) / 4] + (i) % 4 * (lda))

/* The product of R rows, and of H vectors of columns; elements of a are lda bytes apart from row to row and ka along k, rows of b ldb. */
__attribute__((target("avx512f")))
INLINE void f32_512_part(int R, int H, bool keep, const struct matmul_part *q, int64_t lda, int64_t ka, int64_t ldb)
{
	const char *a = q->a, *b = q->b, *at[4] = { a, a + 4 * lda, a + 8 * lda, a + 12 * lda };
	__m512 x[M512][2];
	if (q->add)
		fetch_sums(q->c, R * N512);
	for (int64_t k = 0, end; k < q->steps;) {
		bool more = q->add || k > 0;
		end = MIN(q->steps, k + q->chain);
#pragma GCC unroll 14
		for (int i = 0; i < R; i++)
			x[i][0] = x[i][1] = _mm512_setzero_ps();
		for (; k < end; k++) {
			__m512 b0 = _mm512_loadu_ps(b), b1 = H > 1 ? _mm512_loadu_ps(b + 64) : b0;
			fetch(&q->next, k);
			if (keep) {
				_mm512_storeu_ps(q->keep + 128 * k, b0);
				_mm512_storeu_ps(q->keep + 128 * k + 64, b1);
			}
#pragma GCC unroll 14
			for (int i = 0; i < R; i++) {
				__m512 y = _mm512_set1_ps(*(const float *)(const void *)ROW_OF(at, i, lda));
				x[i][0] = _mm512_fmadd_ps(y, b0, x[i][0]);
				if (H > 1)
					x[i][1] = _mm512_fmadd_ps(y, b1, x[i][1]);
			}
#pragma GCC unroll 4
			for (int i = 0; i < 4; i++)
				at[i] += ka;
			b += ldb;
		}
#pragma GCC unroll 14
		for (int i = 0; i < R; i++) {
			float *c = q->c + i * N512;
			_mm512_storeu_ps(c, more ? _mm512_add_ps(_mm512_loadu_ps(c), x[i][0]) : x[i][0]);
			if (H > 1)
				_mm512_storeu_ps(c + 16, more ? _mm512_add_ps(_mm512_loadu_ps(c + 16), x[i][1]) : x[i][1]);
		}
	}
}

/* MATMUL_ALONG rows of k, whole rows of b: memory is read fastest where few streams are long, and hardware fetches them by itself. */
__attribute__((target("avx512f")))
static void f32_512_along(const struct matmul_part *q)
{
	const float *a = (const float *)(const void *)q->a;
	for (int64_t j = 0; j < 2 * q->panels; j++) {
		float *c = q->c + j / 2 * (M512 * N512) + j % 2 * 16;
		__m512 y[MATMUL_ALONG];
#pragma GCC unroll 16
		for (int k = 0; k < MATMUL_ALONG; k++)
			y[k] = _mm512_loadu_ps(q->b + k * q->ldb + 64 * j);
		for (int i = 0; i < q->rows; i++, c += N512) {
			__m512 s[MATMUL_ALONG / 4];
#pragma GCC unroll 16
			for (int k = 0; k < MATMUL_ALONG; k++) {
				__m512 x = _mm512_set1_ps(a[i + k * M512]);
				s[k / 4] = k % 4 ? _mm512_fmadd_ps(x, y[k], s[k / 4]) : _mm512_mul_ps(x, y[k]);
			}
#pragma GCC unroll 4
			for (int k = 1; k < MATMUL_ALONG / 4; k++)
				s[0] = _mm512_add_ps(s[0], s[k]);
			_mm512_storeu_ps(c, q->add ? _mm512_add_ps(_mm512_loadu_ps(c), s[0]) : s[0]);
		}
	}
}

/* A loop for each part of a panel that there may be: R0 .. R5 rows, or M. */
#define ROWS(part, H, R0, R1, R2, R3, R4, R5, M, ...) \
	(q->rows > R5 ? part(M, H, __VA_ARGS__) : q->rows > R4 ? part(R5, H, __VA_ARGS__) : q->rows > R3 ? part(R4, H, __VA_ARGS__) \
	 : q->rows > R2 ? part(R3, H, __VA_ARGS__) : q->rows > R1 ? part(R2, H, __VA_ARGS__) : q->rows > R0 ? part(R1, H, __VA_ARGS__) : part(R0, H, __VA_ARGS__))
#define PARTS(part, wide, ...) (q->cols > (wide) ? ROWS(part, 2, __VA_ARGS__) : ROWS(part, 1, __VA_ARGS__))

/* Parts of the rows that are wanted, none beyond. */
#define TALL(part, M, wide, NR, ...) do { \
	struct matmul_part t = *q; \
	for (int n; t.rows > 0; t.rows -= n, t.a += n * t.lda, t.c += n * (NR)) { \
		n = t.rows >= (M) ? (M) : t.rows >= 4 ? 4 : 1; \
		if (t.cols > (wide)) \
			n == (M) ? part(M, 2, __VA_ARGS__) : n == 4 ? part(4, 2, __VA_ARGS__) : part(1, 2, __VA_ARGS__); \
		else \
			n == (M) ? part(M, 1, __VA_ARGS__) : n == 4 ? part(4, 1, __VA_ARGS__) : part(1, 1, __VA_ARGS__); \
	} \
} while (0)

__attribute__((target("avx512f")))
static void f32_512(const struct matmul_part *q) { PARTS(f32_512_part, 16, 1, 2, 4, 6, 8, 10, M512, false, q, 4, M512 * 4, N512 * 4); }
__attribute__((target("avx512f")))
static void f32_512_in_place(const struct matmul_part *q)
{
	if (q->keep)
		f32_512_part(M512, 2, true, q, 4, M512 * 4, q->ldb);
	else
		ROWS(f32_512_part, 2, 1, 2, 4, 6, 8, 10, M512, false, q, 4, M512 * 4, q->ldb);
}
__attribute__((target("avx512f")))
static void f32_512_tall(const struct matmul_part *q) { TALL(f32_512_part, M512, 16, N512, false, &t, t.lda, 4, N512 * 4); }

__attribute__((target("avx2,fma")))
INLINE void f32_256_part(int R, int H, const struct matmul_part *q, int64_t ldb)
{
	const float *a = (const float *)(const void *)q->a;
	const char *b = q->b;
	__m256 x[M256][2];
	for (int64_t k = 0, end; k < q->steps;) {
		bool more = q->add || k > 0;
		end = MIN(q->steps, k + q->chain);
#pragma GCC unroll 6
		for (int i = 0; i < R; i++)
			x[i][0] = x[i][1] = _mm256_setzero_ps();
		for (; k < end; k++) {
			__m256 b0 = _mm256_loadu_ps((const float *)(const void *)b), b1 = H > 1 ? _mm256_loadu_ps((const float *)(const void *)(b + 32)) : b0;
			fetch(&q->next, k);
#pragma GCC unroll 6
			for (int i = 0; i < R; i++) {
				__m256 y = _mm256_broadcast_ss(a + i);
				x[i][0] = _mm256_fmadd_ps(y, b0, x[i][0]);
				if (H > 1)
					x[i][1] = _mm256_fmadd_ps(y, b1, x[i][1]);
			}
			a += M256;
			b += ldb;
		}
#pragma GCC unroll 6
		for (int i = 0; i < R; i++) {
			float *c = q->c + i * N256;
			_mm256_storeu_ps(c, more ? _mm256_add_ps(_mm256_loadu_ps(c), x[i][0]) : x[i][0]);
			if (H > 1)
				_mm256_storeu_ps(c + 8, more ? _mm256_add_ps(_mm256_loadu_ps(c + 8), x[i][1]) : x[i][1]);
		}
	}
}

__attribute__((target("avx2,fma")))
static void f32_256(const struct matmul_part *q) { PARTS(f32_256_part, 8, 1, 2, 3, 3, 4, 5, M256, q, N256 * 4); }
__attribute__((target("avx2,fma")))
static void f32_256_in_place(const struct matmul_part *q) { ROWS(f32_256_part, 2, 1, 2, 3, 3, 4, 5, M256, q, q->ldb); }

/* Models: chains of a row of n columns that end with step k go to c. */
static void close_chains(const struct matmul_part *q, int64_t k, int n, float *x, float *c)
{
	if ((k + 1) % q->chain && k + 1 < q->steps)
		return;
	for (int j = 0; j < n; j++) {
		c[j] += x[j];
		x[j] = 0;
	}
}

/* The meaning of the f32 layout: separate rounding of product and sum. */
static void f32_model_of(const struct matmul_part *q, int64_t ldb)
{
	const float *a = (const float *)(const void *)q->a;
	if (!q->add)
		memset(q->c, 0, sizeof *q->c * M256 * N256);
	for (int i = 0; i < M256; i++) {
		float x[N256] = { 0 };
		for (int64_t k = 0; k < q->steps; k++) {
			const float *b = (const float *)(const void *)(q->b + k * ldb), y = a[k * M256 + i];
			for (int j = 0; j < N256; j++)
				x[j] += y * b[j];
			close_chains(q, k, N256, x, q->c + i * N256);
		}
	}
}

static void f32_model(const struct matmul_part *q) { f32_model_of(q, N256 * 4); }
static void f32_model_in_place(const struct matmul_part *q) { f32_model_of(q, q->ldb); }

/* --- bf16 in pairs ---------------------------------------------------------------- */

#define TARGET_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

/* Two rows of 32 become pairs of their first 16 columns, and, with 16 more, of the others. */
#define PAIRS_LOW _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0)

/* b: packed, or two rows a step, ldb bytes apart, which become pairs here: a permutation is free beside products. */
TARGET_BF16 INLINE void bf16_512_part(int R, int H, bool there, bool keep, const struct matmul_part *q, int64_t lda, int64_t ka, int64_t ldb)
{
	const char *a = q->a, *b = q->b, *at[3] = { a, a + 4 * lda, a + 8 * lda };
	const __m512i lo = PAIRS_LOW, hi = _mm512_add_epi16(lo, _mm512_set1_epi16(16));
	__m512 x[MBF][2];
	if (q->add)
		fetch_sums(q->c, R * NBF);
	for (int64_t k = 0, end; k < q->steps;) {
		bool more = q->add || k > 0;
		end = MIN(q->steps, k + q->chain);
#pragma GCC unroll 12
		for (int i = 0; i < R; i++)
			x[i][0] = x[i][1] = _mm512_setzero_ps();
		for (; k < end; k++) {
			__m512i b0 = _mm512_loadu_si512((const void *)b), b1 = b0;
			if (H > 1)
				b1 = _mm512_loadu_si512((const void *)(b + (there ? ldb : 64)));
			if (there) {
				__m512i second = b1;
				b1 = _mm512_permutex2var_epi16(b0, hi, second);
				b0 = _mm512_permutex2var_epi16(b0, lo, second);
			}
			fetch(&q->next, k);
			if (keep) {
				_mm512_storeu_si512((void *)(q->keep + 128 * k), b0);
				_mm512_storeu_si512((void *)(q->keep + 128 * k + 64), b1);
			}
#pragma GCC unroll 12
			for (int i = 0; i < R; i++) {
				int pair;                /* at any multiple of 2 */
				memcpy(&pair, ROW_OF(at, i, lda), sizeof pair);
				__m512bh y = (__m512bh)_mm512_set1_epi32(pair);
				x[i][0] = _mm512_dpbf16_ps(x[i][0], y, (__m512bh)b0);
				if (H > 1)
					x[i][1] = _mm512_dpbf16_ps(x[i][1], y, (__m512bh)b1);
			}
#pragma GCC unroll 3
			for (int i = 0; i < 3; i++)
				at[i] += ka;
			b += there ? 2 * ldb : ldb;
		}
#pragma GCC unroll 12
		for (int i = 0; i < R; i++) {
			float *c = q->c + i * NBF;
			_mm512_storeu_ps(c, more ? _mm512_add_ps(_mm512_loadu_ps(c), x[i][0]) : x[i][0]);
			if (H > 1)
				_mm512_storeu_ps(c + 16, more ? _mm512_add_ps(_mm512_loadu_ps(c + 16), x[i][1]) : x[i][1]);
		}
	}
}

/* R: so many rows, whose pairs stay in registers; 0: of any number of them. */
TARGET_BF16 INLINE void bf16_512_along_of(int R, const struct matmul_part *q)
{
	enum { STEPS = MATMUL_ALONG / 2 };
	const char *b = q->b, *row[MATMUL_ALONG];
	const __m512i lo = PAIRS_LOW, hi = _mm512_add_epi16(lo, _mm512_set1_epi16(16));
	__m512bh x[2][STEPS];
#define PAIR_OF(i, k) (__m512bh)_mm512_set1_epi32(((const int *)(const void *)q->a)[(k) * MBF + (i)])
#pragma GCC unroll 16
	for (int i = 0; i < R * STEPS; i++)
		x[i / STEPS][i % STEPS] = PAIR_OF(i / STEPS, i % STEPS);
#pragma GCC unroll 16
	for (int k = 0; k < MATMUL_ALONG; k++)
		row[k] = b + k * q->ldb;
	for (int64_t j = 0; j < q->panels; j++) {
		float *c = q->c + j * (MBF * NBF);
		__m512bh y[STEPS][2];
#pragma GCC unroll 8
		for (int k = 0; k < STEPS; k++) {
			__m512i b0 = _mm512_loadu_si512((const void *)(row[2 * k] + 64 * j)), b1 = _mm512_loadu_si512((const void *)(row[2 * k + 1] + 64 * j));
			y[k][0] = (__m512bh)_mm512_permutex2var_epi16(b0, lo, b1);
			y[k][1] = (__m512bh)_mm512_permutex2var_epi16(b0, hi, b1);
		}
		for (int i = 0; i < (R ? R : q->rows); i++, c += NBF) {
			__m512 s0 = _mm512_setzero_ps(), s1 = s0;
#pragma GCC unroll 8
			for (int k = 0; k < STEPS; k++) {
				__m512bh pair = R ? x[i][k] : PAIR_OF(i, k);
				s0 = _mm512_dpbf16_ps(s0, pair, y[k][0]);
				s1 = _mm512_dpbf16_ps(s1, pair, y[k][1]);
			}
			_mm512_storeu_ps(c, q->add ? _mm512_add_ps(_mm512_loadu_ps(c), s0) : s0);
			_mm512_storeu_ps(c + 16, q->add ? _mm512_add_ps(_mm512_loadu_ps(c + 16), s1) : s1);
		}
	}
}

TARGET_BF16 static void bf16_512_along(const struct matmul_part *q)
{
	q->rows == 1 ? bf16_512_along_of(1, q) : q->rows == 2 ? bf16_512_along_of(2, q) : bf16_512_along_of(0, q);
}

TARGET_BF16 static void bf16_512(const struct matmul_part *q) { PARTS(bf16_512_part, 16, 1, 2, 4, 6, 8, 10, MBF, false, false, q, 4, MBF * 4, 4 * NBF); }
TARGET_BF16 static void bf16_512_in_place(const struct matmul_part *q)
{
	if (q->keep)
		bf16_512_part(MBF, 2, true, true, q, 4, MBF * 4, q->ldb);
	else
		ROWS(bf16_512_part, 2, 1, 2, 4, 6, 8, 10, MBF, true, false, q, 4, MBF * 4, q->ldb);
}
TARGET_BF16 static void bf16_512_tall(const struct matmul_part *q) { TALL(bf16_512_part, MBF, 16, NBF, false, false, &t, t.lda, 4, 4 * NBF); }

/* b's element of pair k, column j, half h lies k * pair + j * column + h * half elements on. */
static void bf16_model_of(const struct matmul_part *q, int64_t pair, int64_t column, int64_t half)
{
	const uint16_t *a = (const uint16_t *)(const void *)q->a, *b = (const uint16_t *)(const void *)q->b;
	if (!q->add)
		memset(q->c, 0, sizeof *q->c * MBF * NBF);
	for (int i = 0; i < MBF; i++) {
		float x[NBF] = { 0 };
		for (int64_t k = 0; k < q->steps; k++) {
			for (int j = 0; j < NBF; j++)
				for (int h = 0; h < 2; h++)
					x[j] += bf16_to_f32(a[(k * MBF + i) * 2 + h]) * bf16_to_f32(b[k * pair + j * column + h * half]);
			close_chains(q, k, NBF, x, q->c + i * NBF);
		}
	}
}

static void bf16_model(const struct matmul_part *q) { bf16_model_of(q, 2 * NBF, 2, 1); }
static void bf16_model_in_place(const struct matmul_part *q) { bf16_model_of(q, q->ldb, 1, q->ldb / 2); }

/* --- AMX --------------------------------------------------------------------------- */

/* The loop of both kinds of products, of one or two tiles of rows: few rows leave the second unused. */
#define TILES(name, product) \
__attribute__((target("amx-tile,amx-bf16,amx-int8"))) \
INLINE void name##_rows(const struct matmul_part *q, bool two) \
{ \
	const char *a = q->a, *b = q->b; \
	float *c = q->c; \
	enum { ldc = 32 }; \
	if (q->add) { \
		_tile_loadd(0, c, ldc * 4); \
		_tile_loadd(1, c + 16, ldc * 4); \
		if (two) { \
			_tile_loadd(2, c + 16 * ldc, ldc * 4); \
			_tile_loadd(3, c + 16 * ldc + 16, ldc * 4); \
		} \
	} else { \
		_tile_zero(0); \
		_tile_zero(1); \
		_tile_zero(2); \
		_tile_zero(3); \
	} \
	/* lhs stays in L1 while rhs passes through: its loads ask for no place there */ \
	for (int64_t k = 0; k < q->steps; k++) { \
		_tile_stream_loadd(6, b, 64); \
		_tile_loadd(4, a, 64); \
		_tile_stream_loadd(7, b + 1024, 64); \
		product(0, 4, 6); \
		if (two) \
			_tile_loadd(5, a + 1024, 64); \
		product(1, 4, 7); \
		fetch(&q->next, k); \
		if (two) { \
			product(2, 5, 6); \
			product(3, 5, 7); \
		} \
		a += 2048; \
		b += 2048; \
	} \
	_tile_stored(0, c, ldc * 4); \
	_tile_stored(1, c + 16, ldc * 4); \
	if (two) { \
		_tile_stored(2, c + 16 * ldc, ldc * 4); \
		_tile_stored(3, c + 16 * ldc + 16, ldc * 4); \
	} \
} \
__attribute__((target("amx-tile,amx-bf16,amx-int8"))) \
static void name(const struct matmul_part *q) \
{ \
	if (q->rows > 16) \
		name##_rows(q, true); \
	else \
		name##_rows(q, false); \
}
TILES(amx, _tile_dpbf16ps)
TILES(amx_i8, _tile_dpbssd)

static void amx_model(const struct matmul_part *q)
{
	const uint16_t *a = (const uint16_t *)(const void *)q->a, *b = (const uint16_t *)(const void *)q->b;
	float *c = q->c;
	for (int i = 0; i < 32; i++)
		for (int j = 0; j < 32; j++) {
			float x = q->add ? c[i * 32 + j] : 0;
			for (int64_t s = 0; s < q->steps; s++)
				for (int k = 0; k < 32; k++)
					x += bf16_to_f32(a[s * 1024 + i / 16 * 512 + i % 16 * 32 + k]) *
					     bf16_to_f32(b[s * 1024 + j / 16 * 512 + k / 2 * 32 + j % 16 * 2 + k % 2]);
			c[i * 32 + j] = x;
		}
}

static void amx_i8_model(const struct matmul_part *q)
{
	const int8_t *a = (const int8_t *)q->a, *b = (const int8_t *)q->b;
	uint32_t *c = (uint32_t *)(void *)q->c;
	for (int i = 0; i < 32; i++)
		for (int half = 0; half < 2; half++) {
			uint32_t x[16] = { 0 };
			for (int64_t s = 0; s < q->steps; s++)
				for (int k = 0; k < 64; k++)
					for (int j = 0; j < 16; j++)
						x[j] += (uint32_t)(a[s * 2048 + i / 16 * 1024 + i % 16 * 64 + k] * b[s * 2048 + half * 1024 + k / 4 * 64 + j * 4 + k % 4]);
			for (int j = 0; j < 16; j++)
				c[i * 32 + half * 16 + j] = x[j] + (q->add ? c[i * 32 + half * 16 + j] : 0);
		}
}

/* --- i8 in quads ---------------------------------------------------------------------- */

/* Four rows of 32 bytes as fours: those of the first 16 columns, and of the others. */
#define TARGET_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
TARGET_VNNI INLINE void fours(const char *b, int64_t ldb, __m512i *b0, __m512i *b1)
{
#define WORDS_OF(r) _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)(b + (r) * ldb)))
	__m512i low = _mm512_or_si512(WORDS_OF(0), _mm512_slli_epi16(WORDS_OF(1), 8)), high = _mm512_or_si512(WORDS_OF(2), _mm512_slli_epi16(WORDS_OF(3), 8));
	const __m512i lo = PAIRS_LOW, hi = _mm512_add_epi16(lo, _mm512_set1_epi16(16));
	*b0 = _mm512_permutex2var_epi16(low, lo, high);
	*b1 = _mm512_permutex2var_epi16(low, hi, high);
}

/* The instruction multiplies an unsigned by a signed byte, so 128 was added to all of lhs; the same product of 128 alone is
 * taken away at the end.  Sums wrap, so nothing is lost.  b: packed, or four rows a step, ldb bytes apart. */
TARGET_VNNI INLINE void i8_512_part(int R, bool there, const struct matmul_part *q)
{
	const uint32_t *a = (const uint32_t *)(const void *)q->a;
	const char *b = q->b;
	int32_t *c = (int32_t *)(void *)q->c;
	__m512i x[MI8][2], over0 = _mm512_setzero_si512(), over1 = over0, bias = _mm512_set1_epi8((char)0x80);
	for (int i = 0; i < R; i++)          /* asked to unroll this one gcc 12 keeps all sums in memory */
		x[i][0] = x[i][1] = _mm512_setzero_si512();
	for (int64_t k = 0; k < q->steps; k++) {
		__m512i b0, b1;
		if (there) {
			fours(b, q->ldb, &b0, &b1);
			fetch(&q->next, k);
			if (q->keep) {
				_mm512_storeu_si512((void *)(q->keep + 128 * k), b0);
				_mm512_storeu_si512((void *)(q->keep + 128 * k + 64), b1);
			}
		} else {
			b0 = _mm512_loadu_si512((const void *)b);
			b1 = _mm512_loadu_si512((const void *)(b + 64));
		}
		over0 = _mm512_dpbusd_epi32(over0, bias, b0);
		over1 = _mm512_dpbusd_epi32(over1, bias, b1);
#pragma GCC unroll 12
		for (int i = 0; i < R; i++) {
			__m512i y = _mm512_set1_epi32((int)a[i]);
			x[i][0] = _mm512_dpbusd_epi32(x[i][0], y, b0);
			x[i][1] = _mm512_dpbusd_epi32(x[i][1], y, b1);
		}
		a += MI8;
		b += there ? 4 * q->ldb : 4 * NI8;
	}
#pragma GCC unroll 12
	for (int i = 0; i < R; i++) {
		int32_t *to = c + i * NI8;
		__m512i y = _mm512_sub_epi32(x[i][0], over0), z = _mm512_sub_epi32(x[i][1], over1);
		_mm512_storeu_si512((void *)to, q->add ? _mm512_add_epi32(_mm512_loadu_si512((const void *)to), y) : y);
		_mm512_storeu_si512((void *)(to + 16), q->add ? _mm512_add_epi32(_mm512_loadu_si512((const void *)(to + 16)), z) : z);
	}
}

TARGET_VNNI static void i8_512(const struct matmul_part *q) { i8_512_part(MI8, false, q); }
TARGET_VNNI static void i8_512_in_place(const struct matmul_part *q) { q->rows > 8 ? i8_512_part(MI8, true, q) : q->rows > 4 ? i8_512_part(8, true, q) : i8_512_part(4, true, q); }

static void i8_model(const struct matmul_part *q)
{
	const int8_t *a = (const int8_t *)q->a, *b = (const int8_t *)q->b;
	uint32_t *c = (uint32_t *)(void *)q->c;
	for (int i = 0; i < MI8; i++)
		for (int j = 0; j < NI8; j++) {
			uint32_t x = q->add ? c[i * NI8 + j] : 0;
			for (int64_t k = 0; k < q->steps; k++)
				for (int h = 0; h < 4; h++)
					x += (uint32_t)((int8_t)(a[(k * MI8 + i) * 4 + h] ^ 0x80) * b[(k * NI8 + j) * 4 + h]);
			c[i * NI8 + j] = x;
		}
}

/* --- which run here --------------------------------------------------------------------- */

const struct matmul_variant matmul_variant[] = {
	{ "amx",          2, true,  32,   32,   32, micro_amx,    micro_always,    amx,          NULL,                false, NULL,           NULL,          micro_tiles_begin, micro_tiles_end },
	{ "avx512_bf16",  2, false, MBF,  NBF,  2,  micro_bf16,   micro_bf16_pays, bf16_512,     bf16_512_in_place,   true,  bf16_512_along, bf16_512_tall, NULL,              NULL },
	{ "avx512",       4, false, M512, N512, 1,  micro_avx512, micro_always,    f32_512,      f32_512_in_place,    true,  f32_512_along,  f32_512_tall,  NULL,              NULL },
	{ "avx2",         4, false, M256, N256, 1,  micro_avx2,   micro_always,    f32_256,      f32_256_in_place,    false, NULL,           NULL,          NULL,              NULL },
	{ "amx_i8",       1, true,  32,   32,   64, micro_amx_i8, micro_always,    amx_i8,       NULL,                false, NULL,           NULL,          micro_tiles_begin, micro_tiles_end },
	{ "avx512_vnni",  1, false, MI8,  NI8,  4,  micro_vnni,   micro_always,    i8_512,       i8_512_in_place,     true,  NULL,           NULL,          NULL,              NULL },
	{ "amx_model",    2, true,  32,   32,   32, micro_always, micro_never,     amx_model,    NULL,                false, NULL,           NULL,          NULL,              NULL },
	{ "bf16_model",   2, false, MBF,  NBF,  2,  micro_always, micro_never,     bf16_model,   bf16_model_in_place, false, NULL,           NULL,          NULL,              NULL },
	{ "f32_model",    4, false, M256, N256, 1,  micro_always, micro_never,     f32_model,    f32_model_in_place,  false, NULL,           NULL,          NULL,              NULL },
	{ "amx_i8_model", 1, true,  32,   32,   64, micro_always, micro_never,     amx_i8_model, NULL,                false, NULL,           NULL,          NULL,              NULL },
	{ "i8_model",     1, false, MI8,  NI8,  4,  micro_always, micro_never,     i8_model,     NULL,                false, NULL,           NULL,          NULL,              NULL },
};
const int matmul_nvariant = NELEM(matmul_variant);
