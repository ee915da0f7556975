/* The mpi road: finding and starting MPI.
 *
 * The library is found when the program runs, and no header of it is used: Open MPI's handles are pointers and MPICH's are
 * integers, both fit a word, and what is a macro in its header is a symbol or a number here. */
#include "mpi.h"

#include <dlfcn.h>
#include <stdlib.h>

enum { MULTIPLE = 3 };

#define FUNCTIONS(X) \
	X(Initialized) X(Init_thread) X(Query_thread) X(Finalize) X(Finalized) X(Comm_rank) X(Comm_size) X(Comm_dup) X(Comm_group) X(Comm_set_errhandler) \
	X(Group_incl) X(Group_free) X(Comm_create_group) X(Test) X(Isend) X(Irecv) X(Ibcast) X(Iallgather) X(Iallgatherv) X(Ialltoall) X(Ialltoallv) X(Error_string)

static void finish(void)
{
	int over = 1;

	if (mpi_road.ours && !atomic_load(&mpi_road.broken) && !mpi_calls.Finalized(&over) && !over)
		mpi_calls.Finalize();
}

/* A predefined handle: the address of an object in Open MPI, a number in MPICH. */
static handle predefined(void *lib, const char *object, handle number)
{
	void *p = dlsym(lib, object);

	return p ? (handle)p : number;
}

/* What can be known without the others. */
static struct err *find(const struct sym_world *w)
{
	static const char *const name[] = { "libmpi.so.40", "libmpi.so.80", "libmpi.so.20", "libmpich.so.12", "libmpi.so.12" };
	bool open_mpi = getenv("OMPI_COMM_WORLD_RANK");
	void *lib = NULL, *p;

	if (sym_npe(w) != sym_nproc(w))
		return ERR(PRECONDITION, "the mpi road is for processes of one device each; here %d processes have %d devices", sym_nproc(w), sym_npe(w));
	if (!open_mpi && !getenv("PMI_RANK") && !getenv("PMIX_RANK"))
		return ERR(PRECONDITION, "the mpi road needs processes that mpirun has started");
	for (size_t i = open_mpi ? 0 : 3; i < NELEM(name) && !lib; i++)
		lib = dlopen(name[i], RTLD_NOW | RTLD_GLOBAL);
	if (!lib)
		return ERR(UNAVAILABLE, "the mpi road finds no %s: %s", open_mpi ? "Open MPI" : "MPICH", dlerror());
	/* Which of the two it is shows in what it has, not in its name. */
	open_mpi = dlsym(lib, "ompi_mpi_comm_world");
	if (!open_mpi && !dlsym(lib, "MPIR_Dup_fn"))
		return ERR(UNIMPLEMENTED, "the mpi road knows Open MPI and MPICH; this MPI is neither");
#define X(id) \
	if (!(p = dlsym(lib, "MPI_" #id))) \
		return ERR(UNIMPLEMENTED, "the mpi road: this MPI has no function 'MPI_" #id "'"); \
	memcpy(&mpi_calls.id, &p, sizeof p);
	FUNCTIONS(X)
#undef X
	mpi_road.world = predefined(lib, "ompi_mpi_comm_world", 0x44000000);
	mpi_road.byte = predefined(lib, "ompi_mpi_byte", 0x4c00010d);
	mpi_road.in_place = open_mpi ? (void *)1 : (void *)-1;
	mpi_road.no_status = open_mpi ? NULL : (void *)1;
	return NULL;
}

static struct err *start(const struct sym_world *w)
{
	int started = 0, level = 0, rank = -1, size = 0;

	MPI(Initialized, &started);
	if (started)
		MPI(Query_thread, &level);
	else {
		MPI(Init_thread, NULL, NULL, MULTIPLE, &level);
		mpi_road.ours = true;
		atexit(finish);
	}
	if (level < MULTIPLE)
		return ERR(PRECONDITION, "the mpi road needs an MPI that several threads may call (MPI_THREAD_MULTIPLE); this one gives level %d", level);
	MPI(Comm_rank, mpi_road.world, &rank);
	MPI(Comm_size, mpi_road.world, &size);
	if (rank != sym_proc(w) || size != sym_nproc(w))
		return ERR(PRECONDITION, "the mpi road: process %d of %d is rank %d of %d to MPI", sym_proc(w), sym_nproc(w), rank, size);
	MPI(Comm_dup, mpi_road.world, &mpi_road.mine);
	handle quiet = predefined(RTLD_DEFAULT, "ompi_mpi_errors_return", 0x54000001);
	MPI(Comm_set_errhandler, mpi_road.mine, quiet);
	MPI(Comm_group, mpi_road.mine, &mpi_road.group);
	return NULL;
}

/* Has it gone well for all? */
static struct err *agree(struct sym_world *w, struct err *e)
{
	int pe = sym_first(w), n = sym_npe(w);
	int *all = mem_alloc((size_t)n * 2 * sizeof *all), *peer = all + n, npeer = 0;
	int32_t mine = !e, least = 0;
	const struct coll_red min = { .op = RED_min, .dtype = DT_i32 };
	struct coll_table table;

	for (int i = 0; i < n; i++)
		if ((all[i] = i) != pe)
			peer[npeer++] = i;
	coll_table_init(&table);
	struct coll *c = coll_new(w, pe, &table);
	struct coll_group g = { n, pe, all };
	sym_begin(c->ep, &(struct sym_launch){ .prog = 3, .name = "opening the mpi road", .peer = peer, .npeer = npeer });
	struct err *bad = coll_all_reduce(c, &g, 1, &min, 1, &mine, &least);
	sym_end(c->ep, bad);
	coll_free(c);
	free(all);
	if (!e && bad)
		return bad;
	err_free(bad);
	return e || least ? e : ERR(PRECONDITION, "the mpi road is closed in another process");
}

struct err *coll_mpi_open(struct sym_world *w)
{
	struct err *e = NULL;

	if (sym_nproc(w) == 1)
		return ERR(PRECONDITION, "the mpi road is for several processes");
	pthread_mutex_lock(&mpi_road.lock);
	if (!mpi_road.ready && sym_npe(w) != sym_nproc(w))
		e = find(w);                  /* who has several devices finds the same everywhere */
	else if (!mpi_road.ready) {
		e = agree(w, find(w));
		if (!e)
			e = agree(w, start(w));
		mpi_road.ready = !e;
	}
	pthread_mutex_unlock(&mpi_road.lock);
	return e;
}
