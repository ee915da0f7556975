/* Operations of StableHLO that are several of ours, and those with dynamic shapes that turn out static. */
#include "wire.h"

#include <stdlib.h>

static const struct ir_type_info *vt(const struct hlo *h, ir_val v)
{
	return ir_vtype(h->m, h->b.fn, v);
}

static ir_type type_of(const struct hlo *h, ir_val v)
{
	return h->b.fn->val.p[v].type;
}

static struct err *give(struct hlo *h, const struct wop *o, ir_val v)
{
	return op_bind(h, o, 1, &v);
}

/* --- batch normalisation ---------------------------------------------------- */

struct bn { double epsilon; int64_t feature; ir_type full, vec; int nred; int64_t red[IR_MAX_RANK]; int64_t per; };

/* in[0] is the operand, in[1 ..) vectors of its feature dimension, but for in[4] of grad. */
static struct err *bn_start(struct hlo *h, const struct wop *o, int nvec, ir_val *in, struct bn *b)
{
	uint32_t p[2];
	TRY(op_props(h, o, p));
	TRY(attr_float(h, p[0], &b->epsilon));
	TRY(attr_int(h, p[1], &b->feature));
	TRY(op_ins_n(h, o, o->nin, in));
	const struct ir_type_info *t = vt(h, in[0]);
	if (b->feature < 0 || b->feature >= t->rank || dtype_info[t->dtype].cls != DT_FLOAT)
		return bad_op(h, "feature dimension %lld of a tensor of rank %d", (long long)b->feature, t->rank);
	b->full = type_of(h, in[0]);
	b->vec = ir_tensor(h->m, t->dtype, 1, &vt(h, in[0])->dim[b->feature]);
	for (int i = 1; i <= nvec; i++)
		if (type_of(h, in[i]) != b->vec)
			return bad_op(h, "operand %d is not a vector of the features", i);
	b->nred = 0;
	b->per = 1;
	t = vt(h, in[0]);
	for (int d = 0; d < t->rank; d++)
		if (d != b->feature) {
			b->red[b->nred++] = d;
			b->per *= t->dim[d];
		}
	return NULL;
}

static ir_val spread(struct hlo *h, const struct bn *b, ir_val v)
{
	return ir_broadcast(&h->b, v, b->full, &b->feature);
}

static ir_val fill(struct hlo *h, ir_type t, double v)
{
	return ir_splat_of(&h->b, ir_const_f(&h->b, ir_scalar(h->m, ir_type_of(h->m, t)->dtype), v), t);
}

static ir_val mean(struct hlo *h, const struct bn *b, ir_val v)
{
	ir_val zero = ir_const_f(&h->b, ir_scalar(h->m, ir_type_of(h->m, b->vec)->dtype), 0);
	ir_val s = ir_reduce1(&h->b, RED_add, v, zero, b->nred, b->red);
	return ir_bin(&h->b, ELEM_divide, s, fill(h, b->vec, (double)b->per));
}

static ir_val scale_of(struct hlo *h, const struct bn *b, ir_val var)
{
	return ir_un(&h->b, ELEM_rsqrt, ir_bin(&h->b, ELEM_add, var, fill(h, b->vec, b->epsilon)));
}

static ir_val normalise(struct hlo *h, const struct bn *b, ir_val x, ir_val scale, ir_val offset, ir_val mu, ir_val var)
{
	ir_val d = ir_bin(&h->b, ELEM_subtract, x, spread(h, b, mu));
	ir_val k = ir_bin(&h->b, ELEM_multiply, scale, scale_of(h, b, var));
	ir_val y = ir_bin(&h->b, ELEM_multiply, d, spread(h, b, k));
	return ir_bin(&h->b, ELEM_add, y, spread(h, b, offset));
}

struct err *conv_batch_norm_inference(struct hlo *h, const struct wop *o)
{
	struct bn b;
	ir_val in[5];    /* operand, scale, offset, mean, variance */
	TRY(bn_start(h, o, 4, in, &b));
	return give(h, o, normalise(h, &b, in[0], in[1], in[2], in[3], in[4]));
}

struct err *conv_batch_norm_training(struct hlo *h, const struct wop *o)
{
	struct bn b;
	ir_val in[3], out[3];
	TRY(bn_start(h, o, 2, in, &b));
	out[1] = mean(h, &b, in[0]);
	ir_val d = ir_bin(&h->b, ELEM_subtract, in[0], spread(h, &b, out[1]));
	out[2] = mean(h, &b, ir_bin(&h->b, ELEM_multiply, d, d));
	out[0] = normalise(h, &b, in[0], in[1], in[2], out[1], out[2]);
	return op_bind(h, o, 3, out);
}

struct err *conv_batch_norm_grad(struct hlo *h, const struct wop *o)
{
	struct bn b;
	ir_val in[5], out[3];    /* operand, scale, mean, variance, gradient of the output */
	TRY(bn_start(h, o, 3, in, &b));
	if (type_of(h, in[4]) != b.full)
		return bad_op(h, "its gradient has another type than its operand");
	struct ir_b *q = &h->b;
	ir_val zero = ir_const_f(q, ir_scalar(h->m, ir_type_of(h->m, b.vec)->dtype), 0);
	ir_val d = ir_bin(q, ELEM_subtract, in[0], spread(h, &b, in[2]));
	ir_val r = scale_of(h, &b, in[3]);
	ir_val xhat = ir_bin(q, ELEM_multiply, d, spread(h, &b, r));
	out[2] = ir_reduce1(q, RED_add, in[4], zero, b.nred, b.red);
	out[1] = ir_reduce1(q, RED_add, ir_bin(q, ELEM_multiply, in[4], xhat), zero, b.nred, b.red);
	/* scale * r / n * (n g - sum g - xhat * sum(g xhat)) */
	ir_val n = fill(h, b.full, (double)b.per);
	ir_val s = ir_bin(q, ELEM_multiply, in[4], n);
	s = ir_bin(q, ELEM_subtract, s, spread(h, &b, out[2]));
	s = ir_bin(q, ELEM_subtract, s, ir_bin(q, ELEM_multiply, xhat, spread(h, &b, out[1])));
	ir_val k = ir_bin(q, ELEM_multiply, in[1], r);
	k = ir_bin(q, ELEM_divide, k, fill(h, b.vec, (double)b.per));
	out[0] = ir_bin(q, ELEM_multiply, s, spread(h, &b, k));
	return op_bind(h, o, 3, out);
}

/* --- map: a scalar function applied to every element ------------------------- */

struct err *conv_map(struct hlo *h, const struct wop *o)
{
	uint32_t n, ncap, *cap;
	ir_val *in;
	ir_type t;
	ir_fnid f;
	TRY(op_ins(h, o, &n, &in));
	TRY(op_captures(h, o, &ncap, &cap));
	TRY(region_fn(h, o->region, "map", false, ncap, cap, true, &f));
	TRY(op_out1(h, o, &t));
	const struct ir_fn *g = ir_fn_of(h->m, f);
	if (g->nparam != n || g->result.n != 1)
		return bad_op(h, "its function takes %u values and gives %zu", g->nparam, g->result.n);
	ir_val *map = ARENA_NEW(&h->a, ir_val, g->val.n);
	int64_t dim[IR_MAX_RANK];
	int rank = ir_type_of(h->m, t)->rank;
	for (int d = 0; d < rank; d++)
		dim[d] = ir_type_of(h->m, t)->dim[d];
	for (uint32_t i = 0; i < n; i++) {
		map[i + 1] = in[i];
		const struct ir_type_info *x = vt(h, in[i]);
		if (x->dtype != ir_vtype(h->m, g, i + 1)->dtype || x->rank != rank || memcmp(x->dim, dim, sizeof *dim * (size_t)rank))
			return bad_op(h, "operand %u does not fit its function", i);
	}
	for (size_t i = 0; i < g->op.n; i++) {
		const struct ir_op *p = &g->op.p[i];
		ir_val a[4];
		if (p->nout != 1 || ir_vtype(h->m, g, p->out)->rank != 0)
			return no_op(h, "a map that holds '%s'", ir_info(p->kind)->name);
		enum dtype dt = ir_vtype(h->m, g, p->out)->dtype;
		ir_type r = ir_tensor(h->m, dt, rank, dim);
		if (p->kind == IR_constant) {
			size_t k;
			const void *data = ir_blob_data(h->m, (ir_blob)ir_attr(g, p, AT_data), &k);
			map[p->out] = ir_const(&h->b, r, data, k);
			continue;
		}
		if (p->kind == IR_reshape || p->kind == IR_broadcast) {
			if (ir_vtype(h->m, g, ir_in(g, p, 0))->rank)
				return no_op(h, "a map that holds '%s'", ir_info(p->kind)->name);
			map[p->out] = map[ir_in(g, p, 0)];
			continue;
		}
		if (!ir_is_elem(p->kind) || p->nin > NELEM(a))
			return no_op(h, "a map that holds '%s'", ir_info(p->kind)->name);
		for (uint32_t k = 0; k < p->nin; k++)
			a[k] = map[ir_in(g, p, k)];
		map[p->out] = ir_emit(&h->b, p->kind, p->nin, a, r, NULL, 0);
	}
	return give(h, o, map[g->result.p[0]]);
}

/* --- products ------------------------------------------------------------------ */

struct err *op_dot(struct hlo *h, const struct wop *o)
{
	uint32_t n;
	ir_type *out;
	ir_val in[2], v;
	TRY(op_ins_n(h, o, 2, in));
	TRY(op_outs(h, o, &n, &out));
	const struct ir_type_info *t = ir_type_of(h->m, out[0]);
	int64_t dim[IR_MAX_RANK];
	int rank = t->rank;
	memcpy(dim, t->dim, sizeof *dim * (size_t)rank);
	enum dtype to = t->dtype, l = vt(h, in[0])->dtype, r = vt(h, in[1])->dtype, wide = DT_c64;
	bool complex[3] = { dtype_info[l].cls == DT_COMPLEX, dtype_info[r].cls == DT_COMPLEX, dtype_info[to].cls == DT_COMPLEX };
	if (complex[0] == complex[1] && complex[1] == complex[2])
		return op_emit(h, o, IR_dot, 2, in, (uint32_t)h->word.n, h->word.p);
	if (l == DT_c128 || l == DT_f64 || r == DT_c128 || r == DT_f64 || to == DT_c128 || to == DT_f64)
		wide = DT_c128;
	for (int k = 0; k < 2; k++)
		in[k] = ir_convert(&h->b, in[k], wide);
	ir_type product = ir_tensor(h->m, wide, rank, dim);
	TRY(op_emit_t(h, IR_dot, 2, in, 1, &product, (uint32_t)h->word.n, h->word.p, &v));
	v = ir_convert(&h->b, complex[2] ? v : ir_un(&h->b, ELEM_real, v), to);
	return op_bind(h, o, 1, &v);
}

struct err *conv_dot(struct hlo *h, const struct wop *o)
{
	uint32_t p[1];
	ir_val in[2];
	TRY(op_props(h, o, p));
	TRY(op_ins_n(h, o, 2, in));
	int rank = vt(h, in[0])->rank;
	if (rank < 1 || vt(h, in[1])->rank < 1)
		return bad_op(h, "a product of scalars");
	w_begin(h);
	w_list(h, 0, NULL);
	w_list(h, 0, NULL);
	w_list(h, 1, (int64_t[]){ rank - 1 });
	w_list(h, 1, (int64_t[]){ 0 });
	TRY(w_props(h, p, "p0"));
	for (int i = 0; i < 3; i++)
		w_int(h, DT_token);
	w_int(h, 1);
	return op_dot(h, o);
}

/* Axis letters of one side of an einsum; "..." stands for the axes that the letters leave over and gets the
 * codes 128 .. from the right. */
static bool letters(const char *s, size_t n, int rank, uint8_t *out, int *count)
{
	int k = 0, dots = -1, named = 0;
	for (size_t i = 0; i < n; i++) {
		if (s[i] == ' ')
			continue;
		if (n - i >= 3 && memcmp(s + i, "...", 3) == 0 && dots < 0) {
			dots = named;
			i += 2;
			continue;
		}
		if (!((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z')) || named >= IR_MAX_RANK)
			return false;
		out[named++] = (uint8_t)s[i];
	}
	if (rank < 0)
		return false;
	if (dots < 0) {
		*count = named;
		return named == rank;
	}
	int extra = rank - named;
	if (extra < 0)
		return false;
	memmove(out + dots + extra, out + dots, (size_t)(named - dots));
	for (k = 0; k < extra; k++)
		out[dots + k] = (uint8_t)(128 + extra - 1 - k);
	*count = rank;
	return true;
}

static int where(const uint8_t *p, int n, uint8_t c)
{
	for (int i = 0; i < n; i++)
		if (p[i] == c)
			return i;
	return -1;
}

/* Sum away the axes of v that are in neither other list; v's letters shrink. */
static struct err *sum_out(struct hlo *h, ir_val *v, uint8_t *l, int *n, const uint8_t *a, int na, const uint8_t *b, int nb)
{
	int64_t red[IR_MAX_RANK];
	int k = 0, left = 0;
	for (int i = 0; i < *n; i++) {
		if (where(l, i, l[i]) >= 0)
			return no_op(h, "an einsum that takes a diagonal");
		if (where(a, na, l[i]) < 0 && where(b, nb, l[i]) < 0)
			red[k++] = i;
	}
	if (!k)
		return NULL;
	ir_type s = ir_scalar(h->m, vt(h, *v)->dtype);
	*v = ir_reduce1(&h->b, RED_add, *v, ir_const_i(&h->b, s, 0), k, red);
	for (int i = 0; i < *n; i++)
		if (where(a, na, l[i]) >= 0 || where(b, nb, l[i]) >= 0)
			l[left++] = l[i];
	*n = left;
	return NULL;
}

static struct err *arrange(struct hlo *h, const struct wop *o, ir_val v, const uint8_t *have, int n, const uint8_t *want, int nw)
{
	int64_t perm[IR_MAX_RANK];
	if (n != nw)
		return bad_op(h, "its formula does not fit its result");
	for (int i = 0; i < nw; i++) {
		perm[i] = where(have, n, want[i]);
		if (perm[i] < 0 || where(want, i, want[i]) >= 0)
			return bad_op(h, "its formula does not fit its result");
	}
	return give(h, o, ir_transpose(&h->b, v, perm));
}

static const char *arrow(const char *s, size_t n)
{
	for (size_t i = 0; i + 1 < n; i++)
		if (s[i] == '-' && s[i + 1] == '>')
			return s + i;
	return NULL;
}

struct err *conv_einsum(struct hlo *h, const struct wop *o)
{
	uint32_t p[1];
	struct span s;
	ir_val in[2];
	ir_type t;
	uint8_t l[3][2 * IR_MAX_RANK];
	int n[3];
	TRY(op_props(h, o, p));
	TRY(attr_str(h, p[0], &s));
	TRY(op_ins_n(h, o, 2, in));
	TRY(op_out1(h, o, &t));
	const char *c = (const char *)h->p + s.at, *end = c + s.n, *comma = memchr(c, ',', s.n), *to = arrow(c, s.n);
	if (!comma || !to || comma > to || !letters(c, (size_t)(comma - c), vt(h, in[0])->rank, l[0], &n[0]) ||
	    !letters(comma + 1, (size_t)(to - comma - 1), vt(h, in[1])->rank, l[1], &n[1]) ||
	    !letters(to + 2, (size_t)(end - to - 2), ir_type_of(h->m, t)->rank, l[2], &n[2]))
		return bad_op(h, "formula '%.*s'", (int)MIN(s.n, 200), c);
	for (int k = 0; k < 2; k++)
		TRY(sum_out(h, &in[k], l[k], &n[k], l[!k], n[!k], l[2], n[2]));
	int64_t lb[IR_MAX_RANK], rb[IR_MAX_RANK], lc[IR_MAX_RANK], rc[IR_MAX_RANK];
	int nb = 0, nc = 0, nr = 0;
	uint8_t res[2 * IR_MAX_RANK];
	for (int i = 0; i < n[0]; i++) {
		int j = where(l[1], n[1], l[0][i]);
		if (j < 0)
			continue;
		if (vt(h, in[0])->dim[i] != vt(h, in[1])->dim[j])
			return bad_op(h, "axis %d has two extents", i);
		if (where(l[2], n[2], l[0][i]) >= 0) {
			lb[nb] = i;
			rb[nb++] = j;
			res[nr++] = l[0][i];
		} else {
			lc[nc] = i;
			rc[nc++] = j;
		}
	}
	for (int k = 0; k < 2; k++)
		for (int i = 0; i < n[k]; i++)
			if (where(l[!k], n[!k], l[k][i]) < 0)
				res[nr++] = l[k][i];
	if (nr > IR_MAX_RANK)
		return bad_op(h, "its formula has too many axes");
	if (vt(h, in[0])->dtype != vt(h, in[1])->dtype)
		return bad_op(h, "its operands have two types");
	ir_val v = ir_dot(&h->b, in[0], in[1], ir_type_of(h->m, t)->dtype, nb, lb, rb, nc, lc, rc);
	return arrange(h, o, v, res, nr, l[2], n[2]);
}

struct err *conv_unary_einsum(struct hlo *h, const struct wop *o)
{
	uint32_t p[1];
	struct span s;
	ir_val in;
	ir_type t;
	uint8_t l[2][2 * IR_MAX_RANK];
	int n[2];
	TRY(op_props(h, o, p));
	TRY(attr_str(h, p[0], &s));
	TRY(op_ins_n(h, o, 1, &in));
	TRY(op_out1(h, o, &t));
	const char *c = (const char *)h->p + s.at, *to = arrow(c, s.n);
	if (!to || !letters(c, (size_t)(to - c), vt(h, in)->rank, l[0], &n[0]) ||
	    !letters(to + 2, (size_t)(c + s.n - to - 2), ir_type_of(h->m, t)->rank, l[1], &n[1]))
		return bad_op(h, "formula '%.*s'", (int)MIN(s.n, 200), c);
	TRY(sum_out(h, &in, l[0], &n[0], l[1], n[1], NULL, 0));
	return arrange(h, o, in, l[0], n[0], l[1], n[1]);
}

/* --- shapes --------------------------------------------------------------------- */

struct err *conv_broadcast(struct hlo *h, const struct wop *o)
{
	uint32_t p[1];
	ir_val in;
	int n;
	int64_t *size;
	TRY(op_props(h, o, p));
	TRY(attr_ints(h, p[0], &n, &size));
	TRY(op_ins_n(h, o, 1, &in));
	w_begin(h);
	w_int(h, vt(h, in)->rank);
	for (int i = 0; i < vt(h, in)->rank; i++)
		w_int(h, n + i);
	return op_emit(h, o, IR_broadcast, 1, &in, (uint32_t)h->word.n, h->word.p);
}

/* operand[.., index[batch.., i..], ..] along dim: a gather with one index a slice. */
struct err *conv_torch_index_select(struct hlo *h, const struct wop *o)
{
	uint32_t p[2];
	ir_val in[2];
	int64_t batch, dim;
	TRY(op_props(h, o, p));
	TRY(attr_int(h, p[0], &batch));
	TRY(attr_int(h, p[1], &dim));
	TRY(op_ins_n(h, o, 2, in));
	const struct ir_type_info *x = vt(h, in[0]), *i = vt(h, in[1]);
	if (batch < 0 || dim < batch || dim >= x->rank || batch > i->rank)
		return bad_op(h, "dimension %lld after %lld batch dimensions", (long long)dim, (long long)batch);
	w_begin(h);
	/* result: operand dimensions before dim (the batch among them), index dimensions after the batch, the others */
	w_int(h, x->rank - 1 - batch);
	for (int64_t d = batch; d < dim; d++)
		w_int(h, d);
	for (int64_t d = dim + 1; d < x->rank; d++)
		w_int(h, d - 1 + i->rank - batch);
	w_list(h, 1, &dim);
	w_int(h, batch);
	for (int64_t d = 0; d < batch; d++)
		w_int(h, d);
	w_int(h, batch);
	for (int64_t d = 0; d < batch; d++)
		w_int(h, d);
	w_list(h, 1, &dim);
	w_int(h, i->rank);
	w_int(h, x->rank);
	for (int64_t d = 0; d < x->rank; d++)
		w_int(h, d == dim || d < batch ? MIN(1, x->dim[d]) : x->dim[d]);
	w_int(h, 0);
	return op_emit(h, o, IR_gather, 2, in, (uint32_t)h->word.n, h->word.p);
}

struct err *conv_tuple(struct hlo *h, const struct wop *o)
{
	uint32_t n;
	ir_val *in;
	TRY(op_ins(h, o, &n, &in));
	return op_bind(h, o, n, in);
}

struct err *conv_get_tuple_element(struct hlo *h, const struct wop *o)
{
	uint32_t p[1], n, skip = 0;
	ir_val *in;
	int64_t k;
	const struct wtype *w, *m;
	TRY(op_props(h, o, p));
	TRY(attr_int(h, p[0], &k));
	TRY(op_ins(h, o, &n, &in));
	TRY(type_get(h, h->vtype.p[h->ref.p[o->in]], &w));
	if (w->kind != W_TUPLE || k < 0 || k >= w->nin)
		return bad_op(h, "element %lld of what has none such", (long long)k);
	for (int64_t i = 0; i < k; i++) {
		TRY(type_get(h, w->list[i], &m));
		skip += m->leaves;
	}
	TRY(type_get(h, w->list[k], &m));
	if (skip + m->leaves > n)
		return bad_op(h, "a tuple that is too short");
	return op_bind(h, o, m->leaves, in + skip);
}

/* --- dynamic shapes that are static ------------------------------------------------ */

void const_ints(struct hlo *h, ir_val v, int *n, int64_t **out)
{
	const struct ir_fn *fn = h->b.fn;
	const struct ir_type_info *t = vt(h, v);
	const struct dtype_info *d = &dtype_info[t->dtype];
	*n = -1;
	if (t->rank > 2 || t->count > 4 * IR_MAX_RANK || (d->cls != DT_INT && d->cls != DT_UINT))
		return;
	const struct ir_op *o = value_origin(h, &fn, &v);
	while (o && (o->kind == IR_reshape || o->kind == IR_convert)) {
		v = ir_in(fn, o, 0);
		o = value_origin(h, &fn, &v);
	}
	int64_t *p = ARENA_NEW(&h->a, int64_t, t->count + 1), one;
	*out = p;
	if (!o)
		return;
	if (ir_const_int(h->m, fn, v, &one)) {
		for (int64_t i = 0; i < t->count; i++)
			p[i] = one;
		*n = (int)t->count;
		return;
	}
	const struct ir_type_info *s = ir_vtype(h->m, fn, v);
	if (o->kind == IR_constant && s->count == t->count && dtype_info[s->dtype].cls != DT_FLOAT && dtype_info[s->dtype].bytes <= 8) {
		size_t bytes, e = dtype_info[s->dtype].bytes;
		const char *b = ir_blob_data(h->m, (ir_blob)ir_attr(fn, o, AT_data), &bytes);
		if (bytes != e * (size_t)s->count)
			return;
		for (int64_t i = 0; i < s->count; i++) {
			memcpy(&p[i], b + (size_t)i * e, e);
			if (dtype_info[s->dtype].cls == DT_INT && e < 8) {
				int sh = 64 - (int)e * 8;
				p[i] = (int64_t)((uint64_t)p[i] << sh) >> sh;
			}
		}
		*n = (int)s->count;
	} else if (o->kind == IR_concatenate) {
		int at = 0;
		for (uint32_t k = 0; k < o->nin; k++) {
			const struct ir_fn *g = fn;
			ir_val w = ir_in(fn, o, k);
			if (ir_vtype(h->m, fn, w)->count != 1 || at >= t->count || !value_origin(h, &g, &w) || !ir_const_int(h->m, g, w, &one))
				return;
			p[at++] = one;
		}
		*n = at == t->count ? at : -1;
	}
}

static struct err *need_ints(struct hlo *h, ir_val v, int want, const char *what, int64_t **out)
{
	int n;
	const_ints(h, v, &n, out);
	if (n < 0)
		return no_op(h, "%s that is computed", what);
	if (n != want)
		return bad_op(h, "%s has %d elements, not %d", what, n, want);
	return NULL;
}

struct err *conv_get_dimension_size(struct hlo *h, const struct wop *o)
{
	uint32_t p[1];
	ir_val in;
	int64_t d;
	TRY(op_props(h, o, p));
	TRY(op_ins_n(h, o, 1, &in));
	TRY(attr_int(h, p[0], &d));
	if (d < 0 || d >= vt(h, in)->rank)
		return bad_op(h, "dimension %lld", (long long)d);
	return give(h, o, ir_const_i(&h->b, ir_scalar(h->m, DT_i32), vt(h, in)->dim[d]));
}

struct err *conv_set_dimension_size(struct hlo *h, const struct wop *o)
{
	uint32_t p[1];
	ir_val in[2];
	int64_t d, *size;
	TRY(op_props(h, o, p));
	TRY(op_ins_n(h, o, 2, in));
	TRY(attr_int(h, p[0], &d));
	if (d < 0 || d >= vt(h, in[0])->rank)
		return bad_op(h, "dimension %lld", (long long)d);
	TRY(need_ints(h, in[1], 1, "a size", &size));
	if (*size != vt(h, in[0])->dim[d])
		return no_op(h, "a dimension of %lld elements set to %lld", (long long)vt(h, in[0])->dim[d], (long long)*size);
	return give(h, o, in[0]);
}

struct err *conv_dynamic_pad(struct hlo *h, const struct wop *o)
{
	ir_val in[5];
	int64_t *v;
	TRY(op_ins_n(h, o, 5, in));
	int rank = vt(h, in[0])->rank;
	w_begin(h);
	for (int i = 2; i < 5; i++) {
		TRY(need_ints(h, in[i], rank, "padding", &v));
		w_list(h, rank, v);
	}
	return op_emit(h, o, IR_pad, 2, in, (uint32_t)h->word.n, h->word.p);
}

struct err *conv_dynamic_reshape(struct hlo *h, const struct wop *o)
{
	ir_val in[2];
	TRY(op_ins_n(h, o, 2, in));
	return op_emit(h, o, IR_reshape, 1, in, 0, NULL);
}

struct err *conv_dynamic_iota(struct hlo *h, const struct wop *o)
{
	uint32_t p[1];
	TRY(op_props(h, o, p));
	w_begin(h);
	TRY(w_props(h, p, "i0"));
	return op_emit(h, o, IR_iota, 0, NULL, 1, h->word.p);
}

struct err *conv_dynamic_broadcast_in_dim(struct hlo *h, const struct wop *o)
{
	uint32_t p[3];    /* dimensions, known expanding, known not expanding */
	ir_val in[2];
	TRY(op_props(h, o, p));
	TRY(op_ins_n(h, o, 2, in));
	w_begin(h);
	TRY(w_props(h, p, "l0"));
	return op_emit(h, o, IR_broadcast, 1, in, (uint32_t)h->word.n, h->word.p);
}

struct err *conv_dynamic_gather(struct hlo *h, const struct wop *o)
{
	uint32_t p[7];    /* collapsed, index dim, sorted, offset, operand batching, index map, index batching */
	ir_val in[3];
	int64_t *size;
	TRY(op_props(h, o, p));
	TRY(op_ins_n(h, o, 3, in));
	int rank = vt(h, in[0])->rank;
	TRY(need_ints(h, in[2], rank, "slice sizes", &size));
	w_begin(h);
	TRY(w_props(h, p, "l3 l0 l4 l6 l5 i1"));
	w_list(h, rank, size);
	TRY(w_props(h, p, "i2"));
	return op_emit(h, o, IR_gather, 2, in, (uint32_t)h->word.n, h->word.p);
}

struct err *conv_dynamic_conv(struct hlo *h, const struct wop *o)
{
	uint32_t p[16];    /* as of convolution without padding */
	ir_val in[3];
	int n = 0;
	int64_t *v, *pad;
	TRY(op_props(h, o, p));
	TRY(op_ins_n(h, o, 3, in));
	w_begin(h);
	TRY(attr_ints(h, p[11], &n, &v));
	TRY(w_props(h, p, "d2 d5 d9"));
	TRY(need_ints(h, in[2], 2 * n, "padding", &pad));
	TRY(w_props(h, p, "l15"));
	for (int k = 0; k < 2; k++) {
		w_int(h, n);
		for (int i = 0; i < n; i++)
			w_int(h, pad[2 * i + k]);
	}
	TRY(w_props(h, p, "l8 l13 l14 i1 i0 p12"));
	return op_emit(h, o, IR_convolution, 2, in, (uint32_t)h->word.n, h->word.p);
}

/* All known: a slice.  Stride 1 and a static result: a dynamic_slice, whose start clamps as this one's may not have to. */
struct err *conv_real_dynamic_slice(struct hlo *h, const struct wop *o)
{
	ir_val in[4];
	ir_type t;
	TRY(op_ins_n(h, o, 4, in));
	TRY(op_out1(h, o, &t));
	int rank = vt(h, in[0])->rank, n[3];
	int64_t *v[3];
	for (int i = 0; i < 3; i++)
		const_ints(h, in[1 + i], &n[i], &v[i]);
	if (n[0] == rank && n[1] == rank && n[2] == rank) {
		w_begin(h);
		for (int i = 0; i < 3; i++)
			w_list(h, rank, v[i]);
		return op_emit(h, o, IR_slice, 1, in, (uint32_t)h->word.n, h->word.p);
	}
	bool unit = n[2] == rank;
	for (int i = 0; i < rank && unit; i++)
		unit = v[2][i] == 1;
	const struct ir_type_info *s = vt(h, in[1]);
	if (!unit || s->rank != 1 || s->dim[0] != rank || ir_type_of(h->m, t)->rank != rank)
		return no_op(h, "a slice whose strides are computed");
	ir_val *a = ARENA_NEW(&h->a, ir_val, rank + 1);
	a[0] = in[0];
	for (int64_t i = 0; i < rank; i++) {
		int64_t end = i + 1, step = 1;
		a[i + 1] = ir_reshape(&h->b, ir_slice(&h->b, in[1], &i, &end, &step), 0, NULL);
	}
	w_begin(h);
	w_list(h, rank, ir_type_of(h->m, t)->dim);
	return op_emit(h, o, IR_dynamic_slice, (uint32_t)rank + 1, a, (uint32_t)h->word.n, h->word.p);
}
