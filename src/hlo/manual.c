/* The operations of the sdy dialect: constraints, groups, manual computations. */
#include "wire.h"

struct err *conv_sharding_constraint(struct hlo *h, const struct wop *o)
{
	uint32_t p[1];
	ir_val in;
	ir_shard s;
	TRY(op_props(h, o, p));
	TRY(op_ins_n(h, o, 1, &in));
	TRY(shard_get(h, p[0], &s));
	if (h->reducer || shard_says_nothing(h, s))
		return op_bind(h, o, 1, &in);
	int64_t w = s;
	return op_emit(h, o, IR_sharding_constraint, 1, &in, 1, &w);
}

struct err *conv_sharding_group(struct hlo *h, const struct wop *o)
{
	uint32_t p[1];
	ir_val in;
	TRY(op_props(h, o, p));
	TRY(op_ins_n(h, o, 1, &in));
	w_begin(h);
	TRY(w_props(h, p, "i0"));
	return op_emit(h, o, IR_sharding_group, 1, &in, 1, h->word.p);
}

struct err *conv_manual(struct hlo *h, const struct wop *o)
{
	uint32_t p[3], n, ncap, naxis, *cap, nshard[2];    /* in, axes, out */
	ir_val *in;
	ir_shard *s[2];
	ir_str *name;
	ir_fnid body;
	TRY(op_props(h, o, p));
	TRY(op_captures(h, o, &ncap, &cap));
	if (ncap)
		return no_op(h, "a manual computation that uses values from outside it");
	TRY(op_ins(h, o, &n, &in));
	TRY(shard_per_value(h, p[0], &nshard[0], &s[0]));
	TRY(shard_per_value(h, p[2], &nshard[1], &s[1]));
	if (nshard[0] != n || nshard[1] != o->nout)
		return bad_op(h, "it has %u and %u shardings for %u operands and %u results", nshard[0], nshard[1], n, o->nout);
	TRY(shard_axes(h, p[1], &naxis, &name));
	/* the mesh is that of the shardings; without operands and results, the first that has the axes */
	uint32_t mesh = UINT32_MAX;
	for (int k = 0; k < 2; k++)
		for (uint32_t i = 0; i < nshard[k]; i++)
			if (mesh == UINT32_MAX && h->m->mesh.p[h->m->shard.p[s[k][i]].mesh].naxis)
				mesh = h->m->shard.p[s[k][i]].mesh;
	for (uint32_t k = 0; k < h->m->mesh.n && mesh == UINT32_MAX; k++) {
		bool all = true;
		for (uint32_t i = 0; i < naxis; i++)
			all &= mesh_axis(&h->m->mesh.p[k], name[i]) >= 0;
		if (all)
			mesh = k;
	}
	if (mesh == UINT32_MAX)
		return bad_op(h, "no mesh has its axes");
	int64_t *axis = ARENA_NEW(&h->a, int64_t, naxis);
	for (uint32_t i = 0; i < naxis; i++) {
		axis[i] = mesh_axis(&h->m->mesh.p[mesh], name[i]);
		if (axis[i] < 0)
			return bad_op(h, "its mesh has no axis '%s'", ir_text(h->m, name[i]));
	}
	TRY(region_fn(h, o->region, "manual", false, 0, NULL, false, &body));
	w_begin(h);
	for (int k = 0; k < 2; k++) {
		w_int(h, nshard[k]);
		for (uint32_t i = 0; i < nshard[k]; i++)
			w_int(h, s[k][i]);
	}
	w_list(h, (int)naxis, axis);
	w_int(h, body);
	return op_emit(h, o, IR_manual, n, in, (uint32_t)h->word.n, h->word.p);
}
