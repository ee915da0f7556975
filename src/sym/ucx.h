/* Inside sym: the road through UCX.  ucx_lib.c finds the library and starts it, ucx_msg.c sends and receives messages, ucx.c makes a transport of them. */
#ifndef RONDO_SYM_UCX_H
#define RONDO_SYM_UCX_H

#include "impl.h"

#if __has_include(<ucp/api/ucp.h>)

#include <ucp/api/ucp.h>

#define UCP(X) \
	X(ucp_init_version) X(ucp_cleanup) X(ucp_config_read) X(ucp_config_modify) X(ucp_config_release) X(ucp_worker_create) \
	X(ucp_worker_destroy) X(ucp_worker_get_address) X(ucp_worker_release_address) X(ucp_worker_progress) X(ucp_worker_get_efd) \
	X(ucp_worker_arm) X(ucp_worker_set_am_recv_handler) X(ucp_ep_create) X(ucp_ep_flush_nbx) X(ucp_ep_close_nbx) X(ucp_am_send_nbx) \
	X(ucp_am_recv_data_nbx) X(ucp_request_free) X(ucp_request_check_status) X(ucp_get_version) X(ucp_context_print_info)

/* Its functions, once it is loaded. */
extern struct ucx_calls {
#define X(name) __typeof__(name) *name;
	UCP(X)
#undef X
	const char *(*ucs_status_string)(ucs_status_t s);
} ucx;

enum kind { LINE = 1, PUT, PUT_LINE, GET, DATA, AMO, VALUE, HELLO, BYE };
/* Bytes that are copied into a message at most; of which a message is a long one; of long ones in which others can go before the rest; of those of a link that
 * the library has at most. */
enum { COPY = 16 << 10, WHOLE = 72 << 10, PIECE = 512 << 10, UNDER = 2 << 20, REST_NS = 200000 };

struct head {
	uint32_t kind, n;                 /* n: words of a line, bytes of anything else */
	int32_t from, pe;                 /* process that sends; PE whose heap is meant */
	uint64_t off, seq, cookie;        /* cookie: of an answer; of a PUT_LINE where the line goes */
	uint64_t word[8];                 /* of a line; operation, operands and value of an atomic; the token of a greeting */
};

/* A message under way, of n bytes at src.  left is counted down when they may be written again; then it is in the list of such.  after: it waits for its link, and so does that. */
struct msg { struct head h; struct spare *of; const void *src; size_t n; _Atomic uint32_t *left; struct ucx *x; struct msg *next, **at, *after; int pe, proc; char data[]; };   /* pe: whose left it is */

struct waiting { struct waiting *next; struct head h; };
/* Of one process. */
struct link {
	ucp_ep_h ep;
	uint64_t sent;                    /* numbers given */
	uint64_t next;                    /* the first that is not done here */
	struct waiting *line;             /* what came, but not all before it */
	struct msg *first, *last;         /* long messages that the library does not have yet, */
	size_t under;                     /* and bytes of those that it has */
	bool greeted;
};

/* An answer that is waited for: n bytes to dst.  left is counted down when it has come, or never will.  dst NULL: it was forgotten,
 * and left is nobody's. */
struct fetch { void *dst; size_t n; _Atomic uint32_t *left; int proc, from; bool busy, lost; };

struct ucx {
	struct sym_world *w;
	ucp_context_h ctx;
	ucp_worker_h worker;
	pthread_mutex_t lock;             /* of all below, and of every call into the library */
	struct link *link;                /* nproc */
	struct fetch *get;                /* nget, by cookie - 1; left NULL: free */
	size_t nget, idle;                /* idle: none before this is free */
	_Atomic uint32_t *open;           /* nlocal: what of a PE has a `left` that is not down yet */
	struct msg *lent;                 /* messages with a left */
	_Atomic uint32_t nobody;
	int efd, stop, flying;            /* flying: messages under way */
	_Atomic uint64_t polled;          /* when somebody who waits last made progress, ns */
	pthread_t thread;
	bool met, started, poor;          /* met: progress has begun; poor: there was no memory for a message */
	char token[64];
};

/* --- ucx_lib.c ---------------------------------------------------------------------- */

struct err *ucx_fail(const char *what, ucs_status_t s);
/* Load the library; x has a context and a worker.  What there is of them when it fails is for who closes. */
struct err *ucx_start(struct ucx *x);

/* --- ucx_msg.c: under the lock -------------------------------------------------------- */

ucs_status_t ucx_receive(void *user, const void *header, size_t nheader, void *data, size_t n, const ucp_am_recv_param_t *p);
/* The library has ended what was under way.  The endpoint stays until the worker goes, for a request to connect that is still on its
 * way (ucx_start). */
void ucx_lost(void *user, ucp_ep_h ep, ucs_status_t s);
/* left, if any, of PE from is counted down when data may be written again. */
void ucx_post(struct ucx *x, int proc, const struct head *h, const void *data, size_t n, bool copy, int from, _Atomic uint32_t *left);
void ucx_down(struct ucx *x, int from, _Atomic uint32_t *left);        /* one of from's is complete */
void ucx_fetched(struct ucx *x, uint64_t cookie, bool lost);           /* the answer with this cookie has come, or will not */
void ucx_give_up(struct ucx *x, int proc);                             /* there was no memory for a message of proc, or to it */
void ucx_flow(struct ucx *x, int proc);                                /* long messages to proc go on, or are dropped if it is gone */
bool ucx_turn(struct ucx *x);                                          /* make progress; true if there was some */
void ucx_end(struct ucx *x, int proc);                                 /* nothing goes to proc any more, or comes from it */
void ucx_cut(struct ucx *x, int proc);                                 /* the same, since proc takes nothing */
void ucx_drop(struct link *l);                                         /* what came by it, but has not been done */

#endif
#endif
