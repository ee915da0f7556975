/* The turns of `rondo bench coll` over MPI, for bench/mpi.py: the same sizes, the same use of buffers, the same lines.
 *     mpirun -np N mpi LEAST MOST ROUNDS op,op,.. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_ROUNDS = 101, TURNS = 4000 };
static int n, me;
static double floors[4096];
static int nfloor;

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* One line each, written by one and read by the other: what the caches allow. */
static void exchange(void)
{
	static MPI_Win win;
	static _Atomic int64_t *line[2];
	static int64_t from;

	if (n > 2)
		return;
	if (!line[0]) {
		void *p;
		MPI_Aint bytes;
		int unit, near;
		MPI_Comm host;
		MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
		MPI_Comm_size(host, &near);
		MPI_Comm_free(&host);
		if (near < n)
			return;
		MPI_Win_allocate_shared(4096, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &p, &win);
		for (int i = 0; i < 2; i++) {
			MPI_Win_shared_query(win, i, &bytes, &unit, &p);
			line[i] = (void *)(((uintptr_t)p + 127) & ~(uintptr_t)127);
		}
		atomic_store(line[me], 0);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	double t = MPI_Wtime();
	for (int64_t i = 1; i <= 2000; i++) {
		atomic_store_explicit(line[me], from + i, memory_order_release);
		while (atomic_load_explicit(line[!me], memory_order_acquire) < from + i) { }
	}
	from += 2000;
	floors[nfloor++ % 4096] = (MPI_Wtime() - t) / 2000;
}

/* As in src/tool/bench_coll.c: what a program does between two sums. */
static void pass(float *to, const float *from, long count)
{
	typedef float strip __attribute__((vector_size(64), aligned(4), may_alias));
	long i = 0;

	for (; i + 16 <= count; i += 16)
		*(strip *)(to + i) = -*(const strip *)(from + i);
	for (; i < count; i++)
		to[i] = -from[i];
}

static double batch(const char *op, float *x, float *y, long bytes, long turns)
{
	int count = (int)(bytes / 4), next = (me + 1) % n, last = (me + n - 1) % n;
	MPI_Comm all = MPI_COMM_WORLD;

	MPI_Barrier(all);
	double t = MPI_Wtime();
	for (long i = 0; i < turns; i++) {
		float *was = x;
		if (!strcmp(op, "all_reduce_fresh")) {
			pass(x, y, count);
			MPI_Allreduce(x, y, count, MPI_FLOAT, MPI_SUM, all);
			continue;
		} else if (!strcmp(op, "all_reduce_place")) {
			pass(x, x, count);
			MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_FLOAT, MPI_SUM, all);
			continue;
		} else if (!strcmp(op, "pass_fresh") || !strcmp(op, "pass_place")) {
			pass(x, strcmp(op, "pass_place") ? y : x, count);
			continue;
		} else if (!strcmp(op, "all_reduce") || !strcmp(op, "all_reduce_any"))
			MPI_Allreduce(x, y, count, MPI_FLOAT, MPI_SUM, all);
		else if (!strcmp(op, "permute"))
			MPI_Sendrecv(x, count, MPI_FLOAT, next, 0, y, count, MPI_FLOAT, last, 0, all, MPI_STATUS_IGNORE);
		else if (!strcmp(op, "put_signal")) {        /* a message there and one back; half a turn counts */
			if (me == 0)
				MPI_Send(x, count, MPI_FLOAT, 1, 0, all);
			if (me < 2)
				MPI_Recv(y, count, MPI_FLOAT, !me, 0, all, MPI_STATUS_IGNORE);
			if (me == 1)
				MPI_Send(x, count, MPI_FLOAT, 0, 0, all);
			continue;
		} else {
			MPI_Barrier(all);
			continue;
		}
		x = y;
		y = was;
	}
	return (MPI_Wtime() - t) / (double)turns / (strcmp(op, "put_signal") ? 1 : 2);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_size(MPI_COMM_WORLD, &n);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	long least = atol(argv[1]), most = atol(argv[2]);
	int rounds = atoi(argv[3]);
	cpu_set_t may, one;

	if (!sched_getaffinity(0, sizeof may, &may))
		for (int c = 0, k = 0; c < CPU_SETSIZE; c++)
			if (CPU_ISSET(c, &may) && k++ == me % CPU_COUNT(&may)) {
				CPU_ZERO(&one);
				CPU_SET(c, &one);
				sched_setaffinity(0, sizeof one, &one);
				break;
			}
	float *x = aligned_alloc(2 << 20, (size_t)most + (2 << 20)), *y = aligned_alloc(2 << 20, (size_t)most + (2 << 20));
	madvise(x, (size_t)most, MADV_HUGEPAGE);
	madvise(y, (size_t)most, MADV_HUGEPAGE);
	memset(x, 0, (size_t)most);
	memset(y, 0, (size_t)most);
	for (char *save, *op = strtok_r(argv[4], ",", &save); op; op = strtok_r(NULL, ",", &save)) {
		if (!strcmp(op, "peer_read") || !strcmp(op, "plain_read") || !strcmp(op, "idle"))
			continue;
		for (long bytes = least; bytes <= (strcmp(op, "barrier") ? most : least); bytes *= bytes < 64 ? 2 : 4) {
			double sample[MAX_ROUNDS], s;
			exchange();
			batch(op, x, y, bytes, 2);
			s = batch(op, x, y, bytes, 2);
			MPI_Bcast(&s, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
			double turns = 0.03 / rounds / (s > 1e-9 ? s : 1e-9);
			for (int r = 0; r < rounds; r++)
				sample[r] = batch(op, x, y, bytes, turns < 2 ? 2 : turns > TURNS ? TURNS : (long)turns);
			qsort(sample, (size_t)rounds, sizeof(double), ascending);
			if (!me)
				printf("%s\t%ld\tmpi\t%.3f\t0\n", op, strcmp(op, "barrier") ? bytes : 0, sample[rounds / 2] * 1e6);
		}
	}
	qsort(floors, (size_t)nfloor, sizeof(double), ascending);
	if (!me && nfloor)
		printf("# exchange of one cache line between two PEs: median %.3f us, from %.3f to %.3f\n", floors[nfloor / 2] * 1e6, floors[0] * 1e6, floors[nfloor - 1] * 1e6);
	MPI_Finalize();
	return 0;
}
