/* Groups: ops that become one kernel.
 *
 * Ops are visited from the last to the first; a producer joins its consumers' group when every element it
 * makes is wanted at most once by the group, when the group's loop shape admits it, and when no path from
 * it leads out of the group and back in.  A group has one of three loop shapes:
 *   point   every result element on its own
 *   row     reductions over trailing dimensions, values of the whole shape or one a row (softmax, norms)
 *   column  reductions over other dimensions at the end
 * Views, iotas and splat constants belong to no group: each group that reads one holds a copy.  Of a long chain of
 * views every MOST_VIEWS-th is made once, outside.  What several groups read widened each of them widens, as if that were a view.
 * What gen cannot compile (gen_can) stays as it is; but for complex numbers, groups that are left can be compiled. */
#include "passes.h"

#include <stdlib.h>

enum shape { POINT, ROW, COLUMN };

struct group {
	enum shape shape;
	int rank, kept;          /* domain without unit dimensions; row: leading dimensions that are kept */
	int64_t dim[IR_MAX_RANK];
	int64_t deep;            /* row: elements of a dimension behind the domain's, that are added up at once; 0: there is none */
	int work, first, last;   /* of one element, in additions; positions of the first and the last member */
	bool strips;             /* with complex numbers: elementwise throughout, for the strip kernel */
};

/* A group as a function, what it reads and what it gives. */
struct outline { struct ir_fn *fn; ARR(ir_val) in, out; };

struct fuse {
	const struct pass_opts *o;
	struct ir_module *m;
	const struct ir_fn *fn;
	struct arena *a;
	int *grp;                /* per op: group or -1 */
	ARR(struct group) g;
	int *next_member;        /* per op: the next of its group, -1 */
	bool *is_result;
	int *before, *after;     /* per op with an effect: the one before and after it; else -1 */
	const struct outline *made;  /* per region */
	const double *runs;      /* per function: how often all launches run it */
	int *over;               /* per op: the last member of any group that has one here or before */
	int *seen, *work, round; /* of path_outside */
	int *pass, *above;       /* of passes_of */
	uint32_t *passes;
	uint8_t *links;          /* per value: views, and what is widened like one, between it and what is neither; 0: it is neither, or stands for itself */
	ir_val *map;             /* per value: the one in the group being outlined, if mapped[v] == turn */
	int *mapped, turn;
};

enum { MOST_WORK = 512, MOST_VIEWS = 32, DEAR = 32, CHEAP = 8 };   /* times in additions */

/* --- what an op is to a group ---------------------------------------------------- */

static bool view(const struct fuse *f, const struct ir_op *o)
{
	return o->nout == 1 && f->links[o->out];
}

static void count_links(struct fuse *f)
{
	for (size_t i = 0; i < f->fn->op.n; i++) {
		const struct ir_op *o = &f->fn->op.p[i];
		if ((ir_info(o->kind)->flags & IR_VIEW) && o->kind != IR_bitcast_convert)
			f->links[o->out] = (uint8_t)((f->links[ir_in(f->fn, o, 0)] + 1) % (MOST_VIEWS + 1));
	}
}

/* Copied into every group that reads it. */
static bool free_op(const struct fuse *f, const struct ir_op *o)
{
	if (view(f, o) || o->kind == IR_iota)
		return true;
	return o->kind == IR_constant && (ir_splat(f->m, f->fn, o->out) || ir_vtype(f->m, f->fn, o->out)->count <= 32);
}

static bool type_ok(const struct fuse *f, ir_val v)
{
	const struct ir_type_info *t = ir_vtype(f->m, f->fn, v);
	const struct dtype_info *d = &dtype_info[t->dtype];
	if (d->cls == DT_NONE || t->count == 0)
		return false;
	return !(d->cls == DT_FLOAT && d->bits < 16) && !(d->cls != DT_PRED && d->bits < 4);
}

/* Time of one element, in additions. */
static int weight(const struct fuse *f, const struct ir_op *o)
{
	return (int)MAX(ir_cost_each(f->m, f->fn, o), 1);
}

/* Has to do with complex numbers, which generated code does not have. */
static bool complex_op(const struct fuse *f, const struct ir_op *o)
{
	bool is = false;
	for (uint32_t k = 0; k < o->nin + o->nout; k++)
		is |= dtype_info[ir_vtype(f->m, f->fn, k < o->nin ? ir_in(f->fn, o, k) : o->out + k - o->nin)->dtype].cls == DT_COMPLEX;
	return is;
}

/* May work for complex numbers along with them: cheap, and on parts of them; what computes parts is better compiled. */
static bool part_op(const struct fuse *f, const struct ir_op *o)
{
	bool is = ir_is_elem(o->kind) && weight(f, o) <= 1;
	for (uint32_t k = 0; k < o->nin && is; k++) {
		int32_t def = f->fn->val.p[ir_in(f->fn, o, k)].def;
		is = def != IR_PARAM && (complex_op(f, &f->fn->op.p[def]) || free_op(f, &f->fn->op.p[def]));
	}
	return is;
}

static bool member(const struct fuse *f, const struct ir_op *o)
{
	if (!ir_is_elem(o->kind) && o->kind != IR_reduce && o->kind != IR_reduce_precision && o->kind != IR_concatenate && o->kind != IR_pad &&
	    o->kind != IR_dynamic_slice && o->kind != IR_gather)
		return false;
	for (uint32_t k = 0; k < o->nin; k++)
		if (!type_ok(f, ir_in(f->fn, o, k)))
			return false;
	for (uint32_t k = 0; k < o->nout; k++)
		if (!type_ok(f, o->out + k))
			return false;
	if (complex_op(f, o))
		return ir_is_elem(o->kind);
	if (o->kind == IR_reduce)
		return o->nout == 1 && ir_attr(f->fn, o, AT_redop) != RED_fn;
	if (f->m->num_partitions > 1 && ir_side_by_side(f->a, f->m, f->fn, o))      /* no kernel at all (lower/gather.c) */
		return false;
	return true;
}

static int squeeze(const struct ir_type_info *t, int64_t *dim)
{
	int n = 0;
	for (int d = 0; d < t->rank; d++)
		if (t->dim[d] != 1)
			dim[n++] = t->dim[d];
	return n;
}

static bool same(int n, const int64_t *a, int k, const int64_t *b)
{
	return n == k && !memcmp(a, b, sizeof *a * (size_t)n);
}

/* Reduced dimensions of a reduce: are they the trailing ones (unit dimensions aside)?  kept: how many
 * non-unit dimensions stay in front. */
static bool trailing(const struct fuse *f, const struct ir_op *o, int *kept)
{
	const struct ir_type_info *t = ir_vtype(f->m, f->fn, ir_in(f->fn, o, 0));
	int n;
	const int64_t *dims = ir_attrs(f->fn, o, AT_dims, &n);
	bool gone[IR_MAX_RANK] = {0}, seen = false;
	for (int i = 0; i < n; i++)
		gone[dims[i]] = true;
	*kept = 0;
	for (int d = 0; d < t->rank; d++) {
		if (t->dim[d] == 1)
			continue;
		if (!gone[d] && seen)
			return false;
		seen |= gone[d];
		*kept += !gone[d];
	}
	return true;
}

/* --- who reads a value ------------------------------------------------------------ */

/* Does a broadcast keep its operand's dimensions in order? */
static bool rising(const struct ir_fn *fn, const struct ir_op *o)
{
	int n;
	const int64_t *dims = ir_attrs(fn, o, AT_dims, &n);
	for (int i = 1; i < n; i++)
		if (dims[i] < dims[i - 1])
			return false;
	return true;
}

struct reader { int op; bool direct, spread, moved; };   /* op -1: a result or a reader outside groups */

static int readers(const struct fuse *f, ir_val v, struct reader *out, int cap)
{
	struct { ir_val v; bool direct, spread, moved; } work[64];
	int n = 0, nt = 0;
	work[nt].v = v;
	work[nt].direct = true;
	work[nt].spread = work[nt].moved = false;
	nt++;
	while (nt) {
		nt--;
		ir_val x = work[nt].v;
		bool direct = work[nt].direct, spread = work[nt].spread, moved = work[nt].moved;
		if (f->is_result[x]) {
			if (n == cap)
				return -1;
			out[n++] = (struct reader){ -1, direct, spread, moved };
		}
		for (uint32_t u = ir_use_first(f->fn, x); u; u = ir_use_next(f->fn, u)) {
			int i = (int)ir_use_op(f->fn, u);
			const struct ir_op *o = &f->fn->op.p[i];
			if (view(f, o)) {
				if (nt == (int)NELEM(work))
					return -1;
				const struct ir_type_info *a = ir_vtype(f->m, f->fn, x), *b = ir_vtype(f->m, f->fn, o->out);
				int64_t da[IR_MAX_RANK], db[IR_MAX_RANK];
				bool unit = same(squeeze(a, da), da, squeeze(b, db), db);
				work[nt].v = o->out;
				work[nt].direct = false;
				work[nt].spread = spread || b->count > a->count;
				work[nt].moved = moved || (o->kind == IR_broadcast ? !rising(f->fn, o) : o->kind == IR_reshape ? !unit : !ir_is_elem(o->kind));
				nt++;
				continue;
			}
			if (n == cap)
				return -1;
			out[n++] = (struct reader){ f->grp[i] >= 0 ? i : -1, direct, spread, moved };
		}
	}
	return n;
}

/* Puts what follows from x, all of its group, on the list of n ops; true if x is in group g. */
static bool reach(struct fuse *f, int x, int g, int end, int *n)
{
	if (x < 0 || x > end || f->seen[x] == f->round)
		return false;
	if (f->grp[x] == g)
		return true;
	for (int y = f->grp[x] < 0 ? x : f->g.p[f->grp[x]].first; y >= 0; y = f->next_member[y]) {
		f->seen[y] = f->round;
		f->work[(*n)++] = y;
	}
	return false;
}

/* Does a path lead from op i, past readers outside group g, into g?  A group stands for all its members, and an
 * op with an effect leads to the next one.  True also when the search is too long to tell. */
static bool path_outside(struct fuse *f, int i, int g)
{
	enum { MOST = 2048 };
	const struct ir_fn *fn = f->fn;
	/* Paths go down, except within groups: none comes back from behind a place that no group reaches over. */
	int end = f->g.p[g].last, n = 0;
	while (f->over[end] > end)
		end = f->over[end];
	f->round++;
	for (uint32_t u = ir_use_first(fn, fn->op.p[i].out); u; u = ir_use_next(fn, u))
		if (f->grp[ir_use_op(fn, u)] != g)
			reach(f, (int)ir_use_op(fn, u), g, end, &n);
	for (int steps = 0; n; steps++) {
		int k = f->work[--n];
		const struct ir_op *o = &fn->op.p[k];
		if (steps == MOST || reach(f, f->after[k], g, end, &n))
			return true;
		for (uint32_t r = 0; r < o->nout; r++)
			for (uint32_t u = ir_use_first(fn, o->out + r); u; u = ir_use_next(fn, u))
				if (reach(f, (int)ir_use_op(fn, u), g, end, &n))
					return true;
	}
	return false;
}

/* --- joining -------------------------------------------------------------------------- */

static int group_new(struct fuse *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	struct group g = { .work = weight(f, o), .first = i, .last = i, .strips = complex_op(f, o) };
	if (o->kind == IR_reduce) {
		g.rank = squeeze(ir_vtype(f->m, f->fn, ir_in(f->fn, o, 0)), g.dim);
		g.shape = trailing(f, o, &g.kept) ? ROW : COLUMN;
	} else {
		g.rank = squeeze(ir_vtype(f->m, f->fn, o->out), g.dim);
	}
	arr_push(&f->g, g);
	f->grp[i] = (int)f->g.n - 1;
	return (int)f->g.n - 1;
}

/* Are these the dimensions of g's domain and behind them a short one, g's if it has one?  new: it may have none so far. */
static bool deep_in(const struct group *g, int rank, const int64_t *dim, bool new)
{
	enum { SHORT = 8 };
	return rank == g->rank + 1 && same(g->rank, dim, g->rank, g->dim) && (g->deep ? dim[g->rank] == g->deep : new && dim[g->rank] <= SHORT);
}

/* The op, not a free one, that operand k of o is a copy of. */
static const struct ir_op *maker(const struct fuse *f, const struct ir_op *o, uint32_t k)
{
	const struct ir_op *d = ir_def(f->fn, ir_in(f->fn, o, k));
	while (d && d->nin && free_op(f, d))
		d = ir_def(f->fn, ir_in(f->fn, d, 0));
	return d;
}

static bool one_for_one(const struct fuse *f, const struct ir_op *o, const struct ir_op *d)
{
	return d && d->nout == 1 && ir_vtype(f->m, f->fn, d->out)->count == ir_vtype(f->m, f->fn, o->out)->count;
}

/* Time of an element of what o makes from arrays and reductions, in additions; from most on, no more is counted. */
static int time_of(const struct fuse *f, const struct ir_op *o, int most)
{
	if (!ir_is_elem(o->kind) && o->kind != IR_reduce_precision)
		return 0;
	int t = weight(f, o);
	for (uint32_t k = 0; k < o->nin && t < most; k++) {
		const struct ir_op *d = maker(f, o, k);
		t += one_for_one(f, o, d) ? time_of(f, d, most - t) : 0;
	}
	return t;
}

/* The member of group g that makes operand k of o, -1: none does. */
static int member_of(const struct fuse *f, int g, const struct ir_op *o, uint32_t k)
{
	const struct ir_op *d = maker(f, o, k);
	return d && f->grp[d - f->fn->op.p] == g ? (int)(d - f->fn->op.p) : -1;
}

/* Members of row group g: in which passes over the rows each is computed, if of a row's shape (a reduction is made in one, and what
 * depends on it in a later one; a bit each), and how long it takes to compute from it what else is of that shape. */
static void passes_of(struct fuse *f, int g)
{
	int n = 0;
	for (int k = f->g.p[g].first; k >= 0; k = f->next_member[k]) {
		const struct ir_op *o = &f->fn->op.p[k];
		f->work[n++] = k;
		f->pass[k] = f->above[k] = 0;
		f->passes[k] = 0;
		for (uint32_t j = 0; j < o->nin; j++) {
			int q = member_of(f, g, o, j);
			if (q >= 0)
				f->pass[k] = MIN(MAX(f->pass[k], f->pass[q] + (f->fn->op.p[q].kind == IR_reduce)), 31);
		}
	}
	while (n) {
		int k = f->work[--n];
		const struct ir_op *o = &f->fn->op.p[k];
		bool reduce = o->kind == IR_reduce;
		if (reduce || !f->passes[k])
			f->passes[k] = 1u << f->pass[k];
		for (uint32_t j = 0; j < o->nin; j++) {
			int q = member_of(f, g, o, j);
			if (q < 0)
				continue;
			f->passes[q] |= f->passes[k];
			if (!reduce)
				f->above[q] = MAX(f->above[q], f->above[k] + weight(f, o));
		}
	}
}

/* Is what op i would make in row group g rather stored, since several passes over a long row would compute it anew each?  Of a dear
 * chain, what is cheap at its end is. */
static bool rather_stored(struct fuse *f, int i, int g, const struct reader *r, int n)
{
	const struct group *gr = &f->g.p[g];
	const struct ir_op *o = &f->fn->op.p[i];
	int64_t row = dtype_info[ir_vtype(f->m, f->fn, o->out)->dtype].bytes;
	for (int k = gr->kept; k < gr->rank; k++)
		row *= gr->dim[k];
	if (row <= gen_keeps() || time_of(f, o, DEAR) < DEAR)
		return false;
	uint32_t passes = 0;
	int above = weight(f, o), dear = 0;
	passes_of(f, g);
	for (int k = 0; k < n; k++)
		if (r[k].op >= 0 && f->grp[r[k].op] == g) {
			passes |= f->passes[r[k].op];
			if (f->fn->op.p[r[k].op].kind != IR_reduce)
				above = MAX(above, weight(f, o) + f->above[r[k].op] + weight(f, &f->fn->op.p[r[k].op]));
		}
	if (!(passes & (passes - 1)))
		return false;
	for (uint32_t k = 0; k < o->nin; k++) {
		const struct ir_op *d = maker(f, o, k);
		dear += one_for_one(f, o, d) && time_of(f, d, DEAR) >= DEAR - CHEAP;
	}
	return above > CHEAP || dear != 1;
}

/* May op i, whose readers are given, join group g? */
static bool admits(struct fuse *f, int i, int g, const struct reader *r, int n, bool others)
{
	struct group *gr = &f->g.p[g];
	const struct ir_op *o = &f->fn->op.p[i];
	const struct ir_type_info *t = ir_vtype(f->m, f->fn, o->out);
	int64_t dim[IR_MAX_RANK], src[IR_MAX_RANK];
	int rank = squeeze(t, dim), kept;
	bool spread = false, moved = false;
	int paths = 0;
	for (int k = 0; k < n; k++)
		if (r[k].op >= 0 && f->grp[r[k].op] == g) {
			spread |= r[k].spread;
			moved |= r[k].moved;
			paths++;
		}
	bool whole = same(rank, dim, gr->rank, gr->dim);
	bool row = gr->shape == ROW && same(rank, dim, gr->kept, gr->dim);
	if (gr->work >= MOST_WORK || (gr->strips && (spread || moved || !whole)))
		return false;
	if (o->kind == IR_reduce) {
		const struct ir_type_info *s = ir_vtype(f->m, f->fn, ir_in(f->fn, o, 0));
		int srank = squeeze(s, src);
		if (moved || !trailing(f, o, &kept) || kept == srank)
			return false;
		if (gr->shape == ROW && deep_in(gr, srank, src, true) && kept == gr->rank && !spread && !others) {
			gr->deep = src[srank - 1];
			return true;
		}
		if (gr->shape == ROW)
			return same(srank, src, gr->rank, gr->dim) && kept == gr->kept;
		if (gr->shape == POINT && (same(srank, src, gr->rank, gr->dim) || same(rank, dim, gr->rank, gr->dim))) {
			/* members so far are of the whole shape, or all of the reduced one */
			bool full = same(srank, src, gr->rank, gr->dim);
			for (int k = gr->first; k >= 0; k = f->next_member[k]) {
				int64_t d[IR_MAX_RANK];
				const struct ir_op *q = &f->fn->op.p[k];
				if (!ir_is_elem(q->kind) && q->kind != IR_reduce_precision)
					return false;
				int rk = squeeze(ir_vtype(f->m, f->fn, q->out), d);
				if (full ? !same(rk, d, srank, src) && !same(rk, d, kept, src) : !same(rk, d, kept, src))
					return false;
			}
			gr->shape = ROW;
			gr->rank = srank;
			gr->kept = kept;
			memcpy(gr->dim, src, sizeof *src * (size_t)srank);
			return true;
		}
		return false;
	}
	bool plain = ir_is_elem(o->kind) || o->kind == IR_reduce_precision;
	switch (gr->shape) {
	case POINT:
		if (others)
			return whole && !moved && !spread && plain;
		if (spread && weight(f, o) > 1 && !moved) {
			/* computed once a row if the spread dimensions are inner ones */
			return rank < gr->rank && same(rank, dim, rank, gr->dim) && plain && gr->rank > 0;
		}
		/* what widens is read again for nothing: fewer bytes, and no array of the wide type */
		bool widens = ir_is_elem(o->kind) && ir_elem(o->kind) == ELEM_convert &&
			dtype_info[ir_vtype(f->m, f->fn, ir_in(f->fn, o, 0))->dtype].bytes <= dtype_info[t->dtype].bytes;
		if (moved && !widens && (paths > 1 || !plain))
			return false;
		return !spread || weight(f, o) <= 1;
	case ROW:
		return plain && !moved && (row || (whole && !rather_stored(f, i, g, r, n)) || (deep_in(gr, rank, dim, false) && !spread && !others));
	case COLUMN:
		return plain && !moved && whole && !spread && !others;
	}
	return false;
}

/* From fewer bytes: read again for nothing, and there is no array of the wide type. */
static bool widens(const struct fuse *f, const struct ir_op *o)
{
	if (!ir_is_elem(o->kind) || ir_elem(o->kind) != ELEM_convert)
		return false;
	return dtype_info[ir_vtype(f->m, f->fn, ir_in(f->fn, o, 0))->dtype].bytes < dtype_info[ir_vtype(f->m, f->fn, o->out)->dtype].bytes;
}

/* Is op i, with such readers, rather made in each of several groups? */
static bool widened_by_readers(struct fuse *f, int i, const struct reader *r, int n)
{
	const struct ir_op *o = &f->fn->op.p[i];
	bool several = false;
	if (n < 2 || !widens(f, o) || complex_op(f, o) || f->links[ir_in(f->fn, o, 0)] == MOST_VIEWS)
		return false;
	for (int k = 0; k < n; k++) {
		if (r[k].op < 0 || f->g.p[f->grp[r[k].op]].strips)
			return false;
		several |= f->grp[r[k].op] != f->grp[r[0].op];
	}
	return several;
}

static void consider(struct fuse *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	if (!member(f, o))
		return;
	struct reader r[64];
	int n = o->nout == 1 ? readers(f, o->out, r, NELEM(r)) : -1;
	int64_t tried[8];
	int nt = 0;
	if (widened_by_readers(f, i, r, n)) {
		f->links[o->out] = (uint8_t)(f->links[ir_in(f->fn, o, 0)] + 1);
		return;
	}
	for (int k = 0; k < n; k++) {
		if (r[k].op < 0)
			continue;
		int g = f->grp[r[k].op];
		if (in_list(tried, nt, g) || nt == (int)NELEM(tried))
			continue;
		tried[nt++] = g;
		if (f->g.p[g].strips ? !complex_op(f, o) && !part_op(f, o) : complex_op(f, o))
			continue;
		bool others = false;
		for (int j = 0; j < n; j++)
			others |= r[j].op < 0 || f->grp[r[j].op] != g;
		if (others && path_outside(f, i, g))
			continue;
		if (!admits(f, i, g, r, n, others))
			continue;
		f->grp[i] = g;
		f->next_member[i] = f->g.p[g].first;
		f->g.p[g].first = i;
		for (int p = i; f->over[p] < f->g.p[g].last; p++)
			f->over[p] = f->g.p[g].last;
		f->g.p[g].work += weight(f, o);
		return;
	}
	group_new(f, i);
}

/* --- outlining ---------------------------------------------------------------------------- */

static bool is_mapped(const struct fuse *f, ir_val v)
{
	return f->mapped[v] == f->turn;
}

static void map_to(struct fuse *f, ir_val v, ir_val to)
{
	f->map[v] = to;
	f->mapped[v] = f->turn;
}

/* v inside the group: a member's result, a parameter, or a copy of a free op, as deep as views are linked. */
static ir_val inside(struct fuse *f, struct ir_b *b, ir_val v)
{
	if (!is_mapped(f, v)) {
		const struct ir_op *o = ir_def(f->fn, v);
		ir_val in = o->nin ? inside(f, b, ir_in(f->fn, o, 0)) : 0;
		map_to(f, v, ir_clone(b, f->fn, o, &in));
	}
	return f->map[v];
}

/* The operand that the group has from outside for v, through free ops (of one operand at most). */
static void collect(struct fuse *f, struct outline *x, int g, ir_val v)
{
	for (const struct ir_op *o; !is_mapped(f, v); v = ir_in(f->fn, o, 0)) {
		o = ir_def(f->fn, v);
		if (o && f->grp[o - f->fn->op.p] == g)
			return;
		if (!o || !free_op(f, o)) {
			map_to(f, v, ir_param(x->fn, f->fn->val.p[v].type));
			arr_push(&x->in, v);
			return;
		}
		if (!o->nin)
			return;
	}
}

static void outline(struct fuse *f, int g, const int *mem, int n, struct outline *x)
{
	*x = (struct outline){ .fn = ir_fn_new(f->m, "group") };
	f->turn++;
	for (int k = 0; k < n; k++)
		for (uint32_t j = 0; j < f->fn->op.p[mem[k]].nin; j++)
			collect(f, x, g, ir_in(f->fn, &f->fn->op.p[mem[k]], j));
	struct ir_b b = { f->m, x->fn, 0 };
	for (int k = 0; k < n; k++) {
		const struct ir_op *o = &f->fn->op.p[mem[k]];
		ir_val *in = ARENA_NEW(f->a, ir_val, o->nin);
		for (uint32_t j = 0; j < o->nin; j++)
			in[j] = inside(f, &b, ir_in(f->fn, o, j));
		ir_val v = ir_clone(&b, f->fn, o, in);
		for (uint32_t j = 0; j < o->nout; j++)
			map_to(f, o->out + j, v + j);
	}
	for (int k = 0; k < n; k++) {
		const struct ir_op *o = &f->fn->op.p[mem[k]];
		for (uint32_t j = 0; j < o->nout; j++) {
			bool outside = f->is_result[o->out + j];
			for (uint32_t u = ir_use_first(f->fn, o->out + j); u && !outside; u = ir_use_next(f->fn, u)) {
				int q = (int)ir_use_op(f->fn, u);
				if (f->grp[q] == g)
					continue;
				/* a view that only this group reads is inside it */
				if (view(f, &f->fn->op.p[q])) {
					struct reader r[64];
					int c = readers(f, f->fn->op.p[q].out, r, NELEM(r));
					outside = c < 0;
					for (int z = 0; z < c && !outside; z++)
						outside = r[z].op < 0 || f->grp[r[z].op] != g;
					continue;
				}
				outside = true;
			}
			if (outside) {
				arr_push(&x->out, o->out + j);
				ir_result(x->fn, f->map[o->out + j]);
			}
		}
	}
}

/* --- tiny loops ----------------------------------------------------------------------------- */

/* A loop whose turns handle few elements, be they parts of large values: control flow and all in one kernel.  What may be with a
 * large value the generator knows; this is what is quickly seen. */
static bool tiny_loop(const struct fuse *f, const struct ir_op *o)
{
	enum { MOST = 256, MOST_OPS = 200 };
	if (o->kind != IR_loop || f->o->tier == TIER_REF)
		return false;
	int64_t ops = 0;
	for (uint32_t k = 0; k < o->nin; k++)
		if (!type_ok(f, ir_in(f->fn, o, k)))
			return false;
	ir_fnid held[2];
	for (int a = ir_regions(f->fn, o, held, 2); a-- > 0;) {
		const struct ir_fn *g = ir_fn_of(f->m, held[a]);
		ops += (int64_t)g->op.n;
		for (size_t i = 0; i < g->op.n; i++) {
			const struct ir_op *q = &g->op.p[i];
			bool may = q->kind == IR_dynamic_update_slice || q->kind == IR_scatter || q->kind == IR_loop || q->kind == IR_case || q->kind == IR_call ||
			           (ir_info(q->kind)->flags & IR_VIEW) || q->kind == IR_constant;
			for (uint32_t k = 0; k < q->nout && !may; k++)
				if (ir_vtype(f->m, g, q->out + k)->count > MOST)
					return false;
		}
	}
	return ops <= MOST_OPS;
}

static bool try_loop(struct fuse *f, struct ir_b *b, const struct ir_op *o, const ir_val *in, ir_val *out)
{
	struct ir_fn *g = ir_fn_new(f->m, "group");
	struct ir_b gb = { f->m, g, o->loc };
	ir_val *inner = ARENA_NEW(f->a, ir_val, o->nin);
	ARR(ir_val) from = {0};
	for (uint32_t k = 0; k < o->nin; k++) {
		inner[k] = ir_param(g, f->fn->val.p[ir_in(f->fn, o, k)].type);
		arr_push(&from, in[k]);
	}
	uint32_t words;
	ir_type *t = ARENA_NEW(f->a, ir_type, o->nout);
	for (uint32_t k = 0; k < o->nout; k++)
		t[k] = f->fn->val.p[o->out + k].type;
	const int64_t *w = ir_attr_copy(f->a, f->fn, o, &words);
	ir_val v = ir_emit_raw(&gb, IR_loop, o->nin, inner, o->nout, t, w, words);
	for (uint32_t k = 0; k < o->nout; k++)
		ir_result(g, v + k);
	const char *why = "it gives nothing";
	const struct lower_choice c = lower_choose(f->o->tier, f->o->plan.table, f->m, g, f->runs[f->fn->id]);
	bool ok = o->nout > 0 && c.code && gen_can(f->m, g, &why);
	if (!ok)
		log_line(LOG_DEBUG, "a loop of small values is no kernel of its own: %s", c.code ? why : c.why);
	if (ok) {
		int64_t id = g->id;
		*out = ir_emit_raw(b, IR_fused, (uint32_t)from.n, from.p, o->nout, t, &id, 1);
	}
	arr_free(&from);
	return ok;
}

/* Elementwise throughout, of types that generated code does not have (complex): the strip kernel runs such a group as one,
 * with values between its ops in cache. */
static bool strips_can(const struct fuse *f, const struct ir_fn *g)
{
	const struct ir_type_info *rt = ir_vtype(f->m, g, g->result.p[0]);
	int work = 0;
	for (size_t i = 0; i < g->op.n; i++) {
		const struct ir_op *o = &g->op.p[i];
		const struct ir_type_info *t = o->nout ? ir_vtype(f->m, g, o->out) : NULL;
		if (o->kind == IR_constant || (t && (ir_info(o->kind)->flags & IR_VIEW)))
			continue;
		if (!t || !ir_is_elem(o->kind) || t->rank != rt->rank || memcmp(t->dim, rt->dim, sizeof *t->dim * t->rank) != 0)
			return false;
		for (uint32_t k = 0; k < o->nin; k++)
			if (ir_vtype(f->m, g, ir_in(g, o, k))->count != t->count)
				return false;
		work++;
	}
	return work > 1;
}

/* --- one function ----------------------------------------------------------------------------- */

static void one_kernel(void *user, struct ir_b *b, int k, const ir_val *in, ir_val *out)
{
	const struct fuse *f = user;
	const struct outline *x = &f->made[k];
	ir_type *t = ARENA_NEW(f->a, ir_type, x->out.n + 1);
	int64_t id = x->fn->id;
	for (size_t i = 0; i < x->out.n; i++)
		t[i] = f->fn->val.p[x->out.p[i]].type;
	ir_val v = ir_emit_raw(b, IR_fused, (uint32_t)x->in.n, in, (uint32_t)x->out.n, t, &id, 1);
	for (size_t i = 0; i < x->out.n; i++)
		out[i] = v + (ir_val)i;
}

static ir_val one_loop(void *user, struct ir_b *b, const struct ir_op *o, const ir_val *in)
{
	struct fuse *f = user;
	ir_val v;
	return tiny_loop(f, o) && try_loop(f, b, o, in, &v) ? v : 0;
}

/* Per op with an effect: the one before it; -1: none, or no effect.  *last: the last one, -1 none. */
static int *effects(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, int *last)
{
	int *before = ARENA_NEW(a, int, fn->op.n + 1);
	*last = -1;
	for (size_t i = 0; i < fn->op.n; i++) {
		before[i] = -1;
		if (ir_effect(m, fn, &fn->op.p[i])) {
			before[i] = *last;
			*last = (int)i;
		}
	}
	return before;
}

static struct ir_fn *fuse_fn(struct fuse *f)
{
	const struct ir_fn *fn = f->fn;
	int n = (int)fn->op.n, nv = (int)fn->val.n;
	f->grp = ARENA_NEW(f->a, int, n);
	f->is_result = ARENA_NEW(f->a, bool, nv);
	f->next_member = ARENA_NEW(f->a, int, n);
	f->after = ARENA_NEW(f->a, int, n);
	f->seen = ARENA_NEW(f->a, int, n);
	f->over = ARENA_NEW(f->a, int, n);
	f->work = ARENA_NEW(f->a, int, n);
	f->pass = ARENA_NEW(f->a, int, n);
	f->above = ARENA_NEW(f->a, int, n);
	f->passes = ARENA_NEW(f->a, uint32_t, n);
	f->links = ARENA_NEW(f->a, uint8_t, nv);
	f->map = ARENA_NEW(f->a, ir_val, nv);
	f->mapped = ARENA_NEW(f->a, int, nv);
	count_links(f);
	f->round = f->turn = 0;
	f->g.n = 0;
	int effect;
	f->before = effects(f->a, f->m, fn, &effect);
	for (int i = 0; i < n; i++) {
		f->grp[i] = f->next_member[i] = f->after[i] = -1;
		f->over[i] = i;
	}
	for (int i = effect; i >= 0; i = f->before[i])
		if (f->before[i] >= 0)
			f->after[f->before[i]] = i;
	for (size_t i = 0; i < fn->result.n; i++)
		f->is_result[fn->result.p[i]] = true;
	for (int i = n; i-- > 0;)
		consider(f, i);

	/* members per group, in order */
	int ng = (int)f->g.n;
	int *count = ARENA_NEW(f->a, int, ng + 1), **mem = ARENA_NEW(f->a, int *, ng + 1);
	for (int i = 0; i < n; i++)
		if (f->grp[i] >= 0)
			count[f->grp[i]]++;
	for (int g = 0; g < ng; g++) {
		mem[g] = ARENA_NEW(f->a, int, count[g] + 1);
		count[g] = 0;
	}
	for (int i = 0; i < n; i++)
		if (f->grp[i] >= 0)
			mem[f->grp[i]][count[f->grp[i]]++] = i;
	struct outline *x = ARENA_NEW(f->a, struct outline, ng + 1);
	for (int g = 0; g < ng; g++) {
		if (!count[g])
			continue;
		outline(f, g, mem[g], count[g], &x[g]);
		const char *why = NULL;
		if (x[g].out.n && (f->g.p[g].strips ? strips_can(f, x[g].fn) : gen_can(f->m, x[g].fn, &why)))
			continue;
		if (x[g].out.n && count[g] > 1)
			log_line(LOG_DEBUG, "a group of %d ops is taken apart: %s", count[g], why ? why : "");
		arr_free(&x[g].in);
		arr_free(&x[g].out);
		for (int k = 0; k < count[g]; k++)
			f->grp[mem[g][k]] = -1;
		count[g] = 0;
	}

	struct region *r = ARENA_NEW(f->a, struct region, ng + 1);
	int nr = 0;
	for (int g = 0; g < ng; g++) {
		if (!count[g])
			continue;
		x[nr] = x[g];
		r[nr++] = (struct region){ .op = mem[g], .nop = count[g], .in = x[g].in.p, .out = x[g].out.p, .nin = x[g].in.n, .nout = x[g].out.n };
	}
	f->made = x;
	struct ir_fn *out = pass_replace_regions(f->m, f->a, fn, r, nr, &(struct region_change){ one_kernel, one_loop, f });
	for (int g = 0; g < nr; g++) {
		arr_free(&x[g].in);
		arr_free(&x[g].out);
	}
	return out;
}

struct err *pass_fuse(const struct pass_opts *o, struct ir_module *m)
{
	if (o->tier == TIER_REF)
		return NULL;
	pass_attention_parts(m, true);
	pass_small(m);
	pass_split(m);
	pass_rows(m, o);
	struct arena a, order;
	arena_init(&a);
	arena_init(&order);
	struct fuse z = { .o = o, .m = m, .a = &a };
	/* From main into the bodies of loops and branches that are lowered op by op.  Users come first: a tiny loop
	 * is judged, and taken whole, on its plain body.  Reducers, comparators and groups stay as they are. */
	size_t cap = m->fn.n;
	z.runs = lower_runs(&order, o->plan.table, m);
	bool *seen = ARENA_NEW(&order, bool, cap);
	ARR(ir_fnid) work = {0};
	arr_push(&work, 1);
	while (work.n) {
		ir_fnid id = work.p[--work.n];
		z.fn = ir_fn_of(m, id);
		pass_replace(m, id, fuse_fn(&z));
		arena_reset(&a);
		const struct ir_fn *fn = ir_fn_of(m, id);
		for (size_t i = 0; i < fn->op.n; i++) {
			if (fn->op.p[i].kind != IR_loop && fn->op.p[i].kind != IR_case)
				continue;
			int cap_r = (int)ir_attr_words(fn, &fn->op.p[i]);
			ir_fnid *r = ARENA_NEW(&a, ir_fnid, cap_r + 1);
			int n = ir_regions(fn, &fn->op.p[i], r, cap_r + 1);
			for (int k = 0; k < n; k++)
				if (r[k] < cap && !seen[r[k]]) {
					seen[r[k]] = true;
					arr_push(&work, r[k]);
				}
		}
	}
	arr_free(&work);
	arr_free(&z.g);
	pass_drop(m);               /* what only groups read */
	arena_fini(&a);
	arena_fini(&order);
	return NULL;
}
