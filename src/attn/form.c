/* Normal form: what a value around a product q . k is, as a sum of monomials.
 *
 * Additions, products, divisions, exponentials, logarithms, conversions between floats, selections of 0 and sums over axes are arithmetic;
 * what is no arithmetic (a mask, a maximum, a hyperbolic tangent) is a leaf, an unknown.  As exp(x - m) is E[x] exp(-m) and the sum
 * of it is Z exp(-m), whatever m is goes; so do terms through the derivative of the maximum, since a row of P (y - delta) has the sum 0. */
#include "impl.h"

#include <math.h>

void form_strip(struct cand *c, ir_val *v, int *lab)
{
	for (const struct ir_op *o; (o = ir_def(c->fn, *v)); ) {
		if (o->kind == IR_sharding_constraint && !cand_is_region(c, lab_of(c, *lab)->set))
			return;                          /* how an operand lies is said before it */
		if (o->kind == IR_optimization_barrier || o->kind == IR_sharding_constraint) {
			*v = ir_in(c->fn, o, *v - o->out);
			continue;
		}
		if (o->kind != IR_transpose && o->kind != IR_reshape && o->kind != IR_broadcast)
			return;
		int l[2] = { 0, *lab };
		bool more = c->again;
		if (!axes_through(c, (uint32_t)(o - c->fn->op.p), l, false)) {
			c->again = more;
			return;
		}
		*v = ir_in(c->fn, o, 0);
		*lab = l[0];
	}
}

/* The first value that is seen to be the same as v: made by the same elementwise operations of the same values.  Programs have masks more than
 * once, since large cheap values are not shared. */
static void first_alike(struct cand *c, ir_val *v, int *lab, int depth)
{
	struct { char tag; uint8_t dtype; uint16_t kind; int lab; uint32_t n; ir_val in[3]; int in_lab[3]; uint64_t more; } key;
	struct { char tag; ir_val v; int lab; } own;
	form_strip(c, v, lab);
	const struct ir_op *o = ir_def(c->fn, *v);
	const void *p = ir_splat(c->m, c->fn, *v);
	if (!o || *v == c->seed || depth > 40 || lab_of(c, *lab)->set & 1 || !(ir_is_elem(o->kind) || o->kind == IR_iota || p))
		return;
	memset(&own, 0, sizeof own);
	own.tag = 'w';
	own.v = *v;
	own.lab = *lab;
	uint64_t *id = map_get(&c->index, &own, sizeof own);
	if (id) {
		*v = (ir_val)*id;
		return;
	}
	memset(&key, 0, sizeof key);
	key.tag = 'a';
	key.dtype = ir_vtype(c->m, c->fn, *v)->dtype;
	key.kind = o->kind;
	key.lab = *lab;
	key.n = o->nin;
	if (p)
		memcpy(&key.more, p, (size_t)MIN(dtype_info[key.dtype].bytes, 8));
	else if (o->kind == IR_iota)
		key.more = (uint64_t)ir_attr(c->fn, o, AT_dim);
	for (uint32_t k = 0; k < o->nin && k < 3; k++) {
		key.in[k] = ir_in(c->fn, o, k);
		key.in_lab[k] = ir_vtype(c->m, c->fn, key.in[k])->rank ? *lab : lab_add(c, &(struct lab){0});
		first_alike(c, &key.in[k], &key.in_lab[k], depth + 1);
	}
	uint64_t *first = map_put(&c->index, &key, sizeof key);
	if (!*first)
		*first = *v;
	*v = (ir_val)*first;
	*map_put(&c->index, &own, sizeof own) = *v;
}

static bool same(const struct ir_fn *fn, ir_val v, ir_val w, int *looks)
{
	const struct ir_op *a = ir_def(fn, v), *b = ir_def(fn, w);
	if (v == w)
		return true;
	if (a && a->kind == IR_optimization_barrier)
		return same(fn, ir_in(fn, a, v - a->out), w, looks);
	if (b && b->kind == IR_optimization_barrier)
		return same(fn, v, ir_in(fn, b, w - b->out), looks);
	if (!a || !b || !(*looks)-- || a->kind != b->kind || a->nin != b->nin || a->nout != 1 || !(ir_info(a->kind)->flags & IR_PURE) || fn->val.p[v].type != fn->val.p[w].type)
		return false;
	uint32_t n = ir_attr_words(fn, a);
	if (n != ir_attr_words(fn, b) || memcmp(&fn->attr.p[a->attr], &fn->attr.p[b->attr], n * sizeof *fn->attr.p))
		return false;
	for (uint32_t k = 0; k < a->nin; k++)
		if (!same(fn, ir_in(fn, a, k), ir_in(fn, b, k), looks))
			return false;
	return true;
}

bool form_same(const struct ir_fn *fn, ir_val v, ir_val w)
{
	int looks = 1000;
	return same(fn, v, w, &looks);
}

/* Rotated queries, say, that are made again from what was kept. */
static ir_val first_vector(const struct cand *c, ir_val v, int lab)
{
	for (size_t i = 1; i < c->fac.n && lab_of(c, lab)->set & 1; i++)
		if (c->fac.p[i].kind == FAC_LEAF && c->fac.p[i].b == lab && form_same(c->fn, (ir_val)c->fac.p[i].a, v))
			return (ir_val)c->fac.p[i].a;
	return v;
}

static int leaf(struct cand *c, ir_val v, int lab, bool mask)
{
	first_alike(c, &v, &lab, 0);
	v = first_vector(c, v, lab);
	struct fac f = { .kind = FAC_LEAF, .a = (int)v, .b = lab, .mask = mask, .set = lab_of(c, lab)->set };
	return poly_fac(c, fac_add(c, &f));
}

static bool is_float(const struct cand *c, ir_val v)
{
	return dtype_info[ir_vtype(c->m, c->fn, v)->dtype].cls == DT_FLOAT;
}

static bool is_pred(const struct cand *c, ir_val v)
{
	return ir_vtype(c->m, c->fn, v)->dtype == DT_pred;
}

static bool constant(const struct cand *c, ir_val v, double *out)
{
	const void *p = ir_splat(c->m, c->fn, v);
	enum dtype dt = ir_vtype(c->m, c->fn, v)->dtype;
	if (!p || (!is_float(c, v) && dtype_info[dt].cls != DT_INT && dtype_info[dt].cls != DT_UINT))
		return false;
	*out = dtype_real(dt, p);
	return true;
}

/* A product of exponentials and of sums of such. */
static bool positive(const struct cand *c, int p)
{
	if (p <= 0 || poly_of(c, p)->n != 1 || !(poly_of(c, p)->m[0].c > 0))
		return false;
	const struct mono m = poly_of(c, p)->m[0];
	for (int i = 0; i < m.n; i++)
		if (fac_of(c, m.f[i].f)->kind != FAC_SUM || !positive(c, fac_of(c, m.f[i].f)->a))
			return false;
	return true;
}

/* 1 where v, a pred, is true.  A sum of exponentials is taken for positive: the check on samples has rows where it is 0. */
static int indicator(struct cand *c, ir_val v, int lab)
{
	form_strip(c, &v, &lab);
	const struct ir_op *o = ir_def(c->fn, v);
	if (o && o->kind == IR_not)
		return poly_add(c, poly_const(c, 1), indicator(c, ir_in(c->fn, o, 0), lab), -1);
	bool greater = o && (o->kind == IR_compare_ge || o->kind == IR_compare_gt || o->kind == IR_compare_ne);
	bool less = o && (o->kind == IR_compare_le || o->kind == IR_compare_lt || o->kind == IR_compare_eq);
	double k;
	if ((greater || less) && c->near[v] && constant(c, ir_in(c->fn, o, 1), &k) && k <= 0 && is_float(c, ir_in(c->fn, o, 0)) &&
	    positive(c, form_of(c, ir_in(c->fn, o, 0), lab)))
		return greater ? poly_const(c, 1) : 0;
	return leaf(c, v, lab, true);
}

/* Has it a sum over keys as a factor? */
static bool has_sum(const struct cand *c, int p)
{
	for (int i = 0; p > 0 && i < poly_of(c, p)->n; i++)
		for (int k = 0; k < poly_of(c, p)->m[i].n; k++)
			if (fac_of(c, poly_of(c, p)->m[i].f[k].f)->kind == FAC_SUM)
				return true;
	return false;
}

static bool is_const(const struct cand *c, int p)
{
	return p == 0 || (p > 0 && poly_of(c, p)->n == 1 && !poly_of(c, p)->m[0].n && !poly_of(c, p)->m[0].exp);
}

static int selected(struct cand *c, const struct ir_op *o, int lab)
{
	ir_val on = ir_in(c->fn, o, 0);
	int a = form_of(c, ir_in(c->fn, o, 1), lab), b = form_of(c, ir_in(c->fn, o, 2), lab);
	if (a < 0 || b < 0)
		return -1;
	if (a == b)
		return a;
	if (ir_vtype(c->m, c->fn, on)->rank == 0)
		return -1;
	/* Of rows that no sum is in, a reference say, what is not selected may be infinite: that is no product. */
	if (!(lab_of(c, lab)->set & (c->right | 1)) && !has_sum(c, a) && !has_sum(c, b))
		return -1;
	if (!b)
		return poly_mul(c, indicator(c, on, lab), a);
	if (!a)
		return poly_mul(c, poly_add(c, poly_const(c, 1), indicator(c, on, lab), -1), b);
	/* A normaliser that is kept from 0: the check on samples has rows where it would be. */
	if (!(lab_of(c, lab)->set & c->right) && has_sum(c, a) != has_sum(c, b)) {
		if (is_const(c, has_sum(c, a) ? b : a))
			return has_sum(c, a) ? a : b;
	}
	return -1;
}

static int divided(struct cand *c, int a, int b)
{
	if (a < 0 || b <= 0 || poly_of(c, b)->n != 1)
		return -1;
	struct mono m = poly_of(c, b)->m[0];
	if (m.exp)
		m.exp = poly_add(c, 0, m.exp, -1);
	for (int i = 0; i < m.n; i++)
		if (fac_of(c, m.f[i].f)->mask)
			return -1;
	if (m.exp < 0 || !mono_power(&m, -1))
		return -1;
	return poly_mul(c, a, poly_mono(c, &m));
}

static int logarithm(struct cand *c, int a)
{
	if (a <= 0 || poly_of(c, a)->n != 1)
		return -1;
	const struct mono m = poly_of(c, a)->m[0];
	if (m.n != 1 || !(m.c > 0) || fac_of(c, m.f[0].f)->kind != FAC_SUM)
		return -1;
	struct fac f = { .kind = FAC_LOG, .a = m.f[0].f, .set = fac_of(c, m.f[0].f)->set };
	struct mono l = { .c = m.f[0].pow, .n = 1 };
	l.f[0].f = (int16_t)fac_add(c, &f);
	l.f[0].pow = 1;
	return poly_add(c, poly_add(c, poly_mono(c, &l), poly_const(c, log(m.c)), 1), m.exp, 1);
}

/* What sum op o, reduce or dot, is over: the axes that its result has not. */
static uint64_t gone(const struct cand *c, const struct ir_op *o, const int *lab)
{
	uint64_t s = 0;
	for (uint32_t i = 0; i < o->nin; i++)
		s |= lab_of(c, lab[i])->set;
	return s & ~(lab_of(c, lab[o->nin])->set & ~(uint64_t)1);
}

/* An operand of a product: a vector is a leaf with coefficients, or a leaf as it is (what is made of the output, say, or a sum of others, as what
 * layers before have left). */
static int operand(struct cand *c, ir_val v, int lab)
{
	int p = form_of(c, v, lab);
	if (p < 0 || !(lab_of(c, lab)->set & 1))
		return p;
	for (int i = 0, vec = 0; i < poly_of(c, p)->n; i++) {
		const struct mono *m = &poly_of(c, p)->m[i];
		int n = m->exp && poly_set(c, m->exp) & 1 ? 2 : 0;
		for (int k = 0; k < m->n; k++) {
			if (!(fac_of(c, m->f[k].f)->set & 1))
				continue;
			n += fac_of(c, m->f[k].f)->kind == FAC_LEAF && m->f[k].pow == 1 && (!vec || vec == m->f[k].f) ? 1 : 2;
			vec = m->f[k].f;
		}
		if (n != 1)
			return leaf(c, v, lab, false);
	}
	return p;
}

/* P v, or P d_o, in f32: is v a narrower type that was converted? */
static void wide_weights(struct cand *c, const struct ir_op *o, int p)
{
	const struct mono *m = &poly_of(c, p)->m[0];
	bool weights = poly_of(c, p)->n == 1 && m->exp, narrow = false;
	for (int i = 0; i < m->n; i++) {
		const struct fac *f = fac_of(c, m->f[i].f);
		weights &= f->kind != FAC_DOT;
		if (f->set & 1 && f->kind == FAC_LEAF)
			narrow = dtype_info[ir_vtype(c->m, c->fn, (ir_val)f->a)->dtype].bytes < dtype_info[ir_vtype(c->m, c->fn, ir_in(c->fn, o, 0))->dtype].bytes;
	}
	c->wide |= weights && narrow;
}

static int added(struct cand *c, const struct ir_op *o, const int *lab)
{
	int p = o->kind == IR_dot ? operand(c, ir_in(c->fn, o, 0), lab[0]) : form_of(c, ir_in(c->fn, o, 0), lab[0]);
	uint64_t over = gone(c, o, lab);
	if (o->kind == IR_dot) {
		p = poly_mul(c, p, operand(c, ir_in(c->fn, o, 1), lab[1]));
		if (over & 1) {                  /* a vector: is it summed over, or kept? */
			uint64_t both = lab_of(c, lab[0])->set & lab_of(c, lab[1])->set & 1;
			if (lab_of(c, lab[2])->set & 1) {
				if (both)
					return -1;
				over &= ~(uint64_t)1;
			} else if (!both) {
				return -1;
			}
		}
	} else if (lab_of(c, lab[o->nin])->set & 1) {
		over &= ~(uint64_t)1;
	}
	if (o->kind == IR_dot && over && (over == c->right || over == c->left) && p > 0 && dtype_info[ir_vtype(c->m, c->fn, ir_in(c->fn, o, 0))->dtype].bytes >= 4)
		wide_weights(c, o, p);
	if (!over)
		return p;
	if (over == 1)
		return poly_contract(c, p);
	if (over & 1 || (over & c->right && (over & c->right) != c->right) || (over & c->batch && !(over & c->right)))
		return -1;
	if (over & c->right && over != c->right && o->kind != IR_reduce)
		return -1;
	return poly_sum(c, p, over);
}

static bool is_zero(const struct cand *c, ir_val v)
{
	double x;
	return constant(c, v, &x) && x == 0;
}

/* Does the conversion of x to v's type keep each value? */
static bool is_exact(const struct cand *c, ir_val v, ir_val x)
{
	enum dtype to = (enum dtype)ir_vtype(c->m, c->fn, v)->dtype, from = (enum dtype)ir_vtype(c->m, c->fn, x)->dtype;
	return (to == DT_f32 && (from == DT_bf16 || from == DT_f16)) || (to == DT_f64 && (from == DT_f32 || from == DT_bf16 || from == DT_f16));
}

/* A value outside, of rows, keys or vectors: itself, a vector times a constant. */
static int outside(struct cand *c, ir_val v, int lab)
{
	double k = 1, x;
	form_strip(c, &v, &lab);
	for (const struct ir_op *o; lab_of(c, lab)->set & 1 && (o = ir_def(c->fn, v)) && is_float(c, v); form_strip(c, &v, &lab)) {
		if (o->kind == IR_convert && is_exact(c, v, ir_in(c->fn, o, 0))) {
			v = ir_in(c->fn, o, 0);
			continue;
		}
		if (o->kind != IR_multiply && o->kind != IR_divide)
			break;
		int with = constant(c, ir_in(c->fn, o, 1), &x) ? 1 : o->kind == IR_multiply && constant(c, ir_in(c->fn, o, 0), &x) ? 0 : -1;
		if (with < 0 || !isfinite(x) || x == 0)
			break;
		k = o->kind == IR_multiply ? k * x : k / x;
		v = ir_in(c->fn, o, (uint32_t)!with);
	}
	return poly_mul(c, poly_const(c, k), leaf(c, v, lab, is_pred(c, v)));
}

/* A value of rows as one unknown; -1: it is none of rows. */
static int row_of(struct cand *c, ir_val v, int lab)
{
	form_strip(c, &v, &lab);
	return lab_of(c, lab)->set & (c->right | 1) || !is_float(c, v) ? -1 : leaf(c, v, lab, false);
}

static int arithmetic(struct cand *c, ir_val v, int lab)
{
	const struct ir_op *o = ir_def(c->fn, v);
	double k;
	if (constant(c, v, &k))
		return isnan(k) ? -1 : poly_const(c, k);
	if (!cand_is_region(c, lab_of(c, lab)->set) && !c->near[v])
		return outside(c, v, lab);
	if (!o || !is_float(c, v))
		return -1;
	/* A matrix from outside, a bias say, is one unknown: taken apart, x + (1 - mask) (-1e9) would be summed in another order. */
	if (!c->kin[v] && o->kind != IR_convert && o->kind != IR_broadcast && o->kind != IR_transpose && o->kind != IR_reshape)
		return -1;
	int l[66] = {0};
	l[o->nin] = lab;
	switch (o->kind) {
	case IR_convert: {
		ir_val x = ir_in(c->fn, o, 0);
		return is_float(c, x) ? form_of(c, x, lab) : is_pred(c, x) ? indicator(c, x, lab) : -1;
	}
	case IR_add: case IR_subtract: case IR_multiply: case IR_divide: {
		int a = form_of(c, ir_in(c->fn, o, 0), lab), b = form_of(c, ir_in(c->fn, o, 1), lab);
		int p = o->kind == IR_add ? poly_add(c, a, b, 1) : o->kind == IR_subtract ? poly_add(c, a, b, -1) : o->kind == IR_multiply ? poly_mul(c, a, b) : divided(c, a, b);
		return p < 0 && a > 0 && o->kind == IR_divide ? divided(c, a, row_of(c, ir_in(c->fn, o, 1), lab)) : p;
	}
	case IR_negate:
		return poly_add(c, 0, form_of(c, ir_in(c->fn, o, 0), lab), -1);
	case IR_exponential:
		return poly_exp(c, form_of(c, ir_in(c->fn, o, 0), lab));
	case IR_power:
		if (constant(c, ir_in(c->fn, o, 0), &k) && k > 0)
			return poly_exp(c, poly_mul(c, poly_const(c, log(k)), form_of(c, ir_in(c->fn, o, 1), lab)));
		if (constant(c, ir_in(c->fn, o, 1), &k) && (k == 2 || k == -1 || k == -2)) {
			int x = form_of(c, ir_in(c->fn, o, 0), lab), y = k == -1 ? x : poly_mul(c, x, x);
			return k < 0 ? divided(c, poly_const(c, 1), y) : y;
		}
		return -1;
	case IR_abs: case IR_sign: {
		int x = form_of(c, ir_in(c->fn, o, 0), lab);
		return !positive(c, x) ? -1 : o->kind == IR_abs ? x : poly_const(c, 1);
	}
	case IR_log:
		return logarithm(c, form_of(c, ir_in(c->fn, o, 0), lab));
	case IR_select:
		return selected(c, o, lab);
	case IR_reduce_precision:
		return form_of(c, ir_in(c->fn, o, 0), lab);
	case IR_optimization_barrier: case IR_sharding_constraint:
		return form_of(c, ir_in(c->fn, o, v - o->out), lab);
	case IR_broadcast: case IR_transpose: case IR_reshape:
		return axes_through(c, (uint32_t)(o - c->fn->op.p), l, false) ? form_of(c, ir_in(c->fn, o, 0), l[0]) : -1;
	case IR_reduce:
		if (o->nout != 1 || (enum redop)ir_attr(c->fn, o, AT_redop) != RED_add || !is_zero(c, ir_in(c->fn, o, 1)))
			return -1;
		l[0] = c->of[ir_in(c->fn, o, 0)];
		l[1] = lab_add(c, &(struct lab){0});
		return axes_through(c, (uint32_t)(o - c->fn->op.p), l, true) ? added(c, o, l) : -1;
	case IR_dot:
		for (int i = 0; i < 2; i++)
			l[i] = c->of[ir_in(c->fn, o, (uint32_t)i)];
		return axes_through(c, (uint32_t)(o - c->fn->op.p), l, true) ? added(c, o, l) : -1;
	default:
		return -1;
	}
}

int form_of(struct cand *c, ir_val v, int lab)
{
	struct { char tag; ir_val v; int lab; } key;
	if (v && c->of[v] && c->of[v] != lab)
		return -1;               /* it is used along other axes as well: none of ours */
	memset(&key, 0, sizeof key);
	key.tag = c->opaque ? 'o' : 'n';
	key.v = v;
	key.lab = lab;
	uint64_t *id = map_put(&c->index, &key, sizeof key);
	if (*id)
		return c->node.p[*id].poly;
	size_t n = c->node.n;
	*id = n;
	arr_push(&c->node, ((struct node){ v, lab, -1 }));
	if (c->depth > 300)
		return -1;
	c->depth++;
	double k;
	bool row = c->opaque && !(lab_of(c, lab)->set & (c->right | 1)) && !constant(c, v, &k);
	int p = row ? -1 : arithmetic(c, v, lab);
	if (p < 0)
		p = leaf(c, v, lab, is_pred(c, v));
	c->depth--;
	c->node.p[n].poly = p;
	return p;
}
