/* Operations whose region is not an expression (it loops, calls a product, ...): element by element, the
 * region walked for each.  Slow; the order of combining is the simplest one. */
#include <stdlib.h>

#include "walk.h"

static size_t es_of(const struct ir_type_info *t) { return dtype_info[t->dtype].bytes; }

/* Call region f on scalars given and returned as bytes. */
static struct err *call(struct walk *w, ir_fnid f, int pos, int nin, const char *const *in, int nout, char *const *out)
{
	const struct ir_fn *fn = ir_fn_of(w->m, f);
	if ((int)fn->nparam != nin || (int)fn->result.n != nout)
		return ERR(INVALID, "region has another signature");
	struct blk **a = mem_alloc(sizeof *a * (size_t)(nin + nout + 1)), **r = a + nin;
	for (int i = 0; i < nin; i++) {
		size_t n = (size_t)ir_vtype(w->m, fn, (ir_val)(1 + i))->bytes;
		a[i] = blk_new(n);
		memcpy(a[i]->p, in[i], n);
	}
	struct err *e = walk_fn(w, fn, (struct team){ 1, &pos }, a, r);
	for (int i = 0; i < nout && !e; i++)
		memcpy(out[i], r[i]->p, r[i]->n);
	for (int i = 0; i < nin + nout; i++)
		blk_unref(a[i]);
	free(a);
	return e;
}

static void unflatten(int rank, const int64_t *dim, int64_t lin, int64_t *ix)
{
	for (int d = rank; d-- > 0;) {
		ix[d] = lin % dim[d];
		lin /= dim[d];
	}
}

enum { MAX_OPS = 64 };

/* Combine element at of each operand into acc. */
static struct err *fold(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, ir_fnid f, int pos, int n,
                        struct blk *const *x, int64_t at, char (*acc)[16])
{
	const char *in[2 * MAX_OPS];
	char *out[MAX_OPS], tmp[MAX_OPS][16];
	for (int i = 0; i < n; i++) {
		size_t es = es_of(ir_vtype(w->m, fn, ir_in(fn, o, (uint32_t)i)));
		in[i] = acc[i];
		in[n + i] = x[i]->p + (size_t)at * es;
		out[i] = tmp[i];
	}
	TRY(call(w, f, pos, 2 * n, in, n, out));
	memcpy(acc, tmp, sizeof *acc * (size_t)n);
	return NULL;
}

static struct err *reduce(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, int pos, struct blk *const *in, struct blk **out)
{
	int n = (int)o->nin / 2, nd;
	const int64_t *dims = ir_attrs(fn, o, AT_dims, &nd);
	ir_fnid f = (ir_fnid)ir_attr(fn, o, AT_fn);
	const struct ir_type_info *t = ir_vtype(w->m, fn, ir_in(fn, o, 0)), *u = ir_vtype(w->m, fn, o->out);
	for (int64_t r = 0; r < u->count; r++) {
		char acc[MAX_OPS][16];
		for (int i = 0; i < n; i++)
			memcpy(acc[i], in[n + i]->p, es_of(ir_vtype(w->m, fn, o->out + (uint32_t)i)));
		for (int64_t e = 0; e < t->count; e++) {
			int64_t ix[IR_MAX_RANK], lin = 0;
			unflatten(t->rank, t->dim, e, ix);
			for (int d = 0; d < t->rank; d++) {
				bool red = in_list(dims, nd, d);
				if (!red)
					lin = lin * t->dim[d] + ix[d];
			}
			if (lin == r)
				TRY(fold(w, fn, o, f, pos, n, in, e, acc));
		}
		for (int i = 0; i < n; i++) {
			size_t es = es_of(ir_vtype(w->m, fn, o->out + (uint32_t)i));
			memcpy(out[i]->p + (size_t)r * es, acc[i], es);
		}
	}
	return NULL;
}

static struct err *window(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, int pos, struct blk *const *in, struct blk **out)
{
	int n = (int)o->nin / 2, c;
	const int64_t *size = ir_attrs(fn, o, AT_window, &c), *stride = ir_attrs(fn, o, AT_stride, &c), *base = ir_attrs(fn, o, AT_base_dilation, &c),
	              *dil = ir_attrs(fn, o, AT_window_dilation, &c), *low = ir_attrs(fn, o, AT_low, &c);
	ir_fnid f = (ir_fnid)ir_attr(fn, o, AT_fn);
	const struct ir_type_info *t = ir_vtype(w->m, fn, ir_in(fn, o, 0)), *u = ir_vtype(w->m, fn, o->out);
	int64_t nw = 1;
	for (int d = 0; d < t->rank; d++)
		nw *= size[d];
	for (int64_t r = 0; r < u->count; r++) {
		char acc[MAX_OPS][16];
		int64_t ox[IR_MAX_RANK], wx[IR_MAX_RANK];
		unflatten(u->rank, u->dim, r, ox);
		for (int i = 0; i < n; i++)
			memcpy(acc[i], in[n + i]->p, es_of(ir_vtype(w->m, fn, o->out + (uint32_t)i)));
		for (int64_t k = 0; k < nw; k++) {
			int64_t lin = 0;
			bool inside = true;
			unflatten(t->rank, size, k, wx);
			for (int d = 0; d < t->rank; d++) {
				int64_t p = ox[d] * stride[d] + wx[d] * dil[d] - low[d];
				inside &= p >= 0 && p % base[d] == 0 && p / base[d] < t->dim[d];
				lin = lin * t->dim[d] + p / base[d];
			}
			if (inside)
				TRY(fold(w, fn, o, f, pos, n, in, lin, acc));
		}
		for (int i = 0; i < n; i++) {
			size_t es = es_of(ir_vtype(w->m, fn, o->out + (uint32_t)i));
			memcpy(out[i]->p + (size_t)r * es, acc[i], es);
		}
	}
	return NULL;
}

static int64_t integer(const struct ir_type_info *t, const char *p)
{
	int64_t v;
	kern_elem(ELEM_convert, (enum dtype)t->dtype, DT_i64)(1, &v, p, NULL, NULL);
	return v;
}

static struct err *scatter(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, int pos, struct blk *const *in, struct blk **out)
{
	int n = ((int)o->nin - 1) / 2, nwin, nins, nib, nsb, nmap;
	const int64_t *win = ir_attrs(fn, o, AT_window_dims, &nwin), *ins = ir_attrs(fn, o, AT_inserted, &nins), *ib = ir_attrs(fn, o, AT_ibatch, &nib),
	              *sb = ir_attrs(fn, o, AT_sbatch, &nsb), *map = ir_attrs(fn, o, AT_to_operand, &nmap);
	int64_t ivd = ir_attr(fn, o, AT_index_dim);
	ir_fnid f = (ir_fnid)ir_attr(fn, o, AT_fn);
	const struct ir_type_info *t = ir_vtype(w->m, fn, ir_in(fn, o, 0)), *it = ir_vtype(w->m, fn, ir_in(fn, o, (uint32_t)n)),
	                          *u = ir_vtype(w->m, fn, ir_in(fn, o, (uint32_t)n + 1));
	for (int i = 0; i < n; i++)
		memcpy(out[i]->p, in[i]->p, in[i]->n);
	for (int64_t k = 0; k < u->count; k++) {
		int64_t ux[IR_MAX_RANK], bx[IR_MAX_RANK], start[IR_MAX_RANK] = { 0 }, full[IR_MAX_RANK] = { 0 }, ext[IR_MAX_RANK];
		int nb = 0, wd = 0;
		unflatten(u->rank, u->dim, k, ux);
		for (int d = 0; d < u->rank; d++)
			if (!in_list(win, nwin, d))
				bx[nb++] = ux[d];
		for (int c = 0; c < nmap; c++) {
			int64_t lin = 0;
			for (int d = 0, b = 0; d < it->rank; d++)
				lin = lin * it->dim[d] + (d == ivd ? c : bx[b++]);
			start[map[c]] = integer(it, in[n]->p + (size_t)lin * es_of(it));
		}
		for (int d = 0; d < t->rank; d++) {
			ext[d] = 1;
			if (in_list(ins, nins, d))
				continue;
			for (int b = 0; b < nib; b++)
				if (ib[b] == d)
					start[d] = bx[sb[b] - (ivd < sb[b])];
			if (!in_list(ib, nib, d)) {
				ext[d] = u->dim[win[wd]];
				full[d] = ux[win[wd++]];
			}
		}
		int64_t lin = 0;
		bool inside = true;
		for (int d = 0; d < t->rank; d++) {
			inside &= start[d] >= 0 && start[d] + ext[d] <= t->dim[d];
			lin = lin * t->dim[d] + start[d] + full[d];
		}
		if (!inside)
			continue;
		const char *a[2 * MAX_OPS];
		char *r[MAX_OPS], tmp[MAX_OPS][16];
		for (int i = 0; i < n; i++) {
			size_t es = es_of(ir_vtype(w->m, fn, o->out + (uint32_t)i));
			a[i] = out[i]->p + (size_t)lin * es;
			a[n + i] = in[n + 1 + i]->p + (size_t)k * es;
			r[i] = tmp[i];
		}
		TRY(call(w, f, pos, 2 * n, a, n, r));
		for (int i = 0; i < n; i++) {
			size_t es = es_of(ir_vtype(w->m, fn, o->out + (uint32_t)i));
			memcpy(out[i]->p + (size_t)lin * es, tmp[i], es);
		}
	}
	return NULL;
}

/* Merge sort of row indices: stable, and indifferent to a comparator that makes no sense. */
struct sorter { struct walk *w; const struct ir_fn *fn; const struct ir_op *o; int pos; struct blk *const *in; int64_t base, step; struct err *e; };
static bool before(struct sorter *s, int64_t a, int64_t b)
{
	const char *x[2 * MAX_OPS];
	char r = 0, *out[1] = { &r };
	for (uint32_t i = 0; i < s->o->nin; i++) {
		size_t es = es_of(ir_vtype(s->w->m, s->fn, ir_in(s->fn, s->o, i)));
		x[2 * i] = s->in[i]->p + (size_t)(s->base + a * s->step) * es;
		x[2 * i + 1] = s->in[i]->p + (size_t)(s->base + b * s->step) * es;
	}
	if (!s->e)
		s->e = call(s->w, (ir_fnid)ir_attr(s->fn, s->o, AT_fn), s->pos, 2 * (int)s->o->nin, x, 1, out);
	return r;
}
static void merge_sort(struct sorter *s, int64_t *p, int64_t *tmp, int64_t n)
{
	if (n < 2 || s->e)
		return;
	int64_t h = n / 2, i = 0, j = h, k = 0;
	merge_sort(s, p, tmp, h);
	merge_sort(s, p + h, tmp, n - h);
	while (i < h && j < n)
		tmp[k++] = before(s, p[j], p[i]) ? p[j++] : p[i++];
	while (i < h)
		tmp[k++] = p[i++];
	while (j < n)
		tmp[k++] = p[j++];
	memcpy(p, tmp, sizeof *p * (size_t)n);
}
static struct err *sort(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, int pos, struct blk *const *in, struct blk **out)
{
	const struct ir_type_info *t = ir_vtype(w->m, fn, ir_in(fn, o, 0));
	int64_t dim = ir_attr(fn, o, AT_dim), n = t->dim[dim], inner = 1, outer = 1;
	for (int d = 0; d < t->rank; d++)
		*(d > dim ? &inner : &outer) *= d == dim ? 1 : t->dim[d];
	int64_t *p = mem_alloc(sizeof *p * (size_t)(2 * n + 1));
	struct sorter s = { w, fn, o, pos, in, 0, inner, NULL };
	for (int64_t r = 0; r < outer * inner && !s.e; r++) {
		s.base = r / inner * inner * n + r % inner;
		for (int64_t i = 0; i < n; i++)
			p[i] = i;
		merge_sort(&s, p, p + n, n);
		for (uint32_t j = 0; j < o->nin; j++) {
			size_t es = es_of(ir_vtype(w->m, fn, o->out + j));
			for (int64_t i = 0; i < n; i++)
				memcpy(out[j]->p + (size_t)(s.base + i * inner) * es, in[j]->p + (size_t)(s.base + p[i] * inner) * es, es);
		}
	}
	free(p);
	return s.e;
}

static struct err *select_and_scatter(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, int pos, struct blk *const *in, struct blk **out)
{
	int c;
	const int64_t *size = ir_attrs(fn, o, AT_window, &c), *stride = ir_attrs(fn, o, AT_stride, &c), *low = ir_attrs(fn, o, AT_low, &c);
	ir_fnid sel = (ir_fnid)ir_attr(fn, o, AT_select), sca = (ir_fnid)ir_attr(fn, o, AT_scatter);
	const struct ir_type_info *t = ir_vtype(w->m, fn, ir_in(fn, o, 0)), *u = ir_vtype(w->m, fn, ir_in(fn, o, 1));
	size_t es = es_of(t);
	int64_t nw = 1;
	for (int64_t i = 0; i < t->count; i++)
		memcpy(out[0]->p + (size_t)i * es, in[2]->p, es);
	for (int d = 0; d < t->rank; d++)
		nw *= size[d];
	for (int64_t r = 0; r < u->count; r++) {
		int64_t ox[IR_MAX_RANK], wx[IR_MAX_RANK], best = -1;
		unflatten(u->rank, u->dim, r, ox);
		for (int64_t k = 0; k < nw; k++) {
			int64_t lin = 0;
			bool inside = true;
			unflatten(t->rank, size, k, wx);
			for (int d = 0; d < t->rank; d++) {
				int64_t p = ox[d] * stride[d] + wx[d] - low[d];
				inside &= p >= 0 && p < t->dim[d];
				lin = lin * t->dim[d] + p;
			}
			if (!inside)
				continue;
			char keep = 0, *ro[1] = { &keep };
			if (best >= 0) {
				const char *a[2] = { in[0]->p + (size_t)best * es, in[0]->p + (size_t)lin * es };
				TRY(call(w, sel, pos, 2, a, 1, ro));
			}
			if (!keep)
				best = lin;
		}
		if (best < 0)
			continue;
		char tmp[16], *ro[1] = { tmp };
		const char *a[2] = { out[0]->p + (size_t)best * es, in[1]->p + (size_t)r * es };
		TRY(call(w, sca, pos, 2, a, 1, ro));
		memcpy(out[0]->p + (size_t)best * es, tmp, es);
	}
	return NULL;
}

struct err *walk_region(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, int pos, struct blk *const *in, struct blk **out)
{
	if (o->nin > MAX_OPS)
		return ERR(UNIMPLEMENTED, "'%s' with %d operands", ir_info(o->kind)->name, (int)o->nin);
	for (uint32_t j = 0; j < o->nout; j++)
		out[j] = blk_new((size_t)ir_vtype(w->m, fn, o->out + j)->bytes);
	switch (o->kind) {
	case IR_reduce: return reduce(w, fn, o, pos, in, out);
	case IR_reduce_window: return window(w, fn, o, pos, in, out);
	case IR_scatter: return scatter(w, fn, o, pos, in, out);
	case IR_sort: return sort(w, fn, o, pos, in, out);
	default: return select_and_scatter(w, fn, o, pos, in, out);
	}
}
