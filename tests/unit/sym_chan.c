/* The pair channel, explored exhaustively.
 *
 * Two or three PEs run short scripts over a model of memory in which every store waits in its PE's store
 * buffer (first in, first out, as on x86) until the explorer lets it out.  All interleavings of script steps
 * and of stores leaving the buffers are visited.  The state machine under test is the one the endpoints use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/base.h"

#define CHAN_RING 2
struct mline { uint64_t first, what, ack, last; };
struct mret { uint64_t returned, closed; };
#define CHAN_LINE struct mline
#define CHAN_RET struct mret
#define CHAN_LOAD(p) (*(const uint64_t *)(p))
#define CHAN_WIPE(p) (*(uint64_t *)(p) = 0)
#include "sym/chan.h"

enum { MAXPE = 3, BUF = 24, STEPS = 40 };

struct store { uint16_t at; uint64_t v; };       /* at: word index in struct memory */
struct memory {
	struct { struct mline ring[CHAN_RING]; struct mret ret; } from[MAXPE][MAXPE];   /* [receiver][sender] */
	uint64_t data[MAXPE];                     /* what a PE lends */
};
struct pe { struct chan c[MAXPE]; uint64_t said[MAXPE], heard[MAXPE], held[MAXPE], version; int pc, nbuf; struct store buf[BUF]; };
struct state { struct memory m; struct pe pe[MAXPE]; };

/* A script: letter and peer.  s send; t take a line; r return it late, u at once; l lend; g take a loan and look at
 * it; w wait until all is returned, then change what was lent; e end the launch, lines unread or not,
 * and begin the next. */
struct script { const char *text[MAXPE]; int n; };

static struct state now;                          /* chan pointers refer to this one */
static struct map seen;
static const struct script *script;
static long visited;
static uint64_t origin;                           /* the number of the first launch, less one */

static void point(struct state *s)
{
	for (int i = 0; i < MAXPE; i++)
		for (int k = 0; k < MAXPE; k++) {
			s->pe[i].c[k].in = now.m.from[i][k].ring;
			s->pe[i].c[k].ret = &now.m.from[i][k].ret;
		}
}

static bool put(struct pe *p, uint64_t *word, uint64_t v)
{
	if (p->nbuf == BUF)
		return false;
	p->buf[p->nbuf++] = (struct store){ (uint16_t)(word - (uint64_t *)&now.m), v };
	return true;
}

static void line(int me, int peer, uint64_t what)
{
	struct pe *p = &now.pe[me];
	uint64_t tick;
	uint32_t slot = chan_send(&p->c[peer], &tick);
	struct mline *l = &now.m.from[peer][me].ring[slot];

	put(p, &l->what, what);
	put(p, &l->ack, p->c[peer].done);
	put(p, &l->last, tick);
	put(p, &l->first, tick);
}

/* One step of a script.  False if it has to wait. */
static bool step(int me)
{
	struct pe *p = &now.pe[me];
	const char *t = script->text[me] + 2 * p->pc;

	if (!script->text[me][0] || !t[0] || p->nbuf > BUF - 8)
		return false;
	int peer = t[1] - '0';
	struct chan *c = &p->c[peer];
	struct mline *held = &c->in[chan_slot(c->rx)];
	switch (t[0]) {
	case 's': case 'l':
		if (!chan_may_send(c))
			return false;
		line(me, peer, t[0] == 'l' ? 1000 + p->version : ++p->said[peer]);
		break;
	case 't': case 'g':
		if (!chan_arrived(c))
			return false;
		held = chan_take(c);
		if (t[0] == 'g') {
			p->held[peer] = held->what - 1000;
			assert_int_equal(now.m.data[peer], p->held[peer]);
		} else {
			p->held[peer] = ++p->heard[peer];
			assert_int_equal(held->what, p->held[peer]);
		}
		break;
	case 'r': case 'u':
		/* Until it is returned, neither the line nor the loan may change. */
		if (held->what >= 1000)
			assert_int_equal(now.m.data[peer], p->held[peer]);
		else
			assert_int_equal(held->what, p->held[peer]);
		if (chan_return(c, t[0] == 'u'))
			put(p, &now.m.from[peer][me].ret.returned, chan_tick(c, c->done));
		break;
	case 'w':
		if (!chan_settled(c))
			return false;
		put(p, &now.m.data[me], ++p->version);
		break;
	case 'e':
		chan_close(c);
		put(p, &now.m.from[peer][me].ret.closed, c->epoch);
		chan_begin(c);
		p->said[peer] = p->heard[peer] = 100 * (c->epoch - 1 - origin);
		break;
	}
	p->pc++;
	return true;
}

static bool finished(void)
{
	for (int i = 0; i < script->n; i++)
		if (script->text[i][2 * now.pe[i].pc] || now.pe[i].nbuf)
			return false;
	return true;
}

static void explore(void)
{
	struct state here = now;
	uint64_t h = hash_bytes(&now, sizeof now, 1);
	uint64_t *v = map_put(&seen, &h, sizeof h);
	bool moved = false;

	if (*v)
		return;
	*v = 1;
	visited++;
	for (int i = 0; i < script->n; i++) {
		if (now.pe[i].nbuf) {                /* the oldest store becomes visible */
			struct pe *p = &now.pe[i];
			((uint64_t *)&now.m)[p->buf[0].at] = p->buf[0].v;
			memmove(p->buf, p->buf + 1, sizeof p->buf[0] * (size_t)--p->nbuf);
			memset(&p->buf[p->nbuf], 0, sizeof p->buf[0]);
			explore();
			now = here;
			moved = true;
		}
		if (step(i)) {
			explore();
			moved = true;
		}
		now = here;
	}
	if (!moved && !finished())
		fail_msg("stuck: PE 0 at step %d, PE 1 at %d, PE 2 at %d", now.pe[0].pc, now.pe[1].pc, now.pe[2].pc);
}

/* The first launch is number first + 1; stale: what launches 2^32 before the others left lies in the rings. */
static void run_from(uint64_t first, bool stale, const char *a, const char *b, const char *c)
{
	struct script s = { { a, b, c }, c[0] ? 3 : 2 };

	memset(&now, 0, sizeof now);
	point(&now);
	script = &s;
	origin = first;
	visited = 0;
	for (int i = 0; i < MAXPE; i++)
		for (int k = 0; k < MAXPE; k++) {
			struct mret *ret = &now.m.from[i][k].ret;
			now.pe[i].c[k].epoch = ret->closed = first;
			chan_begin(&now.pe[i].c[k]);
			for (uint32_t n = 1; n <= CHAN_RING && stale; n++) {
				struct mline *l = &now.m.from[i][k].ring[chan_slot(n)];
				l->first = l->last = ret->returned = (first + 2) << 32 | n;
				l->ack = CHAN_RING;
			}
		}
	explore();
	map_free(&seen);
	memset(&seen, 0, sizeof seen);
	print_message("%-40s | %-40s | %-20s %8ld states\n", a, b, c, visited);
}

static void run(const char *a, const char *b, const char *c) { run_from(0, false, a, b, c); }

static void one_way(void **state)
{
	run("s1s1s1s1s1", "t0r0t0r0t0r0t0r0t0r0", "");
	run("s1s1s1s1", "t0u0t0u0t0u0t0u0", "");
	run("s1s1s1s1", "t0r0s0t0r0s0t0r0t0r0", "");      /* acknowledged by lines that nobody takes */
}

static void both_ways(void **state)
{
	run("s1t1r1s1t1r1s1t1r1s1t1r1", "s0t0r0s0t0r0s0t0r0s0t0r0", "");
	run("s1s1t1r1t1r1s1t1r1", "t0r0s0t0r0s0s0t0r0", "");
}

static void loans(void **state)
{
	run("l1w1l1w1l1w1", "g0u0g0u0g0u0", "");
	run("l1g1u1w1l1g1u1w1", "l0g0u0w0l0g0u0w0", "");
}

static void launches(void **state)
{
	run("s1s1e1s1s1e1s1", "t0r0t0r0e0t0r0t0r0e0t0r0", "");
	run("s1t1r1e1s1t1r1e1", "s0t0r0e0s0t0r0e0", "");
	run("l1w1e1l1w1", "g0u0e0g0u0", "");
}

static void aborted(void **state)
{
	/* PE 1 leaves the first launch with lines unread; nothing of it is seen in the second. */
	run("s1s1e1s1s1", "t0r0e0t0t0", "");
	run("s1s1e1s1s1", "e0t0t0", "");
}

static void three(void **state)
{
	run("s1t2r2s1t2r2", "s2t0r0s2t0r0", "s0t1r1s0t1r1");
}

/* A line of which only some words have come, whichever, is not there: a transport may tear it. */
static void torn(void **state)
{
	struct mline ring[CHAN_RING] = { 0 };
	struct mret ret = { 0 };
	struct chan c = { .in = ring, .ret = &ret };

	chan_begin(&c);
	for (uint32_t n = 1; n < 6; n++) {
		struct mline *l = &ring[chan_slot(n)], old = *l;
		assert_false(chan_arrived(&c));
		l->first = chan_tick(&c, n);
		assert_false(chan_arrived(&c));
		*l = old;
		l->last = chan_tick(&c, n);
		assert_false(chan_arrived(&c));
		l->first = chan_tick(&c, n);
		assert_true(chan_arrived(&c));
		chan_take(&c);
	}
}

/* A tick knows the launch by 32 bits: nothing that was written 2^32 launches before is taken for new. */
static void wrapped(void **state)
{
	static const uint64_t first[] = { 0x7ffffffe, 0xfffffffe, 0x17ffffffe };

	for (size_t i = 0; i < sizeof first / sizeof *first; i++)
		for (int stale = 0; stale < 2; stale++) {
			run_from(first[i], stale, "s1s1e1s1s1s1", "t0r0t0r0e0t0r0t0r0t0r0", "");
			run_from(first[i], stale, "s1t1r1e1s1t1r1e1", "s0t0r0e0s0t0r0e0", "");
			run_from(first[i], stale, "l1w1e1l1w1", "g0u0e0g0u0", "");
			run_from(first[i], stale, "s1s1e1s1s1", "e0t0t0", "");
		}
}

int main(void)
{
	const struct CMUnitTest t[] = {
		cmocka_unit_test(one_way), cmocka_unit_test(both_ways), cmocka_unit_test(loans), cmocka_unit_test(launches), cmocka_unit_test(aborted),
		cmocka_unit_test(three), cmocka_unit_test(wrapped), cmocka_unit_test(torn),
	};

	return cmocka_run_group_tests(t, NULL, NULL);
}
