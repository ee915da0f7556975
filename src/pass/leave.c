/* What a loop makes anew in each turn, of values that do not change, leaves it.
 *
 * Only what other ops of the body read counts (the border): how it is made goes along.  It stays if there is nothing to save, as with what is cheap and
 * made inside a kernel (views, an addition for an element), unless it takes fewer bytes than what it is made of; and if all that leaves would take
 * more bytes than the loop's operands do.  Then what it is made of may leave.
 * What has an effect stays, and in a loop that may have no turn code outside Rondo.  A collective leaves but for those that put parts
 * together: whether such a whole array is to be there all the while has been decided (spmd). */
#include "passes.h"

struct leaving {
	struct rewrite *r;
	const struct ir_loop *v;
	bool whole;              /* of several devices, before it is partitioned */
	bool *fixed, *seen;      /* per value of the body: the same in every turn; looked at */
	uint32_t *read, reading; /* per value of the body: in which round sources() has come to it; the round */
	uint8_t *gone;           /* per value of the body: GOES or NEEDED outside */
	double room;             /* bytes that may yet leave */
};
enum { GOES = 1, NEEDED = 2 };
enum { LEAST_ROOM = 1 << 20 };

static bool may_leave(const struct leaving *l, const struct ir_op *o)
{
	const struct ir_module *m = l->r->m;
	const struct ir_fn *body = l->v->body;
	unsigned f = ir_info(o->kind)->flags;
	for (uint32_t k = 0; k < o->nin; k++)
		if (!l->fixed[ir_in(body, o, k)])
			return false;
	for (uint32_t k = 0; k < o->nout; k++)
		if (ir_vtype(m, body, o->out + k)->dtype == DT_token)
			return false;
	if (!o->nout || f & IR_BARRIER || (f & IR_CUSTOM && l->v->trip < 1))
		return false;
	return f & IR_COLL || !ir_effect(m, body, o);
}

/* Is o made again where it is read, or had whole by somebody's decision? */
static bool light(const struct leaving *l, const struct ir_op *o)
{
	switch (o->kind) {
	case IR_constant: case IR_iota: case IR_partition_id: case IR_dynamic_slice: case IR_sharding_constraint: case IR_all_gather: case IR_redistribute:
		return true;
	default:
		return ir_info(o->kind)->flags & IR_VIEW || (ir_is_elem(o->kind) && ir_cost_each(l->r->m, l->v->body, o) <= 1);
	}
}

/* What the elementwise expression behind a value reads. */
struct source { double bytes, count; bool heavy; };

static void sources(struct leaving *l, ir_val v, struct source *s)
{
	const struct ir_fn *body = l->v->body;
	const struct ir_op *o = ir_def(body, v);
	const struct ir_type_info *t = ir_vtype(l->r->m, body, v);
	if (l->read[v] == l->reading)
		return;
	l->read[v] = l->reading;
	bool elem = o && (light(l, o) || ir_is_elem(o->kind));
	s->heavy |= o && !light(l, o);
	if (!elem) {
		s->bytes += t->rank ? (double)t->bytes : 0;
		s->count = MAX(s->count, (double)t->count);
		return;
	}
	for (uint32_t k = 0; k < o->nin; k++)
		sources(l, ir_in(body, o, k), s);
}

static bool leaves(struct leaving *l, const struct ir_op *o)
{
	const struct ir_fn *body = l->v->body;
	struct source s = {0};
	double bytes = 0, count = (double)ir_vtype(l->r->m, body, o->out)->count;
	if (light(l, o) && !ir_is_elem(o->kind))
		return false;
	l->reading++;
	for (uint32_t k = 0; k < o->nin; k++)
		sources(l, ir_in(body, o, k), &s);
	for (uint32_t k = 0; k < o->nout; k++)
		bytes += (double)ir_vtype(l->r->m, body, o->out + k)->bytes;
	if (light(l, o) && !s.heavy && (bytes >= s.bytes || count < s.count))
		return false;
	if (l->whole && !s.bytes && ir_vtype(l->r->m, body, o->out)->rank)      /* made of no array it lies as its reader wants it */
		return false;
	if (bytes > l->room)
		return false;
	l->room -= bytes;
	return true;
}

/* v is read by what stays. */
static void consider(struct leaving *l, ir_val v)
{
	const struct ir_fn *body = l->v->body;
	const struct ir_op *o = ir_def(body, v);
	if (l->seen[v] || !l->fixed[v] || !o)
		return;
	l->seen[v] = true;
	bool go = leaves(l, o);
	for (uint32_t k = 0; k < o->nout && go; k++)
		l->gone[o->out + k] = GOES;
	for (uint32_t k = 0; k < o->nin && !go; k++)
		consider(l, ir_in(body, o, k));
}

static bool marked(const uint8_t *mark, const struct ir_op *o, uint8_t as)
{
	bool any = false;
	for (uint32_t k = 0; k < o->nout; k++)
		any |= mark[o->out + k] & as;
	return any;
}

/* Which values leave, and what they need outside.  False: none. */
static bool decide(struct leaving *l)
{
	const struct ir_module *m = l->r->m;
	const struct ir_fn *body = l->v->body;
	bool any = false;
	for (int k = 0; k < l->v->n; k++) {
		l->room += (double)ir_vtype(m, l->r->from, l->v->x[k].v)->bytes;
		if (l->v->x[k].role == ROLE_CONST)
			l->fixed[l->v->x[k].param] = true;
	}
	for (size_t i = 0; i < body->op.n; i++) {
		const struct ir_op *o = &body->op.p[i];
		if (may_leave(l, o))
			for (uint32_t k = 0; k < o->nout; k++)
				l->fixed[o->out + k] = true;
	}
	for (size_t i = 0; i < body->op.n; i++) {
		const struct ir_op *o = &body->op.p[i];
		for (uint32_t k = 0; k < o->nin && !(o->nout && l->fixed[o->out]); k++)
			consider(l, ir_in(body, o, k));
	}
	for (size_t i = 0; i < body->result.n; i++)
		consider(l, body->result.p[i]);
	for (size_t i = body->op.n; i-- > 0;) {
		const struct ir_op *o = &body->op.p[i];
		any |= marked(l->gone, o, GOES);
		for (uint32_t k = 0; k < o->nin && marked(l->gone, o, GOES | NEEDED); k++) {
			ir_val x = ir_in(body, o, k);
			const struct ir_op *d = ir_def(body, x);
			l->gone[x] |= NEEDED;
			for (uint32_t j = 0; d && j < d->nout && !light(l, d); j++)      /* once is enough */
				l->gone[d->out + j] |= GOES;
		}
	}
	return any;
}

/* Per value of the body: does what stays need it?  Bytes as those of ir_live.  A collective that is done outside need not stay for its own sake. */
static uint8_t *staying(const struct leaving *l)
{
	const struct ir_fn *body = l->v->body;
	uint8_t *live = ARENA_NEW(l->r->a, uint8_t, body->val.n);
	for (size_t i = 0; i < body->result.n; i++)
		live[body->result.p[i]] = 1;
	for (size_t i = body->op.n; i-- > 0;) {
		const struct ir_op *o = &body->op.p[i];
		bool need = marked(live, o, 1) || (!marked(l->gone, o, NEEDED) && ir_effect(l->r->m, body, o));
		for (uint32_t k = 0; k < o->nin && need && !marked(l->gone, o, GOES); k++)
			live[ir_in(body, o, k)] = 1;
		for (uint32_t k = 0; k < o->nout && need; k++)
			live[o->out + k] |= 2;
	}
	return live;
}

static ir_val copy(struct leaving *l, struct ir_b *b, const struct ir_op *o, ir_val *map)
{
	ir_val *in = ARENA_NEW(l->r->a, ir_val, o->nin);
	for (uint32_t k = 0; k < o->nin; k++)
		in[k] = map[ir_in(l->v->body, o, k)];
	b->loc = o->loc;
	ir_val v = ir_clone(b, l->v->body, o, in);
	for (uint32_t k = 0; k < o->nout; k++)
		map[o->out + k] = v + k;
	return v;
}

static void rebuild(struct leaving *l, const struct ir_op *loop, const ir_val *in)
{
	struct rewrite *r = l->r;
	const struct ir_fn *body = l->v->body;
	ir_val *outside = ARENA_NEW(r->a, ir_val, body->val.n), *inside = ARENA_NEW(r->a, ir_val, body->val.n);
	int *slot = ARENA_NEW(r->a, int, body->val.n), *at = ARENA_NEW(r->a, int, l->v->n), *result = ARENA_NEW(r->a, int, l->v->n + (int)body->val.n);
	uint8_t *live = staying(l);
	struct ir_loop_new g = {0};

	for (int k = 0; k < l->v->n; k++)
		if (l->v->x[k].role == ROLE_CONST)
			outside[l->v->x[k].param] = in[k];
	for (size_t i = 0; i < body->op.n; i++)
		if (marked(l->gone, &body->op.p[i], GOES | NEEDED))
			copy(l, &r->b, &body->op.p[i], outside);
	for (int k = 0; k < l->v->n; k++) {
		const struct ir_loop_operand *x = &l->v->x[k];
		bool stays = x->role != ROLE_CONST || x->asked || live[x->param];
		at[k] = stays ? ir_loop_add(&g, in[k], x->role) : -1;
	}
	for (ir_val v = 1; v < body->val.n; v++)
		if (l->gone[v] & GOES && live[v] & 1)
			slot[v] = ir_loop_add(&g, outside[v], ROLE_CONST) + 1;
	r->b.loc = loop->loc;
	ir_loop_open(&g, &r->b, l->v->trip, ir_text(r->m, body->name), l->v->cond ? ir_text(r->m, l->v->cond->name) : NULL);
	struct ir_b b = { r->m, g.body, loop->loc };
	inside[IR_LOOP_TURN] = IR_LOOP_TURN;
	for (int k = 0; k < l->v->n; k++)
		if (l->v->x[k].param && at[k] >= 0)
			inside[l->v->x[k].param] = g.x.p[at[k]].param;
	for (ir_val v = 1; v < body->val.n; v++)
		if (slot[v])
			inside[v] = g.x.p[slot[v] - 1].param;
	for (size_t i = 0; i < body->op.n; i++) {
		const struct ir_op *o = &body->op.p[i];
		if (!marked(l->gone, o, GOES) && (marked(live, o, 3) || (!o->nout && ir_effect(r->m, body, o))))
			copy(l, &b, o, inside);
	}
	for (int k = 0; k < l->v->n; k++)
		if (l->v->x[k].result >= 0)
			ir_loop_give(&g, at[k], inside[body->result.p[l->v->x[k].result]]);
	if (g.cond) {
		ir_val *arg = ARENA_NEW(r->a, ir_val, l->v->n + 1), asked;
		for (int k = 0; k < l->v->n; k++)
			arg[k] = g.x.p[at[k]].asked;
		struct ir_b c = { r->m, g.cond, loop->loc };
		ir_inline(&c, l->v->cond->id, arg, &asked);
		ir_result(g.cond, asked);
	}
	ir_val first = ir_loop_close(&g, result);
	for (int k = 0; k < l->v->n; k++)
		if (l->v->x[k].result >= 0)
			r->map[loop->out + (ir_val)l->v->x[k].result] = first + (ir_val)result[at[k]];
}

static ir_val on_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	if (o->kind != IR_loop || ir_attr(r->from, o, AT_trip) == 0 || ir_attr(r->from, o, AT_trip) == 1)
		return 0;
	const struct ir_loop v = ir_loop_view(r->a, r->m, r->from, o);
	size_t n = v.body->val.n;
	struct leaving l = { .r = r, .v = &v, .whole = *(bool *)r->user, .fixed = ARENA_NEW(r->a, bool, n), .seen = ARENA_NEW(r->a, bool, n),
	                     .read = ARENA_NEW(r->a, uint32_t, n), .gone = ARENA_NEW(r->a, uint8_t, n), .room = LEAST_ROOM };
	if (!decide(&l))
		return 0;
	rebuild(&l, o, in);
	return REWRITE_MAPPED;
}

static void leave(struct ir_module *m, bool whole)
{
	if (pass_has(m, IR_loop))
		pass_rewrite(m, on_op, NULL, &whole);
}

struct err *pass_leave(const struct pass_opts *o, struct ir_module *m)
{
	leave(m, o->ndev > 1);
	return NULL;
}

struct err *pass_leave_local(const struct pass_opts *o, struct ir_module *m)
{
	leave(m, false);
	return NULL;
}
