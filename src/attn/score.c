/* The function of scalars that is between q . k and exp, and the slope and weights beside it: what the program's values of queries by keys say,
 * operation by operation, of which those that have one dimension alone, or none, are operands. */
#include "impl.h"

#include <math.h>

enum { STEPS = 1000 };                /* looked at for what fills a score */

enum dtype score_sums(const struct env *e)
{
	const struct cand *c = e->m->c;
	enum dtype dt = e->wide;
	const struct fac *x = fac_of(c, e->m->x);
	if (dt != DT_token)
		return dt;
	dt = DT_f32;
	for (int i = 0; i < 2; i++)
		if (ir_vtype(c->m, c->fn, (ir_val)fac_of(c, i ? x->b : x->a)->a)->dtype == DT_f64)
			dt = DT_f64;
	for (size_t i = 0; i < e->m->fwd.n; i++)
		if (e->m->fwd.p[i].v && ir_vtype(c->m, c->fn, (ir_val)fac_of(c, e->m->fwd.p[i].v)->a)->dtype == DT_f64)
			dt = DT_f64;
	return dt;
}

static int64_t keys_of(const struct scalar *s)
{
	int64_t n = 1;
	for (int i = 1; i < s->c->naxis && s->e->size; i++)      /* without sizes nothing that is emitted is kept */
		n *= s->c->right >> i & 1 ? s->e->size[i] : 1;
	return n;
}

static ir_val scalar(struct scalar *s, ir_val v, int lab);

/* A table that heads which share keys have of their own has a part for each: elements of all. */
static int64_t table_length(const struct scalar *s, const struct extra *x)
{
	uint64_t heads = place_heads(s->e->m);
	int64_t n = x->table;
	for (int i = 1; i < s->c->naxis && s->e->size && lab_of(s->c, x->lab)->set & heads; i++)
		n *= heads >> i & 1 ? s->e->size[i] : 1;
	return n;
}

static ir_val param(struct scalar *s, const struct extra *x)
{
	int i = 0;
	for (; i < s->nextra; i++) {
		const struct extra *y = &s->extra[i];
		if (x->index == y->index && x->part == y->part && x->top == y->top && x->table == y->table && x->apart == y->apart && (x->index ? x->n == y->n && !memcmp(x->axis, y->axis, (size_t)x->n) : x->v == y->v && x->lab == y->lab))
			break;
	}
	if (i == s->nextra) {
		if (i == MOST_EXTRA || !s->list) {
			s->why = "its scores are made from too many values";
			return 0;
		}
		s->extra[s->nextra++] = *x;
	}
	enum dtype dt = x->index ? DT_i32 : x->top || x->table ? score_sums(s->e) : (enum dtype)ir_vtype(s->c->m, s->c->fn, x->v)->dtype;
	if (s->e->wide != DT_token && dtype_info[dt].cls == DT_FLOAT)
		dt = s->e->wide;
	int64_t length = table_length(s, x);
	ir_type t = x->table ? ir_tensor(s->c->m, dt, 1, &length) : ir_scalar(s->c->m, dt);
	ir_val p = s->list ? ir_const_i(&s->b, t, 0) : (ir_val)(2 + i);
	if (s->list)                             /* not a constant */
		p = s->extra[i].at = s->extra[i].at ? s->extra[i].at : ir_emit_raw(&s->b, IR_optimization_barrier, 1, &p, 1, &t, NULL, 0);
	return dtype_info[dt].cls == DT_FLOAT && !x->table ? ir_convert(&s->b, p, score_sums(s->e)) : p;
}

/* Index `at` of n elements, as i32: of those of its own head, if each has some.  Outside it is clamped, or else -1. */
static ir_val part_index(struct scalar *s, ir_val at, int64_t n, bool own, bool clamp)
{
	struct ir_b *b = &s->b;
	ir_type t = b->fn->val.p[at].type, i = ir_scalar(s->c->m, DT_i32);
	if (t == i && !own)
		return at;
	ir_val zero = ir_const_i(b, t, 0), last = ir_const_i(b, t, n - 1), low = ir_bin(b, ELEM_maximum, at, zero), in = ir_bin(b, ELEM_minimum, low, last);
	ir_val v = ir_convert(b, in, DT_i32), out = ir_const_i(b, i, -1);
	if (own) {
		struct extra x = { .index = true, .part = true };
		for (int k = 1; k < s->c->naxis; k++)
			if (place_heads(s->e->m) >> k & 1)
				x.axis[x.n++] = (uint8_t)k;
		ir_val g = param(s, &x), by = ir_const_i(b, i, n);
		if (!g)
			return 0;
		v = ir_bin(b, ELEM_add, v, ir_bin(b, ELEM_multiply, g, by));
	}
	return clamp ? v : ir_select(b, ir_bin(b, ELEM_compare_eq, in, at), v, out);
}

/* The distance of a key and a query, counted from that of the first key and the last query on. */
static ir_val distance(struct scalar *s)
{
	struct extra t = { .index = true, .n = 1, .axis = { (uint8_t)s->e->m->t } }, k = { .index = true, .n = 1, .axis = { (uint8_t)__builtin_ctzll(s->c->right) } };
	ir_val key = param(s, &k), query = key ? param(s, &t) : 0;
	if (!query)
		return 0;
	ir_val d = ir_bin(&s->b, ELEM_subtract, key, query), first = ir_const_i(&s->b, ir_scalar(s->c->m, DT_i32), s->c->axis[s->e->m->t].size - 1);
	return ir_bin(&s->b, ELEM_add, d, first);
}

/* Element `at` of the table that x is. */
static ir_val taken(struct scalar *s, const struct extra *x, ir_val at)
{
	static const int64_t one[] = { 1, 1 };
	struct ir_b *b = &s->b;
	if (!at || !(at = part_index(s, at, x->table, lab_of(s->c, x->lab)->set & place_heads(s->e->m), true)))
		return 0;
	ir_val table = param(s, x);
	if (!table)
		return 0;
	ir_type t = ir_tensor(s->c->m, score_sums(s->e), 1, &one[0]);
	return ir_reshape(b, ir_emit_raw(b, IR_dynamic_slice, 2, (ir_val[]){ table, at }, 1, &t, one, 2), 0, NULL);
}

/* The op that makes v, of scalars. */
static ir_val applied(struct scalar *s, ir_val v, int lab, const struct ir_op *o)
{
	struct cand *c = s->c;
	ir_val in[3];
	enum dtype dt = (enum dtype)ir_vtype(c->m, c->fn, v)->dtype;
	for (uint32_t k = 0; k < o->nin; k++) {
		ir_val x = ir_in(c->fn, o, k);
		in[k] = scalar(s, x, ir_vtype(c->m, c->fn, x)->rank ? lab : lab_add(c, &(struct lab){0}));
		if (!in[k])
			return 0;
	}
	if (dtype_info[dt].cls == DT_FLOAT)
		dt = score_sums(s->e);
	if (o->kind == IR_convert)
		return ir_convert(&s->b, in[0], dt);
	if (o->kind == IR_bitcast) {             /* of the program's own types */
		ir_val x = ir_convert(&s->b, in[0], (enum dtype)ir_vtype(c->m, c->fn, ir_in(c->fn, o, 0))->dtype);
		ir_type own = ir_scalar(c->m, (enum dtype)ir_vtype(c->m, c->fn, v)->dtype);
		return ir_convert(&s->b, ir_emit_raw(&s->b, IR_bitcast, 1, &x, 1, &own, NULL, 0), dt);
	}
	return ir_emit(&s->b, (enum ir_kind)o->kind, o->nin, in, ir_scalar(c->m, dt), NULL, 0);
}

static ir_val polynomial(struct scalar *s, int p);

/* 1 where the score is the highest of its row, as the op itself gives that: the same number, bit by bit. */
static ir_val top(struct scalar *s, int fwd)
{
	ir_val m = param(s, &(struct extra){ .top = 1 + fwd }), x = m ? polynomial(s, s->e->m->fwd.p[fwd].score) : 0;
	return x ? ir_bin(&s->b, ELEM_compare_eq, x, m) : 0;
}

static ir_val make(struct scalar *s, ir_val v, int lab)
{
	struct cand *c = s->c;
	const struct ir_op *o = ir_def(c->fn, v);
	const void *p = ir_splat(c->m, c->fn, v);
	enum dtype dt = (enum dtype)ir_vtype(c->m, c->fn, v)->dtype;
	if (p) {
		double x = dtype_real(dt, p);
		s->infinite |= isinf(x);
		return dtype_info[dt].cls == DT_FLOAT ? ir_const_f(&s->b, ir_scalar(c->m, score_sums(s->e)), x) : ir_const(&s->b, ir_scalar(c->m, dt), p, dtype_info[dt].bytes);
	}
	struct extra x = { .v = v, .lab = lab };
	if (!cand_is_region(c, lab_of(c, lab)->set)) {
		form_strip(c, &x.v, &x.lab);
		if (ir_splat(c->m, c->fn, x.v))
			return scalar(s, x.v, x.lab);
		return param(s, &x);
	}
	if (dtype_info[dt].cls == DT_FLOAT) {
		int f = form_of(c, v, lab);
		const struct mono *m = f > 0 && poly_of(c, f)->n == 1 ? &poly_of(c, f)->m[0] : NULL;
		if (m && m->n == 1 && m->f[0].f == s->e->m->x && m->f[0].pow == 1 && !m->exp) {
			ir_val k = m->c == 1 ? 0 : ir_const_f(&s->b, ir_scalar(c->m, score_sums(s->e)), m->c);
			return k ? ir_bin(&s->b, ELEM_multiply, 1, k) : 1;
		}
		s->infinite |= !o;
	}
	int fwd;
	if (match_top(s->e->m, v, lab, &fwd))
		return top(s, fwd);
	struct look k;
	if (s->c->room->looks && look_is_made(s->e->m, v, lab) && (s->e->m->far = true))
		return taken(s, &(struct extra){ .v = v, .lab = lab, .table = look_distances(s->e->m), .apart = true }, distance(s));
	if (o && o->kind == IR_gather && dtype_info[dt].cls == DT_FLOAT && look_of(c, o, lab, &k) && !(s->e->m->t && lab_of(c, k.table_lab)->set >> s->e->m->t & 1))
		return taken(s, &(struct extra){ .v = k.table, .lab = k.table_lab, .table = k.n }, scalar(s, k.index, k.index_lab));
	if (o && ir_is_elem(o->kind))
		return applied(s, v, lab, o);
	if (o && (o->kind == IR_broadcast || o->kind == IR_transpose || o->kind == IR_reshape)) {
		int l[2] = { 0, lab };
		if (axes_through(c, (uint32_t)(o - c->fn->op.p), l, false))
			return scalar(s, ir_in(c->fn, o, 0), l[0]);
	}
	if (o && (o->kind == IR_optimization_barrier || o->kind == IR_sharding_constraint || o->kind == IR_reduce_precision))
		return scalar(s, ir_in(c->fn, o, v - o->out), lab);
	if (o && o->kind == IR_iota) {
		const struct lab *l = lab_of(c, lab);
		int d = (int)ir_attr(c->fn, o, AT_dim);
		x.index = true;
		x.n = l->n[d];
		memcpy(x.axis, l->axis[d], (size_t)x.n);
		ir_val i = param(s, &x);
		return i ? ir_convert(&s->b, i, dtype_info[dt].cls == DT_FLOAT ? score_sums(s->e) : dt) : 0;
	}
	if (c->near[v] || (o && o->kind == IR_dot)) {
		s->why = o && o->kind == IR_dot ? "its scores are made from several products" : "its scores depend on what is summed over them";
		return 0;
	}
	return param(s, &x);
}

static ir_val scalar(struct scalar *s, ir_val v, int lab)
{
	for (int i = 0; i < s->nnode; i++)
		if (s->node[i].v == v && s->node[i].lab == lab)
			return s->node[i].to;
	ir_val to = s->why ? 0 : make(s, v, lab);
	if (s->nnode == MOST_NODE && !s->why)
		s->why = "its scores are made by too many operations";
	if (s->why)
		return 0;
	s->node[s->nnode].v = v;
	s->node[s->nnode].lab = lab;
	s->node[s->nnode++].to = to;
	return to;
}

/* A factor of a score, weight or slope. */
static ir_val factor(struct scalar *s, int f)
{
	const struct fac x = *fac_of(s->c, f);
	if (f == s->e->m->x)
		return 1;
	if (x.kind != FAC_LEAF) {
		s->why = x.kind == FAC_DOT ? "its scores are made from several products" : "its scores depend on what is summed over them";
		return 0;
	}
	ir_val v = scalar(s, (ir_val)x.a, x.b);
	return v && x.mask ? ir_convert(&s->b, v, score_sums(s->e)) : v;
}

ir_val score_power(struct ir_b *b, ir_val x, int pow, bool *below)
{
	ir_val v = x;
	*below = pow < 0;
	for (int i = 1; i < (pow < 0 ? -pow : pow); i++)
		v = ir_bin(b, ELEM_multiply, v, x);
	return v;
}

/* Masks as selections of 0, the rest as products. */
static ir_val monomial(struct scalar *s, const struct mono *m)
{
	ir_type t = ir_scalar(s->c->m, score_sums(s->e));
	ir_val v = m->c != 1 ? ir_const_f(&s->b, t, m->c) : 0, zero = 0;      /* 0: one */
	if (m->exp) {
		s->why = "its scores have an exponential of their own";
		return 0;
	}
	for (int i = 0; i < m->n && !s->why; i++) {
		const struct fac x = *fac_of(s->c, m->f[i].f);
		if (x.mask)
			continue;
		bool below;
		ir_val f = factor(s, m->f[i].f);
		if (!f)
			return 0;
		f = score_power(&s->b, f, m->f[i].pow, &below);
		if (!v && below)
			v = ir_const_f(&s->b, t, 1);
		v = v ? ir_bin(&s->b, below ? ELEM_divide : ELEM_multiply, v, f) : f;
	}
	v = v ? v : ir_const_f(&s->b, t, 1);
	for (int i = 0; i < m->n && !s->why; i++) {
		const struct fac x = *fac_of(s->c, m->f[i].f);
		if (!x.mask)
			continue;
		ir_val on = scalar(s, (ir_val)x.a, x.b);
		if (!on)
			return 0;
		zero = zero ? zero : ir_const_f(&s->b, t, 0);
		v = ir_select(&s->b, on, v, zero);
	}
	return s->why ? 0 : v;
}

static ir_val polynomial(struct scalar *s, int p)
{
	ir_val sum = 0;
	const struct poly x = *poly_of(s->c, p);
	for (int i = 0; i < x.n; i++) {
		ir_val v = monomial(s, &x.m[i]);
		if (!v)
			return 0;
		sum = sum ? ir_bin(&s->b, ELEM_add, sum, v) : v;
	}
	return sum ? sum : ir_const_f(&s->b, ir_scalar(s->c->m, score_sums(s->e)), 0);
}

/* --- rows that are filled --- */

/* A number beside which the logarithm of a number of keys is lost in l, an f64: half a unit of it is more. */
static const double absorbs = 0x1p57;
/* Added numbers beside which l is within 2^-13 of what it should be, or, beside f64, a hundredth. */
static double harmless(enum dtype dt) { return dt == DT_f64 ? 0x1p46 : 0x1p40; }

static bool between(double x, enum dtype dt) { return x > harmless(dt) && x < absorbs; }
/* Of a number that takes a score's place the sum of exponentials is known, whatever became of l: what is more exact then. */
static bool coarse(double x, enum dtype dt) { return x > -absorbs && (dt == DT_f64 || x < -0x1p31); }

static bool is_const(const struct ir_module *m, const struct ir_fn *fn, ir_val v, double *k)
{
	const void *p = ir_splat(m, fn, v);
	if (p)
		*k = dtype_real((enum dtype)ir_vtype(m, fn, v)->dtype, p);
	return p != NULL;
}

/* x takes the place of a score, if put, or is added to one. */
static void fill_with(struct fills *f, double x, bool put, bool inside)
{
	int i = 0;
	if (fabs(x) < FILL || (put && x > 0))
		return;
	while (i < f->n && f->put[i] != x)
		i++;
	if (!put || !inside || i == MOST_FILL)
		*(inside ? &f->added : &f->brought) = fmax(inside ? f->added : f->brought, fabs(x));
	else if (i == f->n)
		f->put[f->n++] = x;
}

static void endless(struct scalar *s, ir_val of)
{
	ir_val *have = s->e->m->endless;
	int i = 0;
	while (i < MOST_FILL && have[i] && have[i] != of)
		i++;
	if (i < MOST_FILL)
		have[i] = of;
	s->infinite = true;
}

/* What v, k times which is a score (put), or is added to one, fills it with.  Of the function itself (fn is s->b.fn), where operands are what barriers give, or of such
 * an operand, `of`. */
static void find_fills(struct scalar *s, const struct ir_fn *fn, ir_val v, double k, bool put, ir_val of, int *steps)
{
	const struct ir_module *m = s->c->m;
	const struct ir_op *o = ir_def(fn, v);
	bool inside = fn == s->b.fn, is_float = dtype_info[ir_vtype(m, fn, v)->dtype].cls == DT_FLOAT;
	const struct extra *x = s->extra;
	double c;
	if (inside && v == 1)
		return;
	if (is_const(m, fn, v, &c)) {
		c = ir_vtype(m, fn, v)->dtype == DT_f64 ? c * k : (float)(c * k);
		fill_with(&s->fill, isfinite(c) ? c : 0, put, inside);
		if (of && c == -INFINITY)
			endless(s, of);
		return;
	}
	if (!is_float) {                         /* a mask, as a number */
		fill_with(&s->fill, k, false, inside);
		return;
	}
	switch ((*steps)-- > 0 && o ? o->kind : IR_COUNT) {
	case IR_select: case IR_add: case IR_subtract: case IR_maximum: case IR_minimum: case IR_convert: case IR_negate:
		for (uint32_t i = o->kind == IR_select ? 1 : 0; i < o->nin; i++)
			find_fills(s, fn, ir_in(fn, o, i), o->kind == IR_negate || (o->kind == IR_subtract && i) ? -k : k, put && o->kind != IR_add && o->kind != IR_subtract, of, steps);
		return;
	case IR_multiply: case IR_divide:
		for (uint32_t i = 0; i < 2; i++)
			if ((i || o->kind == IR_multiply) && is_const(m, fn, ir_in(fn, o, i), &c)) {
				find_fills(s, fn, ir_in(fn, o, 1 - i), o->kind == IR_multiply ? k * c : k / c, put, of, steps);
				return;
			}
		for (uint32_t i = 0; i < 2; i++)
			find_fills(s, fn, ir_in(fn, o, i), k, false, of, steps);
		return;
	case IR_broadcast: case IR_reshape: case IR_transpose: case IR_dynamic_slice:
		find_fills(s, fn, ir_in(fn, o, 0), k, put, of, steps);
		return;
	case IR_optimization_barrier:
		while (inside && x->at != v)
			x++;
		if (!inside || (!x->index && !x->top))
			find_fills(s, s->c->fn, inside ? x->v : ir_in(fn, o, v - o->out), k, put && !inside, inside ? x->v : of, steps);
		return;
	default:                                 /* anything */
		if (!inside || *steps <= 0)
			s->fill.any = true;
	}
}

bool score_hides(const struct fills *f, enum dtype dt)
{
	bool put = false;
	for (int i = 0; i < f->n; i++)
		put |= coarse(f->put[i], dt) || f->put[i] <= -absorbs;
	return put || fmax(f->added, f->brought) > (dt == DT_f64 ? 0 : harmless(dt)) || f->any;
}

/* l = log(sum over keys of exp(score)) is too coarse a number where scores are very large.  Where one number c is all that a row has, exp(c - l) exp(l - c) / keys is what each
 * key weighs, whatever became of l.  Where it is added to scores, it is either so large that nothing is left of them, nor of the logarithm of the number of keys, or l will do. */
ir_val score_dead(struct ir_b *b, ir_val l, enum dtype dt, const struct fills *f, int64_t keys)
{
	ir_type t = b->fn->val.p[l].type;
	double eps = ir_type_of(b->m, t)->dtype == DT_f64 ? 0x1p-50 : 0x1p-20;
	keys = MAX(keys, 1);
	ir_val least = ir_const_f(b, t, -absorbs), one = ir_const_f(b, t, 1), part = ir_const_f(b, t, 1 / (double)keys);
	ir_val dead = ir_bin(b, ELEM_compare_lt, l, least), w = ir_select(b, dead, part, one);
	for (int i = 0; i < f->n; i++) {
		if (!coarse(f->put[i], dt))
			continue;
		ir_val c = ir_const_f(b, t, f->put[i]), off = ir_bin(b, ELEM_subtract, l, c), far = ir_un(b, ELEM_abs, off);
		ir_val near = ir_const_f(b, t, log((double)keys) + 1 - f->put[i] * eps), here = ir_bin(b, ELEM_compare_le, far, near), up = ir_un(b, ELEM_exponential, off);
		w = ir_select(b, here, ir_bin(b, ELEM_multiply, up, part), w);
	}
	return ir_convert(b, w, dt);
}

/* Indices of the tallies of bwd. */
static void indices(struct scalar *s, int bwd)
{
	const struct match *m = s->e->m;
	for (size_t i = 0; i < m->tally.n && bwd >= 0 && !s->why; i++) {
		const struct tally *t = &m->tally.p[i];
		if (t->bwd != bwd)
			continue;
		ir_val at = t->index ? scalar(s, t->index, t->lab) : distance(s);
		at = at ? part_index(s, at, t->n, t->apart, false) : 0;
		if (at)
			ir_result(s->b.fn, at);
	}
}

static void body(struct scalar *s, const struct fwd *f, int slope, int bwd)
{
	struct ir_b *b = &s->b;
	ir_val score = polynomial(s, f->score), d = 0, w = 0;
	const struct mono mask = poly_of(s->c, f->masks)->m[0];
	for (int i = 0; i < mask.n && score; i++) {
		const struct fac x = *fac_of(s->c, mask.f[i].f);
		ir_val on = scalar(s, (ir_val)x.a, x.b);
		s->infinite = true;
		if (!on)
			return;
		ir_val none = ir_const_f(b, ir_scalar(b->m, score_sums(s->e)), -INFINITY);
		score = ir_select(b, on, score, none);
	}
	if (score && slope)
		d = polynomial(s, slope);
	if (score && (d || !slope) && !poly_is_one(s->c, f->weight))
		w = polynomial(s, f->weight);
	if (d && !s->list && s->nextra && s->extra[s->nextra - 1].sums) {
		ir_val part = score_dead(b, (ir_val)(1 + s->nextra), score_sums(s->e), &s->fill, keys_of(s));
		w = w ? ir_bin(b, ELEM_multiply, w, part) : part;
	}
	if (s->why)
		return;
	ir_result(b->fn, score);
	if (d)
		ir_result(b->fn, d);
	if (w)
		ir_result(b->fn, w);
	indices(s, bwd);
}

/* The function; s has the extras then. */
ir_fnid score_function(struct env *e, const struct fwd *of, int slope, int bwd, bool given, struct scalar *s)
{
	struct ir_module *m = e->b.m;
	const struct fwd own = *of, *f = &own;      /* there may be one more, of the highest scores */
	int steps = STEPS;
	*s = (struct scalar){ .e = e, .c = e->m->c, .b = { m, ir_fn_new(m, "score"), e->b.loc }, .list = true };
	ir_param(s->b.fn, ir_scalar(m, score_sums(e)));
	body(s, f, slope, bwd);
	if (!s->why)
		find_fills(s, s->b.fn, s->b.fn->result.p[0], 1, true, 0, &steps);
	ir_fn_drop(m);
	bool dead = slope && score_hides(&s->fill, score_sums(e)) && !given;
	e->m->added = s->fill.added;
	if (dead && e->wide == DT_token && (between(s->fill.added, score_sums(e)) || between(s->fill.brought, score_sums(e))))
		s->why = "what is added to its scores to hide keys neither absorbs them nor leaves their sums as they are";
	if (s->why)
		return 0;
	if (dead && s->nextra == MOST_EXTRA) {
		s->why = "its scores are made from too many values";
		return 0;
	}
	bool whole = false;
	for (int i = 0; i < s->fill.n; i++)
		whole |= coarse(s->fill.put[i], score_sums(e));
	if (dead)
		s->extra[s->nextra++] = (struct extra){ .sums = true, .as = whole ? DT_f64 : score_sums(e) };
	s->list = false;
	s->nnode = 0;
	s->b.fn = ir_fn_new(m, "score");
	ir_param(s->b.fn, ir_scalar(m, score_sums(e)));
	for (int i = 0; i < s->nextra; i++) {
		enum dtype dt = s->extra[i].sums ? s->extra[i].as : s->extra[i].index ? DT_i32 : s->extra[i].top || s->extra[i].table ? score_sums(e) : (enum dtype)ir_vtype(m, s->c->fn, s->extra[i].v)->dtype;
		int64_t n = table_length(s, &s->extra[i]);
		dt = e->wide != DT_token && dtype_info[dt].cls == DT_FLOAT ? e->wide : dt;
		ir_param(s->b.fn, s->extra[i].table ? ir_tensor(m, dt, 1, &n) : ir_scalar(m, dt));
	}
	body(s, f, slope, bwd);
	return s->b.fn->id;
}
