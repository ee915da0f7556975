/* Which dimensions of an op's operands and results belong together.
 *
 * An op runs over factors: result[i, j] = sum over k of x[i, k] * y[k, j] has the factors i, j and k.  Each dimension is
 * a product of factors, major first; most are one factor.  ops.def names for each kind of op the function here that maps
 * them; who asks which dimension of a product is contracted, or which dimensions a sharding may cut, asks this table.
 * The rules are those of Shardy (its op_sharding_rule attribute), so that they can be compared with what it prints. */
#include "ir.h"

#include <stdlib.h>

struct rule {
	const struct ir_module *m;
	const struct ir_fn *fn;
	const struct ir_op *o;
	struct arena *a;
	struct ir_axes *x;
	int cap;
};

/* --- making a rule ------------------------------------------------------------ */

static const struct ir_type_info *in_t(const struct rule *r, int i)
{
	return ir_vtype(r->m, r->fn, ir_in(r->fn, r->o, (uint32_t)i));
}

static const struct ir_type_info *out_t(const struct rule *r, int i)
{
	return ir_vtype(r->m, r->fn, r->o->out + (uint32_t)i);
}

/* Number of result i among the tensors. */
static int res(const struct rule *r, int i)
{
	return r->x->nin + i;
}

static int factor(struct rule *r, int64_t size, enum ir_factor_kind kind)
{
	struct ir_axes *x = r->x;
	if (x->nfactor == r->cap) {
		struct ir_factor *f = ARENA_NEW(r->a, struct ir_factor, r->cap = r->cap * 2 + 8);
		if (x->nfactor)
			memcpy(f, x->factor, sizeof *f * (size_t)x->nfactor);
		x->factor = f;
	}
	x->factor[x->nfactor] = (struct ir_factor){ .size = size, .kind = (uint8_t)kind };
	return x->nfactor++;
}

/* Factor f is the next one, more minor, of dimension d of tensor t.  One of size 1 stands alone or not at all. */
static void put(struct rule *r, int t, int d, int f)
{
	struct ir_axes_dim *x = &r->x->dim[t][d];
	if (x->n && r->x->factor[f].size == 1)
		return;
	if (x->n == 1 && r->x->factor[x->factor[0]].size == 1)
		x->n = 0;
	int *p = ARENA_NEW(r->a, int, x->n + 1);
	if (x->n)
		memcpy(p, x->factor, sizeof *p * (size_t)x->n);
	p[x->n] = f;
	x->factor = p;
	x->n++;
}

/* A factor of its own for dimension d of tensor t. */
static int alone(struct rule *r, int t, int d, enum ir_factor_kind kind)
{
	const struct ir_type_info *ty = t < r->x->nin ? in_t(r, t) : out_t(r, t - r->x->nin);
	int f = factor(r, ty->dim[d], kind);
	put(r, t, d, f);
	return f;
}

/* One that dimension d of tensor t and dimension e of tensor u share; its size is that of the first. */
static int both(struct rule *r, int t, int d, int u, int e, enum ir_factor_kind kind)
{
	int f = alone(r, t, d, kind);
	put(r, u, e, f);
	return f;
}

/* --- rows ----------------------------------------------------------------------- */

static void none(struct rule *r) { (void)r; }

/* What the op says itself: number of factors; of each its size, kind, whether blocked; of each tensor's dimensions number of factors, factors. */
static void stated(struct rule *r)
{
	int n;
	const int64_t *w = ir_attrs(r->fn, r->o, AT_rule, &n);
	if (!n)
		return;
	for (int64_t left = *w++; left > 0; left--, w += 3) {
		int f = factor(r, w[0], (enum ir_factor_kind)w[1]);
		r->x->factor[f].blocked = w[2] != 0;
	}
	for (int t = 0; t < r->x->nin + r->x->nout; t++)
		for (int d = 0; d < r->x->rank[t]; d++)
			for (int64_t k = *w++; k > 0; k--)
				put(r, t, d, (int)*w++);
}

/* Results that are made from nothing, or from scalars. */
static void own(struct rule *r)
{
	for (int d = 0; d < out_t(r, 0)->rank; d++)
		alone(r, res(r, 0), d, FACTOR_EACH);
}

/* Operands [in, in + nin) of one shape and results [out, out + nout) have one factor a dimension; scalars among them none. */
static int shared(struct rule *r, int in, int nin, int out, int nout, int d, int64_t size, enum ir_factor_kind kind)
{
	int f = factor(r, size, kind);
	for (int i = in; i < in + nin; i++)
		if (in_t(r, i)->rank > d)
			put(r, i, d, f);
	for (int i = out; i < out + nout; i++)
		if (out_t(r, i)->rank > d)
			put(r, res(r, i), d, f);
	return f;
}

static void each(struct rule *r)
{
	for (int d = 0; d < out_t(r, 0)->rank; d++)
		shared(r, 0, r->x->nin, 0, 1, d, out_t(r, 0)->dim[d], FACTOR_EACH);
}

/* Result i is made from operand i alone, element by element. */
static void pairs(struct rule *r)
{
	for (int i = 0; i < r->x->nout; i++)
		for (int d = 0; d < out_t(r, i)->rank; d++)
			both(r, i, d, res(r, i), d, FACTOR_EACH);
}

static void broadcast(struct rule *r)
{
	int n;
	const int64_t *to = ir_attrs(r->fn, r->o, AT_dims, &n);
	bool given[IR_MAX_RANK] = {0};
	for (int d = 0; d < n; d++) {
		if (in_t(r, 0)->dim[d] != out_t(r, 0)->dim[to[d]]) {
			alone(r, 0, d, FACTOR_EACH);
			continue;
		}
		both(r, 0, d, res(r, 0), (int)to[d], FACTOR_EACH);
		given[to[d]] = true;
	}
	for (int d = 0; d < out_t(r, 0)->rank; d++)
		if (!given[d])
			alone(r, res(r, 0), d, FACTOR_EACH);
}

/* Of the side that is behind in a reshape whose sides have parted: the factor that brings it level if its dimension still
 * holds that one, else what leaves to the next step all that the sides may share, else the rest of the dimension. */
static int64_t catch_up(int64_t rest, int64_t common, int64_t behind, int64_t ahead)
{
	if (ahead % behind == 0 && rest % (ahead / behind) == 0)
		return ahead / behind;
	return rest > common ? rest / common : rest;
}

/* Both shapes are read from the major end as products of factors.  While the products so far agree, what the next
 * dimensions have in common is a factor of both. */
static void reshape(struct rule *r)
{
	const struct ir_type_info *a = in_t(r, 0), *b = out_t(r, 0);
	int d = 0, e = 0, to = res(r, 0);
	int64_t left = 0, right = 0, na = 1, nb = 1;    /* what is left of the dimensions at hand; products of factors so far */
	if (!a->count)
		return;
	for (;;) {
		if (left == 1 || (!left && d < a->rank && a->dim[d] == 1)) {    /* a dimension is done, or is of one element */
			if (!left)
				alone(r, 0, d, FACTOR_EACH);
			d++;
			left = 0;
			continue;
		}
		if (right == 1 || (!right && e < b->rank && b->dim[e] == 1)) {
			if (!right)
				alone(r, to, e, FACTOR_EACH);
			e++;
			right = 0;
			continue;
		}
		if (d == a->rank && e == b->rank)
			return;
		left = left ? left : d < a->rank ? a->dim[d] : 0;
		right = right ? right : e < b->rank ? b->dim[e] : 0;
		int64_t common = gcd_of(left, right), f = 1;
		if (na == nb && common > 1) {
			int k = factor(r, common, FACTOR_EACH);
			put(r, 0, d, k);
			put(r, to, e, k);
			na *= common;
			nb *= common;
			left /= common;
			right /= common;
			continue;
		}
		bool first = na <= nb && left, second = na == nb ? right : nb < na;
		if (first) {
			f = na == nb ? left : catch_up(left, common, na, nb);
			put(r, 0, d, factor(r, f, FACTOR_EACH));
			left /= f;
		}
		if (second) {
			int64_t g = na == nb ? right : catch_up(right, common, nb, na);
			put(r, to, e, factor(r, g, FACTOR_EACH));
			right /= g;
			nb *= g;
		}
		if (first)
			na *= f;
	}
}

static void transpose(struct rule *r)
{
	int n;
	const int64_t *perm = ir_attrs(r->fn, r->o, AT_perm, &n);
	for (int d = 0; d < n; d++)
		both(r, 0, (int)perm[d], res(r, 0), d, FACTOR_EACH);
}

static void reverse(struct rule *r)
{
	int n;
	const int64_t *dims = ir_attrs(r->fn, r->o, AT_dims, &n);
	for (int d = 0; d < out_t(r, 0)->rank; d++)
		both(r, 0, d, res(r, 0), d, in_list(dims, n, d) ? FACTOR_MOVED : FACTOR_EACH);
}

/* Operand 0 and the result, of one rank: dimensions of another extent are of kind. */
static void where_equal(struct rule *r, enum ir_factor_kind kind, bool blocked)
{
	for (int d = 0; d < out_t(r, 0)->rank; d++) {
		bool equal = in_t(r, 0)->dim[d] == out_t(r, 0)->dim[d];
		int f = both(r, 0, d, res(r, 0), d, equal ? FACTOR_EACH : kind);
		r->x->factor[f].blocked = blocked && !equal;
	}
}

static void slice(struct rule *r) { where_equal(r, FACTOR_MOVED, false); }
static void pad(struct rule *r) { where_equal(r, FACTOR_MOVED, false); }
static void dynamic_slice(struct rule *r) { where_equal(r, FACTOR_WHOLE, true); }

static void dynamic_update_slice(struct rule *r)
{
	bool known = true;
	int64_t c;
	for (int k = 2; k < r->x->nin; k++)
		known &= ir_const_int(r->m, r->fn, ir_in(r->fn, r->o, (uint32_t)k), &c);
	for (int d = 0; d < out_t(r, 0)->rank; d++) {
		int f = both(r, 0, d, res(r, 0), d, FACTOR_EACH);
		if (in_t(r, 1)->dim[d] == out_t(r, 0)->dim[d])
			put(r, 1, d, f);
		else
			alone(r, 1, d, known ? FACTOR_EACH : FACTOR_WHOLE);
	}
}

/* Parts that were cut from other values, or from one value that stands here too, are moved; others have to come whole. */
static void concatenate(struct rule *r)
{
	int dim = (int)ir_attr(r->fn, r->o, AT_dim);
	bool slices = true, any = false, one = true;
	ir_val first = 0;
	for (int i = 0; i < r->x->nin; i++) {
		ir_val v = ir_in(r->fn, r->o, (uint32_t)i);
		const struct ir_op *d = ir_def(r->fn, v);
		bool cut = d && d->kind == IR_slice;
		slices &= cut;
		any |= cut;
		v = cut ? ir_in(r->fn, d, 0) : v;
		first = first ? first : v;
		one &= v == first;
	}
	for (int d = 0; d < out_t(r, 0)->rank; d++)
		shared(r, 0, r->x->nin, 0, 1, d, out_t(r, 0)->dim[d],
		       d != dim ? FACTOR_EACH : slices || (one && any) ? FACTOR_MOVED : FACTOR_WHOLE);
}

/* Scatter's reducer is one that sums can be made of in parts. */
static bool combines(const struct rule *r)
{
	enum redop op = (enum redop)ir_attr(r->fn, r->o, AT_redop);
	ir_fnid f = (ir_fnid)ir_attr(r->fn, r->o, AT_fn);
	if (op == RED_fn && f)
		op = ir_region_redop(r->m, f);
	return op != RED_fn && op != RED_lse;
}

/* What gather and scatter share: the indexed value, and slices of it at the places that the indices say.  Dimensions of
 * slices are windows (offset) or batches of indices, in order. */
static void indexed(struct rule *r, bool scatter, enum ir_at offset_at, enum ir_at gone_at, enum ir_at batch_at, enum ir_at ibatch_at)
{
	int n = scatter ? (r->x->nin - 1) / 2 : 1, idx = n, noff, ngone, nbatch, d = 0, b = 0;
	const int64_t *off = ir_attrs(r->fn, r->o, offset_at, &noff), *gone = ir_attrs(r->fn, r->o, gone_at, &ngone),
	              *batch = ir_attrs(r->fn, r->o, batch_at, &nbatch), *ibatch = ir_attrs(r->fn, r->o, ibatch_at, &nbatch);
	int vector = (int)ir_attr(r->fn, r->o, AT_index_dim);
	const struct ir_type_info *x = in_t(r, 0), *s = scatter ? in_t(r, n + 1) : out_t(r, 0);
	/* a factor of a dimension of the indexed value(s), of the indices, of the slices; -1: has none there */
	struct { int in, index, slice; int64_t size; enum ir_factor_kind kind; bool blocked; } f[3 * IR_MAX_RANK];
	int nf = 0;
	for (int k = 0; k < s->rank; k++) {
		if (in_list(off, noff, k)) {
			while (in_list(gone, ngone, d) || in_list(batch, nbatch, d))
				d++;
			bool all = x->dim[d] == s->dim[k], one = s->dim[k] == 1;
			if (all || (!scatter && !one)) {
				f[nf].in = d; f[nf].index = -1; f[nf].slice = k; f[nf].size = x->dim[d];
				f[nf].kind = all ? FACTOR_EACH : FACTOR_WHOLE; f[nf++].blocked = !all;
			} else {
				f[nf].in = d; f[nf].index = f[nf].slice = -1; f[nf].size = x->dim[d];
				f[nf].kind = scatter ? FACTOR_WHOLE : FACTOR_SUM; f[nf++].blocked = false;
				f[nf].in = f[nf].index = -1; f[nf].slice = k; f[nf].size = s->dim[k];
				f[nf].kind = FACTOR_WHOLE; f[nf++].blocked = false;
			}
			d++;
			continue;
		}
		int at = b < vector ? b : b + 1, in = -1;
		for (int i = 0; i < nbatch; i++)
			if (ibatch[i] == at)
				in = (int)batch[i];
		f[nf].in = in; f[nf].index = at; f[nf].slice = k; f[nf].size = s->dim[k]; f[nf].blocked = false;
		f[nf++].kind = !scatter || in >= 0 ? FACTOR_EACH : combines(r) ? FACTOR_SUM : FACTOR_WHOLE;
		b++;
	}
	for (int i = 0; i < ngone; i++) {
		f[nf].in = (int)gone[i]; f[nf].index = f[nf].slice = -1; f[nf].size = x->dim[gone[i]]; f[nf].blocked = false;
		f[nf].kind = scatter ? FACTOR_EACH : f[nf].size == 1 ? FACTOR_WHOLE : FACTOR_SUM;
		nf++;
	}
	if (vector < in_t(r, idx)->rank) {
		f[nf].in = f[nf].slice = -1; f[nf].index = vector; f[nf].size = in_t(r, idx)->dim[vector]; f[nf].blocked = false;
		f[nf++].kind = FACTOR_WHOLE;
	}
	for (int i = 0; i < nf; i++) {
		int k = factor(r, f[i].size, f[i].kind);
		r->x->factor[k].blocked = f[i].blocked;
		for (int j = 0; j < n && f[i].in >= 0; j++) {
			put(r, j, f[i].in, k);
			if (scatter)
				put(r, res(r, j), f[i].in, k);
		}
		if (f[i].index >= 0)
			put(r, idx, f[i].index, k);
		for (int j = 0; j < n && f[i].slice >= 0; j++)
			put(r, scatter ? n + 1 + j : res(r, 0), f[i].slice, k);
	}
}

static void gather(struct rule *r) { indexed(r, false, AT_offset_dims, AT_collapsed, AT_obatch, AT_ibatch); }
static void scatter(struct rule *r) { indexed(r, true, AT_window_dims, AT_inserted, AT_ibatch, AT_sbatch); }

static void reduce(struct rule *r)
{
	int n, to = 0;
	const int64_t *dims = ir_attrs(r->fn, r->o, AT_dims, &n);
	for (int d = 0; d < in_t(r, 0)->rank; d++) {
		bool gone = in_list(dims, n, d);
		int f = factor(r, in_t(r, 0)->dim[d], gone ? FACTOR_SUM : FACTOR_EACH);
		for (int i = 0; i < r->x->nout; i++) {
			put(r, i, d, f);
			if (!gone)
				put(r, res(r, i), to, f);
		}
		to += !gone;
	}
}

/* Does the window along d see one element, its own? */
static bool trivial(const struct rule *r, int d)
{
	int n;
	return ir_attrs(r->fn, r->o, AT_window, &n)[d] == 1 && ir_attrs(r->fn, r->o, AT_stride, &n)[d] == 1 &&
	       ir_attrs(r->fn, r->o, AT_low, &n)[d] == 0 && ir_attrs(r->fn, r->o, AT_high, &n)[d] == 0;
}

static void reduce_window(struct rule *r)
{
	int n;
	const int64_t *base = ir_attrs(r->fn, r->o, AT_base_dilation, &n);
	for (int d = 0; d < out_t(r, 0)->rank; d++)
		shared(r, 0, r->x->nout, 0, r->x->nout, d, out_t(r, 0)->dim[d], trivial(r, d) && base[d] == 1 ? FACTOR_EACH : FACTOR_WINDOW);
}

static void select_and_scatter(struct rule *r)
{
	for (int d = 0; d < out_t(r, 0)->rank; d++) {
		int f = both(r, 0, d, res(r, 0), d, trivial(r, d) ? FACTOR_EACH : FACTOR_WINDOW);
		if (trivial(r, d))
			put(r, 1, d, f);
		else
			alone(r, 1, d, FACTOR_WHOLE);
	}
}

static void sort(struct rule *r)
{
	int dim = (int)ir_attr(r->fn, r->o, AT_dim), large = 0;
	for (int d = 0; d < out_t(r, 0)->rank; d++)
		large += out_t(r, 0)->dim[d] > 1;
	for (int d = 0; d < out_t(r, 0)->rank; d++) {
		int f = shared(r, 0, r->x->nin, 0, r->x->nout, d, out_t(r, 0)->dim[d], d == dim ? FACTOR_WHOLE : FACTOR_EACH);
		r->x->factor[f].blocked = d == dim && large == 1 && out_t(r, 0)->dim[d] > 1;
	}
}

static void top_k(struct rule *r)
{
	int last = out_t(r, 0)->rank - 1;
	for (int d = 0; d <= last; d++) {
		bool cut = d == last && in_t(r, 0)->dim[d] != out_t(r, 0)->dim[d];
		int f = shared(r, 0, 1, 0, 2, d, in_t(r, 0)->dim[d], cut ? FACTOR_WHOLE : FACTOR_EACH);
		r->x->factor[f].blocked = cut;
	}
}

static void cumulative(struct rule *r)
{
	int dim = (int)ir_attr(r->fn, r->o, AT_dim);
	for (int d = 0; d < out_t(r, 0)->rank; d++)
		both(r, 0, d, res(r, 0), d, d == dim ? FACTOR_WINDOW : FACTOR_EACH);
}

static void dot(struct rule *r)
{
	int nb, nc, to = 0;
	const int64_t *batch[2] = { ir_attrs(r->fn, r->o, AT_lb, &nb), ir_attrs(r->fn, r->o, AT_rb, &nb) },
	              *gone[2] = { ir_attrs(r->fn, r->o, AT_lc, &nc), ir_attrs(r->fn, r->o, AT_rc, &nc) };
	for (int i = 0; i < nb; i++) {
		int f = both(r, 0, (int)batch[0][i], 1, (int)batch[1][i], FACTOR_EACH);
		put(r, res(r, 0), to++, f);
	}
	for (int s = 0; s < 2; s++)
		for (int d = 0; d < in_t(r, s)->rank; d++)
			if (!in_list(batch[s], nb, d) && !in_list(gone[s], nc, d))
				both(r, s, d, res(r, 0), to++, FACTOR_EACH);
	for (int i = 0; i < nc; i++)
		both(r, 0, (int)gone[0][i], 1, (int)gone[1][i], FACTOR_SUM);
}

/* What scores are made from, but for tables, of which all is read: operands from .. to - 1, shares the factors of [B.., G, T, S] along which it is not the same. */
static void score_operands(struct rule *r, int from, int to, const int *f)
{
	for (int i = from; i < to; i++) {
		bool table = ir_attention_table(r->m, r->fn, r->o, (uint32_t)i) > 0;
		for (int d = 0; d < r->x->rank[i]; d++)
			if (table && d == r->x->rank[i] - 1)
				alone(r, i, d, FACTOR_WHOLE);
			else if (in_t(r, i)->dim[d] != 1)
				put(r, i, d, f[d]);
	}
}

/* Batch and heads one by one; queries one by one, too, but a gradient of keys and values is the sum over them; sums over keys are parts by
 * the joint reducer softmax, or, of the gradient of queries, plain ones; a part of an attention is not cut further. */
static void attention_axes(struct rule *r, bool grad, bool part, bool add)
{
	int nb = r->x->rank[0] - 3, f[IR_MAX_RANK], t = nb + 1, last = part || r->x->nout > 2 ? res(r, 2) : 0, q[] = { 0, grad ? 3 : res(r, 0), grad ? 4 : res(r, 1), grad ? 5 : last, res(r, 0), r->x->nin - 3 }, kv[] = { 1, 2, res(r, 1), res(r, 2), r->x->nin - 2, r->x->nin - 1 };
	for (int d = 0; d < nb + 2; d++) {
		f[d] = alone(r, 0, d, !grad || d < nb ? FACTOR_EACH : FACTOR_SUM);
		for (int i = 1; i < (add ? 6 : grad ? 5 : last ? 4 : 3); i++)
			put(r, q[i], d, f[d]);
		for (int i = 0; d < nb && i < (add ? 6 : grad ? 4 : 2); i++)
			put(r, kv[i], d, f[d]);
	}
	f[t + 1] = both(r, 1, nb, 2, nb, part ? FACTOR_WHOLE : FACTOR_SUM);
	int inner = both(r, 0, t + 1, 1, nb + 1, FACTOR_WHOLE), value = alone(r, 2, nb + 1, grad ? FACTOR_WHOLE : FACTOR_EACH);
	put(r, grad ? 4 : res(r, 0), t + 1, value);
	if (last && !part && !grad)
		put(r, last, t + 1, value);
	if (grad) {
		put(r, res(r, 1), nb, f[t + 1]);
		put(r, res(r, 2), nb, f[t + 1]);
		put(r, res(r, 0), t + 1, inner);
		put(r, res(r, 1), nb + 1, inner);
		put(r, res(r, 2), nb + 1, value);
	}
	for (int i = 3; i < r->x->nout && grad; i++) {
		for (int d = 0; d < nb; d++)
			put(r, res(r, i), d, f[d]);
		alone(r, res(r, i), nb + 2, FACTOR_WHOLE);
	}
	for (int i = 4; i < 6 && add; i++) {
		put(r, kv[i], nb, f[t + 1]);
		put(r, kv[i], nb + 1, i == 4 ? inner : value);
	}
	if (add)
		put(r, q[5], t + 1, inner);
	score_operands(r, grad ? 6 : 3, r->x->nin - 3 * add, f);
}

static void attention(struct rule *r) { attention_axes(r, false, false, false); }
static void attention_part(struct rule *r) { attention_axes(r, false, true, false); }
static void attention_grad(struct rule *r) { attention_axes(r, true, false, false); }
static void attention_grad_add(struct rule *r) { attention_axes(r, true, false, true); }

/* A spatial dimension of the operand is cut along the windows or inside of them, the larger of the two is the major factor. */
static void spatial(struct rule *r, int in, int kernel, int out)
{
	int64_t left = in_t(r, 0)->dim[in], windows = out_t(r, 0)->dim[out], window = in_t(r, 1)->dim[kernel];
	for (int k = 0; k < 2; k++) {
		bool inside = (windows >= window) == (k == 1);
		int64_t n = MIN(left, inside ? window : windows);
		if (n <= 1)
			continue;
		int f = factor(r, n, inside ? FACTOR_SUM : FACTOR_WINDOW);
		put(r, 0, in, f);
		put(r, inside ? 1 : res(r, 0), inside ? kernel : out, f);
		left /= n;
	}
}

static void convolution(struct rule *r)
{
	int n, f;
	const int64_t *lhs = ir_attrs(r->fn, r->o, AT_lhs, &n), *rhs = ir_attrs(r->fn, r->o, AT_rhs, &n), *out = ir_attrs(r->fn, r->o, AT_out, &n);
	int64_t fg = ir_attr(r->fn, r->o, AT_feature_groups), bg = ir_attr(r->fn, r->o, AT_batch_groups);
	const struct ir_type_info *o = out_t(r, 0);
	enum { BATCH, FEATURE, SPATIAL, INPUT = 0, OUTPUT = 1 };
	if (bg > 1) {
		f = factor(r, bg, FACTOR_EACH);
		put(r, 0, (int)lhs[BATCH], f);
		put(r, 1, (int)rhs[OUTPUT], f);
		put(r, res(r, 0), (int)out[FEATURE], f);
	}
	f = factor(r, o->dim[out[BATCH]], FACTOR_EACH);
	put(r, 0, (int)lhs[BATCH], f);
	put(r, res(r, 0), (int)out[BATCH], f);
	for (int k = SPATIAL; k < n; k++)
		spatial(r, (int)lhs[k], (int)rhs[k], (int)out[k]);
	if (fg > 1) {
		f = factor(r, fg, FACTOR_EACH);
		put(r, 0, (int)lhs[FEATURE], f);
		put(r, 1, (int)rhs[OUTPUT], f);
		put(r, res(r, 0), (int)out[FEATURE], f);
	}
	f = factor(r, in_t(r, 1)->dim[rhs[INPUT]], FACTOR_SUM);
	put(r, 0, (int)lhs[FEATURE], f);
	put(r, 1, (int)rhs[INPUT], f);
	if (o->dim[out[FEATURE]] / (bg * fg) > 1) {
		f = factor(r, o->dim[out[FEATURE]] / (bg * fg), FACTOR_EACH);
		put(r, 1, (int)rhs[OUTPUT], f);
		put(r, res(r, 0), (int)out[FEATURE], f);
	}
}

static void cholesky(struct rule *r)
{
	int rank = out_t(r, 0)->rank;
	for (int d = 0; d < rank; d++)
		both(r, 0, d, res(r, 0), d, d < rank - 2 ? FACTOR_EACH : FACTOR_WHOLE);
}

static void triangular_solve(struct rule *r)
{
	int rank = out_t(r, 0)->rank, a = ir_attr(r->fn, r->o, AT_left) ? rank - 2 : rank - 1, b = a == rank - 2 ? rank - 1 : rank - 2;
	bool t = ir_attr(r->fn, r->o, AT_trans) != 1;
	for (int d = 0; d < rank - 2; d++)
		put(r, 1, d, both(r, 0, d, res(r, 0), d, FACTOR_EACH));
	/* op(a) has the solution's dimension along its columns if it stands left, along its rows if right; the other one is that of b */
	int of_x = a == rank - 2 ? (t ? rank - 2 : rank - 1) : (t ? rank - 1 : rank - 2);
	both(r, 0, of_x, res(r, 0), a, FACTOR_WHOLE);
	both(r, 0, of_x == rank - 1 ? rank - 2 : rank - 1, 1, a, FACTOR_WHOLE);
	both(r, 1, b, res(r, 0), b, FACTOR_WHOLE);
}

static void fft(struct rule *r)
{
	int n, rank = out_t(r, 0)->rank;
	ir_attrs(r->fn, r->o, AT_length, &n);
	for (int d = 0; d < rank; d++) {
		int f = both(r, 0, d, res(r, 0), d, d < rank - n ? FACTOR_EACH : FACTOR_WHOLE);
		r->x->factor[f].blocked = d == rank - 1 && in_t(r, 0)->dim[d] != out_t(r, 0)->dim[d];
	}
}

static void rng_bits(struct rule *r)
{
	int f = both(r, 0, 0, res(r, 0), 0, FACTOR_WHOLE);
	r->x->factor[f].blocked = true;
	for (int d = 0; d < out_t(r, 1)->rank; d++)
		alone(r, res(r, 1), d, FACTOR_EACH);
}

static void bitcast_convert(struct rule *r)
{
	int a = in_t(r, 0)->rank, b = out_t(r, 0)->rank;
	for (int d = 0; d < MIN(a, b); d++)
		both(r, 0, d, res(r, 0), d, FACTOR_EACH);
	if (a != b)
		alone(r, a > b ? 0 : res(r, 0), MAX(a, b) - 1, FACTOR_WHOLE);
}

/* The dimension that the members of a group share or gather. */
static void all_gather(struct rule *r)
{
	int dim = (int)ir_attr(r->fn, r->o, AT_dim);
	for (int i = 0; i < r->x->nout; i++)
		for (int d = 0; d < out_t(r, i)->rank; d++) {
			if (d != dim) {
				both(r, i, d, res(r, i), d, FACTOR_EACH);
				continue;
			}
			alone(r, i, d, FACTOR_WHOLE);
			alone(r, res(r, i), d, FACTOR_WHOLE);
		}
}

static void all_to_all(struct rule *r)
{
	int a = (int)ir_attr(r->fn, r->o, AT_split), b = (int)ir_attr(r->fn, r->o, AT_concat);
	for (int i = 0; i < r->x->nout; i++)
		for (int d = 0; d < out_t(r, i)->rank; d++) {
			if (d != a && d != b) {
				both(r, i, d, res(r, i), d, FACTOR_EACH);
				continue;
			}
			alone(r, i, d, FACTOR_WHOLE);
			alone(r, res(r, i), d, FACTOR_WHOLE);
		}
}

/* Rows go anywhere, whole. */
static void ragged_all_to_all(struct rule *r)
{
	alone(r, 0, 0, FACTOR_WHOLE);
	both(r, 1, 0, res(r, 0), 0, FACTOR_WHOLE);
	for (int d = 1; d < out_t(r, 0)->rank; d++)
		shared(r, 0, 2, 0, 1, d, out_t(r, 0)->dim[d], FACTOR_EACH);
	for (int d = 0; d < 2; d++)
		alone(r, 2, d, FACTOR_WHOLE);
}

static void redistribute(struct rule *r)
{
	for (int d = 0; d < in_t(r, 0)->rank; d++)
		alone(r, 0, d, FACTOR_WHOLE);
	for (int d = 0; d < out_t(r, 0)->rank; d++)
		alone(r, res(r, 0), d, FACTOR_WHOLE);
}

/* --- asking -------------------------------------------------------------------------- */

static void (*const row[IR_COUNT])(struct rule *) = {
	[IR_none] = none,
#define OP(id, nin, nout, flags, axes, cost, attrs, meaning) [IR_##id] = axes,
#include "ops.def"
};

struct ir_axes *ir_axes_of(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	struct ir_axes *x = ARENA_NEW(a, struct ir_axes, 1);
	struct rule r = { .m = m, .fn = fn, .o = o, .a = a, .x = x };
	*x = (struct ir_axes){ .nin = (int)o->nin, .nout = (int)o->nout };
	x->rank = ARENA_NEW(a, int, x->nin + x->nout);
	x->dim = ARENA_NEW(a, struct ir_axes_dim *, x->nin + x->nout);
	for (int t = 0; t < x->nin + x->nout; t++) {
		x->rank[t] = (t < x->nin ? in_t(&r, t) : out_t(&r, t - x->nin))->rank;
		x->dim[t] = ARENA_NEW(a, struct ir_axes_dim, x->rank[t]);
	}
	row[o->kind](&r);
	return x;
}

int ir_axes_find(const struct ir_axes *x, int t, int f)
{
	for (int d = 0; d < x->rank[t]; d++)
		for (int k = 0; k < x->dim[t][d].n; k++)
			if (x->dim[t][d].factor[k] == f)
				return d;
	return -1;
}

double ir_axes_points(const struct ir_axes *x)
{
	double n = 1;
	for (int f = 0; f < x->nfactor; f++)
		n *= (double)x->factor[f].size;
	return n;
}

/* Names of factors: i .. z, then z_1, z_2 .. */
static void add_name(struct str *s, int f)
{
	if (f < 'z' - 'i' + 1)
		str_addf(s, "%c", 'i' + f);
	else
		str_addf(s, "z_%d", f - ('z' - 'i'));
}

static void add_tensors(struct str *s, const struct ir_axes *x, int from, int n)
{
	str_add(s, "(");
	for (int t = from; t < from + n; t++) {
		str_add(s, t > from ? ", [" : "[");
		for (int d = 0; d < x->rank[t]; d++) {
			str_add(s, d ? ", " : "");
			for (int k = 0; k < x->dim[t][d].n; k++)
				add_name(s, x->dim[t][d].factor[k]);
		}
		str_add(s, "]");
	}
	str_add(s, ")");
}

void ir_axes_print(struct str *s, const struct ir_axes *x)
{
	static const struct { const char *name; unsigned kinds; } set[] = {
		{ "reduction", 1 << FACTOR_SUM }, { "need_replication", 1 << FACTOR_WHOLE },
		{ "permutation", 1 << FACTOR_MOVED | 1 << FACTOR_WINDOW }, { "blocked_propagation", 0 },
	};
	add_tensors(s, x, 0, x->nin);
	str_add(s, "->");
	add_tensors(s, x, x->nin, x->nout);
	if (!x->nfactor)
		return;
	str_add(s, " {");
	for (int f = 0; f < x->nfactor; f++) {
		str_add(s, f ? ", " : "");
		add_name(s, f);
		str_addf(s, "=%lld", (long long)x->factor[f].size);
	}
	str_add(s, "}");
	for (size_t k = 0; k < NELEM(set); k++) {
		bool any = false;
		for (int f = 0; f < x->nfactor; f++) {
			if (!(set[k].kinds ? set[k].kinds >> x->factor[f].kind & 1 : x->factor[f].blocked))
				continue;
			str_addf(s, any ? ", " : " %s={", set[k].name);
			add_name(s, f);
			any = true;
		}
		str_add(s, any ? "}" : "");
	}
}
