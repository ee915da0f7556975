/* What `rondo bench` consists of. */
#ifndef RONDO_TOOL_BENCH_H
#define RONDO_TOOL_BENCH_H

#include "../base/base.h"
#include "../plan/plan.h"

/* Texts of options, NULL where not given. */
struct bench_coll_opts { const char *op, *algo, *pes, *least, *most, *rounds, *fine, *write, *plot; };
struct err *bench_coll(const struct bench_coll_opts *o);
/* The curves of all collectives among so many threads, up to that size, into t: rounds repeats that take budget seconds together for each point.  DEADLINE
 * when clock_s() is `until`, unless that is 0. */
struct err *bench_coll_curves(struct plan_table *t, struct plan_gauge *g, int pes, int64_t most, int rounds, double budget, double until);

/* Kernels (bench_kern.c): those whose name contains `only` (NULL: all), on so many cores, at least so many seconds each, beside what one core can
 * do at most, in operations and bytes a second. */
struct bench_peak { double f32, bf16, i8, bytes; };
enum { BENCH_CORES = 256 };
void bench_kern(const char *only, double least, int n_core, const struct bench_peak *p);
/* An error that says what there is, if there is none such. */
struct err *bench_kern_has(const char *only);
/* Memory as the runtime has it: large pages for what is large.  free(). */
char *bench_room(size_t bytes);
/* The machine table (bench_machine.c). */
struct err *bench_machine(void);
/* This thread stays on core number i, modulo those that there are. */
void bench_pin(int i);
/* Seconds of a run of a kernel, given as the text of a program has it, on one core: repeats times, each the best of what `least` seconds hold. */
struct err *bench_kernel(const char *text, int repeats, double least, double *sample);

#endif
