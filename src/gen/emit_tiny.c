/* Groups with control flow over small values: all of it becomes one piece of code.  A value is a scalar or
 * one vector that holds all its elements in row-major order, rounded up to a power of two.  What is in the
 * spare lanes does not matter, but it is a number: a division by one undefined lane is undefined as a whole.  Views are shuffles, carries of a loop are phis, so a turn of a small loop
 * costs a few instructions.  Stacks that a loop reads or writes slice by slice stay in memory, and so do larger carries, of which a
 * turn reads and writes parts: an update writes where the value is (gen_tiny_most has seen to it that nothing reads the old one later). */
#include "emit_tiny.h"

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
	int64_t *kp = tiny_positions(&t->a, nk, kd, ks), *rp = tiny_positions(&t->a, nr, rd, rs), *idx = ARENA_NEW(&t->a, int64_t, to->count + R + 1);
	LV *part = ARENA_NEW(&t->a, LV, (R + 1) * n), init[8], x[8];
	for (int k = 0; k < n; k++) {
		const struct ir_type_info *tk = ir_vtype(t->m, fn, ir_in(fn, o, (uint32_t)k));
		dt[k] = tk->dtype;
		at_[k] = rop == RED_fn ? dt[k] : dt[k] == DT_bf16 || dt[k] == DT_f16 ? DT_f32 : dt[k];
		init[k] = em_splat(e, tiny_ssa(t, &val[ir_in(fn, o, (uint32_t)(n + k))], ir_vtype(t->m, fn, ir_in(fn, o, (uint32_t)(n + k)))), tiny_lanes(to->count));
		if (!ti->count)
			continue;
		x[k] = tiny_ssa(t, &val[ir_in(fn, o, (uint32_t)k)], tk);
		for (int64_t r = 0; r < R && to->count > 1; r++) {
			for (int64_t i = 0; i < to->count; i++)
				idx[i] = kp[i] + rp[r];
			part[r * n + k] = tiny_pick(e, x[k], idx, to->count);
		}
	}
	/* neighbours first, then their sums: a fixed tree */
	for (int64_t left = R; left > 1 && ti->count && to->count == 1; left = (left + 1) / 2) {
		LV y[8];
		for (int k = 0; k < n; k++) {
			x[k] = tiny_pick(e, x[k], rp, left);
			for (int64_t i = 0; i < left / 2; i++)
				idx[i] = 2 * i;
			part[k] = tiny_pick(e, x[k], idx, left / 2);
			for (int64_t i = 0; i < left / 2; i++)
				idx[i]++;
			y[k] = tiny_pick(e, x[k], idx, left / 2);
		}
		tiny_merge(t, rop, f, n, at_, part, y);
		for (int64_t i = 0; i < left; i++)
			rp[i] = i;               /* from here on they are in order */
		for (int k = 0; k < n; k++) {
			LV last = left % 2 ? tiny_lane(e, x[k], left - 1) : NULL;
			x[k] = last ? LLVMBuildInsertElement(e->b, tiny_pick(e, part[k], rp, left / 2 + 1), last, em_ki(e->i32, left / 2), "") : part[k];
		}
	}
	for (int k = 0; k < n && ti->count && to->count == 1; k++)
		part[k] = tiny_pick(e, x[k], rp, 1);
	for (int64_t left = ti->count && to->count > 1 ? R : 0; left > 1; left = (left + 1) / 2)
		for (int64_t i = 0; i < left / 2 || (i == left / 2 && left % 2); i++) {
			if (2 * i + 1 < left)
				tiny_merge(t, rop, f, n, at_, &part[2 * i * n], &part[(2 * i + 1) * n]);
			memmove(&part[i * n], &part[2 * i * n], sizeof *part * (size_t)n);
		}
	if (ti->count)
		tiny_merge(t, rop, f, n, at_, init, part);
	for (int k = 0; k < n; k++)
		val[o->out + k].ssa = em_round(e, dt[k], init[k]);
}

static void concatenate(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val)
{
	struct em *e = t->e;
	const struct ir_type_info *to = ir_vtype(t->m, fn, o->out);
	int dim = (int)ir_attr(fn, o, AT_dim);
	int64_t post = 1, start = 0;
	for (int d = dim + 1; d < to->rank; d++)
		post *= to->dim[d];
	int w = tiny_lanes(to->count);
	LV out = NULL;
	for (uint32_t i = 0; i < o->nin; i++) {
		const struct ir_type_info *ti = ir_vtype(t->m, fn, ir_in(fn, o, i));
		if (!ti->count)
			continue;
		LV x = tiny_ssa(t, &val[ir_in(fn, o, i)], ti);
		int64_t idx[256], n = ti->dim[dim];
		for (int64_t k = 0; k < to->count; k++) {
			int64_t p = k % post, mid = k / post % to->dim[dim], pre = k / post / to->dim[dim];
			idx[k] = mid >= start && mid < start + n ? (pre * n + mid - start) * post + p : -1;
		}
		LV y = tiny_pick(e, x, idx, to->count);
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
	int n, w = tiny_lanes(to->count);
	const int64_t *low = ir_attrs(fn, o, AT_low, &n), *in = ir_attrs(fn, o, AT_interior, &n);
	int64_t st[IR_MAX_RANK], ix[IR_MAX_RANK] = { 0 }, idx[256];
	gen_strides(ti->rank, ti->dim, st);
	LV p = em_splat(e, tiny_ssa(t, &val[ir_in(fn, o, 1)], ir_vtype(t->m, fn, ir_in(fn, o, 1))), w);
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
	LV x = tiny_pick(e, tiny_ssa(t, &val[ir_in(fn, o, 0)], ti), idx, to->count);
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
		LV s = em_index(t->e, ti->dtype, tiny_ssa(t, &val[v], ti), hi);
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
	LV p = x->ptr ? x->ptr : tiny_spill_new(t, x, ti);
	LT mt = em_mem(e, ti->dtype);
	val[o->out].ssa = tiny_load(t, ti->dtype, to->count, em_gep(e, mt, p, base), tiny_positions(&t->a, to->rank, to->dim, from));
}

static void dynamic_update(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val)
{
	struct em *e = t->e;
	const struct ir_type_info *ti = ir_vtype(t->m, fn, o->out), *tu = ir_vtype(t->m, fn, ir_in(fn, o, 1));
	int64_t st[IR_MAX_RANK];
	gen_strides(ti->rank, ti->dim, st);
	LV base = box_base(t, fn, o, 2, val, ti, tu->dim, st), u = tiny_ssa(t, &val[ir_in(fn, o, 1)], tu);
	if (ti->count > t->most) {
		LV p = val[ir_in(fn, o, 0)].ptr;
		tiny_store(t, ti->dtype, tu->count, em_gep(e, em_mem(e, ti->dtype), p, base), tiny_positions(&t->a, tu->rank, tu->dim, st), u);
		val[o->out].ptr = p;
		return;
	}
	if (tu->count == 1) {
		val[o->out].ssa = tiny_insert(e, tiny_ssa(t, &val[ir_in(fn, o, 0)], ti), u, base);
		return;
	}
	LV p = tiny_spill_new(t, &val[ir_in(fn, o, 0)], ti);
	LT mt = em_mem(e, ti->dtype);
	tiny_store(t, ti->dtype, tu->count, em_gep(e, mt, p, base), tiny_positions(&t->a, tu->rank, tu->dim, st), u);
	struct tv m = { .ptr = p };
	val[o->out].ssa = tiny_ssa(t, &m, ti);
}

/* --- a function ------------------------------------------------------------ */

static void op(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val, LV *out)
{
	struct em *e = t->e;
	const struct ir_type_info *to = ir_vtype(t->m, fn, o->out);
	const struct ir_type_info *ti = o->nin ? ir_vtype(t->m, fn, ir_in(fn, o, 0)) : NULL;
	struct tv *x = o->nin ? &val[ir_in(fn, o, 0)] : NULL, *r = &val[o->out];
	int64_t st[IR_MAX_RANK], ps[IR_MAX_RANK], base;
	int w = tiny_lanes(to->count);
	if (o->kind == IR_loop) {
		tiny_loop(t, fn, o, val, out);
		return;
	}
	if (o->kind == IR_case) {
		tiny_case(t, fn, o, val);
		return;
	}
	if (o->kind == IR_call) {
		struct tv *arg = ARENA_NEW(&t->a, struct tv, o->nin + 1), *res = ARENA_NEW(&t->a, struct tv, o->nout + 1);
		for (uint32_t i = 0; i < o->nin; i++)
			arg[i] = val[ir_in(fn, o, i)];
		t->function(t, ir_fn_of(t->m, (ir_fnid)ir_attr(fn, o, AT_fn)), arg, res, out);
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
		tiny_products(t, fn, o, val);
		return;
	}
	if (ir_is_elem(o->kind)) {
		LV a[3] = { NULL, NULL, NULL };
		int lanes = 0;
		for (uint32_t i = 0; i < o->nin; i++) {
			a[i] = tiny_ssa(t, &val[ir_in(fn, o, i)], ir_vtype(t->m, fn, ir_in(fn, o, i)));
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
			*r = (struct tv){ .ssa = tiny_ssa(t, x, ti) };
		return;
	case IR_bitcast_convert: {
		LV a = tiny_ssa(t, x, ti);
		r->ssa = em_elem(e, ELEM_bitcast, ti->dtype, to->dtype, &a);
		return;
	}
	case IR_reduce_precision:
		r->ssa = em_reduce_precision(e, to->dtype, tiny_ssa(t, x, ti), (int)ir_attr(fn, o, AT_exponent), (int)ir_attr(fn, o, AT_mantissa));
		return;
	case IR_broadcast:
		if (ti->count == 1) {
			r->splat = tiny_lane(e, tiny_ssa(t, x, ti), 0);
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
		tiny_gather(t, fn, o, val);
		return;
	case IR_scatter:
		tiny_scatter(t, fn, o, val);
		return;
	case IR_dynamic_update_slice:
		dynamic_update(t, fn, o, val);
		return;
	default:
		assert(!"operation");
	}
	ir_view(t->m, fn, o, st, &base, ps);
	int64_t *p = tiny_positions(&t->a, to->rank, to->dim, ps);
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
		r->ssa = tiny_load(t, to->dtype, to->count, x->ptr, q);
		return;
	}
	r->ssa = tiny_pick(e, tiny_ssa(t, x, ti), p, to->count);
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
	struct tiny t = { .e = e, .m = m, .most = most, .function = function };
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
				arg[i] = (struct tv){ .splat = tiny_load(&t, ti->dtype, 1, p, &(int64_t){ 0 }) };
		}
		/* small ones are read before anything is written: results may take their storage */
		if (ti->count && ti->count <= t.most)
			arg[i] = (struct tv){ .ssa = tiny_ssa(&t, &arg[i], ti) };
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
		tiny_spill(&t, &res[i], ti, rp[i], v && !prog_view_dense(v) ? v->stride : NULL);
	}
	LLVMBuildBr(e->b, out);
	em_at(e, out);
	LLVMBuildRetVoid(e->b);
	arena_fini(&t.a);
	return NULL;
}
