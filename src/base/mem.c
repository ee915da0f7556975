/* Memory of the host, and what happens when there is none.
 *
 * Lua's way: who cannot go on jumps to the guard that was put up last on this thread, which gives back what has been taken since
 * and makes an error of it.  So compile-time code need not look at every allocation.  The guard keeps a set of addresses
 * instead of headers before the blocks: memory of ours and of the C library are freed alike. */
#include "mem.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#undef malloc
#undef calloc
#undef realloc
#undef aligned_alloc
#undef posix_memalign
#undef free

typedef bool refuse_fn(size_t n);
static _Thread_local struct mem_guard *own_top;
static _Atomic(refuse_fn *) own_refuse;

static struct mem_guard **own(void) { return &own_top; }
static struct mem_home { struct mem_guard **(*top)(void); _Atomic(refuse_fn *) *refuse; } home = { own, &own_refuse };

struct mem_guard **mem_top(void) { return home.top(); }
const struct mem_home *mem_home(void) { return &home; }
void mem_join(const struct mem_home *h) { home = *h; }
void mem_refuse(bool (*fn)(size_t n)) { atomic_store(home.refuse, fn); }
bool mem_refuses(void) { return atomic_load_explicit(home.refuse, memory_order_relaxed) != NULL; }

/* --- the set of a guard ------------------------------------------------------------ */

static size_t place(const void *p, size_t cap)
{
	return (size_t)(((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15u >> 20) & (cap - 1);
}

static void add(void **held, size_t cap, void *p)
{
	size_t i = place(p, cap);

	while (held[i])
		i = (i + 1) & (cap - 1);
	held[i] = p;
}

/* False: no memory for it. */
static bool hold(struct mem_guard *g, void *p)
{
	if (!g->held) {
		g->held = g->few;
		g->cap = MEM_FEW;
		memset(g->few, 0, sizeof g->few);
	}
	if (2 * (g->n + 1) > g->cap) {
		void **more = calloc(2 * g->cap, sizeof *more);
		if (!more)
			return false;
		for (size_t i = 0; i < g->cap; i++)
			if (g->held[i])
				add(more, 2 * g->cap, g->held[i]);
		if (g->held != g->few)
			free(g->held);
		g->held = more;
		g->cap *= 2;
	}
	add(g->held, g->cap, p);
	g->n++;
	return true;
}

static bool forget(struct mem_guard *g, const void *p)
{
	if (!g->n)
		return false;
	size_t mask = g->cap - 1, i = place(p, g->cap), k;
	while (g->held[i] && g->held[i] != p)
		i = (i + 1) & mask;
	if (!g->held[i])
		return false;
	g->n--;
	for (k = i;;) {               /* those behind it that would not be found any more move up */
		g->held[i] = NULL;
		for (;;) {
			k = (k + 1) & mask;
			if (!g->held[k])
				return true;
			size_t home_of = place(g->held[k], g->cap);
			if (i <= k ? home_of <= i || home_of > k : home_of <= i && home_of > k)
				break;
		}
		g->held[i] = g->held[k];
		i = k;
	}
}

static struct mem_guard *holder(const void *p)
{
	struct mem_guard *g = *mem_top();

	while (g && !forget(g, p))
		g = g->outer;
	return g;
}

void mem_let_go(struct mem_guard *g)
{
	if (g->held != g->few)
		free(g->held);
	g->held = NULL;
	g->n = g->cap = 0;
}

/* --- guards ------------------------------------------------------------------------- */

static _Noreturn void out_of_memory(size_t n)
{
	struct mem_guard **top = mem_top(), *g = *top;

	if (!g) {
		fprintf(stderr, "rondo: out of host memory where nothing can be given up: asked for %zu bytes\n", n);
		abort();
	}
	g->asked = n;
	while (g->undo) {
		struct mem_undo *u = g->undo;
		g->undo = u->next;
		u->fn(u->arg);
	}
	for (size_t i = 0; i < g->cap; i++)
		free(g->held[i]);
	mem_let_go(g);
	*top = g->outer;
	longjmp(g->at, 1);
}

void mem_undo(struct mem_undo *u, void (*fn)(void *), void *arg)
{
	struct mem_guard *g = *mem_top();

	*u = (struct mem_undo){ g ? g->undo : NULL, fn, arg };
	if (g)
		g->undo = u;
}

void mem_done(struct mem_undo *u)
{
	struct mem_guard *g = *mem_top();

	if (g && g->undo == u)
		g->undo = u->next;
}

static void unlock(void *mutex) { pthread_mutex_unlock(mutex); }

void mem_lock(struct mem_undo *u, void *mutex)
{
	pthread_mutex_lock(mutex);
	mem_undo(u, unlock, mutex);
}

void mem_unlock(struct mem_undo *u)
{
	mem_done(u);
	u->fn(u->arg);
}

bool mem_persist(bool on)
{
	struct mem_guard *g = *mem_top();
	bool was = g && g->persist;

	if (g)
		g->persist = on;
	return was;
}

void mem_keep(const void *p)
{
	holder(p);
}

static locale_t plain;
static void plain_make(void) { plain = newlocale(LC_ALL_MASK, "C", 0); }

locale_t mem_plainly(locale_t back)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, plain_make);
	return uselocale(back ? back : plain);
}

void mem_once(struct mem_once *o, void (*fn)(void))
{
	static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
	struct mem_undo u;

	if (atomic_load_explicit(&o->done, memory_order_acquire))
		return;
	mem_lock(&u, &lock);
	if (!atomic_load(&o->done)) {
		bool was = mem_persist(true);
		locale_t spoken = mem_plainly(0);
		fn();
		mem_plainly(spoken);
		mem_persist(was);
		atomic_store(&o->done, true);
	}
	mem_unlock(&u);
}

/* --- memory -------------------------------------------------------------------------- */

static bool refused(size_t n)
{
	refuse_fn *fn = atomic_load_explicit(home.refuse, memory_order_relaxed);

	return n > PTRDIFF_MAX || (fn && fn(n));
}

/* p is new: held by the guard.  NULL if it cannot be. */
static void *held(void *p)
{
	struct mem_guard *g = *mem_top();

	if (p && g && g->frees && !g->persist && !hold(g, p)) {
		free(p);
		return NULL;
	}
	return p;
}

static void *need(void *p, size_t n)
{
	if (!p)
		out_of_memory(n);
	return p;
}

void *mem_alloc(size_t n)
{
	return need(refused(n) ? NULL : held(calloc(1, n ? n : 1)), n);
}

void *mem_new(size_t n)
{
	return need(refused(n) ? NULL : held(malloc(n ? n : 1)), n);
}

void *mem_lines(size_t n)
{
	return memset(mem_aligned(128, n), 0, n);              /* two lines: prefetchers take them in pairs */
}

void *mem_aligned(size_t align, size_t n)
{
	size_t whole = (MAX(n, 1) + align - 1) & ~(align - 1);

	return need(refused(n) ? NULL : held(aligned_alloc(align, whole)), n);
}

void *mem_grow(void *p, size_t n)
{
	if (!p)
		return mem_new(n);
	if (refused(n))
		out_of_memory(n);
	struct mem_guard *g = holder(p);
	void *q = realloc(p, n ? n : 1);
	if (g && !hold(g, q ? q : p) && q) {
		free(q);
		out_of_memory(n);
	}
	return need(q, n);
}

void *mem_try(size_t n)
{
	return refused(n) ? NULL : held(malloc(n ? n : 1));
}

void mem_free(void *p)
{
	if (p && *mem_top())
		holder(p);
	free(p);
}

/* The C library's, for whoever looks at what they give; banned.h puts them in the place of their names. */
void *mem_malloc(size_t n) { return refused(n) ? NULL : malloc(n); }
void *mem_calloc(size_t k, size_t n) { return refused(n && k > SIZE_MAX / n ? SIZE_MAX : k * n) ? NULL : calloc(k, n); }
void *mem_aligned_alloc(size_t align, size_t n) { return refused(n) ? NULL : aligned_alloc(align, n); }
int mem_posix_memalign(void **p, size_t align, size_t n) { return refused(n) ? ENOMEM : posix_memalign(p, align, n); }

void *mem_realloc(void *p, size_t n)
{
	return refused(n) ? NULL : realloc(p, n);
}
