/* The mpi road: data moved by the MPI that started the processes, for machines whose fabric MPI knows best.
 *
 * The library is found when the program runs, and no header of it is used: Open MPI's handles are pointers and MPICH's are
 * integers, both fit a word, and what is a macro in mpi.h is a symbol or a number here.  MPI moves bytes only; reductions are
 * ours, in rank order, so every type and reducer has this road and the bits are those of the other algorithms.
 *
 * MPI has no errors that name a peer and no end to a wait for one that is dead.  So the members meet first, by messages of our
 * own: whoever is lost, late or in another program is found there.  Transfers are nonblocking, and whoever waits for
 * one looks after its peers as other waits do.  One that failed cannot be taken back: from then on the road is closed. */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "impl.h"

typedef uintptr_t handle;

enum { MULTIPLE = 3, STAGE = 4 << 20, CHUNK = 16 << 20, SHORT = 64 << 10, LOOKS = 256 };

static struct {
	int (*Initialized)(int *);
	int (*Init_thread)(void *, void *, int, int *);
	int (*Query_thread)(int *);
	int (*Finalize)(void);
	int (*Finalized)(int *);
	int (*Comm_rank)(handle, int *);
	int (*Comm_size)(handle, int *);
	int (*Comm_dup)(handle, handle *);
	int (*Comm_group)(handle, handle *);
	int (*Comm_set_errhandler)(handle, handle);
	int (*Group_incl)(handle, int, const int *, handle *);
	int (*Group_free)(handle *);
	int (*Comm_create_group)(handle, handle, int, handle *);
	int (*Test)(handle *, int *, void *);
	int (*Isend)(const void *, int, handle, int, int, handle, handle *);
	int (*Irecv)(void *, int, handle, int, int, handle, handle *);
	int (*Ibcast)(void *, int, handle, int, handle, handle *);
	int (*Iallgather)(const void *, int, handle, void *, int, handle, handle, handle *);
	int (*Iallgatherv)(const void *, int, handle, void *, const int *, const int *, handle, handle, handle *);
	int (*Ialltoall)(const void *, int, handle, void *, int, handle, handle, handle *);
	int (*Ialltoallv)(const void *, const int *, const int *, handle, void *, const int *, const int *, handle, handle, handle *);
	int (*Error_string)(int, char *, int *);
} f;
#define FUNCTIONS(X) \
	X(Initialized) X(Init_thread) X(Query_thread) X(Finalize) X(Finalized) X(Comm_rank) X(Comm_size) X(Comm_dup) X(Comm_group) X(Comm_set_errhandler) \
	X(Group_incl) X(Group_free) X(Comm_create_group) X(Test) X(Isend) X(Irecv) X(Ibcast) X(Iallgather) X(Iallgatherv) X(Ialltoall) X(Ialltoallv) X(Error_string)

/* A communicator of some PEs. */
struct comm { struct comm *next; int n; handle h; int pe[]; };

static struct {
	pthread_mutex_t lock;
	handle world, mine, byte, group;          /* mine: of all, for these calls alone */
	void *in_place, *no_status;
	struct comm *comm;
	bool ready, ours;                         /* ours: this library has started MPI, and ends it */
	_Atomic bool broken;
	char why[200];
} m = { .lock = PTHREAD_MUTEX_INITIALIZER };

static struct err *failed(const char *what, int code)
{
	char text[1024] = "";
	int n = 0;

	f.Error_string(code, text, &n);
	return ERR(INTERNAL, "MPI: %s: %s", what, text);
}
#define MPI(name, ...) do { \
		int code_ = f.name(__VA_ARGS__); \
		if (code_) \
			return failed(#name, code_); \
	} while (0)

/* --- finding and starting it ----------------------------------------------------------------------- */

static void finish(void)
{
	int over = 1;

	if (m.ours && !atomic_load(&m.broken) && !f.Finalized(&over) && !over)
		f.Finalize();
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
	memcpy(&f.id, &p, sizeof p);
	FUNCTIONS(X)
#undef X
	m.world = predefined(lib, "ompi_mpi_comm_world", 0x44000000);
	m.byte = predefined(lib, "ompi_mpi_byte", 0x4c00010d);
	m.in_place = open_mpi ? (void *)1 : (void *)-1;
	m.no_status = open_mpi ? NULL : (void *)1;
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
		m.ours = true;
		atexit(finish);
	}
	if (level < MULTIPLE)
		return ERR(PRECONDITION, "the mpi road needs an MPI that several threads may call (MPI_THREAD_MULTIPLE); this one gives level %d", level);
	MPI(Comm_rank, m.world, &rank);
	MPI(Comm_size, m.world, &size);
	if (rank != sym_proc(w) || size != sym_nproc(w))
		return ERR(PRECONDITION, "the mpi road: process %d of %d is rank %d of %d to MPI", sym_proc(w), sym_nproc(w), rank, size);
	MPI(Comm_dup, m.world, &m.mine);
	handle quiet = predefined(RTLD_DEFAULT, "ompi_mpi_errors_return", 0x54000001);
	MPI(Comm_set_errhandler, m.mine, quiet);
	MPI(Comm_group, m.mine, &m.group);
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
	pthread_mutex_lock(&m.lock);
	if (!m.ready && sym_npe(w) != sym_nproc(w))
		e = find(w);                  /* who has several devices finds the same everywhere */
	else if (!m.ready) {
		e = agree(w, find(w));
		if (!e)
			e = agree(w, start(w));
		m.ready = !e;
	}
	pthread_mutex_unlock(&m.lock);
	return e;
}

bool coll_mpi_ready(const struct sym_world *w) { return m.ready && sym_npe(w) == sym_nproc(w) && sym_nproc(w) > 1; }

/* --- one transfer ---------------------------------------------------------------------------------------- */

static struct err *closed(void)
{
	return ERR(UNAVAILABLE, "the mpi road is closed since a transfer on it failed: %s", m.why);
}

/* All of pe[0 .. n) are in this very command. */
static struct err *meet(const struct call *q, const int *pe, int n)
{
	struct sym_msg got;
	void *room;

	if (atomic_load(&m.broken))
		return closed();
	for (int k = 0; k < n; k++)
		if (pe[k] >= 0) {
			TRY(sym_slot_room(q->ep, pe[k], 0, &room));
			sym_slot_send(q->ep, pe[k], q->site, 0);
		}
	for (int k = 0; k < n; k++)
		if (pe[k] >= 0) {
			TRY(sym_recv(q->ep, pe[k], q->site, SYM_SLOT_MSG, &got));
			sym_return(q->ep, pe[k], false);
		}
	return NULL;
}

/* Wait for requests; pe: who else has a part in them. */
static struct err *await(const struct call *q, handle *req, int nreq, const int *pe, int n)
{
	double since = clock_s();
	bool crowd = q->c->npe > q->c->table.cores;
	struct err *e = NULL;

	for (int i = 0, look = 0; i < nreq && !e;) {
		int done = 0, code = f.Test(&req[i], &done, m.no_status);
		if (code)
			e = failed("a transfer", code);
		else if (done)
			i++;
		else {
			bool check = ++look % LOOKS == 0;
			for (int k = 0; k < n && check && !e; k++)
				if (pe[k] >= 0 && pe[k] != sym_ep_pe(q->ep))
					e = sym_check(q->ep, pe[k], q->site, clock_s() - since);
			if (check || crowd)
				sched_yield();
		}
	}
	if (e) {
		pthread_mutex_lock(&m.lock);
		if (!atomic_load(&m.broken))
			snprintf(m.why, sizeof m.why, "%s", e->msg);
		atomic_store(&m.broken, true);
		pthread_mutex_unlock(&m.lock);
	}
	return e;
}

/* The members' communicator; made by all of them when first needed. */
static struct err *comm_of(const struct call *q, handle *out)
{
	struct comm *c;
	handle group = 0, h = 0;

	pthread_mutex_lock(&m.lock);
	for (c = m.comm; c && (c->n != q->n || memcmp(c->pe, q->pe, (size_t)q->n * sizeof *c->pe)); c = c->next) { }
	pthread_mutex_unlock(&m.lock);
	if (c) {
		*out = c->h;
		return NULL;
	}
	MPI(Group_incl, m.group, q->n, q->pe, &group);
	MPI(Comm_create_group, m.mine, group, 1, &h);
	MPI(Group_free, &group);
	bool was = mem_persist(true);
	c = mem_alloc(sizeof *c + (size_t)q->n * sizeof *c->pe);
	mem_persist(was);
	c->n = q->n;
	c->h = *out = h;
	memcpy(c->pe, q->pe, (size_t)q->n * sizeof *c->pe);
	pthread_mutex_lock(&m.lock);
	c->next = m.comm;
	m.comm = c;
	pthread_mutex_unlock(&m.lock);
	return NULL;
}

/* Meet the group, and get its communicator. */
static struct err *enter(const struct call *q, handle *comm)
{
	int *pe = mem_alloc((size_t)q->n * sizeof *pe);

	for (int k = 0; k < q->n; k++)
		pe[k] = k == q->me ? -1 : q->pe[k];
	struct err *e = meet(q, pe, q->n);
	free(pe);
	return e ? e : comm_of(q, comm);
}

static struct err *no_room(int64_t n) { return ERR(EXHAUSTED, "out of host memory: asked for %lld bytes for a collective", (long long)n); }

/* --- the calls ------------------------------------------------------------------------------------------------ */

struct err *mpi_flow(const struct call *q, const struct flow *fl)
{
	int64_t piece = MIN(fl->bytes, MAX(STAGE / q->n & ~(int64_t)63, SHORT)), room = (fl->each ? 2 : 1) * q->n * piece + (fl->each ? 0 : piece);
	struct where w[MAX_ROW];
	handle comm, req = 0;

	TRY(enter(q, &comm));
	char *in = malloc((size_t)room), *out = in + q->n * piece;
	struct err *e = in ? NULL : no_room(room);
	for (int64_t o = 0; o < fl->bytes && !e; o += piece) {
		int64_t n = MIN(fl->bytes - o, piece);
		for (int j = 0; j < (fl->each ? q->n : 1); j++)
			fl->fill(fl->user, j, o, n, out + j * n);
		int code = fl->each ? f.Ialltoall(out, (int)n, m.byte, in, (int)n, m.byte, comm, &req) : f.Iallgather(out, (int)n, m.byte, in, (int)n, m.byte, comm, &req);
		e = code ? failed("a collective", code) : await(q, &req, 1, q->pe, q->n);
		for (int j = 0; j < q->n; j++)
			w[j] = (struct where){ in + j * n, -1, 0 };
		if (!e)
			fl->take(fl->user, w, 0, o, n);
	}
	if (!e || !atomic_load(&m.broken))    /* what MPI may still write to stays */
		free(in);
	return e;
}

/* Each rank gets its slice of all operands, reduces it, and all get the slices. */
struct err *mpi_all_reduce(const struct call *q, const struct acc *a, const struct flow *fl, const char *x, char *y, int64_t n)
{
	int64_t chunk = MIN(n, CHUNK) / a->elem * a->elem;
	struct where w[MAX_ROW];
	handle comm, req = 0;

	if (n * q->n <= SHORT)
		return mpi_flow(q, fl);
	TRY(enter(q, &comm));
	int *count = mem_alloc((size_t)q->n * 4 * sizeof *count), *at = count + q->n, *own = at + q->n, *place = own + q->n;
	char *in = malloc((size_t)(chunk + (int64_t)q->n * 64));
	struct err *e = in ? NULL : no_room(chunk);
	for (int64_t o = 0; o < n && !e; o += chunk) {
		int64_t size = MIN(n - o, chunk), slice = (size / a->elem + q->n - 1) / q->n * a->elem;
		for (int j = 0; j < q->n; j++) {
			at[j] = (int)MIN(j * slice, size);
			count[j] = (int)MIN(slice, size - at[j]);
		}
		int mine = count[q->me];
		for (int j = 0; j < q->n; j++) {
			own[j] = mine;
			place[j] = j * mine;
		}
		int code = f.Ialltoallv(x + o, count, at, m.byte, in, own, place, m.byte, comm, &req);
		e = code ? failed("MPI_Ialltoallv", code) : await(q, &req, 1, q->pe, q->n);
		if (e)
			break;
		for (int j = 0; j < q->n; j++)
			w[j] = (struct where){ in + place[j], -1, 0 };
		if (mine)
			acc_all(a, q->ep, w, q->n, 0, y + o + at[q->me], mine);
		code = f.Iallgatherv(m.in_place, 0, m.byte, y + o, count, at, m.byte, comm, &req);
		e = code ? failed("MPI_Iallgatherv", code) : await(q, &req, 1, q->pe, q->n);
	}
	if (!e || !atomic_load(&m.broken)) {
		free(in);
		free(count);
	}
	return e;
}

struct err *mpi_broadcast(const struct call *q, int root, const char *x, char *y, int64_t n)
{
	handle comm, req = 0;

	TRY(enter(q, &comm));
	for (int64_t o = 0; o < n; o += 1 << 30) {
		MPI(Ibcast, (char *)(uintptr_t)(q->me == root ? x : y) + o, (int)MIN(n - o, 1 << 30), m.byte, root, comm, &req);
		TRY(await(q, &req, 1, q->pe, q->n));
	}
	return NULL;
}

struct err *mpi_permute(const struct call *q, int from, int to, const char *x, char *y, int64_t n)
{
	const int pe[2] = { from, to };
	char *copy = NULL;
	handle req[2] = { 0, 0 };
	struct err *e = meet(q, pe, 2);

	if (e)
		return e;
	if (to >= 0 && from >= 0 && overlap(x, n, y, n)) {
		if (!(copy = malloc((size_t)n)))
			return no_room(n);
		x = memcpy(copy, x, (size_t)n);
	}
	for (int64_t o = 0; o < n && !e; o += 1 << 30) {
		int k = 0, code = 0, len = (int)MIN(n - o, 1 << 30);
		if (from >= 0)
			code = f.Irecv(y + o, len, m.byte, from, 1, m.mine, &req[k++]);
		if (to >= 0 && !code)
			code = f.Isend(x + o, len, m.byte, to, 1, m.mine, &req[k++]);
		e = code ? failed("a message", code) : await(q, req, k, pe, 2);
	}
	if (!e || !atomic_load(&m.broken))
		free(copy);
	return e;
}
