/* Attention over a sharded sequence goes round.
 *
 * The partitioner gathers what the devices have of the keys, or of a gradient's queries, and scatters sums of what each gives for all of them.
 * Here each turn has a part of that, which goes on to the next: the blocks of one device (ring_loop.c), or of one host (ring_hosts.c); or hosts exchange rows for heads
 * first (ring_heads.c), which leaves an attention within each.  Between hosts,
 * what is gathered for several attentions, forward and backward for one, travels for each of them if it is gathered for nobody else: else it is there
 * anyway.  On one host who reads a gather reads it where it lies (lower/gather.c), and it may stay for others. */
#include "ring.h"

struct rings { const struct pass_opts *o; const struct ir_fn *fn; struct ring *const *r; enum ring_road road; };

static void emit(void *user, struct ir_b *b, int k, const ir_val *in, ir_val *out)
{
	const struct rings *s = user;
	b->loc = s->r[k]->att->loc;
	if (s->road == RING_HEADS)
		ring_heads_emit(s->o, b, s->fn, s->r[k], in, out);
	else if (s->road == RING_HOSTS)
		ring_turns(s->o, b, s->fn, s->r[k], in, out);
	else
		ring_loop(b, s->fn, s->r[k], in, out);
}

/* Per op: in a chain of what goes round, read by others as well; by nobody but what gives way. */
enum { STAYS, MAY_GO, GOES };

static void follow(const struct ir_fn *fn, struct ring *const *r, int n, uint8_t *is)
{
	memset(is, STAYS, fn->op.n);
	for (int i = 0; i < n; i++) {
		for (uint32_t k = 0; k < r[i]->att->nin; k++)
			if (r[i]->way[k] == RING_ROUND) {
				const struct ring_chain *c = &r[i]->from[k];
				for (int j = 0; j < c->n; j++)
					is[c->view[j] - fn->op.p] = MAY_GO;
				is[c->end - fn->op.p] = MAY_GO;
			}
		for (int j = 0; j < r[i]->nop; j++)
			is[r[i]->op[j]] = GOES;
	}
	for (size_t i = fn->op.n; i-- > 0;) {        /* readers first */
		uint32_t by = 0;
		if (is[i] != MAY_GO)
			continue;
		for (uint32_t u = ir_use_first(fn, fn->op.p[i].out); u; u = ir_use_next(fn, u))
			by += is[ir_use_op(fn, u)] == GOES;
		is[i] = by == fn->val.p[fn->op.p[i].out].nuse ? GOES : STAYS;
	}
}

/* Those of n whose keys or queries are gathered for nobody but them; what only scores are made from, and is there whole for others, is cut.  is: a word
 * per op. */
static int alone(const struct ir_fn *fn, struct ring **r, int n, uint8_t *is)
{
	for (bool more = n > 0; more;) {
		int left = 0;
		more = false;
		follow(fn, r, n, is);
		for (int i = 0; i < n; i++) {
			bool stays = false;
			for (uint32_t k = 0; k < r[i]->att->nin; k++)
				if (r[i]->way[k] == RING_ROUND && is[r[i]->from[k].end - fn->op.p] != GOES) {
					more = true;
					stays |= k < r[i]->nmust;
					r[i]->way[k] = RING_WHOLE;
					r[i]->in[k] = ir_in(fn, r[i]->att, k);
				}
			if (!stays)
				r[left++] = r[i];
		}
		n = left;
	}
	return n;
}

/* They take what gathers for nobody else. */
static void take(const struct ir_fn *fn, struct ring **r, int n, uint8_t *is)
{
	follow(fn, r, n, is);
	for (int i = 0; i < n; i++)
		for (uint32_t k = 0; k < r[i]->att->nin; k++)
			for (int j = 0; r[i]->way[k] == RING_ROUND && j <= r[i]->from[k].n; j++) {
				const struct ring_chain *c = &r[i]->from[k];
				int op = (int)((j < c->n ? c->view[j] : c->end) - fn->op.p);
				if (is[op] == GOES)
					ring_take(r[i], op);
				is[op] = STAYS;              /* the first of them has taken it */
			}
}

/* Is it done by this road?  *other: by turns of hosts, later. */
static bool pays(const struct pass_opts *o, struct arena *a, const struct ir_module *m, const struct ir_fn *fn, struct ring *r, enum ring_road road, bool *other)
{
	struct ring_said *said = ring_said(o, m, r);
	*other = false;
	if (road == RING_LOOP)
		return ring_loops(o, a, m, fn, r);
	if (road == RING_HEADS && ring_heads(o, a, m, fn, r, said))
		return true;
	bool turns = ring_hosts(o, a, m, fn, r, said);
	*other = road == RING_HEADS && turns;
	return turns;
}

/* Those for which it pays are done by this road. */
static void replace(const struct pass_opts *o, struct ir_module *m, struct arena *a, ir_fnid f, enum ring_road road)
{
	const struct ir_fn *fn = ir_fn_of(m, f);
	struct ring **r = ARENA_NEW(a, struct ring *, fn->op.n + 1), *at = ARENA_NEW(a, struct ring, 1);
	bool *other = ARENA_NEW(a, bool, fn->op.n + 1);      /* per op */
	int n = 0, all;
	for (size_t i = 0; i < fn->op.n; i++)
		if (ring_find(m, fn, (int)i, at) && pays(o, a, m, fn, at, road, &other[i])) {
			r[n++] = at;
			at = ARENA_NEW(a, struct ring, 1);
		}
	uint8_t *is = ARENA_NEW(a, uint8_t, fn->op.n + 1);
	all = road == RING_LOOP ? n : alone(fn, r, n, is);
	n = 0;
	for (int i = 0; i < all; i++)
		if (!other[r[i]->att - fn->op.p])
			r[n++] = r[i];
	take(fn, r, n, is);
	for (int i = 0; i < n; i++) {
		struct ring_said *said = ring_said(o, m, r[i]);
		if (said && said->road < RING_HOSTS) {
			said->road = road;
			said->turns = road == RING_HEADS ? r[i]->parts : road == RING_HOSTS ? 1 + ring_far(r[i], RING_BEFORE) + ring_far(r[i], RING_BEHIND) : ring_loop_turns(r[i]);
		}
	}
	struct region *g = ARENA_NEW(a, struct region, n + 1);
	for (int i = 0; i < n; i++)
		g[i] = (struct region){ .op = r[i]->op, .nop = r[i]->nop, .in = r[i]->in, .nin = r[i]->att->nin, .out = r[i]->out, .nout = (size_t)r[i]->nres };
	if (n)
		pass_replace(m, f, ir_rebuild(m, pass_replace_regions(m, a, fn, g, n, &(struct region_change){ .region = emit, .user = &(struct rings){ o, fn, r, road }, .in_order = true })));
}

/* A view of a loop's sums in their readers' type is made in that of sums: so the conversion leaves them as they are wanted, with no copy. */
static ir_val view_first(struct rewrite *w, const struct ir_op *o, const ir_val *in)
{
	const struct ir_op *c = o->kind == IR_transpose || o->kind == IR_reshape ? ir_def(w->b.fn, in[0]) : NULL, *from = c;
	if (!c || c->kind != IR_convert || w->from->val.p[ir_in(w->from, o, 0)].nuse != 1)
		return 0;
	ir_val x = ir_in(w->b.fn, c, 0);
	do
		from = ir_def(w->b.fn, ir_in(w->b.fn, from, 0));
	while (from && (from->kind == IR_transpose || from->kind == IR_reshape));
	if (!from || from->kind != IR_loop)
		return 0;
	const struct ir_type_info *t = ir_vtype(w->m, w->from, o->out);
	enum dtype dt = t->dtype;
	int n;
	x = o->kind == IR_transpose ? ir_transpose(&w->b, x, ir_attrs(w->from, o, AT_perm, &n)) : ir_reshape(&w->b, x, t->rank, t->dim);
	return ir_convert(&w->b, x, dt);
}

struct err *pass_heads(const struct pass_opts *o, struct ir_module *m)
{
	struct arena a;
	int n;
	bool may = o->plan.ring == PLAN_RING_HEADS || (o->plan.ring == PLAN_RING_AUTO && o->plan.host);
	if (!may || !ring_any(m))
		return NULL;
	arena_init(&a);
	const ir_fnid *f = ir_reachable(&a, m, &n);
	for (int k = 0; k < n; k++)
		replace(o, m, &a, f[k], RING_HEADS);
	arena_fini(&a);
	return NULL;
}

struct err *pass_ring(const struct pass_opts *o, struct ir_module *m)
{
	struct arena a;
	int n;
	if (o->plan.ring == PLAN_RING_GATHER || !ring_any(m))
		return NULL;
	arena_init(&a);
	const ir_fnid *f = ir_reachable(&a, m, &n);
	for (int k = 0; k < n; k++) {
		replace(o, m, &a, f[k], RING_HOSTS);
		if (o->plan.ring < PLAN_RING_SENT)
			replace(o, m, &a, f[k], RING_LOOP);
	}
	if (pass_has(m, IR_attention_grad_add))
		pass_rewrite(m, view_first, NULL, NULL);
	arena_fini(&a);
	return NULL;
}
