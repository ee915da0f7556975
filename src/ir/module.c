/* Modules: interning of types, strings, shardings, groups, locations; access to attributes. */
#include "ir.h"

#include <pthread.h>
#include <stdlib.h>

static struct ir_kind_info kinds[IR_COUNT] = {
	[IR_none] = { .name = "none", .meaning = "" },
#define AT(name, kind) { AT_##name, kind },
#define OP(id, nin, nout, flags, axes, cost, attrs, meaning) [IR_##id] = { #id, nin, nout, flags, { attrs { 0 } }, meaning, 0 },
#include "ops.def"
#undef AT
};
const char *const ir_at_name[AT_COUNT] = {
#define ATTR(name) #name,
#include "ops.def"
};
const char *const ir_role_name[6] = { "carry", "const", "in", "in_rev", "out", "out_rev" };
static uint8_t place[IR_COUNT][AT_COUNT];    /* of an attribute among those of its operation, from 1; 0: it has none of the name */
static struct map by_name;
static struct mem_once once;

static void tables(void)
{
	for (int k = 1; k < IR_COUNT; k++) {
		struct ir_kind_info *i = &kinds[k];
		for (i->nattr = 0; i->attr[i->nattr].kind; i->nattr++)
			place[k][i->attr[i->nattr].name] = (uint8_t)(i->nattr + 1);
		*map_put(&by_name, i->name, strlen(i->name)) = (uint64_t)k;
	}
}

const struct ir_kind_info *ir_info(enum ir_kind k)
{
	mem_once(&once, tables);
	return &kinds[k];
}

int ir_kind_by_name(const char *name, size_t n)
{
	mem_once(&once, tables);
	uint64_t *v = map_get(&by_name, name, n);
	return v ? (int)*v : 0;
}

struct ir_module *ir_module_new(void)
{
	struct ir_module *m = mem_alloc(sizeof *m);
	arena_init(&m->arena);
	arr_push(&m->fn, (struct ir_fn *)NULL);
	arr_push(&m->type, (struct ir_type_info){0});
	arr_push(&m->shard, (struct ir_shard_info){0});
	arr_push(&m->group, (struct ir_group_info){0});
	arr_push(&m->loc, (struct ir_loc_info){0});
	arr_push(&m->str, "");
	m->nblob = 1;
	m->capblob = 16;
	m->blob = mem_alloc(m->capblob * sizeof *m->blob);
	m->num_partitions = m->num_replicas = 1;
	return m;
}

void ir_fn_free(struct ir_fn *f)
{
	arr_free(&f->op);
	arr_free(&f->val);
	arr_free(&f->ref);
	arr_free(&f->use);
	arr_free(&f->attr);
	arr_free(&f->result);
	arr_free(&f->shard);
}

void ir_fn_drop(struct ir_module *m)
{
	ir_fn_free(m->fn.p[--m->fn.n]);
}

struct ir_mark ir_mark(const struct ir_fn *fn)
{
	return (struct ir_mark){ fn->op.n, fn->val.n, fn->ref.n, fn->attr.n };
}

void ir_go_back(struct ir_fn *fn, struct ir_mark to)
{
	while (fn->ref.n > to.ref) {                  /* the newest reader of each is the first in its list */
		struct ir_value *v = &fn->val.p[fn->ref.p[--fn->ref.n]];
		v->use = fn->use.p[--fn->use.n].next;
		v->nuse--;
	}
	fn->op.n = to.op;
	fn->val.n = to.val;
	fn->attr.n = to.attr;
	fn->shard.n = MIN(fn->shard.n, to.val);
}

void ir_shard_set(struct ir_fn *fn, ir_val v, ir_shard h)
{
	while (h && fn->shard.n <= v)
		arr_push(&fn->shard, (ir_shard)0);
	if (v < fn->shard.n)
		fn->shard.p[v] = h;
}

void ir_module_free(struct ir_module *m)
{
	if (!m)
		return;
	while (m->fn.n > 1)
		ir_fn_drop(m);
	arr_free(&m->fn);
	arr_free(&m->type);
	arr_free(&m->mesh);
	arr_free(&m->shard);
	arr_free(&m->group);
	arr_free(&m->loc);
	arr_free(&m->str);
	arr_free(&m->key);
	free(m->blob);
	map_free(&m->type_map);
	map_free(&m->str_map);
	map_free(&m->shard_map);
	map_free(&m->group_map);
	map_free(&m->loc_map);
	arena_fini(&m->arena);
	free(m);
}

ir_type ir_tensor(struct ir_module *m, enum dtype dt, int rank, const int64_t *dim)
{
	int64_t key[IR_MAX_RANK + 1];
	assert(rank >= 0 && rank <= IR_MAX_RANK);
	key[0] = dt;
	if (rank)
		memcpy(key + 1, dim, sizeof *dim * (size_t)rank);
	uint64_t *v = map_put(&m->type_map, key, sizeof *key * (size_t)(rank + 1));
	if (!*v) {
		struct ir_type_info t = { .dtype = (uint8_t)dt, .rank = (uint8_t)rank, .count = 1 };
		t.dim = arena_copy(&m->arena, key + 1, sizeof *dim * (size_t)rank);
		for (int i = 0; i < rank; i++)
			t.count *= dim[i];
		t.bytes = t.count * dtype_info[dt].bytes;
		*v = m->type.n;
		arr_push(&m->type, t);
	}
	return (ir_type)*v;
}

ir_type ir_scalar(struct ir_module *m, enum dtype dt)
{
	return ir_tensor(m, dt, 0, NULL);
}

ir_str ir_intern(struct ir_module *m, const char *s, size_t n)
{
	if (!n)
		return 0;
	uint64_t *v = map_put(&m->str_map, s, n);
	if (!*v) {
		*v = m->str.n;
		arr_push(&m->str, (const char *)arena_str(&m->arena, s, n));
	}
	return (ir_str)*v;
}

const char *ir_text(const struct ir_module *m, ir_str s)
{
	return m->str.p[s];
}

ir_blob ir_blob_add(struct ir_module *m, const void *p, size_t n)
{
	if (m->nblob == m->capblob)
		m->blob = mem_grow(m->blob, (m->capblob *= 2) * sizeof *m->blob);
	m->blob[m->nblob] = (struct ir_blob_info){ arena_copy(&m->arena, p, n), n };
	return (ir_blob)m->nblob++;
}

int64_t ir_key_add(struct ir_module *m, const void *p, size_t n)
{
	struct ir_blob_info k = { arena_copy(&m->arena, p, n), n };
	arr_push(&m->key, k);
	return (int64_t)m->key.n - 1;
}

const struct ir_blob_info *ir_key(const struct ir_module *m, int64_t number)
{
	return number >= 0 && number < (int64_t)m->key.n ? &m->key.p[number] : NULL;
}

const void *ir_blob_data(const struct ir_module *m, ir_blob b, size_t *n)
{
	if (n)
		*n = m->blob[b].n;
	return m->blob[b].p;
}

static void key_refs(struct str *k, int n, const struct ir_axis_ref *a)
{
	str_addn(k, (char *)&n, sizeof n);
	for (int i = 0; i < n; i++) {
		int64_t w[3] = { a[i].axis, a[i].pre, a[i].size };
		str_addn(k, (char *)w, sizeof w);
	}
}

const char *ir_shard_twice(const struct ir_module *m, const struct ir_shard_info *s)
{
	int nl = s->rank + 2;
	for (int i = 0; i < nl; i++)
		for (int k = i; k < nl; k++) {
			int n[2];
			const struct ir_axis_ref *r[2];
			for (int j = 0; j < 2; j++) {
				int l = j ? k : i;
				n[j] = l < s->rank ? s->dim[l].naxis : l == s->rank ? s->nrepl : s->npart;
				r[j] = l < s->rank ? s->dim[l].axis : l == s->rank ? s->repl : s->part;
			}
			for (int x = 0; x < n[0]; x++)
				for (int y = i == k ? x + 1 : 0; y < n[1]; y++)
					if (ir_axes_overlap(r[0][x], r[1][y]))
						return ir_text(m, m->mesh.p[s->mesh].axis[r[0][x].axis].name);
		}
	return NULL;
}

/* Where m->shard_map has the number of what is like s. */
static uint64_t *shard_put(struct ir_module *m, const struct ir_shard_info *s)
{
	struct str k = {0};
	int head[4] = { (int)s->mesh, s->rank, (int)s->part_op, 0 };
	str_addn(&k, (char *)head, sizeof head);
	for (int i = 0; i < s->rank; i++) {
		int w[2] = { s->dim[i].open, s->dim[i].priority };
		str_addn(&k, (char *)w, sizeof w);
		key_refs(&k, s->dim[i].naxis, s->dim[i].axis);
	}
	key_refs(&k, s->nrepl, s->repl);
	key_refs(&k, s->npart, s->part);
	uint64_t *v = map_put(&m->shard_map, k.p, k.n);
	str_free(&k);
	return v;
}

ir_shard ir_shard_add(struct ir_module *m, const struct ir_shard_info *s)
{
	uint64_t *v = shard_put(m, s);
	if (!*v) {
		struct ir_shard_info c = *s;
		c.dim = arena_copy(&m->arena, s->dim, sizeof *s->dim * (size_t)s->rank);
		for (int i = 0; i < s->rank; i++)
			c.dim[i].axis = arena_copy(&m->arena, s->dim[i].axis, sizeof *s->dim[i].axis * (size_t)s->dim[i].naxis);
		c.repl = arena_copy(&m->arena, s->repl, sizeof *s->repl * (size_t)s->nrepl);
		c.part = arena_copy(&m->arena, s->part, sizeof *s->part * (size_t)s->npart);
		*v = m->shard.n;
		arr_push(&m->shard, c);
	}
	return (ir_shard)*v;
}

/* Those that reach to the end of the mesh's last axis. */
static void refs_widen(const struct ir_mesh *mesh, int n, struct ir_axis_ref *r, int by)
{
	for (int i = 0; i < n; i++)
		if (r[i].axis == mesh->naxis - 1 && r[i].pre * r[i].size * by == mesh->axis[r[i].axis].size)
			r[i].size *= by;
}

void ir_mesh_widen(struct ir_module *m, int by)
{
	for (size_t k = 0; k < m->mesh.n; k++) {
		struct ir_mesh *mesh = &m->mesh.p[k];
		int64_t n = mesh->naxis ? by : 1, *id = mesh->id ? ARENA_NEW(&m->arena, int64_t, mesh->ndev * n) : NULL;
		for (int64_t i = 0; id && i < mesh->ndev * n; i++)
			id[i] = mesh->id[i / n] * by + i % n;
		mesh->id = id;
		if (mesh->naxis) {
			mesh->axis[mesh->naxis - 1].size *= by;
			mesh->ndev *= by;
		}
	}
	m->num_partitions *= by;
	map_free(&m->shard_map);
	for (size_t k = 1; k < m->shard.n; k++) {
		struct ir_shard_info *s = &m->shard.p[k];
		const struct ir_mesh *mesh = &m->mesh.p[s->mesh];
		for (int d = 0; d < s->rank; d++)
			refs_widen(mesh, s->dim[d].naxis, s->dim[d].axis, by);
		refs_widen(mesh, s->nrepl, s->repl, by);
		refs_widen(mesh, s->npart, s->part, by);
		*shard_put(m, s) = k;
	}
}

int64_t ir_shard_parts(const struct ir_module *m, ir_shard s, int dim)
{
	int64_t n = 1;
	if (s && dim < m->shard.p[s].rank)
		for (int i = 0; i < m->shard.p[s].dim[dim].naxis; i++)
			n *= m->shard.p[s].dim[dim].axis[i].size;
	return n;
}

bool ir_shard_replicated(const struct ir_module *m, ir_shard s)
{
	if (!s)
		return true;
	const struct ir_shard_info *i = &m->shard.p[s];
	for (int d = 0; d < i->rank; d++)
		if (ir_shard_parts(m, s, d) > 1)
			return false;
	for (int a = 0; a < i->npart; a++)
		if (i->part[a].size > 1)
			return false;
	return true;
}

bool ir_shard_joint(const struct ir_module *m, ir_shard s)
{
	return s && m->shard.p[s].npart && m->shard.p[s].part_op == RED_softmax;
}

bool ir_shard_pair(const struct ir_module *m, ir_shard o, ir_shard l)
{
	if (!ir_shard_joint(m, o) || !ir_shard_joint(m, l))
		return false;
	const struct ir_shard_info *a = &m->shard.p[o], *b = &m->shard.p[l];
	bool same = a->mesh == b->mesh && a->npart == b->npart;
	for (int k = 0; k < a->npart && same; k++)
		same = a->part[k].axis == b->part[k].axis && a->part[k].pre == b->part[k].pre && a->part[k].size == b->part[k].size;
	return same;
}

bool ir_is_pair(const struct ir_module *m, ir_type o, ir_type l)
{
	const struct ir_type_info *a = ir_type_of(m, o), *b = ir_type_of(m, l);
	return dtype_info[a->dtype].cls == DT_FLOAT && dtype_info[b->dtype].cls == DT_FLOAT && b->rank <= a->rank &&
	       !memcmp(a->dim, b->dim, sizeof *a->dim * b->rank);
}

ir_group ir_group_add(struct ir_module *m, int nrow, int ncol, const int64_t *id)
{
	struct str k = {0};
	int head[2] = { nrow, ncol };
	size_t n = sizeof *id * (size_t)nrow * (size_t)ncol;
	str_addn(&k, (char *)head, sizeof head);
	str_addn(&k, (const char *)id, n);
	uint64_t *v = map_put(&m->group_map, k.p, k.n);
	str_free(&k);
	if (!*v) {
		*v = m->group.n;
		arr_push(&m->group, ((struct ir_group_info){ nrow, ncol, arena_copy(&m->arena, id, n) }));
	}
	return (ir_group)*v;
}

ir_loc ir_loc_add(struct ir_module *m, ir_str file, int line, ir_str name)
{
	if (!file && !line && !name)
		return 0;
	uint32_t key[3] = { file, (uint32_t)line, name };
	uint64_t *v = map_put(&m->loc_map, key, sizeof key);
	if (!*v) {
		*v = m->loc.n;
		arr_push(&m->loc, ((struct ir_loc_info){ file, line, name, 0 }));
	}
	return (ir_loc)*v;
}

ir_loc ir_loc_also(struct ir_module *m, ir_loc l, ir_loc more)
{
	struct ir_loc_info i = m->loc.p[l];

	if (!l)
		return more;
	i.more = more;
	arr_push(&m->loc, i);
	return (ir_loc)m->loc.n - 1;
}

void ir_loc_lines(struct str *s, const struct ir_module *m, ir_loc l)
{
	enum { MOST = 4 };
	const struct ir_loc_info *said[MOST];
	int n = 0;

	for (; l; l = m->loc.p[l].more) {
		const struct ir_loc_info *i = &m->loc.p[l];
		const char *file = ir_text(m, i->file), *base = strrchr(file, '/');
		bool had = !*file;
		for (int k = 0; k < n && !had; k++)
			had = said[k]->file == i->file && said[k]->line == i->line;
		if (had)
			continue;
		if (n == MOST) {
			str_add(s, ",..");
			return;
		}
		if (n && said[n - 1]->file == i->file)
			str_addf(s, ",%d", i->line);
		else
			str_addf(s, "%s%s:%d", n ? " " : "", base ? base + 1 : file, i->line);
		said[n++] = i;
	}
}

ir_loc ir_loc_inside(struct ir_module *m, ir_loc inner, ir_loc outer)
{
	struct ir_loc_info i = m->loc.p[inner], o = m->loc.p[outer];
	const char *in = ir_text(m, i.name), *out = ir_text(m, o.name);
	size_t first = strcspn(out, "/");             /* a name that begins as the call's is one from outside already */
	ir_str name = i.name ? i.name : o.name;
	if (*in && *out && (strncmp(in, out, first) || (in[first] && in[first] != '/'))) {
		struct str s = {0};
		str_addf(&s, "%s/%s", out, in);
		name = ir_intern(m, s.p, s.n);
		str_free(&s);
	}
	if (i.file || !o.file)
		return name == i.name ? inner : ir_loc_add(m, i.file, i.line, name);
	return ir_loc_add(m, o.file, o.line, name);
}

struct ir_fn *ir_fn_new(struct ir_module *m, const char *name)
{
	struct ir_fn *f = ARENA_NEW(&m->arena, struct ir_fn, 1);
	f->id = (ir_fnid)m->fn.n;
	f->name = ir_intern(m, name, strlen(name));
	arr_push(&m->fn, f);
	arr_push(&f->val, (struct ir_value){0});
	return f;
}

ir_val ir_param(struct ir_fn *fn, ir_type t)
{
	assert(fn->val.n == fn->nparam + 1);
	arr_push(&fn->val, ((struct ir_value){ .type = t, .def = IR_PARAM }));
	return ++fn->nparam;
}

static bool is_list(char kind)
{
	return kind == 'I' || kind == 'F' || kind == 'H';
}

/* The i-th attribute among the words of all. */
static int64_t *nth(enum ir_kind kind, int64_t *w, int i)
{
	const struct ir_kind_info *k = ir_info(kind);
	for (int j = 0; j < i; j++)
		w += is_list(k->attr[j].kind) ? 1 + *w : 1;
	return w;
}

bool ir_has_attr(enum ir_kind k, enum ir_at a)
{
	mem_once(&once, tables);
	return place[k][a] != 0;
}

int64_t *ir_attr_word(enum ir_kind k, int64_t *words, enum ir_at a)
{
	assert(ir_has_attr(k, a));
	return nth(k, words, place[k][a] - 1);
}

int64_t ir_attr(const struct ir_fn *fn, const struct ir_op *o, enum ir_at a)
{
	return *ir_attr_word(o->kind, fn->attr.p + o->attr, a);
}

const int64_t *ir_attrs(const struct ir_fn *fn, const struct ir_op *o, enum ir_at a, int *n)
{
	const int64_t *w = ir_attr_word(o->kind, fn->attr.p + o->attr, a);
	assert(is_list(ir_info(o->kind)->attr[place[o->kind][a] - 1].kind));
	*n = (int)*w;
	return w + 1;
}

const int64_t *ir_attr_nth(const struct ir_fn *fn, const struct ir_op *o, int i, int *n)
{
	const int64_t *w = nth(o->kind, fn->attr.p + o->attr, i);
	bool list = is_list(ir_info(o->kind)->attr[i].kind);
	*n = list ? (int)*w : 1;
	return w + list;
}

uint32_t ir_attr_words(const struct ir_fn *fn, const struct ir_op *o)
{
	int64_t *w = fn->attr.p + o->attr;
	return ir_info(o->kind)->nattr ? (uint32_t)(nth(o->kind, w, ir_info(o->kind)->nattr) - w) : 0;
}

int64_t *ir_attr_copy(struct arena *a, const struct ir_fn *fn, const struct ir_op *o, uint32_t *n)
{
	*n = ir_attr_words(fn, o);
	return arena_copy(a, *n ? &fn->attr.p[o->attr] : NULL, sizeof(int64_t) * *n);
}

void ir_attr_set(struct ir_fn *fn, struct ir_op *o, enum ir_at a, int64_t v)
{
	*ir_attr_word(o->kind, fn->attr.p + o->attr, a) = v;
}

const void *ir_splat(const struct ir_module *m, const struct ir_fn *fn, ir_val v)
{
	for (;;) {
		const struct ir_op *o = ir_def(fn, v);
		if (!o)
			return NULL;
		if (o->kind == IR_broadcast || o->kind == IR_reshape) {
			v = ir_in(fn, o, 0);
			continue;
		}
		if (o->kind != IR_constant)
			return NULL;
		size_t n, e = dtype_info[ir_vtype(m, fn, v)->dtype].bytes;
		const char *p = ir_blob_data(m, (ir_blob)ir_attr(fn, o, AT_data), &n);
		if (n == 0 || e == 0)
			return NULL;
		if (n > e && (memcmp(p, p + e, n - e) != 0))
			return NULL;
		return p;
	}
}

static int64_t int_of(enum dtype dt, const void *p)
{
	int64_t v = 0;
	const struct dtype_info *d = &dtype_info[dt];
	memcpy(&v, p, MIN((size_t)d->bytes, sizeof v));
	if (d->cls == DT_INT && d->bytes < 8) {
		int s = 64 - d->bits;
		v = (int64_t)((uint64_t)v << s) >> s;
	}
	return v;
}

static bool is_whole(enum dtype dt)
{
	return dtype_info[dt].cls == DT_INT || dtype_info[dt].cls == DT_UINT || dtype_info[dt].cls == DT_PRED;
}

bool ir_const_int(const struct ir_module *m, const struct ir_fn *fn, ir_val v, int64_t *out)
{
	const struct ir_op *o = ir_def(fn, v);
	enum dtype to[8];
	int n = 0;
	for (; o && (o->kind == IR_broadcast || o->kind == IR_reshape || o->kind == IR_convert); o = ir_def(fn, v)) {
		if (o->kind == IR_convert) {
			if (n == (int)NELEM(to))
				return false;
			to[n++] = ir_vtype(m, fn, v)->dtype;
		}
		v = ir_in(fn, o, 0);
	}
	enum dtype dt = ir_vtype(m, fn, v)->dtype;
	const void *p = ir_splat(m, fn, v);
	if (!p || !is_whole(dt))
		return false;
	int64_t c = int_of(dt, p);
	for (; n-- > 0; dt = to[n]) {
		if (!is_whole(to[n]))
			return false;
		int bits = dtype_info[to[n]].bits;
		if (dtype_info[to[n]].cls == DT_PRED)
			c = c != 0;
		else if (bits < 64)
			c = dtype_info[to[n]].cls == DT_INT ? (int64_t)((uint64_t)c << (64 - bits)) >> (64 - bits) : (int64_t)((uint64_t)c << (64 - bits) >> (64 - bits));
	}
	*out = c;
	return dtype_info[dt].cls != DT_UINT || c >= 0;
}

bool ir_view(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, const int64_t *in, int64_t *off, int64_t *out)
{
	if (o->kind != IR_broadcast && o->kind != IR_transpose && o->kind != IR_reverse && o->kind != IR_slice)
		return false;
	const struct ir_type_info *t = ir_vtype(m, fn, ir_in(fn, o, 0)), *r = ir_vtype(m, fn, o->out);
	int n;
	const int64_t *l = ir_attr_nth(fn, o, 0, &n), *step = o->kind == IR_slice ? ir_attrs(fn, o, AT_stride, &n) : NULL;    /* dims, perm or start */
	*off = 0;
	for (int d = 0; d < r->rank; d++)
		out[d] = o->kind == IR_broadcast ? 0 : o->kind == IR_transpose ? in[l[d]] : in[d];
	for (int i = 0; i < n; i++)
		switch (o->kind) {
		case IR_broadcast:
			out[l[i]] = t->dim[i] == 1 ? 0 : in[i];
			break;
		case IR_reverse:
			*off += r->count ? (t->dim[l[i]] - 1) * in[l[i]] : 0;
			out[l[i]] = -in[l[i]];
			break;
		case IR_slice:
			*off += r->count ? l[i] * in[i] : 0;
			out[i] = in[i] * step[i];
			break;
		default:
			break;
		}
	return true;
}

bool ir_dict_next(struct ir_dict_it *it)
{
	size_t left = (size_t)(it->end - it->p);
	uint32_t n;
	if (left < 4)
		return false;
	memcpy(&n, it->p, 4);
	if (left - 4 < (size_t)n + 8)
		return false;
	it->name = (const char *)it->p + 4;
	it->name_n = n;
	const uint8_t *q = it->p + 4 + n;
	it->kind = q[0];
	it->dtype = q[1];
	memcpy(&it->count, q + 4, 4);
	if (it->kind <= 1 && (it->dtype >= DT_COUNT || !dtype_info[it->dtype].name))
		return false;
	size_t bytes = it->kind <= 1 ? (size_t)it->count * dtype_info[it->dtype].bytes : it->count;
	if (left - 12 - n < bytes)
		return false;
	it->data = q + 8;
	it->p = q + 8 + bytes;
	return true;
}
