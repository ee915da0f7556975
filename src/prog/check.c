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
#include "impl.h"

#include <stdlib.h>

enum { LANES = 4, RUNS = 16, TURNS = 5, WORLDS = 32 };
enum { NONE = 0xffffffff, MAYBE = 0xfffffffe, LOST = 0xfffffffd };    /* owners of a byte that no buffer has */

struct range { int64_t lo, hi; };

/* Bytes that a view touches, from its operand's address: all of [lo, hi), or n runs, or (n = 0) some of it. */
struct reach { int64_t lo, hi; int n; int64_t run[RUNS], len; };

struct seg { int64_t lo, hi; uint32_t owner; uint32_t wrote[LANES], read[LANES]; };
struct space { ARR(struct seg) seg; };

/* What a path through the program changes. */
struct state { struct range *reg; uint8_t *set; struct space *space; };

/* The states that paths to here may leave, no two with the same registers while there are few. */
struct worlds { int n; struct state *w[WORLDS]; };

struct frame {
	const struct prog_cmd *cmd;      /* the command whose block this is; NULL: the program */
	uint32_t block, pc;
	int step, nstep;                 /* loop: turns; while: cond, body, cond, ..; case: branch */
	struct range turn[TURNS];
	bool skip;                       /* loop: may not run at all */
	bool mid;                        /* loop: in the turn that stands for many */
	struct worlds enter, leave;      /* states before a choice, and after it */
};

struct device {
	struct worlds now;
	struct state *s;                 /* the one of now that a command is run for */
	ARR(struct frame) frame;
	uint32_t *clock;                 /* [lane][device * LANES + lane] */
	struct map mark;                 /* id -> 1 + index into marks */
	ARR(uint32_t *) marks;
	const struct prog_cmd *wait;     /* the collective it stands at */
	bool done;
	int loops, mids;                 /* depth of repetition; of turns that stand for many */
};

struct check {
	const struct prog *p;
	struct arena a;
	int ndev, width, nspace, nlane;
	struct reach **kern, **custom;   /* per view of each */
	struct device *dev;
	int32_t **team;                  /* per collective: the team of each device; -1 alone */
	uint32_t *owner;                 /* per buffer: the buffer that stands for its argument */
	uint32_t **pos;                  /* per block: where its commands, and its end, stand in the text */
	uint32_t *last;                  /* per register: where in the text it is dead from */
	uint64_t work;
};

enum { MOST_WORK = 20000000 };

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

static const char *kind_of(const struct check *ck, uint32_t owner)
{
	static const char *const kind[] = {"argument", "result", "temporary", "constant"};
	return kind[ck->p->buf[owner].kind];
}

/* --- views ----------------------------------------------------------------- */

/* Put one more to n dimensions that lie by stride. */
static void by_step(int64_t *step, int64_t *size, int n, int64_t s, int64_t dim)
{
	for (; n > 0 && step[n - 1] > s; n--) {
		step[n] = step[n - 1];
		size[n] = size[n - 1];
	}
	step[n] = s;
	size[n] = dim;
}

/* Dimensions by stride, those that touch nothing new left out, neighbours joined. */
static void reach_of(const struct prog_view *v, struct reach *r)
{
	int64_t size[MAX_RANK], step[MAX_RANK], b = dtype_info[v->dtype].bytes, lo = v->off * b;
	int n = 0;
	*r = (struct reach){.n = 1};
	for (int d = 0; d < v->rank; d++) {
		if (v->dim[d] == 0)
			return;
		if (v->dim[d] == 1 || v->stride[d] == 0)
			continue;
		int64_t s = v->stride[d] * b;
		if (s < 0) {
			lo += s * (v->dim[d] - 1);
			s = -s;
		}
		by_step(step, size, n++, s, v->dim[d]);
	}
	int64_t len = b, last = lo;
	int k = 0;
	for (; k < n && step[k] <= len; k++)
		len += step[k] * (size[k] - 1);
	for (int j = k; j < n; j++)
		last += step[j] * (size[j] - 1);
	r->lo = lo;
	r->hi = last + len;
	r->len = len;
	r->run[0] = lo;
	for (; k < n; k++) {
		if (r->n * size[k] > RUNS || step[k] < r->run[r->n - 1] + len - lo) {
			r->n = 0;
			return;
		}
		int before = r->n;
		for (int64_t i = 1; i < size[k]; i++)
			for (int j = 0; j < before; j++)
				r->run[r->n++] = r->run[j] + i * step[k];
	}
}

/* Elements of a result must lie apart: by stride, each dimension steps over all smaller ones. */
static bool apart(const struct prog_view *v)
{
	int64_t size[MAX_RANK], step[MAX_RANK], span = 1;
	int n = 0;
	for (int d = 0; d < v->rank; d++) {
		if (v->dim[d] == 0)
			return true;
		if (v->dim[d] == 1)
			continue;
		int64_t s = v->stride[d] < 0 ? -v->stride[d] : v->stride[d];
		by_step(step, size, n++, s, v->dim[d]);
	}
	for (int k = 0; k < n; k++) {
		if (step[k] < span)
			return false;
		span += step[k] * (size[k] - 1);
	}
	return true;
}

static bool same_view(const struct prog_view *a, const struct prog_view *b)
{
	if (a->rank != b->rank || a->off != b->off || dtype_info[a->dtype].bytes != dtype_info[b->dtype].bytes)
		return false;
	for (int d = 0; d < a->rank; d++)
		if (a->dim[d] != b->dim[d] || (a->dim[d] > 1 && a->stride[d] != b->stride[d]))
			return false;
	return true;
}

/* --- states ---------------------------------------------------------------- */

static struct state *state_copy(const struct check *ck, const struct state *s)
{
	struct state *t = mem_alloc(sizeof *t);
	t->reg = mem_alloc(sizeof *t->reg * ck->p->nreg);
	t->set = mem_alloc(ck->p->nreg);
	t->space = mem_alloc(sizeof *t->space * (size_t)ck->nspace);
	memcpy(t->reg, s->reg, sizeof *t->reg * ck->p->nreg);
	memcpy(t->set, s->set, ck->p->nreg);
	for (int i = 0; i < ck->nspace; i++) {
		arr_reserve(&t->space[i].seg, s->space[i].seg.n);
		if (s->space[i].seg.n)
			memcpy(t->space[i].seg.p, s->space[i].seg.p, s->space[i].seg.n * sizeof(struct seg));
		t->space[i].seg.n = s->space[i].seg.n;
	}
	return t;
}

static void state_fini(const struct check *ck, struct state *s)
{
	for (int i = 0; s->space && i < ck->nspace; i++)
		arr_free(&s->space[i].seg);
	free(s->space);
	free(s->reg);
	free(s->set);
	*s = (struct state){0};
}

static void state_free(const struct check *ck, struct state *s)
{
	if (!s)
		return;
	state_fini(ck, s);
	free(s);
}

static bool seg_same(const struct seg *a, const struct seg *b)
{
	return a->owner == b->owner && memcmp(a->wrote, b->wrote, sizeof a->wrote) == 0 && memcmp(a->read, b->read, sizeof a->read) == 0;
}

/* The argument whose value a buffer starts with, as it takes its storage; else the buffer itself. */
static uint32_t donor_of(const struct check *ck, uint32_t owner)
{
	const struct prog_buf *b = owner < ck->p->nbuf ? &ck->p->buf[owner] : NULL;
	return b && b->kind == BUF_OUT && b->alias >= 0 ? ck->owner[b->alias] : owner;
}

static uint32_t join_owner(const struct check *ck, uint32_t a, uint32_t b)
{
	if (a == b || donor_of(ck, a) == b)
		return a;
	if (donor_of(ck, b) == a)
		return b;
	return (a == NONE || a == MAYBE || b == NONE || b == MAYBE) && a != LOST && b != LOST ? MAYBE : LOST;
}

static void space_join(const struct check *ck, struct space *s, const struct space *t)
{
	struct space out = {0};
	for (size_t i = 0, j = 0; i < s->seg.n && j < t->seg.n;) {
		struct seg x = s->seg.p[i];
		const struct seg *y = &t->seg.p[j];
		x.lo = MAX(x.lo, y->lo);
		x.hi = MIN(x.hi, y->hi);
		x.owner = join_owner(ck, x.owner, y->owner);
		for (int l = 0; l < LANES; l++) {
			x.wrote[l] = MAX(x.wrote[l], y->wrote[l]);
			x.read[l] = MAX(x.read[l], y->read[l]);
		}
		if (out.seg.n && seg_same(&out.seg.p[out.seg.n - 1], &x))
			out.seg.p[out.seg.n - 1].hi = x.hi;
		else
			arr_push(&out.seg, x);
		i += s->seg.p[i].hi == x.hi;
		j += y->hi == x.hi;
	}
	arr_free(&s->seg);
	*s = out;
}

/* What holds on either path: into s. */
static void state_join(const struct check *ck, struct state *s, const struct state *t)
{
	for (uint32_t r = 0; r < ck->p->nreg; r++) {
		s->set[r] &= t->set[r];
		s->reg[r] = (struct range){MIN(s->reg[r].lo, t->reg[r].lo), MAX(s->reg[r].hi, t->reg[r].hi)};
	}
	for (int i = 0; i < ck->nspace; i++)
		space_join(ck, &s->space[i], &t->space[i]);
}

static bool same_regs(const struct check *ck, const struct state *s, const struct state *t)
{
	for (uint32_t r = 0; r < ck->p->nreg; r++)
		if (s->set[r] != t->set[r] || (s->set[r] && (s->reg[r].lo != t->reg[r].lo || s->reg[r].hi != t->reg[r].hi)))
			return false;
	return true;
}

/* Takes s. */
static void worlds_add(const struct check *ck, struct worlds *w, struct state *s)
{
	int i = 0;
	while (i < w->n && !same_regs(ck, w->w[i], s))
		i++;
	if (i < w->n || i == WORLDS) {
		state_join(ck, w->w[MIN(i, WORLDS - 1)], s);
		state_free(ck, s);
	} else {
		w->w[w->n++] = s;
	}
}

static void worlds_join(const struct check *ck, struct worlds *w, const struct worlds *from)
{
	for (int i = 0; i < from->n; i++)
		worlds_add(ck, w, state_copy(ck, from->w[i]));
}

static void worlds_free(const struct check *ck, struct worlds *w)
{
	for (int i = 0; i < w->n; i++)
		state_free(ck, w->w[i]);
	w->n = 0;
}

/* w becomes from, which is empty then. */
static void worlds_take(const struct check *ck, struct worlds *w, struct worlds *from)
{
	worlds_free(ck, w);
	*w = *from;
	from->n = 0;
}

/* Registers that nothing reads from position at on are no difference. */
static void worlds_merge(const struct check *ck, struct worlds *w, uint32_t at)
{
	struct worlds old = *w;
	if (old.n < 2)
		return;
	w->n = 0;
	for (int i = 0; i < old.n; i++) {
		for (uint32_t r = 0; r < ck->p->nreg; r++)
			if (ck->last[r] <= at)
				old.w[i]->set[r] = 0;
		worlds_add(ck, w, old.w[i]);
	}
}

/* --- storage --------------------------------------------------------------- */

static int space_of(const struct check *ck, uint32_t buf, int64_t *base)
{
	const struct prog_buf *b = &ck->p->buf[buf];
	*base = 0;
	if (b->kind == BUF_TEMP) {
		*base = b->off;
		return 0;
	}
	if (b->kind == BUF_OUT && b->alias >= 0)
		b = &ck->p->buf[b->alias];
	return 1 + (int)b->index + (b->kind == BUF_OUT ? (int)ck->p->narg : 0);
}

static size_t seg_find(const struct space *s, int64_t at)
{
	size_t lo = 0, hi = s->seg.n;
	while (hi - lo > 1) {
		size_t mid = (lo + hi) / 2;
		if (s->seg.p[mid].lo <= at)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

/* Segment i is cut at byte x inside it: the right part becomes i + 1. */
static void seg_split(struct space *s, size_t i, int64_t x)
{
	arr_reserve(&s->seg, 1);
	memmove(&s->seg.p[i + 1], &s->seg.p[i], (s->seg.n - i) * sizeof(struct seg));
	s->seg.n++;
	s->seg.p[i].hi = s->seg.p[i + 1].lo = x;
}

/* Segments first .. last-1 become one. */
static void seg_merge(struct space *s, size_t first, size_t last)
{
	s->seg.p[first].hi = s->seg.p[last - 1].hi;
	memmove(&s->seg.p[first + 1], &s->seg.p[last], (s->seg.n - last) * sizeof(struct seg));
	s->seg.n -= last - first - 1;
}

struct access {
	uint32_t buf;
	bool write;
	bool some;        /* not every byte of the range: nothing is said about bytes that were never written */
	bool many;        /* a turn that stands for many: ranges of different lanes may overlap without a conflict */
	int lane;
};

/* --- lives of registers ------------------------------------------------------ */

struct text { struct check *ck; uint32_t *parent, *index, *home; uint8_t *repeats, *clean; uint32_t now; int pass; };

static uint32_t depth_of(const struct text *t, uint32_t b)
{
	uint32_t n = 0;
	for (; b; b = t->parent[b])
		n++;
	return n;
}

/* Command i of block b reads (or defines) register r. */
static void mention(struct text *t, uint16_t r, uint32_t b, uint32_t i, bool defines)
{
	uint32_t *last = &t->ck->last[r];
	if (!r)
		return;
	if (t->pass == 0) {          /* home: the innermost block that holds all it is used in */
		uint32_t a = t->home[r], x = b;
		if (a == NONE) {
			t->home[r] = b;
			return;
		}
		for (uint32_t da = depth_of(t, a), dx = depth_of(t, x); a != x;)
			if (da >= dx) {
				a = t->parent[a];
				da--;
			} else {
				x = t->parent[x];
				dx--;
			}
		t->home[r] = a;
		return;
	}
	if (!*last)                  /* first of all: does every turn of its home begin by setting it? */
		t->clean[r] = defines && b == t->home[r];
	*last = MAX(*last, t->ck->pos[b][i] + 1);
	for (; b && !(b == t->home[r] && t->clean[r]); b = t->parent[b])
		if (t->repeats[b])
			*last = MAX(*last, t->ck->pos[t->parent[b]][t->index[b] + 1]);
}

static void read_text(struct text *t, uint32_t b)
{
	const struct prog *p = t->ck->p;
	const struct prog_block *k = &p->block[b];
	if (t->pass == 0)
		t->ck->pos[b] = ARENA_NEW(&t->ck->a, uint32_t, k->n + 1);
	for (uint32_t i = 0; i < k->n; i++) {
		const struct prog_cmd *c = &k->cmd[i];
		if (t->pass == 0)
			t->ck->pos[b][i] = t->now++;
		for (uint32_t o = 0; o < c->nopnd; o++)
			for (int j = 0; j < 2; j++)
				mention(t, p->opnd[c->opnd + o].reg[j], b, i, false);
		mention(t, c->reg[1], b, i, false);
		mention(t, c->reg[2], b, i, false);
		bool reads = c->op == CMD_WHILE || c->op == CMD_CASE;
		if (c->op == CMD_LOOP)
			mention(t, c->reg[0], b, i, true);
		for (uint32_t j = 0; j < c->nblock; j++) {
			uint32_t sub = p->sub[c->block + j];
			t->parent[sub] = b;
			t->index[sub] = i;
			t->repeats[sub] = c->op != CMD_CASE;
			read_text(t, sub);
		}
		if (c->op != CMD_LOOP)
			mention(t, c->reg[0], b, i, !reads);
	}
	if (t->pass == 0)
		t->ck->pos[b][k->n] = t->now++;
}

/* Where in the text each register is dead from, turns of loops taken into account. */
static void register_lives(struct check *ck)
{
	const struct prog *p = ck->p;
	struct text t = { .ck = ck, .parent = ARENA_NEW(&ck->a, uint32_t, p->nblock), .index = ARENA_NEW(&ck->a, uint32_t, p->nblock),
	                  .home = ARENA_NEW(&ck->a, uint32_t, p->nreg + 1), .repeats = ARENA_NEW(&ck->a, uint8_t, p->nblock),
	                  .clean = ARENA_NEW(&ck->a, uint8_t, p->nreg + 1), .now = 1 };
	ck->pos = ARENA_NEW(&ck->a, uint32_t *, p->nblock);
	ck->last = ARENA_NEW(&ck->a, uint32_t, p->nreg + 1);
	for (uint32_t r = 0; r < p->nreg; r++)
		t.home[r] = NONE;
	for (t.pass = 0; t.pass < 2; t.pass++)
		read_text(&t, 0);
}

static struct err *conflict(const struct check *ck, const struct device *dv, int d, const struct seg *g, const struct access *x)
{
	const uint32_t *now = &dv->clock[x->lane * ck->width + d * LANES];
	for (int l = 0; l < ck->nlane; l++) {
		if (l == x->lane)
			continue;
		if (g->wrote[l] > now[l] || (x->write && g->read[l] > now[l]))
			return ERR(PRECONDITION, "race: lane %d %s bytes %ld..%ld of the storage of b%u while lane %d may still %s them", x->lane,
			           x->write ? "writes" : "reads", (long)g->lo, (long)g->hi, x->buf, l, g->wrote[l] > now[l] ? "write" : "read");
	}
	return NULL;
}

/* Touch bytes lo .. hi-1 of the buffer's storage on device d. */
static struct err *touch(struct check *ck, struct device *dv, int d, int64_t lo, int64_t hi, const struct access *x)
{
	int64_t base;
	struct space *s = &dv->s->space[space_of(ck, x->buf, &base)];
	uint32_t mine = ck->owner[x->buf], donor = donor_of(ck, mine);
	lo += base;
	hi += base;
	if (lo >= hi)
		return NULL;
	size_t i = seg_find(s, lo), first = i;
	bool written = false;
	for (; i < s->seg.n && s->seg.p[i].lo < hi; i++) {
		const struct seg *g = &s->seg.p[i];
		if (ck->nlane > 1 && !x->many)
			TRY(conflict(ck, dv, d, g, x));
		if (x->write)
			continue;
		written |= g->owner == mine || g->owner == donor || g->owner == MAYBE;
		if (g->owner == mine || g->owner == donor || (x->some && (g->owner == NONE || g->owner == MAYBE)))
			continue;
		int64_t from = MAX(lo, g->lo) - base, to = MIN(hi, g->hi) - base;
		if (g->owner == NONE)
			return ERR(PRECONDITION, "bytes %ld..%ld of b%u are read but were never written", (long)from, (long)to, x->buf);
		if (g->owner == MAYBE)
			return ERR(PRECONDITION, "bytes %ld..%ld of b%u are read but not every path has written them", (long)from, (long)to, x->buf);
		if (g->owner == LOST)
			return ERR(PRECONDITION, "bytes %ld..%ld of b%u are read but another buffer has overwritten them on some path", (long)from, (long)to, x->buf);
		return ERR(PRECONDITION, "bytes %ld..%ld of b%u are read but %s b%u has overwritten them", (long)from, (long)to, x->buf, kind_of(ck, g->owner), g->owner);
	}
	if (!x->write && !written)
		return ERR(PRECONDITION, "bytes %ld..%ld of b%u are read but were never written", (long)(lo - base), (long)(hi - base), x->buf);
	if (!x->write && ck->nlane == 1)
		return NULL;
	/* Cut at both ends, then note the access on what lies between. */
	if (s->seg.p[first].lo < lo) {
		seg_split(s, first, lo);
		first++;
		i++;
	}
	if (s->seg.p[i - 1].hi > hi)
		seg_split(s, i - 1, hi);
	uint32_t now = x->many ? 0 : dv->clock[x->lane * ck->width + d * LANES + x->lane];
	if (!x->write) {
		for (size_t k = first; k < i; k++)
			s->seg.p[k].read[x->lane] = MAX(s->seg.p[k].read[x->lane], now);
		return NULL;
	}
	/* Everything before is ordered before this write: it alone has to be remembered. */
	struct seg *g = &s->seg.p[first];
	g->owner = mine;
	if (x->many) {
		for (size_t k = first + 1; k < i; k++)
			for (int l = 0; l < LANES; l++) {
				g->wrote[l] = MAX(g->wrote[l], s->seg.p[k].wrote[l]);
				g->read[l] = MAX(g->read[l], s->seg.p[k].read[l]);
			}
	} else {
		memset(g->wrote, 0, sizeof g->wrote);
		memset(g->read, 0, sizeof g->read);
		g->wrote[x->lane] = now;
	}
	seg_merge(s, first, i);
	if (first + 1 < s->seg.n && seg_same(&s->seg.p[first], &s->seg.p[first + 1]))
		seg_merge(s, first, first + 2);
	if (first > 0 && seg_same(&s->seg.p[first - 1], &s->seg.p[first]))
		seg_merge(s, first - 1, first + 1);
	return NULL;
}

/* --- addresses -------------------------------------------------------------- */

static int64_t clip(__int128 v)
{
	return v < INT64_MIN ? INT64_MIN : v > INT64_MAX ? INT64_MAX : (int64_t)v;
}

static struct range times(struct range a, int64_t k)
{
	__int128 x = (__int128)a.lo * k, y = (__int128)a.hi * k;
	return (struct range){clip(MIN(x, y)), clip(MAX(x, y))};
}

static struct range plus(struct range a, struct range b)
{
	return (struct range){clip((__int128)a.lo + b.lo), clip((__int128)a.hi + b.hi)};
}

static struct err *reg_get(const struct device *dv, uint16_t r, struct range *out)
{
	*out = r ? dv->s->reg[r] : (struct range){0, 0};
	return r && !dv->s->set[r] ? ERR(PRECONDITION, "register r%d is read before it is set on every path", r) : NULL;
}

/* Over all states. */
static struct err *reg_any(struct device *dv, uint16_t r, struct range *out)
{
	for (int i = 0; i < dv->now.n; i++) {
		struct range x;
		dv->s = dv->now.w[i];
		TRY(reg_get(dv, r, &x));
		*out = i ? (struct range){MIN(out->lo, x.lo), MAX(out->hi, x.hi)} : x;
	}
	return NULL;
}

static struct err *address(const struct device *dv, const struct prog_opnd *o, struct range *out)
{
	*out = (struct range){o->off, o->off};
	for (int k = 0; k < 2; k++) {
		if (!o->reg[k])
			continue;
		struct range r;
		TRY(reg_get(dv, o->reg[k], &r));
		*out = plus(*out, times(r, o->mul[k]));
	}
	return NULL;
}

/* Access what a view reaches from an operand. */
static struct err *use(struct check *ck, int d, const struct prog_cmd *c, const struct prog_opnd *o, const struct reach *r, bool write, bool some)
{
	struct device *dv = &ck->dev[d];
	const struct prog_buf *b = &ck->p->buf[o->buf];
	struct range at;
	TRY(address(dv, o, &at));
	if (r->hi <= r->lo)
		return NULL;
	struct range all = plus(at, (struct range){r->lo, r->hi});
	if (all.lo < 0 || all.hi > b->size)
		return ERR(PRECONDITION, "%s bytes %ld..%ld of b%u, which has %ld", write ? "writes" : "reads", (long)all.lo, (long)all.hi, o->buf, (long)b->size);
	if (b->kind == BUF_CONST)
		return write ? ERR(PRECONDITION, "writes the constant b%u", o->buf) : NULL;
	if (b->kind == BUF_ARG && write)
		return ERR(PRECONDITION, "writes the argument b%u", o->buf);
	bool point = at.lo == at.hi;
	struct access x = {.buf = o->buf, .write = write, .some = some || !point || r->n == 0, .many = dv->mids && !point, .lane = c->lane};
	if (!point || r->n == 0)
		return touch(ck, dv, d, all.lo, all.hi, &x);
	for (int i = 0; i < r->n; i++)
		TRY(touch(ck, dv, d, at.lo + r->run[i], at.lo + r->run[i] + r->len, &x));
	return NULL;
}

/* Do two operands of one command meet?  Only when both addresses are known. */
static bool meet(const struct check *ck, const struct device *dv, const struct prog_opnd *a, const struct reach *ra,
                 const struct prog_opnd *b, const struct reach *rb, bool *equal)
{
	struct range x, y;
	int64_t bx, by;
	err_free(address(dv, a, &x));
	err_free(address(dv, b, &y));
	*equal = false;
	if (ck->p->buf[a->buf].kind == BUF_CONST || ck->p->buf[b->buf].kind == BUF_CONST)
		return false;
	if (x.lo != x.hi || y.lo != y.hi || space_of(ck, a->buf, &bx) != space_of(ck, b->buf, &by))
		return false;
	bx += x.lo;
	by += y.lo;
	*equal = bx == by;
	if (ra->lo >= ra->hi || rb->lo >= rb->hi || bx + ra->hi <= by + rb->lo || by + rb->hi <= bx + ra->lo)
		return false;
	if (!ra->n || !rb->n)
		return *equal;
	for (int i = 0; i < ra->n; i++)
		for (int j = 0; j < rb->n; j++)
			if (bx + ra->run[i] < by + rb->run[j] + rb->len && by + rb->run[j] < bx + ra->run[i] + ra->len)
				return true;
	return false;
}

/* --- commands ---------------------------------------------------------------- */

/* May result r lie where operand j lies?  Only if each element is read before the same is written: what generated code
 * reads, its attributes say. */
static bool in_place(unsigned kern, const struct prog_kern *k, uint32_t j, uint32_t r)
{
	if (kern == KERN_gen)
		return j < k->nattr && r < 63 && k->attr[j] >> r & 1;
	return kern == KERN_elem || kern == KERN_copy || kern == KERN_reduce_precision || kern == KERN_COUNT;
}

static bool updates(unsigned kern)
{
	return kern == KERN_dynamic_update || kern == KERN_scatter;
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
		TRY(use(ck, d, c, &o[i], &r[i], false, i == 0 && picks(kern)));
	for (uint32_t i = nin; i < nin + nout; i++) {
		if (updates(kern))
			TRY(use(ck, d, c, &o[i], &r[i], false, true));
		for (uint32_t j = 0; j < i; j++) {
			bool equal;
			if (!meet(ck, &ck->dev[d], &o[j], &r[j], &o[i], &r[i], &equal))
				continue;
			if (j < nin && equal && in_place(kern, k, j, i - nin) && same_view(&v[j], &v[i]))
				continue;
			if (j < nin && kern == KERN_gen && equal && same_view(&v[j], &v[i]))
				return ERR(PRECONDITION, "result b%u is written over operand b%u, of which the code reads other elements later", o[i].buf, o[j].buf);
			return ERR(PRECONDITION, "result b%u overlaps %s b%u", o[i].buf, j < nin ? "operand" : "result", o[j].buf);
		}
	}
	for (uint32_t i = nin; i < nin + nout; i++)
		TRY(use(ck, d, c, &o[i], &r[i], true, false));
	return NULL;
}

static void take_up(uint32_t *clock, const uint32_t *other, int n)
{
	for (int i = 0; i < n; i++)
		clock[i] = MAX(clock[i], other[i]);
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
	if (k->kind == COLL_all_to_all) {
		in *= n;
		out = k->outer2 * k->inner2 * n;
	}
	struct reach ri = {0, in, 1, {0}, in}, ro = {0, out, 1, {0}, out};
	for (uint32_t i = 0; i < k->nin; i++)
		TRY(use(ck, d, c, &o[i], &ri, false, false));
	for (uint32_t i = k->nin; i < 2u * k->nin; i++) {
		for (uint32_t j = 0; j < i; j++) {
			bool equal;
			if (!meet(ck, &ck->dev[d], &o[j], j < k->nin ? &ri : &ro, &o[i], &ro, &equal))
				continue;
			if (j + k->nin == i && equal && in == out)
				continue;
			return ERR(PRECONDITION, "result b%u overlaps %s b%u", o[i].buf, j < k->nin ? "operand" : "result", o[j].buf);
		}
		TRY(use(ck, d, c, &o[i], &ro, true, false));
	}
	return NULL;
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

static struct err *run_plain(struct check *ck, int d, const struct prog_cmd *c)
{
	struct device *dv = &ck->dev[d];
	uint32_t *clock = &dv->clock[c->lane * ck->width];
	struct range a, b, r;
	switch (c->op) {
	case CMD_KERN: {
		const struct prog_kern *k = &ck->p->kern[c->id];
		return run_views(ck, d, c, k->nin, k->nout, k->v, ck->kern[c->id], k);
	}
	case CMD_CUSTOM: {
		const struct prog_custom *k = &ck->p->custom[c->id];
		return run_views(ck, d, c, k->nin, k->nout, k->v, ck->custom[c->id], NULL);
	}
	case CMD_COLL: return run_coll(ck, d, c);
	case CMD_SET: r = (struct range){c->imm, c->imm}; break;
	case CMD_ADD:
		TRY(reg_get(dv, c->reg[1], &a));
		TRY(reg_get(dv, c->reg[2], &b));
		r = plus(plus(a, b), (struct range){c->imm, c->imm});
		break;
	case CMD_MUL:
		TRY(reg_get(dv, c->reg[1], &a));
		r = times(a, c->imm);
		break;
	case CMD_MIN:
		TRY(reg_get(dv, c->reg[1], &a));
		r = (struct range){MIN(a.lo, c->imm), MIN(a.hi, c->imm)};
		break;
	case CMD_MAX:
		TRY(reg_get(dv, c->reg[1], &a));
		r = (struct range){MAX(a.lo, c->imm), MAX(a.hi, c->imm)};
		break;
	case CMD_LD: {
		int64_t n = dtype_info[c->dtype].bytes;
		struct reach one = {0, n, 1, {0}, n};
		TRY(use(ck, d, c, &ck->p->opnd[c->opnd], &one, false, false));
		r = type_range(c->dtype);
		break;
	}
	case CMD_ST: {
		int64_t n = dtype_info[c->dtype].bytes;
		struct reach one = {0, n, 1, {0}, n};
		TRY(reg_get(dv, c->reg[1], &a));
		return use(ck, d, c, &ck->p->opnd[c->opnd], &one, true, false);
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
		take_up(clock, dv->marks.p[*slot - 1], ck->width);
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
			TRY(reg_any(dv, c->reg[1], &n));
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
			worlds_join(ck, &f.enter, &dv->now);
		break;
	}
	case CMD_WHILE:
		f.nstep = dv->loops < 2 ? 5 : 3;
		break;
	default:
		TRY(reg_any(dv, c->reg[0], &n));
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
			worlds_join(ck, &f.enter, &dv->now);
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
			worlds_join(ck, &dv->now, &f->enter);
		for (int i = 0; i < dv->now.n; i++)
			dv->now.w[i]->set[c->reg[0]] = 0;
		break;
	case CMD_WHILE:
		if (f->step % 2 == 1) {   /* a condition was evaluated */
			TRY(reg_any(dv, c->reg[0], &r));
			if (r.lo <= 0 && r.hi >= 0)
				worlds_join(ck, &f->leave, &dv->now);
			over |= r.lo == 0 && r.hi == 0;
		}
		if (!over) {
			f->block = ck->p->sub[c->block + (uint32_t)(f->step % 2)];
			f->pc = 0;
			return NULL;
		}
		if (f->leave.n)
			worlds_take(ck, &dv->now, &f->leave);
		break;
	case CMD_CASE:
		if (f->enter.n)
			worlds_join(ck, &f->leave, &dv->now);
		if (!over) {
			struct worlds again = {0};
			worlds_join(ck, &again, &f->enter);
			worlds_take(ck, &dv->now, &again);
			f->block = ck->p->sub[c->block + (uint32_t)f->step];
			f->pc = 0;
			return NULL;
		}
		if (f->leave.n)
			worlds_take(ck, &dv->now, &f->leave);
		break;
	default:
		dv->done = true;
	}
	dv->loops -= c && c->op != CMD_CASE;
	worlds_free(ck, &f->enter);
	worlds_free(ck, &f->leave);
	dv->frame.n--;
	if (dv->frame.n)
		worlds_merge(ck, &dv->now, ck->pos[f[-1].block][f[-1].pc]);
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
				if (!e && c->op == CMD_COLL && team_size(ck, c, d) > 1) {
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

/* All of d's team stand at its collective: they hand their clocks round and go on. */
static bool pass(struct check *ck, int d)
{
	const struct prog_cmd *c = ck->dev[d].wait;
	const int32_t *team = ck->team[c->id];
	for (int i = 0; i < ck->ndev; i++)
		if (team[i] == team[d] && ck->dev[i].wait != c)
			return false;
	uint32_t *all = mem_alloc(sizeof *all * (size_t)ck->width);
	for (int i = 0; i < ck->ndev; i++)
		if (team[i] == team[d])
			take_up(all, &ck->dev[i].clock[c->lane * ck->width], ck->width);
	for (int i = 0; i < ck->ndev; i++) {
		if (team[i] != team[d])
			continue;
		uint32_t *clock = &ck->dev[i].clock[c->lane * ck->width];
		take_up(clock, all, ck->width);
		clock[i * LANES + c->lane]++;
		ck->dev[i].wait = NULL;
	}
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
			if (ck->team[c->id][i] != ck->team[c->id][d] || ck->dev[i].wait == c)
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
		bool sized = c->kind == COLL_all_gather || c->kind == COLL_reduce_scatter || c->kind == COLL_all_to_all;
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
			reach_of(&k->v[j], &ck->kern[i][j]);
			if (j >= k->nin && !apart(&k->v[j]))
				return ERR(PRECONDITION, "kernel %u %s: elements of result %u overlap", i, prog_kern_name[k->id], j - k->nin);
		}
	}
	ck->custom = ARENA_NEW(&ck->a, struct reach *, p->ncustom);
	for (uint32_t i = 0; i < p->ncustom; i++) {
		ck->custom[i] = ARENA_NEW(&ck->a, struct reach, custom_nopnd(&p->custom[i]));
		for (uint32_t j = 0; j < custom_nopnd(&p->custom[i]); j++)
			reach_of(&p->custom[i].v[j], &ck->custom[i][j]);
	}
	ck->team = ARENA_NEW(&ck->a, int32_t *, p->ncoll);
	for (uint32_t i = 0; i < p->ncoll; i++)
		TRY(teams(ck, i));
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
	register_lives(ck);
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
		space_init(&dv->s->space[0], p->zone, NONE);
		for (uint32_t i = 0; i < p->narg; i++)
			space_init(&dv->s->space[1 + i], p->arg[i].bytes, first[i] ? first[i] - 1 : NONE);
		for (uint32_t i = 0; i < p->nres; i++)
			space_init(&dv->s->space[1 + p->narg + i], p->res[i].bytes, NONE);
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
			struct err *e = touch(ck, &ck->dev[d], d, 0, b->size, &x);
			if (e)
				return err_wrap(e, "device %d, at the end: result %u", d, b->index);
		}
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
			worlds_free(&ck, &dv->frame.p[i].enter);
			worlds_free(&ck, &dv->frame.p[i].leave);
		}
		arr_free(&dv->frame);
		arr_free(&dv->marks);
		map_free(&dv->mark);
		worlds_free(&ck, &dv->now);
	}
	arena_fini(&ck.a);
	return e;
}
