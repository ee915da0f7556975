/* What the files of sym share. */
#ifndef RONDO_SYM_IMPL_H
#define RONDO_SYM_IMPL_H

#include <pthread.h>

#include "sym.h"

enum { SYM_SLB = 3, SYM_SL = 1 << SYM_SLB, SYM_FL = 56 };

/* The heaps of one process: n of them, each bytes apart. */
struct sym_region { char *base; size_t each; int n, fd; };

struct block;
struct sym_heap {
	struct sym_world *world;
	int i;                            /* among the local ones */
	char *base;
	size_t reserve, top;              /* bytes of the region; bytes that were ever handed out */
	pthread_mutex_t lock;
	struct block *last, *spare;       /* by address; unused descriptors: */
	size_t nspare;
	uint64_t flmap;
	uint8_t slmap[SYM_FL];
	struct block *list[SYM_FL][SYM_SL];
	int64_t in_use, peak, allocs, largest;
};

/* --- the control zone: the start of every heap, at the same offset on all PEs --- */

/* What a message holds beyond its line, if it is short: each piece says for itself that it has come. */
struct sym_piece { _Alignas(64) uint64_t w[7]; _Atomic uint64_t tick; };
enum { SYM_PIECE = 56, SYM_PIECES = (SYM_SHORT - SYM_INLINE) / SYM_PIECE, SYM_WORDS = 8 };
struct sym_line {                         /* SYM_WORDS, and its pieces behind it: a processor that fetches lines ahead fetches these */
	_Alignas(256) _Atomic uint64_t first;
	uint64_t what;                    /* program << 32 | site << 8 | verb */
	uint64_t w[4];                    /* offset, bytes; or the data of a short slot message */
	uint32_t ack, n;                  /* returns of the other direction; bytes of a slot message */
	_Atomic uint64_t last;
	struct sym_piece piece[SYM_PIECES];
};
_Static_assert(offsetof(struct sym_line, piece) == 64, "a line is a cache line");
struct sym_ret {                          /* written by the peer */
	_Alignas(128) _Atomic uint64_t returned;   /* tick of the last line of ours it has returned */
	_Atomic uint64_t closed;          /* launches it has closed */
	_Atomic uint64_t failed;          /* the last of these that failed; its `why` says why */
};
/* A team that is being made: a hash of its list of members and of how many there were of this list; that number, and where the sender's
 * words for it are, with the list behind them.  Written by a line of 8 words.  Who has read it wipes the key. */
struct sym_mail { _Alignas(64) _Atomic uint64_t key; uint64_t count, n, off, spare[4]; };
enum { SYM_MAILS = 32, SYM_WHY = 512, SYM_ROUNDS = 17 };         /* rounds of a sync of 2^17 PEs */
struct sym_word { _Alignas(64) _Atomic uint64_t v; };

struct sym_from {                         /* what one peer writes */
	struct sym_line ring[SYM_RING];
	struct sym_mail mail[SYM_MAILS];
	_Alignas(64) uint64_t give[2][2];         /* exchanges of the world's team: even and odd ones, two words each */
	char why[SYM_WHY];                        /* of a seat that cannot be read here */
	_Alignas(4096) char slot[SYM_RING][SYM_SLOT];
	char swap[SYM_WINDOW];                      /* a window of both: see sym.h */
};
/* What an endpoint shows. */
struct sym_seat {
	_Alignas(128) _Atomic uint64_t status;    /* program << 32 | site of the last message; 0 outside a launch */
	_Atomic uint64_t posts;           /* done before this launch */
	_Alignas(128) char name[128];             /* of the program */
	char why[SYM_WHY];                        /* why the last launch that failed did */
};
enum { SYM_TOGETHER = (SYM_SHORT + 63) & ~63 };
enum { SYM_SEATS = 2, SYM_POSTS = 4 };    /* endpoints of a PE: its own, its streams'; posts that are kept */
struct sym_control {
	char nonce[32];                   /* drawn by the process: whoever maps this sees whose it is */
	_Alignas(128) _Atomic uint32_t bell;      /* changes when something arrived for a sleeper */
	_Atomic uint32_t sleepers;
	_Atomic int cpu[2];                       /* where each endpoint was seen to run, + 1; 0: not known */
	char phase[256];                          /* what the process does outside programs; NUL-terminated, like all texts here */
	struct sym_seat seat[SYM_SEATS];
	struct sym_line post[SYM_SEATS][SYM_POSTS];       /* what this PE tells all others at once */
	struct sym_word sync[SYM_ROUNDS];         /* of the world's team */
	/* Seat by seat, npe each: all of a heap lie together, for each launch writes the word of closes to all whom it names. */
	struct sym_ret ret[];
	/* Then, seat by seat, a bit for each PE: whom the program of status talks to (sym_with_words words).  Then, from the next page on,
	 * in the order of ret: struct sym_from, of which a pair that exchanges nothing touches nothing. */
};
static inline size_t sym_ret_off(int npe, int which, int pe) { return offsetof(struct sym_control, ret) + (size_t)(which * npe + pe) * sizeof(struct sym_ret); }
static inline size_t sym_with_words(int npe) { return ((size_t)npe + 63) / 64; }
static inline size_t sym_with_off(int npe, int which) { return sym_ret_off(npe, SYM_SEATS, 0) + (size_t)which * sym_with_words(npe) * sizeof(uint64_t); }
static inline size_t sym_from_off(int npe, int which, int pe)
{
	return ((sym_with_off(npe, SYM_SEATS) + 4095) & ~(size_t)4095) + (size_t)(which * npe + pe) * sizeof(struct sym_from);
}

#define CHAN_LINE struct sym_line
#define CHAN_RET struct sym_ret
#define CHAN_LOAD(p) atomic_load_explicit(p, memory_order_acquire)
#define CHAN_WIPE(p) atomic_store_explicit(p, 0, memory_order_relaxed)
#include "chan.h"

/* What an atomic does to a word; also of sym.h's calls.  Values of words of 32 bits are zero-extended. */
uint64_t sym_amo_at(void *p, int bytes, enum sym_amo op, uint64_t v, uint64_t cond);   /* the word before */

/* A way to reach heaps that are not mapped.  Thread-safe: any thread may call for any local PE `from`.
 *
 * Order: a line, an atomic, is seen by pe after all puts, lines and atomics that `from` did to it before.  Puts have no
 * other order among themselves, nor after a line, but by fence; gets have none.
 * Failure: when the process of pe cannot be reached any more, it is marked so (sym_gone) before the call that found
 * out returns, and what was to be read is undefined; nothing waits for ever. */
struct sym_transport {
	const char *name;
	struct err *(*open)(struct sym_world *w);
	void (*close)(struct sym_world *w);
	/* Blocking: dst is filled; src may be reused. */
	void (*get)(struct sym_world *w, int from, int pe, void *dst, size_t off, size_t n);
	void (*put)(struct sym_world *w, int from, int pe, size_t off, const void *src, size_t n);
	/* Not blocking: *left is counted down by one, with release, when dst is filled, or src may be reused; also when
	 * that has failed. */
	void (*get_nb)(struct sym_world *w, int from, int pe, void *dst, size_t off, size_t n, _Atomic uint32_t *left);
	void (*put_nb)(struct sym_world *w, int from, int pe, size_t off, const void *src, size_t n, _Atomic uint32_t *left);
	/* Write n words at off, the first of them last, and wake who sleeps there. */
	void (*line)(struct sym_world *w, int from, int pe, size_t off, const uint64_t *word, int n);
	/* put, then line, as one message. */
	void (*put_line)(struct sym_world *w, int from, int pe, size_t off, const void *src, size_t n, size_t loff, const uint64_t *word, int nword);
	/* op on the word of 4 or 8 bytes at off, atomic with all other atomics and with C's on it, then wake who sleeps
	 * there.  cond: what SYM_CAS compares with.  old: the word before, waited for; NULL: does not wait. */
	void (*amo)(struct sym_world *w, int from, int pe, enum sym_amo op, int bytes, size_t off, uint64_t v, uint64_t cond, uint64_t *old);
	/* What `from` does to pe from now on is seen there after what it did before. */
	void (*fence)(struct sym_world *w, int from, int pe);
	/* Wait until all that `from` did is seen at its targets and every *left of it is counted down. */
	void (*quiet)(struct sym_world *w, int from);
	/* Let go of the caller's memory for all that counts *left down, which is 0 then: what a get had to fill is zeros, what a put
	 * has not read yet goes on from memory of the transport's. */
	void (*forget)(struct sym_world *w, _Atomic uint32_t *left);
	bool (*poll)(struct sym_world *w);        /* make progress, for one who waits; true if there was some.  May be NULL */
	bool asks;                        /* which may be the road's own questions whether others are there */
};
extern const struct sym_transport sym_chaos, sym_tcp, sym_ucx;

/* What this process knows of a PE. */
struct sym_peer {
	char *base;                       /* where its heap is seen here; NULL if nowhere */
	bool mapped;                      /* loads and stores reach it; else the transport does */
	int proc;                         /* its process */
	int host;                         /* see sym_host_of */
};

/* What this process knows of another. */
enum sym_life { SYM_HERE, SYM_LEFT, SYM_DEAD };
struct sym_process {
	int first, npe, pid;
	char host[64];                    /* for messages only */
	_Atomic int life;                 /* enum sym_life */
	int fd, pidfd;                    /* of a process of this host: its end of file is its death */
	struct sym_region region;         /* of a process of this host, mapped here */
};

enum { SYM_GAVE_UP = -1, SYM_LATE = -2 };

/* Where a PE writes at another whose heap is mapped; else NULL.  fenced: of launches up to this, nothing is on its way any more. */
struct sym_to { struct sym_from *from; struct sym_control *control; uint64_t fenced; };

struct sym_ep {
	_Alignas(128) struct sym_world *world;
	int pe;
	int which;
	size_t mine, words;               /* offsets of what this PE writes, in the control zone of every other: struct sym_from, struct sym_ret */
	struct sym_control *me;
	struct sym_seat *seat;            /* in it */
	struct sym_from *from;            /* npe, in it: what the others write */
	struct chan *chan;                /* npe */
	struct sym_to *to;                /* npe */
	struct sym_swap *swap;            /* npe */
	_Atomic int lost;                 /* process whose data did not come, + 1; SYM_GAVE_UP, SYM_LATE: it was not waited for, or for so long */
	uint32_t named;                   /* program whose name stands in the control zone */
	struct sym_launch l;
	bool (*away)(void *user);         /* instead of a wait: sym_away */
	void *away_user;
	bool soon;                        /* waits sleep at once: sym_sleeps_soon */
	struct sym_block **kept;          /* of this launch: sym_keep */
	int nkept;
	struct sym_debt *debt;            /* launches that failed and are not over for all, the oldest first */
	_Atomic double since;             /* when this wait first had nothing left but to sleep, in seconds; 0: it has not */
	double most;                      /* seconds that this wait may take; 0: as many as all */
	int spins;                        /* polls before the next wait yields: fewer while polling has been in vain */
	int cpu;                          /* what the control zone says of it */
	bool asked;                       /* something brief was sent since the last line was waited for */
	int patient;                      /* pauses from there to the first look for an answer, by */
	double takes;                     /* what an answer takes beyond them, in seconds; learnt from one message in many: */
	uint32_t lines;                   /* sent, */
	double asked_at;                  /* when one of these was; 0: none */
	uint64_t posts;                   /* of this PE, */
	uint64_t *post;                   /* npe: what the others have beyond them, once this launch has had an exchange of all */
	bool met;                         /* it has */
	char (**in)[SYM_TOGETHER];                /* by PE, of each line of its ring and of its posts: where the pieces of a short message are put together; made when first needed */
	char room[SYM_SLOT];              /* a message being written, where it is short or heaps are not mapped */
};

struct sym_world {
	int npe, first, nlocal, threads;
	int64_t limit, memory;            /* bytes of all heaps; as it would be if address space had no limit */
	int64_t share, said;              /* sym_allowed */
	bool narrow;                      /* heaps are smaller than they would be, for want of address space */
	bool roomy;                       /* between hosts, and every thread of this one has a core */
	bool guard, fence;                /* fence: the writer must order its line before it looks for sleepers */
	int spins;
	double pause;                     /* seconds that sym_pause takes */
	double patience;                  /* seconds after which a wait fails; 0: never */
	_Atomic int64_t in_use, paged;    /* of all local heaps; paged: bytes of blocks that may hold pages */
	struct sym_region region;         /* of this process */
	struct sym_heap *heap;            /* nlocal */
	struct join *join;                /* join.h */
	struct sym_ep *ep;                /* nlocal a seat */
	struct sym_peer *peer;            /* npe */
	int nproc, proc;
	struct sym_process *process;      /* nproc */
	_Atomic int gone;                 /* processes that are not SYM_HERE; or -1: waits are cancelled */
	_Atomic int died;                 /* 1 + the process that was seen to die before all others; 0: none was */
	bool shared;                      /* other processes of this host wait for words of ours, and we for theirs */
	const struct sym_transport *tr;   /* to those that loads and stores do not reach; NULL if they reach all */
	const struct sym_transport *net;  /* to those that are not mapped; NULL if all are */
	void *tr_data, *net_data;
	uint64_t seed;
	struct sym_side *side;            /* nlocal */
};

static inline bool sym_local(const struct sym_world *w, int pe) { return pe >= w->first && pe < w->first + w->nlocal; }

/* What a local PE has besides its endpoint. */
struct sym_side {
	pthread_mutex_t lock;
	struct map made;                  /* teams made so far, by list of members */
	uint32_t *mail;                   /* npe: mails of ours there that are in use */
	struct sym_team *world;
	pthread_mutex_t turn_lock;        /* collectives of streams: tickets given, tickets served */
	pthread_cond_t turn_cond;
	uint64_t given, served;
};

struct sym_team {
	struct sym_world *w;
	int pe, me, n;
	int uses;                         /* the handle, and memory of the team */
	int *pe_of, *rank_of;             /* n; npe */
	struct sym_block *area;           /* of this PE; NULL: the world's, in the control zone */
	size_t *word, *give;              /* n: where a member keeps its words of rounds; what this PE gives it */
	size_t give_step;                 /* from even to odd exchanges */
	size_t mine, mine_step;           /* where rank 0 gives to this PE; from rank to rank */
	uint64_t syncs, turns;            /* done so far */
	struct err *failed;
};

struct sym_mem {
	struct sym_team *team;
	size_t bytes, *off;               /* n: where each member has it */
	char **at;                        /* n: the same here, NULL if loads and stores do not reach it */
	struct sym_block *block;
};

struct err *sym_sides(struct sym_world *w);          /* set w->side; w->peer is known.  Undone by: */
void sym_sides_free(struct sym_world *w);
/* A word at off of pe's heap, seen after all that `from` did to it before; wakes pe. */
void sym_word_put(struct sym_world *w, int from, int pe, size_t off, uint64_t v);
/* All that local PE pe did is seen at its targets, and by its own later loads. */
void sym_quiet_all(struct sym_world *w, int pe);

enum { SYM_HEAP_LEAST = 64 << 20 };       /* bytes of data */
struct err *sym_region(int n, size_t want, size_t control, bool shared, struct sym_region *out);
void sym_region_free(struct sym_region *r);
/* sym_alloc, whatever the world's limit; 0: none. */
struct err *sym_take(struct sym_heap *h, size_t n, int64_t limit, const char *what, int index, struct sym_block **out);
void sym_heap_init(struct sym_heap *h, struct sym_world *w, int i, size_t control);
void sym_heap_fini(struct sym_heap *h);
/* An answer takes so many seconds beyond the pauses. */
void sym_patience(struct sym_ep *ep, double takes);
/* What arrived for pe, a PE of this host: n words for at, the first of them last; wakes pe. */
void sym_deliver(struct sym_world *w, int pe, char *at, const uint64_t *word, int n);
/* Data that PE from asked for will not come: its launch cannot succeed. */
void sym_lost_data(struct sym_world *w, int from, int proc);
static inline struct sym_control *sym_control_of(struct sym_world *w, int pe) { return (struct sym_control *)w->peer[pe].base; }

/* The line at p will be written soon: it is asked for. */
static inline void sym_own(const void *p)
{
#ifdef __x86_64__
	__asm__ volatile("prefetchw %0" :: "m"(*(const char *)p));
#else
	__builtin_prefetch(p, 1);
#endif
}

/* --- wait.c ------------------------------------------------------------------------------- */

/* Wake pe, whose heap is mapped at p, if it sleeps; the word was stored before. */
static inline void sym_notify_at(struct sym_world *w, int pe, struct sym_control *p)
{
	uint32_t n;

	if (w->fence)
		n = atomic_fetch_add(&p->sleepers, 0);
	else {
		atomic_signal_fence(memory_order_seq_cst);
		n = atomic_load_explicit(&p->sleepers, memory_order_relaxed);
	}
	if (__builtin_expect(n, 0))
		sym_ring(w, pe);
}
static inline void sym_notify(struct sym_world *w, int pe) { sym_notify_at(w, pe, sym_control_of(w, pe)); }
/* Wait until a count of the road between hosts is down, making progress.  False if this thread is not to wait any more, or nothing has
 * come or gone for RONDO_TIMEOUT seconds (where the road asks by itself who is there: it has waited so long): the count is another's still, until the transport has forgotten it. */
bool sym_net_await(struct sym_world *w, _Atomic uint32_t *left);
bool sym_net_until(struct sym_world *w, bool (*come)(void *user), void *user);         /* the same, for what progress brings about */
void sym_net_get(struct sym_world *w, int from, int pe, void *dst, size_t off, size_t n);      /* its `get`, by its get_nb */
/* What this thread waits for transports in: the stop of a launch (NULL: in none); why a wait was given up, as an error code (0: none was); for whom (NULL: nobody's
 * launch). */
extern _Thread_local struct sym_halt { const _Atomic int *stop; int gave_up; struct sym_ep *ep; } sym_halt;
bool sym_halted(const struct sym_world *w);          /* is this thread not to wait any more? */
double sym_pause_s(void);                           /* what sym_pause takes, in seconds */
bool sym_barrier_init(bool shared);                 /* can a sleeper make all writers' stores visible? */
void sym_barrier(bool shared);
void sym_nap(_Atomic uint32_t *word, uint32_t seen, int64_t ns, bool shared);   /* sym_sleep; shared: with other processes */
void sym_rouse(_Atomic uint32_t *word, bool shared);                            /* wake all who sleep there */

void sym_share(double cores, int threads);          /* so many this process has, if others of the job use theirs, for so many threads; sym_give_way asks */
bool sym_ctx_failed(struct sym_ctx *c);             /* does it keep an error? */
extern _Thread_local _Atomic int *sym_stop;         /* becomes non-zero when this thread's waits are to end with CANCELLED; may be NULL */

/* Every wait is one of these, and passes its time in sym_wait_turn: it polls, does other work, yields, sleeps, and ends when there is no hope.  What
 * differs is what it is of. */
struct sym_wait;
struct sym_waits {
	struct err *(*hopeless)(struct sym_wait *w);                      /* is there a reason to wait no more? */
	/* It has yielded, or slept: waited seconds so far then, else 0.  May be NULL. */
	struct err *(*rested)(struct sym_wait *w, double waited);
	struct err *(*late)(struct sym_wait *w, double waited, bool fail);        /* it takes long: an error, or a line */
};
struct sym_wait {
	const struct sym_waits *of;
	struct sym_world *world;
	struct sym_control *me;           /* whose bell wakes it; or NULL: */
	_Atomic uint32_t *word;           /* who makes it something else than 0 wakes it; or NULL: it looks from time to time, making the network progress */
	struct sym_ep *ep;                /* in whose launch, which may have other work; NULL: in none */
	int *spins;                       /* how often to poll before resting, learnt from wait to wait; NULL: as often as all */
	int brisk;                        /* looks that follow each other at first */
	uint32_t site;
	const void *what;                 /* its own */
	/* From here on as zeros. */
	int peer;                         /* for whom, as the condition says */
	int n, polls;
	bool armed, sure, warned;         /* sure: no writer overlooks its flag any more */
	uint32_t bell;
	double since, dead, look;         /* it had nothing left but to sleep; another's death was noticed; when to look next whether the peer is */
	uint64_t apart;                   /* in another program: its status then */
	const struct sym_line *ahead;
};
/* After a look in vain: pass the time until the next one; an error if there is no hope. */
struct err *sym_wait_turn(struct sym_wait *w);
void sym_wait_over(struct sym_wait *w);
/* The answer of a peer that is in step takes little longer than one pause. */
enum { SYM_BRISK = 200 };
/* Wait until cond, which says in `who` for whom, and is not looked at again once it has held: a word need not stay as it was, and a look may move on
 * to the next one.  Where there seems to be no hope for that peer, it may have done its part after the last look; then another one is waited
 * for, if any.  init: a struct sym_wait. */
#define SYM_WAIT(e, cond, init, who) do { \
		if (cond) \
			break; \
		struct sym_wait w_ = init; \
		bool met_ = false; \
		for (int k_ = w_.brisk; k_ > 0 && !met_; k_--) \
			met_ = (cond); \
		while (!met_ && !(met_ = (cond))) { \
			w_.peer = (who); \
			if (!((e) = sym_wait_turn(&w_))) \
				continue; \
			met_ = (cond); \
			if (!met_ && w_.peer == (who)) \
				break; \
			err_free(e); \
			(e) = NULL; \
		} \
		sym_wait_over(&w_); \
	} while (0)

/* What a wait of PE pe is for: a word that member `from` of team writes (-1: any of them). */
struct sym_watch { struct sym_world *w; int pe; const struct sym_team *team; int from; const char *what; };
struct sym_wait sym_wait_watch(const struct sym_watch *x);                /* x outlives it */
struct err *sym_wait_mark(struct sym_world *w, int pe, _Atomic uint32_t *done);       /* for another stream: until *done */

/* Everything before is seen before everything after.  The thread sanitizer knows no fences, but atomic exchanges. */
static inline void sym_full_fence(void)
{
#if defined(__SANITIZE_THREAD__)
#define SYM_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SYM_TSAN 1
#endif
#endif
#ifdef SYM_TSAN
	static _Atomic int word;
	atomic_fetch_add(&word, 0);
#else
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* --- life.c ------------------------------------------------------------------------------- */

/* A process is no more: its peers' waits end. */
void sym_gone(struct sym_world *w, int proc, enum sym_life how);
/* sym_coming, of a process that this one may know already. */
struct err *sym_joins(struct sym_world *w, const struct kv *kv, int who, double until, struct sym_coming *c);
/* A key that process who is to write, by the time until; says for whom it waits. */
struct err *sym_fetch(struct sym_world *w, const struct kv *kv, const char *key, int who, double until, struct str *out);

/* --- join.c: how processes come to know each other --------------------------------------- */

/* Meet the others of w->boot and map the heaps of those on this host: sets all that w says of processes and
 * peers.  After sym_region. */
struct err *sym_join(struct sym_world *w, const struct kv *boot);
void sym_part(struct sym_world *w);                  /* say goodbye */

/* --- tcp.c, dial.c, ucx.c (ucx.h): between hosts -------------------------------------------------------- */

/* Open the road to the processes in reach[nproc]; sets w->net and its w->net_data, which are closed with the world also if this fails,
 * or memory runs out in it: by then the others can ask why.  Collective over them. */
struct err *sym_tcp_open(struct sym_world *w, const struct kv *kv, const char *token, const bool *reach, double until);
struct err *sym_ucx_open(struct sym_world *w, const struct kv *kv, const char *token, const bool *reach, double until);
/* fd[nproc]: a connection to each process in reach, -1 for the others; its other end has the job's token.  Nonblocking. */
struct err *sym_dial(struct sym_world *w, const struct kv *kv, const char *token, const bool *reach, double until, int *fd);
uint64_t sym_sip(const uint64_t key[2], const void *data, size_t n);      /* SipHash-2-4; n is a multiple of 8 */
bool sym_ucx_fabric(void);                           /* is there a network here that UCX knows better than TCP? */

/* --- data.c --- */

/* Do something by the transport, which waits no longer than this launch may; a launch that gave something up has failed. */
#define VIA(ep, call) do { \
		sym_halt = (struct sym_halt){ (ep)->l.stop, 0, (ep) }; \
		call; \
		if (__builtin_expect(sym_halt.gave_up, 0)) \
			atomic_store(&(ep)->lost, sym_halt.gave_up == ERR_DEADLINE ? SYM_LATE : SYM_GAVE_UP); \
		sym_halt = (struct sym_halt){ NULL, 0, NULL }; \
	} while (0)

/* The transport to pe, which has closed the launches before this.  Nobody may have waited for what was put in one of them that failed:
 * it must not come over what is put now. */
const struct sym_transport *sym_road_to(struct sym_ep *ep, int pe);

#endif
