/* base/math.def in C: functions of f32 on scalars, which vectorise.  Included once per instruction set (isa.h). */
#if ISA_LEVEL >= 3
#define FUSE_F __builtin_fmaf
#define FUSE_D __builtin_fma
#else
static inline float fma_f(float a, float b, float c) { return (float)((double)a * (double)b + (double)c); }
static inline double fma_d(double a, double b, double c) { return a * b + c; }
#define FUSE_F fma_f
#define FUSE_D fma_d
#endif

static inline uint32_t f32_bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline float f32_from(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
static inline uint64_t f64_bits(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
static inline double f64_from(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }

#define FUN1(name, x) static inline float name##_f(float x)
#define FUN2(name, x, y) static inline float name##_f(float x, float y)
#define CALL(name, x) name##_f(x)
#define WIDE1(name, x) static inline double name##_d(double x)
#define CALLW(name, x) name##_d(x)
#define PART(type, name) static inline type name
#define CTX
#define ARG
#define V float
#define W double
#define N uint32_t
#define L uint64_t
#define T bool
#define K(like, c) ((__typeof__(like))(c))
#define KI(like, c) ((__typeof__(like))(c))
#define ADD(a, b) ((a) + (b))
#define SUB(a, b) ((a) - (b))
#define MUL(a, b) ((a) * (b))
#define DIV(a, b) ((a) / (b))
#define NEG(a) (-(a))
#define FMA(a, b, c) _Generic((a), float: FUSE_F, double: FUSE_D)(a, b, c)
#define FUSED __builtin_fma
#define ABS(x) _Generic((x), float: __builtin_fabsf, double: __builtin_fabs)(x)
#define COPYSIGN(x, y) _Generic((x), float: __builtin_copysignf, double: __builtin_copysign)(x, y)
#define FLOOR __builtin_floorf
#define LT(a, b) ((a) < (b))
#define GT(a, b) ((a) > (b))
#define EQ(a, b) ((a) == (b))
#define NE(a, b) ((a) != (b))
#define UNORD(a, b) ((int)((a) != (a)) | (int)((b) != (b)))
#define SEL(t, a, b) ((t) ? (a) : (b))
#define AND(a, b) ((a) & (b))
#define OR(a, b) ((a) | (b))
#define NOT(a) (!(a))
#define BITS(x) _Generic((x), float: f32_bits, double: f64_bits)(x)
#define OF32 f32_from
#define OF64 f64_from
#define IADD(a, b) ((a) + (b))
#define ISUB(a, b) ((a) - (b))
#define IAND(a, b) ((a) & (b))
#define IXOR(a, b) ((a) ^ (b))
#define SHL(a, n) ((a) << (n))
#define SHR(a, n) ((a) >> (n))
#define SAR(a, n) ((uint32_t)((int32_t)(a) >> (n)))
#define THIRD(a) ((a) / 3)
#define IEQ(a, b) ((a) == (b))
#define IGT(a, b) ((a) > (b))
#define MINUS(a) ((int32_t)(a) < 0)
#define WIDEN(x) ((double)(x))
#define NARROW(x) ((float)(x))
#define LOW(u) ((uint32_t)(u))
#define WIDE_I(u) ((uint64_t)(int64_t)(int32_t)(u))
#define FLOAT(u) ((float)(int32_t)(u))
#define DOUBLE(u) ((double)(int32_t)(u))
#define SCALE(p, n, bits) ((void)(n), scaled(p, bits))
#define TRIG trig
#include "../base/math.def"
#undef FUN1
#undef FUN2
#undef CALL
#undef WIDE1
#undef CALLW
#undef PART
#undef CTX
#undef ARG
#undef V
#undef W
#undef N
#undef L
#undef T
#undef K
#undef KI
#undef ADD
#undef SUB
#undef MUL
#undef DIV
#undef NEG
#undef FMA
#undef FUSED
#undef ABS
#undef COPYSIGN
#undef FLOOR
#undef LT
#undef GT
#undef EQ
#undef NE
#undef UNORD
#undef SEL
#undef AND
#undef OR
#undef NOT
#undef BITS
#undef OF32
#undef OF64
#undef IADD
#undef ISUB
#undef IAND
#undef IXOR
#undef SHL
#undef SHR
#undef SAR
#undef THIRD
#undef IEQ
#undef IGT
#undef MINUS
#undef WIDEN
#undef NARROW
#undef LOW
#undef WIDE_I
#undef FLOAT
#undef DOUBLE
#undef SCALE
#undef TRIG

/* The other functions of f64. */
static inline double tan_d(double x) { return tan(x); }
static inline double pow_d(double x, double y) { return pow(x, y); }
static inline double atan2_d(double y, double x) { return atan2(y, x); }
static inline double cbrt_d(double x) { return cbrt(x); }
static inline double erf_d(double x) { return erf(x); }

/* Outside the range that vectorises. */
static inline float sin_rest(float x) { return __builtin_fabsf(x) <= (float)TRIG_FAR ? sin_far_f(x) : sinf(x); }
static inline float cos_rest(float x) { return __builtin_fabsf(x) <= (float)TRIG_FAR ? cos_far_f(x) : cosf(x); }
