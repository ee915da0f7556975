/* rondo bench kern: every kernel family beside what the cores were measured to do at most. */
#include "tool.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../kern/kern.h"
#include "bench.h"

enum { LARGE = 2 << 20 };

/* --- rows ------------------------------------------------------------------------- */

/* name; kernel in the text form of a program; operations of one run that make most of it, if any do, and their kind */
static const struct row { const char *name, *kern; double ops; enum bench_kind kind; } rows[] = {
#define DOTS(t, r, m, n, k) {"dot " #t " " #m "x" #n "x" #k, "dot (" #t "[" #m "," #k "], " #t "[" #k "," #n "]) -> (" #r "[" #m "," #n "]) attr [0,1,1,0,0,23,23,23,1]", 2.0 * m * n * k, BENCH_##t}
#define DOT(t, m, n, k) DOTS(t, t, m, n, k)
#define DOT8(m, n, k) DOTS(i8, i32, m, n, k)
	DOT(f32, 256, 256, 256), DOT(f32, 512, 512, 512), DOT(f32, 1024, 1024, 1024),
	DOT(bf16, 256, 256, 256), DOT(bf16, 512, 512, 512), DOT(bf16, 1024, 1024, 1024), DOT(bf16, 2048, 2048, 2048), DOT(bf16, 4096, 4096, 4096),
	DOT(f32, 256, 2816, 1024), DOT(bf16, 256, 2816, 1024),
	DOT8(512, 512, 512), DOT8(1024, 1024, 1024), DOT8(2048, 2048, 2048), DOT8(1, 4096, 4096),
	DOT(f64, 512, 512, 512), DOT(i32, 256, 256, 256),
	DOT(bf16, 1, 4096, 4096), DOT(f32, 1, 4096, 4096), DOT(f32, 1, 4096, 14336), DOT(bf16, 8, 4096, 4096), DOT(bf16, 32, 4096, 4096),
	DOT(f32, 4, 4096, 14336), DOT(f32, 8, 4096, 14336), DOT(bf16, 1, 14336, 4096), DOT(bf16, 2, 14336, 4096), DOT(bf16, 4, 14336, 4096), DOT(bf16, 16, 14336, 4096),
	{"dot f32 batched 32x128x128x64", "dot (f32[32,128,64], f32[32,64,128]) -> (f32[32,128,128]) attr [1,0,0,1,2,1,0,23,23,23,1]", 2.0 * 32 * 128 * 128 * 64, BENCH_f32},
#define EL(n, t, fn) {"elem " fn " " #t " 4M", "elem (" #t "[" #n "], " #t "[" #n "]) -> (" #t "[" #n "]) expr (" #t ", " #t ") { %2 = " fn " " #t " %0 %1 -> " #t " } (%2)", 0, 0}
#define EL1(n, t, fn) {"elem " fn " " #t " 4M", "elem (" #t "[" #n "]) -> (" #t "[" #n "]) expr (" #t ") { %1 = " fn " " #t " %0 -> " #t " } (%1)", 0, 0}
	EL(4194304, f32, "add"), EL(4194304, bf16, "multiply"), EL(4194304, i32, "add"),
	EL1(4194304, f32, "exponential"), EL1(4194304, f32, "tanh"), EL1(4194304, f32, "log"), EL1(4194304, f32, "rsqrt"), EL1(4194304, f32, "sine"),
	EL1(4194304, bf16, "exponential"),
	{"elem convert bf16 f32 4M", "elem (bf16[4194304]) -> (f32[4194304]) expr (bf16) { %1 = convert bf16 %0 -> f32 } (%1)", 0, 0},
	{"copy f32 4M", "copy (f32[4194304]) -> (f32[4194304])", 0, 0},
	{"copy transpose f32 2048x2048", "copy (f32[2048,2048]:[1,2048]) -> (f32[2048,2048])", 0, 0},
	{"copy transpose bf16 2048x2048", "copy (bf16[2048,2048]:[1,2048]) -> (bf16[2048,2048])", 0, 0},
	{"copy heads f32 1024x16x64", "copy (f32[16,1024,64]:[64,1024,1]) -> (f32[16,1024,64])", 0, 0},
	{"copy broadcast f32 2048x2048", "copy (f32[2048,2048]:[1,0]) -> (f32[2048,2048])", 0, 0},
	{"fill f32 4M", "fill () -> (f32[4194304]) imm 0000803f", 0, 0},
	{"iota i32 4M", "iota () -> (i32[4194304]) attr [0]", 0, 0},
	{"reduce add f32 rows 2048x2048", "reduce (f32[2048,2048], f32[]) -> (f32[2048]) attr [1,1,0]", 0, 0},
	{"reduce add f32 columns 2048x2048", "reduce (f32[2048,2048], f32[]) -> (f32[2048]) attr [1,0,0]", 0, 0},
	{"reduce max bf16 rows 2048x2048", "reduce (bf16[2048,2048], bf16[]) -> (bf16[2048]) attr [1,1,3]", 0, 0},
	{"cumulative add f32 rows 1024x1024", "cumulative (f32[1024,1024]) -> (f32[1024,1024]) attr [1,0,0]", 0, 0},
	{"cumulative add f32 columns 1024x1024", "cumulative (f32[1024,1024]) -> (f32[1024,1024]) attr [0,0,0]", 0, 0},
	{"cumulative add f32 1M", "cumulative (f32[1048576]) -> (f32[1048576]) attr [0,0,0]", 0, 0},
	{"sort f32 1M", "sort (f32[1048576]) -> (f32[1048576]) attr [0,1] expr (f32, f32) { %2 = total_lt f32 %0 %1 -> pred } (%2)", 0, 0},
	{"sort i32 rows 1024x1024", "sort (i32[1024,1024]) -> (i32[1024,1024]) attr [1,1] expr (i32, i32) { %2 = compare_lt i32 %0 %1 -> pred } (%2)", 0, 0},
	{"top_k f32 64x32768 k 40", "top_k (f32[64,32768]) -> (f32[64,40], i32[64,40]) attr [40]", 0, 0},
	{"dynamic_slice f32 1024x1024", "dynamic_slice (f32[4096,1024], i32[], i32[]) -> (f32[1024,1024])", 0, 0},
	{"dynamic_update bf16 1x256", "dynamic_update (bf16[1,256], i32[], i32[]) -> (bf16[65536,256])", 0, 0},
	{"pad f32 2048x2048", "pad (f32[2046,2046], f32[]) -> (f32[2048,2048]) attr [1,1,1,1,0,0]", 0, 0},
/* 4 heads, of which 2 share keys; the score is x / 8, under a triangle or not, which counts as half */
#define ATT_ROWS(t, s, d) #t "[2,2," #s "," #d "]"
#define ATT_KEYS(t, s, d) #t "[2," #s "," #d "]"
#define ATT_SUMS(s) "f32[2,2," #s "]"
#define ATT_LOGS(s) "f64[2,2," #s "]"
#define ATT_PLACES(s) ", i32[1,1," #s ",1], i32[1,1,1," #s "]"
#define ATT_IN(t, s, d) ATT_ROWS(t, s, d) ", " ATT_KEYS(t, s, d) ", " ATT_KEYS(t, s, d)
#define ATT_GRAD_IN(t, s, d) ATT_IN(t, s, d) ", " ATT_LOGS(s) ", " ATT_ROWS(t, s, d) ", " ATT_SUMS(s)
#define ATT_EIGHTH(out) "expr (f32) { %1 = imm f32 -> f32 0000003e; %2 = multiply f32 %0 %1 -> f32 } (" out ")"
#define ATT_TRIANGLE(more, out) "expr (f32, i32, i32) { %3 = imm f32 -> f32 0000003e; %4 = multiply f32 %0 %3 -> f32; " \
	"%5 = compare_ge i32 %1 %2 -> pred; %6 = imm f32 -> f32 000080ff; %7 = select f32 %5 %4 %6 -> f32" more " } (" out ")"
#define ATT_SLOPE "; %8 = imm f32 -> f32 00000000; %9 = select f32 %5 %3 %8 -> f32"
#define ATT(t, s, d) \
	{"attention " #t " " #s "x" #d, "attention (" ATT_IN(t, s, d) ") -> (" ATT_ROWS(t, s, d) ") " ATT_EIGHTH("%2"), 16.0 * s * s * d, BENCH_##t}, \
	{"attention causal " #t " " #s "x" #d, "attention (" ATT_IN(t, s, d) ATT_PLACES(s) ") -> (" ATT_ROWS(t, s, d) ") " ATT_TRIANGLE("", "%7"), \
	 8.0 * s * s * d, BENCH_##t}, \
	{"attention_grad " #t " " #s "x" #d, "attention_grad (" ATT_GRAD_IN(t, s, d) ") -> (" ATT_IN(t, s, d) ") " ATT_EIGHTH("%2, %1"), 40.0 * s * s * d, BENCH_##t}, \
	{"attention_grad causal " #t " " #s "x" #d, "attention_grad (" ATT_GRAD_IN(t, s, d) ATT_PLACES(s) ") -> (" ATT_IN(t, s, d) ") " ATT_TRIANGLE(ATT_SLOPE, "%7, %9"), \
	 20.0 * s * s * d, BENCH_##t}
	ATT(bf16, 1024, 64), ATT(bf16, 1024, 128), ATT(bf16, 4096, 64), ATT(bf16, 4096, 128),
	ATT(f32, 1024, 64), ATT(f32, 1024, 128), ATT(f32, 4096, 64), ATT(f32, 4096, 128),
	{"attention decode bf16 8x32768x128", "attention (bf16[1,8,1,128], bf16[1,32768,128], bf16[1,32768,128]) -> (bf16[1,8,1,128], f32[1,8,1]) "
	 "expr (f32) { %1 = imm f32 -> f32 0000003e; %2 = multiply f32 %0 %1 -> f32 } (%2)", 4.0 * 8 * 32768 * 128, BENCH_bf16},
	{"fft c64 1024x1024", "fft (c64[1024,1024]) -> (c64[1024,1024]) attr [0,1,1024]", 5.0 * 1048576 * 10, BENCH_f32},
	{"fft f32 4096x1000", "fft (f32[4096,1000]) -> (c64[4096,501]) attr [2,1,1000]", 2.5 * 4096 * 1000 * 10, BENCH_f32},
	{"fft f32 4096x999", "fft (f32[4096,999]) -> (c64[4096,500]) attr [2,1,999]", 2.5 * 4096 * 999 * 10, BENCH_f32},
	{"fft inverse f32 4096x999", "fft (c64[4096,500]) -> (f32[4096,999]) attr [3,1,999]", 2.5 * 4096 * 999 * 10, BENCH_f32},
	{"rng_bits philox 4M", "rng_bits (u64[2]) -> (u64[2], u32[4194304]) attr [2]", 0, 0},
	{"rng_bits three_fry 4M", "rng_bits (u64[2]) -> (u64[2], u32[4194304]) attr [1]", 0, 0},
	{"reduce_precision f32 4M", "reduce_precision (f32[4194304]) -> (f32[4194304]) attr [8,7]", 0, 0},
	{"cholesky f32 512", "cholesky (f32[512,512]) -> (f32[512,512]) attr [1]", 512.0 * 512 * 512 / 3, BENCH_f64},
	{"triangular_solve f32 512", "triangular_solve (f32[512,512], f32[512,512]) -> (f32[512,512]) attr [1,1,0,1]", 512.0 * 512 * 512, BENCH_f64},
};

/* Values that no kernel dislikes: small positive floats, small integers, or positions; solves: more than all others of a row on the diagonal of a matrix. */
static void fill(const struct prog_view *v, char *p, int64_t bytes, bool positions, bool solves)
{
	int cls = dtype_info[v->dtype].cls, item = dtype_info[v->dtype].bytes / (cls == DT_COMPLEX ? 2 : 1);
	bool real = cls == DT_FLOAT || cls == DT_COMPLEX;
	int64_t row = v->rank ? v->dim[v->rank - 1] : 1;
	uint64_t x = 12345;
	for (int64_t i = 0; item && i < bytes / item; i++) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		float f = (float)(x >> 40) * 0x1p-24f + 0.5f;
		if (solves && i % (row + 1) == 0)
			f += 2 * (float)row;
		double d = f;
		uint16_t h = v->dtype == DT_bf16 ? f32_to_bf16(f) : f32_to_f16(f);
		uint64_t k = positions ? (uint64_t)i : v->rank ? x >> 33 : 0;
		memcpy(p + i * item, !real ? (const void *)&k : item == 2 ? (const void *)&h : item == 4 ? (const void *)&f : &d, (size_t)item);
	}
}

/* A result that is no number, of inputs as these, is a kernel's fault, or an input's. */
static bool all_finite(const struct prog_kern *k, char *const *ptr)
{
	bool ok = true;
	for (int i = k->nin; i < k->nin + k->nout; i++) {
		enum dtype dt = k->v[i].dtype;
		if (dtype_info[dt].cls != DT_FLOAT && dtype_info[dt].cls != DT_COMPLEX)
			continue;
		enum dtype part = dt == DT_c64 ? DT_f32 : dt == DT_c128 ? DT_f64 : dt;
		int item = dtype_info[part].bytes;
		kern_strip *widen = kern_elem(ELEM_convert, part, DT_f64);
		for (int64_t at = 0, n = prog_view_bytes(&k->v[i]) / item; at < n && ok; at++) {
			double x;
			widen(1, &x, ptr[i] + at * item, NULL, NULL);
			ok = isfinite(x);
		}
	}
	return ok;
}

static struct err *kernel_of(const struct row *r, struct prog **out)
{
	struct str s = {0};
	str_addf(&s, "prog \"bench\" devices 1 registers 1 zone 0 flops 0 fingerprint 00 comm 00\nkern 0 %s\nrun { }\n", r->kern);
	struct err *e = prog_parse(s.p, s.n, out);
	str_free(&s);
	return e;
}

char *bench_room(size_t bytes)
{
	size_t page = bytes >= LARGE / 8 ? LARGE : 64;
	char *p = aligned_alloc(page, (bytes + page - 1) / page * page);
	if (p && page == LARGE)
		madvise(p, (bytes + page - 1) / page * page, MADV_HUGEPAGE);
	return p;
}

/* One kernel and those who run it: tiles are claimed one by one, as the runtime does.  Or who only reads and writes the memory that it touches. */
struct crew {
	const struct prog_kern *k;
	struct kern_state *st;
	char *const *ptr;
	bool only_moves;
	enum bench_way way;
	int64_t part;                            /* so many bytes of what is read, or written, more, at a time */
	int n;
	double least, best;
	atomic_long next;
	atomic_int here, turn;
	bool over;
};
struct member { struct crew *c; char *scratch; int at; };

static void meet(struct crew *c)
{
	int turn = atomic_load(&c->turn);
	if (atomic_fetch_add(&c->here, 1) == c->n - 1) {
		atomic_store(&c->here, 0);
		atomic_store(&c->next, 0);
		atomic_fetch_add(&c->turn, 1);
	}
	while (atomic_load(&c->turn) == turn)
		if (c->n > cpu_get()->cores)
			sched_yield();
}

/* Bytes of a view that the kernel needs. */
static int64_t touched(const struct prog_kern *k, int i)
{
	if ((k->id == KERN_dynamic_slice && i == 0) || (k->id == KERN_dynamic_update && i == k->nin))
		i = i ? 0 : k->nin;                  /* as much as there is of the other */
	const struct prog_view *v = &k->v[i];
	int64_t n = dtype_info[v->dtype].bytes;
	for (int d = 0; d < v->rank; d++)
		n *= v->stride[d] ? v->dim[d] : MIN(v->dim[d], 1);
	return n;
}

/* The n-th of so many parts of the views from `from` on begins here. */
static int64_t border(const struct prog_kern *k, int i, int64_t n, int64_t parts)
{
	int64_t bytes = touched(k, i);
	return n == parts ? bytes : bytes / 64 * n / parts * 64;
}

static volatile uint64_t kept;

/* What is read and what is written goes in step: copied as far as there are both. */
static void move(struct crew *c, int me)
{
	const struct prog_kern *k = c->k;
	int nv = k->nin + k->nout;
	int64_t most = 1;
	for (int i = 0; i < nv; i++)
		most = MAX(most, touched(k, i));
	int64_t parts = ((most - 1) / c->n / c->part + 1) * c->n, share = parts / c->n;
	for (int64_t p = me * share; p < (me + 1) * share; p++) {
		int in = 0;
		for (int o = k->nin; o < nv; o++) {
			int64_t to = border(k, o, p, parts), n = border(k, o, p + 1, parts) - to, from = in < k->nin ? border(k, in, p, parts) : 0;
			int64_t both = in < k->nin ? MIN(n, border(k, in, p + 1, parts) - from) : 0;
			bench_copy(c->way, c->ptr[o] + to, in < k->nin ? c->ptr[in] + from : NULL, (size_t)both);
			bench_fill(c->way, c->ptr[o] + to + both, 1, (size_t)(n - both));
			if (in < k->nin)
				kept = bench_read(c->ptr[in] + from + both, (size_t)(border(k, in, p + 1, parts) - from - both));
			in++;
		}
		for (; in < k->nin; in++)
			kept = bench_read(c->ptr[in] + border(k, in, p, parts), (size_t)(border(k, in, p + 1, parts) - border(k, in, p, parts)));
	}
}

static void *work(void *p)
{
	struct member *m = p;
	struct crew *c = m->c;
	int64_t tiles = kern_tiles(c->k, c->st), step = MAX(tiles / (8 * c->n), 1);
	double start = clock_s();
	unsigned fp = cpu_set_ftz();
	for (int turn = 0;; turn++) {
		if (!m->at)
			c->over = turn >= 1 && clock_s() - start >= c->least;
		double t = clock_s();
		meet(c);
		if (c->over)
			break;
		if (c->only_moves) {
			move(c, m->at);
			meet(c);
		}
		for (int phase = 0; phase < kern_phases(c->k, c->st) && !c->only_moves; phase++) {
			for (int64_t t0; (t0 = atomic_fetch_add(&c->next, c->n > 1 ? step : tiles)) < tiles;)
				kern_run(c->k, c->st, phase, c->ptr, t0, c->n > 1 ? MIN(t0 + step, tiles) : tiles, m->scratch);
			meet(c);
		}
		if (!m->at)
			c->best = fmin(c->best, clock_s() - t);
	}
	cpu_restore_fp(fp);
	return NULL;
}

/* Fastest of the runs, in seconds. */
static double fastest(struct crew *c, int n_core)
{
	struct member m[BENCH_CORES];
	pthread_t id[BENCH_CORES];
	c->n = n_core;
	c->best = INFINITY;
	for (int i = 0; i < n_core; i++)
		m[i] = (struct member){c, bench_room(kern_scratch(c->k, c->st) + 64), i};
	for (int i = 1; i < n_core; i++)
		if (pthread_create(&id[i], NULL, work, &m[i]))
			c->n = n_core = i;
	work(&m[0]);
	for (int i = 0; i < n_core; i++) {
		if (i)
			pthread_join(id[i], NULL);
		free(m[i].scratch);
	}
	return c->best;
}

struct moved { double seconds, bytes; };

/* out: seconds of the fastest run, of which there are enough to take `least` seconds.  memory, if it is not NULL: of the fastest way to read and write
 * the bytes that it touches, in turn with it, for twice as long in all. */
static struct err *time_row(const struct row *r, double least, int n_core, double *out, struct moved *memory)
{
	static const int64_t part[] = { 4096, 65536, INT64_MAX };
	enum { ROUNDS = 6, WAYS = BENCH_WAYS * NELEM(part) };
	struct prog *p;
	TRY(kernel_of(r, &p));
	const struct prog_kern *k = &p->kern[0];
	struct kern_state *st = NULL;
	struct err *e = kern_prepare(k, &st);
	char *ptr[16] = {0};
	int n = k->nin + k->nout, rounds = memory ? ROUNDS : 1;
	double took[WAYS] = {0};
	if (e || n > 14)
		goto out;
	for (int i = 0; i < n; i++) {
		int64_t bytes = prog_view_bytes(&k->v[i]) + 64;
		if (memory)
			memory->bytes += (double)touched(k, i);
		ptr[i] = bench_room((size_t)bytes);
		fill(&k->v[i], ptr[i], bytes, k->id == KERN_attention || k->id == KERN_attention_grad, (k->id == KERN_cholesky || k->id == KERN_triangular_solve) && i == 0);
	}
	ptr[n] = bench_room(kern_shared(k, st) + 64);
	struct crew c = {.k = k, .st = st, .ptr = ptr};
	*out = INFINITY;
	for (int round = 0; round < rounds && !e; round++) {
		c.only_moves = false;
		c.least = least / rounds;
		*out = fmin(*out, fastest(&c, n_core));
		if (!memory)
			break;
		if (!all_finite(k, ptr))
			e = ERR(INTERNAL, "a result is not finite");
		c.only_moves = true;
		double bound = memory->seconds * (1 + 0.5 / MAX(round, 1));          /* ways that were slower are not tried again */
		int some = 0;
		for (int way = 0; way < WAYS; way++)
			some += took[way] <= bound;
		c.least *= 2.0 / some;
		for (int way = 0; way < WAYS; way++)
			if (took[way] <= bound) {
				c.way = (enum bench_way)(way % BENCH_WAYS);
				c.part = part[way / BENCH_WAYS];
				took[way] = fmin(round ? took[way] : INFINITY, fastest(&c, n_core));
				memory->seconds = fmin(memory->seconds, took[way]);
			}
	}
out:
	for (size_t i = 0; i < NELEM(ptr); i++)
		free(ptr[i]);
	kern_release(st);
	prog_free(p);
	return e;
}

struct err *bench_kernel(const char *text, int repeats, double least, double *sample)
{
	const struct row r = {.kern = text};
	for (int i = 0; i < repeats; i++)
		TRY(time_row(&r, least, 1, &sample[i], NULL));
	return NULL;
}

struct err *bench_kern_has(const char *only)
{
	struct str s = { 0 };

	for (size_t i = 0; i < NELEM(rows); i++) {
		if (!only || strstr(rows[i].name, only))
			return str_free(&s), NULL;
		size_t n = strcspn(rows[i].name, " "), k = 0;
		while (n != strcspn(rows[k].name, " ") || memcmp(rows[i].name, rows[k].name, n))
			k++;
		if (k == i)
			str_addf(&s, "%s%.*s", i ? ", " : "", (int)n, rows[i].name);
	}
	struct err *e = ERR(INVALID, "option '--only': no kernel's name contains '%s'; they begin with %s", only, s.p);
	str_free(&s);
	return e;
}

struct err *bench_kern(const char *only, double least, int n_core, const struct bench_peak *p)
{
	bool tty = isatty(1);
	int failed = 0;
	unsigned fp = cpu_set_ftz();
	printf("# %s, %d core%s; kernels use %s; measured peak: f32 %.0f GFLOP/s, bf16 %.0f GFLOP/s, i8 %.0f GOP/s, copy of 16 MB %.1f GB/s\n", cpu_get()->name, n_core, n_core > 1 ? "s" : "", kern_isa(),
	       p->ops[BENCH_f32] / 1e9, p->ops[BENCH_bf16] / 1e9, p->ops[BENCH_i8] / 1e9, p->bytes / 1e9);
	printf(tty ? "%-40s %12s %10s %-8s %12s %s\n" : "%s\t%s\t%s\t%s\t%s\t%s\n", "kernel", "microseconds", "rate", "unit", "limit", "share of peak");
	for (size_t i = 0; i < NELEM(rows); i++) {
		const struct row *r = &rows[i];
		double t = 0;
		struct moved memory = {.seconds = INFINITY};
		if (only && !strstr(r->name, only))
			continue;
		str_progress(stderr, "bench kern", (double)i / NELEM(rows));
		struct err *e = time_row(r, least, n_core, &t, &memory);
		if (isatty(2))
			fputs("\r\033[K", stderr);             /* the bar makes way for the row */
		if (e) {
			printf(tty ? "%-40s %s\n" : "%s\t%s\n", r->name, e->msg);
			err_free(e);
			failed++;
			continue;
		}
		/* at most what memory gives, and what instructions do if they were told */
		double most = n_core * p->ops[r->kind], computing = most > 0 ? r->ops / most : 0, limit = fmax(computing, memory.seconds);
		bool computes = computing >= memory.seconds;
		printf(tty ? "%-40s %12.2f %10.2f %-8s %12.2f %.2f\n" : "%s\t%.2f\t%.4g\t%s\t%.2f\t%.3f\n", r->name, t * 1e6, (computes ? r->ops : memory.bytes) / t / 1e9, computes ? r->kind == BENCH_i8 || r->kind == BENCH_i32 ? "GOP/s" : "GFLOP/s" : "GB/s",
		       limit * 1e6, limit / t);
		fflush(stdout);
	}
	cpu_restore_fp(fp);
	return failed ? ERR(INTERNAL, "%d kernel%s failed", failed, failed > 1 ? "s" : "") : NULL;
}
