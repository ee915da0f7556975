/* Which blocks a mask lets a device see, of those that an attention gathers: of a triangle, a window, or whatever else follows from indices alone; and how far
 * these go for that.
 *
 * A block is not seen if all its scores are -inf, whatever the products are.  It is not seen either if a large negative number is written over all of
 * them, and each row has a key whose score is far above that number whatever the product is, but for those that are about to overflow: then their weights are 0.  All that is looked
 * at is bounds of the score function for a block of queries and one of keys (eval_bound). */
#include "ring.h"

#include <math.h>

enum { WORK = 1 << 24 };              /* steps for one attention; behind them everything is seen */
#define F32_MOST 1e38                 /* products beyond are on the verge of what the type can hold */
#define F64_MOST 1e300
#define APART 1e3                     /* of such scores the lower one has no weight in any type */

struct look {
	const struct ring *r;
	struct eval_bounds at, score;
	uint32_t first;                   /* operand that is the second one of the score function */
	int rank;                         /* of the operands behind it */
	int64_t t, s;                     /* queries and keys as the attention sees them on a device */
	const int64_t *row;               /* devices of the row of the group that is looked at */
	struct kern_bound finite;         /* products that do not overflow */
	struct kern_bound bound[RING_IN];
};

/* What scores of queries t0 .. and keys s0 .. are on a device, where products are as x. */
static struct kern_bound score(struct look *l, int64_t dev, int64_t t0, int64_t t1, int64_t s0, int64_t s1, struct kern_bound x)
{
	const struct ir_module *m = l->at.m;
	const struct ir_fn *fn = l->at.fn;
	l->at.dev = (int)dev;
	l->bound[0] = x;
	for (uint32_t k = l->first; k < l->r->att->nin; k++) {
		ir_val v = ir_in(fn, l->r->att, k);
		const struct ir_type_info *t = ir_vtype(m, fn, v);
		int64_t lo[IR_MAX_RANK] = { 0 }, hi[IR_MAX_RANK];
		memcpy(hi, t->dim, sizeof *hi * (size_t)t->rank);
		if (hi[l->rank - 2] > 1)
			lo[l->rank - 2] = t0, hi[l->rank - 2] = t1;
		if (hi[l->rank - 1] > 1)
			lo[l->rank - 1] = s0, hi[l->rank - 1] = s1;
		l->bound[1 + k - l->first] = eval_bound(&l->at, v, lo, hi);
	}
	return eval_bound(&l->score, l->score.fn->result.p[0], NULL, NULL);
}

/* Is there, on a device, some of the keys whose scores for all of the queries are at least `least`?  Fewer than an eighth as many keys as queries are
 * not looked for: fewer queries are asked for then. */
static bool has(struct look *l, int64_t dev, int64_t t0, int64_t t1, int64_t s0, int64_t s1, double least)
{
	struct kern_bound b = score(l, dev, t0, t1, s0, s1, l->finite);
	int64_t mid = s0 + (s1 - s0) / 2;
	if (!b.nan && b.lo >= least)
		return true;
	if (*l->at.work < 0 || (!b.nan && b.hi < least) || s1 - s0 < 2 || s1 - s0 < (t1 - t0) / 4)
		return false;
	return has(l, dev, t0, t1, s0, mid, least) || has(l, dev, t0, t1, mid, s1, least);
}

/* Has each of the queries such a key?  dev: who has them, -1: all have, each some of the keys. */
static bool all_have(struct look *l, int64_t dev, int64_t t0, int64_t t1, double least)
{
	int64_t mid = t0 + (t1 - t0) / 2;
	for (int64_t k = 0; k < (dev < 0 ? l->r->members : 1); k++)
		if (has(l, dev < 0 ? l->row[k] : dev, t0, t1, 0, l->s, least))
			return true;
	return t1 - t0 > 1 && *l->at.work >= 0 && all_have(l, dev, t0, mid, least) && all_have(l, dev, mid, t1, least);
}

/* Where part i of `parts` of n begins. */
static int64_t cut(int64_t n, int i, int parts) { return n * i / parts; }

const bool *ring_seen(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ring *r, int own, int parts, double *hidden)
{
	const struct ir_group_info *g = &m->group.p[r->group];
	int n = (int)r->members, nown = n * own, all = nown * n * parts;
	bool *seen = ARENA_NEW(a, bool, all);
	int64_t work = WORK;
	const struct ir_type_info *q = ir_vtype(m, fn, ir_in(fn, r->att, 0)), *k = ir_vtype(m, fn, ir_in(fn, r->att, 1));
	const struct ir_fn *of = ir_fn_of(m, (ir_fnid)ir_attr(fn, r->att, AT_fn));
	struct look *l = ARENA_NEW(a, struct look, 1);
	*l = (struct look){ .r = r, .at = { m, fn, 0, NULL, eval_known(a, m, fn), &work }, .score = { m, of, 0, l->bound, NULL, &work }, .first = ring_first_extra(r),
	                    .rank = q->rank, .t = q->dim[q->rank - 2], .s = k->dim[k->rank - 2] };
	struct kern_bound x = kern_bound_any(ir_vtype(m, of, 1)->dtype);
	double finite = ir_vtype(m, of, 1)->dtype == DT_f64 ? F64_MOST : F32_MOST;
	l->finite = (struct kern_bound){ -finite, finite, false };
	double *most = ARENA_NEW(a, double, all), filled = -INFINITY;
	for (int i = 0; i < all; i++)
		most[i] = -INFINITY;
	for (int row = 0; row < g->nrow; row++)
		for (int i = 0; i < nown; i++)
			for (int b = 0; b < n * parts; b++) {
				int64_t dev = g->id[row * n + i / own], mine = r->side == RING_KEYS ? l->t : l->s;
				int64_t at = cut(mine, i % own, own), end = cut(mine, i % own + 1, own);
				int64_t from = b / parts * r->len + cut(r->len, b % parts, parts), to = b / parts * r->len + cut(r->len, b % parts + 1, parts);
				if (at == end || from == to)
					continue;
				struct kern_bound is = r->side == RING_KEYS ? score(l, dev, at, end, from, to, x) : score(l, dev, from, to, at, end, x);
				double *to_b = &most[i * n * parts + b];
				*to_b = MAX(*to_b, is.nan ? INFINITY : is.hi);
			}
	for (int i = 0; i < all; i++)
		if (most[i] < -APART)
			filled = MAX(filled, most[i]);
	bool rows = filled > -INFINITY;
	for (int row = 0; row < g->nrow && rows; row++) {
		l->row = g->id + row * n;
		if (r->side == RING_QUERIES)
			rows = all_have(l, -1, 0, l->t, filled + APART + fabs(filled) * 1e-6);
		for (int i = 0; i < n && rows && r->side == RING_KEYS; i++)
			rows = all_have(l, l->row[i], 0, l->t, filled + APART + fabs(filled) * 1e-6);
	}
	for (int i = 0; i < all; i++)
		seen[i] = work < 0 || !(most[i] == -INFINITY || (rows && most[i] < -APART));
	*hidden = work < 0 || !rows ? -INFINITY : filled;
	return seen;
}

/* Hops of block b each way, to come to all of h places, d members each, that see any of it: round, but for the longest way between two of them; of such equally
 * long ones the first or the last. */
static void reach(const bool *seen, int n, int d, int b, bool last, int *before, int *behind)
{
	int h = n / d, from = 0, longest = 0;
	for (int k = 1; k <= h; k++) {
		bool needs = k == h;
		for (int i = 0; i < d && !needs; i++)
			needs = seen[((b / d + k) % h * d + i) * n + b];
		if (!needs)
			continue;
		if (k - from > longest || (last && k - from == longest)) {
			longest = k - from;
			*behind = from;
			*before = h - k;
		}
		from = k;
	}
}

int ring_far(const struct ring *r, int way)
{
	int far = 0;
	for (int b = 0; b < r->members; b++)
		far = MAX(far, r->hop[way][b]);
	return far;
}

/* Fills in r->row: of each block the rows that some place sees to which it goes that way; all of them, where they are many. */
static void rows(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, struct ring *r, int d, const bool *seen)
{
	enum { PARTS = 16, MOST = 64 };
	int n = (int)r->members;
	double hidden;
	r->row[0][0] = r->row[1][0] = 0;
	r->row[0][1] = r->row[1][1] = r->len;
	if (n > MOST || r->len < PARTS || !memchr(seen, false, sizeof *seen * (size_t)(n * n)))
		return;
	seen = ring_seen(a, m, fn, r, 1, PARTS, &hidden);
	for (int way = 0; way < 2; way++) {
		int first = PARTS, end = 0;
		for (int b = 0; b < n; b++)
			for (int t = 1; t <= r->hop[way][b]; t++)
				for (int i = 0; i < d; i++) {
					int host = ((way == RING_BEFORE ? b / d - t : b / d + t) % (n / d) + n / d) % (n / d);
					const bool *its = &seen[((host * d + i) * n + b) * PARTS];
					for (int j = 0; j < PARTS; j++) {
						first = its[j] ? MIN(first, j) : first;
						end = its[j] ? MAX(end, j + 1) : end;
					}
				}
		if (end > first && (end - first) * 4 <= PARTS * 3) {
			r->row[way][0] = cut(r->len, first, PARTS);
			r->row[way][1] = cut(r->len, end, PARTS);
		}
	}
}

void ring_reach(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, struct ring *r, int d, bool all)
{
	int *hop[2][2], turns[2], n = (int)r->members;
	bool *every = ARENA_NEW(a, bool, n * n);
	memset(every, true, sizeof *every * (size_t)(n * n));
	r->hidden = -INFINITY;
	const bool *seen = all ? every : ring_seen(a, m, fn, r, 1, 1, &r->hidden);
	for (int last = 0; last < 2; last++) {
		for (int way = 0; way < 2; way++)
			r->hop[way] = hop[last][way] = ARENA_NEW(a, int, n);
		for (int b = 0; b < n; b++)
			reach(seen, n, d, b, last, &hop[last][RING_BEFORE][b], &hop[last][RING_BEHIND][b]);
		turns[last] = ring_far(r, RING_BEFORE) + ring_far(r, RING_BEHIND);
	}
	for (int way = 0; way < 2; way++)
		r->hop[way] = hop[turns[1] < turns[0]][way];
	rows(a, m, fn, r, d, seen);
}
