/* What a score function can give in a tile, by interval arithmetic: so masks of every kind are known for what they are, whether a
 * triangle, a window, segments or lengths.  Functions that masks are made of have bounds, all else may be anything.  Operations are
 * monotone and round as the program's do, so bounds are rounded like its numbers and hold exactly. */
#include "attention.h"

#include <float.h>
#include <math.h>

static inline double lo_of(double a, double b) { return a < b ? a : b; }
static inline double hi_of(double a, double b) { return a > b ? a : b; }

/* --- types ------------------------------------------------------------------------- */

static bool is_float(int dt) { return dtype_info[dt].cls == DT_FLOAT; }
static bool known_float(int dt) { return dt == DT_f32 || dt == DT_f64 || dt == DT_bf16 || dt == DT_f16; }

/* Least and most of a type; of a float's, or of what a double does not hold, infinite. */
static void limits(int dt, double *lo, double *hi)
{
	int bits = dtype_info[dt].bits;
	*lo = -INFINITY;
	*hi = INFINITY;
	if (dt == DT_pred) {
		*lo = 0;
		*hi = 1;
	} else if (dtype_info[dt].cls == DT_INT && bits <= 32) {
		*lo = -ldexp(1, bits - 1);
		*hi = ldexp(1, bits - 1) - 1;
	} else if (dtype_info[dt].cls == DT_UINT) {
		*lo = 0;
		*hi = bits <= 32 ? ldexp(1, bits) - 1 : INFINITY;
	}
}

/* As the type's numbers round; a subnormal is, or is not, taken for 0. */
static inline double to_type(int dt, double v, bool up)
{
	if (dt == DT_f32 && !(fabs(v) < FLT_MIN))
		return (float)v;
	if (dt == DT_f32 || dt == DT_bf16 || dt == DT_f16) {
		float f = (float)v;
		f = dt == DT_bf16 ? bf16_to_f32(f32_to_bf16(f)) : dt == DT_f16 ? f16_to_f32(f32_to_f16(f)) : f;
		if (fabsf(f) < FLT_MIN)
			return up ? hi_of(f, 0) : lo_of(f, 0);
		return f;
	}
	if (dt == DT_f64 && fabs(v) < DBL_MIN)
		return up ? hi_of(v, 0) : lo_of(v, 0);
	return v;
}

void att_bound_any(enum dtype dt, struct att_bound *b)
{
	double lo, hi;
	limits(dt, &lo, &hi);
	for (int i = 0; i < ATT_WIDE; i++) {
		b->lo[i] = lo;
		b->hi[i] = hi;
	}
	b->nan = is_float(dt) ? ~0u : 0;
}

bool att_number(enum dtype dt, const char *p, double *out)
{
	float f;
	uint16_t h;
	switch (dt) {
	case DT_pred: *out = *p != 0; return true;
	case DT_f32: memcpy(&f, p, 4); *out = f; return true;
	case DT_f64: memcpy(out, p, 8); return true;
	case DT_bf16: memcpy(&h, p, 2); *out = bf16_to_f32(h); return true;
	case DT_f16: memcpy(&h, p, 2); *out = f16_to_f32(h); return true;
	default: break;
	}
	if (dtype_info[dt].cls != DT_INT && dtype_info[dt].cls != DT_UINT)
		return false;
	int64_t i = load_int(dt, p);
	*out = (double)i;
	return i > -(1ll << 53) && i < 1ll << 53;
}

/* --- functions ------------------------------------------------------------------------ */

#define LANES for (int i = 0; i < n; i++)

/* Bounds of the result in lane i, before rounding; outside an integer's range it may be anything. */
static inline void settle(int dt, struct att_bound *o, int i, double lo, double hi)
{
	double least, most;
	if (is_float(dt)) {
		if (isnan(lo) || isnan(hi)) {
			o->lo[i] = -INFINITY;
			o->hi[i] = INFINITY;
			o->nan |= 1u << i;
			return;
		}
		o->lo[i] = to_type(dt, lo, false);
		o->hi[i] = to_type(dt, hi, true);
		return;
	}
	limits(dt, &least, &most);
	bool fits = lo >= least && hi <= most && lo > -0x1p53 && hi < 0x1p53;
	o->lo[i] = fits ? lo : least;
	o->hi[i] = fits ? hi : most;
}

static void compare(int fn, int n, const struct att_bound *a, const struct att_bound *b, struct att_bound *o)
{
	if (fn == ELEM_compare_gt || fn == ELEM_compare_ge) {
		const struct att_bound *t = a;
		a = b;
		b = t;
		fn = fn == ELEM_compare_gt ? ELEM_compare_lt : ELEM_compare_le;
	}
	unsigned nan = a->nan | b->nan;
	/* lo: it holds for certain, hi: it may hold */
	if (fn == ELEM_compare_lt)
		LANES o->lo[i] = a->hi[i] < b->lo[i], o->hi[i] = a->lo[i] < b->hi[i];
	else if (fn == ELEM_compare_le)
		LANES o->lo[i] = a->hi[i] <= b->lo[i], o->hi[i] = a->lo[i] <= b->hi[i];
	else
		LANES {
			bool one = a->lo[i] == a->hi[i] && b->lo[i] == b->hi[i] && a->lo[i] == b->lo[i], apart = a->hi[i] < b->lo[i] || b->hi[i] < a->lo[i];
			o->lo[i] = fn == ELEM_compare_eq ? one : apart;
			o->hi[i] = fn == ELEM_compare_eq ? !apart : !one;
		}
	for (int i = 0; nan && i < n; i++)
		if (nan >> i & 1) {
			o->lo[i] = 0;
			o->hi[i] = 1;
		}
}

static void select_one(int n, const struct att_bound *c, const struct att_bound *a, const struct att_bound *b, struct att_bound *o)
{
	LANES {
		bool may_a = c->hi[i] > 0, may_b = c->lo[i] < 1;
		o->lo[i] = may_a && may_b ? lo_of(a->lo[i], b->lo[i]) : may_a ? a->lo[i] : b->lo[i];
		o->hi[i] = may_a && may_b ? hi_of(a->hi[i], b->hi[i]) : may_a ? a->hi[i] : b->hi[i];
		o->nan |= ((may_a ? a->nan : 0) | (may_b ? b->nan : 0)) & 1u << i;
	}
}

static void multiply(int dt, int n, const struct att_bound *a, const struct att_bound *b, struct att_bound *o)
{
	LANES {
		double x = a->lo[i] * b->lo[i], y = a->lo[i] * b->hi[i], z = a->hi[i] * b->lo[i], w = a->hi[i] * b->hi[i];
		bool inf = isinf(a->lo[i]) || isinf(a->hi[i]) || isinf(b->lo[i]) || isinf(b->hi[i]);
		bool zero = (a->lo[i] <= 0 && a->hi[i] >= 0) || (b->lo[i] <= 0 && b->hi[i] >= 0);
		if (inf && zero)
			settle(dt, o, i, NAN, NAN);
		else
			settle(dt, o, i, lo_of(lo_of(x, y), lo_of(z, w)), hi_of(hi_of(x, y), hi_of(z, w)));
	}
}

/* Not of what may be 0. */
static inline bool divides(const struct att_bound *b, int i) { return b->lo[i] > 0 || b->hi[i] < 0; }

/* Whole numbers below 2^53: a quotient that is rounded does not pass the whole number next to it. */
static void divide(int dt, int n, const struct att_bound *a, const struct att_bound *b, struct att_bound *o)
{
	bool whole = !is_float(dt);
	LANES {
		if (!divides(b, i)) {
			settle(dt, o, i, whole ? -INFINITY : NAN, INFINITY);
			continue;
		}
		double x = a->lo[i] / b->lo[i], y = a->lo[i] / b->hi[i], z = a->hi[i] / b->lo[i], w = a->hi[i] / b->hi[i];
		double lo = lo_of(lo_of(x, y), lo_of(z, w)), hi = hi_of(hi_of(x, y), hi_of(z, w));
		if (isnan(x + y + z + w))
			lo = hi = whole ? INFINITY : NAN;
		settle(dt, o, i, whole ? trunc(lo) : lo, whole ? trunc(hi) : hi);
	}
}

/* Of whole numbers: with the sign of a, and where all of a has the same quotient, so far from there. */
static void remain(int dt, int n, const struct att_bound *a, const struct att_bound *b, struct att_bound *o)
{
	LANES {
		double al = a->lo[i], ah = a->hi[i], most = hi_of(fabs(b->lo[i]), fabs(b->hi[i])) - 1;
		if (!divides(b, i)) {
			settle(dt, o, i, -INFINITY, INFINITY);
			continue;
		}
		double q = trunc(al / b->lo[i]);
		if (b->lo[i] == b->hi[i] && isfinite(q) && q == trunc(ah / b->lo[i]))
			settle(dt, o, i, al - q * b->lo[i], ah - q * b->lo[i]);
		else
			settle(dt, o, i, al < 0 ? hi_of(al, -most) : 0, ah > 0 ? lo_of(ah, most) : 0);
	}
}

/* By a number of bits that is known: a division that rounds down. */
static void shift_right(int fn, int dt, int n, const struct att_bound *a, const struct att_bound *b, struct att_bound *o)
{
	LANES {
		bool known = b->lo[i] == b->hi[i] && b->lo[i] >= 0 && b->lo[i] < dtype_info[dt].bits && (fn == ELEM_shift_right_arithmetic ? dtype_info[dt].cls == DT_INT : a->lo[i] >= 0);
		double by = known ? ldexp(1, -(int)b->lo[i]) : 0;
		settle(dt, o, i, known ? floor(a->lo[i] * by) : -INFINITY, known ? floor(a->hi[i] * by) : INFINITY);
	}
}

static bool logic(int fn, int n, const struct att_bound *a, const struct att_bound *b, struct att_bound *o)
{
	LANES
		switch (fn) {
		case ELEM_and: case ELEM_multiply: case ELEM_minimum: o->lo[i] = lo_of(a->lo[i], b->lo[i]); o->hi[i] = lo_of(a->hi[i], b->hi[i]); break;
		case ELEM_or: case ELEM_add: case ELEM_maximum: o->lo[i] = hi_of(a->lo[i], b->lo[i]); o->hi[i] = hi_of(a->hi[i], b->hi[i]); break;
		case ELEM_not: o->lo[i] = 1 - a->hi[i]; o->hi[i] = 1 - a->lo[i]; break;
		default: return false;
		}
	return true;
}

static bool convert(int from, int to, int n, const struct att_bound *a, struct att_bound *o)
{
	if (to == DT_pred) {
		LANES {
			bool nan = a->nan >> i & 1;
			o->lo[i] = a->lo[i] > 0 || a->hi[i] < 0;
			o->hi[i] = nan || a->lo[i] != 0 || a->hi[i] != 0;
		}
		return true;
	}
	if (is_float(to)) {
		if (!known_float(to))
			return false;
		o->nan = a->nan;
		LANES settle(to, o, i, a->lo[i], a->hi[i]);
		return true;
	}
	if (dtype_info[to].cls != DT_INT && dtype_info[to].cls != DT_UINT)
		return false;
	LANES {
		bool nan = a->nan >> i & 1;
		settle(to, o, i, nan ? -INFINITY : trunc(a->lo[i]), nan ? INFINITY : trunc(a->hi[i]));
	}
	return true;
}

static inline double sign(double v) { return (v > 0) - (v < 0); }

/* Numbers of one type; false: no bounds. */
static bool arithmetic(int fn, int dt, int n, const struct att_bound *a, const struct att_bound *b, struct att_bound *o)
{
	bool whole = !is_float(dt);
	switch (fn) {
	case ELEM_add: LANES settle(dt, o, i, a->lo[i] + b->lo[i], a->hi[i] + b->hi[i]);
		if (is_float(dt))
			LANES o->nan |= (unsigned)((isinf(a->lo[i]) && b->hi[i] == INFINITY) || (isinf(b->lo[i]) && a->hi[i] == INFINITY)) << i;
		break;
	case ELEM_subtract: LANES settle(dt, o, i, a->lo[i] - b->hi[i], a->hi[i] - b->lo[i]);
		if (is_float(dt))
			LANES o->nan |= (unsigned)((isinf(a->lo[i]) || isinf(a->hi[i])) && (isinf(b->lo[i]) || isinf(b->hi[i]))) << i;
		break;
	case ELEM_multiply: multiply(dt, n, a, b, o); break;
	case ELEM_divide: divide(dt, n, a, b, o); break;
	case ELEM_remainder:
		if (!whole)
			return false;
		remain(dt, n, a, b, o);
		break;
	case ELEM_shift_right_arithmetic: case ELEM_shift_right_logical: shift_right(fn, dt, n, a, b, o); break;
	case ELEM_sign: LANES settle(dt, o, i, sign(a->lo[i]), sign(a->hi[i])); break;
	case ELEM_minimum: LANES settle(dt, o, i, lo_of(a->lo[i], b->lo[i]), lo_of(a->hi[i], b->hi[i])); break;
	case ELEM_maximum: LANES settle(dt, o, i, hi_of(a->lo[i], b->lo[i]), hi_of(a->hi[i], b->hi[i])); break;
	case ELEM_abs:
		LANES settle(dt, o, i, a->lo[i] > 0 ? a->lo[i] : a->hi[i] < 0 ? -a->hi[i] : 0, hi_of(-a->lo[i], a->hi[i]));
		break;
	case ELEM_tanh: LANES settle(dt, o, i, -1.001, 1.001); break;      /* of a soft cap; an approximation may be above 1 */
	case ELEM_negate: LANES settle(dt, o, i, -a->hi[i], -a->lo[i]); break;
	default: return false;
	}
	return true;
}

static bool function(const struct prog_ins *x, int n, const struct att_bound *a, const struct att_bound *b, const struct att_bound *c, struct att_bound *o)
{
	bool whole = dtype_info[x->from].cls == DT_INT || dtype_info[x->from].cls == DT_UINT || x->from == DT_pred;
	if (x->fn == ELEM_select) {
		select_one(n, a, b, c, o);
		return true;
	}
	if (x->fn == ELEM_convert)
		return convert(x->from, x->to, n, a, o);
	if (x->fn >= ELEM_compare_eq && x->fn <= ELEM_compare_lt && (whole || known_float(x->from))) {
		compare(x->fn, n, a, b, o);
		return true;
	}
	if (x->from == DT_pred)
		return logic(x->fn, n, a, b, o);
	if (!whole && !known_float(x->from))
		return false;
	o->nan = a->nan | (b ? b->nan : 0);
	if (~o->nan << (32 - n) == 0)
		return false;      /* may be NaN everywhere: no bound would be asked for */
	return arithmetic(x->fn, x->from, n, a, b, o);
}

/* --- one by one ---------------------------------------------------------------------- */

static struct kern_bound first(const struct att_bound *b) { return (struct kern_bound){ b->lo[0], b->hi[0], b->nan & 1 }; }

struct kern_bound kern_bound_any(enum dtype dt)
{
	struct att_bound b;
	att_bound_any(dt, &b);
	return first(&b);
}

struct kern_bound kern_bound_of(enum dtype dt, const void *p)
{
	struct att_bound b = { 0 };
	double v;
	if (!att_number(dt, p, &v))
		return kern_bound_any(dt);
	settle(dt, &b, 0, v, v);
	return first(&b);
}

struct kern_bound kern_bound(const struct prog_ins *x, const struct kern_bound *in)
{
	struct att_bound of[3] = { 0 }, out = { 0 };
	int nin = elem_info[x->fn].nin;
	for (int i = 0; i < nin; i++) {
		of[i].lo[0] = in[i].lo;
		of[i].hi[0] = in[i].hi;
		of[i].nan = in[i].nan;
	}
	return nin && function(x, 1, &of[0], nin > 1 ? &of[1] : NULL, nin > 2 ? &of[2] : NULL, &out) ? first(&out) : kern_bound_any((enum dtype)x->to);
}

/* --- a score function --------------------------------------------------------------------- */

static bool constant(const struct prog_expr *e, int r, double *v)
{
	const struct prog_ins *x = &e->ins[r - e->nin];
	return r >= e->nin && x->fn == EXPR_IMM && att_number(x->to, (const char *)x->imm, v);
}

/* Registers that are x * c for one c > 0. */
static void find_plain(const struct prog_expr *e, struct att_range *r)
{
	double *factor = mem_alloc(sizeof *factor * (size_t)(e->nin + e->n)), c;
	memset(factor, 0, sizeof *factor * (size_t)(e->nin + e->n));
	factor[0] = 1;
	for (int i = 0; i < e->n; i++) {
		const struct prog_ins *x = &e->ins[i];
		double *f = &factor[e->nin + i];
		if (x->from != DT_f32 || x->to != DT_f32)
			continue;
		if (x->fn == ELEM_multiply && factor[x->src[0]] > 0 && constant(e, x->src[1], &c))
			*f = factor[x->src[0]] * c;
		else if (x->fn == ELEM_multiply && factor[x->src[1]] > 0 && constant(e, x->src[0], &c))
			*f = factor[x->src[1]] * c;
		else if (x->fn == ELEM_divide && factor[x->src[0]] > 0 && constant(e, x->src[1], &c))
			*f = factor[x->src[0]] / c;
		else if (x->fn == ELEM_convert)
			*f = factor[x->src[0]];
		if (!(*f > 1e-18 && *f < 1e18))
			*f = 0;
	}
	/* the one that the score comes down to where all conditions hold, or else any */
	for (int at = e->out[0];;) {
		if (factor[at] > 0) {
			r->c = (float)factor[at];
			r->plain = true;
			break;
		}
		if (at < e->nin || e->ins[at - e->nin].fn != ELEM_select)
			break;
		const uint16_t *src = e->ins[at - e->nin].src;
		double v;
		at = constant(e, src[1], &v) || (src[1] < e->nin && src[1]) ? src[2] : src[1];
	}
	for (int i = 0; i < e->nin + e->n && r->plain; i++)
		r->is_plain[i] = (float)factor[i] == r->c;
	free(factor);
}

/* Registers that are needed for pred, a byte each. */
static void mark_needed(const struct prog_expr *e, int pred, uint8_t *need)
{
	memset(need, 0, (size_t)(e->nin + e->n));
	need[pred] = 1;
	for (int i = pred; i >= e->nin; i--) {
		const struct prog_ins *x = &e->ins[i - e->nin];
		int nin = need[i] ? prog_ins_nin(x->fn) : 0;
		for (int j = 0; j < nin; j++)
			need[x->src[j]] = 1;
	}
}

/* Is the score x * c where something holds that does not depend on x, and else one low number? */
static void find_pred(struct arena *a, const struct prog_expr *e, struct att_range *r)
{
	int out = e->out[0];
	if (!r->plain || r->weight || out < e->nin || e->ins[out - e->nin].fn != ELEM_select)
		return;
	const uint16_t *src = e->ins[out - e->nin].src;
	uint8_t *need = ARENA_NEW(a, uint8_t, e->nin + e->n);
	bool not = r->is_plain[src[2]];
	if (!r->is_plain[src[not ? 2 : 1]] || !constant(e, src[not ? 1 : 2], &r->fill) || !(r->fill <= ATT_FILL))
		return;
	mark_needed(e, src[0], need);
	if (need[0])
		return;
	r->pred = src[0];
	r->pred_not = not;
}

const struct prog_expr *att_range_pred(struct arena *a, const struct att_range *r)
{
	const struct prog_expr *e = r->e;
	struct prog_expr *o = ARENA_NEW(a, struct prog_expr, 1);
	uint8_t *need = ARENA_NEW(a, uint8_t, e->nin + e->n);
	uint16_t *to = ARENA_NEW(a, uint16_t, e->nin + e->n);
	mark_needed(e, r->pred, need);
	*o = (struct prog_expr){ .nin = e->nin, .nout = 1, .in_type = e->in_type, .ins = ARENA_NEW(a, struct prog_ins, e->n), .out = ARENA_NEW(a, uint16_t, 1) };
	for (int i = 0; i <= r->pred; i++) {
		to[i] = (uint16_t)(i < e->nin ? i : e->nin + o->n);
		if (i < e->nin || !need[i])
			continue;
		struct prog_ins *x = &o->ins[o->n++];
		*x = e->ins[i - e->nin];
		for (int j = 0; j < 3; j++)
			x->src[j] = x->src[j] <= r->pred ? to[x->src[j]] : 0;
	}
	o->out[0] = to[r->pred];
	return o;
}

void att_range_make(struct arena *a, const struct prog_expr *e, const struct attention *x, struct att_range *r)
{
	int nreg = e->nin + e->n;
	*r = (struct att_range){ .e = e, .grad = x->grad, .is_plain = ARENA_NEW(a, uint8_t, nreg), .is_slope = ARENA_NEW(a, uint8_t, nreg),
	                         .is_one = ARENA_NEW(a, uint8_t, nreg), .weight = x->weighted ? x->nout - x->ntally - 1 : 0 };
	memset(r->is_plain, 0, (size_t)nreg);
	memset(r->is_slope, 0, (size_t)nreg);
	memset(r->is_one, 0, (size_t)nreg);
	if (e->in_type[0] != DT_f32 || x->ntally)      /* where there are such sums each tile asks for their indices */
		return;
	find_plain(e, r);
	find_pred(a, e, r);
	double v;
	for (int i = e->nin; i < nreg && r->plain; i++)
		if (constant(e, i, &v) && e->ins[i - e->nin].to == DT_f32) {
			r->is_slope[i] = fabs(v - r->c) <= 4e-7 * r->c;
			r->is_one[i] = v == 1;
		}
	r->always = r->plain && r->is_plain[e->out[0]] && (!x->grad || r->is_slope[e->out[1]]) && (!x->weighted || r->is_one[e->out[r->weight]]);
}

/* The register that output i comes from in a lane, past what is selected there for certain. */
static int from(const struct prog_expr *e, const struct att_bound *reg, int i, int lane)
{
	int r = e->out[i];
	while (r >= e->nin && e->ins[r - e->nin].fn == ELEM_select) {
		const uint16_t *src = e->ins[r - e->nin].src;
		if (reg[src[0]].lo[lane] == 1)
			r = src[1];
		else if (reg[src[0]].hi[lane] == 0)
			r = src[2];
		else
			break;
	}
	return r;
}

void att_range_start(const struct att_range *r, struct att_bound *reg)
{
	for (int k = 0; k < r->e->n; k++) {
		const struct prog_ins *x = &r->e->ins[k];
		struct att_bound *o = &reg[r->e->nin + k];
		double v;
		if (x->fn != EXPR_IMM)
			continue;
		att_bound_any(x->to, o);
		if (!att_number(x->to, (const char *)x->imm, &v))
			continue;
		o->nan = 0;
		for (int i = 0; i < ATT_WIDE; i++)
			settle(x->to, o, i, v, v);
	}
}

struct att_known att_range_run(const struct att_range *r, int n, struct att_bound *reg)
{
	const struct prog_expr *e = r->e;
	for (int k = 0; k < e->n; k++) {
		const struct prog_ins *x = &e->ins[k];
		struct att_bound *o = &reg[e->nin + k];
		if (x->fn == EXPR_IMM)
			continue;
		if (x->fn == EXPR_LOOK) {
			*o = reg[x->src[0]];
			continue;
		}
		o->nan = 0;
		int nin = x->fn < ELEM_COUNT ? elem_info[x->fn].nin : 0;
		if (!nin || !function(x, n, &reg[x->src[0]], nin > 1 ? &reg[x->src[1]] : NULL, nin > 2 ? &reg[x->src[2]] : NULL, o))
			att_bound_any(x->to, o);
	}
	struct att_known known = { .score = &reg[e->out[0]] };
	for (int i = 0; i < n && r->plain; i++)
		known.plain |= (unsigned)(r->is_plain[from(e, reg, 0, i)] && (!r->grad || r->is_slope[from(e, reg, 1, i)]) &&
		                          (!r->weight || r->is_one[from(e, reg, r->weight, i)])) << i;
	return known;
}
