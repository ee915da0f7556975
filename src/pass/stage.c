/* What holds of a program from a pass on: see the table in compile.c. */
#include "passes.h"

static const struct fact { enum pass_fact bit; const char *by; } fact[] = { { NO_CALL, "inline" }, { LOCAL, "partition" }, { NO_JOINT, "joint" } };

/* The fact that op o contradicts, 0: none. */
static unsigned broken(const struct ir_fn *fn, const struct ir_op *o)
{
	switch (o->kind) {
	case IR_call: return NO_CALL;
	case IR_manual: case IR_sharding_constraint: case IR_sharding_group: case IR_inspect_sharding: return LOCAL;
	case IR_all_reduce: case IR_reduce_scatter: return ir_attr(fn, o, AT_redop) == RED_softmax ? NO_JOINT : 0;
	default: return 0;
	}
}

struct err *pass_holds(const struct ir_module *m, unsigned facts)
{
	for (size_t f = 1; f < m->fn.n; f++) {
		const struct ir_fn *fn = m->fn.p[f];
		for (size_t i = 0; i < fn->op.n; i++)
			for (size_t k = 0; k < NELEM(fact); k++)
				if (facts & broken(fn, &fn->op.p[i]) & fact[k].bit)
					return ERR(INTERNAL, "function '%s' has '%s', of which there is none after pass '%s'", ir_text(m, fn->name),
					           ir_info(fn->op.p[i].kind)->name, fact[k].by);
	}
	return NULL;
}
