/* Operands of attention, whatever their types and strides, as dense rows and from those as panels; results back. */
#include "attention.h"
#include "attention_512.h"

#include <immintrin.h>
#include <math.h>

void att_rows_make(const struct att_plan *p, const struct prog_kern *k, int view, struct att_rows *r)
{
	const struct prog_view *v = &k->v[view];
	bool keys = view == ATT_K || view == ATT_V || (p->x.grad && view > k->nin), width = keys || v->rank == p->x.nb + 3;
	int64_t es = dt_bytes(v->dtype);
	const int64_t *st = v->stride + p->x.nb, *dim = v->dim + p->x.nb;
	bool part = view == ATT_Q || (p->x.grad && view == ATT_DO);
	*r = (struct att_rows){ .es = (int)es, .dt = v->dtype, .inner = MAX(keys ? p->x.s : part ? p->x.rows.len : p->x.t, 1) };
	if (keys) {
		r->step = dim[0] == 1 ? 0 : st[0] * es;
	} else {
		r->outer = dim[0] == 1 ? 0 : st[0] * es;
		r->step = dim[1] == 1 ? 0 : st[1] * es;
	}
	r->w = width ? v->dim[v->rank - 1] : 1;
	r->unit = r->w == 1 ? es : v->stride[v->rank - 1] * es;
	enum dtype pack = p->v->es == 2 ? DT_bf16 : DT_f32;
	r->in = v->dtype == pack ? NULL : kern_elem(ELEM_convert, (enum dtype)v->dtype, pack);
	r->out = kern_elem(ELEM_convert, DT_f32, (enum dtype)v->dtype);
}

size_t att_fetch_bytes(const struct att_plan *p)
{
	return (size_t)(ATT_FETCH * 8 * att_pad(MAX(p->x.d, p->x.e), 64));
}

void att_fetch(const struct att_plan *p, const struct att_rows *r, const char *base, int64_t r0, int64_t n, char *out, int64_t ld, char *tmp)
{
	int es = p->v->es, way = r->es == 2 ? 1 : r->es == 4 ? 2 : 3;
	size_t tail = (size_t)((ld - r->w) * es);
	/* where rows are neighbours and their elements are not, a block is turned at a time */
	bool turn = r->step == r->es && r->unit != r->es && r->unit > 0 && r->unit % r->es == 0 && r->es >= 2 && r0 / r->inner == (r0 + n - 1) / r->inner;
	if (turn)
		kern_isa_get()->transpose[way](r->w, n, base + r0 / r->inner * r->outer + r0 % r->inner * r->step, r->unit / r->es, tmp, r->w);
	for (int64_t i = 0; i < n; i++) {
		const char *src = base + (r0 + i) / r->inner * r->outer + (r0 + i) % r->inner * r->step;
		char *to = out + i * ld * es;
		if (turn) {
			src = tmp + i * r->w * r->es;
		} else if (r->unit != r->es && r->in) {
			move_strided(r->es, r->w, tmp, r->es, src, r->unit);
			src = tmp;
		} else if (r->unit != r->es) {
			move_strided(es, r->w, to, es, src, r->unit);
			src = to;
		}
		if (r->in)
			r->in(r->w, to, src, NULL, NULL);
		else if (src != to)
			memcpy(to, src, (size_t)(r->w * es));
		memset(to + r->w * es, 0, tail);
	}
	memset(out + n * ld * es, 0, (size_t)((ATT_FETCH - n) * ld * es));
}

const char *att_take(const struct att_plan *p, const struct att_rows *r, const char *base, int64_t r0, int64_t n, char *dense, int64_t ld, char *tmp,
                     int64_t *ld_bytes)
{
	const char *at = base + r0 / r->inner * r->outer + r0 % r->inner * r->step;
	*ld_bytes = ld * p->v->es;
	/* as much further on is wanted next; who packs nothing asks for it itself */
	if (r->unit == r->es && n == ATT_FETCH && !p->v->few)
		for (int64_t i = ATT_FETCH; i < 2 * ATT_FETCH; i++)
			for (int64_t j = 0; j < r->w * r->es; j += 64)
				__builtin_prefetch((const void *)((uintptr_t)at + (uintptr_t)(i * r->step + j)), 0, 2);
	if (r->in || r->unit != r->es || n != ATT_FETCH || r->w != ld || r0 / r->inner != (r0 + n - 1) / r->inner || r->step % 4 || (uintptr_t)at % 4) {
		att_fetch(p, r, base, r0, n, dense, ld, tmp);
		return dense;
	}
	*ld_bytes = r->step;
	return at;
}

void att_fetch_from(const struct att_plan *p, const struct att_rows *r, const struct prog_kern *k, char *const *ptr, int view, int64_t b, int64_t r0, int64_t n,
                    char *out, int64_t ld, char *tmp)
{
	int64_t i = 0, row, left, some;
	do {                                     /* each part's zeros below are overwritten by the next */
		const char *base = attention_piece(k, ptr, &p->x, view, b, r0 + i, &row, &left);
		some = MIN(n - i, left);
		att_fetch(p, r, base, row, some, out + i * ld * p->v->es, ld, tmp);
	} while ((i += some) < n);
}

int64_t att_dense_rows(const struct att_plan *p) { return p->x.keys.n > 1 || p->x.rows.n > 1 ? 2 * ATT_FETCH : ATT_FETCH; }

const char *att_take_from(const struct att_plan *p, const struct att_rows *r, const struct prog_kern *k, char *const *ptr, int view, int64_t b, int64_t r0, int64_t n,
                          char *dense, int64_t ld, char *tmp, int64_t *ld_bytes)
{
	int64_t row, left;
	const char *base = attention_piece(k, ptr, &p->x, view, b, r0, &row, &left);
	if (n <= left)
		return att_take(p, r, base, row, n, dense, ld, tmp, ld_bytes);
	att_fetch_from(p, r, k, ptr, view, b, r0, n, dense, ld, tmp);
	*ld_bytes = ld * p->v->es;
	return dense;
}

void att_columns(const char *rows, int64_t ld_bytes, int64_t steps, char *panel)
{
	kern_isa_get()->transpose[2](ATT_FETCH, steps, rows, ld_bytes / 4, panel, ATT_COLS);
}

/* Bits of an exponent that says infinity or NaN. */
static unsigned top_of(int es) { return es == 2 ? 0x7f807f80 : 0x7f800000; }

static bool steps_plain(int es, const char *rows, int64_t ld_bytes, int64_t w, char *panel, size_t bytes)
{
	bool bad = false;
	for (int64_t c = 0; c < w; c += ATT_COLS, panel += bytes)
		for (int i = 0; i < ATT_FETCH * es / 4; i++) {
			const uint16_t *even = (const uint16_t *)(const void *)(rows + 2 * i * ld_bytes) + c, *odd = (const uint16_t *)(const void *)(rows + (2 * i + 1) * ld_bytes) + c;
			const uint32_t *row = (const uint32_t *)(const void *)(rows + i * ld_bytes) + c;
			uint32_t *to = (uint32_t *)(void *)(panel + 128 * i), top = top_of(es);
			for (int j = 0; j < ATT_COLS; j++) {
				to[j] = es == 4 ? row[j] : even[j] | (uint32_t)odd[j] << 16;
				bad |= (to[j] & top) == top || (es == 2 && ((to[j] & top & 0xffff) == 0x7f80 || (to[j] & top) >> 16 == 0x7f80));
			}
		}
	return !bad;
}

__attribute__((target("avx512f,avx512bw")))
static bool steps_512(int es, const char *rows, int64_t ld_bytes, int64_t w, char *panel, size_t bytes)
{
	__m512i low = PAIRS_LOW, high = PAIRS_HIGH, top = _mm512_set1_epi32((int)top_of(es));
	__mmask32 bad = 0;
	for (int64_t c = 0; c < w; c += ATT_COLS, panel += bytes)
		for (int i = 0; i < ATT_FETCH * es / 4; i++) {
			char *to = panel + 128 * i;
			if (es == 4) {
				__m512i x = _mm512_loadu_si512(rows + i * ld_bytes + 4 * c), y = _mm512_loadu_si512(rows + i * ld_bytes + 4 * c + 64);
				bad |= _mm512_cmpeq_epi32_mask(_mm512_and_si512(x, top), top) | _mm512_cmpeq_epi32_mask(_mm512_and_si512(y, top), top);
				_mm512_storeu_si512(to, x);
				_mm512_storeu_si512(to + 64, y);
			} else {
				__m512i x = _mm512_loadu_si512(rows + 2 * i * ld_bytes + 2 * c), y = _mm512_loadu_si512(rows + (2 * i + 1) * ld_bytes + 2 * c);
				bad |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, top), top) | _mm512_cmpeq_epi16_mask(_mm512_and_si512(y, top), top);
				_mm512_storeu_si512(to, _mm512_permutex2var_epi16(x, low, y));
				_mm512_storeu_si512(to + 64, _mm512_permutex2var_epi16(x, high, y));
			}
		}
	return !bad;
}

bool att_steps(int es, const char *rows, int64_t ld_bytes, int64_t w, char *panel, size_t bytes)
{
	return (cpu_get()->avx512 ? steps_512 : steps_plain)(es, rows, ld_bytes, w, panel, bytes);
}

/* vcvtneps2bf16 takes subnormals for zero; sums of products, which flush them as they add, are none. */
__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
static void to_bf16_512(int64_t n, const float *x, char *to)
{
	for (int64_t i = 0; i < n; i += 16) {
		__mmask16 some = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : 0xffff;
		_mm256_mask_storeu_epi16(to + 2 * i, some, (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(some, x + i)));
	}
}

void att_add(const struct att_rows *r, const char *base, int64_t row, float *x, char *tmp)
{
	const char *at = base + att_row(r, row);
	char *raw = tmp + (size_t)r->w * sizeof *x;
	if (r->unit != r->es) {
		move_strided(r->es, r->w, raw, r->es, at, r->unit);
		at = raw;
	}
	if (r->dt != DT_f32) {
		kern_elem(ELEM_convert, r->dt, DT_f32)(r->w, tmp, at, NULL, NULL);
		at = tmp;
	}
	for (int64_t i = 0; i < r->w; i++) {
		float was;
		memcpy(&was, at + i * (int64_t)sizeof was, sizeof was);
		x[i] += was;
	}
}

void att_store(const struct att_rows *r, char *base, int64_t row, const float *x, char *tmp)
{
	char *to = base + att_row(r, row);
	if (r->unit == r->es) {
		if (r->dt == DT_f32)
			memcpy(to, x, (size_t)r->w * 4);
		else if (r->dt == DT_bf16 && cpu_get()->avx512_bf16)
			to_bf16_512(r->w, x, to);
		else
			r->out(r->w, to, x, NULL, NULL);
		return;
	}
	r->out(r->w, tmp, x, NULL, NULL);
	move_strided(r->es, r->w, to, r->unit, tmp, r->es);
}

TBF16 void att_store_panels(int64_t n, const float *x, int64_t step, float by, char *to)
{
	for (; n > 0; n--, x += step, to += ATT_COLS * 2)
		_mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(_mm512_load_ps(x + 16), K512(by)), _mm512_mul_ps(_mm512_load_ps(x), K512(by))));
}

__attribute__((target("avx512f,avx512bw,avx512vl")))
static void below_512(int64_t n, const float *x, const char *high, char *to)
{
	for (int64_t i = 0; i < n; i += 16) {
		__mmask16 some = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : 0xffff;
		__m512i h = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, high + 2 * i)), 16);
		__m512i d = _mm512_srai_epi32(_mm512_sub_epi32(_mm512_castps_si512(_mm512_maskz_loadu_ps(some, x + i)), h), 8);
		_mm512_mask_cvtepi32_storeu_epi8(to + i, some, _mm512_min_epi32(d, _mm512_set1_epi32(INT8_MAX)));
	}
}

void att_store_below(const struct att_rows *o, const char *high, const struct att_rows *r, char *base, int64_t row, const float *x)
{
	const char *from = high + att_row(o, row);
	char *to = base + att_row(r, row);
	if (o->unit == 2 && r->unit == 1 && cpu_get()->avx512) {
		below_512(r->w, x, from, to);
		return;
	}
	for (int64_t j = 0; j < r->w; j++) {
		uint16_t h;
		memcpy(&h, from + j * o->unit, sizeof h);
		to[j * r->unit] = (char)att_below(x[j], h);
	}
}

float att_longest(const struct att_plan *p, const char *rows, int64_t n, int64_t ld_bytes)
{
	float most = 0;
	for (int64_t i = 0; i < n; i++, rows += ld_bytes) {
		float sum = 0;
		for (int64_t j = 0; j < p->x.d; j++) {
			float x = p->v->es == 2 ? bf16_to_f32(((const uint16_t *)(const void *)rows)[j]) : ((const float *)(const void *)rows)[j];
			sum += x * x;
		}
		most = sum > most || isnan(sum) ? sum : most;
	}
	return sqrtf(most) * 1.001f + 1e-15f;      /* more than roundings take, and what squares below the least number do */
}

__attribute__((target("avx512f,avx512bw")))
float att_most(const char *x, int64_t n)
{
	const uint16_t *w = (const uint16_t *)(const void *)x;
	uint16_t most = 0;
	for (int64_t i = 0; i < n; i++) {
		uint16_t size = w[i] & 0x7fff;
		most = size > most ? size : most;
	}
	return bf16_to_f32(MIN(most, 0x7f80));
}

__attribute__((target("avx512f,avx512bw")))
static bool not_finite_512(int es, const char *p, int64_t n)
{
	__m512i top = es == 2 ? _mm512_set1_epi16(0x7f80) : _mm512_set1_epi32(0x7f800000);
	__mmask32 any = 0;
	int64_t step = 64 / es, i = 0;
	for (; i + step <= n; i += step) {
		__m512i x = _mm512_and_si512(_mm512_loadu_si512(p + i * es), top);
		any |= es == 2 ? _mm512_cmpeq_epi16_mask(x, top) : _mm512_cmpeq_epi32_mask(x, top);
	}
	return any != 0;
}

bool att_not_finite(int es, const char *p, int64_t n)
{
	int64_t step = 64 / es, i = cpu_get()->avx512 ? n / step * step : 0;
	if (i && not_finite_512(es, p, i))
		return true;
	for (; i < n; i++) {
		uint16_t h;
		uint32_t w;
		memcpy(&h, p + i * es, 2);
		memcpy(&w, p + i * es, es == 2 ? 2 : 4);
		if (es == 2 ? (h & 0x7f80) == 0x7f80 : (w & 0x7f800000) == 0x7f800000)
			return true;
	}
	return false;
}
