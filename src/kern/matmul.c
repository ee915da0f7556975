/* Matrix products: packing, blocking, and the choice of a micro-kernel.
 *
 * As in Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008): a tile of the grid owns a
 * block of columns and packs its part of rhs into panels of NR columns that stay in L2 (where several tiles share the
 * columns, phase 0 packs rhs for all); panels of MR rows of lhs are packed as they are needed and stay near while all
 * columns pass by.  A lhs that is dear to pack, or would be packed many times, is packed once, in phase 0; the
 * micro-kernel has the next panel fetched while it works on one, since memory beyond L2 is slow (measured: 30 GB/s
 * for each core, whether read or first written, of 180 from L2) and not waiting for it is most of what can be won.  Whatever the order of dimensions,
 * only packing sees it: rows, columns, contraction and batch are offset tables.  An element's sum runs over k in order,
 * in blocks that depend on the shape only, so bits do not depend on tiles or threads; chains of f32 are short (matmul_plan.c), since
 * roundings add up along them, and sums of blocks go through levels (SUM_RADIX), so that a long contraction is as exact as a short one.  What would take more than MATMUL_PACK_MOST packed is not
 * packed as a whole: a tile packs rows for its own columns, some thousands of them.
 *
 * Complex products are such of floats (enum matmul_parts).  Where few numbers stand beside many whose parts lie along the contraction, the many are
 * read where they lie, and the few are packed twice, the second time times i.  Else parts are rows and columns of their own, packed as the pairs that
 * they are, and put together where the result is stored: nothing is taken apart first.
 *
 * Packing must be paid for by many products; where there are few, an operand is read where it lies, if its type and order allow it:
 *   few rows (decode): bound by reading rhs, of which a slab of rows is taken at a time, packed in L1 or as it lies (in_place);
 *   few columns, or few rows by columns that are rows in memory: numbers of the long operand are broadcast from where they are (tall);
 *   very few rows: matmul_run_few. */
#include "matmul_impl.h"

#include <immintrin.h>
#include <stdlib.h>

/* A panel of an operand: w of its `width` positions from i0 on.  What other cores will read is made near and copied, since they may have read what was
 * there before (copy.c): in pieces of as many steps as fit. */
static void pack_panel(const struct matmul *p, matmul_pack *pack, const struct matmul_side *o, const char *base, int64_t i0, int w, int width, int64_t k0,
                       int64_t kn, char *out, bool shared)
{
	enum { PIECE = 16 << 10 };
	char piece[PIECE] __attribute__((aligned(64)));
	int64_t es = (int64_t)matmul_es(p), most = PIECE / (width * es) / p->v->kstep * p->v->kstep;
	if (!shared) {
		pack(p->v, o, base, i0, w, k0, kn, out);
		return;
	}
	for (int64_t x = 0; x < kn; x += most) {
		int64_t some = MIN(most, kn - x);
		pack(p->v, o, base, i0, w, k0 + x, some, piece);
		copy_shared(COPY_PACKED, out + x * width * es, piece, (size_t)(matmul_pad(some, p->v->kstep) * width * es));
	}
}

/* lhs panel number i of batch b, k0 .. k0 + kn. */
static void pack_lhs(const struct matmul *p, const char *base, int64_t b, int64_t i, int64_t k0, int64_t kn, char *out, bool shared)
{
	int64_t i0 = i * p->v->mr;
	pack_panel(p, matmul_pack_lhs, &p->l, base + matmul_at(&p->l.batch, b) * p->l.es, i0, (int)MIN(p->v->mr, p->m - i0), p->v->mr, k0, kn, out, shared);
}

/* Columns n0 .. n0 + nn, k0 .. k0 + kn of rhs, panels bytes apart.  Of rows some at a time, of which panels are made while the next are fetched,
 * row by row, as memory is read fastest. */
static void pack_block(const struct matmul *p, const char *base, int64_t n0, int64_t nn, int64_t k0, int64_t kn, char *out, size_t bytes, bool shared)
{
	const struct matmul_variant *v = p->v;
	int64_t least = MAX(MATMUL_SLAB, v->kstep), slab = shared ? MAX(least, COPY_LEAST / (v->nr * (int64_t)matmul_es(p))) : least;
	int64_t step = p->r.free_unit && kn > slab ? slab : kn, panels = (nn + v->nr - 1) / v->nr;
	for (int64_t x = 0; x < kn; x += step) {
		int64_t next = MIN(step, kn - x - step), each = (next + panels - 1) / panels;
		for (int64_t j = 0; j < panels; j++) {
			for (int64_t r = j * each; r < MIN(next, (j + 1) * each); r++) {
				const char *row = base + (matmul_k(&p->r, k0 + x + step + r) + matmul_at(&p->r.free, n0)) * p->r.es;
				for (int64_t at = 0; at < nn * p->r.es; at += 64)
					_mm_prefetch(row + at, _MM_HINT_T1);
			}
			pack_panel(p, matmul_pack_rhs, &p->r, base, n0 + j * v->nr, (int)MIN(v->nr, nn - j * v->nr), v->nr, k0 + x, MIN(step, kn - x),
			           out + (size_t)j * bytes + (size_t)(x * v->nr) * matmul_es(p), shared);
		}
	}
}

/* --- results -------------------------------------------------------------------------- */

/* vcvtneps2bf16 takes subnormals for zero; sums of products, which flush them as they add, are none. */
__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
static void to_bf16_512(int64_t n, const float *c, uint16_t *out)
{
	int64_t i = 0;
	for (; i + 16 <= n; i += 16)
		_mm256_storeu_si256((void *)(out + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(c + i)));
	for (; i < n; i++)
		out[i] = f32_to_bf16(c[i]);
}

/* 32 columns of rows whose offsets are om. */
__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
static void rows_bf16_512(int64_t rows, const float *c, int64_t ldc, const int64_t *om, char *out)
{
	for (int64_t i = 0; i < rows; i++, c += ldc)
		_mm512_storeu_si512((void *)(out + om[i] * 2), (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(c + 16), _mm512_loadu_ps(c)));
}

static void store_apart(const struct matmul *p, int64_t n, char *out, const int64_t *at, const float *c)
{
	for (int64_t j = 0; j < n; j++) {
		char *z = out + at[j] * p->oes;
		if (p->oes == 4) {
			memcpy(z, &c[j], 4);
		} else if (p->sum == DT_i32) {     /* the low bytes */
			memcpy(z, &c[j], (size_t)p->oes);
		} else {
			uint16_t h = p->out == DT_bf16 ? f32_to_bf16(c[j]) : f32_to_f16(c[j]);
			memcpy(z, &h, 2);
		}
	}
}

/* Rows of n floats, which are parts in turn: y times i is added to x. */
__attribute__((target("avx512f")))
static void add_i_512(int64_t n, float *x, const float *y)
{
	for (int64_t j = 0; j < n; j += 16) {
		__mmask16 m = n - j >= 16 ? 0xffff : (__mmask16)((1u << (n - j)) - 1);
		__m512 turned = _mm512_permute_ps(_mm512_maskz_loadu_ps(m, y + j), 0xb1), sum = _mm512_maskz_loadu_ps(m, x + j);
		_mm512_mask_storeu_ps(x + j, m, _mm512_mask_sub_ps(_mm512_add_ps(sum, turned), 0x5555, sum, turned));
	}
}

static void add_i(int64_t n, float *x, const float *y)
{
	if (cpu_get()->avx512) {
		add_i_512(n, x, y);
		return;
	}
	for (int64_t j = 0; j < n; j += 2) {
		x[j] -= y[j + 1];
		x[j + 1] += y[j];
	}
}

void matmul_store(const struct matmul *p, char *out, int64_t m0, int64_t mn, int64_t n0, int64_t nn, float *c, int64_t ldc)
{
	int64_t room[MATMUL_PANEL], place[MATMUL_PANEL], step = p->l.parts == MATMUL_PARTS ? 2 : 1;
	const int64_t *om = matmul_some(&p->om, m0, mn, room);
	bool dense = p->on_unit;
	for (int64_t i = 0; i < mn && step == 2; i += 2)
		add_i(nn, c + i * ldc, c + (i + 1) * ldc);
	kern_strip *narrow = dense && p->oes < 4 && !(p->out == DT_bf16 && cpu_get()->avx512_bf16) ? kern_elem(ELEM_convert, p->sum, p->out) : NULL;
	if (dense && p->out == DT_bf16 && nn == 32 && cpu_get()->avx512_bf16) {
		rows_bf16_512(mn, c, ldc, om, out + n0 * 2);
		return;
	}
	for (int64_t i = 0; i < mn && dense; i += step) {
		char *q = out + (om[i] + n0) * p->oes;
		const float *s = c + i * ldc;
		if (p->oes == 4)
			memcpy(q, s, (size_t)nn * 4);
		else if (narrow)
			narrow(nn, q, s, NULL, NULL);
		else
			to_bf16_512(nn, s, (uint16_t *)q);
	}
	for (int64_t j = 0; j < nn && !dense; j += MATMUL_PANEL) {
		int64_t some = MIN(MATMUL_PANEL, nn - j);
		const int64_t *on = matmul_some(&p->on, n0 + j, some, place);
		for (int64_t i = 0; i < mn; i += step)
			store_apart(p, some, out + om[i] * p->oes, on, c + i * ldc + j);
	}
}

/* --- the packed product ------------------------------------------------------------------ */

/* Part t of n pieces of work: from *lo to *hi. */
static void part(int64_t n, int64_t tiles, int64_t t0, int64_t t1, int64_t *lo, int64_t *hi)
{
	*lo = n * t0 / tiles;
	*hi = n * t1 / tiles;
}

/* Phase 0: all of lhs, unless lazy; all of rhs, if shared. */
static void pack_all(const struct matmul *p, int64_t tiles, const char *l, const char *r, char *packed, int64_t t0, int64_t t1)
{
	int64_t lo, hi, panels = p->lazy ? 0 : p->b * p->npanel;
	part(panels, tiles, t0, t1, &lo, &hi);
	for (int64_t i = lo; i < hi; i++)
		pack_lhs(p, l, i / p->npanel, i % p->npanel, 0, p->k, packed + (size_t)i * p->panel, true);
	packed += (size_t)panels * p->panel;
	if (!p->share_rhs)
		return;
	/* pieces of some panels: as wide as a tile's block at most */
	int64_t per = MAX(1, MIN(p->nb / p->v->nr, p->b * p->npanel_r / tiles)), pieces = (p->npanel_r + per - 1) / per;
	part(p->b * pieces, tiles, t0, t1, &lo, &hi);
	for (int64_t i = lo; i < hi; i++) {
		int64_t b = i / pieces, j = i % pieces * per, n0 = j * p->v->nr;
		pack_block(p, r + matmul_at(&p->r.batch, b) * p->r.es, n0, MIN(per * p->v->nr, p->n - n0), 0, p->k,
		           packed + (size_t)(b * p->npanel_r + j) * p->rpanel, p->rpanel, true);
	}
}

/* Where panel i of lhs lies packed by phase 0, from k0 on. */
static const char *lhs_panel(const struct matmul *p, const char *packed, int64_t b, int64_t i, int64_t k0)
{
	return packed + ((size_t)b * (size_t)p->npanel + (size_t)i) * p->panel + (size_t)(k0 * p->v->mr) * matmul_es(p);
}

/* What the next panel of lhs is made from, or the panel itself, for the micro-kernel to fetch while nj panels of rhs pass by. */
static struct matmul_ahead ahead_of(const struct matmul *p, const char *l, const char *packed, int64_t b, int64_t i, int64_t k0, int64_t kn, int64_t nj)
{
	const struct matmul_variant *v = p->v;
	struct matmul_ahead h = { .rows = (int)((v->mr + nj - 1) / nj), .lines = kn };
	if (p->lazy ? !v->tiles || !p->l_step : !v->tiles && !p->next)
		return (struct matmul_ahead){ 0 };
	if (p->lazy) {
		h.row = l + (matmul_at(&p->l.batch, b) + matmul_at(&p->l.free, i * v->mr) + matmul_k(&p->l, k0)) * p->l.es;
		h.stride = p->l_step * p->l.es;
		return h;
	}
	h.row = lhs_panel(p, packed, b, i, k0);
	if (v->tiles) {
		h.stride = matmul_pad(kn, v->kstep) / v->kstep * 64;
		return h;
	}
	int64_t steps = matmul_pad(kn, v->kstep) / v->kstep, each = MAX(1, (steps * v->kstep * v->mr * (int64_t)matmul_es(p) / 64 + nj - 1) / nj);
	h.rows = (int)((each + steps - 1) / steps);
	h.lines = (each + h.rows - 1) / h.rows;
	h.stride = h.lines * 64;
	return h;
}

/* One launch of matmul_run_packed: where things lie. */
struct at {
	const char *l, *rb;              /* lhs; rhs of this batch */
	char *out;                       /* of this batch */
	const char *packed, *shared_rhs; /* what phase 0 has made */
	char *abuf, *bbuf;               /* this thread's panels */
	float *cbuf, *sums;              /* what is being added to; the levels of long sums */
	int64_t b, m0, mn, n0, nn, ni;   /* the tile; ni: its panels of rows */
	int64_t had_b, had_n, had_o;     /* block of rhs that is packed */
};

/* Where in sums those of row panel i and the nj panels of columns from column c0 of the tile on begin. */
static float *sums_at(const struct matmul *p, const struct at *w, float *sums, int64_t c0, int64_t i, int64_t nj)
{
	return sums + (p->slab || p->ko < p->k ? (c0 / p->v->nr * w->ni + i * nj) * (int64_t)(p->v->mr * p->v->nr) : 0);
}

static void store_panels(const struct matmul *p, const struct at *w, int64_t c0, int64_t cn)
{
	const struct matmul_variant *v = p->v;
	int64_t nj = (cn + v->nr - 1) / v->nr;
	for (int64_t i = 0; i < w->ni; i++)
		for (int64_t j = 0; j < nj; j++)
			matmul_store(p, w->out, w->m0 + i * v->mr, MIN(v->mr, w->mn - i * v->mr), w->n0 + c0 + j * v->nr, MIN(v->nr, cn - j * v->nr),
			      sums_at(p, w, w->sums, c0, i, nj) + j * v->mr * v->nr, v->nr);
}

/* Does block o of the contraction begin a sum? */
static bool begins(const struct matmul *p, int64_t o)
{
	return p->levels == 1 ? o == 0 : p->apart ? o % p->run == 0 : sum_starts(o);
}

/* The part q of rows from i0 on, and of k from k0 on for kn, with lhs read where it lies: rows that are as far apart, and runs of k, together. */
static void multiply_tall(const struct matmul *p, const struct at *w, int64_t i0, int64_t rows, int64_t k0, int64_t kn, const struct matmul_part *q)
{
	const struct matmul_variant *v = p->v;
	int64_t room[MATMUL_PANEL];
	const int64_t *f = matmul_some(&p->l.free, i0, rows, room);
	const char *l = w->l + matmul_at(&p->l.batch, w->b) * p->l.es;
	for (int64_t i = 0, m; i < rows; i += m) {
		int64_t step = i + 1 < rows ? f[i + 1] - f[i] : 0;
		for (m = 1; i + m < rows && f[i + m] == f[i] + m * step; m++) { }
		struct matmul_part t = *q;
		t.lda = step * p->l.es;
		t.rows = (int)m;
		t.c += i * v->nr;
		for (int64_t x = 0, n; x < kn; x += n) {
			n = MIN(kn - x, p->together - (k0 + x) % p->together);
			t.steps = n / v->kstep;
			t.a = l + (f[i] + matmul_k(&p->l, k0 + x)) * p->l.es;
			v->tall(&t);
			t.b += (size_t)(n * v->nr) * matmul_es(p);
			t.add = true;
		}
	}
}

/* Add to the tile's columns c0 .. c0 + cn what o0 .. o0 + on of the contraction give. */
static void multiply(const struct matmul *p, struct at *w, int64_t c0, int64_t cn, int64_t o0, int64_t on)
{
	const struct matmul_variant *v = p->v;
	size_t es = matmul_es(p), bp = (size_t)(matmul_pad(on, v->kstep) * v->nr) * es;
	int64_t block = (int64_t)v->mr * v->nr, n0 = w->n0 + c0, nj = (cn + v->nr - 1) / v->nr;
	const char *rp = w->bbuf;
	if (p->share_rhs) {
		bp = p->rpanel;
		rp = w->shared_rhs + (size_t)(w->b * p->npanel_r + n0 / v->nr) * bp + (size_t)(o0 * v->nr) * es;
	} else if (w->b != w->had_b || n0 != w->had_n || o0 != w->had_o) {
		pack_block(p, w->rb, n0, cn, o0, on, w->bbuf, bp, false);
		w->had_b = w->b;
		w->had_n = n0;
		w->had_o = o0;
	}
	for (int64_t i = 0; i < w->ni; i++) {
		int64_t rows = MIN(v->mr, w->mn - i * v->mr), row = w->m0 / v->mr + i;
		float *c = sums_at(p, w, w->cbuf, c0, i, nj);
		for (int64_t x = 0; x < on; x += p->kc) {
			int64_t kn = MIN(p->kc, on - x), steps = matmul_pad(kn, v->kstep) / v->kstep;
			bool add = x > 0 || !begins(p, o0 / p->ko), last = o0 + x + kn == p->k && p->levels == 1;
			for (int64_t j = 0; j < nj && p->tall; j++) {
				struct matmul_part q = { .chain = p->chain, .b = rp + j * bp + (size_t)(x * v->nr) * es, .c = c + (p->kc < p->k ? j * block : 0), .add = add,
				                         .cols = (int)MIN(v->nr, cn - j * v->nr) };
				multiply_tall(p, w, row * v->mr, rows, o0 + x, kn, &q);
				if (last)
					matmul_store(p, w->out, w->m0 + i * v->mr, rows, n0 + j * v->nr, q.cols, q.c, v->nr);
			}
			if (p->tall)
				continue;
			const char *a = lhs_panel(p, w->packed, w->b, row, o0 + x);
			if (p->lazy) {
				char *made = w->abuf + (p->keep ? (size_t)i * p->apanel + (size_t)(x * v->mr) * es : 0);
				if (!p->keep || c0 == 0)
					pack_lhs(p, w->l, w->b, row, o0 + x, kn, made, false);
				a = made;
			}
			/* one part, of which some fields change: a copy of it would be read wider than it was just written, and wait for all stores before */
			struct matmul_part q = { .steps = steps, .chain = p->chain, .a = a, .b = rp + (size_t)(x * v->nr) * es, .c = c, .add = add, .rows = (int)rows };
			if (x + kn < on)
				q.next = ahead_of(p, w->l, w->packed, w->b, row, o0 + x + kn, MIN(p->kc, on - x - kn), nj);
			else if (i + 1 < w->ni)
				q.next = ahead_of(p, w->l, w->packed, w->b, row + 1, o0, MIN(p->kc, on), nj);
			for (int64_t j = 0; j < nj; j++, q.b += bp, q.c += p->kc < p->k ? block : 0) {
				q.cols = (int)MIN(v->nr, cn - j * v->nr);
				v->micro(&q);
				if (last)
					matmul_store(p, w->out, w->m0 + i * v->mr, rows, n0 + j * v->nr, q.cols, q.c, v->nr);
				q.next.row += q.next.stride * q.next.rows;
			}
		}
	}
}

/* Few rows: a slab of rows of rhs at a time, all of lhs with each.  Whole panels of it are read where they lie, if in_place, and row by row, as
 * memory is read fastest, the next slab is fetched meanwhile.  Their lines often share a place in L1: what several panels of lhs meet is kept. */
static void multiply_slabs(const struct matmul *p, struct at *w, int64_t o0, int64_t on)
{
	const struct matmul_variant *v = p->v;
	int64_t block = (int64_t)v->mr * v->nr, nj = (w->nn + v->nr - 1) / v->nr, there = p->in_place ? w->nn / v->nr : 0;
	for (int64_t x = o0; x < o0 + on; x += p->kc) {
		int64_t kn = MIN(p->kc, o0 + on - x), steps = matmul_pad(kn, v->kstep) / v->kstep, next = MIN(p->kc, p->k - x - kn), each = (next + nj - 1) / nj;
		size_t bp = (size_t)(matmul_pad(kn, v->kstep) * v->nr) * matmul_es(p);
		bool add = x > o0 || !begins(p, o0 / p->ko);
		const char *row = w->rb + (matmul_k(&p->r, x) + w->n0) * p->r.es;
		int64_t j = 0;
		if (p->along && kn == MATMUL_ALONG && there) {
			const char *a = lhs_panel(p, w->packed, w->b, 0, x);
			v->along(&(struct matmul_part){ .a = a, .b = row, .ldb = p->ldb, .c = w->cbuf, .add = add, .rows = (int)w->mn, .panels = (int)there });
			j = there;
		}
		if (there < nj)
			matmul_pack_slab(v, &p->r, w->rb, w->n0 + there * v->nr, w->nn - there * v->nr, x, kn, next == kn, w->bbuf, bp);
		for (; j < nj; j++) {
			struct matmul_part part = { .steps = steps, .chain = p->chain, .ldb = p->ldb, .add = add, .cols = (int)MIN(v->nr, w->nn - j * v->nr) };
			part.b = j < there ? row + j * v->nr * p->r.es : w->bbuf + (size_t)(j - there) * bp;
			if (there)
				part.next = (struct matmul_ahead){ row + (kn + j * each) * p->ldb, p->ldb, (w->nn * p->r.es + 63) / 64,
				                                   (int)MAX(0, MIN(each, next - j * each)) };
			part.keep = j < there && v->keeps && p->npanel > 1 ? w->bbuf + (size_t)(nj - there) * bp : NULL;
			for (int64_t i = 0; i < p->npanel; i++) {
				part.a = lhs_panel(p, w->packed, w->b, i, x);
				part.c = w->cbuf + (i * nj + j) * block;
				part.rows = (int)MIN(v->mr, w->mn - i * v->mr);
				(j < there && (!i || !part.keep) ? v->in_place : v->micro)(&part);
				part.next.rows = 0;
				part.b = part.keep ? part.keep : part.b;
			}
		}
	}
}

void matmul_run_packed(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr, int64_t t0, int64_t t1, void *scratch)
{
	const struct matmul *p = s->priv;
	const struct matmul_variant *v = p->v;
	char *packed = matmul_align(ptr[k->nin + k->nout]);
	if (p->lay && phase == 0) {
		p->lay(k, p->lay_arg, ptr, packed, t0, t1, s->tiles);
		return;
	}
	const char *l = p->lay && p->lay_of == p->il ? packed : view_at(k, ptr, p->il);
	const char *r = p->lay && p->lay_of == p->ir ? packed : view_at(k, ptr, p->ir);
	packed += p->lay_bytes;
	if (phase < s->phases - 1) {
		pack_all(p, s->tiles, l, r, packed, t0, t1);
		return;
	}
	char *abuf = matmul_align(scratch), *bbuf = abuf + p->a_bytes;
	struct at w = { .l = l, .packed = packed, .shared_rhs = packed + (p->lazy ? 0 : (size_t)(p->b * p->npanel) * p->panel), .abuf = abuf, .bbuf = bbuf,
	                .cbuf = (float *)(void *)(bbuf + p->b_bytes), .had_b = -1 };
	w.sums = p->apart ? w.cbuf + p->c_level / 4 : w.cbuf;
	kern_strip *sum = kern_elem(ELEM_add, DT_f32, DT_f32);
	if (v->begin)
		v->begin();
	for (int64_t t = t0; t < t1; t++) {
		/* tiles that follow each other share columns; all have as many panels, or one more */
		int64_t part_n = t / p->mblk % p->nblk, part_m = t % p->mblk;
		w.b = t / (p->nblk * p->mblk);
		w.n0 = p->npanel_r * part_n / p->nblk * v->nr;
		w.m0 = p->npanel * part_m / p->mblk * v->mr;
		w.nn = MIN(p->n, p->npanel_r * (part_n + 1) / p->nblk * v->nr) - w.n0;
		w.mn = MIN(p->m, p->npanel * (part_m + 1) / p->mblk * v->mr) - w.m0;
		w.ni = (w.mn + v->mr - 1) / v->mr;
		w.rb = r + matmul_at(&p->r.batch, w.b) * p->r.es;
		w.out = view_at(k, ptr, k->nin) + matmul_at(&p->ob, w.b) * p->oes;
		int64_t floats = w.ni * matmul_pad(w.nn, v->nr) * v->mr;
		for (int64_t o0 = 0; o0 < p->k; o0 += p->ko) {
			int64_t on = MIN(p->ko, p->k - o0);
			if (p->slab)
				multiply_slabs(p, &w, o0, on);
			else
				for (int64_t c0 = 0; c0 < w.nn; c0 += p->nc)
					multiply(p, &w, c0, MIN(p->nc, w.nn - c0), o0, on);
			if (p->levels == 1 || ((o0 / p->ko + 1) % p->run && o0 + on < p->k))
				continue;
			int64_t done = o0 / (p->ko * p->run);
			if (p->apart && sum_starts(done))
				memcpy(w.sums, w.cbuf, (size_t)floats * 4);
			else if (p->apart)
				sum(floats, w.sums, w.sums, w.cbuf, NULL);
			sum_carry(done, sum, floats, 4, (char *)w.sums, p->c_level);
		}
		if (p->levels > 1)
			sum_close((p->k + p->ko * p->run - 1) / (p->ko * p->run), sum, floats, 4, (char *)w.sums, p->c_level);
		if (p->levels > 1 || p->slab)
			for (int64_t c0 = 0; c0 < w.nn; c0 += p->nc)
				store_panels(p, &w, c0, MIN(p->nc, w.nn - c0));
	}
	if (v->end)
		v->end();
}
