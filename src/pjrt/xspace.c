/* What devices have run, as the protocol buffers that XProf reads (tensorflow.profiler.XSpace).
 *
 * XProf knows kinds of devices by the names of their planes.  Only of /device:TPU:N does it take flops, bytes, lines and
 * scopes from the trace itself (tables of /device:CUSTOM:.. are empty): so planes are called that, and say in words what the device is.  A
 * plane has the lines that XProf looks for there: steps, launches, what the device's thread did one after the other, and what went on
 * beside that.
 *
 * XSpace: 1 planes.  XPlane: 1 id, 2 name, 3 lines, 4 and 5 metadata of events and stats (maps), 6 stats.  XLine: 1 id, 2 name,
 * 3 timestamp_ns, 4 events.  XEvent: 1 metadata_id, 2 offset_ps, 3 duration_ps, 4 stats.  XStat: 1 metadata_id, 2 double, 4 int64,
 * 5 text, 6 bytes.  XEventMetadata: 1 id, 2 name, 4 display_name, 5 stats.  XStatMetadata: 1 id, 2 name. */
#include "impl.h"

/* Facts by the names that XProf gives them; those from step on are ours: XProf groups by itself what has no
 * "group_id", and what has one not as a whole. */
#define STATS(S) \
	S(program_id, "program_id") S(symbol_id, "symbol_id") S(category, "hlo_category") S(op, "hlo_op") S(module, "hlo_module") \
	S(scope, "tf_op") S(source, "source") S(flops, "flops") S(model_flops, "model_flops") S(bytes, "bytes_accessed") S(breakdown, "memory_access_breakdown") \
	S(device, "device_type_string") S(peak_flops, "peak_teraflops_per_second") S(peak_bytes, "peak_hbm_bw_gigabytes_per_second") S(dropped, "dropped_traces") \
	S(step, "step") S(peers, "peers") S(limit, "limit_ps") S(copied, "bytes_copied") S(in_place, "bytes_read_in_place")
enum stat {
	STAT_NONE,
#define S(id, name) STAT_##id,
	STATS(S)
#undef S
	STAT_COUNT
};

/* A text, bytes, a real number that is not 0, or a whole one: a stat has one of them. */
struct value { const char *text; const struct str *bytes; double real; uint64_t whole; };
#define TEXT(p) (struct value){ .text = (p) }
#define REAL(x) (struct value){ .real = (x) }
#define WHOLE(n) (struct value){ .whole = (uint64_t)(n) }

/* As field `field` of s. */
static void stat(struct str *s, int field, enum stat id, struct value v)
{
	struct str x = { 0 };

	pjrt_put_int(&x, 1, id);
	if (v.text)
		pjrt_put_bytes(&x, 5, v.text, strlen(v.text));
	else if (v.bytes)
		pjrt_put_bytes(&x, 6, v.bytes->p, v.bytes->n);
	else if (v.real != 0)
		pjrt_put_real(&x, 2, v.real);
	else
		pjrt_put_int(&x, 4, v.whole);
	pjrt_put_bytes(s, field, x.p, x.n);
	str_free(&x);
}

/* --- what is said once --------------------------------------------------------------- */

/* Metadata of events: an id for each command that ran, and for each step. */
struct plane { struct str meta; struct map of_op; uint64_t n; };

/* An entry of a map: x by its id, as field `field` of s. */
static void entry(struct str *s, int field, uint64_t id, const struct str *x)
{
	struct str e = { 0 };

	pjrt_put_int(&e, 1, id);
	pjrt_put_bytes(&e, 2, x->p, x->n);
	pjrt_put_bytes(s, field, e.p, e.n);
	str_free(&e);
}

/* What is no more than a name. */
static void named(struct str *s, int field, uint64_t id, const char *name)
{
	struct str x = { 0 };

	pjrt_put_int(&x, 1, id);
	pjrt_put_bytes(&x, 2, name, strlen(name));
	entry(s, field, id, &x);
	str_free(&x);
}

/* Op Profile takes bytes from this alone (MemoryAccessBreakdown: 1 memory_accessed, of 1 operation_type, 2 memory_space, 3 bytes_accessed), and of the
 * main memory (1) reads (1) and writes, which it adds up: which of them they are is not known here. */
static void breakdown(struct str *meta, int64_t bytes)
{
	struct str one = { 0 }, all = { 0 };

	pjrt_put_int(&one, 1, 1);
	pjrt_put_int(&one, 2, 1);
	pjrt_put_int(&one, 3, (uint64_t)bytes);
	pjrt_put_bytes(&all, 1, one.p, one.n);
	stat(meta, 5, STAT_breakdown, (struct value){ .bytes = &all });
	str_free(&one);
	str_free(&all);
}

static uint64_t meta_of(struct plane *p, const struct rt_trace_event *e)
{
	const struct rt_trace_op *o = e->op;
	uint64_t *id = map_put(&p->of_op, &o, sizeof o);
	struct str x = { 0 }, name = { 0 };

	if (*id)
		return *id;
	*id = ++p->n;
	pjrt_put_int(&x, 1, *id);
	stat(&x, 5, STAT_program_id, WHOLE(o->prog->id));
	stat(&x, 5, STAT_module, TEXT(o->prog->name));
	if (!o->number)
		str_addf(&name, "%s(%llu)", o->prog->name, (unsigned long long)o->prog->id);
	else {
		str_addf(&name, "%s.%u", o->name, o->number);
		pjrt_put_bytes(&x, 4, name.p, name.n);
		stat(&x, 5, STAT_op, TEXT(name.p));
		str_addf(&name, "%s%s%s%s", *o->site ? " " : "", o->site, o->scope ? " " : "", o->scope ? o->scope : "");
		stat(&x, 5, STAT_symbol_id, WHOLE(o->number));
		stat(&x, 5, STAT_category, TEXT(o->sort));
		stat(&x, 5, STAT_bytes, WHOLE(o->bytes));
		if (o->bytes > 0)
			breakdown(&x, o->bytes);
	}
	pjrt_put_bytes(&x, 2, name.p, name.n);
	stat(&x, 5, STAT_flops, WHOLE(o->flops));
	stat(&x, 5, STAT_model_flops, WHOLE(o->flops));
	if (o->limit_ns > 0)
		stat(&x, 5, STAT_limit, WHOLE(o->limit_ns * 1e3));
	if (o->scope) {                   /* XLA's op_name, and its type, which is what that ends with */
		const char *last = strrchr(o->scope, '/');
		name.n = 0;
		str_addf(&name, "%s:%s", o->scope, last ? last + 1 : o->scope);
		stat(&x, 5, STAT_scope, TEXT(name.p));
	}
	const char *end = strrchr(o->site, ' ');           /* file and line; the op's name follows */
	if (end) {
		name.n = 0;
		str_addn(&name, o->site, (size_t)(end - o->site));
		char *more = strrchr(name.p, ':');         /* readers know one line only: where it lies itself, not what it was made of, too */
		if (more)
			more[strcspn(more, ",")] = 0;
		stat(&x, 5, STAT_source, TEXT(name.p));
	}
	if (o->peer)
		stat(&x, 5, STAT_peers, TEXT(o->peer[e->local]));
	entry(&p->meta, 4, *id, &x);
	str_free(&x);
	str_free(&name);
	return *id;
}

/* --- lines ----------------------------------------------------------------------------- */

static void event(struct str *line, uint64_t meta, uint64_t from, uint64_t to, uint64_t step, int64_t moved)
{
	struct str x = { 0 };

	pjrt_put_int(&x, 1, meta);
	pjrt_put_int(&x, 2, from * 1000);
	pjrt_put_int(&x, 3, (to - from) * 1000);
	if (step)
		stat(&x, 4, STAT_step, WHOLE(step));
	if (moved)
		stat(&x, 4, moved > 0 ? STAT_copied : STAT_in_place, WHOLE(moved > 0 ? moved : -moved));
	pjrt_put_bytes(line, 4, x.p, x.n);
	str_free(&x);
}

static void line_begin(struct str *s, int id, const char *name, int64_t wall)
{
	pjrt_put_int(s, 1, (uint64_t)id);
	pjrt_put_bytes(s, 2, name, strlen(name));
	pjrt_put_int(s, 3, (uint64_t)wall);
}

enum { STEPS, MODULES, OPS, BESIDE, LINES };

/* Steps: each until the next one begins; the last until its launch ends. */
static void steps(struct str *line, struct plane *p, const struct rt_trace_read *r, const struct rt_trace_device *d)
{
	const struct rt_trace_event *last = NULL;

	for (size_t i = 0; i <= d->n; i++) {
		const struct rt_trace_event *e = i < d->n ? &d->ev[i] : NULL;
		if (e && !e->begins)
			continue;
		if (last) {
			char name[16];
			snprintf(name, sizeof name, "%u", last->step);
			named(&p->meta, 4, ++p->n, name);
			event(line, p->n, last->t0 - r->t0, (e ? e->t0 : last->t1) - r->t0, last->step, 0);
		}
		last = e;
	}
}

static void device(struct str *space, const struct rt_trace_read *r, const struct rt_trace_device *d)
{
	static const char *const name[LINES] = { "Steps", "XLA Modules", "XLA Ops", "Async XLA Ops" };
	struct str s = { 0 }, line[LINES] = { 0 };
	struct plane p = { 0 };
	bool beside = false;

	str_addf(&s, "/device:TPU:%d", d->id);
	struct str plane = { 0 };
	pjrt_put_int(&plane, 1, (uint64_t)d->id);
	pjrt_put_bytes(&plane, 2, s.p, s.n);
	for (int k = 0; k < LINES; k++)
		line_begin(&line[k], k + 1, name[k], r->wall);
	steps(&line[STEPS], &p, r, d);
	for (size_t i = 0; i < d->n; i++) {
		const struct rt_trace_event *e = &d->ev[i];
		int k = e->lane == RT_LANE_LAUNCH ? MODULES : e->lane == RT_LANE_BESIDE ? BESIDE : OPS;
		beside |= k == BESIDE;
		event(&line[k], meta_of(&p, e), e->t0 - r->t0, e->t1 - r->t0, e->step, e->moved);
	}
	for (int k = 0; k < LINES; k++) {
		if (k != BESIDE || beside)
			pjrt_put_bytes(&plane, 3, line[k].p, line[k].n);
		str_free(&line[k]);
	}
	str_addn(&plane, p.meta.p, p.meta.n);
	static const char *const fact[STAT_COUNT] = {
#define S(id, text) [STAT_##id] = text,
		STATS(S)
#undef S
	};
	for (int k = 1; k < STAT_COUNT; k++)
		named(&plane, 5, (uint64_t)k, fact[k]);
	s.n = 0;
	str_addf(&s, "Rondo on %s", cpu_get()->name);
	stat(&plane, 6, STAT_device, TEXT(s.p));
	stat(&plane, 6, STAT_peak_flops, REAL(d->flops / 1e3));
	stat(&plane, 6, STAT_peak_bytes, REAL(d->bytes));
	stat(&plane, 6, STAT_dropped, WHOLE(d->lost));
	pjrt_put_bytes(space, 1, plane.p, plane.n);
	str_free(&plane);
	str_free(&s);
	str_free(&p.meta);
	map_free(&p.of_op);
}

void pjrt_xspace_write(struct str *s, const struct rt_trace_read *r)
{
	for (size_t i = 0; i < r->ndev; i++)
		if (r->dev[i].n)
			device(s, r, &r->dev[i]);
}
