/* gather and scatter.
 *
 * Both are a walk over index vectors ("rows"), each of which places a window in the operand; gather copies
 * the window out, scatter combines it in.  The walk is by pointers: one stride per row dimension for the
 * indices, the rows' side and the operand (its batching dimensions), one per window dimension for both sides. */
#include <stdlib.h>

#include "impl.h"

struct walk {
	int nb;                      /* row dimensions */
	int64_t *bdim, *bidx, *brow, *bop;   /* extent; stride in indices, in the rows' side, in the operand (elements) */
	int ncomp;                   /* components of an index vector */
	int64_t comp_stride;
	int64_t *cstride, *cmax;     /* operand stride and largest start of each component */
	struct loop win;             /* stride[0] of the operand, [1] of the rows' side, bytes */
	int64_t rows, wcount;
	enum dtype itype;
	int isize;
};

/* A list inside attributes: count, then items. */
struct list { int64_t n; const int64_t *p; };
static struct err *list_at(const struct prog_kern *k, uint32_t *at, struct list *l)
{
	if (*at >= k->nattr || k->attr[*at] < 0 || k->attr[*at] > k->nattr - *at - 1)
		return ERR(INVALID, "kernel '%s' lacks attributes", prog_kern_name[k->id]);
	l->n = k->attr[*at];
	l->p = k->attr + *at + 1;
	*at += 1 + (uint32_t)l->n;
	return NULL;
}

/* side: the array whose dimensions window_dims are the window's; dropped: operand dimensions outside it. */
static struct err *walk_make(struct arena *a, struct walk *w, const struct prog_view *op, const struct prog_view *idx,
                             const struct prog_view *side, struct list window_dims, struct list dropped, struct list obatch,
                             struct list ibatch, struct list map, int64_t index_dim, const int64_t *size)
{
	int nb = side->rank - (int)window_dims.n, ir = idx->rank;
	w->bdim = ARENA_NEW(a, int64_t, 4 * (nb + 1));
	w->bidx = w->bdim + nb + 1;
	w->brow = w->bidx + nb + 1;
	w->bop = w->brow + nb + 1;
	w->itype = idx->dtype;
	w->isize = dt_bytes(idx->dtype);
	w->rows = 1;
	int id = 0;
	for (int d = 0; d < side->rank; d++) {
		if (in_list(window_dims.p, window_dims.n, d))
			continue;
		if (id == index_dim)
			id++;
		if (id >= ir)
			return ERR(INVALID, "gather or scatter has more batch dimensions than indices");
		int b = w->nb++;
		w->bdim[b] = side->dim[d];
		w->bidx[b] = idx->stride[id];
		w->brow[b] = side->stride[d];
		for (int64_t i = 0; i < obatch.n; i++)
			if (ibatch.p[i] == id)
				w->bop[b] = op->stride[obatch.p[i]];
		w->rows *= side->dim[d];
		id++;
	}
	w->ncomp = (int)map.n;
	w->comp_stride = index_dim < ir ? idx->stride[index_dim] : 0;
	w->cstride = ARENA_NEW(a, int64_t, 2 * (map.n + 1));
	w->cmax = w->cstride + map.n + 1;
	for (int64_t i = 0; i < map.n; i++) {
		w->cstride[i] = op->stride[map.p[i]];
		w->cmax[i] = op->dim[map.p[i]] - size[map.p[i]];
	}
	struct prog_view vo = *op, vs = *side;
	vo.dim = vs.dim = ARENA_NEW(a, int64_t, op->rank + 1);
	vo.stride = ARENA_NEW(a, int64_t, op->rank + 1);
	vs.stride = ARENA_NEW(a, int64_t, op->rank + 1);
	vo.rank = 0;
	for (int d = 0; d < op->rank; d++) {
		if (in_list(dropped.p, dropped.n, d) || in_list(obatch.p, obatch.n, d))
			continue;
		if (vo.rank >= window_dims.n)
			return ERR(INVALID, "gather or scatter has fewer window dimensions than its operand");
		vo.dim[vo.rank] = size[d];
		vo.stride[vo.rank] = op->stride[d];
		vs.stride[vo.rank] = side->stride[window_dims.p[vo.rank]];
		vo.rank++;
	}
	vs.rank = vo.rank;
	const struct prog_view *v[2] = { &vo, &vs };
	loop_make(a, &w->win, 2, v);
	w->wcount = w->win.count;
	return NULL;
}

/* Start of row's window in the operand, in elements; clamped, or *inside says whether it fits. */
static inline int64_t start_of(const struct walk *w, const char *idx, bool *inside)
{
	int64_t off = 0;
	bool ok = true;
	for (int i = 0; i < w->ncomp; i++) {
		int64_t v;
		const char *p = idx + i * w->comp_stride * w->isize;
		if (w->itype == DT_i32) {
			int32_t t;
			memcpy(&t, p, 4);
			v = t;
		} else {
			v = load_int(w->itype, p);
		}
		ok &= v >= 0 && v <= w->cmax[i];
		v = v > w->cmax[i] ? w->cmax[i] : v;
		v = v < 0 ? 0 : v;
		off += v * w->cstride[i];
	}
	*inside = ok;
	return off;
}

/* --- gather ---------------------------------------------------------------------- */

struct gather {
	struct walk w;
	int es;
	int64_t per_tile;            /* rows */
	int64_t chunks, per_slice, slices;   /* columns: chunks of the last row dimension, positions of the window's first one in a tile */
};
enum { COLUMNS = 1024, FEW_COLUMNS = 8, TILE_BYTES = 131072 };       /* whose places are found at once */

/* Windows that lie side by side in the result, column by column: of each of their positions many at once. */
#define SIDE_BY_SIDE(T) for (int64_t j = 0; j < n; j++) memcpy(dst + j * (int64_t)sizeof(T), src + at[j], sizeof(T));
static void side_by_side(int es, int64_t n, char *restrict dst, const char *restrict src, const int64_t *restrict at) { BY_SIZE(es, SIDE_BY_SIDE) }

static void columns_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                        int64_t t0, int64_t t1, void *scratch)
{
	const struct gather *q = s->priv;
	const struct walk *w = &q->w;
	const struct loop *l = &w->win;
	int es = q->es, bl = w->nb - 1;
	int64_t at[COLUMNS], ix[LOOP_RANK], wx[LOOP_RANK];
	bool in;
	for (int64_t t = t0; t < t1; t++) {
		int64_t u = t / q->slices, j0 = u % q->chunks * COLUMNS, n = MIN(COLUMNS, w->bdim[bl] - j0), w0 = t % q->slices * q->per_slice, w1 = MIN(w0 + q->per_slice, l->dim[0]);
		index_of(bl, w->bdim, u / q->chunks, ix);
		ix[bl] = j0;
		const char *idx = view_at(k, ptr, 1) + offset_of(w->nb, w->bidx, ix) * w->isize, *op = view_at(k, ptr, 0) + offset_of(w->nb, w->bop, ix) * es;
		char *out = view_at(k, ptr, 2) + offset_of(w->nb, w->brow, ix) * es;
		for (int64_t j = 0; j < n; j++)
			at[j] = (start_of(w, idx + j * w->bidx[bl] * w->isize, &in) + j * w->bop[bl]) * es;
		memset(wx, 0, sizeof wx);
		for (wx[0] = w0; wx[0] < w1; wx[0]++)
			do
				side_by_side(es, n, out + offset_of(l->rank, l->stride[1], wx), op + offset_of(l->rank, l->stride[0], wx), at);
			while (index_next(l->rank - 1, l->dim + 1, wx + 1));
	}
}

static void gather_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                       int64_t t0, int64_t t1, void *scratch)
{
	const struct gather *q = s->priv;
	const struct walk *w = &q->w;
	const struct loop *l = &w->win;
	int es = q->es, r = l->rank;
	const char *op = view_at(k, ptr, 0), *idx = view_at(k, ptr, 1);
	char *out = view_at(k, ptr, 2);
	int64_t ix[LOOP_RANK], wx[LOOP_RANK], lo = t0 * q->per_tile, hi = MIN(t1 * q->per_tile, w->rows);
	int64_t n = l->dim[r - 1], is = l->stride[0][r - 1], os = l->stride[1][r - 1];
	bool run = is == es && os == es, in;
	index_of(w->nb, w->bdim, lo, ix);
	for (int64_t row = lo; row < hi;) {
		/* along the last row dimension */
		int bl = w->nb - 1;
		int64_t m = bl >= 0 ? MIN(hi - row, w->bdim[bl] - ix[bl]) : 1;
		const char *i0 = idx + offset_of(w->nb, w->bidx, ix) * w->isize, *p0 = op + offset_of(w->nb, w->bop, ix) * es;
		char *o0 = out + offset_of(w->nb, w->brow, ix) * es;
		int64_t di = bl >= 0 ? w->bidx[bl] * w->isize : 0, dp = bl >= 0 ? w->bop[bl] * es : 0, dout = bl >= 0 ? w->brow[bl] * es : 0;
		if (w->wcount == 1 && es == 4) {
			for (int64_t j = 0; j < m; j++, i0 += di, p0 += dp, o0 += dout)
				memcpy(o0, p0 + start_of(w, i0, &in) * 4, 4);
		} else if (r == 1 && run && n * es <= COPY_FEW) {
			for (int64_t j = 0; j < m; j++, i0 += di, p0 += dp, o0 += dout)
				copy_few(o0, p0 + start_of(w, i0, &in) * es, (size_t)(n * es));
		} else {
			for (int64_t j = 0; j < m; j++, i0 += di, p0 += dp, o0 += dout) {
				const char *src = p0 + start_of(w, i0, &in) * es;
				if (r == 1) {
					if (run)
						memcpy(o0, src, (size_t)(n * es));
					else
						move_strided(es, n, o0, os, src, is);
					continue;
				}
				memset(wx, 0, sizeof *wx * (size_t)r);
				do
					move_strided(es, n, o0 + offset_of(r - 1, l->stride[1], wx), os,
					             src + offset_of(r - 1, l->stride[0], wx), is);
				while (index_next(r - 1, l->dim, wx));
			}
		}
		row += m;
		if (bl < 0)
			break;
		ix[bl] = 0;
		index_next(bl, w->bdim, ix);
	}
}

struct err *kern_make_gather(const struct prog_kern *k, struct kern_state *s)
{
	struct gather *q = ARENA_NEW(&s->a, struct gather, 1);
	struct list offset = { 0 }, collapsed = { 0 }, obatch = { 0 }, ibatch = { 0 }, map = { 0 }, size = { 0 };
	uint32_t at = 0;
	TRY(list_at(k, &at, &offset));
	TRY(list_at(k, &at, &collapsed));
	TRY(list_at(k, &at, &obatch));
	TRY(list_at(k, &at, &ibatch));
	TRY(list_at(k, &at, &map));
	if (at >= k->nattr)
		return ERR(INVALID, "gather lacks attributes");
	int64_t index_dim = k->attr[at++];
	TRY(list_at(k, &at, &size));
	if (size.n != k->v[0].rank)
		return ERR(INVALID, "gather of rank %d has %lld slice sizes", k->v[0].rank, (long long)size.n);
	TRY(walk_make(&s->a, &q->w, &k->v[0], &k->v[1], &k->v[2], offset, collapsed, obatch, ibatch, map, index_dim, size.p));
	q->es = dt_bytes(k->v[0].dtype);
	if (!q->w.wcount)
		q->w.rows = 0;
	const struct loop *l = &q->w.win;
	const int last = q->w.nb - 1;
	s->priv = q;
	if (last >= 0 && q->w.brow[last] == 1 && l->stride[1][l->rank - 1] != q->es && q->w.wcount > 1 && q->w.bdim[last] >= FEW_COLUMNS) {
		q->chunks = (q->w.bdim[last] + COLUMNS - 1) / COLUMNS;
		q->per_slice = MAX(1, TILE_BYTES / (MIN(q->w.bdim[last], COLUMNS) * q->es * (q->w.wcount / l->dim[0])));
		q->slices = (l->dim[0] + q->per_slice - 1) / q->per_slice;
		s->tiles = q->w.rows / q->w.bdim[last] * q->chunks * q->slices;
		s->run = columns_run;
		return NULL;
	}
	q->per_tile = MAX(1, TILE_BYTES / MAX(8, q->w.wcount * q->es));
	s->tiles = (q->w.rows + q->per_tile - 1) / q->per_tile;
	s->run = gather_run;
	return NULL;
}

/* --- scatter --------------------------------------------------------------------- */

struct scatter {
	struct walk *w;              /* per operand: the same but for strides */
	int nop;
	kern_strip *f;               /* one operand, known function; NULL with no plan: overwrite */
	struct plan *p;
	bool together;               /* one operand, each row's elements lie behind each other in it and in the updates: */
	kern_each *each;             /* then the same, of short rows; NULL: by f */
	enum redop op;
	int64_t cut;                 /* columns of a tile: tiles share the rows, each has its part of every window */
	bool single;                 /* rows so short that elements of many are combined at once */
	size_t lists, batch;
};
/* rows whose places are found at once; bytes of a short one; elements for threads; of a row that is worth a strip of its own; of a table of places */
enum { ROWS = 256, SHORT_ROW = 1024, SHARED = 65536, NARROW = 64, HASHES = 65536 };

/* A strip of one window: n elements in steps of st, su bytes. */
static void scatter_strip(const struct scatter *q, const struct prog_kern *k, int64_t n, char *const *to, const int64_t *st,
                          char *const *up, const int64_t *su, char *scratch)
{
	if (!q->p) {
		int es = dt_bytes(k->v[1].dtype);
		if (!q->f) {
			move_strided(es, n, *to, *st, *up, *su);
			return;
		}
		if ((*st == es && *su == es) || n == 1) {
			q->f(n, *to, *to, *up, NULL);
			return;
		}
		char *x = scratch, *y = x + KERN_STRIP * 16;
		for (int64_t i = 0; i < n; i += KERN_STRIP) {
			int64_t m = MIN(n - i, KERN_STRIP);
			move_strided(es, m, x, es, *to + i * *st, *st);
			move_strided(es, m, y, es, *up + i * *su, *su);
			q->f(m, x, x, y, NULL);
			move_strided(es, m, *to + i * *st, *st, x, es);
		}
		return;
	}
	const void **in = (const void **)(void *)(scratch + q->lists), **res = in + 2 * q->nop;
	char *buf = scratch + ((q->p->scratch + 63) & ~(size_t)63);
	for (int64_t i = 0; i < n; i += KERN_STRIP) {
		int64_t m = MIN(n - i, KERN_STRIP);
		for (int j = 0; j < q->nop; j++) {
			int es = dt_bytes(k->v[1 + j].dtype);
			char *x = buf + (size_t)(2 * j) * KERN_STRIP * 16, *y = x + KERN_STRIP * 16;
			move_strided(es, m, x, es, to[j] + i * st[j], st[j]);
			move_strided(es, m, y, es, up[j] + i * su[j], su[j]);
			in[j] = x;
			in[q->nop + j] = y;
		}
		plan_run(q->p, m, in, NULL, res, scratch);
		for (int j = 0; j < q->nop; j++) {
			int es = dt_bytes(k->v[1 + j].dtype);
			move_strided(es, m, to[j] + i * st[j], st[j], res[j], es);
		}
	}
}

/* Where in the operand n <= ROWS rows have their window, in bytes, from row i0 of the last row dimension on, or KERN_NOWHERE. */
static void rows_at(const struct walk *w, int64_t i0, int64_t n, const char *idx, int es, int64_t *at)
{
	int bl = w->nb - 1;
	int64_t di = w->bidx[bl] * w->isize, dp = w->bop[bl] * es;
	if (!dp)
		memset(at, 0, sizeof *at * (size_t)n);
	else
		for (int64_t i = 0, p = i0 * dp; i < n; i++, p += dp)
			at[i] = p;
	for (int c = 0; c < w->ncomp; c++) {
		const char *p = idx + i0 * di + c * w->comp_stride * w->isize;
		int64_t most = w->cmax[c], cs = w->cstride[c] * es;
		if (w->itype == DT_i32) {
			int32_t beside[ROWS];
			if (di != 4)
				move_strided(4, n, (char *)beside, 4, p, di);
			kern_isa_get()->place_i32(n, di == 4 ? (const int32_t *)(const void *)p : beside, most, cs, at);
		} else {
			for (int64_t i = 0; i < n; i++, p += di) {
				int64_t v = load_int(w->itype, p);
				at[i] = v < 0 || v > most ? KERN_NOWHERE : at[i] + v * cs;
			}
		}
	}
}

/* Rows that lie together, along the last row dimension: n elements of each. */
static void scatter_rows(const struct scatter *q, const struct walk *w, int es, int64_t n, const char *idx, char *op, const char *up)
{
	int64_t at[ROWS], us = w->brow[w->nb - 1] * es, rows = w->bdim[w->nb - 1];
	for (int64_t i0 = 0; i0 < rows; i0 += ROWS) {
		int64_t some = MIN(ROWS, rows - i0);
		const char *y = up + i0 * us;
		rows_at(w, i0, some, idx, es, at);
		if (q->each && n * es <= SHORT_ROW) {
			q->each(some, n, op, at, y, us);
			continue;
		}
		for (int64_t i = 0; i < some; i++, y += us) {
			if (at[i] < KERN_NOWHERE / 2)
				continue;
			if (q->f)
				q->f(n, op + at[i], op + at[i], y, NULL);
			else
				memcpy(op + at[i], y, (size_t)(n * es));
		}
	}
}

/* Elements of several rows that await being combined, by an expression: no two of them go to the same place, so that what comes first there is
 * first.  had: of the places of operand 0, a bit for each hash; where two share one they are taken for the same. */
struct batch {
	int64_t n;
	uint64_t had[HASHES / 64];
	char *at[];                  /* of each operand KERN_STRIP places, then as many updates of each */
};

/* n elements that lie anywhere, side by side; and back. */
#define FETCH(T) for (int64_t i = 0; i < n; i++) memcpy(dst + i * (int64_t)sizeof(T), at[i], sizeof(T));
#define SPREAD(T) for (int64_t i = 0; i < n; i++) memcpy(at[i], src + i * (int64_t)sizeof(T), sizeof(T));
static void fetch(int es, int64_t n, char *dst, char *const *at) { BY_SIZE(es, FETCH) }
static void spread(int es, int64_t n, char *const *at, const char *src) { BY_SIZE(es, SPREAD) }

static void batch_done(const struct scatter *q, const struct prog_kern *k, struct batch *g, char *scratch)
{
	const void **in = (const void **)(void *)(scratch + q->lists), **res = in + 2 * q->nop;
	char *buf = scratch + ((q->p->scratch + 63) & ~(size_t)63);
	if (!g->n)
		return;
	for (int j = 0; j < q->nop; j++) {
		int es = dt_bytes(k->v[1 + j].dtype);
		char *x = buf + (size_t)(2 * j) * KERN_STRIP * 16, *y = x + KERN_STRIP * 16;
		fetch(es, g->n, x, g->at + j * KERN_STRIP);
		fetch(es, g->n, y, g->at + (q->nop + j) * KERN_STRIP);
		in[j] = x;
		in[q->nop + j] = y;
	}
	plan_run(q->p, g->n, in, NULL, res, scratch);
	for (int j = 0; j < q->nop; j++)
		spread(dt_bytes(k->v[1 + j].dtype), g->n, g->at + j * KERN_STRIP, res[j]);
	g->n = 0;
	memset(g->had, 0, sizeof g->had);
}

/* May there be something that goes to the same place?  From now on there is. */
static inline bool batch_has(struct batch *g, const char *to)
{
	uint64_t h = ((uintptr_t)to * 0x9e3779b97f4a7c15u >> 48) % HASHES, bit = (uint64_t)1 << h % 64, was = g->had[h / 64];
	g->had[h / 64] = was | bit;
	return was & bit;
}

/* An element of the one operand. */
static inline void batch_one(const struct scatter *q, const struct prog_kern *k, struct batch *g, char *to, char *up, char *scratch)
{
	if (batch_has(g, to) || g->n == KERN_STRIP) {
		batch_done(q, k, g, scratch);
		batch_has(g, to);
	}
	g->at[g->n] = to;
	g->at[KERN_STRIP + g->n++] = up;
}

/* n elements of a row. */
static void batch_add(const struct scatter *q, const struct prog_kern *k, struct batch *g, int64_t n, char *const *to, const int64_t *st,
                      char *const *up, const int64_t *su, char *scratch)
{
	for (int64_t i = 0; i < n; i++) {
		if (batch_has(g, to[0] + i * st[0]) || g->n == KERN_STRIP) {
			batch_done(q, k, g, scratch);
			batch_has(g, to[0] + i * st[0]);
		}
		for (int j = 0; j < q->nop; j++) {
			g->at[j * KERN_STRIP + g->n] = to[j] + i * st[j];
			g->at[(q->nop + j) * KERN_STRIP + g->n] = up[j] + i * su[j];
		}
		g->n++;
	}
}

/* Rows of one operand, along the last row dimension: n elements of each. */
static void batch_rows(const struct scatter *q, const struct prog_kern *k, struct batch *g, int64_t n, const char *idx, char *op, char *up, char *scratch)
{
	const struct walk *w = q->w;
	int es = dt_bytes(k->v[1].dtype);
	int64_t at[ROWS], us = w->brow[w->nb - 1] * es, rows = w->bdim[w->nb - 1];
	for (int64_t i0 = 0; i0 < rows; i0 += ROWS) {
		int64_t some = MIN(ROWS, rows - i0);
		rows_at(w, i0, some, idx, es, at);
		for (int64_t i = 0; i < some; i++)
			if (at[i] >= KERN_NOWHERE / 2 && n == 1)
				batch_one(q, k, g, op + at[i], up + (i0 + i) * us, scratch);
			else if (at[i] >= KERN_NOWHERE / 2)
				batch_add(q, k, g, n, &(char *){ op + at[i] }, w->win.stride[0], &(char *){ up + (i0 + i) * us }, w->win.stride[1], scratch);
	}
}

static void scatter_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                        int64_t t0, int64_t t1, void *scratch_)
{
	const struct scatter *q = s->priv;
	const struct walk *w = q->w;
	const struct loop *l = &w->win;
	char *scratch = scratch_;
	int r = l->rank, nop = q->nop;
	int64_t ix[LOOP_RANK] = { 0 }, wx[LOOP_RANK], c0 = t0 * q->cut, c1 = MIN(t1 * q->cut, l->dim[r - 1]);
	const char *idx = view_at(k, ptr, 0);
	if (q->p)
		plan_start(q->p, scratch);
	if (q->together) {
		int es = dt_bytes(k->v[1].dtype);
		do
			scatter_rows(q, w, es, c1 - c0, idx + offset_of(w->nb, w->bidx, ix) * w->isize,
			             view_at(k, ptr, 2) + (offset_of(w->nb, w->bop, ix) + c0) * es, view_at(k, ptr, 1) + (offset_of(w->nb, w->brow, ix) + c0) * es);
		while (index_next(w->nb - 1, w->bdim, ix));
		return;
	}
	struct batch *g = q->single ? (struct batch *)(void *)(scratch + q->batch) : NULL;
	if (g)
		memset(g, 0, sizeof *g);
	if (g && nop == 1 && w->nb >= 1 && r == 1) {
		int es = dt_bytes(k->v[1].dtype);
		do
			batch_rows(q, k, g, c1 - c0, idx + offset_of(w->nb, w->bidx, ix) * w->isize, view_at(k, ptr, 2) + offset_of(w->nb, w->bop, ix) * es + c0 * l->stride[0][0],
			           view_at(k, ptr, 1) + offset_of(w->nb, w->brow, ix) * es + c0 * l->stride[1][0], scratch);
		while (index_next(w->nb - 1, w->bdim, ix));
		batch_done(q, k, g, scratch);
		return;
	}
	for (int64_t row = 0; row < w->rows; row++, index_next(w->nb, w->bdim, ix)) {
		bool in;
		int64_t start[64];
		start[0] = start_of(w, idx + offset_of(w->nb, w->bidx, ix) * w->isize, &in);
		if (!in)
			continue;
		for (int j = 1; j < nop; j++)
			start[j] = start_of(&q->w[j], idx + offset_of(w->nb, w->bidx, ix) * w->isize, &in);
		memset(wx, 0, sizeof *wx * (size_t)r);
		do {
			char *to[64], *up[64];
			int64_t st[64], su[64];
			for (int j = 0; j < nop; j++) {
				const struct walk *v = &q->w[j];
				int es = dt_bytes(k->v[1 + j].dtype);
				st[j] = v->win.stride[0][r - 1];
				su[j] = v->win.stride[1][r - 1];
				to[j] = view_at(k, ptr, k->nin + j) + (start[j] + offset_of(v->nb, v->bop, ix)) * es
				      + offset_of(r - 1, v->win.stride[0], wx) + c0 * st[j];
				up[j] = view_at(k, ptr, 1 + j) + offset_of(v->nb, v->brow, ix) * es
				      + offset_of(r - 1, v->win.stride[1], wx) + c0 * su[j];
			}
			if (g)
				batch_add(q, k, g, c1 - c0, to, st, up, su, scratch);
			else
				scatter_strip(q, k, c1 - c0, to, st, up, su, scratch);
		} while (index_next(r - 1, l->dim, wx));
	}
	if (g)
		batch_done(q, k, g, scratch);
}

struct err *kern_make_scatter(const struct prog_kern *k, struct kern_state *s)
{
	struct scatter *q = ARENA_NEW(&s->a, struct scatter, 1);
	struct list window = { 0 }, inserted = { 0 }, ibatch = { 0 }, sbatch = { 0 }, map = { 0 };
	uint32_t at = 0;
	TRY(list_at(k, &at, &window));
	TRY(list_at(k, &at, &inserted));
	TRY(list_at(k, &at, &ibatch));
	TRY(list_at(k, &at, &sbatch));
	TRY(list_at(k, &at, &map));
	if (at + 3 > k->nattr)
		return ERR(INVALID, "scatter lacks attributes");
	int64_t index_dim = k->attr[at];
	q->op = (enum redop)k->attr[at + 2];
	q->nop = k->nin - 1;
	if (q->nop < 1 || q->nop > 64 || k->nout != q->nop)
		return ERR(UNIMPLEMENTED, "scatter of %d operands", q->nop);
	q->w = ARENA_NEW(&s->a, struct walk, q->nop);
	const struct prog_view *op = &k->v[k->nin], *up = &k->v[1];
	int64_t size[LOOP_RANK];
	int wd = 0;
	for (int d = 0; d < op->rank; d++) {
		bool out = in_list(inserted.p, inserted.n, d) || in_list(ibatch.p, ibatch.n, d);
		if (!out && wd >= window.n)
			return ERR(INVALID, "scatter has too few window dimensions");
		size[d] = out ? 1 : up->dim[window.p[wd++]];
	}
	for (int j = 0; j < q->nop; j++)
		TRY(walk_make(&s->a, &q->w[j], &k->v[k->nin + j], &k->v[0], &k->v[1 + j], window, inserted, ibatch, sbatch, map, index_dim, size));
	/* operands whose windows merge differently walk unmerged together: strides of all in one loop */
	const struct loop *l0 = &q->w[0].win;
	for (int j = 1; j < q->nop; j++)
		if (q->w[j].win.rank != l0->rank)
			return ERR(UNIMPLEMENTED, "scatter of operands with unlike layouts");
	if (q->op == RED_fn && k->expr) {
		if (k->expr->nin != 2 * q->nop || k->expr->nout != q->nop)
			return ERR(INVALID, "scatter of %d operands with an expression of %d inputs", q->nop, k->expr->nin);
		TRY(plan_make(&s->a, k->expr, &q->p));
	} else if (q->op == RED_fn && q->nop > 1) {
		/* overwrite: the expression that takes the updates */
		struct prog_expr *e = ARENA_NEW(&s->a, struct prog_expr, 1);
		e->nin = (uint16_t)(2 * q->nop);
		e->nout = (uint16_t)q->nop;
		e->in_type = ARENA_NEW(&s->a, uint8_t, e->nin);
		e->ins = ARENA_NEW(&s->a, struct prog_ins, 1);
		e->out = ARENA_NEW(&s->a, uint16_t, e->nout);
		for (int j = 0; j < q->nop; j++) {
			e->in_type[j] = e->in_type[q->nop + j] = k->v[1 + j].dtype;
			e->out[j] = (uint16_t)(q->nop + j);
		}
		TRY(plan_make(&s->a, e, &q->p));
	} else if (q->op != RED_fn) {
		enum dtype dt = up->dtype;
		q->f = redop_elem[q->op] < ELEM_COUNT ? kern_elem(redop_elem[q->op], dt, dt) : NULL;
		if (!q->f || q->nop > 1)
			return ERR(UNIMPLEMENTED, "scatter '%s' of %d operands of '%s'", redop_name[q->op], q->nop, dtype_info[dt].name);
	}
	int es = dt_bytes(up->dtype);
	const struct kern_isa *isa = kern_isa_get();
	q->each = q->op == RED_fn ? isa->put[es == 16 ? 4 : es == 8 ? 3 : es == 4 ? 2 : es - 1] : isa->each[q->op][up->dtype];
	int64_t n = l0->dim[l0->rank - 1], line = 64 / es;
	q->together = q->nop == 1 && !q->p && q->w->nb >= 1 && l0->rank == 1 && (n == 1 || (l0->stride[0][0] == es && l0->stride[1][0] == es));
	q->cut = n;
	/* of short rows cores would fetch each other's lines along with their own, and take them from each other */
	if (q->w->rows * q->w->wcount > SHARED && n >= 16 * line)
		q->cut = MAX(8 * line, (n / 16 + line - 1) / line * line);
	bool none = !q->w->rows || !q->w->wcount;
	s->tiles = none ? 0 : (n + q->cut - 1) / q->cut;
	size_t base = q->p ? (q->p->scratch + 63) & ~(size_t)63 : 0;
	q->lists = base + (size_t)q->nop * 2 * KERN_STRIP * 16;
	s->scratch = q->batch = q->lists + (size_t)q->nop * 4 * sizeof(void *);
	q->single = q->p && q->cut < NARROW;
	if (q->single)
		s->scratch += sizeof(struct batch) + (size_t)q->nop * 2 * KERN_STRIP * sizeof(char *);
	s->priv = q;
	s->run = scatter_run;
	return NULL;
}
