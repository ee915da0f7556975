/* What memory gives and takes at most: read, copied and filled in the ways that a core has for it. */
#include <string.h>

#include "../base/base.h"
#include "bench.h"

typedef uint64_t words __attribute__((vector_size(64), may_alias, aligned(1)));

/* Sums of 8 words side by side; what is read is what counts. */
#define LOOPS(name, isa) \
	isa __attribute__((noinline)) static uint64_t read_##name(const char *p, size_t n) \
	{ \
		words a = {0}, b = {0}, c = {0}, d = {0}; \
		for (size_t i = 0; i + 256 <= n; i += 256) { \
			a += *(const words *)(const void *)(p + i); \
			b += *(const words *)(const void *)(p + i + 64); \
			c += *(const words *)(const void *)(p + i + 128); \
			d += *(const words *)(const void *)(p + i + 192); \
		} \
		a += b + (c + d); \
		return a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7]; \
	} \
	isa __attribute__((noinline)) static void copy_##name(char *to, const char *from, size_t n) \
	{ \
		size_t i = 0; \
		for (; i + 128 <= n; i += 128) { \
			words a = *(const words *)(const void *)(from + i), b = *(const words *)(const void *)(from + i + 64); \
			*(words *)(void *)(to + i) = a; \
			*(words *)(void *)(to + i + 64) = b; \
		} \
		memcpy(to + i, from + i, n - i); \
	} \
	isa __attribute__((noinline)) static void fill_##name(char *to, uint64_t with, size_t n) \
	{ \
		words a = {with, with + 1, with + 2, with + 3, with + 4, with + 5, with + 6, with + 7}; \
		size_t i = 0; \
		for (; i + 64 <= n; i += 64) \
			*(words *)(void *)(to + i) = a; \
		memset(to + i, 0, n - i); \
	}
LOOPS(base, )
#if defined(__x86_64__)
LOOPS(256, __attribute__((target("avx2"))))
LOOPS(512, __attribute__((target("avx512f"))))
#define BEST(f, ...) (cpu_get()->avx512 ? f##_512(__VA_ARGS__) : cpu_get()->avx2 ? f##_256(__VA_ARGS__) : f##_base(__VA_ARGS__))

#else
#define BEST(f, ...) f##_base(__VA_ARGS__)
#endif

static void fill_past(char *to, uint64_t with, size_t n)
{
	_Alignas(64) char line[256];
	size_t i = n / sizeof line * sizeof line;
	memset(line, (int)with, sizeof line);
	copy_rows_past(to, sizeof line, line, 0, (int64_t)(i / sizeof line), sizeof line);
	copy_rows_end();
	memset(to + i, (int)with, n - i);
}

uint64_t bench_read(const char *p, size_t n) { return BEST(read, p, n); }

void bench_copy(enum bench_way way, char *to, const char *from, size_t n)
{
	if (way == BENCH_LIBRARY)
		memcpy(to, from, n);
	else if (way == BENCH_PAST)
		copy_past(to, from, n);
	else
		BEST(copy, to, from, n);
}

void bench_fill(enum bench_way way, char *to, uint64_t with, size_t n)
{
	if (way == BENCH_LIBRARY)
		memset(to, (int)with, n);
	else if (way == BENCH_PAST)
		fill_past(to, with, n);
	else
		BEST(fill, to, with, n);
}
