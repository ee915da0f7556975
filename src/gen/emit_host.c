/* How code for the processor that this process runs on is written: what its instruction sets have of their own, the function
 * that the runtime calls, and the object that it loads (rows: host.def). */
#include "emit.h"

#include <llvm-c/Target.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

static LV I(LV x, int64_t v) { return em_ki(LLVMTypeOf(x), v); }
static LV bits(struct em *e, LV x, LT t) { return LLVMBuildBitCast(e->b, x, em_like(x, t), ""); }

/* --- f32 to bf16 ---------------------------------------------------------- */

static LV round_bits(struct em *e, LV x)
{
	LV u = bits(e, x, e->i32), odd = LLVMBuildAnd(e->b, LLVMBuildLShr(e->b, u, I(u, 16), ""), I(u, 1), "");
	LV r = LLVMBuildAdd(e->b, u, LLVMBuildAdd(e->b, odd, I(u, 0x7fff), ""), "");
	r = em_sel(e, LLVMBuildFCmp(e->b, LLVMRealUNO, x, x, ""), LLVMBuildOr(e->b, u, I(u, 0x400000), ""), r);
	return bits(e, LLVMBuildAnd(e->b, r, I(u, (int32_t)0xffff0000), ""), e->f32);
}

static LV to_bf16(struct em *e, LV x)
{
	return bits(e, LLVMBuildFPTrunc(e->b, x, em_like(x, LLVMBFloatTypeInContext(e->c)), ""), e->i16);
}

static LV from_bf16(struct em *e, LV h)
{
	LV u = LLVMBuildZExt(e->b, h, em_like(h, e->i32), "");
	return bits(e, LLVMBuildShl(e->b, u, I(u, 16), ""), e->f32);
}

static LV round_convert(struct em *e, LV x)
{
	return from_bf16(e, to_bf16(e, x));
}

/* vcvtneps2bf16 takes a subnormal number for zero.  With its exponent field, which is 0, made 1 it is normal and is rounded at
 * the same bit; then the 1 is taken off again. */
static LV round_convert_any(struct em *e, LV x)
{
	LV u = bits(e, x, e->i32), low = LLVMBuildICmp(e->b, LLVMIntEQ, LLVMBuildAnd(e->b, u, I(u, 0x7f800000), ""), I(u, 0), "");
	LV up = em_sel(e, low, LLVMBuildOr(e->b, u, I(u, 0x00800000), ""), u);
	LV h = to_bf16(e, bits(e, up, e->f32));
	return from_bf16(e, em_sel(e, low, LLVMBuildSub(e->b, h, I(h, 0x80), ""), h));
}

/* --- 512 bits of f32 ------------------------------------------------------- */

static LV part16(struct em *e, LV x, int from)
{
	int v[16];
	for (int i = 0; i < 16; i++)
		v[i] = from + i;
	return em_shuffle(e, x, NULL, v, 16);
}

static LV zmm(struct em *e, const char *name, LV x, LV y, bool rounding)
{
	LT t = em_vec(e->f32, 16);
	LV out[16];
	int n = em_lanes(x) / 16;
	for (int i = 0; i < n; i++) {
		LV a[5];
		int k = 0;
		a[k++] = n == 1 ? x : part16(e, x, 16 * i);
		if (y)
			a[k++] = n == 1 ? y : part16(e, y, 16 * i);
		a[k++] = LLVMConstNull(t);
		a[k++] = LLVMConstAllOnes(e->i16);
		if (rounding)
			a[k++] = LLVMConstInt(e->i32, 4, false);       /* as MXCSR says */
		out[i] = em_call(e, name, t, k, a);
	}
	for (int have = 16; n > 1; n /= 2, have *= 2)
		for (int i = 0; i < n / 2; i++) {
			int v[256];
			for (int k = 0; k < 2 * have; k++)
				v[k] = k;
			out[i] = em_shuffle(e, out[2 * i], out[2 * i + 1], v, 2 * have);
		}
	return out[0];
}

static LV scalef(struct em *e, LV x, LV y) { return zmm(e, "llvm.x86.avx512.mask.scalef.ps.512", x, y, true); }

static LV range(struct em *e, LV x, LV y, bool max)
{
	LT four = em_vec(e->f32, 4);
	LV any = LLVMGetPoison(four), at = em_ki(e->i32, 0);
	LV a[6] = { LLVMBuildInsertElement(e->b, any, x, at, ""), LLVMBuildInsertElement(e->b, any, y, at, ""), LLVMConstNull(four), LLVMConstAllOnes(e->i8),
	            em_ki(e->i32, 4 + max), em_ki(e->i32, 4) };        /* the sign is the result's; as MXCSR says */
	return LLVMBuildExtractElement(e->b, em_call(e, "llvm.x86.avx512.mask.range.ss", four, 6, a), at, "");
}

/* --- the kernel ------------------------------------------------------------ */

/* As prog_code_fn: addresses of operands and results, first tile, the one after the last. */
static void begin(struct em *e)
{
	LT t[3] = { e->ptr, e->i64, e->i64 };
	char width[16];
	snprintf(width, sizeof width, "%d", e->t->vbytes * 8);
	LLVMSetTarget(e->m, e->t->triple);
	e->f = LLVMAddFunction(e->m, GEN_SYMBOL, LLVMFunctionType(e->vd, t, 3, false));
	em_attr(e, "target-cpu", e->t->cpu);
	em_attr(e, "target-features", e->t->features);
	em_attr(e, "prefer-vector-width", width);
	em_attr(e, "min-legal-vector-width", width);
	e->t0 = LLVMGetParam(e->f, 1);
	e->t1 = LLVMGetParam(e->f, 2);
}

static LV operand(struct em *e, int i)
{
	return LLVMBuildLoad2(e->b, e->ptr, em_gep(e, e->ptr, LLVMGetParam(e->f, 0), em_ki(e->i64, i)), "");
}

static LV constant(struct em *e, const void *p, size_t n)
{
	LV data = LLVMConstStringInContext(e->c, p, (unsigned)n, true), g = LLVMAddGlobal(e->m, LLVMTypeOf(data), "c");
	LLVMSetInitializer(g, data);
	LLVMSetGlobalConstant(g, true);
	LLVMSetLinkage(g, LLVMPrivateLinkage);
	LLVMSetAlignment(g, (unsigned)e->t->line);
	return g;
}

static void fence(struct em *e) { em_call(e, "llvm.x86.sse.sfence", e->vd, 0, NULL); }

/* --- the object ------------------------------------------------------------ */

/* For LLVM's names of temporary files, which are not made here: glibc has it from 2.36 on, and a wheel is for 2.34. */
uint32_t arc4random(void)
{
	uint32_t n = 0;
	return getrandom(&n, sizeof n, 0) == sizeof n ? n : (uint32_t)getpid();
}

static void llvm_init(void)
{
	LLVMInitializeX86TargetInfo();
	LLVMInitializeX86Target();
	LLVMInitializeX86TargetMC();
	LLVMInitializeX86AsmPrinter();
}

static LLVMTargetMachineRef machine(const struct gen_target *t, char **msg)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	LLVMTargetRef llvm;
	pthread_once(&once, llvm_init);
	if (LLVMGetTargetFromTriple(t->triple, &llvm, msg))
		return NULL;
	return LLVMCreateTargetMachine(llvm, t->triple, t->cpu, t->features, LLVMCodeGenLevelDefault, LLVMRelocPIC, LLVMCodeModelSmall);
}

static bool object(LLVMTargetMachineRef tm, LLVMModuleRef m, LLVMMemoryBufferRef *out, char **msg)
{
	return LLVMTargetMachineEmitToMemoryBuffer(tm, m, LLVMObjectFile, msg, out);
}

/* --- rows -------------------------------------------------------------------- */

#define FACTS(...)
#define CODE(...) { __VA_ARGS__ }
static const struct em_code code_of[] = {
#define TARGET(id, runs, facts, code) code,
#include "host.def"
#undef TARGET
};

const struct em_code *em_code_of(const struct gen_target *t)
{
	return &code_of[t->id];
}
