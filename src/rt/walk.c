/* The walk: commands of a program, in the compact form made when it was loaded. */
#include "impl.h"

void ctx_init(struct ctx *c, const struct rt_exec *x)
{
	c->base = mem_lines(sizeof *c->base * (size_t)MAX(x->p->nbuf, 1));
	c->reg = mem_lines(sizeof *c->reg * (size_t)MAX(x->p->nreg, 1));
	c->ptr = mem_lines(sizeof *c->ptr * (size_t)(x->maxptr + 1));
	c->flown = mem_lines(sizeof *c->flown * (size_t)(x->nflown + 1));
	c->mark = mem_lines(sizeof *c->mark * (size_t)(x->nmark + 1));
	c->hop = mem_lines(sizeof *c->hop * (size_t)MAX(x->p->nbuf, 1));
	c->loan = NULL;
	c->zone = NULL;
	c->launches = 0;
	c->bound = 0;
}

void ctx_fini(struct ctx *c)
{
	free(c->base);
	free(c->reg);
	free(c->ptr);
	free(c->flown);
	free(c->mark);
	free(c->hop);
}

static int64_t load(enum dtype dt, const char *p)
{
	switch (dt) {
	case DT_i8: case DT_i4: case DT_i2: case DT_i1: return *(const int8_t *)p;
	case DT_pred: case DT_u8: case DT_u4: case DT_u2: case DT_u1: return *(const uint8_t *)p;
	case DT_i16: { int16_t v; memcpy(&v, p, 2); return v; }
	case DT_u16: { uint16_t v; memcpy(&v, p, 2); return v; }
	case DT_i32: { int32_t v; memcpy(&v, p, 4); return v; }
	case DT_u32: { uint32_t v; memcpy(&v, p, 4); return v; }
	default: { int64_t v; memcpy(&v, p, 8); return v; }
	}
}

static inline bool stopped(const struct frame *f)
{
	return f->stop && atomic_load_explicit(f->stop, memory_order_relaxed);
}

/* Is a collective under way that this thread is to look after? */
static inline bool flying(const struct frame *f) { return __builtin_expect(f->lane != NULL, 0) && coll_flying(f->lane); }

/* Code on this thread, in slices while something is under way. */
static void code(struct frame *f, const struct kernel *k)
{
	if (!flying(f)) {
		k->code(f->c->ptr, 0, k->tiles);
		return;
	}
	for (int64_t t = 0; t < k->tiles; t += k->slice) {
		k->code(f->c->ptr, t, MIN(t + k->slice, k->tiles));
		coll_look(f->lane);
	}
}

/* Kernels that are no plain call of code on this thread. */
static void kernel(struct frame *f, const struct kernel *k, bool split)
{
	char **ptr = f->c->ptr, *scratch = f->work + k->shared;

	if (k->shared)
		ptr[k->k->nin + k->k->nout] = f->work;
	if (split && !f->solo && (k->wakes || !atomic_load_explicit(&f->d->tileasleep, memory_order_relaxed)))
		pool_run(f->d, k, ptr, scratch, f->lane);
	else if (k->code)
		code(f, k);
	else
		for (int phase = 0; phase < k->phases; phase++)
			for (int64_t t = 0, step; t < k->tiles; t += step) {
				step = flying(f) ? MIN(k->slice, k->tiles - t) : k->tiles - t;
				kern_run(k->k, k->state, phase, ptr, t, t + step, scratch);
				if (flying(f))
					coll_look(f->lane);
			}
}

static bool run(struct frame *f, const struct ins *i);

static bool run_block(struct frame *f, const struct ins *i, uint32_t which)
{
	return run(f, f->x->ins + f->x->start[f->x->p->sub[i->block + which]]);
}

static bool loop(struct frame *f, const struct ins *i)
{
	int64_t *reg = f->c->reg, n = i->imm < 0 ? reg[i->r1] : i->imm;
	const struct ins *body = f->x->ins + f->x->start[f->x->p->sub[i->block]];

	for (int64_t k = 0; k < n; k++) {
		reg[i->r0] = k;
		reg[0] = 0;
		if (!run(f, body) || stopped(f))
			return false;
	}
	return true;
}

/* Say where in the program it was. */
static bool failed(struct frame *f, const struct ins *i)
{
	if (i->site < f->x->p->nsite && f->x->p->site[i->site].text[0])
		err_wrap(f->err, "%s", f->x->p->site[i->site].text);
	return false;
}

/* Wait for the first n collectives of the lane, or all; false if one has failed. */
static bool landed(struct frame *f, uint64_t n)
{
	const void *what;

	if (!f->lane)
		return true;
	coll_finish(f->lane, MIN(n, coll_begun(f->lane)));
	f->err = coll_lane_error(f->lane, &what);
	return !f->err || failed(f, what);
}

struct call { struct frame *f; struct custom *x; };

static struct err *called(void *v)
{
	const struct call *k = v;

	return custom_run(k->f, k->x, k->f->c->ptr);
}

/* Code outside Rondo cannot look at what is under way, and may wait for another device that waits for that: then it runs on the guest's thread. */
static struct err *custom(struct frame *f, struct custom *x)
{
	struct call k = { f, x };
	bool pinned = f->d->c->pinned && walking == f->d;

	if (flying(f))
		return guest_run(f->d, f->lane, called, &k);
	if (pinned)
		device_pin(f->d, -1);
	struct err *e = called(&k);
	if (pinned)
		device_pin(f->d, 0);
	return e;
}

static struct { _Alignas(64) _Atomic int64_t copied, lent, followed; } count[16];

static void moved(struct frame *f, const struct prog_coll *c, bool lent)
{
	unsigned k = (unsigned)f->d->local % NELEM(count);
	int64_t n = f->x->p->table[c->pairs].v[f->pos] < 0 ? 0 : c->nin * c->outer * c->inner * (c->kind == COLL_permute ? 1 : c->hops);

	atomic_fetch_add_explicit(lent ? &count[k].lent : &count[k].copied, n, memory_order_relaxed);
	f->permuted = lent ? -n : n;
}

void rt_permuted(int64_t *copied, int64_t *in_place)
{
	*copied = *in_place = 0;
	for (size_t i = 0; i < NELEM(count); i++) {
		*copied += atomic_load(&count[i].copied);
		*in_place += atomic_load(&count[i].lent);
	}
}

/* What all of the group have lent; in the buffers' own storage only where it must be copied. */
static bool all(struct frame *f, const struct ins *i)
{
	const struct prog *p = f->x->p;
	const struct prog_coll *c = i->ref;
	const struct prog_opnd *o = p->opnd + i->opnd;
	struct coll_loan *l = f->c->loan[i->block];
	char **own = f->c->ptr, **at = own + i->nopnd;

	if (coll_loan_copies(l) && !landed(f, UINT64_MAX))
		return false;
	for (uint32_t k = 1; k < i->nopnd; k++)
		own[k - 1] = f->c->zone + p->buf[o[k].buf].off;
	f->err = coll_all(&f->coll, l, (uint32_t)i->imm, opnd_at(o, f->c->base, f->c->reg), own, at);
	if (f->err)
		return failed(f, i);
	for (uint32_t k = 1; k < i->nopnd; k++)
		f->c->base[o[k].buf] = at[k - 1];
	moved(f, c, !coll_loan_copies(l));
	return true;
}

/* What the next device of a loan has; in the buffer's own storage only where it must be copied, in the half that is not read. */
static bool next(struct frame *f, const struct ins *i)
{
	const struct prog *p = f->x->p;
	const struct prog_coll *c = i->ref;
	const struct prog_opnd *o = p->opnd + i->opnd;
	struct coll_loan *l = f->c->loan[i->block];
	char *own = f->c->zone + p->buf[o[1].buf].off, *src = opnd_at(o, f->c->base, f->c->reg), *at = src;
	int hop = p->buf[o->buf].kind == BUF_LENT && p->buf[o->buf].index == i->block ? f->c->hop[o->buf] : 0;

	if (!i->r0)
		coll_show(l, src);
	else {
		own += src == own ? (c->outer * c->inner + 63) & ~(int64_t)63 : 0;
		if (coll_loan_copies(l) && !landed(f, UINT64_MAX))
			return false;
		f->err = coll_next(&f->coll, l, (uint32_t)i->imm, ++hop, src, own, &at);
		if (f->err)
			return failed(f, i);
		moved(f, c, at != own);
	}
	f->c->base[o[1].buf] = at;
	f->c->hop[o[1].buf] = hop;
	return true;
}

int64_t rt_followed(void)
{
	int64_t n = 0;

	for (size_t i = 0; i < NELEM(count); i++)
		n += atomic_load(&count[i].followed);
	return n;
}

/* --- recording ---------------------------------------------------------------- */

static enum rt_lane lane_of(unsigned op)
{
	switch (op) {
	case I_COLL: case I_THEN: case I_LEND: case I_NEXT: case I_BACK: case I_WAIT: case I_BEGIN: case I_AWAIT: return RT_LANE_COMM;
	case I_CUSTOM: return RT_LANE_HOST;
	default: return RT_LANE_COMPUTE;
	}
}

static void record(struct frame *f, uint32_t op, enum rt_lane lane, uint64_t t0, uint64_t t1)
{
	const struct rt_trace_event e = { &f->said->op[op], t0, t1, f->permuted, f->c->launches, (uint16_t)f->local, (uint8_t)lane, false };

	trace_add(f->trace, f->said, &e, f->began);
	f->permuted = 0;
}

/* The walk is at instruction i, or at its end: what it was at before has ended. */
static __attribute__((noinline)) void look(struct frame *f, const struct ins *i)
{
	uint32_t op = i ? f->said->of[i - f->x->ins] : 0;

	if (!op && !f->now.op)
		return;
	uint64_t t = clock_ns();
	if (f->now.op)
		record(f, f->now.op, lane_of(f->now.i->op), f->now.t0, t);
	f->now.i = i;
	f->now.op = op;
	f->now.t0 = t;
}

/* Something that went on beside has ended. */
static void ended(void *frame, const void *what, uint64_t t0, uint64_t t1)
{
	struct frame *f = frame;
	int64_t permuted = f->permuted;

	f->permuted = 0;
	record(f, f->said->of[(const struct ins *)what - f->x->ins], RT_LANE_BESIDE, t0, t1);
	f->permuted = permuted;
}

static void record_begin(struct frame *f)
{
	f->said = exec_said(f->x);
	f->now.op = 0;
	f->permuted = 0;
	f->began = clock_ns();
	if (!f->said) {
		trace_add(f->d->trace, NULL, NULL, f->began);
		return;
	}
	f->trace = f->d->trace;
	if (f->lane)
		coll_lane_watch(f->lane, ended, f);
}

static void record_end(struct frame *f)
{
	look(f, NULL);                    /* what has failed */
	f->permuted = 0;
	record(f, 0, RT_LANE_LAUNCH, f->began, clock_ns());
	if (f->lane)
		coll_lane_watch(f->lane, NULL, NULL);
}

/* False if the device failed or the launch was aborted. */
static bool run(struct frame *f, const struct ins *i)
{
	const struct prog_opnd *opnd = f->x->p->opnd;
	char *const *base = f->c->base, **ptr = f->c->ptr;
	int64_t *reg = f->c->reg;

	for (;; i++) {
		const struct prog_opnd *o = opnd + i->opnd;
		if (__builtin_expect(f->trace != NULL, 0))
			look(f, i);
		switch ((enum ins_op)i->op) {
		case I_END:
			return true;
		case I_CODE: {
			const struct kernel *k = i->ref;
			for (uint32_t n = 0; n < i->nopnd; n++)
				ptr[n] = opnd_at(&o[n], base, reg);
			code(f, k);
			continue;
		}
		case I_COPY: {
			const struct kernel *k = i->ref;
			char *dst = opnd_at(&o[1], base, reg) + k->to, *src = opnd_at(&o[0], base, reg) + k->from;
			if (dst != src)
				memcpy(dst, src, (size_t)k->copy);
			continue;
		}
		case I_KERN: case I_SPLIT:
			for (uint32_t n = 0; n < i->nopnd; n++)
				ptr[n] = opnd_at(&o[n], base, reg);
			kernel(f, i->ref, i->op == I_SPLIT);
			continue;
		case I_SET: reg[i->r0] = i->imm; break;
		case I_ADD: reg[i->r0] = (int64_t)((uint64_t)reg[i->r1] + (uint64_t)reg[i->r2] + (uint64_t)i->imm); break;
		case I_MUL: reg[i->r0] = (int64_t)((uint64_t)reg[i->r1] * (uint64_t)i->imm); break;
		case I_MIN: reg[i->r0] = MIN(reg[i->r1], i->imm); break;
		case I_MAX: reg[i->r0] = MAX(reg[i->r1], i->imm); break;
		case I_LD: reg[i->r0] = load(i->dtype, opnd_at(o, base, reg)); break;
		case I_ST: {
			int64_t v = (int64_t)((uint64_t)reg[i->r1] + (uint64_t)i->imm);
			memcpy(opnd_at(o, base, reg), &v, dtype_info[i->dtype].bytes);
			continue;
		}
		case I_TABLE: reg[i->r0] = ((const struct prog_table *)i->ref)->v[f->pos]; break;
		case I_LOOP:
			if (!loop(f, i))
				return false;
			continue;
		case I_WHILE:
			for (;;) {
				if (!run_block(f, i, 0))
					return false;
				if (!reg[i->r0])
					break;
				if (!run_block(f, i, 1) || stopped(f))
					return false;
			}
			continue;
		case I_CASE: {
			int64_t k = reg[i->r0];
			if (!run_block(f, i, (uint32_t)(k < 0 || k >= i->nblock ? i->nblock - 1 : k)))
				return false;
			continue;
		}
		case I_COLL: {
			const struct prog_coll *c = i->ref;
			if (!landed(f, UINT64_MAX))
				return false;
			for (uint32_t n = 0; n < i->nopnd; n++)
				ptr[n] = opnd_at(&o[n], base, reg);
			f->err = coll_run(&f->coll, c, (uint32_t)i->imm, ptr, i->r0, NULL);
			if (f->err)
				return failed(f, i);
			if (c->kind == COLL_permute)
				moved(f, c, false);
			continue;
		}
		case I_BEGIN: {
			const struct prog_coll *c = i->ref;
			char **at = f->c->flown + i->block;
			for (uint32_t n = 0; n < i->nopnd; n++)
				at[n] = opnd_at(&o[n], base, reg);
			coll_begin(f->lane, &(struct coll_task){ f->coll, c, (uint32_t)i->imm, at, i->r0, i });
			if (c->kind == COLL_permute)
				moved(f, c, false);
			continue;
		}
		case I_MARK:
			f->c->mark[i->imm] = coll_begun(f->lane);
			continue;
		case I_AWAIT:
			if (!landed(f, i->r0 ? UINT64_MAX : f->c->mark[i->imm]))
				return false;
			continue;
		case I_THEN: {
			if (!landed(f, UINT64_MAX))
				return false;
			f->err = then_run(f, i);
			if (f->err)
				return failed(f, i);
			const struct prog_coll *c = i->ref;
			atomic_fetch_add_explicit(&count[(unsigned)f->d->local % NELEM(count)].followed, c->outer * c->inner, memory_order_relaxed);
			i++;
			continue;
		}
		case I_LEND: {
			if (!landed(f, UINT64_MAX))
				return false;
			f->err = coll_lend(&f->coll, f->c->loan[i->block], (uint32_t)i->imm, opnd_at(o, base, reg));
			if (f->err)
				return failed(f, i);
			continue;
		}
		case I_NEXT:
			if (!(((const struct prog_coll *)i->ref)->kind == COLL_permute ? next : all)(f, i))
				return false;
			continue;
		case I_BACK:
			coll_back(&f->coll, f->c->loan[i->block]);
			continue;
		case I_WAIT:
			if (!landed(f, UINT64_MAX))
				return false;
			f->err = coll_wait(&f->coll, f->c->loan[i->block], (int)i->imm);
			if (f->err)
				return failed(f, i);
			continue;
		case I_CUSTOM: {
			for (uint32_t n = 0; n < i->nopnd; n++)
				ptr[n] = opnd_at(&o[n], base, reg);
			f->err = custom(f, &f->x->custom[i->block]);
			if (f->err)
				return failed(f, i);
			continue;
		}
		}
		reg[0] = 0;
	}
}

struct err *walk(struct frame *f)
{
	f->err = NULL;
	f->c->launches++;
	if (trace_on())
		record_begin(f);
	char *words = f->c->zone + f->x->words;
	for (uint32_t k = 0; k < f->x->nloan; k++) {
		coll_loan_begin(f->c->loan[f->x->loans[k]], words);
		words += coll_loan_words(&f->x->p->coll[f->x->loans[k]]);
	}
	bool ok = run(f, f->x->ins + f->x->start[0]);
	if (f->trace)
		record_end(f);
	if (!ok && !f->err)
		return ERR(ABORTED, "launch aborted");
	return f->err;
}
