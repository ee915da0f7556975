/* What operations cost, apart from any machine: how many operations on elements, how long these take in additions, how many bytes
 * they read and write at least.
 *
 * ops.def names for each kind of op the function here that knows it; elem.def says what an elementwise function takes.  Who chooses
 * by the work of an op asks this table, and src/plan for what it means in nanoseconds. */
#include "ir.h"

#include <math.h>

struct rule {
	const struct ir_module *m;
	const struct ir_fn *fn;
	const struct ir_op *o;
	struct arena *a;
	double points;           /* times the op does what it does; 0: it does nothing, or many things */
	struct ir_cost c;
};

/* Additions an element that is found by an index takes; a number of rng_bit_generator (20 rounds of threefry, two words each), of rng. */
enum { TAKE = 4, BITS = 40, DRAW = 60 };

static const struct ir_type_info *in_t(const struct rule *r, uint32_t i) { return ir_vtype(r->m, r->fn, ir_in(r->fn, r->o, i)); }
static const struct ir_type_info *out_t(const struct rule *r, uint32_t i) { return ir_vtype(r->m, r->fn, r->o->out + i); }

/* Bytes of v that a reader of all its elements reads: what is behind views of it, nothing of equal elements. */
static double read_bytes(const struct ir_module *m, const struct ir_fn *fn, ir_val v)
{
	int64_t n = ir_vtype(m, fn, v)->bytes;
	const struct ir_op *o;
	while ((o = ir_def(fn, v)) && ir_info(o->kind)->flags & IR_VIEW) {
		v = ir_in(fn, o, 0);
		n = MIN(n, ir_vtype(m, fn, v)->bytes);
	}
	return o && ir_splat(m, fn, v) ? 0 : (double)n;
}

static void reads(struct rule *r, uint32_t from, uint32_t to)
{
	for (uint32_t k = from; k < to; k++)
		r->c.bytes += read_bytes(r->m, r->fn, ir_in(r->fn, r->o, k));
}

static void writes(struct rule *r)
{
	for (uint32_t k = 0; k < r->o->nout; k++)
		r->c.bytes += (double)out_t(r, k)->bytes;
}

static void all_bytes(struct rule *r)
{
	reads(r, 0, r->o->nin);
	writes(r);
}

/* The op does something n times, each time flops operations that take as long as adds additions. */
static void does(struct rule *r, double n, double flops, double adds)
{
	r->points = n;
	r->c.flops = n * flops;
	r->c.adds = n * adds;
}

/* One combination of two values of type dt, or of two tuples, by a known operation or by function f. */
static struct ir_cost combination(const struct ir_module *m, enum redop op, ir_fnid f, enum dtype dt)
{
	if (op == RED_fn && f)
		return ir_cost_of_fn(m, ir_fn_of(m, f));
	if (op == RED_lse || op == RED_softmax)
		return (struct ir_cost){ .flops = 4, .adds = 2 * elem_work(ELEM_exponential, dt) };
	return (struct ir_cost){ .flops = op != RED_fn, .adds = op == RED_fn ? 1 : elem_work(redop_elem[op], dt) };
}

static struct ir_cost combined_by(const struct rule *r, enum dtype dt)
{
	return combination(r->m, (enum redop)ir_attr(r->fn, r->o, AT_redop), (ir_fnid)ir_attr(r->fn, r->o, AT_fn), dt);
}

static double product_of(const struct ir_fn *fn, const struct ir_op *o, enum ir_at list)
{
	int n;
	double p = 1;
	const int64_t *x = ir_attrs(fn, o, list, &n);
	for (int i = 0; i < n; i++)
		p *= (double)x[i];
	return p;
}

/* --- rows ----------------------------------------------------------------------- */

static void nothing(struct rule *r) { (void)r; }

static void each(struct rule *r)
{
	bool elem = ir_is_elem(r->o->kind);
	does(r, (double)out_t(r, 0)->count, 1, elem ? elem_work(ir_elem(r->o->kind), in_t(r, r->o->nin > 1)->dtype) : 1);
	all_bytes(r);
}

static void made(struct rule *r)
{
	does(r, (double)out_t(r, 0)->count, 0, 1);
	writes(r);
}

static void moved(struct rule *r)
{
	double n = 0;
	for (uint32_t k = 0; k < r->o->nout; k++)
		n += (double)out_t(r, k)->count;
	does(r, n, 0, 1);
	all_bytes(r);
}

/* As many elements of the operand as the result has. */
static void taken(struct rule *r)
{
	does(r, (double)out_t(r, 0)->count, 0, TAKE);
	reads(r, 1, r->o->nin);
	writes(r);
	r->c.bytes += MIN((double)out_t(r, 0)->bytes, read_bytes(r->m, r->fn, ir_in(r->fn, r->o, 0)));
}

/* In place: the updates, and what they are written over, which is read if they are combined with it. */
static void updated(struct rule *r)
{
	bool scatter = r->o->kind == IR_scatter;
	uint32_t n = scatter ? (r->o->nin - 1) / 2 : 1, first = scatter ? n + 1 : 1;
	struct ir_cost c = { .adds = 1 };
	if (scatter)
		c = combined_by(r, in_t(r, first)->dtype);
	does(r, (double)in_t(r, first)->count, c.flops, scatter ? TAKE + c.adds : 1);
	reads(r, n, r->o->nin);
	for (uint32_t k = 0; k < n; k++)
		r->c.bytes += (c.flops > 0 ? 2 : 1) * (double)in_t(r, first + k)->bytes;
}

/* The first element of each sum is combined with the initial value, which most often is not worth counting. */
static void reduced(struct rule *r)
{
	uint32_t n = r->o->nin / 2;
	struct ir_cost c = combined_by(r, in_t(r, 0)->dtype);
	does(r, (double)in_t(r, 0)->count, c.flops, MAX(c.adds, n));
	all_bytes(r);
}

static void windows(struct rule *r)
{
	double window = product_of(r->fn, r->o, AT_window), n = (double)out_t(r, 0)->count;
	struct ir_cost c = combined_by(r, in_t(r, 0)->dtype);
	does(r, n * window, c.flops, MAX(c.adds, 1));
	r->c.flops = n * MAX(window - 1, 0) * c.flops;
	all_bytes(r);
}

static void scattered(struct rule *r)
{
	double window = product_of(r->fn, r->o, AT_window), n = (double)in_t(r, 1)->count;
	struct ir_cost s = ir_cost_of_fn(r->m, ir_fn_of(r->m, (ir_fnid)ir_attr(r->fn, r->o, AT_select))),
	               c = ir_cost_of_fn(r->m, ir_fn_of(r->m, (ir_fnid)ir_attr(r->fn, r->o, AT_scatter)));
	does(r, n * window, 0, TAKE * (1 + MAX(s.adds, 1)) + 2 * TAKE * (TAKE + c.adds) / MAX(window, 1));      /* elements and where they lie are chosen; each goes to its place alone */
	r->c.flops = n * (MAX(window - 1, 0) * s.flops + c.flops);
	all_bytes(r);
}

/* n log n comparisons, after each of which an element of every operand moves. */
static void sorted(struct rule *r)
{
	const struct ir_type_info *t = in_t(r, 0);
	double n = t->rank ? (double)t->dim[ir_attr(r->fn, r->o, AT_dim)] : 1, levels = ceil(log2(MAX(n, 2)));
	struct ir_cost c = ir_cost_of_fn(r->m, ir_fn_of(r->m, (ir_fnid)ir_attr(r->fn, r->o, AT_fn)));
	does(r, (double)t->count, levels * c.flops, levels * (c.adds + TAKE * r->o->nin));
	all_bytes(r);
}

/* All elements are compared with the least of the k so far; those in between are sorted. */
static void selected(struct rule *r)
{
	double k = (double)ir_attr(r->fn, r->o, AT_k), sort = (double)out_t(r, 0)->count * ceil(log2(MAX(k, 2)));
	does(r, (double)in_t(r, 0)->count, 1, 1);
	r->c.flops += sort;
	r->c.adds += sort * TAKE;
	all_bytes(r);
}

static void scanned(struct rule *r)
{
	struct ir_cost c = combination(r->m, (enum redop)ir_attr(r->fn, r->o, AT_redop), 0, out_t(r, 0)->dtype);
	does(r, (double)out_t(r, 0)->count, c.flops, MAX(c.adds, 1));
	all_bytes(r);
}

/* A multiplication and an addition; with complex numbers four of each. */
static double pair_of(const struct ir_type_info *t)
{
	return dtype_info[t->dtype].cls == DT_COMPLEX ? 8 : 2;
}

static void products(struct rule *r)
{
	double two = pair_of(in_t(r, 0));
	does(r, ir_axes_points(ir_axes_of(r->a, r->m, r->fn, r->o)), two, two);
	all_bytes(r);
}

/* Two products of each query and key, or five, and what the function of scores and the exponential take. */
static void attended(struct rule *r)
{
	bool grad = r->o->kind == IR_attention_grad || r->o->kind == IR_attention_grad_add;
	const struct ir_type_info *q = in_t(r, 0), *k = in_t(r, 1), *v = in_t(r, 2);
	double d = (double)q->dim[q->rank - 1], e = (double)v->dim[v->rank - 1], pairs = (double)k->dim[k->rank - 2];
	for (int i = 0; i < q->rank - 1; i++)
		pairs *= (double)q->dim[i];
	struct ir_cost c = ir_cost_of_fn(r->m, ir_fn_of(r->m, (ir_fnid)ir_attr(r->fn, r->o, AT_fn)));
	double mul = 2 * (grad ? 3 * d + 2 * e : d + e);
	does(r, pairs, mul + c.flops + 4, mul + c.adds + elem_work(ELEM_exponential, DT_f32));
	all_bytes(r);
}

/* Integers i in [0, n) for which start + i * stride is in [0, room) and a multiple of every (the mean, if both strides are more than 1). */
static double hits(int64_t n, int64_t start, int64_t stride, int64_t room, int64_t every)
{
	int64_t lo = start < 0 ? (-start + stride - 1) / stride : 0, hi = start < room ? MIN(n, (room - start + stride - 1) / stride) : 0;
	if (hi <= lo)
		return 0;
	if (every == 1)
		return (double)(hi - lo);
	int64_t g = gcd_of(stride, every);
	if (stride > 1)
		return start % g ? 0 : (double)(hi - lo) * (double)g / (double)every;
	return (double)((start + hi - 1) / every - (start + lo + every - 1) / every + 1);
}

/* Elements of padding are not counted, nor what dilation puts between elements. */
static void convolved(struct rule *r)
{
	int n;
	const struct ir_fn *fn = r->fn;
	const struct ir_op *o = r->o;
	const int64_t *lhs = ir_attrs(fn, o, AT_lhs, &n), *rhs = ir_attrs(fn, o, AT_rhs, &n), *out = ir_attrs(fn, o, AT_out, &n);
	int k;
	const int64_t *stride = ir_attrs(fn, o, AT_stride, &k), *low = ir_attrs(fn, o, AT_low, &k), *between = ir_attrs(fn, o, AT_lhs_dilation, &k),
	              *apart = ir_attrs(fn, o, AT_rhs_dilation, &k);
	const struct ir_type_info *x = in_t(r, 0), *w = in_t(r, 1), *y = out_t(r, 0);
	double points = (double)y->dim[out[0]] * (double)y->dim[out[1]] * (double)w->dim[rhs[0]], two = pair_of(x);
	for (int d = 0; d < n - 2; d++) {
		double pairs = 0;
		int64_t room = x->dim[lhs[d + 2]] ? (x->dim[lhs[d + 2]] - 1) * between[d] + 1 : 0;
		for (int64_t j = 0; j < w->dim[rhs[d + 2]]; j++)
			pairs += hits(y->dim[out[d + 2]], j * apart[d] - low[d], stride[d], room, between[d]);
		points *= pairs;
	}
	does(r, points, two, two);
	all_bytes(r);
}

/* n^3 / 3 */
static void factored(struct rule *r)
{
	const struct ir_type_info *t = in_t(r, 0);
	does(r, (double)t->count * (double)t->dim[t->rank - 1] / 6, pair_of(t), pair_of(t));
	all_bytes(r);
}

/* n^2 for each right-hand side */
static void solved(struct rule *r)
{
	const struct ir_type_info *a = in_t(r, 0), *b = in_t(r, 1);
	does(r, (double)b->count * (double)a->dim[a->rank - 1] / 2, pair_of(a), pair_of(a));
	all_bytes(r);
}

/* 5 n log2 n, half of it from or to reals */
static void transformed(struct rule *r)
{
	double n = product_of(r->fn, r->o, AT_length), real = dtype_info[in_t(r, 0)->dtype].cls != DT_COMPLEX || dtype_info[out_t(r, 0)->dtype].cls != DT_COMPLEX;
	const struct ir_type_info *t = dtype_info[in_t(r, 0)->dtype].cls != DT_COMPLEX ? in_t(r, 0) : out_t(r, 0);
	double once = 5 * log2(MAX(n, 2)) / (real > 0 ? 2 : 1);
	does(r, (double)t->count, once, once);
	all_bytes(r);
}

static void bits(struct rule *r)
{
	does(r, (double)out_t(r, 1)->bytes / 4, 0, BITS);
	all_bytes(r);
}

static void drawn(struct rule *r)
{
	does(r, (double)out_t(r, 0)->count, 0, DRAW);
	writes(r);
}

/* Members share the sums among them, so each makes about one sum for each element of its own. */
static void combined(struct rule *r)
{
	double n = 0;
	for (uint32_t k = 0; k < r->o->nin; k++)
		n += (double)in_t(r, k)->count;
	struct ir_cost c = combined_by(r, r->o->nin ? in_t(r, 0)->dtype : DT_f32);
	does(r, n, c.flops, MAX(c.adds, 1));
	all_bytes(r);
}

static void plus(struct ir_cost *c, double times, struct ir_cost x)
{
	c->flops += times * x.flops;
	c->adds += times * x.adds;
	c->bytes += times * x.bytes;
	c->ops += times * x.ops;
}

/* What group g reads of its parameter: a part of it where it only takes parts. */
static double group_reads(const struct ir_module *m, const struct ir_fn *g, ir_val v)
{
	double whole = (double)ir_vtype(m, g, v)->bytes, parts = 0;
	for (uint32_t u = ir_use_first(g, v); u; u = ir_use_next(g, u)) {
		const struct ir_op *o = &g->op.p[ir_use_op(g, u)];
		bool part = (o->kind == IR_gather || o->kind == IR_dynamic_slice || o->kind == IR_slice) && ir_use_operand(g, u) == 0;
		parts += part ? (double)ir_vtype(m, g, o->out)->bytes : whole;
	}
	return MIN(whole, parts);
}

static void held(struct rule *r)
{
	const struct ir_op *o = r->o;
	int cap = (int)ir_attr_words(r->fn, o);
	ir_fnid *f = ARENA_NEW(r->a, ir_fnid, cap);
	int n = ir_regions(r->fn, o, f, cap);
	double times = o->kind == IR_loop ? ir_turns(r->fn, o) : 1;
	for (int k = 0; k < n; k++) {
		struct ir_cost c = ir_cost_of_fn(r->m, ir_fn_of(r->m, f[k]));
		if (o->kind == IR_case && c.adds < r->c.adds)
			continue;                /* one branch runs, at most the dearest */
		if (o->kind == IR_case)
			r->c = (struct ir_cost){0};
		plus(&r->c, times, c);
	}
	if (o->kind == IR_fused)
		r->c = ir_cost_of_group(r->m, ir_fn_of(r->m, f[0]));
}

/* --- asking -------------------------------------------------------------------------- */

static void (*const row[IR_COUNT])(struct rule *) = {
	[IR_none] = nothing,
#define OP(id, nin, nout, flags, axes, cost, attrs, meaning) [IR_##id] = cost,
#include "ops.def"
};

static struct rule asked(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	struct arena a;
	struct rule r = { .m = m, .fn = fn, .o = o, .a = &a };
	arena_init(&a);
	row[o->kind](&r);
	arena_fini(&a);
	r.a = NULL;
	if (row[o->kind] != held)
		r.c.ops = row[o->kind] != nothing;
	return r;
}

struct ir_cost ir_cost_of(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	return asked(m, fn, o).c;
}

struct ir_cost ir_cost_of_fn(const struct ir_module *m, const struct ir_fn *fn)
{
	struct ir_cost c = {0};
	for (size_t i = 0; i < fn->op.n; i++)
		if (row[fn->op.p[i].kind] != nothing)
			plus(&c, 1, ir_cost_of(m, fn, &fn->op.p[i]));
	return c;
}

struct ir_cost ir_cost_of_group(const struct ir_module *m, const struct ir_fn *g)
{
	struct ir_cost c = ir_cost_of_fn(m, g);
	c.bytes = 0;
	for (uint32_t k = 0; k < g->nparam; k++)
		c.bytes += group_reads(m, g, k + 1);
	for (size_t k = 0; k < g->result.n; k++)
		c.bytes += (double)ir_vtype(m, g, g->result.p[k])->bytes;
	return c;
}

double ir_cost_each(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	if (ir_is_elem(o->kind))
		return elem_work(ir_elem(o->kind), ir_vtype(m, fn, ir_in(fn, o, o->nin > 1))->dtype);
	struct rule r = asked(m, fn, o);
	return r.points > 0 ? r.c.adds / r.points : 0;
}

double ir_turns(const struct ir_fn *fn, const struct ir_op *loop)
{
	int64_t n = ir_attr(fn, loop, AT_trip);
	return n < 0 ? IR_TURNS : (double)n;
}

double *ir_runs(struct arena *a, const struct ir_module *m)
{
	int n;
	const ir_fnid *f = ir_reachable(a, m, &n);
	double *runs = ARENA_NEW(a, double, m->fn.n);
	runs[1] = 1;
	for (int i = n; i-- > 0;) {          /* who holds a function before the function */
		const struct ir_fn *fn = ir_fn_of(m, f[i]);
		for (size_t k = 0; k < fn->op.n; k++) {
			const struct ir_op *o = &fn->op.p[k];
			if (row[o->kind] != held)
				continue;
			int cap = (int)ir_attr_words(fn, o);
			ir_fnid *g = ARENA_NEW(a, ir_fnid, cap);
			int ng = ir_regions(fn, o, g, cap);
			double times = o->kind == IR_loop ? ir_turns(fn, o) : o->kind == IR_case ? 1 / (double)MAX(ng, 1) : 1;
			for (int j = 0; j < ng; j++)
				runs[g[j]] += runs[f[i]] * times;
		}
	}
	return runs;
}
