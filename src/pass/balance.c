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

static bool forced(void) { return !strcmp(conf_str(CONF_ATTENTION), "on"); }

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

/* What happens to an operand. */
enum own { STAYS, HALF, EACH };      /* as it is; the second half goes over; that, once it is written for each row of what is the device's own */

/* false: of that operand it is not known what it is on another member. */
static bool operand(const struct ir_module *m, const struct ir_fn *fn, const struct ring *r, uint32_t k, enum own *what)
{
	enum { DEEP = 12 };
	ir_val v = ir_in(fn, r->att, k);
	int d = ring_own_dim(m, fn, r, k);
	const struct ir_type_info *t = ir_vtype(m, fn, v);
	*what = STAYS;
	if (k < ring_first_extra(r)) {
		*what = d < 0 ? STAYS : HALF;
		return true;
	}
	bool whole = r->dim[k] >= 0 && t->dim[r->dim[k]] > 1;        /* it has an element for each of what is gathered */
	if (t->dim[d] > 1)
		*what = HALF;
	else if (!same_for_all(m, fn, r->group, v, DEEP))
		*what = EACH;
	return !whole || *what != EACH;
}

/* --- does it pay? --------------------------------------------------------------------------- */

/* Devices that exchange halves at the same time, of all rows of the group: how many of them go into one host from others. */
static struct plan_group pairs(const struct plan_on *p, struct arena *a, const struct ir_group_info *g)
{
	int n = g->nrow * g->ncol, hosts = 1, most = 0;
	for (int k = 0; k < n && p->host; k++)
		hosts = MAX(hosts, p->host[g->id[k]] + 1);
	int *into = ARENA_NEW(a, int, hosts);
	for (int k = 0; k < n && p->host; k++) {
		int64_t other = g->id[k / g->ncol * g->ncol + g->ncol - 1 - k % g->ncol];
		most = p->host[g->id[k]] == p->host[other] ? most : MAX(most, ++into[p->host[g->id[k]]]);
	}
	return most ? (struct plan_group){ 2, 2, most, 0 } : (struct plan_group){ 2, 1, 2, 0 };
}

/* Nanoseconds for the halves that go over, and what comes back.  Between hosts all of what is gathered, and of sums that are scattered, goes to all hosts then: as
 * if nothing of it had done so before, or were beside computing. */
static double price(const struct pass_opts *o, struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ring *r, int64_t own, bool far)
{
	const struct plan_group two = pairs(&o->plan, a, &m->group.p[r->group]);
	double ns = 0;
	for (uint32_t k = 0; k < r->att->nin + (uint32_t)r->nres; k++) {
		bool in = k < r->att->nin;
		enum own what = HALF;
		if (in)
			operand(m, fn, r, k, &what);
		else if (ring_own_result_dim(m, fn, r, (int)(k - r->att->nin)) < 0)
			what = STAYS;
		const struct ring_chain *c = in ? &r->from[k] : &r->to[k - r->att->nin];
		if (far && (in ? r->way[k] == RING_ROUND : c->end != NULL))
			ns += lower_coll_time(&o->plan, m, fn, c->end);
		if (what == STAYS)
			continue;
		double bytes = (double)ir_vtype(m, fn, in ? ir_in(fn, r->att, k) : r->att->out + k - r->att->nin)->bytes * (double)(what == EACH ? own : 1);
		ns += plan_move_time(&o->plan, COLL_permute, two, bytes / 2) + plan_part_time(o->plan.table, DT_f32, 0, bytes * 2);
	}
	return ns;
}

struct work { double half[2]; };

/* Nanoseconds of the member with most work, where the halves of each member's take these; cores may be fewer than members. */
static double longest(const struct pass_opts *o, const struct ir_group_info *g, const struct work *w, bool shared)
{
	double most = 0, all = 0;
	for (int k = 0; k < g->ncol; k++) {
		most = MAX(most, w[k].half[0] + w[shared ? g->ncol - 1 - k : k].half[1]);
		all += w[k].half[0] + w[k].half[1];
	}
	return MAX(most, o->plan.cores ? all * g->nrow / o->plan.cores : 0);
}

/* *hidden: as ring_seen gives it. */
static bool pays(const struct pass_opts *o, struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ring *r, bool far, double *hidden)
{
	const struct ir_group_info *g = &m->group.p[r->group];
	int n = (int)r->members, parts = n > MANY ? 2 : PARTS, all = n * parts;
	uint32_t main = r->side == RING_KEYS ? 0 : 1;
	int64_t own = ir_vtype(m, fn, ir_in(fn, r->att, main))->dim[ring_own_dim(m, fn, r, main)];
	enum own what;
	if (own % 2 || n > MOST || (own / 2 < LEAST && !forced()) || r->att->kind == IR_attention_grad_add)
		return false;
	for (uint32_t k = 0; k < r->att->nin; k++)
		if (!operand(m, fn, r, k, &what))
			return false;
	struct work *w = ARENA_NEW(a, struct work, n);
	const bool *seen = ring_seen(a, m, fn, r, parts, hidden);
	double flop = plan_part_time(o->plan.table, ir_vtype(m, fn, ir_in(fn, r->att, 0))->dtype, 1, 0);
	double cell = (far ? MIN(flop, FAST) : flop) * ir_cost_of(m, fn, r->att).flops / parts / all;
	for (int i = 0; i < all; i++)
		for (int b = 0; b < all; b++)
			w[i / parts].half[i % parts * 2 / parts] += seen[i * all + b] ? cell : 0;
	double gain = longest(o, g, w, false) - longest(o, g, w, true);
	return gain > (forced() ? 0 : (far ? SURE : 1) * price(o, a, m, fn, r, own, far));
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
	struct ring *r = s->r;
	const struct ir_fn *fn = w->from;
	double hidden;
	if (!ring_find(w->m, fn, (int)(o - fn->op.p), r))
		return 0;
	const struct ir_group_info *g = &w->m->group.p[r->group];
	bool far = plan_groups_of(&s->o->plan, g->nrow, g->ncol, g->id).hosts > 1;
	if (!pays(s->o, w->a, w->m, fn, r, far, &hidden))
		return 0;
	uint32_t main = r->side == RING_KEYS ? 0 : 1;
	int64_t own = ir_vtype(w->m, fn, ir_in(fn, o, main))->dim[ring_own_dim(w->m, fn, r, main)], f = ir_attr(fn, o, AT_fn);
	ir_val x[RING_IN];
	ir_type type[3];
	if (far && hidden > -INFINITY)           /* a turn of which a row sees nothing else could not leave it out */
		f = ring_masked(&w->b, fn, r, false, hidden);
	for (uint32_t k = 0; k < o->nin; k++) {
		int d = ring_own_dim(w->m, fn, r, k);
		enum own what;
		operand(w->m, fn, r, k, &what);
		x[k] = what == STAYS ? in[k] : shared(&w->b, r, what == EACH ? for_each(&w->b, in[k], d, own) : in[k], d, spmd_shared(s->o->record, w->m, o, SPMD_SHARED, (int)k));
	}
	for (uint32_t k = 0; k < o->nout; k++)
		type[k] = fn->val.p[o->out + k].type;
	ir_val v = ir_emit_raw(&w->b, o->kind, o->nin, x, o->nout, type, &f, 1);
	for (int k = 0; k < r->nres; k++) {
		int d = w->live[o->out + (ir_val)k] ? ring_own_result_dim(w->m, fn, r, k) : -1;
		w->map[o->out + (ir_val)k] = d < 0 ? v + (ir_val)k : shared(&w->b, r, v + (ir_val)k, d, spmd_shared(s->o->record, w->m, o, SPMD_RETURNED, k));
	}
	return REWRITE_MAPPED;
}

struct err *pass_balance(const struct pass_opts *o, struct ir_module *m)
{
	if ((o->plan.ring != PLAN_RING_AUTO && o->plan.ring != PLAN_RING_GATHER) || !pass_has(m, IR_all_gather) || (!pass_has(m, IR_attention) && !pass_has(m, IR_attention_grad)))
		return NULL;
	struct arena a;
	arena_init(&a);
	pass_rewrite(m, attention, NULL, &(struct balance){ o, ARENA_NEW(&a, struct ring, 1) });
	arena_fini(&a);
	return NULL;
}
