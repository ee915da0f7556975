/* What is done under a guard, and gives an error where there is no memory. */
#include "mem.h"

struct err *mem_guard(struct err *(*fn)(void *), void *arg, bool frees)
{
	struct mem_guard g, **top = mem_top();

	g.outer = *top;
	g.undo = NULL;
	g.asked = 0;
	g.frees = frees;
	g.persist = false;
	g.held = NULL;
	g.n = g.cap = 0;
	locale_t was = mem_plainly(0);
	if (_setjmp(g.at)) {
		mem_plainly(was);
		return ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", g.asked);
	}
	*top = &g;
	struct err *e = fn(arg);
	*top = g.outer;
	mem_let_go(&g);
	mem_plainly(was);
	return e;
}
