/* The calls: what is empty or alone is done at once, the rest goes to the algorithm that is chosen for it. */
#include <stdlib.h>

#include "impl.h"

enum { PARTING_S = 20 };

static void gone(void *c) { coll_free(c); }

static struct coll *new(struct sym_world *w, int pe, const struct coll_table *table, struct sym_ep *ep)
{
	if (!ep)
		return NULL;
	struct coll *c = mem_lines(sizeof *c);
	struct mem_undo u;

	mem_undo(&u, gone, c);
	c->ep = ep;
	c->heap = sym_heap_of(w, pe);
	if (table)
		c->table = *table;
	else
		coll_table_init(&c->table);
	c->known.op = RED_fn;             /* none */
	c->pe = sym_ep_pe(ep);
	c->npe = sym_npe(w);
	c->world = w;
	c->far = !sym_near(w);
	c->lent = mem_lines(((size_t)c->npe + 63) / 64 * 8);
	c->line = mem_lines((size_t)c->npe * 8);
	mem_done(&u);
	return c;
}

struct coll *coll_new(struct sym_world *w, int pe, const struct coll_table *table) { return new(w, pe, table, sym_ep_of(w, pe)); }
struct coll *coll_new_stream(struct sym_world *w, int pe, const struct coll_table *table)
{
	struct coll *c = new(w, pe, table, sym_stream_ep(w, pe));

	if (c)
		c->stream = true;
	return c;
}

void coll_free(struct coll *c)
{
	if (!c)
		return;
	struct err *e = c->ring ? ring_settle(c, PARTING_S) : NULL;
	if (e && e->code == ERR_DEADLINE) {
		log_line(LOG_WARN, "%s, and it gets no more of it", e->msg);
		sym_keep(c->ep, c->ring);         /* it may still read there */
		c->ring = NULL;
	}
	err_free(e);
	sym_free(c->ring);
	sym_free(c->inbox);
	free(c->heard.p);
	free(c->room.p);
	free(c->fetched.p);
	free(c->region.p);
	free(c->lent);
	free(c->line);
	free(c);
}

struct err *coll_use(struct coll *c, enum coll_kind k, enum coll_algo a)
{
	TRY(coll_algo_fits(k, a));
	c->use[k] = (uint8_t)a;
	return NULL;
}

/* Does the group reach beyond a host?  All its members find the same: each has a stranger then. */
static bool apart_hosts(const struct coll *c, const struct coll_group *g)
{
	for (int i = 0; i < g->n; i++)
		if (!sym_mapped(c->world, g->pe[i]))
			return true;
	return false;
}

/* bytes: see struct coll_table.  a: what the program says.  Who sends to this one in a permute knows nothing of whom
 * it sends to: what they must agree on is asked of the world.  r: NULL if nothing is reduced. */
static inline struct call call_of(struct coll *c, const struct coll_group *g, uint32_t site, enum coll_kind k, const struct coll_red *r, int64_t bytes, uint8_t a)
{
	enum coll_topo topo = coll_topo_of(&c->table, c->far && (k == COLL_permute || apart_hosts(c, g)), c->npe, g->n);

	if (topo == COLL_FAR && k != COLL_permute)
		topo = coll_topo_far(c->world, k, r, g->n, g->pe);
	a = c->use[k] ? c->use[k] : a;
	a = a ? a : (uint8_t)coll_choose(&c->table, k, topo, bytes);
	/* A table may have been measured, a program compiled, where there was an MPI. */
	if (__builtin_expect(a == COLL_mpi, 0) && (c->stream || !coll_mpi_ready(c->world)))
		a = bytes <= SYM_SLOT ? COLL_slot : COLL_stage;
	return (struct call){ c, c->ep, site, g->n, g->me, g->pe, (enum coll_algo)a };
}

static struct err *all_reduce(struct coll *c, const struct coll_group *g, uint32_t site, uint8_t a, const struct coll_red *r, int64_t count, const void *src, void *dst, const struct coll_then *t)
{
	int64_t n = count * dtype_info[r->dtype].bytes;

	if (g->n == 1 && n && src != dst)
		memmove(dst, src, (size_t)n);
	if (g->n == 1 && n && t)
		t->run(t->user, dst, t->out, 0, n);
	if (g->n == 1 || !n)
		return NULL;
	struct call q = call_of(c, g, site, COLL_all_reduce, r, n, a);
	return reduce_all(&q, r, count, src, dst, t);
}

static struct err *reduce_scatter(struct coll *c, const struct coll_group *g, uint32_t site, uint8_t a, const struct coll_red *r, int64_t outer, int64_t inner, const void *src, void *dst, const struct coll_then *t)
{
	int64_t n = outer * inner;

	if (g->n == 1 && n && src != dst)
		memmove(dst, src, (size_t)n);
	if (g->n == 1 && n && t)
		t->run(t->user, dst, NULL, 0, n);
	if (g->n == 1 || !n)
		return NULL;
	struct call q = call_of(c, g, site, COLL_reduce_scatter, r, n, a);
	return reduce_blocks(&q, r, outer, inner, src, dst, t);
}

/* b but for the addresses. */
static struct err *blocks(struct coll *c, const struct coll_group *g, uint32_t site, enum coll_kind k, uint8_t a, struct blocks b, const void *src, void *dst)
{
	if (g->n == 1 && b.n && src != dst)
		memmove(dst, src, (size_t)b.n);
	if (g->n == 1 || !b.n)
		return NULL;
	struct call q = call_of(c, g, site, k, NULL, b.n, a);
	b.x = src;
	b.y = dst;
	return move_blocks(&q, &b);
}

static struct err *broadcast(struct coll *c, const struct coll_group *g, uint32_t site, uint8_t a, int root, int64_t n, const void *src, void *dst)
{
	if (g->n == 1 && n && src != dst)
		memmove(dst, src, (size_t)n);
	if (g->n == 1 || !n)
		return NULL;
	struct call q = call_of(c, g, site, COLL_broadcast, NULL, n, a);
	return move_broadcast(&q, root, src, dst, n);
}

struct err *coll_permute_by(struct coll *c, uint32_t site, uint8_t a, int from, int to, int64_t n, const void *src, void *dst, const struct cycle *cycle, bool in_place)
{
	int self = c->pe, pe[3] = { self, to, from };
	struct coll_group g = { 2, 0, pe };

	if (!n)
		return NULL;
	if (from == self || to == self) {
		if (dst && src != dst)
			memmove(dst, src, (size_t)n);
		return NULL;
	}
	struct call q = call_of(c, &g, site, COLL_permute, NULL, n, a);
	q.n = 3;
	if (q.algo == COLL_direct && in_place)
		q.algo = COLL_rotate;
	for (int k = 0; k < (cycle ? cycle->n : 0); k++)      /* of several hosts: all of them see it */
		if (!sym_maps(c->ep, cycle->pe[k]))
			cycle = NULL;
	if (q.algo == COLL_rotate && !cycle)
		q.algo = COLL_direct;
	if (from >= 0 || to >= 0)
		TRY(move_permute(&q, from, to, src, dst, n, cycle));
	if (from < 0 && dst)
		memset(dst, 0, (size_t)n);
	return NULL;
}

static struct err *scan(struct coll *c, const struct coll_group *g, uint32_t site, uint8_t a, const struct coll_red *r, bool exclusive, int64_t count, const void *src, void *dst)
{
	int64_t n = count * dtype_info[r->dtype].bytes;

	if (!n)
		return NULL;
	if (exclusive && r->op == RED_fn)
		return ERR(UNIMPLEMENTED, "an exclusive scan by a function, whose identity is not known");
	struct call q = call_of(c, g, site, COLL_scan, r, n, a);
	return reduce_scan(&q, r, exclusive, count, src, dst);
}

static struct err *barrier(struct coll *c, const struct coll_group *g, uint32_t site, uint8_t a)
{
	if (g->n == 1)
		return NULL;
	struct call q = call_of(c, g, site, COLL_barrier, NULL, 0, a);
	return move_barrier(&q);
}

/* --- the library's calls ------------------------------------------------------------- */

/* Nothing may pass for a result that a process took with it when it died. */
static struct err *whole(struct coll *c, struct err *e) { return e ? e : sym_lost(c->ep); }

/* An operand that overlaps the result otherwise than wanted is copied; a program's never does (prog_check).  *tmp: to be freed. */
static inline bool apart(const void *src, int64_t n, const void *dst, int64_t ndst, bool same) { return !dst || (same && src == dst) || !overlap(src, n, dst, ndst); }
static struct err *copied(const void **src, int64_t n, void **tmp)
{
	if (!(*tmp = malloc((size_t)n)))
		return ERR(EXHAUSTED, "out of host memory: asked for %lld bytes for a collective", (long long)n);
	*src = memcpy(*tmp, *src, (size_t)n);
	return NULL;
}

/* The end of a call: x, with src apart from dst. */
#define APART(src, n, dst, ndst, same, x) do { \
		void *tmp_ = NULL; \
		if (!apart((src), (n), (dst), (ndst), (same))) \
			TRY(copied(&(src), (n), &tmp_)); \
		struct err *err_ = whole(c, (x)); \
		if (__builtin_expect(tmp_ != NULL, 0)) \
			free(tmp_); \
		return err_; \
	} while (0)

/* What is wrong with a group? */
static struct err *refused(const struct coll *c, const struct coll_group *g)
{
	if (!c || !g || !g->pe)
		return ERR(INVALID, "a collective of no group");
	if (g->n > MAX_ROW)
		return ERR(UNIMPLEMENTED, "a collective of %d members, more than %d", g->n, MAX_ROW);
	if (g->n < 1 || g->me < 0 || g->me >= g->n)
		return ERR(INVALID, "a collective of %d members of which this is %d", g->n, g->me);
	return ERR(INVALID, "a collective of device %d as member %d of %d: members are devices of %d, each once", c->pe, g->me, g->n, c->npe);
}

static inline struct err *check_group(const struct coll *c, const struct coll_group *g)
{
	if (!c || !g || !g->pe || g->n < 1 || g->n > MAX_ROW || g->me < 0 || g->me >= g->n)
		return refused(c, g);
	int self = c->pe;
	for (int k = 0; k < g->n; k++)
		if ((unsigned)g->pe[k] >= (unsigned)c->npe || (g->pe[k] == self) != (k == g->me))
			return refused(c, g);
	return NULL;
}

/* count elements of so many bytes for each of n members, at src and dst. */
static inline struct err *check_data(int64_t count, int64_t each, int n, const void *src, const void *dst)
{
	int64_t all;

	if (__builtin_mul_overflow(count, each * n, &all) || count < 0)
		return ERR(INVALID, "a collective of %lld elements of %lld bytes among %d", (long long)count, (long long)each, n);
	return all && (!src || !dst) ? ERR(INVALID, "a collective of %lld bytes %s NULL", (long long)(count * each), src ? "to" : "from") : NULL;
}

/* A reduction; the last one that was good is known. */
static inline struct err *check_red(struct coll *c, const struct coll_red *r)
{
	if (r && r->op == c->known.op && r->dtype == c->known.dtype && r->op != RED_fn)
		return NULL;
	TRY(r ? acc_check(r) : ERR(INVALID, "a collective of no reduction"));
	c->known.op = (uint8_t)r->op;
	c->known.dtype = (uint8_t)r->dtype;
	return NULL;
}

static inline struct err *check_moved(const struct coll *c, const struct coll_group *g, int64_t bytes, const void *src, const void *dst)
{
	TRY(check_group(c, g));
	return check_data(bytes, 1, g->n, src, dst);
}

static inline struct err *check_reduced(struct coll *c, const struct coll_group *g, const struct coll_red *r, int64_t count, const void *src, const void *dst)
{
	TRY(check_group(c, g));
	TRY(check_red(c, r));
	return check_data(count, dtype_info[r->dtype].bytes, g->n, src, dst);
}

struct err *coll_all_reduce(struct coll *c, const struct coll_group *g, uint32_t site, const struct coll_red *r, int64_t count, const void *src, void *dst)
{
	TRY(check_reduced(c, g, r, count, src, dst));
	int64_t n = count * dtype_info[r->dtype].bytes;
	APART(src, n, dst, n, true, all_reduce(c, g, site, COLL_auto, r, count, src, dst, NULL));
}

struct err *coll_reduce_scatter(struct coll *c, const struct coll_group *g, uint32_t site, const struct coll_red *r, int64_t count, const void *src, void *dst)
{
	TRY(check_reduced(c, g, r, count, src, dst));
	int64_t n = count * dtype_info[r->dtype].bytes;
	APART(src, n * g->n, dst, n, g->n == 1, reduce_scatter(c, g, site, COLL_auto, r, 1, n, src, dst, NULL));
}

static struct blocks gather_of(int n, int64_t outer, int64_t inner)
{
	int64_t b = outer * inner;

	return (struct blocks){ .nx = b, .from = dense(NULL, b), .ny = b * n, .place = inner, .to = { NULL, inner, inner * n }, .n = b };
}

static struct blocks exchange_of(int n, int64_t outer, int64_t inner, int64_t inner2)
{
	int64_t b = outer * inner;

	return (struct blocks){ .nx = b * n, .send = inner, .from = { NULL, inner, inner * n }, .ny = b * n, .place = inner2, .to = { NULL, inner2, inner2 * n }, .n = b };
}

struct err *coll_all_gather(struct coll *c, const struct coll_group *g, uint32_t site, int64_t bytes, const void *src, void *dst)
{
	TRY(check_moved(c, g, bytes, src, dst));
	APART(src, bytes, dst, bytes * g->n, g->n == 1, blocks(c, g, site, COLL_all_gather, COLL_auto, gather_of(g->n, 1, bytes), src, dst));
}

struct err *coll_all_to_all(struct coll *c, const struct coll_group *g, uint32_t site, int64_t bytes, const void *src, void *dst)
{
	TRY(check_moved(c, g, bytes, src, dst));
	APART(src, bytes * g->n, dst, bytes * g->n, g->n == 1, blocks(c, g, site, COLL_all_to_all, COLL_auto, exchange_of(g->n, 1, bytes, bytes), src, dst));
}

struct err *coll_broadcast(struct coll *c, const struct coll_group *g, uint32_t site, int root, int64_t bytes, const void *src, void *dst)
{
	TRY(check_group(c, g));
	TRY(check_data(bytes, 1, 1, root == g->me ? src : dst, dst));
	if (root < 0 || root >= g->n)
		return ERR(INVALID, "a broadcast from rank %d of %d", root, g->n);
	if (g->me != root)
		return whole(c, broadcast(c, g, site, COLL_auto, root, bytes, src, dst));
	APART(src, bytes, dst, bytes, true, broadcast(c, g, site, COLL_auto, root, bytes, src, dst));
}

struct err *coll_permute(struct coll *c, uint32_t site, int from, int to, int64_t bytes, const void *src, void *dst)
{
	int self = c->pe;
	struct cycle pair = { 2, self > to, false, { MIN(self, to), MAX(self, to) } };

	if (from < -1 || from >= c->npe || to < -1 || to >= c->npe || (from == self) != (to == self))
		return ERR(INVALID, "a permute of device %d from %d to %d, of %d", self, from, to, c->npe);
	TRY(check_data(bytes, 1, 1, to >= 0 ? src : &pair, from >= 0 ? dst : &pair));
	APART(src, to >= 0 ? bytes : 0, dst, bytes, true, coll_permute_by(c, site, COLL_auto, from, to, bytes, src, dst, from == to && to >= 0 ? &pair : NULL, false));
}

struct err *coll_scan(struct coll *c, const struct coll_group *g, uint32_t site, const struct coll_red *r, bool exclusive, int64_t count, const void *src, void *dst)
{
	TRY(check_reduced(c, g, r, count, src, dst));
	int64_t n = count * dtype_info[r->dtype].bytes;
	APART(src, n, dst, n, true, scan(c, g, site, COLL_auto, r, exclusive, count, src, dst));
}

struct err *coll_barrier(struct coll *c, const struct coll_group *g, uint32_t site)
{
	TRY(check_group(c, g));
	return whole(c, barrier(c, g, site, COLL_auto));
}

/* --- programs --------------------------------------------------------------------------- */

/* The members of the row that cx belongs to; alone if it is in none. */
static void group_of(const struct coll_cx *cx, const struct prog_coll *c, int *pe, struct coll_group *g)
{
	const struct prog_group *pg = &cx->p->group[c->group];

	*g = (struct coll_group){ 1, 0, pe };
	if (pg->row[cx->pos] < 0)
		return;
	const int64_t *id = pg->id + (int64_t)pg->row[cx->pos] * pg->ncol;
	for (g->n = 0; g->n < pg->ncol && id[g->n] >= 0; g->n++)
		pe[g->n] = cx->pe[id[g->n]];
	g->me = pg->rank[cx->pos];
}

/* Boxes, or the slices at `which`. */
static struct err *pieces(struct coll_cx *cx, const struct coll_group *g, uint32_t site, const struct prog_coll *c, const void *src, const void *which, void *dst)
{
	const bool far = g->n > 1 && cx->c->far && apart_hosts(cx->c, g);
	struct call q = { cx->c, cx->c->ep, site, g->n, g->me, g->pe, COLL_direct };

	return c->nbox ? move_boxes(&q, cx, c, far, src, dst) : move_slices(&q, c, far, src, which, dst);
}

/* Those that permute c links with cx; none if they are too many. */
static void cycle_of(const struct coll_cx *cx, const struct prog_coll *c, struct cycle *out)
{
	int at[COLL_CYCLE];

	out->n = prog_cycle(cx->p->table[c->pairs].v, cx->p->table[c->pairs + 1].v, cx->pos, at, &out->open);
	for (int k = 0; k < out->n; k++) {
		out->pe[k] = cx->pe[at[k]];
		out->me = at[k] == cx->pos ? k : out->me;
	}
}

struct err *coll_run(struct coll_cx *cx, const struct prog_coll *c, uint32_t site, char *const *ptr, bool in_place, const struct coll_then *then)
{
	char *const *res = ptr + c->nin + (c->slices > 0);
	int64_t n = c->outer * c->inner;
	int pe[MAX_ROW];
	struct coll_group g;
	struct coll_red r = { (enum redop)c->redop, (enum dtype)c->dtype, c->expr };

	if (c->kind == COLL_permute) {
		int64_t src = cx->p->table[c->pairs].v[cx->pos], dst = cx->p->table[c->pairs + 1].v[cx->pos];
		struct cycle all = { 0 };
		if (in_place)
			cycle_of(cx, c, &all);
		for (int i = 0; i < c->nin; i++)
			TRY(coll_permute_by(cx->c, site, c->algo, src < 0 ? -1 : cx->pe[src], dst < 0 ? -1 : cx->pe[dst], n, ptr[i], res[i], in_place && all.n ? &all : NULL, in_place));
		return NULL;
	}
	group_of(cx, c, pe, &g);
	if (c->kind == COLL_barrier)
		return barrier(cx->c, &g, site, c->algo);
	for (int i = 0; i < c->nin; i++)
		switch ((enum coll_kind)c->kind) {
		case COLL_all_reduce:
			TRY(all_reduce(cx->c, &g, site, c->algo, &r, n / dtype_info[c->dtype].bytes, ptr[i], res[i], then));
			break;
		case COLL_reduce_scatter:
			TRY(reduce_scatter(cx->c, &g, site, c->algo, &r, c->outer, c->inner, ptr[i], res[i], then));
			break;
		case COLL_all_gather:
			TRY(blocks(cx->c, &g, site, COLL_all_gather, c->algo, gather_of(g.n, c->outer, c->inner), ptr[i], res[i]));
			break;
		case COLL_all_to_all:
			TRY(c->nbox || c->slices ? pieces(cx, &g, site, c, ptr[i], ptr[c->nin], res[i]) : blocks(cx->c, &g, site, COLL_all_to_all, c->algo, exchange_of(g.n, c->outer, c->inner, c->inner2), ptr[i], res[i]));
			break;
		case COLL_broadcast:
			if (cx->p->group[c->group].row[cx->pos] < 0 && n)
				memset(res[i], 0, (size_t)n);
			else
				TRY(broadcast(cx->c, &g, site, c->algo, 0, n, ptr[i], res[i]));
			break;
		case COLL_scan:
			TRY(scan(cx->c, &g, site, c->algo, &r, false, n / dtype_info[c->dtype].bytes, ptr[i], res[i]));
			break;
		default:
			return ERR(UNIMPLEMENTED, "collective %d has no implementation", c->kind);
		}
	return NULL;
}

struct err *coll_check(const struct prog *p, const struct prog_coll *c)
{
	bool sum = c->kind == COLL_all_reduce || c->kind == COLL_reduce_scatter || c->kind == COLL_scan;

	TRY(coll_algo_fits((enum coll_kind)c->kind, (enum coll_algo)c->algo));
	if (sum)
		TRY(acc_check(&(struct coll_red){ (enum redop)c->redop, (enum dtype)c->dtype, c->expr }));
	if (c->kind != COLL_permute && p->group[c->group].ncol > MAX_ROW)
		return ERR(UNIMPLEMENTED, "a collective over %d devices", p->group[c->group].ncol);
	return NULL;
}

int64_t coll_own(const struct coll_cx *cx)
{
	int64_t ring = 0, most[2] = { 0 };

	for (uint32_t i = 0; i < cx->p->ncoll; i++) {
		const struct prog_coll *c = &cx->p->coll[i];
		enum coll_kind k = (enum coll_kind)c->kind;
		bool sum = k == COLL_all_reduce || k == COLL_reduce_scatter || k == COLL_scan;
		struct coll_red r = { (enum redop)c->redop, (enum dtype)c->dtype, c->expr };
		int64_t n = c->outer * c->inner;
		int pe[MAX_ROW] = { 0 };
		struct coll_group g = { 2, 0, pe };
		if (k == COLL_barrier || c->nbox || c->slices || c->hops)
			continue;
		if (k != COLL_permute)
			group_of(cx, c, pe, &g);
		if (k == COLL_all_to_all)
			n = exchange_of(g.n, c->outer, c->inner, c->inner2).n;
		if (g.n == 1 || !n)
			continue;
		struct call q = call_of(cx->c, &g, 0, k, sum ? &r : NULL, n, c->algo);
		if (q.algo == COLL_stage)
			ring = cx->c->table.ring;
		else if (sum)
			most[q.algo == COLL_push] = MAX(most[q.algo == COLL_push], reduce_own(&q, &r, n));
	}
	return ring + most[0] + most[1];
}

int coll_peers(const struct prog *p, const int *pe, int pos, int *out)
{
	bool *seen = mem_alloc((size_t)MAX(p->ndev, 1));
	int n = 0;

	for (uint32_t i = 0; i < p->ncoll; i++) {
		const struct prog_coll *c = &p->coll[i];
		if (c->kind == COLL_permute) {
			const int64_t *from = p->table[c->pairs].v, *to = p->table[c->pairs + 1].v;
			int all[COLL_CYCLE];
			bool open;
			for (int k = prog_cycle(from, to, pos, all, &open); k-- > 0;)      /* in place all of them meet */
				seen[all[k]] = true;
			for (int k = 1; k <= c->hops; k++)
				for (int way = 0, at; way < 2; way++)
					if ((at = prog_link(way ? to : from, pos, k)) >= 0)
						seen[at] = true;
			if (from[pos] >= 0)
				seen[from[pos]] = true;
			if (to[pos] >= 0)
				seen[to[pos]] = true;
			continue;
		}
		const struct prog_group *g = &p->group[c->group];
		if (g->row[pos] >= 0)
			for (int k = 0; k < g->ncol; k++) {
				int64_t o = g->id[(int64_t)g->row[pos] * g->ncol + k];
				if (o >= 0)
					seen[o] = true;
			}
	}
	for (int i = 0; i < p->ndev; i++)
		if (seen[i] && i != pos)
			out[n++] = pe[i];
	free(seen);
	return n;
}
