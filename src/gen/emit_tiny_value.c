/* Small values in registers and in memory (emit_tiny.h). */
#include "emit_tiny.h"

int tiny_lanes(int64_t n)
{
	int w = 1;
	while (w < n)
		w *= 2;
	return w == 1 ? 0 : w;
}

LT tiny_reg(struct em *e, const struct ir_type_info *t)
{
	return em_vec(em_reg(e, t->dtype), tiny_lanes(t->count));
}

LV tiny_pick(struct em *e, LV x, const int64_t *idx, int64_t n)
{
	int w = tiny_lanes(n), from = em_lanes(x);
	if (!from)
		return em_splat(e, x, w);
	if (!w)
		return LLVMBuildExtractElement(e->b, x, LLVMConstInt(e->i32, (unsigned)MAX(idx[0], 0), false), "");
	int v[256];
	bool same = w == from;
	for (int i = 0; i < w; i++) {
		v[i] = i < n && idx[i] >= 0 ? (int)idx[i] : i % from;
		same &= v[i] == i;
	}
	return same ? x : em_shuffle(e, x, NULL, v, w);
}

int64_t *tiny_positions(struct arena *a, int rank, const int64_t *dim, const int64_t *stride)
{
	int64_t n = 1, ix[IR_MAX_RANK] = { 0 };
	for (int d = 0; d < rank; d++)
		n *= dim[d];
	int64_t *p = ARENA_NEW(a, int64_t, n + 1);
	for (int64_t i = 0; i < n; i++) {
		int64_t o = 0;
		for (int d = 0; d < rank; d++)
			o += ix[d] * stride[d];
		p[i] = o;
		for (int d = rank - 1; d >= 0 && ++ix[d] == dim[d]; d--)
			ix[d] = 0;
	}
	return p;
}

int64_t tiny_near_by(int64_t n, const int64_t *off, int64_t *first)
{
	enum { MOST = 64 };
	int64_t last = *first = off[0];
	for (int64_t i = 1; i < n; i++) {
		*first = MIN(*first, off[i]);
		last = MAX(last, off[i]);
	}
	return last - *first < MIN(MOST, 2 * n) ? last - *first + 1 : 0;
}

LV tiny_load(struct tiny *t, int dt, int64_t n, LV p, const int64_t *off)
{
	struct em *e = t->e;
	LT mt = em_mem(e, dt);
	unsigned size = dtype_info[dt].bytes;
	bool run = true, same = true;
	for (int64_t i = 0; i < n; i++) {
		run &= off[i] == off[0] + i;
		same &= off[i] == off[0];
	}
	if (same && n > 1)
		return em_splat(e, tiny_load(t, dt, 1, p, off), tiny_lanes(n));
	if (n == 1 || (run && n > 1)) {
		LV x = LLVMBuildLoad2(e->b, n == 1 ? mt : em_vec(mt, (int)n), em_gep(e, mt, p, em_ki(e->i64, off[0])), "");
		LLVMSetAlignment(x, size);
		int w = tiny_lanes(n);
		if (n > 1 && w != n) {
			int v[256];
			for (int i = 0; i < w; i++)
				v[i] = i < n ? i : 0;
			x = em_shuffle(e, x, NULL, v, w);
		}
		return em_from_mem(e, dt, x);
	}
	int64_t first, span = tiny_near_by(n, off, &first);
	if (span) {                              /* one load of all that lies between, and a shuffle */
		int v[256], w = tiny_lanes(n);
		LV all = LLVMBuildLoad2(e->b, em_vec(mt, (int)span), em_gep(e, mt, p, em_ki(e->i64, first)), "");
		LLVMSetAlignment(all, size);
		for (int i = 0; i < w; i++)
			v[i] = i < n ? (int)(off[i] - first) : 0;
		return em_from_mem(e, dt, em_shuffle(e, all, NULL, v, w));
	}
	LV x = LLVMConstNull(em_vec(mt, tiny_lanes(n)));
	for (int64_t i = 0; i < n; i++) {
		LV y = LLVMBuildLoad2(e->b, mt, em_gep(e, mt, p, em_ki(e->i64, off[i])), "");
		LLVMSetAlignment(y, size);
		x = LLVMBuildInsertElement(e->b, x, y, LLVMConstInt(e->i32, (unsigned)i, false), "");
	}
	return em_from_mem(e, dt, x);
}

void tiny_store(struct tiny *t, int dt, int64_t n, LV p, const int64_t *off, LV x)
{
	struct em *e = t->e;
	LT mt = em_mem(e, dt);
	unsigned size = dtype_info[dt].bytes;
	x = em_to_mem(e, dt, x);
	bool run = true;
	for (int64_t i = 0; i < n; i++)
		run &= off[i] == off[0] + i;
	if (n > 1 && run) {
		if (em_lanes(x) != n) {
			int v[256];
			for (int i = 0; i < n; i++)
				v[i] = i;
			x = em_shuffle(e, x, NULL, v, (int)n);
		}
		LLVMSetAlignment(LLVMBuildStore(e->b, x, em_gep(e, mt, p, em_ki(e->i64, off[0]))), size);
		return;
	}
	for (int64_t i = 0; i < n; i++) {
		LV y = em_lanes(x) ? LLVMBuildExtractElement(e->b, x, LLVMConstInt(e->i32, (unsigned)i, false), "") : x;
		LLVMSetAlignment(LLVMBuildStore(e->b, y, em_gep(e, mt, p, em_ki(e->i64, off[i]))), size);
	}
}

LV tiny_ssa(struct tiny *t, struct tv *v, const struct ir_type_info *ti)
{
	if (v->ssa)
		return v->ssa;
	if (v->splat)
		return em_splat(t->e, v->splat, tiny_lanes(ti->count));
	int64_t st[IR_MAX_RANK];
	gen_strides(ti->rank, ti->dim, st);
	LV x = tiny_load(t, ti->dtype, ti->count, v->ptr, tiny_positions(&t->a, ti->rank, ti->dim, v->stride ? v->stride : st));
	return x;
}

/* Element i in row-major order of what has these strides. */
static LV element(struct em *e, const struct ir_type_info *ti, const int64_t *stride, LV i)
{
	LV rest = i, off = em_ki(e->i64, 0);
	for (int d = ti->rank - 1; d >= 0; d--) {
		LV k = LLVMBuildURem(e->b, rest, em_ki(e->i64, ti->dim[d]), "");
		rest = LLVMBuildUDiv(e->b, rest, em_ki(e->i64, ti->dim[d]), "");
		off = LLVMBuildAdd(e->b, off, LLVMBuildMul(e->b, k, em_ki(e->i64, stride[d]), ""), "");
	}
	return off;
}

void tiny_spill(struct tiny *t, struct tv *v, const struct ir_type_info *ti, LV p, const int64_t *to)
{
	struct em *e = t->e;
	LT mt = em_mem(e, ti->dtype);
	if (!ti->count)
		return;
	if (v->ssa || ti->count <= t->most) {
		int64_t st[IR_MAX_RANK];
		gen_strides(ti->rank, ti->dim, st);
		tiny_store(t, ti->dtype, ti->count, p, tiny_positions(&t->a, ti->rank, ti->dim, to ? to : st), tiny_ssa(t, v, ti));
		return;
	}
	if (v->ptr && !v->stride && !to) {
		LV n = em_ki(e->i64, ti->bytes), a[3] = { p, v->ptr, n };
		e->code->call(e, "memmove", e->ptr, 3, a);
		return;
	}
	/* a loop over the elements: a splat, or one of the two is strided */
	LLVMBasicBlockRef from = LLVMGetInsertBlock(e->b), loop = em_block(e, "fill"), out = em_block(e, "filled");
	LV x = v->splat ? em_to_mem(e, ti->dtype, v->splat) : NULL;
	LLVMBuildBr(e->b, loop);
	LLVMPositionBuilderAtEnd(e->b, loop);
	LV i = LLVMBuildPhi(e->b, e->i64, "");
	if (!x) {
		x = LLVMBuildLoad2(e->b, mt, em_gep(e, mt, v->ptr, v->stride ? element(e, ti, v->stride, i) : i), "");
		LLVMSetAlignment(x, dtype_info[ti->dtype].bytes);
	}
	LLVMSetAlignment(LLVMBuildStore(e->b, x, em_gep(e, mt, p, to ? element(e, ti, to, i) : i)), dtype_info[ti->dtype].bytes);
	LV next = LLVMBuildAdd(e->b, i, em_ki(e->i64, 1), "");
	LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntULT, next, em_ki(e->i64, ti->count), ""), loop, out);
	LV in[2] = { em_ki(e->i64, 0), next };
	LLVMBasicBlockRef ib[2] = { from, loop };
	LLVMAddIncoming(i, in, ib, 2);
	em_at(e, out);
}

LV tiny_spill_new(struct tiny *t, struct tv *v, const struct ir_type_info *ti)
{
	LV p = em_alloca(t->e, LLVMArrayType2(em_mem(t->e, ti->dtype), (uint64_t)MAX(ti->count, 1)));
	tiny_spill(t, v, ti, p, NULL);
	return p;
}

LV tiny_lane(struct em *e, LV x, int64_t i)
{
	return em_lanes(x) ? LLVMBuildExtractElement(e->b, x, LLVMConstInt(e->i32, (unsigned)i, false), "") : x;
}

static void region_scalar(struct tiny *t, ir_fnid f, int n, const LV *arg, LV *out)
{
	const struct ir_fn *g = ir_fn_of(t->m, f);
	struct tv *a = ARENA_NEW(&t->a, struct tv, g->nparam + 1), *r = ARENA_NEW(&t->a, struct tv, g->result.n + 1);
	for (int i = 0; i < n; i++)
		a[i].ssa = arg[i];
	/* the reducer's functions work on vectors as well: its constants are splats */
	t->function(t, g, a, r, NULL);
	for (size_t i = 0; i < g->result.n; i++)
		out[i] = r[i].ssa ? r[i].ssa : r[i].splat;
}

/* Is the function of scalars right for vectors of them? */
static bool by_lanes(const struct ir_module *m, const struct ir_fn *fn)
{
	for (size_t i = 0; i < fn->op.n; i++)
		if (!ir_is_elem(fn->op.p[i].kind) && fn->op.p[i].kind != IR_constant)
			return false;
	return true;
}

void tiny_merge(struct tiny *t, enum redop rop, ir_fnid f, int n, const int *dt, LV *acc, const LV *x)
{
	if (rop != RED_fn) {
		for (int k = 0; k < n; k++)
			acc[k] = em_redop(t->e, rop, dt[k], acc[k], x[k]);
		return;
	}
	int w = em_lanes(acc[0]);
	LV arg[16], out[16], res[8];
	if (by_lanes(t->m, ir_fn_of(t->m, f))) {
		memcpy(arg, acc, sizeof *acc * (size_t)n);
		memcpy(arg + n, x, sizeof *x * (size_t)n);
		region_scalar(t, f, 2 * n, arg, out);
		for (int k = 0; k < n; k++)
			acc[k] = em_splat(t->e, out[k], w);
		return;
	}
	/* per lane: the reducer is scalar code */
	for (int i = 0; i < MAX(w, 1); i++) {
		for (int k = 0; k < n; k++) {
			arg[k] = tiny_lane(t->e, acc[k], i);
			arg[n + k] = tiny_lane(t->e, x[k], i);
		}
		region_scalar(t, f, 2 * n, arg, out);
		for (int k = 0; k < n; k++) {
			if (!w)
				res[k] = out[k];
			else
				res[k] = LLVMBuildInsertElement(t->e->b, i ? res[k] : LLVMGetPoison(LLVMTypeOf(acc[k])), out[k],
				                                LLVMConstInt(t->e->i32, (unsigned)i, false), "");
		}
	}
	memcpy(acc, res, sizeof *acc * (size_t)n);
}

LV tiny_insert(struct em *e, LV x, LV u, LV i)
{
	int n = em_lanes(x);
	if (!n)
		return u;
	if (n > 64)
		return LLVMBuildInsertElement(e->b, x, u, i, "");
	LV lane[64];
	for (int k = 0; k < n; k++)
		lane[k] = em_ki(e->i8, k);
	LV here = LLVMBuildICmp(e->b, LLVMIntEQ, LLVMConstVector(lane, (unsigned)n), em_splat(e, LLVMBuildTrunc(e->b, i, e->i8, ""), n), "");
	return em_sel(e, here, em_splat(e, u, n), x);
}
