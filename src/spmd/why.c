/* Why an op's operands are moved: what it cannot do in parts, and how else it might have been cut.  For the record alone. */
#include "impl.h"

void why_try(struct part *p, const struct ir_op *o, const struct ir_axes *x, const struct axes *f, double ns)
{
	struct tried *t = &p->tried;
	bool cut = false;
	if (o != p->why.o)                       /* asked for another one's sake */
		return;
	for (int i = 0; i < x->nfactor; i++)
		cut |= f[i].n > 0;
	t->n *= cut;                             /* the way that cuts nothing comes first */
	bool better = !t->n || ns < t->ns[0];
	if (!better && t->n > 1 && ns >= t->ns[1])
		return;
	struct axes *copy = ARENA_NEW(&p->a, struct axes, x->nfactor + 1);
	memcpy(copy, f, sizeof *copy * (size_t)x->nfactor);
	if (better) {
		t->ns[1] = t->ns[0];
		t->f[1] = t->f[0];
	}
	t->ns[!better] = ns;
	t->f[!better] = copy;
	t->n = MIN(t->n + 1, 2);
}

/* Operand k, which lies as have, with the axes of dimension d in another one along which the op may be cut, or nowhere. */
static ir_shard advice(struct part *p, const struct ir_axes *x, int k, const struct ir_type_info *t, ir_shard have, int d, const bool *can)
{
	struct ir_shard_info n = p->m->shard.p[have];
	n.dim = ARENA_NEW(&p->a, struct ir_dim_shard, n.rank + 1);
	memcpy(n.dim, p->m->shard.p[have].dim, sizeof *n.dim * (size_t)n.rank);
	struct axes l = part_axes(p, have, d);
	n.dim[d].naxis = 0;
	for (int e = 0; e < t->rank; e++) {
		struct axes mine = part_axes(p, have, e);
		if (e == d || !x->dim[k][e].n || !can[x->dim[k][e].factor[0]] || x->factor[x->dim[k][e].factor[0]].size % (axes_size(mine) * axes_size(l)))
			continue;
		mine = axes_join(&p->a, mine, l);
		n.dim[e].naxis = mine.n;
		n.dim[e].axis = (struct ir_axis_ref *)mine.p;
		break;
	}
	return ir_shard_add(p->m, &n);
}

void why_cut(struct part *p, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, const ir_shard *have, uint32_t mesh, const struct axes *f)
{
	struct why *w = &p->why;
	bool *can = ARENA_NEW(&p->a, bool, x->nfactor + 1);
	for (int i = 0; i < x->nfactor; i++)
		can[i] = part_can(p, fn, o, x, i);
	int *cannot = ARENA_NEW(&p->a, int, x->nin + 1);
	ir_shard *lies = ARENA_NEW(&p->a, ir_shard, x->nin + 1);
	for (int k = 0; k < x->nin; k++) {
		ir_shard to = part_shard(p, x, k, mesh, f);
		cannot[k] = -1;
		for (int d = 0; d < x->rank[k] && cannot[k] < 0; d++) {
			if (axes_begin(part_axes(p, have[k], d), part_axes(p, to, d)))
				continue;
			bool whole = !x->dim[k][d].n;
			for (int i = 0; i < x->dim[k][d].n; i++)
				whole |= !can[x->dim[k][d].factor[i]] && !f[x->dim[k][d].factor[i]].n;
			if (whole) {
				cannot[k] = d;
				lies[k] = advice(p, x, k, ir_vtype(p->m, fn, ir_in(fn, o, (uint32_t)k)), have[k], d, can);
			}
		}
	}
	w->n = x->nin;
	w->cannot = cannot;
	w->advice = lies;
	if (p->tried.n < 2 || o != p->why.o)
		return;
	int n = x->nin + x->nout;
	ir_shard *other = ARENA_NEW(&p->rec->a, ir_shard, n + 1);
	for (int t = 0; t < n; t++)
		other[t] = part_shard(p, x, t, mesh, p->tried.f[1]);
	arr_push(&p->rec->way, ((struct spmd_way){ p->tried.ns[0], p->tried.ns[1], x->nin, n, other }));
	w->way = (uint32_t)p->rec->way.n - 1;
}
