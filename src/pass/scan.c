/* Scans: windows over all positions up to the own one, or from it on, along one dimension (jnp.cumsum and its kin).
 *
 * Of a known operation they become the operation cumulative.  Of a function, which a window would apply as often as the square of
 * the extent says and with one running value, they are made in two levels: blocks of BLOCK positions, whose totals are scanned in the
 * same way.  The initial value is taken for an identity, since windows take it for what lies outside.  Blelloch, Prefix sums and their
 * applications, 1990, section 1.2. */
#include "rewrites.h"

enum { BLOCK = 8, SHORT = 16 };

struct scan { int dim; bool reversed; };

static bool is_scan(struct rewrite *r, const struct ir_op *o, const struct ir_type_info *t, struct scan *s)
{
	int n;
	const int64_t *window = ir_attrs(r->from, o, AT_window, &n), *stride = ir_attrs(r->from, o, AT_stride, &n),
	              *base = ir_attrs(r->from, o, AT_base_dilation, &n), *dilation = ir_attrs(r->from, o, AT_window_dilation, &n),
	              *low = ir_attrs(r->from, o, AT_low, &n), *high = ir_attrs(r->from, o, AT_high, &n);
	*s = (struct scan){ .dim = -1 };
	for (int d = 0; d < n; d++) {
		if (stride[d] != 1 || base[d] != 1 || dilation[d] != 1)
			return false;
		if (window[d] == 1 && low[d] == 0 && high[d] == 0)
			continue;
		if (s->dim >= 0 || window[d] != t->dim[d])
			return false;
		s->dim = d;
		s->reversed = low[d] == 0;
		if ((s->reversed ? high[d] : low[d]) != t->dim[d] - 1 || (s->reversed ? low[d] : high[d]) != 0)
			return false;
	}
	return s->dim >= 0;
}

/* The function of scalars f on arrays of one shape, in place of its parameters; false: it has more than elementwise operations. */
static bool lifted(struct rewrite *r, ir_fnid f, const ir_val *in, ir_val *out)
{
	struct ir_module *m = r->m;
	const struct ir_fn *g = ir_fn_of(m, f);
	struct ir_type_info t = *ir_vtype(m, r->b.fn, in[0]);
	ir_val *map = ARENA_NEW(r->a, ir_val, g->val.n);
	for (size_t i = 0; i < g->op.n; i++)
		if (g->op.p[i].kind != IR_constant && !ir_is_elem(g->op.p[i].kind) && g->op.p[i].kind != IR_reduce_precision)
			return false;
	for (uint32_t i = 0; i < g->nparam; i++)
		map[i + 1] = in[i];
	for (size_t i = 0; i < g->op.n; i++) {
		const struct ir_op *o = &g->op.p[i];
		ir_type to = ir_tensor(m, (enum dtype)ir_vtype(m, g, o->out)->dtype, t.rank, t.dim);
		ir_val a[4];
		uint32_t words;
		const int64_t *w = ir_attr_copy(r->a, g, o, &words);
		for (uint32_t k = 0; k < o->nin; k++)
			a[k] = map[ir_in(g, o, k)];
		map[o->out] = ir_emit(&r->b, (enum ir_kind)o->kind, o->nin, a, to, w, words);
	}
	for (size_t i = 0; i < g->result.n; i++)
		out[i] = map[g->result.p[i]];
	return true;
}

/* Windows of w along dim that end at each position, or begin there. */
static void windows(struct rewrite *r, int n, const ir_val *x, const ir_val *init, struct scan s, int64_t w, ir_fnid f, ir_val *out)
{
	int rank = ir_vtype(r->m, r->b.fn, x[0])->rank;
	int64_t words[6 * (IR_MAX_RANK + 1) + 2], *p = words;
	for (int k = 0; k < 6; k++) {
		*p++ = rank;
		for (int d = 0; d < rank; d++)
			*p++ = k < 4 ? (k == 0 && d == s.dim ? w : 1) : d == s.dim && s.reversed == (k == 5) ? w - 1 : 0;
	}
	*p++ = RED_fn;
	*p++ = f;
	ir_val *in = ARENA_NEW(r->a, ir_val, 2 * n);
	ir_type *t = ARENA_NEW(r->a, ir_type, n);
	for (int k = 0; k < n; k++) {
		in[k] = x[k];
		in[n + k] = init[k];
		t[k] = r->b.fn->val.p[x[k]].type;
	}
	ir_val v = ir_emit_raw(&r->b, IR_reduce_window, 2 * (uint32_t)n, in, (uint32_t)n, t, words, (uint32_t)(p - words));
	for (int k = 0; k < n; k++)
		out[k] = v + (ir_val)k;
}

/* x with so many elements of init before and behind it along dim; less than none: cut off. */
static ir_val padded(struct rewrite *r, ir_val x, ir_val init, int dim, int64_t low, int64_t high)
{
	struct ir_type_info t = *ir_vtype(r->m, r->b.fn, x);
	int64_t words[3 * (IR_MAX_RANK + 1)] = {0}, to[IR_MAX_RANK];
	memcpy(to, t.dim, sizeof *to * t.rank);
	to[dim] += low + high;
	for (int k = 0; k < 3; k++)
		words[k * (t.rank + 1)] = t.rank;
	words[1 + dim] = low;
	words[t.rank + 2 + dim] = high;
	return ir_emit(&r->b, IR_pad, 2, (ir_val[]){ x, init }, ir_tensor(r->m, (enum dtype)t.dtype, t.rank, to), words, 3 * ((uint32_t)t.rank + 1));
}

/* Position at of dimension dim, which goes. */
static ir_val position(struct rewrite *r, ir_val x, int dim, int64_t at)
{
	struct ir_type_info t = *ir_vtype(r->m, r->b.fn, x);
	int64_t lo[IR_MAX_RANK] = {0}, hi[IR_MAX_RANK], one[IR_MAX_RANK], to[IR_MAX_RANK];
	for (int d = 0; d < t.rank; d++) {
		hi[d] = d == dim ? at + 1 : t.dim[d];
		one[d] = 1;
		if (d != dim)
			to[d - (d > dim)] = t.dim[d];
	}
	lo[dim] = at;
	return ir_reshape(&r->b, ir_slice(&r->b, x, lo, hi, one), t.rank - 1, to);
}

static void levels(struct rewrite *r, int n, const ir_val *x, const ir_val *init, struct scan s, ir_fnid f, ir_val *out)
{
	struct ir_type_info t = *ir_vtype(r->m, r->b.fn, x[0]);
	int64_t extent = t.dim[s.dim], blocks = (extent + BLOCK - 1) / BLOCK, cut[IR_MAX_RANK], flat[IR_MAX_RANK], dims[IR_MAX_RANK], lo[IR_MAX_RANK] = {0}, one[IR_MAX_RANK];
	ir_val *y = ARENA_NEW(r->a, ir_val, 4 * n), *total = y + n, *arg = total + n;
	struct scan in = { s.dim + 1, s.reversed };
	if (extent <= SHORT) {
		windows(r, n, x, init, s, extent, f, out);
		return;
	}
	for (int d = 0; d < t.rank; d++) {
		flat[d] = d == s.dim ? blocks * BLOCK : t.dim[d];
		cut[d + (d > s.dim)] = d == s.dim ? blocks : t.dim[d];
		dims[d] = d + (d > s.dim);
		one[d] = 1;
	}
	cut[s.dim + 1] = BLOCK;
	for (int k = 0; k < n; k++)
		y[k] = ir_reshape(&r->b, padded(r, x[k], init[k], s.dim, 0, blocks * BLOCK - extent), t.rank + 1, cut);
	windows(r, n, y, init, in, BLOCK, f, y);
	for (int k = 0; k < n; k++)
		total[k] = padded(r, position(r, y[k], s.dim + 1, s.reversed ? 0 : BLOCK - 1), init[k], s.dim, s.reversed ? -1 : 1, s.reversed ? 1 : -1);
	levels(r, n, total, init, s, f, total);
	for (int k = 0; k < n; k++) {        /* in order of position */
		arg[s.reversed ? n + k : k] = ir_broadcast(&r->b, total[k], r->b.fn->val.p[y[k]].type, dims);
		arg[s.reversed ? k : n + k] = y[k];
	}
	lifted(r, f, arg, out);
	memcpy(cut, t.dim, sizeof *cut * t.rank);
	for (int k = 0; k < n; k++)
		out[k] = ir_slice(&r->b, ir_reshape(&r->b, out[k], t.rank, flat), lo, cut, one);
}

ir_val rw_as_scan(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_type_info *t = ir_vtype(r->m, r->b.fn, in[0]);
	enum redop op = (enum redop)ir_attr(r->from, o, AT_redop);
	struct scan s;
	if (!t->count || !is_scan(r, o, t, &s))
		return 0;
	if (op != RED_fn) {
		char id[16];
		kern_identity(op, (enum dtype)t->dtype, id);
		const void *init = ir_splat(r->m, r->b.fn, in[1]);
		bool neutral = init && !memcmp(init, id, dtype_info[t->dtype].bytes), again = op == RED_max || op == RED_min || op == RED_and || op == RED_or;
		int64_t w[3] = { s.dim, s.reversed, op };
		if (!neutral && !again)
			return 0;
		ir_type to = r->b.fn->val.p[in[0]].type;
		ir_val v = ir_emit(&r->b, IR_cumulative, 1, in, to, w, 3);
		return neutral ? v : ir_bin(&r->b, redop_elem[op], ir_splat_of(&r->b, in[1], to), v);    /* as often as it likes */
	}
	ir_fnid f = (ir_fnid)ir_attr(r->from, o, AT_fn);
	int n = (int)o->nout;
	ir_val *out = ARENA_NEW(r->a, ir_val, n), *probe = ARENA_NEW(r->a, ir_val, 2 * n);
	if (!f || t->dim[s.dim] <= SHORT || t->rank == IR_MAX_RANK)
		return 0;
	for (int k = 0; k < n; k++)
		probe[k] = probe[n + k] = in[k];
	struct ir_mark before = ir_mark(r->b.fn);
	bool can = lifted(r, f, probe, out);
	ir_go_back(r->b.fn, before);
	if (!can)
		return 0;
	levels(r, n, in, in + n, s, f, out);
	for (int k = 0; k < n; k++)
		r->map[o->out + (ir_val)k] = out[k];
	return REWRITE_MAPPED;
}
