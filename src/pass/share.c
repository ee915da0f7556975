/* Groups that are the same become one function, and so do those that differ in constants only: these are an operand then.
 *
 * needs fuse.  Of unrolled layers, or of scans with a rate each, there are hundreds, and each would be compiled.  What is alike keeps
 * its constants, and so does what code is made of: initial values of reductions, padding, exponents, indices, anything that is not a
 * float. */
#include "passes.h"

#include <stdlib.h>

/* Groups alike: the constants of the first, which of them another has otherwise, and the function of all. */
struct alike { size_t n; uint64_t *value; bool *differs, any, alone; ir_fnid shared; };

struct constant { uint8_t dtype; uint64_t bits; };

struct share {
	struct ir_module *m;
	struct arena *a;
	struct map kind;             /* bytes of a group without its constants -> number of struct alike + 1 */
	ARR(struct alike) alike;
	uint32_t *of;                /* per function: its alike + 1, if it is a group */
	struct lift **lift;          /* per group: its constants that are operands, NULL: it stays as it is */
	uint8_t **fixed;             /* per function that a group reaches as flow: per value, must stay a constant */
	ARR(struct constant) seen;   /* of the group at hand */
};

/* May a constant be any number of its type to this op?  Else code may be made of it. */
static bool takes_any(const struct ir_op *o)
{
	switch (o->kind) {
	case IR_add: case IR_subtract: case IR_multiply: case IR_divide: case IR_maximum: case IR_minimum: case IR_select: case IR_compare_eq:
	case IR_compare_ne: case IR_compare_lt: case IR_compare_le: case IR_compare_gt: case IR_compare_ge:
		return true;
	default:
		return false;
	}
}

/* What of fn, and of the functions of its loops and branches, must stay a constant. */
static void fix(struct share *s, const struct ir_fn *fn)
{
	if (s->fixed[fn->id])
		return;
	uint8_t *fixed = s->fixed[fn->id] = ARENA_NEW(s->a, uint8_t, fn->val.n);
	for (size_t r = 0; r < fn->result.n; r++)
		fixed[fn->result.p[r]] = 1;
	for (size_t i = fn->op.n; i-- > 0;) {
		const struct ir_op *o = &fn->op.p[i];
		bool passes = o->kind == IR_broadcast || o->kind == IR_reshape;
		for (uint32_t k = 0; k < o->nin; k++)
			fixed[ir_in(fn, o, k)] |= passes ? fixed[o->out] : !takes_any(o);
		if (o->kind != IR_loop && o->kind != IR_case)
			continue;
		int cap = (int)ir_attr_words(fn, o) + 1, n;
		ir_fnid *r = ARENA_NEW(s->a, ir_fnid, cap);
		n = ir_regions(fn, o, r, cap);
		for (int k = 0; k < n; k++)
			fix(s, ir_fn_of(s->m, r[k]));
	}
}

static bool loose(const struct share *s, const struct ir_fn *fn, const struct ir_op *o)
{
	const struct ir_type_info *t = ir_vtype(s->m, fn, o->out);
	const struct dtype_info *d = &dtype_info[t->dtype];
	size_t n;
	ir_blob_data(s->m, (ir_blob)ir_attr(fn, o, AT_data), &n);
	return d->cls == DT_FLOAT && d->bits >= 16 && n == (size_t)d->bytes && t->count && s->fixed[fn->id] && !s->fixed[fn->id][o->out];
}

static struct constant constant_of(const struct share *s, const struct ir_fn *fn, const struct ir_op *o)
{
	struct constant c = { .dtype = ir_vtype(s->m, fn, o->out)->dtype };
	size_t n;
	const void *p = ir_blob_data(s->m, (ir_blob)ir_attr(fn, o, AT_data), &n);
	memcpy(&c.bits, p, n);
	return c;
}

static bool note(void *user, const struct ir_fn *fn, const struct ir_op *o)
{
	struct share *s = user;
	bool is = loose(s, fn, o);
	if (is)
		arr_push(&s->seen, constant_of(s, fn, o));
	return is;
}

/* Which groups is g like? */
static void sort_in(struct share *s, const struct ir_fn *g)
{
	struct str text = {0};
	fix(s, g);
	s->seen.n = 0;
	ir_fn_bytes(&text, s->m, g, note, s);
	uint64_t *id = map_put(&s->kind, text.p, text.n);
	bool fresh = !*id;
	if (fresh) {
		struct alike x = { .n = s->seen.n, .value = ARENA_NEW(s->a, uint64_t, s->seen.n), .differs = ARENA_NEW(s->a, bool, s->seen.n), .alone = true };
		for (size_t i = 0; i < x.n; i++)
			x.value[i] = s->seen.p[i].bits;
		arr_push(&s->alike, x);
		*id = s->alike.n;
	}
	struct alike *x = &s->alike.p[*id - 1];
	x->alone &= fresh;
	for (size_t i = 0; i < x->n; i++)
		if (x->value[i] != s->seen.p[i].bits)
			x->differs[i] = x->any = true;
	s->of[g->id] = (uint32_t)*id;
	str_free(&text);
}

/* --- a group with its constants as operands ------------------------------------------------ */

/* One operand for each type: a vector of the constants that differ, in the order in which they are met. */
struct vector { enum dtype dtype; ir_type type; int64_t n; int64_t next; char *data; };
struct lift {
	struct share *s;
	const struct alike *alike;
	size_t at;                   /* constants met so far */
	struct vector v[4];
	int nv;
};

static struct vector *vector_of(struct lift *l, enum dtype dt)
{
	for (int k = 0; k < l->nv; k++)
		if (l->v[k].dtype == dt)
			return &l->v[k];
	assert(l->nv < (int)NELEM(l->v));
	l->v[l->nv] = (struct vector){ .dtype = dt };
	return &l->v[l->nv++];
}

static void collect(struct lift *l, const struct ir_fn *g)
{
	struct share *s = l->s;
	struct str text = {0};
	s->seen.n = 0;
	ir_fn_bytes(&text, s->m, g, note, s);
	str_free(&text);
	for (size_t i = 0; i < s->seen.n; i++)
		if (l->alike->differs[i])
			vector_of(l, (enum dtype)s->seen.p[i].dtype)->n++;
	for (int k = 0; k < l->nv; k++) {
		struct vector *v = &l->v[k];
		size_t es = dtype_info[v->dtype].bytes, at = 0;
		v->type = ir_tensor(s->m, v->dtype, 1, &v->n);
		v->data = ARENA_NEW(s->a, char, (size_t)v->n * es);
		for (size_t i = 0; i < s->seen.n; i++)
			if (l->alike->differs[i] && s->seen.p[i].dtype == v->dtype)
				memcpy(v->data + es * at++, &s->seen.p[i].bits, es);
	}
}

static void copy(struct lift *l, struct ir_b *b, const struct ir_fn *from, ir_val *map, const ir_val *vec);

static ir_val *map_new(struct lift *l, const struct ir_fn *from) { return ARENA_NEW(l->s->a, ir_val, from->val.n); }

/* The function with vectors as further parameters. */
static struct ir_fn *copy_fn(struct lift *l, const struct ir_fn *from)
{
	struct ir_fn *fn = ir_fn_new(l->s->m, ir_text(l->s->m, from->name));
	ir_val *map = map_new(l, from), vec[NELEM(l->v)];
	for (ir_val v = 1; v <= from->nparam; v++)
		map[v] = ir_param(fn, from->val.p[v].type);
	for (int k = 0; k < l->nv; k++)
		vec[k] = ir_param(fn, l->v[k].type);
	copy(l, &(struct ir_b){ l->s->m, fn, 0 }, from, map, vec);
	for (size_t r = 0; r < from->result.n; r++)
		ir_result(fn, map[from->result.p[r]]);
	return fn;
}

static ir_val copy_loop(struct lift *l, struct ir_b *b, const struct ir_fn *from, const struct ir_op *o, const ir_val *in, const ir_val *vec)
{
	struct share *s = l->s;
	const struct ir_loop v = ir_loop_view(s->a, s->m, from, o);
	struct ir_loop_new n = {0};
	ir_val *map, inner[NELEM(l->v)];
	for (int k = 0; k < v.n; k++)
		ir_loop_add(&n, in[k], v.x[k].role);
	for (int k = 0; k < l->nv; k++)
		ir_loop_add(&n, vec[k], ROLE_CONST);
	ir_loop_open(&n, b, v.trip, ir_text(s->m, v.body->name), v.cond ? ir_text(s->m, v.cond->name) : NULL);
	if (v.cond) {
		map = map_new(l, v.cond);
		for (int k = 0; k < v.n; k++)
			map[v.x[k].asked] = n.x.p[k].asked;
		for (int k = 0; k < l->nv; k++)
			inner[k] = n.x.p[v.n + k].asked;
		copy(l, &(struct ir_b){ s->m, n.cond, o->loc }, v.cond, map, inner);
		ir_result(n.cond, map[v.cond->result.p[0]]);
	}
	map = map_new(l, v.body);
	map[IR_LOOP_TURN] = IR_LOOP_TURN;
	for (int k = 0; k < v.n; k++)
		if (v.x[k].param)
			map[v.x[k].param] = n.x.p[k].param;
	for (int k = 0; k < l->nv; k++)
		inner[k] = n.x.p[v.n + k].param;
	copy(l, &(struct ir_b){ s->m, n.body, o->loc }, v.body, map, inner);
	for (int j = 0; j < v.nmade; j++)
		ir_loop_give(&n, v.made[j], map[v.body->result.p[j]]);
	return ir_loop_close(&n, NULL);
}

static ir_val copy_case(struct lift *l, struct ir_b *b, const struct ir_fn *from, const struct ir_op *o, const ir_val *in, const ir_val *vec)
{
	struct share *s = l->s;
	uint32_t words;
	int n;
	int64_t *w = ir_attr_copy(s->a, from, o, &words), *to = ir_attr_word(o->kind, w, AT_branch) + 1;
	const int64_t *f = ir_attrs(from, o, AT_branch, &n);
	for (int k = 0; k < n; k++)
		to[k] = copy_fn(l, ir_fn_of(s->m, (ir_fnid)f[k]))->id;
	ir_val *all = ARENA_NEW(s->a, ir_val, o->nin + (uint32_t)l->nv);
	ir_type *t = ARENA_NEW(s->a, ir_type, o->nout + 1);
	memcpy(all, in, sizeof *in * o->nin);
	memcpy(all + o->nin, vec, sizeof *vec * (size_t)l->nv);
	for (uint32_t k = 0; k < o->nout; k++)
		t[k] = from->val.p[o->out + k].type;
	return ir_emit_raw(b, IR_case, o->nin + (uint32_t)l->nv, all, o->nout, t, w, words);
}

static ir_val element(struct lift *l, struct ir_b *b, const struct constant *c, ir_type t, const ir_val *vec)
{
	struct vector *v = vector_of(l, (enum dtype)c->dtype);
	int64_t from = v->next++, to = from + 1, step = 1;
	ir_val x = ir_reshape(b, ir_slice(b, vec[v - l->v], &from, &to, &step), 0, NULL);
	return ir_type_of(b->m, t)->rank ? ir_splat_of(b, x, t) : x;
}

static void copy(struct lift *l, struct ir_b *b, const struct ir_fn *from, ir_val *map, const ir_val *vec)
{
	struct share *s = l->s;
	for (size_t i = 0; i < from->op.n; i++) {
		const struct ir_op *o = &from->op.p[i];
		ir_val *in = ARENA_NEW(s->a, ir_val, o->nin + 1), v;
		for (uint32_t k = 0; k < o->nin; k++)
			in[k] = map[ir_in(from, o, k)];
		b->loc = o->loc;
		if (o->kind == IR_constant && loose(s, from, o) && l->alike->differs[l->at++]) {
			struct constant c = constant_of(s, from, o);
			v = element(l, b, &c, from->val.p[o->out].type, vec);
		} else if (o->kind == IR_loop) {
			v = copy_loop(l, b, from, o, in, vec);
		} else if (o->kind == IR_case) {
			v = copy_case(l, b, from, o, in, vec);
		} else {
			v = ir_clone(b, from, o, in);
		}
		for (uint32_t k = 0; k < o->nout; k++)
			map[o->out + k] = v + k;
	}
}

/* Group g becomes that of all that are like it, which the first one makes.  It stays if its constants differ from theirs, but the
 * code generator cannot do without them. */
static void lift(struct share *s, const struct ir_fn *g)
{
	struct alike *x = &s->alike.p[s->of[g->id] - 1];
	if (x->alone || s->lift[g->id])
		return;
	struct lift *l = ARENA_NEW(s->a, struct lift, 1);
	*l = (struct lift){ .s = s, .alike = x };
	if (x->any)
		collect(l, g);
	if (!x->shared) {
		struct ir_fn *f = x->any ? copy_fn(l, g) : NULL;
		x->shared = f ? f->id : g->id;
		x->alone = f && gen_types(s->m, g) && !gen_can(s->m, f, NULL);
	}
	if (!x->alone)
		s->lift[g->id] = l;
}

static ir_val on_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	struct share *s = r->user;
	const struct lift *l = o->kind == IR_fused ? s->lift[ir_attr(r->from, o, AT_fn)] : NULL;
	if (!l)
		return 0;
	int64_t fn = l->alike->shared;
	ir_val *all = ARENA_NEW(r->a, ir_val, o->nin + (uint32_t)l->nv + 1);
	ir_type *t = ARENA_NEW(r->a, ir_type, o->nout + 1);
	memcpy(all, in, sizeof *in * o->nin);
	for (int k = 0; k < l->nv; k++)
		all[o->nin + (uint32_t)k] = ir_const(&r->b, l->v[k].type, l->v[k].data, (size_t)l->v[k].n * dtype_info[l->v[k].dtype].bytes);
	for (uint32_t k = 0; k < o->nout; k++)
		t[k] = r->from->val.p[o->out + k].type;
	return ir_emit_raw(&r->b, IR_fused, o->nin + (uint32_t)l->nv, all, o->nout, t, &fn, 1);
}

/* Visits each group; how many there are. */
static int groups(struct share *s, void (*visit)(struct share *, const struct ir_fn *), const ir_fnid *f, int n)
{
	int count = 0;
	for (int k = 0; k < n; k++) {
		const struct ir_fn *fn = ir_fn_of(s->m, f[k]);
		for (size_t i = 0; i < fn->op.n; i++)
			if (fn->op.p[i].kind == IR_fused) {
				count++;
				if (visit)
					visit(s, ir_fn_of(s->m, (ir_fnid)ir_attr(fn, &fn->op.p[i], AT_fn)));
			}
	}
	return count;
}

struct err *pass_share(const struct pass_opts *o, struct ir_module *m)
{
	struct arena a;
	arena_init(&a);
	struct share s = { .m = m, .a = &a, .of = ARENA_NEW(&a, uint32_t, m->fn.n), .fixed = ARENA_NEW(&a, uint8_t *, m->fn.n),
	                   .lift = ARENA_NEW(&a, struct lift *, m->fn.n) };
	int n;
	const ir_fnid *f = ir_reachable(&a, m, &n);
	if (groups(&s, NULL, f, n) > 1) {
		groups(&s, sort_in, f, n);
		groups(&s, lift, f, n);
		pass_rewrite(m, on_op, NULL, &s);
	}
	map_free(&s.kind);
	arr_free(&s.alike);
	arr_free(&s.seen);
	arena_fini(&a);
	return NULL;
}
