/* Control flow over small values (emit_tiny.h). */
#include "emit_tiny.h"

void tiny_case(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val)
{
	struct em *e = t->e;
	int n;
	const int64_t *f = ir_attrs(fn, o, AT_branch, &n);
	LV idx = tiny_ssa(t, &val[ir_in(fn, o, 0)], ir_vtype(t->m, fn, ir_in(fn, o, 0)));
	if (LLVMTypeOf(idx) == e->i1)
		idx = LLVMBuildZExt(e->b, idx, e->i32, "");
	struct tv *arg = ARENA_NEW(&t->a, struct tv, o->nin + 1), *res = ARENA_NEW(&t->a, struct tv, o->nout + 1);
	/* values from memory are loaded before the branches: what one of them loads does not dominate the rest */
	for (uint32_t i = 1; i < o->nin; i++) {
		arg[i - 1] = val[ir_in(fn, o, i)];
		if (!arg[i - 1].ptr && !arg[i - 1].splat)
			continue;
		const struct ir_type_info *ti = ir_vtype(t->m, fn, ir_in(fn, o, i));
		if (ti->count <= t->most)
			arg[i - 1] = (struct tv){ .ssa = tiny_ssa(t, &val[ir_in(fn, o, i)], ti) };
	}
	LLVMBasicBlockRef end = em_block(e, "join"), *from = ARENA_NEW(&t->a, LLVMBasicBlockRef, n), *start = ARENA_NEW(&t->a, LLVMBasicBlockRef, n);
	LV *in = ARENA_NEW(&t->a, LV, n * (o->nout + 1));
	for (int i = 0; i < n; i++)
		start[i] = em_block(e, "case");
	LV sw = LLVMBuildSwitch(e->b, idx, start[n - 1], (unsigned)n);
	for (int i = 0; i < n - 1; i++)
		LLVMAddCase(sw, LLVMConstInt(LLVMTypeOf(idx), (unsigned)i, false), start[i]);
	for (int i = 0; i < n; i++) {
		em_at(e, start[i]);
		struct tv *mine = arena_copy(&t->a, arg, sizeof *arg * o->nin);
		t->function(t, ir_fn_of(t->m, (ir_fnid)f[i]), mine, res, NULL);
		for (uint32_t k = 0; k < o->nout; k++) {
			const struct ir_type_info *ti = ir_vtype(t->m, fn, o->out + k);
			if (ti->count > t->most)         /* an operand's memory, of all branches the same */
				val[o->out + k] = res[k];
			else
				in[k * (uint32_t)n + (uint32_t)i] = tiny_ssa(t, &res[k], ti);
		}
		from[i] = e->scope[e->cur].block;
		LLVMBuildBr(e->b, end);
	}
	em_at(e, end);
	for (uint32_t k = 0; k < o->nout; k++) {
		if (ir_vtype(t->m, fn, o->out + k)->count > t->most)
			continue;
		LV phi = LLVMBuildPhi(e->b, tiny_reg(e, ir_vtype(t->m, fn, o->out + k)), "");
		LLVMAddIncoming(phi, &in[k * (uint32_t)n], from, (unsigned)n);
		val[o->out + k].ssa = phi;
	}
}

/* Slice i (a stack's dimension 0) of the operand: a large one stays where it lies. */
static struct tv stack_slice(struct tiny *t, struct tv *x, const struct ir_type_info *ti, LV i)
{
	struct em *e = t->e;
	int64_t *st = ARENA_NEW(&t->a, int64_t, ti->rank);
	gen_strides(ti->rank, ti->dim, st);
	const int64_t *s = x->stride ? x->stride : st;
	int64_t n = ti->dim[0] ? ti->count / ti->dim[0] : 0;
	LT mt = em_mem(e, ti->dtype);
	LV p = em_gep(e, mt, x->ptr, LLVMBuildMul(e->b, i, em_ki(e->i64, s[0]), ""));
	if (n > t->most)
		return (struct tv){ .ptr = p, .stride = s + 1 };
	return (struct tv){ .ssa = tiny_load(t, ti->dtype, n, p, tiny_positions(&t->a, ti->rank - 1, ti->dim + 1, s + 1)) };
}

/* A copy of x at p; NULL: on the stack. */
static struct tv place(struct tiny *t, struct tv *x, const struct ir_type_info *ti, LV p)
{
	if (!p)
		return (struct tv){ .ptr = tiny_spill_new(t, x, ti) };
	tiny_spill(t, x, ti, p, NULL);
	return (struct tv){ .ptr = p };
}

void tiny_loop(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val, LV *out)
{
	struct em *e = t->e;
	const struct ir_loop l = ir_loop_view(&t->a, t->m, fn, o);
	int64_t trip = l.trip;
	int n = l.n, ncarry = l.ncarry;
	struct tv *x = ARENA_NEW(&t->a, struct tv, n + 1), *arg = ARENA_NEW(&t->a, struct tv, n + 2), *res = ARENA_NEW(&t->a, struct tv, n + 2);
	const struct ir_type_info **ti = ARENA_NEW(&t->a, const struct ir_type_info *, n + 1);
	for (int k = 0; k < n; k++) {
		ti[k] = ir_vtype(t->m, fn, l.x[k].v);
		x[k] = val[l.x[k].v];
		switch (l.x[k].role) {
		case ROLE_CARRY:
			if (ti[k]->count <= t->most)
				x[k] = (struct tv){ .ssa = tiny_ssa(t, &x[k], ti[k]) };
			else if (t->depth == 1)          /* in loops further in it is already where it may be written */
				x[k] = place(t, &x[k], ti[k], out ? out[l.x[k].result] : NULL);
			break;
		case ROLE_CONST:
			if (ti[k]->count <= t->most)
				x[k] = (struct tv){ .ssa = tiny_ssa(t, &x[k], ti[k]) };
			break;
		case ROLE_IN: case ROLE_IN_REV:
			if (!x[k].ptr && !x[k].splat)
				x[k] = (struct tv){ .ptr = tiny_spill_new(t, &x[k], ti[k]) };
			break;
		default: {
			LV p = out ? out[l.x[k].result] : NULL;
			if (ti[k]->dim[0] == trip)       /* every row is written: what it starts with does not matter */
				x[k] = (struct tv){ .ptr = p ? p : em_alloca(e, LLVMArrayType2(em_mem(e, ti[k]->dtype), (uint64_t)MAX(ti[k]->count, 1))) };
			else
				x[k] = place(t, &x[k], ti[k], p);
		}
		}
	}
	LV *phi = ARENA_NEW(&t->a, LV, n + 1), *init = ARENA_NEW(&t->a, LV, n + 1);
	for (int c = 0; c < ncarry; c++)
		init[c] = x[l.made[c]].ssa;
	if (trip == 0) {
		for (int k = 0; k < ncarry; k++)
			val[o->out + k] = x[l.made[k]];
	} else {
		LLVMBasicBlockRef from = e->scope[e->cur].block, head = em_block(e, "loop"), end = em_block(e, "end");
		LLVMBuildBr(e->b, head);
		em_at(e, head);
		LLVMBasicBlockRef outer = t->head;
		t->head = head;
		LV i = LLVMBuildPhi(e->b, e->i64, "");
		for (int c = 0; c < ncarry; c++)
			if (!x[l.made[c]].ptr)
				x[l.made[c]].ssa = phi[c] = LLVMBuildPhi(e->b, tiny_reg(e, ti[l.made[c]]), "");
		if (trip < 0) {
			struct tv *asked = ARENA_NEW(&t->a, struct tv, n + 1), go = { 0 };
			for (int k = 0; k < n; k++)
				asked[l.x[k].asked - 1] = x[k];
			t->function(t, l.cond, asked, &go, NULL);
			LV g = tiny_ssa(t, &go, ir_vtype(t->m, l.cond, l.cond->result.p[0]));
			LLVMBasicBlockRef in = em_block(e, "body");
			LLVMBuildCondBr(e->b, g, in, end);
			em_at(e, in);
		}
		arg[IR_LOOP_TURN - 1].ssa = LLVMBuildTrunc(e->b, i, e->i32, "");
		LV rev = LLVMBuildSub(e->b, em_ki(e->i64, trip - 1), i, "");
		for (int k = 0; k < n; k++) {
			struct tv *to = &arg[l.x[k].param - 1];
			if (!l.x[k].param)
				continue;
			if (!ir_role_is_in(l.x[k].role))
				*to = x[k];
			else if (x[k].splat)
				*to = (struct tv){ .splat = x[k].splat };
			else
				*to = stack_slice(t, &x[k], ti[k], ir_role_is_reversed(l.x[k].role) ? rev : i);
		}
		t->function(t, l.body, arg, res, NULL);
		LV next[2];
		for (int j = ncarry; j < l.nmade; j++) {
			int k = l.made[j];
			const struct ir_type_info *ts = ir_vtype(t->m, l.body, l.body->result.p[j]);
			int64_t st[IR_MAX_RANK], cnt = ts->count;
			gen_strides(ts->rank, ts->dim, st);
			LT mt = em_mem(e, ts->dtype);
			LV row = ir_role_is_reversed(l.x[k].role) ? rev : i;
			tiny_store(t, ts->dtype, cnt, em_gep(e, mt, x[k].ptr, LLVMBuildMul(e->b, row, em_ki(e->i64, cnt), "")),
			         tiny_positions(&t->a, ts->rank, ts->dim, st), tiny_ssa(t, &res[j], ts));
		}
		LV *again = ARENA_NEW(&t->a, LV, ncarry + 1);
		for (int k = 0; k < ncarry; k++)
			again[k] = phi[k] ? tiny_ssa(t, &res[k], ir_vtype(t->m, l.body, l.body->result.p[k])) : NULL;
		next[0] = em_ki(e->i64, 0);
		next[1] = LLVMBuildAdd(e->b, i, em_ki(e->i64, 1), "");
		LLVMBasicBlockRef latch = e->scope[e->cur].block, ib[2] = { from, latch };
		if (trip < 0)
			LLVMBuildBr(e->b, head);
		else
			LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntULT, next[1], em_ki(e->i64, trip), ""), head, end);
		LLVMAddIncoming(i, next, ib, 2);
		for (int k = 0; k < ncarry; k++) {
			LV in[2] = { init[k], again[k] };
			val[o->out + k] = x[l.made[k]];
			if (!phi[k])
				continue;
			LLVMAddIncoming(phi[k], in, ib, 2);
			val[o->out + k] = (struct tv){ .ssa = trip < 0 ? phi[k] : again[k] };
		}
		em_at(e, end);
		t->head = outer;
	}
	for (int j = ncarry; j < l.nmade; j++)
		val[o->out + (ir_val)j] = (struct tv){ .ptr = x[l.made[j]].ptr };
}
