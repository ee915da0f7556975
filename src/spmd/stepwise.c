/* Between shardings of one mesh, in steps: dimensions are cut further by axes that cut nothing so far; axes that go from one dimension to another
 * go by an all_to_all; parts change places so that what has to be gathered is least significant in its dimension; that is gathered. */
#include "impl.h"

#include <stdlib.h>

ir_val part_gather_and_cut(struct part *p, struct ir_b *b, ir_val v, ir_shard from, ir_shard to, uint32_t mesh, int rank)
{
	struct axes more[IR_MAX_RANK];
	for (int d = 0; d < rank; d++) {
		struct axes x = part_axes(p, from, d), y = part_axes(p, to, d), c = axes_common(&p->a, x, y), less = axes_rest(&p->a, x, c);
		more[d] = axes_rest(&p->a, y, c);
		if (less.n)
			v = part_gather(p, b, v, mesh, less, d);
	}
	for (int d = 0; d < rank; d++)
		if (more[d].n)
			v = part_cut(p, b, v, mesh, more[d], d);
	return v;
}

/* Parts of axes that are cut no further: of prime size.  A state says by which of them each dimension is cut. */
enum { MOST_PARTS = 64 };
struct dim_state { int n; uint8_t part[MOST_PARTS]; };
struct plan { struct part *p; struct ir_b *b; uint32_t mesh; int rank, n; struct ir_axis_ref part[MOST_PARTS]; int64_t dim[IR_MAX_RANK]; ir_val v; };

static int order(const void *x, const void *y)
{
	int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
	return (a > b) - (a < b);
}

/* Cut all axes where from or to cut one of them, and then to primes.  False: the cuts do not lie one within another. */
static bool primes(struct plan *q, ir_shard from, ir_shard to)
{
	const struct ir_mesh *m = &q->p->m->mesh.p[q->mesh];
	for (int a = 0; a < m->naxis; a++) {
		int64_t at[4 * MOST_PARTS];
		int n = 0;
		at[n++] = 1;
		at[n++] = m->axis[a].size;
		for (int k = 0; k < 2 * q->rank; k++) {
			struct axes l = part_axes(q->p, k % 2 ? from : to, k / 2);
			for (int i = 0; i < l.n; i++)
				if (l.p[i].axis == a && n + 2 <= (int)NELEM(at)) {
					at[n++] = l.p[i].pre;
					at[n++] = l.p[i].pre * l.p[i].size;
				}
		}
		qsort(at, (size_t)n, sizeof *at, order);
		for (int i = 1; i < n; i++) {
			int64_t left = at[i] / at[i - 1], pre = at[i - 1];
			if (at[i] % at[i - 1])
				return false;
			for (int64_t f = 2; left > 1; f++)
				for (; left % f == 0; left /= f, pre *= f) {
					if (q->n == MOST_PARTS)
						return false;
					q->part[q->n++] = (struct ir_axis_ref){ (uint16_t)a, pre, f };
				}
		}
	}
	return true;
}

static void state_of(const struct plan *q, ir_shard h, struct dim_state *s)
{
	for (int d = 0; d < q->rank; d++) {
		struct axes l = part_axes(q->p, h, d);
		s[d].n = 0;
		for (int i = 0; i < l.n; i++)
			for (int k = 0; k < q->n; k++)        /* parts of an axis are in order */
				if (q->part[k].axis == l.p[i].axis && q->part[k].pre >= l.p[i].pre && q->part[k].pre < l.p[i].pre * l.p[i].size)
					s[d].part[s[d].n++] = (uint8_t)k;
	}
}

/* Those from the first on, as a list. */
static struct axes listed(const struct plan *q, const struct dim_state *s, int first)
{
	struct axes l = {0};
	for (int i = first; i < s->n; i++) {
		struct ir_axis_ref *r = arena_copy(&q->p->a, &q->part[s->part[i]], sizeof *r);
		l = axes_join(&q->p->a, l, (struct axes){ 1, r });
	}
	return l;
}

static int64_t parts_of(const struct plan *q, const struct dim_state *s)
{
	int64_t n = 1;
	for (int i = 0; i < s->n; i++)
		n *= q->part[s->part[i]].size;
	return n;
}

static int dim_with(const struct plan *q, const struct dim_state *s, int part)
{
	for (int d = 0; d < q->rank; d++)
		for (int i = 0; i < s[d].n; i++)
			if (s[d].part[i] == part)
				return d;
	return -1;
}

/* How many more parts of prime size x has than y. */
static int surplus(const struct plan *q, const struct dim_state *x, const struct dim_state *y, int64_t size)
{
	int n = 0;
	for (int i = 0; i < x->n; i++)
		n += q->part[x->part[i]].size == size;
	for (int i = 0; i < y->n; i++)
		n -= q->part[y->part[i]].size == size;
	return n;
}

static ir_shard shard_of(const struct plan *q, const struct dim_state *s)
{
	struct ir_dim_shard dim[IR_MAX_RANK] = {{0}};
	for (int d = 0; d < q->rank; d++) {
		struct axes l = listed(q, &s[d], 0);
		dim[d] = (struct ir_dim_shard){ .naxis = l.n, .axis = (struct ir_axis_ref *)l.p };
	}
	return ir_shard_add(q->p->m, &(struct ir_shard_info){ .mesh = q->mesh, .rank = q->rank, .dim = dim });
}

/* The last n parts of dimension d go to dimension e. */
static void send(struct plan *q, struct dim_state *s, int n, int d, int e)
{
	int first = s[d].n - n;
	q->v = part_exchange(q->p, q->b, q->v, q->mesh, listed(q, &s[d], first), d, e);
	for (int i = 0; i < n; i++)
		s[e].part[s[e].n++] = s[d].part[first + i];
	s[d].n = first;
}

/* One all_to_all that brings s nearer to goal: the longest run of parts that are too many in one dimension and too few in another; of equal
 * ones what comes to where it belongs.  False: there is none. */
static bool exchanged(struct plan *q, struct dim_state *s, const struct dim_state *goal)
{
	int best = 0, from = 0, to = 0;
	for (int d = 0; d < q->rank; d++)
		for (int e = 0; e < q->rank; e++) {
			struct dim_state x = s[d], y = s[e];
			int n = 0, right = 0;
			if (d == e)
				continue;
			while (x.n) {
				int64_t size = q->part[x.part[x.n - 1]].size;
				if (surplus(q, &x, &goal[d], size) <= 0 || surplus(q, &goal[e], &y, size) <= 0)
					break;
				y.part[y.n++] = x.part[--x.n];
				n++;
			}
			for (int k = n; k > 0; k--) {         /* as many as land in their places, else all */
				bool placed = s[e].n + k <= goal[e].n && !memcmp(&s[d].part[s[d].n - k], &goal[e].part[s[e].n], (size_t)k);
				if (placed) {
					n = k;
					right = 1;
					break;
				}
			}
			if (n && n + right * MOST_PARTS > best) {
				best = n + right * MOST_PARTS;
				from = d;
				to = e;
			}
		}
	if (best)
		send(q, s, best > MOST_PARTS ? best - MOST_PARTS : best, from, to);
	return best > 0;
}

/* The parts of each dimension that are too many, last. */
static void too_many_last(const struct plan *q, struct dim_state *s, const struct dim_state *goal)
{
	for (int d = 0; d < q->rank; d++) {
		struct dim_state keep = { 0 }, go = { 0 };
		for (int i = 0; i < s[d].n; i++) {
			int k = s[d].part[i];
			bool leave = surplus(q, &s[d], &goal[d], q->part[k].size) > surplus(q, &go, &(struct dim_state){ 0 }, q->part[k].size) && dim_with(q, goal, k) != d;
			struct dim_state *x = leave ? &go : &keep;
			x->part[x->n++] = (uint8_t)k;
		}
		for (int i = keep.n; i-- > 0;) {             /* too few were elsewhere at home: the last ones go too */
			int64_t size = q->part[keep.part[i]].size;
			if (surplus(q, &keep, &goal[d], size) <= 0)
				continue;
			memmove(&go.part[1], go.part, (size_t)go.n++);
			go.part[0] = keep.part[i];
			memmove(&keep.part[i], &keep.part[i + 1], (size_t)(--keep.n - i));
		}
		memcpy(&keep.part[keep.n], go.part, (size_t)go.n);
		keep.n += go.n;
		s[d] = keep;
	}
}

static bool state_equal(const struct plan *q, const struct dim_state *x, const struct dim_state *y)
{
	bool same = true;
	for (int d = 0; d < q->rank; d++)
		same &= x[d].n == y[d].n && !memcmp(x[d].part, y[d].part, (size_t)x[d].n);
	return same;
}

/* Where s is brought to before it is gathered: want as far as its parts are in s, then, each in its dimension or in one that is divided by
 * it, what is to be gathered.  False: there is no such dimension. */
static bool goal_of(const struct plan *q, const struct dim_state *s, const struct dim_state *want, struct dim_state *goal)
{
	for (int d = 0; d < q->rank; d++) {
		goal[d].n = 0;
		while (goal[d].n < want[d].n && dim_with(q, s, want[d].part[goal[d].n]) >= 0) {
			goal[d].part[goal[d].n] = want[d].part[goal[d].n];
			goal[d].n++;
		}
	}
	for (int d = 0; d < q->rank; d++)
		for (int i = 0; i < s[d].n; i++) {
			int k = s[d].part[i];
			if (dim_with(q, goal, k) >= 0)
				continue;
			int e = d;
			for (int j = 0; j < q->rank && q->dim[e] % (parts_of(q, &goal[e]) * q->part[k].size); j++)
				e = (d + 1 + j) % q->rank;
			if (q->dim[e] % (parts_of(q, &goal[e]) * q->part[k].size))
				return false;
			goal[e].part[goal[e].n++] = (uint8_t)k;
		}
	return true;
}

ir_val part_stepwise(struct part *p, struct ir_b *b, ir_val v, ir_shard from, ir_shard to, uint32_t mesh, int rank)
{
	struct plan q = { .p = p, .b = b, .mesh = mesh, .rank = rank, .v = v };
	struct dim_state s[IR_MAX_RANK], want[IR_MAX_RANK], goal[IR_MAX_RANK], next[IR_MAX_RANK];
	if (!primes(&q, from, to))
		return part_gather_and_cut(p, b, v, from, to, mesh, rank);
	state_of(&q, from, s);
	state_of(&q, to, want);
	for (int d = 0; d < rank; d++)
		q.dim[d] = ir_vtype(p->m, b->fn, v)->dim[d] * ir_shard_parts(p->m, from, d);
	int had[IR_MAX_RANK];
	for (int d = 0; d < rank; d++)
		had[d] = s[d].n;
	for (int by = 0; by < rank; by++)            /* what cuts nothing so far, in its dimension or, if that is too small, in another one */
		for (int d = 0; d < rank; d++)
			for (int i = 0; i < want[d].n; i++) {
				int k = want[d].part[i], e = (d + by) % rank;
				if (dim_with(&q, s, k) < 0 && q.dim[e] % (parts_of(&q, &s[e]) * q.part[k].size) == 0)
					s[e].part[s[e].n++] = (uint8_t)k;
			}
	if (!goal_of(&q, s, want, goal))
		return part_gather_and_cut(p, b, v, from, to, mesh, rank);
	for (int d = 0; d < rank; d++)
		if (s[d].n > had[d])
			q.v = part_cut(p, b, q.v, mesh, listed(&q, &s[d], had[d]), d);
	for (bool placed = false;;) {
		bool even = true;
		for (int d = 0; d < rank; d++)
			even &= parts_of(&q, &s[d]) == parts_of(&q, &goal[d]);
		if (even)
			break;
		if (exchanged(&q, s, goal))
			continue;
		if (placed)                          /* cannot be: what is too many is last now */
			return part_gather_and_cut(p, b, q.v, shard_of(&q, s), to, mesh, rank);
		memcpy(next, s, sizeof *s * (size_t)rank);
		too_many_last(&q, next, goal);
		q.v = part_change_places(p, b, q.v, shard_of(&q, s), shard_of(&q, next), rank);
		memcpy(s, next, sizeof *s * (size_t)rank);
		placed = true;
	}
	if (!state_equal(&q, s, goal))
		q.v = part_change_places(p, b, q.v, shard_of(&q, s), shard_of(&q, goal), rank);
	return part_gather_and_cut(p, b, q.v, shard_of(&q, goal), to, mesh, rank);
}
