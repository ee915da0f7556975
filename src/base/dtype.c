#include "base.h"

#include <math.h>

const struct dtype_info dtype_info[DT_COUNT] = {
#define DTYPE(id, name, value, cls, bits, bytes, vhlo, builtin) [DT_##id] = { name, cls, bits, bytes },
#include "dtype.def"
#undef DTYPE
};
const char *const redop_name[RED_COUNT] = {
#define REDOP(id, text, elem) [RED_##id] = text,
#include "redop.def"
#undef REDOP
};
const enum elem redop_elem[RED_COUNT] = {
#define REDOP(id, text, elem) [RED_##id] = elem,
#include "redop.def"
#undef REDOP
};
const struct elem_info elem_info[ELEM_COUNT] = {
#define ELEM(id, nin, flags, work, slow, meaning) [ELEM_##id] = { #id, nin, flags, work, slow },
#include "elem.def"
#undef ELEM
};

int dtype_by_name(const char *name, size_t n)
{
	for (int i = 0; i < DT_COUNT; i++)
		if (dtype_info[i].name && strlen(dtype_info[i].name) == n && !memcmp(dtype_info[i].name, name, n))
			return i;
	return -1;
}

float f16_to_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023, u;
	if (e == 31) {
		u = sign | 0x7f800000 | m << 13;
	} else if (e) {
		u = sign | (e + 112) << 23 | m << 13;
	} else {
		float f = (float)m * 0x1p-24f;
		memcpy(&u, &f, 4);
		u |= sign;
	}
	float f;
	memcpy(&f, &u, 4);
	return f;
}

uint16_t f32_to_f16(float x)
{
	uint32_t u;
	memcpy(&u, &x, 4);
	uint32_t sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
	if (a > 0x7f800000)
		return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
	if (a >= 0x477ff000)      /* 65520 and above round to infinity */
		return (uint16_t)(sign | 0x7c00);
	if (a < 0x38800000) {     /* subnormal: units of 2^-24, ties to even by integers (the FPU may flush) */
		if (a < 0x33000000)
			return (uint16_t)sign;
		uint32_t shift = 126 - (a >> 23), m = (a & 0x7fffff) | 0x800000;
		uint32_t q = m >> shift, rest = m & ((1u << shift) - 1), half = 1u << (shift - 1);
		q += rest > half || (rest == half && (q & 1));
		return (uint16_t)(sign | q);
	}
	uint32_t r = a - 0x38000000 + 0xfff + (a >> 13 & 1);
	return (uint16_t)(sign | r >> 13);
}

/* The small float formats (OCP OFP8 and MX, and the "fnuz" forms of Graphcore/AMD).  fn: no infinity;
 * uz: one zero, NaN is the code of -0. */
struct small { uint8_t ebits, mbits; int16_t bias; bool inf, nan, uz; };
static struct small small_of(enum dtype dt)
{
	switch (dt) {
	case DT_f8e5m2:        return (struct small){ 5, 2, 15, true, true, false };
	case DT_f8e4m3:        return (struct small){ 4, 3, 7, true, true, false };
	case DT_f8e3m4:        return (struct small){ 3, 4, 3, true, true, false };
	case DT_f8e4m3fn:      return (struct small){ 4, 3, 7, false, true, false };
	case DT_f8e4m3b11fnuz: return (struct small){ 4, 3, 11, false, true, true };
	case DT_f8e5m2fnuz:    return (struct small){ 5, 2, 16, false, true, true };
	case DT_f8e4m3fnuz:    return (struct small){ 4, 3, 8, false, true, true };
	case DT_f4e2m1fn:      return (struct small){ 2, 1, 1, false, false, false };
	case DT_f6e2m3fn:      return (struct small){ 2, 3, 1, false, false, false };
	case DT_f6e3m2fn:      return (struct small){ 3, 2, 3, false, false, false };
	default:               return (struct small){ 0, 0, 0, false, false, false };
	}
}

float f8_to_f32(enum dtype dt, uint8_t b)
{
	if (dt == DT_f8e8m0fnu)
		return b == 0xff ? NAN : b ? ldexpf(1, b - 127) : 0x1p-127f;
	struct small s = small_of(dt);
	unsigned all = s.ebits + s.mbits, e = b >> s.mbits & ((1u << s.ebits) - 1), m = b & ((1u << s.mbits) - 1);
	bool neg = b >> all & 1;
	if (s.uz && b == 1u << all)
		return copysignf(NAN, -1.f);         /* the code of -0: the least in total order */
	if (!s.uz && e == (1u << s.ebits) - 1) {
		if (s.inf)
			return m ? copysignf(NAN, neg ? -1.f : 1.f) : neg ? -INFINITY : INFINITY;
		if (s.nan && m == (1u << s.mbits) - 1)
			return copysignf(NAN, neg ? -1.f : 1.f);
	}
	float v = e ? ldexpf((float)(m + (1u << s.mbits)), (int)e - s.bias - s.mbits) : ldexpf((float)m, 1 - s.bias - s.mbits);
	return neg ? -v : v;
}

double dtype_real(enum dtype dt, const void *p)
{
	const struct dtype_info *i = &dtype_info[dt];
	union { uint64_t u; double d; float f; uint16_t h; uint8_t b; } v = {0};
	memcpy(&v, p, MIN(i->bytes, 8));
	int unused = 64 - MIN(i->bits, 64);
	switch (i->cls) {
	case DT_INT: return (double)((int64_t)(v.u << unused) >> unused);
	case DT_PRED: return v.u != 0;
	case DT_UINT: return (double)(v.u << unused >> unused);
	case DT_COMPLEX: return dt == DT_c64 ? (double)v.f : v.d;
	default: break;
	}
	switch (dt) {
	case DT_f64: return v.d;
	case DT_f32: return (double)v.f;
	case DT_f16: return (double)f16_to_f32(v.h);
	case DT_bf16: return (double)bf16_to_f32(v.h);
	default: return (double)f8_to_f32(dt, v.b);
	}
}

uint8_t f32_to_f8(enum dtype dt, float x)
{
	uint32_t u;
	memcpy(&u, &x, 4);
	if (dt == DT_f8e8m0fnu) {     /* exponent only, no zero: to the nearest power, ties up; what lies above all is NaN */
		if (x != x || u >> 31 || !u)
			return 0xff;
		uint32_t e = u >> 23, m = u & 0x7fffff;
		return (uint8_t)(e ? e + (m >= 0x400000) : m > 0x400000);   /* all above the smallest goes up, as XLA has it */
	}
	struct small s = small_of(dt);
	unsigned all = s.ebits + s.mbits, sign = u >> 31, emax = (1u << s.ebits) - 1, mmax = (1u << s.mbits) - 1;
	uint32_t a = u & 0x7fffffff;
	unsigned top = s.uz ? (emax << s.mbits | mmax) : s.inf ? (((emax - 1) << s.mbits) | mmax)
	             : s.nan ? (emax << s.mbits | (mmax - 1)) : (emax << s.mbits | mmax);   /* largest finite code */
	unsigned nan = s.uz ? 1u << all : s.inf ? (emax << s.mbits | 1u << (s.mbits - 1)) : s.nan ? (emax << s.mbits | mmax) : 1u << all;
	unsigned sbit = sign << all;
	if (a > 0x7f800000)
		return (uint8_t)(s.uz || !s.nan ? nan : nan | sbit);
	unsigned over = s.uz ? nan : s.inf ? ((emax << s.mbits) | sbit) : s.nan ? (nan | sbit) : (top | sbit);
	if (a == 0x7f800000)
		return (uint8_t)over;
	/* a = 1.f * 2^e; in units of the format's ulp at that exponent, ties to even */
	int e = (int)(a >> 23) - 127;
	uint64_t m = (a & 0x7fffff) | (a >> 23 ? 0x800000 : 0);
	if (!(a >> 23))
		e = -126;
	int emin = 1 - s.bias, q = MAX(e, emin) - s.mbits;   /* ulp = 2^q */
	int shift = q - (e - 23);                            /* m * 2^(e-23) = (m >> shift) ulps */
	uint64_t r;
	if (shift > 40) {
		r = 0;
	} else {
		uint64_t rest = m & (((uint64_t)1 << shift) - 1), half = (uint64_t)1 << (shift - 1);
		r = m >> shift;
		r += rest > half || (rest == half && (r & 1));
	}
	/* r ulps at exponent max(e, emin) as a code: subnormals have field 0 */
	uint64_t code = r + ((uint64_t)(MAX(e, emin) - emin) << s.mbits);
	if (code > top)
		return (uint8_t)over;
	if (!code && s.uz)
		return 0;
	return (uint8_t)(code | sbit);
}

int elem_work(enum elem e, enum dtype dt)
{
	const struct elem_info *i = &elem_info[e];
	enum dtype_class c = dtype_info[dt].cls;
	if (c == DT_COMPLEX)
		return 4 * i->work;
	return dtype_info[dt].bits == 64 || (c != DT_FLOAT && (e == ELEM_divide || e == ELEM_remainder || e == ELEM_power)) ? i->slow : i->work;
}

enum elem elem_mirrored(enum elem e)
{
	switch (e) {
	case ELEM_compare_ge: return ELEM_compare_le;
	case ELEM_compare_gt: return ELEM_compare_lt;
	case ELEM_compare_le: return ELEM_compare_ge;
	case ELEM_compare_lt: return ELEM_compare_gt;
	case ELEM_total_ge: return ELEM_total_le;
	case ELEM_total_gt: return ELEM_total_lt;
	case ELEM_total_le: return ELEM_total_ge;
	case ELEM_total_lt: return ELEM_total_gt;
	default: return e;
	}
}

int dtype_xla(enum dtype dt)
{
	static const uint8_t t[DT_COUNT] = {
		[DT_pred] = 1, [DT_i8] = 2, [DT_i16] = 3, [DT_i32] = 4, [DT_i64] = 5, [DT_u8] = 6, [DT_u16] = 7, [DT_u32] = 8, [DT_u64] = 9,
		[DT_f16] = 10, [DT_f32] = 11, [DT_f64] = 12, [DT_bf16] = 16, [DT_c64] = 15, [DT_c128] = 18, [DT_f8e5m2] = 19, [DT_f8e4m3fn] = 20,
		[DT_f8e4m3b11fnuz] = 23, [DT_f8e5m2fnuz] = 24, [DT_f8e4m3fnuz] = 25, [DT_i4] = 21, [DT_u4] = 22, [DT_token] = 17, [DT_i2] = 26,
		[DT_u2] = 27, [DT_f8e4m3] = 28, [DT_f8e3m4] = 29, [DT_f8e8m0fnu] = 33, [DT_f4e2m1fn] = 32, [DT_i1] = 30, [DT_u1] = 31,
	};

	return t[dt];
}
