/* Random bits.  rng_bits: Philox 4x32-10 and Threefry 2x32-20 (Salmon, Moraes, Dror, Shaw: "Parallel random
 * numbers: as easy as 1, 2, 3", 2011), with the order of outputs and the state of StableHLO's generator as XLA
 * gives them: state[0] is the key, the rest a counter. */
#include <math.h>
#include <stdlib.h>

#include "impl.h"

static void philox(const uint32_t key[2], const uint32_t ctr[4], uint32_t out[4])
{
	uint32_t x0 = ctr[0], x1 = ctr[1], x2 = ctr[2], x3 = ctr[3], k0 = key[0], k1 = key[1];
	for (int i = 0; i < 10; i++) {
		uint64_t a = (uint64_t)x0 * 0xD2511F53u, b = (uint64_t)x2 * 0xCD9E8D57u;
		uint32_t y0 = (uint32_t)(b >> 32) ^ x1 ^ k0, y2 = (uint32_t)(a >> 32) ^ x3 ^ k1;
		x1 = (uint32_t)b;
		x3 = (uint32_t)a;
		x0 = y0;
		x2 = y2;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	out[0] = x0;
	out[1] = x1;
	out[2] = x2;
	out[3] = x3;
}

enum { BITS_TILE = 16384, STRIP = 256 };
struct bits {
	bool fry;
	int es, nstate;              /* bytes of an output; 64-bit words of state */
	int64_t n, blocks;           /* outputs; generator calls */
	/* Threefry of at most 32 bits: dimension that is cut in halves */
	int64_t outer, half, inner, full;
};

static inline void put(char *out, int es, uint64_t v)
{
	if (es == 4)
		memcpy(out, &v, 4);
	else
		memcpy(out, &v, (size_t)es);
}

static void bits_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                     int64_t t0, int64_t t1, void *scratch)
{
	const struct bits *q = s->priv;
	uint64_t st[3] = { 0 };
	const struct prog_view *sv = &k->v[0];
	int wes = dt_bytes(sv->dtype);
	const char *sp = view_at(k, ptr, 0);
	char raw[24] = { 0 };
	for (int64_t i = 0; i < sv->dim[0]; i++)
		memcpy(raw + i * wes, sp + i * sv->stride[0] * wes, (size_t)wes);
	memcpy(st, raw, sizeof st);
	if (q->nstate == 2)
		st[2] = st[0];           /* XLA: a state without the counter's upper half has the key there */
	uint32_t key[2] = { (uint32_t)st[0], (uint32_t)(st[0] >> 32) };
	char *out = view_at(k, ptr, 2);
	int es = q->es;
	int64_t lo = t0 * BITS_TILE, hi = MIN(t1 * BITS_TILE, q->blocks);
	const struct kern_isa *isa = kern_isa_get();
	uint32_t x[4 * STRIP];
	for (int64_t b = lo; b < hi; b += STRIP) {
		int64_t m = MIN(STRIP, hi - b);
		if (q->fry) {
			isa->threefry(m, key, st[1] + (uint64_t)b, x, x + STRIP);
			if (es == 8) {
				for (int64_t i = 0; i < m; i++)
					put(out + (b + i) * 8, 8, (uint64_t)x[STRIP + i] << 32 | x[i]);
				continue;
			}
			/* block (o, h, i): neighbours 2 h and 2 h + 1 of the cut dimension */
			for (int64_t i = 0; i < m;) {
				int64_t in = (b + i) % q->inner, h = (b + i) / q->inner % q->half, o = (b + i) / q->inner / q->half;
				int64_t run = MIN(m - i, q->inner - in);
				char *to = out + ((o * q->full + 2 * h) * q->inner + in) * es;
				if (q->inner == 1) {
					/* a row of pairs */
					run = MIN(m - i, q->half - h);
					for (int64_t j = 0; j < run; j++) {
						put(to + 2 * j * es, es, x[i + j]);
						if (2 * (h + j) + 1 < q->full)
							put(to + (2 * j + 1) * es, es, x[STRIP + i + j]);
					}
				} else {
					for (int64_t j = 0; j < run; j++)
						put(to + j * es, es, x[i + j]);
					for (int64_t j = 0; j < run && 2 * h + 1 < q->full; j++)
						put(to + (q->inner + j) * es, es, x[STRIP + i + j]);
				}
				i += run;
			}
			continue;
		}
		uint64_t c0 = st[1] + (uint64_t)b;
		isa->philox(m, key, c0, st[2] + (c0 < st[1]), x);
		int64_t per = es == 8 ? 2 : 4, n = MIN(per * m, q->n - per * b);
		if (es >= 4)
			memcpy(out + per * b * es, x, (size_t)(n * es));
		else
			for (int64_t i = 0; i < n; i++)
				put(out + (per * b + i) * es, es, x[i]);
	}
	if (t0 > 0)
		return;
	uint64_t old = st[1];
	st[1] += (uint64_t)q->blocks;
	if (!q->fry)
		st[2] += st[1] < old;
	memcpy(raw, st, sizeof raw);
	char *so = view_at(k, ptr, 1);
	for (int64_t i = 0; i < sv->dim[0]; i++)
		memcpy(so + i * k->v[1].stride[0] * wes, raw + i * wes, (size_t)wes);
}

struct err *kern_make_rng_bits(const struct prog_kern *k, struct kern_state *s)
{
	struct bits *q = ARENA_NEW(&s->a, struct bits, 1);
	const struct prog_view *sv = &k->v[0], *out = &k->v[2];
	q->fry = k->attr[0] == 1;
	q->es = dt_bytes(out->dtype);
	q->n = view_count(out);
	int64_t bytes = sv->rank == 1 ? sv->dim[0] * dt_bytes(sv->dtype) : 0;
	if (bytes < 16 || bytes > 24 || k->attr[0] < 0 || k->attr[0] > 2)
		return ERR(UNIMPLEMENTED, "rng_bit_generator with a state of %lld bytes", (long long)bytes);
	if (q->es > 8 || dtype_info[out->dtype].cls == DT_COMPLEX)
		return ERR(UNIMPLEMENTED, "rng_bit_generator of '%s'", dtype_info[out->dtype].name);
	if (!prog_view_dense(out))
		return ERR(UNIMPLEMENTED, "rng_bit_generator into a view");
	q->nstate = (int)(bytes / 8);
	if (q->fry && q->es < 8) {
		/* the first even dimension is cut, else the first of the largest */
		int cut = -1;
		for (int d = 0; d < out->rank && cut < 0; d++)
			if (out->dim[d] % 2 == 0)
				cut = d;
		if (cut < 0)
			for (int d = 0; d < out->rank; d++)
				if (cut < 0 || out->dim[d] > out->dim[cut])
					cut = d;
		q->outer = q->inner = q->full = q->half = 1;
		for (int d = 0; d < out->rank; d++)
			*(d < cut ? &q->outer : d > cut ? &q->inner : &q->full) *= out->dim[d];
		q->half = (q->full + 1) / 2;
		q->blocks = q->outer * q->half * q->inner;
	} else if (q->fry) {
		q->blocks = q->n;
	} else {
		q->blocks = q->es == 8 ? (q->n + 1) / 2 : (q->n + 3) / 4;
	}
	s->tiles = MAX(1, (q->blocks + BITS_TILE - 1) / BITS_TILE);
	s->priv = q;
	s->run = bits_run;
	return NULL;
}

/* --- rng -------------------------------------------------------------------------------- */

/* Old-style random numbers: a stream of the process, so no two runs of an operation give the same. */
static uint64_t stream;

struct rng { bool normal; enum dtype dt; int64_t n; };

static void rng_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                    int64_t t0, int64_t t1, void *scratch)
{
	const struct rng *q = s->priv;
	uint64_t id = __atomic_add_fetch(&stream, 1, __ATOMIC_RELAXED);
	uint32_t key[2] = { (uint32_t)id, (uint32_t)(id >> 32) };
	const struct prog_view *o = &k->v[2];
	int es = dt_bytes(q->dt), cls = dtype_info[q->dt].cls;
	char *out = view_at(k, ptr, 2);
	int64_t ix[LOOP_RANK];
	double a, b;
	int64_t ia = 0, ib = 0;
	kern_elem(ELEM_convert, q->dt, DT_f64)(1, &a, view_at(k, ptr, 0), NULL, NULL);
	kern_elem(ELEM_convert, q->dt, DT_f64)(1, &b, view_at(k, ptr, 1), NULL, NULL);
	if (cls != DT_FLOAT) {
		ia = load_int(q->dt, view_at(k, ptr, 0));
		ib = load_int(q->dt, view_at(k, ptr, 1));
	}
	for (int64_t i = 0; i < q->n; i++) {
		uint32_t ctr[4] = { (uint32_t)i, (uint32_t)(i >> 32), 0, 0 }, x[4];
		philox(key, ctr, x);
		char *to = out;
		index_of(o->rank, o->dim, i, ix);
		to += offset_of(o->rank, o->stride, ix) * es;
		if (cls != DT_FLOAT) {
			uint64_t r = (uint64_t)x[1] << 32 | x[0], range = (uint64_t)ib - (uint64_t)ia;
			int64_t v = (int64_t)((uint64_t)ia + (range ? r % range : 0));
			kern_elem(ELEM_convert, DT_i64, q->dt)(1, to, &v, NULL, NULL);
			continue;
		}
		double u = ((double)x[0] + (double)(x[1] >> 12) * 0x1p32) * 0x1p-52, w = ((double)x[2] + 0.5) * 0x1p-32, v;
		char bytes[16];
		if (q->normal) {
			v = a + b * sqrt(-2 * log(w)) * cos(2 * M_PI * u);
			kern_elem(ELEM_convert, DT_f64, q->dt)(1, bytes, &v, NULL, NULL);
		} else {
			double back;
			v = a + (b - a) * u;
			kern_elem(ELEM_convert, DT_f64, q->dt)(1, bytes, &v, NULL, NULL);
			kern_elem(ELEM_convert, q->dt, DT_f64)(1, &back, bytes, NULL, NULL);
			if (back >= b)      /* rounded up to the open end */
				memcpy(bytes, view_at(k, ptr, 0), (size_t)es);
		}
		memcpy(to, bytes, (size_t)es);
	}
}

struct err *kern_make_rng(const struct prog_kern *k, struct kern_state *s)
{
	struct rng *q = ARENA_NEW(&s->a, struct rng, 1);
	q->dt = k->v[2].dtype;
	q->n = view_count(&k->v[2]);
	q->normal = k->attr[0] == 2;
	int cls = dtype_info[q->dt].cls;
	if (cls == DT_COMPLEX || (cls != DT_FLOAT && q->normal) || k->v[0].dtype != q->dt || k->v[1].dtype != q->dt)
		return ERR(UNIMPLEMENTED, "rng of '%s'", dtype_info[q->dt].name);
	s->priv = q;
	s->run = rng_run;
	return NULL;
}
