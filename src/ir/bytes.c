/* What a function computes, as bytes. */
#include "ir.h"

static void put(struct str *s, const void *p, size_t n) { str_addn(s, p, n); }
static void put_i(struct str *s, int64_t v) { put(s, &v, sizeof v); }

static void put_type(struct str *s, const struct ir_type_info *t)
{
	put_i(s, t->dtype << 8 | t->rank);
	put(s, t->dim, sizeof *t->dim * t->rank);
}

static void put_attr(struct str *s, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, int a, ir_hole *hole, void *user)
{
	char c = ir_info(o->kind)->attr[a].kind;
	int n;
	const int64_t *v = ir_attr_nth(fn, o, a, &n);
	size_t nb;
	const void *p;
	if (c == 'h' || c == 'H')                     /* where it lies, not what it is */
		return;
	put_i(s, n);
	for (int j = 0; j < n; j++)
		switch (c) {
		case 'b': case 'D':
			p = ir_blob_data(m, (ir_blob)v[j], &nb);
			put_i(s, (int64_t)nb);
			put(s, p, nb);
			break;
		case 's':
			put(s, ir_text(m, (ir_str)v[j]), strlen(ir_text(m, (ir_str)v[j])) + 1);
			break;
		case 'f': case 'F':
			put_i(s, v[j] != 0);
			if (v[j])
				ir_fn_bytes(s, m, ir_fn_of(m, (ir_fnid)v[j]), hole, user);
			break;
		default:
			put_i(s, v[j]);
		}
}

void ir_fn_bytes(struct str *s, const struct ir_module *m, const struct ir_fn *fn, ir_hole *hole, void *user)
{
	put_i(s, fn->nparam);
	for (ir_val v = 1; v <= fn->nparam; v++)
		put_type(s, ir_vtype(m, fn, v));
	put_i(s, (int64_t)fn->op.n);
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		bool open = hole && o->kind == IR_constant && hole(user, fn, o);
		put_i(s, o->kind);
		put_i(s, o->nin);
		put(s, fn->ref.p + o->in, o->nin * sizeof(ir_val));
		for (uint32_t j = 0; j < o->nout; j++)
			put_type(s, ir_vtype(m, fn, o->out + j));
		put_i(s, open);
		for (int a = 0; a < ir_info(o->kind)->nattr && !open; a++)
			put_attr(s, m, fn, o, a, hole, user);
	}
	put_i(s, (int64_t)fn->result.n);
	put(s, fn->result.p, fn->result.n * sizeof(ir_val));
}
