/* What the files of coll share. */
#ifndef RONDO_COLL_IMPL_H
#define RONDO_COLL_IMPL_H

#include "../kern/kern.h"
#include "coll.h"

enum { PIECE = 8192, MAX_ROW = COLL_ROW };    /* bytes combined at a time; members of a group at most */

/* Memory that stays for the next time. */
struct kept { char *p; size_t n; };

struct coll {
	struct sym_ep *ep;
	struct sym_heap *heap;
	struct coll_table table;
	int pe, npe;                      /* this one; all */
	const struct sym_world *world;
	bool far;                         /* not every heap is mapped */
	bool stream;                      /* for collectives on streams: beside the PE's own */
	uint8_t use[COLL_COUNT];          /* set by coll_use */
	struct { uint8_t op, dtype, many; kern_strip *kern; } pair;           /* the last that acc_look_up gave */
	struct { uint8_t op, dtype; } known;      /* the last reduction that acc_check found good */
	struct sym_block *ring;           /* staging, taken when first needed */
	int64_t at;                       /* next free byte of it */
	uint64_t *lent;                   /* bit i: PE i was lent a part of it since it was last walked from the start */
	uint64_t *line;                   /* by PE: the last line that lent one */
	struct kept heard, room, fetched, region;         /* what all told all in rounds; what an algorithm gets of others; operands of other hosts; scratch of a reduction's function */
	struct sym_block *inbox;          /* what is granted to those who push slices, taken when first needed */
};

/* One call: who takes part, in rank order. */
struct call { struct coll *c; struct sym_ep *ep; uint32_t site; int n, me; const int *pe; enum coll_algo algo; };
static inline bool in_rounds(const struct call *q) { return q->n >= COLL_ROUNDS && !q->c->far; }

/* n bytes of k on a cache line's boundary, whatever is in them. */
struct err *keep(struct kept *k, size_t n);

/* The k-th member after this one. */
static inline int rank_after(const struct call *q, int k) { return q->me + k < q->n ? q->me + k : q->me + k - q->n; }

/* All other members, the next one first; their number. */
static inline int others_of(const struct call *q, int *pe)
{
	for (int k = 1; k < q->n; k++)
		pe[k - 1] = q->pe[rank_after(q, k)];
	return q->n - 1;
}

/* memcpy of what is most often a few bytes: told that n is small, compilers make a string instruction of it, which
 * takes longer to start than the rest of a message. */
static inline void copy(void *to, const void *from, size_t n)
{
	if (n == 4)
		memcpy(to, from, 4);
	else if (n == 8)
		memcpy(to, from, 8);
	else {
		__asm__("" : "+r"(n));
		memcpy(to, from, n);
	}
}

/* The same into lines that others may hold: they are asked for ahead of the stores. */
static inline void copy_out(char *to, const char *from, size_t n)
{
	enum { AHEAD = 1024 };

	for (; n > AHEAD; to += AHEAD, from += AHEAD, n -= AHEAD) {
#ifdef __x86_64__
		for (size_t i = 0; i < MIN(n - AHEAD, AHEAD); i += 64)
			__asm__ volatile("prefetchw %0" :: "m"(to[AHEAD + i]));
#endif
		memcpy(to, from, AHEAD);
	}
	copy(to, from, n);
}

/* --- table.c -------------------------------------------------------------------- */

/* INVALID if a cannot do k. */
struct err *coll_algo_fits(enum coll_kind k, enum coll_algo a);

/* --- combine.c: rank order ------------------------------------------------------ */

struct acc {
	struct coll_red r;
	kern_strip *widen, *narrow;       /* NULL: in the element type */
	kern_strip *pair;                 /* two operands at once, from where they are to where the result goes; or NULL */
	int64_t elem;                     /* bytes of an element */
	int64_t wide;                     /* bytes of a partial result */
	struct coll *c;
};
/* Is there such a reduction?  INVALID or UNIMPLEMENTED. */
struct err *acc_check(const struct coll_red *r);
/* For n operands, until c's next one. */
struct err *acc_init(struct acc *a, struct coll *c, const struct coll_red *r, int n);
int acc_spread(const struct coll_red *r, int n);              /* times the bytes of an element that a partial result has */
/* a.pair of r for n operands, looked up once for calls that follow each other.  NULL also for a function. */
kern_strip *acc_look_up(struct coll *c, const struct coll_red *r, int n);
static inline kern_strip *acc_pair(struct coll *c, const struct coll_red *r, int n)
{
	return c->pair.op == r->op && c->pair.dtype == r->dtype && c->pair.many == (n > 2) ? c->pair.kern : acc_look_up(c, r, n);
}
/* sum: n partial results, tmp as large; x: n elements. */
void acc_first(const struct acc *a, void *sum, const void *x, int64_t n);
void acc_add(const struct acc *a, void *sum, const void *x, int64_t n, void *tmp);
void acc_last(const struct acc *a, void *dst, const void *sum, int64_t n);
/* Where an operand lies: here, or in the heap of pe. */
struct where { const char *p; int pe; size_t off; };
/* dst[0 .. bytes) = w[0][..] op w[1][..] .. each from byte off; dst may be one of them. */
void acc_all(const struct acc *a, struct sym_ep *ep, const struct where *w, int n, int64_t off, char *dst, int64_t bytes);
/* The same, of operands that can be read, added to what came before them: a partial result, at `before` from its first byte on, or NULL.
 * What they make goes to one of `part`, as a partial result, and `done`, as a finished one; `before` is neither. */
void acc_more(const struct acc *a, struct sym_ep *ep, const char *before, const struct where *w, int n, int64_t off, int64_t bytes, char *part, char *done);

/* --- tell.c -------------------------------------------------------------------------- */

struct err *sizes_differ(const struct call *q, int pe, size_t its, size_t mine);
/* pe speaks of `its` bytes where this one has n: they are not in the same call. */
static inline struct err *same_size(const struct call *q, int pe, size_t its, int64_t n) { return __builtin_expect(its == (size_t)n, 1) ? NULL : sizes_differ(q, pe, its, (size_t)n); }
/* sym_recv of a message that speaks of n bytes. */
static inline struct err *recv_bytes(const struct call *q, int pe, enum sym_verb v, int64_t n, struct sym_msg *m)
{
	TRY(sym_recv(q->ep, pe, q->site, v, m));
	return same_size(q, pe, m->n, n);
}
/* All have come to this. */
struct err *meet_in_rounds(const struct call *q);
/* The operands of all, n bytes each, by rank: all[k * n]. */
struct err *gather_doubling(const struct call *q, const char *x, int64_t n, char *all);
/* Tell all others where something lies, and where something else does, and learn where theirs are: at[], to[] (may be
 * NULL) by rank.  n: bytes that the call is about, the same for all. */
struct err *loan_exchange(const struct call *q, int64_t n, size_t off, size_t other, size_t *at, size_t *to);
/* The next message of every other member is there, or will not come: who waits for one after the other wakes for each. */
struct err *expect_all(const struct call *q);
/* All of them have done with what this PE lent, and what they put here is there. */
struct err *ready_all(const struct call *q);

/* --- stage.c: operands that others may read --------------------------------------- */

static inline bool overlap(const void *a, int64_t na, const void *b, int64_t nb)
{
	return (uintptr_t)a < (uintptr_t)b + (uintptr_t)nb && (uintptr_t)b < (uintptr_t)a + (uintptr_t)na;
}
bool loan_here(const struct call *q, const void *x);          /* is it in the heap? */
/* An operand in the heap.  copy: the place itself is written while others read. */
struct loan { size_t off; struct sym_block *copy; };
struct err *loan_make(const struct call *q, const void *x, int64_t n, bool copy, struct loan *out);
void loan_end(const struct call *q, struct loan *l, const struct err *e);      /* e: how the call went */
/* A place in the heap for the n bytes of y, which others may write: y itself, or a copy.  grant_end hands e on. */
struct err *grant_make(const struct call *q, void *y, int64_t n, bool copy, struct loan *out);
struct err *grant_end(const struct call *q, struct loan *l, void *y, int64_t n, struct err *e);
/* Rows of inner bytes, step bytes apart. */
struct strided { char *p; int64_t inner, step; };
static inline struct strided dense(const void *p, int64_t n) { return (struct strided){ (char *)(uintptr_t)p, n, n }; }
/* n bytes from byte si of src (whose rows lie in pe's heap at off, or at its p if pe < 0) to byte di of dst. */
void copy_strided(struct sym_ep *ep, struct strided dst, int64_t di, int pe, size_t off, struct strided src, int64_t si, int64_t n);

/* What goes through the staging ring, or windows, or slots: bytes for each member, the same for all (each false) or
 * not.  fill writes bytes [o, o + n) of what goes to rank j; take gets those of all the others at once (by rank,
 * w[me] unused), where they begin at byte `at`. */
struct flow {
	int64_t bytes;
	bool each;
	void (*fill)(void *user, int j, int64_t o, int64_t n, char *to);
	const char *from_here;            /* what goes to rank j lies in one piece, apart * j behind this; NULL: it does not */
	int64_t apart;                    /* 0: the same for all */
	void (*take)(void *user, const struct where *w, int64_t at, int64_t o, int64_t n);
	void *user;
	const int *to, *from;             /* ranks to send to and to receive from, each other one if NULL */
	int nto, nfrom;
};
struct err *flow_stage(const struct call *q, const struct flow *f);
struct err *flow_slot(const struct call *q, const struct flow *f);
/* Everybody who was lent a part of the ring is done with it; seconds: DEADLINE after so many, 0: as any wait. */
struct err *ring_settle(struct coll *c, double seconds);

/* --- mpi.c ---------------------------------------------------------------------------- */

struct err *mpi_flow(const struct call *q, const struct flow *f);         /* among all members */
struct err *mpi_all_reduce(const struct call *q, const struct acc *a, const struct flow *f, const char *x, char *y, int64_t n);
struct err *mpi_broadcast(const struct call *q, int root, const char *x, char *y, int64_t n);
struct err *mpi_permute(const struct call *q, int from, int to, const char *x, char *y, int64_t n);

/* --- levels.c -------------------------------------------------------------------------- */

struct err *levels_all(const struct call *q, const struct acc *a, const char *x, char *y, int64_t n);
struct err *levels_blocks(const struct call *q, const struct acc *a, int64_t outer, int64_t inner, const char *x, char *y);

/* --- reduce.c, move.c --------------------------------------------------------------- */

struct err *reduce_all(const struct call *q, const struct coll_red *r, int64_t count, const char *x, char *y, const struct coll_then *t);
/* Bytes of the heap that a reduction of n bytes takes, beside the staging ring. */
int64_t reduce_own(const struct call *q, const struct coll_red *r, int64_t n);
/* The operand is [outer][n] rows of inner bytes, the result [outer] of them. */
struct err *reduce_blocks(const struct call *q, const struct coll_red *r, int64_t outer, int64_t inner, const char *x, char *y, const struct coll_then *t);
struct err *reduce_scan(const struct call *q, const struct coll_red *r, bool exclusive, int64_t count, const char *x, char *y);
/* Block j of this PE's operand goes to rank j, as the blocks of all to this one.  The block for rank j starts at
 * x + j * send and has n bytes in rows; that of rank k is written to y + k * place.  nx, ny: bytes of both. */
struct blocks { const char *x; int64_t nx, send; struct strided from; char *y; int64_t ny, place; struct strided to; int64_t n; };
struct err *levels_gather(const struct call *q, const struct blocks *b);      /* levels.c */
struct err *move_blocks(const struct call *q, const struct blocks *b);
struct err *move_broadcast(const struct call *q, int root, const char *x, char *y, int64_t n);
/* Whom a permute links, in the order of sending; open: the first receives nothing. */
struct cycle { int n, me; bool open; int pe[COLL_CYCLE]; };
/* c: NULL if it is not known, or not to all of it. */
struct err *move_permute(const struct call *q, int from, int to, const char *x, char *y, int64_t n, const struct cycle *c);
/* --- coll.c --- */

/* coll_permute of what a program says.  cycle: NULL if it is not known, or not to all of it.  in_place: all of it have their result where
 * the operand is. */
struct err *coll_permute_by(struct coll *c, uint32_t site, uint8_t algo, int from, int to, int64_t n, const void *src, void *dst, const struct cycle *cycle, bool in_place);

/* --- boxes.c ------------------------------------------------------------------------------- */

/* All blocks together, in rows that lie side by side in what is taken or in what is given; all members map each other. */
struct err *move_rows(const struct call *q, const struct blocks *b);
/* What of c's boxes goes to cx, and from it.  far: members of q do not all map each other. */
struct err *move_boxes(const struct call *q, const struct coll_cx *cx, const struct prog_coll *c, bool far, const char *x, char *y);

/* --- slices.c --- */

/* Rows that the slices at `which` (prog.h) name, of operands like that at x, from where they lie into y.  far: as of move_boxes. */
struct err *move_slices(const struct call *q, const struct prog_coll *c, bool far, const char *x, const int64_t *which, char *y);

struct err *move_barrier(const struct call *q);

#endif
