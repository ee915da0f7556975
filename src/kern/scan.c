/* cumulative: inclusive scans.
 *
 * Along a dimension that is not the densest, rows of outputs are carried forward strip by strip.  So they are along the densest one if it is short
 * or there are many rows, of which a few are transposed, a chunk of positions at a time; else a block of the row is laid out as LANES columns
 * (transposed), scanned across, its column totals scanned, and the offsets combined in.  A few long rows are cut into blocks that a second phase joins.  What comes before
 * a block of a long scan is added up in levels, and of f32 in f64, and then to each of its elements: errors do not grow with the
 * distance. */
#include <stdlib.h>

#include "impl.h"

enum { LANES = 64, STEPS = 64, BLOCK = LANES * STEPS, GROUP = 4 * BLOCK, WIDE = 512, DEEP = 12, FAR = 1024, ROWS = 64, ROWS_F32 = 16,
       CHUNK = 64, TURNED = 8192, SHORT = 64, FEW = 16, MANY = 512 };

struct scan {
	enum dtype dt, acc;
	int es, as, ws, rank, dim, lane;
	bool reverse, across, split, exact;  /* exact: in whatever order it is combined */
	kern_strip *f, *load, *store;
	kern_strip *fw, *widen, *narrow;     /* of what comes before a block; NULL: it is of the accumulator's type */
	int64_t n, rows, width, nblock, per_tile;
	int64_t ext[LOOP_RANK], in_stride[LOOP_RANK], out_stride[LOOP_RANK];     /* neighbours that both go through evenly are one */
	int64_t in_step, out_step;   /* along dim, in scan order, elements */
	int64_t wide, chunk;         /* across: lanes of a block; positions that are transposed at a time, 0: none are */
	char init[16], init_wide[16];        /* what a scan begins with */
	int run, levels;             /* across: rows after which a sum begins anew, levels of what comes before; 0: there are none */
};

static void load(const struct scan *q, int64_t n, char *out, const char *src, int64_t stride, char *raw)
{
	char *to = q->load ? raw : out;
	move_strided(q->es, n, to, q->es, src, stride * q->es);
	if (q->load)
		q->load(n, out, raw, NULL, NULL);
}

/* m positions of n lanes, from the first one in memory on, to rows of n elements, and back. */
static void turn(const struct scan *q, int64_t n, int64_t m, const char *in, int64_t stride, char *rows)
{
	kern_isa_get()->transpose[q->es == 1 ? 0 : q->es == 2 ? 1 : q->es == 4 ? 2 : 3](n, m, in, stride, rows, n);
}
static void turn_back(const struct scan *q, int64_t n, int64_t m, const char *rows, char *out, int64_t stride)
{
	kern_isa_get()->transpose[q->es == 1 ? 0 : q->es == 2 ? 1 : q->es == 4 ? 2 : 3](m, n, rows, n, out, stride);
}
static void store(const struct scan *q, int64_t n, const char *acc, char *to, int64_t stride, char *raw)
{
	if (q->store) {
		q->store(n, raw, acc, NULL, NULL);
		acc = raw;
	}
	move_strided(q->es, n, to, stride * q->es, acc, q->es);
}

/* Accumulators from what comes before, n of them. */
static void narrow(const struct scan *q, int64_t n, char *to, const char *wide)
{
	if (q->narrow)
		q->narrow(n, to, wide, NULL, NULL);
	else
		memcpy(to, wide, (size_t)(n * q->as));
}
static void widen(const struct scan *q, int64_t n, char *to, const char *x)
{
	if (q->widen)
		q->widen(n, to, x, NULL, NULL);
	else
		memcpy(to, x, (size_t)(n * q->as));
}

/* n < 4 * LANES accumulators of x scanned behind carry, one by one unless the order does not matter. */
static void scan_few(const struct scan *q, int64_t n, char *x, char *carry)
{
	if (q->widen && q->as == 4) {
		double sum;
		float *f = (float *)x;
		memcpy(&sum, carry, sizeof sum);
		for (int64_t i = 0; i < n; i++)
			f[i] = (float)(sum += (double)f[i]);
		memcpy(carry, &sum, sizeof sum);
		return;
	}
	if (q->exact && n > 1) {             /* what is so far is combined with what is as far before it, twice as far each time */
		char to[4 * LANES * 16];
		q->f(1, x, carry, x, NULL);
		for (int64_t far = 1; far < n; far *= 2) {
			q->f(n - far, to, x, x + far * q->as, NULL);
			memcpy(x + far * q->as, to, (size_t)((n - far) * q->as));
		}
		memcpy(carry, x + (n - 1) * q->as, (size_t)q->as);
		return;
	}
	char one[16];
	for (int64_t i = 0; i < n; i++) {
		widen(q, 1, one, x + i * q->as);
		q->fw(1, carry, carry, one, NULL);
		narrow(q, 1, x + i * q->as, carry);
	}
}

/* n <= BLOCK accumulators of x scanned in place behind carry, which then has the last value. */
static void scan_block(const struct scan *q, int64_t n, char *x, char *t, char *carry)
{
	int as = q->as;
	int64_t steps = n / LANES, done = 0;
	if (steps >= 4 && as <= 8) {
		const struct kern_isa *isa = kern_isa_get();
		int w = as == 1 ? 0 : as == 2 ? 1 : as == 4 ? 2 : 3;
		/* column j holds x[j * steps ..] */
		isa->transpose[w](LANES, steps, x, steps, t, LANES);
		for (int64_t i = 1; i < steps; i++)
			q->f(LANES, t + i * LANES * as, t + (i - 1) * LANES * as, t + i * LANES * as, NULL);
		char off[(LANES + 1) * 8];       /* what comes before each column, and before what is left */
		narrow(q, 1, off, carry);
		memcpy(off + as, t + (steps - 1) * LANES * as, (size_t)(LANES * as));
		scan_few(q, LANES, off + as, carry);
		for (int64_t i = 0; i < steps; i++)
			q->f(LANES, t + i * LANES * as, off, t + i * LANES * as, NULL);
		isa->transpose[w](steps, LANES, t, LANES, x, steps);
		done = steps * LANES;
	}
	scan_few(q, n - done, x + done * as, carry);
}

/* What the blocks so far add up to. */
struct before { int64_t n; char level[DEEP][16]; };
static void before_add(const struct scan *q, struct before *b, const char *x)
{
	if (sum_starts(b->n))
		memcpy(b->level[0], x, (size_t)q->ws);
	else
		q->fw(1, b->level[0], b->level[0], x, NULL);
	sum_carry(b->n++, q->fw, 1, q->ws, b->level[0], 16);
}
static void before_sum(const struct scan *q, struct before b, char *out)
{
	sum_close(b.n, q->fw, 1, q->ws, b.level[0], 16);
	memcpy(out, b.level[0], (size_t)q->ws);
}

/* n columns from in to out, a row after the other; scratch: see kern_make_cumulative. */
static void scan_columns(const struct scan *q, int64_t n, const char *in, int64_t is, char *out, int64_t os, char *scratch)
{
	enum { ROW = WIDE * 16 };
	char *x = scratch, *t = x + ROW, *raw = t + ROW, *base = raw + ROW, *wide = base + ROW, *level = wide + ROW, *sum = level + q->levels * ROW,
	     *turned = level + 2 * q->levels * ROW;
	const char *acc = x;          /* the row before, or what a sum begins with */
	bool direct = !q->load && (q->chunk || (is == 1 && os == 1));
	bool down = q->in_step < 0;      /* of a chunk: both views, from the last position in memory on */
	for (int64_t i = 0; i < q->n; i++) {
		const char *from = in + i * q->in_step * q->es;
		char *to = out + i * q->out_step * q->es, *back = to;
		int64_t j = q->chunk ? i % q->chunk : 0, m = MIN(q->chunk, q->n - i + j), ts = os;
		if (q->chunk) {
			if (!j)
				turn(q, n, m, down ? from - (m - 1) * q->es : from, is, turned);
			back = down ? to : to - j * q->es;
			from = to = turned + (down ? m - 1 - j : j) * n * q->es;
			ts = 1;
		}
		bool starts = q->run ? i % q->run == 0 : !i, behind = q->run && i >= q->run;
		if (starts && i) {
			int64_t b = i / q->run - 1;
			widen(q, n, wide, acc);
			if (sum_starts(b) && (!b || !q->widen))
				memcpy(level, wide, (size_t)(n * q->ws));
			else
				q->fw(n, level, level, wide, NULL);
			if (!q->widen) {
				sum_carry(b, q->f, n, q->as, level, ROW);
				memcpy(sum, level, (size_t)q->levels * ROW);
				sum_close(b + 1, q->f, n, q->as, sum, ROW);
			}
			narrow(q, n, base, q->widen ? level : sum);
		}
		if (starts) {
			fill_bytes(q->as, n, x, q->init);
			acc = x;
		}
		if (!direct) {
			load(q, n, t, from, q->chunk ? 1 : is, raw);
			q->f(n, x, x, t, NULL);
			if (behind)
				q->f(n, t, base, x, NULL);
			store(q, n, behind ? t : x, to, ts, raw);
		} else if (behind) {
			q->f(n, x, acc, from, NULL);
			q->f(n, to, base, x, NULL);
			acc = x;
		} else {
			q->f(n, to, acc, from, NULL);
			acc = to;
		}
		if (q->chunk && j == m - 1) {
			if (acc != x && i + 1 < q->n)
				memcpy(x, acc, (size_t)(n * q->as));
			acc = x;
			turn_back(q, n, m, turned, back, os);
		}
	}
}

static void row_of(const struct scan *q, int64_t row, int64_t *in, int64_t *out)
{
	*in = *out = 0;
	for (int d = q->rank; d-- > 0;) {
		if (d == q->dim || d == q->lane)
			continue;
		int64_t i = row % q->ext[d];
		row /= q->ext[d];
		*in += i * q->in_stride[d];
		*out += i * q->out_stride[d];
	}
	if (q->reverse) {
		*in += (q->n - 1) * q->in_stride[q->dim];
		*out += (q->n - 1) * q->out_stride[q->dim];
	}
}

static void scan_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                     int64_t t0, int64_t t1, void *scratch)
{
	const struct scan *q = s->priv;
	char *x = scratch, *t = x + BLOCK * 16, *raw = t + BLOCK * 16;
	const char *in = view_at(k, ptr, 0);
	char *out = view_at(k, ptr, 1), *total = ptr[2];
	int64_t io, oo, es = q->es;
	struct before before = { 0 };
	for (int64_t u = t0 * q->per_tile; u < MIN(t1 * q->per_tile, q->rows * q->nblock); u++) {
		if (q->across) {
			int64_t c0 = u % q->nblock * q->wide, n = MIN(q->wide, q->width - c0);
			row_of(q, u / q->nblock, &io, &oo);
			int64_t is = q->in_stride[q->lane], os = q->out_stride[q->lane];
			scan_columns(q, n, in + (io + c0 * is) * es, is, out + (oo + c0 * os) * es, os, scratch);
			continue;
		}
		row_of(q, u / q->nblock, &io, &oo);
		int64_t b = u % q->nblock, lo = q->split ? b * GROUP : 0, hi = q->split ? MIN(lo + GROUP, q->n) : q->n;
		char carry[16], base[16];
		if (phase == 1) {
			if (!b) {
				before.n = 0;         /* another row */
				continue;
			}
			const char *tb = total + u / q->nblock * q->nblock * q->ws;
			while (before.n < b)
				before_add(q, &before, tb + before.n * q->ws);
			before_sum(q, before, carry);
			narrow(q, 1, base, carry);
			for (int64_t i = lo; i < hi; i += BLOCK) {
				int64_t m = MIN(BLOCK, hi - i);
				load(q, m, x, out + (oo + i * q->out_step) * es, q->out_step, raw);
				fill_bytes(q->as, m, t, base);
				q->f(m, x, t, x, NULL);
				store(q, m, x, out + (oo + i * q->out_step) * es, q->out_step, raw);
			}
			continue;
		}
		before.n = 0;
		memcpy(carry, q->init_wide, sizeof carry);
		for (int64_t i = lo; i < hi; i += BLOCK) {
			int64_t m = MIN(BLOCK, hi - i);
			if (i > lo && (i - lo) % GROUP == 0) {
				char sum[16];
				before_add(q, &before, carry);
				before_sum(q, before, sum);
				narrow(q, 1, base, sum);
				memcpy(carry, q->init_wide, sizeof carry);
			}
			load(q, m, x, in + (io + i * q->in_step) * es, q->in_step, raw);
			scan_block(q, m, x, t, carry);
			if (before.n) {
				fill_bytes(q->as, m, t, base);
				q->f(m, x, t, x, NULL);
			}
			store(q, m, x, out + (oo + i * q->out_step) * es, q->out_step, raw);
		}
		if (q->split)
			memcpy(total + u * q->ws, carry, (size_t)q->ws);
	}
}

struct err *kern_make_cumulative(const struct prog_kern *k, struct kern_state *s)
{
	struct scan *q = ARENA_NEW(&s->a, struct scan, 1);
	const struct prog_view *in = &k->v[0], *out = &k->v[1];
	q->dt = in->dtype;
	q->acc = acc_type(q->dt);
	q->es = dt_bytes(q->dt);
	q->as = dt_bytes(q->acc);
	q->reverse = k->attr[1] != 0;
	enum redop r = (enum redop)k->attr[2];
	if (k->attr[0] < 0 || k->attr[0] >= in->rank)
		return ERR(INVALID, "cumulative along dimension %d of %d", (int)k->attr[0], in->rank);
	q->f = r < RED_COUNT && redop_elem[r] < ELEM_COUNT ? kern_elem(redop_elem[r], q->acc, q->acc) : NULL;
	if (!q->f)
		return ERR(UNIMPLEMENTED, "cumulative '%s' of '%s'", redop_name[r], dtype_info[q->dt].name);
	enum dtype wide = r != RED_add ? q->acc : q->dt == DT_f32 ? DT_f64 : q->dt == DT_c64 ? DT_c128 : q->acc;
	q->ws = dt_bytes(wide);
	q->fw = kern_elem(redop_elem[r], wide, wide);
	if (wide != q->acc) {
		q->widen = kern_elem(ELEM_convert, q->acc, wide);
		q->narrow = kern_elem(ELEM_convert, wide, q->acc);
	}
	q->exact = (r != RED_add && r != RED_mul) || (dtype_info[q->acc].cls != DT_FLOAT && dtype_info[q->acc].cls != DT_COMPLEX);
	kern_identity(r, q->acc, q->init);
	kern_identity(r, wide, q->init_wide);
	if (q->acc != q->dt) {
		q->load = kern_elem(ELEM_convert, q->dt, q->acc);
		q->store = kern_elem(ELEM_convert, q->acc, q->dt);
	}
	q->dim = -1;
	for (int d = 0; d < in->rank; d++) {
		int l = q->rank - 1;
		if (d == k->attr[0])
			q->dim = q->rank;
		else if (in->dim[d] == 1)
			continue;
		else if (l >= 0 && l != q->dim && q->in_stride[l] == in->stride[d] * in->dim[d] && q->out_stride[l] == out->stride[d] * in->dim[d])
			q->rank--;
		q->ext[q->rank] = in->dim[d] * (q->rank == l ? q->ext[l] : 1);
		q->in_stride[q->rank] = in->stride[d];
		q->out_stride[q->rank++] = out->stride[d];
	}
	q->n = q->ext[q->dim];
	q->in_step = q->reverse ? -q->in_stride[q->dim] : q->in_stride[q->dim];
	q->out_step = q->reverse ? -q->out_stride[q->dim] : q->out_stride[q->dim];
	int64_t count = view_count(in);
	q->lane = -1;
	q->wide = WIDE;
	for (int d = 0; d < q->rank; d++)
		if (d != q->dim && q->ext[d] >= 8 && llabs(q->in_stride[d]) < llabs(q->in_stride[q->dim]) &&
		    (q->lane < 0 || llabs(q->in_stride[d]) < llabs(q->in_stride[q->lane])))
			q->lane = d;
	if (q->lane < 0 && q->n > 1 && llabs(q->in_step) == 1 && q->in_step == q->out_step && q->es <= 8) {
		for (int d = 0; d < q->rank; d++)
			if (d != q->dim && q->ext[d] >= (q->n <= SHORT ? FEW : MANY) && (q->lane < 0 || q->ext[d] >= q->ext[q->lane]))
				q->lane = d;
		if (q->lane >= 0) {
			q->chunk = MIN(q->n, CHUNK);
			q->wide = MAX(CHUNK, MIN(WIDE, TURNED / q->chunk / CHUNK * CHUNK));
		}
	}
	q->across = q->lane >= 0;
	q->width = q->across ? q->ext[q->lane] : 1;
	q->rows = q->n && count ? count / q->n / q->width : 0;
	q->nblock = q->across ? (q->width + q->wide - 1) / q->wide : 1;
	/* a second rounding would show in small floats: those are not cut */
	if (!q->across && q->rows < 8 && q->n > 8 * BLOCK && !q->load) {
		q->split = true;
		q->nblock = (q->n + GROUP - 1) / GROUP;
		s->phases = 2;
		s->shared = (size_t)(q->rows * q->nblock * q->ws);
	}
	int64_t units = q->rows * q->nblock;
	q->per_tile = units ? MAX(1, 65536 / MAX(1, count / units)) : 1;
	s->tiles = (units + q->per_tile - 1) / q->per_tile;
	int cls = dtype_info[q->acc].cls;
	if (q->across && r == RED_add && (cls == DT_FLOAT || cls == DT_COMPLEX) && q->n > (q->widen ? ROWS_F32 : FAR)) {
		q->run = !q->widen ? ROWS : q->n <= SHORT ? ROWS_F32 / 2 : ROWS_F32;      /* of a short one much of a running sum is not small beside what comes before */
		q->levels = q->widen ? 1 : sum_levels(q->n / ROWS);
	}
	s->scratch = MAX(3 * (size_t)BLOCK, (size_t)(5 + 2 * q->levels) * WIDE) * 16 + (size_t)(q->wide * q->chunk * q->es);
	s->priv = q;
	s->run = scan_run;
	return NULL;
}
