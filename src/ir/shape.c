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
	for (int k = 0; k < 3; k++)
		TRY(length(a, k, t->rank));
	for (int d = 0; d < t->rank; d++) {
		int64_t lo = list(a, 0)[d], hi = list(a, 1)[d], step = list(a, 2)[d];
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
	TRY(length(a, 0, t->rank));
	like(s, t);
	for (int d = 0; d < t->rank; d++) {
		s->dim[d] = list(a, 0)[d];
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
	int64_t dim = num(a, 0);
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
	for (int k = 0; k < 3; k++) {
		TRY(length(a, k, t->rank));
		TRY(range(a, k, k == 2 ? 0 : -((int64_t)1 << 40), (int64_t)1 << 40));
	}
	for (int d = 0; d < t->rank; d++) {
		int64_t gap;
		NEED(!__builtin_mul_overflow(MAX(t->dim[d] - 1, 0), list(a, 2)[d], &gap), "interior padding of dimension %d", d);
		NEED(gap < (int64_t)1 << 50, "interior padding of dimension %d", d);
		s->dim[d] = t->dim[d] + list(a, 0)[d] + list(a, 1)[d] + gap;
		NEED(s->dim[d] >= 0, "dimension %d of negative extent", d);
	}
	return NULL;
}

static struct err *sh_gather(const struct at *a, struct shape *s)
{
	enum { OFFSET, COLLAPSED, OBATCH, IBATCH, MAP, INDEX_DIM, SIZE };
	const struct ir_type_info *x = a->in[0], *i = a->in[1];
	int64_t ivd = num(a, INDEX_DIM);
	NEED(whole(i), "indices that are not integers");
	NEED(ivd >= 0 && ivd <= i->rank, "index_dim %lld of rank %d", (long long)ivd, i->rank);
	NEED(count(a, MAP) == (ivd < i->rank ? i->dim[ivd] : 1), "%d index components where the indices have %lld", count(a, MAP),
	     (long long)(ivd < i->rank ? i->dim[ivd] : 1));
	TRY(length(a, SIZE, x->rank));
	TRY(axes(a, COLLAPSED, x->rank));
	TRY(axes(a, OBATCH, x->rank));
	TRY(axes(a, MAP, x->rank));
	TRY(axes(a, IBATCH, i->rank));
	TRY(length(a, IBATCH, count(a, OBATCH)));
	int batch = i->rank - (ivd < i->rank), offset = x->rank - count(a, COLLAPSED) - count(a, OBATCH);
	TRY(length(a, OFFSET, offset));
	NEED(batch + offset <= IR_MAX_RANK, "result of rank %d", batch + offset);
	TRY(axes(a, OFFSET, batch + offset));
	for (int k = 1; k < offset; k++)
		NEED(list(a, OFFSET)[k] > list(a, OFFSET)[k - 1], "offset_dims do not ascend");
	for (int k = 0; k < count(a, OBATCH); k++) {
		int64_t d = list(a, OBATCH)[k], e = list(a, IBATCH)[k];
		NEED(e != ivd && x->dim[d] == i->dim[e], "batch dimension %lld does not fit the indices", (long long)d);
		NEED(!has(list(a, COLLAPSED), count(a, COLLAPSED), d) && !has(list(a, MAP), count(a, MAP), d),
		     "dimension %lld is batched and indexed", (long long)d);
	}
	s->dtype = x->dtype;
	NEED(x->dtype != DT_token, "a token");
	s->rank = batch + offset;
	int64_t size[IR_MAX_RANK];
	int n = 0;
	for (int d = 0; d < x->rank; d++) {
		int64_t z = list(a, SIZE)[d];
		bool gone = has(list(a, COLLAPSED), count(a, COLLAPSED), d) || has(list(a, OBATCH), count(a, OBATCH), d);
		NEED(z >= 0 && z <= x->dim[d] && (!gone || z <= 1), "size %lld of dimension %d", (long long)z, d);
		if (!gone)
			size[n++] = z;
	}
	n = 0;
	for (int r = 0, k = 0; r < s->rank; r++) {
		if (has(list(a, OFFSET), offset, r)) {
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
	enum { WINDOW, INSERTED, IBATCH, SBATCH, TO, INDEX_DIM, SORTED, UNIQUE, REDOP, FN };
	uint32_t n = a->o->nin / 2;
	NEED(a->o->nin % 2 == 1 && n >= 1 && a->o->nout == n, "it has %u operands and %u results", a->o->nin, a->o->nout);
	const struct ir_type_info *x = a->in[0], *i = operand(a, n), *u = operand(a, n + 1);
	int64_t ivd = num(a, INDEX_DIM);
	NEED(whole(i), "indices that are not integers");
	NEED(ivd >= 0 && ivd <= i->rank, "index_dim %lld of rank %d", (long long)ivd, i->rank);
	NEED(count(a, TO) == (ivd < i->rank ? i->dim[ivd] : 1), "%d index components where the indices have %lld", count(a, TO),
	     (long long)(ivd < i->rank ? i->dim[ivd] : 1));
	TRY(axes(a, WINDOW, u->rank));
	TRY(axes(a, INSERTED, x->rank));
	TRY(axes(a, IBATCH, x->rank));
	TRY(axes(a, TO, x->rank));
	TRY(axes(a, SBATCH, i->rank));
	TRY(length(a, SBATCH, count(a, IBATCH)));
	for (int k = 0; k < count(a, IBATCH); k++) {
		int64_t d = list(a, IBATCH)[k], e = list(a, SBATCH)[k];
		NEED(e != ivd && x->dim[d] == i->dim[e], "batch dimension %lld does not fit the indices", (long long)d);
		NEED(!has(list(a, INSERTED), count(a, INSERTED), d) && !has(list(a, TO), count(a, TO), d),
		     "dimension %lld is batched and indexed", (long long)d);
	}
	for (int k = 1; k < count(a, WINDOW); k++)
		NEED(list(a, WINDOW)[k] > list(a, WINDOW)[k - 1], "window_dims do not ascend");
	NEED(count(a, WINDOW) + count(a, INSERTED) + count(a, IBATCH) == x->rank, "windows of another rank than the operand");
	NEED(u->rank == count(a, WINDOW) + i->rank - (ivd < i->rank), "updates of rank %d", u->rank);
	for (int r = 0, k = 0, d = 0; r < u->rank; r++) {
		if (has(list(a, WINDOW), count(a, WINDOW), r)) {
			while (has(list(a, INSERTED), count(a, INSERTED), d) || has(list(a, IBATCH), count(a, IBATCH), d))
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
	return ru_reducer(a, REDOP, FN, n, true);
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
		if (!has(list(a, 0), count(a, 0), d))
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
	for (int k = 0; k < 6; k++) {
		TRY(length(a, k, t->rank));
		TRY(range(a, k, k < 4 ? 1 : -FAR, FAR));
	}
	for (int d = 0; d < t->rank; d++) {
		s->dim[d] = windows(t->dim[d], list(a, 0)[d], list(a, 1)[d], list(a, 2)[d], list(a, 3)[d], list(a, 4)[d], list(a, 5)[d]);
		NEED(s->dim[d] >= 0, "dimension %d is too large", d);
	}
	return NULL;
}

static struct err *select_and_scatter(const struct at *a)
{
	const struct ir_type_info *x = a->in[0], *src = a->in[1];
	NEED(src->dtype == x->dtype && src->rank == x->rank && x->dtype != DT_token, "the source has another rank or type");
	NEED(ru_scalar_of(a, operand_t(a, 2), x->dtype), "the initial value is not a scalar of the operand's type");
	for (int k = 0; k < 4; k++) {
		TRY(length(a, k, x->rank));
		TRY(range(a, k, k < 2 ? 1 : -FAR, FAR));
	}
	for (int d = 0; d < x->rank; d++)
		NEED(src->dim[d] == windows(x->dim[d], list(a, 0)[d], list(a, 1)[d], 1, 1, list(a, 2)[d], list(a, 3)[d]),
		     "the source does not fit the windows in dimension %d", d);
	for (int k = 0; k < 2; k++) {
		int64_t f = num(a, 4 + k);
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
	NEED(num(a, 0) >= 0 && num(a, 0) < MAX(a->in[0]->rank, 1), "dim %lld", (long long)num(a, 0));
	int64_t f = num(a, 2);
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
	for (int k = 0; k < 4; k++)
		TRY(axes(a, k, k % 2 ? y->rank : x->rank));
	TRY(length(a, 1, count(a, 0)));
	TRY(length(a, 3, count(a, 2)));
	for (int side = 0; side < 2; side++)
		for (int i = 0; i < count(a, side); i++)
			NEED(!has(list(a, 2 + side), count(a, 2 + side), list(a, side)[i]), "dimension %lld is batch and contracted",
			     (long long)list(a, side)[i]);
	s->rank = 0;
	NEED(x->rank + y->rank - count(a, 0) - 2 * count(a, 2) <= IR_MAX_RANK, "result of too high a rank");
	for (int k = 0; k < 4; k += 2)
		for (int i = 0; i < count(a, k); i++) {
			int64_t p = x->dim[list(a, k)[i]], q = y->dim[list(a, k + 1)[i]];
			NEED(p == q, "extents %lld and %lld of %s dimension %d", (long long)p, (long long)q, k ? "contracted" : "batch", i);
			if (!k)
				s->dim[s->rank++] = p;
		}
	for (int side = 0; side < 2; side++) {
		const struct ir_type_info *t = side ? y : x;
		for (int d = 0; d < t->rank; d++)
			if (!has(list(a, side), count(a, side), d) && !has(list(a, 2 + side), count(a, 2 + side), d))
				s->dim[s->rank++] = t->dim[d];
	}
	TRY(within(a, 4, 0, 2));
	return within(a, 8, 1, 64);
}

static struct err *sh_convolution(const struct at *a, struct shape *s)
{
	enum { LHS, RHS, OUT, STRIDE, LOW, HIGH, LDIL, RDIL, REV, FG, BG, PREC };
	const struct ir_type_info *x = a->in[0], *k = a->in[1];
	int rank = x->rank, n = rank - 2;
	NEED(rank >= 2 && k->rank == rank, "operands of rank %d and %d", rank, k->rank);
	NEED(cls(x) != DT_NONE && cls(k) != DT_NONE, "a token");
	for (int i = LHS; i <= OUT; i++) {
		TRY(length(a, i, rank));
		TRY(axes(a, i, rank));
	}
	for (int i = STRIDE; i <= REV; i++) {
		TRY(length(a, i, n));
		TRY(range(a, i, i == LOW || i == HIGH ? -FAR : i == REV ? 0 : 1, i == REV ? 1 : FAR));
	}
	int64_t fg = num(a, FG), bg = num(a, BG);
	const int64_t *l = list(a, LHS), *r = list(a, RHS), *o = list(a, OUT);
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
		int64_t e = w == 0 ? -1 : windows(x->dim[l[2 + i]], w, list(a, STRIDE)[i], list(a, LDIL)[i], list(a, RDIL)[i], list(a, LOW)[i],
		                                  list(a, HIGH)[i]);
		if (w == 0)    /* an empty window fits everywhere */
			e = windows(x->dim[l[2 + i]], 1, list(a, STRIDE)[i], list(a, LDIL)[i], 1, list(a, LOW)[i], list(a, HIGH)[i] + 1);
		NEED(e >= 0, "spatial dimension %d is too large", i);
		s->dim[o[2 + i]] = e;
	}
	return within(a, PREC, 0, 2);
}

static struct err *sh_fft(const struct at *a, struct shape *s)
{
	const struct ir_type_info *x = a->in[0];
	int64_t kind = num(a, 0);
	int n = count(a, 1);
	TRY(within(a, 0, 0, 3));
	NEED(n >= 1 && n <= 3 && n <= x->rank, "%d dimensions of %d", n, x->rank);
	NEED(kind == 2 ? x->dtype == DT_f32 || x->dtype == DT_f64 : cls(x) == DT_COMPLEX, "operand of type %s", dtype_info[x->dtype].name);
	like(s, x);
	for (int i = 0; i < n; i++) {
		int d = x->rank - n + i;
		int64_t len = list(a, 1)[i], want = kind == 3 && i == n - 1 ? len / 2 + 1 : len;
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

/* Device positions of attribute k's group: each at most once, -1 fills up. */
static struct err *group_ok(const struct at *a, int k)
{
	const struct ir_group_info *g = &a->m->group.p[num(a, k)];
	NEED(num(a, k) && g->nrow >= 0 && g->ncol > 0, "it has no groups");
	int64_t n = (int64_t)g->nrow * g->ncol, most = -1;
	for (int64_t i = 0; i < n; i++) {
		NEED(g->id[i] >= -1 && g->id[i] < 1 << 20, "device position %lld", (long long)g->id[i]);
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

/* Members of a group of collective a's attribute k; 0 if it has none. */
static int64_t members(const struct at *a, int k)
{
	int64_t g = num(a, k);
	return g ? a->m->group.p[g].ncol : 0;
}

/* Result i of a collective that keeps the element type; *known if the shape follows. */
static struct err *sh_coll(const struct at *a, uint32_t i, struct shape *s)
{
	const struct ir_type_info *x = operand(a, i);
	like(s, x);
	NEED(x->dtype != DT_token, "a token");
	int64_t n, d = num(a, 0);
	switch (a->o->kind) {
	case IR_all_gather:
		n = members(a, 1);
		NEED(d >= 0 && d < x->rank && n, "dim %lld of rank %d", (long long)d, x->rank);
		NEED(x->dim[d] <= ((int64_t)1 << 48) / n, "a result that is too large");
		s->dim[d] *= n;
		break;
	case IR_reduce_scatter:
		n = members(a, 1);
		NEED(d >= 0 && d < x->rank && n && x->dim[d] % n == 0, "dim %lld does not split in %lld", (long long)d, (long long)n);
		s->dim[d] /= n;
		break;
	case IR_all_to_all: {
		int64_t c = num(a, 1);
		n = members(a, 2);
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

static struct err *permute(const struct at *a)
{
	int n = count(a, 0);
	const int64_t *p = list(a, 0);
	NEED(n % 2 == 0, "an odd number of device positions");
	int64_t most = -1;
	for (int i = 0; i < n; i++) {
		NEED(p[i] >= 0 && p[i] < FAR, "device position %lld", (long long)p[i]);
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
	NEED(b->dim[b->rank - (num(a, 0) ? 2 : 1)] == x->dim[x->rank - 1], "the right-hand side does not fit");
	for (int k = 0; k < 3; k++)
		TRY(within(a, k, 0, 1));
	return within(a, 3, 1, 3);
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
		TRY(length(a, 0, s->rank));
		TRY(axes(a, 0, s->rank));
		for (int d = 0; d < s->rank; d++)
			s->dim[d] = a->in[0]->dim[list(a, 0)[d]];
		return NULL;
	case IR_reverse:
		like(s, a->in[0]);
		return axes(a, 0, s->rank);
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
			TRY(axes(a, 0, a->in[0]->rank));
			TRY(ru_reducer(a, 1, 2, o->nin / 2, false));
		}
		return sh_reduce(a, i, s);
	case IR_reduce_window:
		if (!i) {
			TRY(ru_reduce_in(a));
			TRY(ru_reducer(a, 6, 7, o->nin / 2, false));
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
		int64_t k = num(a, 0);
		like(s, a->in[0]);
		NEED(s->rank >= 1 && k >= 0 && k <= s->dim[s->rank - 1] && s->dtype != DT_token, "k is %lld", (long long)k);
		s->dim[s->rank - 1] = k;
		if (i)
			s->dtype = DT_i32;
		return NULL;
	}
	case IR_cumulative:
		like(s, a->in[0]);
		NEED(num(a, 0) >= 0 && num(a, 0) < s->rank, "dim %lld", (long long)num(a, 0));
		NEED(num(a, 2) < RED_lse, "operation '%s'", redop_name[num(a, 2)]);
		return NULL;
	case IR_dot:
		*known = false;
		return sh_dot(a, s);
	case IR_convolution:
		*known = false;
		return sh_convolution(a, s);
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
		TRY(within(a, 0, 0, 2));
		NEED(a->in[0]->rank == 1 && whole(a->in[0]), "a state that is no vector of integers");
		like(s, a->in[0]);
		*known = i == 0;
		return NULL;
	case IR_reduce_precision:
		like(s, a->in[0]);
		NEED(cls(a->in[0]) == DT_FLOAT && num(a, 0) >= 1 && num(a, 1) >= 0, "exponent %lld, mantissa %lld", (long long)num(a, 0),
		     (long long)num(a, 1));
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
			TRY(group_ok(a, o->kind == IR_all_reduce ? 0 : o->kind == IR_all_to_all ? 2 : 1));
		return sh_coll(a, i, s);
	case IR_collective_permute:
		TRY(permute(a));
		return sh_coll(a, i, s);
	case IR_collective_broadcast:
		TRY(group_ok(a, 0));
		return sh_coll(a, i, s);
	case IR_sharding_constraint:
		TRY(ru_shard_fits(a, num(a, 0), operand_t(a, 0)));
		like(s, a->in[0]);
		return NULL;
	case IR_loop: {
		TRY(i ? NULL : ru_loop(a));
		uint32_t k = 0;
		for (int pass = 0; pass < 2; pass++)    /* carries, then stacks */
			for (uint32_t j = 0; j < o->nin; j++)
				if ((pass ? list(a, 3)[j] >= ROLE_OUT : list(a, 3)[j] == ROLE_CARRY) && k++ == i)
					like(s, operand(a, j));
		return NULL;
	}
	case IR_call:
	case IR_fused:
		if (!i)
			TRY(ru_callee(a, num(a, 0), 0));
		like(s, &a->m->type.p[ru_ret_t(a, num(a, 0), i)]);
		return NULL;
	case IR_case:
		NEED(o->nin >= 1 && ru_scalar_of(a, operand_t(a, 0), DT_i32) && count(a, 0) >= 1, "no i32 index or no branches");
		for (int k = 0; k < count(a, 0) && !i; k++)
			TRY(ru_callee(a, list(a, 0)[k], 1));
		like(s, &a->m->type.p[ru_ret_t(a, list(a, 0)[0], i)]);
		return NULL;
	default:
		*known = false;
		s->rank = -1;
		return NULL;
	}
}
