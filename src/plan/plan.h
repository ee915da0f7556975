/* What work takes on a machine, and which of two ways to run it pays.  Every choice between ways asks here, in numbers of the program
 * alone: the same program gives the same answers in all processes and runs, whatever is in a cache.
 *
 * Times are estimates in nanoseconds of one core, from rates.def. */
#ifndef RONDO_PLAN_H
#define RONDO_PLAN_H

#include "../base/base.h"
#include "../prog/prog.h"

enum plan_way {
#define COMPILE(first, op, add)
#define ROAD(wait, byte, own, product)
#define RATE(id, start, op, point, add, byte, meaning) PLAN_##id,
#include "rates.def"
#undef RATE
#undef ROAD
#undef COMPILE
	PLAN_WAYS
};
extern const char *const plan_way_meaning[PLAN_WAYS];

/* One run of it.  flops: operations on elements; adds: how long they take, in additions of f32; bytes that it reads and writes; ops
 * that run. */
struct plan_work { double flops, adds, bytes, ops; };

double plan_time(const struct plan_work *w, enum plan_way way);
/* Making code of nops ops, which for an element take adds additions. */
double plan_compile_time(double nops, double adds);
/* Launches that a program is compiled for, one of which takes ns and runs so many ops: JAX users jit what they call again and again, a
 * step of training or decoding some thousand times at least, and what is short more often, until all its launches have taken LIFE.  A
 * program of one op or a few is a call that JAX makes eagerly, of which there are hundreds: it should be there at once. */
double plan_launches(double ns, double ops);
/* Does what a run saves outweigh, over all runs, the time to compile? */
bool plan_worth_compiling(const struct plan_work *w, enum plan_way otherwise, double nops, double adds, double runs);
/* Each of n devices gets that many bytes from the others: gathers, scatters, exchanges and permutes; or what each has, of that many bytes, is
 * summed for all, in one step or in two.  Which way a collective takes is decided when it runs (src/coll). */
double plan_move_time(int n, double bytes);
double plan_sum_time(int n, double bytes);
/* Work of a part of an op, apart from where it runs: operations of a product, bytes that are read or written. */
double plan_part_time(double products, double bytes);
/* One run of a kernel whose operands are in no cache, for who splits or sends away what takes long: it may be much faster.  Matrix
 * products take what this CPU needs; no choice that must agree between processes asks for them. */
double plan_kern_time(const struct prog_kern *k);
/* The same where they are in caches near, if that is known of its kind and they fit in there: what a second core can take over at least. */
double plan_kern_near(const struct prog_kern *k);

#endif
