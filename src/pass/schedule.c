/* The order of ops around collectives: each begins as early, and what reads it comes as late, as other work allows; so there is something to
 * do while it is under way (src/lower/lane.c).
 *
 * What a collective needs moves before what it does not need, back to the effect before it; what reads its result moves behind what does
 * not, up to the first effect that needs it, unless that is a collective that takes less time (the gather within a host of what comes from another).  Effects, collectives among them, keep their order, which is that of all devices.  Ops
 * keep theirs on either side.  Values that live longer for it may take little more memory than the function takes at its peak anyway, and
 * what comes from other hosts as much as two such values. */
#include "passes.h"

#include <math.h>

/* Work that is enough: times what the collective takes by itself, beside the ns that another device may be late; how many times slower than the machine table
 * has it a link between hosts may be; ops work is looked for in; what it is divided by when it takes too much memory; the part of the function's memory that it
 * may take beyond that. */
enum { ENOUGH = 8, LATE = 20000000, SLOWER = 32, FAR = 4096, LESS = 8, MORE = 8 };

struct order {
	const struct plan_on *plan;
	const struct ir_module *m;
	const struct ir_fn *fn;
	int n, *op;                  /* ops in their new order */
	ir_val *root;                /* per value: whose bytes it shows */
	int *uses;                   /* per root: readers that have not come yet; of results one more */
	int64_t *live;               /* before the op at each place: bytes of values */
	int64_t most;                /* that may be */
	double *time, *takes;        /* per op, ns: of work; of a collective */
	uint8_t *effect;             /* per op */
	int *mark, stamp;            /* per op: that of the window in which it was marked last */
	int *window;
	int cur;                     /* the place before which uses is as it stands */
};

static bool is_coll(const struct ir_op *o) { return ir_info(o->kind)->flags & IR_COLL; }
static const struct ir_op *at(const struct order *s, int i) { return &s->fn->op.p[s->op[i]]; }

static int64_t made(const struct order *s, const struct ir_op *o)
{
	int64_t n = 0;
	for (uint32_t k = 0; k < o->nout && !pass_shows(o) && o->kind != IR_constant; k++)
		n += ir_vtype(s->m, s->fn, o->out + k)->bytes;
	return n;
}

/* Bytes that nobody needs when o has come; step -1: o is taken back. */
static int64_t freed(struct order *s, const struct ir_op *o, int step)
{
	int64_t n = 0;
	for (uint32_t k = 0; k < o->nin; k++) {
		ir_val r = s->root[ir_in(s->fn, o, k)];
		bool last = step > 0 ? !--s->uses[r] : !s->uses[r]++;
		if (last && ir_def(s->fn, r) && ir_def(s->fn, r)->kind != IR_constant)
			n += ir_vtype(s->m, s->fn, r)->bytes;
	}
	return n;
}

/* Runs n ops where so many bytes are alive; gives the most that are on the way.  live, if not NULL: before each of them. */
static int64_t most(struct order *s, const int *op, int n, int64_t bytes, int64_t *live)
{
	int64_t top = bytes;
	for (int i = 0; i < n; i++) {
		const struct ir_op *o = &s->fn->op.p[op[i]];
		if (live)
			live[i] = bytes;
		bytes += made(s, o);
		top = MAX(top, bytes);
		bytes -= freed(s, o, 1);
	}
	return top;
}

static void unwind(struct order *s, const int *op, int n)
{
	for (int i = n; i-- > 0;)
		freed(s, &s->fn->op.p[op[i]], -1);
}

/* Of what comes from other hosts the two largest values, keys and values of a ring: they have places of their own while those before are read. */
static int64_t arriving(const struct order *s)
{
	int64_t two[2] = { 0 };
	for (int i = 0; i < s->n; i++) {
		const struct ir_op *o = at(s, i);
		int64_t n = o->kind == IR_collective_permute && spmd_between_hosts(s->plan, s->m, s->fn, o) ? made(s, o) : 0;
		two[1] = MAX(two[1], MIN(two[0], n));
		two[0] = MAX(two[0], n);
	}
	return two[0] + two[1];
}

static void prepare(struct order *s, struct arena *a)
{
	const struct ir_fn *fn = s->fn;
	s->n = (int)fn->op.n;
	s->op = ARENA_NEW(a, int, s->n);
	s->window = ARENA_NEW(a, int, s->n);
	s->root = ARENA_NEW(a, ir_val, fn->val.n);
	s->uses = ARENA_NEW(a, int, fn->val.n);
	s->live = ARENA_NEW(a, int64_t, s->n);
	s->time = ARENA_NEW(a, double, s->n);
	s->takes = ARENA_NEW(a, double, s->n);
	s->effect = ARENA_NEW(a, uint8_t, s->n);
	s->mark = ARENA_NEW(a, int, s->n);
	for (size_t v = 0; v < fn->val.n; v++)
		s->root[v] = (ir_val)v;
	for (int i = 0; i < s->n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		s->op[i] = i;
		s->time[i] = spmd_op_time(s->plan->table, s->m, fn, o);
		s->takes[i] = is_coll(o) ? spmd_coll_time(s->plan, s->m, fn, o) : INFINITY;
		s->effect[i] = ir_effect(s->m, fn, o);
		for (uint32_t k = 0; k < o->nout && k < o->nin && pass_shows(o); k++)
			s->root[o->out + k] = s->root[ir_in(fn, o, k)];
		for (uint32_t k = 0; k < o->nin; k++)
			s->uses[s->root[ir_in(fn, o, k)]]++;
	}
	for (size_t i = 0; i < fn->result.n; i++)
		s->uses[s->root[fn->result.p[i]]]++;
	s->most = most(s, s->op, s->n, 0, s->live);
	s->most += s->most / MORE + arriving(s);
	unwind(s, s->op, s->n);
}

/* The state of uses goes to that before the op at a place. */
static void go(struct order *s, int place)
{
	while (s->cur < place)
		freed(s, at(s, s->cur++), 1);
	while (s->cur > place)
		freed(s, at(s, --s->cur), -1);
}

/* Ops of places lo .. hi - 1: those that are marked come first, or, if last, behind the others; done if that takes no more memory. */
static bool part(struct order *s, int lo, int hi, bool last)
{
	int n = hi - lo, first = 0, k = 0, j = 0;
	for (int i = lo; i < hi; i++)
		first += (s->mark[s->op[i]] == s->stamp) != last;
	for (int i = lo; i < hi; i++)
		if ((s->mark[s->op[i]] == s->stamp) != last)
			s->window[j++] = s->op[i];
		else
			s->window[first + k++] = s->op[i];
	go(s, lo);
	int64_t bytes = s->live[lo];
	bool fits = most(s, s->window, n, bytes, NULL) <= s->most;
	unwind(s, s->window, n);
	if (!fits)
		return false;
	memcpy(s->op + lo, s->window, sizeof *s->op * (size_t)n);
	most(s, s->op + lo, n, bytes, s->live + lo);
	s->cur = hi;
	return true;
}

static void mark(struct order *s, int op) { s->mark[op] = s->stamp; }
static bool marked(const struct order *s, int op) { return s->mark[op] == s->stamp; }

static void mark_needs(struct order *s, const struct ir_op *o)
{
	for (uint32_t k = 0; k < o->nin; k++) {
		uint32_t def = s->fn->val.p[ir_in(s->fn, o, k)].def;
		if (def != IR_PARAM)
			mark(s, (int)def);
	}
}

static bool reads_marked(const struct order *s, const struct ir_op *o)
{
	for (uint32_t k = 0; k < o->nin; k++) {
		uint32_t def = s->fn->val.p[ir_in(s->fn, o, k)].def;
		if (def != IR_PARAM && marked(s, (int)def))
			return true;
	}
	return false;
}

/* A carry that is permuted lies in one place if nothing reads it behind that; what comes from another host takes longer than a copy.  0: none. */
static ir_val carry_of(const struct order *s, const struct ir_op *coll)
{
	ir_val x = coll->kind == IR_collective_permute && !spmd_between_hosts(s->plan, s->m, s->fn, coll) ? s->root[ir_in(s->fn, coll, 0)] : 0;
	return x && !ir_def(s->fn, x) ? x : 0;
}

static bool reads(const struct order *s, const struct ir_op *o, ir_val root)
{
	uint32_t k = 0;
	while (k < o->nin && s->root[ir_in(s->fn, o, k)] != root)
		k++;
	return k < o->nin;
}

/* Is op a collective that reads what another makes that takes longer?  That one has the work between the two. */
static bool waits(const struct order *s, int op)
{
	const struct ir_op *o = &s->fn->op.p[op];
	bool yes = false;
	for (uint32_t k = 0; k < o->nin; k++) {
		const struct ir_op *def = ir_def(s->fn, s->root[ir_in(s->fn, o, k)]);
		yes |= def && is_coll(def) && s->takes[def - s->fn->op.p] > s->takes[op];
	}
	return yes;
}

/* What the collective at place c needs goes before what it does not need.  False if that takes too much memory. */
static bool begin_early(struct order *s, int c, double enough)
{
	double other = 0;
	int lo = c;
	s->stamp++;
	mark(s, s->op[c]);
	mark_needs(s, at(s, c));
	ir_val carry = carry_of(s, at(s, c));
	for (; lo > 0 && c - lo < FAR && other < enough && !s->effect[s->op[lo - 1]]; lo--)
		if (carry && reads(s, at(s, lo - 1), carry))
			break;
		else if (marked(s, s->op[lo - 1]))
			mark_needs(s, at(s, lo - 1));
		else
			other += s->time[s->op[lo - 1]];
	return other <= 0 || part(s, lo, c + 1, false);
}

/* What reads the collective at place c goes behind what does not. */
static bool end_late(struct order *s, int c, double enough)
{
	double other = 0;
	int hi = c + 1;
	bool late = false;               /* an effect is among those that go behind: so are all after it */
	s->stamp++;
	mark(s, s->op[c]);
	for (; hi < s->n && hi - c < FAR && other < enough; hi++) {
		int op = s->op[hi];
		bool needs = reads_marked(s, at(s, hi));
		if (s->effect[op] && needs && !late && !waits(s, op))
			break;
		if (needs || (s->effect[op] && late))
			mark(s, op);
		else
			other += s->time[op];
		late |= s->effect[op] && needs;
	}
	return other <= 0 || part(s, c + 1, hi, true);
}

static bool begin(struct rewrite *r)
{
	struct order *s = r->user;
	bool any = false, moved = false;
	for (size_t i = 0; i < r->from->op.n && !any; i++)
		any = is_coll(&r->from->op.p[i]);
	if (!any)
		return false;
	*s = (struct order){ .plan = s->plan, .m = r->m, .fn = r->from };
	prepare(s, r->a);
	for (size_t id = 0, i = 0; id < r->from->op.n; id++) {
		if (!is_coll(&r->from->op.p[id]))
			continue;
		bool far = spmd_between_hosts(s->plan, s->m, s->fn, &s->fn->op.p[id]);
		double least = s->takes[id], enough = ENOUGH * (far ? SLOWER : 1) * least + LATE;
		while (s->op[i] != (int)id)
			i++;
		for (double e = waits(s, (int)id) ? 0 : enough; e > least && !begin_early(s, (int)i, e); e /= LESS) { }
		while (s->op[i] != (int)id)
			i--;
		for (double e = enough; e > least && !end_late(s, (int)i, e); e /= LESS) { }
	}
	for (int i = 0; i < s->n; i++)
		moved |= s->op[i] != i;
	return moved;
}

/* All ops in their new order, when the first is asked for. */
static ir_val ordered(struct rewrite *r, const struct ir_op *first, const ir_val *in)
{
	struct order *s = r->user;
	(void)first, (void)in;
	for (int i = 0; i < s->n; i++) {
		const struct ir_op *o = at(s, i);
		bool need = o->nout == 0;
		for (uint32_t k = 0; k < o->nout; k++)
			need |= r->live[o->out + k] != 0;
		if (!need)
			continue;
		ir_val *x = ARENA_NEW(r->a, ir_val, o->nin + 1);
		for (uint32_t k = 0; k < o->nin; k++)
			x[k] = r->map[ir_in(r->from, o, k)];
		r->b.loc = o->loc;
		ir_val v = ir_clone(&r->b, r->from, o, x);
		for (uint32_t k = 0; k < o->nout; k++)
			r->map[o->out + k] = v + k;
	}
	s->n = 0;
	return REWRITE_MAPPED;
}

struct err *pass_schedule(const struct pass_opts *o, struct ir_module *m)
{
	struct order s = { .plan = &o->plan };
	pass_rewrite(m, ordered, begin, &s);
	return NULL;
}
