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
/* Between hosts, where little is known of the link: nanoseconds of an operation of a product at most, and how many times its price what is exchanged must save of work. */
#define FAST 0.005
#define SURE 4

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
	enum ring_own in[RING_IN];   /* of an operand of rows the second half goes over, and of one that is made so */
	bool out[3];                 /* of the result, too */
	double hidden;               /* as ring_seen gives it */
	double takes, halves;        /* nanoseconds: of an exchange, of the halves alone */
	double late, saves;          /* what the device that has most takes longer than if all had as much; what an exchange leaves it less */
	double busy, dealt;          /* its work over the mean; with halves exchanged */
	bool pays;
};

/* false: of some operand it is not known what it is on another device. */
static bool find_own(struct look *l)
{
	for (int k = 0; k < l->r->nres; k++)
		l->out[k] = ring_own_result_dim(l->m, l->fn, l->r, k) >= 0;
	return ring_owned(l->m, l->fn, l->r, l->in);
}

/* --- does it pay? --------------------------------------------------------------------------- */

/* Devices that exchange halves at the same time, of all rows of the group. */
static struct plan_group pairs(const struct look *l)
{
	const struct ir_group_info *g = l->g;
	int n = g->nrow * g->ncol;
	int64_t *pair = ARENA_NEW(l->a, int64_t, 2 * n);
	for (int k = 0; k < n; k++) {
		pair[2 * k] = g->id[k / g->ncol * g->ncol + g->ncol - 1 - k % g->ncol];
		pair[2 * k + 1] = g->id[k];
	}
	return plan_pairs_of(&l->o->plan, n, pair);
}

/* Nanoseconds for half of v to go over, and to be put beside the other. */
static double half_time(const struct look *l, struct plan_group two, ir_val v, enum ring_own what)
{
	double bytes = (double)ir_vtype(l->m, l->fn, v)->bytes * (double)(what == RING_EACH ? l->own : 1);
	return what == RING_SAME ? 0 : plan_move_time(&l->o->plan, COLL_permute, two, bytes / 2) + plan_part_time(l->o->plan.table, DT_f32, 0, bytes * 2);
}

/* Nanoseconds for the halves that go over, and what comes back.  Between hosts all of what is gathered, and of sums that are scattered, goes to all hosts then: as
 * if nothing of it had done so before, or were beside computing. */
static void price(struct look *l)
{
	const struct ring *r = l->r;
	const struct plan_group two = pairs(l);
	double all = 0;
	l->halves = 0;
	for (uint32_t k = 0; k < r->att->nin; k++) {
		l->halves += half_time(l, two, ir_in(l->fn, r->att, k), l->in[k]);
		if (l->far && r->way[k] == RING_ROUND)
			all += spmd_coll_time(&l->o->plan, l->m, l->fn, r->from[k].end);
	}
	for (int k = 0; k < r->nres; k++) {
		l->halves += half_time(l, two, r->att->out + (ir_val)k, l->out[k] ? RING_ROWS : RING_SAME);
		if (l->far && r->to[k].end)
			all += spmd_coll_time(&l->o->plan, l->m, l->fn, r->to[k].end);
	}
	l->takes = l->halves + all;
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

static void weigh(struct look *l)
{
	const struct ring *r = l->r;
	int n = (int)r->members, parts = n > MANY ? 2 : PARTS, all = n * parts;
	struct work *w = ARENA_NEW(l->a, struct work, n);
	const bool *seen = ring_seen(l->a, l->m, l->fn, r, parts, parts, &l->hidden);
	double flop = plan_part_time(l->o->plan.table, ir_vtype(l->m, l->fn, ir_in(l->fn, r->att, 0))->dtype, 1, 0), sum = 0;
	double cell = (l->far ? MIN(flop, FAST) : flop) * ir_cost_of(l->m, l->fn, r->att).flops / parts / all;
	for (int i = 0; i < all; i++)
		for (int b = 0; b < all; b++) {
			double is = seen[i * all + b] ? cell : 0;
			w[i / parts].half[i % parts * 2 / parts] += is;
			sum += is;
		}
	price(l);
	l->busy = busiest(l, w, false);
	l->dealt = busiest(l, w, true);
	l->saves = longest(l, w, false) - longest(l, w, true);
	l->late = longest(l, w, false) - MAX(sum / n, l->o->plan.cores ? sum * l->g->nrow / l->o->plan.cores : 0);
	l->pays = l->saves > (ring_small_too() ? 0 : (l->far ? SURE : 1) * l->takes);
}

/* Can halves of r be exchanged?  Then what that would take and save is in l. */
static bool look(struct look *l, const struct ring *r)
{
	uint32_t main = r->side == RING_KEYS ? 0 : 1;
	l->r = r;
	l->g = &l->m->group.p[r->group];
	l->own = ir_vtype(l->m, l->fn, ir_in(l->fn, r->att, main))->dim[ring_own_dim(l->m, l->fn, r, main)];
	l->far = plan_groups_of(&l->o->plan, l->g->nrow, l->g->ncol, l->g->id).hosts > 1;
	bool may = l->own % 2 == 0 && l->own > 0 && r->members <= MOST && (l->own / 2 >= LEAST || ring_small_too()) && r->att->kind != IR_attention_grad_add && find_own(l);
	if (may)
		weigh(l);
	return may;
}

double ring_uneven(const struct pass_opts *o, struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ring *r, bool *all)
{
	struct look l = { .o = o, .a = a, .m = m, .fn = fn };
	bool may = look(&l, r);
	*all = may && l.pays;
	return *all ? l.halves : may ? l.late / (l.far ? SURE : 1) : 0;
}

/* Is op i of fn an attention for which it is done? */
static bool is_done(struct look *l, struct ring *r, int i)
{
	if (!ring_find(l->m, l->fn, i, r) || !look(l, r))
		return false;
	struct ring_said *said = ring_said(l->o, l->m, r);
	if (said) {
		said->busy = l->busy;
		said->dealt = l->dealt;
		said->saves = l->saves;
		said->takes = l->takes;
		said->exchanged = l->pays;
	}
	return l->pays;
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

struct balance { const struct pass_opts *o; struct ring *r; };

static ir_val attention(struct rewrite *w, const struct ir_op *o, const ir_val *in)
{
	const struct balance *s = w->user;
	const struct ir_fn *fn = w->from;
	const struct ring *r = s->r;
	struct look l = { .o = s->o, .a = w->a, .m = w->m, .fn = fn };
	if (!is_done(&l, s->r, (int)(o - fn->op.p)))
		return 0;
	ir_val x[RING_IN];
	ir_type type[3];
	int64_t f = ir_attr(fn, o, AT_fn);
	if (l.far && l.hidden > -INFINITY)       /* a turn of which a row sees nothing else could not leave it out */
		f = ring_hidden(&w->b, fn, r, l.hidden);
	for (uint32_t k = 0; k < o->nin; k++) {
		int d = ring_own_dim(w->m, fn, r, k);
		x[k] = l.in[k] == RING_EACH ? ring_for_each(&w->b, in[k], d, l.own) : in[k];
		if (l.in[k] != RING_SAME)
			x[k] = shared(&w->b, r, x[k], d, spmd_shared(s->o->record, w->m, o, SPMD_SHARED, (int)k));
	}
	for (uint32_t k = 0; k < o->nout; k++)
		type[k] = fn->val.p[o->out + k].type;
	ir_val v = ir_emit_raw(&w->b, o->kind, o->nin, x, o->nout, type, &f, 1);
	for (int k = 0; k < r->nres; k++, v++) {
		ir_val y = o->out + (ir_val)k;
		w->map[y] = l.out[k] && w->live[y] & 1 ? shared(&w->b, r, v, ring_own_result_dim(w->m, fn, r, k), spmd_shared(s->o->record, w->m, o, SPMD_RETURNED, k)) : v;
	}
	return REWRITE_MAPPED;
}

struct err *pass_balance(const struct pass_opts *o, struct ir_module *m)
{
	if ((o->plan.ring != PLAN_RING_AUTO && o->plan.ring != PLAN_RING_HEADS && o->plan.ring != PLAN_RING_GATHER) || !ring_any(m))
		return NULL;
	struct arena a;
	arena_init(&a);
	pass_rewrite(m, attention, NULL, &(struct balance){ o, ARENA_NEW(&a, struct ring, 1) });
	arena_fini(&a);
	return NULL;
}
