/* fft, in double.
 *
 * Lengths whose prime factors are at most RADIX_MAX: Stockham's self-sorting form, one pass per factor, radix
 * 4 and 2 written out.  Others: Bluestein's chirp as a convolution of a power of two ("A linear filtering
 * approach to the computation of discrete Fourier transform", 1970).  Several dimensions: one phase each. */
#include <math.h>
#include <stdlib.h>

#include "impl.h"

enum { RADIX_MAX = 31 };
struct cx { double re, im; };
static inline struct cx cmul(struct cx a, struct cx b) { return (struct cx){ a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re }; }

struct line {
	int64_t n;
	int nfac, fac[64];
	struct cx *w;                /* e^(-2 pi i k / n), k < n */
	struct line *inner;          /* Bluestein: of length inner->n */
	struct cx *chirp, *kernel;   /* kernel: transformed */
};

/* e^(-2 pi i k / n), exact in the octants. */
static struct cx root(int64_t k, int64_t n)
{
	k %= n;
	int64_t q = 8 * k / n;
	double t = 2 * M_PI * (double)k / (double)n;
	switch (q) {
	case 0: case 7: {
		double u = q ? 2 * M_PI * (double)(k - n) / (double)n : t;
		return (struct cx){ cos(u), -sin(u) };
	}
	case 1: case 2: {
		double u = 2 * M_PI * ((double)(4 * k - n) / 4) / (double)n;
		return (struct cx){ -sin(u), -cos(u) };
	}
	case 3: case 4: {
		double u = 2 * M_PI * ((double)(2 * k - n) / 2) / (double)n;
		return (struct cx){ -cos(u), sin(u) };
	}
	default: {
		double u = 2 * M_PI * ((double)(4 * k - 3 * n) / 4) / (double)n;
		return (struct cx){ sin(u), cos(u) };
	}
	}
}

static void transform(const struct line *l, struct cx *x, struct cx *t);

static struct line *line_make(struct arena *a, int64_t n)
{
	struct line *l = ARENA_NEW(a, struct line, 1);
	l->n = n;
	int64_t m = n;
	while (m % 4 == 0) {
		l->fac[l->nfac++] = 4;
		m /= 4;
	}
	for (int f = 2; f <= RADIX_MAX && m > 1; f++)
		while (m % f == 0) {
			l->fac[l->nfac++] = f;
			m /= f;
		}
	if (m > 1) {
		int64_t p = 1;
		while (p < 2 * n - 1)
			p *= 2;
		l->inner = line_make(a, p);
		l->chirp = ARENA_NEW(a, struct cx, n);
		l->kernel = ARENA_NEW(a, struct cx, p);
		struct cx *t = mem_alloc(sizeof *t * (size_t)p);
		for (int64_t k = 0; k < n; k++) {
			int64_t sq = (int64_t)((__extension__ (unsigned __int128)k * (unsigned __int128)k) % (unsigned __int128)(2 * n));
			l->chirp[k] = root(sq, 2 * n);
			l->kernel[k] = (struct cx){ l->chirp[k].re, -l->chirp[k].im };
			if (k)
				l->kernel[p - k] = l->kernel[k];
		}
		transform(l->inner, l->kernel, t);
		free(t);
		return l;
	}
	l->w = ARENA_NEW(a, struct cx, n + 1);
	for (int64_t k = 0; k < n; k++)
		l->w[k] = root(k, n);
	return l;
}
static size_t line_scratch(const struct line *l)
{
	return (size_t)l->n + (l->inner ? (size_t)l->inner->n + line_scratch(l->inner) : 0);
}

/* Forward transform of x in place; t: line_scratch elements. */
static void transform(const struct line *l, struct cx *x, struct cx *t)
{
	int64_t n = l->n;
	if (l->inner) {
		int64_t p = l->inner->n;
		struct cx *y = t, *rest = y + p;
		for (int64_t k = 0; k < n; k++)
			y[k] = cmul(x[k], l->chirp[k]);
		memset(y + n, 0, sizeof *y * (size_t)(p - n));
		transform(l->inner, y, rest);
		for (int64_t k = 0; k < p; k++) {
			struct cx v = cmul(y[k], l->kernel[k]);
			y[k] = (struct cx){ v.re, -v.im };     /* inverse by conjugation */
		}
		transform(l->inner, y, rest);
		for (int64_t k = 0; k < n; k++)
			x[k] = cmul((struct cx){ y[k].re / (double)p, -y[k].im / (double)p }, l->chirp[k]);
		return;
	}
	const struct kern_isa *isa = kern_isa_get();
	struct cx *a = x, *b = t;
	int64_t done = 1;            /* product of the factors so far: length of finished transforms */
	for (int f = 0; f < l->nfac; f++) {
		int r = l->fac[f];
		int64_t m = n / done / r;        /* remaining after this factor */
		if (r == 4 || r == 2)
			(r == 4 ? isa->fft4 : isa->fft2)(done, m, &a->re, &b->re, &l->w->re);
		for (int64_t j = 0; j < done && r != 4 && r != 2; j++) {
			/* twiddle of term s: w[j s n / (done r)] */
			struct cx tw[RADIX_MAX];
			for (int s = 1; s < r; s++)
				tw[s] = l->w[j * s * m];
			for (int64_t k = 0; k < m; k++) {
				struct cx u[RADIX_MAX];
				for (int s = 0; s < r; s++) {
					struct cx v = a[(j * r + s) * m + k];
					u[s] = j && s ? cmul(v, tw[s]) : v;
				}
				struct cx *o = b + j * m + k;
				int64_t os = done * m;
				for (int h = 0; h < r; h++) {
					struct cx sum = u[0];
					for (int s = 1; s < r; s++) {
						struct cx v = cmul(u[s], l->w[(int64_t)(h * s % r) * (n / r)]);
						sum.re += v.re;
						sum.im += v.im;
					}
					o[h * os] = sum;
				}
			}
		}
		done *= r;
		struct cx *s = a;
		a = b;
		b = s;
	}
	if (a != x)
		memcpy(x, a, sizeof *x * (size_t)n);
}

/* --- the kernel ---------------------------------------------------------------------- */

struct fft {
	int kind, nd, rank;
	struct line *line[3];        /* by transformed dimension, last first */
	kern_strip *load, *store, *load_mid, *store_mid;
	int64_t per_tile, count[3];
	bool mid;                    /* between phases the data are in the shared buffer, as c128, shaped like the operand */
	int64_t midstride[LOOP_RANK];
};

/* Phase p transforms dimension rank - 1 - p, or for the inverse real transform the last one last. */
static int dim_of(const struct fft *q, int phase)
{
	if (q->kind == 3)
		return phase == q->nd - 1 ? q->rank - 1 : q->rank - 2 - phase;
	return q->rank - 1 - phase;
}

static void fft_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                    int64_t t0, int64_t t1, void *scratch)
{
	const struct fft *q = s->priv;
	const struct prog_view *in = &k->v[0], *out = &k->v[1];
	int r = q->rank, d = dim_of(q, phase);
	const struct line *l = q->line[r - 1 - d];
	bool first = phase == 0, final = phase == q->nd - 1;
	struct cx *x = scratch, *t = x + l->n + 1;
	char *raw = (char *)(t + line_scratch(l) + 1);
	int64_t n = l->n, half = n / 2 + 1, ix[LOOP_RANK], dim[LOOP_RANK];
	bool real_in = q->kind == 2 && d == r - 1, real_out = q->kind == 3 && d == r - 1;
	bool inverse = q->kind == 1 || q->kind == 3;
	/* from where, to where: views and base */
	const int64_t *is = first ? in->stride : q->mid ? q->midstride : out->stride;
	const int64_t *os = final || !q->mid ? out->stride : q->midstride;
	int ies = first ? dt_bytes(in->dtype) : q->mid ? 16 : dt_bytes(out->dtype), oes = final || !q->mid ? dt_bytes(out->dtype) : 16;
	const char *src = first ? view_at(k, ptr, 0) : q->mid ? ptr[2] : view_at(k, ptr, 1);
	char *dst = final || !q->mid ? view_at(k, ptr, 1) : ptr[2];
	kern_strip *load = first ? q->load : q->mid ? NULL : q->load_mid, *store = final || !q->mid ? q->store : NULL;
	/* lines are numbered over the operand's shape, or the result's once the last dimension has changed */
	const int64_t *shape = q->kind == 2 && !first ? out->dim : in->dim;
	for (int i = 0; i < r; i++)
		dim[i] = i == d ? 1 : shape[i];
	int64_t lines = q->count[phase];
	for (int64_t u = t0 * q->per_tile; u < MIN(t1 * q->per_tile, lines); u++) {
		index_of(r, dim, u, ix);
		int64_t len = real_out ? half : n;
		move_strided(ies, len, raw, ies, src + offset_of(r, is, ix) * ies, is[d] * ies);
		if (real_in) {
			double *v = (double *)(void *)t;
			if (load)
				load(n, v, raw, NULL, NULL);
			else
				memcpy(v, raw, (size_t)n * 8);
			for (int64_t i = 0; i < n; i++)
				x[i] = (struct cx){ v[i], 0 };
		} else if (load) {
			load(len, x, raw, NULL, NULL);
		} else {
			memcpy(x, raw, (size_t)len * 16);
		}
		if (real_out) {
			x[0].im = 0;
			if (n % 2 == 0)
				x[n / 2].im = 0;
			for (int64_t i = half; i < n; i++)
				x[i] = (struct cx){ x[n - i].re, -x[n - i].im };
		}
		if (inverse)
			for (int64_t i = 0; i < n; i++)
				x[i].im = -x[i].im;
		transform(l, x, t);
		if (inverse)
			for (int64_t i = 0; i < n; i++)
				x[i] = (struct cx){ x[i].re / (double)n, -x[i].im / (double)n };
		int64_t olen = real_in ? half : n;
		const char *from = (const char *)x;
		if (real_out) {
			double *v = (double *)(void *)t;
			for (int64_t i = 0; i < n; i++)
				v[i] = x[i].re;
			from = (const char *)v;
		}
		if (store) {
			store(olen, raw, from, NULL, NULL);
			from = raw;
		}
		move_strided(oes, olen, dst + offset_of(r, os, ix) * oes, os[d] * oes, from, oes);
	}
}

struct err *kern_make_fft(const struct prog_kern *k, struct kern_state *s)
{
	struct fft *q = ARENA_NEW(&s->a, struct fft, 1);
	const struct prog_view *in = &k->v[0], *out = &k->v[1];
	q->kind = (int)k->attr[0];
	q->nd = (int)k->attr[1];
	q->rank = in->rank;
	if (q->nd < 1 || q->nd > 3 || q->nd > q->rank || q->kind < 0 || q->kind > 3)
		return ERR(INVALID, "fft of kind %d over %d dimensions", q->kind, q->nd);
	enum dtype li = in->dtype, lo = out->dtype;
	enum dtype wi = dtype_info[li].cls == DT_COMPLEX ? DT_c128 : DT_f64, wo = dtype_info[lo].cls == DT_COMPLEX ? DT_c128 : DT_f64;
	if ((dtype_info[li].cls != DT_COMPLEX && q->kind != 2) || (dtype_info[lo].cls != DT_COMPLEX && q->kind != 3))
		return ERR(INVALID, "fft from '%s' to '%s'", dtype_info[li].name, dtype_info[lo].name);
	q->load = li == wi ? NULL : kern_elem(ELEM_convert, li, wi);
	q->store = lo == wo ? NULL : kern_elem(ELEM_convert, wo, lo);
	q->load_mid = lo == wo ? NULL : kern_elem(ELEM_convert, lo, wo);
	bool empty = !view_count(in) || !view_count(out);
	size_t need = 0;
	for (int i = 0; i < q->nd && !empty; i++) {
		int64_t n = k->attr[2 + q->nd - 1 - i];
		if (n < 1)
			return ERR(INVALID, "fft of length %lld", (long long)n);
		q->line[i] = line_make(&s->a, n);
		need = MAX(need, ((size_t)n + line_scratch(q->line[i]) + (size_t)n + 8) * 16);
	}
	q->mid = q->kind == 3 && q->nd > 1;
	int64_t st = 1;
	for (int d = q->rank; d-- > 0;) {
		q->midstride[d] = st;
		st *= in->dim[d];
	}
	s->shared = q->mid ? (size_t)st * 16 : 0;
	int64_t most = 0;
	for (int p = 0; p < q->nd; p++) {
		int d = dim_of(q, p);
		const int64_t *shape = q->kind == 2 && p ? out->dim : in->dim;
		q->count[p] = 1;
		for (int i = 0; i < q->rank; i++)
			q->count[p] *= i == d ? 1 : shape[i];
		most = MAX(most, q->count[p]);
	}
	q->per_tile = MAX(1, 4096 / MAX(1, k->attr[1 + q->nd]));
	s->phases = q->nd;
	s->tiles = empty ? 0 : (most + q->per_tile - 1) / q->per_tile;
	s->scratch = need + 64;
	s->priv = q;
	s->run = fft_run;
	return NULL;
}
