/* From an operation to the kernels that compute it. */
#include "eval.h"

struct st {
	struct arena *a;
	const struct ir_module *m;
	const struct ir_fn *fn;
	const struct ir_op *o;
	struct eval_step *step;
	int n, cap;
};

static const struct ir_type_info *in_t(const struct st *s, int i) { return ir_vtype(s->m, s->fn, ir_in(s->fn, s->o, (uint32_t)i)); }
static const struct ir_type_info *out_t(const struct st *s, int i) { return ir_vtype(s->m, s->fn, s->o->out + (uint32_t)i); }

static struct prog_view dense(struct st *s, const struct ir_type_info *t)
{
	struct prog_view v = { 0 };
	prog_view_make(s->a, &v, (enum dtype)t->dtype, t->rank, t->dim);
	return v;
}

static struct eval_step *step_new(struct st *s, enum kern_id id, int nin, int nout)
{
	if (s->n == s->cap) {
		int cap = MAX(4, 2 * s->cap);
		struct eval_step *p = ARENA_NEW(s->a, struct eval_step, cap);
		if (s->n)
			memcpy(p, s->step, sizeof *p * (size_t)s->n);
		s->step = p;
		s->cap = cap;
	}
	struct eval_step *x = &s->step[s->n++];
	x->k.id = (uint16_t)id;
	x->k.nin = (uint16_t)nin;
	x->k.nout = (uint16_t)nout;
	x->k.v = ARENA_NEW(s->a, struct prog_view, nin + nout);
	x->k.code = -1;
	x->arg = ARENA_NEW(s->a, int16_t, nin + nout);
	return x;
}
static void put(struct eval_step *x, int i, int arg, struct prog_view v)
{
	x->k.v[i] = v;
	x->arg[i] = (int16_t)arg;
}
static void attrs(struct st *s, struct eval_step *x, const int64_t *p, int n)
{
	x->k.attr = ARENA_NEW(s->a, int64_t, x->k.nattr + (uint32_t)n + 1);
	memcpy(x->k.attr, p, sizeof *p * (size_t)n);
	x->k.nattr = (uint32_t)n;
}
static void cost(struct st *s, struct eval_step *x)
{
	struct ir_cost c = ir_cost_of(s->m, s->fn, s->o);
	x->k.flops = (int64_t)MIN(c.adds, 9e18);
	x->k.bytes = (int64_t)MIN(c.bytes, 9e18);
}
/* One kernel over all operands and results of the op, densely. */
static struct eval_step *plain(struct st *s, enum kern_id id)
{
	int nin = (int)s->o->nin, nout = (int)s->o->nout;
	struct eval_step *x = step_new(s, id, nin, nout);
	for (int i = 0; i < nin; i++)
		put(x, i, i, dense(s, in_t(s, i)));
	for (int i = 0; i < nout; i++)
		put(x, nin + i, ~i, dense(s, out_t(s, i)));
	cost(s, x);
	return x;
}
static void all_attrs(struct st *s, struct eval_step *x)
{
	attrs(s, x, &s->fn->attr.p[s->o->attr], (int)ir_attr_words(s->fn, s->o));
}
static void copy_step(struct st *s, int from, struct prog_view in, int to, struct prog_view out, bool init)
{
	struct eval_step *x = step_new(s, KERN_copy, 1, 1);
	put(x, 0, from, in);
	put(x, 1, ~to, out);
	x->init = init;
	x->k.bytes = 2 * out_t(s, to)->bytes;
}

static struct prog_expr *single(struct st *s, enum elem fn, enum dtype from, enum dtype to, int nin, const uint8_t *types)
{
	struct prog_expr *e = ARENA_NEW(s->a, struct prog_expr, 1);
	e->nin = (uint16_t)nin;
	e->nout = e->n = 1;
	e->in_type = arena_copy(s->a, types, (size_t)nin);
	e->ins = ARENA_NEW(s->a, struct prog_ins, 1);
	e->ins->fn = (uint16_t)fn;
	e->ins->from = (uint8_t)from;
	e->ins->to = (uint8_t)to;
	for (int i = 0; i < nin; i++)
		e->ins->src[i] = (uint16_t)i;
	e->out = ARENA_NEW(s->a, uint16_t, 1);
	e->out[0] = (uint16_t)nin;
	return e;
}

static struct err *elementwise(struct st *s)
{
	enum elem fn = ir_elem(s->o->kind);
	struct eval_step *x = plain(s, KERN_elem);
	const struct ir_type_info *t = out_t(s, 0);
	uint8_t types[3];
	for (int i = 0; i < x->k.nin; i++) {
		types[i] = in_t(s, i)->dtype;
		if (x->k.v[i].rank == 0 && t->rank) {      /* scalar beside arrays: of select and clamp */
			x->k.v[i].rank = t->rank;
			x->k.v[i].dim = arena_copy(s->a, t->dim, sizeof *t->dim * t->rank);
			x->k.v[i].stride = ARENA_NEW(s->a, int64_t, t->rank);
		}
	}
	enum dtype from = types[fn == ELEM_select ? 1 : 0];
	if (!kern_elem(fn, from, t->dtype))
		return ERR(UNIMPLEMENTED, "'%s' of '%s'", elem_info[fn].name, dtype_info[from].name);
	x->k.expr = single(s, fn, from, t->dtype, x->k.nin, types);
	return NULL;
}

/* Views: the operand read with other strides. */
static struct err *view(struct st *s)
{
	const struct ir_type_info *t = in_t(s, 0), *u = out_t(s, 0);
	struct prog_view v = dense(s, u), w = v;
	w.stride = ARENA_NEW(s->a, int64_t, u->rank + 1);
	ir_view(s->m, s->fn, s->o, dense(s, t).stride, &w.off, w.stride);
	copy_step(s, 0, w, 0, v, false);
	return NULL;
}

static struct err *concatenate(struct st *s)
{
	const struct ir_type_info *u = out_t(s, 0);
	int64_t dim = ir_attr(s->fn, s->o, AT_dim), at = 0;
	for (int i = 0; i < (int)s->o->nin; i++) {
		const struct ir_type_info *t = in_t(s, i);
		struct prog_view in = dense(s, t), v = dense(s, u);
		v.dim = in.dim;
		v.off = at * v.stride[dim];
		at += t->dim[dim];
		if (t->count)
			copy_step(s, i, in, 0, v, false);
	}
	return NULL;
}

static struct err *bitcast(struct st *s)
{
	const struct ir_type_info *t = in_t(s, 0), *u = out_t(s, 0);
	const struct dtype_info *a = &dtype_info[t->dtype], *b = &dtype_info[u->dtype];
	if (a->bits >= 8 && b->bits >= 8)
		return NULL;
	if (a->bits == b->bits) {
		struct eval_step *x = plain(s, KERN_elem);
		uint8_t type = t->dtype;
		x->k.expr = single(s, ELEM_bitcast, t->dtype, u->dtype, 1, &type);
		return NULL;
	}
	/* a byte (or less) and its parts: shifts of a u8, lowest part first */
	bool split = a->bits > b->bits;
	int small = split ? b->bits : a->bits, parts = split ? a->bits / small : b->bits / small;
	if (a->bits > 8 || b->bits > 8 || small * parts != MAX(a->bits, b->bits))
		return ERR(UNIMPLEMENTED, "bitcast_convert of '%s' to '%s'", a->name, b->name);
	struct prog_view whole = dense(s, split ? t : u), part = dense(s, split ? u : t);
	part.rank--;
	/* an integer's sign goes to the top of its byte, other bits stay as they are */
	enum elem last = b->cls == DT_INT || b->cls == DT_UINT ? ELEM_convert : ELEM_bitcast;
	for (int j = 0; j < (split ? parts : 1); j++) {
		int nin = split ? 1 : parts;
		struct eval_step *x = step_new(s, KERN_elem, nin, 1);
		struct prog_expr *e = ARENA_NEW(s->a, struct prog_expr, 1);
		e->nin = (uint16_t)nin;
		e->nout = 1;
		e->in_type = ARENA_NEW(s->a, uint8_t, nin);
		e->ins = ARENA_NEW(s->a, struct prog_ins, 6 * nin + 1);
		uint16_t acc = 0;
		for (int i = 0; i < nin; i++) {
			struct prog_view v = part;
			v.off = i;
			put(x, i, 0, split ? whole : v);
			e->in_type[i] = t->dtype;
			uint16_t r = (uint16_t)(nin + e->n);
			uint8_t by = (uint8_t)((split ? j : i) * small), mask = (uint8_t)((1 << small) - 1);
			enum elem first = split ? ELEM_shift_right_logical : ELEM_and, then = split ? ELEM_and : ELEM_shift_left;
			e->ins[e->n++] = (struct prog_ins){ .fn = ELEM_bitcast, .from = t->dtype, .to = DT_u8, .src = { (uint16_t)i } };
			e->ins[e->n++] = (struct prog_ins){ .fn = EXPR_IMM, .from = DT_u8, .to = DT_u8, .imm = { split ? by : mask } };
			e->ins[e->n++] = (struct prog_ins){ .fn = (uint16_t)first, .from = DT_u8, .to = DT_u8, .src = { r, (uint16_t)(r + 1) } };
			e->ins[e->n++] = (struct prog_ins){ .fn = EXPR_IMM, .from = DT_u8, .to = DT_u8, .imm = { split ? mask : by } };
			e->ins[e->n++] = (struct prog_ins){ .fn = (uint16_t)then, .from = DT_u8, .to = DT_u8, .src = { (uint16_t)(r + 2), (uint16_t)(r + 3) } };
			if (i)
				e->ins[e->n++] = (struct prog_ins){ .fn = ELEM_or, .from = DT_u8, .to = DT_u8, .src = { acc, (uint16_t)(r + 4) } };
			acc = (uint16_t)(nin + e->n - 1);
		}
		e->ins[e->n++] = (struct prog_ins){ .fn = (uint16_t)last, .from = DT_u8, .to = u->dtype, .src = { acc } };
		e->out = ARENA_NEW(s->a, uint16_t, 1);
		e->out[0] = (uint16_t)(nin + e->n - 1);
		struct prog_view out = split ? part : whole;
		out.off = split ? j : 0;
		put(x, nin, ~0, out);
		x->k.expr = e;
	}
	return NULL;
}

/* The reduction an op names, with its expression where it is a function. */
static struct err *redop(struct st *s, struct eval_step *x, int64_t *word)
{
	enum redop r = (enum redop)ir_attr(s->fn, s->o, AT_redop);
	ir_fnid f = (ir_fnid)ir_attr(s->fn, s->o, AT_fn);
	if (r == RED_fn && f) {
		enum redop known = ir_region_redop(s->m, f);
		if (known != RED_fn && known != RED_lse)
			r = known;
		else
			TRY(eval_expr(s->a, s->m, f, &x->k.expr));
	}
	*word = r;
	return NULL;
}

/* Appends the lists a of the op, each behind its length if counted, to the nw words at w; gives their number. */
static int lists(struct st *s, bool counted, int n, const enum ir_at *a, int64_t *w, int nw)
{
	for (int k = 0; k < n; k++) {
		int c;
		const int64_t *l = ir_attrs(s->fn, s->o, a[k], &c);
		if (counted)
			w[nw++] = c;
		for (int i = 0; i < c; i++)
			w[nw++] = l[i];
	}
	return nw;
}

static struct err *scatter(struct st *s)
{
	int n = ((int)s->o->nin - 1) / 2;
	for (int i = 0; i < n; i++)
		copy_step(s, i, dense(s, in_t(s, i)), i, dense(s, out_t(s, i)), true);
	struct eval_step *x = step_new(s, KERN_scatter, 1 + n, n);
	put(x, 0, n, dense(s, in_t(s, n)));
	for (int i = 0; i < n; i++) {
		put(x, 1 + i, n + 1 + i, dense(s, in_t(s, n + 1 + i)));
		put(x, 1 + n + i, ~i, dense(s, out_t(s, i)));
	}
	cost(s, x);
	int64_t w[64 * 5 + 8];
	static const enum ir_at list[] = { AT_window_dims, AT_inserted, AT_ibatch, AT_sbatch, AT_to_operand };
	int nw = lists(s, true, NELEM(list), list, w, 0);
	w[nw++] = ir_attr(s->fn, s->o, AT_index_dim);
	w[nw++] = ir_attr(s->fn, s->o, AT_unique);
	TRY(redop(s, x, &w[nw++]));
	attrs(s, x, w, nw);
	return NULL;
}

static struct err *reduce(struct st *s)
{
	int n;
	const int64_t *dims = ir_attrs(s->fn, s->o, AT_dims, &n);
	struct eval_step *x = plain(s, KERN_reduce);
	int64_t w[IR_MAX_RANK + 2];
	w[0] = n;
	for (int i = 0; i < n; i++)
		w[1 + i] = dims[i];
	TRY(redop(s, x, &w[1 + n]));
	attrs(s, x, w, n + 2);
	return NULL;
}

/* Six lists of rank words, then the reduction. */
static struct err *window(struct st *s)
{
	struct eval_step *x = plain(s, KERN_reduce_window);
	int64_t w[6 * IR_MAX_RANK + 1];
	static const enum ir_at list[] = { AT_window, AT_stride, AT_base_dilation, AT_window_dilation, AT_low, AT_high };
	int nw = lists(s, false, NELEM(list), list, w, 0);
	TRY(redop(s, x, &w[nw++]));
	attrs(s, x, w, nw);
	return NULL;
}

/* The comparison a region of two parameters makes, ELEM_COUNT if it is anything else. */
static enum elem region_compare(const struct ir_module *m, ir_fnid f)
{
	const struct ir_fn *fn = ir_fn_of(m, f);
	if (fn->nparam != 2 || fn->result.n != 1)
		return ELEM_COUNT;
	const struct ir_op *o = ir_def(fn, fn->result.p[0]);
	if (!o || !ir_is_elem(o->kind) || o->nin != 2 || !(elem_info[ir_elem(o->kind)].flags & EL_PRED))
		return ELEM_COUNT;
	ir_val a = ir_in(fn, o, 0), b = ir_in(fn, o, 1);
	enum elem e = ir_elem(o->kind);
	if (a == 1 && b == 2)
		return e;
	return a == 2 && b == 1 ? elem_mirrored(e) : ELEM_COUNT;
}

static struct err *select_and_scatter(struct st *s)
{
	struct eval_step *x = plain(s, KERN_select_and_scatter);
	int64_t w[4 * IR_MAX_RANK + 2];
	static const enum ir_at list[] = { AT_window, AT_stride, AT_low, AT_high };
	int nw = lists(s, false, NELEM(list), list, w, 0);
	enum elem e = region_compare(s->m, (ir_fnid)ir_attr(s->fn, s->o, AT_select));
	enum redop r = ir_region_redop(s->m, (ir_fnid)ir_attr(s->fn, s->o, AT_scatter));
	if (e == ELEM_COUNT)
		return ERR(UNIMPLEMENTED, "select_and_scatter whose select is not one comparison");
	if (r == RED_fn || r == RED_lse)
		return ERR(UNIMPLEMENTED, "select_and_scatter whose scatter is not one operation");
	w[nw++] = e;
	w[nw++] = r;
	attrs(s, x, w, nw);
	return NULL;
}

static struct err *dot(struct st *s)
{
	struct eval_step *x = plain(s, KERN_dot);
	int64_t w[4 * IR_MAX_RANK + 8];
	static const enum ir_at list[] = { AT_lb, AT_rb, AT_lc, AT_rc }, word[] = { AT_precision, AT_acc, AT_ltype, AT_rtype, AT_components };
	int nw = 0;
	for (int k = 0; k < 4; k += 2) {
		nw = lists(s, true, 1, list + k, w, nw);
		nw = lists(s, false, 1, list + k + 1, w, nw);
	}
	for (size_t k = 0; k < NELEM(word); k++)
		w[nw++] = ir_attr(s->fn, s->o, word[k]);
	attrs(s, x, w, nw);
	return NULL;
}

static struct err *make(struct st *s)
{
	const struct ir_op *o = s->o;
	struct eval_step *x;
	if (o->kind == IR_bitcast)
		return bitcast(s);
	if (ir_is_elem(o->kind))
		return elementwise(s);
	switch (o->kind) {
	case IR_constant: case IR_reshape: case IR_create_token: case IR_after_all: case IR_sharding_constraint: case IR_sharding_group: case IR_inspect_sharding:
		return NULL;
	case IR_optimization_barrier:
		if (o->nout > 1)
			for (int i = 0; i < (int)o->nout; i++)
				if (in_t(s, i)->dtype != DT_token)
					copy_step(s, i, dense(s, in_t(s, i)), i, dense(s, out_t(s, i)), true);
		return NULL;
	case IR_bitcast_convert:
		return bitcast(s);
	case IR_iota: {
		x = plain(s, KERN_iota);
		all_attrs(s, x);
		return NULL;
	}
	case IR_replica_id:
		plain(s, KERN_fill);
		return NULL;
	case IR_broadcast: case IR_transpose: case IR_reverse: case IR_slice:
		return view(s);
	case IR_concatenate:
		return concatenate(s);
	case IR_dynamic_slice:
		plain(s, KERN_dynamic_slice);
		return NULL;
	case IR_dynamic_update_slice: {
		copy_step(s, 0, dense(s, in_t(s, 0)), 0, dense(s, out_t(s, 0)), true);
		int n = (int)o->nin - 1;
		x = step_new(s, KERN_dynamic_update, n, 1);
		for (int i = 0; i < n; i++)
			put(x, i, i + 1, dense(s, in_t(s, i + 1)));
		put(x, n, ~0, dense(s, out_t(s, 0)));
		cost(s, x);
		return NULL;
	}
	case IR_pad: {
		x = plain(s, KERN_pad);
		int64_t w[3 * IR_MAX_RANK];
		static const enum ir_at list[] = { AT_low, AT_high, AT_interior };
		attrs(s, x, w, lists(s, false, NELEM(list), list, w, 0));
		return NULL;
	}
	case IR_gather: all_attrs(s, plain(s, KERN_gather)); return NULL;
	case IR_scatter: return scatter(s);
	case IR_reduce: return reduce(s);
	case IR_reduce_window: return window(s);
	case IR_select_and_scatter: return select_and_scatter(s);
	case IR_sort: {
		x = plain(s, KERN_sort);
		int64_t w[2] = { ir_attr(s->fn, o, AT_dim), ir_attr(s->fn, o, AT_stable) };
		attrs(s, x, w, 2);
		return eval_expr(s->a, s->m, (ir_fnid)ir_attr(s->fn, o, AT_fn), &x->k.expr);
	}
	case IR_top_k: all_attrs(s, plain(s, KERN_top_k)); return NULL;
	case IR_cumulative: all_attrs(s, plain(s, KERN_cumulative)); return NULL;
	case IR_dot: return dot(s);
	case IR_attention: case IR_attention_part: case IR_attention_grad:
		x = plain(s, o->kind == IR_attention_grad ? KERN_attention_grad : KERN_attention);
		return eval_expr(s->a, s->m, (ir_fnid)ir_attr(s->fn, o, AT_fn), &x->k.expr);
	case IR_attention_grad_add: {
		int n = (int)o->nin - 3;
		for (int i = 0; i < 3; i++)
			copy_step(s, n + i, dense(s, in_t(s, n + i)), i, dense(s, out_t(s, i)), true);
		x = step_new(s, KERN_attention_grad_add, n, 3);
		for (int i = 0; i < n; i++)
			put(x, i, i, dense(s, in_t(s, i)));
		for (int i = 0; i < 3; i++)
			put(x, n + i, ~i, dense(s, out_t(s, i)));
		cost(s, x);
		return eval_expr(s->a, s->m, (ir_fnid)ir_attr(s->fn, o, AT_fn), &x->k.expr);
	}
	case IR_convolution: all_attrs(s, plain(s, KERN_convolution)); return NULL;
	case IR_cholesky: all_attrs(s, plain(s, KERN_cholesky)); return NULL;
	case IR_triangular_solve: all_attrs(s, plain(s, KERN_triangular_solve)); return NULL;
	case IR_fft: all_attrs(s, plain(s, KERN_fft)); return NULL;
	case IR_rng_bit_generator: all_attrs(s, plain(s, KERN_rng_bits)); return NULL;
	case IR_rng: all_attrs(s, plain(s, KERN_rng)); return NULL;
	case IR_reduce_precision: all_attrs(s, plain(s, KERN_reduce_precision)); return NULL;
	default:
		return ERR(UNIMPLEMENTED, "'%s' has no kernel", ir_info(o->kind)->name);
	}
}

struct err *eval_steps(struct arena *a, const struct ir_module *m, const struct ir_fn *fn,
                       const struct ir_op *o, struct eval_step **out, int *n)
{
	struct st s = { a, m, fn, o, NULL, 0, 0 };
	*out = NULL;
	*n = 0;
	TRY(make(&s));
	*out = s.step;
	*n = s.n;
	return NULL;
}

bool eval_has_kernel(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	struct arena a;
	arena_init(&a);
	struct eval_step *x;
	int n;
	struct err *e = eval_steps(&a, m, fn, o, &x, &n);
	bool ok = !e;
	for (int i = 0; i < n && ok; i++) {
		struct kern_state *s;
		struct err *p = kern_prepare(&x[i].k, &s);
		ok = !p;
		err_free(p);
		kern_release(ok ? s : NULL);
	}
	err_free(e);
	arena_fini(&a);
	return ok;
}
