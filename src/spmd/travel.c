/* What it takes to bring a value from one sharding to another, before it is done. */
#include "impl.h"

#include "../plan/plan.h"

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
			struct axes more = part_scattered(p, from, to, d, sum);
			double n = (double)axes_size(more);
			if (!more.n)
				continue;
			r.bytes += here * (n - 1) / n;
			r.ns += plan_move_time(p->plan, COLL_reduce_scatter, part_spread(p, mesh, more), here * (n - 1) / n);
			here /= n;
			from = part_finer(p, from, t->rank, d, more);
			sum = axes_but(&p->a, sum, more);
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
		both /= a * c / (double)axes_size(axes_common(&p->a, x, y));
		further &= axes_begin(x, y);
		gathers &= axes_begin(y, x);
		moved = axes_join(&p->a, moved, axes_rest(&p->a, x, axes_common(&p->a, x, y)));
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
