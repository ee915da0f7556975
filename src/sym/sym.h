/* Symmetric memory: every PE (device) can read, write and signal the heap of
 * every other one, with no receive call on the other side.
 *
 * PEs are threads of one process or of several, on one host or on many: the *world* knows how to reach each.
 * A *heap* per PE: a large sparse region of which blocks are handed out; other PEs know it by number and
 * address bytes in it by offset, never by pointer.  An *endpoint* per PE: the channels to all other PEs, used
 * by one thread at a time.  docs/sym.md describes the protocol.
 *
 * The world and heaps are thread-safe; an endpoint belongs to the thread that runs its PE's program.  Nothing
 * here knows what the bytes mean. */
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
	int64_t limit;            /* bytes that all local heaps may hold together; 0: no limit */
	int threads;              /* threads that will run on this process' cores: decides how long a wait spins */
	bool guard;               /* guard bytes round every block, looked at when it is freed */
	bool chaos;               /* delay what the memory model allows to be late; heaps of peers are not mapped */
	uint64_t seed;            /* of the delays */
};
/* Join the world.  Collective over the processes of boot: waits for all of them, and says on stderr for whom
 * when that takes long.  PEs are numbered by process, then within the process.  EXHAUSTED if the address space
 * cannot be had; PRECONDITION if a process is of another version; UNAVAILABLE if a process cannot be reached,
 * or did not come within RONDO_JOIN_TIMEOUT seconds. */
struct err *sym_open(const struct sym_opts *o, struct sym_world **out);   /* owned */
/* Leave.  Not collective: peers that still wait for this process get an error that says it has left.  NULL is
 * fine; no endpoint may be in use. */
void sym_close(struct sym_world *w);
int sym_npe(const struct sym_world *w);                      /* of all processes */
int sym_first(const struct sym_world *w);                    /* the first local PE; local ones follow each other */
int sym_nproc(const struct sym_world *w);
int sym_proc(const struct sym_world *w);                     /* this process */
int sym_proc_of(const struct sym_world *w, int pe);
bool sym_mapped(const struct sym_world *w, int pe);          /* its heap is seen by loads and stores of this process */
const char *sym_road(const struct sym_world *w, int pe);     /* "self", "thread", "shm", "ucx", "chaos" */
struct sym_heap *sym_heap_of(struct sym_world *w, int pe);   /* local PEs only; borrowed */
struct sym_ep *sym_ep_of(struct sym_world *w, int pe);       /* local PEs only; borrowed */
/* What this process does outside programs ("compiling 'step'"; NULL: nothing): shown to peers that wait for it. */
void sym_phase(struct sym_world *w, const char *text);
/* All waits of local PEs end with CANCELLED, now and later. */
void sym_cancel(struct sym_world *w);

/* --- boot.c -------------------------------------------------------------- */

/* The store that the environment names, for programs that JAX does not start: RONDO_RENDEZVOUS
 * (tcp://host:port, or a folder that all processes see), RONDO_PROCESS and RONDO_PROCESSES, as `rondo launch` sets
 * them, or the variables of Open MPI, PMIx and Slurm.  *out is NULL if there is one process only. */
struct err *sym_boot_env(struct kv **out);
void sym_boot_free(struct kv *k);                            /* NULL is fine */
/* Serve a store at host:port (port 0: any free one, written back) until freed; to those who show the token. */
struct sym_server;
struct err *sym_server_new(const char *host, int *port, const char *token, struct sym_server **out);
void sym_server_free(struct sym_server *s);

/* --- heap.c -------------------------------------------------------------- */

/* A block of a heap.  off is a multiple of 64. */
struct sym_block { size_t off, bytes; };

/* Take n bytes (0 is fine).  what and index say for whom ("result 3 of 'step'": index -1 is not shown);
 * what must outlive the block.  The bytes are undefined.  EXHAUSTED says how much was asked and free and
 * lists the largest live blocks. */
struct err *sym_alloc(struct sym_heap *h, size_t n, const char *what, int index, struct sym_block **out);
void sym_free(struct sym_block *b);                          /* NULL is fine */
char *sym_base(const struct sym_heap *h);                    /* where this process sees the heap */
size_t sym_span(const struct sym_heap *h);                   /* bytes of its region */

struct sym_stats { int64_t in_use, peak, limit, allocs, largest, reserved; };   /* bytes, but allocs */
struct sym_stats sym_heap_stats(struct sym_heap *h);
void sym_heap_clear_stats(struct sym_heap *h);               /* peak = in_use; gives unused pages back */
int64_t sym_guard_broken(void);                              /* blocks found written outside, by all heaps so far */

/* --- ep.c ---------------------------------------------------------------- */

/* Messages between two PEs travel in order through a channel: a ring of 8 lines of 64 bytes in the
 * receiver's heap.  Three verbs move data:
 *   put    the consumer GRANTs (offset, bytes); the producer waits for it, puts, says READY
 *   lend   the producer says LEND (offset, bytes) and leaves the data where it is; the consumer reads it in
 *          place and returns the line
 *   slot   the message carries up to SYM_SLOT bytes itself
 * A byte may be overwritten or freed only when every loan of it is returned and every grant on it is used up. */
enum sym_verb { SYM_SLOT_MSG = 1, SYM_LEND, SYM_GRANT, SYM_READY };
enum { SYM_RING = 8, SYM_INLINE = 32, SYM_SLOT = 4096 };

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
 * peers have left the launch, so that nothing of it touches this heap any more.  NULL: it went well. */
void sym_end(struct sym_ep *ep, const struct err *why);
/* Wake whoever waits on pe: after stop was set. */
void sym_ring(struct sym_world *w, int pe);

/* site: the command that communicates, equal on both sides; < 2^24.  The calls below may wait; they fail with
 * ABORTED (the launch failed here or at the peer), DEADLINE (RONDO_TIMEOUT), UNAVAILABLE (the peer's process has
 * died or left), or INTERNAL when the peer runs another program or another command. */

/* Room for a message of n <= SYM_SLOT bytes to pe; sym_slot_send sends what was written there. */
struct err *sym_slot_room(struct sym_ep *ep, int pe, size_t n, void **out);
void sym_slot_send(struct sym_ep *ep, int pe, uint32_t site, size_t n);
/* Send a line of another verb. */
struct err *sym_tell(struct sym_ep *ep, int pe, uint32_t site, enum sym_verb v, size_t off, size_t n);
/* The next line from pe, which must be of this site and verb. */
struct sym_msg { size_t off, n; const void *data; };         /* data: of a slot message, valid until returned */
struct err *sym_recv(struct sym_ep *ep, int pe, uint32_t site, enum sym_verb v, struct sym_msg *out);
/* Everything received from pe so far may be overwritten.  now: the sender is waiting for it (a loan). */
void sym_return(struct sym_ep *ep, int pe, bool now);
/* Wait until pe has returned everything sent to it, in this launch and before. */
struct err *sym_settle(struct sym_ep *ep, int pe);
/* The last line sent to pe; wait until pe has returned that line, of this launch or an older one. */
uint64_t sym_sent(const struct sym_ep *ep, int pe);
struct err *sym_await(struct sym_ep *ep, int pe, uint64_t line);

/* Bytes [off, off + n) of pe's heap: where they are if the heap is mapped, else a copy in buf (n bytes). */
const void *sym_at(struct sym_ep *ep, int pe, size_t off, size_t n, void *buf);
void sym_get(struct sym_ep *ep, int pe, void *dst, size_t off, size_t n);
/* Seen by pe no later than the next line sent to it. */
void sym_put(struct sym_ep *ep, int pe, size_t off, const void *src, size_t n);
/* UNAVAILABLE if data of a process that died did not come in this launch: what was read is worth nothing. */
struct err *sym_lost(struct sym_ep *ep);
char *sym_ep_base(const struct sym_ep *ep);                  /* of the PE's own heap */
int sym_ep_pe(const struct sym_ep *ep);

/* --- wait.c -------------------------------------------------------------- */

/* Sleep while *word is seen, at most ns nanoseconds (< 0: for ever).  May wake early. */
void sym_sleep(_Atomic uint32_t *word, uint32_t seen, int64_t ns);
void sym_wake(_Atomic uint32_t *word, int n);                /* wake n sleepers of this process */
/* How often a wait polls before it lets another thread run: 2000 if threads fit the cores, else 20. */
int sym_spins(int threads);
static inline void sym_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

#endif
