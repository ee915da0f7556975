/* Collectives, over groups of partitions. */
#include "wire.h"

/* --- groups ------------------------------------------------------------- */

struct err *group_make(struct hlo *h, int rows, int cols, int64_t *id, int64_t channel, bool global, ir_group *g, bool *alone)
{
	*alone = false;
	*g = 0;
	if (h->m->num_replicas != 1)
		return no_op(h, "a collective in a program of %d replicas", h->m->num_replicas);
	if (channel <= 0) {
		*alone = true;
		return NULL;
	}
	if (rows * cols == 0 || !global) {
		rows = 1;
		cols = h->m->num_partitions;
		id = ARENA_NEW(&h->a, int64_t, cols);
		for (int i = 0; i < cols; i++)
			id[i] = i;
	}
	*g = ir_group_add(h->m, rows, cols, id);
	return NULL;
}

enum { V_SUB_AXIS = 21, V_AXIS_REF, V_MESH_AXES, V_MESH_AXIS, V_MESH };    /* codes of vhlo */

static struct err *open_vhlo(struct hlo *h, uint32_t attr, int want, const char *what, struct cur *c)
{
	int d, code;
	TRY(attr_open(h, attr, c, &d, &code));
	return d == D_VHLO && code == want ? NULL : bad_at(h->attr[attr].at, "attribute %u is not %s", attr, what);
}

/* A mesh that is written out, or that of a name. */
static struct err *mesh_of(struct hlo *h, uint32_t attr, struct ir_mesh *m)
{
	struct cur c;
	int d, code, k;
	uint32_t i, n, *list;
	struct span s;
	TRY(attr_open(h, attr, &c, &d, &code));
	if (d != D_VHLO || code != V_MESH) {
		TRY(mesh_find(h, attr, &i));
		*m = h->m->mesh.p[i];
		return NULL;
	}
	uint32_t axes = cur_index(&c, h->nattr);
	uint64_t ids = cur_varint(&c);
	TRY(cur_err(&c, "mesh"));
	TRY(attr_list(h, axes, &n, &list));
	*m = (struct ir_mesh){ .naxis = (int)n, .axis = ARENA_NEW(&h->a, struct ir_mesh_axis, n + 1), .ndev = 1 };
	for (i = 0; i < n; i++) {
		TRY(open_vhlo(h, list[i], V_MESH_AXIS, "an axis of a mesh", &c));
		TRY(attr_str(h, cur_index(&c, h->nattr), &s));
		m->axis[i] = (struct ir_mesh_axis){ span_intern(h, s), cur_svarint(&c) };
		TRY(cur_err(&c, "axis of a mesh"));
		if (m->axis[i].size < 1 || m->axis[i].size > (1 << 20) / m->ndev)
			return bad_at(h->attr[attr].at, "a mesh with an axis of %lld", (long long)m->axis[i].size);
		m->ndev *= m->axis[i].size;
	}
	if (!(ids & 1))
		return NULL;
	if (ids >> 1 >= h->nattr)
		return bad_at(h->attr[attr].at, "devices of a mesh that do not exist");
	TRY(attr_ints(h, (uint32_t)(ids >> 1), &k, &m->id));
	if (!k)
		m->id = NULL;
	return !k || k == m->ndev ? NULL : bad_at(h->attr[attr].at, "a mesh of %lld devices that names %d", (long long)m->ndev, k);
}

/* How far apart neighbours along the axis, or the part of one, that attr refers to are in the order of m, and how many they are. */
static struct err *axis_step(struct hlo *h, uint32_t attr, const struct ir_mesh *m, int64_t *step, int64_t *n)
{
	struct cur c;
	struct span s;
	TRY(open_vhlo(h, attr, V_AXIS_REF, "a reference to an axis", &c));
	TRY(attr_str(h, cur_index(&c, h->nattr), &s));
	bool part = cur_varint(&c) != 0;
	uint32_t sub = part ? cur_index(&c, h->nattr) : 0;
	TRY(cur_err(&c, "reference to an axis"));
	int a = mesh_axis(m, span_intern(h, s));
	if (a < 0)
		return bad_at(h->attr[attr].at, "its mesh has no axis '%.*s'", (int)MIN(s.n, 200), h->p + s.at);
	int64_t pre = 1;
	*n = m->axis[a].size;
	if (part) {
		TRY(open_vhlo(h, sub, V_SUB_AXIS, "a part of an axis", &c));
		pre = cur_svarint(&c);
		*n = cur_svarint(&c);
		TRY(cur_err(&c, "part of an axis"));
		if (pre < 1 || *n < 1 || *n > m->axis[a].size || pre > m->axis[a].size / *n || m->axis[a].size % (pre * *n))
			return bad_at(h->attr[sub].at, "a part of an axis that does not divide it");
	}
	*step = m->axis[a].size / (pre * *n);
	for (int k = a + 1; k < m->naxis; k++)
		*step *= m->axis[k].size;
	return NULL;
}

/* Groups along axes of a mesh: whoever has coordinate 0 along all of them begins a group; its members are in the order of the axes, the
 * last the fastest. */
static struct err *mesh_groups(struct hlo *h, struct cur c, int *rows, int *cols, int64_t **id)
{
	struct ir_mesh m;
	uint32_t mesh = cur_index(&c, h->nattr), axes = cur_index(&c, h->nattr), n, *list;
	TRY(cur_err(&c, "replica groups"));
	TRY(mesh_of(h, mesh, &m));
	TRY(attr_list(h, axes, &n, &list));
	int64_t *step = ARENA_NEW(&h->a, int64_t, n + 1), *size = ARENA_NEW(&h->a, int64_t, n + 1), members = 1, k = 0;
	for (uint32_t i = 0; i < n; i++) {
		TRY(axis_step(h, list[i], &m, &step[i], &size[i]));
		if (members > m.ndev / size[i])
			return bad_op(h, "groups along axes that overlap");
		members *= size[i];
	}
	*id = ARENA_NEW(&h->a, int64_t, m.ndev);
	for (int64_t first = 0; first < m.ndev; first++) {
		bool begins = true;
		for (uint32_t i = 0; i < n; i++)
			begins &= first / step[i] % size[i] == 0;
		if (!begins)
			continue;
		for (int64_t j = 0; j < members; j++) {
			int64_t at = first, rest = j;
			for (uint32_t i = n; i-- > 0; rest /= size[i])
				at += rest % size[i] * step[i];
			if (k == m.ndev)
				return bad_op(h, "groups along axes that overlap");
			(*id)[k++] = m.id ? m.id[at] : at;
		}
	}
	if (k != m.ndev)
		return bad_op(h, "groups along axes that overlap");
	*rows = (int)(m.ndev / members);
	*cols = (int)members;
	return NULL;
}

/* The groups of a collective with this property of them and this channel, UINT32_MAX: none. */
static struct err *groups(struct hlo *h, uint32_t attr, uint32_t channel, int64_t global, ir_group *g, bool *alone)
{
	int n, rank, rows = 0, cols = 0, d, code;
	int64_t *id, dim[2], ch = 0;
	struct cur c;
	if (channel != UINT32_MAX)
		TRY(attr_int(h, channel, &ch));
	TRY(attr_open(h, attr, &c, &d, &code));
	if (d == D_VHLO && code == V_MESH_AXES) {
		TRY(mesh_groups(h, c, &rows, &cols, &id));
	} else {
		TRY(attr_ints2(h, attr, &n, &id, &rank, dim));
		if (rank != 2)
			return bad_op(h, "its groups are not a matrix");
		rows = (int)dim[0];
		cols = (int)dim[1];
	}
	return group_make(h, rows, cols, id, ch, global != 0, g, alone);
}

/* --- those that are one operation --------------------------------------- */

/* all_reduce; reduce_scatter, which has a dimension beside. */
struct err *conv_reducing(struct hlo *h, const struct wop *o)
{
	enum ir_kind kind = h->opname[o->name].row->kind;
	bool scatter = kind == IR_reduce_scatter;
	uint32_t p[4], n;    /* channel, groups, (dim,) global ids */
	enum redop r;
	ir_fnid f;
	ir_group g;
	bool alone;
	ir_val *in;
	int64_t global;
	TRY(region_reducer(h, o, 0, "reduce", &r, &f));
	TRY(op_props(h, o, p));
	TRY(attr_int(h, p[2 + scatter], &global));
	TRY(groups(h, p[1], p[0], global, &g, &alone));
	TRY(op_ins_widened(h, o, 1, &n, &in));
	if (alone)
		return op_bind(h, o, n, in);
	w_begin(h);
	if (scatter)
		TRY(w_attr_int(h, p[2]));
	w_int(h, g);
	w_int(h, r);
	w_int(h, f);
	return op_emit(h, o, kind, n, in, (uint32_t)h->word.n, h->word.p);
}

struct err *conv_cross_replica_sum(struct hlo *h, const struct wop *o)
{
	if (h->m->num_replicas != 1)
		return no_op(h, "a sum over %d replicas", h->m->num_replicas);
	return op_same(h, o);
}

struct err *conv_all_gather(struct hlo *h, const struct wop *o)
{
	uint32_t p[4];    /* dim, channel, groups, global ids */
	ir_group g;
	bool alone;
	int64_t global;
	TRY(op_props(h, o, p));
	TRY(attr_int(h, p[3], &global));
	TRY(groups(h, p[2], p[1], global, &g, &alone));
	if (alone)
		return op_same(h, o);
	w_begin(h);
	TRY(w_attr_int(h, p[0]));
	w_int(h, g);
	return op_emit_words(h, o, IR_all_gather);
}

struct err *all_to_all(struct hlo *h, const struct wop *o, int64_t split, int64_t concat, int64_t count, ir_group g)
{
	if (count != h->m->group.p[g].ncol)
		return bad_op(h, "it splits in %lld for groups of %d", (long long)count, h->m->group.p[g].ncol);
	w_begin(h);
	w_int(h, split);
	w_int(h, concat);
	w_int(h, g);
	return op_emit_words(h, o, IR_all_to_all);
}

struct err *conv_all_to_all(struct hlo *h, const struct wop *o)
{
	uint32_t p[5];    /* channel, concat, groups, count, split */
	ir_group g;
	bool alone;
	int64_t count, split, concat;
	TRY(op_props(h, o, p));
	TRY(groups(h, p[2], p[0], 1, &g, &alone));
	TRY(attr_int(h, p[3], &count));
	TRY(attr_int(h, p[4], &split));
	TRY(attr_int(h, p[1], &concat));
	return alone ? op_same(h, o) : all_to_all(h, o, split, concat, count, g);
}

struct err *permute(struct hlo *h, const struct wop *o, int64_t channel, int n, const int64_t *pairs)
{
	if (h->m->num_replicas != 1 || (channel <= 0 && h->m->num_partitions != 1))
		return no_op(h, "a permutation of replicas");
	w_begin(h);
	w_list(h, n, pairs);
	return op_emit_words(h, o, IR_collective_permute);
}

struct err *conv_collective_permute(struct hlo *h, const struct wop *o)
{
	uint32_t p[2];
	int64_t ch, *pairs;
	int n;
	TRY(op_props(h, o, p));
	TRY(attr_int(h, p[0], &ch));
	TRY(attr_ints(h, p[1], &n, &pairs));
	return permute(h, o, ch, n, pairs);
}

/* --- rows that data name -------------------------------------------------- */

/* An entry of a dictionary; *out = UINT32_MAX if it has none of that name. */
static struct err *entry(struct hlo *h, uint32_t dict, const char *name, uint32_t *out)
{
	uint32_t n, *kv;
	struct span key;
	*out = UINT32_MAX;
	TRY(attr_dict(h, dict, &n, &kv));
	for (uint32_t i = 0; i < n; i++) {
		TRY(attr_str(h, kv[2 * i], &key));
		if (span_is(h, key, name))
			*out = kv[2 * i + 1];
	}
	return NULL;
}

/* Numbers `from` to `end` of each slice. */
static ir_val numbers(struct ir_b *b, ir_val slices, int64_t k, int64_t from, int64_t end)
{
	return ir_slice(b, slices, (int64_t[]){ 0, from }, (int64_t[]){ k, end }, (int64_t[]){ 1, 1 });
}

static ir_val beside(struct ir_b *b, uint32_t n, const ir_val *in, int64_t k, int64_t wide)
{
	int64_t dim[2] = { k, wide }, along = 1;
	return ir_emit(b, IR_concatenate, n, in, ir_tensor(b->m, DT_i64, 2, dim), &along, 1);
}

/* Its members say what they send, and where that goes: they tell those who are to have it, who then read it.  A slice has as many rows as both say. */
struct err *ragged_all_to_all(struct hlo *h, const struct wop *o, uint32_t config)
{
	enum { OPERAND, OUTPUT, INPUT_OFFSETS, SEND_SIZES, OUTPUT_OFFSETS, RECV_SIZES, OPERANDS };
	struct ir_b *b = &h->b;
	ir_val in[OPERANDS], sent[3], told;
	uint32_t of, channel;
	ir_group g;
	bool alone;
	TRY(op_ins_n(h, o, OPERANDS, in));
	TRY(entry(h, config, "replica_groups", &of));
	TRY(entry(h, config, "channel_id", &channel));
	if (of == UINT32_MAX)
		return bad_op(h, "it has no groups");
	TRY(groups(h, of, channel, 1, &g, &alone));
	if (alone) {
		int n = h->m->num_partitions;
		int64_t *id = ARENA_NEW(&h->a, int64_t, n);
		for (int i = 0; i < n; i++)
			id[i] = i;
		g = ir_group_add(h->m, n, 1, id);
	}
	const struct ir_type_info *t = ir_vtype(h->m, b->fn, in[INPUT_OFFSETS]);
	int64_t k = t->rank == 1 ? t->dim[0] : -1, column[2] = { k, 1 };
	for (int i = INPUT_OFFSETS; i < OPERANDS; i++) {
		t = ir_vtype(h->m, b->fn, in[i]);
		if (t->rank != 1 || t->dim[0] != k || (dtype_info[t->dtype].cls != DT_INT && dtype_info[t->dtype].cls != DT_UINT))
			return bad_op(h, "its offsets and sizes are not four lists of as many integers");
		in[i] = ir_reshape(b, ir_convert(b, in[i], DT_i64), 2, column);
	}
	sent[SLICE_FROM] = in[INPUT_OFFSETS];
	sent[SLICE_TO] = in[OUTPUT_OFFSETS];
	sent[SLICE_ROWS] = in[SEND_SIZES];
	told = beside(b, 3, sent, k, 3);
	ir_type type = b->fn->val.p[told].type;
	TRY(op_emit_t(h, IR_all_to_all, 1, &told, 1, &type, 3, (int64_t[]){ 0, 0, g }, &told));
	sent[0] = numbers(b, told, k, 0, SLICE_ROWS);
	sent[1] = ir_bin(b, ELEM_minimum, numbers(b, told, k, SLICE_ROWS, SLICE_NUMBERS), in[RECV_SIZES]);
	return op_emit(h, o, IR_ragged_all_to_all, 3, (ir_val[]){ in[OPERAND], in[OUTPUT], beside(b, 2, sent, k, 3) }, 1, (int64_t[]){ g });
}

/* --- those with a root --------------------------------------------------- */

/* Is this partition the root of its group?  member: its number in the group, a value of i32; 0: the first. */
static ir_val is_root(struct hlo *h, ir_group g, ir_val member)
{
	struct ir_b *b = &h->b;
	const struct ir_group_info *i = &h->m->group.p[g];
	int64_t n = h->m->num_partitions, one = 1, size[2] = { 1, 1 };
	int32_t *place = ARENA_NEW(&h->a, int32_t, n);
	for (int64_t k = 0; k < n; k++)
		place[k] = -1;
	for (int k = 0; k < i->nrow * i->ncol; k++)
		if (i->id[k] >= 0 && i->id[k] < n)
			place[i->id[k]] = k % i->ncol;
	ir_type u = ir_scalar(h->m, DT_u32);
	ir_val in[2] = { ir_const(b, ir_tensor(h->m, DT_i32, 1, &n), place, (size_t)n * sizeof *place), 0 };
	in[1] = ir_convert(b, ir_emit_raw(b, IR_partition_id, 0, NULL, 1, &u, NULL, 0), DT_i32);
	ir_val mine = ir_reshape(b, ir_emit(b, IR_dynamic_slice, 2, in, ir_tensor(h->m, DT_i32, 1, &one), size, 2), 0, NULL);
	if (!member)
		member = ir_const_i(b, ir_scalar(h->m, DT_i32), 0);
	return ir_bin(b, ELEM_compare_eq, mine, member);
}

static ir_val or_zero(struct hlo *h, ir_val pred, ir_val v)
{
	ir_type type = h->b.fn->val.p[v].type;
	const struct ir_type_info t = *ir_type_of(h->m, type);
	ir_val zero = ir_const_i(&h->b, type, 0);
	return ir_select(&h->b, ir_splat_of(&h->b, pred, ir_tensor(h->m, DT_pred, t.rank, t.dim)), v, zero);
}

/* v of the root everywhere, bit by bit: the others add zeros, and -0 + 0 would not be -0. */
static ir_val from_root(struct hlo *h, ir_val v, ir_val root, ir_group g)
{
	struct ir_b *b = &h->b;
	const struct ir_type_info t = *ir_vtype(h->m, b->fn, v);
	const struct dtype_info *d = &dtype_info[t.dtype];
	if (d->cls == DT_COMPLEX) {
		ir_val re = from_root(h, ir_un(b, ELEM_real, v), root, g), im = from_root(h, ir_un(b, ELEM_imag, v), root, g);
		return ir_bin(b, ELEM_complex, re, im);
	}
	if (d->cls == DT_FLOAT && d->bits == 6)      /* there are no integers of that width */
		return ir_convert(b, from_root(h, ir_convert(b, v, DT_f16), root, g), t.dtype);
	if (d->cls == DT_FLOAT) {
		enum dtype u = d->bits == 64 ? DT_u64 : d->bits == 32 ? DT_u32 : d->bits == 16 ? DT_u16 : d->bits == 8 ? DT_u8 : DT_u4;
		ir_val bits = ir_emit(b, IR_bitcast, 1, &v, ir_tensor(h->m, u, t.rank, t.dim), NULL, 0);
		bits = from_root(h, bits, root, g);
		return ir_emit(b, IR_bitcast, 1, &bits, ir_tensor(h->m, t.dtype, t.rank, t.dim), NULL, 0);
	}
	v = or_zero(h, root, v);
	return ir_emit(b, IR_all_reduce, 1, &v, b->fn->val.p[v].type, (int64_t[]){ g, RED_or, 0 }, 3);
}

/* Root k of those that the last operand names. */
static ir_val root_of(struct hlo *h, ir_val all, uint32_t k)
{
	int64_t start = k, limit = k + 1, stride = 1;
	return ir_reshape(&h->b, ir_slice(&h->b, all, &start, &limit, &stride), 0, NULL);
}

/* Operands of o, *n of them, and behind them the numbers of their roots, in *root if they are given. */
static struct err *rooted(struct hlo *h, const struct wop *o, int64_t given, uint32_t *n, ir_val **in, ir_val *root)
{
	TRY(op_ins(h, o, n, in));
	*root = 0;
	if (!given)
		return NULL;
	const struct ir_type_info *t = *n ? ir_vtype(h->m, h->b.fn, (*in)[*n - 1]) : NULL;
	if (!t || t->dtype != DT_i32 || t->rank != 1 || t->dim[0] != *n - 1)
		return bad_op(h, "its last operand is not a root for each of the others");
	*root = (*in)[--*n];
	return NULL;
}

/* Without a root for each operand it is the first of the group, and one operation. */
struct err *conv_collective_broadcast(struct hlo *h, const struct wop *o)
{
	uint32_t p[3] = {0}, n;    /* channel, (are roots given,) groups */
	ir_group g;
	bool alone, second = h->opname[o->name].row->nprop == 3;
	int64_t given = 0;
	ir_val *in, root;
	TRY(op_props(h, o, p));
	if (second)
		TRY(attr_int(h, p[1], &given));
	TRY(groups(h, p[1 + second], p[0], 1, &g, &alone));
	TRY(rooted(h, o, given, &n, &in, &root));
	for (uint32_t i = 0; i < n && !alone; i++) {
		ir_type t = h->b.fn->val.p[in[i]].type;
		int64_t w = g;
		if (root)
			in[i] = from_root(h, in[i], is_root(h, g, root_of(h, root, i)), g);
		else
			TRY(op_emit_t(h, IR_collective_broadcast, 1, &in[i], 1, &t, 1, &w, &in[i]));
	}
	return op_bind(h, o, n, in);
}

/* A reduction whose value only the root has; the others have zeros. */
struct err *conv_collective_reduce(struct hlo *h, const struct wop *o)
{
	uint32_t p[4], n, k;    /* channel, are roots given, groups, global ids */
	enum redop r;
	ir_fnid f;
	ir_group g;
	bool alone;
	int64_t given, global;
	ir_val *in, root, v;
	ir_type *t;
	TRY(region_reducer(h, o, 0, "reduce", &r, &f));
	TRY(op_props(h, o, p));
	TRY(attr_int(h, p[1], &given));
	TRY(attr_int(h, p[3], &global));
	TRY(groups(h, p[2], p[0], global, &g, &alone));
	TRY(rooted(h, o, given, &n, &in, &root));
	TRY(op_outs(h, o, &k, &t));
	if (n != k)
		return bad_op(h, "it has %u operands and %u results", n, k);
	for (uint32_t i = 0; i < n; i++)
		op_widen(h, &in[i], t[i]);
	if (alone || !n)
		return op_bind(h, o, n, in);
	TRY(op_emit_t(h, IR_all_reduce, n, in, n, t, 3, (int64_t[]){ g, r, f }, &v));
	for (uint32_t i = 0; i < n; i++)
		in[i] = or_zero(h, is_root(h, g, root ? root_of(h, root, i) : 0), v + i);
	return op_bind(h, o, n, in);
}
