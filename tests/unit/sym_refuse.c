/* Arguments that cannot be: every call says so, and nothing else happens. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "coll/coll.h"
#include "sym/sym.h"

enum { BYTES = 4096 };

/* Two PEs of this process; the second one takes part in what is collective, and else does nothing. */
static struct sym_world *w;
static struct sym_team *team;
static struct sym_mem *mem, *other;
static struct sym_ctx *cx;
static char buf[BYTES], to[BYTES];

static void refused(struct err *e, enum err_code want, int line)
{
	if (!e || e->code != want)
		fail_msg("line %d: %s", line, e ? e->msg : "not refused");
	err_free(e);
}
#define REFUSED(want, x) refused(x, ERR_##want, __LINE__)
/* A call that says it by quiet. */
#define QUIET(want, x) do { x; REFUSED(want, sym_ctx_quiet(cx)); } while (0)
/* On a stream of its own. */
#define STREAM(want, x) do { \
		struct sym_stream *s; \
		assert_null(sym_stream_new(w, 0, "s", &s)); \
		x; \
		REFUSED(want, sym_stream_sync(s)); \
		sym_stream_free(s); \
	} while (0)

static void *second(void *v)
{
	assert_null(sym_mem_new(sym_team_world(w, 1), BYTES, "memory", &other));
	return NULL;
}

static void *second_frees(void *v)
{
	sym_mem_free(other);
	return NULL;
}

static int set_up(void **state)
{
	pthread_t t;

	if (sym_open(&(struct sym_opts){ .nlocal = 2, .threads = 2 }, &w) || sym_ctx_new(w, 0, SYM_SHARED, &cx))
		return -1;
	team = sym_team_world(w, 0);
	pthread_create(&t, NULL, second, NULL);
	struct err *e = sym_mem_new(team, BYTES, "memory", &mem);
	pthread_join(t, NULL);
	return e ? -1 : 0;
}

static int tear_down(void **state)
{
	pthread_t t;

	pthread_create(&t, NULL, second_frees, NULL);
	sym_mem_free(mem);
	pthread_join(t, NULL);
	sym_ctx_free(cx);
	sym_close(w);
	return 0;
}

static void world(void **state)
{
	struct sym_world *x;
	struct sym_server *v;
	struct sym_block *b;

	REFUSED(INVALID, sym_open(&(struct sym_opts){ .nlocal = 0 }, &x));
	REFUSED(INVALID, sym_open(&(struct sym_opts){ .nlocal = -1 }, &x));
	REFUSED(EXHAUSTED, sym_open(&(struct sym_opts){ .nlocal = 1 << 16 }, &x));
	for (int pe = -1; pe <= 2; pe += 3) {
		assert_int_equal(sym_proc_of(w, pe), -1);
		assert_false(sym_mapped(w, pe));
		assert_string_equal(sym_road(w, pe), "none");
		assert_null(sym_heap_of(w, pe));
		assert_null(sym_ep_of(w, pe));
		assert_null(sym_stream_ep(w, pe));
		assert_null(sym_team_world(w, pe));
		assert_null(coll_new(w, pe, NULL));
		assert_null(coll_new_stream(w, pe, NULL));
	}
	REFUSED(EXHAUSTED, sym_alloc(sym_heap_of(w, 0), SIZE_MAX, "x", 0, &b));
	REFUSED(EXHAUSTED, sym_alloc(sym_heap_of(w, 0), SIZE_MAX - 63, "x", 0, &b));
	REFUSED(INVALID, sym_server_new("127.0.0.1", &(int){ -1 }, "t", &v));
	REFUSED(INVALID, sym_server_new("127.0.0.1", &(int){ 1 << 16 }, "t", &v));
}

static void teams(void **state)
{
	struct sym_team *t, *u;
	struct sym_mem *m;

	REFUSED(INVALID, sym_team_new(w, 0, NULL, 2, &t));
	REFUSED(INVALID, sym_team_new(w, 0, (int[]){ 0, -1 }, 2, &t));
	REFUSED(INVALID, sym_team_new(w, 0, (int[]){ 0, 1 }, -5, &t));
	REFUSED(INVALID, sym_team_new(w, 2, (int[]){ 0, 1 }, 2, &t));
	REFUSED(INVALID, sym_team_split(NULL, 0, 1, 1, &t));
	REFUSED(INVALID, sym_team_split(team, 0, INT32_MIN, INT32_MAX, &t));
	REFUSED(INVALID, sym_team_split(team, 0, INT32_MAX, INT32_MAX, &t));
	REFUSED(INVALID, sym_team_split_2d(NULL, 1, &t, &u));
	REFUSED(INVALID, sym_team_split_2d(team, 0, &t, &u));
	REFUSED(INVALID, sym_team_sync(NULL));
	REFUSED(INVALID, sym_team_barrier(NULL));
	REFUSED(INVALID, sym_mem_new(NULL, 8, "x", &m));
	/* No team, as who is not in one has it. */
	assert_int_equal(sym_team_n(NULL), 0);
	assert_int_equal(sym_team_me(NULL), -1);
	assert_int_equal(sym_team_pe(NULL, 0), -1);
	assert_int_equal(sym_team_rank(NULL, 0), -1);
	assert_int_equal(sym_team_translate(team, 0, NULL), -1);
	assert_int_equal(sym_team_translate(NULL, 0, team), -1);
	assert_true(sym_mem_off(mem, -1) == SIZE_MAX && sym_mem_off(mem, 2) == SIZE_MAX);
	assert_null(sym_ptr(mem, 2));
	assert_null(sym_ptr(NULL, 0));
	assert_int_equal(sym_signal_fetch(NULL, 0), 0);
	/* A team that is freed before its memory. */
	assert_null(sym_team_new(w, 0, (int[]){ 0 }, 1, &t));
	assert_null(sym_mem_new(t, 64, "x", &m));
	sym_team_free(t);
	sym_ctx_p(cx, m, 8, 8, 5, 0);
	assert_int_equal(sym_signal_fetch(m, 8), 5);
	sym_mem_free(m);
}

/* A limit is for memory: who has none left can still make teams. */
static void limit(void **state)
{
	struct sym_world *full;
	struct sym_block *b;
	struct sym_team *t;

	assert_null(sym_open(&(struct sym_opts){ .nlocal = 1, .threads = 1, .limit = 1 }, &full));
	REFUSED(EXHAUSTED, sym_alloc(sym_heap_of(full, 0), 8, "x", 0, &b));
	assert_null(sym_team_new(full, 0, (int[]){ 0 }, 1, &t));
	sym_team_free(t);
	sym_close(full);
}

static void contexts(void **state)
{
	struct sym_ctx *x;
	uint64_t old = 7;

	REFUSED(INVALID, sym_ctx_new(w, -1, SYM_SHARED, &x));
	REFUSED(INVALID, sym_ctx_new(w, 0, (enum sym_ctx_kind)99, &x));
	QUIET(INVALID, sym_ctx_put(cx, NULL, 0, buf, 8, 1));
	QUIET(INVALID, sym_ctx_put(cx, mem, 0, NULL, 8, 1));
	QUIET(INVALID, sym_ctx_put_nbi(cx, mem, 0, NULL, 9, 1));
	QUIET(INVALID, sym_ctx_put(cx, other, 0, buf, 8, 1));
	QUIET(OUT_OF_RANGE, sym_ctx_put(cx, mem, 0, buf, SIZE_MAX, 1));
	QUIET(OUT_OF_RANGE, sym_ctx_put(cx, mem, SIZE_MAX, buf, 8, 1));
	QUIET(OUT_OF_RANGE, sym_ctx_put(cx, mem, BYTES - 7, buf, 8, 1));
	QUIET(OUT_OF_RANGE, sym_ctx_put(cx, mem, 0, buf, 8, -1));
	QUIET(INVALID, sym_ctx_get(cx, NULL, mem, 0, 8, 1));
	QUIET(INVALID, sym_ctx_get(cx, buf, NULL, 0, 8, 1));
	QUIET(OUT_OF_RANGE, sym_ctx_get(cx, buf, mem, 0, SIZE_MAX, 1));
	QUIET(OUT_OF_RANGE, sym_ctx_get_nbi(cx, buf, mem, 1, (size_t)1 << 40, 1));
	memset(buf, 1, 16);
	QUIET(OUT_OF_RANGE, sym_ctx_get(cx, buf, mem, 0, 8, 7));
	assert_true(!memcmp(buf, "\0\0\0\0\0\0\0\0\1", 9));
	QUIET(INVALID, sym_ctx_iput(cx, mem, 0, 1, NULL, 1, 8, 4, 1));
	QUIET(INVALID, sym_ctx_iput(cx, NULL, 0, 1, buf, 1, 8, 2, 1));
	QUIET(OUT_OF_RANGE, sym_ctx_iput(cx, mem, 0, 1, buf, PTRDIFF_MAX / 2, 8, 4, 1));
	QUIET(OUT_OF_RANGE, sym_ctx_iput(cx, mem, 0, PTRDIFF_MIN, buf, 1, 8, 4, 1));
	QUIET(OUT_OF_RANGE, sym_ctx_iput(cx, mem, 0, 1, buf, 1, SIZE_MAX / 2, 4, 1));
	QUIET(OUT_OF_RANGE, sym_ctx_iput(cx, mem, 0, 1, buf, 1, 8, SIZE_MAX, 1));
	QUIET(INVALID, sym_ctx_iget(cx, NULL, 1, mem, 0, 1, 8, 4, 1));
	QUIET(OUT_OF_RANGE, sym_ctx_iget(cx, buf, 1, mem, 0, 1, 8, SIZE_MAX / 4, 1));
	QUIET(OUT_OF_RANGE, sym_ctx_iget(cx, buf, PTRDIFF_MIN, mem, 0, 2, 8, 4, 1));
	QUIET(OUT_OF_RANGE, sym_ctx_iget(cx, buf, 1, mem, 0, 2, 8, 400, 1));
	QUIET(INVALID, sym_ctx_p(cx, mem, 0, -8, 1, 1));
	QUIET(INVALID, sym_ctx_p(cx, NULL, 0, 8, 1, 1));
	QUIET(OUT_OF_RANGE, sym_ctx_g(cx, mem, BYTES - 1, 8, 1));
	QUIET(INVALID, sym_ctx_amo(cx, mem, 4, 8, SYM_ADD, 1, 0, 1));
	QUIET(INVALID, sym_ctx_amo(cx, mem, 0, 8, (enum sym_amo)99, 1, 0, 1));
	QUIET(INVALID, sym_ctx_amo(cx, NULL, 0, 8, SYM_ADD, 1, 0, 1));
	QUIET(INVALID, sym_ctx_amo_nbi(cx, mem, 0, 8, SYM_ADD, 1, 0, 1, NULL));
	QUIET(OUT_OF_RANGE, sym_ctx_amo_nbi(cx, mem, 0, 8, SYM_ADD, 1, 0, 2, &old));
	assert_int_equal(old, 0);
	QUIET(INVALID, sym_ctx_amo_post(cx, mem, 0, 8, SYM_FETCH, 1, 1));
	QUIET(INVALID, sym_ctx_put_signal(cx, mem, 0, NULL, 8, mem, 8, SYM_SET, 1, 1));
	QUIET(INVALID, sym_ctx_put_signal(cx, mem, 0, buf, 8, NULL, 0, SYM_SET, 1, 1));
	QUIET(INVALID, sym_ctx_put_signal(cx, mem, 0, buf, 8, mem, 3, SYM_SET, 1, 1));
	QUIET(INVALID, sym_ctx_put_signal(cx, mem, 0, buf, 8, other, 8, SYM_SET, 1, 1));
	QUIET(INVALID, sym_ctx_signal(cx, NULL, 0, SYM_SET, 1, 1));
	assert_true(!sym_signal_fetch(mem, BYTES) && !sym_signal_fetch(mem, 4));
	assert_null(sym_ctx_quiet(cx));
}

static void waits(void **state)
{
	size_t which, n;

	REFUSED(INVALID, sym_wait_all(cx, NULL));
	REFUSED(INVALID, sym_wait_all(cx, &(struct sym_cond){ .n = 1 }));
	REFUSED(INVALID, sym_wait_all(cx, &(struct sym_cond){ .m = other, .n = 1 }));
	REFUSED(INVALID, sym_wait_all(cx, &(struct sym_cond){ .m = mem, .n = SIZE_MAX, .type = SYM_I64 }));
	REFUSED(INVALID, sym_wait_all(cx, &(struct sym_cond){ .m = mem, .off = 4, .n = 1, .type = SYM_I64 }));
	REFUSED(INVALID, sym_wait_all(cx, &(struct sym_cond){ .m = mem, .n = 1, .type = (enum sym_type)9 }));
	REFUSED(INVALID, sym_wait_all(cx, &(struct sym_cond){ .m = mem, .n = 1, .cmp = (enum sym_cmp)9 }));
	REFUSED(INVALID, sym_wait_all(cx, &(struct sym_cond){ .m = mem, .n = 1, .from = -2 }));
	REFUSED(INVALID, sym_wait_any(cx, &(struct sym_cond){ .m = mem, .n = 1 }, NULL));
	REFUSED(INVALID, sym_wait_some(cx, &(struct sym_cond){ .m = mem, .n = 1 }, NULL, &n));
	REFUSED(INVALID, sym_wait_until(cx, mem, BYTES, SYM_I64, SYM_EQ, 0, 0, NULL));
	QUIET(INVALID, assert_false(sym_test_all(cx, &(struct sym_cond){ .m = mem, .off = 1 << 30, .n = 1, .type = SYM_I64 })));
	QUIET(INVALID, assert_int_equal(sym_test_any(cx, &(struct sym_cond){ .n = 3, .type = SYM_I64 }), 3));
	QUIET(INVALID, assert_int_equal(sym_test_some(cx, &(struct sym_cond){ .m = mem, .n = SIZE_MAX / 2, .type = SYM_I64 }, &which), 0));
}

static void streams(void **state)
{
	struct coll_red add = { RED_add, DT_f32, NULL };
	struct coll *c = coll_new(w, 0, NULL), *cs = coll_new_stream(w, 0, NULL);
	struct sym_stream *x;

	REFUSED(INVALID, sym_stream_new(w, 9, "x", &x));
	STREAM(INVALID, sym_stream_put(s, NULL, 0, buf, 8, 1));
	STREAM(INVALID, sym_stream_put(s, mem, 0, NULL, 8, 1));
	STREAM(INVALID, sym_stream_get(s, NULL, mem, 0, 8, 1));
	STREAM(INVALID, sym_stream_signal(s, NULL, 0, SYM_SET, 1, 1));
	STREAM(INVALID, sym_stream_put_signal(s, mem, 0, buf, 8, NULL, 0, SYM_SET, 1, 1));
	STREAM(INVALID, sym_stream_wait(s, NULL, 0, SYM_I64, SYM_EQ, 0, 0));
	STREAM(INVALID, sym_stream_call(s, NULL, NULL, NULL));
	STREAM(INVALID, sym_stream_barrier(s, NULL));
	STREAM(INVALID, sym_stream_barrier(s, sym_team_world(w, 1)));
	STREAM(INVALID, sym_stream_collective(s, NULL, NULL, NULL, NULL, NULL));
	STREAM(INVALID, coll_stream_all_reduce(cs, s, NULL, &add, 1, buf, to));
	STREAM(INVALID, coll_stream_all_reduce(cs, s, sym_team_world(w, 1), &add, 1, buf, to));
	for (int pe = 0; pe < 2; pe++) {      /* alone: the other need not fail with it */
		struct sym_team *t;
		assert_null(sym_team_new(w, 0, (int[]){ 0 }, 1, &t));
		STREAM(INVALID, coll_stream_all_reduce(cs, s, t, NULL, 1, buf, to));
		STREAM(INVALID, coll_stream_all_reduce(pe ? NULL : c, s, t, &add, 1, buf, to));
		STREAM(INVALID, coll_stream_all_reduce(cs, s, t, &add, -1, buf, to));
		STREAM(INVALID, coll_stream_broadcast(cs, s, t, 5, 1, buf, to));
		STREAM(INVALID, coll_stream_permute(cs, s, t, 0, -1, 8, buf, to));
		sym_team_free(t);
	}
	coll_free(c);
	coll_free(cs);
}

static void messages(void **state)
{
	struct sym_ep *ep = sym_ep_of(w, 0);
	struct sym_msg m, two[2];
	void *room;

	for (int launch = 0; launch < 2; launch++) {      /* one that names nobody, then none */
		if (!launch)
			sym_begin(ep, &(struct sym_launch){ .prog = 1, .name = "alone" });
		for (int pe = -1; pe <= 2; pe++) {
			REFUSED(INVALID, sym_slot_room(ep, pe, 8, &room));
			REFUSED(INVALID, sym_slot_put(ep, pe, 1, buf, 8));
			REFUSED(INVALID, sym_tell(ep, pe, 1, SYM_LEND, 0, 0));
			REFUSED(INVALID, sym_recv(ep, pe, 1, SYM_LEND, &m));
			REFUSED(INVALID, sym_exchange(ep, (int[]){ 0, pe }, 2, 0, 1, buf, 0, 8, two));
			REFUSED(INVALID, sym_exchange(ep, (int[]){ 0, 1 }, 2, pe, 1, buf, 0, 8, two));
		}
		REFUSED(INVALID, sym_expect(ep, (int[]){ 5 }, 1, 1));
		REFUSED(INVALID, sym_settle(ep, (int[]){ -1 }, 1));
		REFUSED(INVALID, sym_await(ep, 5, 1));
		REFUSED(INVALID, sym_await_for(ep, -1, 1, 1));
		REFUSED(INVALID, sym_check(ep, 2, 1, 0));
		REFUSED(INVALID, sym_slot_room(ep, 1, SYM_SLOT + 1, &room));
		REFUSED(INVALID, sym_slot_put(ep, 1, 1, buf, (size_t)SYM_SLOT + 1));
		REFUSED(INVALID, sym_slot_put(ep, 1, 1, NULL, 8));
		REFUSED(INVALID, sym_exchange(ep, (int[]){ 0, 1 }, 2, 0, 1, NULL, 0, 8, two));
		REFUSED(INVALID, sym_exchange(ep, (int[]){ 0, 1 }, 2, 1, 1, buf, 0, 8, two));
		if (!launch)
			sym_end(ep, NULL);
	}
}

static void collectives(void **state)
{
	static const int both[] = { 0, 1 }, far[] = { 0, 9 }, none[] = { 0, -1 }, twice[] = { 0, 0 };
	static const struct coll_group no_group[] = {
		{ 2, 1, both }, { 2, 0, NULL }, { 2, 0, far }, { 2, 0, none }, { 2, 0, twice }, { 0, 0, both }, { -1, 0, both }, { 2, 2, both }, { 2, -1, both },
	};
	static const struct { enum err_code code; struct coll_red r; } no_red[] = {
		{ ERR_INVALID, { RED_fn, DT_f32, NULL } }, { ERR_INVALID, { (enum redop)99, DT_f32, NULL } }, { ERR_INVALID, { RED_add, (enum dtype)99, NULL } }, { ERR_INVALID, { RED_add, DT_token, NULL } },
		{ ERR_UNIMPLEMENTED, { RED_and, DT_f32, NULL } }, { ERR_UNIMPLEMENTED, { RED_lse, DT_i32, NULL } }, { ERR_UNIMPLEMENTED, { RED_xor, DT_bf16, NULL } }, { ERR_UNIMPLEMENTED, { RED_or, DT_c128, NULL } },
	};
	static const int64_t no_size[] = { -1, INT64_MAX, INT64_MAX / 4 };
	struct coll_red add = { RED_add, DT_f64, NULL };
	struct coll_group g = { 2, 0, both };
	struct coll *c = coll_new(w, 0, NULL);

	for (size_t i = 0; i < NELEM(no_group); i++) {
		REFUSED(INVALID, coll_all_reduce(c, &no_group[i], 1, &add, 4, buf, to));
		REFUSED(INVALID, coll_all_to_all(c, &no_group[i], 1, 4, buf, to));
		REFUSED(INVALID, coll_broadcast(c, &no_group[i], 1, 0, 4, buf, to));
		REFUSED(INVALID, coll_barrier(c, &no_group[i], 1));
	}
	REFUSED(UNIMPLEMENTED, coll_barrier(c, &(struct coll_group){ 2000, 0, both }, 1));
	REFUSED(INVALID, coll_barrier(c, NULL, 1));
	for (size_t i = 0; i < NELEM(no_red); i++) {
		refused(coll_all_reduce(c, &g, 1, &no_red[i].r, 4, buf, to), no_red[i].code, __LINE__);
		refused(coll_reduce_scatter(c, &g, 1, &no_red[i].r, 4, buf, to), no_red[i].code, __LINE__);
		refused(coll_scan(c, &g, 1, &no_red[i].r, true, 4, buf, to), no_red[i].code, __LINE__);
	}
	REFUSED(INVALID, coll_all_reduce(c, &g, 1, NULL, 4, buf, to));
	for (size_t i = 0; i < NELEM(no_size); i++) {
		int64_t n = no_size[i];
		REFUSED(INVALID, coll_all_reduce(c, &g, 1, &add, n, buf, to));
		REFUSED(INVALID, coll_reduce_scatter(c, &g, 1, &add, n, buf, to));
		REFUSED(INVALID, coll_scan(c, &g, 1, &add, false, n, buf, to));
		n = n < 0 ? n : INT64_MAX - 8;
		REFUSED(INVALID, coll_all_gather(c, &g, 1, n, buf, to));
		REFUSED(INVALID, coll_all_to_all(c, &g, 1, n, buf, to));
	}
	REFUSED(INVALID, coll_broadcast(c, &g, 1, 0, -8, buf, to));
	REFUSED(INVALID, coll_permute(c, 1, 1, 1, -8, buf, to));
	for (int i = 0; i < 2; i++) {
		const char *x = i ? buf : NULL;
		char *y = i ? NULL : to;
		REFUSED(INVALID, coll_all_reduce(c, &g, 1, &add, 4, x, y));
		REFUSED(INVALID, coll_reduce_scatter(c, &g, 1, &add, 4, x, y));
		REFUSED(INVALID, coll_scan(c, &g, 1, &add, false, 4, x, y));
		REFUSED(INVALID, coll_all_gather(c, &g, 1, 4, x, y));
		REFUSED(INVALID, coll_all_to_all(c, &g, 1, 4, x, y));
		REFUSED(INVALID, coll_broadcast(c, &g, 1, 0, 4, x, y));
		REFUSED(INVALID, coll_permute(c, 1, 1, 1, 4, x, y));
	}
	REFUSED(INVALID, coll_broadcast(c, &g, 1, 2, 8, buf, to));
	REFUSED(INVALID, coll_permute(c, 1, -2, 1, 8, buf, to));
	REFUSED(INVALID, coll_permute(c, 1, 1, 2, 8, buf, to));
	REFUSED(INVALID, coll_permute(c, 1, 0, 1, 8, buf, to));
	REFUSED(INVALID, coll_permute(c, 1, 1, 0, 8, buf, to));
	/* Outside of a launch. */
	REFUSED(INVALID, coll_all_reduce(c, &g, 1, &add, 4, buf, to));
	REFUSED(INVALID, coll_barrier(c, &g, 1));
	/* What is nothing may lie nowhere. */
	assert_null(coll_all_reduce(c, &g, 1, &add, 0, NULL, NULL));
	assert_null(coll_permute(c, 1, -1, -1, 8, NULL, NULL));

	REFUSED(INVALID, coll_use(c, COLL_all_gather, COLL_loan));
	REFUSED(INVALID, coll_use(c, (enum coll_kind)99, COLL_slot));
	REFUSED(INVALID, coll_use(c, COLL_all_reduce, (enum coll_algo)99));
	coll_free(c);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest t[] = {
		cmocka_unit_test(world), cmocka_unit_test(teams), cmocka_unit_test(limit), cmocka_unit_test(contexts), cmocka_unit_test(waits), cmocka_unit_test(streams), cmocka_unit_test(messages), cmocka_unit_test(collectives),
	};

	return cmocka_run_group_tests(t, set_up, tear_down);
}
