/* What is asked of very many elements, as the groups of fuse.c can share it among threads and compute it with what it is made from.
 *
 * Large reductions to few results go in two steps, the first over blocks; an extreme and its place are two reductions; few elements
 * of what follows from indices alone are computed alone. */
#include "passes.h"

/* --- large full reductions in two steps ------------------------------------------------------ */

/* Elements start .. along the first dimension of arrays of this rank of the function that is rewritten; that dimension as two, of blocks and of
 * what each has, or as one (blocks 0).  Of few columns (wide) so many elements, several rows of the dimensions from kept on, are one row: blocks, rows, wide.
 * What is computed element by element for nobody else, or from nothing that is read, is computed for them alone. */
struct part { struct rewrite *r; ir_val *done; int rank; int64_t start, count, blocks; int left; int kept; int64_t wide; };

static bool from_nothing(const struct rewrite *r, ir_val v, int *left)
{
	const struct ir_op *o = ir_def(r->from, v);
	if (ir_vtype(r->m, r->from, v)->count == 1 || (o && (o->kind == IR_iota || ir_splat(r->m, r->from, v))))
		return true;
	if (!o || --*left < 0 || (o->kind != IR_broadcast && (!ir_is_elem(o->kind) || ir_cost_each(r->m, r->from, o) > 1)))
		return false;
	for (uint32_t k = 0; k < o->nin; k++)
		if (!from_nothing(r, ir_in(r->from, o, k), left))
			return false;
	return o->kind != IR_broadcast || ir_vtype(r->m, r->from, ir_in(r->from, o, 0))->count == 1;
}

static bool one_reads(const struct ir_fn *fn, ir_val v)
{
	uint32_t first = ir_use_first(fn, v), n = 0;
	for (uint32_t u = first; u && ir_use_op(fn, u) == ir_use_op(fn, first); u = ir_use_next(fn, u))
		n++;
	return n == fn->val.p[v].nuse;
}

static ir_val part_of(struct part *p, ir_val v);

/* x has dimensions dims of those from p->kept on of arrays of type t: several rows of them side by side, in an array of their own, and that in each row of to. */
static ir_val side_by_side(struct part *p, ir_val x, const struct ir_type_info *t, int n, const int64_t *dims, ir_type to)
{
	struct ir_b *b = &p->r->b;
	int64_t dim[IR_MAX_RANK], at[IR_MAX_RANK], one = 1, last = 2;
	for (int d = p->kept; d < t->rank; d++)
		one *= dim[d - p->kept + 1] = t->dim[d];
	dim[0] = p->wide / one;
	for (int d = 0; d < n; d++)
		at[d] = dims[d] - p->kept + 1;
	ir_type many = ir_tensor(p->r->m, t->dtype, t->rank - p->kept + 1, dim);
	x = ir_reshape(b, ir_broadcast(b, x, many, at), 1, &p->wide);
	x = ir_emit(b, IR_optimization_barrier, 1, &x, b->fn->val.p[x].type, NULL, 0);
	return ir_broadcast(b, x, to, &last);
}

static ir_val part_made(struct part *p, ir_val v)
{
	struct rewrite *r = p->r;
	struct ir_b *b = &r->b;
	const struct ir_op *o = ir_def(r->from, v);
	struct ir_type_info t = *ir_vtype(r->m, r->from, v);
	int64_t dim[IR_MAX_RANK], dims[IR_MAX_RANK], lo[IR_MAX_RANK] = {0}, hi[IR_MAX_RANK], one[IR_MAX_RANK];
	int more = p->blocks > 0, n, left = 16;
	if (t.rank != p->rank)
		return r->map[v];                    /* one for all */
	for (int d = 0; d < t.rank; d++) {
		dim[d + more] = hi[d] = t.dim[d];
		one[d] = 1;
	}
	dim[0] = p->blocks;
	dim[more] = p->count / MAX(p->blocks, 1);
	int rank = p->wide ? 3 : t.rank + more;
	if (p->wide) {
		dim[1] = p->count * (t.count / t.dim[0]) / (p->blocks * p->wide);
		dim[2] = p->wide;
	}
	ir_type to = ir_tensor(r->m, t.dtype, rank, dim);
	const void *splat = ir_splat(r->m, r->from, v);
	if (splat) {
		char e[16];
		memcpy(e, splat, (size_t)dtype_info[t.dtype].bytes);
		return ir_const(b, to, e, dtype_info[t.dtype].bytes);
	}
	if (o && o->kind == IR_iota && p->wide && ir_attr(r->from, o, AT_dim) >= p->kept) {
		int64_t along = ir_attr(r->from, o, AT_dim), ext = t.dim[along];
		return side_by_side(p, ir_iota(b, ir_tensor(r->m, t.dtype, 1, &ext), 0), &t, 1, &along, to);
	}
	if (o && o->kind == IR_iota && !p->wide && (dtype_info[t.dtype].cls == DT_INT || dtype_info[t.dtype].cls == DT_UINT)) {
		int along = (int)ir_attr(r->from, o, AT_dim);
		ir_val x = ir_iota(b, to, along + more);
		if (along)
			return x;
		ir_val from = ir_const_i(b, to, p->start);
		x = ir_bin(b, ELEM_add, x, from);
		if (!more)
			return x;
		ir_val block = ir_iota(b, to, 0), length = ir_const_i(b, to, dim[1]);
		return ir_bin(b, ELEM_add, ir_bin(b, ELEM_multiply, block, length), x);
	}
	const int64_t *at = o && o->kind == IR_broadcast ? ir_attrs(r->from, o, AT_dims, &n) : NULL;
	bool alike = at != NULL;             /* all along the first dimension */
	if (alike && p->wide && n) {
		const struct ir_type_info *x = ir_vtype(r->m, r->from, ir_in(r->from, o, 0));
		int64_t ext[IR_MAX_RANK];
		int c = 0;
		for (int d = 0; alike && d < n; d++)
			if (at[d] >= p->kept) {
				ext[c] = x->dim[d];
				dims[c++] = at[d];
			} else {
				alike = x->dim[d] == 1;
			}
		if (alike)
			return side_by_side(p, ir_reshape(b, r->map[ir_in(r->from, o, 0)], c, ext), &t, c, dims, to);
	}
	for (int d = 0; alike && d < n; d++) {
		alike = (!p->wide && at[d] != 0) || ir_vtype(r->m, r->from, ir_in(r->from, o, 0))->dim[d] == 1;
		dims[d] = at[d] ? at[d] + more : 0;
	}
	if (alike)
		return ir_broadcast(b, r->map[ir_in(r->from, o, 0)], to, dims);
	if (o && ir_is_elem(o->kind) && o->nout == 1 && o->nin <= 3 && --p->left >= 0 && (one_reads(r->from, v) || from_nothing(r, v, &left))) {
		ir_val in[3];
		for (uint32_t k = 0; k < o->nin; k++)
			in[k] = part_of(p, ir_in(r->from, o, k));
		return ir_emit_raw(b, (enum ir_kind)o->kind, o->nin, in, 1, &to, r->from->attr.p + o->attr, ir_attr_words(r->from, o));
	}
	lo[0] = p->start;
	hi[0] = p->start + p->count;
	return ir_reshape(b, ir_slice(b, r->map[v], lo, hi, one), rank, dim);
}

static ir_val part_of(struct part *p, ir_val v)
{
	if (!p->done[v])
		p->done[v] = part_made(p, v);
	return p->done[v];
}

/* What changes no result of op, everywhere. */
static ir_val neutral(struct ir_b *b, enum redop op, ir_type t)
{
	enum dtype dt = ir_type_of(b->m, t)->dtype;
	char e[16];
	kern_identity(op, dt, e);
	return ir_const(b, t, e, dtype_info[dt].bytes);
}

/* What the parts of a reduction are calculated in, and what they are put together in: so that a result of few bits is rounded once, and that of many
 * parts, which are not so many that their roundings would even out, about once.  A product's roundings stay in it, however it is cut, and cut into lanes
 * it loses what two deviations from 1 make together: it is f64 all along. */
struct wider { enum dtype part, whole; };
static struct wider wider(enum redop op, enum dtype dt)
{
	if (dtype_info[dt].cls != DT_FLOAT || (op != RED_add && op != RED_mul))
		return (struct wider){ dt, dt };
	return (struct wider){ dtype_info[dt].bits < (op == RED_mul ? 32 : 64) ? DT_f32 : DT_f64, DT_f64 };
}

static bool is_neutral(struct rewrite *r, enum redop op, ir_val v)
{
	enum dtype dt = ir_vtype(r->m, r->b.fn, v)->dtype;
	const void *splat = ir_splat(r->m, r->b.fn, v);
	char e[16];
	kern_identity(op, dt, e);
	return splat && !memcmp(splat, e, (size_t)dtype_info[dt].bytes);
}

/* x reduced as numbers of type in; start 0: from what changes nothing. */
static ir_val reduced(struct rewrite *r, enum redop op, ir_val x, ir_val start, enum dtype in, int n, const int64_t *dims)
{
	struct ir_b *b = &r->b;
	x = ir_convert(b, x, in);
	start = start && !is_neutral(r, op, start) ? ir_convert(b, start, in) : neutral(b, op, ir_scalar(r->m, in));
	return ir_reduce1(b, op, x, start, n, dims);
}

/* The dimensions dims of o's operand, the first among them, in so many blocks of it, of all elements but the last few; wide: see struct part. */
static ir_val in_blocks(struct rewrite *r, const struct ir_op *o, const ir_val *in, enum redop op, int64_t blocks, int n, const int64_t *dims, int64_t wide)
{
	enum { MOST = 64 };
	struct ir_b *b = &r->b;
	struct ir_type_info t = *ir_vtype(r->m, b->fn, in[0]);
	struct wider w = wider(op, t.dtype);
	int64_t all = t.dim[0], each = t.count / all, most = all, within[IR_MAX_RANK], first = 0, second = 1;
	while (wide ? most * each % (blocks * wide) : most % blocks)
		most--;
	for (int i = 0; i < n; i++)
		within[i] = dims[i] + 1;
	struct part p = { r, ARENA_NEW(r->a, ir_val, r->from->val.n), t.rank, 0, most, blocks, MOST, n, wide };
	ir_val x = part_of(&p, ir_in(r->from, o, 0));
	if (wide) {
		int64_t dim[IR_MAX_RANK], one = 1;
		x = reduced(r, op, x, 0, w.part, 1, &second);
		for (int d = n; d < t.rank; d++)
			one *= dim[d - n + 1] = t.dim[d];
		dim[0] = blocks * wide / one;
		x = ir_reshape(b, x, t.rank - n + 1, dim);
	} else {
		x = reduced(r, op, x, 0, w.part, n, within);
	}
	x = reduced(r, op, x, in[1], w.whole, 1, &first);
	if (most < all) {
		p = (struct part){ r, ARENA_NEW(r->a, ir_val, r->from->val.n), t.rank, most, all - most, 0, MOST, 0, 0 };
		ir_val rest = reduced(r, op, part_of(&p, ir_in(r->from, o, 0)), 0, w.part, n, dims);
		rest = ir_convert(b, rest, w.whole);
		x = ir_bin(b, redop_elem[op], x, rest);
	}
	return ir_convert(b, x, t.dtype);
}

/* Dimensions first of in[0] are reduced, and then those that are left of them. */
static ir_val in_turn(struct rewrite *r, const ir_val *in, enum redop op, int n, const int64_t *first, int left, const int64_t *rest)
{
	enum dtype dt = ir_vtype(r->m, r->b.fn, in[0])->dtype;
	struct wider w = wider(op, dt);
	ir_val x = reduced(r, op, in[0], 0, w.part, n, first);
	return ir_convert(&r->b, reduced(r, op, x, in[1], w.whole, left, rest), dt);
}

/* Is v of single bytes, and what it is made from? */
static bool of_bytes(const struct rewrite *r, ir_val v)
{
	const struct ir_op *o = ir_def(r->from, v);
	bool is = dtype_info[ir_vtype(r->m, r->from, v)->dtype].bytes == 1;
	for (uint32_t k = 0; o && k < o->nin; k++)
		is &= dtype_info[ir_vtype(r->m, r->from, ir_in(r->from, o, k))->dtype].bytes == 1;
	return is;
}

/* Columns of very many rows, of which there are few: rows are cut into blocks, or some of the reduced dimensions stay at first.  Of very few columns
 * several rows side by side fill vectors: as many as stay in registers, or, where a block of bytes stays in the first caches, times that.  There are more
 * blocks then, so that tiles are whole ones. */
static ir_val split_columns(struct rewrite *r, const struct ir_op *o, const ir_val *in, enum redop op)
{
	enum { MANY = 1 << 20, COLUMNS = 1024, PARTS = 16, BLOCKS = 64, NARROW = 16, WIDE = 128, LINE = 64, ROWS = 8, BLOCK = 1 << 16,
	       MOST_BLOCKS = 512 };
	const struct ir_type_info *t = ir_vtype(r->m, r->b.fn, in[0]);
	int n, k = 0;
	int64_t parts = 1;
	const int64_t *dims = ir_attrs(r->from, o, AT_dims, &n);
	bool rising = true;
	for (int i = 1; i < n; i++)
		rising &= dims[i] > dims[i - 1];
	if (t->count < MANY || ir_vtype(r->m, r->from, o->out)->count >= COLUMNS || !rising || !n)
		return 0;
	int64_t columns = ir_vtype(r->m, r->from, o->out)->count, blocks = BLOCKS, bytes = dtype_info[t->dtype].bytes,
	        least = dtype_info[wider(op, t->dtype).part].bytes == 8 ? WIDE / 2 : WIDE, wide = least;
	while (blocks < MOST_BLOCKS && t->count / blocks > BLOCK)
		blocks *= 2;
	while (wide % columns)
		wide += least;
	if (dims[n - 1] == n - 1 && t->rank < IR_MAX_RANK && columns > 1 && columns <= NARROW && columns * bytes < LINE && (wide == least || of_bytes(r, ir_in(r->from, o, 0))) &&
	    t->count >= blocks * wide * ROWS && (t->dim[0] >= blocks * wide || t->count % (blocks * wide) == 0))
		return in_blocks(r, o, in, op, blocks, n, dims, wide);
	if (dims[0] == 0 && t->rank < IR_MAX_RANK && t->dim[0] >= BLOCKS * PARTS)
		return in_blocks(r, o, in, op, BLOCKS, n, dims, 0);
	while (k < n && parts < PARTS)
		parts *= t->dim[dims[k++]];
	return k < n ? in_turn(r, in, op, n - k, dims + k, k, dims) : 0;
}

/* reduce of very many elements to very few: first over blocks, so that tiles can share the work. */
static ir_val split_reduce(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	enum { MANY = 1 << 16, BLOCKS = 64, UNEVEN = 1024 };
	const struct ir_type_info *t, *rt = ir_vtype(r->m, r->from, o->out);
	enum redop op = o->kind == IR_reduce ? (enum redop)ir_attr(r->from, o, AT_redop) : RED_fn;
	if (o->nout != 1 || redop_elem[op] == ELEM_COUNT)
		return 0;
	t = ir_vtype(r->m, r->b.fn, in[0]);
	if (t->count < MANY)
		return 0;
	int n, rank = t->rank, c = 0;
	const int64_t *dims = ir_attrs(r->from, o, AT_dims, &n), count = t->count, wide = rank ? t->dim[rank - 1] : 1;
	if (!in_list(dims, n, rank - 1))
		return split_columns(r, o, in, op);
	if (rt->count >= BLOCKS)
		return 0;
	if (rt->count == 1 && rank == 1) {
		int64_t blocks = UNEVEN;
		for (int64_t b = 4096; b >= BLOCKS; b /= 2)
			if (count % b == 0 && count / b >= 64) {
				blocks = b;
				break;
			}
		return in_blocks(r, o, in, op, blocks, 1, dims, 0);
	}
	/* the last reduced dimension goes first */
	int64_t last = rank - 1, rest[IR_MAX_RANK];
	if (n < 2 || count / MAX(wide, 1) < BLOCKS || wide < 16)
		return 0;
	for (int i = 0; i < n; i++)
		if (dims[i] != last)
			rest[c++] = dims[i];
	return in_turn(r, in, op, 1, &last, c, rest);
}

/* --- few of many elements ------------------------------------------------------------------------ */

/* The elements of v that a slice takes, if they follow from scalars and their indices alone; else 0. */
static ir_val box_of(struct rewrite *r, ir_val v, const int64_t *start, const int64_t *size, const int64_t *step, int *left)
{
	struct ir_b *b = &r->b;
	const struct ir_op *o = ir_def(r->from, v);
	const struct ir_type_info *ti = ir_vtype(r->m, r->from, v);
	enum dtype dt = ti->dtype;
	int rank = ti->rank, n = 0;
	int64_t s[IR_MAX_RANK], z[IR_MAX_RANK], d[IR_MAX_RANK], at = 0, one = 1;
	if (rank == 0)
		return r->map[v];
	if (!o || o->nin > 3 || o->nout != 1 || --*left < 0)
		return 0;
	for (int k = 0; k < rank; k++) {
		at = at * ti->dim[k] + start[k];
		one *= size[k];
	}
	ir_type t = ir_tensor(r->m, dt, rank, size);
	const void *splat = ir_splat(r->m, r->from, v);
	if (splat) {
		char e[16];
		memcpy(e, splat, (size_t)dtype_info[dt].bytes);
		return ir_const(b, t, e, dtype_info[dt].bytes);
	}
	ti = o->nin ? ir_vtype(r->m, r->from, ir_in(r->from, o, 0)) : ti;
	bool lists = o->kind == IR_broadcast || o->kind == IR_transpose || o->kind == IR_slice;
	const int64_t *a = lists ? ir_attr_nth(r->from, o, 0, &n) : NULL, *stride;    /* dims, perm or start */
	ir_val x;
	switch (o->kind) {
	case IR_iota: {
		int along = (int)ir_attr(r->from, o, AT_dim);
		if (dtype_info[dt].cls != DT_INT && dtype_info[dt].cls != DT_UINT)
			return 0;
		ir_val i = ir_iota(b, t, along), times = ir_const_i(b, t, step[along]);
		x = ir_bin(b, ELEM_multiply, i, times);
		return ir_bin(b, ELEM_add, x, ir_const_i(b, t, start[along]));
	}
	case IR_broadcast:
		for (int k = 0; k < n; k++) {
			bool same = ti->dim[k] != 1;
			s[k] = same ? start[a[k]] : 0;
			z[k] = same ? size[a[k]] : 1;
			d[k] = same ? step[a[k]] : 1;
		}
		x = box_of(r, ir_in(r->from, o, 0), s, z, d, left);
		return x ? ir_broadcast(b, x, t, a) : 0;
	case IR_transpose:
		for (int k = 0; k < n; k++) {
			s[a[k]] = start[k];
			z[a[k]] = size[k];
			d[a[k]] = step[k];
		}
		x = box_of(r, ir_in(r->from, o, 0), s, z, d, left);
		return x ? ir_transpose(b, x, a) : 0;
	case IR_slice:
		stride = ir_attrs(r->from, o, AT_stride, &n);
		for (int k = 0; k < rank; k++) {
			s[k] = a[k] + start[k] * stride[k];
			d[k] = step[k] * stride[k];
		}
		return box_of(r, ir_in(r->from, o, 0), s, size, d, left);
	case IR_reshape:
		if (one != 1)
			return 0;
		for (int k = ti->rank; k-- > 0; at /= ti->dim[k]) {
			s[k] = at % ti->dim[k];
			z[k] = d[k] = 1;
		}
		x = box_of(r, ir_in(r->from, o, 0), s, z, d, left);
		return x ? ir_reshape(b, x, rank, size) : 0;
	default: {
		ir_val in[3];
		if (!ir_is_elem(o->kind))
			return 0;
		for (uint32_t k = 0; k < o->nin; k++)
			if (!(in[k] = box_of(r, ir_in(r->from, o, k), start, size, step, left)))
				return 0;
		return ir_emit_raw(b, (enum ir_kind)o->kind, o->nin, in, 1, &t, r->from->attr.p + o->attr, ir_attr_words(r->from, o));
	}
	}
}

/* A few elements of what is computed from nothing that is read: they are computed alone. */
static ir_val few_of(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	enum { MANY = 1 << 20, TIMES = 64, MOST = 64 };
	if (o->kind != IR_slice || ir_vtype(r->m, r->from, ir_in(r->from, o, 0))->count < MAX(MANY, TIMES * ir_vtype(r->m, r->from, o->out)->count))
		return 0;
	int n, left = MOST;
	int64_t size[IR_MAX_RANK];
	const struct ir_type_info *t = ir_vtype(r->m, r->from, o->out);
	if (!t->count)
		return 0;
	memcpy(size, t->dim, sizeof *size * (size_t)t->rank);
	return box_of(r, ir_in(r->from, o, 0), ir_attrs(r->from, o, AT_start, &n), size, ir_attrs(r->from, o, AT_stride, &n), &left);
}

/* --- the place of the greatest element --------------------------------------------------------- */

static const struct ir_op *made_by(const struct ir_fn *g, ir_val v, enum ir_kind k, ir_val a, ir_val b)
{
	const struct ir_op *o = ir_def(g, v);
	return o && o->kind == k && (!a || ir_in(g, o, 0) == a) && (!b || ir_in(g, o, 1) == b) ? o : NULL;
}

/* The function takes, of two elements and their indices, the greater element (or the smaller one), NaN before all if they are floats, of equal
 * ones that with the lower index; its first result is that element, if it shall be: which is compared first? */
static bool finds_place(const struct ir_fn *g, bool floats, bool element, enum redop *op)
{
	const struct ir_op *s = g->nparam == 4 ? ir_def(g, g->result.p[1]) : NULL, *first, *tie, *before, *e;
	if (!s || s->kind != IR_select || ir_in(g, s, 1) != 2 || ir_in(g, s, 2) != 4 || !(s = made_by(g, ir_in(g, s, 0), IR_or, 0, 0)))
		return false;
	ir_val greater = ir_in(g, s, 0);
	if (element && (!(e = made_by(g, g->result.p[0], IR_select, greater, 1)) || ir_in(g, e, 2) != 3))
		return false;
	if (floats) {
		if (!(first = made_by(g, greater, IR_or, 0, 0)) || !made_by(g, ir_in(g, first, 1), IR_compare_ne, 1, 1))
			return false;
		greater = ir_in(g, first, 0);
	}
	before = ir_def(g, greater);
	*op = before && before->kind == IR_compare_gt ? RED_max : RED_min;
	if (!made_by(g, greater, *op == RED_max ? IR_compare_gt : IR_compare_lt, 1, 3))
		return false;
	tie = made_by(g, ir_in(g, s, 1), IR_and, 0, 0);
	return tie && made_by(g, ir_in(g, tie, 0), IR_compare_eq, 1, 3) && made_by(g, ir_in(g, tie, 1), IR_compare_lt, 2, 4);
}

/* The greatest number of a constant of whole numbers, -1 if it is none or some are negative. */
static int64_t greatest(const struct ir_module *m, const struct ir_fn *fn, ir_val v)
{
	const struct ir_op *o = ir_def(fn, v);
	const struct ir_type_info *t = ir_vtype(m, fn, v);
	int64_t most = -1, x;
	size_t n;
	if (ir_const_int(m, fn, v, &x))
		return x;
	if (!o || o->kind != IR_constant || t->dtype != DT_i32)
		return -1;
	const int32_t *p = ir_blob_data(m, (ir_blob)ir_attr(fn, o, AT_data), &n);
	for (size_t i = 0; i < n / sizeof *p; i++) {
		if (p[i] < 0)
			return -1;
		most = MAX(most, p[i]);
	}
	return most;
}

/* Whole numbers that are nowhere negative, at most *most, and do not fall along dimension d (-1: which is none). */
static bool rises(const struct ir_module *m, const struct ir_fn *fn, ir_val v, int d, int64_t *most, int depth)
{
	const struct ir_op *o = ir_def(fn, v);
	const struct ir_type_info *t = ir_vtype(m, fn, v);
	bool is_int = dtype_info[t->dtype].cls == DT_INT, yes = false;
	if ((!is_int && dtype_info[t->dtype].cls != DT_UINT) || depth > 8)
		return false;
	int64_t room = (int64_t)(UINT64_MAX >> (65 - dtype_info[t->dtype].bits)), more = 0;     /* u8, too, up to 127 */
	if ((*most = greatest(m, fn, v)) >= 0)
		return d < 0 || ir_splat(m, fn, v);
	if (!o)
		return false;
	const struct ir_type_info *x = o->nin ? ir_vtype(m, fn, ir_in(fn, o, 0)) : NULL;
	int n, k = 0;
	switch (o->kind) {
	case IR_iota:
		*most = t->dim[ir_attr(fn, o, AT_dim)] - 1;
		yes = true;
		break;
	case IR_broadcast: {
		const int64_t *dims = ir_attrs(fn, o, AT_dims, &n);
		while (k < n && (d < 0 || dims[k] != d || x->dim[k] == 1))
			k++;
		yes = rises(m, fn, ir_in(fn, o, 0), k < n ? k : -1, most, depth + 1);
		break;
	}
	case IR_reshape: case IR_dynamic_slice:
		yes = d < 0 && rises(m, fn, ir_in(fn, o, 0), -1, most, depth + 1);
		break;
	case IR_convert:
		yes = rises(m, fn, ir_in(fn, o, 0), d, most, depth + 1);
		break;
	case IR_add:
		yes = rises(m, fn, ir_in(fn, o, 0), d, most, depth + 1) && rises(m, fn, ir_in(fn, o, 1), d, &more, depth + 1) && *most <= room - more;
		*most += more;
		break;
	default:
		break;
	}
	return yes && *most <= room;
}

/* x is the extreme m, or NaN. */
static ir_val is_extreme(struct ir_b *b, ir_val x, ir_val m)
{
	ir_val here = ir_bin(b, ELEM_compare_eq, x, m);
	if (dtype_info[ir_vtype(b->m, b->fn, x)->dtype].cls == DT_FLOAT)
		here = ir_bin(b, ELEM_or, here, ir_bin(b, ELEM_compare_ne, x, x));
	return here;
}

/* An extreme and its index, the least one where an element equals the extreme: both reductions compile, with what their operands are computed
 * from, and no list of indices is made. */
static ir_val split_place(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	enum redop op;
	struct ir_b *b = &r->b;
	if (o->kind != IR_reduce || o->nout != 2 || ir_attr(r->from, o, AT_redop) != RED_fn)
		return 0;
	enum dtype dt = ir_vtype(r->m, b->fn, in[0])->dtype, it = ir_vtype(r->m, b->fn, in[1])->dtype;
	enum dtype_class c = dtype_info[dt].cls, ic = dtype_info[it].cls;
	bool index = ic == DT_INT || ic == DT_UINT, real = c == DT_PRED || ((c == DT_INT || c == DT_UINT || c == DT_FLOAT) && dtype_info[dt].bits >= (c == DT_FLOAT ? 16 : 8));
	bool element = r->live[o->out] & 1;
	if (!index || !real || !finds_place(ir_fn_of(r->m, (ir_fnid)ir_attr(r->from, o, AT_fn)), c == DT_FLOAT, element, &op))
		return 0;
	/* of more than one NaN the first is meant, whatever its index: it has the lowest one */
	int n, nkept = 0, rank = ir_vtype(r->m, b->fn, in[0])->rank;
	int64_t dims[IR_MAX_RANK], kept[IR_MAX_RANK], most;
	const int64_t *d = ir_attrs(r->from, o, AT_dims, &n);
	if (c == DT_FLOAT && (n != 1 || !rises(r->m, r->from, ir_in(r->from, o, 1), (int)d[0], &most, 0)))
		return 0;
	memcpy(dims, d, sizeof *d * (size_t)n);
	for (int k = 0; k < rank; k++)
		if (!in_list(dims, n, k))
			kept[nkept++] = k;
	ir_type places = r->from->val.p[ir_in(r->from, o, 1)].type, place = r->from->val.p[o->out + 1].type;
	enum dtype as = c == DT_PRED ? DT_u8 : dt;
	ir_val x = ir_convert(b, in[0], as), start = ir_convert(b, in[2], as);
	ir_val m = ir_reduce1(b, op, x, start, n, dims);
	ir_val here = is_extreme(b, x, ir_broadcast(b, m, b->fn->val.p[x].type, kept));
	ir_val first = ir_reduce1(b, RED_min, ir_select(b, here, in[1], neutral(b, RED_min, places)), neutral(b, RED_min, ir_scalar(r->m, it)), n, dims);
	ir_val begin = ir_select(b, is_extreme(b, ir_splat_of(b, start, b->fn->val.p[m].type), m), ir_splat_of(b, in[3], place), neutral(b, RED_min, place));
	r->map[o->out + 1] = ir_bin(b, ELEM_minimum, first, begin);
	if (element)
		r->map[o->out] = ir_convert(b, m, dt);
	return REWRITE_MAPPED;
}

void pass_split(struct ir_module *m)
{
	if (pass_has(m, IR_slice))
		pass_rewrite(m, few_of, NULL, NULL);
	if (!pass_has(m, IR_reduce))
		return;
	pass_rewrite(m, split_place, NULL, NULL);
	pass_rewrite(m, split_reduce, NULL, NULL);
}
