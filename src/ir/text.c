/* Elements as text, both ways: what is printed is read back to its own bits. */
#include "text.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* Narrow formats take the nearest value; text that was printed gives its own bits back. */
static bool put_float(enum dtype dt, const char *b, void *out)
{
	char *end;
	double x = strtod(b, &end);
	if (*end || end == b)
		return false;
	if (dt == DT_f64) {
		memcpy(out, &x, 8);
		return true;
	}
	float f = strtof(b, &end);
	uint16_t h;
	switch (dt) {
	case DT_f32: memcpy(out, &f, 4); break;
	case DT_f16: h = f32_to_f16(f); memcpy(out, &h, 2); break;
	case DT_bf16: h = f32_to_bf16(f); memcpy(out, &h, 2); break;
	default: *(uint8_t *)out = f32_to_f8(dt, f);
	}
	return true;
}

bool ir_elem_parse(enum dtype dt, const char *text, size_t n, void *out)
{
	const struct dtype_info *d = &dtype_info[dt];
	char b[64], *end;
	if (n == 0 || n >= sizeof b)
		return false;
	memcpy(b, text, n);
	b[n] = 0;
	if (d->cls == DT_COMPLEX) {
		const char *comma = memchr(text, ',', n);
		enum dtype part = dt == DT_c64 ? DT_f32 : DT_f64;
		if (!comma || b[0] != '(' || b[n - 1] != ')')
			return false;
		size_t k = (size_t)(comma - text);
		return ir_elem_parse(part, text + 1, k - 1, out) && ir_elem_parse(part, comma + 1, n - k - 2, (uint8_t *)out + d->bytes / 2);
	}
	if (n > 2 && b[0] == '0' && b[1] == 'x') {
		errno = 0;
		uint64_t v = strtoull(b, &end, 16);
		if (*end || errno || n != 2 + 2u * d->bytes)
			return false;
		memcpy(out, &v, d->bytes);
		return true;
	}
	switch (d->cls) {
	case DT_PRED:
		*(uint8_t *)out = strcmp(b, "true") == 0;
		return *(uint8_t *)out || strcmp(b, "false") == 0;
	case DT_FLOAT:
		if (!strcmp(b, "nan") || !strcmp(b, "-nan"))
			return false;
		return put_float(dt, b, out);
	case DT_INT:
	case DT_UINT: {
		errno = 0;
		uint64_t v;
		int spare = 64 - 8 * d->bytes;
		if (d->cls == DT_INT) {
			int64_t s = strtoll(b, &end, 10);
			v = (uint64_t)s;
			if ((int64_t)(v << spare) >> spare != s)
				return false;
		} else {
			v = strtoull(b, &end, 10);
			if (b[0] == '-' || v << spare >> spare != v)
				return false;
		}
		if (*end || end == b || errno)
			return false;
		memcpy(out, &v, d->bytes);
		return true;
	}
	default:
		return false;
	}
}

static void add_float(struct str *s, enum dtype dt, const uint8_t *p)
{
	int bytes = dtype_info[dt].bytes;
	uint64_t bits = 0;
	memcpy(&bits, p, (size_t)bytes);
	double x = dtype_real(dt, p);
	if (isinf(x)) {
		char back[8];
		const char *b = x < 0 ? "-inf" : "inf";
		if (ir_elem_parse(dt, b, strlen(b), back) && memcmp(back, p, (size_t)bytes) == 0) {
			str_add(s, b);
			return;
		}
	} else if (x == x) {
		/* the shortest text that gives the bits back, but the exact value if six digits hold it */
		char b[64], best[64] = "", back[8];
		for (int digits = 1; digits <= 17 && !(digits > 6 && *best); digits++) {
			int n = snprintf(b, sizeof b, "%.*g", digits, x);
			if (!ir_elem_parse(dt, b, (size_t)n, back) || memcmp(back, p, (size_t)bytes) != 0)
				continue;
			bool exact = digits <= 6 && strtod(b, NULL) == x;
			if (exact || !*best)
				memcpy(best, b, (size_t)n + 1);
			if (exact)
				break;
		}
		if (*best) {
			str_add(s, best);
			return;
		}
	}
	str_addf(s, "0x%0*llx", bytes * 2, (unsigned long long)bits);
}

void ir_elem_print(struct str *s, enum dtype dt, const void *p)
{
	const struct dtype_info *d = &dtype_info[dt];
	int64_t v = 0;
	switch (d->cls) {
	case DT_PRED:
		if (*(const uint8_t *)p > 1)
			str_addf(s, "0x%02x", *(const uint8_t *)p);
		else
			str_add(s, *(const uint8_t *)p ? "true" : "false");
		break;
	case DT_COMPLEX: {
		enum dtype part = dt == DT_c64 ? DT_f32 : DT_f64;
		str_add(s, "(");
		add_float(s, part, p);
		str_add(s, ",");
		add_float(s, part, (const uint8_t *)p + d->bytes / 2);
		str_add(s, ")");
		break;
	}
	case DT_FLOAT:
		add_float(s, dt, p);
		break;
	case DT_INT: {
		memcpy(&v, p, d->bytes);
		int sh = 64 - 8 * d->bytes;
		str_addf(s, "%lld", (long long)((int64_t)((uint64_t)v << sh) >> sh));
		break;
	}
	default:
		memcpy(&v, p, d->bytes);
		str_addf(s, "%llu", (unsigned long long)v);
	}
}
