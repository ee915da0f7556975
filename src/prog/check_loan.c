/* Check: loans.
 *
 * What a device lends it must not write until it is back, whichever lane writes: the bytes stand in a list of the state.  The wait takes
 * them off it, and counts as a read of them on its lane, the last of all those that peers made.  What a device is lent is a value of the
 * LENT buffers, from next to back, which count as writes of their storage, as they are where it is copied.  A wait needs the backs
 * of all who read, each of its own device: their clocks are taken up. */
#include "check.h"

#include <stdlib.h>

enum { HELD = 1, PERHAPS = 2, FAR_AWAY = 1 << 20 };

/* --- who reads whom ----------------------------------------------------------- */

static const int64_t *from_of(const struct check *ck, const struct prog_coll *c) { return ck->p->table[c->pairs].v; }
static const int64_t *to_of(const struct check *ck, const struct prog_coll *c) { return ck->p->table[c->pairs + 1].v; }

/* Links from d to the last device whose bytes can come to it, at most n. */
static int64_t reach_of(const struct check *ck, const struct prog_coll *c, int d, int64_t n)
{
	const int64_t *from = from_of(ck, c);
	int at = d;
	for (int64_t k = 0; k < n; k++) {
		at = (int)from[at];
		if (at < 0 || at == d)
			return k;
	}
	return n;
}

/* --- the bytes ------------------------------------------------------------------- */

static struct lent *newest(struct state *s, uint32_t loan)
{
	for (size_t i = 0; i < s->lent.n; i++)
		if (s->lent.p[i].loan == loan && !s->lent.p[i].age)
			return &s->lent.p[i];
	return NULL;
}

/* X becomes what the loan has lent, or shows. */
static struct err *begin(struct check *ck, int d, const struct prog_cmd *c, bool told)
{
	struct device *dv = &ck->dev[d];
	struct state *s = dv->s;
	struct lent x = { .loan = c->id, .told = told };
	if (s->held[c->id])
		return ERR(PRECONDITION, "what was lent before is not given back%s", s->held[c->id] == PERHAPS ? " on every path" : "");
	for (size_t i = 0; i < s->lent.n; i++)
		if (s->lent.p[i].loan == c->id && ++s->lent.p[i].age > 1)
			return ERR(PRECONDITION, "what was lent two times before is not awaited");
	s->held[c->id] = HELD;
	TRY(ck_where(ck, dv, &ck->p->opnd[c->opnd], loan_bytes(&ck->p->coll[c->id]), &x));
	arr_push(&s->lent, x);
	return NULL;
}

static struct err *use(struct check *ck, int d, const struct prog_cmd *c, int k, bool write)
{
	int64_t n = loan_bytes(&ck->p->coll[c->id]);
	struct reach all = {0, n, 1, {0}, n};
	return ck_use(ck, d, c, &ck->p->opnd[c->opnd + (uint32_t)k], &all, write, false);
}

/* Is what a shows what this device lends now? */
static struct err *is_lent(struct check *ck, struct device *dv, const struct prog_cmd *c, const struct prog_opnd *a, const struct lent *x)
{
	struct lent is;
	if (dv->s->held[c->id] != HELD || !x)
		return ERR(PRECONDITION, "nothing was lent%s", dv->s->held[c->id] ? " on some path" : "");
	if (c->imm && !x->told)
		return ERR(PRECONDITION, "b%u was shown, but not lent", a->buf);
	if (ck->p->buf[a->buf].kind == BUF_LENT && ck->p->buf[a->buf].index == c->id)
		return NULL;
	TRY(ck_where(ck, dv, a, loan_bytes(&ck->p->coll[c->id]), &is));
	return is.space == x->space && is.lo == x->lo && is.hi == x->hi ? NULL : ERR(PRECONDITION, "b%u is not what was lent", a->buf);
}

/* Buffer b shows what is so many links away. */
static struct err *show(struct check *ck, int d, const struct prog_cmd *c, const struct prog_opnd *b, int64_t hop)
{
	ck->dev[d].s->hop[b->buf] = (int32_t)hop;
	return ck_use(ck, d, c, b, &(struct reach){0, ck->p->buf[b->buf].size, 1, {0}, ck->p->buf[b->buf].size}, true, false);
}

static struct err *run_next(struct check *ck, int d, const struct prog_cmd *c, int64_t times)
{
	struct device *dv = &ck->dev[d];
	struct state *s = dv->s;
	const struct prog_coll *l = &ck->p->coll[c->id];
	const struct prog_opnd *a = &ck->p->opnd[c->opnd], *b = a + 1;
	bool shown = ck->p->buf[a->buf].kind == BUF_LENT && ck->p->buf[a->buf].index == c->id;
	int64_t hop = 0;
	TRY(use(ck, d, c, 0, false));
	if (!c->imm && !shown && !s->held[c->id])
		TRY(begin(ck, d, c, false));
	TRY(is_lent(ck, dv, c, a, newest(s, c->id)));
	if (!c->imm && shown)
		hop = s->hop[a->buf];
	if (c->imm) {
		hop = MIN((shown ? s->hop[a->buf] : 0) + (a->buf == b->buf ? MIN(times, FAR_AWAY) : 1), FAR_AWAY);
		int64_t need = reach_of(ck, l, d, hop);
		if (need > l->hops)
			return ERR(PRECONDITION, "b%u is what is %ld links away, but it is lent to %u", b->buf, (long)need, l->hops);
	}
	return show(ck, d, c, b, hop);
}

/* What all of the group have lent. */
static struct err *run_all(struct check *ck, int d, const struct prog_cmd *c)
{
	struct device *dv = &ck->dev[d];
	const struct prog_coll *l = &ck->p->coll[c->id];
	const struct prog_opnd *a = &ck->p->opnd[c->opnd];
	int n = l->hops + 1, rank = ck->p->group[l->group].rank[d];
	TRY(use(ck, d, c, 0, false));
	TRY(is_lent(ck, dv, c, a, newest(dv->s, c->id)));
	for (int k = 0; k < n; k++)
		TRY(show(ck, d, c, a + 1 + k, (rank - k + n) % n));
	return NULL;
}

static struct err *run_back(struct check *ck, int d, const struct prog_cmd *c)
{
	struct device *dv = &ck->dev[d];
	struct state *s = dv->s;
	if (s->held[c->id] != HELD)
		return ERR(PRECONDITION, "nothing was lent%s", s->held[c->id] ? " on some path" : "");
	s->held[c->id] = 0;
	for (uint32_t b = 0; b < ck->p->nbuf; b++)
		if (ck->p->buf[b].kind == BUF_LENT && ck->p->buf[b].index == c->id)
			TRY(ck_forget(ck, dv, d, b, c->lane));
	return NULL;
}

static struct err *run_wait(struct check *ck, int d, const struct prog_cmd *c)
{
	struct device *dv = &ck->dev[d];
	struct state *s = dv->s;
	size_t n = 0;
	if (!c->imm && s->held[c->id])
		return ERR(PRECONDITION, "waits for what devices give back only after it");
	for (size_t i = 0; i < s->lent.n; i++) {
		const struct lent *x = &s->lent.p[i];
		if (x->loan != c->id || x->age < c->imm)
			s->lent.p[n++] = *x;
		else
			ck_note_read(ck, dv, d, x, c->lane);
	}
	s->lent.n = n;
	return NULL;
}

struct err *ck_loan(struct check *ck, int d, const struct prog_cmd *c, int64_t times)
{
	switch (c->op) {
	case CMD_LEND:
		TRY(use(ck, d, c, 0, false));
		return begin(ck, d, c, true);
	case CMD_NEXT: return ck->p->coll[c->id].kind == COLL_permute ? run_next(ck, d, c, times) : run_all(ck, d, c);
	case CMD_BACK: return run_back(ck, d, c);
	default: return run_wait(ck, d, c);
	}
}

/* --- the devices ------------------------------------------------------------------ */

bool ck_loan_meets(const struct check *ck, int d, const struct prog_cmd *c)
{
	struct device *dv = &ck->dev[d];
	struct loan_of *l = &dv->loan[c->id];
	switch (c->op) {
	case CMD_NEXT:
		if (l->given < l->begun)         /* by 0: of what was lent, or a beginning */
			return c->imm;
		/* fall through */
	case CMD_LEND:
		l->begun++;
		l->depth = (int)dv->frame.n;
		return c->op == CMD_LEND;
	case CMD_BACK: {
		uint32_t *clock = &dv->clock[c->lane * ck->width];
		l->given = l->begun;
		memcpy(l->clock, clock, sizeof *clock * (size_t)ck->width);
		clock[d * LANES + c->lane]++;
		return false;
	}
	default:
		return true;
	}
}

void ck_loan_pass(struct check *ck, int d, const struct prog_cmd *c, const uint32_t *before)
{
	const struct prog_coll *l = &ck->p->coll[c->id];
	uint32_t *clock = &ck->dev[d].clock[c->lane * ck->width];
	for (int k = 1; k <= l->hops && c->op == CMD_LEND; k++) {
		int s = prog_link(from_of(ck, l), d, k);
		if (s < 0 || s == d)
			break;
		ck_take_up(clock, before + (int64_t)s * ck->width, ck->width);
	}
	clock[d * LANES + c->lane]++;
}

int ck_loan_owed(const struct check *ck, int d, const struct prog_cmd *c)
{
	const struct prog_coll *l = &ck->p->coll[c->id];
	const struct device *dv = &ck->dev[d];
	for (int k = 1; k <= l->hops; k++) {
		int r = prog_link(to_of(ck, l), d, k);
		if (r < 0 || r == d)
			break;
		if (ck->dev[r].loan[c->id].given + (uint32_t)c->imm < dv->loan[c->id].begun)
			return r;
	}
	return -1;
}

void ck_loan_back(struct check *ck, int d, const struct prog_cmd *c)
{
	const struct prog_coll *l = &ck->p->coll[c->id];
	uint32_t *clock = &ck->dev[d].clock[c->lane * ck->width];
	for (int k = 1; k <= l->hops; k++) {
		int r = prog_link(to_of(ck, l), d, k);
		if (r < 0 || r == d)
			break;
		ck_take_up(clock, ck->dev[r].loan[c->id].clock, ck->width);
	}
}

struct err *ck_loan_end(const struct check *ck, const struct state *s)
{
	for (uint32_t i = 0; ck->loans && i < ck->p->ncoll; i++)
		if (s->held[i])
			return ERR(PRECONDITION, "what collective %u was lent is not given back%s", i, s->held[i] == PERHAPS ? " on every path" : "");
	for (size_t i = 0; i < s->lent.n; i++)
		return ERR(PRECONDITION, "what collective %u lends is not awaited", s->lent.p[i].loan);
	return NULL;
}
