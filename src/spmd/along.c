/* Ops that look along a cut dimension: windows, scans, selections, and slices at places that are not known before.
 *
 * A window takes what is around a device's part from its neighbours (halo.c) and is done on that; a scan is continued by the totals of the parts
 * before; of what each device selects, all select again; a slice is taken by whoever has a part of it. */
#include "impl.h"

#include "../eval/eval.h"

/* May reduction o, by a function, take in its initial values more than once? */
static bool takes_often(struct part *p, const struct ir_fn *fn, const struct ir_op *o)
{
	const struct ir_fn *g = ir_fn_of(p->m, (ir_fnid)ir_attr(fn, o, AT_fn));
	uint32_t n = o->nout;
	struct eval_array *in = ARENA_NEW(&p->a, struct eval_array, 2 * n), *out = ARENA_NEW(&p->a, struct eval_array, n);
	_Alignas(16) char *space = ARENA_NEW(&p->a, char, 32 * n);
	for (uint32_t k = 0; k < 2 * n; k++) {
		ir_val x = ir_in(fn, o, n + k % n);
		const void *one = ir_splat(p->m, fn, x);
		enum dtype dt = ir_vtype(p->m, fn, x)->dtype;
		if (!one)
			return false;
		in[k] = (struct eval_array){ .dtype = dt, .p = memcpy(space + 16 * k, one, dtype_info[dt].bytes), .bytes = dtype_info[dt].bytes };
	}
	struct err *e = eval_fn(p->m, g, in, out);
	bool same = !e;
	for (uint32_t k = 0; k < n && !e; k++) {
		same &= !memcmp(out[k].p, in[k].p, in[k].bytes);
		eval_array_free(&out[k]);
	}
	err_free(e);
	return same;
}

/* --- windows ------------------------------------------------------------------------------------ */

/* The window of o along the dimension that factor f cuts: of `operand` dimension d, with result extent `out`. */
struct window { int d, at; int64_t size, stride, low, base, dilation, in, out; bool inside, reversed; };

static bool window_of(struct part *p, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, int f, struct window *w)
{
	const struct ir_type_info *in = ir_vtype(p->m, fn, ir_in(fn, o, 0)), *out = ir_vtype(p->m, fn, o->out);
	int n, d = ir_axes_find(x, 0, f);
	if (d < 0 || x->dim[0][d].factor[0] != f)
		return false;
	*w = (struct window){ .d = d, .at = d, .in = in->dim[d] };
	if (o->kind == IR_reduce_window) {
		if (x->factor[f].kind != FACTOR_WINDOW)
			return false;
		w->size = ir_attrs(fn, o, AT_window, &n)[d];
		w->stride = ir_attrs(fn, o, AT_stride, &n)[d];
		w->low = ir_attrs(fn, o, AT_low, &n)[d];
		w->base = ir_attrs(fn, o, AT_base_dilation, &n)[d];
		w->dilation = ir_attrs(fn, o, AT_window_dilation, &n)[d];
		w->out = out->dim[d];
		return true;
	}
	if (o->kind != IR_convolution)
		return false;
	const int64_t *lhs = ir_attrs(fn, o, AT_lhs, &n), *rhs = ir_attrs(fn, o, AT_rhs, &n), *to = ir_attrs(fn, o, AT_out, &n);
	int k = 2;
	while (k < n && lhs[k] != d)
		k++;
	if (k == n)
		return false;
	int64_t no = out->dim[to[k]];
	w->size = ir_vtype(p->m, fn, ir_in(fn, o, 1))->dim[rhs[k]];
	w->at = k - 2;
	w->inside = x->factor[f].kind == FACTOR_SUM;
	w->stride = ir_attrs(fn, o, AT_stride, &n)[k - 2];
	w->low = ir_attrs(fn, o, AT_low, &n)[k - 2];
	w->base = ir_attrs(fn, o, AT_lhs_dilation, &n)[k - 2];
	w->dilation = ir_attrs(fn, o, AT_rhs_dilation, &n)[k - 2];
	w->reversed = ir_attrs(fn, o, AT_reversal, &n)[k - 2];
	w->out = no;
	return true;
}

/* What block r of `parts` needs of the padded operand: from start[r] on; how much. */
static int64_t needs(const struct window *w, int64_t parts, int64_t *start)
{
	int64_t out = w->inside ? w->out : w->out / parts, size = w->inside ? w->size / parts : w->size;
	for (int64_t r = 0; r < parts; r++)
		start[r] = w->inside ? (w->reversed ? w->size - (r + 1) * size : r * size) * w->dilation : r * out * w->stride;
	return (out - 1) * w->stride + (size - 1) * w->dilation + 1;
}

static struct halo *window_plan(struct part *p, const struct window *w, uint32_t mesh, struct axes l, ir_val v, ir_val fill, struct strip *s)
{
	int64_t parts = axes_size(l), *start = ARENA_NEW(&p->a, int64_t, parts), len = needs(w, parts, start), gone = 0;
	if (w->low < 0)                          /* what is cut off */
		gone = MIN(w->in, (-w->low + w->base - 1) / w->base);
	s[0] = (struct strip){ .v = fill, .fill = true };
	s[1] = (struct strip){ .v = v, .part = w->in / parts, .cut = true, .run = { w->low + gone * w->base, w->in - gone, w->base, gone, 1 } };
	return w->in == gone ? NULL : halo_plan(p, mesh, l, w->d, 2, s, start, len);
}

void along_windows(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, uint32_t mesh,
                   const struct axes *f, ir_val *y, int64_t *attr)
{
	bool conv = o->kind == IR_convolution;
	for (int i = 0; i < x->nfactor; i++) {
		struct window w;
		if (!f[i].n || !window_of(p, fn, o, x, i, &w))
			continue;
		int64_t low = 0, high = 0, base = w.base;
		for (uint32_t k = 0; k < (conv ? 1 : o->nout); k++) {
			struct strip *s = ARENA_NEW(&p->a, struct strip, 2);
			enum dtype dt = ir_vtype(p->m, b->fn, y[k])->dtype;
			enum redop r = conv ? RED_add : (enum redop)ir_attr(fn, o, AT_redop);
			ir_val fill = conv ? ir_const_i(b, ir_scalar(p->m, dt), 0) : r == RED_fn ? y[o->nout + k] : part_neutral(p, b, ir_scalar(p->m, dt), r);
			struct halo *h = window_plan(p, &w, mesh, f[i], y[k], fill, s);
			ir_val v = halo_emit_dense(p, b, h, &low, &high);
			if (!v) {
				v = halo_emit(p, b, h);
				low = high = 0;
				base = 1;
			}
			y[k] = v;
		}
		ir_attr_word(o->kind, attr, AT_low)[1 + w.at] = low;
		ir_attr_word(o->kind, attr, AT_high)[1 + w.at] = high;
		ir_attr_word(o->kind, attr, conv ? AT_lhs_dilation : AT_base_dilation)[1 + w.at] = base;
	}
}

/* --- the gradient of a pool --------------------------------------------------------------------------- */

/* Along dimension d: which windows reach into the part of block r, from window first[r] on, `windows` of them at most. */
struct pooled { int64_t size, stride, in, out, windows, *first; };

static struct pooled pooled(struct part *p, const struct ir_fn *fn, const struct ir_op *o, int d, int64_t parts)
{
	int n;
	struct pooled q = { .size = ir_attrs(fn, o, AT_window, &n)[d], .stride = ir_attrs(fn, o, AT_stride, &n)[d], .first = ARENA_NEW(&p->a, int64_t, parts),
	                    .in = ir_vtype(p->m, fn, o->out)->dim[d], .out = ir_vtype(p->m, fn, ir_in(fn, o, 1))->dim[d] };
	int64_t part = q.in / parts;
	for (int64_t r = 0; r < parts; r++) {
		int64_t reach = r * part - q.size + 1;
		q.first[r] = reach > 0 ? (reach + q.stride - 1) / q.stride : -(-reach / q.stride);
		q.windows = MAX(q.windows, ((r + 1) * part - 1) / q.stride - q.first[r] + 1);
	}
	return q;
}

/* All windows lie inside, and touch each other: what a device adds for none of its own is zero. */
static bool pools(struct part *p, const struct ir_fn *fn, const struct ir_op *o, int d)
{
	int n;
	struct pooled q = pooled(p, fn, o, d, 1);
	const struct ir_fn *add = ir_fn_of(p->m, (ir_fnid)ir_attr(fn, o, AT_scatter));
	static const char none[16];
	const void *init = ir_splat(p->m, fn, ir_in(fn, o, 2));
	return !ir_attrs(fn, o, AT_low, &n)[d] && (q.out - 1) * q.stride + q.size <= q.in && q.size >= q.stride && ir_region_redop(p->m, add->id) == RED_add &&
	       init && !memcmp(init, none, dtype_info[ir_vtype(p->m, fn, o->out)->dtype].bytes);
}

static void pool_plan(struct part *p, const struct pooled *q, uint32_t mesh, struct axes l, int d, const ir_val *in, struct strip *s, struct halo **operand, struct halo **source)
{
	int64_t parts = axes_size(l), *start = ARENA_NEW(&p->a, int64_t, parts);
	for (int64_t r = 0; r < parts; r++)
		start[r] = q->first[r] * q->stride;
	s[0] = (struct strip){ .v = in[0], .part = q->in / parts, .cut = true, .run = { 0, q->in, 1, 0, 1 } };
	s[1] = (struct strip){ .v = in[1], .part = q->out / parts, .cut = true, .run = { 0, q->out, 1, 0, 1 } };
	*operand = halo_plan(p, mesh, l, d, 1, &s[0], start, (q->windows - 1) * q->stride + q->size);
	*source = halo_plan(p, mesh, l, d, 1, &s[1], q->first, q->windows);
}

/* Each device's elements get what the windows that reach them choose them for. */
static ir_val pool(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, uint32_t mesh, const struct axes *f, const ir_val *in)
{
	uint32_t words;
	int64_t *w = ir_attr_copy(&p->a, fn, o, &words);
	ir_val y[3] = { in[0], in[1], in[2] };
	for (int d = 0; d < x->rank[0]; d++) {
		int g = x->dim[0][d].factor[0];
		if (!f[g].n || x->factor[g].kind != FACTOR_WINDOW)
			continue;
		struct pooled q = pooled(p, fn, o, d, axes_size(f[g]));
		struct strip *s = ARENA_NEW(&p->a, struct strip, 2);
		struct halo *operand, *source;
		pool_plan(p, &q, mesh, f[g], d, y, s, &operand, &source);
		y[0] = halo_emit(p, b, operand);
		y[1] = halo_emit(p, b, source);
		ir_attr_word(IR_select_and_scatter, w, AT_high)[1 + d] = 0;
	}
	ir_val v = ir_emit(b, IR_select_and_scatter, 3, y, b->fn->val.p[y[0]].type, w, words);
	for (int d = 0; d < x->rank[0]; d++) {
		int g = x->dim[0][d].factor[0];
		if (!f[g].n || x->factor[g].kind != FACTOR_WINDOW)
			continue;
		int64_t parts = axes_size(f[g]), *start = ARENA_NEW(&p->a, int64_t, parts);
		struct pooled q = pooled(p, fn, o, d, parts);
		for (int64_t r = 0; r < parts; r++)
			start[r] = r * (q.in / parts) - q.first[r] * q.stride;
		v = halo_own(p, b, v, mesh, f[g], d, start, q.in / parts);
	}
	return v;
}

/* --- scans ------------------------------------------------------------------------------------------- */

static ir_type resized(struct part *p, struct ir_b *b, ir_val v, int d, int64_t n, enum dtype dt)
{
	const struct ir_type_info *t = ir_vtype(p->m, b->fn, v);
	int64_t dim[IR_MAX_RANK];
	int rank = t->rank;
	memcpy(dim, t->dim, sizeof *dim * (size_t)rank);
	if (d >= 0)
		dim[d] = n;
	return ir_tensor(p->m, dt, rank, dim);
}

static ir_val gathered(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, int d)
{
	const struct ir_type_info *t = ir_vtype(p->m, b->fn, v);
	int64_t w[2] = { d, part_group(p, mesh, l) };
	ir_type to = resized(p, b, v, d, t->dim[d] * axes_size(l), t->dtype);
	return ir_emit_raw(b, IR_all_gather, 1, &v, 1, &to, w, 2);
}

/* Each part is scanned; the totals of the parts before it come first. */
static ir_val scan(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, uint32_t mesh, struct axes l, ir_val v)
{
	int64_t d = ir_attr(fn, o, AT_dim), back = ir_attr(fn, o, AT_reverse), lo[IR_MAX_RANK] = {0}, hi[IR_MAX_RANK], one[IR_MAX_RANK], w[3] = { d, back, ir_attr(fn, o, AT_redop) };
	enum redop r = (enum redop)w[2];
	enum dtype dt = ir_vtype(p->m, b->fn, v)->dtype, wide = part_rounds(dt, r) ? DT_f32 : dt;
	v = ir_convert(b, v, wide);
	ir_type t = b->fn->val.p[v].type;
	int rank = ir_type_of(p->m, t)->rank;
	v = ir_emit(b, IR_cumulative, 1, &v, t, w, 3);
	for (int k = 0; k < rank; k++) {
		hi[k] = ir_type_of(p->m, t)->dim[k];
		one[k] = 1;
	}
	lo[d] = back ? 0 : hi[d] - 1;
	hi[d] = lo[d] + 1;
	ir_val all = gathered(p, b, ir_slice(b, v, lo, hi, one), mesh, l, (int)d), none = part_neutral(p, b, ir_scalar(p->m, wide), r);
	ir_type at = resized(p, b, all, -1, 0, DT_i32);
	ir_val block = ir_iota(b, at, (int)d), own = ir_splat_of(b, part_offset(p, b, mesh, l, 1), at);
	ir_val before = ir_bin(b, back ? ELEM_compare_gt : ELEM_compare_lt, block, own);
	all = ir_select(b, before, all, ir_splat_of(b, none, b->fn->val.p[all].type));
	ir_val first = ir_reduce1(b, r, all, none, 1, &d);
	int64_t to[IR_MAX_RANK];
	for (int k = 0; k < rank - 1; k++)
		to[k] = k + (k >= d);
	v = ir_bin(b, redop_elem[r], back ? v : ir_broadcast(b, first, t, to), back ? ir_broadcast(b, first, t, to) : v);
	return ir_convert(b, v, dt);
}

/* --- selections ---------------------------------------------------------------------------------------- */

/* Of each device's result, all make one in the order of their parts. */
static void reduce_again(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, uint32_t mesh, struct axes l, const ir_val *in, const ir_type *t, ir_val *out)
{
	uint32_t n = o->nout, words;
	int64_t *w = ir_attr_copy(&p->a, fn, o, &words), again[4] = { 1, 0, ir_attr(fn, o, AT_redop), ir_attr(fn, o, AT_fn) };
	ir_val *y = ARENA_NEW(&p->a, ir_val, 2 * n), v = ir_emit_raw(b, IR_reduce, 2 * n, in, n, t, w, words);
	for (uint32_t k = 0; k < n; k++) {
		const struct ir_type_info *i = ir_type_of(p->m, t[k]);
		int64_t dim[IR_MAX_RANK + 1] = { 1 };
		int rank = i->rank;
		memcpy(dim + 1, i->dim, sizeof *dim * (size_t)rank);
		y[k] = gathered(p, b, ir_reshape(b, v + k, rank + 1, dim), mesh, l, 0);
		y[n + k] = in[n + k];
	}
	v = ir_emit_raw(b, IR_reduce, 2 * n, y, n, t, again, 4);
	for (uint32_t k = 0; k < n; k++)
		out[k] = v + k;
}

/* The best of each device's best.  Equal ones come in the order of the devices' parts, which is that of their places. */
static void top_again(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, uint32_t mesh, struct axes l, ir_val v, const ir_type *t, ir_val *out)
{
	const struct ir_type_info *i = ir_vtype(p->m, b->fn, v);
	int d = i->rank - 1;
	int64_t part = i->dim[d], k = ir_attr(fn, o, AT_k), few = MIN(k, part);
	ir_type own[2] = { resized(p, b, v, d, few, i->dtype), resized(p, b, v, d, few, DT_i32) };
	ir_val best = ir_emit_raw(b, IR_top_k, 1, &v, 2, own, &few, 1), first = part_offset(p, b, mesh, l, part);
	ir_val at = ir_bin(b, ELEM_add, best + 1, ir_splat_of(b, first, own[1]));
	ir_val all = gathered(p, b, best, mesh, l, d), places = gathered(p, b, at, mesh, l, d);
	best = ir_emit_raw(b, IR_top_k, 1, &all, 2, t, &k, 1);
	out[0] = best;
	int64_t w[6 * (IR_MAX_RANK + 1)], *q = w;
	*q++ = 0;                                /* offset_dims */
	*q++ = 1;
	*q++ = d;                                /* collapsed */
	for (int j = 0; j < 2; j++) {            /* obatch, ibatch */
		*q++ = d;
		for (int e = 0; e < d; e++)
			*q++ = e;
	}
	*q++ = 1;
	*q++ = d;                                /* index_map */
	*q++ = d + 1;                            /* index_dim */
	*q++ = d + 1;
	for (int e = 0; e <= d; e++)
		*q++ = 1;                            /* size */
	*q++ = 0;
	out[1] = ir_emit(b, IR_gather, 2, (ir_val[]){ places, best + 1 }, t[1], w, (uint32_t)(q - w));
}

/* Bits of a float, or of an integer: of one and zeros they are a sum, and zeros have signs. */
static enum dtype bits_of(enum dtype dt)
{
	unsigned bits = dtype_info[dt].bits;
	return dtype_info[dt].cls != DT_FLOAT || bits < 8 ? dt : bits == 8 ? DT_u8 : bits == 16 ? DT_u16 : bits == 32 ? DT_u32 : DT_u64;
}

static ir_val bits_as(struct part *p, struct ir_b *b, ir_val v, enum dtype as)
{
	return ir_vtype(p->m, b->fn, v)->dtype == as ? v : ir_emit(b, IR_bitcast, 1, &v, resized(p, b, v, -1, 0, as), NULL, 0);
}

ir_val along_one_of(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l)
{
	enum dtype dt = ir_vtype(p->m, b->fn, v)->dtype;
	if (dtype_info[dt].cls == DT_COMPLEX) {
		ir_val re = along_one_of(p, b, ir_un(b, ELEM_real, v), mesh, l), im = along_one_of(p, b, ir_un(b, ELEM_imag, v), mesh, l);
		return ir_bin(b, ELEM_complex, re, im);
	}
	v = bits_as(p, b, v, bits_of(dt));
	ir_type t = b->fn->val.p[v].type;
	int64_t w[3] = { part_group(p, mesh, l), dtype_info[dt].cls == DT_PRED ? RED_or : RED_add, 0 };
	return bits_as(p, b, ir_emit_raw(b, IR_all_reduce, 1, &v, 1, &t, w, 3), dt);
}

ir_val along_one_of_as(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, ir_shard *lie, ir_shard want)
{
	enum dtype dt = ir_vtype(p->m, b->fn, v)->dtype;
	if (!want || dtype_info[dt].cls == DT_COMPLEX || dtype_info[dt].cls == DT_PRED || dtype_info[dt].bits < 8)
		return along_one_of(p, b, v, mesh, l);
	ir_shard from = part_with_sum(p, *lie, mesh, l, ir_vtype(p->m, b->fn, v)->rank);
	v = part_finish(p, b, bits_as(p, b, v, bits_of(dt)), &from, want);
	*lie = from;
	return bits_as(p, b, v, dt);
}

/* --- slices at places that are not known --------------------------------------------------------------------- */

static ir_val number(struct part *p, struct ir_b *b, int64_t v) { return ir_const_i(b, ir_scalar(p->m, DT_i32), v); }

static ir_val clamped(struct part *p, struct ir_b *b, ir_val v, int64_t lo, int64_t hi)
{
	ir_val least = number(p, b, lo), most = number(p, b, hi);
	v = ir_bin(b, ELEM_maximum, v, least);
	return ir_bin(b, ELEM_minimum, v, most);
}

ir_val along_bounded(struct part *p, struct ir_b *b, ir_val v, int64_t n, int64_t size)
{
	enum dtype dt = ir_vtype(p->m, b->fn, v)->dtype;
	if (dtype_info[dt].bits < 32)
		return clamped(p, b, ir_convert(b, v, DT_i32), 0, n - size);
	ir_type t = ir_scalar(p->m, dt);
	ir_val least = ir_const_i(b, t, 0), most = ir_const_i(b, t, n - size);
	v = ir_bin(b, ELEM_maximum, v, least);
	return ir_convert(b, ir_bin(b, ELEM_minimum, v, most), DT_i32);
}

/* The rows of v, zeros before and behind it, from row `at` of v on, along d: n of them.  -n <= at. */
static ir_val rows(struct part *p, struct ir_b *b, ir_val v, int d, ir_val at, int64_t n)
{
	const struct ir_type_info *t = ir_vtype(p->m, b->fn, v);
	int rank = t->rank;
	enum dtype dt = t->dtype;
	int64_t have = t->dim[d], w[3 * (IR_MAX_RANK + 1)] = {0};
	for (int k = 0; k < 3; k++)
		w[k * (rank + 1)] = rank;
	w[1 + d] = w[rank + 2 + d] = n;
	ir_type wide = resized(p, b, v, d, have + 2 * n, dt), to = resized(p, b, v, d, n, dt);
	ir_val zero = ir_const_i(b, ir_scalar(p->m, dt), 0);
	v = ir_emit(b, IR_pad, 2, (ir_val[]){ v, zero }, wide, w, 3 * ((uint32_t)rank + 1));
	ir_val in[IR_MAX_RANK + 1] = { v }, none = number(p, b, 0), n_ = number(p, b, n);
	at = clamped(p, b, ir_bin(b, ELEM_add, at, n_), 0, have + n);
	w[0] = rank;
	memcpy(w + 1, ir_type_of(p->m, to)->dim, sizeof *w * (size_t)rank);
	for (int k = 0; k < rank; k++)
		in[k + 1] = k == d ? at : none;
	return ir_emit(b, IR_dynamic_slice, (uint32_t)rank + 1, in, to, w, (uint32_t)rank + 1);
}

/* Along dimension d of the operand: which rows of the device's part there are for the slice. */
struct reach { int d; int64_t part, size, window; ir_val first, off; };    /* first: of the window, in the part; off: of the slice, in the window */

static int reaches(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, uint32_t mesh, const struct axes *f,
                   const ir_val *in, const int64_t *size, int before, struct reach *r)
{
	int n = 0;
	for (int d = 0; d < x->rank[0]; d++) {
		int g = x->dim[0][d].factor[0];
		int64_t all = ir_vtype(p->m, fn, ir_in(fn, o, 0))->dim[d];
		if (!f[g].n || size[d] == all)
			continue;
		int64_t part = all / axes_size(f[g]);
		struct reach q = { .d = d, .part = part, .size = size[d], .window = MIN(part, size[d]) };
		ir_val at = along_bounded(p, b, in[before + d], all, size[d]), own = part_offset(p, b, mesh, f[g], part);
		at = ir_bin(b, ELEM_subtract, at, own);
		q.first = clamped(p, b, at, 0, part - q.window);
		q.off = ir_bin(b, ELEM_subtract, at, q.first);
		r[n++] = q;
	}
	return n;
}

/* The window of each device's part in which its rows of the slice are. */
static ir_val windowed(struct part *p, struct ir_b *b, ir_val v, const ir_val *start, const int64_t *size, const struct reach *r, int n, ir_val *at)
{
	int rank = ir_vtype(p->m, b->fn, v)->rank;
	int64_t w[IR_MAX_RANK + 1] = { rank };
	ir_val in[IR_MAX_RANK + 1] = { v };
	for (int d = 0; d < rank; d++) {
		enum dtype dt = ir_vtype(p->m, b->fn, start[d])->dtype;
		w[1 + d] = MIN(ir_vtype(p->m, b->fn, v)->dim[d], size[d]);
		at[d] = dtype_info[dt].bits < 32 ? ir_convert(b, start[d], DT_i32) : start[d];
	}
	enum dtype dt = rank ? ir_vtype(p->m, b->fn, at[0])->dtype : DT_i32;
	for (int i = 0; i < n; i++) {
		w[1 + r[i].d] = r[i].window;
		at[r[i].d] = ir_convert(b, r[i].first, dt);
	}
	memcpy(in + 1, at, sizeof *in * (size_t)rank);
	ir_type to = ir_tensor(p->m, ir_vtype(p->m, b->fn, v)->dtype, rank, w + 1);
	return ir_emit(b, IR_dynamic_slice, (uint32_t)rank + 1, in, to, w, (uint32_t)rank + 1);
}

static ir_val slice_of_one(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, uint32_t mesh, const struct axes *f, const ir_val *in)
{
	int n;
	const int64_t *size = ir_attrs(fn, o, AT_size, &n);
	struct reach r[IR_MAX_RANK];
	ir_val at[IR_MAX_RANK];
	int k = reaches(p, b, fn, o, x, mesh, f, in, size, 1, r);
	ir_val v = windowed(p, b, in[0], in + 1, size, r, k, at);
	for (int i = 0; i < k; i++)
		v = rows(p, b, v, r[i].d, r[i].off, r[i].size);
	return along_one_of(p, b, v, mesh, part_sums(p, x, 0, f));
}

/* Each device writes what falls into its part, over what is there. */
static ir_val update_own(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, uint32_t mesh, const struct axes *f, const ir_val *in)
{
	const struct ir_type_info *whole = ir_vtype(p->m, fn, ir_in(fn, o, 1));
	int64_t size[IR_MAX_RANK];
	struct reach r[IR_MAX_RANK];
	ir_val at[IR_MAX_RANK];
	memcpy(size, whole->dim, sizeof *size * whole->rank);
	int rank = whole->rank, k = reaches(p, b, fn, o, x, mesh, f, in, size, 2, r);
	ir_val old = windowed(p, b, in[0], in + 2, size, r, k, at), new = in[1], here = 0;
	ir_type at_t = resized(p, b, old, -1, 0, DT_i32);
	for (int i = 0; i < k; i++) {
		ir_val none = number(p, b, 0);
		new = rows(p, b, new, r[i].d, ir_bin(b, ELEM_subtract, none, r[i].off), r[i].window);
		ir_val place = ir_iota(b, at_t, r[i].d), off = ir_splat_of(b, r[i].off, at_t), end = ir_const_i(b, at_t, r[i].size), least = ir_const_i(b, at_t, 0);
		place = ir_bin(b, ELEM_subtract, place, off);
		ir_val from = ir_bin(b, ELEM_compare_ge, place, least), to = ir_bin(b, ELEM_compare_lt, place, end), in_it = ir_bin(b, ELEM_and, from, to);
		here = here ? ir_bin(b, ELEM_and, here, in_it) : in_it;
	}
	ir_val y[IR_MAX_RANK + 2] = { in[0], ir_select(b, here, new, old) };
	memcpy(y + 2, at, sizeof *y * (size_t)rank);
	return ir_emit(b, IR_dynamic_update_slice, (uint32_t)rank + 2, y, b->fn->val.p[in[0]].type, NULL, 0);
}

/* v behind itself, from element `start` on along d, where all of it is here. */
static ir_val round_here(struct part *p, struct ir_b *b, ir_val v, int d, ir_val start)
{
	ir_type t = b->fn->val.p[v].type;
	ir_val in[IR_MAX_RANK + 1], none = number(p, b, 0);
	int rank = ir_type_of(p->m, t)->rank;
	int64_t w[IR_MAX_RANK + 1] = { rank }, at = d;
	memcpy(w + 1, ir_type_of(p->m, t)->dim, sizeof *w * (size_t)rank);
	in[0] = ir_emit(b, IR_concatenate, 2, (ir_val[]){ v, v }, resized(p, b, v, d, 2 * w[1 + d], ir_type_of(p->m, t)->dtype), &at, 1);
	for (int k = 0; k < rank; k++)
		in[k + 1] = k == d ? start : none;
	return ir_emit(b, IR_dynamic_slice, (uint32_t)rank + 1, in, t, w, (uint32_t)rank + 1);
}

/* From element `start` on along d, v behind itself: as much as v has, of which each device has its part, cut by l.  It says which rows of the others'
 * parts it takes: of each there are two, as many elements from each other as v has. */
ir_val along_turned(struct part *p, struct ir_b *b, ir_val v, int d, uint32_t mesh, struct axes l, ir_val start)
{
	int64_t part = ir_vtype(p->m, b->fn, v)->dim[d], parts = axes_size(l), n = 2 * parts, column[2] = { n, 1 }, all[2] = { n, SLICE_NUMBERS }, order[IR_MAX_RANK], back[IR_MAX_RANK];
	int64_t side = 1, group;
	int rank = ir_vtype(p->m, b->fn, v)->rank;
	start = along_bounded(p, b, start, n * part, parts * part);
	if (!l.n)
		return round_here(p, b, v, d, start);
	ir_type many = ir_tensor(p->m, DT_i32, 1, &n);
	int32_t *place = ARENA_NEW(&p->a, int32_t, n);
	for (int64_t i = 0; i < n; i++)
		place[i] = (int32_t)((i / 2 + i % 2 * parts) * part);
	ir_val own = part_offset(p, b, mesh, l, part), at = ir_const(b, many, place, sizeof *place * (size_t)n), len = ir_const_i(b, many, part), none = ir_const_i(b, many, 0);
	ir_val first = ir_splat_of(b, ir_bin(b, ELEM_add, start, own), many), from = ir_bin(b, ELEM_maximum, first, at);
	ir_val end = ir_bin(b, ELEM_add, first, len), stop = ir_bin(b, ELEM_add, at, len), last = ir_bin(b, ELEM_minimum, end, stop);
	ir_val x[SLICE_NUMBERS];
	x[SLICE_FROM] = ir_bin(b, ELEM_subtract, from, at);
	x[SLICE_TO] = ir_bin(b, ELEM_subtract, from, first);
	x[SLICE_ROWS] = ir_bin(b, ELEM_maximum, ir_bin(b, ELEM_subtract, last, from), none);
	for (int i = 0; i < SLICE_NUMBERS; i++)
		x[i] = ir_reshape(b, ir_convert(b, x[i], DT_i64), 2, column);
	ir_val slices = ir_emit(b, IR_concatenate, SLICE_NUMBERS, x, ir_tensor(p->m, DT_i64, 2, all), &side, 1);
	for (int k = 0; k < rank; k++) {
		order[k] = k ? k - (k <= d) : d;
		back[order[k]] = k;
	}
	v = d ? ir_transpose(b, v, order) : v;
	ir_type t = b->fn->val.p[v].type;
	group = part_group(p, mesh, l);
	v = ir_emit_raw(b, IR_ragged_all_to_all, 3, (ir_val[]){ v, ir_const_i(b, t, 0), slices }, 1, &t, &group, 1);
	return d ? ir_transpose(b, v, back) : v;
}

/* --- which, at which price --------------------------------------------------------------------------------------- */

struct axes part_sums(struct part *p, const struct ir_axes *x, int k, const struct axes *f)
{
	struct axes sums = {0};
	for (int i = 0; i < x->nfactor; i++)
		if (x->factor[i].kind == FACTOR_SUM && ir_axes_find(x, x->nin + k, i) < 0)
			sums = axes_join(&p->a, sums, f[i]);
	return sums;
}

struct ir_axes *part_rule(struct part *p, const struct ir_fn *fn, const struct ir_op *o)
{
	struct ir_axes *x = ir_axes_of(&p->a, p->m, fn, o);
	for (int d = 0; o->kind == IR_select_and_scatter && d < x->rank[0]; d++)
		if (x->factor[x->dim[0][d].factor[0]].kind == FACTOR_WINDOW)
			x->dim[1][d] = x->dim[0][d];
	if (o->kind != IR_top_k && o->kind != IR_dynamic_slice)
		return x;
	struct ir_factor *f = ARENA_NEW(&p->a, struct ir_factor, x->nfactor + x->rank[0] + 1);
	memcpy(f, x->factor, sizeof *f * (size_t)x->nfactor);
	x->factor = f;
	for (int d = 0; d < x->rank[0]; d++) {
		int g = x->dim[0][d].n ? x->dim[0][d].factor[0] : -1;
		if (g < 0 || f[g].kind != FACTOR_WHOLE)
			continue;
		f[g].kind = FACTOR_SUM;
		f[x->nfactor] = (struct ir_factor){ .size = ir_vtype(p->m, fn, o->out)->dim[d], .kind = FACTOR_WHOLE };
		int *one = arena_copy(&p->a, &x->nfactor, sizeof *one);
		for (int t = x->nin; t < x->nin + x->nout; t++)
			x->dim[t][d] = (struct ir_axes_dim){ 1, one };
		x->nfactor++;
	}
	return x;
}

static bool counted(struct part *p, const struct ir_fn *fn, const struct ir_op *o)
{
	const struct ir_type_info *t = ir_vtype(p->m, fn, ir_in(fn, o, 0));
	for (int d = 0; d < t->rank; d++)
		if (t->dim[d] > INT32_MAX / 4)
			return false;
	return t->count > 0;
}

bool along_can(struct part *p, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, int f)
{
	enum ir_factor_kind kind = (enum ir_factor_kind)x->factor[f].kind;
	struct window w;
	int d = o->nin ? ir_axes_find(x, 0, f) : -1;
	if (d < 0 || !counted(p, fn, o))
		return false;
	switch ((enum ir_kind)o->kind) {
	case IR_reduce_window:                   /* what is outside a part of a window is filled with its beginning */
		return window_of(p, fn, o, x, f, &w) && (ir_attr(fn, o, AT_redop) != RED_fn || takes_often(p, fn, o));
	case IR_convolution:
		return window_of(p, fn, o, x, f, &w);
	case IR_select_and_scatter:
		return kind == FACTOR_WINDOW && pools(p, fn, o, d);
	case IR_cumulative:
		return kind == FACTOR_WINDOW && redop_elem[ir_attr(fn, o, AT_redop)] != ELEM_COUNT;
	case IR_reduce:
		return kind == FACTOR_SUM && ir_attr(fn, o, AT_redop) == RED_fn && takes_often(p, fn, o);
	case IR_top_k: case IR_dynamic_slice:
		return kind == FACTOR_SUM;
	case IR_dynamic_update_slice:
		return ir_axes_find(x, 1, f) < 0 && ir_vtype(p->m, fn, ir_in(fn, o, 1))->count;
	default:
		return false;
	}
}

bool along_near(const struct ir_op *o) { return o->kind != IR_top_k; }

double along_bytes(struct part *p, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, const struct axes *f)
{
	double bytes = 0;
	for (int i = 0; i < x->nfactor; i++) {
		struct window w;
		if (!f[i].n || !along_can(p, fn, o, x, i))
			continue;
		const struct ir_type_info *t = ir_vtype(p->m, fn, ir_in(fn, o, 0));
		double parts = (double)axes_size(f[i]), row = (double)t->bytes;
		for (int d = 0; d < t->rank; d++)
			for (int k = 0; k < x->dim[0][d].n; k++)
				row /= (double)axes_size(f[x->dim[0][d].factor[k]]);
		if (window_of(p, fn, o, x, i, &w)) {
			struct strip s[2];
			struct halo *h = window_plan(p, &w, 0, f[i], 1, 2, s);
			if (!h || halo_fetched(h) >= halo_gathered(h))
				return -1;
			bytes += row / ((double)w.in / parts) * (double)halo_fetched(h);
		} else if (o->kind == IR_select_and_scatter) {
			int d = ir_axes_find(x, 0, i);
			struct pooled q = pooled(p, fn, o, d, axes_size(f[i]));
			struct strip s[2];
			struct halo *operand, *source;
			pool_plan(p, &q, 0, f[i], d, (ir_val[]){ 1, 2 }, s, &operand, &source);
			if (!operand || !source || halo_fetched(operand) > halo_gathered(operand) || halo_fetched(source) > halo_gathered(source))
				return -1;
			bytes += row / ((double)q.in / parts) * (double)(halo_fetched(operand) + halo_fetched(source));
		} else if (o->kind == IR_top_k) {
			double k = (double)ir_attr(fn, o, AT_k), part = (double)t->dim[t->rank - 1] / parts;
			bytes += row * (parts - 1) * MIN(1, k / part) * 2;
		}
	}
	return bytes;
}

bool along_emit(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, uint32_t mesh,
                const struct axes *f, const ir_val *in, const ir_type *t, ir_val *out)
{
	struct axes l = {0};
	for (int i = 0; i < x->nfactor; i++)
		if (f[i].n && along_can(p, fn, o, x, i))
			l = axes_join(&p->a, l, f[i]);
	if (!l.n)
		return false;
	switch ((enum ir_kind)o->kind) {
	case IR_select_and_scatter:
		out[0] = pool(p, b, fn, o, x, mesh, f, in);
		return true;
	case IR_cumulative:
		out[0] = scan(p, b, fn, o, mesh, l, in[0]);
		return true;
	case IR_reduce:
		reduce_again(p, b, fn, o, mesh, l, in, t, out);
		return true;
	case IR_top_k:
		top_again(p, b, fn, o, mesh, l, in[0], t, out);
		return true;
	case IR_dynamic_slice:
		out[0] = slice_of_one(p, b, fn, o, x, mesh, f, in);
		return true;
	case IR_dynamic_update_slice:
		out[0] = update_own(p, b, fn, o, x, mesh, f, in);
		return true;
	default:
		return false;
	}
}
