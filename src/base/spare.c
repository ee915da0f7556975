/* Objects of one size that come and go all the time: who gives one back keeps it for the next.
 *
 * While allocations are refused one by one (mem_refuse), and under the address sanitizer, which would not see that a freed one is used,
 * all of them come from the C library. */
#include "mem.h"

#include <sched.h>

#if defined(__SANITIZE_ADDRESS__)
#define SPARE_NONE 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SPARE_NONE 1
#endif
#endif
#ifndef SPARE_NONE
#define SPARE_NONE 0
#endif

enum { MOST_BYTES = 4 << 20 };        /* kept of each size */

bool spare_keeps(void) { return !SPARE_NONE && !mem_refuses(); }

static void hold(struct spare *s)
{
	while (atomic_flag_test_and_set_explicit(&s->lock, memory_order_acquire))
		sched_yield();
}

static void let_go(struct spare *s) { atomic_flag_clear_explicit(&s->lock, memory_order_release); }

static void *pop(struct spare *s)
{
	void *p = s->first;

	if (p) {
		memcpy(&s->first, p, sizeof s->first);
		s->n--;
	}
	return p;
}

bool spare_take_all(struct spare *s, size_t n, void **out)
{
	size_t k = 0;

	if (spare_keeps()) {
		hold(s);
		while (k < n && (out[k] = pop(s)))
			k++;
		let_go(s);
	}
	while (k < n && (out[k] = malloc(s->size)))
		k++;
	if (k == n)
		return true;
	while (k-- > 0)
		spare_give(s, out[k]);
	return false;
}

void *spare_take(struct spare *s)
{
	void *p;

	return spare_take_all(s, 1, &p) ? p : NULL;
}

void *spare_take_free(struct spare *s)
{
	void *p = NULL;

	if (spare_keeps()) {
		hold(s);
		if (s->n > s->aside)
			p = pop(s);
		let_go(s);
	}
	return p ? p : malloc(s->size);
}

void spare_give(struct spare *s, void *p)
{
	bool keep = false;

	if (spare_keeps()) {
		hold(s);
		keep = s->n * s->size < MOST_BYTES;
		if (keep) {
			memcpy(p, &s->first, sizeof s->first);
			s->first = p;
			s->n++;
		}
		let_go(s);
	}
	if (!keep)
		free(p);
}

void spare_fill(struct spare *s, size_t n)
{
	hold(s);
	n = MIN(n, MOST_BYTES / s->size);
	s->aside = MAX(s->aside, n);
	size_t more = s->n < n ? n - s->n : 0;
	let_go(s);
	for (void *p; more && spare_keeps() && (p = malloc(s->size)); more--)
		spare_give(s, p);
}

void spare_fini(struct spare *s)
{
	for (void *p; (p = pop(s));)
		free(p);
}
