/* Two levels: within a host memory is mapped, between hosts each part goes once.
 *
 * A reduction keeps the order of ranks, so that it has the bits of every other algorithm wherever its members are.  Neighbours in rank
 * order on one host are a *run*.  A chunk climbs from run to run: one member of each reads the chunk of all members of its run, adds them to
 * the sum so far, and sends that on.  The last run has the result, which goes round the other hosts, and in each to all members by one of them
 * (reduce_scatter: to the one that it is for).  Runs are as many as hosts where a host's ranks follow each other; chunks take turns with
 * members, so all of a host send and receive.
 *
 * An all_gather sends a block to one member of each other host, who writes it into the results of all there. */
#include "impl.h"

/* Who of a group sits where, by rank. */
struct seats {
	int nhost, nrun;
	int host[MAX_ROW];                /* as they come in rank order, from 0 */
	int run[MAX_ROW + 1];             /* the first rank of each run; then n */
	int rank[MAX_ROW], start[MAX_ROW + 1];      /* the ranks of host h: rank[start[h] .. start[h + 1]) */
};

static void seats_of(const struct sym_world *w, int n, const int *pe, struct seats *s)
{
	int id[MAX_ROW], fill[MAX_ROW];

	s->nhost = s->nrun = 0;
	for (int k = 0; k < n; k++) {
		int on = sym_host_of(w, pe[k]), h = k ? s->host[k - 1] : 0;
		if (!k || id[h] != on)
			for (h = 0; h < s->nhost && id[h] != on; h++) { }
		if (h == s->nhost) {
			id[h] = on;
			s->start[++s->nhost] = 0;
		}
		s->host[k] = h;
		s->start[h + 1]++;
		if (!k || h != s->host[k - 1])
			s->run[s->nrun++] = k;
	}
	s->run[s->nrun] = n;
	s->start[0] = 0;
	for (int h = 0; h < s->nhost; h++) {
		fill[h] = s->start[h];
		s->start[h + 1] += s->start[h];
	}
	for (int k = 0; k < n; k++)
		s->rank[fill[s->host[k]]++] = k;
}

static inline int size_of(const struct seats *s, int h) { return s->start[h + 1] - s->start[h]; }

enum coll_topo coll_topo_far(const struct sym_world *w, enum coll_kind k, const struct coll_red *r, int n, const int *pe)
{
	int host[MAX_ROW];

	for (int i = 0; i < n; i++)
		host[i] = sym_host_of(w, pe[i]);
	return prog_topo_far(k, r ? acc_spread(r, n) : 1, n, host);
}

/* Those of this host, as a call of their own.  pe: room for them. */
static struct call mates_of(const struct call *q, const struct seats *s, int *pe)
{
	int h = s->host[q->me];
	struct call m = *q;

	m.n = 0;
	for (int i = s->start[h]; i < s->start[h + 1]; i++) {
		if (s->rank[i] == q->me)
			m.me = m.n;
		pe[m.n++] = q->pe[s->rank[i]];
	}
	m.pe = pe;
	return m;
}

/* --- reductions ------------------------------------------------------------------------- */

/* Short chunks travel in messages; long ones are put into an inbox, where each member has DEEP places: fewer waits. */
enum { DEEP = 4, INBOX = 8 << 20 };

struct climb {
	const struct call *q;
	const struct acc *a;
	struct seats s;
	struct call mate;
	bool scatter;
	const char *x;
	char *y;                          /* the result: of an all_reduce in the heap */
	int64_t n, inner, step;           /* bytes of a block, in rows, so far apart in the operand: of an all_reduce it is all of it */
	int64_t chunk, chunks;
	int pe[MAX_ROW];                  /* of mates */
	size_t at[MAX_ROW], to[MAX_ROW];  /* of mates: operands, results */
	int64_t place;                    /* bytes of one in an inbox; 0: by messages */
	size_t inbox[MAX_ROW];            /* by rank: where this one's places are; then how many it was sent, which line told of those, how many came */
	uint32_t sent[MAX_ROW], came[MAX_ROW];
	uint64_t line[MAX_ROW][DEEP];
};

/* Where n bytes for a rank can be made. */
static struct err *room_for(const struct climb *u, int rank, int64_t n, char **out)
{
	void *room;

	*out = sym_ep_base(u->q->ep) + (u->place ? u->q->c->inbox->off : 0) + u->q->n * DEEP * u->place;
	if (!u->place) {
		TRY(sym_slot_room(u->q->ep, u->q->pe[rank], (size_t)n, &room));
		*out = room;
	}
	return NULL;
}

/* made: at p is what room_for gave. */
static struct err *pass_on(struct climb *u, int rank, const char *p, int64_t n, bool made)
{
	const struct call *q = u->q;
	int pe = q->pe[rank], i = u->sent[rank] % DEEP;

	if (!u->place && made) {
		sym_slot_send(q->ep, pe, q->site, (size_t)n);
		return NULL;
	}
	if (!u->place)
		return sym_slot_put(q->ep, pe, q->site, p, (size_t)n);
	if (u->sent[rank]++ >= DEEP)
		TRY(sym_await(q->ep, pe, u->line[rank][i]));
	sym_put(q->ep, pe, u->inbox[rank] + (size_t)(i * u->place), p, (size_t)n);
	TRY(sym_tell(q->ep, pe, q->site, SYM_READY, 0, (size_t)n));
	u->line[rank][i] = sym_sent(q->ep, pe);
	return NULL;
}

static struct err *take_from(struct climb *u, int rank, int64_t n, const char **out)
{
	const struct call *q = u->q;
	struct sym_msg m;

	TRY(recv_bytes(q, q->pe[rank], u->place ? SYM_READY : SYM_SLOT_MSG, n, &m));
	*out = u->place ? sym_ep_base(q->ep) + q->c->inbox->off + (rank * DEEP + u->came[rank]++ % DEEP) * u->place : m.data;
	return NULL;
}

/* The host of those who do step s. */
static int host_of_step(const struct climb *u, int s)
{
	const struct seats *t = &u->s;

	return s < t->nrun ? t->host[t->run[s]] : (t->host[u->q->n - 1] + 1 + s - t->nrun) % t->nhost;
}

/* Who does step s of chunk c.  The first are sums, one a run; then it arrives. */
static int actor(const struct climb *u, int64_t c, int s)
{
	const struct seats *t = &u->s;
	int n = u->q->n, j = (int)(c % n);

	if (s < t->nrun) {
		int first = t->run[s], m = t->run[s + 1] - first;
		return u->scatter && j >= first && j < first + m ? j : first + (u->scatter ? j : (int)(c % m)) % m;
	}
	if (u->scatter)
		return j;
	int h = host_of_step(u, s);
	return t->rank[t->start[h] + (int)(c % size_of(t, h))];
}

static int steps_of(const struct climb *u, int64_t c)
{
	return !u->scatter ? u->s.nrun + u->s.nhost - 1 : u->s.nrun + (actor(u, c, u->s.nrun - 1) != c % u->q->n);
}

/* Chunk c: its block, its first byte in that; its bytes. */
static int64_t chunk_of(const struct climb *u, int64_t c, int *block, int64_t *o)
{
	*block = u->scatter ? (int)(c % u->q->n) : 0;
	*o = (u->scatter ? c / u->q->n : c) * u->chunk;
	return MIN(u->chunk, u->n - *o);
}

/* Members of run s add theirs to `before`. */
static void add_run(const struct climb *u, int s, int64_t c, const char *before, char *part, char *done)
{
	const struct call *q = u->q, *m = &u->mate;
	struct where w[MAX_ROW];
	int block, first = u->s.run[s], k = 0;
	int64_t o, len = chunk_of(u, c, &block, &o), elem = u->a->elem;

	for (int i = 0; i < m->n; i++) {
		int rank = u->s.rank[u->s.start[u->s.host[q->me]] + i];
		if (rank >= first && rank < u->s.run[s + 1])
			w[k++] = rank == q->me ? (struct where){ u->x, -1, 0 } : (struct where){ NULL, m->pe[i], u->at[i] };
	}
	for (int64_t some, at = 0; at < len; at += some) {
		int64_t in = (o + at) % u->inner;
		some = MIN(u->inner - in, len - at);
		acc_more(u->a, q->ep, before ? before + at / elem * u->a->wide : NULL, w, k, (o + at) / u->inner * u->step + block * u->inner + in, some,
		         part ? part + at / elem * u->a->wide : NULL, done ? done + at : NULL);
	}
}

static void to_mates(const struct climb *u, int64_t o, int64_t len)
{
	const struct call *m = &u->mate;

	for (int i = 1; i < m->n; i++) {
		int k = rank_after(m, i);
		sym_put(m->ep, m->pe[k], u->to[k] + (size_t)o, u->y + o, (size_t)len);
	}
}

static struct err *climb_step(struct climb *u, int64_t c, int s)
{
	const struct call *q = u->q;
	int block, end = steps_of(u, c), sums = u->s.nrun;
	int from = s ? actor(u, c, s - 1) : -1, to = s + 1 < end ? actor(u, c, s + 1) : -1;
	int64_t o, len = chunk_of(u, c, &block, &o), wide = len / u->a->elem * u->a->wide;
	const char *got = NULL;
	char *room;

	if (from >= 0)
		TRY(take_from(u, from, s < sums ? wide : len, &got));
	if (s < sums - 1 || (s == sums - 1 && u->scatter && to >= 0)) {
		bool more = s < sums - 1;
		TRY(room_for(u, to, more ? wide : len, &room));
		add_run(u, s, c, got, more ? room : NULL, more ? NULL : room);
		TRY(pass_on(u, to, room, more ? wide : len, true));
	} else {
		if (s < sums)
			add_run(u, s, c, got, NULL, u->y + o);
		else
			memcpy(u->y + o, got, (size_t)len);
		if (to >= 0)
			TRY(pass_on(u, to, u->y + o, len, false));
		if (!u->scatter)
			to_mates(u, o, len);
	}
	if (from >= 0)
		sym_return(q->ep, q->pe[from], true);
	return NULL;
}

/* How many take turns in step s. */
static int actors(const struct climb *u, int s)
{
	return s < u->s.nrun ? u->s.run[s + 1] - u->s.run[s] : size_of(&u->s, host_of_step(u, s));
}

/* What goes from a member to another in so many chunks that follow each other, at most. */
static int64_t under_way(const struct climb *u, int64_t chunks)
{
	int end = u->s.nrun + (u->scatter ? 0 : u->s.nhost - 1);
	int64_t own = u->scatter ? (chunks + u->q->n - 1) / u->q->n : 0, most = own;

	for (int s = 0; s + 1 < end; s++) {
		int64_t some = own;               /* results of blocks, to whom they are for */
		for (int i = 0; i + 1 < end; i++) {
			int turns = MAX(actors(u, i), actors(u, i + 1));
			if (host_of_step(u, i) == host_of_step(u, s) && host_of_step(u, i + 1) == host_of_step(u, s + 1))
				some += own + (chunks + turns - 1) / turns;
		}
		most = MAX(most, some);
	}
	return most;
}

/* All do their steps in one order: that of moments, gap * chunk + lag * step; of one moment, that of steps.  Who waits for a message waits for an
 * earlier step of it.  Who waits for room waits for somebody to take the message that was sent SYM_RING, or DEEP, before: that was more than lag ago, since no more
 * go from one to another in lag + 1 moments, so it is taken in an earlier moment.  Nobody waits in a circle. */
static struct err *climb(struct climb *u)
{
	enum { MOST = 64 };
	const struct call *q = u->q;
	const int room = u->place ? DEEP : SYM_RING;
	int end = u->scatter ? u->s.nrun + 1 : u->s.nrun + u->s.nhost - 1;
	int64_t lag = MOST, gap = 1;

	while (lag && under_way(u, lag + 1) > room)
		lag--;
	if (!lag) {
		lag = 1;
		gap = (end + room / 2 - 1) / (room / 2);
	}
	/* What was returned before, and not told, is room as well. */
	for (int k = 0; k < q->n && u->s.nhost > 1; k++)
		if (k != q->me)
			sym_return(q->ep, q->pe[k], true);
	for (int64_t now = 0; now <= (u->chunks - 1) * gap + (end - 1) * lag; now++)
		for (int s = 0; s < end && s * lag <= now; s++) {
			int64_t c = (now - s * lag) / gap;
			if ((now - s * lag) % gap == 0 && c < u->chunks && s < steps_of(u, c) && actor(u, c, s) == q->me)
				TRY(climb_step(u, c, s));
		}
	return NULL;
}

static void climb_init(struct climb *u, const struct call *q, const struct acc *a, bool scatter, int64_t n, int64_t inner, const char *x, char *y)
{
	enum { LEAST = 8 << 10 };
	int64_t places = INBOX / DEEP / q->n & ~(int64_t)4095, some = MAX((n / (scatter ? 1 : 2 * q->n) + 63) / 64 * 64, LEAST);

	*u = (struct climb){ .q = q, .a = a, .scatter = scatter, .n = n, .inner = inner, .step = scatter ? inner * q->n : inner, .x = x, .y = y };
	seats_of(q->c->world, q->n, q->pe, &u->s);
	u->mate = mates_of(q, &u->s, u->pe);
	if (u->s.nhost > 1 && some / a->elem * a->wide > SYM_SLOT && places > SYM_SLOT)
		u->place = places;
	u->chunk = MIN((u->place ? places : SYM_SLOT) / a->wide * a->elem & ~(int64_t)63, some);
	u->chunks = (n + u->chunk - 1) / u->chunk * (scatter ? q->n : 1);
}

/* All learn where mates have operands and results, and where the inboxes are. */
static struct err *climb_meet(struct climb *u, size_t operand, size_t result)
{
	const struct call *q = u->q;
	struct sym_block **inbox = &q->c->inbox;
	int64_t bytes = (q->n * DEEP + 1) * u->place;

	if (u->place) {
		if (!*inbox || (int64_t)(*inbox)->bytes < bytes) {
			sym_free(*inbox);
			*inbox = NULL;
			TRY(sym_alloc(q->c->heap, (size_t)bytes, "sums of a collective", -1, inbox));
		}
		TRY(loan_exchange(q, u->n, (*inbox)->off, 0, u->inbox, NULL));
		for (int k = 0; k < q->n; k++)
			u->inbox[k] += (size_t)(q->me * DEEP * u->place);
	}
	return u->mate.n > 1 ? loan_exchange(&u->mate, u->n, operand, result, u->at, u->to) : NULL;
}

/* e: how it went.  Others may still put something into the inbox of one that failed. */
static struct err *climb_end(const struct climb *u, struct err *e)
{
	struct coll *c = u->q->c;

	if (!e && u->mate.n > 1)
		e = ready_all(&u->mate);
	if (e && u->place) {
		sym_keep(c->ep, c->inbox);
		c->inbox = NULL;
	}
	return e;
}

struct err *levels_all(const struct call *q, const struct acc *a, const char *x, char *y, int64_t n)
{
	struct loan l = { 0 }, out = { 0 };
	struct climb u;
	struct err *e;

	TRY(loan_make(q, x, n, false, &l));
	TRY_GOTO(e, grant_make(q, y, n, y != x && overlap(y, n, x, n), &out), out);
	climb_init(&u, q, a, false, n, n, x, sym_ep_base(q->ep) + out.off);
	e = climb_meet(&u, l.off, out.off);
	e = climb_end(&u, e ? e : climb(&u));
out:
	loan_end(q, &l, e);
	return grant_end(q, &out, y, n, e);
}

struct err *levels_blocks(const struct call *q, const struct acc *a, int64_t outer, int64_t inner, const char *x, char *y)
{
	struct climb u;
	struct loan l;

	TRY(loan_make(q, x, outer * inner * q->n, false, &l));
	climb_init(&u, q, a, true, outer * inner, inner, x, y);
	struct err *e = climb_meet(&u, l.off, 0);
	e = climb_end(&u, e ? e : climb(&u));
	loan_end(q, &l, e);
	return e;
}

/* --- all_gather --------------------------------------------------------------------------- */

struct spread { const struct call *q; const struct call *mate; const struct blocks *b; const char *own; char *y; const size_t *to; const int *from; int nfrom; int64_t done; };

/* Bytes [o, o + n) of rank j's block, at p, into the results of all on this host. */
static void spread(const struct spread *u, int j, const char *p, int64_t o, int64_t n)
{
	const struct call *m = u->mate;

	for (int i = 0; i < m->n; i++) {
		int k = rank_after(m, i);
		char *y = k == m->me ? u->y : (char *)(uintptr_t)sym_at(m->ep, m->pe[k], u->to[k], (size_t)u->b->ny, NULL);
		copy_strided(m->ep, (struct strided){ y + j * u->b->place, u->b->to.inner, u->b->to.step }, o, -1, 0, dense(p, n), 0, n);
	}
}

static void spread_fill(void *v, int j, int64_t o, int64_t n, char *to) { copy_out(to, ((struct spread *)v)->own + o, (size_t)n); }

/* What comes, and as much of the own block meanwhile. */
static void spread_take(void *v, const struct where *w, int64_t at, int64_t o, int64_t n)
{
	struct spread *u = v;

	spread(u, u->q->me, u->own + o, o, n);
	u->done = o + n;
	for (int i = 0; i < u->nfrom; i++)
		spread(u, u->from[i], w[u->from[i]].p + at, o, n);
}

struct err *levels_gather(const struct call *q, const struct blocks *b)
{
	int pe[MAX_ROW], to[MAX_ROW], from[MAX_ROW], nto = 0, nfrom = 0;
	size_t at[MAX_ROW], result[MAX_ROW];
	struct seats s;
	struct loan g;
	struct err *e;

	seats_of(q->c->world, q->n, q->pe, &s);
	struct call m = mates_of(q, &s, pe);
	for (int h = 0; h < s.nhost; h++)
		for (int i = s.start[h]; i < s.start[h + 1] && h != s.host[q->me]; i++) {
			if (i == s.start[h] + m.me % size_of(&s, h))
				to[nto++] = s.rank[i];
			if ((i - s.start[h]) % m.n == m.me)
				from[nfrom++] = s.rank[i];
		}
	TRY(grant_make(q, b->y, b->ny, false, &g));
	struct spread u = { q, &m, b, b->x, sym_ep_base(q->ep) + g.off, result, from, nfrom, 0 };
	struct flow f = { .bytes = b->n, .fill = spread_fill, .from_here = b->x, .take = spread_take, .user = &u, .to = to, .nto = nto, .from = from, .nfrom = nfrom };
	if (m.n > 1)
		TRY_GOTO(e, loan_exchange(&m, b->n, 0, g.off, at, result), out);
	TRY_GOTO(e, flow_slot(q, &f), out);
	spread(&u, q->me, b->x + u.done, u.done, b->n - u.done);
	e = m.n > 1 ? ready_all(&m) : NULL;
out:
	return grant_end(q, &g, b->y, b->ny, e);
}
