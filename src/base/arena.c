#include "base.h"

struct arena_block { struct arena_block *next; size_t size; char mem[] __attribute__((aligned(16))); };

enum { FIRST_BLOCK = 1 << 14, MOST_BLOCK = 1 << 22 };

void arena_init(struct arena *a)
{
	*a = (struct arena){0};
}

void arena_fini(struct arena *a)
{
	for (struct arena_block *b = a->block, *next; b; b = next) {
		next = b->next;
		free(b);
	}
	*a = (struct arena){0};
}

void arena_reset(struct arena *a)
{
	struct arena_block *b = a->block;
	if (!b)
		return;
	while (b->next) {
		struct arena_block *next = b->next;
		free(b);
		b = next;
	}
	a->block = b;
	a->cap = b->size;
	a->used = 0;
}

void *arena_alloc(struct arena *a, size_t n)
{
	n = n < SIZE_MAX - 64 ? (MAX(n, 1) + 15) & ~(size_t)15 : SIZE_MAX - 64;      /* which nobody has */
	if (n > a->cap - a->used) {
		size_t size = a->block ? MIN(a->block->size * 2, (size_t)MOST_BLOCK) : FIRST_BLOCK;
		if (size < n)
			size = n;
		struct arena_block *b = mem_new(sizeof *b + size);
		b->next = a->block;
		b->size = size;
		a->block = b;
		a->cap = size;
		a->used = 0;
	}
	void *p = a->block->mem + a->used;
	a->used += n;
	return memset(p, 0, n);
}

void *arena_copy(struct arena *a, const void *p, size_t n)
{
	void *q = arena_alloc(a, n);
	if (n)
		memcpy(q, p, n);
	return q;
}

char *arena_str(struct arena *a, const char *s, size_t n)
{
	char *q = arena_alloc(a, n + 1);
	if (n)
		memcpy(q, s, n);
	return q;
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
	struct str s = {0};
	va_list ap;
	va_start(ap, fmt);
	str_vaddf(&s, fmt, ap);
	va_end(ap);
	char *q = arena_str(a, s.p, s.n);
	str_free(&s);
	return q;
}

void *arr_grow_(void *p, size_t *cap, size_t want, size_t elem)
{
	if (want <= *cap)
		return p;
	size_t c = *cap ? *cap * 2 : 8;
	if (c < want)
		c = want;
	p = mem_grow(p, c < SIZE_MAX / elem ? c * elem : SIZE_MAX);
	*cap = c;
	return p;
}
