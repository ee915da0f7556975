/* An all_to_all whose rows data name: each member reads, of the operands of all, what its slices say, from where it lies.
 *
 * A slice is one piece of the operand and one of the result: it is one copy, or one get from another host.  Nothing is packed, and no byte moves
 * that is not asked for. */
#include <stdlib.h>

#include "impl.h"

struct piece { int64_t at, end; };

static int by_place(const void *x, const void *y)
{
	const struct piece *a = x, *b = y;
	return (a->at > b->at) - (a->at < b->at);
}

static void slice_of(const struct prog_coll *c, const int64_t *which, int64_t i, int64_t w[SLICE_NUMBERS])
{
	memcpy(w, which + i * SLICE_NUMBERS, sizeof *w * SLICE_NUMBERS);
	prog_slice_clip(w, c->inner / c->row, c->inner2 / c->row);
}

/* Does no slice lie over another one?  Then it does not matter which comes first. */
static struct err *apart(const struct call *q, const struct prog_coll *c, const int64_t *which, bool *yes)
{
	int64_t w[SLICE_NUMBERS], n = 0;

	TRY(keep(&q->c->room, sizeof(struct piece) * (size_t)c->slices));
	struct piece *p = (struct piece *)(void *)q->c->room.p;
	for (int64_t i = 0; i < c->slices; i++) {
		slice_of(c, which, i, w);
		if (w[SLICE_ROWS])
			p[n++] = (struct piece){ w[SLICE_TO], w[SLICE_TO] + w[SLICE_ROWS] };
	}
	qsort(p, (size_t)n, sizeof *p, by_place);
	*yes = true;
	for (int64_t i = 1; i < n; i++)
		*yes &= p[i].at >= p[i - 1].end;
	return NULL;
}

struct err *move_slices(const struct call *q, const struct prog_coll *c, bool far, const char *x, const int64_t *which, char *y)
{
	const int64_t each = c->slices / q->n;
	int64_t w[SLICE_NUMBERS];
	size_t at[MAX_ROW];
	_Atomic uint32_t left = 0;
	struct loan l = { 0 };
	struct err *e = NULL;
	bool together = false;            /* all gets are under way at once */

	if (q->n > 1) {
		TRY(loan_make(q, x, c->inner, false, &l));
		if (far)
			TRY_GOTO(e, apart(q, c, which, &together), out);
		TRY_GOTO(e, loan_exchange(q, c->inner, l.off, 0, at, NULL), out);
	}
	for (int64_t i = 0; i < c->slices; i++) {
		int k = (int)(i / each);
		slice_of(c, which, i, w);
		char *to = y + w[SLICE_TO] * c->row;
		int64_t from = w[SLICE_FROM] * c->row;
		size_t n = (size_t)(w[SLICE_ROWS] * c->row);
		if (!n)
			continue;
		if (k == q->me)
			memcpy(to, x + from, n);
		else if (together)
			sym_get_nb(q->ep, q->pe[k], to, at[k] + (size_t)from, n, &left);
		else
			sym_get(q->ep, q->pe[k], to, at[k] + (size_t)from, n);
	}
	if (together)
		sym_get_wait(q->ep, &left);
	if (q->n > 1)
		e = ready_all(q);
out:
	loan_end(q, &l, e);
	return e;
}
