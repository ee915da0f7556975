/* Symmetric memory: every PE (device) can read, write and signal the heap of
 * every other one, with no receive call on the other side.
 *
 * PEs are threads of one process or of several, on one host or on many: the *world* knows how to reach each.
 * A *heap* per PE: a large sparse region of which blocks are handed out; other PEs know it by number and
 * address bytes in it by offset, never by pointer.  Above it are two ways to communicate.  *Channels*: an
 * endpoint per PE, whose messages grant, lend and carry memory, used by one thread at a time (ep.c, ep_wait.c).
 * *One-sided*: teams of PEs, symmetric memory of a team, contexts that put, get, signal and wait, and streams that do
 * so while the caller goes on (team.c, rma.c, stream.c).  docs/sym.md describes the protocols and the memory model.
 *
 * Ownership, unless said otherwise: what a _new or _open gives is owned, and freed by its pair; other pointers are borrowed.
 * The world, heaps, contexts, streams and events are thread-safe; an endpoint belongs to the thread that runs its
 * PE's program, a team to the thread that is in a collective call of it.  Nothing here knows what the bytes mean.
 *
 * Arguments that cannot be are refused, with INVALID or OUT_OF_RANGE, before anything is done: sizes, ranks, PEs, words that are
 * not on their boundary, a team, memory or address that is NULL.  Not looked at are: NULL in the place of the world, heap, endpoint,
 * context, stream or event that a call is about, a handle that was freed, and what sym_return, sym_get, sym_put and
 * their like are told of a peer. */
#ifndef RONDO_SYM_H
#define RONDO_SYM_H

#include <stdatomic.h>

#include "../base/base.h"

struct sym_world; struct sym_heap; struct sym_ep;

/* What an atomic does to a word x, given v; all give the x before. */
enum sym_amo {
	SYM_FETCH,                /* nothing */
	SYM_SET, SYM_SWAP,        /* x = v */
	SYM_ADD, SYM_AND, SYM_OR, SYM_XOR,
	SYM_CAS,                  /* x = v if x is the condition */
};

/* --- world.c ------------------------------------------------------------- */

struct sym_opts {
	int nlocal;               /* PEs of this process, whose heaps and endpoints live here; processes may differ */
	/* How the processes of the job find each other; must live until sym_close.  NULL: this process is alone. */
	const struct kv *boot;
	int64_t limit;            /* bytes that all local heaps may hold together, teams apart; 0: no limit */
	bool said;                /* the user has said so: it is not what the machine has */
	int threads;              /* threads that will run on this process' cores: decides how long a wait spins */
	bool guard;               /* guard bytes round every block, looked at when it is freed */
	bool chaos;               /* delay what the memory model allows to be late; heaps of peers are not mapped */
	uint64_t seed;            /* of the delays */
	size_t room;              /* bytes of address space that the program wants for itself where that is limited (ulimit -v) */
};
/* Join the world.  Collective over the processes of boot: waits for all of them, and says on stderr for whom
 * when that takes long.  PEs are numbered by process, then within the process.  INVALID for fewer than one local PE;
 * EXHAUSTED if the address space cannot be had; PRECONDITION if a process is of another version; UNAVAILABLE if a process cannot be reached,
 * or did not come within RONDO_JOIN_TIMEOUT seconds. */
struct err *sym_open(const struct sym_opts *o, struct sym_world **out);   /* owned */
/* This process of a job will not open, and has not tried to: the others, which wait for it, hear why.  sym_open that fails does so itself. */
void sym_give_up(const struct kv *kv, const struct err *why);
/* Leave.  Not collective: peers that still wait for this process get an error that says it has left.  NULL is
 * fine; no endpoint may be in use. */
void sym_close(struct sym_world *w);
/* The first half of it, where the process ends and something may still read the heaps of its own PEs: the others hear that it has left. Nothing may
 * be called for w after that. */
void sym_leave_job(struct sym_world *w);
int sym_npe(const struct sym_world *w);                      /* of all processes */
int sym_first(const struct sym_world *w);                    /* the first local PE; local ones follow each other */
int sym_nproc(const struct sym_world *w);
int sym_proc(const struct sym_world *w);                     /* this process */
int sym_proc_of(const struct sym_world *w, int pe);          /* -1 if there is no such PE */
bool sym_near(const struct sym_world *w);                    /* every heap is mapped; equal in all processes */
bool sym_mapped(const struct sym_world *w, int pe);          /* its heap is seen by loads and stores of this process */
/* A number, equal in all processes, that PEs share if and only if they map each other's heaps; -1 if there is no such PE. */
int sym_host_of(const struct sym_world *w, int pe);
const char *sym_road(const struct sym_world *w, int pe);     /* "self", "thread", "shm", "tcp", "ucx", "chaos"; "none" to no PE */
struct sym_heap *sym_heap_of(struct sym_world *w, int pe);   /* borrowed; NULL if pe is not local */
struct sym_ep *sym_ep_of(struct sym_world *w, int pe);       /* likewise */
struct sym_ep *sym_stream_ep(struct sym_world *w, int pe);   /* the same PE's other one, for collectives on its streams */
/* What this process does outside programs ("compiling 'step'"; NULL: nothing): shown to peers that wait for it. */
void sym_phase(struct sym_world *w, const char *text);
/* All waits of local PEs end with CANCELLED, now and later. */
void sym_cancel(struct sym_world *w);

/* --- boot.c -------------------------------------------------------------- */

/* The store that the environment names, for programs that JAX does not start: RONDO_RENDEZVOUS
 * (tcp://host:port, or a folder that all processes see), RONDO_PROCESS and RONDO_PROCESSES, as `rondo launch` sets
 * them, or the variables of Open MPI, PMIx and Slurm.  *out is NULL if there is one process only.  One store, one world; for the next
 * one, after it or beside it, all processes ask again. */
struct err *sym_boot_env(struct kv **out);
void sym_boot_free(struct kv *k);                            /* NULL is fine */
/* Say in the store which process of which machine this is (here.c). */
void sym_here(const struct kv *kv);
/* Write what is this process' alone.  ALREADY_EXISTS: another one has this number, most likely of another job that has the address. */
struct err *sym_claim(const struct kv *kv, const char *key, const void *value, size_t n);
/* Process who does not write what is waited for: UNAVAILABLE if it has given up, or has ended. */
struct err *sym_missing(const struct kv *kv, int who);
struct err *sym_gave_up(const struct kv *kv, int who);       /* UNAVAILABLE, with its reason, if process who has given up */
/* One wait for a process while a job is joined; starts as zeros.  A look from time to time, while what is waited for is not there:
 * sym_missing, an error at the time until (INFINITY: never), and a line after 20 s that says for whom.  sym_slice: how many ms to wait before
 * the next look, few at first, and not beyond until. */
struct sym_coming { double since; int ms; bool said; };
int sym_slice(struct sym_coming *c, double until);
struct err *sym_coming(const struct kv *kv, int who, double until, struct sym_coming *c);
/* Serve a store at host:port (port 0: any free one, written back) until freed; to those who show the token. */
struct sym_server;
struct err *sym_server_new(const char *host, int *port, const char *token, struct sym_server **out);
void sym_server_free(struct sym_server *s);
/* A process of the job that the store is for has ended: who waits for it while the job is joined need not (here.c).  From any thread. */
void sym_server_gone(struct sym_server *s, int process);

/* --- heap.c -------------------------------------------------------------- */

/* A block of a heap.  off is a multiple of 64. */
struct sym_block { size_t off, bytes; };

/* Take n bytes (0 is fine).  what and index say for whom ("result 3 of 'step'": index -1 is not shown);
 * what must outlive the block.  The bytes are undefined.  EXHAUSTED says how much was asked and free and
 * lists the largest live blocks of all that share the limit. */
struct err *sym_alloc(struct sym_heap *h, size_t n, const char *what, int index, struct sym_block **out);
struct err *sym_expects(struct sym_heap *h, size_t n);        /* so many more blocks take no memory of the C library */
size_t sym_takes(const struct sym_world *w, size_t n);       /* bytes of the limit that n such take */
/* Bytes of the limit that a PE has, in the process of the job that has least of it a PE: the same in all processes.  said: of those whose limit the user has said.
 * INT64_MAX: there is no such limit. */
int64_t sym_allowed(const struct sym_world *w, bool said);
void sym_free(struct sym_block *b);                          /* NULL is fine */
char *sym_base(const struct sym_heap *h);                    /* where this process sees the heap */
size_t sym_span(const struct sym_heap *h);                   /* bytes of its region */

/* Bytes that the limit of w leaves, as it is now; INT64_MAX without one. */
int64_t sym_room(struct sym_world *w);
/* Bytes, but allocs.  reserved: at most so many hold pages. */
struct sym_stats { int64_t in_use, peak, limit, allocs, largest, reserved; };
struct sym_stats sym_heap_stats(struct sym_heap *h);
void sym_heap_clear_stats(struct sym_heap *h);               /* peak = in_use; gives unused pages back */
int64_t sym_guard_broken(void);                              /* blocks found written outside, by all heaps so far */

/* --- ep.c, ep_wait.c ------------------------------------------------------ */

/* Messages between two PEs travel in order through a channel: a ring of 8 lines of 64 bytes in the
 * receiver's heap; who sends waits while 8 of them are not returned.  Three verbs move data:
 *   put    the consumer GRANTs (offset, bytes); the producer waits for it, puts, says READY
 *   lend   the producer says LEND (offset, bytes) and leaves the data where it is; the consumer reads it in
 *          place and returns the line
 *   slot   the message carries up to SYM_SLOT bytes itself
 * A byte may be overwritten or freed only when every loan of it is returned and every grant on it is used up. */
enum sym_verb { SYM_SLOT_MSG = 1, SYM_LEND, SYM_GRANT, SYM_READY };
enum { SYM_RING = 8, SYM_INLINE = 32, SYM_SLOT = 64 << 10 };
/* Messages up to so many bytes do not go by the slot: written in one go, they are under way in one. */
enum { SYM_SHORT = 1040 };

/* What a launch tells its endpoint. */
struct sym_launch {
	uint32_t prog;            /* identity of the program, equal on all PEs that run it */
	const char *name;         /* of the program, for peers that do not know it; may be NULL; outlives the launch */
	const int *peer; int npeer;               /* PEs that this one will talk to; they name this one as well */
	_Atomic int *stop;        /* becomes non-zero when the launch is aborted; waits end with ABORTED.  May be NULL */
	/* Work for a waiting thread; true if it did some.  May be NULL. */
	bool (*help)(void *user);
	/* Add "'train.py:3 psum' of 'step'" for a site of a program; false if the program is unknown.  May be NULL. */
	bool (*describe)(void *user, uint32_t prog, uint32_t site, struct str *s);
	void *user;
};
/* Every launch begins and ends on every PE it names, also when it failed before it did anything. */
void sym_begin(struct sym_ep *ep, const struct sym_launch *l);
/* why: the launch failed here; the peers that wait for this PE get an error with its text.  Then wait until the
 * peers have left the launch, so that nothing of it touches this heap any more; or until there is no hope of that: sym_cancel,
 * sym_stream_cancel, RONDO_TIMEOUT seconds.  NULL: it went well. */
void sym_end(struct sym_ep *ep, const struct err *why);
/* The same without the wait.  over(user), which may be NULL, is called when the peers have left: by this call or a later one of
 * sym_begin, sym_clear, sym_clear_wait and sym_close. */
void sym_quit(struct sym_ep *ep, const struct err *why, void (*over)(void *user), void *user);
/* b, taken, which may be NULL: was lent or granted when the launch failed.  It is freed when the peers have left. */
void sym_keep(struct sym_ep *ep, struct sym_block *b);
/* Look which launches that were quit are over for all, in their order; all: take them for that.  False if some are not. */
bool sym_clear(struct sym_ep *ep, bool all);
/* Wait for them.  Fails as sym_recv. */
struct err *sym_clear_wait(struct sym_ep *ep);
/* Wake whoever waits on pe: after stop was set. */
void sym_ring(struct sym_world *w, int pe);
/* Wait, between sym_begin and sym_end, for something that no peer does: until come(user), of which sym_has_come tells pe.  what: for messages, "an
 * argument of program 'step'".  Fails as sym_recv, for any of the launch's peers. */
struct err *sym_wait_own(struct sym_ep *ep, bool (*come)(void *user), void *user, const char *what);
void sym_has_come(struct sym_world *w, int pe);              /* any thread */
/* Seconds that the wait which ep is in has taken; 0: it is in none, or for a moment only.  Any thread. */
double sym_waited(const struct sym_ep *ep);
/* Does a wait of this process sleep, or is it about to? One of ep's PE?  Such a one helps (sym_launch) when its PE is rung. */
bool sym_resting(void);
bool sym_rests(const struct sym_ep *ep);
/* From now on a call that would wait calls away(user) instead, which gives true when it is time to look again; after false it waits.
 * NULL: it waits. */
void sym_away(struct sym_ep *ep, bool (*away)(void *user), void *user);
/* Until it is taken back waits of ep neither poll nor yield before they sleep: another thread wants the core for long. */
void sym_sleeps_soon(struct sym_ep *ep, bool yes);

/* site: the command that communicates, equal on both sides; of it 24 bits count.  The calls below may wait; they fail with
 * ABORTED (the launch failed here or at the peer), DEADLINE (RONDO_TIMEOUT), UNAVAILABLE (the peer's process has
 * died or left), or INTERNAL when the peer runs another program or another command. */

/* pe: one that the launch names; else INVALID.
 *
 * Room for a message of n <= SYM_SLOT bytes to pe; sym_slot_send sends what was written there. */
struct err *sym_slot_room(struct sym_ep *ep, int pe, size_t n, void **out);
void sym_slot_send(struct sym_ep *ep, int pe, uint32_t site, size_t n);
/* Both in one: the message is at src, which may be reused then.  Saves a copy where heaps are not mapped. */
struct err *sym_slot_put(struct sym_ep *ep, int pe, uint32_t site, const void *src, size_t n);
/* Send a line of another verb. */
struct err *sym_tell(struct sym_ep *ep, int pe, uint32_t site, enum sym_verb v, size_t off, size_t n);
/* Wait until the next line from each of n PEs is there, or none will come: together, where sym_recv waits for one after the other. */
struct err *sym_expect(struct sym_ep *ep, const int *pe, int n, uint32_t site);
/* The next line from pe, which must be of this site and verb. */
struct sym_msg { size_t off, n; const void *data; };         /* data: of a slot message, valid until returned */
struct err *sym_recv(struct sym_ep *ep, int pe, uint32_t site, enum sym_verb v, struct sym_msg *out);
/* n bytes at src + k * step to each other pe[k] of npe PEs, of which pe[me] is this one, and what each of them sends: out[k] from pe[k],
 * out[me] what this one has for itself.  step 0: the same to all.  All of them call it, with the same n and step, and send before they wait for anything: who returns knows that all have come so far.  What out
 * shows stays until this PE next sends something or waits; nothing is to be returned.  INVALID where pe[me] is another. */
struct err *sym_exchange(struct sym_ep *ep, const int *pe, int npe, int me, uint32_t site, const void *src, size_t step, size_t n, struct sym_msg *out);
/* Everything received from pe so far may be overwritten.  now: the sender is waiting for it (a loan). */
void sym_return(struct sym_ep *ep, int pe, bool now);
/* Wait until each of n PEs has returned everything sent to it, in this launch and before. */
struct err *sym_settle(struct sym_ep *ep, const int *pe, int n);
/* The last line sent to pe; wait until pe has returned that line, of this launch or an older one. */
uint64_t sym_sent(const struct sym_ep *ep, int pe);
struct err *sym_await(struct sym_ep *ep, int pe, uint64_t line);
/* The same for at most so many seconds, else DEADLINE; also outside of launches. */
struct err *sym_await_for(struct sym_ep *ep, int pe, uint64_t line, double seconds);

/* Loans that go back one by one, whatever else two PEs tell each other meanwhile: a word of 8 bytes of the lender's heap for each PE that
 * reads, which says how many of them have gone back.  The lender sets its words to 0 and tells where they are.
 *
 * The word at off of pe's heap, which is mapped, becomes v; seen after all that this PE has done before.  Does not wait. */
void sym_count(struct sym_ep *ep, int pe, size_t off, uint64_t v);
/* Wait until n words of this PE, the first at off, are v or more, where pe[k] writes word k, or has left the launch.  Fails as sym_recv. */
struct err *sym_counted(struct sym_ep *ep, const int *pe, int n, size_t off, uint64_t v);
/* In whose heap is p, as this process sees it, and where?  -1: in none that is mapped. */
int sym_whose(const struct sym_ep *ep, const void *p, size_t *off);

/* What two PEs that map each other send each other at the same time goes through two windows that they write by turns: each
 * writes its next bytes where it has just read the other's, so a line changes hands once for each piece, and none is fetched
 * only to be written.  Both streams count from 0; byte x of the one this PE writes is at sym_swap_out, of the one it reads at
 * sym_swap_in.  x may be written when byte x - SYM_WINDOW of the other has been read, and read when the other has told so, by
 * a line.  Both always go on to the same `at`; after a launch that failed for either they begin anew. */
enum { SYM_WINDOW = 128 << 10 };
struct sym_swap { char *window[2]; uint64_t at, epoch, failed; };     /* at: the next byte, the caller's to set; a multiple of 64 */
/* Of this PE and pe; may wait as sym_tell. */
struct err *sym_swap_with(struct sym_ep *ep, int pe, struct sym_swap **out);
static inline char *sym_swap_out(const struct sym_swap *s, uint64_t x) { return s->window[x / SYM_WINDOW & 1] + x % SYM_WINDOW; }
static inline char *sym_swap_in(const struct sym_swap *s, uint64_t x) { return s->window[!(x / SYM_WINDOW & 1)] + x % SYM_WINDOW; }

/* Bytes [off, off + n) of pe's heap: where they are if the heap is mapped, else a copy in buf (n bytes).  Anything if pe has
 * died, or this launch is to stop: whoever goes on waits for pe once more, or asks sym_check. */
const void *sym_at(struct sym_ep *ep, int pe, size_t off, size_t n, void *buf);
void sym_get(struct sym_ep *ep, int pe, void *dst, size_t off, size_t n);
/* The same, but dst is filled later: *left, which counts what is under way, is one more until then. */
void sym_get_nb(struct sym_ep *ep, int pe, void *dst, size_t off, size_t n, _Atomic uint32_t *left);
/* Wait until *left is 0; also when a process has died, or this launch is not to wait any more (sym_lost): so dst may be freed then. */
void sym_get_wait(struct sym_ep *ep, _Atomic uint32_t *left);
/* For a wait that is not for a line: is there a reason to wait no more for pe, after so many seconds?  An error as of sym_recv. */
struct err *sym_check(struct sym_ep *ep, int pe, uint32_t site, double waited);
/* Seen by pe no later than the next line sent to it. */
void sym_put(struct sym_ep *ep, int pe, size_t off, const void *src, size_t n);
/* The same, but src may be reused later: when *left, which is one more until then, has come down (sym_get_wait). */
void sym_put_nb(struct sym_ep *ep, int pe, size_t off, const void *src, size_t n, _Atomic uint32_t *left);
/* UNAVAILABLE if data of a process that died did not come in this launch, ABORTED or CANCELLED if it was not waited for: what was read
 * is worth nothing. */
struct err *sym_lost(struct sym_ep *ep);
bool sym_maps(const struct sym_ep *ep, int pe);            /* sym_mapped of its world */
char *sym_ep_base(const struct sym_ep *ep);                  /* of the PE's own heap */
int sym_ep_pe(const struct sym_ep *ep);

/* --- team.c -------------------------------------------------------------- */

/* PEs that do something together.  A handle is one PE's: each member has its own, and uses it from one thread at a time;
 * a thread may use several.  Ranks are numbers within a team.
 *
 * "Collective" here means: called by all members of the team it is about, and by nobody else; calls on one team in the
 * same order by all of them.  It waits for the others.  When a wait of it fails on one member it fails on all, sooner or
 * later; the team then gives that error for ever, and can only be freed.  What all members are refused alike (INVALID, EXHAUSTED) leaves it as it was. */
struct sym_team;
struct sym_team *sym_team_world(struct sym_world *w, int pe);     /* all PEs, as pe sees them; borrowed; NULL if pe is not local */
/* The PEs list[0 .. n), distinct, the local PE pe among them: equal on all of them.  Collective.  One PE's threads may
 * make teams at the same time, but not twice of the same list.  INVALID for a list that cannot be, EXHAUSTED for more than 32 at the
 * same time with another PE; else as sym_team_sync. */
struct err *sym_team_new(struct sym_world *w, int pe, const int *list, int n, struct sym_team **out);   /* owned */
/* Members start, start + stride, .. (n ranks of t; stride may be negative).  Who is not among them gets NULL at once, which has no
 * members and rank -1, and need not call.  t is only read, and need not live longer. */
struct err *sym_team_split(const struct sym_team *t, int start, int stride, int n, struct sym_team **out);
/* As a matrix with rows of nx ranks, the last maybe shorter: this PE's row and its column.  Collective in both. */
struct err *sym_team_split_2d(const struct sym_team *t, int nx, struct sym_team **row, struct sym_team **col);
/* Collective.  A team of which there is memory lives until that is freed.  NULL and the world's team are fine. */
void sym_team_free(struct sym_team *t);
int sym_team_me(const struct sym_team *t);                   /* this PE's rank */
int sym_team_n(const struct sym_team *t);
int sym_team_pe(const struct sym_team *t, int rank);         /* its number in the world; -1 if there is no such rank */
int sym_team_rank(const struct sym_team *t, int pe);         /* -1 if it is no member */
/* The rank in `to` of rank `rank` of `from`; -1 if there is none. */
int sym_team_translate(const struct sym_team *from, int rank, const struct sym_team *to);
/* Collective: returns when all members have called it.  Says nothing of puts.  Fails with UNAVAILABLE (the process of a
 * member has died or left), DEADLINE (RONDO_TIMEOUT) or CANCELLED. */
struct err *sym_team_sync(struct sym_team *t);
/* Collective: sync, and before it all that this PE did by any context is at its targets (streams apart). */
struct err *sym_team_barrier(struct sym_team *t);

/* Memory of which every member of a team has a block of the same size, each at an offset of its own.  The handle is one
 * PE's, and may be used by all its threads. */
struct sym_mem;
/* Collective: n bytes of zeros (0 is fine) on a multiple of 64.  what as for sym_alloc.  INVALID when the members ask for
 * different sizes; EXHAUSTED on all when one has no room. */
struct err *sym_mem_new(struct sym_team *t, size_t n, const char *what, struct sym_mem **out);   /* owned */
/* Collective, with a barrier: nobody may be using it, nor a stream.  NULL is fine. */
void sym_mem_free(struct sym_mem *m);
void *sym_mem_at(const struct sym_mem *m);                   /* this PE's block */
size_t sym_mem_bytes(const struct sym_mem *m);
size_t sym_mem_off(const struct sym_mem *m, int rank);       /* in the heap of that member; SIZE_MAX if there is no such rank */
struct sym_team *sym_mem_team(const struct sym_mem *m);      /* borrowed */
/* A member's block, for loads, stores and C's atomics; NULL if it is not mapped here or there is no such rank. */
void *sym_ptr(const struct sym_mem *m, int rank);

/* --- rma.c --------------------------------------------------------------- */

/* A stream of one-sided operations of one local PE.  An operation names its target as byte off of m on the member `rank` of
 * m's team; m must be this PE's handle.
 *
 * Order: operations have none, but what is said here.  A signal, an atomic without result, and put_signal's signal are
 * seen after all that the same PE sent to the same target before.  fence orders the context's puts, signals and atomics before it
 * before those after it, for each target; quiet waits until all that its PE did is at its targets.  Who sees a word by a
 * wait or test, or an atomic, sees what was ordered before it.
 * Words: a put or get of 1, 2, 4 or 8 bytes on such a boundary is never of a part of one.  Atomics are atomic with each other, with C's on
 * the mapped word, and with such puts.
 * Failure: the calls that return no error keep the first one in the context; quiet gives it, once.  What was to be
 * read is zeros then, unless more was asked for than the memory has.  A target's process that has died is known at quiet, as UNAVAILABLE;
 * of one that has left the job in order quiet says nothing: it may have left with all that it was sent, what came later is dropped. */
enum sym_ctx_kind {
	SYM_SHARED,               /* any threads, at the same time */
	SYM_SERIAL,               /* any threads, one at a time */
	SYM_PRIVATE,              /* the thread that made it; what another does with it is PRECONDITION, at quiet */
};
struct sym_ctx;
struct err *sym_ctx_new(struct sym_world *w, int pe, enum sym_ctx_kind kind, struct sym_ctx **out);   /* owned; pe is local, else INVALID */
void sym_ctx_free(struct sym_ctx *c);                        /* quiet first; an error that nobody asked for is logged, unless it is CANCELLED.  NULL is fine */

/* Blocking until src may be reused, dst is filled. */
void sym_ctx_put(struct sym_ctx *c, struct sym_mem *m, size_t off, const void *src, size_t n, int rank);
void sym_ctx_get(struct sym_ctx *c, void *dst, struct sym_mem *m, size_t off, size_t n, int rank);
/* Not blocking: src must stay, dst must not be looked at, until quiet.  Through a network the transfer goes on while the caller
 * does; on a mapped heap there is nobody to do it but a core, so the caller copies at once, whatever the size.  Who has
 * a core to spare puts on a stream. */
void sym_ctx_put_nbi(struct sym_ctx *c, struct sym_mem *m, size_t off, const void *src, size_t n, int rank);
void sym_ctx_get_nbi(struct sym_ctx *c, void *dst, struct sym_mem *m, size_t off, size_t n, int rank);
/* n elements of `bytes` each; steps between them in elements, of the remote side (rs) and the local one (ls); may be negative.
 * Blocking as put and get. */
void sym_ctx_iput(struct sym_ctx *c, struct sym_mem *m, size_t off, ptrdiff_t rs, const void *src, ptrdiff_t ls, size_t bytes, size_t n, int rank);
void sym_ctx_iget(struct sym_ctx *c, void *dst, ptrdiff_t ls, struct sym_mem *m, size_t off, ptrdiff_t rs, size_t bytes, size_t n, int rank);
/* One element of 1, 2, 4 or 8 bytes; zero-extended. */
void sym_ctx_p(struct sym_ctx *c, struct sym_mem *m, size_t off, int bytes, uint64_t v, int rank);
uint64_t sym_ctx_g(struct sym_ctx *c, struct sym_mem *m, size_t off, int bytes, int rank);

/* A word of 4 or 8 bytes on its boundary.  amo gives the word before; nbi writes it to *old by quiet; post gives nothing
 * and does not wait. */
uint64_t sym_ctx_amo(struct sym_ctx *c, struct sym_mem *m, size_t off, int bytes, enum sym_amo op, uint64_t v, uint64_t cond, int rank);
void sym_ctx_amo_nbi(struct sym_ctx *c, struct sym_mem *m, size_t off, int bytes, enum sym_amo op, uint64_t v, uint64_t cond, int rank, uint64_t *old);
void sym_ctx_amo_post(struct sym_ctx *c, struct sym_mem *m, size_t off, int bytes, enum sym_amo op, uint64_t v, int rank);

/* Signals are words of 8 bytes of any symmetric memory.  op: SYM_SET or SYM_ADD.  A counter says how many came, not which:
 * give each piece a word of its own where that matters.  put_signal's rank is one of m's team; sig may be of another team that
 * has the same PE. */
void sym_ctx_put_signal(struct sym_ctx *c, struct sym_mem *m, size_t off, const void *src, size_t n,
                        struct sym_mem *sig, size_t sigoff, enum sym_amo op, uint64_t v, int rank);
void sym_ctx_put_signal_nbi(struct sym_ctx *c, struct sym_mem *m, size_t off, const void *src, size_t n,
                            struct sym_mem *sig, size_t sigoff, enum sym_amo op, uint64_t v, int rank);
void sym_ctx_signal(struct sym_ctx *c, struct sym_mem *sig, size_t off, enum sym_amo op, uint64_t v, int rank);
uint64_t sym_signal_fetch(const struct sym_mem *sig, size_t off);         /* this PE's; 0 where there can be none */

void sym_ctx_fence(struct sym_ctx *c);
struct err *sym_ctx_quiet(struct sym_ctx *c);

/* Waiting for words of this PE's own block, that others write by signals, atomics, p, or puts of such a word. */
enum sym_type { SYM_I32, SYM_U32, SYM_I64, SYM_U64 };
enum sym_cmp { SYM_EQ, SYM_NE, SYM_GT, SYM_GE, SYM_LT, SYM_LE };
enum { SYM_ANY = -1 };
struct sym_cond {
	struct sym_mem *m; size_t off;
	size_t n;                 /* words, next to each other */
	enum sym_type type; enum sym_cmp cmp;
	int64_t v;                /* what each word is compared with; */
	const int64_t *each;      /* or, if not NULL, each[i] */
	const uint8_t *skip;      /* if not NULL: words with skip[i] != 0 do not count */
	int from;                 /* rank that will write them, or SYM_ANY: whose death ends the wait */
};
/* Wait until all, any, or at least one of the words are as said; 0 words, or all skipped, is no wait.  any gives one that is (n if
 * none counts), looking first where it did not look last; some gives all that are, in order, and their number.  They
 * poll, then yield, then sleep, and fail with UNAVAILABLE (the process of `from` has died or left; of SYM_ANY: one of the team
 * has died, or all others have left), DEADLINE, CANCELLED, or INVALID for a condition that cannot be. */
struct err *sym_wait_all(struct sym_ctx *c, const struct sym_cond *x);
struct err *sym_wait_any(struct sym_ctx *c, const struct sym_cond *x, size_t *which);
struct err *sym_wait_some(struct sym_ctx *c, const struct sym_cond *x, size_t *which, size_t *n);
/* One word; *seen (may be NULL) gets what it was. */
struct err *sym_wait_until(struct sym_ctx *c, struct sym_mem *m, size_t off, enum sym_type type, enum sym_cmp cmp, int64_t v, int from, int64_t *seen);
/* The same without waiting.  any gives n if there is none; some their number.  Of a condition that cannot be none is true; the context
 * keeps the error. */
bool sym_test_all(struct sym_ctx *c, const struct sym_cond *x);
size_t sym_test_any(struct sym_ctx *c, const struct sym_cond *x);
size_t sym_test_some(struct sym_ctx *c, const struct sym_cond *x, size_t *which);

/* --- stream.c ------------------------------------------------------------ */

/* Operations of a local PE that a thread of the stream's own does, one after the other, while the caller goes on.  Calls may
 * come from any thread; they copy their arguments but not what is behind pointers: sources, destinations and memory
 * handles must stay until the operation is done.
 *
 * Each operation begins when the one before is done: a put is done when its source may be reused, and what follows it to the same
 * PE is seen after it; a recorded event, and sync, mean that all before is at its targets.
 * The first failure sticks: what follows is not done, events are recorded as failed, and sync gives an error that names the
 * stream, the operation and its number, for ever. */
struct sym_stream; struct sym_event;
struct err *sym_stream_new(struct sym_world *w, int pe, const char *name, struct sym_stream **out);   /* owned; the name is copied */
void sym_stream_free(struct sym_stream *s);                  /* waits until all is done; NULL is fine */
void sym_stream_cancel(struct sym_stream *s);                /* ends the operation that waits, with CANCELLED */
struct err *sym_stream_sync(struct sym_stream *s);           /* wait until all that was enqueued is done */
bool sym_stream_idle(struct sym_stream *s);                  /* is it? */
void sym_stream_put(struct sym_stream *s, struct sym_mem *m, size_t off, const void *src, size_t n, int rank);
void sym_stream_get(struct sym_stream *s, void *dst, struct sym_mem *m, size_t off, size_t n, int rank);
void sym_stream_put_signal(struct sym_stream *s, struct sym_mem *m, size_t off, const void *src, size_t n,
                           struct sym_mem *sig, size_t sigoff, enum sym_amo op, uint64_t v, int rank);
void sym_stream_signal(struct sym_stream *s, struct sym_mem *sig, size_t off, enum sym_amo op, uint64_t v, int rank);
void sym_stream_wait(struct sym_stream *s, struct sym_mem *m, size_t off, enum sym_type type, enum sym_cmp cmp, int64_t v, int from);
/* fn(user) on the stream's thread; a failure is the stream's.  what: for messages, copied. */
void sym_stream_call(struct sym_stream *s, const char *what, struct err *(*fn)(void *user), void *user);

/* Collectives on streams (coll.h has those that move data) have endpoints and words of their own: the PE may be in another
 * collective of the same team meanwhile.  All of a PE's, over all its streams, are done one at a time in the order in which they
 * were enqueued, which must be the same for any two PEs that do them together.  A member whose stream has failed before takes part
 * by failing, so it fails for all; so does one that is cancelled, but for those who need no more of it than it has sent: only then
 * may a member's memory still be in use by others, until they have failed or ended as well. */

/* As sym_team_barrier, for what this stream did and, streams apart, the PE. */
void sym_stream_barrier(struct sym_stream *s, struct sym_team *t);
/* fn(user) on the stream's thread, between sym_begin and sym_end of sym_stream_ep with the other members of t.  what: the same on all
 * of them, copied.  Then, whether fn was called or not, drop(user), if not NULL. */
void sym_stream_collective(struct sym_stream *s, struct sym_team *t, const char *what, struct err *(*fn)(void *user), void *user, void (*drop)(void *user));

/* Points in streams.  Any thread; an event that is used must live. */
struct sym_event *sym_event_new(void);                       /* owned; counts as recorded and done */
void sym_event_free(struct sym_event *v);                    /* NULL is fine */
void sym_event_record(struct sym_event *v, struct sym_stream *s);
/* What follows in s waits for the last record of v before this call; its failure is s's as well. */
void sym_stream_await(struct sym_stream *s, struct sym_event *v);
bool sym_event_done(struct sym_event *v);
struct err *sym_event_wait(struct sym_event *v);             /* the error of its stream at that point */

/* --- wait.c -------------------------------------------------------------- */

/* Sleep while *word is seen, at most ns nanoseconds (< 0: for ever).  May wake early. */
void sym_sleep(_Atomic uint32_t *word, uint32_t seen, int64_t ns);
void sym_wake(_Atomic uint32_t *word, int n);                /* wake n sleepers of this process */
/* The same for those who are in a set of bits: however many they are, one call wakes them. */
void sym_sleep_in(_Atomic uint32_t *word, uint32_t seen, int64_t ns, uint32_t bits);
void sym_wake_in(_Atomic uint32_t *word, uint32_t bits);
/* How often a wait polls before it lets another thread run: 2000 if threads fit the cores, else 4. */
int sym_spins(int threads);
/* Lets another thread run.  False: it did not, since other processes have the core then for longer than a wake-up takes; sleep.  Any thread. */
bool sym_give_way(void);
bool sym_aside(void);                                       /* is that so at present? */
static inline void sym_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

#endif
