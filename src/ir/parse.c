/* Text -> module: the reverse of print.c. */
#include "text.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* --- elements ------------------------------------------------------------- */

/* Narrow formats take the nearest value; text that print.c wrote gives its own bits back. */
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
