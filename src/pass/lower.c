/* IR -> prog: every value gets a place (storage and strides), every op becomes commands.
 *
 * Views are free: slice, transpose, broadcast, reverse, reshape and loop slices only change the place.
 * A kernel that cannot read a strided operand gets a dense copy, made once per value.
 *
 * Updates in place (design.md, decision 10): a dynamic_update_slice or scatter takes the storage of its
 * operand when that dies there; loop carries live in one storage that the body's last op writes; results of
 * the program are written straight into their output buffers, and a donated argument's output is the
 * argument's memory.  "Dies" is decided by the position of the last reader of the value or of any view of
 * it, so all other readers are earlier in the program. */
#include "lower.h"

#include <limits.h>
#include <stdlib.h>

static struct err *lower_ops(struct lw *w, struct frame *f);

/* --- commands ------------------------------------------------------------ */

static struct prog_cmd *cmd(struct lw *w, enum prog_op op)
{
	cmd_list *c = (cmd_list *)w->cur;
	arr_push(c, ((struct prog_cmd){ .op = (uint8_t)op, .site = w->site_now }));
	w->now++;
	return &c->p[c->n - 1];
}

static uint16_t reg_new(struct lw *w)
{
	return (uint16_t)w->nreg++;
}

static uint32_t block_begin(struct lw *w, cmd_list *mine, void **saved)
{
	*saved = w->cur;
	*mine = (cmd_list){0};
	w->cur = (void *)mine;
	arr_push(&w->block, ((struct prog_block){0}));
	return (uint32_t)w->block.n - 1;
}

static void block_end(struct lw *w, uint32_t id, cmd_list *mine, void *saved)
{
	w->block.p[id].n = (uint32_t)mine->n;
	w->block.p[id].cmd = arena_copy(&w->p->arena, mine->p, mine->n * sizeof *mine->p);
	arr_free(mine);
	w->cur = saved;
}

static void loop_begin(struct lw *w)
{
	arr_push(&w->loops, ((struct loop_frame){ .start = w->now }));
}

static void loop_end(struct lw *w)
{
	struct loop_frame l = w->loops.p[--w->loops.n];
	for (size_t i = 0; i < l.extend.n; i++)
		pass_store_touch(w, l.extend.p[i]);
	arr_free(&l.extend);
}

static void site_of(struct lw *w, const struct ir_op *o)
{
	const struct ir_loc_info *l = &w->m->loc.p[o->loc];
	struct str s = {0};
	const char *file = ir_text(w->m, l->file), *base = strrchr(file, '/');
	if (*file)
		str_addf(&s, "%s:%d ", base ? base + 1 : file, l->line);
	str_add(&s, ir_info(o->kind)->name);
	uint64_t *id = map_put(&w->site_map, s.p, s.n);
	if (!*id) {
		arr_push(&w->site, ((struct prog_site){ arena_str(&w->p->arena, s.p, s.n) }));
		*id = w->site.n;
	}
	w->site_now = (uint32_t)*id - 1;
	str_free(&s);
}

static void view_from(struct lw *w, struct prog_view *v, const struct place *p)
{
	v->dtype = (uint8_t)p->dtype;
	v->rank = (uint8_t)p->rank;
	v->off = 0;
	v->dim = arena_copy(&w->p->arena, p->dim, sizeof *p->dim * (size_t)p->rank);
	v->stride = arena_copy(&w->p->arena, p->stride, sizeof *p->stride * (size_t)p->rank);
}

static void emit_kern(struct lw *w, struct prog_kern *k, struct place *const *pl)
{
	int n = k->nin + k->nout;
	if (!k->bytes)
		for (int i = 0; i < n; i++) {
			int64_t c = dtype_info[k->v[i].dtype].bytes;
			for (int d = 0; d < k->v[i].rank; d++)
				c *= k->v[i].dim[d];
			k->bytes += c;
		}
	arr_push(&w->kern, *k);
	uint32_t first = (uint32_t)w->opnd.n;
	struct prog_cmd *c = cmd(w, CMD_KERN);
	c->id = (uint32_t)w->kern.n - 1;
	c->opnd = first;
	c->nopnd = (uint32_t)n;
	w->now--;                           /* operands are used at the command's own time */
	for (int i = 0; i < n; i++)
		arr_push(&w->opnd, pass_place_opnd(w, pl[i]));
	w->now++;
}

static void emit_copy(struct lw *w, struct place *src, struct place *dst)
{
	struct prog_kern k = { .id = KERN_copy, .nin = 1, .nout = 1, .code = -1 };
	if (pass_place_bytes(dst) == 0)
		return;
	k.v = ARENA_NEW(&w->p->arena, struct prog_view, 2);
	view_from(w, &k.v[0], src);
	view_from(w, &k.v[1], dst);
	emit_kern(w, &k, (struct place *[]){ src, dst });
}

static uint32_t opnds(struct lw *w, struct prog_cmd *c, int n, struct place *const *pl)
{
	uint32_t first = (uint32_t)w->opnd.n;
	w->now--;
	for (int i = 0; i < n; i++)
		arr_push(&w->opnd, pass_place_opnd(w, pl[i]));
	w->now++;
	c->opnd = first;
	c->nopnd = (uint32_t)n;
	return first;
}

static struct place *temp(struct lw *w, enum dtype dt, int rank, const int64_t *dim)
{
	int64_t n = dtype_info[dt].bytes;
	for (int i = 0; i < rank; i++)
		n *= dim[i];
	return pass_place_new(w, pass_store_new(w, BUF_TEMP, n, 0), dt, rank, dim);
}

/* --- frames --------------------------------------------------------------- */

static bool is_alias(const struct ir_op *o)
{
	switch (o->kind) {
	case IR_broadcast: case IR_reshape: case IR_transpose: case IR_reverse: case IR_slice:
	case IR_bitcast: case IR_bitcast_convert: case IR_optimization_barrier: case IR_sharding_constraint:
		return true;
	default:
		return false;
	}
}

static void frame_init(struct lw *w, struct frame *f, const struct ir_fn *fn)
{
	size_t n = fn->val.n;
	f->fn = fn;
	f->at = ARENA_NEW(w->tmp, struct place *, n);
	f->target = ARENA_NEW(w->tmp, struct place *, n);
	f->root = ARENA_NEW(w->tmp, ir_val, n);
	f->last = ARENA_NEW(w->tmp, int, n);
	f->steal = ARENA_NEW(w->tmp, bool, n);
	for (size_t v = 0; v < n; v++) {
		f->root[v] = (ir_val)v;
		f->last[v] = -1;
	}
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		for (uint32_t k = 0; k < o->nin; k++) {
			ir_val r = f->root[ir_in(fn, o, k)];
			f->last[r] = (int)i;
			if (is_alias(o) && k < o->nout)
				f->root[o->out + k] = r;
		}
	}
	for (size_t i = 0; i < fn->result.n; i++)
		f->last[f->root[fn->result.p[i]]] = INT_MAX;
}

/* A dense place for v, copying once if it lies strided. */
static struct place *dense(struct lw *w, struct frame *f, ir_val v)
{
	struct place *p = f->at[v];
	if (pass_place_dense(p))
		return p;
	struct place *q = temp(w, p->dtype, p->rank, p->dim);
	emit_copy(w, p, q);
	f->at[v] = q;
	f->root[v] = v;              /* it no longer shows the other's bytes; its storage is its own */
	return q;
}

/* How often operands of op o show the value behind root r. */
static int uses(const struct frame *f, const struct ir_op *o, ir_val r)
{
	int n = 0;
	for (uint32_t k = 0; k < o->nin; k++)
		n += f->root[ir_in(f->fn, o, k)] == r;
	return n;
}

/* May op i write over the storage of operand v?  Gives the place to write, or NULL. */
static struct place *steal(struct lw *w, struct frame *f, int i, ir_val v)
{
	const struct ir_op *o = &f->fn->op.p[i];
	ir_val r = f->root[v];
	struct place *p = f->at[v];
	const struct ir_op *def = ir_def(f->fn, r);
	if (f->last[r] != i || uses(f, o, r) != 1 || !pass_place_dense(p) || !f->at[r])
		return NULL;
	if (!def && !f->steal[r])
		return NULL;
	struct store *s = &w->store.p[p->store];
	if (p->store != f->at[r]->store)
		return p;                    /* a copy of its own */
	if (!s->fixed)
		return p;
	if (s->donated_to < 0 || def)
		return NULL;
	struct place *q = pass_place_like(w, p);      /* the argument's memory under the output's name */
	q->store = s->donated_to;
	return q;
}

/* May result storage wanted by target be written by op i?  Nothing that still shows its old contents may
 * be read at or after i. */
static bool free_at(struct lw *w, struct frame *f, int i, const struct place *t)
{
	int s = t->store, arg = -1;
	uint32_t b = w->store.p[s].buf;
	if (w->buf.p[b].alias >= 0)
		arg = w->buf.p[b].alias;
	const struct store *st = &w->store.p[s];
	if (st->holder == f && st->held && f->last[f->root[st->held]] >= i)
		return false;
	for (ir_val v = 1; v <= f->fn->nparam; v++)
		if (f->at[v] && (f->at[v]->store == s || (arg >= 0 && w->store.p[f->at[v]->store].buf == (uint32_t)arg)))
			if (f->last[f->root[v]] >= i)
				return false;
	return true;
}

/* Group fn reads operand k only at the index it writes. */
static bool same_index(const struct lw *w, const struct ir_fn *g, uint32_t k)
{
	if (g->result.n != 1)
		return false;
	ir_type t = g->val.p[g->result.p[0]].type;
	const struct ir_type_info *rt = ir_type_of(w->m, t), *pt = ir_vtype(w->m, g, k + 1);
	if (pt->rank != rt->rank || memcmp(pt->dim, rt->dim, sizeof *rt->dim * rt->rank))
		return false;
	for (size_t i = 0; i < g->op.n; i++) {
		const struct ir_op *o = &g->op.p[i];
		if (!ir_is_elem(o->kind) && o->kind != IR_broadcast && o->kind != IR_constant && o->kind != IR_iota)
			return false;
		if (o->kind == IR_broadcast && ir_in(g, o, 0) == k + 1)
			return false;
	}
	return true;
}

/* Place for result v of op i: where it is wanted, else over an operand that dies, else new. */
static struct place *result_at(struct lw *w, struct frame *f, int i, ir_val v)
{
	const struct ir_op *o = &f->fn->op.p[i];
	const struct ir_type_info *t = ir_vtype(w->m, f->fn, v);
	struct place *p = NULL;
	bool pointwise = o->kind == IR_fused || ir_is_elem(o->kind);
	if (pointwise && o->nout == 1)
		for (uint32_t k = 0; k < o->nin && !p; k++) {
			ir_val x = ir_in(f->fn, o, k);
			const struct ir_type_info *xt = ir_vtype(w->m, f->fn, x);
			if (xt->bytes != t->bytes || dtype_info[xt->dtype].bytes != dtype_info[t->dtype].bytes || !t->bytes)
				continue;
			if (o->kind == IR_fused && !same_index(w, ir_fn_of(w->m, (ir_fnid)ir_attr(f->fn, o, 0)), k))
				continue;
			if ((p = steal(w, f, i, x)) && f->target[v] && p->store != f->target[v]->store && free_at(w, f, i, f->target[v]))
				p = NULL;
			if (p) {
				p = pass_place_like(w, p);
				p->dtype = t->dtype;
				p->rank = t->rank;
				p->dim = t->dim;
				struct place *d = pass_place_new(w, p->store, t->dtype, t->rank, t->dim);
				p->stride = d->stride;
			}
		}
	if (!p && f->target[v] && free_at(w, f, i, f->target[v]))
		p = f->target[v];
	return p ? p : temp(w, t->dtype, t->rank, t->dim);
}

/* Push the wish for a place backwards through updates in place. */
static void targets_back(struct frame *f)
{
	const struct ir_fn *fn = f->fn;
	for (size_t i = fn->op.n; i-- > 0;) {
		const struct ir_op *o = &fn->op.p[i];
		if (o->kind != IR_dynamic_update_slice && !(o->kind == IR_scatter && o->nout == 1))
			continue;
		ir_val x = ir_in(fn, o, 0);
		if (f->target[o->out] && !f->target[x] && f->root[x] == x && f->last[x] == (int)i && ir_def(fn, x))
			f->target[x] = f->target[o->out];
	}
}

struct move { struct place *src, *dst; };

/* Does src already lie where dst wants it?  An argument donated to an output does. */
static bool same_place(const struct lw *w, const struct place *a, const struct place *b)
{
	return (a->store == b->store || w->store.p[a->store].donated_to == b->store) && a->off == b->off && pass_place_dense(a) && pass_place_dense(b) &&
	       a->reg[0] == b->reg[0] && a->reg[1] == b->reg[1] && a->mul[0] == b->mul[0] && a->mul[1] == b->mul[1];
}

/* Do two stores share bytes (an output and the argument donated to it)? */
static bool shares(struct lw *w, int a, int b)
{
	if (a == b)
		return true;
	uint32_t x = w->store.p[a].buf, y = w->store.p[b].buf;
	return w->buf.p[x].alias == (int)y || w->buf.p[y].alias == (int)x;
}

/* Copies that happen at once: a source that an earlier copy overwrites (or its own, when they overlap)
 * goes to a temporary first. */
static void move_all(struct lw *w, struct move *mv, int n)
{
	for (int i = 0; i < n; i++)
		for (int j = 0; j <= i; j++)
			if (!same_place(w, mv[i].src, mv[i].dst) && !same_place(w, mv[j].src, mv[j].dst) &&
			    shares(w, mv[j].dst->store, mv[i].src->store)) {
				struct place *t = temp(w, mv[i].src->dtype, mv[i].src->rank, mv[i].src->dim);
				emit_copy(w, mv[i].src, t);
				mv[i].src = t;
				break;
			}
	for (int i = 0; i < n; i++)
		if (!same_place(w, mv[i].src, mv[i].dst))
			emit_copy(w, mv[i].src, mv[i].dst);
}

/* --- single ops ------------------------------------------------------------ */

static bool takes_strides(enum kern_id k)
{
	return k == KERN_elem || k == KERN_copy || k == KERN_dot || k == KERN_reduce || k == KERN_dynamic_slice ||
	       k == KERN_dynamic_update || k == KERN_pad;
}

static bool full_view(const struct prog_view *v, const struct place *p)
{
	return v->off == 0 && v->rank == p->rank && prog_view_dense(v) && v->dtype == p->dtype &&
	       !memcmp(v->dim, p->dim, sizeof *p->dim * (size_t)p->rank);
}

static struct err *lower_steps(struct lw *w, struct frame *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	struct eval_step *st;
	int n;
	TRY(eval_steps(&w->p->arena, w->m, f->fn, o, &st, &n));
	if (n == 0 && o->nout == 1 && o->nin >= 1) {
		f->at[o->out] = pass_place_reshape(w, dense(w, f, ir_in(f->fn, o, 0)), ir_vtype(w->m, f->fn, o->out)->dtype,
		                              ir_vtype(w->m, f->fn, o->out)->rank, ir_vtype(w->m, f->fn, o->out)->dim);
		return NULL;
	}
	struct place *stolen[64] = {0};
	for (int s = 0; s < n; s++)              /* the operand an in-place result starts from */
		if (st[s].init && ~st[s].arg[1] < (int)NELEM(stolen)) {
			int r = ~st[s].arg[1];
			ir_val x = ir_in(f->fn, o, (uint32_t)st[s].arg[0]);
			stolen[r] = steal(w, f, i, x);
		}
	for (uint32_t k = 0; k < o->nout; k++)
		f->at[o->out + k] = k < NELEM(stolen) && stolen[k] ? stolen[k] : result_at(w, f, i, o->out + k);
	for (int s = 0; s < n; s++) {
		struct prog_kern *k = &st[s].k;
		struct place **pl = ARENA_NEW(w->tmp, struct place *, k->nin + k->nout);
		if (st[s].init && ~st[s].arg[1] < (int)NELEM(stolen) && stolen[~st[s].arg[1]])
			continue;
		for (int a = 0; a < k->nin + k->nout; a++) {
			if (st[s].arg[a] < 0) {
				pl[a] = f->at[o->out + (uint32_t)~st[s].arg[a]];
				continue;
			}
			ir_val v = ir_in(f->fn, o, (uint32_t)st[s].arg[a]);
			struct place *p = f->at[v];
			if (!pass_place_dense(p) && full_view(&k->v[a], p) && takes_strides(k->id))
				memcpy(k->v[a].stride, p->stride, sizeof *p->stride * (size_t)p->rank);
			else
				p = dense(w, f, v);
			pl[a] = p;
		}
		emit_kern(w, k, pl);
	}
	return NULL;
}

static struct err *lower_constant(struct lw *w, struct frame *f, const struct ir_op *o)
{
	size_t n;
	const struct ir_type_info *t = ir_vtype(w->m, f->fn, o->out);
	const char *p = ir_blob_data(w->m, (ir_blob)ir_attr(f->fn, o, 0), &n);
	size_t e = dtype_info[t->dtype].bytes;
	if (t->bytes == 0) {
		f->at[o->out] = temp(w, t->dtype, t->rank, t->dim);
		return NULL;
	}
	bool splat = n == e;
	uint64_t *id = map_put(&w->const_map, p, n);
	if (!*id) {
		while (w->data.n & 63)
			arr_push(&w->data, 0);
		int s = pass_store_new(w, BUF_CONST, (int64_t)n, 0);
		w->store.p[s].depth = 0;
		w->buf.p[w->store.p[s].buf].off = (int64_t)w->data.n;
		arr_reserve(&w->data, n);
		memcpy(w->data.p + w->data.n, p, n);
		w->data.n += n;
		*id = (uint64_t)s + 1;
	}
	struct place *q = pass_place_new(w, (int)*id - 1, t->dtype, t->rank, t->dim);
	if (splat)
		memset(q->stride, 0, sizeof *q->stride * (size_t)q->rank);
	f->at[o->out] = q;
	return NULL;
}

/* Groups small enough, or too cheap to compile: the expression form of a pointwise group.  Views are
 * taken on operands and constants only.  False if the group does not have that form. */
static bool lower_strip(struct lw *w, struct frame *f, int i, const struct ir_fn *g)
{
	const struct ir_op *o = &f->fn->op.p[i];
	if (g->result.n > 16)
		return false;
	const struct ir_type_info *rt = ir_vtype(w->m, g, g->result.p[0]);
	enum { OUTER = 0, INNER = 1 };
	struct place **at = ARENA_NEW(w->tmp, struct place *, g->val.n);
	uint16_t *reg = ARENA_NEW(w->tmp, uint16_t, g->val.n);
	bool *inner = ARENA_NEW(w->tmp, bool, g->val.n);
	ARR(struct place *) in = {0};
	struct prog_expr *x = ARENA_NEW(&w->p->arena, struct prog_expr, 1);
	bool ok = true;
	for (size_t r = 0; r < g->result.n; r++) {
		const struct ir_type_info *t = ir_vtype(w->m, g, g->result.p[r]);
		ok &= t->rank == rt->rank && !memcmp(t->dim, rt->dim, sizeof *t->dim * t->rank);
	}
	for (uint32_t k = 0; k < o->nin; k++)
		at[k + 1] = f->at[ir_in(f->fn, o, k)];
	/* pass 1: places of operands seen through views, which values are computed */
	for (size_t j = 0; j < g->op.n && ok; j++) {
		const struct ir_op *q = &g->op.p[j];
		if (q->kind == IR_constant) {
			struct frame fake = { .fn = g, .at = at };
			err_free(lower_constant(w, &fake, q));
		} else if (ir_is_elem(q->kind)) {
			const struct ir_type_info *t = ir_vtype(w->m, g, q->out);
			ok &= t->rank == rt->rank && !memcmp(t->dim, rt->dim, sizeof *t->dim * t->rank);
			inner[q->out] = true;
		} else if (is_alias(q) && q->nin == 1 && at[ir_in(g, q, 0)] && !inner[ir_in(g, q, 0)]) {
			at[q->out] = pass_place_view(w, g, q, at[ir_in(g, q, 0)]);
			ok &= at[q->out] != NULL;
		} else {
			ok = false;
		}
	}
	for (size_t r = 0; r < g->result.n && ok; r++)
		ok &= inner[g->result.p[r]];
	if (!ok) {
		arr_free(&in);
		return false;
	}
	/* pass 2: registers: inputs first, then instructions */
	for (int phase = 0; phase < 2; phase++) {
		for (size_t j = 0; j < g->op.n; j++) {
			const struct ir_op *q = &g->op.p[j];
			if (!inner[q->out] || !ir_is_elem(q->kind))
				continue;
			if (phase) {
				struct prog_ins *s = &x->ins[x->n];
				s->fn = (uint16_t)ir_elem(q->kind);
				s->from = ir_vtype(w->m, g, ir_in(g, q, q->kind == IR_select ? 1 : 0))->dtype;
				s->to = ir_vtype(w->m, g, q->out)->dtype;
				for (uint32_t k = 0; k < q->nin; k++)
					s->src[k] = reg[ir_in(g, q, k)];
				reg[q->out] = (uint16_t)(x->nin + x->n++);
				continue;
			}
			for (uint32_t k = 0; k < q->nin; k++) {
				ir_val v = ir_in(g, q, k);
				if (inner[v] || reg[v])
					continue;
				arr_push(&in, at[v]);
				reg[v] = (uint16_t)in.n;      /* +1, so that 0 means none yet */
			}
		}
		if (!phase) {
			if (in.n > 60 || g->op.n > 4000) {
				arr_free(&in);
				return false;
			}
			x->nin = (uint16_t)in.n;
			x->in_type = ARENA_NEW(&w->p->arena, uint8_t, in.n);
			x->ins = ARENA_NEW(&w->p->arena, struct prog_ins, g->op.n);
			for (size_t v = 0; v < g->val.n; v++)
				if (reg[v])
					reg[v]--;
			for (size_t k = 0; k < in.n; k++)
				x->in_type[k] = (uint8_t)in.p[k]->dtype;
		}
	}
	x->nout = (uint16_t)g->result.n;
	x->out = ARENA_NEW(&w->p->arena, uint16_t, x->nout);
	struct prog_kern k = { .id = KERN_elem, .nin = x->nin, .nout = x->nout, .expr = x, .code = -1 };
	k.v = ARENA_NEW(&w->p->arena, struct prog_view, k.nin + k.nout);
	k.flops = rt->count * x->n;
	struct place **pl = ARENA_NEW(w->tmp, struct place *, k.nin + k.nout);
	for (int a = 0; a < k.nin; a++) {
		pl[a] = in.p[a];
		view_from(w, &k.v[a], pl[a]);
	}
	for (int r = 0; r < k.nout; r++) {
		x->out[r] = reg[g->result.p[r]];
		f->at[o->out + (uint32_t)r] = pl[k.nin + r] = result_at(w, f, i, o->out + (uint32_t)r);
		view_from(w, &k.v[k.nin + r], pl[k.nin + r]);
	}
	emit_kern(w, &k, pl);
	arr_free(&in);
	return true;
}

static int64_t group_work(const struct lw *w, const struct ir_fn *g)
{
	int64_t n = 0;
	for (size_t i = 0; i < g->op.n; i++)
		if (!(ir_info(g->op.p[i].kind)->flags & IR_VIEW) && g->op.p[i].kind != IR_constant) {
			int64_t c = ir_vtype(w->m, g, g->op.p[i].out)->count;
			for (uint32_t k = 0; k < g->op.p[i].nin; k++)
				c = MAX(c, ir_vtype(w->m, g, ir_in(g, &g->op.p[i], k))->count);
			n += c;
		}
	return n;
}

static bool has_loop(const struct ir_fn *g)
{
	for (size_t i = 0; i < g->op.n; i++)
		if (g->op.p[i].kind == IR_loop)
			return true;
	return false;
}

/* A group without a kernel of its own: its ops one by one. */
static struct err *lower_apart(struct lw *w, struct frame *f, int i, const struct ir_fn *g)
{
	const struct ir_op *o = &f->fn->op.p[i];
	struct frame in;
	frame_init(w, &in, g);
	for (uint32_t k = 0; k < o->nin; k++)
		in.at[k + 1] = f->at[ir_in(f->fn, o, k)];
	TRY(lower_ops(w, &in));
	for (uint32_t k = 0; k < o->nout; k++) {
		ir_val v = g->result.p[k];
		struct place *p = in.at[v];
		bool own = in.root[v] > g->nparam && !w->store.p[p->store].fixed;
		for (uint32_t j = 0; j < k; j++)
			own &= f->at[o->out + j]->store != p->store;
		if (!own) {                          /* a result is storage of its own */
			struct place *q = temp(w, p->dtype, p->rank, p->dim);
			emit_copy(w, p, q);
			p = q;
		}
		f->at[o->out + k] = p;
	}
	return NULL;
}

/* Work (elements times ops, over all turns of the loops around) under which compiling does not pay. */
enum { SMALL_WORK = 1 << 15 };

static struct err *lower_fused(struct lw *w, struct frame *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	const struct ir_fn *g = ir_fn_of(w->m, (ir_fnid)ir_attr(f->fn, o, 0));
	bool small = w->opts->tier != TIER_GEN && w->loops.n == 0 && !has_loop(g) && group_work(w, g) < SMALL_WORK;
	if (w->opts->tier == TIER_REF || small) {
		if (lower_strip(w, f, i, g))
			return NULL;
		return lower_apart(w, f, i, g);
	}
	int n = (int)(o->nin + o->nout);
	struct prog_kern k = { .id = KERN_gen, .nin = (uint16_t)o->nin, .nout = (uint16_t)o->nout };
	k.v = ARENA_NEW(&w->p->arena, struct prog_view, n);
	struct place **pl = ARENA_NEW(w->tmp, struct place *, n);
	for (uint32_t j = 0; j < o->nin; j++) {
		pl[j] = f->at[ir_in(f->fn, o, j)];
		view_from(w, &k.v[j], pl[j]);
	}
	for (uint32_t j = 0; j < o->nout; j++) {
		const struct ir_type_info *t = ir_vtype(w->m, f->fn, o->out + j);
		prog_view_make(&w->p->arena, &k.v[o->nin + j], t->dtype, t->rank, t->dim);
	}
	struct gen_out out = {0};
	struct err *e = gen_group(&w->p->arena, w->m, g, k.v, &out);
	if (e) {
		if (e->code != ERR_UNAVAILABLE && e->code != ERR_UNIMPLEMENTED)
			return e;
		log_line(LOG_INFO, "%s; the group runs through reference kernels", e->msg);
		err_free(e);
		if (lower_strip(w, f, i, g))
			return NULL;
		return lower_apart(w, f, i, g);
	}
	for (uint32_t j = 0; j < o->nout; j++)
		f->at[o->out + j] = pl[o->nin + j] = result_at(w, f, i, o->out + j);
	uint64_t *id = map_put(&w->code_map, &out.key, sizeof out.key);
	if (!*id) {
		arr_push(&w->code, ((struct prog_code){ out.symbol, out.obj, out.nobj, out.key }));
		*id = w->code.n;
	}
	k.code = (int32_t)*id - 1;
	k.tiles = out.tiles;
	k.flops = out.flops;
	k.bytes = out.bytes;
	emit_kern(w, &k, pl);
	return NULL;
}

static uint32_t table_new(struct lw *w)
{
	arr_push(&w->table, ((struct prog_table){ ARENA_NEW(&w->p->arena, int64_t, w->p->ndev) }));
	return (uint32_t)w->table.n - 1;
}

static uint32_t group_new(struct lw *w, ir_group id)
{
	struct prog_group g = {0};
	int nd = w->p->ndev;
	int64_t *all = ARENA_NEW(w->tmp, int64_t, nd);
	const struct ir_group_info everyone = { 1, nd, all }, *i = &w->m->group.p[id];
	if (!id || !i->nrow) {
		for (int d = 0; d < nd; d++)
			all[d] = d;
		i = &everyone;
	}
	g.nrow = i->nrow;
	g.ncol = i->ncol;
	g.id = arena_copy(&w->p->arena, i->id, sizeof *g.id * (size_t)(g.nrow * g.ncol));
	g.row = ARENA_NEW(&w->p->arena, int32_t, nd);
	g.rank = ARENA_NEW(&w->p->arena, int32_t, nd);
	for (int d = 0; d < nd; d++)
		g.row[d] = g.rank[d] = -1;
	for (int r = 0; r < g.nrow; r++)
		for (int c = 0; c < g.ncol; c++) {
			int64_t d = g.id[r * g.ncol + c];
			if (d >= 0 && d < nd) {
				g.row[d] = r;
				g.rank[d] = c;
			}
		}
	for (size_t k = 0; k < w->group.n; k++)
		if (w->group.p[k].nrow == g.nrow && w->group.p[k].ncol == g.ncol &&
		    !memcmp(w->group.p[k].id, g.id, sizeof *g.id * (size_t)(g.nrow * g.ncol)))
			return (uint32_t)k;
	arr_push(&w->group, g);
	return (uint32_t)w->group.n - 1;
}

static int64_t product(const int64_t *d, int n)
{
	int64_t p = 1;
	for (int i = 0; i < n; i++)
		p *= d[i];
	return p;
}

static struct err *lower_coll(struct lw *w, struct frame *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	const struct ir_fn *fn = f->fn;
	for (uint32_t k = 0; k < o->nin; k++) {  /* one command an operand: they may differ in size */
		struct prog_coll c = { .nin = 1, .outer = 1, .outer2 = 1 };
		const struct ir_type_info *t = ir_vtype(w->m, fn, ir_in(fn, o, k)), *rt = ir_vtype(w->m, fn, o->out + k);
		int64_t e = dtype_info[t->dtype].bytes;
		int d;
		c.dtype = t->dtype;
		c.redop = RED_add;
		c.inner = c.inner2 = t->bytes;
		ir_fnid region = 0;
		switch (o->kind) {
		case IR_all_reduce:
			c.kind = COLL_all_reduce;
			c.group = group_new(w, (ir_group)ir_attr(fn, o, 0));
			c.redop = (uint8_t)ir_attr(fn, o, 1);
			region = (ir_fnid)ir_attr(fn, o, 2);
			break;
		case IR_reduce_scatter:
			c.kind = COLL_reduce_scatter;
			d = (int)ir_attr(fn, o, 0);
			c.group = group_new(w, (ir_group)ir_attr(fn, o, 1));
			c.redop = (uint8_t)ir_attr(fn, o, 2);
			region = (ir_fnid)ir_attr(fn, o, 3);
			c.outer = product(t->dim, d);
			c.inner = product(rt->dim + d, rt->rank - d) * e;
			break;
		case IR_all_gather:
			c.kind = COLL_all_gather;
			d = (int)ir_attr(fn, o, 0);
			c.group = group_new(w, (ir_group)ir_attr(fn, o, 1));
			c.outer = product(t->dim, d);
			c.inner = product(t->dim + d, t->rank - d) * e;
			break;
		case IR_all_to_all: {
			c.kind = COLL_all_to_all;
			d = (int)ir_attr(fn, o, 0);
			int d2 = (int)ir_attr(fn, o, 1);
			c.group = group_new(w, (ir_group)ir_attr(fn, o, 2));
			int64_t n = w->group.p[c.group].ncol;
			c.outer = product(t->dim, d);
			c.inner = n ? product(t->dim + d, t->rank - d) * e / n : 0;
			c.outer2 = product(rt->dim, d2);
			c.inner2 = n ? product(rt->dim + d2, rt->rank - d2) * e / n : 0;
			break;
		}
		case IR_collective_broadcast:
			c.kind = COLL_broadcast;
			c.group = group_new(w, (ir_group)ir_attr(fn, o, 0));
			break;
		case IR_collective_permute: {
			c.kind = COLL_permute;
			int n;
			const int64_t *p = ir_attrs(fn, o, 0, &n);
			c.pairs = table_new(w);
			table_new(w);
			for (int x = 0; x < w->p->ndev; x++)
				w->table.p[c.pairs].v[x] = w->table.p[c.pairs + 1].v[x] = -1;
			for (int x = 0; x + 1 < n; x += 2) {
				if (p[x] < 0 || p[x] >= w->p->ndev || p[x + 1] < 0 || p[x + 1] >= w->p->ndev)
					return ERR(INVALID, "collective_permute names device %lld of %d", (long long)MAX(p[x], p[x + 1]), w->p->ndev);
				w->table.p[c.pairs].v[p[x + 1]] = p[x];
				w->table.p[c.pairs + 1].v[p[x]] = p[x + 1];
			}
			break;
		}
		default:
			return ERR(INTERNAL, "'%s' is no collective", ir_info(o->kind)->name);
		}
		if (c.redop == RED_fn)
			TRY(eval_expr(&w->p->arena, w->m, region, &c.expr));
		struct place *in = dense(w, f, ir_in(fn, o, k));
		struct place *out = f->at[o->out + k] = result_at(w, f, i, o->out + k);
		if (pass_place_bytes(out) == 0 && pass_place_bytes(in) == 0)
			continue;
		w->buf.p[w->store.p[in->store].buf].bits |= BUF_PEER;
		w->buf.p[w->store.p[out->store].buf].bits |= BUF_PEER;
		arr_push(&w->coll, c);
		struct prog_cmd *q = cmd(w, CMD_COLL);
		q->id = (uint32_t)w->coll.n - 1;
		opnds(w, q, 2, (struct place *[]){ in, out });
	}
	return NULL;
}

static struct err *lower_custom(struct lw *w, struct frame *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	const char *target = ir_text(w->m, (ir_str)ir_attr(f->fn, o, 0));
	if (w->opts->custom_known && !w->opts->custom_known(target))
		return ERR(UNIMPLEMENTED, "custom call '%s' has no handler here", target);
	struct prog_custom c = { .target = arena_str(&w->p->arena, target, strlen(target)), .api = (int)ir_attr(f->fn, o, 1),
	                         .effect = ir_attr(f->fn, o, 2) != 0, .nin = (uint16_t)o->nin, .nout = (uint16_t)o->nout };
	const void *d = ir_blob_data(w->m, (ir_blob)ir_attr(f->fn, o, 3), &c.ndict);
	c.dict = arena_copy(&w->p->arena, d, c.ndict);
	int n = (int)(o->nin + o->nout);
	c.v = ARENA_NEW(&w->p->arena, struct prog_view, n);
	struct place **pl = ARENA_NEW(w->tmp, struct place *, n);
	for (uint32_t k = 0; k < o->nin; k++)
		view_from(w, &c.v[k], pl[k] = dense(w, f, ir_in(f->fn, o, k)));
	for (uint32_t k = 0; k < o->nout; k++)
		view_from(w, &c.v[o->nin + k], pl[o->nin + k] = f->at[o->out + k] = result_at(w, f, i, o->out + k));
	arr_push(&w->custom, c);
	struct prog_cmd *q = cmd(w, CMD_CUSTOM);
	q->id = (uint32_t)w->custom.n - 1;
	opnds(w, q, n, pl);
	return NULL;
}

/* --- control flow ------------------------------------------------------------ */

static uint32_t sub_push(struct lw *w, uint32_t n, const uint32_t *id)
{
	uint32_t first = (uint32_t)w->sub.n;
	for (uint32_t k = 0; k < n; k++)
		arr_push(&w->sub, id[k]);
	return first;
}

static uint16_t load(struct lw *w, struct place *p)
{
	uint16_t r = reg_new(w);
	struct prog_cmd *c = cmd(w, CMD_LD);
	c->reg[0] = r;
	c->dtype = (uint8_t)p->dtype;
	opnds(w, c, 1, &p);
	return r;
}

/* Where the carry of operand v lives during the loop: the operand's own storage if it dies here, else the
 * result's wanted place, else a new one; the latter two start with a copy. */
static struct place *carry_place(struct lw *w, struct frame *f, int i, ir_val v, ir_val result, struct move *mv, int *nmv)
{
	const struct ir_type_info *t = ir_vtype(w->m, f->fn, v);
	struct place *p = t->bytes && !f->at[v]->reg[0] && !f->at[v]->reg[1] ? steal(w, f, i, v) : NULL;
	if (p && f->target[result] && f->target[result]->store != p->store && w->buf.p[w->store.p[p->store].buf].kind == BUF_TEMP &&
	    free_at(w, f, i, f->target[result]))
		p = NULL;                        /* one copy in is as good as one out, and saves storage */
	if (!p) {
		p = f->target[result] && free_at(w, f, i, f->target[result]) ? f->target[result] : temp(w, t->dtype, t->rank, t->dim);
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
	if (o->kind == IR_dynamic_update_slice || o->kind == IR_scatter || o->kind == IR_loop || uses(b, o, par) != 1)
		return uses(b, o, par) != 1;
	for (uint32_t k = 0; k < o->nin; k++)
		if (ir_in(g, o, k) == par)       /* over itself, index by index */
			return !(ir_is_elem(o->kind) || (o->kind == IR_fused && same_index(w, ir_fn_of(w->m, (ir_fnid)ir_attr(g, o, 0)), k)));
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

static struct err *lower_loop(struct lw *w, struct frame *f, int i)
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
	frame_init(w, &b, body);
	enum { WORTH = 256 };
	for (int pass = 0; pass < 2; pass++) {   /* results are numbered: carries, then outs */
		for (int k = 0; k < n; k++) {
			ir_val v = ir_in(fn, o, (uint32_t)k);
			ir_val par = pass == 0 && role[k] <= ROLE_IN_REV ? bpar++ : 0;
			if (role[k] == ROLE_CARRY && pass == 0 && (trip < 0 || trip > 2) && ir_vtype(w->m, fn, v)->bytes >= WORTH &&
			    reads_late(w, &b, par, body->result.p[res])) {
				if (!half) {
					half = reg_new(w);
					cmd(w, CMD_SET)->reg[0] = half;
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
					home[k] = temp(w, home[k]->dtype, home[k]->rank, home[k]->dim);
					mv[nmv++] = (struct move){ f->at[v], home[k] };
				}
			}
		}
	}
	move_all(w, mv, nmv);
	for (int k = 0; k < n; k++)
		pass_store_touch(w, home[k]->store);

	loop_begin(w);
	cmd_list list;
	void *saved;
	uint32_t blk[2], cond_blk = 0;
	uint16_t flag = 0;
	if (cond) {
		cond_blk = block_begin(w, &list, &saved);
		frame_init(w, &c, cond);
		for (int k = 0; k < n; k++)
			c.at[k + 1] = home[k];
		TRY(lower_ops(w, &c));
		flag = load(w, dense(w, &c, cond->result.p[0]));
		block_end(w, cond_blk, &list, saved);
	}
	uint16_t it = reg_new(w), rev = 0;
	uint32_t body_blk = block_begin(w, &list, &saved);
	bool counted = f->fn && b.last[1] >= 0;
	struct place *ip = NULL;
	if (cond && counted) {
		struct prog_cmd *q = cmd(w, CMD_ADD);    /* a while counts its turns only if the body asks */
		q->reg[0] = q->reg[1] = it;
		q->imm = 1;
	}
	if (counted) {
		ip = temp(w, DT_i32, 0, NULL);
		struct prog_cmd *q = cmd(w, CMD_ST);
		q->dtype = DT_i32;
		q->reg[1] = it;
		opnds(w, q, 1, &ip);
	} else {
		ip = temp(w, DT_i32, 0, NULL);
	}
	b.at[1] = ip;
	for (int k = 0; k < n; k++)
		if ((role[k] == ROLE_IN_REV || role[k] == ROLE_OUT_REV) && !rev) {
			rev = reg_new(w);
			struct prog_cmd *q = cmd(w, CMD_MUL);
			q->reg[0] = rev;
			q->reg[1] = it;
			q->imm = -1;
			q = cmd(w, CMD_ADD);
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
	targets_back(&b);
	TRY(lower_ops(w, &b));
	struct move *out = ARENA_NEW(w->tmp, struct move, nres);
	for (uint32_t k = 0; k < nres; k++)
		out[k] = (struct move){ b.at[body->result.p[k]], want[k] };
	move_all(w, out, (int)nres);
	for (int k = 0; k < n; k++)
		pass_store_touch(w, home[k]->store);
	if (half) {                              /* half = 1 - half */
		struct prog_cmd *turn = cmd(w, CMD_MUL);
		turn->reg[0] = turn->reg[1] = half;
		turn->imm = -1;
		turn = cmd(w, CMD_ADD);
		turn->reg[0] = turn->reg[1] = half;
		turn->imm = 1;
	}
	block_end(w, body_blk, &list, saved);
	loop_end(w);
	if (cond && counted) {
		struct prog_cmd *q = cmd(w, CMD_SET);
		q->reg[0] = it;
		q->imm = -1;
	}
	struct prog_cmd *q = cmd(w, cond ? CMD_WHILE : CMD_LOOP);
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

static struct err *lower_case(struct lw *w, struct frame *f, int i)
{
	const struct ir_fn *fn = f->fn;
	const struct ir_op *o = &fn->op.p[i];
	int n;
	const int64_t *branch = ir_attrs(fn, o, 0, &n);
	uint16_t index = load(w, dense(w, f, ir_in(fn, o, 0)));
	struct place **home = ARENA_NEW(w->tmp, struct place *, o->nout);
	for (uint32_t k = 0; k < o->nout; k++) {
		const struct ir_type_info *t = ir_vtype(w->m, fn, o->out + k);
		home[k] = f->target[o->out + k] && free_at(w, f, i, f->target[o->out + k]) ? f->target[o->out + k]
		        : temp(w, t->dtype, t->rank, t->dim);
		pass_store_touch(w, home[k]->store);
	}
	uint32_t *blk = ARENA_NEW(w->tmp, uint32_t, n);
	for (int j = 0; j < n; j++) {
		const struct ir_fn *g = ir_fn_of(w->m, (ir_fnid)branch[j]);
		struct frame b;
		frame_init(w, &b, g);
		cmd_list list;
		void *saved;
		blk[j] = block_begin(w, &list, &saved);
		for (uint32_t k = 1; k < o->nin; k++)
			b.at[k] = f->at[ir_in(fn, o, k)];
		for (uint32_t k = 0; k < o->nout; k++) {
			ir_val v = g->result.p[k];
			if (!b.target[v] && ir_def(g, v) && b.root[v] == v)
				b.target[v] = home[k];
		}
		targets_back(&b);
		TRY(lower_ops(w, &b));
		struct move *mv = ARENA_NEW(w->tmp, struct move, o->nout);
		for (uint32_t k = 0; k < o->nout; k++)
			mv[k] = (struct move){ b.at[g->result.p[k]], home[k] };
		move_all(w, mv, (int)o->nout);
		block_end(w, blk[j], &list, saved);
	}
	struct prog_cmd *q = cmd(w, CMD_CASE);
	q->reg[0] = index;
	q->nblock = (uint32_t)n;
	q->block = sub_push(w, (uint32_t)n, blk);
	for (uint32_t k = 0; k < o->nout; k++) {
		pass_store_touch(w, home[k]->store);
		f->at[o->out + k] = home[k];
	}
	return NULL;
}

/* --- functions ---------------------------------------------------------------- */

static struct err *lower_op(struct lw *w, struct frame *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	const struct ir_fn *fn = f->fn;
	if (is_alias(o)) {
		for (uint32_t k = 0; k < o->nout; k++) {
			ir_val x = ir_in(fn, o, k);
			if (o->kind == IR_optimization_barrier || o->kind == IR_sharding_constraint) {
				f->at[o->out + k] = f->at[x];
			} else if (!(f->at[o->out] = pass_place_view(w, fn, o, f->at[x]))) {
				f->at[o->out] = pass_place_view(w, fn, o, dense(w, f, x));
				f->root[o->out] = f->root[x];
			}
		}
		return NULL;
	}
	switch (o->kind) {
	case IR_constant:
		return lower_constant(w, f, o);
	case IR_fused:
		return lower_fused(w, f, i);
	case IR_loop:
		return lower_loop(w, f, i);
	case IR_case:
		return lower_case(w, f, i);
	case IR_custom_call:
		return lower_custom(w, f, i);
	case IR_create_token:
	case IR_after_all:
	case IR_replica_id:
	case IR_partition_id: {
		const struct ir_type_info *t = ir_vtype(w->m, fn, o->out);
		struct place *p = f->at[o->out] = result_at(w, f, i, o->out);
		if (!t->bytes)
			return NULL;
		uint16_t r = 0;
		if (o->kind == IR_partition_id) {
			uint32_t tab = table_new(w);
			for (int d = 0; d < w->p->ndev; d++)
				w->table.p[tab].v[d] = d;
			r = reg_new(w);
			struct prog_cmd *c = cmd(w, CMD_TABLE);
			c->reg[0] = r;
			c->imm = tab;
		}
		struct prog_cmd *c = cmd(w, CMD_ST);
		c->reg[1] = r;
		c->dtype = t->dtype;
		opnds(w, c, 1, &p);
		return NULL;
	}
	case IR_infeed: case IR_outfeed: case IR_send: case IR_recv:
		return ERR(UNIMPLEMENTED, "'%s' cannot be run", ir_info(o->kind)->name);
	default:
		if (ir_info(o->kind)->flags & IR_COLL)
			return lower_coll(w, f, i);
		return lower_steps(w, f, i);
	}
}

static struct err *lower_ops(struct lw *w, struct frame *f)
{
	for (size_t i = 0; i < f->fn->op.n; i++) {
		f->stepping = (int)i;
		site_of(w, &f->fn->op.p[i]);
		struct err *e = lower_op(w, f, (int)i);
		const struct ir_op *op = &f->fn->op.p[i];
		for (uint32_t k = 0; !e && k < op->nout; k++)
			if (f->at[op->out + k] && f->root[op->out + k] == op->out + k) {
				struct store *s = &w->store.p[f->at[op->out + k]->store];
				s->holder = f;
				s->held = op->out + k;
			}
		if (e) {
			const struct ir_loc_info *l = &w->m->loc.p[f->fn->op.p[i].loc];
			if (l->file && !strstr(e->msg, ir_text(w->m, l->file)))
				e = err_wrap(e, "%s:%d", ir_text(w->m, l->file), l->line);
			return e;
		}
	}
	return NULL;
}

static void describe(struct lw *w, struct prog_arg *a, const struct ir_type_info *t, const struct ir_arg *i)
{
	struct arena *pa = &w->p->arena;
	a->dtype = t->dtype;
	a->rank = t->rank;
	a->bytes = t->bytes;
	a->dim = arena_copy(pa, t->dim, sizeof *t->dim * t->rank);
	a->global_dim = arena_copy(pa, t->dim, sizeof *t->dim * t->rank);
	for (int d = 0; d < t->rank; d++)
		a->global_dim[d] *= ir_shard_parts(w->m, i->shard, d);
	a->alias = -1;
	struct str s = {0};
	spmd_op_sharding(&s, w->m, i->shard, t->rank, w->p->ndev);
	a->sharding = arena_copy(pa, s.p, s.n);
	a->nsharding = s.n;
	str_free(&s);
	if (i->memory_kind) {
		const char *k = ir_text(w->m, i->memory_kind);
		a->memory_kind = arena_str(pa, k, strlen(k));
	}
}

/* Which output takes each donated parameter's memory: the one it names, else the first free one of the
 * same type. */
static void choose_donations(struct lw *w, const struct ir_fn *fn)
{
	struct prog *p = w->p;
	bool *taken = ARENA_NEW(w->tmp, bool, p->nres);
	for (int round = 0; round < 2; round++)
		for (uint32_t a = 0; a < p->narg; a++) {
			const struct ir_arg *i = &w->m->arg[a];
			if (round == 0 && i->alias >= 0 && (uint32_t)i->alias < p->nres && !taken[i->alias] &&
			    p->arg[a].bytes == p->res[i->alias].bytes) {
				p->arg[a].alias = i->alias;
				taken[i->alias] = true;
			}
			if (round == 1 && i->donor && p->arg[a].alias < 0) {
				p->arg[a].alias = -2;
				for (uint32_t r = 0; r < p->nres; r++)
					if (!taken[r] && fn->val.p[fn->result.p[r]].type == fn->val.p[a + 1].type) {
						p->arg[a].alias = (int32_t)r;
						taken[r] = true;
						break;
					}
			}
		}
}

struct err *pass_lower(const struct pass_opts *opts, struct ir_module *m, struct prog **out)
{
	struct arena tmp;
	arena_init(&tmp);
	struct lw w = { .opts = opts, .tmp = &tmp, .m = m, .nreg = 1 };
	struct prog *p = w.p = prog_new();
	const struct ir_fn *fn = ir_main(m);
	const char *name = ir_text(m, m->name);
	struct err *e = NULL;
	p->name = arena_str(&p->arena, name, strlen(name));
	p->ndev = MAX(1, opts->ndev);
	p->fingerprint = opts->fingerprint;
	p->narg = fn->nparam;
	p->nres = (uint32_t)fn->result.n;
	p->arg = ARENA_NEW(&p->arena, struct prog_arg, p->narg);
	p->res = ARENA_NEW(&p->arena, struct prog_arg, p->nres);
	for (uint32_t a = 0; a < p->narg; a++)
		describe(&w, &p->arg[a], ir_vtype(m, fn, a + 1), &m->arg[a]);
	for (uint32_t r = 0; r < p->nres; r++)
		describe(&w, &p->res[r], ir_vtype(m, fn, fn->result.p[r]), &m->res[r]);
	choose_donations(&w, fn);

	struct frame f;
	frame_init(&w, &f, fn);
	for (uint32_t a = 0; a < p->narg; a++) {
		const struct ir_type_info *t = ir_vtype(m, fn, a + 1);
		f.at[a + 1] = pass_place_new(&w, pass_store_new(&w, BUF_ARG, t->bytes, a), t->dtype, t->rank, t->dim);
	}
	struct place **res = ARENA_NEW(&tmp, struct place *, p->nres);
	for (uint32_t r = 0; r < p->nres; r++) {
		const struct ir_type_info *t = ir_vtype(m, fn, fn->result.p[r]);
		res[r] = pass_place_new(&w, pass_store_new(&w, BUF_OUT, t->bytes, r), t->dtype, t->rank, t->dim);
	}
	for (uint32_t a = 0; a < p->narg; a++)
		if (p->arg[a].alias >= 0) {
			int s = res[p->arg[a].alias]->store;
			w.store.p[f.at[a + 1]->store].donated_to = s;
			w.buf.p[w.store.p[s].buf].alias = (int32_t)w.store.p[f.at[a + 1]->store].buf;
			f.steal[a + 1] = true;
		}
	for (uint32_t r = 0; r < p->nres; r++) {
		ir_val v = fn->result.p[r];
		if (!f.target[v] && ir_def(fn, v) && f.root[v] == v)
			f.target[v] = res[r];
	}
	targets_back(&f);
	cmd_list list;
	void *saved;
	uint32_t main_blk = block_begin(&w, &list, &saved);
	w.now = 1;
	e = lower_ops(&w, &f);
	if (!e) {
		struct move *mv = ARENA_NEW(&tmp, struct move, p->nres);
		for (uint32_t r = 0; r < p->nres; r++)
			mv[r] = (struct move){ f.at[fn->result.p[r]], res[r] };
		move_all(&w, mv, (int)p->nres);
		block_end(&w, main_blk, &list, saved);
		pass_memory_plan(&w);
#define TAKE(field, n_field) do { p->n_field = (uint32_t)w.field.n; \
		p->field = arena_copy(&p->arena, w.field.p, w.field.n * sizeof *w.field.p); } while (0)
		TAKE(buf, nbuf);
		TAKE(kern, nkern);
		TAKE(opnd, nopnd);
		TAKE(sub, nsub);
		TAKE(block, nblock);
		TAKE(coll, ncoll);
		TAKE(custom, ncustom);
		TAKE(site, nsite);
		TAKE(table, ntable);
		TAKE(code, ncode);
		TAKE(group, ngroup);
#undef TAKE
		p->nreg = (uint32_t)w.nreg;
		p->ndata = (int64_t)w.data.n;
		char *d = arena_alloc(&p->arena, w.data.n + 64);
		d += -(uintptr_t)d & 63;
		if (w.data.n)
			memcpy(d, w.data.p, w.data.n);
		p->data = d;
		for (uint32_t k = 0; k < p->nkern; k++)
			p->flops += p->kern[k].flops;
		p->comm_hash = prog_comm_hash(p);
		if (w.nreg > 65000)
			e = ERR(UNIMPLEMENTED, "the program needs %d registers, of 65000", w.nreg);
	}
	arr_free(&w.buf); arr_free(&w.kern); arr_free(&w.opnd); arr_free(&w.sub); arr_free(&w.block);
	arr_free(&w.coll); arr_free(&w.custom); arr_free(&w.site); arr_free(&w.table); arr_free(&w.code);
	arr_free(&w.group); arr_free(&w.store); arr_free(&w.data);
	for (size_t i = 0; i < w.loops.n; i++)
		arr_free(&w.loops.p[i].extend);
	arr_free(&w.loops);
	map_free(&w.site_map); map_free(&w.code_map); map_free(&w.const_map);
	arena_fini(&tmp);
	if (e) {
		prog_free(p);
		return e;
	}
	*out = p;
	return NULL;
}
