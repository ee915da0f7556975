/* From whole arrays to the program of one device.
 *
 * Shardings have been propagated to every value (propagate.c) and are settled here (settle.c).  Of each op it is chosen which of its factors
 * are cut (choose.c); its operands are brought to that (reshard.c), the device's part of it is emitted (local.c), and the results are brought
 * to where their values shall lie.  What cannot be done in parts is done whole, on every device.  Bodies of manual computations are spliced in:
 * their types are local already along the manual axes, and are cut further along others. */
#include "impl.h"

/* --- what a program may ask for -------------------------------------------------------------- */

static struct err *check(struct part *p, ir_shard h, const struct ir_type_info *t, const char *what, bool even)
{
	if (!h)
		return NULL;
	const struct ir_shard_info *i = &p->m->shard.p[h];
	const struct ir_mesh *mesh = &p->m->mesh.p[i->mesh];
	struct err *e = NULL;
	struct str s = {0};
	ir_print_spec(&s, p->m, h);
	if (!mesh->naxis && mesh->id && even)
		e = ERR(UNIMPLEMENTED, "%s is on device %lld alone", what, (long long)mesh->id[0]);
	else if (mesh->naxis && i->rank != t->rank)
		e = ERR(INVALID, "%s is of rank %d, its sharding %s is not", what, t->rank, s.p);
	else if (i->npart && i->part_op != RED_add && i->part_op != RED_softmax)
		e = ERR(UNIMPLEMENTED, "%s has the sharding %s, by %s", what, s.p, redop_name[i->part_op]);
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

/* Does h cut t into parts that do not divide it? */
static bool uneven(struct part *p, ir_shard h, const struct ir_type_info *t)
{
	bool any = false;
	for (int d = 0; d < t->rank; d++)
		any |= t->dim[d] % ir_shard_parts(p->m, h, d) != 0;
	return any;
}

/* --- one op ------------------------------------------------------------------------------------ */

/* How x, which is wanted somewhere, lies there, also in parts that do not divide it: who cuts an op may have such. */
static ir_shard said(struct part *p, struct scope *s, ir_val x)
{
	ir_shard h = part_summed(p, ir_shard_of(s->from, x));
	return uneven(p, h, scope_type(p, s, x)) ? h : part_summed(p, scope_wanted(s, x));
}

/* As the maker of the call wants it.  It knows of no axes that are manual: along the others it is done on whole values, then. */
static struct err *do_asked(struct part *p, struct scope *s, const struct ir_op *o)
{
	ir_shard *sh = ARENA_NEW(&p->a, ir_shard, o->nin + o->nout + 1);
	ir_type *type = ARENA_NEW(&p->a, ir_type, o->nin + o->nout + 1);
	ir_val *in = ARENA_NEW(&p->a, ir_val, o->nin + 1), *out = ARENA_NEW(&p->a, ir_val, o->nout + 1);
	ir_fnid f;
	scope_finish_sums(p, s, o);
	for (uint32_t k = 0; k < o->nin && !p->apart.n; k++) {
		ir_val v = ir_in(s->from, o, k);
		sh[k] = s->map[v] && s->sh[v] != scope_wanted(s, v) ? s->sh[v] : said(p, s, v);
	}
	for (uint32_t k = 0; k < o->nout && !p->apart.n; k++)
		sh[o->nin + k] = said(p, s, o->out + k);
	TRY(part_ask(p, s->from, o, sh, type, &f));
	for (uint32_t k = 0; k < o->nin + o->nout; k++)
		if (p->apart.n && sh[k])
			return ERR(UNIMPLEMENTED, "custom_partitioning that cuts what is whole, inside a manual computation");
	for (uint32_t k = 0; k < o->nin; k++) {
		ir_val v = ir_in(s->from, o, k);
		bool longer = type[k] != s->from->val.p[v].type;
		if (!longer)
			moved_need(p, s, v);
		in[k] = longer ? moved_fetch_longer(p, s, v, (struct handed){ type[k], sh[k] }, ir_const_i(&s->b, ir_scalar(p->m, (enum dtype)scope_type(p, s, v)->dtype), 0)) : scope_fetch(p, s, v, sh[k]);
	}
	s->b.loc = o->loc;
	ir_inline(&s->b, f, in, out);
	for (uint32_t k = 0; k < o->nout; k++) {
		ir_val v = o->out + k;
		if (type[o->nin + k] != s->from->val.p[v].type)
			moved_give_longer(p, s, v, out[k], (struct handed){ type[o->nin + k], sh[o->nin + k] });
		else
			scope_give(p, s, v, out[k], sh[o->nin + k]);
	}
	return NULL;
}

/* o in a function of its own, or zeros for its results. */
static ir_fnid branch_of(struct part *p, struct scope *s, const struct ir_op *o, const ir_val *in, bool runs)
{
	struct ir_fn *g = ir_fn_new(p->m, runs ? "here" : "elsewhere");
	struct ir_b b = { p->m, g, o->loc };
	ir_val *par = ARENA_NEW(&p->a, ir_val, o->nin + 1), v = 0;
	for (uint32_t k = 0; k < o->nin; k++)
		par[k] = ir_param(g, s->b.fn->val.p[in[k]].type);
	if (runs) {
		uint32_t n;
		int64_t *w = ir_attr_copy(&p->a, s->from, o, &n), *on = ir_attr_word(IR_custom_call, w, AT_on);
		memmove(on + 1, on + 2, sizeof *w * (size_t)(w + n - on - 2));
		*on = 0;
		ir_type *t = ARENA_NEW(&p->a, ir_type, o->nout + 1);
		for (uint32_t k = 0; k < o->nout; k++)
			t[k] = s->from->val.p[o->out + k].type;
		v = ir_emit_raw(&b, IR_custom_call, o->nin, par, o->nout, t, w, n - 1);
	}
	for (uint32_t k = 0; k < o->nout; k++) {
		ir_type t = s->from->val.p[o->out + k].type;
		ir_result(g, runs ? v + k : ir_type_of(p->m, t)->dtype == DT_token ? ir_emit_raw(&b, IR_create_token, 0, NULL, 1, &t, NULL, 0) : ir_const_i(&b, t, 0));
	}
	return g->id;
}

/* One device runs it, for the whole value, and the others get what it made. */
static struct err *do_pinned(struct part *p, struct scope *s, const struct ir_op *o, int64_t device)
{
	if (device >= p->ndev)
		return ERR(INVALID, "a call on device %lld, the program has %d", (long long)device, p->ndev);
	scope_finish_sums(p, s, o);
	ir_val *in = ARENA_NEW(&p->a, ir_val, o->nin + 2);
	for (uint32_t k = 0; k < o->nin; k++)
		in[k + 1] = scope_fetch(p, s, ir_in(s->from, o, k), 0);
	int64_t branch[3] = { 2, branch_of(p, s, o, in + 1, false), branch_of(p, s, o, in + 1, true) };
	ir_type u = ir_scalar(p->m, DT_u32), *t = ARENA_NEW(&p->a, ir_type, o->nout + 1);
	s->b.loc = o->loc;
	ir_val id = ir_emit_raw(&s->b, IR_partition_id, 0, NULL, 1, &u, NULL, 0);
	in[0] = ir_convert(&s->b, ir_bin(&s->b, ELEM_compare_eq, id, ir_const_i(&s->b, u, device)), DT_i32);
	for (uint32_t k = 0; k < o->nout; k++)
		t[k] = s->from->val.p[o->out + k].type;
	ir_val v = ir_emit_raw(&s->b, IR_case, o->nin + 1, in, o->nout, t, branch, 3);
	for (uint32_t k = 0; k < o->nout; k++)
		scope_give(p, s, o->out + k, ir_type_of(p->m, t[k])->dtype == DT_token ? v + k : scope_same(p, s, v + k, device), 0);
	return NULL;
}

/* Where it is asked to lie, unless that is what a sum is made for: who reads it may need a part of it only. */
static void constrain(struct part *p, struct scope *s, const struct ir_op *o)
{
	ir_val x = ir_in(s->from, o, 0);
	struct handed longer = moved_longer(p, s, o->out, 0, 0);
	if (longer.t) {
		moved_give_longer(p, s, o->out, moved_fetch_longer(p, s, x, longer, 0), longer);
		return;
	}
	moved_need(p, s, x);
	ir_shard to = scope_wanted(s, o->out), h = s->sh[x];
	if (part_sum(p, h) && part_summed(p, h) == to)
		scope_give(p, s, o->out, s->map[x], h);
	else {
		ir_val v = scope_fetch(p, s, x, to);
		scope_put(p, s, o->out, v, to, to);
	}
}

/* Each result is its operand, where that lies. */
static void do_barrier(struct part *p, struct scope *s, const struct ir_op *o)
{
	ir_val *in = ARENA_NEW(&p->a, ir_val, o->nin + 1);
	ir_type *t = ARENA_NEW(&p->a, ir_type, o->nout + 1);
	struct handed *longer = ARENA_NEW(&p->a, struct handed, o->nin + 1);
	for (uint32_t k = 0; k < o->nin; k++) {
		ir_val v = ir_in(s->from, o, k);
		if (!s->map[v])
			longer[k] = moved_longer(p, s, v, v, 0);
		if (!longer[k].t)
			moved_need(p, s, v);
		in[k] = longer[k].t ? moved_fetch_longer(p, s, v, longer[k], 0) : s->map[v];
		t[k] = s->b.fn->val.p[in[k]].type;
	}
	ir_val y = ir_emit_raw(&s->b, o->kind, o->nin, in, o->nout, t, NULL, 0);
	for (uint32_t k = 0; k < o->nout; k++) {
		if (longer[k].t)
			moved_give_longer(p, s, o->out + k, y + k, longer[k]);
		else
			scope_give(p, s, o->out + k, y + k, s->sh[ir_in(s->from, o, k)]);
	}
}

/* --- regions --------------------------------------------------------------------------------------- */

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
		s->sh[x] = part_summed(p, shard_settled(&p->a, p->m, (ir_shard)out[k + j], scope_type(p, s, x), false));
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
		const struct ir_type_info *t = scope_type(p, s, v);
		ir_shard given = (int)k < nin ? shard_settled(&p->a, p->m, (ir_shard)in[k], t, false) : 0, manual = by_axes(p, given, t, set, true);
		TRY(check(p, (int)k < nin ? (ir_shard)in[k] : 0, t, named(p, "operand", k), true));
		ir_shard inner = shard_settled(&p->a, p->m, by_axes(p, ir_shard_of(body, k + 1), ir_vtype(p->m, body, k + 1), set, false), ir_vtype(p->m, body, k + 1), false);
		b.map[k + 1] = scope_fetch(p, s, v, outside(p, manual, inner, t));
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
	struct err *e = p->ops(p, &b);
	for (size_t k = 0; k < body->result.n && !e; k++)
		moved_need(p, &b, body->result.p[k]);
	p->apart = around;
	p->apart_of = around_of;
	TRY(e);
	for (uint32_t k = 0; k < o->nout; k++) {
		ir_val v = body->result.p[k], x = o->out + k;
		scope_at_maker(&b, v);
		if ((int)k + 1 < nout && ir_shard_joint(p->m, (ir_shard)out[k])) {
			join(p, s, &b, o, k, out);
			k++;
			continue;
		}
		scope_finish(p, &b, v, part_summed(p, scope_wanted(&b, v)));
		const struct ir_type_info *t = scope_type(p, s, x);
		ir_shard given = (int)k < nout ? shard_settled(&p->a, p->m, (ir_shard)out[k], t, false) : 0;
		scope_give(p, s, x, b.map[v], outside(p, by_axes(p, given, t, set, true), b.sh[v], t));
	}
	return NULL;
}

static struct err *do_op(struct part *p, struct scope *s, const struct ir_op *o)
{
	s->b.loc = o->loc;
	if (o->kind == IR_inspect_sharding)      /* what nobody else needs is not made for it */
		return at_line(p, o, part_inspect(p, s->from, o, scope_wanted(s, ir_in(s->from, o, 0))));
	if (moved_op(p, s, o) || longer_op(p, s, o))
		return NULL;
	bool asks = p->ndev > 1 && part_asks(p, s->from, o);
	bool hands = o->kind == IR_loop || o->kind == IR_case || o->kind == IR_sharding_constraint || o->kind == IR_optimization_barrier || o->kind == IR_sharding_group;
	for (uint32_t k = 0; k < o->nin && !asks && !hands; k++)
		moved_need(p, s, ir_in(s->from, o, k));
	switch ((enum ir_kind)o->kind) {
	case IR_manual:
		return at_line(p, o, do_manual(p, s, o));
	case IR_sharding_constraint: {
		ir_val x = ir_in(s->from, o, 0);
		TRY(at_line(p, o, check(p, (ir_shard)ir_attr(s->from, o, AT_sharding), scope_type(p, s, x), "a constraint", false)));
		constrain(p, s, o);
		return NULL;
	}
	case IR_sharding_group:
		return NULL;
	case IR_loop:
		return part_loop(p, s, o);
	case IR_case:
		return part_case(p, s, o);
	case IR_optimization_barrier:
		do_barrier(p, s, o);
		return NULL;
	case IR_custom_call: {
		int n;
		const int64_t *on = ir_attrs(s->from, o, AT_on, &n);
		if (asks)
			return at_line(p, o, do_asked(p, s, o));
		if (n && p->ndev > 1 && !p->apart.n && !part_of_parts(p, s->from, o))
			return at_line(p, o, do_pinned(p, s, o, *on));
		if (part_of_parts(p, s->from, o)) {
			scope_finish_sums(p, s, o);
			ir_val v = ir_clone(&s->b, s->from, o, scope_operands(p, s, o));
			for (uint32_t k = 0; k < o->nout; k++)
				scope_give(p, s, o->out + k, v + k, 0);
			return NULL;
		}
	}
		/* fall through */
	default:
		if (o->kind == IR_add)
			scope_note_sum(p, s, o);
		if (!scope_keeps_sums(p, s, o))
			scope_do(p, s, o);
		return NULL;
	}
}

/* What op o, from op `first` of the new function on, has become. */
static void tell(struct part *p, struct scope *s, const struct ir_op *o, size_t first)
{
	struct spmd_record *r = p->rec;
	record_rest(p, &s->b, first);
	for (uint32_t k = 0; k < o->nout; k++) {
		ir_val v = o->out + k;
		ir_type t = s->from->val.p[v].type;
		const struct view *x = s->map[v] ? NULL : s->view[v];
		ir_shard lies = s->map[v] ? s->sh[v] : x && x->made ? x->source[0].sh : scope_wanted(s, v), said = scope_wanted(s, v);
		if (!s->map[v] && part_equal(p, part_summed(p, ir_shard_of(s->from, v)), lies, scope_type(p, s, v)->rank))
			said = lies;                 /* as annotations say, with more elements */
		arr_push(&r->value, ((struct spmd_value){ .op = o->kind, .inside = p->apart.n > 0, .index = k, .type = t, .lies = lies, .said = said,
		                                          .loc = o->loc,
		                                          .origin = r->of ? r->of[s->from->id][v] : 0 }));
		if (o->kind == IR_sharding_constraint && s->map[v] && uneven(p, (ir_shard)ir_attr(s->from, o, AT_sharding), scope_type(p, s, v)))
			arr_push(&r->uneven, ((struct spmd_uneven){ o->loc, t, (ir_shard)ir_attr(s->from, o, AT_sharding), lies }));
	}
}

static struct err *do_ops(struct part *p, struct scope *s)
{
	const struct why around = p->why;
	for (size_t i = 0; i < s->from->op.n; i++) {
		size_t first = s->b.fn->op.n;
		p->why = (struct why){ .fn = s->from, .o = &s->from->op.p[i] };
		TRY(do_op(p, s, &s->from->op.p[i]));
		if (p->rec)
			tell(p, s, &s->from->op.p[i], first);
	}
	p->why = around;
	return NULL;
}

/* --- a program --------------------------------------------------------------------------------------- */

/* Is there anything to do? */
static bool plain_program(const struct ir_module *m)
{
	for (size_t f = 1; f < m->fn.n; f++)
		for (size_t i = 0; i < m->fn.p[f]->op.n; i++) {
			enum ir_kind k = m->fn.p[f]->op.p[i].kind;
			if (k == IR_manual || k == IR_sharding_constraint || k == IR_sharding_group || k == IR_inspect_sharding)
				return false;
		}
	return true;
}

struct err *spmd_partition(struct ir_module *m, int ndev, const struct plan_on *plan, const struct spmd_maker *maker, struct spmd_record *rec)
{
	static const struct plan_on alone;
	const struct ir_fn *fn = ir_main(m);
	if (ndev <= 1 && plain_program(m))
		return NULL;
	struct part p = { .m = m, .ndev = MAX(1, ndev), .maker = maker, .rec = rec, .plan = plan ? plan : &alone, .ops = do_ops };
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
		TRY_GOTO(e, spmd_propagate(m, rec), out);
	p.values = ARENA_NEW(&p.a, struct values *, m->fn.n);
	struct ir_fn *g = ir_fn_new(m, ir_text(m, fn->name));
	struct scope s;
	scope_init(&p, &s, fn, g);
	for (uint32_t i = 0; i < fn->nparam; i++) {
		ir_shard h = ndev > 1 ? shard_settled(&p.a, m, m->arg[i].shard, ir_vtype(m, fn, i + 1), !asked[i]) : 0;
		m->arg[i].shard = h;
		s.map[i + 1] = ir_param(g, part_type(&p, fn->val.p[i + 1].type, h, DT_token));
		s.sh[i + 1] = h;
		if (rec)
			arr_push(&rec->value, ((struct spmd_value){ .index = i, .type = fn->val.p[i + 1].type, .lies = h, .said = h, .origin = rec->of ? rec->of[fn->id][i + 1] : 0 }));
	}
	for (size_t i = 0; i < fn->result.n; i++) {
		ir_val v = fn->result.p[i];
		m->res[i].shard = s.end[v] = ndev > 1 ? shard_settled(&p.a, m, m->res[i].shard, ir_vtype(m, fn, v), !given[i]) : 0;
	}
	p.spare = PART_SPARE;
	for (uint32_t i = 1; i <= fn->nparam; i++)
		p.spare += part_local(&p, fn->val.p[i].type, s.sh[i]);
	for (size_t i = 0; i < fn->result.n; i++)
		p.spare += part_local(&p, fn->val.p[fn->result.p[i]].type, m->res[i].shard);
	TRY_GOTO(e, do_ops(&p, &s), out);
	for (size_t i = 0; i < fn->result.n; i++) {
		ir_val v = fn->result.p[i];
		ir_shard h = m->res[i].shard;
		scope_at_maker(&s, v);
		moved_need(&p, &s, v);
		if (rec)
			arr_push(&rec->value, ((struct spmd_value){ .result = true, .index = (uint32_t)i, .type = fn->val.p[v].type, .lies = h, .said = h,
			                                            .origin = rec->of ? rec->result[i] : 0 }));
		ir_result(g, scope_fetch(&p, &s, v, h));
	}
	m->fn.p[1] = g;                /* the new main; the old one stays as a dead function */
	m->fn.p[g->id] = (struct ir_fn *)fn;
	m->fn.p[g->id]->id = g->id;
	g->id = 1;
out:
	map_free(&p.spread);
	arena_fini(&p.a);
	return e;
}
