/* The op of one device: what it does to its parts of the operands, where the factors of the op are cut. */
#include "impl.h"

#include "../eval/eval.h"

/* The component of a place's index that says where in dimension d of the indexed value it is; -1: none does. */
static int component(const struct ir_fn *fn, const struct ir_op *o, int d)
{
	int n;
	const int64_t *map = ir_attrs(fn, o, o->kind == IR_gather ? AT_index_map : AT_to_operand, &n);
	while (n-- > 0)
		if (map[n] == d)
			return n;
	return -1;
}

/* Is f of an indexed dimension that is taken, or written, one element at a time?  Devices then tell which places are theirs. */
static bool by_place(struct part *p, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, int f)
{
	int n, d = ir_axes_find(x, 0, f), slices = x->nin - (o->kind == IR_scatter ? (x->nin - 1) / 2 : 0);
	const struct ir_type_info *t = ir_vtype(p->m, fn, ir_in(fn, o, 0));
	if (d < 0 || component(fn, o, d) < 0 || ir_axes_find(x, slices, f) >= 0)
		return false;
	for (int k = 0; k < t->rank; k++)
		if (t->dim[k] > INT32_MAX)       /* places are counted in i32 */
			return false;
	if (o->kind == IR_gather)
		return x->factor[f].kind == FACTOR_SUM && ir_attrs(fn, o, AT_size, &n)[d] == 1;
	const int64_t *gone = ir_attrs(fn, o, AT_inserted, &n);
	while (n-- > 0)
		if (gone[n] == d)
			return true;
	return false;
}

bool part_can(struct part *p, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, int f)
{
	enum ir_factor_kind kind = (enum ir_factor_kind)x->factor[f].kind;
	enum redop r;
	if (along_can(p, fn, o, x, f))
		return true;
	switch ((enum ir_kind)o->kind) {
	case IR_dot: case IR_attention: case IR_attention_grad:
		return kind == FACTOR_EACH || kind == FACTOR_SUM;
	case IR_convolution:
		if (kind == FACTOR_SUM) {            /* a contracted feature, not a place of the window */
			int n;
			return ir_axes_find(x, 0, f) == ir_attrs(fn, o, AT_lhs, &n)[1] && ir_axes_find(x, 1, f) == ir_attrs(fn, o, AT_rhs, &n)[0];
		}
		return kind == FACTOR_EACH;
	case IR_reduce:
		r = (enum redop)ir_attr(fn, o, AT_redop);
		return kind == FACTOR_EACH || (kind == FACTOR_SUM && o->nout == 1 && r != RED_fn && r != RED_softmax && r != RED_lse);
	case IR_reshape:                         /* a factor of one side alone lies among the other's */
		return ir_axes_find(x, 0, f) >= 0 && ir_axes_find(x, 1, f) >= 0;
	case IR_top_k:                           /* all of the last dimension may be selected */
		return kind == FACTOR_EACH && ir_axes_find(x, 0, f) != x->rank[0] - 1;
	case IR_dynamic_update_slice:            /* the update is of the whole dimension */
		return kind == FACTOR_EACH && ir_axes_find(x, 0, f) >= 0 && ir_axes_find(x, 1, f) >= 0;
	case IR_scatter: {
		int n = (x->nin - 1) / 2;
		bool held = ir_axes_find(x, 0, f) >= 0, given = ir_axes_find(x, n + 1, f) >= 0;
		if (kind == FACTOR_SUM)
			return !held && n == 1 && ir_attr(fn, o, AT_redop) != RED_fn;
		return kind == FACTOR_EACH && held && (given || by_place(p, fn, o, x, f));
	}
	case IR_gather:
		return kind == FACTOR_EACH || by_place(p, fn, o, x, f);
	case IR_rng: case IR_rng_bit_generator: case IR_partition_id: case IR_replica_id:
		return false;
	case IR_custom_call: {                   /* a leading dimension of every operand and result, behind others that are */
		int d = x->nin + x->nout ? ir_axes_find(x, 0, f) : -1;
		bool leads = kind == FACTOR_EACH && d >= 0 && part_batches(p, fn, o);
		for (int t = 0; t < x->nin + x->nout && leads; t++)
			for (int k = 0; k <= d && leads; k++)
				leads = k < x->rank[t] && x->dim[t][k].n == 1 && x->dim[0][k].n == 1 && x->dim[t][k].factor[0] == x->dim[0][k].factor[0];
		return leads;
	}
	case IR_pad: {                           /* equal extents may hide that it moves elements */
		int n, d = ir_axes_find(x, 0, f);
		return kind == FACTOR_EACH && d >= 0 && !ir_attrs(fn, o, AT_low, &n)[d] && !ir_attrs(fn, o, AT_high, &n)[d] && !ir_attrs(fn, o, AT_interior, &n)[d];
	}
	case IR_constant:
		return ir_splat(p->m, fn, o->out) != NULL;
	default:
		return kind == FACTOR_EACH;
	}
}

/* Does reduction o begin with what changes nothing? */
static bool from_nothing(struct part *p, const struct ir_fn *fn, const struct ir_op *o)
{
	enum dtype dt = ir_vtype(p->m, fn, o->out)->dtype;
	_Alignas(16) char none[16];
	kern_identity((enum redop)ir_attr(fn, o, AT_redop), dt, none);
	const void *init = ir_splat(p->m, fn, ir_in(fn, o, 1));
	return init && !memcmp(init, none, dtype_info[dt].bytes);
}

static bool idempotent(enum redop r) { return r == RED_max || r == RED_min || r == RED_and || r == RED_or; }

/* A reduction along cut dimensions.  An initial value that may be taken in as often as there are devices is; else it is once, after the
 * parts are combined. */
ir_val part_reduce(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, uint32_t mesh, struct axes sums, const ir_val *in, ir_type rt)
{
	enum redop r = (enum redop)ir_attr(fn, o, AT_redop);
	const struct ir_type_info *t = ir_type_of(p->m, rt);
	enum dtype dt = t->dtype, wide = part_rounds(dt, r) ? DT_f32 : dt;
	ir_type wt = ir_tensor(p->m, wide, t->rank, t->dim);
	bool often = idempotent(r) || from_nothing(p, fn, o);
	ir_val x[2] = { ir_convert(b, in[0], wide), often ? ir_convert(b, in[1], wide) : part_neutral(p, b, ir_scalar(p->m, wide), r) };
	uint32_t n;
	const int64_t *w = ir_attr_copy(&p->a, fn, o, &n);
	ir_val v = ir_emit(b, IR_reduce, 2, x, wt, w, n);
	v = part_combine(p, b, v, mesh, sums, r, wide);
	if (!often)
		v = ir_bin(b, redop_elem[r], v, ir_splat_of(b, ir_convert(b, in[1], wide), wt));
	return ir_convert(b, v, dt);
}

bool part_leaves(struct part *p, const struct ir_fn *fn, const struct ir_op *o)
{
	if (o->kind == IR_reduce || o->kind == IR_scatter)
		return (enum redop)ir_attr(fn, o, AT_redop) == RED_add && (o->kind == IR_scatter || from_nothing(p, fn, o));
	return o->kind != IR_gather && o->kind != IR_top_k && o->kind != IR_dynamic_slice && o->kind != IR_attention;
}

/* One number for each component of places of type t, along their dimension `at` (t's rank: there is one, which no dimension tells). */
static ir_val components(struct part *p, struct ir_b *b, ir_val v, ir_type t, int64_t at)
{
	return at == ir_type_of(p->m, t)->rank ? ir_splat_of(b, ir_reshape(b, v, 0, NULL), t) : ir_broadcast(b, v, t, &at);
}

ir_val part_places(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, ir_val places)
{
	int n, m;
	bool taken = o->kind == IR_gather;
	const int64_t *map = ir_attrs(fn, o, taken ? AT_index_map : AT_to_operand, &n), *size = taken ? ir_attrs(fn, o, AT_size, &m) : NULL;
	const struct ir_type_info *whole = ir_vtype(p->m, fn, ir_in(fn, o, 0));
	enum dtype dt = (enum dtype)ir_vtype(p->m, b->fn, places)->dtype;
	int bits = dtype_info[dt].bits - (dtype_info[dt].cls == DT_INT);
	int64_t k = n, *most = ARENA_NEW(&p->a, int64_t, n);
	ir_type given = b->fn->val.p[places].type;
	for (int c = 0; c < n; c++) {
		most[c] = whole->dim[map[c]] - (taken ? size[map[c]] : 0);
		if (bits < 32)
			most[c] = MIN(most[c], (1ll << bits) - 1);
	}
	ir_val end = ir_convert(b, ir_const(b, ir_tensor(p->m, DT_i64, 1, &k), most, sizeof *most * (size_t)n), dt);
	ir_val v = ir_bin(b, ELEM_maximum, places, ir_const_i(b, given, taken || dtype_info[dt].cls != DT_INT ? 0 : -1));
	return ir_bin(b, ELEM_minimum, v, components(p, b, end, given, ir_attr(fn, o, AT_index_dim)));
}

/* The places of a gather or a scatter, counted from the device's first elements of the dimensions that are cut.  *mine: places that are in its
 * part. */
static ir_val own_places(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, uint32_t mesh,
                         const struct axes *f, ir_val places, ir_val *mine)
{
	int n;
	bool taken = o->kind == IR_gather;
	const int64_t *map = ir_attrs(fn, o, taken ? AT_index_map : AT_to_operand, &n);
	const struct ir_type_info whole = *ir_vtype(p->m, fn, ir_in(fn, o, 0)), *t = ir_vtype(p->m, b->fn, places);
	int64_t at = ir_attr(fn, o, AT_index_dim), k = n, dim[IR_MAX_RANK], all[IR_MAX_RANK];
	int rank = t->rank;
	memcpy(dim, t->dim, sizeof *dim * (size_t)rank);
	memcpy(all, whole.dim, sizeof *all * (size_t)whole.rank);
	int32_t *part = ARENA_NEW(&p->a, int32_t, n);
	ir_type here = ir_tensor(p->m, DT_i32, rank, dim), flat = ir_tensor(p->m, DT_i32, 1, &k);
	ir_val from = ir_const_i(b, flat, 0);
	for (int c = 0; c < n; c++) {
		int d = (int)map[c], g = x->dim[0][d].factor[0];
		part[c] = INT32_MAX;
		if (!f[g].n || !by_place(p, fn, o, x, g))
			continue;
		int32_t *one = ARENA_NEW(&p->a, int32_t, n);
		one[c] = 1;
		part[c] = (int32_t)(all[d] / axes_size(f[g]));
		ir_val first = ir_splat_of(b, part_offset(p, b, mesh, f[g], part[c]), flat);
		from = ir_bin(b, ELEM_add, from, ir_bin(b, ELEM_multiply, first, ir_const(b, flat, one, sizeof *one * (size_t)n)));
	}
	ir_val v = ir_convert(b, part_places(p, b, fn, o, places), DT_i32);
	v = ir_bin(b, ELEM_subtract, v, components(p, b, from, here, at));
	if (taken) {
		ir_val in = ir_bin(b, ELEM_and, ir_bin(b, ELEM_compare_ge, v, ir_const_i(b, here, 0)),
		                   ir_bin(b, ELEM_compare_lt, v, components(p, b, ir_const(b, flat, part, sizeof *part * (size_t)n), here, at)));
		*mine = at == rank ? in : ir_reduce1(b, RED_and, in, ir_const_i(b, ir_scalar(p->m, DT_pred), 1), 1, &at);
	}
	return v;
}

/* A gather of a value that is cut along dimensions of which it takes single elements: what others have is zero here, and the sum has all. */
static ir_val gather(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, uint32_t mesh, struct axes sums, ir_val v, ir_val mine, ir_shard *lie, ir_shard want)
{
	const struct ir_type_info *t = ir_vtype(p->m, b->fn, v);
	int n, rank = t->rank, k = 0;
	const int64_t *off = ir_attrs(fn, o, AT_offset_dims, &n);
	int64_t dim[IR_MAX_RANK], to[IR_MAX_RANK];
	memcpy(dim, t->dim, sizeof *dim * (size_t)rank);
	for (int d = 0; d < rank; d++)
		if (!in_list(off, n, d))
			to[k++] = d;
	ir_type vt = b->fn->val.p[v].type;
	ir_val here = ir_broadcast(b, mine, ir_tensor(p->m, DT_pred, rank, dim), to), none = ir_const_i(b, vt, 0);
	v = ir_select(b, here, v, none);
	return along_one_of_as(p, b, v, mesh, sums, lie, want);
}

void part_extents(struct part *p, const struct ir_op *o, int64_t *w, ir_shard h, ir_type t)
{
	int64_t *size = ir_attr_word((enum ir_kind)o->kind, w, o->kind == IR_slice ? AT_limit : AT_size) + 1;
	for (int d = 0; d < ir_type_of(p->m, t)->rank; d++)
		if (ir_shard_parts(p->m, h, d) > 1)
			size[d] = ir_type_of(p->m, t)->dim[d];
}

bool part_emit(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, uint32_t mesh,
               const struct axes *f, const ir_val *in, ir_val *out, ir_shard *lie, ir_shard want)
{
	struct axes sums = part_sums(p, x, 0, f);
	enum dtype dt = o->nout ? ir_vtype(p->m, fn, o->out)->dtype : DT_token, wide = DT_token;
	ir_type *t = ARENA_NEW(&p->a, ir_type, o->nout + 1);
	bool left = part_leaves(p, fn, o), joint = o->kind == IR_attention && sums.n;
	if ((joint || (left && sums.n)) && part_rounds(dt, RED_add))
		wide = DT_f32;
	ir_shard *h = ARENA_NEW(&p->a, ir_shard, x->nin + x->nout + 1);
	for (int i = 0; i < x->nin + x->nout; i++)
		h[i] = part_shard(p, x, i, mesh, f);
	for (uint32_t k = 0; k < o->nout; k++) {
		bool f32 = k ? left && part_rounds(ir_vtype(p->m, fn, o->out + k)->dtype, RED_add) && part_sums(p, x, (int)k, f).n : wide != DT_token;
		t[k] = part_type(p, fn->val.p[o->out + k].type, h[x->nin + (int)k], f32 ? DT_f32 : DT_token);
	}
	uint32_t n;
	int64_t *w = ir_attr_copy(&p->a, fn, o, &n);
	ir_val *y = ARENA_NEW(&p->a, ir_val, o->nin + 1);
	memcpy(y, in, sizeof *y * o->nin);
	if (along_emit(p, b, fn, o, x, mesh, f, in, t, out))
		return false;
	if (sums.n && !left && o->kind == IR_reduce) {
		out[0] = part_reduce(p, b, fn, o, mesh, sums, in, t[0]);
		return false;
	}
	switch ((enum ir_kind)o->kind) {         /* attributes that are extents */
	case IR_slice: case IR_dynamic_slice:
		part_extents(p, o, w, h[0], t[0]);
		break;
	case IR_convolution:                     /* a device has some of the groups, which all three are made of */
		for (int i = 0; i < x->nfactor; i++)
			if (ir_axes_find(x, 0, i) >= 0 && ir_axes_find(x, 1, i) >= 0 && ir_axes_find(x, 2, i) >= 0)
				*ir_attr_word(IR_convolution, w, ir_attr(fn, o, AT_batch_groups) > 1 ? AT_batch_groups : AT_feature_groups) /= axes_size(f[i]);
		/* fallthrough */
	case IR_reduce_window:
		along_windows(p, b, fn, o, x, mesh, f, y, w);
		break;
	case IR_gather: {
		int64_t *size = ir_attr_word(IR_gather, w, AT_size) + 1;
		for (int d = 0; d < x->rank[0]; d++)
			if (size[d] == ir_vtype(p->m, fn, ir_in(fn, o, 0))->dim[d] && size[d] > 1)
				size[d] /= ir_shard_parts(p->m, h[0], d);
		if (!sums.n)
			break;
		ir_val mine;
		y[1] = own_places(p, b, fn, o, x, mesh, f, y[1], &mine);
		out[0] = gather(p, b, fn, o, mesh, sums, ir_emit(b, IR_gather, 2, y, t[0], w, n), mine, lie, want);
		return false;
	}
	case IR_custom_call: {                   /* its rule was of the whole */
		int64_t *rule = ir_attr_word(IR_custom_call, w, AT_rule);
		*rule = 0;
		n = (uint32_t)(rule - w) + 1;
		break;
	}
	case IR_reduce:
		for (int i = 0; i < 2 && wide != DT_token; i++)
			y[i] = ir_convert(b, y[i], wide);
		break;
	case IR_scatter:
		for (int d = 0; d < x->rank[0]; d++)
			if (f[x->dim[0][d].factor[0]].n && by_place(p, fn, o, x, x->dim[0][d].factor[0])) {
				int at = (x->nin - 1) / 2;
				y[at] = own_places(p, b, fn, o, x, mesh, f, y[at], NULL);
				break;
			}
		if (sums.n) {                        /* one device adds to what is there, the others to what changes nothing */
			enum redop r = (enum redop)ir_attr(fn, o, AT_redop);
			if (part_rounds(dt, r))
				wide = DT_f32;
			for (int i = 0; i < 3 && wide != DT_token; i += 2)
				y[i] = ir_convert(b, y[i], wide);
			ir_type yt = b->fn->val.p[y[0]].type;
			if (!idempotent(r))
				y[0] = part_first(p, b, y[0], mesh, sums, part_neutral(p, b, yt, r));
			if (!left) {
				out[0] = part_combine(p, b, ir_emit(b, IR_scatter, o->nin, y, yt, w, n), mesh, sums, r, wide != DT_token ? wide : dt);
				out[0] = ir_convert(b, out[0], dt);
				return false;
			}
		}
		break;
	case IR_iota: {
		int d = (int)ir_attr(fn, o, AT_dim);
		struct axes l = part_axes(p, h[0], d);
		const struct ir_type_info *own = ir_type_of(p->m, t[0]);
		if (!l.n) {
			out[0] = ir_emit(b, IR_iota, 0, NULL, t[0], w, n);
			return false;
		}
		int64_t size = own->dim[d];          /* counted in integers: what a type cannot hold is rounded once */
		ir_type it = ir_tensor(p->m, DT_i32, own->rank, own->dim);
		ir_val at = part_offset(p, b, mesh, l, size);
		out[0] = ir_convert(b, ir_bin(b, ELEM_add, ir_emit(b, IR_iota, 0, NULL, it, w, n), ir_splat_of(b, at, it)), dt);
		return false;
	}
	default:
		break;
	}
	ir_val v = o->nout == 1 ? ir_emit(b, (enum ir_kind)o->kind, o->nin, y, t[0], w, n) : ir_emit_raw(b, (enum ir_kind)o->kind, o->nin, y, o->nout, t, w, n);
	if (joint) {                             /* parts of the keys */
		int64_t by[3] = { part_group(p, mesh, sums), RED_softmax, 0 };
		v = ir_emit_raw(b, IR_all_reduce, 2, (ir_val[]){ v, v + 1 }, 2, t, by, 3);
		out[0] = ir_convert(b, v, dt);
		out[1] = v + 1;
		return false;
	}
	for (uint32_t k = 0; k < o->nout; k++)
		out[k] = v + k;
	return left;
}
