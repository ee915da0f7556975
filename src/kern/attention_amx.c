/* Attention on tiles.  Products run beside vector instructions, not after them, but what is far apart in a program does not meet in the processor: so
 * the exponentials of a tile of scores are written between the products of the next, and of the values of those before.  (Measured on
 * Emerald Rapids: a product of tiles takes 16 cycles, a store of one as many; the exponentials of 32 x 32 scores 275, beside products, which leave them
 * one port, 600.) */
#include "attention.h"
#include "attention_512.h"
#include "tiles.h"

enum { MAMX = ATT_MOST_MR };
#define ON_TILES __attribute__((target("amx-tile,amx-bf16,avx512f,avx512dq,avx512bw,avx512vl,avx512bf16")))

/* Rows r and r + 1 of a tile. */
INBF16 void exps(const struct att_step *q, int r)
{
	__m512 c = K512(q->c2);
#pragma GCC unroll 2
	for (int i = r; i < r + 2; i++) {
		const float *s = q->s + i * ATT_COLS;
		__m512 m = K512(q->m[i]), less = K512(q->less[i]), x = _mm512_fmsub_ps(_mm512_sub_ps(_mm512_load_ps(s), m), c, less),
		       y = _mm512_fmsub_ps(_mm512_sub_ps(_mm512_load_ps(s + 16), m), c, less);
		if (q->top)
			raise_top(q->top[i], x, y, q->less[i], q->m[i] * q->c2);
		x = exp2_short(x);
		y = exp2_short(y);
		_mm512_store_ps(q->l[i], _mm512_add_ps(_mm512_load_ps(q->l[i]), _mm512_add_ps(x, y)));
		STORE_PAIRS(q->p + i * q->ldp, x, y);
	}
}

#define TILES amx_
#define VARIANT(name) att_amx_##name
#include "attention_tiles.h"
#undef TILES
#undef VARIANT
#define TILES model_
#define VARIANT(name) att_model_##name
#include "attention_tiles.h"
