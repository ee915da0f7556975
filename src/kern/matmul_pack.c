/* Packing for matmul.c: whatever the order of dimensions, only this sees it.  Positions of a side are offset tables; runs
 * of neighbours are found as they are met, so sides that hold together in pieces (the window of a convolution) move fast as
 * well. */
#include "matmul.h"

#include <immintrin.h>

static inline uint16_t load_bf16(enum dtype dt, const char *p)
{
	uint16_t h;
	if (dt == DT_bf16) {
		memcpy(&h, p, 2);
		return h;
	}
	return f32_to_bf16(matmul_load(dt, p));
}

/* 16 rows of 16 words of 32 bits, transposed: out[j * 16 + i] = in[i][j]. */
__attribute__((target("avx512f")))
static void transpose16_512(const uint32_t *const *in, uint32_t *out)
{
	__m512i r[16], t[16];
	for (int i = 0; i < 16; i++)
		r[i] = _mm512_loadu_si512((const void *)in[i]);
	for (int i = 0; i < 8; i++) {
		t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
		t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
	}
	for (int i = 0; i < 4; i++) {
		r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
		r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
		r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
		r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
	}
	for (int i = 0; i < 4; i++) {
		t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
		t[4 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
		t[8 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
		t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
	}
	for (int i = 0; i < 4; i++) {
		_mm512_storeu_si512((void *)(out + 16 * i), _mm512_shuffle_i32x4(t[i], t[4 + i], 0x88));
		_mm512_storeu_si512((void *)(out + 16 * (4 + i)), _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0x88));
		_mm512_storeu_si512((void *)(out + 16 * (8 + i)), _mm512_shuffle_i32x4(t[i], t[4 + i], 0xdd));
		_mm512_storeu_si512((void *)(out + 16 * (12 + i)), _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0xdd));
	}
}

/* --- packing ---------------------------------------------------------------------- */

/* Where runs of neighbours start among w <= 64 offsets, then w: how many. */
static int segments(const int64_t *o, int w, int *seg)
{
	int n = 0;
	for (int i = 0; i < w; i++)
		if (!i || o[i] != o[i - 1] + 1)
			seg[n++] = i;
	seg[n] = w;
	return n;
}

/* w <= 16 rows of contiguous words of 32 bits become columns of a panel of width pw, 16 words at a time; how many words are done. */
__attribute__((target("avx512f")))
static int64_t turn_512(const int64_t *f, int es, const char *base, int64_t w, int pw, int64_t words, void *out)
{
	int64_t x = 0;
	__mmask16 m = (__mmask16)((1u << w) - 1);
	for (; x + 16 <= words; x += 16) {
		const uint32_t *row[16];
		uint32_t t[256];
		for (int i = 0; i < 16; i++)
			row[i] = (const uint32_t *)(const void *)(base + f[MIN(i, w - 1)] * es + x * 4);
		transpose16_512(row, t);
		for (int j = 0; j < 16; j++)
			_mm512_mask_storeu_epi32((uint32_t *)out + (x + j) * pw, m, _mm512_loadu_si512((const void *)(t + 16 * j)));
	}
	return x;
}

/* 8 rows of 8 words of 64 bits, transposed: row j to out + j * step, the first ones of m. */
__attribute__((target("avx512f")))
static void transpose8_512(const char *const *in, __mmask8 m, char *out, int64_t step)
{
	__m512i r[8], t[8];
	for (int i = 0; i < 8; i++)
		r[i] = _mm512_loadu_si512((const void *)in[i]);
	for (int i = 0; i < 4; i++) {
		t[2 * i] = _mm512_unpacklo_epi64(r[2 * i], r[2 * i + 1]);
		t[2 * i + 1] = _mm512_unpackhi_epi64(r[2 * i], r[2 * i + 1]);
	}
	for (int i = 0; i < 2; i++) {       /* words i, 4 + i and 2 + i, 6 + i of rows 0-3, of rows 4-7 */
		r[i] = _mm512_shuffle_i64x2(t[i], t[2 + i], 0x88);
		r[2 + i] = _mm512_shuffle_i64x2(t[i], t[2 + i], 0xdd);
		r[4 + i] = _mm512_shuffle_i64x2(t[4 + i], t[6 + i], 0x88);
		r[6 + i] = _mm512_shuffle_i64x2(t[4 + i], t[6 + i], 0xdd);
	}
	for (int i = 0; i < 4; i++) {
		_mm512_mask_storeu_epi64(out + i * step, m, _mm512_shuffle_i64x2(r[i], r[4 + i], 0x88));
		_mm512_mask_storeu_epi64(out + (4 + i) * step, m, _mm512_shuffle_i64x2(r[i], r[4 + i], 0xdd));
	}
}

/* Pairs of floats: w / 2 rows of them become columns of a panel. */
static void pack_parts(const struct matmul_side *o, const char *base, const int64_t *f, int w, int pw, int64_t k0, int64_t kn, float *out)
{
	const int64_t *k = o->k + k0;
	bool wide = cpu_get()->avx512;
	for (int64_t x = 0, n; x < kn; x += n) {
		int64_t done = 0;
		n = MIN(32 - (k0 + x) % 32, kn - x);
		for (; wide && n == 32 && o->run[(k0 + x) / 32] && done < n; done += 8)
			for (int i = 0; i < w; i += 16) {
				const char *row[8];
				for (int j = 0; j < 8; j++)
					row[j] = base + (f[MIN(i + 2 * j, w - 2)] + k[x + done]) * 4;
				transpose8_512(row, (__mmask8)((1u << MIN(8, (w - i) / 2)) - 1), (char *)(out + (x + done) * pw + i), pw * 4);
			}
		for (int i = 0; i < w; i += 2)
			for (int64_t y = x + done; y < x + n; y++)
				memcpy(out + y * pw + i, base + (f[i] + k[y]) * 4, 8);
	}
}

void matmul_times_i(const struct matmul_side *o, const char *base, int64_t i, int64_t k0, int64_t kn, float *out)
{
	const char *p = base + matmul_at(&o->free, i & ~(int64_t)1) * 4;
	for (int64_t j = k0 / 2, end = (k0 + kn) / 2, n; j < end; j += n, out += 2 * n) {
		n = MIN(32 - j % 32, end - j);
		bool near = o->k_even ? o->k_step == 2 : n == 32 && o->run[j / 32];
		const float *z = (const float *)(const void *)(p + matmul_k(o, j) * 4);
		for (int64_t x = 0; x < n && near; x++) {
			out[2 * x] = i & 1 ? z[2 * x + 1] : z[2 * x];
			out[2 * x + 1] = i & 1 ? z[2 * x] : -z[2 * x + 1];
		}
		for (int64_t x = 0; x < n && !near; x++) {
			z = (const float *)(const void *)(p + matmul_k(o, j + x) * 4);
			out[2 * x] = z[i & 1];
			out[2 * x + 1] = i & 1 ? z[0] : -z[1];
		}
	}
}

static bool together(const int64_t *o, int64_t n)
{
	for (int64_t i = 1; i < n; i++)
		if (o[i] != o[0] + i)
			return false;
	return true;
}

/* Rows (or columns) i0 .. i0+w-1, k from k0 on for kn, into one panel of width pw. */
static void pack_f32(const struct matmul_side *o, const char *base, int64_t i0, int w, int pw, int64_t k0, int64_t kn, float *out)
{
	int64_t room[MATMUL_PANEL];
	bool wide = cpu_get()->avx512, times_i = o->parts == MATMUL_TIMES_I;
	const int64_t *f = matmul_some(&o->free, i0, w, room), *k = times_i ? NULL : o->k + k0;
	int seg[65], nseg = segments(f, w, seg);
	if (w < pw)
		memset(out, 0, sizeof *out * (size_t)(kn * pw));
	if (!times_i && o->dt == DT_f32 && nseg == 1 && w == 32) {
		for (int64_t x = 0; x < kn; x++)
			memcpy(out + x * pw, base + (f[0] + k[x]) * 4, 32 * sizeof *out);
		return;
	}
	if (!times_i && o->dt == DT_f32 && (nseg == 1 || 4 * nseg <= w)) {
		for (int64_t x = 0; x < kn; x++)
			for (int i = 0; i < nseg; i++)
				memcpy(out + x * pw + seg[i], base + (f[seg[i]] + k[x]) * 4, sizeof *out * (size_t)(seg[i + 1] - seg[i]));
		return;
	}
	if (o->parts == MATMUL_PARTS) {
		pack_parts(o, base, f, w, pw, k0, kn, out);
		return;
	}
	if (!times_i && o->dt == DT_f32) {
		for (int64_t x = 0, n; x < kn; x += n) {
			n = o->k_unit ? kn : MIN(32 - (k0 + x) % 32, kn - x);
			int64_t done = 0;
			bool run = o->k_unit || (n == 32 && o->run[(k0 + x) / 32]);
			int ks[65], nks = run || !wide || n > 64 ? 64 : segments(k + x, (int)n, ks);
			for (int i = 0; i < w && wide && run; i += 16)
				done = turn_512(f + i, 4, base + k[x] * 4, MIN(16, w - i), pw, n, out + x * pw + i);
			for (int i = 0; i < w && !run && n <= 32 && 4 * nks <= n; i += 16) {        /* some runs: side by side first */
				float side[16][32];
				int64_t at[16];
				for (int j = 0; j < MIN(16, w - i); j++) {
					at[j] = 32 * j;
					for (int q = 0; q < nks; q++)
						memcpy(side[j] + ks[q], base + (f[i + j] + k[x + ks[q]]) * 4, sizeof(float) * (size_t)(ks[q + 1] - ks[q]));
				}
				done = turn_512(at, 4, (const char *)side, MIN(16, w - i), pw, n, out + x * pw + i);
			}
			for (int i = 0; i < w; i++)
				for (int64_t y = x + done; y < x + n; y++)
					memcpy(out + y * pw + i, base + (f[i] + k[y]) * 4, 4);
		}
		return;
	}
	kern_strip *widen = kern_elem(ELEM_convert, o->dt, DT_f32);
	if (!times_i && nseg == 1) {
		for (int64_t x = 0; x < kn; x++)
			widen(w, out + x * pw, base + (f[0] + k[x]) * 2, NULL, NULL);
		return;
	}
	if (o->k_unit || times_i) {
		enum { ROWS = 16, RUN = 64 };
		for (int i = 0; i < w; i += ROWS)
			for (int64_t x = 0; x < kn; x += RUN) {
				float side[ROWS][RUN];
				int64_t at[ROWS], n = MIN(RUN, kn - x), rows = MIN(ROWS, w - i);
				for (int j = 0; j < rows; j++) {
					if (times_i)
						matmul_times_i(o, base, i0 + i + j, k0 + x, n, side[j]);
					else
						widen(n, side[j], base + (f[i + j] + k[x]) * 2, NULL, NULL);
					at[j] = RUN * j;
				}
				int64_t done = wide ? turn_512(at, 4, (const char *)side, rows, pw, n, out + x * pw + i) : 0;
				for (int j = 0; j < rows; j++)
					for (int64_t y = done; y < n; y++)
						out[(x + y) * pw + i + j] = side[j][y];
			}
		return;
	}
	for (int i = 0; i < w; i++)
		for (int64_t x = 0; x < kn; x++)
			out[x * pw + i] = matmul_load(o->dt, base + (f[i] + k[x]) * o->es);
}

__attribute__((target("avx512f,avx512bw,avx512vl")))
static void interleave_512(const uint16_t *p, const uint16_t *q, int n, uint16_t *out)
{
	const __m512i lo = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3,
	                                    34, 2, 33, 1, 32, 0);
	int i = 0;
	for (; i + 16 <= n; i += 16) {
		__m512i a = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)(p + i)));
		__m512i b = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)(q + i)));
		_mm512_storeu_si512((void *)(out + 2 * i), _mm512_permutex2var_epi16(a, lo, b));
	}
	for (; i < n; i++) {
		out[2 * i] = p[i];
		out[2 * i + 1] = q[i];
	}
}

static void interleave(const uint16_t *p, const uint16_t *q, int n, uint16_t *out)
{
	if (cpu_get()->avx512) {
		interleave_512(p, q, n, out);
		return;
	}
	for (int i = 0; i < n; i++) {
		out[2 * i] = p[i];
		out[2 * i + 1] = q[i];
	}
}

/* Pairs of rows of 32 columns: those of 16 columns to out, step on for each pair, of the other 16 far from there. */
__attribute__((target("avx512f,avx512bw")))
static void pairs32_512(const int64_t *k, int64_t pairs, const char *base, uint16_t *out, int64_t step, int64_t far)
{
	const __m512i lo = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3,
	                                    34, 2, 33, 1, 32, 0);
	const __m512i hi = _mm512_add_epi16(lo, _mm512_set1_epi16(16));
	for (int64_t i = 0; i < pairs; i++, out += step) {
		__m512i a = _mm512_loadu_si512((const void *)(base + k[2 * i] * 2)), b = _mm512_loadu_si512((const void *)(base + k[2 * i + 1] * 2));
		_mm512_storeu_si512((void *)out, _mm512_permutex2var_epi16(a, lo, b));
		_mm512_storeu_si512((void *)(out + far), _mm512_permutex2var_epi16(a, hi, b));
	}
}

/* Pairs of k side by side: out[k/2][pw][2]; kn odd: the last partner is 0. */
static void pack_pairs(const struct matmul_side *o, const char *base, int64_t i0, int w, int pw, int64_t k0, int64_t kn, int64_t kpad, uint16_t *out)
{
	int64_t room[MATMUL_PANEL];
	const int64_t *f = matmul_some(&o->free, i0, w, room), *k = o->k + k0;
	if (w < pw || kn < kpad)
		memset(out, 0, sizeof *out * (size_t)(kpad * pw));
	int64_t x = 0;
	int seg[65], nseg = segments(f, w, seg);
	bool wide = cpu_get()->avx512;
	if (o->dt == DT_bf16 && wide && nseg == 1 && w == 32 && pw == 32) {
		pairs32_512(k, kn / 2, base + f[0] * 2, out, 64, 32);
		x = kn & ~(int64_t)1;
	} else if (o->dt == DT_bf16 && (nseg == 1 || 4 * nseg <= w)) {
		for (; x + 1 < kn; x += 2)
			for (int i = 0; i < nseg; i++)
				interleave((const uint16_t *)(const void *)(base + (f[seg[i]] + k[x]) * 2), (const uint16_t *)(const void *)(base + (f[seg[i]] + k[x + 1]) * 2),
				           seg[i + 1] - seg[i], out + x * pw + 2 * seg[i]);
	} else if (o->dt == DT_bf16 && o->k_unit) {
		for (int i = 0; i < w; i += 16) {
			int64_t rows = MIN(16, w - i), done = wide ? 2 * turn_512(f + i, 2, base + k[0] * 2, rows, pw, kn / 2, out + 2 * i) : 0;
			for (int j = i; j < i + rows; j++)
				for (int64_t z = done; z + 1 < kn; z += 2)
					memcpy(out + z * pw + 2 * j, base + (f[j] + k[z]) * 2, 4);
		}
		x = kn & ~(int64_t)1;
	}
	for (; x < kn; x++)
		for (int i = 0; i < w; i++)
			out[(x & ~(int64_t)1) * pw + 2 * i + (x & 1)] = load_bf16(o->dt, base + (f[i] + k[x]) * o->es);
}

/* 16 columns of 32 rows of 16-bit words, turned: out[16][32]. */
__attribute__((target("avx512f,avx512bw,avx512vl")))
static void turn32_512(const uint16_t *in, const int64_t *at, uint16_t *out)
{
	uint16_t pair[16][32];
	const uint32_t *row[16];
	for (int i = 0; i < 16; i++) {
		interleave_512(in + at[2 * i], in + at[2 * i + 1], 16, pair[i]);
		row[i] = (const uint32_t *)(const void *)pair[i];
	}
	transpose16_512(row, (uint32_t *)(void *)out);
}

/* 32 rows of 32 k: whole blocks whose rows are contiguous. */
__attribute__((target("avx512f")))
static void rows32_512(const int64_t *f, const char *base, int64_t kn, char *out)
{
	for (int i = 0; i < 32; i++) {
		const char *p = base + f[i] * 2;
		char *q = out + i * 64;
		for (int64_t x = 0; x < kn; x += 32, p += 64, q += 2048)
			_mm512_store_si512((void *)q, _mm512_loadu_si512((const void *)p));
	}
}

/* AMX lhs: blocks of 16 rows of 32 k, [k/32][MR/16][16][32]. */
static void pack_rows(const struct matmul_side *o, const char *base, int64_t i0, int w, int pw, int64_t k0, int64_t kn, int64_t kpad, uint16_t *out)
{
	int64_t room[MATMUL_PANEL];
	const int64_t *f = matmul_some(&o->free, i0, w, room), *k = o->k + k0;
	bool wide = cpu_get()->avx512;
	if (w < pw || kn < kpad)
		memset(out, 0, sizeof *out * (size_t)(kpad * pw));
	if (wide && o->dt == DT_bf16 && o->k_unit && w == 32 && pw == 32 && kn % 32 == 0) {
		rows32_512(f, base + k[0] * 2, kn, (char *)out);
		return;
	}
	bool beside[2] = { together(f, MIN(16, w)), w > 16 && together(f + 16, w - 16) };
	for (int64_t x = 0; x < kn; x += 32) {
		int len = (int)MIN(32, kn - x);
		bool run = o->k_unit || (len == 32 && o->run[(k0 + x) / 32]);
		int ks[33], nks = run ? 1 : segments(k + x, len, ks);
		for (int i = 0; i < w; i++) {
			uint16_t *p = out + x * pw + i * 32;
			if (o->dt == DT_bf16 && run) {
				memcpy(p, base + (f[i] + k[x]) * 2, (size_t)len * 2);
			} else if (wide && o->dt == DT_bf16 && len == 32 && i % 16 == 0 && i + 16 <= w && i < 32 && beside[i / 16]) {
				turn32_512((const uint16_t *)(const void *)(base + f[i] * 2), k + x, p);
				i += 15;
			} else if (o->dt == DT_bf16) {
				for (int q = 0; q < nks; q++)
					memcpy(p + ks[q], base + (f[i] + k[x + ks[q]]) * 2, sizeof *p * (size_t)(ks[q + 1] - ks[q]));
			} else {
				for (int j = 0; j < len; j++)
					p[j] = load_bf16(o->dt, base + (f[i] + k[x + j]) * o->es);
			}
		}
	}
}

/* AMX rhs: [k/32][NR/16][16 pairs][16][2]. */
static void pack_tiles(const struct matmul_side *o, const char *base, int64_t i0, int w, int pw, int64_t k0, int64_t kn, int64_t kpad,
                       uint16_t *out)
{
	int64_t room[MATMUL_PANEL];
	const int64_t *f = matmul_some(&o->free, i0, w, room);
	bool wide = cpu_get()->avx512 && o->dt == DT_bf16 && w == 32 && pw == 32, beside = o->free_unit || together(f, w);
	for (int64_t x = 0; x < kpad; x += 32, out += 32 * pw) {
		int64_t len = MAX(0, MIN(32, kn - x));
		const int64_t *k = o->k + k0 + x;
		if (wide && len == 32 && beside) {
			pairs32_512(k, 16, base + f[0] * 2, out, 32, 512);
			continue;
		}
		if (wide && len == 32 && (o->k_unit || o->run[(k0 + x) / 32])) {
			for (int i = 0; i < 32; i += 16) {
				const uint32_t *row[16];
				for (int j = 0; j < 16; j++)
					row[j] = (const uint32_t *)(const void *)(base + (f[i + j] + k[0]) * 2);
				transpose16_512(row, (uint32_t *)(void *)(out + i * 32));
			}
			continue;
		}
		/* pairs first, then cut into tiles of 16 columns */
		uint16_t tmp[32 * 64];
		pack_pairs(o, base, i0, w, pw, k0 + x, len, 32, tmp);
		for (int c = 0; c < pw; c += 16)
			for (int j = 0; j < 16; j++)
				memcpy(out + (c / 16) * 512 + j * 32, tmp + 2 * j * pw + 2 * c, 64);
	}
}

/* --- i8 ------------------------------------------------------------------------------ */

/* 4 rows of n <= 32 columns of bytes, contiguous, as quads; the last 16 are far from the first. */
__attribute__((target("avx512f,avx512bw,avx512vl")))
static void quads_512(const char *const *row, int n, int8_t *out, size_t far)
{
	__mmask32 m = n < 32 ? (1u << n) - 1 : ~0u;
	__m256i r[4], t[4];
	for (int i = 0; i < 4; i++)
		r[i] = _mm256_maskz_loadu_epi8(m, row[i]);
	t[0] = _mm256_unpacklo_epi8(r[0], r[1]);
	t[1] = _mm256_unpackhi_epi8(r[0], r[1]);
	t[2] = _mm256_unpacklo_epi8(r[2], r[3]);
	t[3] = _mm256_unpackhi_epi8(r[2], r[3]);
	r[0] = _mm256_unpacklo_epi16(t[0], t[2]);      /* columns 0-3, 16-19 */
	r[1] = _mm256_unpackhi_epi16(t[0], t[2]);
	r[2] = _mm256_unpacklo_epi16(t[1], t[3]);
	r[3] = _mm256_unpackhi_epi16(t[1], t[3]);
	_mm256_storeu_si256((void *)out, _mm256_permute2x128_si256(r[0], r[1], 0x20));
	_mm256_storeu_si256((void *)(out + 32), _mm256_permute2x128_si256(r[2], r[3], 0x20));
	_mm256_storeu_si256((void *)(out + far), _mm256_permute2x128_si256(r[0], r[1], 0x31));
	_mm256_storeu_si256((void *)(out + far + 32), _mm256_permute2x128_si256(r[2], r[3], 0x31));
}

/* Quads of k side by side: out[k/4][pw][4]. */
static void pack_quads(const struct matmul_side *o, const char *base, int64_t i0, int w, int pw, int64_t k0, int64_t kn, int64_t kpad, int8_t *out)
{
	int64_t room[MATMUL_PANEL];
	const int64_t *f = matmul_some(&o->free, i0, w, room), *k = o->k + k0;
	int64_t x = 0;
	bool wide = cpu_get()->avx512;
	if (w < pw || kn < kpad)
		memset(out, 0, (size_t)(kpad * pw));
	if (wide && w <= 32 && pw == 32 && together(f, w)) {
		for (; x + 4 <= kn; x += 4) {
			const char *row[4] = { base + f[0] + k[x], base + f[0] + k[x + 1], base + f[0] + k[x + 2], base + f[0] + k[x + 3] };
			quads_512(row, w, out + x * pw, 64);
		}
	} else if (o->k_unit) {
		for (int i = 0; i < w; i += 16) {
			int64_t rows = MIN(16, w - i), done = wide ? 4 * turn_512(f + i, 1, base + k[0], rows, pw, kn / 4, out + 4 * i) : 0;
			for (int j = i; j < i + rows; j++)
				for (int64_t z = done; z + 4 <= kn; z += 4)
					memcpy(out + z * pw + 4 * j, base + f[j] + k[z], 4);
		}
		x = kn & ~(int64_t)3;
	}
	for (; x < kn; x++)
		for (int i = 0; i < w; i++)
			out[x / 4 * 4 * pw + 4 * i + x % 4] = (int8_t)base[f[i] + k[x]];
}

/* AMX: lhs [k/64][MR/16][16][64], rhs [k/64][NR/16][16 quads][16][4]. */
static void pack_bytes(const struct matmul_side *o, const char *base, int64_t i0, int w, int pw, int64_t k0, int64_t kn, int64_t kpad, bool lhs,
                       int8_t *out)
{
	int64_t room[MATMUL_PANEL];
	const int64_t *f = matmul_some(&o->free, i0, w, room);
	bool wide = cpu_get()->avx512 && !lhs && w == 32, beside = wide && together(f, w);
	for (int64_t x = 0; x < kpad; x += 64, out += 64 * pw) {
		int64_t len = MAX(0, MIN(64, kn - x));
		int8_t quads[64 * 64];
		const int64_t *k = o->k + k0 + x;
		if (beside && len == 64) {
			for (int q = 0; q < 16; q++) {
				const char *p = base + f[0], *row[4] = { p + k[4 * q], p + k[4 * q + 1], p + k[4 * q + 2], p + k[4 * q + 3] };
				quads_512(row, 32, out + 64 * q, 1024);
			}
			continue;
		}
		if (wide && len == 64 && o->k_unit) {
			for (int i = 0; i < 32; i += 16) {
				const uint32_t *row[16];
				for (int j = 0; j < 16; j++)
					row[j] = (const uint32_t *)(const void *)(base + f[i + j] + k[0]);
				transpose16_512(row, (uint32_t *)(void *)(out + i * 64));
			}
			continue;
		}
		if (lhs && o->k_unit) {
			if (w < pw || len < 64)
				memset(out, 0, (size_t)(64 * pw));
			for (int i = 0; i < w; i++)
				memcpy(out + i * 64, base + f[i] + o->k[k0 + x], (size_t)len);
			continue;
		}
		pack_quads(o, base, i0, w, pw, k0 + x, len, 64, quads);
		for (int c = 0; c < pw; c += 16)
			for (int j = 0; j < 16; j++) {
				if (!lhs)
					memcpy(out + c / 16 * 1024 + j * 64, quads + (4 * j) * pw + 4 * c, 64);
				for (int i = 0; i < 16 && lhs; i++)
					memcpy(out + (c + i) * 64 + 4 * j, quads + (4 * j) * pw + 4 * (c + i), 4);
			}
	}
}

/* A part of k that begins where the table does: true if there is more of it than the table has. */
static bool from_first(const struct matmul_side *o, const char **base, int64_t *k0, int64_t kn)
{
	if (!o->k_even)
		return false;
	*base += (o->parts == MATMUL_TIMES_I ? *k0 / 2 : *k0) * o->k_step * o->es;
	*k0 = 0;
	return kn > MATMUL_K;
}

/* The same panel in parts of whole steps. */
static void in_parts(matmul_pack *pack, const struct matmul_variant *v, const struct matmul_side *o, const char *base, int64_t i0, int w, int width,
                     int64_t kn, char *out)
{
	for (int64_t x = 0; x < kn; x += MATMUL_K)
		pack(v, o, base, i0, w, x, MIN(MATMUL_K, kn - x), out + (size_t)(x * width) * (size_t)v->es);
}

/* 128 is added to n bytes, a multiple of 16. */
static void unsign(int64_t n, char *x)
{
	typedef uint64_t some __attribute__((vector_size(16)));
	for (int64_t i = 0; i < n; i += (int64_t)sizeof(some)) {
		some y;
		memcpy(&y, x + i, sizeof y);
		y ^= 0x8080808080808080u;
		memcpy(x + i, &y, sizeof y);
	}
}

void matmul_pack_lhs(const struct matmul_variant *v, const struct matmul_side *o, const char *base, int64_t i0, int w, int64_t k0, int64_t kn,
                     char *out)
{
	if (from_first(o, &base, &k0, kn)) {
		in_parts(matmul_pack_lhs, v, o, base, i0, w, v->mr, kn, out);
		return;
	}
	int64_t kp = (kn + v->kstep - 1) / v->kstep * v->kstep;
	if (v->es == 1 && v->tiles)
		pack_bytes(o, base, i0, w, v->mr, k0, kn, kp, true, (int8_t *)out);
	else if (v->es == 1) {
		pack_quads(o, base, i0, w, v->mr, k0, kn, kp, (int8_t *)out);
		unsign(kp * v->mr, out);
	} else if (v->tiles)
		pack_rows(o, base, i0, w, v->mr, k0, kn, kp, (uint16_t *)(void *)out);
	else if (v->es == 2)
		pack_pairs(o, base, i0, w, v->mr, k0, kn, kp, (uint16_t *)(void *)out);
	else
		pack_f32(o, base, i0, w, v->mr, k0, kn, (float *)(void *)out);
}

void matmul_pack_rhs(const struct matmul_variant *v, const struct matmul_side *o, const char *base, int64_t j0, int w, int64_t k0, int64_t kn,
                     char *out)
{
	if (from_first(o, &base, &k0, kn)) {
		in_parts(matmul_pack_rhs, v, o, base, j0, w, v->nr, kn, out);
		return;
	}
	int64_t kp = (kn + v->kstep - 1) / v->kstep * v->kstep;
	if (v->es == 1 && v->tiles)
		pack_bytes(o, base, j0, w, v->nr, k0, kn, kp, false, (int8_t *)out);
	else if (v->es == 1)
		pack_quads(o, base, j0, w, v->nr, k0, kn, kp, (int8_t *)out);
	else if (v->tiles)
		pack_tiles(o, base, j0, w, v->nr, k0, kn, kp, (uint16_t *)(void *)out);
	else if (v->es == 2)
		pack_pairs(o, base, j0, w, v->nr, k0, kn, kp, (uint16_t *)(void *)out);
	else
		pack_f32(o, base, j0, w, v->nr, k0, kn, (float *)(void *)out);
}

/* 32 rows of n columns, contiguous, as tiles of pairs, panels bytes apart; row by row, as memory is read fastest.  What lies so many bytes ahead
 * is fetched meanwhile. */
__attribute__((target("avx512f,avx512bw")))
static void slab32_512(const int64_t *k, const char *base, int64_t n, uint16_t *out, size_t bytes, int64_t ahead)
{
	const __m512i lo = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3,
	                                    34, 2, 33, 1, 32, 0);
	const __m512i hi = _mm512_add_epi16(lo, _mm512_set1_epi16(16));
	for (int i = 0; i < 16; i++, out += 32) {
		const char *x = base + k[2 * i] * 2, *y = base + k[2 * i + 1] * 2;
		char *q = (char *)out;
		for (int64_t j = 0; j < n; j += 32, q += bytes) {
			__m512i a = _mm512_loadu_si512((const void *)(x + 2 * j)), b = _mm512_loadu_si512((const void *)(y + 2 * j));
			if (ahead) {
				_mm_prefetch(x + 2 * j + ahead, _MM_HINT_T1);
				_mm_prefetch(y + 2 * j + ahead, _MM_HINT_T1);
			}
			_mm512_store_si512((void *)q, _mm512_permutex2var_epi16(a, lo, b));
			_mm512_store_si512((void *)(q + 1024), _mm512_permutex2var_epi16(a, hi, b));
		}
	}
}

/* The same of i8: 64 rows. */
static void slab64_512(const int64_t *k, const char *base, int64_t n, int8_t *out, size_t bytes)
{
	for (int q = 0; q < 16; q++)
		for (int64_t j = 0; j < n; j += 32) {
			const char *p = base + j, *row[4] = { p + k[4 * q], p + k[4 * q + 1], p + k[4 * q + 2], p + k[4 * q + 3] };
			quads_512(row, 32, out + 64 * q + (size_t)(j / 32) * bytes, 1024);
		}
}

void matmul_pack_slab(const struct matmul_variant *v, const struct matmul_side *o, const char *base, int64_t n0, int64_t nn, int64_t k0, int64_t kn,
                      bool more, char *out, size_t bytes)
{
	int64_t ahead = more ? (matmul_k(o, k0 + kn) - matmul_k(o, k0)) * o->es : 0;
	from_first(o, &base, &k0, kn);       /* a slab is short */
	if (v->tiles && v->es == 2 && v->nr == 32 && kn % 32 == 0 && nn % 32 == 0 && o->dt == DT_bf16 && o->free_unit && cpu_get()->avx512) {
		for (int64_t y = 0; y < kn; y += 32)
			slab32_512(o->k + k0 + y, base + matmul_at(&o->free, n0) * 2, nn, (uint16_t *)(void *)(out + y * 64), bytes, ahead);
		return;
	}
	if (v->tiles && v->es == 1 && kn % 64 == 0 && nn % 32 == 0 && o->free_unit && cpu_get()->avx512) {
		for (int64_t y = 0; y < kn; y += 64)
			slab64_512(o->k + k0 + y, base + matmul_at(&o->free, n0), nn, (int8_t *)(out + y * 32), bytes);
		return;
	}
	for (int64_t j = 0; j < nn; j += v->nr)
		matmul_pack_rhs(v, o, base, n0 + j, (int)MIN(v->nr, nn - j), k0, kn, out + (size_t)(j / v->nr) * bytes);
}
