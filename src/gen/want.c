/* What a value is at a flat index: the walk from results to parameters that turns views into addresses and
 * operations into nodes (see sched.c). */
#include "want.h"

#include <stdlib.h>

/* A frame of its own: what it needs is not on the stack of a long chain of other operations. */
#define APART __attribute__((noinline))

/* --- nodes ------------------------------------------------------------- */

static uint32_t mk_const(struct cx *cx, enum dtype dt, const void *p)
{
	struct gen_node n = { .kind = GN_CONST, .dtype = (uint8_t)dt };
	memcpy(n.imm, p, dtype_info[dt].bytes);
	return gs_node_put(cx, &n);
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
	return gs_node_put(cx, &n);
}

static uint32_t mk_load(struct cx *cx, int buf, enum dtype dt, struct gen_lin l)
{
	struct gen_node n = { .kind = GN_LOAD, .dtype = (uint8_t)dt };
	n.a[0] = (uint32_t)buf;
	n.lin = gs_lin_put(cx, l);
	n.mask = gs_lin_mask(cx, &cx->lin.p[n.lin], &n.level);
	return gs_node_put(cx, &n);
}

static uint32_t mk_inr(struct cx *cx, struct gen_lin l, int64_t lo, int64_t hi)
{
	struct gen_node n = { .kind = GN_INR, .dtype = DT_pred, .imm = { lo, hi } };
	n.lin = gs_lin_put(cx, l);
	n.mask = gs_lin_mask(cx, &cx->lin.p[n.lin], &n.level);
	return gs_node_put(cx, &n);
}

/* l clamped to 0 .. hi, as a form. */
static struct gen_lin lin_clamp(struct cx *cx, struct gen_lin l, int64_t hi)
{
	int64_t a, b;
	gs_lin_range(cx, &l, true, &a, &b);
	if (a >= 0 && b <= hi)
		return l;
	struct gen_node n = { .kind = GN_LCLAMP, .dtype = DT_i64, .lo = 0, .hi = hi };
	n.lin = gs_lin_put(cx, l);
	n.mask = gs_lin_mask(cx, &cx->lin.p[n.lin], &n.level);
	struct gen_lin out = { 0 };
	gs_lin_term(cx, &out, gs_node_put(cx, &n), 1);
	return out;
}

/* Add clamp(v at lin, 0, hi) * k to l. */
static void add_start(struct cx *cx, struct gen_lin *l, ir_val v, uint32_t lin, int64_t hi, int64_t k)
{
	if (hi <= 0 || k == 0)
		return;
	const struct ir_type_info *t = ir_vtype(cx->m, cx->fn, v);
	uint32_t x = gs_want(cx, v, lin);
	if (cx->stop)
		return;
	struct gen_node n = { .kind = GN_CLAMP, .dtype = DT_i64, .from = t->dtype, .lo = 0, .hi = hi };
	n.a[0] = x;
	n.mask = cx->node.p[x].mask;
	n.level = cx->node.p[x].level;
	int64_t c;
	if (gs_lin_is_const(&cx->lin.p[lin]) && ir_const_int(cx->m, cx->fn, v, &c)) {
		l->c += (c < 0 ? 0 : MIN(c, hi)) * k;
		return;
	}
	gs_lin_term(cx, l, gs_node_put(cx, &n), k);
}

static uint32_t mk_select(struct cx *cx, enum dtype dt, uint32_t c, uint32_t x, uint32_t y)
{
	uint32_t in[3] = { c, x, y };
	return x == y ? x : mk_elem(cx, ELEM_select, dt, dt, 3, in);
}

APART static uint32_t want_concat(struct cx *cx, const struct ir_op *o, uint32_t lin)
{
	const struct ir_type_info *t = ir_vtype(cx->m, cx->fn, o->out);
	int dim = (int)ir_attr(cx->fn, o, AT_dim);
	int64_t post = 1, rows = 1;
	for (int d = dim + 1; d < t->rank; d++)
		post *= t->dim[d];
	for (int d = 0; d < dim; d++)
		rows *= t->dim[d];
	int64_t three[3] = { rows, t->dim[dim], post }, sel[3] = { 0, 1, 0 };
	struct gen_lin mid = gs_map_strided(cx, lin, 3, three, 0, sel);
	if (cx->stop)
		return 0;
	int64_t lo, hi, at = 0;
	gs_lin_range(cx, &mid, true, &lo, &hi);
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
						struct gen_lin l = gs_map_strided(cx, lin, 3, three, -at * post, s3);
						return cx->stop ? 0 : gs_want(cx, ir_in(cx->fn, o, i), gs_lin_put(cx, l));
					}
					if ((at > lo && gs_want_break(cx, &mid, at)) || (end <= hi && gs_want_break(cx, &mid, end)))
						return 0;
				} else {
					int64_t s3[3] = { n * post, 0, 1 };
					struct gen_lin l = gs_map_strided(cx, lin, 3, three, 0, s3), c = mid;
					c.c -= at;
					c = lin_clamp(cx, c, n - 1);
					gs_lin_add(cx, &l, &c, post);
					uint32_t x = gs_want(cx, ir_in(cx->fn, o, i), gs_lin_put(cx, l));
					out = out == UINT32_MAX ? x : mk_select(cx, t->dtype, mk_inr(cx, mid, at, end), x, out);
				}
			}
			at = end;
		}
	}
	return out == UINT32_MAX ? 0 : out;
}

APART static uint32_t want_pad(struct cx *cx, const struct ir_op *o, uint32_t lin)
{
	const struct ir_type_info *t = ir_vtype(cx->m, cx->fn, o->out), *ti = ir_vtype(cx->m, cx->fn, ir_in(cx->fn, o, 0));
	int n;
	const int64_t *low = ir_attrs(cx->fn, o, AT_low, &n), *high = ir_attrs(cx->fn, o, AT_high, &n), *in = ir_attrs(cx->fn, o, AT_interior, &n);
	ir_val padv = ir_in(cx->fn, o, 1);
	if (ti->count == 0)
		return gs_want(cx, padv, gs_lin_const(cx, 0));
	int64_t os[IR_MAX_RANK], st[IR_MAX_RANK];
	gen_strides(ti->rank, ti->dim, os);
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
		struct gen_lin c = gs_map_strided(cx, lin, t->rank, t->dim, 0, one);
		if (cx->stop)
			return 0;
		int64_t step = in[d] + 1, ext = (ti->dim[d] - 1) * step + 1, lo, hi;
		c.c -= low[d];
		gs_lin_range(cx, &c, true, &lo, &hi);
		if (hi < 0 || lo >= ext)
			return gs_want(cx, padv, gs_lin_const(cx, 0));
		if (lo < 0 || hi >= ext) {
			if ((lo < 0 && gs_want_break(cx, &c, 0)) || (hi >= ext && gs_want_break(cx, &c, ext)))
				return 0;
			uint32_t p = mk_inr(cx, c, 0, ext), two[2] = { cond, p };
			cond = cond == UINT32_MAX ? p : mk_elem(cx, ELEM_and, DT_pred, DT_pred, 2, two);
			c = lin_clamp(cx, c, ext - 1);
		}
		if (step > 1) {
			struct gen_lin q, r;
			gs_lin_divmod(cx, &c, step, &q, &r);
			if (cx->stop)
				return 0;
			if (gs_lin_is_const(&r) && r.c)
				return gs_want(cx, padv, gs_lin_const(cx, 0));
			if (!gs_lin_is_const(&r)) {
				if (gs_want_break(cx, &r, 1))
					return 0;
				uint32_t p = mk_inr(cx, r, 0, 1), two[2] = { cond, p };
				cond = cond == UINT32_MAX ? p : mk_elem(cx, ELEM_and, DT_pred, DT_pred, 2, two);
			}
			c = q;
		}
		gs_lin_add(cx, &l, &c, os[d]);
	}
	struct gen_lin rest = gs_map_strided(cx, lin, t->rank, t->dim, 0, st);
	if (cx->stop)
		return 0;
	gs_lin_add(cx, &l, &rest, 1);
	uint32_t x = gs_want(cx, ir_in(cx->fn, o, 0), gs_lin_put(cx, l));
	if (cond == UINT32_MAX || cx->stop)
		return x;
	return mk_select(cx, t->dtype, cond, x, gs_want(cx, padv, gs_lin_const(cx, 0)));
}

APART static uint32_t want_gather(struct cx *cx, const struct ir_op *o, uint32_t lin)
{
	const struct ir_type_info *t = ir_vtype(cx->m, cx->fn, o->out), *ti = ir_vtype(cx->m, cx->fn, ir_in(cx->fn, o, 0)),
		*tx = ir_vtype(cx->m, cx->fn, ir_in(cx->fn, o, 1));
	int noff, ncol, nob, nib, nmap, nsize;
	const int64_t *off = ir_attrs(cx->fn, o, AT_offset_dims, &noff), *col = ir_attrs(cx->fn, o, AT_collapsed, &ncol), *ob = ir_attrs(cx->fn, o, AT_obatch, &nob),
		*ib = ir_attrs(cx->fn, o, AT_ibatch, &nib), *map = ir_attrs(cx->fn, o, AT_index_map, &nmap);
	int idim = (int)ir_attr(cx->fn, o, AT_index_dim);
	const int64_t *size = ir_attrs(cx->fn, o, AT_size, &nsize);
	int64_t os[IR_MAX_RANK], xs[IR_MAX_RANK], st[IR_MAX_RANK] = { 0 }, ist[IR_MAX_RANK] = { 0 };
	gen_strides(ti->rank, ti->dim, os);
	gen_strides(tx->rank, tx->dim, xs);
	bool is_off[IR_MAX_RANK] = { 0 };
	int k = 0;
	for (int d = 0; d < ti->rank; d++) {
		if (!in_list(col, ncol, d) && !in_list(ob, nob, d) && k < noff) {
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
	struct gen_lin l = gs_map_strided(cx, lin, t->rank, t->dim, 0, st);
	for (int j = 0; j < nmap && !cx->stop; j++) {
		int d = (int)map[j];
		struct gen_lin x = gs_map_strided(cx, lin, t->rank, t->dim, j * (idim < tx->rank ? xs[idim] : 0), ist);
		if (!cx->stop)
			add_start(cx, &l, ir_in(cx->fn, o, 1), gs_lin_put(cx, x), ti->dim[d] - size[d], os[d]);
	}
	return cx->stop ? 0 : gs_want(cx, ir_in(cx->fn, o, 0), gs_lin_put(cx, l));
}

/* What is chosen needs no room for a sum. */
static enum dtype acc_type(enum redop r, enum dtype dt)
{
	if (r == RED_fn || r == RED_max || r == RED_min)
		return dt;
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
			val[o->out] = mk_const(cx, t->dtype, ir_blob_data(cx->m, (ir_blob)ir_attr(g, o, AT_data), &nb));
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
		gs_fail(cx, "too many reductions of different shapes");
		return &cx->set[0];
	}
	struct axset *x = &cx->set[cx->nset++];
	x->n = n;
	for (int i = 0; i < n; i++) {
		x->ext[i] = ext[i];
		x->axis[i] = gs_axis_new(cx, ext[i], false);
	}
	gs_make_vars(cx);
	return x;
}

/* The reduced runs of o's operand: extents and strides; returns their number. */
static int reduced_runs(struct cx *cx, const struct ir_op *o, int64_t *ext, int64_t *stride, int64_t *kept_stride)
{
	const struct ir_type_info *ti = ir_vtype(cx->m, cx->fn, ir_in(cx->fn, o, 0));
	int nd, n = 0, kept = 0;
	const int64_t *dims = ir_attrs(cx->fn, o, AT_dims, &nd);
	int64_t os[IR_MAX_RANK];
	gen_strides(ti->rank, ti->dim, os);
	int last = -2;
	for (int d = 0; d < ti->rank; d++) {
		if (!in_list(dims, nd, d)) {
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
	n.mask = gs_lin_mask(cx, &cx->lin.p[r->lin], &lv);
	uint32_t x = conv(cx, gs_node_put(cx, &n), r->acc[j], r->dtype[j]);
	return x;
}

APART static uint32_t want_reduce(struct cx *cx, const struct ir_op *o, uint32_t j, uint32_t lin)
{
	const struct ir_fn *fn = cx->fn;
	int n = (int)o->nin / 2;
	enum redop rop = (enum redop)ir_attr(fn, o, AT_redop);
	const struct ir_type_info *t = ir_vtype(cx->m, fn, o->out + j), *ti = ir_vtype(cx->m, fn, ir_in(fn, o, 0));
	if (n > GEN_MAX_OUT / 2) {
		gs_fail(cx, "reduction of many operands");
		return 0;
	}
	int64_t ext[IR_MAX_RANK], st[IR_MAX_RANK], ks[IR_MAX_RANK], count = 1;
	int nr = reduced_runs(cx, o, ext, st, ks);
	for (int i = 0; i < nr; i++)
		count *= ext[i];
	if (ti->count == 0)
		return gs_want(cx, ir_in(fn, o, (uint32_t)n + j), gs_lin_const(cx, 0));
	struct gen_lin base = gs_map_strided(cx, lin, t->rank, t->dim, 0, ks);
	if (cx->stop)
		return 0;

	if (count <= cx->unroll) {            /* straight-line code */
		uint32_t acc[GEN_MAX_OUT], out[GEN_MAX_OUT];
		enum dtype at[GEN_MAX_OUT];
		for (int k = 0; k < n; k++) {
			enum dtype dt = ir_vtype(cx->m, fn, ir_in(fn, o, (uint32_t)k))->dtype;
			at[k] = acc_type(rop, dt);
			acc[k] = conv(cx, gs_want(cx, ir_in(fn, o, (uint32_t)(n + k)), gs_lin_const(cx, 0)), dt, at[k]);
		}
		for (int64_t i = 0; i < count && !cx->stop; i++) {
			struct gen_lin l = base;
			int64_t rest = i;
			for (int r = nr - 1; r >= 0; r--) {
				l.c += rest % ext[r] * st[r];
				rest /= ext[r];
			}
			uint32_t ll = gs_lin_put(cx, l), x[GEN_MAX_OUT];
			for (int k = 0; k < n && !cx->stop; k++)
				x[k] = conv(cx, gs_want(cx, ir_in(fn, o, (uint32_t)k), ll), ir_vtype(cx->m, fn, ir_in(fn, o, (uint32_t)k))->dtype, at[k]);
			if (cx->stop)
				return 0;
			if (rop == RED_fn) {
				uint32_t arg[GEN_MAX_OUT];
				for (int k = 0; k < n; k++) {
					arg[k] = acc[k];
					arg[n + k] = x[k];
				}
				if (!region(cx, (ir_fnid)ir_attr(fn, o, AT_fn), arg, out)) {
					gs_fail(cx, "reducer is not straight-line scalar code");
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
				gs_fail(cx, "a reduction is read at two places of one outer iteration");
				return 0;
			}
			return red_result(cx, (int)i, j);
		}
	/* the outer variables must all matter, or the reduction would be repeated */
	uint16_t lv = 0, mask = gs_lin_mask(cx, &cx->lin.p[lin], &lv);
	for (int i = 0; i < cx->s->nvar; i++) {
		bool in = mask >> i & 1;
		if (in && !cx->s->var[i].outer) {
			gs_fail(cx, "a reduction inside the loop of another one");
			return 0;
		}
		if (!in && cx->s->var[i].outer && cx->hi[i] - cx->lo[i] > 1 && cx->s->var[i].ext * count > 4096) {
			gs_fail(cx, "reductions keep different dimensions");
			return 0;
		}
	}
	if (cx->red.n >= 64 || cx->depth > MAX_DEPTH - 8) {
		gs_fail(cx, "too many reductions");
		return 0;
	}
	struct gen_red red = { .o = o, .lin = lin, .n = n, .redop = (uint8_t)rop };
	for (int k = 0; k < n; k++) {
		enum dtype dt = ir_vtype(cx->m, fn, ir_in(fn, o, (uint32_t)k))->dtype;
		red.dtype[k] = dt;
		red.acc[k] = acc_type(rop, dt);
		red.init[k] = conv(cx, gs_want(cx, ir_in(fn, o, (uint32_t)(n + k)), gs_lin_const(cx, 0)), dt, red.acc[k]);
		if (cx->stop)
			return 0;
		red.level = MAX(red.level, cx->node.p[red.init[k]].level);
	}
	if (rop == RED_fn) {
		uint32_t arg[GEN_MAX_OUT];
		for (int k = 0; k < 2 * n; k++) {
			struct gen_node a = { .kind = GN_ARG, .dtype = red.acc[k % n], .lo = k, .mask = UINT16_MAX };
			arg[k] = gs_node_put(cx, &a);
		}
		if (!region(cx, (ir_fnid)ir_attr(fn, o, AT_fn), arg, red.fn)) {
			gs_fail(cx, "reducer is not straight-line scalar code");
			return 0;
		}
	}
	struct axset *set = axset_get(cx, nr, ext);
	if (cx->stop)
		return 0;
	struct gen_lin l = base;
	for (int i = 0; i < nr; i++) {
		struct gen_lin x = gs_axis_lin(cx, set->axis[i]);
		gs_lin_add(cx, &l, &x, st[i]);
		for (int v = 0; v < cx->s->nvar; v++)
			if (cx->s->var[v].axis == set->axis[i])
				red.vars |= (uint16_t)(1u << v);
	}
	int64_t lo[GEN_NV], hi[GEN_NV];
	memcpy(lo, cx->lo, sizeof lo);
	memcpy(hi, cx->hi, sizeof hi);
	uint64_t ctx = cx->ctx;
	struct seg g;
	if (!gs_seg_init(cx, &g, red.vars)) {
		cx->nobrk = cx->stop = cx->restart = true;
		cx->nbrk = 0;
		return 0;
	}
	/* operands over all segments: kept until the level is known */
	uint32_t node[MAX_SEG][GEN_MAX_OUT];
	int64_t slo[MAX_SEG][GEN_NV], shi[MAX_SEG][GEN_NV];
	int ns = 0;
	do {
		gs_seg_set(cx, &g);
		uint32_t ll = gs_lin_put(cx, l);
		for (int k = 0; k < n && !cx->stop; k++) {
			node[ns][k] = conv(cx, gs_want(cx, ir_in(fn, o, (uint32_t)k), ll), red.dtype[k], red.acc[k]);
			if (!cx->stop)
				red.level = MAX(red.level, cx->node.p[node[ns][k]].level);
		}
		if (cx->stop)
			return 0;
		memcpy(slo[ns], cx->lo, sizeof lo);
		memcpy(shi[ns++], cx->hi, sizeof hi);
	} while (gs_seg_next(&g));
	red.level++;
	int idx = (int)cx->red.n;
	arr_push(&cx->red, red);
	for (int i = 0; i < ns; i++) {
		memcpy(cx->lo, slo[i], sizeof lo);
		memcpy(cx->hi, shi[i], sizeof hi);
		gs_nest_red(cx, &cx->s->body[cx->s->nbody - 1], idx, node[i], n, red.vars, (uint16_t)(red.level - 1));
	}
	memcpy(cx->lo, lo, sizeof lo);
	memcpy(cx->hi, hi, sizeof hi);
	cx->ctx = ctx;
	return red_result(cx, idx, j);
}

/* v, if it is a view, becomes what it is a view of. */
APART static bool see_through(struct cx *cx, ir_val *v, uint32_t *lin)
{
	const struct ir_op *o = ir_def(cx->fn, *v);
	if (!o || !(ir_info(o->kind)->flags & IR_VIEW || o->kind == IR_sharding_constraint) || o->kind == IR_bitcast_convert)
		return false;
	const struct ir_type_info *t = ir_vtype(cx->m, cx->fn, *v), *ti = ir_vtype(cx->m, cx->fn, ir_in(cx->fn, o, 0));
	*v = ir_in(cx->fn, o, 0);
	if (ti->count == 1) {
		*lin = gs_lin_const(cx, 0);
		return true;
	}
	if (o->kind == IR_reshape || o->kind == IR_sharding_constraint)
		return true;
	int64_t st[IR_MAX_RANK], os[IR_MAX_RANK], off;
	gen_strides(ti->rank, ti->dim, os);
	ir_view(cx->m, cx->fn, o, os, &off, st);
	*lin = gs_lin_put(cx, gs_map_strided(cx, *lin, t->rank, t->dim, off, st));
	return !cx->stop;
}

static uint32_t want_elem(struct cx *cx, const struct ir_op *o, uint32_t lin)
{
	uint32_t in[3] = { 0 };
	for (uint32_t i = 0; i < o->nin; i++) {
		in[i] = gs_want(cx, ir_in(cx->fn, o, i), lin);
		if (cx->stop)
			return 0;
	}
	return mk_elem(cx, ir_elem(o->kind), ir_vtype(cx->m, cx->fn, ir_in(cx->fn, o, o->nin > 1 ? 1 : 0))->dtype,
	               ir_vtype(cx->m, cx->fn, o->out)->dtype, (int)o->nin, in);
}

APART static uint32_t want_new(struct cx *cx, ir_val v, uint32_t lin)
{
	const struct ir_fn *fn = cx->fn;
	const struct ir_type_info *t = ir_vtype(cx->m, fn, v);
	const struct ir_op *o = ir_def(fn, v);
	int64_t st[IR_MAX_RANK], os[IR_MAX_RANK];
	int n;
	if (!o) {
		const struct prog_view *w = cx->view ? &cx->view[v - 1] : NULL;
		gen_strides(t->rank, t->dim, st);
		return mk_load(cx, (int)v - 1, t->dtype,
		               gs_map_strided(cx, lin, t->rank, t->dim, w ? w->off : 0, w ? w->stride : st));
	}
	const struct ir_type_info *ti = o->nin ? ir_vtype(cx->m, fn, ir_in(fn, o, 0)) : NULL;
	if (ti)
		gen_strides(ti->rank, ti->dim, os);
	switch (o->kind) {
	case IR_constant: {
		size_t nb;
		ir_blob blob = (ir_blob)ir_attr(fn, o, AT_data);
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
		return mk_load(cx, (int)b, t->dtype, gs_lin_of(cx, lin));
	}
	case IR_iota:
		memset(st, 0, sizeof st);
		st[ir_attr(fn, o, AT_dim)] = 1;
		return gs_node_lin(cx, gs_map_strided(cx, lin, t->rank, t->dim, 0, st), t->dtype);
	case IR_bitcast_convert: {
		uint32_t x = gs_want(cx, ir_in(fn, o, 0), lin);
		return cx->stop ? 0 : mk_elem(cx, ELEM_bitcast, ti->dtype, t->dtype, 1, &x);
	}
	case IR_dynamic_slice: {
		const int64_t *size = ir_attrs(fn, o, AT_size, &n);
		struct gen_lin l = gs_map_strided(cx, lin, t->rank, t->dim, 0, os);
		for (int i = 0; i < n && !cx->stop; i++)
			add_start(cx, &l, ir_in(fn, o, (uint32_t)i + 1), gs_lin_const(cx, 0), ti->dim[i] - size[i], os[i]);
		return cx->stop ? 0 : gs_want(cx, ir_in(fn, o, 0), gs_lin_put(cx, l));
	}
	case IR_gather:
		return want_gather(cx, o, lin);
	case IR_concatenate:
		return want_concat(cx, o, lin);
	case IR_pad:
		return want_pad(cx, o, lin);
	case IR_reduce_precision: {
		uint32_t x = gs_want(cx, ir_in(fn, o, 0), lin);
		if (cx->stop)
			return 0;
		struct gen_node r = { .kind = GN_ROUND, .dtype = t->dtype, .from = t->dtype, .lo = ir_attr(fn, o, AT_exponent), .hi = ir_attr(fn, o, AT_mantissa) };
		r.a[0] = x;
		r.mask = cx->node.p[x].mask;
		r.level = cx->node.p[x].level;
		return gs_node_put(cx, &r);
	}
	case IR_reduce:
		return want_reduce(cx, o, v - o->out, lin);
	default:
		gs_fail(cx, "an operation that generated code does not have");
		return 0;
	}
}

uint32_t gs_want(struct cx *cx, ir_val v, uint32_t lin)
{
	if (cx->stop)
		return 0;
	if (ir_vtype(cx->m, cx->fn, v)->count == 1)
		lin = gs_lin_const(cx, 0);
	while (see_through(cx, &v, &lin))
		;
	if (cx->stop)
		return 0;
	uint64_t key[3] = { v, lin, cx->ctx };
	uint64_t *hit = map_get(&cx->memo, key, sizeof key);
	if (hit)
		return (uint32_t)*hit;
	if (++cx->depth > MAX_DEPTH) {
		gs_fail(cx, "a chain of operations that is too long");
		return 0;
	}
	if (cx->node.n > 60000) {
		gs_fail(cx, "a group that is too large");
		return 0;
	}
	const struct ir_op *o = ir_def(cx->fn, v);
	uint32_t n = o && ir_is_elem(o->kind) ? want_elem(cx, o, lin) : want_new(cx, v, lin);
	cx->depth--;
	if (!cx->stop)
		*map_put(&cx->memo, key, sizeof key) = n;
	return cx->stop ? 0 : n;
}
