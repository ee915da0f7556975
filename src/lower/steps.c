/* Single ops: kernels, constants, collectives, custom calls, what reads the device. */
#include "lw.h"

static bool takes_strides(enum kern_id k)
{
	return k == KERN_elem || k == KERN_copy || k == KERN_dot || k == KERN_reduce || k == KERN_dynamic_slice ||
	       k == KERN_dynamic_update || k == KERN_pad || k == KERN_attention || k == KERN_attention_grad || k == KERN_attention_grad_add;
}

/* Few rows of what lies in strides are fetched from there; many of them, across how it lies, from a copy that is read along. */
static bool gathers(const struct prog_kern *k, const struct place *p)
{
	enum { FEW = 4 };
	int64_t near = INT64_MAX, last = p->rank ? llabs(p->stride[p->rank - 1]) : 0;
	for (int d = 0; d < p->rank; d++)
		if (p->dim[d] > 1 && p->stride[d])
			near = MIN(near, llabs(p->stride[d]));
	return k->id == KERN_gather && (last <= near || prog_view_count(&k->v[k->nin]) <= prog_view_count(&k->v[0]) / FEW);
}

static bool full_view(const struct prog_view *v, const struct place *p)
{
	return v->off == 0 && v->rank == p->rank && prog_view_dense(v) && v->dtype == p->dtype &&
	       !memcmp(v->dim, p->dim, sizeof *p->dim * (size_t)p->rank);
}

struct err *lower_steps(struct lw *w, struct frame *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	struct eval_step *st;
	int n;
	TRY(eval_steps(&w->p->arena, w->m, f->fn, o, &st, &n));
	if (n == 0 && o->nout == 1 && o->nin >= 1) {
		f->at[o->out] = lw_place_reshape(w, lw_dense(w, f, ir_in(f->fn, o, 0)), ir_vtype(w->m, f->fn, o->out)->dtype,
		                              ir_vtype(w->m, f->fn, o->out)->rank, ir_vtype(w->m, f->fn, o->out)->dim);
		return NULL;
	}
	struct place *stolen[64] = {0};
	for (int s = 0; s < n; s++)              /* the operand an in-place result starts from */
		if (st[s].init && ~st[s].arg[1] < (int)NELEM(stolen)) {
			int r = ~st[s].arg[1];
			ir_val x = ir_in(f->fn, o, (uint32_t)st[s].arg[0]);
			stolen[r] = lw_steal(w, f, i, x);
		}
	for (uint32_t k = 0; k < o->nout; k++) {
		lw_lay_as_read(w, f, o, o->out + k);
		f->at[o->out + k] = k < NELEM(stolen) && stolen[k] ? stolen[k] : lw_result_at(w, f, i, o->out + k);
	}
	for (int s = 0; s < n; s++) {
		struct prog_kern *k = &st[s].k;
		struct place **pl = ARENA_NEW(w->tmp, struct place *, k->nin + k->nout);
		if (st[s].init && ~st[s].arg[1] < (int)NELEM(stolen) && stolen[~st[s].arg[1]])
			continue;
		for (int a = 0; a < k->nin + k->nout; a++) {
			if (st[s].arg[a] < 0) {
				pl[a] = f->at[o->out + (uint32_t)~st[s].arg[a]];
				if (!lw_place_dense(pl[a]))
					k->v[a].stride = arena_copy(&w->p->arena, pl[a]->stride, sizeof *pl[a]->stride * (size_t)pl[a]->rank);
				continue;
			}
			ir_val v = ir_in(f->fn, o, (uint32_t)st[s].arg[a]);
			struct place *p = f->at[v];
			if (!lw_place_dense(p) && full_view(&k->v[a], p) && (takes_strides(k->id) || gathers(k, p)))
				k->v[a].stride = arena_copy(&w->p->arena, p->stride, sizeof *p->stride * (size_t)p->rank);      /* steps may share theirs */
			else
				p = lw_dense(w, f, v);
			pl[a] = p;
		}
		lw_in_pieces(w, f, o, k, &pl);
		lw_emit_kern(w, k, pl);
	}
	return NULL;
}

struct err *lower_constant(struct lw *w, struct frame *f, const struct ir_op *o)
{
	size_t n;
	const struct ir_type_info *t = ir_vtype(w->m, f->fn, o->out);
	const char *p = ir_blob_data(w->m, (ir_blob)ir_attr(f->fn, o, AT_data), &n);
	size_t e = dtype_info[t->dtype].bytes;
	if (t->bytes == 0) {
		f->at[o->out] = lw_temp(w, t->dtype, t->rank, t->dim);
		return NULL;
	}
	bool splat = n == e;
	uint64_t *id = map_put(&w->const_map, p, n);
	if (!*id) {
		while (w->data.n & 63)
			arr_push(&w->data, 0);
		int s = lw_store_new(w, BUF_CONST, (int64_t)n, 0);
		w->store.p[s].depth = 0;
		w->buf.p[w->store.p[s].buf].off = (int64_t)w->data.n;
		arr_reserve(&w->data, n);
		memcpy(w->data.p + w->data.n, p, n);
		w->data.n += n;
		*id = (uint64_t)s + 1;
	}
	struct place *q = lw_place_new(w, (int)*id - 1, t->dtype, t->rank, t->dim);
	if (splat)
		memset(q->stride, 0, sizeof *q->stride * (size_t)q->rank);
	f->at[o->out] = q;
	return NULL;
}

static int64_t product(const int64_t *d, int n)
{
	int64_t p = 1;
	for (int i = 0; i < n; i++)
		p *= d[i];
	return p;
}

/* c, of nin operands, of which peers see the first, and a result behind them. */
static void emit_coll(struct lw *w, struct frame *f, const struct prog_coll *c, bool beside, int nin, struct place *const *pl)
{
	w->buf.p[w->store.p[pl[0]->store].buf].bits |= BUF_PEER;
	w->buf.p[w->store.p[pl[nin]->store].buf].bits |= BUF_PEER;
	arr_push(&w->coll, *c);
	lw_loans_settle(w, f);
	lw_loans_write(w, pl[nin]->store);
	if (beside)
		lw_begin_beside(w);
	lw_meets(w, nin, nin + 1, pl);
	struct prog_cmd *q = lw_cmd(w, CMD_COLL);
	q->id = (uint32_t)w->coll.n - 1;
	lw_opnds(w, q, nin + 1, pl);
	if (beside)
		lw_end_beside(w, pl[0], pl[nin - 1], pl[nin]);
}

/* A dense place that is not one of a loan. */
static struct place *own_dense(struct lw *w, struct frame *f, ir_val v)
{
	struct place *p = lw_dense(w, f, v);
	return lw_is_lent(w, p) ? lw_copy(w, p) : p;
}

/* Rows that others have are written over the output, where it lies if it dies here. */
static struct err *lower_ragged(struct lw *w, struct frame *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	const struct ir_type_info *t = ir_vtype(w->m, f->fn, ir_in(f->fn, o, 0)), *rt = ir_vtype(w->m, f->fn, o->out), *st = ir_vtype(w->m, f->fn, ir_in(f->fn, o, 2));
	struct prog_coll c = { .kind = COLL_all_to_all, .dtype = t->dtype, .redop = RED_add, .nin = 1, .outer = 1, .inner = t->bytes, .outer2 = 1, .inner2 = rt->bytes,
	                       .group = lw_group(w, (ir_group)ir_attr(f->fn, o, AT_group)), .slices = st->dim[0] };
	bool beside = lw_beside(w, f, i);
	struct place *x = own_dense(w, f, ir_in(f->fn, o, 0)), *which = own_dense(w, f, ir_in(f->fn, o, 2)), *y = lw_steal(w, f, i, ir_in(f->fn, o, 1));
	if (!y) {
		y = lw_result_at(w, f, i, o->out);
		lw_emit_copy(w, f->at[ir_in(f->fn, o, 1)], y);
	}
	f->at[o->out] = y;
	if (t->bytes && rt->bytes && st->bytes) {
		c.row = t->bytes / t->dim[0];
		emit_coll(w, f, &c, beside, 2, (struct place *[]){ x, which, y });
	}
	return NULL;
}

struct err *lower_coll(struct lw *w, struct frame *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	const struct ir_fn *fn = f->fn;
	if (o->kind == IR_ragged_all_to_all)
		return lower_ragged(w, f, i);
	bool beside = lw_beside(w, f, i);
	for (uint32_t k = 0; k < o->nin; k++) {  /* one command an operand: they may differ in size */
		if (f->lent && f->lent[o->out + k]) {
			f->at[o->out + k] = lw_loan(w, f, i, k);
			continue;
		}
		struct prog_coll c = { .nin = 1, .outer = 1, .outer2 = 1 };
		const struct ir_type_info *t = ir_vtype(w->m, fn, ir_in(fn, o, k)), *rt = ir_vtype(w->m, fn, o->out + k);
		int64_t e = dtype_info[t->dtype].bytes;
		int d;
		c.dtype = t->dtype;
		c.redop = RED_add;
		c.inner = c.inner2 = t->bytes;
		if (ir_has_attr(o->kind, AT_group))
			c.group = lw_group(w, (ir_group)ir_attr(fn, o, AT_group));
		if (ir_has_attr(o->kind, AT_redop))
			c.redop = (uint8_t)ir_attr(fn, o, AT_redop);
		switch (o->kind) {
		case IR_all_reduce:
			c.kind = COLL_all_reduce;
			break;
		case IR_reduce_scatter:
			c.kind = COLL_reduce_scatter;
			d = (int)ir_attr(fn, o, AT_dim);
			c.outer = product(t->dim, d);
			c.inner = product(rt->dim + d, rt->rank - d) * e;
			break;
		case IR_all_gather:
			c.kind = COLL_all_gather;
			d = (int)ir_attr(fn, o, AT_dim);
			c.outer = product(t->dim, d);
			c.inner = product(t->dim + d, t->rank - d) * e;
			break;
		case IR_all_to_all: {
			c.kind = COLL_all_to_all;
			d = (int)ir_attr(fn, o, AT_split);
			int d2 = (int)ir_attr(fn, o, AT_concat);
			int64_t n = w->group.p[c.group].ncol;
			c.outer = product(t->dim, d);
			c.inner = n ? product(t->dim + d, t->rank - d) * e / n : 0;
			c.outer2 = product(rt->dim, d2);
			c.inner2 = n ? product(rt->dim + d2, rt->rank - d2) * e / n : 0;
			break;
		}
		case IR_redistribute: {
			c.kind = COLL_all_to_all;
			c.inner2 = rt->bytes;
			int n, rank = t->rank;
			const int64_t *p = ir_attrs(fn, o, AT_boxes, &n);
			c.nbox = (uint32_t)(1 + 2 * rank + n);
			c.box = ARENA_NEW(&w->p->arena, int64_t, c.nbox);
			c.box[0] = rank;
			for (int x = 0; x < rank; x++) {
				c.box[1 + x] = t->dim[x];
				c.box[1 + rank + x] = rt->dim[x];
			}
			for (int x = 0; x < n; x++)
				c.box[1 + 2 * rank + x] = p[x];
			break;
		}
		case IR_collective_broadcast:
			c.kind = COLL_broadcast;
			break;
		case IR_collective_permute:
			TRY(lw_permute(w, fn, o, &c));
			break;
		default:
			return ERR(INTERNAL, "'%s' is no collective", ir_info(o->kind)->name);
		}
		if (c.redop == RED_fn)
			TRY(eval_expr(&w->p->arena, w->m, (ir_fnid)ir_attr(fn, o, AT_fn), &c.expr));
		struct place *in = f->at[ir_in(fn, o, k)], *out = NULL;
		if (o->kind == IR_collective_permute && !f->target[o->out + k] && t->bytes && lw_place_block(in) && !lw_place_dense(in) && !lw_is_lent(w, in)) {
			out = f->at[o->out + k] = lw_temp(w, rt->dtype, rt->rank, rt->dim);     /* what is received lies as what is sent */
			out->stride = in->stride;
		}
		in = out ? in : own_dense(w, f, ir_in(fn, o, k));
		if (!out)
			out = f->at[o->out + k] = lw_result_at(w, f, i, o->out + k);
		if (lw_place_bytes(out) == 0 && lw_place_bytes(in) == 0)
			continue;
		if (w->store.p[in->store].donated_to == out->store && in->off == out->off)
			in = out;                        /* one name, if it is in place */
		emit_coll(w, f, &c, beside, 1, (struct place *[]){ in, out });
	}
	return NULL;
}

/* Where result k of custom call i is left over an operand, which lie at pl, if it says that it may be, and nobody else wants that. */
static struct place *over_alias(struct lw *w, struct frame *f, int i, uint32_t k, struct place *const *pl)
{
	const struct ir_op *o = &f->fn->op.p[i];
	int n;
	const int64_t *alias = ir_attrs(f->fn, o, AT_alias, &n);
	for (int a = 0; a + 1 < n; a += 3) {
		ir_val x = ir_in(f->fn, o, (uint32_t)alias[a + 1]);
		struct place *p = pl[alias[a + 1]];
		if (alias[a] != k || ir_vtype(w->m, f->fn, x)->bytes != ir_vtype(w->m, f->fn, o->out + k)->bytes || !ir_vtype(w->m, f->fn, x)->bytes)
			continue;
		return p->store != f->at[x]->store ? p : lw_steal(w, f, i, x);        /* a copy was made for it alone, or it dies */
	}
	return NULL;
}

struct err *lower_custom(struct lw *w, struct frame *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	const char *target = ir_text(w->m, (ir_str)ir_attr(f->fn, o, AT_target));
	if (w->opts->custom_known && !w->opts->custom_known(target))
		return ERR(UNIMPLEMENTED, "custom call '%s' has no handler here", target);
	struct prog_custom c = { .target = arena_str(&w->p->arena, target, strlen(target)), .api = (int)ir_attr(f->fn, o, AT_api),
	                         .effect = ir_attr(f->fn, o, AT_effect) != 0, .nin = (uint16_t)o->nin, .nout = (uint16_t)o->nout };
	const void *d = ir_blob_data(w->m, (ir_blob)ir_attr(f->fn, o, AT_config), &c.ndict);
	c.dict = arena_copy(&w->p->arena, d, c.ndict);
	int n = (int)(o->nin + o->nout);
	c.v = ARENA_NEW(&w->p->arena, struct prog_view, n);
	struct place **pl = ARENA_NEW(w->tmp, struct place *, n);
	for (uint32_t k = 0; k < o->nin; k++)
		lw_view_from(w, &c.v[k], pl[k] = lw_dense(w, f, ir_in(f->fn, o, k)));
	for (uint32_t k = 0; k < o->nout; k++) {
		struct place *p = f->target[o->out + k] ? NULL : over_alias(w, f, i, k, pl);
		lw_view_from(w, &c.v[o->nin + k], pl[o->nin + k] = f->at[o->out + k] = p ? p : lw_result_at(w, f, i, o->out + k));
	}
	arr_push(&w->custom, c);
	lw_meets(w, (int)o->nin, n, pl);
	struct prog_cmd *q = lw_cmd(w, CMD_CUSTOM);
	q->id = (uint32_t)w->custom.n - 1;
	lw_opnds(w, q, n, pl);
	return NULL;
}

struct err *lower_scalar(struct lw *w, struct frame *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	const struct ir_type_info *t = ir_vtype(w->m, f->fn, o->out);
	struct place *p = f->at[o->out] = lw_result_at(w, f, i, o->out);
	if (!t->bytes)
		return NULL;
	uint16_t r = 0;
	if (o->kind == IR_partition_id) {
		uint32_t tab = lw_table_new(w);
		for (int d = 0; d < w->p->ndev; d++)
			w->table.p[tab].v[d] = d;
		r = lw_reg_new(w);
		struct prog_cmd *c = lw_cmd(w, CMD_TABLE);
		c->reg[0] = r;
		c->imm = tab;
	}
	lw_meets(w, 0, 1, &p);
	struct prog_cmd *c = lw_cmd(w, CMD_ST);
	c->reg[1] = r;
	c->dtype = t->dtype;
	lw_opnds(w, c, 1, &p);
	return NULL;
}
