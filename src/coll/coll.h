/* Collectives between PEs, over pair channels: neighbour to neighbour, no barrier of the team.
 *
 * Every call names the members of its group and is made by each of them, in the same order for any two that
 * share groups.  It returns when this PE's operand may be overwritten and its result is complete; it says
 * nothing about the others.  A result may lie where its operand lies (all_reduce, broadcast, permute, scan:
 * exactly there); any other overlap costs a copy.  Addresses may be anything this process can read; what lies in
 * the PE's own heap is lent to the others without a copy.
 *
 * Reductions combine in rank order, ((x0 op x1) op x2) ..: every PE, run and algorithm gives the same bits.
 * Sums, products and logsumexps of floats below 32 bits over more than two PEs are kept in f32, rounded once.
 *
 * All calls are made between sym_begin and sym_end, by the thread that owns the endpoint.  They fail as sym_recv
 * does, or with EXHAUSTED when the heap has no room for staging; what is wrong with the arguments is INVALID, a reduction that its
 * elements do not have UNIMPLEMENTED, before anything is sent. */
#ifndef RONDO_COLL_H
#define RONDO_COLL_H

#include "../base/base.h"
#include "../prog/prog.h"
#include "../sym/sym.h"

/* --- table.c: which algorithm ------------------------------------------------- */

/* What a machine does best; equal on all PEs. */
struct coll_table {
	int cores;                /* of a host */
	int64_t ring, chunk;      /* bytes of a PE's staging ring, of a piece of it */
	struct coll_rule rule[COLL_TOPOS][COLL_COUNT][COLL_RULES];
};
/* Where nothing was measured: prog_rules_init, and the sizes of this machine's caches. */
void coll_table_init(struct coll_table *t);
/* The same with the rules of a machine table (plan_table_get). */
void coll_table_from(struct coll_table *t, const struct coll_rule rule[COLL_TOPOS][COLL_COUNT][COLL_RULES]);
/* prog_topo on these cores. */
static inline enum coll_topo coll_topo_of(const struct coll_table *t, bool far, int npe, int members) { return prog_topo(far, npe, t->cores, members); }
enum coll_algo coll_choose(const struct coll_table *t, enum coll_kind k, enum coll_topo topo, int64_t bytes);

/* --- coll.c ---------------------------------------------------------------------- */

/* One PE's part in all collectives: its endpoint, its staging ring.  Owned by one thread. */
struct coll;
/* Owned; NULL if pe is not local.  The table is copied; NULL: coll_table_init's. */
struct coll *coll_new(struct sym_world *w, int pe, const struct coll_table *table);
/* NULL is fine; by the thread that owns the endpoint, before the world is closed.  Waits until the others have read what was staged for
 * them, at most 20 s. */
void coll_free(struct coll *c);
/* From now on, on all PEs alike; COLL_auto: as the table says.  INVALID if a cannot do k. */
struct err *coll_use(struct coll *c, enum coll_kind k, enum coll_algo a);

/* Members in rank order, at most 1024, equal on all of them, each once; me: this PE's rank. */
struct coll_group { int n, me; const int *pe; };
/* Of pred, integers: add mul min max and or xor (of pred, add is or, mul is and); floats: add mul min max lse; complex: add mul min max.
 * fn: of op RED_fn, (acc, x) -> acc; borrowed. */
struct coll_red { enum redop op; enum dtype dtype; const struct prog_expr *fn; };

/* prog_topo_far of n members, not all on one host.  r: NULL if nothing is reduced.  The same on all members. */
enum coll_topo coll_topo_far(const struct sym_world *w, enum coll_kind k, const struct coll_red *r, int n, const int *pe);

/* site: what sym_recv wants it for, equal on all members, of which 24 bits count.  count: elements; bytes, count of 0 is fine, and all may be NULL then. */
struct err *coll_all_reduce(struct coll *c, const struct coll_group *g, uint32_t site, const struct coll_red *r, int64_t count, const void *src, void *dst);
/* src: n blocks of count elements; dst: block me of the result. */
struct err *coll_reduce_scatter(struct coll *c, const struct coll_group *g, uint32_t site, const struct coll_red *r, int64_t count, const void *src, void *dst);
struct err *coll_all_gather(struct coll *c, const struct coll_group *g, uint32_t site, int64_t bytes, const void *src, void *dst);
/* Block j of src (n of bytes) goes to rank j, as block me. */
struct err *coll_all_to_all(struct coll *c, const struct coll_group *g, uint32_t site, int64_t bytes, const void *src, void *dst);
/* src: of the root alone, else not looked at. */
struct err *coll_broadcast(struct coll *c, const struct coll_group *g, uint32_t site, int root, int64_t bytes, const void *src, void *dst);
/* Send to PE `to`, receive from PE `from`; -1: from nobody, dst becomes zeros (or stays, if NULL); to nobody. */
struct err *coll_permute(struct coll *c, uint32_t site, int from, int to, int64_t bytes, const void *src, void *dst);
/* dst of rank k = src of ranks 0 .. k combined; exclusive: of 0 .. k-1, rank 0 gets the identity (not for fn). */
struct err *coll_scan(struct coll *c, const struct coll_group *g, uint32_t site, const struct coll_red *r, bool exclusive, int64_t count, const void *src, void *dst);
/* Returns when all members have called it. */
struct err *coll_barrier(struct coll *c, const struct coll_group *g, uint32_t site);

/* --- stream.c: on streams ----------------------------------------------------------------- */

/* The calls above, enqueued: see sym.h, sym_stream_barrier.  Members are those of t, by rank; src, dst, r->fn, t and c must stay
 * until the operation is done.  c: made for the streams of the same PE, and used by these calls alone; one for all its
 * streams.  What is wrong with the arguments is the stream's failure. */
struct coll *coll_new_stream(struct sym_world *w, int pe, const struct coll_table *table);    /* owned: coll_free */
void coll_stream_all_reduce(struct coll *c, struct sym_stream *s, struct sym_team *t, const struct coll_red *r, int64_t count, const void *src, void *dst);
void coll_stream_reduce_scatter(struct coll *c, struct sym_stream *s, struct sym_team *t, const struct coll_red *r, int64_t count, const void *src, void *dst);
void coll_stream_all_gather(struct coll *c, struct sym_stream *s, struct sym_team *t, int64_t bytes, const void *src, void *dst);
void coll_stream_all_to_all(struct coll *c, struct sym_stream *s, struct sym_team *t, int64_t bytes, const void *src, void *dst);
void coll_stream_broadcast(struct coll *c, struct sym_stream *s, struct sym_team *t, int root, int64_t bytes, const void *src, void *dst);
/* from, to: ranks of t, or -1. */
void coll_stream_permute(struct coll *c, struct sym_stream *s, struct sym_team *t, int from, int to, int64_t bytes, const void *src, void *dst);
void coll_stream_scan(struct coll *c, struct sym_stream *s, struct sym_team *t, const struct coll_red *r, bool exclusive, int64_t count, const void *src, void *dst);

/* --- mpi.c, mpi_open.c: data moved by MPI ----------------------------------------------------- */

/* Find the MPI whose mpirun has started the processes of w (Open MPI or MPICH), and start it if the program has not: what algorithm
 * mpi needs, of processes of one device each.  Collective over the processes, before any PE is used by another thread.  PRECONDITION,
 * UNAVAILABLE or UNIMPLEMENTED say why it cannot be, on all processes or none.  MPI is ended when the process exits. */
struct err *coll_mpi_open(struct sym_world *w);
bool coll_mpi_ready(const struct sym_world *w);              /* if not, what is to be done by mpi is done by another algorithm */
/* Has the table a row that names a? */
bool coll_table_has(const struct coll_table *t, enum coll_algo a);

/* --- for programs ------------------------------------------------------------------- */

/* One device's place in a program. */
struct coll_cx {
	struct coll *c;
	const struct prog *p;
	const int *pe;            /* PE of each position */
	int pos;
};
/* Can the collective be done?  INVALID or UNIMPLEMENTED, for use when a program is loaded. */
struct err *coll_check(const struct prog *p, const struct prog_coll *c);
/* The most bytes of the device's heap that collectives of the program take beside its zone, within a host: staging and partial results, of which some
 * stay with the device for the next ones. */
int64_t coll_own(const struct coll_cx *cx);
/* PEs that position pos exchanges messages with in any collective of p, without itself: into out (ndev entries),
 * each once.  Returns their number. */
int coll_peers(const struct prog *p, const int *pe, int pos, int *out);
/* What follows an all_reduce or a reduce_scatter at once, part by part while it is in the caches.  run is called once for each part of
 * the result, with the bytes [lo, hi) of it, which lie at `at`; lo is a multiple of unit, hi too but at the end.  Nobody
 * looks at these bytes of the operand (of a reduce_scatter: of this member's block of it) or of the result any more: what run writes
 * may lie exactly where one of them lies, or apart from both.  unit: any number of bytes; of parts that one makes for all, a divisor of
 * COLL_UNIT.
 * alone: nobody but run wants the result of a reduce_scatter; it may be nowhere else.
 * out: run depends on the result alone, and puts as many bytes at `to`.  In the end they are in out, whoever made
 * them; what is where the result should be is undefined.  All members must say the same. */
enum { COLL_UNIT = PROG_UNIT };
struct coll_then { void (*run)(void *user, const char *at, char *to, int64_t lo, int64_t hi); void *user; int64_t unit; char *out; bool alone; };
/* Take part in c.  ptr: addresses of the operands, then of the results.  in_place: they are the same, on all devices
 * (prog_in_place).  then: NULL, or what follows.  Where a launch is stopped, or a process has died, data may not have come although
 * there is no error: sym_lost tells. */
struct err *coll_run(struct coll_cx *cx, const struct prog_coll *c, uint32_t site, char *const *ptr, bool in_place, const struct coll_then *then);

/* --- loan.c: permutes that are read where they lie ---------------------------------------------- */

/* Loan c of a program (prog.h: lend, next, back, wait) on one device.  What it lends is seen where it lies by all whom it is lent to, or
 * by none of them, if they are more than one; likewise what it is lent.  cx and c must live. */
struct coll_loan;
struct coll_loan *coll_loan_new(const struct coll_cx *cx, const struct prog_coll *c);     /* owned */
void coll_loan_free(struct coll_loan *l);                    /* NULL is fine */
bool coll_loan_copies(const struct coll_loan *l);            /* does next copy from another PE, or for it? */
size_t coll_loan_words(const struct prog_coll *c);           /* bytes of the PE's heap that it needs, a multiple of 64, */
void coll_loan_begin(struct coll_loan *l, char *words);      /* there, from now on; at the beginning of each launch */
/* src: in the heap of this PE, or in one that this process has mapped.  Waits until those whose it is to see have lent it theirs. */
struct err *coll_lend(struct coll_cx *cx, struct coll_loan *l, uint32_t site, const void *src);
/* *at: where what the PE `hop` links away has lent can be read; 0: this one.  Where it is copied *at is own, with what the PE one link away
 * has at src: all of them call it then, in step, and own is apart from src. */
struct err *coll_next(struct coll_cx *cx, struct coll_loan *l, uint32_t site, int hop, const void *src, char *own, char **at);
/* The same of an all_gather: at[k] is where what the one of rank k in the group has lent can be read, this PE's at src; own[k]: where it is
 * copied, if it must be. */
struct err *coll_all(struct coll_cx *cx, struct coll_loan *l, uint32_t site, char *src, char *const *own, char **at);
void coll_show(struct coll_loan *l, const void *src);        /* instead of coll_lend: to nobody; after it nothing, src is what was lent */
void coll_back(struct coll_cx *cx, struct coll_loan *l);
/* Wait until what was lent has come back, but for the last `but` times. */
struct err *coll_wait(struct coll_cx *cx, struct coll_loan *l, int but);

/* --- lane.c: under way while the PE computes ---------------------------------------------------- */

/* Collectives of programs that are begun, and go on while the thread that owns the endpoint does something else, one after the other.
 * Between launches a lane is empty.  Before the same thread runs any other collective of the PE it finishes those of the lane. */
struct coll_lane;
/* ptr: as of coll_run; it and what it shows stay until the task is done.  what: comes back with its error. */
struct coll_task { struct coll_cx cx; const struct prog_coll *c; uint32_t site; char *const *ptr; bool in_place; const void *what; };
enum { COLL_FLIGHT = 64 };    /* under way at most; one more waits for the first */
struct err *coll_lane_new(struct coll *c, struct coll_lane **out);    /* owned */
void coll_lane_free(struct coll_lane *l);                             /* what is under way never ends; NULL is fine */
void coll_begin(struct coll_lane *l, const struct coll_task *j);       /* does what can be done without a wait */
/* Go on with what is under way, as far as that takes no wait; from time to time, between pieces of other work.  What was looked at less
 * than a microsecond ago is left alone. */
void coll_look(struct coll_lane *l);
uint64_t coll_begun(const struct coll_lane *l);                       /* tasks so far, of all launches */
bool coll_flying(const struct coll_lane *l);                          /* is any of them not done? */
/* Wait until the first n are done.  After a failure none of those that follow is begun; when the launch is to be aborted (struct
 * sym_launch: stop) all end soon. */
void coll_finish(struct coll_lane *l, uint64_t n);
/* Wait until all are done, or back(user) is true, for which the PE is rung. */
void coll_stay(struct coll_lane *l, bool (*back)(void *user), void *user);
/* The first error since the last call, owned, and what it came of; NULL: none. */
struct err *coll_lane_error(struct coll_lane *l, const void **what);
/* From now on ended(user, what, t0, t1) is called at the end of each task, on its stack: when it was begun and when it ended, ns. */
void coll_lane_watch(struct coll_lane *l, void (*ended)(void *user, const void *what, uint64_t t0, uint64_t t1), void *user);

#endif
