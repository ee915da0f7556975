/* Groups with control flow over small values: all of it becomes one piece of code.  A value is a scalar or
 * one vector that holds all its elements in row-major order, rounded up to a power of two.  What is in the
 * spare lanes does not matter, but it is a number: a division by one undefined lane is undefined as a whole.  Views are shuffles, carries of a loop are phis, so a turn of a small loop
 * costs a few instructions.  Stacks that a loop reads or writes slice by slice stay in memory, and so do larger carries, of which a
 * turn reads and writes parts: an update writes where the value is (gen_tiny_most has seen to it that nothing reads the old one later). */
#include "emit.h"

#include <stdlib.h>

struct tv {
	LV ssa;                  /* or NULL: */
	LV ptr;                  /* in memory; element strides, in elements */
	LV splat;                /* every element the same: a scalar register value */
	const int64_t *stride;   /* of ptr; NULL: dense */
};

struct tiny { struct em *e; const struct ir_module *m; struct arena a; int64_t most; int depth; LLVMBasicBlockRef head; };     /* head: of the innermost loop */

static int lanes_of(int64_t n)
{
	int w = 1;
	while (w < n)
		w *= 2;
	return w == 1 ? 0 : w;
}

static LT reg_of(struct em *e, const struct ir_type_info *t)
{
	return em_vec(em_reg(e, t->dtype), lanes_of(t->count));
}

/* Elements idx[0 .. n) of x (-1: any of x); so are the spare lanes. */
static LV pick(struct em *e, LV x, const int64_t *idx, int64_t n)
{
	int w = lanes_of(n), from = em_lanes(x);
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

/* Flat positions of all elements of dims under strides. */
static int64_t *positions(struct arena *a, int rank, const int64_t *dim, const int64_t *stride)
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

/* If n positions lie near each other, though in no order: how many elements there are from *first, the least of them, on to the greatest.  0: far. */
static int64_t near_by(int64_t n, const int64_t *off, int64_t *first)
{
	enum { MOST = 64 };
	int64_t last = *first = off[0];
	for (int64_t i = 1; i < n; i++) {
		*first = MIN(*first, off[i]);
		last = MAX(last, off[i]);
	}
	return last - *first < MIN(MOST, 2 * n) ? last - *first + 1 : 0;
}

/* count elements at p, at the given offsets, as a register value. */
static LV load_at(struct tiny *t, int dt, int64_t n, LV p, const int64_t *off)
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
		return em_splat(e, load_at(t, dt, 1, p, off), lanes_of(n));
	if (n == 1 || (run && n > 1)) {
		LV x = LLVMBuildLoad2(e->b, n == 1 ? mt : em_vec(mt, (int)n), em_gep(e, mt, p, em_ki(e->i64, off[0])), "");
		LLVMSetAlignment(x, size);
		int w = lanes_of(n);
		if (n > 1 && w != n) {
			int v[256];
			for (int i = 0; i < w; i++)
				v[i] = i < n ? i : 0;
			x = em_shuffle(e, x, NULL, v, w);
		}
		return em_from_mem(e, dt, x);
	}
	int64_t first, span = near_by(n, off, &first);
	if (span) {                              /* one load of all that lies between, and a shuffle */
		int v[256], w = lanes_of(n);
		LV all = LLVMBuildLoad2(e->b, em_vec(mt, (int)span), em_gep(e, mt, p, em_ki(e->i64, first)), "");
		LLVMSetAlignment(all, size);
		for (int i = 0; i < w; i++)
			v[i] = i < n ? (int)(off[i] - first) : 0;
		return em_from_mem(e, dt, em_shuffle(e, all, NULL, v, w));
	}
	LV x = LLVMConstNull(em_vec(mt, lanes_of(n)));
	for (int64_t i = 0; i < n; i++) {
		LV y = LLVMBuildLoad2(e->b, mt, em_gep(e, mt, p, em_ki(e->i64, off[i])), "");
		LLVMSetAlignment(y, size);
		x = LLVMBuildInsertElement(e->b, x, y, LLVMConstInt(e->i32, (unsigned)i, false), "");
	}
	return em_from_mem(e, dt, x);
}

static void store_at(struct tiny *t, int dt, int64_t n, LV p, const int64_t *off, LV x)
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

static LV ssa(struct tiny *t, struct tv *v, const struct ir_type_info *ti)
{
	if (v->ssa)
		return v->ssa;
	if (v->splat)
		return em_splat(t->e, v->splat, lanes_of(ti->count));
	int64_t st[IR_MAX_RANK];
	gen_strides(ti->rank, ti->dim, st);
	LV x = load_at(t, ti->dtype, ti->count, v->ptr, positions(&t->a, ti->rank, ti->dim, v->stride ? v->stride : st));
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

/* Write the value to memory at p, of these strides; NULL: dense. */
static void spill(struct tiny *t, struct tv *v, const struct ir_type_info *ti, LV p, const int64_t *to)
{
	struct em *e = t->e;
	LT mt = em_mem(e, ti->dtype);
	if (!ti->count)
		return;
	if (v->ssa || ti->count <= t->most) {
		int64_t st[IR_MAX_RANK];
		gen_strides(ti->rank, ti->dim, st);
		store_at(t, ti->dtype, ti->count, p, positions(&t->a, ti->rank, ti->dim, to ? to : st), ssa(t, v, ti));
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

static LV spill_new(struct tiny *t, struct tv *v, const struct ir_type_info *ti)
{
	LV p = em_alloca(t->e, LLVMArrayType2(em_mem(t->e, ti->dtype), (uint64_t)MAX(ti->count, 1)));
	spill(t, v, ti, p, NULL);
	return p;
}

static LV lane_at(struct em *e, LV x, int64_t i)
{
	return em_lanes(x) ? LLVMBuildExtractElement(e->b, x, LLVMConstInt(e->i32, (unsigned)i, false), "") : x;
}

static void function(struct tiny *t, const struct ir_fn *fn, struct tv *arg, struct tv *res, LV *out_ptr);

static void region_scalar(struct tiny *t, ir_fnid f, int n, const LV *arg, LV *out)
{
	const struct ir_fn *g = ir_fn_of(t->m, f);
	struct tv *a = ARENA_NEW(&t->a, struct tv, g->nparam + 1), *r = ARENA_NEW(&t->a, struct tv, g->result.n + 1);
	for (int i = 0; i < n; i++)
		a[i].ssa = arg[i];
	/* the reducer's functions work on vectors as well: its constants are splats */
	function(t, g, a, r, NULL);
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

/* Combine two sets of n values (same shapes). */
static void merge(struct tiny *t, enum redop rop, ir_fnid f, int n, const int *dt, LV *acc, const LV *x)
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
			arg[k] = lane_at(t->e, acc[k], i);
			arg[n + k] = lane_at(t->e, x[k], i);
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

static void reduce(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val)
{
	struct em *e = t->e;
	int n = (int)o->nin / 2, nd, dt[8], at_[8];
	enum redop rop = (enum redop)ir_attr(fn, o, AT_redop);
	ir_fnid f = (ir_fnid)ir_attr(fn, o, AT_fn);
	const int64_t *dims = ir_attrs(fn, o, AT_dims, &nd);
	const struct ir_type_info *ti = ir_vtype(t->m, fn, ir_in(fn, o, 0)), *to = ir_vtype(t->m, fn, o->out);
	int64_t st[IR_MAX_RANK], ks[IR_MAX_RANK], kd[IR_MAX_RANK], rs[IR_MAX_RANK], rd[IR_MAX_RANK], R = 1;
	int nk = 0, nr = 0;
	gen_strides(ti->rank, ti->dim, st);
	for (int d = 0; d < ti->rank; d++) {
		if (in_list(dims, nd, d)) {
			rs[nr] = st[d];
			rd[nr++] = ti->dim[d];
			R *= ti->dim[d];
		} else {
			ks[nk] = st[d];
			kd[nk++] = ti->dim[d];
		}
	}
	int64_t *kp = positions(&t->a, nk, kd, ks), *rp = positions(&t->a, nr, rd, rs), *idx = ARENA_NEW(&t->a, int64_t, to->count + R + 1);
	LV *part = ARENA_NEW(&t->a, LV, (R + 1) * n), init[8], x[8];
	for (int k = 0; k < n; k++) {
		const struct ir_type_info *tk = ir_vtype(t->m, fn, ir_in(fn, o, (uint32_t)k));
		dt[k] = tk->dtype;
		at_[k] = rop == RED_fn ? dt[k] : dt[k] == DT_bf16 || dt[k] == DT_f16 ? DT_f32 : dt[k];
		init[k] = em_splat(e, ssa(t, &val[ir_in(fn, o, (uint32_t)(n + k))], ir_vtype(t->m, fn, ir_in(fn, o, (uint32_t)(n + k)))), lanes_of(to->count));
		if (!ti->count)
			continue;
		x[k] = ssa(t, &val[ir_in(fn, o, (uint32_t)k)], tk);
		for (int64_t r = 0; r < R && to->count > 1; r++) {
			for (int64_t i = 0; i < to->count; i++)
				idx[i] = kp[i] + rp[r];
			part[r * n + k] = pick(e, x[k], idx, to->count);
		}
	}
	/* neighbours first, then their sums: a fixed tree */
	for (int64_t left = R; left > 1 && ti->count && to->count == 1; left = (left + 1) / 2) {
		LV y[8];
		for (int k = 0; k < n; k++) {
			x[k] = pick(e, x[k], rp, left);
			for (int64_t i = 0; i < left / 2; i++)
				idx[i] = 2 * i;
			part[k] = pick(e, x[k], idx, left / 2);
			for (int64_t i = 0; i < left / 2; i++)
				idx[i]++;
			y[k] = pick(e, x[k], idx, left / 2);
		}
		merge(t, rop, f, n, at_, part, y);
		for (int64_t i = 0; i < left; i++)
			rp[i] = i;               /* from here on they are in order */
		for (int k = 0; k < n; k++) {
			LV last = left % 2 ? lane_at(e, x[k], left - 1) : NULL;
			x[k] = last ? LLVMBuildInsertElement(e->b, pick(e, part[k], rp, left / 2 + 1), last, em_ki(e->i32, left / 2), "") : part[k];
		}
	}
	for (int k = 0; k < n && ti->count && to->count == 1; k++)
		part[k] = pick(e, x[k], rp, 1);
	for (int64_t left = ti->count && to->count > 1 ? R : 0; left > 1; left = (left + 1) / 2)
		for (int64_t i = 0; i < left / 2 || (i == left / 2 && left % 2); i++) {
			if (2 * i + 1 < left)
				merge(t, rop, f, n, at_, &part[2 * i * n], &part[(2 * i + 1) * n]);
			memmove(&part[i * n], &part[2 * i * n], sizeof *part * (size_t)n);
		}
	if (ti->count)
		merge(t, rop, f, n, at_, init, part);
	for (int k = 0; k < n; k++)
		val[o->out + k].ssa = em_round(e, dt[k], init[k]);
}

/* --- products -------------------------------------------------------------- */

/* An operand of products. */
struct factor { struct tv *v; const struct ir_type_info *ti; LV ssa; int64_t *place; int from, in; };   /* place: of elements in memory; from, in: its type, the sum's */

static struct factor factor(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, uint32_t k, struct tv *val, enum dtype in)
{
	ir_val v = ir_in(fn, o, k);
	struct factor f = { .v = &val[v], .ti = ir_vtype(t->m, fn, v), .in = in };
	f.from = f.ti->dtype;
	if (f.v->ptr && !f.v->ssa && f.ti->count > t->most) {
		int64_t st[IR_MAX_RANK];
		gen_strides(f.ti->rank, f.ti->dim, st);
		f.place = positions(&t->a, f.ti->rank, f.ti->dim, f.v->stride ? f.v->stride : st);
	} else if (!f.v->splat) {
		f.ssa = ssa(t, f.v, f.ti);
	}
	return f;
}

/* Is x made before the innermost loop, or from what is? */
static bool before_loop(const struct tiny *t, LV x, int deep)
{
	if (!t->head || !LLVMIsAInstruction(x))
		return true;
	LLVMBasicBlockRef b = LLVMGetInstructionParent(x), in = t->head;
	while (in && in != b)
		in = LLVMGetNextBasicBlock(in);
	return !in || (deep && LLVMIsAShuffleVectorInst(x) && before_loop(t, LLVMGetOperand(x, 0), deep - 1) && before_loop(t, LLVMGetOperand(x, 1), deep - 1));
}

/* What a vector of n elements at these positions takes, in vector instructions; they are shuffled before the loop, if they are known there. */
static int64_t fetch_cost(const struct tiny *t, const struct factor *f, int64_t n, const int64_t *at, int64_t step)
{
	int64_t regs = (n * dtype_info[f->in].bytes + t->e->t->vbytes - 1) / t->e->t->vbytes;
	bool run = true, same = true;
	for (int64_t i = 1; i < n; i++) {
		run &= at[i * step] == at[0] + i;
		same &= at[i * step] == at[0];
	}
	if (f->place) {
		int64_t first, pos[256];
		for (int64_t i = 0; i < n; i++)
			pos[i] = f->place[at[i * step] < 0 ? 0 : at[i * step]];
		return same ? 1 : run ? regs : near_by(n, pos, &first) ? 4 * regs : 2 * n;
	}
	return !f->ssa || before_loop(t, f->ssa, 4) ? 0 : same ? 1 : run ? regs : 3 * regs;
}

/* Elements at[i * step], i < n, of an operand, as the sum's type; -1: any.  so are the spare lanes. */
static LV fetch(struct tiny *t, const struct factor *f, int64_t n, const int64_t *at, int64_t step)
{
	struct em *e = t->e;
	int64_t idx[256], first = 0;
	LV x;
	while (first < n - 1 && at[first * step] < 0)
		first++;
	for (int64_t i = 0; i < n; i++)
		idx[i] = at[at[i * step] < 0 ? first * step : i * step];
	if (f->v->splat) {
		x = em_splat(e, f->v->splat, lanes_of(n));
	} else if (f->place) {
		for (int64_t i = 0; i < n; i++)
			idx[i] = f->place[idx[i]];
		x = load_at(t, f->from, n, f->v->ptr, idx);
	} else {
		x = pick(e, f->ssa, idx, n);
	}
	return f->from == f->in ? x : em_elem(e, ELEM_convert, f->from, f->in, &x);
}

static LV plus(struct em *e, int dt, LV x, LV y) { return em_elem(e, ELEM_add, dt, dt, (LV[]){ x, y }); }

/* x * y + z, rounded once; z NULL: x * y. */
static LV times(struct em *e, int dt, LV x, LV y, LV z)
{
	if (z && dtype_info[dt].cls == DT_FLOAT)
		return em_intr(e, "llvm.fma", x, 2, (LV[]){ y, z });
	x = em_elem(e, ELEM_multiply, dt, dt, (LV[]){ x, y });
	return z ? plus(e, dt, x, z) : x;
}

/* Which of n elements there are, as <lanes x i1>; NULL: all.  spare: do the spare lanes count? */
static LV there(struct em *e, int64_t n, const int64_t *at, bool spare)
{
	LV m[256];
	int w = lanes_of(n);
	bool all = true;
	for (int i = 0; i < MAX(w, 1); i++) {
		bool is = i < n ? !at || at[i] >= 0 : spare;
		all &= is;
		m[i] = LLVMConstInt(e->i1, is, false);
	}
	return all ? NULL : w ? LLVMConstVector(m, (unsigned)w) : m[0];
}

/* The elements of the result are lanes, and term after term is added. */
static LV by_terms(struct tiny *t, const struct gen_products *p, const struct factor *f, int dt)
{
	enum { CHAINS = 4 };
	struct em *e = t->e;
	LV sum[CHAINS] = { NULL };
	int chains = p->terms >= 2 * CHAINS ? CHAINS : p->terms >= CHAINS ? 2 : 1, c = 0;
	for (int64_t k = 0; k < p->terms; k++) {
		const int64_t *at = p->at[0] + k * p->n;
		LV in = there(e, p->n, at, true);
		if (in && LLVMIsNull(in))
			continue;
		LV x = fetch(t, &f[0], p->n, at, 1), y = fetch(t, &f[1], p->n, p->at[1] + k * p->n, 1), s = times(e, dt, x, y, sum[c]);
		sum[c] = in ? em_sel(e, in, s, sum[c] ? sum[c] : LLVMConstNull(LLVMTypeOf(s))) : s;
		c = (c + 1) % chains;
	}
	for (int step = 1; step < chains; step *= 2)
		for (int i = 0; i + step < chains; i += 2 * step)
			sum[i] = sum[i] && sum[i + step] ? plus(e, dt, sum[i], sum[i + step]) : sum[i];
	return sum[0];
}

/* The sums of pairs of neighbours in a, then in b (NULL: there is none). */
static LV pairs(struct em *e, int dt, LV a, LV b)
{
	LV y[2];
	int n = b ? em_lanes(a) : em_lanes(a) / 2, v[256];
	for (int odd = 0; odd < 2; odd++) {
		for (int j = 0; j < n; j++)
			v[j] = 2 * j + odd;
		y[odd] = n > 1 ? em_shuffle(e, a, b, v, n) : lane_at(e, a, odd);
	}
	return plus(e, dt, y[0], y[1]);
}

static LV beside(struct em *e, LV a, LV b)
{
	int n = em_lanes(a), v[256];
	if (!n)
		return LLVMBuildInsertElement(e->b, em_splat(e, a, 2), b, em_ki(e->i32, 1), "");
	for (int j = 0; j < 2 * n; j++)
		v[j] = j;
	return em_shuffle(e, a, b, v, 2 * n);
}

/* The terms are lanes.  Elements i .. i + n of the result, n a power of two, those from p->n on whatever they are: of the vectors of their products
 * neighbours are added up until there is a lane for each.  left: lanes that are to be left of an element, a power of two. */
static LV by_elements(struct tiny *t, const struct gen_products *p, const struct factor *f, int dt, int64_t i, int64_t n, int left)
{
	struct em *e = t->e;
	int most = e->t->vbytes / dtype_info[dt].bytes, w = MIN(MAX(lanes_of(p->terms), 1), most), v[256];
	if (n > 1) {
		/* while they fit into a vector, else side by side */
		bool together = n * left <= w;
		int each = together ? left * 2 : left;
		LV a = by_elements(t, p, f, dt, i, n / 2, each), b = i + n / 2 < p->n ? by_elements(t, p, f, dt, i + n / 2, n / 2, each) : a;
		return together ? pairs(e, dt, a, b) : beside(e, a, b);
	}
	LV x = times(e, dt, fetch(t, &f[0], p->terms, p->at[0] + i, p->n), fetch(t, &f[1], p->terms, p->at[1] + i, p->n), NULL), in = there(e, p->terms, NULL, false);
	if (in)
		x = em_sel(e, in, x, LLVMConstNull(LLVMTypeOf(x)));
	for (int k = em_lanes(x); k > most; k /= 2) {        /* halves, as far as they are whole registers */
		for (int j = 0; j < k; j++)
			v[j] = j;
		x = plus(e, dt, em_shuffle(e, x, NULL, v, k / 2), em_shuffle(e, x, NULL, v + k / 2, k / 2));
	}
	for (; w > left; w /= 2)
		x = pairs(e, dt, x, NULL);
	return x;
}

static void products(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val)
{
	struct em *e = t->e;
	const struct ir_type_info *to = ir_vtype(t->m, fn, o->out);
	enum dtype dt = gen_products_sum(ir_vtype(t->m, fn, ir_in(fn, o, 0))->dtype, to->dtype);
	struct gen_products p;
	gen_products_of(&t->a, t->m, fn, o, &p);
	if (!p.terms) {
		val[o->out].ssa = LLVMConstNull(reg_of(e, to));
		return;
	}
	const struct factor f[2] = { factor(t, fn, o, 0, val, dt), factor(t, fn, o, 1, val, dt) };
	int64_t size = dtype_info[dt].bytes, regs = (p.n * size + e->t->vbytes - 1) / e->t->vbytes, cost[2] = { 0, 3 * p.n };
	bool all = p.terms <= 256;
	for (int64_t k = 0; k < p.terms; k++)
		for (int s = 0; s < 2; s++)
			cost[0] += fetch_cost(t, &f[s], p.n, p.at[s] + k * p.n, 1) + regs;
	regs = (p.terms * size + e->t->vbytes - 1) / e->t->vbytes;
	for (int64_t i = 0; i < p.n && all; i++) {
		for (int s = 0; s < 2; s++)
			cost[1] += fetch_cost(t, &f[s], p.terms, p.at[s] + i, p.n) + regs;
		for (int64_t k = 0; k < p.terms; k++)
			all &= p.at[0][k * p.n + i] >= 0;
	}
	LV x = all && cost[1] < cost[0] ? by_elements(t, &p, f, dt, 0, MAX(lanes_of(p.n), 1), 1) : by_terms(t, &p, f, dt);
	val[o->out].ssa = em_round(e, to->dtype, x ? x : LLVMConstNull(reg_of(e, to)));
}

static void concatenate(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val)
{
	struct em *e = t->e;
	const struct ir_type_info *to = ir_vtype(t->m, fn, o->out);
	int dim = (int)ir_attr(fn, o, AT_dim);
	int64_t post = 1, start = 0;
	for (int d = dim + 1; d < to->rank; d++)
		post *= to->dim[d];
	int w = lanes_of(to->count);
	LV out = NULL;
	for (uint32_t i = 0; i < o->nin; i++) {
		const struct ir_type_info *ti = ir_vtype(t->m, fn, ir_in(fn, o, i));
		if (!ti->count)
			continue;
		LV x = ssa(t, &val[ir_in(fn, o, i)], ti);
		int64_t idx[256], n = ti->dim[dim];
		for (int64_t k = 0; k < to->count; k++) {
			int64_t p = k % post, mid = k / post % to->dim[dim], pre = k / post / to->dim[dim];
			idx[k] = mid >= start && mid < start + n ? (pre * n + mid - start) * post + p : -1;
		}
		LV y = pick(e, x, idx, to->count);
		if (!w || !out) {
			out = y;
		} else {
			int v[256];
			for (int k = 0; k < w; k++)
				v[k] = k < to->count && idx[k] >= 0 ? k + w : k;
			out = em_shuffle(e, out, y, v, w);
		}
		start += n;
	}
	val[o->out].ssa = out;
}

static void pad(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val)
{
	struct em *e = t->e;
	const struct ir_type_info *to = ir_vtype(t->m, fn, o->out), *ti = ir_vtype(t->m, fn, ir_in(fn, o, 0));
	int n, w = lanes_of(to->count);
	const int64_t *low = ir_attrs(fn, o, AT_low, &n), *in = ir_attrs(fn, o, AT_interior, &n);
	int64_t st[IR_MAX_RANK], ix[IR_MAX_RANK] = { 0 }, idx[256];
	gen_strides(ti->rank, ti->dim, st);
	LV p = em_splat(e, ssa(t, &val[ir_in(fn, o, 1)], ir_vtype(t->m, fn, ir_in(fn, o, 1))), w);
	LV mask[256];
	bool any = false;
	for (int64_t k = 0; k < to->count; k++) {
		int64_t at_ = 0;
		for (int d = 0; d < to->rank && at_ >= 0; d++) {
			int64_t c = ix[d] - low[d];
			if (c < 0 || c % (in[d] + 1) || c / (in[d] + 1) >= ti->dim[d])
				at_ = -1;
			else
				at_ += c / (in[d] + 1) * st[d];
		}
		idx[k] = at_;
		any |= at_ >= 0;
		mask[k] = LLVMConstInt(e->i1, at_ >= 0, false);
		for (int d = to->rank - 1; d >= 0 && ++ix[d] == to->dim[d]; d--)
			ix[d] = 0;
	}
	if (!any) {
		val[o->out].ssa = p;
		return;
	}
	LV x = pick(e, ssa(t, &val[ir_in(fn, o, 0)], ti), idx, to->count);
	for (int k = (int)to->count; k < w; k++)
		mask[k] = LLVMConstInt(e->i1, 0, false);
	val[o->out].ssa = em_sel(e, w ? LLVMConstVector(mask, (unsigned)w) : mask[0], x, p);
}

/* A box of an operand at run-time starts: element k of the result is at flat base + pos[k]. */
static LV box_base(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, uint32_t first, struct tv *val,
                   const struct ir_type_info *whole, const int64_t *size, const int64_t *stride)
{
	struct em *e = t->e;
	LV base = em_ki(e->i64, 0);
	for (int d = 0; d < whole->rank; d++) {
		int64_t hi = whole->dim[d] - size[d];
		if (hi <= 0)
			continue;
		ir_val v = ir_in(fn, o, first + (uint32_t)d);
		const struct ir_type_info *ti = ir_vtype(t->m, fn, v);
		LV s = em_index(t->e, ti->dtype, ssa(t, &val[v], ti), hi);
		base = LLVMBuildAdd(e->b, base, LLVMBuildMul(e->b, s, em_ki(e->i64, stride[d]), ""), "");
	}
	return base;
}

static void dynamic_slice(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val)
{
	struct em *e = t->e;
	struct tv *x = &val[ir_in(fn, o, 0)];
	const struct ir_type_info *ti = ir_vtype(t->m, fn, ir_in(fn, o, 0)), *to = ir_vtype(t->m, fn, o->out);
	int64_t st[IR_MAX_RANK];
	gen_strides(ti->rank, ti->dim, st);
	const int64_t *from = x->ptr && x->stride ? x->stride : st;
	LV base = box_base(t, fn, o, 1, val, ti, to->dim, from);
	if (x->splat) {
		val[o->out].splat = x->splat;
		return;
	}
	if (x->ssa && to->count == 1) {
		val[o->out].ssa = em_lanes(x->ssa) ? LLVMBuildExtractElement(e->b, x->ssa, base, "") : x->ssa;
		return;
	}
	LV p = x->ptr ? x->ptr : spill_new(t, x, ti);
	LT mt = em_mem(e, ti->dtype);
	val[o->out].ssa = load_at(t, ti->dtype, to->count, em_gep(e, mt, p, base), positions(&t->a, to->rank, to->dim, from));
}

/* x with u as its element i. */
static LV insert_at(struct em *e, LV x, LV u, LV i)
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

static void dynamic_update(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val)
{
	struct em *e = t->e;
	const struct ir_type_info *ti = ir_vtype(t->m, fn, o->out), *tu = ir_vtype(t->m, fn, ir_in(fn, o, 1));
	int64_t st[IR_MAX_RANK];
	gen_strides(ti->rank, ti->dim, st);
	LV base = box_base(t, fn, o, 2, val, ti, tu->dim, st), u = ssa(t, &val[ir_in(fn, o, 1)], tu);
	if (ti->count > t->most) {
		LV p = val[ir_in(fn, o, 0)].ptr;
		store_at(t, ti->dtype, tu->count, em_gep(e, em_mem(e, ti->dtype), p, base), positions(&t->a, tu->rank, tu->dim, st), u);
		val[o->out].ptr = p;
		return;
	}
	if (tu->count == 1) {
		val[o->out].ssa = insert_at(e, ssa(t, &val[ir_in(fn, o, 0)], ti), u, base);
		return;
	}
	LV p = spill_new(t, &val[ir_in(fn, o, 0)], ti);
	LT mt = em_mem(e, ti->dtype);
	store_at(t, ti->dtype, tu->count, em_gep(e, mt, p, base), positions(&t->a, tu->rank, tu->dim, st), u);
	struct tv m = { .ptr = p };
	val[o->out].ssa = ssa(t, &m, ti);
}

/* --- rows of a gather or scatter -------------------------------------------- */

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
	r.base = positions(&t->a, nb, dim, bo);
	r.window = positions(&t->a, nw, wdim, wst);
	r.index = ARENA_NEW(&t->a, int64_t, r.n * map.n + 1);
	r.side = ARENA_NEW(&t->a, int64_t, r.n * r.count + 1);
	int64_t *from = positions(&t->a, nb, dim, bi), *to = positions(&t->a, nb, dim, bs), *in = positions(&t->a, nw, wdim, wss);
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

/* Where row k's window begins, in elements, clamped; *inside, if not NULL: whether it had to be. */
static LV row_at(struct tiny *t, const struct rows *r, int64_t k, int dt, LV idx, LV *inside)
{
	struct em *e = t->e;
	LV off = em_ki(e->i64, r->base[k]);
	if (inside)
		*inside = em_ki(e->i1, 1);
	for (int i = 0; i < r->ncomp; i++) {
		LV v = lane_at(e, idx, r->index[k * r->ncomp + i]), at_ = em_index(e, dt, v, r->cmax[i]);
		off = LLVMBuildAdd(e->b, off, LLVMBuildMul(e->b, at_, em_ki(e->i64, r->cs[i]), ""), "");
		if (!inside)
			continue;
		LV wide = dtype_info[dt].cls != DT_INT ? LLVMBuildZExt(e->b, v, e->i64, "") : LLVMBuildSExt(e->b, v, e->i64, "");
		*inside = LLVMBuildAnd(e->b, *inside, LLVMBuildICmp(e->b, LLVMIntEQ, wide, at_, ""), "");
	}
	return off;
}

static void gather(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val)
{
	struct em *e = t->e;
	struct tv *x = &val[ir_in(fn, o, 0)];
	const struct ir_type_info *op = ir_vtype(t->m, fn, ir_in(fn, o, 0)), *ti = ir_vtype(t->m, fn, ir_in(fn, o, 1)), *to = ir_vtype(t->m, fn, o->out);
	int64_t st[IR_MAX_RANK];
	if (x->splat) {
		val[o->out].ssa = em_splat(e, x->splat, lanes_of(to->count));
		return;
	}
	gen_strides(op->rank, op->dim, st);
	bool mem = op->count > t->most;
	struct rows r = rows_of(t, op, mem && x->stride ? x->stride : st, ti, to, dims_of(fn, o, AT_offset_dims), dims_of(fn, o, AT_collapsed), dims_of(fn, o, AT_obatch),
	                        dims_of(fn, o, AT_ibatch), dims_of(fn, o, AT_index_map), ir_attr(fn, o, AT_index_dim), dims_of(fn, o, AT_size).p);
	LV idx = ssa(t, &val[ir_in(fn, o, 1)], ti), p = mem ? x->ptr : spill_new(t, x, op), out = NULL;
	LT mt = em_mem(e, op->dtype);
	for (int64_t k = 0; k < r.n; k++) {
		LV y = load_at(t, op->dtype, r.count, em_gep(e, mt, p, row_at(t, &r, k, ti->dtype, idx, NULL)), r.window);
		if (!out && r.n == 1) {          /* the window's elements are in the order of the result's */
			out = y;
			break;
		}
		out = out ? out : LLVMConstNull(reg_of(e, to));
		for (int64_t i = 0; i < r.count; i++)
			out = LLVMBuildInsertElement(e->b, out, lane_at(e, y, i), em_ki(e->i32, r.side[k * r.count + i]), "");
	}
	val[o->out].ssa = out;
}

static void scatter(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val)
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
	LV idx = ssa(t, &val[ir_in(fn, o, 1)], ti), u = ssa(t, &val[ir_in(fn, o, 2)], tu);
	LT mt = em_mem(e, dt);
	bool mem = op->count > t->most, one = !mem && r.count == 1, combines = rop != RED_fn || f;
	LV p = mem ? x->ptr : one ? NULL : spill_new(t, x, op), all = one ? ssa(t, x, op) : NULL;
	for (int64_t k = 0; k < r.n; k++) {
		LV in, start = row_at(t, &r, k, ti->dtype, idx, &in), y = pick(e, u, r.side + k * r.count, r.count);
		if (one) {
			LV old = em_lanes(all) ? LLVMBuildExtractElement(e->b, all, start, "") : all, new = old;
			if (combines)
				merge(t, rop, f, 1, &dt, &new, &y);
			else
				new = y;
			all = insert_at(e, all, em_sel(e, in, new, old), start);
			continue;
		}
		LLVMBasicBlockRef put = em_block(e, "put"), past = em_block(e, "past");
		LLVMBuildCondBr(e->b, in, put, past);
		em_at(e, put);
		LV to = em_gep(e, mt, p, start), new = combines ? load_at(t, dt, r.count, to, r.window) : y;
		if (combines)
			merge(t, rop, f, 1, &dt, &new, &y);
		store_at(t, dt, r.count, to, r.window, new);
		LLVMBuildBr(e->b, past);
		em_at(e, past);
	}
	if (!mem && !one)
		all = ssa(t, &(struct tv){ .ptr = p }, op);
	val[o->out] = mem ? (struct tv){ .ptr = p } : (struct tv){ .ssa = all };
}

/* --- control flow --------------------------------------------------------- */

static void case_(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val)
{
	struct em *e = t->e;
	int n;
	const int64_t *f = ir_attrs(fn, o, AT_branch, &n);
	LV idx = ssa(t, &val[ir_in(fn, o, 0)], ir_vtype(t->m, fn, ir_in(fn, o, 0)));
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
			arg[i - 1] = (struct tv){ .ssa = ssa(t, &val[ir_in(fn, o, i)], ti) };
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
		function(t, ir_fn_of(t->m, (ir_fnid)f[i]), mine, res, NULL);
		for (uint32_t k = 0; k < o->nout; k++) {
			const struct ir_type_info *ti = ir_vtype(t->m, fn, o->out + k);
			if (ti->count > t->most)         /* an operand's memory, of all branches the same */
				val[o->out + k] = res[k];
			else
				in[k * (uint32_t)n + (uint32_t)i] = ssa(t, &res[k], ti);
		}
		from[i] = e->scope[e->cur].block;
		LLVMBuildBr(e->b, end);
	}
	em_at(e, end);
	for (uint32_t k = 0; k < o->nout; k++) {
		if (ir_vtype(t->m, fn, o->out + k)->count > t->most)
			continue;
		LV phi = LLVMBuildPhi(e->b, reg_of(e, ir_vtype(t->m, fn, o->out + k)), "");
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
	return (struct tv){ .ssa = load_at(t, ti->dtype, n, p, positions(&t->a, ti->rank - 1, ti->dim + 1, s + 1)) };
}

/* A copy of x at p; NULL: on the stack. */
static struct tv place(struct tiny *t, struct tv *x, const struct ir_type_info *ti, LV p)
{
	if (!p)
		return (struct tv){ .ptr = spill_new(t, x, ti) };
	spill(t, x, ti, p, NULL);
	return (struct tv){ .ptr = p };
}

/* out: where results that are memory should lie, NULL = here. */
static void loop(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val, LV *out)
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
				x[k] = (struct tv){ .ssa = ssa(t, &x[k], ti[k]) };
			else if (t->depth == 1)          /* in loops further in it is already where it may be written */
				x[k] = place(t, &x[k], ti[k], out ? out[l.x[k].result] : NULL);
			break;
		case ROLE_CONST:
			if (ti[k]->count <= t->most)
				x[k] = (struct tv){ .ssa = ssa(t, &x[k], ti[k]) };
			break;
		case ROLE_IN: case ROLE_IN_REV:
			if (!x[k].ptr && !x[k].splat)
				x[k] = (struct tv){ .ptr = spill_new(t, &x[k], ti[k]) };
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
				x[l.made[c]].ssa = phi[c] = LLVMBuildPhi(e->b, reg_of(e, ti[l.made[c]]), "");
		if (trip < 0) {
			struct tv *asked = ARENA_NEW(&t->a, struct tv, n + 1), go = { 0 };
			for (int k = 0; k < n; k++)
				asked[l.x[k].asked - 1] = x[k];
			function(t, l.cond, asked, &go, NULL);
			LV g = ssa(t, &go, ir_vtype(t->m, l.cond, l.cond->result.p[0]));
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
		function(t, l.body, arg, res, NULL);
		LV next[2];
		for (int j = ncarry; j < l.nmade; j++) {
			int k = l.made[j];
			const struct ir_type_info *ts = ir_vtype(t->m, l.body, l.body->result.p[j]);
			int64_t st[IR_MAX_RANK], cnt = ts->count;
			gen_strides(ts->rank, ts->dim, st);
			LT mt = em_mem(e, ts->dtype);
			LV row = ir_role_is_reversed(l.x[k].role) ? rev : i;
			store_at(t, ts->dtype, cnt, em_gep(e, mt, x[k].ptr, LLVMBuildMul(e->b, row, em_ki(e->i64, cnt), "")),
			         positions(&t->a, ts->rank, ts->dim, st), ssa(t, &res[j], ts));
		}
		LV *again = ARENA_NEW(&t->a, LV, ncarry + 1);
		for (int k = 0; k < ncarry; k++)
			again[k] = phi[k] ? ssa(t, &res[k], ir_vtype(t->m, l.body, l.body->result.p[k])) : NULL;
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

/* --- a function ------------------------------------------------------------ */

static void op(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val, LV *out)
{
	struct em *e = t->e;
	const struct ir_type_info *to = ir_vtype(t->m, fn, o->out);
	const struct ir_type_info *ti = o->nin ? ir_vtype(t->m, fn, ir_in(fn, o, 0)) : NULL;
	struct tv *x = o->nin ? &val[ir_in(fn, o, 0)] : NULL, *r = &val[o->out];
	int64_t st[IR_MAX_RANK], ps[IR_MAX_RANK], base;
	int w = lanes_of(to->count);
	if (o->kind == IR_loop) {
		loop(t, fn, o, val, out);
		return;
	}
	if (o->kind == IR_case) {
		case_(t, fn, o, val);
		return;
	}
	if (o->kind == IR_call) {
		struct tv *arg = ARENA_NEW(&t->a, struct tv, o->nin + 1), *res = ARENA_NEW(&t->a, struct tv, o->nout + 1);
		for (uint32_t i = 0; i < o->nin; i++)
			arg[i] = val[ir_in(fn, o, i)];
		function(t, ir_fn_of(t->m, (ir_fnid)ir_attr(fn, o, AT_fn)), arg, res, out);
		memcpy(r, res, sizeof *res * o->nout);
		return;
	}
	if (!to->count) {
		for (uint32_t k = 0; k < o->nout; k++)
			r[k].ssa = LLVMGetUndef(em_reg(e, ir_vtype(t->m, fn, o->out + k)->dtype));
		return;
	}
	if (o->kind == IR_reduce) {
		reduce(t, fn, o, val);
		return;
	}
	if (o->kind == IR_dot || o->kind == IR_convolution) {
		products(t, fn, o, val);
		return;
	}
	if (ir_is_elem(o->kind)) {
		LV a[3] = { NULL, NULL, NULL };
		int lanes = 0;
		for (uint32_t i = 0; i < o->nin; i++) {
			a[i] = ssa(t, &val[ir_in(fn, o, i)], ir_vtype(t->m, fn, ir_in(fn, o, i)));
			lanes = MAX(lanes, em_lanes(a[i]));
		}
		for (uint32_t i = 0; i < o->nin; i++)
			a[i] = em_splat(e, a[i], lanes);
		r->ssa = em_elem(e, ir_elem(o->kind), ir_vtype(t->m, fn, ir_in(fn, o, o->nin > 1 ? 1 : 0))->dtype, to->dtype, a);
		return;
	}
	if (ti)
		gen_strides(ti->rank, ti->dim, st);
	if (x && x->splat && (ir_info(o->kind)->flags & IR_VIEW) && o->kind != IR_bitcast_convert) {
		*r = (struct tv){ .splat = x->splat, .ssa = to->count <= t->most ? em_splat(e, x->splat, w) : NULL };
		return;
	}
	switch (o->kind) {
	case IR_constant: {
		size_t nb;
		const char *p = ir_blob_data(t->m, (ir_blob)ir_attr(fn, o, AT_data), &nb);
		int es = dtype_info[to->dtype].bytes;
		if (nb == (size_t)es) {
			r->splat = em_const(e, to->dtype, p, 0);
			if (to->count <= t->most)
				r->ssa = em_splat(e, r->splat, w);
			return;
		}
		LV v[256];
		for (int i = 0; i < w; i++)
			v[i] = em_const(e, to->dtype, p + (i < to->count ? i : 0) * es, 0);
		r->ssa = LLVMConstVector(v, (unsigned)w);
		return;
	}
	case IR_iota: {
		gen_strides(to->rank, to->dim, st);
		int dim = (int)ir_attr(fn, o, AT_dim);
		LV v[256];
		for (int i = 0; i < MAX(w, 1); i++)
			v[i] = LLVMConstInt(e->i64, (unsigned long long)(i < to->count ? i / st[dim] % to->dim[dim] : 0), false);
		LV k = w ? LLVMConstVector(v, (unsigned)w) : v[0];
		r->ssa = em_elem(e, ELEM_convert, DT_i64, to->dtype, &k);
		return;
	}
	case IR_reshape: case IR_sharding_constraint:
		*r = *x;
		if (r->stride && !r->ssa)
			*r = (struct tv){ .ssa = ssa(t, x, ti) };
		return;
	case IR_bitcast_convert: {
		LV a = ssa(t, x, ti);
		r->ssa = em_elem(e, ELEM_bitcast, ti->dtype, to->dtype, &a);
		return;
	}
	case IR_reduce_precision:
		r->ssa = em_reduce_precision(e, to->dtype, ssa(t, x, ti), (int)ir_attr(fn, o, AT_exponent), (int)ir_attr(fn, o, AT_mantissa));
		return;
	case IR_broadcast:
		if (ti->count == 1) {
			r->splat = lane_at(e, ssa(t, x, ti), 0);
			if (to->count <= t->most)
				r->ssa = em_splat(e, r->splat, w);
			return;
		}
		break;
	case IR_transpose: case IR_reverse: case IR_slice:
		break;
	case IR_concatenate:
		concatenate(t, fn, o, val);
		return;
	case IR_pad:
		pad(t, fn, o, val);
		return;
	case IR_dynamic_slice:
		dynamic_slice(t, fn, o, val);
		return;
	case IR_gather:
		gather(t, fn, o, val);
		return;
	case IR_scatter:
		scatter(t, fn, o, val);
		return;
	case IR_dynamic_update_slice:
		dynamic_update(t, fn, o, val);
		return;
	default:
		assert(!"operation");
	}
	ir_view(t->m, fn, o, st, &base, ps);
	int64_t *p = positions(&t->a, to->rank, to->dim, ps);
	for (int64_t i = 0; i < to->count; i++)
		p[i] += base;
	if (x->ptr && !x->ssa && ti->count > t->most) {         /* a part of a stack */
		int64_t *q = ARENA_NEW(&t->a, int64_t, to->count + 1), ix[IR_MAX_RANK];
		for (int64_t i = 0; i < to->count; i++) {
			int64_t rest = p[i], off = 0;
			for (int d = ti->rank - 1; d >= 0; d--) {
				ix[d] = rest % ti->dim[d];
				rest /= ti->dim[d];
				off += ix[d] * (x->stride ? x->stride[d] : st[d]);
			}
			q[i] = off;
		}
		r->ssa = load_at(t, to->dtype, to->count, x->ptr, q);
		return;
	}
	r->ssa = pick(e, ssa(t, x, ti), p, to->count);
}

static void function(struct tiny *t, const struct ir_fn *fn, struct tv *arg, struct tv *res, LV *out_ptr)
{
	struct tv *val = ARENA_NEW(&t->a, struct tv, fn->val.n + 1);
	t->depth++;
	for (uint32_t i = 0; i < fn->nparam; i++)
		val[i + 1] = arg[i];
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		/* a stack that is a result is written where the result lies */
		LV *out = NULL;
		if (out_ptr && (o->kind == IR_loop || o->kind == IR_call) && o->nout) {
			out = ARENA_NEW(&t->a, LV, o->nout);
			for (uint32_t k = 0; k < o->nout; k++) {
				int uses = 0;
				for (size_t r = 0; r < fn->result.n; r++)
					if (fn->result.p[r] == o->out + k && uses++ == 0)
						out[k] = out_ptr[r];
			}
		}
		op(t, fn, o, val, out);
	}
	for (size_t i = 0; i < fn->result.n; i++)
		res[i] = val[fn->result.p[i]];
	t->depth--;
}

struct err *em_tiny(struct em *e, const struct ir_module *m, const struct ir_fn *fn, int64_t most, const struct prog_view *view)
{
	struct tiny t = { .e = e, .m = m, .most = most };
	arena_init(&t.a);
	LLVMBasicBlockRef entry = em_block(e, "entry"), body = em_block(e, "body"), run = em_block(e, "run"), out = em_block(e, "out");
	e->scope[0].block = entry;
	e->nscope = 1;
	e->cur = 0;
	LLVMPositionBuilderAtEnd(e->b, entry);
	LLVMBuildBr(e->b, body);
	em_at(e, body);
	/* an empty range of tiles does nothing */
	LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, e->t0, e->t1, ""), run, out);
	em_at(e, run);
	size_t n = fn->nparam + fn->result.n;
	struct tv *arg = ARENA_NEW(&t.a, struct tv, fn->nparam + 1), *res = ARENA_NEW(&t.a, struct tv, fn->result.n + 1);
	LV *rp = ARENA_NEW(&t.a, LV, fn->result.n + 1);
	for (size_t i = 0; i < n; i++) {
		const struct ir_type_info *ti = ir_vtype(m, fn, i < fn->nparam ? (ir_val)i + 1 : fn->result.p[i - fn->nparam]);
		LV p = e->code->operand(e, (int)i);
		const struct prog_view *v = view ? &view[i] : NULL;
		if (v && v->off)
			p = em_gep(e, em_mem(e, ti->dtype), p, em_ki(e->i64, v->off));
		if (i >= fn->nparam) {
			rp[i - fn->nparam] = p;
			continue;
		}
		arg[i].ptr = p;
		if (v && !prog_view_dense(v)) {
			arg[i].stride = v->stride;
			bool one = true;
			for (int d = 0; d < ti->rank; d++)
				one &= !v->stride[d] || ti->dim[d] == 1;
			if (one && ti->count > t.most)
				arg[i] = (struct tv){ .splat = load_at(&t, ti->dtype, 1, p, &(int64_t){ 0 }) };
		}
		/* small ones are read before anything is written: results may take their storage */
		if (ti->count && ti->count <= t.most)
			arg[i] = (struct tv){ .ssa = ssa(&t, &arg[i], ti) };
	}
	/* only dense results can be written in place */
	LV *direct = ARENA_NEW(&t.a, LV, fn->result.n + 1);
	for (size_t i = 0; i < fn->result.n; i++)
		direct[i] = !view || prog_view_dense(&view[fn->nparam + i]) ? rp[i] : NULL;
	function(&t, fn, arg, res, direct);
	for (size_t i = 0; i < fn->result.n; i++) {
		const struct ir_type_info *ti = ir_vtype(m, fn, fn->result.p[i]);
		if (!ti->count || (res[i].ptr && res[i].ptr == rp[i]))
			continue;
		const struct prog_view *v = view ? &view[fn->nparam + i] : NULL;
		spill(&t, &res[i], ti, rp[i], v && !prog_view_dense(v) ? v->stride : NULL);
	}
	LLVMBuildBr(e->b, out);
	em_at(e, out);
	LLVMBuildRetVoid(e->b);
	arena_fini(&t.a);
	return NULL;
}
