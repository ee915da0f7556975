/* Copies into memory that others read: every size and place, by both ways, and seen by who is told of them. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/base.h"
#include "draws.h"

enum { ROOM = 160 << 10, TURNS = 1000, BLOCK = 8 << 10 };
static char from[ROOM], to[ROOM], want[ROOM];

static void shared(void *dst, const void *src, size_t n) { copy_shared(COPY_MESSAGE, dst, src, n); }

static void every_size(void **state)
{
	void (*const copy[])(void *, const void *, size_t) = { shared, copy_past };
	static const size_t size[] = { 0, 1, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097, 4159, 4160, 4161, 12345, 32768, 65535, 131072 };

	for (size_t i = 0; i < sizeof from; i++)
		from[i] = (char)(i * 2654435761u >> 13);
	for (size_t k = 0; k < NELEM(size); k++)
		for (size_t at = 0; at < 80; at += size[k] < 200 ? 1 : 7)
			for (size_t off = 0; off < 70; off += 23)
				for (size_t c = 0; c < NELEM(copy); c++) {
					memset(to, 7, size[k] + 256);
					memset(want, 7, size[k] + 256);
					memcpy(want + at, from + off, size[k]);
					copy[c](to + at, from + off, size[k]);
					assert_memory_equal(to, want, size[k] + 256);
				}
}

/* As memmove. */
static void over_itself(void **state)
{
	static const size_t by[] = { 1, 63, 64, 100, 5000 };

	for (size_t k = 0; k < NELEM(by); k++)
		for (int up = 0; up < 2; up++)
			for (int i = 0; i < 8; i++) {
				memcpy(to, from, 20000 + by[k]);
				memcpy(want, from, 20000 + by[k]);
				memmove(want + (up ? by[k] : 0), want + (up ? 0 : by[k]), 20000);
				shared(to + (up ? by[k] : 0), to + (up ? 0 : by[k]), 20000);
				assert_memory_equal(to, want, 20000 + by[k]);
			}
}

static _Alignas(128) _Atomic int told, taken;

/* Who has been told of a copy reads it whole: its last lines first, which leave the core last. */
static void *reads(void *v)
{
	long wrong = 0;

	for (int i = 1; i <= draws(TURNS); i++) {
		for (int polls = 0; atomic_load_explicit(&told, memory_order_acquire) < i; polls++)
			if (polls > 1000)
				sched_yield();
		for (int k = BLOCK - 4; k >= 0; k -= 4) {
			int x;
			memcpy(&x, to + k, 4);
			wrong += x != i;
		}
		atomic_store_explicit(&taken, i, memory_order_release);
	}
	return (void *)wrong;
}

static void is_seen(void **state)
{
	pthread_t t;
	void *wrong;

	assert_int_equal(pthread_create(&t, NULL, reads, NULL), 0);
	for (int i = 1; i <= draws(TURNS); i++) {
		for (int k = 0; k < BLOCK; k += 4)
			memcpy(from + k, &i, 4);
		copy_past(to, from, BLOCK);
		atomic_store_explicit(&told, i, memory_order_release);
		for (int polls = 0; atomic_load_explicit(&taken, memory_order_acquire) < i; polls++)
			if (polls > 1000)
				sched_yield();
	}
	pthread_join(t, &wrong);
	assert_int_equal((long)wrong, 0);
}

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(every_size), cmocka_unit_test(over_itself), cmocka_unit_test(is_seen) };

	return cmocka_run_group_tests(t, NULL, NULL);
}
