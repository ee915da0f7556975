/* Equal pure ops of a function are shared.  Cheap large values (broadcasts, iotas) are not: each reader
 * makes its own, inside its kernel.  Nor are, before a program is partitioned, arrays made of no array: through one that
 * is shared the sharding of one reader would come to others, of which the program says nothing. */
#include "passes.h"

struct sharing { struct map seen; bool whole; ARR(bool) made; };     /* made: values of the new function that are, of no array */

static bool begin(struct rewrite *r)
{
	struct sharing *s = r->user;
	map_free(&s->seen);
	s->made.n = 0;
	return true;
}

/* Is o made of scalars, and of what is made of them? */
static bool of_no_array(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct sharing *s = r->user;
	for (uint32_t k = 0; k < o->nin; k++)
		if (ir_vtype(r->m, r->b.fn, in[k])->rank && !(in[k] < s->made.n && s->made.p[in[k]]))
			return false;
	return ir_vtype(r->m, r->from, o->out)->rank > 0;
}

static void note_made(struct sharing *s, ir_val v, uint32_t n)
{
	while (s->made.n <= v + n)
		arr_push(&s->made, false);
	for (uint32_t k = 0; k < n; k++)
		s->made.p[v + k] = true;
}

/* o, with an array of its own in place of each constant that another op reads. */
static ir_val copied(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	struct sharing *s = r->user;
	ir_val *own = NULL;
	for (uint32_t k = 0; k < o->nin && s->whole; k++) {
		const struct ir_op *d = ir_def(r->b.fn, in[k]);
		if (!d || d->kind != IR_constant || !ir_vtype(r->m, r->b.fn, in[k])->rank || !r->b.fn->val.p[in[k]].nuse)
			continue;
		struct ir_op constant = *d;
		if (!own)
			own = arena_copy(r->a, in, sizeof *in * o->nin);
		note_made(s, own[k] = ir_clone(&r->b, r->b.fn, &constant, NULL), 1);
	}
	return ir_clone(&r->b, r->from, o, own ? own : in);
}

/* The op that is shared, if o may be. */
static ir_val shared(struct rewrite *r, const struct ir_op *o, const ir_val *in)
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
	struct sharing *s = r->user;
	if (s->whole && of_no_array(r, o, in)) {
		ir_val v = copied(r, o, in);
		note_made(s, v, o->nout);
		return v;
	}
	struct str key = {0};
	uint32_t head[2] = { o->kind, o->nin };
	str_addn(&key, (char *)head, sizeof head);
	for (uint32_t k = 0; k < o->nout; k++)
		str_addn(&key, (const char *)&r->from->val.p[o->out + k].type, sizeof(ir_type));
	str_addn(&key, (const char *)in, sizeof *in * o->nin);
	if (o->kind == IR_constant) {
		size_t n;
		const char *p = ir_blob_data(r->m, (ir_blob)ir_attr(r->from, o, AT_data), &n);
		if (n > 4096)                /* the same one, if it is that of the program */
			p = (const char *)&r->from->attr.p[o->attr], n = sizeof(int64_t);
		str_addn(&key, p, n);
	} else {
		str_addn(&key, (char *)&r->from->attr.p[o->attr], sizeof(int64_t) * ir_attr_words(r->from, o));
	}
	uint64_t *v = map_put(&s->seen, key.p, key.n);
	if (!*v)
		*v = copied(r, o, in);
	str_free(&key);
	return (ir_val)*v;
}

static ir_val on_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	ir_val v = shared(r, o, in);
	return v || !o->nout ? v : copied(r, o, in);
}

static void share(struct ir_module *m, bool whole)
{
	struct sharing s = { .whole = whole };
	pass_rewrite(m, on_op, begin, &s);
	map_free(&s.seen);
	arr_free(&s.made);
}

struct err *pass_cse(const struct pass_opts *o, struct ir_module *m)
{
	share(m, o->ndev > 1);
	return NULL;
}

struct err *pass_cse_local(const struct pass_opts *o, struct ir_module *m)
{
	share(m, false);
	return NULL;
}
