/* Every collective on every transport, between threads: sizes from nothing to many slots, in place and not,
 * whole groups and halves, in loops, with delays; then what happens when a device fails or goes elsewhere. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "coll/coll.h"
#include "draws.h"

enum { MAXP = 8, ROUNDS = 60 };

struct dev { pthread_t t; int pos; struct sym_world *team; struct prog *p; int n; int rounds; uint64_t seed; struct err *err; _Atomic int *stop; int fail_at; bool fails; };

static uint64_t rnd(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

/* A PE's side; odd seeds: with a ring so small that every call comes round. */
static struct coll *coll_of(struct sym_world *w, int pe, uint64_t seed)
{
	struct coll_table t;

	coll_table_init(&t);
	if (seed & 1) {
		t.ring = 128 << 10;
		t.chunk = 8 << 10;
	}
	return coll_new(w, pe, &t);
}

static int pes[MAXP] = { 0, 1, 2, 3, 4, 5, 6, 7 };

/* The operand of position pos in a round: any integer function will do. */
static int32_t val(int round, int pos, int64_t i) { return (int32_t)(round * 7919 + pos * 104729 + i * 31 + (i >> 5)); }

/* What follows a sum: z += 3 * sum (over the sum: z = 3 * sum); or, of the sum alone, z = 3 * sum + i. */
struct after { int32_t *z; bool pure, over; int64_t unit, all, done; bool odd; };
static void after(void *v, const char *at, char *to, int64_t lo, int64_t hi)
{
	struct after *u = v;
	const int32_t *s = (const int32_t *)(const void *)at;
	int32_t *z = to ? (int32_t *)(void *)to : u->z + lo / 4;

	u->odd |= lo % u->unit != 0 || (hi % u->unit && hi != u->all) || (to != NULL) != u->pure || hi <= lo;
	u->done += hi - lo;
	for (int64_t i = 0; i < (hi - lo) / 4; i++)
		z[i] = (int32_t)((u->pure ? (uint32_t)(lo / 4 + i) : u->over ? 0 : (uint32_t)z[i]) + 3 * (uint32_t)s[i]);
}

static struct prog *make_prog(int n)
{
	struct prog *p = prog_new();
	int64_t all[MAXP], half[2 * MAXP], rest[MAXP];

	p->ndev = n;
	p->group = ARENA_NEW(&p->arena, struct prog_group, 3);
	p->ngroup = 3;
	for (int i = 0; i < n; i++)
		all[i] = n - 1 - i;               /* not in order of position */
	prog_group_make(&p->arena, &p->group[0], n, 1, n, all);
	int w = (n + 1) / 2;
	for (int i = 0; i < 2 * w; i++)
		half[i] = i < n ? (i % w) * 2 + i / w : -1;
	for (int i = 0; i < 2 * w; i++)
		if (half[i] >= n)
			half[i] = -1;
	prog_group_make(&p->arena, &p->group[1], n, 2, w, half);
	for (int i = 0; i < n - 1; i++)
		rest[i] = i + 1;                  /* device 0 is alone */
	prog_group_make(&p->arena, &p->group[2], n, 1, MAX(n - 1, 1), n > 1 ? rest : all);
	p->table = ARENA_NEW(&p->arena, struct prog_table, 6);
	p->ntable = 6;
	for (int k = 0; k < 6; k++)
		p->table[k].v = ARENA_NEW(&p->arena, int64_t, n);
	for (int i = 0; i < n; i++) {
		p->table[0].v[i] = (i + n - 1) % n;               /* ring */
		p->table[1].v[i] = (i + 1) % n;
		p->table[2].v[i] = i ? i - 1 : -1;                /* open chain */
		p->table[3].v[i] = i < n - 1 ? i + 1 : -1;
		p->table[4].v[i] = n - 1 - i;                     /* exchange, with a self-loop in the middle */
		p->table[5].v[i] = n - 1 - i;
	}
	/* All pairs talk. */
	p->coll = ARENA_NEW(&p->arena, struct prog_coll, 1);
	p->ncoll = 1;
	p->coll[0] = (struct prog_coll){ .kind = COLL_all_reduce, .group = 0 };
	return p;
}

/* As coll_run; or begun in a lane, looked at from time to time, and finished: each device as it likes.  What did not come, since all
 * are to stop, is an error. */
static struct err *either(const struct dev *d, struct coll_lane *lane, uint64_t draw, struct coll_cx *cx, const struct prog_coll *c, uint32_t site, char *const *ptr, bool in_place, const struct coll_then *t)
{
	struct sym_ep *ep = sym_ep_of(d->team, d->pos);
	const void *what = NULL;

	if (t || draw % 2) {
		TRY(coll_run(cx, c, site, ptr, in_place, t));
		return sym_lost(ep);
	}
	coll_begin(lane, &(struct coll_task){ *cx, c, site, ptr, in_place, c });
	for (uint64_t k = draw / 2 % 50; k-- && coll_flying(lane);) {
		if (k % 8 == 0)
			usleep(1);
		coll_look(lane);
	}
	coll_finish(lane, coll_begun(lane));
	assert_false(coll_flying(lane));
	struct err *e = coll_lane_error(lane, &what);
	assert_true(!e || what == c);
	return e ? e : sym_lost(ep);
}

/* Boxes of three dimensions between the members of a group, some rows long, some a few bytes: block k of a result is from its member k.
 * All devices draw the same. */
static struct err *boxes(const struct dev *d, struct coll_lane *lane, struct coll_cx *cx, uint32_t group, int round, uint64_t s, int32_t *x, int32_t *y)
{
	enum { RANK = 3, ROW = 2 + 3 * RANK };
	const struct prog_group *g = &d->p->group[group];
	int64_t box[1 + 2 * RANK + MAXP * MAXP * ROW] = { RANK }, *in = box + 1, *out = in + RANK, *w = out + RANK, size[RANK], more[RANK];
	static const int64_t longest[] = { 5, 17, 300 };
	for (int e = 0; e < RANK; e++) {
		size[e] = 1 + (int64_t)(rnd(&s) % (uint64_t)longest[(e + round) % RANK]);
		more[e] = (int64_t)(rnd(&s) % 3);
		in[e] = size[e] + more[e];
		out[e] = size[e] * (e == round % RANK ? g->ncol : 1);
	}
	for (int t = 0; t < d->n; t++)
		for (int k = 0; k < g->ncol && g->row[t] >= 0; k++) {
			int64_t from = g->id[g->row[t] * g->ncol + k];
			if (from < 0)
				continue;
			w[0] = t;
			w[1] = from;
			for (int e = 0; e < RANK; e++) {
				w[2 + e] = (int64_t)(rnd(&s) % (uint64_t)(more[e] + 1));
				w[2 + RANK + e] = e == round % RANK ? k * size[e] : 0;
				w[2 + 2 * RANK + e] = size[e];
			}
			w += ROW;
		}
	int64_t nx = in[0] * in[1] * in[2], ny = out[0] * out[1] * out[2];
	struct prog_coll c = { .kind = COLL_all_to_all, .dtype = DT_i32, .nin = 1, .group = group, .outer = 1, .inner = 4 * nx, .outer2 = 1, .inner2 = 4 * ny,
	                       .nbox = (uint32_t)(w - box), .box = box };
	char *ptr[2] = { (char *)x, (char *)y };
	for (int64_t i = 0; i < nx; i++)
		x[i] = val(round, d->pos, i);
	for (int64_t i = 0; i < ny; i++)
		y[i] = -1;
	TRY(either(d, lane, (uint64_t)val(round, d->pos, 5) / 11, cx, &c, (uint32_t)round, ptr, false, NULL));
	for (const int64_t *r = out + RANK; r < w; r += ROW)
		for (int64_t i = 0; i < size[0] && r[0] == d->pos; i++)
			for (int64_t j = 0; j < size[1]; j++)
				for (int64_t k = 0; k < size[2]; k++) {
					int64_t at = ((r[5] + i) * out[1] + r[6] + j) * out[2] + r[7] + k, from = ((r[2] + i) * in[1] + r[3] + j) * in[2] + r[4] + k;
					if (y[at] != val(round, (int)r[1], from))
						return ERR(INTERNAL, "round %d: element %lld of a box of device %lld is wrong", round, (long long)at, (long long)r[1]);
				}
	return NULL;
}

/* A number of any size, most often one that fits. */
static int64_t any(uint64_t *s, int64_t most)
{
	static const int64_t odd[] = { -1, -3, INT64_MIN, INT64_MAX, INT64_MIN + 1, INT64_MAX / 2 + 1, (int64_t)1 << 62 };
	uint64_t draw = rnd(s);
	return draw % 8 ? (int64_t)(draw / 8 % (uint64_t)(most + 1)) : odd[draw / 8 % NELEM(odd)];
}

/* Slices of rows, some of which lie over each other or outside: row by row, the later over the earlier.  Each device draws its own. */
static struct err *slices(const struct dev *d, struct coll_lane *lane, struct coll_cx *cx, uint32_t group, int round, uint64_t s, int n, const int64_t *id, int32_t *x, int32_t *y)
{
	enum { EACH = 4, MOST = EACH * MAXP };
	static const int64_t longest[] = { 1, 3, 40, 3000 };
	int64_t have = (int64_t)(rnd(&s) % 70), room = (int64_t)(rnd(&s) % 90), wide = 1 + (int64_t)(rnd(&s) % (uint64_t)longest[rnd(&s) % NELEM(longest)]), each = (int64_t)(rnd(&s) % EACH) + 1;
	uint64_t own = s ^ (uint64_t)(d->pos + 1) * 0x9e3779b97f4a7c15;
	bool apart = rnd(&own) % 2;       /* no two in one place: they may come together */
	int64_t w[MOST][SLICE_NUMBERS];
	struct prog_coll c = { .kind = COLL_all_to_all, .dtype = DT_i32, .nin = 1, .group = group, .outer = 1, .inner = 4 * have * wide, .outer2 = 1, .inner2 = 4 * room * wide,
	                       .slices = each * n, .row = 4 * wide };
	char *ptr[] = { (char *)x, (char *)w, (char *)y };
	int32_t *want = malloc((size_t)(room * wide) * 4 + 1);
	struct err *e = NULL;
	for (int64_t k = 0; k < each * n; k++) {
		int64_t place = room / (each * n);
		w[k][SLICE_FROM] = any(&own, have);
		w[k][SLICE_TO] = apart ? k * place : any(&own, room);
		w[k][SLICE_ROWS] = apart ? (int64_t)(rnd(&own) % (uint64_t)(place + 1)) : any(&own, have);
	}
	for (int64_t i = 0; i < have * wide; i++)
		x[i] = val(round, d->pos, i);
	for (int64_t i = 0; i < room * wide; i++)
		y[i] = want[i] = (int32_t)~i;
	for (int64_t k = 0; k < each * n; k++)
		for (int64_t r = 0; r < room; r++) {
			__int128 nth = (__int128)r - w[k][SLICE_TO], from = nth + w[k][SLICE_FROM];
			for (int64_t i = 0; i < wide && nth >= 0 && nth < w[k][SLICE_ROWS] && from >= 0 && from < have; i++)
				want[r * wide + i] = val(round, (int)id[k / each], (int64_t)from * wide + i);
		}
	TRY_GOTO(e, either(d, lane, (uint64_t)val(round, d->pos, 6) / 11, cx, &c, (uint32_t)round, ptr, false, NULL), out);
	for (int64_t i = 0; i < room * wide && !e; i++)
		if (y[i] != want[i])
			e = ERR(INTERNAL, "round %d: element %lld of %lld rows of %lld is wrong: %d for %d", round, (long long)i, (long long)room, (long long)wide, y[i], want[i]);
out:
	free(want);
	return e;
}

static void *device(void *v)
{
	struct dev *d = v;
	struct sym_ep *ep = sym_ep_of(d->team, d->pos);
	struct sym_heap *h = sym_heap_of(d->team, d->pos);
	struct coll *cc = coll_of(d->team, d->pos, d->seed);
	struct coll_cx cx = { cc, d->p, pes, d->pos };
	int peer[MAXP], npeer = coll_peers(d->p, pes, d->pos, peer);
	struct sym_launch l = { .prog = 42, .peer = peer, .npeer = npeer, .stop = d->stop };
	struct sym_block *bx, *by, *bz;
	uint64_t s = d->seed | 1;
	int64_t cap = 1 << 21;
	struct coll_lane *lane;

	assert_null(coll_lane_new(cc, &lane));

	assert_null(sym_alloc(h, (size_t)cap * MAXP, NULL, -1, &bx));
	assert_null(sym_alloc(h, (size_t)cap * MAXP, NULL, -1, &by));
	int32_t *own = malloc((size_t)cap * MAXP * 2);
	assert_null(sym_alloc(h, (size_t)cap * MAXP, NULL, -1, &bz));
	sym_begin(ep, &l);
	for (int round = 0; round < d->rounds && !d->err; round++) {
		if (round % 16 == 15 && !d->fails) {      /* a new launch */
			sym_end(ep, NULL);
			sym_begin(ep, &l);
		}
		static const int64_t sizes[] = { 0, 1, 2, 3, 8, 9, 100, 1000, 1024, 1025, 2000, 5000, 33333, 100000, 300001 };
		struct prog_coll c = { .dtype = DT_i32, .nin = 1 };
		c.kind = (uint8_t)(rnd(&s) % COLL_COUNT);
		c.group = (uint32_t)(rnd(&s) % 3);
		c.pairs = (uint32_t)(rnd(&s) % 3) * 2;
		c.redop = rnd(&s) % 2 ? RED_add : RED_max;
		c.algo = (uint8_t)(rnd(&s) % COLL_ALGOS);
		if (!prog_algo_has((enum coll_algo)c.algo, (enum coll_kind)c.kind))
			c.algo = COLL_auto;
		int64_t inner = sizes[rnd(&s) % NELEM(sizes)], outer = 1 + (int64_t)(rnd(&s) % 3);
		bool inplace = rnd(&s) % 3 == 0;
		if (c.kind != COLL_all_gather && c.kind != COLL_reduce_scatter && c.kind != COLL_all_to_all)
			outer = 1;
		else
			inner = MIN(inner, 100000);
		c.outer = outer;
		c.inner = inner * 4;
		if (c.kind == COLL_all_to_all) {          /* split [outer][n] of inner, joined as [1][n] of all */
			c.outer2 = 1;
			c.inner2 = c.inner * outer;
		}
		const struct prog_group *g = &d->p->group[c.group];
		int64_t one = -1;
		const int64_t *id = g->row[d->pos] < 0 ? &one : g->id + g->row[d->pos] * g->ncol;
		int n = 0, me = 0;
		if (g->row[d->pos] >= 0) {
			while (n < g->ncol && id[n] >= 0)
				n++;
			me = g->rank[d->pos];
		} else {
			n = 1;
			one = d->pos;
		}
		int64_t nx = inner * outer, ny = nx;
		if (c.kind == COLL_reduce_scatter || c.kind == COLL_all_to_all)
			nx *= n;
		if (c.kind == COLL_all_gather || c.kind == COLL_all_to_all)
			ny *= n;
		if (nx * 4 > cap * MAXP || ny * 4 > cap * MAXP)
			continue;
		if (d->fail_at == round) {                /* this device fails instead */
			d->err = ERR(CANCELLED, "on purpose");
			break;
		}
		uint64_t form = c.kind == COLL_all_to_all ? rnd(&s) % 3 : 0;
		if (form) {
			uint64_t place = (uint64_t)val(round, d->pos, 77) / 13;
			int32_t *x = place % 3 ? (int32_t *)(sym_base(h) + bx->off) : own, *y = place % 5 ? (int32_t *)(sym_base(h) + by->off) : own + cap / 4 * MAXP;
			if ((d->err = form == 1 ? boxes(d, lane, &cx, c.group, round, s, x, y) : slices(d, lane, &cx, c.group, round, s, n, id, x, y)))
				break;
			continue;
		}
		if (c.kind != COLL_all_reduce && c.kind != COLL_permute && c.kind != COLL_broadcast && c.kind != COLL_scan)
			inplace = false;
		if (c.kind == COLL_barrier)
			ny = 0;
		/* Outside the heap on some devices and not on others, the operand, the result or both. */
		uint64_t out = (uint64_t)val(round, d->pos, 77) / 13;
		int32_t *x = out % 5 ? (int32_t *)(sym_base(h) + bx->off) : own, *y = inplace ? x : out % 7 < 5 ? (int32_t *)(sym_base(h) + by->off) : own + cap / 4 * MAXP;
		for (int64_t i = 0; i < nx; i++)
			x[i] = val(round, d->pos, i);
		char *ptr[2] = { (char *)x, (char *)y };
		uint64_t nap = rnd(&s);
		if (nap % 8 == 0 && d->pos == (int)(nap >> 8) % 4)
			usleep((useconds_t)((nap >> 16) % 500));
		/* z: of its own, where the operand lies, or where the result does */
		uint64_t way = rnd(&s);
		bool part = c.kind == COLL_reduce_scatter;
		struct after u = { .pure = way & 1 && !part, .all = ny * 4 };
		u.unit = u.pure ? (int64_t[]){ 4096, 64, COLL_UNIT }[(way >> 8) % 3] : (int64_t[]){ 4096, 64, 1200, 36, 24576, 100000 }[(way >> 8) % 6];
		struct coll_then then = { .run = after, .user = &u, .unit = u.unit }, *t = (c.kind == COLL_all_reduce || part) && way & 2 ? &then : NULL;
		int64_t mine = part && outer == 1 ? me * inner : 0;
		if (part && outer > 1 && (way >> 2) % 3 == 1)
			way -= 4;
		if (t) {
			u.z = (way >> 2) % 3 == 0 ? (int32_t *)(sym_base(h) + bz->off) : (way >> 2) % 3 == 1 ? x + mine : y;
			then.alone = part && u.z != y && way & 128;
			then.out = u.pure ? (char *)u.z : NULL;
			u.over = u.z == y;
			for (int64_t i = 0; i < ny && (way >> 2) % 3 == 0; i++)
				u.z[i] = (int32_t)i;
		}
		d->err = either(d, lane, (uint64_t)val(round, d->pos, 5) / 11, &cx, &c, (uint32_t)round, ptr, inplace, t);
		if (d->err)
			break;
		if (t) {
			if (u.odd || (!u.pure && u.done != ny * 4)) {
				d->err = ERR(INTERNAL, "round %d: %lld bytes of %lld went on", round, (long long)u.done, (long long)ny * 4);
				break;
			}
			y = u.z;
		}
		for (int64_t i = 0; i < ny; i++) {
			int32_t want = 0;
			switch (c.kind) {
			case COLL_all_reduce: case COLL_reduce_scatter: {
				int64_t at = c.kind == COLL_all_reduce ? i : (i / inner * n + me) * inner + i % inner;
				for (int k = 0; k < n; k++) {
					int32_t a = val(round, (int)id[k], at);
					want = !k ? a : c.redop == RED_add ? (int32_t)((uint32_t)want + (uint32_t)a) : MAX(want, a);
				}
				break;
			}
			case COLL_scan:
				for (int k = 0; k <= me; k++) {
					int32_t a = val(round, (int)id[k], i);
					want = !k ? a : c.redop == RED_add ? (int32_t)((uint32_t)want + (uint32_t)a) : MAX(want, a);
				}
				break;
			case COLL_all_gather:
				want = val(round, (int)id[i / inner % n], i / (inner * n) * inner + i % inner);
				break;
			case COLL_all_to_all: {
				int64_t k = i / (inner * outer), e = i % (inner * outer);
				want = val(round, (int)id[k], (e / inner * n + me) * inner + e % inner);
				break;
			}
			case COLL_permute: {
				int64_t src = d->p->table[c.pairs].v[d->pos];
				want = src < 0 ? 0 : val(round, (int)src, i);
				break;
			}
			case COLL_broadcast:
				want = g->row[d->pos] < 0 ? 0 : val(round, (int)id[0], i);
				break;
			}
			if (t)               /* what z started with: i, the operand, or nothing */
				want = (int32_t)(3 * (uint32_t)want + (uint32_t)(u.pure || (way >> 2) % 3 == 0 ? i : !u.over ? val(round, d->pos, mine + i) : 0));
			if (y[i] != want) {
				d->err = ERR(INTERNAL, "round %d device %d of %d, group %u, %s by %s inner %lld outer %lld: element %lld is %d, not %d", round, d->pos, d->n, c.group, prog_coll_name[c.kind], prog_algo_name[c.algo],
				             (long long)inner, (long long)outer, (long long)i, y[i], want);
				break;
			}
		}
	}
	if (d->err && d->err->code != ERR_ABORTED && d->err->code != ERR_CANCELLED)
		fprintf(stderr, "device %d: %s\n", d->pos, d->err->msg);
	if (d->err && d->stop) {
		atomic_store(d->stop, 1);
		for (int i = 0; i < d->n; i++)
			sym_ring(d->team, i);
	}
	sym_end(ep, d->err);
	coll_lane_free(lane);
	coll_free(cc);
	sym_free(bx);
	sym_free(by);
	free(own);
	sym_free(bz);
	return NULL;
}

/* Many under way at once, more than a lane has room for, of all sizes: each device looks at them, and ends them, in steps of its own. */
struct many { pthread_t t; struct sym_world *team; struct prog *p; int pos; uint64_t seed; struct err *err; };
enum { MANY = COLL_FLIGHT + 20, MANY_N = 50000 };

static void *many_of(void *v)
{
	static const int64_t sizes[] = { 1, 8, 1000, 5000, MANY_N };
	struct many *d = v;
	struct sym_ep *ep = sym_ep_of(d->team, d->pos);
	struct coll *cc = coll_of(d->team, d->pos, d->seed);
	int peer[MAXP], n = d->p->ndev;
	struct sym_launch l = { .prog = 43, .peer = peer, .npeer = coll_peers(d->p, pes, d->pos, peer) };
	struct prog_coll c[MANY];
	char *ptr[MANY][2];
	struct coll_lane *lane;
	struct sym_block *b;
	uint64_t s = d->seed, mine = d->seed + (uint64_t)d->pos * 77 + 1;
	const void *what;

	assert_null(coll_lane_new(cc, &lane));
	assert_null(sym_alloc(sym_heap_of(d->team, d->pos), sizeof(int32_t) * MANY * 2 * MANY_N, NULL, -1, &b));
	sym_begin(ep, &l);
	for (int k = 0; k < MANY; k++) {
		int64_t size = sizes[rnd(&s) % NELEM(sizes)];
		bool sum = rnd(&s) % 2;
		int32_t *x = (int32_t *)(void *)(sym_base(sym_heap_of(d->team, d->pos)) + b->off) + (int64_t)k * 2 * MANY_N;
		c[k] = (struct prog_coll){ .kind = sum ? COLL_all_reduce : COLL_permute, .dtype = DT_i32, .nin = 1, .redop = RED_add, .outer = 1, .inner = size * 4 };
		ptr[k][0] = (char *)x;
		ptr[k][1] = (char *)(x + MANY_N);
		for (int64_t i = 0; i < size; i++)
			x[i] = val(k, d->pos, i);
		coll_begin(lane, &(struct coll_task){ { cc, d->p, pes, d->pos }, &c[k], (uint32_t)k + 1, ptr[k], false, &c[k] });
		if (rnd(&mine) % 4 == 0)
			coll_look(lane);
		if (rnd(&mine) % 16 == 0)
			coll_finish(lane, rnd(&mine) % (coll_begun(lane) + 1));
	}
	coll_finish(lane, MANY);
	d->err = coll_lane_error(lane, &what);
	for (int k = 0; k < MANY && !d->err; k++)
		for (int64_t i = 0; i < c[k].inner / 4 && !d->err; i++) {
			uint32_t want = c[k].kind == COLL_permute ? (uint32_t)val(k, (d->pos + n - 1) % n, i) : 0;
			for (int q = 0; q < n && c[k].kind != COLL_permute; q++)
				want += (uint32_t)val(k, q, i);
			if (((uint32_t *)(void *)ptr[k][1])[i] != want)
				d->err = ERR(INTERNAL, "collective %d, element %lld", k, (long long)i);
		}
	sym_end(ep, d->err);
	coll_lane_free(lane);
	coll_free(cc);
	sym_free(b);
	return NULL;
}

static void many(void **state)
{
	for (int k = 0; k < 4; k++) {
		int n = 2 + k;
		struct many d[MAXP];
		struct prog *p = make_prog(n);
		struct sym_world *t;
		struct sym_opts o = { .nlocal = n, .threads = n, .chaos = k & 1, .seed = 11 + (uint64_t)k };
		assert_null(sym_open(&o, &t));
		for (int i = 0; i < n; i++) {
			d[i] = (struct many){ .team = t, .p = p, .pos = i, .seed = 17 + (uint64_t)k };
			pthread_create(&d[i].t, NULL, many_of, &d[i]);
		}
		for (int i = 0; i < n; i++)
			pthread_join(d[i].t, NULL);
		for (int i = 0; i < n; i++)
			if (d[i].err)
				fail_msg("%d devices, device %d: %s", n, i, d[i].err->msg);
		sym_close(t);
		prog_free(p);
	}
}

static void run(int n, int rounds, bool chaos, uint64_t seed, int fail_dev, int fail_at)
{
	struct dev d[MAXP];
	struct prog *p = make_prog(n);
	struct sym_world *t;
	_Atomic int stop = 0;

	seed += 1000 * (uint64_t)conf_int(CONF_CHAOS);            /* RONDO_CHAOS=N: other operands, algorithms, delays */
	struct sym_opts o = { .nlocal = n, .threads = n, .chaos = chaos, .seed = seed };
	assert_null(sym_open(&o, &t));
	for (int i = 0; i < n; i++) {
		d[i] = (struct dev){ .pos = i, .team = t, .p = p, .n = n, .rounds = rounds, .seed = seed, .stop = &stop, .fail_at = i == fail_dev ? fail_at : -1, .fails = fail_dev >= 0 };
		pthread_create(&d[i].t, NULL, device, &d[i]);
	}
	for (int i = 0; i < n; i++)
		pthread_join(d[i].t, NULL);
	for (int i = 0; i < n; i++) {
		if (fail_dev >= 0) {
			assert_true(!d[i].err || d[i].err->code == ERR_CANCELLED || d[i].err->code == ERR_ABORTED);
			if (i == fail_dev)
				assert_non_null(d[i].err);
		} else if (d[i].err)
			fail_msg("%s", d[i].err->msg);
		err_free(d[i].err);
	}
	sym_close(t);
	prog_free(p);
}

/* Parts of a sum, of any number of bytes, that follow when they are there, though others have reduced some of it: looked at as they come, and
 * written over where they lie. */
struct parts { pthread_t t; struct sym_world *team; struct prog *p; int pos; int32_t *sum; int64_t n, unit, done; int round; bool odd; struct err *err; };

static void part_there(void *v, const char *at, char *to, int64_t lo, int64_t hi)
{
	struct parts *d = v;
	const int32_t *s = (const int32_t *)(const void *)at;
	d->odd |= lo % d->unit || (hi % d->unit && hi != d->n) || hi <= lo || to;
	d->done += hi - lo;
	for (int64_t i = 0; i < (hi - lo) / 4; i++) {
		uint32_t want = 0;
		for (int q = 0; q < d->p->ndev; q++)
			want += (uint32_t)val(d->round, q, lo / 4 + i);
		d->odd |= (uint32_t)s[i] != want;
		d->sum[lo / 4 + i] = -1;
	}
}

static void *parts_of(void *v)
{
	static const int64_t sizes[] = { 40000, 131072, 400004, 1200000 }, units[] = { 36, 1200, 24576, 100000 };
	struct parts *d = v;
	struct sym_ep *ep = sym_ep_of(d->team, d->pos);
	struct coll *cc = coll_new(d->team, d->pos, NULL);
	int peer[MAXP];
	struct sym_launch l = { .prog = 45, .peer = peer, .npeer = coll_peers(d->p, pes, d->pos, peer) };
	struct coll_cx cx = { cc, d->p, pes, d->pos };
	struct sym_block *b;

	assert_null(sym_alloc(sym_heap_of(d->team, d->pos), 2400000, NULL, -1, &b));
	int32_t *x = (int32_t *)(void *)(sym_base(sym_heap_of(d->team, d->pos)) + b->off);
	sym_begin(ep, &l);
	for (d->round = 0; d->round < 32 && !d->err; d->round++) {
		d->n = sizes[d->round % 4];
		d->unit = units[d->round / 4 % 4];
		d->done = 0;
		d->sum = d->round < 16 ? x : x + 300000;
		for (int64_t i = 0; i < d->n / 4; i++)
			x[i] = val(d->round, d->pos, i);
		struct prog_coll c = { .kind = COLL_all_reduce, .algo = COLL_two_shot, .dtype = DT_i32, .nin = 1, .redop = RED_add, .outer = 1, .inner = d->n };
		struct coll_then t = { .run = part_there, .user = d, .unit = d->unit };
		d->err = coll_run(&cx, &c, (uint32_t)d->round + 1, (char *[]){ (char *)x, (char *)d->sum }, d->sum == x, &t);
		for (int64_t i = 0; i < d->n / 4 && !d->err; i++)
			if (d->sum[i] != -1)
				d->err = ERR(INTERNAL, "element %lld was written after what follows", (long long)i);
		if (!d->err && (d->odd || d->done != d->n))
			d->err = ERR(INTERNAL, "round %d: a part of %lld bytes was not there, or %lld of %lld were", d->round, (long long)d->unit, (long long)d->done, (long long)d->n);
	}
	sym_end(ep, d->err);
	coll_free(cc);
	sym_free(b);
	return NULL;
}

static void parts(void **state)
{
	for (int n = 2; n <= 5; n++) {
		struct parts d[MAXP];
		struct prog *p = make_prog(n);
		struct sym_world *t;
		struct sym_opts o = { .nlocal = n, .threads = n };
		assert_null(sym_open(&o, &t));
		for (int i = 0; i < n; i++) {
			d[i] = (struct parts){ .team = t, .p = p, .pos = i };
			pthread_create(&d[i].t, NULL, parts_of, &d[i]);
		}
		for (int i = 0; i < n; i++)
			pthread_join(d[i].t, NULL);
		for (int i = 0; i < n; i++)
			if (d[i].err)
				fail_msg("%d devices, device %d: %s", n, i, d[i].err->msg);
		sym_close(t);
		prog_free(p);
	}
}

static void plain(void **state)
{
	for (int n = 1; n <= MAXP; n = n < 4 ? n + 1 : n + 2)
		run(n, draws(ROUNDS), false, 77 + (uint64_t)n, -1, -1);
}

/* Of those under way one fails: those before it have ended, those behind it, though they need nobody, are not begun. */
static void *broken_of(void *v)
{
	struct many *d = v;
	struct sym_ep *ep = sym_ep_of(d->team, d->pos);
	struct coll *cc = coll_new(d->team, d->pos, NULL);
	int peer[MAXP];
	struct sym_launch l = { .prog = 44, .peer = peer, .npeer = coll_peers(d->p, pes, d->pos, peer) };
	struct prog_coll sum = { .kind = COLL_all_reduce, .dtype = DT_i32, .nin = 1, .redop = RED_add, .outer = 1, .inner = 4 }, own = sum;
	int32_t x[3] = { 5, 6, 7 }, y[3] = { -1, -1, -1 };
	char *ptr[3][2];
	struct coll_lane *lane;
	const void *what = NULL;

	own.group = 2;                    /* device 0 is alone in it */
	assert_null(coll_lane_new(cc, &lane));
	sym_begin(ep, &l);
	for (int k = 0; k < 3; k++) {
		ptr[k][0] = (char *)&x[k];
		ptr[k][1] = (char *)&y[k];
		uint32_t site = k == 1 ? 10 + (uint32_t)d->pos : 1;      /* of the second each has another idea */
		coll_begin(lane, &(struct coll_task){ { cc, d->p, pes, d->pos }, k == 2 ? &own : &sum, site, ptr[k], false, &ptr[k] });
	}
	coll_finish(lane, 3);
	assert_false(coll_flying(lane));
	d->err = coll_lane_error(lane, &what);
	assert_true(what == &ptr[1]);
	assert_int_equal(y[0], 10);
	assert_int_equal(y[2], -1);
	assert_null(coll_lane_error(lane, &what));
	sym_end(ep, d->err);
	coll_lane_free(lane);
	coll_free(cc);
	return NULL;
}

static void broken(void **state)
{
	struct many d[2];
	struct prog *p = make_prog(2);
	struct sym_world *t;
	struct sym_opts o = { .nlocal = 2, .threads = 2 };
	assert_null(sym_open(&o, &t));
	for (int i = 0; i < 2; i++) {
		d[i] = (struct many){ .team = t, .p = p, .pos = i };
		pthread_create(&d[i].t, NULL, broken_of, &d[i]);
	}
	for (int i = 0; i < 2; i++) {
		pthread_join(d[i].t, NULL);
		assert_non_null(d[i].err);
		assert_true(d[i].err->code == ERR_INTERNAL || d[i].err->code == ERR_ABORTED);
		err_free(d[i].err);
	}
	sym_close(t);
	prog_free(p);
}

static void chaotic(void **state)
{
	run(2, draws(ROUNDS), true, 5, -1, -1);
	run(3, draws(ROUNDS / 2), true, 6, -1, -1);
	run(8, draws(ROUNDS / 3), true, 7, -1, -1);
}

static void failing(void **state)
{
	for (int k = 0; k < 10; k++)
		run(2 + k % 3, MAX(draws(ROUNDS), 24), k & 1, 100 + (uint64_t)k, k % 2, 3 + k * 2);
}

/* One device takes another turn of a loop than the other, or leaves. */
struct lost { pthread_t t; struct sym_world *team; int pe; bool leave; struct err *err; };

static void *lost(void *v)
{
	struct lost *d = v;
	struct sym_ep *ep = sym_ep_of(d->team, d->pe);
	int peer = 1 - d->pe;
	struct sym_launch l = { .prog = 9, .peer = &peer, .npeer = 1 };
	struct sym_msg m;
	void *room;

	sym_begin(ep, &l);
	if (d->pe == 0) {
		d->err = sym_recv(ep, 1, 5, SYM_SLOT_MSG, &m);
	} else if (!d->leave) {
		assert_null(sym_slot_room(ep, 0, 4, &room));
		sym_slot_send(ep, 0, 6, 4);
	}
	sym_end(ep, NULL);
	return NULL;
}

static void divergence(void **state)
{
	for (int k = 0; k < 4; k++) {
		struct sym_opts o = { .nlocal = 2, .threads = 2, .chaos = k & 1, .seed = 3 };
		struct sym_world *t;
		struct lost d[2];
		assert_null(sym_open(&o, &t));
		for (int i = 0; i < 2; i++) {
			d[i] = (struct lost){ .team = t, .pe = i, .leave = k & 2 };
			pthread_create(&d[i].t, NULL, lost, &d[i]);
		}
		for (int i = 0; i < 2; i++)
			pthread_join(d[i].t, NULL);
		assert_non_null(d[0].err);
		assert_int_equal(d[0].err->code, ERR_INTERNAL);
		assert_non_null(strstr(d[0].err->msg, "command 5"));
		assert_non_null(strstr(d[0].err->msg, k & 2 ? "end of the program" : "command 6"));
		err_free(d[0].err);
		assert_null(d[1].err);
		sym_close(t);
	}
}

/* Of three that tell each other the same, the last comes to another command, or to a message, or to the end; or the others do. */
enum stray { STRAY_SITE, STRAY_LINE, STRAY_LEAVE, STRAY_WAIT, STRAYS };
struct strayed { pthread_t t; struct sym_world *team; int pe; enum stray how; struct err *err; };

static void *strayed(void *v)
{
	struct strayed *d = v;
	struct sym_ep *ep = sym_ep_of(d->team, d->pe);
	struct sym_launch l = { .prog = 9, .peer = (int[]){ (d->pe + 1) % 3, (d->pe + 2) % 3 }, .npeer = 2 };
	struct sym_msg m[3];

	sym_begin(ep, &l);
	for (int i = 0; i < 5 && !d->err; i++)
		d->err = sym_exchange(ep, pes, 3, d->pe, 4, &i, 0, sizeof i, m);
	if (!d->err && d->pe == 2 && d->how == STRAY_LINE)
		d->err = sym_tell(ep, 0, 6, SYM_LEND, 0, 0);
	if (!d->err && d->pe == 2 && d->how != STRAY_LEAVE)
		d->err = d->how == STRAY_WAIT || d->how == STRAY_LINE ? sym_recv(ep, 1, 6, SYM_LEND, m) : sym_exchange(ep, pes, 3, d->pe, 6, "", 0, 0, m);
	else if (!d->err && d->pe < 2)
		d->err = sym_exchange(ep, pes, 3, d->pe, 5, "", 0, 0, m);
	sym_end(ep, d->err);
	return NULL;
}

static void divergence_of_three(void **state)
{
	for (int k = 0; k < 2 * STRAYS; k++) {
		struct sym_opts o = { .nlocal = 3, .threads = 3, .chaos = k & 1, .seed = 3 };
		struct sym_world *t;
		struct strayed d[3];
		bool named = false;
		if (k == 2 * STRAY_WAIT + 1)              /* who waits for a line that never comes: by channels nobody knows */
			continue;
		assert_null(sym_open(&o, &t));
		for (int i = 0; i < 3; i++) {
			d[i] = (struct strayed){ .team = t, .pe = i, .how = (enum stray)(k / 2) };
			pthread_create(&d[i].t, NULL, strayed, &d[i]);
		}
		for (int i = 0; i < 3; i++)
			pthread_join(d[i].t, NULL);
		for (int i = 0; i < 3; i++) {
			if (i == 2 && d[i].how == STRAY_LEAVE) {
				assert_null(d[i].err);
				continue;
			}
			assert_non_null(d[i].err);
			named |= d[i].err->code == ERR_INTERNAL && strstr(d[i].err->msg, "command 5") && strstr(d[i].err->msg, d[i].how == STRAY_LEAVE ? "end of the program" : "command 6");
			err_free(d[i].err);
		}
		assert_true(named);
		sym_close(t);
	}
}

/* PE 0 sleeps until it has heard from both others.  PE 1 speaks and goes on to what all do next, long before PE 2 speaks: that
 * PE 1 is ahead is no reason to give up, nor that it was about to speak when PE 0 fell asleep. */
static void *early(void *v)
{
	struct strayed *d = v;
	struct sym_ep *ep = sym_ep_of(d->team, d->pe);
	struct sym_launch l = { .prog = 9, .peer = (int[]){ (d->pe + 1) % 3, (d->pe + 2) % 3 }, .npeer = 2 };
	struct sym_msg m[3];

	sym_begin(ep, &l);
	for (int i = 0; i < 3 && !d->err; i++)
		d->err = sym_exchange(ep, pes, 3, d->pe, 4, &i, 0, sizeof i, m);
	for (int i = 0; i < 3 && !d->err; i++) {
		if (!d->pe)
			d->err = sym_expect(ep, (int[]){ 2, 1 }, 2, 5);
		else {
			if (d->pe == 1)
				usleep(120000);
			else if (!(d->err = sym_slot_put(ep, 1, 5, "", 0)))
				usleep(300000);
			d->err = d->err ? d->err : sym_slot_put(ep, 0, 5, "", 0);
		}
		for (int k = d->pe ? 2 : 1; k < (d->pe == 2 ? 0 : 3) && !d->err; k++)
			if (!(d->err = sym_recv(ep, k, 5, SYM_SLOT_MSG, m)))
				sym_return(ep, k, false);
		d->err = d->err ? d->err : sym_exchange(ep, pes, 3, d->pe, 6, &i, 0, sizeof i, m);
		for (int k = 0; k < 3 && !d->err; k++)
			assert_int_equal(*(const int *)m[k].data, i);
	}
	sym_end(ep, d->err);
	return NULL;
}

static void ahead_of_others(void **state)
{
	struct sym_opts o = { .nlocal = 3, .threads = 3 };
	struct sym_world *t;
	struct strayed d[3];

	assert_null(sym_open(&o, &t));
	for (int i = 0; i < 3; i++) {
		d[i] = (struct strayed){ .team = t, .pe = i };
		pthread_create(&d[i].t, NULL, early, &d[i]);
	}
	for (int i = 0; i < 3; i++) {
		pthread_join(d[i].t, NULL);
		if (d[i].err)
			fail_msg("%s", d[i].err->msg);
	}
	sym_close(t);
}

/* --- the put verb --------------------------------------------------------------------- */

static void *putting(void *v)
{
	struct lost *d = v;
	struct sym_ep *ep = sym_ep_of(d->team, d->pe);
	struct sym_heap *h = sym_heap_of(d->team, d->pe);
	int peer = 1 - d->pe;
	struct sym_launch l = { .prog = 9, .peer = &peer, .npeer = 1 };
	struct sym_block *b;
	struct sym_msg m;
	enum { N = 50000 };

	assert_null(sym_alloc(h, N, NULL, -1, &b));
	char *p = sym_base(h) + b->off;
	sym_begin(ep, &l);
	for (uint32_t k = 0; k < 20 && !d->err; k++) {
		if (d->pe == 0) {                        /* producer */
			memset(p, (int)k + 1, N);
			d->err = sym_recv(ep, 1, k, SYM_GRANT, &m);
			if (d->err)
				break;
			sym_return(ep, 1, false);
			sym_put(ep, 1, m.off, p, m.n);
			d->err = sym_tell(ep, 1, k, SYM_READY, m.off, m.n);
		} else {
			memset(p, 0, N);
			d->err = sym_tell(ep, 0, k, SYM_GRANT, b->off, N);
			if (!d->err)
				d->err = sym_recv(ep, 0, k, SYM_READY, &m);
			for (int i = 0; i < N && !d->err; i++)
				if (p[i] != (char)(k + 1))
					d->err = ERR(INTERNAL, "round %u: byte %d is %d", k, i, p[i]);
			sym_return(ep, 0, false);
		}
	}
	sym_end(ep, NULL);
	sym_free(b);
	return NULL;
}

static void puts_(void **state)
{
	for (int k = 0; k < 2; k++) {
		struct sym_opts o = { .nlocal = 2, .threads = 2, .chaos = k, .seed = 3 };
		struct sym_world *t;
		struct lost d[2];
		assert_null(sym_open(&o, &t));
		for (int i = 0; i < 2; i++) {
			d[i] = (struct lost){ .team = t, .pe = i };
			pthread_create(&d[i].t, NULL, putting, &d[i]);
		}
		for (int i = 0; i < 2; i++) {
			pthread_join(d[i].t, NULL);
			if (d[i].err)
				fail_msg("%s", d[i].err->msg);
		}
		sym_close(t);
	}
}

/* --- reductions of other kinds ----------------------------------------------------------- */

struct red { pthread_t t; struct sym_world *team; struct prog *p; struct prog_coll c; int pe; int64_t n; struct err *err; };

/* Value i of PE k: small integers, exact in bf16 as long as they are not added up. */
static float fval(int k, int64_t i) { return (float)(1 + (k * 37 + i * 11) % 61); }

static void *reducing(void *v)
{
	struct red *d = v;
	struct sym_ep *ep = sym_ep_of(d->team, d->pe);
	struct sym_heap *h = sym_heap_of(d->team, d->pe);
	struct coll *cc = coll_of(d->team, d->pe, 0);
	struct coll_cx cx = { cc, d->p, pes, d->pe };
	int peer[MAXP], npeer = coll_peers(d->p, pes, d->pe, peer);
	struct sym_launch l = { .prog = 1, .peer = peer, .npeer = npeer };
	struct sym_block *x;
	bool bf16 = d->c.dtype == DT_bf16;

	assert_null(sym_alloc(h, (size_t)d->c.inner, NULL, -1, &x));
	char *p = sym_base(h) + x->off, *ptr[2] = { p, p };
	for (int64_t i = 0; i < d->n; i++)
		if (bf16)
			((uint16_t *)p)[i] = f32_to_bf16(fval(d->pe, i));
		else
			((float *)p)[i] = fval(d->pe, i);
	sym_begin(ep, &l);
	d->err = coll_run(&cx, &d->c, 1, ptr, true, NULL);
	sym_end(ep, d->err);
	coll_free(cc);
	for (int64_t i = 0; i < d->n && !d->err; i++) {
		float want = 0, got = bf16 ? bf16_to_f32(((uint16_t *)p)[i]) : ((float *)p)[i];
		for (int k = d->p->ndev - 1; k >= 0; k--) {      /* rank order of group 0 */
			float a = fval(k, i);
			want = k == d->p->ndev - 1 ? a : d->c.redop == RED_fn ? want * 0.5f + a : want + a;
		}
		if (bf16)
			want = bf16_to_f32(f32_to_bf16(want));   /* rounded once */
		if (want != got)
			d->err = ERR(INTERNAL, "%lld elements of %s, redop %s: element %lld is %g, not %g", (long long)d->n, dtype_info[d->c.dtype].name,
			             redop_name[d->c.redop], (long long)i, (double)got, (double)want);
	}
	sym_free(x);
	return NULL;
}

static void reductions(void **state)
{
	/* acc * 0.5 + x: neither commutative nor associative */
	uint8_t types[2] = { DT_f32, DT_f32 };
	struct prog_ins ins[3] = { { .fn = EXPR_IMM, .from = DT_f32, .to = DT_f32, .imm = { 0, 0, 0, 0x3f } },
	                           { .fn = ELEM_multiply, .from = DT_f32, .to = DT_f32, .src = { 0, 2 } },
	                           { .fn = ELEM_add, .from = DT_f32, .to = DT_f32, .src = { 3, 1 } } };
	uint16_t res[1] = { 4 };
	struct prog_expr expr = { .nin = 2, .nout = 1, .n = 3, .in_type = types, .ins = ins, .out = res };
	static const int64_t sizes[] = { 1, 300, 3000, 70001 };

	for (int np = 2; np <= 5; np++)
		for (int kind = 0; kind < 2 * COLL_ALGOS; kind++)
			for (size_t s = 0; s < NELEM(sizes) && prog_algo_has((enum coll_algo)(kind / 2), COLL_all_reduce); s++) {
				struct sym_opts o = { .nlocal = np, .threads = np };
				struct prog *p = make_prog(np);
				struct red d[MAXP];
				struct sym_world *t;
				assert_null(sym_open(&o, &t));
				for (int i = 0; i < np; i++) {
					d[i] = (struct red){ .team = t, .p = p, .pe = i, .n = sizes[s] };
					d[i].c = (struct prog_coll){ .kind = COLL_all_reduce, .algo = (uint8_t)(kind / 2), .dtype = kind & 1 ? DT_bf16 : DT_f32, .redop = kind & 1 ? RED_add : RED_fn,
					                             .nin = 1, .expr = kind & 1 ? NULL : &expr, .outer = 1, .inner = sizes[s] * (kind & 1 ? 2 : 4) };
					assert_null(coll_check(p, &d[i].c));
					pthread_create(&d[i].t, NULL, reducing, &d[i]);
				}
				for (int i = 0; i < np; i++)
					pthread_join(d[i].t, NULL);
				for (int i = 0; i < np; i++)
					if (d[i].err)
						fail_msg("%d devices: %s", np, d[i].err->msg);
				sym_close(t);
				prog_free(p);
			}
}

/* --- the machine -------------------------------------------------------------------------- */

static void put(const char *dir, int n, const char *name, const char *text)
{
	struct str path = { 0 };

	str_addf(&path, "%s/index%d", dir, n);
	mkdir(path.p, 0700);
	str_addf(&path, "/%s", name);
	assert_null(str_write_file(path.p, text, strlen(text)));
	str_free(&path);
}

static void caches(void **state)
{
	static const char *const has[][3] = { { "1", "Data", "48K" }, { "1", "Instruction", "99K" }, { "2", "Unified", "2048K" }, { "3", "Unified", "260M" }, { "4", "Unified", "1G" } };
	char dir[] = "/tmp/rondo-cache-XXXXXX", cmd[64];
	size_t size[3];

	assert_non_null(mkdtemp(dir));
	cpu_caches(dir, size);
	assert_true(!size[0] && !size[1] && !size[2]);
	for (int i = 0; i < (int)NELEM(has); i++) {
		put(dir, i, "level", has[i][0]);
		put(dir, i, "type", has[i][1]);
		put(dir, i, "size", has[i][2]);
	}
	cpu_caches(dir, size);
	assert_int_equal(size[0], 48 << 10);
	assert_int_equal(size[1], 2 << 20);
	assert_int_equal(size[2], 260 << 20);
	cpu_caches("/sys/devices/system/cpu/cpu0/cache", size);
	assert_true(!size[2] || size[2] == cpu_get()->l3);
	snprintf(cmd, sizeof cmd, "rm -r %s", dir);
	assert_int_equal(system(cmd), 0);
}

/* --- which algorithm --------------------------------------------------------------------- */

static void choice(void **state)
{
	struct coll_table t;

	coll_table_init(&t);
	for (int topo = 0; topo < COLL_TOPOS; topo++) {
		for (int64_t n = (16 << 20) - 1; n <= (16 << 20) + 1; n++)      /* through a network, or without cores, no ring was found to be faster */
			assert_int_equal(coll_choose(&t, COLL_all_reduce, (enum coll_topo)topo, n) == COLL_ring, topo != COLL_FAR && topo != COLL_HOSTS && topo != COLL_CROWD && topo != COLL_MANY && n >= 16 << 20);
		for (int64_t n = 0; n < (int64_t)1 << 40; n = 2 * n + 1)
			assert_int_not_equal(coll_choose(&t, COLL_permute, (enum coll_topo)topo, n), COLL_ring);
		for (int k = 0; k < COLL_COUNT; k++)
			for (int64_t n = 0; n < (int64_t)1 << 40; n = 2 * n + 1)
				assert_true(prog_algo_has(coll_choose(&t, (enum coll_kind)k, (enum coll_topo)topo, n), (enum coll_kind)k));
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest t[] = {
		cmocka_unit_test(parts), cmocka_unit_test(plain), cmocka_unit_test(many), cmocka_unit_test(broken), cmocka_unit_test(chaotic), cmocka_unit_test(failing), cmocka_unit_test(divergence), cmocka_unit_test(divergence_of_three), cmocka_unit_test(ahead_of_others), cmocka_unit_test(puts_), cmocka_unit_test(reductions), cmocka_unit_test(caches), cmocka_unit_test(choice),
	};

	return cmocka_run_group_tests(t, NULL, NULL);
}
