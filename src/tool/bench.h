/* What `rondo bench` consists of. */
#ifndef RONDO_TOOL_BENCH_H
#define RONDO_TOOL_BENCH_H

#include "../base/base.h"

/* Texts of options, NULL where not given. */
struct bench_coll_opts { const char *op, *algo, *pes, *least, *most, *rounds, *fine, *write, *plot; };
struct err *bench_coll(const struct bench_coll_opts *o);

#endif
