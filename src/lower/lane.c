/* Collectives beside computing.
 *
 * A collective goes to lane 1, which begins it when lane 0 is there, if lane 0 has enough to do before anything needs what it makes.
 * Lane 0 awaits it at the first command that reads or writes what it writes, or writes what it reads, and at the end of the block
 * in which it was begun: a turn of a loop begins with nothing under way that the turn before has begun.  Lane 1 does one after the
 * other, so who awaits one has awaited all before it. */
#include "lw.h"

/* Work, in ns, that is worth the beginning and the end of it; and as a part of what it takes itself. */
enum { LEAST = 3000, PART = 2 };

bool lw_beside(const struct lw *w, const struct frame *f, int i)
{
	const struct ir_fn *fn = f->fn;
	const struct ir_op *o = &fn->op.p[i];
	double least = MAX(LEAST, spmd_coll_time(w->opts->plan, w->m, fn, o) / PART), sum = 0;
	for (size_t j = (size_t)i + 1; j < fn->op.n && sum < least; j++) {
		const struct ir_op *next = &fn->op.p[j];
		if (lw_is_alias(w, fn, next))
			continue;
		for (uint32_t k = 0; k < next->nin; k++) {
			ir_val r = f->root[ir_in(fn, next, k)];
			if (r >= o->out && r < o->out + o->nout)
				return false;
		}
		sum += spmd_op_time(w->opts->plan->table, w->m, fn, next);
	}
	return sum >= least;
}

void lw_begin_beside(struct lw *w)
{
	int made = lw_mark(w);
	w->lane = 1;
	lw_await(w, made);
}

void lw_end_beside(struct lw *w, const struct place *in, const struct place *also, const struct place *out)
{
	struct flight g = { lw_mark(w), { in->store, also->store }, out->store };
	w->lane = 0;
	arr_push(&w->flight, g);
}

bool lw_talks(const struct lw *w, const struct ir_fn *fn)
{
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		if (ir_info(o->kind)->flags & IR_COLL)
			return true;
		ir_fnid held[64];
		int n = ir_regions(fn, o, held, NELEM(held));
		if (n == NELEM(held))         /* there may be more */
			return true;
		for (int k = 0; k < n; k++)
			if (lw_talks(w, ir_fn_of(w->m, held[k])))
				return true;
	}
	return false;
}
