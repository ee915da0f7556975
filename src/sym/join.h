/* Inside sym: what join.c and life.c know of joining. */
#ifndef RONDO_SYM_JOIN_H
#define RONDO_SYM_JOIN_H

#include <poll.h>

#include "impl.h"

enum { TOKEN = 32, MASK = 1024, PENDING = 64 };

/* The one message that a socket carries each way before it falls silent. */
struct hello {
	uint32_t magic;
	int32_t version, proc, pid, fd;   /* fd: the region's number at the sender, for pidfd_getfd */
	int32_t n;                        /* heaps */
	uint64_t each;
	char token[TOKEN + 1], nonce[TOKEN + 1];
	uint8_t ok;                       /* the sender has mapped the other's region */
};

/* What the store says of a process. */
struct record { int version, npe, pid, threads, cores, barrier; int64_t share, said; char net, sock[64], nonce[TOKEN + 1], host[64], mask[MASK / 4 + 1]; };      /* net: enum net */

struct join {
	pthread_t thread;
	bool started;
	_Atomic bool joined;              /* w->peer is set */
	int listen, stop;                 /* sockets; stop: an eventfd */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	char token[TOKEN + 1];
	bool pass;                        /* pass descriptors; else the other side fetches them */
	struct hello mine;
	struct record *rec;               /* nproc */
	struct pollfd *poll; int *polled; /* the watcher's: what it looks at, and whose that is */
	struct { int fd; double since; bool maps; int proc; } pending[PENDING];
	int npending;
};

#endif
