/* The rules of each operation: what its operands, attributes and functions must be, and the shape of its
 * results.  One function says both (shape), so that ir_infer and ir_verify cannot disagree; check holds the
 * rules that do not bear on a result's shape. */
#include "ir.h"

#include <stdlib.h>

struct shape { enum dtype dtype; int rank; int64_t dim[IR_MAX_RANK]; };

/* The op under examination. */
struct at {
	const struct ir_module *m;
	const struct ir_fn *fn;
	const struct ir_op *o;
	const int64_t *w[16];        /* attributes: value, or count and items */
	const struct ir_type_info *in[4];    /* types of the first operands */
};

#define BAD(...) return ERR(INVALID, __VA_ARGS__)
#define NEED(cond, ...) do { if (!(cond)) BAD(__VA_ARGS__); } while (0)

static const struct ir_type_info *operand(const struct at *a, uint32_t i)
{
	return ir_vtype(a->m, a->fn, ir_in(a->fn, a->o, i));
}

static ir_type operand_t(const struct at *a, uint32_t i)
{
	return a->fn->val.p[ir_in(a->fn, a->o, i)].type;
}

static ir_type result_t(const struct at *a, uint32_t i)
{
	return a->fn->val.p[a->o->out + i].type;
}

static int cls(const struct ir_type_info *t)
{
	return dtype_info[t->dtype].cls;
}

static bool whole(const struct ir_type_info *t)
{
	return cls(t) == DT_INT || cls(t) == DT_UINT;
}

static bool same_dims(const struct ir_type_info *x, const struct ir_type_info *y)
{
	return x->rank == y->rank && (x->rank == 0 || memcmp(x->dim, y->dim, sizeof *x->dim * x->rank) == 0);
}

static void like(struct shape *s, const struct ir_type_info *t)
{
	s->dtype = t->dtype;
	s->rank = t->rank;
	if (t->rank)
		memcpy(s->dim, t->dim, sizeof *t->dim * t->rank);
}

static int64_t num(const struct at *a, int k)
{
	return a->w[k][0];
}

static int count(const struct at *a, int k)
{
	return (int)a->w[k][0];
}

static const int64_t *list(const struct at *a, int k)
{
	return a->w[k] + 1;
}

static bool has(const int64_t *p, int n, int64_t v)
{
	for (int i = 0; i < n; i++)
		if (p[i] == v)
			return true;
	return false;
}

/* List k holds different numbers below limit. */
static struct err *axes(const struct at *a, int k, int limit)
{
	const int64_t *p = list(a, k);
	for (int i = 0; i < count(a, k); i++)
		NEED(p[i] >= 0 && p[i] < limit && !has(p, i, p[i]), "%.*s: %lld is out of [0, %d) or there twice",
		     ir_info(a->o->kind)->attr_len[k], ir_info(a->o->kind)->attr_name[k], (long long)p[i], limit);
	return NULL;
}

static struct err *length(const struct at *a, int k, int n)
{
	NEED(count(a, k) == n, "%.*s has %d entries, not %d", ir_info(a->o->kind)->attr_len[k], ir_info(a->o->kind)->attr_name[k],
	     count(a, k), n);
	return NULL;
}

/* Entries of list k lie in [lo, hi]. */
static struct err *range(const struct at *a, int k, int64_t lo, int64_t hi)
{
	for (int i = 0; i < count(a, k); i++)
		NEED(list(a, k)[i] >= lo && list(a, k)[i] <= hi, "%.*s: %lld is out of range", ir_info(a->o->kind)->attr_len[k],
		     ir_info(a->o->kind)->attr_name[k], (long long)list(a, k)[i]);
	return NULL;
}

static struct err *within(const struct at *a, int k, int64_t lo, int64_t hi)
{
	NEED(num(a, k) >= lo && num(a, k) <= hi, "%.*s is %lld, out of [%lld, %lld]", ir_info(a->o->kind)->attr_len[k],
	     ir_info(a->o->kind)->attr_name[k], (long long)num(a, k), (long long)lo, (long long)hi);
	return NULL;
}

enum { FAR = 1 << 30 };

/* --- functions that an op holds ----------------------------------------------- */

static struct err *sig_count(const struct at *a, int64_t f, uint32_t np, uint32_t nr)
{
	NEED(f > 0 && f < (int64_t)a->m->fn.n, "it has no function %lld", (long long)f);
	const struct ir_fn *g = a->m->fn.p[f];
	NEED(g->nparam == np && g->result.n == nr, "function '%s' takes %u values and gives %zu, not %u and %u", ir_text(a->m, g->name),
	     g->nparam, g->result.n, np, nr);
	return NULL;
}

static ir_type param_t(const struct at *a, int64_t f, uint32_t i)
{
	return a->m->fn.p[f]->val.p[i + 1].type;
}

static ir_type ret_t(const struct at *a, int64_t f, uint32_t i)
{
	const struct ir_fn *g = a->m->fn.p[f];
	return g->val.p[g->result.p[i]].type;
}

static struct err *is_type(const struct at *a, ir_type t, ir_type want, const char *what, uint32_t i)
{
	if (t == want)
		return NULL;
	struct str s = {0};
	ir_print_type(&s, a->m, t);
	str_add(&s, ", not ");
	ir_print_type(&s, a->m, want);
	struct err *e = ERR(INVALID, "%s %u is %s", what, i, s.p);
	str_free(&s);
	return e;
}

/* A scalar of dtype dt. */
static bool scalar_of(const struct at *a, ir_type t, enum dtype dt)
{
	return a->m->type.p[t].dtype == dt && a->m->type.p[t].rank == 0;
}

/* f(x0 .., y0 ..) of n scalars each, giving n scalars of the same dtypes; operand i says the i-th dtype. */
static struct err *reducer(const struct at *a, int redop, int fn, uint32_t n, bool overwrite)
{
	int64_t f = num(a, fn);
	if (num(a, redop) != RED_fn || (overwrite && !f)) {
		NEED(!f, "a function beside operation '%s'", redop_name[num(a, redop)]);
		NEED(n == 1 || overwrite, "operation '%s' on %u operands", redop_name[num(a, redop)], n);
		return NULL;
	}
	TRY(sig_count(a, f, 2 * n, n));
	for (uint32_t i = 0; i < n; i++) {
		enum dtype dt = operand(a, i)->dtype;
		NEED(scalar_of(a, param_t(a, f, i), dt) && scalar_of(a, param_t(a, f, n + i), dt) && scalar_of(a, ret_t(a, f, i), dt),
		     "function '%s' is not one of scalars of operand %u's type", ir_text(a->m, a->m->fn.p[f]->name), i);
	}
	return NULL;
}

/* Parameters of f from the first-th on have the types of operands from on; its results are the op's. */
static struct err *callee(const struct at *a, int64_t f, uint32_t from)
{
	TRY(sig_count(a, f, a->o->nin - from, a->o->nout));
	for (uint32_t i = from; i < a->o->nin; i++)
		TRY(is_type(a, operand_t(a, i), param_t(a, f, i - from), "operand", i));
	for (uint32_t i = 0; i < a->o->nout; i++)
		TRY(is_type(a, result_t(a, i), ret_t(a, f, i), "result", i));
	return NULL;
}

static bool slice_of(const struct at *a, ir_type part, ir_type stack)
{
	const struct ir_type_info *p = &a->m->type.p[part], *s = &a->m->type.p[stack];
	return s->rank == p->rank + 1 && s->dtype == p->dtype &&
	       (p->rank == 0 || memcmp(s->dim + 1, p->dim, sizeof *p->dim * p->rank) == 0);
}

static struct err *loop(const struct at *a)
{
	int64_t trip = num(a, 0), cond = num(a, 1), body = num(a, 2);
	uint32_t n = a->o->nin, carry = 0, outs = 0, param = 1, out_at;
	TRY(length(a, 3, (int)n));
	const int64_t *role = list(a, 3);
	for (uint32_t i = 0; i < n; i++) {
		NEED(role[i] >= ROLE_CARRY && role[i] <= ROLE_OUT_REV, "role %lld", (long long)role[i]);
		NEED(trip >= 0 || role[i] <= ROLE_CONST, "a stack in a loop without a trip count");
		carry += role[i] == ROLE_CARRY;
		outs += role[i] >= ROLE_OUT;
	}
	NEED(trip >= -1, "trip count %lld", (long long)trip);
	NEED(a->o->nout == carry + outs, "it has %u results for %u carried values and %u stacks", a->o->nout, carry, outs);
	TRY(sig_count(a, body, 1 + n - outs, carry + outs));
	NEED(scalar_of(a, param_t(a, body, 0), DT_i32), "the body's first parameter is not the i32 number of the iteration");
	out_at = carry;
	carry = 0;
	for (uint32_t i = 0; i < n; i++) {
		ir_type t = operand_t(a, i);
		if (role[i] <= ROLE_CONST) {
			TRY(is_type(a, param_t(a, body, param++), t, "the body's parameter for operand", i));
			if (role[i] == ROLE_CARRY) {
				TRY(is_type(a, ret_t(a, body, carry), t, "the body's result for operand", i));
				TRY(is_type(a, result_t(a, carry++), t, "the result for operand", i));
			}
			continue;
		}
		NEED(a->m->type.p[t].rank > 0 && a->m->type.p[t].dim[0] >= trip, "operand %u has fewer than %lld slices", i, (long long)trip);
		if (role[i] < ROLE_OUT) {
			NEED(slice_of(a, param_t(a, body, param++), t), "the body's parameter for operand %u is not its slice", i);
		} else {
			NEED(slice_of(a, ret_t(a, body, out_at), t), "the body's result for operand %u is not its slice", i);
			TRY(is_type(a, result_t(a, out_at++), t, "the result for operand", i));
		}
	}
	if (trip >= 0) {
		NEED(!cond, "a condition beside a trip count");
		return NULL;
	}
	TRY(sig_count(a, cond, n, 1));
	for (uint32_t i = 0; i < n; i++)
		TRY(is_type(a, param_t(a, cond, i), operand_t(a, i), "the condition's parameter", i));
	NEED(scalar_of(a, ret_t(a, cond, 0), DT_pred), "the condition does not give a pred");
	return NULL;
}

/* Local is global with each dimension divided by the manual axes that cut it. */
static struct err *local_of(const struct at *a, ir_type global, ir_type local, ir_shard h, const char *what, uint32_t i)
{
	const struct ir_type_info *g = &a->m->type.p[global], *l = &a->m->type.p[local];
	const struct ir_shard_info *s = &a->m->shard.p[h];
	NEED(g->dtype == l->dtype && g->rank == l->rank, "%s %u has another type or rank inside", what, i);
	for (int d = 0; d < g->rank; d++) {
		int64_t cut = 1;
		for (int k = 0; h && d < s->rank && k < s->dim[d].naxis; k++)
			if (has(list(a, 2), count(a, 2), s->dim[d].axis[k].axis))
				cut *= s->dim[d].axis[k].size;
		NEED(g->dim[d] == l->dim[d] * cut, "%s %u: dimension %d is %lld outside and %lld inside, cut in %lld", what, i, d,
		     (long long)g->dim[d], (long long)l->dim[d], (long long)cut);
	}
	return NULL;
}

static struct err *shard_fits(const struct at *a, int64_t h, ir_type t)
{
	const struct ir_shard_info *s = &a->m->shard.p[h];
	NEED(!h || s->rank == a->m->type.p[t].rank || (s->rank == 0 && !a->m->mesh.p[s->mesh].naxis),
	     "a sharding of rank %d for a value of rank %d", s->rank, a->m->type.p[t].rank);
	return NULL;
}

static struct err *manual(const struct at *a)
{
	int64_t body = num(a, 3);
	TRY(length(a, 0, (int)a->o->nin));
	TRY(length(a, 1, (int)a->o->nout));
	TRY(sig_count(a, body, a->o->nin, a->o->nout));
	int most = 0;
	for (size_t i = 0; i < a->m->mesh.n; i++)
		most = MAX(most, a->m->mesh.p[i].naxis);
	TRY(axes(a, 2, most));
	for (uint32_t i = 0; i < a->o->nin; i++) {
		TRY(shard_fits(a, list(a, 0)[i], operand_t(a, i)));
		TRY(local_of(a, operand_t(a, i), param_t(a, body, i), (ir_shard)list(a, 0)[i], "operand", i));
	}
	for (uint32_t i = 0; i < a->o->nout; i++) {
		TRY(shard_fits(a, list(a, 1)[i], result_t(a, i)));
		TRY(local_of(a, result_t(a, i), ret_t(a, body, i), (ir_shard)list(a, 1)[i], "result", i));
	}
	return NULL;
}

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
		TRY(is_type(a, operand_t(a, i), operand_t(a, main_in), "operand", i));
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
	NEED(scalar_of(a, operand_t(a, 1), t->dtype), "the padding value is not a scalar of the operand's type");
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

static struct err *scatter(const struct at *a)
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
		TRY(is_type(a, result_t(a, k), operand_t(a, k), "result", k));
	}
	return reducer(a, REDOP, FN, n, true);
}

/* Operands of equal extents, then initial scalars of their types. */
static struct err *reduce_in(const struct at *a)
{
	uint32_t n = a->o->nin / 2;
	NEED(n >= 1 && a->o->nin == 2 * n && a->o->nout == n, "it has %u operands and %u results", a->o->nin, a->o->nout);
	for (uint32_t k = 0; k < n; k++) {
		NEED(same_dims(a->in[0], operand(a, k)) && operand(a, k)->dtype != DT_token, "operand %u has another shape", k);
		NEED(scalar_of(a, operand_t(a, n + k), operand(a, k)->dtype), "initial value %u is not a scalar of the operand's type", k);
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
	NEED(scalar_of(a, operand_t(a, 2), x->dtype), "the initial value is not a scalar of the operand's type");
	for (int k = 0; k < 4; k++) {
		TRY(length(a, k, x->rank));
		TRY(range(a, k, k < 2 ? 1 : -FAR, FAR));
	}
	for (int d = 0; d < x->rank; d++)
		NEED(src->dim[d] == windows(x->dim[d], list(a, 0)[d], list(a, 1)[d], 1, 1, list(a, 2)[d], list(a, 3)[d]),
		     "the source does not fit the windows in dimension %d", d);
	for (int k = 0; k < 2; k++) {
		int64_t f = num(a, 4 + k);
		TRY(sig_count(a, f, 2, 1));
		NEED(scalar_of(a, param_t(a, f, 0), x->dtype) && scalar_of(a, param_t(a, f, 1), x->dtype) &&
		     scalar_of(a, ret_t(a, f, 0), k ? (enum dtype)x->dtype : DT_pred), "function %d has the wrong types", k);
	}
	return NULL;
}

static struct err *sort(const struct at *a)
{
	uint32_t n = a->o->nin;
	NEED(n >= 1 && a->o->nout == n, "it has %u operands and %u results", n, a->o->nout);
	NEED(num(a, 0) >= 0 && num(a, 0) < MAX(a->in[0]->rank, 1), "dim %lld", (long long)num(a, 0));
	int64_t f = num(a, 2);
	TRY(sig_count(a, f, 2 * n, 1));
	for (uint32_t k = 0; k < n; k++) {
		const struct ir_type_info *t = operand(a, k);
		NEED(same_dims(a->in[0], t) && t->dtype != DT_token, "operand %u has another shape", k);
		NEED(scalar_of(a, param_t(a, f, 2 * k), t->dtype) && scalar_of(a, param_t(a, f, 2 * k + 1), t->dtype),
		     "the comparison does not take operand %u", k);
	}
	NEED(scalar_of(a, ret_t(a, f, 0), DT_pred), "the comparison does not give a pred");
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

/* --- one op ------------------------------------------------------------------------- */

/* Every attribute word names something that exists. */
static struct err *attributes(struct at *a)
{
	const struct ir_kind_info *k = ir_info(a->o->kind);
	size_t w = a->o->attr, end = a->fn->attr.n;
	for (int i = 0; i < k->nattr; i++) {
		char kind = k->kind[i];
		bool is_list = kind == 'I' || kind == 'F' || kind == 'H';
		NEED(w < end && (!is_list || (a->fn->attr.p[w] >= 0 && (uint64_t)a->fn->attr.p[w] < end - w)), "its attributes are cut short");
		a->w[i] = a->fn->attr.p + w;
		int64_t n = is_list ? a->w[i][0] : 1, limit;
		switch (kind) {
		case 'f': case 'F': limit = (int64_t)a->m->fn.n; break;
		case 't': limit = DT_COUNT; break;
		case 'R': limit = RED_COUNT; break;
		case 'b': case 'D': limit = (int64_t)a->m->nblob; break;
		case 's': limit = (int64_t)a->m->str.n; break;
		case 'g': limit = (int64_t)a->m->group.n; break;
		case 'h': case 'H': limit = (int64_t)a->m->shard.n; break;
		default: limit = 0; break;
		}
		for (int64_t j = 0; j < n && limit; j++)
			NEED(a->w[i][is_list + j] >= 0 && a->w[i][is_list + j] < limit, "%.*s names what does not exist", k->attr_len[i], k->attr_name[i]);
		NEED(kind != 't' || dtype_info[a->w[i][0]].name, "%.*s is no element type", k->attr_len[i], k->attr_name[i]);
		w += is_list ? 1 + (size_t)n : 1;
	}
	return NULL;
}

/* The shape of result i.  *known false: the op states it (s may still hold what is known of it); then the rules are
 * in check. */
static struct err *shape(const struct at *a, uint32_t i, struct shape *s, bool *known)
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
		TRY(i ? NULL : scatter(a));
		like(s, operand(a, i));
		return NULL;
	case IR_reduce:
		if (!i) {
			TRY(reduce_in(a));
			TRY(axes(a, 0, a->in[0]->rank));
			TRY(reducer(a, 1, 2, o->nin / 2, false));
		}
		return sh_reduce(a, i, s);
	case IR_reduce_window:
		if (!i) {
			TRY(reduce_in(a));
			TRY(reducer(a, 6, 7, o->nin / 2, false));
		}
		return sh_reduce_window(a, i, s);
	case IR_select_and_scatter:
		TRY(select_and_scatter(a));
		like(s, a->in[0]);
		return NULL;
	case IR_sort:
		TRY(i ? NULL : sort(a));
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
		TRY(shard_fits(a, num(a, 0), operand_t(a, 0)));
		like(s, a->in[0]);
		return NULL;
	case IR_loop: {
		TRY(i ? NULL : loop(a));
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
			TRY(callee(a, num(a, 0), 0));
		like(s, &a->m->type.p[ret_t(a, num(a, 0), i)]);
		return NULL;
	case IR_case:
		NEED(o->nin >= 1 && scalar_of(a, operand_t(a, 0), DT_i32) && count(a, 0) >= 1, "no i32 index or no branches");
		for (int k = 0; k < count(a, 0) && !i; k++)
			TRY(callee(a, list(a, 0)[k], 1));
		like(s, &a->m->type.p[ret_t(a, list(a, 0)[0], i)]);
		return NULL;
	default:
		*known = false;
		s->rank = -1;
		return NULL;
	}
}

/* Rules about results that the op states itself, and of ops without results. */
static struct err *check(const struct at *a)
{
	const struct ir_op *o = a->o;
	const struct ir_type_info *r = o->nout ? &a->m->type.p[result_t(a, 0)] : NULL, *x = o->nin ? a->in[0] : NULL;
	switch (o->kind) {
	case IR_convert:
		NEED(same_dims(x, r) && cls(r) != DT_NONE, "its result has other extents");
		return NULL;
	case IR_bitcast:
		NEED(same_dims(x, r) && dtype_info[x->dtype].bits == dtype_info[r->dtype].bits, "its result has other extents or width");
		return NULL;
	case IR_constant: {
		size_t n, e = dtype_info[r->dtype].bytes;
		ir_blob_data(a->m, (ir_blob)num(a, 0), &n);
		NEED(cls(r) != DT_NONE && num(a, 0) && (n == e || n == (size_t)r->bytes), "%zu bytes for a value of %lld", n, (long long)r->bytes);
		return NULL;
	}
	case IR_iota:
		NEED(num(a, 0) >= 0 && num(a, 0) < r->rank && cls(r) != DT_NONE && cls(r) != DT_PRED, "dim %lld of rank %d", (long long)num(a, 0),
		     r->rank);
		return NULL;
	case IR_broadcast:
		TRY(length(a, 0, x->rank));
		TRY(axes(a, 0, r->rank));
		NEED(x->dtype == r->dtype && x->dtype != DT_token, "its result has another element type");
		for (int d = 0; d < x->rank; d++)
			NEED(x->dim[d] == 1 || x->dim[d] == r->dim[list(a, 0)[d]], "dimension %d of extent %lld becomes %lld", d, (long long)x->dim[d],
			     (long long)r->dim[list(a, 0)[d]]);
		return NULL;
	case IR_reshape:
		NEED(x->dtype == r->dtype && x->count == r->count && x->dtype != DT_token, "its result has another number or type of elements");
		return NULL;
	case IR_rng_bit_generator:
		r = &a->m->type.p[result_t(a, 1)];
		NEED(whole(r) || cls(r) == DT_FLOAT, "bits of type %s", dtype_info[r->dtype].name);
		return NULL;
	case IR_rng:
		TRY(within(a, 0, 1, 2));
		NEED(x->rank == 0 && a->in[1]->rank == 0 && x->dtype == a->in[1]->dtype && x->dtype == r->dtype && x->dtype != DT_token,
		     "its bounds are not scalars of the result's type");
		return NULL;
	case IR_bitcast_convert: {
		int p = dtype_info[x->dtype].bits, q = dtype_info[r->dtype].bits;
		const struct ir_type_info *wide = p > q ? x : r, *thin = p > q ? r : x;
		NEED(p && q && p != q && MAX(p, q) % MIN(p, q) == 0, "from %d bits to %d", p, q);
		NEED(thin->rank == wide->rank + 1 && thin->dim[wide->rank] == MAX(p, q) / MIN(p, q) &&
		     (wide->rank == 0 || memcmp(thin->dim, wide->dim, sizeof *wide->dim * wide->rank) == 0), "its result has other extents");
		return NULL;
	}
	case IR_custom_call:
		NEED(count(a, 4) % 3 == 0, "aliases that are no triples");
		for (int i = 0; i < count(a, 4); i += 3)
			NEED(list(a, 4)[i] >= 0 && list(a, 4)[i] < o->nout && list(a, 4)[i + 1] >= 0 && list(a, 4)[i + 1] < o->nin, "alias %d", i / 3);
		return NULL;
	case IR_after_all:
		for (uint32_t i = 0; i < o->nin; i++)
			NEED(operand(a, i)->dtype == DT_token, "operand %u is no token", i);
		return NULL;
	case IR_all_reduce:
	case IR_reduce_scatter: {
		int k = o->kind == IR_all_reduce ? 1 : 2;
		if (num(a, k) != RED_fn) {
			NEED(!num(a, k + 1), "a function beside operation '%s'", redop_name[num(a, k)]);
			return NULL;
		}
		for (uint32_t i = 0; i < o->nin; i++) {
			int64_t f = num(a, k + 1);
			enum dtype dt = operand(a, i)->dtype;
			TRY(sig_count(a, f, 2, 1));
			NEED(scalar_of(a, param_t(a, f, 0), dt) && scalar_of(a, param_t(a, f, 1), dt) && scalar_of(a, ret_t(a, f, 0), dt),
			     "its function does not combine operand %u", i);
		}
		return NULL;
	}
	case IR_manual:
		return manual(a);
	case IR_call:
	case IR_fused:
		return o->nout ? NULL : callee(a, num(a, 0), 0);
	case IR_loop:
		return o->nout ? NULL : loop(a);
	case IR_case:
		NEED(o->nin >= 1 && scalar_of(a, operand_t(a, 0), DT_i32) && count(a, 0) >= 1, "no i32 index or no branches");
		for (int k = 0; k < count(a, 0) && !o->nout; k++)
			TRY(callee(a, list(a, 0)[k], 1));
		return NULL;
	case IR_scatter:
		return o->nout ? NULL : scatter(a);
	case IR_reduce:
	case IR_reduce_window:
		return o->nout ? NULL : reduce_in(a);
	case IR_sort:
		return o->nout ? NULL : sort(a);
	default:
		return NULL;
	}
}

static struct err *start(struct at *a, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	*a = (struct at){ .m = m, .fn = fn, .o = o };
	NEED(o->kind > 0 && o->kind < IR_COUNT, "operation %d does not exist", o->kind);
	const struct ir_kind_info *k = ir_info(o->kind);
	NEED((k->nin < 0 || o->nin == (uint32_t)k->nin) && (k->nout < 0 || o->nout == (uint32_t)k->nout), "it has %u operands and %u results",
	     o->nin, o->nout);
	for (uint32_t i = 0; i < o->nin && i < NELEM(a->in); i++)
		a->in[i] = operand(a, i);
	return attributes(a);
}

static struct err *op_err(struct err *e, const struct ir_op *o)
{
	return err_wrap(e, "%s", o->kind > 0 && o->kind < IR_COUNT ? ir_info(o->kind)->name : "?");
}

struct err *ir_verify_op(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	struct at a;
	struct shape s;
	bool known;
	struct err *e = start(&a, m, fn, o);
	for (uint32_t i = 0; i < o->nout && !e; i++) {
		e = shape(&a, i, &s, &known);
		const struct ir_type_info *t = &m->type.p[result_t(&a, i)];
		if (e || s.rank < 0 || (!known && (ir_is_elem(o->kind) || o->kind == IR_rng_bit_generator)))
			continue;
		bool ok = s.rank == t->rank && (s.rank == 0 || memcmp(s.dim, t->dim, sizeof *s.dim * (size_t)s.rank) == 0);
		if (!ok || (known && s.dtype != t->dtype)) {
			struct str b = {0};
			str_add(&b, dtype_info[known ? (int)s.dtype : t->dtype].name);
			str_add(&b, "[");
			for (int d = 0; d < s.rank; d++)
				str_addf(&b, d ? ",%lld" : "%lld", (long long)s.dim[d]);
			str_add(&b, "], not ");
			ir_print_type(&b, m, result_t(&a, i));
			e = ERR(INVALID, "result %u is %s", i, b.p);
			str_free(&b);
		} else if (!known && t->dtype == DT_token) {
			e = ERR(INVALID, "result %u is a token", i);
		}
	}
	if (!e)
		e = check(&a);
	return e ? op_err(e, o) : NULL;
}

struct err *ir_infer(struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, ir_type *out)
{
	struct at a;
	struct shape s;
	bool known;
	struct err *e = start(&a, m, fn, o);
	for (uint32_t i = 0; i < o->nout && !e; i++) {
		e = shape(&a, i, &s, &known);
		out[i] = !e && known ? ir_tensor(m, s.dtype, s.rank, s.dim) : 0;
		for (uint32_t k = 0; k < o->nin && k < NELEM(a.in); k++)
			a.in[k] = operand(&a, k);    /* the table of types may have moved */
	}
	return e ? op_err(e, o) : NULL;
}

/* --- functions and modules -------------------------------------------------------------- */

static struct err *verify_fn(const struct ir_module *m, const struct ir_fn *fn)
{
	NEED(fn->val.n >= 1 && fn->nparam < fn->val.n, "%u parameters of %zu values", fn->nparam, fn->val.n);
	ir_val next = fn->nparam + 1;
	for (size_t i = 1; i < fn->val.n; i++) {
		const struct ir_value *v = &fn->val.p[i];
		NEED(v->type > 0 && v->type < m->type.n, "value %zu has no type", i);
		NEED(v->shard < m->shard.n, "value %zu has a sharding that does not exist", i);
		NEED((v->def == IR_PARAM) == (i <= fn->nparam), "value %zu and the parameters disagree", i);
	}
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		NEED(o->out == next || !o->nout, "operation %zu: its results begin at %u, not %u", i, o->out, next);
		NEED(o->nout <= fn->val.n - next, "operation %zu: more results than values", i);
		NEED(o->in <= fn->ref.n && o->nin <= fn->ref.n - o->in, "operation %zu: operands that do not exist", i);
		NEED(o->loc < m->loc.n, "operation %zu: a location that does not exist", i);
		for (uint32_t k = 0; k < o->nin; k++)
			NEED(ir_in(fn, o, k) > 0 && ir_in(fn, o, k) < next, "operation %zu (%s): operand %u is not defined before it", i,
			     ir_info(o->kind)->name, k);
		for (uint32_t k = 0; k < o->nout; k++)
			NEED(fn->val.p[next + k].def == i, "operation %zu: result %u says another operation made it", i, k);
		struct err *e = ir_verify_op(m, fn, o);
		if (e) {
			struct str s = {0};
			struct at a;
			struct err *unsafe = start(&a, m, fn, o);
			if (!unsafe)
				ir_print_op(&s, m, fn, o);
			err_free(unsafe);
			if (s.n > 300)
				s.n = 300;
			e = s.n ? err_wrap(e, "operation %zu, '%.*s'", i, (int)s.n, s.p) : err_wrap(e, "operation %zu", i);
			str_free(&s);
			return e;
		}
		next += o->nout;
	}
	NEED(next == fn->val.n, "%zu values, of which operations make up to %u", fn->val.n, next);
	for (size_t i = 0; i < fn->result.n; i++)
		NEED(fn->result.p[i] > 0 && fn->result.p[i] < next, "result %zu is not defined", i);
	return NULL;
}

/* No function holds itself. */
static struct err *acyclic(const struct ir_module *m)
{
	struct frame { ir_fnid f; size_t op; int next; };
	ARR(struct frame) stack = {0};
	uint8_t *state = mem_alloc(m->fn.n);
	struct err *e = NULL;
	ir_fnid few[16], *r = few;
	int cap = NELEM(few);
	for (ir_fnid root = 1; root < m->fn.n && !e; root++) {
		if (state[root])
			continue;
		struct frame f = { root, 0, 0 };
		arr_push(&stack, f);
		state[root] = 1;
		while (stack.n && !e) {
			struct frame *t = &stack.p[stack.n - 1];
			const struct ir_fn *fn = m->fn.p[t->f];
			if (t->op == fn->op.n) {
				state[t->f] = 2;
				stack.n--;
				continue;
			}
			const struct ir_op *o = &fn->op.p[t->op];
			int n = 0;
			if (!(ir_info(o->kind)->flags & IR_ELEM))
				while ((n = ir_regions(fn, o, r, cap)) == cap) {
					ir_fnid *more = mem_alloc((size_t)cap * 2 * sizeof *more);
					if (r != few)
						free(r);
					r = more;
					cap *= 2;
				}
			if (t->next == n) {
				t->op++;
				t->next = 0;
				continue;
			}
			ir_fnid g = r[t->next++];
			if (state[g] == 1)
				e = ERR(INVALID, "function '%s' holds itself", ir_text(m, m->fn.p[g]->name));
			if (state[g] == 0) {
				state[g] = 1;
				f = (struct frame){ g, 0, 0 };
				arr_push(&stack, f);
			}
		}
	}
	if (r != few)
		free(r);
	arr_free(&stack);
	free(state);
	return e;
}

struct err *ir_verify(const struct ir_module *m)
{
	NEED(m->fn.n >= 2, "the module has no function");
	for (size_t i = 1; i < m->fn.n; i++) {
		struct err *e = verify_fn(m, m->fn.p[i]);
		if (e)
			return err_wrap(e, "function '%s'", ir_text(m, m->fn.p[i]->name));
	}
	TRY(acyclic(m));
	const struct ir_fn *fn = ir_main(m);
	for (uint32_t i = 0; i < fn->nparam && m->arg; i++) {
		NEED(m->arg[i].shard < m->shard.n && m->arg[i].memory_kind < m->str.n, "argument %u", i);
		NEED(m->arg[i].alias < (int64_t)fn->result.n, "argument %u aliases output %d of %zu", i, m->arg[i].alias, fn->result.n);
	}
	for (size_t i = 0; i < fn->result.n && m->res; i++)
		NEED(m->res[i].shard < m->shard.n && m->res[i].memory_kind < m->str.n, "result %zu", i);
	return NULL;
}
