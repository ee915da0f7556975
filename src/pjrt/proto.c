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

/* The next field; false at the end or where the bytes are malformed (r->bad). */
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
	if (r->bad || n > (size_t)(r->end - r->p)) {
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
	o->assignment = s;
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

/* What users set through jit(compiler_options=...).  None of XLA's options changes what Rondo does; those
 * of known type are checked as XLA does, the others of XLA's are named in a warning. */
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
	log_line(LOG_INFO, "compile option '%.*s' has no effect", (int)name.n, name.p);
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

/* --- writing -------------------------------------------------------------- */

static void put(struct str *s, uint64_t v)
{
	char b[10];
	size_t n = 0;
	do {
		b[n++] = (char)((v & 127) | (v > 127 ? 128 : 0));
		v >>= 7;
	} while (v);
	str_addn(s, b, n);
}

void pjrt_assignment_write(struct str *s, int64_t replicas, int64_t partitions, const int *dev)
{
	put(s, 1 << 3);
	put(s, (uint64_t)replicas);
	put(s, 2 << 3);
	put(s, (uint64_t)partitions);
	for (int64_t i = 0; i < partitions; i++) {
		struct str ids = { 0 }, entry = { 0 };
		for (int64_t r = 0; r < replicas; r++)
			put(&ids, (uint64_t)dev[r * partitions + i]);
		put(&entry, 1 << 3 | 2);
		put(&entry, ids.n);
		str_addn(&entry, ids.p, ids.n);
		put(s, 3 << 3 | 2);
		put(s, entry.n);
		str_addn(s, entry.p, entry.n);
		str_free(&ids);
		str_free(&entry);
	}
}
