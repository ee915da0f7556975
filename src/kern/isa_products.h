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
/* Rows of both are contiguous: sums of VB-wide running products, four at a time. */
#define GEMM_NT(N, T)                                                                                 \
	static void CAT3(gemmnt, N, h)(int64_t m, int64_t n, int64_t k, const void *a_, int64_t lda,      \
	                               const void *b_, int64_t ldb, void *c_, int64_t ldc)                \
	{                                                                                                 \
		typedef T vec __attribute__((vector_size(VB), aligned(sizeof(T)), may_alias));                \
		enum { L = VB / sizeof(T) };                                                                  \
		const T *A = a_, *B = b_;                                                                     \
		T *Cc = c_;                                                                                   \
		for (int64_t j = 0; j < n; j++)                                                               \
			for (int64_t i = 0; i < m; i++) {                                                         \
				const T *x = A + i * lda, *y = B + j * ldb;                                           \
				vec s0 = { 0 }, s1 = { 0 }, s2 = { 0 }, s3 = { 0 };                                   \
				int64_t p = 0;                                                                        \
				for (; p + 4 * L <= k; p += 4 * L) {                                                  \
					MADD(s0, *(const vec *)(x + p), *(const vec *)(y + p));                           \
					MADD(s1, *(const vec *)(x + p + L), *(const vec *)(y + p + L));                   \
					MADD(s2, *(const vec *)(x + p + 2 * L), *(const vec *)(y + p + 2 * L));           \
					MADD(s3, *(const vec *)(x + p + 3 * L), *(const vec *)(y + p + 3 * L));           \
				}                                                                                     \
				for (; p + L <= k; p += L)                                                            \
					MADD(s0, *(const vec *)(x + p), *(const vec *)(y + p));                           \
				s0 = (s0 + s1) + (s2 + s3);                                                           \
				T t = 0, lane[L];                                                                     \
				memcpy(lane, &s0, sizeof lane);                                                       \
				for (; p < k; p++)                                                                    \
					SADD(t, x[p], y[p]);                                                              \
				for (int w = L / 2; w; w /= 2)                                                        \
					for (int q = 0; q < w; q++)                                                       \
						lane[q] += lane[q + w];                                                       \
				Cc[i * ldc + j] += lane[0] + t;                                                       \
			}                                                                                         \
	}
/* Contraction into FMA is wanted here and nowhere else; the functions carry it themselves. */
#if ISA_LEVEL >= 3 && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT ON
#endif
#define MADD(c, a, b) (c) += (a) * (b)
#define SADD(c, a, b) (c) += (a) * (b)
GEMM(f32, float, 6)
GEMM(f64, double, 6)
GEMM(i32, uint32_t, 4)
GEMM(i64, uint64_t, 4)
GEMM_NT(f32, float)
GEMM_NT(f64, double)
GEMM_NT(i32, uint32_t)
GEMM_NT(i64, uint64_t)
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
