/* Elementwise functions as vector code: one row of elem.def after the other, on registers. */
#include "emit.h"

#include <math.h>
#include <stdlib.h>

/* --- helpers ------------------------------------------------------------ */

static LV intr1(struct em *e, const char *name, LV x) { return em_intr(e, name, x, 0, NULL); }

static bool is_float(int dt) { return dtype_info[dt].cls == DT_FLOAT; }
static bool is_signed(int dt) { return dtype_info[dt].cls == DT_INT; }
static bool is_half(int dt) { return dt == DT_bf16 || dt == DT_f16; }
static bool is_nibble(int dt) { return dt == DT_i4 || dt == DT_u4; }

static LV I(LV x, int64_t v) { return em_ki(LLVMTypeOf(x), v); }
static LV F(LV x, double v) { return em_kf(LLVMTypeOf(x), v); }
static LV bits(struct em *e, LV x, LT t) { return LLVMBuildBitCast(e->b, x, em_like(x, t), ""); }
static LV trunc_to(struct em *e, LV x, LT t) { return LLVMBuildTrunc(e->b, x, em_like(x, t), ""); }
static LV zext_to(struct em *e, LV x, LT t) { return LLVMBuildZExt(e->b, x, em_like(x, t), ""); }
static LV sext_to(struct em *e, LV x, LT t) { return LLVMBuildSExt(e->b, x, em_like(x, t), ""); }
static LV fcmp(struct em *e, LLVMRealPredicate p, LV a, LV b) { return LLVMBuildFCmp(e->b, p, a, b, ""); }
static LV icmp(struct em *e, LLVMIntPredicate p, LV a, LV b) { return LLVMBuildICmp(e->b, p, a, b, ""); }

/* Keep the value of a 4-bit type in its range. */
static LV wrap(struct em *e, int dt, LV x)
{
	if (dt == DT_u4)
		return LLVMBuildAnd(e->b, x, I(x, 15), "");
	if (dt == DT_i4)
		return LLVMBuildAShr(e->b, LLVMBuildShl(e->b, x, I(x, 4), ""), I(x, 4), "");
	return x;
}

/* The bits of a 4-bit value, zero-extended. */
static LV raw(struct em *e, int dt, LV x)
{
	return dt == DT_i4 ? LLVMBuildAnd(e->b, x, I(x, 15), "") : x;
}

LV em_round(struct em *e, int dt, LV x)
{
	if (dt == DT_f16) {
		LV h = LLVMBuildFPTrunc(e->b, x, em_like(x, LLVMHalfTypeInContext(e->c)), "");
		return LLVMBuildFPExt(e->b, h, em_like(x, e->f32), "");
	}
	return dt == DT_bf16 ? e->code->round(e, x) : x;
}

/* Of what is no result of arithmetic, and may be subnormal. */
static LV round_any(struct em *e, int dt, LV x)
{
	return dt == DT_bf16 ? e->code->round_any(e, x) : em_round(e, dt, x);
}

LV em_from_mem(struct em *e, int dt, LV x)
{
	switch (dt) {
	case DT_pred:
		return icmp(e, LLVMIntNE, x, I(x, 0));
	case DT_bf16: {
		LV u = zext_to(e, x, e->i32);
		return bits(e, LLVMBuildShl(e->b, u, I(u, 16), ""), e->f32);
	}
	case DT_f16:
		return LLVMBuildFPExt(e->b, bits(e, x, LLVMHalfTypeInContext(e->c)), em_like(x, e->f32), "");
	case DT_i4: case DT_u4:
		return wrap(e, dt, x);
	default:
		return x;
	}
}

LV em_to_mem(struct em *e, int dt, LV x)
{
	switch (dt) {
	case DT_pred:
		return zext_to(e, x, e->i8);
	case DT_bf16: {
		LV u = bits(e, x, e->i32);
		return trunc_to(e, LLVMBuildLShr(e->b, u, I(u, 16), ""), e->i16);
	}
	case DT_f16:
		return bits(e, LLVMBuildFPTrunc(e->b, x, em_like(x, LLVMHalfTypeInContext(e->c)), ""), e->i16);
	default:
		return x;
	}
}

/* --- floats ------------------------------------------------------------- */

static LV contract(LV x)
{
	if (LLVMIsAInstruction(x))
		LLVMSetFastMathFlags(x, LLVMFastMathAllowContract);
	return x;
}

/* A subnormal as the zero of its sign.  Arithmetic does so by itself. */
static LV flush(struct em *e, int dt, LV x)
{
	bool d = dt == DT_f64;
	LV u = bits(e, x, d ? e->i64 : e->i32), m = I(u, d ? 0x7ff0000000000000 : 0x7f800000), s = I(u, d ? INT64_MIN : INT32_MIN);
	LV low = icmp(e, LLVMIntEQ, LLVMBuildAnd(e->b, u, m, ""), I(u, 0));
	return bits(e, em_sel(e, low, LLVMBuildAnd(e->b, u, s, ""), u), d ? e->f64 : e->f32);
}

/* A number of bf16 is in the upper half of its register. */
LT em_order_type(struct em *e, int dt) { return dt == DT_f64 ? e->i64 : dt == DT_bf16 ? e->i16 : e->i32; }

/* What the order of bits as an integer has wrong: numbers below zero are turned round, and NaN belongs to the end that wins. */
static LV order_flip(struct em *e, int dt, LV k)
{
	int n = dt == DT_f64 ? 63 : dt == DT_bf16 ? 15 : 31;
	LV sign = LLVMBuildAShr(e->b, k, I(k, n), "");
	return LLVMBuildXor(e->b, k, LLVMBuildAnd(e->b, sign, I(k, (int64_t)(((uint64_t)1 << n) - 1)), ""), "");
}

static int64_t order_nans(int dt, bool max)
{
	int64_t n = ((int64_t)1 << (dt == DT_f64 ? 52 : dt == DT_bf16 ? 7 : 23)) - 1;
	return max ? -n : n;
}

LV em_order(struct em *e, int dt, bool max, LV x)
{
	LV k = bits(e, x, dt == DT_f64 ? e->i64 : e->i32);
	if (dt == DT_bf16)
		k = LLVMBuildTrunc(e->b, LLVMBuildLShr(e->b, k, I(k, 16), ""), em_like(k, e->i16), "");
	k = order_flip(e, dt, k);
	return LLVMBuildAdd(e->b, k, I(k, order_nans(dt, max)), "");
}

LV em_unorder(struct em *e, int dt, bool max, LV k)
{
	k = order_flip(e, dt, LLVMBuildSub(e->b, k, I(k, order_nans(dt, max)), ""));
	if (dt == DT_bf16) {
		k = LLVMBuildZExt(e->b, k, em_like(k, e->i32), "");
		k = LLVMBuildShl(e->b, k, I(k, 16), "");
	}
	return flush(e, dt, bits(e, k, dt == DT_f64 ? e->f64 : e->f32));
}

LV em_larger(struct em *e, bool max, LV a, LV b)
{
	return em_sel(e, icmp(e, max ? LLVMIntSGT : LLVMIntSLT, a, b), a, b);
}

/* The one constant that x is; else NaN. */
static double known(LV x)
{
	int n = em_lanes(x);
	LV c = !LLVMIsConstant(x) ? NULL : n ? LLVMGetAggregateElement(x, 0) : x;
	for (int i = 1; c && i < n; i++)
		if (LLVMGetAggregateElement(x, (unsigned)i) != c)
			return NAN;
	LLVMBool lossy;
	return c && LLVMIsAConstantFP(c) ? LLVMConstRealGetDouble(c, &lossy) : NAN;
}

/* Of 0 and -0, 0 is the larger; NaN wins.  The instruction gives its second operand if neither is larger, so both orders together give the right zero; and
 * nothing branches, as it does in the scalar code that LLVM has for this. */
static LV fmax_(struct em *e, LV x, LV y, bool max)
{
	LLVMRealPredicate p = max ? LLVMRealOGT : LLVMRealOLT;
	LT t = em_scalar(LLVMTypeOf(x)), i = t == e->f64 ? e->i64 : e->i32;
	LV z;
	double k = isnan(known(x)) ? known(y) : known(x);
	LV c = isnan(known(x)) ? y : x, v = c == x ? y : x;
	if (isinf(k) && max == (k < 0))           /* LLVM knows that nothing is beyond, and would give a subnormal back */
		return flush(e, t == e->f64 ? DT_f64 : DT_f32, v);
	if (isfinite(k) && (k != 0 || max || !signbit(k))) {
		/* one is a number: the instruction gives the other where that is NaN or the same; of zeros the sum is the larger */
		z = em_sel(e, fcmp(e, p, c, v), c, v);
		return k == 0 && max && !signbit(k) ? LLVMBuildFAdd(e->b, z, F(z, 0), "") : z;
	}
	if (e->code->limit && LLVMTypeOf(x) == e->f32) {
		z = e->code->limit(e, x, y, max);
	} else {
		LV a = bits(e, em_sel(e, fcmp(e, p, x, y), x, y), i), b = bits(e, em_sel(e, fcmp(e, p, y, x), y, x), i);
		z = bits(e, max ? LLVMBuildAnd(e->b, a, b, "") : LLVMBuildOr(e->b, a, b, ""), t);
	}
	return em_sel(e, fcmp(e, LLVMRealUNO, x, y), LLVMBuildFAdd(e->b, x, y, ""), z);
}

/* f64 -> the f32 that holds the bf16 or f16 nearest to x, rounded once. */
static LV round_f64(struct em *e, int dt, LV x)
{
	/* to odd in f32: the last bit keeps whether anything was lost */
	LV f = LLVMBuildFPTrunc(e->b, x, em_like(x, e->f32), ""), back = LLVMBuildFPExt(e->b, f, LLVMTypeOf(x), "");
	LV u = bits(e, f, e->i32);
	LV ax = intr1(e, "llvm.fabs", x), ab = intr1(e, "llvm.fabs", back);
	LV down = LLVMBuildSub(e->b, u, I(u, 1), "");
	LV over = fcmp(e, LLVMRealOGT, ab, ax), ne = fcmp(e, LLVMRealONE, ab, ax);
	u = em_sel(e, over, down, u);
	u = em_sel(e, ne, LLVMBuildOr(e->b, u, I(u, 1), ""), u);
	return round_any(e, dt, bits(e, u, e->f32));
}

static LV total_key(struct em *e, int dt, LV x)
{
	LT it = dt == DT_f64 ? e->i64 : e->i32;
	LV u = bits(e, x, it);
	int w = dt == DT_f64 ? 64 : 32;
	LV s = icmp(e, LLVMIntSLT, u, I(u, 0));
	return em_sel(e, s, LLVMBuildXor(e->b, u, I(u, w == 64 ? INT64_MAX : INT32_MAX), ""), u);
}

/* Do these look at the bits of their operands, or give them back? */
static bool looks_at_bits(enum elem k)
{
	switch ((int)k) {
	case ELEM_exponential_minus_one: case ELEM_log_plus_one: case ELEM_sine: case ELEM_tan: case ELEM_cbrt:
		return true;
	default:
		return false;
	}
}

/* As libm has them, which XLA:CPU calls: their subnormal operands are no zeros. */
static bool takes_subnormals(enum elem k) { return k == ELEM_power || k == ELEM_atan2; }

/* Those of f32 whose result is never an operand given back, nor bits put together. */
static bool ends_in_arithmetic(enum elem k)
{
	return k == ELEM_exponential || k == ELEM_logistic || k == ELEM_tanh || k == ELEM_erf || k == ELEM_log;
}

static LLVMRealPredicate fpred(enum elem k)
{
	switch ((int)k) {
	case ELEM_compare_eq: return LLVMRealOEQ;
	case ELEM_compare_ne: return LLVMRealUNE;
	case ELEM_compare_ge: return LLVMRealOGE;
	case ELEM_compare_gt: return LLVMRealOGT;
	case ELEM_compare_le: return LLVMRealOLE;
	default: return LLVMRealOLT;
	}
}

static LLVMIntPredicate ipred(enum elem k, bool sig)
{
	switch ((int)k) {
	case ELEM_compare_eq: case ELEM_total_eq: return LLVMIntEQ;
	case ELEM_compare_ne: case ELEM_total_ne: return LLVMIntNE;
	case ELEM_compare_ge: case ELEM_total_ge: return sig ? LLVMIntSGE : LLVMIntUGE;
	case ELEM_compare_gt: case ELEM_total_gt: return sig ? LLVMIntSGT : LLVMIntUGT;
	case ELEM_compare_le: case ELEM_total_le: return sig ? LLVMIntSLE : LLVMIntULE;
	default: return sig ? LLVMIntSLT : LLVMIntULT;
	}
}

/* fmodf.  A quotient below 2^24 that was rounded is the true one when cut off, or one more where the remainder is below zero; either way that is
 * exact, and no subnormal. */
static LV remainder_(struct em *e, const LV *a)
{
	LV x = intr1(e, "llvm.fabs", a[0]), y = intr1(e, "llvm.fabs", a[1]), q = LLVMBuildFDiv(e->b, x, y, "");
	LV ok = LLVMBuildAnd(e->b, fcmp(e, LLVMRealOGT, y, F(y, 1e-30)), fcmp(e, LLVMRealOLT, y, F(y, 1e30)), "");
	ok = LLVMBuildAnd(e->b, ok, fcmp(e, LLVMRealOLT, q, F(q, 0x1p24)), "");
	LV more[2] = { y, x }, r = em_intr(e, "llvm.fma", LLVMBuildFNeg(e->b, intr1(e, "llvm.trunc", q), ""), 2, more);
	r = em_sel(e, fcmp(e, LLVMRealOLT, r, F(r, 0)), LLVMBuildFAdd(e->b, r, y, ""), r);
	r = em_intr(e, "llvm.copysign", r, 1, &a[0]);
	return em_branch(e, LLVMBuildNot(e->b, ok, ""), r, em_libm_loop_2, "fmodf", a);
}

static LV float_elem(struct em *e, enum elem k, int dt, const LV *a)
{
	LLVMBuilderRef b = e->b;
	LV x = a[0], y = a[1], r;
	switch ((int)k) {
	case ELEM_add: r = contract(LLVMBuildFAdd(b, x, y, "")); break;
	case ELEM_subtract: r = contract(LLVMBuildFSub(b, x, y, "")); break;
	case ELEM_multiply: r = contract(LLVMBuildFMul(b, x, y, "")); break;
	case ELEM_divide: r = LLVMBuildFDiv(b, x, y, ""); break;
	case ELEM_remainder: {
		LV two[2] = { flush(e, dt, x), flush(e, dt, y) };
		r = flush(e, dt, dt == DT_f64 ? em_libm(e, "fmod", 2, two) : remainder_(e, two));
		break;
	}
	case ELEM_maximum: return fmax_(e, x, y, true);
	case ELEM_minimum: return fmax_(e, x, y, false);
	case ELEM_clamp: return fmax_(e, fmax_(e, y, x, true), a[2], false);
	case ELEM_abs: return intr1(e, "llvm.fabs", x);
	case ELEM_negate: return LLVMBuildFNeg(b, x, "");
	case ELEM_sign: {
		LV one = em_sel(e, fcmp(e, LLVMRealOEQ, x, F(x, 0)), F(x, 0), F(x, 1));
		return em_sel(e, fcmp(e, LLVMRealUNO, x, x), x, em_intr(e, "llvm.copysign", one, 1, &x));
	}
	case ELEM_ceil: return intr1(e, "llvm.ceil", x);
	case ELEM_floor: return intr1(e, "llvm.floor", x);
	case ELEM_round_nearest_afz: return intr1(e, "llvm.round", x);
	case ELEM_round_nearest_even: return intr1(e, "llvm.roundeven", x);
	case ELEM_sqrt: r = intr1(e, "llvm.sqrt", x); break;
	case ELEM_rsqrt: r = LLVMBuildFDiv(b, F(x, 1), intr1(e, "llvm.sqrt", x), ""); break;
	case ELEM_is_finite: return fcmp(e, LLVMRealOLT, intr1(e, "llvm.fabs", x), F(x, INFINITY));
	case ELEM_real: return x;
	case ELEM_imag: return F(x, 0);
	case ELEM_compare_eq: case ELEM_compare_ne: case ELEM_compare_ge: case ELEM_compare_gt: case ELEM_compare_le: case ELEM_compare_lt:
		return fcmp(e, fpred(k), x, y);
	case ELEM_total_eq: case ELEM_total_ne: case ELEM_total_ge: case ELEM_total_gt: case ELEM_total_le: case ELEM_total_lt:
		return icmp(e, ipred(k, true), total_key(e, dt, x), total_key(e, dt, y));
	default:
		if (!takes_subnormals(k) && (dt == DT_f64 || looks_at_bits(k))) {
			x = flush(e, dt, x);
			y = y ? flush(e, dt, y) : NULL;
		}
		r = dt == DT_f64 ? em_math_wide(e, k, x, y) : em_math(e, k, dt == DT_bf16, x, y);
		r = r && dt == DT_f64 && !takes_subnormals(k) ? flush(e, dt, r) : r;
		return r && is_half(dt) ? ends_in_arithmetic(k) ? em_round(e, dt, r) : round_any(e, dt, r) : r;
	}
	return r && is_half(dt) ? em_round(e, dt, r) : r;
}

/* --- integers ----------------------------------------------------------- */

/* Quotient with a safe divisor; 32 bits and fewer through f64, which is exact. */
static LV int_quot(struct em *e, int dt, LV x, LV y)
{
	bool sig = is_signed(dt);
	if (dtype_info[dt].bytes < 8 && em_lanes(x) && !LLVMIsConstant(y)) {
		LT f = em_like(x, e->f64);
		LV fx = sig ? LLVMBuildSIToFP(e->b, x, f, "") : LLVMBuildUIToFP(e->b, x, f, "");
		LV fy = sig ? LLVMBuildSIToFP(e->b, y, f, "") : LLVMBuildUIToFP(e->b, y, f, "");
		LV q = LLVMBuildFDiv(e->b, fx, fy, "");
		return sig ? LLVMBuildFPToSI(e->b, q, LLVMTypeOf(x), "") : LLVMBuildFPToUI(e->b, q, LLVMTypeOf(x), "");
	}
	return sig ? LLVMBuildSDiv(e->b, x, y, "") : LLVMBuildUDiv(e->b, x, y, "");
}

static LV int_pow(struct em *e, int dt, LV x, LV y)
{
	/* square and multiply over the bits of y, in a loop */
	LLVMBuilderRef b = e->b;
	int w = dtype_info[dt].bits;
	LV ry = raw(e, dt, y);
	LLVMBasicBlockRef from = LLVMGetInsertBlock(b), loop = em_block(e, "pow"), next = em_block(e, "next");
	LLVMBuildBr(b, loop);
	LLVMPositionBuilderAtEnd(b, loop);
	LV i = LLVMBuildPhi(b, e->i64, ""), r = LLVMBuildPhi(b, LLVMTypeOf(x), ""), base = LLVMBuildPhi(b, LLVMTypeOf(x), ""),
		ex = LLVMBuildPhi(b, LLVMTypeOf(x), "");
	LV odd = icmp(e, LLVMIntNE, LLVMBuildAnd(b, ex, I(ex, 1), ""), I(ex, 0));
	LV r1 = em_sel(e, odd, LLVMBuildMul(b, r, base, ""), r), b1 = LLVMBuildMul(b, base, base, ""), e1 = LLVMBuildLShr(b, ex, I(ex, 1), "");
	LV i1 = LLVMBuildAdd(b, i, em_ki(e->i64, 1), "");
	LLVMBuildCondBr(b, icmp(e, LLVMIntULT, i1, em_ki(e->i64, w)), loop, next);
	LV first[4] = { em_ki(e->i64, 0), I(x, 1), x, ry }, again[4] = { i1, r1, b1, e1 }, phi[4] = { i, r, base, ex };
	for (int k = 0; k < 4; k++) {
		LV in[2] = { first[k], again[k] };
		LLVMBasicBlockRef ib[2] = { from, loop };
		LLVMAddIncoming(phi[k], in, ib, 2);
	}
	em_at(e, next);
	LV out = wrap(e, dt, r1);
	if (is_signed(dt)) {
		LV neg = icmp(e, LLVMIntSLT, y, I(y, 0));
		LV is1 = icmp(e, LLVMIntEQ, x, I(x, 1)), ism1 = icmp(e, LLVMIntEQ, x, I(x, -1));
		LV par = em_sel(e, icmp(e, LLVMIntNE, LLVMBuildAnd(b, y, I(y, 1), ""), I(y, 0)), I(x, -1), I(x, 1));
		LV nv = em_sel(e, is1, I(x, 1), em_sel(e, ism1, par, I(x, 0)));
		out = em_sel(e, neg, nv, out);
	}
	return out;
}

static LV int_elem(struct em *e, enum elem k, int dt, const LV *a)
{
	LLVMBuilderRef b = e->b;
	LV x = a[0], y = a[1];
	bool sig = is_signed(dt);
	int w = dtype_info[dt].bits;
	switch ((int)k) {
	case ELEM_add: return wrap(e, dt, LLVMBuildAdd(b, x, y, ""));
	case ELEM_subtract: return wrap(e, dt, LLVMBuildSub(b, x, y, ""));
	case ELEM_multiply: return wrap(e, dt, LLVMBuildMul(b, x, y, ""));
	case ELEM_divide: case ELEM_remainder: {
		LV zero = icmp(e, LLVMIntEQ, y, I(y, 0)), unsafe = zero, m1 = NULL;
		if (sig) {
			m1 = icmp(e, LLVMIntEQ, y, I(y, -1));
			unsafe = LLVMBuildOr(b, zero, m1, "");
		}
		LV q = int_quot(e, dt, x, em_sel(e, unsafe, I(y, 1), y));
		if (k == ELEM_divide) {
			if (sig)
				q = em_sel(e, m1, wrap(e, dt, LLVMBuildNeg(b, x, "")), q);
			return em_sel(e, zero, dt == DT_u4 ? I(x, 15) : I(x, -1), q);
		}
		LV r = LLVMBuildSub(b, x, LLVMBuildMul(b, q, y, ""), "");
		if (sig)
			r = em_sel(e, m1, I(x, 0), r);
		return em_sel(e, zero, x, wrap(e, dt, r));
	}
	case ELEM_maximum: return em_sel(e, icmp(e, sig ? LLVMIntSGT : LLVMIntUGT, x, y), x, y);
	case ELEM_minimum: return em_sel(e, icmp(e, sig ? LLVMIntSLT : LLVMIntULT, x, y), x, y);
	case ELEM_clamp: {
		LV r = em_sel(e, icmp(e, sig ? LLVMIntSGT : LLVMIntUGT, y, x), y, x);
		return em_sel(e, icmp(e, sig ? LLVMIntSLT : LLVMIntULT, r, a[2]), r, a[2]);
	}
	case ELEM_power: return int_pow(e, dt, x, y);
	case ELEM_and: return LLVMBuildAnd(b, x, y, "");
	case ELEM_or: return LLVMBuildOr(b, x, y, "");
	case ELEM_xor: return LLVMBuildXor(b, x, y, "");
	case ELEM_not: return wrap(e, dt, LLVMBuildNot(b, x, ""));
	case ELEM_shift_left: case ELEM_shift_right_logical: case ELEM_shift_right_arithmetic: {
		LV by = raw(e, dt, y), wide = icmp(e, LLVMIntUGE, by, I(y, w));
		if (k == ELEM_shift_right_arithmetic) {
			LV s = x;
			if (!sig && is_nibble(dt))     /* the sign bit of the 4 bits */
				s = wrap(e, DT_i4, x);
			return wrap(e, dt, LLVMBuildAShr(b, s, em_sel(e, wide, I(y, w - 1), by), ""));
		}
		LV safe = em_sel(e, wide, I(y, 0), by);
		LV r = k == ELEM_shift_left ? LLVMBuildShl(b, x, safe, "") : LLVMBuildLShr(b, raw(e, dt, x), safe, "");
		return em_sel(e, wide, I(x, 0), wrap(e, dt, r));
	}
	case ELEM_mulhi: {
		LT d = LLVMIntTypeInContext(e->c, (unsigned)MAX(2 * w, 8));
		if (is_nibble(dt)) {
			LV p = LLVMBuildMul(b, x, y, "");
			return wrap(e, dt, sig ? LLVMBuildAShr(b, p, I(p, 4), "") : LLVMBuildLShr(b, p, I(p, 4), ""));
		}
		LV p = sig ? LLVMBuildMul(b, sext_to(e, x, d), sext_to(e, y, d), "") : LLVMBuildMul(b, zext_to(e, x, d), zext_to(e, y, d), "");
		return trunc_to(e, LLVMBuildLShr(b, p, I(p, w), ""), em_reg(e, dt));
	}
	case ELEM_abs:
		return sig ? wrap(e, dt, em_sel(e, icmp(e, LLVMIntSLT, x, I(x, 0)), LLVMBuildNeg(b, x, ""), x)) : x;
	case ELEM_negate: return wrap(e, dt, LLVMBuildNeg(b, x, ""));
	case ELEM_sign:
		if (!sig)
			return zext_to(e, icmp(e, LLVMIntNE, x, I(x, 0)), em_reg(e, dt));
		return em_sel(e, icmp(e, LLVMIntSGT, x, I(x, 0)), I(x, 1), em_sel(e, icmp(e, LLVMIntSLT, x, I(x, 0)), I(x, -1), I(x, 0)));
	case ELEM_popcnt: return intr1(e, "llvm.ctpop", raw(e, dt, x));
	case ELEM_count_leading_zeros: {
		LV no = LLVMConstInt(e->i1, 0, false);
		LV r = em_intr(e, "llvm.ctlz", raw(e, dt, x), 1, &no);
		return is_nibble(dt) ? LLVMBuildSub(b, r, I(r, 4), "") : r;
	}
	case ELEM_ceil: case ELEM_floor: case ELEM_round_nearest_afz: case ELEM_round_nearest_even: case ELEM_real:
		return x;
	case ELEM_imag: return I(x, 0);
	case ELEM_is_finite: return em_ki(em_like(x, e->i1), 1);
	default:
		if (elem_info[k].flags & EL_PRED)
			return icmp(e, ipred(k, sig), x, y);
		return NULL;
	}
}

static LV pred_elem(struct em *e, enum elem k, const LV *a)
{
	LLVMBuilderRef b = e->b;
	switch ((int)k) {
	case ELEM_add: case ELEM_maximum: case ELEM_or: return LLVMBuildOr(b, a[0], a[1], "");
	case ELEM_multiply: case ELEM_minimum: case ELEM_and: return LLVMBuildAnd(b, a[0], a[1], "");
	case ELEM_subtract: case ELEM_xor: return LLVMBuildXor(b, a[0], a[1], "");
	case ELEM_not: return LLVMBuildNot(b, a[0], "");
	case ELEM_clamp: return LLVMBuildAnd(b, LLVMBuildOr(b, a[1], a[0], ""), a[2], "");
	default:
		if (elem_info[k].flags & EL_PRED && elem_info[k].nin == 2)
			return icmp(e, ipred(k, false), a[0], a[1]);
		return NULL;
	}
}

/* --- conversions -------------------------------------------------------- */

static LV float_to_int(struct em *e, int from, int to, LV x)
{
	int w = dtype_info[to].bits;
	bool sig = is_signed(to);
	LT rt = em_reg(e, to);
	if (w < 32) {
		/* clamp as a float (the limits are exact), NaN to 0, convert through 32 bits */
		double lo = sig ? -ldexp(1, w - 1) : 0, hi = ldexp(1, sig ? w - 1 : w) - 1;
		LV c = em_sel(e, fcmp(e, LLVMRealOLT, x, F(x, lo)), F(x, lo), x);
		c = em_sel(e, fcmp(e, LLVMRealOGT, c, F(x, hi)), F(x, hi), c);
		c = em_sel(e, fcmp(e, LLVMRealUNO, x, x), F(x, 0), c);
		return trunc_to(e, LLVMBuildFPToSI(e->b, c, em_like(x, e->i32), ""), rt);
	}
	/* the least is a float, but the greatest is not: what is beyond that, or no number, is converted as 0, and chosen afterwards */
	LT dst = em_like(x, rt);
	LV lo = F(x, sig ? -ldexp(1, w - 1) : 0), beyond = fcmp(e, LLVMRealOGE, x, F(x, ldexp(1, sig ? w - 1 : w)));
	LV c = em_sel(e, fcmp(e, LLVMRealOLT, x, lo), lo, x);
	c = em_sel(e, fcmp(e, LLVMRealUNO, x, x), F(x, 0), em_sel(e, beyond, F(x, 0), c));
	LV r = sig ? LLVMBuildFPToSI(e->b, c, dst, "") : LLVMBuildFPToUI(e->b, c, dst, "");
	LV most = LLVMConstInt(rt, sig ? (1ull << (w - 1)) - 1 : w == 64 ? UINT64_MAX : (1ull << w) - 1, false);
	return em_sel(e, beyond, em_splat(e, most, em_lanes(x)), r);
}

static bool is_arithmetic(LV x)
{
	LLVMOpcode k = LLVMIsAInstruction(x) ? LLVMGetInstructionOpcode(x) : LLVMRet;
	return k == LLVMFAdd || k == LLVMFSub || k == LLVMFMul || k == LLVMFDiv;
}

static LV convert(struct em *e, int from, int to, LV x)
{
	LLVMBuilderRef b = e->b;
	LT rt = em_like(x, em_reg(e, to));
	if (from == to)
		return x;
	if (to == DT_pred)
		return is_float(from) ? fcmp(e, LLVMRealUNE, x, F(x, 0)) : icmp(e, LLVMIntNE, x, I(x, 0));
	if (is_float(from)) {
		if (!is_float(to))
			return float_to_int(e, from, to, x);
		if (from == DT_f64)
			return to == DT_f32 ? LLVMBuildFPTrunc(b, x, rt, "") : round_f64(e, to, x);
		if (to == DT_f64)
			return LLVMBuildFPExt(b, x, rt, "");
		return from == DT_f16 || is_arithmetic(x) ? em_round(e, to, x) : round_any(e, to, x);
	}
	if (is_float(to)) {
		bool u = from == DT_pred || !is_signed(from);
		return em_round(e, to, u ? LLVMBuildUIToFP(b, x, rt, "") : LLVMBuildSIToFP(b, x, rt, ""));
	}
	if (from == DT_pred)
		return zext_to(e, x, em_reg(e, to));
	int wf = dtype_info[from].bytes, wt = dtype_info[to].bytes;
	LV r = x;
	if (wt > wf)
		r = is_signed(from) ? sext_to(e, x, em_reg(e, to)) : zext_to(e, x, em_reg(e, to));
	else if (wt < wf)
		r = trunc_to(e, x, em_reg(e, to));
	return wrap(e, to, r);
}

static LV bitcast(struct em *e, int from, int to, LV x)
{
	if (is_nibble(from) && is_nibble(to))
		return wrap(e, to, x);
	if (from == DT_pred)
		return x;
	LV m = em_to_mem(e, from, x);
	if (is_float(from) != is_float(to) || is_float(to))
		m = bits(e, m, em_mem(e, to));
	return em_from_mem(e, to, m);
}

LV em_elem(struct em *e, enum elem k, int from, int to, const LV *a)
{
	if (k == ELEM_convert)
		return convert(e, from, to, a[0]);
	if (k == ELEM_bitcast)
		return bitcast(e, from, to, a[0]);
	if (k == ELEM_select) {
		if (!is_float(to))
			return em_sel(e, a[0], a[1], a[2]);
		/* as bits: a select of what its condition compares would become a minimum, which flushes */
		LT t = to == DT_f64 ? e->i64 : e->i32;
		return bits(e, em_sel(e, a[0], bits(e, a[1], t), bits(e, a[2], t)), em_reg(e, to));
	}
	LV r = from == DT_pred ? pred_elem(e, k, a) : is_float(from) ? float_elem(e, k, from, a) : int_elem(e, k, from, a);
	return r ? r : LLVMGetUndef(em_like(a[0], em_reg(e, to)));
}

LV em_reduce_precision(struct em *e, int dt, LV x, int ebits, int mbits)
{
	static const struct { int e, m; } fmt[DT_COUNT] = { [DT_f16] = { 5, 10 }, [DT_bf16] = { 8, 7 }, [DT_f32] = { 8, 23 }, [DT_f64] = { 11, 52 } };
	LLVMBuilderRef b = e->b;
	/* on the bits of the type itself (f16 has denormals that are normal in f32); bf16 is the top of f32 */
	LT it = dt == DT_f64 ? e->i64 : dt == DT_f16 ? e->i16 : e->i32;
	int M = dt == DT_bf16 ? 23 : fmt[dt].m, E = fmt[dt].e, w = dt == DT_f64 ? 64 : dt == DT_f16 ? 16 : 32;
	LV u = dt == DT_f16 ? em_to_mem(e, dt, x) : bits(e, x, it), r = u;
	if (mbits < fmt[dt].m) {
		int64_t last = (int64_t)1 << (M - mbits);
		LV odd = LLVMBuildAnd(b, LLVMBuildLShr(b, u, I(u, M - mbits), ""), I(u, 1), "");
		LV bias = LLVMBuildAdd(b, odd, I(u, (last >> 1) - 1), "");
		r = LLVMBuildAnd(b, LLVMBuildAdd(b, u, bias, ""), I(u, ~(last - 1)), "");
	}
	if (ebits < fmt[dt].e) {
		int64_t bias = ((int64_t)1 << (E - 1)) - 1, rb = ((int64_t)1 << (ebits - 1)) - 1;
		int64_t emask = (((int64_t)1 << E) - 1) << M, smask = (int64_t)(~(uint64_t)0 << (w - 1));
		LV ex = LLVMBuildAnd(b, r, I(u, emask), ""), sign = LLVMBuildAnd(b, u, I(u, smask), "");
		LV over = icmp(e, LLVMIntUGT, ex, I(u, (bias + rb) << M)), under = icmp(e, LLVMIntULE, ex, I(u, (bias - rb) << M));
		r = em_sel(e, over, LLVMBuildOr(b, sign, I(u, emask), ""), em_sel(e, under, sign, r));
	}
	LV y = dt == DT_f16 ? em_from_mem(e, dt, r) : bits(e, r, dt == DT_f64 ? e->f64 : e->f32);
	return round_any(e, dt, em_sel(e, fcmp(e, LLVMRealUNO, x, x), x, y));
}

/* --- reductions --------------------------------------------------------- */

LV em_redop(struct em *e, enum redop r, int dt, LV x, LV y)
{
	static const enum elem of[RED_COUNT] = {
#define REDOP(id, text, elem) elem,
#include "../base/redop.def"
#undef REDOP
	};
	LV a[3] = { x, y, NULL };
	return em_elem(e, of[r], dt, dt, a);
}

LV em_identity(struct em *e, enum redop r, int dt, int n)
{
	LT t = em_vec(em_reg(e, dt), n);
	int w = dtype_info[dt].bits;
	bool sig = is_signed(dt), fl = is_float(dt);
	switch ((int)r) {
	case RED_mul: return fl ? em_kf(t, 1) : em_ki(t, 1);
	case RED_min:
		return fl ? em_kf(t, INFINITY) : dt == DT_pred ? em_ki(t, 1) :
			em_ki(t, sig ? (int64_t)(((uint64_t)1 << (w - 1)) - 1) : w == 64 ? -1 : (int64_t)(((uint64_t)1 << w) - 1));
	case RED_max:
		return fl ? em_kf(t, -INFINITY) : em_ki(t, sig ? (int64_t)-((uint64_t)1 << (w - 1)) : 0);
	case RED_and: return em_ki(t, dt == DT_pred ? 1 : dt == DT_u4 ? 15 : -1);
	default: return fl ? em_kf(t, r == RED_add ? -0.0 : 0.0) : em_ki(t, 0);
	}
}

LV em_index(struct em *e, int dt, LV x, int64_t hi)
{
	/* clamped in its own type, then widened; an unsigned value can only be too large */
	bool sig = is_signed(dt);
	int bits = dtype_info[dt].bits;
	LT t = LLVMTypeOf(x);
	if (dt == DT_pred)
		return LLVMBuildZExt(e->b, x, em_like(x, e->i64), "");
	if (sig)
		x = em_sel(e, LLVMBuildICmp(e->b, LLVMIntSLT, x, em_ki(t, 0), ""), em_ki(t, 0), x);
	int64_t most = bits >= 63 ? INT64_MAX : ((int64_t)1 << (sig ? bits - 1 : bits)) - 1;
	if (hi < most)
		x = em_sel(e, LLVMBuildICmp(e->b, LLVMIntUGT, x, em_ki(t, hi), ""), em_ki(t, hi), x);
	return dtype_info[dt].bytes == 8 ? x : LLVMBuildZExt(e->b, x, em_like(x, e->i64), "");
}
