/* Inside isa.h, once for each level: rows that are combined with those they go to, here and there. */

/* at[i] += idx[i] * step, or KERN_NOWHERE where idx[i] is not 0 .. most. */
static void CAT3(place, i32, h)(int64_t n, const int32_t *idx, int64_t most, int64_t step, int64_t *at)
{
	EACH at[i] = idx[i] < 0 || idx[i] > most ? KERN_NOWHERE : at[i] + idx[i] * step;
}

#define LOOK(B, T)                                                                                    \
	static void CAT3(look, B, h)(int64_t n, const int32_t *idx, int32_t most, const void *table, void *out) \
	{                                                                                                 \
		const T *from = table;                                                                        \
		T *to = out;                                                                                  \
		EACH to[i] = from[idx[i] < 0 ? 0 : idx[i] > most ? most : idx[i]];                            \
	}
LOOK(4, uint32_t)
LOOK(8, uint64_t)
#undef LOOK

/* One row after the other: as the strip of the type has it, element by element; a cache line at once, half of one, or four where
 * there are as many.  Rows of a length that is known when this is compiled cost half. */
#define LINE_OF(X) (int)(64 / sizeof(X))
#define EACH_FN(R, N, X, T, load, last, e) EACH_SOME(R, N, X, T, load, last, e) EACH_ROWS(R, N, X)
#define EACH_SOME(R, N, X, T, load, last, e)                                                          \
	static inline void CAT3(R, N, some)(int k, char *to, const char *up)                              \
	{                                                                                                 \
		X p[LINE_OF(X)], q[LINE_OF(X)];                                                               \
		memcpy(p, to, sizeof *p * (size_t)k);                                                         \
		memcpy(q, up, sizeof *q * (size_t)k);                                                         \
		for (int j = 0; j < k; j++) {                                                                 \
			UNUSED T x = load(p[j]), y = load(q[j]);                                                  \
			p[j] = last((T)(e));                                                                      \
		}                                                                                             \
		memcpy(to, p, sizeof *p * (size_t)k);                                                         \
	}
#define EACH_ROWS(R, N, X)                                                                            \
	static inline void CAT3(R, N, rows)(int k, int64_t n, char *to, const int64_t *at, const char *up, int64_t us) \
	{                                                                                                 \
		for (int64_t i = 0; i < n; i++, up += us)                                                     \
			if (at[i] >= KERN_NOWHERE / 2)                                                            \
				CAT3(R, N, some)(k, to + at[i], up);                                                  \
	}                                                                                                 \
	static void CAT3(R, N, each)(int64_t n, int64_t w, char *to, const int64_t *at, const char *up, int64_t us) \
	{                                                                                                 \
		enum { LINE = LINE_OF(X), B = sizeof(X) };                                                    \
		if (w == 1) {                                                                                 \
			CAT3(R, N, rows)(1, n, to, at, up, us);                                                   \
			return;                                                                                   \
		}                                                                                             \
		if (w == LINE) {                                                                              \
			CAT3(R, N, rows)(LINE, n, to, at, up, us);                                                \
			return;                                                                                   \
		}                                                                                             \
		if (w == LINE / 2) {                                                                          \
			CAT3(R, N, rows)(LINE / 2, n, to, at, up, us);                                            \
			return;                                                                                   \
		}                                                                                             \
		for (int64_t i = 0; i < n; i++, up += us) {                                                   \
			int64_t j = 0;                                                                            \
			if (at[i] < KERN_NOWHERE / 2)                                                             \
				continue;                                                                             \
			char *p = to + at[i];                                                                     \
			for (; j + LINE <= w; j += LINE)                                                          \
				CAT3(R, N, some)(LINE, p + j * B, up + j * B);                                        \
			for (; j + 4 <= w; j += 4)                                                                \
				CAT3(R, N, some)(4, p + j * B, up + j * B);                                           \
			for (; j < w; j++)                                                                        \
				CAT3(R, N, some)(1, p + j * B, up + j * B);                                           \
		}                                                                                             \
	}
#define EACH_SELF(x) (x)
#define EACH_INT(N, T, W)                                                                             \
	EACH_FN(add, N, T, T, EACH_SELF, EACH_SELF, (W)x + (W)y) EACH_FN(mul, N, T, T, EACH_SELF, EACH_SELF, (W)x * (W)y) \
	EACH_FN(min, N, T, T, EACH_SELF, EACH_SELF, x < y ? x : y) EACH_FN(max, N, T, T, EACH_SELF, EACH_SELF, x > y ? x : y) \
	EACH_FN(and, N, T, T, EACH_SELF, EACH_SELF, x & y) EACH_FN(or, N, T, T, EACH_SELF, EACH_SELF, x | y) \
	EACH_FN(xor, N, T, T, EACH_SELF, EACH_SELF, x ^ y)
#define EACH_FLOAT(N, X, T, H, load, last)                                                            \
	EACH_FN(add, N, X, T, load, last, x + y) EACH_FN(mul, N, X, T, load, last, x * y)                 \
	EACH_LIMIT(min, N, X, H, load, last) EACH_LIMIT(max, N, X, H, load, last)
/* min_1 and max_1 with no branch on which is the larger, since nobody guesses that: the instructions give y if neither is.
 * Of zeros that gives the one or the other, and both orders together the right one.  Subnormals and NaN are rare: of four elements with
 * one of them false is said, and nothing done. */
#if defined(__x86_64__)
#define LIMIT_f32(R, x, y, op) _mm_cvtss_f32(_mm_##R##_ss(_mm_set_ss(x), _mm_set_ss(y)))
#define LIMIT_f64(R, x, y, op) _mm_cvtsd_f64(_mm_##R##_sd(_mm_set_sd(x), _mm_set_sd(y)))
#define LIMIT_FOUR(R, both)                                                                           \
	static inline bool CAT3(four, R, f32)(char *to, const char *up)                                   \
	{                                                                                                 \
		__m128 x = _mm_loadu_ps((const float *)(const void *)to), y = _mm_loadu_ps((const float *)(const void *)up); \
		__m128 z = _mm_##both##_ps(_mm_##R##_ps(x, y), _mm_##R##_ps(y, x));                           \
		__m128i t = _mm_sub_epi32(_mm_and_si128(_mm_castps_si128(z), _mm_set1_epi32(0x7fffffff)), _mm_set1_epi32(1)); \
		__m128i small = _mm_and_si128(_mm_cmpgt_epi32(_mm_set1_epi32(0x7fffff), t), _mm_cmpgt_epi32(t, _mm_set1_epi32(-1))); \
		if (_mm_movemask_ps(_mm_or_ps(_mm_castsi128_ps(small), _mm_cmpunord_ps(x, y))))               \
			return false;                                                                             \
		_mm_storeu_ps((float *)(void *)to, z);                                                        \
		return true;                                                                                  \
	}
#else
#define LIMIT_f32(R, x, y, op) (x op y ? x : y)
#define LIMIT_f64(R, x, y, op) (x op y ? x : y)
#define LIMIT_FOUR(R, both) static inline bool CAT3(four, R, f32)(char *to, const char *up) { return false; }
#endif
#define LIMIT_ONE(R, H, T, FABS, LEAST, op)                                                           \
	__attribute__((noinline, cold)) static T CAT3(rare##R, H, h)(T x, T y) { return CAT3(R##_1, H, h)(x, y); } \
	static inline T CAT3(each##R, H, h)(T x, T y)                                                     \
	{                                                                                                 \
		T r = LIMIT_##H(R, x, y, op);                                                                 \
		return __builtin_expect(x == x && FABS(r) >= LEAST, 1) ? r : CAT3(rare##R, H, h)(x, y);       \
	}
LIMIT_ONE(min, f32, float, __builtin_fabsf, 0x1p-126f, <)
LIMIT_ONE(max, f32, float, __builtin_fabsf, 0x1p-126f, >)
LIMIT_ONE(min, f64, double, __builtin_fabs, 0x1p-1022, <)
LIMIT_ONE(max, f64, double, __builtin_fabs, 0x1p-1022, >)
LIMIT_FOUR(min, or)
LIMIT_FOUR(max, and)
/* min_1 and max_1 of half a line or a line: u and v are the bits of x and y. */
#define LIMIT_WIDE(R, H, T, K, BITS, op, zero)                                                        \
	static inline void CAT3(R##BITS, H, h)(char *to, const char *up)                                  \
	{                                                                                                 \
		typedef T fv __attribute__((vector_size(BITS / 8)));                                          \
		typedef K uv __attribute__((vector_size(BITS / 8)));                                          \
		fv x, y;                                                                                      \
		memcpy(&x, to, sizeof x);                                                                     \
		memcpy(&y, up, sizeof y);                                                                     \
		uv u = (uv)x, v = (uv)y, first = (uv)((x op y) | (x != x)), same = (uv)(x == y), r = (u & first) | (v & ~first); \
		r = (same & (u zero v)) | (r & ~same);                                                        \
		r &= (uv)((r & (K)INF_##H) != 0) | (K)SIGN_##H;                                               \
		memcpy(to, &r, sizeof r);                                                                     \
	}
#define INF_f32 0x7f800000u
#define SIGN_f32 0x80000000u
#define INF_f64 0x7ff0000000000000u
#define SIGN_f64 0x8000000000000000u
#define LIMIT_WIDES(R, op, zero)                                                                      \
	LIMIT_WIDE(R, f32, float, uint32_t, 256, op, zero) LIMIT_WIDE(R, f32, float, uint32_t, 512, op, zero) \
	LIMIT_WIDE(R, f64, double, uint64_t, 256, op, zero) LIMIT_WIDE(R, f64, double, uint64_t, 512, op, zero)
LIMIT_WIDES(min, <, |)
LIMIT_WIDES(max, >, &)
#if defined(__x86_64__) && ISA_LEVEL >= 4
#define LIMIT_LINE(R, both, W, P)                                                                     \
	static inline void CAT3(line, R, W)(char *to, const char *up)                                     \
	{                                                                                                 \
		__m##W x = P##_loadu_ps((const float *)(const void *)to), y = P##_loadu_ps((const float *)(const void *)up); \
		__m##W##i z = P##_##both##_si##W(P##_castps_si##W(P##_##R##_ps(x, y)), P##_castps_si##W(P##_##R##_ps(y, x))); \
		__m##W##i t = P##_sub_epi32(P##_and_si##W(z, P##_set1_epi32(0x7fffffff)), P##_set1_epi32(1)); \
		if (__builtin_expect(P##_cmplt_epu32_mask(t, P##_set1_epi32(0x7fffff)) | P##_cmp_ps_mask(x, y, _CMP_UNORD_Q), 0)) \
			CAT3(R##W, f32, h)(to, up);                                                               \
		else                                                                                          \
			P##_storeu_ps((float *)(void *)to, P##_castsi##W##_ps(z));                                \
	}
LIMIT_LINE(min, or, 256, _mm256)
LIMIT_LINE(max, and, 256, _mm256)
LIMIT_LINE(min, or, 512, _mm512)
LIMIT_LINE(max, and, 512, _mm512)
#define WIDE_f32(R, k, to, up) (k == 16 ? CAT3(line, R, 512)(to, up) : CAT3(line, R, 256)(to, up), true)
#else
#define WIDE_f32(R, k, to, up) (k == 16 ? CAT3(R##512, f32, h)(to, up) : CAT3(R##256, f32, h)(to, up), true)
#endif
#define WIDE_f64(R, k, to, up) (CAT3(R##512, f64, h)(to, up), true)
#define WIDE_bf16(R, k, to, up) false
#define WIDE_f16(R, k, to, up) false
#define FOUR_f32(R, to, up) CAT3(four, R, f32)(to, up)
#define FOUR_f64(R, to, up) (CAT3(R##256, f64, h)(to, up), true)
#define FOUR_bf16(R, to, up) false
#define FOUR_f16(R, to, up) false
#define EACH_LIMIT(R, N, X, H, load, last)                                                            \
	static inline void CAT3(R, N, some)(int k, char *to, const char *up)                              \
	{                                                                                                 \
		if (k == 4 && FOUR_##N(R, to, up))                                                            \
			return;                                                                                   \
		if (k > 4 && WIDE_##N(R, k, to, up))                                                          \
			return;                                                                                   \
		for (int j = 0; j < k; j++) {                                                                 \
			X p, q;                                                                                   \
			memcpy(&p, to + j * (int)sizeof p, sizeof p);                                             \
			memcpy(&q, up + j * (int)sizeof q, sizeof q);                                             \
			p = last(CAT3(each##R, H, h)(load(p), load(q)));                                          \
			memcpy(to + j * (int)sizeof p, &p, sizeof p);                                             \
		}                                                                                             \
	}                                                                                                 \
	EACH_ROWS(R, N, X)
EACH_INT(i8, int8_t, uint32_t) EACH_INT(i16, int16_t, uint32_t) EACH_INT(i32, int32_t, uint32_t) EACH_INT(i64, int64_t, uint64_t)
EACH_INT(u8, uint8_t, uint32_t) EACH_INT(u16, uint16_t, uint32_t) EACH_INT(u32, uint32_t, uint32_t) EACH_INT(u64, uint64_t, uint64_t)
EACH_FLOAT(f32, float, float, f32, EACH_SELF, EACH_SELF)
EACH_FLOAT(f64, double, double, f64, EACH_SELF, EACH_SELF)
EACH_FLOAT(bf16, uint16_t, float, f32, bf16_to_f32, f32_to_bf16)
EACH_FLOAT(f16, uint16_t, float, f32, FROM_F16, TO_F16)
EACH_FN(put, 1, uint8_t, uint8_t, EACH_SELF, EACH_SELF, y)
EACH_FN(put, 2, uint16_t, uint16_t, EACH_SELF, EACH_SELF, y)
EACH_FN(put, 4, uint32_t, uint32_t, EACH_SELF, EACH_SELF, y)
EACH_FN(put, 8, uint64_t, uint64_t, EACH_SELF, EACH_SELF, y)
EACH_FN(put, 16, uint128, uint128, EACH_SELF, EACH_SELF, y)
