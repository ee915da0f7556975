/* Products of very few rows: each number of rhs is read once, where it lies. */
#include "matmul_impl.h"
#include "micro.h"

#include <immintrin.h>
#include <stdlib.h>

#define INLINE static inline __attribute__((always_inline))

/* 16 elements of a row, those of m. */
__attribute__((target("avx512f,avx512bw,avx512vl")))
INLINE __m512 load16(enum dtype dt, const char *row, int64_t at, __mmask16 m)
{
	if (dt == DT_f32)
		return _mm512_maskz_loadu_ps(m, row + 4 * at);
	__m256i h = _mm256_maskz_loadu_epi16(m, row + 2 * at);
	return dt == DT_f16 ? _mm512_cvtph_ps(h) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* A loop for each type of rows. */
#define BY_TYPE(f, dt, ...) (dt == DT_f32 ? f(__VA_ARGS__, DT_f32) : dt == DT_f16 ? f(__VA_ARGS__, DT_f16) : f(__VA_ARGS__, DT_bf16))

/* Of n columns the sum over 8 rows of x[r] * row[r][0..n), rows of dt: four products add up first, and four more.  It goes to acc, or is added to
 * what is there; or, if there is one, acc and it are added to wide.  next, if it is not NULL, are 8 rows to fetch meanwhile, one after the other. */
struct eight { const float *x; const char *const *row, *const *next; float *acc; bool first; double *wide; };

/* Columns i .. of those of m; what stays the same is in registers: the compiler does not know that acc is none of it. */
__attribute__((target("avx512f,avx512bw,avx512vl")))
INLINE void eight_columns(int64_t i, __mmask16 m, const __m512 *x, const char *const *row, const struct eight *e, enum dtype dt)
{
	__m512 s = _mm512_mul_ps(x[0], load16(dt, row[0], i, m)), t = _mm512_mul_ps(x[4], load16(dt, row[4], i, m));
#pragma GCC unroll 4
	for (int j = 1; j < 4; j++) {
		s = _mm512_fmadd_ps(x[j], load16(dt, row[j], i, m), s);
		t = _mm512_fmadd_ps(x[4 + j], load16(dt, row[4 + j], i, m), t);
	}
	s = _mm512_add_ps(s, t);
	if (!e->first)
		s = _mm512_add_ps(_mm512_maskz_loadu_ps(m, e->acc + i), s);
	if (!e->wide) {
		_mm512_mask_storeu_ps(e->acc + i, m, s);
		return;
	}
	__m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(s)), high = _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(s), 1)));
	_mm512_mask_storeu_pd(e->wide + i, (__mmask8)m, _mm512_add_pd(_mm512_maskz_loadu_pd((__mmask8)m, e->wide + i), low));
	_mm512_mask_storeu_pd(e->wide + i + 8, (__mmask8)(m >> 8), _mm512_add_pd(_mm512_maskz_loadu_pd((__mmask8)(m >> 8), e->wide + i + 8), high));
}

__attribute__((target("avx512f,avx512bw,avx512vl")))
INLINE void eight_512_as(int64_t n, const struct eight *from, enum dtype dt)
{
	const struct eight e = *from;
	__m512 x[8];
	const char *row[8];
	int at_row = 0, es = dt == DT_f32 ? 4 : 2, lines = 2 * es;
	const char *at = e.next ? e.next[0] : NULL, *end = at + n * es;
#pragma GCC unroll 8
	for (int j = 0; j < 8; j++) {
		x[j] = _mm512_set1_ps(e.x[j]);
		row[j] = e.row[j];
	}
	int64_t i = 0;
	for (; i + 16 <= n; i += 16) {
		for (int j = 0; j < lines && at; j++, at += 64)
			_mm_prefetch(at, _MM_HINT_T1);
		if (at && at >= end) {
			at_row++;
			at = at_row < 8 ? e.next[at_row] : NULL;
			end = at + n * es;
		}
		eight_columns(i, 0xffff, x, row, &e, dt);
	}
	if (i < n)
		eight_columns(i, (__mmask16)((1u << (n - i)) - 1), x, row, &e, dt);
}

__attribute__((target("avx512f,avx512bw,avx512vl")))
static void eight_512(int64_t n, const struct eight *e, enum dtype dt)
{
	BY_TYPE(eight_512_as, dt, n, e);
}

/* Whoever has AVX2 has F16C. */
__attribute__((target("avx2,fma,f16c")))
INLINE __m256 load8(enum dtype dt, const char *p)
{
	return dt == DT_f32 ? _mm256_loadu_ps((const float *)(const void *)p)
	     : dt == DT_f16 ? _mm256_cvtph_ps(_mm_loadu_si128((const void *)p))
	     : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}

__attribute__((target("avx2,fma,f16c")))
INLINE void eight_256_as(int64_t n, struct eight e, enum dtype dt)
{
	int es = dtype_info[dt].bytes;
	for (int64_t i = 0; i < n; i += 8) {
		int m = (int)MIN(8, n - i);
		_Alignas(32) float last[8] = { 0 };
		__m256 s[2];
		if (m == 8) {
			for (int h = 0; h < 2; h++) {
				s[h] = _mm256_mul_ps(_mm256_set1_ps(e.x[4 * h]), load8(dt, e.row[4 * h] + i * es));
				for (int j = 4 * h + 1; j < 4 * h + 4; j++)
					s[h] = _mm256_fmadd_ps(_mm256_set1_ps(e.x[j]), load8(dt, e.row[j] + i * es), s[h]);
			}
			s[0] = _mm256_add_ps(s[0], s[1]);
			if (!e.first)
				s[0] = _mm256_add_ps(_mm256_loadu_ps(e.acc + i), s[0]);
			if (!e.wide) {
				_mm256_storeu_ps(e.acc + i, s[0]);
				continue;
			}
			_mm256_store_ps(last, s[0]);
		} else {
			for (int c = 0; c < m; c++) {
				float t[2];
				for (int h = 0; h < 2; h++) {
					t[h] = e.x[4 * h] * matmul_load(dt, e.row[4 * h] + (i + c) * es);
					for (int j = 4 * h + 1; j < 4 * h + 4; j++)
						t[h] = __builtin_fmaf(e.x[j], matmul_load(dt, e.row[j] + (i + c) * es), t[h]);
				}
				last[c] = t[0] + t[1] + (e.first ? 0 : e.acc[i + c]);
			}
		}
		for (int c = 0; c < m; c++)
			if (e.wide)
				e.wide[i + c] += last[c];
			else
				e.acc[i + c] = last[c];
	}
}

__attribute__((target("avx2,fma,f16c")))
static void eight_256(int64_t n, const struct eight *e, enum dtype dt)
{
	BY_TYPE(eight_256_as, dt, n, *e);
}

static void eight_any(int64_t n, const struct eight *e, enum dtype dt)
{
	if (cpu_get()->avx512)
		eight_512(n, e, dt);
	else if (cpu_get()->avx2)
		eight_256(n, e, dt);
	else
		for (int64_t i = 0; i < n; i++) {
			float s[2] = { 0 };
			for (int j = 0; j < 8; j++)
				s[j / 4] += e->x[j] * matmul_load(dt, e->row[j] + i * dtype_info[dt].bytes);
			s[0] += s[1] + (e->first ? 0 : e->acc[i]);
			if (e->wide)
				e->wide[i] += s[0];
			else
				e->acc[i] = s[0];
		}
}

/* The same of integers, modulo 2^32. */
static void eight_ints(int64_t n, const struct eight *e, enum dtype dt)
{
	if (e->first)
		memset(e->acc, 0, sizeof *e->acc * (size_t)n);
	for (int h = 0; h < 8; h += 4)
		kern_isa_get()->axpy4_int[kern_nat(dt)](n, (const uint32_t *)(const void *)e->x + h, e->row + h, (uint32_t *)(void *)e->acc);
}

enum { DOT_RUN = 512 };       /* so many products add up in f32, and their sums in f64 */

/* The sums of four vectors, each as _mm512_reduce_add_pd adds up. */
__attribute__((target("avx512f,avx512bw,avx512vl")))
INLINE __m128 four_sums(const __m512d *v)
{
	__m512d ab = _mm512_add_pd(_mm512_shuffle_f64x2(v[0], v[1], 0x44), _mm512_shuffle_f64x2(v[0], v[1], 0xee));
	__m512d cd = _mm512_add_pd(_mm512_shuffle_f64x2(v[2], v[3], 0x44), _mm512_shuffle_f64x2(v[2], v[3], 0xee));
	__m512d pairs = _mm512_add_pd(_mm512_shuffle_f64x2(ab, cd, 0x88), _mm512_shuffle_f64x2(ab, cd, 0xdd));
	__m256 twice = _mm512_cvtpd_ps(_mm512_add_pd(pairs, _mm512_permute_pd(pairs, 0x55)));
	return _mm_shuffle_ps(_mm256_castps256_ps128(twice), _mm256_extractf128_ps(twice, 1), 0x88);
}

/* Products of 64 elements, or of those that are left of them, go to 4 vector sums of each column. */
__attribute__((target("avx512f,avx512bw,avx512vl")))
INLINE void dot_step(int64_t at, int64_t left, const float *x, const char *const *col, __m512 (*s)[4], int c, enum dtype dt)
{
#pragma GCC unroll 4
	for (int j = 0; j < 4; j++, at += 16, left -= 16) {
		__mmask16 m = left >= 16 ? 0xffff : left > 0 ? (__mmask16)((1u << left) - 1) : 0;
		__m512 y = _mm512_maskz_loadu_ps(m, x + at);
#pragma GCC unroll 4
		for (int q = 0; q < c; q++)
			s[q][j] = _mm512_fmadd_ps(y, load16(dt, col[q], at, m), s[q][j]);
	}
}

/* Sums of x[i] * col[.][i], c of them, to out. */
__attribute__((target("avx512f,avx512bw,avx512vl")))
INLINE void dot_512_as(int64_t n, const float *x, const char *const *col, float *out, int c, enum dtype dt)
{
	__m512d wide[4];
	for (int q = 0; q < c; q++)
		wide[q] = _mm512_setzero_pd();
	for (int64_t r = 0, end; r < n; r = end) {
		end = MIN(n, r + DOT_RUN);
		__m512 s[4][4];
#pragma GCC unroll 16
		for (int q = 0; q < 4 * c; q++)
			s[q / 4][q % 4] = _mm512_setzero_ps();
		for (; r + 64 <= end; r += 64)
			dot_step(r, 64, x, col, s, c, dt);
		if (r < end)
			dot_step(r, end - r, x, col, s, c, dt);
#pragma GCC unroll 4
		for (int q = 0; q < c; q++) {
			__m512 sum = _mm512_add_ps(_mm512_add_ps(s[q][0], s[q][1]), _mm512_add_ps(s[q][2], s[q][3]));
			__m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(sum)), high = _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(sum), 1)));
			wide[q] = _mm512_add_pd(wide[q], _mm512_add_pd(low, high));
		}
	}
	if (c == 4)
		_mm_storeu_ps(out, four_sums(wide));
	else
		*out = (float)_mm512_reduce_add_pd(wide[0]);
}

#define DOT(c)                                                                                                             \
	__attribute__((target("avx512f,avx512bw,avx512vl")))                                                               \
	static void dots_512_1_##c(int64_t n, const float *const *x, const char *const *col, float *out, int64_t ld, enum dtype dt) \
	{                                                                                                                  \
		BY_TYPE(dot_512_as, dt, n, *x, col, out, c);                                                               \
	}
DOT(1) DOT(4)

/* The same of m rows x, 2 or more, and c columns, each of which is read once: to out[i * ld + j].  A number is the same however many there are: DOTS_RUN
 * products in 16 sums, which add up in f64 as 8. */
enum { DOTS_RUN = 256, DOTS_COLS = 4 };

__attribute__((target("avx512f,avx512bw,avx512vl")))
INLINE void dots_512_as(int64_t n, const float *const *x, const char *const *col, float *out, int64_t ld, int m, int c, enum dtype dt)
{
	__m512d wide[MATMUL_FEW * DOTS_COLS];
#pragma GCC unroll 32
	for (int q = 0; q < m * c; q++)
		wide[q] = _mm512_setzero_pd();
	for (int64_t r = 0; r < n; r += DOTS_RUN) {
		int64_t end = MIN(n, r + DOTS_RUN);
		__m512 sum[MATMUL_FEW * DOTS_COLS];
#pragma GCC unroll 32
		for (int q = 0; q < m * c; q++)
			sum[q] = _mm512_setzero_ps();
		for (int64_t at = r; at < end; at += 16) {
			__mmask16 some = end - at >= 16 ? 0xffff : (__mmask16)((1u << (end - at)) - 1);
			__m512 v[DOTS_COLS];
#pragma GCC unroll 4
			for (int j = 0; j < c; j++)
				v[j] = load16(dt, col[j], at, some);
#pragma GCC unroll 8
			for (int i = 0; i < m; i++) {
				__m512 y = _mm512_maskz_loadu_ps(some, x[i] + at);
#pragma GCC unroll 4
				for (int j = 0; j < c; j++)
					sum[i * c + j] = _mm512_fmadd_ps(y, v[j], sum[i * c + j]);
			}
		}
#pragma GCC unroll 32
		for (int q = 0; q < m * c; q++) {
			__m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(sum[q]), 1));
			wide[q] = _mm512_add_pd(wide[q], _mm512_cvtps_pd(_mm256_add_ps(_mm512_castps512_ps256(sum[q]), high)));
		}
	}
#pragma GCC unroll 32
	for (int q = 0; q < m * c; q++)
		out[q / c * ld + q % c] = (float)_mm512_reduce_add_pd(wide[q]);
}

#define DOTS(m, c)                                                                                                                     \
	__attribute__((target("avx512f,avx512bw,avx512vl")))                                                                           \
	static void dots_512_##m##_##c(int64_t n, const float *const *x, const char *const *col, float *out, int64_t ld, enum dtype dt) \
	{                                                                                                                              \
		BY_TYPE(dots_512_as, dt, n, x, col, out, ld, m, c);                                                                    \
	}
DOTS(2, 1) DOTS(3, 1) DOTS(4, 1) DOTS(5, 1) DOTS(6, 1) DOTS(7, 1) DOTS(8, 1)
DOTS(2, 4) DOTS(3, 4) DOTS(4, 4) DOTS(5, 4) DOTS(6, 2) DOTS(7, 2) DOTS(8, 2)

/* nn columns of r from n0 on, from k0 on, by m rows of n numbers; row i of out has nn. */
static void dots_512(const struct matmul_side *r, const char *base, int64_t n0, int64_t nn, int64_t k0, int64_t n, int64_t m, const float *const *x, float *out)
{
	typedef void dots_fn(int64_t n, const float *const *x, const char *const *col, float *out, int64_t ld, enum dtype dt);
	static const struct { dots_fn *one, *some; int c; } by_rows[MATMUL_FEW + 1] = {
		[1] = { dots_512_1_1, dots_512_1_4, 4 },
		[2] = { dots_512_2_1, dots_512_2_4, 4 }, [3] = { dots_512_3_1, dots_512_3_4, 4 }, [4] = { dots_512_4_1, dots_512_4_4, 4 }, [5] = { dots_512_5_1, dots_512_5_4, 4 },
		[6] = { dots_512_6_1, dots_512_6_2, 2 }, [7] = { dots_512_7_1, dots_512_7_2, 2 }, [8] = { dots_512_8_1, dots_512_8_2, 2 },
	};
	for (int64_t j = 0, c; j < nn; j += c) {
		const char *col[DOTS_COLS];
		c = nn >= by_rows[m].c ? by_rows[m].c : 1;
		j = MIN(j, nn - c);                  /* the last ones with some of those before, which come out as they did */
		for (int64_t q = 0; q < c; q++)
			col[q] = base + (matmul_at(&r->free, n0 + j + q) + k0) * r->es;
		(c > 1 ? by_rows[m].some : by_rows[m].one)(n, x, col, out + j, nn, r->dt);
	}
}

/* The same of bytes, modulo 2^32, where both operands are such.  The instruction multiplies unsigned by signed bytes: if neither is what it wants, one has
 * 128 more or less, and 128 times the sum of the other is taken away again. */
__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
INLINE uint32_t dot_bytes_as(int64_t n, const char *x, const char *row, bool xs, bool rs)
{
	const __m512i top = _mm512_set1_epi8((char)0x80), one = _mm512_set1_epi8(1);
	__m512i c[4] = { _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512() }, more[4] = { c[0], c[0], c[0], c[0] };
	for (int64_t i = 0; i < n; i += 256)
#pragma GCC unroll 4
		for (int j = 0; j < 4; j++) {
			int64_t at = i + 64 * j, left = n - at;
			__mmask64 m = left >= 64 ? ~(__mmask64)0 : left > 0 ? ((__mmask64)1 << left) - 1 : 0;
			__m512i a = _mm512_maskz_loadu_epi8(m, x + at), b = _mm512_maskz_loadu_epi8(m, row + at);
			if (xs != rs) {
				c[j] = xs ? _mm512_dpbusd_epi32(c[j], b, a) : _mm512_dpbusd_epi32(c[j], a, b);
			} else if (rs) {
				c[j] = _mm512_dpbusd_epi32(c[j], _mm512_xor_si512(b, top), a);
				more[j] = _mm512_dpbusd_epi32(more[j], one, a);
			} else {
				c[j] = _mm512_dpbusd_epi32(c[j], b, _mm512_xor_si512(a, top));
				more[j] = _mm512_dpbusd_epi32(more[j], b, one);
			}
		}
	__m512i sum = _mm512_add_epi32(_mm512_add_epi32(c[0], c[1]), _mm512_add_epi32(c[2], c[3]));
	uint32_t rest = (uint32_t)_mm512_reduce_add_epi32(_mm512_add_epi32(_mm512_add_epi32(more[0], more[1]), _mm512_add_epi32(more[2], more[3]))) * 128;
	return (uint32_t)_mm512_reduce_add_epi32(sum) + (rs ? -rest : rest);
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
static uint32_t dot_bytes(int64_t n, const char *x, const char *row, bool xs, bool rs)
{
	return xs ? rs ? dot_bytes_as(n, x, row, true, true) : dot_bytes_as(n, x, row, true, false)
	          : rs ? dot_bytes_as(n, x, row, false, true) : dot_bytes_as(n, x, row, false, false);
}

/* One number of 4 bytes to out. */
static void dot_any(int64_t n, const void *px, const char *row, enum dtype dt, void *out)
{
	const float *x = px;
	if (!matmul_float(dt)) {
		uint32_t r = kern_isa_get()->dot_int[kern_nat(dt)](n, px, row);
		memcpy(out, &r, 4);
		return;
	}
	enum { SUMS = 64 };      /* as many */
	double all[SUMS] = {0};
	float y[SUMS];
	kern_strip *widen = kern_elem(ELEM_convert, dt, DT_f32);
	for (int64_t r = 0; r < n; r += DOT_RUN) {
		float c[SUMS] = {0};
		for (int64_t i = r; i < MIN(n, r + DOT_RUN); i += SUMS) {
			int64_t m = MIN(SUMS, n - i);
			widen(m, y, row + i * dtype_info[dt].bytes, NULL, NULL);
			for (int64_t j = 0; j < m; j++)
				c[j] += x[i + j] * y[j];
		}
		for (int j = 0; j < SUMS; j++)
			all[j] += c[j];
	}
	for (int w = SUMS / 2; w; w /= 2)
		for (int j = 0; j < w; j++)
			all[j] += all[j + w];
	float sum = (float)all[0];
	memcpy(out, &sum, 4);
}

/* Columns n0 .. n0 + nn of kn neighbours each, to kn rows. */
static void turn(const struct matmul_side *r, const char *base, int64_t n0, int64_t nn, int64_t kn, char *out)
{
	int64_t room[MATMUL_PANEL];
	int es = r->es;
	if (r->free.even) {
		kern_isa_get()->transpose[es == 4 ? 2 : es - 1](nn, kn, base + n0 * r->free.step * es, r->free.step, out, nn);
		return;
	}
	for (int64_t n = 0; n < nn; n += MATMUL_PANEL) {
		int64_t m = MIN(MATMUL_PANEL, nn - n);
		const int64_t *f = matmul_some(&r->free, n0 + n, m, room);
		for (int64_t j = 0; j < kn; j++)
			for (int64_t i = 0; i < m; i++)
				memcpy(out + (j * nn + n + i) * es, base + (f[i] + j) * es, (size_t)es);
	}
}

/* Each tile its columns, for all of k: blocks of k, of which each gives one number for an element of the result.  Floats are added up in f64. */
void matmul_run_few(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr, int64_t t0, int64_t t1, void *scratch)
{
	const struct matmul *p = s->priv;
	char *laid = p->lay ? matmul_align(ptr[k->nin + k->nout]) : NULL;
	if (p->lay && phase == 0) {
		p->lay(k, p->lay_arg, ptr, laid, t0, t1, s->tiles);
		return;
	}
	const char *l = p->lay && p->lay_of == p->il ? laid : view_at(k, ptr, p->il), *r = p->lay && p->lay_of == p->ir ? laid : view_at(k, ptr, p->ir);
	bool bytes = p->few == BY_DOTS && p->l.es == 1 && p->r.es == 1 && micro_vnni();      /* both operands stay bytes */
	bool there = (bytes || p->l.es == 4) && p->l.k_unit;     /* lhs is read where it lies */
	bool xs = dtype_info[p->l.dt].cls == DT_INT, rs = dtype_info[p->r.dt].cls == DT_INT;
	bool floats = p->sum == DT_f32;
	kern_strip *as_sum = kern_elem(ELEM_convert, p->l.dt, p->sum);
	char *made = matmul_align(scratch);
	int xes = bytes ? 1 : 4;
	for (int64_t t = t0; t < t1; t++) {
		int64_t b = t / p->nblk, n0 = t % p->nblk * p->nb, nn = MIN(p->nb, p->n - n0), count = p->m * nn;
		const char *lb = l + matmul_at(&p->l.batch, b) * p->l.es, *rb = r + matmul_at(&p->r.batch, b) * p->r.es;
		char *out = view_at(k, ptr, k->nin) + matmul_at(&p->ob, b) * p->oes;
		char *sums = matmul_align(made + (there ? 0 : p->m * p->kc * xes));
		double *wide = p->sum == DT_f32 && p->kc < p->k ? (double *)(void *)sums : NULL;      /* where there are several blocks */
		float *c = (float *)(void *)(sums + (wide ? sizeof *wide * (size_t)count : 0));
		if (wide)
			memset(wide, 0, sizeof *wide * (size_t)count);
		for (int64_t k0 = 0; k0 < p->k; k0 += p->kc) {
			int64_t kn = MIN(p->kc, p->k - k0);
			const char *x[MATMUL_FEW];
			if (p->l_turn)
				kern_isa_get()->transpose[2](kn, p->m, lb + (matmul_at(&p->l.free, 0) + matmul_k(&p->l, k0)) * 4, p->l_turn, made, p->kc);
			for (int64_t i = 0; i < p->m; i++) {
				char *to = made + i * p->kc * xes;
				const char *row = lb + matmul_at(&p->l.free, i) * p->l.es;
				x[i] = there ? row + k0 * xes : to;
				if (there || p->l_turn)
					continue;
				if (p->l.parts == MATMUL_TIMES_I)
					matmul_times_i(&p->l, lb, i, k0, kn, (float *)(void *)to);
				else if (p->l.k_unit)
					as_sum(kn, to, row + k0 * p->l.es, NULL, NULL);
				else if (bytes)
					for (int64_t j = 0; j < kn; j++)
						to[j] = row[matmul_k(&p->l, k0 + j)];
				else
					for (int64_t j = 0; j < kn; j += MATMUL_PANEL) {
						char apart[MATMUL_PANEL * 4];
						int64_t some = MIN(MATMUL_PANEL, kn - j);
						for (int64_t q = 0; q < some; q++)
							memcpy(apart + q * p->l.es, row + matmul_k(&p->l, k0 + j + q) * p->l.es, (size_t)p->l.es);
						as_sum(some, to + j * 4, apart, NULL, NULL);
					}
			}
			if (p->few == BY_DOTS && floats && cpu_get()->avx512) {
				dots_512(&p->r, rb, n0, nn, k0, kn, p->m, (const float *const *)(const void *)x, c);
			} else if (p->few == BY_DOTS) {
				for (int64_t n = 0; n < nn; n++)
					for (int64_t i = 0; i < p->m; i++) {
						uint32_t had = 0, sum;
						if (!floats && k0)
							memcpy(&had, &c[i * nn + n], 4);
						const char *col = rb + (matmul_at(&p->r.free, n0 + n) + k0) * p->r.es;
						if (bytes)
							sum = dot_bytes(kn, x[i], col, xs, rs);
						else
							dot_any(kn, x[i], col, p->r.dt, &sum);
						sum += had;
						memcpy(&c[i * nn + n], &sum, 4);
					}
			} else {
				static const char zero_row[MATMUL_FEW_COLS * 4];
				char *turned = (char *)(c + count);
				if (p->few == BY_TURNED)
					turn(&p->r, rb + k0 * p->r.es, n0, nn, kn, turned);
				for (int64_t j = 0; j < kn; j += 8) {
					const char *row[8], *next[8];
					bool more = p->ahead && p->few == BY_ROWS && k0 + j + 16 <= p->k;
					for (int q = 0; q < 8 && more; q++)
						next[q] = rb + (matmul_k(&p->r, k0 + j + 8 + q) + n0) * p->r.es;
					for (int q = 0; q < 8; q++)
						row[q] = j + q >= kn ? zero_row : p->few == BY_TURNED ? turned + (j + q) * nn * p->r.es : rb + (matmul_k(&p->r, k0 + j + q) + n0) * p->r.es;
					for (int64_t i = 0; i < p->m; i++) {
						float last[8] = { 0 };
						for (int64_t q = 0; q < kn - j && kn - j < 8; q++)
							memcpy(&last[q], x[i] + (j + q) * 4, 4);       /* whatever type the four bytes are of */
						struct eight e = { kn - j < 8 ? last : (const float *)(const void *)x[i] + j, row, more && !i ? next : NULL, c + i * nn, j == 0 && (floats || k0 == 0),
						                   j + 8 >= kn && wide ? wide + i * nn : NULL };
						(floats ? eight_any : eight_ints)(nn, &e, p->r.dt);
					}
				}
			}
			for (int64_t i = 0; i < count && wide && p->few == BY_DOTS; i++)
				wide[i] += c[i];
		}
		if (wide)
			kern_elem(ELEM_convert, DT_f64, DT_f32)(count, c, wide, NULL, NULL);
		matmul_store(p, out, 0, p->m, n0, nn, c, nn);
	}
}
