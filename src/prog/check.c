/* The race and lifetime check: runs the program on all its devices without data.
 *
 * Every device keeps, for each piece of storage (the zone, each argument, each result), which buffer wrote
 * each byte last, and when each lane read and wrote it.  "When" is an epoch of a vector clock over (device,
 * lane) (Fidge 1988, Mattern 1989; used for races as in FastTrack, Flanagan and Freund 2009): a mark, and a
 * collective, hand a lane's clock on; an await, and the same collective on the other members, take it up.
 * An access is in order when its lane's clock has reached the epochs of the accesses that it conflicts with.
 * Peers touch a device's memory only inside a collective that the device takes part in, so conflicts are
 * looked for per device, while the clocks run over all of them.
 *
 * Registers are ranges.  What is loaded from data is the range of its type, cut by min and max; an address
 * must lie inside its buffer for the whole range.  A counted loop runs its first turns, one turn whose
 * counter is the range of all that are left out, and its last; of a branch or a while that depends on data
 * every outcome is followed, and states whose registers are equal, dead ones aside, are joined: a byte that
 * different buffers wrote is lost.  States with other registers (which half of a buffer a carry is in) go on side by side.
 *
 * Devices are run one after the other up to the next collective; it goes on when all who take part are there. */
#include "check.h"

#include <stdlib.h>

enum { TURNS = 5, MOST_WORK = 20000000, MOST_TURNS = 1 << 20 };

struct frame {
	const struct prog_cmd *cmd;      /* the command whose block this is; NULL: the program */
	uint32_t block, pc;
	int step, nstep;                 /* loop: turns; while: cond, body, cond, ..; case: branch */
	struct range turn[TURNS];
	bool skip;                       /* loop: may not run at all */
	bool mid;                        /* loop: in the turn that stands for many */
	struct worlds enter, leave;      /* states before a choice, and after it */
};

/* --- errors ---------------------------------------------------------------- */

static struct err *at(const struct check *ck, int d, const struct prog_cmd *c, struct err *e)
{
	struct str s = {0};
	print_cmd(&s, ck->p, c);
	if (c->site < ck->p->nsite && ck->p->site[c->site].text[0])
		e = err_wrap(e, "device %d, '%s' (%s)", d, s.p, ck->p->site[c->site].text);
	else
		e = err_wrap(e, "device %d, '%s'", d, s.p);
	str_free(&s);
	return e;
}

/* --- commands ---------------------------------------------------------------- */

/* May result r lie where operand j lies?  Only if each element is read before the same is written (what generated code
 * reads, its attributes say), or the kernel knows of it. */
static bool in_place(unsigned kern, const struct prog_kern *k, uint32_t j, uint32_t r)
{
	if (kern == KERN_gen)
		return j < k->nattr && r < 63 && k->attr[j] >> r & 1;
	if (kern == KERN_sort)
		return prog_sort_over(k->nin, (enum dtype)k->v[j].dtype);
	return kern == KERN_elem || kern == KERN_copy || kern == KERN_reduce_precision || kern == KERN_COUNT;
}

static bool updates(unsigned kern)
{
	return kern == KERN_dynamic_update || kern == KERN_scatter || kern == KERN_attention_grad_add;
}

/* Operand 0 is read only where other operands say. */
static bool picks(unsigned kern)
{
	return kern == KERN_dynamic_slice || kern == KERN_gather;
}

static struct err *run_views(struct check *ck, int d, const struct prog_cmd *c, uint32_t nin, uint32_t nout,
                             const struct prog_view *v, const struct reach *r, const struct prog_kern *k)
{
	const struct prog_opnd *o = &ck->p->opnd[c->opnd];
	unsigned kern = k ? k->id : KERN_COUNT;      /* KERN_COUNT: host code */
	for (uint32_t i = 0; i < nin; i++)
		TRY(ck_use(ck, d, c, &o[i], &r[i], false, i == 0 && picks(kern)));
	for (uint32_t i = nin; i < nin + nout; i++) {
		if (updates(kern))
			TRY(ck_use(ck, d, c, &o[i], &r[i], false, true));
		for (uint32_t j = 0; j < i; j++) {
			bool equal;
			if (!ck_meet(ck, &ck->dev[d], &o[j], &r[j], &o[i], &r[i], &equal))
				continue;
			if (j < nin && equal && in_place(kern, k, j, i - nin) && ck_same_view(&v[j], &v[i]))
				continue;
			if (j < nin && kern == KERN_gen && equal && ck_same_view(&v[j], &v[i]))
				return ERR(PRECONDITION, "result b%u is written over operand b%u, of which the code reads other elements later", o[i].buf, o[j].buf);
			return ERR(PRECONDITION, "result b%u overlaps %s b%u", o[i].buf, j < nin ? "operand" : "result", o[j].buf);
		}
	}
	for (uint32_t i = nin; i < nin + nout; i++)
		TRY(ck_use(ck, d, c, &o[i], &r[i], true, false));
	return NULL;
}

static struct err *run_coll(struct check *ck, int d, const struct prog_cmd *c)
{
	const struct prog_coll *k = &ck->p->coll[c->id];
	const struct prog_opnd *o = &ck->p->opnd[c->opnd];
	int64_t n = 1, in = k->outer * k->inner, out = in;
	if (k->kind != COLL_permute) {
		const struct prog_group *g = &ck->p->group[k->group];
		n = g->row[d] < 0 ? 1 : group_size(g, g->row[d]);
	}
	if (k->kind == COLL_all_gather)
		out *= n;
	if (k->kind == COLL_reduce_scatter)
		in *= n;
	if (k->nbox || k->slices) {
		out = k->inner2;
	} else if (k->kind == COLL_all_to_all) {
		in *= n;
		out = k->outer2 * k->inner2 * n;
	}
	int64_t slices = k->slices * SLICE_NUMBERS * (int64_t)sizeof(int64_t);
	struct reach ri = {0, in, 1, {0}, in}, rs = {0, slices, 1, {0}, slices}, ro = {0, out, 1, {0}, out};
	bool over = k->kind == COLL_all_reduce || k->kind == COLL_scan || k->kind == COLL_broadcast || k->kind == COLL_permute || (n == 1 && !k->nbox && !k->slices);
	const uint32_t nin = coll_nin(k);
	for (uint32_t i = 0; i < nin; i++) {
		if (i < k->nin && ck->p->buf[o[i].buf].kind == BUF_LENT)
			return ERR(PRECONDITION, "b%u, which is lent, may not be where peers can read it", o[i].buf);
		TRY(ck_use(ck, d, c, &o[i], i < k->nin ? &ri : &rs, false, i < k->nin && k->slices));
	}
	for (uint32_t i = nin; i < nin + k->nin; i++) {
		for (uint32_t j = 0; j < i; j++) {
			bool equal;
			if (!ck_meet(ck, &ck->dev[d], &o[j], j < k->nin ? &ri : j < nin ? &rs : &ro, &o[i], &ro, &equal))
				continue;
			if (j + nin == i && equal && over)
				continue;
			return ERR(PRECONDITION, "result b%u overlaps %s b%u", o[i].buf, j < nin ? "operand" : "result", o[j].buf);
		}
		if (k->slices)
			TRY(ck_use(ck, d, c, &o[i], &ro, false, true));
		TRY(ck_use(ck, d, c, &o[i], &ro, true, false));
	}
	return NULL;
}

/* Kernel command c goes on part by part while peers may still read parts of the operand of the sum before it.  (What lies over the sum is over an
 * operand of the kernel, or has no value.) */
static struct err *run_then(struct check *ck, int d, const struct prog_cmd *c, const struct prog_kern *k)
{
	const struct prog_coll *red = &ck->p->coll[c[-1].id];
	const struct prog_group *g = &ck->p->group[red->group];
	const struct prog_opnd *z = &ck->p->opnd[c->opnd + k->nin], *x = &ck->p->opnd[c[-1].opnd], *y = x + 1;
	int64_t n = red->outer * red->inner * (red->kind == COLL_reduce_scatter && g->row[d] >= 0 ? group_size(g, g->row[d]) : 1);
	struct reach rx = {0, n, 1, {0}, n};
	bool equal, over = false;
	for (uint32_t i = 0; i < k->nout; i++) {
		if (ck_meet(ck, &ck->dev[d], &z[i], &ck->kern[c->id][k->nin + i], x, &rx, &equal) && !(equal && prog_then_over(ck->p, &c[-1], c, i)))
			return ERR(PRECONDITION, "result b%u lies over b%u, of which peers may read other parts when a part follows", z[i].buf, x->buf);
		over |= prog_same_opnd(&z[i], y);
	}
	return c->imm == THEN_all && !over ? ck_forget(ck, &ck->dev[d], d, y->buf, c->lane) : NULL;
}

static struct range type_range(enum dtype dt)
{
	int bits = dtype_info[dt].bits;
	bool sign = dtype_info[dt].cls == DT_INT;
	if (bits >= 64)
		return (struct range){INT64_MIN, INT64_MAX};
	return sign ? (struct range){-((int64_t)1 << (bits - 1)), ((int64_t)1 << (bits - 1)) - 1}
	            : (struct range){0, ((int64_t)1 << bits) - 1};
}

/* Turns of what was begun inside the first `depth` blocks that the present ones stand for. */
static int64_t times(const struct device *dv, int depth)
{
	int64_t n = 1;
	for (size_t i = (size_t)depth; i < dv->frame.n; i++) {
		const struct frame *f = &dv->frame.p[i];
		bool any = f->cmd && (f->cmd->op == CMD_WHILE || (f->cmd->op == CMD_LOOP && f->cmd->imm < 0));
		int64_t turns = any ? MOST_TURNS : f->mid ? f->turn[f->step].hi - f->turn[f->step].lo + 1 : 1;
		n = n > MOST_TURNS / turns ? MOST_TURNS : n * turns;
	}
	return n;
}

static struct err *run_plain(struct check *ck, int d, const struct prog_cmd *c)
{
	struct device *dv = &ck->dev[d];
	uint32_t *clock = &dv->clock[c->lane * ck->width];
	struct range a, b, r;
	switch (c->op) {
	case CMD_KERN: {
		const struct prog_kern *k = &ck->p->kern[c->id];
		TRY(run_views(ck, d, c, k->nin, k->nout, k->v, ck->kern[c->id], k));
		return c->imm ? run_then(ck, d, c, k) : NULL;
	}
	case CMD_CUSTOM: {
		const struct prog_custom *k = &ck->p->custom[c->id];
		return run_views(ck, d, c, k->nin, k->nout, k->v, ck->custom[c->id], NULL);
	}
	case CMD_COLL: return run_coll(ck, d, c);
	case CMD_LEND: case CMD_NEXT: case CMD_BACK: case CMD_WAIT: return ck_loan(ck, d, c, times(dv, dv->loan[c->id].depth));
	case CMD_SET: r = (struct range){c->imm, c->imm}; break;
	case CMD_ADD:
		TRY(ck_reg(dv, c->reg[1], &a));
		TRY(ck_reg(dv, c->reg[2], &b));
		r = ck_plus(ck_plus(a, b), (struct range){c->imm, c->imm});
		break;
	case CMD_MUL:
		TRY(ck_reg(dv, c->reg[1], &a));
		r = ck_times(a, c->imm);
		break;
	case CMD_MIN:
		TRY(ck_reg(dv, c->reg[1], &a));
		r = (struct range){MIN(a.lo, c->imm), MIN(a.hi, c->imm)};
		break;
	case CMD_MAX:
		TRY(ck_reg(dv, c->reg[1], &a));
		r = (struct range){MAX(a.lo, c->imm), MAX(a.hi, c->imm)};
		break;
	case CMD_LD: {
		int64_t n = dtype_info[c->dtype].bytes;
		struct reach one = {0, n, 1, {0}, n};
		TRY(ck_use(ck, d, c, &ck->p->opnd[c->opnd], &one, false, false));
		r = type_range(c->dtype);
		break;
	}
	case CMD_ST: {
		int64_t n = dtype_info[c->dtype].bytes;
		struct reach one = {0, n, 1, {0}, n};
		TRY(ck_reg(dv, c->reg[1], &a));
		return ck_use(ck, d, c, &ck->p->opnd[c->opnd], &one, true, false);
	}
	case CMD_TABLE: r.lo = r.hi = ck->p->table[c->imm].v[d]; break;
	case CMD_MARK: {
		uint64_t *slot = map_put(&dv->mark, &c->imm, sizeof c->imm);
		if (!*slot) {
			arr_push(&dv->marks, ARENA_NEW(&ck->a, uint32_t, ck->width));
			*slot = dv->marks.n;
		}
		memcpy(dv->marks.p[*slot - 1], clock, sizeof *clock * (size_t)ck->width);
		clock[d * LANES + c->lane]++;
		return NULL;
	}
	default: {  /* CMD_AWAIT */
		uint64_t *slot = map_get(&dv->mark, &c->imm, sizeof c->imm);
		if (!slot)
			return ERR(PRECONDITION, "awaits mark %ld before it is made", (long)c->imm);
		ck_take_up(clock, dv->marks.p[*slot - 1], ck->width);
		return NULL;
	}
	}
	dv->s->reg[c->reg[0]] = r;
	dv->s->set[c->reg[0]] = 1;
	return NULL;
}

/* --- control ------------------------------------------------------------------ */

static void enter_turn(struct device *dv, struct frame *f)
{
	uint16_t r = f->cmd->reg[0];
	dv->mids -= f->mid;
	f->mid = f->turn[f->step].lo != f->turn[f->step].hi;
	dv->mids += f->mid;
	for (int i = 0; i < dv->now.n; i++) {
		dv->now.w[i]->reg[r] = f->turn[f->step];
		dv->now.w[i]->set[r] = 1;
	}
	f->pc = 0;
}

static struct err *start(struct check *ck, struct device *dv, const struct prog_cmd *c)
{
	struct frame f = {.cmd = c};
	struct range n;
	switch (c->op) {
	case CMD_LOOP: {
		if (c->imm >= 0)
			n = (struct range){c->imm, c->imm};
		else
			TRY(ck_reg_any(dv, c->reg[1], &n));
		if (n.hi <= 0)
			return NULL;
		f.skip = n.lo <= 0;
		int64_t last = n.hi - 1, first = dv->loops == 0 ? 3 : dv->loops == 1 ? 2 : 1;
		for (int64_t i = 0; i < first && i <= last; i++)
			f.turn[f.nstep++] = (struct range){i, i};
		bool close = dv->loops == 0 && n.lo == n.hi;
		if (last >= first + close)
			f.turn[f.nstep++] = (struct range){first, last - close};
		if (close && last >= first)
			f.turn[f.nstep++] = (struct range){last, last};
		if (f.skip)
			ck_worlds_join(ck, &f.enter, &dv->now);
		break;
	}
	case CMD_WHILE:
		f.nstep = dv->loops < 2 ? 5 : 3;
		break;
	default:
		TRY(ck_reg_any(dv, c->reg[0], &n));
		f.nstep = (int)c->nblock;
		/* Outside 0 .. nblock-1 takes the last. */
		if (n.lo >= 0 && n.hi < f.nstep) {
			f.step = (int)n.lo;
			f.nstep = (int)n.hi + 1;
		} else if (n.lo >= f.nstep || n.hi < 0) {
			f.step = f.nstep - 1;
		} else if (n.lo > 0) {
			f.step = (int)n.lo;
		}
		if (f.step + 1 < f.nstep)
			ck_worlds_join(ck, &f.enter, &dv->now);
		break;
	}
	f.block = ck->p->sub[c->block + (c->op == CMD_CASE ? (uint32_t)f.step : 0)];
	dv->loops += c->op != CMD_CASE;
	arr_push(&dv->frame, f);
	if (c->op == CMD_LOOP)
		enter_turn(dv, &dv->frame.p[dv->frame.n - 1]);
	return NULL;
}

/* The block of the innermost frame has ended. */
static struct err *finish(struct check *ck, struct device *dv)
{
	struct frame *f = &dv->frame.p[dv->frame.n - 1];
	const struct prog_cmd *c = f->cmd;
	struct range r;
	bool over = ++f->step >= f->nstep;
	switch (c ? c->op : CMD_SET) {
	case CMD_LOOP:
		if (!over) {
			enter_turn(dv, f);
			return NULL;
		}
		dv->mids -= f->mid;
		if (f->skip)
			ck_worlds_join(ck, &dv->now, &f->enter);
		for (int i = 0; i < dv->now.n; i++)
			dv->now.w[i]->set[c->reg[0]] = 0;
		break;
	case CMD_WHILE:
		if (f->step % 2 == 1) {   /* a condition was evaluated */
			TRY(ck_reg_any(dv, c->reg[0], &r));
			if (r.lo <= 0 && r.hi >= 0)
				ck_worlds_join(ck, &f->leave, &dv->now);
			over |= r.lo == 0 && r.hi == 0;
		}
		if (!over) {
			f->block = ck->p->sub[c->block + (uint32_t)(f->step % 2)];
			f->pc = 0;
			return NULL;
		}
		if (f->leave.n)
			ck_worlds_take(ck, &dv->now, &f->leave);
		break;
	case CMD_CASE:
		if (f->enter.n)
			ck_worlds_join(ck, &f->leave, &dv->now);
		if (!over) {
			struct worlds again = {0};
			ck_worlds_join(ck, &again, &f->enter);
			ck_worlds_take(ck, &dv->now, &again);
			f->block = ck->p->sub[c->block + (uint32_t)f->step];
			f->pc = 0;
			return NULL;
		}
		if (f->leave.n)
			ck_worlds_take(ck, &dv->now, &f->leave);
		break;
	default:
		dv->done = true;
	}
	dv->loops -= c && c->op != CMD_CASE;
	ck_worlds_free(ck, &f->enter);
	ck_worlds_free(ck, &f->leave);
	dv->frame.n--;
	if (dv->frame.n)
		ck_worlds_merge(ck, &dv->now, ck->pos[f[-1].block][f[-1].pc]);
	return NULL;
}

static int team_size(const struct check *ck, const struct prog_cmd *c, int d)
{
	const int32_t *team = ck->team[c->id];
	int n = 0;
	for (int i = 0; i < ck->ndev; i++)
		n += team[d] >= 0 && team[i] == team[d];
	return n;
}

/* Device d runs until it is done or stands at a collective with others. */
static struct err *advance(struct check *ck, int d)
{
	struct device *dv = &ck->dev[d];
	while (!dv->done && ck->work < MOST_WORK) {
		struct frame *f = &dv->frame.p[dv->frame.n - 1];
		const struct prog_block *b = &ck->p->block[f->block];
		struct err *e = NULL;
		const struct prog_cmd *c = f->cmd;
		ck->work += (uint64_t)dv->now.n;
		if (f->pc == b->n) {
			e = finish(ck, dv);
		} else {
			c = &b->cmd[f->pc++];
			if (c->op == CMD_LOOP || c->op == CMD_WHILE || c->op == CMD_CASE) {
				e = start(ck, dv, c);
			} else {
				bool clocks = c->op == CMD_MARK || c->op == CMD_AWAIT;    /* of the device, whatever its registers are */
				for (int i = 0; !e && i < (clocks ? 1 : dv->now.n); i++) {
					dv->s = dv->now.w[i];
					e = run_plain(ck, d, c);
				}
				if (!e && (c->op == CMD_COLL ? team_size(ck, c, d) > 1 : is_loan(c->op) && ck_loan_meets(ck, d, c))) {
					dv->wait = c;
					return NULL;
				}
			}
		}
		if (e)
			return at(ck, d, c, e);
	}
	return NULL;
}

/* All of d's team stand at its collective: they hand their clocks round and go on; or what d lent has come back. */
static bool pass(struct check *ck, int d)
{
	const struct prog_cmd *c = ck->dev[d].wait;
	const int32_t *team = ck->team[c->id];
	if (c->op == CMD_WAIT) {
		if (ck_loan_owed(ck, d, c) >= 0)
			return false;
		ck_loan_back(ck, d, c);
		ck->dev[d].wait = NULL;
		return true;
	}
	for (int i = 0; i < ck->ndev; i++)
		if (team[i] == team[d] && ck->dev[i].wait != c)
			return false;
	uint32_t *all = mem_alloc(sizeof *all * (size_t)ck->width), *before = mem_alloc(sizeof *all * (size_t)ck->width * (size_t)ck->ndev);
	for (int i = 0; i < ck->ndev; i++)
		if (team[i] == team[d]) {
			memcpy(before + (int64_t)i * ck->width, &ck->dev[i].clock[c->lane * ck->width], sizeof *before * (size_t)ck->width);
			ck_take_up(all, &ck->dev[i].clock[c->lane * ck->width], ck->width);
		}
	for (int i = 0; i < ck->ndev; i++) {
		if (team[i] != team[d])
			continue;
		uint32_t *clock = &ck->dev[i].clock[c->lane * ck->width];
		ck->dev[i].wait = NULL;
		if (c->op != CMD_COLL) {
			ck_loan_pass(ck, i, c, before);
			continue;
		}
		ck_take_up(clock, all, ck->width);
		clock[i * LANES + c->lane]++;
	}
	free(before);
	free(all);
	return true;
}

static struct err *stuck(const struct check *ck)
{
	for (int d = 0; d < ck->ndev; d++) {
		const struct prog_cmd *c = ck->dev[d].wait;
		if (!c)
			continue;
		for (int i = 0; i < ck->ndev; i++) {
			if (c->op == CMD_WAIT ? ck_loan_owed(ck, d, c) != i : ck->team[c->id][i] != ck->team[c->id][d] || ck->dev[i].wait == c)
				continue;
			struct err *e;
			if (ck->dev[i].wait) {
				struct str s = {0};
				print_cmd(&s, ck->p, ck->dev[i].wait);
				e = ERR(PRECONDITION, "waits for device %d, which stands at '%s'", i, s.p);
				str_free(&s);
			} else {
				e = ERR(PRECONDITION, "waits for device %d, which has ended", i);
			}
			return at(ck, d, c, e);
		}
	}
	return ERR(INTERNAL, "the check cannot go on");
}

/* --- before and after ----------------------------------------------------------- */

static void space_init(struct space *s, int64_t size, uint32_t owner)
{
	if (size > 0)
		arr_push(&s->seg, ((struct seg){.hi = size, .owner = owner}));
}

static int32_t root(int32_t *t, int32_t i)
{
	while (t[i] != i)
		i = t[i] = t[t[i]];
	return i;
}

/* Who must meet: the row of the group, or everyone that a permute links. */
static struct err *teams(struct check *ck, uint32_t i)
{
	const struct prog *p = ck->p;
	const struct prog_coll *c = &p->coll[i];
	int32_t *t = ck->team[i] = ARENA_NEW(&ck->a, int32_t, p->ndev);
	if (c->redop == RED_fn && !c->expr && (c->kind == COLL_all_reduce || c->kind == COLL_reduce_scatter))
		return ERR(PRECONDITION, "collective %u reduces by a function that is not given", i);
	if (c->kind != COLL_permute) {
		const struct prog_group *g = &p->group[c->group];
		bool sized = !c->nbox && (c->kind == COLL_all_gather || c->kind == COLL_reduce_scatter || c->kind == COLL_all_to_all);
		for (int r = 1; sized && r < g->nrow; r++)
			if (group_size(g, r) != group_size(g, 0))
				return ERR(PRECONDITION, "collective %u has a group whose rows differ in length", i);
		for (int d = 0; d < p->ndev; d++)
			t[d] = g->row[d];
		return NULL;
	}
	const int64_t *from = p->table[c->pairs].v, *to = p->table[c->pairs + 1].v;
	for (int d = 0; d < p->ndev; d++)
		if ((from[d] >= 0 && to[from[d]] != d) || (to[d] >= 0 && from[to[d]] != d))
			return ERR(PRECONDITION, "collective %u pairs position %d with one that does not pair with it", i, d);
	for (int d = 0; d < p->ndev; d++)
		t[d] = d;
	for (int d = 0; d < p->ndev; d++)
		if (to[d] >= 0)
			t[root(t, d)] = root(t, (int32_t)to[d]);
	for (int d = 0; d < p->ndev; d++)
		t[d] = root(t, d);
	return NULL;
}

static struct err *array_bytes(const struct prog_arg *a, const char *what, uint32_t i)
{
	int64_t n = dtype_info[a->dtype].bytes;
	for (int d = 0; d < a->rank; d++)
		n *= a->dim[d];
	return n > a->bytes ? ERR(PRECONDITION, "%s %u has %ld bytes, its shape needs %ld", what, i, (long)a->bytes, (long)n) : NULL;
}

static struct err *prepare(struct check *ck)
{
	const struct prog *p = ck->p;
	if (p->comm_hash && p->comm_hash != prog_comm_hash(p))
		return ERR(PRECONDITION, "the hash of the communication does not fit the commands");
	for (uint32_t i = 0; i < p->narg; i++)
		TRY(array_bytes(&p->arg[i], "argument", i));
	for (uint32_t i = 0; i < p->nres; i++)
		TRY(array_bytes(&p->res[i], "result", i));
	ck->kern = ARENA_NEW(&ck->a, struct reach *, p->nkern);
	for (uint32_t i = 0; i < p->nkern; i++) {
		const struct prog_kern *k = &p->kern[i];
		ck->kern[i] = ARENA_NEW(&ck->a, struct reach, kern_nopnd(k));
		for (uint32_t j = 0; j < kern_nopnd(k); j++) {
			ck_reach(&k->v[j], &ck->kern[i][j]);
			if (j >= k->nin && !ck_apart(&k->v[j]))
				return ERR(PRECONDITION, "kernel %u %s: elements of result %u overlap", i, prog_kern_name[k->id], j - k->nin);
		}
	}
	ck->custom = ARENA_NEW(&ck->a, struct reach *, p->ncustom);
	for (uint32_t i = 0; i < p->ncustom; i++) {
		ck->custom[i] = ARENA_NEW(&ck->a, struct reach, custom_nopnd(&p->custom[i]));
		for (uint32_t j = 0; j < custom_nopnd(&p->custom[i]); j++)
			ck_reach(&p->custom[i].v[j], &ck->custom[i][j]);
	}
	ck->team = ARENA_NEW(&ck->a, int32_t *, p->ncoll);
	for (uint32_t i = 0; i < p->ncoll; i++) {
		TRY(teams(ck, i));
		ck->loans |= p->coll[i].hops > 0;
	}
	ck->nlane = 1;
	for (uint32_t b = 0; b < p->nblock; b++)
		for (uint32_t i = 0; i < p->block[b].n; i++)
			ck->nlane = MAX(ck->nlane, p->block[b].cmd[i].lane + 1);
	if (ck->nlane > LANES)
		return ERR(UNIMPLEMENTED, "a program of %d lanes: the check knows %d", ck->nlane, LANES);

	uint32_t *first = ARENA_NEW(&ck->a, uint32_t, p->narg), *taken = ARENA_NEW(&ck->a, uint32_t, p->narg);
	ck->owner = ARENA_NEW(&ck->a, uint32_t, p->nbuf);
	for (uint32_t i = 0; i < p->nbuf; i++) {
		const struct prog_buf *b = &p->buf[i];
		ck->owner[i] = i;
		if (b->kind == BUF_ARG) {
			if (!first[b->index])
				first[b->index] = i + 1;
			ck->owner[i] = first[b->index] - 1;
		} else if (b->kind == BUF_OUT && b->alias >= 0) {
			uint32_t a = p->buf[b->alias].index;
			if (p->arg[a].alias != (int32_t)b->index && p->arg[a].alias != -2)
				return ERR(PRECONDITION, "buffer b%u takes the storage of argument %u, which is not donated to result %u", i, a, b->index);
			if (taken[a])
				return ERR(PRECONDITION, "buffers b%u and b%u take the storage of argument %u", taken[a] - 1, i, a);
			taken[a] = i + 1;
		}
	}
	ck_lives(ck);
	/* Without communication and tables all devices do the same. */
	ck->ndev = p->ncoll || p->ntable ? p->ndev : 1;
	ck->width = ck->ndev * LANES;
	ck->nspace = 1 + (int)p->narg + (int)p->nres;
	ck->dev = ARENA_NEW(&ck->a, struct device, ck->ndev);
	for (int d = 0; d < ck->ndev; d++) {
		struct device *dv = &ck->dev[d];
		dv->s = dv->now.w[dv->now.n++] = mem_alloc(sizeof *dv->s);
		dv->s->reg = mem_alloc(sizeof *dv->s->reg * p->nreg);
		dv->s->set = mem_alloc(p->nreg);
		dv->s->space = mem_alloc(sizeof *dv->s->space * (size_t)ck->nspace);
		space_init(&dv->s->space[0], p->zone + p->far, NONE);
		for (uint32_t i = 0; i < p->narg; i++)
			space_init(&dv->s->space[1 + i], p->arg[i].bytes, first[i] ? first[i] - 1 : NONE);
		for (uint32_t i = 0; i < p->nres; i++)
			space_init(&dv->s->space[1 + p->narg + i], p->res[i].bytes, NONE);
		if (ck->loans) {
			dv->s->held = mem_alloc(p->ncoll);
			dv->s->hop = mem_alloc(sizeof *dv->s->hop * p->nbuf);
			dv->loan = ARENA_NEW(&ck->a, struct loan_of, p->ncoll);
			for (uint32_t i = 0; i < p->ncoll; i++)
				dv->loan[i].clock = p->coll[i].hops ? ARENA_NEW(&ck->a, uint32_t, ck->width) : NULL;
		}
		dv->clock = ARENA_NEW(&ck->a, uint32_t, LANES * ck->width);
		for (int l = 0; l < LANES; l++)
			dv->clock[l * ck->width + d * LANES + l] = 1;
		arr_push(&dv->frame, (struct frame){.nstep = 1});
	}
	return NULL;
}

/* Every byte of every result has its value. */
static struct err *results(struct check *ck, int d)
{
	const struct prog *p = ck->p;
	uint8_t *there = ARENA_NEW(&ck->a, uint8_t, p->nres);
	for (uint32_t i = 0; i < p->nbuf; i++) {
		const struct prog_buf *b = &p->buf[i];
		if (b->kind != BUF_OUT)
			continue;
		there[b->index] = 1;
		struct access x = {.buf = i, .many = true};
		for (int k = 0; k < ck->dev[d].now.n; k++) {
			ck->dev[d].s = ck->dev[d].now.w[k];
			struct err *e = ck_touch(ck, &ck->dev[d], d, 0, b->size, &x);
			if (e)
				return err_wrap(e, "device %d, at the end: result %u", d, b->index);
		}
	}
	for (int k = 0; k < ck->dev[d].now.n; k++) {
		struct err *e = ck_loan_end(ck, ck->dev[d].now.w[k]);
		if (e)
			return err_wrap(e, "device %d, at the end", d);
	}
	for (uint32_t i = 0; i < p->nres; i++)
		if (!there[i] && p->res[i].bytes)
			return ERR(PRECONDITION, "result %u has no buffer", i);
	return NULL;
}

static struct err *run(struct check *ck)
{
	TRY(prepare(ck));
	for (;;) {
		int done = 0;
		bool moved = false;
		for (int d = 0; d < ck->ndev; d++) {
			if (!ck->dev[d].done && !ck->dev[d].wait) {
				TRY(advance(ck, d));
				moved = true;
			}
			done += ck->dev[d].done;
		}
		for (int d = 0; d < ck->ndev; d++)
			if (ck->dev[d].wait)
				moved |= pass(ck, d);
		if (ck->work >= MOST_WORK) {
			log_line(LOG_WARN, "check of '%s' stopped after %d commands", ck->p->name, MOST_WORK);
			return NULL;
		}
		if (done == ck->ndev)
			break;
		if (!moved)
			return stuck(ck);
	}
	for (int d = 0; d < ck->ndev; d++)
		TRY(results(ck, d));
	return NULL;
}

struct err *prog_check(const struct prog *p)
{
	TRY(valid_prog(p));
	struct check ck = {.p = p};
	arena_init(&ck.a);
	struct err *e = run(&ck);
	for (int d = 0; ck.dev && d < ck.ndev; d++) {
		struct device *dv = &ck.dev[d];
		for (size_t i = 0; i < dv->frame.n; i++) {
			ck_worlds_free(&ck, &dv->frame.p[i].enter);
			ck_worlds_free(&ck, &dv->frame.p[i].leave);
		}
		arr_free(&dv->frame);
		arr_free(&dv->marks);
		map_free(&dv->mark);
		ck_worlds_free(&ck, &dv->now);
	}
	arena_fini(&ck.a);
	return e;
}
