/* Equal pure ops of a function are shared.  Cheap large values (broadcasts, iotas) are not: each reader
 * makes its own, inside its kernel. */
#include "passes.h"

static struct map *table(struct rewrite *r) { return r->user; }

static bool begin(struct rewrite *r)
{
	map_free(table(r));
	return true;
}

static ir_val on_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_kind_info *i = ir_info(o->kind);
	if (!(i->flags & IR_PURE) || i->flags & (IR_BARRIER | IR_EFFECT | IR_COLL) || !o->nout)
		return 0;
	bool cheap = o->kind == IR_broadcast || o->kind == IR_iota || o->kind == IR_constant;
	if (cheap && ir_vtype(r->m, r->from, o->out)->bytes > 4096 && o->kind != IR_constant)
		return 0;
	ir_fnid held;
	if (ir_regions(r->from, o, &held, 1))
		return 0;
	struct str key = {0};
	uint32_t head[2] = { o->kind, o->nin };
	str_addn(&key, (char *)head, sizeof head);
	for (uint32_t k = 0; k < o->nout; k++)
		str_addn(&key, (const char *)&r->from->val.p[o->out + k].type, sizeof(ir_type));
	str_addn(&key, (const char *)in, sizeof *in * o->nin);
	if (o->kind == IR_constant) {
		size_t n;
		const char *p = ir_blob_data(r->m, (ir_blob)ir_attr(r->from, o, AT_data), &n);
		if (n > 4096) {
			str_free(&key);
			return 0;
		}
		str_addn(&key, p, n);
	} else {
		str_addn(&key, (char *)&r->from->attr.p[o->attr], sizeof(int64_t) * ir_attr_words(r->from, o));
	}
	uint64_t *v = map_put(table(r), key.p, key.n);
	if (!*v)
		*v = ir_clone(&r->b, r->from, o, in);
	str_free(&key);
	return (ir_val)*v;
}

struct err *pass_cse(const struct pass_opts *o, struct ir_module *m)
{
	struct map t = {0};
	pass_rewrite(m, on_op, begin, &t);
	map_free(&t);
	return NULL;
}
