/* Whole arrays, their shards, and the comparison with expected results. */
#include "tool.h"

#undef complex
#include <math.h>
#include <stdlib.h>

#include "../spmd/spmd.h"

static void array_of(const struct ir_type_info *t, int ndev, struct array *a)
{
	*a = (struct array){.dtype = (enum dtype)t->dtype, .rank = t->rank, .bytes = (size_t)t->bytes, .local_bytes = (size_t)t->bytes};
	a->start = mem_alloc(sizeof *a->start * (size_t)ndev * (size_t)MAX(t->rank, 1));
	for (int d = 0; d < t->rank; d++)
		a->dim[d] = a->local[d] = t->dim[d];
}

void arrays_of(const struct ir_module *m, int ndev, struct array **arg, int *narg, struct array **res, int *nres)
{
	const struct ir_fn *fn = ir_main(m);
	*narg = (int)fn->nparam;
	*nres = (int)fn->result.n;
	*arg = mem_alloc(sizeof **arg * (size_t)*narg);
	*res = mem_alloc(sizeof **res * (size_t)*nres);
	for (int i = 0; i < *narg; i++)
		array_of(ir_vtype(m, fn, (ir_val)i + 1), ndev, &(*arg)[i]);
	for (int i = 0; i < *nres; i++)
		array_of(ir_vtype(m, fn, fn->result.p[i]), ndev, &(*res)[i]);
}

static struct err *place(const struct ir_module *m, int ndev, const struct ir_arg *by, struct array *a, int n, const char *what)
{
	for (int i = 0; i < n; i++) {
		struct array *x = &a[i];
		for (int pos = 0; pos < ndev && by && by[i].shard; pos++)
			if (!spmd_shard_box(m, by[i].shard, pos, x->rank, x->dim, x->start + pos * x->rank, x->local))
				return ERR(UNIMPLEMENTED, "%s %d does not divide evenly over %d devices", what, i, ndev);
		x->local_bytes = dtype_info[x->dtype].bytes;
		for (int d = 0; d < x->rank; d++)
			x->local_bytes *= (size_t)x->local[d];
	}
	return NULL;
}

struct err *arrays_place(const struct ir_module *m, int ndev, struct array *arg, int narg, struct array *res, int nres)
{
	TRY(place(m, ndev, m->arg, arg, narg, "argument"));
	return place(m, ndev, m->res, res, nres, "result");
}

void arrays_free(struct array *a, int n)
{
	for (int i = 0; a && i < n; i++) {
		free(a[i].start);
		free(a[i].p);
	}
	free(a);
}

/* Walk the rows of a box: for each, its place in the whole array, in the box, and its length, in elements. */
struct rows { const struct array *a; int pos; int64_t at[32], n, left; };

static struct rows rows_of(const struct array *a, int pos)
{
	struct rows r = {.a = a, .pos = pos, .n = a->rank ? a->local[a->rank - 1] : 1, .left = 1};
	for (int d = 0; d + 1 < a->rank; d++)
		r.left *= a->local[d];
	if (!r.n)
		r.left = 0;
	return r;
}

static int64_t row_next(struct rows *r)
{
	const struct array *a = r->a;
	int64_t off = 0;
	for (int d = 0; d < a->rank; d++)
		off = off * a->dim[d] + a->start[r->pos * a->rank + d] + (d + 1 < a->rank ? r->at[d] : 0);
	for (int d = a->rank - 2; d >= 0 && ++r->at[d] == a->local[d]; d--)
		r->at[d] = 0;
	r->left--;
	return off;
}

void array_cut(const struct array *a, int pos, void *out)
{
	size_t item = dtype_info[a->dtype].bytes;
	struct rows r = rows_of(a, pos);
	for (char *o = out; r.left; o += (size_t)r.n * item)
		memcpy(o, a->p + (size_t)row_next(&r) * item, (size_t)r.n * item);
}

void array_join(struct array *a, int pos, const void *in, uint8_t *seen, bool *differs)
{
	size_t item = dtype_info[a->dtype].bytes;
	struct rows r = rows_of(a, pos);
	for (const char *i = in; r.left; i += (size_t)r.n * item) {
		int64_t at = row_next(&r);
		if (r.n && seen[at])
			*differs |= memcmp(a->p + (size_t)at * item, i, (size_t)r.n * item) != 0;
		memcpy(a->p + (size_t)at * item, i, (size_t)r.n * item);
		memset(seen + at, 1, (size_t)r.n);
	}
}

struct err *array_load(struct array *a, const struct npz *z, const char *name)
{
	const struct npy *y = npz_get(z, name);
	if (!y)
		return ERR(NOT_FOUND, "the inputs have no '%s': numpy.savez(file, in0=.., in1=..) names them so", name);
	bool fits = y->rank == a->rank && y->item == dtype_info[a->dtype].bytes;
	for (int d = 0; fits && d < a->rank; d++)
		fits = y->dim[d] == a->dim[d];
	if (!fits) {
		struct str s = {0};
		for (int d = 0; d < a->rank; d++)
			str_addf(&s, "%s%ld", d ? "," : "", (long)a->dim[d]);
		struct err *e = ERR(INVALID, "'%s' of the inputs does not fit: the program wants %s[%s]", name, dtype_info[a->dtype].name, s.p ? s.p : "");
		str_free(&s);
		return e;
	}
	a->p = mem_alloc(a->bytes);
	if (a->bytes)
		memcpy(a->p, y->p, a->bytes);
	return NULL;
}

/* --- elements ---------------------------------------------------------------- */

static double real_at(enum dtype dt, const void *p, int64_t i) { return dtype_real(dt, (const uint8_t *)p + i * dtype_info[dt].bytes); }

/* Part 0 real, 1 imaginary. */
static double part_at(enum dtype dt, const void *p, int64_t i, int part)
{
	if (dtype_info[dt].cls != DT_COMPLEX)
		return part ? 0 : real_at(dt, p, i);
	enum dtype half = dt == DT_c64 ? DT_f32 : DT_f64;
	return real_at(half, p, 2 * i + part);
}

static int64_t count_of(const struct array *a)
{
	int64_t n = 1;
	for (int d = 0; d < a->rank; d++)
		n *= a->dim[d];
	return n;
}

void array_make_up(struct array *a, uint64_t seed)
{
	int item = dtype_info[a->dtype].bytes;
	int64_t n = count_of(a) * (dtype_info[a->dtype].cls == DT_COMPLEX ? 2 : 1);
	enum dtype dt = a->dtype == DT_c64 ? DT_f32 : a->dtype == DT_c128 ? DT_f64 : a->dtype;
	item = dtype_info[dt].bytes;
	a->p = mem_alloc(a->bytes);
	uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
	for (int64_t i = 0; i < n; i++) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		double u = (double)(x >> 11) * 0x1p-52 - 1;   /* in [-1, 1) */
		float f = (float)u;
		uint16_t h = dt == DT_bf16 ? f32_to_bf16(f) : f32_to_f16(f);
		int64_t k = (int64_t)(x >> 60);
		const void *src = dtype_info[dt].cls != DT_FLOAT ? (const void *)&k : dt == DT_f64 ? (const void *)&u : dt == DT_f32 ? (const void *)&f : (const void *)&h;
		uint8_t b = item == 1 && dtype_info[dt].cls == DT_FLOAT ? f32_to_f8(dt, f) : (uint8_t)(k & (dt == DT_pred ? 1 : dtype_info[dt].bits < 8 ? 1 : 15));
		memcpy(a->p + i * item, item == 1 ? (const void *)&b : src, (size_t)item);
	}
}

void array_print(FILE *f, const char *name, const struct array *a)
{
	int64_t n = count_of(a);
	fprintf(f, "  %-6s %s[", name, dtype_info[a->dtype].name);
	for (int d = 0; d < a->rank; d++)
		fprintf(f, "%s%ld", d ? "," : "", (long)a->dim[d]);
	fprintf(f, "] ");
	bool complex = dtype_info[a->dtype].cls == DT_COMPLEX;
	double lo = INFINITY, hi = -INFINITY, sum = 0;
	int64_t nan = 0;
	for (int64_t i = 0; i < n; i++) {
		double v = part_at(a->dtype, a->p, i, 0);
		if (isnan(v)) {
			nan++;
			continue;
		}
		lo = fmin(lo, v);
		hi = fmax(hi, v);
		sum += v;
	}
	for (int64_t i = 0; i < MIN(n, 5); i++) {
		fprintf(f, " %.6g", part_at(a->dtype, a->p, i, 0));
		if (complex)
			fprintf(f, "%+.6gi", part_at(a->dtype, a->p, i, 1));
	}
	if (n > 5)
		fprintf(f, " ..  in [%.4g, %.4g], mean %.4g", lo, hi, sum / (double)(n - nan));
	if (nan)
		fprintf(f, "  %ld NaN", (long)nan);
	fprintf(f, "\n");
}

/* --- comparison --------------------------------------------------------------- */

/* Of re + i im.  hypot has a version of glibc 2.35 where that is what it is built with, and runs with no older one. */
static double length_of(double re, double im)
{
	double most = fmax(fabs(re), fabs(im)), least = fmin(fabs(re), fabs(im));

	if (isnan(re) || isnan(im))
		return NAN;
	return most == 0 || isinf(most) ? most : most * sqrt(1 + least / most * (least / most));
}

/* Largest difference over the largest finite expected value; infinite where NaN or infinity differ. */
static double error_of(enum dtype gt, const void *got, enum dtype wt, const void *want, int64_t n, double *size)
{
	double most = 0, scale = 0;
	for (int64_t i = 0; i < n; i++) {
		double gr = part_at(gt, got, i, 0), gi = part_at(gt, got, i, 1), wr = part_at(wt, want, i, 0), wi = part_at(wt, want, i, 1);
		if (!isfinite(wr) || !isfinite(wi)) {
			bool nan = isnan(wr) || isnan(wi);
			if (nan ? !(isnan(gr) || isnan(gi)) : gr != wr || gi != wi)
				return *size = 1, INFINITY;
			continue;
		}
		double d = length_of(gr - wr, gi - wi);
		if (!(d <= most))
			most = isnan(d) ? INFINITY : d;
		scale = fmax(scale, length_of(wr, wi));
	}
	*size = fmax(scale, 1e-30);
	return most / *size;
}

struct verdict array_compare(const struct array *got, const struct npy *want, const struct npy *f32, double tol, double atol)
{
	struct verdict v = {.error = INFINITY, .allowed = 0};
	int64_t n = count_of(got);
	unsigned cls = dtype_info[got->dtype].cls;
	double size = 1;
	bool fits = want->rank == got->rank && want->item == dtype_info[got->dtype].bytes;
	for (int d = 0; fits && d < got->rank; d++)
		fits = want->dim[d] == got->dim[d];
	if (!fits)
		return v;
	if (cls == DT_FLOAT || cls == DT_COMPLEX) {
		v.allowed = tol;
		bool narrow = got->dtype == DT_bf16 || got->dtype == DT_f16;
		if (f32 && f32->bytes != (narrow ? 4 * (size_t)n : got->bytes))
			return v;
		enum dtype wide = narrow ? DT_f32 : got->dtype;
		if (f32)
			v.allowed = fmax(v.allowed, 2 * error_of(got->dtype, want->p, wide, f32->p, n, &size));
		v.error = error_of(got->dtype, got->p, f32 ? wide : got->dtype, f32 ? f32->p : want->p, n, &size);
		v.allowed = fmax(v.allowed, atol / size);
	} else {
		int64_t wrong = 0;
		for (int64_t i = 0; i < n; i++)
			wrong += memcmp(got->p + i * want->item, (char *)want->p + i * want->item, (size_t)want->item) != 0;
		v.error = n ? (double)wrong / (double)n : 0;
	}
	v.ok = v.error <= v.allowed;
	return v;
}
