/* Inside base: the guard of a thread, for mem.c, which jumps to it, and guard.c, which puts it up. */
#ifndef RONDO_BASE_MEM_H
#define RONDO_BASE_MEM_H

#include "base.h"

#include <locale.h>
#include <setjmp.h>

enum { MEM_FEW = 512 };

struct mem_guard {
	struct mem_guard *outer;
	struct mem_undo *undo;
	size_t asked;
	bool frees, persist;
	void **held;                  /* open addressing, linear probing; cap is a power of two, never more than half full */
	size_t n, cap;
	void *few[MEM_FEW];
	jmp_buf at;
};

struct mem_guard **mem_top(void);              /* the one that was put up last on this thread; NULL: none */
void mem_let_go(struct mem_guard *g);          /* forget what it holds */
/* Numbers have a point in here, whatever language the program has set: texts of ours are read back.  This thread's locale becomes C's, or
 * the one given; returns the one before. */
locale_t mem_plainly(locale_t back);

#endif
