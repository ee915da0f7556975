/* fft, in the precision of the operand.
 *
 * Lengths whose prime factors are at most RADIX_MOST: Stockham's self-sorting form, one pass per factor.  Others:
 * Bluestein's chirp as a convolution of a length of few factors ("A linear filtering approach to the computation of discrete
 * Fourier transform", 1970).  Several lines go side by side, element for element one cache line, so every pass is
 * vector code; lines that are long or few are cut into a matrix whose columns and rows are such lines (Bailey, "FFTs
 * in external or hierarchical memory", 1990), and a phase each shares them among threads.  Real lines of even
 * length are complex ones of half the length.  Several dimensions: one after the other. */
#include <math.h>
#include <stdlib.h>

#include "impl.h"

enum { SIDE = 64, LONG = 8192, FEW_LONG = 1024, MOST_BYTES = 32 << 20 };
struct cx { double re, im; };

struct line {
	int64_t n;
	int wide, es;                /* double?  bytes of a complex number */
	int nfac, fac[64];
	void *w;                     /* e^(-2 pi i k / n), k < n */
	struct line *inner;          /* Bluestein: of length inner->n */
	void *chirp, *kernel;        /* kernel: transformed */
	struct line *col, *row;      /* long: n = col->n * row->n */
	void *turn;                  /* long: roots by [row of the matrix after its columns' transform][column] */
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

/* Many roots of one n: for results of f32 products of two from tables, whose error does not reach them. */
enum { ROOTS = 4096 };
struct roots { int64_t n, near; struct cx *of; };    /* of: e^(-2 pi i k / n) of k < near, then of the multiples of near; or NULL */
static struct roots roots_make(int64_t n, bool wide)
{
	struct roots r = { .n = n };
	if (wide || n < ROOTS)
		return r;
	for (r.near = 64; r.near * r.near < n;)
		r.near *= 2;
	r.of = mem_alloc(sizeof *r.of * (size_t)(r.near + n / r.near + 1));
	for (int64_t k = 0; k < r.near; k++)
		r.of[k] = root(k, n);
	for (int64_t k = 0; k <= n / r.near; k++)
		r.of[r.near + k] = root(k * r.near, n);
	return r;
}

static struct cx roots_at(const struct roots *r, int64_t k)
{
	if (!r->of)
		return root(k, r->n);
	struct cx a = r->of[k & (r->near - 1)], b = r->of[r->near + k / r->near];
	return (struct cx){ a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re };
}

static void put(const struct line *l, void *to, int64_t k, struct cx v)
{
	if (l->wide)
		((struct cx *)to)[k] = v;
	else
		((float *)to)[2 * k] = (float)v.re, ((float *)to)[2 * k + 1] = (float)v.im;
}

static void *transform(const struct line *l, void *x, void *t, int64_t lanes);

/* The least of 2^i times 1, 3, 5, 9 or 15 that is at least n. */
static int64_t smooth(int64_t n)
{
	static const int odd[] = { 1, 3, 5, 9, 15 };
	int64_t best = INT64_MAX;
	for (int i = 0; i < (int)NELEM(odd); i++) {
		int64_t p = odd[i];
		while (p < n)
			p *= 2;
		best = MIN(best, p);
	}
	return best;
}

static bool line_cut(struct arena *a, struct line *l);
static struct line *line_make(struct arena *a, int64_t n, bool wide)
{
	struct line *l = ARENA_NEW(a, struct line, 1);
	l->n = n;
	l->wide = wide;
	l->es = wide ? 16 : 8;
	int64_t m = n;
	while (m % 4 == 0) {
		l->fac[l->nfac++] = 4;
		m /= 4;
	}
	for (int f = 2; f <= RADIX_MOST && m > 1; f++)
		while (m % f == 0) {
			l->fac[l->nfac++] = f;
			m /= f;
		}
	if (m > 1) {
		int64_t p = smooth(2 * n - 1);
		l->inner = line_make(a, p, wide);
		line_cut(a, l->inner);
		l->chirp = arena_alloc(a, (size_t)(n * l->es));
		l->kernel = arena_alloc(a, (size_t)(p * l->es));
		void *x = mem_alloc((size_t)(p * l->es)), *t = mem_alloc((size_t)(p * l->es));
		memset(x, 0, (size_t)(p * l->es));
		struct roots r = roots_make(2 * n, wide);
		for (int64_t k = 0, sq = 0; k < n; k++) {      /* sq: k^2 modulo 2 n */
			struct cx c = roots_at(&r, sq), d = { c.re, -c.im };
			sq += 2 * k + 1;
			sq -= sq >= 2 * n ? 2 * n : 0;
			put(l, l->chirp, k, c);
			put(l, x, k, d);
			if (k)
				put(l, x, p - k, d);
		}
		memcpy(l->kernel, transform(l->inner, x, t, 1), (size_t)(p * l->es));
		free(r.of);
		free(x);
		free(t);
		return l;
	}
	struct roots r = roots_make(n, wide);
	l->w = arena_alloc(a, (size_t)((n + 1) * l->es));
	for (int64_t k = 0; k < n; k++)
		put(l, l->w, k, roots_at(&r, k));
	free(r.of);
	return l;
}

/* Cut into a matrix about as high as wide; false: the factors do not allow it. */
static bool line_cut(struct arena *a, struct line *l)
{
	int64_t n1 = 1;
	for (int i = l->nfac; i-- > 0;)
		if (n1 * l->fac[i] * n1 * l->fac[i] <= l->n)
			n1 *= l->fac[i];
	if (l->inner || n1 < 16)
		return false;
	if (l->col)
		return true;
	int64_t n2 = l->n / n1;
	l->col = line_make(a, n1, l->wide);
	l->row = line_make(a, n2, l->wide);
	l->turn = arena_alloc(a, (size_t)(l->n * l->es));
	for (int64_t i = 0; i < n1; i++)
		for (int64_t j = 0; j < n2; j++)
			memcpy((char *)l->turn + (i * n2 + j) * l->es, (char *)l->w + i * j % l->n * l->es, (size_t)l->es);
	return true;
}

/* Elements of scratch a lane needs in transform. */
static int64_t line_scratch(const struct line *l)
{
	return l->inner ? l->inner->n + line_scratch(l->inner) : l->n;
}

/* x[k][j] = element k of line j, es bytes; ls, ks: bytes from line to line, element to element. */
static void lines_in(int es, int64_t n, int64_t lanes, const char *src, int64_t ls, int64_t ks, char *x)
{
	if (lanes == 1) {
		move_strided(es, n, x, es, src, ks);
	} else if (ls == es) {
		for (int64_t k = 0; k < n; k++)
			memcpy(x + k * lanes * es, src + k * ks, (size_t)(lanes * es));
	} else if (ks == es && es <= 8 && ls % es == 0 && (uintptr_t)src % (unsigned)es == 0) {
		kern_isa_get()->transpose[es == 4 ? 2 : 3](lanes, n, src, ls / es, x, lanes);
	} else {
		for (int64_t j = 0; j < lanes; j++)
			move_strided(es, n, x + j * es, lanes * es, src + j * ls, ks);
	}
}

/* All factors, from x to t and back; where the result is. */
static void *passes(const struct line *l, void *x, void *t, int64_t lanes,
                    void (*pass)(int r, int64_t done, int64_t m, int64_t lanes, const void *a, void *o, const void *w))
{
	int64_t done = 1;            /* product of the factors so far: length of finished transforms */
	for (int f = 0; f < l->nfac; f++) {
		int r = l->fac[f];
		pass(r, done, l->n / done / r, lanes, x, t, l->w);
		done *= r;
		void *s = x;
		x = t;
		t = s;
	}
	return x;
}

/* One line that is cut: its columns side by side, and then its rows. */
static void *as_matrix(const struct line *l, void *x, void *t)
{
	int64_t n1 = l->col->n, n2 = l->row->n;
	char *y = transform(l->col, x, t, n2), *z = y == x ? t : x;
	kern_isa_get()->fft_weigh[l->wide](n1, n2, y, l->turn, n2);
	lines_in(l->es, n2, n1, y, n2 * l->es, l->es, z);
	return transform(l->row, z, y, n1);
}

/* Forward transform of x [n][lanes]; the result is there or at the start of t, which has lanes times line_scratch. */
static void *transform(const struct line *l, void *x, void *t, int64_t lanes)
{
	const struct kern_isa *isa = kern_isa_get();
	int64_t n = l->n;
	if (l->inner) {
		int64_t p = l->inner->n;
		size_t es = (size_t)(l->es * lanes);
		char *y = t, *rest = y + (size_t)p * es;
		isa->fft_spin[l->wide](n, lanes, x, l->chirp, 1, false);
		memcpy(y, x, (size_t)n * es);
		memset(y + (size_t)n * es, 0, (size_t)(p - n) * es);
		char *z = transform(l->inner, y, rest, lanes);
		isa->fft_spin[l->wide](p, lanes, z, l->kernel, 1, true);        /* inverse by conjugation */
		z = transform(l->inner, z, z == y ? rest : y, lanes);
		isa->fft_spin[l->wide](n, lanes, z, NULL, 1 / (double)p, true);
		isa->fft_spin[l->wide](n, lanes, z, l->chirp, 1, false);
		memcpy(x, z, (size_t)n * es);
		return x;
	}
	return lanes == 1 && l->col ? as_matrix(l, x, t) : passes(l, x, t, lanes, isa->fft_pass[l->wide]);
}

/* --- lines in memory ------------------------------------------------------------------ */

static void lines_out(int es, int64_t n, int64_t lanes, char *dst, int64_t ls, int64_t ks, const char *x)
{
	if (lanes == 1) {
		move_strided(es, n, dst, ks, x, es);
	} else if (ls == es) {
		for (int64_t k = 0; k < n; k++)
			memcpy(dst + k * ks, x + k * lanes * es, (size_t)(lanes * es));
	} else if (ks == es && es <= 8 && ls % es == 0 && (uintptr_t)dst % (unsigned)es == 0) {
		kern_isa_get()->transpose[es == 4 ? 2 : 3](n, lanes, x, lanes, dst, ls / es);
	} else {
		for (int64_t j = 0; j < lanes; j++)
			move_strided(es, n, dst + j * ls, ks, x + j * es, lanes * es);
	}
}

/* --- the kernel ---------------------------------------------------------------------- */

enum part { WHOLE, COLUMNS, ROWS };
struct stage {
	int d;                       /* dimension */
	enum part part;
	const struct line *l;        /* of real lines of even length: of half the length */
	const void *w;               /* real lines of even length: roots of the length */
	int across;                  /* lines side by side differ in this dimension, -1: there is one */
	int64_t dim[LOOP_RANK];      /* of the lines; 1 at d */
	int64_t lines, groups, lanes;   /* lanes: most of a group */
	bool first, last;
};

struct fft {
	int kind, rank, nstage;
	struct stage stage[8];
	bool mid;                    /* inverse real, several dimensions: complex values between stages, shaped like the operand */
	size_t mid_bytes, need;
	int64_t midstride[LOOP_RANK];
};

static void real_in(const struct stage *g, int64_t n, int64_t lanes, const char *src, int64_t ls, int64_t ks, char *x, char *t, char **z)
{
	const struct line *l = g->l;
	int es = l->es, rs = es / 2;
	if (g->w) {
		if (ks == rs)
			lines_in(es, n / 2, lanes, src, ls, es, x);
		else
			for (int64_t p = 0; p < 2; p++)
				for (int64_t j = 0; j < lanes; j++)
					move_strided(rs, n / 2, x + j * es + p * rs, lanes * es, src + j * ls + p * ks, 2 * ks);
		char *y = transform(l, x, t, lanes);
		*z = y == x ? t : x;
		kern_isa_get()->fft_pairs[l->wide](n / 2, lanes, y, *z, g->w, false);
		return;
	}
	lines_in(rs, n, lanes, src, ls, ks, t);
	kern_isa_get()->fft_widen[l->wide](n * lanes, t, x);
	*z = l->inner ? transform(l, x, t, lanes) : passes(l, x, t, lanes, kern_isa_get()->fft_half[l->wide]);
}

static void real_out(const struct stage *g, int64_t n, int64_t lanes, const char *src, int64_t ls, int64_t ks, char *dst, int64_t dls,
                     int64_t dks, char *x, char *t)
{
	const struct kern_isa *isa = kern_isa_get();
	const struct line *l = g->l;
	int es = l->es, rs = es / 2;
	int64_t half = n / 2 + 1;
	lines_in(es, half, lanes, src, ls, ks, x);
	for (int64_t j = 0; j < lanes; j++) {        /* what must be real is */
		memset(x + j * es + rs, 0, (size_t)rs);
		if (n % 2 == 0)
			memset(x + ((half - 1) * lanes + j) * es + rs, 0, (size_t)rs);
	}
	if (g->w) {
		isa->fft_pairs[l->wide](n / 2, lanes, x, t, g->w, true);
		char *y = t, *z = x;
		if (l->inner) {                  /* its scratch is beyond x */
			memcpy(x, t, (size_t)(n / 2 * lanes * es));
			y = x;
			z = t;
		}
		y = transform(l, y, z, lanes);
		isa->fft_spin[l->wide](n / 2, lanes, y, NULL, 2 / (double)n, true);
		if (dks == rs)
			lines_out(es, n / 2, lanes, dst, dls, es, y);
		else
			for (int64_t p = 0; p < 2; p++)
				for (int64_t j = 0; j < lanes; j++)
					move_strided(rs, n / 2, dst + j * dls + p * dks, 2 * dks, y + j * es + p * rs, lanes * es);
		return;
	}
	isa->fft_spin[l->wide](half, lanes, x, NULL, 1, true);       /* inverse by conjugation; the rest mirrors */
	for (int64_t i = half; i < n; i++)
		memcpy(x + i * lanes * es, x + (n - i) * lanes * es, (size_t)(lanes * es));
	isa->fft_spin[l->wide](n - half, lanes, x + half * lanes * es, NULL, 1, true);
	char *y = transform(l, x, t, lanes);
	isa->fft_spin[l->wide](n, lanes, y, NULL, 1 / (double)n, false);
	for (int64_t j = 0; j < lanes; j++)
		move_strided(rs, n, dst + j * dls, dks, y + j * es, lanes * es);
}

static void fft_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                    int64_t t0, int64_t t1, void *scratch)
{
	const struct fft *q = s->priv;
	const struct stage *g = &q->stage[phase];
	const struct prog_view *in = &k->v[0], *out = &k->v[1];
	const struct kern_isa *isa = kern_isa_get();
	const struct line *l = g->l;
	int r = q->rank, d = g->d, es = l->es;
	bool inverse = q->kind == 1 || q->kind == 3, from_real = q->kind == 2 && g->first, to_real = q->kind == 3 && g->last;
	char *shared = ptr[2];
	int64_t longest = g->part == COLUMNS ? l->col->n : g->part == ROWS ? l->row->n : l->n + 1;
	char *x = scratch, *t = x + (((size_t)(longest * g->lanes * es) + 63) & ~(size_t)63);
	int64_t ix[LOOP_RANK], units = g->lines * g->groups;
	/* from where, to where; a matrix lies between its two stages */
	bool from_mid = q->mid && !g->first, to_mid = q->mid && !g->last;
	const struct prog_view *sv = g->first ? in : out, *dv = out;
	const int64_t *is = from_mid ? q->midstride : sv->stride, *os = to_mid ? q->midstride : dv->stride;
	const char *src = from_mid ? shared : view_at(k, ptr, g->first ? 0 : 1);
	char *dst = to_mid ? shared : view_at(k, ptr, 1), *matrix = shared + q->mid_bytes;
	int ies = from_real ? es / 2 : es, oes = to_real ? es / 2 : es;
	int64_t n = from_real ? in->dim[d] : to_real ? out->dim[d] : l->n;
	for (int64_t u = units * t0 / s->tiles; u < units * t1 / s->tiles; u++) {
		int64_t line = u / g->groups, i0 = u % g->groups * g->lanes;
		index_of(r, g->dim, line, ix);
		const char *a = src + offset_of(r, is, ix) * ies;
		char *b = dst + offset_of(r, os, ix) * oes, *y;
		int64_t ik = is[d] * ies, ok = os[d] * oes;
		if (g->part == COLUMNS) {
			int64_t n1 = l->col->n, n2 = l->row->n, lanes = MIN(g->lanes, n2 - i0);
			lines_in(es, n1, lanes, a + i0 * ik, ik, n2 * ik, x);
			if (inverse)
				isa->fft_spin[l->wide](n1, lanes, x, NULL, 1, true);
			y = transform(l->col, x, t, lanes);
			isa->fft_weigh[l->wide](n1, lanes, y, (char *)l->turn + i0 * es, n2);
			lines_out(es, n1, lanes, matrix + (line * n + i0) * es, es, n2 * es, y);
			continue;
		}
		if (g->part == ROWS) {
			int64_t n1 = l->col->n, n2 = l->row->n, lanes = MIN(g->lanes, n1 - i0);
			lines_in(es, n2, lanes, matrix + (line * n + i0 * n2) * es, n2 * es, es, x);
			y = transform(l->row, x, t, lanes);
			if (inverse)
				isa->fft_spin[l->wide](n2, lanes, y, NULL, 1 / (double)n, true);
			lines_out(es, n2, lanes, b + i0 * ok, ok, n1 * ok, y);
			continue;
		}
		int64_t il = 0, ol = 0, lanes = 1;
		if (g->across >= 0) {
			il = is[g->across] * ies;
			ol = os[g->across] * oes;
			lanes = MIN(g->lanes, (q->kind == 2 && !g->first ? out : in)->dim[g->across] - i0);
			a += i0 * il;
			b += i0 * ol;
		}
		if (to_real) {
			real_out(g, n, lanes, a, il, ik, b, ol, ok, x, t);
			continue;
		}
		if (from_real) {
			real_in(g, n, lanes, a, il, ik, x, t, &y);
			lines_out(es, n / 2 + 1, lanes, b, ol, ok, y);
			continue;
		}
		lines_in(es, n, lanes, a, il, ik, x);
		if (inverse)
			isa->fft_spin[l->wide](n, lanes, x, NULL, 1, true);
		y = transform(l, x, t, lanes);
		if (inverse)
			isa->fft_spin[l->wide](n, lanes, y, NULL, 1 / (double)n, true);
		lines_out(es, n, lanes, b, ol, ok, y);
	}
}

struct err *kern_make_fft(const struct prog_kern *k, struct kern_state *s)
{
	struct fft *q = ARENA_NEW(&s->a, struct fft, 1);
	const struct prog_view *in = &k->v[0], *out = &k->v[1];
	int nd = k->nattr >= 2 ? (int)k->attr[1] : 0;
	q->rank = in->rank;
	if (nd < 1 || nd > 3 || nd > q->rank || k->nattr < 2 + (uint32_t)nd || k->attr[0] < 0 || k->attr[0] > 3)
		return ERR(INVALID, "fft over %d dimensions", nd);
	q->kind = (int)k->attr[0];
	enum dtype c = dtype_info[in->dtype].cls == DT_COMPLEX ? in->dtype : out->dtype;
	bool wide = c == DT_c128;
	enum dtype f = wide ? DT_f64 : DT_f32;
	if ((c != DT_c64 && !wide) || in->dtype != (q->kind == 2 ? f : c) || out->dtype != (q->kind == 3 ? f : c))
		return ERR(INVALID, "fft from '%s' to '%s'", dtype_info[in->dtype].name, dtype_info[out->dtype].name);
	bool empty = !view_count(in) || !view_count(out);
	int es = wide ? 16 : 8;
	int64_t most = 0, count = 1;
	size_t matrix = 0;
	for (int d = q->rank; d-- > 0;) {
		q->midstride[d] = count;
		count *= in->dim[d];
	}
	for (int i = 0; i < nd && !empty; i++) {
		/* the last dimension first; for the inverse real transform last */
		int d = q->kind == 3 ? i == nd - 1 ? q->rank - 1 : q->rank - 2 - i : q->rank - 1 - i;
		int64_t n = k->attr[2 + d - (q->rank - nd)];
		if (n < 1)
			return ERR(INVALID, "fft of length %lld", (long long)n);
		struct stage g = { .d = d, .across = -1, .lines = 1, .groups = 1, .first = i == 0, .last = i == nd - 1 };
		bool real = (q->kind == 2 && g.first) || (q->kind == 3 && g.last);
		const struct prog_view *shape = q->kind == 2 && i ? out : in;
		int64_t all = 1, lanes = SIDE / es;
		for (int j = 0; j < q->rank; j++) {
			g.dim[j] = j == d ? 1 : shape->dim[j];
			all *= g.dim[j];
			if (g.dim[j] > 1 && (g.across < 0 || g.dim[j] >= lanes || g.dim[j] > g.dim[g.across]))
				g.across = j;
		}
		struct line *l = line_make(&s->a, real && n % 2 == 0 ? n / 2 : n, wide);
		g.l = l;
		if (real && n % 2 == 0) {
			char *w = arena_alloc(&s->a, (size_t)((n / 2 + 1) * es));
			struct roots r = roots_make(n, wide);
			for (int64_t j = 0; j <= n / 2; j++)
				put(l, w, j, roots_at(&r, j));
			free(r.of);
			g.w = w;
		}
		bool cut = !real && (n > LONG || (n >= FEW_LONG && all < lanes)) && line_cut(&s->a, l);
		if (cut) {
			matrix = MAX(matrix, (size_t)(all * n * es));
			g.across = -1;
			g.lines = all;
			g.lanes = lanes = n > LONG ? 4 * lanes : lanes;      /* each element in a page of its own */
			for (int part = COLUMNS; part <= ROWS; part++) {
				const struct line *sub = part == COLUMNS ? l->col : l->row, *other = part == COLUMNS ? l->row : l->col;
				g.part = (enum part)part;
				g.groups = (other->n + lanes - 1) / lanes;
				g.first = i == 0 && part == COLUMNS;
				g.last = i == nd - 1 && part == ROWS;
				q->stage[q->nstage++] = g;
				most = MAX(most, g.lines * g.groups);
				q->need = MAX(q->need, (size_t)((sub->n + line_scratch(sub)) * lanes * es));
			}
			continue;
		}
		int64_t each = (n + 1 + MAX(n, line_scratch(l)) + 2) * es;
		if (g.across >= 0 && n >= FEW_LONG / 4 && in->stride[d] * es >= 4096)
			lanes *= 4;
		g.lanes = MAX(1, MIN(lanes, MOST_BYTES / each));
		if (g.across >= 0) {
			int64_t e = g.dim[g.across];
			g.groups = (e + g.lanes - 1) / g.lanes;
			g.lines = all / e;
			g.dim[g.across] = 1;
		}
		g.lanes = g.across >= 0 ? g.lanes : 1;
		if (g.lanes == 1)
			line_cut(&s->a, l);
		q->stage[q->nstage++] = g;
		most = MAX(most, g.lines * g.groups);
		q->need = MAX(q->need, (size_t)(each * g.lanes));
	}
	q->mid = q->kind == 3 && nd > 1;
	q->mid_bytes = q->mid ? ((size_t)(count * es) + 63) & ~(size_t)63 : 0;
	s->shared = q->mid_bytes + matrix;
	s->phases = MAX(1, q->nstage);
	s->tiles = empty ? 0 : MIN(most, 256);
	s->scratch = q->need + 192;
	s->priv = q;
	s->run = fft_run;
	return NULL;
}
