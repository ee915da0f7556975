/* Micro-kernels of attention on tiles (tiles.h): 32 rows times a panel, two tiles by two.  attention_amx.c includes it with TILES and
 * VARIANT(name) defined, and FLOWS, how the functions that are one flow of instructions are compiled. */

/* 16 words of each row times as many steps of the panel; work is done after each product, begin(j) before that of tile j of the four. */
#define STEP_FROM(way, k, work, begin) do { \
	TILE(way)(6, b + 128 * (k), 128); \
	TILE(load)(4, a + 4 * (k), lda); \
	begin(0); \
	TILE(bf16)(0, 4, 6); \
	work; \
	TILE(way)(7, b + 128 * (k) + 64, 128); \
	begin(1); \
	TILE(bf16)(1, 4, 7); \
	work; \
	TILE(load)(5, a + 16 * lda + 4 * (k), lda); \
	begin(2); \
	TILE(bf16)(2, 5, 6); \
	work; \
	begin(3); \
	TILE(bf16)(3, 5, 7); \
	work; \
} while (0)
#define BEGUN(j)
#define STEP(way, k, work) STEP_FROM(way, k, work, BEGUN)

#define PART(j, c) ((c) + (j) / 2 * 16 * ATT_COLS + (j) % 2 * 16)
#define SUMS(op, c) do { \
	TILE(op)(0, PART(0, c), 4 * ATT_COLS); \
	TILE(op)(1, PART(1, c), 4 * ATT_COLS); \
	TILE(op)(2, PART(2, c), 4 * ATT_COLS); \
	TILE(op)(3, PART(3, c), 4 * ATT_COLS); \
} while (0)

#define NONE_YET() do { TILE(zero)(0); TILE(zero)(1); TILE(zero)(2); TILE(zero)(3); } while (0)

/* A product begins where another one ends: each of its tiles leaves for *made just before it is wanted, so that products go on beside the stores. */
#define LEAVE(j) do { \
	if (*made) \
		TILE(store)(j, PART(j, *made), 4 * ATT_COLS); \
} while (0)
#define LEAVE_ALL() do { LEAVE(0); LEAVE(1); LEAVE(2); LEAVE(3); } while (0)
#define BEGIN_NEW(j) do { LEAVE(j); TILE(zero)(j); } while (0)
#define BEGIN_ADD(j) do { LEAVE(j); TILE(stream)(j, PART(j, o), 4 * ATT_COLS); } while (0)

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

/* Beside a product: a line of memory, and a row of exponentials, or two, where there are few products and they take little time. */
#define BESIDE() do { \
	if (fetch < end) { \
		_mm_prefetch(fetch, _MM_HINT_T1); \
		fetch += 64; \
	} \
	for (int row = 0; row < (also == WORDS && steps <= 32 ? 2 : 1) && r.left; row++) \
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

/* Tile i, and the products a b of the one behind it, if b; steps: q's, known when this is compiled; *done: panels of values; *made: where
 * what tiles 0 .. 3 have belongs, or NULL. */
FLOWS ON_TILES
static void VARIANT(tile)(const struct att_step *q, int i, bool first, const char *a, const char *b, int64_t steps, enum also also, int *done, const char **fetched, float **made)
{
	const char *fetch = *fetched, *end = q->fetch_end;
	int64_t lda = q->lda, ldp = q->ldp;
	__m512 c2 = K512(also == WORDS ? 256 * q->c2 : q->c2);
	int e = *done, upto = q->panels * (i + 1) / ATT_HALF;
	float *o = q->o + e * MAMX * ATT_COLS;
	const char *near = (const char *)o;
	int rows = q->a ? MAMX : 0;
	struct rows r = { q->s + (i & 1) * MAMX * ATT_COLS, q->m, q->sum, q->top, q->p + i * ATT_COLS * 2, rows, q->by };
	bool soon = *made == r.s;      /* what exponentials are made of is on its way */
	if (soon && !b) {
		LEAVE_ALL();
		*made = NULL;
	} else if (soon) {
		r.left = 0;
	}
	if (b) {
		STEP_FROM(stream, 0, BESIDE_SCORES(), BEGIN_NEW);
		r.left = soon ? rows : r.left;
#pragma GCC unroll 3
		for (int64_t k = 16; k < steps; k += 16)
			STEP(stream, k, BESIDE_SCORES());
		*made = q->s + (~i & 1) * MAMX * ATT_COLS;
	}
	a = q->vp;
	b = q->v + e * q->v_bytes;
	lda = ldp;
	for (; e < upto; e++, b += q->v_bytes, o += MAMX * ATT_COLS) {
		STEP_FROM(stream, 0, BESIDE(), BEGIN_ADD);
#pragma GCC unroll 3
		for (int64_t k = 16; k < ATT_HALF * ATT_COLS / 2; k += 16)
			STEP(stream, k, BESIDE());
		*made = o;
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
	float *at = NULL, **made = &at;
	int done = 0;
	VARIANT(tile)(q, 0, true, q->a, q->a ? q->b + 128 * steps : NULL, steps, also, &done, &fetch, made);
	for (int i = 1; i < ATT_HALF; i++) {
		bool next = i == ATT_HALF - 1;
		VARIANT(tile)(q, i, false, next ? q->next_a : q->a, next ? q->next_b : q->a ? q->b + (i + 1) * 128 * steps : NULL, steps, also, &done, &fetch, made);
	}
	LEAVE_ALL();
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
	else if (q->words)
		VARIANT(of_steps)(q, WORDS);
	else
		VARIANT(flow)(q, q->steps, NO_MORE);
	return q->a && add_sums(q->sum, q->l, q->z);
}

#undef STEP_FROM
#undef BEGUN
#undef STEP
#undef PART
#undef SUMS
#undef NONE_YET
#undef LEAVE
#undef LEAVE_ALL
#undef BEGIN_NEW
#undef BEGIN_ADD
#undef BESIDE
#undef BESIDE_SCORES
