/* Inside canon: the rewrites of rewrites.def. */
#ifndef RONDO_PASS_REWRITES_H
#define RONDO_PASS_REWRITES_H

#include "passes.h"

/* As rewrite_op; o is of r->from, in of the new function. */
#define KINDS(...) 0
#define REWRITE(id, kinds, from, to) ir_val rw_##id(struct rewrite *r, const struct ir_op *o, const ir_val *in);
#include "rewrites.def"
#undef REWRITE
#undef KINDS

/* The op of the new function that makes v, if it is of kind k. */
static inline const struct ir_op *made_by(const struct rewrite *r, ir_val v, enum ir_kind k)
{
	const struct ir_op *o = ir_def(r->b.fn, v);
	return o && o->kind == k ? o : NULL;
}

static inline const struct ir_type_info *type_of(const struct rewrite *r, ir_val v) { return ir_vtype(r->m, r->b.fn, v); }
static inline const struct ir_type_info *result_type(const struct rewrite *r, const struct ir_op *o) { return ir_vtype(r->m, r->from, o->out); }

static inline bool whole_numbers(const struct ir_type_info *t)
{
	return dtype_info[t->dtype].cls == DT_INT || dtype_info[t->dtype].cls == DT_UINT;
}

#endif
