/* What values can be, without running anything: who asks wants to know whether a mask hides all of a block. */
#include "eval.h"

enum { MOST = 100, SORTED = 128 };      /* ops one after the other; of a constant: none of its elements is less than the one before */

/* Elements of an operand. */
struct box { int64_t lo[IR_MAX_RANK], hi[IR_MAX_RANK]; };

static struct kern_bound both(struct kern_bound a, struct kern_bound b)
{
	return (struct kern_bound){ MIN(a.lo, b.lo), MAX(a.hi, b.hi), a.nan || b.nan };
}

static struct kern_bound at(const struct eval_bounds *c, ir_val v, const struct box *b) { return eval_bound(c, v, b->lo, b->hi); }

static struct kern_bound whole_number(int64_t lo, int64_t hi, enum dtype dt)
{
	struct prog_ins x = { .fn = ELEM_convert, .from = DT_i64, .to = (uint8_t)dt };
	return kern_bound(&x, &(struct kern_bound){ (double)lo, (double)hi, false });
}

static struct kern_bound constant(const struct eval_bounds *c, const struct ir_op *o, const int64_t *lo, const int64_t *hi)
{
	const struct ir_type_info *t = ir_vtype(c->m, c->fn, o->out);
	size_t n, es = dtype_info[t->dtype].bytes;
	const char *p = ir_blob_data(c->m, (ir_blob)ir_attr(c->fn, o, AT_data), &n);
	int64_t i[IR_MAX_RANK], count = 1;
	for (int k = 0; k < t->rank; k++) {
		i[k] = lo[k];
		count *= hi[k] - lo[k];
	}
	bool ends = c->known && (c->known[o->out] & SORTED), splat = n < es * (size_t)t->count;
	count = splat ? 1 : count;
	*c->work -= ends ? 0 : count / 8;
	if (*c->work < 0 || n < es)
		return kern_bound_any(t->dtype);
	struct kern_bound out = { 0 };
	for (int64_t done = 0; done < count; done++) {
		int64_t flat = 0;
		for (int k = 0; k < t->rank && !splat; k++)
			flat = flat * t->dim[k] + i[k];
		struct kern_bound one = kern_bound_of(t->dtype, p + (size_t)flat * es);
		if (ends)
			return both(one, kern_bound_of(t->dtype, p + (size_t)(flat + count - 1) * es));
		out = done ? both(out, one) : one;
		for (int k = t->rank; k-- > 0 && ++i[k] == hi[k];)
			i[k] = lo[k];
	}
	return out;
}

static struct kern_bound elementwise(const struct eval_bounds *c, const struct ir_op *o, const int64_t *lo, const int64_t *hi)
{
	struct prog_ins x = { .fn = (uint16_t)ir_elem(o->kind), .to = (uint8_t)ir_vtype(c->m, c->fn, o->out)->dtype };
	struct kern_bound in[3];
	if (o->nin > 3)
		return kern_bound_any((enum dtype)x.to);
	for (uint32_t k = 0; k < o->nin; k++)
		in[k] = eval_bound(c, ir_in(c->fn, o, k), lo, hi);
	x.from = (uint8_t)ir_vtype(c->m, c->fn, ir_in(c->fn, o, x.fn == ELEM_select ? 1 : 0))->dtype;
	return kern_bound(&x, in);
}

/* Of a reshape that adds or drops dimensions of one element: where they are the operand's.  Of any other what lies, row by row, from the first to the last. */
static void reshaped(const struct ir_type_info *from, const struct ir_type_info *to, const int64_t *lo, const int64_t *hi, struct box *b)
{
	int at[IR_MAX_RANK], n = 0, k = 0;
	int64_t first = 0, last = 0, rest = from->count;
	for (int j = 0; j < to->rank; j++) {
		first = first * to->dim[j] + lo[j];
		last = last * to->dim[j] + hi[j] - 1;
		if (to->dim[j] != 1)
			at[n++] = j;
	}
	for (int d = 0; d < from->rank; d++)
		if (from->dim[d] != 1 && k < n && from->dim[d] == to->dim[at[k]])
			k++;
	bool like = k == n && from->count == to->count, one = true;      /* one: up to here both have the same index */
	k = 0;
	for (int d = 0; d < from->rank; d++) {
		bool own = like && from->dim[d] != 1;
		rest /= MAX(from->dim[d], 1);
		b->lo[d] = own ? lo[at[k]] : one ? first / MAX(rest, 1) % MAX(from->dim[d], 1) : 0;
		b->hi[d] = own ? hi[at[k++]] : one ? last / MAX(rest, 1) % MAX(from->dim[d], 1) + 1 : from->dim[d];
		one &= b->hi[d] - b->lo[d] == 1;
	}
}

static struct kern_bound sliced(const struct eval_bounds *c, const struct ir_op *o, const int64_t *lo, const int64_t *hi)
{
	const struct ir_type_info *t = ir_vtype(c->m, c->fn, ir_in(c->fn, o, 0));
	struct box b;
	int n;
	for (int k = 0; k < t->rank; k++) {
		if (o->kind == IR_slice) {
			int64_t start = ir_attrs(c->fn, o, AT_start, &n)[k], stride = ir_attrs(c->fn, o, AT_stride, &n)[k];
			b.lo[k] = start + lo[k] * stride;
			b.hi[k] = start + (hi[k] - 1) * stride + 1;
			continue;
		}
		int64_t last = t->dim[k] - ir_attrs(c->fn, o, AT_size, &n)[k];
		struct kern_bound i = eval_bound(c, ir_in(c->fn, o, (uint32_t)k + 1), NULL, NULL);
		b.lo[k] = lo[k] + (int64_t)MAX(0, MIN(i.lo, (double)last));
		b.hi[k] = hi[k] + (int64_t)MAX(0, MIN(i.hi, (double)last));
	}
	return at(c, ir_in(c->fn, o, 0), &b);
}

static struct kern_bound gathered(const struct eval_bounds *c, const struct ir_op *o, ir_val v, const int64_t *lo, const int64_t *hi)
{
	const struct ir_group_info *g = &c->m->group.p[ir_attr(c->fn, o, AT_group)];
	ir_val x = ir_in(c->fn, o, v - o->out);
	const struct ir_type_info *t = ir_vtype(c->m, c->fn, x);
	int d = (int)ir_attr(c->fn, o, AT_dim), own = 0;
	struct kern_bound out = kern_bound_any(t->dtype);
	bool first = true;
	while (own < g->nrow * g->ncol && g->id[own] != c->dev)
		own++;
	for (int k = 0; k < g->ncol && own < g->nrow * g->ncol; k++) {
		struct eval_bounds member = *c;
		struct box b;
		memcpy(b.lo, lo, sizeof *lo * (size_t)t->rank);
		memcpy(b.hi, hi, sizeof *hi * (size_t)t->rank);
		b.lo[d] = MAX(0, lo[d] - k * t->dim[d]);
		b.hi[d] = MIN(t->dim[d], hi[d] - k * t->dim[d]);
		if (b.lo[d] >= b.hi[d])
			continue;
		member.dev = (int)g->id[own / g->ncol * g->ncol + k];
		if (member.dev < 0)
			return kern_bound_any(t->dtype);
		struct kern_bound one = at(&member, x, &b);
		out = first ? one : both(out, one);
		first = false;
	}
	return out;
}

struct kern_bound eval_bound(const struct eval_bounds *c, ir_val v, const int64_t *lo, const int64_t *hi)
{
	const struct ir_op *o = ir_def(c->fn, v);
	const struct ir_type_info *t = ir_vtype(c->m, c->fn, v), *in = o && o->nin ? ir_vtype(c->m, c->fn, ir_in(c->fn, o, 0)) : NULL;
	struct box b;
	int n;
	if (!o && c->param)
		return c->param[v - 1];
	if (!o || (c->known && !c->known[v]) || --*c->work < 0)
		return kern_bound_any(t->dtype);
	if (ir_is_elem(o->kind))
		return elementwise(c, o, lo, hi);
	switch (o->kind) {
	case IR_constant: return constant(c, o, lo, hi);
	case IR_iota: return whole_number(lo[ir_attr(c->fn, o, AT_dim)], hi[ir_attr(c->fn, o, AT_dim)] - 1, t->dtype);
	case IR_partition_id: return whole_number(c->dev, c->dev, t->dtype);
	case IR_slice: case IR_dynamic_slice: return sliced(c, o, lo, hi);
	case IR_all_gather: return gathered(c, o, v, lo, hi);
	case IR_optimization_barrier: case IR_sharding_constraint: return eval_bound(c, ir_in(c->fn, o, v - o->out), lo, hi);
	case IR_broadcast:
	case IR_transpose: {
		const int64_t *to = ir_attrs(c->fn, o, o->kind == IR_broadcast ? AT_dims : AT_perm, &n);
		for (int k = 0; k < n; k++) {
			int from = o->kind == IR_broadcast ? k : (int)to[k], at = o->kind == IR_broadcast ? (int)to[k] : k;
			bool same = in->dim[from] == t->dim[at];       /* an extent of 1 is repeated */
			b.lo[from] = same ? lo[at] : 0;
			b.hi[from] = same ? hi[at] : 1;
		}
		return at(c, ir_in(c->fn, o, 0), &b);
	}
	case IR_reshape:
		reshaped(in, t, lo, hi, &b);
		return at(c, ir_in(c->fn, o, 0), &b);
	default: return kern_bound_any(t->dtype);
	}
}

static bool looked_through(enum ir_kind k)
{
	switch (k) {
	case IR_constant: case IR_iota: case IR_partition_id: case IR_slice: case IR_dynamic_slice: case IR_all_gather: case IR_optimization_barrier:
	case IR_sharding_constraint: case IR_broadcast: case IR_transpose: case IR_reshape: return true;
	default: return ir_is_elem(k);
	}
}

/* Does the constant go up along its only dimension of more than one element? */
static bool sorted(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	const struct ir_type_info *t = ir_vtype(m, fn, o->out);
	size_t n, es = dtype_info[t->dtype].bytes;
	const char *p = ir_blob_data(m, (ir_blob)ir_attr(fn, o, AT_data), &n);
	int long_ones = 0;
	for (int k = 0; k < t->rank; k++)
		long_ones += t->dim[k] > 1;
	bool up = long_ones == 1 && n >= es * (size_t)t->count;
	for (int64_t i = 1; i < t->count && up; i++) {
		struct kern_bound a = kern_bound_of(t->dtype, p + (size_t)(i - 1) * es), b = kern_bound_of(t->dtype, p + (size_t)i * es);
		up = !a.nan && !b.nan && a.hi <= b.lo;
	}
	return up;
}

uint8_t *eval_known(struct arena *a, const struct ir_module *m, const struct ir_fn *fn)
{
	uint8_t *known = ARENA_NEW(a, uint8_t, fn->val.n + 1);
	memset(known, 0, fn->val.n + 1);
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		int high = looked_through(o->kind) ? 1 : 0;
		for (uint32_t k = 0; k < o->nin && high; k++) {
			int of = known[ir_in(fn, o, k)] & ~SORTED;
			high = of && of < MOST ? MAX(high, of + 1) : 0;
		}
		for (uint32_t k = 0; k < o->nout; k++)
			known[o->out + k] = (uint8_t)(high | (o->kind == IR_constant && sorted(m, fn, o) ? SORTED : 0));
	}
	return known;
}
