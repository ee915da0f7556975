/* Group -> schedule.
 *
 * Every value is asked for at a *flat* index: a linear form over the loop variables that counts the
 * value's elements in row-major order.  An elementwise operation or a reshape passes the form on; any view
 * maps it through strides.  Mapping cuts the form into digits (the coordinates of runs of dimensions that
 * stay together), which is exact if each digit provably stays inside its dimension.  Where it does not, the
 * walk asks for a loop variable to be split, or for its range to be cut (concatenate, pad), and starts
 * again: loops come out as few and as long as the group allows.  What cannot be made linear becomes an
 * integer node (division, clamped index) that the form refers to.
 *
 * Groups with reductions: the kept dimensions of the largest reduction are the outer loops, and each
 * reduction must be read at exactly one place per outer iteration.  Reductions of one level (number of
 * reductions below) share a nest, and results that need no later reduction are stored along the way. */
#include "sched.h"

#include <stdlib.h>

enum { MAX_AXIS = 12, MAX_BRK = 24, MAX_SEG = 16 };

struct axis { int64_t ext; bool outer; int ncut; int64_t cut[GEN_NV]; };
struct axset { int n; int axis[GEN_NV]; int64_t ext[GEN_NV]; };
struct brk { int axis; int64_t unit, pos; };

struct cx {
	struct arena *a;
	const struct ir_module *m;
	const struct ir_fn *fn;
	const struct prog_view *view;
	struct gen_sched *s;
	struct map memo, nodes, lins, ctxs;
	ARR(struct gen_node) node;
	ARR(struct gen_lin) lin;
	ARR(struct gen_red) red;
	ARR(struct gen_buf) buf;
	struct axis axis[MAX_AXIS]; int naxis;
	struct axset set[8]; int nset;
	struct brk brk[MAX_BRK]; int nbrk;
	bool nobrk, stop, restart;
	const char *why;
	int64_t lo[GEN_NV], hi[GEN_NV];
	uint64_t ctx;
	const struct ir_op *anchor;
	int64_t unroll;          /* reductions of at most so many elements are straight-line code */
	int depth;
};

static void fail(struct cx *cx, const char *why)
{
	if (!cx->stop)
		cx->why = why;
	cx->stop = true;
}

bool gen_dtype_ok(int dt)
{
	switch (dt) {
	case DT_pred: case DT_i8: case DT_i16: case DT_i32: case DT_i64: case DT_u8: case DT_u16: case DT_u32: case DT_u64:
	case DT_i4: case DT_u4: case DT_bf16: case DT_f16: case DT_f32: case DT_f64:
		return true;
	default:
		return false;
	}
}

bool gen_elem_ok(enum elem e)
{
	return e != ELEM_complex;
}

/* --- linear forms ------------------------------------------------------ */

static uint32_t intern(struct map *m, const void *p, size_t n, uint32_t next, bool *fresh)
{
	uint64_t *v = map_put(m, p, n);
	*fresh = *v == 0;
	if (*fresh)
		*v = (uint64_t)next + 1;
	return (uint32_t)(*v - 1);
}

static uint32_t node_put(struct cx *cx, const struct gen_node *n)
{
	bool fresh;
	uint32_t id = intern(&cx->nodes, n, sizeof *n, (uint32_t)cx->node.n, &fresh);
	if (fresh)
		arr_push(&cx->node, *n);
	return id;
}

static uint32_t lin_put(struct cx *cx, struct gen_lin l);

static void lin_range(struct cx *cx, const struct gen_lin *l, bool with_c, int64_t *lo, int64_t *hi)
{
	int64_t a = with_c ? l->c : 0, b = a;
	for (int i = 0; i < GEN_NV; i++) {
		if (l->k[i] > 0) { a += l->k[i] * cx->lo[i]; b += l->k[i] * (cx->hi[i] - 1); }
		if (l->k[i] < 0) { a += l->k[i] * (cx->hi[i] - 1); b += l->k[i] * cx->lo[i]; }
	}
	for (int j = 0; j < GEN_NT; j++) {
		const struct gen_node *n = &cx->node.p[l->tn[j]];
		if (l->tk[j] > 0) { a += l->tk[j] * n->lo; b += l->tk[j] * n->hi; }
		if (l->tk[j] < 0) { a += l->tk[j] * n->hi; b += l->tk[j] * n->lo; }
	}
	*lo = a;
	*hi = b;
}

static uint16_t lin_mask(struct cx *cx, const struct gen_lin *l, uint16_t *level)
{
	uint16_t m = 0;
	for (int i = 0; i < GEN_NV; i++)
		if (l->k[i])
			m |= (uint16_t)(1u << i);
	for (int j = 0; j < GEN_NT; j++)
		if (l->tk[j]) {
			m |= cx->node.p[l->tn[j]].mask;
			*level = MAX(*level, cx->node.p[l->tn[j]].level);
		}
	return m;
}

static struct gen_lin lin_of(struct cx *cx, uint32_t id)
{
	return cx->lin.p[id];
}

static uint32_t node_lin(struct cx *cx, struct gen_lin l, enum dtype dt)
{
	struct gen_node n = { .kind = GN_LIN, .dtype = (uint8_t)dt };
	lin_range(cx, &l, true, &n.lo, &n.hi);
	n.lin = lin_put(cx, l);
	n.mask = lin_mask(cx, &cx->lin.p[n.lin], &n.level);
	return node_put(cx, &n);
}

static void lin_term(struct cx *cx, struct gen_lin *l, uint32_t node, int64_t k)
{
	if (!k)
		return;
	for (int j = 0; j < GEN_NT; j++)
		if (l->tk[j] && l->tn[j] == node) {
			l->tk[j] += k;
			if (!l->tk[j])
				l->tn[j] = 0;
			return;
		}
	for (int j = 0; j < GEN_NT; j++)
		if (!l->tk[j]) {
			l->tn[j] = node;
			l->tk[j] = k;
			return;
		}
	/* no room: the terms so far become one */
	struct gen_lin t = { 0 };
	memcpy(t.tk, l->tk, sizeof t.tk);
	memcpy(t.tn, l->tn, sizeof t.tn);
	memset(l->tk, 0, sizeof l->tk);
	memset(l->tn, 0, sizeof l->tn);
	uint32_t all = node_lin(cx, t, DT_i64);
	lin_term(cx, l, all, 1);
	lin_term(cx, l, node, k);
}

static void lin_add(struct cx *cx, struct gen_lin *a, const struct gen_lin *b, int64_t k)
{
	a->c += b->c * k;
	for (int i = 0; i < GEN_NV; i++)
		a->k[i] += b->k[i] * k;
	for (int j = 0; j < GEN_NT; j++)
		lin_term(cx, a, b->tn[j], b->tk[j] * k);
}

/* Normal form: variables of one value are folded, terms are in order of node. */
static uint32_t lin_put(struct cx *cx, struct gen_lin l)
{
	for (int i = 0; i < GEN_NV; i++)
		if (l.k[i] && cx->hi[i] - cx->lo[i] == 1) {
			l.c += l.k[i] * cx->lo[i];
			l.k[i] = 0;
		}
	for (int i = 1; i < GEN_NT; i++)
		for (int j = i; j > 0; j--) {
			uint64_t x = l.tk[j] ? l.tn[j] : UINT64_MAX, y = l.tk[j - 1] ? l.tn[j - 1] : UINT64_MAX;
			if (x >= y)
				break;
			int64_t k = l.tk[j]; uint32_t n = l.tn[j];
			l.tk[j] = l.tk[j - 1]; l.tn[j] = l.tn[j - 1];
			l.tk[j - 1] = k; l.tn[j - 1] = n;
		}
	bool fresh;
	uint32_t id = intern(&cx->lins, &l, sizeof l, (uint32_t)cx->lin.n, &fresh);
	if (fresh)
		arr_push(&cx->lin, l);
	return id;
}

static uint32_t lin_const(struct cx *cx, int64_t c)
{
	return lin_put(cx, (struct gen_lin){ .c = c });
}

static bool lin_is_const(const struct gen_lin *l)
{
	for (int i = 0; i < GEN_NV; i++)
		if (l->k[i])
			return false;
	for (int j = 0; j < GEN_NT; j++)
		if (l->tk[j])
			return false;
	return true;
}

/* --- axes, variables, ranges ------------------------------------------- */

static int axis_new(struct cx *cx, int64_t ext, bool outer)
{
	if (cx->naxis == MAX_AXIS) {
		fail(cx, "too many loops");
		return 0;
	}
	cx->axis[cx->naxis] = (struct axis){ .ext = ext, .outer = outer };
	return cx->naxis++;
}

static struct gen_lin axis_lin(struct cx *cx, int axis)
{
	struct gen_lin l = { 0 };
	for (int i = 0; i < cx->s->nvar; i++)
		if (cx->s->var[i].axis == axis)
			l.k[i] = cx->s->var[i].unit;
	return l;
}

/* Variables of the axes that have none yet. */
static void make_vars(struct cx *cx)
{
	struct gen_sched *s = cx->s;
	for (int a = 0; a < cx->naxis; a++) {
		bool have = false;
		for (int i = 0; i < s->nvar; i++)
			have |= s->var[i].axis == a;
		if (have)
			continue;
		struct axis *x = &cx->axis[a];
		int64_t up = x->ext;
		for (int c = x->ncut; c >= 0; c--) {
			int64_t unit = c ? x->cut[c - 1] : 1;
			if (s->nvar == GEN_NV) {
				fail(cx, "too many loops");
				return;
			}
			int v = s->nvar++;
			s->var[v] = (struct gen_var){ a, up / unit, unit, x->outer };
			if (x->outer)
				s->outer |= (uint16_t)(1u << v);
			cx->lo[v] = 0;
			cx->hi[v] = s->var[v].ext;
			up = unit;
		}
	}
}

static void set_ctx(struct cx *cx)
{
	int64_t key[2 * GEN_NV];
	memcpy(key, cx->lo, sizeof cx->lo);
	memcpy(key + GEN_NV, cx->hi, sizeof cx->hi);
	bool fresh;
	cx->ctx = intern(&cx->ctxs, key, sizeof key, (uint32_t)cx->ctxs.n, &fresh);
}

static bool want_split(struct cx *cx, int v, int64_t f)
{
	struct gen_var *x = &cx->s->var[v];
	struct axis *ax = &cx->axis[x->axis];
	if (f <= 1 || f >= x->ext || x->ext % f || cx->s->nvar >= GEN_NV || ax->ncut >= GEN_NV - 1)
		return false;
	int64_t c = x->unit * f;
	int i = ax->ncut++;
	for (; i > 0 && ax->cut[i - 1] > c; i--)
		ax->cut[i] = ax->cut[i - 1];
	ax->cut[i] = c;
	int n = 0;
	for (int b = 0; b < cx->nbrk; b++)
		if (cx->brk[b].axis != x->axis)
			cx->brk[n++] = cx->brk[b];
	cx->nbrk = n;
	cx->stop = cx->restart = true;
	return true;
}

/* Ask that l, which depends on one variable, stays on one side of bound (l < bound or l >= bound). */
static bool want_break(struct cx *cx, const struct gen_lin *l, int64_t bound)
{
	if (cx->nobrk || cx->nbrk == MAX_BRK)
		return false;
	for (int j = 0; j < GEN_NT; j++)
		if (l->tk[j])
			return false;
	/* the variable of the largest step; the others must move inside one step */
	int v = -1;
	for (int i = 0; i < GEN_NV; i++)
		if (l->k[i] && (v < 0 || llabs(l->k[i]) > llabs(l->k[v])))
			v = i;
	if (v < 0)
		return false;
	struct gen_lin r = *l;
	r.k[v] = 0;
	int64_t lo, hi, k = l->k[v], pos;
	lin_range(cx, &r, true, &lo, &hi);
	/* values are k x + [lo, hi]; want the first x where all are on the far side */
	if (k > 0) {
		pos = (bound - lo + k - 1) / k;             /* first x with k x + lo >= bound */
		if (k * (pos - 1) + hi >= bound)
			return false;
	} else {
		pos = (hi - bound) / -k + 1;                /* first x with k x + hi < bound */
		if (k * (pos - 1) + lo < bound)
			return false;
	}
	if (pos <= cx->lo[v] || pos >= cx->hi[v])
		return false;
	struct gen_var *x = &cx->s->var[v];
	for (int b = 0; b < cx->nbrk; b++)
		if (cx->brk[b].axis == x->axis && cx->brk[b].unit == x->unit && cx->brk[b].pos == pos)
			return false;
	cx->brk[cx->nbrk++] = (struct brk){ x->axis, x->unit, pos };
	cx->stop = cx->restart = true;
	return true;
}

/* The ranges that breaks cut the variables of mask into: seg_init, then seg_next until false. */
struct seg { int nv; int v[GEN_NV]; int n[GEN_NV], at[GEN_NV]; int64_t p[GEN_NV][MAX_BRK + 2]; };

static bool seg_init(struct cx *cx, struct seg *g, uint16_t mask)
{
	int64_t total = 1;
	g->nv = 0;
	for (int v = 0; v < cx->s->nvar; v++) {
		if (!(mask >> v & 1))
			continue;
		int k = g->nv++, n = 0;
		g->v[k] = v;
		g->at[k] = 0;
		g->p[k][n++] = 0;
		for (int b = 0; b < cx->nbrk; b++) {
			if (cx->brk[b].axis != cx->s->var[v].axis || cx->brk[b].unit != cx->s->var[v].unit)
				continue;
			int i = n++;
			for (; i > 0 && g->p[k][i - 1] > cx->brk[b].pos; i--)
				g->p[k][i] = g->p[k][i - 1];
			g->p[k][i] = cx->brk[b].pos;
		}
		g->p[k][n] = cx->s->var[v].ext;
		g->n[k] = n;
		total *= n;
	}
	return total <= MAX_SEG;
}

static void seg_set(struct cx *cx, const struct seg *g)
{
	for (int k = 0; k < g->nv; k++) {
		cx->lo[g->v[k]] = g->p[k][g->at[k]];
		cx->hi[g->v[k]] = g->p[k][g->at[k] + 1];
	}
	set_ctx(cx);
}

static bool seg_next(struct seg *g)
{
	for (int k = g->nv - 1; k >= 0; k--) {
		if (++g->at[k] < g->n[k])
			return true;
		g->at[k] = 0;
	}
	return false;
}

/* --- digits ------------------------------------------------------------ */

static int64_t floor_div(int64_t a, int64_t b)
{
	int64_t q = a / b;
	return q - (a % b != 0 && a < 0);
}

/* l = q * s + r with 0 <= r < s, everywhere. */
static void lin_divmod(struct cx *cx, const struct gen_lin *l, int64_t s, struct gen_lin *q, struct gen_lin *r)
{
	memset(q, 0, sizeof *q);
	memset(r, 0, sizeof *r);
	if (s == 1) {
		*q = *l;
		return;
	}
	for (int i = 0; i < GEN_NV; i++) {
		q->k[i] = l->k[i] / s;
		r->k[i] = l->k[i] % s;
	}
	for (int j = 0; j < GEN_NT; j++) {
		lin_term(cx, q, l->tn[j], l->tk[j] / s);
		lin_term(cx, r, l->tn[j], l->tk[j] % s);
	}
	int64_t lo, hi;
	lin_range(cx, r, false, &lo, &hi);
	q->c = floor_div(l->c + lo, s);
	r->c = l->c - q->c * s;
	if (hi + r->c < s)
		return;
	/* a variable that crosses: split it where it does */
	int best = -1;
	for (int i = 0; i < cx->s->nvar; i++) {
		int64_t k = llabs(r->k[i]);
		if (k && s % k == 0 && cx->s->var[i].ext % (s / k) == 0 && s / k > 1 && s / k < cx->s->var[i].ext &&
		    (best < 0 || k > llabs(r->k[best])))
			best = i;
	}
	if (best >= 0 && want_split(cx, best, s / llabs(r->k[best])))
		return;
	/* a common divisor may still split a part off */
	for (int i = 0; best < 0 && i < cx->s->nvar; i++) {
		int64_t k = llabs(r->k[i]), e = cx->s->var[i].ext;
		if (!k || s % k || k * (e - 1) < s)
			continue;
		int64_t f = s / k, g = e;
		while (g && f % g) { int64_t t = f % g; f = g; g = t; }      /* gcd(s / k, e) in g */
		if (g > 1 && g < e && g < s / k && s / k % g == 0 && want_split(cx, i, g))
			return;
	}
	struct gen_node n = { .kind = GN_DIV, .dtype = DT_i64, .imm = { s } };
	n.lin = lin_put(cx, *r);
	n.mask = lin_mask(cx, &cx->lin.p[n.lin], &n.level);
	lin_range(cx, r, true, &lo, &hi);
	n.lo = lo / s;
	n.hi = hi / s;
	uint32_t d = node_put(cx, &n);
	n.kind = GN_MOD;
	n.lo = 0;
	n.hi = s - 1;
	uint32_t e = node_put(cx, &n);
	lin_term(cx, q, d, 1);
	memset(r, 0, sizeof *r);
	lin_term(cx, r, e, 1);
}

/* Flat index over dims -> c0 + sum coordinate * stride. */
static struct gen_lin map_strided(struct cx *cx, uint32_t lin, int rank, const int64_t *dim, int64_t c0, const int64_t *stride)
{
	int n = 0;
	int64_t ext[IR_MAX_RANK], st[IR_MAX_RANK];
	for (int d = 0; d < rank; d++) {
		if (dim[d] == 1)
			continue;
		if (n && st[n - 1] == stride[d] * dim[d]) {
			ext[n - 1] *= dim[d];
			st[n - 1] = stride[d];
		} else {
			ext[n] = dim[d];
			st[n++] = stride[d];
		}
	}
	struct gen_lin out = { .c = c0 }, rest = lin_of(cx, lin), q, r;
	for (int d = 0; d < n && !cx->stop; d++) {
		int64_t s = 1;
		for (int e = d + 1; e < n; e++)
			s *= ext[e];
		if (s == 1) {
			q = rest;
		} else {
			lin_divmod(cx, &rest, s, &q, &r);
			rest = r;
		}
		if (st[d])
			lin_add(cx, &out, &q, st[d]);
	}
	return out;
}

static void strides_of(int rank, const int64_t *dim, int64_t *st)
{
	int64_t s = 1;
	for (int d = rank - 1; d >= 0; d--) {
		st[d] = s;
		s *= dim[d];
	}
}

/* --- nodes ------------------------------------------------------------- */

static uint32_t want(struct cx *cx, ir_val v, uint32_t lin);

static uint32_t mk_const(struct cx *cx, enum dtype dt, const void *p)
{
	struct gen_node n = { .kind = GN_CONST, .dtype = (uint8_t)dt };
	memcpy(n.imm, p, dtype_info[dt].bytes);
	return node_put(cx, &n);
}

static uint32_t mk_elem(struct cx *cx, enum elem e, enum dtype from, enum dtype to, int nin, const uint32_t *in)
{
	if (e == ELEM_convert && from == to)
		return in[0];
	struct gen_node n = { .kind = GN_ELEM, .elem = (uint8_t)e, .from = (uint8_t)from, .dtype = (uint8_t)to };
	for (int i = 0; i < nin; i++) {
		const struct gen_node *x = &cx->node.p[in[i]];
		n.a[i] = in[i];
		n.mask |= x->mask;
		n.level = MAX(n.level, x->level);
	}
	return node_put(cx, &n);
}

static uint32_t mk_load(struct cx *cx, int buf, enum dtype dt, struct gen_lin l)
{
	struct gen_node n = { .kind = GN_LOAD, .dtype = (uint8_t)dt };
	n.a[0] = (uint32_t)buf;
	n.lin = lin_put(cx, l);
	n.mask = lin_mask(cx, &cx->lin.p[n.lin], &n.level);
	return node_put(cx, &n);
}

static uint32_t mk_inr(struct cx *cx, struct gen_lin l, int64_t lo, int64_t hi)
{
	struct gen_node n = { .kind = GN_INR, .dtype = DT_pred, .imm = { lo, hi } };
	n.lin = lin_put(cx, l);
	n.mask = lin_mask(cx, &cx->lin.p[n.lin], &n.level);
	return node_put(cx, &n);
}

/* l clamped to 0 .. hi, as a form. */
static struct gen_lin lin_clamp(struct cx *cx, struct gen_lin l, int64_t hi)
{
	int64_t a, b;
	lin_range(cx, &l, true, &a, &b);
	if (a >= 0 && b <= hi)
		return l;
	struct gen_node n = { .kind = GN_LCLAMP, .dtype = DT_i64, .lo = 0, .hi = hi };
	n.lin = lin_put(cx, l);
	n.mask = lin_mask(cx, &cx->lin.p[n.lin], &n.level);
	struct gen_lin out = { 0 };
	lin_term(cx, &out, node_put(cx, &n), 1);
	return out;
}

/* Add clamp(v at lin, 0, hi) * k to l. */
static void add_start(struct cx *cx, struct gen_lin *l, ir_val v, uint32_t lin, int64_t hi, int64_t k)
{
	if (hi <= 0 || k == 0)
		return;
	const struct ir_type_info *t = ir_vtype(cx->m, cx->fn, v);
	uint32_t x = want(cx, v, lin);
	if (cx->stop)
		return;
	struct gen_node n = { .kind = GN_CLAMP, .dtype = DT_i64, .from = t->dtype, .lo = 0, .hi = hi };
	n.a[0] = x;
	n.mask = cx->node.p[x].mask;
	n.level = cx->node.p[x].level;
	int64_t c;
	if (lin_is_const(&cx->lin.p[lin]) && ir_const_int(cx->m, cx->fn, v, &c)) {
		l->c += (c < 0 ? 0 : MIN(c, hi)) * k;
		return;
	}
	lin_term(cx, l, node_put(cx, &n), k);
}

static uint32_t mk_select(struct cx *cx, enum dtype dt, uint32_t c, uint32_t x, uint32_t y)
{
	uint32_t in[3] = { c, x, y };
	return x == y ? x : mk_elem(cx, ELEM_select, dt, dt, 3, in);
}

static uint32_t want_concat(struct cx *cx, const struct ir_op *o, uint32_t lin)
{
	const struct ir_type_info *t = ir_vtype(cx->m, cx->fn, o->out);
	int dim = (int)ir_attr(cx->fn, o, 0);
	int64_t post = 1, rows = 1;
	for (int d = dim + 1; d < t->rank; d++)
		post *= t->dim[d];
	for (int d = 0; d < dim; d++)
		rows *= t->dim[d];
	int64_t three[3] = { rows, t->dim[dim], post }, sel[3] = { 0, 1, 0 };
	struct gen_lin mid = map_strided(cx, lin, 3, three, 0, sel);
	if (cx->stop)
		return 0;
	int64_t lo, hi, at = 0;
	lin_range(cx, &mid, true, &lo, &hi);
	uint32_t out = UINT32_MAX;
	for (int pass = 0; pass < 2; pass++) {
		at = 0;
		for (uint32_t i = 0; i < o->nin && !cx->stop; i++) {
			const struct ir_type_info *ti = ir_vtype(cx->m, cx->fn, ir_in(cx->fn, o, i));
			int64_t n = ti->dim[dim], end = at + n;
			if (n && lo < end && hi >= at) {
				if (pass == 0) {
					if (lo >= at && hi < end) {
						int64_t s3[3] = { n * post, post, 1 };
						struct gen_lin l = map_strided(cx, lin, 3, three, -at * post, s3);
						return cx->stop ? 0 : want(cx, ir_in(cx->fn, o, i), lin_put(cx, l));
					}
					if ((at > lo && want_break(cx, &mid, at)) || (end <= hi && want_break(cx, &mid, end)))
						return 0;
				} else {
					int64_t s3[3] = { n * post, 0, 1 };
					struct gen_lin l = map_strided(cx, lin, 3, three, 0, s3), c = mid;
					c.c -= at;
					c = lin_clamp(cx, c, n - 1);
					lin_add(cx, &l, &c, post);
					uint32_t x = want(cx, ir_in(cx->fn, o, i), lin_put(cx, l));
					out = out == UINT32_MAX ? x : mk_select(cx, t->dtype, mk_inr(cx, mid, at, end), x, out);
				}
			}
			at = end;
		}
	}
	return out == UINT32_MAX ? 0 : out;
}

static uint32_t want_pad(struct cx *cx, const struct ir_op *o, uint32_t lin)
{
	const struct ir_type_info *t = ir_vtype(cx->m, cx->fn, o->out), *ti = ir_vtype(cx->m, cx->fn, ir_in(cx->fn, o, 0));
	int n;
	const int64_t *low = ir_attrs(cx->fn, o, 0, &n), *high = ir_attrs(cx->fn, o, 1, &n), *in = ir_attrs(cx->fn, o, 2, &n);
	ir_val padv = ir_in(cx->fn, o, 1);
	if (ti->count == 0)
		return want(cx, padv, lin_const(cx, 0));
	int64_t os[IR_MAX_RANK], st[IR_MAX_RANK];
	strides_of(ti->rank, ti->dim, os);
	/* dimensions that are not padded keep their strides */
	for (int d = 0; d < t->rank; d++)
		st[d] = low[d] || high[d] || in[d] ? 0 : os[d];
	/* give padded dimensions their own runs: ask for each coordinate */
	struct gen_lin l = { 0 };
	uint32_t cond = UINT32_MAX;
	for (int d = 0; d < t->rank && !cx->stop; d++) {
		if (st[d] == os[d] && !(low[d] || high[d] || in[d]))
			continue;
		int64_t one[IR_MAX_RANK] = { 0 };
		one[d] = 1;
		struct gen_lin c = map_strided(cx, lin, t->rank, t->dim, 0, one);
		if (cx->stop)
			return 0;
		int64_t step = in[d] + 1, ext = (ti->dim[d] - 1) * step + 1, lo, hi;
		c.c -= low[d];
		lin_range(cx, &c, true, &lo, &hi);
		if (hi < 0 || lo >= ext)
			return want(cx, padv, lin_const(cx, 0));
		if (lo < 0 || hi >= ext) {
			if ((lo < 0 && want_break(cx, &c, 0)) || (hi >= ext && want_break(cx, &c, ext)))
				return 0;
			uint32_t p = mk_inr(cx, c, 0, ext), two[2] = { cond, p };
			cond = cond == UINT32_MAX ? p : mk_elem(cx, ELEM_and, DT_pred, DT_pred, 2, two);
			c = lin_clamp(cx, c, ext - 1);
		}
		if (step > 1) {
			struct gen_lin q, r;
			lin_divmod(cx, &c, step, &q, &r);
			if (cx->stop)
				return 0;
			if (lin_is_const(&r) && r.c)
				return want(cx, padv, lin_const(cx, 0));
			if (!lin_is_const(&r)) {
				if (want_break(cx, &r, 1))
					return 0;
				uint32_t p = mk_inr(cx, r, 0, 1), two[2] = { cond, p };
				cond = cond == UINT32_MAX ? p : mk_elem(cx, ELEM_and, DT_pred, DT_pred, 2, two);
			}
			c = q;
		}
		lin_add(cx, &l, &c, os[d]);
	}
	struct gen_lin rest = map_strided(cx, lin, t->rank, t->dim, 0, st);
	if (cx->stop)
		return 0;
	lin_add(cx, &l, &rest, 1);
	uint32_t x = want(cx, ir_in(cx->fn, o, 0), lin_put(cx, l));
	if (cond == UINT32_MAX || cx->stop)
		return x;
	return mk_select(cx, t->dtype, cond, x, want(cx, padv, lin_const(cx, 0)));
}

static uint32_t want_gather(struct cx *cx, const struct ir_op *o, uint32_t lin)
{
	const struct ir_type_info *t = ir_vtype(cx->m, cx->fn, o->out), *ti = ir_vtype(cx->m, cx->fn, ir_in(cx->fn, o, 0)),
		*tx = ir_vtype(cx->m, cx->fn, ir_in(cx->fn, o, 1));
	int noff, ncol, nob, nib, nmap, nsize;
	const int64_t *off = ir_attrs(cx->fn, o, 0, &noff), *col = ir_attrs(cx->fn, o, 1, &ncol), *ob = ir_attrs(cx->fn, o, 2, &nob),
		*ib = ir_attrs(cx->fn, o, 3, &nib), *map = ir_attrs(cx->fn, o, 4, &nmap);
	int idim = (int)ir_attr(cx->fn, o, 5);
	const int64_t *size = ir_attrs(cx->fn, o, 6, &nsize);
	int64_t os[IR_MAX_RANK], xs[IR_MAX_RANK], st[IR_MAX_RANK] = { 0 }, ist[IR_MAX_RANK] = { 0 };
	strides_of(ti->rank, ti->dim, os);
	strides_of(tx->rank, tx->dim, xs);
	bool is_off[IR_MAX_RANK] = { 0 };
	int k = 0;
	for (int d = 0; d < ti->rank; d++) {
		bool skip = false;
		for (int i = 0; i < ncol; i++)
			skip |= col[i] == d;
		for (int i = 0; i < nob; i++)
			skip |= ob[i] == d;
		if (!skip && k < noff) {
			st[off[k]] = os[d];
			is_off[off[k++]] = true;
		}
	}
	int xd = 0;
	for (int d = 0; d < t->rank; d++) {
		if (is_off[d])
			continue;
		if (xd == idim)
			xd++;
		ist[d] = xs[xd];
		for (int i = 0; i < nib; i++)
			if (ib[i] == xd)
				st[d] += os[ob[i]];
		xd++;
	}
	struct gen_lin l = map_strided(cx, lin, t->rank, t->dim, 0, st);
	for (int j = 0; j < nmap && !cx->stop; j++) {
		int d = (int)map[j];
		struct gen_lin x = map_strided(cx, lin, t->rank, t->dim, j * (idim < tx->rank ? xs[idim] : 0), ist);
		if (!cx->stop)
			add_start(cx, &l, ir_in(cx->fn, o, 1), lin_put(cx, x), ti->dim[d] - size[d], os[d]);
	}
	return cx->stop ? 0 : want(cx, ir_in(cx->fn, o, 0), lin_put(cx, l));
}

static enum dtype acc_type(enum dtype dt)
{
	return dt == DT_bf16 || dt == DT_f16 ? DT_f32 : dt;
}

/* Region f on nodes (scalar code). */
static bool region(struct cx *cx, ir_fnid f, const uint32_t *arg, uint32_t *out)
{
	const struct ir_fn *g = ir_fn_of(cx->m, f);
	uint32_t *val = mem_alloc(g->val.n * sizeof *val);
	bool ok = true;
	for (uint32_t i = 0; i < g->nparam; i++)
		val[i + 1] = arg[i];
	for (size_t i = 0; ok && i < g->op.n; i++) {
		const struct ir_op *o = &g->op.p[i];
		const struct ir_type_info *t = ir_vtype(cx->m, g, o->out);
		size_t nb;
		if (o->nout != 1 || t->count != 1 || !gen_dtype_ok(t->dtype)) {
			ok = false;
		} else if (o->kind == IR_constant) {
			val[o->out] = mk_const(cx, t->dtype, ir_blob_data(cx->m, (ir_blob)ir_attr(g, o, 0), &nb));
		} else if (ir_is_elem(o->kind) && gen_elem_ok(ir_elem(o->kind))) {
			uint32_t in[3];
			for (uint32_t k = 0; k < o->nin; k++)
				in[k] = val[ir_in(g, o, k)];
			val[o->out] = mk_elem(cx, ir_elem(o->kind), ir_vtype(cx->m, g, ir_in(g, o, o->nin > 1 ? 1 : 0))->dtype, t->dtype, (int)o->nin, in);
		} else if (o->kind == IR_reshape || o->kind == IR_broadcast) {
			val[o->out] = val[ir_in(g, o, 0)];
		} else {
			ok = false;
		}
	}
	for (size_t i = 0; ok && i < g->result.n; i++)
		out[i] = val[g->result.p[i]];
	free(val);
	return ok;
}

static uint32_t red_combine(struct cx *cx, enum redop r, enum dtype acc, uint32_t x, uint32_t y)
{
	static const enum elem of[RED_COUNT] = {
#define REDOP(id, text, elem) elem,
#include "../base/redop.def"
#undef REDOP
	};
	uint32_t in[2] = { x, y };
	return mk_elem(cx, of[r], acc, acc, 2, in);
}

static uint32_t conv(struct cx *cx, uint32_t x, enum dtype from, enum dtype to)
{
	return mk_elem(cx, ELEM_convert, from, to, 1, &x);
}

/* Axes for the reduced runs: the same for equal extents, so that reductions of one shape share loops. */
static struct axset *axset_get(struct cx *cx, int n, const int64_t *ext)
{
	for (int i = 0; i < cx->nset; i++)
		if (cx->set[i].n == n && !memcmp(cx->set[i].ext, ext, (size_t)n * sizeof *ext))
			return &cx->set[i];
	if (cx->nset == (int)NELEM(cx->set)) {
		fail(cx, "too many reductions of different shapes");
		return &cx->set[0];
	}
	struct axset *x = &cx->set[cx->nset++];
	x->n = n;
	for (int i = 0; i < n; i++) {
		x->ext[i] = ext[i];
		x->axis[i] = axis_new(cx, ext[i], false);
	}
	make_vars(cx);
	return x;
}

/* The reduced runs of o's operand: extents and strides; returns their number. */
static int reduced_runs(struct cx *cx, const struct ir_op *o, int64_t *ext, int64_t *stride, int64_t *kept_stride)
{
	const struct ir_type_info *ti = ir_vtype(cx->m, cx->fn, ir_in(cx->fn, o, 0));
	int nd, n = 0, kept = 0;
	const int64_t *dims = ir_attrs(cx->fn, o, 0, &nd);
	int64_t os[IR_MAX_RANK];
	strides_of(ti->rank, ti->dim, os);
	int last = -2;
	for (int d = 0; d < ti->rank; d++) {
		bool red = false;
		for (int i = 0; i < nd; i++)
			red |= dims[i] == d;
		if (!red) {
			kept_stride[kept++] = os[d];
			continue;
		}
		if (ti->dim[d] == 1)
			continue;
		if (n && stride[n - 1] == os[d] * ti->dim[d] && last >= 0) {
			ext[n - 1] *= ti->dim[d];
			stride[n - 1] = os[d];
		} else {
			ext[n] = ti->dim[d];
			stride[n++] = os[d];
		}
		last = d;
	}
	return n;
}

static uint32_t red_result(struct cx *cx, int idx, uint32_t j)
{
	struct gen_red *r = &cx->red.p[idx];
	struct gen_node n = { .kind = GN_RED, .dtype = r->acc[j], .lo = idx, .hi = j, .level = r->level };
	uint16_t lv = 0;
	n.mask = lin_mask(cx, &cx->lin.p[r->lin], &lv);
	uint32_t x = conv(cx, node_put(cx, &n), r->acc[j], r->dtype[j]);
	return x;
}

static void nest_red(struct cx *cx, struct gen_body *b, int red, const uint32_t *node, int n, uint16_t vars, uint16_t level);

static uint32_t want_reduce(struct cx *cx, const struct ir_op *o, uint32_t j, uint32_t lin)
{
	const struct ir_fn *fn = cx->fn;
	int n = (int)o->nin / 2;
	enum redop rop = (enum redop)ir_attr(fn, o, 1);
	const struct ir_type_info *t = ir_vtype(cx->m, fn, o->out + j), *ti = ir_vtype(cx->m, fn, ir_in(fn, o, 0));
	if (n > GEN_MAX_OUT / 2) {
		fail(cx, "reduction of many operands");
		return 0;
	}
	int64_t ext[IR_MAX_RANK], st[IR_MAX_RANK], ks[IR_MAX_RANK], count = 1;
	int nr = reduced_runs(cx, o, ext, st, ks);
	for (int i = 0; i < nr; i++)
		count *= ext[i];
	if (ti->count == 0)
		return want(cx, ir_in(fn, o, (uint32_t)n + j), lin_const(cx, 0));
	struct gen_lin base = map_strided(cx, lin, t->rank, t->dim, 0, ks);
	if (cx->stop)
		return 0;

	if (count <= cx->unroll) {            /* straight-line code */
		uint32_t acc[GEN_MAX_OUT], out[GEN_MAX_OUT];
		enum dtype at[GEN_MAX_OUT];
		for (int k = 0; k < n; k++) {
			enum dtype dt = ir_vtype(cx->m, fn, ir_in(fn, o, (uint32_t)k))->dtype;
			at[k] = rop == RED_fn ? dt : acc_type(dt);
			acc[k] = conv(cx, want(cx, ir_in(fn, o, (uint32_t)(n + k)), lin_const(cx, 0)), dt, at[k]);
		}
		for (int64_t i = 0; i < count && !cx->stop; i++) {
			struct gen_lin l = base;
			int64_t rest = i;
			for (int r = nr - 1; r >= 0; r--) {
				l.c += rest % ext[r] * st[r];
				rest /= ext[r];
			}
			uint32_t ll = lin_put(cx, l), x[GEN_MAX_OUT];
			for (int k = 0; k < n && !cx->stop; k++)
				x[k] = conv(cx, want(cx, ir_in(fn, o, (uint32_t)k), ll), ir_vtype(cx->m, fn, ir_in(fn, o, (uint32_t)k))->dtype, at[k]);
			if (cx->stop)
				return 0;
			if (rop == RED_fn) {
				uint32_t arg[GEN_MAX_OUT];
				for (int k = 0; k < n; k++) {
					arg[k] = acc[k];
					arg[n + k] = x[k];
				}
				if (!region(cx, (ir_fnid)ir_attr(fn, o, 2), arg, out)) {
					fail(cx, "reducer is not straight-line scalar code");
					return 0;
				}
				memcpy(acc, out, (size_t)n * sizeof *acc);
			} else {
				for (int k = 0; k < n; k++)
					acc[k] = red_combine(cx, rop, at[k], acc[k], x[k]);
			}
		}
		return cx->stop ? 0 : conv(cx, acc[j], at[j], t->dtype);
	}

	for (size_t i = 0; i < cx->red.n; i++)
		if (cx->red.p[i].o == o) {
			if (cx->red.p[i].lin != lin) {
				fail(cx, "a reduction is read at two places of one outer iteration");
				return 0;
			}
			return red_result(cx, (int)i, j);
		}
	/* the outer variables must all matter, or the reduction would be repeated */
	uint16_t lv = 0, mask = lin_mask(cx, &cx->lin.p[lin], &lv);
	for (int i = 0; i < cx->s->nvar; i++) {
		bool in = mask >> i & 1;
		if (in && !cx->s->var[i].outer) {
			fail(cx, "a reduction inside the loop of another one");
			return 0;
		}
		if (!in && cx->s->var[i].outer && cx->hi[i] - cx->lo[i] > 1 && cx->s->var[i].ext * count > 4096) {
			fail(cx, "reductions keep different dimensions");
			return 0;
		}
	}
	if (cx->red.n >= 64 || cx->depth > 3000) {
		fail(cx, "too many reductions");
		return 0;
	}
	struct gen_red red = { .o = o, .lin = lin, .n = n, .redop = (uint8_t)rop };
	for (int k = 0; k < n; k++) {
		enum dtype dt = ir_vtype(cx->m, fn, ir_in(fn, o, (uint32_t)k))->dtype;
		red.dtype[k] = dt;
		red.acc[k] = rop == RED_fn ? dt : acc_type(dt);
		red.init[k] = conv(cx, want(cx, ir_in(fn, o, (uint32_t)(n + k)), lin_const(cx, 0)), dt, red.acc[k]);
		if (cx->stop)
			return 0;
		red.level = MAX(red.level, cx->node.p[red.init[k]].level);
	}
	if (rop == RED_fn) {
		uint32_t arg[GEN_MAX_OUT];
		for (int k = 0; k < 2 * n; k++) {
			struct gen_node a = { .kind = GN_ARG, .dtype = red.acc[k % n], .lo = k, .mask = UINT16_MAX };
			arg[k] = node_put(cx, &a);
		}
		if (!region(cx, (ir_fnid)ir_attr(fn, o, 2), arg, red.fn)) {
			fail(cx, "reducer is not straight-line scalar code");
			return 0;
		}
	}
	struct axset *set = axset_get(cx, nr, ext);
	if (cx->stop)
		return 0;
	struct gen_lin l = base;
	for (int i = 0; i < nr; i++) {
		struct gen_lin x = axis_lin(cx, set->axis[i]);
		lin_add(cx, &l, &x, st[i]);
		for (int v = 0; v < cx->s->nvar; v++)
			if (cx->s->var[v].axis == set->axis[i])
				red.vars |= (uint16_t)(1u << v);
	}
	int64_t lo[GEN_NV], hi[GEN_NV];
	memcpy(lo, cx->lo, sizeof lo);
	memcpy(hi, cx->hi, sizeof hi);
	uint64_t ctx = cx->ctx;
	struct seg g;
	if (!seg_init(cx, &g, red.vars)) {
		cx->nobrk = cx->stop = cx->restart = true;
		cx->nbrk = 0;
		return 0;
	}
	/* operands over all segments: kept until the level is known */
	uint32_t node[MAX_SEG][GEN_MAX_OUT];
	int64_t slo[MAX_SEG][GEN_NV], shi[MAX_SEG][GEN_NV];
	int ns = 0;
	do {
		seg_set(cx, &g);
		uint32_t ll = lin_put(cx, l);
		for (int k = 0; k < n && !cx->stop; k++) {
			node[ns][k] = conv(cx, want(cx, ir_in(fn, o, (uint32_t)k), ll), red.dtype[k], red.acc[k]);
			if (!cx->stop)
				red.level = MAX(red.level, cx->node.p[node[ns][k]].level);
		}
		if (cx->stop)
			return 0;
		memcpy(slo[ns], cx->lo, sizeof lo);
		memcpy(shi[ns++], cx->hi, sizeof hi);
	} while (seg_next(&g));
	red.level++;
	int idx = (int)cx->red.n;
	arr_push(&cx->red, red);
	for (int i = 0; i < ns; i++) {
		memcpy(cx->lo, slo[i], sizeof lo);
		memcpy(cx->hi, shi[i], sizeof hi);
		nest_red(cx, &cx->s->body[cx->s->nbody - 1], idx, node[i], n, red.vars, (uint16_t)(red.level - 1));
	}
	memcpy(cx->lo, lo, sizeof lo);
	memcpy(cx->hi, hi, sizeof hi);
	cx->ctx = ctx;
	return red_result(cx, idx, j);
}

static uint32_t want_new(struct cx *cx, ir_val v, uint32_t lin)
{
	const struct ir_fn *fn = cx->fn;
	const struct ir_type_info *t = ir_vtype(cx->m, fn, v);
	const struct ir_op *o = ir_def(fn, v);
	int64_t st[IR_MAX_RANK], os[IR_MAX_RANK];
	int n;
	if (!o) {
		const struct prog_view *w = cx->view ? &cx->view[v - 1] : NULL;
		strides_of(t->rank, t->dim, st);
		return mk_load(cx, (int)v - 1, t->dtype,
		               map_strided(cx, lin, t->rank, t->dim, w ? w->off : 0, w ? w->stride : st));
	}
	const struct ir_type_info *ti = o->nin ? ir_vtype(cx->m, fn, ir_in(fn, o, 0)) : NULL;
	if (ir_is_elem(o->kind)) {
		uint32_t in[3] = { 0 };
		for (uint32_t i = 0; i < o->nin; i++) {
			const struct ir_type_info *x = ir_vtype(cx->m, fn, ir_in(fn, o, i));
			in[i] = want(cx, ir_in(fn, o, i), x->count == 1 ? lin_const(cx, 0) : lin);
			if (cx->stop)
				return 0;
		}
		return mk_elem(cx, ir_elem(o->kind), ir_vtype(cx->m, fn, ir_in(fn, o, o->nin > 1 ? 1 : 0))->dtype, t->dtype, (int)o->nin, in);
	}
	if (ti)
		strides_of(ti->rank, ti->dim, os);
	switch (o->kind) {
	case IR_constant: {
		size_t nb;
		ir_blob blob = (ir_blob)ir_attr(fn, o, 0);
		const void *p = ir_blob_data(cx->m, blob, &nb);
		if (nb == dtype_info[t->dtype].bytes)
			return mk_const(cx, t->dtype, p);
		size_t b = cx->fn->nparam + cx->fn->result.n;
		while (b < cx->buf.n && (cx->buf.p[b].data != p || cx->buf.p[b].dtype != t->dtype))
			b++;
		if (b == cx->buf.n) {
			struct gen_buf nbuf = { t->dtype, p, nb, t->count, false };
			arr_push(&cx->buf, nbuf);
		}
		return mk_load(cx, (int)b, t->dtype, lin_of(cx, lin));
	}
	case IR_iota:
		memset(st, 0, sizeof st);
		st[ir_attr(fn, o, 0)] = 1;
		return node_lin(cx, map_strided(cx, lin, t->rank, t->dim, 0, st), t->dtype);
	case IR_reshape:
	case IR_sharding_constraint:
		return want(cx, ir_in(fn, o, 0), lin);
	case IR_bitcast_convert: {
		uint32_t x = want(cx, ir_in(fn, o, 0), lin);
		return cx->stop ? 0 : mk_elem(cx, ELEM_bitcast, ti->dtype, t->dtype, 1, &x);
	}
	case IR_broadcast: {
		const int64_t *d = ir_attrs(fn, o, 0, &n);
		memset(st, 0, sizeof st);
		for (int i = 0; i < n; i++)
			if (ti->dim[i] != 1)
				st[d[i]] = os[i];
		return want(cx, ir_in(fn, o, 0), lin_put(cx, map_strided(cx, lin, t->rank, t->dim, 0, st)));
	}
	case IR_transpose: {
		const int64_t *p = ir_attrs(fn, o, 0, &n);
		for (int i = 0; i < n; i++)
			st[i] = os[p[i]];
		return want(cx, ir_in(fn, o, 0), lin_put(cx, map_strided(cx, lin, t->rank, t->dim, 0, st)));
	}
	case IR_reverse: {
		const int64_t *d = ir_attrs(fn, o, 0, &n);
		int64_t c = 0;
		memcpy(st, os, sizeof st);
		for (int i = 0; i < n; i++) {
			c += (ti->dim[d[i]] - 1) * os[d[i]];
			st[d[i]] = -os[d[i]];
		}
		return want(cx, ir_in(fn, o, 0), lin_put(cx, map_strided(cx, lin, t->rank, t->dim, c, st)));
	}
	case IR_slice: {
		const int64_t *b = ir_attrs(fn, o, 0, &n), *s = ir_attrs(fn, o, 2, &n);
		int64_t c = 0;
		for (int i = 0; i < n; i++) {
			c += b[i] * os[i];
			st[i] = os[i] * s[i];
		}
		return want(cx, ir_in(fn, o, 0), lin_put(cx, map_strided(cx, lin, t->rank, t->dim, c, st)));
	}
	case IR_dynamic_slice: {
		const int64_t *size = ir_attrs(fn, o, 0, &n);
		struct gen_lin l = map_strided(cx, lin, t->rank, t->dim, 0, os);
		for (int i = 0; i < n && !cx->stop; i++)
			add_start(cx, &l, ir_in(fn, o, (uint32_t)i + 1), lin_const(cx, 0), ti->dim[i] - size[i], os[i]);
		return cx->stop ? 0 : want(cx, ir_in(fn, o, 0), lin_put(cx, l));
	}
	case IR_gather:
		return want_gather(cx, o, lin);
	case IR_concatenate:
		return want_concat(cx, o, lin);
	case IR_pad:
		return want_pad(cx, o, lin);
	case IR_reduce_precision: {
		uint32_t x = want(cx, ir_in(fn, o, 0), lin);
		if (cx->stop)
			return 0;
		struct gen_node r = { .kind = GN_ROUND, .dtype = t->dtype, .from = t->dtype, .lo = ir_attr(fn, o, 0), .hi = ir_attr(fn, o, 1) };
		r.a[0] = x;
		r.mask = cx->node.p[x].mask;
		r.level = cx->node.p[x].level;
		return node_put(cx, &r);
	}
	case IR_reduce:
		return want_reduce(cx, o, v - o->out, lin);
	default:
		fail(cx, "an operation that generated code does not have");
		return 0;
	}
}

static uint32_t want(struct cx *cx, ir_val v, uint32_t lin)
{
	if (cx->stop)
		return 0;
	if (ir_vtype(cx->m, cx->fn, v)->count == 1)
		lin = lin_const(cx, 0);
	uint64_t key[3] = { v, lin, cx->ctx };
	uint64_t *hit = map_get(&cx->memo, key, sizeof key);
	if (hit)
		return (uint32_t)*hit;
	if (++cx->depth > 4000) {
		fail(cx, "a chain of operations that is too long");
		return 0;
	}
	if (cx->node.n > 60000) {
		fail(cx, "a group that is too large");
		return 0;
	}
	uint32_t n = want_new(cx, v, lin);
	cx->depth--;
	if (!cx->stop)
		*map_put(&cx->memo, key, sizeof key) = n;
	return cx->stop ? 0 : n;
}

/* --- nests ------------------------------------------------------------- */

static struct gen_nest *nest_get(struct cx *cx, struct gen_body *b, uint16_t vars, uint16_t level)
{
	for (int i = 0; i < b->nnest; i++) {
		struct gen_nest *x = &b->nest[i];
		bool same = x->vars == vars && x->level == level;
		for (int v = 0; same && v < cx->s->nvar; v++)
			same = !(vars >> v & 1) || (x->lo[v] == cx->lo[v] && x->hi[v] == cx->hi[v]);
		if (same)
			return x;
	}
	struct gen_nest *nw = ARENA_NEW(cx->a, struct gen_nest, b->nnest + 1);
	if (b->nnest)
		memcpy(nw, b->nest, (size_t)b->nnest * sizeof *nw);
	b->nest = nw;
	struct gen_nest *x = &nw[b->nnest++];
	x->vars = vars;
	x->level = level;
	memcpy(x->lo, cx->lo, sizeof x->lo);
	memcpy(x->hi, cx->hi, sizeof x->hi);
	return x;
}

static void nest_red(struct cx *cx, struct gen_body *b, int red, const uint32_t *node, int n, uint16_t vars, uint16_t level)
{
	struct gen_nest *x = nest_get(cx, b, vars, level);
	void *old = x->red;
	x->red = arena_alloc(cx->a, sizeof *x->red * (size_t)(x->nred + 1));
	if (x->nred)
		memcpy(x->red, old, sizeof *x->red * (size_t)x->nred);
	x->red[x->nred].red = red;
	memcpy(x->red[x->nred++].node, node, sizeof *node * (size_t)n);
}

static void nest_store(struct cx *cx, struct gen_body *b, int res, uint32_t node, uint32_t lin, uint16_t vars)
{
	struct gen_nest *x = nest_get(cx, b, vars, cx->node.p[node].level);
	void *old = x->st;
	x->st = arena_alloc(cx->a, sizeof *x->st * (size_t)(x->nst + 1));
	if (x->nst)
		memcpy(x->st, old, sizeof *x->st * (size_t)x->nst);
	x->st[x->nst++] = (struct gen_store){ res, node, lin };
}

/* The graph as it stands becomes the schedule's. */
static void finish(struct cx *cx, int vbytes)
{
	struct gen_sched *s = cx->s;
	s->node = arena_copy(cx->a, cx->node.p, cx->node.n * sizeof *cx->node.p);
	s->nnode = (uint32_t)cx->node.n;
	s->lin = arena_copy(cx->a, cx->lin.p, cx->lin.n * sizeof *cx->lin.p);
	s->nlin = (uint32_t)cx->lin.n;
	s->buf = arena_copy(cx->a, cx->buf.p, cx->buf.n * sizeof *cx->buf.p);
	s->nbuf = (int)cx->buf.n;
	gen_shape(cx->a, s, vbytes);
}

/* One attempt; false: stopped (failed, or to be started again). */
static bool attempt(struct cx *cx)
{
	const struct ir_module *m = cx->m;
	const struct ir_fn *fn = cx->fn;
	struct gen_sched *s = cx->s;
	cx->stop = cx->restart = false;
	cx->depth = 0;
	cx->node.n = cx->lin.n = cx->red.n = 0;
	cx->buf.n = fn->nparam + fn->result.n;
	map_free(&cx->memo);
	map_free(&cx->nodes);
	map_free(&cx->lins);
	map_free(&cx->ctxs);
	memset(s, 0, sizeof *s);
	s->m = m;
	s->fn = fn;
	memset(cx->lo, 0, sizeof cx->lo);
	for (int i = 0; i < GEN_NV; i++)
		cx->hi[i] = 1;
	struct gen_node none = { .kind = GN_CONST, .dtype = DT_pred };
	node_put(cx, &none);
	lin_const(cx, 0);
	make_vars(cx);

	/* the domain: kept runs are outer axes, reduced runs the first inner set */
	struct gen_lin full = { 0 }, rows = { 0 };
	int64_t nfull = 0, nrows = 0;
	uint16_t inner = 0;
	if (cx->anchor) {
		const struct ir_op *o = cx->anchor;
		const struct ir_type_info *ti = ir_vtype(m, fn, ir_in(fn, o, 0));
		int nd;
		const int64_t *dims = ir_attrs(fn, o, 0, &nd);
		nfull = nrows = 1;
		/* axes were made in order of runs: see gen_schedule */
		int kept = 0, red = 0;
		int64_t rs = 1, fs = 1;
		int run[IR_MAX_RANK], nrun = 0, isred[IR_MAX_RANK];
		int prev = -1;
		for (int d = 0; d < ti->rank; d++) {
			if (ti->dim[d] == 1)
				continue;
			int r = 0;
			for (int i = 0; i < nd; i++)
				r |= dims[i] == d;
			if (nrun && prev == r)
				continue;
			isred[nrun] = r;
			run[nrun++] = r ? cx->set[0].axis[red++] : kept++;
			prev = r;
		}
		for (int i = nrun - 1; i >= 0; i--) {
			struct gen_lin x = axis_lin(cx, run[i]);
			lin_add(cx, &full, &x, fs);
			fs *= cx->axis[run[i]].ext;
			if (!isred[i]) {
				lin_add(cx, &rows, &x, rs);
				rs *= cx->axis[run[i]].ext;
			}
		}
		nfull = fs;
		nrows = rs;
		for (int v = 0; v < s->nvar; v++)
			for (int i = 0; i < cx->set[0].n; i++)
				if (s->var[v].axis == cx->set[0].axis[i])
					inner |= (uint16_t)(1u << v);
	} else {
		nfull = cx->axis[0].ext;
		full = axis_lin(cx, 0);
	}
	if (cx->stop)
		return false;

	struct seg g, gi;
	if (!seg_init(cx, &g, s->outer)) {
		cx->nobrk = cx->restart = true;
		cx->nbrk = 0;
		return false;
	}
	ARR(struct gen_body) body = { 0 };
	do {
		seg_set(cx, &g);
		struct gen_body nb = { 0 };
		arr_push(&body, nb);
		s->body = body.p;
		s->nbody = (int)body.n;
		memcpy(body.p[body.n - 1].lo, cx->lo, sizeof cx->lo);
		memcpy(body.p[body.n - 1].hi, cx->hi, sizeof cx->hi);
		cx->red.n = 0;
		for (size_t i = 0; i < fn->result.n && !cx->stop; i++) {
			ir_val v = fn->result.p[i];
			const struct ir_type_info *t = ir_vtype(m, fn, v);
			bool is_row = cx->anchor && t->count == nrows && nrows != nfull;
			if (t->count != nfull && !is_row) {
				fail(cx, "results of unrelated shapes");
				break;
			}
			const struct prog_view *w = cx->view ? &cx->view[fn->nparam + i] : NULL;
			if (is_row)
				gi.nv = 0;
			else if (!seg_init(cx, &gi, inner)) {
				cx->nobrk = cx->stop = cx->restart = true;
				cx->nbrk = 0;
				break;
			}
			do {
				seg_set(cx, &gi);
				uint32_t lin = lin_put(cx, is_row ? rows : full);
				uint32_t x = want(cx, v, lin);
				if (cx->stop)
					break;
				int64_t st[IR_MAX_RANK];
				strides_of(t->rank, t->dim, st);
				struct gen_lin l = map_strided(cx, lin, t->rank, t->dim, w ? w->off : 0, w ? w->stride : st);
				if (cx->stop)
					break;
				nest_store(cx, &s->body[s->nbody - 1], (int)i, x, lin_put(cx, l), is_row ? 0 : inner);
			} while (seg_next(&gi));
			/* back to the whole range of the inner variables */
			for (int k = 0; k < s->nvar; k++)
				if (inner >> k & 1) {
					cx->lo[k] = 0;
					cx->hi[k] = s->var[k].ext;
				}
		}
		struct gen_body *b = &body.p[body.n - 1];
		b->nred = (int)cx->red.n;
		b->red = arena_copy(cx->a, cx->red.p, cx->red.n * sizeof *cx->red.p);
		/* nests in order of level */
		for (int i = 1; i < b->nnest; i++)
			for (int k = i; k > 0 && b->nest[k].level < b->nest[k - 1].level; k--) {
				struct gen_nest t = b->nest[k];
				b->nest[k] = b->nest[k - 1];
				b->nest[k - 1] = t;
			}
		for (int i = 0; i < b->nnest; i++)
			b->nlevel = MAX(b->nlevel, b->nest[i].level + 1);
		for (int i = 0; i < b->nred; i++)
			b->nlevel = MAX(b->nlevel, b->red[i].level + 1);
	} while (!cx->stop && seg_next(&g));
	s->body = arena_copy(cx->a, body.p, body.n * sizeof *body.p);
	s->nbody = (int)body.n;
	arr_free(&body);
	return !cx->stop;
}

struct gen_sched *gen_schedule(struct arena *a, const struct ir_module *m, const struct ir_fn *fn,
                               const struct prog_view *view, int vbytes, const char **why)
{
	struct cx cx = { .a = a, .m = m, .fn = fn, .view = view, .s = ARENA_NEW(a, struct gen_sched, 1) };
	struct gen_sched *out = NULL;
	for (size_t i = 0; i < fn->nparam + fn->result.n; i++) {
		const struct ir_type_info *t = ir_vtype(m, fn, i < fn->nparam ? (ir_val)i + 1 : fn->result.p[i - fn->nparam]);
		struct gen_buf b = { t->dtype, NULL, 0, t->count, i >= fn->nparam };
		arr_push(&cx.buf, b);
	}
	/* results of the rows beside results of the whole: even a short reduction has to be a loop */
	cx.unroll = GEN_UNROLL;
	for (size_t i = 1; i < fn->result.n; i++)
		if (ir_vtype(m, fn, fn->result.p[i])->count != ir_vtype(m, fn, fn->result.p[0])->count)
			cx.unroll = 1;
	/* the largest reduction decides */
	uint8_t *live = ir_live(a, m, fn);
	int64_t most = 0;
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		if (o->kind != IR_reduce)
			continue;
		bool used = false;
		for (uint32_t j = 0; j < o->nout; j++)
			used |= live[o->out + j];
		const struct ir_type_info *ti = ir_vtype(m, fn, ir_in(fn, o, 0)), *t = ir_vtype(m, fn, o->out);
		if (!used || ti->count == 0 || ti->count / t->count <= cx.unroll)
			continue;
		if (ti->count > most) {
			most = ti->count;
			cx.anchor = o;
		}
	}
	if (cx.anchor) {
		const struct ir_op *o = cx.anchor;
		const struct ir_type_info *ti = ir_vtype(m, fn, ir_in(fn, o, 0)), *t = ir_vtype(m, fn, o->out);
		if (ti->count > 1 << 20 && t->count < 64) {
			*why = "more than a million elements reduced into fewer than 64: one thread would do it all";
			goto done;
		}
		int nd, prev = -1, n = 0, nr = 0;
		const int64_t *dims = ir_attrs(fn, o, 0, &nd);
		int64_t ext[IR_MAX_RANK];
		bool isred[IR_MAX_RANK];
		for (int d = 0; d < ti->rank; d++) {
			if (ti->dim[d] == 1)
				continue;
			int r = 0;
			for (int i = 0; i < nd; i++)
				r |= dims[i] == d;
			if (n && prev == r) {
				ext[n - 1] *= ti->dim[d];
			} else {
				isred[n] = r;
				ext[n++] = ti->dim[d];
				prev = r;
			}
		}
		for (int i = 0; i < n; i++)
			if (!isred[i])
				axis_new(&cx, ext[i], true);
		struct axset *x = &cx.set[cx.nset++];
		for (int i = 0; i < n; i++)
			if (isred[i]) {
				x->ext[nr] = ext[i];
				x->axis[nr++] = axis_new(&cx, ext[i], false);
			}
		x->n = nr;
		} else {
		int64_t n = 0;
		for (size_t i = 0; i < fn->result.n; i++)
			n = MAX(n, ir_vtype(m, fn, fn->result.p[i])->count);
		axis_new(&cx, n, true);
	}
	if (cx.stop) {
		*why = cx.why;
		goto done;
	}
	for (int tries = 0; tries < 100; tries++) {
		bool empty = cx.anchor == NULL && cx.axis[0].ext == 0;
		if (empty) {
			for (size_t i = 0; i < fn->result.n; i++)
				if (ir_vtype(m, fn, fn->result.p[i])->count)
					cx.why = "results of unrelated shapes";
			if (cx.why)
				break;
			memset(cx.s, 0, sizeof *cx.s);
			cx.s->m = m;
			cx.s->fn = fn;
			cx.s->lane = -1;
			cx.s->width = 1;
			out = cx.s;
			break;
		}
		if (attempt(&cx)) {
			finish(&cx, vbytes);
			out = cx.s;
			break;
		}
		if (!cx.restart)
			break;
		cx.why = NULL;
	}
	if (!out)
		*why = cx.why ? cx.why : "loops that cannot be found";
done:
	map_free(&cx.memo);
	map_free(&cx.nodes);
	map_free(&cx.lins);
	map_free(&cx.ctxs);
	arr_free(&cx.node);
	arr_free(&cx.lin);
	arr_free(&cx.red);
	arr_free(&cx.buf);
	return out;
}
