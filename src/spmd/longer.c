/* Ops along a dimension that does not divide, because of what moves elements along it: they are done on parts with more elements behind the last one, or
 * made of what each device has, where that lies. */
#include "moved.h"

#include "../eval/eval.h"

#include <math.h>

/* An op that is done with more elements along some dimensions of its tensors, operands and then results: dim (0: as it is), and by which axes they are
 * cut then.  Where a result is parts of a sum over axes by which it would lie, but for extents that do not divide, `after` and `scattered` say that of
 * the sum.  fill: by operand, what is behind; 0: anything.  w: its attributes.  or_whole: it may as well be done on what is not cut. */
struct longer { uint32_t mesh, words; int64_t *w, (*dim)[IR_MAX_RANK], (*after)[IR_MAX_RANK]; struct axes (*cut)[IR_MAX_RANK], (*scattered)[IR_MAX_RANK]; ir_val *fill; bool or_whole; };

static struct longer longer_new(struct part *p, const struct ir_fn *fn, const struct ir_op *o)
{
	struct longer g = { .dim = arena_alloc(&p->a, sizeof *g.dim * (o->nin + o->nout)), .cut = arena_alloc(&p->a, sizeof *g.cut * (o->nin + o->nout)),
	                    .after = arena_alloc(&p->a, sizeof *g.after * (o->nout + 1)), .scattered = arena_alloc(&p->a, sizeof *g.scattered * (o->nout + 1)),
	                    .fill = ARENA_NEW(&p->a, ir_val, o->nin + 1) };
	g.w = ir_attr_copy(&p->a, fn, o, &g.words);
	return g;
}

static void lengthen(struct longer *g, uint32_t tensor, int d, int64_t n, struct axes l)
{
	g->dim[tensor][d] = n;
	g->cut[tensor][d] = l;
}

/* Parts x of the sum that is result k, with more elements where its sum is scattered; then, *t is the sum's type, and *want how it lies. */
static ir_val more_after(struct part *p, struct ir_b *b, const struct longer *g, uint32_t k, ir_val x, ir_shard lie, ir_type *t, ir_shard *want)
{
	struct ir_type_info all = *ir_type_of(p->m, *t), own = *ir_vtype(p->m, b->fn, x);
	int64_t dim[IR_MAX_RANK], local[IR_MAX_RANK], w[3 * (IR_MAX_RANK + 1)] = {0};
	bool any = false;
	for (int i = 0; i < 3; i++)
		w[i * (all.rank + 1)] = all.rank;
	for (int d = 0; d < all.rank; d++) {
		bool more = g->after[k][d] && !part_axes(p, lie, d).n;
		dim[d] = more ? g->after[k][d] : all.dim[d];
		local[d] = more ? dim[d] : own.dim[d];
		w[all.rank + 2 + d] = local[d] - own.dim[d];
		any |= more;
	}
	if (!any)
		return x;
	*t = ir_tensor(p->m, (enum dtype)all.dtype, all.rank, dim);
	*want = moved_cut_as(p, part_summed(p, *want), all.rank, g->mesh, g->scattered[k]);
	ir_val zero = ir_const_i(b, ir_scalar(p->m, (enum dtype)own.dtype), 0);
	return ir_emit(b, IR_pad, 2, (ir_val[]){ x, zero }, ir_tensor(p->m, (enum dtype)own.dtype, all.rank, local), w, 3 * ((uint32_t)all.rank + 1));
}

/* Is the sum that is result k, of type t, made at once?  Later its parts would be no longer ones, of which more are made where the sum is scattered, or a view. */
static bool ends(struct part *p, const struct scope *s, const struct ir_op *o, const struct longer *g, uint32_t k, ir_type t)
{
	bool more = t != s->from->val.p[o->out + k].type;
	for (int d = 0; d < ir_type_of(p->m, t)->rank; d++)
		more |= g->after[k][d] != 0;
	return more;
}

/* o with those attributes, on operands and with results of types t: in lie as have, and are brought to where it is done; results are wanted as want,
 * and in out they lie as lie, with more elements if t says so. */
static void do_longer(struct part *p, struct scope *s, const struct ir_op *o, const struct longer *g, ir_type *t, ir_val *in, const ir_shard *have,
                      ir_shard *want, ir_val *out, ir_shard *lie)
{
	struct ir_fn *fn = ir_fn_new(p->m, "longer");
	struct ir_b b = { p->m, fn, o->loc };
	ir_val *y = ARENA_NEW(&p->a, ir_val, o->nin + 1);
	for (uint32_t k = 0; k < o->nin; k++)
		y[k] = ir_splat(p->m, s->b.fn, in[k]) ? 0 : ir_param(fn, t[k]);
	for (uint32_t k = 0; k < o->nin; k++)
		if (!y[k])
			y[k] = ir_const(&b, t[k], ir_splat(p->m, s->b.fn, in[k]), dtype_info[ir_type_of(p->m, t[k])->dtype].bytes);
	ir_emit_raw(&b, (enum ir_kind)o->kind, o->nin, y, o->nout, t + o->nin, g->w, g->words);
	const struct ir_op *longer = &fn->op.p[fn->op.n - 1];
	struct values v = *part_values_new(p, fn);
	ir_shard *to = ARENA_NEW(&p->a, ir_shard, fn->val.n);
	for (uint32_t k = 0; k < o->nout; k++)
		to[longer->out + k] = v.end[longer->out + k] = part_summed(p, want[k]);
	v.want = to;
	scope_part(p, s, &v, longer, in, have, out, lie);
	for (uint32_t k = 0; k < o->nout; k++)
		if (part_sum(p, lie[k]) && part_sum(p, lie[k]) != part_sum(p, want[k]) && ends(p, s, o, g, k, t[o->nin + k])) {
			record_about(p, s->from, o->out + k);
			out[k] = more_after(p, &s->b, g, k, out[k], lie[k], &t[o->nin + k], &want[k]);
			out[k] = ir_convert(&s->b, part_finish(p, &s->b, out[k], &lie[k], want[k]), scope_type(p, s, o->out + k)->dtype);
		}
	ir_fn_drop(p->m);
}

/* Positions: an iota of type t, which lies as h, with `fill` behind those that o counts. */
static ir_val counted(struct part *p, struct scope *s, const struct ir_op *o, ir_type t, ir_val fill, ir_shard h)
{
	const struct ir_type_info all = *scope_type(p, s, o->out);
	ir_val v = ir_convert(&s->b, moved_position(p, &s->b, t, h, (int)ir_attr(s->from, o, AT_dim)), (enum dtype)all.dtype);
	return fill ? moved_filled(p, &s->b, v, t, h, all.dim, fill) : v;
}

/* Where slices are taken from, or put, along what is longer: within what there was. */
static void within(struct part *p, struct scope *s, const struct ir_op *o, const struct longer *g, ir_val *in)
{
	bool takes = o->kind == IR_dynamic_slice, puts = o->kind == IR_dynamic_update_slice;
	for (int d = 0; o->kind == IR_gather && d < scope_type(p, s, ir_in(s->from, o, 0))->rank; d++)
		if (g->dim[0][d]) {
			in[1] = part_places(p, &s->b, s->from, o, in[1]);
			break;
		}
	for (int d = 0; (takes || puts) && d < scope_type(p, s, o->out)->rank; d++) {
		int64_t n = scope_type(p, s, ir_in(s->from, o, 0))->dim[d], size = scope_type(p, s, takes ? o->out : ir_in(s->from, o, 1))->dim[d];
		ir_val *start = &in[1 + puts + d];
		if (g->dim[0][d] && size < n)
			*start = ir_convert(&s->b, along_bounded(p, &s->b, *start, n, size), (enum dtype)ir_vtype(p->m, s->b.fn, *start)->dtype);
	}
}

/* Does that, if operands can be brought there; results that are longer are views then. */
static bool is_longer(struct part *p, struct scope *s, const struct ir_op *o, const struct longer *g)
{
	uint32_t n = o->nin + o->nout;
	ir_val *in = ARENA_NEW(&p->a, ir_val, n + 1), *out = ARENA_NEW(&p->a, ir_val, n + 1);
	ir_shard *have = ARENA_NEW(&p->a, ir_shard, n + 1), *want = ARENA_NEW(&p->a, ir_shard, n + 1), *lie = ARENA_NEW(&p->a, ir_shard, n + 1);
	ir_type *t = ARENA_NEW(&p->a, ir_type, n + 1);
	bool *more = ARENA_NEW(&p->a, bool, n + 1);
	struct way way = { .deep = 2 };
	for (uint32_t k = 0; k < n; k++) {
		ir_val v = k < o->nin ? ir_in(s->from, o, k) : o->out + k - o->nin;
		struct ir_type_info i = *scope_type(p, s, v);
		int64_t dim[IR_MAX_RANK];
		for (int d = 0; d < i.rank; d++) {
			dim[d] = g->dim[k][d] ? g->dim[k][d] : i.dim[d];
			more[k] |= g->dim[k][d] != 0;
		}
		t[k] = ir_tensor(p->m, (enum dtype)i.dtype, i.rank, dim);
		if (k < o->nin && !more[k])
			moved_need(p, s, v);
		if (k < o->nin)
			scope_summed(p, s, v);
	}
	struct part_mark before = part_mark(p, &s->b);
	for (uint32_t k = 0; k < n; k++) {
		ir_val v = k < o->nin ? ir_in(s->from, o, k) : o->out + k - o->nin;
		ir_shard h = k < o->nin && s->map[v] ? s->sh[v] : scope_wanted(s, v);
		int rank = scope_type(p, s, v)->rank;
		if (more[k])
			h = moved_cut_as(p, part_summed(p, h), rank, g->mesh, g->cut[k]);
		if (k >= o->nin) {
			struct handed said = more[k] ? moved_longer(p, s, v, 0, 0) : (struct handed){0};
			bool so = said.t && said.t == t[k];
			for (int d = 0; d < rank && so; d++)         /* not by axes that cut others now */
				for (int e = 0; e < rank; e++)
					so &= e == d || !moved_overlap(g->cut[k][e], part_axes(p, said.h, d));
			want[k - o->nin] = so ? said.h : h;
			continue;
		}
		have[k] = h;
		in[k] = s->map[v];
		if (!more[k])
			continue;
		record_about(p, s->from, v);
		const struct ir_op *maker = ir_def(s->from, v);
		const void *one = ir_splat(p->m, s->from, v);
		uint32_t j = 0;
		while (j < k && !(ir_in(s->from, o, j) == v && t[j] == t[k] && have[j] == h && g->fill[j] == g->fill[k]))
			j++;
		if (j < k)
			in[k] = in[j];
		else if (h && one) {
			in[k] = ir_const(&s->b, part_type(p, t[k], h, DT_token), one, dtype_info[ir_type_of(p->m, t[k])->dtype].bytes);
			in[k] = g->fill[k] ? moved_filled(p, &s->b, in[k], t[k], h, scope_type(p, s, v)->dim, g->fill[k]) : in[k];
		}
		else if (h && maker && maker->kind == IR_iota && scope_type(p, s, v)->count < INT32_MAX)
			in[k] = counted(p, s, maker, t[k], g->fill[k], h);
		else
			in[k] = h ? moved_brought(p, s, &way, v, ir_type_of(p->m, t[k])->dim, g->fill[k], h) : 0;
		if (!in[k]) {
			moved_undo(s, &way, 0);
			part_go_back(p, &s->b, before);
			return false;
		}
	}
	within(p, s, o, g, in);
	do_longer(p, s, o, g, t, arena_copy(&p->a, in, sizeof *in * o->nin), have, want, out, lie);
	int longer = 0, cut = 0;
	bool much = !g->or_whole;
	for (uint32_t k = 0; k < o->nin; k++)
		much |= more[k] && 4 * ir_type_of(p->m, t[k])->count >= 5 * scope_type(p, s, ir_in(s->from, o, k))->count;
	for (uint32_t k = 0; k < o->nout; k++)
		for (int d = 0; d < ir_type_of(p->m, t[o->nin + k])->rank; d++)
			if (g->dim[o->nin + k][d]) {
				longer++;
				cut += axes_equal(part_axes(p, lie[k], d), g->cut[o->nin + k][d]);
			}
	if (much && cut < longer && !(g->or_whole && cut)) {     /* it is better whole: as it was */
		moved_undo(s, &way, 0);
		part_go_back(p, &s->b, before);
		return false;
	}
	for (uint32_t k = 0; k < o->nin; k++) {          /* who reads them again finds them longer */
		ir_val v = ir_in(s->from, o, k);
		if (more[k] && !s->map[v] && s->view[v])
			s->view[v] = moved_shorter(p, t[k], in[k], have[k], scope_type(p, s, v)->dim);
	}
	for (uint32_t k = 0; k < o->nout; k++) {
		if (t[o->nin + k] != s->from->val.p[o->out + k].type)
			s->view[o->out + k] = moved_shorter(p, t[o->nin + k], out[k], lie[k], scope_type(p, s, o->out + k)->dim);
		else
			scope_give(p, s, o->out + k, out[k], lie[k]);
	}
	return true;
}

/* Is dimension d of operand k of o of a value that is cut there by l, into which the extent does not divide, or that has more elements than this?  *n: so many that divide. */
static bool indivisible(struct part *p, struct scope *s, const struct ir_op *o, uint32_t k, int d, struct axes *l, uint32_t *mesh, int64_t *n)
{
	const struct view *v = s->view[ir_in(s->from, o, k)];
	for (int i = 0; v && i < v->nsource; i++) {
		const struct source *q = &v->source[i];
		int64_t parts = q->fill || !q->sh ? 1 : ir_shard_parts(p->m, q->sh, d);
		bool more = v->made && parts > 1 && q->dim[d] > v->dim[d];
		if (parts == 1 || v->dim[d] <= 1 || (!more && v->dim[d] % parts == 0))
			continue;
		*l = part_axes(p, q->sh, d);
		*mesh = p->m->shard.p[q->sh].mesh;
		*n = more ? q->dim[d] : moved_divisible(v->dim[d], parts);
		return true;
	}
	return false;
}

/* Does gather o take all of dimension d? */
static bool takes_all(struct part *p, struct scope *s, const struct ir_op *o, int d)
{
	int n;
	return ir_attrs(s->from, o, AT_size, &n)[d] == scope_type(p, s, ir_in(s->from, o, 0))->dim[d];
}

/* Does gather o take none of f's dimension from places that its indices say, or all of it? */
static bool of_batch(struct part *p, struct scope *s, const struct ir_op *o, const struct ir_axes *x, int f)
{
	int n, d = ir_axes_find(x, 0, f);
	const int64_t *batch = ir_attrs(s->from, o, AT_obatch, &n);
	while (d >= 0 && n-- > 0)
		if (batch[n] == d)
			return true;
	return d < 0 || takes_all(p, s, o, d);
}

static enum redop sum_of(const struct scope *s, const struct ir_op *o)
{
	bool adds = o->kind == IR_dot || o->kind == IR_attention_grad;
	return (o->kind == IR_reduce || o->kind == IR_scatter) && o->nout == 1 ? (enum redop)ir_attr(s->from, o, AT_redop) : adds ? RED_add : RED_fn;
}

/* Is factor f that of the queries of o, a gradient of attention, and what it makes of a row of zeros, whose l is large, nothing? */
static bool of_rows(struct part *p, struct scope *s, const struct ir_op *o, const struct ir_axes *x, int f)
{
	const struct ir_fn *fn = ir_fn_of(p->m, (ir_fnid)ir_attr(s->from, o, AT_fn));
	if (ir_axes_find(x, 3, f) < 0)
		return false;
	struct eval_array *in = ARENA_NEW(&p->a, struct eval_array, fn->nparam + 1), *res = ARENA_NEW(&p->a, struct eval_array, fn->result.n + 1);
	for (uint32_t i = 0; i < fn->nparam; i++) {
		enum dtype dt = (enum dtype)ir_vtype(p->m, fn, i + 1)->dtype;
		in[i] = (struct eval_array){ .dtype = dt, .bytes = dtype_info[dt].bytes, .p = ARENA_NEW(&p->a, uint64_t, 2) };
	}
	struct err *e = eval_fn(p->m, fn, in, res);
	bool ok = !e;
	err_free(e);
	for (size_t i = 0; i < fn->result.n && ok; i++) {
		double v = dtype_real(res[i].dtype, res[i].p);
		ok = isfinite(v) || (i == 0 && v < 0);
	}
	for (size_t i = 0; i < fn->result.n; i++)
		eval_array_free(&res[i]);
	return ok;
}

/* Does top_k order numbers of type dt by their bits? */
static bool by_bits(enum dtype dt)
{
	int bits = dtype_info[dt].bits, cls = dtype_info[dt].cls;
	return bits >= 8 && bits <= 64 && cls != DT_COMPLEX && (cls != DT_FLOAT || bits >= 16);
}

/* What comes behind all others then. */
static ir_val least(struct part *p, struct ir_b *b, enum dtype dt)
{
	int cls = dtype_info[dt].cls;
	uint64_t v = cls == DT_FLOAT ? UINT64_MAX : cls == DT_INT ? (uint64_t)1 << (dtype_info[dt].bits - 1) : 0;
	return ir_const(b, ir_scalar(p->m, dt), &v, dtype_info[dt].bytes);
}

/* Does it count beyond all places of a value? */
static bool places(enum dtype dt) { return dtype_info[dt].bits >= 32; }

/* What changes nothing behind the last elements of operand k of o, if those are taken together. */
static ir_val filling(struct part *p, struct scope *s, const struct ir_op *o, uint32_t k)
{
	enum dtype dt = (enum dtype)scope_type(p, s, ir_in(s->from, o, k))->dtype;
	enum redop r = sum_of(s, o);
	if (o->kind == IR_top_k)
		return least(p, &s->b, dt);
	if (o->kind == IR_attention_grad && k == 3)      /* weights of rows that are not there are 0 then, whatever their scores */
		return ir_const_f(&s->b, ir_scalar(p->m, dt), 1e30);
	if (o->kind == IR_scatter && k == 1)             /* where nothing is */
		return ir_const_i(&s->b, ir_scalar(p->m, dt), places(dt) ? INT32_MAX : 0);
	if (o->kind == IR_scatter && k == 2 && places((enum dtype)scope_type(p, s, ir_in(s->from, o, 1))->dtype))
		return 0;
	if (redop_elem[r] != ELEM_COUNT)
		return part_neutral(p, &s->b, ir_scalar(p->m, dt), r);
	return ir_const(&s->b, ir_scalar(p->m, dt), ir_splat(p->m, s->from, ir_in(s->from, o, o->nout + k)), dtype_info[dt].bytes);
}

/* Is operand k of a product one number everywhere that makes 0 of the 0 behind the other's last elements? */
static bool of_zeros(struct part *p, struct scope *s, const struct ir_op *o, uint32_t k)
{
	const void *one = o->kind == IR_dot ? ir_splat(p->m, s->from, ir_in(s->from, o, k)) : NULL;
	enum dtype dt = (enum dtype)scope_type(p, s, ir_in(s->from, o, k))->dtype;
	return one && !ir_splat(p->m, s->from, ir_in(s->from, o, !k)) && dtype_info[dt].cls != DT_COMPLEX && isfinite(dtype_real(dt, one));
}

/* The factor along which a dimension may have more elements, so that these are behind the last one: its only one, or where a reshape makes one of several, or several of
 * one, the major one.  -1: there is none. */
static int along(const struct ir_op *o, const struct ir_axes_dim *d) { return d->n == 1 || (d->n && o->kind == IR_reshape) ? d->factor[0] : -1; }

/* Is o, with more elements along factor f, the same along those that there are? */
static bool extends(struct part *p, struct scope *s, const struct ir_op *o, const struct ir_axes *x, int f)
{
	bool sum = x->factor[f].kind == FACTOR_SUM && redop_elem[sum_of(s, o)] != ELEM_COUNT && (o->kind != IR_attention_grad || of_rows(p, s, o, x, f));
	bool selects = (o->kind == IR_reduce || (o->kind == IR_top_k && by_bits((enum dtype)scope_type(p, s, ir_in(s->from, o, 0))->dtype))) && along_can(p, s->from, o, x, f);
	bool placed = ((o->kind == IR_dynamic_slice || o->kind == IR_dynamic_update_slice) && along_can(p, s->from, o, x, f)) ||
	              (o->kind == IR_gather && x->factor[f].kind == FACTOR_SUM && part_can(p, s->from, o, x, f));
	if (!sum && !selects && !placed && (x->factor[f].kind != FACTOR_EACH || ir_axes_find(x, x->nin, f) < 0))
		return false;
	if (o->kind == IR_gather && !placed && !of_batch(p, s, o, x, f))
		return false;                        /* places would be clamped at another end */
	if (o->kind == IR_convolution && (ir_attr(s->from, o, AT_batch_groups) > 1 || (ir_attr(s->from, o, AT_feature_groups) > 1 && ir_axes_find(x, 1, f) >= 0)))
		return false;                        /* there would be more groups */
	if (o->kind == IR_scatter && ir_attr(s->from, o, AT_unique) && !places((enum dtype)scope_type(p, s, ir_in(s->from, o, 1))->dtype))
		return false;
	for (int t = 0; t < x->nin + x->nout; t++)
		for (int e = 0; e < x->rank[t]; e++)
			for (int i = 0; i < x->dim[t][e].n; i++)
				if (x->dim[t][e].factor[i] == f && along(o, &x->dim[t][e]) != f)
					return false;
	return true;
}

/* Bytes of a value like o's result, which lies cut as h, if axes of l cut it along other factors than o's. */
static int64_t taken(struct part *p, const struct ir_axes *x, uint32_t mesh, const struct axes *l, ir_shard h, int64_t bytes)
{
	for (int d = 0; h && p->m->shard.p[h].mesh == mesh && d < x->rank[x->nin]; d++)
		for (int f = 0; f < x->nfactor; f++)
			if (ir_axes_find(x, x->nin, f) != d && moved_overlap(l[f], part_axes(p, h, d)))
				return bytes;
	return 0;
}

/* Does v have to lie as it is wanted: does an annotation say so of it, or is it a result of the function that shall lie somewhere, or is what functions of elements make of it? */
static bool is_asked(const struct scope *s, ir_val v, int deep)
{
	for (uint32_t u = ir_use_first(s->from, v); u; u = ir_use_next(s->from, u)) {
		const struct ir_op *r = &s->from->op.p[ir_use_op(s->from, u)];
		if (r->kind == IR_sharding_constraint || r->kind == IR_manual || (deep && ir_is_elem((enum ir_kind)r->kind) && is_asked(s, r->out, deep - 1)))
			return true;
	}
	return s->end[v] != (ir_shard)PART_ANY;
}

/* Has o's result to lie, or is it read beside what lies, cut along other factors by axes of l, and larger than o's operands?  More would travel to have it
 * elsewhere than to have them. */
static bool taken_elsewhere(struct part *p, struct scope *s, const struct ir_op *o, const struct ir_axes *x, uint32_t mesh, const struct axes *l)
{
	enum { DEEP = 4 };
	ir_shard said = o->kind == IR_broadcast ? moved_longer(p, s, o->out, 0, 0).h : 0;      /* what is repeated comes to where others are */
	int64_t bytes = scope_type(p, s, o->out)->bytes, most = is_asked(s, o->out, DEEP) ? taken(p, x, mesh, l, scope_wanted(s, o->out), bytes) : taken(p, x, mesh, l, said, bytes);
	for (uint32_t u = ir_use_first(s->from, o->out); u; u = ir_use_next(s->from, u)) {
		const struct ir_op *r = &s->from->op.p[ir_use_op(s->from, u)];
		for (uint32_t k = 0; ir_is_elem((enum ir_kind)r->kind) && k < r->nin; k++)
			most = MAX(most, taken(p, x, mesh, l, s->map[ir_in(s->from, r, k)] ? s->sh[ir_in(s->from, r, k)] : 0, bytes));
	}
	for (uint32_t k = 0; k < o->nin; k++)
		most = scope_type(p, s, ir_in(s->from, o, k))->bytes >= most ? 0 : most;
	return most != 0;
}

/* How many elements of dimension d of tensor k one of factor f, its major one, is: where a reshape makes one dimension of several, or several of one, some. */
static int64_t rows_of(struct part *p, const struct scope *s, const struct ir_op *o, const struct ir_axes *x, int k, int d, int f)
{
	return o->kind != IR_reshape ? 1 : scope_type(p, s, k < x->nin ? ir_in(s->from, o, (uint32_t)k) : o->out + (uint32_t)(k - x->nin))->dim[d] / x->factor[f].size;
}

/* The numbers of o's operands, by their bytes. */
static uint32_t *largest_first(struct part *p, const struct scope *s, const struct ir_op *o)
{
	uint32_t *order = ARENA_NEW(&p->a, uint32_t, o->nin + 1);
	for (uint32_t k = 0; k < o->nin; k++) {
		uint32_t i = k;
		for (; i > 0 && scope_type(p, s, ir_in(s->from, o, order[i - 1]))->bytes < scope_type(p, s, ir_in(s->from, o, k))->bytes; i--)
			order[i] = order[i - 1];
		order[i] = k;
	}
	return order;
}

/* An op along dimensions that do not divide, over views of values that are cut: it is done on parts of which the last one has more elements,
 * which nobody reads; what is made of them is a view again.  Of dimensions that are cut by the same axes those of larger operands are.  False: it is not one that can be. */
static bool with_more(struct part *p, struct scope *s, const struct ir_op *o)
{
	if (!(ir_info((enum ir_kind)o->kind)->flags & IR_PURE) || !o->nout || o->kind == IR_slice || o->kind == IR_pad ||
	    o->kind == IR_optimization_barrier || o->kind == IR_sharding_constraint || o->kind == IR_custom_call)
		return false;
	const struct ir_axes *x = NULL;
	struct axes *l = NULL, *other = NULL, y;
	int64_t *size = NULL, n;
	struct longer g;
	bool any = false;
	uint32_t *order = largest_first(p, s, o);
	for (uint32_t i = 0; i < o->nin; i++)
		for (int d = 0; d < scope_type(p, s, ir_in(s->from, o, order[i]))->rank; d++) {
			uint32_t of, k = order[i];
			if (!indivisible(p, s, o, k, d, &y, &of, &n))
				continue;
			if (!x) {
				x = o->kind == IR_top_k || o->kind == IR_dynamic_slice ? part_rule(p, s->from, o) : ir_axes_of(&p->a, p->m, s->from, o);
				l = ARENA_NEW(&p->a, struct axes, x->nfactor + 1);
				other = ARENA_NEW(&p->a, struct axes, x->nfactor + 1);
				size = ARENA_NEW(&p->a, int64_t, x->nfactor + 1);
				g = longer_new(p, s->from, o);
				g.or_whole = true;
			}
			int f = along(o, &x->dim[k][d]);
			if (f < 0 || (any && of != g.mesh))
				continue;
			int64_t rows = rows_of(p, s, o, x, (int)k, d, f);
			if (n % rows || n / rows % axes_size(y))         /* as many as divide */
				n = rows * moved_divisible(x->factor[f].size, axes_size(y));
			if (s->map[ir_in(s->from, o, k)] || moved_overlap_any(y, l, x->nfactor))      /* it is made already, as a whole */
				other[f] = y;
			else if (extends(p, s, o, x, f)) {
				l[f] = y;
				size[f] = n / rows;
				g.mesh = of;
				any = true;
			}
		}
	if (!any || taken_elsewhere(p, s, o, x, g.mesh, l))
		return false;
	for (int k = 0; k < x->nin + x->nout; k++) {
		bool filled = false;
		for (int d = 0; d < x->rank[k]; d++) {
			int f = along(o, &x->dim[k][d]);
			if (f >= 0 && k >= x->nin && other[f].n && !l[f].n && !moved_overlap_any(other[f], g.scattered[k - x->nin], d)) {
				g.after[k - x->nin][d] = moved_divisible(x->factor[f].size, axes_size(other[f]));
				g.scattered[k - x->nin][d] = other[f];
			}
			if (f < 0 || !l[f].n)
				continue;
			lengthen(&g, (uint32_t)k, d, rows_of(p, s, o, x, k, d, f) * size[f], l[f]);
			filled |= x->factor[f].kind == FACTOR_SUM && o->kind != IR_dynamic_slice && o->kind != IR_gather;
			if (o->kind == IR_gather && !k && takes_all(p, s, o, d))
				ir_attr_word(IR_gather, g.w, AT_size)[1 + d] = g.dim[k][d];
			if (o->kind == IR_dynamic_slice && k == x->nin)
				ir_attr_word(IR_dynamic_slice, g.w, AT_size)[1 + d] = g.dim[k][d];
		}
		if (filled && k < x->nin && !of_zeros(p, s, o, (uint32_t)k))
			g.fill[k] = filling(p, s, o, (uint32_t)k);
	}
	return is_longer(p, s, o, &g);
}

/* Is dimension d of reduction o's operand gone in its result? */
static bool reduced(const struct scope *s, const struct ir_op *o, int d)
{
	int n;
	const int64_t *dims = ir_attrs(s->from, o, AT_dims, &n);
	while (n-- > 0)
		if (dims[n] == d)
			return true;
	return false;
}

/* A reduction along all dimensions that its operand moves along, which nothing but such reads: each device reduces what it has, where that lies.  Not if
 * more would travel to make one of the results than to bring the operand. */
static bool where_it_lies(struct part *p, struct scope *s, const struct ir_op *o)
{
	ir_val v = o->kind == IR_reduce ? ir_in(s->from, o, 0) : 0;
	const struct view *x = !v || s->map[v] ? NULL : s->view[v];
	enum redop r = x ? sum_of(s, o) : RED_fn;
	if (!x || redop_elem[r] == ELEM_COUNT || moved_in_front(p, x) || 2 * scope_type(p, s, o->out)->bytes > scope_type(p, s, v)->bytes)
		return false;
	uint32_t readers = 0;
	for (uint32_t u = ir_use_first(s->from, v); u; u = ir_use_next(s->from, u), readers++)
		if (s->from->op.p[ir_use_op(s->from, u)].kind != IR_reduce)
			return false;
	for (int d = 0; d < x->rank; d++)
		if (view_moved_along(x, d) && !reduced(s, o, d))
			return false;
	if (readers < s->from->val.p[v].nuse)
		return false;
	ir_shard h;
	struct axes l;
	struct part_mark at = part_mark(p, &s->b);
	enum dtype dt = (enum dtype)scope_type(p, s, v)->dtype;
	ir_val none = part_neutral(p, &s->b, ir_scalar(p->m, dt), r), y = view_some(p, &s->b, x, none, &h, &l);
	if (!y || !l.n) {
		part_go_back(p, &s->b, at);
		return false;
	}
	moved_need(p, s, ir_in(s->from, o, 1));
	const struct ir_axes *q = part_op_axes(p, &s->v, o);
	uint32_t mesh = p->m->shard.p[x->source[x->piece[0].source].sh].mesh;
	struct factor_axes *seen = ARENA_NEW(&p->a, struct factor_axes, q->nfactor + 1);
	struct axes *f = ARENA_NEW(&p->a, struct axes, q->nfactor + 1);
	factors_of(&p->a, p->m, q, 0, h, seen);
	for (int i = 0; i < q->nfactor; i++)
		f[i] = seen[i].axes;
	ir_shard to = part_shard(p, q, q->nin, mesh, f);
	l = axes_join(&p->a, l, part_sums(p, q, 0, f));
	ir_val in[2] = { y, scope_fetch(p, s, ir_in(s->from, o, 1), 0) };
	s->b.loc = o->loc;
	record_about(p, s->from, o->out);
	if (!part_leaves(p, s->from, o)) {
		y = part_reduce(p, &s->b, s->from, o, mesh, l, in, part_type(p, s->from->val.p[o->out].type, to, DT_token));
	} else {
		uint32_t n;
		const int64_t *w = ir_attr_copy(&p->a, s->from, o, &n);
		enum dtype wide = part_rounds(dt, r) ? DT_f32 : dt;
		for (int i = 0; i < 2; i++)
			in[i] = ir_convert(&s->b, in[i], wide);
		y = ir_emit(&s->b, IR_reduce, 2, in, part_type(p, s->from->val.p[o->out].type, to, wide), w, n);
		to = part_with_sum(p, to, mesh, l, scope_type(p, s, o->out)->rank);
	}
	scope_give(p, s, o->out, y, to);
	return true;
}

/* --- windows into which a dimension does not divide -------------------------------------------- */

/* Along one dimension of the operand: its axes, if it does not divide, and the extents of operand, kernel (0: as it is), what is scattered and result
 * with more elements.  Which dimension that is of the kernel and of the result, and which one in attributes. */
struct wider { struct axes l; int64_t in, size, source, out, high; int kernel, to, at; };

static int64_t attr_at(const struct ir_fn *fn, const struct ir_op *o, enum ir_at a, int k)
{
	int n;
	return ir_attrs(fn, o, a, &n)[k];
}

/* The same for the gradient of a pool, whose windows all lie inside: those that come behind give nothing. */
static bool wider_pool(struct part *p, struct scope *s, const struct ir_op *o, int d, struct axes l, struct wider *w)
{
	int64_t parts = axes_size(l), in = scope_type(p, s, o->out)->dim[d], source = scope_type(p, s, ir_in(s->from, o, 1))->dim[d],
	        stride = attr_at(s->from, o, AT_stride, d), size = attr_at(s->from, o, AT_window, d);
	*w = (struct wider){ .l = l, .kernel = -1, .to = d, .at = d, .source = moved_divisible(source, parts) };
	w->in = w->out = moved_divisible(MAX(in, (w->source - 1) * stride + size), parts);
	w->high = (w->source - 1) * stride + size - w->in;
	return !attr_at(s->from, o, AT_low, d) && (source - 1) * stride + size <= in && source > 1 && w->in <= 2 * in && w->source <= 2 * source &&
	       w->in + w->source > in + source;
}

/* How dimension d of the window op o becomes one that divides into the parts of l: windows that there are stay where they are, or, where the
 * kernel is the longer one, that gets zeros.  False: d is none of the window's, or it divides, or most would be more. */
static bool wider(struct part *p, struct scope *s, const struct ir_op *o, int d, struct axes l, struct wider *w)
{
	const struct ir_fn *fn = s->from;
	bool conv = o->kind == IR_convolution;
	*w = (struct wider){ .l = l, .kernel = -1, .to = d, .at = d };
	if (conv) {
		int n, k = 2;
		const int64_t *lhs = ir_attrs(fn, o, AT_lhs, &n);
		while (k < n && lhs[k] != d)
			k++;
		if (k == n)
			return false;
		w->at = k - 2;
		w->kernel = (int)attr_at(fn, o, AT_rhs, k);
		w->to = (int)attr_at(fn, o, AT_out, k);
	}
	int at = w->at;
	int64_t parts = axes_size(l), size = conv ? scope_type(p, s, ir_in(fn, o, 1))->dim[w->kernel] : attr_at(fn, o, AT_window, at), kernel = size,
	        in = scope_type(p, s, ir_in(fn, o, 0))->dim[d], out = scope_type(p, s, o->out)->dim[w->to], base = attr_at(fn, o, conv ? AT_lhs_dilation : AT_base_dilation, at),
	        dilation = attr_at(fn, o, conv ? AT_rhs_dilation : AT_window_dilation, at);
	bool inside = conv && size > out;
	w->in = moved_divisible(in, parts);
	w->out = inside ? out : moved_divisible(out, parts);
	if (inside)
		w->size = kernel = moved_divisible(size, parts);
	w->high = (w->out - 1) * attr_at(fn, o, AT_stride, at) + (kernel - 1) * dilation + 1 - attr_at(fn, o, AT_low, at) - ((w->in - 1) * base + 1);
	int64_t part = w->in / parts * base, first = -attr_at(fn, o, AT_low, at), last = first + (parts - 1) * (w->out / parts * attr_at(fn, o, AT_stride, at) - part);
	if (!inside && (MAX(first, last) >= part || MIN(first, last) <= -part))      /* a part's windows are on others' parts */
		return false;
	if (in < 2 || out < 2 || w->in > 2 * in || w->out > 2 * out || kernel > 2 * size)
		return false;
	return (w->in > in || w->out > out || kernel > size) && !(inside && attr_at(fn, o, AT_reversal, at));
}

/* Does nobody but who gets the function's results read what o gives, which would be no less, gathered with what is behind it, than what it takes? */
static bool grows(struct part *p, struct scope *s, const struct ir_op *o, const struct wider *w)
{
	const struct ir_type_info *in = scope_type(p, s, ir_in(s->from, o, 0)), *out = scope_type(p, s, o->out);
	return !ir_use_first(s->from, o->out) && (double)out->bytes / (double)out->dim[w->to] * (double)w->out >= (double)in->bytes;
}

/* Windows along cut dimensions into which the operand, the kernel or the result does not divide: there are more of them, behind the last ones.
 * What the operand has there changes no window that counts; what is made of it is a view. */
static bool windows(struct part *p, struct scope *s, const struct ir_op *o)
{
	struct wider w[IR_MAX_RANK] = {{{0}}};
	bool conv = o->kind == IR_convolution, pool = o->kind == IR_select_and_scatter, any = false;
	uint32_t mesh = 0, taken = conv ? 1 : o->nout;
	if ((!conv && !pool && o->kind != IR_reduce_window) || !scope_type(p, s, o->out)->count)
		return false;
	int rank = scope_type(p, s, ir_in(s->from, o, 0))->rank;
	for (int d = 0; d < rank; d++) {
		uint32_t of = mesh;
		struct axes y = {0};
		for (uint32_t k = 0; k < taken && !y.n; k++)
			y = moved_cut_of(p, s, ir_in(s->from, o, k), d, &of);
		if (!y.n || (any && of != mesh) || !(pool ? wider_pool : wider)(p, s, o, d, y, &w[d])) {
			w[d].l.n = 0;
			continue;
		}
		mesh = of;
		any = true;
	}
	for (int d = 0; d < rank && any; d++)
		any = !w[d].l.n || scope_type(p, s, o->out)->dim[w[d].to] % axes_size(w[d].l) == 0 || !grows(p, s, o, &w[d]);
	if (!any)
		return false;
	struct longer g = longer_new(p, s->from, o);
	g.mesh = mesh;
	for (int d = 0; d < rank; d++) {
		if (!w[d].l.n)
			continue;
		for (uint32_t k = 0; k < taken; k++)
			lengthen(&g, k, d, w[d].in, w[d].l);
		if (w[d].size)
			lengthen(&g, 1, w[d].kernel, w[d].size, w[d].l);
		if (pool)
			lengthen(&g, 1, d, w[d].source, w[d].l);
		for (uint32_t k = 0; k < o->nout && !w[d].size; k++)
			lengthen(&g, o->nin + k, w[d].to, w[d].out, w[d].l);
		ir_attr_word((enum ir_kind)o->kind, g.w, AT_high)[1 + w[d].at] = w[d].high;
	}
	for (uint32_t k = pool; k < taken + conv + pool; k++) {
		enum redop r = conv || pool ? RED_add : (enum redop)ir_attr(s->from, o, AT_redop);
		if (r == RED_fn)
			moved_need(p, s, ir_in(s->from, o, o->nout + k));
		g.fill[k] = r == RED_fn ? s->map[ir_in(s->from, o, o->nout + k)] : part_neutral(p, &s->b, ir_scalar(p->m, (enum dtype)scope_type(p, s, ir_in(s->from, o, k))->dtype), r);
	}
	return is_longer(p, s, o, &g);
}

bool longer_op(struct part *p, struct scope *s, const struct ir_op *o) { return where_it_lies(p, s, o) || with_more(p, s, o) || windows(p, s, o); }
