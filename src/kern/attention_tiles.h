/* Micro-kernels of attention on tiles (tiles.h): 32 rows times a panel, two tiles by two.  attention_amx.c includes it with TILES and
 * VARIANT(name) defined. */

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
	float sums[MAMX * ATT_COLS] __attribute__((aligned(64))), *to = add ? sums : c;
	NONE_YET();
	for (int64_t k = 0; k < steps; k += 16)
		STEP(load, k, );
	SUMS(store, to);
	for (int i = 0; add && i < MAMX * ATT_COLS; i += 16)      /* tiles are slower to load sums from afar */
		_mm512_store_ps(c + i, _mm512_add_ps(_mm512_load_ps(c + i), _mm512_load_ps(sums + i)));
}

/* Beside a product: a line of memory, and pairs of rows of exponentials, as evenly as they come out. */
#define BESIDE() do { \
	if (fetch < q->fetch_end) { \
		_mm_prefetch(fetch, _MM_HINT_T1); \
		fetch += 64; \
	} \
	for (due += each; due >= MAMX && r < MAMX; due -= MAMX, r += 2) \
		exps(q, r); \
} while (0)

ON_TILES void VARIANT(stream)(const struct att_step *q)
{
	/* no exponentials beside the first four products: what they are made from was just stored */
	int64_t lda = q->lda, products = (q->steps + q->panels * q->words) / 4 - (q->steps ? 4 : 0);
	const char *a = q->a, *b = q->b, *fetch = q->fetch;
	int r = MAMX, due = 0, each = products > 0 ? (int)((MAMX / 2 * MAMX + products - 1) / products) : 0;
	if (q->steps) {
		NONE_YET();
		STEP(stream, 0, BESIDE());
	}
	if (q->s) {
		if (__builtin_expect(over_rows(MAMX, q->s, q->most), 0))
			q->raise(q->of);
		r = due = 0;
	}
	if (q->steps) {
		for (int64_t k = 16; k < q->steps; k += 16)
			STEP(stream, k, BESIDE());
		SUMS(store, q->c);
	}
	a = q->vp;
	b = q->v;
	lda = q->ldp;
	float *o = q->o;
	for (int e = 0; e < q->panels; e++, b += q->v_bytes, o += MAMX * ATT_COLS) {
		SUMS(load, o);
		for (int64_t k = 0; k < q->words; k += 16)
			STEP(stream, k, BESIDE());
		SUMS(store, o);
	}
	for (; q->s && r < MAMX; r += 2)
		exps(q, r);
}

#undef STEP
#undef SUMS
#undef NONE_YET
#undef BESIDE
