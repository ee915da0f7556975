/* Scalar functions of f32 that vectorise: no branch, no table, no call.  At most 2 ulp; special values as
 * in C.  Included once per instruction set (isa.h); FMA and FMAD are one rounding where the machine has it.
 *
 * exp, expm1, log, log1p: reduction by powers of two, then polynomials fitted by weighted least squares
 * on Chebyshev nodes (near-minimax).  sin, cos, tan and pow are done in double, which makes the reduction
 * (Cody and Waite, "Software Manual for the Elementary Functions", 1980) exact enough with two constants. */

#if ISA_LEVEL >= 3
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#define FMAD(a, b, c) __builtin_fma(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#define FMAD(a, b, c) ((a) * (b) + (c))
#endif

static inline uint32_t f32_bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline float f32_from(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
static inline uint64_t f64_bits(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
static inline double f64_from(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }

#define ROUND_F 0x1.8p23f         /* adding and taking away leaves the nearest integer */
#define ROUND_D 0x1.8p52
#define LOG2E_F 0x1.715476p+0f
#define LN2_HI_F 0x1.63p-1f       /* few bits: n * LN2_HI_F is exact */
#define LN2_LO_F -0x1.bd0106p-13f

/* x = n ln 2 + r; gives e^r - 1 and n. */
static inline float exp_core(float x, int32_t *n)
{
	float t = x * LOG2E_F + ROUND_F, k = t - ROUND_F;
	*n = (int32_t)(f32_bits(t) - f32_bits(ROUND_F));
	float r = FMA(k, -LN2_HI_F, x);
	r = FMA(k, -LN2_LO_F, r);
	float p = 0x1.6dbd7p-10f;
	p = FMA(p, r, 0x1.124136p-7f);
	p = FMA(p, r, 0x1.555452p-5f);
	p = FMA(p, r, 0x1.555488p-3f);
	p = FMA(p, r, 0.5f);
	return FMA(r * r, p, r);
}
static inline float pow2i(int32_t n) { return f32_from((uint32_t)(n + 127) << 23); }

static inline float exp_f(float x)
{
	int32_t n;
	x = x > 89.f ? 89.f : x;
	x = x < -105.f ? -105.f : x;
	float p = exp_core(x, &n) + 1.f;
	int32_t h = n >> 1;
	return p * pow2i(h) * pow2i(n - h);
}

/* e^-|x| has no large relative error; what 1 + e^-|x| loses in rounding is put back. */
static inline float logistic_f(float x)
{
	float t = exp_f(f32_from(f32_bits(x) | 0x80000000u)), d = 1.f + t, c = t - (d - 1.f);
	float q = (x < 0.f ? t : 1.f) / d;
	return q - q * (c * (x < 0.f ? 1.f - q : q));
}
static inline double logistic(double x) { return 1 / (1 + exp(-x)); }

static inline float expm1_f(float x)
{
	int32_t n;
	float c = x > 89.f ? 89.f : x;
	c = c < -18.f ? -18.f : c;
	float p = exp_core(c, &n), s = pow2i(n - 1);
	float r = 2.f * FMA(s, p, s - 0.5f);
	return c < 0x1p-25f && c > -0x1p-25f ? x : r;      /* half of the smallest would be flushed */
}

/* log of u = m 2^e, m in [sqrt 1/2, sqrt 2); c: a small relative correction of u. */
static inline float log_core(float u, float c, float e0)
{
	uint32_t ix = f32_bits(u) - 0x3f3504f3u;
	float e = (float)((int32_t)ix >> 23) + e0;
	float f = f32_from((ix & 0x7fffffu) + 0x3f3504f3u) - 1.f, z = f * f;
	float p = -0x1.41bca4p-4f;
	p = FMA(p, f, 0x1.07bf8ep-3f);
	p = FMA(p, f, -0x1.0ce1b4p-3f);
	p = FMA(p, f, 0x1.2270eep-3f);
	p = FMA(p, f, -0x1.5478b6p-3f);
	p = FMA(p, f, 0x1.99a57ap-3f);
	p = FMA(p, f, -0x1.00021ep-2f);
	p = FMA(p, f, 0x1.55554ap-2f);
	float y = FMA(z * f, p, FMA(e, LN2_LO_F, c));
	y = FMA(-0.5f, z, y);
	return FMA(e, LN2_HI_F, f + y);
}

static inline float log_f(float x)
{
	bool tiny = x < 0x1p-126f;
	float r = log_core(tiny ? x * 0x1p23f : x, 0.f, tiny ? -23.f : 0.f);
	r = x == 0.f ? -__builtin_inff() : r;
	r = x < 0.f ? __builtin_nanf("") : r;
	return x < __builtin_inff() ? r : x;      /* inf and NaN are their own */
}

static inline float log1p_f(float x)
{
	float u = 1.f + x;
	float c = x < 1.f ? x - (u - 1.f) : 1.f - (u - x);
	float r = log_core(u, c / u, 0.f);
	r = u == 0.f ? -__builtin_inff() : r;
	r = u < 0.f ? __builtin_nanf("") : r;
	r = x == 0.f ? x : r;
	return x < __builtin_inff() ? r : x;
}

static inline float tanh_f(float x)
{
	float a = f32_from(f32_bits(x) & 0x7fffffffu), z = a * a;
	float p = -0x1.830a4ap-8f;
	p = FMA(p, z, 0x1.54dfb8p-6f);
	p = FMA(p, z, -0x1.b89ecap-5f);
	p = FMA(p, z, 0x1.1109dcp-3f);
	p = FMA(p, z, -0x1.55553ep-2f);
	float small = FMA(a * z, p, a);
	float big = 1.f - 2.f / (exp_f(2.f * (a > 10.f ? 10.f : a)) + 1.f);
	float r = a < 0.6f ? small : big;
	return f32_from(f32_bits(r) | (f32_bits(x) & 0x80000000u));
}

static inline float erf_f(float x)
{
	float a = f32_from(f32_bits(x) & 0x7fffffffu), z = a * a;
	float p = 0x1.4ae744p-14f;
	p = FMA(p, z, -0x1.a486bp-11f);
	p = FMA(p, z, 0x1.541a08p-8f);
	p = FMA(p, z, -0x1.b7fbb6p-6f);
	p = FMA(p, z, 0x1.ce2d2p-4f);
	p = FMA(p, z, -0x1.81273ep-2f);
	p = FMA(p, z, 0x1.06eba8p-3f);
	float small = FMA(a, p, a), b = a > 4.f ? 4.f : a;
	float q = -0x1.69f228p-23f;                /* log erfc */
	q = FMA(q, b, -0x1.4377dcp-16f);
	q = FMA(q, b, 0x1.bf5622p-12f);
	q = FMA(q, b, -0x1.103f02p-8f);
	q = FMA(q, b, 0x1.9b47aap-6f);
	q = FMA(q, b, -0x1.bb8348p-4f);
	q = FMA(q, b, -0x1.444418p-1f);
	q = FMA(q, b, -0x1.2128bap+0f);
	q = FMA(q, b, 0x1.75b3ccp-13f);
	float r = a < 1.f ? small : 1.f - exp_f(q);
	r = a >= 4.f ? 1.f : r;
	return f32_from(f32_bits(r) | (f32_bits(x) & 0x80000000u));
}

#define TRIG_OK_F(x) (__builtin_fabsf(x) <= 0x1p19f)
/* x = k pi/2 + r: r, and k mod 4. */
static inline double trig_core(double x, uint32_t *k)
{
	double t = x * 0x1.45f306dc9c883p-1 + ROUND_D, n = t - ROUND_D;
	*k = (uint32_t)f64_bits(t) & 3;
	double r = FMAD(n, -0x1.921fb544p+0, x);       /* 33 bits, so n * it is exact */
	return FMAD(n, -0x1.0b4611a626331p-34, r);
}
static inline double sin_core(double r)
{
	double z = r * r, p = 0x1.6cbf15034fc6dp-19;
	p = FMAD(p, z, -0x1.a00f33f6aea22p-13);
	p = FMAD(p, z, 0x1.11110813a8c51p-7);
	p = FMAD(p, z, -0x1.5555554c0799fp-3);
	return FMAD(r * z, p, r);
}
static inline double cos_core(double r)
{
	double z = r * r, p = -0x1.2417f0640204dp-22;
	p = FMAD(p, z, 0x1.a010c4f78d717p-16);
	p = FMAD(p, z, -0x1.6c16b80f41244p-10);
	p = FMAD(p, z, 0x1.5555554ecf885p-5);
	return FMAD(z * z, p, FMAD(z, -0.5, 1.0));
}
static inline float sin_f(float x)
{
	uint32_t k;
	double r = trig_core((double)x, &k), s = sin_core(r), c = cos_core(r);
	double v = k & 1 ? c : s;
	float y = (float)(k & 2 ? -v : v);
	return x == 0.f ? x : y;
}
static inline float cos_f(float x)
{
	uint32_t k;
	double r = trig_core((double)x, &k), s = sin_core(r), c = cos_core(r);
	double v = k & 1 ? s : c;
	return (float)((k + 1) & 2 ? -v : v);
}
static inline float tan_f(float x)
{
	uint32_t k;
	double r = trig_core((double)x, &k), s = sin_core(r), c = cos_core(r);
	float y = (float)(k & 1 ? -c / s : s / c);
	return x == 0.f ? x : y;
}

/* To double, subnormals included even where the processor takes them for zero. */
static inline double widen(float x)
{
	uint32_t u = f32_bits(x);
	double tiny = (double)(int32_t)(u & 0x7fffffu) * 0x1p-149;
	tiny = u >> 31 ? -tiny : tiny;
	return u & 0x7f800000u ? (double)x : tiny;
}

static inline float pow_f(float x, float y)
{
	double xd = widen(x), a = __builtin_fabs(xd), yd = widen(y);
	uint64_t ix = f64_bits(a) - 0x3fe6a09e667f3bcdull;
	int32_t e = (int32_t)((int64_t)ix >> 52);
	double m = f64_from((ix & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull);
	double s = (m - 1.0) / (m + 1.0), z = s * s, p = 0x1.f1c9712b23f4dp-3;
	p = FMAD(p, z, 0x1.0bb4ee3112781p-2);
	p = FMAD(p, z, 0x1.484fc217389a5p-2);
	p = FMAD(p, z, 0x1.a61756289499dp-2);
	p = FMAD(p, z, 0x1.2776c516e83eep-1);
	p = FMAD(p, z, 0x1.ec709dc39c79cp-1);
	p = FMAD(p, z, 0x1.71547652b82ffp+1);
	double l = FMAD(s, p, (double)e);
	l = a == 0.0 ? -__builtin_inf() : l;
	l = a < __builtin_inf() ? l : a;          /* inf, NaN */
	double t = yd * l;
	t = t > 200.0 ? 200.0 : t;
	t = t < -200.0 ? -200.0 : t;
	double tn = t + ROUND_D, n = tn - ROUND_D, r = t - n;
	uint64_t ni = f64_bits(tn) - f64_bits(ROUND_D);
	double q = 0x1.00f82cc8df109p-16;
	q = FMAD(q, r, 0x1.446d33a915235p-13);
	q = FMAD(q, r, 0x1.5d8714e18c6fcp-10);
	q = FMAD(q, r, 0x1.3b29d7d1d4195p-7);
	q = FMAD(q, r, 0x1.c6b08e07bbf38p-5);
	q = FMAD(q, r, 0x1.ebfbe0ab1cd4cp-3);
	q = FMAD(q, r, 0x1.62e42fef6c736p-1);
	q = FMAD(q, r, 0x1.ffffffffa628fp-1);
	q *= f64_from((ni + 1023) << 52);
	float v = (float)q;
	double yh = yd * 0.5;
	bool whole = __builtin_rint(yd) == yd, odd = whole && __builtin_rint(yh) != yh;
	v = odd && f32_bits(x) >> 31 ? -v : v;
	v = xd < 0.0 && a < __builtin_inf() && !whole ? __builtin_nanf("") : v;
	v = x == -1.f && whole && __builtin_fabsf(y) == __builtin_inff() ? 1.f : v;
	return x == 1.f || yd == 0.0 ? 1.f : v;
}
