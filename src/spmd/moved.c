/* What moves elements along dimensions that are cut waits until it is read (struct view): what it is made of then travels, and nothing else.  Ops
 * along a dimension that does not divide, because of such moves, are done on parts with more elements behind the last one. */
#include "impl.h"

static bool is_move(enum ir_kind k) { return k == IR_slice || k == IR_pad || k == IR_concatenate || k == IR_reverse; }

/* An operand of what moves elements. */
static struct view *seen(struct part *p, struct scope *s, ir_val v)
{
	const void *one = ir_splat(p->m, s->from, v);
	const struct ir_type_info t = *scope_type(p, s, v);
	enum dtype dt = (enum dtype)t.dtype;
	if (one)
		return view_fill(p, &t, ir_const(&s->b, ir_scalar(p->m, dt), one, dtype_info[dt].bytes));
	if (s->view[v] && !s->map[v])
		return s->view[v];
	scope_summed(p, s, v);
	return view_of(p, scope_type(p, s, v), s->map[v], s->sh[v]);
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

/* The axes that cut dimension d of value x where it lies, or, not made yet, of the first of what it is made of that is cut there. */
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

static bool overlap(struct axes a, struct axes b)
{
	for (int i = 0; i < a.n; i++)
		for (int k = 0; k < b.n; k++)
			if (ir_axes_overlap(a.p[i], b.p[k]))
				return true;
	return false;
}

static bool overlap_any(struct axes a, const struct axes *l, int n)
{
	while (n-- > 0)
		if (overlap(a, l[n]))
			return true;
	return false;
}

/* h, of an array of that rank, with the dimensions that have axes in l cut by those, and others as they are if these are free. */
static ir_shard cut_as(struct part *p, ir_shard h, int rank, uint32_t mesh, const struct axes *l)
{
	struct ir_shard_info n = { .mesh = mesh, .rank = rank };
	n.dim = ARENA_NEW(&p->a, struct ir_dim_shard, rank + 1);
	for (int e = 0; e < rank; e++) {
		struct axes y = l[e].n ? l[e] : part_axes(p, h, e);
		if (!l[e].n && (!h || p->m->shard.p[h].mesh != mesh || overlap_any(y, l, rank)))
			continue;
		n.dim[e].naxis = y.n;
		n.dim[e].axis = (struct ir_axis_ref *)y.p;
	}
	h = ir_shard_add(p->m, &n);
	return ir_shard_replicated(p->m, h) ? 0 : h;
}

/* What divides into that many parts, n or a little more. */
static int64_t divisible(int64_t n, int64_t parts) { return (n + parts - 1) / parts * parts; }

/* The first elements of v, which lies as h and is of type t: of dim[d] along d. */
static struct view *shorter(struct part *p, ir_type t, ir_val v, ir_shard h, const int64_t *dim)
{
	struct view *x = view_of(p, ir_type_of(p->m, t), v, h);
	struct run *run = arena_copy(&p->a, x->piece[0].run, sizeof *run * (size_t)x->rank);
	x->dim = arena_copy(&p->a, dim, sizeof *dim * (size_t)x->rank);
	for (int d = 0; d < x->rank; d++)
		run[d].n = dim[d];
	x->piece[0].run = run;
	return x;
}

/* How x lies where it need not be whole: cut as it is wanted, and along other dimensions as what it is made of.  dim: the extents that divide so. */
static ir_shard cut_as_made(struct part *p, struct scope *s, ir_val x, int64_t *dim)
{
	const struct ir_type_info *t = scope_type(p, s, x);
	ir_shard h = part_summed(p, scope_wanted(s, x));
	struct axes l[IR_MAX_RANK] = {{0}};
	bool any = h != 0;
	uint32_t mesh = p->m->shard.p[h].mesh;
	for (int d = 0; d < t->rank; d++)
		l[d] = part_axes(p, h, d);
	for (int d = 0; d < t->rank; d++) {
		uint32_t of = mesh;
		struct axes y = cut_of(p, s, x, d, &of);
		if (y.n && !l[d].n && (!any || of == mesh) && !overlap_any(y, l, t->rank)) {
			l[d] = y;
			mesh = of;
			any = true;
		}
		dim[d] = divisible(t->dim[d], axes_size(l[d]));
	}
	return cut_as(p, 0, t->rank, mesh, l);
}

/* Values that were made on the way to another one, as they were before, and how many may yet be made for one that is. */
struct way { int deep, n; struct undo { ir_val x, map; ir_shard sh; struct view *view; } was[64]; };

static void undo(struct scope *s, struct way *w, int n)
{
	while (w->n > n) {
		struct undo u = w->was[--w->n];
		s->map[u.x] = u.map;
		s->sh[u.x] = u.sh;
		s->view[u.x] = u.view;
	}
}

/* The view of v, which is made of x and of what is made now. */
static struct view *anew(struct part *p, struct scope *s, ir_val v, ir_val x)
{
	const struct ir_op *o = ir_def(s->from, v);
	if (v == x || s->map[v] || !s->view[v] || !is_move((enum ir_kind)o->kind))
		return seen(p, s, v);
	struct view **in = ARENA_NEW(&p->a, struct view *, o->nin + 1);
	for (uint32_t k = 0; k < o->nin; k++)
		if (!(in[k] = anew(p, s, ir_in(s->from, o, k), x)))
			return NULL;
	return view_moved(p, &s->b, s->from, o, in);
}

static ir_val brought(struct part *p, struct scope *s, struct way *w, ir_val v, const int64_t *dim, ir_val fill, ir_shard to);

/* x, which waits, is made where its parts are, with more elements behind the last one if it does not divide. */
static bool made(struct part *p, struct scope *s, struct way *w, ir_val x)
{
	const struct ir_type_info t = *scope_type(p, s, x);
	int64_t dim[IR_MAX_RANK];
	ir_shard lies = cut_as_made(p, s, x, dim);
	ir_val y = lies && w->n < (int)NELEM(w->was) ? brought(p, s, w, x, dim, 0, lies) : 0;
	if (!y || w->n == (int)NELEM(w->was))
		return false;
	w->was[w->n++] = (struct undo){ x, s->map[x], s->sh[x], s->view[x] };
	ir_type longer = ir_tensor(p->m, (enum dtype)t.dtype, t.rank, dim);
	if (longer != s->from->val.p[x].type) {
		s->view[x] = shorter(p, longer, y, lies, t.dim);
		return true;
	}
	s->map[x] = y;
	s->sh[x] = lies;
	return true;
}

/* Was what came to a device from op `first` on, to make what v shows, less than half of what gathering the largest of its sources would bring? */
static bool came_cheap(struct part *p, struct scope *s, const struct view *v, enum dtype dt, size_t first)
{
	double came = 0, all = 0;
	for (size_t i = first; i < s->b.fn->op.n; i++) {
		const struct ir_op *o = &s->b.fn->op.p[i];
		came += ir_info((enum ir_kind)o->kind)->flags & IR_COLL ? (double)ir_vtype(p->m, s->b.fn, o->out)->bytes : 0;
	}
	for (int i = 0; i < v->nsource; i++)
		if (!v->source[i].fill)
			all = MAX(all, part_travel(p, ir_tensor(p->m, dt, v->rank, v->source[i].dim), v->source[i].sh, 0).bytes);
	return 2 * came <= all;
}

/* What moves elements along dimensions that are cut waits for who reads it.  An operand whose pieces would be no boxes then is made first. */
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
	struct view *v = view_moved(p, &s->b, s->from, o, in);
	struct way w = {0};
	struct part_mark at = part_mark(p, &s->b);
	size_t first = s->b.fn->op.n;
	ir_val x = ir_in(s->from, o, 0);
	if (!v && operands == 1 && in[0]->npiece > 1 && !s->map[x] && made(p, s, &w, x) && came_cheap(p, s, in[0], (enum dtype)scope_type(p, s, x)->dtype, first)) {
		in[0] = seen(p, s, x);
		v = view_moved(p, &s->b, s->from, o, in);
	}
	if (!v) {
		undo(s, &w, 0);
		part_go_back(p, &s->b, at);
	}
	s->view[o->out] = v;
	return v != NULL;
}

/* v by way of another value that waits, so that each of the two moves along fewer dimensions, or of fewer pieces: a roll along two is one, and
 * then another. */
static ir_val by_way(struct part *p, struct scope *s, struct way *w, ir_val v, const int64_t *dim, ir_val fill, ir_shard to)
{
	enum { MOST = 32 };
	ir_val list[MOST] = { v }, r = 0;
	int n = 1;
	if (!w->deep)
		return 0;
	for (int i = 0; i < n; i++) {
		const struct ir_op *o = ir_def(s->from, list[i]);
		for (uint32_t k = 0; o && is_move((enum ir_kind)o->kind) && k < o->nin && n < MOST; k++) {
			ir_val x = ir_in(s->from, o, k);
			bool had = s->map[x] || !s->view[x];
			for (int j = 0; j < n && !had; j++)
				had = list[j] == x;
			if (!had)
				list[n++] = x;
		}
	}
	int deep = w->deep;
	for (int i = 1; i < n * deep && !r; i++) {       /* first those that are made at once */
		struct part_mark at = part_mark(p, &s->b);
		int before = w->n;
		w->deep = i / n;
		const struct view *y = i % n && made(p, s, w, list[i % n]) ? anew(p, s, v, list[i % n]) : NULL;
		y = y ? view_longer(p, &s->b, y, dim, fill) : NULL;
		r = y ? view_emit(p, &s->b, y, to) : 0;
		if (!r) {
			undo(s, w, before);
			part_go_back(p, &s->b, at);
		}
	}
	w->deep = deep;
	return r;
}

/* v, of dim[d] elements along d, of which more than it has are fill, or, if that is 0, anything, as `to`; 0: that is no better than to gather what
 * it is made of. */
static ir_val brought(struct part *p, struct scope *s, struct way *w, ir_val v, const int64_t *dim, ir_val fill, ir_shard to)
{
	const struct view *y = view_longer(p, &s->b, seen(p, s, v), dim, fill);
	ir_val r = y ? view_emit(p, &s->b, y, to) : 0;
	return r || s->map[v] || !s->view[v] || !to ? r : by_way(p, s, w, v, dim, fill, to);
}

/* Of a source of x the dimensions along which nothing moves cut as `to` has them, or else as they are. */
static ir_shard still_as(struct part *p, const struct view *x, const struct source *q, ir_shard to)
{
	ir_shard had = q->sh;
	uint32_t mesh = p->m->shard.p[to ? to : had].mesh;
	struct axes l[IR_MAX_RANK] = {{0}}, of[IR_MAX_RANK] = {{0}};
	for (int d = 0; d < x->rank; d++)
		of[d] = part_axes(p, to, d);
	for (int d = 0; d < x->rank; d++)
		if (!view_moved_along(x, d)) {
			struct axes y = part_axes(p, had, d);
			l[d] = of[d].n ? of[d] : p->m->shard.p[had].mesh == mesh && !overlap_any(y, of, x->rank) ? y : (struct axes){0};
		}
	return cut_as(p, 0, x->rank, mesh, l);
}

/* Are elements of view x, of one value, where that lies if there are more behind the last one? */
static bool in_front(struct part *p, const struct view *x)
{
	const struct source *q = &x->source[x->piece[0].source];
	if (x->npiece > 1 || q->fill)
		return false;
	for (int d = 0; d < x->rank; d++) {
		const struct run *r = &x->piece[0].run[d];
		if (r->from || r->by != 1 || divisible(x->dim[d], ir_shard_parts(p->m, q->sh, d)) != q->dim[d])
			return false;
	}
	return true;
}

/* v, where it is wanted: in one step, if that is less than what is gathered else: v itself, made in parts with more elements behind the last
 * one, if that is there or much less than what it is made of, or that, if it is one value, of which v is cut out. */
static bool gathered(struct part *p, struct scope *s, ir_val v)
{
	enum { FEW = 256 };
	const struct ir_type_info *t = scope_type(p, s, v);
	const struct view *x = s->view[v];
	enum dtype dt = t->dtype;
	int64_t zero[IR_MAX_RANK] = {0}, one[IR_MAX_RANK], dim[IR_MAX_RANK], limit[IR_MAX_RANK];
	int rank = t->rank;
	struct travel all = {0};
	struct way w = { .deep = 2 };
	struct axes l[IR_MAX_RANK] = {{0}};
	ir_shard cut = cut_as_made(p, s, v, dim);
	for (int d = 0; d < rank; d++) {
		if (dim[d] == t->dim[d])
			l[d] = part_axes(p, cut, d);
		one[d] = 1;
	}
	ir_shard h = cut_as(p, 0, rank, p->m->shard.p[cut].mesh, l), to = part_summed(p, scope_wanted(s, v));
	bool parts = cut && cut != scope_wanted(s, v);
	for (int i = 0; i < x->npiece; i++) {
		const struct source *q = &x->source[x->piece[i].source];
		bool again = q->fill;
		for (int k = 0; k < i; k++)
			again |= x->source[x->piece[k].source].v == q->v;
		if (again)
			continue;
		struct travel of = part_travel(p, ir_tensor(p->m, dt, rank, q->dim), q->sh, still_as(p, x, q, to));
		all.ns += of.ns;
		all.bytes += of.bytes;
	}
	ir_type longer = ir_tensor(p->m, dt, rank, dim);
	struct travel after = part_travel(p, longer, cut, to);
	double bytes = parts ? MIN(all.bytes, after.bytes) : all.bytes;
	if (bytes < (double)part_worth(p)) {     /* of what is short, not of numbers; much less than one step brings, or as much as several */
		double first = parts && !in_front(p, x) ? part_local(p, longer, cut) : -bytes / 4;
		bytes = bytes < FEW ? 0 : MIN(all.bytes, bytes + first) + 1;
	}
	ir_val y = view_boxes(p, &s->b, x, to, (int64_t)bytes);
	if (y) {
		scope_give(p, s, v, y, to);
		return true;
	}
	struct part_mark at = part_mark(p, &s->b);
	size_t first = s->b.fn->op.n;
	y = parts ? brought(p, s, &w, v, dim, 0, cut) : 0;
	if (y && s->b.fn->op.n > first && 2 * after.ns >= all.ns)
		y = 0;
	if (!y) {
		undo(s, &w, 0);
		part_go_back(p, &s->b, at);
		h = still_as(p, x, &x->source[x->piece[0].source], to);
		y = view_cut_out(p, &s->b, x, h);
	} else {
		y = part_reshard(p, &s->b, y, cut, h);
		for (int d = 0; d < rank; d++)
			limit[d] = scope_type(p, s, v)->dim[d] / ir_shard_parts(p->m, h, d);
		y = ir_slice(&s->b, y, zero, limit, one);
	}
	if (y)
		scope_give(p, s, v, y, h);
	return y != 0;
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
	struct way w = { .deep = 2 };
	int64_t dim[IR_MAX_RANK];
	memcpy(dim, scope_type(p, s, v)->dim, sizeof *dim * scope_type(p, s, v)->rank);
	bool whole = false;              /* what it is made of is cut where v is not: little of it might do */
	for (int d = 0; d < scope_type(p, s, v)->rank; d++) {
		uint32_t mesh;
		whole |= view_moved_along(s->view[v], d) && ir_shard_parts(p->m, to, d) == 1 && cut_of(p, s, v, d, &mesh).n;
	}
	bool is_made = whole && gathered(p, s, v);
	ir_val y = is_made ? 0 : brought(p, s, &w, v, dim, 0, to);
	if (y) {
		s->map[v] = y;
		s->sh[v] = to;
	}
	is_made |= y || (!whole && gathered(p, s, v));
	if (p->rec)
		record_rest(p, &s->b, first);
	if (!is_made) {
		for (uint32_t k = 0; k < o->nin; k++)
			moved_need(p, s, ir_in(s->from, o, k));
		scope_do(p, s, o);
	}
	s->b.loc = loc;
	p->why = around;
}

ir_val moved_fetch_longer(struct part *p, struct scope *s, ir_val v, ir_type t, ir_shard to)
{
	const struct ir_type_info *i = ir_type_of(p->m, t);
	int rank = i->rank;
	int64_t dim[IR_MAX_RANK], more[3 * (IR_MAX_RANK + 1)] = {0};
	ir_val fill = ir_const_i(&s->b, ir_scalar(p->m, (enum dtype)i->dtype), 0);
	struct part_mark at = part_mark(p, &s->b);
	struct way w = { .deep = 2 };
	memcpy(dim, i->dim, sizeof *dim * (size_t)rank);
	ir_val y = brought(p, s, &w, v, dim, fill, to);
	if (y)
		return y;
	undo(s, &w, 0);
	part_go_back(p, &s->b, at);
	moved_need(p, s, v);
	for (int k = 0; k < 3; k++)
		more[k * (rank + 1)] = rank;
	for (int d = 0; d < rank; d++)
		more[rank + 2 + d] = dim[d] - scope_type(p, s, v)->dim[d];
	y = ir_emit(&s->b, IR_pad, 2, (ir_val[]){ scope_fetch(p, s, v, 0), fill }, t, more, 3 * ((uint32_t)rank + 1));
	return part_reshard(p, &s->b, y, 0, to);
}

void moved_give_longer(struct part *p, struct scope *s, ir_val v, ir_val x, ir_type t, ir_shard h)
{
	s->view[v] = shorter(p, t, x, h, scope_type(p, s, v)->dim);
}

/* --- ops along dimensions that do not divide ---------------------------------------------------- */

/* An op that is done with more elements along some dimensions of its tensors, operands and then results: dim (0: as it is), and by which axes they are
 * cut then.  fill: by operand, what is behind; 0: anything.  w: its attributes.  or_whole: it may as well be done on what is not cut. */
struct longer { uint32_t mesh, words; int64_t *w, (*dim)[IR_MAX_RANK]; struct axes (*cut)[IR_MAX_RANK]; ir_val *fill; bool or_whole; };

static struct longer longer_new(struct part *p, const struct ir_fn *fn, const struct ir_op *o)
{
	struct longer g = { .dim = arena_alloc(&p->a, sizeof *g.dim * (o->nin + o->nout)), .cut = arena_alloc(&p->a, sizeof *g.cut * (o->nin + o->nout)),
	                    .fill = ARENA_NEW(&p->a, ir_val, o->nin + 1) };
	g.w = ir_attr_copy(&p->a, fn, o, &g.words);
	return g;
}

static void lengthen(struct longer *g, uint32_t tensor, int d, int64_t n, struct axes l)
{
	g->dim[tensor][d] = n;
	g->cut[tensor][d] = l;
}

/* o with those attributes, on operands and with results of types t: in lie as have, and are brought to where it is done; results are wanted as want,
 * and in out they lie as lie. */
static void do_longer(struct part *p, struct scope *s, const struct ir_op *o, const struct longer *g, const ir_type *t, ir_val *in, const ir_shard *have,
                      const ir_shard *want, ir_val *out, ir_shard *lie)
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
		if (part_sum(p, lie[k]) && part_sum(p, lie[k]) != part_sum(p, want[k])) {
			record_about(p, s->from, o->out + k);
			out[k] = ir_convert(&s->b, part_finish(p, &s->b, out[k], &lie[k], want[k]), scope_type(p, s, o->out + k)->dtype);
		}
	ir_fn_drop(p->m);
}

/* Positions: an iota of type t, which lies as h, with `fill` behind those that o counts. */
static ir_val counted(struct part *p, struct scope *s, const struct ir_op *o, ir_type t, ir_val fill, ir_shard h)
{
	const struct ir_type_info *all = scope_type(p, s, o->out), own = *ir_type_of(p->m, part_type(p, t, h, DT_token));
	enum dtype dt = (enum dtype)all->dtype;
	int rank = all->rank;
	int64_t dim[IR_MAX_RANK], had[IR_MAX_RANK];
	memcpy(had, all->dim, sizeof *had * (size_t)rank);
	memcpy(dim, own.dim, sizeof *dim * (size_t)rank);
	ir_type here = ir_tensor(p->m, DT_i32, rank, dim);
	ir_val v = 0, in = 0;
	for (int d = 0; d < rank; d++) {
		bool count = ir_attr(s->from, o, AT_dim) == d;
		if (!count && ir_type_of(p->m, t)->dim[d] == had[d])
			continue;
		ir_val at = ir_iota(&s->b, here, d);
		if (ir_shard_parts(p->m, h, d) > 1)
			at = ir_bin(&s->b, ELEM_add, at, ir_splat_of(&s->b, part_offset(p, &s->b, p->m->shard.p[h].mesh, part_axes(p, h, d), dim[d]), here));
		if (ir_type_of(p->m, t)->dim[d] > had[d]) {
			ir_val one = ir_bin(&s->b, ELEM_compare_lt, at, ir_const_i(&s->b, here, had[d]));
			in = in ? ir_bin(&s->b, ELEM_and, in, one) : one;
		}
		v = count ? ir_convert(&s->b, at, dt) : v;
	}
	return in && fill ? ir_select(&s->b, in, v, ir_splat_of(&s->b, fill, s->b.fn->val.p[v].type)) : v;
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
			h = cut_as(p, part_summed(p, h), rank, g->mesh, g->cut[k]);
		if (k >= o->nin) {
			want[k - o->nin] = h;
			continue;
		}
		have[k] = h;
		in[k] = s->map[v];
		if (!more[k])
			continue;
		record_about(p, s->from, v);
		const struct ir_op *maker = ir_def(s->from, v);
		uint32_t j = 0;
		while (j < k && !(ir_in(s->from, o, j) == v && t[j] == t[k] && have[j] == h && g->fill[j] == g->fill[k]))
			j++;
		if (j < k)
			in[k] = in[j];
		else if (h && maker && maker->kind == IR_iota && scope_type(p, s, v)->count < INT32_MAX)
			in[k] = counted(p, s, maker, t[k], g->fill[k], h);
		else
			in[k] = h ? brought(p, s, &way, v, ir_type_of(p->m, t[k])->dim, g->fill[k], h) : 0;
		if (!in[k]) {
			undo(s, &way, 0);
			part_go_back(p, &s->b, before);
			return false;
		}
	}
	do_longer(p, s, o, g, t, arena_copy(&p->a, in, sizeof *in * o->nin), have, want, out, lie);
	for (uint32_t k = 0; k < o->nout && !g->or_whole; k++)
		for (int d = 0; d < ir_type_of(p->m, t[o->nin + k])->rank; d++)
			if (g->dim[o->nin + k][d] && !axes_equal(part_axes(p, lie[k], d), g->cut[o->nin + k][d])) {        /* it is better whole: as it was */
				undo(s, &way, 0);
				part_go_back(p, &s->b, before);
				return false;
			}
	for (uint32_t k = 0; k < o->nin; k++) {          /* who reads them again finds them longer */
		ir_val v = ir_in(s->from, o, k);
		if (more[k] && !s->map[v] && s->view[v])
			s->view[v] = shorter(p, t[k], in[k], have[k], scope_type(p, s, v)->dim);
	}
	for (uint32_t k = 0; k < o->nout; k++) {
		if (more[o->nin + k])
			s->view[o->out + k] = shorter(p, t[o->nin + k], out[k], lie[k], scope_type(p, s, o->out + k)->dim);
		else
			scope_give(p, s, o->out + k, out[k], lie[k]);
	}
	return true;
}

/* Is dimension d of operand k of o, which is not made yet, of a value that is cut there by l, into which the extent does not divide? */
static bool indivisible(struct part *p, struct scope *s, const struct ir_op *o, uint32_t k, int d, struct axes *l, uint32_t *mesh)
{
	ir_val x = ir_in(s->from, o, k);
	const struct view *v = s->map[x] ? NULL : s->view[x];
	for (int i = 0; v && i < v->nsource; i++) {
		const struct source *q = &v->source[i];
		if (q->fill || !q->sh || v->dim[d] <= 1 || v->dim[d] % ir_shard_parts(p->m, q->sh, d) == 0)
			continue;
		*l = part_axes(p, q->sh, d);
		*mesh = p->m->shard.p[q->sh].mesh;
		return true;
	}
	return false;
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

static enum redop sum_of(const struct scope *s, const struct ir_op *o)
{
	return o->kind == IR_reduce && o->nout == 1 ? (enum redop)ir_attr(s->from, o, AT_redop) : o->kind == IR_dot ? RED_add : RED_fn;
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

/* What changes nothing behind the last elements of operand k of o, if those are taken together. */
static ir_val filling(struct part *p, struct scope *s, const struct ir_op *o, uint32_t k)
{
	enum dtype dt = (enum dtype)scope_type(p, s, ir_in(s->from, o, k))->dtype;
	enum redop r = sum_of(s, o);
	if (o->kind == IR_top_k)
		return least(p, &s->b, dt);
	if (redop_elem[r] != ELEM_COUNT)
		return part_neutral(p, &s->b, ir_scalar(p->m, dt), r);
	return ir_const(&s->b, ir_scalar(p->m, dt), ir_splat(p->m, s->from, ir_in(s->from, o, o->nout + k)), dtype_info[dt].bytes);
}

/* Is o, with more elements along factor f, the same along those that there are? */
static bool extends(struct part *p, struct scope *s, const struct ir_op *o, const struct ir_axes *x, int f)
{
	bool sum = x->factor[f].kind == FACTOR_SUM && redop_elem[sum_of(s, o)] != ELEM_COUNT;
	bool selects = (o->kind == IR_reduce || (o->kind == IR_top_k && by_bits((enum dtype)scope_type(p, s, ir_in(s->from, o, 0))->dtype))) && along_can(p, s->from, o, x, f);
	if (!sum && !selects && (x->factor[f].kind != FACTOR_EACH || ir_axes_find(x, x->nin, f) < 0))
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
	return true;
}

/* Bytes of a value like o's result, which lies cut as h, if axes of l cut it along other factors than o's. */
static int64_t taken(struct part *p, const struct ir_axes *x, uint32_t mesh, const struct axes *l, ir_shard h, int64_t bytes)
{
	for (int d = 0; h && p->m->shard.p[h].mesh == mesh && d < x->rank[x->nin]; d++)
		for (int f = 0; f < x->nfactor; f++)
			if (ir_axes_find(x, x->nin, f) != d && overlap(l[f], part_axes(p, h, d)))
				return bytes;
	return 0;
}

/* Is o's result wanted, or read beside what lies, cut along other factors by axes of l, and larger than o's operands?  More would travel to have it
 * elsewhere than to have them. */
static bool taken_elsewhere(struct part *p, struct scope *s, const struct ir_op *o, const struct ir_axes *x, uint32_t mesh, const struct axes *l)
{
	int64_t bytes = scope_type(p, s, o->out)->bytes, most = taken(p, x, mesh, l, scope_wanted(s, o->out), bytes);
	for (uint32_t u = ir_use_first(s->from, o->out); u; u = ir_use_next(s->from, u)) {
		const struct ir_op *r = &s->from->op.p[ir_use_op(s->from, u)];
		for (uint32_t k = 0; ir_is_elem((enum ir_kind)r->kind) && k < r->nin; k++)
			most = MAX(most, taken(p, x, mesh, l, s->map[ir_in(s->from, r, k)] ? s->sh[ir_in(s->from, r, k)] : 0, bytes));
	}
	for (uint32_t k = 0; k < o->nin; k++)
		most = scope_type(p, s, ir_in(s->from, o, k))->bytes >= most ? 0 : most;
	return most != 0;
}

/* An op along dimensions that do not divide, over views of values that are cut: it is done on parts of which the last one has more elements,
 * which nobody reads; what is made of them is a view again.  False: it is not one that can be. */
static bool with_more(struct part *p, struct scope *s, const struct ir_op *o)
{
	if (!(ir_info((enum ir_kind)o->kind)->flags & IR_PURE) || !o->nout || o->kind == IR_dynamic_slice || o->kind == IR_slice ||
	    o->kind == IR_pad || o->kind == IR_optimization_barrier || o->kind == IR_sharding_constraint || o->kind == IR_custom_call)
		return false;
	const struct ir_axes *x = NULL;
	struct axes *l = NULL, y;
	struct longer g;
	bool any = false;
	for (uint32_t k = 0; k < o->nin; k++)
		for (int d = 0; d < scope_type(p, s, ir_in(s->from, o, k))->rank; d++) {
			uint32_t of;
			if (!indivisible(p, s, o, k, d, &y, &of))
				continue;
			if (!x) {
				x = o->kind == IR_top_k ? part_rule(p, s->from, o) : ir_axes_of(&p->a, p->m, s->from, o);
				l = ARENA_NEW(&p->a, struct axes, x->nfactor + 1);
				g = longer_new(p, s->from, o);
				g.or_whole = true;
			}
			int f = x->dim[k][d].n == 1 ? x->dim[k][d].factor[0] : -1;
			if (f < 0 || (any && of != g.mesh) || overlap_any(y, l, x->nfactor) || !extends(p, s, o, x, f))
				continue;
			l[f] = y;
			g.mesh = of;
			any = true;
		}
	if (!any || taken_elsewhere(p, s, o, x, g.mesh, l))
		return false;
	for (int k = 0; k < x->nin + x->nout; k++) {
		bool filled = false;
		for (int d = 0; d < x->rank[k]; d++) {
			int f = x->dim[k][d].n == 1 ? x->dim[k][d].factor[0] : -1;
			if (f < 0 || !l[f].n)
				continue;
			lengthen(&g, (uint32_t)k, d, divisible(x->factor[f].size, axes_size(l[f])), l[f]);
			filled |= x->factor[f].kind == FACTOR_SUM;
		}
		if (filled && k < x->nin)
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
	if (!x || redop_elem[r] == ELEM_COUNT || in_front(p, x) || 2 * scope_type(p, s, o->out)->bytes > scope_type(p, s, v)->bytes)
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
	*w = (struct wider){ .l = l, .kernel = -1, .to = d, .at = d, .source = divisible(source, parts) };
	w->in = w->out = divisible(MAX(in, (w->source - 1) * stride + size), parts);
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
	w->in = divisible(in, parts);
	w->out = inside ? out : divisible(out, parts);
	if (inside)
		w->size = kernel = divisible(size, parts);
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
			y = cut_of(p, s, ir_in(s->from, o, k), d, &of);
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

/* --- what is turned round by a number that is not known before ------------------------------------ */

/* The dimension along which view v is one value twice, which is cut there, and of which o takes as much as that is long; -1: there is none. */
static int twice_along(struct part *p, const struct scope *s, const struct ir_op *o, const struct view *v)
{
	if (!v || v->npiece != 2)
		return -1;
	const struct source *q = &v->source[v->piece[0].source], *again = &v->source[v->piece[1].source];
	int n, at = -1;
	const int64_t *size = ir_attrs(s->from, o, AT_size, &n);
	for (int d = 0; d < v->rank; d++) {
		const struct run *r = &v->piece[0].run[d], *next = &v->piece[1].run[d];
		bool here = size[d] != v->dim[d];
		if (here && at >= 0)
			return -1;
		at = here ? d : at;
		if (r->first || r->from || next->from || r->step != 1 || next->step != 1 || r->by != 1 || next->by != 1 || r->n != size[d] || next->n != size[d] ||
		    q->dim[d] != size[d] || next->first != (here ? size[d] : 0) || v->dim[d] != (here ? 2 * size[d] : size[d]))
			return -1;
	}
	bool same = !q->fill && !again->fill && q->v == again->v && q->sh == again->sh && at >= 0;
	return same && ir_shard_parts(p->m, q->sh, at) > 1 && v->dim[at] < INT32_MAX / 2 ? at : -1;
}

/* Nanoseconds of what happens to value x if it is made as h. */
static double from_there(struct part *p, struct scope *s, ir_val x, ir_shard h)
{
	const struct values *v = scope_values(s);
	ir_shard to = part_place(p, v, x, h);
	return part_travel(p, s->from->val.p[x].type, h, to).ns + part_readers(p, v, x, to);
}

/* A value that is turned round along a cut dimension: each device takes its part from the two that have it, or, if that is better, it comes whole. */
static bool turned(struct part *p, struct scope *s, const struct ir_op *o)
{
	const struct view *v = o->kind != IR_dynamic_slice || s->map[ir_in(s->from, o, 0)] ? NULL : s->view[ir_in(s->from, o, 0)];
	int d = twice_along(p, s, o, v);
	if (d < 0)
		return false;
	const struct source q = v->source[v->piece[0].source];
	uint32_t mesh = p->m->shard.p[q.sh].mesh;
	struct axes l[IR_MAX_RANK] = {{0}};
	for (int e = 0; e < v->rank; e++)
		l[e] = e == d ? (struct axes){0} : part_axes(p, q.sh, e);
	ir_type t = s->from->val.p[o->out].type;
	ir_shard to = cut_as(p, 0, v->rank, mesh, l);
	double here = part_travel(p, t, q.sh, to).ns + from_there(p, s, o->out, to), block = part_local(p, t, q.sh);
	if (plan_move_time(p->plan, COLL_all_to_all, part_spread(p, mesh, part_axes(p, q.sh, d)), block) + from_there(p, s, o->out, q.sh) < here)
		to = q.sh;
	for (uint32_t k = 1; k < o->nin; k++)
		moved_need(p, s, ir_in(s->from, o, k));
	ir_val start = scope_fetch(p, s, ir_in(s->from, o, 1 + (uint32_t)d), 0);
	s->b.loc = o->loc;
	record_about(p, s->from, o->out);
	ir_val y = along_turned(p, &s->b, part_reshard(p, &s->b, q.v, q.sh, to), d, mesh, part_axes(p, to, d), start);
	scope_give(p, s, o->out, y, to);
	return true;
}

bool moved_op(struct part *p, struct scope *s, const struct ir_op *o) { return waits(p, s, o) || in_place(p, s, o) || turned(p, s, o) || where_it_lies(p, s, o) || with_more(p, s, o) || windows(p, s, o); }
