/* The front door: the PJRT C API for JAX, and a few C functions for the Python package.
 *
 * GetPjrtApi's table is thread-safe throughout: every function may be called from any thread.  No lock is
 * held while a callback of the caller runs. */
#ifndef RONDO_PJRT_H
#define RONDO_PJRT_H

#include <stddef.h>
#include <stdint.h>

struct pjrt_api;
const struct pjrt_api *GetPjrtApi(void);          /* static; does no work */

/* --- for the Python package (through ctypes) ------------------------------ */

/* As if RONDO_<name> were set in the environment.  NULL, or the error's text, valid until the
 * thread's next call. */
const char *rondo_set_option(const char *name, const char *value);
/* The value of a setting that is a number; 0 if there is none of that name. */
int64_t rondo_get_option(const char *name);

/* A Python function called by a program: id names it, in and out are host addresses of dense arrays
 * (tokens left out), dim their extents, of in and then out; device the global id of the device that calls.  Returns 1, or 0, having
 * written at most cap bytes of text, NUL included, to msg, or nothing: Python raised before the function's first line.  thread: where it says, under the GIL,
 * which thread is to be interrupted with the main one, 0: none any more; or NULL. */
typedef int rondo_callback(uint64_t id, void *const *in, void *const *out, const int64_t *const *dim, int device, _Atomic unsigned long *thread, char *msg, size_t cap);
/* An executable that may call id was made (+1) or has gone, with all its runs (-1). */
typedef void rondo_count(uint64_t id, int change);
void rondo_set_callback(rondo_callback *fn, rondo_count *count);      /* NULL: calls fail from now on */

int64_t rondo_calling(void);               /* runs that may call one, of all devices of this process, and are not over */
int rondo_runs(void);                      /* does any device of this process run a program? */
void rondo_give_up(void);                  /* all that run or are queued fail as soon as they can */
void rondo_await(int begins);              /* the process waits for what runs: whoever sits before it is told after a second, until it ends */

/* What Ctrl-C needs of CPython: addresses of PyGILState_Ensure, PyGILState_Release, PyErr_CheckSignals, PyErr_Fetch, PyErr_Restore,
 * Py_AddPendingCall and PyThreadState_SetAsyncExc, the type KeyboardInterrupt, and the main thread's id.  A wait of the main thread then looks for signals, is given
 * up if a handler raises, and the same is raised there when it is back in Python, and KeyboardInterrupt in callbacks that run for it.  NULL: no more. */
struct rondo_python {
	int (*ensure)(void);
	void (*release)(int state);
	int (*check)(void);
	void (*fetch)(void **type, void **value, void **trace);
	void (*restore)(void *type, void *value, void *trace);
	int (*later)(int (*fn)(void *arg), void *arg);
	int (*raise)(unsigned long thread, void *type);
	void *interrupt;
	unsigned long main;
};
void rondo_set_python(const struct rondo_python *p);

/* Called for every custom-call target of a program before it is loaded, so that handlers can be
 * registered when they are wanted first. */
typedef void rondo_resolve(const char *target);
void rondo_set_resolver(rondo_resolve *fn);

/* MLIR as JAX lowers to it, in the portable form that programs arrive in: gives that to take.  Returns 0, or anything else after writing at
 * most cap bytes of text, NUL included, to msg. */
typedef int rondo_portable(const void *p, size_t n, void (*take)(void *to, const void *p, size_t n), void *to, char *msg, size_t cap);
void rondo_set_portable(rondo_portable *fn);

/* XLA FFI handler for a custom-call target, for all clients of the process. */
void rondo_ffi_register(const char *target, void *handler);

/* Bytes that permutes of this process' devices have copied so far, and those that were read where they lay. */
void rondo_permuted(int64_t *copied, int64_t *in_place);
int64_t rondo_followed(void);
void rondo_compiles(int64_t *some, int64_t *over);         /* compiles so far: that have begun, and that are over */
const char *rondo_forked(void);                            /* what a child that was forked from the process that started the devices is told */

/* 1: numpy has views of arrays.  jaxlib's client asks for the end of a view when that goes, but lives no longer for it: it must not be freed any more. */
int rondo_viewed(void);

/* Text of the compiled program with this fingerprint while an executable of it lives, else NULL.  Free
 * with rondo_free. */
char *rondo_text(const char *fingerprint);
void rondo_free(void *p);

#endif
