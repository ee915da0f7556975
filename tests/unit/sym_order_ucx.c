/* What the library of UCX is given, and when: it sends in its order, so it has little of what is long, and all else goes before the rest. */
#include "../../src/sym/ucx_msg.c"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#if __has_include(<ucp/api/ucp.h>)

enum { LONGS = 40, STEPS = 3000, MOST = 200 };

static struct { struct head h; const void *src; size_t n; ucp_send_nbx_callback_t sent; void *user; bool over; } had[STEPS + MOST];
static int nhad, fails;
static char source[PIECE];
static struct sym_world w;
static struct ucx x;

static ucs_status_ptr_t sends(ucp_ep_h ep, unsigned id, const void *header, size_t nheader, const void *data, size_t n, const ucp_request_param_t *q)
{
	assert_true(nhad < (int)NELEM(had) && nheader == sizeof had->h);
	if (fails && fails-- == 1)
		return UCS_STATUS_PTR(UCS_ERR_CONNECTION_RESET);
	memcpy(&had[nhad].h, header, nheader);
	had[nhad].src = data;
	had[nhad].n = n;
	had[nhad].sent = q->cb.send;
	had[nhad].user = q->user_data;
	return &had[nhad++];
}

static void frees(void *request) { }

static void ends(int k)
{
	had[k].over = true;
	had[k].sent(&had[k], UCS_OK, had[k].user);
}

static size_t under(void)
{
	size_t all = 0;

	for (int i = 0; i < nhad; i++)
		all += had[i].over || had[i].n <= WHOLE ? 0 : had[i].n;
	return all;
}

static void set_up(void)
{
	static struct sym_process process[2];
	static _Atomic uint32_t open[1];
	static struct link link[2];

	memset(had, 0, sizeof had);
	memset(link, 0, sizeof link);
	nhad = fails = 0;
	open[0] = 0;
	w = (struct sym_world){ .npe = 2, .nlocal = 1, .nproc = 2, .process = process };
	x = (struct ucx){ .w = &w, .link = link, .open = open };
	link[1].ep = (ucp_ep_h)&had;
	ucx.ucp_am_send_nbx = sends;
	ucx.ucp_request_free = frees;
}

static void post(enum kind kind, uint64_t seq, size_t n, _Atomic uint32_t *left)
{
	struct head h = { .kind = kind, .seq = seq };

	if (left) {
		atomic_fetch_add(left, 1);
		atomic_fetch_add(&x.open[0], 1);
	}
	ucx_post(&x, 1, &h, source, n, !left, 0, left);
}

static void passes_long_ones(void **state)
{
	_Atomic uint32_t left = 0;

	set_up();
	for (int i = 0; i < LONGS; i++)
		post(PUT, (uint64_t)i, PIECE, &left);
	assert_int_equal(nhad, UNDER / PIECE);
	post(GET, 0, 0, NULL);
	assert_int_equal(nhad, UNDER / PIECE + 1);
	assert_int_equal(had[nhad - 1].h.kind, GET);
	for (int k = 0; k < nhad; k++)
		ends(k);
	assert_int_equal(nhad, LONGS + 1);
	assert_int_equal(atomic_load(&left), 0);
	assert_int_equal(x.flying, 0);
}

/* Whatever ends when: the long ones go in their order, as many as may, and what is brief goes at once. */
static void drawn_orders(void **state)
{
	_Atomic uint32_t left = 0;
	unsigned seed = (unsigned)clock_ns();
	uint64_t longs = 0, next = 0;
	int done = 0, seen = 0, waiting = 0;

	printf("seed %u\n", seed);
	set_up();
	for (int i = 0; i < STEPS || done < nhad; i++) {
		int before = nhad;
		bool brief = rand_r(&seed) % 2, more = i < STEPS && waiting < MOST && rand_r(&seed) % 2;
		if (more && brief) {
			post(LINE, 0, 0, NULL);
			assert_int_equal(nhad, before + 1);
		} else if (more) {
			post(rand_r(&seed) % 2 ? PUT : DATA, longs++, WHOLE + 1 + (size_t)rand_r(&seed) % (PIECE - WHOLE), &left);
		} else if (done < nhad) {
			int k = done + rand_r(&seed) % MIN(nhad - done, 5);
			while (had[k].over)
				k--;
			if (k >= done)
				ends(k);
			while (done < nhad && had[done].over)
				done++;
		}
		for (; seen < nhad; seen++)
			if (had[seen].n > WHOLE)
				assert_int_equal(had[seen].h.seq, next++);
		waiting = (int)(longs - next);
		assert_true(under() <= UNDER);
		assert_true(!waiting || under() > UNDER - PIECE);
	}
	assert_int_equal(next, longs);
	assert_int_equal(atomic_load(&left), 0);
	assert_int_equal(x.flying, 0);
}

/* What waits when the link ends, or is refused, is dropped. */
static void drops(void **state)
{
	_Atomic uint32_t left = 0;

	set_up();
	for (int i = 0; i < LONGS; i++)
		post(PUT, (uint64_t)i, PIECE, &left);
	x.link[1].ep = NULL;
	ucx_flow(&x, 1);
	assert_int_equal(nhad, UNDER / PIECE);
	assert_int_equal(atomic_load(&left), UNDER / PIECE);
	for (int k = 0; k < nhad; k++)
		ends(k);
	assert_int_equal(atomic_load(&left), 0);
	set_up();
	fails = 2;
	for (int i = 0; i < LONGS; i++)
		post(PUT, (uint64_t)i, PIECE, &left);
	for (int k = 0; k < nhad; k++)
		ends(k);
	assert_int_equal(nhad, LONGS - 1);
	assert_int_equal(atomic_load(&left), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(passes_long_ones), cmocka_unit_test(drawn_orders), cmocka_unit_test(drops) };

	return cmocka_run_group_tests_name("sym_order_ucx", tests, NULL, NULL);
}

#else

int main(void)
{
	puts("SKIP: this build has no UCX");
	return 0;
}

#endif
