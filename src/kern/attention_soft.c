/* Exponentials of attention's tiles.  On Zen 4 products and exponentials share the pipes of FMA, where a multiplication, an FMA or a
 * compare into a mask costs a cycle and all else nothing (measured): so differences are subtracted, not fused, powers of two are
 * made by integers or vscalefps, and polynomials are as short as the type of p allows: relative error 2.6e-6 beside bf16, 2e-8 (before
 * rounding) beside f32; coefficients are minimax for 2^f, |f| <= 1/2. */
#include "attention.h"
#include "attention_512.h"

#include <immintrin.h>
#include <math.h>

/* What of log2 e the float next to it lacks, as a part of it. */
#define LOG2E_LACKS 0x1.cab1b8p-27f

/* --- AVX-512 -------------------------------------------------------------------------- */

/* 2^x, of which f is the fraction. */
IN512 __m512 power_512(__m512 x, __m512 f)
{
	__m512 p = _mm512_fmadd_ps(f, K512(0x1.c72118p-13f), K512(0x1.461956p-10f));
	p = _mm512_fmadd_ps(f, p, K512(0x1.3d2800p-7f));
	p = _mm512_fmadd_ps(f, p, K512(0x1.c68500p-5f));
	p = _mm512_fmadd_ps(f, p, K512(0x1.ebfd9ep-3f));
	p = _mm512_fmadd_ps(f, p, K512(0x1.62e42ap-1f));
	p = _mm512_fmadd_ps(f, p, K512(1));
	return _mm512_scalef_ps(p, x);
}

IN512 __m512 exp2_long(__m512 x) { return power_512(x, _mm512_reduce_ps(x, 9)); }

/* 2^((s - l) c2 - less).  Beside log z, which is in l and not in s, difference and product are rounded by more than a small score has: what
 * they lose, and c2 lacks, is added to the fraction.  (It is NaN beside infinite numbers, and anything where the result is 0.) */
IN512 __m512 less_long(__m512 s, __m512 l, __m512 c2, __m512 less)
{
	__m512 d = _mm512_sub_ps(s, l), x = _mm512_fmsub_ps(d, c2, less), b = _mm512_sub_ps(s, d);
	__m512 lost = _mm512_add_ps(_mm512_sub_ps(s, _mm512_add_ps(d, b)), _mm512_sub_ps(b, l));      /* Shewchuk 1997, two-diff */
	lost = _mm512_fmadd_ps(lost, c2, _mm512_sub_ps(_mm512_fmsub_ps(d, c2, x), less));
	lost = _mm512_fmadd_ps(x, K512(LOG2E_LACKS), lost);
	lost = _mm512_min_ps(_mm512_max_ps(lost, K512(-1)), K512(1));
	return power_512(x, _mm512_add_ps(_mm512_reduce_ps(x, 9), lost));
}

/* Beside bf16 nothing of that is seen. */
IN512 __m512 less_short(__m512 s, __m512 l, __m512 c2, __m512 less) { return exp2_short(_mm512_fmsub_ps(_mm512_sub_ps(s, l), c2, less)); }

/* Is a score of row r above most[r]? */
T512 static bool over_512(int rows, const float *s, const float *most)
{
	__mmask16 any = 0;
	for (int r = 0; r < rows; r += 8) {
		__m512 x = K512(-1);
		int n = MIN(8, rows - r);
		for (int i = r; i < r + n; i++) {
			__m512 up = _mm512_max_ps(_mm512_load_ps(s + i * ATT_COLS), _mm512_load_ps(s + i * ATT_COLS + 16));
			x = _mm512_max_ps(_mm512_sub_ps(up, K512(most[i])), x);
		}
		any |= _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
	}
	return any != 0;
}

T512 static void scale_512(int rows, float *s, float c)
{
	for (int i = 0; i < rows * ATT_COLS; i += 16)
		_mm512_store_ps(s + i, _mm512_mul_ps(_mm512_load_ps(s + i), K512(c)));
}

T512 static void tops_512(int rows, const float *s, float *top)
{
	__m512 none = K512(-INFINITY);
	for (int r = 0; r < rows; r++, s += ATT_COLS)      /* of a NaN the other operand is taken, the second */
		top[r] = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(_mm512_load_ps(s), none), _mm512_max_ps(_mm512_load_ps(s + 16), none)));
}

T512 static void raise_512(int rows, const float *s, float c, float (*top)[ATT_LANES])
{
	for (int r = 0; r < rows; r++, s += ATT_COLS) {
		raise_top(top[r], _mm512_load_ps(s), _mm512_load_ps(s + 16), c);
	}
}

/* What is stored of pairs, and with that what is added to a sum of p: all of it, or, of x times w and y times w, what rounding adds. */
INBF16 __m512 pairs_sum(__m512 x, __m512 y, char *p)
{
	__m512bh pair = _mm512_cvtne2ps_pbh(y, x);
	_mm512_store_si512(p, (__m512i)pair);
	return add_pairs(pair);
}
INBF16 __m512 pairs_sum_of(__m512 x, __m512 y, char *p, __m512 sum) { return _mm512_add_ps(sum, _mm512_sub_ps(pairs_sum(x, y, p), _mm512_add_ps(x, y))); }
IN512 __m512 floats_sum_of(__m512 x, __m512 y, char *p, __m512 sum)
{
	_mm512_store_ps(p, x);
	_mm512_store_ps(p + 64, y);
	return sum;
}
IN512 __m512 floats_sum(__m512 x, __m512 y, char *p) { return floats_sum_of(x, y, p, _mm512_add_ps(x, y)); }
IN512 void add_to(float *sum, __m512 x) { _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), x)); }

#define FORWARD(name, isa, exp2, store) \
isa static void name(int rows, const float *s, const float *m, float c2, const float *less, const float *w, char *p, int64_t ldp, float (*l)[ATT_LANES], float (*z)[ATT_LANES]) \
{ \
	__m512 c = K512(c2); \
	_Pragma("GCC unroll 4") \
	for (int r = 0; r < rows; r++, s += ATT_COLS) { \
		__m512 ref = K512(m[r]), rest = K512(less[r]); \
		__m512 a = exp2(_mm512_fmsub_ps(_mm512_sub_ps(_mm512_load_ps(s), ref), c, rest)); \
		__m512 b = exp2(_mm512_fmsub_ps(_mm512_sub_ps(_mm512_load_ps(s + 16), ref), c, rest)); \
		if (z) \
			add_to(z[r], _mm512_add_ps(a, b)); \
		if (w) { \
			__m512 sum = _mm512_add_ps(a, b); \
			a = _mm512_mul_ps(a, _mm512_load_ps(w + r * ATT_COLS)); \
			b = _mm512_mul_ps(b, _mm512_load_ps(w + r * ATT_COLS + 16)); \
			add_to(l[r], store##_sum_of(a, b, p + r * ldp, sum)); \
		} else { \
			add_to(l[r], store##_sum(a, b, p + r * ldp)); \
		} \
	} \
}
FORWARD(forward_bf16, TBF16, exp2_short, pairs)
FORWARD(forward_512, T512, exp2_long, floats)

/* Products of M512 rows, group g, and tile t as in attention_micro.c, less the rows' references.  If one is too large all are kept (not by a function, for which they
 * would always be in memory). */
#define AS_IT_IS(x, c) x
#define SCALED(x, c) _mm512_mul_ps(x, K512(c))
#define LESS_512(x, q, g, t, product, scale, masked) do { \
	const char *a = (q)->a + (g) * M512 * (q)->lda, *b = (q)->b + (t) * (q)->steps * 128; \
	PRODUCT_512(x, product, (q)->steps, a, (q)->lda, b); \
	__m512 none = K512(-INFINITY); \
	if ((q)->top) { \
		_Pragma("GCC unroll 8") \
		for (int i = 0; i < M512; i++) { \
			uint32_t mask = masked ? (q)->mask[(g) * M512 + i] : (uint32_t)-1; \
			raise_top((q)->top[(g) * M512 + i], _mm512_mask_mov_ps(none, (__mmask16)mask, x[i][0]), _mm512_mask_mov_ps(none, (__mmask16)(mask >> 16), x[i][1]), (q)->by); \
		} \
	} \
	_Pragma("GCC unroll 8") \
	for (int i = 0; i < M512; i++) { \
		__m512 ref = K512((q)->m[(g) * M512 + i]); \
		uint32_t mask = masked ? (q)->mask[(g) * M512 + i] : (uint32_t)-1; \
		x[i][0] = _mm512_mask_sub_ps(none, (__mmask16)mask, scale(x[i][0], (q)->by), ref); \
		x[i][1] = _mm512_mask_sub_ps(none, (__mmask16)(mask >> 16), scale(x[i][1], (q)->by), ref); \
	} \
} while (0)
#define WORDS_MOST ((int)(256 * (127 + ATT_LAZY * LOG2E)))
#define KEEP_512(s, x) do { \
	_Pragma("GCC unroll 8") \
	for (int i = 0; i < M512; i++) { \
		_mm512_store_ps((s) + i * ATT_COLS, x[i][0]); \
		_mm512_store_ps((s) + i * ATT_COLS + 16, x[i][1]); \
	} \
} while (0)

#define FUSED(name, isa, product, scale, exp2, store, es) \
isa __attribute__((always_inline)) static inline bool name(const struct att_fuse *q, int g, int t, bool masked) \
{ \
	__m512 x[M512][2], c = K512(q->c2), most = K512(-1); \
	LESS_512(x, q, g, t, product, scale, masked); \
	_Pragma("GCC unroll 8") \
	for (int i = 0; i < M512; i++) \
		most = _mm512_max_ps(x[i][1], _mm512_max_ps(x[i][0], most)); \
	if (__builtin_expect(_mm512_cmp_ps_mask(most, K512(q->most), _CMP_GT_OQ) != 0, 0)) { \
		KEEP_512(q->s, x); \
		return true; \
	} \
	const float *less = q->less + g * M512; \
	float (*l)[ATT_LANES] = q->l + g * M512, (*z)[ATT_LANES] = q->z ? q->z + g * M512 : NULL; \
	char *p = q->p + g * M512 * q->ldp + t * ATT_COLS * es; \
	int64_t ldp = q->ldp; \
	_Pragma("GCC unroll 8") \
	for (int i = 0; i < M512; i++) { \
		x[i][0] = _mm512_fmsub_ps(x[i][0], c, K512(less[i])); \
		x[i][1] = _mm512_fmsub_ps(x[i][1], c, K512(less[i])); \
	} \
	_Pragma("GCC unroll 8") \
	for (int i = 0; i < M512; i++) { \
		__m512 e0 = exp2(x[i][0]), e1 = exp2(x[i][1]); \
		if (z) \
			add_to(z[i], _mm512_add_ps(e0, e1)); \
		add_to(l[i], store##_sum(e0, e1, p + i * ldp)); \
	} \
	return false; \
}
FUSED(fused_bf16, TBF16, PAIRS, AS_IT_IS, exp2_short, pairs, 2)
FUSED(fused_f32, T512, FLOATS, SCALED, exp2_long, floats, 4)

/* p of integers: what is too large is seen of them. */
TWORDS bool fused_words(const struct att_fuse *q, int g, int t, bool masked)
{
	const char *a = q->a + g * M512 * q->lda, *b = q->b + t * q->steps * 128;
	const float *m = q->m + g * M512;
	float (*l)[ATT_LANES] = q->l + g * M512;
	__m512 x[M512][2], c = K512(256 * q->c2), none = K512(-INFINITY);
	__m512i w[M512], most = _mm512_setzero_si512();
	PRODUCT_512(x, PAIRS, q->steps, a, q->lda, b);
#pragma GCC unroll 8
	for (int i = 0; i < M512; i++) {
		uint32_t mask = masked ? q->mask[g * M512 + i] : 0;
		x[i][0] = masked ? _mm512_mask_mov_ps(none, (__mmask16)mask, x[i][0]) : x[i][0];
		x[i][1] = masked ? _mm512_mask_mov_ps(none, (__mmask16)(mask >> 16), x[i][1]) : x[i][1];
		w[i] = to_words(_mm512_fmsub_ps(x[i][0], c, K512(m[i])), _mm512_fmsub_ps(x[i][1], c, K512(m[i])));
		most = _mm512_max_epu16(most, w[i]);
	}
	if (__builtin_expect(_mm512_cmpgt_epu16_mask(most, _mm512_set1_epi16((short)WORDS_MOST)) != 0, 0)) {
		KEEP_512(q->s, x);
		return true;
	}
	char *p = q->p + g * M512 * q->ldp + t * ATT_COLS * 2;
	int64_t ldp = q->ldp;
#pragma GCC unroll 8
	for (int i = 0; i < M512; i++) {
		w[i] = exp2_words(w[i]);
		_mm512_store_si512(p + i * ldp, w[i]);
		_mm512_store_ps(l[i], PAIRS(_mm512_load_ps(l[i]), w[i], _mm512_set1_epi16(0x3f80)));
	}
	return false;
}

#define ALL(isa, name, one) \
isa int name(const struct att_fuse *q, int groups, int tiles) \
{ \
	for (int t = 0; t < tiles; t++) \
		for (int g = 0; g < groups; g++) \
			if (q->mask ? one(q, g, t, true) : one(q, g, t, false)) \
				return t * groups + g; \
	return tiles * groups; \
}
ALL(TBF16 static, exact_bf16, fused_bf16)
ALL(TVBMI static, words_bf16, fused_words)
ALL(T512, att_fused_f32_512, fused_f32)
int att_fused_bf16_512(const struct att_fuse *q, int groups, int tiles) { return (q->words ? words_bf16 : exact_bf16)(q, groups, tiles); }

/* Half h of row r: p, and dx to *dx. */
struct turned { const float *s, *y, *slope, *w; __m512 l[2], less[2], delta[2], c2, c; };
#define TURNED_HALF(less_of) \
	int at = r * ATT_COLS + 16 * h; \
	__m512 p = less_of(_mm512_load_ps(t->s + at), t->l[h], t->c2, t->less[h]), y = _mm512_load_ps(t->y + at); \
	__m512 w = t->w ? _mm512_load_ps(t->w + at) : t->c; \
	*dx = _mm512_mul_ps(p, _mm512_fmsub_ps(y, w, t->delta[h])); \
	if (t->slope) \
		*dx = _mm512_mul_ps(*dx, _mm512_load_ps(t->slope + at)); \
	return t->w ? _mm512_mul_ps(p, w) : p;
IN512 __m512 half_short(const struct turned *t, int r, int h, __m512 *dx) { TURNED_HALF(less_short) }
IN512 __m512 half_long(const struct turned *t, int r, int h, __m512 *dx) { TURNED_HALF(less_long) }
#define TURNED_HEAD struct turned t = { s, y, slope, w, { _mm512_load_ps(l), _mm512_load_ps(l + 16) }, \
	{ _mm512_load_ps(less), _mm512_load_ps(less + 16) }, { _mm512_load_ps(delta), _mm512_load_ps(delta + 16) }, K512(c2), K512(c) }

/* Two rows of 32 bf16 as 32 pairs. */
static const uint16_t pair_low[32] __attribute__((aligned(64))) = {
	0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47,
};
INBF16 void rows_bf16(const struct turned *t, int rows, char *p, char *dx, int64_t ld, char *panel)
{
	__m512i low = _mm512_load_si512(pair_low), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
	for (int r = 0; r < rows; r += 2, panel += 128) {
		__m512i x[2];
#pragma GCC unroll 2
		for (int i = 0; i < 2; i++) {
			__m512 x0, x1, p0 = half_short(t, r + i, 0, &x0), p1 = half_short(t, r + i, 1, &x1);
			x[i] = (__m512i)_mm512_cvtne2ps_pbh(x1, x0);
			_mm512_store_si512(p + (r + i) * ld, (__m512i)_mm512_cvtne2ps_pbh(p1, p0));
			_mm512_store_si512(dx + (r + i) * ld, x[i]);
		}
		_mm512_store_si512(panel, _mm512_permutex2var_epi16(x[0], low, x[1]));
		_mm512_store_si512(panel + 64, _mm512_permutex2var_epi16(x[0], high, x[1]));
	}
}

TBF16 static void backward_bf16(int rows, const float *s, const float *y, const float *l, float c2, const float *less, const float *delta, float c, const float *slope,
                                const float *w, char *p, char *dx, int64_t ld, char *panel)
{
	TURNED_HEAD;
	if (slope || w) {
		rows_bf16(&t, rows, p, dx, ld, panel);
		return;
	}
	t.slope = t.w = NULL;      /* a loop of its own */
	rows_bf16(&t, rows, p, dx, ld, panel);
}

T512 static void backward_512(int rows, const float *s, const float *y, const float *l, float c2, const float *less, const float *delta, float c, const float *slope,
                              const float *w, char *p, char *dx, int64_t ld, char *panel)
{
	TURNED_HEAD;
	for (int r = 0; r < rows; r++, panel += 128)
#pragma GCC unroll 2
		for (int h = 0; h < 2; h++) {
			__m512 x;
			_mm512_store_ps(p + r * ld + 64 * h, half_long(&t, r, h, &x));
			_mm512_store_ps(dx + r * ld + 64 * h, x);
			_mm512_store_ps(panel + 64 * h, x);
		}
}

const struct att_soft att_soft_512_bf16 = { over_512, scale_512, tops_512, raise_512, forward_bf16, backward_bf16 },
                      att_soft_512 = { over_512, scale_512, tops_512, raise_512, forward_512, backward_512 };

/* --- AVX2 -------------------------------------------------------------------------------- */

#define T256 __attribute__((target("avx2,fma")))
#define IN256 __attribute__((target("avx2,fma"), always_inline)) static inline
#define K256(x) _mm256_set1_ps(x)

/* 2^x, with what x lacks; 0 below 2^-126; what is not a number stays so. */
IN256 __m256 power_256(__m256 x, __m256 lost)
{
	__m256 live = _mm256_cmp_ps(x, K256(-126), _CMP_NLT_UQ);
	x = _mm256_min_ps(K256(128), x);
	x = _mm256_max_ps(K256(-127), x);
	__m256 n = _mm256_round_ps(x, 8), f = _mm256_add_ps(_mm256_sub_ps(x, n), lost);
	__m256 p = _mm256_fmadd_ps(f, K256(0x1.41d334p-13f), K256(0x1.5f456ap-10f));
	p = _mm256_fmadd_ps(f, p, K256(0x1.3b2dbcp-7f));
	p = _mm256_fmadd_ps(f, p, K256(0x1.c6aed4p-5f));
	p = _mm256_fmadd_ps(f, p, K256(0x1.ebfbdap-3f));
	p = _mm256_fmadd_ps(f, p, K256(0x1.62e430p-1f));
	p = _mm256_fmadd_ps(f, p, K256(1));
	__m256 scale = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
	return _mm256_and_ps(live, _mm256_mul_ps(p, scale));
}

IN256 __m256 exp2_256(__m256 x) { return power_256(x, _mm256_setzero_ps()); }

/* As less_long. */
IN256 __m256 less_256(__m256 s, __m256 l, __m256 c2, __m256 less)
{
	__m256 d = _mm256_sub_ps(s, l), x = _mm256_fmsub_ps(d, c2, less), b = _mm256_sub_ps(s, d);
	__m256 lost = _mm256_add_ps(_mm256_sub_ps(s, _mm256_add_ps(d, b)), _mm256_sub_ps(b, l));
	lost = _mm256_fmadd_ps(lost, c2, _mm256_sub_ps(_mm256_fmsub_ps(d, c2, x), less));
	lost = _mm256_fmadd_ps(x, K256(LOG2E_LACKS), lost);
	return power_256(x, _mm256_min_ps(_mm256_max_ps(lost, K256(-1)), K256(1)));
}

T256 static bool over_256(int rows, const float *s, const float *most)
{
	__m256 any = _mm256_setzero_ps();
	for (int r = 0; r < rows; r++)
		for (int j = 0; j < ATT_COLS; j += 8)
			any = _mm256_or_ps(any, _mm256_cmp_ps(_mm256_load_ps(s + r * ATT_COLS + j), K256(most[r]), _CMP_GT_OQ));
	return _mm256_movemask_ps(any) != 0;
}

T256 static void scale_256(int rows, float *s, float c)
{
	for (int i = 0; i < rows * ATT_COLS; i += 8)
		_mm256_store_ps(s + i, _mm256_mul_ps(_mm256_load_ps(s + i), K256(c)));
}

T256 static void tops_256(int rows, const float *s, float *top)
{
	for (int r = 0; r < rows; r++, s += ATT_COLS) {
		__m256 x = K256(-INFINITY);
		for (int j = 0; j < ATT_COLS; j += 8)      /* of a NaN the second operand is taken */
			x = _mm256_max_ps(_mm256_load_ps(s + j), x);
		__m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
		y = _mm_max_ps(y, _mm_movehl_ps(y, y));
		top[r] = _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
	}
}

T256 static void raise_256(int rows, const float *s, float c, float (*top)[ATT_LANES])
{
	for (int r = 0; r < rows; r++, s += ATT_COLS)
		for (int j = 0; j < ATT_COLS; j += 8) {
			float *to = top[r] + j % ATT_LANES;
			_mm256_store_ps(to, _mm256_max_ps(_mm256_mul_ps(_mm256_load_ps(s + j), K256(c)), _mm256_load_ps(to)));
		}
}

T256 static void forward_256(int rows, const float *s, const float *m, float c2, const float *less, const float *w, char *p, int64_t ldp, float (*l)[ATT_LANES], float (*z)[ATT_LANES])
{
	for (int r = 0; r < rows; r++)
		for (int j = 0; j < ATT_COLS; j += 8) {
			__m256 x = exp2_256(_mm256_fmsub_ps(_mm256_sub_ps(_mm256_load_ps(s + r * ATT_COLS + j), K256(m[r])), K256(c2), K256(less[r])));
			float *sum = l[r] + j % ATT_LANES;
			_mm256_store_ps(sum, _mm256_add_ps(_mm256_load_ps(sum), x));
			_mm256_store_ps((float *)(void *)(p + r * ldp) + j, w ? _mm256_mul_ps(x, _mm256_load_ps(w + r * ATT_COLS + j)) : x);
		}
}

T256 static void backward_256(int rows, const float *s, const float *y, const float *l, float c2, const float *less, const float *delta, float c, const float *slope,
                              const float *w, char *p, char *dx, int64_t ld, char *panel)
{
	for (int r = 0; r < rows; r++)
		for (int j = 0; j < ATT_COLS; j += 8) {
			int at = r * ATT_COLS + j;
			__m256 e = less_256(_mm256_load_ps(s + at), _mm256_load_ps(l + j), K256(c2), _mm256_load_ps(less + j));
			__m256 f = w ? _mm256_load_ps(w + at) : K256(c);
			__m256 x = _mm256_mul_ps(e, _mm256_fmsub_ps(_mm256_load_ps(y + at), f, _mm256_load_ps(delta + j)));
			if (slope)
				x = _mm256_mul_ps(x, _mm256_load_ps(slope + at));
			_mm256_store_ps((float *)(void *)(p + r * ld) + j, w ? _mm256_mul_ps(e, f) : e);
			_mm256_store_ps((float *)(void *)(dx + r * ld) + j, x);
			_mm256_store_ps((float *)(void *)(panel + 128 * r) + j, x);
		}
}

const struct att_soft att_soft_256 = { over_256, scale_256, tops_256, raise_256, forward_256, backward_256 };

/* --- what they mean -------------------------------------------------------------------------- */

static bool over_model(int rows, const float *s, const float *most)
{
	bool any = false;
	for (int i = 0; i < rows * ATT_COLS; i++)
		any |= s[i] > most[i / ATT_COLS];
	return any;
}

static void scale_model(int rows, float *s, float c)
{
	for (int i = 0; i < rows * ATT_COLS; i++)
		s[i] *= c;
}

static void tops_model(int rows, const float *s, float *top)
{
	for (int i = 0; i < rows * ATT_COLS; i++) {
		float *t = &top[i / ATT_COLS];
		*t = i % ATT_COLS == 0 ? -INFINITY : *t;
		*t = s[i] > *t ? s[i] : *t;
	}
}

static void raise_model(int rows, const float *s, float c, float (*top)[ATT_LANES])
{
	for (int i = 0; i < rows * ATT_COLS; i++) {
		float *t = &top[i / ATT_COLS][i % ATT_LANES];
		*t = s[i] * c > *t ? s[i] * c : *t;
	}
}

static float put(int es, char *p, float x)
{
	uint16_t h = f32_to_bf16(x);
	memcpy(p, es == 2 ? (void *)&h : (void *)&x, (size_t)es);
	return es == 2 ? bf16_to_f32(h) : x;
}

static void forward_model(int es, int rows, const float *s, const float *m, float c2, const float *less, const float *w, char *p, int64_t ldp, float (*l)[ATT_LANES], float (*z)[ATT_LANES])
{
	for (int r = 0; r < rows; r++)
		for (int j = 0; j < ATT_COLS; j++) {
			float x = exp2f((s[r * ATT_COLS + j] - m[r]) * c2 - less[r]), pw = w ? x * w[r * ATT_COLS + j] : x;
			if (z)
				z[r][j % ATT_LANES] += x;
			l[r][j % ATT_LANES] += x + (put(es, p + r * ldp + j * es, pw) - pw);
		}
}

static void backward_model(int es, int rows, const float *s, const float *y, const float *l, float c2, const float *less, const float *delta, float c, const float *slope,
                           const float *w, char *p, char *dx, int64_t ld, char *panel)
{
	int words = 4 / es;
	for (int r = 0; r < rows; r++)
		for (int j = 0; j < ATT_COLS; j++) {
			int at = r * ATT_COLS + j;
			float e = (float)exp2(((double)s[at] - l[j]) * c2 * (1 + (double)LOG2E_LACKS) - less[j]), x = e * (y[at] * (w ? w[at] : c) - delta[j]) * (slope ? slope[at] : 1);
			put(es, p + r * ld + j * es, w ? e * w[at] : e);
			put(es, dx + r * ld + j * es, x);
			put(es, panel + r / words * 128 + j * 4 + r % words * es, x);
		}
}

#define MODEL(n, es) \
static void forward_model_##n(int rows, const float *s, const float *m, float c2, const float *less, const float *w, char *p, int64_t ldp, float (*l)[ATT_LANES], float (*z)[ATT_LANES]) \
{ forward_model(es, rows, s, m, c2, less, w, p, ldp, l, z); } \
static void backward_model_##n(int rows, const float *s, const float *y, const float *l, float c2, const float *less, const float *delta, float c, const float *slope, \
                               const float *w, char *p, char *dx, int64_t ld, char *panel) \
{ backward_model(es, rows, s, y, l, c2, less, delta, c, slope, w, p, dx, ld, panel); } \
const struct att_soft att_soft_##n##_model = { over_model, scale_model, tops_model, raise_model, forward_model_##n, backward_model_##n };
MODEL(bf16, 2)
MODEL(f32, 4)
