/* What moves elements along dimensions that are cut waits until it is read (struct view): what it is made of then travels, and nothing else. */
#include "moved.h"

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

struct axes moved_cut_of(struct part *p, struct scope *s, ir_val x, int d, uint32_t *mesh)
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

bool moved_overlap(struct axes a, struct axes b)
{
	for (int i = 0; i < a.n; i++)
		for (int k = 0; k < b.n; k++)
			if (ir_axes_overlap(a.p[i], b.p[k]))
				return true;
	return false;
}

bool moved_overlap_any(struct axes a, const struct axes *l, int n)
{
	while (n-- > 0)
		if (moved_overlap(a, l[n]))
			return true;
	return false;
}

ir_shard moved_cut_as(struct part *p, ir_shard h, int rank, uint32_t mesh, const struct axes *l)
{
	struct ir_shard_info n = { .mesh = mesh, .rank = rank };
	n.dim = ARENA_NEW(&p->a, struct ir_dim_shard, rank + 1);
	for (int e = 0; e < rank; e++) {
		struct axes y = l[e].n ? l[e] : part_axes(p, h, e);
		if (!l[e].n && (!h || p->m->shard.p[h].mesh != mesh || moved_overlap_any(y, l, rank)))
			continue;
		n.dim[e].naxis = y.n;
		n.dim[e].axis = (struct ir_axis_ref *)y.p;
	}
	h = ir_shard_add(p->m, &n);
	return ir_shard_replicated(p->m, h) ? 0 : h;
}

struct view *moved_shorter(struct part *p, ir_type t, ir_val v, ir_shard h, const int64_t *dim)
{
	struct view *x = view_of(p, ir_type_of(p->m, t), v, h);
	struct run *run = arena_copy(&p->a, x->piece[0].run, sizeof *run * (size_t)x->rank);
	x->dim = arena_copy(&p->a, dim, sizeof *dim * (size_t)x->rank);
	for (int d = 0; d < x->rank; d++)
		run[d].n = dim[d];
	x->piece[0].run = run;
	x->made = true;
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
		struct axes y = moved_cut_of(p, s, x, d, &of);
		if (y.n && !l[d].n && (!any || of == mesh) && !moved_overlap_any(y, l, t->rank)) {
			l[d] = y;
			mesh = of;
			any = true;
		}
		dim[d] = moved_divisible(t->dim[d], axes_size(l[d]));
	}
	return moved_cut_as(p, 0, t->rank, mesh, l);
}

void moved_undo(struct scope *s, struct way *w, int n)
{
	while (w->n > n) {
		struct undo u = w->was[--w->n];
		s->map[u.x] = u.map;
		s->sh[u.x] = u.sh;
		s->view[u.x] = u.view;
	}
}

/* The view of v, from what is made now. */
static struct view *anew(struct part *p, struct scope *s, ir_val v)
{
	const struct ir_op *o = ir_def(s->from, v);
	if (s->map[v] || !s->view[v] || s->view[v]->made || !is_move((enum ir_kind)o->kind))
		return seen(p, s, v);
	struct view **in = ARENA_NEW(&p->a, struct view *, o->nin + 1);
	for (uint32_t k = 0; k < o->nin; k++)
		if (!(in[k] = anew(p, s, ir_in(s->from, o, k))))
			return NULL;
	return view_moved(p, &s->b, s->from, o, in);
}

/* x, which waits, is made where its parts are, with more elements behind the last one if it does not divide. */
static bool made(struct part *p, struct scope *s, struct way *w, ir_val x)
{
	const struct ir_type_info t = *scope_type(p, s, x);
	int64_t dim[IR_MAX_RANK];
	ir_shard lies = cut_as_made(p, s, x, dim);
	ir_val y = lies && w->n < (int)NELEM(w->was) ? moved_brought(p, s, w, x, dim, 0, lies) : 0;
	if (!y || w->n == (int)NELEM(w->was))
		return false;
	w->was[w->n++] = (struct undo){ x, s->map[x], s->sh[x], s->view[x] };
	ir_type longer = ir_tensor(p->m, (enum dtype)t.dtype, t.rank, dim);
	if (longer != s->from->val.p[x].type) {
		s->view[x] = moved_shorter(p, longer, y, lies, t.dim);
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
		moved_undo(s, &w, 0);
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
	for (int i = 0; i < n * deep && !r; i++) {       /* first those that are made already, then those that are made at once */
		struct part_mark at = part_mark(p, &s->b);
		int before = w->n;
		w->deep = i / n;
		const struct view *y = !i || (i % n && made(p, s, w, list[i % n])) ? anew(p, s, v) : NULL;
		y = y ? view_longer(p, &s->b, y, dim, fill) : NULL;
		r = y ? view_emit(p, &s->b, y, to) : 0;
		if (!r) {
			moved_undo(s, w, before);
			part_go_back(p, &s->b, at);
		}
	}
	w->deep = deep;
	return r;
}

ir_val moved_position(struct part *p, struct ir_b *b, ir_type t, ir_shard h, int d)
{
	const struct ir_type_info own = *ir_type_of(p->m, part_type(p, t, h, DT_token));
	int64_t dim[IR_MAX_RANK];
	memcpy(dim, own.dim, sizeof *dim * (size_t)own.rank);
	ir_type here = ir_tensor(p->m, DT_i32, own.rank, dim);
	ir_val at = ir_iota(b, here, d);
	return ir_shard_parts(p->m, h, d) == 1 ? at : ir_bin(b, ELEM_add, at, ir_splat_of(b, part_offset(p, b, p->m->shard.p[h].mesh, part_axes(p, h, d), dim[d]), here));
}

ir_val moved_filled(struct part *p, struct ir_b *b, ir_val v, ir_type t, ir_shard h, const int64_t *had, ir_val fill)
{
	ir_val in = 0;
	for (int d = 0; d < ir_type_of(p->m, t)->rank; d++) {
		if (ir_type_of(p->m, t)->dim[d] == had[d])
			continue;
		ir_val at = moved_position(p, b, t, h, d), one = ir_bin(b, ELEM_compare_lt, at, ir_const_i(b, b->fn->val.p[at].type, had[d]));
		in = in ? ir_bin(b, ELEM_and, in, one) : one;
	}
	return in ? ir_select(b, in, v, ir_splat_of(b, fill, b->fn->val.p[v].type)) : v;
}

/* Is x the first elements of a value of dim[d] along d that lies as `to`? */
static bool lies_so(const struct view *x, const int64_t *dim, ir_shard to)
{
	const struct source *q = &x->source[x->piece[0].source];
	bool so = x->npiece == 1 && !q->fill && q->sh == to;
	for (int d = 0; so && d < x->rank; d++)
		so = !x->piece[0].run[d].from && x->piece[0].run[d].by == 1 && q->dim[d] == dim[d] && dim[d] <= INT32_MAX;
	return so;
}

ir_val moved_brought(struct part *p, struct scope *s, struct way *w, ir_val v, const int64_t *dim, ir_val fill, ir_shard to)
{
	const struct ir_type_info t = *scope_type(p, s, v);
	const struct view *x = seen(p, s, v), *y;
	if (fill && lies_so(x, dim, to))              /* that is done with what reads it, where a row put behind others would be a copy */
		return moved_filled(p, &s->b, x->source[x->piece[0].source].v, ir_tensor(p->m, (enum dtype)t.dtype, t.rank, dim), to, t.dim, fill);
	y = view_longer(p, &s->b, x, dim, fill);
	ir_val r = y ? view_emit(p, &s->b, y, to) : 0;
	if (r || s->map[v] || !s->view[v] || !to)
		return r;
	r = by_way(p, s, w, v, dim, fill, to);
	for (int d = 0; d < t.rank && fill; d++)
		fill = dim[d] <= INT32_MAX ? fill : 0;
	if (r || !fill)
		return r;
	r = moved_brought(p, s, w, v, dim, 0, to);       /* what is behind is written over */
	return r ? moved_filled(p, &s->b, r, ir_tensor(p->m, (enum dtype)t.dtype, t.rank, dim), to, t.dim, fill) : 0;
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
			l[d] = of[d].n ? of[d] : p->m->shard.p[had].mesh == mesh && !moved_overlap_any(y, of, x->rank) ? y : (struct axes){0};
		}
	return moved_cut_as(p, 0, x->rank, mesh, l);
}

bool moved_in_front(struct part *p, const struct view *x)
{
	const struct source *q = &x->source[x->piece[0].source];
	if (x->npiece > 1 || q->fill)
		return false;
	for (int d = 0; d < x->rank; d++) {
		const struct run *r = &x->piece[0].run[d];
		if (r->from || r->by != 1 || moved_divisible(x->dim[d], ir_shard_parts(p->m, q->sh, d)) != q->dim[d])
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
	ir_shard h = moved_cut_as(p, 0, rank, p->m->shard.p[cut].mesh, l), to = part_summed(p, scope_wanted(s, v));
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
	double shift = parts && !moved_in_front(p, x) ? part_local(p, longer, cut) : 0, bytes = parts ? MIN(all.bytes, after.bytes) : all.bytes;
	if (bytes >= (double)part_worth(p))
		bytes = MIN(all.bytes, bytes + shift);
	else                                     /* of what is short, not of numbers; much less than one step brings, or as much as several */
		bytes = bytes < FEW ? 0 : MIN(all.bytes, bytes + (shift != 0 ? shift : -bytes / 4)) + 1;
	ir_val y = view_boxes(p, &s->b, x, to, (int64_t)bytes);
	if (y) {
		scope_give(p, s, v, y, to);
		return true;
	}
	struct part_mark at = part_mark(p, &s->b);
	size_t first = s->b.fn->op.n;
	y = parts ? moved_brought(p, s, &w, v, dim, 0, cut) : 0;
	if (y && s->b.fn->op.n > first && 2 * after.ns >= all.ns)
		y = 0;
	if (!y) {
		moved_undo(s, &w, 0);
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
	ir_loc loc = s->b.loc;
	record_about(p, s->from, v);
	if (o) {
		p->why = (struct why){ .fn = s->from, .o = o, .of = s->from, .x = v };
		s->b.loc = o->loc;
	}
	ir_shard to = scope_wanted(s, v);
	size_t first = s->b.fn->op.n;
	struct way w = { .deep = 2 };
	int64_t dim[IR_MAX_RANK];
	memcpy(dim, scope_type(p, s, v)->dim, sizeof *dim * scope_type(p, s, v)->rank);
	bool whole = false;              /* what it is made of is cut where v is not: little of it might do */
	for (int d = 0; d < scope_type(p, s, v)->rank; d++) {
		uint32_t mesh;
		whole |= view_moved_along(s->view[v], d) && ir_shard_parts(p->m, to, d) == 1 && moved_cut_of(p, s, v, d, &mesh).n;
	}
	bool is_made = whole && gathered(p, s, v);
	ir_val y = is_made ? 0 : moved_brought(p, s, &w, v, dim, 0, to);
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

struct handed moved_longer(struct part *p, struct scope *s, ir_val x, ir_val of, int keep)
{
	const struct ir_type_info t = *scope_type(p, s, x);
	ir_shard said = part_summed(p, ir_shard_of(s->from, x)), even = shard_settled(&p->a, p->m, said, &t, false);
	uint32_t mesh = said ? p->m->shard.p[said].mesh : 0;
	struct axes l[IR_MAX_RANK] = {{0}};
	int64_t dim[IR_MAX_RANK];
	bool any = even != 0, longer = false;
	for (int d = 0; d < t.rank; d++) {
		bool more = d >= keep && ir_shard_parts(p->m, even, d) == 1 && ir_shard_parts(p->m, said, d) > 1;
		l[d] = part_axes(p, d < keep ? 0 : more ? said : even, d);
		any |= more;
		dim[d] = t.dim[d];
	}
	for (int d = keep; d < t.rank && of && !s->map[of] && s->view[of]; d++) {
		uint32_t at = mesh;
		struct axes y = l[d].n ? (struct axes){0} : moved_cut_of(p, s, of, d, &at);
		if (!y.n || (any && at != mesh) || moved_overlap_any(y, l, t.rank))
			continue;
		l[d] = y;
		mesh = at;
		any = true;
	}
	for (int d = keep; d < t.rank; d++) {
		int64_t n = axes_size(l[d]), more = moved_divisible(t.dim[d], n);
		if (t.dim[d] > 1 && more > t.dim[d] && more <= 2 * t.dim[d]) {
			dim[d] = more;
			longer = true;
		}
	}
	if (!longer)
		return (struct handed){0};
	struct handed r = { .t = ir_tensor(p->m, (enum dtype)t.dtype, t.rank, dim) };
	r.h = shard_settled(&p->a, p->m, moved_cut_as(p, 0, t.rank, mesh, l), ir_type_of(p->m, r.t), false);
	return r;
}

ir_val moved_fetch_longer(struct part *p, struct scope *s, ir_val v, struct handed to, ir_val fill)
{
	const struct ir_type_info *i = ir_type_of(p->m, to.t);
	int rank = i->rank;
	int64_t dim[IR_MAX_RANK], more[3 * (IR_MAX_RANK + 1)] = {0};
	enum dtype dt = (enum dtype)i->dtype;
	struct part_mark at = part_mark(p, &s->b);
	struct way w = { .deep = 2 };
	memcpy(dim, i->dim, sizeof *dim * (size_t)rank);
	record_about(p, s->from, v);
	ir_val y = moved_brought(p, s, &w, v, dim, fill, to.h);
	if (y)
		return y;
	moved_undo(s, &w, 0);
	part_go_back(p, &s->b, at);
	moved_need(p, s, v);
	for (int k = 0; k < 3; k++)
		more[k * (rank + 1)] = rank;
	for (int d = 0; d < rank; d++)
		more[rank + 2 + d] = dim[d] - scope_type(p, s, v)->dim[d];
	y = ir_emit(&s->b, IR_pad, 2, (ir_val[]){ scope_fetch(p, s, v, 0), fill ? fill : ir_const_i(&s->b, ir_scalar(p->m, dt), 0) }, to.t, more, 3 * ((uint32_t)rank + 1));
	return part_reshard(p, &s->b, y, 0, to.h);
}

void moved_give_longer(struct part *p, struct scope *s, ir_val v, ir_val x, struct handed as)
{
	s->view[v] = moved_shorter(p, as.t, x, as.h, scope_type(p, s, v)->dim);
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
	ir_shard to = moved_cut_as(p, 0, v->rank, mesh, l);
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

bool moved_op(struct part *p, struct scope *s, const struct ir_op *o) { return waits(p, s, o) || in_place(p, s, o) || turned(p, s, o); }
