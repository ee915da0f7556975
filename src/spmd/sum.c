/* Sums over devices that are still to be made: made, cut where their readers are, or begun of what is cut. */
#include "impl.h"

/* v, cut along d by l, as parts of a sum over l: each device has its own block and zeros around it. */
static ir_val embed(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, int d)
{
	int64_t size = ir_vtype(p->m, b->fn, v)->dim[d];
	ir_type t = part_resized(p, b, v, d, axes_size(l), 1, -1);
	int rank = ir_type_of(p->m, t)->rank;
	ir_val in[IR_MAX_RANK + 2] = { ir_const_i(b, t, 0), v }, zero = ir_const_i(b, ir_scalar(p->m, DT_i32), 0);
	for (int k = 0; k < rank; k++)
		in[k + 2] = k == d ? part_offset(p, b, mesh, l, size) : zero;
	return ir_emit(b, IR_dynamic_update_slice, (uint32_t)rank + 2, in, t, NULL, 0);
}

ir_val part_embedded(struct part *p, struct ir_b *b, ir_val v, ir_shard *from, ir_shard to, uint32_t mesh, struct axes sum, struct axes *left)
{
	int rank = ir_vtype(p->m, b->fn, v)->rank;
	*left = sum;
	for (int d = 0; d < rank && *from; d++) {
		struct axes x = part_axes(p, *from, d), l = axes_rest(&p->a, x, axes_common(&p->a, x, part_axes(p, to, d)));
		if (!l.n || !axes_among(l, sum))
			continue;
		v = embed(p, b, v, mesh, l, d);
		*left = axes_but(&p->a, *left, l);
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

struct axes part_scattered(struct part *p, ir_shard from, ir_shard to, int d, struct axes sum)
{
	struct axes x = part_axes(p, from, d), y = part_axes(p, to, d), c = axes_common(&p->a, x, y), more = axes_rest(&p->a, y, c);
	bool all = to && part_same_order(p->m, p->m->shard.p[from].mesh, p->m->shard.p[to].mesh) && !axes_rest(&p->a, x, c).n && more.n && axes_among(more, sum);
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
		struct axes more = part_scattered(p, *from, to, d, sum);
		if (!more.n)
			continue;
		int64_t w[4] = { d, part_group(p, mesh, more), RED_add, 0 };
		ir_type rt = part_resized(p, b, v, d, 1, axes_size(more), -1);
		v = ir_emit_raw(b, IR_reduce_scatter, 1, &v, 1, &rt, w, 4);
		*from = part_finer(p, *from, rank, d, more);
		sum = axes_but(&p->a, sum, more);
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

ir_shard part_finished(struct part *p, ir_shard from, ir_shard to, int rank)
{
	struct axes sum = part_axes(p, part_sum(p, from), 0);
	for (int d = 0; d < rank && sum.n; d++) {
		struct axes more = part_scattered(p, from, to, d, sum);
		if (!more.n)
			continue;
		from = part_finer(p, from, rank, d, more);
		sum = axes_but(&p->a, sum, more);
	}
	return part_summed(p, from);
}
