/* Scores beside a few others: softmax over queries by keys and a column of sinks.
 *
 * A program that puts a learned number beside each row's scores concatenates, takes exponentials of all, adds them up and slices off what it wants.
 * Here each value along the concatenated dimension becomes two: what is made of the first operand and what of the second one.  Sums and maxima
 * over the dimension are those of both parts, put together; slices are of one of them.  What goes back through the slice, padded with zeros, is in
 * parts, too.  So no value has the odd extent, and the scores are a matrix of queries by keys as pass attention knows it.
 *
 * A function in which such a value is needed as a whole stays as it is. */
#include "passes.h"

struct whole { int dim; int64_t cut, all; };      /* along dim: cut elements, and the rest; cut 0: it is no such value */
struct parts {
	struct whole *of;        /* per old value */
	ir_val (*to)[2];         /* per old value that is one: its parts in the new function */
};

static bool is_zero(const struct ir_module *m, const struct ir_fn *fn, ir_val v)
{
	const void *p = ir_splat(m, fn, v);
	return p && dtype_info[ir_vtype(m, fn, v)->dtype].cls == DT_FLOAT && dtype_real((enum dtype)ir_vtype(m, fn, v)->dtype, p) == 0;
}

/* --- what comes in parts ---------------------------------------------------------- */

struct find { const struct ir_module *m; const struct ir_fn *fn; struct whole *of; bool ok, exp; ARR(struct whole) made; };

/* Scores: floats of which the first part is many times the second one, and is made from a product. */
static bool starts(const struct find *f, const struct ir_op *o, const bool *product, struct whole *out)
{
	enum { FEW = 8 };
	if (o->kind != IR_concatenate || o->nin != 2 || dtype_info[ir_vtype(f->m, f->fn, o->out)->dtype].cls != DT_FLOAT)
		return false;
	int d = (int)ir_attr(f->fn, o, AT_dim);
	int64_t n[2] = { ir_vtype(f->m, f->fn, ir_in(f->fn, o, 0))->dim[d], ir_vtype(f->m, f->fn, ir_in(f->fn, o, 1))->dim[d] };
	int small = n[1] > n[0] ? 0 : 1;
	*out = (struct whole){ d, n[0], n[0] + n[1] };
	return n[small] > 0 && n[small] * FEW <= n[!small] && product[ir_in(f->fn, o, (uint32_t)!small)] && !product[ir_in(f->fn, o, (uint32_t)small)];
}

/* Zeros on one side of what goes back through a slice. */
static bool padded(const struct find *f, const struct ir_op *o, struct whole *out)
{
	int n, at = -1;
	const int64_t *low = ir_attrs(f->fn, o, AT_low, &n), *high = ir_attrs(f->fn, o, AT_high, &n), *interior = ir_attrs(f->fn, o, AT_interior, &n);
	for (int d = 0; d < n; d++) {
		if (interior[d] || low[d] < 0 || high[d] < 0 || (at >= 0 && (low[d] || high[d])))
			return false;
		at = low[d] || high[d] ? d : at;
	}
	if (at < 0 || (low[at] && high[at]))
		return false;
	int64_t all = ir_vtype(f->m, f->fn, o->out)->dim[at], cut = low[at] ? low[at] : all - high[at];
	*out = (struct whole){ at, cut, all };
	for (size_t i = 0; i < f->made.n; i++)
		if (f->made.p[i].cut == cut && f->made.p[i].all == all)
			return true;
	return false;
}

/* Where dimension d of o's operand, a view or a sum over others, is in the result; -1: it is not told. */
static int moved(const struct find *f, const struct ir_op *o, int d)
{
	int n, to = d;
	if (o->kind == IR_broadcast)
		return (int)ir_attrs(f->fn, o, AT_dims, &n)[d];
	if (o->kind == IR_transpose) {
		const int64_t *perm = ir_attrs(f->fn, o, AT_perm, &n);
		for (int i = 0; i < n; i++)
			if (perm[i] == d)
				return i;
	}
	if (o->kind == IR_reduce) {
		const int64_t *dims = ir_attrs(f->fn, o, AT_dims, &n);
		for (int i = 0; i < n; i++)
			to -= dims[i] < d;
		return to;
	}
	return -1;
}

static bool over(const struct ir_fn *fn, const struct ir_op *o, int d)
{
	int n;
	const int64_t *dims = ir_attrs(fn, o, AT_dims, &n);
	for (int i = 0; i < n; i++)
		if (dims[i] == d)
			return true;
	return false;
}

/* Which part slice o of a whole is of; 2: of both, all of them; -1: it is none. */
static int part_of(const struct ir_fn *fn, const struct ir_op *o, const struct whole *w)
{
	int n;
	const int64_t *start = ir_attrs(fn, o, AT_start, &n), *limit = ir_attrs(fn, o, AT_limit, &n), *stride = ir_attrs(fn, o, AT_stride, &n);
	int d = w->dim;
	if (start[d] == 0 && limit[d] == w->all && stride[d] == 1)
		return 2;
	return limit[d] <= w->cut ? 0 : start[d] >= w->cut ? 1 : -1;
}

static void look(struct find *f, const struct ir_op *o, const bool *product)
{
	struct whole w = {0}, *to = &f->of[o->out];
	int with = -1;
	bool all = true;
	for (uint32_t k = 0; k < o->nin; k++) {
		const struct whole *x = &f->of[ir_in(f->fn, o, k)];
		all &= x->cut == 0 || !w.cut || (x->dim == w.dim && x->cut == w.cut && x->all == w.all);
		if (x->cut) {
			w = *x;
			with = (int)k;
		}
	}
	if (with < 0) {
		if (starts(f, o, product, to))
			arr_push(&f->made, *to);
		else if (o->kind != IR_pad || !is_zero(f->m, f->fn, ir_in(f->fn, o, 1)) || !padded(f, o, to))
			to->cut = 0;
		return;
	}
	if (ir_is_elem(o->kind)) {
		f->exp |= o->kind == IR_exponential || o->kind == IR_power;
		*to = w;
		f->ok &= all;
		return;
	}
	if (o->kind == IR_slice) {
		int part = part_of(f->fn, o, &w);
		if (part == 2)
			*to = w;
		f->ok &= part >= 0;
		return;
	}
	if (o->kind == IR_reduce) {
		enum redop r = (enum redop)ir_attr(f->fn, o, AT_redop);
		f->ok &= o->nout == 1 && (r == RED_max || r == RED_min || (r == RED_add && is_zero(f->m, f->fn, ir_in(f->fn, o, 1))));
		if (f->ok && over(f->fn, o, w.dim))
			return;
	}
	w.dim = f->ok ? moved(f, o, w.dim) : -1;
	f->ok &= w.dim >= 0 && o->nout == 1 && ir_vtype(f->m, f->fn, o->out)->dim[w.dim] == w.all;
	*to = w;
}

static bool begin(struct rewrite *r)
{
	const struct ir_fn *fn = r->from;
	struct parts *p = r->user;
	struct find f = { .m = r->m, .fn = fn, .ok = true, .of = ARENA_NEW(r->a, struct whole, fn->val.n) };
	bool *product = ARENA_NEW(r->a, bool, fn->val.n);
	const uint8_t *needed = ir_live(r->a, r->m, fn, NULL);
	for (size_t i = 0; i < fn->op.n && f.ok; i++) {
		const struct ir_op *o = &fn->op.p[i];
		bool from = o->kind == IR_dot;
		for (uint32_t k = 0; k < o->nin && (ir_is_elem(o->kind) || ir_info(o->kind)->flags & IR_VIEW); k++)
			from |= product[ir_in(fn, o, k)];
		for (uint32_t k = 0; k < o->nout; k++)
			product[o->out + k] = from;
		bool live = false;
		for (uint32_t k = 0; k < o->nout; k++)
			live |= needed[o->out + k] != 0;
		if (live)
			look(&f, o, product);
	}
	for (size_t i = 0; i < fn->result.n; i++)
		f.ok &= !f.of[fn->result.p[i]].cut;
	bool any = f.ok && f.exp && f.made.n;
	arr_free(&f.made);
	p->of = f.of;
	p->to = (ir_val (*)[2])ARENA_NEW(r->a, ir_val, 2 * fn->val.n);
	return any;
}

/* --- the rewrite ------------------------------------------------------------------------ */

static int64_t extent(const struct whole *w, int part) { return part ? w->all - w->cut : w->cut; }

/* The type of a part of type t. */
static ir_type part_type(struct rewrite *r, ir_type t, const struct whole *w, int part)
{
	const struct ir_type_info *i = ir_type_of(r->m, t);
	int64_t dim[IR_MAX_RANK];
	int rank = i->rank;
	enum dtype dt = (enum dtype)i->dtype;
	memcpy(dim, i->dim, sizeof *dim * (size_t)rank);
	dim[w->dim] = extent(w, part);
	return ir_tensor(r->m, dt, rank, dim);
}

/* That part of an old value, which may be one that is no whole. */
static ir_val piece(struct rewrite *r, ir_val old, const struct whole *w, int part)
{
	const struct parts *p = r->user;
	if (p->of[old].cut)
		return p->to[old][part];
	ir_val v = r->map[old];
	const struct ir_op *o = ir_def(r->b.fn, v);
	const struct ir_type_info *i = ir_vtype(r->m, r->b.fn, v);
	int rank = i->rank, n;
	if (!rank)
		return v;
	ir_type t = part_type(r, r->b.fn->val.p[v].type, w, part);
	const void *splat = ir_splat(r->m, r->b.fn, v);
	if (splat)
		return ir_const(&r->b, t, splat, dtype_info[i->dtype].bytes);
	const int64_t *dims = o && o->kind == IR_broadcast ? ir_attrs(r->b.fn, o, AT_dims, &n) : NULL;
	bool same = dims;
	for (int d = 0; dims && d < n; d++)
		same &= dims[d] != w->dim || ir_vtype(r->m, r->b.fn, ir_in(r->b.fn, o, 0))->dim[d] == 1;
	if (same)
		return ir_broadcast(&r->b, ir_in(r->b.fn, o, 0), t, arena_copy(r->a, dims, sizeof *dims * (size_t)n));
	int64_t start[IR_MAX_RANK] = {0}, limit[IR_MAX_RANK], stride[IR_MAX_RANK];
	for (int d = 0; d < rank; d++) {
		limit[d] = i->dim[d];
		stride[d] = 1;
	}
	start[w->dim] = part ? w->cut : 0;
	limit[w->dim] = part ? w->all : w->cut;
	return ir_slice(&r->b, v, start, limit, stride);
}

static void in_parts(struct rewrite *r, const struct ir_op *o)
{
	const struct parts *p = r->user;
	const struct whole *w = &p->of[o->out];
	for (int part = 0; part < 2; part++) {
		ir_type t = part_type(r, r->from->val.p[o->out].type, w, part);
		ir_val *to = &p->to[o->out][part], a[4];
		uint32_t n;
		if (o->kind == IR_concatenate) {
			*to = r->map[ir_in(r->from, o, (uint32_t)part)];
			continue;
		}
		if (o->kind == IR_pad) {
			int nd;
			bool after = ir_attrs(r->from, o, AT_low, &nd)[w->dim] > 0;
			*to = part == after ? r->map[ir_in(r->from, o, 0)] : ir_const_f(&r->b, t, 0);
			continue;
		}
		struct whole x = *w;
		for (uint32_t k = 0; k < o->nin && k < 4; k++) {
			if (p->of[ir_in(r->from, o, k)].cut)
				x = p->of[ir_in(r->from, o, k)];
		}
		for (uint32_t k = 0; k < o->nin && k < 4; k++)
			a[k] = piece(r, ir_in(r->from, o, k), &x, part);
		if (o->kind == IR_slice) {
			int nd;
			const int64_t *s = ir_attrs(r->from, o, AT_start, &nd);
			int64_t *start = arena_copy(r->a, s, sizeof *s * (size_t)nd), *limit = arena_copy(r->a, ir_attrs(r->from, o, AT_limit, &nd), sizeof *s * (size_t)nd);
			limit[w->dim] = extent(w, part);
			*to = ir_slice(&r->b, a[0], start, limit, arena_copy(r->a, ir_attrs(r->from, o, AT_stride, &nd), sizeof *s * (size_t)nd));
			continue;
		}
		int64_t *words = ir_attr_copy(r->a, r->from, o, &n);
		*to = ir_emit(&r->b, (enum ir_kind)o->kind, o->nin, a, t, words, n);
	}
}

static ir_val on_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct parts *p = r->user;
	if (o->nout == 1 && p->of[o->out].cut) {
		in_parts(r, o);
		return REWRITE_MAPPED;
	}
	const struct whole *w = o->nin ? &p->of[ir_in(r->from, o, 0)] : NULL;
	if (!w || !w->cut)
		return 0;
	const ir_val *part = p->to[ir_in(r->from, o, 0)];
	int n;
	if (o->kind == IR_slice) {
		int of = part_of(r->from, o, w);
		const int64_t *s = ir_attrs(r->from, o, AT_start, &n), *l = ir_attrs(r->from, o, AT_limit, &n), *by = ir_attrs(r->from, o, AT_stride, &n);
		int64_t *start = arena_copy(r->a, s, sizeof *s * (size_t)n), *limit = arena_copy(r->a, l, sizeof *l * (size_t)n);
		start[w->dim] -= of ? w->cut : 0;
		limit[w->dim] -= of ? w->cut : 0;
		return ir_slice(&r->b, part[of], start, limit, arena_copy(r->a, by, sizeof *by * (size_t)n));
	}
	enum redop op = (enum redop)ir_attr(r->from, o, AT_redop);
	const int64_t *dims = ir_attrs(r->from, o, AT_dims, &n);
	ir_val a = ir_reduce1(&r->b, op, part[0], in[1], n, dims), b = ir_reduce1(&r->b, op, part[1], in[1], n, dims);
	return ir_bin(&r->b, redop_elem[op], a, b);
}

void pass_parts(struct ir_module *m)
{
	struct parts p = {0};
	if (pass_has(m, IR_concatenate) && pass_has(m, IR_exponential))
		pass_rewrite(m, on_op, begin, &p);
}
