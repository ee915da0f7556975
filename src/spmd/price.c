/* What ops of the program of one device take, about. */
#include "impl.h"

double spmd_op_time(const struct plan_table *t, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	if (ir_info(o->kind)->flags & IR_COLL)
		return 0;
	struct ir_cost c = ir_cost_of(m, fn, o);
	return plan_time(t, &(struct plan_work){ c.flops, c.adds, c.bytes, c.ops }, PLAN_gen);
}

/* The groups a collective is within. */
static struct plan_group within(const struct plan_on *p, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	int n;
	const int64_t *pair = o->kind == IR_collective_permute ? ir_attrs(fn, o, AT_pairs, &n) : NULL;
	if (pair)
		return plan_pairs_of(p, n / 2, pair);
	const struct ir_group_info *i = ir_has_attr(o->kind, AT_group) ? &m->group.p[ir_attr(fn, o, AT_group)] : NULL;
	return i && i->nrow ? plan_groups_of(p, i->nrow, i->ncol, i->id) : (struct plan_group){ MAX(p->ndev, 2), 1, MAX(p->ndev, 2), 0 };
}

bool spmd_between_hosts(const struct plan_on *p, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	return within(p, m, fn, o).hosts > 1;
}

double spmd_coll_time(const struct plan_on *p, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	double in = 0, out = 0;
	for (uint32_t k = 0; k < o->nout; k++) {
		in += (double)ir_vtype(m, fn, ir_in(fn, o, k))->bytes;
		out += (double)ir_vtype(m, fn, o->out + k)->bytes;
	}
	struct plan_group g = within(p, m, fn, o);
	switch ((enum ir_kind)o->kind) {
	case IR_all_reduce: return plan_sum_time(p, g, in);
	case IR_reduce_scatter: return plan_move_time(p, COLL_reduce_scatter, g, out);
	case IR_all_gather: return plan_move_time(p, COLL_all_gather, g, out);
	case IR_collective_permute: return plan_move_time(p, COLL_permute, g, in);
	case IR_ragged_all_to_all: return plan_move_time(p, COLL_all_to_all, g, MIN(in, out));
	default: return plan_move_time(p, COLL_all_to_all, g, out);
	}
}

/* Collectives of a run of fn, of its loops' turns, and of the branches that have most. */
static double colls_time(const struct plan_on *p, const struct ir_module *m, const struct ir_fn *fn)
{
	double ns = 0;
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		if (ir_info((enum ir_kind)o->kind)->flags & IR_COLL)
			ns += spmd_coll_time(p, m, fn, o);
		if (o->kind == IR_loop)
			ns += ir_turns(fn, o) * colls_time(p, m, ir_fn_of(m, (ir_fnid)ir_attr(fn, o, AT_body)));
		int n = 0;
		const int64_t *branch = o->kind == IR_case ? ir_attrs(fn, o, AT_branch, &n) : NULL;
		double most = 0;
		while (n-- > 0)
			most = MAX(most, colls_time(p, m, ir_fn_of(m, (ir_fnid)branch[n])));
		ns += most;
	}
	return ns;
}

double spmd_fn_time(const struct plan_on *p, const struct ir_module *m, const struct ir_fn *fn)
{
	struct ir_cost c = ir_cost_of_fn(m, fn);
	return plan_time(p->table, &(struct plan_work){ c.flops, c.adds, c.bytes, c.ops }, PLAN_gen) + colls_time(p, m, fn);
}
