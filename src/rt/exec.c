/* Executables: loading a program, launching it, the queue of each device.
 *
 * A launch is appended to the queues of all its local devices under the client's launch lock, so all devices
 * see one order.  Each queue is walked by one thread, unless it is empty and the program is small: then the
 * caller's thread takes the device for a moment (waking a thread costs more than the work). */
#include "impl.h"
#include "load.h"

/* Up to INLINE_NS a program runs on the caller's thread; on the only device of a client, where nothing but the
 * caller's own few microseconds could overlap and waking two threads costs a hundred, up to ALONE_NS. */
enum { INLINE_NS = 30000, ALONE_NS = 1000000, QUICK_CUSTOM = 1 << 15, INLINE_ARGS = 64, SPLIT_NS = 8000, WAKE_NS = 50000, LINGER_NS = 100000 };

static _Thread_local struct rt_device *walking;   /* the device whose program this thread runs */

/* --- loading ------------------------------------------------------------------ */

static double view_bytes(const struct prog_view *v)
{
	double n = dtype_info[v->dtype].bytes;

	for (int i = 0; i < v->rank; i++)
		n *= (double)v->dim[i];
	return n;
}

/* A guess at the time one thread takes, in nanoseconds. */
static double kernel_ns(const struct prog_kern *k)
{
	double flops = (double)k->flops, bytes = (double)k->bytes;

	if (!bytes)
		for (int i = 0; i < k->nin + k->nout; i++)
			bytes += view_bytes(&k->v[i]);
	double rate = 8;               /* flops per nanosecond of one core */
	if ((k->id == KERN_dot || k->id == KERN_convolution) && k->nin) {
		enum dtype dt = k->v[0].dtype;
		rate = dt == DT_bf16 && cpu_get()->amx_bf16 ? 600 : dt == DT_f32 || dt == DT_bf16 ? cpu_get()->avx512 ? 100 : 50 : 10;
	}
	return 50 + flops / rate + bytes / 8;
}

/* LAPACK on small matrices is quick; what calls back into Python must not run on its caller's thread. */
static double custom_ns(const struct prog_custom *c)
{
	double bytes = 0;

	for (int i = 0; i < c->nin + c->nout; i++)
		bytes += view_bytes(&c->v[i]);
	return !c->effect && bytes <= QUICK_CUSTOM && custom_is_ffi(c->target) ? 10000 : 1e18;
}

static double block_ns(const struct prog *p, uint32_t b, int depth)
{
	double t = 0;

	if (depth > 64)
		return 1e18;
	for (uint32_t i = 0; i < p->block[b].n; i++) {
		const struct prog_cmd *c = &p->block[b].cmd[i];
		double sub = 0;
		for (uint32_t k = 0; k < c->nblock; k++)
			sub = MAX(sub, block_ns(p, p->sub[c->block + k], depth + 1));
		switch (c->op) {
		case CMD_KERN: t += kernel_ns(&p->kern[c->id]); break;
		case CMD_LOOP: t += c->imm < 0 ? 1e18 : sub * (double)c->imm; break;
		case CMD_CUSTOM: t += custom_ns(&p->custom[c->id]); break;
		case CMD_WHILE: case CMD_COLL: t += 1e18; break;
		default: t += sub + 5; break;
		}
	}
	return t;
}

/* A worker that sleeps needs some 60 us to come: it is called for a large kernel, or for any kernel of a program
 * that has enough work in kernels worth splitting. */
static void wakes(struct rt_exec *x)
{
	bool busy = block_ns(x->p, 0, 0) > 4 * WAKE_NS;

	for (uint32_t i = 0; i < x->p->nkern; i++)
		x->kern[i].wakes = busy || kernel_ns(x->kern[i].k) > WAKE_NS;
}

static const uint8_t op_of[] = {
	[CMD_SET] = I_SET, [CMD_ADD] = I_ADD, [CMD_MUL] = I_MUL, [CMD_MIN] = I_MIN, [CMD_MAX] = I_MAX, [CMD_LD] = I_LD, [CMD_ST] = I_ST,
	[CMD_TABLE] = I_TABLE, [CMD_LOOP] = I_LOOP, [CMD_WHILE] = I_WHILE, [CMD_CASE] = I_CASE, [CMD_COLL] = I_COLL, [CMD_CUSTOM] = I_CUSTOM,
};

static const char *label(const struct prog *p, const struct prog_cmd *c)
{
	const char *what = c->op == CMD_KERN ? prog_kern_name[p->kern[c->id].id] : c->op == CMD_CUSTOM ? p->custom[c->id].target : prog_coll_name[p->coll[c->id].kind];
	const char *site = c->site < p->nsite ? p->site[c->site].text : "";
	char s[200];

	if (c->op == CMD_KERN && p->kern[c->id].code >= 0)
		what = p->code[p->kern[c->id].code].symbol;
	snprintf(s, sizeof s, "%.100s %.90s", what, site);
	return intern(s);
}

/* Commands -> instructions.  Marks and awaits vanish: one thread walks all lanes in textual order. */
static void decode(struct rt_exec *x)
{
	struct prog *p = x->p;
	size_t n = 0;

	for (uint32_t b = 0; b < p->nblock; b++)
		n += p->block[b].n + 1;
	x->ins = mem_alloc(n * sizeof *x->ins);
	x->start = mem_alloc((size_t)p->nblock * sizeof *x->start);
	n = 0;
	for (uint32_t b = 0; b < p->nblock; b++) {
		x->start[b] = (uint32_t)n;
		for (uint32_t i = 0; i < p->block[b].n; i++) {
			const struct prog_cmd *c = &p->block[b].cmd[i];
			if (c->op == CMD_MARK || c->op == CMD_AWAIT)
				continue;
			struct ins *o = &x->ins[n++];
			*o = (struct ins){ .op = c->op == CMD_KERN ? I_KERN : op_of[c->op], .dtype = c->dtype, .r0 = c->reg[0], .r1 = c->reg[1], .r2 = c->reg[2],
			                   .opnd = c->opnd, .nopnd = c->nopnd, .block = c->block, .nblock = c->nblock, .site = c->site, .imm = c->imm };
			if (trace_on() && (c->op == CMD_KERN || c->op == CMD_COLL || c->op == CMD_CUSTOM))
				o->name = label(p, c);
			x->maxptr = MAX(x->maxptr, c->nopnd);
			if (c->op == CMD_KERN) {
				const struct kernel *k = &x->kern[c->id];
				o->ref = k;
				o->op = k->split ? I_SPLIT : k->copy ? I_COPY : k->code && !k->shared ? I_CODE : I_KERN;
			} else if (c->op == CMD_TABLE)
				o->ref = &p->table[c->imm];
			else if (c->op == CMD_COLL)
				o->ref = &p->coll[c->id];
			else if (c->op == CMD_CUSTOM)
				o->ref = &p->custom[c->id];
		}
		x->ins[n++].op = I_END;
	}
}

/* Generated code that is mapped: programs that hold the same group share it. */
struct code { uint64_t key; int ref; struct rt_code *obj; prog_code_fn *fn; };
static pthread_mutex_t code_lock = PTHREAD_MUTEX_INITIALIZER;
static struct map code_map;

static struct err *code_take(const struct prog_code *c, struct code **out)
{
	struct err *e = NULL;
	struct code *k = NULL;

	pthread_mutex_lock(&code_lock);
	uint64_t *v = c->key ? map_put(&code_map, &c->key, sizeof c->key) : NULL;
	if (v && *v) {
		k = (struct code *)(uintptr_t)*v;
		k->ref++;
		goto out;
	}
	struct rt_code *obj;
	TRY_GOTO(e, rt_code_load(c->obj, c->nobj, &obj), out);
	void *fn = rt_code_symbol(obj, c->symbol);
	if (!fn) {
		rt_code_free(obj);
		e = ERR(DATA_LOSS, "generated code has no symbol '%s'", c->symbol);
		goto out;
	}
	k = mem_alloc(sizeof *k);
	k->key = c->key;
	k->ref = 1;
	k->obj = obj;
	memcpy(&k->fn, &fn, sizeof fn);
	if (v)
		*v = (uint64_t)(uintptr_t)k;
out:
	pthread_mutex_unlock(&code_lock);
	*out = k;
	return e;
}

static void code_drop(struct code *k)
{
	if (!k)
		return;
	pthread_mutex_lock(&code_lock);
	if (!--k->ref) {
		uint64_t *v = k->key ? map_get(&code_map, &k->key, sizeof k->key) : NULL;
		if (v)
			*v = 0;
		rt_code_free(k->obj);
		free(k);
	}
	pthread_mutex_unlock(&code_lock);
}

static struct err *kernels(struct rt_exec *x, bool workers)
{
	struct prog *p = x->p;

	x->code = mem_alloc(sizeof *x->code * (size_t)MAX(p->ncode, 1));
	for (uint32_t i = 0; i < p->ncode; i++)
		TRY(code_take(&p->code[i], &x->code[i]));
	x->kern = mem_alloc(sizeof *x->kern * (size_t)MAX(p->nkern, 1));
	for (uint32_t i = 0; i < p->nkern; i++) {
		struct kernel *k = &x->kern[i];
		k->k = &p->kern[i];
		k->phases = 1;
		if (k->k->id == KERN_gen) {
			if (k->k->code < 0 || k->k->code >= (int64_t)p->ncode)
				return ERR(INVALID, "kernel %u has no code", i);
			k->code = x->code[k->k->code]->fn;
			k->tiles = k->k->tiles;
		} else {
			TRY(kern_prepare(k->k, &k->state));
			k->tiles = kern_tiles(k->k, k->state);
			k->phases = kern_phases(k->k, k->state);
			k->scratch = kern_scratch(k->k, k->state);
			k->shared = kern_shared(k->k, k->state);
			x->scratch = MAX(x->scratch, k->scratch);
			x->shared = MAX(x->shared, k->shared);
		}
		const struct prog_view *v = k->k->v;
		if (k->k->id == KERN_copy && v[0].dtype == v[1].dtype && prog_view_dense(&v[0]) && prog_view_dense(&v[1])) {
			k->copy = prog_view_bytes(&v[1]);
			k->from = v[0].off * dtype_info[v[0].dtype].bytes;
			k->to = v[1].off * dtype_info[v[1].dtype].bytes;
		}
		k->split = workers && k->tiles > 1 && kernel_ns(k->k) > SPLIT_NS;
	}
	return NULL;
}

static struct err *buffers(struct rt_exec *x)
{
	struct prog *p = x->p;

	x->narg = p->narg;
	x->nres = p->nres;
	x->argbuf = mem_alloc(sizeof *x->argbuf * (size_t)MAX(p->narg, 1));
	x->outbuf = mem_alloc(sizeof *x->outbuf * (size_t)MAX(p->nres, 1));
	x->donor = mem_alloc(sizeof *x->donor * (size_t)MAX(p->nres, 1));
	x->resmem = mem_alloc((size_t)MAX(p->nres, 1));
	for (uint32_t i = 0; i < p->nres; i++) {
		const char *m = p->res[i].memory_kind;
		x->resmem[i] = !m || !strcmp(m, "device") ? 0 : !strcmp(m, "pinned_host") ? 1 : 2;
	}
	for (uint32_t i = 0; i < p->narg; i++)
		x->argbuf[i] = -1;
	for (uint32_t i = 0; i < p->nres; i++)
		x->outbuf[i] = x->donor[i] = -1;
	for (uint32_t i = 0; i < p->nbuf; i++) {
		const struct prog_buf *b = &p->buf[i];
		if (b->kind == BUF_ARG)
			x->argbuf[b->index] = (int32_t)i;
		else if (b->kind == BUF_OUT) {
			x->outbuf[b->index] = (int32_t)i;
			if (b->alias >= 0) {
				if (p->buf[b->alias].kind != BUF_ARG || p->buf[b->alias].size != b->size)
					return ERR(INVALID, "result %u shares storage with something that is no parameter of its size", b->index);
				x->donor[b->index] = (int32_t)p->buf[b->alias].index;
			}
		}
	}
	for (uint32_t i = 0; i < p->narg; i++)
		x->donates |= p->arg[i].alias != -1;
	return NULL;
}

static void exec_free(struct rt_exec *x)
{
	if (x->comm) {
		pthread_mutex_lock(&x->c->side_lock);
		for (struct rt_exec **q = &x->c->execs; *q; q = &(*q)->next)
			if (*q == x) {
				*q = x->next;
				break;
			}
		pthread_mutex_unlock(&x->c->side_lock);
	}
	for (uint32_t i = 0; x->kern && i < x->p->nkern; i++)
		kern_release(x->kern[i].state);
	for (int i = 0; i < x->nlocal; i++) {
		if (x->data)
			store_unref(x->data[i]);
		if (x->ctx)
			ctx_fini(&x->ctx[i]);
	}
	for (uint32_t i = 0; i < x->p->ncode && x->code; i++)
		code_drop(x->code[i]);
	free(x->code);
	for (int i = 0; i < x->nlocal && x->peer; i++)
		free(x->peer[i]);
	free(x->peer);
	free(x->npeer);
	free(x->kern);
	free(x->data);
	free(x->ctx);
	free(x->ins);
	free(x->start);
	free(x->argbuf);
	free(x->outbuf);
	free(x->donor);
	free(x->resmem);
	free(x->pos);
	free(x->id);
	free(x->dev);
	prog_free(x->p);
	client_unref(x->c);
	free(x);
}

struct err *rt_exec_new(struct rt_client *c, struct prog *p, const int *dev, struct rt_exec **out)
{
	struct rt_exec *x = mem_alloc(sizeof *x);
	struct err *e = NULL;
	char name[160];

	*out = NULL;
	atomic_init(&x->ref, 1);
	client_ref(c);
	x->c = c;
	x->p = p;
	snprintf(name, sizeof name, "program '%.100s', result", p->name ? p->name : "");
	x->what = intern(name);
	x->name = intern(p->name ? p->name : "");
	x->pos = mem_alloc(sizeof *x->pos * (size_t)MAX(p->ndev, 1));
	x->id = mem_alloc(sizeof *x->id * (size_t)MAX(p->ndev, 1));
	x->dev = mem_alloc(sizeof *x->dev * (size_t)MAX(p->ndev, 1));
	int first = c->dev[0].id, total = c->ndev * c->nprocess;
	for (int i = 0; i < p->ndev; i++) {
		x->id[i] = dev[i];
		if (dev[i] < 0 || dev[i] >= total) {
			e = ERR(INVALID, "device %d of the assignment does not exist", dev[i]);
			goto out;
		}
		for (int k = 0; k < i; k++)
			if (dev[k] == dev[i]) {
				e = ERR(INVALID, "device %d is assigned twice", dev[i]);
				goto out;
			}
		if (dev[i] >= first && dev[i] < first + c->ndev) {
			x->pos[x->nlocal] = i;
			x->dev[x->nlocal++] = &c->dev[dev[i] - first];
		}
	}
	if (!x->nlocal) {
		e = ERR(INVALID, "no device of the assignment belongs to this process");
		goto out;
	}
	TRY_GOTO(e, kernels(x, c->ndev > 1 || c->dev[0].nworker > 0), out);
	TRY_GOTO(e, buffers(x), out);
	decode(x);
	wakes(x);
	for (uint32_t i = 0; i < p->ncoll; i++)
		TRY_GOTO(e, coll_check(p, &p->coll[i]), out);
	x->inlined = p->ndev == 1 && !p->ncoll && p->narg <= INLINE_ARGS && p->nres <= INLINE_ARGS && block_ns(p, 0, 0) < (c->ndev == 1 ? ALONE_NS : INLINE_NS);
	x->data = mem_alloc(sizeof *x->data * (size_t)x->nlocal);
	x->ctx = mem_alloc(sizeof *x->ctx * (size_t)x->nlocal);
	for (int i = 0; i < x->nlocal; i++) {
		ctx_init(&x->ctx[i], x);
		if (p->ndata) {
			x->data[i] = store_new(x->dev[i], 0, (size_t)p->ndata);
			TRY_GOTO(e, store_alloc(x->data[i], "constants of a program", -1), out);
			store_upload(x->data[i], 0, p->data, (size_t)p->ndata);
		}
	}
	if (p->ncoll) {
		uint64_t h = hash_bytes(p->name, strlen(p->name), p->fingerprint ^ prog_comm_hash(p));
		x->ident = (uint32_t)(h >> 32) | 1;
		x->peer = mem_alloc(sizeof *x->peer * (size_t)x->nlocal);
		x->npeer = mem_alloc(sizeof *x->npeer * (size_t)x->nlocal);
		for (int i = 0; i < x->nlocal; i++) {
			x->peer[i] = mem_alloc(sizeof **x->peer * (size_t)p->ndev);
			x->npeer[i] = coll_peers(p, x->id, x->pos[i], x->peer[i]);
		}
		x->comm = true;
		pthread_mutex_lock(&c->side_lock);
		x->next = c->execs;
		c->execs = x;
		pthread_mutex_unlock(&c->side_lock);
	}
out:
	if (e)
		exec_free(x);
	else
		*out = x;
	return e;
}

struct rt_exec *rt_exec_ref(struct rt_exec *x)
{
	atomic_fetch_add_explicit(&x->ref, 1, memory_order_relaxed);
	return x;
}

void rt_exec_unref(struct rt_exec *x)
{
	if (x && atomic_fetch_sub_explicit(&x->ref, 1, memory_order_acq_rel) == 1)
		exec_free(x);
}

const struct prog *rt_exec_prog(const struct rt_exec *x) { return x->p; }
int rt_exec_nlocal(const struct rt_exec *x) { return x->nlocal; }
struct rt_device *rt_exec_device(const struct rt_exec *x, int i) { return x->dev[i]; }
int rt_exec_position(const struct rt_exec *x, int i) { return x->pos[i]; }

/* --- one device's part of a launch ------------------------------------------------ */

struct part {
	struct store **arg;           /* narg references */
	struct rt_event **wait;       /* events of arguments that were not ready */
	uint32_t nwait;
	struct store **out;           /* nres references */
	uint8_t *taken;               /* result has its donor's storage */
	struct rt_event *done;
};

struct launch {
	_Atomic int ref;
	struct rt_exec *x;
	int32_t id;
	_Atomic int stop;             /* the launch is aborted */
	atomic_flag lock;
	struct err *err;              /* why; set before stop */
	struct part part[];
};

static void launch_unref(struct launch *l)
{
	if (atomic_fetch_sub_explicit(&l->ref, 1, memory_order_acq_rel) > 1)
		return;
	err_free(l->err);
	rt_exec_unref(l->x);
	free(l);
}

/* The launch ends on all devices with the first error; e is taken.  Returns this device's copy. */
static struct err *launch_fail(struct launch *l, struct err *e)
{
	spin_lock(&l->lock);
	if (!l->err)
		l->err = e;
	else
		err_free(e);
	e = err_copy(l->err);
	spin_unlock(&l->lock);
	if (!atomic_exchange(&l->stop, 1) && l->x->comm)
		for (int i = 0; i < l->x->nlocal; i++)
			sym_ring(l->x->c->team, l->x->dev[i]->id);
	return e;
}

/* Memory for the outputs that have none yet, and the program zone. */
static struct err *take_memory(struct rt_exec *x, struct rt_device *d, struct store **out, struct store **zone)
{
	for (int64_t r = 0; r < x->nres; r++)
		if (!out[r]->addr)
			TRY(store_alloc(out[r], x->what, (int)r));
	if (!*zone || (*zone)->bytes < (size_t)x->p->zone) {
		store_unref(*zone);
		*zone = store_new(d, 0, (size_t)x->p->zone);
		struct err *e = store_alloc(*zone, "the program zone", -1);
		if (e) {
			store_unref(*zone);
			*zone = NULL;
			return e;
		}
	}
	return NULL;
}

/* Where every buffer lies. */
static void bind(struct rt_exec *x, int i, struct ctx *c, struct store *const *arg, struct store *const *out, struct store *zone)
{
	const struct prog *p = x->p;
	char *z = store_enter(zone), *data = x->data[i] ? store_enter(x->data[i]) : NULL;

	if (c->zone != z) {
		for (uint32_t b = 0; b < p->nbuf; b++)
			if (p->buf[b].kind == BUF_TEMP)
				c->base[b] = z + p->buf[b].off;
			else if (p->buf[b].kind == BUF_CONST)
				c->base[b] = data + p->buf[b].off;
		c->zone = z;
	}
	for (int64_t k = 0; k < x->narg; k++)
		if (x->argbuf[k] >= 0)
			c->base[x->argbuf[k]] = store_enter(arg[k]);
	for (int64_t k = 0; k < x->nres; k++)
		if (x->outbuf[k] >= 0)
			c->base[x->outbuf[k]] = store_enter(out[k]);
}

/* Start and walk.  The caller owns the device. */
static struct err *go(struct rt_exec *x, int i, struct ctx *c, struct store *const *arg, struct store **out, const uint8_t *taken,
                      struct room *room, struct launch *l, int32_t id)
{
	struct rt_device *d = x->dev[i];
	struct store **zone = &room->zone;
	struct err *e = take_memory(x, d, out, zone);

	if (e && e->code == ERR_EXHAUSTED && *zone && (*zone)->bytes > (size_t)x->p->zone) {
		/* The zone has the size of the largest program so far: this one can do with less. */
		store_unref(*zone);
		*zone = NULL;
		err_free(e);
		e = take_memory(x, d, out, zone);
	}
	if (e)
		return e;
	for (int64_t r = 0; r < x->nres; r++)
		if (x->donor[r] >= 0 && !taken[r])
			store_copy(out[r], 0, arg[x->donor[r]], 0, (size_t)x->p->buf[x->outbuf[r]].size);
	bind(x, i, c, arg, out, *zone);
	struct frame f = { .x = x, .d = d, .c = c, .coll = { d->ep, d->heap, x->p, x->id, x->pos[i] }, .local = i, .pos = x->pos[i], .launch_id = id, .solo = room != &d->room, .stop = l ? &l->stop : NULL };
	f.scratch = scratch_need(&room->scratch, &room->nscratch, x->scratch);
	f.shared = scratch_need(&room->shared, &room->nshared, x->shared);
	return walk(&f);
}

/* Add what a site of a program is called.  The program may be gone already. */
static void describe(void *user, uint32_t ident, uint32_t site, struct str *s)
{
	struct rt_client *c = ((struct rt_device *)user)->c;

	pthread_mutex_lock(&c->side_lock);
	struct rt_exec *x = c->execs;
	while (x && x->ident != ident)
		x = x->next;
	if (x) {
		const char *text = site && x->ins[site].site < x->p->nsite ? x->p->site[x->ins[site].site].text : "";
		str_addf(s, "%s%s%scommand %u of program '%s'", *text ? "'" : "", text, *text ? "', " : "", site, x->p->name ? x->p->name : "");
	} else
		str_addf(s, "command %u of program %08x", site, ident);
	pthread_mutex_unlock(&c->side_lock);
}

/* A waiting device works for the others: their kernels may be what it waits for. */
static bool help(void *user)
{
	struct rt_device *d = user;
	struct rt_client *c = d->c;

	for (int i = 1; i < c->ndev; i++)
		if (pool_help(&c->dev[(d->local + i) % c->ndev], 1, &d->help, &d->nhelp))
			return true;
	return false;
}

static void part_run(struct launch *l, int i, struct ctx *c, struct room *room)
{
	struct rt_exec *x = l->x;
	struct rt_device *d = x->dev[i];
	struct part *p = &l->part[i];
	struct err *e = NULL;

	for (uint32_t k = 0; k < p->nwait; k++) {
		struct err *w = rt_event_wait(p->wait[k]);
		rt_event_unref(p->wait[k]);
		if (w && !e)
			e = w;
		else
			err_free(w);
	}
	if (!e && atomic_load(&l->stop))
		e = ERR(ABORTED, "launch aborted");
	if (x->comm) {
		struct sym_launch s = { x->ident, x->peer[i], x->npeer[i], &l->stop, help, describe, d };
		sym_begin(d->ep, &s);
	}
	if (!e)
		e = go(x, i, c, p->arg, p->out, p->taken, room, l, l->id);
	if (e)
		e = launch_fail(l, e);
	if (x->comm)
		sym_end(d->ep, e != NULL);
	for (int64_t k = 0; k < x->narg; k++)
		store_unref(p->arg[k]);
	for (int64_t k = 0; k < x->nres; k++)
		store_unref(p->out[k]);
	/* The device is free before anybody hears that the launch is done: who waited may find it idle. */
	if (room == &d->room)
		atomic_fetch_sub(&d->state, 1);
	rt_event_set(p->done, e);
	rt_event_unref(p->done);
	launch_unref(l);
}

/* --- the queue --------------------------------------------------------------------- */

void *walker_main(void *v)
{
	struct rt_device *d = v;
	struct rt_client *c = d->c;

	cpu_set_ftz();
	walking = d;
	for (;;) {
		uint32_t seen = atomic_load(&d->bell);
		unsigned head = atomic_load_explicit(&d->head, memory_order_relaxed);
		if (atomic_load(&d->tail) != head) {
			struct launch *l = d->q[head % RT_RING].l;
			int i = d->q[head % RT_RING].i;
			pthread_mutex_lock(&d->lock);
			atomic_store(&d->head, head + 1);
			d->taken--;
			pthread_cond_signal(&d->space);
			pthread_mutex_unlock(&d->lock);
			for (int k = 0; atomic_load(&d->state) & STATE_INLINE; k++)
				k < c->spins ? sym_pause() : (void)sched_yield();
			part_run(l, i, &l->x->ctx[i], &d->room);
			continue;
		}
		if (atomic_load(&c->stop))
			return NULL;
		/* The next launch of a loop in Python is some tens of microseconds away, less than waking up takes.  The
		 * thread that will make it needs a core, perhaps this one: yield, do not poll. */
		for (uint64_t t = clock_ns(); atomic_load_explicit(&d->bell, memory_order_relaxed) == seen && clock_ns() - t < LINGER_NS;)
			sched_yield();
		if (atomic_load(&d->bell) != seen)
			continue;
		atomic_store(&d->asleep, 1);
		while (atomic_load(&d->bell) == seen)
			sym_sleep(&d->bell, seen, -1);
		atomic_store(&d->asleep, 0);
	}
}

/* Wait for a place in the queue of each device of x; a call from inside a host callback never waits.  No lock is
 * held meanwhile: a callback may need it for the queue to move on. */
static struct err *places(struct rt_exec *x, bool inside)
{
	struct rt_client *c = x->c;
	bool full = false;

	for (int k = 0; k < c->ndev && !full; k++) {         /* in one order for everybody */
		struct rt_device *d = &c->dev[k];
		bool mine = false;
		for (int i = 0; i < x->nlocal; i++)
			mine |= x->dev[i] == d;
		if (!mine)
			continue;
		pthread_mutex_lock(&d->lock);
		while (d->taken >= RT_QUEUE && !inside)
			pthread_cond_wait(&d->space, &d->lock);
		full = d->taken >= RT_RING;
		if (!full)
			d->taken++;
		pthread_mutex_unlock(&d->lock);
		for (int j = 0; full && j < k; j++)              /* give back what was promised */
			for (int i = 0; i < x->nlocal; i++)
				if (x->dev[i] == &c->dev[j]) {
					pthread_mutex_lock(&c->dev[j].lock);
					c->dev[j].taken--;
					pthread_cond_signal(&c->dev[j].space);
					pthread_mutex_unlock(&c->dev[j].lock);
				}
	}
	return full ? ERR(EXHAUSTED, "host callbacks have queued %d programs that wait for them", RT_RING - RT_QUEUE) : NULL;
}

static void append(struct rt_device *d, struct launch *l, int i)
{
	pthread_mutex_lock(&d->lock);
	unsigned t = atomic_load(&d->tail);
	d->q[t % RT_RING].l = l;
	d->q[t % RT_RING].i = i;
	atomic_fetch_add(&d->state, 1);
	atomic_store(&d->tail, t + 1);
	pthread_mutex_unlock(&d->lock);
	atomic_fetch_add(&d->bell, 1);
	if (atomic_load(&d->asleep))
		sym_wake(&d->bell, 1);
}

/* --- launching ------------------------------------------------------------------------ */

static bool kept(int64_t k, const int64_t *no_donate, size_t nkeep)
{
	for (size_t i = 0; i < nkeep; i++)
		if (no_donate[i] == k)
			return true;
	return false;
}

/* References to the arguments' storage.  On failure none is kept. */
static struct err *arguments(struct rt_exec *x, int i, struct rt_buffer *const *arg, struct store **st)
{
	struct rt_device *d = x->dev[i];
	struct err *e = NULL;
	int64_t k = 0;

	for (; k < x->narg && !e; k++) {
		st[k] = NULL;
		if (arg[k]->dev != d)
			e = ERR(INVALID, "parameter %lld of '%s' lies on device %d, not %d", (long long)k, x->p->name, arg[k]->dev->id, d->id);
		else if (!(st[k] = buffer_store(arg[k])))
			e = ERR(INVALID, "parameter %lld of '%s' has been deleted or donated", (long long)k, x->p->name);
		else if ((int64_t)st[k]->bytes != x->p->arg[k].bytes)
			e = ERR(INVALID, "parameter %lld of '%s' has %zu bytes, not %lld", (long long)k, x->p->name, st[k]->bytes, (long long)x->p->arg[k].bytes);
	}
	if (e)
		while (k-- > 0)
			store_unref(st[k]);
	return e;
}

/* Which arguments are given more than once?  Under the launch lock. */
static void twice(struct rt_exec *x, struct store **st)
{
	uint64_t mark = ++x->c->mark;

	for (int64_t k = 0; k < x->narg; k++) {
		st[k]->twice = st[k]->mark == mark;
		st[k]->mark = mark;
	}
}

/* Storage of results: the donor's where it may be taken.  Under the launch lock if the program donates. */
static void results(struct rt_exec *x, int i, struct rt_buffer *const *arg, struct store **st, bool donate, const int64_t *no_donate, size_t nkeep,
                    struct store **out, uint8_t *taken)
{
	donate &= x->donates;
	if (donate)
		twice(x, st);
	for (int64_t r = 0; r < x->nres; r++) {
		int32_t k = x->donor[r];
		taken[r] = k >= 0 && donate && x->p->arg[k].alias != -1 && st[k]->mem == x->resmem[r] && !kept(k, no_donate, nkeep) && buffer_take(arg[k], st[k]);
		if (taken[r]) {
			out[r] = st[k];
			store_ref(out[r]);
		} else
			out[r] = store_new(x->dev[i], x->resmem[r], (size_t)x->p->res[r].bytes);
	}
	for (int64_t k = 0; k < x->narg && donate; k++)      /* donated, but of no use to any result */
		if (x->p->arg[k].alias != -1 && !kept(k, no_donate, nkeep))
			buffer_take(arg[k], st[k]);
}

static struct rt_buffer *result_buffer(struct rt_exec *x, struct rt_device *d, int64_t r, struct store *st, struct rt_event *ready)
{
	const struct prog_arg *a = &x->p->res[r];

	return buffer_new(d, x->resmem[r], a->dtype, a->rank, a->dim, st, ready);
}

/* On the caller's thread.  Gives false if the device is busy or an argument is not ready. */
static bool run_inline(struct rt_exec *x, struct rt_buffer *const *arg, const int64_t *no_donate, size_t nkeep, int32_t id,
                       struct rt_buffer **out, struct rt_event **done, struct err **err)
{
	struct rt_device *d = x->dev[0];
	struct store *as[INLINE_ARGS], *os[INLINE_ARGS];
	uint8_t taken[INLINE_ARGS];
	uint32_t idle = 0;
	struct err *e;

	for (int64_t k = 0; k < x->narg; k++)
		if (atomic_load_explicit(&arg[k]->ready->state, memory_order_acquire) != 1)
			return false;
	if (!atomic_compare_exchange_strong(&d->state, &idle, STATE_INLINE))
		return false;
	e = arguments(x, 0, arg, as);
	bool got = !e;
	if (got) {
		unsigned fp = cpu_set_ftz();
		if (x->donates)
			pthread_mutex_lock(&x->c->launch);
		results(x, 0, arg, as, true, no_donate, nkeep, os, taken);
		if (x->donates)
			pthread_mutex_unlock(&x->c->launch);
		e = go(x, 0, &x->ctx[0], as, os, taken, &d->room, NULL, id);
		cpu_restore_fp(fp);
	}
	atomic_fetch_and(&d->state, ~STATE_INLINE);
	*err = e;
	if (got)
		for (int64_t k = 0; k < x->narg; k++)
			store_unref(as[k]);
	for (int64_t r = 0; r < x->nres && got; r++)
		if (e)
			store_unref(os[r]);
		else
			out[r] = result_buffer(x, d, r, os[r], &event_ok);
	*done = e ? NULL : &event_ok;
	return true;
}

struct err *rt_exec_run(struct rt_exec *x, struct rt_buffer *const *arg, const int64_t *no_donate, size_t nkeep,
                        int32_t launch_id, struct rt_buffer **out, struct rt_event **done)
{
	struct rt_client *c = x->c;
	struct err *e = NULL;

	if (client_forked(c))
		return ERR(PRECONDITION, "this process was forked from the one that started the devices");
	if (x->inlined && run_inline(x, arg, no_donate, nkeep, launch_id, out, done, &e))
		return e;

	/* A call from inside a host callback cannot wait for its own device, nor for one that may be waiting for it in
	 * a collective: it runs here and now, and takes no storage, which queued programs may still read. */
	int64_t narg = x->narg, nres = x->nres;
	bool inside = walking && walking->c == c, self = false, ready = true;
	for (int i = 0; i < x->nlocal && inside; i++)
		self |= x->dev[i] == walking;
	for (int64_t k = 0; k < narg && inside && x->nlocal == 1; k++)
		ready &= rt_event_ready(arg[k]->ready);
	bool nested = inside && x->nlocal == 1 && !x->comm && ready;
	if (self && x->nlocal > 1)
		return ERR(PRECONDITION, "a host callback of device %d cannot launch a program on this and other devices", walking->id);
	if (self && !nested)
		return ERR(PRECONDITION, "a host callback of device %d cannot wait for what the device has yet to compute", walking->id);
	size_t each = (size_t)(2 * narg + nres) * sizeof(void *) + (size_t)nres, n = sizeof(struct launch) + (size_t)x->nlocal * sizeof(struct part);
	each = (each + 15) & ~(size_t)15;
	struct launch *l = mem_grow(NULL, n + each * (size_t)x->nlocal);
	atomic_init(&l->ref, x->nlocal);
	l->x = x;
	l->id = launch_id;
	atomic_init(&l->stop, 0);
	atomic_flag_clear(&l->lock);
	l->err = NULL;
	int ok = 0;
	for (; ok < x->nlocal; ok++) {
		struct part *p = &l->part[ok];
		p->arg = (struct store **)((char *)l + n + each * (size_t)ok);
		p->wait = (struct rt_event **)(p->arg + narg);
		p->out = (struct store **)(p->wait + narg);
		p->taken = (uint8_t *)(p->out + nres);
		p->nwait = 0;
		e = arguments(x, ok, arg + narg * ok, p->arg);
		if (e)
			break;
	}
	if (!e && !nested)
		e = places(x, inside);
	if (!e) {
		if (!nested)
			pthread_mutex_lock(&c->launch);
		if (atomic_load(&c->stop)) {
			if (!nested)
				pthread_mutex_unlock(&c->launch);
			e = ERR(CANCELLED, "the client is closed");
		}
	}
	if (e) {
		while (ok-- > 0)
			for (int64_t k = 0; k < narg; k++)
				store_unref(l->part[ok].arg[k]);
		free(l);
		return e;
	}
	rt_exec_ref(x);
	for (int i = 0; i < x->nlocal; i++) {
		struct part *p = &l->part[i];
		struct rt_buffer *const *a = arg + narg * i;
		for (int64_t k = 0; k < narg; k++)
			if (atomic_load_explicit(&a[k]->ready->state, memory_order_acquire) != 1)
				p->wait[p->nwait++] = rt_event_ref(a[k]->ready);
		results(x, i, a, p->arg, !nested, no_donate, nkeep, p->out, p->taken);
		p->done = rt_event_new();
		done[i] = rt_event_ref(p->done);
		for (int64_t r = 0; r < nres; r++) {
			store_ref(p->out[r]);
			out[nres * i + r] = result_buffer(x, x->dev[i], r, p->out[r], rt_event_ref(p->done));
		}
	}
	for (int i = 0; i < x->nlocal && !nested; i++)
		append(x->dev[i], l, i);
	if (!nested)
		pthread_mutex_unlock(&c->launch);
	else {
		struct ctx cx;
		struct room room = { 0 };
		ctx_init(&cx, x);
		unsigned fp = cpu_set_ftz();
		part_run(l, 0, &cx, &room);
		cpu_restore_fp(fp);
		ctx_fini(&cx);
		store_unref(room.zone);
		free(room.scratch);
		free(room.shared);
	}
	return NULL;
}
