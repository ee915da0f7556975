/* rondo bench: collectives (bench_coll.c); kernels (bench_kern.c); peak: what the cores can do; machine: the machine table (bench_machine.c). */
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
	{"seconds", "S", "kern: least time spent on each row (0.1)", &seconds},
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

enum { CHAINS = 12, ROUNDS = 200000 };

#if defined(__x86_64__)
/* So many independent chains of an instruction: what a register begins with, and what it is combined with each time. */
#define CHAINED(name, isa, vec, operand, first, second, start, step) \
	__attribute__((target(isa), noinline)) static float name(void) \
	{ \
		vec x[CHAINS]; \
		operand a = (operand)first, b = (operand)second; \
		for (int i = 0; i < CHAINS; i++) \
			x[i] = start; \
		for (int r = 0; r < ROUNDS; r++) \
			_Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) \
				x[i] = step(x[i], a, b); \
		for (int i = 1; i < CHAINS; i++) \
			x[0] += x[i]; \
		return (float)((double)x[0][0] + (double)x[0][1]); \
	}
typedef uint32_t ints256 __attribute__((vector_size(32)));
typedef uint32_t ints512 __attribute__((vector_size(64)));
#define TIMES_PLUS(x, a, b) ((x) * (a) + (b))
CHAINED(fma256, "avx2,fma", __m256, __m256, _mm256_set1_ps(0.999f), _mm256_set1_ps(0.001f), _mm256_set1_ps((float)i), _mm256_fmadd_ps)
CHAINED(fma512, "avx512f", __m512, __m512, _mm512_set1_ps(0.999f), _mm512_set1_ps(0.001f), _mm512_set1_ps((float)i), _mm512_fmadd_ps)
CHAINED(double256, "avx2,fma", __m256d, __m256d, _mm256_set1_pd(0.999), _mm256_set1_pd(0.001), _mm256_set1_pd(i), _mm256_fmadd_pd)
CHAINED(double512, "avx512f", __m512d, __m512d, _mm512_set1_pd(0.999), _mm512_set1_pd(0.001), _mm512_set1_pd(i), _mm512_fmadd_pd)
CHAINED(int256, "avx2", ints256, ints256, _mm256_set1_epi32(0x1e3779b1), _mm256_set1_epi32(0x05ebca77), (ints256)_mm256_set1_epi32(i), TIMES_PLUS)
CHAINED(int512, "avx512f", ints512, ints512, _mm512_set1_epi32(0x1e3779b1), _mm512_set1_epi32(0x05ebca77), (ints512)_mm512_set1_epi32(i), TIMES_PLUS)
/* Products of pairs of bf16, of fours of bytes. */
CHAINED(pairs512, "avx512f,avx512bw,avx512bf16", __m512, __m512bh, _mm512_set1_epi16(0x3f7f), _mm512_set1_epi16(0x3a83), _mm512_set1_ps((float)i), _mm512_dpbf16_ps)
CHAINED(bytes512, "avx512f,avx512vnni", __m512i, __m512i, _mm512_set1_epi32(0x01020304), _mm512_set1_epi32(0x01ff02fe), _mm512_set1_epi32(i), _mm512_dpbusd_epi32)

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

#define X(kind) #kind,
static const char *const op_name[] = { BENCH_KINDS(X) };
#undef X
static volatile float keep;

/* Operations a second of `rounds`, an instruction of which does ops; NULL: none. */
static double rate(float (*rounds)(void), double ops)
{
	double best = 0;
	for (int k = 0; k < 5 && rounds; k++) {
		double t = clock_s();
		keep = rounds();
		t = clock_s() - t;
		best = fmax(best, ops * CHAINS * ROUNDS / t);
	}
	return best;
}

static struct bench_peak measure(void)
{
	struct bench_peak p = {0};
#if defined(__x86_64__)
	const struct cpu_info *c = cpu_get();
	double *ops = p.ops;
	ops[BENCH_f32] = c->avx512 ? rate(fma512, 32) : rate(c->avx2 ? fma256 : NULL, 16);
	ops[BENCH_f64] = c->avx512 ? rate(double512, 16) : rate(c->avx2 ? double256 : NULL, 8);
	ops[BENCH_i32] = c->avx512 ? rate(int512, 32) : rate(c->avx2 ? int256 : NULL, 16);
	/* What has fewer bits may be computed as f32, which on some is faster. */
	ops[BENCH_bf16] = fmax(ops[BENCH_f32], rate(c->avx512_bf16 ? pairs512 : NULL, 64));
	ops[BENCH_i8] = fmax(ops[BENCH_f32], rate(c->avx512 && __builtin_cpu_supports("avx512vnni") ? bytes512 : NULL, 128));
	enum { XCOMP_PERM = 0x1023, TILE_DATA = 18 };
	if (c->amx_bf16 && syscall(SYS_arch_prctl, XCOMP_PERM, TILE_DATA) == 0)
		for (int k = 0; k < 5; k++) {
			double t = clock_s();
			amx_rounds(20000);
			t = clock_s() - t;
			ops[BENCH_bf16] = fmax(ops[BENCH_bf16], 4.0 * 20000 * 16 * 16 * 32 * 2 / t);
		}
	if (c->amx_bf16 && c->amx_int8)
		ops[BENCH_i8] = 2 * ops[BENCH_bf16];       /* by what the instructions hold */
#endif
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

/* --- what all cores can do at once -------------------------------------------------- */

/* Everybody measures the same at the same time; what counts is the slowest of a round, and the best round. */
enum { SIZES = 4, KINDS = 4, TURNS = 6 };
static const size_t size_of[SIZES] = {1 << 20, 8 << 20, 64 << 20, 256 << 20};
static const char *const kind_name[KINDS] = {"read", "fill", "copy", "peer"};

struct gauge {
	int n;
	atomic_int here, turn;
	atomic_bool go;
	char *mem[BENCH_CORES];               /* the largest size's part of each */
	double seconds[BENCH_CORES];
	struct bench_peak peak[BENCH_CORES];
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
				kept = bench_read(mine, part);
			else if (kind == 1)
				memset(mine, i, part);
			else if (kind == 2)
				memcpy(mine + half, mine, half);
			else
				kept = bench_read(other, part);
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
	g->mem[x->at] = bench_room(bytes + 64);
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
	struct gauger x[BENCH_CORES];
	pthread_t id[BENCH_CORES];
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
	printf("cores\t%d\n", n);
	for (int k = 0; k < BENCH_KIND_COUNT; k++) {
		double sum = 0;
		for (int i = 0; i < n; i++)
			sum += g->peak[i].ops[k];
		printf("%s\t%.1f\tG%sOP/s\n", op_name[k], sum / 1e9, op_name[k][0] == 'i' ? "" : "FL");
	}
	for (int kind = 0; kind < (n > 1 ? KINDS : KINDS - 1); kind++)
		for (int size = 0; size < SIZES; size++)
			printf("%s %zu\t%.2f\tGB/s\n", kind_name[kind], size_of[size], g->rate[size][kind] / 1e9);
	if (g->exchange > 0)
		printf("exchange\t%.1f\tns\n", g->exchange * 1e9);
	free(g);
}

static struct err *run(char **file, int nfile, int *status)
{
	static const char *const kind[] = {"kern", "coll", "peak", "machine"};
	double least = 0.1;
	int64_t n_core = 1;
	if (only && strcmp(file[0], "kern") != 0)
		return ERR(INVALID, "option '--only' is of rondo bench kern, not of rondo bench %s", file[0]);
	if (strcmp(file[0], "coll") == 0)
		return bench_coll(&coll);
	if (strcmp(file[0], "machine") == 0)
		return bench_machine();
	if (strcmp(file[0], "peak") == 0) {
		n_core = MIN(cpu_get()->cores, BENCH_CORES);
		TRY(arg_int("cores", cores, 1, BENCH_CORES, &n_core));
		peaks((int)n_core);
		return NULL;
	}
	if (strcmp(file[0], "kern") != 0)
		return ERR(INVALID, "rondo bench has no '%s'%s; there are: kern, coll, peak, machine", file[0], args_hint(file[0], kind, NELEM(kind)));
	TRY(arg_real("seconds", seconds, &least));
	TRY(arg_int("cores", cores, 1, BENCH_CORES, &n_core));
	TRY(bench_kern_has(only));
	const struct bench_peak p = measure();
	return bench_kern(only, least, (int)n_core, &p);
}

const struct command cmd_bench = {"bench", "kern|coll|peak|machine [options]", "time kernels, collectives, or what the machine can do at most; measure the machine table", opts, NELEM(opts), 1, 1, run, "kern coll peak machine"};
