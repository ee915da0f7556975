/* Attention whose keys, or queries of a gradient, are gathered from several hosts goes round these hosts.
 *
 * Each turn has what one host's devices have.  Each of them sends its block on to its like on the next host, and calculates with its own host's meanwhile,
 * which it reads where that lies (lower/gather.c): a host receives each block of the others once, and no device holds more than two.  Of
 * keys the turns give parts (o, l) of a softmax, which are put together one by one; of a gradient the sums of what was gathered (dq, or
 * dk and dv) travel with it, and begin beside home, so that the last turn, at home, ends them.  (Liu, Zaharia, Abbeel, Ring Attention with
 * Blockwise Transformers, 2023; two levels: Li et al., DistFlashAttn, 2024, section 3.)  There are few hosts, so the turns are written one by one,
 * and the schedule sees what can be under way beside what. */
#include "ring.h"

enum { LEAST = 64, HOSTS = 64 };     /* rows of a turn; hosts at most */

/* Devices of the group on each host, if all rows have as many of each, side by side; 0: they have not, or there is one host. */
static int per_host(const struct pass_opts *o, const struct ir_module *m, const struct ring *r)
{
	const struct ir_group_info *g = &m->group.p[r->group];
	const int *host = o->plan.host;
	int d = 1;
	if (!host || plan_groups_of(&o->plan, g->nrow, g->ncol, g->id).hosts < 2)
		return 0;
	while (d < g->ncol && host[g->id[d]] == host[g->id[0]])
		d++;
	for (int k = 0; k < g->nrow * g->ncol; k++) {      /* it is that of the one before, but for the first of d */
		int at = k % g->ncol;
		if (at && (at % d != 0) != (host[g->id[k]] == host[g->id[k - 1]]))
			return 0;
	}
	return g->ncol % d ? 0 : d;
}

/* How many read what is gathered for an operand, which pay for it together. */
static double readers(const struct ir_fn *fn, const struct ring_chain *c)
{
	double n = fn->val.p[c->end->out].nuse;
	for (int k = 0; k < c->n; k++)
		n *= fn->val.p[c->view[k]->out].nuse;
	return n;
}

/* Bytes of a device's blocks of what travels: operands, and of sums. */
static void travels(const struct ir_module *m, const struct ir_fn *fn, const struct ring *r, double *in, double *out)
{
	*in = *out = 0;
	for (uint32_t k = 0; k < r->att->nin; k++)
		if (r->way[k] == RING_ROUND)
			*in += (double)ir_vtype(m, fn, r->in[k])->bytes;
	for (int k = 0; k < r->nres; k++)
		if (r->to[k].end)
			*out += 4 * (double)ir_vtype(m, fn, r->to[k].end->out)->count;
}

bool ring_hosts(const struct pass_opts *o, const struct ir_module *m, const struct ir_fn *fn, const struct ring *r)
{
	int d = per_host(o, m, r), h = d ? (int)r->members / d : 0;
	if (h < 2 || h > HOSTS || r->len * d < LEAST || r->att->kind == IR_attention_grad_add)
		return false;
	const struct ir_group_info *i = &m->group.p[r->group];
	struct plan_group far = plan_groups_of(&o->plan, i->nrow, i->ncol, i->id);
	double gathered = 0, work = lower_op_time(o->plan.table, m, fn, r->att) / h, in, out, exposed = 0;
	for (uint32_t k = 0; k < r->att->nin; k++)
		if (r->way[k] == RING_ROUND)
			gathered += lower_coll_time(&o->plan, m, fn, r->from[k].end) / readers(fn, &r->from[k]);
	for (int k = 0; k < r->nres; k++)
		if (r->to[k].end)
			gathered += lower_coll_time(&o->plan, m, fn, r->to[k].end);
	travels(m, fn, r, &in, &out);
	in = plan_move_time(&o->plan, COLL_permute, far, in);
	out = out > 0 ? plan_move_time(&o->plan, COLL_permute, far, out) : 0;
	if (r->att->kind == IR_attention) {      /* what is received beside the turn before, and putting together */
		double o_bytes = 4 * (double)ir_vtype(m, fn, r->att->out)->count;
		exposed = (h - 1) * (MAX(0, in - work) + plan_part_time(o->plan.table, DT_f32, 0, 3 * o_bytes));
	} else {                                 /* the first comes before there is work */
		exposed = in + (h - 1) * MAX(0, in + out - work);
	}
	return exposed <= gathered;
}

/* --- the turns -------------------------------------------------------------------------- */

struct turns {
	struct ir_b *b;
	const struct ir_fn *fn;
	const struct ring *r;
	const ir_val *own;           /* operands, as they are on this device */
	int d, h;
	ir_group host;               /* the rows of the group, a host each */
	ir_val number;               /* of this host, if something is cut by it */
};

/* What all of this host has of x, side by side along dimension dim; or of a sum, its block. */
static ir_val in_host(const struct turns *t, enum ir_kind kind, ir_val x, int dim, ir_loc loc)
{
	const struct ir_type_info *i = ir_vtype(t->b->m, t->b->fn, x);
	int64_t to[IR_MAX_RANK], attr[4] = { dim, t->host, RED_add, 0 };
	int rank = i->rank;
	enum dtype dt = i->dtype;
	if (t->d == 1)
		return x;
	memcpy(to, i->dim, sizeof *to * (size_t)rank);
	to[dim] = kind == IR_all_gather ? to[dim] * t->d : to[dim] / t->d;
	ir_type type = ir_tensor(t->b->m, dt, rank, to);
	return ir_emit_raw(&(struct ir_b){ t->b->m, t->b->fn, loc }, kind, 1, &x, 1, &type, attr, kind == IR_all_gather ? 2 : 4);
}

/* Operands of the turn with what is `turn` hosts away; x: the blocks that came for it. */
static void operands(const struct turns *t, const ir_val *x, int turn, ir_val *in)
{
	const struct ring *r = t->r;
	ir_val which = t->number ? ring_whose(t->b, t->number, ir_const_i(t->b, ir_scalar(t->b->m, DT_i32), turn), t->h) : 0;
	for (uint32_t k = 0; k < r->att->nin; k++)
		if (r->way[k] == RING_ROUND)
			in[k] = ring_read(t->b, t->fn, r, (int)k, in_host(t, IR_all_gather, x[k], (int)ir_attr(t->fn, r->from[k].end, AT_dim), r->from[k].end->loc), t->h);
		else
			in[k] = r->way[k] == RING_WHOLE ? ring_block(t->b, x[k], r->dim[k], r->len * t->d, which) : x[k];
}

/* What travels, one host further: not before the n values of `made` are there, which what comes later reads behind that.  So the blocks of two turns
 * are there at once, not those of all. */
static void hand_on(const struct turns *t, const ir_val *x, ir_val *made, uint32_t n, ir_val *next)
{
	ir_val v[RING_IN + 3];
	ir_type type[RING_IN + 3] = { 0 };
	uint32_t round = 0;
	for (uint32_t k = 0; k < t->r->att->nin; k++)
		if (t->r->way[k] == RING_ROUND)
			v[round++] = x[k];
	for (uint32_t k = 0; k < n; k++)
		v[round + k] = made[k];
	for (uint32_t k = 0; k < round + n; k++)
		type[k] = t->b->fn->val.p[v[k]].type;
	ir_val first = n ? ir_emit_raw(t->b, IR_optimization_barrier, round + n, v, round + n, type, NULL, 0) : 0;
	for (uint32_t k = 0; k < n; k++)
		made[k] = first + round + k;
	round = 0;
	for (uint32_t k = 0; k < t->r->att->nin; k++)
		if (t->r->way[k] == RING_ROUND) {
			next[k] = ring_hand_on(t->b, t->r, n ? first + round : v[round], t->d, t->r->from[k].end->loc);
			round++;
		} else {
			next[k] = x[k];
		}
}

static ir_val forward(const struct turns *t)
{
	const struct ring *r = t->r;
	ir_val x[2][RING_IN], in[RING_IN], out[2] = { 0 };
	ir_type type[2] = { ring_sum_type(t->b, t->fn, r, r->att->out, -1, 0), ring_sum_type(t->b, t->fn, r, r->att->out + 1, -1, 0) };
	int64_t f = ir_attr(t->fn, r->att, AT_fn);
	memcpy(x[0], t->own, sizeof *t->own * r->att->nin);
	for (int turn = 0; turn < t->h; turn++) {
		operands(t, x[turn % 2], turn, in);
		if (turn + 1 < t->h)
			hand_on(t, x[turn % 2], out, turn ? 2 : 0, x[(turn + 1) % 2]);
		ir_val v = ir_emit_raw(t->b, IR_attention, r->att->nin, in, 2, type, &f, 1);
		if (!turn)
			out[0] = v, out[1] = v + 1;
		else
			pass_soft_add(t->b, out, (ir_val[]){ v, v + 1 });
	}
	for (int k = 0; k < 2; k++)
		out[k] = ring_give(t->b, t->fn, r, k, out[k], 1);
	return ring_side_by_side(t->b, out, 2);
}

static ir_val backward(const struct turns *t)
{
	const struct ring *r = t->r;
	struct ir_b *b = t->b;
	uint32_t n = r->att->nin;
	ir_val x[2][RING_IN], in[RING_IN + 2], sum[3] = { 0 };
	bool adds = r->side == RING_QUERIES;     /* dk and dv stay, and can be added to in place */
	uint32_t stays = adds ? 1 : 0, nstay = adds ? 2 : 1;
	ir_type type[3];
	int64_t f = ir_attr(t->fn, r->att, AT_fn);
	for (int k = 0; k < 3; k++)
		type[k] = ring_sum_type(b, t->fn, r, r->att->out + (ir_val)k, ring_result_dim(b->m, t->fn, r, k), r->len * t->d);
	hand_on(t, t->own, NULL, 0, x[0]);
	for (int turn = 1; turn <= t->h; turn++) {
		const ir_val *now = turn < t->h ? x[(turn - 1) % 2] : t->own;
		operands(t, now, turn % t->h, in);
		if (turn + 1 < t->h)
			hand_on(t, now, turn > 1 ? sum + stays : NULL, turn > 1 ? nstay : 0, x[turn % 2]);
		for (uint32_t k = 1; adds && turn > 1 && k < 3; k++)
			in[n + k - 1] = sum[k];
		bool add = adds && turn > 1;
		ir_val v = ir_emit_raw(b, add ? IR_attention_grad_add : IR_attention_grad, add ? n + 2 : n, in, 3, type, &f, 1);
		for (int k = 0; k < 3; k++) {
			ir_val d = v + (ir_val)k;
			if (r->to[k].end)
				d = in_host(t, IR_reduce_scatter, d, ring_result_dim(b->m, t->fn, r, k), r->to[k].end->loc);
			sum[k] = turn == 1 || (k && add) ? d : ir_bin(b, ELEM_add, sum[k], d);
			if (r->to[k].end && turn < t->h)
				sum[k] = ring_hand_on(b, r, sum[k], t->d, r->to[k].end->loc);
		}
	}
	for (int k = 0; k < 3; k++)
		sum[k] = ring_give(b, t->fn, r, k, sum[k], r->to[k].end ? r->members : 1);
	return ring_side_by_side(b, sum, 3);
}

ir_val ring_turns(const struct pass_opts *o, struct ir_b *b, const struct ir_fn *fn, const struct ring *r, const ir_val *in)
{
	const struct ir_group_info *g = &b->m->group.p[r->group];
	int d = per_host(o, b->m, r);
	struct turns t = { .b = b, .fn = fn, .r = r, .own = in, .d = d, .h = (int)r->members / d };
	if (d > 1)
		t.host = ir_group_add(b->m, g->nrow * t.h, d, g->id);
	for (uint32_t k = 0; k < r->att->nin; k++)
		if (r->way[k] == RING_WHOLE && !t.number)
			t.number = ring_own(b, r, d);
	return r->att->kind == IR_attention ? forward(&t) : backward(&t);
}
