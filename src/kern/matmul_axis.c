/* Where the positions of some dimensions lie. */
#include "matmul.h"

int64_t *matmul_offsets(struct arena *a, int c, const int64_t *dim, const int64_t *stride, int64_t *n)
{
	*n = 1;
	for (int i = 0; i < c; i++)
		*n *= dim[i];
	int64_t *o = ARENA_NEW(a, int64_t, *n + 1), done = 1;
	for (int i = *n ? c : 0; i-- > 0;) {      /* of no positions none, whatever the last dimensions have */
		for (int64_t j = dim[i]; j-- > 0;)
			for (int64_t x = 0; x < done; x++)
				o[j * done + x] = o[x] + j * stride[i];
		done *= dim[i];
	}
	return o;
}

struct matmul_axis matmul_axis_make(struct arena *a, int c, const int64_t *dim, const int64_t *stride)
{
	struct matmul_axis x = { .n = 1, .even = true };
	int64_t *d = ARENA_NEW(a, int64_t, 2 * c + 1), *s = d + c;
	for (int i = 0; i < c; i++) {
		x.n *= dim[i];
		if (dim[i] == 1)
			continue;
		if (x.rank && s[x.rank - 1] == stride[i] * dim[i]) {
			d[x.rank - 1] *= dim[i];
			s[x.rank - 1] = stride[i];
			continue;
		}
		d[x.rank] = dim[i];
		s[x.rank++] = stride[i];
	}
	x.dim = d;
	x.stride = s;
	x.even = x.rank <= 1;
	x.step = x.rank ? s[x.rank - 1] : 0;
	if (x.n <= MATMUL_AXIS)
		x.at = matmul_offsets(a, c, dim, stride, &x.n);
	return x;
}

int64_t matmul_far(const struct matmul_axis *x, int64_t i)
{
	int64_t o = 0;
	for (int d = x->rank; d-- > 0; i /= x->dim[d])
		o += i % x->dim[d] * x->stride[d];
	return o;
}

const int64_t *matmul_some(const struct matmul_axis *x, int64_t i0, int64_t n, int64_t *room)
{
	if (x->at)
		return x->at + i0;
	if (x->even) {
		int64_t o = i0 * x->step;
		for (int64_t i = 0; i < n; i++, o += x->step)
			room[i] = o;
		return room;
	}
	int64_t last = x->dim[x->rank - 1];
	for (int64_t i = 0; i < n;) {      /* along the last dimension */
		int64_t at = (i0 + i) % last, o = matmul_at(x, i0 + i), m = MIN(n - i, last - at);
		for (int64_t j = 0; j < m; j++)
			room[i++] = o + j * x->step;
	}
	return room;
}
