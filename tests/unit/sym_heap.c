/* The heap: blocks do not overlap, holes are found again, limits are kept and explained, damage is seen. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "sym/sym.h"

static struct sym_world *team(int n, int64_t limit, bool guard)
{
	struct sym_opts o = { .nlocal = n, .limit = limit, .threads = n, .guard = guard };
	struct sym_world *t;

	assert_null(sym_open(&o, &t));
	return t;
}

struct user { pthread_t t; struct sym_heap *h; uint64_t seed; };

static void *churn(void *v)
{
	struct user *u = v;
	struct sym_block *b[64] = { 0 };
	unsigned char tag[64];
	uint64_t s = u->seed;

	for (int i = 0; i < 20000; i++) {
		s = s * 6364136223846793005u + 1442695040888963407u;
		int k = (int)(s >> 58);
		if (b[k]) {
			const unsigned char *p = (unsigned char *)sym_base(u->h) + b[k]->off;
			for (size_t n = 0; n < b[k]->bytes; n += 61)
				assert_int_equal(p[n], tag[k]);
			sym_free(b[k]);
			b[k] = NULL;
			continue;
		}
		size_t n = (s >> 20) % (i % 7 ? 500 : 20000);
		assert_null(sym_alloc(u->h, n, "test", k, &b[k]));
		assert_int_equal(b[k]->off % 64, 0);
		assert_int_equal(b[k]->bytes, n);
		tag[k] = (unsigned char)(s >> 40);
		memset(sym_base(u->h) + b[k]->off, tag[k], n);
	}
	for (int k = 0; k < 64; k++)
		sym_free(b[k]);
	return NULL;
}

static void churning(void **state)
{
	for (int guard = 0; guard < 2; guard++) {
		struct sym_world *t = team(2, 0, guard);
		struct user u[4];
		int64_t broken = sym_guard_broken();
		for (int i = 0; i < 4; i++) {
			u[i] = (struct user){ .h = sym_heap_of(t, i & 1), .seed = 77 + (uint64_t)i };
			pthread_create(&u[i].t, NULL, churn, &u[i]);
		}
		for (int i = 0; i < 4; i++)
			pthread_join(u[i].t, NULL);
		for (int i = 0; i < 2; i++)
			assert_int_equal(sym_heap_stats(sym_heap_of(t, i)).in_use, 0);
		assert_int_equal(sym_guard_broken(), broken);
		sym_close(t);
	}
}

/* Bytes of the first n of a heap that hold pages. */
static int64_t resident(struct sym_heap *h, size_t n)
{
	size_t page = (size_t)getpagesize(), held = 0;
	unsigned char *in = malloc(n / page);

	assert_int_equal(mincore(sym_base(h), n, in), 0);
	for (size_t i = 0; i < n / page; i++)
		held += in[i] & 1;
	free(in);
	return (int64_t)(held * page);
}

static struct sym_block *touched(struct sym_heap *h, size_t n)
{
	struct sym_block *b;

	assert_null(sym_alloc(h, n, NULL, -1, &b));
	memset(sym_base(h) + b->off, 1, n);
	return b;
}

/* Pages of free blocks go when new ones would be more than the limit: also where the last block grows, or two are joined. */
static void pages_of_free(void **state)
{
	enum { MB = 1 << 20, LIMIT = 96 };

	for (int how = 0; how < 2; how++) {
		struct sym_world *t = team(1, LIMIT * MB, false);
		struct sym_heap *h = sym_heap_of(t, 0);
		struct sym_block *a = touched(h, 32 * MB), *s = touched(h, MB);
		if (how) {
			struct sym_block *b = touched(h, 8 * MB), *c = touched(h, MB);
			sym_free(b);
			sym_free(a);
			sym_free(touched(h, 80 * MB));
			sym_free(touched(h, 88 * MB));
			sym_free(c);
		} else {
			sym_free(a);
			for (int mb = 60; mb <= 90; mb += 10)    /* the last one, a bit larger each time */
				sym_free(touched(h, (size_t)mb * MB));
		}
		assert_true(resident(h, 2 * LIMIT * MB) <= (LIMIT + 6) * (int64_t)MB);
		assert_true(sym_heap_stats(h).reserved <= LIMIT * MB);
		sym_free(s);
		sym_close(t);
	}
}

static void limits(void **state)
{
	struct sym_world *t = team(2, 1 << 20, false);
	struct sym_heap *h = sym_heap_of(t, 0), *o = sym_heap_of(t, 1);
	struct sym_block *a, *b, *c;

	assert_null(sym_alloc(h, 600000, "result of 'step',", 3, &a));
	assert_null(sym_alloc(h, 1000, "an array from the host", -1, &b));
	struct err *e = sym_alloc(o, 500000, "the program zone", -1, &c);      /* the limit is for all heaps together */
	assert_non_null(e);
	assert_int_equal(e->code, ERR_EXHAUSTED);
	assert_non_null(strstr(e->msg, "asked for 500000 bytes for the program zone"));
	assert_non_null(strstr(e->msg, "of 1.0 MB are free; largest live buffers: 600000 bytes (result of 'step', 3) on device 0, 1000 bytes (an array from the host) on device 0;"));
	err_free(e);
	/* Those of one size and one origin are told once. */
	struct sym_block *same[3], *first;
	for (int i = 0; i < 3; i++)
		assert_null(sym_alloc(i ? o : h, 2000, "a piece", -1, &same[i]));
	assert_null(sym_alloc(h, 2000, "another", -1, &first));
	e = sym_alloc(h, 1500000, NULL, -1, &c);
	assert_non_null(strstr(e->msg, "was asked for 1.5 MB, "));
	assert_non_null(strstr(e->msg, "600000 bytes (result of 'step', 3) on device 0, 2000 bytes (another) on device 0, 3 of 2000 bytes (a piece) on devices 0 to 1; what is deleted"));      /* 1000 bytes are little beside 1.5 MB */
	err_free(e);
	for (int i = 0; i < 3; i++)
		sym_free(same[i]);
	sym_free(first);
	sym_free(a);
	assert_null(sym_alloc(o, 900000, NULL, -1, &c));
	e = sym_alloc(h, SIZE_MAX - 10, NULL, -1, &a);
	assert_non_null(e);
	err_free(e);
	sym_free(b);
	sym_free(c);
	struct sym_stats s = sym_heap_stats(h);
	assert_int_equal(s.in_use, 0);
	assert_true(s.peak >= 601000);
	assert_int_equal(s.largest, 600000);
	sym_heap_clear_stats(h);
	assert_int_equal(sym_heap_stats(h).peak, 0);
	/* To the byte: what was in use at most is what was in use then. */
	assert_null(sym_alloc(h, 1000, NULL, -1, &a));
	s = sym_heap_stats(h);
	assert_true(s.in_use >= 1000);
	assert_int_equal(s.peak, s.in_use);
	sym_free(a);
	assert_int_equal(sym_heap_stats(h).peak, s.in_use);
	sym_close(t);
}

static void pages(void **state)
{
	/* Heaps take turns: pages of one are given back when the other needs them, and come back as zeros or data. */
	struct sym_world *t = team(2, 64 << 20, false);
	struct sym_block *b;

	for (int i = 0; i < 6; i++) {
		struct sym_heap *h = sym_heap_of(t, i & 1);
		assert_null(sym_alloc(h, 60 << 20, NULL, -1, &b));
		memset(sym_base(h) + b->off, i + 1, 60 << 20);
		sym_free(b);
	}
	sym_close(t);
}

static void nobody(void **state)
{
	struct sym_world *w;

	for (int n = -1; n < 1; n++) {
		struct err *e = sym_open(&(struct sym_opts){ .nlocal = n }, &w);
		assert_non_null(e);
		assert_int_equal(e->code, ERR_INVALID);
		assert_null(w);
		err_free(e);
	}
}

static void guards(void **state)
{
	struct sym_world *t = team(1, 0, true);
	struct sym_heap *h = sym_heap_of(t, 0);
	int64_t was = sym_guard_broken();
	struct sym_block *b;

	for (int k = 0; k < 3; k++) {
		assert_null(sym_alloc(h, 100, "a test's buffer", -1, &b));
		if (k)
			sym_base(h)[b->off + (k == 1 ? (size_t)-1 : 100)] ^= 1;
		sym_free(b);
		assert_int_equal(sym_guard_broken(), was + k);
	}
	sym_close(t);
}

/* Blocks next to each other are one when they are free, in whatever order they were freed. */
static void neighbours(void **state)
{
	enum { N = 3, BYTES = 1 << 20 };
	static const int order[][N] = { { 0, 1, 2 }, { 2, 1, 0 }, { 0, 2, 1 }, { 1, 0, 2 } };
	struct sym_world *t = team(1, 0, false);
	struct sym_heap *h = sym_heap_of(t, 0);
	struct sym_block *b[N], *last, *all;

	for (size_t k = 0; k < NELEM(order); k++) {
		for (int i = 0; i < N; i++)
			assert_null(sym_alloc(h, BYTES, NULL, -1, &b[i]));
		assert_null(sym_alloc(h, 64, NULL, -1, &last));       /* so that none of them is at the end */
		size_t off = b[0]->off;
		for (int i = 0; i < N; i++)
			sym_free(b[order[k][i]]);
		assert_null(sym_alloc(h, N * BYTES, NULL, -1, &all));
		assert_int_equal(all->off, off);
		sym_free(all);
		sym_free(last);
	}
	sym_close(t);
}

/* What is left of a free block has its pages still, and gives them back when others need them. */
static void rest_of_pages(void **state)
{
	enum { MB = 1 << 20 };
	struct sym_world *t = team(1, 8 * MB, false);
	struct sym_heap *h = sym_heap_of(t, 0);
	struct sym_block *a, *b, *c;

	assert_null(sym_alloc(h, 6 * MB, NULL, -1, &a));
	assert_null(sym_alloc(h, 64, NULL, -1, &b));
	size_t at = a->off + 3 * MB;
	memset(sym_base(h) + a->off, 1, 6 * MB);
	sym_free(a);
	assert_null(sym_alloc(h, MB, NULL, -1, &a));
	assert_int_equal(sym_base(h)[at], 1);
	assert_null(sym_alloc(h, 6 * MB, NULL, -1, &c));
	assert_int_equal(sym_base(h)[at], 0);
	sym_free(a);
	sym_free(b);
	sym_free(c);
	sym_close(t);
}

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(churning), cmocka_unit_test(pages_of_free), cmocka_unit_test(limits), cmocka_unit_test(pages), cmocka_unit_test(guards),
	                                cmocka_unit_test(nobody), cmocka_unit_test(neighbours), cmocka_unit_test(rest_of_pages) };

	return cmocka_run_group_tests(t, NULL, NULL);
}
