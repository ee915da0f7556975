/* Every kernel over random views (permuted, padded, backwards, broadcast), in random pieces of its grid with
 * poisoned scratch, against the plainest loops. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "draws.h"
#include "kern/kern.h"

static uint64_t seed = 88172645463325252u;
static uint64_t rnd(void) { seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; return seed >> 11; }
static int64_t below(int64_t n) { return (int64_t)((unsigned __int128)rnd() * (uint64_t)n >> 53); }
static int64_t range(int64_t lo, int64_t hi) { return lo + below(hi - lo + 1); }

static struct arena A;

/* --- nothing allocates while a kernel runs ---------------------------------------- */

static _Thread_local bool at_work;
static bool allocates(size_t n)
{
	if (at_work) {
		at_work = false;
		fail_msg("a kernel allocates %zu bytes", n);
	}
	return false;
}

static void work(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr, int64_t t0, int64_t t1, void *scratch)
{
	at_work = true;
	kern_run(k, s, phase, ptr, t0, t1, scratch);
	at_work = false;
}

/* --- arrays ------------------------------------------------------------------- */

struct ar { struct prog_view v; char *base; size_t bytes; };

enum { GUARD = 64 };
/* A view of the shape over a fresh buffer.  plain: dense; else strides of some layout with gaps. */
static struct ar make(enum dtype dt, int rank, const int64_t *dim, bool plain, bool input)
{
	struct ar a = { 0 };
	int es = dtype_info[dt].bytes;
	a.v.dtype = (uint8_t)dt;
	a.v.rank = (uint8_t)rank;
	int64_t *mine = arena_alloc(&A, sizeof *dim * (size_t)(rank + 1));
	memcpy(mine, dim, sizeof *dim * (size_t)rank);
	a.v.dim = mine;
	a.v.stride = arena_alloc(&A, sizeof *dim * (size_t)(rank + 1));
	int ord[8], n = rank;
	for (int i = 0; i < n; i++)
		ord[i] = i;
	if (!plain && below(2))
		for (int i = n - 1; i > 0; i--) {
			int j = (int)below(i + 1), t = ord[i];
			ord[i] = ord[j];
			ord[j] = t;
		}
	int64_t st = !plain && below(3) == 0 ? 2 : 1, low = 0;
	for (int i = n; i-- > 0;) {
		int d = ord[i];
		a.v.stride[d] = st;
		if (!plain && input && below(6) == 0) {
			a.v.stride[d] = 0;
			continue;
		}
		st *= dim[d] + (!plain && below(3) == 0 ? 1 : 0);
		if (!plain && below(4) == 0 && dim[d]) {
			low += (dim[d] - 1) * a.v.stride[d];
			a.v.stride[d] = -a.v.stride[d];
		}
	}
	if (plain)
		st = 1;
	for (int i = 0; i < n && plain; i++)
		st *= dim[i];
	a.v.off = low + 3;
	a.bytes = (size_t)(st * 2 + 8) * (size_t)es + 64;
	a.base = arena_alloc(&A, a.bytes + 2 * GUARD) ;
	a.base += GUARD;
	for (size_t i = 0; i + 8 <= a.bytes; i += 8) {
		rnd();
		memcpy(a.base + i, &seed, 8);
	}
	memset(a.base - GUARD, 0x5a, GUARD);
	memset(a.base + a.bytes, 0x5a, GUARD);
	return a;
}
static inline char *at(const struct ar *a, const int64_t *ix)
{
	int64_t o = a->v.off;
	for (int d = 0; d < a->v.rank; d++)
		o += ix[d] * a->v.stride[d];
	return a->base + o * dtype_info[a->v.dtype].bytes;
}
/* The types that most arrays have are converted here; the rest as the library does. */
static inline double get(const struct ar *a, const int64_t *ix)
{
	const char *p = at(a, ix);
	double d;
	switch (a->v.dtype) {
	case DT_f64: case DT_c128: return *(const double *)p;
	case DT_f32: case DT_c64: return (double)*(const float *)p;
	case DT_i32: return *(const int32_t *)p;
	case DT_i64: return (double)*(const int64_t *)p;
	case DT_bf16: return (double)bf16_to_f32(*(const uint16_t *)p);
	case DT_f16: return (double)f16_to_f32(*(const uint16_t *)p);
	}
	kern_elem(ELEM_convert, a->v.dtype, DT_f64)(1, &d, p, NULL, NULL);
	return d;
}
static void set(const struct ar *a, const int64_t *ix, double v)
{
	char *p = at(a, ix), t[16];
	switch (a->v.dtype) {
	case DT_f64: *(double *)p = v; return;
	case DT_f32: *(float *)p = (float)v; return;
	case DT_i32: *(int32_t *)p = (int32_t)v; return;
	case DT_i64: *(int64_t *)p = (int64_t)v; return;
	}
	kern_elem(ELEM_convert, DT_f64, a->v.dtype)(1, t, &v, NULL, NULL);
	memcpy(p, t, dtype_info[a->v.dtype].bytes);
}
/* The imaginary part, which set leaves 0. */
static void set_imag(const struct ar *a, const int64_t *ix, double v)
{
	float f = (float)v;
	if (a->v.dtype == DT_c64)
		memcpy(at(a, ix) + 4, &f, 4);
	else
		memcpy(at(a, ix) + 8, &v, 8);
}
static int64_t count(const struct ar *a)
{
	int64_t n = 1;
	for (int d = 0; d < a->v.rank; d++)
		n *= a->v.dim[d];
	return n;
}
static void index_at(int rank, const int64_t *dim, int64_t lin, int64_t *ix)
{
	for (int d = rank; d-- > 0;) {
		ix[d] = lin % dim[d];
		lin /= dim[d];
	}
}
static void next(int rank, const int64_t *dim, int64_t *ix)
{
	for (int d = rank; d-- > 0 && ++ix[d] == dim[d];)
		ix[d] = 0;
}
#define EACH(a, ix) for (int64_t ix[8] = { 0 }, n_ = count(a), i_ = 0; i_ < n_; i_++, next((a)->v.rank, (a)->v.dim, ix))
static void fill(struct ar *a, int lo, int hi)
{
	EACH(a, ix)
		set(a, ix, (double)range(lo, hi));
}
static struct ar copy_of(const struct ar *a)
{
	struct ar b = make(DT_f64, a->v.rank, a->v.dim, true, false);
	EACH(a, ix)
		set(&b, ix, get(a, ix));
	return b;
}

/* --- running --------------------------------------------------------------------- */

static struct prog_kern K;
static struct ar arr[16];
static void begin(enum kern_id id) { memset(&K, 0, sizeof K); K.id = (uint16_t)id; K.code = -1; }
static struct err *try_run(int nin, int nout)
{
	int n = nin + nout;
	K.nin = (uint16_t)nin;
	K.nout = (uint16_t)nout;
	K.v = arena_alloc(&A, sizeof *K.v * (size_t)n);
	char *ptr[20];
	for (int i = 0; i < n; i++) {
		K.v[i] = arr[i].v;
		ptr[i] = arr[i].base;
	}
	struct kern_state *s;
	struct err *e = kern_prepare(&K, &s);
	if (e)
		return e;
	size_t ns = kern_scratch(&K, s), nsh = kern_shared(&K, s);
	char *scratch = aligned_alloc(64, (ns + 127) & ~(size_t)63), *shared = aligned_alloc(64, (nsh + 127) & ~(size_t)63);
	memset(scratch + ns, 0x5a, 64 - ns % 64);
	memset(shared, 0x77, nsh + 1);
	ptr[n] = shared;
	int64_t tiles = kern_tiles(&K, s);
	for (int ph = 0; ph < kern_phases(&K, s); ph++) {
		/* two sweeps, backwards first, so that order cannot matter */
		int64_t cut = below(tiles + 1), step = 1 + below(4);
		for (int64_t t = cut; t < tiles; t += step) {
			memset(scratch, (int)rnd(), ns);
			work(&K, s, ph, ptr, t, MIN(t + step, tiles), scratch);
		}
		memset(scratch, (int)rnd(), ns);
		work(&K, s, ph, ptr, 0, cut, scratch);
	}
	for (size_t i = ns; i % 64; i++)
		assert_int_equal(scratch[i], 0x5a);
	kern_release(s);
	free(scratch);
	free(shared);
	for (int i = 0; i < n; i++)
		for (int j = 0; j < GUARD; j++) {
			assert_int_equal(arr[i].base[-1 - j], 0x5a);
			assert_int_equal(arr[i].base[arr[i].bytes + (size_t)j], 0x5a);
		}
	return NULL;
}
static void run(int nin, int nout)
{
	struct err *e = try_run(nin, nout);
	if (e)
		fail_msg("%s: %s", prog_kern_name[K.id], e->msg);
}
static void attrs(int n, const int64_t *p)
{
	K.nattr = (uint32_t)n;
	K.attr = arena_alloc(&A, sizeof *p * (size_t)(n + 1));
	memcpy(K.attr, p, sizeof *p * (size_t)n);
}
static void same(const char *what, const struct ar *got, const struct ar *want, double tol)
{
	EACH(got, ix) {
		double g = get(got, ix), w = get(want, ix);
		if (g != w && !(fabs(g - w) <= tol * (1 + fabs(w))) && !(isnan(g) && isnan(w)))
			fail_msg("%s of %s at %lld,%lld,%lld of [%lld,%lld,%lld]: %g, not %g", what, dtype_info[got->v.dtype].name,
			         (long long)ix[0], (long long)ix[1], (long long)ix[2], (long long)got->v.dim[0],
			         got->v.rank > 1 ? (long long)got->v.dim[1] : 0, got->v.rank > 2 ? (long long)got->v.dim[2] : 0, g, w);
	}
}
static void shape(int *rank, int64_t *dim, int most)
{
	*rank = (int)range(0, 4);
	for (int d = 0; d < *rank; d++)
		dim[d] = below(4) ? range(1, most) : below(3) ? range(1, 3) : below(8) ? range(20, 40) : 0;
	dim[*rank] = 0;
}
static enum dtype pick(void)
{
	static const enum dtype t[] = { DT_f32, DT_f32, DT_i32, DT_bf16, DT_f64, DT_i8, DT_u16, DT_i64, DT_f16, DT_u32, DT_f8e5m2, DT_c64, DT_c128 };
	return t[below(NELEM(t))];
}
static struct prog_expr *expr1(enum elem fn, enum dtype from, enum dtype to, int nin)
{
	struct prog_expr *e = arena_alloc(&A, sizeof *e);
	e->nin = (uint16_t)nin;
	e->nout = e->n = 1;
	e->in_type = arena_alloc(&A, 8);
	memset(e->in_type, from, 8);
	e->ins = arena_alloc(&A, sizeof *e->ins);
	e->ins->fn = (uint16_t)fn;
	e->ins->from = (uint8_t)from;
	e->ins->to = (uint8_t)to;
	for (int i = 0; i < nin && i < 3; i++)
		e->ins->src[i] = (uint16_t)i;
	e->out = arena_alloc(&A, 8);
	e->out[0] = (uint16_t)nin;
	return e;
}
#define TIMES(n) for (int turn_ = 0; turn_ < draws(n); turn_++, arena_reset(&A))

/* --- the tests --------------------------------------------------------------------- */

static void copies(void **state)
{
	TIMES(600) {
		int r;
		int64_t dim[8];
		shape(&r, dim, 20);
		if (below(20) == 0) {
			r = 2;
			dim[0] = range(100, 300);
			dim[1] = range(100, 300);
		}
		enum dtype dt = pick();
		bool fill_it = below(4) == 0;
		begin(fill_it ? KERN_fill : KERN_copy);
		arr[0] = make(dt, r, dim, below(2), true);
		arr[1] = make(dt, r, dim, below(2), false);
		if (fill_it) {
			arr[0] = arr[1];
			double v = (double)range(-5, 5);
			kern_elem(ELEM_convert, DT_f64, dt)(1, K.imm, &v, NULL, NULL);
			run(0, 1);
			EACH(&arr[0], ix)
				assert_memory_equal(at(&arr[0], ix), K.imm, dtype_info[dt].bytes);
			continue;
		}
		run(1, 1);
		EACH(&arr[0], ix)
			assert_memory_equal(at(&arr[0], ix), at(&arr[1], ix), dtype_info[dt].bytes);
	}
}

/* Rows of the result a whole number of pages apart, and others; few of them, and many. */
static void turned(void **state)
{
	static const int64_t width[] = { 4096, 4099, 33, 16, 7 };
	for (int es = 1; es <= 8; es *= 2)
	for (int64_t rows = 1; rows <= 150; rows += rows < 18 ? 1 : 132)
	for (size_t w = 0; w < NELEM(width); w++) {
		enum dtype dt = es == 1 ? DT_u8 : es == 2 ? DT_u16 : es == 4 ? DT_u32 : DT_u64;
		int64_t dim[] = { rows, width[w], 0 }, from[] = { 1, rows };
		arena_reset(&A);
		arr[0] = make(dt, 2, dim, true, true);
		arr[1] = make(dt, 2, dim, true, false);
		memcpy(arr[0].v.stride, from, sizeof from);
		begin(KERN_copy);
		run(1, 1);
		for (int64_t i = 0; i < dim[0]; i++)
			for (int64_t j = 0; j < dim[1]; j++)
				assert_memory_equal(arr[1].base + (arr[1].v.off + i * dim[1] + j) * es, arr[0].base + (arr[0].v.off + j * rows + i) * es, (size_t)es);
	}
}

/* Rows from their last element to their first: short ones, and of whole vectors and not. */
static void flipped(void **state)
{
	static const int64_t some[] = { 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 63, 64, 65, 4099 };
	for (int es = 1; es <= 16; es *= 2)
	for (int64_t w = 2; w <= 300; w += w < 18 ? 1 : 1 + w / 7)
	for (size_t r = 0; r < (w < 18 ? NELEM(some) : 4); r++) {
		enum dtype dt = es == 1 ? DT_u8 : es == 2 ? DT_u16 : es == 4 ? DT_u32 : es == 8 ? DT_u64 : DT_c128;
		int64_t dim[] = { some[r], w };
		arena_reset(&A);
		arr[0] = make(dt, 2, dim, true, true);
		arr[1] = make(dt, 2, dim, true, false);
		arr[0].v.stride[1] = -1;
		arr[0].v.off += w - 1;
		begin(KERN_copy);
		run(1, 1);
		for (int64_t i = 0; i < dim[0]; i++)
			for (int64_t j = 0; j < w; j++)
				assert_memory_equal(at(&arr[1], (int64_t[]){ i, j }), at(&arr[0], (int64_t[]){ i, j }), (size_t)es);
	}
}

static void iotas(void **state)
{
	TIMES(200) {
		int r;
		int64_t dim[8];
		shape(&r, dim, 12);
		if (!r)
			continue;
		static const enum dtype t[] = { DT_f32, DT_i32, DT_bf16, DT_i64, DT_u8, DT_c64 };
		begin(KERN_iota);
		arr[0] = make(t[below(6)], r, dim, below(2), false);
		int64_t d = below(r);
		attrs(1, &d);
		run(0, 1);
		EACH(&arr[0], ix)
			assert_true(get(&arr[0], ix) == (double)ix[d]);
	}
}

static void elementwise(void **state)
{
	TIMES(400) {
		int r;
		int64_t dim[8];
		shape(&r, dim, 12);
		if (below(20) == 0)
			r = 2, dim[0] = range(1, 40), dim[1] = range(500, 3000);
		/* (a + b) * a - 3, and its sign as i32 */
		struct prog_expr e = { .nin = 2, .nout = 2, .n = 5 };
		enum dtype dt = below(2) ? DT_f32 : DT_i32;
		uint8_t types[2] = { dt, dt };
		float three = 3;
		int32_t three_i = 3;
		struct prog_ins ins[5] = {
			{ .fn = ELEM_add, .from = dt, .to = dt, .src = { 0, 1 } },
			{ .fn = ELEM_multiply, .from = dt, .to = dt, .src = { 2, 0 } },
			{ .fn = EXPR_IMM, .from = dt, .to = dt },
			{ .fn = ELEM_subtract, .from = dt, .to = dt, .src = { 3, 4 } },
			{ .fn = ELEM_compare_lt, .from = dt, .to = DT_pred, .src = { 5, 1 } },
		};
		memcpy(ins[2].imm, dt == DT_f32 ? (void *)&three : (void *)&three_i, 4);
		uint16_t out[2] = { 5, 6 };
		e.in_type = types;
		e.ins = ins;
		e.out = out;
		begin(KERN_elem);
		bool single = below(3) == 0;
		K.expr = single ? expr1(ELEM_maximum, dt, dt, 2) : &e;
		for (int i = 0; i < 2; i++) {
			arr[i] = make(dt, r, dim, below(2), true);
			fill(&arr[i], -9, 9);
		}
		bool over = below(4) == 0 && r && !single;
		arr[2] = make(dt, r, dim, below(2), false);
		arr[3] = make(DT_pred, r, dim, below(2), false);
		struct ar x = copy_of(&arr[0]), y = copy_of(&arr[1]);
		if (over) {      /* in place */
			arr[0] = make(dt, r, dim, true, false);
			arr[2] = arr[0];
			EACH(&x, ix)
				set(&arr[0], ix, get(&x, ix));
		}
		run(2, single ? 1 : 2);
		EACH(&arr[2], ix) {
			double a = get(&x, ix), b = get(&y, ix), v = single ? (a > b ? a : b) : (a + b) * a - 3;
			assert_true(get(&arr[2], ix) == v);
			if (!single)
				assert_true(get(&arr[3], ix) == (v < b));
		}
	}
}

/* One function whose operands are fewer than its arguments, in any order: each argument gets the operand that it names. */
static void repeated_operands(void **state)
{
	static const uint8_t fns[] = { ELEM_clamp, ELEM_subtract, ELEM_multiply, ELEM_maximum, ELEM_divide };
	TIMES(400) {
		int r;
		int64_t dim[8];
		shape(&r, dim, 12);
		enum dtype dt = below(2) ? DT_f32 : DT_i32;
		uint8_t types[3] = { dt, dt, dt };
		uint16_t out[1] = { 0 };
		struct prog_ins ins = { .fn = fns[below((int64_t)(sizeof fns))], .from = dt, .to = dt };
		int nin = (int)range(1, 3), nsrc = elem_info[ins.fn].nin;
		for (int j = 0; j < nsrc; j++)
			ins.src[j] = (uint16_t)below(nin);
		struct prog_expr e = { .nin = (uint16_t)nin, .nout = 1, .n = 1, .in_type = types, .ins = &ins, .out = out };
		out[0] = (uint16_t)nin;
		begin(KERN_elem);
		K.expr = &e;
		bool plain = below(4) != 0;
		for (int i = 0; i < nin; i++) {
			arr[i] = make(dt, r, dim, plain, true);
			fill(&arr[i], 1, 9);
		}
		arr[nin] = make(dt, r, dim, plain, false);
		run(nin, 1);
		EACH(&arr[nin], ix) {
			char want[16];
			const char *x[3] = { NULL, NULL, NULL };
			for (int j = 0; j < nsrc; j++)
				x[j] = at(&arr[ins.src[j]], ix);
			kern_elem(ins.fn, dt, dt)(1, want, x[0], x[1], x[2]);
			assert_memory_equal(at(&arr[nin], ix), want, dtype_info[dt].bytes);
		}
	}
}

static void slices(void **state)
{
	TIMES(300) {
		int r;
		int64_t dim[8], sub[8];
		shape(&r, dim, 12);
		for (int d = 0; d <= r; d++)
			sub[d] = d < r ? below(dim[d] + 1) : 0;
		enum dtype dt = pick();
		bool update = below(2);
		int64_t start[8] = { 0 };
		begin(update ? KERN_dynamic_update : KERN_dynamic_slice);
		arr[0] = make(dt, r, update ? sub : dim, below(2), true);
		for (int d = 0; d < r; d++) {
			arr[1 + d] = make(below(2) ? DT_i32 : DT_i64, 0, dim + r, true, true);
			set(&arr[1 + d], sub, (double)range(-3, dim[d] + 2));
			start[d] = (int64_t)get(&arr[1 + d], sub);
			start[d] = MAX(0, MIN(start[d], dim[d] - sub[d]));
		}
		arr[1 + r] = make(dt, r, update ? dim : sub, below(2), false);
		if (update)
			fill(&arr[1 + r], -9, 9);
		struct ar old = copy_of(&arr[1 + r]);
		run(1 + r, 1);
		EACH(&arr[1 + r], ix) {
			int64_t jx[8];
			bool in = true;
			for (int d = 0; d < r; d++) {
				jx[d] = update ? ix[d] - start[d] : ix[d] + start[d];
				in &= jx[d] >= 0 && (!update || jx[d] < sub[d]);
			}
			if (in)
				assert_memory_equal(at(&arr[1 + r], ix), at(&arr[0], jx), dtype_info[dt].bytes);
			else
				assert_true(get(&arr[1 + r], ix) == get(&old, ix));
		}
	}
}

static void pads(void **state)
{
	TIMES(400) {
		int r;
		int64_t dim[8], out[8] = { 0 }, w[24];
		shape(&r, dim, 9);
		for (int d = 0; d < r; d++) {
			w[d] = range(-2, 3);
			w[r + d] = range(-2, 3);
			w[2 * r + d] = below(3) ? 0 : range(0, 2);
			int64_t n = dim[d] + MAX(0, dim[d] - 1) * w[2 * r + d];
			if (n + w[d] + w[r + d] < 0)
				w[d] = w[r + d] = 0;
			out[d] = n + w[d] + w[r + d];
		}
		begin(KERN_pad);
		attrs(3 * r, w);
		enum dtype dt = pick();
		arr[0] = make(dt, r, dim, below(2), true);
		arr[1] = make(dt, 0, dim + r, true, true);
		arr[2] = make(dt, r, out, below(2), false);
		run(2, 1);
		EACH(&arr[2], ix) {
			int64_t jx[8];
			bool in = true;
			for (int d = 0; d < r; d++) {
				int64_t p = ix[d] - w[d], s = w[2 * r + d] + 1;
				in &= p >= 0 && p % s == 0 && p / s < dim[d];
				jx[d] = p / s;
			}
			assert_memory_equal(at(&arr[2], ix), in ? at(&arr[0], jx) : at(&arr[1], jx), dtype_info[dt].bytes);
		}
	}
}

static double fold(enum redop r, double a, double b)
{
	return r == RED_add ? a + b : r == RED_mul ? a * b : r == RED_min ? fmin(a, b) : fmax(a, b);
}

static void reduces(void **state)
{
	TIMES(600) {
		int r, nd = 0, ro = 0;
		int64_t dim[8], out[8] = { 0 }, w[16];
		shape(&r, dim, 12);
		if (below(12) == 0)
			r = 2, dim[0] = range(1, 1500), dim[1] = range(1, 1500);
		if (below(40) == 0)
			r = 1, dim[0] = 300000;
		bool red[8] = { 0 };
		for (int d = 0; d < r; d++)
			if (below(2)) {
				red[d] = true;
				w[1 + nd++] = d;
			} else {
				out[ro++] = dim[d];
			}
		w[0] = nd;
		static const enum dtype t[] = { DT_f32, DT_f32, DT_i32, DT_bf16, DT_f64, DT_i64, DT_u8, DT_i16, DT_c64, DT_f16 };
		enum dtype dt = t[below(NELEM(t))];
		enum redop op = (enum redop)(below(3) ? RED_add : RED_max);
		if (dt == DT_c64)
			op = RED_add;
		if (dt == DT_f16 && r <= 2)
			dt = DT_f32;        /* its largest number is 65504 */
		w[1 + nd] = op;
		begin(KERN_reduce);
		bool general = below(4) == 0;
		if (general) {
			if (dt == DT_bf16 || dt == DT_f16)
				op = RED_max;       /* an expression rounds each step */
			w[1 + nd] = RED_fn;
			K.expr = expr1(op == RED_add ? ELEM_add : ELEM_maximum, dt, dt, 2);
		}
		attrs(nd + 2, w);
		arr[0] = make(dt, r, dim, below(3), true);
		arr[1] = make(dt, 0, dim + 7, true, true);
		arr[2] = make(dt, ro, out, below(2), false);
		fill(&arr[0], 0, dt == DT_u8 || (general && dt == DT_bf16) ? 1 : 2);
		int64_t z[1] = { 0 };
		set(&arr[1], z, 1);
		struct ar want = make(DT_f64, ro, out, true, false);
		EACH(&want, ox)
			set(&want, ox, 1);
		{
			EACH(&arr[0], ix) {
				int64_t ox2[8];
				int k = 0;
				for (int d = 0; d < r; d++)
					if (!red[d])
						ox2[k++] = ix[d];
				set(&want, ox2, fold(op, get(&want, ox2), get(&arr[0], ix)));
			}
		}
		if (dt == DT_u8 || dt == DT_i16)
			EACH(&want, wx) {
				int64_t v = (int64_t)get(&want, wx);
				set(&want, wx, dt == DT_u8 ? (double)(uint8_t)v : (double)(int16_t)v);
			}
		run(2, 1);
		same(general ? "reduce by expression" : "reduce", &arr[2], &want, dt == DT_bf16 ? general ? 0.3 : 0.004 : dt == DT_f16 ? general ? 0.05 : 0.001 : dt == DT_f32 || dt == DT_c64 ? 1e-6 : 0);
	}
}

/* argmax with ties to the lower index: (v, i) pairs */
static void argmax(void **state)
{
	TIMES(200) {
		int64_t dim[8] = { range(1, 40), range(1, below(2) ? 40 : 3000), 0 }, out[2], w[3] = { 1, below(2), RED_fn };
		if (below(2))
			dim[0] = range(1, 3);
		out[0] = dim[!w[1]];
		struct prog_expr e = { .nin = 4, .nout = 2, .n = 6 };
		uint8_t types[4] = { DT_f32, DT_i32, DT_f32, DT_i32 };
		struct prog_ins ins[6] = {
			{ .fn = ELEM_compare_gt, .from = DT_f32, .to = DT_pred, .src = { 0, 2 } },
			{ .fn = ELEM_compare_eq, .from = DT_f32, .to = DT_pred, .src = { 0, 2 } },
			{ .fn = ELEM_compare_lt, .from = DT_i32, .to = DT_pred, .src = { 1, 3 } },
			{ .fn = ELEM_and, .from = DT_pred, .to = DT_pred, .src = { 5, 6 } },
			{ .fn = ELEM_or, .from = DT_pred, .to = DT_pred, .src = { 4, 7 } },
			{ .fn = ELEM_select, .from = DT_i32, .to = DT_i32, .src = { 8, 1, 3 } },
		};
		struct prog_ins all[7];
		memcpy(all, ins, sizeof ins);
		all[6] = (struct prog_ins){ .fn = ELEM_select, .from = DT_f32, .to = DT_f32, .src = { 8, 0, 2 } };
		e.n = 7;
		uint16_t outs[2] = { 10, 9 };
		e.in_type = types;
		e.ins = all;
		e.out = outs;
		begin(KERN_reduce);
		K.expr = &e;
		attrs(3, w);
		arr[0] = make(DT_f32, 2, dim, below(2), false);
		arr[1] = make(DT_i32, 2, dim, below(2), false);
		fill(&arr[0], -30, 30);
		EACH(&arr[1], ix)
			set(&arr[1], ix, (double)ix[w[1]]);
		int64_t z[1] = { 0 };
		arr[2] = make(DT_f32, 0, z, true, true);
		arr[3] = make(DT_i32, 0, z, true, true);
		set(&arr[2], z, -1e30);
		set(&arr[3], z, 0);
		arr[4] = make(DT_f32, 1, out, below(2), false);
		arr[5] = make(DT_i32, 1, out, below(2), false);
		run(4, 2);
		for (int64_t i = 0; i < out[0]; i++) {
			double best = -INFINITY, where = 0;
			for (int64_t j = 0; j < dim[w[1]]; j++) {
				int64_t jx[2];
				jx[w[1]] = j;
				jx[!w[1]] = i;
				if (get(&arr[0], jx) > best)
					best = get(&arr[0], jx), where = (double)j;
			}
			assert_true(get(&arr[4], &i) == best);
			assert_true(get(&arr[5], &i) == where);
		}
	}
}

static void windows(void **state)
{
	TIMES(400) {
		int r;
		int64_t dim[8], out[8] = { 0 }, w[64];
		shape(&r, dim, 9);
		r = MIN(r, 3);
		bool ok = true, wide = false;
		int longest = r && r <= 2 && below(5) == 0 ? (int)below(r) : -1;          /* more than a strip */
		for (int d = 0; d < r; d++) {
			wide |= d == longest && below(2);
			dim[d] = d != longest ? MIN(dim[d], 12) : wide || below(2) ? range(200, 600) : range(2000, 4500);
			w[d] = d == longest && wide ? range(50, 90) : range(1, below(5) ? 3 : 11);        /* 9 and more: several blocks of sums */
			w[r + d] = range(1, 2);
			w[2 * r + d] = below(4) ? 1 : range(1, 3);
			w[3 * r + d] = below(4) ? 1 : 2;
			w[4 * r + d] = range(-1, 2);
			w[5 * r + d] = range(-1, 2);
			if (d == r - 1 && below(3) == 0) {      /* channels */
				w[d] = w[r + d] = w[2 * r + d] = 1;
				w[4 * r + d] = w[5 * r + d] = 0;
			}
			int64_t n = (dim[d] ? (dim[d] - 1) * w[2 * r + d] + 1 : 0) + w[4 * r + d] + w[5 * r + d], ws = (w[d] - 1) * w[3 * r + d] + 1;
			out[d] = n < ws ? 0 : (n - ws) / w[r + d] + 1;
			ok &= n >= 0;
		}
		if (!ok)
			continue;
		static const enum dtype t[] = { DT_f32, DT_i32, DT_bf16, DT_u8 };
		enum dtype dt = t[below(wide ? 2 : 4)];
		enum redop op = below(2) ? RED_add : RED_max;
		w[6 * r] = op;
		begin(KERN_reduce_window);
		if (below(3) == 0) {
			w[6 * r] = RED_fn;
			K.expr = expr1(op == RED_add ? ELEM_add : ELEM_maximum, dt, dt, 2);
		}
		attrs(6 * r + 1, w);
		arr[0] = make(dt, r, dim, below(2), true);
		arr[1] = make(dt, 0, dim + 7, true, true);
		arr[2] = make(dt, r, out, below(2), false);
		fill(&arr[0], 0, 3);
		int64_t z[1] = { 0 };
		set(&arr[1], z, 1);
		struct ar want = make(DT_f64, r, out, true, false);
		EACH(&want, ox) {
			double acc = 1;
			int64_t nw = 1;
			for (int d = 0; d < r; d++)
				nw *= w[d];
			for (int64_t k = 0; k < nw; k++) {
				int64_t wx[8], jx[8];
				bool in = true;
				index_at(r, w, k, wx);
				for (int d = 0; d < r; d++) {
					int64_t p = ox[d] * w[r + d] + wx[d] * w[3 * r + d] - w[4 * r + d];
					in &= p >= 0 && p % w[2 * r + d] == 0 && p / w[2 * r + d] < dim[d];
					jx[d] = p / w[2 * r + d];
				}
				if (in)
					acc = fold(op, acc, get(&arr[0], jx));
			}
			set(&want, ox, acc);
		}
		run(2, 1);
		same("reduce_window", &arr[2], &want, 0);
	}
}

static void selects(void **state)
{
	TIMES(200) {
		int r = (int)range(1, 3);
		int64_t dim[8] = { 0 }, src[8] = { 0 }, w[64];
		for (int d = 0; d < r; d++) {
			bool plain = below(2);
			dim[d] = range(2, 9);
			w[d] = plain ? 1 : range(1, 3);
			w[r + d] = plain ? 1 : range(1, 2);
			w[2 * r + d] = plain ? 0 : range(0, w[d] - 1);
			w[3 * r + d] = plain ? 0 : range(0, w[d] - 1);
			src[d] = MAX(0, (dim[d] + w[2 * r + d] + w[3 * r + d] - w[d]) / w[r + d] + 1);
			if (dim[d] + w[2 * r + d] + w[3 * r + d] < w[d])
				src[d] = 0;
		}
		w[4 * r] = ELEM_compare_ge;
		w[4 * r + 1] = RED_add;
		begin(KERN_select_and_scatter);
		attrs(4 * r + 2, w);
		arr[0] = make(DT_f32, r, dim, below(2), true);
		arr[1] = make(DT_f32, r, src, below(2), true);
		int64_t z[1] = { 0 };
		arr[2] = make(DT_f32, 0, z, true, true);
		arr[3] = make(DT_f32, r, dim, below(2), false);
		fill(&arr[0], -5, 5);
		fill(&arr[1], -5, 5);
		set(&arr[2], z, 2);
		struct ar want = make(DT_f64, r, dim, true, false);
		EACH(&want, ox)
			set(&want, ox, 2);
		{
			EACH(&arr[1], sx) {
				int64_t nw = 1, best[8];
				bool any = false;
				for (int d = 0; d < r; d++)
					nw *= w[d];
				for (int64_t k = 0; k < nw; k++) {
					int64_t wx[8], jx[8];
					bool in = true;
					index_at(r, w, k, wx);
					for (int d = 0; d < r; d++) {
						jx[d] = sx[d] * w[r + d] + wx[d] - w[2 * r + d];
						in &= jx[d] >= 0 && jx[d] < dim[d];
					}
					if (in && (!any || !(get(&arr[0], best) >= get(&arr[0], jx)))) {
						memcpy(best, jx, sizeof best);
						any = true;
					}
				}
				if (any)
					set(&want, best, get(&want, best) + get(&arr[1], sx));
			}
		}
		run(3, 1);
		same("select_and_scatter", &arr[3], &want, 0);
	}
}

static void scans(void **state)
{
	TIMES(300) {
		int r;
		int64_t dim[8];
		shape(&r, dim, 12);
		if (!r)
			continue;
		if (below(8) == 0)
			r = 1, dim[0] = range(300, 100000);
		else if (below(6) == 0)
			r = 2, dim[0] = range(1, 20), dim[1] = range(1, 9000);
		else if (below(6) == 0)
			r = 2, dim[0] = range(16, 1200), dim[1] = range(1, 90);
		bool backwards = below(4) == 0;      /* rows lie from their last element to their first, in both views */
		if (backwards)
			r = 2, dim[0] = range(16, 300), dim[1] = range(2, 40);
		static const enum dtype t[] = { DT_f32, DT_i32, DT_bf16, DT_i64, DT_f64, DT_i16 };
		enum dtype dt = t[below(6)];
		int64_t w[3] = { backwards ? 1 : below(r), below(2), below(2) ? RED_add : RED_max };
		begin(KERN_cumulative);
		attrs(3, w);
		arr[0] = make(dt, r, dim, backwards || below(2), true);
		arr[1] = make(dt, r, dim, backwards || below(2), false);
		for (int i = 0; i < 2 && backwards; i++) {
			arr[i].v.stride[1] = -1;
			arr[i].v.off += dim[1] - 1;
		}
		fill(&arr[0], dt == DT_bf16 ? 0 : -1, dt == DT_bf16 ? 0 : 1);
		run(1, 1);
		struct ar want = make(DT_f64, r, dim, true, false);
		EACH(&want, ox) {
			int64_t n = dim[w[0]], i = w[1] ? n - 1 - ox[w[0]] : ox[w[0]];
			(void)i;
			int64_t px[8];
			memcpy(px, ox, sizeof px);
			px[w[0]] += w[1] ? 1 : -1;
			if (w[1])
				continue;
			double v = get(&arr[0], ox);
			set(&want, ox, px[w[0]] < 0 ? v : fold((enum redop)w[2], get(&want, px), v));
		}
		if (w[1]) {
			for (int64_t c = count(&want); c-- > 0;) {
				int64_t ox2[8], px[8];
				index_at(r, dim, c, ox2);
				memcpy(px, ox2, sizeof px);
				px[w[0]]++;
				double v = get(&arr[0], ox2);
				set(&want, ox2, px[w[0]] >= dim[w[0]] ? v : fold((enum redop)w[2], get(&want, px), v));
			}
		}
		if (dt == DT_i16)        /* it wraps */
			EACH(&want, wx)
				set(&want, wx, (double)(int16_t)(int64_t)get(&want, wx));
		same("cumulative", &arr[1], &want, 0);
	}
}

static void dots(void **state)
{
	TIMES(400) {
		int nb = (int)range(0, 2), nc = (int)range(0, 2), nm = (int)range(0, 2), nn = (int)range(0, 2);
		int64_t big = below(10) == 0 ? 150 : 9, bd[2], cd[2], md[2], nd[2], ld[8] = { 0 }, rd[8] = { 0 }, od[8] = { 0 };
		for (int i = 0; i < 2; i++) {
			bd[i] = range(1, 3);
			cd[i] = below(12) ? range(1, i ? 6 : big) : i ? 0 : 300;
			md[i] = range(1, i ? 4 : big);
			nd[i] = range(1, i ? 4 : big);
		}
		int64_t *of[] = { bd, cd, md, nd };
		int which = (int)below(4), has[] = { nb, nc, nm, nn };
		if (below(12) == 0 && has[which]) {  /* no elements, beside many of the same kind */
			int i = (int)below(has[which]);
			of[which][i] = 0;
			of[which][1 - i] = range(1, 20000);
		}
		/* shuffle dimension kinds of each side */
		int lk[6], rk[6], nl = 0, nr = 0;
		for (int i = 0; i < nb; i++)
			lk[nl++] = rk[nr++] = i;
		for (int i = 0; i < nc; i++)
			lk[nl++] = rk[nr++] = 10 + i;
		for (int i = 0; i < nm; i++)
			lk[nl++] = 20 + i;
		for (int i = 0; i < nn; i++)
			rk[nr++] = 30 + i;
		/* free dimensions keep their order */
		for (int s = 0; s < 2; s++) {
			int *k = s ? rk : lk, n = s ? nr : nl;
			for (int i = n - 1; i > 0; i--) {
				int j = (int)below(i + 1), t = k[i];
				k[i] = k[j];
				k[j] = t;
			}
			for (int i = 0; i < n; i++)
				for (int j = i + 1; j < n; j++)
					if (k[i] / 10 == k[j] / 10 && k[i] >= 20 && k[i] > k[j]) {
						int t = k[i];
						k[i] = k[j];
						k[j] = t;
					}
		}
		int64_t w[32];
		int nw = 0, no = 0;
		w[nw++] = nb;
		for (int s = 0; s < 2; s++)
			for (int i = 0; i < nb; i++)
				for (int d = 0; d < (s ? nr : nl); d++)
					if ((s ? rk : lk)[d] == i)
						w[nw++] = d;
		w[nw++] = nc;
		for (int s = 0; s < 2; s++)
			for (int i = 0; i < nc; i++)
				for (int d = 0; d < (s ? nr : nl); d++)
					if ((s ? rk : lk)[d] == 10 + i)
						w[nw++] = d;
		w[nw++] = 0;
		w[nw++] = DT_token;
		w[nw++] = DT_token;
		w[nw++] = DT_token;
		w[nw++] = 1;
		for (int d = 0; d < nl; d++)
			ld[d] = lk[d] < 10 ? bd[lk[d]] : lk[d] < 20 ? cd[lk[d] - 10] : md[lk[d] - 20];
		for (int d = 0; d < nr; d++)
			rd[d] = rk[d] < 10 ? bd[rk[d]] : rk[d] < 20 ? cd[rk[d] - 10] : nd[rk[d] - 30];
		for (int i = 0; i < nb; i++)
			od[no++] = bd[i];
		for (int i = 0; i < nm; i++)
			od[no++] = md[i];
		for (int i = 0; i < nn; i++)
			od[no++] = nd[i];
		static const enum dtype t[][3] = { { DT_f32, DT_f32, DT_f32 }, { DT_f32, DT_f32, DT_f32 }, { DT_bf16, DT_bf16, DT_f32 }, { DT_bf16, DT_bf16, DT_bf16 }, { DT_i8, DT_i8, DT_i32 },
			{ DT_f64, DT_f64, DT_f64 }, { DT_i32, DT_i32, DT_i32 }, { DT_c64, DT_c64, DT_c64 }, { DT_i64, DT_i64, DT_i64 }, { DT_f8e5m2, DT_f16, DT_f32 }, { DT_u8, DT_i8, DT_i32 }, { DT_c128, DT_c128, DT_c128 } };
		const enum dtype *ty = t[below(NELEM(t))];
		begin(KERN_dot);
		attrs(nw, w);
		arr[0] = make(ty[0], nl, ld, below(2), true);
		arr[1] = make(ty[1], nr, rd, below(2), true);
		arr[2] = make(ty[2], no, od, below(2), false);
		int lo = ty[0] == DT_u8 ? 0 : -3;
		fill(&arr[0], lo, 3);
		fill(&arr[1], lo, 3);
		run(2, 1);
		/* Where the contracted elements of each side are in its dense copy, from its first. */
		int64_t ck = (nc > 0 ? cd[0] : 1) * (nc > 1 ? cd[1] : 1), *lc = arena_alloc(&A, sizeof *lc * (size_t)(ck + 1)), *rc = arena_alloc(&A, sizeof *rc * (size_t)(ck + 1));
		struct ar l = copy_of(&arr[0]), rr = copy_of(&arr[1]);
		for (int64_t c = 0; c < ck; c++) {
			int64_t cx[2] = { nc > 1 ? c / cd[1] : c, nc > 1 ? c % cd[1] : 0 };
			for (int d = 0; d < nl; d++)
				lc[c] += lk[d] >= 10 && lk[d] < 20 ? cx[lk[d] - 10] * l.v.stride[d] : 0;
			for (int d = 0; d < nr; d++)
				rc[c] += rk[d] >= 10 && rk[d] < 20 ? cx[rk[d] - 10] * rr.v.stride[d] : 0;
		}
		EACH(&arr[2], ox) {
			double sum = 0;
			int64_t ix[8], jx[8];
			for (int d = 0; d < nl; d++)
				ix[d] = lk[d] < 10 ? ox[lk[d]] : lk[d] < 20 ? 0 : ox[nb + lk[d] - 20];
			for (int d = 0; d < nr; d++)
				jx[d] = rk[d] < 10 ? ox[rk[d]] : rk[d] < 20 ? 0 : ox[nb + nm + rk[d] - 30];
			const double *lp = (const double *)at(&l, ix), *rp = (const double *)at(&rr, jx);
			for (int64_t c = 0; c < ck; c++)
				sum += lp[lc[c]] * rp[rc[c]];
			double got = get(&arr[2], ox);
			if (fabs(got - sum) > (ty[2] == DT_bf16 ? 0.005 * fabs(sum) : 0))
				fail_msg("dot of %s: %g, not %g", dtype_info[ty[0]].name, got, sum);
		}
	}
}

/* Products with a narrow side, in every type that has loops of its own: integers of any bits modulo those of the result, floats
 * with infinities and NaN among them. */
static void narrow_products(void **state)
{
	static const enum dtype ints[] = { DT_i8, DT_i16, DT_i32, DT_u8, DT_u16, DT_u32, DT_i64, DT_u64 };
	static const enum dtype floats[] = { DT_f16, DT_bf16, DT_f32, DT_f64 };
	TIMES(500) {
		int cls = (int)below(3);
		enum dtype ty[3];
		for (int i = 0; i < 3; i++) {
			bool as = i && below(3);
			ty[i] = as ? ty[0] : cls == 0 ? ints[below(NELEM(ints))] : cls == 1 ? floats[below(NELEM(floats))] : DT_c64;
		}
		if (cls == 2 && below(3) == 0)
			ty[2] = DT_c128;
		if (ty[2] == DT_c128 && below(2))
			ty[0] = ty[1] = DT_c128;
		bool wide = cls == 0 && dtype_info[ty[2]].bits == 64, swap = below(2), turn = below(2);
		int64_t few = below(8) ? range(1, 10) : range(0, 40), many = below(3) ? range(1, 300) : range(300, 1200), b = below(3) ? 1 : range(0, 4);
		int64_t m = swap ? many : few, n = swap ? few : below(4) ? many : range(0, 3), k = below(8) ? range(1, 90) : below(3) ? range(90, 600) : range(0, 1);
		if (below(12) == 0)
			m = n = 1, k = range(1000, 30000);
		int64_t ld[4] = { b, m, k }, rd[4] = { b, turn ? n : k, turn ? k : n }, od[4] = { b, m, n };
		begin(KERN_dot);
		attrs(12, (int64_t[]){ 1, 0, 0, 1, 2, turn ? 2 : 1, 0, DT_token, DT_token, DT_token, 1, 0 });
		arr[0] = make(ty[0], 3, ld, below(2), true);
		arr[1] = make(ty[1], 3, rd, below(2), true);
		arr[2] = make(ty[2], 3, od, below(2), false);
		for (int i = 0; i < 2 && cls; i++) {
			fill(&arr[i], -3, 3);
			if (cls == 2)
				EACH(&arr[i], ix)
					set_imag(&arr[i], ix, (double)range(-3, 3));
			int64_t ix[8] = { 0 };
			if (count(&arr[i]) && below(3) == 0) {
				index_at(3, arr[i].v.dim, below(count(&arr[i])), ix);
				(cls == 2 && below(2) ? set_imag : set)(&arr[i], ix, below(2) ? INFINITY : NAN);
			}
		}
		run(2, 1);
		int parts = cls == 2 ? 2 : 1;
		struct ar part[2][2];            /* [side][part] as doubles; integers keep their bits in them */
		for (int i = 0; i < 2; i++)
			for (int q = 0; q < parts; q++) {
				part[i][q] = make(cls ? DT_f64 : DT_i64, 3, arr[i].v.dim, true, false);
				EACH(&arr[i], ix) {
					const char *p = at(&arr[i], ix);
					if (cls == 0)
						kern_elem(ELEM_convert, arr[i].v.dtype, DT_i64)(1, at(&part[i][q], ix), p, NULL, NULL);
					else if (cls == 1)
						set(&part[i][q], ix, get(&arr[i], ix));
					else
						set(&part[i][q], ix, ty[i] == DT_c64 ? (double)((const float *)(const void *)p)[q] : ((const double *)(const void *)p)[q]);
				}
			}
		EACH(&arr[2], ox) {
			if (many > 100 && ox[1] + ox[2] > 3 && below(8))
				continue;
			uint64_t bits = 0;
			double sum[2] = { 0 }, mag = 0;
			for (int64_t c = 0; c < k; c++) {
				int64_t lx[8] = { ox[0], ox[1], c }, rx[8] = { ox[0], turn ? ox[2] : c, turn ? c : ox[2] };
				if (cls == 0) {
					bits += *(const uint64_t *)(const void *)at(&part[0][0], lx) * *(const uint64_t *)(const void *)at(&part[1][0], rx);
					continue;
				}
				double x[2] = { 0 }, y[2] = { 0 };
				for (int q = 0; q < parts; q++) {
					memcpy(&x[q], at(&part[0][q], lx), 8);
					memcpy(&y[q], at(&part[1][q], rx), 8);
				}
				sum[0] += x[0] * y[0];
				mag += fabs(x[0] * y[0]);
				if (cls == 2) {
					sum[0] -= x[1] * y[1];
					sum[1] += x[0] * y[1];
					sum[1] += x[1] * y[0];
					mag += fabs(x[0] * y[1]) + fabs(x[1] * y[0]) + fabs(x[1] * y[1]);
				}
			}
			const char *p = at(&arr[2], ox);
			int es = dtype_info[ty[2]].bytes;
			if (cls == 0 && memcmp(p, &bits, (size_t)es))
				fail_msg("%s x %s -> %s of b%d m%d n%d k%d%s: other bits", dtype_info[ty[0]].name, dtype_info[ty[1]].name, dtype_info[ty[2]].name,
				         (int)b, (int)m, (int)n, (int)k, wide ? ", wide" : "");
			for (int q = 0; q < parts && cls; q++) {
				double got = cls == 1 ? get(&arr[2], ox) : ty[2] == DT_c64 ? (double)((const float *)(const void *)p)[q] : ((const double *)(const void *)p)[q];
				double tol = (ty[2] == DT_bf16 ? 0x1p-8 : ty[2] == DT_f16 ? 0x1p-11 : 0) * fabs(sum[q]) + 1e-5 * mag;
				if (got != sum[q] && !(isnan(got) && isnan(sum[q])) && !(isfinite(sum[q]) && fabs(got - sum[q]) <= tol))
					fail_msg("%s x %s -> %s of b%d m%d n%d k%d: %g, not %g", dtype_info[ty[0]].name, dtype_info[ty[1]].name, dtype_info[ty[2]].name,
					         (int)b, (int)m, (int)n, (int)k, got, sum[q]);
			}
		}
	}
}

static void sorts(void **state)
{
	TIMES(300) {
		int r = (int)range(1, 3), nop = (int)range(1, 3);
		int64_t dim[8] = { 0 };
		for (int d = 0; d < r; d++)
			dim[d] = range(1, 9);
		int64_t sd = below(r);
		dim[sd] = below(4) ? range(1, 60) : range(1000, 5000);
		if (below(40) == 0) {
			r = (int)range(1, 2);
			sd = below(r);
			dim[0] = dim[r - 1] = range(1, 3);
			dim[sd] = range(131072, 140000);
		}
		static const enum dtype t[] = { DT_f32, DT_i32, DT_bf16, DT_u8, DT_f64, DT_i64 };
		enum dtype dt = t[below(6)];
		bool down = below(2), opaque = below(4) == 0 && dim[0] < 100000;
		/* two equal halves of the comparator that the recogniser does not know: lt & lt */
		struct prog_expr *e = expr1(down ? ELEM_total_gt : ELEM_total_lt, dt, DT_pred, 2 * nop);
		if (opaque) {
			struct prog_ins *two = arena_alloc(&A, 2 * sizeof *two);
			two[0] = e->ins[0];
			two[1] = (struct prog_ins){ .fn = ELEM_and, .from = DT_pred, .to = DT_pred, .src = { (uint16_t)(2 * nop), (uint16_t)(2 * nop) } };
			e->ins = two;
			e->n = 2;
			e->out[0] = (uint16_t)(2 * nop + 1);
		}
		begin(KERN_sort);
		K.expr = e;
		int64_t w[2] = { sd, 1 };
		attrs(2, w);
		for (int i = 0; i < nop; i++) {
			enum dtype ti = i ? DT_i32 : dt;
			e->in_type[2 * i] = e->in_type[2 * i + 1] = ti;
			arr[i] = make(ti, r, dim, below(2), i == 0);
			arr[nop + i] = make(ti, r, dim, below(2), false);
			if (i == 0)
				fill(&arr[0], dt == DT_u8 ? 0 : -20, 20);
			else
				EACH(&arr[i], ix)
					set(&arr[i], ix, (double)(ix[sd] * i));
		}
		run(nop, nop);
		EACH(&arr[nop], ox) {
			if (!ox[sd])
				continue;
			int64_t px[8];
			memcpy(px, ox, sizeof px);
			px[sd]--;
			double a = get(&arr[nop], px), b = get(&arr[nop], ox);
			assert_true(down ? a >= b : a <= b);
			if (nop > 1) {
				assert_true(a != b || get(&arr[nop + 1], px) < get(&arr[nop + 1], ox));
				px[sd] = (int64_t)get(&arr[nop + 1], ox);
				assert_true(get(&arr[0], px) == b);
			}
			if (nop > 2)
				assert_true(get(&arr[nop + 2], ox) == 2 * get(&arr[nop + 1], ox));
		}
	}
}

static void top_ks(void **state)
{
	TIMES(200) {
		int r = (int)range(1, 3);
		int64_t dim[8] = { 0 }, out[8] = { 0 };
		for (int d = 0; d < r; d++)
			out[d] = dim[d] = range(1, 6);
		dim[r - 1] = below(2) ? range(1, 100) : range(2000, 9000);
		int64_t k = below(2) ? range(0, MIN(dim[r - 1], 8)) : range(0, dim[r - 1]);
		out[r - 1] = k;
		static const enum dtype t[] = { DT_f32, DT_i32, DT_bf16, DT_f64 };
		enum dtype dt = t[below(4)];
		begin(KERN_top_k);
		attrs(1, &k);
		arr[0] = make(dt, r, dim, below(2), true);
		arr[1] = make(dt, r, out, below(2), false);
		arr[2] = make(DT_i32, r, out, below(2), false);
		fill(&arr[0], -50, 50);
		run(1, 2);
		EACH(&arr[1], ox) {
			int64_t px[8];
			memcpy(px, ox, sizeof px);
			double v = get(&arr[1], ox), at_ = get(&arr[2], ox);
			px[r - 1] = (int64_t)at_;
			assert_true(get(&arr[0], px) == v);
			/* each comes after the one before it, and before the last come k - 1 of all: they are the first k */
			if (ox[r - 1]) {
				px[r - 1] = ox[r - 1] - 1;
				double u = get(&arr[1], px);
				assert_true(u > v || (u == v && get(&arr[2], px) < at_));
			}
			if (ox[r - 1] + 1 < k)
				continue;
			int64_t before = 0;
			for (int64_t j = 0; j < dim[r - 1]; j++) {
				px[r - 1] = j;
				double u = get(&arr[0], px);
				before += u > v || (u == v && j < (int64_t)at_);
			}
			assert_int_equal(before, ox[r - 1]);
		}
	}
}

static void gathers(void **state)
{
	TIMES(400) {
		/* operand [D0][D1][D2], indices [..batch..][ncomp], windows over some dimensions */
		int64_t od[8] = { range(1, 6), range(1, 6), below(4) ? range(1, 6) : range(15, 70) }, size[3], bd[8], nbatch = range(0, 2), ncomp = range(1, 3);
		bool collapsed[3];
		int64_t w[64], map[3] = { 0, 1, 2 };
		for (int i = 2; i > 0; i--) {
			int j = (int)below(i + 1);
			int64_t t = map[i];
			map[i] = map[j];
			map[j] = t;
		}
		/* dimension 0 of the operand may go along with the first batch dimension */
		bool batch = nbatch > 0 && below(3) == 0;
		if (batch) {
			ncomp = range(1, 2);
			map[0] = 1 + below(2);
			map[1] = 3 - map[0];
		}
		int nw = 0, ncol = 0;
		for (int d = 0; d < 3; d++) {
			collapsed[d] = below(2) || (batch && d == 0);
			size[d] = collapsed[d] ? 1 : range(1, od[d]);
			ncol += collapsed[d];
		}
		bool scatter = below(2);
		int64_t ivd = range(0, nbatch), idim[8] = { 0 }, udim[8] = { 0 };
		int ir = 0, ur = 0, b = 0;
		for (int d = 0; d <= nbatch; d++)
			idim[ir++] = d == ivd ? ncomp : (bd[b] = batch && b == 0 ? od[0] : range(1, below(6) ? 5 : 20), bd[b++]);
		/* update or result dimensions: batch and window mixed */
		int nwin = 3 - ncol, kinds[8], bi = 0, wi = 0;
		int64_t wdim[3];
		for (int d = 0, k = 0; d < 3; d++)
			if (!collapsed[d])
				wdim[k++] = size[d];
		while (bi + wi < nbatch + nwin) {
			bool win = bi == nbatch || (wi < nwin && below(2));
			kinds[ur] = win ? 1 : 0;
			udim[ur++] = win ? wdim[wi++] : bd[bi++];
		}
		w[nw++] = nwin;
		for (int d = 0; d < ur; d++)
			if (kinds[d])
				w[nw++] = d;
		w[nw++] = ncol - batch;
		for (int d = batch; d < 3; d++)
			if (collapsed[d])
				w[nw++] = d;
		w[nw++] = batch;
		if (batch)
			w[nw++] = 0;
		w[nw++] = batch;
		if (batch)
			w[nw++] = ivd == 0;
		w[nw++] = ncomp;
		for (int i = 0; i < ncomp; i++)
			w[nw++] = map[i];
		w[nw++] = ivd;
		static const enum dtype types[] = { DT_f32, DT_i32, DT_f64, DT_i64, DT_i16, DT_bf16, DT_f16 };
		enum dtype dt = types[below(NELEM(types))], it = below(2) ? DT_i32 : DT_u8;
		enum redop op = (enum redop[]){ RED_add, RED_fn, RED_max, RED_min }[below(4)];
		if (scatter) {
			w[nw++] = 0;
			w[nw++] = op;
		} else {
			w[nw++] = 3;
			for (int d = 0; d < 3; d++)
				w[nw++] = size[d];
			w[nw++] = 0;
		}
		begin(scatter ? KERN_scatter : KERN_gather);
		attrs(nw, w);
		struct ar op_ = make(dt, 3, od, below(2), !scatter), idx = make(it, ir, idim, below(2), true), up = make(dt, ur, udim, below(2), scatter);
		fill(&op_, -9, 9);
		fill(&up, -9, 9);
		fill(&idx, it == DT_u8 ? 0 : -2, 7);
		arr[0] = scatter ? idx : op_;
		arr[1] = scatter ? up : idx;
		arr[2] = scatter ? op_ : up;
		struct ar want = copy_of(&op_);
		EACH(&up, ux) {
			int64_t full[3] = { 0 }, start[3] = { 0 }, bx[4], ix[8];
			int nbx = 0, k = 0;
			for (int d = 0; d < ur; d++)
				if (!kinds[d])
					bx[nbx++] = ux[d];
			for (int d = 0, j = 0; d < 3; d++)
				if (!collapsed[d]) {
					while (!kinds[j])
						j++;
					full[d] = ux[j++];
				}
			bool in = true;
			for (int c = 0; c < ncomp; c++) {
				k = 0;
				for (int d = 0; d < ir; d++)
					ix[d] = d == ivd ? c : bx[k++];
				int64_t v = (int64_t)get(&idx, ix);
				in &= v >= 0 && v <= od[map[c]] - size[map[c]];
				start[map[c]] = MAX(0, MIN(v, od[map[c]] - size[map[c]]));
			}
			if (batch)
				start[0] = bx[0];
			for (int d = 0; d < 3; d++)
				full[d] += start[d];
			if (scatter) {
				if (in && op == RED_add)
					set(&want, full, get(&want, full) + get(&up, ux));
				else if (in && op == RED_fn)
					set(&want, full, get(&up, ux));
				else if (in)
					set(&want, full, (op == RED_max ? fmax : fmin)(get(&want, full), get(&up, ux)));
			} else {
				set(&want, full, get(&op_, full));
			}
		}
		run(2, 1);
		if (scatter && op != RED_fn) {
			same("scatter", &arr[2], &want, 0);
		} else if (scatter) {
			/* rows are done in order, elements of a row once: the last wins, as in the loop if windows come last */
			bool last = true;
			for (int d = 0; d + 1 < ur; d++)
				last &= kinds[d] <= kinds[d + 1];
			if (last)
				same("scatter", &arr[2], &want, 0);
		} else {
			EACH(&up, vx) {
				int64_t full[3] = { 0 }, bx[4], ix[8];
				int nbx = 0;
				for (int d = 0; d < ur; d++)
					if (!kinds[d])
						bx[nbx++] = vx[d];
				for (int d = 0, j = 0; d < 3; d++)
					if (!collapsed[d]) {
						while (!kinds[j])
							j++;
						full[d] = vx[j++];
					}
				for (int c = 0; c < ncomp; c++) {
					int k = 0;
					for (int d = 0; d < ir; d++)
						ix[d] = d == ivd ? c : bx[k++];
					int64_t v = (int64_t)get(&idx, ix);
					full[map[c]] += MAX(0, MIN(v, od[map[c]] - size[map[c]]));
				}
				if (batch)
					full[0] = bx[0];
				assert_true(get(&up, vx) == get(&op_, full));
			}
		}
	}
}

/* One element a row: every type and reducer, its strip for each update in turn. */
static void single_elements(void **state)
{
	static const enum dtype types[] = { DT_pred, DT_i4, DT_u2, DT_i8, DT_i16, DT_i32, DT_i64, DT_u8, DT_u16, DT_u32, DT_u64, DT_f16, DT_bf16, DT_f32,
	                                    DT_f64, DT_f8e5m2, DT_c64, DT_c128 };
	static const enum dtype index[] = { DT_i32, DT_i32, DT_i64, DT_u8, DT_u32, DT_i16 };
	static const enum redop ops[] = { RED_fn, RED_add, RED_mul, RED_min, RED_max, RED_and, RED_or, RED_xor };
	for (size_t t = 0; t < NELEM(types) * NELEM(ops); t++) TIMES(8) {
		enum dtype dt = types[t / NELEM(ops)], it = index[below(NELEM(index))];
		enum redop op = ops[t % NELEM(ops)];
		int es = dtype_info[dt].bytes, cls = dtype_info[dt].cls;
		kern_strip *f = op == RED_fn ? kern_elem(ELEM_convert, dt, dt) : kern_elem(redop_elem[op], dt, dt);
		if (!f)
			continue;
		/* of one dimension; of two; of one along with a batch */
		int how = (int)below(3), r = how ? 2 : 1, nb = how ? 2 : 1, nc = how == 1 ? 2 : 1;
		int64_t od[8] = { how == 2 ? range(1, 3) : range(0, 9) }, bd[8] = { how == 2 ? od[0] : range(0, 3) }, id[8] = { 0 }, w[32];
		od[1] = how ? range(0, 30) : 0;
		bd[nb - 1] = below(2) ? range(0, 20) : range(250, 600);
		int64_t ivd = range(0, nb);
		for (int d = 0, k = 0; d <= nb; d++)
			id[d] = d == ivd ? nc : bd[k++];
		int nw = 0;
		w[nw++] = 0;                     /* no window dimensions; inserted; batching of operand and indices; map */
		w[nw++] = how == 1 ? 2 : 1;
		w[nw++] = how == 2 ? 1 : 0;
		if (how == 1)
			w[nw++] = 1;
		for (int side = 0; side < 2; side++) {
			w[nw++] = how == 2;
			if (how == 2)
				w[nw++] = side && ivd == 0;
		}
		w[nw++] = nc;
		w[nw++] = how == 2 ? 1 : 0;
		if (how == 1)
			w[nw++] = 1;
		w[nw++] = ivd;
		w[nw++] = 0;
		w[nw++] = op;
		begin(KERN_scatter);
		attrs(nw, w);
		arr[0] = make(it, nb + 1, id, below(2), true);
		arr[1] = make(dt, nb, bd, below(2), true);
		arr[2] = make(dt, r, od, below(2), false);
		bool raw = cls != DT_PRED && dtype_info[dt].bits >= 8 && below(2);         /* what lies there: any bits */
		for (int i = 1; i < 3 && !raw; i++)
			fill(&arr[i], cls == DT_PRED || cls == DT_UINT ? 0 : -2, cls == DT_PRED ? 1 : 2);
		fill(&arr[0], it == DT_u8 || it == DT_u32 ? 0 : -2, (int)(how ? od[1] : od[0]) + 1);
		struct ar want = arr[2];
		want.base = arena_copy(&A, arr[2].base, arr[2].bytes);
		EACH(&arr[1], ux) {
			int64_t ix[8], full[8] = { how == 2 ? ux[0] : 0 };
			bool in = true;
			for (int c = 0; c < nc; c++) {
				int to = how == 2 ? 1 : c;
				for (int d = 0, k = 0; d <= nb; d++)
					ix[d] = d == ivd ? c : ux[k++];
				full[to] = (int64_t)get(&arr[0], ix);
				in &= full[to] >= 0 && full[to] < od[to];
			}
			if (in && op == RED_fn)
				memcpy(at(&want, full), at(&arr[1], ux), (size_t)es);
			else if (in)
				f(1, at(&want, full), at(&want, full), at(&arr[1], ux), NULL);
		}
		run(2, 1);
		EACH(&want, ix) {
			double x, y;
			bool nan = cls == DT_FLOAT && (x = get(&want, ix), y = get(&arr[2], ix), isnan(x) && isnan(y));
			for (int q = 0; q < 2 && cls == DT_COMPLEX; q++) {
				x = es == 8 ? (double)((const float *)(const void *)at(&want, ix))[q] : ((const double *)(const void *)at(&want, ix))[q];
				y = es == 8 ? (double)((const float *)(const void *)at(&arr[2], ix))[q] : ((const double *)(const void *)at(&arr[2], ix))[q];
				nan |= isnan(x) && isnan(y);
			}
			if (!nan && memcmp(at(&want, ix), at(&arr[2], ix), (size_t)es))
				fail_msg("scatter '%s' of %s at %d,%d of [%d,%d], %d indices: %g, not %g", redop_name[op], dtype_info[dt].name, (int)ix[0], (int)ix[1],
				         (int)od[0], (int)od[1], (int)count(&arr[1]), get(&arr[2], ix), get(&want, ix));
		}
	}
}

static void convolutions(void **state)
{
	TIMES(250) {
		bool image = below(3) == 0;      /* as models have them: features side by side, rows that are multiples of a kernel's, read where they lie */
		int ns = image ? 2 : (int)range(0, 2), r = ns + 2;
		int64_t fg = below(3) ? 1 : range(2, 6), bg = fg == 1 && below(4) == 0 ? 2 : 1;
		int64_t ic = below(3) == 0 ? 1 : below(3) ? range(1, 4) : range(8, 36), of = fg * bg * (below(2) ? 1 : below(3) ? range(1, 3) : range(8, 40)), batch = bg * range(1, 3);
		int64_t in[8], ker[8], out[8], stride[2], lo[2], hi[2], ld[2], rd[2], rev[2], perm[3][8], w[64], dims[3][8] = { { 0 } };
		if (image) {
			fg = bg = 1;
			ic = range(3, 12);
			of = range(9, 70);
			batch = range(1, 2);
		}
		in[0] = batch;
		in[1] = ic * fg;
		ker[0] = ic;
		ker[1] = of;
		out[0] = batch / bg;
		out[1] = of;
		bool ok = true;
		for (int i = 0; i < ns; i++) {
			in[2 + i] = range(1, 12);
			ker[2 + i] = range(1, 3);
			stride[i] = range(1, 2);
			lo[i] = range(-1, 2);
			hi[i] = range(0, 2);
			ld[i] = below(3) ? 1 : 2;
			rd[i] = below(3) ? 1 : 2;
			rev[i] = below(2);
			if (image) {
				in[2 + i] = i < ns - 1 ? range(1, 4) : below(4) ? 14 * range(1, 2) : range(112, 130);
				ker[2 + i] = i == ns - 1 ? range(3, 7) : range(1, 3);
				lo[i] = (ker[2 + i] - 1) / 2;
				hi[i] = ker[2 + i] - 1 - lo[i];
				ld[i] = rd[i] = stride[i] = 1;
			}
			int64_t n = (in[2 + i] - 1) * ld[i] + 1 + lo[i] + hi[i], kw = (ker[2 + i] - 1) * rd[i] + 1;
			out[2 + i] = n < kw ? 0 : (n - kw) / stride[i] + 1;
			ok &= out[2 + i] > 0;
		}
		if (!ok)
			continue;
		int nw = 0;
		for (int k = 0; k < 3; k++) {
			for (int d = 0; d < r; d++)
				perm[k][d] = d;
			for (int i = r - 1; i > 0; i--) {
				int j = (int)below(i + 1);
				int64_t t = perm[k][i];
				perm[k][i] = perm[k][j];
				perm[k][j] = t;
			}
			for (int d = 1; image && k != 1 && d < r; d++)
				perm[k][d] = d == 1 ? r - 1 : d - 1;
			perm[k][0] = image && k != 1 ? 0 : perm[k][0];
			w[nw++] = r;
			for (int d = 0; d < r; d++) {
				w[nw++] = perm[k][d];
				dims[k][perm[k][d]] = (k == 0 ? in : k == 1 ? ker : out)[d];
			}
		}
		const int64_t *lists[6] = { stride, lo, hi, ld, rd, rev };
		for (int k = 0; k < 6; k++) {
			w[nw++] = ns;
			for (int i = 0; i < ns; i++)
				w[nw++] = lists[k][i];
		}
		w[nw++] = fg;
		w[nw++] = bg;
		w[nw++] = 0;
		static const enum dtype t[][2] = { { DT_f32, DT_f32 }, { DT_bf16, DT_f32 }, { DT_i8, DT_i32 }, { DT_f64, DT_f64 }, { DT_c64, DT_c64 } };
		const enum dtype *ty = t[image ? 0 : below(5)];
		begin(KERN_convolution);
		attrs(nw, w);
		arr[0] = make(ty[0], r, dims[0], image || below(2), true);
		arr[1] = make(ty[0], r, dims[1], below(2), true);
		arr[2] = make(ty[1], r, dims[2], below(2), false);
		fill(&arr[0], -3, 3);
		fill(&arr[1], -3, 3);
		run(2, 1);
		EACH(&arr[2], oxp) {
			int64_t o[8], nk = 1, x[8], y[8];
			double sum = 0;
			for (int d = 0; d < r; d++)
				o[d] = oxp[perm[2][d]];
			for (int i = 0; i < ns; i++)
				nk *= ker[2 + i];
			for (int64_t k = 0; k < nk; k++)
				for (int64_t c = 0; c < ic; c++) {
					int64_t kx[2] = { 0 };
					bool inside = true;
					index_at(ns, ker + 2, k, kx);
					x[perm[0][0]] = bg > 1 ? o[1] / (of / bg) * (batch / bg) + o[0] : o[0];
					x[perm[0][1]] = o[1] / (of / fg) * ic + c;
					if (fg == 1)
						x[perm[0][1]] = c;
					y[perm[1][0]] = c;
					y[perm[1][1]] = o[1];
					for (int i = 0; i < ns; i++) {
						int64_t p = o[2 + i] * stride[i] + kx[i] * rd[i] - lo[i];
						inside &= p >= 0 && p % ld[i] == 0 && p / ld[i] < in[2 + i];
						x[perm[0][2 + i]] = p / ld[i];
						y[perm[1][2 + i]] = rev[i] ? ker[2 + i] - 1 - kx[i] : kx[i];
					}
					if (inside)
						sum += get(&arr[0], x) * get(&arr[1], y);
				}
			if (get(&arr[2], oxp) != sum)
				fail_msg("convolution of %s: %g, not %g", dtype_info[ty[0]].name, get(&arr[2], oxp), sum);
		}
	}
}

static void factorisations(void **state)
{
	TIMES(100) {
		/* most are small; some are cut into several parts, of which the last is a part */
		int64_t n = below(8) ? range(1, 30) : range(31, 110), m = n > 30 && below(2) ? range(60, 140) : range(1, 9), dim[8] = { range(1, 3), n, n, 0 }, w[4];
		enum dtype dt = below(2) ? DT_f32 : DT_f64;
		double tol = dt == DT_f32 ? 2e-3 : 1e-9;
		/* a = g g^T + n */
		struct ar g = make(DT_f64, 3, dim, true, false), a = make(dt, 3, dim, below(2), false);
		fill(&g, -2, 2);
		EACH(&a, ax) {
			double s = ax[1] == ax[2] ? (double)n : 0;
			for (int64_t k = 0; k < n; k++)
				s += get(&g, (int64_t[]){ ax[0], ax[1], k }) * get(&g, (int64_t[]){ ax[0], ax[2], k });
			set(&a, ax, s);
		}
		begin(KERN_cholesky);
		w[0] = below(2);
		attrs(1, w);
		arr[0] = a;
		arr[1] = make(dt, 3, dim, below(2), false);
		run(1, 1);
		struct ar l = arr[1];
		{
			EACH(&a, ix) {
				double s = 0;
				for (int64_t k = 0; k < n; k++)
					s += w[0] ? get(&l, (int64_t[]){ ix[0], ix[1], k }) * get(&l, (int64_t[]){ ix[0], ix[2], k })
					          : get(&l, (int64_t[]){ ix[0], k, ix[1] }) * get(&l, (int64_t[]){ ix[0], k, ix[2] });
				assert_true(fabs(s - get(&a, ix)) < tol * (double)n * 10);
			}
		}
		bool left = below(2);
		w[1] = w[0];
		w[0] = left;
		w[2] = below(4) == 0;
		w[3] = range(1, 3);
		int64_t bd[8] = { dim[0], left ? n : m, left ? m : n, 0 };
		begin(KERN_triangular_solve);
		attrs(4, w);
		arr[0] = l;
		arr[1] = make(dt, 3, bd, below(2), false);
		arr[2] = make(dt, 3, bd, below(2), false);
		fill(&arr[1], -3, 3);
		if (w[2])
			EACH(&l, lx)
				set(&l, lx, lx[1] == lx[2] ? 7 : get(&l, lx) * 0.05);
		run(2, 1);
		EACH(&arr[1], bx) {
			double s = 0, big = 1;
			for (int64_t k = 0; k < n; k++) {
				int64_t i = left ? bx[1] : k, j = left ? k : bx[2], p = w[3] == 1 ? i : j, q = w[3] == 1 ? j : i;
				double t = w[2] && p == q ? 1 : (w[1] ? p >= q : p <= q) ? get(&l, (int64_t[]){ bx[0], p, q }) : 0;
				double x = get(&arr[2], (int64_t[]){ bx[0], left ? k : bx[1], left ? bx[2] : k });
				s += t * x;
				big += fabs(t * x);
			}
			assert_true(fabs(s - get(&arr[1], bx)) < tol * big);
		}
	}
}

static void transforms(void **state)
{
	TIMES(60) {
		int64_t n = below(2) ? range(1, 40) : (int64_t[]){ 64, 97, 128, 37, 210, 74, 243, 101, 1024, 1536 }[below(10)], rows = n > 1000 ? 1 : range(1, 12);
		int kind = (int)range(0, 3);
		int64_t half = n / 2 + 1, din[8] = { rows, kind == 3 ? half : n, 0 }, dout[8] = { rows, kind == 2 ? half : n, 0 }, w[3] = { kind, 1, n };
		begin(KERN_fft);
		attrs(3, w);
		bool wide = below(2);
		enum dtype c = wide ? DT_c128 : DT_c64, f = wide ? DT_f64 : DT_f32;
		arr[0] = make(kind == 2 ? f : c, 2, din, below(2), true);
		arr[1] = make(kind == 3 ? f : c, 2, dout, below(2), false);
		fill(&arr[0], -3, 3);       /* real values; the imaginary parts are zero */
		run(1, 1);
		EACH(&arr[1], ox) {
			double s = 0;
			for (int64_t k = 0; k < n; k++) {
				int64_t q = kind == 3 && k >= half ? n - k : k;
				s += get(&arr[0], (int64_t[]){ ox[0], q }) * cos(2 * M_PI * (double)(k * ox[1] % n) / (double)n);
			}
			s /= kind == 1 || kind == 3 ? (double)n : 1;
			if (fabs(s - get(&arr[1], ox)) > (wide ? 1e-9 : 1e-3))
				fail_msg("fft kind %d of %lld: %g, not %g", kind, (long long)n, get(&arr[1], ox), s);
		}
	}
}

static int up(void **state) { arena_init(&A); return 0; }
static int down(void **state) { arena_fini(&A); return 0; }

int main(void)
{
	kern_isa();          /* settings are read once */
	mem_refuse(allocates);
	const struct CMUnitTest t[] = {
		cmocka_unit_test(copies), cmocka_unit_test(turned), cmocka_unit_test(flipped), cmocka_unit_test(iotas), cmocka_unit_test(elementwise), cmocka_unit_test(repeated_operands), cmocka_unit_test(slices), cmocka_unit_test(pads),
		cmocka_unit_test(reduces), cmocka_unit_test(argmax), cmocka_unit_test(windows), cmocka_unit_test(selects), cmocka_unit_test(scans),
		cmocka_unit_test(dots), cmocka_unit_test(narrow_products), cmocka_unit_test(sorts), cmocka_unit_test(top_ks), cmocka_unit_test(gathers), cmocka_unit_test(single_elements), cmocka_unit_test(convolutions),
		cmocka_unit_test(factorisations), cmocka_unit_test(transforms),
	};
	return cmocka_run_group_tests(t, up, down);
}
