/* The memory plan: offsets for temporaries in the program zone.
 *
 * Stores are placed in order of size, largest first, each at the lowest offset where it meets no store
 * that is already placed and lives at the same time ("greedy by size", Pisarchyk and Lee, Efficient
 * Memory Management for Deep Neural Net Inference, 2020); large ones rather in a result that is not begun yet.  With very many stores, of
 * one lane, the order is that of time and a list of free holes is kept, which is linear. */
#include "lw.h"

#include <stdlib.h>

enum { ALIGN = 64, MANY = 6000, LODGER = 1 << 16 };

struct item { int64_t size, off; const struct life *life; struct prog_buf *b; int in, under; };      /* in: the buffer it lies in, -1: the zone; under: see store */

/* All lanes are done with a when b is made. */
static bool before(const struct item *a, const struct item *b)
{
	for (int l = 0; l < PROG_LANES; l++)
		if (a->life->last[l] >= b->life->born[l])
			return false;
	return true;
}

/* Is a result, b, made over a by the last command that uses a? */
static bool ends_in(const struct item *a, const struct item *b)
{
	if (a->under != b->in || a->life->last[0] != b->life->born[0])
		return false;
	for (int l = 1; l < PROG_LANES; l++)
		if (a->life->last[l] >= b->life->born[l])
			return false;
	return true;
}

static int by_size(const void *a, const void *b)
{
	const struct item *x = a, *y = b;
	if (x->size != y->size)
		return x->size < y->size ? 1 : -1;
	return x->life->born[0] - y->life->born[0];
}

static int by_offset(const void *a, const void *b)
{
	const struct item *x = *(const struct item *const *)a, *y = *(const struct item *const *)b;
	return x->off < y->off ? -1 : x->off > y->off;
}

static int by_first(const void *a, const void *b)
{
	const struct item *x = a, *y = b;
	if (x->life->born[0] != y->life->born[0])
		return x->life->born[0] - y->life->born[0];
	return by_size(a, b);
}

/* The lowest offset for item i in buffer in. */
static int64_t lowest(struct item *it, size_t i, int in, struct item **hit)
{
	size_t k = 0;
	int64_t at = 0;
	for (size_t j = 0; j < i; j++)
		if (it[j].in == in && !before(&it[j], &it[i]) && !before(&it[i], &it[j]))
			hit[k++] = &it[j];
	qsort(hit, k, sizeof *hit, by_offset);
	for (size_t j = 0; j < k; j++) {
		if (hit[j]->off >= at + it[i].size)
			break;
		at = MAX(at, hit[j]->off + hit[j]->size);
	}
	return at;
}

/* Large ones lie in a result, if there is room in one that is written when they are done with. */
static int64_t plan_by_size(struct item *it, size_t n, const struct item *out, size_t nout, struct arena *tmp)
{
	struct item **hit = ARENA_NEW(tmp, struct item *, n);
	int64_t top = 0;
	qsort(it, n, sizeof *it, by_size);
	for (size_t i = 0; i < n; i++) {
		it[i].in = -1;
		for (size_t j = 0; j < nout && it[i].in < 0 && it[i].size >= LODGER && !(it[i].b->bits & BUF_PEER) && it[i].b->kind == BUF_TEMP; j++)
			if (it[i].size <= out[j].size && (before(&it[i], &out[j]) || ends_in(&it[i], &out[j]))) {
				it[i].off = lowest(it, i, out[j].in, hit);
				it[i].in = it[i].off + it[i].size <= out[j].size && (!it[i].off || before(&it[i], &out[j])) ? out[j].in : -1;
			}
		if (it[i].in >= 0)
			continue;
		it[i].off = lowest(it, i, -1, hit);
		top = MAX(top, it[i].off + it[i].size);
	}
	return top;
}

/* Free holes as an array sorted by offset; the last one is open-ended. */
struct hole { int64_t off, size; };

/* Of one lane: what is done with stays so for all that comes later. */
static int64_t plan_by_time(struct item *it, size_t n)
{
	ARR(struct hole) hole = {0};
	ARR(struct item *) live = {0};
	int64_t top = 0;
	qsort(it, n, sizeof *it, by_first);
	for (size_t i = 0; i < n; i++) {
		for (size_t j = 0; j < live.n;) {      /* give back what has died */
			if (!before(live.p[j], &it[i])) {
				j++;
				continue;
			}
			struct item *d = live.p[j];
			live.p[j] = live.p[--live.n];
			size_t k = 0;
			while (k < hole.n && hole.p[k].off < d->off)
				k++;
			arr_push(&hole, ((struct hole){0}));
			memmove(&hole.p[k + 1], &hole.p[k], (hole.n - 1 - k) * sizeof *hole.p);
			hole.p[k] = (struct hole){ d->off, d->size };
			if (k + 1 < hole.n && hole.p[k].off + hole.p[k].size == hole.p[k + 1].off) {
				hole.p[k].size += hole.p[k + 1].size;
				memmove(&hole.p[k + 1], &hole.p[k + 2], (hole.n - k - 2) * sizeof *hole.p);
				hole.n--;
			}
			if (k && hole.p[k - 1].off + hole.p[k - 1].size == hole.p[k].off) {
				hole.p[k - 1].size += hole.p[k].size;
				memmove(&hole.p[k], &hole.p[k + 1], (hole.n - k - 1) * sizeof *hole.p);
				hole.n--;
			}
		}
		size_t best = SIZE_MAX;
		for (size_t k = 0; k < hole.n; k++)
			if (hole.p[k].size >= it[i].size && (best == SIZE_MAX || hole.p[k].size < hole.p[best].size))
				best = k;
		if (best == SIZE_MAX) {
			if (hole.n && hole.p[hole.n - 1].off + hole.p[hole.n - 1].size == top) {
				it[i].off = hole.p[--hole.n].off;     /* grow the last hole */
			} else {
				it[i].off = top;
			}
			top = it[i].off + it[i].size;
		} else {
			it[i].off = hole.p[best].off;
			hole.p[best].off += it[i].size;
			hole.p[best].size -= it[i].size;
			if (!hole.p[best].size) {
				memmove(&hole.p[best], &hole.p[best + 1], (hole.n - best - 1) * sizeof *hole.p);
				hole.n--;
			}
		}
		arr_push(&live, &it[i]);
	}
	arr_free(&hole);
	arr_free(&live);
	return top;
}

void lw_memory_plan(struct lw *w)
{
	struct item *it = ARENA_NEW(w->tmp, struct item, w->store.n), *out = ARENA_NEW(w->tmp, struct item, w->store.n);
	size_t n = 0, nout = 0, nfar = 0;
	for (size_t i = 0; i < w->store.n; i++)
		nfar += w->store.p[i].far;
	struct item *far = ARENA_NEW(w->tmp, struct item, nfar);
	nfar = 0;
	for (size_t i = 0; i < w->store.n; i++) {
		struct store *s = &w->store.p[i];
		struct prog_buf *b = &w->buf.p[s->buf];
		struct item x = { (MAX(b->size, 1) + ALIGN - 1) & ~(int64_t)(ALIGN - 1), 0, &s->life, b, -1, s->under ? (int)w->store.p[s->under].buf : -1 };
		if (s->far)
			far[nfar++] = x;
		else if ((b->kind == BUF_TEMP || b->kind == BUF_LENT) && !s->twin)
			it[n++] = x;
		const char *memory = b->kind == BUF_OUT ? w->p->res[b->index].memory_kind : NULL;
		if (b->kind == BUF_OUT && b->alias < 0 && s->begun && !(b->bits & BUF_PEER) && (!memory || !strcmp(memory, "device")))
			out[nout++] = (struct item){ b->size, 0, &s->life, b, (int)s->buf, -1 };
	}
	bool lanes = false;
	for (int l = 1; l < PROG_LANES; l++)
		lanes |= w->now[l][l] > 0;
	w->p->zone = n > MANY && !lanes ? plan_by_time(it, n) : plan_by_size(it, n, out, nout, w->tmp);
	w->p->far = plan_by_size(far, nfar, NULL, 0, w->tmp);
	for (size_t i = 0; i < n; i++) {
		it[i].b->off = it[i].off;
		it[i].b->alias = it[i].in;
	}
	for (size_t i = 0; i < nfar; i++)
		far[i].b->off = w->p->zone + far[i].off;
}
