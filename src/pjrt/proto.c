/* The few protocol buffers that cross the interface, read and written by hand. */
#include <stdlib.h>

#include "impl.h"

/* --- reading -------------------------------------------------------------- */

struct reader { const uint8_t *p, *end; bool bad; };
struct field { uint32_t id; int wire; uint64_t v; struct span s; };

static uint64_t varint(struct reader *r)
{
	uint64_t v = 0;
	for (int shift = 0; shift < 70; shift += 7) {
		if (r->p == r->end)
			break;
		uint8_t b = *r->p++;
		if (shift < 64)
			v |= (uint64_t)(b & 127) << shift;
		if (!(b & 128))
			return v;
	}
	r->bad = true;
	return 0;
}

static struct reader reader(struct span s)
{
	return (struct reader){ (const uint8_t *)s.p, (const uint8_t *)s.p + s.n, false };
}

/* The next field; false at the end or where the bytes are malformed (r->bad).  Fields have numbers from 1 to 2^29 - 1. */
static bool next(struct reader *r, struct field *f)
{
	if (r->bad || r->p == r->end)
		return false;
	uint64_t key = varint(r);
	f->id = (uint32_t)(key >> 3);
	f->wire = (int)(key & 7);
	f->v = 0;
	f->s = (struct span){ 0 };
	size_t n = 0;
	if (f->wire == 0)
		f->v = varint(r);
	else if (f->wire == 1)
		n = 8;
	else if (f->wire == 5)
		n = 4;
	else if (f->wire == 2)
		n = (size_t)varint(r);
	else
		r->bad = true;
	if (r->bad || !f->id || key >> 32 || n > (size_t)(r->end - r->p)) {
		r->bad = true;
		return false;
	}
	f->s = (struct span){ (const char *)r->p, n };
	r->p += n;
	return true;
}

enum { MOST_DEVICES = 65536 };

static struct err *malformed(const char *what)
{
	return ERR(INVALID, "malformed %s", what);
}

/* DeviceAssignmentProto: 1 replica_count, 2 computation_count, 3 repeated { 1 repeated replica_device_ids }. */
static struct err *read_assignment(struct span s, struct pjrt_options *o)
{
	struct reader r = reader(s);
	struct field f, g;
	int64_t replicas = 1, partitions = 1, part = 0;
	while (next(&r, &f)) {
		if (f.id == 1)
			replicas = (int64_t)f.v;
		else if (f.id == 2)
			partitions = (int64_t)f.v;
	}
	if (r.bad || replicas < 1 || partitions < 1 || replicas > MOST_DEVICES || partitions > MOST_DEVICES / replicas)
		return malformed("device assignment");
	int64_t n = replicas * partitions;
	o->device.n = 0;
	for (int64_t i = 0; i < n; i++)
		arr_push(&o->device, 0);
	for (r = reader(s); next(&r, &f);) {
		if (f.id != 3)
			continue;
		int64_t rep = 0;
		struct reader q = reader(f.s);
		while (next(&q, &g)) {
			struct reader ids = reader(g.s);
			do {
				uint64_t id = g.wire == 2 ? (ids.p == ids.end ? 0 : varint(&ids)) : g.v;
				if (g.id != 1 || (g.wire == 2 && !g.s.n))
					break;
				if (rep >= replicas || part >= partitions || id > INT32_MAX)
					return malformed("device assignment");
				o->device.p[rep++ * partitions + part] = (int)id;
			} while (g.wire == 2 && ids.p < ids.end);
			if (ids.bad)
				return malformed("device assignment");
		}
		if (q.bad || rep != replicas)
			return malformed("device assignment");
		part++;
	}
	if (part != partitions)
		return malformed("device assignment");
	o->replicas = replicas;
	o->partitions = partitions;
	return NULL;
}

static struct err *read_build(struct span s, struct pjrt_options *o)
{
	struct reader r = reader(s);
	struct field f;
	struct span assignment = { 0 };
	while (next(&r, &f)) {
		if (f.id == 4)
			o->replicas = (int64_t)f.v;
		else if (f.id == 5)
			o->partitions = (int64_t)f.v;
		else if (f.id == 9)
			assignment = f.s;
	}
	if (r.bad)
		return malformed("build options");
	return assignment.p ? read_assignment(assignment, o) : NULL;
}

/* Is it the first time that this process asks for it?  Of more names than there is room for all are. */
static bool first_time(struct span name)
{
	static _Atomic uint64_t seen[64];
	uint64_t h = hash_bytes(name.p, name.n, 0) | 1;
	for (size_t i = 0; i < NELEM(seen); i++) {
		uint64_t was = 0;
		if (atomic_compare_exchange_strong(&seen[i], &was, h))
			return true;
		if (was == h)
			return false;
	}
	return true;
}

/* What users set through jit(compiler_options=...).  None of XLA's options changes what Rondo does; those
 * of known type are checked as XLA does, the others of XLA's, which may be no options at all, are named in a warning. */
static struct err *check_option(struct span name, struct span value)
{
	static const struct { const char *name; char type; } known[] = {
		{ "xla_embed_ir_in_executable", 'b' }, { "xla_dump_max_hlo_modules", 'i' },
		{ "xla_cpu_enable_fast_math", 'b' }, { "xla_cpu_enable_fast_min_max", 'b' },
		{ "xla_backend_optimization_level", 'i' }, { "xla_disable_hlo_passes", 's' },
		{ "xla_test_all_input_layouts", 'b' }, { "xla_dump_to", 's' },
		{ "xla_llvm_disable_expensive_passes", 'b' },
		{ "xla_gpu_auto_spmd_partitioning_memory_budget_ratio", 'f' },
	};
	struct reader r = reader(value);
	struct field f;
	char type = 0;
	struct span text = { 0 };
	while (next(&r, &f)) {
		type = f.id == 1 ? 's' : f.id == 2 ? 'b' : f.id == 3 ? 'i' : f.id == 4 ? 'f' : type;
		text = f.s;
	}
	if (r.bad)
		return malformed("compile option");
	static const char *const levels[] = { "optimization_level", "memory_fitting_level",
		"exec_time_optimization_effort", "memory_fitting_effort" };
	for (size_t i = 0; i < NELEM(levels); i++)
		if (strlen(levels[i]) == name.n && !memcmp(levels[i], name.p, name.n))
			return NULL;
	if (name.n < 4 || memcmp(name.p, "xla_", 4))
		return ERR(INVALID, "No such compile option: '%.*s'", (int)name.n, name.p);
	for (size_t i = 0; i < NELEM(known); i++) {
		if (strlen(known[i].name) != name.n || memcmp(known[i].name, name.p, name.n))
			continue;
		bool truth = (text.n == 4 && !memcmp(text.p, "true", 4)) || (text.n == 5 && !memcmp(text.p, "false", 5)) ||
			(text.n == 1 && (*text.p == '0' || *text.p == '1')) ||
			(text.n == 4 && !memcmp(text.p, "True", 4)) || (text.n == 5 && !memcmp(text.p, "False", 5));
		if (known[i].type == 'b' && type == 's' && !truth)
			return ERR(INVALID, "while setting option %s, '%.*s' is not a valid bool value.", known[i].name,
			           (int)text.n, text.p);
		return NULL;
	}
	if (first_time(name))
		log_line(LOG_WARN, "compile option '%.*s' has no effect here", (int)name.n, name.p);
	return NULL;
}

struct err *pjrt_options_read(const void *p, size_t n, struct pjrt_options *out)
{
	*out = (struct pjrt_options){ .replicas = 1, .partitions = 1 };
	struct reader r = reader((struct span){ p, n });
	struct field f, g;
	struct err *e = NULL;
	while (!e && next(&r, &f)) {
		if (f.id == 3) {
			e = read_build(f.s, out);
		} else if (f.id == 7) {
			struct span key = { "", 0 }, value = { 0 };
			struct reader q = reader(f.s);
			while (next(&q, &g)) {
				if (g.id == 1)
					key = g.s;
				else if (g.id == 2)
					value = g.s;
			}
			e = q.bad ? malformed("compile option") : check_option(key, value);
		}
	}
	if (!e && r.bad)
		e = malformed("compile options");
	if (!e && (out->replicas < 1 || out->partitions < 1 || out->replicas > MOST_DEVICES || out->partitions > MOST_DEVICES))
		e = ERR(INVALID, "%lld replicas of %lld partitions", (long long)out->replicas, (long long)out->partitions);
	if (!e && out->device.n && (int64_t)out->device.n != out->replicas * out->partitions)
		e = ERR(INVALID, "a device assignment of %zu devices for %lld replicas of %lld partitions", out->device.n, (long long)out->replicas, (long long)out->partitions);
	if (e)
		pjrt_options_free(out);
	return e;
}

void pjrt_options_free(struct pjrt_options *o)
{
	arr_free(&o->device);
}

/* --- shardings ------------------------------------------------------------ */

/* A repeated integer: packed, or one of those that stand alone. */
static void numbers(const struct field *f, struct arena *a, int *n, int64_t **p)
{
	struct reader r = reader(f->s);
	int64_t *more = ARENA_NEW(a, int64_t, *n + (int64_t)f->s.n + 1);
	if (*n)
		memcpy(more, *p, sizeof *more * (size_t)*n);
	*p = more;
	if (f->wire == 0)
		more[(*n)++] = (int64_t)f->v;
	else
		while (r.p != r.end && !r.bad)
			more[(*n)++] = (int64_t)varint(&r);
}

/* The devices 0, 1, .. seen as an array of extents dim, with its dimensions in the order of perm. */
static struct err *iota_devices(struct arena *a, int n, const int64_t *dim, int nperm, const int64_t *perm, int64_t *count, int64_t **out)
{
	int64_t size = 1, *stride = ARENA_NEW(a, int64_t, n + 1);
	if (nperm != n)
		return malformed("sharding");
	for (int i = 0; i < n; i++) {
		if (dim[i] < 1 || dim[i] > MOST_DEVICES / size || perm[i] < 0 || perm[i] >= n)
			return malformed("sharding");
		size *= dim[i];
	}
	for (int64_t i = n, step = 1; i-- > 0; step *= dim[i])
		stride[i] = step;
	*count = size;
	*out = ARENA_NEW(a, int64_t, size);
	for (int64_t k = 0; k < size; k++) {
		int64_t at = k, d = 0;
		for (int i = n; i-- > 0; at /= dim[perm[i]])
			d += at % dim[perm[i]] * stride[perm[i]];
		(*out)[k] = d;
	}
	return NULL;
}

/* OpSharding: 1 type, 3 tile_assignment_dimensions, 4 tile_assignment_devices, 5 tuple_shardings, 8 last_tile_dims, 9 iota_reshape_dims,
 * 10 iota_transpose_perm. */
struct err *pjrt_shardings_read(struct span s, struct arena *a, struct spmd_tiles *out, size_t n)
{
	enum { REPLICATED, MAXIMAL, TUPLE, OTHER };
	struct reader r = reader(s);
	struct field f;
	uint64_t type = REPLICATED;
	int ndev = 0, niota = 0, nperm = 0, nkind = 0;
	int64_t *iota = NULL, *perm = NULL, *kind = NULL, tiles = 1, count;
	size_t member = 0;
	memset(out, 0, sizeof *out * n);
	while (next(&r, &f)) {
		switch (f.id) {
		case 1: type = f.v; break;
		case 3: numbers(&f, a, &out->n, &out->dim); break;
		case 4: numbers(&f, a, &ndev, &out->device); break;
		case 5:
			if (member == n)
				return malformed("sharding: it has more members than there are values");
			TRY(pjrt_shardings_read(f.s, a, &out[member++], 1));
			break;
		case 8: numbers(&f, a, &nkind, &kind); break;
		case 9: numbers(&f, a, &niota, &iota); break;
		case 10: numbers(&f, a, &nperm, &perm); break;
		}
	}
	if (r.bad || (type == TUPLE ? member != n : member || n != 1))
		return malformed("sharding");
	if (type == TUPLE || type == REPLICATED) {
		out->n = type == TUPLE ? out->n : 0;
		return NULL;
	}
	if (type != OTHER)
		return ERR(UNIMPLEMENTED, "a sharding that is neither tiled nor replicated");
	for (int i = 0; i < nkind; i++)
		if (kind[i] != REPLICATED)
			return ERR(UNIMPLEMENTED, "a sharding whose last tile dimensions are not replicated");
	for (int i = 0; i < out->n; i++) {
		if (out->dim[i] < 1 || out->dim[i] > MOST_DEVICES / tiles)
			return malformed("sharding");
		tiles *= out->dim[i];
	}
	count = ndev;
	if (niota)
		TRY(iota_devices(a, niota, iota, nperm, perm, &count, &out->device));
	return count == tiles ? NULL : malformed("sharding");
}

/* --- writing -------------------------------------------------------------- */

void pjrt_put(struct str *s, uint64_t v)
{
	char b[10];
	size_t n = 0;
	do {
		b[n++] = (char)((v & 127) | (v > 127 ? 128 : 0));
		v >>= 7;
	} while (v);
	str_addn(s, b, n);
}

void pjrt_put_int(struct str *s, int field, uint64_t v)
{
	pjrt_put(s, (uint64_t)field << 3);
	pjrt_put(s, v);
}

void pjrt_put_real(struct str *s, int field, double v)
{
	uint64_t bits;
	char b[8];

	memcpy(&bits, &v, sizeof bits);
	for (int i = 0; i < 8; i++)
		b[i] = (char)(bits >> 8 * i);
	pjrt_put(s, (uint64_t)field << 3 | 1);
	str_addn(s, b, sizeof b);
}

void pjrt_put_bytes(struct str *s, int field, const void *p, size_t n)
{
	pjrt_put(s, (uint64_t)field << 3 | 2);
	pjrt_put(s, n);
	str_addn(s, p, n);
}

/* ShapeProto: 2 element_type, 3 dimensions, 4 tuple_shapes, 6 is_dynamic_dimension. */
void pjrt_shape_write(struct str *s, const struct ir_module *m, const ir_type *t, size_t n)
{
	enum { TUPLE = 13 };
	struct str part = {0};
	pjrt_put(s, 2 << 3);
	if (n != 1) {
		pjrt_put(s, TUPLE);
		for (size_t i = 0; i < n; i++) {
			part.n = 0;
			pjrt_shape_write(&part, m, &t[i], 1);
			pjrt_put_bytes(s, 4, part.p, part.n);
		}
		str_free(&part);
		return;
	}
	const struct ir_type_info *i = ir_type_of(m, *t);
	pjrt_put(s, (uint64_t)dtype_xla((enum dtype)i->dtype));
	for (int d = 0; d < i->rank; d++)
		pjrt_put(&part, (uint64_t)i->dim[d]);
	pjrt_put_bytes(s, 3, part.p ? part.p : "", part.n);
	part.n = 0;
	for (int d = 0; d < i->rank; d++)
		pjrt_put(&part, 0);
	pjrt_put_bytes(s, 6, part.p ? part.p : "", part.n);
	str_free(&part);
}

/* OpSharding: 1 type, 5 tuple_shardings. */
void pjrt_shardings_write(struct str *s, const struct ir_blob_info *one, size_t n)
{
	enum { TUPLE = 2 };
	if (n == 1) {
		str_addn(s, one->p, one->n);
		return;
	}
	pjrt_put(s, 1 << 3);
	pjrt_put(s, TUPLE);
	for (size_t i = 0; i < n; i++)
		pjrt_put_bytes(s, 5, one[i].p, one[i].n);
}

void pjrt_assignment_write(struct str *s, int64_t replicas, int64_t partitions, const int *dev)
{
	pjrt_put(s, 1 << 3);
	pjrt_put(s, (uint64_t)replicas);
	pjrt_put(s, 2 << 3);
	pjrt_put(s, (uint64_t)partitions);
	for (int64_t i = 0; i < partitions; i++) {
		struct str ids = { 0 }, entry = { 0 };
		for (int64_t r = 0; r < replicas; r++)
			pjrt_put(&ids, (uint64_t)dev[r * partitions + i]);
		pjrt_put(&entry, 1 << 3 | 2);
		pjrt_put(&entry, ids.n);
		str_addn(&entry, ids.p, ids.n);
		pjrt_put(s, 3 << 3 | 2);
		pjrt_put(s, entry.n);
		str_addn(s, entry.p, entry.n);
		str_free(&ids);
		str_free(&entry);
	}
}
