/* Attention of random shapes, strides, types and masks, forward and backward: every micro-kernel that this machine runs, and the models
 * of the others, against the reference. */
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <float.h>
#include <math.h>
#include <cmocka.h>

#include "draws.h"
#include "kern/attention.h"

static uint64_t seed = 1;
static uint32_t rnd(uint32_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % n;
}
static float unit(void) { return ((float)rnd(2001) - 1000) * 1e-3f; }

/* --- one attention ------------------------------------------------------------------ */

enum { MOST_VIEWS = 28, MOST_INS = 44, RANK = 5 };
struct att {
	struct prog_kern k;
	struct prog_expr e;
	struct prog_view v[MOST_VIEWS];
	int64_t dim[MOST_VIEWS][RANK], stride[MOST_VIEWS][RANK];
	uint8_t in_type[MOST_VIEWS];
	struct prog_ins ins[MOST_INS];
	uint16_t out[ATT_OUT];
	int ntally;
	int64_t tally[ATT_TALLIES];      /* lengths */
	char *mem[MOST_VIEWS + 1];       /* where the views' memory begins: base of all their elements */
	size_t bytes[MOST_VIEWS];
	int64_t g, t, s, d, e_;
	enum { NO_MASK, CAUSAL, WINDOW, SEGMENTS, DENSE, BIAS, LENGTHS, SOFTCAP, ALIBI, FALLS, WEIGHTS, DEAD_ROWS, CUT, CHUNKS, TABLE, PLACES, MASKS } mask;
	float scale, fill, size;      /* size: of queries, at most */
};

static int64_t count(const struct prog_view *v)
{
	int64_t n = 1;
	for (int i = 0; i < v->rank; i++)
		n *= v->dim[i];
	return n;
}

static char *element(const struct att *a, int i, int64_t lin)
{
	int64_t ix[RANK];
	index_of(a->v[i].rank, a->v[i].dim, lin, ix);
	return a->mem[i] + (a->v[i].off + offset_of(a->v[i].rank, a->v[i].stride, ix)) * dt_bytes(a->v[i].dtype);
}

static double get(const struct att *a, int i, int64_t lin)
{
	double x = 0;
	assert_true(att_number((enum dtype)a->v[i].dtype, element(a, i, lin), &x));
	return x;
}

static void set(struct att *a, int i, int64_t lin, double x)
{
	kern_elem(ELEM_convert, DT_f64, (enum dtype)a->v[i].dtype)(1, element(a, i, lin), &x, NULL, NULL);
}

/* A view of these extents in a random order of dimensions, with gaps; way 0: dense.  bits of same: dimensions of stride 0. */
static void view(struct att *a, int i, enum dtype dt, int rank, const int64_t *dim, int way, unsigned same)
{
	struct prog_view *v = &a->v[i];
	int order[RANK];
	int64_t step = 1;
	for (int d = 0; d < rank; d++)
		order[d] = d;
	for (int d = rank; way && rnd(2) && d-- > 1;) {
		int j = (int)rnd((uint32_t)d + 1), t = order[d];
		order[d] = order[j];
		order[j] = t;
	}
	*v = (struct prog_view){ .dtype = dt, .rank = (uint8_t)rank, .dim = a->dim[i], .stride = a->stride[i] };
	for (int x = rank; x-- > 0;) {
		int d = order[x];
		v->dim[d] = dim[d];
		v->stride[d] = same >> d & 1 ? 0 : step;
		if (!(same >> d & 1))
			step *= dim[d] + (way && rnd(4) == 0 ? rnd(3) : 0);
	}
	v->off = way ? rnd(5) : 0;
	a->bytes[i] = (size_t)(step + v->off) * (size_t)dt_bytes(dt);
	a->mem[i] = malloc(a->bytes[i]);
	memset(a->mem[i], 0, a->bytes[i]);
}

static void fill_random(struct att *a, int i, float size)
{
	for (int64_t n = count(&a->v[i]), x = 0; x < n; x++)
		set(a, i, x, size * unit());
}

/* --- score functions ------------------------------------------------------------------ */

static uint16_t put(struct att *a, int fn, enum dtype from, enum dtype to, int x, int y, int z)
{
	struct prog_ins *i = &a->ins[a->e.n++];
	*i = (struct prog_ins){ .fn = (uint16_t)fn, .from = (uint8_t)from, .to = (uint8_t)to, .src = { (uint16_t)x, (uint16_t)y, (uint16_t)z } };
	return (uint16_t)(a->e.nin + a->e.n - 1);
}
static uint16_t number(struct att *a, float x)
{
	uint16_t r = put(a, EXPR_IMM, DT_f32, DT_f32, 0, 0, 0);
	memcpy(a->ins[a->e.n - 1].imm, &x, 4);
	return r;
}
static uint16_t whole(struct att *a, int32_t x)
{
	uint16_t r = put(a, EXPR_IMM, DT_i32, DT_i32, 0, 0, 0);
	memcpy(a->ins[a->e.n - 1].imm, &x, 4);
	return r;
}

/* x // c, as jax.numpy writes it. */
static uint16_t floor_divide(struct att *a, int x, int c)
{
	uint16_t by = whole(a, c), down = put(a, ELEM_divide, DT_i32, DT_i32, x, by, 0), rest = put(a, ELEM_remainder, DT_i32, DT_i32, x, by, 0);
	uint16_t apart = put(a, ELEM_compare_ne, DT_i32, DT_pred, put(a, ELEM_sign, DT_i32, DT_i32, x, 0, 0), put(a, ELEM_sign, DT_i32, DT_i32, by, 0, 0), 0);
	uint16_t odd = put(a, ELEM_and, DT_pred, DT_pred, apart, put(a, ELEM_compare_ne, DT_i32, DT_pred, rest, whole(a, 0), 0), 0);
	return put(a, ELEM_select, DT_i32, DT_i32, odd, put(a, ELEM_subtract, DT_i32, DT_i32, down, whole(a, 1), 0), down);
}

/* An operand that scores are made from: by g, t, s where the letters say so. */
static int extra(struct att *a, enum dtype dt, bool g, bool t, bool s)
{
	int64_t dim[RANK] = { a->v[0].dim[0], a->v[0].dim[1], g ? a->g : 1, t ? a->t : 1, s ? a->s : 1 };
	int i = a->k.nin++;
	if (rnd(2))
		dim[0] = a->v[0].dim[0];
	view(a, i, dt, RANK, dim, (int)rnd(2), rnd(3) ? 0 : 1 + rnd(3));
	a->in_type[a->e.nin++] = (uint8_t)dt;
	return i;
}

/* Numbers along t (dimension 3) or s (4): first, first + 1, ... */
static void count_up(struct att *a, int i, int d, int first)
{
	for (int64_t n = count(&a->v[i]), x = 0; x < n; x++) {
		int64_t ix[RANK];
		index_of(RANK, a->v[i].dim, x, ix);
		set(a, i, x, (double)(ix[d] + first));
	}
}

/* A table of n numbers, of each batch or of all. */
static int table(struct att *a, int64_t n)
{
	int64_t dim[RANK] = { rnd(2) ? a->v[0].dim[0] : 1, rnd(2) ? a->v[0].dim[1] : 1, 1, 1, n };
	int i = a->k.nin++;
	view(a, i, DT_f32, RANK, dim, (int)rnd(2), 0);
	a->in_type[a->e.nin++] = DT_f32;
	fill_random(a, i, 2);
	return i;
}

static uint16_t look(struct att *a, int table, int at, int64_t length)
{
	uint16_t r = put(a, EXPR_LOOK, DT_f32, DT_f32, table, at, 0);
	int32_t n = (int32_t)length;
	memcpy(a->ins[a->e.n - 1].imm, &n, sizeof n);
	return r;
}

static int want_mask = -1;
static bool want_faint;      /* biases that fall slowly */
static bool want_wide;       /* l in f64, scores by 1/8 */

/* Operands first, then the function of them. */
static void function(struct att *a)
{
	bool grad = a->k.id == KERN_attention_grad;
	int64_t length = 0;
	int at = 0, p = 0, q = 0, w = 0, first = grad ? ATT_GRAD_EXTRA : ATT_EXTRA;
	a->in_type[0] = DT_f32;
	a->e.nin = 1;
	a->mask = a->mask == CUT && grad ? NO_MASK : a->mask;
	switch (a->mask) {
	case CAUSAL: case WINDOW: case SOFTCAP: case CHUNKS:
		p = extra(a, DT_i32, false, true, false);
		q = extra(a, DT_i32, false, false, true);
		count_up(a, p, 3, (int)rnd(9) - 4);
		count_up(a, q, 4, 0);
		break;
	case SEGMENTS:
		p = extra(a, DT_i32, rnd(2), true, false);
		q = extra(a, DT_i32, false, false, true);
		for (int i = p; i <= q; i++)
			for (int64_t n = count(&a->v[i]), x = 0; x < n; x++) {
				int d = i == p ? 3 : 4;
				int64_t ix[RANK];
				index_of(RANK, a->v[i].dim, x, ix);
				set(a, i, x, (double)(ix[d] * 4 / a->v[i].dim[d]));
			}
		break;
	case DENSE:
		p = extra(a, DT_pred, rnd(2), true, true);
		for (int64_t n = count(&a->v[p]), j = 0, run = 0, v = 0; j < n; j++, run--) {
			if (!run) {
				run = 1 + rnd(200);
				v = rnd(2);
			}
			set(a, p, j, (double)v);
		}
		break;
	case BIAS:
		p = extra(a, rnd(2) ? DT_f32 : DT_bf16, rnd(2), true, true);
		fill_random(a, p, 2);
		for (int64_t n = count(&a->v[p]), j = 0; j < n; j++)
			if (rnd(3) == 0)
				set(a, p, j, isinf(a->fill) ? a->fill : -1e9);
		break;
	case LENGTHS:
		p = extra(a, DT_i32, false, false, false);
		q = extra(a, DT_i32, false, false, true);
		for (int64_t n = count(&a->v[p]), j = 0; j < n; j++)
			set(a, p, j, (double)rnd((uint32_t)a->s + 1));
		count_up(a, q, 4, 0);
		break;
	case ALIBI:
		p = extra(a, DT_f32, true, false, false);
		q = extra(a, DT_f32, false, true, false);
		w = extra(a, DT_f32, false, false, true);
		fill_random(a, p, 1);
		count_up(a, q, 3, 0);
		count_up(a, w, 4, 0);
		break;
	case FALLS:      /* tile by tile less, down to nothing; short queries: what is known of a tile is near what it has */
		fill_random(a, ATT_Q, 0.1f);
		p = extra(a, DT_f32, false, false, true);
		for (int64_t n = count(&a->v[p]), j = 0; j < n; j++)
			set(a, p, j, (double)-(j % a->s) / (want_faint ? 64 : 8));
		break;
	case WEIGHTS:
		p = extra(a, DT_f32, true, true, true);
		for (int64_t n = count(&a->v[p]), j = 0; j < n; j++)
			set(a, p, j, rnd(4) ? 1.25 : 0);
		break;
	case DEAD_ROWS:
		p = extra(a, DT_pred, false, true, false);
		for (int64_t n = count(&a->v[p]), j = 0; j < n; j++)
			set(a, p, j, (double)(j % 64 < 40));
		break;
	case TABLE:      /* by the distance, first key and last query first */
		p = extra(a, DT_i32, false, true, false);
		q = extra(a, DT_i32, false, false, true);
		count_up(a, p, 3, 0);
		count_up(a, q, 4, 0);
		w = table(a, length = a->t + a->s - 1);
		break;
	case PLACES:     /* some are outside */
		length = 1 + rnd(100);
		p = extra(a, DT_i32, rnd(2), true, true);
		for (int64_t n = count(&a->v[p]), j = 0; j < n; j++)
			set(a, p, j, (double)rnd((uint32_t)length + 6) - 3);
		w = table(a, length);
		break;
	default: break;
	}
	p += 1 - first, q += 1 - first, w += 1 - first;
	uint16_t c = number(a, a->scale), score = a->scale == 1 ? 0 : put(a, ELEM_multiply, DT_f32, DT_f32, 0, c, 0), slope = c, mask = 0, weight = 0;
	switch (a->mask) {
	case SOFTCAP: {
		uint16_t th = put(a, ELEM_tanh, DT_f32, DT_f32, score, 0, 0), cap = number(a, 5), sq = put(a, ELEM_multiply, DT_f32, DT_f32, th, th, 0);
		score = put(a, ELEM_multiply, DT_f32, DT_f32, th, cap, 0);
		slope = put(a, ELEM_multiply, DT_f32, DT_f32, put(a, ELEM_subtract, DT_f32, DT_f32, number(a, 1), sq, 0), number(a, 5 * a->scale), 0);
	}       /* fall through */
	case CAUSAL: mask = put(a, ELEM_compare_ge, DT_i32, DT_pred, p, q, 0); break;
	case WINDOW: {
		uint16_t far = put(a, ELEM_subtract, DT_i32, DT_i32, p, q, 0), near = put(a, ELEM_compare_lt, DT_i32, DT_pred, far, whole(a, 40), 0);
		mask = put(a, ELEM_and, DT_pred, DT_pred, put(a, ELEM_compare_ge, DT_i32, DT_pred, p, q, 0), near, 0);
		break;
	}
	case SEGMENTS: mask = put(a, ELEM_compare_eq, DT_i32, DT_pred, p, q, 0); break;
	case CHUNKS: mask = put(a, ELEM_compare_eq, DT_i32, DT_pred, floor_divide(a, p, 128), put(a, ELEM_shift_right_arithmetic, DT_i32, DT_i32, q, whole(a, 7), 0), 0); break;
	case DENSE: case DEAD_ROWS: mask = (uint16_t)p; break;
	case CUT: {      /* with a bend at 0, where a slope would depend on roundings */
		uint16_t up = put(a, ELEM_compare_ge, DT_f32, DT_pred, 0, number(a, 0), 0), half = put(a, ELEM_multiply, DT_f32, DT_f32, score, number(a, 0.5f), 0);
		score = put(a, ELEM_select, DT_f32, DT_f32, up, score, half);
		break;
	}
	case LENGTHS: mask = put(a, ELEM_compare_lt, DT_i32, DT_pred, q, p, 0); break;
	case BIAS: {
		uint16_t b = a->v[a->k.nin - 1].dtype == DT_f32 ? (uint16_t)p : put(a, ELEM_convert, DT_bf16, DT_f32, p, 0, 0);
		score = put(a, ELEM_add, DT_f32, DT_f32, score, b, 0);
		break;
	}
	case ALIBI: {
		uint16_t far = put(a, ELEM_subtract, DT_f32, DT_f32, w, q, 0), b = put(a, ELEM_multiply, DT_f32, DT_f32, p, far, 0);
		score = put(a, ELEM_add, DT_f32, DT_f32, score, b, 0);
		break;
	}
	case TABLE: case PLACES:
		at = p;
		if (a->mask == TABLE)
			at = put(a, ELEM_add, DT_i32, DT_i32, put(a, ELEM_subtract, DT_i32, DT_i32, q, p, 0), whole(a, (int)a->t - 1), 0);
		score = put(a, ELEM_add, DT_f32, DT_f32, score, look(a, w, at, length), 0);
		if (a->mask == TABLE && rnd(2))
			mask = put(a, ELEM_compare_ge, DT_i32, DT_pred, p, q, 0);
		break;
	case FALLS: score = put(a, ELEM_add, DT_f32, DT_f32, score, (uint16_t)p, 0); break;
	case WEIGHTS: weight = (uint16_t)p; break;
	default: break;
	}
	bool not = mask && rnd(3) == 0;      /* written the other way round */
	mask = not ? put(a, ELEM_not, DT_pred, DT_pred, mask, 0, 0) : mask;
	if (mask) {
		uint16_t low = number(a, a->fill), flat = number(a, 0);
		score = put(a, ELEM_select, DT_f32, DT_f32, mask, not ? low : score, not ? score : low);
		slope = put(a, ELEM_select, DT_f32, DT_f32, mask, not ? flat : slope, not ? slope : flat);
	}
	a->out[a->e.nout++] = score;
	if (grad)
		a->out[a->e.nout++] = slope;
	if (weight)
		a->out[a->e.nout++] = weight;
	if (grad && length) {
		a->tally[a->ntally++] = length;
		a->out[a->e.nout++] = (uint16_t)at;
		if (rnd(2)) {        /* the other way round, and all but the last one */
			a->tally[a->ntally++] = MAX(length - 1, 1);
			a->out[a->e.nout++] = put(a, ELEM_subtract, DT_i32, DT_i32, whole(a, (int)length - 1), at, 0);
		}
	}
	a->e.in_type = a->in_type;
	a->e.ins = a->ins;
	a->e.out = a->out;
	a->k.expr = &a->e;
}

/* --- running ------------------------------------------------------------------------------ */

/* With a variant, tiles in parts calls, from the last to the first; results to out, as f64.  False: the reference did it. */
/* What results are added to. */
static double there(int64_t j) { return (double)(j % 7) - 3; }

static bool run(struct att *a, const struct att_variant *v, int parts, double **out)
{
	struct kern_state *s;
	att_force = v;
	struct err *e = kern_prepare(&a->k, &s);
	assert_null(e);
	att_force = NULL;
	int n = a->k.nin + a->k.nout;
	att_tiles_done = att_tiles_left = 0;
	size_t room = (kern_scratch(&a->k, s) + 63) / 64 * 64;
	char *scratch = aligned_alloc(64, room + 64), *shared = aligned_alloc(64, (kern_shared(&a->k, s) + 127) / 64 * 64);
	memset(scratch, 0xff, room + 64);
	memset(shared, 0xff, kern_shared(&a->k, s));
	for (int i = a->k.nin; i < n; i++)
		memset(a->mem[i], 0x7f, a->bytes[i]);
	a->mem[n] = shared;
	for (int i = a->k.nin; i < n && a->k.id == KERN_attention_grad_add; i++)
		for (int64_t c = count(&a->v[i]), j = 0; j < c; j++)
			set(a, i, j, there(j));
	for (int p = 0; p < kern_phases(&a->k, s); p++) {
		int64_t tiles = kern_tiles(&a->k, s);
		for (int i = parts; i-- > 0;)
			kern_run(&a->k, s, p, a->mem, tiles * i / parts, tiles * (i + 1) / parts, scratch);
	}
	for (size_t i = room; i < room + 64; i++)
		assert_int_equal((unsigned char)scratch[i], 0xff);
	for (int i = a->k.nin; i < n; i++) {
		double *to = out[i - a->k.nin] = malloc(sizeof *to * (size_t)count(&a->v[i]));
		for (int64_t c = count(&a->v[i]), j = 0; j < c; j++)
			to[j] = get(a, i, j);
	}
	kern_release(s);
	free(scratch);
	free(shared);
	return att_tiles_done + att_tiles_left > 0;
}

static void release(struct att *a)
{
	for (int i = 0; i < a->k.nin + a->k.nout; i++)
		free(a->mem[i]);
}

/* 0, or what the next case has of batches (a square), of queries, of keys, of groups, of a vector. */
static int64_t want_b, want_t, want_s, want_g, want_d;

static const int64_t extents[] = { 1, 2, 8, 16, 32, 63, 64, 65, 127, 128, 129, 256, 300 };
static int64_t extent(uint32_t most) { return extents[rnd(MIN(most, NELEM(extents)))]; }


/* Operands but those of scores, and results; shapes of the case. */
static void make(struct att *a, bool grad, enum dtype dt)
{
	int64_t b0 = 1 + rnd(2), b1 = 1 + rnd(2), g = rnd(3) ? 1 : 1 + rnd(4), t = extent(13), s = extent(13), d = rnd(3) ? 16 << rnd(3) : 1 + rnd(140);
	b0 = want_b ? want_b : b0;
	b1 = want_b ? want_b : b1;
	g = want_g ? want_g : g;
	t = want_t ? want_t : t;
	s = want_s ? want_s : s;
	d = want_d ? want_d : d;
	int64_t e = want_d || rnd(2) ? d : 16 + rnd(120), q[] = { b0, b1, g, t, d }, k[] = { b0, b1, s, d }, v[] = { b0, b1, s, e };
	int64_t o[] = { b0, b1, g, t, e }, l[] = { b0, b1, g, t };
	a->k.v = a->v;
	a->k.code = -1;
	a->k.id = grad ? KERN_attention_grad : KERN_attention;
	a->g = g, a->t = t, a->s = s, a->d = d, a->e_ = e;
	a->mask = want_mask < 0 ? (int)rnd(MASKS) : want_mask;
	a->fill = (float[]){ -INFINITY, -1e9f, -0.7f * FLT_MAX, -FLT_MAX }[rnd(4)];
	a->scale = want_wide ? 0.125f : rnd(4) ? 1 / sqrtf((float)d) : 1;
	enum dtype other = rnd(8) ? dt : DT_f16;
	unsigned same = rnd(6) ? 0 : 1 + rnd(3);
	view(a, ATT_Q, dt, RANK, q, (int)rnd(2), 0);
	view(a, ATT_K, dt == DT_f32 ? other : dt, RANK - 1, k, (int)rnd(2), same);
	view(a, ATT_V, dt, RANK - 1, v, (int)rnd(2), same);
	a->k.nin = 3;
	a->size = rnd(6) ? 1 : 6;
	fill_random(a, ATT_Q, a->size);
	fill_random(a, ATT_K, 1);
	fill_random(a, ATT_V, 1);
	if (grad) {
		view(a, ATT_L, want_wide || rnd(3) ? DT_f64 : DT_f32, RANK - 1, l, (int)rnd(2), 0);
		view(a, ATT_DO, dt, RANK, o, (int)rnd(2), 0);
		view(a, ATT_DELTA, DT_f32, RANK - 1, l, (int)rnd(2), 0);
		fill_random(a, ATT_DO, 1);
		a->k.nin = 6;
	}
	function(a);
	int n = a->k.nin;
	if (grad) {
		view(a, n, dt, RANK, q, (int)rnd(2), 0);
		view(a, n + 1, dt, RANK - 1, k, (int)rnd(2), 0);
		view(a, n + 2, dt, RANK - 1, v, (int)rnd(2), 0);
		a->k.nout = (uint16_t)(3 + a->ntally);
		for (int i = 0; i < a->ntally; i++) {
			int64_t sums[] = { b0, b1, 1, 1, a->tally[i] };
			view(a, n + 3 + i, DT_f32, RANK, sums, (int)rnd(2), 0);
		}
	} else {
		view(a, n, dt, RANK, o, (int)rnd(2), 0);
		a->k.nout = (uint16_t)(want_wide ? 2 : rnd(8) ? 2 + rnd(2) : 1);      /* o alone, and l, or m and z */
		if (a->k.nout == 1)
			return;
		view(a, n + 1, want_wide || (a->k.nout == 2 && rnd(3)) ? DT_f64 : DT_f32, RANK - 1, l, (int)rnd(2), 0);
		if (a->k.nout == 3)
			view(a, n + 2, DT_f32, RANK - 1, l, (int)rnd(2), 0);
	}
}

/* l and delta of a gradient as the forward pass has them. */
static void forward_of(struct att *a)
{
	struct att f = *a;
	int extra = a->k.nin - ATT_GRAD_EXTRA, n = ATT_EXTRA + extra;
	bool weighted = a->e.nout - a->ntally == 3;
	uint16_t out[2] = { a->out[0], weighted ? a->out[2] : 0 };
	f.k.id = KERN_attention;
	f.k.nin = (uint16_t)n;
	f.k.nout = 2;
	f.k.v = f.v;
	f.k.expr = &f.e;
	f.e.nout = weighted ? 2 : 1;
	f.e.out = out;
	for (int i = 0; i < extra; i++) {
		f.v[ATT_EXTRA + i] = a->v[ATT_GRAD_EXTRA + i];
		f.mem[ATT_EXTRA + i] = a->mem[ATT_GRAD_EXTRA + i];
	}
	f.v[n] = a->v[ATT_DO];
	f.v[n + 1] = a->v[ATT_L];
	f.bytes[n] = a->bytes[ATT_DO];
	f.bytes[n + 1] = a->bytes[ATT_L];
	f.mem[n] = malloc(f.bytes[n]);
	f.mem[n + 1] = a->mem[ATT_L];
	double *out2[2];
	run(&f, &att_reference, 1, out2);
	int64_t e = a->e_;
	for (int64_t rows = count(&a->v[ATT_L]), r = 0; r < rows; r++) {
		double sum = 0;
		for (int64_t j = 0; j < e; j++)
			sum += get(a, ATT_DO, r * e + j) * out2[0][r * e + j];
		set(a, ATT_DELTA, r, sum);
	}
	free(f.mem[n]);
	free(out2[0]);
	free(out2[1]);
}

/* p is rounded to 8 bits beside bf16, and so are results: errors are a few of 2^-9 of what is summed, of which a result's largest element tells.
 * f32: roundings of scores, which are some tens (with slopes by distance, or long queries without a scale, some hundreds, of 2^-16 each), and of sums;
 * those of a gradient of keys, over many queries, may all but cancel. */
static void same(const struct att *a, const char *name, int i, const double *got, const double *want, bool grad, int es, int64_t n)
{
	double most = 1e-3, tol = a->v[0].dtype == DT_bf16 ? 1.0 / 64 : a->v[0].dtype == DT_f16 ? 1.0 / 1024 : 1e-5;
	bool hundreds = a->mask == ALIBI || (a->scale == 1 && a->size > 1);
	if (a->v[0].dtype == DT_f32)
		tol *= hundreds ? 4 : grad && i == 1 ? 2 : 1;
	if (!grad && i)      /* z has the roundings of scores, relative to itself */
		tol = i == 2 ? (a->mask == ALIBI ? 2e-4 : 2e-5) : es == 2 ? 1e-5 : 3e-6;
	for (int64_t j = 0; j < n; j++)
		most = isfinite(want[j]) && fabs(want[j]) > most ? fabs(want[j]) : most;
	/* y - delta may all but vanish beside y, a sum of e products */
	if (grad)
		most = fmax(most, i == 2 ? 1 : a->scale * sqrt((double)a->e_) * (i > 2 ? fmax(sqrt((double)(a->g * a->t * a->s) / (double)a->tally[i - 3]), 1) : 1));
	else
		most = i == 0 || want_wide ? 1 : fmax(most, 1);
	for (int64_t j = 0; j < n; j++)
		if (!(fabs(got[j] - want[j]) <= tol * most) && !(got[j] == want[j]) && !(isnan(got[j]) && isnan(want[j])))
			fail_msg("%s %s %s: most %g mask %d fill %g scale %g g%d t%d s%d d%d e%d: result %d element %d: %.9g, not %.9g", name, grad ? "backward" : "forward",
			         dtype_info[a->v[0].dtype].name, most, a->mask, a->fill, a->scale, (int)a->g, (int)a->t, (int)a->s, (int)a->d, (int)a->e_, i, (int)j, got[j], want[j]);
}

/* Who is told to do with less (RONDO_ISA) runs what is chosen then: each variant by itself runs where all may. */
static int variants(void) { return *conf_str(CONF_ISA) ? 0 : att_nvariant; }
static bool is_model(const struct att_variant *v) { return strstr(v->name, "model"); }

/* What is for a few rows alone, whose keys no others share, leaves all else to others. */
static bool leaves(const struct att_variant *v, const struct att *a, bool grad)
{
	bool shared = false;
	for (int d = 0; d < 2; d++)
		for (int i = ATT_K; i <= ATT_V; i++)
			shared |= a->v[ATT_Q].dim[d] > 1 && (a->v[i].dim[d] == 1 || !a->v[i].stride[d]);
	return v->few && (grad || a->g * a->t > v->mr || shared);
}

/* A variant, or what is chosen (NULL), against the reference's results, and against itself with the tiles in other calls. */
static void compare_one(struct att *a, const struct att_variant *v, bool grad, double *const *want)
{
	double *got[3 + ATT_TALLIES], *again[3 + ATT_TALLIES];
	bool ran = run(a, v, 1, got);
	assert_true(ran || !v);
	run(a, v, 3, again);
	for (int i = 0; i < a->k.nout; i++) {
		int64_t n = count(&a->v[a->k.nin + i]);
		same(a, v ? v->name : "chosen", i, got[i], want[i], grad, v ? v->es : 2, n);
		assert_memory_equal(got[i], again[i], sizeof(double) * (size_t)n);
		free(got[i]);
		free(again[i]);
	}
}

/* All that this machine has for the case's types; the models, too, which are slow, or not. */
static void compare(struct att *a, bool grad, bool models)
{
	double *want[3 + ATT_TALLIES];
	if (grad)
		forward_of(a);
	assert_false(run(a, &att_reference, 1, want));
	compare_one(a, NULL, grad, want);
	for (int i = 0; i < variants(); i++) {
		const struct att_variant *v = &att_variant[i];
		if (v->has() && (v->es == 4 || a->v[ATT_Q].dtype == DT_bf16) && (models || !is_model(v)) && !leaves(v, a, grad))
			compare_one(a, v, grad, want);
	}
	for (int i = 0; i < a->k.nout; i++)
		free(want[i]);
	release(a);
}

static void all(bool grad, int most)
{
	static const enum dtype types[] = { DT_f32, DT_bf16, DT_f16 };
	for (int i = 0; i < draws(most); i++) {
		struct att *a = calloc(1, sizeof *a);
		make(a, grad, types[rnd(8) ? rnd(2) : 2]);
		compare(a, grad, i % 4 == 3);
		free(a);
	}
}

static void forward(void **state) { all(false, 160); }
static void backward(void **state) { all(true, 100); }

/* b is a, but keys and values, and q, and do of a gradient, lie in so many pieces, in memory of their own. */
static void split(const struct att *a, int keys, int rows, struct att *b)
{
	int n = a->k.nin, nk = keys - 1, nr = rows - 1, more = 2 * nk + (a->k.id == KERN_attention_grad ? 2 : 1) * nr;
	static int64_t attr[2];
	*b = *a;
	b->k.v = b->v;
	b->k.nin = (uint16_t)(n + more);
	b->k.nattr = rows > 1 ? 2 : 1;
	b->k.attr = attr;
	attr[0] = keys;
	attr[1] = rows;
	for (int i = 0; i < n + a->k.nout + more; i++) {
		int j = i - n, from = i < n ? i : j >= more ? i - more : j < nk ? ATT_K : j < 2 * nk ? ATT_V : j < 2 * nk + nr ? ATT_Q : ATT_DO;
		bool key = from == ATT_K || from == ATT_V, row = from == ATT_Q || (from == ATT_DO && a->k.id == KERN_attention_grad);
		int at = key ? 2 : 3, parts = key ? keys : rows;
		int64_t piece = i < n ? 0 : (key ? j % MAX(nk, 1) : (j - 2 * nk) % MAX(nr, 1)) + 1, *dim = b->dim[i];
		b->v[i] = a->v[from];
		b->v[i].dim = memcpy(dim, a->dim[from], sizeof a->dim[from]);
		b->v[i].stride = memcpy(b->stride[i], a->stride[from], sizeof a->stride[from]);
		b->bytes[i] = a->bytes[from];
		b->mem[i] = malloc(a->bytes[from]);
		memcpy(b->mem[i], a->mem[from], a->bytes[from]);
		if (from >= n || !(key || row))
			continue;
		memset(b->mem[i], 0x7f, b->bytes[i]);    /* garbage where the rows of others lie */
		dim[at] /= parts;
		for (int64_t c = count(&b->v[i]), e = 0; e < c; e++) {
			int64_t ix[RANK];
			index_of(RANK - 1 + (b->v[i].rank == RANK), dim, e, ix);
			ix[at] += piece * dim[at];
			memcpy(element(b, i, e), a->mem[from] + (a->v[from].off + offset_of(b->v[i].rank, a->stride[from], ix)) * dt_bytes(a->v[from].dtype), (size_t)dt_bytes(a->v[from].dtype));
		}
	}
}

/* What is in pieces gives the bits that whole arrays give. */
static void in_pieces(void **state)
{
	static const int64_t len[] = { 32, 64, 96, 128, 320, 7, 31, 33, 63 }, few[] = { 1, 8, 31, 32, 48, 100 };
	for (int i = 0; i < draws(120); i++) {
		struct att *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b);
		bool grad = rnd(2);
		int keys = 1 + (int)rnd(4), rows = rnd(2) ? 1 + (int)rnd(4) : 1;
		double *want[3 + ATT_TALLIES], *got[3 + ATT_TALLIES];
		want_s = len[rnd(NELEM(len))] * keys;
		want_t = rows > 1 ? few[rnd(NELEM(few))] * rows : 0;
		make(a, grad, rnd(2) ? DT_f32 : DT_bf16);
		want_s = want_t = 0;
		if (grad)
			forward_of(a);
		split(a, keys, rows, b);
		const struct att_variant *v = rnd(8) ? NULL : &att_reference;
		bool fast = run(a, v, 1, want);
		assert_true(run(b, v, 2, got) == fast);
		for (int k = 0; k < a->k.nout; k++) {
			assert_memory_equal(got[k], want[k], sizeof(double) * (size_t)count(&a->v[a->k.nin + k]));
			free(got[k]);
			free(want[k]);
		}
		b->v[b->k.nin - 1].dim[rows > 1 ? 3 : 1] += keys > 1 || rows > 1;
		struct kern_state *s;
		struct err *e = keys > 1 || rows > 1 ? kern_prepare(&b->k, &s) : NULL;
		assert_true((keys == 1 && rows == 1) || e);
		err_free(e);
		release(a);
		release(b);
		free(a);
		free(b);
	}
}

/* o of bf16 and the byte below it are o of f32 without its last bits: as many as the byte leaves, or one bit more where it cannot say that o lies in the middle. */
static void in_two_parts(void **state)
{
	for (int i = 0; i < draws(120); i++) {
		struct att *a = calloc(1, sizeof *a);
		double *part[3], *whole[2];
		int n;
		make(a, false, DT_bf16);
		n = a->k.nin;
		int64_t o[] = { a->dim[n][0], a->dim[n][1], a->g, a->t, a->e_ };
		if (a->k.nout == 1)
			view(a, n + 1, DT_f32, RANK - 1, o, 0, 0);
		struct att *b = malloc(sizeof *b);
		*b = *a;
		b->k.v = b->v;
		if (a->k.nout == 3)
			free(a->mem[n + 2]);
		view(a, n + 2, DT_i8, RANK, o, (int)rnd(2), 0);
		a->k.nout = 3;
		view(b, n, DT_f32, RANK, o, 0, 0);
		b->k.nout = 2;
		const struct att_variant *v = rnd(4) ? NULL : &att_reference;
		bool fast = run(a, v, 2, part);
		assert_true(run(b, v, 1, whole) == fast);
		for (int64_t c = count(&b->v[n]), j = 0; j < c; j++) {
			float x = (float)whole[0][j], high = (float)part[0][j];
			int32_t all, near;
			memcpy(&all, &x, sizeof all);
			memcpy(&near, &high, sizeof near);
			int64_t left = (int64_t)all - near - (int64_t)part[2][j] * 256;
			if (!isnan(x) && (left < 0 || left > (part[2][j] == 127 ? 256 : 255)))
				fail_msg("%g of %g and %g: %lld", x, high, part[2][j], (long long)left);
			assert_true(!isnan(x) || isnan(high));
		}
		for (int k = 0; k < 3; k++)
			free(part[k]);
		free(whole[0]);
		free(whole[1]);
		free(b->mem[n]);
		release(a);
		free(a);
		free(b);
	}
}

/* Values that are one number have that as their mean, whatever p is rounded to: the sums are of p as they are multiplied. */
static void mean(void **state)
{
	for (int i = 0; i < draws(120); i++) {
		struct att *a = calloc(1, sizeof *a);
		do {
			release(a);
			memset(a, 0, sizeof *a);
			if (i % 3 == 2)
				want_t = 1 + rnd(8), want_s = 600 + (int64_t)rnd(900);      /* parts of keys */
			make(a, false, DT_bf16);
		} while (a->mask == WEIGHTS);
		want_t = want_s = 0;
		int n = a->k.nin;
		int64_t o[] = { a->dim[n][0], a->dim[n][1], a->g, a->t, a->e_ };
		free(a->mem[n]);
		view(a, n, DT_f32, RANK, o, (int)rnd(2), 0);
		for (int64_t c = count(&a->v[ATT_V]), j = 0; j < c; j++)
			set(a, ATT_V, j, 1 + (double)(j % a->e_ % 16) / 16);
		/* references are raised, of some rows */
		for (int64_t c = count(&a->v[ATT_K]), j = 0; j < c && i & 1; j++)
			set(a, ATT_K, j, get(a, ATT_K, j) * (double)(1 + 8 * (j / a->d % a->s) / a->s));
		for (int k = -1; k < variants(); k++) {
			const struct att_variant *v = k < 0 ? NULL : &att_variant[k];
			double *got[3];
			if (v && (!v->has() || (is_model(v) && i % 4)))
				continue;
			run(a, v, 2, got);
			for (int64_t c = count(&a->v[n]), j = 0; j < c; j++)
				if (got[0][j] != 0 && !(fabs(got[0][j] - get(a, ATT_V, j % a->e_)) <= 4e-6))
					fail_msg("%s: mask %d t%d s%d d%d e%d: element %d of o is %.9g, not %.9g", v ? v->name : "chosen", a->mask, (int)a->t, (int)a->s, (int)a->d, (int)a->e_,
					         (int)j, got[0][j], get(a, ATT_V, j % a->e_));
			for (int x = 0; x < a->k.nout; x++)
				free(got[x]);
		}
		release(a);
		free(a);
	}
}

/* Results are added to what is there, rounded once; in f32, where they are kept meanwhile, by each phase. */
static void adds(void **state)
{
	for (int i = 0; i < draws(60); i++) {
		struct att *a = calloc(1, sizeof *a);
		double *want[3], *got[3];
		do {                     /* sums by an index are not added to any */
			release(a);
			memset(a, 0, sizeof *a);
			make(a, true, rnd(2) ? DT_f32 : DT_bf16);
		} while (a->ntally);
		forward_of(a);
		const struct att_variant *v = rnd(8) ? NULL : &att_reference;
		run(a, v, 1, want);
		a->k.id = KERN_attention_grad_add;
		run(a, v, 2, got);
		for (int k = 0; k < 3; k++) {
			const struct prog_view *view = &a->v[a->k.nin + k];
			double ulp = ldexp(1, view->dtype == DT_f32 ? -23 : view->dtype == DT_f16 ? -10 : -7);
			for (int64_t c = count(view), j = 0; j < c; j++) {
				double sum = want[k][j] + there(j), most = ulp * (2 * fabs(want[k][j]) + fabs(there(j)) + fabs(sum));
				if (!(fabs(got[k][j] - sum) <= most) && !(isnan(got[k][j]) && isnan(sum)) && got[k][j] != sum)
					fail_msg("result %d, element %lld: %g, not %g", k, (long long)j, got[k][j], sum);
			}
			free(want[k]);
			free(got[k]);
		}
		release(a);
		free(a);
	}
}

/* What an attention of t x s by d works in, of this type; of a gradient dq, and dk and dv, are of these types. */
static void work_of(const struct att_variant *v, bool grad, enum dtype dt, const enum dtype *to, int64_t t, int64_t s, int64_t d, size_t *scratch, size_t *shared)
{
	int64_t rows[] = { 1, t, d }, keys[] = { s, d }, wide[] = { t * d, d, 1 }, near[] = { d, 1 }, one[] = { t, 1 };
	struct prog_view view[9] = { 0 };
	int n = grad ? 6 : 3, nout = grad ? 3 : 1;
	for (int i = 0; i < n + nout; i++) {
		bool key = i == ATT_K || i == ATT_V || i > n, number = grad && (i == ATT_L || i == ATT_DELTA);
		view[i] = (struct prog_view){ .dtype = (uint8_t)(number ? DT_f32 : i < n || !grad ? dt : to[i > n]), .rank = key || number ? 2 : 3, .dim = key ? keys : rows, .stride = key ? near : number ? one : wide };
	}
	uint8_t in = DT_f32;
	uint16_t out[2] = { 0 };
	struct prog_expr e = { .nin = 1, .nout = grad ? 2 : 1, .in_type = &in, .out = out };
	struct prog_kern k = { .id = grad ? KERN_attention_grad : KERN_attention, .nin = (uint16_t)n, .nout = (uint16_t)nout, .v = view, .expr = &e, .code = -1 };
	struct kern_state *state;
	att_force = v;
	assert_null(kern_prepare(&k, &state));
	att_force = NULL;
	*scratch = kern_scratch(&k, state);
	*shared = kern_shared(&k, state);
	kern_release(state);
}

/* Of long keys it does not grow with them, and of a gradient with the rows of those results alone that are not f32, by two bytes a number where they are bf16. */
static void room(void **state)
{
	static const enum dtype to[][2] = { { DT_f32, DT_f32 }, { DT_bf16, DT_f32 }, { DT_bf16, DT_bf16 } };
	for (int i = 0; i < variants(); i++) {
		const struct att_variant *v = &att_variant[i];
		for (int64_t d = 64; v->has() && !v->few && d <= 128; d *= 2)
			for (int x = -1; x < (int)NELEM(to); x++) {
				enum dtype dt = v->es == 2 || x > 0 ? DT_bf16 : DT_f32;
				size_t was = 0, scratch, shared;
				for (int64_t s = 1 << 14; s <= 1 << 20; s *= 8) {
					work_of(v, x >= 0, dt, x < 0 ? NULL : to[x], 1 << 13, s, d, &scratch, &shared);
					assert_true(scratch <= (size_t)(d * (v->es == 2 ? 18 : 15)) << 10);
					assert_true(!was || scratch == was);
					was = scratch;
					assert_true(shared <= (x <= 0 ? 0 : (size_t)(2 * d) << 13) + (x == 2 ? (size_t)(4 * d) << 14 : 0));
				}
			}
	}
}

/* Few queries, many keys: parts of keys, and where whole parts are masked. */
static void decode(void **state)
{
	for (int i = 0; i < 3; i++) {
		want_t = 1 + i;
		want_s = 1030 + 900 * i;
		want_g = 4;
		all(false, 5);
	}
	want_t = want_s = want_g = 0;
}

/* Steps of decoding: few queries of a head of keys, which lie among those of others, or not. */
static void few(void **state)
{
	static const int64_t len[] = { 64, 256, 512, 528, 1024, 1, 33, 255, 700 };
	for (int i = 0; i < draws(80); i++) {
		struct att *a = calloc(1, sizeof *a);
		want_g = 1 + rnd(i & 1 ? 8 : 4);
		want_t = i & 1 ? 1 : 1 + rnd(3);
		want_s = len[rnd(NELEM(len))];
		want_d = rnd(2) ? 32 << rnd(3) : 0;
		want_mask = rnd(2) ? -1 : NO_MASK;
		make(a, false, rnd(2) ? DT_f32 : DT_bf16);
		compare(a, false, false);
		free(a);
	}
	want_g = want_t = want_s = want_d = 0;
	want_mask = -1;
}

/* Several blocks of everything, and parts. */
static void large(void **state)
{
	want_b = 1;
	want_t = 520;
	want_s = 400;
	want_g = 1;
	all(false, 3);
	all(true, 3);
	want_d = 16;      /* the reference is slow */
	/* the gradient's keys in several steps; what its queries sum up to waits in the result meanwhile */
	want_t = 260;
	want_s = 1900;
	all(true, 1);
	/* few batches at once */
	want_b = 4;
	want_t = 270;
	want_s = 1200;
	all(false, 1);
	all(true, 1);
	/* more keys than lie packed as f32 where they are half as wide */
	want_b = 1;
	want_t = 70;
	want_s = 4300;
	want_d = 128;
	for (int i = 0; i < 2; i++) {
		struct att *a = calloc(1, sizeof *a);
		make(a, false, i ? DT_f16 : DT_bf16);
		compare(a, false, false);
		free(a);
	}
	want_b = want_t = want_s = want_g = want_d = 0;
}

/* Batches so many that a tile has several groups of rows, and one goes on with the first keys while what the group before leaves is still to be done;
 * keys of ordinary lengths. */
static void groups(void **state)
{
	static const int64_t len[] = { 64, 128, 128, 160, 256, 384 };
	want_b = 8;
	want_g = 1;
	for (int i = 0; i < draws(12); i++) {
		struct att *a = calloc(1, sizeof *a);
		bool any = i > 1;
		want_t = any ? 64 * (1 + rnd(2)) : 64;
		want_s = any ? len[rnd(NELEM(len))] : i ? 384 : 128;
		want_d = any ? 32 << rnd(3) : 64;
		want_mask = any && rnd(2) ? -1 : NO_MASK;
		bool grad = any && rnd(4) == 0;
		make(a, grad, any && rnd(8) == 0 ? DT_f32 : DT_bf16);
		compare(a, grad, i % 4 == 1);
		free(a);
	}
	want_b = want_g = want_t = want_s = want_d = 0;
	want_mask = -1;
}

/* Many keys, all alike, in several blocks; they grow, so that what exponentials are relative to is raised again and again, also where some of the
 * sums before are still to be made. */
static void grows(void **state)
{
	static const int64_t width[] = { 64, 128, 16, 0, 96, 128, 256, 0 };
	static const int mask[] = { NO_MASK, CAUSAL, NO_MASK, SEGMENTS, CAUSAL, NO_MASK, LENGTHS, NO_MASK };
	want_b = want_g = 1;
	for (int i = 0; i < (int)NELEM(width); i++) {
		if (!drawn((uint64_t)i))
			continue;
		struct att *a = calloc(1, sizeof *a);
		want_t = 33 + 31 * (i & 1);
		want_s = 640 + 500 * (i >> 1 & 1);
		want_d = width[i];
		want_mask = mask[i];
		for (make(a, false, DT_bf16); i & 4 && a->k.nout == 3; make(a, false, DT_bf16)) {      /* z has the roundings of scores, which are of hundreds then */
			release(a);
			memset(a, 0, sizeof *a);
		}
		/* scores of some tens at most, beside which f32 is exact enough; or hundreds, so that exponentials would overflow beside the first keys */
		double less = (i & 4 ? 16 : 1.6) / (a->scale * a->size * sqrt((double)a->d));
		for (int64_t n = count(&a->v[ATT_Q]), j = 0; j < n; j++)
			set(a, ATT_Q, j, get(a, ATT_Q, j) * less);
		for (int64_t n = count(&a->v[ATT_K]), j = 0; j < n; j++)
			set(a, ATT_K, j, get(a, ATT_K, j) * (1 + (double)(j / a->d % a->s) / 64));
		compare(a, false, true);
		free(a);
	}
	want_b = want_g = want_t = want_s = want_d = 0;
	want_mask = -1;
}

/* What scores have in common, from products or a bias, takes nothing from them: all here are exact. */
static void offset(void **state)
{
	want_b = 1;
	want_t = 70;
	want_s = 600;
	want_d = 64;
	want_wide = true;
	for (int i = 0; i < 8; i++) {
		if (!drawn((uint64_t)i))
			continue;
		struct att *a = calloc(1, sizeof *a);
		bool grad = i & 1, bias = i & 2;
		want_mask = bias ? BIAS : NO_MASK;
		make(a, grad, i & 4 ? DT_bf16 : DT_f32);
		int p = grad ? ATT_GRAD_EXTRA : ATT_EXTRA;
		for (int x = ATT_Q; x <= ATT_K; x++)
			for (int64_t n = count(&a->v[x]), j = 0; j < n; j++)
				set(a, x, j, j % a->d || bias ? (double)rnd(7) - 3 : x == ATT_Q ? 4096 : 4);
		for (int64_t n = bias ? count(&a->v[p]) : 0, j = 0; j < n; j++)
			set(a, p, j, 131072);
		compare(a, grad, true);
		free(a);
	}
	want_b = want_t = want_s = want_d = 0;
	want_mask = -1;
	want_wide = false;
}

/* A gradient's weights are rounded but once, however much larger l is than the scores; and are what they should be beside numbers that are none. */
static void weights(void **state)
{
	static const float special[][3] = {      /* score, l, weight */
		{ -INFINITY, 1, 0 }, { -INFINITY, -2e30f, 0 }, { 1, INFINITY, 0 }, { -INFINITY, INFINITY, 0 }, { -1e30f, 5, 0 }, { -3e38f, 5, 0 }, { -3e38f, 3e38f, 0 },
		{ -1e30f, -1e30f, 1 }, { 4e5f, 4e5f, 1 }, { NAN, 1, NAN }, { 1, NAN, NAN }, { INFINITY, 1, INFINITY }, { -200, 1, 0 },
	};
	static _Alignas(64) float s[16 * ATT_COLS], y[16 * ATT_COLS], l[ATT_COLS], less[ATT_COLS], delta[ATT_COLS], p[16 * ATT_COLS], dx[16 * ATT_COLS], panel[16 * ATT_COLS];
	for (int v = 0; v < att_nvariant; v++) {
		const struct att_variant *x = &att_variant[v];
		if (!x->has() || x->es != 4)
			continue;
		double most = 0;
		for (int turn = 0; turn < 200; turn++) {
			for (int i = 0; i < 16 * ATT_COLS; i++) {
				s[i] = (float)(turn % 5) * unit();
				y[i] = unit();
			}
			double whole[ATT_COLS];
			for (int i = 0; i < ATT_COLS; i++) {
				whole[i] = rnd(12) + (double)unit();
				l[i] = (float)whole[i];
				less[i] = att_less(whole[i], l[i], 1);
				delta[i] = unit();
			}
			x->soft->backward(16, s, y, l, (float)M_LOG2E, less, delta, 1, NULL, NULL, (char *)p, (char *)dx, sizeof *p * ATT_COLS, (char *)panel);
			for (int i = 0; i < 16 * ATT_COLS; i++) {
				double want = exp(s[i] - whole[i % ATT_COLS]);
				most = fmax(most, fabs(p[i] - want) / want);
			}
		}
		if (most > 0x1.4p-23)
			fail_msg("%s: a weight is off by %g of itself", x->name, most);
		for (int k = 0; k < (int)NELEM(special); k++) {
			for (int i = 0; i < 16 * ATT_COLS; i++)
				s[i] = special[k][0];
			for (int i = 0; i < ATT_COLS; i++) {
				l[i] = special[k][1];
				less[i] = 0;
			}
			x->soft->backward(16, s, y, l, (float)M_LOG2E, less, delta, 1, NULL, NULL, (char *)p, (char *)dx, sizeof *p * ATT_COLS, (char *)panel);
			for (int i = 0; i < 16 * ATT_COLS; i++)
				if (isnan(special[k][2]) ? !isnan(p[i]) : p[i] != special[k][2])
					fail_msg("%s: score %g, l %g: weight %g, not %g", x->name, special[k][0], special[k][1], p[i], special[k][2]);
		}
	}
}

/* Keys that count little beside those before them, but count. */
static void faint(void **state)
{
	want_b = 1;
	want_faint = true;
	want_mask = FALLS;
	want_t = 70;
	want_s = 600;
	all(false, 4);
	all(true, 4);
	want_faint = false;
	want_mask = -1;
	want_b = want_t = want_s = 0;
}

/* Tiles that no query counts are left out: of all, so many thousandths at most are made. */
static void skipped(void **state)
{
	static const struct { int mask; int most; } cases[] = { { CAUSAL, 560 }, { WINDOW, 150 }, { SEGMENTS, 290 }, { CHUNKS, 260 }, { FALLS, 870 }, { NO_MASK, 1000 } };
	for (int v = 0; v < variants(); v++)
		for (int i = 0; i < 2 * (int)NELEM(cases) && att_variant[v].has() && !is_model(&att_variant[v]) && !att_variant[v].few; i++) {
			if (!drawn((uint64_t)(100 * v + i)))
				continue;
			struct att *a = calloc(1, sizeof *a);
			bool grad = i & 1;
			double *out[3];
			seed = 1;      /* how many depends on what is drawn */
			want_t = want_s = 1024;
			want_g = 1;
			want_mask = cases[i / 2].mask;
			make(a, grad, att_variant[v].es == 2 ? DT_bf16 : DT_f32);
			for (int r = 0; grad && r < count(&a->v[ATT_L]); r++)
				set(a, ATT_L, r, 1);
			assert_true(run(a, &att_variant[v], 1, out));
			long long done = att_tiles_done, all = done + att_tiles_left;
			if (done * 1000 > all * cases[i / 2].most)
				fail_msg("%s, mask %d, %s: %lld of %lld tiles", att_variant[v].name, want_mask, grad ? "backward" : "forward", done, all);
			for (int r = 0; r < a->k.nout; r++)
				free(out[r]);
			release(a);
			free(a);
		}
	want_t = want_s = want_g = 0;
	want_mask = -1;
}

/* What is not a number in values that no query counts does not reach a result; elsewhere it does, as in the reference. */
static void not_numbers(void **state)
{
	for (int i = 0; i < 40; i++) {      /* the last ones of few rows */
		if (!drawn((uint64_t)i))
			continue;
		struct att *a = calloc(1, sizeof *a);
		bool few = i >= 24, grad = i & 1 && !few, far = i < 16 || few;
		want_s = 100;
		want_t = few ? 1 + rnd(5) : 40;
		want_g = few;
		want_mask = far ? LENGTHS : CAUSAL;
		make(a, grad, i & 4 ? DT_bf16 : DT_f32);
		if (far) {
			int len = a->k.nin - 2;
			for (int64_t j = 0; j < count(&a->v[len]); j++)
				set(a, len, j, (double)(50 + rnd(20)));
			for (int64_t n = count(&a->v[ATT_V]), j = 0; j < n; j++)
				if (j / a->e_ % a->s >= 70 && rnd(3) == 0)
					set(a, ATT_V, j, rnd(2) ? NAN : INFINITY);
		} else {
			set(a, i & 2 ? ATT_Q : ATT_V, rnd((uint32_t)count(&a->v[i & 2 ? ATT_Q : ATT_V])), NAN);
		}
		if (grad && !far)
			release(a);      /* a row that is NaN makes all keys so; of which elements is said nowhere */
		else
			compare(a, grad, true);
		free(a);
	}
	/* in the midst of many tiles that are alike, where nothing but o is asked for */
	want_s = 600;
	want_t = 40;
	want_g = 0;
	want_mask = NO_MASK;
	for (int i = 0; i < 4; i++) {
		struct att *a = calloc(1, sizeof *a);
		for (make(a, false, DT_bf16); a->k.nout > 1; make(a, false, DT_bf16)) {
			release(a);
			memset(a, 0, sizeof *a);
		}
		set(a, i & 1 ? ATT_Q : ATT_K, rnd((uint32_t)count(&a->v[i & 1 ? ATT_Q : ATT_K])), i & 2 ? INFINITY : NAN);
		compare(a, false, i == 0);
		free(a);
	}
	/* in all keys of the first tile, whose rows have no reference then */
	for (int i = 0; i < 4; i++) {
		struct att *a = calloc(1, sizeof *a);
		make(a, false, i & 1 ? DT_f32 : DT_bf16);
		for (int64_t n = count(&a->v[ATT_K]), j = 0; j < n; j++)
			if (j / a->d % a->s < 32)
				set(a, ATT_K, j, NAN);
		compare(a, false, false);
		free(a);
	}
	want_t = want_s = 0;
	want_mask = -1;
}

/* Bounds hold: of operands between two numbers each, what a function gives lies in its bounds. */
static double drawn_number(enum dtype dt, const double *lo, const double *hi)
{
	static const double some[] = { 0, 1, -1, 2, 3, 7, 63, 64, 65, 127, 128, 1000, 2147483647, -2147483648.0, 1e6, 0.5, 1e-40, 1e30 };
	double x = rnd(3) ? some[rnd(NELEM(some))] : (double)rnd(400) - 200;
	x = rnd(4) ? x : -x;
	if (lo)
		x = rnd(3) == 0 ? *lo : rnd(2) ? *hi : *lo + (*hi - *lo) * rnd(1001) / 1000;
	union { char p[16]; } u = { { 0 } };
	kern_elem(ELEM_convert, DT_f64, dt)(1, &u, &x, NULL, NULL);
	att_number(dt, u.p, &x);
	return x;
}

static void bounds(void **state)
{
	static const uint8_t fns[] = { ELEM_divide, ELEM_remainder, ELEM_sign, ELEM_shift_right_arithmetic, ELEM_shift_right_logical, ELEM_add, ELEM_subtract, ELEM_multiply,
		ELEM_minimum, ELEM_maximum, ELEM_abs, ELEM_negate, ELEM_compare_eq, ELEM_compare_ne, ELEM_compare_lt, ELEM_compare_ge };
	static const uint8_t types[] = { DT_i8, DT_u8, DT_i16, DT_i32, DT_u32, DT_i64, DT_f32, DT_f64 };
	int exact = 0;
	for (int i = 0; i < draws(200000); i++) {
		enum elem fn = (enum elem)fns[rnd(NELEM(fns))];
		enum dtype dt = (enum dtype)types[rnd(NELEM(types))];
		bool pred = fn == ELEM_compare_eq || fn == ELEM_compare_ne || fn == ELEM_compare_lt || fn == ELEM_compare_ge, whole = dtype_info[dt].cls != DT_FLOAT;
		enum dtype to = pred ? DT_pred : dt;
		if (!kern_elem(fn, dt, to))
			continue;
		struct prog_ins x = { .fn = fn, .from = (uint8_t)dt, .to = (uint8_t)to };
		struct kern_bound in[2];
		double end[2][2];
		for (int k = 0; k < 2; k++) {
			double a = drawn_number(dt, NULL, NULL), b = rnd(3) ? drawn_number(dt, NULL, NULL) : a;
			end[k][0] = fmin(a, b);
			end[k][1] = fmax(a, b);
			char p[2][16];
			for (int m = 0; m < 2; m++)
				kern_elem(ELEM_convert, DT_f64, dt)(1, p[m], &end[k][m], NULL, NULL);
			struct kern_bound l = kern_bound_of(dt, p[0]), h = kern_bound_of(dt, p[1]);
			in[k] = (struct kern_bound){ l.lo, h.hi, l.nan || h.nan };
		}
		struct kern_bound out = kern_bound(&x, in);
		exact += whole && out.lo == out.hi;
		for (int turn = 0; turn < 8; turn++) {
			char p[3][16];
			double v[3];
			for (int k = 0; k < 2; k++) {
				v[k] = drawn_number(dt, &end[k][0], &end[k][1]);
				kern_elem(ELEM_convert, DT_f64, dt)(1, p[k], &v[k], NULL, NULL);
				att_number(dt, p[k], &v[k]);
			}
			if (v[0] < end[0][0] || v[0] > end[0][1] || v[1] < end[1][0] || v[1] > end[1][1])
				continue;                        /* rounded out of it */
			kern_elem(fn, dt, to)(1, p[2], p[0], p[1], NULL);
			if (att_number(to, p[2], &v[2]) && !(isnan(v[2]) ? out.nan : v[2] >= out.lo && v[2] <= out.hi))
				fail_msg("%s of %s: %g, %g give %.17g, which is not in %.17g .. %.17g of [%g, %g] and [%g, %g]", elem_info[fn].name, dtype_info[dt].name, v[0], v[1], v[2], out.lo, out.hi,
				         end[0][0], end[0][1], end[1][0], end[1][1]);
		}
	}
	assert_true(exact > draws(200000) / 20);       /* and say something */
	const struct { enum elem fn; struct kern_bound a, b; double lo, hi; } tight[] = {
		{ ELEM_divide, { 64, 127, false }, { 64, 64, false }, 1, 1 }, { ELEM_divide, { -63, 63, false }, { 64, 64, false }, 0, 0 }, { ELEM_divide, { 10, 20, false }, { -3, -2, false }, -10, -3 },
		{ ELEM_remainder, { 130, 140, false }, { 64, 64, false }, 2, 12 }, { ELEM_remainder, { 60, 70, false }, { 64, 64, false }, 0, 63 }, { ELEM_remainder, { -5, 2, false }, { 64, 64, false }, -5, 2 },
		{ ELEM_sign, { -3, 0, false }, { 0, 0, false }, -1, 0 }, { ELEM_shift_right_arithmetic, { -1, 128, false }, { 7, 7, false }, -1, 1 },
		{ ELEM_shift_right_logical, { 128, 255, false }, { 7, 7, false }, 1, 1 },
	};
	for (size_t i = 0; i < NELEM(tight); i++) {
		struct prog_ins x = { .fn = tight[i].fn, .from = DT_i32, .to = DT_i32 };
		struct kern_bound in[2] = { tight[i].a, tight[i].b }, out = kern_bound(&x, in);
		if (out.lo != tight[i].lo || out.hi != tight[i].hi || out.nan)
			fail_msg("%zu: %g .. %g", i, out.lo, out.hi);
	}
}

/* p as an integer, of every exponent there is, those that are too small and too large among them; products are 0, so that a row's reference tells which. */
static void words(void **state)
{
	enum { ROWS = ATT_MOST_MR, KEYS = ATT_HALF * ATT_COLS, END = 65536 + 256 };
	static char zero[KEYS * 64] __attribute__((aligned(64)));      /* rows, and keys as panels, of 32 bf16 */
	static float s[2 * ROWS * ATT_COLS] __attribute__((aligned(64))), sum[2 * ROWS][ATT_LANES] __attribute__((aligned(64))), l[ROWS][ATT_LANES] __attribute__((aligned(64)));
	static uint16_t p[ROWS][KEYS] __attribute__((aligned(64)));
	for (int i = 0; i < variants(); i++) {
		const struct att_variant *v = &att_variant[i];
		double mean = 0;
		if (!v->stream || !v->has())
			continue;
		if (v->begin)
			v->begin();
		for (int t0 = -ROWS; t0 < END; t0 += ROWS) {
			float m[ROWS], most = 0;
			for (int r = 0; r < ROWS; r++)
				m[r] = t0 == -ROWS && r < 2 ? r ? 1e30f : INFINITY : (float)-(t0 + r);
			memset(l, 0, sizeof l);
			struct att_step q = { .steps = 16, .lda = 64, .a = zero, .b = zero, .s = s, .words = true, .m = m, .c2 = 1, .sum = sum, .l = l, .p = (char *)p, .ldp = sizeof *p };
			bool grown = v->stream(&q);
			for (int r = 0; r < ROWS; r++) {
				int t = t0 + r, w = p[r][0];
				double want = t < 0 ? 0 : t / 256 * 128 + 128 * (exp2((t % 256 + 0.5) / 256) - 1);
				for (int j = 1; j < KEYS; j++)
					assert_int_equal(p[r][j], w);
				if (t < 0xff00 ? !(fabs(w - want) <= 0.8) : w < 0x7f80 || w > 0x7fff)
					fail_msg("%s: exponent %d of 256ths is %#x, not %g", v->name, t, w, want);
				if (t / 256 == 127)
					mean += bf16_to_f32((uint16_t)w) / exp2((t + 0.5) / 256 - 127) / 256;
				if (!grown)
					assert_true(l[r][3] == (w < 128 ? 0 : KEYS / ATT_LANES * bf16_to_f32((uint16_t)w)));
				most = w >= 0x7f80 ? INFINITY : fmaxf(most, bf16_to_f32((uint16_t)w));
			}
			assert_int_equal(grown, most * (KEYS / ATT_LANES) > ATT_GROWN);
		}
		if (v->end)
			v->end();
		assert_true(fabs(mean - 1) < 1e-4);
	}
}

/* Scores by scale; or, of rows whose highest ones are in operand m, 0 where a score is that, and -inf elsewhere. */
static void highest(struct att *a, int m)
{
	a->e.n = 0;
	uint16_t x = put(a, ELEM_multiply, DT_f32, DT_f32, 0, number(a, a->scale), 0);
	if (m)
		x = put(a, ELEM_select, DT_f32, DT_f32, put(a, ELEM_compare_eq, DT_f32, DT_pred, x, 1, 0), number(a, 0), number(a, -INFINITY));
	a->out[0] = x;
	a->out[1] = number(a, 1);
}

/* The highest scores of all rows as an operand. */
static int rows_of(struct att *a, const double *m)
{
	int64_t dim[RANK] = { a->v[0].dim[0], a->v[0].dim[1], a->g, a->t, 1 };
	int i = a->k.nin++;
	view(a, i, DT_f32, RANK, dim, (int)rnd(2), 0);
	a->in_type[a->e.nin++] = DT_f32;
	for (int64_t n = count(&a->v[i]), x = 0; x < n; x++)
		set(a, i, x, m[x]);
	return i;
}

/* The highest score that a part gives is a score, bit by bit, of another function and backward, too: each row has one that is equal to it. */
static void tops(void **state)
{
	want_mask = NO_MASK;
	for (int i = 0; i < 60 * variants(); i++) {
		const struct att_variant *v = &att_variant[i / 60];
		if (!drawn((uint64_t)i) || v->few || !v->has())
			continue;
		struct att *a = calloc(1, sizeof *a), *f = calloc(1, sizeof *f);
		double *m[3], *all[3], *grad[3], hits[2] = { 0 };
		seed = (uint64_t)i + 1;
		make(a, true, v->es == 2 ? DT_bf16 : DT_f32);
		*f = *a;
		f->k.id = KERN_attention;
		f->k.v = f->v;
		f->k.expr = &f->e;
		f->e.ins = f->ins;
		f->e.out = f->out;
		f->e.nout = 1;
		for (int r = 0; r < 2; r++) {
			int64_t n = f->k.nin = 3, rows[] = { a->v[0].dim[0], a->v[0].dim[1], a->g, a->t };
			f->e.nin = 1;
			int top = r ? rows_of(f, m[1]) : 0;
			n = f->k.nin;
			view(f, (int)n, DT_f32, RANK, a->dim[ATT_DO], 0, 0);
			view(f, (int)n + 1, DT_f32, RANK - 1, rows, 0, 0);
			view(f, (int)n + 2, DT_f32, RANK - 1, rows, 0, 0);
			f->k.nout = 3;
			highest(f, top);
			run(f, v, 1, r ? all : m);
			for (int x = 3; x < f->k.nin + 3; x++)
				free(f->mem[x]);
		}
		for (int64_t r = 0; r < count(&a->v[ATT_L]); r++) {
			assert_true(all[2][r] > 0.99);
			hits[0] += nearbyint(all[2][r]);      /* 2^0 of a bf16 road is 1 to 2.6e-6 */
			set(a, ATT_L, r, 0);
			set(a, ATT_DELTA, r, 0);
		}
		for (int64_t x = 0; x < count(&a->v[ATT_DO]); x++)
			set(a, ATT_DO, x, 1);
		for (int x = 6; x < 9; x++)
			free(a->mem[x]);
		a->k.nin = 6;
		a->e.nin = 1;
		int top = rows_of(a, m[1]);
		for (int x = 0; x < 3; x++)
			view(a, 7 + x, DT_f32, a->v[x].rank, a->dim[x], 0, 0);
		highest(a, top);
		a->e.nout = 2;
		run(a, v, 1, grad);
		for (int64_t x = 0; x < count(&a->v[9]); x += a->e_)
			hits[1] += grad[2][x];
		if (hits[0] != hits[1])
			fail_msg("%s, %d rows, %d keys: %g scores are the highest of a row, backward %g", v->name, (int)count(&a->v[ATT_L]), (int)a->s, hits[0], hits[1]);
		for (int x = 0; x < 3; x++) {
			free(m[x]);
			free(all[x]);
			free(grad[x]);
		}
		release(a);
		free(a);
		free(f);
	}
	want_mask = -1;
}

int main(void)
{
	cpu_set_ftz();
	const struct CMUnitTest t[] = { cmocka_unit_test(forward), cmocka_unit_test(backward), cmocka_unit_test(in_pieces), cmocka_unit_test(in_two_parts), cmocka_unit_test(mean), cmocka_unit_test(adds), cmocka_unit_test(room), cmocka_unit_test(decode), cmocka_unit_test(few), cmocka_unit_test(large), cmocka_unit_test(groups), cmocka_unit_test(grows), cmocka_unit_test(offset), cmocka_unit_test(weights), cmocka_unit_test(words), cmocka_unit_test(tops), cmocka_unit_test(faint),
	                               cmocka_unit_test(skipped), cmocka_unit_test(not_numbers), cmocka_unit_test(bounds) };
	return cmocka_run_group_tests(t, NULL, NULL);
}
