/* Attention on tiles.  Products run beside vector instructions, not after them, but what is far apart in a program does not meet in the processor: so
 * the exponentials of a tile of scores are written between the products of the next, and of the values of those before.  (Measured on
 * Emerald Rapids: a product of tiles takes 16 cycles, a store of one as many; the exponentials of 32 x 32 scores 275, beside products, which leave them
 * one port, 600.) */
#include "attention.h"
#include "attention_512.h"
#include "tiles.h"

enum { MAMX = ATT_MOST_MR };
#define ON_TILES __attribute__((target("amx-tile,amx-bf16,avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx512vbmi")))

/* Rows of exponentials of a tile that are left: where the next one's are. */
struct rows { const float *s, *m; float (*sum)[ATT_LANES], (*top)[ATT_LANES]; char *p; int left; float by; };

static inline void next_row(struct rows *r, int64_t ldp)
{
	r->s += ATT_COLS;
	r->m++;
	r->sum++;
	r->p += ldp;
	r->left--;
}

/* What is wanted beside p and its sums: those of what p was before it was rounded, which lie behind the others; and the highest scores, too;
 * or nothing, and p may be made of integers. */
enum also { NO_MORE, EXACT, TOPS, WORDS };

INBF16 void exps_floats(struct rows *r, __m512 c, int64_t ldp, bool first, enum also also)
{
	__m512 m = K512(*r->m), x = _mm512_load_ps(r->s), y = _mm512_load_ps(r->s + 16);
	if (also == TOPS)
		raise_top(*r->top++, x, y, r->by);
	x = _mm512_fmsub_ps(c, x, m);
	y = _mm512_fmsub_ps(c, y, m);
	x = exp2_short(x);
	y = exp2_short(y);
	__m512bh pair = _mm512_cvtne2ps_pbh(y, x);
	_mm512_store_si512(r->p, (__m512i)pair);
	_mm512_store_ps(*r->sum, PAIRS(first ? _mm512_setzero_ps() : _mm512_load_ps(*r->sum), pair, _mm512_set1_epi16(0x3f80)));      /* times 1 */
	if (also) {
		x = _mm512_add_ps(x, y);
		_mm512_store_ps(r->sum[MAMX], first ? x : _mm512_add_ps(_mm512_load_ps(r->sum[MAMX]), x));
	}
	next_row(r, ldp);
}

/* As exps_floats, without more; c is 256 times as much, m 256 (m - 127) + 1/2. */
TWORDS void exps_words(struct rows *r, __m512 c, int64_t ldp, bool first)
{
	__m512 m = K512(*r->m);
	__m512i p = exp2_words(to_words(_mm512_fmsub_ps(c, _mm512_load_ps(r->s), m), _mm512_fmsub_ps(c, _mm512_load_ps(r->s + 16), m)));
	_mm512_store_si512(r->p, p);
	_mm512_store_ps(*r->sum, PAIRS(first ? _mm512_setzero_ps() : _mm512_load_ps(*r->sum), p, _mm512_set1_epi16(0x3f80)));
	next_row(r, ldp);
}

TWORDS void exps(struct rows *r, __m512 c, int64_t ldp, bool first, enum also also)
{
	if (also == WORDS)
		exps_words(r, c, ldp, first);
	else
		exps_floats(r, c, ldp, first, also);
}

INBF16 bool add_sums(const float (*sum)[ATT_LANES], float (*l)[ATT_LANES], float (*z)[ATT_LANES])
{
	__m512i most[4] = { 0 };      /* as integers: so a NaN is the highest */
	for (int r = 0; r < MAMX; r += 4)
		for (int i = 0; i < 4; i++)
			most[i] = _mm512_max_epu32(_mm512_load_si512(sum[r + i]), most[i]);
	most[0] = _mm512_max_epu32(_mm512_max_epu32(most[0], most[1]), _mm512_max_epu32(most[2], most[3]));
	if (_mm512_cmpgt_epu32_mask(most[0], (__m512i)K512(ATT_GROWN)))
		return true;
	for (int r = 0; r < MAMX; r++)
		_mm512_store_ps(l[r], _mm512_add_ps(_mm512_load_ps(l[r]), _mm512_load_ps(sum[r])));
	for (int r = 0; z && r < MAMX; r++)
		_mm512_store_ps(z[r], _mm512_add_ps(_mm512_load_ps(z[r]), _mm512_load_ps(sum[MAMX + r])));
	return false;
}

#define TILES amx_
#define VARIANT(name) att_amx_##name
#define FLOWS __attribute__((always_inline)) inline
#include "attention_tiles.h"
#undef TILES
#undef VARIANT
#undef FLOWS
#define TILES model_
#define VARIANT(name) att_model_##name
#define FLOWS __attribute__((noinline))
#include "attention_tiles.h"
