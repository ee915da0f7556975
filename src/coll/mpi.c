/* The mpi road: data moved by the MPI that started the processes, for machines whose fabric MPI knows best.
 *
 * MPI moves bytes only; reductions are ours, in rank order, so every type and reducer has this road and the bits are those of the
 * other algorithms.
 *
 * MPI has no errors that name a peer and no end to a wait for one that is dead.  So the members meet first, by messages of our
 * own: whoever is lost, late or in another program is found there.  Transfers are nonblocking, and whoever waits for
 * one looks after its peers as other waits do.  One that failed cannot be taken back: from then on the road is closed. */
#include "mpi.h"

#include <sched.h>
#include <stdlib.h>

enum { STAGE = 4 << 20, CHUNK = 16 << 20, SHORT = 64 << 10, LOOKS = 256 };

struct mpi_calls mpi_calls;
struct mpi_road mpi_road = { .lock = PTHREAD_MUTEX_INITIALIZER };

bool coll_mpi_ready(const struct sym_world *w) { return mpi_road.ready && sym_npe(w) == sym_nproc(w) && sym_nproc(w) > 1; }

struct err *mpi_failed(const char *what, int code)
{
	char text[1024] = "";
	int n = 0;

	mpi_calls.Error_string(code, text, &n);
	return ERR(INTERNAL, "MPI: %s: %s", what, text);
}

/* --- one transfer ---------------------------------------------------------------------------------------- */

static struct err *closed(void)
{
	return ERR(UNAVAILABLE, "the mpi road is closed since a transfer on it failed: %s", mpi_road.why);
}

/* All of pe[0 .. n) are in this very command. */
static struct err *meet(const struct call *q, const int *pe, int n)
{
	struct sym_msg got;
	void *room;

	if (atomic_load(&mpi_road.broken))
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
		int done = 0, code = mpi_calls.Test(&req[i], &done, mpi_road.no_status);
		if (code)
			e = mpi_failed("a transfer", code);
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
		pthread_mutex_lock(&mpi_road.lock);
		if (!atomic_load(&mpi_road.broken))
			snprintf(mpi_road.why, sizeof mpi_road.why, "%s", e->msg);
		atomic_store(&mpi_road.broken, true);
		pthread_mutex_unlock(&mpi_road.lock);
	}
	return e;
}

/* The members' communicator; made by all of them when first needed. */
static struct err *comm_of(const struct call *q, handle *out)
{
	struct mpi_comm *c;
	handle group = 0, h = 0;

	pthread_mutex_lock(&mpi_road.lock);
	for (c = mpi_road.comm; c && (c->n != q->n || memcmp(c->pe, q->pe, (size_t)q->n * sizeof *c->pe)); c = c->next) { }
	pthread_mutex_unlock(&mpi_road.lock);
	if (c) {
		*out = c->h;
		return NULL;
	}
	MPI(Group_incl, mpi_road.group, q->n, q->pe, &group);
	MPI(Comm_create_group, mpi_road.mine, group, 1, &h);
	MPI(Group_free, &group);
	bool was = mem_persist(true);
	c = mem_alloc(sizeof *c + (size_t)q->n * sizeof *c->pe);
	mem_persist(was);
	c->n = q->n;
	c->h = *out = h;
	memcpy(c->pe, q->pe, (size_t)q->n * sizeof *c->pe);
	pthread_mutex_lock(&mpi_road.lock);
	c->next = mpi_road.comm;
	mpi_road.comm = c;
	pthread_mutex_unlock(&mpi_road.lock);
	return NULL;
}

/* Meet the group, and get its communicator. */
static struct err *enter(const struct call *q, handle *comm)
{
	int pe[MAX_ROW];

	for (int k = 0; k < q->n; k++)
		pe[k] = k == q->me ? -1 : q->pe[k];
	TRY(meet(q, pe, q->n));
	return comm_of(q, comm);
}

/* n bytes that MPI reads and writes, which stay for the next time. */
static struct err *room_of(const struct call *q, int64_t n, char **out)
{
	TRY(keep(&q->c->room, (size_t)n));
	*out = q->c->room.p;
	return NULL;
}

/* It is done with them; if the road is closed it may still write to them, and they are nobody's. */
static void done(const struct call *q, const struct err *e)
{
	if (e && atomic_load(&mpi_road.broken))
		q->c->room = (struct kept){ 0 };
}

/* --- the calls ------------------------------------------------------------------------------------------------ */

struct err *mpi_flow(const struct call *q, const struct flow *fl)
{
	int64_t piece = MIN(fl->bytes, MAX(STAGE / q->n & ~(int64_t)63, SHORT)), room = (fl->each ? 2 : 1) * q->n * piece + (fl->each ? 0 : piece);
	struct where w[MAX_ROW];
	handle comm, req = 0;
	struct err *e = NULL;
	char *in;

	TRY(enter(q, &comm));
	TRY(room_of(q, room, &in));
	char *out = in + q->n * piece;
	for (int64_t o = 0; o < fl->bytes && !e; o += piece) {
		int64_t n = MIN(fl->bytes - o, piece);
		for (int j = 0; j < (fl->each ? q->n : 1); j++)
			fl->fill(fl->user, j, o, n, out + j * n);
		int code = fl->each ? mpi_calls.Ialltoall(out, (int)n, mpi_road.byte, in, (int)n, mpi_road.byte, comm, &req) : mpi_calls.Iallgather(out, (int)n, mpi_road.byte, in, (int)n, mpi_road.byte, comm, &req);
		e = code ? mpi_failed("a collective", code) : await(q, &req, 1, q->pe, q->n);
		for (int j = 0; j < q->n; j++)
			w[j] = (struct where){ in + j * n, -1, 0 };
		if (!e)
			fl->take(fl->user, w, 0, o, n);
	}
	done(q, e);
	return e;
}

/* Each rank gets its slice of all operands, reduces it, and all get the slices. */
struct err *mpi_all_reduce(const struct call *q, const struct acc *a, const struct flow *fl, const char *x, char *y, int64_t n)
{
	int64_t chunk = MIN(n, CHUNK) / a->elem * a->elem;
	struct where w[MAX_ROW];
	int64_t counts = (4 * q->n * (int64_t)sizeof(int) + 63) & ~(int64_t)63;
	handle comm, req = 0;
	struct err *e = NULL;
	char *in;

	if (n * q->n <= SHORT)
		return mpi_flow(q, fl);
	TRY(enter(q, &comm));
	TRY(room_of(q, counts + chunk + (int64_t)q->n * 64, &in));
	int *count = (int *)(void *)in, *at = count + q->n, *own = at + q->n, *place = own + q->n;
	in += counts;
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
		int code = mpi_calls.Ialltoallv(x + o, count, at, mpi_road.byte, in, own, place, mpi_road.byte, comm, &req);
		e = code ? mpi_failed("MPI_Ialltoallv", code) : await(q, &req, 1, q->pe, q->n);
		if (e)
			break;
		for (int j = 0; j < q->n; j++)
			w[j] = (struct where){ in + place[j], -1, 0 };
		if (mine)
			acc_all(a, q->ep, w, q->n, 0, y + o + at[q->me], mine);
		code = mpi_calls.Iallgatherv(mpi_road.in_place, 0, mpi_road.byte, y + o, count, at, mpi_road.byte, comm, &req);
		e = code ? mpi_failed("MPI_Iallgatherv", code) : await(q, &req, 1, q->pe, q->n);
	}
	done(q, e);
	return e;
}

struct err *mpi_broadcast(const struct call *q, int root, const char *x, char *y, int64_t n)
{
	handle comm, req = 0;

	TRY(enter(q, &comm));
	for (int64_t o = 0; o < n; o += 1 << 30) {
		MPI(Ibcast, (char *)(uintptr_t)(q->me == root ? x : y) + o, (int)MIN(n - o, 1 << 30), mpi_road.byte, root, comm, &req);
		TRY(await(q, &req, 1, q->pe, q->n));
	}
	return NULL;
}

struct err *mpi_permute(const struct call *q, int from, int to, const char *x, char *y, int64_t n)
{
	const int pe[2] = { from, to };
	handle req[2] = { 0, 0 };
	struct err *e = meet(q, pe, 2);

	if (e)
		return e;
	if (to >= 0 && from >= 0 && overlap(x, n, y, n)) {
		char *copy;
		TRY(room_of(q, n, &copy));
		x = memcpy(copy, x, (size_t)n);
	}
	for (int64_t o = 0; o < n && !e; o += 1 << 30) {
		int k = 0, code = 0, len = (int)MIN(n - o, 1 << 30);
		if (from >= 0)
			code = mpi_calls.Irecv(y + o, len, mpi_road.byte, from, 1, mpi_road.mine, &req[k++]);
		if (to >= 0 && !code)
			code = mpi_calls.Isend(x + o, len, mpi_road.byte, to, 1, mpi_road.mine, &req[k++]);
		e = code ? mpi_failed("a message", code) : await(q, req, k, pe, 2);
	}
	done(q, e);
	return e;
}
