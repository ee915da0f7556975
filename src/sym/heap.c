/* The heap of one PE.
 *
 * Two-level segregated fit (Masmano et al., "TLSF", 2004): free blocks hang in lists by size class, eight
 * classes per power of two, with bit maps to find the next list that is not empty.  Unlike the original the
 * headers lie outside the heap: the heap may be memory that the host cannot touch, and a program that writes
 * past a buffer must not damage the allocator.
 *
 * Pages stay with the process once touched (first touch of 256 MB costs 0.2 to 0.5 s); only when all heaps
 * together would hold more pages than the limit are the free ones given back. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "impl.h"

#define HUGE_MASK ((size_t)((2 << 20) - 1))
enum { UNIT = 64, GUARD = 64, GUARD_BYTE = 0xa5, PUNCH = 1 << 16, ONE = 3 /* descriptors at most for a block that is cut from a new one */ };

struct block {
	struct sym_block pub;          /* first: handed out */
	size_t at, size;               /* the whole block; multiples of UNIT */
	struct sym_heap *heap;
	struct block *prev, *next;     /* by address */
	struct block *fprev, *fnext;   /* in the free list */
	const char *what;
	int index;
	bool free, paged;              /* paged: may hold pages, counted in world->paged */
};

static _Atomic int64_t broken;

static void class_of(size_t size, int *fl, int *sl)
{
	size_t u = size / UNIT;

	if (u < SYM_SL) {
		*fl = 0;
		*sl = (int)u;
		return;
	}
	int top = 63 - __builtin_clzll(u);
	*fl = top - SYM_SLB + 1;
	*sl = (int)(u >> (top - SYM_SLB)) & (SYM_SL - 1);
}

static void list_add(struct sym_heap *h, struct block *b)
{
	int fl, sl;

	class_of(b->size, &fl, &sl);
	b->free = true;
	b->fprev = NULL;
	b->fnext = h->list[fl][sl];
	if (b->fnext)
		b->fnext->fprev = b;
	h->list[fl][sl] = b;
	h->flmap |= 1ull << fl;
	h->slmap[fl] |= (uint8_t)(1u << sl);
}

static void list_del(struct sym_heap *h, struct block *b)
{
	int fl, sl;

	class_of(b->size, &fl, &sl);
	b->free = false;
	if (b->fprev)
		b->fprev->fnext = b->fnext;
	else
		h->list[fl][sl] = b->fnext;
	if (b->fnext)
		b->fnext->fprev = b->fprev;
	if (!h->list[fl][sl]) {
		h->slmap[fl] &= (uint8_t)~(1u << sl);
		if (!h->slmap[fl])
			h->flmap &= ~(1ull << fl);
	}
}

static void node_del(struct sym_heap *h, struct block *b)
{
	b->next = h->spare;
	h->spare = b;
	h->nspare++;
}

/* There are n spare ones.  Under the lock. */
static bool nodes_ready(struct sym_heap *h, size_t n)
{
	while (h->nspare < n) {
		struct block *b = malloc(sizeof *b);
		if (!b)
			return false;
		node_del(h, b);
	}
	return true;
}

struct err *sym_expects(struct sym_heap *h, size_t n)
{
	pthread_mutex_lock(&h->lock);
	bool ready = nodes_ready(h, 2 * n + ONE);        /* between any two of them there may be a free one */
	pthread_mutex_unlock(&h->lock);
	return ready ? NULL : ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", sizeof(struct block));
}

static struct block *node_new(struct sym_heap *h)
{
	struct block *b = h->spare;

	h->spare = b->next;
	h->nspare--;
	b->heap = h;
	b->free = b->paged = false;
	return b;
}

/* A free block of at least size bytes, off its list, or NULL. */
static struct block *find(struct sym_heap *h, size_t size)
{
	int fl, sl, left = 16;

	class_of(size, &fl, &sl);
	for (struct block *b = h->list[fl][sl]; b && left--; b = b->fnext)
		if (b->size >= size) {
			list_del(h, b);
			return b;
		}
	/* Any block of a higher class fits. */
	unsigned m = h->slmap[fl] & ~((2u << sl) - 1);
	if (!m) {
		uint64_t f = h->flmap & ~((2ull << fl) - 1);
		if (!f)
			return NULL;
		fl = __builtin_ctzll(f);
		m = h->slmap[fl];
	}
	struct block *b = h->list[fl][__builtin_ctz(m)];
	list_del(h, b);
	return b;
}

/* Cut b after size bytes; the rest becomes a free block. */
static void split(struct sym_heap *h, struct block *b, size_t size)
{
	if (b->size - size < UNIT)
		return;
	struct block *r = node_new(h);
	r->at = b->at + size;
	r->size = b->size - size;
	r->paged = b->paged;
	r->prev = b;
	r->next = b->next;
	if (r->next)
		r->next->prev = r;
	else
		h->last = r;
	b->next = r;
	b->size = size;
	list_add(h, r);
}

/* Join b with the block after it. */
static void join(struct sym_heap *h, struct block *b)
{
	struct block *r = b->next;

	if (b->paged != r->paged) {
		atomic_fetch_add(&h->world->paged, (int64_t)(b->paged ? r->size : b->size));
		b->paged = true;
	}
	b->size += r->size;
	b->next = r->next;
	if (b->next)
		b->next->prev = b;
	else
		h->last = b;
	node_del(h, r);
}

static int give_back(struct sym_heap *h, size_t off, size_t n)
{
	const struct sym_region *r = &h->world->region;

	if (r->fd < 0)
		return madvise(h->base + off, n, MADV_DONTNEED);
	return fallocate(r->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)((size_t)h->i * r->each + off), (off_t)n);
}

/* Give the pages of free blocks back. */
static void punch(struct sym_heap *h)
{
	for (struct block *b = h->last; b; b = b->prev)
		if (b->free && b->paged && b->size >= PUNCH) {
			size_t lo = (b->at + 4095) & ~(size_t)4095, hi = (b->at + b->size) & ~(size_t)4095;
			if (hi > lo && !give_back(h, lo, hi - lo)) {
				atomic_fetch_sub(&h->world->paged, (int64_t)b->size);
				b->paged = false;
			}
		}
}

/* n bytes are about to be touched for the first time: keep the total below the limit. */
static void pages_more(struct sym_heap *h, int64_t n)
{
	struct sym_world *w = h->world;

	if (atomic_fetch_add(&w->paged, n) + n <= w->limit || !w->limit)
		return;
	punch(h);
	for (int i = 0; i < w->nlocal; i++) {
		struct sym_heap *o = &w->heap[i];
		if (o != h && !pthread_mutex_trylock(&o->lock)) {
			punch(o);
			pthread_mutex_unlock(&o->lock);
		}
	}
}

/* A new block at the end of the heap, or NULL if the region is full. */
static struct block *extend(struct sym_heap *h, size_t size)
{
	struct block *b = h->last;
	size_t have = b && b->free ? b->size : 0;

	if (size - have > h->reserve - h->top)
		return NULL;
	if (have) {
		list_del(h, b);
		if (b->paged)
			atomic_fetch_add(&h->world->paged, (int64_t)(size - have));
	} else {
		b = node_new(h);
		b->at = h->top;
		b->prev = h->last;
		b->next = NULL;
		if (h->last)
			h->last->next = b;
		h->last = b;
	}
	h->top += size - have;
	b->size = size;
	return b;
}

/* Blocks of one size and one origin are told once, with how many they are and on which devices. */
struct held { size_t bytes; int index, n, first, last, heaps; char what[160]; };
enum { HELD = 5, LITTLE = 1000 };      /* told at most; less than that part of the largest, or of what was asked for, is not */

static void held_by(struct sym_heap *h, struct held *top)
{
	int dev = h->world->first + h->i;

	pthread_mutex_lock(&h->lock);
	for (const struct block *b = h->last; b; b = b->prev) {
		const char *what = b->what ? b->what : "";
		int i = 0;
		if (b->free || !b->pub.bytes)
			continue;
		while (i < HELD && (top[i].bytes > b->pub.bytes || (top[i].bytes == b->pub.bytes &&
		       (top[i].index != b->index || strncmp(top[i].what, what, sizeof top->what - 1)))))
			i++;
		if (i == HELD)
			continue;
		if (top[i].bytes != b->pub.bytes) {
			memmove(top + i + 1, top + i, sizeof *top * (size_t)(HELD - 1 - i));
			top[i] = (struct held){ .bytes = b->pub.bytes, .index = b->index, .first = dev, .last = -1 };
			snprintf(top[i].what, sizeof top->what, "%s", what);       /* the text may go with its block */
		}
		top[i].n++;
		top[i].heaps += top[i].last != dev;
		top[i].last = dev;
	}
	pthread_mutex_unlock(&h->lock);
}

/* Of h; or, where it is their common room that is short for n bytes, of all heaps of its world. */
static void largest(struct sym_heap *h, bool all, size_t n, struct str *s)
{
	struct sym_world *w = h->world;
	struct held top[HELD] = { 0 };

	for (int i = 0; i < w->nlocal; i++)
		if (all || i == h->i)
			held_by(&w->heap[i], top);
	for (const struct held *t = top; t < top + HELD && t->n && t->bytes >= MAX(top->bytes, n) / LITTLE; t++) {
		str_add(s, t > top ? ", " : "; largest live buffers: ");
		if (t->n > 1)
			str_addf(s, "%d of ", t->n);
		str_bytes(s, t->bytes);
		if (*t->what)
			str_addf(s, " (%s", t->what);
		if (*t->what && t->index >= 0)
			str_addf(s, " %d", t->index);
		if (*t->what)
			str_add(s, ")");
		if (all && w->nlocal > 1 && t->heaps == 1)
			str_addf(s, " on device %d", t->first);
		else if (t->heaps > 1 && t->heaps == t->last - t->first + 1)
			str_addf(s, " on devices %d to %d", t->first, t->last);
		else if (t->heaps > 1)
			str_addf(s, " on %d devices", t->heaps);
	}
}

int64_t sym_room(struct sym_world *w)
{
	return w->limit ? w->limit - atomic_load_explicit(&w->in_use, memory_order_relaxed) : INT64_MAX;
}

struct err *sym_alloc(struct sym_heap *h, size_t n, const char *what, int index, struct sym_block **out) { return sym_take(h, n, h->world->limit, what, index, out); }

int64_t sym_allowed(const struct sym_world *w, bool said) { return said ? w->said : w->share; }
size_t sym_takes(const struct sym_world *w, size_t n) { return MAX((n + (w->guard ? 2 * GUARD : 0) + UNIT - 1) & ~(size_t)(UNIT - 1), UNIT); }

struct err *sym_take(struct sym_heap *h, size_t n, int64_t limit, const char *what, int index, struct sym_block **out)
{
	struct sym_world *w = h->world;
	size_t pad = w->guard ? 2 * GUARD : 0, size = n <= h->reserve ? sym_takes(w, n) : UNIT;
	struct block *b = NULL;

	*out = NULL;
	int64_t total = atomic_fetch_add_explicit(&w->in_use, (int64_t)size, memory_order_relaxed) + (int64_t)size;
	pthread_mutex_lock(&h->lock);
	if (!nodes_ready(h, ONE)) {
		atomic_fetch_sub(&w->in_use, (int64_t)size);
		pthread_mutex_unlock(&h->lock);
		return ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", sizeof *b);
	}
	if (n <= h->reserve && (!limit || total <= limit)) {
		b = find(h, size);
		if (!b)
			b = extend(h, size);
	}
	if (!b) {
		struct str s = { 0 };
		atomic_fetch_sub(&w->in_use, (int64_t)size);
		total -= (int64_t)size;
		limit = limit == w->limit ? w->memory : limit;       /* what is short is named: memory, or address space for it */
		bool space = !limit || MAX(n, size) <= (uint64_t)MAX(limit - total, 0);      /* there is memory, but no address space in one piece */
		int64_t room = space ? (int64_t)(h->reserve - h->top) : MAX(limit - total, 0);
		pthread_mutex_unlock(&h->lock);
		largest(h, !space, n, &s);
		bool near = llabs((int64_t)n - room) < 100000;       /* in MB they would be the same */
		struct str t = { 0 };
		str_addf(&t, "out of memory: device %d was asked for ", h->world->first + h->i);
		if (near)
			str_addf(&t, "%zu bytes", n);
		else
			str_bytes(&t, n);
		str_addf(&t, "%s%s, ", what ? " for " : "", what ? what : "");
		if (near)
			str_addf(&t, "%lld bytes", (long long)room);
		else
			str_bytes(&t, (uint64_t)room);
		str_add(&t, " of ");
		str_bytes(&t, space ? h->reserve : (uint64_t)limit);
		str_addf(&t, "%s are free%s%s; %s", space ? " of the address space of its heap" : "", space && w->narrow ? ", for which the process has little (ulimit -v)" : "",
		         s.p ? s.p : "", !space ? "what is deleted or donated makes room, and RONDO_MEMORY says how much there is" : n > h->reserve ? "the heap is too small for this" : "what is deleted or donated makes room");
		struct err *e = ERR(EXHAUSTED, "%s", t.p);
		str_free(&t);
		str_free(&s);
		return e;
	}
	split(h, b, size);
	pages_more(h, b->paged ? 0 : (int64_t)b->size);      /* one that has grown, or was joined, may be more than the limit has room for */
	b->paged = true;
	b->pub.off = b->at + pad / 2;
	b->pub.bytes = n;
	b->what = what;
	b->index = index;
	h->in_use += (int64_t)b->size;
	h->peak = MAX(h->peak, h->in_use);
	h->allocs++;
	h->largest = MAX(h->largest, (int64_t)n);
	pthread_mutex_unlock(&h->lock);
	if (pad) {
		memset(h->base + b->at, GUARD_BYTE, GUARD);
		memset(h->base + b->pub.off + n, GUARD_BYTE, b->at + b->size - b->pub.off - n);
	}
	*out = &b->pub;
	return NULL;
}

static void guard_check(struct sym_heap *h, struct block *b)
{
	const unsigned char *p = (const unsigned char *)h->base;
	size_t end = b->pub.off + b->pub.bytes;

	for (size_t i = b->at; i < b->at + b->size; i++) {
		if (i == b->pub.off)
			i = end;
		if (i < b->at + b->size && p[i] != GUARD_BYTE) {
			atomic_fetch_add(&broken, 1);
			log_line(LOG_WARN, "device %d: a buffer of %zu bytes (%s) was written %zu bytes %s", h->world->first + h->i, b->pub.bytes,
			         b->what ? b->what : "unnamed", i < b->pub.off ? b->pub.off - i : i - end + 1,
			         i < b->pub.off ? "before its start" : "past its end");
			return;
		}
	}
}

void sym_free(struct sym_block *pub)
{
	struct block *b = (struct block *)pub;

	if (!b)
		return;
	struct sym_heap *h = b->heap;
	if (h->world->guard)
		guard_check(h, b);
	int64_t size = (int64_t)b->size;
	pthread_mutex_lock(&h->lock);
	h->in_use -= size;
	if (b->next && b->next->free) {
		list_del(h, b->next);
		join(h, b);
	}
	if (b->prev && b->prev->free) {
		b = b->prev;
		list_del(h, b);
		join(h, b);
	}
	list_add(h, b);
	pthread_mutex_unlock(&h->lock);
	atomic_fetch_sub_explicit(&h->world->in_use, size, memory_order_relaxed);
}

char *sym_base(const struct sym_heap *h) { return h->base; }
size_t sym_span(const struct sym_heap *h) { return h->reserve; }
int64_t sym_guard_broken(void) { return atomic_load(&broken); }

struct sym_stats sym_heap_stats(struct sym_heap *h)
{
	pthread_mutex_lock(&h->lock);
	struct sym_stats s = { h->in_use, h->peak, h->world->limit ? h->world->limit : (int64_t)h->reserve, h->allocs, h->largest, 0 };
	for (const struct block *b = h->last; b; b = b->prev)
		s.reserved += b->paged ? (int64_t)b->size : 0;
	s.reserved = MIN(s.reserved, s.limit);       /* of what was joined not all holds pages; of all heaps no more than the limit does (pages_more) */
	pthread_mutex_unlock(&h->lock);
	return s;
}

void sym_heap_clear_stats(struct sym_heap *h)
{
	pthread_mutex_lock(&h->lock);
	h->peak = h->in_use;
	h->allocs = h->largest = 0;
	punch(h);
	pthread_mutex_unlock(&h->lock);
}

/* Room for the heaps of n PEs that follow each other, want bytes each or as much as the process may have.  fd: -1,
 * or a file without a name that other processes can map as well. */
struct err *sym_region(int n, size_t want, size_t control, bool shared, struct sym_region *out)
{
	void *p = MAP_FAILED;
	struct rlimit lim = { RLIM_INFINITY, RLIM_INFINITY };
	size_t each = want & ~HUGE_MASK;
	int why = EFBIG;

	*out = (struct sym_region){ .fd = -1 };
	if (shared) {
		getrlimit(RLIMIT_FSIZE, &lim);
		if (lim.rlim_cur != RLIM_INFINITY)
			each = MIN(each, (size_t)(lim.rlim_cur / (rlim_t)n) & ~HUGE_MASK);
		out->fd = memfd_create("rondo", MFD_CLOEXEC);
		if (out->fd < 0)
			return ERR(EXHAUSTED, "cannot make memory to share: memfd_create: %s", strerror(errno));
	}
	for (; each >= control + SYM_HEAP_LEAST; each = each / 2 & ~HUGE_MASK) {
		if (shared && ftruncate(out->fd, (off_t)(each * (size_t)n))) {
			why = errno;
			continue;
		}
		p = mmap(NULL, each * (size_t)n, PROT_READ | PROT_WRITE, (shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS) | MAP_NORESERVE, out->fd, 0);
		if (p != MAP_FAILED)
			break;
		why = errno;
	}
	if (p == MAP_FAILED) {
		struct err *e = ERR(EXHAUSTED, "cannot reserve address space for %d device%s: %s%s", n, n > 1 ? "s" : "", strerror(why),
		                    lim.rlim_cur != RLIM_INFINITY ? "; memory to share counts against the limit on sizes of files (ulimit -f), which has to be raised" : "");
		if (out->fd >= 0)
			close(out->fd);
		out->fd = -1;
		return e;
	}
	madvise(p, each * (size_t)n, MADV_HUGEPAGE);
	madvise(p, each * (size_t)n, MADV_DONTDUMP);
	out->base = p;
	out->each = each;
	out->n = n;
	return NULL;
}

void sym_region_free(struct sym_region *r)
{
	if (r->base)
		munmap(r->base, r->each * (size_t)r->n);
	if (r->fd >= 0)
		close(r->fd);
	*r = (struct sym_region){ .fd = -1 };
}

void sym_heap_init(struct sym_heap *h, struct sym_world *w, int i, size_t control)
{
	h->world = w;
	h->i = i;
	h->base = w->region.base + (size_t)i * w->region.each;
	h->reserve = w->region.each;
	h->top = control;
	pthread_mutex_init(&h->lock, NULL);
}

void sym_heap_fini(struct sym_heap *h)
{
	if (!h->base)
		return;
	for (struct block *b = h->last, *p; b; b = p) {
		p = b->prev;
		free(b);
	}
	for (struct block *b = h->spare, *p; b; b = p) {
		p = b->next;
		free(b);
	}
	pthread_mutex_destroy(&h->lock);
	h->base = NULL;
}
