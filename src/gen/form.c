/* Linear forms over loop variables and integer nodes, the variables themselves, and digits: see sched.c. */
#include "want.h"

#include <stdlib.h>

/* A value that is read at several places is several nodes, and so is what it is made of: chains of pads and slices may double with
 * each.  The code generator takes a fifth of a millisecond a node. */
enum { MOST_NODES = 2048 };

void gs_fail(struct cx *cx, const char *why)
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

void gs_clear(struct cx *cx)
{
	cx->node.n = cx->lin.n = cx->red.n = 0;
	map_free(&cx->memo);
	map_free(&cx->nodes);
	map_free(&cx->lins);
	map_free(&cx->ctxs);
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

uint32_t gs_node_put(struct cx *cx, const struct gen_node *n)
{
	bool fresh;
	uint32_t id = intern(&cx->nodes, n, sizeof *n, (uint32_t)cx->node.n, &fresh);
	if (fresh)
		arr_push(&cx->node, *n);
	if (cx->node.n > MOST_NODES)
		gs_fail(cx, "values that are read at too many places of each other");
	return id;
}

void gs_lin_range(struct cx *cx, const struct gen_lin *l, bool with_c, int64_t *lo, int64_t *hi)
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

uint16_t gs_lin_mask(struct cx *cx, const struct gen_lin *l, uint16_t *level)
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

struct gen_lin gs_lin_of(struct cx *cx, uint32_t id)
{
	return cx->lin.p[id];
}

uint32_t gs_node_lin(struct cx *cx, struct gen_lin l, enum dtype dt)
{
	struct gen_node n = { .kind = GN_LIN, .dtype = (uint8_t)dt };
	gs_lin_range(cx, &l, true, &n.lo, &n.hi);
	n.lin = gs_lin_put(cx, l);
	n.mask = gs_lin_mask(cx, &cx->lin.p[n.lin], &n.level);
	return gs_node_put(cx, &n);
}

void gs_lin_term(struct cx *cx, struct gen_lin *l, uint32_t node, int64_t k)
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
	uint32_t all = gs_node_lin(cx, t, DT_i64);
	gs_lin_term(cx, l, all, 1);
	gs_lin_term(cx, l, node, k);
}

void gs_lin_add(struct cx *cx, struct gen_lin *a, const struct gen_lin *b, int64_t k)
{
	a->c += b->c * k;
	for (int i = 0; i < GEN_NV; i++)
		a->k[i] += b->k[i] * k;
	for (int j = 0; j < GEN_NT; j++)
		gs_lin_term(cx, a, b->tn[j], b->tk[j] * k);
}

/* Normal form: variables of one value are folded, terms are in order of node. */
uint32_t gs_lin_put(struct cx *cx, struct gen_lin l)
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

uint32_t gs_lin_const(struct cx *cx, int64_t c)
{
	return gs_lin_put(cx, (struct gen_lin){ .c = c });
}

bool gs_lin_is_const(const struct gen_lin *l)
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

int gs_axis_new(struct cx *cx, int64_t ext, bool outer)
{
	if (cx->naxis == MAX_AXIS) {
		gs_fail(cx, "too many loops");
		return 0;
	}
	cx->axis[cx->naxis] = (struct axis){ .ext = ext, .outer = outer };
	return cx->naxis++;
}

struct gen_lin gs_axis_lin(struct cx *cx, int axis)
{
	struct gen_lin l = { 0 };
	for (int i = 0; i < cx->s->nvar; i++)
		if (cx->s->var[i].axis == axis)
			l.k[i] = cx->s->var[i].unit;
	return l;
}

void gs_make_vars(struct cx *cx)
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
				gs_fail(cx, "too many loops");
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

bool gs_want_break(struct cx *cx, const struct gen_lin *l, int64_t bound)
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
	gs_lin_range(cx, &r, true, &lo, &hi);
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

bool gs_seg_init(struct cx *cx, struct seg *g, uint16_t mask)
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

void gs_seg_set(struct cx *cx, const struct seg *g)
{
	for (int k = 0; k < g->nv; k++) {
		cx->lo[g->v[k]] = g->p[k][g->at[k]];
		cx->hi[g->v[k]] = g->p[k][g->at[k] + 1];
	}
	set_ctx(cx);
}

bool gs_seg_next(struct seg *g)
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

void gs_lin_divmod(struct cx *cx, const struct gen_lin *l, int64_t s, struct gen_lin *q, struct gen_lin *r)
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
		gs_lin_term(cx, q, l->tn[j], l->tk[j] / s);
		gs_lin_term(cx, r, l->tn[j], l->tk[j] % s);
	}
	int64_t lo, hi;
	gs_lin_range(cx, r, false, &lo, &hi);
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
		int64_t g = gcd_of(s / k, e);
		if (g > 1 && g < e && g < s / k && s / k % g == 0 && want_split(cx, i, g))
			return;
	}
	struct gen_node n = { .kind = GN_DIV, .dtype = DT_i64, .imm = { s } };
	n.lin = gs_lin_put(cx, *r);
	n.mask = gs_lin_mask(cx, &cx->lin.p[n.lin], &n.level);
	gs_lin_range(cx, r, true, &lo, &hi);
	n.lo = lo / s;
	n.hi = hi / s;
	uint32_t d = gs_node_put(cx, &n);
	n.kind = GN_MOD;
	n.lo = 0;
	n.hi = s - 1;
	uint32_t e = gs_node_put(cx, &n);
	gs_lin_term(cx, q, d, 1);
	memset(r, 0, sizeof *r);
	gs_lin_term(cx, r, e, 1);
}

struct gen_lin gs_map_strided(struct cx *cx, uint32_t lin, int rank, const int64_t *dim, int64_t c0, const int64_t *stride)
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
	struct gen_lin out = { .c = c0 }, rest = gs_lin_of(cx, lin), q, r;
	for (int d = 0; d < n && !cx->stop; d++) {
		int64_t s = 1;
		for (int e = d + 1; e < n; e++)
			s *= ext[e];
		if (s == 1) {
			q = rest;
		} else {
			gs_lin_divmod(cx, &rest, s, &q, &r);
			rest = r;
		}
		if (st[d])
			gs_lin_add(cx, &out, &q, st[d]);
	}
	return out;
}

void gen_strides(int rank, const int64_t *dim, int64_t *st)
{
	int64_t s = 1;
	for (int d = rank - 1; d >= 0; d--) {
		st[d] = s;
		s *= dim[d];
	}
}
