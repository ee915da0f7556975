/* Sums of values each of which has zeros around it, no two at the same place: one beside the other.
 *
 * Rows of a stack that are read one by one have such gradients: each is padded to the size of the stack, and all of these are added up, so that
 * every row is written as often as there are rows.  What is added to it all but once is zero; one such addition is left, for the sign of -0. */
#include "passes.h"

/* Per value: how many padded ones it is a sum of (0: of others, too), and along which dimension; is it within another such sum? */
struct stacked { int n, dim; bool within; };

static bool is_zero(const struct ir_module *m, const struct ir_fn *fn, ir_val v)
{
	static const char none[16];
	enum dtype dt = (enum dtype)ir_vtype(m, fn, v)->dtype;
	const void *p = ir_splat(m, fn, v);
	return p && dt != DT_pred && !memcmp(p, none, dtype_info[dt].bytes);
}

/* The dimension along which pad o puts zeros on the sides, and along no other; -1: it is no such pad. */
static int padded(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	int n, at = -1;
	const int64_t *low = ir_attrs(fn, o, AT_low, &n), *high = ir_attrs(fn, o, AT_high, &n), *interior = ir_attrs(fn, o, AT_interior, &n);
	for (int d = 0; d < n; d++) {
		if (interior[d] || low[d] < 0 || high[d] < 0 || (at >= 0 && (low[d] || high[d])))
			return -1;
		at = low[d] || high[d] ? d : at;
	}
	return is_zero(m, fn, ir_in(fn, o, 1)) ? at : -1;
}

static bool begin(struct rewrite *r)
{
	const struct ir_fn *fn = r->from;
	struct stacked *s = r->user = ARENA_NEW(r->a, struct stacked, fn->val.n);
	bool any = false;
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		if (o->kind == IR_pad) {
			int d = padded(r->m, fn, o);
			s[o->out] = (struct stacked){ d >= 0, d, false };
		} else if (o->kind == IR_add) {
			ir_val x = ir_in(fn, o, 0), y = ir_in(fn, o, 1);
			bool both = s[x].n && s[y].n && s[x].dim == s[y].dim;
			both &= (s[x].n == 1 || fn->val.p[x].nuse == 1) && (s[y].n == 1 || fn->val.p[y].nuse == 1);
			if (!both)
				continue;
			s[o->out] = (struct stacked){ s[x].n + s[y].n, s[x].dim, false };
			s[x].within = s[y].within = any = true;
		}
	}
	return any;
}

/* The n pads of the sum v. */
static void leaves(const struct rewrite *r, ir_val v, int n, const struct ir_op **to)
{
	ir_val *left = ARENA_NEW(r->a, ir_val, n + 1);
	int k = 0;
	for (left[k++] = v; k;) {
		const struct ir_op *o = ir_def(r->from, left[--k]);
		if (o->kind == IR_pad) {
			*to++ = o;
			continue;
		}
		left[k++] = ir_in(r->from, o, 1);
		left[k++] = ir_in(r->from, o, 0);
	}
}

static ir_val on_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct stacked *s = r->user;
	if (o->kind != IR_add || !s[o->out].n || s[o->out].within)
		return 0;
	int n = s[o->out].n, k = 0, d = s[o->out].dim, rank;
	const struct ir_op **pad = ARENA_NEW(r->a, const struct ir_op *, n);
	ir_val *part = ARENA_NEW(r->a, ir_val, 2 * n + 1);
	leaves(r, o->out, n, pad);
	for (int i = 1; i < n; i++) {            /* by where they begin: they come in order, or the last one first */
		const struct ir_op *x = pad[i];
		int j = i;
		for (; j > 0 && ir_attrs(r->from, pad[j - 1], AT_low, &rank)[d] > ir_attrs(r->from, x, AT_low, &rank)[d]; j--)
			pad[j] = pad[j - 1];
		pad[j] = x;
	}
	ir_type t = r->from->val.p[o->out].type;
	const struct ir_type_info all = *ir_type_of(r->m, t);
	int64_t dim[IR_MAX_RANK], at = 0;
	memcpy(dim, all.dim, sizeof *dim * all.rank);
	const void *zero = ir_splat(r->m, r->from, ir_in(r->from, pad[0], 1));
	for (int i = 0; i <= n; i++) {
		int64_t to = i < n ? ir_attrs(r->from, pad[i], AT_low, &rank)[d] : all.dim[d];
		if (to < at)
			return 0;
		dim[d] = to - at;
		if (to > at)
			part[k++] = ir_const(&r->b, ir_tensor(r->m, (enum dtype)all.dtype, all.rank, dim), zero, dtype_info[all.dtype].bytes);
		if (i < n) {
			part[k++] = r->map[ir_in(r->from, pad[i], 0)];
			at = to + ir_vtype(r->m, r->b.fn, part[k - 1])->dim[d];
		}
	}
	ir_val v = ir_emit(&r->b, IR_concatenate, (uint32_t)k, part, t, (int64_t[]){ d }, 1);
	if (dtype_info[all.dtype].cls == DT_INT || dtype_info[all.dtype].cls == DT_UINT)
		return v;
	return ir_bin(&r->b, ELEM_add, v, ir_const(&r->b, t, zero, dtype_info[all.dtype].bytes));
}

struct err *pass_beside(const struct pass_opts *o, struct ir_module *m)
{
	if (pass_has(m, IR_pad))
		pass_rewrite(m, on_op, begin, NULL);
	return NULL;
}
