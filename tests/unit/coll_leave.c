/* A process whose part of a collective is over leaves at once: the others, which come late, get what it has sent all the same. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "coll/coll.h"
#include "leave.h"
#include "thread_check.h"

enum { NPROC = 3, BYTES = 150000, LATE_MS = 150 };

struct scene { const char *road; bool chaos; enum coll_algo algo; };

static void member(const struct scene *s, int me)
{
	int all[NPROC] = { 0, 1, 2 }, peer[2] = { (me + 1) % NPROC, (me + 2) % NPROC };
	struct coll_group g = { NPROC, me, all };
	char *x = calloc(BYTES, 1), text[16];
	struct sym_world *w;
	struct kv *kv;

	snprintf(text, sizeof text, "%d", me);
	conf_set("PROCESSES", "3");
	conf_set("PROCESS", text);
	conf_set("TRANSPORT", s->road);
	CHECK_OK(sym_boot_env(&kv));
	CHECK_OK(sym_open(&(struct sym_opts){ .nlocal = 1, .boot = kv, .threads = 1, .chaos = s->chaos, .seed = (uint64_t)me }, &w));
	struct coll *c = coll_new(w, me, NULL);
	struct sym_ep *ep = sym_ep_of(w, me);
	for (int i = 0; i < BYTES && !me; i++)
		x[i] = (char)(i % 127);
	sym_begin(ep, &(struct sym_launch){ .prog = 1, .name = "p", .peer = peer, .npeer = 2 });
	CHECK_OK(coll_use(c, COLL_broadcast, s->algo));
	if (me)
		nanosleep(&(struct timespec){ 0, me * LATE_MS * 1000000 }, NULL);
	CHECK_OK(coll_broadcast(c, &g, 1, 0, BYTES, x, x));
	sym_end(ep, NULL);
	for (int i = 0; i < BYTES; i++)
		CHECK(x[i] == i % 127);
	coll_free(c);
	sym_close(w);
	sym_boot_free(kv);
	free(x);
}

static void run(const struct scene *s)
{
	char dir[] = "/tmp/rondo-leave-XXXXXX", cmd[64];
	int st, bad = 0;

	assert_non_null(mkdtemp(dir));
	conf_set("RENDEZVOUS", dir);
	fflush(NULL);
	for (int i = 0; i < NPROC; i++)
		if (!fork()) {
			alarm(200);
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			member(s, i);
			leave(0);
		}
	for (int i = 0; i < NPROC; i++) {
		assert_true(wait(&st) > 0);
		bad |= st;
	}
	snprintf(cmd, sizeof cmd, "rm -r %s", dir);
	assert_int_equal(system(cmd), 0);
	assert_int_equal(bad, 0);
}

static void leaver(void **state)
{
	static const char *const road[] = { "shm", "tcp" };

	for (size_t i = 0; i < NELEM(road); i++)
		for (enum coll_algo a = COLL_auto + 1; a < COLL_ALGOS; a++)
			if (a != COLL_mpi && prog_algo_has(a, COLL_broadcast))
				run(&(struct scene){ road[i], false, a });
	run(&(struct scene){ "tcp", true, COLL_stage });
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(leaver) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
