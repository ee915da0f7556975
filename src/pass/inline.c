#include "passes.h"

static ir_val on_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	if (o->kind != IR_call)
		return 0;
	ir_val *out = ARENA_NEW(r->a, ir_val, o->nout + 1);
	ir_inline(&r->b, (ir_fnid)ir_attr(r->from, o, AT_fn), in, out);
	for (uint32_t k = 0; k < o->nout; k++)
		r->map[o->out + k] = out[k];
	return REWRITE_MAPPED;
}

struct err *pass_inline(const struct pass_opts *o, struct ir_module *m)
{
	for (size_t f = 1; f < m->fn.n; f++)
		for (size_t i = 0; i < m->fn.p[f]->op.n; i++)
			if (m->fn.p[f]->op.p[i].kind == IR_call) {
				pass_rewrite(m, on_op, NULL, NULL);
				return NULL;
			}
	return NULL;
}
