/* Index spaces of strided views, and moving elements. */
#include "impl.h"

int64_t view_count(const struct prog_view *v)
{
	int64_t n = 1;
	for (int d = 0; d < v->rank; d++)
		n *= v->dim[d];
	return n;
}

void loop_make(struct arena *a, struct loop *l, int nview, const struct prog_view *const *v)
{
	int rank = v[0]->rank;
	l->dim = ARENA_NEW(a, int64_t, rank + 1);
	l->stride = ARENA_NEW(a, int64_t *, nview);
	for (int i = 0; i < nview; i++)
		l->stride[i] = ARENA_NEW(a, int64_t, rank + 1);
	l->rank = 0;
	l->count = 1;
	for (int d = 0; d < rank; d++) {
		int64_t n = v[0]->dim[d];
		l->count *= n;
		if (n == 1)
			continue;
		int last = l->rank - 1;
		bool merge = last >= 0;
		for (int i = 0; i < nview && merge; i++)
			merge = l->stride[i][last] == v[i]->stride[d] * dt_bytes(v[i]->dtype) * n;
		if (merge) {
			l->dim[last] *= n;
		} else {
			last = l->rank++;
			l->dim[last] = n;
		}
		for (int i = 0; i < nview; i++)
			l->stride[i][last] = v[i]->stride[d] * dt_bytes(v[i]->dtype);
	}
	if (!l->rank) {
		l->rank = 1;
		l->dim[0] = 1;
		for (int i = 0; i < nview; i++)
			l->stride[i][0] = dt_bytes(v[i]->dtype);
	}
}

int sum_levels(int64_t blocks)
{
	int n = 1;
	for (; blocks >= SUM_RADIX; blocks /= SUM_RADIX)
		n++;
	return n;
}

void sum_carry(int64_t i, kern_strip *add, int64_t n, int bytes, char *levels, size_t step)
{
	for (i++; i % SUM_RADIX == 0; levels += step) {
		i /= SUM_RADIX;
		if (i % SUM_RADIX == 1)       /* the first of its level */
			memcpy(levels + step, levels, (size_t)(n * bytes));
		else
			add(n, levels + step, levels + step, levels, NULL);
	}
}

void sum_close(int64_t blocks, kern_strip *add, int64_t n, int bytes, char *levels, size_t step)
{
	bool have = blocks % SUM_RADIX;
	char *up = levels;
	while (blocks /= SUM_RADIX) {
		up += step;
		if (blocks % SUM_RADIX == 0)
			continue;
		if (have)
			add(n, levels, up, levels, NULL);
		else
			memcpy(levels, up, (size_t)(n * bytes));
		have = true;
	}
}

enum { FLIP_LEAST = 64, EVERY_LEAST = 16 };      /* bytes of a row, elements, that are worth a call */

#define MOVE(T)                                                                     \
	for (int64_t i = 0; i < n; i++, dst += ds, src += ss) {                         \
		T t;                                                                        \
		memcpy(&t, src, sizeof t);                                                  \
		memcpy(dst, &t, sizeof t);                                                  \
	}
/* Dense in dst. */
#define EACH_OF(T)                                                                  \
	for (int64_t i = 0; i < n; i++, src += ss) {                                    \
		T t;                                                                        \
		memcpy(&t, src, sizeof t);                                                  \
		memcpy(dst + i * (int64_t)sizeof t, &t, sizeof t);                          \
	}
static void move_out(int es, int64_t n, char *restrict dst, const char *restrict src, int64_t ss)
{
	if (n >= EVERY_LEAST && (ss == 2 * es || ss == 3 * es || ss == 4 * es))
		kern_isa_get()->every(es, n, ss / es, dst, src);
	else
		BY_SIZE(es, EACH_OF)
}

void move_strided(int es, int64_t n, char *dst, int64_t ds, const char *src, int64_t ss)
{
	if (ds == es && ss == es) {
		memcpy(dst, src, (size_t)(n * es));
	} else if (ds == es && ss == 0) {
		fill_bytes(es, n, dst, src);
	} else if (ds == es && ss == -es && n * es > FLIP_LEAST) {
		kern_isa_get()->flip(1, n, es, src + (n - 1) * ss, dst);
	} else if (ds == es) {
		move_out(es, n, dst, src, ss);
	} else {
		BY_SIZE(es, MOVE)
	}
}

#define FILL(T)                                                                     \
	{                                                                               \
		T t;                                                                        \
		memcpy(&t, value, sizeof t);                                                \
		for (int64_t i = 0; i < n; i++)                                             \
			memcpy(dst + i * (int64_t)sizeof t, &t, sizeof t);                      \
	}
void fill_bytes(int es, int64_t n, char *dst, const void *value)
{
	BY_SIZE(es, FILL)
}

int64_t load_int(enum dtype dt, const void *p)
{
	switch (dt_bytes(dt)) {
	case 1: {
		uint8_t b = *(const uint8_t *)p;
		int bits = dtype_info[dt].bits;
		if (dtype_info[dt].cls == DT_INT)
			return (int64_t)((uint64_t)b << (64 - bits)) >> (64 - bits);
		return b & ((1 << bits) - 1);
	}
	case 2: {
		uint16_t u;
		memcpy(&u, p, 2);
		return dtype_info[dt].cls == DT_INT ? (int16_t)u : u;
	}
	case 4: {
		uint32_t u;
		memcpy(&u, p, 4);
		return dtype_info[dt].cls == DT_INT ? (int64_t)(int32_t)u : (int64_t)u;
	}
	default: {
		int64_t v;
		memcpy(&v, p, 8);
		/* unsigned values beyond the signed range clamp like the largest one */
		return dtype_info[dt].cls == DT_UINT && v < 0 ? INT64_MAX : v;
	}
	}
}
