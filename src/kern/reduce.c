/* reduce.
 *
 * One operand and a known reduction: sums in the accumulator's type (f32 for smaller floats), either row by
 * row (a fixed tree, see FOLD in isa.h) or across a block of outputs with the rows of the reduced dimensions
 * added strip by strip; float sums across go by short runs, those of f32 into sums of f64, others through levels, so that errors do not
 * grow with their number.  Few outputs with many elements are cut into chunks of fixed size whose partial results a second phase
 * combines.
 *
 * Anything else (several operands, a combining expression) runs the expression over strips: across outputs,
 * or over lanes that hold neighbouring segments of one output's elements and are then combined in order, in
 * chunks as above, so the combining function need be associative only. */
#include <stdlib.h>

#include "impl.h"

enum { RUN = 16, ACROSS = 1024, FOLD_BUF = 4096, MAX_CHUNKS = 64, LANE_STEPS = 16 };

struct dims { int n; int64_t dim[LOOP_RANK], in[LOOP_RANK], out[LOOP_RANK]; };   /* strides in elements */

struct reduce {
	enum dtype dt, acc;
	int es, as, ps;              /* bytes of an element, of an accumulator, of a chunk's result */
	enum redop op;
	kern_strip *f, *load, *store;
	kern_strip *pf, *widen, *narrow;     /* for chunks' results; a sum's to and from a wider accumulator, NULL: they are no wider */
	kern_fold *fold;
	struct dims k, r;            /* kept, reduced; the last reduced one has the smallest stride */
	bool across, runs;
	int64_t nout, nred, w, nblock, rows, chunk, nchunk, per_tile;
	/* general */
	int nop;
	struct plan *p;
	struct dims *ko, *ro;        /* per operand */
	int lanes;
	int64_t units;
	size_t lane_bytes;
};

static void dims_add(struct dims *d, int64_t n, int64_t in, int64_t out)
{
	if (n == 1)
		return;
	int l = d->n - 1;
	if (l >= 0 && d->in[l] == in * n && d->out[l] == out * n) {
		d->dim[l] *= n;
		d->in[l] = in;
		d->out[l] = out;
		return;
	}
	d->dim[d->n] = n;
	d->in[d->n] = in;
	d->out[d->n++] = out;
}
static void dims_end(struct dims *d)
{
	if (!d->n) {
		d->dim[0] = 1;
		d->in[0] = d->out[0] = 0;
		d->n = 1;
	}
}
static int64_t dims_count(const struct dims *d)
{
	int64_t n = 1;
	for (int i = 0; i < d->n; i++)
		n *= d->dim[i];
	return n;
}

/* --- known reductions ---------------------------------------------------------- */

/* n <= FOLD_BUF accumulators in buf, which is spoilt. */
static void fold_buf(const struct reduce *q, int64_t n, char *buf, void *out)
{
	if (q->fold) {
		q->fold(n, buf, out);
		return;
	}
	while (n > 1) {
		int64_t m = (n + 1) / 2;
		q->f(n - m, buf, buf, buf + m * q->as, NULL);
		n = m;
	}
	memcpy(out, buf, (size_t)q->as);
}

/* Accumulators for n elements from src with stride (elements): src itself where it serves. */
static const char *load_row(const struct reduce *q, int64_t n, const char *src, int64_t stride, char *buf, char *raw)
{
	if (stride != 1 && n > 1) {
		char *to = q->load ? raw : buf;
		move_strided(q->es, n, to, q->es, src, stride * q->es);
		src = to;
	}
	if (!q->load)
		return src;
	q->load(n, buf, src, NULL, NULL);
	return buf;
}

/* Reduced elements of one output at base, outermost reduced index in [lo, hi). */
static void reduce_row(const struct reduce *q, const char *base, int64_t lo, int64_t hi, char *out, char *scratch)
{
	const struct dims *r = &q->r;
	if (r->n == 1 && r->in[0] == 1 && q->fold && !q->load) {
		q->fold(hi - lo, base + lo * q->es, out);
		return;
	}
	char *buf = scratch, *raw = buf + FOLD_BUF * 16, *part = raw + FOLD_BUF * 16;
	int64_t ix[LOOP_RANK] = { 0 }, npart = 0, rows = 1;
	int last = r->n - 1;
	int64_t n = last ? r->dim[last] : hi - lo;
	for (int d = 0; d < last; d++)
		rows *= d ? r->dim[d] : hi - lo;
	base += lo * r->in[0] * q->es;
	for (int64_t i = 0; i < rows; i++) {
		const char *row = base + offset_of(last, r->in, ix) * q->es;
		int64_t step = q->fold && !q->load && r->in[last] == 1 ? n : FOLD_BUF;
		for (int64_t j = 0; j < n; j += step) {
			int64_t m = MIN(n - j, step);
			const char *x = load_row(q, m, row + j * r->in[last] * q->es, r->in[last], buf, raw);
			if (q->fold) {
				q->fold(m, x, part + npart * q->as);
			} else {
				if (x != buf)
					memcpy(buf, x, (size_t)(m * q->as));
				fold_buf(q, m, buf, part + npart * q->as);
			}
			if (++npart == FOLD_BUF) {
				char t[16];
				fold_buf(q, npart, part, t);
				memcpy(part, t, (size_t)q->as);
				npart = 1;
			}
		}
		for (int d = last; d-- > 0;) {
			if (++ix[d] < (d ? r->dim[d] : hi - lo))
				break;
			ix[d] = 0;
		}
	}
	if (npart > 1)
		fold_buf(q, npart, part, out);
	else
		memcpy(out, part, (size_t)q->as);
}

/* n neighbouring outputs from base, across, to out as chunks' results are. */
static void reduce_across(const struct reduce *q, const char *base, int64_t n, int64_t stride, int64_t lo, int64_t hi,
                          char *out, char *scratch)
{
	const struct dims *r = &q->r;
	char *buf = scratch, *raw = buf + ACROSS * 16, *sum = raw + ACROSS * 16, *wide = sum + ACROSS * 16, *level = wide + ACROSS * 16;
	int64_t ix[LOOP_RANK] = { 0 }, rows = hi - lo, runs = 0, left = 0;
	for (int d = 1; d < r->n; d++)
		rows *= r->dim[d];
	int64_t run = q->runs ? MAX(4, MIN(RUN, rows / 8)) : rows;
	base += lo * r->in[0] * q->es;
	for (int64_t i = 0; i < rows; i++) {
		const char *x = load_row(q, n, base + offset_of(r->n, r->in, ix) * q->es, stride, buf, raw);
		if (left) {
			q->f(n, sum, sum, x, NULL);
		} else {
			memcpy(sum, x, (size_t)(n * q->as));
			left = run;
		}
		if (!--left || i == rows - 1) {
			if (q->widen) {
				q->widen(n, runs ? wide : out, sum, NULL, NULL);
				if (runs)
					q->pf(n, out, out, wide, NULL);
			} else if (q->runs) {
				if (sum_starts(runs))
					memcpy(level, sum, (size_t)(n * q->as));
				else
					q->f(n, level, level, sum, NULL);
				sum_carry(runs, q->f, n, q->as, level, (size_t)(n * q->as));
			}
			runs++;
			left = 0;
		}
		for (int d = r->n; d-- > 0;) {
			if (++ix[d] < (d ? r->dim[d] : hi - lo))
				break;
			ix[d] = 0;
		}
	}
	if (q->widen)
		return;
	if (q->runs) {
		sum_close(runs, q->f, n, q->as, level, (size_t)(n * q->as));
		sum = level;
	}
	memcpy(out, sum, (size_t)(n * q->as));
}

/* Initial value, rounding, and to the result. */
static void finish(const struct reduce *q, const struct prog_kern *k, char *const *ptr, int64_t n, char *acc, char *to, int64_t stride, char *scratch)
{
	char init[16], *wide = scratch, *small = wide + ACROSS * 16;
	const char *v = view_at(k, ptr, 1);
	if (q->load)
		q->load(1, init, v, NULL, NULL);
	else
		memcpy(init, v, (size_t)q->as);
	fill_bytes(q->as, n, wide, init);
	if (acc)
		q->f(n, wide, wide, acc, NULL);
	if (q->store) {
		q->store(n, small, wide, NULL, NULL);
		wide = small;
	}
	move_strided(q->es, n, to, stride * q->es, wide, q->es);
}

/* acc, as chunks' results are, as accumulators; in finish's scratch, behind what that uses. */
static char *narrowed(const struct reduce *q, int64_t n, char *acc, char *scratch)
{
	if (!q->narrow)
		return acc;
	q->narrow(n, scratch + 2 * ACROSS * 16, acc, NULL, NULL);
	return scratch + 2 * ACROSS * 16;
}

static void reduce_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                       int64_t t0, int64_t t1, void *scratch_)
{
	const struct reduce *q = s->priv;
	char *acc = scratch_, *scratch = acc + ACROSS * 16;
	int kl = q->k.n - 1;
	const char *in = view_at(k, ptr, 0);
	char *out = view_at(k, ptr, 2), *part = ptr[3];
	int64_t blocks = q->rows * q->nblock, ix[LOOP_RANK];
	int64_t units = phase == 0 ? blocks * q->nchunk : blocks;
	for (int64_t u = t0 * q->per_tile; u < MIN(t1 * q->per_tile, units); u++) {
		int64_t c = u / blocks, row = u % blocks / q->nblock, j0 = u % q->nblock * q->w;
		int64_t n = MIN(q->w, q->k.dim[kl] - j0);
		index_of(kl, q->k.dim, row, ix);
		char *to = out + (offset_of(kl, q->k.out, ix) + j0 * q->k.out[kl]) * q->es;
		int64_t lin = row * q->k.dim[kl] + j0;
		if (phase == 1) {
			memcpy(acc, part + lin * q->ps, (size_t)(n * q->ps));
			for (c = 1; c < q->nchunk; c++)
				q->pf(n, acc, acc, part + (c * q->nout + lin) * q->ps, NULL);
			finish(q, k, ptr, n, narrowed(q, n, acc, scratch), to, q->k.out[kl], scratch);
			continue;
		}
		if (!q->nred) {
			finish(q, k, ptr, n, NULL, to, q->k.out[kl], scratch);
			continue;
		}
		const char *base = in + (offset_of(kl, q->k.in, ix) + j0 * q->k.in[kl]) * q->es;
		int64_t lo = c * q->chunk, hi = MIN(lo + q->chunk, q->r.dim[0]);
		char *res = q->nchunk > 1 ? part + (c * q->nout + lin) * q->ps : acc;
		if (q->across)
			reduce_across(q, base, n, q->k.in[kl], lo, hi, res, scratch);
		else
			for (int64_t j = 0; j < n; j++)
				reduce_row(q, base + j * q->k.in[kl] * q->es, lo, hi, acc + j * q->as, scratch);
		if (q->nchunk == 1) {
			finish(q, k, ptr, n, q->across ? narrowed(q, n, acc, scratch) : acc, to, q->k.out[kl], scratch);
		} else if (!q->across && q->widen) {
			q->widen(n, res, acc, NULL, NULL);
		} else if (!q->across) {
			memcpy(res, acc, (size_t)(n * q->as));
		}
	}
}

/* --- expressions ------------------------------------------------------------------- */

struct lists { const void **in, **res; void **want; char **acc, **x, **turned; char *plan; };
static void lists_of(const struct reduce *q, char *scratch, int64_t w, struct lists *t)
{
	char *p = scratch;
	t->plan = p;
	p += (q->p->scratch + 63) & ~(size_t)63;
	t->in = (const void **)(void *)p;
	t->res = t->in + 2 * q->nop;
	t->want = (void **)(uintptr_t)(t->res + q->nop);
	t->acc = (char **)(t->want + q->nop);
	t->x = t->acc + q->nop;
	t->turned = t->x + q->nop;
	p += ((size_t)q->nop * 7 * sizeof(void *) + 63) & ~(size_t)63;
	for (int i = 0; i < q->nop; i++) {
		t->acc[i] = p;
		t->x[i] = p + w * 16;
		p += 2 * w * 16;
	}
	p += (size_t)q->nop * KERN_STRIP * 16;       /* see lane_bytes */
	for (int i = 0; i < q->nop; i++)
		t->turned[i] = p + (size_t)i * LANE_STEPS * KERN_STRIP * 16;
}

/* acc = f(acc, x) for n lanes */
static void combine(const struct reduce *q, const struct prog_kern *k, struct lists *t, int64_t n)
{
	for (int i = 0; i < q->nop; i++) {
		t->in[i] = t->acc[i];
		t->in[q->nop + i] = t->x[i];
	}
	plan_run(q->p, n, t->in, NULL, t->res, t->plan);
	/* outputs may be inputs: all are moved aside first where one is */
	for (int i = 0; i < q->nop; i++)
		if (t->res[i] != t->acc[i]) {
			int es = dt_bytes(k->v[i].dtype);
			bool input = false;
			for (int j = 0; j < q->nop; j++)
				input |= t->res[i] == t->acc[j] && j != i;
			if (input) {
				memcpy(t->plan + q->lane_bytes + (size_t)i * KERN_STRIP * 16, t->res[i], (size_t)(n * es));
				t->res[i] = t->plan + q->lane_bytes + (size_t)i * KERN_STRIP * 16;
			}
		}
	for (int i = 0; i < q->nop; i++)
		if (t->res[i] != t->acc[i])
			memmove(t->acc[i], t->res[i], (size_t)(n * dt_bytes(k->v[i].dtype)));
}

/* Steps step .. step + m of all L lanes of operand i, as m strips of L elements. */
static void lanes_load(const struct reduce *q, int es, int i, const char *src, int64_t step, int64_t m, int64_t L, int64_t seg, int64_t rem, char *to)
{
	int last = q->ro->n - 1;
	int64_t st = q->ro[i].in[last] * es;
	src += step * st;
	if (q->ro[i].in[last] == 1 && es <= 8 && m > 1) {
		const struct kern_isa *isa = kern_isa_get();
		int w = es == 1 ? 0 : es == 2 ? 1 : es == 4 ? 2 : 3;
		isa->transpose[w](rem, m, src, seg + 1, to, L);
		isa->transpose[w](L - rem, m, src + rem * (seg + 1) * es, seg, to + rem * es, L);
		return;
	}
	for (int64_t j = 0; j < m; j++, src += st, to += L * es) {
		move_strided(es, rem, to, es, src, (seg + 1) * st);
		move_strided(es, L - rem, to + rem * es, es, src + rem * (seg + 1) * st, seg * st);
	}
}

/* One output over lanes, n0 positions of the outermost reduced dimension: the result is in total. */
static void reduce_lanes(const struct reduce *q, const struct prog_kern *k, struct lists *t, char *const *base, int64_t n0, char *total)
{
	const struct dims *r = q->ro;
	int last = r->n - 1;
	int64_t dim[LOOP_RANK], ix[LOOP_RANK] = { 0 };
	memcpy(dim, r->dim, sizeof *dim * (size_t)r->n);
	dim[0] = n0;
	int64_t n = dim[last], L = MIN(q->lanes, n), seg = n / L, rem = n % L;
	bool first = true;
	do {
		/* lanes below rem have one element more than seg */
		char *x[64];
		memcpy(x, t->x, sizeof *x * (size_t)q->nop);
		for (int64_t step = 0; step < seg; step += LANE_STEPS) {
			int64_t m = MIN(LANE_STEPS, seg - step);
			for (int i = 0; i < q->nop; i++)
				lanes_load(q, dt_bytes(k->v[i].dtype), i, base[i] + offset_of(last, q->ro[i].in, ix) * dt_bytes(k->v[i].dtype),
				           step, m, L, seg, rem, t->turned[i]);
			for (int64_t j = 0; j < m; j++) {
				for (int i = 0; i < q->nop; i++) {
					int es = dt_bytes(k->v[i].dtype);
					t->x[i] = t->turned[i] + j * L * es;
					if (!step && !j)
						memcpy(t->acc[i], t->x[i], (size_t)(L * es));
				}
				if (step || j)
					combine(q, k, t, L);
			}
		}
		memcpy(t->x, x, sizeof *x * (size_t)q->nop);
		if (rem) {
			for (int i = 0; i < q->nop; i++) {
				int es = dt_bytes(k->v[i].dtype);
				int64_t st = q->ro[i].in[last] * es;
				move_strided(es, rem, t->x[i], es, base[i] + offset_of(last, q->ro[i].in, ix) * es + seg * st, (seg + 1) * st);
			}
			combine(q, k, t, rem);
		}
		for (int64_t w = L; w > 1; w = (w + 1) / 2) {
			/* neighbours: evens with odds; an odd one out stays last */
			for (int i = 0; i < q->nop; i++) {
				int es = dt_bytes(k->v[i].dtype);
				char keep[16];
				memcpy(keep, t->acc[i] + (w - 1) * es, (size_t)es);
				move_strided(es, w / 2, t->x[i], es, t->acc[i] + es, 2 * es);
				for (int64_t j = 1; j < (w + 1) / 2; j++)
					memcpy(t->acc[i] + j * es, t->acc[i] + 2 * j * es, (size_t)es);
				if (w & 1)
					memcpy(t->acc[i] + (w / 2) * es, keep, (size_t)es);
			}
			combine(q, k, t, w / 2);
		}
		for (int i = 0; i < q->nop; i++) {
			int es = dt_bytes(k->v[i].dtype);
			if (!first) {
				memcpy(t->x[i], t->acc[i], (size_t)es);
				memcpy(t->acc[i], total + i * 16, (size_t)es);
			}
		}
		if (!first)
			combine(q, k, t, 1);
		for (int i = 0; i < q->nop; i++)
			memcpy(total + i * 16, t->acc[i], (size_t)dt_bytes(k->v[i].dtype));
		first = false;
	} while (index_next(last, dim, ix));
}

static void general_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                        int64_t t0, int64_t t1, void *scratch_)
{
	const struct reduce *q = s->priv;
	int kl = q->ko->n - 1, nop = q->nop;
	struct lists t;
	lists_of(q, scratch_, KERN_STRIP, &t);
	plan_start(q->p, t.plan);
	char *base[64], total[64 * 16];
	int64_t blocks = q->rows * q->nblock, units = phase == 0 ? blocks * q->nchunk : blocks, ix[LOOP_RANK], rx[LOOP_RANK];
	for (int64_t u = t0 * q->per_tile; u < MIN(t1 * q->per_tile, units); u++) {
		int64_t c = u / blocks, row = u % blocks / q->nblock, j0 = u % q->nblock * q->w, n = MIN(q->w, q->ko->dim[kl] - j0);
		index_of(kl, q->ko->dim, row, ix);
		for (int i = 0; i < nop; i++) {
			int es = dt_bytes(k->v[i].dtype);
			base[i] = view_at(k, ptr, i) + (offset_of(kl, q->ko[i].in, ix) + j0 * q->ko[i].in[kl] + c * q->chunk * q->ro[i].in[0]) * es;
		}
		if (q->lanes) {
			char *part = q->nchunk > 1 ? ptr[3 * nop] + (row * q->nblock + u % q->nblock) * q->nchunk * nop * 16 : total;
			if (phase == 0)
				reduce_lanes(q, k, &t, base, MIN(q->chunk, q->ro->dim[0] - c * q->chunk), part + c * nop * 16);
			if (phase + 1 < s->phases)
				continue;
			for (int i = 0; i < nop; i++)
				memcpy(t.acc[i], view_at(k, ptr, nop + i), (size_t)dt_bytes(k->v[i].dtype));
			for (c = 0; c < q->nchunk; c++) {
				for (int i = 0; i < nop; i++)
					memcpy(t.x[i], part + (c * nop + i) * 16, (size_t)dt_bytes(k->v[i].dtype));
				combine(q, k, &t, 1);
			}
		} else {
			for (int i = 0; i < nop; i++)
				fill_bytes(dt_bytes(k->v[i].dtype), n, t.acc[i], view_at(k, ptr, nop + i));
			memset(rx, 0, sizeof rx);
			if (q->nred)
				do {
					for (int i = 0; i < nop; i++) {
						int es = dt_bytes(k->v[i].dtype);
						move_strided(es, n, t.x[i], es, base[i] + offset_of(q->ro->n, q->ro[i].in, rx) * es, q->ko[i].in[kl] * es);
					}
					combine(q, k, &t, n);
				} while (index_next(q->ro->n, q->ro->dim, rx));
		}
		for (int i = 0; i < nop; i++) {
			int es = dt_bytes(k->v[i].dtype);
			char *to = view_at(k, ptr, 2 * nop + i) + (offset_of(kl, q->ko[i].out, ix) + j0 * q->ko[i].out[kl]) * es;
			move_strided(es, n, to, q->ko[i].out[kl] * es, t.acc[i], es);
		}
	}
}

/* --- preparation -------------------------------------------------------------------- */

struct prog_expr *redop_expr(struct arena *a, enum redop op, enum dtype dt)
{
	struct prog_expr *e = ARENA_NEW(a, struct prog_expr, 1);
	e->nin = 2;
	e->n = e->nout = 1;
	e->in_type = ARENA_NEW(a, uint8_t, 2);
	e->in_type[0] = e->in_type[1] = (uint8_t)dt;
	e->ins = ARENA_NEW(a, struct prog_ins, 1);
	e->ins[0].fn = (uint16_t)redop_elem[op];
	e->ins[0].from = e->ins[0].to = (uint8_t)dt;
	e->ins[0].src[1] = 1;
	e->out = ARENA_NEW(a, uint16_t, 1);
	e->out[0] = 2;
	return e;
}

enum dtype acc_type(enum dtype dt)
{
	return dtype_info[dt].cls == DT_FLOAT && dtype_info[dt].bits <= 16 ? DT_f32 : dt;
}

/* Does a dimension of stride b belong outside one of stride a?  Repeated elements (0) go outermost. */
static bool falls(int64_t a, int64_t b) { return a && (!b || llabs(a) < llabs(b)); }

static struct err *make_known(const struct prog_kern *k, struct kern_state *s, struct reduce *q, const uint8_t *red)
{
	const struct prog_view *in = &k->v[0], *out = &k->v[2];
	q->dt = in->dtype;
	q->acc = acc_type(q->dt);
	q->es = dt_bytes(q->dt);
	q->as = dt_bytes(q->acc);
	q->f = kern_elem(redop_elem[q->op], q->acc, q->acc);
	if (!q->f)
		return ERR(UNIMPLEMENTED, "reduce '%s' of '%s'", redop_name[q->op], dtype_info[q->dt].name);
	if (q->acc != q->dt) {
		q->load = kern_elem(ELEM_convert, q->dt, q->acc);
		q->store = kern_elem(ELEM_convert, q->acc, q->dt);
	}
	enum nat nat = kern_nat(q->acc);
	q->fold = nat < NAT_COUNT ? kern_isa_get()->fold[q->op][nat] : NULL;
	q->runs = q->op == RED_add && (dtype_info[q->acc].cls == DT_FLOAT || dtype_info[q->acc].cls == DT_COMPLEX);
	enum dtype wide = q->runs && q->dt == DT_f32 ? DT_f64 : q->runs && q->dt == DT_c64 ? DT_c128 : q->acc;
	q->ps = dt_bytes(wide);
	q->pf = kern_elem(redop_elem[q->op], wide, wide);
	if (wide != q->acc) {
		q->widen = kern_elem(ELEM_convert, q->acc, wide);
		q->narrow = kern_elem(ELEM_convert, wide, q->acc);
	}
	/* dimensions by falling stride of the operand: the order of adding, and of outputs, is ours */
	int ord[LOOP_RANK], to[LOOP_RANK], ko = 0;
	for (int d = 0; d < in->rank; d++) {
		to[d] = red[d] ? -1 : ko++;
		int j = d;
		for (; j > 0 && falls(in->stride[ord[j - 1]], in->stride[d]); j--)
			ord[j] = ord[j - 1];
		ord[j] = d;
	}
	for (int i = 0; i < in->rank; i++) {
		int d = ord[i];
		if (red[d])
			dims_add(&q->r, in->dim[d], in->stride[d], in->stride[d]);
		else
			dims_add(&q->k, in->dim[d], in->stride[d], out->stride[to[d]]);
	}
	dims_end(&q->k);
	dims_end(&q->r);
	q->nout = dims_count(&q->k);
	q->nred = dims_count(&q->r);
	int kl = q->k.n - 1, rl = q->r.n - 1;
	int64_t ks = llabs(q->k.in[kl]), rs = llabs(q->r.in[rl]);
	q->across = q->k.dim[kl] >= 16 && ((ks && ks < rs) || q->nred < 32 || (q->r.dim[rl] < 8 && q->k.dim[kl] >= 64));
	q->w = q->across ? ACROSS : MAX(1, MIN(256, 65536 / MAX(1, q->nred)));
	q->w = MIN(q->w, MAX(1, q->k.dim[kl]));
	q->nblock = (q->k.dim[kl] + q->w - 1) / q->w;
	q->rows = q->k.dim[kl] ? q->nout / q->k.dim[kl] : 0;
	/* chunks of the outermost reduced dimension, by shape alone */
	q->chunk = q->r.dim[0];
	q->nchunk = 1;
	int64_t blocks = q->rows * q->nblock, total = q->nout * q->nred;
	if (blocks && blocks < 16 && total >= 1 << 18) {
		int64_t want = MIN(MAX_CHUNKS, MAX(1, total >> 16)), align = q->r.n == 1 && !q->across ? FOLD_BUF : 1;
		int64_t c = (q->r.dim[0] + want - 1) / want;
		q->chunk = (c + align - 1) / align * align;
		q->nchunk = (q->r.dim[0] + q->chunk - 1) / q->chunk;
	}
	int64_t units = blocks * q->nchunk;
	q->per_tile = MAX(1, 65536 / MAX(1, units ? total / units : 1));
	s->tiles = (units + q->per_tile - 1) / q->per_tile;
	s->phases = q->nchunk > 1 ? 2 : 1;
	s->shared = q->nchunk > 1 ? (size_t)(q->nchunk * q->nout * q->ps) : 0;
	int levels = q->across && q->runs && !q->widen ? sum_levels(q->nred) : 0;
	s->scratch = ACROSS * 16 + MAX(3 * FOLD_BUF, (4 + levels) * ACROSS) * 16;
	s->run = reduce_run;
	return NULL;
}

struct err *kern_make_reduce(const struct prog_kern *k, struct kern_state *s)
{
	struct reduce *q = ARENA_NEW(&s->a, struct reduce, 1);
	int nd = (int)k->attr[0], nop = k->nin / 2, rank = k->v[0].rank;
	uint8_t red[LOOP_RANK] = { 0 };
	for (int i = 0; i < nd; i++) {
		if (k->attr[1 + i] < 0 || k->attr[1 + i] >= rank)
			return ERR(INVALID, "reduce over dimension %lld of %d", (long long)k->attr[1 + i], rank);
		red[k->attr[1 + i]] = 1;
	}
	q->op = (enum redop)k->attr[1 + nd];
	q->nop = nop;
	s->priv = q;
	if (nop == 1 && q->op != RED_fn && q->op != RED_lse)
		return make_known(k, s, q, red);
	if (q->op != RED_fn || !k->expr)
		return ERR(UNIMPLEMENTED, "reduce '%s' of %d operands", redop_name[q->op], nop);
	if (nop > 64 || k->expr->nin != 2 * nop || k->expr->nout != nop)
		return ERR(INVALID, "reduce of %d operands with an expression of %d inputs", nop, k->expr->nin);
	TRY(plan_make(&s->a, k->expr, &q->p));
	/* merging must be possible for all operands alike: kept as it is where it is not */
	q->ko = ARENA_NEW(&s->a, struct dims, nop);
	q->ro = ARENA_NEW(&s->a, struct dims, nop);
	/* kept dimensions by falling stride; reduced ones keep their order, which the function may notice */
	int ord[LOOP_RANK], to[LOOP_RANK], nkept = 0;
	for (int d = 0; d < rank; d++) {
		to[d] = red[d] ? -1 : nkept++;
		int j = d;
		for (; j > 0 && !red[d] && (red[ord[j - 1]] || falls(k->v[0].stride[ord[j - 1]], k->v[0].stride[d])); j--)
			ord[j] = ord[j - 1];
		ord[j] = d;
	}
	for (int at_ = 0; at_ < rank; at_++) {
		int d = ord[at_], ko = to[d];
		int64_t n = k->v[0].dim[d];
		struct dims *set = red[d] ? q->ro : q->ko;
		int l = set->n - 1;
		bool merge = l >= 0;
		for (int i = 0; i < nop && merge; i++) {
			merge = set[i].in[l] == k->v[i].stride[d] * n;
			if (!red[d])
				merge &= set[i].out[l] == k->v[2 * nop + i].stride[ko] * n;
		}
		for (int i = 0; i < nop; i++) {
			int at = merge ? l : set[i].n++;
			set[i].dim[at] = merge ? set[i].dim[at] * n : n;
			set[i].in[at] = k->v[i].stride[d];
			set[i].out[at] = red[d] ? 0 : k->v[2 * nop + i].stride[ko];
		}
	}
	for (int i = 0; i < nop; i++) {
		dims_end(&q->ko[i]);
		dims_end(&q->ro[i]);
	}
	q->nout = dims_count(q->ko);
	q->nred = dims_count(q->ro);
	int kl = q->ko->n - 1, rl = q->ro->n - 1;
	bool inner = llabs(q->ro->in[rl]) < llabs(q->ko->in[kl]) || q->ko->dim[kl] < 16;
	/* a function that rounds to few bits each time gives much of its error by the order: that of the elements */
	bool in_order = nop == 1 && dtype_info[k->v[0].dtype].cls == DT_FLOAT && dtype_info[k->v[0].dtype].bits <= 16;
	q->lanes = q->nred && inner && !in_order && q->ro->dim[rl] >= 32 ? (int)MAX(16, MIN(KERN_STRIP, q->ro->dim[rl] / 16)) : 0;
	q->w = q->lanes ? 1 : KERN_STRIP;
	q->nblock = (q->ko->dim[kl] + q->w - 1) / q->w;
	q->rows = q->ko->dim[kl] ? q->nout / q->ko->dim[kl] : 0;
	q->chunk = q->ro->dim[0];
	q->nchunk = 1;
	int64_t blocks = q->rows * q->nblock, total = q->nout * q->nred;
	if (q->lanes && blocks && blocks < 16 && total >= 1 << 18) {
		int64_t want = MIN(MAX_CHUNKS, total >> 16);
		q->chunk = (q->ro->dim[0] + want - 1) / want;
		q->nchunk = (q->ro->dim[0] + q->chunk - 1) / q->chunk;
	}
	int64_t units = blocks * q->nchunk;
	q->per_tile = q->nchunk > 1 ? 1 : MAX(1, 32768 / MAX(1, q->nred * q->w));
	s->phases = q->nchunk > 1 ? 2 : 1;
	s->shared = q->nchunk > 1 ? (size_t)(units * nop) * 16 : 0;
	s->tiles = (units + q->per_tile - 1) / q->per_tile;
	size_t lists = ((q->p->scratch + 63) & ~(size_t)63) + (((size_t)nop * 7 * sizeof(void *) + 63) & ~(size_t)63);
	q->lane_bytes = lists + (size_t)nop * 2 * KERN_STRIP * 16;
	s->scratch = q->lane_bytes + (size_t)nop * KERN_STRIP * 16 * (q->lanes ? 1 + LANE_STEPS : 1);
	s->run = general_run;
	return NULL;
}
