/* Gradients of an attention whose keys, or queries, are gathered go round the ring of those who have them.
 *
 * Each turn of a loop is one device's block: it goes on to the neighbour, and with it goes the sum of its dk and dv, or dq, to which each device
 * adds what its own queries, or keys, give; after as many turns as there are devices it is where the block is at home.  Under a mask that hides what is far away
 * (ring_seen.c) it goes that way, and so far, as somebody sees it, and home from there.  So a device has two
 * blocks of what travels and of the sums, and what is added to a block is added in the order in which it comes round.  (Liu, Zaharia,
 * Abbeel, Ring Attention with Blockwise Transformers, 2023.)  Blocks are only handed on, so nothing moves where devices map each other's
 * memory (lower/loan.c). */
#include "ring.h"

/* Rows of a device, and devices: of fewer the blocks that go round, the sums of two turns, are no less than all of them.  A turn of fewer rows than WORTH takes
 * up to a quarter longer than its share of all at once, which is little memory up to so many; so does one of more rows whose sums are few bytes, as those of
 * keys that many queries share. */
enum { LEAST = 256, DEVICES = 4, WORTH = 1024, LITTLE = 16384, MUCH = 8 << 20 };

/* Bytes of the sums of all blocks. */
static int64_t sums_of(const struct ir_module *m, const struct ir_fn *fn, const struct ring *r)
{
	int64_t n = 0;
	for (uint32_t k = r->side == RING_KEYS; k < (r->side == RING_KEYS ? 3 : 1); k++)
		n += ir_vtype(m, fn, r->att->out + k)->bytes;
	return n;
}

bool ring_loops(const struct pass_opts *o, struct arena *a, const struct ir_module *m, const struct ir_fn *fn, struct ring *r)
{
	const struct ir_group_info *i = &m->group.p[r->group];
	bool own = r->att->kind == IR_attention_grad || (r->att->kind == IR_attention_grad_add && r->side == RING_QUERIES);
	if (!own || r->members < DEVICES || r->len < LEAST || plan_groups_of(&o->plan, i->nrow, i->ncol, i->id).hosts > 1)
		return false;
	if ((r->len < WORTH || sums_of(m, fn, r) < MUCH) && r->len * r->members < LITTLE && !ring_small_too())
		return false;
	ring_reach(a, m, fn, r, 1, false);
	return true;
}

/* Turns of the loop, and the way of each: all of them, unless what is needed lies one way alone. */
static int turns(const struct ring *r, int *way)
{
	int before = ring_far(r, RING_BEFORE), behind = ring_far(r, RING_BEHIND), n = (int)r->members;
	*way = !before && behind + 1 < n ? RING_BEHIND : RING_BEFORE;
	return *way == RING_BEHIND ? behind + 1 : !behind ? before + 1 : n;
}

int ring_loop_turns(const struct ring *r)
{
	int way;
	return turns(r, &way);
}

/* x goes so many hops before, or behind; loc: of the collective that it stands for. */
static ir_val hand_on(struct ir_b *b, const struct ring *r, ir_val x, int before, ir_loc loc)
{
	int n = (int)r->members, *to = mem_alloc(sizeof *to * (size_t)n);
	for (int k = 0; k < n; k++)
		to[k] = (k + n - before) % n;
	ir_val v = ring_send(b, r, x, to, loc);
	mem_free(to);
	return v;
}

void ring_loop(struct ir_b *b, const struct ir_fn *fn, const struct ring *r, const ir_val *in, ir_val *out)
{
	const struct ir_op *g = r->att;
	uint32_t n = g->kind == IR_attention_grad_add ? g->nin - 3 : g->nin;     /* behind them: sums of dq, dk and dv */
	int at[RING_IN], sum[3], made[RING_IN + 4], own;
	struct ir_loop_new l = { 0 };
	bool whole = false;
	ir_type part[3];
	int way, trip = turns(r, &way), on = way == RING_BEFORE ? 1 : -1;
	for (int i = 0; i < 3; i++)
		part[i] = ring_sum_type(b, fn, r, g->out + (ir_val)i, ring_result_dim(b->m, fn, r, i), r->len);
	for (uint32_t i = 0; i < n; i++) {
		bool round = r->way[i] == RING_ROUND;
		at[i] = ir_loop_add(&l, round ? ring_read(b, fn, r, (int)i, in[i], r->members) : in[i], round ? ROLE_CARRY : ROLE_CONST);
		whole |= r->way[i] == RING_WHOLE;
	}
	for (uint32_t i = 0; i < 3; i++)
		sum[i] = ir_loop_add(&l, !r->to[i].end && n < g->nin ? in[n + i] : ir_const_f(b, part[i], 0), ROLE_CARRY);
	own = whole ? ir_loop_add(&l, ring_own(b, r, 1), ROLE_CONST) : -1;
	ir_loop_open(&l, b, trip, "round", NULL);
	struct ir_b body = { b->m, l.body, b->loc };
	ir_val x[RING_IN + 3], turn = IR_LOOP_TURN, which = 0;
	if (whole && way == RING_BEHIND)
		turn = ir_bin(&body, ELEM_subtract, ir_const_i(&body, ir_scalar(b->m, DT_i32), r->members), turn);
	if (whole)
		which = ring_whose(&body, l.x.p[own].param, turn, r->members);
	for (uint32_t i = 0; i < 3; i++)
		x[n + i] = l.x.p[sum[i]].param;
	for (uint32_t i = 0; i < n; i++) {
		x[i] = l.x.p[at[i]].param;
		if (r->way[i] == RING_WHOLE)
			x[i] = ring_block(&body, x[i], r->dim[i], r->len, which);
	}
	int64_t f = ir_attr(fn, g, AT_fn);
	ir_val d = ir_emit_raw(&body, IR_attention_grad_add, n + 3, x, 3, part, &f, 1);
	for (int i = 0; i < 3; i++)
		ir_loop_give(&l, sum[i], r->to[i].end ? hand_on(&body, r, d + (ir_val)i, on, r->to[i].end->loc) : d + (ir_val)i);
	for (uint32_t i = 0; i < n; i++)
		if (r->way[i] == RING_ROUND)
			ir_loop_give(&l, at[i], hand_on(&body, r, l.x.p[at[i]].param, on, r->from[i].end->loc));
	ir_val first = ir_loop_close(&l, made);
	for (int i = 0; i < 3; i++) {
		ir_val v = first + (ir_val)made[sum[i]];
		if (r->to[i].end && trip < r->members)
			v = hand_on(b, r, v, way == RING_BEFORE ? (int)r->members - trip : trip, r->to[i].end->loc);
		out[i] = v;
	}
	ring_give(b, fn, r, out);
}
