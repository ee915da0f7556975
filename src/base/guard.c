/* What is done under a guard, and gives an error where there is no memory. */
#include "mem.h"

#include <locale.h>
#include <pthread.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t plain;
static void plain_make(void) { plain = newlocale(LC_ALL_MASK, "C", 0); }

/* Numbers have a point here, whatever the program's language: texts of ours are read back.  This thread's locale becomes that, or the one
 * given; returns the one before. */
static locale_t plainly(locale_t back)
{
	pthread_once(&once, plain_make);
	return uselocale(back ? back : plain);
}

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
	locale_t was = plainly(0);
	if (_setjmp(g.at)) {
		plainly(was);
		return ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", g.asked);
	}
	*top = &g;
	struct err *e = fn(arg);
	*top = g.outer;
	mem_let_go(&g);
	plainly(was);
	return e;
}
