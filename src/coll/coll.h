/* Collectives between devices, over pair channels: neighbour to neighbour, no barrier of the team.
 *
 * Reductions combine in rank order (the order of the group's row), so every device gets the same bits.
 * A call returns when this device's operands may be overwritten and its results are complete; it says
 * nothing about the others.  An endpoint belongs to one thread, so does a call. */
#ifndef RONDO_COLL_H
#define RONDO_COLL_H

#include "../base/base.h"
#include "../prog/prog.h"
#include "../sym/sym.h"

/* One device's place in a program. */
struct coll_cx {
	struct sym_ep *ep;
	struct sym_heap *heap;        /* the device's own: staging is taken from it where an operand cannot be lent */
	const struct prog *p;
	const int *pe;                /* PE of each position */
	int pos;
};

/* Can the collective be done?  INVALID or UNIMPLEMENTED, for use when a program is loaded. */
struct err *coll_check(const struct prog *p, const struct prog_coll *c);
/* PEs that position pos exchanges messages with in any collective of p, without itself: into out (ndev entries),
 * each once.  Returns their number. */
int coll_peers(const struct prog *p, const int *pe, int pos, int *out);
/* Take part in c.  ptr: addresses of the operands, then of the results; between sym_begin and sym_end. */
struct err *coll_run(struct coll_cx *cx, const struct prog_coll *c, uint32_t site, char *const *ptr);

#endif
