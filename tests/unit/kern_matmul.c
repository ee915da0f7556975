/* Products of random shapes, orders of dimensions, strides and types against a plain sum in f64, with every
 * micro-kernel that this machine runs and with the models of the others. */
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <math.h>
#include <malloc.h>
#include <cmocka.h>

#include "draws.h"
#include "kern/matmul.h"

static uint64_t seed = 1;
static uint32_t rnd(uint32_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % n;
}

static void put(enum dtype dt, char *p, float x)
{
	if (dt == DT_f32) {
		memcpy(p, &x, 4);
	} else if (dt == DT_c64) {
		put(DT_f32, p, x);
		put(DT_f32, p + 4, ((float)rnd(2001) - 1000) * 1e-3f);
	} else if (dt == DT_i8) {
		*p = (char)(int)(x * 128);
	} else {
		uint16_t h = dt == DT_bf16 ? f32_to_bf16(x) : f32_to_f16(x);
		memcpy(p, &h, 2);
	}
}

static double get(enum dtype dt, const char *p)
{
	float x;
	int32_t i;
	if (dt == DT_i8)
		return (int8_t)*p;
	if (dt == DT_i32) {
		memcpy(&i, p, 4);
		return i;
	}
	uint16_t h;
	if (dt == DT_f32) {
		memcpy(&x, p, 4);
		return x;
	}
	memcpy(&h, p, 2);
	return dt == DT_bf16 ? bf16_to_f32(h) : f16_to_f32(h);
}

struct shape { int rank; int64_t dim[8], stride[8]; int role[8]; };   /* role: which logical dimension */

/* The logical dimensions in a random order, some of them padded in memory. */
static size_t lay_out(struct shape *s, int n, const int64_t *size, const int *which)
{
	int perm[8];
	for (int i = 0; i < n; i++)
		perm[i] = i;
	for (int i = n; i-- > 1;) {
		int j = (int)rnd((uint32_t)i + 1), t = perm[i];
		perm[i] = perm[j];
		perm[j] = t;
	}
	s->rank = n;
	int64_t step = 1;
	int order[8];                /* memory order is another permutation half of the time */
	for (int i = 0; i < n; i++)
		order[i] = i;
	if (rnd(2))
		for (int i = n; i-- > 1;) {
			int j = (int)rnd((uint32_t)i + 1), t = order[i];
			order[i] = order[j];
			order[j] = t;
		}
	for (int i = 0; i < n; i++) {
		s->dim[i] = size[perm[i]];
		s->role[i] = which[perm[i]];
	}
	for (int i = n; i-- > 0;) {
		s->stride[order[i]] = step;
		step *= s->dim[order[i]] + (rnd(4) == 0 ? rnd(3) : 0);
	}
	return (size_t)step;
}

static int64_t at(const struct shape *s, const int64_t *ix)
{
	int64_t o = 0;
	for (int i = 0; i < s->rank; i++)
		o += ix[s->role[i]] * s->stride[i];
	return o;
}

enum { B, M, M2, N, K, K2, ALL };

/* What is contracted for one result, to `to`; its end.  Of complex numbers both parts, or, for the real part of a product with these or the imaginary
 * one, what they are multiplied with. */
enum use { PLAIN, FOR_REAL, FOR_IMAG };
static double *along(enum dtype dt, const char *p, const struct shape *s, const int64_t *ix, const int64_t *size, enum use use, double *to)
{
	int64_t step[ALL];
	for (int i = 0; i < s->rank; i++)
		step[s->role[i]] = s->stride[i];
	p += at(s, ix) * dtype_info[dt].bytes;
	for (int64_t k = 0; k < size[K]; k++)
		for (int64_t k2 = 0; k2 < size[K2]; k2++) {
			const char *e = p + (k * step[K] + k2 * step[K2]) * dtype_info[dt].bytes;
			if (dt != DT_c64) {
				*to++ = get(dt, e);
				continue;
			}
			double re = get(DT_f32, e), im = get(DT_f32, e + 4);
			*to++ = use == FOR_IMAG ? im : re;
			*to++ = use == FOR_IMAG ? re : use == FOR_REAL ? -im : im;
		}
	return to;
}

/* The sum of products and, in *mag, of their magnitudes: even and odd ones apart, since each waits for the one before. */
static double dot(const double *p, const double *q, int64_t n, double *mag)
{
	double even = 0, odd = 0, abs_even = 0, abs_odd = 0;
	for (int64_t i = 0; i < n; i += 2) {
		double w = p[i] * q[i], z = i + 1 < n ? p[i + 1] * q[i + 1] : 0;
		even += w;
		odd += z;
		abs_even += fabs(w);
		abs_odd += fabs(z);
	}
	*mag = abs_even + abs_odd;
	return even + odd;
}

static void one(const struct matmul_variant *v, int *ran)
{
	static const enum dtype types[] = { DT_f32, DT_bf16, DT_f16 };
	static const int lw[] = { B, M, M2, K, K2 }, rw[] = { B, N, K, K2 };
	int64_t size[ALL] = { 1 + rnd(3), 1 + rnd(40), 1 + rnd(3), 1 + rnd(90), 1 + rnd(70), 1 + rnd(3) };
	if (rnd(4) == 0)
		size[M] = size[M2] = 1;
	if (rnd(6) == 0)
		size[N] = 1 + rnd(4), size[M] = 30 + rnd(300);
	if (rnd(8) == 0)
		size[K] = 1000 + rnd(400);
	bool large = rnd(12) == 0;       /* several blocks of everything; a few results are looked at */
	if (large) {
		size[B] = size[M2] = size[K2] = 1;
		size[M] = 65 + rnd(400);
		size[N] = 300 + rnd(1000);
		size[K] = rnd(2) ? 32 * (1 + rnd(90)) : 1 + rnd(2900);
	}
	if (!large && rnd(5) == 0) {     /* few rows or few columns: what lies side by side is read where it lies */
		size[B] = size[M2] = size[K2] = 1;
		size[K] = 2 + rnd(rnd(4) ? 200 : 3000);
		size[M] = 1 + rnd(rnd(3) ? 64 : 6);
		size[N] = 20 + rnd(500);
		if (rnd(2))
			size[N] = 1 + rnd(34), size[M] = 40 + rnd(400);
	} else if (!large && rnd(10) == 0) {    /* longer than the offsets that are kept of even ones, by parts of steps too */
		size[B] = size[M2] = 1;
		size[M] = 1 + rnd(20);
		size[N] = 1 + rnd(40);
		size[K] = MATMUL_K - 20 + rnd(3 * MATMUL_K);
		size[K2] = 1 + rnd(8) / 7;
	}
	if (!large && rnd(16) == 0) {    /* more rows or columns than their offsets are kept of */
		size[K] = 1 + rnd(5);
		size[K2] = 1;
		size[M] = MATMUL_AXIS / 100 + rnd(40);
		size[M2] = 100 + rnd(20);
		size[N] = 1 + rnd(10);
		if (rnd(2))
			size[N] = size[M] * size[M2], size[M] = 1 + rnd(10), size[M2] = 1;
	}
	struct shape l, r, o = { .rank = 4 };
	int64_t ls[5], rs[4];
	for (int i = 0; i < 5; i++)
		ls[i] = size[lw[i]];
	for (int i = 0; i < 4; i++)
		rs[i] = size[rw[i]];
	size_t ln = lay_out(&l, 5, ls, lw), rn = lay_out(&r, 4, rs, rw), on = 1;
	/* the result has batch, then lhs free in lhs order, then rhs free */
	int oi = 0;
	o.role[oi++] = B;
	for (int i = 0; i < 5; i++)
		if (l.role[i] == M || l.role[i] == M2)
			o.role[oi++] = l.role[i];
	o.role[oi++] = N;
	for (int i = 4; i-- > 0;) {
		o.dim[i] = size[o.role[i]];
		o.stride[i] = (int64_t)on;
		on *= (size_t)o.dim[i];
	}
	enum dtype lt = types[rnd(3)], rt = rnd(3) ? lt : types[rnd(3)], ot = rnd(2) ? DT_f32 : types[rnd(3)];
	bool i8 = v ? v->es == 1 : rnd(4) == 0;
	if (i8) {
		lt = rt = DT_i8;
		ot = rnd(4) ? DT_i32 : DT_i8;
	}
	bool complex = !i8 && (!v || v->es == 4) && rnd(3) == 0;
	if (complex)
		lt = rt = ot = DT_c64;
	char *pl = calloc(ln + 64, 8), *pr = calloc(rn + 64, 8), *po = calloc(on + 64, 8);
	for (size_t i = 0; i < ln; i++)
		put(lt, pl + i * dtype_info[lt].bytes, ((float)rnd(2001) - 1000) * 1e-3f);
	for (size_t i = 0; i < rn; i++)
		put(rt, pr + i * dtype_info[rt].bytes, ((float)rnd(2001) - 1000) * 1e-3f);
	int64_t attr[16];
	int na = 0, find[2][ALL];
	for (int i = 0; i < 5; i++)
		find[0][l.role[i]] = i;
	for (int i = 0; i < 4; i++)
		find[1][r.role[i]] = i;
	attr[na++] = 1;
	attr[na++] = find[0][B];
	attr[na++] = find[1][B];
	attr[na++] = 2;
	attr[na++] = find[0][K];
	attr[na++] = find[0][K2];
	attr[na++] = find[1][K];
	attr[na++] = find[1][K2];
	attr[na++] = 0;
	attr[na++] = DT_token;
	attr[na++] = DT_token;
	attr[na++] = DT_token;
	attr[na++] = 1;
	struct prog_view view[3] = { { lt, 5, 0, l.dim, l.stride }, { rt, 4, 0, r.dim, r.stride }, { ot, 4, 0, o.dim, o.stride } };
	struct prog_kern k = { .id = KERN_dot, .nin = 2, .nout = 1, .v = view, .nattr = (uint32_t)na, .attr = attr, .code = -1 };
	struct kern_state s = { .tiles = 1, .phases = 1 };
	arena_init(&s.a);
	matmul_force = v;
	matmul_habits = v || rnd(2) ? (int)rnd(2) : -1;
	if (kern_matmul(&k, &s)) {
		++*ran;
		char *scratch = aligned_alloc(64, (s.scratch + 127) & ~(size_t)63), *shared = malloc(s.shared + 64), *ptr[] = { pl, pr, po, shared };
		for (int p = 0; p < s.phases; p++) {     /* tiles in two calls: bits must not depend on it */
			int64_t half = s.tiles / 2;
			s.run(&k, &s, p, ptr, half, s.tiles, scratch);
			s.run(&k, &s, p, ptr, 0, half, scratch);
		}
		/* The numbers as doubles, the contracted ones of each result side by side. */
		int64_t ix[ALL] = { 0 }, parts = complex ? 2 : 1, nk = size[K] * size[K2] * parts, rows = size[B] * size[M] * size[M2], cols = size[B] * size[N] * parts;
		double *dl = malloc(sizeof *dl * (size_t)(rows * nk)), *dr = malloc(sizeof *dr * (size_t)(cols * nk)), *x = dl, *y = dr;
		for (ix[B] = 0; ix[B] < size[B]; ix[B]++) {
			for (ix[M] = 0; ix[M] < size[M]; ix[M]++)
				for (ix[M2] = 0; ix[M2] < size[M2]; ix[M2]++)
					x = along(lt, pl, &l, ix, size, PLAIN, x);
			for (ix[N] = 0; ix[N] < size[N]; ix[N]++)
				for (int q = 0; q < parts; q++)
					y = along(rt, pr, &r, ix, size, FOR_REAL + q, y);
		}
		double tol = ot == DT_bf16 ? 0.01 : ot == DT_f16 ? 2e-3 : 2e-5;
		for (ix[B] = 0; ix[B] < size[B]; ix[B]++)
			for (ix[M] = 0; ix[M] < size[M]; ix[M]++)
				for (ix[M2] = 0; ix[M2] < size[M2]; ix[M2]++)
					for (int64_t j = large ? rnd(300) : 0; j < size[N] * parts; j += large ? 1 + rnd(9000) : 1) {
						ix[N] = j / parts;
						double mag, want = dot(dl + ((ix[B] * size[M] + ix[M]) * size[M2] + ix[M2]) * nk, dr + (ix[B] * size[N] * parts + j) * nk, nk, &mag);
						if (ot == DT_i8)
							want = (int8_t)(int64_t)want;
						double got = get(complex ? DT_f32 : ot, po + at(&o, ix) * dtype_info[ot].bytes + j % parts * 4);
						if (i8 ? got != want : fabs(got - want) > tol * (mag + 1e-3))
							fail_msg("%s %s x %s -> %s b%d m%d,%d n%d k%d,%d: %g, not %g", v ? v->name : "chosen", dtype_info[lt].name,
							         dtype_info[rt].name, dtype_info[ot].name, (int)size[B], (int)size[M], (int)size[M2], (int)size[N],
							         (int)size[K], (int)size[K2], got, want);
					}
		free(scratch);
		free(shared);
		free(dl);
		free(dr);
	}
	arena_fini(&s.a);
	free(pl);
	free(pr);
	free(po);
}

static void random_products(void **state)
{
	/* Who is told to do with less (RONDO_ISA) runs what is chosen then: each by itself runs where all may. */
	for (int v = -1; v < (*conf_str(CONF_ISA) ? 0 : matmul_nvariant); v++) {
		const struct matmul_variant *x = v < 0 ? NULL : &matmul_variant[v];
		int ran = 0;
		if (x && !x->has())
			continue;
		for (int i = 0; i < draws(x && strstr(x->name, "model") ? 12 : 60); i++)
			one(x, &ran);
		assert_true(ran > 0);
	}
	matmul_force = NULL;
	matmul_habits = -1;
}

/* What a product keeps does not grow with its operands' length: the offsets of even positions are computed. */
static void long_products(void **state)
{
	for (int by = 1; by < 3; by++) {             /* each element, every second one */
		int64_t n = 1 << 26, one = 1, step = by, attr[] = { 0, 1, 0, 0, 0, DT_token, DT_token, DT_token, 1 };
		struct prog_view view[3] = { { DT_f32, 1, 0, &n, &step }, { DT_f32, 1, 0, &n, &one }, { DT_f32, 0, 0, NULL, NULL } };
		struct prog_kern k = { .id = KERN_dot, .nin = 2, .nout = 1, .v = view, .nattr = NELEM(attr), .attr = attr, .code = -1 };
		struct kern_state s = { .tiles = 1, .phases = 1 };
		arena_init(&s.a);
		size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
		assert_true(kern_matmul(&k, &s));
		assert_true(mallinfo2().uordblks + mallinfo2().hblkhd - before < 1 << 20);
		arena_fini(&s.a);
	}
}

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(random_products), cmocka_unit_test(long_products) };
	return cmocka_run_group_tests(t, NULL, NULL);
}
