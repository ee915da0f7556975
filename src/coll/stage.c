/* Ways for data to get from one PE to another: loans of operands where they lie, a ring of staging memory that
 * chunks are copied to and lent from, windows that two PEs write by turns, and messages.
 *
 * The ring is walked round and round, across calls: lines that are written again after many others have left the
 * caches of who read them, and writing them costs no transfer.  A call does not wait until its chunks are back;
 * whoever comes to the end of the ring waits for all PEs that were lent any part of it. */
#include "impl.h"

enum { AHEAD = SYM_RING / 2 };    /* messages that may be under way before the others' are looked at */

/* --- loans and grants --------------------------------------------------------------- */

bool loan_here(const struct call *q, const void *x) { return (uintptr_t)x - (uintptr_t)sym_ep_base(q->ep) < sym_span(q->c->heap); }

struct err *loan_make(const struct call *q, const void *x, int64_t n, bool copy, struct loan *out)
{
	char *base = sym_ep_base(q->ep);
	uint64_t off = (uint64_t)((uintptr_t)x - (uintptr_t)base);

	out->copy = NULL;
	if (loan_here(q, x) && !copy) {
		out->off = off;
		return NULL;
	}
	TRY(sym_alloc(q->c->heap, (size_t)n, "staging of a collective", -1, &out->copy));
	out->off = out->copy->off;
	memcpy(base + out->off, x, (size_t)n);
	return NULL;
}

void loan_end(const struct call *q, struct loan *l, const struct err *e)
{
	if (e)                            /* somebody may still read it, or write there, until all have left the launch */
		sym_keep(q->ep, l->copy);
	else
		sym_free(l->copy);
}

struct err *grant_make(const struct call *q, void *y, int64_t n, bool copy, struct loan *out)
{
	uint64_t off = (uint64_t)((uintptr_t)y - (uintptr_t)sym_ep_base(q->ep));

	*out = (struct loan){ off, NULL };
	if (off < sym_span(q->c->heap) && !copy)
		return NULL;
	TRY(sym_alloc(q->c->heap, (size_t)n, "what a collective receives", -1, &out->copy));
	out->off = out->copy->off;
	return NULL;
}

struct err *grant_end(const struct call *q, struct loan *l, void *y, int64_t n, struct err *e)
{
	if (l->copy && !e)
		memcpy(y, sym_ep_base(q->ep) + l->off, (size_t)n);
	loan_end(q, l, e);
	return e;
}

void copy_strided(struct sym_ep *ep, struct strided dst, int64_t di, int pe, size_t off, struct strided src, int64_t si, int64_t n)
{
	_Atomic uint32_t left = 0;

	if (!n)
		return;
	dst.p += di / dst.inner * dst.step;
	di %= dst.inner;
	int64_t row = si / src.inner * src.step;
	si %= src.inner;
	for (;;) {
		int64_t k = MIN(MIN(dst.inner - di, src.inner - si), n);
		if (pe < 0)
			memcpy(dst.p + di, src.p + row + si, (size_t)k);
		else
			sym_get_nb(ep, pe, dst.p + di, off + (size_t)(row + si), (size_t)k, &left);
		if (!(n -= k))
			break;
		if ((di += k) == dst.inner) {
			di = 0;
			dst.p += dst.step;
		}
		if ((si += k) == src.inner) {
			si = 0;
			row += src.step;
		}
	}
	sym_get_wait(ep, &left);
}

/* --- flows -------------------------------------------------------------------------- */

static inline int to_rank(const struct call *q, const struct flow *f, int k) { return f->to ? f->to[k] : rank_after(q, k + 1); }
static inline int from_rank(const struct call *q, const struct flow *f, int k) { return f->from ? f->from[k] : rank_after(q, k + 1); }
static inline int nto(const struct call *q, const struct flow *f) { return f->to ? f->nto : q->n - 1; }
static inline int nfrom(const struct call *q, const struct flow *f) { return f->from ? f->nfrom : q->n - 1; }

/* Learn where the next n bytes from everybody lie. */
static struct err *recv_all(const struct call *q, const struct flow *f, enum sym_verb v, int64_t n, struct where *w)
{
	struct sym_msg m;
	int pe[MAX_ROW];

	w[q->me] = (struct where){ 0 };
	if (nfrom(q, f) > 1) {
		for (int k = 0; k < nfrom(q, f); k++)
			pe[k] = q->pe[from_rank(q, f, k)];
		TRY(sym_expect(q->ep, pe, nfrom(q, f), q->site));
	}
	for (int k = 0; k < nfrom(q, f); k++) {
		int j = from_rank(q, f, k);
		TRY(recv_bytes(q, q->pe[j], v, n, &m));
		w[j] = (struct where){ v == SYM_LEND ? NULL : m.data, q->pe[j], m.off };
	}
	return NULL;
}

/* Who lent it may come to the end of its ring next and wait for this before it sends anything more. */
static void return_all(const struct call *q, const struct flow *f, enum sym_verb v)
{
	for (int k = 0; k < nfrom(q, f); k++)
		sym_return(q->ep, q->pe[from_rank(q, f, k)], v == SYM_LEND);
}

/* Take bytes [o, o + n) from everybody. */
static struct err *take_all(const struct call *q, const struct flow *f, enum sym_verb v, int64_t o, int64_t n)
{
	struct where w[MAX_ROW];

	TRY(recv_all(q, f, v, n, w));
	f->take(f->user, w, 0, o, n);
	return_all(q, f, v);
	return NULL;
}

struct err *ring_settle(struct coll *c, double seconds)
{
	for (int i = 0; i * 64 < c->npe; i++)
		for (; c->lent[i]; c->lent[i] &= c->lent[i] - 1) {
			int pe = i * 64 + __builtin_ctzll(c->lent[i]);
			TRY(seconds > 0 ? sym_await_for(c->ep, pe, c->line[pe], seconds) : sym_await(c->ep, pe, c->line[pe]));
		}
	c->at = 0;
	return NULL;
}

/* A ring of at least n bytes: as large as the table says if there is memory for it. */
static struct err *ring_make(struct coll *c, int64_t n)
{
	static const char what[] = "the staging ring of collectives";

	if (c->ring && (int64_t)c->ring->bytes >= n)
		return NULL;
	if (c->ring) {
		TRY(ring_settle(c, 0));
		sym_free(c->ring);
		c->ring = NULL;
	}
	struct err *e = sym_alloc(c->heap, (size_t)c->table.ring, what, -1, &c->ring);
	if (e && e->code == ERR_EXHAUSTED) {
		err_free(e);
		e = sym_alloc(c->heap, (size_t)n, what, -1, &c->ring);
	}
	return e;
}

/* How much is sent at a time: small messages in a few pieces, so that one is read while the next is written; what all
 * send at once in pieces of which two rounds fit the ring: its size does not depend on who sends. */
static int64_t piece_of(const struct call *q, const struct flow *f)
{
	enum { LEAST = 8 << 10, PIECES = 4 };
	const struct coll_table *t = &q->c->table;
	int64_t each = f->each ? MAX(q->n - 1, 1) : 1, most = t->ring / 2 / each & ~(int64_t)63;
	int64_t some = q->c->far ? t->chunk : MAX((f->bytes / PIECES + 4095) & ~(int64_t)4095, LEAST);

	return MIN(MIN(t->chunk, some), MAX(most, 64));
}

/* Two that send to each other.  What this one has just read in a window is in its first cache, and is written over at once.
 * In step o it takes the bytes at o, if there are any, and gives those a window ahead. */
static struct err *flow_swap(const struct call *q, const struct flow *f, int pe)
{
	enum { WEAVE = 1024, LONG = 64 << 10 };           /* bytes read and written by turns; that a message tells of */
	int to = to_rank(q, f, 0), from = from_rank(q, f, 0);
	struct where w[MAX_ROW];
	struct sym_swap *s;
	struct sym_msg m;

	TRY(sym_swap_with(q->ep, pe, &s));
	uint64_t first = s->at;
	s->at += (uint64_t)(f->bytes + 63) & ~(uint64_t)63;
	for (int64_t o = -SYM_WINDOW, n; o < f->bytes; o += n) {
		int64_t ahead = o + SYM_WINDOW;
		uint64_t x = first + (uint64_t)ahead;
		n = MIN(f->bytes - o, MIN(SYM_WINDOW - ahead % SYM_WINDOW, (int64_t)(LONG - x % LONG)));
		int64_t take = o < 0 ? 0 : n, give = MAX(MIN(f->bytes - ahead, n), 0), turn = take && give ? WEAVE : n;
		if (take) {
			TRY(recv_bytes(q, pe, SYM_READY, take, &m));
			if (m.off != x - SYM_WINDOW)
				return ERR(INTERNAL, "devices %d and %d do not agree on what they have exchanged", sym_ep_pe(q->ep), pe);
			w[from] = (struct where){ sym_swap_in(s, m.off), -1, 0 };
		}
		for (int64_t b = 0; b < n; b += turn) {
			if (b < take)
				f->take(f->user, w, b, o + b, MIN(turn, take - b));
			if (b < give)
				f->fill(f->user, to, ahead + b, MIN(turn, give - b), sym_swap_out(s, x) + b);
		}
		if (take)
			sym_return(q->ep, pe, false);
		if (give)
			TRY(sym_tell(q->ep, pe, q->site, SYM_READY, (size_t)x, (size_t)give));
	}
	return NULL;
}

struct err *flow_stage(const struct call *q, const struct flow *f)
{
	struct coll *c = q->c;
	int to = nto(q, f), from = nfrom(q, f);
	int64_t each = f->each ? MAX(q->n - 1, 1) : 1, piece = piece_of(q, f), taken = 0;

	if (to == 1 && from == 1 && q->pe[to_rank(q, f, 0)] == q->pe[from_rank(q, f, 0)] && sym_maps(q->ep, q->pe[to_rank(q, f, 0)]))
		return flow_swap(q, f, q->pe[to_rank(q, f, 0)]);
	TRY(ring_make(c, MIN(piece, (f->bytes + 63) & ~(int64_t)63) * each));
	char *base = sym_ep_base(c->ep) + c->ring->off;
	for (int64_t o = 0; o < f->bytes; o += piece) {
		int64_t n = MIN(f->bytes - o, piece), room = (n + 63) / 64 * 64, need = to ? room * (f->each ? to : 1) : 0;
		if (c->at + need > (int64_t)c->ring->bytes) {
			/* The others may be waiting likewise: what they have sent is taken first. */
			for (; taken < o && from; taken += piece)
				TRY(take_all(q, f, SYM_LEND, taken, MIN(f->bytes - taken, piece)));
			TRY(ring_settle(c, 0));
		}
		for (int k = 0; k < to; k++) {
			int j = to_rank(q, f, k), pe = q->pe[j];
			if (!k || f->each) {
				f->fill(f->user, j, o, n, base + c->at);
				c->at += room;
			}
			TRY(sym_tell(q->ep, pe, q->site, SYM_LEND, c->ring->off + (size_t)(c->at - room), (size_t)n));
			c->lent[pe / 64] |= (uint64_t)1 << pe % 64;
			c->line[pe] = sym_sent(q->ep, pe);
		}
		for (; taken < o && from; taken += piece)
			TRY(take_all(q, f, SYM_LEND, taken, MIN(f->bytes - taken, piece)));
	}
	for (; taken < f->bytes && from; taken += piece)
		TRY(take_all(q, f, SYM_LEND, taken, MIN(f->bytes - taken, piece)));
	return NULL;
}

struct err *flow_slot(const struct call *q, const struct flow *f)
{
	int to = nto(q, f), from = nfrom(q, f);
	int64_t taken = 0;
	void *room;

	if (f->from_here && !f->to && !f->from && f->bytes <= SYM_SLOT) {       /* all tell all */
		struct sym_msg m[MAX_ROW];
		struct where w[MAX_ROW];
		TRY(sym_exchange(q->ep, q->pe, q->n, q->me, q->site, f->from_here, (size_t)f->apart, (size_t)f->bytes, m));
		for (int j = 0; j < q->n; j++)
			w[j] = (struct where){ m[j].data, q->pe[j], 0 };
		f->take(f->user, w, 0, 0, f->bytes);
		return NULL;
	}
	/* Some messages ahead of what has been taken: the way there and back is not waited for each time. */
	for (int64_t o = 0; o < f->bytes; o += SYM_SLOT) {
		int64_t n = MIN(f->bytes - o, SYM_SLOT);
		if (from && o - taken >= AHEAD * SYM_SLOT) {
			TRY(take_all(q, f, SYM_SLOT_MSG, taken, SYM_SLOT));
			taken += SYM_SLOT;
		}
		for (int k = 0; k < to; k++) {
			int j = to_rank(q, f, k);
			if (f->from_here && (n <= SYM_SHORT || !sym_maps(q->ep, q->pe[j]))) {
				TRY(sym_slot_put(q->ep, q->pe[j], q->site, f->from_here + j * f->apart + o, (size_t)n));
				continue;
			}
			TRY(sym_slot_room(q->ep, q->pe[j], (size_t)n, &room));
			f->fill(f->user, j, o, n, room);
			sym_slot_send(q->ep, q->pe[j], q->site, (size_t)n);
		}
	}
	for (; from && taken < f->bytes; taken += SYM_SLOT)
		TRY(take_all(q, f, SYM_SLOT_MSG, taken, MIN(f->bytes - taken, SYM_SLOT)));
	return NULL;
}
