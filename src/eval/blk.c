/* Counted blocks. */
#include <stdlib.h>

#include "walk.h"

struct blk *blk_new(size_t n)
{
	struct blk *b = mem_aligned(64, sizeof(struct blk) + n + 64);
	b->ref = 1;
	b->n = n;
	return b;
}

struct blk *blk_ref(struct blk *b)
{
	if (b)
		b->ref++;
	return b;
}

void blk_unref(struct blk *b)
{
	if (b && !--b->ref)
		free(b);
}
