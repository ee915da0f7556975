/* The values of one function on their way: what is known of them, bringing them where they are read, and an op done on their parts. */
#include "impl.h"

#include <math.h>

enum { FAR = 8 };          /* ops that parts of a sum are followed through */

void scope_init(struct part *p, struct scope *s, const struct ir_fn *from, struct ir_fn *to)
{
	size_t n = from->val.n;
	*s = (struct scope){ .from = from, .b = { p->m, to, 0 }, .map = ARENA_NEW(&p->a, ir_val, n), .sh = ARENA_NEW(&p->a, ir_shard, n), .end = ARENA_NEW(&p->a, ir_shard, n),
	                     .view = ARENA_NEW(&p->a, struct view *, n), .adds = ARENA_NEW(&p->a, ir_shard, n), .asked = ARENA_NEW(&p->a, uint64_t, n), .kept = ARENA_NEW(&p->a, struct move, n),
	                     .turn = ARENA_NEW(&p->a, struct move, n) };
	for (ir_val v = 1; v < n; v++)
		s->end[v] = (ir_shard)PART_ANY;
	s->v = *part_values(p, from);
	s->v.map = s->map;
	s->v.sh = s->sh;
	s->v.end = s->end;
	s->v.moved = s->moved;
	s->v.nmoved = NELEM(s->moved);
	s->v.into = to;
	s->v.kept = s->kept;
	s->v.turn = s->turn;
}

ir_val *scope_operands(struct part *p, struct scope *s, const struct ir_op *o)
{
	ir_val *in = ARENA_NEW(&p->a, ir_val, o->nin + 1);
	for (uint32_t k = 0; k < o->nin; k++)
		in[k] = s->map[ir_in(s->from, o, k)];
	return in;
}

const struct values *scope_values(struct scope *s)
{
	s->v.at = s->b.fn->op.n;
	return &s->v;
}

static ir_val scope_bring(struct part *p, struct scope *s, ir_val x, ir_shard to);

/* What o, which counts along a dimension or is made of such, is as `to`: nothing travels.  Views of that are made anew where they are wanted whole. */
static ir_val counted(struct part *p, struct scope *s, const struct ir_op *o, ir_shard to)
{
	const struct ir_axes *x = part_op_axes(p, &s->v, o);
	struct factor_axes *seen = ARENA_NEW(&p->a, struct factor_axes, x->nfactor + 1);
	struct axes *f = ARENA_NEW(&p->a, struct axes, x->nfactor + 1);
	uint32_t mesh = to ? p->m->shard.p[to].mesh : 0;
	factors_of(&p->a, p->m, x, x->nin, to, seen);
	for (int i = 0; i < x->nfactor; i++)
		f[i] = seen[i].axes;
	if (part_shard(p, x, x->nin, mesh, f) != to)
		return 0;
	ir_val v, *in = ARENA_NEW(&p->a, ir_val, o->nin + 1);
	for (uint32_t k = 0; k < o->nin; k++)
		in[k] = scope_bring(p, s, ir_in(s->from, o, k), part_shard(p, x, (int)k, mesh, f));
	part_emit(p, &s->b, s->from, o, x, mesh, f, in, &v, &to, 0);
	return v;
}

/* Value x, which is no sum to be made, as `to`. */
static ir_val scope_bring(struct part *p, struct scope *s, ir_val x, ir_shard to)
{
	ir_val v = part_copy(scope_values(s), x, to);
	const struct ir_op *o = ir_def(s->from, x);
	if (v)
		return v;
	record_about(p, s->from, x);
	if (s->sh[x] != to && part_counts(p, s->from, x, to))
		v = counted(p, s, o, to);
	if (!v)
		v = part_reshard(p, &s->b, s->map[x], s->sh[x], to);
	ir_type t = s->from->val.p[x].type;
	if (v != s->map[x]) {
		struct move *m = part_local(p, t, to) <= part_local(p, t, s->sh[x]) ? &s->kept[x] : s->v.row[x] ? &s->turn[x] : &s->moved[s->last++ % (int)NELEM(s->moved)];
		*m = (struct move){ s->map[x], v, t, s->sh[x], to, s->b.fn->op.n };
	}
	return v;
}

void scope_finish(struct part *p, struct scope *s, ir_val x, ir_shard to)
{
	if (!s->map[x] || !part_sum(p, s->sh[x]) || part_sum(p, s->sh[x]) == part_sum(p, to))
		return;
	record_about(p, s->from, x);
	s->map[x] = ir_convert(&s->b, part_finish(p, &s->b, s->map[x], &s->sh[x], to), scope_type(p, s, x)->dtype);
}

ir_val scope_fetch(struct part *p, struct scope *s, ir_val x, ir_shard to)
{
	scope_finish(p, s, x, to);
	return scope_bring(p, s, x, to);
}

void scope_put(struct part *p, struct scope *s, ir_val x, ir_val v, ir_shard h, ir_shard to)
{
	s->map[x] = v;
	s->sh[x] = h;
	scope_finish(p, s, x, to);
	record_about(p, s->from, x);
	s->map[x] = part_reshard(p, &s->b, s->map[x], s->sh[x], to);
	if (!part_sum(p, to) || part_sum(p, to) == part_sum(p, scope_wanted(s, x)))
		s->map[x] = ir_convert(&s->b, s->map[x], scope_type(p, s, x)->dtype);
	s->sh[x] = to;
}

void scope_give(struct part *p, struct scope *s, ir_val x, ir_val v, ir_shard h) { scope_put(p, s, x, v, h, part_place(p, scope_values(s), x, h)); }

void scope_summed(struct part *p, struct scope *s, ir_val v) { scope_finish(p, s, v, part_summed(p, scope_wanted(s, v))); }

void scope_finish_sums(struct part *p, struct scope *s, const struct ir_op *o)
{
	for (uint32_t k = 0; k < o->nin; k++)
		scope_summed(p, s, ir_in(s->from, o, k));
}

void scope_note_sum(struct part *p, struct scope *s, const struct ir_op *o)
{
	for (uint32_t k = 0; k < 2; k++) {
		ir_val to = ir_in(s->from, o, k), x = ir_in(s->from, o, 1 - k);
		if (!ir_def(s->from, to) && s->from->val.p[to].nuse == 1 && s->from->val.p[o->out].nuse == 1 && part_sum(p, s->sh[x]))
			s->adds[o->out] = s->sh[x];
	}
}

/* Does o, a multiplication or a division of parts of a sum by one number, do to the sum what it does to the parts?  Not where that makes them
 * larger: parts that cancel would overflow before they do, and infinities of either sign give no number.  Nor where it rounds the parts: of what is
 * exact, like whole numbers, little may be left when they cancel. */
static bool scales(struct part *p, struct scope *s, const struct ir_op *o)
{
	enum dtype dt = scope_type(p, s, o->out)->dtype;
	if ((o->kind != IR_multiply && o->kind != IR_divide) || dtype_info[dt].cls != DT_FLOAT)
		return false;
	int power;
	const void *splat = ir_splat(p->m, s->from, ir_in(s->from, o, 1));
	double by = splat ? fabs(dtype_real(dt, splat)) : NAN;
	return (o->kind == IR_multiply ? by <= 1 : by >= 1 && by < INFINITY) && (!by || frexp(by, &power) == 0.5);
}

ir_shard scope_says_parts(struct part *p, const struct ir_fn *fn, const struct ir_op *o)
{
	ir_shard h = o && o->kind == IR_sharding_constraint ? (ir_shard)ir_attr(fn, o, AT_sharding) : 0;
	return part_sum(p, h) ? h : 0;
}

ir_shard scope_read_in_parts(struct part *p, const struct ir_fn *fn, ir_val v)
{
	return fn->val.p[v].nuse == 1 && ir_use_first(fn, v) ? scope_says_parts(p, fn, &fn->op.p[ir_use_op(fn, ir_use_first(fn, v))]) : 0;
}

/* Is what o makes of parts of a sum parts of what it makes of the sum? */
static bool linear(struct part *p, struct scope *s, const struct ir_op *o)
{
	switch (o->kind) {
	case IR_add: case IR_subtract: case IR_negate: case IR_transpose: case IR_reshape:
		return true;
	case IR_broadcast:
		return scope_type(p, s, ir_in(s->from, o, 0))->bytes == scope_type(p, s, o->out)->bytes;
	case IR_slice:                               /* less is summed then, if nobody wants the rest */
		return s->from->val.p[ir_in(s->from, o, 0)].nuse == 1;
	case IR_convert:                             /* each its own, if the program says so */
		return dtype_info[scope_type(p, s, o->out)->dtype].cls == DT_FLOAT && scope_read_in_parts(p, s->from, o->out);
	default:
		return scales(p, s, o);
	}
}

/* Is what x is read for looked at as far as that for the first time since `asking` last grew?  Many ways may lead to it. */
static bool not_asked(struct scope *s, ir_val x, int far)
{
	uint64_t now = s->asking * (FAR + 1) + (unsigned)far + 1;
	if (s->asked[x] >= now)
		return false;
	s->asked[x] = now;
	return true;
}

/* Does an op of the function, other than `but`, need the sum that x is parts of?  What holds functions may, or may not.  far: or what is made of x, itself such parts. */
static bool summed_here(struct part *p, struct scope *s, ir_val x, const struct ir_op *but, int far)
{
	bool any = false;
	for (uint32_t u = ir_use_first(s->from, x); u && !any; u = ir_use_next(s->from, u)) {
		const struct ir_op *q = &s->from->op.p[ir_use_op(s->from, u)];
		switch ((enum ir_kind)q->kind) {
		case IR_loop: case IR_case: case IR_manual: case IR_optimization_barrier: case IR_sharding_constraint: case IR_sharding_group: case IR_inspect_sharding:
			break;
		default:
			any = q != but && (!linear(p, s, q) || (far && not_asked(s, q->out, far - 1) && summed_here(p, s, q->out, NULL, far - 1)));
		}
	}
	return any;
}

/* Is x, which is cut, added to what o, which turns it about, makes of it?  Parts of both are cut otherwise, and each would be summed by itself. */
static bool added_to_itself(struct part *p, struct scope *s, const struct ir_op *o, ir_val x)
{
	bool cut = false;
	for (int d = 0; d < scope_type(p, s, x)->rank; d++)
		cut |= ir_shard_parts(p->m, s->sh[x], d) > 1;
	for (uint32_t u = cut && o->kind == IR_transpose ? ir_use_first(s->from, x) : 0; u; u = ir_use_next(s->from, u)) {
		const struct ir_op *q = &s->from->op.p[ir_use_op(s->from, u)];
		if ((q->kind == IR_add || q->kind == IR_subtract) && (ir_in(s->from, q, 0) == o->out || ir_in(s->from, q, 1) == o->out))
			return true;
	}
	return false;
}

/* Would the sum that x is parts of be made twice if o made parts of it? */
static bool summed_twice(struct part *p, struct scope *s, const struct ir_op *o, ir_val x)
{
	if (added_to_itself(p, s, o, x))
		return true;
	uint32_t uses = 0;
	for (uint32_t u = ir_use_first(s->from, x); u; u = ir_use_next(s->from, u))
		uses++;
	bool result = uses < s->from->val.p[x].nuse && (s->end[x] == (ir_shard)PART_ANY || !part_sum(p, s->end[x]));
	s->asking++;
	return summed_here(p, s, x, o, 0) || (result && summed_here(p, s, o->out, NULL, FAR));
}

bool scope_keeps_sums(struct part *p, struct scope *s, const struct ir_op *o)
{
	ir_val first = o->nin ? ir_in(s->from, o, 0) : 0;
	ir_shard h = o->nin ? s->sh[first] : 0, summed = part_summed(p, h);
	if (!part_sum(p, h) || !linear(p, s, o))
		return false;
	bool scaled = scales(p, s, o), cast = o->kind == IR_convert;
	for (uint32_t k = 0; k < o->nin; k++)
		if (part_sum(p, s->sh[ir_in(s->from, o, k)]) && summed_twice(p, s, o, ir_in(s->from, o, k)))
			return false;
	for (uint32_t k = 1; k < o->nin && !scaled; k++)
		if (!part_equal(p, s->sh[ir_in(s->from, o, k)], h, scope_type(p, s, o->out)->rank))
			return false;
	const struct ir_axes *x = part_op_axes(p, &s->v, o);
	struct factor_axes *seen = ARENA_NEW(&p->a, struct factor_axes, x->nfactor + 1);
	struct axes *f = ARENA_NEW(&p->a, struct axes, x->nfactor + 1);
	factors_of(&p->a, p->m, x, 0, summed, seen);
	for (int i = 0; i < x->nfactor; i++)
		f[i] = seen[i].axes;
	uint32_t mesh = p->m->shard.p[h].mesh;
	if (part_shard(p, x, 0, mesh, f) != summed || !part_contiguous(x, f))
		return false;
	for (int i = 0; i < x->nfactor; i++)
		if (f[i].n && (!part_can(p, s->from, o, x, i) || x->factor[i].size % axes_size(f[i])))
			return false;
	ir_val *in = scope_operands(p, s, o);
	if (scaled)
		in[1] = part_reshard(p, &s->b, in[1], s->sh[ir_in(s->from, o, 1)], summed);
	enum dtype dt = ir_vtype(p->m, s->b.fn, in[0])->dtype;
	for (uint32_t k = 1; k < o->nin; k++)
		if (ir_vtype(p->m, s->b.fn, in[k])->dtype != dt)
			dt = DT_f32;                 /* parts of narrow floats travel in f32, but of those that the program names */
	for (uint32_t k = 0; k < o->nin; k++)
		in[k] = ir_convert(&s->b, in[k], dt);
	ir_shard to = part_shard(p, x, x->nin, mesh, f);
	uint32_t n;
	int64_t *w = ir_attr_copy(&p->a, s->from, o, &n);
	if (o->kind == IR_slice)
		part_extents(p, o, w, to, part_type(p, s->from->val.p[o->out].type, to, dt));
	ir_val v = cast ? ir_convert(&s->b, in[0], scope_type(p, s, o->out)->dtype) : ir_emit(&s->b, (enum ir_kind)o->kind, o->nin, in, part_type(p, s->from->val.p[o->out].type, to, dt), w, n);
	scope_give(p, s, o->out, v, part_with_sum(p, to, mesh, part_axes(p, part_sum(p, h), 0), scope_type(p, s, o->out)->rank));
	return true;
}

ir_val scope_same(struct part *p, struct scope *s, ir_val v, int64_t device)
{
	int64_t *all = ARENA_NEW(&p->a, int64_t, p->ndev), group;
	for (int d = 0; d < p->ndev; d++)
		all[d] = d ? d - (d <= device) : device;
	group = ir_group_add(p->m, 1, p->ndev, all);
	ir_type t = s->b.fn->val.p[v].type;
	return ir_emit_raw(&s->b, IR_collective_broadcast, 1, &v, 1, &t, &group, 1);
}

/* Numbers drawn outside manual computations are one value. */
static bool same_numbers(const struct part *p, const struct ir_op *o) { return o->kind == IR_rng && p->ndev > 1 && !p->apart.n; }

void scope_part(struct part *p, struct scope *s, const struct values *v, const struct ir_op *o, ir_val *in, const ir_shard *have, ir_val *out, ir_shard *lie)
{
	const struct ir_fn *fn = v->fn;
	bool any = false;
	for (uint32_t k = 0; k < o->nin; k++)
		any |= have[k] != 0;
	for (uint32_t k = 0; k < o->nout; k++)
		any |= v->want[o->out + k] != 0;
	if (!any) {
		ir_val y = ir_clone(&s->b, fn, o, in);
		for (uint32_t k = 0; k < o->nout; k++) {
			out[k] = y + k;
			lie[k] = 0;
		}
	} else {
		const struct ir_axes *x = part_op_axes(p, v, o);
		uint32_t mesh;
		struct axes *f = part_choose(p, v, o, x, have, &mesh);
		if (p->rec)
			why_cut(p, fn, o, x, have, mesh, f);
		for (uint32_t k = 0; k < o->nin; k++) {
			ir_shard to = part_shard(p, x, (int)k, mesh, f);
			record_about(p, p->why.fn, ir_in(p->why.fn, p->why.o, k));
			in[k] = v == &s->v ? scope_fetch(p, s, ir_in(fn, o, k), to) : part_reshard(p, &s->b, in[k], have[k], to);
		}
		for (uint32_t k = 0; k < o->nout; k++)
			lie[k] = part_shard(p, x, x->nin + (int)k, mesh, f);
		if (o->kind == IR_gather)
			record_about(p, p->why.fn, p->why.o->out);
		bool sum = part_emit(p, &s->b, fn, o, x, mesh, f, in, out, lie, o->nout ? v->want[o->out] : 0);
		for (uint32_t k = 0; k < o->nout; k++) {
			struct axes sums = sum ? part_sums(p, x, (int)k, f) : (struct axes){0};
			if (sums.n)
				lie[k] = part_with_sum(p, lie[k], mesh, sums, ir_vtype(p->m, fn, o->out + k)->rank);
		}
	}
	for (uint32_t k = 0; k < o->nout && same_numbers(p, o); k++)
		out[k] = scope_same(p, s, out[k], 0);
}

void scope_do(struct part *p, struct scope *s, const struct ir_op *o)
{
	ir_shard *have = ARENA_NEW(&p->a, ir_shard, o->nin + 1), *lie = ARENA_NEW(&p->a, ir_shard, o->nout + 1);
	for (uint32_t k = 0; k < o->nin; k++)
		have[k] = s->sh[ir_in(s->from, o, k)];
	ir_val *out = ARENA_NEW(&p->a, ir_val, o->nout + 1);
	scope_part(p, s, scope_values(s), o, scope_operands(p, s, o), have, out, lie);
	for (uint32_t k = 0; k < o->nout; k++)
		scope_give(p, s, o->out + k, out[k], lie[k]);
}

void scope_at_maker(struct scope *s, ir_val v)
{
	const struct ir_op *o = ir_def(s->from, v);
	s->b.loc = o ? o->loc : 0;
}
