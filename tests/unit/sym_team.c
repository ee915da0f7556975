/* Teams are told apart by their lists of members, whatever the hash of a list is: here it is the same for all. */
#define hash_bytes same_hash
#include "../../src/sym/team.c"
#undef hash_bytes
uint64_t hash_bytes(const void *p, size_t n, uint64_t seed);

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

#include "thread_check.h"

enum { PES = 6, STEPS = 150, KEPT = 3, MAKERS = 2 };

uint64_t same_hash(const void *p, size_t n, uint64_t seed) { return 6; }

static struct sym_world *w;

/* Some of the PEs in some order: the same for all who ask with the same seed. */
static int some(unsigned *seed, int list[PES])
{
	for (int i = 0; i < PES; i++) {
		int k = rand_r(seed) % (i + 1);
		list[i] = list[k];
		list[k] = i;
	}
	return 2 + rand_r(seed) % (PES - 1);
}

/* What each member gives to the next one arrives there, and nowhere else. */
static void use(struct sym_team *t, int me, uint64_t number)
{
	struct sym_mem *m;
	struct sym_ctx *cx;
	int n = sym_team_n(t), rank = sym_team_me(t);
	uint64_t v = number << 8 | (unsigned)rank;

	CHECK_OK(sym_mem_new(t, sizeof v, "memory", &m));
	CHECK_OK(sym_ctx_new(w, me, SYM_SERIAL, &cx));
	sym_ctx_put(cx, m, 0, &v, sizeof v, (rank + 1) % n);
	CHECK_OK(sym_ctx_quiet(cx));
	CHECK_OK(sym_team_barrier(t));
	CHECK(*(uint64_t *)sym_mem_at(m) == (number << 8 | (unsigned)((rank + n - 1) % n)));
	sym_ctx_free(cx);
	sym_mem_free(m);
}

static void *random_teams(void *v)
{
	int me = (int)(intptr_t)v, list[PES];
	unsigned seed = 1, mine = (unsigned)me;
	struct sym_team *kept[KEPT] = { NULL };

	for (int step = 0; step < STEPS; step++) {
		struct sym_team **t = &kept[step % KEPT];
		int n = some(&seed, list);
		sym_team_free(*t);
		*t = NULL;
		for (int i = 0; i < n; i++)
			if (list[i] == me) {
				if (rand_r(&mine) % 8 == 0)
					usleep((unsigned)rand_r(&mine) % 1000);
				CHECK_OK(sym_team_new(w, me, list, n, t));
				if (step % 10 == 0)
					use(*t, me, (uint64_t)step);
			}
	}
	for (int i = 0; i < KEPT; i++)
		sym_team_free(kept[(STEPS + i) % KEPT]);
	return NULL;
}

/* Two threads of each PE: of two teams that are made at once, each gets its own mails. */
static void *shifted(void *v)
{
	int id = (int)(intptr_t)v, me = id / MAKERS, list[PES];
	struct sym_team *t;

	for (int step = 0; step < STEPS / 5; step++) {
		for (int i = 0; i < PES; i++)
			list[i] = (i + id % MAKERS) % PES;
		CHECK_OK(sym_team_new(w, me, list, PES, &t));
		use(t, me, (uint64_t)(step * MAKERS + id % MAKERS));
		sym_team_free(t);
	}
	return NULL;
}

static void run(void *(*fn)(void *), int threads, uint64_t chaos)
{
	pthread_t t[PES * MAKERS];

	CHECK_OK(conf_set("TIMEOUT", "30"));
	CHECK_OK(sym_open(&(struct sym_opts){ .nlocal = PES, .threads = threads, .chaos = chaos, .seed = 1 }, &w));
	for (int i = 0; i < threads; i++)
		assert_int_equal(pthread_create(&t[i], NULL, fn, (void *)(intptr_t)i), 0);
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	sym_close(w);
}

static void one_after_the_other(void **state)
{
	run(random_teams, PES, 0);
	run(random_teams, PES, 1);
}

static void at_once(void **state)
{
	run(shifted, PES * MAKERS, 0);
	run(shifted, PES * MAKERS, 1);
}

/* No difference of two seeds is undone by one of the data. */
static void seeds(void **state)
{
	enum { N = 64 };
	static uint64_t h[N * N];

	for (uint64_t i = 0; i < N * N; i++) {
		uint64_t x[2] = { i % N, 5 };
		h[i] = hash_bytes(x, sizeof x, i / N);
		for (uint64_t k = 0; k < i; k++)
			if (h[k] == h[i])
				fail_msg("%d with seed %d, and %d with seed %d", (int)(i % N), (int)(i / N), (int)(k % N), (int)(k / N));
	}
}

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(one_after_the_other), cmocka_unit_test(at_once), cmocka_unit_test(seeds) };

	return cmocka_run_group_tests(t, NULL, NULL);
}
