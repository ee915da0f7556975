/* A value from one sharding to another, with what travels kept small.
 *
 * What is still to be summed is summed.  Where dimensions stay as fine as they are, each device gets another's part.  What is long goes in one
 * step, each device taking the boxes that it lacks from where they lie, unless that is one all_gather.  Else, between shardings
 * of one mesh, in this order: dimensions are cut further by axes that cut nothing so far; axes that go from one dimension to another go by an
 * all_to_all; parts change places so that what has to be gathered is least significant in its dimension; that is gathered.  Between meshes,
 * and where dimensions are too small for this, those that differ are gathered and cut again. */
#include "impl.h"

#include "../eval/eval.h"
#include "../plan/plan.h"

#include <stdlib.h>

ir_type part_type(struct part *p, ir_type t, ir_shard h, enum dtype dt)
{
	const struct ir_type_info *i = ir_type_of(p->m, t);
	int64_t dim[IR_MAX_RANK];
	for (int d = 0; d < i->rank; d++)
		dim[d] = i->dim[d] / ir_shard_parts(p->m, h, d);
	return ir_tensor(p->m, dt == DT_token ? i->dtype : dt, i->rank, dim);
}

double part_local(struct part *p, ir_type t, ir_shard h)
{
	const struct ir_type_info *i = ir_type_of(p->m, t);
	double n = (double)i->bytes;
	if (part_wide(p, i->dtype, h) != i->dtype)
		n *= 32.0 / dtype_info[i->dtype].bits;
	for (int d = 0; d < i->rank; d++)
		n /= (double)ir_shard_parts(p->m, h, d);
	return n;
}

ir_shard part_sum(struct part *p, ir_shard h)
{
	if (!h || !p->m->shard.p[h].npart)
		return 0;
	struct ir_dim_shard d = { .naxis = p->m->shard.p[h].npart, .axis = p->m->shard.p[h].part };
	struct ir_shard_info n = { .mesh = p->m->shard.p[h].mesh, .rank = 1, .dim = &d };
	return ir_shard_add(p->m, &n);
}

ir_shard part_summed(struct part *p, ir_shard h)
{
	if (!h || !p->m->shard.p[h].npart)
		return h;
	struct ir_shard_info n = p->m->shard.p[h];
	n.npart = 0;
	h = ir_shard_add(p->m, &n);
	return ir_shard_replicated(p->m, h) ? 0 : h;
}

bool part_equal(struct part *p, ir_shard a, ir_shard b, int rank)
{
	if (a == b)
		return true;
	int64_t n[IR_MAX_RANK], sa[IR_MAX_RANK], sb[IR_MAX_RANK], size[IR_MAX_RANK];
	if (part_sum(p, a) != part_sum(p, b))
		return false;
	for (int d = 0; d < rank; d++) {
		n[d] = ir_shard_parts(p->m, a, d);
		if (n[d] != ir_shard_parts(p->m, b, d))
			return false;
	}
	for (int dev = 0; dev < p->ndev; dev++) {
		spmd_shard_box(p->m, a, dev, rank, n, sa, size);
		spmd_shard_box(p->m, b, dev, rank, n, sb, size);
		if (rank && memcmp(sa, sb, sizeof *sa * (size_t)rank))
			return false;
	}
	return true;
}

struct axes part_axes(struct part *p, ir_shard h, int d)
{
	const struct ir_shard_info *i = &p->m->shard.p[h];
	return h && d < i->rank ? (struct axes){ i->dim[d].naxis, i->dim[d].axis } : (struct axes){0};
}

ir_shard part_with_sum(struct part *p, ir_shard h, uint32_t mesh, struct axes l, int rank)
{
	struct ir_shard_info n = { .mesh = mesh, .rank = rank };
	if (h)
		n = p->m->shard.p[h];
	else
		n.dim = ARENA_NEW(&p->a, struct ir_dim_shard, rank + 1);
	n.npart = l.n;
	n.part = (struct ir_axis_ref *)l.p;
	n.part_op = RED_add;
	return ir_shard_add(p->m, &n);
}

ir_shard part_shifted(struct part *p, ir_shard h, int rank, int by)
{
	if (!h)
		return 0;
	struct ir_shard_info n = p->m->shard.p[h];
	n.rank = rank;
	n.dim = ARENA_NEW(&p->a, struct ir_dim_shard, rank + 1);
	for (int d = 0; d < rank; d++)
		if (d + by >= 0)
			n.dim[d] = p->m->shard.p[h].dim[d + by];
	h = ir_shard_add(p->m, &n);
	return ir_shard_replicated(p->m, h) ? 0 : h;
}

ir_shard part_shard(struct part *p, const struct ir_axes *x, int tensor, uint32_t mesh, const struct axes *f)
{
	struct ir_shard_info n = { .mesh = mesh, .rank = x->rank[tensor] };
	n.dim = ARENA_NEW(&p->a, struct ir_dim_shard, n.rank + 1);
	for (int d = 0; d < n.rank; d++) {
		struct axes l = {0};
		for (int k = 0; k < x->dim[tensor][d].n; k++)
			l = axes_join(&p->a, l, f[x->dim[tensor][d].factor[k]]);
		n.dim[d].naxis = l.n;
		n.dim[d].axis = (struct ir_axis_ref *)l.p;
	}
	ir_shard h = ir_shard_add(p->m, &n);
	return ir_shard_replicated(p->m, h) ? 0 : h;
}

/* --- small pieces of code ------------------------------------------------------------------ */

ir_val part_by_device(struct part *p, struct ir_b *b, const int32_t *table)
{
	int64_t n = p->ndev, one = 1, w[2] = { 1, 1 };
	ir_val t = ir_const(b, ir_tensor(p->m, DT_i32, 1, &n), table, sizeof *table * (size_t)n);
	ir_type u = ir_scalar(p->m, DT_u32);
	ir_val id = ir_emit_raw(b, IR_partition_id, 0, NULL, 1, &u, NULL, 0);
	ir_val in[2] = { t, ir_convert(b, id, DT_i32) };
	ir_val r = ir_emit(b, IR_dynamic_slice, 2, in, ir_tensor(p->m, DT_i32, 1, &one), w, 2);
	return ir_reshape(b, r, 0, NULL);
}

ir_val part_offset(struct part *p, struct ir_b *b, uint32_t mesh, struct axes l, int64_t size)
{
	int32_t *table = ARENA_NEW(&p->a, int32_t, p->ndev);
	for (int d = 0; d < p->ndev; d++)
		table[d] = (int32_t)(mesh_index(&p->m->mesh.p[mesh], d, l) * size);
	return part_by_device(p, b, table);
}

ir_val part_first(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, ir_val other)
{
	ir_type vt = b->fn->val.p[v].type;
	const struct ir_type_info *t = ir_type_of(p->m, vt);
	int rank = t->rank;
	int64_t dim[IR_MAX_RANK];
	if (rank)
		memcpy(dim, t->dim, sizeof *dim * (size_t)rank);
	ir_val block = part_offset(p, b, mesh, l, 1), zero = ir_const_i(b, ir_scalar(p->m, DT_i32), 0), mine = ir_bin(b, ELEM_compare_eq, block, zero);
	ir_val all = ir_splat_of(b, mine, ir_tensor(p->m, DT_pred, rank, dim));
	return ir_select(b, all, v, other);
}

ir_val part_neutral(struct part *p, struct ir_b *b, ir_type t, enum redop r)
{
	_Alignas(16) char none[16];
	enum dtype dt = ir_type_of(p->m, t)->dtype;
	kern_identity(r, dt, none);
	return ir_const(b, t, none, dtype_info[dt].bytes);
}

bool part_rounds(enum dtype dt, enum redop r)
{
	return dtype_info[dt].cls == DT_FLOAT && dtype_info[dt].bits < 32 && (r == RED_add || r == RED_mul);
}

enum dtype part_wide(struct part *p, enum dtype dt, ir_shard h) { return part_sum(p, h) && part_rounds(dt, RED_add) ? DT_f32 : dt; }

/* The groups, one after the other, of axes_size(l) devices each; *nrow: how many. */
static int64_t *groups_of(struct part *p, uint32_t mesh, struct axes l, int *nrow)
{
	const struct ir_mesh *m = &p->m->mesh.p[mesh];
	int n = p->ndev, cols = (int)axes_size(l), rows = 0;
	int64_t *id = ARENA_NEW(&p->a, int64_t, n), *row = ARENA_NEW(&p->a, int64_t, n);
	for (int64_t pos = 0; pos < n; pos++) {          /* the first of its group has coordinate 0 along l */
		int64_t first = pos, k = 0;
		for (int i = 0; i < l.n; i++) {
			int64_t stride = m->axis[l.p[i].axis].size / (l.p[i].pre * l.p[i].size), c = mesh_coordinate(m, pos, l.p[i]);
			for (int a = l.p[i].axis + 1; a < m->naxis; a++)
				stride *= m->axis[a].size;
			first -= c * stride;
			k = k * l.p[i].size + c;
		}
		if (first == pos)
			row[pos] = rows++;
		id[row[first] * cols + k] = m->id ? m->id[pos] : pos;
	}
	*nrow = rows;
	return id;
}

ir_group part_group(struct part *p, uint32_t mesh, struct axes l)
{
	int rows;
	int64_t *id = groups_of(p, mesh, l, &rows);
	return ir_group_add(p->m, rows, (int)axes_size(l), id);
}

struct plan_group part_spread(struct part *p, uint32_t mesh, struct axes l)
{
	int n = (int)axes_size(l), rows;
	if (!p->plan->host || n < 2)
		return (struct plan_group){ n, 1, n, 0 };
	int64_t *key = ARENA_NEW(&p->a, int64_t, 3 * l.n + 1);
	key[0] = mesh;
	for (int i = 0; i < l.n; i++)
		memcpy(&key[3 * i + 1], (int64_t[]){ l.p[i].axis, l.p[i].pre, l.p[i].size }, 3 * sizeof *key);
	uint64_t *known = map_put(&p->spread, key, sizeof *key * (size_t)(3 * l.n + 1));
	if (!*known) {
		const int64_t *id = groups_of(p, mesh, l, &rows);
		struct plan_group most = plan_groups_of(p->plan, rows, n, id);
		*known = (uint64_t)(uintptr_t)arena_copy(&p->a, &most, sizeof most);
	}
	return *(const struct plan_group *)(uintptr_t)*known;
}

ir_val part_combine(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, enum redop r, enum dtype dt)
{
	int64_t w[3] = { part_group(p, mesh, l), r, 0 };
	if (part_rounds(dt, r))
		v = ir_convert(b, v, DT_f32);
	ir_type t = b->fn->val.p[v].type;
	return ir_convert(b, ir_emit_raw(b, IR_all_reduce, 1, &v, 1, &t, w, 3), dt);
}

/* v with dimension d times num / den. */
static ir_type resized(struct part *p, struct ir_b *b, ir_val v, int d, int64_t num, int64_t den, int e)
{
	const struct ir_type_info *t = ir_vtype(p->m, b->fn, v);
	int64_t dim[IR_MAX_RANK];
	memcpy(dim, t->dim, sizeof *dim * t->rank);
	dim[d] = dim[d] * num / den;
	if (e >= 0)
		dim[e] = dim[e] * den / num;
	return ir_tensor(p->m, t->dtype, t->rank, dim);
}

static ir_val gather(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, int d)
{
	int64_t w[2] = { d, part_group(p, mesh, l) };
	ir_type t = resized(p, b, v, d, axes_size(l), 1, -1);
	return ir_emit_raw(b, IR_all_gather, 1, &v, 1, &t, w, 2);
}

static ir_val exchange(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, int from, int to)
{
	int64_t w[3] = { to, from, part_group(p, mesh, l) };
	ir_type t = resized(p, b, v, from, axes_size(l), 1, to);
	return ir_emit_raw(b, IR_all_to_all, 1, &v, 1, &t, w, 3);
}

static ir_val cut(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, int d)
{
	ir_type t = resized(p, b, v, d, 1, axes_size(l), -1);
	ir_val in[IR_MAX_RANK + 1] = { v }, zero = ir_const_i(b, ir_scalar(p->m, DT_i32), 0);
	const struct ir_type_info *i = ir_type_of(p->m, t);     /* no type is added from here on */
	int rank = i->rank;
	int64_t w[IR_MAX_RANK + 1] = { rank };
	memcpy(w + 1, i->dim, sizeof *w * (size_t)rank);
	for (int k = 0; k < rank; k++)
		in[k + 1] = k == d ? part_offset(p, b, mesh, l, w[1 + d]) : zero;
	return ir_emit(b, IR_dynamic_slice, (uint32_t)rank + 1, in, t, w, (uint32_t)rank + 1);
}

/* Each device gets the part that it shall hold from one that holds it, itself if it can: dimensions are cut into equally many parts.  Along
 * the axes of a manual computation around, and of a sum that is still to be made, devices hold no copies of each other. */
static ir_val change_places(struct part *p, struct ir_b *b, ir_val v, ir_shard from, ir_shard to, int rank)
{
	int n = p->ndev;
	int64_t *at = ARENA_NEW(&p->a, int64_t, 2 * n * (rank + 1)), *w = ARENA_NEW(&p->a, int64_t, 2 * n + 1), count[IR_MAX_RANK], size[IR_MAX_RANK];
	bool *gave = ARENA_NEW(&p->a, bool, n), *has = ARENA_NEW(&p->a, bool, n);
	int64_t *own = ARENA_NEW(&p->a, int64_t, n);
	for (int dev = 0; dev < n && p->apart.n; dev++)
		own[dev] = mesh_index(&p->m->mesh.p[p->apart_of], dev, p->apart);
	for (int d = 0; d < rank; d++)
		count[d] = ir_shard_parts(p->m, from, d);
	for (int dev = 0; dev < n; dev++) {
		spmd_shard_box(p->m, from, dev, rank, count, at + dev * rank, size);
		spmd_shard_box(p->m, to, dev, rank, count, at + (n + dev) * rank, size);
	}
	w[0] = 2 * n;
	for (int turn = 0; turn < 2; turn++)
		for (int dev = 0; dev < n; dev++)
			for (int k = turn ? 0 : dev; k < (turn ? n : dev + 1) && !has[dev]; k++)
				if (!gave[k] && own[k] == own[dev] && !memcmp(at + k * rank, at + (n + dev) * rank, sizeof *at * (size_t)rank)) {
					w[1 + 2 * dev] = k;
					w[2 + 2 * dev] = dev;
					gave[k] = has[dev] = true;
				}
	ir_type t = b->fn->val.p[v].type;
	return ir_emit_raw(b, IR_collective_permute, 1, &v, 1, &t, w, (uint32_t)(2 * n + 1));
}

/* --- the way -------------------------------------------------------------------------------- */

/* What two lists have in common from the major end; parts of axes at the border are split so that they have the most. */
static struct axes common(struct part *p, struct axes x, struct axes y)
{
	struct ir_axis_ref *q = ARENA_NEW(&p->a, struct ir_axis_ref, MIN(x.n, y.n) + 1);
	int n = 0;
	while (n < x.n && n < y.n && ref_equal(x.p[n], y.p[n])) {
		q[n] = x.p[n];
		n++;
	}
	if (n < x.n && n < y.n && (ref_begins(x.p[n], y.p[n]) || ref_begins(y.p[n], x.p[n]))) {
		q[n] = ref_begins(x.p[n], y.p[n]) ? x.p[n] : y.p[n];
		n++;
	}
	return (struct axes){ n, q };
}

/* x behind its beginning h. */
static struct axes rest(struct part *p, struct axes x, struct axes h)
{
	struct ir_axis_ref *q = ARENA_NEW(&p->a, struct ir_axis_ref, x.n + 1);
	int n = 0;
	for (int i = 0; i < x.n; i++) {
		if (i < h.n && ref_equal(x.p[i], h.p[i]))
			continue;
		q[n] = x.p[i];
		if (i < h.n) {                               /* the beginning has a major part of it */
			q[n].pre *= h.p[i].size;
			q[n].size /= h.p[i].size;
		}
		n++;
	}
	return (struct axes){ n, q };
}

/* Dimensions that differ, gathered up to where they do, and cut. */
static ir_val gather_and_cut(struct part *p, struct ir_b *b, ir_val v, ir_shard from, ir_shard to, uint32_t mesh, int rank)
{
	struct axes more[IR_MAX_RANK];
	for (int d = 0; d < rank; d++) {
		struct axes x = part_axes(p, from, d), y = part_axes(p, to, d), c = common(p, x, y), less = rest(p, x, c);
		more[d] = rest(p, y, c);
		if (less.n)
			v = gather(p, b, v, mesh, less, d);
	}
	for (int d = 0; d < rank; d++)
		if (more[d].n)
			v = cut(p, b, v, mesh, more[d], d);
	return v;
}

/* Parts of axes that are cut no further: of prime size.  A state says by which of them each dimension is cut. */
enum { MOST_PARTS = 64 };
struct dim_state { int n; uint8_t part[MOST_PARTS]; };
struct plan { struct part *p; struct ir_b *b; uint32_t mesh; int rank, n; struct ir_axis_ref part[MOST_PARTS]; int64_t dim[IR_MAX_RANK]; ir_val v; };

static int order(const void *x, const void *y)
{
	int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
	return (a > b) - (a < b);
}

/* Cut all axes where from or to cut one of them, and then to primes.  False: the cuts do not lie one within another. */
static bool primes(struct plan *q, ir_shard from, ir_shard to)
{
	const struct ir_mesh *m = &q->p->m->mesh.p[q->mesh];
	for (int a = 0; a < m->naxis; a++) {
		int64_t at[4 * MOST_PARTS];
		int n = 0;
		at[n++] = 1;
		at[n++] = m->axis[a].size;
		for (int k = 0; k < 2 * q->rank; k++) {
			struct axes l = part_axes(q->p, k % 2 ? from : to, k / 2);
			for (int i = 0; i < l.n; i++)
				if (l.p[i].axis == a && n + 2 <= (int)NELEM(at)) {
					at[n++] = l.p[i].pre;
					at[n++] = l.p[i].pre * l.p[i].size;
				}
		}
		qsort(at, (size_t)n, sizeof *at, order);
		for (int i = 1; i < n; i++) {
			int64_t left = at[i] / at[i - 1], pre = at[i - 1];
			if (at[i] % at[i - 1])
				return false;
			for (int64_t f = 2; left > 1; f++)
				for (; left % f == 0; left /= f, pre *= f) {
					if (q->n == MOST_PARTS)
						return false;
					q->part[q->n++] = (struct ir_axis_ref){ (uint16_t)a, pre, f };
				}
		}
	}
	return true;
}

static void state_of(const struct plan *q, ir_shard h, struct dim_state *s)
{
	for (int d = 0; d < q->rank; d++) {
		struct axes l = part_axes(q->p, h, d);
		s[d].n = 0;
		for (int i = 0; i < l.n; i++)
			for (int k = 0; k < q->n; k++)        /* parts of an axis are in order */
				if (q->part[k].axis == l.p[i].axis && q->part[k].pre >= l.p[i].pre && q->part[k].pre < l.p[i].pre * l.p[i].size)
					s[d].part[s[d].n++] = (uint8_t)k;
	}
}

/* Those from the first on, as a list. */
static struct axes listed(const struct plan *q, const struct dim_state *s, int first)
{
	struct axes l = {0};
	for (int i = first; i < s->n; i++) {
		struct ir_axis_ref *r = arena_copy(&q->p->a, &q->part[s->part[i]], sizeof *r);
		l = axes_join(&q->p->a, l, (struct axes){ 1, r });
	}
	return l;
}

static int64_t parts_of(const struct plan *q, const struct dim_state *s)
{
	int64_t n = 1;
	for (int i = 0; i < s->n; i++)
		n *= q->part[s->part[i]].size;
	return n;
}

static int dim_with(const struct plan *q, const struct dim_state *s, int part)
{
	for (int d = 0; d < q->rank; d++)
		for (int i = 0; i < s[d].n; i++)
			if (s[d].part[i] == part)
				return d;
	return -1;
}

/* How many more parts of prime size x has than y. */
static int surplus(const struct plan *q, const struct dim_state *x, const struct dim_state *y, int64_t size)
{
	int n = 0;
	for (int i = 0; i < x->n; i++)
		n += q->part[x->part[i]].size == size;
	for (int i = 0; i < y->n; i++)
		n -= q->part[y->part[i]].size == size;
	return n;
}

static ir_shard shard_of(const struct plan *q, const struct dim_state *s)
{
	struct ir_dim_shard dim[IR_MAX_RANK] = {{0}};
	for (int d = 0; d < q->rank; d++) {
		struct axes l = listed(q, &s[d], 0);
		dim[d] = (struct ir_dim_shard){ .naxis = l.n, .axis = (struct ir_axis_ref *)l.p };
	}
	return ir_shard_add(q->p->m, &(struct ir_shard_info){ .mesh = q->mesh, .rank = q->rank, .dim = dim });
}

/* The last n parts of dimension d go to dimension e. */
static void send(struct plan *q, struct dim_state *s, int n, int d, int e)
{
	int first = s[d].n - n;
	q->v = exchange(q->p, q->b, q->v, q->mesh, listed(q, &s[d], first), d, e);
	for (int i = 0; i < n; i++)
		s[e].part[s[e].n++] = s[d].part[first + i];
	s[d].n = first;
}

/* One all_to_all that brings s nearer to goal: the longest run of parts that are too many in one dimension and too few in another; of equal
 * ones what comes to where it belongs.  False: there is none. */
static bool exchanged(struct plan *q, struct dim_state *s, const struct dim_state *goal)
{
	int best = 0, from = 0, to = 0;
	for (int d = 0; d < q->rank; d++)
		for (int e = 0; e < q->rank; e++) {
			struct dim_state x = s[d], y = s[e];
			int n = 0, right = 0;
			if (d == e)
				continue;
			while (x.n) {
				int64_t size = q->part[x.part[x.n - 1]].size;
				if (surplus(q, &x, &goal[d], size) <= 0 || surplus(q, &goal[e], &y, size) <= 0)
					break;
				y.part[y.n++] = x.part[--x.n];
				n++;
			}
			for (int k = n; k > 0; k--) {         /* as many as land in their places, else all */
				bool placed = s[e].n + k <= goal[e].n && !memcmp(&s[d].part[s[d].n - k], &goal[e].part[s[e].n], (size_t)k);
				if (placed) {
					n = k;
					right = 1;
					break;
				}
			}
			if (n && n + right * MOST_PARTS > best) {
				best = n + right * MOST_PARTS;
				from = d;
				to = e;
			}
		}
	if (best)
		send(q, s, best > MOST_PARTS ? best - MOST_PARTS : best, from, to);
	return best > 0;
}

/* The parts of each dimension that are too many, last. */
static void too_many_last(const struct plan *q, struct dim_state *s, const struct dim_state *goal)
{
	for (int d = 0; d < q->rank; d++) {
		struct dim_state keep = { 0 }, go = { 0 };
		for (int i = 0; i < s[d].n; i++) {
			int k = s[d].part[i];
			bool leave = surplus(q, &s[d], &goal[d], q->part[k].size) > surplus(q, &go, &(struct dim_state){ 0 }, q->part[k].size) && dim_with(q, goal, k) != d;
			struct dim_state *x = leave ? &go : &keep;
			x->part[x->n++] = (uint8_t)k;
		}
		for (int i = keep.n; i-- > 0;) {             /* too few were elsewhere at home: the last ones go too */
			int64_t size = q->part[keep.part[i]].size;
			if (surplus(q, &keep, &goal[d], size) <= 0)
				continue;
			memmove(&go.part[1], go.part, (size_t)go.n++);
			go.part[0] = keep.part[i];
			memmove(&keep.part[i], &keep.part[i + 1], (size_t)(--keep.n - i));
		}
		memcpy(&keep.part[keep.n], go.part, (size_t)go.n);
		keep.n += go.n;
		s[d] = keep;
	}
}

static bool state_equal(const struct plan *q, const struct dim_state *x, const struct dim_state *y)
{
	bool same = true;
	for (int d = 0; d < q->rank; d++)
		same &= x[d].n == y[d].n && !memcmp(x[d].part, y[d].part, (size_t)x[d].n);
	return same;
}

/* Where s is brought to before it is gathered: want as far as its parts are in s, then, each in its dimension or in one that is divided by
 * it, what is to be gathered.  False: there is no such dimension. */
static bool goal_of(const struct plan *q, const struct dim_state *s, const struct dim_state *want, struct dim_state *goal)
{
	for (int d = 0; d < q->rank; d++) {
		goal[d].n = 0;
		while (goal[d].n < want[d].n && dim_with(q, s, want[d].part[goal[d].n]) >= 0) {
			goal[d].part[goal[d].n] = want[d].part[goal[d].n];
			goal[d].n++;
		}
	}
	for (int d = 0; d < q->rank; d++)
		for (int i = 0; i < s[d].n; i++) {
			int k = s[d].part[i];
			if (dim_with(q, goal, k) >= 0)
				continue;
			int e = d;
			for (int j = 0; j < q->rank && q->dim[e] % (parts_of(q, &goal[e]) * q->part[k].size); j++)
				e = (d + 1 + j) % q->rank;
			if (q->dim[e] % (parts_of(q, &goal[e]) * q->part[k].size))
				return false;
			goal[e].part[goal[e].n++] = (uint8_t)k;
		}
	return true;
}

static ir_val same_mesh(struct part *p, struct ir_b *b, ir_val v, ir_shard from, ir_shard to, uint32_t mesh, int rank)
{
	struct plan q = { .p = p, .b = b, .mesh = mesh, .rank = rank, .v = v };
	struct dim_state s[IR_MAX_RANK], want[IR_MAX_RANK], goal[IR_MAX_RANK], next[IR_MAX_RANK];
	if (!primes(&q, from, to))
		return gather_and_cut(p, b, v, from, to, mesh, rank);
	state_of(&q, from, s);
	state_of(&q, to, want);
	for (int d = 0; d < rank; d++)
		q.dim[d] = ir_vtype(p->m, b->fn, v)->dim[d] * ir_shard_parts(p->m, from, d);
	int had[IR_MAX_RANK];
	for (int d = 0; d < rank; d++)
		had[d] = s[d].n;
	for (int by = 0; by < rank; by++)            /* what cuts nothing so far, in its dimension or, if that is too small, in another one */
		for (int d = 0; d < rank; d++)
			for (int i = 0; i < want[d].n; i++) {
				int k = want[d].part[i], e = (d + by) % rank;
				if (dim_with(&q, s, k) < 0 && q.dim[e] % (parts_of(&q, &s[e]) * q.part[k].size) == 0)
					s[e].part[s[e].n++] = (uint8_t)k;
			}
	if (!goal_of(&q, s, want, goal))
		return gather_and_cut(p, b, v, from, to, mesh, rank);
	for (int d = 0; d < rank; d++)
		if (s[d].n > had[d])
			q.v = cut(p, b, q.v, mesh, listed(&q, &s[d], had[d]), d);
	for (bool placed = false;;) {
		bool even = true;
		for (int d = 0; d < rank; d++)
			even &= parts_of(&q, &s[d]) == parts_of(&q, &goal[d]);
		if (even)
			break;
		if (exchanged(&q, s, goal))
			continue;
		if (placed)                          /* cannot be: what is too many is last now */
			return gather_and_cut(p, b, q.v, shard_of(&q, s), to, mesh, rank);
		memcpy(next, s, sizeof *s * (size_t)rank);
		too_many_last(&q, next, goal);
		q.v = change_places(p, b, q.v, shard_of(&q, s), shard_of(&q, next), rank);
		memcpy(s, next, sizeof *s * (size_t)rank);
		placed = true;
	}
	if (!state_equal(&q, s, goal))
		q.v = change_places(p, b, q.v, shard_of(&q, s), shard_of(&q, goal), rank);
	return gather_and_cut(p, b, q.v, shard_of(&q, goal), to, mesh, rank);
}

/* --- in one step ------------------------------------------------------------------------------ */

/* Is it one all_gather, of what is least significant in one dimension, or does nothing move? */
static bool gathers_one(struct part *p, ir_shard from, ir_shard to, int rank)
{
	int n = 0;
	for (int d = 0; d < rank; d++) {
		struct axes x = part_axes(p, from, d), y = part_axes(p, to, d), c = common(p, x, y);
		if (rest(p, y, c).n)
			return false;
		n += rest(p, x, c).n > 0;
	}
	return n <= 1;
}

static int32_t root_of(int32_t *t, int32_t i)
{
	while (t[i] != i)
		i = t[i] = t[t[i]];
	return i;
}

/* Who exchanges boxes with whom, directly or through others: a row each. */
static ir_group linked(struct part *p, const int64_t *w, int64_t n, int row)
{
	int ndev = p->ndev, rows = 0, cols = 0;
	int32_t *t = ARENA_NEW(&p->a, int32_t, ndev), *at = ARENA_NEW(&p->a, int32_t, ndev), *count = ARENA_NEW(&p->a, int32_t, ndev);
	for (int d = 0; d < ndev; d++)
		t[d] = d;
	for (int64_t i = 0; i < n; i += row)
		t[root_of(t, (int32_t)w[i])] = root_of(t, (int32_t)w[i + 1]);
	for (int d = 0; d < ndev; d++) {
		int32_t r = root_of(t, d);
		at[r] = count[r] ? at[r] : rows++;
		count[r]++;
		cols = MAX(cols, count[r]);
	}
	int64_t *id = ARENA_NEW(&p->a, int64_t, rows * cols);
	for (int k = 0; k < rows * cols; k++)
		id[k] = -1;
	for (int d = ndev; d-- > 0;) {
		int32_t r = root_of(t, d);
		id[at[r] * cols + --count[r]] = d;
	}
	return ir_group_add(p->m, rows, cols, id);
}

/* Which of two devices that hold a box lends it to dev: it itself, else one of its host, else who has lent less, of two alike the first. */
static int nearer(const struct part *p, const int64_t *lent, int dev, int a, int b)
{
	const int32_t *host = p->plan->host;
	if (a == dev || b == dev)
		return dev;
	if (host && (host[a] == host[dev]) != (host[b] == host[dev]))
		return host[a] == host[dev] ? a : b;
	return lent[b] < lent[a] ? b : a;
}

int64_t part_worth(const struct part *p) { return p->least ? p->least : 64 << 10; }

static bool same_order(const struct ir_module *m, uint32_t x, uint32_t y)
{
	const struct ir_mesh *a = &m->mesh.p[x], *b = &m->mesh.p[y];
	bool same = x == y || (a->naxis == b->naxis && a->ndev == b->ndev && !a->id == !b->id);
	for (int i = 0; x != y && same && i < a->naxis; i++)
		same = a->axis[i].size == b->axis[i].size;
	return same && (x == y || !a->id || !memcmp(a->id, b->id, sizeof *a->id * (size_t)a->ndev));
}

/* h with dimension d cut by l as well. */
static ir_shard finer(struct part *p, ir_shard h, int rank, int d, struct axes l)
{
	struct ir_shard_info s = p->m->shard.p[h];
	struct ir_dim_shard *dim = ARENA_NEW(&p->a, struct ir_dim_shard, rank + 1);
	memcpy(dim, s.dim, sizeof *dim * (size_t)rank);
	struct axes all = axes_join(&p->a, (struct axes){ dim[d].naxis, dim[d].axis }, l);
	dim[d].naxis = all.n;
	dim[d].axis = (struct ir_axis_ref *)all.p;
	s.dim = dim;
	return ir_shard_add(p->m, &s);
}

/* The boxes that a result is put together from (ops.def); elements that a device gets from others, at most, and all get from other hosts. */
struct boxes { ARR(int64_t) w; int64_t most, far, out[IR_MAX_RANK]; };

/* False: a part does not divide, or there are too many boxes to be written into the program.  x->w is to be freed all the same. */
static bool boxes_of(struct part *p, const struct ir_type_info *t, ir_shard from, const int64_t *dim, int npiece, const struct piece *piece, const int64_t *of, ir_shard to, struct boxes *x)
{
	enum { DEVICES = 256, BOXES = 4096 };
	const int32_t *host = p->plan->host;
	int n = p->ndev, rank = t->rank, row = 2 + 3 * rank;
	int64_t size[IR_MAX_RANK];
	*x = (struct boxes){0};
	if (n > DEVICES)
		return false;
	for (int d = 0; d < rank; d++) {
		x->out[d] = of[d] / ir_shard_parts(p->m, to, d);
		if (of[d] % ir_shard_parts(p->m, to, d))
			return false;
	}
	int64_t *have = ARENA_NEW(&p->a, int64_t, n * (rank + 1)), *want = ARENA_NEW(&p->a, int64_t, n * (rank + 1)), *own = ARENA_NEW(&p->a, int64_t, n);
	int64_t *lent = ARENA_NEW(&p->a, int64_t, n), *in = arena_copy(&p->a, t->dim, sizeof *t->dim * (size_t)rank);
	bool fits = true;
	for (int dev = 0; dev < n; dev++) {
		own[dev] = p->apart.n ? mesh_index(&p->m->mesh.p[p->apart_of], dev, p->apart) : 0;
		spmd_shard_box(p->m, from, dev, rank, dim, have + dev * rank, size);
		spmd_shard_box(p->m, to, dev, rank, of, want + dev * rank, size);
	}
	for (int dev = 0; dev < n && fits; dev++) {
		int64_t lacks = 0;
		for (int i = 0; i < npiece * n && fits; i++) {
			const struct run *r = piece[i / n].run;
			int64_t lo[IR_MAX_RANK], hi[IR_MAX_RANK], count = 1;
			int k = i % n, by = k;
			bool first = own[k] == own[dev];
			for (int d = 0; d < rank; d++) {         /* in the result */
				int64_t at = have[k * rank + d] + r[d].first - r[d].from;
				lo[d] = MAX(MAX(at, r[d].first), want[dev * rank + d]);
				hi[d] = MIN(MIN(at + in[d], r[d].first + r[d].n), want[dev * rank + d] + x->out[d]);
				first &= lo[d] < hi[d];
				count *= hi[d] - lo[d];
			}
			for (int j = 0; j < n && first; j++) {           /* those that hold the same */
				if (own[j] != own[dev] || memcmp(have + j * rank, have + k * rank, sizeof *have * (size_t)rank))
					continue;
				first = j >= k;
				by = nearer(p, lent, dev, by, j);
			}
			if (!first)
				continue;
			fits = x->w.n / (size_t)row < BOXES;
			lent[by] += by != dev ? count : 0;
			lacks += by != dev ? count : 0;
			x->far += host && host[by] != host[dev] ? count : 0;
			arr_push(&x->w, dev);
			arr_push(&x->w, by);
			for (int d = 0; d < rank; d++)
				arr_push(&x->w, lo[d] - r[d].first + r[d].from - have[k * rank + d]);
			for (int d = 0; d < rank; d++)
				arr_push(&x->w, lo[d] - want[dev * rank + d]);
			for (int d = 0; d < rank; d++)
				arr_push(&x->w, hi[d] - lo[d]);
		}
		x->most = MAX(x->most, lacks);
	}
	return fits;
}

static ir_val put_together(struct part *p, struct ir_b *b, ir_val v, const struct boxes *x)
{
	const struct ir_type_info *t = ir_vtype(p->m, b->fn, v);
	int64_t *attr = ARENA_NEW(&p->a, int64_t, x->w.n + 2);
	attr[0] = (int64_t)x->w.n;
	memcpy(attr + 1, x->w.p, sizeof *x->w.p * x->w.n);
	attr[1 + x->w.n] = linked(p, x->w.p, (int64_t)x->w.n, 2 + 3 * t->rank);
	ir_type type = ir_tensor(p->m, t->dtype, t->rank, x->out);
	return ir_emit_raw(b, IR_redistribute, 1, &v, 1, &type, attr, (uint32_t)x->w.n + 2);
}

ir_val part_boxes(struct part *p, struct ir_b *b, ir_val v, ir_shard from, const int64_t *dim, int npiece, const struct piece *piece, const int64_t *of, ir_shard to, int64_t less)
{
	const struct ir_type_info *t = ir_vtype(p->m, b->fn, v);
	struct boxes x;
	bool some = boxes_of(p, t, from, dim, npiece, piece, of, to, &x) && x.most && x.most * dtype_info[t->dtype].bytes < less;
	ir_val r = some ? put_together(p, b, v, &x) : 0;
	arr_free(&x.w);
	return r;
}

/* The parts of axes along which devices of one host hold copies of what lies as h; no computation around is along them. */
static struct axes copies_of_host(struct part *p, ir_shard h, uint32_t mesh, int rank)
{
	const struct ir_mesh *m = &p->m->mesh.p[mesh];
	struct axes l = {0}, used = p->apart;
	if (!p->plan->host || (used.n && !same_order(p->m, mesh, p->apart_of)))
		return l;
	for (int d = 0; d < rank; d++)
		used = axes_join(&p->a, used, part_axes(p, h, d));
	for (int a = 0; a < m->naxis; a++)
		for (int64_t pre = 1, all = m->axis[a].size; pre < all; pre++)
			for (int64_t size = all / pre; size > 1; size--) {
				struct axes one = { 1, arena_copy(&p->a, &(struct ir_axis_ref){ (uint16_t)a, pre, size }, sizeof *one.p) }, with = axes_join(&p->a, l, one);
				bool fits = all % (pre * size) == 0;
				for (int i = 0; i < used.n && fits; i++)
					fits = !ir_axes_overlap(*one.p, used.p[i]);
				if (!fits || part_spread(p, mesh, with).hosts > 1)
					continue;
				l = with;
				used = axes_join(&p->a, used, one);
			}
	return l;
}

/* What is long enough goes in one step, where the steps below would write it several times, or in short rows.  Of what several devices of a host
 * want of others, each gets a part, which they gather.  0: it is not worth it, nothing moves, or there are too many boxes to be written into the
 * program. */
static ir_val redistributed(struct part *p, struct ir_b *b, ir_val v, ir_shard from, ir_shard to, int rank)
{
	const struct ir_type_info *t = ir_vtype(p->m, b->fn, v);
	const uint32_t mesh = p->m->shard.p[to ? to : from].mesh;
	int64_t dim[IR_MAX_RANK], bytes = dtype_info[t->dtype].bytes;
	if (gathers_one(p, from, to, rank))
		return 0;
	struct run *all = ARENA_NEW(&p->a, struct run, rank + 1);
	struct ir_dim_shard *cut = ARENA_NEW(&p->a, struct ir_dim_shard, rank + 1);
	for (int d = 0; d < rank; d++) {
		dim[d] = t->dim[d] * ir_shard_parts(p->m, from, d);
		bytes *= dim[d] / ir_shard_parts(p->m, to, d);
		all[d] = (struct run){ 0, dim[d], 1, 0, 1 };
		cut[d] = (struct ir_dim_shard){ .naxis = part_axes(p, to, d).n, .axis = (struct ir_axis_ref *)part_axes(p, to, d).p };
	}
	if (bytes < part_worth(p))
		return 0;
	const struct piece whole = { 0, all };
	struct boxes x, y = {0};
	ir_val r = 0;
	bool fits = boxes_of(p, t, from, dim, 1, &whole, dim, to, &x) && x.most;
	struct axes l = fits && x.far ? copies_of_host(p, to, mesh, rank) : (struct axes){0};
	int e = 0;
	while (e < rank && x.out[e] % axes_size(l))
		e++;
	if (l.n && e < rank) {
		ir_shard h = finer(p, ir_shard_add(p->m, &(struct ir_shard_info){ .mesh = mesh, .rank = rank, .dim = cut }), rank, e, l);
		if (boxes_of(p, t, from, dim, 1, &whole, dim, h, &y) && y.far < x.far)
			r = gather(p, b, put_together(p, b, v, &y), mesh, l, e);
	}
	if (fits && !r)
		r = put_together(p, b, v, &x);
	arr_free(&x.w);
	arr_free(&y.w);
	return r;
}

/* --- any two shardings -------------------------------------------------------------------------- */

/* v, cut along d by l, as parts of a sum over l: each device has its own block and zeros around it. */
static ir_val embed(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, int d)
{
	int64_t size = ir_vtype(p->m, b->fn, v)->dim[d];
	ir_type t = resized(p, b, v, d, axes_size(l), 1, -1);
	int rank = ir_type_of(p->m, t)->rank;
	ir_val in[IR_MAX_RANK + 2] = { ir_const_i(b, t, 0), v }, zero = ir_const_i(b, ir_scalar(p->m, DT_i32), 0);
	for (int k = 0; k < rank; k++)
		in[k + 2] = k == d ? part_offset(p, b, mesh, l, size) : zero;
	return ir_emit(b, IR_dynamic_update_slice, (uint32_t)rank + 2, in, t, NULL, 0);
}

static bool among(struct axes x, struct axes y)
{
	for (int i = 0; i < x.n; i++) {
		bool one = false;
		for (int k = 0; k < y.n; k++)
			one |= ref_equal(x.p[i], y.p[k]);
		if (!one)
			return false;
	}
	return true;
}

/* l without what of it is in gone. */
static struct axes but(struct part *p, struct axes l, struct axes gone)
{
	struct ir_axis_ref *q = ARENA_NEW(&p->a, struct ir_axis_ref, l.n + 1);
	int n = 0;
	for (int i = 0; i < l.n; i++)
		if (!among((struct axes){ 1, &l.p[i] }, gone))
			q[n++] = l.p[i];
	return (struct axes){ n, q };
}

/* To parts of a sum over `sum`: what is cut by axes of it becomes such parts where it is, without moving; *left: the others. */
static ir_val embedded(struct part *p, struct ir_b *b, ir_val v, ir_shard *from, ir_shard to, uint32_t mesh, struct axes sum, struct axes *left)
{
	int rank = ir_vtype(p->m, b->fn, v)->rank;
	*left = sum;
	for (int d = 0; d < rank && *from; d++) {
		struct axes x = part_axes(p, *from, d), l = rest(p, x, common(p, x, part_axes(p, to, d)));
		if (!l.n || !among(l, sum))
			continue;
		v = embed(p, b, v, mesh, l, d);
		*left = but(p, *left, l);
		struct ir_shard_info s = p->m->shard.p[*from];
		struct ir_dim_shard *dim = ARENA_NEW(&p->a, struct ir_dim_shard, rank);
		memcpy(dim, s.dim, sizeof *dim * (size_t)rank);
		dim[d].naxis = x.n - l.n;
		s.dim = dim;
		ir_shard h = ir_shard_add(p->m, &s);
		*from = ir_shard_replicated(p->m, h) ? 0 : h;
	}
	return v;
}

/* The axes of sum that dimension d of what lies as `from` is cut by while the sum is made, because `to` is. */
static struct axes scattered(struct part *p, ir_shard from, ir_shard to, int d, struct axes sum)
{
	struct axes x = part_axes(p, from, d), y = part_axes(p, to, d), c = common(p, x, y), more = rest(p, y, c);
	bool all = to && same_order(p->m, p->m->shard.p[from].mesh, p->m->shard.p[to].mesh) && !rest(p, x, c).n && more.n && among(more, sum);
	return all ? more : (struct axes){0};
}

static ir_val finish(struct part *p, struct ir_b *b, ir_val v, ir_shard *from, ir_shard to)
{
	const struct ir_type_info *t = ir_vtype(p->m, b->fn, v);
	int rank = t->rank;
	enum dtype dt = t->dtype;
	uint32_t mesh = p->m->shard.p[*from].mesh;
	struct axes sum = part_axes(p, part_sum(p, *from), 0);
	if (part_rounds(dt, RED_add))
		v = ir_convert(b, v, DT_f32);
	for (int d = 0; d < rank; d++) {
		struct axes more = scattered(p, *from, to, d, sum);
		if (!more.n)
			continue;
		int64_t w[4] = { d, part_group(p, mesh, more), RED_add, 0 };
		ir_type rt = resized(p, b, v, d, 1, axes_size(more), -1);
		v = ir_emit_raw(b, IR_reduce_scatter, 1, &v, 1, &rt, w, 4);
		*from = finer(p, *from, rank, d, more);
		sum = but(p, sum, more);
	}
	*from = part_summed(p, *from);
	return sum.n ? part_combine(p, b, v, mesh, sum, RED_add, dt) : ir_convert(b, v, dt);
}

ir_val part_finish(struct part *p, struct ir_b *b, ir_val v, ir_shard *from, ir_shard to)
{
	size_t first = b->fn->op.n;
	ir_shard had = *from;
	ir_val r = finish(p, b, v, from, to);
	if (p->rec)
		record_move(p, b, first, b->fn->val.p[v].type, had, *from);
	return r;
}

static bool zero(struct part *p, struct ir_b *b, ir_val v)
{
	static const char none[16];
	const void *one = ir_splat(p->m, b->fn, v);
	return one && !memcmp(one, none, dtype_info[ir_vtype(p->m, b->fn, v)->dtype].bytes);
}

static ir_val reshard(struct part *p, struct ir_b *b, ir_val v, ir_shard from, ir_shard to)
{
	int rank = ir_vtype(p->m, b->fn, v)->rank;
	if (part_equal(p, from, to, rank))
		return v;
	ir_shard have = part_sum(p, from), want = part_sum(p, to);
	const void *one = have || (want && !zero(p, b, v)) ? NULL : ir_splat(p->m, b->fn, v);
	if (one) {                               /* made where it is wanted; zero is a sum of zeros */
		const struct ir_type_info *t = ir_vtype(p->m, b->fn, v);
		enum dtype dt = t->dtype;
		int64_t dim[IR_MAX_RANK];
		for (int d = 0; d < rank; d++)
			dim[d] = t->dim[d] * ir_shard_parts(p->m, from, d) / ir_shard_parts(p->m, to, d);
		return ir_const(b, ir_tensor(p->m, dt, rank, dim), one, dtype_info[dt].bytes);
	}
	if (have && have != want) {
		v = part_finish(p, b, v, &from, to);
		have = 0;
	}
	const struct axes around = p->apart;
	const uint32_t around_of = p->apart_of;
	if (have) {                              /* it stays one */
		p->apart = axes_join(&p->a, around, part_axes(p, have, 0));
		p->apart_of = p->m->shard.p[from].mesh;
	}
	from = part_summed(p, from);
	to = part_summed(p, to);
	uint32_t mesh = p->m->shard.p[from ? from : to].mesh;
	struct axes sum = want && !have ? part_axes(p, want, 0) : (struct axes){0};
	if (sum.n && from && same_order(p->m, p->m->shard.p[from].mesh, p->m->shard.p[want].mesh))
		v = embedded(p, b, v, &from, to, p->m->shard.p[want].mesh, sum, &sum);
	bool as_fine = true;
	for (int d = 0; d < rank; d++)
		as_fine &= ir_shard_parts(p->m, from, d) == ir_shard_parts(p->m, to, d);
	if (!part_equal(p, from, to, rank)) {
		ir_val whole = as_fine ? 0 : redistributed(p, b, v, from, to, rank);
		if (whole)
			v = whole;
		else if (as_fine)
			v = change_places(p, b, v, from, to, rank);
		else if (!from || !to || same_order(p->m, p->m->shard.p[from].mesh, p->m->shard.p[to].mesh))
			v = same_mesh(p, b, v, from, to, mesh, rank);
		else {
			v = gather_and_cut(p, b, v, from, 0, mesh, rank);
			v = gather_and_cut(p, b, v, 0, to, p->m->shard.p[to].mesh, rank);
		}
	}
	p->apart = around;
	p->apart_of = around_of;
	/* a sum of which one device holds all, the others zero */
	return sum.n ? part_first(p, b, v, p->m->shard.p[want].mesh, sum, ir_const_i(b, b->fn->val.p[v].type, 0)) : v;
}

ir_val part_reshard(struct part *p, struct ir_b *b, ir_val v, ir_shard from, ir_shard to)
{
	size_t first = b->fn->op.n;
	ir_val r = reshard(p, b, v, from, to);
	if (p->rec)
		record_move(p, b, first, b->fn->val.p[v].type, from, to);
	return r;
}

ir_shard part_finished(struct part *p, ir_shard from, ir_shard to, int rank)
{
	struct axes sum = part_axes(p, part_sum(p, from), 0);
	for (int d = 0; d < rank && sum.n; d++) {
		struct axes more = scattered(p, from, to, d, sum);
		if (!more.n)
			continue;
		from = finer(p, from, rank, d, more);
		sum = but(p, sum, more);
	}
	return part_summed(p, from);
}

struct travel part_travel(struct part *p, ir_type type, ir_shard from, ir_shard to)
{
	const struct ir_type_info *t = ir_type_of(p->m, type);
	double all = (double)t->bytes;
	struct travel r = { 0, 0 };
	if (from == to)
		return r;
	if (part_sum(p, from) && part_sum(p, from) != part_sum(p, to)) {
		uint32_t mesh = p->m->shard.p[from].mesh;
		struct axes sum = part_axes(p, part_sum(p, from), 0);
		double here = part_rounds(t->dtype, RED_add) ? all * 32 / dtype_info[t->dtype].bits : all;
		for (int d = 0; d < t->rank; d++)
			here /= (double)ir_shard_parts(p->m, from, d);
		for (int d = 0; d < t->rank; d++) {
			struct axes more = scattered(p, from, to, d, sum);
			double n = (double)axes_size(more);
			if (!more.n)
				continue;
			r.bytes += here * (n - 1) / n;
			r.ns += plan_move_time(p->plan, COLL_reduce_scatter, part_spread(p, mesh, more), here * (n - 1) / n);
			here /= n;
			from = finer(p, from, t->rank, d, more);
			sum = but(p, sum, more);
		}
		double n = (double)axes_size(sum);
		r.bytes += 2 * here * (n - 1) / n;
		r.ns += plan_sum_time(p->plan, part_spread(p, mesh, sum), here);
	}
	double want = all, both = all;
	bool further = true, gathers = true;     /* axes that cut nothing so far: each device has its part; no dimension is cut anew */
	struct axes moved = {0};                 /* the axes along which something moves */
	for (int d = 0; d < t->rank; d++) {
		struct axes x = part_axes(p, from, d), y = part_axes(p, to, d);
		double a = (double)axes_size(x), c = (double)axes_size(y);
		want /= c;
		both /= a * c / (double)axes_size(common(p, x, y));
		further &= axes_begin(x, y);
		gathers &= axes_begin(y, x);
		moved = axes_join(&p->a, moved, rest(p, x, common(p, x, y)));
	}
	if (!further && want > both) {
		r.bytes += want - both;
		struct plan_group g = part_spread(p, p->m->shard.p[from].mesh, moved);
		int n = (int)(want / both + 0.5), linked = g.most * (1 + g.beside);      /* devices of a host */
		g.most = MIN(g.n == n ? g.most : (n + g.hosts - 1) / g.hosts, n);
		g.hosts = MIN(g.hosts, n);
		g.n = n;
		g.beside = MAX(linked / MAX(g.most, 1), 1) - 1;
		r.ns += plan_move_time(p->plan, gathers ? COLL_all_gather : COLL_all_to_all, g, want - both);
	}
	return r;
}
