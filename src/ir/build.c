/* The builder: appends ops, folds identities, never shares. */
#include "ir.h"

#include <math.h>
#include <stdlib.h>

ir_val ir_emit_raw(struct ir_b *b, enum ir_kind k, uint32_t nin, const ir_val *in,
                   uint32_t nout, const ir_type *t, const int64_t *attr, uint32_t nattr)
{
	struct ir_fn *fn = b->fn;
	struct ir_op o = { .kind = (uint16_t)k, .nin = nin, .nout = nout, .in = (uint32_t)fn->ref.n,
	                   .out = (ir_val)fn->val.n, .attr = (uint32_t)fn->attr.n, .loc = b->loc };
	arr_reserve(&fn->ref, nin);
	arr_reserve(&fn->use, nin);
	for (uint32_t i = 0; i < nin; i++) {
		assert(in[i] && in[i] < fn->val.n);
		struct ir_value *v = &fn->val.p[in[i]];
		fn->use.p[fn->use.n++] = (struct ir_use){ (uint32_t)fn->op.n, v->use };
		fn->ref.p[fn->ref.n++] = in[i];
		v->use = (uint32_t)fn->ref.n;
		v->nuse++;
	}
	arr_reserve(&fn->attr, nattr);
	for (uint32_t i = 0; i < nattr; i++)
		fn->attr.p[fn->attr.n++] = attr[i];
	for (uint32_t i = 0; i < nout; i++)
		arr_push(&fn->val, ((struct ir_value){ .type = t[i], .def = (uint32_t)fn->op.n }));
	arr_push(&fn->op, o);
	return o.out;
}

static bool is_int(const struct ir_module *m, const struct ir_fn *fn, ir_val v)
{
	uint8_t c = dtype_info[ir_vtype(m, fn, v)->dtype].cls;
	return c == DT_INT || c == DT_UINT;
}

static bool all(int n, const int64_t *p, int64_t v)
{
	for (int i = 0; i < n; i++)
		if (p[i] != v)
			return false;
	return true;
}

static bool iota(int n, const int64_t *p)
{
	for (int i = 0; i < n; i++)
		if (p[i] != i)
			return false;
	return true;
}

/* The operand that the op equals, 0 if there is none. */
static ir_val identity(struct ir_b *b, enum ir_kind k, uint32_t nin, const ir_val *in, ir_type t,
                       const int64_t *attr, uint32_t nattr)
{
	struct ir_fn *fn = b->fn;
	bool same = nin && fn->val.p[in[0]].type == t;
	int64_t c;
	switch (k) {
	case IR_reshape:
	case IR_convert:
	case IR_bitcast:
	case IR_bitcast_convert:
		return same ? in[0] : 0;
	case IR_real:
		return same ? in[0] : 0;
	case IR_transpose:
	case IR_broadcast:
		return same && iota((int)attr[0], attr + 1) ? in[0] : 0;
	case IR_reverse:
		return attr[0] == 0 ? in[0] : 0;
	case IR_slice:
		return same && all((int)attr[0], attr + 1, 0) ? in[0] : 0;
	case IR_pad:
		for (uint32_t i = 0; i < 3; i++)              /* low, high, interior: what one adds another may cut off */
			same = same && all((int)attr[0], attr + i * (attr[0] + 1) + 1, 0);
		return same ? in[0] : 0;
	case IR_concatenate:
		return nin == 1 ? in[0] : 0;
	case IR_add:
	case IR_or:
	case IR_xor:
		if (!is_int(b->m, fn, in[0]))
			return 0;
		if (ir_const_int(b->m, fn, in[1], &c) && c == 0)
			return in[0];
		return ir_const_int(b->m, fn, in[0], &c) && c == 0 ? in[1] : 0;
	case IR_subtract:
	case IR_shift_left:
	case IR_shift_right_logical:
	case IR_shift_right_arithmetic:
		return is_int(b->m, fn, in[0]) && ir_const_int(b->m, fn, in[1], &c) && c == 0 ? in[0] : 0;
	case IR_multiply:
	case IR_divide:
		if (!is_int(b->m, fn, in[0]))
			return 0;
		if (ir_const_int(b->m, fn, in[1], &c) && c == 1)
			return in[0];
		return k == IR_multiply && ir_const_int(b->m, fn, in[0], &c) && c == 1 ? in[1] : 0;
	case IR_select: {
		const uint8_t *p = ir_splat(b->m, fn, in[0]);
		if (in[1] == in[2])
			return in[1];
		return p ? in[*p ? 1 : 2] : 0;
	}
	case IR_reduce_precision: {
		enum dtype dt = ir_vtype(b->m, fn, in[0])->dtype;
		return (dt == DT_bf16 && attr[0] == 8 && attr[1] >= 7) || (dt == DT_f32 && attr[0] == 8 && attr[1] >= 23) ||
		       (dt == DT_f16 && attr[0] >= 5 && attr[1] >= 10) ? in[0] : 0;
	}
	default:
		return 0;
	}
}

/* A broadcast that keeps the order of its operand's dimensions and repeats nothing: what it adds are dimensions of one. */
static bool adds_ones(const struct ir_b *b, const struct ir_op *o)
{
	if (o->kind != IR_broadcast)
		return false;
	int n;
	const int64_t *dims = ir_attrs(b->fn, o, AT_dims, &n);
	for (int i = 1; i < n; i++)
		if (dims[i] < dims[i - 1])
			return false;
	return ir_vtype(b->m, b->fn, ir_in(b->fn, o, 0))->count == ir_vtype(b->m, b->fn, o->out)->count;
}

ir_val ir_emit(struct ir_b *b, enum ir_kind k, uint32_t nin, const ir_val *in, ir_type t,
               const int64_t *attr, uint32_t nattr)
{
	ir_val v = identity(b, k, nin, in, t, attr, nattr);
	if (v)
		return v;
	if (k == IR_transpose || k == IR_reshape) {    /* reshape of reshape, transpose of transpose */
		const struct ir_op *p = ir_def(b->fn, in[0]);
		if (p && k == IR_reshape && (p->kind == k || adds_ones(b, p))) {
			ir_val src = ir_in(b->fn, p, 0);
			return ir_emit(b, k, 1, &src, t, NULL, 0);
		}
		if (p && p->kind == k) {
			ir_val src = ir_in(b->fn, p, 0);
			int n;
			const int64_t *q = ir_attrs(b->fn, p, AT_perm, &n);
			int64_t w[IR_MAX_RANK + 1] = { n };
			for (int i = 0; i < n; i++)
				w[1 + i] = q[attr[1 + i]];
			return ir_emit(b, k, 1, &src, t, w, (uint32_t)n + 1);
		}
	}
	return ir_emit_raw(b, k, nin, in, 1, &t, attr, nattr);
}

ir_val ir_clone(struct ir_b *b, const struct ir_fn *from, const struct ir_op *o, const ir_val *in)
{
	ir_type small[8], *t = o->nout <= NELEM(small) ? small : mem_alloc(o->nout * sizeof *t);
	for (uint32_t i = 0; i < o->nout; i++)
		t[i] = from->val.p[o->out + i].type;
	/* the pool may be the one that grows: copy the words first */
	uint32_t nw = ir_attr_words(from, o);
	int64_t words[64], *w = nw <= NELEM(words) ? words : mem_alloc(nw * sizeof *w);
	if (nw)
		memcpy(w, &from->attr.p[o->attr], nw * sizeof *w);
	struct ir_op copy = *o;
	ir_loc old = b->loc;
	b->loc = o->loc;
	ir_val v = copy.nout == 1 ? ir_emit(b, copy.kind, copy.nin, in, t[0], w, nw)
	                          : ir_emit_raw(b, copy.kind, copy.nin, in, copy.nout, t, w, nw);
	b->loc = old;
	for (uint32_t i = 0; i < copy.nout; i++)     /* a value that was there, of which something is said, keeps that */
		if (ir_shard_of(from, copy.out + i) && !ir_shard_of(b->fn, v + i))
			ir_shard_set(b->fn, v + i, ir_shard_of(from, copy.out + i));
	if (w != words)
		free(w);
	if (t != small)
		free(t);
	return v;
}

static ir_type retype(struct ir_b *b, ir_val x, enum dtype dt)
{
	const struct ir_type_info *t = ir_vtype(b->m, b->fn, x);
	if (t->dtype == dt)
		return b->fn->val.p[x].type;
	int64_t dim[IR_MAX_RANK];
	memcpy(dim, t->dim, sizeof *dim * t->rank);
	return ir_tensor(b->m, dt, t->rank, dim);
}

static enum dtype real_of(enum dtype dt)
{
	return dt == DT_c64 ? DT_f32 : dt == DT_c128 ? DT_f64 : dt;
}

ir_val ir_un(struct ir_b *b, enum elem e, ir_val x)
{
	enum dtype dt = ir_vtype(b->m, b->fn, x)->dtype;
	ir_type t = elem_info[e].flags & EL_PRED ? retype(b, x, DT_pred)
	          : elem_info[e].flags & EL_REAL ? retype(b, x, real_of(dt)) : b->fn->val.p[x].type;
	return ir_emit(b, ir_of_elem(e), 1, &x, t, NULL, 0);
}

ir_val ir_bin(struct ir_b *b, enum elem e, ir_val x, ir_val y)
{
	enum dtype dt = ir_vtype(b->m, b->fn, x)->dtype;
	ir_type t = elem_info[e].flags & EL_PRED ? retype(b, x, DT_pred)
	          : e == ELEM_complex ? retype(b, x, dt == DT_f64 ? DT_c128 : DT_c64) : b->fn->val.p[x].type;
	return ir_emit(b, ir_of_elem(e), 2, (ir_val[]){ x, y }, t, NULL, 0);
}

ir_val ir_select(struct ir_b *b, ir_val c, ir_val x, ir_val y)
{
	return ir_emit(b, IR_select, 3, (ir_val[]){ c, x, y }, b->fn->val.p[x].type, NULL, 0);
}

ir_val ir_convert(struct ir_b *b, ir_val x, enum dtype dt)
{
	return ir_emit(b, IR_convert, 1, &x, retype(b, x, dt), NULL, 0);
}

ir_val ir_bitcast(struct ir_b *b, ir_val x, enum dtype dt)
{
	return ir_emit(b, IR_bitcast, 1, &x, retype(b, x, dt), NULL, 0);
}

ir_val ir_const(struct ir_b *b, ir_type t, const void *p, size_t n)
{
	int64_t w = ir_blob_add(b->m, p, n);
	return ir_emit_raw(b, IR_constant, 0, NULL, 1, &t, &w, 1);
}

static size_t element(enum dtype dt, double f, int64_t i, void *out)
{
	float s = (float)f;
	switch (dt) {
	case DT_f64: memcpy(out, &f, 8); return 8;
	case DT_f32: memcpy(out, &s, 4); return 4;
	case DT_f16: { uint16_t h = f32_to_f16(s); memcpy(out, &h, 2); return 2; }
	case DT_bf16: { uint16_t h = f32_to_bf16(s); memcpy(out, &h, 2); return 2; }
	case DT_c64: memcpy(out, (float[2]){ s, 0 }, 8); return 8;
	case DT_c128: memcpy(out, (double[2]){ f, 0 }, 16); return 16;
	case DT_pred: *(uint8_t *)out = i != 0; return 1;
	default:
		if (dtype_info[dt].cls == DT_FLOAT) {
			*(uint8_t *)out = f32_to_f8(dt, s);
			return 1;
		}
		memcpy(out, &i, dtype_info[dt].bytes);
		if (dtype_info[dt].bits < 8) {
			int sh = 8 - dtype_info[dt].bits;
			uint8_t u = (uint8_t)(*(uint8_t *)out << sh);
			*(uint8_t *)out = dtype_info[dt].cls == DT_INT ? (uint8_t)((int8_t)u >> sh) : (uint8_t)(u >> sh);
		}
		return dtype_info[dt].bytes;
	}
}

ir_val ir_const_i(struct ir_b *b, ir_type t, int64_t v)
{
	char e[16];
	size_t n = element(ir_type_of(b->m, t)->dtype, (double)v, v, e);
	return ir_const(b, t, e, n);
}

ir_val ir_const_f(struct ir_b *b, ir_type t, double v)
{
	char e[16];
	enum dtype dt = ir_type_of(b->m, t)->dtype;
	bool whole = dtype_info[dt].cls == DT_INT || dtype_info[dt].cls == DT_UINT || dt == DT_pred;
	size_t n = element(dt, v, whole && v == v ? (int64_t)v : 0, e);
	return ir_const(b, t, e, n);
}

ir_val ir_iota(struct ir_b *b, ir_type t, int dim)
{
	int64_t w = dim;
	return ir_emit_raw(b, IR_iota, 0, NULL, 1, &t, &w, 1);
}

static ir_val listed(struct ir_b *b, enum ir_kind k, ir_val x, ir_type t, int n, const int64_t *list)
{
	int64_t w[IR_MAX_RANK + 1] = { n };
	if (n)
		memcpy(w + 1, list, sizeof *w * (size_t)n);
	return ir_emit(b, k, 1, &x, t, w, (uint32_t)n + 1);
}

ir_val ir_broadcast(struct ir_b *b, ir_val x, ir_type t, const int64_t *dims)
{
	return listed(b, IR_broadcast, x, t, ir_vtype(b->m, b->fn, x)->rank, dims);
}

ir_val ir_splat_of(struct ir_b *b, ir_val scalar, ir_type t)
{
	return listed(b, IR_broadcast, scalar, t, 0, NULL);
}

ir_val ir_reshape(struct ir_b *b, ir_val x, int rank, const int64_t *dim)
{
	ir_type t = ir_tensor(b->m, ir_vtype(b->m, b->fn, x)->dtype, rank, dim);
	return ir_emit(b, IR_reshape, 1, &x, t, NULL, 0);
}

ir_val ir_transpose(struct ir_b *b, ir_val x, const int64_t *perm)
{
	const struct ir_type_info *t = ir_vtype(b->m, b->fn, x);
	int64_t dim[IR_MAX_RANK] = {0};
	int n = t->rank;
	for (int i = 0; i < n; i++)
		dim[i] = t->dim[perm[i]];
	return listed(b, IR_transpose, x, ir_tensor(b->m, t->dtype, n, dim), n, perm);
}

ir_val ir_slice(struct ir_b *b, ir_val x, const int64_t *start, const int64_t *limit, const int64_t *stride)
{
	const struct ir_type_info *t = ir_vtype(b->m, b->fn, x);
	int n = t->rank;
	int64_t dim[IR_MAX_RANK], w[3 * (IR_MAX_RANK + 1)], *q = w;
	for (int i = 0; i < n; i++)
		dim[i] = limit[i] > start[i] ? (limit[i] - start[i] + stride[i] - 1) / stride[i] : 0;
	const int64_t *list[3] = { start, limit, stride };
	for (int k = 0; k < 3; k++) {
		*q++ = n;
		for (int i = 0; i < n; i++)
			*q++ = list[k][i];
	}
	return ir_emit(b, IR_slice, 1, &x, ir_tensor(b->m, t->dtype, n, dim), w, (uint32_t)(q - w));
}

ir_val ir_reduce1(struct ir_b *b, enum redop r, ir_val x, ir_val init, int n, const int64_t *dims)
{
	const struct ir_type_info *t = ir_vtype(b->m, b->fn, x);
	int64_t w[IR_MAX_RANK + 3] = { n }, dim[IR_MAX_RANK];
	int rank = 0;
	for (int d = 0; d < t->rank; d++)
		if (!in_list(dims, n, d))
			dim[rank++] = t->dim[d];
	if (n)
		memcpy(w + 1, dims, sizeof *w * (size_t)n);
	w[n + 1] = r;
	w[n + 2] = 0;
	ir_type rt = ir_tensor(b->m, t->dtype, rank, dim);
	return ir_emit(b, IR_reduce, 2, (ir_val[]){ x, init }, rt, w, (uint32_t)n + 3);
}

ir_val ir_dot(struct ir_b *b, ir_val x, ir_val y, enum dtype out, int nb, const int64_t *lb, const int64_t *rb,
              int nc, const int64_t *lc, const int64_t *rc)
{
	const struct ir_type_info *s[2] = { ir_vtype(b->m, b->fn, x), ir_vtype(b->m, b->fn, y) };
	const int64_t *batch[2] = { lb, rb }, *con[2] = { lc, rc };
	int64_t dim[IR_MAX_RANK], w[4 * (IR_MAX_RANK + 1) + 5], *q = w;
	int rank = 0;
	for (int i = 0; i < nb; i++)
		dim[rank++] = s[0]->dim[lb[i]];
	for (int side = 0; side < 2; side++)
		for (int d = 0; d < s[side]->rank; d++) {
			bool used = false;
			for (int i = 0; i < nb; i++)
				used |= batch[side][i] == d;
			for (int i = 0; i < nc; i++)
				used |= con[side][i] == d;
			if (!used)
				dim[rank++] = s[side]->dim[d];
		}
	const int64_t *list[4] = { lb, rb, lc, rc };
	int len[4] = { nb, nb, nc, nc };
	for (int k = 0; k < 4; k++) {
		*q++ = len[k];
		for (int i = 0; i < len[k]; i++)
			*q++ = list[k][i];
	}
	*q++ = 0;
	*q++ = DT_token;
	*q++ = DT_token;
	*q++ = DT_token;
	*q++ = 1;
	return ir_emit(b, IR_dot, 2, (ir_val[]){ x, y }, ir_tensor(b->m, out, rank, dim), w, (uint32_t)(q - w));
}

ir_val ir_turned_dot(struct ir_b *b, ir_val dot, const int64_t *perm)
{
	struct ir_fn *fn = b->fn;
	const struct ir_op *d = ir_def(fn, dot);
	ir_val in[] = { ir_in(fn, d, 1), ir_in(fn, d, 0) };
	const struct ir_type_info *t = ir_vtype(b->m, fn, dot);
	int nb, nc, n = t->rank;
	ir_attrs(fn, d, AT_lb, &nb);
	ir_attrs(fn, d, AT_lc, &nc);
	int left = ir_vtype(b->m, fn, in[1])->rank - nb - nc, right = n - nb - left;
	int64_t dim[IR_MAX_RANK] = {0}, w[4 * (IR_MAX_RANK + 1) + 5], *q = w;
	for (int i = 0; i < n; i++) {
		if (perm[i] != (i < nb ? i : i < nb + right ? i + left : i - right))
			return 0;
		dim[i] = t->dim[perm[i]];
	}
	static const enum ir_at from[] = { AT_rb, AT_lb, AT_rc, AT_lc, AT_precision, AT_acc, AT_rtype, AT_ltype, AT_components };
	for (size_t i = 0; i < NELEM(from); i++) {
		const int64_t *p = ir_attr_word(IR_dot, &fn->attr.p[d->attr], from[i]);
		size_t k = i < 4 ? (size_t)*p + 1 : 1;
		memcpy(q, p, k * sizeof *p);
		q += k;
	}
	return ir_emit(b, IR_dot, 2, in, ir_tensor(b->m, t->dtype, n, dim), w, (uint32_t)(q - w));
}

void ir_result(struct ir_fn *fn, ir_val v)
{
	assert(v && v < fn->val.n);
	arr_push(&fn->result, v);
	fn->val.p[v].nuse++;
}

void ir_inline(struct ir_b *b, ir_fnid f, const ir_val *in, ir_val *out)
{
	const struct ir_fn *g = ir_fn_of(b->m, f);
	ir_val *map = mem_alloc(g->val.n * sizeof *map), small[16];
	for (uint32_t i = 0; i < g->nparam; i++)
		map[i + 1] = in[i];
	for (size_t i = 0; i < g->op.n; i++) {
		const struct ir_op *o = &g->op.p[i];
		ir_val *a = o->nin <= NELEM(small) ? small : mem_alloc(o->nin * sizeof *a);
		for (uint32_t k = 0; k < o->nin; k++)
			a[k] = map[ir_in(g, o, k)];
		size_t before = b->fn->op.n;
		ir_val v = ir_clone(b, g, o, a);
		for (size_t n = before; n < b->fn->op.n; n++)
			b->fn->op.p[n].loc = ir_loc_inside(b->m, b->fn->op.p[n].loc, b->loc);
		for (uint32_t k = 0; k < o->nout; k++)
			map[o->out + k] = v + k;
		if (a != small)
			free(a);
	}
	for (size_t i = 0; i < g->result.n; i++)
		out[i] = map[g->result.p[i]];
	free(map);
}

int ir_regions(const struct ir_fn *fn, const struct ir_op *o, ir_fnid *out, int cap)
{
	const struct ir_kind_info *i = ir_info(o->kind);
	int n = 0;
	for (int k = 0; k < i->nattr; k++) {
		if (i->attr[k].kind != 'f' && i->attr[k].kind != 'F')
			continue;
		int c;
		const int64_t *f = ir_attr_nth(fn, o, k, &c);
		for (int j = 0; j < c; j++) {
			if (f[j] && n < cap)
				out[n] = (ir_fnid)f[j];
			n += f[j] != 0;
		}
	}
	return MIN(n, cap);
}

/* What the op itself says: 1 effect, 0 none, -1 its functions decide. */
static int own_effect(const struct ir_fn *fn, const struct ir_op *o)
{
	unsigned f = ir_info(o->kind)->flags;
	if (f & (IR_EFFECT | IR_COLL))
		return 1;
	if (f & IR_CUSTOM)
		return ir_attr(fn, o, AT_effect) != 0;
	return f & IR_PURE ? 0 : -1;
}

/* Each function is looked at once, without recursion: calls may form long chains, and graphs with very many paths. */
bool ir_effect(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	int own = own_effect(fn, o);
	if (own >= 0)
		return own;
	ARR(ir_fnid) reached = {0};
	uint8_t *seen = mem_alloc(m->fn.n);
	bool found = false;
	for (size_t next = 0;; next++) {
		const struct ir_fn *g = next ? ir_fn_of(m, reached.p[next - 1]) : fn;
		for (size_t i = 0; i < (next ? g->op.n : 1) && !found; i++) {
			const struct ir_op *p = next ? &g->op.p[i] : o;
			own = own_effect(g, p);
			found = own > 0;
			if (own >= 0)
				continue;
			int n = 64;
			for (;; n *= 2) {
				arr_reserve(&reached, n);
				int k = ir_regions(g, p, reached.p + reached.n, n);
				if (k < n) {
					n = k;
					break;
				}
			}
			ir_fnid *r = reached.p + reached.n;
			for (int k = 0; k < n; k++)
				if (!seen[r[k]]) {
					seen[r[k]] = 1;
					reached.p[reached.n++] = r[k];
				}
		}
		if (found || next == reached.n)
			break;
	}
	arr_free(&reached);
	free(seen);
	return found;
}

uint8_t *ir_live(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const bool *wanted)
{
	uint8_t *live = arena_alloc(a, fn->val.n);
	for (size_t i = 0; i < fn->result.n; i++)
		live[fn->result.p[i]] |= !wanted || wanted[i];
	for (size_t i = fn->op.n; i-- > 0;) {
		const struct ir_op *o = &fn->op.p[i];
		bool need = false;
		for (uint32_t k = 0; k < o->nout; k++)
			need |= live[o->out + k];
		if (!need && !ir_effect(m, fn, o))
			continue;
		for (uint32_t k = 0; k < o->nin; k++)
			live[ir_in(fn, o, k)] |= 1;
		for (uint32_t k = 0; k < o->nout; k++)
			live[o->out + k] |= 2;
	}
	return live;
}

struct ir_fn *ir_rebuild(struct ir_module *m, const struct ir_fn *fn)
{
	struct arena tmp;
	arena_init(&tmp);
	uint8_t *live = ir_live(&tmp, m, fn, NULL);
	ir_val *map = ARENA_NEW(&tmp, ir_val, fn->val.n);
	struct ir_fn *g = ir_fn_new(m, ir_text(m, fn->name));
	struct ir_b b = { m, g, 0 };
	for (uint32_t i = 1; i <= fn->nparam; i++) {
		map[i] = ir_param(g, fn->val.p[i].type);
		ir_shard_set(g, map[i], ir_shard_of(fn, i));
	}
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		bool need = o->nout == 0 && ir_effect(m, fn, o);
		for (uint32_t k = 0; k < o->nout; k++)
			need |= live[o->out + k] != 0;
		if (!need)
			continue;
		ir_val *in = ARENA_NEW(&tmp, ir_val, o->nin);
		for (uint32_t k = 0; k < o->nin; k++)
			in[k] = map[ir_in(fn, o, k)];
		ir_val v = ir_clone(&b, fn, o, in);
		for (uint32_t k = 0; k < o->nout; k++)
			map[o->out + k] = v + k;
	}
	for (size_t i = 0; i < fn->result.n; i++)
		ir_result(g, map[fn->result.p[i]]);
	arena_fini(&tmp);
	return g;
}

enum redop ir_region_redop(const struct ir_module *m, ir_fnid f)
{
	const struct ir_fn *fn = ir_fn_of(m, f);
	if (fn->nparam != 2 || fn->result.n != 1)
		return RED_fn;
	ir_val v = fn->result.p[0];
	const struct ir_op *o = ir_def(fn, v);
	if (!o || o->nin != 2 || !ir_is_elem(o->kind))
		return RED_fn;
	ir_val a = ir_in(fn, o, 0), c = ir_in(fn, o, 1);
	if (!((a == 1 && c == 2) || (a == 2 && c == 1)))
		return RED_fn;
	for (int r = 0; r < RED_COUNT; r++)
		if (redop_elem[r] == ir_elem(o->kind))
			return (enum redop)r;
	return RED_fn;
}
