/* Copies into memory that other cores read.
 *
 * A line that another core has read must be taken from it before it is written again.  How long that takes depends on where the two
 * cores are: a few nanoseconds inside a cluster that shares a cache, 27 a line between two clusters of Zen 4, one line after the other
 * whatever is fetched ahead (2.4 GB/s; stores past the caches, which take nothing from anybody, reach 28 there).  Inside a cluster the
 * others are faster, as they leave in the cache what is read next.  Threads move, and virtual machines move their cores: so each thread
 * learns for a few sizes which way is faster, by trying both from time to time, and when its copies begin to take another time. */
#include "base.h"

#if defined __x86_64__
#include <emmintrin.h>
#endif

enum { LINE = 64, LONG = 1 << 20, SIZES = 4, TRIES = 3, TIMED = 31, AGAIN = 1024 };
/* A time so many times another is not that one with noise.  What goes past the caches comes back from memory: it must be worth that. */
static const float CHANGED = 1.6f, WORTH = 0.25f;

enum way { PLAIN, PAST, WAYS };

/* What a thread knows of copies of one use and size. */
static _Thread_local struct pace {
	uint32_t n;              /* copies since the last trial */
	uint8_t way, trial;      /* copies of the trial that are left: first plain ones, for lines that went past the caches nobody has read */
	uint8_t odd;             /* timed copies in a row that took another time than in the trial */
	float takes[WAYS];       /* seconds a byte, at best */
} paces[COPY_USES][SIZES];

#if defined __x86_64__
static inline __attribute__((always_inline)) void rows_past(char *to, int64_t by_to, const char *from, int64_t by_from, int64_t n, size_t row)
{
	/* Rows so far apart that no core fetches the next one by itself, or all between, are fetched ahead: some rows, of long ones the beginning. */
	enum { ROWS = 32, AHEAD = 4 << 10, NEAR = 4 * LINE };
	const size_t least = row > AHEAD ? row - AHEAD : 0, first = by_from >= NEAR && by_from > (int64_t)row ? least : row;
	const int64_t ahead = row ? by_from * MIN(MAX((int64_t)(AHEAD / row), 1), ROWS) - (int64_t)least : 0;

	for (; n > 0; n--, to += by_to, from += by_from) {
		size_t o = 0;
		for (; o + LINE <= row; o += LINE) {
			if (o >= first)
				__builtin_prefetch(from + ahead + o);
			const __m128i *x = (const __m128i *)(const void *)(from + o);
			__m128i *y = (__m128i *)(void *)(to + o), a = _mm_loadu_si128(x), b = _mm_loadu_si128(x + 1), c = _mm_loadu_si128(x + 2), d = _mm_loadu_si128(x + 3);
			_mm_stream_si128(y, a);
			_mm_stream_si128(y + 1, b);
			_mm_stream_si128(y + 2, c);
			_mm_stream_si128(y + 3, d);
		}
		if (o < row && o >= first)
			__builtin_prefetch(from + ahead + o);
		for (; o < row; o += 16)
			_mm_stream_si128((__m128i *)(void *)(to + o), _mm_loadu_si128((const __m128i *)(const void *)(from + o)));
	}
}
#endif

void copy_rows_past(char *to, int64_t by_to, const char *from, int64_t by_from, int64_t n, size_t row)
{
#if defined __x86_64__
	switch (row) {                            /* short ones of a size that the compiler knows */
	case 16: rows_past(to, by_to, from, by_from, n, 16); break;
	case 32: rows_past(to, by_to, from, by_from, n, 32); break;
	case 64: rows_past(to, by_to, from, by_from, n, 64); break;
	case 128: rows_past(to, by_to, from, by_from, n, 128); break;
	default: rows_past(to, by_to, from, by_from, n, row); break;
	}
#else
	for (; n > 0; n--, to += by_to, from += by_from)
		memcpy(to, from, row);
#endif
}

void copy_rows_end(void)
{
#if defined __x86_64__
	_mm_sfence();
#endif
}

void copy_past(void *dst, const void *src, size_t n)
{
	char *to = dst;
	const char *from = src;
	size_t head = MIN(-(uintptr_t)to & (LINE - 1), n), lines = (n - head) / LINE * LINE;

	memcpy(to, from, head);
	copy_rows_past(to + head, 0, from + head, 0, 1, lines);
	copy_rows_end();
	memcpy(to + head + lines, from + head + lines, n - head - lines);
}

static void by(enum way w, void *to, const void *from, size_t n)
{
	if (w == PAST)
		copy_past(to, from, n);
	else
		memcpy(to, from, n);
}

void copy_shared(enum copy_use use, void *to, const void *from, size_t n)
{
	if ((uintptr_t)to - (uintptr_t)from < n || (uintptr_t)from - (uintptr_t)to < n) {
		memmove(to, from, n);
		return;
	}
	if (n < COPY_LEAST) {
		memcpy(to, from, n);
		return;
	}
	struct pace *p = &paces[use][MIN((63 - __builtin_clzll(n / COPY_LEAST)) / 3, SIZES - 1)];
	if (p->n++ % AGAIN == 0 || p->odd >= TRIES) {
		p->trial = 2 * TRIES;
		p->takes[PLAIN] = p->takes[PAST] = 1;
		p->n = 1;
		p->odd = 0;
	}
	enum way w = p->trial ? p->trial > TRIES ? PLAIN : PAST : (enum way)p->way;
	if (!p->trial && n < LONG && p->n % TIMED) {
		by(w, to, from, n);
		return;
	}
	double t = clock_s();
	by(w, to, from, n);
	float s = (float)((clock_s() - t) / (double)n);
	if (!p->trial)
		p->odd = s > CHANGED * p->takes[w] || s < p->takes[w] / CHANGED ? p->odd + 1 : 0;
	else {
		p->takes[w] = MIN(p->takes[w], s);
		if (!--p->trial)
			p->way = p->takes[PAST] < WORTH * p->takes[PLAIN];
	}
}
