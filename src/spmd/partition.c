/* From whole arrays to the program of one device.
 *
 * A value's sharding says which axes of the mesh cut which of its dimensions.  It is taken forward from the
 * arguments and from the results of manual computations: elementwise operations, products whose operands are
 * cut in agreement and operations that leave the cut dimensions alone keep it; a sum over a cut dimension
 * becomes a local sum and an all_reduce; where a
 * manual computation, a constraint or a result of the program wants another sharding, the value is gathered and cut
 * again.  Everything else on a sharded value would be automatic partitioning and is refused by name, unless the
 * sharding is soft: one that only constraints ask for.  Such a value is then gathered. */
#include "spmd.h"

#include <stdlib.h>

struct part {
	struct ir_module *m;
	struct arena a;
	int ndev;
};

/* One function on its way: map, sharding and softness per old value.  inner: the body of a manual computation. */
struct scope { const struct ir_fn *from; struct ir_b b; ir_val *map; ir_shard *sh; bool *soft; bool inner; };

static struct err *do_ops(struct part *p, struct scope *s);

/* --- shardings ------------------------------------------------------------ */

/* The plain form: closed, no axes of size 1, nothing explicitly replicated; 0 if nothing is cut. */
static ir_shard plain(struct part *p, ir_shard h, int rank)
{
	if (!h || ir_shard_replicated(p->m, h))
		return 0;
	const struct ir_shard_info *i = &p->m->shard.p[h];
	struct ir_shard_info n = { .mesh = i->mesh, .rank = rank };
	n.dim = ARENA_NEW(&p->a, struct ir_dim_shard, rank);
	for (int d = 0; d < rank && d < i->rank; d++) {
		n.dim[d].axis = ARENA_NEW(&p->a, struct ir_axis_ref, i->dim[d].naxis);
		for (int k = 0; k < i->dim[d].naxis; k++)
			if (i->dim[d].axis[k].size > 1)
				n.dim[d].axis[n.dim[d].naxis++] = i->dim[d].axis[k];
	}
	n.npart = i->npart;
	n.part = i->part;
	n.part_op = i->part_op;
	return ir_shard_add(p->m, &n);
}

/* A sharding of another rank whose dimension d is cut like dimension from[d] of h (-1: whole). */
static ir_shard moved(struct part *p, ir_shard h, int rank, const int *from)
{
	if (!h)
		return 0;
	struct ir_shard_info n = { .mesh = p->m->shard.p[h].mesh, .rank = rank };
	n.dim = ARENA_NEW(&p->a, struct ir_dim_shard, rank);
	for (int d = 0; d < rank; d++)
		if (from[d] >= 0)
			n.dim[d] = p->m->shard.p[h].dim[from[d]];
	ir_shard r = ir_shard_add(p->m, &n);
	return ir_shard_replicated(p->m, r) ? 0 : r;
}

/* The shard of type t under h; of element type dt unless that is DT_token. */
static ir_type local_type(struct part *p, ir_type t, ir_shard h, enum dtype dt)
{
	const struct ir_type_info *i = ir_type_of(p->m, t);
	int64_t dim[IR_MAX_RANK];
	for (int d = 0; d < i->rank; d++)
		dim[d] = i->dim[d] / ir_shard_parts(p->m, h, d);
	return ir_tensor(p->m, dt == DT_token ? i->dtype : dt, i->rank, dim);
}

static bool divides(struct part *p, ir_type t, ir_shard h)
{
	const struct ir_type_info *i = ir_type_of(p->m, t);
	for (int d = 0; d < i->rank; d++)
		if (i->dim[d] % ir_shard_parts(p->m, h, d))
			return false;
	return true;
}

static struct err *check_even(struct part *p, ir_type t, ir_shard h, const char *what)
{
	const struct ir_type_info *i = ir_type_of(p->m, t);
	if (h && p->m->shard.p[h].npart && p->m->shard.p[h].part_op != RED_add) {
		struct str s = {0};
		ir_print_shard(&s, p->m, h);
		struct err *e = ERR(UNIMPLEMENTED, "%s has the unreduced sharding %s", what, s.p);
		str_free(&s);
		return e;
	}
	if (h && p->m->mesh.p[p->m->shard.p[h].mesh].ndev != p->ndev)
		return ERR(UNIMPLEMENTED, "%s is sharded over a mesh of %lld devices, the program has %d", what,
		           (long long)p->m->mesh.p[p->m->shard.p[h].mesh].ndev, p->ndev);
	for (int d = 0; d < i->rank; d++)
		if (i->dim[d] % ir_shard_parts(p->m, h, d)) {
			struct str s = {0};
			ir_print_shard(&s, p->m, h);
			struct err *e = ERR(UNIMPLEMENTED, "%s: dimension %d of size %lld does not divide into the %lld parts of %s", what, d,
			                    (long long)i->dim[d], (long long)ir_shard_parts(p->m, h, d), s.p);
			str_free(&s);
			return e;
		}
	return NULL;
}

/* The sharding's sum over devices that is still to be made, as a sharding of its own: its axes cut the only
 * dimension of a list.  0 if there is none. */
static ir_shard partial(struct part *p, ir_shard h)
{
	if (!h || !p->m->shard.p[h].npart)
		return 0;
	struct ir_dim_shard d = { .naxis = p->m->shard.p[h].npart, .axis = p->m->shard.p[h].part };
	struct ir_shard_info n = { .mesh = p->m->shard.p[h].mesh, .rank = 1, .dim = &d };
	return ir_shard_add(p->m, &n);
}

/* h without that sum. */
static ir_shard summed(struct part *p, ir_shard h)
{
	if (!h || !p->m->shard.p[h].npart)
		return h;
	struct ir_shard_info n = p->m->shard.p[h];
	n.npart = 0;
	h = ir_shard_add(p->m, &n);
	return ir_shard_replicated(p->m, h) ? 0 : h;
}

/* Do a and b give every device the same box? */
static bool equal(struct part *p, ir_shard a, ir_shard b, int rank)
{
	if (a == b)
		return true;
	int64_t n[IR_MAX_RANK], sa[IR_MAX_RANK], sb[IR_MAX_RANK], size[IR_MAX_RANK];
	if (partial(p, a) != partial(p, b))
		return false;
	for (int d = 0; d < rank; d++) {
		n[d] = ir_shard_parts(p->m, a, d);
		if (n[d] != ir_shard_parts(p->m, b, d))
			return false;
	}
	for (int dev = 0; dev < p->ndev; dev++) {
		spmd_shard_box(p->m, a, dev, rank, n, sa, size);
		spmd_shard_box(p->m, b, dev, rank, n, sb, size);
		if (memcmp(sa, sb, sizeof *sa * (size_t)rank))
			return false;
	}
	return true;
}

/* --- moving data ------------------------------------------------------------ */

/* The i32 scalar that is table[d] on device d. */
static ir_val by_device(struct part *p, struct ir_b *b, const int32_t *table)
{
	int64_t n = p->ndev, one = 1, w[2] = { 1, 1 };
	ir_val t = ir_const(b, ir_tensor(p->m, DT_i32, 1, &n), table, sizeof *table * (size_t)n);
	ir_type u = ir_scalar(p->m, DT_u32);
	ir_val id = ir_emit_raw(b, IR_partition_id, 0, NULL, 1, &u, NULL, 0);
	ir_val in[2] = { t, ir_convert(b, id, DT_i32) };
	ir_val r = ir_emit(b, IR_dynamic_slice, 2, in, ir_tensor(p->m, DT_i32, 1, &one), w, 2);
	return ir_reshape(b, r, 0, NULL);
}

/* Cut v, whole so far along every dimension that h cuts, into h's shards; dim: extents before. */
static ir_val cut(struct part *p, struct ir_b *b, ir_val v, ir_shard h, const bool *which)
{
	const struct ir_type_info *t = ir_vtype(p->m, b->fn, v);
	int rank = t->rank;
	int64_t dim[IR_MAX_RANK], size[IR_MAX_RANK], start[IR_MAX_RANK], out[IR_MAX_RANK];
	memcpy(dim, t->dim, sizeof *dim * (size_t)rank);
	enum dtype dt = t->dtype;
	int32_t *table = ARENA_NEW(&p->a, int32_t, p->ndev);
	ir_val in[IR_MAX_RANK + 1] = { v }, zero = 0;
	bool any = false;
	for (int d = 0; d < rank; d++) {
		out[d] = dim[d];
		if (!which[d] || ir_shard_parts(p->m, h, d) == 1) {
			if (!zero)
				zero = ir_const_i(b, ir_scalar(p->m, DT_i32), 0);
			in[d + 1] = zero;
			continue;
		}
		any = true;
		for (int dev = 0; dev < p->ndev; dev++) {
			spmd_shard_box(p->m, h, dev, rank, dim, start, size);
			table[dev] = (int32_t)start[d];
		}
		out[d] = dim[d] / ir_shard_parts(p->m, h, d);
		in[d + 1] = by_device(p, b, table);
	}
	if (!any)
		return v;
	int64_t w[IR_MAX_RANK + 1] = { rank };
	memcpy(w + 1, out, sizeof *w * (size_t)rank);
	return ir_emit(b, IR_dynamic_slice, (uint32_t)rank + 1, in, ir_tensor(p->m, dt, rank, out), w, (uint32_t)rank + 1);
}

/* Does this reduction round where its type is too narrow? */
static bool rounds(enum dtype dt, enum redop r)
{
	return dtype_info[dt].cls == DT_FLOAT && dtype_info[dt].bits < 32 && (r == RED_add || r == RED_mul);
}

/* Groups of devices whose boxes under h differ along dimension d alone, in order of the block (d < 0: along
 * every dimension of mask). */
static ir_group group_along(struct part *p, ir_shard h, int rank, const bool *mask)
{
	int n = p->ndev, rows = 0, cols = 0;
	int64_t parts[IR_MAX_RANK], start[IR_MAX_RANK], size[IR_MAX_RANK];
	int64_t *id = ARENA_NEW(&p->a, int64_t, n * n), *key = ARENA_NEW(&p->a, int64_t, n), *blk = ARENA_NEW(&p->a, int64_t, n);
	int *copy = ARENA_NEW(&p->a, int, n);
	int64_t along = 1;
	for (int d = 0; d < rank; d++) {
		parts[d] = ir_shard_parts(p->m, h, d);
		if (mask[d])
			along *= parts[d];
	}
	cols = (int)along;
	for (int dev = 0; dev < n; dev++) {
		spmd_shard_box(p->m, h, dev, rank, parts, start, size);
		key[dev] = blk[dev] = 0;
		for (int d = 0; d < rank; d++)
			if (mask[d])
				blk[dev] = blk[dev] * parts[d] + start[d];
			else
				key[dev] = key[dev] * parts[d] + start[d];
		copy[dev] = 0;
		for (int e = 0; e < dev; e++)
			copy[dev] += key[e] == key[dev] && blk[e] == blk[dev];
	}
	for (int i = 0; i < n * n; i++)
		id[i] = -1;
	bool *done = ARENA_NEW(&p->a, bool, n);
	for (int dev = 0; dev < n; dev++) {
		if (done[dev])
			continue;
		for (int e = 0; e < n; e++)
			if (key[e] == key[dev] && copy[e] == copy[dev]) {
				id[rows * cols + blk[e]] = e;
				done[e] = true;
			}
		rows++;
	}
	return ir_group_add(p->m, rows, cols, id);
}

/* The first device's v, on all. */
static ir_val same_everywhere(struct part *p, struct scope *s, ir_val v)
{
	int64_t *all = ARENA_NEW(&p->a, int64_t, p->ndev), group;
	for (int d = 0; d < p->ndev; d++)
		all[d] = d;
	group = ir_group_add(p->m, 1, p->ndev, all);
	ir_type t = s->b.fn->val.p[v].type;
	return ir_emit_raw(&s->b, IR_collective_broadcast, 1, &v, 1, &t, &group, 1);
}

static ir_val gather_dim(struct part *p, struct ir_b *b, ir_val v, ir_shard h, int d)
{
	const struct ir_type_info *t = ir_vtype(p->m, b->fn, v);
	int64_t dim[IR_MAX_RANK];
	memcpy(dim, t->dim, sizeof *dim * t->rank);
	dim[d] *= ir_shard_parts(p->m, h, d);
	bool mask[IR_MAX_RANK] = {0};
	mask[d] = true;
	int64_t w[2] = { d, group_along(p, h, t->rank, mask) };
	ir_type rt = ir_tensor(p->m, t->dtype, t->rank, dim);
	return ir_emit_raw(b, IR_all_gather, 1, &v, 1, &rt, w, 2);
}

/* The sum (or what redop says) of v over the devices that hold other blocks of h along the dimensions of mask; rank of h.
 * Parts of a sum of narrow floats travel and add in f32: it rounds once, as the whole sum would.  Gives it in type t. */
static ir_val combine(struct part *p, struct ir_b *b, ir_val v, ir_shard h, int rank, const bool *mask, enum redop r, enum dtype dt)
{
	int64_t w[3] = { group_along(p, h, rank, mask), r, 0 };
	if (rounds(dt, r))
		v = ir_convert(b, v, DT_f32);
	ir_type t = b->fn->val.p[v].type;
	return ir_convert(b, ir_emit_raw(b, IR_all_reduce, 1, &v, 1, &t, w, 3), dt);
}

/* v on devices whose block under h is 0, zeros on the others. */
static ir_val keep_on_first(struct part *p, struct ir_b *b, ir_val v, ir_shard h)
{
	int32_t *table = ARENA_NEW(&p->a, int32_t, p->ndev);
	int64_t n = ir_shard_parts(p->m, h, 0), start, size;
	for (int d = 0; d < p->ndev; d++) {
		spmd_shard_box(p->m, h, d, 1, &n, &start, &size);
		table[d] = (int32_t)start;
	}
	const struct ir_type_info *t = ir_vtype(p->m, b->fn, v);
	ir_type vt = b->fn->val.p[v].type;
	int64_t dim[IR_MAX_RANK];
	int rank = t->rank;
	memcpy(dim, t->dim, sizeof *dim * (size_t)rank);
	ir_val block = by_device(p, b, table), first = ir_const_i(b, ir_scalar(p->m, DT_i32), 0), mine = ir_bin(b, ELEM_compare_eq, block, first);
	ir_val all = ir_splat_of(b, mine, ir_tensor(p->m, DT_pred, rank, dim)), zero = ir_const_i(b, vt, 0);
	return ir_select(b, all, v, zero);
}

/* v with sharding from -> the same value with sharding to.  Dimensions that are cut alike stay; the others
 * are gathered, then cut. */
static ir_val reshard(struct part *p, struct ir_b *b, ir_val v, ir_shard from, ir_shard to)
{
	int rank = ir_vtype(p->m, b->fn, v)->rank;
	if (equal(p, from, to, rank))
		return v;
	ir_shard have = partial(p, from), want = partial(p, to);
	if (have && have != want) {              /* finish the sum */
		bool all[1] = { true };
		v = combine(p, b, v, have, 1, all, RED_add, ir_vtype(p->m, b->fn, v)->dtype);
		have = 0;
	}
	from = summed(p, from);
	to = summed(p, to);
	bool first = want && !have;              /* a sum of which one device holds all, the others zero: once all is moved */
	if (equal(p, from, to, rank))
		return first ? keep_on_first(p, b, v, want) : v;
	bool differs[IR_MAX_RANK] = {0};
	for (int d = 0; d < rank; d++) {
		int64_t na = ir_shard_parts(p->m, from, d), nb = ir_shard_parts(p->m, to, d), one[IR_MAX_RANK], sa[IR_MAX_RANK], sb[IR_MAX_RANK], z[IR_MAX_RANK];
		differs[d] = na != nb;
		for (int k = 0; k < rank; k++)
			one[k] = k == d ? na : ir_shard_parts(p->m, from, k);
		for (int dev = 0; dev < p->ndev && !differs[d]; dev++) {
			spmd_shard_box(p->m, from, dev, rank, one, sa, z);
			for (int k = 0; k < rank; k++)
				one[k] = k == d ? na : ir_shard_parts(p->m, to, k);
			spmd_shard_box(p->m, to, dev, rank, one, sb, z);
			differs[d] = na > 1 && sa[d] != sb[d];
		}
	}
	for (int d = 0; d < rank; d++)
		if (differs[d] && ir_shard_parts(p->m, from, d) > 1)
			v = gather_dim(p, b, v, from, d);
	v = cut(p, b, v, to, differs);
	return first ? keep_on_first(p, b, v, want) : v;
}

/* --- operations -------------------------------------------------------------- */

static struct err *refuse(struct part *p, struct scope *s, const struct ir_op *o)
{
	struct str t = {0};
	for (uint32_t k = 0; k < o->nin; k++)
		if (s->sh[ir_in(s->from, o, k)]) {
			ir_print_shard(&t, p->m, s->sh[ir_in(s->from, o, k)]);
			break;
		}
	struct err *e = ERR(UNIMPLEMENTED, "automatic partitioning of '%s', whose operand has the sharding %s; use shard_map or replicate it",
	                    ir_info(o->kind)->name, t.p ? t.p : "(none)");
	str_free(&t);
	const struct ir_loc_info *l = &p->m->loc.p[o->loc];
	return l->file ? err_wrap(e, "%s:%d", ir_text(p->m, l->file), l->line) : e;
}

static void put(struct part *p, struct scope *s, const struct ir_op *o, ir_val v, ir_shard h)
{
	for (uint32_t k = 0; k < o->nout; k++) {
		s->map[o->out + k] = v + k;
		s->sh[o->out + k] = h;
	}
}

/* Emit op o with the given operands, attributes changed or not, local result types by h; wide: of a result that is to
 * be of another element type, DT_token: none is. */
static void emit(struct part *p, struct scope *s, const struct ir_op *o, const ir_val *in, ir_shard h, const int64_t *attr, enum dtype wide)
{
	ir_type *t = ARENA_NEW(&p->a, ir_type, o->nout);
	for (uint32_t k = 0; k < o->nout; k++)
		t[k] = local_type(p, s->from->val.p[o->out + k].type, h, wide);
	uint32_t n;
	s->b.loc = o->loc;
	const int64_t *own = ir_attr_copy(&p->a, s->from, o, &n), *w = attr ? attr : own;
	ir_val v = o->nout == 1 ? ir_emit(&s->b, o->kind, o->nin, in, t[0], w, n)
	                        : ir_emit_raw(&s->b, o->kind, o->nin, in, o->nout, t, w, n);
	put(p, s, o, v, h);
}

static ir_val *operands(struct part *p, struct scope *s, const struct ir_op *o)
{
	ir_val *in = ARENA_NEW(&p->a, ir_val, o->nin);
	for (uint32_t k = 0; k < o->nin; k++)
		in[k] = s->map[ir_in(s->from, o, k)];
	return in;
}

/* Elementwise: all operands take the sharding of the first that has one. */
static struct err *do_elem(struct part *p, struct scope *s, const struct ir_op *o)
{
	ir_val *in = operands(p, s, o);
	ir_shard h = 0;
	int rank = ir_vtype(p->m, s->from, o->out)->rank;
	for (uint32_t k = 0; k < o->nin; k++) {
		ir_shard x = s->sh[ir_in(s->from, o, k)];
		if (x && h && !equal(p, x, h, rank))
			return refuse(p, s, o);
		if (x)
			h = x;
	}
	for (uint32_t k = 0; k < o->nin; k++)
		if (ir_vtype(p->m, s->from, ir_in(s->from, o, k))->rank == rank)
			in[k] = reshard(p, &s->b, in[k], s->sh[ir_in(s->from, o, k)], h);
	emit(p, s, o, in, h, NULL, DT_token);
	return NULL;
}

/* Where dimension d of the operand goes under a reshape when it is cut into n parts: a result dimension that
 * begins at the same place and divides, -1 if there is none. */
static int reshape_dim(const struct ir_type_info *a, const struct ir_type_info *b, int d, int64_t n)
{
	int64_t left = 1, seen = 1;
	for (int i = 0; i < d; i++)
		left *= a->dim[i];
	for (int j = 0; j < b->rank; j++) {
		if (seen == left && b->dim[j] > 1)
			return b->dim[j] % n == 0 ? j : -1;
		seen *= b->dim[j];
	}
	return -1;
}

/* Is initial value v of reduction r 0, or 1 of a product? */
static bool changes_nothing(struct part *p, struct scope *s, ir_val v, enum redop r)
{
	if (r != RED_add && r != RED_xor && r != RED_mul)
		return false;
	struct ir_mark before = ir_mark(s->b.fn);
	ir_val none = ir_const_i(&s->b, s->from->val.p[v].type, r == RED_mul);
	const void *x = ir_splat(p->m, s->from, v), *y = ir_splat(p->m, s->b.fn, none);
	bool same = x && !memcmp(x, y, (size_t)dtype_info[ir_vtype(p->m, s->from, v)->dtype].bytes);
	ir_go_back(s->b.fn, before);
	return same;
}

static struct err *do_reduce(struct part *p, struct scope *s, const struct ir_op *o, ir_shard h)
{
	int n, from[IR_MAX_RANK], rank = 0;
	const int64_t *dims = ir_attrs(s->from, o, AT_dims, &n);
	enum redop r = (enum redop)ir_attr(s->from, o, AT_redop);
	const struct ir_type_info *t = ir_vtype(p->m, s->from, ir_in(s->from, o, 0));
	int rank0 = t->rank;
	bool gone[IR_MAX_RANK] = {0}, across = false;
	for (int i = 0; i < n; i++) {
		gone[dims[i]] = true;
		across |= ir_shard_parts(p->m, h, (int)dims[i]) > 1;
	}
	for (int d = 0; d < t->rank; d++)
		if (!gone[d])
			from[rank++] = d;
	if (across && (o->nout != 1 || r == RED_fn))
		return refuse(p, s, o);
	if (across && r != RED_max && r != RED_min && r != RED_and && r != RED_or && !changes_nothing(p, s, ir_in(s->from, o, 1), r))
		return refuse(p, s, o);              /* the initial value would be counted once a device */
	ir_val *in = operands(p, s, o);
	enum dtype dt = t->dtype;
	if (across && rounds(dt, r))
		for (int k = 0; k < 2; k++)
			in[k] = ir_convert(&s->b, in[k], DT_f32);
	emit(p, s, o, in, moved(p, h, rank, from), NULL, across && rounds(dt, r) ? DT_f32 : DT_token);
	if (across)
		s->map[o->out] = combine(p, &s->b, s->map[o->out], h, rank0, gone, r, dt);
	return NULL;
}

/* Does op o leave the cut dimensions of operand 0 alone, and what is its result's sharding? */
static struct err *do_shape(struct part *p, struct scope *s, const struct ir_op *o)
{
	const struct ir_fn *fn = s->from;
	ir_shard h = s->sh[ir_in(fn, o, 0)];
	const struct ir_type_info *a = ir_vtype(p->m, fn, ir_in(fn, o, 0)), *r = ir_vtype(p->m, fn, o->out);
	int n, from[IR_MAX_RANK];
	const int64_t *l;
	for (uint32_t k = 1; k < o->nin; k++)
		if (s->sh[ir_in(fn, o, k)] && o->kind != IR_reduce)
			return refuse(p, s, o);
	for (int d = 0; d < r->rank; d++)
		from[d] = -1;
	switch (o->kind) {
	case IR_transpose:
		l = ir_attrs(fn, o, AT_perm, &n);
		for (int d = 0; d < n; d++)
			from[d] = (int)l[d];
		break;
	case IR_broadcast:
		l = ir_attrs(fn, o, AT_dims, &n);
		for (int d = 0; d < n; d++)
			if (a->dim[d] == r->dim[l[d]])
				from[l[d]] = d;
		break;
	case IR_reshape:
		for (int d = 0; d < a->rank; d++) {
			int64_t parts = ir_shard_parts(p->m, h, d);
			int j = parts > 1 ? reshape_dim(a, r, d, parts) : -1;
			if (parts > 1 && (j < 0 || from[j] >= 0))
				return refuse(p, s, o);
			if (j >= 0)
				from[j] = d;
		}
		break;
	case IR_slice: case IR_reverse: case IR_pad: case IR_dynamic_slice: case IR_cumulative:
		for (int d = 0; d < r->rank; d++) {
			bool touched = a->dim[d] != r->dim[d];
			if (o->kind == IR_pad)                /* equal extents may hide that it moves or drops elements */
				touched |= ir_attrs(fn, o, AT_low, &n)[d] || ir_attrs(fn, o, AT_high, &n)[d] || ir_attrs(fn, o, AT_interior, &n)[d];
			if (o->kind == IR_reverse || o->kind == IR_cumulative) {
				l = o->kind == IR_reverse ? ir_attrs(fn, o, AT_dims, &n) : NULL;
				touched |= o->kind == IR_cumulative && ir_attr(fn, o, AT_dim) == d;
				for (int i = 0; l && i < n; i++)
					touched |= l[i] == d;
			}
			if (touched && ir_shard_parts(p->m, h, d) > 1)
				return refuse(p, s, o);
			from[d] = touched ? -1 : d;
		}
		break;
	case IR_reduce:
		for (uint32_t k = 0; k < o->nout; k++)
			if (!equal(p, s->sh[ir_in(fn, o, k)], h, a->rank))
				return refuse(p, s, o);
		return do_reduce(p, s, o, h);
	default:
		return refuse(p, s, o);
	}
	ir_shard out = moved(p, h, r->rank, from);
	if (o->kind == IR_slice || o->kind == IR_dynamic_slice) {    /* limits and sizes are local extents */
		uint32_t words;
		int64_t *w = ir_attr_copy(&p->a, fn, o, &words), *size = ir_attr_word(o->kind, w, o->kind == IR_slice ? AT_limit : AT_size) + 1;
		for (int d = 0; d < r->rank; d++)
			if (from[d] == d)
				size[d] = r->dim[d] / ir_shard_parts(p->m, out, d);
		emit(p, s, o, operands(p, s, o), out, w, DT_token);
		return NULL;
	}
	emit(p, s, o, operands(p, s, o), out, NULL, DT_token);
	return NULL;
}

/* Does sharding h cut anything by an axis of list d? */
static bool shares_axis(struct part *p, ir_shard h, const struct ir_dim_shard *d)
{
	const struct ir_shard_info *i = &p->m->shard.p[h];
	for (int k = 0; h && k < i->rank; k++)
		for (int a = 0; a < i->dim[k].naxis; a++)
			for (int b = 0; b < d->naxis; b++)
				if (i->dim[k].axis[a].axis == d->axis[b].axis)
					return true;
	return false;
}

/* A product whose operands are cut in agreement, or where one can be cut to agree: batch and free dimensions
 * carry over, a cut contraction leaves a sum over devices. */
static struct err *do_dot(struct part *p, struct scope *s, const struct ir_op *o)
{
	const struct ir_fn *fn = s->from;
	ir_val x[2] = { ir_in(fn, o, 0), ir_in(fn, o, 1) }, in[2] = { s->map[x[0]], s->map[x[1]] };
	ir_shard h[2] = { s->sh[x[0]], s->sh[x[1]] };
	const struct ir_axes *ax = ir_axes_of(&p->a, p->m, fn, o);
	int rank[2];
	struct ir_shard_info want[2];
	for (int q = 0; q < 2; q++) {
		rank[q] = ir_vtype(p->m, fn, x[q])->rank;
		if (h[q] && h[1 - q] && p->m->shard.p[h[q]].mesh != p->m->shard.p[h[1 - q]].mesh)
			return refuse(p, s, o);
		want[q] = (struct ir_shard_info){ .mesh = p->m->shard.p[h[q] ? h[q] : h[1 - q]].mesh, .rank = rank[q] };
		want[q].dim = ARENA_NEW(&p->a, struct ir_dim_shard, rank[q]);
		for (int d = 0; d < rank[q] && h[q]; d++)
			want[q].dim[d] = p->m->shard.p[h[q]].dim[d];
	}
	bool sum = false, mask[IR_MAX_RANK] = {0};
	for (int f = 0; f < ax->nfactor; f++) {
		int at[2] = { ir_axes_find(ax, 0, f), ir_axes_find(ax, 1, f) };
		if (at[0] < 0 || at[1] < 0)
			continue;
		struct ir_dim_shard *d[2] = { &want[0].dim[at[0]], &want[1].dim[at[1]] };
		for (int q = 0; q < 2; q++)
			if (!d[q]->naxis && d[1 - q]->naxis) {
				if (shares_axis(p, h[q], d[1 - q]))
					return refuse(p, s, o);
				*d[q] = *d[1 - q];
			}
		if (d[0]->naxis != d[1]->naxis || memcmp(d[0]->axis, d[1]->axis, sizeof *d[0]->axis * (size_t)d[0]->naxis))
			return refuse(p, s, o);
		if (ax->factor[f].kind == FACTOR_SUM && d[0]->naxis)
			mask[at[0]] = sum = true;
	}
	ir_shard to[2];
	for (int q = 0; q < 2; q++) {
		to[q] = ir_shard_add(p->m, &want[q]);
		to[q] = ir_shard_replicated(p->m, to[q]) ? 0 : to[q];
		TRY(check_even(p, fn->val.p[x[q]].type, to[q], "an operand of a product"));
		in[q] = reshard(p, &s->b, in[q], h[q], to[q]);
	}
	struct ir_shard_info r = { .mesh = want[0].mesh, .rank = ir_vtype(p->m, fn, o->out)->rank };
	r.dim = ARENA_NEW(&p->a, struct ir_dim_shard, r.rank);
	for (int f = 0; f < ax->nfactor; f++) {
		int d = ir_axes_find(ax, 2, f), q = ir_axes_find(ax, 0, f) < 0;
		if (d < 0)
			continue;
		r.dim[d] = want[q].dim[ir_axes_find(ax, q, f)];
		if (q == 1 && r.dim[d].naxis && shares_axis(p, to[0], &r.dim[d]))
			return refuse(p, s, o);              /* one axis cuts a free dimension of both */
	}
	ir_shard rh = ir_shard_add(p->m, &r);
	rh = ir_shard_replicated(p->m, rh) ? 0 : rh;
	enum dtype dt = ir_vtype(p->m, fn, o->out)->dtype;
	emit(p, s, o, in, rh, NULL, sum && rounds(dt, RED_add) ? DT_f32 : DT_token);
	if (sum)
		s->map[o->out] = combine(p, &s->b, s->map[o->out], to[0], rank[0], mask, RED_add, dt);
	return NULL;
}

static void scope_init(struct part *p, struct scope *s, const struct ir_fn *from, struct ir_fn *to)
{
	*s = (struct scope){ from, { p->m, to, 0 }, ARENA_NEW(&p->a, ir_val, from->val.n), ARENA_NEW(&p->a, ir_shard, from->val.n),
	                     ARENA_NEW(&p->a, bool, from->val.n), false };
}

/* Results k and k + 1 of manual computation o are the parts of a joint sum: they are put together. */
static void join(struct part *p, struct scope *s, struct scope *b, const struct ir_op *o, uint32_t k, const int64_t *out)
{
	const struct ir_fn *body = b->from;
	bool all[1] = { true };
	ir_val v[2];
	ir_type t[2];
	for (uint32_t j = 0; j < 2; j++) {
		ir_val x = body->result.p[k + j];
		v[j] = reshard(p, &s->b, b->map[x], b->sh[x], 0);
		t[j] = s->b.fn->val.p[v[j]].type;
	}
	int64_t w[3] = { group_along(p, partial(p, (ir_shard)out[k]), 1, all), RED_softmax, 0 };
	ir_val whole = ir_emit_raw(&s->b, IR_all_reduce, 2, v, 2, t, w, 3);
	for (uint32_t j = 0; j < 2; j++) {
		s->map[o->out + k + j] = whole + j;
		s->sh[o->out + k + j] = summed(p, plain(p, (ir_shard)out[k + j], ir_vtype(p->m, s->from, o->out + k + j)->rank));
	}
}

static struct err *do_manual(struct part *p, struct scope *s, const struct ir_op *o)
{
	const struct ir_fn *fn = s->from, *body = ir_fn_of(p->m, (ir_fnid)ir_attr(fn, o, AT_body));
	int nin, nout;
	const int64_t *in = ir_attrs(fn, o, AT_in, &nin), *out = ir_attrs(fn, o, AT_out, &nout);
	struct scope b;
	scope_init(p, &b, body, s->b.fn);
	b.inner = true;
	for (uint32_t k = 0; k < o->nin; k++) {
		ir_val v = ir_in(fn, o, k);
		int rank = ir_vtype(p->m, fn, v)->rank;
		ir_shard want = (int)k < nin ? plain(p, (ir_shard)in[k], rank) : 0;
		TRY(check_even(p, fn->val.p[v].type, want, "an operand of a manual computation"));
		b.map[k + 1] = reshard(p, &s->b, s->map[v], s->sh[v], want);
	}
	b.b.loc = o->loc;
	TRY(do_ops(p, &b));
	for (uint32_t k = 0; k < o->nout; k++) {
		ir_val v = body->result.p[k];
		if ((int)k + 1 < nout && ir_shard_joint(p->m, (ir_shard)out[k])) {
			join(p, s, &b, o, k, out);
			k++;
			continue;
		}
		int rank = ir_vtype(p->m, fn, o->out + k)->rank;
		s->map[o->out + k] = reshard(p, &s->b, b.map[v], b.sh[v], 0);
		s->sh[o->out + k] = (int)k < nout ? plain(p, (ir_shard)out[k], rank) : 0;
	}
	return NULL;
}

/* A region whose parameters have shardings sh; its results are brought to want[k] (NULL: replicated). */
static struct err *do_region(struct part *p, bool inner, ir_fnid f, const ir_shard *sh, const ir_shard *want, ir_fnid *out)
{
	const struct ir_fn *fn = ir_fn_of(p->m, f);
	struct ir_fn *g = ir_fn_new(p->m, ir_text(p->m, fn->name));
	struct scope s;
	scope_init(p, &s, fn, g);
	s.inner = inner;
	for (uint32_t i = 1; i <= fn->nparam; i++) {
		s.map[i] = ir_param(g, local_type(p, fn->val.p[i].type, sh[i - 1], DT_token));
		s.sh[i] = sh[i - 1];
	}
	TRY(do_ops(p, &s));
	for (size_t i = 0; i < fn->result.n; i++) {
		ir_val v = fn->result.p[i];
		ir_result(g, reshard(p, &s.b, s.map[v], s.sh[v], want ? want[i] : 0));
	}
	*out = g->id;
	return NULL;
}

static ir_shard without_first(struct part *p, ir_shard h, int rank)
{
	int from[IR_MAX_RANK];
	for (int d = 0; d + 1 < rank; d++)
		from[d] = d + 1;
	return moved(p, h, rank - 1, from);
}

static struct err *do_loop(struct part *p, struct scope *s, const struct ir_op *o)
{
	const struct ir_fn *fn = s->from;
	const struct ir_loop l = ir_loop_view(&p->a, p->m, fn, o);
	ir_shard *par = ARENA_NEW(&p->a, ir_shard, l.body->nparam), *res = ARENA_NEW(&p->a, ir_shard, l.nmade), *flat = ARENA_NEW(&p->a, ir_shard, l.n);
	ir_shard *end = ARENA_NEW(&p->a, ir_shard, l.nmade);
	ir_val *in = operands(p, s, o);
	for (int k = 0; k < l.n; k++) {
		bool stack = ir_role_is_stack(l.x[k].role);
		ir_shard h = s->sh[l.x[k].v];
		if (stack && ir_shard_parts(p->m, h, 0) > 1)
			return refuse(p, s, o);
		ir_shard inner = stack ? without_first(p, h, ir_vtype(p->m, fn, l.x[k].v)->rank) : h;
		if (l.x[k].asked)
			flat[l.x[k].asked - 1] = h;
		if (l.x[k].param)
			par[l.x[k].param - 1] = inner;
		if (l.x[k].result >= 0) {
			res[l.x[k].result] = inner;
			end[l.x[k].result] = h;
		}
	}
	uint32_t words;
	int64_t *w = ir_attr_copy(&p->a, fn, o, &words), *cond = ir_attr_word(IR_loop, w, AT_cond), *body = ir_attr_word(IR_loop, w, AT_body);
	ir_fnid f;
	if (*cond) {
		TRY(do_region(p, s->inner, (ir_fnid)*cond, flat, NULL, &f));
		*cond = f;
	}
	TRY(do_region(p, s->inner, (ir_fnid)*body, par, res, &f));
	*body = f;
	ir_type *t = ARENA_NEW(&p->a, ir_type, o->nout);
	for (uint32_t k = 0; k < o->nout; k++)
		t[k] = local_type(p, fn->val.p[o->out + k].type, end[k], DT_token);
	s->b.loc = o->loc;
	ir_val v = ir_emit_raw(&s->b, IR_loop, o->nin, in, o->nout, t, w, words);
	for (uint32_t k = 0; k < o->nout; k++) {
		s->map[o->out + k] = v + k;
		s->sh[o->out + k] = end[k];
	}
	return NULL;
}

static struct err *do_case(struct part *p, struct scope *s, const struct ir_op *o)
{
	const struct ir_fn *fn = s->from;
	int n;
	const int64_t *branch = ir_attrs(fn, o, AT_branch, &n);
	ir_shard *sh = ARENA_NEW(&p->a, ir_shard, o->nin);
	for (uint32_t k = 1; k < o->nin; k++)
		sh[k - 1] = s->sh[ir_in(fn, o, k)];
	int64_t *w = ARENA_NEW(&p->a, int64_t, n + 1);
	w[0] = n;
	for (int j = 0; j < n; j++) {
		ir_fnid f;
		TRY(do_region(p, s->inner, (ir_fnid)branch[j], sh, NULL, &f));
		w[j + 1] = f;
	}
	ir_type *t = ARENA_NEW(&p->a, ir_type, o->nout);
	for (uint32_t k = 0; k < o->nout; k++)
		t[k] = fn->val.p[o->out + k].type;
	s->b.loc = o->loc;
	put(p, s, o, ir_emit_raw(&s->b, IR_case, o->nin, operands(p, s, o), o->nout, t, w, (uint32_t)n + 1), 0);
	return NULL;
}

/* What constraint h, plainly to, asks of a value that is sharded by now: dimensions that it leaves open stay cut as they are
 * while their axes are free. */
static ir_shard opened(struct part *p, ir_shard h, ir_shard to, ir_shard now, int rank)
{
	if (!h || !now || (to && p->m->shard.p[to].mesh != p->m->shard.p[now].mesh))
		return to;
	struct ir_shard_info n = { .mesh = p->m->shard.p[now].mesh, .rank = rank };
	n.dim = ARENA_NEW(&p->a, struct ir_dim_shard, rank);
	for (int d = 0; d < rank; d++) {
		const struct ir_dim_shard *was = &p->m->shard.p[now].dim[d];
		if (to)
			n.dim[d] = p->m->shard.p[to].dim[d];
		if (d < p->m->shard.p[h].rank && p->m->shard.p[h].dim[d].open && !n.dim[d].naxis && !shares_axis(p, to, was))
			n.dim[d] = *was;
	}
	ir_shard r = ir_shard_add(p->m, &n);
	return ir_shard_replicated(p->m, r) ? 0 : r;
}

/* What is still to be summed among o's operands is summed. */
static void finish_sums(struct part *p, struct scope *s, const struct ir_op *o)
{
	for (uint32_t k = 0; k < o->nin; k++) {
		ir_val x = ir_in(s->from, o, k);
		if (partial(p, s->sh[x]))
			s->map[x] = reshard(p, &s->b, s->map[x], s->sh[x], summed(p, s->sh[x]));
		s->sh[x] = summed(p, s->sh[x]);
	}
}

static struct err *try_op(struct part *p, struct scope *s, const struct ir_op *o)
{
	const struct ir_fn *fn = s->from;
	bool sharded = false;
	for (uint32_t k = 0; k < o->nin; k++)
		sharded |= s->sh[ir_in(fn, o, k)] != 0;
	switch (o->kind) {
	case IR_manual:
		return do_manual(p, s, o);
	case IR_sharding_constraint: {
		ir_val x = ir_in(fn, o, 0);
		int rank = ir_vtype(p->m, fn, x)->rank;
		ir_shard to = plain(p, (ir_shard)ir_attr(fn, o, AT_sharding), rank);
		bool sums = partial(p, to) != partial(p, s->sh[x]);
		if (!sums && !s->inner)
			to = opened(p, (ir_shard)ir_attr(fn, o, AT_sharding), to, s->sh[x], rank);
		if (sums || (!s->inner && divides(p, fn->val.p[x].type, to))) {
			TRY(check_even(p, fn->val.p[x].type, to, "a constraint"));
			s->map[o->out] = reshard(p, &s->b, s->map[x], s->sh[x], to);
			s->soft[o->out] = s->soft[x] || !equal(p, to, s->sh[x], rank);
			s->sh[o->out] = to;
			return NULL;
		}
		s->map[o->out] = s->map[x];
		s->sh[o->out] = s->sh[x];
		return NULL;
	}
	case IR_sharding_group:
		return NULL;
	case IR_rng:
		if (p->ndev == 1 || s->inner)
			break;
		s->b.loc = o->loc;
		put(p, s, o, same_everywhere(p, s, ir_clone(&s->b, fn, o, operands(p, s, o))), 0);
		return NULL;
	case IR_loop:
		finish_sums(p, s, o);
		return do_loop(p, s, o);
	case IR_case:
		finish_sums(p, s, o);
		return do_case(p, s, o);
	case IR_optimization_barrier:
	case IR_custom_call:
		if (o->kind == IR_custom_call && sharded)
			return refuse(p, s, o);
		if (sharded) {
			ir_val *in = operands(p, s, o);
			ir_type *t = ARENA_NEW(&p->a, ir_type, o->nout);
			for (uint32_t k = 0; k < o->nout; k++)
				t[k] = s->b.fn->val.p[in[k]].type;
			ir_val v = ir_emit_raw(&s->b, o->kind, o->nin, in, o->nout, t, NULL, 0);
			for (uint32_t k = 0; k < o->nout; k++) {
				s->map[o->out + k] = v + k;
				s->sh[o->out + k] = s->sh[ir_in(fn, o, k)];
			}
			return NULL;
		}
		break;
	default:
		break;
	}
	bool sums = false, same = true;
	for (uint32_t k = 0; k < o->nin; k++) {
		sums |= partial(p, s->sh[ir_in(fn, o, k)]) != 0;
		same &= s->sh[ir_in(fn, o, k)] == s->sh[ir_in(fn, o, 0)];
	}
	bool linear = o->kind == IR_add || o->kind == IR_subtract || o->kind == IR_negate || o->kind == IR_transpose || o->kind == IR_reshape;
	if (sums && linear && same && !summed(p, s->sh[ir_in(fn, o, 0)])) {
		ir_shard h = s->sh[ir_in(fn, o, 0)];     /* sums of parts are parts of sums */
		ir_val v = ir_clone(&s->b, fn, o, operands(p, s, o));
		struct ir_shard_info n = p->m->shard.p[h];
		n.rank = ir_vtype(p->m, fn, o->out)->rank;
		n.dim = ARENA_NEW(&p->a, struct ir_dim_shard, n.rank);
		put(p, s, o, v, ir_shard_add(p->m, &n));
		return NULL;
	}
	finish_sums(p, s, o);
	sharded = false;
	for (uint32_t k = 0; k < o->nin; k++)
		sharded |= s->sh[ir_in(fn, o, k)] != 0;
	if (!sharded) {
		ir_val v = ir_clone(&s->b, fn, o, operands(p, s, o));
		put(p, s, o, v, 0);
		return NULL;
	}
	if (ir_is_elem(o->kind) || o->kind == IR_reduce_precision)
		return do_elem(p, s, o);
	if (o->kind == IR_dot)
		return do_dot(p, s, o);
	return do_shape(p, s, o);
}

static struct err *do_op(struct part *p, struct scope *s, const struct ir_op *o)
{
	struct ir_fn *g = s->b.fn;
	struct ir_mark before = ir_mark(g);
	ir_val *map = operands(p, s, o);
	ir_shard *sh = ARENA_NEW(&p->a, ir_shard, o->nin);
	bool soft = false, hard = false;
	for (uint32_t k = 0; k < o->nin; k++) {
		ir_val x = ir_in(s->from, o, k);
		sh[k] = s->sh[x];
		soft |= s->soft[x];
		hard |= s->sh[x] && !s->soft[x];
	}
	struct err *e = try_op(p, s, o);
	if (e && soft && e->code == ERR_UNIMPLEMENTED) {
		err_free(e);
		ir_go_back(g, before);
		for (uint32_t k = 0; k < o->nin; k++) {
			ir_val x = ir_in(s->from, o, k);
			s->map[x] = map[k];
			s->sh[x] = sh[k];
		}
		for (uint32_t k = 0; k < o->nin; k++) {
			ir_val x = ir_in(s->from, o, k);
			if (!s->soft[x])
				continue;
			s->map[x] = reshard(p, &s->b, s->map[x], s->sh[x], 0);
			s->sh[x] = 0;
			s->soft[x] = false;
		}
		soft = false;
		e = try_op(p, s, o);
	}
	for (uint32_t k = 0; !e && o->kind != IR_sharding_constraint && k < o->nout; k++)
		s->soft[o->out + k] = s->sh[o->out + k] && soft && !hard;
	return e;
}

static struct err *do_ops(struct part *p, struct scope *s)
{
	for (size_t i = 0; i < s->from->op.n; i++)
		TRY(do_op(p, s, &s->from->op.p[i]));
	return NULL;
}

/* Is there anything to do? */
static bool plain_program(const struct ir_module *m)
{
	for (size_t f = 1; f < m->fn.n; f++)
		for (size_t i = 0; i < m->fn.p[f]->op.n; i++) {
			enum ir_kind k = m->fn.p[f]->op.p[i].kind;
			if (k == IR_manual || k == IR_sharding_constraint || k == IR_sharding_group)
				return false;
		}
	return true;
}

struct err *spmd_partition(struct ir_module *m, int ndev)
{
	const struct ir_fn *fn = ir_main(m);
	if (ndev <= 1 && plain_program(m))
		return NULL;
	struct part p = { .m = m, .ndev = MAX(1, ndev) };
	arena_init(&p.a);
	struct ir_fn *g = ir_fn_new(m, ir_text(m, fn->name));
	struct scope s;
	scope_init(&p, &s, fn, g);
	struct err *e = NULL;
	for (uint32_t i = 0; i < fn->nparam; i++) {
		ir_shard h = ndev > 1 ? plain(&p, m->arg[i].shard, ir_vtype(m, fn, i + 1)->rank) : 0;
		TRY_GOTO(e, check_even(&p, fn->val.p[i + 1].type, h, "an argument"), out);
		s.map[i + 1] = ir_param(g, local_type(&p, fn->val.p[i + 1].type, h, DT_token));
		s.sh[i + 1] = h;
	}
	TRY_GOTO(e, do_ops(&p, &s), out);
	for (size_t i = 0; i < fn->result.n; i++) {
		ir_val v = fn->result.p[i];
		int rank = ir_vtype(m, fn, v)->rank;
		ir_shard h = s.sh[v];
		if (m->res[i].shard && ndev > 1) {
			h = plain(&p, m->res[i].shard, rank);
			TRY_GOTO(e, check_even(&p, fn->val.p[v].type, h, "a result"), out);
		} else {
			m->res[i].shard = h;
		}
		ir_result(g, reshard(&p, &s.b, s.map[v], s.sh[v], h));
	}
	m->fn.p[1] = g;                /* the new main; the old one stays as a dead function */
	m->fn.p[g->id] = (struct ir_fn *)fn;
	m->fn.p[g->id]->id = g->id;
	g->id = 1;
out:
	arena_fini(&p.a);
	return e;
}
