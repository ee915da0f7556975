/* The runtime: devices, buffers, events, and the walk of a compiled program.
 *
 * Thread-safe: every function may be called from any thread, concurrently.
 * Counted objects: client, exec, buffer, event (_ref/_unref).  No runtime lock is ever held while a
 * caller's callback runs: it may call back in.
 *
 * Memory of arrays is touched only through the device table (rt_device_ops): host code holds device
 * addresses (rt_addr), which are not pointers. */
#ifndef RONDO_RT_H
#define RONDO_RT_H

#include "../base/base.h"
#include "../plan/plan.h"
#include "../prog/prog.h"

typedef uint64_t rt_addr;
struct rt_client; struct rt_device; struct rt_buffer; struct rt_event; struct rt_exec;

/* --- client.c ---------------------------------------------------------- */

struct rt_opts {
	int ndev;                 /* devices of this process; 0 = RONDO_DEVICES, XLA's flag, else 1 */
	/* How the processes of the job find each other; must live until rt_client_free.  NULL: this one is alone. */
	const struct kv *boot;
	int parts;                /* that all devices of the job are to be (RONDO_REPRO): each is several, side by side; 0: one each */
};
enum { RT_MOST_DEVICES = 1024 };         /* of one process; what RONDO_DEVICES accepts (conf.def) */
/* Collective over the processes of boot: waits for all of them. */
struct err *rt_client_new(const struct rt_opts *o, struct rt_client **out);    /* owned */
/* Waits for what is queued, but for no other process once a launch has failed; stops the threads.  Safe at exit; does nothing after fork. */
void rt_client_stop(struct rt_client *c);
extern const char rt_forked[];                             /* what a child that was forked is told that launches */
void rt_client_free(struct rt_client *c);                  /* after that, if it has not been done */
/* Writes what a device of this process runs, "'step'" or "a host callback of 'step'"; false: none runs anything. */
bool rt_client_runs(struct rt_client *c, char *text, size_t n);
/* Nobody is left who would want what these launches do: the one that `of` is the end of, or, if NULL, all that run or are queued.  They fail, unwatched, when the
 * command is over that each is at. */
void rt_client_give_up(struct rt_client *c, const struct rt_event *of);
/* The process ends and arrays may still be read: stops the threads and leaves the job, as if nobody had any array, but nothing is freed. */
void rt_client_end(struct rt_client *c);
int rt_client_ndev(const struct rt_client *c);             /* of this process */
int rt_client_parts(const struct rt_client *c);            /* how many each device that was asked for is */
struct rt_device *rt_client_device(const struct rt_client *c, int i);
int rt_client_process(const struct rt_client *c);
/* The devices of all processes, by global id: 0 .. rt_client_nplace - 1, by process, then as they lie in it. */
struct rt_place { int process, local, cores; char kind[80]; };
int rt_client_nplace(const struct rt_client *c);
const struct rt_place *rt_client_place(const struct rt_client *c, int id);     /* borrowed; NULL if there is none */
/* What this process does outside programs ("compiling 'step'"), for peers that wait for it; NULL: done.  Calls
 * come in pairs, which may overlap. */
void rt_client_busy(struct rt_client *c, const char *text);
/* What a program for these n devices is compiled by, the same in all processes: the machine table of process 0, and which devices share a host.
 * host: room for n numbers.  It lives as long as the client and host. */
struct plan_on rt_client_plan(const struct rt_client *c, int n, const int *device, int *host);
int rt_device_id(const struct rt_device *d);               /* global id */
int rt_device_local(const struct rt_device *d);            /* index in this process */
/* What its user knows it by; NULL at first.  Set before others see the device. */
void rt_device_tag(struct rt_device *d, void *user);
void *rt_device_user(const struct rt_device *d);
struct rt_stats { int64_t in_use, peak, limit, allocs, largest_alloc, reserved; };   /* bytes, but allocs */
struct rt_stats rt_device_stats(struct rt_device *d);
void rt_device_clear_stats(struct rt_device *d);

/* --- event.c ------------------------------------------------------------ */

/* Becomes ready once, with success or an error.  Callbacks fire exactly once, on the thread that makes
 * it ready, or at once on the caller's if it is ready; they outlive every reference. */
struct rt_event *rt_event_new(void);                       /* NULL: no memory */
struct rt_event *rt_event_done(void);                      /* one that is ready, with success */
struct rt_event *rt_event_ref(struct rt_event *e);
void rt_event_unref(struct rt_event *e);
void rt_event_set(struct rt_event *e, struct err *error);  /* error is taken; NULL = success */
bool rt_event_ready(const struct rt_event *e);
struct err *rt_event_error(const struct rt_event *e);      /* fresh copy; NULL = success (or not ready) */
struct err *rt_event_wait(struct rt_event *e);             /* blocks; fresh copy of the error */
/* Who waits may want to give up, as after Ctrl-C: fn is asked ten times a second by the thread that waits, in rt_event_wait_or and in a launch
 * that waits for its turn in a queue, which is then longer.  NULL: nobody asks. */
typedef bool rt_give_up(void);
void rt_set_give_up(rt_give_up *fn);
bool rt_event_wait_or(struct rt_event *e);                 /* until it is ready; false: gave up before that */
/* The error of a launch is logged when the last event that holds it, or an error that comes of it, goes and nobody has
 * waited, looked, read an array, or asked: a callback by itself is no asking. */
void rt_event_ask(struct rt_event *e);
/* Ready when all n are, with the first error of these; the references are taken. */
struct rt_event *rt_event_all(struct rt_event **e, int n);
/* error: the callback's.  False: no memory, fn will not be called. */
bool rt_event_on_ready(struct rt_event *e, void (*fn)(struct err *error, void *user), void *user);

/* --- buffer.c ----------------------------------------------------------- */

/* An array on one device, which lies there as layout says (base.h).  Its storage is counted: whoever reads or has yet to write it holds it. */
struct rt_shape { enum dtype dtype; int rank; int64_t dim[MAX_RANK]; const struct layout *layout; };
void rt_shape_strides(const struct rt_shape *s, int64_t *stride);      /* bytes from one to the next along each dimension, as it lies */
int64_t rt_shape_bytes(const struct rt_shape *s);
/* From host memory with byte strides (NULL: dense row-major; may be 0 or negative).  The data is copied
 * before it returns.  mem: 0 "device", 1 "pinned_host", 2 "unpinned_host". */
struct err *rt_buffer_from_host(struct rt_device *d, int mem, const struct rt_shape *s, const void *data,
                                const int64_t *byte_stride, struct rt_buffer **out);
struct err *rt_buffer_uninit(struct rt_device *d, int mem, const struct rt_shape *s, struct rt_buffer **out);
/* A buffer whose content will never come: ready with this error (taken). */
/* NULL: no memory. */
struct rt_buffer *rt_buffer_error(struct rt_device *d, int mem, const struct rt_shape *s, struct err *e);
struct rt_buffer *rt_buffer_ref(struct rt_buffer *b);
void rt_buffer_unref(struct rt_buffer *b);
const struct rt_shape *rt_buffer_shape(const struct rt_buffer *b);
struct rt_device *rt_buffer_device(const struct rt_buffer *b);
int rt_buffer_mem(const struct rt_buffer *b);
struct rt_event *rt_buffer_ready(struct rt_buffer *b);     /* borrowed */
/* Asynchronous copies; the event is owned by the caller.  All of it to dst, to lie there as it says (NULL: row-major). */
struct rt_event *rt_buffer_read(struct rt_buffer *b, const struct layout *as, void *dst);
/* Bytes [off, off + n), as they lie, to dst. */
struct rt_event *rt_buffer_to_host(struct rt_buffer *b, int64_t off, int64_t n, void *dst);
/* Asynchronous copy to another device or memory of this client. */
struct err *rt_buffer_copy(struct rt_buffer *b, struct rt_device *d, int mem, struct rt_buffer **out);
/* An array in n parts, side by side along dimension d: part i of b, and the array of parts that nobody else has.  Asynchronous copies, to device `to`. */
struct err *rt_buffer_part(struct rt_buffer *b, int d, int i, int n, struct rt_device *to, struct rt_buffer **out);
struct err *rt_buffer_join(struct rt_buffer *const *part, int d, int n, struct rt_device *to, struct rt_buffer **out);
/* Arrays of other devices that are the same, which go when it goes or is deleted: `others`, n of them, are taken; false: it has some already.  The i-th
 * one: a new reference; NULL: there is none, or it has been donated. */
bool rt_buffer_twins(struct rt_buffer *b, struct rt_buffer *const *others, int n);
struct rt_buffer *rt_buffer_twin(struct rt_buffer *b, int i);
void rt_buffer_delete(struct rt_buffer *b);                /* storage goes when its last use ends; idempotent */
bool rt_buffer_deleted(const struct rt_buffer *b);         /* also after donation */
/* Host address of the storage, once ready; NULL on devices whose memory the host cannot touch. */
void *rt_buffer_host_ptr(struct rt_buffer *b);
uint64_t rt_buffer_addr(struct rt_buffer *b);              /* device address */
void rt_buffer_hold(struct rt_buffer *b);                  /* external reference: never donated while held */
void rt_buffer_release(struct rt_buffer *b);
/* New handle on the same storage, other type or shape of equal size. */
struct err *rt_buffer_bitcast(struct rt_buffer *b, const struct rt_shape *s, struct rt_buffer **out);

/* --- exec.c, launch.c, part.c, walk.c ---------------------------------------------- */

/* p is taken.  dev: p->ndev global device ids, position by position (the device assignment); those of this
 * process are run (there may be none).  Loads generated code, prepares kernels, copies constants to each device once. */
struct err *rt_exec_new(struct rt_client *c, struct prog *p, const int *dev, struct rt_exec **out);
struct rt_exec *rt_exec_ref(struct rt_exec *x);
void rt_exec_unref(struct rt_exec *x);
const struct prog *rt_exec_prog(const struct rt_exec *x);
/* Bytes that a launch takes on each device beside those of its results: values, scratch, what collectives stage, what results are rounded up by. */
int64_t rt_exec_zone(const struct rt_exec *x);
int64_t rt_exec_arguments(const struct rt_exec *x);        /* bytes that its arguments take there, each rounded up */
int64_t rt_exec_peak(const struct rt_exec *x);             /* these and rt_exec_zone, and results: what a launch takes of each device at most */
/* The same, and constants, of p, before it is loaded there; p is borrowed. */
struct err *rt_exec_needs(struct rt_client *c, struct prog *p, const int *dev, int64_t *bytes);
/* By how many bytes arguments, results and temporaries are more than a device may have; 0: they are not. */
int64_t rt_exec_lacks(const struct rt_exec *x);
/* EXHAUSTED, with the program, its largest temporaries and what helps, if no launch can have the memory that RONDO_MEMORY says, whatever its arguments are: the same in all
 * processes that the program has devices of.  What a machine has is not asked: what is only compiled may be for a larger one. */
struct err *rt_exec_fits(const struct rt_exec *x);
int rt_exec_nlocal(const struct rt_exec *x);               /* local devices, in order of position */
struct rt_device *rt_exec_device(const struct rt_exec *x, int i);
int rt_exec_position(const struct rt_exec *x, int i);      /* position of local device i */
/* Launch on all local devices.  arg[i * narg + k], borrowed; no_donate: nkeep parameter indices whose
 * donation is refused.  out[i * nres + k] are made (owned by the caller); done[i] likewise.  Returns an error
 * if nothing was launched, and nothing was taken then; later failures are in done and in the outputs' events.  Where all devices are local and
 * memory is short, the call waits for what was launched before, and says what is lacking then.
 * A small program without communication, with ready arguments and an idle queue runs on the caller's thread. */
struct err *rt_exec_run(struct rt_exec *x, struct rt_buffer *const *arg, const int64_t *no_donate, size_t nkeep,
                        int32_t launch_id, struct rt_buffer **out, struct rt_event **done);

/* Bytes that permutes of this process' devices have copied so far, and those that were read where they lay. */
void rt_permuted(int64_t *copied, int64_t *in_place);
/* Bytes of sums over devices that the kernel after them took part by part, likewise. */
int64_t rt_followed(void);
int64_t rt_helped(void);                       /* how often a device that waited has worked for another one */

/* --- trace.c: what ran, and when --------------------------------------------------- */

/* Lanes of a device: launches; what its thread does, one after the other, in three sorts; what goes on beside that. */
enum rt_lane { RT_LANE_LAUNCH, RT_LANE_COMPUTE, RT_LANE_COMM, RT_LANE_HOST, RT_LANE_BESIDE, RT_LANES };
struct rt_trace_prog { const char *name; uint64_t id; uint32_t nop; };       /* id: not 0, below 2^63; equal in all processes where they can know it */
/* A command of a program; number 0 is the launch. */
struct rt_trace_op {
	const struct rt_trace_prog *prog;
	uint32_t number;
	const char *name;         /* what runs: a kernel, "fused" machine code, a collective, a custom call's target */
	const char *sort;         /* XLA's word for it ("all-reduce"), or the kernel's */
	const char *site;         /* "train.py:31 dot", or "" */
	const char *scope;        /* as JAX has it, "jit(step)/block/dot_general"; NULL: none */
	const char *const *peer;  /* of what communicates, by local device of the program: "0,1,2,3", "from 3 to 1"; NULL: it does not */
	int64_t flops, bytes;     /* of one run, by the compiler's estimate: operations; bytes read and written, or that come from other devices */
	double limit_ns;          /* what it takes at least by the machine table's rates; 0: nobody knows */
};
struct rt_trace_event {
	const struct rt_trace_op *op;
	uint64_t t0, t1;          /* clock_ns */
	int64_t moved;            /* bytes that a permute has copied, or, negative, that are read where they lie */
	uint32_t step;            /* one begins with each launch of the program that took most time: how many launches it has had, the same on
	                           * all devices; 0: before the first */
	uint16_t local;           /* device among those of the program */
	uint8_t lane;             /* enum rt_lane */
	bool begins;              /* a launch that begins a step */
};
/* A window of time, in which all devices of this process record.  Any thread. */
struct rt_trace;
struct err *rt_trace_new(struct rt_trace **out);           /* owned */
/* From now on, until then.  Once each, PRECONDITION says so.  Launches that are under way when it starts or stops are not in it. */
struct err *rt_trace_start(struct rt_trace *t);
struct err *rt_trace_stop(struct rt_trace *t);
void rt_trace_free(struct rt_trace *t);                    /* NULL is fine */
/* What is in it so far, by device, in order of begin, what holds others before them; ops live as long as t.  Under a guard. */
struct rt_trace_device {
	int id;
	double flops, bytes;      /* what it can do in a nanosecond at most by the machine table */
	uint64_t lost;            /* events that found no room: a window has a million of a device, 16 million in all */
	size_t n; struct rt_trace_event *ev;
};
struct rt_trace_read {
	uint64_t t0, t1;          /* the window */
	int64_t wall;             /* ns since 1970 at t0 */
	size_t ndev; struct rt_trace_device *dev;
};
void rt_trace_read(struct rt_trace *t, struct rt_trace_read *out);      /* owned */
void rt_trace_read_free(struct rt_trace_read *r);

/* --- host.c: code outside Rondo ------------------------------------------ */

/* A handler of a CMD_CUSTOM target.  in, out: host addresses of dense arrays; runs on the device's thread
 * with no runtime lock held. */
struct rt_custom_call {
	const struct prog_custom *c;
	int position; struct rt_device *device; int32_t launch_id;
	unsigned long by;         /* the thread that has launched the program, or whose call has; 0: this one */
	void *const *in; void *const *out;
};
typedef struct err *rt_custom_fn(void *user, const struct rt_custom_call *call);
/* Register for all clients of the process; a second registration replaces the first. */
void rt_custom_register(const char *target, rt_custom_fn *fn, void *user);
/* XLA FFI handler (XLA_FFI_Handler *) for target: called with the FFI call frame (facts: ABI 0.3). */
void rt_ffi_register(const char *target, void *handler);
bool rt_custom_known(const char *target);

#endif
