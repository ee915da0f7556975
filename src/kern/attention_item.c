/* An item of attention forward: which of its tiles count, their scores and exponentials, and those times values. */
#include "attention_forward.h"

#include <float.h>
#include <math.h>

/* --- which tiles count ------------------------------------------------------------------ */

/* Of rows i0 .. i0 + n from the tile's begin, whole items or all, with each tile of the block: plain ones, and the bound of scores. */
static struct att_known known_of(const struct run *r, int64_t i0, int64_t n)
{
	const struct fwd *f = r->f;
	const struct att_plan *p = &f->p;
	struct att_bound *reg = (struct att_bound *)(void *)(r->mem + f->fn_at + p->fn_reg);
	const double *rlo = (const double *)(const void *)(r->mem + f->lo_at), *rhi = (const double *)(const void *)(r->mem + f->hi_at);
	const float *norm = (const float *)(const void *)(r->mem + f->norm_at), *knorm = (const float *)(const void *)(r->at->kb + f->kb_norm);
	int64_t first = i0 / f->rq, items = (n + f->rq - 1) / f->rq, all = (f->qb + f->rq - 1) / f->rq;
	att_bound_any(DT_f32, &reg[0]);
	if (f->norms)
		att_norm_bounds(norm + first, items, knorm, r->at->nt, &reg[0]);
	for (int x = 0; x < p->x.nextra; x++) {
		const struct att_extra *e = &p->extra[x];
		const double *klo = (const double *)(const void *)(r->at->kb + f->kb_lo) + x * TILES, *khi = (const double *)(const void *)(r->at->kb + f->kb_hi) + x * TILES;
		if (e->by_row && !e->by_key)
			att_bound_one(e->dt, rlo + x * all + first, rhi + x * all + first, items, r->at->nt, &reg[1 + x]);
		else if (e->by_key && !e->by_row)
			att_bound_each(e->dt, klo, khi, r->at->nt, &reg[1 + x]);
	}
	att_tile_bounds(p, r->r0 + i0, (int)n, r->at->k0, p->x.s, r->at->nt, r->mem + f->fn_at, reg);
	return att_range_run(&p->range, r->at->nt, reg);
}

/* Are scores of at most up nothing beside what rows i0 .. i1 have? */
static bool nothing_beside(const struct run *r, int64_t i0, int64_t i1, double up)
{
	for (int64_t i = i0; i < i1; i++)
		if (!(r->ref.most[i] == -INFINITY ? r->second && up == -INFINITY : up - r->ref.m[i] < NOTHING))
			return false;
	return true;
}

/* What is known of some rows with the block of keys; true: no more would be of fewer. */
static bool ask(struct run *r, int64_t i0, int64_t n)
{
	bool clear = true;
	r->at->known = known_of(r, i0, n);
	r->at->score = *r->at->known.score;
	r->at->known.score = &r->at->score;
	for (int i = 0; i < r->at->nt; i++)
		clear &= r->at->known.plain >> i & 1 || (!(r->at->known.score->nan >> i & 1) && r->at->known.score->hi[i] <= ATT_FILL);
	return clear;
}

void att_ask(struct run *r)
{
	const struct fwd *f = r->f;
	r->at->clear = f->bounds && r->nr > f->rq && ask(r, 0, r->nr);
}

/* Kinds of an item's tiles. */
static void classify(struct run *r, int64_t i0, int64_t n, uint8_t *kind)
{
	const struct fwd *f = r->f;
	const struct att_known *known = &r->at->known;
	if (!f->bounds) {
		memset(kind, r->second ? NONE : f->p.range.plain ? PLAIN : SCORE, TILES);
		return;
	}
	if (!r->at->clear)
		ask(r, i0, n);
	for (int i = 0; i < r->at->nt; i++) {
		double up = known->score->nan >> i & 1 ? INFINITY : known->score->hi[i];
		bool low = up <= ATT_FILL;
		if (low && !r->second)
			r->low = up > r->low ? (float)up : r->low;
		kind[i] = low != r->second || (up < INFINITY && nothing_beside(r, i0, i0 + n, up)) ? NONE : known->plain >> i & 1 ? PLAIN : SCORE;
	}
}

/* --- an item --------------------------------------------------------------------------------- */

static char *p_at(const struct run *r, int64_t row) { return r->mem + r->f->p_at + (size_t)(row * CK * r->f->p.v->es); }
static float *o_at(const struct run *r, int64_t g, int64_t panel)
{
	int mr = r->f->p.v->mr;
	return r->o + (g * (r->f->p.ec / ATT_COLS) + panel) * mr * ATT_COLS;
}

/* n numbers of a row's p, times x; what rounding adds to their sum. */
static float rescale_p(const struct run *r, char *p, int64_t n, float x)
{
	float some[CK], *all = r->f->p.v->es == 2 ? some : (float *)(void *)p, more = 0;
	if (r->f->p.v->es == 2)
		kern_isa_get()->bf16_f32(n, some, p, NULL, NULL);
	for (int64_t j = 0; j < n; j++)
		all[j] *= x;
	if (r->f->p.v->es == 2) {
		kern_isa_get()->f32_bf16(n, p, some, NULL, NULL);
		for (int64_t j = 0; j < n; j++)
			more += bf16_to_f32(((const uint16_t *)(const void *)p)[j]) - some[j];
	}
	return more;
}

/* All that row i (of the tile; of the item row at) has so far, of which p of tiles t0 .. t1 are not in its sums yet, times x. */
static void rescale(const struct run *r, int64_t i, int64_t at, int t0, int t1, float x)
{
	const struct fwd *f = r->f;
	int mr = f->p.v->mr, es = f->p.v->es;
	for (int j = 0; j < ATT_LANES; j++) {
		r->l[i][j] *= x;
		if (r->z)
			r->z[i][j] *= x;
	}
	for (int64_t e = 0; e < f->p.ec / ATT_COLS; e++) {
		float *o = o_at(r, i / mr, e) + i % mr * ATT_COLS;
		for (int j = 0; j < ATT_COLS; j++)
			o[j] *= x;
	}
	r->l[i][0] += rescale_p(r, p_at(r, at) + t0 * ATT_COLS * es, (t1 - t0) * ATT_COLS, x);
}

static float at_least(float x) { return x < -FLT_MAX ? -FLT_MAX : x; }

void att_set_ref(const struct run *r, int64_t i, double whole)
{
	const struct fwd *f = r->f;
	float c = f->p.range.c, m2 = (float)(whole * f->as_exponent);
	if (!(fabsf(m2) < REF_MOST))      /* what the float lacks would be much beside a weight */
		m2 = INFINITY;
	else if (f->p.raw)
		whole = m2 * f->as_score;
	float m = (float)whole, mx = (float)(whole * f->as_product);
	r->ref.whole[i] = whole;
	r->ref.m[i] = m;
	r->ref.mx[i] = at_least(mx);
	r->ref.m2[i] = m2;
	r->ref.words[i] = (m2 - 127) * 256 + 0.5f;
	r->ref.less[i] = att_less(whole, m, 1);
	r->ref.lessx[i] = att_less(whole, mx, c);
	r->ref.most[i] = at_least(m + ATT_LAZY);
	r->ref.mostx[i] = at_least(r->ref.mx[i] + ATT_LAZY * (float)f->as_product);
}

/* Some row's scores s (products, if raw) exceed what it allows; p of tiles t0 .. t1 are not in its sums yet. */
__attribute__((noinline, cold))
static void raise_refs(struct run *r, const float *s, int64_t i0, int64_t at, int rows, int t0, int t1, bool raw)
{
	float c = r->f->p.range.c, tops[ATT_MOST_MR];
	r->f->p.v->soft->tops(rows, s, tops);
	for (int i = 0; i < rows; i++) {
		float top = tops[i];
		int64_t x = i0 + i;
		if (!(top > (raw ? r->ref.mostx[x] : r->ref.most[x])))
			continue;
		double old = r->ref.most[x] > -INFINITY ? r->ref.whole[x] : INFINITY;
		att_set_ref(r, x, raw ? (double)top * c : top);
		if (old < INFINITY)
			rescale(r, x, at + i, t0, t1, (float)exp(old - r->ref.whole[x]));
	}
	if (r->f->p.v->stream || r->f->p.v->fused) {
		r->referred &= ~((uint64_t)1 << i0 / rows);
		r->set &= ~((uint64_t)1 << i0 / rows);
	}
}

/* Rows of a group from i0 on that count. */
static int rows_of(const struct run *r, int64_t i0) { return r->f->p.v->few ? (int)MIN(r->f->p.v->mr, r->nr - i0) : r->f->p.v->mr; }

static void products(const struct run *r, int rows, const char *a, const char *b, float *s)
{
	const struct fwd *f = r->f;
	const struct place *k = (const struct place *)(const void *)b;
	if (f->p.v->few)
		f->p.v->few->dot(rows, f->q_row, a, f->q_row, k->at, k->ld, s);
	else
		f->p.v->micro(f->steps, a, f->q_row, b, s, false);
}

/* Scores of group g (group at of the item) and tile t one by one, unless they are made, and their exponentials to p. */
__attribute__((noinline))
static void score_tile(struct run *r, int64_t i0, int64_t at, int t, bool plain, bool made, const char *a, const char *b, char *to)
{
	const struct fwd *f = r->f;
	const struct att_plan *p = &f->p;
	const struct att_variant *v = p->v;
	int rows = rows_of(r, i0), n1 = (int)MIN(ATT_COLS, p->x.s - r->at->k0 - t * ATT_COLS);
	struct att_rest rest = { 0 };
	bool raw = plain && p->raw;
	float *s = r->one;
	if (!made)
		products(r, rows, a, b, s);
	if (!plain) {
		if (p->x.weighted)
			rest.weight = (float *)(void *)(r->mem + f->w_at);
		att_score(p, r->r0 + i0, rows, r->at->k0 + t * ATT_COLS, n1, s, &rest, r->mem + f->fn_at);
	} else if (!made) {
		if (!raw)
			v->soft->scale(rows, s, p->range.c);
		for (int i = 0; i < rows; i++)
			for (int j = n1; j < ATT_COLS; j++)
				s[i * ATT_COLS + j] = -INFINITY;
	}
	if (v->soft->over(rows, s, (raw ? r->ref.mostx : r->ref.most) + i0))
		raise_refs(r, s, i0, at * v->mr, rows, v->stream ? t / HALF * HALF : r->t0, t, raw);
	if (r->top)
		v->soft->raise(rows, s, raw ? p->range.c : 1, r->top + i0);
	v->soft->forward(rows, s, (raw ? r->ref.mx : r->ref.m) + i0, raw ? f->c2 : LOG2E, (raw ? r->ref.lessx : r->ref.less) + i0, rest.weight, to, f->p_row, r->l + i0,
	                 r->z ? r->z + i0 : NULL);
}

/* Have all rows of group g references that exponentials are made with?  Who has one keeps one. */
static bool all_set(struct run *r, int64_t g)
{
	int64_t mr = r->f->p.v->mr;
	bool set = true;
	if (r->set >> g & 1)
		return true;
	for (int64_t i = g * mr; i < (g + 1) * mr; i++)
		set &= r->ref.most[i] > -INFINITY && (!r->f->p.raw || r->ref.m2[i] < INFINITY);
	r->set |= (uint64_t)set << g;
	return set;
}

/* Is a part of a sum at least ATT_LEAST?  (As integers, several at once; or a NaN.) */
static bool enough(const float l[ATT_LANES])
{
	const float least = ATT_LEAST;
	int32_t part[ATT_LANES], from, any = 0;
	memcpy(part, l, sizeof part);
	memcpy(&from, &least, sizeof from);
	for (int j = 0; j < ATT_LANES; j++)
		any |= part[j] >= from;
	return any;
}

/* Exponentials of a group's first tile were made as if its references were 0, and are as good as any if their sums are not small.  Else there are none yet. */
static bool settled(struct run *r, int64_t i0)
{
	int mr = r->f->p.v->mr;
	for (int i = 0; i < mr; i++) {
		if (enough(r->l[i0 + i]))
			continue;
		memset(r->l + i0, 0, sizeof *r->l * (size_t)mr);
		if (r->z)
			memset(r->z + i0, 0, sizeof *r->z * (size_t)mr);
		return false;
	}
	for (int i = 0; i < mr; i++) {
		r->ref.most[i0 + i] = ATT_LAZY;
		r->ref.mostx[i0 + i] = ATT_LAZY * (float)r->f->as_product;
		r->ref.m2[i0 + i] = 0;
	}
	r->set |= (uint64_t)1 << i0 / mr;
	return true;
}

/* May p of plain tiles be made of integers?  Not of a NaN. */
static bool may_be_words(const struct run *r) { return r->f->words && r->top_q * r->at->top * r->f->c2 * (float)r->f->p.x.d < 0x1p22f; }

/* Of n groups from g0 on and tiles from t on, whose columns in mask count: products and exponentials at once, to the rows of p from `at` on.  How many that has made. */
static int fused(const struct run *r, int64_t g0, int n, int t, int tiles, const uint32_t *mask, int64_t at)
{
	const struct fwd *f = r->f;
	bool raw = f->p.raw, words = may_be_words(r);
	int64_t i0 = g0 * f->p.v->mr;
	struct att_fuse q = { .steps = f->steps, .lda = f->q_row, .ldp = f->p_row, .a = r->mem + f->q_at + (size_t)(i0 * f->q_row),
	                      .b = r->at->kb + f->kb_k + (size_t)(t * f->k_tile), .mask = mask, .words = words, .m = (words ? r->ref.words : raw ? r->ref.mx : r->ref.m) + i0,
	                      .less = (raw ? r->ref.lessx : r->ref.less) + i0, .by = f->p.range.c, .c2 = f->c2,
	                      .most = raw ? ATT_LAZY * (float)f->as_product : ATT_LAZY, .s = r->one, .p = p_at(r, at) + t * ATT_COLS * f->p.v->es, .l = r->l + i0,
	                      .z = r->z ? r->z + i0 : NULL, .top = r->top ? r->top + i0 : NULL };
	return f->p.v->fused(&q, n, tiles);
}

/* Tile t of group g0 + g, group g of an item; mask: what counts of it, or NULL.  How many of its columns do. */
static int score_group(struct run *r, int64_t g0, int64_t g, int t, bool plain, const uint32_t *mask)
{
	const struct fwd *f = r->f;
	const struct att_variant *v = f->p.v;
	int64_t mr = v->mr, i0 = (g0 + g) * mr;
	double fill = f->p.range.fill;
	bool drop = mask && !plain && (fill == -INFINITY || nothing_beside(r, i0, i0 + mr, fill)), set = v->fused && all_set(r, g0 + g);
	bool first = v->fused && !set && !r->second && !(r->met >> (g0 + g) & 1), made = false;
	uint32_t any = 0;
	for (int i = 0; i < mr; i++)
		any |= mask ? mask[i] : (uint32_t)-1;
	if (!any && drop)
		return 0;
	if ((set || first) && (plain || (mask && (first || drop)))) {
		made = fused(r, g0 + g, 1, t, 1, mask, g * mr);
		if (made && (set || settled(r, i0)))
			return ATT_COLS - __builtin_clz(any | 1);
		made = !made && first && !mask;
	}
	r->met |= v->fused ? (uint64_t)1 << (g0 + g) : 0;
	score_tile(r, i0, g, t, plain, made, r->mem + f->q_at + (size_t)(i0 * f->q_row), r->at->kb + f->kb_k + (size_t)(t * f->k_tile),
	           p_at(r, g * mr) + t * ATT_COLS * v->es);
	return ATT_COLS;
}

/* Tile t of all groups of an item, from group g on. */
static void scores(struct run *r, int64_t g0, int64_t g, int64_t ng, int t, enum kind kind, uint8_t (*cols)[TILES])
{
	const struct fwd *f = r->f;
	const struct att_variant *v = f->p.v;
	int64_t mr = v->mr, n1 = MIN(ATT_COLS, f->p.x.s - r->at->k0 - t * ATT_COLS);
	bool plain = kind == PLAIN, masked = v->fused && (plain ? n1 < ATT_COLS : kind == SCORE && f->p.mask);
	uint32_t mask[ITEM];
	for (int i = 0; i < ng * mr && masked; i++)
		mask[i] = (uint32_t)-1 >> (ATT_COLS - n1);
	if (masked && !plain)
		att_mask(&f->p, r->r0 + g0 * mr, (int)(ng * mr), r->at->k0 + t * ATT_COLS, mask, r->mem + f->fn_at);
	for (; g < ng; g++) {
		cols[g][t] = (uint8_t)(kind == NONE ? 0 : score_group(r, g0, g, t, plain, masked ? mask + g * mr : NULL));
		*(cols[g][t] ? &r->done : &r->left) += 1;
		for (int64_t i = 0; i < mr && v->es == 2 && !cols[g][t]; i++)      /* what is rescaled is added up */
			memset(p_at(r, g * mr + i) + t * ATT_COLS * 2, 0, ATT_COLS * 2);
	}
}

/* Tiles from t0 on that are alike for all groups of an item, as many as possible before t1, and groups of the next one: each has references.  How many of both. */
static int many(struct run *r, int64_t g0, int64_t ng, int t0, int t1, const uint8_t *kind, uint8_t (*cols)[TILES])
{
	const struct fwd *f = r->f;
	int t = t0, made;
	uint64_t all = ((uint64_t)1 << ng) - 1;
	bool set = f->p.v->fused && (r->set >> g0 & all) == all;
	while (set && t < t1 && kind[t] == PLAIN && r->at->k0 + (t + 1) * ATT_COLS <= f->p.x.s)
		t++;
	if (t == t0)
		return 0;
	made = fused(r, g0, (int)ng, t0, t - t0, NULL, 0);
	for (int64_t g = 0; g < ng; g++)
		memset(cols[g] + t0, ATT_COLS, (size_t)((made + ng - 1 - g) / ng));
	r->done += made;
	return made;
}

static bool all_finite(const float *x, int n)
{
	bool all = true;
	for (int i = 0; i < n; i++)
		all &= fabsf(x[i]) < INFINITY;
	return all;
}

/* Values that are not all finite, ATT_COLS columns of tile t from byte `at` of its first row on, ld bytes from one to the next: where p is 0 they do not count.
 * Those of a row are `step` bytes apart. */
static void careful(int es, int rows, const char *p, int64_t ldp, const char *at, int64_t ld, int step, float *o)
{
	for (int i = 0; i < rows; i++, o += ATT_COLS)
		for (int k = 0; k < ATT_COLS; k++) {
			const char *pp = p + i * ldp + k * es, *row = step == es ? at + k * ld : at + k / 2 * ld + k % 2 * es;
			float x = es == 2 ? bf16_to_f32(*(const uint16_t *)(const void *)pp) : *(const float *)(const void *)pp;
			for (int j = 0; j < ATT_COLS && x != 0; j++)
				o[j] += x * (es == 2 ? bf16_to_f32(*(const uint16_t *)(const void *)(row + step * j)) : *(const float *)(const void *)(row + step * j));
		}
}

/* Tile t of a group's values where they lie: of each row as much at once as there are registers for its sums. */
static void values_there(const struct run *r, int64_t i0, int t)
{
	const struct fwd *f = r->f;
	const struct place *v = (const struct place *)(const void *)(r->at->kb + f->kb_v) + t;
	int es = f->p.v->es, mr = f->p.v->mr, rows = rows_of(r, i0), all = (int)(f->p.ec / ATT_COLS), panels;
	for (int i = 0, n; i < rows; i += n) {
		n = MIN(rows - i, ATT_MIX);
		for (int e = 0; e < all; e += panels) {
			const char *p = p_at(r, i) + t * ATT_COLS * es, *at = v->at + e * ATT_COLS * es;
			float *o = o_at(r, i0 / mr, e) + i * ATT_COLS;
			panels = n <= 2 && all - e >= 4 ? 4 : all - e >= 2 ? 2 : 1;
			if (f->p.v->few->mix(n, panels, p, f->p_row, at, v->ld, o, mr * ATT_COLS))
				continue;
			for (int x = 0; x < panels; x++)
				careful(es, n, p, f->p_row, at + x * ATT_COLS * es, v->ld, es, o + x * mr * ATT_COLS);
		}
	}
}

/* Runs of tiles t0 .. t1 of groups whose p are made, times values. */
static void values(struct run *r, int64_t g0, int64_t ng, int t0, int t1, uint8_t (*cols)[TILES])
{
	const struct fwd *f = r->f;
	const struct att_variant *v = f->p.v;
	int es = v->es, mr = v->mr;
	const char *bad = r->at->kb + f->kb_bad;
	uint16_t len[ITEM][TILES];      /* of columns from a tile on that are multiplied at once */
	for (int t = t0; t < t1 && v->few; t++)      /* of one group */
		if (cols[0][t])
			values_there(r, g0 * mr, t);
	for (int64_t g = 0; g < ng && !v->few; g++)
		for (int t = t0, to; t < t1; t = to) {
			len[g][t] = cols[g][t];
			for (to = t + 1; to < t1 && len[g][t] == (to - t) * ATT_COLS && cols[g][to] && !bad[t] && !bad[to]; to++)
				len[g][t] += cols[g][to];
		}
	for (int64_t e = 0; e < f->p.ec / ATT_COLS && !v->few; e++) {
		const char *v_at = r->at->kb + f->kb_v + (size_t)(e * CK * ATT_COLS * es), *p = r->mem + f->p_at;
		float *o = o_at(r, g0, e);
		for (int64_t g = 0; g < ng; g++, p += mr * f->p_row, o += mr * f->p.ec)
			for (int t = t0; t < t1; t += MAX(att_pad(len[g][t], ATT_COLS) / ATT_COLS, 1)) {
				const char *pt = p + t * ATT_COLS * es, *vt = v_at + (size_t)(t * ATT_COLS * ATT_COLS * es);
				if (bad[t] && len[g][t])
					careful(es, mr, pt, f->p_row, vt, 128, 4, o);
				else if (len[g][t])
					v->micro(att_pad(len[g][t], v->kstep) * es / 4, pt, f->p_row, vt, o, true);
			}
	}
}

/* --- tiles: half an item at a time --------------------------------------------------------- */

/* Tile by tile: some score of half h exceeds a reference by more than its exponentials may. */
__attribute__((noinline, cold))
static void again(struct run *r, const struct half *h)
{
	const struct fwd *f = r->f;
	struct block *at = r->at;
	r->at = h->at;
	for (int t = h->t0; t < h->t0 + HALF; t++)
		score_tile(r, h->i0, 0, t, true, false, h->q, h->k + (t - h->t0) * f->k_tile, h->p + (t - h->t0) * ATT_COLS * f->p.v->es);
	r->at = at;
}

/* What streams goes on to the next half, or to none. */
static void advance(struct run *r, const struct half *next)
{
	static const struct half none = { .i0 = -1 };
	const struct fwd *f = r->f;
	const struct att_variant *v = f->p.v;
	struct flow *w = &r->flow;
	struct att_step q = { .steps = f->steps, .lda = f->q_row, .ldp = f->p_row, .s = r->s, .sum = r->sum, .c2 = f->c2, .by = f->p.range.c, .fetch = r->fetch, .fetch_end = r->fetch_end };
	if (w->now.i0 >= 0) {
		q.a = w->now.q;
		q.b = w->now.k;
		q.words = w->now.words;
		q.m = (q.words ? r->ref.words : r->ref.m2) + w->now.i0;
		q.l = r->l + w->now.i0;
		q.z = r->z ? r->z + w->now.i0 : NULL;
		q.top = r->top ? r->top + w->now.i0 : NULL;
		q.p = w->now.p;
		if (next) {
			q.next_a = next->q;
			q.next_b = next->k;
		}
	} else if (next) {
		v->micro(f->steps, next->q, f->q_row, next->k, r->s, false);
	}
	if (w->before.i0 >= 0) {
		q.panels = (int)(f->p.ec / ATT_COLS);
		q.vp = w->before.p;
		q.v = w->before.v;
		q.v_bytes = CK * ATT_COLS * v->es;
		q.o = w->before.o;
	}
	if ((q.a || q.panels) && v->stream(&q))
		again(r, &w->now);
	r->fetch += MIN((HALF * f->steps / 4 + q.panels * HALF * 4) * 64, r->fetch_end - r->fetch);
	w->before = w->now;
	w->now = next ? *next : none;
}

void att_settle(struct run *r)
{
	while (r->flow.now.i0 >= 0 || r->flow.before.i0 >= 0)
		advance(r, NULL);
}

/* Have all rows of the group references that exponents are made with?  Those that have none get one from half h's first tile. */
static bool referred(struct run *r, int64_t g, const struct half *h)
{
	const struct fwd *f = r->f;
	int mr = f->p.v->mr;
	if (r->referred >> g & 1)
		return true;
	bool all = all_finite(r->ref.m2 + g * mr, mr);
	if (!all) {
		att_settle(r);
		f->p.v->micro(f->steps, h->q, f->q_row, h->k, r->one, false);
		raise_refs(r, r->one, g * mr, 0, mr, h->t0, h->t0, true);
		all = all_finite(r->ref.m2 + g * mr, mr);
	}
	r->referred |= (uint64_t)all << g;
	return all;
}

/* Tiles t0 .. t0 + HALF of the group: true if all are alike, so that each can be made beside the one before. */
static bool flows(const struct run *r, int t0, const uint8_t *kind)
{
	const char *bad = r->at->kb + r->f->kb_bad;
	bool all = r->at->k0 + (t0 + HALF) * ATT_COLS <= r->f->p.x.s;
	for (int t = t0; all && t < t0 + HALF; t++)
		all &= kind[t] == PLAIN && !bad[t];
	return all;
}

/* Tiles of the item's one group. */
static void stream(struct run *r, int64_t g, const uint8_t *kind)
{
	const struct fwd *f = r->f;
	int64_t es = f->p.v->es, i0 = g * f->p.v->mr;
	const char *q = r->mem + f->q_at + (size_t)(i0 * f->q_row), *k = r->at->kb + f->kb_k, *v = r->at->kb + f->kb_v;
	uint8_t cols[1][TILES];
	for (int t0 = 0; t0 < r->at->nt; t0 += HALF) {
		struct half h = { i0, r->at, t0, q, k + t0 * f->k_tile, p_at(r, 0) + t0 * ATT_COLS * es, v + t0 * ATT_COLS * ATT_COLS * es, o_at(r, g, 0), may_be_words(r) };
		int t1 = MIN(t0 + HALF, r->at->nt), none = 0;
		for (int t = t0; t < t1; t++)
			none += kind[t] == NONE;
		if (none == t1 - t0) {
			r->left += none;
			continue;
		}
		if (!flows(r, t0, kind) || !referred(r, g, &h)) {
			att_settle(r);
			for (int t = t0; t < t1; t++)
				scores(r, g, 0, 1, t, kind[t], cols);
			values(r, g, 1, t0, t1, cols);
			continue;
		}
		r->done += HALF;
		if (r->flow.now.i0 >= 0 && r->flow.now.t0 == t0)      /* its p is where this one's goes */
			att_settle(r);
		advance(r, &h);
	}
}

void att_item(struct run *r, int64_t row)
{
	int64_t mr = r->f->p.v->mr, g0 = row / mr, n = MIN(r->f->rq, r->nr - row), ng = (n + mr - 1) / mr;
	int t0 = 0, t1 = r->at->nt;
	uint8_t kind[TILES], cols[ITEM][TILES];
	classify(r, row, n, kind);
	while (t1 > 0 && kind[t1 - 1] == NONE)
		t1--;
	while (t0 < t1 && kind[t0] == NONE)
		t0++;
	if (r->f->p.v->stream && t0 < t1) {
		stream(r, g0, kind);
		return;
	}
	r->left += ng * (r->at->nt - (t1 - t0));
	r->t0 = t0;
	for (int t = t0; t < t1; t++) {
		int made = many(r, g0, ng, t, t1, kind, cols);
		t += made / ng;
		if (t < t1)
			scores(r, g0, made % ng, ng, t, kind[t], cols);
	}
	values(r, g0, ng, t0, t1, cols);
}
