/* Inside isa.h, once for each level: products of small blocks. */

/* A few rows by one or two vectors in registers; the vectoriser sees loops of constant length.  What k adds up goes to the result
 * as one number. */
#if ISA_LEVEL >= 4
enum { VB = 64 };
#elif ISA_LEVEL >= 3
enum { VB = 32 };
#else
enum { VB = 16 };
#endif
#define GEMM_ROWS(T, ROWS, NV)                                                                        \
	for (; i + ROWS <= m; i += ROWS) {                                                                \
		vec acc[ROWS][NV];                                                                            \
		_Pragma("GCC unroll 8") for (int r = 0; r < ROWS; r++)                                        \
			_Pragma("GCC unroll 8") for (int v = 0; v < NV; v++)                                      \
				acc[r][v] = (vec){ 0 };                                                               \
		for (int64_t p = 0; p < k; p++) {                                                             \
			const T *bp = B + p * ldb;                                                                \
			vec b[NV];                                                                                \
			_Pragma("GCC unroll 8") for (int v = 0; v < NV; v++)                                      \
				b[v] = *(const vec *)(bp + v * L);                                                    \
			_Pragma("GCC unroll 8") for (int r = 0; r < ROWS; r++) {                                  \
				vec av = (vec){ 0 } + A[(i + r) * lda + p];                                           \
				_Pragma("GCC unroll 8") for (int v = 0; v < NV; v++)                                  \
					MADD(acc[r][v], av, b[v]);                                                        \
			}                                                                                         \
		}                                                                                             \
		_Pragma("GCC unroll 8") for (int r = 0; r < ROWS; r++)                                        \
			_Pragma("GCC unroll 8") for (int v = 0; v < NV; v++)                                      \
				*(vec *)(Cc + (i + r) * ldc + v * L) += acc[r][v];                                    \
	}
/* As many columns as NV vectors of BYTES have. */
#define GEMM_PART(N, PART, T, BYTES, NV, ROWS)                                                        \
	static void CAT3(gemm##PART, N, h)(int64_t m, int64_t k, const T *A, int64_t lda, const T *B, int64_t ldb, T *Cc, int64_t ldc) \
	{                                                                                                 \
		typedef T vec __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));             \
		enum { L = BYTES / sizeof(T) };                                                               \
		int64_t i = 0;                                                                                \
		GEMM_ROWS(T, ROWS, NV)                                                                        \
		GEMM_ROWS(T, 1, NV)                                                                           \
	}
#define GEMM_PARTS(N, T, PART, COLUMNS)                                                               \
	for (; n - j >= (COLUMNS); j += (COLUMNS))                                                        \
		CAT3(gemm##PART, N, h)(m, k, A, lda, B + j, ldb, Cc + j, ldc);
#define GEMM(N, T, ROWS)                                                                              \
	GEMM_PART(N, two, T, VB, 2, ROWS)                                                                 \
	GEMM_PART(N, whole, T, VB, 1, 8)                                                                  \
	GEMM_PART(N, half, T, VB / 2, 1, 8)                                                               \
	GEMM_PART(N, quarter, T, MAX(VB / 4, sizeof(T)), 1, 8)                                            \
	GEMM_PART(N, one, T, sizeof(T), 1, 8)                                                             \
	static void CAT3(gemm, N, h)(int64_t m, int64_t n, int64_t k, const void *a_, int64_t lda,        \
	                             const void *b_, int64_t ldb, void *c_, int64_t ldc)                  \
	{                                                                                                 \
		enum { L = VB / sizeof(T) };                                                                  \
		const T *A = a_, *B = b_;                                                                     \
		T *Cc = c_;                                                                                   \
		int64_t j = 0;                                                                                \
		GEMM_PARTS(N, T, two, 2 * L)                                                                  \
		GEMM_PARTS(N, T, whole, L)                                                                    \
		if (L >= 4)                                                                                   \
			GEMM_PARTS(N, T, half, L / 2)                                                             \
		if (L >= 8)                                                                                   \
			GEMM_PARTS(N, T, quarter, L / 4)                                                          \
		GEMM_PARTS(N, T, one, 1)                                                                      \
	}
/* Rows of both are contiguous: a running vector of products for each, in which the last elements of a row are as many numbers as there are, beside zeros.
 * As many rows of one operand as a vector has elements go together, so that their vectors are added up at once, in the order of a single one:
 * halves, again and again, which interleaving brings beside each other. */
#define GEMM_NT(N, T, LANES, LOW, HIGH)                                                               \
	typedef T CAT3(dotvec, N, h) __attribute__((vector_size(VB), aligned(sizeof(T)), may_alias));     \
	static inline __attribute__((always_inline)) void CAT3(dotrows, N, h)(const int rows, int64_t k, const T *x, int64_t ldx, const T *y, CAT3(dotvec, N, h) *s) \
	{                                                                                                 \
		typedef CAT3(dotvec, N, h) vec;                                                               \
		enum { L = LANES };                                                                           \
		int64_t p = 0;                                                                                \
		_Pragma("GCC unroll 4") for (int r = 0; r < rows; r++)                                        \
			s[r] = (vec){ 0 };                                                                        \
		for (; p + L <= k; p += L) {                                                                  \
			vec b = *(const vec *)(y + p);                                                            \
			_Pragma("GCC unroll 4") for (int r = 0; r < rows; r++)                                    \
				MADD(s[r], *(const vec *)(x + r * ldx + p), b);                                       \
		}                                                                                             \
		if (p == k)                                                                                   \
			return;                                                                                   \
		vec b = (vec)CAT3(some, T, h)(y + p, k - p);                                                  \
		_Pragma("GCC unroll 4") for (int r = 0; r < rows; r++)                                        \
			MADD(s[r], (vec)CAT3(some, T, h)(x + r * ldx + p, k - p), b);                             \
	}                                                                                                 \
	/* c += n rows of x times y */                                                                    \
	static void CAT3(dots, N, h)(int64_t n, int64_t k, const T *x, int64_t ldx, const T *y, T *c, int64_t ldc) \
	{                                                                                                 \
		enum { L = LANES, FOUR = MIN(L, 4) };                                                         \
		CAT3(dotvec, N, h) a[L];                                                                      \
		for (; n > 0; n -= L, x += L * ldx, c += L * ldc) {                                           \
			int some = (int)MIN(n, L), r = 0;                                                         \
			for (; r + FOUR <= some; r += FOUR)                                                       \
				CAT3(dotrows, N, h)(FOUR, k, x + r * ldx, ldx, y, a + r);                             \
			for (; r < some; r++)                                                                     \
				CAT3(dotrows, N, h)(1, k, x + r * ldx, ldx, y, a + r);                                \
			for (; r < L; r++)                                                                        \
				a[r] = a[0];                                                                          \
			_Pragma("GCC unroll 4") for (int w = L / 2; w; w /= 2)                                    \
				_Pragma("GCC unroll 8") for (int i = 0; i < w; i++)                                   \
					a[i] = __builtin_shufflevector(a[i], a[i + w], LOW) + __builtin_shufflevector(a[i], a[i + w], HIGH); \
			for (r = 0; r < some; r++)                                                                \
				c[r * ldc] += a[0][r];                                                                \
		}                                                                                             \
	}                                                                                                 \
	static void CAT3(gemmnt, N, h)(int64_t m, int64_t n, int64_t k, const void *a_, int64_t lda,      \
	                               const void *b_, int64_t ldb, void *c_, int64_t ldc)                \
	{                                                                                                 \
		const T *A = a_, *B = b_;                                                                     \
		T *Cc = c_;                                                                                   \
		for (int64_t j = 0; m >= n && j < n; j++)                                                     \
			CAT3(dots, N, h)(m, k, A, lda, B + j * ldb, Cc + j, ldc);                                 \
		for (int64_t i = 0; m < n && i < m; i++)                                                      \
			CAT3(dots, N, h)(n, k, B, ldb, A + i * lda, Cc + i * ldc, 1);                             \
	}
/* The first n of a vector's elements, beside zeros. */
#if defined(__x86_64__) && ISA_LEVEL >= 4
#define SOME(T, BITS) \
	static inline __m512i CAT3(some, T, h)(const T *p, int64_t n) { return _mm512_maskz_loadu_epi##BITS((__mmask16)((1u << n) - 1), p); }
#elif defined(__x86_64__) && ISA_LEVEL >= 3
static const int32_t dot_mask[16] = { -1, -1, -1, -1, -1, -1, -1, -1 };
#define SOME(T, BITS) \
	static inline __m256i CAT3(some, T, h)(const T *p, int64_t n) \
	{ \
		return _mm256_castps_si256(_mm256_maskload_ps((const float *)(const void *)p, _mm256_loadu_si256((const void *)(dot_mask + 8 - n * (BITS / 32))))); \
	}
#else
#define SOME(T, BITS) \
	typedef T CAT3(somevec, T, h) __attribute__((vector_size(VB))); \
	static inline CAT3(somevec, T, h) CAT3(some, T, h)(const T *p, int64_t n) \
	{ \
		CAT3(somevec, T, h) v = { 0 }; \
		for (int64_t i = 0; i < n; i++) \
			v[i] = p[i]; \
		return v; \
	}
#endif
SOME(float, 32) SOME(double, 64) SOME(uint32_t, 32) SOME(uint64_t, 64)
#if ISA_LEVEL >= 4
#define NT4(N, T) GEMM_NT(N, T, 16, IL16L, IL16H)
#define NT8(N, T) GEMM_NT(N, T, 8, IL8L, IL8H)
#elif ISA_LEVEL >= 3
#define NT4(N, T) GEMM_NT(N, T, 8, IL8L, IL8H)
#define NT8(N, T) GEMM_NT(N, T, 4, IL4L, IL4H)
#else
#define NT4(N, T) GEMM_NT(N, T, 4, IL4L, IL4H)
#define NT8(N, T) GEMM_NT(N, T, 2, IL2L, IL2H)
#endif
/* Contraction into FMA is wanted here and nowhere else; the functions carry it themselves. */
#if ISA_LEVEL >= 3 && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT ON
#endif
#define MADD(c, a, b) (c) += (a) * (b)
GEMM(f32, float, 6)
GEMM(f64, double, 6)
GEMM(i32, uint32_t, 4)
GEMM(i64, uint64_t, 4)
NT4(f32, float)
NT8(f64, double)
NT4(i32, uint32_t)
NT8(i64, uint64_t)
#if ISA_LEVEL >= 3 && !defined(__clang__)
#pragma GCC pop_options
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

#define FEW_INT(N, T)                                                                                 \
	static uint32_t CAT3(dotint, N, h)(int64_t n, const uint32_t *x, const void *row)                 \
	{                                                                                                 \
		const T *y = row;                                                                             \
		uint32_t sum = 0;                                                                             \
		for (int64_t i = 0; i < n; i++)                                                               \
			sum += x[i] * (uint32_t)y[i];                                                             \
		return sum;                                                                                   \
	}                                                                                                 \
	static void CAT3(axpyint, N, h)(int64_t n, const uint32_t *x, const char *const *row, uint32_t *c) \
	{                                                                                                 \
		const T *r0 = (const void *)row[0], *r1 = (const void *)row[1], *r2 = (const void *)row[2], *r3 = (const void *)row[3]; \
		uint32_t x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3];                                          \
		EACH c[i] += x0 * (uint32_t)r0[i] + x1 * (uint32_t)r1[i] + x2 * (uint32_t)r2[i] + x3 * (uint32_t)r3[i]; \
	}
FEW_INT(i8, int8_t) FEW_INT(i16, int16_t) FEW_INT(i32, int32_t) FEW_INT(u8, uint8_t) FEW_INT(u16, uint16_t) FEW_INT(u32, uint32_t)
