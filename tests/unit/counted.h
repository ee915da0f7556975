/* For tests that stand in for the allocator: COUNTED, whether they can, and what is beneath it.  Sanitizers have one of their own. */
#ifndef RONDO_TESTS_COUNTED_H
#define RONDO_TESTS_COUNTED_H

#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTED 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define COUNTED 0
#endif
#endif
#ifndef COUNTED
#define COUNTED 1
#endif

#if COUNTED
#undef malloc
#undef calloc
#undef realloc
#undef aligned_alloc
#undef posix_memalign
#undef free
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t k, size_t n);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

/* In a function: was it called from what is linked into this program, not by a library? */
extern char __executable_start, etext;
#define OURS ((char *)__builtin_return_address(0) >= &__executable_start && (char *)__builtin_return_address(0) < &etext)

/* The allocator, of which calls by what is linked here are counted in `taken`. */
#define COUNTING(taken) \
	void *malloc(size_t n) { taken += OURS; return __libc_malloc(n); } \
	void *calloc(size_t k, size_t n) { taken += OURS; return __libc_calloc(k, n); } \
	void *realloc(void *p, size_t n) { taken += OURS; return __libc_realloc(p, n); } \
	void *aligned_alloc(size_t align, size_t n) { taken += OURS; return __libc_memalign(align, n); } \
	int posix_memalign(void **p, size_t align, size_t n) { taken += OURS; return (*p = __libc_memalign(align, n)) ? 0 : 12; }
#else
#define COUNTING(taken)
#endif

#endif
