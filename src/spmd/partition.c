/* From whole arrays to the program of one device.
 *
 * Shardings have been propagated to every value (propagate.c) and are settled here (settle.c).  Of each op it is chosen which of its factors
 * are cut (choose.c); its operands are brought to that (reshard.c), the device's part of it is emitted (local.c), and the results are brought
 * to where their values shall lie.  What cannot be done in parts is done whole, on every device.  Bodies of manual computations are spliced in:
 * their types are local already along the manual axes, and are cut further along others. */
#include "impl.h"

/* One function on its way; map and sharding of its values as they are; moved: what was brought elsewhere not long ago. */
enum { NEAR = 32 };        /* ops: what is gathered again later would be kept all the time */
struct move { ir_val from, to; ir_shard sh; size_t at; };
struct scope { const struct ir_fn *from; struct ir_b b; ir_val *map; ir_shard *sh; struct move moved[16]; int last; };

static struct err *do_ops(struct part *p, struct scope *s);

/* --- what a program may ask for -------------------------------------------------------------- */

static struct err *check(struct part *p, ir_shard h, const struct ir_type_info *t, const char *what, bool even)
{
	if (!h)
		return NULL;
	const struct ir_shard_info *i = &p->m->shard.p[h];
	const struct ir_mesh *mesh = &p->m->mesh.p[i->mesh];
	struct err *e = NULL;
	struct str s = {0};
	ir_print_shard(&s, p->m, h);
	if (!mesh->naxis && mesh->id && even)
		e = ERR(UNIMPLEMENTED, "%s is on device %lld alone", what, (long long)mesh->id[0]);
	else if (mesh->naxis && i->rank != t->rank)
		e = ERR(INVALID, "%s is of rank %d, its sharding %s is not", what, t->rank, s.p);
	else if (i->npart && i->part_op != RED_add && i->part_op != RED_softmax)
		e = ERR(UNIMPLEMENTED, "%s has the unreduced sharding %s", what, s.p);
	else if (mesh->naxis && mesh->ndev != p->ndev && mesh->ndev != 1)
		e = ERR(UNIMPLEMENTED, "%s is sharded over a mesh of %lld devices, the program has %d", what, (long long)mesh->ndev, p->ndev);
	for (int d = 0; !e && even && d < t->rank; d++)
		if (t->dim[d] % ir_shard_parts(p->m, h, d))
			e = ERR(UNIMPLEMENTED, "%s: dimension %d of size %lld does not divide into the %lld parts of %s", what, d, (long long)t->dim[d],
			        (long long)ir_shard_parts(p->m, h, d), s.p);
	str_free(&s);
	return e;
}

static const char *named(struct part *p, const char *what, uint32_t i)
{
	char *s = ARENA_NEW(&p->a, char, 64);
	snprintf(s, 64, "%s %u", what, i);
	return s;
}

static struct err *at_line(struct part *p, const struct ir_op *o, struct err *e)
{
	const struct ir_loc_info *l = &p->m->loc.p[o->loc];
	return e && l->file ? err_wrap(e, "%s:%d", ir_text(p->m, l->file), l->line) : e;
}

/* --- one op ------------------------------------------------------------------------------------ */

static const struct ir_type_info *whole(struct part *p, const struct scope *s, ir_val v) { return ir_vtype(p->m, s->from, v); }

static ir_shard wanted(struct part *p, const struct scope *s, ir_val v)
{
	return shard_settled(&p->a, p->m, ir_shard_of(s->from, v), whole(p, s, v), false);
}

static ir_val *operands(struct part *p, struct scope *s, const struct ir_op *o)
{
	ir_val *in = ARENA_NEW(&p->a, ir_val, o->nin + 1);
	for (uint32_t k = 0; k < o->nin; k++)
		in[k] = s->map[ir_in(s->from, o, k)];
	return in;
}

/* v, which lies as from, as `to`. */
static ir_val bring(struct part *p, struct scope *s, ir_val v, ir_shard from, ir_shard to)
{
	for (size_t i = 0; i < NELEM(s->moved); i++)
		if (v && s->moved[i].from == v && s->moved[i].sh == to && s->moved[i].at + NEAR > s->b.fn->op.n)
			return s->moved[i].to;
	ir_val r = part_reshard(p, &s->b, v, from, to);
	if (r != v)
		s->moved[s->last++ % (int)NELEM(s->moved)] = (struct move){ v, r, to, s->b.fn->op.n };
	return r;
}

/* v, which lies as h, is value x: where x shall lie. */
static void give(struct part *p, struct scope *s, ir_val x, ir_val v, ir_shard h)
{
	ir_shard to = wanted(p, s, x);
	s->map[x] = part_reshard(p, &s->b, v, h, to);
	s->sh[x] = to;
}

/* What is still to be summed among o's operands is summed. */
static void finish_sums(struct part *p, struct scope *s, const struct ir_op *o)
{
	for (uint32_t k = 0; k < o->nin; k++) {
		ir_val x = ir_in(s->from, o, k);
		if (!part_sum(p, s->sh[x]))
			continue;
		s->map[x] = part_reshard(p, &s->b, s->map[x], s->sh[x], part_summed(p, s->sh[x]));
		s->sh[x] = part_summed(p, s->sh[x]);
	}
}

/* Sums of parts are parts of sums: of ops whose operands are all partial alike. */
static bool keeps_sums(struct part *p, struct scope *s, const struct ir_op *o)
{
	bool linear = o->kind == IR_add || o->kind == IR_subtract || o->kind == IR_negate || o->kind == IR_transpose || o->kind == IR_reshape;
	ir_shard h = o->nin ? s->sh[ir_in(s->from, o, 0)] : 0;
	if (!linear || !part_sum(p, h) || part_summed(p, h))
		return false;
	for (uint32_t k = 1; k < o->nin; k++)
		if (s->sh[ir_in(s->from, o, k)] != h)
			return false;
	struct ir_shard_info n = p->m->shard.p[h];
	n.rank = whole(p, s, o->out)->rank;
	n.dim = ARENA_NEW(&p->a, struct ir_dim_shard, n.rank + 1);
	s->map[o->out] = ir_clone(&s->b, s->from, o, operands(p, s, o));
	s->sh[o->out] = ir_shard_add(p->m, &n);
	return true;
}

/* The first device's v, on all. */
static ir_val same_everywhere(struct part *p, struct scope *s, ir_val v)
{
	int64_t *all = ARENA_NEW(&p->a, int64_t, p->ndev), group;
	for (int d = 0; d < p->ndev; d++)
		all[d] = d;
	group = ir_group_add(p->m, 1, p->ndev, all);
	ir_type t = s->b.fn->val.p[v].type;
	return ir_emit_raw(&s->b, IR_collective_broadcast, 1, &v, 1, &t, &group, 1);
}

/* Sharding h of an array of that rank, and a sum over l that is still to be made. */
static ir_shard with_sum(struct part *p, ir_shard h, uint32_t mesh, struct axes l, int rank)
{
	struct ir_shard_info n = { .mesh = mesh, .rank = rank };
	if (h)
		n = p->m->shard.p[h];
	else
		n.dim = ARENA_NEW(&p->a, struct ir_dim_shard, rank + 1);
	n.npart = l.n;
	n.part = (struct ir_axis_ref *)l.p;
	n.part_op = RED_add;
	return ir_shard_add(p->m, &n);
}

/* Numbers drawn outside manual computations are one value. */
static bool same_numbers(const struct part *p, const struct ir_op *o) { return o->kind == IR_rng && p->ndev > 1 && !p->apart.n; }

static struct err *do_plain(struct part *p, struct scope *s, const struct ir_op *o)
{
	const struct ir_fn *fn = s->from;
	finish_sums(p, s, o);
	ir_shard *have = ARENA_NEW(&p->a, ir_shard, o->nin + 1), *want = ARENA_NEW(&p->a, ir_shard, o->nout + 1);
	bool any = false;
	for (uint32_t k = 0; k < o->nin; k++)
		any |= (have[k] = s->sh[ir_in(fn, o, k)]) != 0;
	for (uint32_t k = 0; k < o->nout; k++)
		any |= (want[k] = part_summed(p, wanted(p, s, o->out + k))) != 0;
	ir_val *in = operands(p, s, o), *out = ARENA_NEW(&p->a, ir_val, o->nout + 1);
	if (!any) {
		ir_val v = ir_clone(&s->b, fn, o, in);
		if (same_numbers(p, o))
			v = same_everywhere(p, s, v);
		for (uint32_t k = 0; k < o->nout; k++)
			give(p, s, o->out + k, v + k, 0);
		return NULL;
	}
	const struct ir_axes *x = ir_axes_of(&p->a, p->m, fn, o);
	uint32_t mesh;
	struct axes *f = part_choose(p, fn, o, x, have, want, &mesh);
	for (uint32_t k = 0; k < o->nin; k++)
		in[k] = bring(p, s, in[k], have[k], part_shard(p, x, (int)k, mesh, f));
	bool sum = part_emit(p, &s->b, fn, o, x, mesh, f, in, out);
	for (uint32_t k = 0; k < o->nout; k++) {
		ir_shard h = part_shard(p, x, x->nin + (int)k, mesh, f), to = wanted(p, s, o->out + k);
		if (sum) {
			h = with_sum(p, h, mesh, part_sums(p, x, f), whole(p, s, o->out)->rank);
			if (part_sum(p, h) != part_sum(p, to))
				out[k] = part_finish(p, &s->b, out[k], &h, to);
			out[k] = ir_convert(&s->b, out[k], whole(p, s, o->out)->dtype);
		}
		give(p, s, o->out + k, same_numbers(p, o) ? same_everywhere(p, s, out[k]) : out[k], h);
	}
	return NULL;
}

/* Each result is its operand, where that lies. */
static void do_barrier(struct part *p, struct scope *s, const struct ir_op *o)
{
	ir_val *in = operands(p, s, o);
	ir_type *t = ARENA_NEW(&p->a, ir_type, o->nout + 1);
	for (uint32_t k = 0; k < o->nout; k++)
		t[k] = s->b.fn->val.p[in[k]].type;
	ir_val v = ir_emit_raw(&s->b, o->kind, o->nin, in, o->nout, t, NULL, 0);
	for (uint32_t k = 0; k < o->nout; k++)
		give(p, s, o->out + k, v + k, s->sh[ir_in(s->from, o, k)]);
}

/* --- regions --------------------------------------------------------------------------------------- */

static void scope_init(struct part *p, struct scope *s, const struct ir_fn *from, struct ir_fn *to)
{
	*s = (struct scope){ from, { p->m, to, 0 }, ARENA_NEW(&p->a, ir_val, from->val.n), ARENA_NEW(&p->a, ir_shard, from->val.n) };
}

/* Results k and k + 1 of manual computation o are the parts of a joint sum: they are put together. */
static void join(struct part *p, struct scope *s, struct scope *b, const struct ir_op *o, uint32_t k, const int64_t *out)
{
	const struct ir_fn *body = b->from;
	ir_val v[2];
	ir_type t[2];
	for (uint32_t j = 0; j < 2; j++) {
		ir_val x = body->result.p[k + j];
		v[j] = part_reshard(p, &s->b, b->map[x], b->sh[x], 0);
		t[j] = s->b.fn->val.p[v[j]].type;
	}
	ir_shard h = (ir_shard)out[k];
	int64_t w[3] = { part_group(p, p->m->shard.p[h].mesh, part_axes(p, part_sum(p, h), 0)), RED_softmax, 0 };
	ir_val both = ir_emit_raw(&s->b, IR_all_reduce, 2, v, 2, t, w, 3);
	for (uint32_t j = 0; j < 2; j++) {
		ir_val x = o->out + k + j;
		s->map[x] = both + j;
		s->sh[x] = part_summed(p, shard_settled(&p->a, p->m, (ir_shard)out[k + j], whole(p, s, x), false));
	}
}

/* What of sharding h, of value x of fn, is by axes of the mesh that are in set (or not). */
static ir_shard by_axes(struct part *p, ir_shard h, const struct ir_type_info *t, uint64_t set, bool in)
{
	if (!h)
		return 0;
	struct ir_shard_info n = p->m->shard.p[h];
	struct ir_dim_shard *dim = ARENA_NEW(&p->a, struct ir_dim_shard, t->rank + 1);
	for (int d = 0; d < t->rank; d++) {
		struct axes l = part_axes(p, h, d);
		struct ir_axis_ref *q = ARENA_NEW(&p->a, struct ir_axis_ref, l.n + 1);
		dim[d].axis = q;
		for (int i = 0; i < l.n; i++)
			if ((set >> l.p[i].axis & 1) == in)
				q[dim[d].naxis++] = l.p[i];
	}
	n.dim = dim;
	n.rank = t->rank;
	n.nrepl = 0;
	if (!in)
		n.npart = 0;
	h = ir_shard_add(p->m, &n);
	return ir_shard_replicated(p->m, h) ? 0 : h;
}

/* The body's axes behind the manual ones: where a value of it lies, as who stands outside sees it. */
static ir_shard outside(struct part *p, ir_shard manual, ir_shard inner, const struct ir_type_info *t)
{
	if (!inner)
		return manual;
	if (!manual)
		return inner;
	struct ir_shard_info n = p->m->shard.p[manual];
	struct ir_dim_shard *dim = ARENA_NEW(&p->a, struct ir_dim_shard, t->rank + 1);
	for (int d = 0; d < t->rank; d++) {
		struct axes l = axes_join(&p->a, part_axes(p, manual, d), part_axes(p, inner, d));
		dim[d] = (struct ir_dim_shard){ .naxis = l.n, .axis = (struct ir_axis_ref *)l.p };
	}
	n.dim = dim;
	return ir_shard_add(p->m, &n);
}

static struct err *do_manual(struct part *p, struct scope *s, const struct ir_op *o)
{
	const struct ir_fn *fn = s->from, *body = ir_fn_of(p->m, (ir_fnid)ir_attr(fn, o, AT_body));
	int nin, nout, na;
	const int64_t *in = ir_attrs(fn, o, AT_in, &nin), *out = ir_attrs(fn, o, AT_out, &nout), *axes = ir_attrs(fn, o, AT_axes, &na);
	uint64_t set = 0;
	for (int k = 0; k < na; k++)
		set |= 1ull << axes[k];
	struct scope b;
	scope_init(p, &b, body, s->b.fn);
	for (uint32_t k = 0; k < o->nin; k++) {
		ir_val v = ir_in(fn, o, k);
		const struct ir_type_info *t = whole(p, s, v);
		ir_shard given = (int)k < nin ? shard_settled(&p->a, p->m, (ir_shard)in[k], t, false) : 0, manual = by_axes(p, given, t, set, true);
		TRY(check(p, (int)k < nin ? (ir_shard)in[k] : 0, t, named(p, "operand", k), true));
		ir_shard inner = shard_settled(&p->a, p->m, by_axes(p, ir_shard_of(body, k + 1), ir_vtype(p->m, body, k + 1), set, false), ir_vtype(p->m, body, k + 1), false);
		b.map[k + 1] = part_reshard(p, &s->b, s->map[v], s->sh[v], outside(p, manual, inner, t));
		b.sh[k + 1] = inner;
	}
	b.b.loc = o->loc;
	struct axes around = p->apart;
	uint32_t around_of = p->apart_of;
	struct ir_axis_ref *all = ARENA_NEW(&p->a, struct ir_axis_ref, p->apart.n + na + 1);
	for (int i = 0; i < p->apart.n; i++)
		all[i] = p->apart.p[i];
	uint32_t mesh = nin && in[0] ? p->m->shard.p[in[0]].mesh : nout && out[0] ? p->m->shard.p[out[0]].mesh : p->apart_of;
	for (int k = 0; k < na; k++)
		all[p->apart.n + k] = (struct ir_axis_ref){ (uint16_t)axes[k], 1, p->m->mesh.p[mesh].axis[axes[k]].size };
	p->apart = (struct axes){ p->apart.n + na, all };
	p->apart_of = mesh;
	struct err *e = do_ops(p, &b);
	p->apart = around;
	p->apart_of = around_of;
	TRY(e);
	for (uint32_t k = 0; k < o->nout; k++) {
		ir_val v = body->result.p[k], x = o->out + k;
		if ((int)k + 1 < nout && ir_shard_joint(p->m, (ir_shard)out[k])) {
			join(p, s, &b, o, k, out);
			k++;
			continue;
		}
		ir_val r = part_reshard(p, &s->b, b.map[v], b.sh[v], part_summed(p, b.sh[v]));
		const struct ir_type_info *t = whole(p, s, x);
		ir_shard given = (int)k < nout ? shard_settled(&p->a, p->m, (ir_shard)out[k], t, false) : 0;
		give(p, s, x, r, outside(p, by_axes(p, given, t, set, true), part_summed(p, b.sh[v]), t));
	}
	return NULL;
}

/* Function f on parts: parameters come as sh says; each is brought to where its value shall lie, the results to want[k] (NULL:
 * whole). */
static struct err *do_region(struct part *p, ir_fnid f, const ir_shard *sh, const ir_shard *want, ir_fnid *out)
{
	const struct ir_fn *fn = ir_fn_of(p->m, f);
	struct ir_fn *g = ir_fn_new(p->m, ir_text(p->m, fn->name));
	struct scope s;
	scope_init(p, &s, fn, g);
	for (uint32_t i = 1; i <= fn->nparam; i++)
		s.map[i] = ir_param(g, part_type(p, fn->val.p[i].type, sh[i - 1], DT_token));
	for (uint32_t i = 1; i <= fn->nparam; i++)
		give(p, &s, i, s.map[i], sh[i - 1]);
	TRY(do_ops(p, &s));
	for (size_t i = 0; i < fn->result.n; i++) {
		ir_val v = fn->result.p[i];
		ir_result(g, part_reshard(p, &s.b, s.map[v], s.sh[v], want ? want[i] : 0));
	}
	*out = g->id;
	return NULL;
}

/* h without dimension 0, or with one before it that is whole. */
static ir_shard shifted(struct part *p, ir_shard h, int rank, int by)
{
	if (!h)
		return 0;
	struct ir_shard_info n = { .mesh = p->m->shard.p[h].mesh, .rank = rank };
	n.dim = ARENA_NEW(&p->a, struct ir_dim_shard, rank + 1);
	for (int d = 0; d < rank; d++)
		if (d + by >= 0)
			n.dim[d] = p->m->shard.p[h].dim[d + by];
	h = ir_shard_add(p->m, &n);
	return ir_shard_replicated(p->m, h) ? 0 : h;
}

static struct err *do_loop(struct part *p, struct scope *s, const struct ir_op *o)
{
	const struct ir_fn *fn = s->from;
	const struct ir_loop l = ir_loop_view(&p->a, p->m, fn, o);
	ir_shard *par = ARENA_NEW(&p->a, ir_shard, l.body->nparam + 1), *res = ARENA_NEW(&p->a, ir_shard, l.nmade + 1),
	         *asked = ARENA_NEW(&p->a, ir_shard, l.n + 1), *end = ARENA_NEW(&p->a, ir_shard, l.nmade + 1);
	finish_sums(p, s, o);
	ir_val *in = operands(p, s, o);
	for (int k = 0; k < l.n; k++) {
		const struct ir_loop_operand *q = &l.x[k];
		bool stack = ir_role_is_stack(q->role);
		int rank = whole(p, s, q->v)->rank;
		ir_shard have = s->sh[q->v], h = q->result >= 0 ? part_summed(p, wanted(p, s, o->out + (uint32_t)q->result)) :
		         !stack && q->param ? part_summed(p, wanted(p, &(struct scope){ .from = l.body }, q->param)) : have;
		ir_shard inner = h;
		if (stack) {                         /* slices are taken where they lie: the stack is cut along other dimensions only */
			inner = shifted(p, h, rank - 1, 1);
			h = shifted(p, inner, rank, -1);
		}
		in[k] = part_reshard(p, &s->b, in[k], have, h);
		if (q->asked)
			asked[q->asked - 1] = h;
		if (q->param)
			par[q->param - 1] = inner;
		if (q->result >= 0) {
			res[q->result] = inner;
			end[q->result] = h;
		}
	}
	uint32_t words;
	int64_t *w = ir_attr_copy(&p->a, fn, o, &words), *cond = ir_attr_word(IR_loop, w, AT_cond), *body = ir_attr_word(IR_loop, w, AT_body);
	ir_fnid f;
	if (*cond) {
		TRY(do_region(p, (ir_fnid)*cond, asked, NULL, &f));
		*cond = f;
	}
	TRY(do_region(p, (ir_fnid)*body, par, res, &f));
	*body = f;
	ir_type *t = ARENA_NEW(&p->a, ir_type, o->nout + 1);
	for (uint32_t k = 0; k < o->nout; k++)
		t[k] = part_type(p, fn->val.p[o->out + k].type, end[k], DT_token);
	s->b.loc = o->loc;
	ir_val v = ir_emit_raw(&s->b, IR_loop, o->nin, in, o->nout, t, w, words);
	for (uint32_t k = 0; k < o->nout; k++)
		give(p, s, o->out + k, v + k, end[k]);
	return NULL;
}

static struct err *do_case(struct part *p, struct scope *s, const struct ir_op *o)
{
	const struct ir_fn *fn = s->from;
	int n;
	const int64_t *branch = ir_attrs(fn, o, AT_branch, &n);
	finish_sums(p, s, o);
	ir_shard *sh = ARENA_NEW(&p->a, ir_shard, o->nin + 1), *end = ARENA_NEW(&p->a, ir_shard, o->nout + 1);
	ir_val *in = operands(p, s, o);
	in[0] = part_reshard(p, &s->b, in[0], s->sh[ir_in(fn, o, 0)], 0);
	for (uint32_t k = 1; k < o->nin; k++)
		sh[k] = s->sh[ir_in(fn, o, k)];
	for (uint32_t k = 0; k < o->nout; k++)
		end[k] = part_summed(p, wanted(p, s, o->out + k));
	int64_t *w = ARENA_NEW(&p->a, int64_t, n + 1);
	w[0] = n;
	for (int j = 0; j < n; j++) {
		ir_fnid f;
		TRY(do_region(p, (ir_fnid)branch[j], sh + 1, end, &f));
		w[j + 1] = f;
	}
	ir_type *t = ARENA_NEW(&p->a, ir_type, o->nout + 1);
	for (uint32_t k = 0; k < o->nout; k++)
		t[k] = part_type(p, fn->val.p[o->out + k].type, end[k], DT_token);
	s->b.loc = o->loc;
	ir_val v = ir_emit_raw(&s->b, IR_case, o->nin, in, o->nout, t, w, (uint32_t)n + 1);
	for (uint32_t k = 0; k < o->nout; k++)
		give(p, s, o->out + k, v + k, end[k]);
	return NULL;
}

static struct err *do_op(struct part *p, struct scope *s, const struct ir_op *o)
{
	s->b.loc = o->loc;
	switch ((enum ir_kind)o->kind) {
	case IR_manual:
		return at_line(p, o, do_manual(p, s, o));
	case IR_sharding_constraint: {
		ir_val x = ir_in(s->from, o, 0);
		TRY(at_line(p, o, check(p, (ir_shard)ir_attr(s->from, o, AT_sharding), whole(p, s, x), "a constraint", false)));
		give(p, s, o->out, s->map[x], s->sh[x]);
		return NULL;
	}
	case IR_sharding_group:
		return NULL;
	case IR_loop:
		return do_loop(p, s, o);
	case IR_case:
		return do_case(p, s, o);
	case IR_optimization_barrier:
		do_barrier(p, s, o);
		return NULL;
	default:
		return keeps_sums(p, s, o) ? NULL : do_plain(p, s, o);
	}
}

static struct err *do_ops(struct part *p, struct scope *s)
{
	for (size_t i = 0; i < s->from->op.n; i++)
		TRY(do_op(p, s, &s->from->op.p[i]));
	return NULL;
}

/* --- a program --------------------------------------------------------------------------------------- */

/* Is there anything to do? */
static bool plain_program(const struct ir_module *m)
{
	for (size_t f = 1; f < m->fn.n; f++)
		for (size_t i = 0; i < m->fn.p[f]->op.n; i++) {
			enum ir_kind k = m->fn.p[f]->op.p[i].kind;
			if (k == IR_manual || k == IR_sharding_constraint || k == IR_sharding_group)
				return false;
		}
	return true;
}

struct err *spmd_partition(struct ir_module *m, int ndev)
{
	const struct ir_fn *fn = ir_main(m);
	if (ndev <= 1 && plain_program(m))
		return NULL;
	struct part p = { .m = m, .ndev = MAX(1, ndev) };
	arena_init(&p.a);
	struct err *e = NULL;
	bool *given = ARENA_NEW(&p.a, bool, fn->result.n + 1), *asked = ARENA_NEW(&p.a, bool, fn->nparam + 1);
	for (uint32_t i = 0; i < fn->nparam; i++) {
		asked[i] = m->arg[i].shard != 0;
		TRY_GOTO(e, check(&p, ndev > 1 ? m->arg[i].shard : 0, ir_vtype(m, fn, i + 1), named(&p, "argument", i), true), out);
	}
	for (size_t i = 0; i < fn->result.n; i++) {
		given[i] = m->res[i].shard != 0;
		TRY_GOTO(e, check(&p, ndev > 1 ? m->res[i].shard : 0, ir_vtype(m, fn, fn->result.p[i]), named(&p, "result", (uint32_t)i), true), out);
	}
	int nfn;
	const ir_fnid *all = ir_reachable(&p.a, m, &nfn);
	for (int i = 0; ndev > 1 && i < nfn; i++) {
		const struct ir_fn *f = ir_fn_of(m, all[i]);
		for (ir_val v = 1; v < f->shard.n; v++) {
			const struct ir_op *o = ir_def(f, v);
			struct err *bad = check(&p, ir_shard_of(f, v), ir_vtype(m, f, v), "a value", false);
			TRY_GOTO(e, o ? at_line(&p, o, bad) : bad, out);
		}
	}
	if (ndev > 1)
		TRY_GOTO(e, spmd_propagate(m), out);
	struct ir_fn *g = ir_fn_new(m, ir_text(m, fn->name));
	struct scope s;
	scope_init(&p, &s, fn, g);
	for (uint32_t i = 0; i < fn->nparam; i++) {
		ir_shard h = ndev > 1 ? shard_settled(&p.a, m, m->arg[i].shard, ir_vtype(m, fn, i + 1), !asked[i]) : 0;
		m->arg[i].shard = h;
		s.map[i + 1] = ir_param(g, part_type(&p, fn->val.p[i + 1].type, h, DT_token));
		s.sh[i + 1] = h;
	}
	TRY_GOTO(e, do_ops(&p, &s), out);
	for (size_t i = 0; i < fn->result.n; i++) {
		ir_val v = fn->result.p[i];
		ir_shard h = ndev > 1 ? shard_settled(&p.a, m, m->res[i].shard, ir_vtype(m, fn, v), !given[i]) : 0;
		m->res[i].shard = h;
		ir_result(g, bring(&p, &s, s.map[v], s.sh[v], h));
	}
	m->fn.p[1] = g;                /* the new main; the old one stays as a dead function */
	m->fn.p[g->id] = (struct ir_fn *)fn;
	m->fn.p[g->id]->id = g->id;
	g->id = 1;
out:
	arena_fini(&p.a);
	return e;
}
