/* reduce_window and select_and_scatter.
 *
 * A row of outputs along one dimension is made at once: for each position of the window, the outputs whose
 * element there is inside the operand form an arithmetic progression, and so do the elements, so the row is
 * combined strip by strip.  A short last dimension without window (channels) goes along as whole cells.
 *
 * Of a known operation the rows that a window reaches over are combined first, as they lie, and then what is left along the
 * row: of 3 x 3 elements, three and three.  Where the window is of several arrays each position is combined on its own; sums over windows that
 * are wide even so go through levels. */
#include <stdlib.h>

#include "impl.h"

enum { MAX_OPS = 64, WIDE = 64, ROW = 2048, BLOCK = 8, APART = 5 * 64 };      /* APART: rows that are read beside one that is written do not begin alike in a page */

struct window {
	int rank, nop, lane;         /* lane: the dimension rows run along */
	int64_t cell;                /* elements that go together: the last dimension, or 1 */
	const int64_t *size, *stride, *base, *dil, *low;
	enum redop op;
	kern_strip *f, *load, *store;
	struct plan *p;
	enum dtype acc;
	int64_t units, strip, nstrip, per_tile, nw;      /* units: strips of outputs of all rows; cells of one; strips of a row */
	size_t slot, lists, level;   /* level: where those of long sums lie in the scratch, 0: there are none */
	bool sums;                   /* of numbers that round: blocks of BLOCK rows, and of so many positions, are added up by themselves */
	uint8_t none[16];            /* what changes no sum */
};

/* acc[i] = f(acc[i], x[i]), n <= KERN_STRIP; every operand. */
static void combine(const struct window *q, const struct prog_kern *k, int64_t n, char *const *acc, char *const *x, char *scratch)
{
	if (q->f) {
		q->f(n, acc[0], acc[0], x[0], NULL);
		return;
	}
	const void **in = (const void **)(void *)(scratch + q->lists), **res = in + 2 * q->nop;
	for (int i = 0; i < q->nop; i++) {
		in[i] = acc[i];
		in[q->nop + i] = x[i];
	}
	plan_run(q->p, n, in, NULL, res, scratch);
	/* results may be other operands' accumulators: aside first, then in place */
	char *aside = scratch + q->slot;
	for (int pass = 0; pass < 2; pass++)
		for (int i = 0; i < q->nop; i++) {
			size_t bytes = (size_t)(n * dt_bytes(k->v[i].dtype));
			char *a = aside + (size_t)i * KERN_STRIP * 16;
			if (res[i] == acc[i])
				continue;
			memcpy(pass ? acc[i] : a, pass ? (const void *)a : res[i], bytes);
		}
}

/* n cells of c neighbouring elements each. */
static void move_cells(int es, int64_t c, int64_t n, char *dst, int64_t ds, const char *src, int64_t ss)
{
	if (c == 1) {
		move_strided(es, n, dst, ds, src, ss);
		return;
	}
	size_t bytes = (size_t)(es * c);
	if (ds == es * c && ss == ds) {
		memcpy(dst, src, bytes * (size_t)n);
	} else if (bytes == 64) {
		for (int64_t i = 0; i < n; i++)
			memcpy(dst + i * ds, src + i * ss, 64);
	} else if (bytes == 32) {
		for (int64_t i = 0; i < n; i++)
			memcpy(dst + i * ds, src + i * ss, 32);
	} else {
		for (int64_t i = 0; i < n; i++)
			memcpy(dst + i * ds, src + i * ss, bytes);
	}
}

/* Outputs j < n for which j * stride + at is inside [0, dim * base) and a multiple of base:
 * j0, j0 + dj, ..; *cnt of them; the elements are e0, e0 + de, .. */
static void progression(int64_t n, int64_t stride, int64_t at, int64_t dim, int64_t base,
                        int64_t *j0, int64_t *dj, int64_t *cnt, int64_t *e0, int64_t *de)
{
	int64_t g = base > 1 ? gcd_of(stride, base) : 1, step = base / g, j = at < 0 ? (-at + stride - 1) / stride : 0, tries = 0;
	*cnt = 0;
	*dj = step;
	*de = stride * step / base;
	while (base > 1 && tries < step && ((j * stride + at) % base) != 0) {
		j++;
		tries++;
	}
	if (tries == step || j >= n)
		return;
	int64_t e = (j * stride + at) / base;
	if (e >= dim)
		return;
	*j0 = j;
	*e0 = e;
	*cnt = step > 1 ? (n - 1 - j) / step + 1 : n - j;
	if (e + (*cnt - 1) * *de >= dim)
		*cnt = (dim - 1 - e) / *de + 1;
}

/* One row of a known operation, strip by strip: what the window holds across the row, then along it. */
static void rows_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                     int64_t t0, int64_t t1, void *scratch)
{
	const struct window *q = s->priv;
	const struct prog_view *in = &k->v[0], *out = &k->v[2];
	int r = q->rank, L = q->lane, es = dt_bytes(in->dtype), as = dt_bytes(q->acc), os = dt_bytes(out->dtype);
	char *row = scratch, *x = row + ROW * as + APART, *aside = x + ROW * as + APART, *inits = aside + ROW * as + APART, *part = inits + ROW * as + APART, *blocks = part + ROW * as + APART;
	int64_t C = q->cell, n = r ? out->dim[L] : 1, dim = r ? in->dim[L] : 1, st = r ? in->stride[L] : 0, so = r ? out->stride[L] : 0;
	int64_t size = r ? q->size[L] : 1, stride = r ? q->stride[L] : 1, dil = r ? q->dil[L] : 1, low = r ? q->low[L] : 0, base = r ? q->base[L] : 1;
	int64_t odim[LOOP_RANK], across[LOOP_RANK], ox[LOOP_RANK], wx[LOOP_RANK] = { 0 };
	char init[16];

	for (int d = 0; d < r; d++) {
		odim[d] = d == L || (C > 1 && d == r - 1) ? 1 : out->dim[d];
		across[d] = d == L ? 1 : q->size[d];
	}
	if (q->load)
		q->load(1, init, view_at(k, ptr, 1), NULL, NULL);
	else
		memcpy(init, view_at(k, ptr, 1), (size_t)es);
	fill_bytes(as, MIN(n, q->strip) * C, inits, init);
	for (int64_t u = t0 * q->per_tile; u < MIN(t1 * q->per_tile, q->units); u++) {
		int64_t c0 = u % q->nstrip * q->strip, m = MIN(n - c0, q->strip);
		int64_t first = c0 * stride - low, last = first + (m - 1) * stride + (size - 1) * dil;
		int64_t lo = MAX(0, first + base - 1) / base, len = last < 0 ? 0 : MIN(dim, last / base + 1) - lo;
		const char *have = NULL;         /* of the row, len cells from lo on */
		int64_t nrow = 0, nblock = 0;
		index_of(r, odim, u / q->nstrip, ox);
		char *to = view_at(k, ptr, 2) + (offset_of(r, out->stride, ox) + c0 * so) * os, *acc = so == C && !q->store ? to : aside;
		do {
			int64_t off = lo * st;
			bool inside = len > 0;
			for (int d = 0; d < r && inside; d++) {
				if (d == L)
					continue;
				int64_t p = ox[d] * q->stride[d] + wx[d] * q->dil[d] - q->low[d];
				inside = p >= 0 && p % q->base[d] == 0 && (p /= q->base[d]) < in->dim[d];
				off += p * in->stride[d];
			}
			if (!inside)
				continue;
			if (q->sums && nrow && nrow % BLOCK == 0) {
				if (nblock++)
					q->f(len * C, blocks, blocks, have, NULL);
				else
					memcpy(blocks, have, (size_t)(len * C * as));
				have = NULL;
			}
			nrow++;
			const char *y = view_at(k, ptr, 0) + off * es;
			char *in_row = have ? x : row, *raw = q->load ? aside : in_row;
			if (st != C) {
				move_cells(es, C, len, raw, es * C, y, st * es);
				y = raw;
			}
			if (q->load) {
				q->load(len * C, in_row, y, NULL, NULL);
				y = in_row;
			}
			if (have)
				q->f(len * C, row, have, y, NULL);
			have = have ? row : y;
		} while (index_next(r, across, wx));
		if (nblock) {
			q->f(len * C, blocks, blocks, have, NULL);
			have = blocks;
		}
		bool begun = false, deep = q->sums && size > 2 * BLOCK;
		char *whole = acc;
		if (deep)
			acc = have == blocks ? row : blocks;
		for (int64_t w = 0; w < size && have; w++) {
			if (deep && w % BLOCK == 0) {
				if (w)
					q->f(m * C, whole, w == BLOCK ? inits : whole, acc, NULL);
				fill_bytes(as, m * C, acc, q->none);
				begun = true;
			}
			int64_t j, dj, cnt, e, de;
			progression(m, stride, first + w * dil, dim, base, &j, &dj, &cnt, &e, &de);
			if (cnt <= 0)
				continue;
			const char *y = have + (e - lo) * C * as;
			char *a = acc + j * as * C, *b = a;
			if (!begun && cnt == m)
				b = inits;
			else if (!begun)
				memcpy(acc, inits, (size_t)(m * C * as));
			begun = true;
			if ((de != 1 || dj != 1) && C * as >= 64) {
				for (int64_t i = 0; i < cnt; i++, a += dj * as * C, b += dj * as * C, y += de * as * C)
					q->f(C, a, b, y, NULL);
				continue;
			}
			if (de != 1) {
				move_cells(as, C, cnt, x, as * C, y, de * as * C);
				y = x;
			}
			if (dj != 1) {
				move_cells(as, C, cnt, part, as * C, b, dj * as * C);
				b = part;
			}
			q->f(cnt * C, dj == 1 ? a : part, b, y, NULL);
			if (dj != 1)
				move_cells(as, C, cnt, a, dj * as * C, part, as * C);
		}
		if (deep && have)
			q->f(m * C, whole, whole, acc, NULL);
		acc = whole;
		if (!begun)
			memcpy(acc, inits, (size_t)(m * C * as));
		if (q->store)
			q->store(m * C, x, acc, NULL, NULL);
		if (acc != to)
			move_cells(os, C, m, to, so * os, q->store ? x : acc, os * C);
	}
}

static void window_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                       int64_t t0, int64_t t1, void *scratch_)
{
	const struct window *q = s->priv;
	const struct prog_view *in = &k->v[0], *out = &k->v[2 * q->nop];
	int r = q->rank, L = q->lane, nop = q->nop;
	char *scratch = scratch_, *bufs = scratch + q->slot + (size_t)nop * KERN_STRIP * 16;
	int64_t odim[LOOP_RANK], ox[LOOP_RANK], wx[LOOP_RANK], n = r ? out->dim[L] : 1;
	if (q->p)
		plan_start(q->p, scratch);
	for (int d = 0; d < r; d++)
		odim[d] = d == L || (q->cell > 1 && d == r - 1) ? 1 : out->dim[d];
	int as = dt_bytes(q->acc);
	int64_t C = q->cell;
	for (int64_t u = t0 * q->per_tile; u < MIN(t1 * q->per_tile, q->units); u++) {
		int64_t c0 = u % q->nstrip * q->strip, m = MIN(n - c0, q->strip);
		index_of(r, odim, u / q->nstrip, ox);
		char *acc[MAX_OPS], *x[MAX_OPS], *y[MAX_OPS], *sub[MAX_OPS];       /* y: what is combined, x or the operand itself */
		for (int i = 0; i < nop; i++) {
			const char *v = view_at(k, ptr, nop + i);
			char init[16];
			acc[i] = bufs + (size_t)i * 3 * KERN_STRIP * 16;
			x[i] = acc[i] + KERN_STRIP * 16;
			if (q->load)
				q->load(1, init, v, NULL, NULL);
			else
				memcpy(init, v, (size_t)dt_bytes(k->v[i].dtype));
			fill_bytes(q->load ? as : dt_bytes(k->v[i].dtype), m * C, acc[i], init);
		}
		char *first = acc[0];
		int64_t at = 0;          /* positions so far */
		if (q->level)
			acc[0] = scratch + q->level;
		memset(wx, 0, sizeof *wx * (size_t)(r + 1));
		do {
			/* where in the operand this position of the window is, but for the lane */
			int64_t off[MAX_OPS];
			bool inside = true;
			memset(off, 0, sizeof *off * (size_t)nop);
			for (int d = 0; d < r && inside; d++) {
				if (d == L)
					continue;
				int64_t p = ox[d] * q->stride[d] + wx[d] * q->dil[d] - q->low[d];
				inside = p >= 0;
				if (q->base[d] > 1) {
					inside &= p % q->base[d] == 0;
					p /= q->base[d];
				}
				inside &= p < in->dim[d];
				for (int i = 0; i < nop && inside; i++)
					off[i] += p * k->v[i].stride[d];
			}
			if (!inside)
				continue;
			int64_t j0 = 0, dj = 1, cnt = 1, e0 = 0, de = 0;
			if (r)
				progression(m, q->stride[L], c0 * q->stride[L] + wx[L] * q->dil[L] - q->low[L], in->dim[L], q->base[L],
				            &j0, &dj, &cnt, &e0, &de);
			if (cnt <= 0)
				continue;
			if (q->level && sum_starts(at))
				fill_bytes(as, m * C, acc[0], q->none);
			for (int i = 0; i < nop; i++) {
				int es = dt_bytes(k->v[i].dtype), ws = q->load ? as : es;
				int64_t st = r ? k->v[i].stride[L] : 0;
				const char *src = view_at(k, ptr, i) + (off[i] + e0 * st) * es;
				y[i] = de * st == C && !q->load ? (char *)(uintptr_t)src : x[i];
				if (y[i] == x[i]) {
					char *raw = q->load ? x[i] + KERN_STRIP * 16 : x[i];
					move_cells(es, C, cnt, raw, es * C, src, de * st * es);
					if (q->load)
						q->load(cnt * C, x[i], raw, NULL, NULL);
				}
				sub[i] = acc[i] + j0 * ws * C;
				if (dj != 1) {
					sub[i] = x[i] + KERN_STRIP * 16;
					move_cells(ws, C, cnt, sub[i], ws * C, acc[i] + j0 * ws * C, dj * ws * C);
				}
			}
			combine(q, k, cnt * C, sub, y, scratch);
			if (dj != 1)
				for (int i = 0; i < nop; i++) {
					int ws = q->load ? as : dt_bytes(k->v[i].dtype);
					move_cells(ws, C, cnt, acc[i] + j0 * ws * C, dj * ws * C, sub[i], ws * C);
				}
			if (q->level)
				sum_carry(at++, q->f, m * C, as, acc[0], KERN_STRIP * 16);
		} while (index_next(r, q->size, wx));
		if (q->level && at) {
			sum_close(at, q->f, m * C, as, acc[0], KERN_STRIP * 16);
			q->f(m * C, first, first, acc[0], NULL);
		}
		acc[0] = first;
		for (int i = 0; i < nop; i++) {
			const struct prog_view *o = &k->v[2 * nop + i];
			int es = dt_bytes(o->dtype);
			char *from = acc[i];
			if (q->store) {
				q->store(m * C, x[i], acc[i], NULL, NULL);
				from = x[i];
			}
			int64_t st = r ? o->stride[L] : 1;
			move_cells(es, C, m, view_at(k, ptr, 2 * nop + i) + (offset_of(r, o->stride, ox) + c0 * st) * es, st * es, from, es * C);
		}
	}
}

struct err *kern_make_reduce_window(const struct prog_kern *k, struct kern_state *s)
{
	struct window *q = ARENA_NEW(&s->a, struct window, 1);
	int r = q->rank = k->v[0].rank;
	q->nop = k->nin / 2;
	if (k->nattr < 6u * (unsigned)r + 1)
		return ERR(INVALID, "reduce_window lacks attributes");
	q->size = k->attr;
	q->stride = k->attr + r;
	q->base = k->attr + 2 * r;
	q->dil = k->attr + 3 * r;
	q->low = k->attr + 4 * r;
	q->op = (enum redop)k->attr[6 * r];
	enum dtype dt = k->v[0].dtype;
	q->acc = dt;
	if (q->nop < 1 || q->nop > MAX_OPS)
		return ERR(UNIMPLEMENTED, "reduce_window of %d operands", q->nop);
	if (q->op != RED_fn) {
		const kern_key *key = q->op == RED_max || q->op == RED_min ? &kern_isa_get()->key16[q->op == RED_min][dt == DT_f16] : NULL;
		bool keys = key && (dt == DT_bf16 || dt == DT_f16);       /* the largest of numbers is the largest of integers in their order */
		q->acc = keys ? DT_i16 : acc_type(dt);
		q->f = redop_elem[q->op] < ELEM_COUNT ? kern_elem(redop_elem[q->op], q->acc, q->acc) : NULL;
		if (!q->f || q->nop != 1)
			return ERR(UNIMPLEMENTED, "reduce_window '%s' of %d operands of '%s'", redop_name[q->op], q->nop, dtype_info[dt].name);
		if (keys) {
			q->load = (*key)[0];
			q->store = (*key)[1];
		} else if (q->acc != dt) {
			q->load = kern_elem(ELEM_convert, dt, q->acc);
			q->store = kern_elem(ELEM_convert, q->acc, dt);
		}
	} else {
		if (!k->expr || k->expr->nin != 2 * q->nop || k->expr->nout != q->nop)
			return ERR(INVALID, "reduce_window of %d operands without an expression for them", q->nop);
		TRY(plan_make(&s->a, k->expr, &q->p));
	}
	/* rows along the last dimension, or along a longer one where that is short */
	const struct prog_view *out = &k->v[2 * q->nop], *row = q->f ? &k->v[0] : out;
	q->lane = MAX(0, r - 1);
	for (int d = r - 1; d >= 0; d--)
		if (row->dim[q->lane] < 16 && row->dim[d] > 4 * row->dim[q->lane])
			q->lane = d;
	q->cell = 1;
	if (r > 1 && out->dim[r - 1] > 1 && out->dim[r - 1] <= KERN_STRIP / 4 && q->size[r - 1] == 1 && q->stride[r - 1] == 1 && q->base[r - 1] == 1 &&
	    !q->low[r - 1] && out->dim[r - 1] == k->v[0].dim[r - 1]) {
		bool close = true;
		for (int i = 0; i < q->nop; i++)
			close &= k->v[i].stride[r - 1] == 1 && k->v[2 * q->nop + i].stride[r - 1] == 1;
		if (close) {
			q->cell = out->dim[r - 1];
			q->lane = r - 2;
		}
	}
	int64_t n = view_count(out), lane = r ? out->dim[q->lane] : 1;
	q->nw = 1;
	for (int d = 0; d < r; d++)
		q->nw *= q->size[d];
	/* the lane's own positions, and those across: sums of at most WIDE of each need no levels */
	int64_t along = r ? q->size[q->lane] : 1, reach = r ? (along - 1) * q->dil[q->lane] + 1 : 1, step = r ? q->stride[q->lane] : 1;
	int64_t room = ROW / q->cell, spread = r ? room * q->base[q->lane] : room;       /* cells of a strip; positions that they reach over */
	int cls = dtype_info[q->acc].cls, as = dt_bytes(q->acc);
	q->sums = q->op == RED_add && (cls == DT_FLOAT || cls == DT_COMPLEX);
	bool rows = q->f && reach <= spread / 2 && (!q->sums || (along <= WIDE && q->nw / MAX(along, 1) <= WIDE));
	if (q->sums) {
		q->none[as - 1] = 0x80;        /* -0 */
		if (cls == DT_COMPLEX)
			q->none[as / 2 - 1] = 0x80;
	}
	q->strip = rows ? MIN(room, (spread - reach) / step + 1) : KERN_STRIP / q->cell;
	q->nstrip = MAX(1, (lane + q->strip - 1) / q->strip);
	q->units = n ? n / (lane * q->cell) * q->nstrip : 0;
	q->per_tile = MAX(1, 65536 / MAX(1, MIN(lane, q->strip) * q->cell * q->nw));
	s->tiles = (q->units + q->per_tile - 1) / q->per_tile;
	q->lists = q->p ? (q->p->scratch + 63) & ~(size_t)63 : 0;
	q->slot = (q->lists + (size_t)q->nop * 4 * sizeof(void *) + 63) & ~(size_t)63;
	s->scratch = q->slot + (size_t)q->nop * KERN_STRIP * 16 * 4;
	if (rows)
		s->scratch = 6 * (size_t)(ROW * as + APART);
	else if (q->sums && q->nw > WIDE) {
		q->level = s->scratch;
		s->scratch += (size_t)sum_levels(q->nw) * KERN_STRIP * 16;
	}
	s->priv = q;
	s->run = rows ? rows_run : window_run;
	return NULL;
}

/* --- select_and_scatter ------------------------------------------------------------- */

struct sas {
	int rank, lane;              /* lane: a dimension without window, else the last one that has more than one source; -1 if there is none */
	bool meet;                   /* windows that are beside each other along the lane share elements */
	int64_t head, tail;          /* lanes whose windows lie inside along it, all of them */
	const int64_t *size, *stride, *low;
	kern_strip *better, *pick, *pick_at, *f;
	int64_t outer;               /* extent of the leading dimension the work is cut along */
};

static void sas_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                    int64_t t0, int64_t t1, void *scratch_)
{
	const struct sas *q = s->priv;
	const struct prog_view *in = &k->v[0], *src = &k->v[1], *out = &k->v[3];
	bool cut = q->outer > 1;
	int r = q->rank, L = cut && !q->lane ? -1 : q->lane, es = dt_bytes(in->dtype);
	char *best = scratch_, *x = best + KERN_STRIP * 16, *a = x + KERN_STRIP * 16;
	uint8_t *keep = (uint8_t *)(a + KERN_STRIP * 16);
	int64_t *at = (int64_t *)(void *)(keep + KERN_STRIP), *here = at + KERN_STRIP;
	const char *x0 = view_at(k, ptr, 0), *s0 = view_at(k, ptr, 1), *init = view_at(k, ptr, 2);
	char *o0 = view_at(k, ptr, 3);
	int64_t ix[LOOP_RANK], wx[LOOP_RANK], dim[LOOP_RANK];
	/* this tile's part of the result to the initial value */
	int64_t lo = cut ? t0 : 0, hi = cut ? t1 : 1;
	for (int64_t b = lo; b < hi; b++) {
		int64_t n = r ? out->dim[r - 1] : 1, rows = 1;
		for (int d = 0; d < r - 1; d++)
			rows *= dim[d] = d == 0 && cut ? 1 : out->dim[d];
		if (r == 1 && cut)
			n = 1;
		for (int64_t i = 0; i < rows && n; i++) {
			index_of(MAX(0, r - 1), dim, i, ix);
			char *to = o0 + (offset_of(MAX(0, r - 1), out->stride, ix) + (cut ? b * out->stride[0] : 0)) * es;
			move_strided(es, n, to, (r ? out->stride[r - 1] : 1) * es, init, 0);
		}
		/* sources */
		int64_t total = 1, lanes = L >= 0 ? src->dim[L] : 1, each = L >= 0 ? q->stride[L] : 0;
		int64_t ls = L >= 0 ? in->stride[L] * each : 0, los = L >= 0 ? out->stride[L] * each : 0, lss = L >= 0 ? src->stride[L] : 0;
		for (int d = 0; d < r; d++)
			total *= dim[d] = (d == 0 && cut) || d == L ? 1 : src->dim[d];
		for (int64_t i = 0; i < total; i++) {
			index_of(r, dim, i, ix);
			if (cut)
				ix[0] = b;
			for (int64_t c0 = 0, m; c0 < lanes; c0 += m) {
				bool any = false;
				m = L < 0 || c0 < q->head || c0 >= q->tail ? 1 : MIN(q->tail - c0, KERN_STRIP);
				if (L >= 0)
					ix[L] = c0;
				memset(wx, 0, sizeof *wx * (size_t)(r + 1));
				do {
					int64_t off = 0, to = 0;
					bool inside = true;
					for (int d = 0; d < r && inside; d++) {
						int64_t p = ix[d] * q->stride[d] + wx[d] - q->low[d];
						inside = p >= 0 && p < in->dim[d];
						off += p * in->stride[d];
						to += p * out->stride[d];
					}
					if (!inside)
						continue;
					move_strided(es, m, any ? x : best, es, x0 + off * es, ls * es);
					if (!any) {
						for (int64_t j = 0; j < m; j++)
							at[j] = to;
						any = true;
						continue;
					}
					q->better(m, keep, best, x, NULL);
					q->pick(m, best, keep, best, x);
					for (int64_t j = 0; j < m; j++)
						here[j] = to;
					q->pick_at(m, at, keep, at, here);
				} while (index_next(r, q->size, wx));
				if (!any)
					continue;
				const char *from = s0 + offset_of(r, src->stride, ix) * es;
				move_strided(es, m, x, es, from, lss * es);
				for (int64_t j = 0, some = q->meet ? 1 : m; j < m; j += some) {      /* at once, if they go to different elements */
					for (int64_t e = j; e < j + some; e++)
						memcpy(a + e * es, o0 + (at[e] + e * los) * es, (size_t)es);
					q->f(some, a + j * es, a + j * es, x + j * es, NULL);
					for (int64_t e = j; e < j + some; e++)
						memcpy(o0 + (at[e] + e * los) * es, a + e * es, (size_t)es);
				}
			}
		}
	}
}

struct err *kern_make_select_and_scatter(const struct prog_kern *k, struct kern_state *s)
{
	struct sas *q = ARENA_NEW(&s->a, struct sas, 1);
	int r = q->rank = k->v[0].rank;
	enum dtype dt = k->v[0].dtype;
	if (k->nattr < 4u * (unsigned)r + 2)
		return ERR(INVALID, "select_and_scatter lacks attributes");
	q->size = k->attr;
	q->stride = k->attr + r;
	q->low = k->attr + 2 * r;
	int64_t sel = k->attr[4 * r], red = k->attr[4 * r + 1];
	enum elem fn = red >= 0 && red < RED_COUNT ? redop_elem[red] : ELEM_COUNT;
	q->better = sel >= 0 && sel < ELEM_COUNT ? kern_elem((enum elem)sel, dt, DT_pred) : NULL;
	q->pick = kern_elem(ELEM_select, dt, dt);
	q->pick_at = kern_elem(ELEM_select, DT_i64, DT_i64);
	q->f = fn < ELEM_COUNT ? kern_elem(fn, dt, dt) : NULL;
	if (!q->better || !q->f || !q->pick)
		return ERR(UNIMPLEMENTED, "select_and_scatter of '%s'", dtype_info[dt].name);
	enum { FEW = 8 };                    /* lanes: then sources that lie beside each other along a window are lanes */
	q->lane = -1;
	q->outer = 1;
	for (int d = 0; d < r; d++) {
		bool plain = q->size[d] == 1 && q->stride[d] == 1 && !q->low[d] && k->v[0].dim[d] == k->v[1].dim[d];
		if (d == 0 && plain && r > 1)
			q->outer = k->v[0].dim[0];
		else if (plain && (q->lane < 0 || k->v[0].dim[d] >= k->v[0].dim[q->lane]))
			q->lane = d;
	}
	for (int d = r - 1, few = q->lane < 0 || k->v[0].dim[q->lane] < FEW; d >= 0 && few; d--)
		if (q->size[d] > 1 && k->v[1].dim[d] >= FEW) {
			q->lane = d;
			break;
		}
	if (q->lane >= 0) {
		int64_t size = q->size[q->lane], stride = q->stride[q->lane], low = q->low[q->lane], room = k->v[0].dim[q->lane] - size + low;
		q->meet = size > stride;
		q->head = low > 0 ? (low + stride - 1) / stride : 0;
		q->tail = room < 0 ? 0 : MIN(room / stride + 1, k->v[1].dim[q->lane]);
	}
	s->tiles = view_count(&k->v[3]) ? MAX(1, q->outer) : 0;
	s->scratch = KERN_STRIP * (16 * 3 + 1 + 16) + 64;
	s->priv = q;
	s->run = sas_run;
	return NULL;
}
