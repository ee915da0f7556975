/* Loops and branches.
 *
 * A carry lives in one storage, which the body's last op writes; one that the body still reads after it has made
 * the next value lives in two halves that take turns.  A stack is an address with a register term. */
#include "lower.h"

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
	struct place *q = pass_place_like(w, p);
	q->dtype = t->dtype;
	q->rank = t->rank;
	q->dim = t->dim;
	q->stride = pass_place_new(w, p->store, t->dtype, t->rank, t->dim)->stride;
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
	if (o->kind == IR_dynamic_update_slice || o->kind == IR_scatter || o->kind == IR_loop || lw_uses(b, o, par) != 1)
		return lw_uses(b, o, par) != 1;
	for (uint32_t k = 0; k < o->nin; k++)
		if (ir_in(g, o, k) == par)       /* over itself, index by index */
			return !(ir_is_elem(o->kind) || (o->kind == IR_fused && lw_same_index(w, ir_fn_of(w->m, (ir_fnid)ir_attr(g, o, 0)), k)));
	return true;
}

/* Two halves of one buffer that change roles each turn: the carry is read from half reg, the result written
 * to the other one.  The second half is a store of its own on the same buffer. */
static struct place *two_halves(struct lw *w, const struct ir_type_info *t, uint16_t reg, struct place **other)
{
	int64_t half = (t->bytes + 63) & ~(int64_t)63;
	int s = pass_store_new(w, BUF_TEMP, 2 * half, 0);
	struct store twin = w->store.p[s];
	twin.twin = true;
	arr_push(&w->store, twin);
	struct place *a = pass_place_new(w, s, t->dtype, t->rank, t->dim), *b = pass_place_like(w, a);
	a->reg[0] = b->reg[0] = reg;
	a->mul[0] = half;
	b->store = (int)w->store.n - 1;
	b->off = half;
	b->mul[0] = -half;
	*other = b;
	return a;
}

struct err *lower_loop(struct lw *w, struct frame *f, int i)
{
	const struct ir_fn *fn = f->fn;
	const struct ir_op *o = &fn->op.p[i];
	int64_t trip = ir_attr(fn, o, 0);
	const struct ir_fn *cond = trip < 0 ? ir_fn_of(w->m, (ir_fnid)ir_attr(fn, o, 1)) : NULL;
	const struct ir_fn *body = ir_fn_of(w->m, (ir_fnid)ir_attr(fn, o, 2));
	int n;
	const int64_t *role = ir_attrs(fn, o, 3, &n);
	struct place **home = ARENA_NEW(w->tmp, struct place *, n), **other = ARENA_NEW(w->tmp, struct place *, n);
	struct move *mv = ARENA_NEW(w->tmp, struct move, n);
	int nmv = 0;
	uint32_t res = 0, bpar = 2;
	uint16_t half = 0;
	struct frame b, c;
	lw_frame_init(w, &b, body);
	enum { WORTH = 256 };
	for (int pass = 0; pass < 2; pass++) {   /* results are numbered: carries, then outs */
		for (int k = 0; k < n; k++) {
			ir_val v = ir_in(fn, o, (uint32_t)k);
			ir_val par = pass == 0 && role[k] <= ROLE_IN_REV ? bpar++ : 0;
			if (role[k] == ROLE_CARRY && pass == 0 && (trip < 0 || trip > 2) && ir_vtype(w->m, fn, v)->bytes >= WORTH &&
			    reads_late(w, &b, par, body->result.p[res])) {
				if (!half) {
					half = lw_reg_new(w);
					lw_cmd(w, CMD_SET)->reg[0] = half;
				}
				home[k] = two_halves(w, ir_vtype(w->m, fn, v), half, &other[k]);
				mv[nmv++] = (struct move){ f->at[v], home[k] };
				f->at[o->out + res++] = home[k];
			} else if (role[k] == ROLE_CARRY && pass == 0)
				f->at[o->out + res] = home[k] = carry_place(w, f, i, v, o->out + res, mv, &nmv), res++;
			else if ((role[k] == ROLE_OUT || role[k] == ROLE_OUT_REV) && pass == 1) {
				const struct ir_type_info *t = ir_vtype(w->m, fn, v);
				bool whole = t->dim[0] == trip;
				int was = nmv;
				f->at[o->out + res] = home[k] = carry_place(w, f, i, v, o->out + res, mv, &nmv);
				if (whole)
					nmv = was;           /* every row is written: what it starts with does not matter */
				res++;
			} else if (pass == 0 && role[k] != ROLE_OUT && role[k] != ROLE_OUT_REV) {
				home[k] = f->at[v];
				if (role[k] >= ROLE_IN && home[k]->reg[0] && home[k]->reg[1]) {   /* an address has two terms at most */
					home[k] = lw_temp(w, home[k]->dtype, home[k]->rank, home[k]->dim);
					mv[nmv++] = (struct move){ f->at[v], home[k] };
				}
			}
		}
	}
	lw_move_all(w, mv, nmv);
	for (int k = 0; k < n; k++)
		pass_store_touch(w, home[k]->store);

	lw_loop_begin(w);
	cmd_list list;
	void *saved;
	uint32_t blk[2], cond_blk = 0;
	uint16_t flag = 0;
	if (cond) {
		cond_blk = lw_block_begin(w, &list, &saved);
		lw_frame_init(w, &c, cond);
		for (int k = 0; k < n; k++)
			c.at[k + 1] = home[k];
		TRY(lower_ops(w, &c));
		flag = load(w, lw_dense(w, &c, cond->result.p[0]));
		lw_block_end(w, cond_blk, &list, saved);
	}
	uint16_t it = lw_reg_new(w), rev = 0;
	uint32_t body_blk = lw_block_begin(w, &list, &saved);
	bool counted = f->fn && b.last[1] >= 0;
	struct place *ip = NULL;
	if (cond && counted) {
		struct prog_cmd *q = lw_cmd(w, CMD_ADD);    /* a while counts its turns only if the body asks */
		q->reg[0] = q->reg[1] = it;
		q->imm = 1;
	}
	if (counted) {
		ip = lw_temp(w, DT_i32, 0, NULL);
		struct prog_cmd *q = lw_cmd(w, CMD_ST);
		q->dtype = DT_i32;
		q->reg[1] = it;
		lw_opnds(w, q, 1, &ip);
	} else {
		ip = lw_temp(w, DT_i32, 0, NULL);
	}
	b.at[1] = ip;
	for (int k = 0; k < n; k++)
		if ((role[k] == ROLE_IN_REV || role[k] == ROLE_OUT_REV) && !rev) {
			rev = lw_reg_new(w);
			struct prog_cmd *q = lw_cmd(w, CMD_MUL);
			q->reg[0] = rev;
			q->reg[1] = it;
			q->imm = -1;
			q = lw_cmd(w, CMD_ADD);
			q->reg[0] = q->reg[1] = rev;
			q->imm = trip - 1;
		}
	/* parameters and wanted places of the results */
	uint32_t par = 2, r = 0;
	uint32_t nres = (uint32_t)body->result.n;
	struct place **want = ARENA_NEW(w->tmp, struct place *, nres);
	for (int pass = 0; pass < 2; pass++)
		for (int k = 0; k < n; k++) {
			struct place *p = home[k];
			bool stacked = role[k] >= ROLE_IN;
			if (stacked) {
				struct place *q = pass_place_like(w, p);
				int64_t step = p->stride[0] * dtype_info[p->dtype].bytes;
				int slot = q->reg[0] && q->mul[0] ? 1 : 0;
				if (slot && q->reg[1] && q->mul[1])
					return ERR(UNIMPLEMENTED, "a stacked array is sliced by more than two loops at once");
				q->reg[slot] = role[k] == ROLE_IN_REV || role[k] == ROLE_OUT_REV ? rev : it;
				q->mul[slot] = step;
				q->rank--;
				q->dim++;
				q->stride++;
				p = q;
			}
			if (pass == 0 && role[k] <= ROLE_IN_REV) {
				b.at[par] = p;
				b.steal[par] = role[k] == ROLE_CARRY && !other[k];
				par++;
			}
			if ((pass == 0 && role[k] == ROLE_CARRY) || (pass == 1 && role[k] >= ROLE_OUT))
				want[r++] = other[k] ? other[k] : p;
		}
	for (uint32_t k = 0; k < nres; k++) {
		ir_val v = body->result.p[k];
		if (!b.target[v] && ir_def(body, v) && b.root[v] == v)
			b.target[v] = want[k];
	}
	lw_targets_back(&b);
	TRY(lower_ops(w, &b));
	struct move *out = ARENA_NEW(w->tmp, struct move, nres);
	for (uint32_t k = 0; k < nres; k++)
		out[k] = (struct move){ b.at[body->result.p[k]], want[k] };
	lw_move_all(w, out, (int)nres);
	for (int k = 0; k < n; k++)
		pass_store_touch(w, home[k]->store);
	if (half) {                              /* half = 1 - half */
		struct prog_cmd *turn = lw_cmd(w, CMD_MUL);
		turn->reg[0] = turn->reg[1] = half;
		turn->imm = -1;
		turn = lw_cmd(w, CMD_ADD);
		turn->reg[0] = turn->reg[1] = half;
		turn->imm = 1;
	}
	lw_block_end(w, body_blk, &list, saved);
	lw_loop_end(w);
	if (cond && counted) {
		struct prog_cmd *q = lw_cmd(w, CMD_SET);
		q->reg[0] = it;
		q->imm = -1;
	}
	struct prog_cmd *q = lw_cmd(w, cond ? CMD_WHILE : CMD_LOOP);
	q->reg[0] = cond ? flag : it;
	q->imm = cond ? 0 : trip;
	blk[0] = cond ? cond_blk : body_blk;
	blk[1] = body_blk;
	q->nblock = cond ? 2 : 1;
	q->block = sub_push(w, q->nblock, blk);
	for (int k = 0; k < n; k++)
		pass_store_touch(w, home[k]->store);
	return NULL;
}

struct err *lower_case(struct lw *w, struct frame *f, int i)
{
	const struct ir_fn *fn = f->fn;
	const struct ir_op *o = &fn->op.p[i];
	int n;
	const int64_t *branch = ir_attrs(fn, o, 0, &n);
	uint16_t index = load(w, lw_dense(w, f, ir_in(fn, o, 0)));
	struct place **home = ARENA_NEW(w->tmp, struct place *, o->nout);
	for (uint32_t k = 0; k < o->nout; k++) {
		const struct ir_type_info *t = ir_vtype(w->m, fn, o->out + k);
		home[k] = f->target[o->out + k] && lw_free_at(w, f, i, f->target[o->out + k]) ? f->target[o->out + k]
		        : lw_temp(w, t->dtype, t->rank, t->dim);
		pass_store_touch(w, home[k]->store);
	}
	uint32_t *blk = ARENA_NEW(w->tmp, uint32_t, n);
	for (int j = 0; j < n; j++) {
		const struct ir_fn *g = ir_fn_of(w->m, (ir_fnid)branch[j]);
		struct frame b;
		lw_frame_init(w, &b, g);
		cmd_list list;
		void *saved;
		blk[j] = lw_block_begin(w, &list, &saved);
		for (uint32_t k = 1; k < o->nin; k++)
			b.at[k] = f->at[ir_in(fn, o, k)];
		for (uint32_t k = 0; k < o->nout; k++) {
			ir_val v = g->result.p[k];
			if (!b.target[v] && ir_def(g, v) && b.root[v] == v)
				b.target[v] = home[k];
		}
		lw_targets_back(&b);
		TRY(lower_ops(w, &b));
		struct move *mv = ARENA_NEW(w->tmp, struct move, o->nout);
		for (uint32_t k = 0; k < o->nout; k++)
			mv[k] = (struct move){ b.at[g->result.p[k]], home[k] };
		lw_move_all(w, mv, (int)o->nout);
		lw_block_end(w, blk[j], &list, saved);
	}
	struct prog_cmd *q = lw_cmd(w, CMD_CASE);
	q->reg[0] = index;
	q->nblock = (uint32_t)n;
	q->block = sub_push(w, (uint32_t)n, blk);
	for (uint32_t k = 0; k < o->nout; k++) {
		pass_store_touch(w, home[k]->store);
		f->at[o->out + k] = home[k];
	}
	return NULL;
}
