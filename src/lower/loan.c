/* Permutes that are read where they lie: which ones; their commands (prog.h: loans), and those of all_gathers that are (gather.c).
 *
 * A permute of enough bytes is lent unless its result has to be in memory of its own: because it is a result of the function, or what a
 * collective reads, or comes from another host (lane.c: such a one is under way beside computing).  Permutes by the same links of what was permuted are one loan, read from further away.  What is lent stays as it is up to
 * the last reader of what comes instead, on all devices at the same place of the program, goes back behind that, and is awaited
 * before something writes it, before the next communication or block if its storage is wanted for other things, at the latest at the
 * end of its block.
 *
 * A carry of a loop that goes round has no storage of its own:
 *   round  each turn hands on what the turn got, by its links once or several times: it is lent once, before the loop, and each turn reads it so many links further away;
 *   made   each turn hands on what it makes: that is in two halves that take turns, and the next turn reads the neighbour's.
 * A carry that a turn reads from the neighbour before it makes its own next value is in two halves in the same way (flow.c): what was
 * lent in the turn before must be back when its half is written, no sooner.
 *
 * All this is decided by the ops and the hosts alone, not by what becomes of them: it is the same in all processes. */
#include "lw.h"

#include <assert.h>
#include <limits.h>

enum { ONCE = 16 << 10, ROUND = 1 << 10 };     /* bytes that are worth it: of a permute; of one that each turn of a loop has */

/* --- what permutes link ---------------------------------------------------------- */

struct err *lw_permute(struct lw *w, const struct ir_fn *fn, const struct ir_op *o, struct prog_coll *c)
{
	int n, ndev = w->p->ndev;
	const int64_t *p = ir_attrs(fn, o, AT_pairs, &n);
	c->kind = COLL_permute;
	c->pairs = lw_table_new(w);
	lw_table_new(w);
	int64_t *from = w->table.p[c->pairs].v, *to = w->table.p[c->pairs + 1].v;
	for (int d = 0; d < ndev; d++)
		from[d] = to[d] = -1;
	for (int k = 0; k + 1 < n; k += 2) {
		if (p[k] < 0 || p[k] >= ndev || p[k + 1] < 0 || p[k + 1] >= ndev)
			return ERR(INVALID, "collective_permute names device %lld of %d", (long long)MAX(p[k], p[k + 1]), ndev);
		from[p[k + 1]] = p[k];
		to[p[k]] = p[k + 1];
	}
	return NULL;
}

/* Are all that permute o names there, and on one host; does every device receive something? */
static bool links(const struct lw *w, const struct ir_fn *fn, const struct ir_op *o, bool *closed)
{
	int n, ndev = w->p->ndev;
	const int64_t *p = ir_attrs(fn, o, AT_pairs, &n);
	for (int k = 0; k < n; k++)
		if (p[k] < 0 || p[k] >= ndev)
			return false;
	*closed = n == 2 * ndev;             /* nobody receives twice */
	return w->opts->plan->ring < PLAN_RING_SENT && !spmd_between_hosts(w->opts->plan, w->m, fn, o);
}

static bool same_links(const struct ir_fn *fn, const struct ir_op *a, const struct ir_op *b)
{
	int n, m;
	const int64_t *p = ir_attrs(fn, a, AT_pairs, &n), *q = ir_attrs(fn, b, AT_pairs, &m);
	return n == m && !memcmp(p, q, sizeof *p * (size_t)n);
}

/* The value whose bytes v has, all of them in the same order. */
static ir_val whole(const struct ir_fn *fn, ir_val v)
{
	for (const struct ir_op *o; (o = ir_def(fn, v)) && (o->kind == IR_reshape || o->kind == IR_optimization_barrier || o->kind == IR_sharding_constraint);)
		v = ir_in(fn, o, v - o->out);
	return v;
}

static int64_t bytes_of(const struct lw *w, const struct ir_fn *fn, ir_val v) { return ir_vtype(w->m, fn, v)->bytes; }

struct lent_key { const struct ir_fn *fn; uint64_t v; };      /* of struct lower_opts.lent: no padding */

/* --- which -------------------------------------------------------------------------- */

static struct loan *loan_new(struct lw *w, struct frame *f, const struct ir_fn *fn, ir_val y, enum loan_kind kind, ir_val x, int last)
{
	struct loan *l = ARENA_NEW(w->tmp, struct loan, 1);
	*l = (struct loan){ .kind = kind, .fn = fn, .y = y, .x = x, .hops = 1, .last = last, .other = -1 };
	l->next = f->loan;
	return f->loan = l;
}

/* What y comes from, n permutes by the same links before it, *n at most; how many there are. */
static ir_val before(const struct ir_fn *fn, ir_val y, int *n)
{
	const struct ir_op *first = ir_def(fn, y), *o = first;
	int k = 0;
	for (; k < *n && o && o->kind == IR_collective_permute && same_links(fn, first, o); k++, o = ir_def(fn, y))
		y = whole(fn, ir_in(fn, o, y - o->out));
	*n = k;
	return y;
}

/* How carry x of a loop goes round: kind, y and z, which its permute makes and reads, and step, the op of the body behind which it goes on,
 * INT_MAX: its results.  What it was and what it becomes may be read at once only if both are lent (two). */
static bool goes_round(const struct lw *w, const struct ir_loop *l, const struct ir_loop_operand *x, const ir_val *root, const int *last, struct loan *out)
{
	const struct ir_fn *g = l->body;
	bool closed;
	ir_val y = g->result.p[x->result];
	const struct ir_op *o = ir_def(g, y);
	if (!x->param || bytes_of(w, g, y) < ROUND || !links(w, g, o, &closed) || !closed)
		return false;
	int at = (int)(o - g->op.p);
	out->y = y;
	out->links = INT_MAX;
	out->z = before(g, y, &out->links);
	out->step = MAX(at, last[x->param]);
	out->kind = out->z == x->param ? LOAN_round : LOAN_made;
	if (out->kind == LOAN_made)
		out->z = before(g, y, &(int){ out->links = 1 });
	int again = 0;
	for (size_t k = 0; k < g->result.n && out->step == INT_MAX; k++)
		again += root[g->result.p[k]] == y;
	out->two = again > 1;
	for (int i = at + 1; i < (int)g->op.n && i <= out->step; i++)
		for (uint32_t k = 0; k < g->op.p[i].nin && !lw_is_alias(w, g, &g->op.p[i]); k++)
			out->two |= root[ir_in(g, &g->op.p[i], k)] == y;
	if (out->kind == LOAN_made)
		return !out->two && root[out->z] == out->z && ir_def(g, out->z);
	if (out->two)
		out->step = INT_MAX;
	return true;
}

/* Is l a ring's that goes round in fn?  It is of the frame around, and is shown in this one. */
static bool around(const struct ir_fn *fn, const struct loan *l) { return l->kind > LOAN_all && l->fn == fn; }

/* What of v's bytes is lent is to be back behind this op of f: when they go on to the next device.  What v shows of others is lent as long, too. */
static int until(const struct frame *f, ir_val v)
{
	while (f->ring) {
		ir_val root = f->root[v];
		const struct loan *by = f->lent[root];
		for (const struct loan *l = f->ring; l; l = l->peer)
			if (l->param == root)
				return l->step;
		if (!by || around(f->fn, by))
			break;
		v = by->x;
	}
	return INT_MAX;
}

static void plan_loop(struct lw *w, struct frame *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	const struct ir_loop l = ir_loop_view(w->tmp, w->m, f->fn, o);
	ir_val *root = NULL;
	int *last = NULL;
	for (int k = 0; k < l.n; k++) {
		const struct ir_loop_operand *x = &l.x[k];
		const struct ir_op *p = x->role == ROLE_CARRY && x->result >= 0 ? ir_def(l.body, l.body->result.p[x->result]) : NULL;
		struct loan is;
		if (!p || p->kind != IR_collective_permute)
			continue;
		if (!root) {
			root = ARENA_NEW(w->tmp, ir_val, l.body->val.n);
			last = ARENA_NEW(w->tmp, int, l.body->val.n);
			lw_roots(w, l.body, root, last);
		}
		if (!goes_round(w, &l, x, root, last, &is))
			continue;
		ir_val after = o->out + (uint32_t)x->result;
		bool shown = false;                  /* another carry goes on with the same: that one shows it, this one has a copy */
		for (const struct loan *y = f->loan; y; y = y->next)
			for (int a = 0; y->kind > LOAN_all && y->loop == i && a < y->links; a++)
				for (int b = 0; b < is.links; b++)
					shown |= before(l.body, y->y, &(int){ a }) == before(l.body, is.y, &(int){ b });
		int end = until(f, x->v);
		if (shown || i > end)
			continue;
		bool own = f->last[after] > end;     /* what comes of it is wanted for longer than it may be lent */
		struct loan *n = loan_new(w, f, l.body, is.y, is.kind, x->v, own ? i : MAX(i, f->last[after]));
		if (!(n->own = own))
			f->lent[after] = n;
		n->loop = i;
		n->operand = k;
		n->param = x->param;
		n->z = is.z;
		n->step = is.step;
		n->two = is.two;
		n->links = is.links;
		if (is.kind == LOAN_round)
			n->hops = (int)MIN(l.trip >= 0 && l.trip < w->p->ndev ? MAX(l.trip, 1) * is.links : INT_MAX, w->p->ndev - 1);
	}
}

/* What is worth a loan: of permutes those whose results are read by no collective that needs them where peers can see them. */
static bool *worth(struct lw *w, const struct frame *f)
{
	const struct ir_fn *fn = f->fn;
	bool *read = ARENA_NEW(w->tmp, bool, fn->val.n), *lend = lw_gathers(w, f), closed;
	for (size_t i = fn->op.n; i-- > 0;) {
		const struct ir_op *o = &fn->op.p[i];
		for (uint32_t k = 0; k < o->nout && ir_info(o->kind)->flags & IR_COLL; k++) {
			ir_val y = o->out + k;
			bool kept = f->last[y] < 0 || f->last[y] == INT_MAX || read[y];
			ir_val x = f->root[ir_in(fn, o, k)];
			lend[y] |= o->kind == IR_collective_permute && (f->lent[y] || (bytes_of(w, fn, y) >= (x <= fn->nparam ? ROUND : ONCE) && !kept && links(w, fn, o, &closed)));
			read[x] |= !lend[y];
		}
	}
	return lend;
}

static void plan_all(struct lw *w, struct frame *f, const struct ir_op *o, uint32_t k)
{
	ir_val y = o->out + k, x = ir_in(f->fn, o, k);
	if (f->last[y] <= until(f, x))
		f->lent[y] = loan_new(w, f, f->fn, y, LOAN_all, x, f->last[y]);
}

static void plan_once(struct lw *w, struct frame *f, const struct ir_op *o, uint32_t k, int *hop)
{
	ir_val y = o->out + k, x = ir_in(f->fn, o, k), v = whole(f->fn, x);
	struct loan *l = f->lent[v];
	if (f->last[y] > until(f, x))
		return;
	if (!l || l->kind != LOAN_once || !same_links(f->fn, ir_def(f->fn, l->y), o)) {
		l = loan_new(w, f, f->fn, y, LOAN_once, x, -1);
		hop[y] = 1;
	} else
		hop[y] = MIN(hop[v] + 1, w->p->ndev - 1);
	l->hops = MAX(l->hops, hop[y]);
	l->last = MAX(l->last, f->last[y]);
	f->lent[y] = l;
}

/* An all_gather: its group, as a ring. */
static void ring(struct lw *w, struct loan *l, const struct ir_op *o, struct prog_coll *c)
{
	c->kind = COLL_all_gather;
	c->group = lw_group(w, (ir_group)ir_attr(l->fn, o, AT_group));
	const struct prog_group *g = &w->group.p[c->group];
	c->hops = (uint16_t)(g->ncol - 1);
	c->pairs = lw_table_new(w);
	lw_table_new(w);
	int64_t *from = w->table.p[c->pairs].v, *to = w->table.p[c->pairs + 1].v;
	for (int d = 0; d < w->p->ndev; d++) {
		const int64_t *row = g->id + (int64_t)g->row[d] * g->ncol;
		from[d] = row[(g->rank[d] + g->ncol - 1) % g->ncol];
		to[d] = row[(g->rank[d] + 1) % g->ncol];
	}
	l->closed = true;
}

/* The collective that a loan is to the program. */
static void declare(struct lw *w, struct loan *l)
{
	const struct ir_op *o = ir_def(l->fn, l->y);
	const struct ir_type_info *t = ir_vtype(w->m, l->fn, l->kind == LOAN_all ? l->x : l->y);
	struct prog_coll c = { .nin = 1, .dtype = t->dtype, .redop = RED_add, .outer = 1, .inner = t->bytes, .outer2 = 1, .inner2 = t->bytes, .hops = (uint16_t)l->hops };
	if (l->kind == LOAN_all)
		ring(w, l, o, &c);
	else {
		links(w, l->fn, o, &l->closed);
		err_free(lw_permute(w, l->fn, o, &c));       /* its links are there */
	}
	arr_push(&w->coll, c);
	l->coll = (uint32_t)w->coll.n - 1;
}

void lw_loans_plan(struct lw *w, struct frame *f)
{
	const struct ir_fn *fn = f->fn;
	bool any = false;
	for (size_t i = 0; i < fn->op.n; i++)
		any |= fn->op.p[i].kind == IR_collective_permute || fn->op.p[i].kind == IR_all_gather || fn->op.p[i].kind == IR_loop;
	if (w->p->ndev < 2 || !any)
		return;
	f->lent = f->lent ? f->lent : ARENA_NEW(w->tmp, struct loan *, fn->val.n);
	lw_pieces_plan(w, f);
	const bool *lend = worth(w, f);
	int *hop = ARENA_NEW(w->tmp, int, fn->val.n);
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		if (o->kind == IR_loop)
			plan_loop(w, f, (int)i);
		for (uint32_t k = 0; k < o->nin && (o->kind == IR_collective_permute || o->kind == IR_all_gather); k++)
			if (lend[o->out + k] && !f->lent[o->out + k]) {
				if (o->kind == IR_all_gather)
					plan_all(w, f, o, k);
				else
					plan_once(w, f, o, k, hop);
			}
	}
	for (struct loan *l = f->loan; l; l = l->next) {     /* the last one first: what is lent on goes back after what it is lent by */
		ir_val x = f->root[l->x];
		struct loan *by = f->lent[x];
		if (by && by != l && !around(fn, by))
			by->last = MAX(by->last, l->last);
		f->last[x] = MAX(f->last[x], l->last < INT_MAX ? l->last + 1 : INT_MAX);
		declare(w, l);
	}
	for (ir_val v = 1; v < fn->val.n && w->opts->lent; v++)
		if (f->lent[v])
			*map_put(w->opts->lent, &(struct lent_key){ fn, v }, sizeof(struct lent_key)) = 1;
}

bool lower_is_lent(const struct map *lent, const struct ir_fn *fn, ir_val v)
{
	return map_get(lent, &(struct lent_key){ fn, v }, sizeof(struct lent_key)) != NULL;
}

void lw_rings(struct lw *w, struct frame *f, int i, struct frame *body)
{
	for (struct loan *l = f->loan; l; l = l->next)
		if (l->kind > LOAN_all && l->loop == i) {
			body->lent = body->lent ? body->lent : ARENA_NEW(w->tmp, struct loan *, body->fn->val.n);
			for (int k = 0; k < l->links; k++)
				body->lent[before(body->fn, l->y, &(int){ k })] = l;
			l->peer = body->ring;
			body->ring = l;
			if (l->kind == LOAN_made)            /* peers read it in the next turn */
				body->last[body->root[l->z]] = INT_MAX;
		}
}

/* --- commands ------------------------------------------------------------------------- */

static void lend(struct lw *w, struct loan *l, struct place *x)
{
	lw_meets(w, 1, 1, &x);
	w->buf.p[w->store.p[x->store].buf].bits |= BUF_PEER;
	lw_opnds(w, lw_loan_cmd(w, l, CMD_LEND, 0), 1, &x);
	l->now = true;
}

static void next(struct lw *w, struct loan *l, int by, struct place *a, struct place *b)
{
	lw_meets(w, 1, 1, &a);
	lw_opnds(w, lw_loan_cmd(w, l, CMD_NEXT, by), 2, (struct place *[]){ a, b });
}

static void back(struct lw *w, struct loan *l)
{
	for (int k = 0; k < l->nshown; k++)
		lw_loans_write(w, l->shown[k]);      /* who was lent it has read it */
	lw_loan_cmd(w, l, CMD_BACK, 0);
	lw_touch(w, l->shown, l->nshown);
	l->held = false;
	l->owed = true;
}

static void opened(struct lw *w, struct loan *l, int in)
{
	if (!l->nin)
		arr_push(&w->open, l);
	l->in[l->nin++] = in;
	l->held = true;
}

/* A buffer for what l lends, of type t; halves: T goes on in it. */
static struct place *shown_at(struct lw *w, struct loan *l, const struct ir_type_info *t, bool halves)
{
	int64_t half = (t->bytes + 63) & ~(int64_t)63;
	int s = lw_store_new(w, BUF_LENT, halves ? 2 * half : t->bytes, l->coll);
	w->store.p[s].far = l->closed;
	if (l->nshown == l->capshown) {
		int *more = ARENA_NEW(w->tmp, int, l->capshown = 2 * l->nshown + 2);
		if (l->nshown)
			memcpy(more, l->shown, sizeof *more * (size_t)l->nshown);
		l->shown = more;
	}
	l->shown[l->nshown++] = s;
	return lw_place_new(w, s, t->dtype, t->rank, t->dim);
}

bool lw_is_lent(const struct lw *w, const struct place *p) { return w->buf.p[w->store.p[p->store].buf].kind == BUF_LENT; }

/* A place whose bytes peers can see: p, or a copy. */
static struct place *for_peers(struct lw *w, struct place *p)
{
	const struct prog_buf *b = &w->buf.p[w->store.p[p->store].buf];
	const char *memory = b->kind == BUF_ARG ? w->p->arg[b->index].memory_kind : b->kind == BUF_OUT ? w->p->res[b->index].memory_kind : NULL;
	return memory && strcmp(memory, "device") ? lw_copy(w, p) : p;
}

/* What all of the group lend, as one value: its place is that of the first part, with the parts' strides. */
static struct place *lend_all(struct lw *w, struct frame *f, struct loan *l)
{
	const struct ir_type_info *t = ir_vtype(w->m, f->fn, l->x), *rt = ir_vtype(w->m, f->fn, l->y);
	int n = w->coll.p[l->coll].hops + 1;
	struct place **pl = ARENA_NEW(w->tmp, struct place *, n + 1), *p = f->at[l->x];
	lw_loans_settle(w, f);
	pl[0] = for_peers(w, lw_place_block(p) ? p : lw_dense(w, f, l->x));
	lend(w, l, pl[0]);
	opened(w, l, pl[0]->store);
	for (int k = 1; k <= n; k++)
		pl[k] = shown_at(w, l, t, false);
	lw_opnds(w, lw_loan_cmd(w, l, CMD_NEXT, 1), n + 1, pl);
	p = lw_place_like(w, pl[0]);
	*p = (struct place){ .store = pl[1]->store, .rank = rt->rank, .dtype = rt->dtype, .dim = rt->dim, .stride = p->stride };
	return p;
}

struct place *lw_loan(struct lw *w, struct frame *f, int i, uint32_t k)
{
	const struct ir_op *o = &f->fn->op.p[i];
	struct loan *l = f->lent[o->out + k];
	const struct ir_type_info *t = ir_vtype(w->m, f->fn, o->out + k);
	if (l->kind == LOAN_all)
		return lend_all(w, f, l);
	if (l->kind != LOAN_once) {
		struct place *to = o->out + k != l->y ? shown_at(w, l, t, false) : l->two ? l->beyond : NULL;
		if (to) {
			next(w, l, 1, l->from, to);
			l->from = to;
		}
		return lw_place_reshape(w, to ? to : l->at, t->dtype, t->rank, t->dim);
	}
	struct place *a = f->at[ir_in(f->fn, o, k)];
	if (!l->held) {
		lw_loans_settle(w, f);
		a = for_peers(w, f->pieces && f->pieces[o->out + k] && lw_place_block(a) ? a : lw_dense(w, f, l->x));
		if (l->other >= 0 && w->store.p[a->store].buf != w->store.p[l->other].buf) {      /* a copy is lent, which has no halves */
			l->other = -1;
			l->before = false;
		}
		lend(w, l, a);
		opened(w, l, a->store);
	}
	struct place *b = shown_at(w, l, t, false);
	next(w, l, 1, a, b);
	if (!lw_place_dense(a))
		b->stride = lw_place_like(w, a)->stride;
	return b;
}

struct place *lw_ring_begin(struct lw *w, struct frame *f, struct loan *l, struct place *half, struct place *other)
{
	const struct ir_type_info *t = ir_vtype(w->m, f->fn, l->x);
	lw_loans_settle(w, f);
	struct place *x = f->at[l->x];
	if (other && !lw_place_dense(x)) {       /* a copy of its own would be a third half */
		lw_emit_copy(w, x, other);
		x = other;
	} else {
		bool any = l->kind == LOAN_round && !l->two && l->links == 1 && lw_place_block(x) && ir_attended(w->tmp, w->m, l->fn, l->param);
		x = for_peers(w, any ? x : lw_dense(w, f, l->x));
	}
	l->from = l->at = shown_at(w, l, t, l->kind == LOAN_round && !l->two);
	if (!lw_place_dense(x))
		l->at->stride = lw_place_like(w, x)->stride;
	if (l->two)
		l->beyond = shown_at(w, l, t, true);
	if (l->kind == LOAN_round)
		lend(w, l, x);
	next(w, l, 0, x, l->at);
	opened(w, l, x->store);
	if ((l->half = half)) {
		l->in[l->nin++] = half->store;
		l->other = half->store;
		l->before = true;
	}
	return l->at;
}

static struct place *half_for(struct lw *w, const struct frame *b, const struct loan *l)
{
	const struct ir_type_info *t = ir_vtype(w->m, b->fn, l->z);
	return lw_place_reshape(w, l->half, t->dtype, t->rank, t->dim);
}

void lw_ring_target(struct lw *w, struct frame *body, struct loan *l)
{
	if (l->kind == LOAN_made && !body->target[l->z])
		body->target[l->z] = half_for(w, body, l);
}

/* T of the next turn: behind op l->step of the body. */
static void go_round(struct lw *w, struct frame *b, struct loan *l)
{
	if (l->kind == LOAN_round) {
		lw_loans_write(w, l->at->store);
		next(w, l, !l->two, l->from, l->at);
		l->from = l->at;
		return;
	}
	back(w, l);
	lw_loans_settle(w, b);
	lend(w, l, l->half);
	next(w, l, 1, l->half, l->at);
	l->held = true;
}

/* What is made up to op i goes to its half, before what may show it goes back. */
static void made(struct lw *w, struct frame *f, int i)
{
	for (struct loan *l = f->ring; l; l = l->peer)
		if (l->step == i && l->kind == LOAN_made && f->at[l->z]->store != l->half->store)
			lw_emit_copy(w, f->at[l->z], half_for(w, f, l));
}

void lw_loans_after(struct lw *w, struct frame *f, int i)
{
	if (i < INT_MAX)                     /* else it was before the results moved */
		made(w, f, i);
	for (struct loan *l = f->loan; l; l = l->next)
		if (l->held && l->last == i)
			back(w, l);
	for (struct loan *l = f->ring; l; l = l->peer)
		if (l->step == i)
			go_round(w, f, l);
}

/* Is what l has lent storage that is wanted for other things? */
static bool wanted(const struct lw *w, const struct loan *l)
{
	for (int k = 0; k < l->nin; k++)
		if (w->buf.p[w->store.p[l->in[k]].buf].kind >= BUF_TEMP)
			return true;
	return false;
}

void lw_loans_settle(struct lw *w, struct frame *f)
{
	for (struct loan *l = f->loan; l; l = l->next)
		if (l->owed && !l->held && l->other < 0 && wanted(w, l))
			lw_loan_await(w, l, 0);
}

void lw_loans_enter(struct lw *w, struct frame *f)
{
	for (struct loan *l = f->loan; l; l = l->next)
		if (l->before)
			lw_loan_await_turn(w, l);
		else if (l->owed && !l->held && l->other < 0)
			lw_loan_await(w, l, 0);
	for (struct loan *l = f->ring; l; l = l->peer)
		if (l->before)
			lw_loan_await_turn(w, l);
}

void lw_loans_moves(struct lw *w, struct frame *f, struct move *mv, int n)
{
	bool met = false;
	made(w, f, INT_MAX);
	for (int k = 0; k < n; k++)
		for (size_t i = 0; i < w->open.n && !lw_same_place(w, mv[k].src, mv[k].dst); i++) {
			const struct loan *l = w->open.p[i];
			for (int j = 0; j < l->nin; j++)
				met |= l->held && mv[k].dst->store != l->other && lw_shares(w, mv[k].dst->store, l->in[j]);
		}
	for (int k = 0; k < n && met; k++)
		if (lw_is_lent(w, mv[k].src) && !lw_same_place(w, mv[k].src, mv[k].dst))
			mv[k].src = lw_copy(w, mv[k].src);
	for (struct loan *l = f->loan; l && met; l = l->next)
		if (l->held)
			back(w, l);
}

void lw_loans_close(struct lw *w, struct frame *f)
{
	for (struct loan *l = f->loan; l; l = l->next)
		if (l->held)
			back(w, l);
	for (struct loan *l = f->loan; l; l = l->next)
		if (l->owed && l->other < 0)
			lw_loan_await(w, l, 0);
	for (struct loan *l = f->ring; l; l = l->peer)
		l->before = false;
}

static bool lends(const struct frame *b, const struct loan *l, ir_val param) { return l->kind == LOAN_once && b->root[l->x] == param; }

bool lw_loans_of(const struct frame *b, ir_val param)
{
	const struct loan *l = b->loan;
	while (l && !lends(b, l, param))
		l = l->next;
	return l;
}

void lw_loans_halves(struct lw *w, struct frame *b, ir_val param, const struct place *other)
{
	for (struct loan *l = b->loan; l; l = l->next)
		if (lends(b, l, param)) {
			l->other = other->store;
			l->before = true;
			arr_push(&w->open, l);
		}
}

void lw_loans_over(struct lw *w, struct frame *f, int i, struct frame *body)
{
	for (struct loan **at = &body->loan, *l; (l = *at);) {
		if (l->other < 0) {
			at = &l->next;
			continue;
		}
		*at = l->next;
		l->next = f->loan;
		f->loan = l;
		l->other = -1;
		l->last = i;
		l->before = false;
	}
	for (struct loan *l = body->ring; l; l = l->peer)
		l->other = -1;
}
