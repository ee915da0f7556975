/* The mpi road: started by the mpirun of each MPI that is here, every collective has the bits of another algorithm's. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../src/coll/coll.h"
#include "counted.h"

/* Allocations of what is linked here. */
static long taken;
COUNTING(taken)

enum { MOST = 300000 };

#define NEED(x) do { \
		struct err *e_ = (x); \
		if (e_) { \
			fprintf(stderr, "process %d, line %d: %s\n", me, __LINE__, e_->msg); \
			exit(1); \
		} \
	} while (0)

static struct err *call(struct coll *c, const struct coll_group *g, int kind, int64_t n, bool in_place, const float *x, float *y)
{
	static const struct coll_red add = { RED_add, DT_f32, NULL };
	int next = g->pe[(g->me + 1) % g->n], last = g->pe[(g->me + g->n - 1) % g->n];

	if (in_place)
		memcpy(y, x, (size_t)n * 4);
	switch (kind) {
	case COLL_all_reduce: return coll_all_reduce(c, g, 1, &add, n, in_place ? y : x, y);
	case COLL_reduce_scatter: return coll_reduce_scatter(c, g, 1, &add, n, x, y);
	case COLL_all_gather: return coll_all_gather(c, g, 1, n * 4, x, y);
	case COLL_all_to_all: return coll_all_to_all(c, g, 1, n * 4, x, y);
	case COLL_broadcast: return coll_broadcast(c, g, 1, g->n - 1, n * 4, in_place ? y : x, y);
	default: return coll_permute(c, 1, last, next, n * 4, in_place ? y : x, y);
	}
}

static int member(void)
{
	static const int64_t size[] = { 1, 7, 1000, 17000, MOST };
	struct coll_table table;
	struct sym_world *w;
	struct kv *kv;
	int me = -1, all[8], peer[8], part[8], npeer = 0, npart = 0;

	NEED(sym_boot_env(&kv));
	NEED(sym_open(&(struct sym_opts){ .nlocal = 1, .boot = kv, .threads = 1 }, &w));
	me = sym_first(w);
	int n = sym_npe(w);
	NEED(coll_mpi_open(w));
	coll_table_init(&table);
	struct coll *c = coll_new(w, me, &table);
	for (int i = 0; i < n; i++) {
		if ((all[i] = i) != me)
			peer[npeer++] = i;
		if (i)
			part[npart++] = i;
	}
	size_t bytes = (size_t)(MOST * n) * sizeof(float);
	float *x = malloc(bytes), *y = malloc(bytes), *z = malloc(bytes);
	for (int i = 0; i < MOST * n; i++)
		x[i] = (float)(((i + 1) * (me + 3)) % 1009) / 7.0f;
	size_t used = bytes;                  /* by the case before; what one writes beyond its own, the longest of its kind finds */
	for (int k = 0; k < COLL_COUNT; k++)
		for (size_t i = 0; i < sizeof size / sizeof *size && prog_algo_has(COLL_mpi, (enum coll_kind)k); i++)
			for (int how = 0; how < 4; how++) {
				/* All of them, or all but the first; in place or not. */
				bool in_place = how & 1 && k != COLL_reduce_scatter && k != COLL_all_gather && k != COLL_all_to_all;
				struct coll_group g = how & 2 ? (struct coll_group){ npart, me - 1, part } : (struct coll_group){ n, me, all };
				sym_begin(sym_ep_of(w, me), &(struct sym_launch){ .prog = 1, .name = "test", .peer = peer, .npeer = npeer });
				memset(y, 1, used);
				memset(z, 1, used);
				used = MIN(bytes, (size_t)(size[i] * n) * 4 + 4096);
				if (g.me >= 0) {
					coll_use(c, (enum coll_kind)k, COLL_stage);
					NEED(call(c, &g, k, size[i], in_place, x, y));
					coll_use(c, (enum coll_kind)k, COLL_mpi);
					NEED(call(c, &g, k, size[i], in_place, x, z));
					long before = taken;          /* what was done before takes no memory when it is done again */
					NEED(call(c, &g, k, size[i], in_place, x, z));
					if (taken != before) {
						fprintf(stderr, "process %d: %s of %lld, case %d, takes memory again\n", me, prog_coll_name[k], (long long)size[i], how);
						exit(1);
					}
				}
				sym_end(sym_ep_of(w, me), NULL);
				if (memcmp(y, z, used)) {
					fprintf(stderr, "process %d: %s of %lld, case %d: other bits\n", me, prog_coll_name[k], (long long)size[i], how);
					exit(1);
				}
			}
	coll_free(c);
	sym_close(w);
	sym_boot_free(kv);
	free(x);
	free(y);
	free(z);
	return 0;
}

/* scripts/setup installs both.  The thread sanitizer sees but half of what MPI does, and what MPI leaks cannot be named: the modules
 * that did it are unloaded. */
#ifndef __SANITIZE_THREAD__
static void under(const char *mpirun, int n)
{
	char cmd[PATH_MAX + 300], self[PATH_MAX], dir[] = "/tmp/rondo-mpi-XXXXXX";
	ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);

	assert_true(len > 0);
	self[len] = '\0';
	assert_non_null(mkdtemp(dir));
	/* MPICH is built on UCX, which does not start where it takes /dev/shm and cannot. */
	snprintf(cmd, sizeof cmd, "%s RONDO_RENDEZVOUS=%s RONDO_TOKEN=t OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=detect_leaks=0 timeout 60 %s -np %d %s member", access("/dev/shm", W_OK) ? "UCX_TLS=^posix" : "", dir, mpirun, n, self);
	int rc = system(cmd);
	snprintf(cmd, sizeof cmd, "rm -r %s", dir);
	assert_int_equal(system(cmd), 0);
	assert_int_equal(rc, 0);
}

static void open_mpi(void **state)
{
	under("mpirun.openmpi --oversubscribe --bind-to none --mca btl_vader_single_copy_mechanism none", 2);
	under("mpirun.openmpi --oversubscribe --bind-to none --mca btl_vader_single_copy_mechanism none", 3);
	under("mpirun.openmpi --oversubscribe --bind-to none --mca btl_vader_single_copy_mechanism none", 5);
}

/* Six: more than cores, and what one stages of six is no whole number of elements unless somebody sees to it. */
static void mpich(void **state)
{
	under("mpirun.mpich", 2);
	under("mpirun.mpich", 6);
}
#endif

/* Where it cannot be, it says why, and what is to be done by it is done otherwise. */
static void refused(void **state)
{
	struct sym_world *w;

	assert_null(sym_open(&(struct sym_opts){ .nlocal = 2, .threads = 2 }, &w));
	struct err *e = coll_mpi_open(w);
	assert_non_null(e);
	assert_int_equal(e->code, ERR_PRECONDITION);
	err_free(e);
	assert_false(coll_mpi_ready(w));
	sym_close(w);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return member();
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refused),
#ifndef __SANITIZE_THREAD__
		cmocka_unit_test(open_mpi), cmocka_unit_test(mpich),
#endif
	};
	return cmocka_run_group_tests_name("coll_mpi", tests, NULL, NULL);
}
