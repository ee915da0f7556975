/* Executables: what a program needs before it can be launched. */
#include "impl.h"
#include "load.h"

/* Up to INLINE_NS a program runs on the caller's thread; on the only device of a client, where nothing but the
 * caller's own few microseconds could overlap and waking two threads costs a hundred, up to ALONE_NS. */
enum { INLINE_NS = 30000, ALONE_NS = 1000000, QUICK_CUSTOM = 1 << 15,
       SLICE_NS = 20000 /* what a message waits at most for a device that computes */ };

static double view_bytes(const struct prog_view *v)
{
	double n = dtype_info[v->dtype].bytes;

	for (int i = 0; i < v->rank; i++)
		n *= (double)v->dim[i];
	return n;
}

/* LAPACK on small matrices is quick; what calls back into Python must not run on its caller's thread. */
static double custom_ns(const struct prog_custom *c)
{
	double bytes = 0;

	for (int i = 0; i < c->nin + c->nout; i++)
		bytes += view_bytes(&c->v[i]);
	return !c->effect && bytes <= QUICK_CUSTOM && custom_is_ffi(c->target) ? 10000 : 1e18;
}

static double block_ns(const struct plan_table *plan, const struct prog *p, uint32_t b, int depth)
{
	double t = 0;

	if (depth > 64)
		return 1e18;
	for (uint32_t i = 0; i < p->block[b].n; i++) {
		const struct prog_cmd *c = &p->block[b].cmd[i];
		double sub = 0;
		for (uint32_t k = 0; k < c->nblock; k++) {
			double ns = block_ns(plan, p, p->sub[c->block + k], depth + 1);
			sub = MAX(sub, ns);
		}
		switch (c->op) {
		case CMD_KERN: t += p->kern[c->id].open ? 1e18 : plan_kern_time(plan, &p->kern[c->id]); break;
		case CMD_LOOP: t += c->imm < 0 ? 1e18 : sub * (double)c->imm; break;
		case CMD_CUSTOM: t += custom_ns(&p->custom[c->id]); break;
		case CMD_WHILE: case CMD_COLL: case CMD_LEND: t += 1e18; break;
		default: t += sub + 5; break;
		}
	}
	return t;
}

/* A worker that sleeps needs some time to come: it is called for a large kernel, or for any kernel of a program
 * that has enough work in kernels worth splitting. */
static void wakes(struct rt_exec *x)
{
	const struct plan_table *here = &x->c->here;
	double wake = here->rate[PLAN_wake];
	bool busy = block_ns(here, x->p, 0, 0) > 4 * wake;

	for (uint32_t i = 0; i < x->p->nkern; i++)
		x->kern[i].wakes = busy || plan_kern_time(here, x->kern[i].k) > wake;
}

/* What threads save by sharing a kernel, against what that takes: for each phase until all have come and are done, and the way of what one
 * made for all to where the others read it.  (Products of 64 x 64, 5 us on one core, took 10 on two; a softmax of 17 us takes 11.) */
static bool worth_splitting(const struct plan_table *here, const struct kernel *k)
{
	double phases = MAX(k->phases, 1);
	return k->places > 1 && plan_kern_near(here, k->k) * (1 - 1. / k->places) > here->rate[PLAN_hand] * phases + (double)k->shared * here->rate[PLAN_shared_byte];
}

static const uint8_t op_of[] = {
	[CMD_SET] = I_SET, [CMD_ADD] = I_ADD, [CMD_MUL] = I_MUL, [CMD_MIN] = I_MIN, [CMD_MAX] = I_MAX, [CMD_LD] = I_LD, [CMD_ST] = I_ST,
	[CMD_LEND] = I_LEND, [CMD_NEXT] = I_NEXT, [CMD_BACK] = I_BACK, [CMD_WAIT] = I_WAIT, [CMD_TABLE] = I_TABLE, [CMD_LOOP] = I_LOOP, [CMD_WHILE] = I_WHILE, [CMD_CASE] = I_CASE, [CMD_COLL] = I_COLL, [CMD_CUSTOM] = I_CUSTOM,
};

static const char *intern(const char *name) { return map_intern(name, strlen(name) + 1); }

static void decode_cmd(struct rt_exec *x, const struct prog_cmd *c, struct ins *o)
{
	*o = (struct ins){ .op = c->op == CMD_KERN ? I_KERN : op_of[c->op], .dtype = c->dtype, .r0 = c->reg[0], .r1 = c->reg[1], .r2 = c->reg[2],
	                   .opnd = c->opnd, .nopnd = c->nopnd, .block = c->block, .nblock = c->nblock, .site = c->site, .imm = c->imm };
	bool next = c->op == CMD_NEXT && c->imm;
	x->maxptr = MAX(x->maxptr, c->op == CMD_NEXT ? 2 * c->nopnd : c->nopnd);      /* of an all_gather two for each */
	if (c->op == CMD_KERN) {
		const struct kernel *k = &x->kern[c->id];
		o->ref = k;
		o->op = k->split ? I_SPLIT : k->copy ? I_COPY : k->code && !k->shared ? I_CODE : I_KERN;
	} else if (c->op == CMD_TABLE)
		o->ref = &x->p->table[c->imm];
	else if (c->op == CMD_COLL) {
		o->ref = &x->p->coll[c->id];
		x->comm_ins[++x->ncomm] = (uint32_t)(o - x->ins);
		o->imm = x->ncomm;
		o->r0 = prog_in_place(x->p, c);
		if (c->lane) {
			o->op = I_BEGIN;
			o->block = x->nflown;
			x->nflown += c->nopnd;
		}
		if (o->r0 && x->p->coll[c->id].kind == COLL_permute)
			x->agreed = hash_bytes(&c->id, sizeof c->id, x->agreed + 3) | 1;
	} else if (c->op == CMD_CUSTOM) {
		o->ref = &x->p->custom[c->id];
		o->block = c->id;
	} else if (c->op == CMD_LEND || c->op == CMD_NEXT || c->op == CMD_BACK || c->op == CMD_WAIT) {
		o->ref = &x->p->coll[c->id];
		o->block = c->id;
		if (c->op == CMD_LEND || next) {
			x->comm_ins[++x->ncomm] = (uint32_t)(o - x->ins);
			o->r0 = (uint16_t)next;
			o->imm = x->ncomm;
		}
	}
}

/* Does kernel c run inside the collective before it?  Where some memory is not mapped it comes behind it, all of it.  So it does with threads
 * that share its work, whose pass is shorter than what the walk alone would take; but who makes a part for all is agreed. */
static bool then_here(const struct rt_exec *x, const struct prog_cmd *c, bool mapped)
{
	bool agreed = c->imm == THEN_all && x->p->coll[c[-1].id].kind == COLL_all_reduce;
	return mapped && !c->lane && (agreed || !x->dev[0]->nworker || x->kern[c->id].tiles <= 1);
}

/* Commands -> instructions. */
static void decode(struct rt_exec *x)
{
	struct prog *p = x->p;
	size_t n = 0;
	bool mapped = x->nlocal > 0;

	for (int i = 0; i < p->ndev; i++)
		mapped &= sym_mapped(x->c->world, x->id[i]);
	for (uint32_t b = 0; b < p->nblock; b++)
		n += p->block[b].n + 1;
	n *= 2;
	x->ins = mem_alloc(n * sizeof *x->ins);      /* before a command there may be a wait for other lanes */
	x->comm_ins = mem_alloc(n * sizeof *x->comm_ins);
	x->start = mem_alloc((size_t)p->nblock * sizeof *x->start);
	n = 0;
	for (uint32_t b = 0; b < p->nblock; b++) {
		x->start[b] = (uint32_t)n;
		for (uint32_t i = 0; i < p->block[b].n; i++) {
			const struct prog_cmd *c = &p->block[b].cmd[i];
			/* What lane 0 has done is known wherever the walk is; the other lanes are one, whose collectives follow each other. */
			bool orders = c->op == CMD_MARK || c->op == CMD_AWAIT;
			if (orders && (c->op == CMD_MARK) == (c->lane > 0)) {
				x->ins[n++] = (struct ins){ .op = c->op == CMD_MARK ? I_MARK : I_AWAIT, .imm = c->imm };
				x->nmark = MAX(x->nmark, (uint32_t)c->imm + 1);
			} else if (c->lane && !orders && c->op != CMD_COLL)
				x->ins[n++] = (struct ins){ .op = I_AWAIT, .r0 = 1 };
			if (orders)
				continue;
			struct ins *o = &x->ins[n++];
			decode_cmd(x, c, o);
			if (c->op == CMD_KERN && c->imm && then_here(x, c, mapped)) {
				o[-1].op = I_THEN;
				then_init(p, c - 1, c, o);
				x->maxptr = MAX(x->maxptr, o[-1].nopnd + o->nopnd);
			}
		}
		x->ins[n++].op = I_END;
	}
	x->nins = (uint32_t)n;
}

/* Generated code that is mapped: programs that hold the same group share it. */
struct code { uint64_t key; int ref; struct rt_code *obj; prog_code_fn *fn; };
static pthread_mutex_t code_lock = PTHREAD_MUTEX_INITIALIZER;
static struct map code_map;

static struct err *code_take(const struct prog_code *c, struct code **out)
{
	struct err *e = NULL;
	struct code *k = NULL;

	struct mem_undo u;
	bool was = mem_persist(true);
	mem_lock(&u, &code_lock);
	uint64_t *v = c->key ? map_put(&code_map, &c->key, sizeof c->key) : NULL;
	if (v && *v) {
		k = (struct code *)(uintptr_t)*v;
		k->ref++;
		goto out;
	}
	struct rt_code *obj;
	struct code *made = mem_alloc(sizeof *made);
	struct mem_undo drop;
	mem_undo(&drop, mem_free, made);
	e = rt_code_load(c->obj, c->nobj, &obj);
	mem_done(&drop);
	if (e) {
		free(made);
		goto out;
	}
	void *fn = rt_code_symbol(obj, c->symbol);
	if (!fn) {
		rt_code_free(obj);
		free(made);
		e = ERR(DATA_LOSS, "generated code has no symbol '%s'", c->symbol);
		goto out;
	}
	k = made;
	k->key = c->key;
	k->ref = 1;
	k->obj = obj;
	memcpy(&k->fn, &fn, sizeof fn);
	if (v)
		*v = (uint64_t)(uintptr_t)k;
out:
	mem_unlock(&u);
	mem_persist(was);
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

/* The loans of each local device; where their words are, behind the zone. */
static void loans(struct rt_exec *x)
{
	const struct prog *p = x->p;
	bool copies = false;

	x->loans = mem_alloc(sizeof *x->loans * (size_t)MAX(p->ncoll, 1));
	for (uint32_t k = 0; k < p->ncoll; k++)
		if (p->coll[k].hops)
			x->loans[x->nloan++] = k;
	x->loan = mem_alloc(sizeof *x->loan * (size_t)MAX(p->ncoll, 1) * (size_t)MAX(x->nlocal, 1));
	for (int i = 0; i < x->nlocal; i++)
		for (uint32_t k = 0; k < x->nloan; k++) {
			const struct coll_cx cx = { x->dev[i]->coll, p, x->id, x->pos[i] };
			struct coll_loan **l = &x->loan[(size_t)i * p->ncoll + x->loans[k]];
			*l = coll_loan_new(&cx, &p->coll[x->loans[k]]);
			copies |= coll_loan_copies(*l);
		}
	x->words = ((size_t)(p->zone + (copies ? p->far : 0)) + 63) & ~(size_t)63;
	x->work = x->words;
	for (uint32_t k = 0; k < x->nloan; k++)
		x->work += coll_loan_words(&p->coll[x->loans[k]]);
}

/* e, of kernel `id`, with the program and the line that it is for. */
static struct err *of_kernel(struct err *e, const struct prog *p, uint32_t id)
{
	for (uint32_t b = 0; b < p->nblock && e; b++)
		for (uint32_t i = 0; i < p->block[b].n; i++) {
			const struct prog_cmd *c = &p->block[b].cmd[i];
			if (c->op == CMD_KERN && c->id == id)
				return err_wrap(e, "program '%s', %s", p->name ? p->name : "", prog_site_text(p, c->site));
		}
	return e;
}

/* e, by which there is no memory for constants, with the program and the line that reads the largest. */
static struct err *of_constants(struct err *e, const struct prog *p)
{
	struct arena a;
	struct prog_live v;
	struct str s = { 0 };
	uint32_t most = p->nbuf;

	arena_init(&a);
	prog_live(&a, p, &v);
	for (uint32_t i = 0; i < p->nbuf; i++)
		if (p->buf[i].kind == BUF_CONST && v.held[i].first >= 0 && (most == p->nbuf || p->buf[i].size > p->buf[most].size))
			most = i;
	str_addf(&s, "program '%s'", p->name ? p->name : "");
	if (most < p->nbuf) {
		str_add(&s, ", whose largest constant, ");
		str_bytes(&s, (uint64_t)p->buf[most].size);
		str_addf(&s, ", is for %s", prog_site_text(p, v.held[most].site));
	}
	err_wrap(e, "%s", s.p);
	str_free(&s);
	arena_fini(&a);
	return e;
}

static struct err *kernels(struct rt_exec *x, bool workers)
{
	struct prog *p = x->p;
	size_t most = 0;

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
			TRY(of_kernel(kern_prepare(k->k, &k->state), p, i));
			k->tiles = kern_tiles(k->k, k->state);
			k->phases = kern_phases(k->k, k->state);
			k->scratch = (kern_scratch(k->k, k->state) + 63) & ~(size_t)63;
			k->shared = (kern_shared(k->k, k->state) + 63) & ~(size_t)63;
		}
		const struct prog_view *v = k->k->v;
		if (k->k->id == KERN_copy && v[0].dtype == v[1].dtype && prog_view_dense(&v[0]) && prog_view_dense(&v[1])) {
			k->copy = prog_view_bytes(&v[1]);
			k->from = v[0].off * dtype_info[v[0].dtype].bytes;
			k->to = v[1].off * dtype_info[v[1].dtype].bytes;
		}
		k->slice = MAX((int64_t)((double)k->tiles * SLICE_NS / MAX(plan_kern_near(&x->c->here, k->k), SLICE_NS)), 1);
		k->places = workers ? (int)MIN(x->c->dev[0].places, k->tiles) : 1;
		k->split = worth_splitting(&x->c->here, k);
		k->places = k->split ? k->places : 1;
		most = MAX(most, k->shared + k->scratch * (size_t)k->places);
	}
	x->zone = most || x->nloan ? x->work + most : (size_t)p->zone;
	return NULL;
}

static struct err *buffers(struct rt_exec *x)
{
	struct prog *p = x->p;

	x->narg = p->narg;
	x->nres = p->nres;
	x->argbuf = mem_alloc(sizeof *x->argbuf * (size_t)MAX(p->narg, 1));
	x->outbuf = mem_alloc(sizeof *x->outbuf * (size_t)MAX(p->nres, 1));
	x->lodger = mem_alloc(sizeof *x->lodger * MAX(p->nbuf, 1));
	x->donor = mem_alloc(sizeof *x->donor * (size_t)MAX(p->nres, 1));
	x->taker = mem_alloc(sizeof *x->taker * (size_t)MAX(p->narg, 1));
	x->resmem = mem_alloc((size_t)MAX(p->nres, 1));
	x->layout = mem_alloc(sizeof *x->layout * (size_t)MAX(p->narg + p->nres, 1));
	for (uint32_t i = 0; i < p->narg + p->nres; i++) {
		const struct prog_arg *a = i < p->narg ? &p->arg[i] : &p->res[i - p->narg];
		if (a->layout)
			layout_read(a->layout, a->rank, &x->layout[i]);
	}
	for (uint32_t i = 0; i < p->nres; i++) {
		const char *m = p->res[i].memory_kind;
		x->resmem[i] = !m || !strcmp(m, "device") ? 0 : !strcmp(m, "pinned_host") ? 1 : 2;
	}
	for (uint32_t i = 0; i < p->narg; i++)
		x->argbuf[i] = x->taker[i] = -1;
	for (uint32_t i = 0; i < p->nres; i++)
		x->outbuf[i] = x->donor[i] = -1;
	for (uint32_t i = 0; i < p->nbuf; i++) {
		const struct prog_buf *b = &p->buf[i];
		if (b->kind == BUF_TEMP && b->alias >= 0)
			x->lodger[x->nlodger++] = i;
		if (b->kind == BUF_ARG)
			x->argbuf[b->index] = (int32_t)i;
		else if (b->kind == BUF_OUT) {
			x->outbuf[b->index] = (int32_t)i;
			if (b->alias >= 0) {
				if (p->buf[b->alias].kind != BUF_ARG || p->buf[b->alias].size != b->size)
					return ERR(INVALID, "result %u shares storage with something that is no parameter of its size", b->index);
				x->donor[b->index] = (int32_t)p->buf[b->alias].index;
				x->ndonor += x->taker[p->buf[b->alias].index] < 0;
				x->taker[p->buf[b->alias].index] = (int32_t)b->index;
			}
		}
	}
	for (uint32_t i = 0; i < p->narg; i++)
		x->donates |= p->arg[i].alias != -1;
	return NULL;
}

/* Where each result that has a parameter's storage could be that parameter of the next launch. */
static void relays(struct rt_exec *x)
{
	const struct prog *p = x->p;
	int64_t n = 0;

	for (uint32_t r = 0; r < p->nres; r++) {
		const struct prog_arg *to = &p->res[r], *from = x->donor[r] < 0 ? NULL : &p->arg[x->donor[r]];
		if (!from)
			continue;
		if (x->taker[x->donor[r]] != (int32_t)r || to->dtype != from->dtype || to->rank != from->rank || memcmp(to->dim, from->dim, sizeof *to->dim * to->rank) ||
		    x->layout[x->donor[r]] != x->layout[p->narg + r])
			return;
		n++;
	}
	if (!n)
		return;
	x->given = mem_alloc(sizeof *x->given * (size_t)n);
	x->rest = mem_alloc(sizeof *x->rest * (size_t)MAX(p->narg, 1));
	x->fresh = mem_alloc(sizeof *x->fresh * (size_t)MAX(p->nres, 1));
	n = 0;
	for (uint32_t r = 0; r < p->nres; r++)
		if (x->donor[r] >= 0)
			x->given[n++] = x->donor[r];
		else
			x->fresh[x->nfresh++] = (int32_t)r;
	for (uint32_t k = 0; k < p->narg; k++)
		if (x->taker[k] < 0)
			x->rest[x->nrest++] = (int32_t)k;
	x->relays = mem_alloc(sizeof *x->relays * (size_t)MAX(x->nlocal, 1));
	for (int i = 0; i < x->nlocal; i++)
		x->relays[i] = relays_new(n);
}

static void exec_free(void *v)
{
	struct rt_exec *x = v;

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
		for (uint32_t k = 0; k < x->nloan && x->loan; k++)
			coll_loan_free(x->loan[(size_t)i * x->p->ncoll + x->loans[k]]);
	}
	for (uint32_t i = 0; i < x->p->ncode && x->code; i++)
		code_drop(x->code[i]);
	free(x->code);
	for (int i = 0; i < x->nlocal && x->peer; i++)
		free(x->peer[i]);
	free(x->peer);
	free(x->npeer);
	free(x->kern);
	free(x->custom);
	arena_fini(&x->room);
	free(x->data);
	free(x->ctx);
	free(x->ins);
	free(x->comm_ins);
	free(x->start);
	free(x->loans);
	free(x->loan);
	free(x->argbuf);
	free(x->outbuf);
	free(x->lodger);
	free(x->donor);
	free(x->taker);
	for (int i = 0; i < x->nlocal && x->relays; i++)
		relays_close(x->relays[i]);
	free(x->relays);
	free(x->given);
	free(x->rest);
	free(x->fresh);
	spare_fini(&x->launches);
	free(x->resmem);
	free(x->layout);
	free(x->pos);
	free(x->id);
	free(x->dev);
	trace_prog_gone(x->said);
	if (!x->lent)
		prog_free(x->p);
	client_unref(x->c);
	free(x);
}

static void drop_prog(void *p) { prog_free(p); }

/* A queue full of launches, one that runs and one that is made find what they need on the host, and the descriptors of their results' memory.
 * An event outlives its launch with the results, and has callbacks of the application. */
static struct err *launches_expected(struct rt_exec *x)
{
	enum { FULL = RT_QUEUE + 2, MOST = 8192 };
	size_t n = (size_t)(FULL * x->nlocal), fresh = (size_t)(x->nres - x->ndonor), nres = (size_t)x->nres;

	spare_fill(&x->launches, FULL);
	event_fill(2 * n);
	store_fill(MIN(n * fresh, MOST));
	buffer_fill(MIN(n * (x->relays ? fresh : nres), MOST));
	for (int i = 0; i < x->nlocal; i++)
		TRY(sym_expects(x->dev[i]->heap, MIN(FULL * fresh + 2 * (nres - fresh) + 1, MOST)));
	return NULL;
}

/* The device has a lane from now on. */
static struct err *device_lane(struct rt_device *d)
{
	struct coll_lane *none = NULL, *l;

	if (atomic_load(&d->lane))
		return NULL;
	TRY(coll_lane_new(d->coll, &l));
	if (!atomic_compare_exchange_strong(&d->lane, &none, l))
		coll_lane_free(l);
	return NULL;
}

/* On which devices, and what that takes of their memory. */
static struct err *laid_out(struct rt_exec *x, const int *dev)
{
	struct rt_client *c = x->c;
	struct prog *p = x->p;

	x->pos = mem_alloc(sizeof *x->pos * (size_t)MAX(p->ndev, 1));
	x->id = mem_alloc(sizeof *x->id * (size_t)MAX(p->ndev, 1));
	x->dev = mem_alloc(sizeof *x->dev * (size_t)MAX(p->ndev, 1));
	int first = c->dev[0].id, total = c->nplace;
	for (int i = 0; i < p->ndev; i++) {
		x->id[i] = dev[i];
		if (dev[i] < 0 || dev[i] >= total)
			return ERR(INVALID, "device %d of the assignment does not exist", dev[i]);
		for (int k = 0; k < i; k++)
			if (dev[k] == dev[i])
				return ERR(INVALID, "device %d is assigned twice", dev[i]);
		if (dev[i] >= first && dev[i] < first + c->ndev) {
			x->pos[x->nlocal] = i;
			x->dev[x->nlocal++] = &c->dev[dev[i] - first];
		}
	}
	loans(x);
	TRY(kernels(x, c->ndev > 1 || c->dev[0].nworker > 0));
	TRY(buffers(x));
	for (int64_t r = 0; r < x->nres; r++)
		if (x->donor[r] < 0 && !x->resmem[r]) {
			int64_t takes = (int64_t)sym_takes(c->world, (size_t)p->res[r].bytes);
			x->results += takes;
			x->rounds += takes - p->res[r].bytes;
		}
	for (uint32_t i = 0; i < p->ncoll; i++)
		TRY(coll_check(p, &p->coll[i]));
	for (int i = 0; i < x->nlocal && p->ncoll; i++)
		x->own = MAX(x->own, coll_own(&(struct coll_cx){ x->dev[i]->coll, p, x->id, x->pos[i] }));
	return NULL;
}

struct err *rt_exec_new(struct rt_client *c, struct prog *p, const int *dev, struct rt_exec **out)
{
	struct mem_undo u, given;
	mem_undo(&given, drop_prog, p);
	struct rt_exec *x = mem_alloc(sizeof *x);
	struct err *e = NULL;
	char name[160];

	mem_done(&given);
	mem_undo(&u, exec_free, x);
	*out = NULL;
	atomic_init(&x->ref, 1);
	arena_init(&x->room);
	client_ref(c);
	x->c = c;
	x->p = p;
	snprintf(name, sizeof name, "program '%.100s', result", p->name ? p->name : "");
	x->what = intern(name);
	x->name = intern(p->name ? p->name : "");
	TRY_GOTO(e, laid_out(x, dev), out);
	x->custom = mem_alloc(sizeof *x->custom * (size_t)MAX(p->ncustom, 1));
	for (uint32_t i = 0; i < p->ncustom; i++)
		TRY_GOTO(e, custom_prepare(&x->room, &p->custom[i], &x->custom[i]), out);
	relays(x);
	x->launches = (struct spare)SPARE(launch_bytes(x));
	decode(x);
	wakes(x);
	for (uint32_t i = 0; i < p->ncustom && x->nlocal; i++)
		x->calls |= !custom_is_ffi(p->custom[i].target);
	if (x->calls)
		relief_start(c);
	x->inlined = p->ndev == 1 && x->nlocal && !p->ncoll && block_ns(&c->here, p, 0, 0) < (c->ndev == 1 ? ALONE_NS : INLINE_NS);
	TRY_GOTO(e, launches_expected(x), out);
	x->data = mem_alloc(sizeof *x->data * (size_t)x->nlocal);
	x->ctx = mem_alloc(sizeof *x->ctx * (size_t)x->nlocal);
	for (int i = 0; i < x->nlocal; i++) {
		if (x->nflown)
			TRY_GOTO(e, device_lane(x->dev[i]), out);
		if (x->nflown && p->ncustom)
			TRY_GOTO(e, guest_start(x->dev[i]), out);
		ctx_init(&x->ctx[i], x);
		x->ctx[i].loan = x->loan + (size_t)i * p->ncoll;
		if (p->ndata) {
			x->data[i] = store_new(x->dev[i], 0, (size_t)p->ndata);
			if ((e = store_alloc(x->data[i], "its constants", -1))) {
				of_constants(e, p);
				goto out;
			}
			store_upload(x->data[i], 0, p->data, (size_t)p->ndata);
		}
	}
	if (p->ncoll && x->nlocal) {
		/* What devices must agree on, and no more: what is done, on which devices, what travels; how a process computes
		 * (instruction set, what it does in place) is its own affair.  Host callbacks are known by numbers that each
		 * process gives: such a program has no common fingerprint. */
		uint64_t h = hash_bytes(x->id, sizeof *x->id * (size_t)p->ndev, (p->ncustom ? 0 : p->fingerprint) ^ prog_comm_hash(p) ^ x->agreed);
		h = hash_bytes(x->name, strlen(x->name), h);
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
		if (x->nlocal < p->ndev)
			job_publish(x);
	}
out:
	mem_done(&u);
	if (e)
		exec_free(x);
	else
		*out = x;
	return e;
}

int64_t rt_exec_peak(const struct rt_exec *x)
{
	int64_t arg, res, shared;

	prog_sizes(x->p, &arg, &res, &shared);
	return rt_exec_arguments(x) + res - shared + rt_exec_zone(x);
}

struct err *rt_exec_needs(struct rt_client *c, struct prog *p, const int *dev, int64_t *bytes)
{
	struct mem_undo u;
	struct rt_exec *x = mem_alloc(sizeof *x);

	mem_undo(&u, exec_free, x);
	client_ref(c);
	x->c = c;
	x->p = p;
	x->lent = true;
	struct err *e = laid_out(x, dev);
	if (!e)
		*bytes = rt_exec_peak(x) + (p->ndata ? (int64_t)sym_takes(c->world, (size_t)p->ndata) : 0);
	mem_done(&u);
	exec_free(x);
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
int64_t rt_exec_zone(const struct rt_exec *x) { return (x->zone ? (int64_t)sym_takes(x->c->world, x->zone) : 0) + x->own + x->rounds; }

int64_t rt_exec_arguments(const struct rt_exec *x)
{
	int64_t n = 0;

	for (int64_t k = 0; k < x->narg; k++)
		n += (int64_t)sym_takes(x->c->world, (size_t)x->p->arg[k].bytes);
	return n;
}

int rt_exec_nlocal(const struct rt_exec *x) { return x->nlocal; }
struct rt_device *rt_exec_device(const struct rt_exec *x, int i) { return x->dev[i]; }
int rt_exec_position(const struct rt_exec *x, int i) { return x->pos[i]; }
