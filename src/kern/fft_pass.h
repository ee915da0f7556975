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

/* One vector of the butterfly of r terms, is apart, into results os apart; tw: their twiddles (the first is 1), wr: the
 * r-th roots.  first: all twiddles are 1. */
static inline __attribute__((always_inline)) void NAME(fly)(int r, bool first, const T *x, int64_t is, T *y, int64_t os, const T *tw, const T *wr)
{
	NAME(cv) u[32];
	for (int s = 0; s < r; s++) {
		u[s] = *(const NAME(cv) *)(x + s * is);
		if (!first && s)
			u[s] = NAME(turn)(u[s], tw[2 * s], tw[2 * s + 1]);
	}
	if (r == 4) {
		NAME(cv) p = u[0] + u[2], q = u[0] - u[2], c = u[1] + u[3], d = NAME(minus_i)(u[1] - u[3]);
		*(NAME(cv) *)y = p + c;
		*(NAME(cv) *)(y + os) = q + d;
		*(NAME(cv) *)(y + 2 * os) = p - c;
		*(NAME(cv) *)(y + 3 * os) = q - d;
	} else if (r == 3) {
		NAME(cv) a = u[1] + u[2], m = u[0] - a * (T)0.5, q = NAME(minus_i)(u[1] - u[2]) * (T)0.86602540378443864676;
		*(NAME(cv) *)y = u[0] + a;
		*(NAME(cv) *)(y + os) = m + q;
		*(NAME(cv) *)(y + 2 * os) = m - q;
	} else if (r == 5) {
		const T c1 = (T)0.30901699437494742410, c2 = (T)-0.80901699437494742410, s1 = (T)0.95105651629515357212, s2 = (T)0.58778525229247312917;
		NAME(cv) a = u[1] + u[4], b = u[1] - u[4], c = u[2] + u[3], d = u[2] - u[3];
		NAME(cv) p = u[0] + a * c1 + c * c2, q = NAME(minus_i)(b * s1 + d * s2);
		NAME(cv) v = u[0] + a * c2 + c * c1, z = NAME(minus_i)(b * s2 - d * s1);
		*(NAME(cv) *)y = u[0] + a + c;
		*(NAME(cv) *)(y + os) = p + q;
		*(NAME(cv) *)(y + 2 * os) = v + z;
		*(NAME(cv) *)(y + 3 * os) = v - z;
		*(NAME(cv) *)(y + 4 * os) = p - q;
	} else if (r == 2) {
		*(NAME(cv) *)y = u[0] + u[1];
		*(NAME(cv) *)(y + os) = u[0] - u[1];
	} else {
		for (int h = 0; h < r; h++) {
			NAME(cv) sum = u[0];
			for (int s = 1, at = h; s < r; s++, at = at + h >= r ? at + h - r : at + h)
				sum += NAME(turn)(u[s], wr[2 * at], wr[2 * at + 1]);
			*(NAME(cv) *)(y + h * os) = sum;
		}
	}
}

static inline __attribute__((always_inline)) void NAME(flies)(int r, bool first, int64_t flat, const T *x, T *y, int64_t os, const T *tw, const T *wr)
{
	int64_t k = 0;
	for (; k + NAME(CN) <= flat; k += NAME(CN))
		NAME(fly)(r, first, x + k, flat, y + k, os, tw, wr);
	if (k < flat) {                          /* the rest, in a vector of its own */
		T in[32 * NAME(CN)], out[32 * NAME(CN)];
		size_t rest = sizeof(T) * (size_t)(flat - k);
		memset(in, 0, sizeof(T) * (size_t)(r * NAME(CN)));
		for (int s = 0; s < r; s++)
			memcpy(in + s * NAME(CN), x + s * flat + k, rest);
		NAME(fly)(r, first, in, NAME(CN), out, NAME(CN), tw, wr);
		for (int s = 0; s < r; s++)
			memcpy(y + s * os + k, out + s * NAME(CN), rest);
	}
}

static void NAME(pass)(int r, int64_t done, int64_t m, int64_t lanes, const void *a_, void *o_, const void *w_)
{
	const T *a = a_, *w = w_;
	T *o = o_, tw[64], wr[64];
	int64_t flat = 2 * m * lanes, os = done * flat;
	for (int s = 0; s < r; s++)
		memcpy(wr + 2 * s, w + 2 * s * done * m, sizeof(T) * 2);
	for (int64_t j = 0; j < done; j++, a += r * flat, o += flat) {
		for (int s = 0; s < r; s++)
			memcpy(tw + 2 * s, w + 2 * j * s * m, sizeof(T) * 2);
		if (r == 4 && !j)
			NAME(flies)(4, true, flat, a, o, os, tw, wr);
		else if (r == 4)
			NAME(flies)(4, false, flat, a, o, os, tw, wr);
		else if (r == 2)
			NAME(flies)(2, false, flat, a, o, os, tw, wr);
		else if (r == 3)
			NAME(flies)(3, false, flat, a, o, os, tw, wr);
		else if (r == 5)
			NAME(flies)(5, false, flat, a, o, os, tw, wr);
		else
			NAME(flies)(r, false, flat, a, o, os, tw, wr);
	}
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

/* From the transform z of h pairs of neighbours as complex numbers to x, that of the 2 h real ones (h + 1 terms), and
 * back to the conjugate of z.  w: roots of order 2 h. */
static void NAME(pairs)(int64_t h, int64_t lanes, const void *in_, void *out_, const void *w_, bool back)
{
	const T *in = in_, *w = w_;
	T *out = out_;
	for (int64_t k = 0; k < h + !back; k++, out += 2 * lanes) {
		const T *a = in + 2 * lanes * (back ? k : k % h), *b = in + 2 * lanes * (back ? h - k : (h - k) % h);
		T c = w[2 * k], s = w[2 * k + 1];
		for (int64_t j = 0; j < lanes; j++) {
			T er = (a[2 * j] + b[2 * j]) / 2, ei = (a[2 * j + 1] - b[2 * j + 1]) / 2;
			T dr = (a[2 * j] - b[2 * j]) / 2, di = (a[2 * j + 1] + b[2 * j + 1]) / 2;
			if (back) {                  /* e + i conj(w) d, conjugated */
				T pr = dr * c + di * s, pi = di * c - dr * s;
				out[2 * j] = er - pi;
				out[2 * j + 1] = -(ei + pr);
			} else {                     /* e - i w d */
				T pr = dr * c - di * s, pi = dr * s + di * c;
				out[2 * j] = er + pi;
				out[2 * j + 1] = ei - pr;
			}
		}
	}
}
#undef T
#undef TNAME
#undef SWAP
#undef SIGNS
