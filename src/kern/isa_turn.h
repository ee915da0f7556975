/* Inside isa.h, once for each level: rows that become columns.  transpose_uint8_t_h and its like: out[j * os + i] = in[i * is + j]. */

/* A square of N vectors of N elements turns by log2 N rounds of interleaving row i with row i + N / 2. */
#define TRANSPOSE(T, N, ROUNDS, LOW, HIGH)                                                            \
	static inline void CAT3(square, T, h)(const T *in, int64_t is, T *out, int64_t os)                \
	{                                                                                                 \
		typedef T vec __attribute__((vector_size(N * sizeof(T))));                                    \
		vec a[N], b[N];                                                                               \
		_Pragma("GCC unroll 16") for (int i = 0; i < N; i++)                                          \
			memcpy(&a[i], in + i * is, sizeof a[i]);                                                  \
		_Pragma("GCC unroll 4") for (int r = 0; r < ROUNDS; r++) {                                    \
			_Pragma("GCC unroll 8") for (int i = 0; i < N / 2; i++) {                                 \
				b[2 * i] = __builtin_shufflevector(a[i], a[i + N / 2], LOW);                          \
				b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + N / 2], HIGH);                     \
			}                                                                                         \
			_Pragma("GCC unroll 16") for (int i = 0; i < N; i++)                                      \
				a[i] = b[i];                                                                          \
		}                                                                                             \
		_Pragma("GCC unroll 16") for (int i = 0; i < N; i++)                                          \
			memcpy(out + i * os, &a[i], sizeof a[i]);                                                 \
	}                                                                                                 \
	/* ni rows, one of each in turn */                                                                \
	static inline __attribute__((always_inline)) void CAT3(in_turn, T, h)(const int ni, int64_t nj, const T *restrict in, int64_t is, T *restrict out) \
	{                                                                                                 \
		for (int64_t j = 0; j < nj; j++)                                                              \
			_Pragma("GCC unroll 8") for (int i = 0; i < ni; i++)                                      \
				out[j * ni + i] = in[i * is + j];                                                     \
	}                                                                                                 \
	/* squares go by blocks, so that both sides stay in few pages; along the rows of the result, whose lines become whole before others of their set come */ \
	static void CAT3(transpose, T, h)(int64_t ni, int64_t nj, const void *in_, int64_t is, void *out_, int64_t os) \
	{                                                                                                 \
		enum { B = 64 };                                                                              \
		const T *in = in_;                                                                            \
		T *out = out_;                                                                                \
		switch (os == ni ? ni : 0) {                                                                  \
		case 2: CAT3(in_turn, T, h)(2, nj, in, is, out); return;                                      \
		case 3: CAT3(in_turn, T, h)(3, nj, in, is, out); return;                                      \
		case 4: CAT3(in_turn, T, h)(4, nj, in, is, out); return;                                      \
		}                                                                                             \
		/* many squares share the lines of both sides, and rows of the result fall into one set: they become whole elsewhere, then */ \
		bool meet = sizeof(T) < 4 && os * (int64_t)sizeof(T) % 4096 == 0;                             \
		T whole[B * B];                                                                               \
		int64_t rows = meet ? B : 4 * B;                                                              \
		for (int64_t jb = 0; jb < nj; jb += B)                                                        \
			for (int64_t ib = 0; ib < ni; ib += rows) {                                               \
				int64_t ie = MIN(ib + rows, ni), je = MIN(jb + B, nj), i = ib, j = jb;                \
				if (meet && ie - ib == B && je - jb == B) {                                           \
					for (i = 0; i < B; i += N)                                                        \
						for (j = 0; j < B; j += N)                                                    \
							CAT3(square, T, h)(in + (ib + i) * is + jb + j, is, whole + j * B + i, B); \
					for (j = 0; j < B; j++)                                                           \
						memcpy(out + (jb + j) * os + ib, whole + j * B, sizeof(T) * B);               \
					continue;                                                                         \
				}                                                                                     \
				for (; j + N <= je; j += N) {                                                         \
					for (i = ib; i + N <= ie; i += N)                                                 \
						CAT3(square, T, h)(in + i * is + j, is, out + j * os + i, os);                \
					for (int q = 0; q < N; q++)                                                       \
						for (int64_t p = i; p < ie; p++)                                              \
							out[(j + q) * os + p] = in[p * is + j + q];                               \
				}                                                                                     \
				for (; j < je; j++)                                                                   \
					for (i = ib; i < ie; i++)                                                         \
						out[j * os + i] = in[i * is + j];                                             \
			}                                                                                         \
	}
TRANSPOSE(uint8_t, 16, 4, IL16L, IL16H)
enum { CAT3(MANY, TO, h) = 64 };              /* elements of a row, or of a column, for which permutations pay that are made in each call */
#if defined(__x86_64__) && ISA_LEVEL >= 3

/* One byte of 16 of each of k vectors, chosen by what stands in pick, 0x80 for none. */
static inline __attribute__((always_inline)) __m128i chosen(const int k, const __m128i *v, const __m128i *pick)
{
	__m128i x = _mm_shuffle_epi8(v[0], pick[0]);
	_Pragma("GCC unroll 4") for (int q = 1; q < k; q++)
		x = _mm_or_si128(x, _mm_shuffle_epi8(v[q], pick[q]));
	return x;
}

/* k rows of elements of es bytes, one of each in turn, or (back) the rows of what lies so: as many as are in whole vectors, which is returned. */
static inline __attribute__((always_inline)) int64_t woven(const bool back, const int k, const int es, int64_t n, const char *in, int64_t is, char *out, int64_t os)
{
	__m128i pick[4][4], v[4];
	int64_t j;

	for (int q = 0; q < k; q++)
		for (int p = 0; p < k; p++) {
			uint8_t at[16];
			for (int b = 0; b < 16; b++) {
				int el = b / es, whole = back ? (el * k + q) * es + b % es : q * 16 + b;      /* which byte of all in turn it comes from, or is */
				bool mine = back ? whole / 16 == p : whole / es % k == p;
				at[b] = (uint8_t)(!mine ? 0x80 : back ? whole % 16 : whole / es / k * es + b % es);
			}
			memcpy(&pick[q][p], at, sizeof at);
		}
	for (j = 0; j + 16 / es <= n; j += 16 / es) {
		_Pragma("GCC unroll 4") for (int q = 0; q < k; q++)
			v[q] = _mm_loadu_si128((const __m128i *)(const void *)(back ? in + j * k * es + 16 * q : in + (q * is + j) * es));
		_Pragma("GCC unroll 4") for (int q = 0; q < k; q++)
			_mm_storeu_si128((__m128i *)(void *)(back ? out + (q * os + j) * es : out + j * k * es + 16 * q), chosen(k, v, pick[q]));
	}
	return j;
}

#define WOVEN(T)                                                                                      \
	static void CAT3(transpose_or_weave, T, h)(int64_t ni, int64_t nj, const void *in_, int64_t is, void *out_, int64_t os) \
	{                                                                                                 \
		const T *in = in_;                                                                            \
		T *out = out_;                                                                                \
		int64_t n = 0;                                                                                \
		switch (os == ni && nj >= CAT3(MANY, TO, h) ? ni : 0) {                                       \
		case 2: n = woven(false, 2, sizeof(T), nj, in_, is, out_, 0); break;                          \
		case 3: n = woven(false, 3, sizeof(T), nj, in_, is, out_, 0); break;                          \
		case 4: n = woven(false, 4, sizeof(T), nj, in_, is, out_, 0); break;                          \
		}                                                                                             \
		if (n) {                                                                                      \
			CAT3(transpose, T, h)(ni, nj - n, in + n, is, out + n * ni, os);                          \
			return;                                                                                   \
		}                                                                                             \
		switch (is == nj && ni >= CAT3(MANY, TO, h) ? nj : 0) {                                       \
		case 2: n = woven(true, 2, sizeof(T), ni, in_, 0, out_, os); break;                           \
		case 3: n = woven(true, 3, sizeof(T), ni, in_, 0, out_, os); break;                           \
		case 4: n = woven(true, 4, sizeof(T), ni, in_, 0, out_, os); break;                           \
		}                                                                                             \
		CAT3(transpose, T, h)(ni - n, nj, in + n * is, is, out + n, os);                              \
	}
#else
#define WOVEN(T)                                                                                      \
	static void CAT3(transpose_or_weave, T, h)(int64_t ni, int64_t nj, const void *in, int64_t is, void *out, int64_t os) { CAT3(transpose, T, h)(ni, nj, in, is, out, os); }
#endif
WOVEN(uint8_t)
#if ISA_LEVEL >= 4
TRANSPOSE(uint16_t, 16, 4, IL16L, IL16H)
TRANSPOSE(uint32_t, 16, 4, IL16L, IL16H)
TRANSPOSE(uint64_t, 8, 3, IL8L, IL8H)

/* 16 rows of nj words that lie behind each other are nj vectors, from which nj - 1 permutations of two gather a column. */
enum { NARROW = 8 };                          /* from there on squares cost less */
static inline __attribute__((always_inline)) int64_t narrow(int64_t ni, const int nj, const uint32_t *in, uint32_t *out, int64_t os)
{
	__m512i pick[NARROW - 1][NARROW - 2], v[NARROW - 1];
	int64_t i;

	for (int j = 0; j < nj; j++)
		for (int q = 1; q < nj; q++) {
			uint32_t at[16];      /* of vectors 0 and 1; then of what there is, and vector q */
			for (int r = 0; r < 16; r++) {
				int from = r * nj + j;
				at[r] = (uint32_t)(q == 1 ? from % 32 : from / 16 == q ? 16 + from % 16 : r);
			}
			memcpy(&pick[j][q - 1], at, sizeof at);
		}
	for (i = 0; i + 16 <= ni; i += 16) {
		_Pragma("GCC unroll 8") for (int q = 0; q < nj; q++)
			v[q] = _mm512_loadu_si512(in + i * nj + 16 * q);
		_Pragma("GCC unroll 8") for (int j = 0; j < nj; j++) {
			__m512i x = _mm512_permutex2var_epi32(v[0], pick[j][0], v[1]);
			_Pragma("GCC unroll 8") for (int q = 2; q < nj; q++)
				x = _mm512_permutex2var_epi32(x, pick[j][q - 1], v[q]);
			_mm512_storeu_si512(out + j * os + i, x);
		}
	}
	return i;
}

/* The other way: ni rows of words, one of each in turn. */
static inline __attribute__((always_inline)) int64_t widened(const int ni, int64_t nj, const uint32_t *in, int64_t is, uint32_t *out)
{
	__m512i pick[NARROW][NARROW - 1], v[NARROW];
	int64_t j;

	for (int q = 0; q < ni; q++)
		for (int i = 1; i < ni; i++) {
			uint32_t at[16];      /* of rows 0 and 1; then of what there is, and row i */
			for (int e = 0; e < 16; e++) {
				int p = q * 16 + e, row = p % ni;
				at[e] = (uint32_t)(row == i ? 16 + p / ni : i == 1 && row == 0 ? p / ni : e);
			}
			memcpy(&pick[q][i - 1], at, sizeof at);
		}
	for (j = 0; j + 16 <= nj; j += 16) {
		_Pragma("GCC unroll 8") for (int i = 0; i < ni; i++)
			v[i] = _mm512_loadu_si512(in + i * is + j);
		_Pragma("GCC unroll 8") for (int q = 0; q < ni; q++) {
			__m512i x = _mm512_permutex2var_epi32(v[0], pick[q][0], v[1]);
			_Pragma("GCC unroll 8") for (int i = 2; i < ni; i++)
				x = _mm512_permutex2var_epi32(x, pick[q][i - 1], v[i]);
			_mm512_storeu_si512(out + j * ni + 16 * q, x);
		}
	}
	return j;
}

static void transpose_words(int64_t ni, int64_t nj, const void *in_, int64_t is, void *out_, int64_t os)
{
	const uint32_t *in = in_;
	uint32_t *out = out_;
	int64_t i = 0, j = 0;

	if (os == ni && nj >= CAT3(MANY, TO, h))
		switch (ni) {
		case 2: j = widened(2, nj, in, is, out); break;
		case 3: j = widened(3, nj, in, is, out); break;
		case 4: j = widened(4, nj, in, is, out); break;
		case 5: j = widened(5, nj, in, is, out); break;
		case 6: j = widened(6, nj, in, is, out); break;
		case 7: j = widened(7, nj, in, is, out); break;
		case 8: j = widened(8, nj, in, is, out); break;
		}
	if (j) {
		CAT3(transpose, uint32_t, h)(ni, nj - j, in + j, is, out + j * ni, os);
		return;
	}
	if (is == nj && ni >= CAT3(MANY, TO, h))
		switch (nj) {
		case 2: i = narrow(ni, 2, in, out, os); break;
		case 3: i = narrow(ni, 3, in, out, os); break;
		case 4: i = narrow(ni, 4, in, out, os); break;
		case 5: i = narrow(ni, 5, in, out, os); break;
		case 6: i = narrow(ni, 6, in, out, os); break;
		case 7: i = narrow(ni, 7, in, out, os); break;
		}
	CAT3(transpose, uint32_t, h)(ni - i, nj, in + i * is, is, out + i, os);
}
#else
TRANSPOSE(uint16_t, 8, 3, IL8L, IL8H)
#define transpose_words CAT3(transpose, uint32_t, h)
TRANSPOSE(uint32_t, 8, 3, IL8L, IL8H)
TRANSPOSE(uint64_t, 4, 2, IL4L, IL4H)
#endif
WOVEN(uint16_t)
