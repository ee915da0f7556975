/* Rows of a gather or scatter of small values (emit_tiny.h). */
#include "emit_tiny.h"

/* side: the result of a gather, the updates of a scatter.  A row is one index vector and the window that it leads to. */
struct rows {
	int64_t n, count;        /* rows; elements of a window */
	int ncomp;
	int64_t *index, *base;   /* [row * ncomp + i] positions in the indices; [row] where batch dimensions lead to, in the operand */
	int64_t *side;           /* [row * count + i] positions in the side's elements */
	int64_t *window;         /* the window's positions in the operand */
	int64_t cs[IR_MAX_RANK], cmax[IR_MAX_RANK];
};
struct dims { const int64_t *p; int n; };

static int index_of_dim(struct dims l, int64_t d)
{
	for (int i = 0; i < l.n; i++)
		if (l.p[i] == d)
			return i;
	return -1;
}

/* st: strides of the operand.  dropped: its dimensions that are not in the window, batch ones apart. */
static struct rows rows_of(struct tiny *t, const struct ir_type_info *op, const int64_t *st, const struct ir_type_info *idx, const struct ir_type_info *side,
                           struct dims window, struct dims dropped, struct dims obatch, struct dims ibatch, struct dims map, int64_t index_dim, const int64_t *size)
{
	struct rows r = { .ncomp = map.n };
	int64_t is[IR_MAX_RANK], ss[IR_MAX_RANK], dim[IR_MAX_RANK], wst[IR_MAX_RANK], wss[IR_MAX_RANK], wdim[IR_MAX_RANK], bi[IR_MAX_RANK], bo[IR_MAX_RANK], bs[IR_MAX_RANK];
	int nb = 0, nw = 0, id = 0;
	gen_strides(idx->rank, idx->dim, is);
	gen_strides(side->rank, side->dim, ss);
	for (int d = 0; d < side->rank; d++) {
		if (index_of_dim(window, d) >= 0)
			continue;
		id += id == index_dim;
		dim[nb] = side->dim[d];
		bi[nb] = is[id];
		bs[nb] = ss[d];
		int k = index_of_dim(ibatch, id);
		bo[nb++] = k < 0 ? 0 : st[obatch.p[k]];
		id++;
	}
	for (int d = 0; d < op->rank; d++)
		if (index_of_dim(dropped, d) < 0 && index_of_dim(obatch, d) < 0) {
			wdim[nw] = size[d];
			wst[nw] = st[d];
			wss[nw] = ss[window.p[nw]];
			nw++;
		}
	r.n = r.count = 1;
	for (int d = 0; d < nb; d++)
		r.n *= dim[d];
	for (int d = 0; d < nw; d++)
		r.count *= wdim[d];
	r.base = tiny_positions(&t->a, nb, dim, bo);
	r.window = tiny_positions(&t->a, nw, wdim, wst);
	r.index = ARENA_NEW(&t->a, int64_t, r.n * map.n + 1);
	r.side = ARENA_NEW(&t->a, int64_t, r.n * r.count + 1);
	int64_t *from = tiny_positions(&t->a, nb, dim, bi), *to = tiny_positions(&t->a, nb, dim, bs), *in = tiny_positions(&t->a, nw, wdim, wss);
	for (int64_t k = 0; k < r.n; k++) {
		for (int i = 0; i < map.n; i++)
			r.index[k * map.n + i] = from[k] + (index_dim < idx->rank ? i * is[index_dim] : 0);
		for (int64_t i = 0; i < r.count; i++)
			r.side[k * r.count + i] = to[k] + in[i];
	}
	for (int i = 0; i < map.n; i++) {
		r.cs[i] = st[map.p[i]];
		r.cmax[i] = op->dim[map.p[i]] - size[map.p[i]];
	}
	return r;
}

static struct dims dims_of(const struct ir_fn *fn, const struct ir_op *o, int at)
{
	struct dims l;
	l.p = ir_attrs(fn, o, at, &l.n);
	return l;
}

/* Where row k's window begins, in elements, clamped. */
static LV row_at(struct tiny *t, const struct rows *r, int64_t k, int dt, LV idx)
{
	struct em *e = t->e;
	LV off = em_ki(e->i64, r->base[k]);
	for (int i = 0; i < r->ncomp; i++) {
		LV at_ = em_index(e, dt, tiny_lane(e, idx, r->index[k * r->ncomp + i]), r->cmax[i]);
		off = LLVMBuildAdd(e->b, off, LLVMBuildMul(e->b, at_, em_ki(e->i64, r->cs[i]), ""), "");
	}
	return off;
}

/* The same not clamped, and whether it would have had to be. */
static LV row_if(struct tiny *t, const struct rows *r, int64_t k, int dt, LV idx, LV *inside)
{
	struct em *e = t->e;
	LV off = em_ki(e->i64, r->base[k]);
	int bits = dtype_info[dt].bits - (dtype_info[dt].cls == DT_INT);
	*inside = em_ki(e->i1, 1);
	for (int i = 0; i < r->ncomp; i++) {
		/* as an unsigned one a negative number is beyond all that its type has */
		LV v = tiny_lane(e, idx, r->index[k * r->ncomp + i]), most = em_ki(LLVMTypeOf(v), bits < 63 ? MIN(r->cmax[i], ((int64_t)1 << bits) - 1) : r->cmax[i]);
		*inside = r->cmax[i] < 0 ? em_ki(e->i1, 0) : LLVMBuildAnd(e->b, *inside, LLVMBuildICmp(e->b, LLVMIntULE, v, most, ""), "");
		if (dtype_info[dt].bytes < 8)
			v = LLVMBuildZExt(e->b, v, e->i64, "");
		off = LLVMBuildAdd(e->b, off, LLVMBuildMul(e->b, v, em_ki(e->i64, r->cs[i]), ""), "");
	}
	return off;
}

/* A branch that is taken as a rule: what it leads to stands behind it. */
static void often(struct em *e, LV cond, LLVMBasicBlockRef then, LLVMBasicBlockRef otherwise)
{
	LLVMMetadataRef m[3] = { LLVMMDStringInContext2(e->c, "branch_weights", 14), LLVMValueAsMetadata(em_ki(e->i32, 1000)), LLVMValueAsMetadata(em_ki(e->i32, 1)) };
	LLVMSetMetadata(LLVMBuildCondBr(e->b, cond, then, otherwise), LLVMGetMDKindIDInContext(e->c, "prof", 4), LLVMMetadataAsValue(e->c, LLVMMDNodeInContext2(e->c, m, 3)));
}

void tiny_gather(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val)
{
	struct em *e = t->e;
	struct tv *x = &val[ir_in(fn, o, 0)];
	const struct ir_type_info *op = ir_vtype(t->m, fn, ir_in(fn, o, 0)), *ti = ir_vtype(t->m, fn, ir_in(fn, o, 1)), *to = ir_vtype(t->m, fn, o->out);
	int64_t st[IR_MAX_RANK];
	if (x->splat) {
		val[o->out].ssa = em_splat(e, x->splat, tiny_lanes(to->count));
		return;
	}
	gen_strides(op->rank, op->dim, st);
	bool mem = op->count > t->most;
	struct rows r = rows_of(t, op, mem && x->stride ? x->stride : st, ti, to, dims_of(fn, o, AT_offset_dims), dims_of(fn, o, AT_collapsed), dims_of(fn, o, AT_obatch),
	                        dims_of(fn, o, AT_ibatch), dims_of(fn, o, AT_index_map), ir_attr(fn, o, AT_index_dim), dims_of(fn, o, AT_size).p);
	LV idx = tiny_ssa(t, &val[ir_in(fn, o, 1)], ti), p = mem ? x->ptr : tiny_spill_new(t, x, op), out = NULL;
	LT mt = em_mem(e, op->dtype);
	for (int64_t k = 0; k < r.n; k++) {
		LV y = tiny_load(t, op->dtype, r.count, em_gep(e, mt, p, row_at(t, &r, k, ti->dtype, idx)), r.window);
		if (!out && r.n == 1) {          /* the window's elements are in the order of the result's */
			out = y;
			break;
		}
		out = out ? out : LLVMConstNull(tiny_reg(e, to));
		for (int64_t i = 0; i < r.count; i++)
			out = LLVMBuildInsertElement(e->b, out, tiny_lane(e, y, i), em_ki(e->i32, r.side[k * r.count + i]), "");
	}
	val[o->out].ssa = out;
}

void tiny_scatter(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val)
{
	struct em *e = t->e;
	struct tv *x = &val[ir_in(fn, o, 0)];
	const struct ir_type_info *op = ir_vtype(t->m, fn, o->out), *ti = ir_vtype(t->m, fn, ir_in(fn, o, 1)), *tu = ir_vtype(t->m, fn, ir_in(fn, o, 2));
	struct dims window = dims_of(fn, o, AT_window_dims), dropped = dims_of(fn, o, AT_inserted), obatch = dims_of(fn, o, AT_ibatch);
	int64_t st[IR_MAX_RANK], size[IR_MAX_RANK];
	int nw = 0;
	gen_strides(op->rank, op->dim, st);
	for (int d = 0; d < op->rank; d++)
		size[d] = index_of_dim(dropped, d) >= 0 || index_of_dim(obatch, d) >= 0 ? 1 : tu->dim[window.p[nw++]];
	struct rows r = rows_of(t, op, st, ti, tu, window, dropped, obatch, dims_of(fn, o, AT_sbatch), dims_of(fn, o, AT_to_operand), ir_attr(fn, o, AT_index_dim), size);
	enum redop rop = (enum redop)ir_attr(fn, o, AT_redop);
	ir_fnid f = (ir_fnid)ir_attr(fn, o, AT_fn);
	int dt = op->dtype;
	LV idx = tiny_ssa(t, &val[ir_in(fn, o, 1)], ti), u = tiny_ssa(t, &val[ir_in(fn, o, 2)], tu);
	LT mt = em_mem(e, dt);
	bool mem = op->count > t->most, one = !mem && r.count == 1, combines = rop != RED_fn || f;
	LV p = mem ? x->ptr : one ? NULL : tiny_spill_new(t, x, op), all = one ? tiny_ssa(t, x, op) : NULL;
	for (int64_t k = 0; k < r.n; k++) {
		LV in, start = row_if(t, &r, k, ti->dtype, idx, &in), y = tiny_pick(e, u, r.side + k * r.count, r.count);
		if (one) {
			start = em_sel(e, in, start, em_ki(e->i64, 0));
			LV old = em_lanes(all) ? LLVMBuildExtractElement(e->b, all, start, "") : all, new = old;
			if (combines)
				tiny_merge(t, rop, f, 1, &dt, &new, &y);
			else
				new = y;
			all = tiny_insert(e, all, em_sel(e, in, new, old), start);
			continue;
		}
		LLVMBasicBlockRef put = em_block(e, "put"), past = em_block(e, "past");
		often(e, in, put, past);
		em_at(e, put);
		LV to = em_gep(e, mt, p, start), new = combines ? tiny_load(t, dt, r.count, to, r.window) : y;
		if (combines)
			tiny_merge(t, rop, f, 1, &dt, &new, &y);
		tiny_store(t, dt, r.count, to, r.window, new);
		LLVMBuildBr(e->b, past);
		em_at(e, past);
	}
	if (!mem && !one)
		all = tiny_ssa(t, &(struct tv){ .ptr = p }, op);
	val[o->out] = mem ? (struct tv){ .ptr = p } : (struct tv){ .ssa = all };
}
