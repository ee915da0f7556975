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

/* Kernels (bench_kern.c): those whose name contains `only` (NULL: all), on so many cores, at least so many seconds each, beside what these cores can do at
 * most: a core's operations a second of each kind, and the memory that the kernel touches read and written by loops that do nothing else.  bytes: of copies
 * of 16 MB, for who reads the first line.  An error names the kernels that failed. */
#define BENCH_KINDS(X) X(f32) X(bf16) X(i8) X(f64) X(i32)
#define X(kind) BENCH_##kind,
enum bench_kind { BENCH_KINDS(X) BENCH_KIND_COUNT };
#undef X
struct bench_peak { double ops[BENCH_KIND_COUNT], bytes; };
enum { BENCH_CORES = 256 };
struct err *bench_kern(const char *only, double least, int n_core, const struct bench_peak *p);
/* An error that says what there is, if there is none such. */
struct err *bench_kern_has(const char *only);
/* Memory read, copied, filled (bench_stream.c): by the C library, by the widest vectors, past the caches.  bench_read gives what keeps it from being left out. */
enum bench_way { BENCH_LIBRARY, BENCH_VECTORS, BENCH_PAST, BENCH_WAYS };
uint64_t bench_read(const char *p, size_t n);
void bench_copy(enum bench_way way, char *to, const char *from, size_t n);
void bench_fill(enum bench_way way, char *to, uint64_t with, size_t n);
/* Memory as the runtime has it: large pages for what is large.  free(). */
char *bench_room(size_t bytes);
/* The machine table (bench_machine.c). */
struct err *bench_machine(void);
/* This thread stays on core number i, modulo those that there are. */
void bench_pin(int i);
/* Seconds of a run of a kernel, given as the text of a program has it, on one core: repeats times, each the best of what `least` seconds hold. */
struct err *bench_kernel(const char *text, int repeats, double least, double *sample);

#endif
