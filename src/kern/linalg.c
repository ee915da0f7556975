/* cholesky and triangular_solve, in double (complex double) whatever the operands' type. */
#include <complex.h>
#include <math.h>
#include <stdlib.h>

#include "impl.h"

#undef I
#undef complex
typedef double _Complex c128;

struct linalg {
	bool complex, lower, left, unit;
	int trans;
	enum dtype dt, wide;
	kern_strip *load, *store;
	int64_t n, m, rows;          /* matrix n x n; right-hand sides m; batches */
};

/* Dense [r][c] block of view v (its last two dimensions) at batch index row. */
static char *matrix_at(const struct prog_view *v, char *base, int64_t row)
{
	int64_t ix[LOOP_RANK];
	index_of(v->rank - 2, v->dim, row, ix);
	return base + offset_of(v->rank - 2, v->stride, ix) * dt_bytes(v->dtype);
}
static void read_matrix(const struct linalg *q, const struct prog_view *v, const char *p, bool transpose, char *out, char *raw)
{
	int r = v->rank, es = dt_bytes(v->dtype), ws = q->complex ? 16 : 8, a = transpose ? r - 1 : r - 2, b = transpose ? r - 2 : r - 1;
	int64_t nr = v->dim[a], nc = v->dim[b];
	for (int64_t i = 0; i < nr; i++) {
		move_strided(es, nc, raw, es, p + i * v->stride[a] * es, v->stride[b] * es);
		if (q->load)
			q->load(nc, out + i * nc * ws, raw, NULL, NULL);
		else
			memcpy(out + i * nc * ws, raw, (size_t)(nc * es));
	}
}
static void write_matrix(const struct linalg *q, const struct prog_view *v, char *p, bool transpose, const char *in, char *raw)
{
	int r = v->rank, es = dt_bytes(v->dtype), ws = q->complex ? 16 : 8, a = transpose ? r - 1 : r - 2, b = transpose ? r - 2 : r - 1;
	int64_t nr = v->dim[a], nc = v->dim[b];
	for (int64_t i = 0; i < nr; i++) {
		const char *row = in + i * nc * ws;
		if (q->store) {
			q->store(nc, raw, row, NULL, NULL);
			row = raw;
		}
		move_strided(es, nc, p + i * v->stride[a] * es, v->stride[b] * es, row, es);
	}
}

/* As many columns, or rows, go together: what is behind them is a product. */
enum { TOGETHER = 32, ACROSS = 64 };

/* Lower factor of a in place; the rest zero.  NaN everywhere if a is not positive definite.  room: n x TOGETHER, and n. */
static void cholesky_real(int64_t n, double *a, double *room)
{
	const struct kern_isa *isa = kern_isa_get();
	double *sum = room + n * TOGETHER;
	bool bad = false;
	for (int64_t at = 0; at < n && !bad; at += TOGETHER) {
		/* rows at .. of these columns, minus products of what is there already: of the columns before, then of these */
		int64_t cols = MIN(TOGETHER, n - at);
		for (int64_t k = 0; k < at; k++)
			for (int64_t j = 0; j < cols; j++)
				room[k * cols + j] = -a[(at + j) * n + k];
		isa->gemm_f64(n - at, cols, at, a + at * n, n, room, cols, a + at * n + at, n);
		for (int64_t j = at; j < at + cols && !bad; j++) {
			memset(sum, 0, sizeof *sum * (size_t)(n - j));
			if (j > at)
				isa->gemm_nt_f64(n - j, 1, j - at, a + j * n + at, n, a + j * n + at, n, sum, 1);
			double d = a[j * n + j] - sum[0];
			bad = !(d > 0);
			d = sqrt(d);
			a[j * n + j] = d;
			for (int64_t i = j + 1; i < n; i++)
				a[i * n + j] = (a[i * n + j] - sum[i - j]) / d;
		}
	}
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < n; j++)
			if (bad)
				a[i * n + j] = NAN;
			else if (j > i)
				a[i * n + j] = 0;
}
static void cholesky_complex(int64_t n, c128 *a)
{
	bool bad = false;
	for (int64_t j = 0; j < n && !bad; j++) {
		for (int64_t i = j; i < n; i++) {
			c128 s = a[i * n + j];
			for (int64_t k = 0; k < j; k++)
				s -= a[i * n + k] * conj(a[j * n + k]);
			a[i * n + j] = s;
		}
		double d = creal(a[j * n + j]);
		bad = !(d > 0);
		d = sqrt(d);
		a[j * n + j] = d;
		for (int64_t i = j + 1; i < n; i++)
			a[i * n + j] /= d;
	}
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < n; j++)
			if (bad)
				a[i * n + j] = __builtin_complex((double)NAN, (double)NAN);
			else if (j > i)
				a[i * n + j] = 0;
}

static void conjugate(int64_t n, char *x)
{
	for (int64_t i = 0; i < n; i++) {
		double im;
		memcpy(&im, x + i * 16 + 8, 8);
		im = -im;
		memcpy(x + i * 16 + 8, &im, 8);
	}
}

static void cholesky_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                         int64_t t0, int64_t t1, void *scratch)
{
	const struct linalg *q = s->priv;
	int64_t n = q->n;
	char *a = scratch, *raw = a + n * n * 16, *room = raw + n * 16;
	for (int64_t t = t0; t < t1; t++) {
		/* an upper factor is the lower one of the mirrored matrix, mirrored back */
		read_matrix(q, &k->v[0], matrix_at(&k->v[0], view_at(k, ptr, 0), t), !q->lower, a, raw);
		if (q->complex && !q->lower)
			conjugate(n * n, a);
		if (q->complex)
			cholesky_complex(n, (c128 *)(void *)a);
		else
			cholesky_real(n, (double *)(void *)a, (double *)(void *)room);
		if (q->complex && !q->lower)
			conjugate(n * n, a);
		write_matrix(q, &k->v[1], matrix_at(&k->v[1], view_at(k, ptr, 1), t), !q->lower, a, raw);
	}
}

static struct err *types(const struct prog_kern *k, struct linalg *q, const char *what)
{
	q->dt = k->v[0].dtype;
	int cls = dtype_info[q->dt].cls;
	if (cls != DT_FLOAT && cls != DT_COMPLEX)
		return ERR(UNIMPLEMENTED, "%s of '%s'", what, dtype_info[q->dt].name);
	q->complex = cls == DT_COMPLEX;
	q->wide = q->complex ? DT_c128 : DT_f64;
	q->load = q->dt == q->wide ? NULL : kern_elem(ELEM_convert, q->dt, q->wide);
	q->store = q->dt == q->wide ? NULL : kern_elem(ELEM_convert, q->wide, q->dt);
	return NULL;
}

struct err *kern_make_cholesky(const struct prog_kern *k, struct kern_state *s)
{
	struct linalg *q = ARENA_NEW(&s->a, struct linalg, 1);
	const struct prog_view *v = &k->v[0];
	TRY(types(k, q, "cholesky"));
	if (v->rank < 2 || v->dim[v->rank - 1] != v->dim[v->rank - 2])
		return ERR(INVALID, "cholesky of what is not square");
	q->lower = k->attr[0] != 0;
	q->n = v->dim[v->rank - 1];
	int64_t count = view_count(v);
	s->tiles = count ? count / (q->n * q->n) : 0;
	s->scratch = (size_t)(q->n * q->n + q->n) * 16 + (q->complex ? 0 : sizeof(double) * (size_t)(q->n * (TOGETHER + 1)));
	s->priv = q;
	s->run = cholesky_run;
	return NULL;
}

/* t x = b in place; t lower or upper, n x n, and lost; b is n x m.  room: n x ACROSS. */
static void solve_real(bool lower, bool unit, int64_t n, int64_t m, double *t, double *b, double *room)
{
	const struct kern_isa *isa = kern_isa_get();
	for (int64_t i = 0; i < n; i++)
		for (int64_t k = 0; k < n; k++)
			t[i * n + k] = i == k ? t[i * n + k] : -t[i * n + k];
	/* columns that lie together, whose lines stay in a cache, rows that go together, and these one by one */
	for (int64_t j0 = 0; j0 < m; j0 += ACROSS) {
		int64_t cols = MIN(ACROSS, m - j0);
		for (int64_t i = 0; i < n; i++)
			memcpy(room + i * cols, b + i * m + j0, sizeof *b * (size_t)cols);
		for (int64_t at = 0; at < n; at += TOGETHER) {
			int64_t rows = MIN(TOGETHER, n - at), i0 = lower ? at : n - at - rows, done = lower ? 0 : i0 + rows;
			isa->gemm_f64(rows, cols, at, t + i0 * n + done, n, room + done * cols, cols, room + i0 * cols, cols);
			for (int64_t r = 0; r < rows; r++) {
				int64_t i = lower ? i0 + r : i0 + rows - 1 - r, k0 = lower ? i0 : i + 1;
				double *row = room + i * cols;
				isa->gemm_f64(1, cols, r, t + i * n + k0, n, room + k0 * cols, cols, row, cols);
				for (int64_t j = 0; j < cols && !unit; j++)
					row[j] /= t[i * n + i];
			}
		}
		for (int64_t i = 0; i < n; i++)
			memcpy(b + i * m + j0, room + i * cols, sizeof *b * (size_t)cols);
	}
}
static void solve_complex(bool lower, bool unit, int64_t n, int64_t m, const c128 *t, c128 *b)
{
	for (int64_t r = 0; r < n; r++) {
		int64_t i = lower ? r : n - 1 - r, k0 = lower ? 0 : i + 1;
		for (int64_t k = 0; k < r; k++)
			for (int64_t j = 0; j < m; j++)
				b[i * m + j] -= t[i * n + k0 + k] * b[(k0 + k) * m + j];
		if (!unit)
			for (int64_t j = 0; j < m; j++)
				b[i * m + j] /= t[i * n + i];
	}
}

static void solve_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                      int64_t t0, int64_t t1, void *scratch)
{
	const struct linalg *q = s->priv;
	int64_t n = q->n, m = q->m;
	char *a = scratch, *b = a + n * n * 16, *raw = b + n * m * 16, *room = raw + MAX(n, m) * 16;
	for (int64_t t = t0; t < t1; t++) {
		/* x op(a) = b is op(a)^T x^T = b^T */
		bool flip = (q->trans != 1) != !q->left;
		read_matrix(q, &k->v[0], matrix_at(&k->v[0], view_at(k, ptr, 0), t), flip, a, raw);
		if (q->complex && q->trans == 3)
			conjugate(n * n, a);
		read_matrix(q, &k->v[1], matrix_at(&k->v[1], view_at(k, ptr, 1), t), !q->left, b, raw);
		if (q->complex)
			solve_complex(q->lower != flip, q->unit, n, m, (const c128 *)(void *)a, (c128 *)(void *)b);
		else
			solve_real(q->lower != flip, q->unit, n, m, (double *)(void *)a, (double *)(void *)b, (double *)(void *)room);
		write_matrix(q, &k->v[2], matrix_at(&k->v[2], view_at(k, ptr, 2), t), !q->left, b, raw);
	}
}

struct err *kern_make_triangular_solve(const struct prog_kern *k, struct kern_state *s)
{
	struct linalg *q = ARENA_NEW(&s->a, struct linalg, 1);
	const struct prog_view *v = &k->v[0], *b = &k->v[1];
	TRY(types(k, q, "triangular_solve"));
	if (v->rank < 2 || b->rank != v->rank || v->dim[v->rank - 1] != v->dim[v->rank - 2] || b->dtype != v->dtype)
		return ERR(INVALID, "triangular_solve with a matrix that is not square");
	q->left = k->attr[0] != 0;
	q->lower = k->attr[1] != 0;
	q->unit = k->attr[2] != 0;
	q->trans = (int)k->attr[3];
	q->n = v->dim[v->rank - 1];
	q->m = q->left ? b->dim[b->rank - 1] : b->dim[b->rank - 2];
	int64_t count = view_count(b);
	s->tiles = count ? count / (q->n * q->m) : 0;
	s->scratch = (size_t)(q->n * q->n + q->n * q->m + MAX(q->n, q->m)) * 16 + (q->complex ? 0 : sizeof(double) * (size_t)(q->n * MIN(q->m, ACROSS)));
	s->priv = q;
	s->run = solve_run;
	return NULL;
}
