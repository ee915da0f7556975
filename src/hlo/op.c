/* The table of operations on the wire, and those that are one operation of ir. */
#include "wire.h"

#include <pthread.h>
#include <stdlib.h>

/* Complex atan2(y, x) = -i log((x + i y) / sqrt(x^2 + y^2)). */
static struct err *complex_atan2(struct hlo *h, const struct wop *o, const ir_val *in)
{
	struct ir_b *b = &h->b;
	ir_type t = b->fn->val.p[in[0]].type;
	bool wide = ir_type_of(h->m, t)->dtype == DT_c128;
	ir_val unit[2];
	if (b->fn->val.p[in[1]].type != t)
		return bad_op(h, "its operands have two types");
	for (int k = 0; k < 2; k++) {
		const float f[2] = { 0, k ? -1 : 1 };
		const double d[2] = { 0, k ? -1 : 1 };
		unit[k] = ir_const(b, t, wide ? (const void *)d : f, wide ? sizeof d : sizeof f);
	}
	ir_val num = ir_bin(b, ELEM_add, in[1], ir_bin(b, ELEM_multiply, unit[0], in[0]));
	ir_val xx = ir_bin(b, ELEM_multiply, in[1], in[1]), yy = ir_bin(b, ELEM_multiply, in[0], in[0]);
	ir_val q = ir_bin(b, ELEM_divide, num, ir_un(b, ELEM_sqrt, ir_bin(b, ELEM_add, xx, yy)));
	ir_val v[2] = { ir_un(b, ELEM_log, q), unit[1] };
	return op_emit(h, o, IR_multiply, 2, v, 0, NULL);
}

static struct err *conv_elem(struct hlo *h, const struct wop *o)
{
	ir_val in[3];
	enum ir_kind k = h->opname[o->name].row->kind;
	TRY(op_ins_n(h, o, o->nin, in));
	if (k == IR_select || k == IR_clamp) {    /* the predicate, or the bounds, may be scalars */
		ir_type t;
		TRY(op_out1(h, o, &t));
		for (int i = 0; i < 3; i += k == IR_select ? 3 : 2) {
			const struct ir_type_info *x = ir_vtype(h->m, h->b.fn, in[i]), *r = ir_type_of(h->m, t);
			if (x->rank || !r->rank || x->dtype == DT_token)
				continue;
			enum dtype dt = x->dtype;
			int64_t dim[IR_MAX_RANK];
			int rank = r->rank;
			memcpy(dim, r->dim, sizeof *dim * (size_t)rank);
			in[i] = ir_splat_of(&h->b, in[i], ir_tensor(h->m, dt, rank, dim));
		}
	}
	if (k == IR_atan2 && dtype_info[ir_vtype(h->m, h->b.fn, in[0])->dtype].cls == DT_COMPLEX)
		return complex_atan2(h, o, in);
	if (k == IR_clamp && dtype_info[ir_vtype(h->m, h->b.fn, in[1])->dtype].cls == DT_COMPLEX) {
		if (h->b.fn->val.p[in[0]].type != h->b.fn->val.p[in[1]].type)
			return bad_op(h, "its bound has another type");
		in[1] = ir_bin(&h->b, ELEM_maximum, in[1], in[0]);
		return op_emit(h, o, IR_minimum, 2, in + 1, 0, NULL);
	}
	return op_emit(h, o, k, o->nin, in, 0, NULL);
}

/* The operands, and the properties in the row's order. */
static struct err *conv_words(struct hlo *h, const struct wop *o)
{
	uint32_t p[17];
	w_begin(h);
	TRY(op_props(h, o, p));
	TRY(w_props(h, p, h->opname[o->name].row->words));
	return op_emit_words(h, o, h->opname[o->name].row->kind);
}

static struct err *conv_constant(struct hlo *h, const struct wop *o)
{
	uint32_t p[1];
	ir_type t, r;
	const uint8_t *data;
	size_t n;
	TRY(op_props(h, o, p));
	TRY(attr_tensor(h, p[0], &t, &data, &n));
	TRY(op_out1(h, o, &r));
	if (t != r)
		return bad_op(h, "its value has another type than it says");
	int64_t w = h->blob[p[0]];
	if (w)
		return op_emit(h, o, IR_constant, 0, NULL, 1, &w);
	const struct ir_type_info *i = ir_type_of(h->m, t);
	const struct dtype_info *d = &dtype_info[i->dtype];
	uint8_t *fresh = NULL;
	if (d->cls == DT_PRED) {
		bool splat = n == 1 && (*data == 0 || *data == 0xff || i->count > 8);
		size_t k = splat ? 1 : (size_t)i->count;
		fresh = mem_alloc(k);
		for (size_t j = 0; j < k; j++)
			fresh[j] = splat ? *data != 0 : data[j / 8] >> (j % 8) & 1;
		n = k;
	} else if (d->bits < 8) {
		fresh = mem_alloc(n);
		int sh = 8 - d->bits;
		for (size_t j = 0; j < n; j++)
			fresh[j] = d->cls == DT_INT ? (uint8_t)((int8_t)(uint8_t)(data[j] << sh) >> sh) : (uint8_t)(data[j] << sh) >> sh;
	}
	h->blob[p[0]] = ir_blob_add(h->m, fresh ? fresh : data, n);
	w = h->blob[p[0]];
	free(fresh);
	return op_emit(h, o, IR_constant, 0, NULL, 1, &w);
}

static struct err *conv_compare(struct hlo *h, const struct wop *o)
{
	uint32_t p[2];
	ir_val in[2];
	int64_t type, dir;
	TRY(op_props(h, o, p));
	TRY(attr_int(h, p[0], &type));
	TRY(attr_int(h, p[1], &dir));
	TRY(op_ins_n(h, o, 2, in));
	if (dir > 5 || type > 4)
		return bad_op(h, "comparison %lld of kind %lld", (long long)dir, (long long)type);
	return op_emit(h, o, (enum ir_kind)((type == 2 ? IR_total_eq : IR_compare_eq) + dir), 2, in, 0, NULL);
}

/* v seen as dt: elements of another width get or lose a last dimension. */
static struct err *bits_as(struct hlo *h, ir_val *v, enum dtype dt)
{
	const struct ir_type_info *t = ir_vtype(h->m, h->b.fn, *v);
	int from = dtype_info[t->dtype].bits, to = dtype_info[dt].bits, rank = t->rank;
	int64_t dim[IR_MAX_RANK + 1];
	ir_type out;
	if ((enum dtype)t->dtype == dt)
		return NULL;
	memcpy(dim, t->dim, sizeof *dim * (size_t)rank);
	if (from > to)
		dim[rank++] = from / to;
	else if (from < to)
		rank--;
	if (rank < 0 || rank > IR_MAX_RANK)
		return bad_op(h, "a result of rank %d", rank);
	TRY(type_make(h, h->cur->at, dt, rank, dim, &out));
	return op_emit_t(h, from == to ? IR_bitcast : IR_bitcast_convert, 1, v, 1, &out, 0, NULL, v);
}

/* Elements of less than a byte go by way of bytes: what lies in memory is one in a byte. */
static struct err *conv_bitcast(struct hlo *h, const struct wop *o)
{
	ir_val v;
	ir_type t;
	TRY(op_ins_n(h, o, 1, &v));
	TRY(op_out1(h, o, &t));
	const struct ir_type_info x = *ir_vtype(h->m, h->b.fn, v), r = *ir_type_of(h->m, t);
	int from = dtype_info[x.dtype].bits, to = dtype_info[r.dtype].bits;
	if (from == to || (from >= 8 && to >= 8) || !from || !to || 8 % MIN(from, to) || MAX(from, to) % 8)
		return op_emit(h, o, from == to ? IR_bitcast : IR_bitcast_convert, 1, &v, 0, NULL);
	int64_t dim[IR_MAX_RANK];
	if (from < to && to > 8) {           /* [.., n] -> [.., n / parts, parts] */
		int64_t parts = 8 / from;
		if (!x.rank || x.rank >= IR_MAX_RANK || x.dim[x.rank - 1] % parts)
			return bad_op(h, "a last dimension that makes no element");
		memcpy(dim, x.dim, sizeof *dim * (size_t)x.rank);
		dim[x.rank - 1] /= parts;
		dim[x.rank] = parts;
		v = ir_reshape(&h->b, v, x.rank + 1, dim);
	}
	TRY(bits_as(h, &v, DT_u8));
	TRY(bits_as(h, &v, r.dtype));
	memcpy(dim, r.dim, sizeof *dim * (size_t)r.rank);
	if (ir_vtype(h->m, h->b.fn, v)->count != r.count)
		return bad_op(h, "its result has other extents");
	v = ir_reshape(&h->b, v, r.rank, dim);
	return op_bind(h, o, 1, &v);
}

/* Does f(old.., update..) give the updates? */
static bool overwrites(const struct hlo *h, ir_fnid f, uint32_t n)
{
	const struct ir_fn *fn = ir_fn_of(h->m, f);
	if (fn->nparam != 2 * n || fn->result.n != n)
		return false;
	for (uint32_t i = 0; i < n; i++)
		if (fn->result.p[i] != n + 1 + i)
			return false;
	return true;
}

static struct err *conv_scatter(struct hlo *h, const struct wop *o)
{
	uint32_t p[8], n, k;    /* index dim, sorted, operand batching, inserted, to operand, index batching, unique, window */
	enum redop r;
	ir_fnid f;
	ir_val *in;
	ir_type *t;
	TRY(op_ins(h, o, &n, &in));
	TRY(op_outs(h, o, &k, &t));
	if (n != 2 * k + 1)
		return bad_op(h, "it has %u operands and %u results", n, k);
	for (uint32_t i = 0; i < k; i++) {
		op_widen(h, &in[i], t[i]);
		op_widen(h, &in[k + 1 + i], t[i]);
	}
	TRY(region_reducer(h, o, 0, "scatter", &r, &f));
	if (f && overwrites(h, f, k))
		f = 0;
	w_begin(h);
	TRY(op_props(h, o, p));
	TRY(w_props(h, p, "l7 l3 l2 l5 l4 i0 i1 i6"));
	w_int(h, r);
	w_int(h, f);
	return op_emit(h, o, IR_scatter, n, in, (uint32_t)h->word.n, h->word.p);
}

/* props: as w_props has them. */
static struct err *reduction(struct hlo *h, const struct wop *o, enum ir_kind kind, const char *props)
{
	uint32_t p[5], n;
	enum redop r;
	ir_fnid f;
	ir_val *in;
	TRY(region_reducer(h, o, 0, "reduce", &r, &f));
	TRY(op_ins_widened(h, o, 2, &n, &in));
	w_begin(h);
	TRY(op_props(h, o, p));
	TRY(w_props(h, p, props));
	w_int(h, r);
	w_int(h, f);
	return op_emit(h, o, kind, n, in, (uint32_t)h->word.n, h->word.p);
}

static struct err *conv_reduce(struct hlo *h, const struct wop *o) { return reduction(h, o, IR_reduce, "l0"); }

/* Of base dilations, padding, window dilations, window, strides. */
static struct err *conv_reduce_window(struct hlo *h, const struct wop *o) { return reduction(h, o, IR_reduce_window, "l3 l4 l0 l2 c1"); }

static struct err *conv_select_and_scatter(struct hlo *h, const struct wop *o)
{
	uint32_t p[3], n, *cap;    /* padding, window, strides */
	ir_fnid f[2];
	TRY(op_captures(h, o, &n, &cap));
	TRY(region_fn(h, o->region, "select", false, n, cap, true, &f[0]));
	TRY(region_fn(h, o->region + 1, "scatter", false, n, cap, true, &f[1]));
	w_begin(h);
	TRY(op_props(h, o, p));
	TRY(w_props(h, p, "l1 l2 c0"));
	w_int(h, f[0]);
	w_int(h, f[1]);
	return op_emit_words(h, o, h->opname[o->name].row->kind);
}

static struct err *conv_sort(struct hlo *h, const struct wop *o)
{
	uint32_t p[2], n, *cap;
	ir_fnid f;
	TRY(op_captures(h, o, &n, &cap));
	TRY(region_fn(h, o->region, "before", false, n, cap, true, &f));
	ir_val *in;
	int64_t dim;
	TRY(op_ins(h, o, &n, &in));
	TRY(op_props(h, o, p));
	TRY(attr_int(h, p[0], &dim));
	w_begin(h);
	w_int(h, dim < 0 && n ? dim + ir_vtype(h->m, h->b.fn, in[0])->rank : dim);    /* may count from the end */
	TRY(w_attr_int(h, p[1]));
	w_int(h, f);
	return op_emit(h, o, IR_sort, n, in, (uint32_t)h->word.n, h->word.p);
}

static struct err *dot_type(struct hlo *h, uint32_t attr, int *dt)
{
	uint32_t type;
	const struct wtype *w;
	TRY(attr_type(h, attr, &type));
	TRY(type_get(h, type, &w));
	*dt = w->kind == W_ELEMENT || w->kind == W_TF32 ? w->dtype : DT_token;
	return NULL;
}

static struct err *conv_dot_general(struct hlo *h, const struct wop *o)
{
	uint32_t p[12];
	int dt[3];
	w_begin(h);
	TRY(op_props(h, o, p));
	TRY(w_props(h, p, "l2 l8 l4 l10 p7"));
	TRY(dot_type(h, p[0], &dt[0]));
	TRY(dot_type(h, p[5], &dt[1]));
	TRY(dot_type(h, p[11], &dt[2]));
	for (int i = 0; i < 3; i++)
		w_int(h, dt[i]);
	if (dt[0] == DT_token)
		w_int(h, 1);
	else
		TRY(w_attr_int(h, p[6]));
	return op_dot(h, o);
}

static struct err *conv_rng(struct hlo *h, const struct wop *o)
{
	uint32_t p[1];
	ir_val in[3];    /* a, b, shape: the result's type says it */
	w_begin(h);
	TRY(op_props(h, o, p));
	TRY(op_ins_n(h, o, 3, in));
	TRY(w_attr_int(h, p[0]));
	return op_emit(h, o, IR_rng, 2, in, 1, h->word.p);
}

/* --- control flow ------------------------------------------------------- */

static struct err *conv_while(struct hlo *h, const struct wop *o)
{
	uint32_t ncap, *cap, n;
	ir_fnid cond, body;
	ir_val *in;
	TRY(op_captures(h, o, &ncap, &cap));
	TRY(op_ins(h, o, &n, &in));
	TRY(region_fn(h, o->region, "cond", false, ncap, cap, false, &cond));
	TRY(region_fn(h, o->region + 1, "body", true, ncap, cap, false, &body));
	ir_val *all = ARENA_NEW(&h->a, ir_val, n + ncap);
	for (uint32_t i = 0; i < n; i++)
		all[i] = in[i];
	uint32_t whole = n + region_operands(h, ncap, cap, all + n);
	w_begin(h);
	w_int(h, -1);
	w_int(h, cond);
	w_int(h, body);
	w_int(h, whole);
	for (uint32_t i = 0; i < whole; i++)
		w_int(h, i < n ? ROLE_CARRY : ROLE_CONST);
	return op_emit(h, o, IR_loop, whole, all, (uint32_t)h->word.n, h->word.p);
}

static struct err *branches(struct hlo *h, const struct wop *o, ir_val index, bool swap)
{
	uint32_t ncap, *cap;
	if (o->nregion < 1)
		return bad_op(h, "it has no branches");
	TRY(op_captures(h, o, &ncap, &cap));
	int64_t *f = ARENA_NEW(&h->a, int64_t, o->nregion);
	for (uint32_t i = 0; i < o->nregion; i++) {
		ir_fnid id;
		TRY(region_fn(h, o->region + (swap ? o->nregion - 1 - i : i), "branch", false, ncap, cap, false, &id));
		f[i] = id;
	}
	ir_val *in = ARENA_NEW(&h->a, ir_val, ncap + 1);
	in[0] = index;
	uint32_t n = 1 + region_operands(h, ncap, cap, in + 1);
	w_begin(h);
	w_list(h, (int)o->nregion, f);
	return op_emit(h, o, IR_case, n, in, (uint32_t)h->word.n, h->word.p);
}

static struct err *conv_case(struct hlo *h, const struct wop *o)
{
	ir_val index;
	TRY(op_ins_n(h, o, 1, &index));
	return branches(h, o, index, false);
}

static struct err *conv_if(struct hlo *h, const struct wop *o)
{
	ir_val pred;
	TRY(op_ins_n(h, o, 1, &pred));
	const struct ir_type_info *t = ir_vtype(h->m, h->b.fn, pred);
	if (t->dtype != DT_pred || t->rank)
		return bad_op(h, "its condition is not a boolean");
	return branches(h, o, ir_convert(&h->b, pred, DT_i32), true);    /* branch 0 is the false one */
}

/* --- talk with the host -------------------------------------------------- */

static struct err *conv_feed(struct hlo *h, const struct wop *o)
{
	uint32_t p[2];
	struct span s;
	TRY(op_props(h, o, p));
	TRY(attr_str(h, p[0], &s));
	w_begin(h);
	w_int(h, span_intern(h, s));
	return op_emit_words(h, o, h->opname[o->name].row->kind);
}

static struct err *conv_refuse(struct hlo *h, const struct wop *o)
{
	return no_op(h, "not implemented");
}

/* --- the table ----------------------------------------------------------- */

/* name with the dialect's letter, function, kind, properties, operands, results, regions, words of conv_words */
static const struct op_row rows[] = {
	{ "b.module", NULL, ROW_MODULE, 0, 0, 0, 1 },
	{ "b.unrealized_conversion_cast", op_same, 0, 0, -1, -1, 0 },
	{ "v.func", NULL, ROW_FUNC, 5, 0, 0, 1 },
	{ "v.call", NULL, ROW_CALL, 1, -1, -1, 0 },
	{ "v.composite", NULL, ROW_COMPOSITE, 4, -1, -1, -1 },
	{ "v.return", NULL, ROW_RETURN, 0, -1, 0, 0 },
	{ "s.return", NULL, ROW_RETURN, 0, -1, 0, 0 },
	{ "s.mesh", NULL, ROW_MESH, 2, 0, 0, 0 },
	{ "s.sharding_constraint", conv_sharding_constraint, 0, 1, 1, 1, 0 },
	{ "s.reshard", conv_sharding_constraint, 0, 1, 1, 1, 0 },
	{ "s.propagation_barrier", op_same, 0, 1, 1, 1, 0 },
	{ "s.sharding_group", conv_sharding_group, 0, 1, 1, 0, 0 },
	{ "s.manual_computation", conv_manual, 0, 3, -1, -1, 1 },

	{ "v.constant", conv_constant, 0, 1, 0, 1, 0 },
	{ "v.iota", conv_words, IR_iota, 1, 0, 1, 0, "i0" },
	{ "v.compare", conv_compare, 0, 2, 2, 1, 0 },
	{ "v.bitcast_convert", conv_bitcast, 0, 0, 1, 1, 0 },
	{ "v.broadcast_in_dim", conv_words, IR_broadcast, 1, 1, 1, 0, "l0" },
	{ "v.reshape", conv_words, IR_reshape, 0, 1, 1, 0, "" },
	{ "v.transpose", conv_words, IR_transpose, 1, 1, 1, 0, "l0" },
	{ "v.reverse", conv_words, IR_reverse, 1, 1, 1, 0, "l0" },
	{ "v.slice", conv_words, IR_slice, 3, 1, 1, 0, "l1 l0 l2" },
	{ "v.dynamic_slice", conv_words, IR_dynamic_slice, 1, -1, 1, 0, "l0" },
	{ "v.dynamic_update_slice", conv_words, IR_dynamic_update_slice, 0, -1, 1, 0, "" },
	{ "v.concatenate", conv_words, IR_concatenate, 1, -1, 1, 0, "i0" },
	{ "v.pad", conv_words, IR_pad, 3, 2, 1, 0, "l1 l0 l2" },
	{ "v.gather", conv_words, IR_gather, 8, 2, 1, 0, "l3 l0 l4 l7 l6 i1 l5 i2" },
	{ "v.scatter", conv_scatter, IR_scatter, 8, -1, -1, 1 },
	{ "v.reduce", conv_reduce, IR_reduce, 1, -1, -1, 1 },
	{ "v.reduce_window", conv_reduce_window, IR_reduce_window, 5, -1, -1, 1 },
	{ "v.select_and_scatter", conv_select_and_scatter, IR_select_and_scatter, 3, 3, 1, 2 },
	{ "v.sort", conv_sort, IR_sort, 2, -1, -1, 1 },
	{ "v.dot_general", conv_dot_general, IR_dot, 12, 2, 1, 0 },
	{ "v.dot", conv_dot, 0, 1, 2, 1, 0 },
	{ "v.einsum", conv_einsum, 0, 1, 2, 1, 0 },
	{ "v.unary_einsum", conv_unary_einsum, 0, 1, 1, 1, 0 },
	{ "v.convolution", conv_words, IR_convolution, 17, 2, 1, 0, "d2 d5 d9 l16 c12 l8 l14 l15 i1 i0 p13" },
	{ "v.cholesky", conv_words, IR_cholesky, 1, 1, 1, 0, "i0" },
	{ "v.triangular_solve", conv_words, IR_triangular_solve, 4, 2, 1, 0, "i0 i1 i3 i2" },
	{ "v.fft", conv_words, IR_fft, 2, 1, 1, 0, "i1 l0" },
	{ "v.rng_bit_generator", conv_words, IR_rng_bit_generator, 1, 1, 2, 0, "i0" },
	{ "v.rng", conv_rng, 0, 1, 3, 1, 0 },
	{ "v.reduce_precision", conv_words, IR_reduce_precision, 2, 1, 1, 0, "i0 i1" },
	{ "v.custom_call", conv_custom_call, 0, 8, -1, -1, 0 },
	{ "v.custom_call_v2", conv_custom_call, 0, 9, -1, -1, 0 },
	{ "v.optimization_barrier", conv_words, IR_optimization_barrier, 0, -1, -1, 0, "" },
	{ "v.create_token", conv_words, IR_create_token, 0, 0, 1, 0, "" },
	{ "v.after_all", conv_words, IR_after_all, 0, -1, 1, 0, "" },
	{ "v.partition_id", conv_words, IR_partition_id, 0, 0, 1, 0, "" },
	{ "v.replica_id", conv_words, IR_replica_id, 0, 0, 1, 0, "" },
	{ "v.all_reduce", conv_reducing, IR_all_reduce, 3, -1, -1, 1 },
	{ "v.cross-replica-sum", conv_cross_replica_sum, 0, 1, 1, 1, 0 },
	{ "v.all_gather", conv_all_gather, IR_all_gather, 4, -1, -1, 0 },
	{ "v.reduce_scatter", conv_reducing, IR_reduce_scatter, 4, 1, 1, 1 },
	{ "v.all_to_all", conv_all_to_all, IR_all_to_all, 5, -1, -1, 0 },
	{ "v.collective_permute", conv_collective_permute, IR_collective_permute, 2, 1, 1, 0 },
	{ "v.collective_broadcast", conv_collective_broadcast, 0, 2, 1, 1, 0 },
	{ "v.collective_broadcast_v2", conv_collective_broadcast, 0, 3, -1, -1, 0 },
	{ "v.collective_reduce", conv_collective_reduce, 0, 4, -1, -1, 1 },
	{ "v.async_start", NULL, ROW_ASYNC, 0, -1, 1, 1 },
	{ "v.async_done", op_same, 0, 0, 1, -1, 0 },
	{ "v.infeed", conv_feed, IR_infeed, 2, 1, -1, 0 },
	{ "v.outfeed", conv_feed, IR_outfeed, 1, -1, 1, 0 },
	{ "v.send", conv_words, IR_send, 4, -1, 1, 0, "i0 i1" },
	{ "v.recv", conv_words, IR_recv, 4, 1, -1, 0, "i0 i1" },
	{ "v.while", conv_while, IR_loop, 0, -1, -1, 2 },
	{ "v.case", conv_case, IR_case, 0, 1, -1, -1 },
	{ "v.if", conv_if, IR_case, 0, 1, -1, 2 },
	{ "v.tuple", conv_tuple, 0, 0, -1, 1, 0 },
	{ "v.get_tuple_element", conv_get_tuple_element, 0, 1, 1, 1, 0 },

	{ "v.batch_norm_inference", conv_batch_norm_inference, 0, 2, 5, 1, 0 },
	{ "v.batch_norm_training", conv_batch_norm_training, 0, 2, 3, 3, 0 },
	{ "v.batch_norm_grad", conv_batch_norm_grad, 0, 2, 5, 3, 0 },
	{ "v.map", conv_map, 0, 1, -1, 1, 1 },
	{ "v.broadcast", conv_broadcast, 0, 1, 1, 1, 0 },
	{ "v.torch_index_select", conv_torch_index_select, 0, 2, 2, 1, 0 },
	{ "v.get_dimension_size", conv_get_dimension_size, 0, 1, 1, 1, 0 },
	{ "v.set_dimension_size", conv_set_dimension_size, 0, 1, 2, 1, 0 },
	{ "v.dynamic_pad", conv_dynamic_pad, 0, 0, 5, 1, 0 },
	{ "v.dynamic_reshape", conv_dynamic_reshape, 0, 0, 2, 1, 0 },
	{ "v.dynamic_iota", conv_dynamic_iota, 0, 1, 1, 1, 0 },
	{ "v.dynamic_broadcast_in_dim", conv_dynamic_broadcast_in_dim, 0, 3, 2, 1, 0 },
	{ "v.dynamic_gather", conv_dynamic_gather, 0, 7, 3, 1, 0 },
	{ "v.dynamic_conv", conv_dynamic_conv, 0, 16, 3, 1, 0 },
	{ "v.real_dynamic_slice", conv_real_dynamic_slice, 0, 0, 4, 1, 0 },
	{ "v.uniform_quantize", conv_refuse, 0, 0, 1, 1, 0 },
	{ "v.uniform_dequantize", conv_refuse, 0, 0, 1, 1, 0 },
};

/* Elementwise operations have their own names, and one property (accuracy) at most, which is not needed. */
static struct op_row elem_rows[] = {
#define ELEM(id, nin, flags, work, slow, meaning) { "v." #id, conv_elem, IR_##id, 0, nin, 1, 0 },
#include "../base/elem.def"
#undef ELEM
};

static struct map by_name;
static struct mem_once once;

static void tables(void)
{
	for (size_t i = 0; i < NELEM(elem_rows); i++) {
		enum ir_kind k = elem_rows[i].kind;
		/* ours alone: nothing on the wire has these names */
		if ((k >= IR_compare_eq && k <= IR_total_lt) || k == IR_mulhi || k == IR_bitcast || k == IR_erf)
			continue;
		*map_put(&by_name, elem_rows[i].name, strlen(elem_rows[i].name)) = (uintptr_t)&elem_rows[i];
	}
	for (size_t i = 0; i < NELEM(rows); i++)
		*map_put(&by_name, rows[i].name, strlen(rows[i].name)) = (uintptr_t)&rows[i];
}

const struct op_row *op_row_find(enum dialect d, const char *name, size_t n)
{
	char key[64] = "bvs?.";
	mem_once(&once, tables);
	if (n + 2 > sizeof key)
		return NULL;
	key[0] = key[d];
	key[1] = '.';
	if (n)
		memcpy(key + 2, name, n);
	uint64_t *v = map_get(&by_name, key, n + 2);
	if (!v && d == D_VHLO) {    /* without _v1, _v2 .. */
		size_t k = n;
		while (k > 0 && name[k - 1] >= '0' && name[k - 1] <= '9')
			k--;
		if (k < n && k >= 2 && name[k - 1] == 'v' && name[k - 2] == '_')
			v = map_get(&by_name, key, k);
	}
	return v ? (const struct op_row *)(uintptr_t)*v : NULL;
}
