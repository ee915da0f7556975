/* The gradient of attention (Dao, FlashAttention-2, 2023, section 2.3): p is made again from the scores and their log-sum-exp, block of
 * keys by block of queries, by five products.  Tiles of numbers are turned, rows are keys, columns queries: so p and dx are as
 * the products for keys and values want them, rows of keys; for queries the product is made turned, too.
 *
 * A tile of the grid owns some blocks of keys of a batch for as many phases as there are such tiles, and in each phase meets another part
 * of the rows.  So no two tiles add to the same sum in one phase, and there is one of each, whatever threads there are.  From phase to phase sums lie
 * in the results as far as they fit there; what a tile adds to those of its keys and values in a phase is in its scratch, unless it is little.  Few batches are made at once, of
 * long ones a single one: the memory for sums is that of these.  Operands are packed where they are read, a block of rows for all blocks of keys of a tile.
 * Those follow each other, so that under a triangle most blocks of rows meet all or none of them; a tile with much to do comes first. */
#include "attention.h"

#include <float.h>
#include <math.h>

enum { BLOCK = 128, MOST_ROWS = 2 * BLOCK, PANELS = MOST_ROWS / ATT_COLS, GROUPS = BLOCK / 6, WIDE_L2 = 2 << 20, MANY = 32, FEW = 8, MOST_OWN = 4, MOST_OWN_F32 = 3, OWN_BYTES = 1400 << 10, FEW_BYTES = 1 << 20 };
#define NOTHING (-104.0)             /* exp of less is 0 */

#define T512 __attribute__((target("avx512f,avx512bw,avx512vl")))

/* Where a sum is kept until it is complete: in the result; its upper half there, if that is bf16, and the lower one in shared
 * memory; all of it there. */
enum home { THERE, HALF, APART };
struct sums { struct att_rows to; enum home home; size_t at; };      /* of a result; what is kept in shared memory begins there */

struct bwd {
	struct att_plan p;
	struct att_rows q, k, v, l, d_o, delta;
	struct sums dq, dk, dv;
	int64_t block, panels;           /* rows of a block; their panels */
	int64_t kb, nkb, nrb;            /* keys of a block, whole groups; blocks */
	int64_t own, parts, steps;       /* blocks of keys of a tile; tiles of a batch at once, and parts of its rows; turns until all keys had one */
	int64_t some;                    /* batches at once */
	int64_t groups, dgroups, kpad;   /* of a block of keys; of d; keys of a row of k turned */
	bool bounds, norms, blocks;      /* blocks: what is known of blocks of rows says which a mask leaves out */
	size_t seen_rows, seen_keys;     /* of operands of scores, blocks of rows and all keys of a tile: least and most, and the least l; in shared memory */
	/* a packed block of keys: rows of k and v, k turned; of queries: panels of which they are columns, or steps */
	size_t k_row, v_row, k_turned, k_bad, k_norm, k_lo, k_hi, k_bytes;
	size_t q_col, o_col, q_step, o_step, numbers, r_least, r_norm, r_lo, r_hi, r_bytes;
	size_t dkv_bytes;                /* sums of keys and values of a block */
	int64_t tally_all, tally_from[ATT_TALLIES + 1];            /* lengths of sums by an index: of all, and where each one's begin */
	size_t tally_at;                 /* in shared memory, for each tile of the grid */
	bool few;                        /* those of all tiles are few: from phase to phase they lie in shared memory, as they are */
	size_t few_at;
	/* scratch */
	size_t key_at, sums_at, rows_at, s_at, y_at, slope_at, flat_at, w_at, index_at, p_at, dx_at, panel_at, dq_tile, row_at, dense_at, tmp_at, fn_at;
};

/* Of each row of a block: l, what that float lacks, and delta, for scores that are made by the function, and for products times c. */
enum { L, LX, LESS, LESSX, DELTA, DELTA_C, NUMBERS };
enum kind { NONE, PLAIN, SCORE };

struct run {
	const struct bwd *f;
	const struct prog_kern *k;
	char *const *ptr;
	char *mem, *shared;
	int64_t tile, b, slot, kb, rb;   /* batch, which one of those at once; blocks */
	const char *key, *row;           /* the blocks, packed */
	float *sums, *dk, *dv, *dq;      /* of all its keys and values, of a block's; of a block of rows */
	uint8_t (*kind)[PANELS];         /* of the tiles of those blocks */
	long long done, left;
};

/* --- packing --------------------------------------------------------------------------- */

static void turn(int es, int64_t ni, int64_t nj, const char *in, int64_t is, char *out, int64_t os)
{
	kern_isa_get()->transpose[es == 2 ? 1 : 2](ni, nj, in, is, out, os);
}

/* n rows, ld bytes apart, side by side. */
static void copy_rows(const char *rows, int64_t ld, int64_t n, char *to, int64_t bytes)
{
	for (int64_t i = 0; i < n; i++)
		memcpy(to + i * bytes, rows + i * ld, (size_t)bytes);
}

static void pack_keys(const struct bwd *f, const struct prog_kern *k, char *const *ptr, int64_t b, int64_t blk, char *to, char *mem)
{
	const struct att_plan *p = &f->p;
	int64_t es = p->v->es, k0 = blk * f->kb, n = MIN(f->kb, p->x.s - k0);
	char *dense = mem + f->dense_at, *tmp = mem + f->tmp_at, *bad = to + f->k_bad;
	memset(to + f->k_turned, 0, (size_t)(f->dgroups * p->v->mr * f->kpad * es));
	*bad = 0;
	for (int64_t i = 0; i < f->kb; i += ATT_FETCH) {
		int64_t some = MIN(ATT_FETCH, f->kb - i), have = MIN(MAX(n - i, 0), some), ld;
		const char *rows = att_take_from(p, &f->k, k, ptr, ATT_K, b, k0 + i, have, dense, p->dc, tmp, &ld);
		copy_rows(rows, ld, some, to + f->k_row + (size_t)(i * p->dc * es), p->dc * es);
		turn((int)es, some, p->x.d, rows, ld / es, to + f->k_turned + (size_t)(i * es), f->kpad);
		rows = att_take_from(p, &f->v, k, ptr, ATT_V, b, k0 + i, have, dense, p->ec, tmp, &ld);
		copy_rows(rows, ld, some, to + f->v_row + (size_t)(i * p->ec * es), p->ec * es);
		*bad |= att_not_finite((int)es, to + f->v_row + (size_t)(i * p->ec * es), some * p->ec);
	}
	for (int64_t g = 0; g < f->groups && f->norms; g++)
		((float *)(void *)(to + f->k_norm))[g] = att_longest(p, to + f->k_row + (size_t)(g * p->v->mr * p->dc * es), p->v->mr, p->dc * es);
	att_side_bounds(p, k, ptr, b, true, k0, n, p->v->mr, (double *)(void *)(to + f->k_lo), (double *)(void *)(to + f->k_hi), f->groups);
}

static double number_of(const struct att_rows *r, const char *base, int64_t row)
{
	double x;
	float narrow;
	if (r->dt == DT_f64) {
		memcpy(&x, base + att_row(r, row), sizeof x);
		return x;
	}
	memcpy(&narrow, base + att_row(r, row), sizeof narrow);
	return narrow;
}

/* The float below x. */
static float below(double x)
{
	float y = (float)x;
	return (double)y > x ? nextafterf(y, -INFINITY) : y;
}

/* Of a block of rows what tells which tiles count. */
static void pack_numbers(const struct bwd *f, const struct prog_kern *k, char *const *ptr, int64_t b, int64_t blk, char *to)
{
	const struct att_plan *p = &f->p;
	int64_t r0 = blk * f->block, n = MIN(f->block, p->rows - r0);
	float (*num)[MOST_ROWS] = (float (*)[MOST_ROWS])(void *)(to + f->numbers), *least = (float *)(void *)(to + f->r_least), c = p->range.c;
	/* a row that is none, or has no keys, has p = 0 */
	const char *l_at = attention_at(k, ptr, &p->x, ATT_L, b), *delta_at = attention_at(k, ptr, &p->x, ATT_DELTA, b);
	for (int64_t i = 0; i < f->block; i++) {
		double l = i < n ? number_of(&f->l, l_at, r0 + i) : INFINITY;
		float delta = i < n ? (float)number_of(&f->delta, delta_at, r0 + i) : 0, lowest;
		if (l == -INFINITY) {
			l = INFINITY;
			delta = 0;
		}
		lowest = below(l);
		num[L][i] = (float)l;
		num[LX][i] = (float)(l / c);
		num[LESS][i] = att_less(l, num[L][i], 1);
		num[LESSX][i] = att_less(l, num[LX][i], c);
		num[DELTA][i] = delta;
		num[DELTA_C][i] = delta * c;
		least[i / ATT_COLS] = i % ATT_COLS == 0 || lowest < least[i / ATT_COLS] || isnan(lowest) ? lowest : least[i / ATT_COLS];
	}
	att_side_bounds(p, k, ptr, b, false, r0, n, ATT_COLS, (double *)(void *)(to + f->r_lo), (double *)(void *)(to + f->r_hi), PANELS);
}

static void pack_rows(const struct bwd *f, const struct prog_kern *k, char *const *ptr, int64_t b, int64_t blk, char *to, char *mem)
{
	const struct att_plan *p = &f->p;
	int64_t es = p->v->es, r0 = blk * f->block, n = MIN(f->block, p->rows - r0);
	char *dense = mem + f->dense_at, *tmp = mem + f->tmp_at;
	for (int64_t i = 0; i < f->block; i += ATT_FETCH) {
		int64_t have = MIN(MAX(n - i, 0), ATT_FETCH), ld;
		const char *rows = att_take_from(p, &f->q, k, ptr, ATT_Q, b, r0 + i, have, dense, p->dc, tmp, &ld);
		att_columns(rows, ld, p->dk * es / 4, to + f->q_col + (size_t)(i * p->dk * es));
		att_steps((int)es, rows, ld, p->dc, to + f->q_step + (size_t)(i * ATT_COLS * es), (size_t)(f->block * ATT_COLS * es));
		if (f->norms)
			((float *)(void *)(to + f->r_norm))[i / ATT_FETCH] = att_longest(p, rows, have, ld);
		rows = att_take_from(p, &f->d_o, k, ptr, ATT_DO, b, r0 + i, have, dense, p->ec, tmp, &ld);
		att_columns(rows, ld, p->ek * es / 4, to + f->o_col + (size_t)(i * p->ek * es));
		att_steps((int)es, rows, ld, p->ec, to + f->o_step + (size_t)(i * ATT_COLS * es), (size_t)(f->block * ATT_COLS * es));
	}
}

/* --- which tiles count -------------------------------------------------------------------- */

static struct att_known known_of(const struct run *r, int64_t g0, int64_t ng, int nt)
{
	const struct bwd *f = r->f;
	const struct att_plan *p = &f->p;
	struct att_bound *reg = (struct att_bound *)(void *)(r->mem + f->fn_at + p->fn_reg);
	int64_t k0 = r->kb * f->kb;
	int mr = p->v->mr;
	att_bound_any(DT_f32, &reg[0]);
	if (f->norms)
		att_norm_bounds((const float *)(const void *)(r->key + f->k_norm) + g0, ng, (const float *)(const void *)(r->row + f->r_norm), nt, &reg[0]);
	for (int x = 0; x < p->x.nextra; x++) {
		const struct att_extra *e = &p->extra[x];
		const double *lo = (const double *)(const void *)(r->key + f->k_lo) + x * f->groups, *hi = (const double *)(const void *)(r->key + f->k_hi) + x * f->groups;
		const double *rlo = (const double *)(const void *)(r->row + f->r_lo) + x * PANELS, *rhi = (const double *)(const void *)(r->row + f->r_hi) + x * PANELS;
		if (e->by_key && !e->by_row)
			att_bound_one(e->dt, lo + g0, hi + g0, ng, nt, &reg[1 + x]);
		else if (e->by_row && !e->by_key)
			att_bound_each(e->dt, rlo, rhi, nt, &reg[1 + x]);
	}
	att_tile_bounds(p, k0 + g0 * mr, (int)MIN(ng * mr, p->x.s - k0 - g0 * mr), r->rb * f->block, p->rows, nt, r->mem + f->fn_at, reg);
	return att_range_run(&p->range, nt, reg);
}

/* Of a group's tile: is p 0 in all of it? */
static bool is_nothing(const struct run *r, const struct att_known *known, int t)
{
	float least = ((const float *)(const void *)(r->row + r->f->r_least))[t];
	bool unsure = known && known->score->nan >> t & 1;
	return least == INFINITY || (known && !unsure && known->score->hi[t] - least < NOTHING);
}

/* Kinds of all tiles; are there any? */
static bool classify(struct run *r, int64_t ng, int nt)
{
	const struct bwd *f = r->f;
	struct att_known known, *some = NULL;
	bool clear = true, any = false;
	if (f->bounds) {
		known = known_of(r, 0, ng, nt);
		some = &known;
		for (int t = 0; t < nt; t++)
			clear &= known.plain >> t & 1 || is_nothing(r, some, t);
	}
	for (int64_t g = 0; g < ng; g++) {
		if (!clear)
			known = known_of(r, g, 1, nt);
		for (int t = 0; t < nt; t++) {
			bool plain = some ? known.plain >> t & 1 : f->p.range.plain;
			r->kind[g][t] = is_nothing(r, some, t) ? NONE : plain ? PLAIN : SCORE;
			any |= r->kind[g][t] != NONE;
		}
	}
	return any;
}

/* --- an item: a block of keys with a block of rows ------------------------------------------- */

/* Where p = exp2((s - l) * c2 - less) is 0, values that are not finite do not count. */
static void drop_dead(int rows, const float *s, float *y, const float *l, float c2, const float *less)
{
	for (int i = 0; i < rows * ATT_COLS; i++)
		if ((s[i] - l[i % ATT_COLS]) * c2 - less[i % ATT_COLS] < (float)NOTHING * LOG2E)
			y[i] = 0;
}

/* Is there a row that is none, or has no keys? */
static bool has_none(const float *l)
{
	bool any = false;
	for (int i = 0; i < ATT_COLS; i++)
		any |= l[i] == INFINITY;
	return any;
}

static bool all_hidden(const float *s, int64_t n)
{
	int64_t i = 0;
	while (i < n && s[i] == -INFINITY)
		i++;
	return i == n;
}

/* --- sums of dx by an index ------------------------------------------------------------------ */

/* Those that tile `tile` of the grid has for tally i, in shared memory: f64, and summed up when it has met all rows. */
static double *tally_of(const struct run *r, int64_t tile, int i) { return (double *)(void *)(r->shared + r->f->tally_at) + tile * r->f->tally_all + r->f->tally_from[i]; }

/* sum[at + j], or at - j, += dx[j], where the indices are such. */
static inline __attribute__((always_inline)) bool tally_line(int n, const int32_t *at, const float *dx, int64_t length, double *sum)
{
	int up = 1, down = 1;
	for (int j = 0; j < n; j++) {
		up &= at[j] == at[0] + j;
		down &= at[j] == at[0] - j;
	}
	if (!(up | down) || at[0] < 0 || at[0] >= length || at[n - 1] < 0 || at[n - 1] >= length)
		return false;
	sum += up ? at[0] : at[n - 1];
	for (int j = 0; j < n && up; j++)
		sum[j] += dx[j];
	for (int j = 0; j < n && !up; j++)
		sum[j] += dx[n - 1 - j];
	return true;
}

T512 static bool tally_line_512(int n, const int32_t *at, const float *dx, int64_t length, double *sum) { return tally_line(n, at, dx, length, sum); }

/* dx of a tile of n0 keys and n1 rows, not rounded: sums that it all but vanishes in would be of that. */
static void tally(const struct run *r, int n0, int n1, const float *s, const float *y, const float *l, const float *less, const float *delta, const struct att_rest *rest)
{
	const struct bwd *f = r->f;
	for (int i = 0; i < n0; i++, s += ATT_COLS, y += ATT_COLS) {
		float row[ATT_COLS], x[ATT_COLS];
		const float *slope = rest->slope + i * ATT_COLS, *w = rest->weight ? rest->weight + i * ATT_COLS : NULL;
		for (int j = 0; j < ATT_COLS; j++)
			x[j] = (s[j] - l[j]) - less[j] * (float)M_LN2;
		kern_elem(ELEM_exponential, DT_f32, DT_f32)(ATT_COLS, row, x, NULL, NULL);
		for (int j = 0; j < ATT_COLS; j++)
			row[j] *= (y[j] * (w ? w[j] : 1) - delta[j]) * slope[j];
		for (int k = 0; k < f->p.x.ntally; k++) {
			const int32_t *at = rest->at[k] + i * ATT_COLS;
			double *sum = tally_of(r, r->tile, k);
			int64_t length = f->tally_from[k + 1] - f->tally_from[k];
			if ((cpu_get()->avx512 ? tally_line_512 : tally_line)(n1, at, row, length, sum))
				continue;
			for (int j = 0; j < n1; j++)
				if (at[j] >= 0 && at[j] < length)
					sum[at[j]] += row[j];
		}
	}
}

/* A part of the sums of all tiles of a batch. */
static void join_tallies(const struct run *r)
{
	const struct bwd *f = r->f;
	int64_t part = r->tile / f->some;
	for (int i = 0; i < f->p.x.ntally; i++) {
		int64_t n = f->tally_from[i + 1] - f->tally_from[i];
		int view = r->k->nin + 3 + i;
		char *to = attention_at(r->k, r->ptr, &f->p.x, view, r->b);
		for (int64_t j = n * part / f->parts; j < n * (part + 1) / f->parts; j++) {
			double sum = 0;
			for (int64_t q = 0; q < f->parts; q++)
				sum += tally_of(r, q * f->some + r->slot, i)[j];
			float one = (float)sum;
			memcpy(to + j * r->k->v[view].stride[f->p.x.nb + 2] * (int64_t)sizeof one, &one, sizeof one);
		}
	}
}

/* False: no score of it counts. */
static bool tile(struct run *r, int64_t g, int t)
{
	const struct bwd *f = r->f;
	const struct att_plan *p = &f->p;
	const struct att_variant *v = p->v;
	int64_t es = v->es, mr = v->mr, i0 = r->kb * f->kb + g * mr, j0 = r->rb * f->block + t * ATT_COLS;
	float *s = (float *)(void *)(r->mem + f->s_at), *y = (float *)(void *)(r->mem + f->y_at), c = 1;
	struct att_rest rest = { 0 };
	const float (*num)[MOST_ROWS] = (const float (*)[MOST_ROWS])(const void *)(r->row + f->numbers);
	bool plain = r->kind[g][t] == PLAIN, raw = plain && p->raw;
	v->micro(p->dk * es / 4, r->key + f->k_row + (size_t)(g * mr * p->dc * es), p->dc * es, r->row + f->q_col + (size_t)(t * ATT_COLS * p->dk * es), s, false);
	if (raw) {
		c = p->range.c;
	} else if (plain) {
		v->soft->scale((int)mr, s, p->range.c);
		rest.slope = (float *)(void *)(r->mem + f->flat_at);
	} else {
		rest.slope = (float *)(void *)(r->mem + f->slope_at);
		rest.weight = p->x.weighted ? (float *)(void *)(r->mem + f->w_at) : NULL;
		for (int i = 0; i < p->x.ntally; i++)
			rest.at[i] = (int32_t *)(void *)(r->mem + f->index_at) + i * ATT_MOST_MR * ATT_COLS;
		att_score(p, i0, (int)mr, j0, (int)MIN(ATT_COLS, p->rows - j0), s, &rest, r->mem + f->fn_at);
		if (all_hidden(s, mr * ATT_COLS))
			return false;
	}
	v->micro(p->ek * es / 4, r->key + f->v_row + (size_t)(g * mr * p->ec * es), p->ec * es, r->row + f->o_col + (size_t)(t * ATT_COLS * p->ek * es), y, false);
	for (int64_t i = MAX(p->x.s - i0, 0) * ATT_COLS; i < mr * ATT_COLS; i++)      /* keys that are none */
		s[i] = -INFINITY;
	const float *l = num[raw ? LX : L] + t * ATT_COLS, *less = num[raw ? LESSX : LESS] + t * ATT_COLS;
	if (r->key[f->k_bad] || has_none(l))
		drop_dead((int)mr, s, y, l, c * LOG2E, less);
	int64_t ld = f->block * es, at = g * mr * ld + t * ATT_COLS * es;
	v->soft->backward((int)mr, s, y, l, c * LOG2E, less, num[raw ? DELTA_C : DELTA] + t * ATT_COLS, c, rest.slope, rest.weight, r->mem + f->p_at + at, r->mem + f->dx_at + at,
	                  ld, r->mem + f->panel_at + (size_t)((t * f->kpad + g * mr) * ATT_COLS * es));
	if (p->x.ntally)
		tally(r, (int)MIN(mr, p->x.s - i0), (int)MIN(ATT_COLS, p->rows - j0), s, y, l, less, num[DELTA] + t * ATT_COLS, &rest);
	return true;
}

/* So many tiles from group g and panel t on, one below the other or side by side, of at most n, are live. */
static int run_of(const struct run *r, int64_t g, int t, bool below, int64_t n)
{
	int k = 0;
	while (k < n && r->kind[below ? g + k : g][below ? t : t + k] != NONE)
		k++;
	return k;
}

/* c[group][panel] += rows of a, along the runs of live tiles, times panels of w columns. */
static void by_rows(struct run *r, const char *a, const char *b, int64_t w, int64_t ng, int nt, float *c)
{
	const struct bwd *f = r->f;
	int64_t es = f->p.v->es, mr = f->p.v->mr, ld = f->block * es, panels = w / ATT_COLS;
	for (int64_t e = 0; e < panels; e++)
		for (int64_t g = 0; g < ng; g++)
			for (int t = 0, n; t < nt; t += MAX(n, 1)) {
				n = run_of(r, g, t, false, nt - t);
				if (!n)
					continue;
				f->p.v->micro(n * ATT_COLS * es / 4, a + g * mr * ld + t * ATT_COLS * es, ld, b + (e * f->block + t * ATT_COLS) * ATT_COLS * es,
				              c + (g * panels + e) * mr * ATT_COLS, true);
			}
}

/* Of queries, turned: dq[group of d][panel of rows] += k turned times dx, along the runs of live keys. */
static void by_keys(struct run *r, int64_t ng, int nt)
{
	const struct bwd *f = r->f;
	int64_t es = f->p.v->es, mr = f->p.v->mr;
	for (int t = 0; t < nt; t++)
		for (int64_t d = 0; d < f->dgroups; d++)
			for (int64_t g = 0, n; g < ng; g += MAX(n, 1)) {
				n = run_of(r, g, t, true, ng - g);
				if (!n)
					continue;
				f->p.v->micro(n * mr * es / 4, r->key + f->k_turned + (size_t)((d * mr * f->kpad + g * mr) * es), f->kpad * es,
				              r->mem + f->panel_at + (size_t)((t * f->kpad + g * mr) * ATT_COLS * es), r->dq + (d * f->panels + t) * mr * ATT_COLS, true);
			}
}

static int64_t groups_of(const struct run *r) { return (MIN(r->f->kb, r->f->p.x.s - r->kb * r->f->kb) + r->f->p.v->mr - 1) / r->f->p.v->mr; }
static int panels_of(const struct run *r) { return (int)((MIN(r->f->block, r->f->p.rows - r->rb * r->f->block) + ATT_COLS - 1) / ATT_COLS); }

static void item(struct run *r)
{
	const struct bwd *f = r->f;
	int64_t ng = groups_of(r);
	int nt = panels_of(r);
	for (int t = 0; t < nt; t++)
		for (int64_t g = 0; g < ng; g++)
			if (r->kind[g][t] != NONE && tile(r, g, t)) {
				r->done++;
			} else {
				r->kind[g][t] = NONE;
				r->left++;
			}
	by_rows(r, r->mem + f->p_at, r->row + f->o_step, f->p.ec, ng, nt, r->dv);
	by_rows(r, r->mem + f->dx_at, r->row + f->q_step, f->p.dc, ng, nt, r->dk);
	by_keys(r, ng, nt);
}

/* --- sums ----------------------------------------------------------------------------------- */

/* x += the floats of which hi and lo are the halves, and back. */
static inline __attribute__((always_inline)) void add_halves(int64_t n, float *x, const uint16_t *hi, const uint16_t *lo)
{
	for (int64_t i = 0; i < n; i++) {
		union { uint32_t w; float x; } sum = { .w = (uint32_t)hi[i] << 16 | lo[i] };
		x[i] += sum.x;
	}
}

static inline __attribute__((always_inline)) void add_floats(int64_t n, float *restrict x, const float *restrict sum)
{
	for (int64_t i = 0; i < n; i++)
		x[i] += sum[i];
}

static inline __attribute__((always_inline)) void keep_halves(int64_t n, const float *x, uint16_t *hi, uint16_t *lo)
{
	for (int64_t i = 0; i < n; i++) {
		union { float x; uint32_t w; } sum = { .x = x[i] };
		hi[i] = (uint16_t)(sum.w >> 16);
		lo[i] = (uint16_t)sum.w;
	}
}

T512 static void add_halves_512(int64_t n, float *x, const uint16_t *hi, const uint16_t *lo) { add_halves(n, x, hi, lo); }
T512 static void add_floats_512(int64_t n, float *x, const float *sum) { add_floats(n, x, sum); }
T512 static void keep_halves_512(int64_t n, const float *x, uint16_t *hi, uint16_t *lo) { keep_halves(n, x, hi, lo); }

/* What has been kept of row number n of a sum, or of one at base, is added to x; x is kept in its place. */
static void add_kept(const struct run *r, const struct sums *s, char *base, int64_t row, int64_t n, float *x)
{
	int64_t w = s->to.w;
	char *there = base + att_row(&s->to, row), *apart = r->shared + s->at;
	const float *sum = s->home == THERE ? (float *)(void *)there : (float *)(void *)apart + n * w;
	if (s->home == HALF)
		(cpu_get()->avx512 ? add_halves_512 : add_halves)(w, x, (uint16_t *)(void *)there, (uint16_t *)(void *)apart + n * w);
	else
		(cpu_get()->avx512 ? add_floats_512 : add_floats)(w, x, sum);
}

static void keep(const struct run *r, const struct sums *s, char *base, int64_t row, int64_t n, const float *x)
{
	int64_t w = s->to.w;
	char *there = base + att_row(&s->to, row), *apart = r->shared + s->at;
	if (s->home == HALF)
		(cpu_get()->avx512 ? keep_halves_512 : keep_halves)(w, x, (uint16_t *)(void *)there, (uint16_t *)(void *)apart + n * w);
	else
		memcpy(s->home == THERE ? there : (char *)((float *)(void *)apart + n * w), x, (size_t)w * sizeof *x);
}

/* What a tile has for keys or values of its block j is added to their sums, which begin with it if first, and are results if last. */
static void add_keys(const struct run *r, const struct sums *s, int out, int64_t j, const float *acc, int64_t padded, bool first, bool last)
{
	const struct bwd *f = r->f;
	int64_t mr = f->p.v->mr, panels = padded / ATT_COLS, k0 = r->kb * f->kb;
	float *row = (float *)(void *)(r->mem + f->row_at);
	char *base = attention_at(r->k, r->ptr, &f->p.x, r->k->nin + out, r->b), *tmp = r->mem + f->tmp_at;
	for (int64_t i = 0; i < f->kb && k0 + i < f->p.x.s; i++) {
		int64_t n = (r->tile * f->own + j) * f->kb + i;
		for (int64_t e = 0; e < panels; e++)
			memcpy(row + e * ATT_COLS, acc + ((i / mr * panels + e) * mr + i % mr) * ATT_COLS, sizeof *row * ATT_COLS);
		if (!first)
			add_kept(r, s, base, k0 + i, n, row);
		else if (f->p.x.add)
			att_add(&s->to, base, k0 + i, row, tmp);
		if (last)
			att_store(&s->to, base, k0 + i, row, tmp);
		else
			keep(r, s, base, k0 + i, n, row);
	}
}

/* Sums of a block of rows begin with what is there. */
static void begin_rows(const struct run *r)
{
	const struct bwd *f = r->f;
	int64_t mr = f->p.v->mr, r0 = r->rb * f->block, wide = f->dgroups * mr, n = MIN(f->block, f->p.rows - r0);
	float *row = (float *)(void *)(r->mem + f->row_at);
	char *base = attention_at(r->k, r->ptr, &f->p.x, r->k->nin, r->b);
	for (int64_t t = 0; t * ATT_COLS < n; t++) {
		memset(row, 0, (size_t)(ATT_COLS * wide) * sizeof *row);
		for (int64_t i = t * ATT_COLS; i < MIN(n, (t + 1) * ATT_COLS); i++)
			att_add(&f->dq.to, base, r0 + i, row + i % ATT_COLS * wide, r->mem + f->tmp_at);
		for (int64_t d = 0; d < f->dgroups; d++)
			kern_isa_get()->transpose[2](ATT_COLS, mr, row + d * mr, wide, r->dq + (d * f->panels + t) * mr * ATT_COLS, ATT_COLS);
	}
}

/* What a tile has for a block of rows is added to their sums, which begin with it if first, and are results if last.  As long as they are
 * none a whole block is kept as it is, turned. */
static void add_rows(const struct run *r, bool first, bool last)
{
	const struct bwd *f = r->f;
	int64_t mr = f->p.v->mr, r0 = r->rb * f->block, wide = f->dgroups * mr, n = MIN(f->block, f->p.rows - r0), at = r->slot * f->p.rows + r0;
	bool turned = n == f->block && wide == f->dq.to.w;
	float *row = (float *)(void *)(r->mem + f->row_at);
	char *base = attention_at(r->k, r->ptr, &f->p.x, r->k->nin, r->b);
	for (int64_t i = 0; turned && i < n; i++) {
		if (!first)
			add_kept(r, &f->dq, base, r0 + i, at + i, r->dq + i * wide);
		if (!last)
			keep(r, &f->dq, base, r0 + i, at + i, r->dq + i * wide);
	}
	for (int64_t t = 0; t * ATT_COLS < n && (last || !turned); t++) {
		for (int64_t d = 0; d < f->dgroups; d++)
			kern_isa_get()->transpose[2](mr, ATT_COLS, r->dq + (d * f->panels + t) * mr * ATT_COLS, ATT_COLS, row + d * mr, wide);
		for (int64_t i = t * ATT_COLS; i < MIN(n, (t + 1) * ATT_COLS); i++) {
			float *x = row + i % ATT_COLS * wide;
			if (!turned && !first)
				add_kept(r, &f->dq, base, r0 + i, at + i, x);
			if (last)
				att_store(&f->dq.to, base, r0 + i, x, r->mem + f->tmp_at);
			else if (!turned)
				keep(r, &f->dq, base, r0 + i, at + i, x);
		}
	}
}

/* --- the grid ----------------------------------------------------------------------------------- */

static void begin_keys(const struct run *r, bool *begun)
{
	if (!*begun)
		memset(r->sums, 0, (size_t)r->f->own * r->f->dkv_bytes);
	*begun = true;
}

/* What is known of blocks of rows, of each operand of scores the least and the most, and the least l, in the batch's part of shared memory, and of all keys of
 * a tile: by that a tile passes over blocks of rows that a window leaves out, which are most of them, unread. */
static double *seen_rows(const struct run *r) { return (double *)(void *)(r->shared + r->f->seen_rows) + r->slot * r->f->nrb * (2 * r->f->p.x.nextra + 1); }
static double *seen_keys(const struct run *r) { return (double *)(void *)(r->shared + r->f->seen_keys) + r->tile * 2 * r->f->p.x.nextra; }

static void see_rows(const struct run *r)
{
	const struct bwd *f = r->f;
	int64_t n = f->nrb, r0 = r->rb * f->block, have = MIN(f->block, f->p.rows - r0);
	double *lo = seen_rows(r), *hi = lo + f->p.x.nextra * n, *least = &hi[f->p.x.nextra * n + r->rb];
	const char *l_at = attention_at(r->k, r->ptr, &f->p.x, ATT_L, r->b);
	att_side_bounds(&f->p, r->k, r->ptr, r->b, false, r0, have, (int)have, lo + r->rb, hi + r->rb, n);
	*least = INFINITY;
	for (int64_t i = 0; i < have && !isnan(*least); i++) {
		double l = number_of(&f->l, l_at, r0 + i);
		*least = l == -INFINITY || l >= *least ? *least : below(l);
	}
}

static void see_keys(const struct run *r, int64_t k0)
{
	const struct bwd *f = r->f;
	int64_t have = MIN(f->own * f->kb, f->p.x.s - k0 * f->kb);
	if (have > 0)
		att_side_bounds(&f->p, r->k, r->ptr, r->b, true, k0 * f->kb, have, (int)have, seen_keys(r), seen_keys(r) + f->p.x.nextra, 1);
}

/* Whether each of n blocks of rows, from rb on with a stride, may have a p that is not 0 with any of the tile's keys. */
static unsigned may_count(const struct run *r, int64_t rb, int n)
{
	const struct bwd *f = r->f;
	const struct att_plan *p = &f->p;
	struct att_bound *reg = (struct att_bound *)(void *)(r->mem + f->fn_at + p->fn_reg);
	const double *lo = seen_rows(r), *hi = lo + p->x.nextra * f->nrb, *least = hi + p->x.nextra * f->nrb, *keys = seen_keys(r);
	att_bound_any(DT_f32, &reg[0]);
	for (int x = 0; x < p->x.nextra; x++) {
		const struct att_extra *e = &p->extra[x];
		double l[ATT_WIDE], h[ATT_WIDE];
		for (int i = 0; i < n; i++) {
			l[i] = e->by_key ? keys[x] : lo[x * f->nrb + rb + i * f->parts];
			h[i] = e->by_key ? keys[p->x.nextra + x] : hi[x * f->nrb + rb + i * f->parts];
		}
		if (e->by_row != e->by_key)
			att_bound_each(e->dt, l, h, n, &reg[1 + x]);
		else
			att_number_bound(p, x, n, r->mem + f->fn_at, &reg[1 + x]);
	}
	struct att_known known = att_range_run(&p->range, n, reg);
	unsigned may = 0;
	for (int i = 0; i < n; i++) {
		double l = least[rb + i * f->parts];
		bool none = l == INFINITY || (!(known.score->nan >> i & 1) && known.score->hi[i] - l < NOTHING);
		may |= (unsigned)!none << i;
	}
	return may;
}

/* A block of rows with the blocks of keys of a tile, from k0 on; *begun: are there sums of keys and values.  may: some of it may count. */
static void rows(struct run *r, int64_t k0, bool may, bool first, bool last, bool *begun)
{
	const struct bwd *f = r->f;
	uint8_t kind[MOST_OWN][GROUPS][PANELS];
	bool live[MOST_OWN] = {0}, any = false;
	char *row = r->mem + f->rows_at;
	size_t dq_bytes = (size_t)(f->dgroups * f->p.v->mr * f->block * 4);
	r->row = row;
	if (may)
		pack_numbers(f, r->k, r->ptr, r->b, r->rb, row);
	if (may && f->norms)
		pack_rows(f, r->k, r->ptr, r->b, r->rb, row, r->mem);
	for (int64_t j = 0; j < f->own && (r->kb = k0 + j) < f->nkb; j++) {
		r->key = r->mem + f->key_at + (size_t)j * f->k_bytes;
		r->kind = kind[j];
		live[j] = may && classify(r, groups_of(r), panels_of(r));
		any |= live[j];
		r->left += live[j] ? 0 : groups_of(r) * panels_of(r);
	}
	if (any && !f->norms)
		pack_rows(f, r->k, r->ptr, r->b, r->rb, row, r->mem);
	if (any || first || last)
		memset(r->dq, 0, dq_bytes);
	if (first && f->p.x.add)
		begin_rows(r);
	if (any)
		begin_keys(r, begun);
	for (int64_t j = 0; j < f->own; j++) {
		if (!live[j])
			continue;
		r->kb = k0 + j;
		r->key = r->mem + f->key_at + (size_t)j * f->k_bytes;
		r->kind = kind[j];
		r->dk = r->sums + (size_t)j * f->dkv_bytes / sizeof *r->sums;
		r->dv = r->dk + f->kb * f->p.dc;
		item(r);
	}
	if (any || first || last)
		add_rows(r, first, last);
}

/* For as many batches as are made at once. */
static int64_t phases_of(const struct bwd *f) { return f->parts * f->steps + (f->p.x.ntally > 0); }

static void part(struct run *r, int64_t phase)
{
	const struct bwd *f = r->f;
	int64_t all = f->parts * f->steps, at = phase % phases_of(f), turn = at % f->parts, step = at / f->parts, i = r->tile / f->some, k0 = (step * f->parts + i) * f->own;
	bool first = at == 0, last = at + 1 == all, begun = f->few && turn > 0;
	r->slot = r->tile % f->some;
	r->b = phase / phases_of(f) * f->some + r->slot;
	if (r->b >= f->p.x.batch)
		return;
	if (at == all) {
		join_tallies(r);
		return;
	}
	if (first)
		memset(tally_of(r, r->tile, 0), 0, sizeof(double) * (size_t)f->tally_all);
	r->sums = (float *)(void *)(f->few ? r->shared + f->few_at + (size_t)(r->tile * f->own) * f->dkv_bytes : r->mem + f->sums_at);
	att_extra_start(&f->p, r->k, r->ptr, r->b, r->mem + f->fn_at);
	if (f->blocks && turn == 0)
		see_keys(r, k0);
	for (r->rb = i; f->blocks && step == 0 && turn == 0 && r->rb < f->nrb; r->rb += f->parts)
		see_rows(r);
	if (f->few && turn == 0)
		begin_keys(r, &begun);
	bool packed = false;
	for (int64_t rb = (i + turn) % f->parts; rb < f->nrb; rb += ATT_WIDE * f->parts) {
		int n = (int)MIN(ATT_WIDE, (f->nrb - rb + f->parts - 1) / f->parts);
		unsigned may = f->blocks ? may_count(r, rb, n) : ~0u;
		for (int64_t j = 0, kb; may && !packed && j < f->own && (kb = k0 + j) < f->nkb; j++)
			pack_keys(f, r->k, r->ptr, r->b, kb, r->mem + f->key_at + (size_t)j * f->k_bytes, r->mem);
		packed |= may != 0;
		for (int m = 0; m < n; m++) {
			r->rb = rb + m * f->parts;
			rows(r, k0, may >> m & 1, first, last, &begun);
		}
	}
	first = turn == 0 || f->few;
	last = turn == f->parts - 1;
	if (f->few ? !last : !begun && !first && !last)
		return;
	begin_keys(r, &begun);
	for (int64_t j = 0; j < f->own && (r->kb = k0 + j) < f->nkb; j++) {
		const float *dk = r->sums + (size_t)j * f->dkv_bytes / sizeof *dk;
		add_keys(r, &f->dk, 1, j, dk, f->p.dc, first, last);
		add_keys(r, &f->dv, 2, j, dk + f->kb * f->p.dc, f->p.ec, first, last);
	}
}

static void run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr, int64_t t0, int64_t t1, void *scratch)
{
	const struct bwd *f = s->priv;
	char *mem = scratch;
	struct run r = { .f = f, .k = k, .ptr = ptr, .mem = mem, .shared = ptr[k->nin + k->nout], .dq = (float *)(void *)(mem + f->dq_tile) };
	plan_start(f->p.x.fn, mem + f->fn_at + f->p.fn_mem);
	att_range_start(&f->p.range, (struct att_bound *)(void *)(mem + f->fn_at + f->p.fn_reg));
	/* of keys beyond the last group of an item nothing is written, but a step of the product may read it */
	memset(mem + f->panel_at, 0, (size_t)(f->panels * f->kpad * ATT_COLS * f->p.v->es));
	float *flat = (float *)(void *)(mem + f->flat_at);       /* the slope of plain tiles */
	for (int i = 0; !f->p.raw && i < f->p.v->mr * ATT_COLS; i++)
		flat[i] = f->p.range.c;
	if (f->p.v->begin)
		f->p.v->begin();
	for (r.tile = t0; r.tile < t1; r.tile++)
		part(&r, phase);
	if (f->p.v->end)
		f->p.v->end();
	__atomic_fetch_add(&att_tiles_done, r.done, __ATOMIC_RELAXED);
	__atomic_fetch_add(&att_tiles_left, r.left, __ATOMIC_RELAXED);
}

/* Blocks, packed. */
static void lay_out_blocks(struct bwd *f)
{
	const struct att_plan *p = &f->p;
	int64_t es = p->v->es, mr = p->v->mr, extra = p->x.nextra;
	size_t *n = &f->k_bytes;
	f->k_row = att_room(n, att_pad(f->kb, ATT_FETCH) * p->dc * es);
	f->v_row = att_room(n, att_pad(f->kb, ATT_FETCH) * p->ec * es);
	f->k_turned = att_room(n, f->dgroups * mr * f->kpad * es);
	f->k_bad = att_room(n, 1);
	f->k_norm = att_room(n, f->groups * 4);
	f->k_lo = att_room(n, extra * f->groups * 8);
	f->k_hi = att_room(n, extra * f->groups * 8);
	n = &f->r_bytes;
	f->q_col = att_room(n, f->block * p->dk * es);
	f->o_col = att_room(n, f->block * p->ek * es);
	f->q_step = att_room(n, f->block * p->dc * es);
	f->o_step = att_room(n, f->block * p->ec * es);
	f->numbers = att_room(n, NUMBERS * MOST_ROWS * 4);
	f->r_least = att_room(n, PANELS * 4);
	f->r_norm = att_room(n, PANELS * 4);
	f->r_lo = att_room(n, extra * PANELS * 8);
	f->r_hi = att_room(n, extra * PANELS * 8);
	f->dkv_bytes = (size_t)att_pad(f->kb * (p->dc + p->ec) * 4, 64);
}

/* How blocks of keys and of rows are shared out, from shapes alone: as many blocks of keys for each tile as its cache holds, since what is
 * packed of rows and added to their sums is for all of them; fewer only where there would be few tiles, and never more tiles than many. */
static void share_out(struct bwd *f)
{
	int64_t batch = f->p.x.batch, most = MIN(MAX(OWN_BYTES / (int64_t)(f->k_bytes + f->dkv_bytes), 1), f->p.v->es == 4 ? MOST_OWN_F32 : MOST_OWN);
	for (f->own = most;; f->own--) {
		f->parts = MIN(MIN((f->nkb + f->own - 1) / f->own, MANY), f->nrb);
		if (f->own == 1 || f->parts * batch >= FEW || f->parts == f->nrb)
			break;
	}
	f->some = MIN((MANY + f->parts - 1) / f->parts, batch);
	f->steps = (f->nkb + f->parts * f->own - 1) / (f->parts * f->own);
	f->parts = (f->nkb + f->steps * f->own - 1) / (f->steps * f->own);       /* no step with less to do than the others, nor memory for more */
}

/* Where sums of so many rows at once are kept, if they go on in another phase. */
static void find_home(struct sums *s, int64_t rows, bool kept, size_t *shared)
{
	const struct att_rows *to = &s->to;
	s->home = to->unit != to->es ? APART : to->dt == DT_f32 ? THERE : to->dt == DT_bf16 ? HALF : APART;
	s->at = att_room(shared, kept ? rows * to->w * (s->home == THERE ? 0 : s->home == HALF ? 2 : 4) : 0);
}

static void lay_out(struct bwd *f, struct kern_state *s)
{
	const struct att_plan *p = &f->p;
	int64_t es = p->v->es, mr = p->v->mr, keys = f->some * f->parts * f->own * f->kb;
	int64_t all = f->some * f->parts * f->own * (int64_t)f->dkv_bytes;
	f->few = f->parts > 1 && all <= FEW_BYTES;
	f->few_at = att_room(&s->shared, f->few ? all : 0);
	find_home(&f->dk, keys, f->parts > 1 && !f->few, &s->shared);
	find_home(&f->dv, keys, f->parts > 1 && !f->few, &s->shared);
	find_home(&f->dq, f->some * p->rows, f->parts * f->steps > 1, &s->shared);
	f->seen_rows = att_room(&s->shared, f->blocks ? f->some * f->nrb * (2 * p->x.nextra + 1) * 8 : 0);
	f->seen_keys = att_room(&s->shared, f->blocks ? f->some * f->parts * 2 * p->x.nextra * 8 : 0);
	f->tally_at = att_room(&s->shared, f->some * f->parts * f->tally_all * 8);
	size_t *n = &s->scratch;
	int64_t numbers = ATT_MOST_MR * ATT_COLS * 4;
	f->key_at = att_room(n, f->own * (int64_t)f->k_bytes);
	f->sums_at = att_room(n, f->few ? 0 : f->own * (int64_t)f->dkv_bytes);
	f->rows_at = att_room(n, (int64_t)f->r_bytes);
	f->s_at = att_room(n, numbers);
	f->y_at = att_room(n, numbers);
	f->slope_at = att_room(n, numbers);
	f->flat_at = att_room(n, f->p.raw ? 0 : numbers);
	f->w_at = att_room(n, p->x.weighted ? numbers : 0);
	f->index_at = att_room(n, p->x.ntally * numbers);
	f->p_at = att_room(n, f->kb * f->block * es);
	f->dx_at = att_room(n, f->kb * f->block * es);
	size_t end = f->p_at;      /* of what is needed while blocks are packed and results leave, when there are no p and dx */
	f->row_at = att_room(&end, MAX(f->dgroups * mr * ATT_COLS, MAX(p->dc, p->ec)) * 4);
	f->dense_at = att_room(&end, att_dense_rows(p) * MAX(p->dc, p->ec) * es);
	f->tmp_at = att_room(&end, (int64_t)att_fetch_bytes(p));
	*n = MAX(*n, end);
	f->panel_at = att_room(n, f->panels * f->kpad * ATT_COLS * es);
	f->dq_tile = att_room(n, f->dgroups * mr * f->block * 4);
	f->fn_at = att_room(n, (int64_t)p->fn_bytes);
}

bool attention_backward(const struct prog_kern *k, const struct attention *x, struct kern_state *s)
{
	struct bwd *f = ARENA_NEW(&s->a, struct bwd, 1);
	memset(f, 0, sizeof *f);
	if (!att_plan_make(k, x, true, &s->a, &f->p))
		return false;
	struct att_rows *rows[] = { &f->q, &f->k, &f->v, &f->l, &f->d_o, &f->delta, &f->dq.to, &f->dk.to, &f->dv.to };
	for (int i = 0; i < (int)NELEM(rows); i++)
		att_rows_make(&f->p, k, i < 6 ? i : k->nin + i - 6, rows[i]);
	for (int i = ATT_L; i <= ATT_DELTA; i += ATT_DELTA - ATT_L)
		if (k->v[i].dtype != DT_f32 && k->v[i].dtype != DT_f64)
			return false;
	int64_t mr = f->p.v->mr;
	/* the more rows meet a block of keys, the seldomer its sums go to the second cache and back, which must hold twice as much */
	f->block = f->p.v->es == 2 && cpu_get()->l2 >= WIDE_L2 && x->s > BLOCK && f->p.rows > BLOCK ? MOST_ROWS : BLOCK;
	f->panels = f->block / ATT_COLS;
	f->groups = BLOCK / mr;
	f->kb = f->groups * mr;
	f->kpad = att_pad(f->kb, f->p.v->kstep);
	f->dgroups = (x->d + mr - 1) / mr;
	f->nkb = (x->s + f->kb - 1) / f->kb;
	f->nrb = (f->p.rows + f->block - 1) / f->block;
	f->bounds = !f->p.range.always && (f->p.range.plain || x->nextra > 0);
	f->blocks = f->bounds && x->nextra > 0;
	f->norms = !f->p.range.plain && x->nextra;
	if (!f->p.range.plain)
		f->p.range.c = 1;
	for (int i = 0; i < x->ntally; i++)
		f->tally_all = f->tally_from[i + 1] = f->tally_from[i] + k->v[k->nin + 3 + i].dim[x->nb + 2];
	lay_out_blocks(f);
	share_out(f);
	lay_out(f, s);
	s->tiles = f->some * f->parts;
	s->phases = (int)((x->batch + f->some - 1) / f->some * phases_of(f));
	s->run = run;
	s->priv = f;
	return true;
}
