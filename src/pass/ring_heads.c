/* Attention whose keys, or queries of a gradient, are gathered from several hosts: these exchange rows for heads.
 *
 * Each device gives its likes on the other hosts, of all that it has of the sequence, the heads that are theirs, and has those that are its host's of what all of them have:
 * so a host has all rows of some heads, and each of its devices some of these rows.  Inside it is an attention of one host: keys, or queries, are gathered from
 * its own devices, which read them where they lie (lower/gather.c).  Results go back as operands came.  (All-to-all between hosts: Jacobs et al.,
 * DeepSpeed-Ulysses, 2023; two levels: Fang and Zhao, USP, 2024.)
 *
 * Over h hosts that is (h - 1) / h of each block of q, k, v and o, where turns bring h - 1 blocks of k and v; sums of gradients are whole before they travel.  Heads go in parts, if
 * there are enough of them and it is shorter so: one is calculated while the next comes and the one before goes back.  Devices have rows of several hosts then, and keys in another order than in the sequence; what scores are made from
 * comes in the same. */
#include "ring.h"

/* Parts at most; what attention loses for each more, of its time. */
enum { PARTS = 4, LOSES = 16 };

/* The sequence: host by host, d devices each. */
struct heads {
	const struct ring *r;
	const struct ir_fn *fn;
	int d, h;
	int64_t own;                 /* rows of each device */
	enum ring_own is[RING_IN];
	const struct pass_opts *o;
	struct ir_b *b;
	ir_group likes, host;        /* rows of the group: of one device on each host; of one host's */
	ir_val number;               /* of this host; 0: not made yet */
};

/* Where each is by itself, a device is a host, if one asks for it. */
static int per_host(const struct pass_opts *o, const struct ir_module *m, const struct ring *r)
{
	const struct ir_group_info *g = &m->group.p[r->group];
	bool one = plan_groups_of(&o->plan, g->nrow, g->ncol, g->id).hosts < 2;
	return o->plan.ring == PLAN_RING_HEADS && one ? 1 : ring_per_host(o, m, r);
}

/* Members of the group, in rows of those that are alike. */
static int64_t *alike(const struct ir_group_info *g, int d)
{
	int h = g->ncol / d;
	int64_t *id = mem_alloc(sizeof *id * (size_t)(g->nrow * g->ncol)), *to = id;
	for (int row = 0; row < g->nrow; row++)
		for (int i = 0; i < d; i++)
			for (int a = 0; a < h; a++)
				*to++ = g->id[row * g->ncol + a * d + i];
	return id;
}

/* What becomes of an operand: it is as it is here; of its heads those of the host are taken; they are exchanged for what the likes have along a dimension; what these have there is
 * gathered. */
enum way { STAYS, CUT, TRADED, GATHERED };

static enum way way_of(const struct ir_module *m, const struct heads *t, uint32_t k, int *along)
{
	const struct ring *r = t->r;
	bool has = ir_vtype(m, t->fn, ir_in(t->fn, r->att, k))->dim[r->heads] > 1;
	*along = r->way[k] == RING_ROUND ? r->dim[k] : t->is[k] != RING_SAME ? ring_own_dim(m, t->fn, r, k) : -1;
	return *along < 0 ? has ? CUT : STAYS : has ? TRADED : GATHERED;
}

/* Is the operand all of what is gathered, in the order of the sequence? */
static bool is_whole(const struct ir_module *m, const struct heads *t, uint32_t k)
{
	return t->d > 1 && t->r->way[k] == RING_WHOLE && ir_vtype(m, t->fn, ir_in(t->fn, t->r->att, k))->dim[t->r->dim[k]] > 1;
}

/* Dimension of result k that is the sequence. */
static int result_dim(const struct ir_module *m, const struct heads *t, int k)
{
	return t->r->to[k].end ? ring_result_dim(m, t->fn, t->r, k) : ring_own_result_dim(m, t->fn, t->r, k);
}

/* What rounds result k, if nobody else reads it: it goes back as that has it. */
static const struct ir_op *rounds(const struct ir_module *m, const struct heads *t, int k)
{
	ir_val v = t->r->out[k];
	uint32_t u = t->fn->val.p[v].nuse == 1 ? ir_use_first(t->fn, v) : 0;
	const struct ir_op *o = u ? &t->fn->op.p[ir_use_op(t->fn, u)] : NULL;
	if (!o || o->kind != IR_convert)
		return NULL;
	enum dtype to = ir_vtype(m, t->fn, o->out)->dtype;
	return dtype_info[to].cls == DT_FLOAT && dtype_info[to].bits < dtype_info[ir_vtype(m, t->fn, v)->dtype].bits ? o : NULL;
}

/* Bytes in which result k goes back: as what rounds it has it; o, of which a gradient wants more, in two parts (attn/parts.c), which are less than the f32. */
static double given_bytes(const struct ir_module *m, const struct heads *t, int k)
{
	int between[ATTN_BETWEEN];
	const struct ir_op *c = rounds(m, t, k), *parts = k ? NULL : attn_parts_of(m, t->fn, t->r->att, between);
	double bytes = 0;
	for (uint32_t i = 0; parts && i < 2; i++)
		bytes += (double)ir_vtype(m, t->fn, parts->out + i)->bytes;
	return parts ? bytes : (double)ir_vtype(m, t->fn, c ? c->out : t->r->out[k])->bytes;
}

/* --- what it takes -------------------------------------------------------------------------- */

/* Nanoseconds of what comes, of what goes back, and of copies, which are beside nothing; bytes that come into a host. */
struct sum { double in, out, own, bytes; };

/* bytes that each has of it; as so many messages. */
static void add(const struct pass_opts *o, const struct heads *t, struct plan_group g, enum way way, double bytes, int n, double *ns, struct sum *s)
{
	if (way < TRADED)
		return;
	double into = bytes * (t->h - 1) / (way == TRADED ? t->h : 1);
	*ns += n * plan_move_time(&o->plan, way == TRADED ? COLL_all_to_all : COLL_all_gather, g, into / n);
	s->own += plan_part_time(o->plan.table, DT_f32, 0, 2 * bytes);
	s->bytes += (1 + g.beside) * into;
}

static struct sum takes(const struct pass_opts *o, const struct ir_module *m, const struct heads *t, int parts)
{
	const struct ring *r = t->r;
	const struct ir_group_info *i = &m->group.p[r->group];
	int64_t *id = alike(i, t->d);
	struct plan_group g = plan_groups_of(&o->plan, i->nrow * t->d, t->h, id);
	struct sum s = { 0 };
	int along;
	mem_free(id);
	for (uint32_t k = 0; k < r->att->nin; k++) {
		enum way way = way_of(m, t, k, &along);
		double bytes = (double)ir_vtype(m, t->fn, ir_in(t->fn, r->att, k))->bytes;
		bytes = r->way[k] == RING_ROUND ? bytes / (double)r->members : t->is[k] == RING_EACH ? bytes * (double)t->own : bytes;
		add(o, t, g, way, bytes, way == TRADED ? parts : 1, &s.in, &s);
		if (is_whole(m, t, k))
			s.own += plan_part_time(o->plan.table, DT_f32, 0, 2 * bytes * (way == GATHERED ? t->h : 1));
	}
	for (int k = 0; k < r->nres; k++)
		if (t->fn->val.p[r->out[k]].nuse)
			add(o, t, g, TRADED, given_bytes(m, t, k), parts, &s.out, &s);
	return s;
}

/* Nanoseconds of it that are not beside the attention, and what that loses: of n parts the first comes before there is work, and the last goes when there is no more; what else
 * it may be beside is not known here. */
static double open_time(const struct pass_opts *o, const struct ir_module *m, const struct heads *t, const struct sum *s, int n)
{
	const struct ir_op *att = t->r->att;
	double all = plan_part_time(o->plan.table, ir_vtype(m, t->fn, ir_in(t->fn, att, 0))->dtype, ir_cost_of(m, t->fn, att).flops, 0);
	double work = all / n, in = s->in / n, out = s->out / n;
	double beside = n < 2 ? 0 : MAX(0, in - work) + (n - 2) * MAX(0, in + out - work) + MAX(0, out - work);
	return s->own + in + out + beside + (n - 1) * all / LOSES;
}

/* false: there are no hosts of as many devices each, or of some operand it is not known what it is on other devices. */
static bool set_up(const struct pass_opts *o, const struct ir_module *m, const struct ir_fn *fn, struct ring *r, struct heads *t)
{
	uint32_t main = r->side == RING_KEYS ? 0 : 1;
	int d = per_host(o, m, r);
	*t = (struct heads){ .r = r, .fn = fn, .d = d, .h = d ? (int)r->members / d : 0, .own = ir_vtype(m, fn, ir_in(fn, r->att, main))->dim[ring_own_dim(m, fn, r, main)] };
	if (t->h < 2 || r->att->kind == IR_attention_grad_add || !ring_owned(m, fn, r, t->is))
		return false;
	for (uint32_t k = r->nmust; k < r->att->nin; k++)
		if (r->way[k] == RING_ROUND && t->is[k] != RING_SAME) {      /* each has a row of all for each of its own */
			r->way[k] = RING_WHOLE;
			r->in[k] = ir_in(fn, r->att, k);
		}
	return true;
}

/* Results are given as they go back: rounded, or in parts. */
static void give_less(const struct ir_module *m, const struct heads *t, struct ring *r)
{
	int between[ATTN_BETWEEN];
	const struct ir_op *parts = attn_parts_of(m, t->fn, r->att, between);
	for (int k = 0; k < r->nres; k++) {
		const struct ir_op *c = rounds(m, t, k);
		if (c) {
			ring_take(r, (int)(c - t->fn->op.p));
			r->out[k] = c->out;
		}
	}
	if (!parts)
		return;
	for (int k = 0; k < ATTN_BETWEEN; k++)
		ring_take(r, between[k]);
	ring_take(r, (int)(parts - t->fn->op.p));
	r->out[0] = parts->out;
	r->out[r->nres++] = parts->out + 1;
}

bool ring_heads(const struct pass_opts *o, struct arena *a, const struct ir_module *m, const struct ir_fn *fn, struct ring *r, struct ring_said *said)
{
	struct heads *t = ARENA_NEW(a, struct heads, 1);
	const struct ir_type_info *q = ir_vtype(m, fn, ir_in(fn, r->att, 0));
	double least = 0, bytes = 0;
	int best = -1;
	if (!set_up(o, m, fn, r, t))
		return false;
	for (r->heads = 0; r->heads < q->rank - 3; r->heads++) {
		for (int n = 1; n <= PARTS && q->dim[r->heads]; n++) {
			if (q->dim[r->heads] % (t->h * n))
				continue;
			struct sum s = takes(o, m, t, n);
			double open = open_time(o, m, t, &s, n);
			if (best < 0 || open < least || (ring_small_too() && n > 1 && r->heads == best)) {
				least = open;
				bytes = s.bytes;
				best = r->heads;
				r->parts = n;
			}
		}
	}
	r->heads = best;
	if (best < 0)
		return false;
	bool all, ring;
	double open, gathered, late = ring_uneven(o, a, m, fn, r, &all);
	ring = ring_price(o, a, m, fn, r, all, &open, &gathered);
	if (said && (ring || o->plan.ring == PLAN_RING_HEADS)) {
		said->open = open;
		said->gathered = gathered;
		said->late = late;
		said->heads = least;
		said->bytes = bytes;
	}
	if (o->plan.ring != PLAN_RING_HEADS && (!ring || least >= MIN(open, gathered) + late))
		return false;
	give_less(m, t, r);
	return true;
}

/* --- the exchange ----------------------------------------------------------------------------- */

/* x in a collective that makes its dimension `from` that much shorter, `to` that much longer; negative: none. */
static ir_val moved(const struct heads *t, enum ir_kind kind, ir_val x, int from, int to, int n, const int64_t *attr, uint32_t nattr, ir_loc loc)
{
	const struct ir_type_info *i = ir_vtype(t->b->m, t->b->fn, x);
	int64_t dim[IR_MAX_RANK];
	memcpy(dim, i->dim, sizeof *dim * (size_t)i->rank);
	if (from >= 0)
		dim[from] /= n;
	if (to >= 0)
		dim[to] *= n;
	ir_type type = ir_tensor(t->b->m, i->dtype, i->rank, dim);
	return ir_emit_raw(&(struct ir_b){ t->b->m, t->b->fn, loc }, kind, 1, &x, 1, &type, attr, nattr);
}

static ir_val traded(const struct heads *t, ir_val x, int from, int to, ir_loc loc)
{
	return moved(t, IR_all_to_all, x, from, to, t->h, (int64_t[]){ from, to, t->likes }, 3, loc);
}

static ir_val gathered(const struct heads *t, ir_val x, int dim, ir_group g, int n, ir_loc loc)
{
	return n > 1 ? moved(t, IR_all_gather, x, -1, dim, n, (int64_t[]){ dim, g }, 2, loc) : x;
}

/* x, of which a dimension is that of the sequence, host by host, as keys come: by what the likes have. */
static ir_val as_keys(const struct heads *t, ir_val x, int d)
{
	struct ir_b *b = t->b;
	const struct ir_type_info *i = ir_vtype(b->m, b->fn, x);
	int64_t dim[IR_MAX_RANK], parts[] = { 1, t->h, t->d, i->dim[d] / (t->h * t->d), 1 };
	int rank = i->rank;
	memcpy(dim, i->dim, sizeof *dim * (size_t)rank);
	for (int k = 0; k < rank; k++)
		parts[k < d ? 0 : 4] *= k == d ? 1 : dim[k];
	x = ir_transpose(b, ir_reshape(b, x, 5, parts), (int64_t[]){ 0, 2, 1, 3, 4 });
	return ir_reshape(b, x, rank, dim);
}

/* Part i of x, if it has heads. */
static ir_val part_of(const struct heads *t, ir_val x, int i)
{
	const struct ir_type_info *type = ir_vtype(t->b->m, t->b->fn, x);
	int64_t start[IR_MAX_RANK] = { 0 }, limit[IR_MAX_RANK], stride[IR_MAX_RANK], n = type->dim[t->r->heads] / t->r->parts;
	if (n < 1 || t->r->parts < 2)
		return x;
	for (int d = 0; d < type->rank; d++) {
		limit[d] = type->dim[d];
		stride[d] = 1;
	}
	start[t->r->heads] = i * n;
	limit[t->r->heads] = (i + 1) * n;
	return ir_slice(t->b, x, start, limit, stride);
}

/* Operand k, x, as it is on the other side: part i. */
static ir_val operand(struct heads *t, uint32_t k, ir_val x, int i)
{
	const struct ring *r = t->r;
	struct ir_b *b = t->b;
	int along, p = r->heads;
	enum way way = way_of(b->m, t, k, &along);
	ir_loc loc = r->way[k] == RING_ROUND ? r->from[k].end->loc : way >= TRADED ? spmd_shared(t->o->record, b->m, r->att, SPMD_TRADED, (int)k) : 0;
	if (r->way[k] == RING_ROUND)
		x = ring_read(b, t->fn, r, (int)k, x, r->members);
	else if (t->is[k] == RING_EACH)
		x = ring_for_each(b, x, along, t->own);
	x = part_of(t, x, i);
	if (is_whole(b->m, t, k))
		x = as_keys(t, x, r->dim[k]);
	if (way == CUT) {
		t->number = t->number ? t->number : ring_own(b, r, t->d);
		x = ring_block(b, x, p, ir_vtype(b->m, b->fn, x)->dim[p] / t->h, t->number);
	} else if (way == TRADED) {
		x = traded(t, x, p, along, loc);
	} else if (way == GATHERED) {
		x = gathered(t, x, along, t->likes, t->h, loc);
	}
	return x;
}

/* Has it no heads?  Then it comes once, for all parts. */
static bool for_all(const struct heads *t, uint32_t k)
{
	int along;
	enum way way = way_of(t->b->m, t, k, &along);
	return way == STAYS || way == GATHERED;
}

/* What comes from other hosts for part i. */
static void come(struct heads *t, const ir_val *in, int i, ir_val *x)
{
	for (uint32_t k = 0; k < t->r->att->nin; k++)
		x[k] = i && for_all(t, k) ? 0 : operand(t, k, in[k], i);
}

/* And what the host's other devices have of that; first: of part 0. */
static void meet(const struct heads *t, const ir_val *first, ir_val *x)
{
	const struct ring *r = t->r;
	int along;
	for (uint32_t k = 0; k < r->att->nin; k++) {
		way_of(t->b->m, t, k, &along);
		if (!x[k])
			x[k] = first[k];
		else if (r->way[k] == RING_ROUND)
			x[k] = gathered(t, x[k], along, t->host, t->d, r->from[k].end->loc);
	}
}

/* That part, and its results, on their way back. */
static void part(struct heads *t, const ir_val *x, ir_val *out)
{
	const struct ring *r = t->r;
	struct ir_b *b = t->b;
	int nout = (int)r->att->nout;
	int64_t f = ir_attr(t->fn, r->att, AT_fn), dim[IR_MAX_RANK];
	ir_type type[3];
	for (int k = 0; k < nout; k++) {
		const struct ir_type_info *i = ir_vtype(b->m, t->fn, r->att->out + (ir_val)k);
		memcpy(dim, i->dim, sizeof *dim * (size_t)i->rank);
		dim[r->heads] /= t->h * r->parts;
		if (!r->to[k].end)
			dim[result_dim(b->m, t, k)] *= t->h;
		type[k] = ir_tensor(b->m, i->dtype, i->rank, dim);
	}
	ir_val v = ir_emit_raw(b, r->att->kind, r->att->nin, x, (uint32_t)nout, type, &f, 1);
	for (int k = 0; k < nout; k++)
		out[k] = v + (ir_val)k;
	if (r->nres > nout)              /* o in two parts */
		out[0] = attn_two_parts(b, v, &out[nout]);
	for (int k = 0; k < r->nres; k++) {
		int d = result_dim(b->m, t, k);
		if (!t->fn->val.p[r->out[k]].nuse)
			continue;
		ir_loc loc = r->to[k].end ? r->to[k].end->loc : spmd_shared(t->o->record, b->m, r->att, SPMD_GIVEN_BACK, k < nout ? k : 0);
		if (r->to[k].end && t->d > 1)
			out[k] = moved(t, IR_reduce_scatter, out[k], d, -1, t->d, (int64_t[]){ d, t->host, RED_add, 0 }, 4, loc);
		out[k] = traded(t, ir_convert(b, out[k], ir_vtype(b->m, t->fn, r->out[k])->dtype), d, r->heads, loc);
	}
}

/* Heads of all parts, in their order. */
static ir_val joined(const struct heads *t, const ir_val *x)
{
	int64_t dim[IR_MAX_RANK], d = t->r->heads;
	const struct ir_type_info *i = ir_vtype(t->b->m, t->b->fn, x[0]);
	if (t->r->parts < 2)
		return x[0];
	memcpy(dim, i->dim, sizeof *dim * (size_t)i->rank);
	dim[d] *= t->r->parts;
	return ir_emit(t->b, IR_concatenate, (uint32_t)t->r->parts, x, ir_tensor(t->b->m, i->dtype, i->rank, dim), &d, 1);
}

void ring_heads_emit(const struct pass_opts *o, struct ir_b *b, const struct ir_fn *fn, struct ring *r, const ir_val *in, ir_val *out)
{
	struct heads *t = mem_alloc(sizeof *t);
	const struct ir_group_info *g = &b->m->group.p[r->group];
	ir_val (*x)[RING_IN] = mem_alloc(sizeof *x * (size_t)r->parts), made[PARTS][3], one[PARTS];
	bool legal = set_up(o, b->m, fn, r, t);
	assert(legal);
	int64_t *id = alike(g, t->d);
	int rows = g->nrow;
	t->o = o;
	t->b = b;
	t->host = t->d > 1 ? ir_group_add(b->m, rows * t->h, t->d, g->id) : 0;
	t->likes = ir_group_add(b->m, rows * t->d, t->h, id);
	mem_free(id);
	come(t, in, 0, x[0]);
	for (int i = 0; i < r->parts; i++) {             /* collectives keep this order: the next part comes while this one is calculated, the last one goes while it is */
		if (i + 1 < r->parts)
			come(t, in, i + 1, x[i + 1]);
		meet(t, x[0], x[i]);
		part(t, x[i], made[i]);
	}
	for (int k = 0; k < r->nres; k++) {
		for (int i = 0; i < r->parts; i++)
			one[i] = made[i][k];
		out[k] = fn->val.p[r->out[k]].nuse ? joined(t, one) : one[0];
	}
	ring_give(b, fn, r, out);
	mem_free(x);
	mem_free(t);
}
