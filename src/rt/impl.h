/* What the files of rt share. */
#ifndef RONDO_RT_IMPL_H
#define RONDO_RT_IMPL_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "../coll/coll.h"
#include "../kern/kern.h"
#include "../sym/sym.h"
#include "rt.h"

/* Launches that may wait for a device; the rest of the ring is for launches from inside host callbacks, which do
 * not wait for room. */
enum { RT_QUEUE = 32, RT_RING = 64 };

/* --- devices ------------------------------------------------------------- */

/* Bytes of an array, counted: handles, launches and copies hold it. */
struct store {
	_Atomic int ref;
	_Atomic int hold;             /* external references and copies under way: never donated while > 0 */
	_Atomic int handles;          /* buffers that show it */
	struct rt_device *dev;
	int mem;
	struct sym_block *block;      /* mem 0 */
	void *host;                   /* other memories */
	rt_addr addr;                 /* 0 until allocated */
	size_t bytes;
};

/* A kind of device.  Addresses are opaque outside these functions; only enter's result may be
 * dereferenced, and only by code that runs on the device. */
struct rt_device_ops {
	const char *name;
	bool plain;                   /* host code may dereference addresses as they are */
	struct err *(*alloc)(struct rt_device *d, struct store *s, const char *what, int index);
	void (*free)(struct rt_device *d, struct store *s);
	void (*upload)(struct rt_device *d, rt_addr dst, const void *src, size_t n);
	void (*download)(struct rt_device *d, void *dst, rt_addr src, size_t n);
	void (*copy)(struct rt_device *d, rt_addr dst, rt_addr src, size_t n);     /* between addresses of any local devices */
	char *(*enter)(struct rt_device *d, rt_addr a);
};
const struct rt_device_ops *rt_device_ops_find(const char *name);      /* NULL if unknown */

struct launch; struct kernel;

/* A kernel under way: whoever has time takes tiles.  seq is odd while it is open. */
struct tiles {
	_Alignas(64) _Atomic uint32_t seq;
	_Alignas(64) _Atomic int users;
	_Alignas(64) _Atomic int64_t next;
	_Alignas(64) _Atomic uint64_t places;     /* bit i: scratch i is free; the walker has the first */
	const struct kernel *k;
	char *const *ptr;
	char *scratch;                /* of the first place; k->scratch bytes each */
	int phase;
	int64_t ntile, step;
};

/* What a walk borrows from the device; a call from inside a host callback brings its own. */
struct room {
	struct store *zone;           /* the program zone, and what kernels work in: grows to the largest program's */
};

struct worker {
	pthread_t thread;
	struct rt_device *d;
	bool started;
};

#define STATE_INLINE (1u << 30)   /* the owner is a caller's thread */

struct rt_device {
	struct rt_client *c;
	void *user;
	int id, local;
	const struct rt_device_ops *ops;
	struct sym_heap *heap;
	/* queue: launches in order.  state counts those that wait or run. */
	_Alignas(64) _Atomic uint32_t state;
	pthread_mutex_t lock;
	pthread_cond_t space;
	struct { struct launch *l; int i; } q[RT_RING];
	int taken; bool full;         /* places of the queue that are given or promised; there were none, and half of it is yet to go; under lock */
	_Atomic unsigned head, tail;  /* they change under lock */
	_Alignas(64) _Atomic uint32_t bell;       /* changes when the walker has something to do */
	_Atomic int asleep;           /* the walker sleeps until it does */
	pthread_t walker; bool started;
	_Atomic int called;           /* host callbacks that programs of its own are in */
	_Atomic uint32_t calls;       /* those that there were */
	uint32_t calls_seen;          /* of relief.c's thread */
	unsigned head_seen;           /* likewise */
	struct part *under;           /* launches that run here: the walker's, those beside it; under lock */
	_Atomic int beside;           /* those that are not the walker's: of relief.c, and of callbacks */
	struct room room;             /* owned by whoever owns the device */
	_Atomic size_t zoned;         /* bytes of its zone */
	int places;                   /* threads that may work on one kernel at once: walker, workers, walkers of other devices */
	struct sym_ep *ep;
	const struct rt_exec *now;    /* the program that communicates now; of the walker */
	struct coll *coll;
	struct coll_lane *_Atomic lane;           /* made when a program that needs it is loaded */
	struct guest *guest;                      /* likewise, by one that calls code outside Rondo, too; under lock until then */
	struct trace_device *trace;
	/* workers */
	int nworker; struct worker *worker;
	_Alignas(64) _Atomic uint32_t tilebell;
	_Atomic int tileasleep;
	struct tiles tiles;
};

struct side;                      /* one copy on a side lane */
struct rt_client {
	_Atomic int ref;
	int ndev, process, nprocess;
	int parts;                    /* devices that each one which was asked for is */
	struct rt_device *dev;
	struct sym_world *world;
	int64_t memory;               /* bytes that its devices may have together: less can be had where address space is short */
	pthread_mutex_t launch;       /* the launch lock */
	_Atomic int64_t promised;     /* bytes that queued launches may yet take */
	_Atomic int owed;             /* failed launches of whose memory peers may still read: it is not free yet */
	_Atomic int idle;             /* walkers that sleep and may be called to help */
	_Atomic uint32_t bell;        /* changes when one of those that sleep has something to do: all sleep here, and one call wakes those of a launch */
	uint64_t mark;
	_Atomic bool stop;
	unsigned fork_gen;
	int spins;
	/* side lane */
	pthread_mutex_t side_lock; pthread_cond_t side_cond;
	struct rt_exec *execs;        /* those that communicate, under side_lock: to name what a peer runs */
	/* the job */
	const struct kv *boot;        /* NULL: this process is alone */
	int nplace; struct rt_place *place;
	struct coll_table table;      /* of process 0 */
	struct plan_table plan, here; /* the machine table of process 0, by which all choose alike; this process' own, for what happens inside a device */
	int cores;                    /* of all hosts */
	int seat;                     /* devices of the job that use this process' cores and come before its own */
	bool pinned;                  /* threads stay on cores of their own */
	cpu_set_t cpus;               /* where this process may run */
	int sharers, housemates;      /* devices of the job that use this process' cores; its memory (own ones too) */
	int lapack;                   /* threads of a call of LAPACK, the same in all processes; 0: as many as it likes */
	int nbusy;                    /* under side_lock */
	pthread_mutex_t kv_lock;
	struct map published;         /* programs whose communication is in the store */
	struct side *side_head, **side_tail;
	pthread_t side_thread; bool side_started, side_over;
	/* relief.c */
	pthread_mutex_t relief_lock; pthread_cond_t relief_cond;
	pthread_t relief_thread; bool relief_started, relief_over;
	int relief_threads;           /* of relief_more */
	_Atomic int relief_awake;
	void (*relieve)(struct rt_device *d);     /* launch_relieve */
};

/* The walker of d has something to do.  Gives what device_wake of d's client wants to be told for it, or for several at once. */
uint32_t device_bell(struct rt_device *d);
void device_wake(struct rt_client *c, uint32_t who);
static inline uint32_t device_bit(const struct rt_device *d) { return (uint32_t)1 << d->local % 32; }      /* by which it sleeps on its client's bell */

/* --- job.c ------------------------------------------------------------------ */

/* Learn who the processes of the job are, and what they have. */
struct err *job_join(struct rt_client *c, const struct rt_opts *o);
/* c->table and c->plan are this process'; afterwards those of process 0. */
struct err *job_table(struct rt_client *c);
/* Let the other processes know what x sends and receives, for messages. */
void job_publish(struct rt_exec *x);
/* Add what command site of the program ident is called, and where that program parts from mine if both have one
 * name.  False if nobody knows it. */
bool job_describe(struct rt_client *c, const struct rt_exec *mine, uint32_t ident, uint32_t site, struct str *s);

/* --- life.c, side.c ------------------------------------------------------------ */

void client_begin(struct rt_client *c);                /* one reference */
void client_ref(struct rt_client *c);
void client_unref(struct rt_client *c);                /* the last one frees it and what it has; its threads are over */
bool client_forked(const struct rt_client *c);         /* is this a child of the process that made it? */
/* Run fn(user) on the side lane's thread. */
void client_side(struct rt_client *c, void (*fn)(void *user), void *user);

/* --- stores, buffers, events ---------------------------------------------- */

struct err *no_room(size_t n);                                          /* EXHAUSTED: the host has no n bytes */
struct store *store_new(struct rt_device *d, int mem, size_t bytes);   /* without memory; NULL: no_room, as store_alloc says of it */
/* Room for n stores (false: there is none), which become such, or are given back. */
bool store_spares(size_t n, struct store **out);
void store_spare(struct store *s);
void store_fill(size_t n);                             /* n are there for launches; so for buffers, events and their callbacks */
struct store *store_init(struct store *s, struct rt_device *d, int mem, size_t bytes);
struct err *store_alloc(struct store *s, const char *what, int index);
struct err *store_alloc_idle(struct store *s, const char *what, int index);      /* if need be of what devices that rest keep for programs */
bool zones_drop(struct rt_client *c);                                  /* they give it back; false: they have none */
void store_unref(struct store *s);                                     /* NULL is fine */
static inline void store_ref(struct store *s) { atomic_fetch_add_explicit(&s->ref, 1, memory_order_relaxed); }
void store_upload(struct store *s, size_t off, const void *src, size_t n);
void store_download(struct store *s, size_t off, void *dst, size_t n);
void store_copy(struct store *dst, size_t doff, struct store *src, size_t soff, size_t n);
static inline char *store_enter(struct store *s)       /* as code on the device sees it */
{
	return s->mem ? s->host : s->dev->ops->enter(s->dev, s->addr);
}

/* What is called when an event is made ready.  lent: the room for it is not the event's. */
struct callback {
	struct callback *next;
	void (*fn)(struct err *e, void *user);
	void *user;
	bool lent;
};

struct rt_buffer {
	_Atomic int ref;
	atomic_flag lock;             /* guards st */
	_Atomic bool deleted;
	int mem;
	struct rt_device *dev;
	struct store *st;             /* NULL once deleted */
	struct relay *of;             /* it is a part of this, whose are lock and ready; or NULL */
	struct rt_event *ready;       /* owned.  Until then nobody frees st: what makes it need not hold it */
	int64_t bytes;
	uint64_t mark, twice;         /* the last launch that was given it, and given it more than once; under the launch lock */
	struct store *held; int nheld;            /* what external references show; also under lock */
	struct store *late; struct callback then;            /* st of one that went before it was ready, until it is */
	struct rt_buffer **twin; int ntwin;       /* the same on other devices: owned; also under lock */
	struct rt_shape shape;
};
/* --- relief.c ------------------------------------------------------------------ */

/* For programs with host callbacks, before the first is launched: starts a thread of the client, which relief_close ends. */
void relief_start(struct rt_client *c);
void relief_close(struct rt_client *c);
/* A program of d is in a host callback, and no more. */
void relief_called(struct rt_device *d);
void relief_back(struct rt_device *d);
/* fn(user) on a thread of its own, for whose end relief_close waits.  False: there is none to be had. */
bool relief_more(struct rt_client *c, void (*fn)(void *user), void *user);

/* --- relay.c ------------------------------------------------------------------- */

/* The relays of a program on a device, counted: by the program and by each that is not free. */
struct relays { _Atomic int ref; atomic_flag lock; bool closed; int made; int64_t n; struct relay *free; };
struct relay {
	struct relays *home;
	struct relay *next;           /* free as well */
	atomic_flag lock;
	_Atomic bool gone;            /* a launch has taken the storage of all: they are deleted, what their st says is nobody's business */
	bool odd;                     /* one was deleted, held, copied, or is shown by another: they are no longer alike.  Under lock */
	bool made;                    /* b has been filled in, but for st */
	_Atomic int64_t live;         /* of b, those that somebody has */
	uint64_t bound;               /* relays of a device with the same one have the same storage in the same order */
	struct rt_event *ready;       /* owned; set by who takes the relay */
	struct rt_buffer b[];         /* home->n */
};
struct relays *relays_new(int64_t n);                  /* of n buffers each; without memory as mem_alloc */
void relays_close(struct relays *h);                   /* its program is gone; NULL is fine */
struct relay *relay_take(struct relays *h);            /* NULL: as many as there may be have live buffers, or no memory */
void relay_spare(struct relay *r);                     /* nobody has any of its buffers */
void relay_left(struct relay *r);                      /* nobody has one more */
bool relay_pass(struct relay *r);                      /* all storage is the caller's; false: nothing is */
void relay_back(struct relay *r);                      /* as if it had not been */

static inline struct rt_event *buffer_ready(const struct rt_buffer *b) { return b->of ? b->of->ready : b->ready; }

/* A handle; st and ready are taken.  NULL: no room. */
struct rt_buffer *buffer_new(struct rt_device *d, int mem, const struct rt_shape *s, struct store *st, struct rt_event *ready);
struct store *buffer_store(struct rt_buffer *b);       /* a reference, or NULL if deleted */
bool buffer_spares(size_t n, struct rt_buffer **out);               /* as store_spares */
void buffer_spare(struct rt_buffer *b);
void buffer_fill(size_t n);
/* st counts it among its handles already. */
struct rt_buffer *buffer_init(struct rt_buffer *b, struct rt_device *d, int mem, enum dtype dt, const struct layout *layout, int rank, const int64_t *dim, struct store *st, struct rt_event *ready);
/* If nobody else shows or reads the storage of b, and launch mark was given it once: true, b is deleted, and the caller has what b had of it, its
 * reference and its place among the handles.  Else the caller has a reference.  *out: NULL if b has been deleted. */
bool buffer_take(struct rt_buffer *b, uint64_t mark, struct store **out);
void buffer_untake(struct rt_buffer *b, struct store *s);           /* as if it had not been taken */

/* One reference less.  True: that was the last.  Who has the only one need not tell the other cores. */
static inline bool ref_drop(_Atomic int *ref)
{
	if (atomic_load_explicit(ref, memory_order_acquire) != 1)
		return atomic_fetch_sub_explicit(ref, 1, memory_order_acq_rel) == 1;
	atomic_store_explicit(ref, 0, memory_order_relaxed);
	return true;
}

extern struct rt_event event_ok, event_none;                       /* always ready, never freed */
struct rt_event {
	_Atomic int ref;
	_Atomic uint32_t state;       /* 0 pending, 1 ready, 2 error */
	_Atomic int waiters;
	atomic_flag lock;
	bool asked;                   /* whoever asked hears of an error */
	struct err *err;
	struct callback *cb;
};
void event_fill(size_t n);
struct rt_event *event_refs(struct rt_event *e, int n);            /* n references */
enum { EVENT_ASK_NS = 100000000 };                      /* how often who waits is asked whether it gives up */
bool event_gives_up(void);
struct err *event_wait(struct rt_event *e);            /* rt_event_wait for one who passes the error on */
/* As rt_event_on_ready, with room for it, which is lent: it lives until fn is called.  False: the event is ready, and fn is not called. */
bool event_then(struct rt_event *e, struct callback *cb);

static inline void spin_lock(atomic_flag *f)
{
	for (int i = 0; atomic_flag_test_and_set_explicit(f, memory_order_acquire); i++)
		i < 100 ? sym_pause() : (void)sched_yield();
}
static inline void spin_unlock(atomic_flag *f) { atomic_flag_clear_explicit(f, memory_order_release); }

/* --- trace.c, said.c, timeline.c ------------------------------------------------ */

struct trace_device;
/* A program as recordings know it; it outlives the program as long as they want it. */
struct trace_prog {
	struct rt_trace_prog p;
	struct trace_prog *next; bool gone;       /* of trace.c */
	_Atomic bool used;            /* something of it was recorded */
	struct arena arena;           /* has all of it */
	struct rt_trace_op *op;
	uint32_t *of;                 /* of each instruction: its op, 0 if it has none */
};
extern _Atomic int trace_running;                      /* windows that are open */
static inline bool trace_on(void) { return __builtin_expect(atomic_load_explicit(&trace_running, memory_order_relaxed) > 0, 0); }
struct err *trace_device_new(int id, const struct plan_table *plan, int cores, struct trace_device **out);
void trace_device_gone(struct trace_device *d);        /* it adds no more; NULL is fine; what it has recorded stays */
void trace_prog_keep(struct trace_prog *p);            /* taken, from mem_malloc */
void trace_prog_gone(struct trace_prog *p);            /* nobody will record more of it; NULL is fine */
/* For the windows that were open when its launch, of p, began; e NULL: there was one, of which nothing is known. */
void trace_add(struct trace_device *d, struct trace_prog *p, const struct rt_trace_event *e, uint64_t began);
void trace_hold(void);                                 /* nothing is recorded, and no window changes, until: */
void trace_release(void);
struct trace_prog *exec_said(struct rt_exec *x);       /* made when it is first asked for; NULL: no memory */
/* RONDO_TRACE: what there is so far, if it is set; the first call begins it.  In a child that was forked there is none. */
void timeline_begin(void);
void timeline_write(void);
void timeline_disown(void);

/* --- executables ----------------------------------------------------------- */

struct kernel {
	const struct prog_kern *k;
	prog_code_fn *code;           /* gen */
	struct kern_state *state;
	int64_t tiles;
	int phases;
	bool split;                   /* worth more than one thread */
	bool wakes;                   /* worth waking workers that sleep */
	int64_t copy, from, to;       /* a copy of so many bytes that lie together, at these offsets; 0: no */
	size_t scratch, shared;       /* of each thread, of all of them; multiples of 64 */
	int places;                   /* threads there is scratch for */
	int64_t slice;                /* tiles between two looks at what is under way */
};

enum ins_op {
	I_END, I_CODE, I_COPY, I_KERN, I_SPLIT, I_SET, I_ADD, I_MUL, I_MIN, I_MAX, I_LD, I_ST, I_TABLE, I_LOOP, I_WHILE, I_CASE, I_COLL, I_CUSTOM,
	I_THEN,                       /* a collective and the kernel that follows it part by part: the next instruction */
	I_LEND, I_NEXT, I_BACK, I_WAIT,       /* loans: prog.h */
	I_BEGIN, I_MARK, I_AWAIT,     /* a collective of lane 1 goes on meanwhile; remember which were begun; wait for those */
};
/* A command in the form that is walked. */
struct ins {
	uint8_t op, dtype;
	uint16_t r0, r1, r2;
	uint32_t opnd, nopnd;         /* of prog->opnd */
	uint32_t block, nblock;       /* of prog->sub */
	uint32_t site;
	int64_t imm;                  /* of a collective: its number among them, from 1 */
	const void *ref;              /* kernel, collective, custom call, table */
};

/* What a walk of one program on one device needs; kept between launches. */
struct ctx {
	char **base;                  /* of each buffer */
	int64_t *reg;
	char **ptr;                   /* operands of the current command */
	char **flown;                 /* of each command of lane 1, which is under way once at most */
	uint64_t *mark;               /* collectives of lane 1 that were begun then */
	struct coll_loan **loan;      /* of each collective that is one; owned by the executable */
	int *hop;                     /* of each buffer that shows what is lent: from how many links away */
	uint32_t launches;            /* so far: the same on all devices */
	char *zone;                   /* for which base was filled */
	uint64_t bound;               /* the same of parameters and results of a relay; 0: of none */
};

struct rt_exec {
	_Atomic int ref;
	struct rt_client *c;
	struct prog *p;
	struct trace_prog *_Atomic said;          /* NULL: nobody has asked */
	const char *what;             /* "program 'name', result", for the heap */
	const char *name;
	int nlocal, *pos, *id;
	struct rt_device **dev;
	struct code **code;           /* loaded objects */
	struct kernel *kern;
	struct custom *custom; struct arena room;     /* what they have */
	struct ins *ins; uint32_t nins;
	uint32_t *start;              /* of each block: index of its first instruction */
	struct store **data;          /* constants, per local device */
	struct ctx *ctx;              /* per local device */
	uint32_t maxptr;
	uint32_t nflown, nmark;       /* addresses that commands of lane 1 keep, one after the other; marks */
	uint32_t ident;               /* of the program, equal on all devices */
	uint32_t nloan, *loans;       /* collectives that are loans */
	struct coll_loan **loan;      /* of each of them, by collective, for one local device after the other */
	uint64_t agreed;              /* decisions that all devices share: permutes in place */
	uint32_t ncomm, *comm_ins;    /* its collectives in textual order: equal on all devices, however each compiled it */
	int **peer, *npeer;           /* per local device: PEs it exchanges messages with */
	struct rt_exec *next;         /* in c->execs */
	int64_t results, rounds;      /* bytes that those in device memory without a donor take; of these, beyond what they have */
	size_t words, work, zone;     /* where loans' words begin in the zone, kernels' scratch (all kernels have it in turn); bytes of all */
	int64_t own;                  /* bytes that its collectives may take beside that */
	bool inlined, comm, donates, calls, lent;       /* lent: the program, which stays who gave it's; donates: some parameter is given away; calls: host callbacks */
	int32_t *argbuf, *outbuf;     /* buffer of each parameter and result, -1 if unused */
	uint32_t nlodger, *lodger;    /* temporaries that lie in results */
	int32_t *donor, *taker;       /* result -> parameter whose storage it takes, -1; parameter -> result, -1 */
	int64_t ndonor;
	struct relays **relays;       /* per local device; NULL: what a launch makes of its parameters is not what the next one wants */
	int32_t *given, *rest, *fresh;        /* if not NULL: the donors by result; the other parameters; results without one */
	int64_t nrest, nfresh;
	struct spare launches;
	uint8_t *resmem;              /* memory kind of each result */
	const struct layout **layout; /* of each argument, then of each result */
	int64_t narg, nres;
};
void ctx_init(struct ctx *c, const struct rt_exec *x);
void ctx_fini(struct ctx *c);

/* --- launches ---------------------------------------------------------------- */

/* A launch on one device. */
struct part {
	struct relay *passed;         /* the arguments are all of this; until the launch is queued */
	struct store **arg;           /* narg references, but of those that a result has taken */
	struct rt_event **wait;       /* events of arguments that were not ready */
	uint32_t nwait, waited;       /* of them; those that have come are the first */
	struct callback then;         /* of the next one */
	_Atomic int come;             /* has it?  Of part.c */
	struct store **out;           /* nres, of the results, which hold them until this is done; where others may touch them longer, references */
	bool kept;                    /* they are */
	uint8_t *took;                /* narg: its storage was given away */
	struct rt_buffer **res;       /* nres, the caller's */
	/* What the results are made of, before anything is begun: the first nbuf of res, and if not NULL a relay for those that have a donor, and
	 * storage without memory for the others. */
	size_t nbuf, nst;
	struct store **st;            /* room for nres */
	struct relay *relay;
	uint64_t bound;               /* of the relay that the results are; 0: they are none */
	struct store *zone;           /* if kept */
	int64_t promised;             /* of client.promised */
	bool queued;                  /* it counts in the device's state */
	struct rt_event *done;
	struct launch *l;
	struct part *next;            /* of those that run on the device, under its lock */
};

struct launch {
	_Atomic int ref;
	struct rt_exec *x;
	int32_t id;
	unsigned long by;             /* the thread that has asked for it */
	_Atomic int stop;             /* the launch is aborted */
	atomic_flag lock;
	struct err *err;              /* why; set before stop */
	struct part part[];
};

/* Bytes of a launch for each device, beside its part. */
static inline size_t launch_each(const struct rt_exec *x)
{
	size_t n = (size_t)(2 * x->narg + 2 * x->nres) * sizeof(void *) + (size_t)x->narg;

	return (n + 15) & ~(size_t)15;
}
/* --- args.c -------------------------------------------------------------------- */

/* In this order; i: the local device, arg: the caller's arguments on it.  What fails leaves all as it was, but what part_spare has taken:
 * that is for part_drop. */
struct err *part_check(struct part *p, struct rt_exec *x, int i, struct rt_buffer *const *arg);      /* can the program be launched with these? */
struct err *part_spare(struct part *p, struct rt_exec *x, int i, bool donate, struct rt_buffer **out);      /* what the results are made of; if it fails, nothing */
void part_drop(struct part *p);
/* References to the arguments' storage; what is donated is taken, if nobody else shows or reads it.  Where the program donates, or
 * another may, under the launch lock, in which the launch is appended, too: whoever holds storage before it is taken runs before. */
struct err *part_take(struct part *p, struct rt_exec *x, struct rt_buffer *const *arg, bool donate, const int64_t *no_donate, size_t nkeep);
/* The results; those whose donor was taken have its storage.  If it fails, the arguments are given back. */
struct err *part_make(struct part *p, struct rt_exec *x, int i, struct rt_buffer *const *arg, struct rt_event *ready);
void part_undo(struct part *p, const struct rt_exec *x, struct rt_buffer *const *arg);      /* as if the last two had not been */
void part_wait_for(struct part *p, const struct rt_exec *x, struct rt_buffer *const *arg);      /* events of arguments that are not ready */

/* --- room.c -------------------------------------------------------------------- */

enum { ROOM_NAP_NS = 50000, ASK_NAPS = EVENT_ASK_NS / ROOM_NAP_NS };      /* who waits without a wake-up looks so often, and asks so seldom whether it gives up */

static inline bool exec_spans(const struct rt_exec *x) { return x->nlocal < x->p->ndev; }      /* does it run in other processes too? */
/* Where memory is short, what was queued before is waited for, and what is lacking then is an error of this call, which has taken nothing from anybody.
 * The processes of a job launch in one order, so what is waited for begins in all of them.  Where one does otherwise, or comes only after what this one does
 * behind the call, there is an end to it: what is lacking is an error of the results then. */
struct err *room_for(struct rt_exec *x);
void room_promise(struct rt_exec *x, struct part *p, int i);           /* what a queued launch will take is not for others, until: */
void room_kept(struct rt_exec *x, struct part *p);                     /* it has it, or will not */
/* Memory for the results that have none yet, and the program zone.  The caller owns the device, or room. */
struct err *room_take(struct rt_exec *x, struct rt_device *d, struct part *p, struct room *room);

/* --- part.c -------------------------------------------------------------------- */

/* The launch ends on all devices with the first error; e is taken.  Returns this device's copy. */
struct err *launch_fail(struct launch *l, struct err *e);
/* Start and walk.  The caller owns the device, or room; l: NULL if nobody else has a part in it. */
struct err *part_go(struct rt_exec *x, int i, struct ctx *c, struct part *p, struct room *room, struct launch *l, int32_t id);
void part_arguments_drop(const struct part *p);        /* what a launch holds of one device's arguments */
void part_runs(struct rt_device *d, struct part *p);        /* it is in d->under from now on; under the device's lock */
void part_run(struct launch *l, int i, struct ctx *c, struct room *room);        /* all of it; then it is in d->under no more */

/* --- queue.c ------------------------------------------------------------------- */

/* Wait for a place in the queue of each device of x; a call from inside a host callback never waits.  No lock is
 * held meanwhile: a callback may need it for the queue to move on. */
struct err *queue_places(struct rt_exec *x, bool inside);
void queue_places_back(struct rt_exec *x, int n);                      /* those on the first n devices of the client */
uint32_t queue_append(struct rt_device *d, struct launch *l, int i);   /* gives whom to wake when the launch is in all its queues */
/* Takes the first launch off the queue that may run before those before it; *i: which of its parts is of d.  NULL: there is none. */
struct launch *queue_passes(struct rt_device *d, int *i);
void *walker_main(void *device);

/* --- launch.c ------------------------------------------------------------------ */

static inline size_t launch_bytes(const struct rt_exec *x) { return sizeof(struct launch) + (size_t)x->nlocal * (sizeof(struct part) + launch_each(x)); }

/* --- then.c ------------------------------------------------------------------ */

/* Kernel command c follows collective command r: its instruction gets the mask of the operands that are the sum (imm), and whether one device
 * makes it for all (r0). */
void then_init(const struct prog *p, const struct prog_cmd *r, const struct prog_cmd *c, struct ins *i);
static inline char *opnd_at(const struct prog_opnd *o, char *const *base, const int64_t *reg)
{
	return base[o->buf] + o->off + reg[o->reg[0]] * o->mul[0] + reg[o->reg[1]] * o->mul[1];
}
struct frame;
/* Run collective i and the kernel i[1] that follows it. */
struct err *then_run(struct frame *f, const struct ins *i);

/* The walk of one program on one device. */
struct frame {
	struct rt_exec *x;
	struct rt_device *d;
	struct ctx *c;
	int local, pos;               /* index among the local devices; position in the program */
	int32_t launch_id;
	unsigned long by;             /* as struct rt_custom_call has it */
	bool solo;                    /* on this thread only */
	char *work;                   /* scratch of kernels: what all threads of one share, then each thread's */
	_Atomic int *stop;            /* set when the launch is aborted; may be NULL */
	struct coll_cx coll;
	struct coll_lane *lane;       /* NULL: the program has none */
	struct trace_device *trace;   /* NULL: nothing is recorded */
	struct trace_prog *said;      /* if it is */
	uint64_t began;               /* likewise */
	struct { const struct ins *i; uint32_t op; uint64_t t0; } now;        /* what is to be recorded when it ends; 0: nothing */
	int64_t permuted;             /* by the last permute, for its event */
	struct err *err;
};
/* Run all commands.  The error is that of this device; an aborted launch gives ABORTED. */
struct err *walk(struct frame *f);
extern _Thread_local struct rt_device *walking;        /* the device whose walker, or guest, this thread is; NULL: none's */
extern _Thread_local unsigned long behalf;             /* the thread whose launch has called what this one runs; 0: none's */
/* Takes those launches off the queue of d that may run before those before them, and runs each, with registers and memory of its own, on this thread; what
 * calls back itself on one of its own, since what it waits for may be next. */
void launch_relieve(struct rt_device *d);

/* --- pool.c -------------------------------------------------------------------- */

void *worker_main(void *worker);
/* This thread stays on core k of the device's own (0: the walker), if there are enough; or runs wherever the process
 * may (-1): while code runs that may start threads of its own. */
void device_pin(struct rt_device *d, int k);
/* Run kernel k over all its tiles, with the device's workers.  lane, if not NULL: this thread looks at it between slices. */
void pool_run(struct rt_device *d, const struct kernel *k, char *const *ptr, char *scratch, struct coll_lane *lane);
/* Take a claim of tiles of another device of d's client; false if there is none. */
bool pool_help_others(struct rt_device *d);
/* Take tiles of d, at most max claims; false if there were none, or as many threads at work as have scratch. */
bool pool_help(struct rt_device *d, int max);

/* --- guest.c ------------------------------------------------------------------- */

struct err *guest_start(struct rt_device *d);          /* from now on it has one */
void guest_close(struct rt_device *d);                 /* when its walker has ended */
/* fn(arg) on the guest's thread, while this one, which owns the device, waits for what is under way. */
struct err *guest_run(struct rt_device *d, struct coll_lane *lane, struct err *(*fn)(void *arg), void *arg);

/* --- host.c -------------------------------------------------------------------- */

bool custom_is_ffi(const char *target);                /* known, and an FFI handler */
/* A custom call of a loaded program: its attributes as a handler of the FFI wants them, and its handler when it was last called, NULL: never. */
struct custom { const struct prog_custom *c; struct ffi_attrs *attrs; _Atomic(struct target *) target; };
/* *x is of c; what it has is in a.  INVALID: the attributes are malformed. */
struct err *custom_prepare(struct arena *a, const struct prog_custom *c, struct custom *x);
struct err *custom_run(struct frame *f, struct custom *x, char *const *ptr);

#endif
