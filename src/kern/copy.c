/* Kernels that move elements: copy, fill, iota, dynamic_slice, dynamic_update, pad.
 *
 * All but iota are lists of boxes: a strided copy from one view to another of equal shape.  A box runs as
 * memcpy of rows, as blocked transposes, as repeats of each element, as strided moves of blocks whose lines stay in the cache, or as
 * such along its best dimension. */
#include <stdlib.h>

#include "copy.h"

enum { UNIT_BYTES = 65536, TILE_BYTES = 262144, REPEAT_BYTES = 64, FLIP_BYTES = 16, LINE = 64, BLOCK = 64 };

/* Dimension d goes last but one. */
static void last_but_one(struct loop *l, int d)
{
	int64_t *of[3] = { l->dim, l->stride[0], l->stride[1] };

	for (int i = 0; i < 3; i++) {
		int64_t t = of[i][d];
		for (int j = d; j < l->rank - 2; j++)
			of[i][j] = of[i][j + 1];
		of[i][l->rank - 2] = t;
	}
}

/* Do two or three elements along dimension j, or the last one, lie in turn, for which transposes have a way of their own? */
static bool in_turn(const struct loop *l, int j, int es)
{
	int last = l->rank - 1;
	const int64_t *is = l->stride[0], *os = l->stride[1];

	return es <= 4 && is[j] == es && os[last] == es && (is[last] == es * l->dim[j] || os[j] == es * l->dim[last]);
}

void box_make(struct arena *a, struct box *b, const struct prog_view *in, const struct prog_view *out)
{
	/* dimensions in the order of the result's strides, so that the last is the densest */
	int rank = out->rank, ord[LOOP_RANK];
	struct prog_view vi = *in, vo = *out;
	vi.dim = vo.dim = ARENA_NEW(a, int64_t, rank + 1);
	vi.stride = ARENA_NEW(a, int64_t, rank + 1);
	vo.stride = ARENA_NEW(a, int64_t, rank + 1);
	for (int d = 0; d < rank; d++) {
		int j = d;
		for (; j > 0 && llabs(out->stride[ord[j - 1]]) < llabs(out->stride[d]); j--)
			ord[j] = ord[j - 1];
		ord[j] = d;
	}
	for (int d = 0; d < rank; d++) {
		vo.dim[d] = out->dim[ord[d]];
		vi.stride[d] = in->stride[ord[d]];
		vo.stride[d] = out->stride[ord[d]];
	}
	const struct prog_view *v[2] = { &vi, &vo };
	loop_make(a, &b->l, 2, v);
	struct loop *l = &b->l;
	int es = dt_bytes(out->dtype), r = l->rank;
	b->es = es;
	b->count = l->count;
	b->off_in = in->off * es;
	b->off_out = out->off * es;
	int64_t *is = l->stride[0], *os = l->stride[1];
	b->mode = BOX_STRIDED;
	if (is[r - 1] == es && os[r - 1] == es)
		b->mode = r > 1 && l->dim[r - 1] > 1 && l->dim[r - 1] * es <= COPY_FEW ? BOX_SHORT : BOX_RUN;
	else if (r > 1 && is[r - 1] == -es && os[r - 1] == es && l->dim[r - 1] * es <= FLIP_BYTES && is[r - 2] == l->dim[r - 1] * es && os[r - 2] == is[r - 2])
		b->mode = BOX_FLIP;
	else if (r > 1 && is[r - 1]) {
		int d = r - 1;      /* where the source lies closest */
		for (int j = 0; j < r - 1; j++)
			if (is[j] && (MIN(l->dim[j], l->dim[r - 1]) >= 4 || in_turn(l, j, es)) && llabs(is[j]) < llabs(is[d]))
				d = j;
		if (d < r - 1 && llabs(is[d]) < LINE) {
			b->mode = is[d] == es && os[r - 1] == es && es <= 8 && is[r - 1] % es == 0 ? BOX_TRANSPOSE : BOX_BLOCKS;
			last_but_one(l, d);
		}
	}
	for (int d = r - 3; b->mode == BOX_SHORT && d >= 0 && l->dim[r - 2] < 8; d--)      /* many at a time */
		if (l->dim[d] > 2 * l->dim[r - 2])
			last_but_one(l, d);
	if (r > 1 && os[r - 1] == es && !is[r - 1] && l->dim[r - 1] * es <= REPEAT_BYTES && l->dim[r - 1] <= l->dim[r - 2])
		b->mode = BOX_REPEAT;
	bool two = b->mode == BOX_SHORT || b->mode == BOX_FLIP || b->mode == BOX_TRANSPOSE || b->mode == BOX_REPEAT || b->mode == BOX_BLOCKS;         /* the last two dimensions at once */
	if (!two && r > 1 && l->dim[r - 1] < 8 && l->dim[r - 1] * es < 32 && l->dim[r - 2] > 2 * l->dim[r - 1]) {
		/* short rows: walk across them */
		int64_t *p[3] = { l->dim, is, os };
		for (int i = 0; i < 3; i++) {
			int64_t t = p[i][r - 1];
			p[i][r - 1] = p[i][r - 2];
			p[i][r - 2] = t;
		}
		b->mode = BOX_STRIDED;
	}
	int cut = b->outer = r - (two ? 2 : 1);
	int64_t rows = 1;
	for (int d = 0; d < b->outer; d++)
		rows *= l->dim[d];
	int64_t row_bytes = es * l->dim[r - 1] * (two ? l->dim[r - 2] : 1);
	b->seg = l->dim[cut];
	if (row_bytes > UNIT_BYTES)      /* whole blocks (isa.h) */
		b->seg = MAX(BLOCK, (l->dim[cut] * UNIT_BYTES / row_bytes + 15) / 16 * 16);
	b->nseg = l->dim[cut] ? (l->dim[cut] + b->seg - 1) / b->seg : 0;
	b->units = l->count ? rows * b->nseg : 0;
	b->per_tile = b->units ? MAX(1, TILE_BYTES / MAX(1, l->count * es / b->units)) : 1;
	b->tiles = (b->units + b->per_tile - 1) / b->per_tile;
}

/* Each of n elements k times. */
#define REPEAT(T, K)                                                                \
	for (int64_t i = 0; i < n; i++, src += ss, dst += ds) {                         \
		T t;                                                                        \
		memcpy(&t, src, sizeof t);                                                  \
		for (int64_t j = 0; j < (K); j++)                                           \
			memcpy(dst + j * (int64_t)sizeof t, &t, sizeof t);                      \
	}
/* Twice, four or eight times, as one wider number, in vectors. */
#define WIDER(T, W)                                                                 \
	for (int64_t i = 0; i < n; i++) {                                               \
		T t;                                                                        \
		memcpy(&t, src + i * (int64_t)sizeof t, sizeof t);                          \
		W w = t;                                                                    \
		for (unsigned b = sizeof t; b < sizeof w; b *= 2)                           \
			w = (W)(w | w << 8 * b);                                                \
		memcpy(dst + i * (int64_t)sizeof w, &w, sizeof w);                          \
	}
static bool repeat_wider(int es, int64_t n, int64_t k, char *restrict dst, const char *restrict src)
{
	switch (es * 16 + k) {
	case 0x12: WIDER(uint8_t, uint16_t) return true;
	case 0x14: WIDER(uint8_t, uint32_t) return true;
	case 0x18: WIDER(uint8_t, uint64_t) return true;
	case 0x22: WIDER(uint16_t, uint32_t) return true;
	case 0x24: WIDER(uint16_t, uint64_t) return true;
	case 0x42: WIDER(uint32_t, uint64_t) return true;
	default: return false;
	}
}

#define REPEATS(T) if (k == 2) REPEAT(T, 2) else if (k == 4) REPEAT(T, 4) else if (k == 8) REPEAT(T, 8) else REPEAT(T, k)
static void repeat_each(int es, int64_t n, int64_t k, char *dst, int64_t ds, const char *src, int64_t ss)
{
	if (k <= 8 && ss == es && ds == k * es && repeat_wider(es, n, k, dst, src))
		return;
	BY_SIZE(es, REPEATS)
}

void box_run(const struct box *b, char *out, const char *in, int64_t t0, int64_t t1)
{
	const struct loop *l = &b->l;
	int r = l->rank, es = b->es, cut = b->outer;
	const int64_t *is = l->stride[0], *os = l->stride[1];
	int64_t u = t0 * b->per_tile, u1 = MIN(t1 * b->per_tile, b->units), ix[LOOP_RANK];
	if (u >= u1)
		return;
	index_of(b->outer, l->dim, u / b->nseg, ix);
	int64_t seg = u % b->nseg;
	const struct kern_isa *isa = kern_isa_get();
	for (; u < u1; u++) {
		int64_t c0 = seg * b->seg, n = MIN(b->seg, l->dim[cut] - c0);
		const char *src = in + offset_of(b->outer, is, ix) + c0 * is[cut];
		char *dst = out + offset_of(b->outer, os, ix) + c0 * os[cut];
		switch (b->mode) {
		case BOX_RUN:
			memcpy(dst, src, (size_t)(n * es));
			break;
		case BOX_SHORT:
			for (int64_t i = 0; i < n; i++)
				copy_few(dst + i * os[cut], src + i * is[cut], (size_t)(l->dim[r - 1] * es));
			break;
		case BOX_FLIP:
			isa->flip(n, l->dim[r - 1], es, src + (l->dim[r - 1] - 1) * is[r - 1], dst);
			break;
		case BOX_TRANSPOSE:
			isa->transpose[es == 1 ? 0 : es == 2 ? 1 : es == 4 ? 2 : 3](l->dim[r - 1], n, src, is[r - 1] / es, dst, os[r - 2] / es);
			break;
		case BOX_BLOCKS:
			for (int64_t j = 0; j < l->dim[r - 1]; j += BLOCK)
				for (int64_t i = 0; i < n; i++)
					move_strided(es, MIN(BLOCK, l->dim[r - 1] - j), dst + i * os[cut] + j * os[r - 1], os[r - 1], src + i * is[cut] + j * is[r - 1], is[r - 1]);
			break;
		case BOX_REPEAT:
			repeat_each(es, n, l->dim[r - 1], dst, os[r - 2], src, is[r - 2]);
			break;
		default:
			move_strided(es, n, dst, os[r - 1], src, is[r - 1]);
			break;
		}
		if (++seg == b->nseg) {
			seg = 0;
			index_next(b->outer, l->dim, ix);
		}
	}
}

/* --- copy, fill ---------------------------------------------------------------- */

static void copy_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                     int64_t t0, int64_t t1, void *scratch)
{
	const struct box *b = s->priv;
	box_run(b, ptr[1] + b->off_out, ptr[0] + b->off_in, t0, t1);
}

struct err *kern_make_copy(const struct prog_kern *k, struct kern_state *s)
{
	struct box *b = ARENA_NEW(&s->a, struct box, 1);
	if (dt_bytes(k->v[0].dtype) != dt_bytes(k->v[1].dtype) || k->v[0].rank != k->v[1].rank)
		return ERR(INVALID, "copy between views of unequal shape or element size");
	box_make(&s->a, b, &k->v[0], &k->v[1]);
	s->priv = b;
	s->tiles = b->tiles;
	s->run = copy_run;
	return NULL;
}

static void fill_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                     int64_t t0, int64_t t1, void *scratch)
{
	const struct box *b = s->priv;
	box_run(b, ptr[0] + b->off_out, (const char *)k->imm, t0, t1);
}

/* A view of v's shape that reads one element everywhere. */
static struct prog_view spread(struct arena *a, const struct prog_view *v)
{
	struct prog_view w = *v;
	w.off = 0;
	w.stride = ARENA_NEW(a, int64_t, v->rank + 1);
	return w;
}

struct err *kern_make_fill(const struct prog_kern *k, struct kern_state *s)
{
	struct box *b = ARENA_NEW(&s->a, struct box, 1);
	struct prog_view w = spread(&s->a, &k->v[0]);
	box_make(&s->a, b, &w, &k->v[0]);
	s->priv = b;
	s->tiles = b->tiles;
	s->run = fill_run;
	return NULL;
}

/* --- iota ------------------------------------------------------------------------ */

struct iota { struct prog_view v; int dim; int64_t rows, seg, nseg, per_tile; };     /* rows in segments of seg */
enum { IOTA_BLOCK = 256 };

static void iota_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                     int64_t t0, int64_t t1, void *scratch)
{
	const struct iota *q = s->priv;
	const struct prog_view *v = &q->v;
	int es = dt_bytes(v->dtype), last = v->rank - 1;
	kern_strip *cv = kern_elem(ELEM_convert, DT_i64, v->dtype);
	int64_t ix[LOOP_RANK], n = v->dim[last], st = v->stride[last] * es;
	int64_t lo = t0 * q->per_tile, hi = MIN(t1 * q->per_tile, q->rows * q->nseg);
	for (int64_t u = lo; u < hi; u++) {
		int64_t i0 = u % q->nseg * q->seg, i1 = MIN(i0 + q->seg, n);
		index_of(last, v->dim, u / q->nseg, ix);
		char *row = ptr[0] + (v->off + offset_of(last, v->stride, ix)) * es;
		int64_t val[IOTA_BLOCK];
		_Alignas(16) char buf[IOTA_BLOCK * 16];
		if (q->dim != last) {
			val[0] = ix[q->dim];
			cv(1, buf, val, NULL, NULL);
			if (st == es)
				fill_bytes(es, i1 - i0, row + i0 * es, buf);
			else
				move_strided(es, i1 - i0, row + i0 * st, st, buf, 0);
			continue;
		}
		for (int64_t i = i0; i < i1; i += IOTA_BLOCK) {
			int64_t m = MIN(i1 - i, IOTA_BLOCK);
			bool there = st == es;       /* converted in place */
			for (int64_t j = 0; j < m; j++)
				val[j] = i + j;
			cv(m, there ? row + i * st : buf, val, NULL, NULL);
			if (!there)
				move_strided(es, m, row + i * st, st, buf, es);
		}
	}
}

struct err *kern_make_iota(const struct prog_kern *k, struct kern_state *s)
{
	struct iota *q = ARENA_NEW(&s->a, struct iota, 1);
	q->v = k->v[0];
	q->dim = (int)k->attr[0];
	if (!kern_elem(ELEM_convert, DT_i64, q->v.dtype))
		return ERR(UNIMPLEMENTED, "iota of '%s'", dtype_info[q->v.dtype].name);
	if (q->v.rank == 0 || q->dim < 0 || q->dim >= q->v.rank)
		return ERR(INVALID, "iota along dimension %d of %d", q->dim, q->v.rank);
	if (prog_view_dense(&q->v)) {
		int64_t o = 1, i = 1, n = q->v.dim[q->dim];
		for (int d = 0; d < q->v.rank; d++)
			*(d < q->dim ? &o : &i) *= d == q->dim ? 1 : q->v.dim[d];
		int64_t dim[3] = { o, n, i };
		int64_t off = q->v.off;
		prog_view_make(&s->a, &q->v, q->v.dtype, i == 1 ? 2 : 3, dim);
		q->v.off = off;
		q->dim = 1;
	}
	int64_t n = view_count(&q->v), row = q->v.dim[q->v.rank - 1];
	q->rows = row ? n / row : 0;
	q->seg = MAX(1, MIN(row, TILE_BYTES / dt_bytes(q->v.dtype)));
	q->nseg = (row + q->seg - 1) / q->seg;
	q->per_tile = MAX(1, TILE_BYTES / (q->seg * dt_bytes(q->v.dtype)));
	s->tiles = (q->rows * q->nseg + q->per_tile - 1) / q->per_tile;
	s->priv = q;
	s->run = iota_run;
	return NULL;
}

/* --- slices at run time ------------------------------------------------------------ */

static int64_t start_at(const struct prog_kern *k, char *const *ptr, int i, int64_t most)
{
	int64_t v = load_int(k->v[i].dtype, view_at(k, ptr, i));
	return v < 0 ? 0 : MIN(v, most);
}

static void dslice_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                       int64_t t0, int64_t t1, void *scratch)
{
	const struct box *b = s->priv;
	const struct prog_view *in = &k->v[0], *out = &k->v[k->nin];
	int64_t off = 0;
	for (int d = 0; d < in->rank; d++)
		off += start_at(k, ptr, 1 + d, in->dim[d] - out->dim[d]) * in->stride[d];
	box_run(b, ptr[k->nin] + b->off_out, ptr[0] + b->off_in + off * b->es, t0, t1);
}

struct err *kern_make_dynamic_slice(const struct prog_kern *k, struct kern_state *s)
{
	struct box *b = ARENA_NEW(&s->a, struct box, 1);
	if (k->nin != 1 + k->v[0].rank)
		return ERR(INVALID, "dynamic_slice of rank %d has %d operands", k->v[0].rank, k->nin);
	box_make(&s->a, b, &k->v[0], &k->v[k->nin]);
	s->priv = b;
	s->tiles = b->tiles;
	s->run = dslice_run;
	return NULL;
}

static void dupdate_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                        int64_t t0, int64_t t1, void *scratch)
{
	const struct box *b = s->priv;
	const struct prog_view *up = &k->v[0], *out = &k->v[k->nin];
	int64_t off = 0;
	for (int d = 0; d < out->rank; d++)
		off += start_at(k, ptr, 1 + d, out->dim[d] - up->dim[d]) * out->stride[d];
	box_run(b, ptr[k->nin] + b->off_out + off * b->es, ptr[0] + b->off_in, t0, t1);
}

struct err *kern_make_dynamic_update(const struct prog_kern *k, struct kern_state *s)
{
	struct box *b = ARENA_NEW(&s->a, struct box, 1);
	if (k->nin != 1 + k->v[0].rank)
		return ERR(INVALID, "dynamic_update of rank %d has %d operands", k->v[0].rank, k->nin);
	struct prog_view out = k->v[k->nin];
	out.dim = k->v[0].dim;
	box_make(&s->a, b, &k->v[0], &out);
	s->priv = b;
	s->tiles = b->tiles;
	s->run = dupdate_run;
	return NULL;
}

/* --- pad ----------------------------------------------------------------------------- */

/* Phase 0 fills, phase 1 copies.  With interior padding all of the result is filled, else the borders. */
struct pad { int nbox; struct box *box; int64_t fill_tiles; };

static void pad_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                    int64_t t0, int64_t t1, void *scratch)
{
	const struct pad *q = s->priv;
	const char *value = view_at(k, ptr, 1);
	if (phase == 1) {
		const struct box *b = &q->box[q->nbox];
		box_run(b, ptr[2] + b->off_out, ptr[0] + b->off_in, MIN(t0, b->tiles), MIN(t1, b->tiles));
		return;
	}
	int64_t at = 0;
	for (int i = 0; i < q->nbox && at < t1; i++) {
		const struct box *b = &q->box[i];
		int64_t lo = MAX(t0 - at, 0), hi = MIN(t1 - at, b->tiles);
		if (lo < hi)
			box_run(b, ptr[2] + b->off_out, value, lo, hi);
		at += b->tiles;
	}
}

struct err *kern_make_pad(const struct prog_kern *k, struct kern_state *s)
{
	struct arena *a = &s->a;
	const struct prog_view *in = &k->v[0], *out = &k->v[2];
	int r = in->rank;
	const int64_t *low = k->attr, *high = low + r, *mid = high + r;
	struct pad *q = ARENA_NEW(a, struct pad, 1);
	q->box = ARENA_NEW(a, struct box, 2 * r + 2);
	/* the operand's elements that land inside, and where */
	struct prog_view src = *in, dst = *out;
	src.dim = dst.dim = ARENA_NEW(a, int64_t, r + 1);
	dst.stride = ARENA_NEW(a, int64_t, r + 1);
	int64_t *lo = ARENA_NEW(a, int64_t, r + 1), *hi = ARENA_NEW(a, int64_t, r + 1);
	bool inner = false, empty = false;
	for (int d = 0; d < r; d++) {
		int64_t step = mid[d] + 1, first = low[d] < 0 ? (-low[d] + step - 1) / step : 0;
		int64_t at = low[d] + first * step, n = out->dim[d] > at ? (out->dim[d] - at + step - 1) / step : 0;
		(void)high;
		n = MAX(0, MIN(n, in->dim[d] - first));
		inner |= mid[d] != 0;
		empty |= n == 0;
		src.off += first * in->stride[d];
		src.dim[d] = n;
		dst.off += at * out->stride[d];
		dst.stride[d] = out->stride[d] * step;
		lo[d] = at;
		hi[d] = at + n;
	}
	if (inner || empty) {
		struct prog_view w = spread(a, out);
		box_make(a, &q->box[q->nbox++], &w, out);
	} else {
		struct prog_view v = *out;
		for (int d = 0; d < r; d++) {     /* slabs before and after in dimension d, inside in earlier ones */
			for (int side = 0; side < 2; side++) {
				struct prog_view w = v;
				w.dim = arena_copy(a, v.dim, sizeof *v.dim * (size_t)r);
				w.dim[d] = side ? out->dim[d] - hi[d] : lo[d];
				w.off += side ? hi[d] * out->stride[d] : 0;
				if (w.dim[d] <= 0)
					continue;
				struct prog_view z = spread(a, &w);
				box_make(a, &q->box[q->nbox++], &z, &w);
			}
			v.dim = arena_copy(a, v.dim, sizeof *v.dim * (size_t)r);
			v.dim[d] = hi[d] - lo[d];
			v.off += lo[d] * out->stride[d];
		}
	}
	for (int i = 0; i < q->nbox; i++)
		q->fill_tiles += q->box[i].tiles;
	box_make(a, &q->box[q->nbox], &src, &dst);
	s->phases = 2;
	s->tiles = MAX(q->fill_tiles, q->box[q->nbox].tiles);
	s->priv = q;
	s->run = pad_run;
	return NULL;
}
