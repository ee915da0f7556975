/* What devices lack along a cut dimension comes from those that have it, and nothing else does.
 *
 * Each device needs an interval of something that is put together from strips of other values: a shifted, padded, reversed value, or its own part
 * with what is around it.  Where the elements are is known here, so the interval of each device is cut where their owner, or the strip, changes.
 * Segments of one length go in one round: a slice of the owner's part, sent by a collective_permute unless it is one's own, and put in its
 * place.  Rounds in which all devices do the same are preferred: their slices are static, and where all rounds are so, what they bring is
 * concatenated.  Else it is written at places that a table has for each device; who takes no part writes behind the end. */
#include "impl.h"

enum { MOST_BLOCKS = 512 };

struct segment { int r, owner, strip; int64_t at, to, n; };     /* at: in the owner's part, to: in the interval of block r */
struct round { int strip; bool own, *in; int *owner; int64_t n, *at, *to; };
struct halo {
	uint32_t mesh;
	struct axes l;
	int d, parts, nstrip, nround;
	const struct strip *strip;
	const int64_t *stop;     /* of each block: what it needs nothing from any more; NULL: all of them need len elements */
	struct round *round;
	bool fixed;              /* all rounds are in static places, equal or apart */
	int64_t len, fetched, gathered;
	struct halo *dense;      /* of a strip with a step: without it */
	int64_t *phase, most;    /* where its first element is then */
};

static int64_t down(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
static int64_t up(int64_t a, int64_t b) { return -down(-a, b); }

/* --- who has what ---------------------------------------------------------------------------- */

struct painted { int64_t from, to; int strip; };

/* [from, to) of the list becomes strip k's. */
static int paint(struct painted *x, int n, int64_t from, int64_t to, int k)
{
	int m = 0;
	struct painted y[2], *old = x;
	if (from >= to)
		return n;
	for (int i = 0; i < n; i++) {
		struct painted q = old[i];
		int parts = 0;
		if (q.from < from)
			y[parts++] = (struct painted){ q.from, MIN(q.to, from), q.strip };
		if (q.to > to)
			y[parts++] = (struct painted){ MAX(q.from, to), q.to, q.strip };
		if (parts == 2) {                /* k lies within it: the only one of which two are left */
			memmove(&x[i + 2], &x[i + 1], sizeof *x * (size_t)(n - i - 1));
			x[i] = y[0];
			x[i + 1] = y[1];
			m = n + 1;
			break;
		}
		if (parts)
			x[m++] = y[0];
	}
	x[m++] = (struct painted){ from, to, k };
	return m;
}

/* The first strip whose elements are taken in the same way from the same value: they travel together. */
static int first_like(const struct halo *h, int k)
{
	const struct strip *s = &h->strip[k];
	int i = 0;
	while (h->strip[i].v != s->v || h->strip[i].fill != s->fill || (!s->fill && h->strip[i].run.by != s->run.by))
		i++;
	return i;
}

/* The segments of block r. */
static int segments(const struct halo *h, int r, int64_t start, struct painted *x, struct segment *out, int room)
{
	int n = 0, k = 0;
	int64_t stop = h->stop ? h->stop[r] : start + h->len;
	for (int i = 0; i < h->nstrip; i++) {
		const struct run *q = &h->strip[i].run;
		n = paint(x, n, MAX(start, q->first), MIN(stop, q->first + q->n), i);
	}
	for (int i = 0; i < n; i++) {
		const struct strip *s = &h->strip[x[i].strip];
		if (s->fill && !x[i].strip)
			continue;
		for (int64_t at = x[i].from; at < x[i].to;) {
			int64_t e = s->run.from + s->run.by * (at - s->run.first), left = x[i].to - at, has = left;
			int owner = r;
			if (!s->fill && s->cut) {
				owner = (int)(e / s->part);
				int64_t in = e - owner * s->part;
				has = s->run.by > 0 ? (s->part - 1 - in) / s->run.by + 1 : s->run.by < 0 ? in / -s->run.by + 1 : left;
				e = in;
			}
			if (k == room)
				return -1;
			out[k++] = (struct segment){ r, owner, first_like(h, x[i].strip), e, at - start, MIN(left, has) };
			at += MIN(left, has);
		}
	}
	return k;
}

/* --- rounds ------------------------------------------------------------------------------------- */

static bool own(const struct segment *s) { return s->owner == s->r; }

static bool alike(const struct segment *a, const struct segment *b)
{
	return a->strip == b->strip && own(a) == own(b) && a->at == b->at && a->to == b->to && a->n == b->n;
}

/* Which segments go with x[first]: those that are alike, or any of its strip; of each device one, to each device one. */
static int matching(const struct segment *x, int n, int first, bool same, int *pick)
{
	bool to[MOST_BLOCKS] = {0}, from[MOST_BLOCKS] = {0};
	int k = 0;
	for (int i = first; i < n; i++) {
		bool fits = same ? alike(&x[i], &x[first]) : x[i].strip == x[first].strip && own(&x[i]) == own(&x[first]);
		if (!x[i].n || !fits || to[x[i].r] || from[x[i].owner])
			continue;
		to[x[i].r] = from[x[i].owner] = true;
		pick[k++] = i;
	}
	return k;
}

static bool add_round(struct part *p, struct halo *h, struct segment *x, const int *pick, int n, int room)
{
	if (h->nround == room)
		return false;
	struct round *q = &h->round[h->nround++];
	int parts = h->parts;
	*q = (struct round){ .strip = x[pick[0]].strip, .own = own(&x[pick[0]]), .n = x[pick[0]].n, .in = ARENA_NEW(&p->a, bool, parts),
	                     .owner = ARENA_NEW(&p->a, int, parts), .at = ARENA_NEW(&p->a, int64_t, parts), .to = ARENA_NEW(&p->a, int64_t, parts) };
	for (int i = 0; i < n; i++)
		q->n = MIN(q->n, x[pick[i]].n);
	for (int i = 0; i < n; i++) {
		struct segment *s = &x[pick[i]];
		q->in[s->r] = true;
		q->owner[s->r] = s->owner;
		q->at[s->r] = s->at;
		q->to[s->r] = s->to;
		s->at += q->n * (h->strip[s->strip].fill ? 0 : h->strip[s->strip].run.by);
		s->to += q->n;
		s->n -= q->n;
	}
	return true;
}

static int64_t only(const struct halo *h, const bool *in, const int64_t *x)
{
	int64_t v = -1;
	for (int r = 0; r < h->parts; r++)
		if (in[r]) {
			if (v >= 0 && v != x[r])
				return -1;
			v = x[r];
		}
	return v;
}

static void place(struct part *p, struct halo *h)
{
	int64_t *to = ARENA_NEW(&p->a, int64_t, h->nround + 1), *got = ARENA_NEW(&p->a, int64_t, h->parts);
	h->fixed = true;
	for (int i = 0; i < h->nround; i++) {
		const struct round *q = &h->round[i];
		to[i] = only(h, q->in, q->to);
		h->fixed &= to[i] >= 0;
		for (int k = 0; k < i; k++)
			h->fixed &= (to[k] == to[i] && h->round[k].n == q->n) || to[k] + h->round[k].n <= to[i] || to[i] + q->n <= to[k];
		for (int r = 0; r < h->parts; r++)
			got[r] += q->in[r] && !q->own ? q->n : 0;
	}
	for (int r = 0; r < h->parts; r++)
		h->fetched = MAX(h->fetched, got[r]);
	for (int i = 0; i < h->nstrip; i++) {
		bool seen = !h->strip[i].cut || h->strip[i].fill;
		for (int k = 0; k < i; k++)
			seen |= h->strip[k].v == h->strip[i].v;
		h->gathered += seen ? 0 : h->strip[i].part * (h->parts - 1);
	}
}

static struct halo *plan(struct part *p, struct halo *h, const int64_t *start);

/* The elements that are there, side by side; between them, and around, is background. */
static struct halo *spread_out(struct part *p, struct halo *h, const int64_t *start)
{
	const struct run q = h->strip[h->nstrip - 1].run;
	int64_t *from = ARENA_NEW(&p->a, int64_t, h->parts), *end = ARENA_NEW(&p->a, int64_t, h->parts), len = 0;
	h->phase = ARENA_NEW(&p->a, int64_t, h->parts);
	for (int r = 0; r < h->parts; r++) {
		from[r] = up(start[r] - q.first, q.step);
		end[r] = up(start[r] + h->len - q.first, q.step);
		len = MAX(len, end[r] - from[r]);
		h->phase[r] = q.first + q.step * from[r] - start[r];
		h->most = MAX(h->most, h->phase[r]);
	}
	if (!len)
		return NULL;
	struct strip *x = arena_copy(&p->a, h->strip, sizeof *x * (size_t)h->nstrip);
	x[h->nstrip - 1].run = (struct run){ 0, q.n, 1, q.from, q.by };
	h->dense = ARENA_NEW(&p->a, struct halo, 1);
	*h->dense = (struct halo){ .mesh = h->mesh, .l = h->l, .d = h->d, .parts = h->parts, .nstrip = h->nstrip, .strip = x, .stop = end, .len = len };
	if (!plan(p, h->dense, from))
		return NULL;
	h->fetched = h->dense->fetched;
	h->gathered = h->dense->gathered;
	return h;
}

/* alike: with rounds in which many devices do the same, even if that takes more of them. */
static struct halo *planned(struct part *p, struct halo *h, const int64_t *start, bool alike)
{
	int room = 8 * (h->parts + h->nstrip), nseg = 0, n = h->nstrip;
	h->round = ARENA_NEW(&p->a, struct round, room);
	struct painted *x = ARENA_NEW(&p->a, struct painted, 2 * n + 2);
	struct segment *seg = ARENA_NEW(&p->a, struct segment, room * h->parts);
	for (int r = 0; r < h->parts; r++) {
		int k = segments(h, r, start[r], x, seg + nseg, room * h->parts - nseg);
		if (k < 0)
			return NULL;
		nseg += k;
	}
	int *best = ARENA_NEW(&p->a, int, nseg + 1), *pick = ARENA_NEW(&p->a, int, nseg + 1);
	for (int first = 0;;) {
		while (first < nseg && !seg[first].n)
			first++;
		if (first == nseg)
			break;
		int most = 0;
		for (int i = first; i < nseg; i++) {
			int k = seg[i].n ? matching(seg, nseg, i, true, pick) : 0;
			if (k > most) {
				most = k;
				memcpy(best, pick, sizeof *best * (size_t)k);
			}
		}
		int any = matching(seg, nseg, first, false, pick);
		bool same = alike && (most == any || (2 * most >= any && !own(&seg[first])));      /* tables are cheaper than rounds if nothing travels */
		if (!add_round(p, h, seg, same ? best : pick, same ? most : any, room))
			return NULL;
	}
	place(p, h);
	return h;
}

/* Elements that come in all rounds. */
static int64_t coming(const struct halo *h)
{
	int64_t n = 0;
	for (int i = 0; i < h->nround; i++)
		n += h->round[i].own ? 0 : h->round[i].n;
	return n;
}

/* In static places, unless so many fewer rounds do that they pay for writing the result. */
static struct halo *plan(struct part *p, struct halo *h, const int64_t *start)
{
	struct halo few = *h;
	if (!planned(p, h, start, true))
		return NULL;
	if (2 * coming(h) > 3 * h->len && planned(p, &few, start, false) && 2 * (coming(h) - coming(&few)) >= h->len)
		*h = few;
	return h;
}

struct halo *halo_plan(struct part *p, uint32_t mesh, struct axes l, int d, int n, const struct strip *s, const int64_t *start, int64_t len)
{
	struct halo *h = ARENA_NEW(&p->a, struct halo, 1);
	*h = (struct halo){ .mesh = mesh, .l = l, .d = d, .parts = (int)axes_size(l), .nstrip = n, .strip = s, .len = len };
	if (h->parts > MOST_BLOCKS || len < 1)
		return NULL;
	return !s[n - 1].fill && s[n - 1].run.step > 1 ? spread_out(p, h, start) : plan(p, h, start);
}

int64_t halo_fetched(const struct halo *h) { return h->fetched; }
int64_t halo_gathered(const struct halo *h) { return h->gathered; }

/* --- code ----------------------------------------------------------------------------------------- */

static ir_type with_extent(struct part *p, struct ir_b *b, ir_val v, int d, int64_t n)
{
	const struct ir_type_info *t = ir_vtype(p->m, b->fn, v);
	int64_t dim[IR_MAX_RANK];
	memcpy(dim, t->dim, sizeof *dim * t->rank);
	dim[d] = n;
	return ir_tensor(p->m, t->dtype, t->rank, dim);
}

/* The i32 scalar that is x[r] on devices of block r. */
static ir_val by_block(struct part *p, struct ir_b *b, uint32_t mesh, struct axes l, const int64_t *x)
{
	int32_t *table = ARENA_NEW(&p->a, int32_t, p->ndev);
	for (int dev = 0; dev < p->ndev; dev++)
		table[dev] = (int32_t)x[mesh_index(&p->m->mesh.p[mesh], dev, l)];
	return part_by_device(p, b, table);
}

/* Elements at .. at + n of v along d, at a place of each device's own. */
static ir_val taken(struct part *p, struct ir_b *b, ir_val v, int d, ir_val at, int64_t n)
{
	ir_type t = with_extent(p, b, v, d, n);
	ir_val in[IR_MAX_RANK + 1] = { v }, zero = ir_const_i(b, ir_scalar(p->m, DT_i32), 0);
	const struct ir_type_info *i = ir_type_of(p->m, t);
	int rank = i->rank;
	int64_t w[IR_MAX_RANK + 1] = { rank };
	memcpy(w + 1, i->dim, sizeof *w * (size_t)rank);
	for (int k = 0; k < rank; k++)
		in[k + 1] = k == d ? at : zero;
	return ir_emit(b, IR_dynamic_slice, (uint32_t)rank + 1, in, t, w, (uint32_t)rank + 1);
}

static ir_val part_of(struct ir_b *b, ir_val v, int d, int64_t from, int64_t n, int64_t stride)
{
	const struct ir_type_info *t = ir_vtype(b->m, b->fn, v);
	int64_t lo[IR_MAX_RANK] = {0}, hi[IR_MAX_RANK], step[IR_MAX_RANK];
	for (int k = 0; k < t->rank; k++) {
		hi[k] = t->dim[k];
		step[k] = 1;
	}
	lo[d] = from;
	hi[d] = from + (n - 1) * stride + 1;
	step[d] = stride;
	return ir_slice(b, v, lo, hi, step);
}

ir_val halo_own(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, int d, const int64_t *start, int64_t n)
{
	bool one = true;
	for (int64_t r = 1; r < axes_size(l); r++)
		one &= start[r] == start[0];
	return one ? part_of(b, v, d, start[0], n, 1) : taken(p, b, v, d, by_block(p, b, mesh, l, start), n);
}

ir_val halo_some(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, int d, const struct run *run, ir_val none)
{
	int64_t parts = axes_size(l), part = ir_vtype(p->m, b->fn, v)->dim[d], by = run->by < 0 ? -run->by : MAX(run->by, 1), low = MIN(run->from, run->from + run->by * (run->n - 1)), span = 1;
	int64_t *at = ARENA_NEW(&p->a, int64_t, parts), *from = ARENA_NEW(&p->a, int64_t, parts), *to = ARENA_NEW(&p->a, int64_t, parts);
	bool all = true;
	for (int64_t r = 0; r < parts; r++) {
		int64_t first = MAX(0, up(r * part - low, by)), n = MAX(0, MIN(run->n, up((r + 1) * part - low, by)) - first);
		at[r] = n ? low + by * first - r * part : 0;
		to[r] = n ? (n - 1) * by + 1 : 0;
		all &= to[r] == to[0];
		span = MAX(span, to[r]);
	}
	if (all)
		return part_of(b, halo_own(p, b, v, mesh, l, d, at, span), d, 0, (span - 1) / by + 1, by);
	for (int64_t r = 0; r < parts; r++) {            /* those with fewer: where as many are */
		from[r] = MAX(0, at[r] + span - part);
		at[r] -= from[r];
		to[r] += from[r];
	}
	v = halo_own(p, b, v, mesh, l, d, at, span);
	ir_type t = b->fn->val.p[v].type, t32 = ir_tensor(p->m, DT_i32, ir_type_of(p->m, t)->rank, ir_type_of(p->m, t)->dim);
	ir_val first = ir_splat_of(b, by_block(p, b, mesh, l, from), t32), end = ir_splat_of(b, by_block(p, b, mesh, l, to), t32), place = ir_iota(b, t32, d);
	ir_val far = ir_bin(b, ELEM_subtract, place, first), zero = ir_const_i(b, t32, 0);
	ir_val behind = ir_bin(b, ELEM_compare_ge, far, zero), before = ir_bin(b, ELEM_compare_lt, place, end), in = ir_bin(b, ELEM_and, behind, before);
	if (by > 1)
		in = ir_bin(b, ELEM_and, in, ir_bin(b, ELEM_compare_eq, ir_bin(b, ELEM_remainder, far, ir_const_i(b, t32, by)), zero));
	return ir_select(b, in, v, ir_splat_of(b, none, t));
}

/* What the devices that take part have of a round, as it comes to them. */
static ir_val brought(struct part *p, struct ir_b *b, const struct halo *h, const struct round *q, ir_val like)
{
	const struct strip *s = &h->strip[q->strip];
	if (s->fill)
		return ir_splat_of(b, s->v, with_extent(p, b, like, h->d, q->n));
	int64_t by = s->run.by, stride = by < 0 ? -by : MAX(by, 1), span = (q->n - 1) * stride + 1, *at = ARENA_NEW(&p->a, int64_t, h->parts);
	bool *gives = ARENA_NEW(&p->a, bool, h->parts);
	for (int r = 0; r < h->parts; r++)
		if (q->in[r]) {
			at[q->owner[r]] = by < 0 ? q->at[r] - (span - 1) : q->at[r];
			gives[q->owner[r]] = true;
		}
	int64_t one = only(h, gives, at);
	ir_val v = s->v;
	if (one >= 0) {
		v = part_of(b, v, h->d, one, q->n, stride);
	} else {
		v = taken(p, b, v, h->d, by_block(p, b, h->mesh, h->l, at), span);
		v = part_of(b, v, h->d, 0, q->n, stride);
	}
	if (by < 0 && q->n > 1) {
		int64_t w[2] = { 1, h->d };
		v = ir_emit(b, IR_reverse, 1, &v, b->fn->val.p[v].type, w, 2);
	}
	if (q->own)
		return v;
	ir_group group = part_group(p, h->mesh, h->l);       /* before the list of them is looked at, which it may move */
	const struct ir_group_info *g = &p->m->group.p[group];
	int64_t *w = ARENA_NEW(&p->a, int64_t, 2 * p->ndev + 1);
	for (int row = 0; row < g->nrow; row++)
		for (int r = 0; r < h->parts; r++)
			if (q->in[r]) {
				w[++w[0]] = g->id[row * g->ncol + q->owner[r]];
				w[++w[0]] = g->id[row * g->ncol + r];
			}
	ir_type t = b->fn->val.p[v].type;
	return ir_emit_raw(b, IR_collective_permute, 1, &v, 1, &t, w, (uint32_t)w[0] + 1);
}

static ir_val background(struct part *p, struct ir_b *b, const struct halo *h, ir_val like, int64_t n)
{
	ir_type t = with_extent(p, b, like, h->d, n);
	return h->strip[0].fill ? ir_splat_of(b, h->strip[0].v, t) : ir_const_i(b, t, 0);
}

/* Is the background what a device gets to which nothing is sent? */
static bool background_zero(struct part *p, struct ir_b *b, const struct halo *h)
{
	if (!h->strip[0].fill)
		return true;
	static const char none[16];
	const void *one = ir_splat(p->m, b->fn, h->strip[0].v);
	return one && !memcmp(one, none, dtype_info[ir_vtype(p->m, b->fn, h->strip[0].v)->dtype].bytes);
}

/* The rounds of one static place put together. */
static ir_val slot(struct part *p, struct ir_b *b, const struct halo *h, const int *pick, int n, ir_val like)
{
	bool *have = ARENA_NEW(&p->a, bool, h->parts), all = true, zero = background_zero(p, b, h);
	for (int i = 0; i < n; i++)
		for (int r = 0; r < h->parts; r++)
			have[r] |= h->round[pick[i]].in[r];
	for (int r = 0; r < h->parts; r++)
		all &= have[r];
	ir_val v = 0;
	int begin = -1;
	for (int i = 0; i < n && begin < 0; i++)         /* what is under the others: anything, or what brings zeros elsewhere */
		begin = all || (zero && !h->round[pick[i]].own) ? i : -1;
	if (begin >= 0)
		v = brought(p, b, h, &h->round[pick[begin]], like);
	else
		v = background(p, b, h, like, h->round[pick[0]].n);
	for (int i = 0; i < n; i++) {
		if (i == begin)
			continue;
		int64_t *in = ARENA_NEW(&p->a, int64_t, h->parts), rank = ir_vtype(p->m, b->fn, v)->rank, dim[IR_MAX_RANK];
		for (int r = 0; r < h->parts; r++)
			in[r] = h->round[pick[i]].in[r];
		ir_val x = brought(p, b, h, &h->round[pick[i]], like);
		ir_val here = ir_convert(b, by_block(p, b, h->mesh, h->l, in), DT_pred);
		memcpy(dim, ir_vtype(p->m, b->fn, v)->dim, sizeof *dim * (size_t)rank);
		v = ir_select(b, ir_splat_of(b, here, ir_tensor(p->m, DT_pred, (int)rank, dim)), x, v);
	}
	return v;
}

static ir_val side_by_side(struct part *p, struct ir_b *b, const struct halo *h, ir_val like)
{
	ir_val *x = ARENA_NEW(&p->a, ir_val, 2 * h->nround + 2);
	int n = 0, *pick = ARENA_NEW(&p->a, int, h->nround + 1);
	for (int64_t at = 0; at < h->len;) {
		int64_t next = h->len, size = 0;
		int k = 0;
		for (int i = 0; i < h->nround; i++) {
			int64_t to = only(h, h->round[i].in, h->round[i].to);
			if (to == at) {
				pick[k++] = i;
				size = h->round[i].n;
			} else if (to > at) {
				next = MIN(next, to);
			}
		}
		x[n++] = k ? slot(p, b, h, pick, k, like) : background(p, b, h, like, next - at);
		at = k ? at + size : next;
	}
	int64_t w = h->d;
	return n == 1 ? x[0] : ir_emit(b, IR_concatenate, (uint32_t)n, x, with_extent(p, b, like, h->d, h->len), &w, 1);
}

static ir_val written(struct part *p, struct ir_b *b, const struct halo *h, ir_val like)
{
	int64_t behind = 0, *to = ARENA_NEW(&p->a, int64_t, h->parts);
	for (int i = 0; i < h->nround; i++)
		for (int r = 0; r < h->parts; r++)
			if (!h->round[i].in[r])
				behind = MAX(behind, h->round[i].n);
	ir_val v = background(p, b, h, like, h->len + behind), zero = ir_const_i(b, ir_scalar(p->m, DT_i32), 0);
	int rank = ir_vtype(p->m, b->fn, v)->rank;
	for (int i = 0; i < h->nround; i++) {
		const struct round *q = &h->round[i];
		for (int r = 0; r < h->parts; r++)
			to[r] = q->in[r] ? q->to[r] : h->len;
		ir_val in[IR_MAX_RANK + 2] = { v, brought(p, b, h, q, like) }, at = by_block(p, b, h->mesh, h->l, to);
		for (int k = 0; k < rank; k++)
			in[k + 2] = k == h->d ? at : zero;
		v = ir_emit(b, IR_dynamic_update_slice, (uint32_t)rank + 2, in, b->fn->val.p[v].type, NULL, 0);
	}
	return part_of(b, v, h->d, 0, h->len, 1);
}

ir_val halo_emit_dense(struct part *p, struct ir_b *b, const struct halo *h, int64_t *low, int64_t *high)
{
	for (int r = 1; h->dense && r < h->parts; r++)
		if (h->phase[r] != h->phase[0])
			return 0;
	if (!h->dense)
		return 0;
	*low = h->phase[0];
	*high = h->len - (*low + (h->dense->len - 1) * h->strip[h->nstrip - 1].run.step + 1);
	return halo_emit(p, b, h->dense);
}

ir_val halo_emit(struct part *p, struct ir_b *b, const struct halo *h)
{
	if (!h->dense) {
		ir_val like = 0;
		for (int i = 0; i < h->nstrip; i++)
			like = h->strip[i].fill ? like : h->strip[i].v;
		return h->fixed ? side_by_side(p, b, h, like) : written(p, b, h, like);
	}
	ir_val v = halo_emit(p, b, h->dense);
	const struct run *q = &h->strip[h->nstrip - 1].run;
	int64_t *at = ARENA_NEW(&p->a, int64_t, h->parts), least = h->most, size = (h->dense->len - 1) * q->step + 1;
	for (int r = 0; r < h->parts; r++) {
		at[r] = h->most - h->phase[r];
		least = MIN(least, h->phase[r]);
	}
	int rank = ir_vtype(p->m, b->fn, v)->rank;
	int64_t words[3 * (IR_MAX_RANK + 1)] = {0}, high = MAX(0, h->len - least - size), all = h->most + size + high;
	for (int k = 0; k < 3; k++)
		words[k * (rank + 1)] = rank;
	words[1 + h->d] = h->most;
	words[rank + 2 + h->d] = high;
	words[2 * rank + 3 + h->d] = q->step - 1;
	ir_val fill = h->strip[0].fill ? h->strip[0].v : ir_const_i(b, ir_scalar(p->m, (enum dtype)ir_vtype(p->m, b->fn, v)->dtype), 0);
	v = ir_emit(b, IR_pad, 2, (ir_val[]){ v, fill }, with_extent(p, b, v, h->d, all), words, 3 * ((uint32_t)rank + 1));
	return halo_own(p, b, v, h->mesh, h->l, h->d, at, h->len);
}
