/* One-sided operations of a PE, on symmetric memory, and waits for words in its own.
 *
 * Where the target's heap is mapped, a put is a copy and an atomic is C's; all else is the transport's business.  So that no
 * fence stands on the common path, whatever others may wait for (signals, atomics, elements) is stored with release, and
 * looked at with acquire. */
#include <stdlib.h>

#include "impl.h"

struct sym_ctx {
	struct sym_world *w;
	int pe;
	enum sym_ctx_kind kind;
	const void *owner;                /* of a private one: an address that only its thread has */
	pthread_mutex_t lock;             /* of: */
	struct err *err;
	_Atomic bool failed;
	_Atomic uint32_t left;            /* nonblocking transfers that the transport has not done yet */
	_Atomic uint8_t *sent;            /* npe: TO_FENCE, TO_QUIET: was something sent there since the last one? */
	_Atomic uint64_t turn;            /* where the next wait for any looks first */
};

enum { TO_FENCE = 1, TO_QUIET = 2 };

static _Thread_local char self;           /* whose address is the thread's */

static void stick(struct sym_ctx *c, struct err *e)
{
	pthread_mutex_lock(&c->lock);
	if (!c->err)
		c->err = e;
	else
		err_free(e);
	atomic_store_explicit(&c->failed, true, memory_order_relaxed);
	pthread_mutex_unlock(&c->lock);
}

struct err *sym_ctx_new(struct sym_world *w, int pe, enum sym_ctx_kind kind, struct sym_ctx **out)
{
	*out = NULL;
	if (!sym_local(w, pe))
		return ERR(INVALID, "PE %d is not of this process", pe);
	if (kind < SYM_SHARED || kind > SYM_PRIVATE)
		return ERR(INVALID, "no kind of context is %d", (int)kind);
	struct sym_ctx *c = mem_alloc(sizeof *c);
	c->w = w;
	c->pe = pe;
	c->kind = kind;
	c->owner = &self;
	c->sent = mem_alloc((size_t)w->npe * sizeof *c->sent);
	pthread_mutex_init(&c->lock, NULL);
	*out = c;
	return NULL;
}

void sym_ctx_free(struct sym_ctx *c)
{
	if (!c)
		return;
	struct err *e = sym_ctx_quiet(c);
	if (e && e->code != ERR_CANCELLED)
		log_line(LOG_WARN, "PE %d: %s", c->pe, e->msg);
	err_free(e);
	pthread_mutex_destroy(&c->lock);
	free(c->sent);
	free(c);
}

/* --- targets ---------------------------------------------------------------------------- */

/* Where an operation goes: pe, and its address here (NULL: through the transport, at off). */
struct target { int pe; char *at; size_t off; };

/* Why not? */
static struct err *refuse(struct sym_ctx *c, const struct sym_mem *m, size_t off, size_t n, size_t align, int rank, const char *op)
{
	if (c->kind == SYM_PRIVATE && c->owner != &self)
		return ERR(PRECONDITION, "%s: a private context of PE %d is used by another thread", op, c->pe);
	if (!m)
		return ERR(INVALID, "%s: no memory", op);
	if (m->team->pe != c->pe)
		return ERR(INVALID, "%s: a context of PE %d with a memory handle of PE %d", op, c->pe, m->team->pe);
	if (rank < 0 || rank >= m->team->n)
		return ERR(OUT_OF_RANGE, "%s: rank %d in a team of %d", op, rank, m->team->n);
	if (off > m->bytes || n > m->bytes - off)
		return ERR(OUT_OF_RANGE, "%s: %zu bytes at %zu of a symmetric block of %zu bytes", op, n, off, m->bytes);
	return ERR(INVALID, "%s: offset %zu is not a multiple of %zu", op, off, align);
}

static bool aim(struct sym_ctx *c, struct sym_mem *m, size_t off, size_t n, size_t align, int rank, const char *op, struct target *t)
{
	if (__builtin_expect(!m || (unsigned)rank >= (unsigned)m->team->n || off > m->bytes || n > m->bytes - off || off & (align - 1) ||
	                     m->team->pe != c->pe || (c->kind == SYM_PRIVATE && c->owner != &self), 0)) {
		stick(c, refuse(c, m, off, n, align, rank, op));
		return false;
	}
	t->pe = m->team->pe_of[rank];
	t->at = m->at[rank] ? m->at[rank] + off : NULL;
	atomic_store_explicit(&c->sent[t->pe], TO_FENCE | TO_QUIET, memory_order_relaxed);
	t->off = m->off[rank] + off;
	return true;
}

/* After the transport was to do something: was that waited for? */
static bool waited(struct sym_ctx *c, const char *op)
{
	if (__builtin_expect(!sym_halt.gave_up, 1))
		return true;
	if (sym_halt.gave_up == ERR_DEADLINE)
		stick(c, ERR(DEADLINE, "%s: PE %d has waited more than %.0f s for the network", op, c->pe, c->w->patience));
	else
		stick(c, ERR(CANCELLED, "%s: PE %d was cancelled", op, c->pe));
	sym_halt.gave_up = 0;
	return false;
}

/* After the transport was asked for data: did it come? */
static bool came(struct sym_ctx *c, int pe, const char *op)
{
	struct sym_world *w = c->w;
	int proc = w->peer[pe].proc;

	if (!waited(c, op))
		return false;
	if (__builtin_expect(atomic_load_explicit(&w->gone, memory_order_acquire) <= 0, 1) || atomic_load(&w->process[proc].life) == SYM_HERE)
		return true;
	stick(c, ERR(UNAVAILABLE, "%s: process %d (pid %d) of PE %d has died or left", op, proc, w->process[proc].pid, pe));
	return false;
}

static inline void store(char *at, uint64_t v, int bytes)
{
	switch (bytes) {
	case 1: atomic_store_explicit((_Atomic uint8_t *)at, (uint8_t)v, memory_order_release); break;
	case 2: atomic_store_explicit((_Atomic uint16_t *)at, (uint16_t)v, memory_order_release); break;
	case 4: atomic_store_explicit((_Atomic uint32_t *)at, (uint32_t)v, memory_order_release); break;
	case 8: atomic_store_explicit((_Atomic uint64_t *)at, v, memory_order_release); break;
	}
}

static inline uint64_t load(const char *at, int bytes)
{
	switch (bytes) {
	case 1: return atomic_load_explicit((_Atomic uint8_t *)at, memory_order_acquire);
	case 2: return atomic_load_explicit((_Atomic uint16_t *)at, memory_order_acquire);
	case 4: return atomic_load_explicit((_Atomic uint32_t *)at, memory_order_acquire);
	default: return atomic_load_explicit((_Atomic uint64_t *)at, memory_order_acquire);
	}
}

static inline bool is_word(const char *at, size_t n) { return (n == 8 || n == 4 || n == 2 || n == 1) && !((uintptr_t)at & (n - 1)); }

/* A copy; of what may be a word that another waits for, in one store. */
static inline void copy_to(char *at, const void *src, size_t n)
{
	if (is_word(at, n)) {
		uint64_t v = 0;
		memcpy(&v, src, n);       /* the order of bytes is little-endian on all machines that this runs on */
		store(at, v, (int)n);
	} else if (n)
		copy_shared(COPY_MESSAGE, at, src, n);
}

static inline void copy_from(void *dst, const char *at, size_t n)
{
	if (is_word(at, n)) {
		uint64_t v = load(at, (int)n);
		memcpy(dst, &v, n);
	} else if (n)
		memmove(dst, at, n);
}

/* Does the transport carry it as a word, so that it is never seen in part? */
static inline bool far_word(const struct target *t, size_t n) { return (n == 8 || n == 4) && !(t->off & (n - 1)); }

/* --- data ------------------------------------------------------------------------------------ */

/* n bytes at p, of the caller's. */
static inline bool given(struct sym_ctx *c, const void *p, size_t n, const char *op)
{
	if (__builtin_expect(p || !n, 1))
		return true;
	stick(c, ERR(INVALID, "%s: %zu bytes at NULL", op, n));
	return false;
}

static void put_to(struct sym_ctx *c, const struct target *t, const void *src, size_t n, bool nbi, bool wake)
{
	const struct sym_transport *tr = c->w->tr;

	if (t->at) {
		copy_to(t->at, src, n);
		if (wake)
			sym_notify(c->w, t->pe);
	} else if (far_word(t, n)) {
		/* Whole, and seen by who sleeps. */
		uint64_t v = 0;
		memcpy(&v, src, n);
		if (n == 8)
			tr->line(c->w, c->pe, t->pe, t->off, &v, 1);
		else
			tr->amo(c->w, c->pe, t->pe, SYM_SET, 4, t->off, v, 0, NULL);
	} else if (!nbi) {
		tr->put(c->w, c->pe, t->pe, t->off, src, n);
		waited(c, "put");
	} else if (n) {
		atomic_fetch_add_explicit(&c->left, 1, memory_order_relaxed);
		tr->put_nb(c->w, c->pe, t->pe, t->off, src, n, &c->left);
	}
}

static void put(struct sym_ctx *c, struct sym_mem *m, size_t off, const void *src, size_t n, int rank, bool nbi, const char *op)
{
	struct target t;

	if (given(c, src, n, op) && aim(c, m, off, n, 1, rank, op, &t))
		put_to(c, &t, src, n, nbi, true);
}

void sym_ctx_put(struct sym_ctx *c, struct sym_mem *m, size_t off, const void *src, size_t n, int rank) { put(c, m, off, src, n, rank, false, "put"); }
void sym_ctx_put_nbi(struct sym_ctx *c, struct sym_mem *m, size_t off, const void *src, size_t n, int rank) { put(c, m, off, src, n, rank, true, "put_nbi"); }

static void get_from(struct sym_ctx *c, void *dst, const struct target *t, size_t n, const char *op)
{
	if (t->at)
		copy_from(dst, t->at, n);
	else if (far_word(t, n)) {
		uint64_t v = 0;
		c->w->tr->amo(c->w, c->pe, t->pe, SYM_FETCH, (int)n, t->off, 0, 0, &v);
		v = came(c, t->pe, op) ? v : 0;
		memcpy(dst, &v, n);
	} else if (n) {
		c->w->tr->get(c->w, c->pe, t->pe, dst, t->off, n);
		if (!came(c, t->pe, op))
			memset(dst, 0, n);
	}
}

/* What is not read is zeros; of a length that cannot be meant nothing is known. */
static void blank(void *dst, size_t n, const struct sym_mem *m)
{
	if (dst && m && n <= m->bytes)
		memset(dst, 0, n);
}

void sym_ctx_get(struct sym_ctx *c, void *dst, struct sym_mem *m, size_t off, size_t n, int rank)
{
	struct target t;

	if (given(c, dst, n, "get") && aim(c, m, off, n, 1, rank, "get", &t))
		get_from(c, dst, &t, n, "get");
	else
		blank(dst, n, m);
}

void sym_ctx_get_nbi(struct sym_ctx *c, void *dst, struct sym_mem *m, size_t off, size_t n, int rank)
{
	struct target t;

	if (!given(c, dst, n, "get_nbi") || !aim(c, m, off, n, 1, rank, "get_nbi", &t))
		blank(dst, n, m);
	else if (t.at || far_word(&t, n))
		get_from(c, dst, &t, n, "get_nbi");
	else if (n) {
		atomic_fetch_add_explicit(&c->left, 1, memory_order_relaxed);
		c->w->tr->get_nb(c->w, c->pe, t.pe, dst, t.off, n, &c->left);
		came(c, t.pe, "get_nbi");
	}
}

/* Bytes from the first of n elements to the last; false if they are more than any object has. */
static bool steps(ptrdiff_t step, size_t bytes, size_t n, size_t *reach)
{
	size_t one = step < 0 ? -(size_t)step : (size_t)step;

	return !__builtin_mul_overflow(one, bytes, reach) && !__builtin_mul_overflow(*reach, n - 1, reach) && *reach <= PTRDIFF_MAX - MIN(bytes, PTRDIFF_MAX);
}

/* The whole remote range of n elements, step apart (of p here, own apart), aimed at once; t: the first. */
static bool aim_steps(struct sym_ctx *c, struct sym_mem *m, size_t off, ptrdiff_t step, const void *p, ptrdiff_t own, size_t bytes, size_t n, int rank, const char *op, struct target *t)
{
	size_t reach, here;

	if (!n || !bytes)
		return aim(c, m, off, 0, 1, rank, op, t) && false;
	if (!given(c, p, bytes, op))
		return false;
	if (!steps(own, bytes, n, &here) || !steps(step, bytes, n, &reach) || (step < 0 && reach > off)) {
		stick(c, ERR(OUT_OF_RANGE, "%s: %zu elements of %zu bytes, %td apart from byte %zu of a symmetric block, %td apart here", op, n, bytes, step, off, own));
		return false;
	}
	size_t back = step < 0 ? reach : 0;
	if (!aim(c, m, off - back, reach + bytes, 1, rank, op, t))
		return false;
	t->off += back;
	t->at = t->at ? t->at + back : NULL;
	return true;
}

void sym_ctx_iput(struct sym_ctx *c, struct sym_mem *m, size_t off, ptrdiff_t rs, const void *src, ptrdiff_t ls, size_t bytes, size_t n, int rank)
{
	struct target t;

	if (!aim_steps(c, m, off, rs, src, ls, bytes, n, rank, "iput", &t))
		return;
	for (size_t i = 0; i < n; i++) {
		ptrdiff_t far = (ptrdiff_t)i * rs * (ptrdiff_t)bytes;
		struct target x = { t.pe, t.at ? t.at + far : NULL, t.off + (size_t)far };
		put_to(c, &x, (const char *)src + (ptrdiff_t)i * ls * (ptrdiff_t)bytes, bytes, false, i == n - 1);
	}
}

void sym_ctx_iget(struct sym_ctx *c, void *dst, ptrdiff_t ls, struct sym_mem *m, size_t off, ptrdiff_t rs, size_t bytes, size_t n, int rank)
{
	struct target t;
	size_t here;
	bool ok = aim_steps(c, m, off, rs, dst, ls, bytes, n, rank, "iget", &t);

	if (!ok && (!dst || !n || !bytes || !m || n > m->bytes / bytes || !steps(ls, bytes, n, &here)))
		return;
	for (size_t i = 0; i < n; i++) {
		char *to = (char *)dst + (ptrdiff_t)i * ls * (ptrdiff_t)bytes;
		ptrdiff_t far = (ptrdiff_t)i * rs * (ptrdiff_t)bytes;
		if (!ok)
			blank(to, bytes, m);
		else if (t.at)
			copy_from(to, t.at + far, bytes);
		else {
			atomic_fetch_add_explicit(&c->left, 1, memory_order_relaxed);
			c->w->tr->get_nb(c->w, c->pe, t.pe, to, t.off + (size_t)far, bytes, &c->left);
		}
	}
	if (ok && !t.at) {
		c->w->tr->quiet(c->w, c->pe);
		if (!came(c, t.pe, "iget"))
			c->w->tr->forget(c->w, &c->left);
	}
}

static bool element(struct sym_ctx *c, int bytes, const char *op)
{
	if (bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8)
		return true;
	stick(c, ERR(INVALID, "%s: an element of %d bytes", op, bytes));
	return false;
}

void sym_ctx_p(struct sym_ctx *c, struct sym_mem *m, size_t off, int bytes, uint64_t v, int rank)
{
	struct target t;

	if (element(c, bytes, "p") && aim(c, m, off, (size_t)bytes, 1, rank, "p", &t))
		put_to(c, &t, &v, (size_t)bytes, false, true);
}

uint64_t sym_ctx_g(struct sym_ctx *c, struct sym_mem *m, size_t off, int bytes, int rank)
{
	struct target t;
	uint64_t v = 0;

	if (element(c, bytes, "g") && aim(c, m, off, (size_t)bytes, 1, rank, "g", &t))
		get_from(c, &v, &t, (size_t)bytes, "g");
	return v;
}

/* --- atomics ------------------------------------------------------------------------------------ */

static bool word(struct sym_ctx *c, int bytes, enum sym_amo op, const char *what)
{
	if ((bytes == 4 || bytes == 8) && op >= SYM_FETCH && op <= SYM_CAS)
		return true;
	stick(c, ERR(INVALID, "%s: operation %d on a word of %d bytes", what, (int)op, bytes));
	return false;
}

uint64_t sym_ctx_amo(struct sym_ctx *c, struct sym_mem *m, size_t off, int bytes, enum sym_amo op, uint64_t v, uint64_t cond, int rank)
{
	struct target t;
	uint64_t old = 0;

	if (!word(c, bytes, op, "amo") || !aim(c, m, off, (size_t)bytes, (size_t)bytes, rank, "amo", &t))
		return 0;
	if (t.at) {
		old = sym_amo_at(t.at, bytes, op, v, cond);
		if (op != SYM_FETCH)
			sym_notify(c->w, t.pe);
		return old;
	}
	c->w->tr->amo(c->w, c->pe, t.pe, op, bytes, t.off, v, cond, &old);
	return came(c, t.pe, "amo") ? old : 0;
}

void sym_ctx_amo_nbi(struct sym_ctx *c, struct sym_mem *m, size_t off, int bytes, enum sym_amo op, uint64_t v, uint64_t cond, int rank, uint64_t *old)
{
	if (given(c, old, sizeof *old, "amo_nbi"))
		*old = sym_ctx_amo(c, m, off, bytes, op, v, cond, rank);
}

static void post(struct sym_ctx *c, const struct target *t, int bytes, enum sym_amo op, uint64_t v)
{
	if (!t->at) {
		if (op == SYM_SET && bytes == 8)
			c->w->tr->line(c->w, c->pe, t->pe, t->off, &v, 1);
		else
			c->w->tr->amo(c->w, c->pe, t->pe, op, bytes, t->off, v, 0, NULL);
		return;
	}
	if (op == SYM_SET)
		store(t->at, v, bytes);
	else
		sym_amo_at(t->at, bytes, op, v, 0);
	sym_notify(c->w, t->pe);
}

void sym_ctx_amo_post(struct sym_ctx *c, struct sym_mem *m, size_t off, int bytes, enum sym_amo op, uint64_t v, int rank)
{
	struct target t;

	if (op == SYM_FETCH || op == SYM_CAS)
		stick(c, ERR(INVALID, "amo_post: operation %d without its result", (int)op));
	else if (word(c, bytes, op, "amo_post") && aim(c, m, off, (size_t)bytes, (size_t)bytes, rank, "amo_post", &t))
		post(c, &t, bytes, op, v);
}

/* --- signals --------------------------------------------------------------------------------------- */

static bool signal_op(struct sym_ctx *c, enum sym_amo op, const char *what)
{
	if (op == SYM_SET || op == SYM_ADD)
		return true;
	stick(c, ERR(INVALID, "%s: signals are set or added to, not operation %d", what, (int)op));
	return false;
}

static void put_signal(struct sym_ctx *c, struct sym_mem *m, size_t off, const void *src, size_t n,
                       struct sym_mem *sig, size_t sigoff, enum sym_amo op, uint64_t v, int rank, bool nbi)
{
	struct target t, s;

	if (!signal_op(c, op, "put_signal") || !given(c, src, n, "put_signal") || !aim(c, m, off, n, 1, rank, "put_signal", &t))
		return;
	/* The two may be of different teams: the rank is the data's. */
	if (!aim(c, sig, sigoff, 8, 8, sig ? sym_team_rank(sig->team, t.pe) : -1, "put_signal's signal", &s))
		return;
	if (!t.at && !s.at && n && !nbi && op == SYM_SET) {
		c->w->tr->put_line(c->w, c->pe, t.pe, t.off, src, n, s.off, &v, 1);
		waited(c, "put_signal");
		return;
	}
	put_to(c, &t, src, n, nbi, false);
	post(c, &s, 8, op, v);
}

void sym_ctx_put_signal(struct sym_ctx *c, struct sym_mem *m, size_t off, const void *src, size_t n,
                        struct sym_mem *sig, size_t sigoff, enum sym_amo op, uint64_t v, int rank)
{
	put_signal(c, m, off, src, n, sig, sigoff, op, v, rank, false);
}

void sym_ctx_put_signal_nbi(struct sym_ctx *c, struct sym_mem *m, size_t off, const void *src, size_t n,
                            struct sym_mem *sig, size_t sigoff, enum sym_amo op, uint64_t v, int rank)
{
	put_signal(c, m, off, src, n, sig, sigoff, op, v, rank, true);
}

void sym_ctx_signal(struct sym_ctx *c, struct sym_mem *sig, size_t off, enum sym_amo op, uint64_t v, int rank)
{
	struct target t;

	if (signal_op(c, op, "signal") && aim(c, sig, off, 8, 8, rank, "signal", &t))
		post(c, &t, 8, op, v);
}

uint64_t sym_signal_fetch(const struct sym_mem *sig, size_t off)
{
	return !sig || off & 7 || off > sig->bytes || sig->bytes - off < 8 ? 0 : load((char *)sym_mem_at(sig) + off, 8);
}

/* --- order ------------------------------------------------------------------------------------------- */

void sym_ctx_fence(struct sym_ctx *c)
{
	struct sym_world *w = c->w;

	/* Before words that are stored with release, nothing would be needed; a put of many bytes may hold one as well. */
	sym_full_fence();
	for (int pe = 0; pe < w->npe && w->tr; pe++)
		if (!w->peer[pe].mapped && atomic_load_explicit(&c->sent[pe], memory_order_relaxed) & TO_FENCE) {
			atomic_store_explicit(&c->sent[pe], TO_QUIET, memory_order_relaxed);
			w->tr->fence(w, c->pe, pe);
			waited(c, "fence");
		}
}

bool sym_ctx_failed(struct sym_ctx *c) { return atomic_load_explicit(&c->failed, memory_order_acquire); }

/* What was sent to a process that has died since is lost. */
static void lost(struct sym_ctx *c)
{
	struct sym_world *w = c->w;

	for (int pe = 0; pe < w->npe; pe++) {
		int proc = w->peer[pe].proc;
		if (!(atomic_load_explicit(&c->sent[pe], memory_order_relaxed) & TO_QUIET))
			continue;
		atomic_store_explicit(&c->sent[pe], 0, memory_order_relaxed);
		if (atomic_load(&w->process[proc].life) == SYM_DEAD)
			stick(c, ERR(UNAVAILABLE, "quiet: process %d (pid %d) of PE %d has died", proc, w->process[proc].pid, pe));
	}
}

struct err *sym_ctx_quiet(struct sym_ctx *c)
{
	sym_quiet_all(c->w, c->pe);
	if (!waited(c, "quiet"))
		c->w->tr->forget(c->w, &c->left);
	if (__builtin_expect(atomic_load_explicit(&c->w->gone, memory_order_acquire) > 0, 0))
		lost(c);
	if (!atomic_load_explicit(&c->failed, memory_order_acquire))
		return NULL;
	pthread_mutex_lock(&c->lock);
	struct err *e = c->err;
	c->err = NULL;
	atomic_store_explicit(&c->failed, false, memory_order_relaxed);
	pthread_mutex_unlock(&c->lock);
	return e;
}

/* --- waiting -------------------------------------------------------------------------------------------- */

/* Is word i as said?  *seen: what it is. */
static bool compare(const struct sym_cond *x, size_t i, int64_t *seen)
{
	const char *at = (char *)sym_mem_at(x->m) + x->off;
	int64_t a, b = x->each ? x->each[i] : x->v;
	bool less;

	switch (x->type) {
	case SYM_I32: a = (int32_t)load(at + 4 * i, 4); break;
	case SYM_U32: a = (uint32_t)load(at + 4 * i, 4); break;
	default: a = (int64_t)load(at + 8 * i, 8); break;
	}
	*seen = a;
	less = x->type == SYM_U64 ? (uint64_t)a < (uint64_t)b : a < b;
	switch (x->cmp) {
	case SYM_EQ: return a == b;
	case SYM_NE: return a != b;
	case SYM_GT: return !less && a != b;
	case SYM_GE: return !less;
	case SYM_LT: return less;
	default: return less || a == b;
	}
}

static bool skipped(const struct sym_cond *x, size_t i) { return x->skip && x->skip[i]; }

static struct err *check_cond(struct sym_ctx *c, const struct sym_cond *x)
{
	if (!x || !x->m)
		return ERR(INVALID, "wait: no words");
	size_t size = x->type == SYM_I32 || x->type == SYM_U32 ? 4 : 8;
	if (x->m->team->pe != c->pe)
		return ERR(INVALID, "wait: a context of PE %d with a memory handle of PE %d", c->pe, x->m->team->pe);
	if (x->off & (size - 1) || x->off > x->m->bytes || x->n > (x->m->bytes - x->off) / size)
		return ERR(INVALID, "wait: %zu words of %zu bytes at %zu of a symmetric block of %zu bytes", x->n, size, x->off, x->m->bytes);
	if (x->type < SYM_I32 || x->type > SYM_U64 || x->cmp < SYM_EQ || x->cmp > SYM_LE || x->from < SYM_ANY || x->from >= x->m->team->n)
		return ERR(INVALID, "wait: type %d, comparison %d, rank %d of %d", (int)x->type, (int)x->cmp, x->from, x->m->team->n);
	if (c->kind == SYM_PRIVATE && c->owner != &self)
		return ERR(PRECONDITION, "wait: a private context of PE %d is used by another thread", c->pe);
	return NULL;
}

static bool all_are(const struct sym_cond *x)
{
	int64_t seen;

	for (size_t i = 0; i < x->n; i++)
		if (!skipped(x, i) && !compare(x, i, &seen))
			return false;
	return true;
}

/* The one that is; x->n: none. */
static size_t one_is(struct sym_ctx *c, const struct sym_cond *x)
{
	size_t first = x->n ? (size_t)(atomic_load_explicit(&c->turn, memory_order_relaxed) % x->n) : 0;
	int64_t seen;

	for (size_t k = 0; k < x->n; k++) {
		size_t i = first + k < x->n ? first + k : first + k - x->n;
		if (!skipped(x, i) && compare(x, i, &seen)) {
			atomic_store_explicit(&c->turn, i + 1, memory_order_relaxed);
			return i;
		}
	}
	return x->n;
}

static size_t some_are(const struct sym_cond *x, size_t *which)
{
	size_t n = 0;
	int64_t seen;

	for (size_t i = 0; i < x->n; i++)
		if (!skipped(x, i) && compare(x, i, &seen))
			which[n++] = i;
	return n;
}

/* Can it be?  Else the context keeps why. */
static bool can_be(struct sym_ctx *c, const struct sym_cond *x)
{
	struct err *e = check_cond(c, x);

	if (e)
		stick(c, e);
	return !e;
}

bool sym_test_all(struct sym_ctx *c, const struct sym_cond *x) { return can_be(c, x) && all_are(x); }
size_t sym_test_any(struct sym_ctx *c, const struct sym_cond *x) { return can_be(c, x) ? one_is(c, x) : x ? x->n : 0; }
size_t sym_test_some(struct sym_ctx *c, const struct sym_cond *x, size_t *which) { return can_be(c, x) && given(c, which, x->n, "test") ? some_are(x, which) : 0; }

static bool counts(const struct sym_cond *x)
{
	for (size_t i = 0; i < x->n; i++)
		if (!skipped(x, i))
			return true;
	return false;
}

static struct sym_watch watch_of(struct sym_ctx *c, const struct sym_cond *x)
{
	return (struct sym_watch){ c->w, c->pe, x->m->team, x->from == SYM_ANY ? -1 : x->m->team->pe_of[x->from], "a wait for a word" };
}

static struct err *wait_all(struct sym_ctx *c, const struct sym_cond *x, int64_t *seen)
{
	struct err *e = NULL;

	TRY(check_cond(c, x));
	struct sym_watch w = watch_of(c, x);
	/* A word that was as said need not stay so: each is waited for once. */
	for (size_t i = 0; i < x->n && !e; i++)
		if (!skipped(x, i))
			SYM_WAIT(e, compare(x, i, seen), sym_wait_watch(&w), -1);
	return e;
}

struct err *sym_wait_all(struct sym_ctx *c, const struct sym_cond *x)
{
	int64_t seen;

	return wait_all(c, x, &seen);
}

static struct err *nowhere(void) { return ERR(INVALID, "wait: which words are as said cannot be told at NULL"); }

struct err *sym_wait_any(struct sym_ctx *c, const struct sym_cond *x, size_t *which)
{
	struct err *e = NULL;

	TRY(which ? check_cond(c, x) : nowhere());
	*which = x->n;
	struct sym_watch w = watch_of(c, x);
	if (counts(x))
		SYM_WAIT(e, (*which = one_is(c, x)) < x->n, sym_wait_watch(&w), -1);
	return e;
}

struct err *sym_wait_some(struct sym_ctx *c, const struct sym_cond *x, size_t *which, size_t *n)
{
	struct err *e = NULL;

	TRY(which && n ? check_cond(c, x) : nowhere());
	*n = 0;
	struct sym_watch w = watch_of(c, x);
	if (counts(x))
		SYM_WAIT(e, (*n = some_are(x, which)) > 0, sym_wait_watch(&w), -1);
	return e;
}

struct err *sym_wait_until(struct sym_ctx *c, struct sym_mem *m, size_t off, enum sym_type type, enum sym_cmp cmp, int64_t v, int from, int64_t *seen)
{
	struct sym_cond x = { .m = m, .off = off, .n = 1, .type = type, .cmp = cmp, .v = v, .from = from };

	int64_t last = 0;

	TRY(wait_all(c, &x, &last));
	if (seen)
		*seen = last;
	return NULL;
}
