/* Micro-kernels of attention on tiles (tiles.h): 32 rows times a panel, two tiles by two.  attention_amx.c includes it with TILES and
 * VARIANT(name) defined, and FLOWS, how the functions that are one flow of instructions are compiled. */

/* 16 words of each row times as many steps of the panel; work is done after each product. */
#define STEP(way, k, work) do { \
	TILE(way)(6, b + 128 * (k), 128); \
	TILE(load)(4, a + 4 * (k), lda); \
	TILE(bf16)(0, 4, 6); \
	work; \
	TILE(way)(7, b + 128 * (k) + 64, 128); \
	TILE(bf16)(1, 4, 7); \
	work; \
	TILE(load)(5, a + 16 * lda + 4 * (k), lda); \
	TILE(bf16)(2, 5, 6); \
	work; \
	TILE(bf16)(3, 5, 7); \
	work; \
} while (0)

#define SUMS(op, c) do { \
	TILE(op)(0, c, 4 * ATT_COLS); \
	TILE(op)(1, c + 16, 4 * ATT_COLS); \
	TILE(op)(2, c + 16 * ATT_COLS, 4 * ATT_COLS); \
	TILE(op)(3, c + 16 * ATT_COLS + 16, 4 * ATT_COLS); \
} while (0)

#define NONE_YET() do { TILE(zero)(0); TILE(zero)(1); TILE(zero)(2); TILE(zero)(3); } while (0)

ON_TILES void VARIANT(micro)(int64_t steps, const void *pa, int64_t lda, const void *pb, float *c, bool add)
{
	const char *a = pa, *b = pb;
	if (add)
		SUMS(load, c);
	else
		NONE_YET();
	for (int64_t k = 0; k < steps; k += 16)
		STEP(load, k, );
	SUMS(store, c);
}

/* Beside a product: a line of memory, and a row of exponentials. */
#define BESIDE() do { \
	if (fetch < end) { \
		_mm_prefetch(fetch, _MM_HINT_T1); \
		fetch += 64; \
	} \
	if (r.left) \
		exps(&r, c2, ldp, first, also); \
} while (0)
/* Beside a product of scores, also a part of the sums that come next. */
#define BESIDE_SCORES() do { \
	if (e < upto) { \
		_mm_prefetch(near, _MM_HINT_T0); \
		_mm_prefetch(near + 64, _MM_HINT_T0); \
		_mm_prefetch(near + 128, _MM_HINT_T0); \
		_mm_prefetch(near + 192, _MM_HINT_T0); \
		near += 256; \
	} \
	BESIDE(); \
} while (0)

/* Tile i, and the products a b of the one behind it, if b; steps: q's, known when this is compiled; *done: panels of values. */
FLOWS ON_TILES
static void VARIANT(tile)(const struct att_step *q, int i, bool first, const char *a, const char *b, int64_t steps, enum also also, int *done, const char **fetched)
{
	const char *fetch = *fetched, *end = q->fetch_end;
	int64_t lda = q->lda, ldp = q->ldp;
	__m512 c2 = K512(q->c2);
	int e = *done, upto = q->panels * (i + 1) / ATT_HALF;
	float *o = q->o + e * MAMX * ATT_COLS, *s = q->s + (i & 1) * MAMX * ATT_COLS;
	const char *near = (const char *)o;
	struct rows r = { s, q->m, q->sum, q->top, q->p + i * ATT_COLS * 2, q->a ? MAMX : 0 };
	if (b) {
		NONE_YET();
#pragma GCC unroll 4
		for (int64_t k = 0; k < steps; k += 16)
			STEP(stream, k, BESIDE_SCORES());
		s = q->s + (~i & 1) * MAMX * ATT_COLS;
		SUMS(store, s);
	}
	a = q->vp;
	b = q->v + e * q->v_bytes;
	lda = ldp;
	for (; e < upto; e++, b += q->v_bytes, o += MAMX * ATT_COLS) {
		SUMS(stream, o);
#pragma GCC unroll 4
		for (int64_t k = 0; k < ATT_HALF * ATT_COLS / 2; k += 16)
			STEP(stream, k, BESIDE());
		SUMS(store, o);
	}
	while (r.left)
		exps(&r, c2, ldp, first, also);
	*done = e;
	*fetched = fetch;
}

FLOWS ON_TILES
static void VARIANT(flow)(const struct att_step *q, int64_t steps, enum also also)
{
	const char *fetch = q->fetch;
	int done = 0;
	VARIANT(tile)(q, 0, true, q->a, q->a ? q->b + 128 * steps : NULL, steps, also, &done, &fetch);
	for (int i = 1; i < ATT_HALF; i++) {
		bool next = i == ATT_HALF - 1;
		VARIANT(tile)(q, i, false, next ? q->next_a : q->a, next ? q->next_b : q->a ? q->b + (i + 1) * 128 * steps : NULL, steps, also, &done, &fetch);
	}
}

FLOWS ON_TILES
static void VARIANT(of_steps)(const struct att_step *q, enum also also)
{
	if (q->steps == 64)
		VARIANT(flow)(q, 64, also);
	else if (q->steps == 32)
		VARIANT(flow)(q, 32, also);
	else
		VARIANT(flow)(q, q->steps, also);
}

ON_TILES bool VARIANT(stream)(const struct att_step *q)
{
	if (q->top)
		VARIANT(flow)(q, q->steps, TOPS);
	else if (q->z)
		VARIANT(of_steps)(q, EXACT);
	else
		VARIANT(of_steps)(q, NO_MORE);
	return q->a && add_sums(q->sum, q->l, q->z);
}

#undef STEP
#undef SUMS
#undef NONE_YET
#undef BESIDE
#undef BESIDE_SCORES
