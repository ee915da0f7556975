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

/* name; kernel in the text form of a program; operations and bytes of one run */
static const struct row { const char *name, *kern; double flops, bytes; enum { F32, BF16, I8 } kind; } rows[] = {
#define DOT(t, m, n, k, bf) {"dot " #t " " #m "x" #n "x" #k, "dot (" #t "[" #m "," #k "], " #t "[" #k "," #n "]) -> (" #t "[" #m "," #n "]) attr [0,1,1,0,0,23,23,23,1]", 2.0 * m * n * k, 0, bf}
	DOT(f32, 256, 256, 256, F32), DOT(f32, 512, 512, 512, F32), DOT(f32, 1024, 1024, 1024, F32),
	DOT(bf16, 256, 256, 256, BF16), DOT(bf16, 512, 512, 512, BF16), DOT(bf16, 1024, 1024, 1024, BF16), DOT(bf16, 2048, 2048, 2048, BF16), DOT(bf16, 4096, 4096, 4096, BF16),
	DOT(f32, 256, 2816, 1024, F32), DOT(bf16, 256, 2816, 1024, BF16),
#define DOT8(m, n, k) {"dot i8 " #m "x" #n "x" #k, "dot (i8[" #m "," #k "], i8[" #k "," #n "]) -> (i32[" #m "," #n "]) attr [0,1,1,0,0,23,23,23,1]", 2.0 * m * n * k, 0, I8}
	DOT8(512, 512, 512), DOT8(1024, 1024, 1024), DOT8(2048, 2048, 2048),
	{"dot i8 1x4096x4096", "dot (i8[1,4096], i8[4096,4096]) -> (i32[1,4096]) attr [0,1,1,0,0,23,23,23,1]", 0, 1.0 * 4096 * 4096, I8},
	DOT(f64, 512, 512, 512, F32), DOT(i32, 256, 256, 256, F32),
	{"dot bf16 1x4096x4096", "dot (bf16[1,4096], bf16[4096,4096]) -> (bf16[1,4096]) attr [0,1,1,0,0,23,23,23,1]", 0, 2.0 * 4096 * 4096, BF16},
	{"dot f32 1x4096x4096", "dot (f32[1,4096], f32[4096,4096]) -> (f32[1,4096]) attr [0,1,1,0,0,23,23,23,1]", 0, 4.0 * 4096 * 4096, F32},
	{"dot f32 1x4096x14336", "dot (f32[1,4096], f32[4096,14336]) -> (f32[1,14336]) attr [0,1,1,0,0,23,23,23,1]", 0, 4.0 * 4096 * 14336, F32},
	{"dot bf16 8x4096x4096", "dot (bf16[8,4096], bf16[4096,4096]) -> (bf16[8,4096]) attr [0,1,1,0,0,23,23,23,1]", 0, 2.0 * 4096 * 4096, BF16},
	{"dot bf16 32x4096x4096", "dot (bf16[32,4096], bf16[4096,4096]) -> (bf16[32,4096]) attr [0,1,1,0,0,23,23,23,1]", 0, 2.0 * 4096 * 4096, BF16},
	{"dot f32 batched 32x128x128x64", "dot (f32[32,128,64], f32[32,64,128]) -> (f32[32,128,128]) attr [1,0,0,1,2,1,0,23,23,23,1]", 2.0 * 32 * 128 * 128 * 64, 0, F32},
#define EL(n, t, fn, b) {"elem " fn " " #t " 4M", "elem (" #t "[" #n "], " #t "[" #n "]) -> (" #t "[" #n "]) expr (" #t ", " #t ") { %2 = " fn " " #t " %0 %1 -> " #t " } (%2)", 0, 3.0 * n * b, 0}
#define EL1(n, t, fn, b) {"elem " fn " " #t " 4M", "elem (" #t "[" #n "]) -> (" #t "[" #n "]) expr (" #t ") { %1 = " fn " " #t " %0 -> " #t " } (%1)", 0, 2.0 * n * b, 0}
	EL(4194304, f32, "add", 4), EL(4194304, bf16, "multiply", 2), EL(4194304, i32, "add", 4),
	EL1(4194304, f32, "exponential", 4), EL1(4194304, f32, "tanh", 4), EL1(4194304, f32, "log", 4), EL1(4194304, f32, "rsqrt", 4), EL1(4194304, f32, "sine", 4),
	EL1(4194304, bf16, "exponential", 2),
	{"elem convert bf16 f32 4M", "elem (bf16[4194304]) -> (f32[4194304]) expr (bf16) { %1 = convert bf16 %0 -> f32 } (%1)", 0, 6.0 * 4194304, 0},
	{"copy f32 4M", "copy (f32[4194304]) -> (f32[4194304])", 0, 8.0 * 4194304, 0},
	{"copy transpose f32 2048x2048", "copy (f32[2048,2048]:[1,2048]) -> (f32[2048,2048])", 0, 8.0 * 4194304, 0},
	{"copy transpose bf16 2048x2048", "copy (bf16[2048,2048]:[1,2048]) -> (bf16[2048,2048])", 0, 4.0 * 4194304, 0},
	{"copy heads f32 1024x16x64", "copy (f32[16,1024,64]:[64,1024,1]) -> (f32[16,1024,64])", 0, 8.0 * 1048576, 0},
	{"copy broadcast f32 2048x2048", "copy (f32[2048,2048]:[1,0]) -> (f32[2048,2048])", 0, 4.0 * 4194304, 0},
	{"fill f32 4M", "fill () -> (f32[4194304]) imm 0000803f", 0, 4.0 * 4194304, 0},
	{"iota i32 4M", "iota () -> (i32[4194304]) attr [0]", 0, 4.0 * 4194304, 0},
	{"reduce add f32 rows 2048x2048", "reduce (f32[2048,2048], f32[]) -> (f32[2048]) attr [1,1,0]", 0, 4.0 * 4194304, 0},
	{"reduce add f32 columns 2048x2048", "reduce (f32[2048,2048], f32[]) -> (f32[2048]) attr [1,0,0]", 0, 4.0 * 4194304, 0},
	{"reduce max bf16 rows 2048x2048", "reduce (bf16[2048,2048], bf16[]) -> (bf16[2048]) attr [1,1,3]", 0, 2.0 * 4194304, 0},
	{"cumulative add f32 rows 1024x1024", "cumulative (f32[1024,1024]) -> (f32[1024,1024]) attr [1,0,0]", 0, 8.0 * 1048576, 0},
	{"cumulative add f32 columns 1024x1024", "cumulative (f32[1024,1024]) -> (f32[1024,1024]) attr [0,0,0]", 0, 8.0 * 1048576, 0},
	{"cumulative add f32 1M", "cumulative (f32[1048576]) -> (f32[1048576]) attr [0,0,0]", 0, 8.0 * 1048576, 0},
	{"sort f32 1M", "sort (f32[1048576]) -> (f32[1048576]) attr [0,1] expr (f32, f32) { %2 = total_lt f32 %0 %1 -> pred } (%2)", 0, 8.0 * 1048576, 0},
	{"sort i32 rows 1024x1024", "sort (i32[1024,1024]) -> (i32[1024,1024]) attr [1,1] expr (i32, i32) { %2 = compare_lt i32 %0 %1 -> pred } (%2)", 0, 8.0 * 1048576, 0},
	{"top_k f32 64x32768 k 40", "top_k (f32[64,32768]) -> (f32[64,40], i32[64,40]) attr [40]", 0, 4.0 * 64 * 32768, 0},
	{"dynamic_slice f32 1024x1024", "dynamic_slice (f32[4096,1024], i32[], i32[]) -> (f32[1024,1024])", 0, 8.0 * 1048576, 0},
	{"dynamic_update bf16 1x256", "dynamic_update (bf16[1,256], i32[], i32[]) -> (bf16[65536,256])", 0, 4.0 * 256, 0},
	{"pad f32 2048x2048", "pad (f32[2046,2046], f32[]) -> (f32[2048,2048]) attr [1,1,1,1,0,0]", 0, 8.0 * 4194304, 0},
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
#define ATT(t, s, d, bf) \
	{"attention " #t " " #s "x" #d, "attention (" ATT_IN(t, s, d) ") -> (" ATT_ROWS(t, s, d) ") " ATT_EIGHTH("%2"), 16.0 * s * s * d, 0, bf}, \
	{"attention causal " #t " " #s "x" #d, "attention (" ATT_IN(t, s, d) ATT_PLACES(s) ") -> (" ATT_ROWS(t, s, d) ") " ATT_TRIANGLE("", "%7"), \
	 8.0 * s * s * d, 0, bf}, \
	{"attention_grad " #t " " #s "x" #d, "attention_grad (" ATT_GRAD_IN(t, s, d) ") -> (" ATT_IN(t, s, d) ") " ATT_EIGHTH("%2, %1"), 40.0 * s * s * d, 0, bf}, \
	{"attention_grad causal " #t " " #s "x" #d, "attention_grad (" ATT_GRAD_IN(t, s, d) ATT_PLACES(s) ") -> (" ATT_IN(t, s, d) ") " ATT_TRIANGLE(ATT_SLOPE, "%7, %9"), \
	 20.0 * s * s * d, 0, bf}
	ATT(bf16, 1024, 64, BF16), ATT(bf16, 1024, 128, BF16), ATT(bf16, 4096, 64, BF16), ATT(bf16, 4096, 128, BF16),
	ATT(f32, 1024, 64, F32), ATT(f32, 1024, 128, F32), ATT(f32, 4096, 64, F32), ATT(f32, 4096, 128, F32),
	{"attention decode bf16 8x32768x128", "attention (bf16[1,8,1,128], bf16[1,32768,128], bf16[1,32768,128]) -> (bf16[1,8,1,128], f32[1,8,1]) "
	 "expr (f32) { %1 = imm f32 -> f32 0000003e; %2 = multiply f32 %0 %1 -> f32 } (%2)", 0, 4.0 * 32768 * 128, 0},
	{"fft c64 1024x1024", "fft (c64[1024,1024]) -> (c64[1024,1024]) attr [0,1,1024]", 5.0 * 1048576 * 10, 0, 0},
	{"fft f32 4096x1000", "fft (f32[4096,1000]) -> (c64[4096,501]) attr [2,1,1000]", 2.5 * 4096 * 1000 * 10, 0, 0},
	{"fft f32 4096x999", "fft (f32[4096,999]) -> (c64[4096,500]) attr [2,1,999]", 2.5 * 4096 * 999 * 10, 0, 0},
	{"fft inverse f32 4096x999", "fft (c64[4096,500]) -> (f32[4096,999]) attr [3,1,999]", 2.5 * 4096 * 999 * 10, 0, 0},
	{"rng_bits philox 4M", "rng_bits (u64[2]) -> (u64[2], u32[4194304]) attr [2]", 0, 4.0 * 4194304, 0},
	{"rng_bits three_fry 4M", "rng_bits (u64[2]) -> (u64[2], u32[4194304]) attr [1]", 0, 4.0 * 4194304, 0},
	{"reduce_precision f32 4M", "reduce_precision (f32[4194304]) -> (f32[4194304]) attr [8,7]", 0, 8.0 * 4194304, 0},
	{"cholesky f32 512", "cholesky (f32[512,512]) -> (f32[512,512]) attr [1]", 512.0 * 512 * 512 / 3, 0, 0},
	{"triangular_solve f32 512", "triangular_solve (f32[512,512], f32[512,512]) -> (f32[512,512]) attr [1,1,0,1]", 512.0 * 512 * 512, 0, 0},
};

/* Values that no kernel dislikes: small positive floats, small integers, or positions. */
static void fill(const struct prog_view *v, char *p, int64_t bytes, bool positions)
{
	int item = dtype_info[v->dtype].bytes;
	uint64_t x = 12345;
	for (int64_t i = 0; item && i < bytes / item; i++) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		float f = (float)(x >> 40) * 0x1p-24f + 0.5f;
		double d = f;
		uint16_t h = v->dtype == DT_bf16 ? f32_to_bf16(f) : f32_to_f16(f);
		uint64_t k = positions ? (uint64_t)i : v->rank ? x >> 33 : 0;
		const void *src = &k;
		if (v->dtype == DT_f32 || v->dtype == DT_c64)
			src = &f;
		else if (v->dtype == DT_f64 || v->dtype == DT_c128)
			src = &d;
		else if (dtype_info[v->dtype].cls == DT_FLOAT && item == 2)
			src = &h;
		memcpy(p + i * item, src, (size_t)MIN(item, 8));
	}
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

/* One kernel and those who run it: tiles are claimed one by one, as the runtime does. */
struct crew {
	const struct prog_kern *k;
	struct kern_state *st;
	char *const *ptr;
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

static void *work(void *p)
{
	struct member *m = p;
	struct crew *c = m->c;
	int64_t tiles = kern_tiles(c->k, c->st), step = MAX(tiles / (8 * c->n), 1);
	double start = clock_s();
	unsigned fp = cpu_set_ftz();
	for (int turn = 0;; turn++) {
		if (!m->at)
			c->over = turn >= 3 && clock_s() - start >= c->least;
		double t = clock_s();
		meet(c);
		if (c->over)
			break;
		for (int phase = 0; phase < kern_phases(c->k, c->st); phase++) {
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
static struct err *time_row(const struct row *r, double least, int n_core, double *out)
{
	struct prog *p;
	TRY(kernel_of(r, &p));
	const struct prog_kern *k = &p->kern[0];
	struct kern_state *st = NULL;
	struct err *e = kern_prepare(k, &st);
	char *ptr[16] = {0};
	int n = k->nin + k->nout;
	if (e || n > 14)
		goto out;
	for (int i = 0; i < n; i++) {
		int64_t bytes = prog_view_bytes(&k->v[i]) + 64;
		ptr[i] = bench_room((size_t)bytes);
		fill(&k->v[i], ptr[i], bytes, k->id == KERN_attention || k->id == KERN_attention_grad);
	}
	ptr[n] = bench_room(kern_shared(k, st) + 64);
	struct crew c = {.k = k, .st = st, .ptr = ptr, .n = n_core, .least = least, .best = INFINITY};
	struct member m[BENCH_CORES];
	pthread_t id[BENCH_CORES];
	for (int i = 0; i < n_core; i++)
		m[i] = (struct member){&c, bench_room(kern_scratch(k, st) + 64), i};
	for (int i = 1; i < n_core; i++)
		if (pthread_create(&id[i], NULL, work, &m[i]))
			c.n = n_core = i;
	work(&m[0]);
	for (int i = 0; i < n_core; i++) {
		if (i)
			pthread_join(id[i], NULL);
		free(m[i].scratch);
	}
	*out = c.best;
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
		TRY(time_row(&r, least, 1, &sample[i]));
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

void bench_kern(const char *only, double least, int n_core, const struct bench_peak *p)
{
	bool tty = isatty(1);
	unsigned fp = cpu_set_ftz();
	printf("# %s, %d core%s; kernels use %s; measured peak: f32 %.0f GFLOP/s, bf16 %.0f GFLOP/s, i8 %.0f GOP/s, copy of 16 MB %.1f GB/s\n", cpu_get()->name, n_core, n_core > 1 ? "s" : "", kern_isa(),
	       p->f32 / 1e9, p->bf16 / 1e9, p->i8 / 1e9, p->bytes / 1e9);
	printf(tty ? "%-40s %12s %10s %-8s %s\n" : "%s\t%s\t%s\t%s\t%s\n", "kernel", "microseconds", "rate", "unit", "share of peak");
	for (size_t i = 0; i < NELEM(rows); i++) {
		const struct row *r = &rows[i];
		double t = 0;
		if (only && !strstr(r->name, only))
			continue;
		str_progress(stderr, "bench kern", (double)i / NELEM(rows));
		struct err *e = time_row(r, least, n_core, &t);
		if (isatty(2))
			fputs("\r\033[K", stderr);             /* the bar makes way for the row */
		if (e) {
			printf(tty ? "%-40s %s\n" : "%s\t%s\n", r->name, e->msg);
			err_free(e);
			continue;
		}
		double rate = (r->flops > 0 ? r->flops : r->bytes) / t, most = (double)n_core * (r->flops > 0 ? r->kind == I8 ? p->i8 : r->kind == BF16 ? p->bf16 : p->f32 : p->bytes);
		printf(tty ? "%-40s %12.2f %10.2f %-8s %.2f\n" : "%s\t%.2f\t%.2f\t%s\t%.3f\n", r->name, t * 1e6, rate / 1e9, r->flops > 0 ? "GFLOP/s" : "GB/s", most > 0 ? rate / most : 0);
		fflush(stdout);
	}
	cpu_restore_fp(fp);
}
