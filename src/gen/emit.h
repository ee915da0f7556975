/* Machine code of a schedule: what the files of the emitter share.
 *
 * Values in registers: pred is i1; integers of at most 8 bits are i8 (4-bit ones sign- or zero-extended);
 * bf16 and f16 are f32 holding a value of the narrow type.  Every function here takes scalars or vectors of
 * the emitter's width alike. */
#ifndef RONDO_GEN_EMIT_H
#define RONDO_GEN_EMIT_H

#include "sched.h"

#include <llvm-c/Core.h>
#include <llvm-c/TargetMachine.h>

typedef LLVMValueRef LV;
typedef LLVMTypeRef LT;

struct em;

/* How a target writes what is special, and hands its code over. */
#define HOOK(type, name, args, needed) type (*name) args;
struct em_code {
#include "hook.def"
};
#undef HOOK

/* A place that code can be put: one per open loop, outermost first.  The block has no terminator while the
 * scope is open, so code may be appended to any scope at any time. */
struct em_scope {
	int var;                 /* mask of its loop variables */
	LLVMBasicBlockRef block;
	struct map memo;         /* node -> value */
};

struct em {
	LLVMContextRef c;
	LLVMModuleRef m;
	LLVMBuilderRef b;
	LV f;
	LT i1, i8, i16, i32, i64, f32, f64, ptr, vd;
	const struct gen_target *t;
	const struct em_code *code;
	LV t0, t1;               /* first tile, the one after the last (i64) */
	const struct gen_sched *s;
	int width;               /* lanes of the open lane loop */
	int lane;                /* its variable, -1: none */
	int low;                 /* s->low where the lane is s->lane, else -1 */
	int phase;               /* this vector is that many vectors behind the one that begins with the period's first element */
	LV rem;                  /* lanes left in the last, partial vector (i64), NULL: all */
	LV mask;                 /* the same as <width x i1> */
	LV var[GEN_NV];          /* i64 */
	LV *bufp;                /* base pointer of each buffer */
	LV iota;                 /* clamped lane numbers of a partial vector */
	LV red[64][GEN_MAX_OUT], part[64][GEN_MAX_OUT];     /* results, sums so far */
	int body_scope;          /* where reductions' results are */
	bool inner;              /* the lane is an inner variable */
	bool halves;             /* full vectors of this nest have their even elements before the odd ones */
	struct em_scope scope[GEN_NV + 8];
	int nscope, cur;         /* cur: scope that code goes to now */
	bool past;               /* full vectors of results go past the caches; base addresses are whole cache lines */
	LV *kept[64];            /* per nest of this body: the buffers of its kept nodes */
	const struct gen_nest *nest;
	const struct gen_body *body;
	struct { uint32_t node; LV mem; } tr[8];     /* transposed blocks of loads */
	int ntr;
	LV across_lo, across_hi; /* this tile's range of s->across */
	LV (*sums)[GEN_MAX_OUT]; /* s->down: those of each reduction of the nest, a number for each column from sums_lo on; NULL: not there */
	LV sums_lo;
	LV tr_first;             /* value of the variable in their first row */
	struct { LV x, sin, cos, n; LLVMBasicBlockRef block; } trig;
};

/* --- emit_reg.c -------------------------------------------------------- */

LT em_reg(struct em *e, int dt);                 /* scalar register type of dtype */
LT em_mem(struct em *e, int dt);                 /* scalar memory type */
LT em_scalar(LT t);                              /* t, or what it is a vector of */
LT em_like(LV x, LT scalar);                     /* scalar type, or vector of it with x's length */
LT em_vec(LT t, int n);                          /* n <= 0: t itself */
int em_lanes(LV x);                              /* 0: scalar */
LV em_splat(struct em *e, LV x, int n);
LV em_ki(LT t, int64_t v);
LV em_kf(LT t, double v);
LV em_sel(struct em *e, LV c, LV x, LV y);
LV em_call(struct em *e, const char *name, LT ret, int n, const LV *arg);          /* intrinsic or external function */
LV em_intr(struct em *e, const char *name, LV x, int n, const LV *more);           /* overloaded on x's type; more: further operands */
LV em_const(struct em *e, int dt, const void *p, int n);
LV em_shuffle(struct em *e, LV x, LV y, const int *idx, int n);     /* elements idx of x and y (NULL: x alone); -1: any; n <= 256 */
LV em_alloca(struct em *e, LT t);                                   /* in the entry block */
void em_attr(struct em *e, const char *key, const char *value);     /* of the kernel's function */
bool em_scales(const struct em *e, LV x);                           /* does the target's scale take as many lanes as x has? */
LV em_libm(struct em *e, const char *name, int n, const LV *a);     /* per lane */
LV em_libm_loop(struct em *e, const LV *a, const char *name);       /* one operand, a loop over the lanes */
LV em_libm_loop_2(struct em *e, const LV *a, const char *name);
/* fast; but if any lane is bad (i1), slow(e, a, name) is evaluated, and taken in the bad lanes. */
LV em_branch(struct em *e, LV bad, LV fast, LV (*slow)(struct em *, const LV *, const char *), const char *name, const LV *a);

/* --- emit_host.c -------------------------------------------------------- */

const struct em_code *em_code_of(const struct gen_target *t);

/* --- emit_elem.c ------------------------------------------------------- */

LV em_from_mem(struct em *e, int dt, LV x);      /* memory to register representation */
LV em_to_mem(struct em *e, int dt, LV x);
LV em_elem(struct em *e, enum elem k, int from, int to, const LV *a);
/* A float of dtype dt in its register as an integer, so that the larger integer (max; else the smaller) is that of the larger
 * float: 0 is larger than -0, and NaN wins.  The way back flushes, as arithmetic does. */
LT em_order_type(struct em *e, int dt);
LV em_order(struct em *e, int dt, bool max, LV x);
LV em_unorder(struct em *e, int dt, bool max, LV k);
LV em_larger(struct em *e, bool max, LV a, LV b);
LV em_round(struct em *e, int dt, LV x);         /* f32 register, what arithmetic gives, to a value of bf16 or f16; others: x */
LV em_reduce_precision(struct em *e, int dt, LV x, int exponent, int mantissa);
LV em_index(struct em *e, int dt, LV x, int64_t hi);                  /* an integer clamped to 0 .. hi, as i64 */
LV em_redop(struct em *e, enum redop r, int dt, LV x, LV y);
LV em_identity(struct em *e, enum redop r, int dt, int n);

/* --- emit_math.c --------------------------------------------------------- */

/* A function of base/math.def, of f32 registers (bf16: whose result will be rounded to that), or of f64 ones, or libm's; others: NULL. */
LV em_math(struct em *e, enum elem k, bool bf16, LV x, LV y);
LV em_math_wide(struct em *e, enum elem k, LV x, LV y);

/* --- emit_node.c --------------------------------------------------------- */

LV em_get(struct em *e, uint32_t id);                        /* value of a node */
LV em_get_as(struct em *e, uint32_t id, bool vec);           /* as a vector, if vec */
LV em_lin_ptr(struct em *e, int buf, uint32_t lin);          /* address of element lin, its lane part left out */
void em_store(struct em *e, const struct gen_store *st);
LV em_stored(struct em *e, const struct gen_store *st);      /* what goes to memory, as a vector */
/* The lanes of n vectors in turn, to n vectors from the place of st on. */
void em_weave(struct em *e, const struct gen_store *st, const LV *x, int n);
void em_kept_store(struct em *e, uint32_t id, LV mem);       /* node id to this turn's place in mem */

/* --- emit_tiny.c --------------------------------------------------------- */

/* Emit the body of a function with control flow: all of it, in the current block.  most: as of gen_tiny_most. */
struct err *em_tiny(struct em *e, const struct ir_module *m, const struct ir_fn *fn, int64_t most, const struct prog_view *view);

static inline LLVMBasicBlockRef em_block(struct em *e, const char *name) { return LLVMAppendBasicBlockInContext(e->c, e->f, name); }
/* Go on in block bb, which becomes the current scope's. */
static inline void em_at(struct em *e, LLVMBasicBlockRef bb)
{
	e->scope[e->cur].block = bb;
	LLVMPositionBuilderAtEnd(e->b, bb);
}

/* Go to scope s; returns the one to come back to. */
static inline int em_enter(struct em *e, int s)
{
	int old = e->cur;
	e->cur = s;
	LLVMPositionBuilderAtEnd(e->b, e->scope[s].block);
	return old;
}

static inline LV em_gep(struct em *e, LT t, LV p, LV off) { return LLVMBuildGEP2(e->b, t, p, &off, 1, ""); }

#endif
