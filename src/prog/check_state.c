/* Check: the states of a device (registers, and for each byte who wrote it and when it was touched), how they are joined where
 * paths meet, and what an access finds and leaves there. */
#include "check.h"

#include <stdlib.h>

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
void ck_lives(struct check *ck)
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

/* --- states ---------------------------------------------------------------- */

static struct state *state_copy(const struct check *ck, const struct state *s)
{
	struct state *t = mem_alloc(sizeof *t);
	t->reg = mem_alloc(sizeof *t->reg * ck->p->nreg);
	t->set = mem_alloc(ck->p->nreg);
	t->space = mem_alloc(sizeof *t->space * (size_t)ck->nspace);
	memcpy(t->reg, s->reg, sizeof *t->reg * ck->p->nreg);
	memcpy(t->set, s->set, ck->p->nreg);
	if (ck->loans) {
		t->held = mem_alloc(ck->p->ncoll);
		t->hop = mem_alloc(sizeof *t->hop * ck->p->nbuf);
		memcpy(t->held, s->held, ck->p->ncoll);
		memcpy(t->hop, s->hop, sizeof *t->hop * ck->p->nbuf);
		for (size_t i = 0; i < s->lent.n; i++)
			arr_push(&t->lent, s->lent.p[i]);
	}
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
	free(s->held);
	free(s->hop);
	arr_free(&s->lent);
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

static bool same_lent(const struct lent *a, const struct lent *b)
{
	return a->loan == b->loan && a->age == b->age && a->told == b->told && a->many == b->many && a->space == b->space && a->lo == b->lo && a->hi == b->hi;
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
	for (uint32_t i = 0; ck->loans && i < ck->p->ncoll; i++)
		s->held[i] = s->held[i] == t->held[i] ? s->held[i] : 2;
	for (uint32_t i = 0; ck->loans && i < ck->p->nbuf; i++)
		s->hop[i] = MAX(s->hop[i], t->hop[i]);
	for (size_t i = 0; i < t->lent.n; i++) {
		size_t k = 0;
		while (k < s->lent.n && !same_lent(&s->lent.p[k], &t->lent.p[i]))
			k++;
		if (k == s->lent.n)
			arr_push(&s->lent, t->lent.p[i]);
	}
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

void ck_worlds_join(const struct check *ck, struct worlds *w, const struct worlds *from)
{
	for (int i = 0; i < from->n; i++)
		worlds_add(ck, w, state_copy(ck, from->w[i]));
}

void ck_worlds_free(const struct check *ck, struct worlds *w)
{
	for (int i = 0; i < w->n; i++)
		state_free(ck, w->w[i]);
	w->n = 0;
}

void ck_worlds_take(const struct check *ck, struct worlds *w, struct worlds *from)
{
	ck_worlds_free(ck, w);
	*w = *from;
	from->n = 0;
}

void ck_worlds_merge(const struct check *ck, struct worlds *w, uint32_t at)
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

static const char *kind_of(const struct check *ck, uint32_t owner)
{
	static const char *const kind[] = {"argument", "result", "temporary", "constant", "what is lent,"};
	return kind[ck->p->buf[owner].kind];
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

/* What is lent is not written, whoever lends it. */
static struct err *unlent(const struct device *dv, int space, int64_t lo, int64_t hi, uint32_t buf)
{
	for (size_t i = 0; i < dv->s->lent.n; i++) {
		const struct lent *l = &dv->s->lent.p[i];
		if (l->space == space && l->lo < hi && lo < l->hi)
			return ERR(PRECONDITION, "b%u changes while collective %u lends bytes of it, which are not awaited", buf, l->loan);
	}
	return NULL;
}

/* Segments *first .. *end-1 of s become bytes lo .. hi-1. */
static void cut(struct space *s, int64_t lo, int64_t hi, size_t *first, size_t *end)
{
	if (s->seg.p[*first].lo < lo) {
		seg_split(s, *first, lo);
		++*first;
		++*end;
	}
	if (s->seg.p[*end - 1].hi > hi)
		seg_split(s, *end - 1, hi);
}

/* Touch bytes lo .. hi-1 of the buffer's storage on device d. */
struct err *ck_touch(struct check *ck, struct device *dv, int d, int64_t lo, int64_t hi, const struct access *x)
{
	int64_t base;
	int space = prog_space(ck->p, x->buf, &base);
	struct space *s = &dv->s->space[space];
	uint32_t mine = ck->owner[x->buf], donor = donor_of(ck, mine);
	lo += base;
	hi += base;
	if (lo >= hi)
		return NULL;
	if (x->write)
		TRY(unlent(dv, space, lo, hi, x->buf));
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
	/* Note the access on what lies between. */
	cut(s, lo, hi, &first, &i);
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

struct err *ck_forget(struct check *ck, struct device *dv, int d, uint32_t b, int lane)
{
	int64_t lo, hi;
	int space = prog_space(ck->p, b, &lo);
	struct space *s = &dv->s->space[space];
	struct access x = {.buf = b, .write = true, .lane = lane};
	hi = lo + ck->p->buf[b].size;
	for (size_t i = seg_find(s, lo); i < s->seg.n && s->seg.p[i].lo < hi; i++) {
		struct seg *g = &s->seg.p[i];
		if (g->owner != b)
			continue;
		TRY(unlent(dv, space, MAX(lo, g->lo), MIN(hi, g->hi), b));
		TRY(ck->nlane > 1 ? conflict(ck, dv, d, g, &x) : NULL);
		g->owner = NONE;
	}
	return NULL;
}

void ck_note_read(struct check *ck, struct device *dv, int d, const struct lent *x, int lane)
{
	if (ck->nlane == 1 || x->many || x->space < 0)
		return;
	struct space *s = &dv->s->space[x->space];
	size_t first = seg_find(s, x->lo), i = first;
	while (i < s->seg.n && s->seg.p[i].lo < x->hi)
		i++;
	cut(s, x->lo, x->hi, &first, &i);
	for (; first < i; first++)
		s->seg.p[first].read[lane] = MAX(s->seg.p[first].read[lane], dv->clock[lane * ck->width + d * LANES + lane]);
}

void ck_take_up(uint32_t *clock, const uint32_t *other, int n)
{
	for (int i = 0; i < n; i++)
		clock[i] = MAX(clock[i], other[i]);
}
