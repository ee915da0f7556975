/* base/math.def as vector code: functions of f32 and f64 registers. */
#include "emit.h"

#include <math.h>

static LT ty(LV x) { return LLVMTypeOf(x); }
static LV fma_(struct em *e, LV a, LV b, LV c) { LV m[2] = { b, c }; return em_intr(e, "llvm.fma", a, 2, m); }
static LV copysign_(struct em *e, LV a, LV s) { return em_intr(e, "llvm.copysign", a, 1, &s); }
static LV cmp(struct em *e, LLVMRealPredicate p, LV a, LV b) { return LLVMBuildFCmp(e->b, p, a, b, ""); }
static LV cast_to(struct em *e, LV a, LT t) { return LLVMBuildBitCast(e->b, a, em_like(a, t), ""); }
static LV as_bits(struct em *e, LV a) { return cast_to(e, a, LLVMGetTypeKind(em_scalar(ty(a))) == LLVMDoubleTypeKind ? e->i64 : e->i32); }

static LV shl(struct em *e, LV a, int n) { return LLVMBuildShl(e->b, a, em_ki(ty(a), n), ""); }
static LV shr(struct em *e, LV a, int n) { return LLVMBuildLShr(e->b, a, em_ki(ty(a), n), ""); }
static LV sar(struct em *e, LV a, int n) { return LLVMBuildAShr(e->b, a, em_ki(ty(a), n), ""); }
static LV third(struct em *e, LV a) { return LLVMBuildUDiv(e->b, a, em_ki(ty(a), 3), ""); }
static LV minus(struct em *e, LV a) { return LLVMBuildICmp(e->b, LLVMIntSLT, a, em_ki(ty(a), 0), ""); }

static void trig(struct em *e, LV x, LV *sn, LV *cs, LV *quad);

/* Sine and cosine of one x are often asked for both. */
static void kept_trig(struct em *e, LV x, LV *sn, LV *cs, LV *quad)
{
	LLVMBasicBlockRef bb = LLVMGetInsertBlock(e->b);
	if (e->trig.x != x || e->trig.block != bb) {
		e->trig.x = x;
		e->trig.block = bb;
		trig(e, x, &e->trig.sin, &e->trig.cos, &e->trig.n);
	}
	*sn = e->trig.sin;
	*cs = e->trig.cos;
	*quad = e->trig.n;
}

static LV scaled(struct em *e, LV p, LV n);
static LV scale(struct em *e, LV p, LV n, LV low) { return em_scales(e, p) ? e->code->scale(e, p, n) : scaled(e, p, low); }

#define FUN1(name, x) static LV name##_(struct em *e, LV x)
#define FUN2(name, x, y) static LV name##_(struct em *e, LV x, LV y)
#define CALL(name, x) name##_(e, x)
#define WIDE1(name, x) static LV name##_wide_(struct em *e, LV x)
#define CALLW(name, x) name##_wide_(e, x)
#define PART(type, name) static type name
#define CTX struct em *e,
#define ARG e,
#define V LV
#define W LV
#define N LV
#define L LV
#define T LV
#define K(like, c) em_kf(ty(like), c)
#define KI(like, c) em_ki(ty(like), c)
#define ADD(x, y) LLVMBuildFAdd(e->b, x, y, "")
#define SUB(x, y) LLVMBuildFSub(e->b, x, y, "")
#define MUL(x, y) LLVMBuildFMul(e->b, x, y, "")
#define DIV(x, y) LLVMBuildFDiv(e->b, x, y, "")
#define NEG(x) LLVMBuildFNeg(e->b, x, "")
#define FMA(x, y, z) fma_(e, x, y, z)
#define FUSED FMA
#define ABS(x) em_intr(e, "llvm.fabs", x, 0, NULL)
#define COPYSIGN(x, y) copysign_(e, x, y)
#define FLOOR(x) em_intr(e, "llvm.floor", x, 0, NULL)
#define LT(x, y) cmp(e, LLVMRealOLT, x, y)
#define GT(x, y) cmp(e, LLVMRealOGT, x, y)
#define EQ(x, y) cmp(e, LLVMRealOEQ, x, y)
#define NE(x, y) cmp(e, LLVMRealUNE, x, y)
#define UNORD(x, y) cmp(e, LLVMRealUNO, x, y)
#define SEL(t, x, y) em_sel(e, t, x, y)
#define AND(x, y) LLVMBuildAnd(e->b, x, y, "")
#define OR(x, y) LLVMBuildOr(e->b, x, y, "")
#define NOT(x) LLVMBuildNot(e->b, x, "")
#define BITS(x) as_bits(e, x)
#define OF32(u) cast_to(e, u, e->f32)
#define OF64(u) cast_to(e, u, e->f64)
#define IADD(x, y) LLVMBuildAdd(e->b, x, y, "")
#define ISUB(x, y) LLVMBuildSub(e->b, x, y, "")
#define IAND AND
#define IXOR(x, y) LLVMBuildXor(e->b, x, y, "")
#define SHL(x, n) shl(e, x, n)
#define SHR(x, n) shr(e, x, n)
#define SAR(x, n) sar(e, x, n)
#define THIRD(x) third(e, x)
#define IEQ(x, y) LLVMBuildICmp(e->b, LLVMIntEQ, x, y, "")
#define IGT(x, y) LLVMBuildICmp(e->b, LLVMIntUGT, x, y, "")
#define MINUS(x) minus(e, x)
#define WIDEN(x) LLVMBuildFPExt(e->b, x, em_like(x, e->f64), "")
#define NARROW(x) LLVMBuildFPTrunc(e->b, x, em_like(x, e->f32), "")
#define LOW(u) LLVMBuildTrunc(e->b, u, em_like(u, e->i32), "")
#define WIDE_I(u) LLVMBuildSExt(e->b, u, em_like(u, e->i64), "")
#define FLOAT(u) LLVMBuildSIToFP(e->b, u, em_like(u, e->f32), "")
#define DOUBLE(u) LLVMBuildSIToFP(e->b, u, em_like(u, e->f64), "")
#define SCALE(p, n, low) scale(e, p, n, low)
#define TRIG kept_trig
#include "../base/math.def"

static LV beyond(struct em *e, LV x, double most) { return cmp(e, LLVMRealUGT, ABS(x), K(x, most)); }

static LV wave_far(struct em *e, const LV *x, const char *name)
{
	return em_branch(e, beyond(e, x[0], TRIG_FAR), name[0] == 'c' ? cos_far_(e, x[0]) : sin_far_(e, x[0]), em_libm_loop, name, x);
}

LV em_math_wide(struct em *e, enum elem k, LV x, LV y)
{
	const char *name = NULL;
	LV a[2] = { x, y };
	switch ((int)k) {
	case ELEM_exponential: return exp_wide_(e, x);
	case ELEM_exponential_minus_one: return expm1_wide_(e, x);
	case ELEM_log: return log_wide_(e, x);
	case ELEM_log_plus_one: return log1p_wide_(e, x);
	case ELEM_logistic: return logistic_wide_(e, x);
	case ELEM_tanh: return tanh_wide_(e, x);
	case ELEM_sine: return em_branch(e, beyond(e, x, TRIG_WIDE), sin_wide_(e, x), em_libm_loop, "sin", &x);
	case ELEM_cosine: return em_branch(e, beyond(e, x, TRIG_WIDE), cos_wide_(e, x), em_libm_loop, "cos", &x);
	case ELEM_power: return em_libm(e, "pow", 2, a);
	case ELEM_atan2: return em_libm(e, "atan2", 2, a);
	case ELEM_tan: name = "tan"; break;
	case ELEM_cbrt: name = "cbrt"; break;
	case ELEM_erf: name = "erf"; break;
	default: return NULL;
	}
	return em_libm(e, name, 1, a);
}

LV em_math(struct em *e, enum elem k, bool bf16, LV x, LV y)
{
	switch ((int)k) {
	case ELEM_exponential: return bf16 ? exp_bf16_(e, x) : exp_(e, x);
	case ELEM_exponential_minus_one: return expm1_(e, x);
	case ELEM_log: return log_(e, x);
	case ELEM_log_plus_one: return log1p_(e, x);
	case ELEM_logistic: return bf16 ? logistic_bf16_(e, x) : logistic_(e, x);
	case ELEM_tanh: return bf16 ? tanh_bf16_(e, x) : tanh_(e, x);
	case ELEM_tan: return em_branch(e, beyond(e, x, TRIG_FAR), tan_(e, x), em_libm_loop, "tanf", &x);
	case ELEM_sine: return em_branch(e, beyond(e, x, TRIG_NEAR), sin_(e, x), wave_far, "sinf", &x);
	case ELEM_cosine: return em_branch(e, beyond(e, x, TRIG_NEAR), cos_(e, x), wave_far, "cosf", &x);
	case ELEM_cbrt: return cbrt_(e, x);
	case ELEM_erf: return bf16 ? erf_bf16_(e, x) : erf_(e, x);
	case ELEM_power: return pow_(e, x, y);
	case ELEM_atan2: return atan2_(e, x, y);
	default: return NULL;
	}
}
