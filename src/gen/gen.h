/* Groups of operations -> machine code, through LLVM's C API.  Lives in its own shared object
 * (librondo_gen.so), loaded on the first use. */
#ifndef RONDO_GEN_H
#define RONDO_GEN_H

#include "../base/base.h"
#include "../ir/ir.h"
#include "../prog/prog.h"

struct gen_target;        /* what the code is for: target.h */

/* What generated code expects, and the code.  What gen_group gives lives as long as the process. */
struct gen_out {
	const char *symbol;
	const void *obj; size_t nobj;    /* as the target's loader in rt takes it */
	uint64_t key;            /* of the canonical text, the target and the generator's version */
	int64_t tiles;           /* grid; one call may do any range of tiles */
	int64_t block, times;    /* as of struct prog_kern */
	const int64_t *under;    /* per operand: as the attributes of KERN_gen */
};

/* Does generated code have all element types that fn has?  It has no complex numbers, and none of 8 bits. */
bool gen_types(const struct ir_module *m, const struct ir_fn *fn);
/* What generated code adds up products of operands of type x in, to give a result of type t; DT_token: it does not. */
enum dtype gen_products_sum(enum dtype x, enum dtype t);
/* Can group fn be compiled, as one kernel whose operands are dense (or the given views)?  Cheap: no LLVM.
 * On false, why (if not NULL) is a static text. */
bool gen_can(const struct ir_module *m, const struct ir_fn *fn, const char **why);
/* If group fn is a loop, and its result r (of the first 63) what becomes of operand k, the two may be one array: k; else -1. */
int gen_loop_over(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, uint32_t r);
/* Compile group fn.  in/out views: nparam then nresult, NULL = all dense; their rank and extents are the
 * parameters' and results', only off and stride are free.  Thread-safe. */
struct err *gen_group(const struct ir_module *m, const struct ir_fn *fn, const struct prog_view *view, struct gen_out *out);
/* The same for any target, whether its code runs here or not. */
struct err *gen_group_for(const struct gen_target *t, const struct ir_module *m, const struct ir_fn *fn, const struct prog_view *view, struct gen_out *out);
/* Bytes of a row's dear values that a kernel keeps from one pass over the row to the next; what is longer it computes anew. */
int64_t gen_keeps(void);
/* Load the generator now (gen_group does on its first use).  UNAVAILABLE says what is missing. */
struct err *gen_load(void);

/* The table of the shared object (symbol rondo_gen): what the compiler half calls through. */
struct gen_api {
	void (*join)(const struct mem_home *, struct conf_value *);
	struct err *(*group)(struct arena *, const struct gen_target *, const struct ir_module *, const struct ir_fn *, const struct prog_view *, struct gen_out *);
};

#endif
