/* Matrix products: packing, blocking, and the choice of a micro-kernel.
 *
 * As in Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008): a tile of the grid owns a
 * block of columns and packs its part of rhs into panels of NR columns that stay in L2 (where several tiles share the
 * columns, phase 0 packs rhs for all); panels of MR rows of lhs are packed as they are needed and stay near while all
 * columns pass by.  A lhs that is dear to pack, or would be packed many times, is packed once, in phase 0; the
 * micro-kernel for tiles has the next panel fetched while it works on one, since memory beyond L2 is slow (measured: 30 GB/s
 * for each core, whether read or first written, of 180 from L2) and not waiting for it is most of what can be won.  Whatever the order of dimensions,
 * only packing sees it: rows, columns, contraction and batch are offset tables.  An element's sum runs over k in order,
 * in blocks that depend on the shape only, so bits do not depend on tiles or threads; chains of f32 are short (BLOCK_SUM), since
 * roundings add up along them, and sums of blocks go through levels (SUM_RADIX), so that a long contraction is as exact as a short one.  What would take more than PACK_MOST packed is not
 * packed as a whole: a tile packs rows for its own columns, some thousands of them.
 *
 * Packing must be paid for by many products; where there are few, an operand is read where it lies, if its type and order allow it:
 *   few rows (decode): bound by reading rhs, of which a slab of rows is taken at a time, packed in L1 or as it lies (in_place);
 *   few columns, or few rows by columns that are rows in memory: numbers of the long operand are broadcast from where they are (tall);
 *   very few rows: run_few. */
#include "matmul.h"

#include <immintrin.h>
#include <stdlib.h>

enum { MOST_FEW = 8, FEW_COLS = 512, FEW_MOST = 4096, FEW_K = 32, FEW_DOT = 8192, FEW_TURN = 32, MOST_K = 1 << 20, SMALL = 24 * 24 * 24,
       FEW_ROWS = 64, SLAB = 32, LONG_COLS = 1024, SHORT_COLS = 256, BLOCK_KO = 1280, BLOCK_KC = 640, BLOCK_SUM = 128, SMALL_SUM = 32, SHORT_SUM = 16,
       PAIRS_SUM = 256, RUNS_IN_ROW = 4, SMALL_WORK = 1 << 22, BLOCK_BYTES = 5 << 18, MOST_ROWS = 4096, PACK_MOST = 48 << 20, KEEP_ROWS = 1024,
       KEEP_COLS = 2048, TILE_RUN = 4, STORE_APART = 100 };

const struct matmul_variant *matmul_force;

struct matmul {
	const struct matmul_variant *v;
	int64_t b, m, n, k;
	struct matmul_side l, r;             /* free: rows of l, columns of r */
	enum dtype out, sum;             /* sum: f32 or i32 */
	int oes;
	struct matmul_axis om, on, ob;   /* result offsets, elements */
	bool on_unit;
	int64_t chain;                   /* so many steps make one sum (matmul_micro) */
	int64_t ko, kc, nc, nb, mb;      /* blocks: contraction in L2 and in L1, columns in L2; columns and rows of a tile */
	int64_t nblk, mblk, npanel;      /* per batch */
	size_t panel, rpanel;            /* bytes of a packed lhs or rhs panel over all k */
	bool share_rhs;                  /* several tiles read a column block: it is packed once, in phase 0 */
	bool lazy;                       /* lhs is packed as it is needed */
	bool keep;                       /* and kept while the tile's blocks of columns pass by */
	bool slab;                       /* few rows: all of lhs is packed, rhs is taken kc rows at a time */
	enum { BY_ROWS, BY_DOTS, BY_TURNED } few;    /* few rows: rhs lies row by row, column by column, or as short columns, which are turned */
	bool in_place;                   /* its rows are read where they lie, ldb bytes apart */
	int64_t ldb;
	bool tall;                       /* one panel of columns: rows of lhs are read where they lie */
	int64_t l_step;                  /* rows of lhs are so far apart, elements; 0: not evenly */
	int64_t npanel_r;                /* rhs panels per batch */
	size_t a_bytes, b_bytes, c_bytes;   /* per-thread blocks */
	size_t apanel;                   /* bytes of a kept lhs panel */
	int levels; size_t c_level;      /* of long sums; bytes of one */
	int64_t run;                     /* so many blocks of ko make one number for the levels */
	bool apart;                      /* that number is made beside them: a micro-kernel for tiles goes on from the sum it finds */
	int il, ir;                      /* which operand is lhs, rhs: exchanged for few columns */
	void (*lay)(const struct prog_kern *k, const void *arg, char *const *ptr, char *to, int64_t t0, int64_t t1, int64_t tiles);
	const void *lay_arg;
	size_t lay_bytes;
	int lay_of;
};

/* --- offsets ------------------------------------------------------------------ */

/* Those of the contracted dimensions; false: too many that are not even. */
static bool contracted(struct arena *a, int c, const int64_t *dim, const int64_t *stride, int64_t *n, struct matmul_side *o)
{
	int64_t count = 1, some = MATMUL_K;
	bool even = true;
	for (int i = c; i-- > 0;) {
		if (dim[i] == 1)
			continue;
		if (count == 1)
			o->k_step = stride[i];
		else
			even &= stride[i] == o->k_step * count;
		count *= dim[i];
	}
	o->k_even = even && count > MATMUL_K;
	*n = count;
	if (!even && count > MOST_K)
		return false;
	if (o->k_even)
		o->k = matmul_offsets(a, 1, &some, &o->k_step, n);
	else
		o->k = matmul_offsets(a, c, dim, stride, n);
	*n = count;
	return true;
}

static bool unit(const int64_t *o, int64_t n)
{
	for (int64_t i = 1; i < n; i++)
		if (o[i] != i)
			return false;
	return true;
}

static bool unit_axis(const struct matmul_axis *x)
{
	return x->n <= 1 || (x->even && x->step == 1);
}

static bool starts_unit(const struct matmul_axis *x, int64_t n)
{
	for (int64_t i = 1; i < n; i++)
		if (matmul_at(x, i) != i)
			return false;
	return true;
}

static int64_t pad_to(int64_t n, int64_t a)
{
	return (n + a - 1) / a * a;
}

static size_t esize(const struct matmul *p) { return (size_t)p->v->es; }

/* lhs panel number i of batch b, k0 .. k0 + kn. */
static void pack_lhs(const struct matmul *p, const char *base, int64_t b, int64_t i, int64_t k0, int64_t kn, char *out)
{
	int64_t i0 = i * p->v->mr;
	matmul_pack_lhs(p->v, &p->l, base + matmul_at(&p->l.batch, b) * p->l.es, i0, (int)MIN(p->v->mr, p->m - i0), k0, kn, out);
}

/* Columns n0 .. n0 + nn, k0 .. k0 + kn of rhs, panels bytes apart.  Of rows some at a time, of which panels are made while the next are fetched,
 * row by row, as memory is read fastest. */
static void pack_block(const struct matmul *p, const char *base, int64_t n0, int64_t nn, int64_t k0, int64_t kn, char *out, size_t bytes)
{
	const struct matmul_variant *v = p->v;
	int64_t slab = MAX(SLAB, v->kstep), step = p->r.free_unit && kn > slab ? slab : kn, panels = (nn + v->nr - 1) / v->nr;
	for (int64_t x = 0; x < kn; x += step) {
		int64_t next = MIN(step, kn - x - step), each = (next + panels - 1) / panels;
		for (int64_t j = 0; j < panels; j++) {
			for (int64_t r = j * each; r < MIN(next, (j + 1) * each); r++) {
				const char *row = base + (matmul_k(&p->r, k0 + x + step + r) + matmul_at(&p->r.free, n0)) * p->r.es;
				for (int64_t at = 0; at < nn * p->r.es; at += 64)
					_mm_prefetch(row + at, _MM_HINT_T1);
			}
			matmul_pack_rhs(v, &p->r, base, n0 + j * v->nr, (int)MIN(v->nr, nn - j * v->nr), k0 + x, MIN(step, kn - x),
			                out + (size_t)j * bytes + (size_t)(x * v->nr) * esize(p));
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

static void store(const struct matmul *p, char *out, int64_t m0, int64_t mn, int64_t n0, int64_t nn, const float *c, int64_t ldc)
{
	int64_t room[MATMUL_PANEL], place[MATMUL_PANEL];
	const int64_t *om = matmul_some(&p->om, m0, mn, room);
	bool dense = p->on_unit;
	kern_strip *narrow = dense && p->oes < 4 && !(p->out == DT_bf16 && cpu_get()->avx512_bf16) ? kern_elem(ELEM_convert, p->sum, p->out) : NULL;
	if (dense && p->out == DT_bf16 && nn == 32 && cpu_get()->avx512_bf16) {
		rows_bf16_512(mn, c, ldc, om, out + n0 * 2);
		return;
	}
	for (int64_t i = 0; i < mn && dense; i++) {
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
		for (int64_t i = 0; i < mn; i++)
			store_apart(p, some, out + om[i] * p->oes, on, c + i * ldc + j);
	}
}

/* --- the packed product ------------------------------------------------------------------ */

static char *align64(void *p)
{
	return (char *)(((uintptr_t)p + 63) & ~(uintptr_t)63);
}

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
		pack_lhs(p, l, i / p->npanel, i % p->npanel, 0, p->k, packed + (size_t)i * p->panel);
	packed += (size_t)panels * p->panel;
	if (!p->share_rhs)
		return;
	/* pieces of some panels: as wide as a tile's block at most */
	int64_t per = MAX(1, MIN(p->nb / p->v->nr, p->b * p->npanel_r / tiles)), pieces = (p->npanel_r + per - 1) / per;
	part(p->b * pieces, tiles, t0, t1, &lo, &hi);
	for (int64_t i = lo; i < hi; i++) {
		int64_t b = i / pieces, j = i % pieces * per, n0 = j * p->v->nr;
		pack_block(p, r + matmul_at(&p->r.batch, b) * p->r.es, n0, MIN(per * p->v->nr, p->n - n0), 0, p->k,
		           packed + (size_t)(b * p->npanel_r + j) * p->rpanel, p->rpanel);
	}
}

/* Where panel i of lhs lies packed by phase 0, from k0 on. */
static const char *lhs_panel(const struct matmul *p, const char *packed, int64_t b, int64_t i, int64_t k0)
{
	return packed + ((size_t)b * (size_t)p->npanel + (size_t)i) * p->panel + (size_t)(k0 * p->v->mr) * esize(p);
}

/* What the next panel of lhs is made from, for the micro-kernel to fetch while nj panels of rhs pass by. */
static struct matmul_ahead ahead_of(const struct matmul *p, const char *l, const char *packed, int64_t b, int64_t i, int64_t k0, int64_t kn, int64_t nj)
{
	const struct matmul_variant *v = p->v;
	struct matmul_ahead h = { .rows = (int)((v->mr + nj - 1) / nj), .lines = kn };
	if (!v->tiles || (p->lazy && !p->l_step))
		return (struct matmul_ahead){ 0 };
	if (p->lazy) {
		h.row = l + (matmul_at(&p->l.batch, b) + matmul_at(&p->l.free, i * v->mr) + matmul_k(&p->l, k0)) * p->l.es;
		h.stride = p->l_step * p->l.es;
	} else {
		h.row = lhs_panel(p, packed, b, i, k0);
		h.stride = pad_to(kn, v->kstep) / v->kstep * 64;
	}
	return h;
}

/* One launch of run_packed: where things lie. */
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
			store(p, w->out, w->m0 + i * v->mr, MIN(v->mr, w->mn - i * v->mr), w->n0 + c0 + j * v->nr, MIN(v->nr, cn - j * v->nr),
			      sums_at(p, w, w->sums, c0, i, nj) + j * v->mr * v->nr, v->nr);
}

/* Does block o of the contraction begin a sum? */
static bool begins(const struct matmul *p, int64_t o)
{
	return p->levels == 1 ? o == 0 : p->apart ? o % p->run == 0 : sum_starts(o);
}

/* Add to the tile's columns c0 .. c0 + cn what o0 .. o0 + on of the contraction give. */
static void multiply(const struct matmul *p, struct at *w, int64_t c0, int64_t cn, int64_t o0, int64_t on)
{
	const struct matmul_variant *v = p->v;
	size_t es = esize(p), bp = (size_t)(pad_to(on, v->kstep) * v->nr) * es;
	int64_t block = (int64_t)v->mr * v->nr, n0 = w->n0 + c0, nj = (cn + v->nr - 1) / v->nr;
	const char *rp = w->bbuf;
	if (p->share_rhs) {
		bp = p->rpanel;
		rp = w->shared_rhs + (size_t)(w->b * p->npanel_r + n0 / v->nr) * bp + (size_t)(o0 * v->nr) * es;
	} else if (w->b != w->had_b || n0 != w->had_n || o0 != w->had_o) {
		pack_block(p, w->rb, n0, cn, o0, on, w->bbuf, bp);
		w->had_b = w->b;
		w->had_n = n0;
		w->had_o = o0;
	}
	for (int64_t i = 0; i < w->ni; i++) {
		int64_t rows = MIN(v->mr, w->mn - i * v->mr), row = w->m0 / v->mr + i;
		float *c = sums_at(p, w, w->cbuf, c0, i, nj);
		for (int64_t x = 0; x < on; x += p->kc) {
			int64_t kn = MIN(p->kc, on - x), steps = pad_to(kn, v->kstep) / v->kstep;
			bool add = x > 0 || !begins(p, o0 / p->ko), last = o0 + x + kn == p->k && p->levels == 1;
			if (p->tall) {
				const char *a = w->l + (matmul_at(&p->l.batch, w->b) + matmul_at(&p->l.free, row * v->mr) + o0 + x) * p->l.es;
				v->tall(&(struct matmul_part){ .steps = steps, .chain = p->chain, .a = a, .lda = p->l_step * p->l.es,
				                               .b = rp + (size_t)(x * v->nr) * es, .c = c, .add = add, .rows = (int)rows, .cols = (int)cn });
				if (last)
					store(p, w->out, w->m0 + i * v->mr, rows, n0, cn, c, v->nr);
				continue;
			}
			const char *a = lhs_panel(p, w->packed, w->b, row, o0 + x);
			if (p->lazy) {
				char *made = w->abuf + (p->keep ? (size_t)i * p->apanel + (size_t)(x * v->mr) * es : 0);
				if (!p->keep || c0 == 0)
					pack_lhs(p, w->l, w->b, row, o0 + x, kn, made);
				a = made;
			}
			struct matmul_ahead ahead = { 0 };
			if (x + kn < on)
				ahead = ahead_of(p, w->l, w->packed, w->b, row, o0 + x + kn, MIN(p->kc, on - x - kn), nj);
			else if (i + 1 < w->ni)
				ahead = ahead_of(p, w->l, w->packed, w->b, row + 1, o0, MIN(p->kc, on), nj);
			for (int64_t j = 0; j < nj; j++) {
				float *cj = c + (p->kc < p->k ? j * block : 0);
				v->micro(&(struct matmul_part){ .steps = steps, .chain = p->chain, .a = a, .b = rp + (size_t)j * bp + (size_t)(x * v->nr) * es,
				                                .c = cj, .add = add, .rows = (int)rows, .cols = (int)MIN(v->nr, cn - j * v->nr), .next = ahead });
				if (last)
					store(p, w->out, w->m0 + i * v->mr, rows, n0 + j * v->nr, MIN(v->nr, cn - j * v->nr), cj, v->nr);
				ahead.row += ahead.stride * ahead.rows;
			}
		}
	}
}

/* Few rows: a slab of rows of rhs at a time, all of lhs with each.  Whole panels of it are read where they lie, if in_place, and row by row, as
 * memory is read fastest, the next slab is fetched meanwhile. */
static void multiply_slabs(const struct matmul *p, struct at *w, int64_t o0, int64_t on)
{
	const struct matmul_variant *v = p->v;
	int64_t block = (int64_t)v->mr * v->nr, nj = (w->nn + v->nr - 1) / v->nr, there = p->in_place ? w->nn / v->nr : 0;
	for (int64_t x = o0; x < o0 + on; x += p->kc) {
		int64_t kn = MIN(p->kc, o0 + on - x), steps = pad_to(kn, v->kstep) / v->kstep, next = MIN(p->kc, p->k - x - kn), each = (next + nj - 1) / nj;
		size_t bp = (size_t)(pad_to(kn, v->kstep) * v->nr) * esize(p);
		bool add = x > o0 || !begins(p, o0 / p->ko);
		const char *row = w->rb + (matmul_k(&p->r, x) + w->n0) * p->r.es;
		if (there < nj)
			matmul_pack_slab(v, &p->r, w->rb, w->n0 + there * v->nr, w->nn - there * v->nr, x, kn, w->bbuf, bp);
		for (int64_t j = 0; j < nj; j++) {
			struct matmul_part part = { .steps = steps, .chain = p->chain, .ldb = p->ldb, .add = add, .cols = (int)MIN(v->nr, w->nn - j * v->nr) };
			part.b = j < there ? row + j * v->nr * p->r.es : w->bbuf + (size_t)(j - there) * bp;
			if (there)
				part.next = (struct matmul_ahead){ row + (kn + j * each) * p->ldb, p->ldb, (w->nn * p->r.es + 63) / 64,
				                                   (int)MAX(0, MIN(each, next - j * each)) };
			for (int64_t i = 0; i < p->npanel; i++) {
				part.a = lhs_panel(p, w->packed, w->b, i, x);
				part.c = w->cbuf + (i * nj + j) * block;
				part.rows = (int)MIN(v->mr, w->mn - i * v->mr);
				(j < there ? v->in_place : v->micro)(&part);
				part.next.rows = 0;
			}
		}
	}
}

static void run_packed(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr, int64_t t0, int64_t t1, void *scratch)
{
	const struct matmul *p = s->priv;
	const struct matmul_variant *v = p->v;
	char *packed = align64(ptr[k->nin + k->nout]);
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
	char *abuf = align64(scratch), *bbuf = abuf + p->a_bytes;
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
		int64_t floats = w.ni * pad_to(w.nn, v->nr) * v->mr;
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

static bool float_ok(enum dtype dt)
{
	return dt == DT_f32 || dt == DT_bf16 || dt == DT_f16;
}

/* --- few rows ------------------------------------------------------------------------------- */

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

__attribute__((target("avx512f,avx512bw,avx512vl")))
INLINE void eight_512_as(int64_t n, struct eight e, enum dtype dt)
{
	const float *x = e.x;
	int row = 0, es = dt == DT_f32 ? 4 : 2, lines = 2 * es;
	const char *at = e.next ? e.next[0] : NULL, *end = at + n * es;
	for (int64_t i = 0; i < n; i += 16) {
		__mmask16 m = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
		for (int j = 0; j < lines && at; j++, at += 64)
			_mm_prefetch(at, _MM_HINT_T1);
		if (at && at >= end) {
			row++;
			at = row < 8 ? e.next[row] : NULL;
			end = at + n * es;
		}
		__m512 s = _mm512_mul_ps(_mm512_set1_ps(x[0]), load16(dt, e.row[0], i, m)), t = _mm512_mul_ps(_mm512_set1_ps(x[4]), load16(dt, e.row[4], i, m));
#pragma GCC unroll 4
		for (int j = 1; j < 4; j++) {
			s = _mm512_fmadd_ps(_mm512_set1_ps(x[j]), load16(dt, e.row[j], i, m), s);
			t = _mm512_fmadd_ps(_mm512_set1_ps(x[4 + j]), load16(dt, e.row[4 + j], i, m), t);
		}
		s = _mm512_add_ps(s, t);
		if (!e.first)
			s = _mm512_add_ps(_mm512_maskz_loadu_ps(m, e.acc + i), s);
		if (!e.wide) {
			_mm512_mask_storeu_ps(e.acc + i, m, s);
			continue;
		}
		__m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(s)), high = _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(s), 1)));
		_mm512_mask_storeu_pd(e.wide + i, (__mmask8)m, _mm512_add_pd(_mm512_maskz_loadu_pd((__mmask8)m, e.wide + i), low));
		_mm512_mask_storeu_pd(e.wide + i + 8, (__mmask8)(m >> 8), _mm512_add_pd(_mm512_maskz_loadu_pd((__mmask8)(m >> 8), e.wide + i + 8), high));
	}
}

__attribute__((target("avx512f,avx512bw,avx512vl")))
static void eight_512(int64_t n, const struct eight *e, enum dtype dt)
{
	BY_TYPE(eight_512_as, dt, n, *e);
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

/* Sum of x[i] * row[i], in 4 vector sums for each run. */
__attribute__((target("avx512f,avx512bw,avx512vl")))
INLINE float dot_512_as(int64_t n, const float *x, const char *row, enum dtype dt)
{
	__m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
	for (int64_t r = 0; r < n; r += DOT_RUN) {
		int64_t end = MIN(n, r + DOT_RUN);
		__m512 c[4] = { _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps() };
		for (int64_t i = r; i < end; i += 64)
			for (int j = 0; j < 4 && i + 16 * j < end; j++) {
				int64_t at = i + 16 * j;
				__mmask16 m = end - at >= 16 ? 0xffff : (__mmask16)((1u << (end - at)) - 1);
				c[j] = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(m, x + at), load16(dt, row, at, m), c[j]);
			}
		__m512 sum = _mm512_add_ps(_mm512_add_ps(c[0], c[1]), _mm512_add_ps(c[2], c[3]));
		low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(sum)));
		high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(sum), 1))));
	}
	return (float)_mm512_reduce_add_pd(_mm512_add_pd(low, high));
}

__attribute__((target("avx512f,avx512bw,avx512vl")))
static float dot_512(int64_t n, const float *x, const char *row, enum dtype dt)
{
	return BY_TYPE(dot_512_as, dt, n, x, row);
}

/* One number of 4 bytes to out. */
static void dot_any(int64_t n, const void *px, const char *row, enum dtype dt, void *out)
{
	const float *x = px;
	if (!float_ok(dt)) {
		uint32_t r = kern_isa_get()->dot_int[kern_nat(dt)](n, px, row);
		memcpy(out, &r, 4);
		return;
	}
	if (cpu_get()->avx512) {
		float c = dot_512(n, x, row, dt);
		memcpy(out, &c, 4);
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
static void run_few(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr, int64_t t0, int64_t t1, void *scratch)
{
	const struct matmul *p = s->priv;
	char *laid = p->lay ? align64(ptr[k->nin + k->nout]) : NULL;
	if (p->lay && phase == 0) {
		p->lay(k, p->lay_arg, ptr, laid, t0, t1, s->tiles);
		return;
	}
	const char *l = p->lay && p->lay_of == p->il ? laid : view_at(k, ptr, p->il), *r = p->lay && p->lay_of == p->ir ? laid : view_at(k, ptr, p->ir);
	bool there = p->l.es == 4 && p->l.k_unit;     /* lhs is read where it lies */
	bool floats = p->sum == DT_f32;
	kern_strip *as_sum = kern_elem(ELEM_convert, p->l.dt, p->sum);
	float *made = (float *)align64(scratch);
	for (int64_t t = t0; t < t1; t++) {
		int64_t b = t / p->nblk, n0 = t % p->nblk * p->nb, nn = MIN(p->nb, p->n - n0), count = p->m * nn;
		const char *lb = l + matmul_at(&p->l.batch, b) * p->l.es, *rb = r + matmul_at(&p->r.batch, b) * p->r.es;
		char *out = view_at(k, ptr, k->nin) + matmul_at(&p->ob, b) * p->oes;
		char *sums = align64(made + (there ? 0 : p->m * p->kc));
		double *wide = p->sum == DT_f32 && p->kc < p->k ? (double *)(void *)sums : NULL;      /* where there are several blocks */
		float *c = (float *)(void *)(sums + (wide ? sizeof *wide * (size_t)count : 0));
		if (wide)
			memset(wide, 0, sizeof *wide * (size_t)count);
		for (int64_t k0 = 0; k0 < p->k; k0 += p->kc) {
			int64_t kn = MIN(p->kc, p->k - k0);
			const float *x[MOST_FEW];
			for (int64_t i = 0; i < p->m; i++) {
				x[i] = there ? (const float *)(const void *)(lb + (matmul_at(&p->l.free, i) + k0) * 4) : made + i * p->kc;
				const char *row = lb + matmul_at(&p->l.free, i) * p->l.es;
				if (there)
					continue;
				if (p->l.k_unit)
					as_sum(kn, made + i * p->kc, row + k0 * p->l.es, NULL, NULL);
				else
					for (int64_t j = 0; j < kn; j += MATMUL_PANEL) {
						char apart[MATMUL_PANEL * 4];
						int64_t some = MIN(MATMUL_PANEL, kn - j);
						for (int64_t q = 0; q < some; q++)
							memcpy(apart + q * p->l.es, row + matmul_k(&p->l, k0 + j + q) * p->l.es, (size_t)p->l.es);
						as_sum(some, made + i * p->kc + j, apart, NULL, NULL);
					}
			}
			if (p->few == BY_DOTS) {
				for (int64_t n = 0; n < nn; n++)
					for (int64_t i = 0; i < p->m; i++) {
						uint32_t had = 0, sum;
						if (!floats && k0)
							memcpy(&had, &c[i * nn + n], 4);
						dot_any(kn, x[i], rb + (matmul_at(&p->r.free, n0 + n) + k0) * p->r.es, p->r.dt, &sum);
						sum += had;
						memcpy(&c[i * nn + n], &sum, 4);
					}
			} else {
				static const char zero_row[FEW_MOST * 4];
				char *turned = (char *)(c + count);
				if (p->few == BY_TURNED)
					turn(&p->r, rb + k0 * p->r.es, n0, nn, kn, turned);
				for (int64_t j = 0; j < kn; j += 8) {
					const char *row[8], *next[8];
					bool more = p->few == BY_ROWS && k0 + j + 16 <= p->k;
					for (int q = 0; q < 8 && more; q++)
						next[q] = rb + (matmul_k(&p->r, k0 + j + 8 + q) + n0) * p->r.es;
					for (int q = 0; q < 8; q++)
						row[q] = j + q >= kn ? zero_row : p->few == BY_TURNED ? turned + (j + q) * nn * p->r.es : rb + (matmul_k(&p->r, k0 + j + q) + n0) * p->r.es;
					for (int64_t i = 0; i < p->m; i++) {
						float last[8] = { 0 };
						for (int64_t q = 0; q < kn - j && kn - j < 8; q++)
							memcpy(&last[q], &x[i][j + q], 4);       /* whatever type the four bytes are of */
						struct eight e = { kn - j < 8 ? last : x[i] + j, row, more && !i ? next : NULL, c + i * nn, j == 0 && (floats || k0 == 0),
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
		store(p, out, 0, p->m, n0, nn, c, nn);
	}
}

/* --- choice ----------------------------------------------------------------------------------- */

/* Products of these modulo 2^32 are what is asked for. */
static bool int_ok(enum dtype dt)
{
	int cls = dtype_info[dt].cls, bits = dtype_info[dt].bits;
	return (cls == DT_INT || cls == DT_UINT) && (bits == 8 || bits == 16 || bits == 32);
}

static bool fits(const struct matmul_variant *v, const struct matmul_tables *t)
{
	return t->ints ? false : t->i8 ? v->es == 1 : v->es == 4 || (v->es == 2 && t->bf16);
}

static const struct matmul_variant *choose(const struct matmul_tables *t)
{
	if (matmul_force && fits(matmul_force, t))
		return matmul_force;
	for (int i = 0; i < matmul_nvariant; i++)
		if (fits(&matmul_variant[i], t) && matmul_variant[i].has() && matmul_variant[i].best())
			return &matmul_variant[i];
	return NULL;
}

/* n in equal parts of at most `most`, in whole steps. */
static int64_t blocks(int64_t n, int64_t most, int64_t step)
{
	int64_t parts = (n + most - 1) / most;
	return pad_to((n + parts - 1) / parts, step);
}

/* Are there so few columns that their panels would be empty for the most part, and rows would fill such?  What that saves must pay for elements
 * of the result that are stored one by one. */
static bool narrow(const struct matmul *p)
{
	if (!p->v || p->v->es != 4)
		return false;
	int64_t nr = p->v->nr, as_is = pad_to(p->m, 4) * pad_to(p->n, nr / 2), turned = pad_to(p->n, 4) * pad_to(p->m, nr / 2);
	return (as_is - turned) * p->k > STORE_APART * p->m * p->n;
}

/* Can whole panels of rhs be read where they lie?  Sets ldb. */
static bool reads_in_place(struct matmul *p)
{
	const struct matmul_variant *v = p->v;
	if (!v || !v->in_place || p->m > FEW_ROWS || p->n < v->nr || p->k % v->kstep || !p->r.free_unit || p->r.dt != (v->es == 4 ? DT_f32 : DT_bf16))
		return false;
	int64_t far = p->k > 1 ? p->r.k[1] - p->r.k[0] : p->n;
	p->ldb = far * p->r.es;
	for (int64_t x = 1; x < (p->r.k_even ? MATMUL_K : p->k); x++)
		if (p->r.k[x] != p->r.k[0] + x * far)
			return false;
	return far >= p->n;
}

/* Are there enough columns for one panel, and rows that can be read where they lie? */
static bool stands_tall(const struct matmul *p, const struct matmul_side *l, int64_t m, int64_t n)
{
	const struct matmul_variant *v = p->v;
	return v && v->tall && n >= (v->es == 2 ? 3 : MOST_FEW) && n <= v->nr && m >= 4 * v->mr && p->k % v->kstep == 0 && l->k_unit && l->free.even &&
	       l->dt == (v->es == 4 ? DT_f32 : DT_bf16);
}

bool matmul_plan(const struct prog_kern *k, const struct matmul_tables *t, struct kern_state *s)
{
	struct matmul *p = ARENA_NEW(&s->a, struct matmul, 1);
	struct matmul_side *side[2] = { &p->l, &p->r };
	p->b = t->b;
	p->m = t->m;
	p->n = t->n;
	p->k = t->k;
	p->l = t->l;
	p->r = t->r;
	p->om = t->om;
	p->on = t->on;
	p->ob = t->ob;
	p->lay = t->lay;
	p->lay_arg = t->lay_arg;
	p->lay_bytes = t->lay_bytes;
	p->lay_of = t->lay_of;
	p->il = 0;
	p->ir = 1;
	if (p->m * p->n * p->k < t->least || !p->b || (p->b > 1 && p->m * p->n * p->k < 512))
		return false;
	p->v = choose(t);
	for (int q = 0; q < 2; q++) {
		side[q]->es = dtype_info[side[q]->dt].bytes;
		int64_t known = side[q]->k_even ? MATMUL_K : p->k;
		side[q]->k_unit = unit(side[q]->k, known);
		uint8_t *run = arena_alloc(&s->a, (size_t)(known / 32 + 1));
		for (int64_t x = 0; x + 32 <= known; x += 32) {
			run[x / 32] = 1;
			for (int64_t y = x + 1; y < x + 32; y++)
				run[x / 32] &= side[q]->k[y] == side[q]->k[y - 1] + 1;
		}
		side[q]->run = run;
		side[q]->free_unit = unit_axis(&side[q]->free);
	}
	bool tall = stands_tall(p, &p->l, p->m, p->n), turned = !tall && stands_tall(p, &p->r, p->n, p->m);
	p->tall = tall || turned;
	bool across = !starts_unit(&p->on, MIN(p->n, 16)) && p->m >= 16 && starts_unit(&p->om, 16);      /* rows of the result lie side by side */
	if (turned || (!tall && ((p->n < p->m && p->n <= MOST_FEW) || across || narrow(p)))) {      /* few columns: the transposed problem */
		struct matmul_side x = p->l;
		p->l = p->r;
		p->r = x;
		int64_t n = p->m;
		p->m = p->n;
		p->n = n;
		struct matmul_axis y = p->om;
		p->om = p->on;
		p->on = y;
		p->il = 1;
		p->ir = 0;
	}
	p->out = t->out;
	p->oes = dtype_info[p->out].bytes;
	p->on_unit = unit_axis(&p->on);
	s->priv = p;
	bool rounds = t->rounds;
	p->sum = t->i8 || t->ints ? DT_i32 : DT_f32;
	p->in_place = !p->tall && reads_in_place(p);
	int64_t few = p->in_place ? p->v->es == 4 : p->v && p->v->es <= 2 ? 2 : MOST_FEW;      /* one row of f32 is summed in f64 */
	if (p->m <= few && !rounds && (p->r.free_unit || p->r.k_unit) && !matmul_force) {
		/* long runs of each row, and tiles for all */
		p->nb = MAX(FEW_COLS, MIN(FEW_MOST, (p->n / 8 + 63) / 64 * 64));
		p->nblk = (p->n + p->nb - 1) / p->nb;
		p->nb = MIN(p->nb, p->n);
		bool short_rows = p->n < 16 && p->r.k_unit;
		p->few = p->r.free_unit && !short_rows ? BY_ROWS : p->k < FEW_TURN && !short_rows ? BY_TURNED : BY_DOTS;
		bool one = p->few == BY_DOTS && p->m == 1 && p->n == 1 && p->l.es == 4 && p->l.k_unit;      /* number, nothing is read twice */
		p->kc = one ? p->k : MIN(p->k, p->few == BY_ROWS ? FEW_K : FEW_DOT);
		s->tiles = p->b * p->nblk;
		s->phases = p->lay ? 2 : 1;
		s->shared = p->lay ? p->lay_bytes + 64 : 0;
		s->scratch = (size_t)(p->m * (p->kc + 3 * p->nb) + (p->few == BY_TURNED ? p->k * p->nb : 0)) * 4 + 128;
		s->run = run_few;
		return true;
	}
	if (!p->v || (rounds && p->v->es != 2))
		return false;
	const struct matmul_variant *w = p->v;
	size_t es = esize(p);
	p->npanel = (p->m + w->mr - 1) / w->mr;
	p->npanel_r = (p->n + w->nr - 1) / w->nr;
	size_t all_lhs = (size_t)(p->b * p->npanel) * pad_to(p->k, w->kstep) * w->mr * es;
	p->slab = p->m <= FEW_ROWS && (p->in_place || (p->n > FEW_ROWS && (p->r.free_unit || !w->tiles))) && all_lhs <= PACK_MOST;
	p->in_place &= p->slab;
	/* equal parts of k, in whole steps; slabs are two steps of the widest kernel */
	int64_t step = MAX(SLAB, w->kstep), wide = w->es == 1 ? 2 : 1;
	p->ko = blocks(p->k, BLOCK_KO * wide, step);
	bool small = (double)p->b * (double)p->m * (double)p->n * (double)p->k <= SMALL_WORK;      /* of few, a rounding counts for more */
	int64_t sum = !small ? BLOCK_SUM : p->k <= BLOCK_SUM ? SHORT_SUM : SMALL_SUM;
	p->chain = w->es == 4 ? sum : PAIRS_SUM;
	p->kc = p->slab ? MIN(p->ko, SLAB * 2 * wide) : w->tiles ? blocks(p->ko, BLOCK_KC * wide, step) : p->ko;
	p->ko = pad_to(p->ko, p->kc);
	p->run = w->tiles ? TILE_RUN : 1;
	/* where f32 is long, a sum of some thousand products goes beside them too: else one number would take in all blocks of kc */
	p->apart = w->es == 4 ? p->k > p->ko * (small ? 1 : RUNS_IN_ROW) : w->es == 2 && w->tiles && p->k > p->ko * p->run;
	p->levels = w->es == 1 ? 1 : sum_levels((p->k + p->ko * p->run - 1) / (p->ko * p->run)) + p->apart;      /* integers wrap */
	/* machines with tiles have 2 MB of L2 or more, others perhaps 1 MB */
	int64_t block = w->tiles ? BLOCK_BYTES : BLOCK_BYTES / 2, high = w->tiles ? MOST_ROWS : MOST_ROWS / 4;
	int64_t most = MAX(w->nr, (int64_t)(block / (p->ko * (int64_t)es)) / w->nr * w->nr);
	if (p->slab)
		most = p->in_place ? LONG_COLS : (p->n + 15) / 16 <= 128 ? 128 : 256;
	else if (w->tiles && p->m <= 4 * FEW_ROWS)       /* packed and used few times: what stays in the nearer half of L2 */
		most = MAX(w->nr, most / 4 / w->nr * w->nr);
	p->nb = MIN(pad_to(p->n, w->nr), p->in_place ? most : MIN(most, pad_to(512, w->nr)));
	int64_t cores = cpu_get()->cores, parts = (p->n + p->nb - 1) / p->nb, want;
	if (p->in_place) {
		/* several for each core, but long rows */
		p->nblk = MAX(parts, MIN(2 * cores, p->n / SHORT_COLS));
		want = 1;
	} else if (w->tiles && !p->slab) {
		/* Each core its own columns, all rows: lhs is read from far as often as there are blocks of columns, and what one
		 * core packs another has far to read.  Rows are cut where columns do not suffice, and if the blocks stay high. */
		if (parts < cores)
			parts = MAX(parts, MIN(cores, p->n / 256));
		else if (parts > 1)
			parts = (parts + cores - 1) / cores * cores;
		p->nb = pad_to((p->n + parts - 1) / parts, w->nr);
		p->nblk = parts = (p->n + p->nb - 1) / p->nb;
		want = MAX((cores + p->b * parts - 1) / (p->b * parts), MIN(4 * cores / (p->b * parts), p->m / 1024));
	} else {
		/* enough tiles for all */
		p->nblk = parts;
		want = p->slab ? 1 : (4 * cores + p->b * parts - 1) / (p->b * parts);
	}
	/* not more rows than keep sums of several blocks of k in cache */
	if (p->ko < p->k && !p->slab)
		want = MAX(want, (p->m + high - 1) / high);
	p->mblk = MAX(1, MIN(want, p->npanel / 4));
	p->panel = ((size_t)(pad_to(p->k, w->kstep) * w->mr) * es + 63) & ~(size_t)63;
	p->rpanel = ((size_t)(pad_to(p->k, w->kstep) * w->nr) * es + 63) & ~(size_t)63;
	p->share_rhs = p->mblk > 1 && !w->tiles;
	bool cheap = p->l.k_unit || p->l.run[0];
	/* copying rows is cheap, if not done by each core many times; turning or converting them is not, unless few columns pass by */
	p->lazy = p->tall || (!p->slab && (p->nblk == 1 || (cheap && p->l.dt == (w->es == 2 ? DT_bf16 : DT_i8) && w->tiles && p->nblk < 2 * cores)));
	p->nc = p->nb;
	if (!p->slab && ((p->lazy ? 0 : all_lhs) + (p->share_rhs ? (size_t)(p->b * p->npanel_r) * p->rpanel : 0) > PACK_MOST)) {
		/* too much to pack it all: a tile packs rows of lhs for some blocks of its columns, and its columns again */
		p->lazy = true;
		p->share_rhs = false;
		p->keep = true;
		int64_t wide_cols = MAX(1, KEEP_COLS / p->levels / p->nc), panels = MAX(1, KEEP_ROWS / w->mr);
		p->nb = MIN(wide_cols, (p->n + p->nc - 1) / p->nc) * p->nc;
		p->mblk = (p->npanel + panels - 1) / panels;
		while (p->nb > p->nc && p->b * ((p->n + p->nb - 1) / p->nb) * p->mblk < 4 * cores)
			p->nb = (p->nb / p->nc + 1) / 2 * p->nc;
		p->nblk = (p->n + p->nb - 1) / p->nb;
	}
	/* as many for each core */
	while (p->nblk > 1 && p->b * p->nblk * p->mblk % cores && p->nblk < p->npanel_r)
		p->nblk++;
	p->nb = (p->npanel_r + p->nblk - 1) / p->nblk * w->nr;
	p->mb = (p->npanel + p->mblk - 1) / p->mblk * w->mr;
	p->nc = MIN(p->nc, p->nb);
	p->apanel = ((size_t)(pad_to(p->keep ? p->ko : p->kc, w->kstep) * w->mr) * es + 63) & ~(size_t)63;
	p->a_bytes = !p->lazy || p->tall ? 0 : p->keep ? (size_t)(p->mb / w->mr) * p->apanel : p->apanel;
	p->b_bytes = p->share_rhs ? 0 : ((size_t)(pad_to(p->slab ? p->kc : p->ko, w->kstep) * p->nc) * es + 63) & ~(size_t)63;
	p->c_level = (size_t)(p->slab || p->ko < p->k ? p->mb * p->nb : w->mr * p->nc) * 4;
	p->c_bytes = p->c_level * (size_t)p->levels;
	s->tiles = p->b * p->nblk * p->mblk;
	p->l_step = p->m > 1 && p->l.free.even ? p->l.free.step : 0;
	s->phases = (p->lay ? 1 : 0) + (p->lazy && !p->share_rhs ? 1 : 2);
	s->shared = p->lay_bytes + (p->lazy ? 0 : (size_t)(p->b * p->npanel) * p->panel) + (p->share_rhs ? (size_t)(p->b * p->npanel_r) * p->rpanel : 0) + 64;
	s->scratch = p->a_bytes + p->b_bytes + p->c_bytes + 128;
	s->run = run_packed;
	return true;
}

bool kern_matmul(const struct prog_kern *k, struct kern_state *s)
{
	const struct prog_view *v[2] = { &k->v[0], &k->v[1] }, *o = &k->v[2];
	const int64_t *a = k->attr;
	int nb = (int)a[0];
	const int64_t *batch[2] = { a + 1, a + 1 + nb };
	a += 1 + 2 * nb;
	int nc = (int)a[0];
	const int64_t *con[2] = { a + 1, a + 1 + nc };
	a += 1 + 2 * nc;
	enum dtype acc = (enum dtype)a[1], ltype = (enum dtype)a[2], rtype = (enum dtype)a[3];
	bool i8 = v[0]->dtype == DT_i8 && v[1]->dtype == DT_i8 && (o->dtype == DT_i32 || o->dtype == DT_i8);
	bool ints = !i8 && int_ok(v[0]->dtype) && int_ok(v[1]->dtype) && int_ok(o->dtype);
	if (a[4] > 1 || (!i8 && !ints && (!float_ok(v[0]->dtype) || !float_ok(v[1]->dtype) || !float_ok(o->dtype) || (acc != DT_f32 && acc != DT_token))))
		return false;
	if (!i8 && !ints && ((ltype != DT_token && ltype != DT_bf16 && ltype != DT_f32) || (rtype != DT_token && rtype != DT_bf16 && rtype != DT_f32)))
		return false;
	bool b0 = v[0]->dtype == DT_bf16 || ltype == DT_bf16, b1 = v[1]->dtype == DT_bf16 || rtype == DT_bf16;
	bool rounds = (ltype == DT_bf16 && v[0]->dtype != DT_bf16) || (rtype == DT_bf16 && v[1]->dtype != DT_bf16);

	struct matmul_tables p[1] = { { .least = SMALL, .out = o->dtype, .i8 = i8, .ints = ints, .bf16 = b0 && b1, .rounds = rounds } };
	struct matmul_side *side[2] = { &p->l, &p->r };
	int64_t con_n = 1, od[64], os[64];
	int at = nb;
	for (int x = 0; x < nb; x++) {
		od[x] = o->dim[x];
		os[x] = o->stride[x];
	}
	p->ob = matmul_axis_make(&s->a, nb, od, os);
	struct matmul_axis res[2];
	for (int q = 0; q < 2; q++) {
		int64_t fd[64], fs[64], cd[64], cs[64], bd[64], bs[64], rd[64], rs[64];
		int nf = 0;
		for (int d = 0; d < v[q]->rank; d++) {
			bool used = false;
			for (int x = 0; x < nb; x++)
				used |= batch[q][x] == d;
			for (int x = 0; x < nc; x++)
				used |= con[q][x] == d;
			if (used)
				continue;
			fd[nf] = v[q]->dim[d];
			fs[nf] = v[q]->stride[d];
			rd[nf] = o->dim[at];
			rs[nf++] = o->stride[at++];
		}
		for (int x = 0; x < nc; x++) {
			cd[x] = v[q]->dim[con[q][x]];
			cs[x] = v[q]->stride[con[q][x]];
		}
		for (int x = 0; x < nb; x++) {
			bd[x] = v[q]->dim[batch[q][x]];
			bs[x] = v[q]->stride[batch[q][x]];
		}
		side[q]->dt = v[q]->dtype;
		side[q]->free = matmul_axis_make(&s->a, nf, fd, fs);
		if (!contracted(&s->a, nc, cd, cs, &con_n, side[q]))
			return false;
		side[q]->batch = matmul_axis_make(&s->a, nb, bd, bs);
		res[q] = matmul_axis_make(&s->a, nf, rd, rs);
	}
	p->b = p->ob.n;
	p->m = res[0].n;
	p->n = res[1].n;
	p->k = con_n;
	p->om = res[0];
	p->on = res[1];
	return matmul_plan(k, p, s);
}
