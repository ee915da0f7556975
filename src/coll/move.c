/* Collectives that move data as it is: all_gather, all_to_all, permute, broadcast; and the barrier. */
#include <stdlib.h>

#include "impl.h"

/* --- all_gather, all_to_all ------------------------------------------------------------ */

enum { SHORT = 4 << 10 };
struct moving { const struct call *q; const struct blocks *b; };

static struct strided from_of(const struct blocks *b, int j) { return (struct strided){ (char *)(uintptr_t)b->x + j * b->send, b->from.inner, b->from.step }; }
static struct strided to_of(const struct blocks *b, int k) { return (struct strided){ b->y + k * b->place, b->to.inner, b->to.step }; }

static void blocks_fill(void *v, int j, int64_t o, int64_t n, char *to)
{
	struct moving *u = v;

	copy_strided(u->q->ep, dense(to, n), 0, -1, 0, from_of(u->b, j), o, n);
}

static void blocks_take(void *v, const struct where *w, int64_t at, int64_t o, int64_t n)
{
	struct moving *u = v;

	for (int k = 1; k < u->q->n; k++) {
		int j = rank_after(u->q, k);
		copy_strided(u->q->ep, to_of(u->b, j), o, w[j].p ? -1 : w[j].pe, w[j].off, dense(w[j].p, at + n), at, n);
	}
}

static struct err *blocks_direct(const struct call *q, const struct blocks *b)
{
	size_t at[MAX_ROW];
	struct loan l;
	struct err *e;

	TRY(loan_make(q, b->x, b->nx, false, &l));
	TRY_GOTO(e, loan_exchange(q, b->n, l.off, 0, at, NULL), out);
	for (int k = 1; k < q->n; k++) {
		int j = rank_after(q, k);
		copy_strided(q->ep, to_of(b, j), 0, q->pe[j], at[j] + (size_t)(q->me * b->send), (struct strided){ NULL, b->from.inner, b->from.step }, 0, b->n);
	}
	e = ready_all(q);
out:
	loan_end(q, &l, e);
	return e;
}

/* An all_gather where everybody writes its block into all results: it is read once.  *done: false where some result
 * cannot be written by others. */
static struct err *gather_push(const struct call *q, const struct blocks *b, bool *done)
{
	enum { ELSEWHERE = -1 };
	size_t at[MAX_ROW], to[MAX_ROW];
	bool all = loan_here(q, b->y);
	size_t off = (size_t)((uintptr_t)b->y - (uintptr_t)sym_ep_base(q->ep));

	TRY(loan_exchange(q, b->n, 0, all ? off : (size_t)ELSEWHERE, at, to));
	for (int k = 0; k < q->n; k++)
		all &= to[k] != (size_t)ELSEWHERE;
	if ((*done = all)) {
		struct strided from = from_of(b, q->me), own = to_of(b, q->me);
		int64_t rows = b->n / own.inner;
		for (int64_t r = 0; r < rows; r++)
			for (int64_t o = 0; o < own.inner; o += PIECE) {
				int64_t n = MIN(own.inner - o, PIECE);
				const char *p = from.p + r * own.inner + o;
				memcpy(own.p + r * own.step + o, p, (size_t)n);
				for (int k = 1; k < q->n; k++) {
					int j = rank_after(q, k);
					sym_put(q->ep, q->pe[j], to[j] + (size_t)(q->me * b->place + r * own.step + o), p, (size_t)n);
				}
			}
	}
	return ready_all(q);
}

/* Blocks go round: each PE hands on what it got last from the rank below, from where it has put it. */
static struct err *gather_ring(const struct call *q, const struct blocks *b)
{
	int below = q->pe[rank_after(q, q->n - 1)], above = q->pe[rank_after(q, 1)];
	struct blocks z = *b;
	struct sym_msg m;
	struct loan l;
	struct err *e;

	TRY(loan_make(q, b->y, b->ny, false, &l));
	if (l.copy)                       /* with this PE's own block in it */
		z.y = sym_ep_base(q->ep) + l.off;
	for (int s = 0; s < q->n - 1; s++) {
		int j = rank_after(q, q->n - 1 - s);
		TRY_GOTO(e, sym_tell(q->ep, above, q->site, SYM_LEND, l.off, (size_t)b->ny), out);
		TRY_GOTO(e, recv_bytes(q, below, SYM_LEND, b->ny, &m), out);
		copy_strided(q->ep, to_of(&z, j), 0, below, m.off + (size_t)(j * b->place), (struct strided){ NULL, b->to.inner, b->to.step }, 0, b->n);
		sym_return(q->ep, below, true);
	}
	e = sym_settle(q->ep, &above, 1);
	if (!e && l.copy)
		memcpy(b->y, z.y, (size_t)b->ny);
out:
	loan_end(q, &l, e);
	return e;
}

static struct err *blocks_doubling(const struct call *q, const struct blocks *b)
{
	int64_t piece = MIN(b->n, 2 * SYM_SLOT);

	TRY(keep(&q->c->room, (size_t)(piece * q->n)));
	char *all = q->c->room.p;
	for (int64_t o = 0; o < b->n; o += piece) {
		int64_t n = MIN(b->n - o, piece);
		TRY(gather_doubling(q, b->x + o, n, all));
		for (int k = 1; k < q->n; k++) {
			int j = rank_after(q, k);
			copy_strided(q->ep, to_of(b, j), o, -1, 0, dense(all + j * n, n), 0, n);
		}
	}
	return NULL;
}

struct err *move_blocks(const struct call *q, const struct blocks *b)
{
	struct moving u = { q, b };
	struct flow f = { .bytes = b->n, .each = b->send != 0, .fill = blocks_fill, .take = blocks_take, .user = &u };

	if (!f.each || b->from.inner >= b->n) {       /* an all_gather's operand lies in one piece, or blocks do */
		f.from_here = b->x;
		f.apart = b->send;
	}
	/* rows of one block alone touch each page of the result */
	int64_t from = b->from.inner, to = b->to.inner;
	if (q->algo == COLL_direct && !q->c->far && MIN(from, to) < MIN(SHORT, b->n) && (from == to || MAX(from, to) == b->n))
		return move_rows(q, b);
	if (q->algo == COLL_direct && !f.each && !q->c->far) {
		bool done;
		TRY(gather_push(q, b, &done));
		if (done)
			return NULL;
	}
	if (q->algo == COLL_levels)
		return levels_gather(q, b);
	copy_strided(q->ep, to_of(b, q->me), 0, -1, 0, from_of(b, q->me), 0, b->n);
	switch (q->algo) {
	case COLL_slot: return flow_slot(q, &f);
	case COLL_mpi: return mpi_flow(q, &f);
	case COLL_direct: return blocks_direct(q, b);
	case COLL_ring: return gather_ring(q, b);
	case COLL_doubling: return blocks_doubling(q, b);
	default: return flow_stage(q, &f);
	}
}

/* --- one source: broadcast, permute ------------------------------------------------------ */

struct single { const struct call *q; const char *x; char *y; int from; };

static void single_fill(void *v, int j, int64_t o, int64_t n, char *to) { copy_out(to, ((struct single *)v)->x + o, (size_t)n); }

static void single_take(void *v, const struct where *w, int64_t at, int64_t o, int64_t n)
{
	struct single *u = v;
	const struct where *s = &w[u->from];

	if (s->p)
		copy(u->y + o, s->p + at, (size_t)n);
	else
		sym_get(u->q->ep, s->pe, u->y + o, s->off + (size_t)at, (size_t)n);
}

/* Down the ranks after the root, in chunks that follow each other. */
static struct err *broadcast_ring(const struct call *q, int root, const char *x, char *y, int64_t n)
{
	int place = q->me >= root ? q->me - root : q->me - root + q->n;
	int below = q->pe[rank_after(q, q->n - 1)], above = place < q->n - 1 ? q->pe[rank_after(q, 1)] : -1;
	int64_t chunk = q->c->table.chunk;
	struct sym_msg m;
	struct loan l = { 0 };
	struct err *e = NULL;

	if (!place || above >= 0)
		TRY(loan_make(q, place ? y : x, n, false, &l));
	char *at = l.copy && place ? sym_ep_base(q->ep) + l.off : y;
	for (int64_t o = 0; o < n; o += chunk) {
		int64_t len = MIN(n - o, chunk);
		if (place) {
			TRY_GOTO(e, recv_bytes(q, below, SYM_LEND, len, &m), out);
			sym_get(q->ep, below, at + o, m.off, (size_t)len);
			sym_return(q->ep, below, true);
		}
		if (above >= 0)
			TRY_GOTO(e, sym_tell(q->ep, above, q->site, SYM_LEND, l.off + (size_t)o, (size_t)len), out);
	}
	if (above >= 0)
		e = sym_settle(q->ep, &above, 1);
	if (!e && at != y)
		memcpy(y, at, (size_t)n);
out:
	loan_end(q, &l, e);
	return e;
}

/* Nobody sends to all: all learn where the root has it, and it learns when all have read. */
static struct err *broadcast_rounds(const struct call *q, int root, const char *x, char *y, int64_t n)
{
	size_t at[MAX_ROW];
	struct loan l = { 0 };
	struct err *e = NULL;

	if (q->me == root)
		TRY(loan_make(q, x, n, false, &l));
	TRY_GOTO(e, loan_exchange(q, n, l.off, 0, at, NULL), out);
	if (q->me != root)
		sym_get(q->ep, q->pe[root], y, at[root], (size_t)n);
	e = ready_all(q);
out:
	loan_end(q, &l, e);
	return e;
}

static struct err *broadcast_direct(const struct call *q, int root, const char *x, char *y, int64_t n)
{
	int pe[MAX_ROW];
	struct sym_msg m;
	struct loan l;
	struct err *e = NULL;

	if (in_rounds(q))
		return broadcast_rounds(q, root, x, y, n);
	if (q->me != root) {
		TRY(recv_bytes(q, q->pe[root], SYM_LEND, n, &m));
		sym_get(q->ep, q->pe[root], y, m.off, (size_t)n);
		sym_return(q->ep, q->pe[root], true);
		return NULL;
	}
	TRY(loan_make(q, x, n, false, &l));
	others_of(q, pe);
	for (int k = 0; k < q->n - 1; k++)
		TRY_GOTO(e, sym_tell(q->ep, pe[k], q->site, SYM_LEND, l.off, (size_t)n), out);
	e = sym_settle(q->ep, pe, q->n - 1);
out:
	loan_end(q, &l, e);
	return e;
}

struct err *move_broadcast(const struct call *q, int root, const char *x, char *y, int64_t n)
{
	struct single u = { q, x, y, root };
	struct flow f = { .bytes = n, .fill = single_fill, .from_here = x, .take = single_take, .user = &u };
	struct err *e;

	if (q->me == root)
		f.from = &root;
	else
		f.to = f.from = &root, f.nfrom = 1;
	e = q->algo == COLL_slot ? flow_slot(q, &f) : q->algo == COLL_direct ? broadcast_direct(q, root, x, y, n)
	  : q->algo == COLL_ring ? broadcast_ring(q, root, x, y, n) : q->algo == COLL_mpi ? mpi_broadcast(q, root, x, y, n) : flow_stage(q, &f);
	if (!e && q->me == root && x != y)
		memcpy(y, x, (size_t)n);
	return e;
}

static struct err *permute_push(const struct call *q, int from, int to, const char *x, char *y, int64_t n)
{
	_Atomic uint32_t left = 0;
	struct loan g = { 0 };
	struct sym_msg m;
	struct err *e = NULL;

	if (from >= 0) {
		TRY(grant_make(q, y, n, to >= 0 && overlap(x, n, y, n), &g));
		TRY_GOTO(e, sym_tell(q->ep, from, q->site, SYM_GRANT, g.off, (size_t)n), out);
	}
	if (to >= 0) {
		TRY_GOTO(e, recv_bytes(q, to, SYM_GRANT, n, &m), out);
		sym_put_nb(q->ep, to, m.off, x, (size_t)n, &left);
		TRY_GOTO(e, sym_tell(q->ep, to, q->site, SYM_READY, 0, 0), out);
		sym_return(q->ep, to, false);
	}
	if (from >= 0) {
		TRY_GOTO(e, sym_recv(q->ep, from, q->site, SYM_READY, &m), out);
		sym_return(q->ep, from, false);
	}
out:
	sym_get_wait(q->ep, &left);
	return from >= 0 ? grant_end(q, &g, y, n, e) : e;
}

/* Member r of a cycle moves slice r of all operands, a few lines at a time: in place, with two meetings of the cycle.  What is
 * used where it lies changes hands once for each part that another moved, and no line is written that somebody else has
 * only read (docs/sym.md).  *done: false where somebody's memory is not in its heap. */
static struct err *permute_rotate(const struct call *all, const struct cycle *c, const char *x, char *y, int64_t n, bool *done)
{
	enum { ELSEWHERE = -1, SOME = 4096 };
	struct call q = *all;
	_Alignas(64) char last[SOME], buf[SOME];
	size_t at[COLL_CYCLE], to[COLL_CYCLE];
	char *base = sym_ep_base(q.ep);
	bool here = loan_here(&q, x) && loan_here(&q, y);
	int64_t slice = ((n + c->n - 1) / c->n + SOME - 1) / SOME * SOME, lo = MIN(c->me * slice, n), hi = MIN(lo + slice, n);

	q.n = c->n, q.me = c->me, q.pe = c->pe;
	TRY(loan_exchange(&q, n, (size_t)(x - base), here ? (size_t)(y - base) : (size_t)ELSEWHERE, at, to));
	for (int k = 0; k < q.n; k++)
		here &= to[k] != (size_t)ELSEWHERE;
	*done = here;
	if (!here)
		return NULL;
	for (int64_t o = lo; o < hi; o += SOME) {
		size_t len = (size_t)MIN(hi - o, SOME);
		if (!c->open)
			memcpy(last, sym_at(q.ep, q.pe[q.n - 1], at[q.n - 1] + (size_t)o, len, last), len);
		for (int k = q.n; k-- > 0;) {             /* k's place is free: what was there has gone on */
			if (!k && c->open)
				break;
			const char *p = !k ? last : k - 1 == q.me ? x + o : sym_at(q.ep, q.pe[k - 1], at[k - 1] + (size_t)o, len, buf);
			if (k == q.me)
				memcpy(y + o, p, len);
			else
				sym_put(q.ep, q.pe[k], to[k] + (size_t)o, p, len);
		}
	}
	return ready_all(&q);
}

/* Ranks 1 and 2 of q: where to send to, where to receive from; -1 nobody. */
struct err *move_permute(const struct call *q, int from, int to, const char *x, char *y, int64_t n, const struct cycle *c)
{
	static const int one = 1, two = 2;
	struct single u = { q, x, y, 2 };
	struct flow f = { .bytes = n, .fill = single_fill, .from_here = x, .take = single_take, .user = &u, .to = &one, .nto = to >= 0, .from = &two, .nfrom = from >= 0 };
	struct sym_msg m;
	struct loan l = { 0 };
	struct err *e = NULL;
	void *room;

	if (q->algo == COLL_slot && n <= SYM_SLOT) {
		if (to >= 0 && n > SYM_INLINE && q->c->far)
			TRY(sym_slot_put(q->ep, to, q->site, x, (size_t)n));
		else if (to >= 0) {
			TRY(sym_slot_room(q->ep, to, (size_t)n, &room));
			copy(room, x, (size_t)n);
			sym_slot_send(q->ep, to, q->site, (size_t)n);
		}
		if (from >= 0) {
			TRY(recv_bytes(q, from, SYM_SLOT_MSG, n, &m));
			copy(y, m.data, (size_t)n);
			sym_return(q->ep, from, false);
		}
		return NULL;
	}
	if (q->algo == COLL_slot)
		return flow_slot(q, &f);
	if (q->algo == COLL_mpi)
		return mpi_permute(q, from, to, x, y, n);
	if (q->algo == COLL_push)
		return permute_push(q, from, to, x, y, n);
	if (q->algo == COLL_rotate) {
		bool done;
		TRY(permute_rotate(q, c, x, y, n, &done));
		if (done)
			return NULL;
	}
	if (q->algo != COLL_direct)
		return flow_stage(q, &f);
	if (to >= 0) {
		TRY(loan_make(q, x, n, x == y && from >= 0, &l));
		TRY_GOTO(e, sym_tell(q->ep, to, q->site, SYM_LEND, l.off, (size_t)n), out);
	}
	if (from >= 0) {
		TRY_GOTO(e, recv_bytes(q, from, SYM_LEND, n, &m), out);
		sym_get(q->ep, from, y, m.off, (size_t)n);
		sym_return(q->ep, from, true);
	}
	if (to >= 0)
		e = sym_settle(q->ep, &to, 1);
out:
	loan_end(q, &l, e);
	return e;
}

/* --- barrier ----------------------------------------------------------------------------- */

struct err *move_barrier(const struct call *q) { return q->algo == COLL_doubling ? meet_in_rounds(q) : ready_all(q); }
