/* In one step: each device takes the boxes that it lacks from where they lie. */
#include "impl.h"

int64_t part_worth(const struct part *p) { return p->least ? p->least : 64 << 10; }

/* Is it one all_gather, of what is least significant in one dimension, or does nothing move? */
static bool gathers_one(struct part *p, ir_shard from, ir_shard to, int rank)
{
	int n = 0;
	for (int d = 0; d < rank; d++) {
		struct axes x = part_axes(p, from, d), y = part_axes(p, to, d), c = axes_common(&p->a, x, y);
		if (axes_rest(&p->a, y, c).n)
			return false;
		n += axes_rest(&p->a, x, c).n > 0;
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
	if (!p->plan->host || (used.n && !part_same_order(p->m, mesh, p->apart_of)))
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

ir_val part_in_boxes(struct part *p, struct ir_b *b, ir_val v, ir_shard from, ir_shard to, int rank)
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
		ir_shard h = part_finer(p, ir_shard_add(p->m, &(struct ir_shard_info){ .mesh = mesh, .rank = rank, .dim = cut }), rank, e, l);
		if (boxes_of(p, t, from, dim, 1, &whole, dim, h, &y) && y.far < x.far)
			r = part_gather(p, b, put_together(p, b, v, &y), mesh, l, e);
	}
	if (fits && !r)
		r = put_together(p, b, v, &x);
	arr_free(&x.w);
	arr_free(&y.w);
	return r;
}
