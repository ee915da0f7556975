/* Attention as docs/attention.md says it, for all types and views: the reference, for what has no fast kernel.  Products and sums are
 * f64, row by row.
 *
 * A tile of the forward kernel is a row of queries, one of the gradient a batch. */
#include "attention.h"

#include <math.h>

/* --- the reference ------------------------------------------------------------------ */

/* A thread's memory: vectors of d, e and s elements, and what the function works in. */
struct ref {
	struct attention x;
	size_t q, o, d_o, kv, row, slope, weight, in, raw, fn, acc, at, tally;      /* from the scratch's begin; at: indices of a row, tally: sums by them */
	size_t *table;           /* of each operand of scores, where it is brought if it is a table */
	int64_t *length;         /* of tables; 0: it is none */
};

/* n elements of view i from p on, which lie along its last dimension but back, as f64. */
static void load(const struct prog_kern *k, int i, const char *p, int back, int64_t n, char *raw, double *out)
{
	const struct prog_view *v = &k->v[i];
	int es = dt_bytes(v->dtype);
	move_strided(es, n, raw, es, p, v->stride[v->rank - 1 - back] * es);
	kern_elem(ELEM_convert, (enum dtype)v->dtype, DT_f64)(n, out, raw, NULL, NULL);
}

static void store(const struct prog_kern *k, int i, char *p, int64_t n, char *raw, const double *in)
{
	const struct prog_view *v = &k->v[i];
	int es = dt_bytes(v->dtype);
	kern_elem(ELEM_convert, DT_f64, (enum dtype)v->dtype)(n, raw, in, NULL, NULL);
	move_strided(es, n, p, v->stride[v->rank - 1] * es, raw, es);
}

/* What o, of bf16, which is there, lacks of n numbers. */
static void store_below(const struct prog_kern *k, const char *o, char *p, int64_t n, const double *in)
{
	const struct prog_view *high = &k->v[k->nin], *v = high + 2;
	for (int64_t i = 0; i < n; i++) {
		uint16_t h;
		memcpy(&h, o + i * high->stride[high->rank - 1] * (int64_t)sizeof h, sizeof h);
		p[i * v->stride[v->rank - 1]] = (char)att_below((float)in[i], h);
	}
}

/* Where row (g, t) of view i lies, from that of its batch on. */
static char *row_at(const struct prog_kern *k, const struct attention *x, int i, char *base, int64_t g, int64_t t)
{
	const struct prog_view *v = &k->v[i];
	return base + ((v->dim[x->nb] == 1 ? 0 : g * v->stride[x->nb]) + (v->dim[x->nb + 1] == 1 ? 0 : t * v->stride[x->nb + 1])) * dt_bytes(v->dtype);
}

/* Key or value j of batch b. */
static void load_key(const struct prog_kern *k, const struct ref *r, char *const *ptr, int i, int64_t b, int64_t j, char *mem, double *out)
{
	const struct attention *x = &r->x;
	const struct prog_view *v = &k->v[i];
	int64_t row, left;
	const char *base = attention_piece(k, ptr, x, i, b, j, &row, &left);
	load(k, i, base + row * v->stride[x->nb] * dt_bytes(v->dtype), 0, i == ATT_K ? x->d : x->e, mem + r->raw, out);
}

/* The same of row (g, t) of ATT_Q or ATT_DO. */
static void load_row(const struct prog_kern *k, const struct ref *r, char *const *ptr, int i, int64_t b, int64_t g, int64_t t, char *mem, double *out)
{
	const struct attention *x = &r->x;
	int64_t row, left, len = x->rows.n > 1 ? x->rows.len : x->t;
	char *base = attention_piece(k, ptr, x, i, b, g * x->t + t, &row, &left);
	load(k, i, row_at(k, x, i, base, row / len, row % len), 0, i == ATT_Q ? x->d : x->e, mem + r->raw, out);
}

/* Scores of row (g, t) of batch b, and what else the function gives, as f64. */
static void scores(const struct prog_kern *k, const struct ref *r, char *const *ptr, int64_t b, int64_t g, int64_t t, char *mem)
{
	const struct attention *x = &r->x;
	double *q = (double *)(mem + r->q), *kv = (double *)(mem + r->kv), *out[ATT_OUT] = { (double *)(mem + r->row) };
	int first = x->nout - x->ntally;
	load_row(k, r, ptr, ATT_Q, b, g, t, mem, q);
	for (int i = 1; i < x->nout; i++)
		out[i] = i >= first ? (double *)(mem + r->at) + (i - first) * x->s : (double *)(mem + (x->grad && i == 1 ? r->slope : r->weight));
	for (int64_t s0 = 0; s0 < x->s; s0 += KERN_STRIP) {
		int64_t n = MIN(KERN_STRIP, x->s - s0);
		for (int64_t j = 0; j < n; j++) {
			double sum = 0;
			load_key(k, r, ptr, ATT_K, b, s0 + j, mem, kv);
			for (int64_t i = 0; i < x->d; i++)
				sum += q[i] * kv[i];
			out[0][s0 + j] = sum;
		}
		const void **in = (const void **)(mem + r->in), *res[ATT_OUT];
		char *to = mem + r->in + sizeof *in * (size_t)(1 + x->nextra);
		to += -(uintptr_t)to & 63;
		kern_elem(ELEM_convert, DT_f64, x->sum)(n, to, out[0] + s0, NULL, NULL);
		in[0] = to;
		for (int i = 0; i < x->nextra; i++) {
			const struct prog_view *v = &k->v[x->first + i];
			int bytes = dt_bytes(v->dtype);
			int64_t step = v->dim[x->nb + 2] == 1 ? 0 : v->stride[x->nb + 2] * bytes;
			if (r->length[i]) {
				in[1 + i] = mem + r->table[i];
				if (!s0)
					move_strided(bytes, r->length[i], mem + r->table[i], bytes, attention_at(k, ptr, x, x->first + i, b), step);
				continue;
			}
			in[1 + i] = to += KERN_STRIP * 8;
			move_strided(bytes, n, to, bytes, row_at(k, x, x->first + i, attention_at(k, ptr, x, x->first + i, b), g, t) + s0 * step, step);
		}
		plan_run(x->fn, n, in, NULL, res, mem + r->fn);
		for (int i = 0; i < x->nout; i++)
			kern_elem(ELEM_convert, (enum dtype)x->fn->out_type[i], DT_f64)(n, out[i] + s0, res[i], NULL, NULL);
	}
}

static void run_ref(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr, int64_t t0, int64_t t1, void *scratch)
{
	const struct ref *r = s->priv;
	const struct attention *x = &r->x;
	char *mem = scratch;
	double *p = (double *)(mem + r->row), *w = (double *)(mem + r->weight), *o = (double *)(mem + r->o), *kv = (double *)(mem + r->kv);
	plan_start(x->fn, mem + r->fn);
	for (int64_t tile = t0; tile < t1; tile++) {
		int64_t t = tile % x->t, g = tile / x->t % x->g, b = tile / x->t / x->g;
		double most = -INFINITY, sum = 0, row[2];
		scores(k, r, ptr, b, g, t, mem);
		for (int64_t j = 0; j < x->s; j++)
			most = p[j] > most || isnan(p[j]) ? p[j] : most;
		for (int64_t j = 0; j < x->s; j++)
			sum += p[j] = most == -INFINITY ? 0 : exp(p[j] - most);
		memset(o, 0, sizeof *o * (size_t)x->e);
		for (int64_t j = 0; j < x->s; j++) {
			double f = p[j] / sum * (x->weighted ? w[j] : 1);
			if (p[j] == 0)
				continue;
			load_key(k, r, ptr, ATT_V, b, j, mem, kv);
			for (int64_t i = 0; i < x->e; i++)
				o[i] += f * kv[i];
		}
		row[0] = x->part || most == -INFINITY ? most : most + log(sum);
		row[1] = sum;
		char *to = row_at(k, x, k->nin, attention_at(k, ptr, x, k->nin, b), g, t);
		store(k, k->nin, to, x->e, mem + r->raw, o);
		for (int i = 1; i < k->nout - x->below; i++)
			kern_elem(ELEM_convert, DT_f64, (enum dtype)k->v[k->nin + i].dtype)(1, row_at(k, x, k->nin + i, attention_at(k, ptr, x, k->nin + i, b), g, t), &row[i - 1], NULL, NULL);
		if (x->below)
			store_below(k, to, row_at(k, x, k->nin + 2, attention_at(k, ptr, x, k->nin + 2, b), g, t), x->e, o);
	}
}

static double one(const struct prog_kern *k, const struct attention *x, char *const *ptr, int i, int64_t b, int64_t g, int64_t t)
{
	double v;
	kern_elem(ELEM_convert, (enum dtype)k->v[i].dtype, DT_f64)(1, &v, row_at(k, x, i, attention_at(k, ptr, x, i, b), g, t), NULL, NULL);
	return v;
}

static int64_t tally_length(const struct prog_kern *k, const struct attention *x, int i) { return k->v[k->nin + 3 + i].dim[x->nb + 2]; }

/* dx of a row's key j is added to what its indices name. */
static void tally(const struct prog_kern *k, const struct ref *r, int64_t j, double dx, char *mem)
{
	const struct attention *x = &r->x;
	const double *at = (const double *)(mem + r->at) + j;
	double *sum = (double *)(mem + r->tally);
	for (int i = 0; i < x->ntally; i++, at += x->s) {
		int64_t n = tally_length(k, x, i);
		if (*at >= 0 && *at < (double)n)
			sum[(int64_t)*at] += dx;
		sum += n;
	}
}

static void store_tallies(const struct prog_kern *k, const struct ref *r, char *const *ptr, int64_t b, char *mem)
{
	const double *sum = (const double *)(mem + r->tally);
	for (int i = 0; i < r->x.ntally; i++) {
		const struct prog_view *v = &k->v[k->nin + 3 + i];
		int64_t n = tally_length(k, &r->x, i);
		char *to = attention_at(k, ptr, &r->x, k->nin + 3 + i, b);
		for (int64_t j = 0; j < n; j++, to += v->stride[r->x.nb + 2] * dt_bytes(v->dtype))
			kern_elem(ELEM_convert, DT_f64, (enum dtype)v->dtype)(1, to, &sum[j], NULL, NULL);
		sum += n;
	}
}

static void run_ref_grad(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr, int64_t t0, int64_t t1, void *scratch)
{
	const struct ref *r = s->priv;
	const struct attention *x = &r->x;
	char *mem = scratch;
	double *p = (double *)(mem + r->row), *slope = (double *)(mem + r->slope), *w = (double *)(mem + r->weight), *q = (double *)(mem + r->q),
	       *dq = (double *)(mem + r->o), *d_o = (double *)(mem + r->d_o), *kv = (double *)(mem + r->kv);
	plan_start(x->fn, mem + r->fn);
	for (int64_t b = t0; b < t1; b++) {
		double *dk = (double *)(mem + r->acc), *dv = dk + x->s * x->d;
		memset(dk, 0, sizeof *dk * (size_t)(x->s * (x->d + x->e)));
		memset(mem + r->tally, 0, r->acc - r->tally);
		for (int64_t g = 0; g < x->g; g++)
			for (int64_t t = 0; t < x->t; t++) {
				double l = one(k, x, ptr, ATT_L, b, g, t), delta = one(k, x, ptr, ATT_DELTA, b, g, t);
				scores(k, r, ptr, b, g, t, mem);
				load_row(k, r, ptr, ATT_DO, b, g, t, mem, d_o);
				memset(dq, 0, sizeof *dq * (size_t)x->d);
				for (int64_t j = 0; j < x->s; j++) {
					double weight = x->weighted ? w[j] : 1, e = p[j] == -INFINITY ? 0 : exp(p[j] - l), y = 0;
					if (e == 0)
						continue;
					load_key(k, r, ptr, ATT_V, b, j, mem, kv);
					for (int64_t i = 0; i < x->e; i++) {
						y += d_o[i] * kv[i];
						dv[j * x->e + i] += e * weight * d_o[i];
					}
					double dx = e * (y * weight - delta) * slope[j];
					load_key(k, r, ptr, ATT_K, b, j, mem, kv);
					for (int64_t i = 0; i < x->d; i++) {
						dq[i] += dx * kv[i];
						dk[j * x->d + i] += dx * q[i];
					}
					tally(k, r, j, dx, mem);
				}
				char *to = row_at(k, x, k->nin, attention_at(k, ptr, x, k->nin, b), g, t);
				if (x->add)
					load(k, k->nin, to, 0, x->d, mem + r->raw, kv);
				for (int64_t i = 0; x->add && i < x->d; i++)
					dq[i] += kv[i];
				store(k, k->nin, to, x->d, mem + r->raw, dq);
			}
		for (int out = 1; out < 3; out++)
			for (int64_t j = 0; j < x->s; j++) {
				const struct prog_view *v = &k->v[k->nin + out];
				char *to = attention_at(k, ptr, x, k->nin + out, b) + j * v->stride[x->nb] * dt_bytes(v->dtype);
				int64_t n = out == 1 ? x->d : x->e;
				double *sum = out == 1 ? dk + j * n : dv + j * n;
				if (x->add)
					load(k, k->nin + out, to, 0, n, mem + r->raw, kv);
				for (int64_t i = 0; x->add && i < n; i++)
					sum[i] += kv[i];
				store(k, k->nin + out, to, n, mem + r->raw, sum);
			}
		store_tallies(k, r, ptr, b, mem);
	}
}

static size_t room(struct kern_state *s, int64_t bytes)
{
	size_t at = s->scratch;
	s->scratch += ((size_t)bytes + 63) & ~(size_t)63;
	return at;
}

static struct err *make(const struct prog_kern *k, struct kern_state *s)
{
	struct ref *r = ARENA_NEW(&s->a, struct ref, 1);
	TRY(attention_make(k, &s->a, &r->x));
	const struct attention *x = &r->x;
	if (x->grad ? attention_backward(k, x, s) : attention_forward(k, x, s))
		return NULL;
	int64_t wide = MAX(x->d, x->e) * 8;
	r->q = room(s, wide);
	r->o = room(s, wide);
	r->d_o = room(s, wide);
	r->kv = room(s, wide);
	r->raw = room(s, wide);
	r->row = room(s, x->s * 8);
	r->slope = room(s, x->grad ? x->s * 8 : 0);
	r->weight = room(s, x->weighted ? x->s * 8 : 0);
	r->in = room(s, (int64_t)sizeof(void *) * (1 + x->nextra) + 64 + (1 + x->nextra) * KERN_STRIP * 8);
	r->fn = room(s, (int64_t)x->fn->scratch);
	r->at = room(s, x->ntally * x->s * 8);
	int64_t sums = 0;
	for (int i = 0; i < x->ntally; i++)
		sums += tally_length(k, x, i);
	r->table = ARENA_NEW(&s->a, size_t, x->nextra + 1);
	r->length = ARENA_NEW(&s->a, int64_t, x->nextra + 1);
	for (int i = 0; i < x->nextra; i++) {
		r->length[i] = attention_table(k->expr, 1 + i);
		r->table[i] = room(s, r->length[i] * dt_bytes(k->v[x->first + i].dtype));
	}
	r->tally = room(s, sums * 8);
	r->acc = room(s, x->grad ? x->s * (x->d + x->e) * 8 : 0);
	s->tiles = x->grad ? x->batch : x->batch * x->g * x->t;
	s->run = x->grad ? run_ref_grad : run_ref;
	s->priv = r;
	return NULL;
}

struct err *kern_make_attention(const struct prog_kern *k, struct kern_state *s) { return make(k, s); }
struct err *kern_make_attention_grad_add(const struct prog_kern *k, struct kern_state *s) { return make(k, s); }
struct err *kern_make_attention_grad(const struct prog_kern *k, struct kern_state *s) { return make(k, s); }
