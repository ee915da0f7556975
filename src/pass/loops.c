/* Loops with roles.
 *
 * A scan arrives as a while: a counter, stacked arrays that the body slices at the counter, stacked
 * results that it updates there, carries, and values that never change.  This pass finds the counter (a
 * carry that starts at a constant, grows by a constant and is compared with a constant), says what each
 * operand is, and moves cheap invariants (constants, iotas, broadcasts, compares, selects of these) into the
 * body: JAX hoists the S x S causal mask out of the layer scan, where it would be stored.
 *
 * An index is a * iteration + b with its exact range known, so that the negative-index form
 * select(i < 0, i + n, i) and clamps fold.  One that leaves its type on the way, and wraps, is none. */
#include "passes.h"

#include <stdlib.h>

/* --- indices as affine functions of the iteration --------------------------- */

struct affine { bool known; int64_t a, b; };

/* What becomes of an operand. */
enum plan { KEEP, GONE, COUNTER, INVARIANT, SUNK, SLICED, STACKED };

struct loop {
	struct rewrite *r;
	const struct ir_op *o;
	const ir_val *in;        /* operands, new function */
	struct ir_loop v;        /* as it was */
	int64_t trip;            /* as it is found to be */
	int counter;             /* operand that counts, -1 none */
	bool *counts;            /* per operand: it is first + step * iteration */
	int64_t *first, *step;
	struct affine *aff;      /* per body value */
	enum plan *plan;         /* per operand */
	bool *reversed;          /* SLICED, STACKED: last row first */
	ir_shard *placed;        /* STACKED: where the body says that the stack lies, 0: it does not */
	struct sunk { ir_val leaf[8], op[64]; int nleaf, nop; } *sunk;    /* SUNK: the expression, in order */
};

/* Range of an affine index over the loop. */
static void range(const struct loop *l, struct affine x, int64_t *lo, int64_t *hi)
{
	int64_t e = x.b + x.a * (MAX(l->trip, 1) - 1);
	*lo = MIN(x.b, e);
	*hi = MAX(x.b, e);
}

/* Of an integer type. */
static __int128 least(enum dtype dt)
{
	return dtype_info[dt].cls == DT_INT ? -((__int128)1 << (dtype_info[dt].bits - 1)) : 0;
}
static __int128 most(enum dtype dt)
{
	return ((__int128)1 << (dtype_info[dt].bits - (dtype_info[dt].cls == DT_INT))) - 1;
}

/* a * iteration + b, if it stays inside the type in every turn. */
static struct affine within(const struct loop *l, enum dtype dt, __int128 a, __int128 b)
{
	__int128 lo = MAX(least(dt), INT64_MIN), hi = MIN(most(dt), INT64_MAX);
	if (a < -hi || a > hi || b < lo || b > hi)
		return (struct affine){0};
	__int128 e = b + a * (MAX(l->trip, 1) - 1);
	return e < lo || e > hi ? (struct affine){0} : (struct affine){ true, (int64_t)a, (int64_t)b };
}

static bool wide_int(const struct ir_type_info *t)
{
	return t->count == 1 && (t->dtype == DT_i32 || t->dtype == DT_i64 || t->dtype == DT_u32 || t->dtype == DT_u64);
}

static struct affine get(const struct loop *l, ir_val v)
{
	int64_t c;
	if (l->aff[v].known)
		return l->aff[v];
	if (ir_const_int(l->r->m, l->v.body, v, &c))
		return (struct affine){ true, 0, c };
	return (struct affine){0};
}

/* Operand k has the same value in every turn. */
static bool invariant(const struct loop *l, int k)
{
	return l->v.x[k].role == ROLE_CONST || (l->v.x[k].role == ROLE_CARRY && l->v.body->result.p[l->v.x[k].result] == l->v.x[k].param);
}

static void analyse(struct loop *l)
{
	const struct ir_fn *fn = l->v.body;
	const struct ir_module *m = l->r->m;
	for (int k = 0; k < l->v.n; k++) {
		int64_t c;
		if (l->v.x[k].param > 0 && invariant(l, k) && ir_const_int(m, l->r->b.fn, l->in[k], &c) &&
		    wide_int(ir_vtype(m, fn, l->v.x[k].param)))
			l->aff[l->v.x[k].param] = (struct affine){ true, 0, c };
	}
	l->aff[IR_LOOP_TURN] = (struct affine){ true, 1, 0 };
	for (int k = 0; k < l->v.n; k++)
		if (l->counts[k])
			l->aff[l->v.x[k].param] = within(l, ir_vtype(m, fn, l->v.x[k].param)->dtype, l->step[k], l->first[k]);
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		if (o->nout != 1 || !wide_int(ir_vtype(m, fn, o->out)))
			continue;
		struct affine x = o->nin > 0 ? get(l, ir_in(fn, o, 0)) : (struct affine){0};
		struct affine y = o->nin > 1 ? get(l, ir_in(fn, o, 1)) : (struct affine){0}, *z = &l->aff[o->out];
		int64_t lo, hi, lo2, hi2;
		enum dtype dt = ir_vtype(m, fn, o->out)->dtype;
		switch (o->kind) {
		case IR_add:
			if (x.known && y.known)
				*z = within(l, dt, (__int128)x.a + y.a, (__int128)x.b + y.b);
			break;
		case IR_subtract:
			if (x.known && y.known)
				*z = within(l, dt, (__int128)x.a - y.a, (__int128)x.b - y.b);
			break;
		case IR_multiply:
			if (x.known && y.known && (!x.a || !y.a))
				*z = within(l, dt, (__int128)x.a * y.b + (__int128)y.a * x.b, (__int128)x.b * y.b);
			break;
		case IR_convert:
		case IR_reshape:
			if (x.known && wide_int(ir_vtype(m, fn, ir_in(fn, o, 0))))
				*z = within(l, dt, x.a, x.b);
			break;
		case IR_maximum:
		case IR_minimum:
			if (x.known && y.known) {
				range(l, x, &lo, &hi);
				range(l, y, &lo2, &hi2);
				bool first = o->kind == IR_maximum ? lo >= hi2 : hi <= lo2;
				bool second = o->kind == IR_maximum ? lo2 >= hi : hi2 <= lo;
				if (first || second)
					*z = first ? x : y;
			}
			break;
		case IR_clamp: {
			struct affine w = get(l, ir_in(fn, o, 2));
			if (x.known && y.known && w.known && !x.a && !w.a) {
				range(l, y, &lo, &hi);
				if (lo >= x.b && hi <= w.b)
					*z = y;
			}
			break;
		}
		case IR_select: {
			const struct ir_op *c = ir_def(fn, ir_in(fn, o, 0));
			if (!c || c->nin != 2)
				break;
			struct affine p = get(l, ir_in(fn, c, 0)), q = get(l, ir_in(fn, c, 1));
			if (!p.known || !q.known)
				break;
			range(l, p, &lo, &hi);
			range(l, q, &lo2, &hi2);
			int truth = -1;
			if (c->kind == IR_compare_lt)
				truth = hi < lo2 ? 1 : lo >= hi2 ? 0 : -1;
			else if (c->kind == IR_compare_ge)
				truth = lo >= hi2 ? 1 : hi < lo2 ? 0 : -1;
			else if (c->kind == IR_compare_gt)
				truth = lo > hi2 ? 1 : hi <= lo2 ? 0 : -1;
			else if (c->kind == IR_compare_le)
				truth = hi <= lo2 ? 1 : lo > hi2 ? 0 : -1;
			if (truth >= 0)
				*z = get(l, ir_in(fn, o, truth ? 1 : 2));
			break;
		}
		default:
			break;
		}
	}
}

/* 1 if the slice at these starts is row i of dimension 0, 2 if it is row trip-1-i, else 0. */
static int row_index(const struct loop *l, const struct ir_op *o, uint32_t first, const struct ir_type_info *stack,
                     const struct ir_type_info *row)
{
	if (stack->rank < 1 || stack->rank != row->rank || row->dim[0] != 1 || stack->dim[0] < l->trip || l->trip < 1)
		return 0;
	for (int d = 1; d < stack->rank; d++)
		if (stack->dim[d] != row->dim[d])
			return 0;
	struct affine x = get(l, ir_in(l->v.body, o, first));
	if (!x.known)
		return 0;
	if (l->trip == 1)
		return x.b == 0 ? 1 : 0;
	return x.a == 1 && x.b == 0 ? 1 : x.a == -1 && x.b == l->trip - 1 ? 2 : 0;
}

/* --- the counter ------------------------------------------------------------- */

/* Carry k starts at a constant and has a constant added each turn: first[k], step[k]. */
static bool grows(struct loop *l, int k)
{
	const struct ir_module *m = l->r->m;
	const struct ir_fn *b = l->v.body;
	if (l->v.x[k].role != ROLE_CARRY || !ir_const_int(m, l->r->b.fn, l->in[k], &l->first[k]))
		return false;
	ir_val par = l->v.x[k].param;
	const struct ir_type_info *t = ir_vtype(m, b, par);
	if (!wide_int(t))
		return false;
	const struct ir_op *add = ir_def(b, b->result.p[l->v.x[k].result]);
	if (!add || add->kind != IR_add)
		return false;
	ir_val p = ir_in(b, add, 0), q = ir_in(b, add, 1);
	if (q == par) {
		ir_val swap = p;
		p = q;
		q = swap;
	}
	if (p != par)
		return false;
	if (ir_const_int(m, b, q, &l->step[k]))
		return true;
	for (int i = 0; i < l->v.n; i++)
		if (l->v.x[i].param == q && invariant(l, i))
			return ir_const_int(m, l->r->b.fn, l->in[i], &l->step[k]);
	return false;
}

/* Whose parameter of the condition is v? */
static int operand_asked(const struct loop *l, ir_val v)
{
	int k = 0;
	while (l->v.x[k].asked != v)
		k++;
	return k;
}

static bool find_counter(struct loop *l)
{
	const struct ir_module *m = l->r->m;
	const struct ir_fn *c = l->v.cond;
	const struct ir_op *cmp = ir_def(c, c->result.p[0]);
	if (!cmp || (cmp->kind != IR_compare_lt && cmp->kind != IR_compare_gt && cmp->kind != IR_compare_le && cmp->kind != IR_compare_ne))
		return false;
	ir_val x = ir_in(c, cmp, 0), y = ir_in(c, cmp, 1);
	int64_t limit;
	if (cmp->kind == IR_compare_gt) {
		ir_val t = x;
		x = y;
		y = t;
	}
	if (ir_def(c, x) || !(dtype_info[ir_vtype(m, c, x)->dtype].cls == DT_INT || dtype_info[ir_vtype(m, c, x)->dtype].cls == DT_UINT))
		return false;
	if (ir_def(c, y)) {
		if (!ir_const_int(m, c, y, &limit))
			return false;
	} else {
		int k = operand_asked(l, y);
		if (!invariant(l, k) || !ir_const_int(m, l->r->b.fn, l->in[k], &limit))
			return false;
	}
	int k = operand_asked(l, x);
	if (!grows(l, k))
		return false;
	int64_t first = l->first[k], step = l->step[k];
	if (step <= 0 || (cmp->kind == IR_compare_ne && (step != 1 || limit < first)))
		return false;
	__int128 left = (__int128)limit - first + (cmp->kind == IR_compare_le), trip = left > 0 ? (left + step - 1) / step : 0;
	/* One that passes the end of its type before the limit goes on from the other end. */
	if (trip > INT32_MAX || first + trip * step > most(ir_vtype(m, c, x)->dtype))
		return false;
	l->counter = k;
	l->trip = (int64_t)trip;
	return true;
}

/* --- sinking ------------------------------------------------------------------ */

/* To be made anew each turn: views, and what takes no more than an addition for an element. */
static bool cheap(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	if (ir_info(o->kind)->flags & IR_VIEW)
		return o->kind != IR_bitcast_convert;
	return o->kind == IR_constant || o->kind == IR_iota || (ir_is_elem(o->kind) && ir_cost_each(m, fn, o) <= 1);
}

/* Definition order is order of ids. */
static int by_id(const void *a, const void *b)
{
	ir_val x = *(const ir_val *)a, y = *(const ir_val *)b;
	return x < y ? -1 : x > y;
}

/* Leaves of the cheap expression that v is: values that are small beside v or not cheap.  False if it is not
 * worth sinking: a leaf as large as v, or too many ops. */
static bool sinkable(struct loop *l, ir_val v, struct sunk *s)
{
	const struct ir_module *m = l->r->m;
	const struct ir_fn *fn = l->r->b.fn;
	enum { MOST = NELEM(s->op), FEW = NELEM(s->leaf) };
	const struct ir_op *o = ir_def(fn, v);
	s->nleaf = s->nop = 0;
	if (!o || !cheap(m, fn, o))
		return false;
	int64_t whole = ir_vtype(m, fn, v)->bytes;
	ir_val todo[MOST * 4];
	int n = 0;
	todo[n++] = v;
	while (n) {
		ir_val x = todo[--n];
		bool seen = false;
		for (int i = 0; i < s->nop; i++)
			seen |= s->op[i] == x;
		for (int i = 0; i < s->nleaf; i++)
			seen |= s->leaf[i] == x;
		if (seen)
			continue;
		o = ir_def(fn, x);
		const struct ir_type_info *t = ir_vtype(m, fn, x);
		bool splat = o && o->kind == IR_constant && ir_splat(m, fn, x);
		if (!o || !cheap(m, fn, o) || (o->kind == IR_constant && !splat)) {
			if (t->bytes * 8 > whole || s->nleaf == FEW)
				return false;
			s->leaf[s->nleaf++] = x;
			continue;
		}
		if (s->nop == MOST || n + (int)o->nin > MOST * 4)
			return false;
		s->op[s->nop++] = x;
		for (uint32_t k = 0; k < o->nin; k++)
			todo[n++] = ir_in(fn, o, k);
	}
	qsort(s->op, (size_t)s->nop, sizeof *s->op, by_id);
	return whole > 64 || s->nleaf == 0;
}

/* --- the rewrite ---------------------------------------------------------------- */

/* Operand k never changes: do all readers take the row of the iteration?  1: forwards, 2: backwards, 0: no. */
static int sliced(const struct loop *l, int k)
{
	const struct ir_fn *body = l->v.body;
	ir_val p = l->v.x[k].param;
	const struct ir_type_info *st = ir_vtype(l->r->m, body, p);
	int slices = 0, way = 0;
	for (uint32_t u = l->trip > 0 ? ir_use_first(body, p) : 0; u; u = ir_use_next(body, u)) {
		const struct ir_op *o = &body->op.p[ir_use_op(body, u)];
		if (o->kind != IR_dynamic_slice || ir_use_operand(body, u) != 0)
			continue;
		int w = row_index(l, o, 1, st, ir_vtype(l->r->m, body, o->out));
		for (int d = 1; w && d < st->rank; d++)
			if (!get(l, ir_in(body, o, (uint32_t)d + 1)).known)
				w = 0;
		if (w && (!way || w == way)) {
			way = w;
			slices++;
		}
	}
	return slices && (int)body->val.p[p].nuse == slices + (l->v.x[k].role == ROLE_CARRY) ? way : 0;
}

static void choose(struct loop *l)
{
	const struct ir_fn *body = l->v.body;
	for (int k = 0; k < l->v.n; k++) {
		ir_val p = l->v.x[k].param;
		int way = 0;
		if (l->counts[k]) {
			l->plan[k] = COUNTER;
		} else if (l->v.x[k].role != ROLE_CARRY && l->v.x[k].role != ROLE_CONST) {
			continue;
		} else if (invariant(l, k)) {
			way = sliced(l, k);
			l->plan[k] = way ? SLICED : sinkable(l, l->in[k], &l->sunk[k]) ? SUNK : INVARIANT;
		} else {                 /* a stacked result: the body updates one row and does nothing else with it */
			const struct ir_op *o = ir_def(body, body->result.p[l->v.x[k].result]);
			for (; o && o->kind == IR_sharding_constraint && body->val.p[o->out].nuse == 1; o = ir_def(body, ir_in(body, o, 0)))
				l->placed[k] = l->placed[k] ? l->placed[k] : (ir_shard)ir_attr(body, o, AT_sharding);
			if (o && o->kind == IR_dynamic_update_slice && ir_in(body, o, 0) == p && body->val.p[p].nuse == 1 && body->val.p[o->out].nuse == 1 && l->trip > 0)
				way = row_index(l, o, 2, ir_vtype(l->r->m, body, p), ir_vtype(l->r->m, body, ir_in(body, o, 1)));
			if (way)
				l->plan[k] = STACKED;
		}
		l->reversed[k] = way == 2;
	}
}

/* Does operand k give a result of the new loop? */
static bool gives(const struct loop *l, int k)
{
	return l->v.x[k].result >= 0 && (l->plan[k] == KEEP || l->plan[k] == STACKED);
}

static enum ir_role role_of(const struct loop *l, int k)
{
	switch (l->plan[k]) {
	case INVARIANT: return ROLE_CONST;
	case SLICED: return l->reversed[k] ? ROLE_IN_REV : ROLE_IN;
	case STACKED: return l->reversed[k] ? ROLE_OUT_REV : ROLE_OUT;
	default: return l->v.x[k].role;
	}
}

/* The new loop in the making: where operands of the old one, and leaves of what is sunk, are among its operands. */
struct making { struct ir_loop_new l; int *slot; ARR(ir_val) leaf; int first_leaf; };

static void operands(struct loop *l, struct making *g)
{
	g->slot = ARENA_NEW(l->r->a, int, l->v.n);
	for (int k = 0; k < l->v.n; k++) {
		bool stays = l->plan[k] != COUNTER && l->plan[k] != SUNK && l->plan[k] != GONE;
		g->slot[k] = stays ? ir_loop_add(&g->l, l->in[k], role_of(l, k)) : -1;
	}
	g->first_leaf = (int)g->l.x.n;
	for (int k = 0; k < l->v.n; k++)
		for (int j = 0; l->plan[k] == SUNK && j < l->sunk[k].nleaf; j++) {
			bool have = false;
			for (size_t i = 0; i < g->leaf.n; i++)
				have |= g->leaf.p[i] == l->sunk[k].leaf[j];
			if (have)
				continue;
			arr_push(&g->leaf, l->sunk[k].leaf[j]);
			ir_loop_add(&g->l, l->sunk[k].leaf[j], ROLE_CONST);
		}
}

/* first + step * iteration, of type t. */
static ir_val counted(struct loop *l, struct ir_b *b, int k, ir_type t)
{
	enum dtype dt = ir_type_of(b->m, t)->dtype;
	ir_val c = ir_convert(b, IR_LOOP_TURN, dt);
	if (l->step[k] != 1)
		c = ir_bin(b, ELEM_multiply, c, ir_const_i(b, ir_scalar(b->m, dt), l->step[k]));
	c = ir_bin(b, ELEM_add, c, ir_const_i(b, ir_scalar(b->m, dt), l->first[k]));
	const struct ir_type_info *ti = ir_type_of(b->m, t);
	return ti->rank ? ir_reshape(b, c, ti->rank, ti->dim) : c;
}

/* What operand k was outside, made inside from its leaves. */
static ir_val sunk(struct loop *l, struct ir_b *b, int k, const struct making *g, bool cond)
{
	const struct ir_fn *outer = l->r->b.fn;
	const struct sunk *x = &l->sunk[k];
	ir_val to[NELEM(x->op)], a[4] = {0};
	for (int j = 0; j < x->nop; j++) {
		const struct ir_op *o = ir_def(outer, x->op[j]);
		for (uint32_t i = 0; i < o->nin; i++) {
			for (int q = 0; q < j; q++)
				if (x->op[q] == ir_in(outer, o, i))
					a[i] = to[q];
			for (size_t q = 0; q < g->leaf.n; q++) {
				const struct ir_loop_operand *leaf = &g->l.x.p[g->first_leaf + (int)q];
				if (g->leaf.p[q] == ir_in(outer, o, i))
					a[i] = cond ? leaf->asked : leaf->param;
			}
		}
		to[j] = ir_clone(b, outer, o, a);
	}
	return to[x->nop - 1];
}

/* The old body, or the condition of a loop that stays a while, over the new parameters; map: its values in the new function. */
static void refill(struct loop *l, struct making *g, bool cond, ir_val *map)
{
	struct rewrite *r = l->r;
	const struct ir_fn *src = cond ? l->v.cond : l->v.body;
	struct ir_b b = { r->m, cond ? g->l.cond : g->l.body, l->o->loc };
	int *stack = ARENA_NEW(r->a, int, src->val.n);          /* parameter -> operand that is SLICED or STACKED, + 1 */
	bool *wanted = ARENA_NEW(r->a, bool, src->result.n), *row = ARENA_NEW(r->a, bool, src->val.n);      /* a row of a stack that is STACKED, not the stack */
	if (!cond)
		map[IR_LOOP_TURN] = IR_LOOP_TURN;
	for (int k = 0; k < l->v.n; k++) {
		ir_val p = cond ? l->v.x[k].asked : l->v.x[k].param;
		if (!cond && gives(l, k))
			wanted[l->v.x[k].result] = true;
		if (!p)
			continue;
		if (l->plan[k] == COUNTER)
			map[p] = counted(l, &b, k, src->val.p[p].type);
		else if (l->plan[k] == SUNK)
			map[p] = sunk(l, &b, k, g, cond);
		else if (g->slot[k] >= 0)
			map[p] = cond ? g->l.x.p[g->slot[k]].asked : g->l.x.p[g->slot[k]].param;
		if (!cond && (l->plan[k] == SLICED || l->plan[k] == STACKED))
			stack[p] = k + 1;
	}
	uint8_t *live = ir_live(r->a, r->m, src, cond ? NULL : wanted);
	for (size_t i = 0; i < src->op.n; i++) {
		const struct ir_op *o = &src->op.p[i];
		bool need = o->nout == 0 && ir_effect(r->m, src, o);
		for (uint32_t j = 0; j < o->nout; j++)
			need |= live[o->out + j] != 0;
		if (!need)
			continue;
		b.loc = o->loc;
		int k = o->nin ? stack[ir_in(src, o, 0)] - 1 : -1;
		if (k >= 0 && l->plan[k] == SLICED && o->kind == IR_dynamic_slice) {    /* the row, with its unit dimension back */
			const struct ir_type_info *t = ir_vtype(r->m, src, o->out);
			map[o->out] = ir_reshape(&b, map[ir_in(src, o, 0)], t->rank, t->dim);
			continue;
		}
		if (k >= 0 && l->plan[k] == STACKED && o->kind == IR_dynamic_update_slice) {
			const struct ir_type_info *t = ir_vtype(r->m, src, ir_in(src, o, 1));
			map[o->out] = ir_reshape(&b, map[ir_in(src, o, 1)], t->rank - 1, t->dim + 1);
			row[o->out] = true;
			continue;
		}
		if (o->kind == IR_sharding_constraint && row[ir_in(src, o, 0)]) {       /* the stack has it, behind the loop */
			map[o->out] = map[ir_in(src, o, 0)];
			row[o->out] = true;
			continue;
		}
		ir_val *a = ARENA_NEW(r->a, ir_val, o->nin);
		for (uint32_t j = 0; j < o->nin; j++)
			a[j] = map[ir_in(src, o, j)];
		ir_val v = ir_clone(&b, src, o, a);
		for (uint32_t j = 0; j < o->nout; j++)
			map[o->out + j] = v + j;
	}
}

/* The new loop, by plan. */
static void rebuild(struct loop *l)
{
	struct rewrite *r = l->r;
	struct making g = {0};
	operands(l, &g);
	ir_loop_open(&g.l, &r->b, l->trip, ir_text(r->m, l->v.body->name), l->v.cond ? ir_text(r->m, l->v.cond->name) : NULL);
	ir_val *map = ARENA_NEW(r->a, ir_val, l->v.body->val.n);
	refill(l, &g, false, map);
	for (int k = 0; k < l->v.n; k++)
		if (gives(l, k))
			ir_loop_give(&g.l, g.slot[k], map[l->v.body->result.p[l->v.x[k].result]]);
	if (l->trip < 0) {
		map = ARENA_NEW(r->a, ir_val, l->v.cond->val.n);
		refill(l, &g, true, map);
		ir_result(g.l.cond, map[l->v.cond->result.p[0]]);
	}
	int *result = ARENA_NEW(r->a, int, l->v.n);
	ir_val v = ir_loop_close(&g.l, result);
	for (int k = 0; k < l->v.n; k++) {
		if (l->v.x[k].result < 0 || l->plan[k] == GONE)
			continue;
		ir_val *to = &r->map[l->o->out + (ir_val)l->v.x[k].result];
		if (l->plan[k] == COUNTER)
			*to = ir_const_i(&r->b, r->b.fn->val.p[l->in[k]].type, (int64_t)((uint64_t)l->first[k] + (uint64_t)l->trip * (uint64_t)l->step[k]));
		else
			*to = gives(l, k) ? v + (ir_val)result[g.slot[k]] : l->in[k];
		ir_type type = r->b.fn->val.p[*to].type;
		if (l->plan[k] == STACKED && l->placed[k])
			*to = ir_emit_raw(&r->b, IR_sharding_constraint, 1, to, 1, &type, (int64_t[]){ l->placed[k] }, 1);
	}
	arr_free(&g.leaf);
}

static void loop_init(struct loop *l, struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	*l = (struct loop){ .r = r, .o = o, .in = in, .counter = -1, .v = ir_loop_view(r->a, r->m, r->from, o) };
	l->trip = l->v.trip;
	l->aff = ARENA_NEW(r->a, struct affine, l->v.body->val.n);
	l->counts = ARENA_NEW(r->a, bool, l->v.n);
	l->first = ARENA_NEW(r->a, int64_t, l->v.n);
	l->step = ARENA_NEW(r->a, int64_t, l->v.n);
	l->plan = ARENA_NEW(r->a, enum plan, l->v.n);
	l->reversed = ARENA_NEW(r->a, bool, l->v.n);
	l->placed = ARENA_NEW(r->a, ir_shard, l->v.n);
	l->sunk = ARENA_NEW(r->a, struct sunk, l->v.n);
}

static bool is_splat(const struct rewrite *r, ir_val v)
{
	const struct ir_op *o = ir_def(r->b.fn, v);
	return o && o->kind == IR_constant && ir_splat(r->m, r->b.fn, v);
}

/* A case like o, on the operands that stay; the others are constants, which each branch has as its own, or nothing reads them.  Of its results it has the wanted ones. */
static ir_val smaller_case(struct rewrite *r, const struct ir_op *o, const ir_val *in, const bool *stays, const bool *wanted)
{
	int n;
	const int64_t *branch = ir_attrs(r->from, o, AT_branch, &n);
	ir_val *all = ARENA_NEW(r->a, ir_val, o->nin), *arg = ARENA_NEW(r->a, ir_val, o->nin), *out = ARENA_NEW(r->a, ir_val, o->nout + 1);
	ir_type *t = ARENA_NEW(r->a, ir_type, o->nout + 1);
	int64_t *words = ARENA_NEW(r->a, int64_t, n + 1);
	uint32_t nin = 0, nout = 0;
	for (uint32_t k = 0; k < o->nin; k++)
		if (!k || stays[k])
			all[nin++] = in[k];
	for (uint32_t k = 0; k < o->nout; k++)
		if (wanted[k])
			t[nout++] = r->from->val.p[o->out + k].type;
	words[0] = n;
	for (int i = 0; i < n; i++) {
		const struct ir_fn *was = ir_fn_of(r->m, (ir_fnid)branch[i]);
		struct ir_b b = { r->m, ir_fn_new(r->m, ir_text(r->m, was->name)), o->loc };
		for (uint32_t k = 1; k < o->nin; k++)
			arg[k - 1] = stays[k] ? ir_param(b.fn, was->val.p[k].type) : 0;
		for (uint32_t k = 1; k < o->nin; k++)
			if (!stays[k])
				arg[k - 1] = is_splat(r, in[k]) ? ir_clone(&b, r->b.fn, ir_def(r->b.fn, in[k]), NULL) : ir_const_i(&b, was->val.p[k].type, 0);
		ir_inline(&b, was->id, arg, out);
		for (uint32_t k = 0; k < o->nout; k++)
			if (wanted[k])
				ir_result(b.fn, out[k]);
		words[1 + i] = b.fn->id;
	}
	return ir_emit_raw(&r->b, IR_case, nin, all, nout, t, words, (uint32_t)n + 1);
}

/* A case without results that are not read, and without operands that no branch reads then. */
static ir_val drop_of_case(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	int n;
	const int64_t *branch = ir_attrs(r->from, o, AT_branch, &n);
	bool *wanted = ARENA_NEW(r->a, bool, o->nout + 1), *read = ARENA_NEW(r->a, bool, o->nin), all = true;
	for (uint32_t k = 0; k < o->nout; k++)
		all &= wanted[k] = r->live[o->out + k] & 1;
	for (int i = 0; i < n; i++) {
		uint8_t *live = ir_live(r->a, r->m, ir_fn_of(r->m, (ir_fnid)branch[i]), wanted);
		for (uint32_t k = 1; k < o->nin; k++)
			read[k] |= live[k] || ir_vtype(r->m, r->from, ir_in(r->from, o, k))->dtype == DT_token;
	}
	for (uint32_t k = 1; k < o->nin; k++)
		all &= read[k];
	if (all)
		return 0;
	ir_val v = smaller_case(r, o, in, read, wanted);
	for (uint32_t k = 0; k < o->nout; k++) {
		r->map[o->out + k] = wanted[k] ? v++ : 0;
		if (wanted[k])
			ir_shard_set(r->b.fn, v - 1, ir_shard_of(r->from, o->out + k));
	}
	return REWRITE_MAPPED;
}

/* Operands that are dead: no result read outside, and inside they only feed themselves. */
static ir_val drop_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	if (o->kind == IR_case)
		return drop_of_case(r, o, in);
	if (o->kind != IR_loop)
		return 0;
	struct loop l;
	loop_init(&l, r, o, in);
	bool *wanted = ARENA_NEW(r->a, bool, l.v.body->result.n);
	uint8_t *asked = l.v.cond ? ir_live(r->a, r->m, l.v.cond, NULL) : NULL;
	int kept = 0;
	for (int k = 0; k < l.v.n; k++) {
		bool keep = (l.v.x[k].result >= 0 && r->live[o->out + (uint32_t)l.v.x[k].result] & 1) || (asked && (asked[l.v.x[k].asked] || l.v.x[k].role != ROLE_CONST));
		l.plan[k] = keep ? KEEP : GONE;
	}
	for (int before = -1; kept != before;) {     /* until what is kept needs nothing more */
		for (int k = 0; k < l.v.n; k++)
			if (l.plan[k] == KEEP && l.v.x[k].result >= 0)
				wanted[l.v.x[k].result] = true;
		uint8_t *live = ir_live(r->a, r->m, l.v.body, wanted);
		before = kept;
		kept = 0;
		for (int k = 0; k < l.v.n; k++) {
			if (l.v.x[k].param && live[l.v.x[k].param])
				l.plan[k] = KEEP;
			kept += l.plan[k] == KEEP;
		}
	}
	if (kept == l.v.n)
		return 0;
	rebuild(&l);
	return REWRITE_MAPPED;
}

static ir_val on_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	if (o->kind != IR_loop)
		return 0;
	struct loop l;
	loop_init(&l, r, o, in);
	if (l.v.cond)
		find_counter(&l);
	for (int k = 0; k < l.v.n; k++)      /* the counter, and what else counts with it */
		l.counts[k] = l.trip >= 0 && grows(&l, k);
	analyse(&l);
	choose(&l);
	rebuild(&l);
	return REWRITE_MAPPED;
}

/* A case whose branches have the constants among their operands as their own. */
static ir_val known_case(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	bool *stays = ARENA_NEW(r->a, bool, o->nin), *wanted = ARENA_NEW(r->a, bool, o->nout + 1), all = true;
	memset(wanted, true, sizeof *wanted * (o->nout + 1));
	for (uint32_t k = 1; k < o->nin; k++)
		all &= stays[k] = !is_splat(r, in[k]);
	return all ? 0 : smaller_case(r, o, in, stays, wanted);
}

/* Operands that are one constant many times, of loops that do not change them and of cases. */
static ir_val known_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	if (o->kind == IR_case)
		return known_case(r, o, in);
	if (o->kind != IR_loop)
		return 0;
	struct loop l;
	bool any = false;
	loop_init(&l, r, o, in);
	for (int k = 0; k < l.v.n; k++)
		if (l.v.x[k].role == ROLE_CONST && is_splat(r, in[k]) && sinkable(&l, in[k], &l.sunk[k])) {
			l.plan[k] = SUNK;
			any = true;
		}
	if (!any)
		return 0;
	rebuild(&l);
	return REWRITE_MAPPED;
}

void pass_drop_operands(struct ir_module *m)
{
	pass_rewrite_down(m, drop_op);
}

struct err *pass_loops(const struct pass_opts *o, struct ir_module *m)
{
	if (pass_has(m, IR_loop)) {
		pass_rewrite(m, on_op, NULL, NULL);
		pass_drop_operands(m);
	}
	if (pass_has(m, IR_loop) || pass_has(m, IR_case))
		pass_rewrite_down(m, known_op);      /* what is known now, however deep it goes */
	return NULL;
}
