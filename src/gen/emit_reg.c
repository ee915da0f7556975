/* Values in registers: types, constants, choices, calls. */
#include "emit.h"

LT em_vec(LT t, int n) { return n > 0 ? LLVMVectorType(t, (unsigned)n) : t; }

int em_lanes(LV x)
{
	LT t = LLVMTypeOf(x);
	return LLVMGetTypeKind(t) == LLVMVectorTypeKind ? (int)LLVMGetVectorSize(t) : 0;
}

LT em_like(LV x, LT scalar) { return em_vec(scalar, em_lanes(x)); }

static LV const_splat(LT t, LV c)
{
	if (LLVMGetTypeKind(t) != LLVMVectorTypeKind)
		return c;
	unsigned n = LLVMGetVectorSize(t);
	LV v[256];
	for (unsigned i = 0; i < n; i++)
		v[i] = c;
	return LLVMConstVector(v, n);
}

LT em_scalar(LT t) { return LLVMGetTypeKind(t) == LLVMVectorTypeKind ? LLVMGetElementType(t) : t; }
LV em_ki(LT t, int64_t v) { return const_splat(t, LLVMConstInt(em_scalar(t), (unsigned long long)v, true)); }
LV em_kf(LT t, double v) { return const_splat(t, LLVMConstReal(em_scalar(t), v)); }

LV em_splat(struct em *e, LV x, int n)
{
	if (n <= 0 || em_lanes(x))
		return x;
	LT t = em_vec(LLVMTypeOf(x), n);
	if (LLVMIsConstant(x))
		return const_splat(t, x);
	LV v = LLVMBuildInsertElement(e->b, LLVMGetPoison(t), x, LLVMConstInt(e->i32, 0, false), "");
	return LLVMBuildShuffleVector(e->b, v, LLVMGetPoison(t), LLVMConstNull(em_vec(e->i32, n)), "");
}

LV em_sel(struct em *e, LV c, LV x, LV y)
{
	if (x == y)
		return x;
	if (LLVMIsConstant(c)) {
		int n = em_lanes(c);
		LV s = n ? LLVMGetAggregateElement(c, 0) : c;
		for (int i = 1; s && i < n; i++)
			if (LLVMGetAggregateElement(c, (unsigned)i) != s)
				s = NULL;
		if (s && LLVMIsAConstantInt(s))
			return LLVMConstIntGetZExtValue(s) ? x : y;
	}
	return LLVMBuildSelect(e->b, c, x, y, "");
}

static LV fn_decl(struct em *e, const char *name, LT ret, int n, const LV *arg, LT *ft)
{
	LT t[8];
	for (int i = 0; i < n; i++)
		t[i] = LLVMTypeOf(arg[i]);
	*ft = LLVMFunctionType(ret, t, (unsigned)n, false);
	LV f = LLVMGetNamedFunction(e->m, name);
	return f ? f : LLVMAddFunction(e->m, name, *ft);
}

LV em_call(struct em *e, const char *name, LT ret, int n, const LV *arg)
{
	LT ft;
	LV f = fn_decl(e, name, ret, n, arg, &ft), a[8];
	if (n)
		memcpy(a, arg, sizeof *arg * (size_t)n);
	return LLVMBuildCall2(e->b, ft, f, a, (unsigned)n, "");
}

LV em_intr(struct em *e, const char *name, LV x, int n, const LV *more)
{
	unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
	LT t = LLVMTypeOf(x);
	assert(id);
	LV f = LLVMGetIntrinsicDeclaration(e->m, id, &t, 1), a[8] = { x };
	LT ft = LLVMIntrinsicGetType(e->c, id, &t, 1);
	for (int i = 0; i < n; i++)
		a[i + 1] = more[i];
	return LLVMBuildCall2(e->b, ft, f, a, (unsigned)n + 1, "");
}

LT em_reg(struct em *e, int dt)
{
	switch (dt) {
	case DT_pred: return e->i1;
	case DT_i16: case DT_u16: return e->i16;
	case DT_i32: case DT_u32: return e->i32;
	case DT_i64: case DT_u64: return e->i64;
	case DT_bf16: case DT_f16: case DT_f32: return e->f32;
	case DT_f64: return e->f64;
	default: return e->i8;
	}
}

LT em_mem(struct em *e, int dt)
{
	switch (dt) {
	case DT_pred: return e->i8;
	case DT_bf16: case DT_f16: return e->i16;
	default: return em_reg(e, dt);
	}
}

LV em_const(struct em *e, int dt, const void *p, int n)
{
	uint64_t u = 0;
	memcpy(&u, p, dtype_info[dt].bytes);
	LT t = em_vec(em_reg(e, dt), n);
	switch (dt) {
	case DT_pred: return em_ki(t, u != 0);
	case DT_i4: return em_ki(t, (int8_t)(u << 4) >> 4);
	case DT_u4: return em_ki(t, u & 15);
	case DT_bf16: case DT_f16: case DT_f32: {
		uint32_t w = (uint32_t)u;
		if (dt == DT_bf16) {
			w <<= 16;
		} else if (dt == DT_f16) {
			float f = f16_to_f32((uint16_t)u);
			memcpy(&w, &f, 4);
		}
		return const_splat(t, LLVMConstBitCast(LLVMConstInt(e->i32, w, false), e->f32));
	}
	case DT_f64: return const_splat(t, LLVMConstBitCast(LLVMConstInt(e->i64, u, false), e->f64));
	default: return em_ki(t, (int64_t)u);
	}
}

LV em_shuffle(struct em *e, LV x, LV y, const int *idx, int n)
{
	LV v[256];
	for (int i = 0; i < n; i++)
		v[i] = idx[i] < 0 ? LLVMGetPoison(e->i32) : LLVMConstInt(e->i32, (unsigned)idx[i], false);
	return LLVMBuildShuffleVector(e->b, x, y ? y : LLVMGetPoison(LLVMTypeOf(x)), LLVMConstVector(v, (unsigned)n), "");
}

LV em_alloca(struct em *e, LT t)
{
	LLVMBasicBlockRef entry = LLVMGetEntryBasicBlock(e->f);
	LLVMBuilderRef b = LLVMCreateBuilderInContext(e->c);
	LV first = LLVMGetFirstInstruction(entry);
	if (first)
		LLVMPositionBuilderBefore(b, first);
	else
		LLVMPositionBuilderAtEnd(b, entry);
	LV a = LLVMBuildAlloca(b, t, "");
	LLVMDisposeBuilder(b);
	return a;
}

void em_attr(struct em *e, const char *key, const char *value)
{
	LLVMAttributeRef a = LLVMCreateStringAttribute(e->c, key, (unsigned)strlen(key), value, (unsigned)strlen(value));
	LLVMAddAttributeAtIndex(e->f, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, a);
}

bool em_scales(const struct em *e, LV x)
{
	int k = e->t->scales, n = em_lanes(x);
	return k && n && n % k == 0;
}

/* --- libm, per lane ----------------------------------------------------- */

static LV lane(struct em *e, LV x, int i)
{
	return em_lanes(x) ? LLVMBuildExtractElement(e->b, x, LLVMConstInt(e->i32, (unsigned)i, false), "") : x;
}

LV em_libm(struct em *e, const char *name, int n, const LV *a)
{
	int w = em_lanes(a[0]);
	LT st = em_scalar(LLVMTypeOf(a[0]));
	LV out = w ? LLVMGetPoison(LLVMTypeOf(a[0])) : NULL, arg[2];
	for (int i = 0; i < MAX(w, 1); i++) {
		for (int k = 0; k < n; k++)
			arg[k] = lane(e, a[k], i);
		LV r = e->code->call(e, name, st, n, arg);
		out = w ? LLVMBuildInsertElement(e->b, out, r, LLVMConstInt(e->i32, (unsigned)i, false), "") : r;
	}
	return out;
}

LV em_branch(struct em *e, LV bad, LV fast, LV (*slow)(struct em *, const LV *, const char *), const char *name, const LV *a)
{
	int w = em_lanes(fast);
	LT bits_t = LLVMIntTypeInContext(e->c, (unsigned)MAX(w, 1));
	LV any = w ? LLVMBuildICmp(e->b, LLVMIntNE, LLVMBuildBitCast(e->b, bad, bits_t, ""), LLVMConstInt(bits_t, 0, false), "") : bad;
	LLVMBasicBlockRef from = LLVMGetInsertBlock(e->b), there = em_block(e, "slow"), next = em_block(e, "next");
	LLVMBuildCondBr(e->b, any, there, next);
	em_at(e, there);
	LV r = em_sel(e, bad, slow(e, a, name), fast);
	LLVMBasicBlockRef end = LLVMGetInsertBlock(e->b);
	LLVMBuildBr(e->b, next);
	em_at(e, next);
	LV phi = LLVMBuildPhi(e->b, LLVMTypeOf(fast), ""), in[2] = { fast, r };
	LLVMBasicBlockRef ib[2] = { from, end };
	LLVMAddIncoming(phi, in, ib, 2);
	return phi;
}

static LV libm_loop(struct em *e, const char *name, int n, const LV *a)
{
	int w = em_lanes(a[0]);
	if (!w)
		return em_libm(e, name, n, a);
	LLVMBasicBlockRef from = LLVMGetInsertBlock(e->b), loop = em_block(e, "lane"), end = em_block(e, "done");
	LT vt = LLVMTypeOf(a[0]), st = em_scalar(vt);
	LV mem[2], x[2], p = NULL;
	for (int k = 0; k < n; k++) {
		mem[k] = em_alloca(e, vt);
		LLVMBuildStore(e->b, a[k], mem[k]);
	}
	LLVMBuildBr(e->b, loop);
	LLVMPositionBuilderAtEnd(e->b, loop);
	LV i = LLVMBuildPhi(e->b, e->i64, "");
	for (int k = n; k-- > 0;) {
		p = em_gep(e, st, mem[k], i);
		x[k] = LLVMBuildLoad2(e->b, st, p, "");
	}
	LLVMBuildStore(e->b, e->code->call(e, name, st, n, x), p);
	LV i1 = LLVMBuildAdd(e->b, i, em_ki(e->i64, 1), "");
	LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, i1, em_ki(e->i64, w), ""), loop, end);
	LV in[2] = { em_ki(e->i64, 0), i1 };
	LLVMBasicBlockRef ib[2] = { from, loop };
	LLVMAddIncoming(i, in, ib, 2);
	em_at(e, end);
	return LLVMBuildLoad2(e->b, vt, mem[0], "");
}

LV em_libm_loop(struct em *e, const LV *a, const char *name) { return libm_loop(e, name, 1, a); }
LV em_libm_loop_2(struct em *e, const LV *a, const char *name) { return libm_loop(e, name, 2, a); }
