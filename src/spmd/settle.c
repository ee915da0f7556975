/* From shardings as they are found to those that values are computed in. */
#include "impl.h"

ir_shard shard_settled(struct arena *a, struct ir_module *m, ir_shard h, const struct ir_type_info *t, bool border)
{
	if (!h)
		return 0;
	const struct ir_shard_info *i = &m->shard.p[h];
	struct ir_shard_info n = { .mesh = i->mesh, .rank = t->rank, .npart = i->npart, .part = i->part, .part_op = i->part_op };
	n.dim = ARENA_NEW(a, struct ir_dim_shard, t->rank + 1);
	bool any = n.npart > 0;
	for (int d = 0; d < t->rank && d < i->rank; d++) {
		struct ir_axis_ref *p = ARENA_NEW(a, struct ir_axis_ref, i->dim[d].naxis + 1);
		int64_t parts = 1;
		n.dim[d].axis = p;
		for (int k = 0; k < i->dim[d].naxis; k++) {
			struct ir_axis_ref r = i->dim[d].axis[k];
			if (r.size == 1)
				continue;
			if (t->dim[d] % (parts * r.size) || (border && r.size != m->mesh.p[i->mesh].axis[r.axis].size))
				break;
			parts *= r.size;
			p[n.dim[d].naxis++] = r;
			any = true;
		}
	}
	return any ? ir_shard_add(m, &n) : 0;
}
