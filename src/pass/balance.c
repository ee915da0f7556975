/* Attention of which a mask gives some devices more work than others is shared out evenly.
 *
 * Under a causal mask the last of n devices, whose blocks lie in order, has 2 n - 1 times the work of the first.  So member k of a row of the group does
 * the first half of what is its own (its queries where keys are gathered, its keys where queries are) and the second half of what member
 * n - 1 - k has: under that mask all have the same.  The halves go there before, and what comes of them goes back; who is in the middle keeps its own.  Arrays of
 * the program stay in their order.  (Brandon et al., Striped Attention, 2023, and the zigzag of others order the tokens of the whole program instead.)
 *
 * What each would have to do comes from bounds of the score function (ring_seen.c).  Within a process devices that are done help the others (rt/pool.c); but
 * how many processes the devices are in decides nothing here, so that a program gives the same bits in all of them. */
#include "ring.h"

#include <math.h>

/* Parts in which a member's work is looked at: even, and fewer where there are many members; members beyond which looking takes too long; rows of a half. */
enum { PARTS = 4, MANY = 32, MOST = 128, LEAST = 64 };
/* Between hosts, where little is known of the link: nanoseconds of an operation of a product at most, and how many times its price an exchange must save. */
#define FAST 0.005
#define SURE 4

/* Has v the same elements on all members of a row?  It follows from constants and from what is gathered from all of them. */
static bool same_for_all(const struct ir_module *m, const struct ir_fn *fn, ir_group g, ir_val v, int depth)
{
	const struct ir_op *o = ir_def(fn, v);
	if (!o || !depth)
		return false;
	if (o->kind == IR_all_gather || o->kind == IR_all_reduce)
		return (ir_group)ir_attr(fn, o, AT_group) == g;
	if (o->kind != IR_constant && o->kind != IR_iota && !ir_is_elem(o->kind) && !(ir_info(o->kind)->flags & IR_VIEW) && o->kind != IR_dynamic_slice)
		return false;
	for (uint32_t k = 0; k < o->nin; k++)
		if (!same_for_all(m, fn, g, ir_in(fn, o, k), depth - 1))
			return false;
	return true;
}

/* What happens to an operand or result. */
enum own { STAYS, HALF, EACH };      /* as it is; the second half goes over; that, once it is written for each row of what is the device's own */

/* An attention that is looked at. */
struct look {
	const struct pass_opts *o;
	struct arena *a;
	const struct ir_module *m;
	const struct ir_fn *fn;
	const struct ring *r;
	const struct ir_group_info *g;
	int64_t own;                 /* rows of each device */
	bool far;                    /* the group is on several hosts */
	enum own in[RING_IN], out[3];
	double hidden;               /* as ring_seen gives it */
};

/* false: of some operand it is not known what it is on another device. */
static bool find_own(struct look *l)
{
	enum { DEEP = 12 };
	const struct ring *r = l->r;
	for (uint32_t k = 0; k < r->att->nin; k++) {
		ir_val v = ir_in(l->fn, r->att, k);
		int d = ring_own_dim(l->m, l->fn, r, k);
		const struct ir_type_info *t = ir_vtype(l->m, l->fn, v);
		bool score = k >= ring_first_extra(r), each = score && t->dim[d] == 1 && !same_for_all(l->m, l->fn, r->group, v, DEEP);
		if (each && r->dim[k] >= 0 && t->dim[r->dim[k]] > 1)      /* it has an element for each of what is gathered */
			return false;
		l->in[k] = each ? EACH : d >= 0 && t->dim[d] > 1 ? HALF : STAYS;
	}
	for (int k = 0; k < r->nres; k++)
		l->out[k] = ring_own_result_dim(l->m, l->fn, r, k) >= 0 ? HALF : STAYS;
	return true;
}

/* --- does it pay? --------------------------------------------------------------------------- */

/* Devices that exchange halves at the same time, of all rows of the group: how many of them go into one host from others. */
static struct plan_group pairs(const struct look *l)
{
	const struct ir_group_info *g = l->g;
	const int *host = l->o->plan.host;
	int n = g->nrow * g->ncol, hosts = 1, most = 0;
	for (int k = 0; k < n && host; k++)
		hosts = MAX(hosts, host[g->id[k]] + 1);
	int *into = ARENA_NEW(l->a, int, hosts);
	for (int k = 0; k < n && host; k++) {
		int64_t other = g->id[k / g->ncol * g->ncol + g->ncol - 1 - k % g->ncol];
		most = host[g->id[k]] == host[other] ? most : MAX(most, ++into[host[g->id[k]]]);
	}
	return most ? (struct plan_group){ 2, 2, most, 0 } : (struct plan_group){ 2, 1, 2, 0 };
}

/* Nanoseconds for half of v to go over, and to be put beside the other. */
static double half_time(const struct look *l, struct plan_group two, ir_val v, enum own what)
{
	double bytes = (double)ir_vtype(l->m, l->fn, v)->bytes * (double)(what == EACH ? l->own : 1);
	return what == STAYS ? 0 : plan_move_time(&l->o->plan, COLL_permute, two, bytes / 2) + plan_part_time(l->o->plan.table, DT_f32, 0, bytes * 2);
}

/* Nanoseconds for the halves that go over, and what comes back.  Between hosts all of what is gathered, and of sums that are scattered, goes to all hosts then: as
 * if nothing of it had done so before, or were beside computing. */
static double price(const struct look *l)
{
	const struct ring *r = l->r;
	const struct plan_group two = pairs(l);
	double ns = 0;
	for (uint32_t k = 0; k < r->att->nin; k++) {
		ns += half_time(l, two, ir_in(l->fn, r->att, k), l->in[k]);
		if (l->far && r->way[k] == RING_ROUND)
			ns += lower_coll_time(&l->o->plan, l->m, l->fn, r->from[k].end);
	}
	for (int k = 0; k < r->nres; k++) {
		ns += half_time(l, two, r->att->out + (ir_val)k, l->out[k]);
		if (l->far && r->to[k].end)
			ns += lower_coll_time(&l->o->plan, l->m, l->fn, r->to[k].end);
	}
	return ns;
}

struct work { double half[2]; };

/* Nanoseconds of the member with most work, where the halves of each member's take these; cores may be fewer than members. */
static double longest(const struct look *l, const struct work *w, bool shared)
{
	double most = 0, all = 0;
	for (int k = 0; k < l->g->ncol; k++) {
		most = MAX(most, w[k].half[0] + w[shared ? l->g->ncol - 1 - k : k].half[1]);
		all += w[k].half[0] + w[k].half[1];
	}
	return MAX(most, l->o->plan.cores ? all * l->g->nrow / l->o->plan.cores : 0);
}

/* The work of the member that has most, over the mean. */
static double busiest(const struct look *l, const struct work *w, bool shared)
{
	double most = 0, all = 0;
	for (int k = 0; k < l->g->ncol; k++) {
		most = MAX(most, w[k].half[0] + w[shared ? l->g->ncol - 1 - k : k].half[1]);
		all += w[k].half[0] + w[k].half[1];
	}
	return all > 0 ? most * l->g->ncol / all : 1;
}

static bool pays(struct look *l)
{
	const struct ring *r = l->r;
	int n = (int)r->members, parts = n > MANY ? 2 : PARTS, all = n * parts;
	struct work *w = ARENA_NEW(l->a, struct work, n);
	const bool *seen = ring_seen(l->a, l->m, l->fn, r, parts, &l->hidden);
	double flop = plan_part_time(l->o->plan.table, ir_vtype(l->m, l->fn, ir_in(l->fn, r->att, 0))->dtype, 1, 0);
	double cell = (l->far ? MIN(flop, FAST) : flop) * ir_cost_of(l->m, l->fn, r->att).flops / parts / all;
	for (int i = 0; i < all; i++)
		for (int b = 0; b < all; b++)
			w[i / parts].half[i % parts * 2 / parts] += seen[i * all + b] ? cell : 0;
	double gain = longest(l, w, false) - longest(l, w, true), takes = price(l);
	bool good = gain > (ring_small_too() ? 0 : (l->far ? SURE : 1) * takes);
	struct ring_said *said = ring_said(l->o, l->m, r);
	if (said) {
		said->busy = busiest(l, w, false);
		said->dealt = busiest(l, w, true);
		said->saves = gain;
		said->takes = takes;
		said->exchanged = good;
	}
	return good;
}

/* Is op i of fn an attention for which it is done? */
static bool look(struct look *l, struct ring *r, int i)
{
	if (!ring_find(l->m, l->fn, i, r))
		return false;
	uint32_t main = r->side == RING_KEYS ? 0 : 1;
	l->r = r;
	l->g = &l->m->group.p[r->group];
	l->own = ir_vtype(l->m, l->fn, ir_in(l->fn, r->att, main))->dim[ring_own_dim(l->m, l->fn, r, main)];
	l->far = plan_groups_of(&l->o->plan, l->g->nrow, l->g->ncol, l->g->id).hosts > 1;
	return l->own % 2 == 0 && l->own > 0 && r->members <= MOST && (l->own / 2 >= LEAST || ring_small_too()) && r->att->kind != IR_attention_grad_add && find_own(l) && pays(l);
}

/* --- the halves ------------------------------------------------------------------------------- */

/* The first half of x along dimension d, and the second half of what the other of the pair has: what was done to x is undone so, too. */
static ir_val shared(struct ir_b *b, const struct ring *r, ir_val x, int d, ir_loc loc)
{
	const struct ir_type_info *t = ir_vtype(b->m, b->fn, x);
	ir_type type = b->fn->val.p[x].type;
	int64_t lo[IR_MAX_RANK] = { 0 }, hi[IR_MAX_RANK], one[IR_MAX_RANK], dim = d;
	int n = (int)r->members, *to = mem_alloc(sizeof *to * (size_t)n);
	for (int k = 0; k < t->rank; k++) {
		hi[k] = t->dim[k];
		one[k] = 1;
	}
	int64_t mid = hi[d] / 2, end = hi[d];
	hi[d] = mid;
	ir_val first = ir_slice(b, x, lo, hi, one);
	lo[d] = mid;
	hi[d] = end;
	for (int k = 0; k < n; k++)
		to[k] = n - 1 - k;
	ir_val second = ring_send(b, r, ir_slice(b, x, lo, hi, one), to, loc);
	mem_free(to);
	return ir_emit(b, IR_concatenate, 2, (ir_val[]){ first, second }, type, &dim, 1);
}

/* x, of which dimension d is 1, for each of n. */
static ir_val for_each(struct ir_b *b, ir_val x, int d, int64_t n)
{
	const struct ir_type_info *t = ir_vtype(b->m, b->fn, x);
	int64_t dim[IR_MAX_RANK], at[IR_MAX_RANK];
	int rank = t->rank;
	enum dtype dt = t->dtype;
	for (int k = 0; k < rank; k++) {
		dim[k] = k == d ? n : t->dim[k];
		at[k] = k;
	}
	return ir_broadcast(b, x, ir_tensor(b->m, dt, rank, dim), at);
}

struct balance { const struct pass_opts *o; struct ring *r; };

static ir_val attention(struct rewrite *w, const struct ir_op *o, const ir_val *in)
{
	const struct balance *s = w->user;
	const struct ir_fn *fn = w->from;
	const struct ring *r = s->r;
	struct look l = { .o = s->o, .a = w->a, .m = w->m, .fn = fn };
	if (!look(&l, s->r, (int)(o - fn->op.p)))
		return 0;
	ir_val x[RING_IN];
	ir_type type[3];
	int64_t f = ir_attr(fn, o, AT_fn);
	if (l.far && l.hidden > -INFINITY)       /* a turn of which a row sees nothing else could not leave it out */
		f = ring_hidden(&w->b, fn, r, l.hidden);
	for (uint32_t k = 0; k < o->nin; k++) {
		int d = ring_own_dim(w->m, fn, r, k);
		x[k] = l.in[k] == EACH ? for_each(&w->b, in[k], d, l.own) : in[k];
		if (l.in[k] != STAYS)
			x[k] = shared(&w->b, r, x[k], d, spmd_shared(s->o->record, w->m, o, SPMD_SHARED, (int)k));
	}
	for (uint32_t k = 0; k < o->nout; k++)
		type[k] = fn->val.p[o->out + k].type;
	ir_val v = ir_emit_raw(&w->b, o->kind, o->nin, x, o->nout, type, &f, 1);
	for (int k = 0; k < r->nres; k++, v++) {
		ir_val y = o->out + (ir_val)k;
		w->map[y] = l.out[k] == HALF && w->live[y] & 1 ? shared(&w->b, r, v, ring_own_result_dim(w->m, fn, r, k), spmd_shared(s->o->record, w->m, o, SPMD_RETURNED, k)) : v;
	}
	return REWRITE_MAPPED;
}

struct err *pass_balance(const struct pass_opts *o, struct ir_module *m)
{
	if ((o->plan.ring != PLAN_RING_AUTO && o->plan.ring != PLAN_RING_GATHER) || !ring_any(m))
		return NULL;
	struct arena a;
	arena_init(&a);
	pass_rewrite(m, attention, NULL, &(struct balance){ o, ARENA_NEW(&a, struct ring, 1) });
	arena_fini(&a);
	return NULL;
}
