/* Passes of a transform over complex T, lanes of them side by side: x[k][lane].  Included by isa.h for float and
 * double with T, TNAME, SWAP(v) and SIGNS set; all are gone afterwards. */

typedef T NAME(cv) __attribute__((vector_size(VB), aligned(sizeof(T)), may_alias));
enum { NAME(CN) = VB / (int)sizeof(T) };

/* v * (re + i im): v * re + swapped v * (-im, im) */
static inline NAME(cv) NAME(turn)(NAME(cv) v, T re, T im)
{
	const NAME(cv) s = SIGNS;
	return v * re + SWAP(v) * (s * im);
}
static inline NAME(cv) NAME(minus_i)(NAME(cv) v)
{
	const NAME(cv) s = SIGNS;
	return SWAP(v) * -s;
}

static inline NAME(cv) NAME(conjugate)(NAME(cv) v)
{
	const NAME(cv) s = SIGNS;
	return v * -s;
}

/* Where results of a butterfly go: number h to y + h * os; or, of real lines, where only the first half of the terms is
 * kept, to term h * done + j of all, or conjugated to its mirror.  flat: between terms. */
struct NAME(dest) { T *y; int64_t os; bool half; int64_t r, done, j, flat; };
static inline __attribute__((always_inline)) void NAME(put)(const struct NAME(dest) *d, int h, NAME(cv) v)
{
	int64_t at = h * d->done + d->j, all = d->r * d->done;
	if (!d->half)
		*(NAME(cv) *)(d->y + h * d->os) = v;
	else if (2 * at <= all)
		*(NAME(cv) *)(d->y + at * d->flat) = v;
	else
		*(NAME(cv) *)(d->y + (all - at) * d->flat) = NAME(conjugate)(v);
}

/* Results h .. h + c - 1 and their mirrors of a prime r: u[s] is the sum of terms s and r - s, u[r - s] their difference by
 * -i. */
static inline __attribute__((always_inline)) void NAME(prime)(int c, int r, int h, const NAME(cv) *u, const struct NAME(dest) *y, const T *wr)
{
	NAME(cv) even[3], odd[3];
	int at[3];
	for (int k = 0; k < c; k++) {
		even[k] = u[0];
		odd[k] = u[0] - u[0];
		at[k] = h + k;
	}
	for (int s = 1; 2 * s < r; s++)
		for (int k = 0; k < c; k++) {
			even[k] += u[s] * wr[2 * at[k]];
			odd[k] -= u[r - s] * wr[2 * at[k] + 1];
			at[k] += h + k;
			at[k] = at[k] >= r ? at[k] - r : at[k];
		}
	for (int k = 0; k < c; k++) {
		NAME(put)(y, h + k, even[k] + odd[k]);
		NAME(put)(y, r - h - k, even[k] - odd[k]);
	}
}

/* One vector of the butterfly of r terms, is apart; tw: their twiddles (the first is 1), wr: the
 * r-th roots.  first: all twiddles are 1. */
static inline __attribute__((always_inline)) void NAME(fly)(int r, bool first, const T *x, int64_t is, const struct NAME(dest) *y, const T *tw, const T *wr)
{
	NAME(cv) u[RADIX_MOST];
	u[0] = *(const NAME(cv) *)x;
	for (int s = 1; s < r; s++) {
		u[s] = *(const NAME(cv) *)(x + s * is);
		if (!first)
			u[s] = NAME(turn)(u[s], tw[2 * s], tw[2 * s + 1]);
	}
	if (r == 4) {
		NAME(cv) p = u[0] + u[2], q = u[0] - u[2], c = u[1] + u[3], d = NAME(minus_i)(u[1] - u[3]);
		NAME(put)(y, 0, p + c);
		NAME(put)(y, 1, q + d);
		NAME(put)(y, 2, p - c);
		NAME(put)(y, 3, q - d);
	} else if (r == 3) {
		NAME(cv) a = u[1] + u[2], m = u[0] - a * (T)0.5, q = NAME(minus_i)(u[1] - u[2]) * (T)0.86602540378443864676;
		NAME(put)(y, 0, u[0] + a);
		NAME(put)(y, 1, m + q);
		NAME(put)(y, 2, m - q);
	} else if (r == 5) {
		const T c1 = (T)0.30901699437494742410, c2 = (T)-0.80901699437494742410, s1 = (T)0.95105651629515357212, s2 = (T)0.58778525229247312917;
		NAME(cv) a = u[1] + u[4], b = u[1] - u[4], c = u[2] + u[3], d = u[2] - u[3];
		NAME(cv) p = u[0] + a * c1 + c * c2, q = NAME(minus_i)(b * s1 + d * s2);
		NAME(cv) v = u[0] + a * c2 + c * c1, z = NAME(minus_i)(b * s2 - d * s1);
		NAME(put)(y, 0, u[0] + a + c);
		NAME(put)(y, 1, p + q);
		NAME(put)(y, 2, v + z);
		NAME(put)(y, 3, v - z);
		NAME(put)(y, 4, p - q);
	} else if (r == 2) {
		NAME(put)(y, 0, u[0] + u[1]);
		NAME(put)(y, 1, u[0] - u[1]);
	} else {
		/* a prime: terms s and r - s have conjugate roots, and so have results h and r - h */
		NAME(cv) all = u[0];
		for (int s = 1; 2 * s < r; s++) {
			NAME(cv) p = u[s] + u[r - s], q = NAME(minus_i)(u[s] - u[r - s]);
			all += p;
			u[s] = p;
			u[r - s] = q;
		}
		NAME(put)(y, 0, all);
		int h = 1;
		for (; 2 * (h + 2) < r; h += 3)
			NAME(prime)(3, r, h, u, y, wr);
		for (; 2 * h < r; h++)
			NAME(prime)(1, r, h, u, y, wr);
	}
}

static inline __attribute__((always_inline)) void NAME(flies)(int r, bool first, const T *x, struct NAME(dest) y, const T *tw, const T *wr)
{
	int64_t k = 0, flat = y.flat;
	for (; k + NAME(CN) <= flat; k += NAME(CN), y.y += NAME(CN))
		NAME(fly)(r, first, x + k, flat, &y, tw, wr);
	if (k < flat) {                          /* the rest, in a vector of its own */
		T in[RADIX_MOST * NAME(CN)], out[RADIX_MOST * NAME(CN)];
		struct NAME(dest) own = { .y = out, .os = NAME(CN) };
		size_t rest = sizeof(T) * (size_t)(flat - k);
		memset(in, 0, sizeof(T) * (size_t)(r * NAME(CN)));
		for (int s = 0; s < r; s++)
			memcpy(in + s * NAME(CN), x + s * flat + k, rest);
		NAME(fly)(r, first, in, NAME(CN), &own, tw, wr);
		for (int s = 0; s < r; s++) {
			int64_t at = s * y.done + y.j, all = y.r * y.done;
			T *to = y.y + s * y.os;
			if (y.half) {
				bool mirror = 2 * at > all;
				to = y.y + (mirror ? all - at : at) * flat;
				for (int i = 1; mirror && i < NAME(CN); i += 2)
					out[s * NAME(CN) + i] = -out[s * NAME(CN) + i];
			}
			memcpy(to, out + s * NAME(CN), rest);
		}
	}
}

static inline __attribute__((always_inline)) void NAME(passes)(int r, int64_t done, int64_t m, int64_t lanes, const T *a, T *o, const T *w, bool half)
{
	T tw[2 * RADIX_MOST], wr[2 * RADIX_MOST];
	int64_t flat = 2 * m * lanes;
	for (int s = 0; s < r; s++)
		memcpy(wr + 2 * s, w + 2 * s * done * m, sizeof(T) * 2);
	for (int64_t j = 0; j < (half ? done / 2 + 1 : done); j++, a += r * flat) {
		struct NAME(dest) y = { half ? o : o + j * flat, done * flat, half, r, done, j, flat };
		for (int s = 0; s < r; s++)
			memcpy(tw + 2 * s, w + 2 * j * s * m, sizeof(T) * 2);
		if (r == 4 && !j)
			NAME(flies)(4, true, a, y, tw, wr);
		else if (r == 4)
			NAME(flies)(4, false, a, y, tw, wr);
		else if (r == 2)
			NAME(flies)(2, false, a, y, tw, wr);
		else if (r == 3)
			NAME(flies)(3, false, a, y, tw, wr);
		else if (r == 5)
			NAME(flies)(5, false, a, y, tw, wr);
		else
			NAME(flies)(r, false, a, y, tw, wr);
	}
}

static void NAME(pass)(int r, int64_t done, int64_t m, int64_t lanes, const void *a, void *o, const void *w)
{
	NAME(passes)(r, done, m, lanes, a, o, w, false);
}

/* The same of real lines: the transforms done so far are of real ones as well, so terms 0 .. done / 2 say all. */
static void NAME(half)(int r, int64_t done, int64_t m, int64_t lanes, const void *a, void *o, const void *w)
{
	NAME(passes)(r, done, m, lanes, a, o, w, true);
}

/* x[k][j] = f * x[k][j] * w[k] (w NULL: 1), then conjugated if so asked. */
static void NAME(spin)(int64_t n, int64_t lanes, void *x_, const void *w_, double f, bool conj)
{
	T *x = x_;
	const T *w = w_;
	for (int64_t k = 0; k < n; k++, x += 2 * lanes) {
		T re = (T)f * (w ? w[2 * k] : 1), im = (T)f * (w ? w[2 * k + 1] : 0), sign = conj ? -1 : 1;
		for (int64_t j = 0; j < lanes; j++) {
			T a = x[2 * j], b = x[2 * j + 1];
			x[2 * j] = a * re - b * im;
			x[2 * j + 1] = sign * (a * im + b * re);
		}
	}
}

/* x[k][j] *= w[k * ws + j] */
static void NAME(weigh)(int64_t n, int64_t lanes, void *x_, const void *w_, int64_t ws)
{
	T *x = x_;
	const T *w = w_;
	for (int64_t k = 0; k < n; k++, x += 2 * lanes, w += 2 * ws)
		for (int64_t j = 0; j < lanes; j++) {
			T a = x[2 * j], b = x[2 * j + 1];
			x[2 * j] = a * w[2 * j] - b * w[2 * j + 1];
			x[2 * j + 1] = a * w[2 * j + 1] + b * w[2 * j];
		}
}

/* One vector of pairs.  e = (a + conj(b)) / 2, d = (a - conj(b)) / 2 */
static inline __attribute__((always_inline)) void NAME(pair)(const T *pa, const T *pb, T *o, T c, T s, bool back)
{
	NAME(cv) a = *(const NAME(cv) *)pa, b = NAME(conjugate)(*(const NAME(cv) *)pb);
	NAME(cv) e = (a + b) * (T)0.5, d = (a - b) * (T)0.5;
	if (back)                            /* e + i conj(w) d, conjugated */
		*(NAME(cv) *)o = NAME(conjugate)(e - NAME(minus_i)(NAME(turn)(d, c, -s)));
	else                                 /* e - i w d */
		*(NAME(cv) *)o = e + NAME(minus_i)(NAME(turn)(d, c, s));
}

/* The same of one line, with i * way instead of i, conjugated on the way back: way is -1 there. */
static void NAME(pair_line)(int64_t h, const T *restrict in, T *restrict out, const T *restrict w, T way)
{
	const T last[2] = { in[way > 0 ? 0 : 2 * h], in[way > 0 ? 1 : 2 * h + 1] };       /* term h is term 0 */
	for (int64_t k = 0; k < h; k++) {
		const T *a = in + 2 * k, *b = k ? in + 2 * (h - k) : last;
		T er = (a[0] + b[0]) * (T)0.5, ei = (a[1] - b[1]) * (T)0.5, dr = (a[0] - b[0]) * (T)0.5, di = (a[1] + b[1]) * (T)0.5;
		T s = w[2 * k + 1] * way, tr = dr * w[2 * k] - di * s, ti = di * w[2 * k] + dr * s;
		out[2 * k] = er + ti * way;
		out[2 * k + 1] = (ei - tr * way) * way;
	}
	if (way > 0) {
		T er = last[0], ei = last[1];
		out[2 * h] = er - ei;
		out[2 * h + 1] = (ei - ei) * (T)0.5;
	}
}

/* From the transform z of h pairs of neighbours as complex numbers to x, that of the 2 h real ones (h + 1 terms), and
 * back to the conjugate of z.  w: roots of order 2 h. */
static void NAME(pairs)(int64_t h, int64_t lanes, const void *in_, void *out_, const void *w_, bool back)
{
	const T *in = in_, *w = w_;
	T *out = out_;
	int64_t flat = 2 * lanes;
	if (lanes == 1) {
		NAME(pair_line)(h, in, out, w, back ? -1 : 1);
		return;
	}
	for (int64_t k = 0; k < h + !back; k++, out += flat) {
		const T *a = in + flat * (k == h ? 0 : k), *b = in + flat * (!k && !back ? 0 : h - k);       /* term h is term 0 */
		int64_t j = 0;
		for (; j + NAME(CN) <= flat; j += NAME(CN))
			NAME(pair)(a + j, b + j, out + j, w[2 * k], w[2 * k + 1], back);
		if (j < flat) {
			T va[NAME(CN)] = { 0 }, vb[NAME(CN)] = { 0 };
			memcpy(va, a + j, sizeof(T) * (size_t)(flat - j));
			memcpy(vb, b + j, sizeof(T) * (size_t)(flat - j));
			NAME(pair)(va, vb, va, w[2 * k], w[2 * k + 1], back);
			memcpy(out + j, va, sizeof(T) * (size_t)(flat - j));
		}
	}
}

static void NAME(widen)(int64_t n, const void *in_, void *out_)
{
	const T *in = in_;
	T *out = out_;
	for (int64_t i = 0; i < n; i++) {
		T x = in[i];
		out[2 * i] = x;
		out[2 * i + 1] = 0;
	}
}
#undef T
#undef TNAME
#undef SWAP
#undef SIGNS
