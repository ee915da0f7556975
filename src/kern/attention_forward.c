/* Attention forward: scores of a block of queries and a block of keys, their exponentials, and the product with values, before the
 * next block of keys (Dao, FlashAttention, 2022; Milakov and Gimelshein, Online normalizer calculation for softmax, 2018).
 *
 * A tile of the grid owns a block of rows (queries of all groups that share keys) and goes over all keys, or, where there are few
 * rows and many keys, over a part of them; parts are put together in later phases.  Keys and values are packed once, before the
 * tiles that read them, those of a few batches at a time; unless only one tile reads them, or they are so many that memory for all of them would be most of
 * what the kernel works in: then each tile packs a block where it reads it, and has more rows, for which that is done once.  What a row's exponentials are relative to is
 * raised only when a score exceeds it by ATT_LAZY: sums and products share it, so nothing is lost.  An item is so many rows and keys that
 * its p stays in L1.
 *
 * Which tiles of an item count is known from bounds (attention_range.c).  Those that only a row without any other key would count
 * are left to a second pass over such rows; so bits depend on shapes and numbers alone. */
#include "attention_forward.h"

#include <math.h>

enum { SHORT = 4, LONG = 16, MANY = 64, FEW = 16, PART_LEAST = 512, MOST = 2 << 20 };      /* items of a tile; tiles; where each packs keys; keys of a part; bytes of keys that are packed for all tiles */

/* --- blocks of keys ----------------------------------------------------------------- */

/* A tile's keys and values where they lie, if they are rows of numbers as they are multiplied. */
static void place_tile(const struct fwd *f, const struct prog_kern *k, char *const *ptr, int64_t b, int64_t tile, int64_t key, int64_t some, char *to, char *tmp)
{
	const struct att_plan *p = &f->p;
	int es = p->v->es;
	int64_t room = att_dense_rows(p) * es;
	char *dense = to + f->kb_dense + (size_t)(tile * room * (p->dc + p->ec));
	struct place *kp = (struct place *)(void *)(to + f->kb_k) + tile, *vp = (struct place *)(void *)(to + f->kb_v) + tile;
	kp->at = att_take_from(p, &f->k, k, ptr, ATT_K, b, key, some, dense, p->dc, tmp, &kp->ld);
	vp->at = att_take_from(p, &f->v, k, ptr, ATT_V, b, key, some, dense + room * p->dc, p->ec, tmp, &vp->ld);
	to[f->kb_bad + (size_t)tile] = false;      /* seen when they are multiplied */
	if (f->norms)
		((float *)(void *)(to + f->kb_norm))[tile] = att_longest(p, kp->at, some, kp->ld);
}

static void pack_block(const struct fwd *f, const struct prog_kern *k, char *const *ptr, int64_t b, int64_t blk, char *to, char *mem)
{
	const struct att_plan *p = &f->p;
	int es = p->v->es;
	int64_t k0 = blk * CK, n = MIN(CK, p->x.s - k0);
	char *dense = mem + f->dense_at, *tmp = mem + f->tmp_at;
	for (int64_t i = 0; i < n; i += ATT_COLS) {
		int64_t some = MIN(ATT_COLS, n - i), tile = i / ATT_COLS, ld;
		if (p->v->few) {
			place_tile(f, k, ptr, b, tile, k0 + i, some, to, tmp);
			continue;
		}
		const char *rows = att_take_from(p, &f->k, k, ptr, ATT_K, b, k0 + i, some, dense, p->dc, tmp, &ld);
		att_columns(rows, ld, p->dk * es / 4, to + f->kb_k + (size_t)(i * p->dk * es));
		if (f->norms)
			((float *)(void *)(to + f->kb_norm))[tile] = att_longest(p, rows, some, ld);
		rows = att_take_from(p, &f->v, k, ptr, ATT_V, b, k0 + i, some, dense, p->ec, tmp, &ld);
		if (f->words)
			((float *)(void *)(to + f->kb_top))[tile] = att_most(to + f->kb_k + (size_t)(i * p->dk * es), ATT_COLS * p->dk);
		to[f->kb_bad + (size_t)tile] = !att_steps(es, rows, ld, p->ec, to + f->kb_v + (size_t)(i * ATT_COLS * es), (size_t)(CK * ATT_COLS * es));
	}
}

/* Of a block, what tells which tiles count. */
static void bound_block(const struct fwd *f, const struct prog_kern *k, char *const *ptr, int64_t b, int64_t blk, char *to)
{
	int64_t k0 = blk * CK;
	att_side_bounds(&f->p, k, ptr, b, true, k0, MIN(CK, f->p.x.s - k0), ATT_COLS, (double *)(void *)(to + f->kb_lo), (double *)(void *)(to + f->kb_hi), TILES);
}

static int64_t distinct_of(const struct fwd *f, const struct prog_kern *k, int64_t b)
{
	int64_t ix[MAX_RANK];
	index_of(f->p.x.nb, k->v[ATT_Q].dim, b, ix);
	return offset_of(f->p.x.nb, f->same, ix);
}

/* Part t0 .. t1 of all blocks of the batches that are packed together, from `first` on. */
static void pack_all(const struct fwd *f, const struct prog_kern *k, const struct kern_state *s, char *const *ptr, int64_t first, int64_t t0, int64_t t1,
                     char *mem)
{
	char *to = ptr[k->nin + k->nout];
	int64_t n = MIN(f->some, f->distinct - first) * f->nkb, lo = n * t0 / s->tiles, hi = n * t1 / s->tiles, ix[MAX_RANK];
	for (int64_t i = lo; i < hi; i++) {
		/* the first batch that has these keys */
		int64_t left = first + i / f->nkb, b = 0;
		for (int d = 0; d < f->p.x.nb; d++) {
			ix[d] = f->same[d] ? left / f->same[d] : 0;
			left -= ix[d] * f->same[d];
			b = b * k->v[ATT_Q].dim[d] + ix[d];
		}
		/* other cores may have read what was there */
		bound_block(f, k, ptr, b, i % f->nkb, mem + f->kb_at);
		pack_block(f, k, ptr, b, i % f->nkb, mem + f->kb_at, mem);
		copy_shared(COPY_PACKED, to + (size_t)i * f->kb_bytes, mem + f->kb_at, f->kb_bytes);
	}
}

/* --- a tile -------------------------------------------------------------------------------------- */

/* Is it known of all rows that no tile of the block counts, so that nobody reads it? */
static bool hidden(const struct run *r)
{
	bool all = r->at->clear && !r->second;
	for (int i = 0; i < r->at->nt && all; i++)
		all = !(r->at->known.score->nan >> i & 1) && r->at->known.score->hi[i] <= ATT_FILL;
	return all;
}

static void find_block(struct run *r, int64_t blk)
{
	const struct fwd *f = r->f;
	char *own = r->mem + f->kb_at + (size_t)(r->at - r->block) * f->kb_bytes;
	r->at->kb = f->lazy ? own : r->ptr[r->k->nin + r->k->nout] + (size_t)(distinct_of(f, r->k, r->b) % f->some * f->nkb + blk) * f->kb_bytes;
	r->at->k0 = blk * CK;
	r->at->nt = (int)((MIN(CK, f->p.x.s - r->at->k0) + ATT_COLS - 1) / ATT_COLS);
	r->at->top = 0;
	r->at->clear = false;
	if (f->lazy)
		bound_block(f, r->k, r->ptr, r->b, blk, own);
	if (!f->norms)
		att_ask(r);
	if (hidden(r))
		return;
	if (f->lazy)
		pack_block(f, r->k, r->ptr, r->b, blk, own, r->mem);
	if (f->norms)
		att_ask(r);
	for (int i = 0; i < r->at->nt && f->words; i++)
		r->at->top = fmaxf(r->at->top, ((const float *)(const void *)(r->at->kb + f->kb_top))[i]);
}

static void keys(struct run *r, int64_t part)
{
	const struct fwd *f = r->f;
	int64_t lo = f->nkb * part / f->parts, hi = f->nkb * (part + 1) / f->parts;
	for (int64_t blk = lo; blk < hi; blk += f->near) {
		struct block *end = r->block + MIN(f->near, hi - blk);
		for (r->at = r->block; r->at < end; r->at++)
			find_block(r, blk + (r->at - r->block));
		/* keys that other threads have packed are far */
		int64_t next = f->lazy ? 0 : MIN(f->near, MAX(hi - blk - f->near, 0));
		r->fetch = r->block[0].kb + (size_t)f->near * f->kb_bytes;
		r->fetch_end = r->fetch + (size_t)next * f->kb_bytes;
		for (int64_t row = 0; row < r->nr; row += f->rq)
			for (r->at = r->block; r->at < end; r->at++)
				att_item(r, row);
		att_settle(r);
	}
}

/* Rows and what is known of them. */
static void load_rows(struct run *r)
{
	const struct fwd *f = r->f;
	const struct att_plan *p = &f->p;
	int es = p->v->es, mr = p->v->mr;
	for (int64_t i = 0; i < att_pad(r->nr, mr); i += ATT_FETCH)      /* rows of padding, too: zeros */
		att_fetch_from(p, &f->q, r->k, r->ptr, ATT_Q, r->b, r->r0 + i, MAX(MIN(ATT_FETCH, r->nr - i), 0), r->mem + f->q_at + (size_t)(i * p->dc * es), p->dc, r->mem + f->tmp_at);
	r->top_q = f->words ? att_most(r->mem + f->q_at, att_pad(r->nr, mr) * p->dc) : 0;
	att_side_bounds(p, r->k, r->ptr, r->b, false, r->r0, r->nr, (int)f->rq, (double *)(void *)(r->mem + f->lo_at), (double *)(void *)(r->mem + f->hi_at),
	                (f->qb + f->rq - 1) / f->rq);
	for (int64_t i = 0; i * f->rq < r->nr && f->norms; i++)
		((float *)(void *)(r->mem + f->norm_at))[i] =
			att_longest(p, r->mem + f->q_at + (size_t)(i * f->rq * p->dc * es), MIN(f->rq, r->nr - i * f->rq), p->dc * es);
}

static void start_rows(struct run *r)
{
	const struct fwd *f = r->f;
	memset(r->o, 0, sizeof *r->o * (size_t)(f->qb * f->p.ec));
	memset(r->l, 0, sizeof *r->l * (size_t)f->qb);
	if (r->z)
		memset(r->z, 0, sizeof *r->z * (size_t)f->qb);
	for (int64_t i = 0; r->top && i < f->qb; i++)
		for (int j = 0; j < ATT_LANES; j++)
			r->top[i][j] = -INFINITY;
	for (int64_t i = 0; i < f->qb; i++) {
		r->ref.whole[i] = r->ref.m[i] = r->ref.mx[i] = r->ref.less[i] = r->ref.lessx[i] = 0;
		r->ref.most[i] = r->ref.mostx[i] = -INFINITY;
		r->ref.m2[i] = INFINITY;
		r->ref.words[i] = 0.5f - 127 * 256;
	}
	r->low = -INFINITY;
	r->second = false;
	r->referred = r->set = r->met = 0;
}

/* The sum of row i's p before it was rounded. */
static float exact_sum(const struct run *r, int64_t i) { return att_sum(r->z ? r->z[i] : r->l[i]); }

static float top_of_row(const struct run *r, int64_t i)
{
	float top = -INFINITY;
	for (int j = 0; r->top && j < ATT_LANES; j++)
		top = fmaxf(top, r->top[i][j]);
	return top;
}

/* Row i of o, of which its panels are parts. */
static const float *panels_of(const struct run *r, const float *o, int64_t i)
{
	int64_t mr = r->f->p.v->mr;
	return o + (i / mr * mr * r->f->p.ec / ATT_COLS + i % mr) * ATT_COLS;
}

/* The same, one after the other, times x. */
static float *row_of(const struct run *r, const float *o, int64_t i, float x)
{
	float *row = (float *)(void *)(r->mem + r->f->row_at);
	const float *from = panels_of(r, o, i);
	for (int64_t e = 0; e < r->f->p.ec; e += ATT_COLS, from += r->f->p.v->mr * ATT_COLS)
		for (int j = 0; j < ATT_COLS; j++)
			row[e + j] = from[j] * x;
	return row;
}

/* What a row is multiplied with in the end; of one without keys all is 0 already. */
static float share(float sum) { return sum == 0 ? 0 : 1 / sum; }

/* l is more exact than what a row of other results is made from. */
static void store_log(const struct att_rows *r, char *base, int64_t row, double l, char *tmp)
{
	float narrow = (float)l;
	if (r->dt == DT_f64)
		memcpy(base + att_row(r, row), &l, sizeof l);
	else
		att_store(r, base, row, &narrow, tmp);
}

/* A row, which may be stored already (NULL), whose sum relative to ref is this, not rounded; top: the highest score. */
static void finish(const struct run *r, int64_t i, const float *row, double ref, float sum, float top)
{
	const struct fwd *f = r->f;
	char *tmp = r->mem + f->tmp_at;
	if (row)
		att_store(&f->o, r->to_o, r->r0 + i, row, tmp);
	if (f->p.x.log)
		store_log(&f->l, r->to_l, r->r0 + i, sum == 0 ? -INFINITY : ref + log((double)sum), tmp);
	if (f->p.x.below)
		att_store_below(&f->o, r->to_o, &f->z, r->to_z, r->r0 + i, row);
	if (f->p.x.part) {
		float z = sum == 0 ? 0 : (float)(sum * exp(ref - top));
		store_log(&f->l, r->to_l, r->r0 + i, isnan(sum) && top < INFINITY ? NAN : top, tmp);
		att_store(&f->z, r->to_z, r->r0 + i, &z, tmp);
	}
}

/* Rows whose reference is so low that what was left out counts. */
static bool needs_second(const struct run *r)
{
	for (int64_t i = 0; i < r->nr; i++)
		if (r->low > -INFINITY && (r->ref.most[i] == -INFINITY || r->low - r->ref.m[i] >= NOTHING))
			return true;
	return false;
}

/* --- parts of keys ---------------------------------------------------------------------------------- */

static char *part_of(const struct run *r, int64_t blk, int64_t part)
{
	const struct fwd *f = r->f;
	return r->ptr[r->k->nin + r->k->nout] + f->part_at + (size_t)((r->b * f->nblk + blk) * f->parts + part) * f->part_bytes;
}

/* Of each row; a reference of -inf: none. */
struct row { double ref, sum, exact; };
static struct row *rows_at(char *part, size_t which) { return (struct row *)(void *)(part + which); }

static void keep_rows(const struct run *r, struct row *to)
{
	for (int64_t i = 0; i < r->nr; i++)
		to[i] = (struct row){ r->ref.most[i] == -INFINITY ? -INFINITY : r->ref.whole[i], att_sum(r->l[i]), exact_sum(r, i) };
}

static void keep_tops(const struct run *r, char *to)
{
	for (int64_t i = 0; r->top && i < r->nr; i++)
		((float *)(void *)(to + r->f->part_top))[i] = top_of_row(r, i);
}

static void keep(const struct run *r, char *to)
{
	memcpy(to, r->o, sizeof *r->o * (size_t)(r->f->qb * r->f->p.ec));
	memcpy(to + r->f->part_low, &r->low, sizeof r->low);
	keep_rows(r, rows_at(to, r->f->part_row));
	keep_rows(r, rows_at(to, r->f->part_row2));
	keep_tops(r, to);
}

static double top_of(const struct run *r, int64_t blk, int64_t i, size_t which)
{
	double top = -INFINITY;
	for (int64_t x = 0; x < r->f->parts; x++)
		top = fmax(top, rows_at(part_of(r, blk, x), which)[i].ref);
	return top;
}

/* What a part left out, if rows need it that no part has anything for. */
static void second_part(struct run *r, int64_t blk, int64_t part)
{
	const struct fwd *f = r->f;
	char *mine = part_of(r, blk, part);
	bool need = false;
	memcpy(&r->low, mine + f->part_low, sizeof r->low);
	for (int64_t i = 0; i < r->nr && r->low > -INFINITY && !need; i++) {
		double top = top_of(r, blk, i, f->part_row);
		need = top == -INFINITY || r->low - top >= NOTHING;
	}
	if (!need)
		return;
	float low = r->low;
	start_rows(r);
	load_rows(r);
	memcpy(r->o, mine, sizeof *r->o * (size_t)(f->qb * f->p.ec));
	for (int64_t i = 0; i < r->nr; i++) {
		const struct row *row = &rows_at(mine, f->part_row)[i];
		r->l[i][0] = (float)row->sum;
		if (r->z)
			r->z[i][0] = (float)row->exact;
		if (r->top)
			r->top[i][0] = ((const float *)(const void *)(mine + f->part_top))[i];
		if (row->ref > -INFINITY)
			att_set_ref(r, i, row->ref);
	}
	r->second = true;
	keys(r, part);
	r->low = low;
	memcpy(mine, r->o, sizeof *r->o * (size_t)(f->qb * f->p.ec));
	keep_rows(r, rows_at(mine, f->part_row2));
	keep_tops(r, mine);
}

/* Rows of all parts, each relative to the highest of their references. */
static void join_parts(struct run *r, int64_t blk)
{
	const struct fwd *f = r->f;
	for (int64_t i = 0; i < r->nr; i++) {
		double top = top_of(r, blk, i, f->part_row2);
		float highest = -INFINITY, sum = 0, exact = 0, *all = r->o;
		memset(all, 0, sizeof *all * (size_t)f->p.ec);
		for (int64_t x = 0; x < f->parts; x++) {
			char *from = part_of(r, blk, x);
			const struct row *m = &rows_at(from, f->part_row2)[i];
			if (r->top)
				highest = fmaxf(highest, ((const float *)(const void *)(from + f->part_top))[i]);
			float w = m->ref == -INFINITY ? isnan(m->sum) : (float)exp(m->ref - top);
			if (w == 0)
				continue;
			const float *row = row_of(r, (const float *)(const void *)from, i, w);
			sum += w * (float)m->sum;
			exact += w * (float)m->exact;
			for (int64_t e = 0; e < f->p.ec; e++)
				all[e] += row[e];
		}
		for (int64_t e = 0; e < f->p.ec; e++)
			all[e] *= share(sum);
		finish(r, i, all, top, exact, highest);
	}
}

/* --- the grid -------------------------------------------------------------------------------------------- */

enum what { PACK, KEYS, SECOND, JOIN };

static void tile(struct run *r, enum what what, int64_t at)
{
	const struct fwd *f = r->f;
	int64_t part = at % f->parts, blk = at / f->parts % f->nblk;
	r->b = at / f->parts / f->nblk;
	blk = blk % 2 ? f->nblk - 1 - blk / 2 : blk / 2;         /* under a triangle, short and long ones in turn */
	r->r0 = blk * f->qb;
	r->nr = MIN(f->qb, f->p.rows - r->r0);
	r->to_o = attention_at(r->k, r->ptr, &f->p.x, r->k->nin, r->b);
	if (f->p.x.part || f->p.x.log)
		r->to_l = attention_at(r->k, r->ptr, &f->p.x, r->k->nin + 1, r->b);
	if (f->p.x.part || f->p.x.below)
		r->to_z = attention_at(r->k, r->ptr, &f->p.x, r->k->nin + 2, r->b);
	att_extra_start(&f->p, r->k, r->ptr, r->b, r->mem + f->fn_at);
	if (what == SECOND) {
		second_part(r, blk, part);
	} else if (what == JOIN) {
		if (!part)
			join_parts(r, blk);
	} else {
		start_rows(r);
		load_rows(r);
		keys(r, part);
		if (f->parts > 1) {
			keep(r, part_of(r, blk, part));
			return;
		}
		if (needs_second(r)) {
			r->second = true;
			keys(r, part);
		}
		for (int64_t i = 0; i < r->nr; i++) {
			float sum = att_sum(r->l[i]);
			if (f->direct)
				att_store_panels(f->p.ec / ATT_COLS, panels_of(r, r->o, i), f->p.v->mr * ATT_COLS, share(sum), r->to_o + att_row(&f->o, r->r0 + i));
			finish(r, i, f->direct ? NULL : row_of(r, r->o, i, share(sum)), r->ref.whole[i], r->z ? att_sum(r->z[i]) : sum, top_of_row(r, i));
		}
	}
}

static void run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr, int64_t t0, int64_t t1, void *scratch)
{
	const struct fwd *f = s->priv;
	char *mem = scratch;
	float *m = (float *)(void *)(mem + f->m_at);
	struct run r = { .f = f, .k = k, .ptr = ptr, .mem = mem, .ref = { (double *)(void *)(mem + f->whole_at), m, m + f->qb, m + 2 * f->qb, m + 3 * f->qb, m + 4 * f->qb, m + 5 * f->qb, m + 6 * f->qb, m + 7 * f->qb },
	                 .s = (float *)(void *)(mem + f->s_at), .one = (float *)(void *)(mem + f->one_at), .o = (float *)(void *)(mem + f->o_at), .l = (float (*)[ATT_LANES])(void *)(mem + f->l_at),
	                 .sum = (float (*)[ATT_LANES])(void *)(mem + f->sum_at), .flow = { .now = { .i0 = -1 }, .before = { .i0 = -1 } },
	                 .z = f->two ? (float (*)[ATT_LANES])(void *)(mem + f->z_at) : NULL, .top = f->p.x.part ? (float (*)[ATT_LANES])(void *)(mem + f->top_at) : NULL };
	/* keys of some batches are packed, then their tiles are made; parts are put together by who reads packed keys again, if at all */
	int each = (f->lazy ? 1 : 2) + (f->parts > 1 ? 2 : 0);
	enum what what = (enum what)(phase % each + (f->lazy ? 1 : 0));
	int64_t first = phase / each * f->some;
	if (what == PACK) {
		pack_all(f, k, s, ptr, first, t0, t1, mem);
		return;
	}
	plan_start(f->p.x.fn, mem + f->fn_at + f->p.fn_mem);
	if (f->p.mask)
		plan_start(f->p.mask, mem + f->fn_at + f->p.fn_mask);
	att_range_start(&f->p.range, (struct att_bound *)(void *)(mem + f->fn_at + f->p.fn_reg));
	if (f->p.v->begin)
		f->p.v->begin();
	for (int64_t t = t0; t < t1; t++) {
		int64_t d = distinct_of(f, k, t / f->parts / f->nblk);
		if (d >= first && d < first + f->some)
			tile(&r, what, t);
	}
	if (f->p.v->end)
		f->p.v->end();
	__atomic_fetch_add(&att_tiles_done, r.done, __ATOMIC_RELAXED);
	__atomic_fetch_add(&att_tiles_left, r.left, __ATOMIC_RELAXED);
}

/* Batches that differ in nothing that a block of keys is made of share it. */
static void find_distinct(struct fwd *f, const struct prog_kern *k, struct arena *a)
{
	const struct attention *x = &f->p.x;
	f->same = ARENA_NEW(a, int64_t, x->nb + 1);
	f->distinct = 1;
	for (int d = x->nb; d-- > 0;) {
		bool same = true;
		for (int i = ATT_K; i < x->first + x->nextra; i++)
			if (i == ATT_K || i == ATT_V || f->p.extra[i - x->first].by_key)
				same &= k->v[i].dim[d] == 1 || k->v[i].stride[d] == 0;
		f->same[d] = same ? 0 : f->distinct;
		f->distinct *= same ? 1 : k->v[ATT_Q].dim[d];
	}
}

static void lay_out(struct fwd *f, struct kern_state *s)
{
	const struct att_plan *p = &f->p;
	int64_t es = p->v->es, extra = p->x.nextra, items = (f->qb + f->rq - 1) / f->rq;
	f->steps = p->dk * es / 4;
	f->q_row = p->dc * es;
	f->p_row = CK * es;
	f->k_tile = p->v->few ? (int64_t)sizeof(struct place) : ATT_COLS * p->dk * es;
	f->c2 = (p->raw ? p->range.c : 1) * LOG2E;
	f->as_product = 1 / (double)p->range.c;
	f->as_exponent = f->c2 * (p->raw ? f->as_product : 1);
	f->as_score = 1 / f->as_exponent;
	f->two = es == 2 && (p->x.part || p->x.log);
	f->words = es == 2 && (p->v->stream || p->v->fused) && !f->two;
	size_t *n = &f->kb_bytes;
	f->kb_k = att_room(n, p->v->few ? TILES * f->k_tile : CK * p->dk * es);
	f->kb_v = att_room(n, p->v->few ? TILES * f->k_tile : CK * p->ec * es);
	f->kb_dense = att_room(n, p->v->few ? TILES * att_dense_rows(p) * (p->dc + p->ec) * es : 0);
	f->kb_norm = att_room(n, TILES * 4);
	f->kb_top = att_room(n, f->words ? TILES * 4 : 0);
	f->kb_bad = att_room(n, TILES);
	f->kb_lo = att_room(n, extra * TILES * 8);
	f->kb_hi = att_room(n, extra * TILES * 8);
	n = &s->scratch;
	f->q_at = att_room(n, att_pad(f->qb, ATT_FETCH) * p->dc * es + ATT_FETCH * p->dc * es);
	f->o_at = att_room(n, f->qb * p->ec * 4);
	f->p_at = att_room(n, f->rq * CK * es);
	f->s_at = att_room(n, p->v->stream ? 2 * ATT_MOST_MR * ATT_COLS * 4 : 0);
	f->one_at = att_room(n, ATT_MOST_MR * ATT_COLS * 4);
	f->sum_at = att_room(n, p->v->stream ? 2 * ATT_MOST_MR * ATT_LANES * 4 : 0);
	f->w_at = att_room(n, ATT_MOST_MR * ATT_COLS * 4);
	f->l_at = att_room(n, f->qb * ATT_LANES * 4);
	f->z_at = att_room(n, f->two ? f->qb * ATT_LANES * 4 : 0);
	f->top_at = att_room(n, p->x.part ? f->qb * ATT_LANES * 4 : 0);
	f->m_at = att_room(n, REF_FLOATS * f->qb * 4);
	f->whole_at = att_room(n, f->qb * 8);
	f->lo_at = att_room(n, extra * items * 8);
	f->hi_at = att_room(n, extra * items * 8);
	f->norm_at = att_room(n, items * 4);
	f->row_at = att_room(n, p->ec * 4);
	f->dense_at = att_room(n, att_dense_rows(p) * MAX(p->dc, p->ec) * es);
	f->tmp_at = att_room(n, (int64_t)att_fetch_bytes(p));
	f->fn_at = att_room(n, (int64_t)p->fn_bytes);
	f->kb_at = att_room(n, (f->lazy ? f->near : 1) * (int64_t)f->kb_bytes);
	n = &f->part_bytes;
	att_room(n, f->qb * p->ec * 4);
	f->part_row = att_room(n, f->qb * (int64_t)sizeof(struct row));
	f->part_row2 = att_room(n, f->qb * (int64_t)sizeof(struct row));
	f->part_top = att_room(n, p->x.part ? f->qb * 4 : 0);
	f->part_low = att_room(n, 4);
	f->part_at = f->lazy ? 0 : (size_t)(f->some * f->nkb) * f->kb_bytes;
	s->shared = f->part_at + (f->parts > 1 ? (size_t)(p->x.batch * f->nblk * f->parts) * f->part_bytes : 0);
}

/* Tiles of at most so many items of rows, fewer where there would be fewer tiles than that; from shapes alone. */
static void share_out(struct fwd *f, int64_t items, int64_t tiles)
{
	const struct attention *x = &f->p.x;
	int64_t mr = f->p.v->mr, rows = f->p.rows;
	f->rq = ITEM / mr * mr;
	f->qb = items * f->rq;
	while (f->qb > f->rq && (x->batch * ((rows + f->qb - 1) / f->qb) < tiles || f->qb / 2 >= rows))
		f->qb /= 2;
	f->qb = MAX(f->qb, f->rq);
	if (rows < f->qb)
		f->qb = att_pad(rows, mr);
	f->rq = MIN(f->rq, f->qb);
	f->nblk = (rows + f->qb - 1) / f->qb;
	tiles = x->batch * f->nblk;
	f->parts = MAX(MIN((MANY + tiles - 1) / tiles, f->nblk == 1 ? x->s / PART_LEAST : 1), 1);
	f->lazy = f->nblk == 1 && f->distinct == x->batch;
}

bool attention_forward(const struct prog_kern *k, const struct attention *x, struct kern_state *s)
{
	struct fwd *f = ARENA_NEW(&s->a, struct fwd, 1);
	memset(f, 0, sizeof *f);
	if (!att_plan_make(k, x, false, &s->a, &f->p))
		return false;
	struct att_rows *rows[] = { &f->q, &f->k, &f->v, &f->o, &f->l, &f->z };
	for (int i = 0; i < 3 + k->nout; i++)
		att_rows_make(&f->p, k, i < 3 ? i : k->nin + i - 3, rows[i]);
	f->nkb = (x->s + CK - 1) / CK;
	find_distinct(f, k, &s->a);
	if (!f->p.range.plain)
		f->p.range.c = 1;
	share_out(f, f->p.v->stream ? LONG : SHORT, f->p.v->stream ? MANY : MANY / 2);
	f->near = f->p.v->stream && !f->lazy ? NEAR : 1;
	/* as many batches at once as give tiles enough */
	int64_t sharers = x->batch / f->distinct, keys = f->nkb * CK * (f->p.dk + f->p.ec) * f->p.v->es;
	f->some = f->lazy ? f->distinct : MIN((MANY + f->nblk * sharers - 1) / (f->nblk * sharers), f->distinct);
	if (!f->lazy && f->some * keys > MOST) {
		share_out(f, f->p.v->stream ? 2 * LONG : LONG, FEW);      /* products by tiles are faster than packing is */
		f->lazy = true;
		f->some = f->distinct;
	}
	f->norms = !f->p.range.plain && x->nextra;
	f->direct = f->o.dt == DT_bf16 && f->o.unit == 2 && x->e % ATT_COLS == 0 && !x->below && cpu_get()->avx512_bf16;
	f->bounds = !f->p.range.always && (f->p.range.plain || x->nextra > 0);
	lay_out(f, s);
	s->tiles = x->batch * f->nblk * f->parts;
	s->phases = (int)((f->distinct + f->some - 1) / f->some) * ((f->lazy ? 1 : 2) + (f->parts > 1 ? 2 : 0));
	s->run = run;
	s->priv = f;
	return true;
}
