/* Groups: ops that become one kernel.
 *
 * Ops are visited from the last to the first; a producer joins its consumers' group when every element it
 * makes is wanted at most once by the group, when the group's loop shape admits it, and when no path from
 * it leads out of the group and back in.  A group has one of three loop shapes:
 *   point   every result element on its own
 *   row     reductions over trailing dimensions, values of the whole shape or one a row (softmax, norms)
 *   column  reductions over other dimensions at the end
 * Views, iotas and splat constants belong to no group: each group that reads one holds a copy.  Of a long chain of
 * views every MOST_VIEWS-th is made once, outside.
 * What gen cannot compile (gen_can) stays as it is; but for complex numbers, groups that are left can be compiled. */
#include "passes.h"

#include <stdlib.h>

enum shape { POINT, ROW, COLUMN };

struct group {
	enum shape shape;
	int rank, kept;          /* domain without unit dimensions; row: leading dimensions that are kept */
	int64_t dim[IR_MAX_RANK];
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
	uint8_t *links;          /* per value: views between it and what is none; 0: it is none, or stands for itself */
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
				work[nt].moved = moved || (o->kind == IR_broadcast ? !rising(f->fn, o) : o->kind == IR_reshape ? !unit : true);
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
			const struct ir_op *d = maker(f, o, j);
			int q = d ? (int)(d - f->fn->op.p) : -1;
			if (q >= 0 && f->grp[q] == g)
				f->pass[k] = MIN(MAX(f->pass[k], f->pass[q] + (d->kind == IR_reduce)), 31);
		}
	}
	while (n) {
		int k = f->work[--n];
		const struct ir_op *o = &f->fn->op.p[k];
		bool reduce = o->kind == IR_reduce;
		if (reduce || !f->passes[k])
			f->passes[k] = 1u << f->pass[k];
		for (uint32_t j = 0; j < o->nin; j++) {
			const struct ir_op *d = maker(f, o, j);
			int q = d ? (int)(d - f->fn->op.p) : -1;
			if (q < 0 || f->grp[q] != g)
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
		return plain && !moved && (row || (whole && !rather_stored(f, i, g, r, n)));
	case COLUMN:
		return plain && !moved && whole && !spread && !others;
	}
	return false;
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

/* A loop whose values are all small: control flow and all in one kernel. */
static bool tiny_loop(const struct fuse *f, const struct ir_op *o)
{
	enum { MOST = 256, MOST_OPS = 200 };
	if (o->kind != IR_loop || f->o->tier == TIER_REF)
		return false;
	int64_t ops = 0;
	for (uint32_t k = 0; k < o->nin; k++)
		if (ir_vtype(f->m, f->fn, ir_in(f->fn, o, k))->count > MOST || !type_ok(f, ir_in(f->fn, o, k)))
			return false;
	ir_fnid held[2];
	for (int a = ir_regions(f->fn, o, held, 2); a-- > 0;) {
		const struct ir_fn *g = ir_fn_of(f->m, held[a]);
		ops += (int64_t)g->op.n;
		for (size_t v = 1; v < g->val.n; v++)
			if (ir_type_of(f->m, g->val.p[v].type)->count > MOST)
				return false;
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

/* --- large full reductions in two steps ------------------------------------------------------ */

/* Elements start .. along the first dimension of arrays of this rank of the function that is rewritten; that dimension as two, of blocks and of
 * what each has, or as one (blocks 0).  What is computed element by element for nobody else, or from nothing that is read, is computed for them alone. */
struct part { struct rewrite *r; ir_val *done; int rank; int64_t start, count, blocks; int left; };

static bool from_nothing(const struct rewrite *r, ir_val v, int *left)
{
	const struct ir_op *o = ir_def(r->from, v);
	if (ir_vtype(r->m, r->from, v)->count == 1 || (o && (o->kind == IR_iota || ir_splat(r->m, r->from, v))))
		return true;
	if (!o || --*left < 0 || (o->kind != IR_broadcast && (!ir_is_elem(o->kind) || ir_cost_each(r->m, r->from, o) > 1)))
		return false;
	for (uint32_t k = 0; k < o->nin; k++)
		if (!from_nothing(r, ir_in(r->from, o, k), left))
			return false;
	return o->kind != IR_broadcast || ir_vtype(r->m, r->from, ir_in(r->from, o, 0))->count == 1;
}

static bool one_reads(const struct ir_fn *fn, ir_val v)
{
	uint32_t first = ir_use_first(fn, v), n = 0;
	for (uint32_t u = first; u && ir_use_op(fn, u) == ir_use_op(fn, first); u = ir_use_next(fn, u))
		n++;
	return n == fn->val.p[v].nuse;
}

static ir_val part_of(struct part *p, ir_val v);

static ir_val part_made(struct part *p, ir_val v)
{
	struct rewrite *r = p->r;
	struct ir_b *b = &r->b;
	const struct ir_op *o = ir_def(r->from, v);
	struct ir_type_info t = *ir_vtype(r->m, r->from, v);
	int64_t dim[IR_MAX_RANK], dims[IR_MAX_RANK], lo[IR_MAX_RANK] = {0}, hi[IR_MAX_RANK], one[IR_MAX_RANK];
	int more = p->blocks > 0, n, left = 16;
	if (t.rank != p->rank)
		return r->map[v];                    /* one for all */
	for (int d = 0; d < t.rank; d++) {
		dim[d + more] = hi[d] = t.dim[d];
		one[d] = 1;
	}
	dim[0] = p->blocks;
	dim[more] = p->count / MAX(p->blocks, 1);
	ir_type to = ir_tensor(r->m, t.dtype, t.rank + more, dim);
	const void *splat = ir_splat(r->m, r->from, v);
	if (splat) {
		char e[16];
		memcpy(e, splat, (size_t)dtype_info[t.dtype].bytes);
		return ir_const(b, to, e, dtype_info[t.dtype].bytes);
	}
	if (o && o->kind == IR_iota && (dtype_info[t.dtype].cls == DT_INT || dtype_info[t.dtype].cls == DT_UINT)) {
		int along = (int)ir_attr(r->from, o, AT_dim);
		ir_val x = ir_iota(b, to, along + more);
		if (along)
			return x;
		ir_val from = ir_const_i(b, to, p->start);
		x = ir_bin(b, ELEM_add, x, from);
		if (!more)
			return x;
		ir_val block = ir_iota(b, to, 0), length = ir_const_i(b, to, dim[1]);
		return ir_bin(b, ELEM_add, ir_bin(b, ELEM_multiply, block, length), x);
	}
	const int64_t *at = o && o->kind == IR_broadcast ? ir_attrs(r->from, o, AT_dims, &n) : NULL;
	bool alike = at != NULL;             /* all along the first dimension */
	for (int d = 0; alike && d < n; d++) {
		alike = at[d] != 0 || ir_vtype(r->m, r->from, ir_in(r->from, o, 0))->dim[d] == 1;
		dims[d] = at[d] ? at[d] + more : 0;
	}
	if (alike)
		return ir_broadcast(b, r->map[ir_in(r->from, o, 0)], to, dims);
	if (o && ir_is_elem(o->kind) && o->nout == 1 && o->nin <= 3 && --p->left >= 0 && (one_reads(r->from, v) || from_nothing(r, v, &left))) {
		ir_val in[3];
		for (uint32_t k = 0; k < o->nin; k++)
			in[k] = part_of(p, ir_in(r->from, o, k));
		return ir_emit_raw(b, (enum ir_kind)o->kind, o->nin, in, 1, &to, r->from->attr.p + o->attr, ir_attr_words(r->from, o));
	}
	lo[0] = p->start;
	hi[0] = p->start + p->count;
	return ir_reshape(b, ir_slice(b, r->map[v], lo, hi, one), t.rank + more, dim);
}

static ir_val part_of(struct part *p, ir_val v)
{
	if (!p->done[v])
		p->done[v] = part_made(p, v);
	return p->done[v];
}

/* What changes no result of op, everywhere. */
static ir_val neutral(struct ir_b *b, enum redop op, ir_type t)
{
	enum dtype dt = ir_type_of(b->m, t)->dtype;
	char e[16];
	kern_identity(op, dt, e);
	return ir_const(b, t, e, dtype_info[dt].bytes);
}

/* Columns of very many rows, of which there are few: rows are cut into blocks, or some of the reduced dimensions stay at first.  Parts of a sum are of
 * f32 at least, and are added in f64: there are not so many that their roundings would even out. */
static ir_val split_columns(struct rewrite *r, const struct ir_op *o, const ir_val *in, enum redop op)
{
	enum { MANY = 1 << 20, COLUMNS = 1024, PARTS = 16, BLOCKS = 64, MOST = 64 };
	struct ir_b *b = &r->b;
	struct ir_type_info t = *ir_vtype(r->m, b->fn, in[0]);
	int n, k = 0;
	int64_t dims[IR_MAX_RANK], in_blocks[IR_MAX_RANK], parts = 1;
	const int64_t *given = ir_attrs(r->from, o, AT_dims, &n);
	memcpy(dims, given, sizeof *dims * (size_t)n);
	bool rising = true;
	for (int i = 1; i < n; i++)
		rising &= dims[i] > dims[i - 1];
	if (t.count < MANY || ir_vtype(r->m, r->from, o->out)->count >= COLUMNS || !rising || !n)
		return 0;
	bool sum = dtype_info[t.dtype].cls == DT_FLOAT && (op == RED_add || op == RED_mul);
	enum dtype part = sum && dtype_info[t.dtype].bits < 32 ? DT_f32 : t.dtype, wide = sum ? DT_f64 : t.dtype;
	int64_t all = t.dim[0], rows = all / BLOCKS * BLOCKS;
	ir_val start = neutral(b, op, ir_scalar(r->m, part)), x, rest = 0;
	if (dims[0] == 0 && t.rank < IR_MAX_RANK && rows >= BLOCKS * PARTS && redop_elem[op] != ELEM_COUNT) {
		for (int i = 0; i < n; i++)
			in_blocks[i] = dims[i] + 1;
		struct part p = { r, ARENA_NEW(r->a, ir_val, r->from->val.n), t.rank, 0, rows, BLOCKS, MOST };
		x = ir_convert(b, part_of(&p, ir_in(r->from, o, 0)), part);
		x = ir_reduce1(b, op, x, start, n, in_blocks);
		if (rows < all) {
			p = (struct part){ r, ARENA_NEW(r->a, ir_val, r->from->val.n), t.rank, rows, all - rows, 0, MOST };
			rest = ir_convert(b, part_of(&p, ir_in(r->from, o, 0)), part);
			rest = ir_reduce1(b, op, rest, start, n, dims);
		}
		n = 1;
		dims[0] = 0;
	} else {
		while (k < n && parts < PARTS)
			parts *= t.dim[dims[k++]];
		if (k == n)
			return 0;
		x = ir_reduce1(b, op, ir_convert(b, in[0], part), start, n - k, dims + k);
		n = k;
	}
	x = ir_convert(b, x, wide);
	ir_val first = ir_convert(b, in[1], wide);
	x = ir_reduce1(b, op, x, first, n, dims);
	if (rest) {
		rest = ir_convert(b, rest, wide);
		x = ir_bin(b, redop_elem[op], x, rest);
	}
	return ir_convert(b, x, t.dtype);
}

/* reduce of very many elements to very few: first over blocks, so that tiles can share the work. */
static ir_val split_reduce(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	enum { MANY = 1 << 16, BLOCKS = 64, UNEVEN = 1024, MOST = 64 };
	const struct ir_type_info *t, *rt = ir_vtype(r->m, r->from, o->out);
	if (o->kind != IR_reduce || o->nout != 1 || ir_attr(r->from, o, AT_redop) == RED_fn)
		return 0;
	t = ir_vtype(r->m, r->b.fn, in[0]);
	if (t->count < MANY)
		return 0;
	int n, rank = t->rank;
	const int64_t *dims = ir_attrs(r->from, o, AT_dims, &n), count = t->count, wide = rank ? t->dim[rank - 1] : 1;
	bool all = rt->count == 1;
	enum redop op = (enum redop)ir_attr(r->from, o, AT_redop);
	enum dtype dt = t->dtype;
	if (!in_list(dims, n, rank - 1))
		return split_columns(r, o, in, op);
	if (rt->count >= BLOCKS)
		return 0;
	ir_val start = neutral(&r->b, op, ir_scalar(r->m, dt));
	if (all && rank == 1) {
		int64_t blocks = UNEVEN;
		for (int64_t b = 4096; b >= BLOCKS; b /= 2)
			if (count % b == 0 && count / b >= 64) {
				blocks = b;
				break;
			}
		struct part p = { r, ARENA_NEW(r->a, ir_val, r->from->val.n), 1, 0, count / blocks * blocks, blocks, MOST };
		ir_val x = ir_reduce1(&r->b, op, part_of(&p, ir_in(r->from, o, 0)), start, 1, (int64_t[]){ 1 });
		x = ir_reduce1(&r->b, op, x, in[1], 1, (int64_t[]){ 0 });
		if (p.count == count)
			return x;
		p = (struct part){ r, ARENA_NEW(r->a, ir_val, r->from->val.n), 1, p.count, count - p.count, 0, MOST };
		return ir_reduce1(&r->b, op, part_of(&p, ir_in(r->from, o, 0)), x, 1, (int64_t[]){ 0 });
	}
	/* the last reduced dimension goes first */
	int64_t last[1] = { rank - 1 }, left = count / MAX(wide, 1);
	if (n < 2 || left < BLOCKS || wide < 16)
		return 0;
	int64_t rest[IR_MAX_RANK];
	int c = 0;
	for (int i = 0; i < n; i++)
		if (dims[i] != last[0])
			rest[c++] = dims[i];
	ir_val y = ir_reduce1(&r->b, op, in[0], start, 1, last);
	return ir_reduce1(&r->b, op, y, in[1], c, rest);
}

/* --- few of many elements ------------------------------------------------------------------------ */

/* The elements of v that a slice takes, if they follow from scalars and their indices alone; else 0. */
static ir_val box_of(struct rewrite *r, ir_val v, const int64_t *start, const int64_t *size, const int64_t *step, int *left)
{
	struct ir_b *b = &r->b;
	const struct ir_op *o = ir_def(r->from, v);
	const struct ir_type_info *ti = ir_vtype(r->m, r->from, v);
	enum dtype dt = ti->dtype;
	int rank = ti->rank, n = 0;
	int64_t s[IR_MAX_RANK], z[IR_MAX_RANK], d[IR_MAX_RANK], at = 0, one = 1;
	if (rank == 0)
		return r->map[v];
	if (!o || o->nin > 3 || o->nout != 1 || --*left < 0)
		return 0;
	for (int k = 0; k < rank; k++) {
		at = at * ti->dim[k] + start[k];
		one *= size[k];
	}
	ir_type t = ir_tensor(r->m, dt, rank, size);
	const void *splat = ir_splat(r->m, r->from, v);
	if (splat) {
		char e[16];
		memcpy(e, splat, (size_t)dtype_info[dt].bytes);
		return ir_const(b, t, e, dtype_info[dt].bytes);
	}
	ti = o->nin ? ir_vtype(r->m, r->from, ir_in(r->from, o, 0)) : ti;
	bool lists = o->kind == IR_broadcast || o->kind == IR_transpose || o->kind == IR_slice;
	const int64_t *a = lists ? ir_attr_nth(r->from, o, 0, &n) : NULL, *stride;    /* dims, perm or start */
	ir_val x;
	switch (o->kind) {
	case IR_iota: {
		int along = (int)ir_attr(r->from, o, AT_dim);
		if (dtype_info[dt].cls != DT_INT && dtype_info[dt].cls != DT_UINT)
			return 0;
		ir_val i = ir_iota(b, t, along), times = ir_const_i(b, t, step[along]);
		x = ir_bin(b, ELEM_multiply, i, times);
		return ir_bin(b, ELEM_add, x, ir_const_i(b, t, start[along]));
	}
	case IR_broadcast:
		for (int k = 0; k < n; k++) {
			bool same = ti->dim[k] != 1;
			s[k] = same ? start[a[k]] : 0;
			z[k] = same ? size[a[k]] : 1;
			d[k] = same ? step[a[k]] : 1;
		}
		x = box_of(r, ir_in(r->from, o, 0), s, z, d, left);
		return x ? ir_broadcast(b, x, t, a) : 0;
	case IR_transpose:
		for (int k = 0; k < n; k++) {
			s[a[k]] = start[k];
			z[a[k]] = size[k];
			d[a[k]] = step[k];
		}
		x = box_of(r, ir_in(r->from, o, 0), s, z, d, left);
		return x ? ir_transpose(b, x, a) : 0;
	case IR_slice:
		stride = ir_attrs(r->from, o, AT_stride, &n);
		for (int k = 0; k < rank; k++) {
			s[k] = a[k] + start[k] * stride[k];
			d[k] = step[k] * stride[k];
		}
		return box_of(r, ir_in(r->from, o, 0), s, size, d, left);
	case IR_reshape:
		if (one != 1)
			return 0;
		for (int k = ti->rank; k-- > 0; at /= ti->dim[k]) {
			s[k] = at % ti->dim[k];
			z[k] = d[k] = 1;
		}
		x = box_of(r, ir_in(r->from, o, 0), s, z, d, left);
		return x ? ir_reshape(b, x, rank, size) : 0;
	default: {
		ir_val in[3];
		if (!ir_is_elem(o->kind))
			return 0;
		for (uint32_t k = 0; k < o->nin; k++)
			if (!(in[k] = box_of(r, ir_in(r->from, o, k), start, size, step, left)))
				return 0;
		return ir_emit_raw(b, (enum ir_kind)o->kind, o->nin, in, 1, &t, r->from->attr.p + o->attr, ir_attr_words(r->from, o));
	}
	}
}

/* A few elements of what is computed from nothing that is read: they are computed alone. */
static ir_val few_of(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	enum { MANY = 1 << 20, TIMES = 64, MOST = 64 };
	if (o->kind != IR_slice || ir_vtype(r->m, r->from, ir_in(r->from, o, 0))->count < MAX(MANY, TIMES * ir_vtype(r->m, r->from, o->out)->count))
		return 0;
	int n, left = MOST;
	int64_t size[IR_MAX_RANK];
	const struct ir_type_info *t = ir_vtype(r->m, r->from, o->out);
	if (!t->count)
		return 0;
	memcpy(size, t->dim, sizeof *size * (size_t)t->rank);
	return box_of(r, ir_in(r->from, o, 0), ir_attrs(r->from, o, AT_start, &n), size, ir_attrs(r->from, o, AT_stride, &n), &left);
}

/* --- the place of the greatest element --------------------------------------------------------- */

static const struct ir_op *made_by(const struct ir_fn *g, ir_val v, enum ir_kind k, ir_val a, ir_val b)
{
	const struct ir_op *o = ir_def(g, v);
	return o && o->kind == k && (!a || ir_in(g, o, 0) == a) && (!b || ir_in(g, o, 1) == b) ? o : NULL;
}

/* The function takes, of two elements and their indices, the greater element (or the smaller one), NaN before all if they are floats, of equal
 * ones that with the lower index; its first result is that element, if it shall be: which is compared first? */
static bool finds_place(const struct ir_fn *g, bool floats, bool element, enum redop *op)
{
	const struct ir_op *s = g->nparam == 4 ? ir_def(g, g->result.p[1]) : NULL, *first, *tie, *before, *e;
	if (!s || s->kind != IR_select || ir_in(g, s, 1) != 2 || ir_in(g, s, 2) != 4 || !(s = made_by(g, ir_in(g, s, 0), IR_or, 0, 0)))
		return false;
	ir_val greater = ir_in(g, s, 0);
	if (element && (!(e = made_by(g, g->result.p[0], IR_select, greater, 1)) || ir_in(g, e, 2) != 3))
		return false;
	if (floats) {
		if (!(first = made_by(g, greater, IR_or, 0, 0)) || !made_by(g, ir_in(g, first, 1), IR_compare_ne, 1, 1))
			return false;
		greater = ir_in(g, first, 0);
	}
	before = ir_def(g, greater);
	*op = before && before->kind == IR_compare_gt ? RED_max : RED_min;
	if (!made_by(g, greater, *op == RED_max ? IR_compare_gt : IR_compare_lt, 1, 3))
		return false;
	tie = made_by(g, ir_in(g, s, 1), IR_and, 0, 0);
	return tie && made_by(g, ir_in(g, tie, 0), IR_compare_eq, 1, 3) && made_by(g, ir_in(g, tie, 1), IR_compare_lt, 2, 4);
}

/* The greatest number of a constant of whole numbers, -1 if it is none or some are negative. */
static int64_t greatest(const struct ir_module *m, const struct ir_fn *fn, ir_val v)
{
	const struct ir_op *o = ir_def(fn, v);
	const struct ir_type_info *t = ir_vtype(m, fn, v);
	int64_t most = -1, x;
	size_t n;
	if (ir_const_int(m, fn, v, &x))
		return x;
	if (!o || o->kind != IR_constant || t->dtype != DT_i32)
		return -1;
	const int32_t *p = ir_blob_data(m, (ir_blob)ir_attr(fn, o, AT_data), &n);
	for (size_t i = 0; i < n / sizeof *p; i++) {
		if (p[i] < 0)
			return -1;
		most = MAX(most, p[i]);
	}
	return most;
}

/* Whole numbers that are nowhere negative, at most *most, and do not fall along dimension d (-1: which is none). */
static bool rises(const struct ir_module *m, const struct ir_fn *fn, ir_val v, int d, int64_t *most, int depth)
{
	const struct ir_op *o = ir_def(fn, v);
	const struct ir_type_info *t = ir_vtype(m, fn, v);
	bool is_int = dtype_info[t->dtype].cls == DT_INT, yes = false;
	if ((!is_int && dtype_info[t->dtype].cls != DT_UINT) || depth > 8)
		return false;
	int64_t room = (int64_t)(UINT64_MAX >> (65 - dtype_info[t->dtype].bits)), more = 0;     /* u8, too, up to 127 */
	if ((*most = greatest(m, fn, v)) >= 0)
		return d < 0 || ir_splat(m, fn, v);
	if (!o)
		return false;
	const struct ir_type_info *x = o->nin ? ir_vtype(m, fn, ir_in(fn, o, 0)) : NULL;
	int n, k = 0;
	switch (o->kind) {
	case IR_iota:
		*most = t->dim[ir_attr(fn, o, AT_dim)] - 1;
		yes = true;
		break;
	case IR_broadcast: {
		const int64_t *dims = ir_attrs(fn, o, AT_dims, &n);
		while (k < n && (d < 0 || dims[k] != d || x->dim[k] == 1))
			k++;
		yes = rises(m, fn, ir_in(fn, o, 0), k < n ? k : -1, most, depth + 1);
		break;
	}
	case IR_reshape: case IR_dynamic_slice:
		yes = d < 0 && rises(m, fn, ir_in(fn, o, 0), -1, most, depth + 1);
		break;
	case IR_convert:
		yes = rises(m, fn, ir_in(fn, o, 0), d, most, depth + 1);
		break;
	case IR_add:
		yes = rises(m, fn, ir_in(fn, o, 0), d, most, depth + 1) && rises(m, fn, ir_in(fn, o, 1), d, &more, depth + 1) && *most <= room - more;
		*most += more;
		break;
	default:
		break;
	}
	return yes && *most <= room;
}

/* x is the extreme m, or NaN. */
static ir_val is_extreme(struct ir_b *b, ir_val x, ir_val m)
{
	ir_val here = ir_bin(b, ELEM_compare_eq, x, m);
	if (dtype_info[ir_vtype(b->m, b->fn, x)->dtype].cls == DT_FLOAT)
		here = ir_bin(b, ELEM_or, here, ir_bin(b, ELEM_compare_ne, x, x));
	return here;
}

/* An extreme and its index, the least one where an element equals the extreme: both reductions compile, with what their operands are computed
 * from, and no list of indices is made. */
static ir_val split_place(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	enum redop op;
	struct ir_b *b = &r->b;
	if (o->kind != IR_reduce || o->nout != 2 || ir_attr(r->from, o, AT_redop) != RED_fn)
		return 0;
	enum dtype dt = ir_vtype(r->m, b->fn, in[0])->dtype, it = ir_vtype(r->m, b->fn, in[1])->dtype;
	enum dtype_class c = dtype_info[dt].cls, ic = dtype_info[it].cls;
	bool index = ic == DT_INT || ic == DT_UINT, real = c == DT_PRED || ((c == DT_INT || c == DT_UINT || c == DT_FLOAT) && dtype_info[dt].bits >= (c == DT_FLOAT ? 16 : 8));
	bool element = r->live[o->out] & 1;
	if (!index || !real || !finds_place(ir_fn_of(r->m, (ir_fnid)ir_attr(r->from, o, AT_fn)), c == DT_FLOAT, element, &op))
		return 0;
	/* of more than one NaN the first is meant, whatever its index: it has the lowest one */
	int n, nkept = 0, rank = ir_vtype(r->m, b->fn, in[0])->rank;
	int64_t dims[IR_MAX_RANK], kept[IR_MAX_RANK], most;
	const int64_t *d = ir_attrs(r->from, o, AT_dims, &n);
	if (c == DT_FLOAT && (n != 1 || !rises(r->m, r->from, ir_in(r->from, o, 1), (int)d[0], &most, 0)))
		return 0;
	memcpy(dims, d, sizeof *d * (size_t)n);
	for (int k = 0; k < rank; k++)
		if (!in_list(dims, n, k))
			kept[nkept++] = k;
	ir_type places = r->from->val.p[ir_in(r->from, o, 1)].type, place = r->from->val.p[o->out + 1].type;
	enum dtype as = c == DT_PRED ? DT_u8 : dt;
	ir_val x = ir_convert(b, in[0], as), start = ir_convert(b, in[2], as);
	ir_val m = ir_reduce1(b, op, x, start, n, dims);
	ir_val here = is_extreme(b, x, ir_broadcast(b, m, b->fn->val.p[x].type, kept));
	ir_val first = ir_reduce1(b, RED_min, ir_select(b, here, in[1], neutral(b, RED_min, places)), neutral(b, RED_min, ir_scalar(r->m, it)), n, dims);
	ir_val begin = ir_select(b, is_extreme(b, ir_splat_of(b, start, b->fn->val.p[m].type), m), ir_splat_of(b, in[3], place), neutral(b, RED_min, place));
	r->map[o->out + 1] = ir_bin(b, ELEM_minimum, first, begin);
	if (element)
		r->map[o->out] = ir_convert(b, m, dt);
	return REWRITE_MAPPED;
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

static ir_val one_kernel(void *user, struct ir_b *b, int k, const ir_val *in)
{
	const struct fuse *f = user;
	const struct outline *x = &f->made[k];
	ir_type *t = ARENA_NEW(f->a, ir_type, x->out.n + 1);
	int64_t id = x->fn->id;
	for (size_t i = 0; i < x->out.n; i++)
		t[i] = f->fn->val.p[x->out.p[i]].type;
	return ir_emit_raw(b, IR_fused, (uint32_t)x->in.n, in, (uint32_t)x->out.n, t, &id, 1);
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
	if (pass_has(m, IR_slice))
		pass_rewrite(m, few_of, NULL, NULL);
	if (pass_has(m, IR_reduce)) {
		pass_rewrite(m, split_place, NULL, NULL);
		pass_rewrite(m, split_reduce, NULL, NULL);
	}
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
