/* Executables: compile, load, execute, describe. */
#include <pthread.h>
#include <stdlib.h>

#include "../hlo/hlo.h"
#include "../ir/ir.h"
#include "../pass/pass.h"
#include "impl.h"
#include "pjrt.h"

/* Executables that live, for rondo_text. */
static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pjrt_exec *live;

/* parts: of the ndev devices that it is of, as many are one to JAX. */
static struct err *side_init(struct pjrt_side *s, const struct prog_arg *a, size_t n, const char *what, int ndev, int parts)
{
	size_t rank = 0, k = MAX(n, 1);
	for (size_t i = 0; i < n; i++)
		rank += a[i].rank;
	s->n = n;
	s->sharding = mem_alloc(sizeof *s->sharding * k);
	s->sharding_size = mem_alloc(sizeof *s->sharding_size * k);
	s->kind = mem_alloc(sizeof *s->kind * k);
	s->kind_size = mem_alloc(sizeof *s->kind_size * k);
	s->layout = mem_alloc(sizeof *s->layout * k);
	s->type = mem_alloc(sizeof *s->type * k);
	s->rank = mem_alloc(sizeof *s->rank * k);
	s->dim = mem_alloc(sizeof *s->dim * MAX(rank, 1));
	s->cut = mem_alloc(sizeof *s->cut * k);
	s->sharding[0] = "";        /* no bytes: replicated */
	rank = 0;
	for (size_t i = 0; i < n; i++) {
		char text[64];
		size_t from = s->said.n;
		snprintf(text, sizeof text, "%s %zu of the program", what, i);
		s->cut[i] = -1;
		if (parts > 1)
			TRY(pjrt_parts_lie(&a[i], text, ndev, parts, &s->cut[i], &s->said));
		s->sharding[i] = a[i].sharding && parts == 1 ? a[i].sharding : "";
		s->sharding_size[i] = parts > 1 ? s->said.n - from : a[i].sharding ? a[i].nsharding : 0;
		s->kind[i] = a[i].memory_kind && *a[i].memory_kind ? a[i].memory_kind : pjrt_mem_kind[0];
		s->kind_size[i] = strlen(s->kind[i]);
		if (a[i].layout)
			layout_read(a[i].layout, a[i].rank, &s->layout[i]);
		s->layout[i] = layout_of(s->layout[i], a[i].rank);
		s->type[i] = a[i].dtype;
		s->rank[i] = a[i].rank;
		for (int d = 0; d < a[i].rank; d++)
			s->dim[rank++] = a[i].dim[d] * (d == s->cut[i] ? parts : 1);
	}
	for (size_t i = 0, at = 0; i < n && parts > 1; at += s->sharding_size[i++])
		s->sharding[i] = s->said.p ? s->said.p + at : "";
	return NULL;
}

static void side_free(struct pjrt_side *s)
{
	free(s->sharding);
	free(s->sharding_size);
	free(s->kind);
	free(s->kind_size);
	free(s->layout);
	free(s->type);
	free(s->rank);
	free(s->dim);
	free(s->cut);
	str_free(&s->said);
}

static void exec_free(struct pjrt_exec *x)
{
	side_free(&x->arg);
	side_free(&x->res);
	if (x->python)
		pjrt_custom_count(x->prog, -1);
	rt_exec_unref(x->x);
	str_free(&x->options);
	str_free(&x->assignment);
	free(x->device);
	free(x->logical);
	spare_fini(&x->lists);
	spare_fini(&x->wide);
	free(x);
}

static void exec_unref(struct pjrt_exec *x)
{
	if (!x || atomic_fetch_sub(&x->refs, 1) != 1)
		return;
	pthread_mutex_lock(&live_lock);
	if (x->next)
		x->next->prev = x->prev;
	if (x->prev)
		x->prev->next = x->next;
	else
		live = x->next;
	pthread_mutex_unlock(&live_lock);
	exec_free(x);
}

/* The devices of the assignment; without one the first ones of this process, or of all. */
static struct err *devices_of(const struct pjrt_client *c, struct pjrt_options *o)
{
	int64_t n = o->replicas * o->partitions;
	if (n > c->ndev)
		return ERR(INVALID, "the program wants %lld devices, there are %d", (long long)n, c->ndev);
	if (!o->device.n)
		for (int64_t i = 0; i < n; i++)
			arr_push(&o->device, (int)i + (n <= c->nlocal ? c->first : 0));
	for (int64_t i = 0; i < n; i++) {
		bool found = o->device.p[i] >= 0 && o->device.p[i] < c->ndev;
		for (int64_t k = 0; k < i && found; k++)
			if (o->device.p[k] == o->device.p[i])
				return ERR(INVALID, "device %d stands twice in the device assignment", o->device.p[i]);
		if (!found)
			return ERR(INVALID, "the device assignment names device %d, which there is not", o->device.p[i]);
	}
	return NULL;
}

static void drop_exec(void *x) { rt_exec_unref(x); }
static void drop_prog(void *p) { prog_free(p); }

/* The runtime's devices for those of the assignment, of which each is `parts` positions of the program. */
static int *positions(const struct pjrt_client *c, const struct pjrt_options *o, int parts)
{
	int *dev = mem_alloc(sizeof *dev * MAX(o->device.n * (size_t)parts, 1));

	for (size_t i = 0; i < o->device.n * (size_t)parts; i++)
		dev[i] = o->device.p[i / (size_t)parts] * c->parts + (int)(i % (size_t)parts);
	return dev;
}

/* p is taken, even on failure. */
static struct err *exec_new(struct pjrt_client *c, struct prog *p, const struct pjrt_options *o,
                            const void *options, size_t noptions, struct pjrt_exec **out)
{
	int parts = p->ndev == o->replicas * o->partitions * c->parts ? c->parts : 1;
	if (p->ndev != o->replicas * o->partitions * parts) {
		struct err *e = ERR(INVALID, "a program for %d devices, but %lld are assigned", p->ndev,
		                    (long long)(o->replicas * o->partitions * parts));
		prog_free(p);
		return e;
	}
	for (uint32_t i = 0; i < p->nres; i++)
		if (pjrt_mem_by_kind(p->res[i].memory_kind) < 0) {
			struct err *e = ERR(INVALID, "there is no memory of kind '%s'", p->res[i].memory_kind);
			prog_free(p);
			return e;
		}
	pjrt_custom_resolve(p);
	struct mem_undo u;
	mem_undo(&u, drop_prog, p);
	int *dev = positions(c, o, parts);
	mem_done(&u);
	struct rt_exec *rx;
	struct err *e = rt_exec_new(c->rt, p, dev, &rx);
	free(dev);
	TRY(e);
	mem_undo(&u, drop_exec, rx);
	struct pjrt_exec *x = mem_alloc(sizeof *x);
	atomic_init(&x->refs, 1);
	x->client = c;
	x->x = rx;
	x->prog = rt_exec_prog(rx);
	x->replicas = o->replicas;
	x->partitions = o->partitions;
	str_addn(&x->options, options, noptions);
	pjrt_assignment_write(&x->assignment, o->replicas, o->partitions, o->device.p);
	x->parts = parts;
	x->nlocal = rt_exec_nlocal(rx) / parts;
	x->device = mem_alloc(sizeof *x->device * (size_t)MAX(x->nlocal, 1));
	x->logical = mem_alloc(sizeof *x->logical * (size_t)MAX(x->nlocal, 1));
	for (int i = 0; i < x->nlocal; i++) {
		int pos = rt_exec_position(rx, i * parts) / parts;
		x->device[i] = rt_device_user(rt_exec_device(rx, i * parts));
		x->logical[i].replica = pos / (int)o->partitions;
		x->logical[i].partition = pos % (int)o->partitions;
	}
	e = side_init(&x->arg, x->prog->arg, x->prog->narg, "argument", x->prog->ndev, parts);
	if (!e)
		e = side_init(&x->res, x->prog->res, x->prog->nres, "result", x->prog->ndev, parts);
	if (e) {
		mem_done(&u);
		exec_free(x);
		return e;
	}
	x->wide = (struct spare)SPARE(pjrt_parts_bytes(x));
	x->lists = (struct spare)SPARE(sizeof(void *) * (size_t)MAX(x->nlocal, 1) * (x->arg.n + x->res.n + 1));
	snprintf(x->fingerprint, sizeof x->fingerprint, "rondo-%016llx", (unsigned long long)x->prog->fingerprint);

	double bytes = 0;
	int64_t *runs = mem_alloc(sizeof *runs * (size_t)(x->prog->nkern + 1));
	prog_runs(x->prog, IR_TURNS, runs, NULL);
	for (uint32_t i = 0; i < x->prog->nkern; i++)
		bytes += (double)runs[i] * (double)x->prog->kern[i].bytes;
	free(runs);
	x->cost[0] = (struct pjrt_value){ .struct_size = sizeof x->cost[0], .name = "flops", .name_size = 5,
		.type = VALUE_FLOAT, .f = (float)x->prog->flops, .value_size = 1 };
	x->cost[1] = (struct pjrt_value){ .struct_size = sizeof x->cost[1], .name = "bytes accessed", .name_size = 14,
		.type = VALUE_FLOAT, .f = (float)bytes, .value_size = 1 };

	x->python = pjrt_custom_count(x->prog, 1);
	mem_done(&u);
	pthread_mutex_lock(&live_lock);
	x->next = live;
	if (live)
		live->prev = x;
	live = x;
	pthread_mutex_unlock(&live_lock);
	*out = x;
	return NULL;
}

/* The threads that jaxlib compiles on have stacks of 2 MiB, and passes recurse as deep as a program's chains of
 * operations: larger programs are compiled on a stack of their own (address space, touched as needed). */
enum { COMPILE_S = 5 /* then it says so */, BIG_PROGRAM = 4096, LEAST_STACK = 16 << 20, STACK_PER_BYTE = 128 };
static const size_t big_stack = (size_t)1 << 30;

/* Who is interrupted goes away from it: it has copies of what it reads then, and the last to go frees it. */
struct compile {
	struct rt_client *rt;
	struct pass_opts po;
	const void *code; size_t n;
	bool busy;
	struct watch watch;
	struct prog *p; struct err *e;
	_Atomic int refs;
	struct rt_event *over;
	bool left;
	int *dev, host[];          /* by position of the program */
};
static _Thread_local struct compile *compiling;
static atomic_llong begun, ended;       /* those that were left count once more, until they are over */

static void compile_unref(struct compile *c)
{
	if (atomic_fetch_sub(&c->refs, 1) > 1)
		return;
	rt_event_unref(c->over);
	prog_free(c->p);
	err_free(c->e);
	if (c->left)
		atomic_fetch_add(&ended, 1);
	free(c);
}

/* The name of the program is known when it has been read: peers that wait are told. */
static struct err *read_program(const void *p, size_t n, struct ir_module **out)
{
	struct compile *c = compiling;
	char text[160];

	TRY(hlo_read(p, n, out));
	snprintf(text, sizeof text, "compiling '%.120s'", ir_text(*out, (*out)->name));
	watch_say(&c->watch, text);
	rt_client_busy(c->rt, text);
	c->busy = true;
	return NULL;
}

static struct err *compile_text(void *v)
{
	struct compile *c = v;

	return pass_compile_cached(&c->po, read_program, c->code, c->n, &c->p);
}

static int64_t needs(const void *of, struct prog *p)
{
	const struct compile *c = of;
	int64_t n = 0;

	err_free(rt_exec_needs(c->rt, p, c->dev, &n));       /* what it cannot be loaded for is said then */
	return n;
}

static void *compile_main(void *v)
{
	struct compile *c = v;

	struct rt_event *over = c->over;
	compiling = c;
	watch_open(&c->watch, COMPILE_S, NULL, NULL);
	watch_say(&c->watch, "compiling");
	c->e = mem_guard(compile_text, c, true);
	watch_close(&c->watch);
	if (c->busy)
		rt_client_busy(c->rt, NULL);
	if (over)
		rt_event_set(over, NULL);
	compile_unref(c);
	return NULL;
}

static struct err *compile(struct rt_client *rt, const struct pass_opts *po, const int *dev, const struct pjrt_program *src, struct prog **out)
{
	bool big = src->code_size >= BIG_PROGRAM;
	size_t nhost = (size_t)po->ndev * sizeof *dev, nbytes = sizeof(struct compile) + 2 * nhost + (big ? src->code_size : 0);
	struct compile *c = malloc(nbytes);
	struct err *e = NULL;
	pthread_attr_t a;
	pthread_t t;

	if (!c)
		return ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", nbytes);
	*c = (struct compile){ .rt = rt, .po = *po, .code = src->code, .n = src->code_size, .refs = 2, .over = big ? rt_event_new() : NULL };
	if (po->plan.host)
		c->po.plan.host = memcpy(c->host, po->plan.host, nhost);
	c->dev = memcpy(c->host + po->ndev, dev, nhost);
	c->po.needs = needs;
	c->po.of = c;
	if (!big) {
		compile_main(c);
	} else if (!c->over) {
		c->refs = 1;
		e = ERR(EXHAUSTED, "out of host memory: asked for an event");
	} else {
		c->code = memcpy((char *)c->host + 2 * nhost, src->code, src->code_size);
		/* Where address space is short less will do, but not less than the program's operations may need. */
		size_t stack = big_stack, least = MIN(big_stack, LEAST_STACK + STACK_PER_BYTE * src->code_size);
		int r;
		pthread_attr_init(&a);
		do {
			pthread_attr_setstacksize(&a, stack);
			r = pthread_create(&t, &a, compile_main, c);
		} while (r && (stack /= 2) >= least);
		pthread_attr_destroy(&a);
		if (r) {
			c->refs = 1;
			e = ERR(EXHAUSTED, "out of host memory: no stack of %zu bytes to compile on: %s", least, strerror(r));
		} else if (rt_event_wait_or(c->over)) {
			pthread_join(t, NULL);
		} else {
			pthread_detach(t);
			atomic_fetch_add(&begun, 1);
			c->left = true;
			e = ERR(CANCELLED, "interrupted in a compile");
		}
	}
	if (!e) {
		*out = c->p;
		e = c->e;
		c->p = NULL;
		c->e = NULL;
	}
	compile_unref(c);
	return e;
}

/* Into how many parts each device's program is cut: what it says of devices is in its text alone. */
static struct err *parts_wanted(const struct pjrt_client *c, const struct pjrt_program *src, int *parts)
{
	struct ir_module *m;

	*parts = 1;
	if (!conf_int(CONF_REPRO))
		return NULL;
	TRY(hlo_read(src->code, src->code_size, &m));
	struct err *e = pass_repro_parts(m, c->ndev, parts);
	ir_module_free(m);
	return e;
}

/* A program that is too large for its devices is compiled again, such that its loops keep less, as long as that helps; what is too large then is refused. */
static struct err *compile_to_fit(struct pjrt_Client_Compile *a, struct pass_opts *po, const int *dev, const struct pjrt_options *o)
{
	enum { TIMES = 8 };
	int64_t lacked = 0, lacks = 0, before;
	int idle = 0;

	for (int k = 0; k < TIMES; k++) {
		struct prog *p = NULL;
		struct err *e = compile(a->client->rt, po, dev, a->program, &p);
		TRY(e && po->parts > 1 ? err_wrap(e, "in %d parts (RONDO_REPRO)", po->ndev) : e);
		TRY(exec_new(a->client, p, o, a->compile_options, a->compile_options_size, &a->executable));
		before = k ? lacks : INT64_MAX;
		lacks = rt_exec_lacks(a->executable->x);
		lacked = k ? lacked : lacks;
		idle = lacks < before ? 0 : idle + 1;
		if (!lacks || idle > 1 || k == TIMES - 1)
			break;
		exec_unref(a->executable);
		a->executable = NULL;
		po->save += MAX(lacks * po->ndev, po->save / 2);
	}
	const char *name = a->executable->prog->name;
	struct err *e = rt_exec_fits(a->executable->x);
	if (e) {
		exec_unref(a->executable);
		a->executable = NULL;
	} else if (lacked > lacks) {
		struct str s = { 0 };
		str_bytes(&s, (uint64_t)lacked);
		log_line(LOG_WARN, "program '%s' is %s too large for the memory of a device: some of what its loops keep for their gradients is made again instead (RONDO_LOG=2 says what)", name ? name : "", s.p);
		str_free(&s);
	}
	return e;
}

static struct err *client_compile(void *v)
{
	struct pjrt_Client_Compile *a = v;
	const struct pjrt_program *src = a->program;
	if (src->format_size != 4 || memcmp(src->format, "mlir", 4))
		return ERR(UNIMPLEMENTED, "programs in format '%.*s'", (int)src->format_size, src->format);
	struct pjrt_options o;
	TRY(pjrt_options_read(a->compile_options, a->compile_options_size, &o));
	struct err *e = NULL;
	uint64_t start = clock_ns();
	if (o.replicas != 1) {
		e = ERR(UNIMPLEMENTED, "%lld replicas of a program", (long long)o.replicas);
		goto out;
	}
	TRY_GOTO(e, devices_of(a->client, &o), out);
	struct pass_opts po;
	pass_opts_from_conf(&po);
	TRY_GOTO(e, parts_wanted(a->client, src, &po.parts), out);
	po.ndev = (int)o.partitions * po.parts;
	int *host = mem_alloc(sizeof *host * (size_t)MAX(po.ndev, 1)), *dev = positions(a->client, &o, po.parts);
	po.plan = rt_client_plan(a->client->rt, po.ndev, dev, host);
	if (conf_int(CONF_REPRO)) {     /* what is cut, and how, must depend neither on the cores nor on who shares a host */
		po.plan.cores = 0;
		po.plan.host = NULL;
	}
	po.maker = &pjrt_maker;
	po.fingerprint = hash_bytes(src->code, src->code_size, (uint64_t)o.partitions);
	e = compile_to_fit(a, &po, dev, &o);
	free(host);
	free(dev);
	TRY_GOTO(e, e, out);
	log_line(LOG_INFO, "compiled in %.1f us", (double)(clock_ns() - start) / 1e3);
out:
	pjrt_options_free(&o);
	return e;
}

__attribute__((visibility("default"))) void rondo_compiles(int64_t *some, int64_t *over)
{
	*over = atomic_load(&ended);
	*some = atomic_load(&begun);
}

struct err *pjrt_Client_Compile(struct pjrt_Client_Compile *a)
{
	atomic_fetch_add(&begun, 1);
	struct err *e = mem_guard(client_compile, a, true);
	atomic_fetch_add(&ended, 1);
	return e;
}

struct err *pjrt_Compile(struct pjrt_Compile *a)
{
	struct pjrt_Client_Compile b = { .struct_size = sizeof b, .client = a->client ? a->client : a->topology,
		.program = a->program, .compile_options = a->compile_options, .compile_options_size = a->compile_options_size };
	TRY(pjrt_Client_Compile(&b));
	a->executable = b.executable;
	return NULL;
}

struct err *pjrt_Client_Load(struct pjrt_Client_Load *a)
{
	atomic_fetch_add(&a->executable->refs, 1);
	a->loaded_executable = a->executable;
	return NULL;
}

struct err *pjrt_LoadedExecutable_GetExecutable(struct pjrt_LoadedExecutable_GetExecutable *a)
{
	atomic_fetch_add(&a->loaded_executable->refs, 1);
	a->executable = a->loaded_executable;
	return NULL;
}

struct err *pjrt_Executable_Destroy(struct pjrt_Executable_Destroy *a)
{
	exec_unref(a->executable);
	return NULL;
}

struct err *pjrt_LoadedExecutable_Destroy(struct pjrt_LoadedExecutable_Destroy *a)
{
	exec_unref(a->executable);
	return NULL;
}

struct err *pjrt_LoadedExecutable_Delete(struct pjrt_LoadedExecutable_Delete *a)
{
	atomic_store(&a->executable->deleted, true);
	return NULL;
}

struct err *pjrt_LoadedExecutable_IsDeleted(struct pjrt_LoadedExecutable_IsDeleted *a)
{
	a->is_deleted = atomic_load(&a->executable->deleted);
	return NULL;
}

/* --- execute --------------------------------------------------------------- */

static void run_ended(struct err *e, void *exec)
{
	err_free(e);
	exec_unref(exec);
	pjrt_calls(-1);
}

struct err *pjrt_LoadedExecutable_Execute(struct pjrt_LoadedExecutable_Execute *a)
{
	struct pjrt_exec *x = a->executable;
	const struct pjrt_execute_options *o = a->options;
	size_t n = (size_t)x->nlocal, narg = x->arg.n, nres = x->res.n;
	if (atomic_load_explicit(&x->deleted, memory_order_relaxed))
		return ERR(INVALID, "the executable has been deleted");
	if (a->num_devices != n || (n && a->num_args != narg))
		return ERR(INVALID, "%zu arguments on %zu devices, the program wants %zu on %zu", a->num_args, a->num_devices, narg, n);
	if (a->execute_device && (n != 1 || a->execute_device != x->device[0]))
		return ERR(UNIMPLEMENTED, "execution on a device other than the assigned one");
	if (o->num_send_ops || o->num_recv_ops)
		return ERR(UNIMPLEMENTED, "send and receive callbacks");

	void **p = spare_take(&x->lists);
	if (!p)
		return ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", x->lists.size);
	struct rt_buffer **arg = (struct rt_buffer **)p;
	struct rt_buffer **out = arg + n * narg;
	struct rt_event **done = (struct rt_event **)(out + n * nres);
	struct err *e = NULL;
	for (size_t d = 0; d < n && narg; d++)
		memcpy(arg + d * narg, a->argument_lists[d], narg * sizeof *arg);
	TRY_GOTO(e, pjrt_parts_run(x, arg, o->non_donatable_input_indices, o->num_non_donatable_input_indices,
	                           o->launch_id, out, done), out);
	/* What a Python function raises is raised by the call, as on JAX's cpu. */
	bool over = x->python && n == 1 && rt_event_wait_or(done[0]);
	if (x->python && n == 1 && !over)       /* nor does it go on behind who has been interrupted */
		rt_client_give_up(x->client->rt, done[0]);
	if (over && (e = rt_event_wait(done[0]))) {
		for (size_t i = 0; i < nres; i++)
			rt_buffer_unref(out[i]);
		rt_event_unref(done[0]);
		goto out;
	}
	for (size_t d = 0; d < n; d++) {
		if (nres)
			memcpy(a->output_lists[d], out + d * nres, nres * sizeof *out);
		if (x->python) {        /* its Python functions are kept until the run has ended */
			atomic_fetch_add(&x->refs, 1);
			pjrt_calls(1);
			if (!rt_event_on_ready(done[d], run_ended, x))
				run_ended(rt_event_wait(done[d]), x);
			rt_event_ask(done[d]);  /* and what they raise, JAX has told */
		}
		if (a->device_complete_events)
			a->device_complete_events[d] = done[d];
		else
			rt_event_unref(done[d]);
	}
out:
	spare_give(&x->lists, p);
	return e;
}

/* --- what an executable says of itself -------------------------------------- */

struct err *pjrt_LoadedExecutable_AddressableDevices(struct pjrt_LoadedExecutable_AddressableDevices *a)
{
	a->addressable_devices = a->executable->device;
	a->num_addressable_devices = (size_t)a->executable->nlocal;
	return NULL;
}

struct err *pjrt_LoadedExecutable_AddressableDeviceLogicalIds(struct pjrt_LoadedExecutable_AddressableDeviceLogicalIds *a)
{
	a->addressable_device_logical_ids = a->executable->logical;
	a->num_addressable_device_logical_ids = (size_t)a->executable->nlocal;
	return NULL;
}

static void keep(void *p)
{
}

struct err *pjrt_LoadedExecutable_GetDeviceAssignment(struct pjrt_LoadedExecutable_GetDeviceAssignment *a)
{
	a->serialized_bytes = a->executable->assignment.p;
	a->serialized_bytes_size = a->executable->assignment.n;
	a->serialized_device_assignment = a->executable;
	a->serialized_device_assignment_deleter = keep;
	return NULL;
}

struct err *pjrt_Executable_GetCompileOptions(struct pjrt_Executable_GetCompileOptions *a)
{
	a->serialized_bytes = a->executable->options.p;
	a->serialized_bytes_size = a->executable->options.n;
	a->serialized_compile_options = a->executable;
	a->serialized_compile_options_deleter = keep;
	return NULL;
}

struct err *pjrt_LoadedExecutable_Fingerprint(struct pjrt_LoadedExecutable_Fingerprint *a)
{
	a->executable_fingerprint = a->executable->fingerprint;
	a->executable_fingerprint_size = strlen(a->executable->fingerprint);
	return NULL;
}

struct err *pjrt_Executable_Fingerprint(struct pjrt_Executable_Fingerprint *a)
{
	a->executable_fingerprint = a->executable->fingerprint;
	a->executable_fingerprint_size = strlen(a->executable->fingerprint);
	return NULL;
}

struct err *pjrt_Executable_Name(struct pjrt_Executable_Name *a)
{
	a->executable_name = a->executable->prog->name ? a->executable->prog->name : "";
	a->executable_name_size = strlen(a->executable_name);
	return NULL;
}

struct err *pjrt_Executable_NumReplicas(struct pjrt_Executable_NumReplicas *a)
{
	a->num_replicas = (size_t)a->executable->replicas;
	return NULL;
}

struct err *pjrt_Executable_NumPartitions(struct pjrt_Executable_NumPartitions *a)
{
	a->num_partitions = (size_t)a->executable->partitions;
	return NULL;
}

struct err *pjrt_Executable_NumOutputs(struct pjrt_Executable_NumOutputs *a)
{
	a->num_outputs = a->executable->res.n;
	return NULL;
}

static int64_t code_bytes(const struct prog *p)
{
	int64_t n = p->ndata;
	for (uint32_t i = 0; i < p->ncode; i++)
		n += (int64_t)p->code[i].nobj;
	return n;
}

struct err *pjrt_Executable_SizeOfGeneratedCodeInBytes(struct pjrt_Executable_SizeOfGeneratedCodeInBytes *a)
{
	a->size_in_bytes = code_bytes(a->executable->prog);
	return NULL;
}

struct err *pjrt_Executable_GetCostAnalysis(struct pjrt_Executable_GetCostAnalysis *a)
{
	a->properties = a->executable->cost;
	a->num_properties = NELEM(a->executable->cost);
	return NULL;
}

struct err *pjrt_Executable_GetCompiledMemoryStats(struct pjrt_Executable_GetCompiledMemoryStats *a)
{
	const struct prog *p = a->executable->prog;
	size_t head = offsetof(struct pjrt_Executable_GetCompiledMemoryStats, generated_code_size_in_bytes);
	size_t end = MIN(a->struct_size, sizeof *a);
	int64_t arg, res, alias, parts = a->executable->parts, zone = rt_exec_zone(a->executable->x) * parts;
	prog_sizes(p, &arg, &res, &alias);
	arg *= parts;
	res *= parts;
	alias *= parts;
	int64_t peak = rt_exec_peak(a->executable->x) * parts;
	struct pjrt_Executable_GetCompiledMemoryStats s = {
		.generated_code_size_in_bytes = code_bytes(p),
		.argument_size_in_bytes = arg,
		.output_size_in_bytes = res,
		.alias_size_in_bytes = alias,
		.temp_size_in_bytes = zone,
		.peak_memory_in_bytes = peak,
		.total_size_in_bytes = peak + p->ndata,
		.total_allocation_bytes = peak + p->ndata,
		.peak_unpadded_heap_bytes = zone,
	};
	if (end > head)
		memcpy((char *)a + head, (char *)&s + head, end - head);
	return NULL;
}

struct err *pjrt_Executable_OutputMemoryKinds(struct pjrt_Executable_OutputMemoryKinds *a)
{
	a->memory_kinds = a->executable->res.kind;
	a->memory_kind_sizes = a->executable->res.kind_size;
	a->num_outputs = a->executable->res.n;
	return NULL;
}

struct err *pjrt_Executable_ParameterMemoryKinds(struct pjrt_Executable_ParameterMemoryKinds *a)
{
	a->memory_kinds = a->executable->arg.kind;
	a->memory_kind_sizes = a->executable->arg.kind_size;
	a->num_parameters = a->executable->arg.n;
	return NULL;
}

struct err *pjrt_Executable_OutputElementTypes(struct pjrt_Executable_OutputElementTypes *a)
{
	a->output_types = a->executable->res.type;
	a->num_output_types = a->executable->res.n;
	return NULL;
}

struct err *pjrt_Executable_OutputDimensions(struct pjrt_Executable_OutputDimensions *a)
{
	a->dims = a->executable->res.dim;
	a->dim_sizes = a->executable->res.rank;
	a->num_outputs = a->executable->res.n;
	return NULL;
}

/* jaxlib wants an HLO module here, which a compiled program of ours is not; its text is rondo_text. */
struct err *pjrt_Executable_OptimizedProgram(struct pjrt_Executable_OptimizedProgram *a)
{
	return ERR(UNIMPLEMENTED, "PJRT_Executable_OptimizedProgram: a compiled program is no HLO module");
}

struct text { const char *fingerprint; struct str s; };

/* A line for each collective by HLO's name, which is what users, and JAX's own tests, look for in a compiled program's text. */
static void hlo_names(struct str *s, const struct prog *p)
{
	for (uint32_t i = 0; i < p->ncoll; i++) {
		const struct prog_coll *c = &p->coll[i];
		str_add(s, c->kind == COLL_permute || c->kind == COLL_broadcast ? "# collective-" : "# ");
		for (const char *n = prog_coll_name[c->kind]; *n; n++)
			str_addn(s, *n == '_' ? "-" : n, 1);
		str_addf(s, "(%s), %lld bytes\n", dtype_info[c->dtype].name, (long long)(c->inner * c->outer));
	}
}

static struct err *text_of(void *v)
{
	struct text *t = v;
	struct str s = { 0 };
	struct mem_undo u;
	mem_lock(&u, &live_lock);
	for (struct pjrt_exec *x = live; x && !s.n; x = x->next)
		if (!strcmp(x->fingerprint, t->fingerprint)) {
			hlo_names(&s, x->prog);
			prog_print(&s, x->prog);
		}
	mem_unlock(&u);
	t->s = s;
	return NULL;
}

__attribute__((visibility("default"))) char *rondo_text(const char *fingerprint)
{
	struct text t = { fingerprint, { 0 } };
	err_free(mem_guard(text_of, &t, true));
	return t.s.p;
}

__attribute__((visibility("default"))) void rondo_free(void *p)
{
	free(p);
}

/* --- serialise -------------------------------------------------------------- */

/* A word, the compile options, the program.  JAX takes options that we hand back for whole: a damaged byte in them is found here. */
struct saved { char magic[8]; uint64_t noptions, hash; };
static const char saved_magic[8] = "RONDOX2";

static void free_bytes(void *p)
{
	struct str *s = p;
	str_free(s);
	free(s);
}

static struct err *executable_serialize(void *v)
{
	struct pjrt_Executable_Serialize *a = v;
	struct pjrt_exec *x = a->executable;
	struct saved h = { .noptions = x->options.n, .hash = hash_bytes(x->options.p, x->options.n, 0) };
	memcpy(h.magic, saved_magic, sizeof h.magic);
	struct str *s = mem_alloc(sizeof *s);
	str_addn(s, (char *)&h, sizeof h);
	str_addn(s, x->options.p, x->options.n);
	prog_save(s, x->prog);
	a->serialized_bytes = s->p;
	a->serialized_bytes_size = s->n;
	a->serialized_executable = s;
	a->serialized_executable_deleter = free_bytes;
	return NULL;
}

struct err *pjrt_Executable_Serialize(struct pjrt_Executable_Serialize *a)
{
	return mem_guard(executable_serialize, a, true);
}

static struct err *executable_deserializeandload(void *v)
{
	struct pjrt_Executable_DeserializeAndLoad *a = v;
	struct saved h;
	const char *p = a->serialized_executable;
	size_t n = a->serialized_executable_size;
	if (n < sizeof h)
		return ERR(DATA_LOSS, "a serialized executable of %zu bytes", n);
	memcpy(&h, p, sizeof h);
	const char *options = p + sizeof h;
	if (memcmp(h.magic, saved_magic, sizeof h.magic))
		return ERR(DATA_LOSS, "these bytes are no serialized executable of this version of Rondo");
	if (h.noptions > n - sizeof h || hash_bytes(options, h.noptions, 0) != h.hash)
		return ERR(DATA_LOSS, "the compile options of a serialized executable are damaged");
	size_t noptions = h.noptions;
	const char *code = options + h.noptions;
	if (a->overridden_serialized_compile_options_size) {
		options = a->overridden_serialized_compile_options;
		noptions = a->overridden_serialized_compile_options_size;
	}
	struct pjrt_options o;
	TRY(pjrt_options_read(options, noptions, &o));
	struct prog *prog;
	struct err *e;
	TRY_GOTO(e, devices_of(a->client, &o), out);
	TRY_GOTO(e, prog_load(code, (size_t)(p + n - code), &prog), out);
	e = exec_new(a->client, prog, &o, options, noptions, &a->loaded_executable);
out:
	pjrt_options_free(&o);
	return e;
}

struct err *pjrt_Executable_DeserializeAndLoad(struct pjrt_Executable_DeserializeAndLoad *a)
{
	return mem_guard(executable_deserializeandload, a, true);
}
