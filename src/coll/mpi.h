/* Inside coll: MPI as it was found, for mpi_open.c, which finds it, and mpi.c, which calls it. */
#ifndef RONDO_COLL_MPI_H
#define RONDO_COLL_MPI_H

#include <pthread.h>

#include "impl.h"

typedef uintptr_t handle;

/* Its functions. */
extern struct mpi_calls {
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
} mpi_calls;

/* A communicator of some PEs. */
struct mpi_comm { struct mpi_comm *next; int n; handle h; int pe[]; };

extern struct mpi_road {
	pthread_mutex_t lock;
	handle world, mine, byte, group;          /* mine: of all, for these calls alone */
	void *in_place, *no_status;
	struct mpi_comm *comm;
	bool ready, ours;                         /* ours: this library has started MPI, and ends it */
	_Atomic bool broken;
	char why[200];
} mpi_road;

struct err *mpi_failed(const char *what, int code);
#define MPI(name, ...) do { \
		int code_ = mpi_calls.name(__VA_ARGS__); \
		if (code_) \
			return mpi_failed(#name, code_); \
	} while (0)

#endif
