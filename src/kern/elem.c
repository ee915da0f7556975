/* One elementwise function for any type.  Types without strips of their own go through wider ones, a
 * block at a time: small floats through f32 (f8e8m0fnu, whose least value is subnormal there, through f64), integers of fewer
 * than eight bits through eight. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "impl.h"

enum { BLOCK = 256 };

enum nat kern_nat(enum dtype dt)
{
	switch (dt) {
	case DT_pred: return NAT_pred;
	case DT_i8: return NAT_i8;
	case DT_i16: return NAT_i16;
	case DT_i32: return NAT_i32;
	case DT_i64: return NAT_i64;
	case DT_u8: return NAT_u8;
	case DT_u16: return NAT_u16;
	case DT_u32: return NAT_u32;
	case DT_u64: return NAT_u64;
	case DT_f32: return NAT_f32;
	case DT_f64: return NAT_f64;
	default: return NAT_COUNT;
	}
}

static bool is_complex(enum dtype dt) { return dtype_info[dt].cls == DT_COMPLEX; }
static bool is_small_float(enum dtype dt) { return dtype_info[dt].cls == DT_FLOAT && dtype_info[dt].bits <= 16; }
static bool is_sub_int(enum dtype dt)
{
	return (dtype_info[dt].cls == DT_INT || dtype_info[dt].cls == DT_UINT) && dtype_info[dt].bits < 8;
}

/* --- small floats -------------------------------------------------------- */

/* Tables of the types of one byte, made from the scalar conversions, which are the definition. */
static float decode[DT_COUNT][256];
static struct small_fmt format[DT_COUNT];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;
static void tables(void)
{
	/* mantissa bits and bias of what small_f8 in isa.h handles */
	static const int8_t mb[DT_COUNT][2] = {
		[DT_f8e5m2] = { 2, 15 }, [DT_f8e4m3fn] = { 3, 7 }, [DT_f8e4m3b11fnuz] = { 3, 11 }, [DT_f8e5m2fnuz] = { 2, 16 },
		[DT_f8e4m3fnuz] = { 3, 8 }, [DT_f8e4m3] = { 3, 7 }, [DT_f8e3m4] = { 4, 3 }, [DT_f4e2m1fn] = { 1, 1 },
		[DT_f6e2m3fn] = { 3, 1 }, [DT_f6e3m2fn] = { 2, 3 },
	};
	for (enum dtype dt = 1; dt < DT_COUNT; dt++) {
		if (dtype_info[dt].cls != DT_FLOAT || dtype_info[dt].bytes != 1)
			continue;
		for (int i = 0; i < 256; i++)
			decode[dt][i] = f8_to_f32(dt, (uint8_t)i);
		if (!mb[dt][0])
			continue;
		struct small_fmt *f = &format[dt];
		*f = (struct small_fmt){ .mbits = mb[dt][0], .bias = mb[dt][1], .sign = dtype_info[dt].bits - 1,
			.over = f32_to_f8(dt, 1e38f), .neg_over = f32_to_f8(dt, -1e38f), .pos_inf = f32_to_f8(dt, INFINITY),
			.neg_inf = f32_to_f8(dt, -INFINITY), .pos_nan = f32_to_f8(dt, NAN), .neg_nan = f32_to_f8(dt, -NAN),
			.one_zero = f32_to_f8(dt, -0.f) == 0 };
		for (uint32_t c = 0; c < 1u << f->sign; c++)     /* the code of the largest finite value */
			if (decode[dt][c] - decode[dt][c] == 0)
				f->top = c;
	}
}

static void load_f32(enum dtype dt, int64_t n, float *out, const void *in)
{
	const struct kern_isa *isa = kern_isa_get();
	if (dt == DT_bf16) {
		isa->bf16_f32(n, out, in, NULL, NULL);
	} else if (dt == DT_f16) {
		isa->f16_f32(n, out, in, NULL, NULL);
	} else {
		pthread_once(&tables_once, tables);
		const float *t = decode[dt];
		const uint8_t *a = in;
		for (int64_t i = 0; i < n; i++)
			out[i] = t[a[i]];
	}
}
static void store_f32(enum dtype dt, int64_t n, void *out, const float *in)
{
	const struct kern_isa *isa = kern_isa_get();
	if (dt == DT_bf16) {
		isa->f32_bf16(n, out, in, NULL, NULL);
	} else if (dt == DT_f16) {
		isa->f32_f16(n, out, in, NULL, NULL);
	} else if (dt != DT_f8e8m0fnu) {
		pthread_once(&tables_once, tables);
		isa->small(&format[dt], n, out, in);
	} else {
		uint8_t *o = out;
		for (int64_t i = 0; i < n; i++)
			o[i] = f32_to_f8(dt, in[i]);
	}
}

/* f8e8m0fnu has all powers of two from 2^-127 on, and neither zero nor sign. */
static void load_e8m0(int64_t n, double *out, const uint8_t *in)
{
	for (int64_t i = 0; i < n; i++) {
		uint64_t u = in[i] == 0xff ? 0x7ff8000000000000 : (uint64_t)(in[i] + 1023 - 127) << 52;
		memcpy(&out[i], &u, 8);
	}
}
/* To the nearest, ties up, all between the least and the next up, subnormals of f32 to the least: as f32_to_f8.  What is outside is NaN. */
static void store_e8m0(int64_t n, uint8_t *out, const double *in)
{
	for (int64_t i = 0; i < n; i++) {
		uint64_t u, m;
		memcpy(&u, &in[i], 8);
		int64_t e = (int64_t)(u >> 52) - 1023 + 127;      /* a sign makes it large */
		m = u << 12;
		e += e == 0 ? m != 0 : e > 0 ? (int64_t)(m >> 63) : 0;
		out[i] = e < 127 - 149 || e > 0xff ? 0xff : (uint8_t)MAX(e, 0);
	}
}

static void e8m0(enum elem fn, int64_t n, void *out, const void *a, const void *b, const void *c)
{
	kern_strip *f = kern_isa_get()->elem[NAT_f64][fn];
	double x[BLOCK], y[BLOCK], z[BLOCK];
	const uint8_t *in[3] = { a, b, c };
	double *to[3] = { x, y, z };
	bool pred = elem_info[fn].flags & EL_PRED;
	for (int64_t i = 0; i < n; i += BLOCK) {
		int64_t m = MIN(n - i, BLOCK);
		for (int k = 0; k < elem_info[fn].nin; k++)
			load_e8m0(m, to[k], in[k] + i);
		f(m, pred ? (void *)((char *)out + i) : x, x, y, z);
		if (!pred)
			store_e8m0(m, (uint8_t *)out + i, x);
	}
}

static void small_float(enum dtype dt, enum elem fn, int64_t n, void *out, const void *a, const void *b, const void *c)
{
	const struct kern_isa *isa = kern_isa_get();
	int es = dt_bytes(dt);
	if (fn == ELEM_select) {
		isa->elem[es == 2 ? NAT_u16 : NAT_u8][fn](n, out, a, b, c);
		return;
	}
	if (dt == DT_f8e8m0fnu) {
		e8m0(fn, n, out, a, b, c);
		return;
	}
	kern_strip *f = isa->elem[NAT_f32][fn];
	float x[BLOCK], y[BLOCK], z[BLOCK];
	bool pred = elem_info[fn].flags & EL_PRED;
	int nin = elem_info[fn].nin;
	for (int64_t i = 0; i < n; i += BLOCK) {
		int64_t m = MIN(n - i, BLOCK);
		load_f32(dt, m, x, (const char *)a + i * es);
		if (nin > 1)
			load_f32(dt, m, y, (const char *)b + i * es);
		if (nin > 2)
			load_f32(dt, m, z, (const char *)c + i * es);
		if (pred) {
			f(m, (char *)out + i, x, y, z);
		} else {
			f(m, x, x, y, z);
			store_f32(dt, m, (char *)out + i * es, x);
		}
	}
}

/* --- integers of 1, 2 and 4 bits ------------------------------------------ */

/* Bits of the type, as a signed or an unsigned byte. */
static void sub_load(int bits, bool sign, int64_t n, uint8_t *out, const uint8_t *in)
{
	int s = 8 - bits;
	if (sign)
		for (int64_t i = 0; i < n; i++)
			out[i] = (uint8_t)((int8_t)(uint8_t)(in[i] << s) >> s);
	else
		for (int64_t i = 0; i < n; i++)
			out[i] = in[i] & (uint8_t)((1 << bits) - 1);
}

static void small_int(enum dtype dt, enum elem fn, int64_t n, void *out_, const void *a_, const void *b_, const void *c_)
{
	const struct kern_isa *isa = kern_isa_get();
	int bits = dtype_info[dt].bits, nin = elem_info[fn].nin;
	bool sign = dtype_info[dt].cls == DT_INT, pred = elem_info[fn].flags & EL_PRED;
	/* these look at the bits, whatever the type */
	bool as = fn == ELEM_shift_right_arithmetic ? true
	        : fn == ELEM_shift_right_logical || fn == ELEM_popcnt || fn == ELEM_count_leading_zeros ? false : sign;
	kern_strip *f = isa->elem[as ? NAT_i8 : NAT_u8][fn];
	uint8_t x[BLOCK], y[BLOCK], z[BLOCK], *out = out_;
	const uint8_t *a = a_, *b = b_, *c = c_;
	for (int64_t i = 0; i < n; i += BLOCK) {
		int64_t m = MIN(n - i, BLOCK);
		if (fn == ELEM_select)
			memcpy(x, a + i, (size_t)m);
		else
			sub_load(bits, as, m, x, a + i);
		if (nin > 1) {
			bool shift = fn == ELEM_shift_left || fn == ELEM_shift_right_logical || fn == ELEM_shift_right_arithmetic;
			sub_load(bits, shift ? false : as, m, y, b + i);
			if (shift)      /* an amount is unsigned; the width is less than the strip's */
				for (int64_t j = 0; j < m; j++)
					y[j] = y[j] >= bits ? 8 : y[j];
		}
		if (nin > 2)
			sub_load(bits, as, m, z, c + i);
		if (fn == ELEM_mulhi) {
			for (int64_t j = 0; j < m; j++)
				x[j] = (uint8_t)((sign ? (int8_t)x[j] * (int8_t)y[j] : x[j] * y[j]) >> bits);
		} else {
			f(m, pred ? out + i : x, x, y, z);
		}
		if (pred)
			continue;
		if (fn == ELEM_count_leading_zeros)
			for (int64_t j = 0; j < m; j++)
				x[j] = (uint8_t)(x[j] - (8 - bits));
		sub_load(bits, sign, m, out + i, x);
	}
}

/* A name for every function of every such type. */
__attribute__((noinline)) static void small_any(enum dtype dt, enum elem fn, int64_t n, void *out, const void *a, const void *b, const void *c)
{
	if (dtype_info[dt].cls == DT_FLOAT)
		small_float(dt, fn, n, out, a, b, c);
	else
		small_int(dt, fn, n, out, a, b, c);
}
#define SMALL_FN(TY, fn) static void TY##_##fn(int64_t n, void *out, const void *a, const void *b, const void *c) \
	{ small_any(DT_##TY, ELEM_##fn, n, out, a, b, c); }
#define ELEM(id, nin, flags, work, slow, meaning) SMALL_FN(bf16, id) SMALL_FN(f16, id) SMALL_FN(f8e5m2, id) SMALL_FN(f8e4m3fn, id) \
	SMALL_FN(f8e4m3b11fnuz, id) SMALL_FN(f8e5m2fnuz, id) SMALL_FN(f8e4m3fnuz, id) SMALL_FN(f8e4m3, id) SMALL_FN(f8e3m4, id) \
	SMALL_FN(f8e8m0fnu, id) SMALL_FN(f4e2m1fn, id) SMALL_FN(f6e2m3fn, id) SMALL_FN(f6e3m2fn, id) SMALL_FN(i1, id) \
	SMALL_FN(u1, id) SMALL_FN(i2, id) SMALL_FN(u2, id) SMALL_FN(i4, id) SMALL_FN(u4, id)
#include "../base/elem.def"
#undef ELEM
static kern_strip *const small_strip[ELEM_COUNT][DT_COUNT] = {
#define ELEM(id, nin, flags, work, slow, meaning) [ELEM_##id] = { [DT_bf16] = bf16_##id, [DT_f16] = f16_##id,         \
	[DT_f8e5m2] = f8e5m2_##id, [DT_f8e4m3fn] = f8e4m3fn_##id, [DT_f8e4m3b11fnuz] = f8e4m3b11fnuz_##id,     \
	[DT_f8e5m2fnuz] = f8e5m2fnuz_##id, [DT_f8e4m3fnuz] = f8e4m3fnuz_##id, [DT_f8e4m3] = f8e4m3_##id,       \
	[DT_f8e3m4] = f8e3m4_##id, [DT_f8e8m0fnu] = f8e8m0fnu_##id, [DT_f4e2m1fn] = f4e2m1fn_##id,             \
	[DT_f6e2m3fn] = f6e2m3fn_##id, [DT_f6e3m2fn] = f6e3m2fn_##id, [DT_i1] = i1_##id, [DT_u1] = u1_##id,    \
	[DT_i2] = i2_##id, [DT_u2] = u2_##id, [DT_i4] = i4_##id, [DT_u4] = u4_##id },
#include "../base/elem.def"
#undef ELEM
};

/* --- conversion ----------------------------------------------------------- */

/* f64 to f32, the last bit odd if inexact: a second rounding to fewer bits is then as if there were one
 * (Boldo and Melquiond, "When double rounding is odd", 2004). */
static float round_odd(double x)
{
	float f = (float)x;
	uint32_t u;
	memcpy(&u, &f, 4);
	if ((double)f == x || x != x)
		return f;
	if (fabs((double)f) > fabs(x))
		u--;
	u |= 1;
	memcpy(&f, &u, 4);
	return f;
}

__attribute__((noinline)) void conv_any(enum dtype from, enum dtype to, int64_t n, void *out_, const void *in_)
{
	const struct kern_isa *isa = kern_isa_get();
	int fs = dt_bytes(from), ts = dt_bytes(to);
	if (is_complex(from) && is_complex(to)) {      /* both parts alike */
		enum nat f = from == DT_c64 ? NAT_f32 : NAT_f64, t = to == DT_c64 ? NAT_f32 : NAT_f64;
		isa->conv[f][t](2 * n, out_, in_, NULL, NULL);
		return;
	}
	bool wide = from == DT_f8e8m0fnu && to != DT_f32 && to != DT_c64 && !is_small_float(to);      /* f32 would flush the least */
	enum nat a = wide ? NAT_f64 : is_small_float(from) ? NAT_f32 : is_sub_int(from) ? dtype_info[from].cls == DT_INT ? NAT_i8 : NAT_u8
	           : from == DT_c64 ? NAT_f32 : from == DT_c128 ? NAT_f64 : kern_nat(from);
	enum nat b = to == DT_f8e8m0fnu && !is_small_float(from) && from != DT_f32 && from != DT_c64 ? NAT_f64 : is_small_float(to) ? NAT_f32 : is_sub_int(to) ? dtype_info[to].cls == DT_INT ? NAT_i8 : NAT_u8
	           : to == DT_c64 ? NAT_f32 : to == DT_c128 ? NAT_f64 : kern_nat(to);
	for (int64_t i = 0; i < n; i += BLOCK) {
		_Alignas(16) uint64_t x[BLOCK], y[BLOCK];
		int64_t m = MIN(n - i, BLOCK);
		const char *in = (const char *)in_ + i * fs;
		char *out = (char *)out_ + i * ts;
		if (is_complex(from) && to == DT_pred) {
			for (int64_t j = 0; j < m; j++) {
				double re, im;
				if (from == DT_c64) {
					float t[2];
					memcpy(t, in + j * 8, 8);
					re = t[0], im = t[1];
				} else {
					memcpy(&re, in + j * 16, 8);
					memcpy(&im, in + j * 16 + 8, 8);
				}
				out[j] = re != 0 || im != 0;
			}
			continue;
		}
		const void *p = in;
		if (wide)
			load_e8m0(m, (double *)(void *)x, (const uint8_t *)in), p = x;
		else if (is_small_float(from))
			load_f32(from, m, (float *)(void *)x, in), p = x;
		else if (is_sub_int(from))
			sub_load(dtype_info[from].bits, a == NAT_i8, m, (uint8_t *)x, (const uint8_t *)in), p = x;
		else if (is_complex(from))
			move_strided(fs / 2, m, (char *)x, fs / 2, in, fs), p = x;
		if (a == NAT_f64 && is_small_float(to) && b != NAT_f64) {
			float *f = (float *)(void *)y;
			for (int64_t j = 0; j < m; j++) {
				double d;
				memcpy(&d, (const char *)p + j * 8, 8);
				f[j] = round_odd(d);
			}
			store_f32(to, m, out, f);
			continue;
		}
		bool last = kern_nat(to) != NAT_COUNT;
		isa->conv[a][b](m, last ? (void *)out : (void *)y, p, NULL, NULL);
		if (last)
			continue;
		if (is_small_float(to) && b == NAT_f64) {
			store_e8m0(m, (uint8_t *)out, (const double *)(const void *)y);
		} else if (is_small_float(to)) {
			store_f32(to, m, out, (const float *)(const void *)y);
		} else if (is_complex(to)) {
			memset(out, 0, (size_t)(m * ts));
			move_strided(ts / 2, m, out, ts, (const char *)y, ts / 2);
		} else {
			int bits = dtype_info[to].bits;
			uint8_t *v = (uint8_t *)y;
			if (a == NAT_f32 || a == NAT_f64) {      /* floats saturate */
				int lo = b == NAT_i8 ? -(1 << (bits - 1)) : 0, hi = b == NAT_i8 ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
				for (int64_t j = 0; j < m; j++) {
					int t = b == NAT_i8 ? (int8_t)v[j] : v[j];
					v[j] = (uint8_t)(t < lo ? lo : t > hi ? hi : t);
				}
			}
			sub_load(bits, b == NAT_i8, m, (uint8_t *)out, v);
		}
	}
}

#define ALL_TYPES(X, A) X(A, pred) X(A, i8) X(A, i16) X(A, i32) X(A, i64) X(A, u8) X(A, u16) X(A, u32) X(A, u64) \
	X(A, f16) X(A, f32) X(A, f64) X(A, bf16) X(A, c64) X(A, c128) X(A, f8e5m2) X(A, f8e4m3fn) X(A, f8e4m3b11fnuz) \
	X(A, f8e5m2fnuz) X(A, f8e4m3fnuz) X(A, i4) X(A, u4) X(A, i2) X(A, u2) X(A, f8e4m3) X(A, f8e3m4) X(A, f8e8m0fnu) \
	X(A, f4e2m1fn) X(A, i1) X(A, u1) X(A, f6e2m3fn) X(A, f6e3m2fn)
#define CONV_FN(A, B) static void conv_##A##_##B(int64_t n, void *out, const void *a, const void *b, const void *c) \
	{ conv_any(DT_##A, DT_##B, n, out, a); }
#define CONV_AT(A, B) [DT_##B] = conv_##A##_##B,
#define CONV_ROWS(A) ALL_TYPES(CONV_FN, A)
CONV_ROWS(pred) CONV_ROWS(i8) CONV_ROWS(i16) CONV_ROWS(i32) CONV_ROWS(i64) CONV_ROWS(u8) CONV_ROWS(u16)
CONV_ROWS(u32) CONV_ROWS(u64) CONV_ROWS(f16) CONV_ROWS(f32) CONV_ROWS(f64) CONV_ROWS(bf16) CONV_ROWS(c64)
CONV_ROWS(c128) CONV_ROWS(f8e5m2) CONV_ROWS(f8e4m3fn) CONV_ROWS(f8e4m3b11fnuz) CONV_ROWS(f8e5m2fnuz)
CONV_ROWS(f8e4m3fnuz) CONV_ROWS(i4) CONV_ROWS(u4) CONV_ROWS(i2) CONV_ROWS(u2) CONV_ROWS(f8e4m3) CONV_ROWS(f8e3m4)
CONV_ROWS(f8e8m0fnu) CONV_ROWS(f4e2m1fn) CONV_ROWS(i1) CONV_ROWS(u1) CONV_ROWS(f6e2m3fn) CONV_ROWS(f6e3m2fn)
#define CONV_ROW(A) [DT_##A] = { ALL_TYPES(CONV_AT, A) }
static kern_strip *const conv_strip[DT_COUNT][DT_COUNT] = {
	CONV_ROW(pred), CONV_ROW(i8), CONV_ROW(i16), CONV_ROW(i32), CONV_ROW(i64), CONV_ROW(u8), CONV_ROW(u16),
	CONV_ROW(u32), CONV_ROW(u64), CONV_ROW(f16), CONV_ROW(f32), CONV_ROW(f64), CONV_ROW(bf16), CONV_ROW(c64),
	CONV_ROW(c128), CONV_ROW(f8e5m2), CONV_ROW(f8e4m3fn), CONV_ROW(f8e4m3b11fnuz), CONV_ROW(f8e5m2fnuz),
	CONV_ROW(f8e4m3fnuz), CONV_ROW(i4), CONV_ROW(u4), CONV_ROW(i2), CONV_ROW(u2), CONV_ROW(f8e4m3), CONV_ROW(f8e3m4),
	CONV_ROW(f8e8m0fnu), CONV_ROW(f4e2m1fn), CONV_ROW(i1), CONV_ROW(u1), CONV_ROW(f6e2m3fn), CONV_ROW(f6e3m2fn),
};

/* --- bits ------------------------------------------------------------------ */

#define COPY_FN(B) static void copy_##B(int64_t n, void *out, const void *a, const void *b, const void *c) \
	{ if (n > 0) memmove(out, a, (size_t)n * B); }
COPY_FN(1) COPY_FN(2) COPY_FN(4) COPY_FN(8) COPY_FN(16)
static kern_strip *copy_strip(int es)
{
	return es == 1 ? copy_1 : es == 2 ? copy_2 : es == 4 ? copy_4 : es == 8 ? copy_8 : copy_16;
}

kern_strip *kern_elem(enum elem fn, enum dtype from, enum dtype to)
{
	const struct kern_isa *isa = kern_isa_get();
	if (from <= 0 || from >= DT_COUNT || !dtype_info[from].name || from == DT_token || to >= DT_COUNT)
		return NULL;
	enum nat a = kern_nat(from), b = kern_nat(to);
	if (fn == ELEM_convert) {
		if (from == to)
			return copy_strip(dt_bytes(from));
		if (a < NAT_COUNT && b < NAT_COUNT)
			return isa->conv[a][b];
		if (from == DT_bf16 && to == DT_f32)
			return isa->bf16_f32;
		if (from == DT_f32 && to == DT_bf16)
			return isa->f32_bf16;
		if (from == DT_f16 && to == DT_f32)
			return isa->f16_f32;
		if (from == DT_f32 && to == DT_f16)
			return isa->f32_f16;
		return conv_strip[from][to];
	}
	if (fn == ELEM_bitcast)
		return dt_bytes(from) == dt_bytes(to) ? copy_strip(dt_bytes(from)) : NULL;
	if (from == DT_c64 || (fn == ELEM_complex && from == DT_f32))
		return isa->on_complex[0][fn] ? isa->on_complex[0][fn] : kern_complex64[fn];
	if (from == DT_c128 || (fn == ELEM_complex && from == DT_f64))
		return isa->on_complex[1][fn] ? isa->on_complex[1][fn] : kern_complex128[fn];
	if (fn == ELEM_complex)
		return NULL;
	if (a < NAT_COUNT)
		return isa->elem[a][fn];
	enum nat via = is_small_float(from) ? NAT_f32 : NAT_i8;
	return isa->elem[via][fn] ? small_strip[fn][from] : NULL;
}

/* --- reduce_precision ------------------------------------------------------ */

void round_precision(enum dtype dt, int ebits, int mbits, int64_t n, void *out, const void *in)
{
	if (dt_bytes(dt) == 1) {       /* as numbers of f16, which has them all but those of f8e8m0fnu */
		enum dtype via = dt == DT_f8e8m0fnu ? DT_f32 : DT_f16;
		float x[BLOCK];
		for (int64_t i = 0; i < n; i += BLOCK) {
			int64_t m = MIN(n - i, BLOCK);
			conv_any(dt, via, m, x, (const char *)in + i);
			round_precision(via, ebits, mbits, m, x, x);
			conv_any(via, dt, m, (char *)out + i, x);
		}
		return;
	}
	int eb = dt == DT_f64 ? 11 : dt == DT_f16 ? 5 : 8, mb = dt == DT_f64 ? 52 : dt == DT_f32 ? 23 : dt == DT_f16 ? 10 : 7, es = dt_bytes(dt);
	struct rounding r = { .inf = (((uint64_t)1 << eb) - 1) << mb, .sign = (uint64_t)1 << (eb + mb), .keep = ~(uint64_t)0 };
	r.over = r.inf;
	r.quiet = mbits > 0 ? 0 : (uint64_t)1 << (mb - 1);
	if (mbits < mb) {
		r.drop = mb - mbits;
		r.half = ((uint64_t)1 << (r.drop - 1)) - 1;
		r.odd = 1;
		r.keep <<= r.drop;
	}
	if (ebits < eb) {
		uint64_t bias = ((uint64_t)1 << (eb - 1)) - 1, most = ((uint64_t)1 << (ebits - 1)) - 1;
		r.over = (bias + most) << mb;
		r.least = ((bias - most) << mb) + 1;
	}
	kern_isa_get()->round[es == 2 ? 0 : es == 4 ? 1 : 2](&r, n, out, in);
}

/* --- for collectives --------------------------------------------------------- */

/* log(e^a + e^b) */
static void combine_lse(enum dtype dt, int64_t n, char *acc, const char *x)
{
	int es = dt_bytes(dt);
	for (int64_t i = 0; i < n; i++) {
		double a, b;
		conv_any(dt, DT_f64, 1, &a, acc + i * es);
		conv_any(dt, DT_f64, 1, &b, x + i * es);
		double hi = a > b ? a : b, lo = a > b ? b : a;
		double r = a != a || b != b ? a + b : lo == -INFINITY || hi == INFINITY ? hi : hi + log1p(exp(lo - hi));
		conv_any(DT_f64, dt, 1, acc + i * es, &r);
	}
}

void kern_combine(enum redop r, enum dtype dt, int64_t n, void *acc, const void *x)
{
	if (r == RED_lse) {
		combine_lse(dt, n, acc, x);
		return;
	}
	kern_strip *f = r < RED_COUNT && redop_elem[r] < ELEM_COUNT ? kern_elem(redop_elem[r], dt, dt) : NULL;
	assert(f);
	if (f)
		f(n, acc, acc, x, NULL);
}

void kern_identity(enum redop r, enum dtype dt, void *out)
{
	memset(out, 0, 16);
	int cls = dtype_info[dt].cls, bits = dtype_info[dt].bits, es = dt_bytes(dt);
	double d = 0;
	switch (r) {
	case RED_mul: d = 1; break;
	case RED_min: d = INFINITY; break;
	case RED_max: case RED_lse: d = -INFINITY; break;
	case RED_and:
		if (cls == DT_PRED)
			*(uint8_t *)out = 1;
		else
			memset(out, 0xff, (size_t)es);
		if (cls == DT_UINT && bits < 8)
			*(uint8_t *)out = (uint8_t)((1 << bits) - 1);
		return;
	default: break;
	}
	if (cls == DT_FLOAT && bits <= 8 && (r == RED_max || r == RED_min)) {     /* not all of these have infinities */
		float most = NAN;
		for (int c = 0; c < 1 << bits; c++) {
			float x = f8_to_f32(dt, (uint8_t)c);
			if (x != x || (r == RED_max ? x >= most : x <= most))
				continue;
			most = x;
			*(uint8_t *)out = (uint8_t)c;
		}
	} else if (cls == DT_PRED) {
		*(uint8_t *)out = r == RED_mul || r == RED_min;
	} else if (cls == DT_COMPLEX) {
		double c[2] = { d, d == 1 ? 0 : d };
		float cf[2] = { (float)c[0], (float)c[1] };
		memcpy(out, dt == DT_c64 ? (void *)cf : (void *)c, (size_t)es);
	} else {
		conv_any(DT_f64, dt, 1, out, &d);     /* infinities saturate: exact for integers */
	}
}
