/* What moves elements along dimensions that are cut waits until it is read (struct view): what it is made of then travels, and nothing else.  Ops
 * along a dimension that does not divide, because of such moves, are done on parts with more elements behind the last one. */
#include "impl.h"

#include "../eval/eval.h"

static bool is_move(enum ir_kind k) { return k == IR_slice || k == IR_pad || k == IR_concatenate || k == IR_reverse; }

/* An operand of what moves elements. */
static struct view *seen(struct part *p, struct scope *s, ir_val v)
{
	const void *one = ir_splat(p->m, s->from, v);
	const struct ir_type_info *t = scope_type(p, s, v);
	enum dtype dt = t->dtype;
	if (one)
		return view_fill(p, t, ir_const(&s->b, ir_scalar(p->m, dt), one, dtype_info[dt].bytes));
	if (s->view[v] && !s->map[v])
		return s->view[v];
	scope_summed(p, s, v);
	return view_of(p, scope_type(p, s, v), s->map[v], s->sh[v]);
}

/* What moves elements along dimensions that are cut waits for who reads it. */
static bool waits(struct part *p, struct scope *s, const struct ir_op *o)
{
	bool cut = false;
	int operands = o->kind == IR_pad ? 1 : (int)o->nin;
	if (!is_move((enum ir_kind)o->kind))
		return false;
	for (int i = 0; i < operands; i++) {
		ir_val x = ir_in(s->from, o, (uint32_t)i);
		const struct view *v = s->map[x] ? NULL : s->view[x];
		cut |= v && o->kind != IR_concatenate;
		for (int d = 0; d < scope_type(p, s, x)->rank; d++)
			for (int k = 0; k < (v ? v->nsource : 1); k++)
				cut |= ir_shard_parts(p->m, v ? v->source[k].sh : s->sh[x], d) > 1 && view_moves(p, s->from, o, d);
	}
	if (!cut || !scope_type(p, s, o->out)->count)
		return false;
	struct view **in = ARENA_NEW(&p->a, struct view *, o->nin + 1);
	for (int i = 0; i < operands; i++)
		in[i] = seen(p, s, ir_in(s->from, o, (uint32_t)i));
	if (o->kind == IR_pad) {
		moved_need(p, s, ir_in(s->from, o, 1));
		in[1] = seen(p, s, ir_in(s->from, o, 1));
	}
	s->view[o->out] = view_moved(p, &s->b, s->from, o, in);
	return s->view[o->out] != NULL;
}

/* A function of single elements of a view, whose result is moved again: it is done where the elements are. */
static bool in_place(struct part *p, struct scope *s, const struct ir_op *o)
{
	if (o->nin != 1 || o->nout != 1 || !ir_is_elem((enum ir_kind)o->kind) || !s->from->val.p[o->out].nuse)
		return false;
	ir_val x = ir_in(s->from, o, 0);
	const struct view *v = s->map[x] ? NULL : s->view[x];
	uint32_t readers = 0;
	for (uint32_t u = ir_use_first(s->from, o->out); u; u = ir_use_next(s->from, u), readers++) {
		const struct ir_op *r = &s->from->op.p[ir_use_op(s->from, u)];
		if (!is_move((enum ir_kind)r->kind))
			return false;
	}
	if (!v || readers < s->from->val.p[o->out].nuse)
		return false;
	int64_t count = 0, had = 0;
	for (int i = 0; i < v->npiece; i++) {
		const struct source *q = &v->source[v->piece[i].source];
		int64_t n = !q->fill, all = !q->fill;
		for (int d = 0; d < v->rank && !q->fill; d++) {
			n *= v->piece[i].run[d].n;
			all *= q->dim[d];
		}
		count += n;
		had += all;
	}
	if (2 * count < had)                     /* most of it would be for nobody */
		return false;
	struct view *y = arena_copy(&p->a, v, sizeof *v);
	y->source = arena_copy(&p->a, v->source, sizeof *v->source * (size_t)v->nsource);
	for (int i = 0; i < v->nsource; i++) {
		struct source *q = &y->source[i];
		const struct ir_type_info *t = ir_vtype(p->m, s->b.fn, q->v);
		int rank = t->rank;
		int64_t dim[IR_MAX_RANK];
		memcpy(dim, t->dim, sizeof *dim * (size_t)rank);
		q->v = ir_emit(&s->b, (enum ir_kind)o->kind, 1, &q->v, ir_tensor(p->m, (enum dtype)scope_type(p, s, o->out)->dtype, rank, dim), NULL, 0);
	}
	s->view[o->out] = y;
	return true;
}

/* v, a view of one value that has more elements behind it, cut out of that. */
static bool shortened(struct part *p, struct scope *s, ir_val v)
{
	const struct view *x = s->view[v];
	const struct source *q = &x->source[x->piece[0].source];
	int64_t zero[IR_MAX_RANK] = {0}, one[IR_MAX_RANK];
	bool longer = false;
	if (x->npiece != 1 || q->fill)
		return false;
	struct ir_shard_info n = p->m->shard.p[q->sh];
	struct ir_dim_shard *dim = ARENA_NEW(&p->a, struct ir_dim_shard, x->rank + 1);
	for (int d = 0; d < x->rank; d++) {
		const struct run *r = &x->piece[0].run[d];
		one[d] = 1;
		if (r->first || r->n != x->dim[d] || r->step != 1 || r->from || r->by != 1)
			return false;
		longer |= q->dim[d] > x->dim[d];
		if (q->sh && q->dim[d] == x->dim[d])
			dim[d] = n.dim[d];
	}
	if (!longer || !q->sh)
		return false;
	n.dim = dim;
	ir_shard h = ir_shard_add(p->m, &n);
	if (ir_shard_replicated(p->m, h))
		h = 0;
	ir_val y = part_reshard(p, &s->b, q->v, q->sh, h);
	int64_t limit[IR_MAX_RANK];
	for (int d = 0; d < x->rank; d++)
		limit[d] = x->dim[d] / ir_shard_parts(p->m, h, d);
	scope_give(p, s, v, ir_slice(&s->b, y, zero, limit, one), h);
	return true;
}

/* The view of v by what is made now. */
static struct view *anew(struct part *p, struct scope *s, ir_val v)
{
	const struct ir_op *o = ir_def(s->from, v);
	if (s->map[v] || !s->view[v] || !is_move((enum ir_kind)o->kind))
		return seen(p, s, v);
	struct view **in = ARENA_NEW(&p->a, struct view *, o->nin + 1);
	for (uint32_t k = 0; k < o->nin; k++)
		if (!(in[k] = anew(p, s, ir_in(s->from, o, k))))
			return NULL;
	return view_moved(p, &s->b, s->from, o, in);
}

/* v by way of another value that waits, so that each of the two moves along fewer dimensions: a roll along two is one, and then another. */
static bool by_way(struct part *p, struct scope *s, ir_val v, ir_shard to)
{
	enum { MOST = 32 };
	ir_val list[MOST] = { v };
	int n = 1;
	if (!to || view_cuts(p, &s->b, s->view[v], to) < 2)
		return false;
	for (int i = 0; i < n; i++) {
		const struct ir_op *o = ir_def(s->from, list[i]);
		for (uint32_t k = 0; k < o->nin && n < MOST; k++) {
			ir_val x = ir_in(s->from, o, k);
			bool had = s->map[x] || !s->view[x];
			for (int j = 0; j < n && !had; j++)
				had = list[j] == x;
			if (!had)
				list[n++] = x;
		}
	}
	for (int i = 1; i < n; i++) {
		struct part_mark at = part_mark(p, &s->b);
		ir_val x = list[i];
		ir_shard lies = scope_wanted(s, x), had = s->sh[x];
		if (!(s->map[x] = view_emit(p, &s->b, s->view[x], lies)))
			continue;
		s->sh[x] = lies;
		const struct view *y = anew(p, s, v);
		if (y && (s->map[v] = view_emit(p, &s->b, y, to)))
			return true;
		s->map[x] = 0;
		s->sh[x] = had;
		part_go_back(p, &s->b, at);
	}
	return false;
}

void moved_need(struct part *p, struct scope *s, ir_val v)
{
	const struct ir_op *o = ir_def(s->from, v);
	if (s->map[v] || !s->view[v])
		return;
	const struct why around = p->why;
	p->why = (struct why){ .fn = s->from, .o = o, .of = s->from, .x = v };
	ir_loc loc = s->b.loc;
	s->b.loc = o->loc;
	ir_shard to = scope_wanted(s, v);
	size_t first = s->b.fn->op.n;
	s->map[v] = view_emit(p, &s->b, s->view[v], to);
	s->sh[v] = to;
	bool made = s->map[v] || by_way(p, s, v, to);
	if (p->rec)
		record_rest(p, &s->b, first);
	if (!made && !shortened(p, s, v)) {
		for (uint32_t k = 0; k < o->nin; k++)
			moved_need(p, s, ir_in(s->from, o, k));
		scope_do(p, s, o);
	}
	s->b.loc = loc;
	p->why = around;
}

/* Operand k of o is a view of a value that is cut along its dimension d by l, into which the extent does not divide; false: it is no such view. */
static bool indivisible(struct part *p, struct scope *s, const struct ir_op *o, uint32_t k, int *d, struct axes *l, uint32_t *mesh)
{
	ir_val x = ir_in(s->from, o, k);
	const struct view *v = s->map[x] ? NULL : s->view[x];
	for (*d = 0; v && *d < v->rank; ++*d)
		for (int i = 0; i < v->nsource; i++) {
			const struct source *q = &v->source[i];
			if (q->fill || !q->sh || v->dim[*d] <= 1 || v->dim[*d] % ir_shard_parts(p->m, q->sh, *d) == 0)
				continue;
			*l = part_axes(p, q->sh, *d);
			*mesh = p->m->shard.p[q->sh].mesh;
			return true;
		}
	return false;
}

/* h, of an array of that rank, with dimension d cut by l alone; 0: other dimensions are by parts of it, or of another mesh. */
static ir_shard cut_by(struct part *p, ir_shard h, int rank, int d, uint32_t mesh, struct axes l)
{
	struct ir_shard_info n = { .mesh = mesh, .rank = rank };
	n.dim = ARENA_NEW(&p->a, struct ir_dim_shard, rank + 1);
	for (int e = 0; e < rank; e++) {
		struct axes y = part_axes(p, h, e);
		if (e == d || !y.n)
			continue;
		for (int i = 0; i < y.n; i++)
			for (int k = 0; k < l.n; k++)
				if (p->m->shard.p[h].mesh != mesh || ir_axes_overlap(y.p[i], l.p[k]))
					return 0;
		n.dim[e].naxis = y.n;
		n.dim[e].axis = (struct ir_axis_ref *)y.p;
	}
	n.dim[d].naxis = l.n;
	n.dim[d].axis = (struct ir_axis_ref *)l.p;
	return ir_shard_add(p->m, &n);
}

/* Does gather o take none of f's dimension from places that its indices say? */
static bool of_batch(struct scope *s, const struct ir_op *o, const struct ir_axes *x, int f)
{
	int n, d = ir_axes_find(x, 0, f);
	const int64_t *batch = ir_attrs(s->from, o, AT_obatch, &n);
	while (d >= 0 && n-- > 0)
		if (batch[n] == d)
			return true;
	return d < 0;
}

/* The first n elements along d of v, which is of type t. */
static struct view *shorter(struct part *p, const struct ir_type_info *t, ir_val v, ir_shard h, int d, int64_t n)
{
	struct view *x = view_of(p, t, v, h);
	int64_t *dim = arena_copy(&p->a, x->dim, sizeof *dim * (size_t)x->rank);
	struct run *run = arena_copy(&p->a, x->piece[0].run, sizeof *run * (size_t)x->rank);
	dim[d] = run[d].n = n;
	x->dim = dim;
	x->piece[0].run = run;
	return x;
}

/* o with those attributes, on operands and with results of types t: in lie as have; results are wanted as want, and in out they lie as lie. */
static void do_longer(struct part *p, struct scope *s, const struct ir_op *o, const int64_t *w, uint32_t words, const ir_type *t, ir_val *in, const ir_shard *have,
                      const ir_shard *want, ir_val *out, ir_shard *lie)
{
	struct ir_fn *g = ir_fn_new(p->m, "longer");
	struct ir_b b = { p->m, g, o->loc };
	ir_val *y = ARENA_NEW(&p->a, ir_val, o->nin + 1);
	for (uint32_t k = 0; k < o->nin; k++)
		y[k] = ir_splat(p->m, s->b.fn, in[k]) ? 0 : ir_param(g, t[k]);
	for (uint32_t k = 0; k < o->nin; k++)
		if (!y[k])
			y[k] = ir_const(&b, t[k], ir_splat(p->m, s->b.fn, in[k]), dtype_info[ir_type_of(p->m, t[k])->dtype].bytes);
	ir_emit_raw(&b, (enum ir_kind)o->kind, o->nin, y, o->nout, t + o->nin, w, words);
	const struct ir_op *longer = &g->op.p[g->op.n - 1];
	struct values v = *part_values_new(p, g);
	ir_shard *to = ARENA_NEW(&p->a, ir_shard, g->val.n);
	for (uint32_t k = 0; k < o->nout; k++)
		to[longer->out + k] = v.end[longer->out + k] = part_summed(p, want[k]);
	v.want = to;
	scope_part(p, s, &v, longer, in, have, out, lie);
	for (uint32_t k = 0; k < o->nout; k++)
		if (part_sum(p, lie[k]) && part_sum(p, lie[k]) != part_sum(p, want[k])) {
			record_about(p, s->from, o->out + k);
			out[k] = ir_convert(&s->b, part_finish(p, &s->b, out[k], &lie[k], want[k]), scope_type(p, s, o->out + k)->dtype);
		}
	ir_fn_drop(p->m);
}

/* An op along a dimension that does not divide, over views of values that are cut: it is done on parts of which the last one has more elements,
 * which nobody reads; what is made of them is a view again.  False: it is not one that can be. */
static bool with_more(struct part *p, struct scope *s, const struct ir_op *o)
{
	int d = -1;
	uint32_t mesh = 0, first = 0;
	struct axes l = {0};
	if (!(ir_info((enum ir_kind)o->kind)->flags & IR_PURE) || !o->nout || o->kind == IR_dynamic_slice || o->kind == IR_slice ||
	    o->kind == IR_pad || o->kind == IR_optimization_barrier || o->kind == IR_sharding_constraint || o->kind == IR_custom_call)
		return false;
	while (first < o->nin && !indivisible(p, s, o, first, &d, &l, &mesh))
		first++;
	if (first == o->nin)
		return false;
	const struct ir_axes *x = ir_axes_of(&p->a, p->m, s->from, o);
	if (x->dim[first][d].n != 1)
		return false;
	int f = x->dim[first][d].factor[0];
	int64_t extent = x->factor[f].size, parts = axes_size(l), more = (extent + parts - 1) / parts * parts;
	enum redop r = o->kind == IR_reduce && o->nout == 1 ? (enum redop)ir_attr(s->from, o, AT_redop) : RED_fn;
	bool sum = x->factor[f].kind == FACTOR_SUM && redop_elem[r] != ELEM_COUNT;
	if (!sum && (x->factor[f].kind != FACTOR_EACH || ir_axes_find(x, x->nin, f) < 0))
		return false;
	if ((o->kind == IR_gather && !of_batch(s, o, x, f)) || (o->kind == IR_dynamic_update_slice && ir_axes_find(x, 1, f) < 0))
		return false;                        /* places would be clamped at another end */
	if (o->kind == IR_convolution && (ir_attr(s->from, o, AT_batch_groups) > 1 || (ir_attr(s->from, o, AT_feature_groups) > 1 && ir_axes_find(x, 1, f) >= 0)))
		return false;                        /* there would be more groups */
	for (int t = 0; t < x->nin + x->nout; t++)
		for (int e = 0; e < x->rank[t]; e++)
			for (int i = 0; i < x->dim[t][e].n; i++)
				if (x->dim[t][e].factor[i] == f && x->dim[t][e].n > 1)
					return false;
	ir_val *in = ARENA_NEW(&p->a, ir_val, o->nin + 1), *out = ARENA_NEW(&p->a, ir_val, o->nout + 1);
	ir_shard *have = ARENA_NEW(&p->a, ir_shard, o->nin + 1), *want = ARENA_NEW(&p->a, ir_shard, o->nout + 1), *lie = ARENA_NEW(&p->a, ir_shard, o->nout + 1);
	ir_type *t = ARENA_NEW(&p->a, ir_type, o->nin + o->nout + 1);
	for (uint32_t k = 0; k < o->nin; k++) {
		if (ir_axes_find(x, (int)k, f) < 0)
			moved_need(p, s, ir_in(s->from, o, k));
		scope_summed(p, s, ir_in(s->from, o, k));
	}
	struct part_mark before = part_mark(p, &s->b);
	for (uint32_t k = 0; k < o->nin + o->nout; k++) {
		ir_val v = k < o->nin ? ir_in(s->from, o, k) : o->out + k - o->nin;
		struct ir_type_info i = *scope_type(p, s, v);
		int e = ir_axes_find(x, (int)k, f);
		int64_t dim[IR_MAX_RANK];
		memcpy(dim, i.dim, sizeof *dim * i.rank);
		if (e >= 0)
			dim[e] = more;
		t[k] = ir_tensor(p->m, (enum dtype)i.dtype, i.rank, dim);
		if (k >= o->nin) {
			want[k - o->nin] = e < 0 ? scope_wanted(s, v) : cut_by(p, part_summed(p, scope_wanted(s, v)), i.rank, e, mesh, l);
			continue;
		}
		if (e < 0) {
			in[k] = s->map[v];
			have[k] = s->sh[v];
			continue;
		}
		have[k] = cut_by(p, part_summed(p, s->map[v] ? s->sh[v] : scope_wanted(s, v)), i.rank, e, mesh, l);
		const void *one = ir_splat(p->m, s->from, v);
		if (one && !sum) {
			in[k] = ir_const(&s->b, part_type(p, t[k], have[k], DT_token), one, dtype_info[i.dtype].bytes);
			continue;
		}
		ir_val fill = 0;
		if (sum) {
			_Alignas(16) char none[16];
			kern_identity(r, (enum dtype)i.dtype, none);
			fill = ir_const(&s->b, ir_scalar(p->m, (enum dtype)i.dtype), none, dtype_info[i.dtype].bytes);
		}
		const struct view *y = view_longer(p, seen(p, s, v), e, more, fill);
		record_about(p, s->from, v);
		in[k] = have[k] && y ? view_emit(p, &s->b, y, have[k]) : 0;
		if (!in[k]) {
			part_go_back(p, &s->b, before);
			return false;
		}
	}
	for (uint32_t k = 0; k < o->nin; k++) {          /* who reads them again finds them longer */
		ir_val v = ir_in(s->from, o, k);
		int e = ir_axes_find(x, (int)k, f);
		if (e >= 0 && !sum && !s->map[v])
			s->view[v] = shorter(p, ir_type_of(p->m, t[k]), in[k], have[k], e, extent);
	}
	uint32_t words;
	const int64_t *w = ir_attr_copy(&p->a, s->from, o, &words);
	do_longer(p, s, o, w, words, t, in, have, want, out, lie);
	for (uint32_t k = 0; k < o->nout; k++) {
		int e = ir_axes_find(x, x->nin + (int)k, f);
		if (e < 0) {
			scope_give(p, s, o->out + k, out[k], lie[k]);
			continue;
		}
		s->view[o->out + k] = shorter(p, ir_type_of(p->m, t[o->nin + k]), out[k], lie[k], e, extent);
	}
	return true;
}

/* --- windows into which a dimension does not divide -------------------------------------------- */

/* Along one dimension of the operand: its axes, if it does not divide, and the extents of operand, kernel (0: as it is) and result with more
 * elements.  Which dimension that is of the kernel and of the result, and which one in attributes. */
struct wider { struct axes l; int64_t in, size, out, high; int kernel, to, at; };

/* What cuts dimension d of x where it lies, or, not made yet, of what it is made of. */
static struct axes cut_of(struct part *p, struct scope *s, ir_val x, int d, uint32_t *mesh)
{
	const struct view *v = s->map[x] ? NULL : s->view[x];
	for (int i = 0; i < (v ? v->nsource : 1); i++) {
		ir_shard h = part_summed(p, v ? v->source[i].sh : s->sh[x]);
		if ((v && v->source[i].fill) || ir_shard_parts(p->m, h, d) == 1)
			continue;
		*mesh = p->m->shard.p[h].mesh;
		return part_axes(p, h, d);
	}
	return (struct axes){0};
}

static int64_t attr_at(const struct ir_fn *fn, const struct ir_op *o, enum ir_at a, int k)
{
	int n;
	return ir_attrs(fn, o, a, &n)[k];
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
	w->in = (in + parts - 1) / parts * parts;
	w->out = inside ? out : (out + parts - 1) / parts * parts;
	if (inside)
		w->size = kernel = (size + parts - 1) / parts * parts;
	w->high = (w->out - 1) * attr_at(fn, o, AT_stride, at) + (kernel - 1) * dilation + 1 - attr_at(fn, o, AT_low, at) - ((w->in - 1) * base + 1);
	int64_t part = w->in / parts * base, first = -attr_at(fn, o, AT_low, at), last = first + (parts - 1) * (w->out / parts * attr_at(fn, o, AT_stride, at) - part);
	if (!inside && (MAX(first, last) >= part || MIN(first, last) <= -part))      /* a part's windows are on others' parts */
		return false;
	if (in < 2 || out < 2 || w->in > 2 * in || w->out > 2 * out || kernel > 2 * size)
		return false;
	return (w->in > in || w->out > out || kernel > size) && !(inside && attr_at(fn, o, AT_reversal, at));
}

/* h, of an array of that rank, with the dimensions that have axes in l cut by those, and others as they are if these are free. */
static ir_shard cut_as(struct part *p, ir_shard h, int rank, uint32_t mesh, const struct axes *l)
{
	struct ir_shard_info n = { .mesh = mesh, .rank = rank };
	n.dim = ARENA_NEW(&p->a, struct ir_dim_shard, rank + 1);
	for (int e = 0; e < rank; e++) {
		struct axes y = l[e].n ? l[e] : part_axes(p, h, e);
		bool fits = l[e].n || (h && p->m->shard.p[h].mesh == mesh);
		for (int k = 0; k < rank && fits && !l[e].n; k++)
			for (int i = 0; i < y.n; i++)
				for (int j = 0; j < l[k].n; j++)
					fits &= !ir_axes_overlap(y.p[i], l[k].p[j]);
		if (!fits)
			continue;
		n.dim[e].naxis = y.n;
		n.dim[e].axis = (struct ir_axis_ref *)y.p;
	}
	h = ir_shard_add(p->m, &n);
	return ir_shard_replicated(p->m, h) ? 0 : h;
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
	struct axes of_in[IR_MAX_RANK] = {{0}}, of_kernel[IR_MAX_RANK] = {{0}}, of_out[IR_MAX_RANK] = {{0}};
	bool conv = o->kind == IR_convolution, any = false;
	uint32_t mesh = 0, taken = conv ? 2 : o->nout;
	if ((!conv && o->kind != IR_reduce_window) || !scope_type(p, s, o->out)->count)
		return false;
	int rank = scope_type(p, s, ir_in(s->from, o, 0))->rank;
	for (int d = 0; d < rank; d++) {
		uint32_t of = mesh;
		struct axes y = {0};
		for (uint32_t k = 0; k < (conv ? 1 : taken) && !y.n; k++)
			y = cut_of(p, s, ir_in(s->from, o, k), d, &of);
		if (!y.n || (mesh && of != mesh) || !wider(p, s, o, d, y, &w[d])) {
			w[d].l.n = 0;
			continue;
		}
		mesh = of;
		any = true;
		of_in[d] = y;
		if (w[d].size)
			of_kernel[w[d].kernel] = y;
		else
			of_out[w[d].to] = y;
	}
	for (int d = 0; d < rank && any; d++)
		any = !w[d].l.n || w[d].out == scope_type(p, s, o->out)->dim[w[d].to] || !grows(p, s, o, &w[d]);
	if (!any)
		return false;
	for (uint32_t k = 0; k < o->nin; k++) {
		bool more = k < taken && (!conv || !k);
		for (int d = 0; d < rank && conv && k == 1; d++)
			more |= w[d].l.n && w[d].size;
		if (!more)
			moved_need(p, s, ir_in(s->from, o, k));
		scope_summed(p, s, ir_in(s->from, o, k));
	}
	struct part_mark before = part_mark(p, &s->b);
	uint32_t n = o->nin + o->nout, words;
	ir_val *in = ARENA_NEW(&p->a, ir_val, n + 1), *out = ARENA_NEW(&p->a, ir_val, n + 1);
	ir_shard *have = ARENA_NEW(&p->a, ir_shard, n + 1), *want = ARENA_NEW(&p->a, ir_shard, n + 1), *lie = ARENA_NEW(&p->a, ir_shard, n + 1);
	ir_type *t = ARENA_NEW(&p->a, ir_type, n + 1);
	for (uint32_t k = 0; k < n; k++) {
		ir_val v = k < o->nin ? ir_in(s->from, o, k) : o->out + k - o->nin;
		struct ir_type_info i = *scope_type(p, s, v);
		bool kernel = conv && k == 1, more = false;
		int64_t dim[IR_MAX_RANK];
		memcpy(dim, i.dim, sizeof *dim * i.rank);
		for (int d = 0; d < rank; d++) {
			if (!w[d].l.n || (k >= taken && k < o->nin) || (kernel && !w[d].size))
				continue;
			dim[kernel ? w[d].kernel : k < o->nin ? d : w[d].to] = kernel ? w[d].size : k < o->nin ? w[d].in : w[d].out;
			more = true;
		}
		t[k] = ir_tensor(p->m, (enum dtype)i.dtype, i.rank, dim);
		if (k >= o->nin) {
			want[k - o->nin] = cut_as(p, part_summed(p, scope_wanted(s, v)), i.rank, mesh, of_out);
			continue;
		}
		if (!more) {
			in[k] = s->map[v];
			have[k] = s->sh[v];
			continue;
		}
		have[k] = cut_as(p, part_summed(p, s->map[v] ? s->sh[v] : scope_wanted(s, v)), i.rank, mesh, kernel ? of_kernel : of_in);
		enum redop r = conv ? RED_add : (enum redop)ir_attr(s->from, o, AT_redop);
		ir_val fill = r == RED_fn ? s->map[ir_in(s->from, o, o->nout + k)] : 0;
		if (!fill) {
			_Alignas(16) char none[16] = {0};
			if (!conv)
				kern_identity(r, (enum dtype)i.dtype, none);
			fill = ir_const(&s->b, ir_scalar(p->m, (enum dtype)i.dtype), none, dtype_info[i.dtype].bytes);
		}
		const struct view *y = s->map[v] ? view_of(p, scope_type(p, s, v), s->map[v], s->sh[v]) : s->view[v];
		for (int d = 0; d < i.rank && y; d++)
			if (dim[d] > i.dim[d])
				y = view_longer(p, y, d, dim[d], fill);
		record_about(p, s->from, v);
		in[k] = y && have[k] ? view_emit(p, &s->b, y, have[k]) : 0;
		if (!in[k]) {
			part_go_back(p, &s->b, before);
			return false;
		}
	}
	int64_t *attr = ir_attr_copy(&p->a, s->from, o, &words);
	for (int d = 0; d < rank; d++)
		if (w[d].l.n)
			ir_attr_word((enum ir_kind)o->kind, attr, AT_high)[1 + w[d].at] = w[d].high;
	do_longer(p, s, o, attr, words, t, in, have, want, out, lie);
	bool longer = false;
	for (uint32_t k = 0; k < o->nout; k++)
		for (int d = 0; d < rank; d++) {
			if (!w[d].l.n || w[d].size)
				continue;
			longer = true;
			if (!axes_equal(part_axes(p, lie[k], w[d].to), w[d].l)) {        /* it is better whole: as it was */
				part_go_back(p, &s->b, before);
				return false;
			}
		}
	for (uint32_t k = 0; k < o->nout; k++) {
		if (!longer) {
			scope_give(p, s, o->out + k, out[k], lie[k]);
			continue;
		}
		const struct ir_type_info *had = scope_type(p, s, o->out + k);
		struct view *y = view_of(p, ir_type_of(p->m, t[o->nin + k]), out[k], lie[k]);
		int64_t *dim = arena_copy(&p->a, y->dim, sizeof *dim * (size_t)y->rank);
		struct run *run = arena_copy(&p->a, y->piece[0].run, sizeof *run * (size_t)y->rank);
		for (int d = 0; d < y->rank; d++)
			dim[d] = run[d].n = had->dim[d];
		y->dim = dim;
		y->piece[0].run = run;
		s->view[o->out + k] = y;
	}
	return true;
}

bool moved_op(struct part *p, struct scope *s, const struct ir_op *o) { return waits(p, s, o) || in_place(p, s, o) || with_more(p, s, o) || windows(p, s, o); }
