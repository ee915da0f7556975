/* Arguments and results of main that lie in memory otherwise than row-major, as their user wants it (jax.experimental.layout): main takes and
 * gives them with their dimensions in the order in which they lie, and transposes, which the passes behind this one make part of who reads and
 * writes.  Where the user leaves it open, arguments are row-major, and a result that is a transpose, or a function of elements of one, lies as
 * what is transposed. */
#include "passes.h"

enum { FAR = 16 };           /* operations between a result and what it is made of */

/* How result v lies best: as the argument, or what else is made, that it is a function of the elements of. */
static const struct layout *chosen(const struct ir_module *m, const struct ir_fn *fn, ir_val v)
{
	int rank = ir_vtype(m, fn, v)->rank, from[IR_MAX_RANK];      /* dimension d is from[d] of what has been reached */
	int64_t minor[IR_MAX_RANK];
	const struct layout *l = NULL;
	const struct ir_op *o;

	for (int d = 0; d < rank; d++)
		from[d] = d;
	for (int k = 0; k < FAR && (o = ir_def(fn, v)) && (ir_is_elem(o->kind) || o->kind == IR_transpose); k++) {
		const int64_t *perm = o->kind == IR_transpose ? ir_attrs(fn, o, AT_perm, &(int){ 0 }) : NULL;
		for (int d = 0; d < rank && perm; d++)
			from[d] = (int)perm[from[d]];
		v = ir_in(fn, o, 0);
	}
	if (v <= fn->nparam && m->arg && m->arg[v - 1].layout)
		layout_read(ir_text(m, m->arg[v - 1].layout), rank, &l);
	for (int d = 0; d < rank; d++) {
		int k = rank - 1 - from[d];
		for (int i = 0; i < rank && l; i++)
			k = l->minor[i] == from[d] ? i : k;
		minor[k] = d;
	}
	layout_new(rank, minor, &l);
	return l;
}

/* "auto" is settled; returns whether a is not row-major. */
static bool settle(struct ir_module *m, struct ir_arg *a, const struct layout *best)
{
	if (a->layout && !strcmp(ir_text(m, a->layout), "auto"))
		a->layout = best ? ir_intern(m, best->text, strlen(best->text)) : 0;
	return a->layout != 0;
}

/* For arrays of rank dimensions that lie as a says: to[k], which of them lies k-th from the outermost, and back[d], where dimension d does. */
static void orders(const struct ir_module *m, const struct ir_arg *a, int rank, int64_t *to, int64_t *back)
{
	const struct layout *l;
	layout_read(ir_text(m, a->layout), rank, &l);
	for (int k = 0; k < rank; k++)
		back[to[k] = l->minor[rank - 1 - k]] = k;
}

/* v, which is read at depth functions of elements above a result, with its dimensions in the order to.  Functions of elements that nobody else reads
 * are done in that order, so that nothing is written twice. */
static ir_val in_order(struct ir_b *b, ir_val v, const int64_t *to, int depth)
{
	const struct ir_op *o = ir_def(b->fn, v);
	if (!ir_vtype(b->m, b->fn, v)->rank)
		return v;
	if (!o || depth == FAR || !ir_is_elem(o->kind) || b->fn->val.p[v].nuse > (depth > 0))
		return ir_transpose(b, v, to);
	enum ir_kind kind = (enum ir_kind)o->kind;
	const struct ir_type_info *t = ir_vtype(b->m, b->fn, v);
	uint32_t nin = o->nin, first = o->in;
	int64_t dim[IR_MAX_RANK];
	ir_val in[8];
	for (int k = 0; k < t->rank; k++)
		dim[k] = t->dim[to[k]];
	ir_type lies = ir_tensor(b->m, t->dtype, t->rank, dim);
	b->loc = o->loc;
	for (uint32_t k = 0; k < nin; k++)
		in[k] = in_order(b, b->fn->ref.p[first + k], to, depth + 1);
	return ir_emit(b, kind, nin, in, lies, NULL, 0);
}

struct err *pass_layouts(const struct pass_opts *o, struct ir_module *m)
{
	const struct ir_fn *fn = ir_main(m);
	struct arena a;
	bool any = false;

	for (uint32_t i = 0; i < fn->nparam && m->arg; i++)
		any |= settle(m, &m->arg[i], NULL);
	for (size_t i = 0; i < fn->result.n && m->res; i++)
		any |= settle(m, &m->res[i], chosen(m, fn, fn->result.p[i]));
	if (!any)
		return NULL;
	arena_init(&a);
	struct ir_b b = { m, ir_fn_new(m, ""), 0 };
	ir_val *in = ARENA_NEW(&a, ir_val, fn->nparam + 1), *out = ARENA_NEW(&a, ir_val, fn->result.n + 1);
	int64_t to[IR_MAX_RANK], back[IR_MAX_RANK], dim[IR_MAX_RANK];
	for (uint32_t i = 0; i < fn->nparam; i++) {
		const struct ir_type_info *t = ir_vtype(m, fn, i + 1);
		ir_type lies = fn->val.p[i + 1].type;
		if (m->arg && m->arg[i].layout) {
			orders(m, &m->arg[i], t->rank, to, back);
			for (int k = 0; k < t->rank; k++)
				dim[k] = t->dim[to[k]];
			lies = ir_tensor(m, t->dtype, t->rank, dim);
		}
		in[i] = ir_param(b.fn, lies);
	}
	for (uint32_t i = 0; i < fn->nparam; i++)
		if (m->arg && m->arg[i].layout) {
			orders(m, &m->arg[i], ir_vtype(m, fn, i + 1)->rank, to, back);
			in[i] = ir_transpose(&b, in[i], back);
		}
	ir_inline(&b, fn->id, in, out);
	for (size_t i = 0; i < fn->result.n; i++) {
		if (m->res && m->res[i].layout) {
			orders(m, &m->res[i], ir_vtype(m, b.fn, out[i])->rank, to, back);
			out[i] = in_order(&b, out[i], to, 0);
		}
		ir_result(b.fn, out[i]);
	}
	pass_replace(m, fn->id, b.fn);
	arena_fini(&a);
	return NULL;
}
