/* Reductions: all_reduce, reduce_scatter, scan. */
#include <stdlib.h>

#include "impl.h"

/* --- all_reduce: one-shot ------------------------------------------------------------ */

struct all { const struct call *q; const struct acc *a; const char *x; char *y; };

static void all_fill(void *v, int j, int64_t o, int64_t n, char *to) { copy_out(to, ((struct all *)v)->x + o, (size_t)n); }

static void all_take(void *v, const struct where *w, int64_t at, int64_t o, int64_t n)
{
	struct all *u = v;
	struct where *mine = (struct where *)(uintptr_t)&w[u->q->me];

	*mine = (struct where){ u->x + o - at, -1, 0 };
	acc_all(u->a, u->q->ep, w, u->q->n, at, u->y + o, n);
}

/* One message to each of the others, or to all of them: rank j gets what is at x + j * step. */
static struct err *sum_slot(const struct call *q, const struct coll_red *r, const char *x, int64_t step, char *y, int64_t count, int64_t n)
{
	struct sym_msg m[MAX_ROW];
	kern_strip *pair = acc_pair(q->c, r, q->n);
	char sum[SYM_SHORT];

	TRY(sym_exchange(q->ep, q->pe, q->n, q->me, q->site, x, (size_t)step, (size_t)n, m));
	if (pair && n <= SYM_SHORT) {
		const void *left = m[0].data;
		for (int j = 1; j < q->n; j++, left = sum)
			pair(count, j < q->n - 1 ? sum : y, left, m[j].data, NULL);
		return NULL;
	}
	struct where w[MAX_ROW];
	struct acc a;

	for (int j = 0; j < q->n; j++)
		w[j] = (struct where){ m[j].data, -1, 0 };
	TRY(acc_init(&a, q->c, r, q->n));
	acc_all(&a, q->ep, w, q->n, 0, y, n);
	return NULL;
}

static struct err *all_loan(const struct call *q, const struct acc *a, const char *x, char *y, int64_t n)
{
	struct where w[MAX_ROW];
	size_t at[MAX_ROW];
	struct loan l;
	struct err *e;

	TRY(loan_make(q, x, n, x == y, &l));
	TRY_GOTO(e, loan_exchange(q, n, l.off, 0, at, NULL), out);
	for (int k = 0; k < q->n; k++)
		w[k] = (struct where){ NULL, q->pe[k], at[k] };
	acc_all(a, q->ep, w, q->n, 0, y, n);
	e = ready_all(q);
out:
	loan_end(q, &l, e);
	return e;
}

/* --- all_reduce: two-shot --------------------------------------------------------------- */

/* Rank r reduces slice r of all operands and writes it into all results.  Works in place: slice r of an operand is
 * read by rank r alone, before it is written.
 *
 * All know after the first message whether the staging ring is the better way.  It is where an operand or a result of
 * any PE lies outside its heap: a copy of chunks that stay in the caches costs less than one of the whole (not of hosts
 * that must be asked).  And it is for two PEs and little data unless they work in place: the lines of an operand that
 * the other has read, and of a result that it has written, cost a transfer each when the program writes the one and
 * reads the other; those of one buffer are the same.
 *
 * What follows runs on a part when its sum is in the first cache; what is made of the sum alone is what all get. */
static struct err *all_two_shot(const struct call *q, const struct acc *a, const char *x, char *y, int64_t n, const struct flow *f, const struct coll_then *t)
{
	enum { ELSEWHERE = -1, LITTLE = 192 << 10 };
	_Alignas(64) char sum[COLL_UNIT];
	bool whole = n >= q->n * 4 * COLL_UNIT, near = true;      /* slices of whole units */
	int64_t unit = whole ? COLL_UNIT : 64, slice = ((n / a->elem + q->n - 1) / q->n * a->elem + unit - 1) / unit * unit;
	int64_t lo = MIN(q->me * slice, n), hi = MIN(lo + slice, n);
	bool made = t && t->out && whole;                         /* all get what is made of the sum */
	/* What follows each has done of it; the first unit that begins in this slice. */
	int64_t step = made ? MAX(PIECE, t->unit) : PIECE, first = t ? MIN((lo + t->unit - 1) / t->unit * t->unit, n) : 0, done = first;
	char *res = made ? t->out : y;
	bool here = loan_here(q, x) && loan_here(q, res), later = t && t->out && !whole;
	size_t at[MAX_ROW], to[MAX_ROW];
	struct where w[MAX_ROW];
	struct loan l = { 0 }, out = { 0 };
	struct err *e;

	for (int k = 0; k < q->n; k++)
		near &= sym_maps(q->ep, q->pe[k]);
	bool stage = near && !in_rounds(q);
	if (!stage || here) {
		TRY_GOTO(e, loan_make(q, x, n, false, &l), out);
		TRY_GOTO(e, grant_make(q, res, n, res != x && overlap(res, n, x, n), &out), out);
	}
	char *dst = sym_ep_base(q->ep) + out.off;
	later |= t && !made && out.copy;
	TRY_GOTO(e, loan_exchange(q, n, l.off, stage && !here ? (size_t)ELSEWHERE : out.off, at, to), out);
	for (int k = 0; k < q->n; k++) {
		w[k] = (struct where){ NULL, q->pe[k], at[k] };
		here &= to[k] != (size_t)ELSEWHERE && (q->n > 2 || n >= LITTLE || to[k] == at[k]);
	}
	if (stage && !here) {
		later = t;
		e = flow_stage(q, f);
		goto out;
	}
	for (int64_t o = lo, k; o < hi; o += k) {
		k = near ? MIN(hi - o, step) : hi - o;
		char *part = !made ? dst + o : k <= COLL_UNIT ? sum : y + o;
		acc_all(a, q->ep, w, q->n, o, part, k);
		if (made)
			t->run(t->user, part, dst + o, o, o + k);
		for (int i = 1; i < q->n; i++) {
			int j = rank_after(q, i);
			sym_put(q->ep, q->pe[j], to[j] + (size_t)o, dst + o, (size_t)k);
		}
		int64_t end = t && o + k < n ? (o + k) / t->unit * t->unit : n;
		if (t && !made && !later && end > done) {
			t->run(t->user, dst + done, NULL, done, end);
			done = end;
		}
	}
	TRY_GOTO(e, ready_all(q), out);
	if (t && !made && !later && first > 0)
		t->run(t->user, dst, NULL, 0, first);
	if (t && !made && !later && done < n)
		t->run(t->user, dst + done, NULL, done, n);
out:
	loan_end(q, &l, e);
	e = grant_end(q, &out, res, n, e);
	if (!e && later)
		t->run(t->user, y, t->out, 0, n);
	return e;
}

/* The same by puts: a rank says where slices for it go, and where its result lies; then nobody asks for anything.  In chunks,
 * each of n slices: while one is reduced and put where the results are, the slices of the next are on their way.
 *
 * Step t of every rank: chunk t-1's slices have come, chunk t-2's results have come; put the slices of chunk t; reduce chunk
 * t-1, put its results.  So the place of slices of chunk t-2 is free when those of chunk t are put there.  A result's slice is
 * written when its rank has that slice of all operands: in place as well. */
struct pushed {
	const struct call *q;
	const struct acc *a;
	const char *x;
	char *dst;
	int64_t n, chunk, slice;          /* slice: the most that one has */
	size_t at[MAX_ROW], result[MAX_ROW];
	_Atomic uint32_t left;
};

/* The slice of rank j of chunk t: its first byte in the operand; *len may be 0. */
static int64_t pushed_slice(const struct pushed *p, int64_t t, int j, int64_t *len)
{
	int64_t size = MIN(p->chunk, p->n - t * p->chunk), each = MIN(p->slice, ((size / p->a->elem + p->q->n - 1) / p->q->n * p->a->elem + 63) / 64 * 64);
	int64_t lo = MIN(j * each, size);

	*len = MIN(each, size - lo);
	return t * p->chunk + lo;
}

static struct err *pushed_ready(const struct pushed *p, bool send)
{
	const struct call *q = p->q;
	struct sym_msg m;

	if (!send)
		TRY(expect_all(q));
	for (int k = 1; k < q->n; k++) {
		int pe = q->pe[rank_after(q, k)];
		if (send) {
			TRY(sym_tell(q->ep, pe, q->site, SYM_READY, 0, 0));
			continue;
		}
		TRY(sym_recv(q->ep, pe, q->site, SYM_READY, &m));
		sym_return(q->ep, pe, false);
	}
	return NULL;
}

static struct err *pushed_step(struct pushed *p, int64_t t, int64_t chunks)
{
	const struct call *q = p->q;
	struct where w[MAX_ROW];
	int64_t len;

	if (t >= 1 && t <= chunks)
		TRY(pushed_ready(p, false));
	if (t >= 2)
		TRY(pushed_ready(p, false));
	for (int k = 1; k < q->n && t < chunks; k++) {
		int j = rank_after(q, k);
		int64_t lo = pushed_slice(p, t, j, &len);
		if (len)
			sym_put_nb(q->ep, q->pe[j], p->at[j] + (size_t)(t % 2 * p->slice), p->x + lo, (size_t)len, &p->left);
	}
	if (t < chunks)
		TRY(pushed_ready(p, true));
	if (t < 1 || t > chunks)
		return NULL;
	int64_t lo = pushed_slice(p, t - 1, q->me, &len);
	for (int j = 0; j < q->n; j++)
		w[j] = (struct where){ sym_ep_base(q->ep) + q->c->inbox->off + (2 * j + (t - 1) % 2) * p->slice - lo, -1, 0 };
	w[q->me] = (struct where){ p->x, -1, 0 };
	if (len)
		acc_all(p->a, q->ep, w, q->n, lo, p->dst + lo, len);
	for (int k = 1; k < q->n && len; k++) {
		int j = rank_after(q, k);
		sym_put_nb(q->ep, q->pe[j], p->result[j] + (size_t)lo, p->dst + lo, (size_t)len, &p->left);
	}
	return pushed_ready(p, true);
}

enum { PUSH_MOST = 4 << 20 };

/* Bytes of the slice that each member reduces of so many. */
static int64_t push_slice(const struct call *q, int64_t chunk, int64_t elem) { return ((chunk / elem + q->n - 1) / q->n * elem + 63) / 64 * 64; }

static struct err *all_push(const struct call *q, const struct acc *a, const char *x, char *y, int64_t n)
{
	struct pushed p = { .q = q, .a = a, .x = x, .n = n };
	struct sym_block **inbox = &q->c->inbox;
	struct loan g = { 0 };
	struct err *e = NULL;

	p.chunk = MIN(n, PUSH_MOST) / a->elem * a->elem;
	p.slice = push_slice(q, p.chunk, a->elem);
	if (!*inbox || (int64_t)(*inbox)->bytes < 2 * p.slice * q->n) {
		sym_free(*inbox);
		*inbox = NULL;
		TRY(sym_alloc(q->c->heap, (size_t)(2 * p.slice * q->n), "slices of a collective", -1, inbox));
	}
	TRY(grant_make(q, y, n, false, &g));
	p.dst = sym_ep_base(q->ep) + g.off;
	TRY_GOTO(e, loan_exchange(q, n, (*inbox)->off, g.off, p.at, p.result), out);
	for (int j = 0; j < q->n; j++)    /* this one's place there */
		p.at[j] += (size_t)(2 * q->me * p.slice);
	int64_t chunks = (n + p.chunk - 1) / p.chunk;
	for (int64_t t = 0; t < chunks + 2; t++)
		TRY_GOTO(e, pushed_step(&p, t, chunks), out);
out:
	sym_get_wait(q->ep, &p.left);
	if (e) {
		sym_keep(q->ep, *inbox);
		*inbox = NULL;
	}
	return grant_end(q, &g, y, n, e);
}

/* --- all_reduce: ring -------------------------------------------------------------------- */

/* Partial results wander up the ranks, 0 -> 1 -> .. -> n - 1, the only way that keeps their order; results go on
 * round the ring, n - 1 -> 0 -> .. -> n - 2.  Both run in chunks that follow each other: in step t rank k has chunk
 * t - k on the way up and chunk t - n - k on the way round, and every wait is for a step before its own. */
enum { DEPTH = 4 };

struct chain {
	const struct call *q;
	const struct acc *a;
	int64_t n, chunk;                 /* bytes of the operand, of a chunk of it */
	const char *x;
	char *y;
	struct loan lx, ly;               /* x where the first rank lends it; y */
	struct sym_block *part;           /* DEPTH partial results under way */
	uint64_t sent[DEPTH];             /* line that lent each */
};

static struct err *chain_open(struct chain *c, bool lend_x, bool lend_y, bool part)
{
	int64_t wide = c->chunk / c->a->elem * c->a->wide;

	if (lend_x)
		TRY(loan_make(c->q, c->x, c->n, false, &c->lx));
	if (lend_y)
		TRY(loan_make(c->q, c->y, c->n, false, &c->ly));
	if (part)
		TRY(sym_alloc(c->q->c->heap, (size_t)(DEPTH * wide), "partial results of a collective", -1, &c->part));
	return NULL;
}

static void chain_close(struct chain *c, const struct err *e)
{
	struct loan part = { 0, c->part };

	loan_end(c->q, &c->lx, e);
	loan_end(c->q, &c->ly, e);
	loan_end(c->q, &part, e);
}

static inline int64_t chunk_len(const struct chain *c, int64_t i) { return MIN(c->n - i * c->chunk, c->chunk); }

/* Chunk i: what came from the rank below (NULL: nothing) combined with this rank's goes to `out` as a partial
 * result, and to `done` as a finished one; either may be NULL. */
static void chain_add(struct chain *c, int64_t i, const struct sym_msg *m, int below, char *out, char *done)
{
	_Alignas(64) char sum[4 * PIECE], tmp[4 * PIECE], buf[4 * PIECE];
	const struct acc *a = c->a;
	const char *x = c->x + i * c->chunk;
	int64_t len = chunk_len(c, i), step = PIECE / a->elem * a->elem;

	for (int64_t o = 0; o < len; o += step) {
		int64_t k = MIN(len - o, step) / a->elem, wo = o / a->elem * a->wide;
		if (m) {
			const void *p = sym_at(c->q->ep, below, m->off + (size_t)wo, (size_t)(k * a->wide), buf);
			memcpy(sum, p, (size_t)(k * a->wide));
			acc_add(a, sum, x + o, k, tmp);
		} else
			acc_first(a, sum, x + o, k);
		if (out)
			memcpy(out + wo, sum, (size_t)(k * a->wide));
		if (done)
			acc_last(a, done + o, sum, k);
	}
}

/* The buffer that chunk i goes up in, when it is free. */
static struct err *chain_room(struct chain *c, int64_t i, int above, char **out)
{
	if (i >= DEPTH)
		TRY(sym_await(c->q->ep, above, c->sent[i % DEPTH]));
	*out = sym_ep_base(c->q->ep) + c->part->off + i % DEPTH * (c->chunk / c->a->elem * c->a->wide);
	return NULL;
}

static struct err *chain_up(struct chain *c, int64_t i)
{
	const struct call *q = c->q;
	int last = q->n - 1, below = q->me ? q->pe[q->me - 1] : -1, above = q->pe[q->me == last ? 0 : q->me + 1];
	char *base = sym_ep_base(q->ep), *out;
	struct sym_msg m;
	size_t off;

	if (q->me)
		TRY(recv_bytes(q, below, SYM_LEND, chunk_len(c, i), &m));
	if (q->me == last) {
		off = c->ly.off + (size_t)(i * c->chunk);
		chain_add(c, i, &m, below, NULL, base + off);
	} else if (!q->me && !c->a->widen)
		off = c->lx.off + (size_t)(i * c->chunk);
	else {
		TRY(chain_room(c, i, above, &out));
		chain_add(c, i, q->me ? &m : NULL, below, out, NULL);
		off = (size_t)(out - base);
	}
	if (q->me)
		sym_return(q->ep, below, true);
	TRY(sym_tell(q->ep, above, q->site, SYM_LEND, off, (size_t)chunk_len(c, i)));
	c->sent[i % DEPTH] = sym_sent(q->ep, above);
	return NULL;
}

static struct err *chain_round(struct chain *c, int64_t i)
{
	const struct call *q = c->q;
	int below = q->pe[q->me ? q->me - 1 : q->n - 1];
	size_t off = c->ly.off + (size_t)(i * c->chunk);
	struct sym_msg m;

	TRY(recv_bytes(q, below, SYM_LEND, chunk_len(c, i), &m));
	sym_get(q->ep, below, sym_ep_base(q->ep) + off, m.off, (size_t)chunk_len(c, i));
	sym_return(q->ep, below, true);
	return q->me < q->n - 2 ? sym_tell(q->ep, q->pe[q->me + 1], q->site, SYM_LEND, off, (size_t)chunk_len(c, i)) : NULL;
}

int64_t reduce_own(const struct call *q, const struct coll_red *r, int64_t n)
{
	int64_t elem = dtype_info[r->dtype].bytes;

	return q->algo == COLL_push ? 2 * q->n * push_slice(q, MIN(n, PUSH_MOST), elem)
	     : q->algo == COLL_ring ? DEPTH * (q->c->table.chunk / elem * elem) * acc_spread(r, q->n) : 0;
}

static struct err *all_ring(const struct call *q, const struct acc *a, const char *x, char *y, int64_t n)
{
	struct chain c = { .q = q, .a = a, .n = n, .chunk = q->c->table.chunk / a->elem * a->elem, .x = x, .y = y };
	int64_t nc = (n + c.chunk - 1) / c.chunk;
	bool first = !q->me && !a->widen;
	struct err *e;

	TRY_GOTO(e, chain_open(&c, first, true, q->me < q->n - 1 && !first), out);
	for (int64_t t = 0; t < nc + 2 * q->n; t++) {
		int64_t up = t - q->me, round = t - q->n - q->me;
		if (up >= 0 && up < nc)
			TRY_GOTO(e, chain_up(&c, up), out);
		if (round >= 0 && round < nc && q->me < q->n - 1)
			TRY_GOTO(e, chain_round(&c, round), out);
	}
	e = sym_settle(q->ep, &q->pe[q->me == q->n - 1 ? 0 : q->me + 1], 1);
	if (!e && c.ly.copy)
		memcpy(y, sym_ep_base(q->ep) + c.ly.off, (size_t)n);
out:
	chain_close(&c, e);
	return e;
}

/* --- all_reduce -------------------------------------------------------------------------- */

static struct err *all_doubling(const struct call *q, const struct acc *a, const char *x, char *y, int64_t n)
{
	struct where w[MAX_ROW];
	int64_t piece = MIN(n, 2 * SYM_SLOT);

	TRY(keep(&q->c->room, (size_t)(piece * q->n)));
	for (int64_t o = 0; o < n; o += piece) {
		int64_t len = MIN(n - o, piece);
		TRY(gather_doubling(q, x + o, len, q->c->room.p));
		for (int k = 0; k < q->n; k++)
			w[k] = (struct where){ q->c->room.p + k * len, -1, 0 };
		acc_all(a, q->ep, w, q->n, 0, y + o, len);
	}
	return NULL;
}

struct err *reduce_all(const struct call *q, const struct coll_red *r, int64_t count, const char *x, char *y, const struct coll_then *t)
{
	int64_t n = count * dtype_info[r->dtype].bytes;
	struct acc a;
	struct err *e;

	if (q->algo == COLL_slot && n <= SYM_SLOT) {
		TRY(sum_slot(q, r, x, 0, y, count, n));
		if (t)
			t->run(t->user, y, t->out, 0, n);
		return NULL;
	}
	TRY(acc_init(&a, q->c, r, q->n));
	struct all u = { q, &a, x, y };
	struct flow f = { .bytes = n, .fill = all_fill, .take = all_take, .user = &u, .from_here = x };
	switch (q->algo) {
	case COLL_slot: e = flow_slot(q, &f); break;
	case COLL_push: e = all_push(q, &a, x, y, n); break;
	case COLL_mpi: e = mpi_all_reduce(q, &a, &f, x, y, n); break;
	case COLL_loan: e = all_loan(q, &a, x, y, n); break;
	case COLL_ring:
		if (q->n > 2) {
			e = all_ring(q, &a, x, y, n);
			break;
		}
		/* in a ring of two both have an end */
		/* fall through */
	case COLL_two_shot:
		e = all_two_shot(q, &a, x, y, n, &f, t);
		t = NULL;
		break;
	case COLL_doubling: e = all_doubling(q, &a, x, y, n); break;
	case COLL_levels: e = levels_all(q, &a, x, y, n); break;
	default: e = flow_stage(q, &f); break;
	}
	if (!e && t)
		t->run(t->user, y, t->out, 0, n);
	return e;
}

/* --- reduce_scatter ------------------------------------------------------------------------ */

struct part { const struct call *q; const struct acc *a; const char *x; char *y; int64_t inner, step; };

static void part_fill(void *v, int j, int64_t o, int64_t n, char *to)
{
	struct part *u = v;

	copy_strided(u->q->ep, dense(to, n), 0, -1, 0, (struct strided){ (char *)(uintptr_t)u->x + j * u->inner, u->inner, u->step }, o, n);
}

static void part_take(void *v, const struct where *w, int64_t at, int64_t o, int64_t n)
{
	struct part *u = v;
	struct where *mine = (struct where *)(uintptr_t)&w[u->q->me];

	part_fill(u, u->q->me, o, n, u->y + o);
	*mine = (struct where){ u->y + o - at, -1, 0 };
	acc_all(u->a, u->q->ep, w, u->q->n, at, u->y + o, n);
}

/* *t: what follows, NULL when it has. */
static struct err *part_loan(const struct call *q, const struct acc *a, int64_t outer, int64_t inner, const char *x, char *y, const struct coll_then **t)
{
	_Alignas(64) char sum[COLL_UNIT];
	enum { SOON = 2048 };
	bool parts = *t && outer == 1;
	int64_t step = parts ? (PIECE + (*t)->unit - 1) / (*t)->unit * (*t)->unit : inner;
	int64_t n = outer * inner * q->n;
	struct where w[MAX_ROW];
	size_t at[MAX_ROW];
	struct loan l;
	struct err *e;

	TRY(loan_make(q, x, n, false, &l));
	TRY_GOTO(e, loan_exchange(q, n, l.off, 0, at, NULL), out);
	for (int k = 0; k < q->n; k++) {
		w[k] = (struct where){ NULL, q->pe[k], at[k] };
		parts &= sym_maps(q->ep, q->pe[k]);
	}
	for (int64_t o = 0; o < outer && !parts; o++)
		acc_all(a, q->ep, w, q->n, o * inner * q->n + q->me * inner, y + o * inner, inner);
	for (int64_t o = 0; o < inner && parts; o += step) {
		int64_t k = MIN(inner - o, step);
		char *part = (*t)->alone && k <= COLL_UNIT ? sum : y + o;
		acc_all(a, q->ep, w, q->n, q->me * inner + o, part, k);
		for (int j = 0; j < q->n && o + k + SOON <= inner; j++) {      /* the first lines of the others' next part come meanwhile */
			const char *next = sym_at(q->ep, q->pe[j], at[j] + (size_t)(q->me * inner + o + k), SOON, NULL);
			for (int64_t i = 0; i < SOON && j != q->me; i += 64)
				__builtin_prefetch(next + i);
		}
		(*t)->run((*t)->user, part, NULL, o, o + k);
	}
	if (parts)
		*t = NULL;
	e = ready_all(q);
out:
	loan_end(q, &l, e);
	return e;
}

struct err *reduce_blocks(const struct call *q, const struct coll_red *r, int64_t outer, int64_t inner, const char *x, char *y, const struct coll_then *t)
{
	int64_t n = outer * inner;
	struct acc a;

	if (q->algo == COLL_slot && outer == 1 && n <= SYM_SLOT) {
		TRY(sum_slot(q, r, x, n, y, n / dtype_info[r->dtype].bytes, n));
		if (t)
			t->run(t->user, y, NULL, 0, n);
		return NULL;
	}
	TRY(acc_init(&a, q->c, r, q->n));
	struct part u = { q, &a, x, y, inner, inner * q->n };
	struct flow f = { .bytes = n, .each = true, .fill = part_fill, .take = part_take, .user = &u };
	struct err *e = q->algo == COLL_slot ? flow_slot(q, &f) : q->algo == COLL_loan ? part_loan(q, &a, outer, inner, x, y, &t)
	              : q->algo == COLL_mpi ? mpi_flow(q, &f) : q->algo == COLL_levels ? levels_blocks(q, &a, outer, inner, x, y) : flow_stage(q, &f);
	if (!e && t)
		t->run(t->user, y, NULL, 0, n);
	return e;
}

/* --- scan ------------------------------------------------------------------------------------ */

struct scan { struct all all; bool exclusive; };

static void identity(const struct coll_red *r, char *y, int64_t n)
{
	char one[16];
	int64_t es = dtype_info[r->dtype].bytes;

	kern_identity(r->op, r->dtype, one);
	for (int64_t i = 0; i < n; i += es)
		memcpy(y + i, one, (size_t)es);
}

static void scan_take(void *v, const struct where *w, int64_t at, int64_t o, int64_t n)
{
	struct scan *u = v;
	const struct call *q = u->all.q;
	struct where *mine = (struct where *)(uintptr_t)&w[q->me];

	*mine = (struct where){ u->all.x + o - at, -1, 0 };
	acc_all(u->all.a, q->ep, w, q->me + !u->exclusive, at, u->all.y + o, n);
}

static struct err *scan_ring(const struct call *q, const struct acc *a, bool exclusive, const char *x, char *y, int64_t n)
{
	struct chain c = { .q = q, .a = a, .n = n, .chunk = q->c->table.chunk / a->elem * a->elem, .x = x, .y = y };
	int below = q->me ? q->pe[q->me - 1] : -1, above = q->me < q->n - 1 ? q->pe[q->me + 1] : -1;
	struct sym_msg m;
	struct err *e;

	TRY_GOTO(e, chain_open(&c, false, false, above >= 0), out);
	for (int64_t i = 0; i * c.chunk < n; i++) {
		char *out = NULL;
		if (q->me)
			TRY_GOTO(e, recv_bytes(q, below, SYM_LEND, chunk_len(&c, i), &m), out);
		if (above >= 0)
			TRY_GOTO(e, chain_room(&c, i, above, &out), out);
		char *done = y + i * c.chunk;
		if (exclusive && q->me && out) {             /* what goes on first: y may be x */
			chain_add(&c, i, &m, below, out, NULL);
			done = NULL;
		}
		if (exclusive && q->me) {
			char *to = y + i * c.chunk;
			int64_t k = chunk_len(&c, i) / a->elem;
			_Alignas(64) char sum[4 * PIECE];
			for (int64_t s = 0; s < k; s += PIECE / 16) {
				int64_t some = MIN(k - s, PIECE / 16);
				memcpy(sum, sym_at(q->ep, below, m.off + (size_t)(s * a->wide), (size_t)(some * a->wide), sum + 2 * PIECE), (size_t)(some * a->wide));
				acc_last(a, to + s * a->elem, sum, some);
			}
		} else
			chain_add(&c, i, q->me ? &m : NULL, below, out, exclusive ? NULL : done);
		if (q->me)
			sym_return(q->ep, below, true);
		if (above >= 0) {
			TRY_GOTO(e, sym_tell(q->ep, above, q->site, SYM_LEND, (size_t)(out - sym_ep_base(q->ep)), (size_t)chunk_len(&c, i)), out);
			c.sent[i % DEPTH] = sym_sent(q->ep, above);
		}
	}
	if (above >= 0)
		e = sym_settle(q->ep, &above, 1);
out:
	chain_close(&c, e);
	return e;
}

struct err *reduce_scan(const struct call *q, const struct coll_red *r, bool exclusive, int64_t count, const char *x, char *y)
{
	int64_t n = count * dtype_info[r->dtype].bytes;
	int to[MAX_ROW], from[MAX_ROW];
	struct acc a;
	struct err *e;

	TRY(acc_init(&a, q->c, r, q->n));
	for (int k = 0; k < q->n; k++)
		if (k < q->me)
			from[k] = k;
		else if (k > q->me)
			to[k - q->me - 1] = k;
	struct scan u = { { q, &a, x, y }, exclusive };
	struct flow f = { .bytes = n, .fill = all_fill, .from_here = x, .take = scan_take, .user = &u, .to = to, .nto = q->n - 1 - q->me, .from = from, .nfrom = q->me };
	e = q->algo == COLL_slot ? flow_slot(q, &f) : q->algo == COLL_ring ? scan_ring(q, &a, exclusive, x, y, n) : flow_stage(q, &f);
	if (!e && !q->me) {               /* who receives nothing takes nothing */
		if (exclusive)
			identity(r, y, n);
		else if (q->algo != COLL_ring && x != y)
			memcpy(y, x, (size_t)n);
	}
	return e;
}
