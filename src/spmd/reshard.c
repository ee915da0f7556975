/* A value from one sharding to another, with what travels kept small.
 *
 * What is still to be summed is summed (sum.c).  Where dimensions stay as fine as they are, each device gets another's part (collective.c).  What is
 * long goes in one step (boxes.c), unless that is one all_gather.  Else, between shardings of one mesh, several steps (stepwise.c).  Between meshes,
 * and where dimensions are too small for this, those that differ are gathered and cut again. */
#include "impl.h"

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
	if (sum.n && from && part_same_order(p->m, p->m->shard.p[from].mesh, p->m->shard.p[want].mesh))
		v = part_embedded(p, b, v, &from, to, p->m->shard.p[want].mesh, sum, &sum);
	bool as_fine = true;
	for (int d = 0; d < rank; d++)
		as_fine &= ir_shard_parts(p->m, from, d) == ir_shard_parts(p->m, to, d);
	if (!part_equal(p, from, to, rank)) {
		ir_val whole = as_fine ? 0 : part_in_boxes(p, b, v, from, to, rank);
		if (whole)
			v = whole;
		else if (as_fine)
			v = part_change_places(p, b, v, from, to, rank);
		else if (!from || !to || part_same_order(p->m, p->m->shard.p[from].mesh, p->m->shard.p[to].mesh))
			v = part_stepwise(p, b, v, from, to, mesh, rank);
		else {
			v = part_gather_and_cut(p, b, v, from, 0, mesh, rank);
			v = part_gather_and_cut(p, b, v, 0, to, p->m->shard.p[to].mesh, rank);
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
