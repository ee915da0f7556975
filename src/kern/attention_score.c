/* Scores of a tile by the program's own function, and bounds of the operands that it is made from. */
#include "attention.h"

#include <float.h>
#include <math.h>

enum { STRIP_ROWS = KERN_STRIP / ATT_COLS };

/* Where position i of one side of tiles begins in operand e. */
static int64_t place(const struct att_plan *p, const struct att_extra *e, bool keys, int64_t i)
{
	return keys ? i * e->ss : i / p->x.t * e->sg + i % p->x.t * e->st;
}

/* Of n positions from i on; beyond the last of all, which last is, as that. */
static void places(const struct att_plan *p, const struct att_extra *e, bool keys, int64_t i, int n, int64_t last, int64_t *at)
{
	int64_t t = keys ? 0 : i % p->x.t, here = place(p, e, keys, i);
	for (int j = 0; j < n; j++) {
		at[j] = here;
		if (i + j >= last)
			continue;
		if (keys)
			here += e->ss;
		else if (++t < p->x.t)
			here += e->st;
		else
			here = place(p, e, keys, i + j + 1), t = 0;
	}
}

/* Least and most of a table of f32. */
static struct kern_bound table_bound(const struct att_extra *e, const char *table)
{
	float lo = INFINITY, hi = -INFINITY;
	if (e->dt != DT_f32)
		return kern_bound_any(e->dt);
	kern_isa_get()->fold[RED_min][NAT_f32](e->table, table, &lo);
	kern_isa_get()->fold[RED_max][NAT_f32](e->table, table, &hi);
	return isnan(lo) || isnan(hi) ? kern_bound_any(e->dt) : (struct kern_bound){ lo, hi, false };
}

void att_extra_start(const struct att_plan *p, const struct prog_kern *k, char *const *ptr, int64_t b, char *mem)
{
	const char **base = (const char **)(void *)(mem + p->fn_base);
	struct kern_bound *bound = (struct kern_bound *)(void *)(mem + p->fn_table);
	for (int i = 0; i < p->x.nextra; i++) {
		const struct att_extra *e = &p->extra[i];
		base[i] = attention_at(k, ptr, &p->x, e->view, b);
		if (!e->table)
			continue;
		if (e->at) {
			move_strided(e->es, e->table, mem + e->at, e->es, base[i], k->v[e->view].stride[p->x.nb + 2] * e->es);
			base[i] = mem + e->at;
		}
		bound[i] = table_bound(e, base[i]);
	}
	*(int64_t *)(void *)(mem + p->fn_have) = -1;
}

/* n0 rows of ATT_COLS elements, the sum of two offsets from base on. */
#define FILL(T) do { \
	T one; \
	memcpy(&one, base + row[i] + col[0], sizeof one); \
	for (int j = 0; j < ATT_COLS; j++) \
		memcpy(out + i * line + j * (int)sizeof one, &one, sizeof one); \
} while (0)
#define GATHER(T) for (int i = 0; i < n0; i++) for (int j = 0; j < ATT_COLS; j++) \
	memcpy(out + (i * ATT_COLS + j) * (int)sizeof(T), base + row[i] + col[j], sizeof(T))
static void gather(int es, int n0, const char *base, const int64_t *row, const int64_t *col, bool even, bool by_row, bool by_col, char *out)
{
	int64_t line = ATT_COLS * es;
	if (!by_col) {
		for (int i = 0; i < n0; i++)
			switch (es) {
			case 1: FILL(uint8_t); break;
			case 2: FILL(uint16_t); break;
			case 4: FILL(uint32_t); break;
			default: FILL(uint64_t);
			}
		return;
	}
	if (even) {
		for (int i = 0; i < n0; i++)
			if (i && !by_row)
				memcpy(out + i * line, out, (size_t)line);
			else
				move_strided(es, ATT_COLS, out + i * line, es, base + row[i] + col[0], col[1] - col[0]);
		return;
	}
	switch (es) {
	case 1: GATHER(uint8_t); break;
	case 2: GATHER(uint16_t); break;
	case 4: GATHER(uint32_t); break;
	default: GATHER(uint64_t);
	}
}

/* Operands of one strip of at most STRIP_ROWS rows, of which x is the first. */
static const void *const *operands(const struct att_plan *p, int64_t i0, int n0, int64_t j0, const float *x, char *mem)
{
	const void **in = (const void **)(void *)(mem + p->fn_in);
	const char *const *base = (const char *const *)(const void *)(mem + p->fn_base);
	char *to = mem + p->fn_in + att_pad((int64_t)sizeof *in * (1 + p->x.nextra), 64);
	int64_t *have = (int64_t *)(void *)(mem + p->fn_have);      /* columns from where on what is the same in all rows is there */
	int64_t row[STRIP_ROWS], col[ATT_COLS], ni = p->turned ? p->x.s : p->rows, nj = p->turned ? p->rows : p->x.s;
	in[0] = x;
	for (int i = 0; i < p->x.nextra; i++, to += KERN_STRIP * 8) {
		const struct att_extra *e = &p->extra[i];
		bool even = true, by_row = p->turned ? e->by_key : e->by_row, by_col = p->turned ? e->by_row : e->by_key;
		in[1 + i] = e->table ? base[i] : to;
		if (e->table || (!by_row && *have == j0))
			continue;
		if (by_row)
			places(p, e, p->turned, MIN(i0, ni - 1), STRIP_ROWS, ni - 1, row);
		else
			memset(row, 0, sizeof row);
		if (by_col)
			places(p, e, !p->turned, j0, ATT_COLS, nj - 1, col);
		else
			col[0] = 0;      /* alone is read */
		for (int j = 2; j < ATT_COLS && by_col; j++)
			even &= col[j] - col[j - 1] == col[1] - col[0];
		gather(e->es, by_row ? n0 : STRIP_ROWS, base[i], row, col, even, by_row, by_col, to);
	}
	*have = j0;
	return in;
}

/* One strip. */
static void strip(const struct att_plan *p, int64_t i0, int n0, int64_t j0, int n1, float *x, const struct att_rest *rest, int from, char *mem)
{
	const void *res[ATT_OUT];
	/* other results may be made from x after the score is */
	void *want[ATT_OUT] = { NULL };
	int n = 1;
	if (p->x.grad)
		want[n++] = rest->slope + from;
	if (p->x.weighted)
		want[n++] = rest->weight + from;
	for (int i = 0; i < p->x.ntally; i++)
		want[n++] = rest->at[i] + from;
	plan_run(p->x.fn, n0 * ATT_COLS, operands(p, i0, n0, j0, x, mem), want, res, mem + p->fn_mem);
	if (res[0] != x)
		memcpy(x, res[0], sizeof *x * (size_t)(n0 * ATT_COLS));
	for (int r = 0; r < n0 && n1 < ATT_COLS; r++)
		for (int j = n1; j < ATT_COLS; j++)
			x[r * ATT_COLS + j] = -INFINITY;
}

void att_score(const struct att_plan *p, int64_t i0, int n0, int64_t j0, int n1, float *x, const struct att_rest *rest, char *mem)
{
	for (int i = 0; i < n0; i += STRIP_ROWS)
		strip(p, i0 + i, MIN(STRIP_ROWS, n0 - i), j0, n1, x + i * ATT_COLS, rest, i * ATT_COLS, mem);
}

void att_mask(const struct att_plan *p, int64_t i0, int n0, int64_t j0, uint32_t *mask, char *mem)
{
	const void *res;
	for (int i = 0; i < n0; i += STRIP_ROWS) {
		int n = MIN(STRIP_ROWS, n0 - i);
		plan_run(p->mask, n * ATT_COLS, operands(p, i0 + i, n, j0, NULL, mem), NULL, &res, mem + p->fn_mask);
		for (int r = 0; r < n; r++) {
			uint32_t bits = 0;
			for (int j = 0; j < ATT_COLS; j += 8) {
				uint64_t truths;
				memcpy(&truths, (const char *)res + r * ATT_COLS + j, sizeof truths);
				bits |= (uint32_t)(truths * 0x0102040810204080u >> 56) << j;
			}
			mask[i + r] &= p->range.pred_not ? ~bits : bits;
		}
	}
}

/* --- bounds --------------------------------------------------------------------------- */

static void widen(double v, bool known, double *lo, double *hi)
{
	if (!known || isnan(v)) {
		*lo = -INFINITY;
		*hi = NAN;
		return;
	}
	*lo = v < *lo ? v : *lo;
	*hi = v > *hi ? v : *hi;      /* NaN stays */
}

/* The same of integers: most are indices; and of truths. */
static void side_of(bool pred, const char *at, int64_t step, int64_t n, int size, double *lo, double *hi)
{
	const struct kern_isa *isa = kern_isa_get();
	int nat = pred ? NAT_pred : NAT_i32;
	for (int64_t i = 0; i < n; i += size, at += size * step) {
		int64_t some = MIN(size, n - i), es = pred ? 1 : 4;
		char dense[4 * ATT_MOST_MR];
		int32_t least = 0, most = 0;      /* a byte of it, if pred */
		if (step != es)
			move_strided((int)es, some, dense, es, at, step);
		isa->fold[pred ? RED_and : RED_min][nat](some, step == es ? at : dense, &least);
		isa->fold[pred ? RED_or : RED_max][nat](some, step == es ? at : dense, &most);
		*lo++ = least;
		*hi++ = most;
	}
}

void att_side_bounds(const struct att_plan *p, const struct prog_kern *k, char *const *ptr, int64_t b, bool keys, int64_t i0, int64_t n, int size,
                     double *lo, double *hi, int64_t span)
{
	for (int x = 0; x < p->x.nextra; x++) {
		const struct att_extra *e = &p->extra[x];
		if (e->by_key != keys || e->by_row == keys)
			continue;
		const char *base = attention_at(k, ptr, &p->x, e->view, b);
		if ((e->dt == DT_i32 || e->dt == DT_pred) && size <= ATT_MOST_MR && (keys || i0 / p->x.t == (i0 + n - 1) / p->x.t)) {
			side_of(e->dt == DT_pred, base + place(p, e, keys, i0), keys ? e->ss : e->st, n, size, &lo[x * span], &hi[x * span]);
			continue;
		}
		for (int64_t i = 0; i < n; i++) {
			double *l = &lo[x * span + i / size], *h = &hi[x * span + i / size], v = 0;
			if (i % size == 0) {
				*l = INFINITY;
				*h = -INFINITY;
			}
			bool known = att_number(e->dt, base + place(p, e, keys, i0 + i), &v);
			widen(v, known, l, h);
		}
	}
}

/* Is a pred true, or false, in all of n rows from i0 and nj keys from j0? */
static void scan(const struct att_plan *p, const struct att_extra *e, const char *base, int64_t i0, int64_t n, int64_t j0, int64_t nj, double *lo, double *hi)
{
	unsigned all = 1, any = 0;
	for (int64_t i = 0; i < n && (all || !any); i++) {
		const char *at = base + place(p, e, false, i0 + i) + place(p, e, true, j0);
		uint64_t every = 0x0101010101010101u, some = 0, w;
		int64_t j = 0;
		for (; e->ss == 1 && j + 8 <= nj; j += 8) {
			memcpy(&w, at + j, 8);
			every &= w;
			some |= w;
		}
		for (; j < nj; j++) {
			all &= (unsigned char)at[j * e->ss];
			any |= (unsigned char)at[j * e->ss];
		}
		all &= every == 0x0101010101010101u;
		any |= some != 0;
	}
	*lo = all & 1;
	*hi = any != 0;
}

bool att_number_bound(const struct att_plan *p, int x, int lanes, const char *mem, struct att_bound *o)
{
	const struct att_extra *e = &p->extra[x];
	double v;
	if (e->table) {
		struct kern_bound is = ((const struct kern_bound *)(const void *)(mem + p->fn_table))[x];
		for (int i = 0; i < lanes; i++) {
			o->lo[i] = is.lo;
			o->hi[i] = is.hi;
		}
		o->nan = is.nan ? ~0u : 0;
		return true;
	}
	if (e->by_row || e->by_key || !att_number(e->dt, ((const char *const *)(const void *)(mem + p->fn_base))[x], &v) || isnan(v)) {
		att_bound_any(e->dt, o);
		return false;
	}
	for (int i = 0; i < lanes; i++)
		o->lo[i] = o->hi[i] = v;
	o->nan = 0;
	return true;
}

void att_tile_bounds(const struct att_plan *p, int64_t i0, int n0, int64_t j0, int64_t nj, int tiles, const char *mem, struct att_bound *reg)
{
	const char *const *at = (const char *const *)(const void *)(mem + p->fn_base);
	for (int x = 0; x < p->x.nextra; x++) {
		const struct att_extra *e = &p->extra[x];
		struct att_bound *o = &reg[1 + x];
		if (e->by_row != e->by_key || att_number_bound(p, x, tiles, mem, o) || !e->by_row || e->dt != DT_pred)
			continue;
		for (int i = 0; i < tiles; i++) {
			int64_t j = j0 + i * ATT_COLS, nc = MIN(ATT_COLS, nj - j);
			scan(p, e, at[x], p->turned ? j : i0, p->turned ? nc : n0, p->turned ? i0 : j, p->turned ? n0 : nc, &o->lo[i], &o->hi[i]);
		}
		o->nan = 0;
	}
}

void att_bound_each(enum dtype dt, const double *lo, const double *hi, int lanes, struct att_bound *out)
{
	out->nan = 0;
	for (int i = 0; i < lanes; i++) {
		out->lo[i] = lo[i];
		out->hi[i] = hi[i];
		if (isnan(hi[i])) {
			att_bound_any(dt, out);
			return;
		}
	}
}

void att_bound_one(enum dtype dt, const double *lo, const double *hi, int64_t n, int lanes, struct att_bound *out)
{
	double least = lo[0], most = hi[0], l[ATT_WIDE], h[ATT_WIDE];
	for (int64_t i = 1; i < n; i++) {
		least = lo[i] < least ? lo[i] : least;
		most = hi[i] > most || isnan(hi[i]) ? hi[i] : most;
	}
	for (int i = 0; i < lanes; i++) {
		l[i] = least;
		h[i] = most;
	}
	att_bound_each(dt, l, h, lanes, out);
}

void att_norm_bounds(const float *rows, int64_t n, const float *cols, int lanes, struct att_bound *out)
{
	float most = 0;
	for (int64_t i = 0; i < n; i++)
		most = rows[i] > most || isnan(rows[i]) ? rows[i] : most;
	for (int i = 0; i < lanes; i++) {
		double bound = (double)most * cols[i];
		if (bound < FLT_MAX) {
			out->lo[i] = -bound;
			out->hi[i] = bound;
			out->nan &= ~(1u << i);
		}
	}
}
