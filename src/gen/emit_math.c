/* Transcendental functions of f32 as straight-line vector code, at most 2 ulp.
 *
 * The usual reductions (Cody and Waite 1980): exp and its relatives by 2^n * e^r, |r| <= ln 2 / 2; log by
 * the exponent and a mantissa in [sqrt 1/2, sqrt 2]; sine and cosine by quadrants; the polynomials are
 * minimax fits of our own (weighted least squares with Lawson's iteration).  Functions that are rare or
 * hard to keep accurate (power, atan2, cbrt) go through f64.  Operands that are subnormal count as zero (but of power
 * and atan2): where a function looks at bits or gives its operand back, the caller has made them zero (flush in emit_elem.c). */
#include "emit.h"

#include <math.h>

static LT ty(LV x) { return LLVMTypeOf(x); }
static LV K(LV x, double v) { return em_kf(ty(x), v); }
/* An estimate of 1/x, NULL: the target has none. */
static LV recip(struct em *e, LV x) { return em_estimates(e, x) ? e->code->recip(e, x) : NULL; }
static LV add(struct em *e, LV a, LV b) { return LLVMBuildFAdd(e->b, a, b, ""); }
static LV sub(struct em *e, LV a, LV b) { return LLVMBuildFSub(e->b, a, b, ""); }
static LV mul(struct em *e, LV a, LV b) { return LLVMBuildFMul(e->b, a, b, ""); }
static LV divi(struct em *e, LV a, LV b) { return LLVMBuildFDiv(e->b, a, b, ""); }
static LV fma_(struct em *e, LV a, LV b, LV c) { LV m[2] = { b, c }; return em_intr(e, "llvm.fma", a, 2, m); }
static LV cmp(struct em *e, LLVMRealPredicate p, LV a, LV b) { return LLVMBuildFCmp(e->b, p, a, b, ""); }
static LV fabs_(struct em *e, LV a) { return em_intr(e, "llvm.fabs", a, 0, NULL); }
static LV copysign_(struct em *e, LV a, LV s) { return em_intr(e, "llvm.copysign", a, 1, &s); }
static LV as_i32(struct em *e, LV a) { return LLVMBuildBitCast(e->b, a, em_like(a, e->i32), ""); }
static LV as_f32(struct em *e, LV a) { return LLVMBuildBitCast(e->b, a, em_like(a, e->f32), ""); }
static LV as_i64(struct em *e, LV a) { return LLVMBuildBitCast(e->b, a, em_like(a, e->i64), ""); }
static LV as_f64(struct em *e, LV a) { return LLVMBuildBitCast(e->b, a, em_like(a, e->f64), ""); }
static LV I(LV x, int64_t v) { return em_ki(ty(x), v); }
static LV to_f64(struct em *e, LV a) { return LLVMBuildFPExt(e->b, a, em_like(a, e->f64), ""); }
static LV to_f32(struct em *e, LV a) { return LLVMBuildFPTrunc(e->b, a, em_like(a, e->f32), ""); }
static LV isnan_(struct em *e, LV a) { return cmp(e, LLVMRealUNO, a, a); }

/* c[0] + c[1] x + ..., Horner */
static LV poly(struct em *e, LV x, int n, const double *c)
{
	LV r = K(x, c[n - 1]);
	for (int i = n - 2; i >= 0; i--)
		r = fma_(e, r, x, K(x, c[i]));
	return r;
}

static const double log2e = 1.4426950408889634, ln2 = 0.6931471805599453;
static const double ln2_hi = 0x1.62e4p-1, ln2_lo = 0x1.7f7d1cp-20;

/* x = n ln 2 + r; *bits: n in the low bits of an i32 (to be shifted to the exponent). */
static LV exp_reduce(struct em *e, LV x, LV *n, LV *bits)
{
	LV magic = K(x, 12582912.0), t = fma_(e, x, K(x, log2e), magic);
	*n = sub(e, t, magic);
	*bits = as_i32(e, t);
	if (e->low)
		return fma_(e, *n, K(x, -ln2), x);
	LV r = fma_(e, *n, K(x, -ln2_hi), x);
	return fma_(e, *n, K(x, -ln2_lo), r);
}

/* a if a < b, else b (also if either is NaN): one instruction. */
static LV min_(struct em *e, LV a, LV b) { return em_sel(e, cmp(e, LLVMRealOLT, a, b), a, b); }
static LV max_(struct em *e, LV a, LV b) { return em_sel(e, cmp(e, LLVMRealOGT, a, b), a, b); }

static const double exp_c[] = { 0.4999999403953552, 0.1666651964187622, 0.041668396443128586, 0.008368791081011295, 0.0013814345002174377 };

/* e^r for |r| <= ln 2 / 2 */
static LV exp_poly(struct em *e, LV r)
{
	static const double low_c[] = { 0.999927818775177, 1.0001654624938965, 0.5049727559089661, 0.16565950214862823 };
	if (e->low)
		return poly(e, r, 4, low_c);
	return add(e, fma_(e, mul(e, r, r), poly(e, r, 5, exp_c), r), K(r, 1));
}

LV em_exp(struct em *e, LV x)
{
	/* where the scale overflows and underflows by itself: clamped so that the reduction stays finite */
	bool scales = em_estimates(e, x);
	LV c = scales ? min_(e, K(x, 89), max_(e, K(x, -104), x)) : x;
	LV n, bits, r = exp_reduce(e, c, &n, &bits), p = exp_poly(e, r);
	if (scales)
		return e->code->scale(e, p, n);
	LV y = as_f32(e, LLVMBuildAdd(e->b, as_i32(e, p), LLVMBuildShl(e->b, bits, I(bits, 23), ""), ""));
	y = em_sel(e, cmp(e, LLVMRealOLT, x, K(x, -87.33654)), K(x, 0), y);
	y = em_sel(e, cmp(e, LLVMRealOGT, x, K(x, 88.722839)), K(x, INFINITY), y);
	return em_sel(e, isnan_(e, x), x, y);
}

LV em_expm1(struct em *e, LV x)
{
	LV lim = em_sel(e, cmp(e, LLVMRealOLT, x, K(x, -20)), K(x, -20), x);
	lim = em_sel(e, cmp(e, LLVMRealOGT, lim, K(x, 89)), K(x, 89), lim);
	LV n, bits, r = exp_reduce(e, lim, &n, &bits);
	LV p = fma_(e, mul(e, r, r), poly(e, r, 5, exp_c), r);
	/* half of 2^n, so that 2^128 does not overflow */
	LV s = as_f32(e, LLVMBuildAdd(e->b, LLVMBuildShl(e->b, bits, I(bits, 23), ""), I(bits, 126 << 23), ""));
	LV h = fma_(e, s, p, sub(e, s, K(x, 0.5)));
	LV y = add(e, h, h);
	y = em_sel(e, cmp(e, LLVMRealOGT, x, K(x, 88.722839)), K(x, INFINITY), y);
	y = em_sel(e, cmp(e, LLVMRealOLT, fabs_(e, x), K(x, 1e-5)), fma_(e, mul(e, x, K(x, 0.5)), x, x), y);
	return em_sel(e, LLVMBuildOr(e->b, isnan_(e, x), cmp(e, LLVMRealOEQ, x, K(x, 0)), ""), x, y);
}

LV em_log(struct em *e, LV x)
{
	static const double c[] = { 0.3333333134651184, -0.250008225440979, 0.2000121921300888, -0.16623328626155853,
		0.1420191526412964, -0.13160617649555206, 0.1276063323020935, -0.07632175832986832 };
	LV u = as_i32(e, x);
	LV k = LLVMBuildAShr(e->b, LLVMBuildSub(e->b, u, I(u, 0x3f3504f3), ""), I(u, 23), "");
	LV m = as_f32(e, LLVMBuildSub(e->b, u, LLVMBuildShl(e->b, k, I(u, 23), ""), ""));
	LV n = LLVMBuildSIToFP(e->b, k, ty(x), ""), f = sub(e, m, K(x, 1)), f2 = mul(e, f, f);
	LV t = mul(e, mul(e, f2, f), poly(e, f, 8, c));
	t = fma_(e, n, K(x, ln2_lo), t);
	t = fma_(e, f2, K(x, -0.5), t);
	LV y = fma_(e, n, K(x, ln2_hi), add(e, f, t));
	y = em_sel(e, cmp(e, LLVMRealOEQ, x, K(x, INFINITY)), x, y);
	y = em_sel(e, cmp(e, LLVMRealOEQ, x, K(x, 0)), K(x, -INFINITY), y);
	y = em_sel(e, cmp(e, LLVMRealOLT, x, K(x, 0)), K(x, NAN), y);
	return em_sel(e, isnan_(e, x), x, y);
}

LV em_log1p(struct em *e, LV x)
{
	LV one = K(x, 1), u = add(e, x, one), c = sub(e, x, sub(e, u, one));
	/* for u > 2 the roles swap: c = 1 - (u - x) */
	LV c2 = sub(e, one, sub(e, u, x));
	c = em_sel(e, cmp(e, LLVMRealOGT, x, one), c2, c);
	LV y = add(e, em_log(e, u), divi(e, c, u));
	y = em_sel(e, cmp(e, LLVMRealOEQ, x, K(x, INFINITY)), x, y);
	y = em_sel(e, cmp(e, LLVMRealOEQ, x, K(x, -1)), K(x, -INFINITY), y);
	return em_sel(e, cmp(e, LLVMRealOLT, fabs_(e, x), K(x, 6e-8)), x, y);
}

LV em_tanh(struct em *e, LV x)
{
	static const double c[] = { -0.3333328068256378, 0.13331371545791626, -0.053733546286821365, 0.020618194714188576, -0.005680850241333246 };
	LV a = fabs_(e, x), s = mul(e, x, x);
	LV small = fma_(e, mul(e, s, x), poly(e, s, 5, c), x);
	LV lim = em_sel(e, cmp(e, LLVMRealOGT, a, K(x, 10)), K(x, 10), a), t = add(e, lim, lim);
	LV n, bits, r = exp_reduce(e, t, &n, &bits);
	LV p = exp_poly(e, r);
	LV ex = as_f32(e, LLVMBuildAdd(e->b, as_i32(e, p), LLVMBuildShl(e->b, bits, I(bits, 23), ""), ""));
	LV d = add(e, ex, K(x, 1)), q = recip(e, d);
	if (q && !e->low)
		q = fma_(e, fma_(e, LLVMBuildFNeg(e->b, d, ""), q, K(x, 1)), q, q);
	LV big = q ? fma_(e, q, K(x, -2), K(x, 1)) : sub(e, K(x, 1), divi(e, K(x, 2), d));
	LV y = copysign_(e, em_sel(e, cmp(e, LLVMRealOLT, a, K(x, 0.625)), small, big), x);
	return em_sel(e, isnan_(e, x), x, y);
}

LV em_logistic(struct em *e, LV x)
{
	LV one = K(x, 1);
	if (e->low) {
		LV d = add(e, one, em_exp(e, LLVMBuildFNeg(e->b, x, ""))), q = recip(e, d);
		return q ? q : divi(e, one, d);
	}
	LV t = em_exp(e, LLVMBuildFNeg(e->b, fabs_(e, x), ""));
	LV neg = cmp(e, LLVMRealOLT, x, K(x, 0)), num = em_sel(e, neg, t, one), d = add(e, one, t), r = recip(e, d);
	LV c = sub(e, t, sub(e, d, one));        /* what the sum lost */
	if (!r) {
		LV q = divi(e, num, d), inv = em_sel(e, neg, sub(e, one, q), q);
		return fma_(e, LLVMBuildFNeg(e->b, q, ""), mul(e, c, inv), q);
	}
	/* d is in 1 .. 2: Newton's step for the reciprocal, then one for the quotient by d + c */
	LV md = LLVMBuildFNeg(e->b, d, "");
	r = fma_(e, fma_(e, md, r, one), r, r);
	LV q = mul(e, num, r), mq = LLVMBuildFNeg(e->b, q, "");
	return fma_(e, fma_(e, mq, c, fma_(e, md, q, num)), r, q);
}

static const double sin_c[] = { -0.1666666716337204, 0.008333329111337662, -0.00019839325977955014, 2.718232735787751e-06 };
static const double cos_c[] = { 0.04166664555668831, -0.001388736069202423, 2.4437636966467835e-05 };

static LV poly_sin(struct em *e, LV r)
{
	LV s = mul(e, r, r);
	return fma_(e, mul(e, s, r), poly(e, s, 4, sin_c), r);
}

static LV poly_cos(struct em *e, LV r)
{
	LV s = mul(e, r, r);
	return fma_(e, mul(e, s, s), poly(e, s, 3, cos_c), fma_(e, s, K(r, -0.5), K(r, 1)));
}

/* Sine and cosine of the reduced argument, and the quadrant; kept for a second request of the same x. */
static void trig(struct em *e, LV x, LV *sn, LV *cs, LV *quad)
{
	LLVMBasicBlockRef bb = LLVMGetInsertBlock(e->b);
	if (e->trig.x != x || e->trig.block != bb) {
		LV magic = K(x, 12582912.0), t = fma_(e, x, K(x, 0.6366197723675814), magic), n = sub(e, t, magic);
		LV r = fma_(e, n, K(x, -0x1.921fb6p+0), x);
		r = fma_(e, n, K(x, 0x1.777a5cp-25), r);
		r = fma_(e, n, K(x, 0x1.ee59dap-50), r);
		e->trig.x = x;
		e->trig.block = bb;
		e->trig.n = as_i32(e, t);
		e->trig.sin = poly_sin(e, r);
		e->trig.cos = poly_cos(e, r);
	}
	*sn = e->trig.sin;
	*cs = e->trig.cos;
	*quad = e->trig.n;
}

/* Sine (shift 0) or cosine (1) from polynomials at the reduced argument and the quadrant. */
static LV quadrant(struct em *e, LV s, LV c, LV n, int shift)
{
	if (shift)
		n = LLVMBuildAdd(e->b, n, I(n, 1), "");
	LV odd = LLVMBuildICmp(e->b, LLVMIntNE, LLVMBuildAnd(e->b, n, I(n, 1), ""), I(n, 0), "");
	LV y = as_i32(e, em_sel(e, odd, c, s));
	LV sign = LLVMBuildShl(e->b, LLVMBuildAnd(e->b, n, I(n, 2), ""), I(n, 30), "");
	return as_f32(e, LLVMBuildXor(e->b, y, sign, ""));
}

/* Up to 2^40: reduction in f64 with pi/2 in two parts.  n's low bits are the quadrant. */
static LV reduce_f64(struct em *e, LV x, LV *n)
{
	LV d = to_f64(e, x), magic = K(d, 6755399441055744.0), t = fma_(e, d, K(d, 0.6366197723675814), magic), q = sub(e, t, magic);
	LV r = fma_(e, q, K(d, -0x1.921fb54442d18p+0), d);
	r = fma_(e, q, K(d, -0x1.1a62633145c07p-54), r);
	*n = LLVMBuildTrunc(e->b, as_i64(e, t), em_like(x, e->i32), "");
	return r;
}

/* Beyond this f32 reduction is not exact enough; beyond the second, only libm's is. */
static LV beyond(struct em *e, LV x, double most)
{
	return cmp(e, LLVMRealUGT, fabs_(e, x), K(x, most));
}

static LV far_wave(struct em *e, const LV *x, const char *name)
{
	LV n, r = to_f32(e, reduce_f64(e, x[0], &n));
	LV y = quadrant(e, poly_sin(e, r), poly_cos(e, r), n, name[0] == 'c');
	return em_branch(e, beyond(e, x[0], 1e12), y, em_libm_loop, name, x);
}

static LV wave(struct em *e, LV x, int shift, const char *name)
{
	LV s, c, n;
	trig(e, x, &s, &c, &n);
	LV y = quadrant(e, s, c, n, shift);
	if (!shift)
		y = em_sel(e, cmp(e, LLVMRealOEQ, x, K(x, 0)), x, y);
	return em_branch(e, beyond(e, x, 4e6), y, far_wave, name, &x);
}

LV em_sin(struct em *e, LV x) { return wave(e, x, 0, "sinf"); }
LV em_cos(struct em *e, LV x) { return wave(e, x, 1, "cosf"); }

LV em_tan(struct em *e, LV x)
{
	/* a quotient of two rounded values is too far off near the poles: through f64 */
	LV bits, r = reduce_f64(e, x, &bits), s = poly_sin(e, r), c = poly_cos(e, r);
	LV odd = LLVMBuildICmp(e->b, LLVMIntNE, LLVMBuildAnd(e->b, bits, I(bits, 1), ""), I(bits, 0), "");
	LV y = to_f32(e, divi(e, em_sel(e, odd, LLVMBuildFNeg(e->b, c, ""), s), em_sel(e, odd, s, c)));
	y = em_sel(e, cmp(e, LLVMRealOEQ, x, K(x, 0)), x, y);
	return em_branch(e, beyond(e, x, 1e12), y, em_libm_loop, "tanf", &x);
}

LV em_erf(struct em *e, LV x)
{
	static const double small_c[] = { 0.12837916612625122, -0.37612631916999817, 0.11283663660287857, -0.026857703924179077,
		0.00519694946706295, -0.0008097675745375454, 8.184991747839376e-05 };
	static const double large_c[] = { -0.1286371350288391, -0.6351978182792664, -0.10615944862365723, 0.02369493618607521,
		-0.003610527841374278, 0.00031490650144405663, -1.0438213394081686e-05 };
	LV a = fabs_(e, x), s = mul(e, x, x);
	LV small = fma_(e, poly(e, s, 7, small_c), x, x);
	LV t = em_sel(e, cmp(e, LLVMRealOGT, a, K(x, 4)), K(x, 4), a);
	LV p = fma_(e, poly(e, t, 7, large_c), t, LLVMBuildFNeg(e->b, t, ""));
	LV n, bits, r = exp_reduce(e, p, &n, &bits);
	LV q = exp_poly(e, r);
	LV ex = as_f32(e, LLVMBuildAdd(e->b, as_i32(e, q), LLVMBuildShl(e->b, bits, I(bits, 23), ""), ""));
	LV large = copysign_(e, sub(e, K(x, 1), ex), x);
	LV y = em_sel(e, cmp(e, LLVMRealOLT, a, K(x, 0.925)), small, large);
	return em_sel(e, isnan_(e, x), x, y);
}

/* log2 of a > 0 (normal), f64 */
static LV log2_f64(struct em *e, LV a)
{
	static const double c[] = { 2.885390081777927, 0.9617966939243143, 0.5770780172545954, 0.41219840081405695,
		0.3206164713431822, 0.2614416658926232, 0.24294613949910135 };
	LV u = as_i64(e, a);
	LV k = LLVMBuildSub(e->b, u, I(u, 0x3fe6a09e667f3bcd), "");
	/* the exponent, through 32-bit arithmetic: not every target has an arithmetic shift of 64-bit lanes */
	LV hi = LLVMBuildTrunc(e->b, LLVMBuildLShr(e->b, k, I(u, 32), ""), em_like(a, e->i32), "");
	LV ki = LLVMBuildAShr(e->b, hi, I(hi, 20), "");
	LV up = LLVMBuildShl(e->b, LLVMBuildSExt(e->b, ki, ty(u), ""), I(u, 52), "");
	LV m = as_f64(e, LLVMBuildSub(e->b, u, up, ""));
	LV f = sub(e, m, K(m, 1)), s = divi(e, f, add(e, m, K(m, 1)));
	LV y = mul(e, s, poly(e, mul(e, s, s), 7, c));
	return add(e, y, LLVMBuildSIToFP(e->b, ki, ty(a), ""));
}

/* f32 -> f64, subnormals too (the conversion itself takes them for zero). */
static LV to_f64_exact(struct em *e, LV x)
{
	LV u = as_i32(e, x), m = LLVMBuildAnd(e->b, u, I(u, 0x7fffff), ""), d = to_f64(e, x);
	LV tiny = LLVMBuildICmp(e->b, LLVMIntEQ, LLVMBuildAnd(e->b, u, I(u, 0x7f800000), ""), I(u, 0), "");
	LV v = mul(e, LLVMBuildSIToFP(e->b, m, LLVMTypeOf(d), ""), K(d, 0x1p-149));
	v = em_sel(e, LLVMBuildICmp(e->b, LLVMIntSLT, u, I(u, 0), ""), LLVMBuildFNeg(e->b, v, ""), v);
	return em_sel(e, tiny, v, d);
}

static LV zero_bits(struct em *e, LV x)
{
	LV u = as_i32(e, x);
	return LLVMBuildICmp(e->b, LLVMIntEQ, LLVMBuildAnd(e->b, u, I(u, 0x7fffffff), ""), I(u, 0), "");
}

/* Subnormal operands count here, as they do in libm, which XLA:CPU calls. */
LV em_pow(struct em *e, LV x32, LV y32)
{
	static const double c[] = { 1.000000000000027, 0.6931471805457047, 0.2402265069546529, 0.05550410942116824, 0.009618129228980253,
		0.0013333449696687897, 0.00015403411299125678, 1.531031102294254e-05, 1.3264140200187e-06 };
	LV zero32 = zero_bits(e, x32), yzero = zero_bits(e, y32);
	LV ax = fabs_(e, x32), x = to_f64_exact(e, ax), y = to_f64_exact(e, y32);
	LV l = log2_f64(e, x);
	l = em_sel(e, zero32, K(l, -INFINITY), l);
	l = em_sel(e, cmp(e, LLVMRealOEQ, ax, K(ax, INFINITY)), K(l, INFINITY), l);
	LV t = mul(e, y, l);
	t = em_sel(e, cmp(e, LLVMRealOLT, t, K(t, -300)), K(t, -300), t);
	t = em_sel(e, cmp(e, LLVMRealOGT, t, K(t, 300)), K(t, 300), t);
	LV magic = K(t, 6755399441055744.0), w = add(e, t, magic), n = sub(e, w, magic);
	LV p = poly(e, sub(e, t, n), 9, c);
	LV z = as_f64(e, LLVMBuildAdd(e->b, as_i64(e, p), LLVMBuildShl(e->b, as_i64(e, w), I(as_i64(e, w), 52), ""), ""));
	LV r = to_f32(e, z);
	LV one32 = K(x32, 1);
	r = em_sel(e, LLVMBuildOr(e->b, isnan_(e, x32), isnan_(e, y32), ""), K(x32, NAN), r);
	r = em_sel(e, LLVMBuildOr(e->b, yzero, cmp(e, LLVMRealOEQ, ax, one32), ""), one32, r);
	/* negative bases */
	LV whole = LLVMBuildAnd(e->b, cmp(e, LLVMRealOEQ, em_intr(e, "llvm.floor", y32, 0, NULL), y32),
	                        LLVMBuildOr(e->b, yzero, cmp(e, LLVMRealUNE, y32, K(y32, 0)), ""), "");
	LV half = mul(e, y32, K(y32, 0.5));
	LV odd = LLVMBuildAnd(e->b, whole, cmp(e, LLVMRealUNE, em_intr(e, "llvm.floor", half, 0, NULL), half), "");
	LV u = as_i32(e, x32), neg = LLVMBuildICmp(e->b, LLVMIntSLT, u, I(u, 0), "");
	LV flip = LLVMBuildAnd(e->b, neg, odd, "");
	r = em_sel(e, flip, LLVMBuildFNeg(e->b, r, ""), r);
	LV fin = LLVMBuildAnd(e->b, LLVMBuildAnd(e->b, neg, LLVMBuildNot(e->b, zero32, ""), ""), cmp(e, LLVMRealOGT, x32, K(x32, -INFINITY)), "");
	LV bad = LLVMBuildAnd(e->b, fin, LLVMBuildNot(e->b, whole, ""), "");
	r = em_sel(e, bad, K(x32, NAN), r);
	/* 1 ** y and x ** 0 are 1 for NaN as well */
	r = em_sel(e, LLVMBuildOr(e->b, yzero, cmp(e, LLVMRealOEQ, x32, one32), ""), one32, r);
	LV nany = LLVMBuildAnd(e->b, isnan_(e, y32), cmp(e, LLVMRealUNE, x32, one32), "");
	return em_sel(e, nany, K(x32, NAN), r);
}

LV em_atan2(struct em *e, LV y32, LV x32)
{
	static const double c[] = { 0.9999999999410106, -0.33333331565727503, 0.19999911831443215, -0.14283977320610852, 0.11093213701891372,
		-0.08980110295396339, 0.07245343051985657, -0.054272087384528614, 0.03420117329800543, -0.016105388076395073,
		0.004848281248757984, -0.0006843097111762151 };
	LV ay = fabs_(e, y32), ax = fabs_(e, x32), inf = K(x32, INFINITY);
	/* by bits: subnormals are larger than zero here */
	LV swap = LLVMBuildICmp(e->b, LLVMIntUGT, as_i32(e, ay), as_i32(e, ax), "");
	LV mx = em_sel(e, swap, ay, ax), mn = em_sel(e, swap, ax, ay);
	LV a = divi(e, to_f64(e, mn), to_f64(e, mx));
	a = em_sel(e, zero_bits(e, mn), K(a, 0), a);
	a = em_sel(e, cmp(e, LLVMRealOEQ, mn, inf), K(a, 1), a);
	LV r = mul(e, a, poly(e, mul(e, a, a), 12, c));
	r = em_sel(e, swap, sub(e, K(r, 1.5707963267948966), r), r);
	LV u = as_i32(e, x32), neg = LLVMBuildICmp(e->b, LLVMIntSLT, u, I(u, 0), "");
	r = em_sel(e, neg, sub(e, K(r, 3.141592653589793), r), r);
	LV z = copysign_(e, to_f32(e, r), y32);
	return em_sel(e, LLVMBuildFCmp(e->b, LLVMRealUNO, x32, y32, ""), K(z, NAN), z);
}

LV em_cbrt(struct em *e, LV x32)
{
	LV ax = fabs_(e, x32), u = as_i32(e, ax);
	LV g = LLVMBuildAdd(e->b, LLVMBuildUDiv(e->b, u, I(u, 3), ""), I(u, 0x2a514067), "");
	LV x = to_f64(e, ax), y = to_f64(e, as_f32(e, g));
	for (int i = 0; i < 2; i++) {        /* Halley */
		LV y3 = mul(e, y, mul(e, y, y)), xx = add(e, x, x);
		y = mul(e, y, divi(e, add(e, y3, xx), add(e, add(e, y3, y3), x)));
	}
	LV r = copysign_(e, to_f32(e, y), x32);
	LV same = LLVMBuildOr(e->b, cmp(e, LLVMRealOEQ, x32, K(x32, 0)), LLVMBuildNot(e->b, cmp(e, LLVMRealOLT, ax, K(ax, INFINITY)), ""), "");
	return em_sel(e, same, x32, r);
}
