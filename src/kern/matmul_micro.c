/* Micro-kernels of matmul.c: one row of the table per instruction set, with a plain C model of each layout
 * that runs anywhere. */
#include "matmul.h"

#include <immintrin.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cpuid.h>

/* --- f32 ------------------------------------------------------------------------ */

enum { M512 = 14, N512 = 32, M256 = 6, N256 = 16, MBF = 12, NBF = 32 };

__attribute__((target("avx512f")))
static void f32_512(int64_t steps, const void *pa, const void *pb, int64_t ldb, float *c, int64_t ldc, bool add, const struct matmul_ahead *next)
{
	const float *a = pa, *b = pb;
	__m512 x[M512][2];
	for (int i = 0; i < M512; i++)
		x[i][0] = x[i][1] = _mm512_setzero_ps();
	for (int64_t k = 0; k < steps; k++) {
		__m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
		_mm_prefetch((const char *)(b + 16 * ldb), _MM_HINT_T0);
		_mm_prefetch((const char *)(b + 16 * ldb + 16), _MM_HINT_T0);
#pragma GCC unroll 14
		for (int i = 0; i < M512; i++) {
			__m512 y = _mm512_set1_ps(a[i]);
			x[i][0] = _mm512_fmadd_ps(y, b0, x[i][0]);
			x[i][1] = _mm512_fmadd_ps(y, b1, x[i][1]);
		}
		a += M512;
		b += ldb;
	}
#pragma GCC unroll 14
	for (int i = 0; i < M512; i++) {
		float *q = c + i * ldc;
		_mm512_storeu_ps(q, add ? _mm512_add_ps(_mm512_loadu_ps(q), x[i][0]) : x[i][0]);
		_mm512_storeu_ps(q + 16, add ? _mm512_add_ps(_mm512_loadu_ps(q + 16), x[i][1]) : x[i][1]);
	}
}

__attribute__((target("avx2,fma")))
static void f32_256(int64_t steps, const void *pa, const void *pb, int64_t ldb, float *c, int64_t ldc, bool add, const struct matmul_ahead *next)
{
	const float *a = pa, *b = pb;
	__m256 x[M256][2];
	for (int i = 0; i < M256; i++)
		x[i][0] = x[i][1] = _mm256_setzero_ps();
	for (int64_t k = 0; k < steps; k++) {
		__m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
		for (int i = 0; i < M256; i++) {
			__m256 y = _mm256_broadcast_ss(a + i);
			x[i][0] = _mm256_fmadd_ps(y, b0, x[i][0]);
			x[i][1] = _mm256_fmadd_ps(y, b1, x[i][1]);
		}
		a += M256;
		b += ldb;
	}
	for (int i = 0; i < M256; i++) {
		float *q = c + i * ldc;
		_mm256_storeu_ps(q, add ? _mm256_add_ps(_mm256_loadu_ps(q), x[i][0]) : x[i][0]);
		_mm256_storeu_ps(q + 8, add ? _mm256_add_ps(_mm256_loadu_ps(q + 8), x[i][1]) : x[i][1]);
	}
}

/* The meaning of the f32 layout: separate rounding of product and sum. */
static void f32_model(int64_t steps, const void *pa, const void *pb, int64_t ldb, float *c, int64_t ldc, bool add, const struct matmul_ahead *next)
{
	const float *a = pa, *b = pb;
	for (int i = 0; i < M256; i++)
		for (int j = 0; j < N256; j++) {
			float x = 0;
			for (int64_t k = 0; k < steps; k++)
				x += a[k * M256 + i] * b[k * ldb + j];
			c[i * ldc + j] = add ? c[i * ldc + j] + x : x;
		}
}

/* --- bf16 in pairs ---------------------------------------------------------------- */

__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
static void bf16_512(int64_t steps, const void *pa, const void *pb, int64_t ldb, float *c, int64_t ldc, bool add, const struct matmul_ahead *next)
{
	const uint32_t *a = pa;
	const uint16_t *b = pb;
	__m512 x[MBF][2];
	for (int i = 0; i < MBF; i++)
		x[i][0] = x[i][1] = _mm512_setzero_ps();
	for (int64_t k = 0; k < steps; k++) {
		__m512bh b0 = (__m512bh)_mm512_loadu_si512((const void *)b), b1 = (__m512bh)_mm512_loadu_si512((const void *)(b + 32));
#pragma GCC unroll 12
		for (int i = 0; i < MBF; i++) {
			__m512bh y = (__m512bh)_mm512_set1_epi32((int)a[i]);
			x[i][0] = _mm512_dpbf16_ps(x[i][0], y, b0);
			x[i][1] = _mm512_dpbf16_ps(x[i][1], y, b1);
		}
		a += MBF;
		b += 2 * NBF;
	}
#pragma GCC unroll 12
	for (int i = 0; i < MBF; i++) {
		float *q = c + i * ldc;
		_mm512_storeu_ps(q, add ? _mm512_add_ps(_mm512_loadu_ps(q), x[i][0]) : x[i][0]);
		_mm512_storeu_ps(q + 16, add ? _mm512_add_ps(_mm512_loadu_ps(q + 16), x[i][1]) : x[i][1]);
	}
}

static void bf16_model(int64_t steps, const void *pa, const void *pb, int64_t ldb, float *c, int64_t ldc, bool add, const struct matmul_ahead *next)
{
	const uint16_t *a = pa, *b = pb;
	for (int i = 0; i < MBF; i++)
		for (int j = 0; j < NBF; j++) {
			float x = 0;
			for (int64_t k = 0; k < steps; k++)
				for (int h = 0; h < 2; h++)
					x += bf16_to_f32(a[(k * MBF + i) * 2 + h]) * bf16_to_f32(b[(k * NBF + j) * 2 + h]);
			c[i * ldc + j] = add ? c[i * ldc + j] + x : x;
		}
}

/* --- AMX --------------------------------------------------------------------------- */

/* Tiles: 0-3 the result (2 x 2 blocks of 16 x 16 f32), 4-5 lhs, 6-7 rhs.  All are 16 rows of 64 bytes.  A
 * constant, since gcc 12 does not see that the instruction reads all of it. */
struct tile_config { uint8_t palette, start, reserved[14]; uint16_t colsb[16]; uint8_t rows[16]; };
static const struct tile_config config __attribute__((aligned(64))) = {
	.palette = 1, .colsb = { 64, 64, 64, 64, 64, 64, 64, 64 }, .rows = { 16, 16, 16, 16, 16, 16, 16, 16 },
};

__attribute__((target("amx-tile")))
static void amx_begin(void)
{
	_tile_loadconfig(&config);
}

__attribute__((target("amx-tile")))
static void amx_end(void)
{
	_tile_release();
}

__attribute__((target("amx-tile,amx-bf16")))
static void amx(int64_t steps, const void *pa, const void *pb, int64_t ldb, float *c, int64_t ldc, bool add, const struct matmul_ahead *next)
{
	const char *a = pa, *b = pb;
	if (add) {
		_tile_loadd(0, c, ldc * 4);
		_tile_loadd(1, c + 16, ldc * 4);
		_tile_loadd(2, c + 16 * ldc, ldc * 4);
		_tile_loadd(3, c + 16 * ldc + 16, ldc * 4);
	} else {
		_tile_zero(0);
		_tile_zero(1);
		_tile_zero(2);
		_tile_zero(3);
	}
	/* lhs stays in L1 while rhs passes through: its loads ask for no place there */
	for (int64_t k = 0; k < steps; k++) {
		_tile_stream_loadd(6, b, 64);
		_tile_loadd(4, a, 64);
		_tile_stream_loadd(7, b + 1024, 64);
		_tile_dpbf16ps(0, 4, 6);
		_tile_loadd(5, a + 1024, 64);
		_tile_dpbf16ps(1, 4, 7);
		for (int i = 0; i < next->rows; i++)
			_mm_prefetch(next->row + i * next->stride + 64 * k, _MM_HINT_T1);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
		a += 2048;
		b += 2048;
	}
	_tile_stored(0, c, ldc * 4);
	_tile_stored(1, c + 16, ldc * 4);
	_tile_stored(2, c + 16 * ldc, ldc * 4);
	_tile_stored(3, c + 16 * ldc + 16, ldc * 4);
}

static void amx_model(int64_t steps, const void *pa, const void *pb, int64_t ldb, float *c, int64_t ldc, bool add, const struct matmul_ahead *next)
{
	const uint16_t *a = pa, *b = pb;
	for (int i = 0; i < 32; i++)
		for (int j = 0; j < 32; j++) {
			float x = add ? c[i * ldc + j] : 0;
			for (int64_t k = 0; k < steps * 32; k++)
				x += bf16_to_f32(a[k / 32 * 1024 + i / 16 * 512 + i % 16 * 32 + k % 32]) *
				     bf16_to_f32(b[k / 32 * 1024 + j / 16 * 512 + k % 32 / 2 * 32 + j % 16 * 2 + k % 2]);
			c[i * ldc + j] = x;
		}
}

/* The kernel gives a process the tile registers only on request. */
static bool tiles_granted;
static void request_tiles(void)
{
	enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
	tiles_granted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
}

static bool has_amx(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	if (!cpu_get()->amx_bf16)
		return false;
	pthread_once(&once, request_tiles);
	return tiles_granted;
}

static bool has_512(void) { return cpu_get()->avx512; }
static bool has_256(void) { return cpu_get()->avx2; }
static bool has_bf16(void) { return cpu_get()->avx512_bf16; }
static bool always(void) { return true; }
static bool never(void) { return false; }

/* vdpbf16ps is twice f32 on AMD and half of it on Intel (measured). */
static bool amd(void)
{
	unsigned a, b, c, d;
	return __get_cpuid(0, &a, &b, &c, &d) && b == 0x68747541;
}

const struct matmul_variant matmul_variant[] = {
	{ "amx",         true,  true,  32,   32,   32, has_amx,  always, amx,        amx_begin, amx_end },
	{ "avx512_bf16", true,  false, MBF,  NBF,  2,  has_bf16, amd,    bf16_512,   NULL,      NULL },
	{ "avx512",      false, false, M512, N512, 1,  has_512,  always, f32_512,    NULL,      NULL },
	{ "avx2",        false, false, M256, N256, 1,  has_256,  always, f32_256,    NULL,      NULL },
	{ "amx_model",   true,  true,  32,   32,   32, always,   never,  amx_model,  NULL,      NULL },
	{ "bf16_model",  true,  false, MBF,  NBF,  2,  always,   never,  bf16_model, NULL,      NULL },
	{ "f32_model",   false, false, M256, N256, 1,  always,   never,  f32_model,  NULL,      NULL },
};
const int matmul_nvariant = NELEM(matmul_variant);
