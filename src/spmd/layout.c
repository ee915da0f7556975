/* How a value lies: what a device has of it, and other ways to lie made of one. */
#include "impl.h"

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

bool part_rounds(enum dtype dt, enum redop r)
{
	return dtype_info[dt].cls == DT_FLOAT && dtype_info[dt].bits < 32 && (r == RED_add || r == RED_mul);
}

enum dtype part_wide(struct part *p, enum dtype dt, ir_shard h) { return part_sum(p, h) && part_rounds(dt, RED_add) ? DT_f32 : dt; }

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

bool part_same_order(const struct ir_module *m, uint32_t x, uint32_t y)
{
	const struct ir_mesh *a = &m->mesh.p[x], *b = &m->mesh.p[y];
	bool same = x == y || (a->naxis == b->naxis && a->ndev == b->ndev && !a->id == !b->id);
	for (int i = 0; x != y && same && i < a->naxis; i++)
		same = a->axis[i].size == b->axis[i].size;
	return same && (x == y || !a->id || !memcmp(a->id, b->id, sizeof *a->id * (size_t)a->ndev));
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

ir_shard part_finer(struct part *p, ir_shard h, int rank, int d, struct axes l)
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
