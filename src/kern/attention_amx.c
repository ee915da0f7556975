/* Attention on tiles.  Products run beside vector instructions, not after them, but what is far apart in a program does not meet in the processor: so
 * the exponentials of a tile of scores are written between the products of the next, and of the values of those before.  (Measured on
 * Emerald Rapids: a product of tiles takes 16 cycles, a store of one as many; the exponentials of 32 x 32 scores 275, beside products, which leave them
 * one port, 600.) */
#include "attention.h"
#include "attention_512.h"
#include "tiles.h"

enum { MAMX = ATT_MOST_MR };
#define ON_TILES __attribute__((target("amx-tile,amx-bf16,avx512f,avx512dq,avx512bw,avx512vl,avx512bf16")))

/* Rows of exponentials of a tile that are left: where the next one's are. */
struct rows { const float *s, *m; float (*sum)[ATT_LANES], (*top)[ATT_LANES]; char *p; int left; };

INBF16 void exps(struct rows *r, __m512 c, int64_t ldp, bool first, bool top)
{
	__m512 m = K512(*r->m), x = _mm512_fmsub_ps(c, _mm512_load_ps(r->s), m), y = _mm512_fmsub_ps(c, _mm512_load_ps(r->s + 16), m);
	if (top)
		raise_top(*r->top++, x, y, 0, *r->m);
	x = exp2_short(x);
	y = exp2_short(y);
	STORE_PAIRS(r->p, x, y);
	x = _mm512_add_ps(x, y);
	_mm512_store_ps(*r->sum, first ? x : _mm512_add_ps(_mm512_load_ps(*r->sum), x));
	r->s += ATT_COLS;
	r->m++;
	r->sum++;
	r->p += ldp;
	r->left--;
}

INBF16 bool add_sums(float (*sum)[ATT_LANES], float (*l)[ATT_LANES])
{
	__m512 most = K512(0);
	for (int r = 0; r < MAMX; r++)
		most = _mm512_max_ps(_mm512_load_ps(sum[r]), most);
	if (_mm512_cmp_ps_mask(most, K512(ATT_GROWN), _CMP_GT_OQ))
		return true;
	for (int r = 0; r < MAMX; r++)
		_mm512_store_ps(l[r], _mm512_add_ps(_mm512_load_ps(l[r]), _mm512_load_ps(sum[r])));
	return false;
}

#define TILES amx_
#define VARIANT(name) att_amx_##name
#include "attention_tiles.h"
#undef TILES
#undef VARIANT
#define TILES model_
#define VARIANT(name) att_model_##name
#include "attention_tiles.h"
