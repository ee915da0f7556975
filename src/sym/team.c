/* The team: heaps of the local PEs and what they share. */
#include <stdlib.h>

#include "team.h"

struct err *sym_open(const struct sym_opts *o, struct sym_team **out)
{
	struct sym_team *t = mem_alloc(sizeof *t);
	struct err *e = NULL;

	t->npe = o->npe;
	t->first = o->first;
	t->nlocal = o->nlocal;
	t->limit = o->limit;
	t->guard = o->guard;
	t->heap = mem_alloc((size_t)o->nlocal * sizeof *t->heap);
	/* Four times the RAM a heap, so that holes between buffers never matter, but no more than 32 TB in all. */
	size_t want = MIN((size_t)cpu_get()->ram * 4, ((size_t)32 << 40) / (size_t)o->nlocal) & ~(size_t)((2 << 20) - 1);
	for (int i = 0; i < o->nlocal && !e; i++)
		e = sym_heap_init(&t->heap[i], t, o->first + i, want, 4096);
	if (e) {
		sym_close(t);
		t = NULL;
	}
	*out = t;
	return e;
}

void sym_close(struct sym_team *t)
{
	if (!t)
		return;
	for (int i = 0; i < t->nlocal; i++)
		sym_heap_fini(&t->heap[i]);
	free(t->heap);
	free(t);
}

struct sym_heap *sym_heap_of(struct sym_team *t, int pe) { return &t->heap[pe - t->first]; }
