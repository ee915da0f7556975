/* What goes first over TCP, seen on the wire by an other side that the test plays: what a process does to another and asks of it stays in
 * order, so do its answers; and a question passes answers that have not begun, but nothing else. */
#include "../../src/sym/tcp.c"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "draws.h"

enum { HEAP = 4 << 20, STEPS = 400, MOST = 300000, LONG = 2 << 20, OFFS = 1 << 20, DEEP = 40 };

/* What this side is to send, but for answers: in this order.  answers: so many go before it, or any (-1).  off: of data, of a line, of an atomic. */
struct own { enum kind kind; uint64_t off, n; int answers; };
struct get { char *dst; uint64_t off, n; struct get *next; };

static struct sym_world w;
static struct tcp *x;
static struct link *l;
static int there;                      /* the other side's socket */
static unsigned seed, fixed;           /* fixed: the one to draw by */
static char *source;                   /* what is put */

static struct own *own;
static uint64_t *asked_of_us;          /* bytes of each answer; 0: a value */
static size_t nown, nanswers, own_seen, answers_seen;
static struct get *got;
static _Atomic uint32_t left;
static uint64_t old;

/* The stream so far, of which this much was looked at. */
static char *come;
static size_t ncome, looked;

static size_t below(size_t n) { return (size_t)rand_r(&seed) % n; }
static char byte_at(uint64_t off) { return (char)(off * 2654435761u >> 13); }

static void set_up(void)
{
	static struct sym_peer peer[2];
	static struct sym_process process[2];
	int s[2], room = 64 << 10;

	x = mem_alloc(sizeof *x);
	w = (struct sym_world){ .npe = 2, .nlocal = 1, .threads = 1, .spins = 4, .nproc = 2, .peer = peer, .process = process, .net = &sym_tcp, .tr = &sym_tcp, .net_data = x };
	w.region = (struct sym_region){ .base = mem_alloc(HEAP), .each = HEAP, .n = 1, .fd = -1 };
	peer[0] = (struct sym_peer){ .base = w.region.base };
	peer[1] = (struct sym_peer){ .proc = 1 };
	for (size_t i = sizeof(struct sym_control); i < HEAP; i++)
		w.region.base[i] = byte_at(i);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, s), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(setsockopt(s[i], SOL_SOCKET, SO_SNDBUF, &room, sizeof room), 0);
	there = s[1];
	x->w = &w;
	x->link = mem_lines(2 * sizeof *x->link);
	x->proc = mem_alloc(sizeof *x->proc);
	x->open = mem_alloc(sizeof *x->open);
	x->quiet = mem_alloc(sizeof *x->quiet);
	x->stop = -1;
	x->link[0].fd = -1;
	l = &x->link[x->proc[x->nlink++] = 1];
	l->fd = s[0];
	l->proc = 1;
	l->in.buf = mem_lines(ROOM);
	pthread_mutex_init(&l->in.lock, NULL);
	pthread_mutex_init(&l->out.lock, NULL);
	pthread_mutex_init(&l->ask.lock, NULL);
}

/* The other side says this, and it is taken. */
static void say(const void *p, size_t n)
{
	for (int unread = 1; n || unread; tcp_poll(&w)) {
		ssize_t k = n ? send(there, p, n, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
		p = (const char *)p + MAX(k, 0);
		n -= (size_t)MAX(k, 0);
		assert_int_equal(ioctl(l->fd, FIONREAD, &unread), 0);
	}
}

static void answer_get(uint64_t off, uint64_t n)
{
	char *data = mem_alloc(sizeof(struct head) + n);

	memcpy(data, &(struct head){ .kind = DATA, .n = n }, sizeof(struct head));
	for (uint64_t i = 0; i < n; i++)
		data[sizeof(struct head) + i] = byte_at(off + i);
	say(data, sizeof(struct head) + n);
	free(data);
}

static void answer_amo(void)
{
	struct { struct head h; uint64_t v; } m = { { .kind = VALUE, .words = 1, .n = 8 }, 7 };

	say(&m, sizeof m);
}

/* Look at the next message of the stream, if all of it is there. */
static bool see(void)
{
	struct head h;

	if (ncome - looked < sizeof h)
		return false;
	memcpy(&h, come + looked, sizeof h);
	bool data = h.kind == PUT || h.kind == PUT_LINE || h.kind == DATA;
	size_t words = h.words * 8u, all = sizeof h + words + (data ? h.n : 0);
	if (ncome - looked < all)
		return false;
	const char *at = come + looked + sizeof h + words;
	looked += all;
	if (h.kind == DATA || h.kind == VALUE) {
		assert_true(answers_seen < nanswers);
		uint64_t n = asked_of_us[answers_seen++];
		assert_int_equal(n, h.kind == DATA ? h.n : 0);
		assert_true(h.kind == VALUE || !memcmp(at, w.region.base + HEAP / 2, n));
		return true;
	}
	assert_true(own_seen < nown);
	const struct own *o = &own[own_seen++];
	assert_int_equal(h.kind, o->kind);
	assert_int_equal(h.kind == LINE ? h.loff : h.off, o->off);
	assert_true(h.kind == LINE || h.n == o->n);
	assert_true(h.kind != PUT || !memcmp(at, source, h.n));
	if (o->answers >= 0)
		assert_int_equal(answers_seen, o->answers);
	if (h.kind == GET)
		answer_get(h.off, h.n);
	if (h.kind == AMO && h.loff)
		answer_amo();
	return true;
}

/* The other side reads n bytes, or what there is. */
static bool read_some(size_t n)
{
	come = mem_grow(come, ncome + n);
	ssize_t k = recv(there, come + ncome, n, MSG_DONTWAIT);
	ncome += (size_t)MAX(k, 0);
	while (see()) { }
	return k > 0;
}

static uint64_t expect(enum kind kind, uint64_t n, int answers)
{
	uint64_t off = nown * (uint64_t)OFFS;

	own = mem_grow(own, (nown + 1) * sizeof *own);
	own[nown++] = (struct own){ kind, off, n, answers };
	return off;
}

static void asks_us(uint64_t n)
{
	struct { struct head h; uint64_t word[2]; } m = { { .kind = n ? GET : AMO, .words = n ? 0 : 2, .n = n, .off = HEAP / 2, .loff = !n }, { 0 } };

	asked_of_us = mem_grow(asked_of_us, (nanswers + 1) * sizeof *asked_of_us);
	asked_of_us[nanswers++] = n;
	say(&m, sizeof m.h + m.h.words * 8u);
}

/* How many answers go before what is asked now: all but those that have not begun, with nothing of ours behind them. */
static int before_question(void)
{
	int behind = 0;

	for (const struct msg *m = l->out.first; m; m = m->next)
		behind = m->answer ? behind + (m != l->out.first) : 0;
	return (int)nanswers - behind;
}

static void ask_for(uint64_t n)
{
	struct get *g = mem_alloc(sizeof *g);
	int answers = before_question();
	uint64_t off = 0, at = 0;

	for (uint64_t some; at < n; at += some) {
		some = MIN(n - at, (uint64_t)ASKED);
		uint64_t o = expect(GET, some, answers);
		off = at ? off : o;
		own[nown - 1].off = off + at;
	}
	*g = (struct get){ mem_alloc(n), off, n, got };
	got = g;
	atomic_fetch_add(&left, 1);
	tcp_get_nb(&w, 0, 1, g->dst, off, n, &left);
}

static void step(void)
{
	static const uint64_t word[WORDS];

	switch (below(8)) {
	case 0: {
		uint64_t n = 1 + below(MOST);
		atomic_fetch_add(&left, 1);
		tcp_put_nb(&w, 0, 1, expect(PUT, n, -1), source, n, &left);
		break;
	}
	case 1:
		tcp_line(&w, 0, 1, expect(LINE, 0, -1), word, 1 + (int)below(WORDS));
		break;
	case 2:
		tcp_amo(&w, 0, 1, SYM_ADD, 8, expect(AMO, 8, -1), 1, 0, NULL);
		break;
	case 3: {
		atomic_fetch_add(&left, 1);
		ask(&w, 0, 1, (struct head){ .kind = AMO, .words = 2, .op = SYM_ADD, .n = 8, .off = expect(AMO, 8, -1), .loff = 1 }, word, &old, 8, &left);
		break;
	}
	case 4:
		ask_for(1 + below(below(2) ? 1000 : LONG));
		break;
	case 5:
	case 6:
		asks_us(below(4) ? 1 + below(MOST) : 0);
		break;
	default:
		read_some(1 + below(MOST));
		tcp_poll(&w);
	}
	if (l->out.n > DEEP)
		while (l->out.n > DEEP / 2)
			read_some(MOST), tcp_poll(&w);
}

static void tear_down(void)
{
	tcp_close(&w);
	close(there);
	free(w.region.base);
	free(own);
	free(asked_of_us);
	free(come);
	for (struct get *next; got; got = next) {
		next = got->next;
		free(got->dst);
		free(got);
	}
	own = NULL, asked_of_us = NULL, come = NULL;
	nown = nanswers = own_seen = answers_seen = ncome = looked = 0;
}

static void drawn_orders(void **state)
{
	source = mem_alloc(MOST);
	for (int i = 0; i < MOST; i++)
		source[i] = (char)(i * 31);
	for (int n = fixed ? 1 : draws(10); n > 0; n--) {
		seed = fixed ? fixed : (unsigned)clock_ns();
		printf("seed %u\n", seed);
		set_up();
		for (int i = 0; i < STEPS; i++)
			step();
		while (own_seen < nown || answers_seen < nanswers || atomic_load(&left))
			read_some(MOST), tcp_poll(&w);
		for (const struct get *g = got; g; g = g->next)
			for (uint64_t i = 0; i < g->n; i++)
				assert_int_equal(g->dst[i], byte_at(g->off + i));
		tear_down();
	}
	free(source);
}

/* Megabytes of answers wait, and a write behind the first of them: what is asked then goes behind the write, before all others. */
static void passes_answers(void **state)
{
	source = mem_alloc(MOST);
	set_up();
	for (int i = 0; i < 3; i++)
		asks_us(MOST);
	atomic_fetch_add(&left, 1);
	tcp_put_nb(&w, 0, 1, expect(PUT, MOST, 3), source, MOST, &left);
	for (int i = 0; i < 5; i++)
		asks_us(MOST);
	ask_for(LONG);
	assert_int_equal(own[nown - 1].answers, 3);
	while (own_seen < nown || answers_seen < nanswers || atomic_load(&left))
		read_some(MOST), tcp_poll(&w);
	tear_down();
	free(source);
}

/* sym_order [SEED] */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(passes_answers), cmocka_unit_test(drawn_orders) };

	fixed = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
	return cmocka_run_group_tests_name("sym_order", tests, NULL, NULL);
}
