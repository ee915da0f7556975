/* A collective in which one member fails: what another one has been lent, and has not returned, stays as it is until that one
 * has left the launch; and nobody waits for it who need not. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "thread_check.h"

#include "coll/coll.h"

enum { A, B, C, NPE, CROWD = 6, TIMES = 1500, BYTES = 1 << 18 };

static struct sym_world *w;
static _Atomic int phase;              /* 1: A's call has failed; 2: what it lent was looked at */
static struct err *(*lender)(struct coll *c, const char *x, char *y);
static enum coll_kind kind;
static enum coll_algo algo;

static void ok(struct err *e) { CHECK_OK(e); }

/* A world of n PEs, a thread for each: fn(PE). */
static void each_of(int n, void *(*fn)(void *))
{
	pthread_t t[CROWD];

	ok(sym_open(&(struct sym_opts){ .nlocal = n, .threads = n }, &w));
	for (int i = 0; i < n; i++)
		pthread_create(&t[i], NULL, fn, (void *)(intptr_t)i);
	for (int i = 0; i < n; i++)
		pthread_join(t[i], NULL);
	sym_close(w);
}

static void reach(int p)
{
	for (double t = clock_s(); atomic_load(&phase) < p && clock_s() - t < 100;)
		nanosleep(&(struct timespec){ 0, 200000 }, NULL);
	CHECK(atomic_load(&phase) >= p);
}

static const int all[NPE] = { A, B, C };
static const struct coll_group group = { NPE, A, all };

/* A lends to B; it cannot end without C, nor without B's return. */
static struct err *permute(struct coll *c, const char *x, char *y) { return coll_permute(c, 1, C, B, BYTES, y, y); }
static struct err *gather(struct coll *c, const char *x, char *y) { return coll_all_gather(c, &group, 1, BYTES, x, y); }
static struct err *reduce(struct coll *c, const char *x, char *y)
{
	return coll_all_reduce(c, &group, 1, &(struct coll_red){ RED_add, DT_bf16, NULL }, BYTES / 2, x, y);
}

static void *member(void *v)
{
	int me = (int)(intptr_t)v, peer[2] = { me == A, me == C ? B : C };
	struct sym_ep *ep = sym_ep_of(w, me);
	struct sym_heap *h = sym_heap_of(w, me);
	struct sym_launch l = { .prog = 7, .name = "p", .peer = peer, .npeer = 2 };
	struct sym_block *in_heap;
	struct sym_msg m;

	sym_begin(ep, &l);
	if (me == A) {
		struct coll *c = coll_new(w, A, NULL);
		char *x = malloc(NPE * BYTES), *y = malloc(NPE * BYTES);
		ok(coll_use(c, kind, algo));
		ok(sym_alloc(h, BYTES, "operand", -1, &in_heap));
		memset(x, 1, NPE * BYTES);
		memset(y, 1, NPE * BYTES);
		char *place = sym_base(h) + in_heap->off;
		memset(place, 1, BYTES);
		struct err *e = lender(c, x, kind == COLL_permute ? place : y);
		CHECK(e);
		atomic_store(&phase, 1);
		sym_end(ep, e);
		CHECK(atomic_load(&phase) == 2);       /* not before B has left */
		err_free(e);
		coll_free(c);
		sym_free(in_heap);
		free(x);
		free(y);
		CHECK(!sym_heap_stats(h).in_use);
	} else if (me == B) {
		ok(sym_recv(ep, A, 1, SYM_LEND, &m));
		reach(1);
		/* An array that the program's host uploads to A meanwhile, wherever there is room. */
		struct sym_block *b[64];
		for (int i = 0; i < 64; i++) {
			ok(sym_alloc(sym_heap_of(w, A), 16 << 10, "upload", -1, &b[i]));
			memset(sym_base(sym_heap_of(w, A)) + b[i]->off, 99, 16 << 10);
		}
		const char *p = sym_at(ep, A, m.off, m.n, NULL);
		for (size_t i = 0; i < m.n; i++)
			CHECK(p[i] != 99);               /* somebody else's */
		for (int i = 0; i < 64; i++)
			sym_free(b[i]);
		sym_return(ep, A, true);
		atomic_store(&phase, 2);
		sym_end(ep, NULL);
	} else {
		nanosleep(&(struct timespec){ 0, 20000000 }, NULL);
		struct err *e = ERR(INTERNAL, "C fails");
		sym_end(ep, e);
		err_free(e);
	}
	return NULL;
}

static void lent(enum coll_kind k, enum coll_algo a, struct err *(*fn)(struct coll *c, const char *x, char *y))
{
	lender = fn;
	kind = k;
	algo = a;
	atomic_store(&phase, 0);
	each_of(NPE, member);
}

static void test_lent(void **state)
{
	lent(COLL_permute, COLL_direct, permute);
	lent(COLL_all_gather, COLL_ring, gather);
	lent(COLL_all_reduce, COLL_ring, reduce);
}

static void over(void *user) { ++*(int *)user; }

/* A launch that is quit waits for nobody: its memory does. */
static void test_quit(void **state)
{
	const int one = B, zero = A;
	struct sym_launch a = { .prog = 7, .name = "p", .peer = &one, .npeer = 1 }, b = { .prog = 7, .name = "p", .peer = &zero, .npeer = 1 };
	struct err *why = ERR(INTERNAL, "A fails"), *e;
	struct sym_block *kept;
	struct sym_msg m;
	int done = 0;

	ok(sym_open(&(struct sym_opts){ .nlocal = 2, .threads = 2 }, &w));
	struct sym_ep *x = sym_ep_of(w, A), *y = sym_ep_of(w, B);
	struct sym_heap *h = sym_heap_of(w, A);
	ok(sym_alloc(h, 4096, "kept", -1, &kept));
	sym_begin(x, &a);
	sym_keep(x, kept);
	sym_quit(x, why, over, &done);
	sym_begin(x, &a);
	sym_quit(x, why, over, &done);
	assert_int_equal(done, 0);
	assert_false(sym_clear(x, false));
	assert_true(sym_heap_stats(h).in_use >= 4096);
	/* B comes to the first, and hears of it. */
	sym_begin(y, &b);
	e = sym_recv(y, A, 1, SYM_LEND, &m);
	assert_non_null(e);
	assert_int_equal(e->code, ERR_ABORTED);
	assert_int_equal(done, 0);
	sym_end(y, NULL);
	err_free(e);
	assert_false(sym_clear(x, false));
	assert_int_equal(done, 1);
	assert_int_equal(sym_heap_stats(h).in_use, 0);
	sym_begin(y, &b);
	sym_end(y, NULL);
	ok(sym_clear_wait(x));
	assert_int_equal(done, 2);
	assert_true(sym_clear(x, false));
	/* The next launch is sound. */
	sym_begin(x, &a);
	sym_begin(y, &b);
	ok(sym_tell(x, B, 1, SYM_LEND, 64, 8));
	ok(sym_recv(y, A, 1, SYM_LEND, &m));
	assert_int_equal(m.off, 64);
	sym_end(x, NULL);
	sym_end(y, NULL);
	/* One that nobody comes to ends with the world. */
	sym_begin(x, &a);
	sym_quit(x, why, over, &done);
	sym_close(w);
	assert_int_equal(done, 3);
	err_free(why);
}

/* A lender does not wait for what a reader that has left will not give back, be it that it failed; for one that is there it does. */
static void test_counted(void **state)
{
	static const int others[] = { B, C }, lends = A;
	struct sym_launch a = { .prog = 7, .name = "p", .peer = others, .npeer = 2 }, b = { .prog = 7, .name = "p", .peer = &lends, .npeer = 1 };
	struct err *why = ERR(INTERNAL, "C fails"), *e;
	struct sym_block *words;

	ok(conf_set("TIMEOUT", "1"));
	ok(sym_open(&(struct sym_opts){ .nlocal = NPE, .threads = NPE }, &w));
	ok(conf_set("TIMEOUT", "0"));
	ok(sym_alloc(sym_heap_of(w, A), 2 * sizeof(uint64_t), "words", -1, &words));
	struct sym_ep *x = sym_ep_of(w, A), *y = sym_ep_of(w, B), *z = sym_ep_of(w, C);
	memset(sym_ep_base(x) + words->off, 0, words->bytes);
	for (uint64_t k = 1; k < 4; k++) {
		sym_begin(x, &a);
		sym_begin(y, &b);
		sym_begin(z, &b);
		sym_count(y, A, words->off, k);
		if (k == 2)
			sym_count(z, A, words->off + sizeof(uint64_t), k);
		else if (k == 1)
			sym_quit(z, why, NULL, NULL);
		ok(k == 3 ? NULL : sym_counted(x, others, 2, words->off, k));
		if (k == 3) {
			e = sym_counted(x, others, 2, words->off, k);
			assert_non_null(e);
			assert_int_equal(e->code, ERR_DEADLINE);
			err_free(e);
		}
		sym_end(y, NULL);
		if (k != 1)
			sym_end(z, NULL);
		if (k == 3)                       /* it has left, and all is well */
			ok(sym_counted(x, others, 2, words->off, k));
		sym_end(x, NULL);
	}
	ok(sym_clear_wait(z));
	sym_free(words);
	sym_close(w);
	err_free(why);
}

static void *cancel(void *v)
{
	nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
	sym_cancel(w);
	return NULL;
}

/* The wait of sym_end ends with RONDO_TIMEOUT, and with the world. */
static void test_end(void **state)
{
	const int one = B;
	struct sym_launch a = { .prog = 7, .name = "p", .peer = &one, .npeer = 1 };
	struct err *why = ERR(INTERNAL, "A fails");
	pthread_t t;

	for (int k = 0; k < 2; k++) {
		ok(conf_set("TIMEOUT", k ? "0" : "1"));
		ok(sym_open(&(struct sym_opts){ .nlocal = 2, .threads = 2 }, &w));
		ok(conf_set("TIMEOUT", "0"));
		double t0 = clock_s();
		if (k)
			pthread_create(&t, NULL, cancel, NULL);
		sym_begin(sym_ep_of(w, A), &a);
		sym_end(sym_ep_of(w, A), why);
		assert_true(clock_s() - t0 >= (k ? 0.02 : 0.9));
		assert_true(clock_s() - t0 < 100);
		if (k)
			pthread_join(t, NULL);
		sym_close(w);
	}
	err_free(why);
}

/* Sums of a size that goes through windows: who comes to one that the other has given up hears why, and the next one is right. */
static void *late(void *v)
{
	enum { COUNT = 4096 };
	int me = (int)(intptr_t)v, other = !me;
	static const int both[] = { A, B };
	const struct coll_group g = { 2, me, both };
	struct sym_ep *ep = sym_ep_of(w, me);
	struct coll *c = coll_new(w, me, NULL);
	float *x = malloc(COUNT * sizeof *x), *y = malloc(COUNT * sizeof *y);

	ok(coll_use(c, COLL_all_reduce, COLL_stage));
	for (int i = 0; i < COUNT; i++)
		x[i] = (float)(i + me);
	for (int k = 0; k < 3; k++) {
		if (k == 1 && me == B)
			reach(1);
		sym_begin(ep, &(struct sym_launch){ .prog = 7, .name = "p", .peer = &other, .npeer = 1 });
		struct err *e = coll_all_reduce(c, &g, 1, &(struct coll_red){ RED_add, DT_f32, NULL }, COUNT, x, y);
		for (int i = 0; i < COUNT && k != 1; i++)
			CHECK(y[i] == (float)(2 * i + 1));
		CHECK(k == 1 ? e != NULL : e == NULL);
		CHECK(!e || e->code == (me == A ? ERR_DEADLINE : ERR_ABORTED));
		if (k == 1 && me == A)
			atomic_store(&phase, 1);
		sym_end(ep, e);
		err_free(e);
	}
	free(x);
	free(y);
	coll_free(c);
	return NULL;
}

static void test_late(void **state)
{
	ok(conf_set("TIMEOUT", "4"));
	atomic_store(&phase, 0);
	each_of(2, late);
	ok(conf_set("TIMEOUT", "0"));
}

/* More PEs than cores, of which one fails in each launch: who waits until the others have left may see the last of them go between
 * two looks. */
static void *one_of_a_crowd(void *v)
{
	int me = (int)(intptr_t)v, crowd[CROWD], peer[CROWD], npeer = 0;
	struct coll *c = coll_new(w, me, NULL);
	struct sym_ep *ep = sym_ep_of(w, me);
	unsigned seed = (unsigned)me + 1;

	for (int i = 0; i < CROWD; i++)
		if ((crowd[i] = i) != me)
			peer[npeer++] = i;
	for (int k = 0; k < TIMES; k++) {
		sym_begin(ep, &(struct sym_launch){ .prog = 7, .name = "p", .peer = peer, .npeer = npeer });
		struct err *e = k % CROWD == me ? ERR(INTERNAL, "it fails") : coll_barrier(c, &(struct coll_group){ CROWD, me, crowd }, 1);
		for (int n = rand_r(&seed) % 300; n; n--)
			sym_pause();
		CHECK(e);
		sym_end(ep, e);
		err_free(e);
	}
	coll_free(c);
	return NULL;
}

static void test_crowd(void **state)
{
	each_of(CROWD, one_of_a_crowd);
}

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(test_lent), cmocka_unit_test(test_quit), cmocka_unit_test(test_counted), cmocka_unit_test(test_end), cmocka_unit_test(test_late), cmocka_unit_test(test_crowd) };

	return cmocka_run_group_tests(t, NULL, NULL);
}
