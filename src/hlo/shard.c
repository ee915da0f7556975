/* Attributes of the sdy dialect: meshes, shardings, axes. */
#include "wire.h"

#include <stdlib.h>

enum { SDY_MANUAL_AXES, SDY_MESH_AXIS, SDY_MESH, SDY_SUB_AXIS, SDY_AXIS_REF, SDY_DIM, SDY_TENSOR_V1, SDY_PER_VALUE_V1,
       SDY_TENSOR_V2 = 15, SDY_PER_VALUE_V2, SDY_TENSOR_V3 };

enum { MAX_AXES = 64, MAX_DEVICES = 1 << 20 };

static struct err *open_sdy(struct hlo *h, uint32_t attr, int want, const char *what, struct cur *c)
{
	int d, code;
	TRY(attr_open(h, attr, c, &d, &code));
	if (d != D_SDY || code != want)
		return bad_at(h->attr[attr].at, "attribute %u is not %s", attr, what);
	return NULL;
}

static ir_str string_of(struct hlo *h, uint32_t s)
{
	return span_intern(h, h->str[s]);
}

/* A mesh attribute as a row of m->mesh. */
static struct err *mesh_read(struct hlo *h, uint32_t attr, ir_str name, uint32_t *out)
{
	struct cur c;
	struct ir_mesh m = { .name = name, .ndev = 1 };
	TRY(open_sdy(h, attr, SDY_MESH, "a mesh", &c));
	uint32_t n = cur_count(&c);
	if (n > MAX_AXES)
		return ERR(UNIMPLEMENTED, "mesh of %u axes at byte %u", n, h->attr[attr].at);
	m.naxis = (int)n;
	m.axis = ARENA_NEW(&h->m->arena, struct ir_mesh_axis, n);
	for (uint32_t i = 0; i < n; i++) {
		struct cur a;
		uint32_t k = cur_index(&c, h->nattr);
		TRY(cur_err(&c, "mesh"));
		TRY(open_sdy(h, k, SDY_MESH_AXIS, "an axis of a mesh", &a));
		uint32_t s = cur_index(&a, h->nstr);
		int64_t size = cur_svarint(&a);
		TRY(cur_err(&a, "axis of a mesh"));
		m.axis[i] = (struct ir_mesh_axis){ string_of(h, s), size };
		if (size < 1 || size > MAX_DEVICES || m.ndev * size > MAX_DEVICES)
			return bad_at(h->attr[k].at, "axis '%s' of size %lld in a mesh", ir_text(h->m, m.axis[i].name), (long long)size);
		m.ndev *= size;
		for (uint32_t j = 0; j < i; j++)
			if (m.axis[j].name == m.axis[i].name)
				return bad_at(h->attr[k].at, "a mesh with two axes '%s'", ir_text(h->m, m.axis[i].name));
	}
	uint32_t nid = cur_count(&c);
	if (nid) {
		if (nid != m.ndev)
			return bad_at(h->attr[attr].at, "a mesh of %lld devices with %u ids", (long long)m.ndev, nid);
		m.id = ARENA_NEW(&h->m->arena, int64_t, nid);
		uint8_t *seen = ARENA_NEW(&h->a, uint8_t, nid);
		for (uint32_t i = 0; i < nid && !c.bad; i++) {
			m.id[i] = cur_svarint(&c);
			bool ok = n == 0 ? m.id[i] >= 0 && m.id[i] < MAX_DEVICES : m.id[i] >= 0 && m.id[i] < nid && !seen[m.id[i]];
			if (!ok && !c.bad)
				return bad_at(h->attr[attr].at, "device ids of a mesh that are no permutation");
			if (n)
				seen[m.id[i]] = 1;
		}
	}
	TRY(cur_err(&c, "mesh"));
	*out = (uint32_t)h->m->mesh.n;
	arr_push(&h->m->mesh, m);
	return NULL;
}

struct err *mesh_add(struct hlo *h, const struct wop *o)
{
	uint32_t p[2], i;    /* mesh, sym_name */
	struct span s;
	TRY(op_props(h, o, p));
	TRY(attr_str(h, p[1], &s));
	if (memchr(h->p + s.at, 0, s.n))
		return bad_op(h, "a name with a zero byte");
	TRY(mesh_read(h, p[0], span_intern(h, s), &i));
	uint64_t *v = map_put(&h->mesh_map, h->p + s.at, s.n);
	if (*v)
		return bad_op(h, "two meshes '%.*s'", (int)MIN(s.n, 200), h->p + s.at);
	*v = i + 1;
	return NULL;
}

struct err *mesh_find(struct hlo *h, uint32_t attr, uint32_t *out)
{
	struct cur c;
	int d, code;
	struct span s;
	TRY(attr_open(h, attr, &c, &d, &code));
	if (d == D_SDY && code == SDY_MESH) {
		char name[32];
		int n = snprintf(name, sizeof name, "inline_%zu", h->m->mesh.n);
		return mesh_read(h, attr, ir_intern(h->m, name, (size_t)n), out);
	}
	TRY(attr_str(h, attr, &s));
	uint64_t *v = map_get(&h->mesh_map, h->p + s.at, s.n);
	if (!v)
		return bad_at(h->attr[attr].at, "no mesh '%.*s'", (int)MIN(s.n, 200), h->p + s.at);
	*out = (uint32_t)(*v - 1);
	return NULL;
}

int mesh_axis(const struct ir_mesh *m, ir_str name)
{
	for (int i = 0; i < m->naxis; i++)
		if (m->axis[i].name == name)
			return i;
	return -1;
}

static struct err *axis_ref(struct hlo *h, uint32_t attr, uint32_t mesh, struct ir_axis_ref *out)
{
	struct cur c, sub;
	TRY(open_sdy(h, attr, SDY_AXIS_REF, "a reference to an axis", &c));
	uint32_t s = cur_index(&c, h->nstr);
	uint64_t opt = cur_varint(&c);
	TRY(cur_err(&c, "reference to an axis"));
	const struct ir_mesh *m = &h->m->mesh.p[mesh];
	int a = mesh_axis(m, string_of(h, s));
	if (a < 0)
		return bad_at(h->attr[attr].at, "mesh '%s' has no axis '%s'", ir_text(h->m, m->name), (const char *)h->p + h->str[s].at);
	*out = (struct ir_axis_ref){ (uint16_t)a, 1, m->axis[a].size };
	if (!(opt & 1))
		return NULL;
	if (opt >> 1 >= h->nattr)
		return bad_at(h->attr[attr].at, "a part of an axis that does not exist");
	TRY(open_sdy(h, (uint32_t)(opt >> 1), SDY_SUB_AXIS, "a part of an axis", &sub));
	int64_t full = m->axis[a].size;
	out->pre = cur_svarint(&sub);
	out->size = cur_svarint(&sub);
	TRY(cur_err(&sub, "part of an axis"));
	if (out->pre < 1 || out->size < 1 || out->pre > full || out->size > full || full % (out->pre * out->size))
		return bad_at(h->attr[attr].at, "part (%lld)%lld of an axis of size %lld", (long long)out->pre, (long long)out->size,
		              (long long)full);
	return NULL;
}

static struct err *axis_refs(struct hlo *h, struct cur *c, uint32_t mesh, int *n, struct ir_axis_ref **out)
{
	uint32_t k = cur_count(c);
	TRY(cur_err(c, "list of axes"));
	*n = (int)k;
	*out = ARENA_NEW(&h->a, struct ir_axis_ref, k);
	for (uint32_t i = 0; i < k; i++) {
		uint32_t a = cur_index(c, h->nattr);
		TRY(cur_err(c, "list of axes"));
		TRY(axis_ref(h, a, mesh, &(*out)[i]));
	}
	return NULL;
}

struct err *shard_get(struct hlo *h, uint32_t attr, ir_shard *out)
{
	if (h->shard[attr]) {
		*out = h->shard[attr] - 1;
		return NULL;
	}
	struct cur c;
	int d, code;
	TRY(attr_open(h, attr, &c, &d, &code));
	if (d != D_SDY || (code != SDY_TENSOR_V1 && code != SDY_TENSOR_V2 && code != SDY_TENSOR_V3))
		return bad_at(h->attr[attr].at, "attribute %u is not a sharding", attr);
	struct ir_shard_info s = { .part_op = RED_add };
	uint32_t mesh = cur_index(&c, h->nattr), rank = cur_count(&c);
	TRY(cur_err(&c, "sharding"));
	TRY(mesh_find(h, mesh, &s.mesh));
	if (rank > IR_MAX_RANK)
		return ERR(UNIMPLEMENTED, "sharding of rank %u at byte %u", rank, h->attr[attr].at);
	s.rank = (int)rank;
	s.dim = ARENA_NEW(&h->a, struct ir_dim_shard, rank);
	for (uint32_t i = 0; i < rank; i++) {
		struct cur k;
		uint32_t a = cur_index(&c, h->nattr);
		TRY(cur_err(&c, "sharding"));
		TRY(open_sdy(h, a, SDY_DIM, "the sharding of a dimension", &k));
		TRY(axis_refs(h, &k, s.mesh, &s.dim[i].naxis, &s.dim[i].axis));
		s.dim[i].open = !cur_byte(&k);
		uint64_t prio = cur_varint(&k);
		TRY(cur_err(&k, "sharding of a dimension"));
		if (prio & 1)
			s.dim[i].priority = (int)MIN(prio >> 1, 1u << 20);
	}
	TRY(axis_refs(h, &c, s.mesh, &s.nrepl, &s.repl));
	if (code != SDY_TENSOR_V1)
		TRY(axis_refs(h, &c, s.mesh, &s.npart, &s.part));
	if (code == SDY_TENSOR_V3) {
		int64_t r = cur_svarint(&c);
		TRY(cur_err(&c, "sharding"));
		if (r < 0 || r > 2)
			return ERR(UNIMPLEMENTED, "sharding reduced by operation %lld at byte %u", (long long)r, h->attr[attr].at);
		s.part_op = r == 0 ? RED_add : r == 1 ? RED_max : RED_min;
	}
	const char *twice = ir_shard_twice(h->m, &s);
	if (twice)
		return bad_at(h->attr[attr].at, "a sharding by axis '%s' twice", twice);
	*out = ir_shard_add(h->m, &s);
	h->shard[attr] = *out + 1;
	return NULL;
}

struct err *shard_per_value(struct hlo *h, uint32_t attr, uint32_t *n, ir_shard **out)
{
	struct cur c;
	int d, code;
	TRY(attr_open(h, attr, &c, &d, &code));
	if (d == D_SDY && (code == SDY_TENSOR_V1 || code == SDY_TENSOR_V2 || code == SDY_TENSOR_V3)) {
		*n = 1;
		*out = ARENA_NEW(&h->a, ir_shard, 1);
		return shard_get(h, attr, *out);
	}
	if (d != D_SDY || (code != SDY_PER_VALUE_V1 && code != SDY_PER_VALUE_V2))
		return bad_at(h->attr[attr].at, "attribute %u is not a list of shardings", attr);
	*n = cur_count(&c);
	TRY(cur_err(&c, "list of shardings"));
	*out = ARENA_NEW(&h->a, ir_shard, *n);
	for (uint32_t i = 0; i < *n; i++) {
		uint32_t a = cur_index(&c, h->nattr);
		TRY(cur_err(&c, "list of shardings"));
		TRY(shard_get(h, a, &(*out)[i]));
	}
	return NULL;
}

bool shard_says_nothing(const struct hlo *h, ir_shard s)
{
	const struct ir_shard_info *i = &h->m->shard.p[s];
	const struct ir_mesh *m = &h->m->mesh.p[i->mesh];
	if (!m->naxis)
		return !m->id;    /* a mesh of no axes: nothing can be sharded; with an id: this device only */
	for (int d = 0; d < i->rank; d++)
		if (i->dim[d].naxis || !i->dim[d].open)
			return false;
	return !i->nrepl && !i->npart && i->rank > 0;
}

struct err *shard_axes(struct hlo *h, uint32_t attr, uint32_t *n, ir_str **out)
{
	struct cur c;
	TRY(open_sdy(h, attr, SDY_MANUAL_AXES, "a list of manual axes", &c));
	*n = cur_count(&c);
	TRY(cur_err(&c, "list of manual axes"));
	*out = ARENA_NEW(&h->a, ir_str, *n);
	for (uint32_t i = 0; i < *n; i++) {
		uint32_t a = cur_index(&c, h->nattr);
		struct span t;
		TRY(cur_err(&c, "list of manual axes"));
		TRY(attr_str(h, a, &t));
		(*out)[i] = span_intern(h, t);
	}
	return NULL;
}
