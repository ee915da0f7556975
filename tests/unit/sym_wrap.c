/* Counters that come to the end of their bits: launches of a pair, lines of a launch. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "sym/impl.h"

static struct sym_world *w;
static uint64_t start;

enum { LONG = 300, LAUNCHES = 6 };     /* LONG: bytes of a message in pieces */

static void ok(struct err *e)
{
	if (e)
		fail_msg("%s", e->msg);
}

/* A loan that comes back, by the word of returns; a message in pieces; one by the slot. */
static void *pe(void *v)
{
	int me = (int)(intptr_t)v, it = !me;
	struct sym_ep *ep = sym_ep_of(w, me);
	char text[SYM_SLOT];
	uint64_t line = 0;

	for (int k = 0; k < LAUNCHES; k++) {
		struct sym_launch l = { .prog = 7, .name = "p", .peer = &it, .npeer = 1 };
		struct sym_msg m;
		sym_begin(ep, &l);
		if (!me) {
			if (k)
				ok(sym_await(ep, it, line));          /* of an older launch */
			ok(sym_tell(ep, it, 1, SYM_LEND, 0, 8));
			line = sym_sent(ep, it);
			ok(sym_await(ep, it, line));
			ok(sym_settle(ep, &it, 1));
			ok(sym_tell(ep, it, 2, SYM_READY, 0, 0));
			memset(text, 'a' + k, sizeof text);
			ok(sym_slot_put(ep, it, 3, text, LONG));
			ok(sym_slot_put(ep, it, 4, text, SYM_SLOT));
		} else {
			ok(sym_recv(ep, it, 1, SYM_LEND, &m));
			sym_return(ep, it, true);
			ok(sym_recv(ep, it, 2, SYM_READY, &m));
			for (uint32_t site = 3; site < 5; site++) {
				ok(sym_recv(ep, it, site, SYM_SLOT_MSG, &m));
				assert_int_equal(m.n, site == 3 ? LONG : SYM_SLOT);
				for (size_t i = 0; i < m.n; i++)
					assert_int_equal(((const char *)m.data)[i], 'a' + k);
				sym_return(ep, it, false);
			}
		}
		sym_end(ep, NULL);
	}
	assert_int_equal(ep->chan[it].epoch, start + LAUNCHES);
	return NULL;
}

/* What the same launches left 2^32 launches ago. */
static void old(struct sym_ep *ep, int it)
{
	struct sym_from *f = &ep->from[it];

	for (uint64_t k = 1; k <= LAUNCHES; k++)
		for (uint32_t n = 1; n <= SYM_RING; n++) {
			uint64_t tick = (start + k) << 32 | n;
			if ((start >> 31) == ((start + k) >> 31))     /* those of the first half are not there yet */
				continue;
			struct sym_line *l = &f->ring[chan_slot(n)];
			atomic_store(&l->first, tick);
			atomic_store(&l->last, tick);
			l->n = 8;
			for (int i = 0; i < SYM_PIECES; i++)
				atomic_store(&l->piece[i].tick, tick);
			atomic_store(&ep->chan[it].ret->returned, tick);
		}
}

static void launches(void **state)
{
	static const uint64_t from[] = { 0, 0x7ffffffc, 0xfffffffc, 0x17ffffffd, 0xfffffffffd };
	pthread_t t[2];

	for (size_t k = 0; k < NELEM(from); k++)
		for (int stale = 0; stale < 2; stale++) {
			start = from[k];
			ok(sym_open(&(struct sym_opts){ .nlocal = 2, .threads = 2 }, &w));
			for (int i = 0; i < 2; i++) {
				struct sym_ep *ep = sym_ep_of(w, i);
				ep->chan[!i].epoch = start;
				atomic_store(&ep->chan[!i].ret->closed, start);
				if (stale && start)
					old(ep, !i);
			}
			for (int i = 0; i < 2; i++)
				pthread_create(&t[i], NULL, pe, (void *)(intptr_t)i);
			for (int i = 0; i < 2; i++)
				pthread_join(t[i], NULL);
			sym_close(w);
		}
}

/* Whatever has a tick in the own heap is wiped when a launch is closed before the same half of an epoch comes again, and only then. */
static void wiped(void **state)
{
	const int one = 1;
	struct sym_launch l = { .prog = 7, .name = "p", .peer = &one, .npeer = 1 };

	ok(sym_open(&(struct sym_opts){ .nlocal = 2, .threads = 2 }, &w));
	struct sym_ep *ep = sym_ep_of(w, 0);
	ep->chan[1].epoch = 0x7ffffffd;
	for (int k = 0; k < 2; k++) {
		uint64_t left = 0;
		for (int i = 0; i < SYM_RING; i++) {
			struct sym_line *line = &ep->from[1].ring[i];
			for (int n = 0; n < SYM_PIECES; n++)
				atomic_store(&line->piece[n].tick, 1);
			atomic_store(&line->first, 1);
			atomic_store(&line->last, 1);
		}
		atomic_store(&ep->chan[1].ret->returned, 1);
		sym_begin(ep, &l);
		sym_end(ep, NULL);
		for (int i = 0; i < SYM_RING; i++) {
			struct sym_line *line = &ep->from[1].ring[i];
			for (int n = 0; n < SYM_PIECES; n++)
				left += atomic_load(&line->piece[n].tick);
			left += atomic_load(&line->first) + atomic_load(&line->last);
		}
		left += atomic_load(&ep->chan[1].ret->returned);
		assert_int_equal(left, k ? 0 : SYM_RING * (SYM_PIECES + 2) + 1);
	}
	sym_close(w);
}

/* More lines than a launch can count are refused, not mistaken for others. */
static void lines(void **state)
{
	const int one = 1;
	struct sym_launch l = { .prog = 7, .name = "p", .peer = &one, .npeer = 1 };

	ok(sym_open(&(struct sym_opts){ .nlocal = 2, .threads = 2 }, &w));
	struct sym_ep *ep = sym_ep_of(w, 0);
	sym_begin(ep, &l);
	ep->chan[1].tx = ep->chan[1].acked = UINT32_MAX - 1;
	ok(sym_tell(ep, 1, 1, SYM_READY, 0, 0));
	struct err *e = sym_tell(ep, 1, 1, SYM_READY, 0, 0);
	assert_non_null(e);
	assert_int_equal(e->code, ERR_EXHAUSTED);
	err_free(e);
	sym_end(ep, NULL);
	sym_close(w);
}

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(launches), cmocka_unit_test(wiped), cmocka_unit_test(lines) };

	return cmocka_run_group_tests(t, NULL, NULL);
}
