/* Functions that main reaches, and those that it does not. */
#include "ir.h"

#include <stdlib.h>

static void visit(struct arena *a, const struct ir_module *m, ir_fnid f, uint8_t *seen, ir_fnid *out, int *n)
{
	if (seen[f])
		return;
	seen[f] = 1;
	const struct ir_fn *fn = ir_fn_of(m, f);
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		if (ir_info(o->kind)->flags & IR_ELEM)
			continue;
		ir_fnid few[16];
		int cap = (int)ir_attr_words(fn, o) + 1;
		ir_fnid *r = cap <= (int)NELEM(few) ? few : ARENA_NEW(a, ir_fnid, cap);
		int k = ir_regions(fn, o, r, cap);
		for (int j = 0; j < k; j++)        /* as deep as regions nest in the source */
			visit(a, m, r[j], seen, out, n);
	}
	out[(*n)++] = f;
}

ir_fnid *ir_reachable(struct arena *a, const struct ir_module *m, int *n)
{
	ir_fnid *out = ARENA_NEW(a, ir_fnid, m->fn.n);
	*n = 0;
	visit(a, m, 1, ARENA_NEW(a, uint8_t, m->fn.n), out, n);
	return out;
}

void ir_sweep(struct ir_module *m)
{
	struct arena a;
	arena_init(&a);
	int n;
	const ir_fnid *f = ir_reachable(&a, m, &n);
	ir_fnid *to = ARENA_NEW(&a, ir_fnid, m->fn.n), next = 1;
	for (int k = 0; k < n; k++)
		to[f[k]] = 1;
	for (ir_fnid id = 1; id < m->fn.n; id++) {
		struct ir_fn *fn = m->fn.p[id];
		if (!to[id]) {
			ir_fn_free(fn);
			continue;
		}
		to[id] = fn->id = next;
		m->fn.p[next++] = fn;
	}
	if (next < m->fn.n) {
		m->fn.n = next;
		for (ir_fnid id = 1; id < next; id++) {
			struct ir_fn *fn = m->fn.p[id];
			for (size_t i = 0; i < fn->op.n; i++) {
				const struct ir_op *o = &fn->op.p[i];
				const struct ir_kind_info *info = ir_info(o->kind);
				for (int k = 0; k < info->nattr; k++) {
					int c;
					if (info->attr[k].kind != 'f' && info->attr[k].kind != 'F')
						continue;
					int64_t *v = fn->attr.p + (ir_attr_nth(fn, o, k, &c) - fn->attr.p);
					for (int j = 0; j < c; j++)
						v[j] = v[j] ? to[v[j]] : 0;
				}
			}
		}
	}
	arena_fini(&a);
}
