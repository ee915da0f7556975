/* What was decided and why: records for who asks.  Nothing here decides. */
#include "impl.h"

void spmd_record_init(struct spmd_record *r)
{
	*r = (struct spmd_record){0};
	arena_init(&r->a);
	arr_push(&r->origin, (struct spmd_origin){0});
	arr_push(&r->value, (struct spmd_value){0});
	arr_push(&r->uneven, (struct spmd_uneven){0});
	arr_push(&r->move, (struct spmd_move){0});
	arr_push(&r->way, (struct spmd_way){0});
	arr_push(&r->comm, (struct spmd_comm){0});
}

void spmd_record_fini(struct spmd_record *r)
{
	arr_free(&r->origin);
	arr_free(&r->value);
	arr_free(&r->uneven);
	arr_free(&r->move);
	arr_free(&r->way);
	arr_free(&r->comm);
	arena_fini(&r->a);
}

/* --- where axes come from ---------------------------------------------------------- */

static uint32_t origin(struct spmd_record *r, enum spmd_source by, const struct ir_op *o, int dim, struct ir_axis_ref axis, uint32_t index, uint32_t from, uint32_t next)
{
	struct spmd_origin x = { .source = (uint8_t)by, .op = o ? o->kind : 0, .loc = o ? o->loc : 0, .dim = dim, .axis = axis, .index = index, .from = from, .next = next };
	arr_push(&r->origin, x);
	return (uint32_t)r->origin.n - 1;
}

uint32_t record_given(struct spmd_record *r, const struct ir_module *m, ir_shard h, enum spmd_source by, const struct ir_op *o, uint32_t index)
{
	uint32_t newest = 0;
	const struct ir_shard_info *s = &m->shard.p[h];
	for (int d = 0; h && d < s->rank; d++)
		for (int i = 0; i < s->dim[d].naxis; i++)
			newest = origin(r, by, o, d, s->dim[d].axis[i], index, 0, newest);
	return newest;
}

uint32_t record_flow(struct spmd_record *r, uint32_t newest, int dim, struct ir_axis_ref axis, const struct ir_op *o, uint32_t from)
{
	return origin(r, SPMD_OP, o, dim, axis, 0, from, newest);
}

bool record_cut_by(const struct ir_module *m, ir_shard h, int dim, struct ir_axis_ref axis)
{
	const struct ir_shard_info *s = &m->shard.p[h];
	bool one = false;
	for (int i = 0; h && dim < s->rank && i < s->dim[dim].naxis; i++)
		one |= ref_equal(s->dim[dim].axis[i], axis);
	return one;
}

uint32_t spmd_origin_of(const struct spmd_record *r, uint32_t newest, int dim, struct ir_axis_ref axis)
{
	uint32_t i = newest;
	while (i && !(r->origin.p[i].dim == dim && ir_axes_overlap(r->origin.p[i].axis, axis)))
		i = r->origin.p[i].next;
	return i;
}

/* --- what moves ------------------------------------------------------------------- */

/* Bytes that some device lacks, at least: of its box under `to` what is not in its box under from. */
static double lacking(struct part *p, ir_type type, ir_shard from, ir_shard to)
{
	const struct ir_type_info *t = ir_type_of(p->m, type);
	int64_t a[IR_MAX_RANK], an[IR_MAX_RANK], b[IR_MAX_RANK], bn[IR_MAX_RANK];
	double most = 0;
	for (int dev = 0; dev < p->ndev; dev++) {
		double all = 1, both = 1;
		spmd_shard_box(p->m, from, dev, t->rank, t->dim, a, an);
		spmd_shard_box(p->m, to, dev, t->rank, t->dim, b, bn);
		for (int d = 0; d < t->rank; d++) {
			all *= (double)bn[d];
			both *= (double)MAX(0, MIN(a[d] + an[d], b[d] + bn[d]) - MAX(a[d], b[d]));
		}
		most = MAX(most, all - both);
	}
	return most * (double)dtype_info[t->dtype].bytes;
}

/* Collectives among b's ops from `first` on that are of no move yet are of this one.  Each gets a place of its own in the source. */
static bool claim(struct spmd_record *r, struct ir_b *b, size_t first, uint32_t move)
{
	bool any = false;
	for (size_t i = first; i < b->fn->op.n; i++) {
		struct ir_op *o = &b->fn->op.p[i];
		if (!(ir_info((enum ir_kind)o->kind)->flags & IR_COLL) || spmd_move_of(r, o->loc))
			continue;
		struct ir_loc_info l = b->m->loc.p[o->loc];
		o->loc = (ir_loc)b->m->loc.n;
		arr_push(&b->m->loc, l);
		arr_push(&r->comm, ((struct spmd_comm){ o->loc, move }));
		any = true;
	}
	return any;
}

/* What made x, seen through what only looks at it otherwise. */
static const struct ir_op *maker(const struct ir_fn *fn, ir_val x)
{
	const struct ir_op *o = ir_def(fn, x);
	while (o && (o->kind == IR_transpose || o->kind == IR_reshape || o->kind == IR_convert || o->kind == IR_negate || o->kind == IR_sharding_constraint))
		o = ir_def(fn, ir_in(fn, o, 0));
	return o;
}

/* What p->why says: which value of what. */
static struct spmd_move move_of(const struct part *p)
{
	const struct why *w = &p->why;
	struct spmd_move m = { .k = -1, .need = -1, .cannot = -1 };
	if (w->o && w->of == w->fn) {
		m.op = w->o->kind;
		m.loc = w->o->loc;
		m.way = w->way;
		m.reason = SPMD_OPERAND;
		for (uint32_t k = 0; k < w->o->nin && m.k < 0; k++)
			m.k = ir_in(w->fn, w->o, k) == w->x ? (int)k : -1;
		if (w->x >= w->o->out && w->x < w->o->out + w->o->nout) {
			m.reason = SPMD_MADE;
			m.k = (int)(w->x - w->o->out);
		}
	} else if (w->of) {                      /* main's parameters are not moved */
		m.inside = w->of->id != 1;
		m.reason = m.inside && w->x <= w->of->nparam ? SPMD_ENTERS : SPMD_LEAVES;
		m.k = m.reason == SPMD_ENTERS ? (int)w->x - 1 : -1;
		for (size_t k = 0; k < w->of->result.n && m.k < 0; k++)
			m.k = w->of->result.p[k] == w->x ? (int)k : -1;
	}
	const struct ir_op *by = w->of && m.reason != SPMD_MADE ? maker(w->of, w->x) : NULL;
	m.maker = by ? by->kind : 0;
	m.maker_loc = by ? by->loc : 0;
	return m;
}

void record_move(struct part *p, struct ir_b *b, size_t first, ir_type local, ir_shard from, ir_shard to)
{
	struct spmd_record *r = p->rec;
	const struct ir_type_info *t = ir_type_of(p->m, local);
	int64_t dim[IR_MAX_RANK];
	if (!claim(r, b, first, (uint32_t)r->move.n))
		return;
	struct spmd_move m = move_of(p);
	for (int d = 0; d < t->rank; d++)
		dim[d] = t->dim[d] * ir_shard_parts(p->m, from, d);
	m.type = ir_tensor(p->m, (enum dtype)t->dtype, t->rank, dim);
	m.from = from;
	m.to = to;
	if (!(from && p->m->shard.p[from].npart) && !(to && p->m->shard.p[to].npart))
		m.need = lacking(p, m.type, from, to);
	if (m.reason == SPMD_OPERAND && m.k >= 0 && m.k < p->why.n) {
		m.cannot = p->why.cannot[m.k];
		m.advice = p->why.advice[m.k];
	}
	arr_push(&r->move, m);
}

void record_rest(struct part *p, struct ir_b *b, size_t first)
{
	const struct ir_op *o = p->why.o;
	bool written = ir_info((enum ir_kind)o->kind)->flags & IR_COLL;
	if (claim(p->rec, b, first, (uint32_t)p->rec->move.n))
		arr_push(&p->rec->move, ((struct spmd_move){ .reason = written ? SPMD_WRITTEN : SPMD_LOCAL, .op = o->kind, .k = -1, .loc = o->loc, .need = -1, .cannot = -1,
		                                             .way = written ? 0 : p->why.way }));
}

struct part_mark part_mark(struct part *p, struct ir_b *b)
{
	const struct spmd_record *r = p->rec;
	struct part_mark m = { .code = ir_mark(b->fn) };
	if (r)
		m = (struct part_mark){ m.code, r->move.n, r->comm.n, r->value.n, r->uneven.n, r->way.n };
	return m;
}

void part_go_back(struct part *p, struct ir_b *b, struct part_mark to)
{
	ir_go_back(b->fn, to.code);
	if (!p->rec)
		return;
	p->rec->move.n = to.move;
	p->rec->comm.n = to.comm;
	p->rec->value.n = to.value;
	p->rec->uneven.n = to.uneven;
	p->rec->way.n = to.way;
}

uint32_t spmd_move_of(const struct spmd_record *r, ir_loc loc)
{
	size_t lo = 0, hi = r->comm.n;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (r->comm.p[mid].loc < loc)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < r->comm.n && loc && r->comm.p[lo].loc == loc ? r->comm.p[lo].move : 0;
}

ir_loc spmd_shared(struct spmd_record *r, struct ir_module *m, const struct ir_op *o, enum spmd_reason why, int k)
{
	if (!r)
		return o->loc;
	struct ir_loc_info l = m->loc.p[o->loc];
	ir_loc at = (ir_loc)m->loc.n;
	arr_push(&m->loc, l);
	arr_push(&r->comm, ((struct spmd_comm){ at, (uint32_t)r->move.n }));
	arr_push(&r->move, ((struct spmd_move){ .reason = (uint8_t)why, .op = o->kind, .k = k, .loc = o->loc, .need = -1, .cannot = -1 }));
	return at;
}

void spmd_move_at(struct spmd_record *r, ir_loc loc, ir_loc to)
{
	uint32_t move = spmd_move_of(r, loc);
	if (move)
		arr_push(&r->comm, ((struct spmd_comm){ to, move }));
}

void spmd_went_with(struct spmd_record *r, ir_loc loc, ir_loc other)
{
	uint32_t first = spmd_move_of(r, loc);
	if (first && spmd_move_of(r, other))
		r->move.p[first].others++;
}
