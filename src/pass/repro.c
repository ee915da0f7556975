/* The same bits on any number of devices (RONDO_REPRO): a program for n devices is compiled as it would be for all parts that the setting says, and
 * each device runs that for several of them.
 *
 * How a sum over a split dimension is grouped, in which order the blocks of an attention come, which kernel a product takes: all follows from how
 * many parts there are and how large these are.  So it is not made independent of that, case by case, but that is made the same: what is compiled is, to
 * the last letter, what as many devices would compile.  A mesh of n devices gets more along its last axis. */
#include "passes.h"

/* Does m, or who is asked about it (ir_key), say what each device does? */
static bool by_hand(const struct ir_module *m)
{
	static const enum ir_kind kind[] = { IR_manual, IR_all_reduce, IR_all_gather, IR_reduce_scatter, IR_all_to_all, IR_ragged_all_to_all, IR_collective_permute, IR_collective_broadcast, IR_partition_id, IR_replica_id };
	bool any = m->key.n > 0;
	for (size_t k = 0; k < NELEM(kind); k++)
		any |= pass_has(m, kind[k]);
	return any;
}

struct err *pass_repro_parts(const struct ir_module *m, int ndev, int *parts)
{
	int64_t all = conf_int(CONF_REPRO);
	bool any = false;
	*parts = 1;
	for (size_t k = 0; k < m->mesh.n; k++)
		any |= m->mesh.p[k].naxis > 0;
	if (!all || !any)
		return NULL;
	if (by_hand(m)) {
		log_line(LOG_WARN, "program '%s' says itself what each device does (shard_map, custom_partitioning, inspect_array_sharding): its bits are those of %d devices, whatever RONDO_REPRO says", ir_text(m, m->name), ndev);
		return NULL;
	}
	for (size_t k = 0; k < m->mesh.n; k++)
		if (m->mesh.p[k].naxis && m->mesh.p[k].ndev != ndev)
			return ERR(UNIMPLEMENTED, "program '%s' has a mesh of %lld of %d devices: under RONDO_REPRO=%lld a mesh has all of them", ir_text(m, m->name),
			           (long long)m->mesh.p[k].ndev, ndev, (long long)all);
	if (all % ndev)
		return ERR(INVALID, "setting 'RONDO_REPRO' is %lld: as many parts cannot be dealt to %d devices", (long long)all, ndev);
	*parts = (int)(all / ndev);
	return NULL;
}

/* Calls that are made on one device alone are made by the first of its parts. */
static void pinned(struct ir_fn *fn, int parts)
{
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		int64_t *on = o->kind == IR_custom_call ? ir_attr_word(IR_custom_call, fn->attr.p + o->attr, AT_on) : NULL;
		if (on && *on)
			on[1] *= parts;
	}
}

struct err *pass_repro(const struct pass_opts *o, struct ir_module *m)
{
	if (o->parts <= 1)
		return NULL;
	ir_mesh_widen(m, o->parts);
	for (ir_fnid id = 1; id < m->fn.n; id++)
		pinned(ir_fn_of(m, id), o->parts);
	return NULL;
}
