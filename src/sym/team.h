/* What the files of sym share. */
#ifndef RONDO_SYM_TEAM_H
#define RONDO_SYM_TEAM_H

#include <pthread.h>
#include <stdatomic.h>

#include "sym.h"

enum { SYM_SLB = 3, SYM_SL = 1 << SYM_SLB, SYM_FL = 56 };

struct block;
struct sym_heap {
	struct sym_team *team;
	int pe;
	char *base;
	size_t reserve, top;              /* bytes of the region; bytes that were ever handed out */
	pthread_mutex_t lock;
	struct block *last, *spare;       /* by address; unused descriptors */
	uint64_t flmap;
	uint8_t slmap[SYM_FL];
	struct block *list[SYM_FL][SYM_SL];
	int64_t in_use, peak, allocs, largest;
};

struct sym_team {
	int npe, first, nlocal;
	int64_t limit;
	bool guard;
	_Atomic int64_t in_use, paged;    /* of all local heaps; paged: bytes of blocks that may hold pages */
	struct sym_heap *heap;            /* nlocal */
};

struct err *sym_heap_init(struct sym_heap *h, struct sym_team *t, int pe, size_t want, size_t control);
void sym_heap_fini(struct sym_heap *h);

#endif
