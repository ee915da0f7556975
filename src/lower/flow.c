/* Loops and branches.
 *
 * A carry lives in one storage, which the body's last op writes; one that the body still reads after it has made
 * the next value lives in two halves that take turns.  A stack is an address with a register term. */
#include "lw.h"

#include <limits.h>

static uint32_t sub_push(struct lw *w, uint32_t n, const uint32_t *id)
{
	uint32_t first = (uint32_t)w->sub.n;
	for (uint32_t k = 0; k < n; k++)
		arr_push(&w->sub, id[k]);
	return first;
}

static uint16_t load(struct lw *w, struct place *p)
{
	uint16_t r = lw_reg_new(w);
	lw_meets(w, 1, 1, &p);
	struct prog_cmd *c = lw_cmd(w, CMD_LD);
	c->reg[0] = r;
	c->dtype = (uint8_t)p->dtype;
	lw_opnds(w, c, 1, &p);
	return r;
}

/* Where the carry of operand v lives during the loop: the operand's own storage if it dies here, else the
 * result's wanted place, else a new one; the latter two start with a copy. */
static struct place *carry_place(struct lw *w, struct frame *f, int i, ir_val v, ir_val result, struct move *mv, int *nmv)
{
	const struct ir_type_info *t = ir_vtype(w->m, f->fn, v);
	struct place *p = t->bytes && !f->at[v]->reg[0] && !f->at[v]->reg[1] ? lw_steal(w, f, i, v) : NULL;
	if (p && f->target[result] && f->target[result]->store != p->store && w->buf.p[w->store.p[p->store].buf].kind == BUF_TEMP &&
	    lw_free_at(w, f, i, f->target[result]))
		p = NULL;                        /* one copy in is as good as one out, and saves storage */
	if (!p) {
		p = f->target[result] && lw_free_at(w, f, i, f->target[result]) ? f->target[result] : lw_temp(w, t->dtype, t->rank, t->dim);
		mv[(*nmv)++] = (struct move){ f->at[v], p };
	}
	struct place *q = lw_place_like(w, p);
	q->dtype = t->dtype;
	q->rank = t->rank;
	q->dim = t->dim;
	if (lw_place_dense(p))
		q->stride = lw_place_new(w, p->store, t->dtype, t->rank, t->dim)->stride;
	return q;
}

/* Must the body's result res for carry par be made beside it: does something still read the carry when
 * the result is written? */
static bool reads_late(struct lw *w, const struct frame *b, ir_val par, ir_val res)
{
	const struct ir_fn *g = b->fn;
	const struct ir_op *o = ir_def(g, res);
	if (!o || b->root[res] != res)
		return false;
	int at = (int)(o - g->op.p);
	if (b->last[par] != at)
		return b->last[par] > at;
	if (o->kind == IR_dynamic_update_slice || o->kind == IR_scatter || o->kind == IR_attention_grad_add || o->kind == IR_loop || lw_uses(b, o, par) != 1)
		return lw_uses(b, o, par) != 1;
	if (lw_in_place(w, g, o))
		return ir_in(g, o, res - o->out) != par;
	if (o->kind == IR_ragged_all_to_all)
		return ir_in(g, o, 1) != par;
	const int over = o->kind == IR_fused ? gen_loop_over(w->tmp, w->m, ir_fn_of(w->m, (ir_fnid)ir_attr(g, o, AT_fn)), res - o->out) : -1;
	if (over >= 0)
		return ir_in(g, o, (uint32_t)over) != par;
	for (uint32_t k = 0; k < o->nin; k++)
		if (ir_in(g, o, k) == par)       /* over itself, index by index */
			return !(ir_is_elem(o->kind) || (o->kind == IR_fused && lw_same_index(w, ir_fn_of(w->m, (ir_fnid)ir_attr(g, o, AT_fn)), k)));
	return true;
}

/* The body's result res, if it is a dense part of what a collective makes: the place it has when all of that lies in
 * store 0 from byte 0 on. */
static const struct place *part_of(struct lw *w, const struct frame *b, ir_val res)
{
	enum { LEAST = 4096, TIMES = 8, CHAIN = 16 };
	const struct ir_fn *g = b->fn;
	const struct ir_op *chain[CHAIN], *made = ir_def(g, b->root[res]);
	int n = 0;
	if (!made || b->root[res] == res || !(ir_info(made->kind)->flags & IR_COLL))
		return NULL;
	const struct ir_type_info *t = ir_vtype(w->m, g, b->root[res]), *rt = ir_vtype(w->m, g, res);
	if (rt->bytes < LEAST || t->bytes > TIMES * rt->bytes)
		return NULL;
	for (ir_val v = res; v != b->root[res];) {
		const struct ir_op *o = ir_def(g, v);
		if (n == CHAIN || !o || o->nin != 1 || o->nout != 1)
			return NULL;
		chain[n++] = o;
		v = ir_in(g, o, 0);
	}
	struct place *p = lw_place_new(w, 0, t->dtype, t->rank, t->dim);
	while (n && p) {
		const struct ir_op *o = chain[--n];
		p = ir_info(o->kind)->flags & IR_VIEW ? lw_place_view(w, g, o, p) : p;
	}
	return p && lw_place_dense(p) ? p : NULL;
}

/* Two halves of one buffer that change roles each turn: the carry is read from half *reg (0: none so far), the result written
 * to the other one.  The second half is a store of its own on the same buffer. */
static struct place *two_halves(struct lw *w, const struct ir_type_info *t, uint16_t *reg, struct place **other)
{
	int64_t half = (t->bytes + 63) & ~(int64_t)63;
	if (!*reg) {
		*reg = lw_reg_new(w);
		lw_cmd(w, CMD_SET)->reg[0] = *reg;
	}
	int s = lw_store_new(w, BUF_TEMP, 2 * half, 0);
	struct store twin = w->store.p[s];
	twin.twin = true;
	arr_push(&w->store, twin);
	struct place *a = lw_place_new(w, s, t->dtype, t->rank, t->dim), *b = lw_place_like(w, a);
	a->reg[0] = b->reg[0] = *reg;
	a->mul[0] = half;
	b->store = (int)w->store.n - 1;
	b->off = half;
	b->mul[0] = -half;
	*other = b;
	return a;
}

/* A dense array of type t at byte off of p. */
static struct place *within(struct lw *w, const struct place *p, const struct ir_type_info *t, int64_t off)
{
	struct place *q = lw_place_new(w, p->store, t->dtype, t->rank, t->dim);
	q->off = p->off + off;
	memcpy(q->reg, p->reg, sizeof q->reg);
	memcpy(q->mul, p->mul, sizeof q->mul);
	return q;
}

/* r = a * from + c */
static void affine(struct lw *w, uint16_t r, uint16_t from, int64_t a, int64_t c)
{
	struct prog_cmd *q = lw_cmd(w, CMD_MUL);
	q->reg[0] = r;
	q->reg[1] = from;
	q->imm = a;
	q = lw_cmd(w, CMD_ADD);
	q->reg[0] = q->reg[1] = r;
	q->imm = c;
}

/* The place p, whose address has one term of registers at most: of two, which what is around counts, a register has the sum.  Places of the n in `have` that
 * are as p are so by the same one. */
static struct place *one_term(struct lw *w, struct place *p, int n, struct place *const *home, struct place *const *have)
{
	if (!p->reg[0] || !p->mul[0] || !p->reg[1] || !p->mul[1])
		return p;
	struct place *q = lw_place_like(w, p);
	q->mul[0] = 1;
	q->reg[1] = 0;
	q->mul[1] = 0;
	while (n-- > 0)
		if (home[n] != have[n] && !memcmp(home[n]->reg, p->reg, sizeof p->reg) && !memcmp(home[n]->mul, p->mul, sizeof p->mul)) {
			q->reg[0] = have[n]->reg[0];
			return q;
		}
	uint16_t r = lw_reg_new(w), other = lw_reg_new(w);
	affine(w, r, p->reg[0], p->mul[0], 0);
	affine(w, other, p->reg[1], p->mul[1], 0);
	struct prog_cmd *c = lw_cmd(w, CMD_ADD);
	c->reg[0] = c->reg[1] = r;
	c->reg[2] = other;
	q->reg[0] = r;
	return q;
}

/* The slice of stack p, whose address has one term at most, that register r counts. */
static struct place *slice_of(struct lw *w, const struct place *p, uint16_t r)
{
	struct place *q = lw_place_like(w, p);
	int slot = q->reg[0] && q->mul[0] ? 1 : 0;
	q->reg[slot] = r;
	q->mul[slot] = p->stride[0] * dtype_info[p->dtype].bytes;
	q->rank--;
	q->dim++;
	q->stride++;
	return q;
}

/* Where an operand of a loop is. */
struct member {
	const struct ir_loop_operand *k;
	struct place *home;      /* where it lives during the loop */
	struct place *other;     /* a carry in two halves: where the result is written */
	struct place *all;       /* the result is a part of what is made there */
	struct loan *ring;       /* a carry that goes round: it is shown, and has no storage of its own */
};

/* Where member x lives; *half is the register of carries in two halves, 0: none so far. */
static void settle(struct lw *w, struct frame *f, int i, struct member *x, const struct frame *body, int64_t trip,
                   uint16_t *half, struct move *mv, int *nmv)
{
	enum { WORTH = 256 };
	const struct ir_op *o = &f->fn->op.p[i];
	const struct ir_loop_operand *k = x->k;
	ir_val v = k->v, last = k->result < 0 ? 0 : body->fn->result.p[k->result];
	const struct ir_type_info *t = ir_vtype(w->m, f->fn, v);
	int before = *nmv;
	if (x->ring) {
		struct place *made = x->ring->kind == LOAN_made ? two_halves(w, t, half, &x->other) : NULL;
		x->home = lw_ring_begin(w, f, x->ring, made, x->other);
		x->other = NULL;
	} else if (k->role == ROLE_CARRY && (trip < 0 || trip > (lw_loans_of(body, k->param) ? 1 : 2)) && t->bytes >= WORTH &&
	           (reads_late(w, body, k->param, last) || part_of(w, body, last))) {
		const struct place *part = part_of(w, body, last);
		if (part) {
			x->home = two_halves(w, ir_vtype(w->m, body->fn, body->root[last]), half, &x->all);
			x->other = within(w, x->all, t, part->off);
			x->home = within(w, x->home, t, part->off);
		} else
			x->home = two_halves(w, t, half, &x->other);
		mv[(*nmv)++] = (struct move){ f->at[v], x->home };
	} else if (k->result >= 0) {
		x->home = carry_place(w, f, i, v, o->out + (uint32_t)k->result, mv, nmv);
		if (ir_role_is_out(k->role) && t->dim[0] == trip)
			*nmv = before;           /* every row is written: what it starts with does not matter */
	} else {
		x->home = f->at[v];
		if (ir_role_is_stack(k->role) && x->home->reg[0] && x->home->reg[1]) {      /* an address has two terms at most */
			x->home = lw_temp(w, t->dtype, t->rank, t->dim);
			mv[(*nmv)++] = (struct move){ f->at[v], x->home };
		}
	}
	if (k->result >= 0)
		f->at[o->out + (uint32_t)k->result] = x->home;
}

static struct err *lower_cond(struct lw *w, const struct ir_fn *fn, const struct member *x, int n, uint32_t *block, uint16_t *flag)
{
	struct frame c;
	cmd_list list;
	void *saved;
	size_t flights = w->flight.n;
	*block = lw_block_begin(w, &list, &saved);
	lw_frame_init(w, &c, fn);
	for (int k = 0; k < n; k++)
		c.at[x[k].k->asked] = x[k].home;
	TRY(lower_ops(w, &c));
	*flag = load(w, lw_dense(w, &c, fn->result.p[0]));
	lw_land_since(w, flights);
	lw_block_end(w, *block, &list, saved);
	return NULL;
}

/* The body's ops, its results at want. */
static struct err *lower_results(struct lw *w, struct frame *b, struct place *const *want)
{
	uint32_t n = (uint32_t)b->fn->result.n;
	size_t flights = w->flight.n;
	struct move *mv = ARENA_NEW(w->tmp, struct move, n);
	for (uint32_t k = 0; k < n; k++)
		lw_target(w, b, b->fn->result.p[k], want[k]);
	lw_targets_back(w, b);
	TRY(lower_ops(w, b));
	for (uint32_t k = 0; k < n; k++)
		mv[k] = (struct move){ b->at[b->fn->result.p[k]], want[k] };
	lw_loans_moves(w, b, mv, (int)n);
	lw_move_all(w, mv, (int)n);
	lw_land_since(w, flights);
	lw_loans_after(w, b, INT_MAX);
	lw_loans_close(w, b);
	return NULL;
}

struct err *lower_loop(struct lw *w, struct frame *f, int i)
{
	const struct ir_fn *fn = f->fn;
	const struct ir_op *o = &fn->op.p[i];
	const struct ir_loop l = ir_loop_view(w->tmp, w->m, fn, o);
	const struct ir_fn *cond = l.cond, *body = l.body;
	int64_t trip = l.trip;
	int n = l.n, nmv = 0;
	struct member *x = ARENA_NEW(w->tmp, struct member, n);
	struct move *mv = ARENA_NEW(w->tmp, struct move, n);
	uint16_t half = 0, flag = 0, it, rev = 0;
	struct frame b;
	lw_loans_enter(w, f);
	lw_frame_init(w, &b, body);
	for (int k = 0; k < n; k++)
		x[k].k = &l.x[k];
	lw_rings(w, f, i, &b);
	for (struct loan *r = b.ring; r; r = r->peer)
		x[r->operand].ring = r;
	lw_loans_plan(w, &b);
	for (int out = 0; out < 2; out++)
		for (int k = 0; k < n; k++)
			if (ir_role_is_out(l.x[k].role) == out)
				settle(w, f, i, &x[k], &b, trip, &half, mv, &nmv);
	lw_move_all(w, mv, nmv);
	for (int k = 0; k < n; k++)
		lw_store_touch(w, x[k].home->store);

	struct place **home = ARENA_NEW(w->tmp, struct place *, n + 1), **stack = ARENA_NEW(w->tmp, struct place *, n + 1);
	for (int k = 0; k < n; k++) {
		home[k] = x[k].home;
		stack[k] = ir_role_is_stack(l.x[k].role) ? one_term(w, home[k], k, home, stack) : home[k];
	}

	bool sure = !cond && trip > 0, talks = !sure && (lw_talks(w, body) || (cond && lw_talks(w, cond)));
	struct sky sky = lw_sky(w, talks);
	lw_loop_begin(w);
	cmd_list list;
	void *saved;
	uint32_t blk[2];
	if (cond)
		TRY(lower_cond(w, cond, x, n, &blk[0], &flag));
	it = lw_reg_new(w);
	blk[cond != NULL] = lw_block_begin(w, &list, &saved);
	bool counted = b.last[IR_LOOP_TURN] >= 0;
	if (cond && counted) {               /* a while counts its turns only if the body asks */
		struct prog_cmd *q = lw_cmd(w, CMD_ADD);
		q->reg[0] = q->reg[1] = it;
		q->imm = 1;
	}
	b.at[IR_LOOP_TURN] = lw_temp(w, DT_i32, 0, NULL);
	if (counted) {
		struct prog_cmd *q = lw_cmd(w, CMD_ST);
		q->dtype = DT_i32;
		q->reg[1] = it;
		lw_opnds(w, q, 1, &b.at[IR_LOOP_TURN]);
	}
	struct place **want = ARENA_NEW(w->tmp, struct place *, l.nmade);
	for (int k = 0; k < n; k++) {
		struct place *p = x[k].home;
		bool reversed = ir_role_is_reversed(l.x[k].role);
		if (reversed && !rev)
			affine(w, rev = lw_reg_new(w), it, -1, trip - 1);
		if (ir_role_is_stack(l.x[k].role))
			p = slice_of(w, stack[k], reversed ? rev : it);
		if (l.x[k].param) {
			b.at[l.x[k].param] = p;
			b.steal[l.x[k].param] = l.x[k].role == ROLE_CARRY && !x[k].other;
		}
		if (l.x[k].result >= 0)
			want[l.x[k].result] = x[k].other ? x[k].other : x[k].ring && x[k].ring->two ? x[k].ring->beyond : p;
	}
	for (int k = 0; k < n; k++) {
		if (x[k].other)
			lw_loans_halves(w, &b, l.x[k].param, x[k].other);
		if (x[k].ring)
			lw_ring_target(w, &b, x[k].ring);
		if (x[k].all) {
			ir_val v = body->result.p[l.x[k].result];
			if (!b.target[b.root[v]])
				b.target[b.root[v]] = x[k].all;
		}
	}
	TRY(lower_results(w, &b, want));
	for (int k = 0; k < n; k++)
		lw_store_touch(w, x[k].home->store);
	if (half)
		affine(w, half, half, -1, 1);
	lw_block_end(w, blk[cond != NULL], &list, saved);
	lw_loop_end(w);
	if (!sure)
		lw_sky_again(w, &sky, talks);
	if (cond && counted) {
		struct prog_cmd *q = lw_cmd(w, CMD_SET);
		q->reg[0] = it;
		q->imm = -1;
	}
	struct prog_cmd *q = lw_cmd(w, cond ? CMD_WHILE : CMD_LOOP);
	q->reg[0] = cond ? flag : it;
	q->imm = cond ? 0 : trip;
	q->nblock = cond ? 2 : 1;
	q->block = sub_push(w, q->nblock, blk);
	for (int k = 0; k < n; k++)
		lw_store_touch(w, x[k].home->store);
	for (int k = 0; k < n; k++)
		if (x[k].ring && x[k].ring->own) {
			ir_val v = o->out + (uint32_t)l.x[k].result;
			struct place *p = f->target[v], *have = f->at[v];
			f->at[v] = p && lw_free_at(w, f, i, p) ? p : lw_temp(w, have->dtype, have->rank, have->dim);
			lw_emit_copy(w, have, f->at[v]);
		}
	lw_loans_over(w, f, i, &b);
	return NULL;
}

struct err *lower_case(struct lw *w, struct frame *f, int i)
{
	const struct ir_fn *fn = f->fn;
	const struct ir_op *o = &fn->op.p[i];
	int n;
	const int64_t *branch = ir_attrs(fn, o, AT_branch, &n);
	uint16_t index = load(w, lw_dense(w, f, ir_in(fn, o, 0)));
	lw_loans_enter(w, f);
	struct place **home = ARENA_NEW(w->tmp, struct place *, o->nout);
	for (uint32_t k = 0; k < o->nout; k++) {
		const struct ir_type_info *t = ir_vtype(w->m, fn, o->out + k);
		home[k] = f->target[o->out + k] && lw_free_at(w, f, i, f->target[o->out + k]) ? f->target[o->out + k]
		        : lw_temp(w, t->dtype, t->rank, t->dim);
		lw_store_touch(w, home[k]->store);
	}
	uint32_t *blk = ARENA_NEW(w->tmp, uint32_t, n);
	bool talks = false;
	for (int j = 0; j < n; j++)
		talks |= lw_talks(w, ir_fn_of(w->m, (ir_fnid)branch[j]));
	struct sky sky = lw_sky(w, talks);
	for (int j = 0; j < n; j++) {
		const struct ir_fn *g = ir_fn_of(w->m, (ir_fnid)branch[j]);
		struct frame b;
		lw_frame_init(w, &b, g);
		cmd_list list;
		void *saved;
		blk[j] = lw_block_begin(w, &list, &saved);
		for (uint32_t k = 1; k < o->nin; k++)
			b.at[k] = f->at[ir_in(fn, o, k)];
		lw_loans_plan(w, &b);
		TRY(lower_results(w, &b, home));
		lw_block_end(w, blk[j], &list, saved);
		lw_sky_again(w, &sky, talks);
	}
	struct prog_cmd *q = lw_cmd(w, CMD_CASE);
	q->reg[0] = index;
	q->nblock = (uint32_t)n;
	q->block = sub_push(w, (uint32_t)n, blk);
	for (uint32_t k = 0; k < o->nout; k++) {
		lw_store_touch(w, home[k]->store);
		f->at[o->out + k] = home[k];
	}
	return NULL;
}
