/* rondo bench: collectives (bench_coll.c); kern: every kernel family beside what the cores were measured to do at most; peak:
 * what they can do; machine: the machine table (bench_machine.c). */
#include "tool.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "../kern/kern.h"
#include "bench.h"

static const char *only, *seconds, *cores;
static struct bench_coll_opts coll;

static const struct opt opts[] = {
	{"only", "WORD", "kern: rows whose name contains WORD", &only},
	{"seconds", "S", "kern: least time spent on each row, in hundredths of a second (10)", &seconds},
	{"cores", "N", "kern: cores that share each kernel's tiles (1); peak: cores at once (all)", &cores},
	{"op", "LIST", "coll: some of them (all_reduce,all_reduce_place,permute,put_signal)", &coll.op},
	{"algorithm", "LIST", "coll: some of them (slot,stage); auto: what the table chooses", &coll.algo},
	{"pes", "N", "coll: processing elements, threads of this process (2)", &coll.pes},
	{"min", "BYTES", "coll: smallest size (8)", &coll.least},
	{"max", "BYTES", "coll: largest size (16777216)", &coll.most},
	{"rounds", "N", "coll: interleaved rounds, of which the median counts (9)", &coll.rounds},
	{"fine", NULL, "coll: all powers of two", &coll.fine},
	{"write", NULL, "coll: make the result this machine's table", &coll.write},
	{"plot", "FILE", "coll: draw time over size, as SVG", &coll.plot},
};

/* --- what the core can do -------------------------------------------------------- */

enum { CHAINS = 12, ROUNDS = 200000, LARGE = 2 << 20, MOST_CORES = 256 };

#if defined(__x86_64__)
__attribute__((target("avx512f"), noinline)) static float fma512(void)
{
	__m512 x[CHAINS], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
	for (int i = 0; i < CHAINS; i++)
		x[i] = _mm512_set1_ps((float)i);
	for (int r = 0; r < ROUNDS; r++)
#pragma GCC unroll 12
		for (int i = 0; i < CHAINS; i++)
			x[i] = _mm512_fmadd_ps(x[i], a, b);
	for (int i = 1; i < CHAINS; i++)
		x[0] = _mm512_add_ps(x[0], x[i]);
	return _mm512_reduce_add_ps(x[0]);
}

__attribute__((target("avx2,fma"), noinline)) static float fma256(void)
{
	__m256 x[CHAINS], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
	float out[8];
	for (int i = 0; i < CHAINS; i++)
		x[i] = _mm256_set1_ps((float)i);
	for (int r = 0; r < ROUNDS; r++)
#pragma GCC unroll 12
		for (int i = 0; i < CHAINS; i++)
			x[i] = _mm256_fmadd_ps(x[i], a, b);
	for (int i = 1; i < CHAINS; i++)
		x[0] = _mm256_add_ps(x[0], x[i]);
	_mm256_storeu_ps(out, x[0]);
	return out[0] + out[7];
}

/* Four independent tile products, as a matrix kernel has. */
__attribute__((target("amx-tile,amx-bf16"), noinline)) static void amx_rounds(int n)
{
	struct { uint8_t palette, start, pad[14]; uint16_t colsb[16]; uint8_t rows[16]; } cfg __attribute__((aligned(64))) = {.palette = 1};
	for (int i = 0; i < 8; i++) {
		cfg.colsb[i] = 64;
		cfg.rows[i] = 16;
	}
	__asm__ volatile("" : : "r"(&cfg) : "memory");   /* gcc's header tells it of 8 of the 64 bytes only */
	_tile_loadconfig(&cfg);
	static uint16_t data[4 * 512];           /* zeros would be multiplied faster than numbers */
	uint32_t x = 1;
	for (int i = 0; i < 4 * 512; i++) {
		x = x * 1664525 + 1013904223;
		data[i] = (uint16_t)(0x3e00 | (x >> 16 & 0x81ff));
	}
	_tile_loadd(4, data, 64);
	_tile_loadd(5, data + 512, 64);
	_tile_loadd(6, data + 1024, 64);
	_tile_loadd(7, data + 1536, 64);
	for (int r = 0; r < n; r++) {
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(1, 4, 7);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
	}
	_tile_release();
}
#endif

struct peak { double f32, bf16, i8, bytes; };   /* operations, bytes a second */

static volatile float keep;

static struct peak measure(void)
{
	struct peak p = {0};
	const struct cpu_info *c = cpu_get();
	double width = c->avx512 ? 16 : c->avx2 ? 8 : 0;
	for (int k = 0; k < 5 && width > 0; k++) {
#if defined(__x86_64__)
		double t = clock_s();
		keep = c->avx512 ? fma512() : fma256();
		t = clock_s() - t;
		p.f32 = fmax(p.f32, 2.0 * width * CHAINS * ROUNDS / t);
#endif
	}
	p.bf16 = c->avx512_bf16 ? 2 * p.f32 : p.f32;
#if defined(__x86_64__)
	enum { XCOMP_PERM = 0x1023, TILE_DATA = 18 };
	if (c->amx_bf16 && syscall(SYS_arch_prctl, XCOMP_PERM, TILE_DATA) == 0)
		for (int k = 0; k < 5; k++) {
			double t = clock_s();
			amx_rounds(20000);
			t = clock_s() - t;
			p.bf16 = fmax(p.bf16, 4.0 * 20000 * 16 * 16 * 32 * 2 / t);
		}
#endif
	/* by what the instructions hold beside those measured */
	p.i8 = c->amx_bf16 && c->amx_int8 ? 2 * p.bf16 : c->avx512 && __builtin_cpu_supports("avx512vnni") ? 4 * p.f32 : p.f32;
	size_t n = (size_t)16 << 20;   /* what the rows move */
	char *a = mem_alloc(n), *b = mem_alloc(n);
	memset(a, 1, n);
	memset(b, 2, n);
	for (int k = 0; k < 20; k++) {
		double t = clock_s();
		memcpy(b, a, n);
		t = clock_s() - t;
		keep = (float)b[k];
		p.bytes = fmax(p.bytes, 2.0 * (double)n / t);
	}
	free(a);
	free(b);
	return p;
}

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
#define ATT_PLACES(s) ", i32[1,1," #s ",1], i32[1,1,1," #s "]"
#define ATT_IN(t, s, d) ATT_ROWS(t, s, d) ", " ATT_KEYS(t, s, d) ", " ATT_KEYS(t, s, d)
#define ATT_GRAD_IN(t, s, d) ATT_IN(t, s, d) ", " ATT_SUMS(s) ", " ATT_ROWS(t, s, d) ", " ATT_SUMS(s)
#define ATT_EIGHTH(out) "expr (f32) { %1 = imm f32 -> f32 0000003e; %2 = multiply f32 %0 %1 -> f32 } (" out ")"
#define ATT_TRIANGLE(more, out) "expr (f32, i32, i32) { %3 = imm f32 -> f32 0000003e; %4 = multiply f32 %0 %3 -> f32; " \
	"%5 = compare_ge i32 %1 %2 -> pred; %6 = imm f32 -> f32 000080ff; %7 = select f32 %5 %4 %6 -> f32" more " } (" out ")"
#define ATT_SLOPE "; %8 = imm f32 -> f32 00000000; %9 = select f32 %5 %3 %8 -> f32"
#define ATT(t, s, d, bf) \
	{"attention " #t " " #s "x" #d, "attention (" ATT_IN(t, s, d) ") -> (" ATT_ROWS(t, s, d) ", " ATT_SUMS(s) ") " ATT_EIGHTH("%2"), 16.0 * s * s * d, 0, bf}, \
	{"attention causal " #t " " #s "x" #d, "attention (" ATT_IN(t, s, d) ATT_PLACES(s) ") -> (" ATT_ROWS(t, s, d) ", " ATT_SUMS(s) ") " ATT_TRIANGLE("", "%7"), \
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

/* Memory as the runtime has it: large pages for what is large. */
static char *room(size_t bytes)
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
		ptr[i] = room((size_t)bytes);
		fill(&k->v[i], ptr[i], bytes, k->id == KERN_attention || k->id == KERN_attention_grad);
	}
	ptr[n] = room(kern_shared(k, st) + 64);
	struct crew c = {.k = k, .st = st, .ptr = ptr, .n = n_core, .least = least, .best = INFINITY};
	struct member m[MOST_CORES];
	pthread_t id[MOST_CORES];
	for (int i = 0; i < n_core; i++)
		m[i] = (struct member){&c, room(kern_scratch(k, st) + 64), i};
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

/* --- what all cores can do at once -------------------------------------------------- */

/* Sums of 8 words side by side; what is read is what counts. */
typedef uint64_t words __attribute__((vector_size(64), may_alias));
#define READ(name, isa) \
	isa __attribute__((noinline)) static uint64_t name(const char *p, size_t n) \
	{ \
		words a = {0}, b = {0}, c = {0}, d = {0}; \
		for (size_t i = 0; i + 256 <= n; i += 256) { \
			a += *(const words *)(const void *)(p + i); \
			b += *(const words *)(const void *)(p + i + 64); \
			c += *(const words *)(const void *)(p + i + 128); \
			d += *(const words *)(const void *)(p + i + 192); \
		} \
		a += b + (c + d); \
		return a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7]; \
	}
READ(read_base, )
#if defined(__x86_64__)
READ(read_256, __attribute__((target("avx2"))))
READ(read_512, __attribute__((target("avx512f"))))
#endif

static uint64_t read_all(const char *p, size_t n)
{
#if defined(__x86_64__)
	if (cpu_get()->avx512)
		return read_512(p, n);
	if (cpu_get()->avx2)
		return read_256(p, n);
#endif
	return read_base(p, n);
}

/* Everybody measures the same at the same time; what counts is the slowest of a round, and the best round. */
enum { SIZES = 4, KINDS = 4, TURNS = 6 };
static const size_t size_of[SIZES] = {1 << 20, 8 << 20, 64 << 20, 256 << 20};
static const char *const kind_name[KINDS] = {"read", "fill", "copy", "peer"};

struct gauge {
	int n;
	atomic_int here, turn;
	atomic_bool go;
	char *mem[MOST_CORES];               /* the largest size's part of each */
	double seconds[MOST_CORES];
	struct peak peak[MOST_CORES];
	double rate[SIZES][KINDS], exchange;
	_Alignas(128) atomic_int ball;
};
struct gauger { struct gauge *g; int at; };

static void gather(struct gauge *g)
{
	int turn = atomic_load(&g->turn);
	if (atomic_fetch_add(&g->here, 1) == g->n - 1) {
		atomic_store(&g->here, 0);
		atomic_fetch_add(&g->turn, 1);
	}
	while (atomic_load(&g->turn) == turn)
		if (g->n > cpu_get()->cores)
			sched_yield();
}

static volatile uint64_t kept;

static void gauge_memory(struct gauge *g, int me, int size, int kind)
{
	size_t part = size_of[size] / (size_t)g->n, half = part / 2;
	char *mine = g->mem[me], *other = g->mem[(me + 1) % g->n];
	int passes = (int)MAX(1, ((size_t)64 << 20) / size_of[size]);
	for (int turn = 0; turn < TURNS; turn++) {
		if (kind == 3) {             /* what the neighbour has just written */
			memset(mine, turn, part);
			passes = 1;
		}
		gather(g);
		double t = clock_s();
		for (int i = 0; i < passes; i++) {
			if (kind == 0)
				kept = read_all(mine, part);
			else if (kind == 1)
				memset(mine, i, part);
			else if (kind == 2)
				memcpy(mine + half, mine, half);
			else
				kept = read_all(other, part);
		}
		g->seconds[me] = clock_s() - t;
		gather(g);
		double worst = 0;
		for (int i = 0; i < g->n; i++)
			worst = fmax(worst, g->seconds[i]);
		if (!me)
			g->rate[size][kind] = fmax(g->rate[size][kind], (double)part * g->n * passes / worst);
		gather(g);
	}
}

/* A line goes to the neighbour and comes back. */
static void gauge_exchange(struct gauge *g, int me)
{
	enum { BALLS = 20000 };
	for (int turn = 0; turn < TURNS; turn++) {
		gather(g);
		double t = clock_s();
		for (int i = 0; i < BALLS && me < 2; i++) {
			while (atomic_load_explicit(&g->ball, memory_order_acquire) != 2 * i + me)
				;
			atomic_store_explicit(&g->ball, me ? i + 1 == BALLS ? 0 : 2 * i + 2 : 2 * i + 1, memory_order_release);
		}
		t = clock_s() - t;
		gather(g);
		if (!me && (!g->exchange || t / (2 * BALLS) < g->exchange))
			g->exchange = t / (2 * BALLS);
	}
}

static void *gauge_all(void *p)
{
	struct gauger *x = p;
	struct gauge *g = x->g;
	while (!atomic_load(&g->go))
		sched_yield();
	size_t bytes = size_of[SIZES - 1] / (size_t)g->n;
	cpu_set_t set;
	int seen = 0;
	/* one core each, as devices and their workers have */
	if (!sched_getaffinity(0, sizeof set, &set))
		for (int i = 0; i < CPU_SETSIZE; i++)
			if (CPU_ISSET(i, &set) && seen++ == x->at) {
				CPU_ZERO(&set);
				CPU_SET(i, &set);
				sched_setaffinity(0, sizeof set, &set);
				break;
			}
	g->mem[x->at] = room(bytes + 64);
	memset(g->mem[x->at], 1, bytes);
	gather(g);
	g->peak[x->at] = measure();
	gather(g);
	for (int size = 0; size < SIZES; size++)
		for (int kind = 0; kind < (g->n > 1 ? KINDS : KINDS - 1); kind++)
			gauge_memory(g, x->at, size, kind);
	if (g->n > 1 && g->n <= cpu_get()->cores)
		gauge_exchange(g, x->at);
	gather(g);
	free(g->mem[x->at]);
	return NULL;
}

/* name, number and unit, one a line; of all cores together, read and written bytes both counted. */
static void peaks(int n)
{
	struct gauge *g = mem_lines(sizeof *g);
	struct gauger x[MOST_CORES];
	pthread_t id[MOST_CORES];
	struct peak sum = {0};
	g->n = n;
	for (int i = 0; i < n; i++)
		x[i] = (struct gauger){g, i};
	for (int i = 1; i < n; i++)
		if (pthread_create(&id[i], NULL, gauge_all, &x[i]))
			g->n = n = i;        /* nobody measures before all are here */
	atomic_store(&g->go, true);
	gauge_all(&x[0]);
	for (int i = 1; i < n; i++)
		pthread_join(id[i], NULL);
	for (int i = 0; i < n; i++) {
		sum.f32 += g->peak[i].f32;
		sum.bf16 += g->peak[i].bf16;
		sum.i8 += g->peak[i].i8;
	}
	printf("cores\t%d\nf32\t%.1f\tGFLOP/s\nbf16\t%.1f\tGFLOP/s\ni8\t%.1f\tGOP/s\n", n, sum.f32 / 1e9, sum.bf16 / 1e9, sum.i8 / 1e9);
	for (int kind = 0; kind < (n > 1 ? KINDS : KINDS - 1); kind++)
		for (int size = 0; size < SIZES; size++)
			printf("%s %zu\t%.2f\tGB/s\n", kind_name[kind], size_of[size], g->rate[size][kind] / 1e9);
	if (g->exchange > 0)
		printf("exchange\t%.1f\tns\n", g->exchange * 1e9);
	free(g);
}

struct err *bench_kernel(const char *text, int repeats, double least, double *sample)
{
	const struct row r = {.kern = text};
	for (int i = 0; i < repeats; i++)
		TRY(time_row(&r, least, 1, &sample[i]));
	return NULL;
}

static struct err *run(char **file, int nfile, int *status)
{
	static const char *const kind[] = {"kern", "coll", "peak", "machine"};
	int64_t hundredths = 10, n_core = 1;
	if (strcmp(file[0], "coll") == 0)
		return bench_coll(&coll);
	if (strcmp(file[0], "machine") == 0)
		return bench_machine();
	if (strcmp(file[0], "peak") == 0) {
		n_core = MIN(cpu_get()->cores, MOST_CORES);
		TRY(arg_int("--cores", cores, 1, MOST_CORES, &n_core));
		peaks((int)n_core);
		return NULL;
	}
	if (strcmp(file[0], "kern") != 0)
		return ERR(INVALID, "rondo bench has no '%s'%s; there are: kern, coll, peak, machine", file[0], args_hint(file[0], kind, NELEM(kind)));
	TRY(arg_int("--seconds", seconds, 0, 100000, &hundredths));
	TRY(arg_int("--cores", cores, 1, MOST_CORES, &n_core));
	bool tty = isatty(1);
	struct peak p = measure();
	unsigned fp = cpu_set_ftz();
	printf("# %s, %lld core%s; kernels use %s; measured peak: f32 %.0f GFLOP/s, bf16 %.0f GFLOP/s, i8 %.0f GOP/s, copy of 16 MB %.1f GB/s\n", cpu_get()->name, (long long)n_core, n_core > 1 ? "s" : "", kern_isa(),
	       p.f32 / 1e9, p.bf16 / 1e9, p.i8 / 1e9, p.bytes / 1e9);
	printf(tty ? "%-40s %12s %10s %-8s %s\n" : "%s\t%s\t%s\t%s\t%s\n", "kernel", "microseconds", "rate", "unit", "share of peak");
	for (size_t i = 0; i < NELEM(rows); i++) {
		const struct row *r = &rows[i];
		double t = 0;
		if (only && !strstr(r->name, only))
			continue;
		str_progress(stderr, "bench kern", (double)i / NELEM(rows));
		struct err *e = time_row(r, (double)hundredths / 100, (int)n_core, &t);
		if (isatty(2))
			fputs("\r\033[K", stderr);             /* the bar makes way for the row */
		if (e) {
			printf(tty ? "%-40s %s\n" : "%s\t%s\n", r->name, e->msg);
			err_free(e);
			continue;
		}
		double rate = (r->flops > 0 ? r->flops : r->bytes) / t, most = (double)n_core * (r->flops > 0 ? r->kind == I8 ? p.i8 : r->kind == BF16 ? p.bf16 : p.f32 : p.bytes);
		printf(tty ? "%-40s %12.2f %10.2f %-8s %.2f\n" : "%s\t%.2f\t%.2f\t%s\t%.3f\n", r->name, t * 1e6, rate / 1e9, r->flops > 0 ? "GFLOP/s" : "GB/s", most > 0 ? rate / most : 0);
		fflush(stdout);
	}
	cpu_restore_fp(fp);
	return NULL;
}

const struct command cmd_bench = {"bench", "kern|coll|peak|machine [options]", "time kernels, collectives, or what the machine can do at most; measure the machine table", opts, NELEM(opts), 1, 1, run};
