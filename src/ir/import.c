/* A program into another module, as functions of that. */
#include "ir.h"

struct import { struct ir_module *to; const struct ir_module *from; struct arena a; ir_fnid *fn; ir_blob *blob; ir_loc *loc; };

static ir_type type(struct import *x, ir_type t)
{
	const struct ir_type_info *i = ir_type_of(x->from, t);
	return ir_tensor(x->to, (enum dtype)i->dtype, i->rank, i->dim);
}

static ir_str text(struct import *x, ir_str s)
{
	const char *p = ir_text(x->from, s);
	return ir_intern(x->to, p, strlen(p));
}

static int64_t word(struct import *x, char kind, int64_t v)
{
	if (!v)
		return 0;
	switch (kind) {
	case 'f': case 'F':
		return x->fn[v];
	case 's':
		return text(x, (ir_str)v);
	case 'g': {
		const struct ir_group_info *g = &x->from->group.p[v];
		return ir_group_add(x->to, g->nrow, g->ncol, g->id);
	}
	case 'b': case 'D':
		if (!x->blob[v]) {
			size_t n;
			const void *p = ir_blob_data(x->from, (ir_blob)v, &n);
			x->blob[v] = ir_blob_add(x->to, p, n);
		}
		return x->blob[v];
	default:
		assert(kind != 'h' && kind != 'H');
		return v;
	}
}

static void function(struct import *x, ir_fnid f)
{
	const struct ir_fn *fn = ir_fn_of(x->from, f);
	struct ir_fn *g = ir_fn_new(x->to, ir_text(x->from, fn->name));
	struct ir_b b = { x->to, g, 0 };
	x->fn[f] = g->id;
	for (ir_val v = 1; v <= fn->nparam; v++)
		ir_param(g, type(x, fn->val.p[v].type));
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		const struct ir_kind_info *k = ir_info(o->kind);
		uint32_t nw;
		int64_t *w = ir_attr_copy(&x->a, fn, o, &nw), *at = w;
		for (int j = 0; j < k->nattr; j++) {
			char c = k->attr[j].kind;
			bool list = c == 'I' || c == 'F' || c == 'H';
			int64_t n = list ? *at++ : 1;
			for (; n > 0; n--, at++)
				*at = word(x, c, *at);
		}
		ir_type *t = ARENA_NEW(&x->a, ir_type, o->nout + 1);
		for (uint32_t r = 0; r < o->nout; r++)
			t[r] = type(x, fn->val.p[o->out + r].type);
		if (o->loc && !x->loc[o->loc]) {
			const struct ir_loc_info *l = &x->from->loc.p[o->loc];
			x->loc[o->loc] = ir_loc_add(x->to, text(x, l->file), l->line, text(x, l->name));
		}
		b.loc = x->loc[o->loc];
		ir_val v = ir_emit_raw(&b, (enum ir_kind)o->kind, o->nin, fn->ref.p + o->in, o->nout, t, w, nw);
		assert(!o->nout || v == o->out);        /* values are numbered alike */
		(void)v;
	}
	for (size_t i = 0; i < fn->result.n; i++)
		ir_result(g, fn->result.p[i]);
}

ir_fnid ir_import(struct ir_module *to, const struct ir_module *from)
{
	struct import x = { .to = to, .from = from };
	int n;
	arena_init(&x.a);
	x.fn = ARENA_NEW(&x.a, ir_fnid, from->fn.n);
	x.blob = ARENA_NEW(&x.a, ir_blob, from->nblob);
	x.loc = ARENA_NEW(&x.a, ir_loc, from->loc.n);
	const ir_fnid *f = ir_reachable(&x.a, from, &n);
	for (int i = 0; i < n; i++)
		function(&x, f[i]);
	ir_fnid main = x.fn[1];
	arena_fini(&x.a);
	return main;
}
