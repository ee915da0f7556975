/* convolution.
 *
 * A product in disguise: rows are output positions, the contraction runs over the kernel's positions and the input
 * features, and what lies under a position of the kernel at an output position is at the sum of two offsets.  So floats go
 * to matmul.c with tables of offsets, nothing is laid out in memory but, where there is padding or dilation, a padded copy
 * of the operand.  Other types and small ones: the elements under the kernel are laid side by side (im2col, a few hundred
 * columns at a time).  Where every feature is a group of its own (depthwise) the features are lanes instead. */
#include <stdlib.h>

#include "dot.h"
#include "matmul.h"

enum { MB = 96, NB = 256, KB = 256, LANES = 512, SMALL = 256 };

struct conv {
	int ns, cs, parts;
	const int64_t *ld, *rd, *od, *stride, *low, *ldil, *rdil, *rev;
	int64_t groups, bgroups, batch, nif, nof, space, nk;    /* per group: input and output features; output positions; kernel positions */
	enum dtype ct;
	struct side l, r;
	kern_strip *store, *mul, *add;
	kern_gemm *gemm;
	bool depthwise;
	int levels;                  /* of long sums */
	int64_t mb, chunks, per_tile;
};

/* Elements of an operand with stride (elements) as the type of the computation. */
static void fetch(const struct side *s, int64_t n, const char *p, int64_t stride, int part, char *out, char *raw)
{
	int ms = s->complex ? s->cs : s->es;
	p += s->complex ? part * s->cs : 0;
	if (!s->first) {
		move_strided(ms, n, out, ms, p, stride * s->es);
		return;
	}
	move_strided(ms, n, raw, ms, p, stride * s->es);
	s->first(n, out, raw, NULL, NULL);
}

/* Offset in lhs of what kernel position kx meets at output position ox; false outside. */
static inline bool under(const struct conv *q, const struct prog_view *v, const int64_t *ox, const int64_t *kx, int64_t *off)
{
	*off = 0;
	for (int i = 0; i < q->ns; i++) {
		int64_t p = ox[i] * q->stride[i] + kx[i] * q->rdil[i] - q->low[i];
		if (p < 0)
			return false;
		if (q->ldil[i] != 1) {
			if (p % q->ldil[i])
				return false;
			p /= q->ldil[i];
		}
		if (p >= v->dim[q->ld[2 + i]])
			return false;
		*off += p * v->stride[q->ld[2 + i]];
	}
	return true;
}
static int64_t kernel_off(const struct conv *q, const struct prog_view *v, const int64_t *kx)
{
	int64_t off = 0;
	for (int i = 0; i < q->ns; i++) {
		int64_t n = v->dim[q->rd[2 + i]];
		off += (q->rev[i] ? n - 1 - kx[i] : kx[i]) * v->stride[q->rd[2 + i]];
	}
	return off;
}

static void depthwise_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                          int64_t t0, int64_t t1, void *scratch)
{
	const struct conv *q = s->priv;
	const struct prog_view *l = &k->v[0], *r = &k->v[1], *o = &k->v[2];
	const char *L = view_at(k, ptr, 0), *R = view_at(k, ptr, 1);
	char *O = view_at(k, ptr, 2);
	int os = dt_bytes(o->dtype);
	char *x = scratch, *y = x + LANES * 16, *raw = y + LANES * 16, *acc = raw + LANES * 16;
	int64_t ox[LOOP_RANK], kx[LOOP_RANK], odim[LOOP_RANK], kdim[LOOP_RANK];
	for (int i = 0; i < q->ns; i++) {
		odim[i] = o->dim[q->od[2 + i]];
		kdim[i] = r->dim[q->rd[2 + i]];
	}
	for (int64_t u = t0 * q->per_tile; u < MIN(t1 * q->per_tile, q->batch * q->space); u++) {
		int64_t b = u / q->space;
		index_of(q->ns, odim, u % q->space, ox);
		for (int64_t f = 0; f < q->groups; f += LANES) {
			int64_t n = MIN(LANES, q->groups - f), off, at = 0;
			memset(acc, 0, (size_t)(n * q->cs));
			memset(kx, 0, sizeof kx);
			do {
				if (!under(q, l, ox, kx, &off))
					continue;
				off += b * l->stride[q->ld[0]] + f * l->stride[q->ld[1]];
				fetch(&q->l, n, L + off * q->l.es, l->stride[q->ld[1]], 0, x, raw);
				fetch(&q->r, n, R + (kernel_off(q, r, kx) + f * r->stride[q->rd[1]]) * q->r.es, r->stride[q->rd[1]], 0, y, raw);
				q->mul(n, x, x, y, NULL);
				if (q->levels > 1 && sum_starts(at))
					memset(acc, 0, (size_t)(n * q->cs));
				q->add(n, acc, acc, x, NULL);
				if (q->levels > 1)
					sum_carry(at++, q->add, n, q->cs, acc, LANES * 16);
			} while (index_next(q->ns, kdim, kx));
			if (at)
				sum_close(at, q->add, n, q->cs, acc, LANES * 16);
			char *row = acc;
			if (q->store) {
				q->store(n, x, acc, NULL, NULL);
				row = x;
			}
			int64_t to = b * o->stride[q->od[0]] + f * o->stride[q->od[1]];
			for (int i = 0; i < q->ns; i++)
				to += ox[i] * o->stride[q->od[2 + i]];
			move_strided(os, n, O + to * os, o->stride[q->od[1]] * os, row, os);
		}
	}
}

static void conv_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                     int64_t t0, int64_t t1, void *scratch)
{
	const struct conv *q = s->priv;
	const struct prog_view *l = &k->v[0], *r = &k->v[1], *o = &k->v[2];
	const char *L = view_at(k, ptr, 0), *R = view_at(k, ptr, 1);
	char *O = view_at(k, ptr, 2);
	int cs = q->cs, os = dt_bytes(o->dtype), parts = q->parts;
	size_t plane = (size_t)(MB * NB * cs), level = plane * (size_t)parts;
	char *acc = scratch, *pa = acc + level * (size_t)q->levels, *pb = pa + (size_t)(MB * KB * cs) * (size_t)parts;
	char *raw = pb + (size_t)(KB * NB * cs) * (size_t)parts, *row = raw + MAX(KB, NB) * 16;
	int64_t (*ox)[LOOP_RANK] = (void *)(row + NB * 16), kx[LOOP_RANK], odim[LOOP_RANK], kdim[LOOP_RANK];
	for (int i = 0; i < q->ns; i++) {
		odim[i] = o->dim[q->od[2 + i]];
		kdim[i] = r->dim[q->rd[2 + i]];
	}
	int64_t groups = q->groups * q->bgroups, ktotal = q->nk * q->nif;
	for (int64_t t = t0; t < t1; t++) {
		int64_t g = t / (q->batch * q->chunks), b = t / q->chunks % q->batch, m0 = t % q->chunks * q->mb;
		int64_t m = MIN(q->mb, q->space - m0);
		if (g >= groups)
			return;
		int64_t lbase = (q->bgroups > 1 ? g * q->batch + b : b) * l->stride[q->ld[0]]
		              + (q->groups > 1 ? g * q->nif : 0) * l->stride[q->ld[1]];
		for (int64_t j = 0; j < m; j++)
			index_of(q->ns, odim, m0 + j, ox[j]);
		for (int64_t n0 = 0; n0 < q->nof; n0 += NB) {
			int64_t n = MIN(NB, q->nof - n0), of = g * q->nof + n0;
			for (int64_t k0 = 0; k0 < ktotal; k0 += KB) {
				int64_t kk = MIN(KB, ktotal - k0);
				if (!k0 || (q->levels > 1 && sum_starts(k0 / KB)))
					memset(acc, 0, level);
				for (int p = 0; p < parts; p++) {
					/* the kernel's rows, then the elements under them: runs of input features */
					for (int64_t i = 0, c; i < kk; i += c) {
						int64_t kp = (k0 + i) / q->nif, f = (k0 + i) % q->nif;
						c = MIN(q->nif - f, kk - i);
						index_of(q->ns, kdim, kp, kx);
						int64_t ko = kernel_off(q, r, kx);
						for (int64_t j = 0; j < c; j++)
							fetch(&q->r, n, R + (ko + (f + j) * r->stride[q->rd[0]] + of * r->stride[q->rd[1]]) * q->r.es,
							      r->stride[q->rd[1]], p, pb + (size_t)p * KB * NB * (size_t)cs + (i + j) * n * cs, raw);
						for (int64_t j = 0; j < m; j++) {
							int64_t off;
							char *to = pa + (size_t)p * MB * KB * (size_t)cs + (j * kk + i) * cs;
							if (under(q, l, ox[j], kx, &off))
								fetch(&q->l, c, L + (lbase + off + f * l->stride[q->ld[1]]) * q->l.es, l->stride[q->ld[1]], p, to, raw);
							else
								memset(to, 0, (size_t)(c * cs));
						}
					}
				}
				for (int ap = 0; ap < parts; ap++)
					for (int bp = 0; bp < parts; bp++) {
						char *xb = pb + (size_t)bp * KB * NB * (size_t)cs;
						if (ap && bp) {
							enum dtype d = cs == 4 ? DT_f32 : DT_f64;
							kern_elem(ELEM_negate, d, d)(kk * n, xb, xb, NULL, NULL);
						}
						q->gemm(m, n, kk, pa + (size_t)ap * MB * KB * (size_t)cs, kk, xb, n, acc + (ap != bp ? plane : 0), n);
					}
				if (q->levels > 1)
					sum_carry(k0 / KB, q->add, (int64_t)level / cs, cs, acc, level);
			}
			if (q->levels > 1)
				sum_close((ktotal + KB - 1) / KB, q->add, (int64_t)level / cs, cs, acc, level);
			if (!ktotal)
				memset(acc, 0, level);
			for (int64_t j = 0; j < m; j++) {
				const char *from = acc + j * n * cs;
				if (parts == 2) {
					move_strided(cs, n, row, 2 * cs, from, cs);
					move_strided(cs, n, row + cs, 2 * cs, from + plane, cs);
					from = row;
				} else if (q->store) {
					q->store(n, row, from, NULL, NULL);
					from = row;
				}
				int64_t to = b * o->stride[q->od[0]] + of * o->stride[q->od[1]];
				for (int i = 0; i < q->ns; i++)
					to += ox[j][i] * o->stride[q->od[2 + i]];
				move_strided(os, n, O + to * os, o->stride[q->od[1]] * os, from, os);
			}
		}
	}
}

/* --- as a product ---------------------------------------------------------------------- */

/* The padded copy: dimensions of lhs, outermost first, with padding and dilation applied.  The last ones that are as they were, side by side, are no
 * dimensions: so many elements are one, `unit`. */
struct lay { const struct conv *q; int rank, dim[LOOP_RANK]; int64_t extent[LOOP_RANK], unit; };

/* Where position x of dimension d of the copy comes from in lhs, -1: it is zero. */
static int64_t comes_from(const struct conv *q, const struct prog_view *v, int d, int64_t x)
{
	for (int i = 0; i < q->ns; i++)
		if (q->ld[2 + i] == d) {
			x -= q->low[i];
			if (x < 0 || x % q->ldil[i])
				return -1;
			x /= q->ldil[i];
		}
	return x < v->dim[d] ? x : -1;
}

static void lay_out(const struct prog_kern *k, const void *arg, char *const *ptr, char *to, int64_t t0, int64_t t1, int64_t tiles)
{
	const struct lay *y = arg;
	const struct prog_view *v = &k->v[0];
	const char *from = view_at(k, ptr, 0);
	int es = dt_bytes(v->dtype), last = y->rank - 1, d = y->dim[last];
	int64_t n = y->extent[last], unit = y->unit * es, ix[LOOP_RANK], rows = 1, x0 = 0, step = 1;
	for (int i = 0; i < last; i++)
		rows *= y->extent[i];
	for (int i = 0; i < y->q->ns; i++)
		if (y->q->ld[2 + i] == d)
			step = y->q->ldil[i];
	while (x0 < n && comes_from(y->q, v, d, x0) < 0)
		x0++;
	int64_t s0 = x0 < n ? comes_from(y->q, v, d, x0) : 0, count = x0 < n ? MIN((n - x0 + step - 1) / step, v->dim[d] - s0) : 0;
	for (int64_t row = rows * t0 / tiles; row < rows * t1 / tiles; row++) {
		char *out = to + row * n * unit;
		int64_t off = s0 * v->stride[d];
		bool there = true;
		index_of(last, y->extent, row, ix);
		for (int i = 0; i < last && there; i++) {
			int64_t s = comes_from(y->q, v, y->dim[i], ix[i]);
			there = s >= 0;
			off += s * v->stride[y->dim[i]];
		}
		if (!there || count < n)
			memset(out, 0, (size_t)(n * unit));
		const char *in = from + off * es;
		out += x0 * unit;
		if (there && step == 1 && v->stride[d] == y->unit)
			memcpy(out, in, (size_t)(count * unit));
		else if (there && unit == es)
			move_strided(es, count, out, step * es, in, v->stride[d] * es);
		else
			for (int64_t i = 0; i < count && there; i++)
				memcpy(out + i * step * unit, in + i * v->stride[d] * es, (size_t)unit);
	}
}

/* Dimensions in the order of lhs' memory: extent; stride in lhs, in the other array. */
struct nest { int n; int64_t dim[LOOP_RANK], l[LOOP_RANK], x[LOOP_RANK]; };
static void nest_add(struct nest *t, int64_t dim, int64_t l, int64_t x)
{
	int i = t->n++;
	for (; i > 0 && t->l[i - 1] < l; i--) {
		t->dim[i] = t->dim[i - 1];
		t->l[i] = t->l[i - 1];
		t->x[i] = t->x[i - 1];
	}
	t->dim[i] = dim;
	t->l[i] = l;
	t->x[i] = x;
}

static bool product(const struct prog_kern *k, const struct conv *q, struct kern_state *s)
{
	const struct prog_view *l = &k->v[0], *r = &k->v[1], *o = &k->v[2];
	if (q->ct != DT_f32 || q->parts > 1)
		return false;
	for (int i = 0; i < 3; i++)
		if (k->v[i].dtype != DT_f32 && k->v[i].dtype != DT_bf16 && k->v[i].dtype != DT_f16)
			return false;
	struct lay *y = ARENA_NEW(&s->a, struct lay, 1);
	int64_t extent[LOOP_RANK], stride[LOOP_RANK], bytes = dt_bytes(l->dtype);
	uint32_t changed = 0;                    /* dimensions that are not copied as they are */
	bool copy = false;
	*y = (struct lay){ .q = q, .rank = l->rank, .unit = 1 };
	for (int d = 0; d < l->rank; d++) {
		extent[d] = l->dim[d];
		stride[d] = l->stride[d];
		int i = d;
		for (; i > 0 && l->stride[y->dim[i - 1]] < l->stride[d]; i--)
			y->dim[i] = y->dim[i - 1];
		y->dim[i] = d;
	}
	for (int i = 0; i < q->ns; i++) {
		int d = (int)q->ld[2 + i];
		extent[d] = (o->dim[q->od[2 + i]] - 1) * q->stride[i] + (r->dim[q->rd[2 + i]] - 1) * q->rdil[i] + 1;
		copy |= q->low[i] != 0 || q->ldil[i] != 1 || extent[d] > l->dim[d];
		changed |= (q->low[i] != 0 || q->ldil[i] != 1 || extent[d] != l->dim[d]) << d;
	}
	if (copy)
		for (int i = y->rank; i-- > 0;) {
			y->extent[i] = extent[y->dim[i]];
			stride[y->dim[i]] = bytes / dt_bytes(l->dtype);
			bytes *= y->extent[i];
		}
	for (int d; y->rank > 1 && !(changed >> (d = y->dim[y->rank - 1]) & 1) && (l->stride[d] == y->unit || l->dim[d] == 1); y->rank--)
		y->unit *= l->dim[d];
	/* side by side in the result, output positions are columns, of one image at a time */
	int64_t sb = stride[q->ld[0]], sf = stride[q->ld[1]], near = q->ns ? o->stride[q->od[1 + q->ns]] : 0;
	bool across = near == 1 && o->stride[q->od[1]] != 1 && o->dim[q->od[1 + q->ns]] > 1;
	struct nest rows = { 0 }, con = { 0 };
	int64_t back = 0;
	if (!across)
		nest_add(&rows, q->batch, sb, o->stride[q->od[0]]);
	for (int i = 0; i < q->ns; i++) {
		int64_t at = stride[q->ld[2 + i]], kd = r->dim[q->rd[2 + i]], ks = r->stride[q->rd[2 + i]];
		nest_add(&rows, o->dim[q->od[2 + i]], at * q->stride[i], o->stride[q->od[2 + i]]);
		nest_add(&con, kd, at * q->rdil[i], q->rev[i] ? -ks : ks);
		back += q->rev[i] ? (kd - 1) * ks : 0;
	}
	nest_add(&con, q->nif, sf, r->stride[q->rd[0]]);
	struct matmul_tables t = { .least = SMALL, .out = (enum dtype)o->dtype, .bf16 = l->dtype == DT_bf16 && r->dtype == DT_bf16 };
	int64_t many[2] = { q->groups * q->bgroups, across ? q->batch : 1 };
	int64_t lb[2] = { (q->groups > 1 ? q->nif * sf : 0) + (q->bgroups > 1 ? q->batch * sb : 0), sb };
	int64_t rb[2] = { q->nof * r->stride[q->rd[1]], 0 }, ob[2] = { q->nof * o->stride[q->od[1]], o->stride[q->od[0]] };
	t.l = (struct matmul_side){ .dt = (enum dtype)l->dtype, .batch = matmul_axis_make(&s->a, 2, many, lb) };
	t.r = (struct matmul_side){ .dt = (enum dtype)r->dtype, .batch = matmul_axis_make(&s->a, 2, many, rb) };
	t.ob = matmul_axis_make(&s->a, 2, many, ob);
	t.b = t.ob.n;
	if (q->nk * q->nif > 1 << 24)
		return false;
	t.l.free = matmul_axis_make(&s->a, rows.n, rows.dim, rows.l);
	t.om = matmul_axis_make(&s->a, rows.n, rows.dim, rows.x);
	t.m = t.om.n;
	t.l.k = matmul_offsets(&s->a, con.n, con.dim, con.l, &t.k);
	int64_t *rk = matmul_offsets(&s->a, con.n, con.dim, con.x, &t.k);
	for (int64_t i = 0; i < t.k; i++)
		rk[i] += back;
	t.r.k = rk;
	t.r.free = matmul_axis_make(&s->a, 1, &q->nof, &r->stride[q->rd[1]]);
	t.on = matmul_axis_make(&s->a, 1, &q->nof, &o->stride[q->od[1]]);
	t.n = q->nof;
	if (copy) {
		t.lay = lay_out;
		t.lay_arg = y;
		t.lay_bytes = ((size_t)bytes + 63) & ~(size_t)63;
	}
	return matmul_plan(k, &t, s);
}

struct err *kern_make_convolution(const struct prog_kern *k, struct kern_state *s)
{
	struct conv *q = ARENA_NEW(&s->a, struct conv, 1);
	const struct prog_view *l = &k->v[0], *r = &k->v[1], *o = &k->v[2];
	const int64_t *list[9], *at = k->attr;
	for (int i = 0; i < 9; i++) {
		int64_t left = k->nattr - (at - k->attr);
		if (left < 1 || *at < 0 || *at >= left)
			return ERR(INVALID, "convolution lacks attributes");
		list[i] = at + 1;
		at += 1 + *at;
	}
	if (k->nattr - (at - k->attr) < 2 || l->rank < 2)
		return ERR(INVALID, "convolution lacks attributes");
	q->ld = list[0];
	q->rd = list[1];
	q->od = list[2];
	q->stride = list[3];
	q->low = list[4];
	q->ldil = list[6];
	q->rdil = list[7];
	q->rev = list[8];
	q->groups = at[0];
	q->bgroups = at[1];
	q->ns = l->rank - 2;
	q->batch = o->dim[q->od[0]];
	q->nif = r->dim[q->rd[0]];
	q->nof = r->dim[q->rd[1]] / MAX(1, q->groups * q->bgroups);
	if (q->groups < 1 || q->bgroups < 1)
		return ERR(INVALID, "convolution with %lld groups", (long long)MIN(q->groups, q->bgroups));
	q->space = q->nk = 1;
	for (int i = 0; i < q->ns; i++) {
		q->space *= o->dim[q->od[2 + i]];
		q->nk *= r->dim[q->rd[2 + i]];
	}
	q->ct = dot_type(l->dtype, r->dtype, o->dtype, DT_token);
	q->cs = dt_bytes(q->ct);
	bool complex = dtype_info[o->dtype].cls == DT_COMPLEX;
	q->parts = complex ? 2 : 1;
	for (int i = 0; i < 2; i++) {
		const struct prog_view *v = i ? r : l;
		struct side *d = i ? &q->r : &q->l;
		d->es = dt_bytes(v->dtype);
		d->cs = q->cs;
		d->complex = dtype_info[v->dtype].cls == DT_COMPLEX;
		if (d->complex != complex)
			return ERR(UNIMPLEMENTED, "convolution of '%s' and '%s'", dtype_info[l->dtype].name, dtype_info[r->dtype].name);
		d->first = d->complex || v->dtype == q->ct ? NULL : kern_elem(ELEM_convert, v->dtype, q->ct);
	}
	q->store = complex || o->dtype == q->ct ? NULL : kern_elem(ELEM_convert, q->ct, o->dtype);
	const struct kern_isa *isa = kern_isa_get();
	q->gemm = q->ct == DT_f32 ? isa->gemm_f32 : q->ct == DT_f64 ? isa->gemm_f64 : q->ct == DT_i32 ? isa->gemm_i32 : isa->gemm_i64;
	q->mul = kern_elem(ELEM_multiply, q->ct, q->ct);
	q->add = kern_elem(ELEM_add, q->ct, q->ct);
	q->depthwise = q->groups > 4 && q->nif == 1 && q->nof == 1 && !complex && q->bgroups == 1;
	q->mb = MB;
	q->chunks = (q->space + MB - 1) / MB;
	q->levels = q->ct == DT_f32 || q->ct == DT_f64 ? sum_levels(q->depthwise ? q->nk : (q->nk * q->nif + KB - 1) / KB) : 1;
	if (q->depthwise) {
		s->priv = q;
		int64_t units = q->batch * q->space;
		q->per_tile = MAX(1, 65536 / MAX(1, q->groups * q->nk));
		s->tiles = (units + q->per_tile - 1) / q->per_tile;
		s->scratch = (size_t)(3 + q->levels) * LANES * 16;
		s->run = depthwise_run;
		return NULL;
	}
	if (view_count(o) && view_count(l) && view_count(r) && product(k, q, s))
		return NULL;
	s->tiles = view_count(o) ? q->groups * q->bgroups * q->batch * q->chunks : 0;
	s->scratch = (size_t)q->parts * (size_t)(q->levels * MB * NB + MB * KB + KB * NB) * (size_t)q->cs + (MAX(KB, NB) + NB) * 16 + 64 + MB * LOOP_RANK * 8;
	s->priv = q;
	s->run = conv_run;
	return NULL;
}
