/* Single steps: one collective over the devices that differ along a list of axes, or what each of them takes of its own. */
#include "impl.h"

#include "../eval/eval.h"

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

ir_type part_resized(struct part *p, struct ir_b *b, ir_val v, int d, int64_t num, int64_t den, int e)
{
	const struct ir_type_info *t = ir_vtype(p->m, b->fn, v);
	int64_t dim[IR_MAX_RANK];
	memcpy(dim, t->dim, sizeof *dim * t->rank);
	dim[d] = dim[d] * num / den;
	if (e >= 0)
		dim[e] = dim[e] * den / num;
	return ir_tensor(p->m, t->dtype, t->rank, dim);
}

ir_val part_gather(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, int d)
{
	int64_t w[2] = { d, part_group(p, mesh, l) };
	ir_type t = part_resized(p, b, v, d, axes_size(l), 1, -1);
	return ir_emit_raw(b, IR_all_gather, 1, &v, 1, &t, w, 2);
}

ir_val part_exchange(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, int from, int to)
{
	int64_t w[3] = { to, from, part_group(p, mesh, l) };
	ir_type t = part_resized(p, b, v, from, axes_size(l), 1, to);
	return ir_emit_raw(b, IR_all_to_all, 1, &v, 1, &t, w, 3);
}

ir_val part_cut(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, int d)
{
	ir_type t = part_resized(p, b, v, d, 1, axes_size(l), -1);
	ir_val in[IR_MAX_RANK + 1] = { v }, zero = ir_const_i(b, ir_scalar(p->m, DT_i32), 0);
	const struct ir_type_info *i = ir_type_of(p->m, t);     /* no type is added from here on */
	int rank = i->rank;
	int64_t w[IR_MAX_RANK + 1] = { rank };
	memcpy(w + 1, i->dim, sizeof *w * (size_t)rank);
	for (int k = 0; k < rank; k++)
		in[k + 1] = k == d ? part_offset(p, b, mesh, l, w[1 + d]) : zero;
	return ir_emit(b, IR_dynamic_slice, (uint32_t)rank + 1, in, t, w, (uint32_t)rank + 1);
}

ir_val part_change_places(struct part *p, struct ir_b *b, ir_val v, ir_shard from, ir_shard to, int rank)
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
