/* Symmetric memory: every PE (device) can read, write and signal the heap of
 * every other one, with no receive call on the other side.
 *
 * Two layers.  A *heap* per PE: a large sparse region of which blocks are
 * handed out; other PEs know it by number and address bytes in it by offset,
 * never by pointer.  An *endpoint* per PE: the channels to all other PEs, used
 * by one thread at a time.  docs/sym.md describes the protocol.
 *
 * Heaps are thread-safe; an endpoint belongs to the thread that runs its PE's
 * program.  Nothing here knows what the bytes mean. */
#ifndef RONDO_SYM_H
#define RONDO_SYM_H

#include <stdatomic.h>

#include "../base/base.h"

struct sym_team; struct sym_heap; struct sym_ep;

/* --- team.c -------------------------------------------------------------- */

struct sym_opts {
	int npe;                  /* PEs of the team */
	int first, nlocal;        /* those whose heaps and endpoints live in this process */
	int64_t limit;            /* bytes that all local heaps may hold together; 0: no limit */
	int threads;              /* threads that will run on this process' cores: decides how long a wait spins */
	bool guard;               /* guard bytes round every block, looked at when it is freed */
	bool chaos;               /* delay what the memory model allows to be late; heaps of peers are not mapped */
	uint64_t seed;            /* of the delays */
};
/* EXHAUSTED if the address space cannot be had. */
struct err *sym_open(const struct sym_opts *o, struct sym_team **out);   /* owned */
void sym_close(struct sym_team *t);                          /* NULL is fine; no endpoint may be in use */
struct sym_heap *sym_heap_of(struct sym_team *t, int pe);    /* local PEs only; borrowed */

/* --- heap.c -------------------------------------------------------------- */

/* A block of a heap.  off is a multiple of 64. */
struct sym_block { size_t off, bytes; };

/* Take n bytes (0 is fine).  what and index say for whom ("result 3 of 'step'": index -1 is not shown);
 * what must outlive the block.  The bytes are undefined.  EXHAUSTED says how much was asked and free and
 * lists the largest live blocks. */
struct err *sym_alloc(struct sym_heap *h, size_t n, const char *what, int index, struct sym_block **out);
void sym_free(struct sym_block *b);                          /* NULL is fine */
char *sym_base(const struct sym_heap *h);                    /* where this process sees the heap */

struct sym_stats { int64_t in_use, peak, limit, allocs, largest, reserved; };   /* bytes, but allocs */
struct sym_stats sym_heap_stats(struct sym_heap *h);
void sym_heap_clear_stats(struct sym_heap *h);               /* peak = in_use; gives unused pages back */
int64_t sym_guard_broken(void);                              /* blocks found written outside, by all heaps so far */

/* --- wait.c -------------------------------------------------------------- */

/* Sleep while *word is seen, at most ns nanoseconds (< 0: for ever).  May wake early. */
void sym_sleep(_Atomic uint32_t *word, uint32_t seen, int64_t ns);
void sym_wake(_Atomic uint32_t *word, int n);                /* wake n sleepers of this process */
/* How often a wait polls before it lets another thread run: 2000 if threads fit the cores, else 20. */
int sym_spins(int threads);
static inline void sym_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

#endif
