/* Attention whose keys, or queries of a gradient, are gathered from several hosts goes round these hosts.
 *
 * Each turn has what one host's devices have.  Each of them sends its block on to its like on the next host, and calculates with its own host's meanwhile,
 * which it reads where that lies (lower/gather.c): a host receives each block of the others once, and no device holds more than two.  A block goes no further
 * than there is somebody whom the mask lets see it (ring_seen.c), to the hosts before its own, to those behind, or both ways; a turn that nobody needs is none.  Of
 * keys the turns give parts (o, m, z) of a softmax, which are put together one by one; of a gradient the sums of what was gathered (dq, or
 * dk and dv) travel with it, begin beside home, and from the last of these hosts go home, where the last turn ends them.  (Liu, Zaharia, Abbeel, Ring Attention with
 * Blockwise Transformers, 2023; two levels: Li et al., DistFlashAttn, 2024, section 3.)  There are few hosts, so the turns are written one by one,
 * and the schedule sees what can be under way beside what. */
#include "ring.h"

#include <math.h>

#include <math.h>

enum { LEAST = 64, HOSTS = 64 };     /* rows of a turn; hosts at most */

int ring_per_host(const struct pass_opts *o, const struct ir_module *m, const struct ring *r)
{
	const struct ir_group_info *g = &m->group.p[r->group];
	const int *host = o->plan.host;
	int d = 1;
	if (o->plan.ring >= PLAN_RING_SENT)
		return 1;
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

/* The first operand that is made from what goes round for operand k: keys and values may be one array. */
static uint32_t same(const struct ring *r, const ir_val *in, uint32_t k)
{
	uint32_t j = 0;
	while (r->way[j] != RING_ROUND || in[j] != in[k])
		j++;
	return j;
}

/* Bytes of a device's blocks of what travels: operands, and of sums. */
static void travels(const struct ir_module *m, const struct ir_fn *fn, const struct ring *r, double *in, double *out)
{
	*in = *out = 0;
	for (uint32_t k = 0; k < r->att->nin; k++)
		if (r->way[k] == RING_ROUND && same(r, r->in, k) == k)
			*in += (double)ir_vtype(m, fn, r->in[k])->bytes;
	for (int k = 0; k < r->nres; k++)
		if (r->to[k].end)
			*out += 4 * (double)ir_vtype(m, fn, r->to[k].end->out)->count;
}

/* --- what goes where ------------------------------------------------------------------------ */

struct step { int way, t; };         /* of a turn: what came by t hops that way */

static int wrapped(int i, int n) { return (i % n + n) % n; }

/* The member whose block is at member c after t hops of d; and where member b's block is then. */
static int block_at(const struct ring *r, int d, struct step s, int c) { return wrapped(s.way == RING_BEFORE ? c + s.t * d : c - s.t * d, (int)r->members); }
static int place_of(const struct ring *r, int d, struct step s, int b) { return wrapped(s.way == RING_BEFORE ? b - s.t * d : b + s.t * d, (int)r->members); }

/* The turns beside that at home, in order: at most 2 h. */
static int steps(const struct ring *r, struct step *s)
{
	int n = 0;
	for (int way = 0; way < 2; way++)
		for (int t = 1; t <= ring_far(r, way); t++)
			s[n++] = (struct step){ way, t };
	return n;
}

/* Blocks that come to the host to which most of them do, of d: those of a turn; or sums behind a turn, from which they go on, or home. */
static double busiest(const struct ring *r, int d, struct step s, bool sums)
{
	double most = 0;
	for (int host = 0; host < r->members / d; host++) {
		int n = 0;
		struct step next = { s.way, s.t + 1 };
		for (int c = host * d; c < (host + 1) * d; c++)
			n += sums ? (r->hop[s.way][block_at(r, d, next, c)] > s.t) + (r->hop[s.way][c] == s.t) : r->hop[s.way][block_at(r, d, s, c)] >= s.t;
		most = MAX(most, n);
	}
	return most / d;
}

bool ring_price(const struct pass_opts *o, struct arena *a, const struct ir_module *m, const struct ir_fn *fn, struct ring *r, bool all, double *open, double *gathered)
{
	int d = ring_per_host(o, m, r), h = d ? (int)r->members / d : 0;
	*open = *gathered = 0;
	if (h < 2 || h > HOSTS || r->att->kind == IR_attention_grad_add || (r->len * d < LEAST && o->plan.ring < PLAN_RING_SENT))
		return false;
	const struct ir_group_info *i = &m->group.p[r->group];
	struct plan_group far = plan_groups_of(&o->plan, i->nrow, i->ncol, i->id);
	double work = plan_part_time(o->plan.table, ir_vtype(m, fn, ir_in(fn, r->att, 0))->dtype, ir_cost_of(m, fn, r->att).flops, 0) / h, in, out;
	struct step s[2 * HOSTS];
	for (uint32_t k = 0; k < r->att->nin; k++)
		if (r->way[k] == RING_ROUND)
			*gathered += spmd_coll_time(&o->plan, m, fn, r->from[k].end) / readers(fn, &r->from[k]);
	for (int k = 0; k < r->nres; k++)
		if (r->to[k].end)
			*gathered += spmd_coll_time(&o->plan, m, fn, r->to[k].end);
	travels(m, fn, r, &in, &out);
	ring_reach(a, m, fn, r, d, all);
	int n = steps(r, s);
	double join = plan_part_time(o->plan.table, DT_f32, 0, 12 * (double)ir_vtype(m, fn, r->att->out)->count);
	for (int k = 0; k <= n; k++) {           /* beside turn k, of which there is none at first */
		double comes = k < n ? plan_move_time(&o->plan, COLL_permute, far, in * busiest(r, d, s[k], false)) : 0;
		double goes = k && out > 0 ? plan_move_time(&o->plan, COLL_permute, far, out * busiest(r, d, s[k - 1], true)) : 0;
		if (r->att->kind == IR_attention)    /* what is received beside the turn before, and putting together */
			*open += MAX(0, comes - work) + (k ? join : 0);
		else if (!k)                         /* the first comes before there is work */
			*open += comes;
		else
			*open += MAX(0, comes + goes - work);
	}
	return true;
}

bool ring_hosts(const struct pass_opts *o, struct arena *a, const struct ir_module *m, const struct ir_fn *fn, struct ring *r, struct ring_said *said)
{
	double open, gathered;
	bool may = ring_price(o, a, m, fn, r, false, &open, &gathered), sent = o->plan.ring >= PLAN_RING_SENT;
	if (said && may && !sent) {
		said->open = open;
		said->gathered = gathered;
	}
	return may && (sent || open <= gathered);
}

/* --- the turns -------------------------------------------------------------------------- */

struct turns {
	struct ir_b *b;
	const struct ir_fn *fn;
	const struct ring *r;
	const ir_val *own;           /* operands, as they are on this device */
	int d, h, n;
	struct step step[2 * HOSTS]; /* n of them */
	ir_group host;               /* the rows of the group, a host each */
	ir_val number;               /* of this host, if something is cut by it, or some hosts have no part in a turn */
	ir_fnid some, veiled;        /* the score function where not all blocks are there, and where all are and it hides; 0: not made yet */
	bool barrier;                /* all wait for all behind every hop */
	int *to;                     /* per member: scratch */
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

/* --- where blocks are missing --- */

static bool comes(const struct turns *t, struct step s, int c) { return t->r->hop[s.way][block_at(t->r, t->d, s, c)] >= s.t; }

/* Have all devices a block in the turn; are those of each host alike? */
static bool all_come(const struct turns *t, struct step s, bool *alike)
{
	bool all = true;
	*alike = true;
	for (int c = 0; c < t->r->members; c++) {
		all &= comes(t, s, c);
		*alike &= comes(t, s, c) == comes(t, s, c / t->d * t->d);
	}
	return all;
}

/* What is there of what the turn has, as an operand of the score function: one word for the whole of it, or one for each of its queries or keys. */
static ir_val there(const struct turns *t, struct step s, bool alike)
{
	struct ir_b *b = t->b;
	int rank = ir_vtype(b->m, t->fn, ir_in(t->fn, t->r->att, 0))->rank, side = t->r->side == RING_KEYS ? rank - 1 : rank - 2, per = alike ? 1 : t->d;
	int64_t n = t->h * per, dim[IR_MAX_RANK], size = per, shape[2] = { per, t->r->len };
	bool *is = mem_alloc(sizeof *is * (size_t)n);
	for (int k = 0; k < n; k++)
		is[k] = comes(t, s, alike ? k * t->d : k);
	ir_val all = ir_const(b, ir_tensor(b->m, DT_pred, 1, &n), is, sizeof *is * (size_t)n);
	mem_free(is);
	ir_val first = ir_bin(b, ELEM_multiply, t->number, ir_const_i(b, ir_scalar(b->m, DT_i32), per));
	ir_val x = ir_emit(b, IR_dynamic_slice, 2, (ir_val[]){ all, first }, ir_tensor(b->m, DT_pred, 1, &size), (int64_t[]){ 1, per }, 2);
	for (int k = 0; k < rank; k++)
		dim[k] = 1;
	if (!alike) {
		x = ir_broadcast(b, x, ir_tensor(b->m, DT_pred, 2, shape), &(int64_t){ 0 });
		dim[side] = per * t->r->len;
	}
	return ir_reshape(b, x, rank, dim);
}

/* --- what all turns have --- */

/* Operands of a turn, and their number; x: the blocks that came for it; its score function. */
static uint32_t operands(struct turns *t, const ir_val *x, struct step s, ir_val *in, int64_t *f)
{
	const struct ring *r = t->r;
	uint32_t n = r->att->nin;
	bool alike;
	ir_val all[RING_IN], which = t->number ? ring_whose(t->b, t->number, ir_const_i(t->b, ir_scalar(t->b->m, DT_i32), s.way == RING_BEFORE ? s.t : t->h - s.t), t->h) : 0;
	for (uint32_t k = 0; k < n; k++) {
		uint32_t j = r->way[k] == RING_ROUND ? same(r, t->own, k) : k;
		if (r->way[k] != RING_ROUND) {
			in[k] = r->way[k] == RING_WHOLE ? ring_block(t->b, x[k], r->dim[k], r->len * t->d, which) : x[k];
			continue;
		}
		const struct ir_op *g = r->from[k].end;
		int dim = (int)ir_attr(t->fn, g, AT_dim);
		all[k] = j < k && dim == ir_attr(t->fn, r->from[j].end, AT_dim) ? all[j] : in_host(t, IR_all_gather, x[k], dim, g->loc);
		in[k] = ring_read(t->b, t->fn, r, (int)k, all[k], t->h);
	}
	if (all_come(t, s, &alike)) {
		if (r->hidden > -INFINITY)
			t->veiled = t->veiled ? t->veiled : ring_hidden(t->b, t->fn, r, r->hidden);
		*f = t->veiled ? t->veiled : ir_attr(t->fn, r->att, AT_fn);
		return n;
	}
	in[n] = there(t, s, alike);
	*f = t->some = t->some ? t->some : ring_there(t->b, t->fn, r);
	return n + 1;
}

/* x, a block along dimension dim, goes on that way: of it what somebody sees there, the rest is 0 then, and no score that counts is made from it. */
static ir_val send_rows(const struct turns *t, int way, ir_val x, int dim, ir_loc loc)
{
	const struct ring *r = t->r;
	struct ir_b *b = t->b;
	const struct ir_type_info *i = ir_vtype(b->m, b->fn, x);
	int64_t lo[IR_MAX_RANK] = { 0 }, hi[IR_MAX_RANK], by[IR_MAX_RANK], attr[3 * (IR_MAX_RANK + 1)] = { 0 };
	enum dtype dt = i->dtype;
	int rank = i->rank;
	ir_type type = b->fn->val.p[x].type;
	if (r->row[way][1] - r->row[way][0] == r->len || i->dim[dim] != r->len)
		return ring_send(b, r, x, t->to, loc);
	for (int d = 0; d < rank; d++) {
		hi[d] = i->dim[d];
		by[d] = 1;
	}
	for (int k = 0; k < 3; k++)             /* low, high, interior */
		attr[k * (rank + 1)] = rank;
	attr[1 + dim] = lo[dim] = r->row[way][0];
	attr[rank + 2 + dim] = r->len - r->row[way][1];
	hi[dim] = r->row[way][1];
	ir_val sent = ring_send(b, r, ir_slice(b, x, lo, hi, by), t->to, loc);
	if (!sent)
		return 0;
	return ir_emit(b, IR_pad, 2, (ir_val[]){ sent, ir_const_f(b, ir_scalar(b->m, dt), 0) }, type, attr, 3 * (uint32_t)(rank + 1));
}

/* Until all have what came for them, x. */
static void meet(const struct turns *t, ir_val *x, uint32_t n)
{
	struct ir_b *b = t->b;
	ir_val v[RING_IN + 1], one;
	ir_type type[RING_IN + 1], word = ir_scalar(b->m, DT_f32);
	int64_t lo[IR_MAX_RANK] = { 0 }, hi[IR_MAX_RANK], attr[3] = { t->r->group, RED_add, 0 };
	for (int k = 0; k < IR_MAX_RANK; k++)
		hi[k] = 1;
	one = ir_convert(b, ir_reshape(b, ir_slice(b, x[0], lo, hi, hi), 0, NULL), DT_f32);
	for (uint32_t k = 0; k <= n; k++) {
		v[k] = k < n ? x[k] : ir_emit_raw(b, IR_all_reduce, 1, &one, 1, &word, attr, 3);
		type[k] = b->fn->val.p[v[k]].type;
	}
	ir_val first = ir_emit_raw(b, IR_optimization_barrier, n + 1, v, n + 1, type, NULL, 0);
	for (uint32_t k = 0; k < n; k++)
		x[k] = first + k;
}

/* Blocks x go on into a turn: not before the n values of `made` are there, which what comes later reads behind that.  So the blocks of two turns
 * are there at once, not those of all. */
static void hand_on(const struct turns *t, const ir_val *x, struct step s, ir_val *made, uint32_t n, ir_val *next)
{
	const struct ring *r = t->r;
	ir_val v[RING_IN + 3];
	ir_type type[RING_IN + 3] = { 0 };
	uint32_t round = 0;
	for (int c = 0; c < r->members; c++) {
		struct step old = { s.way, s.t - 1 };
		int b = block_at(r, t->d, old, c);
		t->to[c] = r->hop[s.way][b] >= s.t ? place_of(r, t->d, s, b) : -1;
	}
	for (uint32_t k = 0; k < r->att->nin; k++)
		if (r->way[k] == RING_ROUND && same(r, t->own, k) == k)
			v[round++] = x[k];
	for (uint32_t k = 0; k < n; k++)
		v[round + k] = made[k];
	for (uint32_t k = 0; k < round + n; k++)
		type[k] = t->b->fn->val.p[v[k]].type;
	ir_val first = n ? ir_emit_raw(t->b, IR_optimization_barrier, round + n, v, round + n, type, NULL, 0) : 0;
	for (uint32_t k = 0; k < n; k++)
		made[k] = first + round + k;
	ir_val sent[RING_IN];
	for (uint32_t k = 0, i = 0; k < r->att->nin; k++)
		if (r->way[k] == RING_ROUND && same(r, t->own, k) == k) {
			ir_val y = n ? first + i : v[i];
			const struct ir_op *g = r->from[k].end;
			sent[i++] = k < r->nmust ? send_rows(t, s.way, y, (int)ir_attr(t->fn, g, AT_dim), g->loc) : ring_send(t->b, r, y, t->to, g->loc);      /* by what scores are made from it is said what is seen */
		}
	if (t->barrier)
		meet(t, sent, round);
	for (uint32_t k = 0, i = 0; k < r->att->nin; k++) {
		uint32_t j = r->way[k] == RING_ROUND ? same(r, t->own, k) : k;
		next[k] = r->way[k] != RING_ROUND ? x[k] : j < k ? next[j] : sent[i++];
	}
}

/* --- forward, backward --- */

static void forward(struct turns *t, ir_val *out)
{
	const struct ring *r = t->r;
	struct ir_b *b = t->b;
	ir_val x[2][RING_IN], in[RING_IN + 1];
	ir_type l = ring_sum_type(b, t->fn, r, r->att->out + 1, -1, 0), type[3] = { ring_sum_type(b, t->fn, r, r->att->out, -1, 0), l, l };
	int64_t f;
	memcpy(x[0], t->own, sizeof *t->own * r->att->nin);
	for (int k = 0; k <= t->n; k++) {        /* the first one is at home */
		uint32_t n = operands(t, x[k % 2], k ? t->step[k - 1] : (struct step){ RING_BEFORE, 0 }, in, &f);
		if (k < t->n)
			hand_on(t, t->step[k].t > 1 ? x[k % 2] : t->own, t->step[k], out, k ? 3 : 0, x[(k + 1) % 2]);
		ir_val v = ir_emit_raw(b, t->n ? IR_attention_part : IR_attention, n, in, t->n ? 3 : 2, type, &f, 1);
		if (k)
			pass_soft_add(b, out, (ir_val[]){ v, v + 1, v + 2 });
		for (int j = 0; !k && j < 3; j++)
			out[j] = v + (ir_val)j;
	}
	if (t->n)
		out[1] = pass_soft_log(b, out[1], out[2]);
	ring_give(b, t->fn, r, out);
}

/* Sums of result k behind a turn: those that the next one adds to go on, the others home, where they are added up. */
static void send_sums(const struct turns *t, struct step s, int k, ir_val *sum, ir_val *home)
{
	const struct ring *r = t->r;
	struct step next = { s.way, s.t + 1 };
	ir_val x = *sum;
	for (int c = 0; c < r->members; c++) {
		int b = block_at(r, t->d, s, c);
		t->to[c] = r->hop[s.way][b] > s.t ? place_of(r, t->d, next, b) : -1;
	}
	int dim = ring_result_dim(t->b->m, t->fn, r, k);
	*sum = send_rows(t, s.way, x, dim, r->to[k].end->loc);
	for (int c = 0; c < r->members; c++) {
		int b = block_at(r, t->d, s, c);
		t->to[c] = r->hop[s.way][b] == s.t ? b : -1;
	}
	ir_val came = send_rows(t, s.way, x, dim, r->to[k].end->loc);
	*home = *home && came ? ir_bin(t->b, ELEM_add, *home, came) : came ? came : *home;
}

static void backward(struct turns *t, ir_val *sum)
{
	const struct ring *r = t->r;
	struct ir_b *b = t->b;
	ir_val x[2][RING_IN], in[RING_IN + 4], home[3] = { 0 };
	bool adds = r->side == RING_QUERIES;     /* dk and dv stay, and can be added to in place */
	uint32_t stays = adds ? 1 : 0, nstay = adds ? 2 : 1;
	ir_type type[3];
	int64_t f;
	for (int k = 0; k < 3; k++)
		type[k] = ring_sum_type(b, t->fn, r, r->att->out + (ir_val)k, ring_result_dim(b->m, t->fn, r, k), r->len * t->d);
	if (t->n)
		hand_on(t, t->own, t->step[0], NULL, 0, x[0]);
	for (int turn = 0; turn <= t->n; turn++) {       /* the last one is at home */
		struct step s = turn < t->n ? t->step[turn] : (struct step){ RING_BEFORE, 0 };
		const ir_val *now = s.t ? x[turn % 2] : t->own;
		uint32_t n = operands(t, now, s, in, &f);
		bool add = adds && turn;
		if (turn + 1 < t->n)
			hand_on(t, t->step[turn + 1].t > 1 ? now : t->own, t->step[turn + 1], turn ? sum + stays : NULL, turn ? nstay : 0, x[(turn + 1) % 2]);
		for (uint32_t k = 0; add && k < 3; k++)
			in[n + k] = k ? sum[k] : ir_const_f(b, type[0], 0);
		ir_val v = ir_emit_raw(b, add ? IR_attention_grad_add : IR_attention_grad, add ? n + 3 : n, in, 3, type, &f, 1);
		for (int k = 0; k < 3; k++) {
			ir_val d = v + (ir_val)k;
			if (r->to[k].end) {
				ir_val old = s.t == 0 ? home[k] : s.t > 1 ? sum[k] : 0;
				d = in_host(t, IR_reduce_scatter, d, ring_result_dim(b->m, t->fn, r, k), r->to[k].end->loc);
				sum[k] = old ? ir_bin(b, ELEM_add, old, d) : d;
				if (s.t)
					send_sums(t, s, k, &sum[k], &home[k]);
			} else {
				sum[k] = !turn || (k && add) ? d : ir_bin(b, ELEM_add, sum[k], d);
			}
		}
	}
	ring_give(b, t->fn, r, sum);
}

void ring_turns(const struct pass_opts *o, struct ir_b *b, const struct ir_fn *fn, const struct ring *r, const ir_val *in, ir_val *out)
{
	const struct ir_group_info *g = &b->m->group.p[r->group];
	int d = ring_per_host(o, b->m, r);
	struct turns t = { .b = b, .fn = fn, .r = r, .own = in, .d = d, .h = (int)r->members / d, .barrier = o->plan.ring == PLAN_RING_BARRIER, .to = mem_alloc(sizeof *t.to * (size_t)r->members) };
	bool cut = false, alike;
	if (d > 1)
		t.host = ir_group_add(b->m, g->nrow * t.h, d, g->id);
	for (uint32_t k = 0; k < r->att->nin; k++)
		cut |= r->way[k] == RING_WHOLE;
	t.n = steps(r, t.step);
	for (int k = 0; k < t.n; k++)
		cut |= !all_come(&t, t.step[k], &alike);
	if (cut)
		t.number = ring_own(b, r, d);
	ir_val all[3] = { 0 };
	(r->att->kind == IR_attention ? forward : backward)(&t, all);
	memcpy(out, all, sizeof *out * (size_t)r->nres);
	mem_free(t.to);
}
