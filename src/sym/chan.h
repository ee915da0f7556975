/* The state machine of a pair channel: one PE's view of the two rings it shares with one peer.
 *
 *   line n of a launch lies in slot chan_slot(n) of the receiver's ring, the same for every n - CHAN_RING, and carries the tick
 *   (epoch << 32 | n) in its first and last word, epoch = launches that the pair has shared.  It may be
 *   written when line n - CHAN_RING has been returned, and in a new launch only when the peer has closed the
 *   launch before.  Returns are counts; they travel in every line of the other direction, and in a word of
 *   their own when more than half a ring is owed or the sender waits.
 *
 * So no line is overwritten unread, and no line of an older launch is taken for one of this: a tick knows an epoch by its last
 * half, and who closes a launch wipes what was written to it before the same half comes again.  Nothing here
 * blocks.  Whoever includes this defines how shared words are read and written: the endpoint with atomics,
 * a test with a model of memory that it explores exhaustively. */
#ifndef RONDO_SYM_CHAN_H
#define RONDO_SYM_CHAN_H

#include <stdbool.h>
#include <stdint.h>

#ifndef CHAN_RING
#define CHAN_RING SYM_RING
#endif

struct chan {
	uint64_t epoch;           /* launches shared, this one included */
	uint64_t before;          /* lines sent in all launches before */
	uint32_t tx, acked;       /* lines sent in this launch; of those, known to be returned */
	uint32_t rx, done, told;  /* lines received; returned; returned as far as the peer was told */
	bool open;                /* the peer has closed the launch before */
	CHAN_LINE *in;            /* ring in this PE's heap */
	CHAN_RET *ret;            /* the peer's returns, in this PE's heap */
};

static inline uint64_t chan_tick(const struct chan *c, uint32_t n) { return c->epoch << 32 | n; }

/* Neighbours in time are no neighbours in memory, and no step follows another like it: what a processor fetches because
 * it expects to be asked for it next would be taken from who is about to write it.  CHAN_RING is a power of two. */
static inline uint32_t chan_slot(uint32_t n) { return (n - 1) * 5 % CHAN_RING; }

static inline void chan_begin(struct chan *c)
{
	c->epoch++;
	c->before += c->tx;
	c->tx = c->acked = c->rx = c->done = c->told = 0;
	c->open = false;
}

static inline void chan_ack(struct chan *c, uint32_t n)
{
	if (n > c->acked)
		c->acked = n;
}

/* Has line k, k > rx, arrived? */
static inline bool chan_has(const struct chan *c, uint32_t k)
{
	const CHAN_LINE *l = &c->in[chan_slot(k)];

	return CHAN_LOAD(&l->first) == chan_tick(c, k) && CHAN_LOAD(&l->last) == chan_tick(c, k);
}

/* Learn what was returned: from the word, and from lines that have not been taken yet. */
static inline void chan_learn(struct chan *c)
{
	uint64_t r = CHAN_LOAD(&c->ret->returned);

	if (r >> 32 == (uint32_t)c->epoch)
		chan_ack(c, (uint32_t)r);
	for (uint32_t k = c->rx + 1; k <= c->rx + CHAN_RING && chan_has(c, k); k++)
		chan_ack(c, c->in[chan_slot(k)].ack);
}

/* Has the peer closed the launch before this one? */
static inline bool chan_open(struct chan *c)
{
	if (!c->open)
		c->open = CHAN_LOAD(&c->ret->closed) + 1 >= c->epoch;
	return c->open;
}

static inline bool chan_may_send(struct chan *c)
{
	if (!chan_open(c))
		return false;
	if (c->tx - c->acked >= CHAN_RING)
		chan_learn(c);
	return c->tx - c->acked < CHAN_RING;
}

/* The slot and tick of the next line; its ack is c->done.  After chan_may_send. */
static inline uint32_t chan_send(struct chan *c, uint64_t *tick)
{
	*tick = chan_tick(c, ++c->tx);
	c->told = c->done;
	return chan_slot(c->tx);
}

static inline bool chan_arrived(const struct chan *c) { return chan_has(c, c->rx + 1); }

/* Take the line that has arrived. */
static inline CHAN_LINE *chan_take(struct chan *c)
{
	CHAN_LINE *l = &c->in[chan_slot(++c->rx)];

	chan_ack(c, l->ack);
	return l;
}

/* All lines taken are returned, as the next line will say. */
static inline void chan_done(struct chan *c) { c->done = c->rx; }

/* Is there a return that the peer was not told of?  It is told now, by the word (its value: chan_tick(c, done)). */
static inline bool chan_owes(struct chan *c)
{
	bool owes = c->done != c->told;

	c->told = c->done;
	return owes;
}

/* chan_done.  True if the word must be written now. */
static inline bool chan_return(struct chan *c, bool now)
{
	chan_done(c);
	return (now || c->done - c->told > CHAN_RING / 2) && chan_owes(c);
}

/* The number of the line sent last, counted over all launches. */
static inline uint64_t chan_sent(const struct chan *c) { return c->before + c->tx; }

/* How many lines were sent in this launch up to that one: none if it is of an older launch, which the peer must have closed. */
static inline uint32_t chan_within(const struct chan *c, uint64_t sent) { return sent > c->before ? (uint32_t)(sent - c->before) : 0; }

/* Are the first n lines that were sent returned? */
static inline bool chan_returned(struct chan *c, uint32_t n)
{
	if (c->acked < n)
		chan_learn(c);
	return c->acked >= n;
}

static inline bool chan_settled(struct chan *c) { return chan_returned(c, c->tx); }

/* Before the peer is told that the launch is closed, which lets it write lines of the next one.  Every 2^31 launches what it has
 * written so far is wiped; what it may still write, in this launch, has an epoch of its own until it is wiped in its turn.
 * True if so: then what else has a tick is to be wiped too. */
static inline bool chan_close(struct chan *c)
{
	if ((c->epoch + 1) << 33)
		return false;
	for (int k = 0; k < CHAN_RING; k++) {
		CHAN_WIPE(&c->in[k].first);
		CHAN_WIPE(&c->in[k].last);
	}
	CHAN_WIPE(&c->ret->returned);
	return true;
}

/* Has the peer left this launch? */
static inline bool chan_left(const struct chan *c) { return CHAN_LOAD(&c->ret->closed) >= c->epoch; }

#endif
