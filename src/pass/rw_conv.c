/* Convolutions whose operand is spread out (lhs_dilation): gradients of strided ones by their input, transposed ones.
 *
 * Along a dimension spread by L, the outputs y = L * i + p - c of one phase p meet elements of the operand, not the zeros between
 * them, under every L-th position of the kernel only: each phase is a convolution of the operand as it is.  If L divides the kernel's
 * extent, all phases meet the same elements (for the c that is chosen), and are output features of one convolution.  Else each is a
 * convolution of its own, with c = 0.  No product is added that was not there: an infinity spreads no further. */
#include "rewrites.h"

enum { PHASES = 16 };    /* at most, where each is an op */

struct spread {
	struct rewrite *r;
	int n;                        /* spatial dimensions */
	const int64_t *lhs, *rhs, *out, *low, *by;
	struct ir_type_info x, o;      /* copies: types that are added move the others */
	int64_t precision, shift[IR_MAX_RANK], turns[IR_MAX_RANK];
	int64_t place[IR_MAX_RANK];   /* of batch, features, turns.. in a result whose phases lie beside their turns */
};

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
static int64_t modulo(int64_t a, int64_t b) { return a - floor_div(a, b) * b; }

/* x [as lhs], w [spatial.., in, out] -> dimensions as out says; first[i]: the element of x under the first position of the first output. */
static ir_val convolve(const struct spread *s, ir_val x, ir_val w, const int64_t *out, const int64_t *first)
{
	struct ir_b *b = &s->r->b;
	const struct ir_type_info k = *type_of(s->r, w);
	int n = s->n;
	int64_t dim[IR_MAX_RANK], attr[9 * (IR_MAX_RANK + 1) + 3], *q = attr, list[9][IR_MAX_RANK];
	for (int i = 0; i < n; i++) {
		list[1][2 + i] = i;
		list[3][i] = list[6][i] = list[7][i] = 1;
		list[4][i] = -first[i];
		list[5][i] = s->turns[i] - 1 + k.dim[i] - s->x.dim[s->lhs[2 + i]] + first[i];
		list[8][i] = 0;
		dim[out[2 + i]] = s->turns[i];
	}
	for (int d = 0; d < n + 2; d++) {
		list[0][d] = s->lhs[d];
		list[2][d] = out[d];
	}
	list[1][0] = n;
	list[1][1] = n + 1;
	dim[out[0]] = s->x.dim[s->lhs[0]];
	dim[out[1]] = k.dim[n + 1];
	for (int l = 0; l < 9; l++) {
		*q++ = l < 3 ? n + 2 : n;
		for (int i = 0; i < (l < 3 ? n + 2 : n); i++)
			*q++ = list[l][i];
	}
	*q++ = 1;
	*q++ = 1;
	*q++ = s->precision;
	return ir_emit(b, IR_convolution, 2, (ir_val[]){ x, w }, ir_tensor(b->m, (enum dtype)s->o.dtype, n + 2, dim), attr, (uint32_t)(q - attr));
}

/* The phase p[0 .. i) and all along the dimensions from i on, each beside its turns. */
static ir_val phases(const struct spread *s, ir_val x, ir_val w, int i, int64_t *p)
{
	struct ir_b *b = &s->r->b;
	ir_val part[PHASES] = {0};
	int n = s->n;
	if (i < n) {
		for (p[i] = 0; p[i] < s->by[i]; p[i]++)
			part[p[i]] = phases(s, x, w, i + 1, p);
		if (s->by[i] == 1)
			return part[0];
		const struct ir_type_info t = *type_of(s->r, part[0]);
		int64_t dim[IR_MAX_RANK], along = s->place[2 + i] + 1;
		memcpy(dim, t.dim, sizeof dim);
		dim[along] = s->by[i];
		return ir_emit(b, IR_concatenate, (uint32_t)s->by[i], part, ir_tensor(b->m, (enum dtype)t.dtype, t.rank, dim), &along, 1);
	}
	int64_t start[IR_MAX_RANK] = {0}, limit[IR_MAX_RANK], step[IR_MAX_RANK], first[IR_MAX_RANK], dim[IR_MAX_RANK];
	const struct ir_type_info k = *type_of(s->r, w);
	bool none = false;
	for (int d = 0; d < 2 * n + 2; d++)
		dim[d] = 1;
	for (int d = 0; d < n + 2; d++) {
		limit[d] = k.dim[d];
		step[d] = 1;
	}
	dim[s->place[0]] = s->x.dim[s->lhs[0]];
	dim[s->place[1]] = k.dim[n + 1];
	for (int d = 0; d < n; d++) {
		start[d] = modulo(s->low[d] - p[d], s->by[d]);
		step[d] = s->by[d];
		first[d] = floor_div(start[d] + p[d] - s->low[d], s->by[d]);
		none |= start[d] >= limit[d];
		dim[s->place[2 + d]] = s->turns[d];
	}
	if (none)
		return ir_const_i(b, ir_tensor(b->m, (enum dtype)s->o.dtype, 2 * n + 2, dim), 0);
	return ir_reshape(b, convolve(s, x, ir_slice(b, w, start, limit, step), s->out, first), 2 * n + 2, dim);
}

/* All phases as features of one. */
static ir_val features(const struct spread *s, ir_val x, ir_val w)
{
	struct ir_b *b = &s->r->b;
	const struct ir_type_info k = *type_of(s->r, w);
	int n = s->n;
	int64_t dim[IR_MAX_RANK], perm[IR_MAX_RANK], first[IR_MAX_RANK], out[IR_MAX_RANK], back[IR_MAX_RANK + 1] = {0}, all = k.dim[n + 1];
	for (int i = 0; i < n; i++) {
		dim[2 * i] = k.dim[i] / s->by[i];
		dim[2 * i + 1] = s->by[i];
		perm[i] = 2 * i;
		perm[n + 1 + i] = 2 * i + 1;
		if (s->by[i] > 1)
			back[1 + back[0]++] = 2 * i + 1;
		all *= s->by[i];
		first[i] = floor_div(s->by[i] - 1 - s->shift[i] - s->low[i], s->by[i]);
	}
	for (int d = 2 * n; d < 2 * n + 2; d++)
		dim[d] = k.dim[d - n];
	perm[n] = 2 * n;
	perm[2 * n + 1] = 2 * n + 1;
	ir_val v = ir_reshape(b, w, 2 * n + 2, dim);
	v = ir_emit(b, IR_reverse, 1, &v, b->fn->val.p[v].type, back, (uint32_t)back[0] + 1);
	v = ir_transpose(b, v, perm);
	for (int i = 0; i < n; i++)
		dim[i] = k.dim[i] / s->by[i];
	dim[n] = k.dim[n];
	dim[n + 1] = all;
	v = ir_reshape(b, v, n + 2, dim);
	/* [batch, turns.., phases and out] -> [batch, turns.., phases.., out] -> each phase beside its turns */
	out[0] = 0;
	out[1] = n + 1;
	dim[0] = s->x.dim[s->lhs[0]];
	perm[s->place[0]] = 0;
	perm[s->place[1]] = 2 * n + 1;
	dim[2 * n + 1] = k.dim[n + 1];
	for (int i = 0; i < n; i++) {
		out[2 + i] = 1 + i;
		dim[1 + i] = s->turns[i];
		dim[1 + n + i] = s->by[i];
		perm[s->place[2 + i]] = 1 + i;
		perm[s->place[2 + i] + 1] = 1 + n + i;
	}
	return ir_transpose(b, ir_reshape(b, convolve(s, x, v, out, first), 2 * n + 2, dim), perm);
}

ir_val rw_spread_convolution(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	int rank, n;
	struct spread s = { .r = r, .x = *type_of(r, in[0]), .o = *result_type(r, o) };
	const struct ir_type_info k = *type_of(r, in[1]);
	s.lhs = ir_attrs(r->from, o, AT_lhs, &rank);
	s.rhs = ir_attrs(r->from, o, AT_rhs, &rank);
	s.out = ir_attrs(r->from, o, AT_out, &rank);
	s.low = ir_attrs(r->from, o, AT_low, &n);
	s.by = ir_attrs(r->from, o, AT_lhs_dilation, &n);
	s.precision = ir_attr(r->from, o, AT_precision);
	s.n = n;
	const int64_t *stride = ir_attrs(r->from, o, AT_stride, &n), *dil = ir_attrs(r->from, o, AT_rhs_dilation, &n), *rev = ir_attrs(r->from, o, AT_reversal, &n);
	if (ir_attr(r->from, o, AT_feature_groups) > 1 || ir_attr(r->from, o, AT_batch_groups) > 1 || !s.x.count || !k.count || !s.o.count)
		return 0;
	int64_t all = 1;
	bool whole = true, spread = false;
	for (int i = 0; i < n; i++) {
		spread |= s.by[i] > 1;
		if (stride[i] != 1 || dil[i] != 1)
			return 0;
		whole &= k.dim[s.rhs[2 + i]] % s.by[i] == 0;
		all = all > PHASES ? all : all * s.by[i];
	}
	if (!spread || 2 * n + 2 > IR_MAX_RANK || (!whole && all > PHASES))
		return 0;
	for (int i = 0; i < n; i++) {
		s.shift[i] = whole ? modulo(s.by[i] - 1 - s.low[i], s.by[i]) : 0;
		s.turns[i] = (s.o.dim[s.out[2 + i]] + s.shift[i] + s.by[i] - 1) / s.by[i];
	}
	/* the kernel as [spatial.., in, out], in the order in which it is met */
	int64_t w[IR_MAX_RANK + 1] = {0}, perm[IR_MAX_RANK], dim[IR_MAX_RANK], start[IR_MAX_RANK] = {0}, limit[IR_MAX_RANK], step[IR_MAX_RANK], p[IR_MAX_RANK];
	for (int i = 0; i < n; i++) {
		if (rev[i])
			w[1 + w[0]++] = s.rhs[2 + i];
		perm[i] = s.rhs[2 + i];
	}
	perm[n] = s.rhs[0];
	perm[n + 1] = s.rhs[1];
	ir_val kernel = w[0] ? ir_emit(&r->b, IR_reverse, 1, &in[1], r->b.fn->val.p[in[1]].type, w, (uint32_t)w[0] + 1) : in[1];
	kernel = ir_transpose(&r->b, kernel, perm);
	int at = 0;
	for (int d = 0; d < rank; d++) {
		int i = 0;
		while (s.out[i] != d)
			i++;
		s.place[i] = at++;
		limit[d] = dim[d] = s.o.dim[d];
		step[d] = 1;
		if (i < 2)
			continue;
		at++;
		start[d] = s.shift[i - 2];
		limit[d] += start[d];
		dim[d] = s.turns[i - 2] * s.by[i - 2];
	}
	ir_val v = whole ? features(&s, in[0], kernel) : phases(&s, in[0], kernel, 0, p);
	return ir_slice(&r->b, ir_reshape(&r->b, v, rank, dim), start, limit, step);
}
