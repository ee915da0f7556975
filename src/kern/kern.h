/* Kernels: the meaning of every operation (reference kernels, correct for every element type and
 * stride) and fast ones, chosen by CPU features.  Thread-safe: tiles of one kernel may run on several
 * threads at once.
 *
 * Numbers: sums of bf16/f16/f8 in f32, rounded once; f32 in f32 with a fixed
 * tree; integers wrap; denormals are flushed by the caller's MXCSR. */
#ifndef RONDO_KERN_H
#define RONDO_KERN_H

#include "../base/base.h"
#include "../prog/prog.h"

/* What a kernel needs beside its operands, made once per kernel and shared by threads: chosen variant,
 * library handles.  NULL is a valid state for kernels that need none. */
struct kern_state;
/* Choose the implementation.  Fails with UNIMPLEMENTED (naming op and types) where there is none. */
struct err *kern_prepare(const struct prog_kern *k, struct kern_state **out);   /* owned */
void kern_release(struct kern_state *s);

/* Number of tiles the kernel's work is cut into; 1 if it cannot be split.  Bits of the result do not
 * depend on who runs which tile. */
int64_t kern_tiles(const struct prog_kern *k, const struct kern_state *s);
/* Bytes of scratch each running thread needs (64-byte aligned, contents undefined). */
size_t kern_scratch(const struct prog_kern *k, const struct kern_state *s);
/* Run tiles t0 .. t1-1.  ptr: base address of each operand's, then each result's buffer (the view's off
 * is added here).  Some kernels need a barrier between phases: see kern_phases. */
void kern_run(const struct prog_kern *k, const struct kern_state *s, int phase,
              char *const *ptr, int64_t t0, int64_t t1, void *scratch);
/* Phases run one after the other with a barrier between; each has kern_tiles tiles.  Usually 1. */
int kern_phases(const struct prog_kern *k, const struct kern_state *s);
/* Bytes shared by all threads and phases of one run (partial results between phases), 0 usually; passed
 * to kern_run as ptr[nin + nout]. */
size_t kern_shared(const struct prog_kern *k, const struct kern_state *s);

/* Everything on this thread, own scratch: for the oracle, tests and small programs. */
struct err *kern_run_all(const struct prog_kern *k, char *const *ptr);

/* One elementwise function over n contiguous elements.  from: type of the operands, to: of the result.
 * NULL if fn has no meaning for from. */
typedef void kern_strip(int64_t n, void *out, const void *a, const void *b, const void *c);
kern_strip *kern_elem(enum elem fn, enum dtype from, enum dtype to);
/* Expression over n contiguous elements each; stride 0 operands are given once (bit i of splat). */
void kern_expr(const struct prog_expr *e, int64_t n, void *const *out, const void *const *in, uint64_t splat, void *scratch);
size_t kern_expr_scratch(const struct prog_expr *e);   /* for n <= KERN_STRIP */
enum { KERN_STRIP = 256 };

/* Combine n elements: acc[i] = acc[i] op x[i], in dtype dt (bf16, f16, f8: through f32, rounded). */
void kern_combine(enum redop r, enum dtype dt, int64_t n, void *acc, const void *x);
/* The value that changes nothing under r: its element bytes into out (16). */
void kern_identity(enum redop r, enum dtype dt, void *out);

/* What a number can be: it lies in lo .. hi, or is NaN. */
struct kern_bound { double lo, hi; bool nan; };
struct kern_bound kern_bound_any(enum dtype dt);                    /* any of the type */
struct kern_bound kern_bound_of(enum dtype dt, const void *p);      /* the one at p */
/* What the elementwise function that x is (fn, from, to: no EXPR_*) gives of such operands.  Bounds are those of what the program's own arithmetic gives. */
struct kern_bound kern_bound(const struct prog_ins *x, const struct kern_bound *in);

const char *kern_isa(void);      /* "amx", "avx512_bf16", "avx512", "avx2" or "base": what fast kernels use */

#endif
