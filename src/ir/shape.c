/* The shape of an op's results, from its operands and attributes, and the rules that these must obey for it. */
#include "rule.h"

#include <stdlib.h>

enum { FAR = 1 << 30 };

/* --- elementwise ---------------------------------------------------------------- */

static struct err *elem_class(const struct at *a, const struct ir_type_info *t)
{
	int c = cls(t);
	bool ok;
	switch (a->o->kind) {
	case IR_and: case IR_or: case IR_xor: case IR_not:
		ok = whole(t) || c == DT_PRED;
		break;
	case IR_shift_left: case IR_shift_right_logical: case IR_shift_right_arithmetic: case IR_popcnt: case IR_count_leading_zeros:
	case IR_mulhi:
		ok = whole(t);
		break;
	case IR_ceil: case IR_floor: case IR_round_nearest_afz: case IR_round_nearest_even: case IR_erf: case IR_is_finite:
	case IR_atan2:
		ok = c == DT_FLOAT;
		break;
	case IR_remainder:
		ok = whole(t) || c == DT_FLOAT;
		break;
	case IR_complex:
		ok = t->dtype == DT_f32 || t->dtype == DT_f64;
		break;
	case IR_exponential: case IR_exponential_minus_one: case IR_log: case IR_log_plus_one: case IR_logistic: case IR_tanh: case IR_tan:
	case IR_sine: case IR_cosine: case IR_sqrt: case IR_rsqrt: case IR_cbrt: case IR_real: case IR_imag:
		ok = c == DT_FLOAT || c == DT_COMPLEX;
		break;
	case IR_compare_ge: case IR_compare_gt: case IR_compare_le: case IR_compare_lt: case IR_total_eq:
	case IR_total_ne: case IR_total_ge: case IR_total_gt: case IR_total_le: case IR_total_lt: case IR_clamp:
		ok = c != DT_NONE && c != DT_COMPLEX;
		break;
	case IR_abs: case IR_negate: case IR_sign: case IR_subtract: case IR_divide: case IR_power:
		ok = c != DT_NONE && c != DT_PRED;
		break;
	default:
		ok = c != DT_NONE;
	}
	NEED(ok, "its operand cannot be %s", dtype_info[t->dtype].name ? dtype_info[t->dtype].name : "none");
	return NULL;
}

static struct err *elem(const struct at *a, struct shape *s)
{
	const struct elem_info *e = &elem_info[ir_elem(a->o->kind)];
	uint32_t main_in = a->o->kind == IR_select ? 1 : 0;
	const struct ir_type_info *t = a->in[main_in];
	TRY(elem_class(a, t));
	for (uint32_t i = main_in + 1; i < a->o->nin; i++)
		TRY(ru_is_type(a, operand_t(a, i), operand_t(a, main_in), "operand", i));
	if (main_in)
		NEED(a->in[0]->dtype == DT_pred && same_dims(a->in[0], t), "operand 0 is not a pred of the others' extents");
	like(s, t);
	if (e->flags & EL_PRED)
		s->dtype = DT_pred;
	else if (e->flags & EL_REAL)
		s->dtype = t->dtype == DT_c64 ? DT_f32 : t->dtype == DT_c128 ? DT_f64 : (enum dtype)t->dtype;
	else if (a->o->kind == IR_complex)
		s->dtype = t->dtype == DT_f64 ? DT_c128 : DT_c64;
	return NULL;
}

/* --- shapes ---------------------------------------------------------------------- */

static struct err *sh_slice(const struct at *a, struct shape *s)
{
	const struct ir_type_info *t = a->in[0];
	like(s, t);
	static const enum ir_at list_of[] = { AT_start, AT_limit, AT_stride };
	for (size_t k = 0; k < NELEM(list_of); k++)
		TRY(length(a, list_of[k], t->rank));
	for (int d = 0; d < t->rank; d++) {
		int64_t lo = list(a, AT_start)[d], hi = list(a, AT_limit)[d], step = list(a, AT_stride)[d];
		NEED(lo >= 0 && lo <= hi && hi <= t->dim[d] && step >= 1, "dimension %d: [%lld:%lld:%lld) of %lld", d, (long long)lo,
		     (long long)hi, (long long)step, (long long)t->dim[d]);
		s->dim[d] = (hi - lo) / step + ((hi - lo) % step != 0);
	}
	return NULL;
}

static struct err *scalars(const struct at *a, uint32_t from, uint32_t n)
{
	for (uint32_t i = from; i < from + n; i++) {
		const struct ir_type_info *t = operand(a, i);
		NEED(t->rank == 0 && whole(t), "operand %u is not an integer scalar", i);
	}
	return NULL;
}

static struct err *sh_dynamic_slice(const struct at *a, struct shape *s)
{
	NEED(a->o->nin >= 1, "no operand");
	const struct ir_type_info *t = a->in[0];
	NEED(a->o->nin == 1u + t->rank, "%u starts for rank %d", a->o->nin - 1, t->rank);
	TRY(scalars(a, 1, t->rank));
	TRY(length(a, AT_size, t->rank));
	like(s, t);
	for (int d = 0; d < t->rank; d++) {
		s->dim[d] = list(a, AT_size)[d];
		NEED(s->dim[d] >= 0 && s->dim[d] <= t->dim[d], "size %lld of dimension %d", (long long)s->dim[d], d);
	}
	return NULL;
}

static struct err *sh_dynamic_update_slice(const struct at *a, struct shape *s)
{
	NEED(a->o->nin >= 2, "no update");
	const struct ir_type_info *t = a->in[0], *u = a->in[1];
	NEED(a->o->nin == 2u + t->rank, "%u starts for rank %d", a->o->nin - 2, t->rank);
	NEED(u->rank == t->rank && u->dtype == t->dtype && t->dtype != DT_token, "the update has another rank or element type");
	TRY(scalars(a, 2, t->rank));
	for (int d = 0; d < t->rank; d++)
		NEED(u->dim[d] <= t->dim[d], "the update is larger in dimension %d", d);
	like(s, t);
	return NULL;
}

static struct err *sh_concatenate(const struct at *a, struct shape *s)
{
	NEED(a->o->nin >= 1, "no operand");
	like(s, a->in[0]);
	int64_t dim = num(a, AT_dim);
	NEED(dim >= 0 && dim < s->rank, "dim %lld of rank %d", (long long)dim, s->rank);
	for (uint32_t i = 1; i < a->o->nin; i++) {
		const struct ir_type_info *t = operand(a, i);
		NEED(t->dtype == s->dtype && t->rank == s->rank, "operand %u has another rank or element type", i);
		for (int d = 0; d < s->rank; d++)
			NEED(d == dim || t->dim[d] == s->dim[d], "operand %u differs in dimension %d", i, d);
		s->dim[dim] += t->dim[dim];
	}
	return NULL;
}

static struct err *sh_pad(const struct at *a, struct shape *s)
{
	const struct ir_type_info *t = a->in[0];
	NEED(ru_scalar_of(a, operand_t(a, 1), t->dtype), "the padding value is not a scalar of the operand's type");
	like(s, t);
	static const enum ir_at list_of[] = { AT_low, AT_high, AT_interior };
	for (size_t k = 0; k < NELEM(list_of); k++) {
		TRY(length(a, list_of[k], t->rank));
		TRY(range(a, list_of[k], list_of[k] == AT_interior ? 0 : -((int64_t)1 << 40), (int64_t)1 << 40));
	}
	for (int d = 0; d < t->rank; d++) {
		int64_t gap;
		NEED(!__builtin_mul_overflow(MAX(t->dim[d] - 1, 0), list(a, AT_interior)[d], &gap), "interior padding of dimension %d", d);
		NEED(gap < (int64_t)1 << 50, "interior padding of dimension %d", d);
		s->dim[d] = t->dim[d] + list(a, AT_low)[d] + list(a, AT_high)[d] + gap;
		NEED(s->dim[d] >= 0, "dimension %d of negative extent", d);
	}
	return NULL;
}

/* The indices of a gather or scatter: of one component for each dimension that the attribute map names. */
static struct err *indices(const struct at *a, const struct ir_type_info *i, enum ir_at map)
{
	int64_t ivd = num(a, AT_index_dim);
	NEED(whole(i), "indices that are not integers");
	NEED(ivd >= 0 && ivd <= i->rank, "index_dim %lld of rank %d", (long long)ivd, i->rank);
	int64_t components = ivd < i->rank ? i->dim[ivd] : 1;
	NEED(count(a, map) == components, "%d index components where the indices have %lld", count(a, map), (long long)components);
	return NULL;
}

/* Its batch dimensions, of the operand x and of the indices: of one extent, and neither dropped nor indexed. */
static struct err *batched(const struct at *a, const struct ir_type_info *x, const struct ir_type_info *i, enum ir_at of_x, enum ir_at of_i,
                           enum ir_at dropped, enum ir_at map)
{
	for (int k = 0; k < count(a, of_x); k++) {
		int64_t d = list(a, of_x)[k], e = list(a, of_i)[k];
		NEED(e != num(a, AT_index_dim) && x->dim[d] == i->dim[e], "batch dimension %lld does not fit the indices", (long long)d);
		NEED(!in_list(list(a, dropped), count(a, dropped), d) && !in_list(list(a, map), count(a, map), d), "dimension %lld is batched and indexed",
		     (long long)d);
	}
	return NULL;
}

static struct err *sh_gather(const struct at *a, struct shape *s)
{
	const struct ir_type_info *x = a->in[0], *i = a->in[1];
	int64_t ivd = num(a, AT_index_dim);
	TRY(indices(a, i, AT_index_map));
	TRY(length(a, AT_size, x->rank));
	TRY(axes(a, AT_collapsed, x->rank));
	TRY(axes(a, AT_obatch, x->rank));
	TRY(axes(a, AT_index_map, x->rank));
	TRY(axes(a, AT_ibatch, i->rank));
	TRY(length(a, AT_ibatch, count(a, AT_obatch)));
	int batch = i->rank - (ivd < i->rank), offset = x->rank - count(a, AT_collapsed) - count(a, AT_obatch);
	TRY(length(a, AT_offset_dims, offset));
	NEED(batch + offset <= IR_MAX_RANK, "result of rank %d", batch + offset);
	TRY(axes(a, AT_offset_dims, batch + offset));
	for (int k = 1; k < offset; k++)
		NEED(list(a, AT_offset_dims)[k] > list(a, AT_offset_dims)[k - 1], "offset_dims do not ascend");
	TRY(batched(a, x, i, AT_obatch, AT_ibatch, AT_collapsed, AT_index_map));
	s->dtype = x->dtype;
	NEED(x->dtype != DT_token, "a token");
	s->rank = batch + offset;
	int64_t size[IR_MAX_RANK];
	int n = 0;
	for (int d = 0; d < x->rank; d++) {
		int64_t z = list(a, AT_size)[d];
		bool gone = in_list(list(a, AT_collapsed), count(a, AT_collapsed), d) || in_list(list(a, AT_obatch), count(a, AT_obatch), d);
		NEED(z >= 0 && z <= x->dim[d] && (!gone || z <= 1), "size %lld of dimension %d", (long long)z, d);
		if (!gone)
			size[n++] = z;
	}
	n = 0;
	for (int r = 0, k = 0; r < s->rank; r++) {
		if (in_list(list(a, AT_offset_dims), offset, r)) {
			s->dim[r] = size[n++];
			continue;
		}
		k += k == ivd;
		s->dim[r] = i->dim[k++];
	}
	return NULL;
}

struct err *ru_scatter(const struct at *a)
{
	uint32_t n = a->o->nin / 2;
	NEED(a->o->nin % 2 == 1 && n >= 1 && a->o->nout == n, "it has %u operands and %u results", a->o->nin, a->o->nout);
	const struct ir_type_info *x = a->in[0], *i = operand(a, n), *u = operand(a, n + 1);
	int64_t ivd = num(a, AT_index_dim);
	TRY(indices(a, i, AT_to_operand));
	TRY(axes(a, AT_window_dims, u->rank));
	TRY(axes(a, AT_inserted, x->rank));
	TRY(axes(a, AT_ibatch, x->rank));
	TRY(axes(a, AT_to_operand, x->rank));
	TRY(axes(a, AT_sbatch, i->rank));
	TRY(length(a, AT_sbatch, count(a, AT_ibatch)));
	TRY(batched(a, x, i, AT_ibatch, AT_sbatch, AT_inserted, AT_to_operand));
	for (int k = 1; k < count(a, AT_window_dims); k++)
		NEED(list(a, AT_window_dims)[k] > list(a, AT_window_dims)[k - 1], "window_dims do not ascend");
	NEED(count(a, AT_window_dims) + count(a, AT_inserted) + count(a, AT_ibatch) == x->rank, "windows of another rank than the operand");
	NEED(u->rank == count(a, AT_window_dims) + i->rank - (ivd < i->rank), "updates of rank %d", u->rank);
	for (int r = 0, k = 0, d = 0; r < u->rank; r++) {
		if (in_list(list(a, AT_window_dims), count(a, AT_window_dims), r)) {
			while (in_list(list(a, AT_inserted), count(a, AT_inserted), d) || in_list(list(a, AT_ibatch), count(a, AT_ibatch), d))
				d++;
			NEED(u->dim[r] <= x->dim[d], "the update's window is larger in dimension %d", d);
			d++;
			continue;
		}
		k += k == ivd;
		NEED(u->dim[r] == i->dim[k], "dimension %d of the updates differs from the indices", r);
		k++;
	}
	for (uint32_t k = 0; k < n; k++) {
		const struct ir_type_info *y = operand(a, k), *v = operand(a, n + 1 + k);
		NEED(same_dims(x, y) && same_dims(u, v) && y->dtype == v->dtype && y->dtype != DT_token,
		     "operands or updates %u differ in shape or type", k);
		TRY(ru_is_type(a, result_t(a, k), operand_t(a, k), "result", k));
	}
	return ru_reducer(a, n, true);
}

/* Operands of equal extents, then initial scalars of their types. */
struct err *ru_reduce_in(const struct at *a)
{
	uint32_t n = a->o->nin / 2;
	NEED(n >= 1 && a->o->nin == 2 * n && a->o->nout == n, "it has %u operands and %u results", a->o->nin, a->o->nout);
	for (uint32_t k = 0; k < n; k++) {
		NEED(same_dims(a->in[0], operand(a, k)) && operand(a, k)->dtype != DT_token, "operand %u has another shape", k);
		NEED(ru_scalar_of(a, operand_t(a, n + k), operand(a, k)->dtype), "initial value %u is not a scalar of the operand's type", k);
	}
	return NULL;
}

static struct err *sh_reduce(const struct at *a, uint32_t i, struct shape *s)
{
	const struct ir_type_info *t = operand(a, i);
	s->dtype = t->dtype;
	s->rank = 0;
	for (int d = 0; d < t->rank; d++)
		if (!in_list(list(a, AT_dims), count(a, AT_dims), d))
			s->dim[s->rank++] = t->dim[d];
	return NULL;
}

/* Extent of what windows make of n elements; -1 if there is none. */
static int64_t windows(int64_t n, int64_t window, int64_t stride, int64_t base, int64_t dilation, int64_t low, int64_t high)
{
	int64_t w = (window - 1) * dilation + 1;
	__int128 all = (n ? (__int128)(n - 1) * base + 1 : 0) + low + high;
	if (all > (int64_t)1 << 50)
		return -1;
	return all < w ? 0 : ((int64_t)all - w) / stride + 1;
}

static struct err *sh_reduce_window(const struct at *a, uint32_t i, struct shape *s)
{
	const struct ir_type_info *t = operand(a, i);
	like(s, t);
	static const enum ir_at list_of[] = { AT_window, AT_stride, AT_base_dilation, AT_window_dilation, AT_low, AT_high };
	for (int k = 0; k < 6; k++) {
		TRY(length(a, list_of[k], t->rank));
		TRY(range(a, list_of[k], k < 4 ? 1 : -FAR, FAR));
	}
	for (int d = 0; d < t->rank; d++) {
		s->dim[d] = windows(t->dim[d], list(a, AT_window)[d], list(a, AT_stride)[d], list(a, AT_base_dilation)[d], list(a, AT_window_dilation)[d], list(a, AT_low)[d], list(a, AT_high)[d]);
		NEED(s->dim[d] >= 0, "dimension %d is too large", d);
	}
	return NULL;
}

static struct err *select_and_scatter(const struct at *a)
{
	const struct ir_type_info *x = a->in[0], *src = a->in[1];
	NEED(src->dtype == x->dtype && src->rank == x->rank && x->dtype != DT_token, "the source has another rank or type");
	NEED(ru_scalar_of(a, operand_t(a, 2), x->dtype), "the initial value is not a scalar of the operand's type");
	static const enum ir_at list_of[] = { AT_window, AT_stride, AT_low, AT_high };
	for (int k = 0; k < 4; k++) {
		TRY(length(a, list_of[k], x->rank));
		TRY(range(a, list_of[k], k < 2 ? 1 : -FAR, FAR));
	}
	for (int d = 0; d < x->rank; d++)
		NEED(src->dim[d] == windows(x->dim[d], list(a, AT_window)[d], list(a, AT_stride)[d], 1, 1, list(a, AT_low)[d], list(a, AT_high)[d]),
		     "the source does not fit the windows in dimension %d", d);
	for (int k = 0; k < 2; k++) {
		int64_t f = num(a, k ? AT_scatter : AT_select);
		TRY(ru_sig_count(a, f, 2, 1));
		NEED(ru_scalar_of(a, ru_param_t(a, f, 0), x->dtype) && ru_scalar_of(a, ru_param_t(a, f, 1), x->dtype) &&
		     ru_scalar_of(a, ru_ret_t(a, f, 0), k ? (enum dtype)x->dtype : DT_pred), "function %d has the wrong types", k);
	}
	return NULL;
}

struct err *ru_sort(const struct at *a)
{
	uint32_t n = a->o->nin;
	NEED(n >= 1 && a->o->nout == n, "it has %u operands and %u results", n, a->o->nout);
	NEED(num(a, AT_dim) >= 0 && num(a, AT_dim) < MAX(a->in[0]->rank, 1), "dim %lld", (long long)num(a, AT_dim));
	int64_t f = num(a, AT_fn);
	TRY(ru_sig_count(a, f, 2 * n, 1));
	for (uint32_t k = 0; k < n; k++) {
		const struct ir_type_info *t = operand(a, k);
		NEED(same_dims(a->in[0], t) && t->dtype != DT_token, "operand %u has another shape", k);
		NEED(ru_scalar_of(a, ru_param_t(a, f, 2 * k), t->dtype) && ru_scalar_of(a, ru_param_t(a, f, 2 * k + 1), t->dtype),
		     "the comparison does not take operand %u", k);
	}
	NEED(ru_scalar_of(a, ru_ret_t(a, f, 0), DT_pred), "the comparison does not give a pred");
	return NULL;
}

static struct err *sh_dot(const struct at *a, struct shape *s)
{
	const struct ir_type_info *x = a->in[0], *y = a->in[1];
	NEED(cls(x) != DT_NONE && cls(y) != DT_NONE, "a token");
	static const enum ir_at batch[] = { AT_lb, AT_rb }, gone[] = { AT_lc, AT_rc };
	for (int side = 0; side < 2; side++) {
		TRY(axes(a, batch[side], side ? y->rank : x->rank));
		TRY(axes(a, gone[side], side ? y->rank : x->rank));
	}
	TRY(length(a, AT_rb, count(a, AT_lb)));
	TRY(length(a, AT_rc, count(a, AT_lc)));
	for (int side = 0; side < 2; side++)
		for (int i = 0; i < count(a, batch[side]); i++)
			NEED(!in_list(list(a, gone[side]), count(a, gone[side]), list(a, batch[side])[i]), "dimension %lld is batch and contracted",
			     (long long)list(a, batch[side])[i]);
	s->rank = 0;
	NEED(x->rank + y->rank - count(a, AT_lb) - 2 * count(a, AT_lc) <= IR_MAX_RANK, "result of too high a rank");
	for (int k = 0; k < 2; k++)
		for (int i = 0; i < count(a, (k ? gone : batch)[0]); i++) {
			int64_t p = x->dim[list(a, (k ? gone : batch)[0])[i]], q = y->dim[list(a, (k ? gone : batch)[1])[i]];
			NEED(p == q, "extents %lld and %lld of %s dimension %d", (long long)p, (long long)q, k ? "contracted" : "batch", i);
			if (!k)
				s->dim[s->rank++] = p;
		}
	for (int side = 0; side < 2; side++) {
		const struct ir_type_info *t = side ? y : x;
		for (int d = 0; d < t->rank; d++)
			if (!in_list(list(a, batch[side]), count(a, batch[side]), d) && !in_list(list(a, gone[side]), count(a, gone[side]), d))
				s->dim[s->rank++] = t->dim[d];
	}
	TRY(within(a, AT_precision, 0, 2));
	return within(a, AT_components, 1, 64);
}

static void sh_attention(const struct at *a, uint32_t i, struct shape *s)
{
	bool grad = a->o->kind == IR_attention_grad || a->o->kind == IR_attention_grad_add, o = i == 0 || (i == 2 && a->o->kind == IR_attention);
	if (grad && i > 2) {                     /* a sum by an index, as long as the op says */
		ir_type t = result_t(a, i);
		like(s, a->in[0]);
		s->dim[s->rank - 3] = s->dim[s->rank - 2] = 1;
		s->dim[s->rank - 1] = t && a->m->type.p[t].rank == s->rank ? a->m->type.p[t].dim[s->rank - 1] : 1;
		return;
	}
	like(s, operand(a, grad ? i : 0));
	if (!grad && !o)
		s->rank--;
	else if (!grad)
		s->dim[s->rank - 1] = a->in[2]->dim[a->in[2]->rank - 1];
}

static struct err *sh_convolution(const struct at *a, struct shape *s)
{
	static const enum ir_at dims[] = { AT_lhs, AT_rhs, AT_out },
		spatial[] = { AT_stride, AT_low, AT_high, AT_lhs_dilation, AT_rhs_dilation, AT_reversal };
	const struct ir_type_info *x = a->in[0], *k = a->in[1];
	int rank = x->rank, n = rank - 2;
	NEED(rank >= 2 && k->rank == rank, "operands of rank %d and %d", rank, k->rank);
	NEED(cls(x) != DT_NONE && cls(k) != DT_NONE, "a token");
	for (size_t i = 0; i < NELEM(dims); i++) {
		TRY(length(a, dims[i], rank));
		TRY(axes(a, dims[i], rank));
	}
	for (size_t i = 0; i < NELEM(spatial); i++) {
		enum ir_at w = spatial[i];
		TRY(length(a, w, n));
		TRY(range(a, w, w == AT_low || w == AT_high ? -FAR : w == AT_reversal ? 0 : 1, w == AT_reversal ? 1 : FAR));
	}
	int64_t fg = num(a, AT_feature_groups), bg = num(a, AT_batch_groups);
	const int64_t *l = list(a, AT_lhs), *r = list(a, AT_rhs), *o = list(a, AT_out);
	NEED(fg >= 1 && bg >= 1 && (fg == 1 || bg == 1), "%lld feature and %lld batch groups", (long long)fg, (long long)bg);
	NEED(x->dim[l[1]] % fg == 0 && k->dim[r[0]] * fg == x->dim[l[1]], "input features %lld for a kernel of %lld in %lld groups",
	     (long long)x->dim[l[1]], (long long)k->dim[r[0]], (long long)fg);
	NEED(x->dim[l[0]] % bg == 0 && k->dim[r[1]] % fg == 0 && k->dim[r[1]] % bg == 0, "batch or output features do not divide");
	s->rank = rank;
	s->dim[o[0]] = x->dim[l[0]] / bg;
	s->dim[o[1]] = k->dim[r[1]];
	for (int i = 0; i < n; i++) {
		int64_t w = k->dim[r[2 + i]];
		NEED(w < FAR, "window of %lld", (long long)w);
		int64_t e = w == 0 ? -1 : windows(x->dim[l[2 + i]], w, list(a, AT_stride)[i], list(a, AT_lhs_dilation)[i], list(a, AT_rhs_dilation)[i], list(a, AT_low)[i],
		                                  list(a, AT_high)[i]);
		if (w == 0)    /* an empty window fits everywhere */
			e = windows(x->dim[l[2 + i]], 1, list(a, AT_stride)[i], list(a, AT_lhs_dilation)[i], 1, list(a, AT_low)[i], list(a, AT_high)[i] + 1);
		NEED(e >= 0, "spatial dimension %d is too large", i);
		s->dim[o[2 + i]] = e;
	}
	return within(a, AT_precision, 0, 2);
}

static struct err *sh_fft(const struct at *a, struct shape *s)
{
	const struct ir_type_info *x = a->in[0];
	int64_t kind = num(a, AT_kind);
	int n = count(a, AT_length);
	TRY(within(a, AT_kind, 0, 3));
	NEED(n >= 1 && n <= 3 && n <= x->rank, "%d dimensions of %d", n, x->rank);
	NEED(kind == 2 ? x->dtype == DT_f32 || x->dtype == DT_f64 : cls(x) == DT_COMPLEX, "operand of type %s", dtype_info[x->dtype].name);
	like(s, x);
	for (int i = 0; i < n; i++) {
		int d = x->rank - n + i;
		int64_t len = list(a, AT_length)[i], want = kind == 3 && i == n - 1 ? len / 2 + 1 : len;
		NEED(len >= 0 && (x->dim[d] == want || (kind == 3 && len == 0 && x->dim[d] == 0)), "length %lld of dimension %d", (long long)len, d);
		if (i == n - 1 && kind >= 2)
			s->dim[d] = kind == 2 ? (len ? len / 2 + 1 : 0) : len;
	}
	if (kind == 2)
		s->dtype = x->dtype == DT_f32 ? DT_c64 : DT_c128;
	if (kind == 3)
		s->dtype = x->dtype == DT_c64 ? DT_f32 : DT_f64;
	return NULL;
}

/* Devices that the program is for. */
static int64_t devices(const struct at *a) { return (int64_t)a->m->num_partitions * a->m->num_replicas; }

/* Device positions of its group: each at most once, -1 fills up. */
static struct err *group_ok(const struct at *a)
{
	const struct ir_group_info *g = &a->m->group.p[num(a, AT_group)];
	NEED(num(a, AT_group) && g->nrow >= 0 && g->ncol > 0, "it has no groups");
	int64_t n = (int64_t)g->nrow * g->ncol, most = -1;
	for (int64_t i = 0; i < n; i++) {
		NEED(g->id[i] >= -1 && g->id[i] < devices(a), "a group names device %lld of %lld", (long long)g->id[i], (long long)devices(a));
		most = MAX(most, g->id[i]);
	}
	uint8_t *seen = mem_alloc((size_t)most + 1);
	struct err *e = NULL;
	for (int64_t i = 0; i < n && !e; i++) {
		if (g->id[i] >= 0 && seen[g->id[i]])
			e = ERR(INVALID, "device position %lld is in a group twice", (long long)g->id[i]);
		if (g->id[i] >= 0)
			seen[g->id[i]] = 1;
	}
	free(seen);
	return e;
}

/* Members of a group of collective a; 0 if it has none. */
static int64_t members(const struct at *a)
{
	int64_t g = num(a, AT_group);
	return g ? a->m->group.p[g].ncol : 0;
}

/* Result i of a collective that keeps the element type; *known if the shape follows. */
static struct err *sh_coll(const struct at *a, uint32_t i, struct shape *s)
{
	const struct ir_type_info *x = operand(a, i);
	like(s, x);
	NEED(x->dtype != DT_token, "a token");
	int64_t n, d = ir_has_attr(a->o->kind, AT_dim) ? num(a, AT_dim) : a->o->kind == IR_all_to_all ? num(a, AT_split) : 0;
	switch (a->o->kind) {
	case IR_all_gather:
		n = members(a);
		NEED(d >= 0 && d < x->rank && n, "dim %lld of rank %d", (long long)d, x->rank);
		NEED(x->dim[d] <= ((int64_t)1 << 48) / n, "a result that is too large");
		s->dim[d] *= n;
		break;
	case IR_reduce_scatter:
		n = members(a);
		NEED(d >= 0 && d < x->rank && n && x->dim[d] % n == 0, "dim %lld does not split in %lld", (long long)d, (long long)n);
		s->dim[d] /= n;
		break;
	case IR_all_to_all: {
		int64_t c = num(a, AT_concat);
		n = members(a);
		NEED(d >= 0 && d < x->rank && c >= 0 && c < x->rank && n && x->dim[d] % n == 0, "split %lld, concat %lld in %lld",
		     (long long)d, (long long)c, (long long)n);
		s->dim[d] /= n;
		s->dim[c] *= n;
		break;
	}
	default:
		break;
	}
	return NULL;
}

static struct err *ragged(const struct at *a, struct shape *s)
{
	const struct ir_type_info *x = operand(a, 0), *y = operand(a, 1), *w = operand(a, 2);
	bool alike = x->dtype == y->dtype && x->dtype != DT_token && x->rank == y->rank && x->rank > 0;
	for (int d = 1; d < x->rank && alike; d++)
		alike = x->dim[d] == y->dim[d];
	NEED(alike, "an operand and an output of two types, or of rows that differ");
	NEED(w->dtype == DT_i64 && w->rank == 2 && w->dim[1] == 3 && w->dim[0] % members(a) == 0, "slices that are not i64[k, 3], as many of each of %lld members",
	     (long long)members(a));
	like(s, y);
	return NULL;
}

static struct err *permute(const struct at *a)
{
	int n = count(a, AT_pairs);
	const int64_t *p = list(a, AT_pairs);
	NEED(n % 2 == 0, "an odd number of device positions");
	int64_t most = -1;
	for (int i = 0; i < n; i++) {
		NEED(p[i] >= 0 && p[i] < devices(a), "a pair names device %lld of %lld", (long long)p[i], (long long)devices(a));
		most = MAX(most, p[i]);
	}
	struct map seen = {0};
	struct err *e = NULL;
	for (int i = 0; i < n && !e; i++) {
		int64_t key[2] = { i % 2, p[i] };
		uint64_t *v = map_put(&seen, key, sizeof key);
		if (*v)
			e = ERR(INVALID, "device position %lld is a %s twice", (long long)p[i], i % 2 ? "target" : "source");
		*v = 1;
	}
	map_free(&seen);
	return e;
}

static struct err *square(const struct ir_type_info *t)
{
	NEED(t->rank >= 2 && t->dim[t->rank - 1] == t->dim[t->rank - 2], "a matrix that is not square");
	NEED(cls(t) == DT_FLOAT || cls(t) == DT_COMPLEX, "a matrix of %s", dtype_info[t->dtype].name ? dtype_info[t->dtype].name : "none");
	return NULL;
}

static struct err *triangular_solve(const struct at *a)
{
	const struct ir_type_info *x = a->in[0], *b = a->in[1];
	TRY(square(x));
	NEED(b->rank == x->rank && b->dtype == x->dtype, "operands of two ranks or types");
	for (int d = 0; d < x->rank - 2; d++)
		NEED(x->dim[d] == b->dim[d], "batch dimension %d differs", d);
	NEED(b->dim[b->rank - (num(a, AT_left) ? 2 : 1)] == x->dim[x->rank - 1], "the right-hand side does not fit");
	TRY(within(a, AT_left, 0, 1));
	TRY(within(a, AT_lower, 0, 1));
	TRY(within(a, AT_unit, 0, 1));
	return within(a, AT_trans, 1, 3);
}

struct err *ru_shape(const struct at *a, uint32_t i, struct shape *s, bool *known)
{
	const struct ir_op *o = a->o;
	*known = true;
	if (ir_is_elem(o->kind)) {
		*known = o->kind != IR_convert && o->kind != IR_bitcast;
		return elem(a, s);
	}
	switch (o->kind) {
	case IR_transpose:
		like(s, a->in[0]);
		TRY(length(a, AT_perm, s->rank));
		TRY(axes(a, AT_perm, s->rank));
		for (int d = 0; d < s->rank; d++)
			s->dim[d] = a->in[0]->dim[list(a, AT_perm)[d]];
		return NULL;
	case IR_reverse:
		like(s, a->in[0]);
		return axes(a, AT_dims, s->rank);
	case IR_slice:
		return sh_slice(a, s);
	case IR_dynamic_slice:
		return sh_dynamic_slice(a, s);
	case IR_dynamic_update_slice:
		return sh_dynamic_update_slice(a, s);
	case IR_concatenate:
		return sh_concatenate(a, s);
	case IR_pad:
		return sh_pad(a, s);
	case IR_gather:
		return sh_gather(a, s);
	case IR_scatter:
		TRY(i ? NULL : ru_scatter(a));
		like(s, operand(a, i));
		return NULL;
	case IR_reduce:
		if (!i) {
			TRY(ru_reduce_in(a));
			TRY(axes(a, AT_dims, a->in[0]->rank));
			TRY(ru_reducer(a, o->nin / 2, false));
		}
		return sh_reduce(a, i, s);
	case IR_reduce_window:
		if (!i) {
			TRY(ru_reduce_in(a));
			TRY(ru_reducer(a, o->nin / 2, false));
		}
		return sh_reduce_window(a, i, s);
	case IR_select_and_scatter:
		TRY(select_and_scatter(a));
		like(s, a->in[0]);
		return NULL;
	case IR_sort:
		TRY(i ? NULL : ru_sort(a));
		like(s, operand(a, i));
		return NULL;
	case IR_top_k: {
		int64_t k = num(a, AT_k);
		like(s, a->in[0]);
		NEED(s->rank >= 1 && k >= 0 && k <= s->dim[s->rank - 1] && s->dtype != DT_token, "k is %lld", (long long)k);
		s->dim[s->rank - 1] = k;
		if (i)
			s->dtype = DT_i32;
		return NULL;
	}
	case IR_cumulative:
		like(s, a->in[0]);
		NEED(num(a, AT_dim) >= 0 && num(a, AT_dim) < s->rank, "dim %lld", (long long)num(a, AT_dim));
		NEED(num(a, AT_redop) < RED_lse, "operation '%s'", redop_name[num(a, AT_redop)]);
		return NULL;
	case IR_dot:
		*known = false;
		return sh_dot(a, s);
	case IR_convolution:
		*known = false;
		return sh_convolution(a, s);
	case IR_attention: case IR_attention_part: case IR_attention_grad: case IR_attention_grad_add:
		TRY(i ? NULL : ru_attention(a));
		*known = o->kind == IR_attention && i == 2;
		sh_attention(a, i, s);
		if (*known)
			s->dtype = DT_i8;
		return NULL;
	case IR_cholesky:
		TRY(square(a->in[0]));
		like(s, a->in[0]);
		return NULL;
	case IR_triangular_solve:
		TRY(triangular_solve(a));
		like(s, a->in[1]);
		return NULL;
	case IR_fft:
		return sh_fft(a, s);
	case IR_rng_bit_generator:
		TRY(within(a, AT_algorithm, 0, 2));
		NEED(a->in[0]->rank == 1 && whole(a->in[0]), "a state that is no vector of integers");
		like(s, a->in[0]);
		*known = i == 0;
		return NULL;
	case IR_reduce_precision:
		like(s, a->in[0]);
		NEED(cls(a->in[0]) == DT_FLOAT && num(a, AT_exponent) >= 1 && num(a, AT_mantissa) >= 0, "exponent %lld, mantissa %lld", (long long)num(a, AT_exponent),
		     (long long)num(a, AT_mantissa));
		return NULL;
	case IR_optimization_barrier:
		NEED(o->nin == o->nout, "it has %u operands and %u results", o->nin, o->nout);
		like(s, operand(a, i));
		return NULL;
	case IR_create_token:
	case IR_after_all:
		s->dtype = DT_token;
		s->rank = 0;
		return NULL;
	case IR_partition_id:
	case IR_replica_id:
		s->dtype = DT_u32;
		s->rank = 0;
		return NULL;
	case IR_all_reduce:
	case IR_all_gather:
	case IR_reduce_scatter:
	case IR_all_to_all:
		NEED(o->nin == o->nout && o->nin, "it has %u operands and %u results", o->nin, o->nout);
		if (!i)
			TRY(group_ok(a));
		return sh_coll(a, i, s);
	case IR_collective_permute:
		TRY(permute(a));
		return sh_coll(a, i, s);
	case IR_collective_broadcast:
		TRY(group_ok(a));
		return sh_coll(a, i, s);
	case IR_ragged_all_to_all:
		TRY(group_ok(a));
		return ragged(a, s);
	case IR_redistribute:
		*known = false;
		s->rank = -1;
		return group_ok(a);
	case IR_sharding_constraint:
		TRY(ru_shard_fits(a, num(a, AT_sharding), operand_t(a, 0)));
		like(s, a->in[0]);
		return NULL;
	case IR_loop: {
		TRY(i ? NULL : ru_loop(a));
		struct arena tmp;
		arena_init(&tmp);
		struct ir_loop l = ir_loop_view(&tmp, a->m, a->fn, o);
		like(s, operand(a, (uint32_t)l.made[i]));
		arena_fini(&tmp);
		return NULL;
	}
	case IR_call:
	case IR_fused:
		if (!i)
			TRY(ru_callee(a, num(a, AT_fn), 0));
		like(s, &a->m->type.p[ru_ret_t(a, num(a, AT_fn), i)]);
		return NULL;
	case IR_case:
		NEED(o->nin >= 1 && ru_scalar_of(a, operand_t(a, 0), DT_i32) && count(a, AT_branch) >= 1, "no i32 index or no branches");
		for (int k = 0; k < count(a, AT_branch) && !i; k++)
			TRY(ru_callee(a, list(a, AT_branch)[k], 1));
		like(s, &a->m->type.p[ru_ret_t(a, list(a, AT_branch)[0], i)]);
		return NULL;
	default:
		*known = false;
		s->rank = -1;
		return NULL;
	}
}

int ir_view_dim(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, int d)
{
	int64_t before = 1, part = 1;
	int n;
	if (o->kind == IR_optimization_barrier || o->kind == IR_sharding_constraint)
		return d;
	if (o->kind == IR_transpose) {
		const int64_t *perm = ir_attrs(fn, o, AT_perm, &n);
		for (int k = 0; k < n; k++)
			if (perm[k] == d)
				return k;
	}
	if (o->kind != IR_reshape)
		return -1;
	const struct ir_type_info *t = ir_vtype(m, fn, ir_in(fn, o, 0)), *rt = ir_vtype(m, fn, o->out);
	for (int k = 0; k < d; k++)
		before *= t->dim[k];
	for (int k = 0; k < rt->rank && part <= before; part *= rt->dim[k++])
		if (part == before && rt->dim[k] == t->dim[d])
			return k;
	return -1;
}
