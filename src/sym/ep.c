/* Endpoints: messages over pair channels.  A wait is for a word that one peer writes: in the waiter's own heap, but for posts. */
#include <stdlib.h>

#include "ep.h"

/* --- lines -------------------------------------------------------------------- */

enum { AHEAD = 2 };               /* lines */
#define RARE __attribute__((noinline))        /* out of the way of what is there at the first look */

/* The line after next of those to pe.  Nobody looks at it yet: it can be had meanwhile, and will be written where it is. */
static inline struct sym_line *after_next(const struct sym_ep *ep, int pe) { return &ep->to[pe].from->ring[chan_slot(ep->chan[pe].tx + AHEAD)]; }

static inline void own_line(const struct sym_ep *ep, const struct sym_line *l)
{
	if (ep->spins >= SYM_BRISK)
		sym_own(l);
}

/* n: bytes of a slot message; longer ones are in the slot, or at src for PEs that are not mapped. */
static void line_write(struct sym_ep *ep, int pe, uint32_t slot, uint64_t tick, uint64_t what, const uint64_t w[4], uint32_t n, const void *src)
{
	struct sym_from *to = ep->to[pe].from;
	uint32_t ack = ep->chan[pe].done;

	if (to) {
		struct sym_line *l = &to->ring[slot];
		l->what = what;
		memcpy(l->w, w, sizeof l->w);
		l->ack = ack;
		l->n = n;
		atomic_store_explicit(&l->last, tick, memory_order_relaxed);
		atomic_store_explicit(&l->first, tick, memory_order_release);
		sym_notify_at(ep->world, pe, ep->to[pe].control);
		own_line(ep, after_next(ep, pe));
	} else {
		uint64_t v[8] = { tick, what, w[0], w[1], w[2], w[3], (uint64_t)n << 32 | ack, tick };
		size_t off = FROM_ME(ep, ring) + slot * sizeof(struct sym_line);
		const struct sym_transport *tr = n > SYM_INLINE ? sym_road_to(ep, pe) : ep->world->tr;
		if (n > SYM_INLINE)
			VIA(ep, tr->put_line(ep->world, ep->pe, pe, FROM_ME(ep, slot) + slot * SYM_SLOT, src, n, off, v, 8));
		else
			VIA(ep, tr->line(ep->world, ep->pe, pe, off, v, 8));
	}
}

void sym_deliver(struct sym_world *w, int pe, char *at, const uint64_t *word, int n)
{
	if (n == SYM_WORDS) {             /* a line, or a mail */
		memcpy(at + 8, word + 1, 48);
		atomic_store_explicit((_Atomic uint64_t *)(at + 56), word[7], memory_order_relaxed);
	} else if (n > 1)
		memcpy(at + 8, word + 1, (size_t)(n - 1) * 8);
	atomic_store_explicit((_Atomic uint64_t *)at, word[0], memory_order_release);
	sym_notify(w, pe);
}

void sym_lost_data(struct sym_world *w, int from, int proc)
{
	for (int which = 0; which < SYM_SEATS; which++)     /* which one asked is not known */
		atomic_store(&w->ep[which * w->nlocal + from - w->first].lost, proc + 1);
}

static bool named(const struct sym_ep *ep, int pe)
{
	for (int i = 0; i < ep->l.npeer; i++)
		if (ep->l.peer[i] == pe)
			return true;
	return false;
}

/* Wait until a line may be sent. */
static struct err *credit_wait(struct sym_ep *ep, int pe)
{
	struct chan *c = &ep->chan[pe];
	struct err *e = NULL;

	if (!c->open && !named(ep, pe))
		return ep_stranger(ep, pe);
	uint32_t site = (uint32_t)atomic_load_explicit(&ep->seat->status, memory_order_relaxed);
	if (c->tx == UINT32_MAX)
		return ERR(EXHAUSTED, "more than 2^32 messages between two devices in one launch");
	if (chan_may_send(c))
		return NULL;
	WAIT(e, chan_may_send(c) || chan_left(c), pe, site);
	return e || chan_may_send(c) ? e : ep_absent(ep, pe, site);
}

static inline struct err *credit(struct sym_ep *ep, int pe)
{
	if (__builtin_expect(!ep_is_pe(ep, pe), 0))
		return ep_stranger(ep, pe);
	const struct chan *c = &ep->chan[pe];

	return __builtin_expect(c->open && c->tx - c->acked < CHAN_RING && c->tx != UINT32_MAX, 1) ? NULL : credit_wait(ep, pe);
}

static inline uint64_t what_of(const struct sym_ep *ep, uint32_t site, enum sym_verb v)
{
	return (uint64_t)ep->l.prog << 32 | (uint64_t)(site & 0xffffff) << 8 | v;
}

/* What a message of this site says, and its PE shows. */
static inline uint64_t at_site(struct sym_ep *ep, uint32_t site, enum sym_verb v)
{
	atomic_store_explicit(&ep->seat->status, (uint64_t)ep->l.prog << 32 | site, memory_order_relaxed);
	return what_of(ep, site, v);
}

static struct err *no_message(size_t n) { return ERR(INVALID, "a message of %zu bytes, at NULL or more than %d", n, SYM_SLOT); }

struct err *sym_slot_room(struct sym_ep *ep, int pe, size_t n, void **out)
{
	if (n > SYM_SLOT)
		return no_message(n);
	TRY(credit(ep, pe));
	struct sym_from *to = ep->to[pe].from;
	*out = n <= SYM_SHORT || !to ? ep->room : to->slot[chan_slot(ep->chan[pe].tx + 1)];
	return NULL;
}

enum { IN_PIECES = 1u << 31 };    /* beside the bytes of a message */

/* What a line says, and what there is beyond it.  The line goes first: its way and that of the pieces are one. */
static inline void short_fill(struct sym_line *l, uint64_t tick, uint64_t what, uint32_t ack, const char *src, size_t n)
{
	copy_few(l->w, src, MIN(n, SYM_INLINE));
	l->what = what;
	l->ack = ack;
	l->n = (uint32_t)n | (n > SYM_INLINE ? IN_PIECES : 0);
	atomic_store_explicit(&l->last, tick, memory_order_relaxed);
	atomic_store_explicit(&l->first, tick, memory_order_release);
}

/* As many as hold n bytes. */
static inline void own_pieces(const struct sym_line *l, size_t n)
{
	const struct sym_piece *p = l->piece;

	for (size_t o = SYM_INLINE; o < n; o += SYM_PIECE)
		sym_own(p++);
}

enum { BRIEF = 256 };             /* bytes; longer messages take as long to write as an answer takes to come */

static inline void pieces_fill(struct sym_line *l, uint64_t tick, const char *src, size_t n)
{
	struct sym_piece *p = l->piece;

	for (size_t o = SYM_INLINE; o < n; o += SYM_PIECE, p++) {
		if (n - o >= SYM_PIECE)
			memcpy(p->w, src + o, SYM_PIECE);
		else
			memcpy(p->w, src + o, n - o);
		atomic_store_explicit(&p->tick, tick, memory_order_release);
	}
}

/* What a short message has beyond its line. */
static RARE void beyond_write(struct sym_ep *ep, int pe, struct sym_line *l, const struct sym_line *next, uint64_t tick, const char *src, size_t n)
{
	pieces_fill(l, tick, src, n);
	sym_notify_at(ep->world, pe, ep->to[pe].control);
	if (n <= BRIEF)
		own_pieces(next, n);
}

/* A short message to a PE whose heap is mapped.  One time in SAMPLE the way to the answer is measured, see brisk.  The pieces after next are
 * asked for at once if they are few; of many (own_many), who waits for an answer has the lines of that first. */
static inline void short_write(struct sym_ep *ep, int pe, uint64_t what, const char *src, size_t n)
{
	enum { SAMPLE = 1024 };
	uint64_t tick;
	uint32_t slot = chan_send(&ep->chan[pe], &tick);
	struct sym_from *to = ep->to[pe].from;
	const struct sym_line *next = after_next(ep, pe);

	short_fill(&to->ring[slot], tick, what, ep->chan[pe].done, src, n);
	sym_notify_at(ep->world, pe, ep->to[pe].control);
	own_line(ep, next);
	if (!(ep->lines++ % SAMPLE))
		ep->asked_at = clock_s();
	ep->asked = n <= BRIEF;
	if (n > SYM_INLINE)
		beyond_write(ep, pe, &to->ring[slot], next, tick, src, n);
}

/* Out of the way of shorter messages. */
static RARE void own_all_pieces(const struct sym_line *l, size_t n) { own_pieces(l, n); }

static inline void own_many(const struct sym_ep *ep, int pe, size_t n)
{
	if (n > BRIEF && n <= SYM_SHORT && ep->to[pe].from)
		own_all_pieces(after_next(ep, pe), n);
}

/* A piece that was not there at the first look. */
static RARE struct err *piece_wait(struct sym_ep *ep, int pe, uint32_t site, const struct sym_piece *p, uint64_t tick)
{
	enum { FEW = 4 };
	struct err *e = NULL;

	for (int i = 0; i < FEW; i++) {
		sym_pause();
		if (atomic_load_explicit(&p->tick, memory_order_acquire) == tick)
			return NULL;
	}
	WAIT(e, atomic_load_explicit(&p->tick, memory_order_acquire) == tick, pe, site);
	return e;
}

/* Put together what came in pieces; at: which of the PE's lines it is. */
static struct err *pieces_read(struct sym_ep *ep, int pe, uint32_t site, uint32_t at, const struct sym_line *l, size_t n, uint64_t tick, struct sym_msg *out)
{
	const struct sym_piece *p = l->piece;

	if (n > SYM_SHORT)
		return ERR(INTERNAL, "device %d sent a short message of %zu bytes", pe, n);
	if (!ep->in[pe])
		ep->in[pe] = mem_lines((SYM_RING + SYM_POSTS) * sizeof *ep->in[pe]);
	char *in = ep->in[pe][at];
	for (const struct sym_piece *q = p, *end = p + (n - SYM_INLINE + SYM_PIECE - 1) / SYM_PIECE; q < end; q++)
		__builtin_prefetch(q);
	memcpy(in, l->w, SYM_INLINE);
	for (size_t o = SYM_INLINE; o < n; o += SYM_PIECE, p++) {
		if (atomic_load_explicit(&p->tick, memory_order_acquire) != tick)
			TRY(piece_wait(ep, pe, site, p, tick));
		memcpy(in + o, p->w, SYM_PIECE);
	}
	out->n = n;
	out->data = in;
	return NULL;
}

void sym_slot_send(struct sym_ep *ep, int pe, uint32_t site, size_t n)
{
	uint64_t w[4] = { 0 }, tick;

	if (n <= SYM_SHORT && ep->to[pe].from) {
		short_write(ep, pe, at_site(ep, site, SYM_SLOT_MSG), ep->room, n);
		own_many(ep, pe, n);
		return;
	}
	uint64_t what = at_site(ep, site, SYM_SLOT_MSG);
	uint32_t slot = chan_send(&ep->chan[pe], &tick);
	if (n <= SYM_INLINE)
		memcpy(w, ep->room, sizeof w);
	line_write(ep, pe, slot, tick, what, w, (uint32_t)n, ep->room);
}

struct err *sym_slot_put(struct sym_ep *ep, int pe, uint32_t site, const void *src, size_t n)
{
	bool direct = ep_is_pe(ep, pe) && ep->to[pe].from;
	void *room;

	if (n > SYM_SLOT || (n && !src))
		return no_message(n);
	if (n <= SYM_SHORT && direct) {
		TRY(credit(ep, pe));
		short_write(ep, pe, at_site(ep, site, SYM_SLOT_MSG), src, n);
		own_many(ep, pe, n);
		return NULL;
	}
	if (n <= SYM_INLINE || direct) {
		TRY(sym_slot_room(ep, pe, n, &room));
		memcpy(room, src, n);
		sym_slot_send(ep, pe, site, n);
		return NULL;
	}
	uint64_t w[4] = { 0 }, tick;
	TRY(credit(ep, pe));
	uint64_t what = at_site(ep, site, SYM_SLOT_MSG);
	uint32_t slot = chan_send(&ep->chan[pe], &tick);
	line_write(ep, pe, slot, tick, what, w, (uint32_t)n, src);
	return NULL;
}

struct err *sym_tell(struct sym_ep *ep, int pe, uint32_t site, enum sym_verb v, size_t off, size_t n)
{
	uint64_t w[4] = { off, n }, tick;

	TRY(credit(ep, pe));
	uint64_t what = at_site(ep, site, v);
	uint32_t slot = chan_send(&ep->chan[pe], &tick);
	line_write(ep, pe, slot, tick, what, w, 0, NULL);
	return NULL;
}

/* Who has just sent is answered no sooner than two cores can speak to each other.  A look before the peer has written takes
 * the line from it, so that its own comes as much later: two that look too early take turns in that.  So the first look
 * waits for two thirds of what a line has been seen to take, which may change. */
enum { MOST_NS = 45 };

void sym_patience(struct sym_ep *ep, double takes)
{
	ep->takes = MIN(MAX(takes, 0), 3e-9 * MOST_NS);
	ep->patient = (int)(MIN(ep->takes * 2 / 3, 1e-9 * MOST_NS) / ep->world->pause + 0.5);
}

static inline void be_patient(const struct sym_ep *ep)
{
	for (int i = ep->asked ? ep->patient : 0; i; i--)
		sym_pause();
}

static void brisk(struct sym_ep *ep, const struct chan *c)
{
	be_patient(ep);
	if (ep->asked)                    /* comes with the line; of more of them, or before it, the writer would be robbed */
		__builtin_prefetch(c->in[chan_slot(c->rx + 1)].piece);
	for (int i = 0; i < SYM_BRISK && !chan_arrived(c); i++)
		sym_pause();
	if (__builtin_expect(!ep->asked_at, 1))
		return;
	double now = clock_s(), took = now - ep->asked_at - (clock_s() - now);
	if (ep->asked && chan_arrived(c))
		sym_patience(ep, ep->takes + (took - ep->patient * ep->world->pause - ep->takes) / 8);
	ep->asked_at = 0;
}

enum { ALL = -2, REST = -1 };     /* all has come; all that will come */

/* What is waited for from a PE: it has come, it may come, it will not come. */
enum due { HERE, DUE, NEVER };

/* One of pe of which something is due, if possible of this core. */
static inline __attribute__((always_inline)) int due_of(struct sym_ep *ep, const int *pe, int n, enum due (*of)(struct sym_ep *ep, int pe))
{
	int who = ALL;

	for (int i = 0; i < n; i++) {
		enum due d = of(ep, pe[i]);
		if (__builtin_expect(d == HERE, 1))
			continue;
		if (d == NEVER) {
			who = MAX(who, REST);
			continue;
		}
		who = pe[i];
		if (ep_beside(ep, who))
			break;
	}
	return who;
}

/* The next line of another PE. */
static inline enum due line_due(struct sym_ep *ep, int pe)
{
	const struct chan *c = &ep->chan[pe];

	return chan_arrived(c) || pe == ep->pe ? HERE : chan_left(c) ? NEVER : DUE;
}

/* *all: none will be missed. */
static inline struct err *expect(struct sym_ep *ep, const int *pe, int n, uint32_t site, bool *all)
{
	struct err *e = NULL;
	int who = REST;

	if (ep->spins >= SYM_BRISK && !ep->away)
		be_patient(ep);
	ep->asked = false;
	for (int i = 0; i < n; i++)       /* on their way together */
		__builtin_prefetch(&ep->chan[pe[i]].in[chan_slot(ep->chan[pe[i]].rx + 1)]);
	WAIT(e, (who = due_of(ep, pe, n, line_due)) < 0, who, site);
	*all = who == ALL;
	return e;
}

struct err *sym_expect(struct sym_ep *ep, const int *pe, int n, uint32_t site)
{
	bool all;

	TRY(ep_are_pes(ep, pe, n));
	return expect(ep, pe, n, site, &all);
}

/* The line that has arrived, which must say `want`. */
static inline struct err *take(struct sym_ep *ep, int pe, uint32_t site, enum sym_verb v, uint64_t want, struct sym_msg *out)
{
	struct chan *c = &ep->chan[pe];
	uint32_t slot = chan_slot(c->rx + 1);
	struct sym_line *l = chan_take(c);

	if (__builtin_expect(l->what != want, 0))
		return ep_other_line(ep, pe, site, l);
	if (l->n & IN_PIECES)
		return pieces_read(ep, pe, site, slot, l, l->n & ~IN_PIECES, chan_tick(c, c->rx), out);
	out->off = l->w[0];
	out->n = v == SYM_SLOT_MSG ? l->n : l->w[1];
	out->data = l->n <= SYM_INLINE ? (const void *)l->w : ep->from[pe].slot[slot];
	return NULL;
}

/* A peer that has left the launch sends nothing more; what it sent before is there by then. */
static RARE struct err *line_wait(struct sym_ep *ep, int pe, uint32_t site)
{
	struct chan *c = &ep->chan[pe];
	bool left = false;
	struct err *e = NULL;

	if (!named(ep, pe))
		return ep_stranger(ep, pe);
	WAIT(e, chan_arrived(c) || (left && !chan_arrived(c)) || ((left = chan_left(c)) && false), pe, site);
	return e || chan_arrived(c) ? e : ep_absent(ep, pe, site);
}

struct err *sym_recv(struct sym_ep *ep, int pe, uint32_t site, enum sym_verb v, struct sym_msg *out)
{
	if (!ep_is_pe(ep, pe))
		return ep_stranger(ep, pe);
	struct chan *c = &ep->chan[pe];

	uint64_t want = at_site(ep, site, v);
	if (ep->spins >= SYM_BRISK && !ep->away)
		brisk(ep, c);
	ep->asked = false;
	if (!chan_arrived(c))
		TRY(line_wait(ep, pe, site));
	return take(ep, pe, site, v, want, out);
}

/* --- posts ------------------------------------------------------------------ */

/* What each PE tells all others alike it writes once, in its own heap, and they read it there: one line changes hands
 * instead of one for each two PEs.  The first such exchange of a launch goes through the channels: who has heard from all
 * of them knows that they have done with the posts of all launches before, and how many these were.  Who has read the n-th
 * post of all others, which they wrote when they had done with those before it, may overwrite all its posts but that one.
 * The place of the one after the next is asked for ahead. */

/* A post.  Whose next line came before it is somewhere else. */
static inline enum due post_due(struct sym_ep *ep, int pe)
{
	const struct chan *c = &ep->chan[pe];
	uint64_t tick = ep_post_tick(ep, pe);

	return ep_posted(ep, pe, tick) ? HERE : chan_left(c) || (chan_arrived(c) && !ep_posted(ep, pe, tick)) ? NEVER : DUE;
}

static struct err *post_missing(struct sym_ep *ep, int pe, uint32_t site)
{
	const struct chan *c = &ep->chan[pe];

	return chan_arrived(c) ? ep_diverged(ep, pe, site, &c->in[chan_slot(c->rx + 1)]) : ep_absent(ep, pe, site);
}

static struct err *post_exchange(struct sym_ep *ep, const int *pe, int npe, uint32_t site, const char *src, size_t n, struct sym_msg *out)
{
	uint64_t what = at_site(ep, site, SYM_SLOT_MSG), tick = ++ep->posts;
	struct sym_line *l = ep_post_at(ep->me, ep->which, tick);
	struct err *e = NULL;
	int who = REST;

	short_fill(l, tick, what, 0, src, n);
	if (n > SYM_INLINE)
		pieces_fill(l, tick, src, n);
	own_line(ep, ep_post_at(ep->me, ep->which, tick + AHEAD));
	for (int k = 0; k < npe; k++) {
		struct sym_control *its = ep->to[pe[k]].control;
		__builtin_prefetch(ep_post_at(its, ep->which, ep_post_tick(ep, pe[k])));      /* on their way together */
		if (pe[k] != ep->pe)
			sym_notify_at(ep->world, pe[k], its);
	}
	ep->asked = false;
	ep->met = false;                  /* who is ahead has seen this post, and has made its own: a look will find it */
	WAIT(e, (who = due_of(ep, pe, npe, post_due)) < 0, who, site);
	ep->met = true;
	TRY(e);
	for (int k = 0; k < npe; k++) {
		tick = ep_post_tick(ep, pe[k]);
		l = ep_post_at(ep->to[pe[k]].control, ep->which, tick);
		if (__builtin_expect(who == REST, 0) && !ep_posted(ep, pe[k], tick))
			return post_missing(ep, pe[k], site);
		if (__builtin_expect(l->what != what || (l->n & ~IN_PIECES) != n, 0))
			return l->what != what ? ep_diverged(ep, pe[k], site, l) : ep_other_size(ep, pe[k], site, l->n & ~IN_PIECES, n);
		if (n > SYM_INLINE && pe[k] != ep->pe)
			TRY(pieces_read(ep, pe[k], site, SYM_RING + (uint32_t)(tick % SYM_POSTS), l, l->n & ~IN_PIECES, tick, &out[k]));
		else
			out[k] = (struct sym_msg){ l->w[0], n, n > SYM_INLINE ? src : (const void *)l->w };
	}
	return NULL;
}

/* What is for the k-th of them. */
static inline const char *part(const char *src, int k, size_t step) { return step ? src + (size_t)k * step : src; }

static struct err *pair_exchange(struct sym_ep *ep, const int *pe, int npe, int me, uint32_t site, const char *src, size_t step, size_t n, struct sym_msg *out)
{
	uint64_t what = at_site(ep, site, SYM_SLOT_MSG);
	bool all = false;

	if ((unsigned)me >= (unsigned)npe || pe[me] != ep->pe)
		return ERR(INVALID, "an exchange of %d PEs of which PE %d is not number %d", npe, ep->pe, me);
	for (int i = 1; i < npe; i++) {
		int k = me + i < npe ? me + i : me + i - npe, to = pe[k];
		if (n <= SYM_SHORT && ep_is_pe(ep, to) && ep->to[to].from) {
			TRY(credit(ep, to));
			short_write(ep, to, what, part(src, k, step), n);
		} else
			TRY(sym_slot_put(ep, to, site, part(src, k, step), n));
	}
	if (npe > 2)
		TRY(expect(ep, pe, npe, site, &all));
	out[me] = (struct sym_msg){ 0, n, part(src, me, step) };
	for (int k = 0; k < npe; k++)
		if (k != me)
			TRY(all ? take(ep, pe[k], site, SYM_SLOT_MSG, what, &out[k]) : sym_recv(ep, pe[k], site, SYM_SLOT_MSG, &out[k]));
	for (int k = 0; k < npe; k++)
		if (__builtin_expect(out[k].n != n, 0))
			return ep_other_size(ep, pe[k], site, out[k].n, n);
	for (int k = 0; k < npe; k++)     /* now that nothing is waited for: who waits tells of returns */
		if (k != me) {
			chan_done(&ep->chan[pe[k]]);
			own_many(ep, pe[k], n);
		}
	return NULL;
}

struct err *sym_exchange(struct sym_ep *ep, const int *pe, int npe, int me, uint32_t site, const void *src, size_t step, size_t n, struct sym_msg *out)
{
	bool posts = !step && npe > 2 && npe == ep->world->npe && n <= SYM_SHORT && !ep->world->tr;

	if (n && !src)
		return no_message(n);
	if (posts && ep->met)
		return post_exchange(ep, pe, npe, site, src, n, out);
	TRY(pair_exchange(ep, pe, npe, me, site, src, step, n, out));
	for (int k = 0; k < npe && posts; k++)
		ep->post[pe[k]] = atomic_load_explicit(&ep->to[pe[k]].control->seat[ep->which].posts, memory_order_relaxed) - ep->posts;
	ep->met |= posts;
	return NULL;
}

void sym_return(struct sym_ep *ep, int pe, bool now)
{
	struct chan *c = &ep->chan[pe];

	if (chan_return(c, now))
		ep_word(ep, pe, WORD_OF_ME(ep, returned), chan_tick(c, c->done));
}

uint64_t sym_sent(const struct sym_ep *ep, int pe) { return chan_sent(&ep->chan[pe]); }

struct err *sym_await(struct sym_ep *ep, int pe, uint64_t line)
{
	TRY(ep_are_pes(ep, &pe, 1));
	struct chan *c = &ep->chan[pe];
	uint32_t site = (uint32_t)atomic_load_explicit(&ep->seat->status, memory_order_relaxed);
	uint32_t n = chan_within(c, line);
	struct err *e = NULL;

	/* A peer that has left the launch reads nothing of it any more. */
	WAIT(e, (chan_returned(c, n) && chan_open(c)) || chan_left(c), pe, site);
	return e;
}

struct err *sym_await_for(struct sym_ep *ep, int pe, uint64_t line, double seconds)
{
	ep->most = seconds;
	struct err *e = sym_await(ep, pe, line);
	ep->most = 0;
	return e;
}

/* The return of all that was sent; who has left reads nothing any more. */
static inline enum due return_due(struct sym_ep *ep, int pe)
{
	struct chan *c = &ep->chan[pe];

	return (chan_settled(c) && chan_open(c)) || chan_left(c) ? HERE : DUE;
}

struct err *sym_settle(struct sym_ep *ep, const int *pe, int n)
{
	uint32_t site = (uint32_t)atomic_load_explicit(&ep->seat->status, memory_order_relaxed);
	struct err *e = NULL;
	int who = -1;

	TRY(ep_are_pes(ep, pe, n));
	WAIT(e, (who = due_of(ep, pe, n, return_due)) < 0, who, site);
	return e;
}

void sym_count(struct sym_ep *ep, int pe, size_t off, uint64_t v) { ep_word(ep, pe, off, v); }

/* A PE whose word is less, if possible of this core; -1: none. */
static int owing(struct sym_ep *ep, const int *pe, int n, const _Atomic uint64_t *word, uint64_t v)
{
	int who = -1;

	for (int k = 0; k < n; k++) {
		if (atomic_load_explicit(&word[k], memory_order_acquire) >= v || chan_left(&ep->chan[pe[k]]))
			continue;
		who = pe[k];
		if (ep_beside(ep, who))
			break;
	}
	return who;
}

struct err *sym_counted(struct sym_ep *ep, const int *pe, int n, size_t off, uint64_t v)
{
	const _Atomic uint64_t *word = (const _Atomic uint64_t *)(const void *)(ep->world->peer[ep->pe].base + off);
	uint32_t site = (uint32_t)atomic_load_explicit(&ep->seat->status, memory_order_relaxed);
	struct err *e = NULL;
	int who = -1;

	TRY(ep_are_pes(ep, pe, n));
	WAIT(e, (who = owing(ep, pe, n, word, v)) < 0, who, site);
	return e;
}

/* Both know of the same failures: a launch is begun with pe when it has closed all before, and said which of them failed.  It may have given up this one,
 * too, by now: then what it has sent cannot be told from what follows a failure. */
struct err *sym_swap_with(struct sym_ep *ep, int pe, struct sym_swap **out)
{
	struct sym_swap *s = *out = &ep->swap[pe];
	struct chan *c = &ep->chan[pe];
	uint64_t failed;

	if (s->epoch == c->epoch)
		return NULL;
	TRY(sym_await(ep, pe, 0));
	if ((failed = atomic_load_explicit(&c->ret->failed, memory_order_acquire)) >= c->epoch)
		return ep_absent(ep, pe, 0);
	if (MAX(s->failed, failed) >= s->epoch)
		s->at = 0;
	s->epoch = c->epoch;
	s->window[0] = ep->from[pe].swap;
	s->window[1] = ep->to[pe].from->swap;
	return NULL;
}

/* --- launches ------------------------------------------------------------------ */

/* Word by word, for others may be reading it. */
static void text_set(char *at, size_t n, const char *text)
{
	size_t left = text ? strnlen(text, n - 1) : 0;

	for (_Atomic uint64_t *to = (_Atomic uint64_t *)(void *)at;; to++) {
		uint64_t v = 0;
		size_t k = MIN(left, sizeof v);
		if (k)
			memcpy(&v, text, k);
		atomic_store_explicit(to, v, memory_order_relaxed);
		if (k < sizeof v)
			return;
		text += k;
		left -= k;
	}
}

void sym_begin(struct sym_ep *ep, const struct sym_launch *l)
{
	if (ep->debt)
		sym_clear(ep, false);
	if (l->prog != ep->named) {
		text_set(ep->seat->name, sizeof ep->seat->name, l->name);
		ep->named = l->prog;
	}
	ep->l = *l;
	atomic_store_explicit(&ep->lost, 0, memory_order_relaxed);
	_Atomic uint64_t *with = (_Atomic uint64_t *)(void *)((char *)ep->me + sym_with_off(ep->world->npe, ep->which));
	for (size_t k = 0; k < sym_with_words(ep->world->npe); k++)
		atomic_store_explicit(&with[k], 0, memory_order_relaxed);
	for (int i = 0; i < l->npeer; i++) {
		chan_begin(&ep->chan[l->peer[i]]);
		_Atomic uint64_t *word = &with[l->peer[i] / 64];      /* written here alone */
		atomic_store_explicit(word, atomic_load_explicit(word, memory_order_relaxed) | 1ull << l->peer[i] % 64, memory_order_relaxed);
	}
	ep->met = false;
	atomic_store_explicit(&ep->seat->posts, ep->posts, memory_order_relaxed);
	atomic_store_explicit(&ep->seat->status, (uint64_t)l->prog << 32, memory_order_release);
	if (ep_crowd(ep->world))
		ep_show_cpu(ep);
}

/* The launch is over for this PE. */
static void close_with(struct sym_ep *ep, int pe)
{
	struct chan *c = &ep->chan[pe];

	if (chan_close(c))
		for (int k = 0; k < SYM_RING; k++)
			for (int i = 0; i < SYM_PIECES; i++)
				CHAN_WIPE(&c->in[k].piece[i].tick);
	c->open = false;
	ep_word(ep, pe, WORD_OF_ME(ep, closed), c->epoch);
}

/* Why the launch failed goes ahead of the word that says so, to whom cannot read it here: this process may have ended before it is asked.
 * Not over a text that the peer may be reading, which came of a failure before this one. */
static void tell_why(struct sym_ep *ep, int pe)
{
	const struct sym_transport *tr = ep->world->tr;
	_Atomic uint32_t left = 1;

	if (ep->world->peer[pe].mapped || CHAN_LOAD(&ep->chan[pe].ret->closed) < ep->swap[pe].failed)
		return;
	VIA(ep, tr->put_nb(ep->world, ep->pe, pe, FROM_ME(ep, why), ep->seat->why, strlen(ep->seat->why) + 1, &left));
	tr->forget(ep->world, &left);     /* who leaves does not wait */
}

/* Of what is too long the beginning and the end: behind a traceback stands what it was. */
static void why_set(struct sym_seat *seat, const char *msg)
{
	char some[sizeof seat->why];
	size_t n = strlen(msg), half = (sizeof some - sizeof " .. ") / 2;

	if (n >= sizeof some)
		snprintf(some, sizeof some, "%.*s .. %s", (int)half, msg, msg + n - half);
	text_set(seat->why, sizeof seat->why, n < sizeof some ? msg : some);
}

static void leave(struct sym_ep *ep, const struct err *why)
{
	if (why)
		why_set(ep->seat, why->msg);
	atomic_store_explicit(&ep->seat->status, 0, memory_order_relaxed);
	for (int i = 0; i < ep->l.npeer; i++) {
		int pe = ep->l.peer[i];
		if (why) {
			tell_why(ep, pe);
			ep->swap[pe].failed = ep->chan[pe].epoch;
			ep_word(ep, pe, WORD_OF_ME(ep, failed), ep->chan[pe].epoch);
		}
		close_with(ep, pe);
	}
}

/* --- launches that failed, and are not over for all ------------------------------- */

struct sym_debt {
	struct sym_debt *next;
	struct sym_block **kept;
	int nkept;
	void (*over)(void *user);
	void *user;
	int npeer;
	struct { int pe; uint64_t epoch; } peer[];
};

void sym_keep(struct sym_ep *ep, struct sym_block *b)
{
	if (!b)
		return;
	ep->kept = mem_grow(ep->kept, (size_t)(ep->nkept + 1) * sizeof *ep->kept);
	ep->kept[ep->nkept++] = b;
}

static void owe(struct sym_ep *ep, void (*over)(void *user), void *user)
{
	struct sym_debt *d = mem_alloc(sizeof *d + (size_t)ep->l.npeer * sizeof *d->peer), **at = &ep->debt;

	*d = (struct sym_debt){ .kept = ep->kept, .nkept = ep->nkept, .over = over, .user = user, .npeer = ep->l.npeer };
	for (int i = 0; i < d->npeer; i++) {
		d->peer[i].pe = ep->l.peer[i];
		d->peer[i].epoch = ep->chan[ep->l.peer[i]].epoch;
	}
	ep->kept = NULL;
	ep->nkept = 0;
	while (*at)
		at = &(*at)->next;
	*at = d;
}

/* A peer that has not left the launch, and may touch what it was lent; -1: none. */
static int owed_to(const struct sym_ep *ep, struct sym_debt *d)
{
	const struct sym_world *w = ep->world;

	for (; d->npeer; d->npeer--) {
		int pe = d->peer[d->npeer - 1].pe;
		if (CHAN_LOAD(&ep->chan[pe].ret->closed) < d->peer[d->npeer - 1].epoch && atomic_load(&w->process[w->peer[pe].proc].life) == SYM_HERE)
			return pe;
	}
	return -1;
}

bool sym_clear(struct sym_ep *ep, bool all)
{
	while (ep->debt && (all || owed_to(ep, ep->debt) < 0)) {
		struct sym_debt *d = ep->debt;
		ep->debt = d->next;
		for (int i = 0; i < d->nkept; i++)
			sym_free(d->kept[i]);
		if (d->over)
			d->over(d->user);
		free(d->kept);
		free(d);
	}
	return !ep->debt;
}

/* sym_clear; false: the oldest is not over, and *who is in it. */
static bool clear_but(struct sym_ep *ep, int *who)
{
	while (!sym_clear(ep, false))
		if ((*who = owed_to(ep, ep->debt)) >= 0)
			return false;
	return true;
}

struct err *sym_clear_wait(struct sym_ep *ep)
{
	struct err *e = NULL;
	int who;

	WAIT(e, clear_but(ep, &who), who, 0);
	return e;
}

void sym_quit(struct sym_ep *ep, const struct err *why, void (*over)(void *user), void *user)
{
	leave(ep, why);
	owe(ep, over, user);
	memset(&ep->l, 0, sizeof ep->l);
	sym_clear(ep, false);
}

void sym_end(struct sym_ep *ep, const struct err *why)
{
	leave(ep, why);
	if (why || ep->nkept) {
		owe(ep, NULL, NULL);
		ep->l.stop = NULL;        /* that it is stopped is known */
		err_free(sym_clear_wait(ep));
	}
	memset(&ep->l, 0, sizeof ep->l);
}

void sym_phase(struct sym_world *w, const char *text)
{
	text_set(w->ep[0].me->phase, sizeof w->ep[0].me->phase, text);
}

void sym_cancel(struct sym_world *w)
{
	atomic_store(&w->gone, -1);
	for (int i = 0; i < w->nlocal; i++)
		sym_ring(w, w->first + i);
}
