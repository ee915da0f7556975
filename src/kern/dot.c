/* dot: a general product over views.
 *
 * Dimensions fall into four axes: batch, rows (free in lhs), columns (free in rhs), contracted.  A tile of
 * the result is made from blocks of both operands, which are used where they lie when they have the type of
 * the computation and unit stride, and are packed otherwise; whatever the order of dimensions, packing is
 * the only place that sees it.  Computation is in f32, f64, i32 or i64.  Complex products are real ones: the parts of lhs follow each
 * other along the contraction, and each number of rhs is there twice, the second time times i.
 * An algorithm that asks for less than the operands hold (bf16 or tf32 products of f32) gets what they hold. */
#include <stdlib.h>

#include "dot.h"

enum { MB = 96, NB = 256, KB = 256, LANE = 16, NARROW = 32 };

/* An axis that is walked in the order given. */
static void axis_make(struct arena *a, struct axis *x, int n, const int64_t *dim, const int64_t *s0, const int64_t *s1)
{
	x->of[0] = matmul_axis_make(a, n, dim, s0);
	x->of[1] = matmul_axis_make(a, n, dim, s1);
	x->n = x->of[0].n;
}
static inline int64_t axis_at(const struct axis *x, int side, int64_t i)
{
	return matmul_at(&x->of[side], i);
}

/* n elements along axis x from i0 on, as the type of the computation. */
static void load_run(const struct side *s, const char *base, const struct axis *x, int xs, int64_t i0, int64_t n, char *out, char *raw)
{
	int es = s->es;
	const char *p = base;
	char *to = s->first ? raw : out;
	int64_t step = x->of[xs].step, room[MATMUL_PANEL];
	if (x->of[xs].even) {
		p += i0 * step * es;
		if (s->first && step == 1)
			to = (char *)(uintptr_t)p;
		else
			move_strided(es, n, to, es, p, step * es);
	}
	for (int64_t i = 0; i < n && !x->of[xs].even; i += MATMUL_PANEL) {
		int64_t some = MIN(MATMUL_PANEL, n - i);
		const int64_t *at = matmul_some(&x->of[xs], i0 + i, some, room);
		for (int64_t j = 0; j < some; j++)
			memcpy(to + (i + j) * es, p + at[j] * es, (size_t)es);
	}
	if (s->first)
		s->first(s->complex ? 2 * n : n, out, to, NULL, NULL);
}

/* Dense [no][ni] block in the type of the computation, from o0, i0 of two axes. */
static void pack(const struct side *s, const char *base, const struct axis *xo, int so, int64_t o0, int64_t no,
                 const struct axis *xi, int si, int64_t i0, int64_t ni, char *out, char *tmp)
{
	char *raw = tmp + LANE * KB * 16;
	int bytes = s->complex ? 2 * s->cs : s->cs;
	if (ni == 1 || (no > 1 && llabs(xo->of[so].step) < llabs(xi->of[si].step) && xo->n > 1)) {
		const struct kern_isa *isa = kern_isa_get();
		for (int64_t o = 0; o < no; o += KB) {
			int64_t mo = MIN(KB, no - o);
			for (int64_t i = 0; i < ni; i += LANE) {
				int64_t m = MIN(LANE, ni - i);
				for (int64_t j = 0; j < m; j++)
					load_run(s, base + axis_at(xi, si, i0 + i + j) * s->es, xo, so, o0 + o, mo, tmp + j * KB * bytes, raw);
				char *to = out + (o * ni + i) * bytes;
				if (bytes < 16)
					isa->transpose[bytes == 4 ? 2 : 3](m, mo, tmp, KB, to, ni);
				else
					for (int64_t j = 0; j < m; j++)
						move_strided(bytes, mo, to + j * bytes, ni * bytes, tmp + j * KB * bytes, bytes);
			}
		}
		return;
	}
	for (int64_t o = 0; o < no; o++)
		load_run(s, base + axis_at(xo, so, o0 + o) * s->es, xi, si, i0, ni, out + o * ni * bytes, raw);
}

/* Rows of n complex numbers become twice as many, in place.  Rows of k: of b, and of i b.  Rows of columns (nt): what gives the real part of a
 * product with b, and what gives the imaginary one. */
#define TWICE(T) static void twice_##T(bool nt, int64_t rows, int64_t n, T *x) \
{ \
	for (int64_t r = rows; r-- > 0;) { \
		const T *from = x + 2 * n * r; \
		T *one = x + 4 * n * r, *two = one + 2 * n; \
		for (int64_t j = 0; j < n; j++) { \
			T re = from[2 * j], im = from[2 * j + 1]; \
			one[2 * j] = re; \
			one[2 * j + 1] = nt ? -im : im; \
			two[2 * j] = nt ? im : -im; \
			two[2 * j + 1] = re; \
		} \
	} \
}
TWICE(float)
TWICE(double)

static void dot_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                    int64_t t0, int64_t t1, void *scratch)
{
	const struct dot *q = s->priv;
	const char *A = view_at(k, ptr, 0), *B = view_at(k, ptr, 1);
	char *C = view_at(k, ptr, 2);
	int cs = q->cs, os = dt_bytes(k->v[2].dtype), parts = q->complex ? 2 : 1;
	char *pc = scratch, *pa = pc + q->sums, *pb = pa + q->a_bytes, *tmp = pb + q->b_bytes;
	int64_t mt = (q->m.n + q->mb - 1) / q->mb, nt = (q->n.n + q->nb - 1) / q->nb, kb = KB / parts;
	for (int64_t t = t0; t < t1; t++) {
		int64_t b = t / (mt * nt), m0 = t / nt % mt * q->mb, n0 = t % nt * q->nb;
		int64_t m = MIN(q->mb, q->m.n - m0), n = MIN(q->nb, q->n.n - n0);
		const char *a = A + axis_at(&q->bl, 0, b) * q->l.es, *bb = B + axis_at(&q->br, 0, b) * q->r.es;
		char *c = C + axis_at(&q->bl, 1, b) * os;
		char *acc = pc;
		int64_t ldc = n * parts, blocks = (q->kl.n + kb - 1) / kb;
		size_t level = (size_t)(parts * m * n * cs);
		if (q->direct_c) {
			acc = c + (m0 * q->m.of[1].step + n0) * os;
			ldc = q->m.n > 1 ? q->m.of[1].step * parts : ldc;
			int64_t each = ldc * cs == n * os ? m : 1;      /* rows at once */
			for (int64_t i = 0; i < m; i += each)
				memset(acc + i * ldc * cs, 0, (size_t)(each * n * os));
		} else if (!blocks) {
			memset(acc, 0, level);
		}
		for (int64_t k0 = 0; k0 < q->kl.n; k0 += kb) {
			int64_t kk = MIN(kb, q->kl.n - k0), lda = kk * parts, ldb = (q->nt ? kk : n) * parts;
			const char *xa = pa, *xb = pb;
			if (!q->direct_c && (k0 == 0 || (q->add && sum_starts(k0 / kb))))
				memset(acc, 0, level);
			if (q->direct_a) {
				xa = a + (m0 * q->m.of[0].step + k0) * q->l.es;
				lda = q->m.of[0].step * parts;
			} else {
				pack(&q->l, a, &q->m, 0, m0, m, &q->kl, 0, k0, kk, pa, tmp);
			}
			if (q->direct_b) {
				xb = bb + (q->nt ? n0 * q->n.of[0].step + k0 : k0 * q->kr.of[0].step + n0) * cs;
				ldb = q->nt ? q->n.of[0].step : q->kr.of[0].step;
			} else if (q->nt) {
				pack(&q->r, bb, &q->n, 0, n0, n, &q->kr, 0, k0, kk, pb, tmp);
			} else {
				pack(&q->r, bb, &q->kr, 0, k0, kk, &q->n, 0, n0, n, pb, tmp);
			}
			if (q->complex && cs == 4)
				twice_float(q->nt, q->nt ? n : kk, q->nt ? kk : n, (float *)(void *)pb);
			else if (q->complex)
				twice_double(q->nt, q->nt ? n : kk, q->nt ? kk : n, (double *)(void *)pb);
			(q->nt ? q->gemm_nt : q->gemm)(m, n * parts, kk * parts, xa, lda, xb, ldb, acc, ldc);
			if (q->add)
				sum_carry(k0 / kb, q->add, parts * m * n, cs, acc, level);
		}
		if (q->add)
			sum_close(blocks, q->add, parts * m * n, cs, acc, level);
		if (q->direct_c)
			continue;
		char *out = pa;       /* free now: one row of the result */
		for (int64_t i = 0; i < m; i++) {
			const char *row = acc + i * n * parts * cs;
			if (q->store) {
				q->store(n, out, row, NULL, NULL);
				row = out;
			}
			char *to = c + axis_at(&q->m, 1, m0 + i) * os;
			if (q->n.of[1].even)
				move_strided(os, n, to + n0 * q->n.of[1].step * os, q->n.of[1].step * os, row, os);
			else
				for (int64_t j = 0; j < n; j++)
					memcpy(to + axis_at(&q->n, 1, n0 + j) * os, row + j * os, (size_t)os);
		}
	}
}

static void side_make(struct side *s, enum dtype dt, enum dtype ct)
{
	s->es = dt_bytes(dt);
	s->cs = dt_bytes(ct);
	s->complex = dtype_info[dt].cls == DT_COMPLEX;
	enum dtype part = dt == DT_c64 ? DT_f32 : dt == DT_c128 ? DT_f64 : dt;
	bool wraps = ct == DT_i32 || ct == DT_i64;       /* sums do not ask for the sign of what is as wide */
	s->first = part == ct || (wraps && part == (ct == DT_i32 ? DT_u32 : DT_u64)) ? NULL : kern_elem(ELEM_convert, part, ct);
}

enum dtype dot_type(enum dtype l, enum dtype r, enum dtype out, enum dtype acc)
{
	const uint8_t *bits[4] = { &dtype_info[l].bits, &dtype_info[r].bits, &dtype_info[out].bits, &dtype_info[acc].bits };
	bool complex = dtype_info[l].cls == DT_COMPLEX || dtype_info[r].cls == DT_COMPLEX || dtype_info[out].cls == DT_COMPLEX;
	bool real = dtype_info[l].cls == DT_FLOAT || dtype_info[r].cls == DT_FLOAT || dtype_info[out].cls == DT_FLOAT;
	if (complex)
		return l == DT_c128 || r == DT_c128 || out == DT_c128 ? DT_f64 : DT_f32;
	if (real)
		return *bits[0] == 64 || *bits[1] == 64 || *bits[2] == 64 || (acc != DT_token && *bits[3] == 64) ? DT_f64 : DT_f32;
	return *bits[2] <= 32 ? DT_i32 : DT_i64;
}

struct err *kern_make_dot(const struct prog_kern *k, struct kern_state *s)
{
	if (kern_matmul(k, s))
		return NULL;
	struct arena *ar = &s->a;
	struct dot *q = ARENA_NEW(ar, struct dot, 1);
	const struct prog_view *l = &k->v[0], *r = &k->v[1], *o = &k->v[2];
	const int64_t *at = k->attr;
	int nb = (int)*at++;
	const int64_t *lb = at, *rb = lb + nb;
	at = rb + nb;
	int nc = (int)*at++;
	const int64_t *lc = at, *rc = lc + nc;
	at = rc + nc;
	enum dtype acc = (enum dtype)at[1];
	q->ct = dot_type(l->dtype, r->dtype, o->dtype, acc > 0 && acc < DT_COUNT ? acc : DT_token);
	q->cs = dt_bytes(q->ct);
	q->complex = dtype_info[o->dtype].cls == DT_COMPLEX;
	bool lr[2] = { dtype_info[l->dtype].cls == DT_COMPLEX, dtype_info[r->dtype].cls == DT_COMPLEX };
	if (lr[0] != q->complex || lr[1] != q->complex || (q->complex && dt_bytes(o->dtype) != 2 * q->cs))
		return ERR(UNIMPLEMENTED, "dot of '%s' and '%s' to '%s'", dtype_info[l->dtype].name, dtype_info[r->dtype].name, dtype_info[o->dtype].name);
	side_make(&q->l, l->dtype, q->ct);
	side_make(&q->r, r->dtype, q->ct);
	q->store = q->complex || o->dtype == q->ct ? NULL : kern_elem(ELEM_convert, q->ct, o->dtype);
	/* axes */
	uint8_t used[LOOP_RANK] = { 0 };
	int64_t dim[LOOP_RANK] = { 0 }, s0[LOOP_RANK] = { 0 }, s1[LOOP_RANK] = { 0 }, zero[LOOP_RANK] = { 0 };
	int od = 0, n = 0;
	for (int i = 0; i < nb; i++, od++) {
		dim[i] = l->dim[lb[i]];
		s0[i] = l->stride[lb[i]];
		s1[i] = o->stride[od];
	}
	axis_make(ar, &q->bl, nb, dim, s0, s1);
	for (int i = 0; i < nb; i++)
		s0[i] = r->stride[rb[i]];
	axis_make(ar, &q->br, nb, dim, s0, zero);
	for (int i = 0; i < nc; i++) {
		dim[i] = l->dim[lc[i]];
		s0[i] = l->stride[lc[i]];
		s1[i] = r->stride[rc[i]];
	}
	/* one axis object for both operands would merge only what both merge; separate ones merge more */
	axis_make(ar, &q->kl, nc, dim, s0, zero);
	axis_make(ar, &q->kr, nc, dim, s1, zero);
	for (int side = 0; side < 2; side++) {
		const struct prog_view *v = side ? r : l;
		memset(used, 0, sizeof used);
		for (int i = 0; i < nb; i++)
			used[side ? rb[i] : lb[i]] = 1;
		for (int i = 0; i < nc; i++)
			used[side ? rc[i] : lc[i]] = 1;
		n = 0;
		for (int d = 0; d < v->rank; d++)
			if (!used[d]) {
				dim[n] = v->dim[d];
				s0[n] = v->stride[d];
				s1[n++] = o->stride[od++];
			}
		axis_make(ar, side ? &q->n : &q->m, n, dim, s0, s1);
	}
	const struct kern_isa *isa = kern_isa_get();
	q->gemm = q->ct == DT_f32 ? isa->gemm_f32 : q->ct == DT_f64 ? isa->gemm_f64 : q->ct == DT_i32 ? isa->gemm_i32 : isa->gemm_i64;
	q->gemm_nt = q->ct == DT_f32 ? isa->gemm_nt_f32 : q->ct == DT_f64 ? isa->gemm_nt_f64 : q->ct == DT_i32 ? isa->gemm_nt_i32 : isa->gemm_nt_i64;
	int parts = q->complex ? 2 : 1;
	bool la = !q->l.first, rb1 = !q->r.first && !q->complex;
	bool k1l = q->kl.of[0].even && (q->kl.of[0].step == 1 || q->kl.n == 1), k1r = q->kr.of[0].even && (q->kr.of[0].step == 1 || q->kr.n == 1);
	/* fewer columns than two vectors have no fast loop */
	int64_t narrow = q->complex ? 64 / q->cs : q->ct == DT_i32 || q->ct == DT_i64 ? NARROW : 4;
	q->nt = ((q->m.n <= 8 && k1r) || q->n.n < narrow) && q->kl.n > 1;
	q->direct_a = la && k1l && q->m.of[0].even && q->m.of[0].step >= 0;
	q->direct_b = rb1 && (q->nt ? k1r && q->n.of[0].even && q->n.of[0].step >= 0
	                            : q->n.of[0].even && (q->n.of[0].step == 1 || q->n.n == 1) && q->kr.of[0].even && q->kr.of[0].step >= 0);
	q->levels = q->ct == DT_f32 || q->ct == DT_f64 ? sum_levels((q->kl.n * parts + KB - 1) / KB) : 1;      /* integers wrap */
	q->add = q->levels > 1 ? kern_elem(ELEM_add, q->ct, q->ct) : NULL;
	q->direct_c = (q->complex || o->dtype == q->ct) && !q->add && q->m.of[1].even && q->n.of[1].even && (q->n.of[1].step == 1 || q->n.n == 1)
	           && q->m.of[1].step >= 0;
	q->mb = MIN(q->m.n, q->n.n < 32 ? 4 * MB : MB);
	q->nb = MIN(q->n.n, q->m.n < 32 && !q->complex ? 4 * NB : NB);
	int64_t nt = q->n.n ? q->bl.n * ((q->n.n + q->nb - 1) / q->nb) : 0;
	while (q->mb > MB && (q->m.n + q->mb - 1) / q->mb * nt < 4 * cpu_get()->cores)
		q->mb = MAX(MB, q->mb / 2);
	s->tiles = q->m.n ? (q->m.n + q->mb - 1) / q->mb * nt : 0;
	size_t cs = (size_t)q->cs, row = (size_t)q->nb * 16;
	q->a_bytes = MAX((size_t)q->mb * KB * cs, row);
	q->b_bytes = (size_t)(parts * KB * q->nb) * cs;
	q->sums = ((size_t)(q->levels * parts * q->mb * q->nb) * cs + 63) & ~(size_t)63;
	s->scratch = q->sums + q->a_bytes + q->b_bytes + LANE * KB * 16 + (size_t)MAX(q->nb, KB) * 16;
	s->priv = q;
	s->run = dot_run;
	return NULL;
}
