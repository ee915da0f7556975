/* Micro-kernels of attention: a row of the table for each instruction set, with a plain C model of each layout that runs
 * anywhere.  One layout for all: pairs of bf16 suit vector instructions and tiles. */
#include "attention.h"
#include "attention_512.h"
#include "micro.h"

#include <immintrin.h>

const struct att_variant *att_force, att_reference = { .name = "reference" };

enum { M256 = 6, MAMX = ATT_MOST_MR, FEW = 8 };

/* --- vectors ----------------------------------------------------------------------- */

#define MICRO_512(name, isa, product) \
isa static void name(int64_t steps, const void *pa, int64_t lda, const void *pb, float *c, bool add) \
{ \
	const char *a = pa, *b = pb; \
	__m512 x[M512][2]; \
	PRODUCT_512(x, product, steps, a, lda, b); \
	if (add) \
		_Pragma("GCC unroll 8") \
		for (int i = 0; i < M512; i++) { \
			x[i][0] = _mm512_add_ps(x[i][0], _mm512_load_ps(c + i * ATT_COLS)); \
			x[i][1] = _mm512_add_ps(x[i][1], _mm512_load_ps(c + i * ATT_COLS + 16)); \
		} \
	_Pragma("GCC unroll 8") \
	for (int i = 0; i < M512; i++) { \
		_mm512_store_ps(c + i * ATT_COLS, x[i][0]); \
		_mm512_store_ps(c + i * ATT_COLS + 16, x[i][1]); \
	} \
}
MICRO_512(bf16_512, TBF16, PAIRS)
MICRO_512(f32_512, T512, FLOATS)

/* Half a panel. */
__attribute__((target("avx2,fma")))
static void half_256(int64_t steps, const char *a, int64_t lda, const char *b, float *c, bool add)
{
	__m256 x[M256][2];
	for (int i = 0; i < M256; i++)
		x[i][0] = x[i][1] = _mm256_setzero_ps();
	for (int64_t k = 0; k < steps; k++) {
		__m256 b0 = _mm256_load_ps((const float *)(const void *)(b + 128 * k)), b1 = _mm256_load_ps((const float *)(const void *)(b + 128 * k + 32));
#pragma GCC unroll 6
		for (int i = 0; i < M256; i++) {
			__m256 y = _mm256_broadcast_ss((const float *)(const void *)(a + i * lda + 4 * k));
			x[i][0] = _mm256_fmadd_ps(y, b0, x[i][0]);
			x[i][1] = _mm256_fmadd_ps(y, b1, x[i][1]);
		}
	}
#pragma GCC unroll 6
	for (int i = 0; i < M256; i++)
		for (int j = 0; j < 2; j++) {
			float *q = c + i * ATT_COLS + 8 * j;
			_mm256_store_ps(q, add ? _mm256_add_ps(_mm256_load_ps(q), x[i][j]) : x[i][j]);
		}
}

static void f32_256(int64_t steps, const void *a, int64_t lda, const void *b, float *c, bool add)
{
	half_256(steps, a, lda, b, c, add);
	half_256(steps, a, lda, (const char *)b + 64, c + 16, add);
}

/* The meaning of the layout: mr rows, words of floats or pairs. */
static void model(int mr, bool pairs, int64_t steps, const void *pa, int64_t lda, const void *pb, float *c, bool add)
{
	for (int i = 0; i < mr; i++) {
		const void *a = (const char *)pa + i * lda;
		float sum[ATT_COLS] = { 0 };
		for (int64_t k = 0; k < steps; k++) {
			const void *b = (const char *)pb + k * ATT_COLS * 4;
			const uint16_t *p = (const uint16_t *)a + 2 * k, *q = b;
			const float x = ((const float *)a)[k], *y = b;
			for (int j = 0; j < ATT_COLS; j++)
				if (pairs) {
					sum[j] += bf16_to_f32(p[0]) * bf16_to_f32(q[2 * j]);
					sum[j] += bf16_to_f32(p[1]) * bf16_to_f32(q[2 * j + 1]);
				} else {
					sum[j] += x * y[j];
				}
		}
		for (int j = 0; j < ATT_COLS; j++)
			c[i * ATT_COLS + j] = add ? c[i * ATT_COLS + j] + sum[j] : sum[j];
	}
}

static void f32_model(int64_t steps, const void *a, int64_t lda, const void *b, float *c, bool add)
{
	model(M256, false, steps, a, lda, b, c, add);
}

static void bf16_model(int64_t steps, const void *a, int64_t lda, const void *b, float *c, bool add)
{
	model(M512, true, steps, a, lda, b, c, add);
}

/* --- which run here --------------------------------------------------------------------- */

/* Exponentials are made by vector instructions of bf16 and of bytes. */
static bool has_words(void) { return micro_bf16() && cpu_get()->avx512_vbmi; }
static bool has_amx(void) { return has_words() && micro_amx(); }

const struct att_variant att_variant[] = {
	{ "avx512_bf16_few", 2, FEW, 2, micro_bf16, micro_always,    NULL,            &att_soft_512_bf16,   NULL,              NULL,            NULL, NULL, &att_few_bf16_512 },
	{ "avx512_few",  4, FEW,  1,  micro_avx512, micro_always,    NULL,            &att_soft_512,        NULL,              NULL,            NULL, NULL, &att_few_f32_512 },
	{ "avx2_few",    4, FEW,  1,  micro_avx2,   micro_always,    NULL,            &att_soft_256,        NULL,              NULL,            NULL, NULL, &att_few_f32_256 },
	{ "amx",         2, MAMX, 32, has_amx,      micro_always,    att_amx_micro,   &att_soft_512_bf16,   micro_tiles_begin, micro_tiles_end, NULL, att_amx_stream, NULL },
	{ "avx512_bf16", 2, M512, 2,  has_words,    micro_bf16_pays, bf16_512,        &att_soft_512_bf16,   NULL,              NULL,            att_fused_bf16_512, NULL, NULL },
	{ "avx512",      4, M512, 1,  micro_avx512, micro_always,    f32_512,         &att_soft_512,        NULL,              NULL,            att_fused_f32_512, NULL, NULL },
	{ "avx2",        4, M256, 1,  micro_avx2,   micro_always,    f32_256,         &att_soft_256,        NULL,              NULL,            NULL, NULL, NULL },
	{ "amx_model",   2, MAMX, 32, has_words,    micro_never,     att_model_micro, &att_soft_512_bf16,   NULL,              NULL,            NULL, att_model_stream, NULL },
	{ "bf16_model",  2, M512, 2,  micro_always, micro_never,     bf16_model,      &att_soft_bf16_model, NULL,              NULL,            NULL, NULL, NULL },
	{ "f32_model",   4, M256, 1,  micro_always, micro_never,     f32_model,       &att_soft_f32_model,  NULL,              NULL,            NULL, NULL, NULL },
};
const int att_nvariant = NELEM(att_variant);
