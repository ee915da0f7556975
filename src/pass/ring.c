/* Gradients of an attention whose queries are gathered go round the ring of those who have them.
 *
 * The partitioner gathers queries, cotangents and what belongs to them, and adds up parts of dq as long as all queries.  Here each turn of a loop
 * is one device's queries: they go on to the neighbour, and with them goes the sum of their dq, to which each device adds what its keys
 * give; after as many turns as there are devices it is where the queries are at home.  So a device has two blocks of queries and of dq, and what
 * is added to a block is added in the order in which it comes round.  (Liu, Zaharia, Abbeel, Ring Attention with Blockwise Transformers, 2023,
 * with queries in place of keys: dq alone travels as a sum, not dk and dv.)  Queries are only handed on, so nothing moves where devices map
 * each other's memory (lower/loan.c). */
#include "passes.h"

/* Queries of a device, and devices: of fewer the blocks that go round, the sums of two turns, are no less than all of dq.  Views between a gather and its
 * reader; operands. */
enum { LEAST = 256, DEVICES = 4, MOST_VIEWS = 8, MOST_IN = 64 };
enum { Q, K, V, L, D_O, DELTA, EXTRA };                  /* operands of attention_grad */

/* How an operand is on each device: the same in all turns, gathered from blocks, or of all queries anyhow. */
enum way { FIXED, ROUND, WHOLE };
struct chain { const struct ir_op *end; int n; const struct ir_op *view[MOST_VIEWS]; };     /* from the collective on, or up to it, in order */
struct ring {
	int op[(MOST_IN + 1) * (MOST_VIEWS + 1) + 1], nop;
	ir_group group;
	int64_t members, len;
	const struct ir_op *grad;
	enum way way[MOST_IN];
	struct chain from[MOST_IN], to;      /* to: dq's */
	ir_val in[MOST_IN], out[3];
};

static int rank_of(const struct ir_module *m, const struct ir_fn *fn, ir_val v) { return ir_vtype(m, fn, v)->rank; }

/* The all_gather along dimension d that v shows; false: there is none. */
static bool gathered(const struct ir_module *m, const struct ir_fn *fn, ir_val v, int d, struct chain *c)
{
	const struct ir_op *view[MOST_VIEWS], *o;
	int n = 0;
	while ((o = ir_def(fn, v)) && o->kind != IR_all_gather && n < MOST_VIEWS && (o->kind == IR_reshape || o->kind == IR_transpose)) {
		view[n++] = o;
		v = ir_in(fn, o, 0);
	}
	if (!o || o->kind != IR_all_gather || o->nin != 1)
		return false;
	int at = (int)ir_attr(fn, o, AT_dim);
	c->end = o;
	c->n = n;
	for (int k = 0; k < n && at >= 0; k++) {
		c->view[k] = view[n - 1 - k];
		at = ir_view_dim(m, fn, c->view[k], at);
	}
	return at == d;
}

/* The reduce_scatter along dimension d that alone reads v. */
static bool scattered(const struct ir_module *m, const struct ir_fn *fn, ir_val v, int d, struct chain *c)
{
	for (c->n = 0; d >= 0 && c->n <= MOST_VIEWS && fn->val.p[v].nuse == 1 && ir_use_first(fn, v);) {
		const struct ir_op *o = &fn->op.p[ir_use_op(fn, ir_use_first(fn, v))];
		if (o->kind == IR_reduce_scatter) {
			c->end = o;
			return o->nin == 1 && (enum redop)ir_attr(fn, o, AT_redop) == RED_add && (int)ir_attr(fn, o, AT_dim) == d;
		}
		if ((o->kind != IR_reshape && o->kind != IR_transpose) || c->n == MOST_VIEWS)
			return false;
		d = ir_view_dim(m, fn, o, d);
		c->view[c->n++] = o;
		v = o->out;
	}
	return false;
}

/* Is every device of the program in a row of the group? */
static bool covers(const struct ir_module *m, ir_group g)
{
	const struct ir_group_info *i = &m->group.p[g];
	bool all = i->nrow * i->ncol == m->num_partitions && i->ncol > 1;
	for (int k = 0; all && k < m->num_partitions; k++)
		all = i->id[k] >= 0;
	return all;
}

static bool taken(const struct ring *r, int op)
{
	int k = 0;
	while (k < r->nop && r->op[k] != op)
		k++;
	return k < r->nop;
}

static void take(struct ring *r, int op)
{
	int k = r->nop++;
	for (; k && r->op[k - 1] > op; k--)
		r->op[k] = r->op[k - 1];
	r->op[k] = op;
}

/* o, if only what is taken reads it. */
static void take_unread(const struct ir_fn *fn, struct ring *r, const struct ir_op *o)
{
	uint32_t n = 0;
	if (taken(r, (int)(o - fn->op.p)))
		return;
	for (uint32_t u = ir_use_first(fn, o->out); u; u = ir_use_next(fn, u))
		n += taken(r, (int)ir_use_op(fn, u));
	if (n == fn->val.p[o->out].nuse)
		take(r, (int)(o - fn->op.p));
}

static bool find(const struct pass_opts *o, const struct ir_module *m, const struct ir_fn *fn, int at, struct ring *r)
{
	const struct ir_op *g = &fn->op.p[at];
	int rank = rank_of(m, fn, ir_in(fn, g, Q));
	int64_t all = ir_vtype(m, fn, ir_in(fn, g, Q))->dim[rank - 2];
	if (g->nin > MOST_IN || !gathered(m, fn, ir_in(fn, g, Q), rank - 2, &r->from[Q]) || !scattered(m, fn, g->out, rank - 2, &r->to))
		return false;
	r->grad = g;
	r->group = (ir_group)ir_attr(fn, r->from[Q].end, AT_group);
	const struct ir_group_info *i = &m->group.p[r->group];
	if (!covers(m, r->group) || i->ncol < DEVICES || ir_attr(fn, r->to.end, AT_group) != r->group || all / i->ncol < LEAST || plan_groups_of(&o->plan, i->nrow, i->ncol, i->id).hosts > 1)
		return false;
	r->members = i->ncol;
	r->len = all / i->ncol;
	for (uint32_t k = 0; k < g->nin; k++) {
		ir_val v = ir_in(fn, g, k);
		int d = k == Q || k == D_O || k >= EXTRA ? rank - 2 : k == L || k == DELTA ? rank - 2 : -1;
		r->way[k] = d < 0 || ir_vtype(m, fn, v)->dim[d] == 1 ? FIXED : gathered(m, fn, v, d, &r->from[k]) && (ir_group)ir_attr(fn, r->from[k].end, AT_group) == r->group ? ROUND : WHOLE;
		if (r->way[k] == WHOLE && k < EXTRA)
			return false;
		r->in[k] = r->way[k] == ROUND ? ir_in(fn, r->from[k].end, 0) : v;
	}
	take(r, at);
	for (int k = 0; k < r->to.n; k++)
		take(r, (int)(r->to.view[k] - fn->op.p));
	take(r, (int)(r->to.end - fn->op.p));
	for (uint32_t k = 0; k < g->nin; k++)
		if (r->way[k] == ROUND) {
			for (int j = r->from[k].n; j-- > 0;)
				take_unread(fn, r, r->from[k].view[j]);
			take_unread(fn, r, r->from[k].end);
		}
	r->out[0] = r->to.end->out;
	r->out[1] = g->out + 1;
	r->out[2] = g->out + 2;
	return true;
}

/* --- the loop ------------------------------------------------------------------------- */

struct rings { const struct pass_opts *o; const struct ir_fn *fn; struct ring *r; };

/* x through views of a whole array, of which it is one of n blocks along dimension d. */
static ir_val viewed(struct ir_b *b, const struct ir_fn *fn, const struct chain *c, ir_val x, int d, int64_t n)
{
	for (int k = 0; k < c->n; k++) {
		const struct ir_op *o = c->view[k];
		int some;
		int to = ir_view_dim(b->m, fn, o, d);
		if (o->kind == IR_transpose) {
			x = ir_transpose(b, x, ir_attrs(fn, o, AT_perm, &some));
		} else {
			const struct ir_type_info *t = ir_vtype(b->m, fn, o->out);
			int64_t dim[IR_MAX_RANK];
			memcpy(dim, t->dim, sizeof *dim * (size_t)t->rank);
			dim[to] /= n;
			x = ir_reshape(b, x, t->rank, dim);
		}
		d = to;
	}
	return x;
}

/* The number in the ring of whose queries come in this turn. */
static ir_val whose(struct ir_b *b, const struct ring *r, ir_val own, ir_val turn)
{
	ir_type t = ir_scalar(b->m, DT_i32);
	ir_val n = ir_const_i(b, t, r->members), at = ir_bin(b, ELEM_add, own, turn), over = ir_bin(b, ELEM_compare_ge, at, n);
	return ir_select(b, over, ir_bin(b, ELEM_subtract, at, n), at);
}

static ir_val block_of(struct ir_b *b, const struct ring *r, ir_val x, int d, ir_val which)
{
	const struct ir_type_info *t = ir_vtype(b->m, b->fn, x);
	int rank = t->rank;
	int64_t attr[1 + IR_MAX_RANK] = { rank };
	memcpy(attr + 1, t->dim, sizeof *attr * (size_t)rank);
	attr[1 + d] = r->len;
	ir_type to = ir_tensor(b->m, t->dtype, rank, attr + 1), i = ir_scalar(b->m, DT_i32);
	ir_val in[1 + IR_MAX_RANK] = { x };
	for (int k = 0; k < rank; k++)
		in[1 + k] = k == d ? ir_bin(b, ELEM_multiply, which, ir_const_i(b, i, r->len)) : ir_const_i(b, i, 0);
	return ir_emit(b, IR_dynamic_slice, (uint32_t)rank + 1, in, to, attr, (uint32_t)rank + 1);
}

/* x goes to the one before. */
static ir_val hand_on(struct ir_b *b, const struct ring *r, ir_val x)
{
	const struct ir_group_info *g = &b->m->group.p[r->group];
	int n = g->nrow * g->ncol;
	ir_type t = b->fn->val.p[x].type;
	int64_t *attr = mem_alloc(sizeof *attr * (size_t)(2 * n + 1));
	attr[0] = 2 * n;
	for (int k = 0; k < n; k++) {
		attr[1 + 2 * k] = g->id[k];
		attr[2 + 2 * k] = g->id[k / g->ncol * g->ncol + (k + g->ncol - 1) % g->ncol];
	}
	ir_val v = ir_emit_raw(b, IR_collective_permute, 1, &x, 1, &t, attr, (uint32_t)(2 * n + 1));
	mem_free(attr);
	return v;
}

/* This device's number in the ring. */
static ir_val own_number(struct ir_b *b, const struct ring *r)
{
	const struct ir_group_info *g = &b->m->group.p[r->group];
	int n = b->m->num_partitions;
	int32_t *table = mem_alloc(sizeof *table * (size_t)n);
	int64_t dim = n, one = 1, size[2] = { 1, 1 };
	for (int k = 0; k < n; k++)
		table[g->id[k]] = k % g->ncol;
	ir_val all = ir_const(b, ir_tensor(b->m, DT_i32, 1, &dim), table, sizeof *table * (size_t)n);
	mem_free(table);
	ir_val id = ir_convert(b, ir_emit(b, IR_partition_id, 0, NULL, ir_scalar(b->m, DT_u32), NULL, 0), DT_i32);
	ir_val v = ir_emit(b, IR_dynamic_slice, 2, (ir_val[]){ all, id }, ir_tensor(b->m, DT_i32, 1, &one), size, 2);
	return ir_reshape(b, v, 0, NULL);
}

/* The result, as what it was: dq's block, then dk and dv, which are side by side in no op: a barrier makes them so. */
static ir_val emit(void *user, struct ir_b *b, int k, const ir_val *in)
{
	const struct rings *s = user;
	const struct ring *r = &s->r[k];
	const struct ir_fn *fn = s->fn;
	const struct ir_op *g = r->grad;
	int rank = rank_of(b->m, fn, ir_in(fn, g, Q)), at[MOST_IN], sum[3], made[MOST_IN + 4], own;
	struct ir_loop_new l = { 0 };
	b->loc = g->loc;
	bool wide = false, whole = false;
	for (int i = 0; i < 3; i++)
		wide |= ir_vtype(b->m, fn, ir_in(fn, g, (uint32_t)i))->dtype == DT_f64;
	ir_type st[3], part[3];
	for (int i = 0; i < 3; i++) {
		const struct ir_type_info *t = ir_vtype(b->m, fn, g->out + (uint32_t)i);
		int64_t dim[IR_MAX_RANK];
		int n = t->rank;
		memcpy(dim, t->dim, sizeof *dim * (size_t)n);
		if (!i)
			dim[n - 2] = r->len;
		st[i] = part[i] = ir_tensor(b->m, wide ? DT_f64 : DT_f32, n, dim);
	}
	for (uint32_t i = 0; i < g->nin; i++) {
		ir_val x = r->way[i] == ROUND ? viewed(b, fn, &r->from[i], in[i], (int)ir_attr(fn, r->from[i].end, AT_dim), r->members) : in[i];
		at[i] = ir_loop_add(&l, x, r->way[i] == ROUND ? ROLE_CARRY : ROLE_CONST);
		whole |= r->way[i] == WHOLE;
	}
	for (int i = 0; i < 3; i++)
		sum[i] = ir_loop_add(&l, ir_const_f(b, st[i], 0), ROLE_CARRY);
	own = whole ? ir_loop_add(&l, own_number(b, r), ROLE_CONST) : -1;
	ir_loop_open(&l, b, r->members, "round", NULL);
	struct ir_b body = { b->m, l.body, b->loc };
	ir_val x[MOST_IN + 2], which = whole ? whose(&body, r, l.x.p[own].param, IR_LOOP_TURN) : 0;
	for (int i = 1; i < 3; i++)
		x[g->nin + (uint32_t)i - 1] = l.x.p[sum[i]].param;
	for (uint32_t i = 0; i < g->nin; i++) {
		x[i] = l.x.p[at[i]].param;
		if (r->way[i] == WHOLE)
			x[i] = block_of(&body, r, x[i], rank - 2, which);
	}
	int64_t f = ir_attr(fn, g, AT_fn);
	ir_val d = ir_emit_raw(&body, IR_attention_grad_add, g->nin + 2, x, 3, part, &f, 1);
	ir_loop_give(&l, sum[0], hand_on(&body, r, ir_bin(&body, ELEM_add, l.x.p[sum[0]].param, d)));
	for (int i = 1; i < 3; i++)
		ir_loop_give(&l, sum[i], d + (uint32_t)i);
	for (uint32_t i = 0; i < g->nin; i++)
		if (r->way[i] == ROUND)
			ir_loop_give(&l, at[i], hand_on(&body, r, l.x.p[at[i]].param));
	ir_val first = ir_loop_close(&l, made), out[3];
	ir_type t[3];
	for (int i = 0; i < 3; i++) {
		out[i] = first + (uint32_t)made[sum[i]];
		if (!i)
			out[i] = viewed(b, fn, &r->to, out[i], rank - 2, r->members);
		out[i] = ir_convert(b, out[i], ir_vtype(b->m, fn, r->out[i])->dtype);
		t[i] = b->fn->val.p[out[i]].type;
	}
	return ir_emit_raw(b, IR_optimization_barrier, 3, out, 3, t, NULL, 0);
}

struct err *pass_ring(const struct pass_opts *o, struct ir_module *m)
{
	struct arena a;
	int n;
	if (!pass_has(m, IR_attention_grad) || !pass_has(m, IR_all_gather))
		return NULL;
	arena_init(&a);
	const ir_fnid *f = ir_reachable(&a, m, &n);
	for (int k = 0; k < n; k++) {
		const struct ir_fn *fn = ir_fn_of(m, f[k]);
		struct ring *r = ARENA_NEW(&a, struct ring, fn->op.n + 1);
		struct region *g = ARENA_NEW(&a, struct region, fn->op.n + 1);
		int found = 0;
		for (size_t i = 0; i < fn->op.n; i++)
			if (fn->op.p[i].kind == IR_attention_grad && find(o, m, fn, (int)i, &r[found])) {
				g[found] = (struct region){ .op = r[found].op, .nop = r[found].nop, .in = r[found].in, .nin = fn->op.p[i].nin, .out = r[found].out, .nout = 3 };
				found++;
			}
		if (found)
			pass_replace(m, f[k], ir_rebuild(m, pass_replace_regions(m, &a, fn, g, found, &(struct region_change){ .region = emit, .user = &(struct rings){ o, fn, r }, .in_order = true })));
	}
	arena_fini(&a);
	return NULL;
}
