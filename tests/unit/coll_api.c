/* The collectives as a library, without programs: every algorithm of every collective, every element type and
 * reduction, on 1 to 7 PEs and on both transports: the same bits from all of them; random groups that overlap. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "draws.h"
#include "thread_check.h"

#include "coll/coll.h"
#include "kern/kern.h"

enum { MAXP = 7, MOST = 1 << 19 };

struct dev { pthread_t t; struct sym_world *w; int pe, n; uint64_t seed; bool chaos; struct err *err; void (*run)(struct dev *d, struct coll *c, char *x, char *y); };

static uint64_t rnd(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

static int everybody[MAXP] = { 0, 1, 2, 3, 4, 5, 6 };

static void *device(void *v)
{
	struct dev *d = v;
	struct sym_ep *ep = sym_ep_of(d->w, d->pe);
	struct sym_heap *h = sym_heap_of(d->w, d->pe);
	struct coll_table t;
	struct sym_block *bx, *by;
	int peer[MAXP], npeer = 0;

	coll_table_init(&t);
	t.ring = 64 << 10;                        /* so small that it comes round often */
	t.chunk = 4 << 10;
	struct coll *c = coll_new(d->w, d->pe, &t);
	for (int i = 0; i < d->n; i++)
		if (i != d->pe)
			peer[npeer++] = i;
	assert_null(sym_alloc(h, (size_t)MOST * MAXP, NULL, -1, &bx));
	assert_null(sym_alloc(h, (size_t)MOST * MAXP, NULL, -1, &by));
	struct sym_launch l = { .prog = 7, .peer = peer, .npeer = npeer };
	sym_begin(ep, &l);
	d->run(d, c, sym_base(h) + bx->off, sym_base(h) + by->off);
	sym_end(ep, d->err);
	coll_free(c);
	sym_free(bx);
	sym_free(by);
	return NULL;
}

/* spare: bytes that all heaps may hold beside operands and results; 0: as many as they like. */
static void launch(int n, bool chaos, uint64_t seed, int64_t spare, void (*run)(struct dev *d, struct coll *c, char *x, char *y))
{
	struct sym_opts o = { .nlocal = n, .threads = n, .chaos = chaos, .seed = seed, .limit = spare ? 2 * (int64_t)MOST * MAXP * n + spare : 0 };
	struct dev d[MAXP];
	struct sym_world *w;

	assert_null(sym_open(&o, &w));
	for (int i = 0; i < n; i++) {
		d[i] = (struct dev){ .w = w, .pe = i, .n = n, .seed = seed, .chaos = chaos, .run = run };
		pthread_create(&d[i].t, NULL, device, &d[i]);
	}
	for (int i = 0; i < n; i++)
		pthread_join(d[i].t, NULL);
	for (int i = 0; i < n; i++)
		if (d[i].err)
			fail_msg("PE %d of %d%s: %s", i, n, chaos ? ", chaos" : "", d[i].err->msg);
	sym_close(w);
}

static void all_worlds(void (*run)(struct dev *d, struct coll *c, char *x, char *y))
{
	static const int npe[] = { 1, 2, 3, 4, 7 };

	for (size_t i = 0; i < NELEM(npe); i++) {
		launch(npe[i], false, 11 + i, 0, run);
		launch(npe[i], true, 23 + i, 0, run);
	}
}

/* --- reductions: every type, every operation -------------------------------------------------- */

enum { PERIOD = 8 * 23 };             /* of value in i */
static int64_t value(int pe, int64_t i) { return (pe * 37 + i * 11 + (i >> 3) * 5) % 23 - 7; }

/* n elements of dt; false if there is no conversion to it. */
static bool fill(enum dtype dt, int pe, int64_t from, int64_t n, char *x)
{
	int32_t v[PERIOD];
	int es = dtype_info[dt].bytes;
	kern_strip *f = kern_elem(ELEM_convert, DT_i32, dt);

	if (!f)
		return false;
	for (int j = 0; j < PERIOD; j++)
		v[j] = (int32_t)value(pe, from + j);
	f(MIN(n, PERIOD), x, v, NULL, NULL);
	for (int64_t i = PERIOD; i < n; i += PERIOD)
		memcpy(x + i * es, x, (size_t)(MIN(n - i, PERIOD) * es));
	return true;
}

/* What ranks 0 .. last of a group of n give, elements [from, from + count). */
static void expect(const struct coll_red *r, const int *pe, int n, int last, int64_t from, int64_t count, char *out)
{
	int64_t es = dtype_info[r->dtype].bytes;
	bool wide = n > 2 && dtype_info[r->dtype].cls == DT_FLOAT && es < 4 && (r->op == RED_add || r->op == RED_mul || r->op == RED_lse);
	enum dtype at = wide ? DT_f32 : r->dtype;
	char *x = mem_alloc((size_t)count * 16 + 16), *acc = mem_alloc((size_t)count * 16 + 16), *z = mem_alloc((size_t)count * 16 + 16);

	for (int k = 0; k <= last; k++) {
		fill(r->dtype, pe[k], from, count, x);
		kern_elem(ELEM_convert, r->dtype, at)(count, z, x, NULL, NULL);
		if (!k)
			memcpy(acc, z, (size_t)(count * dtype_info[at].bytes));
		else
			kern_combine(r->op, at, count, acc, z);
	}
	kern_elem(ELEM_convert, at, r->dtype)(count, out, acc, NULL, NULL);
	free(x);
	free(acc);
	free(z);
}

static bool has(enum redop op, enum dtype dt)
{
	if (!dtype_info[dt].name || !dtype_info[dt].bytes || dt == DT_token || !kern_elem(ELEM_convert, DT_i32, dt))
		return false;
	return op == RED_lse ? dtype_info[dt].cls == DT_FLOAT : redop_elem[op] != ELEM_COUNT && kern_elem(redop_elem[op], dt, dt);
}

static void reductions(struct dev *d, struct coll *c, char *x, char *y)
{
#ifdef __SANITIZE_THREAD__
	enum { LARGE = 1200 };             /* each element of each type is a hundred times as slow there */
#else
	enum { LARGE = 5000 };
#endif
	static const int64_t some[] = { 0, 1, 7, LARGE }, few[] = { 1, LARGE / 2 };
	const int64_t *sizes = d->chaos ? few : some;
	size_t nsize = d->chaos ? NELEM(few) : NELEM(some);
	struct coll_group g = { d->n, d->pe, everybody };
	char *want = mem_alloc(5000 * 16 * MAXP);
	uint32_t site = 0;

	for (int dt = 1; dt < DT_COUNT; dt++)
		for (int op = 0; op < RED_fn; op++) {
			if (!has((enum redop)op, (enum dtype)dt) || (d->chaos ? dt != DT_bf16 || op != RED_add : !drawn((uint64_t)(dt * RED_fn + op + 1000 * d->n))))
				continue;
			struct coll_red r = { (enum redop)op, (enum dtype)dt, NULL };
			int64_t es = dtype_info[dt].bytes;
			for (size_t s = 0; s < nsize; s++) {
				int64_t n = sizes[s] / (op == RED_lse ? 5 : 1);      /* slow */
				for (int kind = 0; kind < COLL_COUNT; kind++) {
					if (kind != COLL_all_reduce && kind != COLL_reduce_scatter && kind != COLL_scan)
						continue;
					bool scatter = kind == COLL_reduce_scatter;
					expect(&r, everybody, d->n, kind == COLL_scan ? d->pe : d->n - 1, scatter ? n * d->pe : 0, n, want);
					for (int a = 0; a < COLL_ALGOS && !d->err; a++) {
						if (!prog_algo_has((enum coll_algo)a, (enum coll_kind)kind))
							continue;
						coll_use(c, (enum coll_kind)kind, (enum coll_algo)a);
						char *to = !scatter && (a + s) % 2 ? x : y;          /* in place, or not */
						fill(r.dtype, d->pe, 0, n * (scatter ? d->n : 1), x);
						site++;
						d->err = kind == COLL_all_reduce ? coll_all_reduce(c, &g, site, &r, n, x, to)
						       : scatter ? coll_reduce_scatter(c, &g, site, &r, n, x, to) : coll_scan(c, &g, site, &r, false, n, x, to);
						if (!d->err && memcmp(to, want, (size_t)(n * es)))
							d->err = ERR(INTERNAL, "%s of %lld %s by %s with %s differs", prog_coll_name[kind], (long long)n, dtype_info[dt].name, prog_algo_name[a], redop_name[op]);
					}
				}
			}
			if (d->err)
				goto out;
		}
out:
	free(want);
}

static void test_reductions(void **state) { all_worlds(reductions); }

/* --- moves ------------------------------------------------------------------------------------ */

static uint8_t byte(uint32_t site, int pe, int64_t i) { return (uint8_t)(site * 31 + (uint32_t)pe * 101 + (uint32_t)(i * 7) + (uint32_t)(i >> 8)); }

static struct err *differs(const char *what, int kind, int a, int64_t n, int64_t i)
{
	return ERR(INTERNAL, "%s of %lld bytes by %s: %s byte %lld differs", prog_coll_name[kind], (long long)n, prog_algo_name[a], what, (long long)i);
}

/* One collective of a group that this PE may not be in. */
static struct err *move(struct coll *c, const struct coll_group *g, uint32_t site, int kind, int a, int64_t n, char *x, char *y)
{
	int me = g->pe[g->me], np = g->n, root = (int)(site % (uint32_t)np), next = g->pe[(g->me + 1) % np], last = g->pe[(g->me + np - 1) % np];
	bool inplace = site % 3 == 0 && (kind == COLL_permute || kind == COLL_broadcast), open = site % 5 == 0;
	int64_t nx = kind == COLL_all_to_all ? n * np : n;
	char *to = inplace ? x : y;

	coll_use(c, (enum coll_kind)kind, (enum coll_algo)a);
	for (int64_t i = 0; i < nx; i++)
		x[i] = (char)byte(site, me, i);
	switch (kind) {
	case COLL_all_gather:
		TRY(coll_all_gather(c, g, site, n, x, to));
		for (int64_t i = 0; i < n * np; i++)
			if (to[i] != (char)byte(site, g->pe[i / n], i % n))
				return differs("gathered", kind, a, n, i);
		break;
	case COLL_all_to_all:
		TRY(coll_all_to_all(c, g, site, n, x, to));
		for (int64_t i = 0; i < n * np; i++)
			if (to[i] != (char)byte(site, g->pe[i / n], g->me * n + i % n))
				return differs("exchanged", kind, a, n, i);
		break;
	case COLL_broadcast:
		TRY(coll_broadcast(c, g, site, root, n, x, to));
		for (int64_t i = 0; i < n; i++)
			if (to[i] != (char)byte(site, g->pe[root], i))
				return differs("broadcast", kind, a, n, i);
		break;
	case COLL_permute: {
		/* a ring, or the same open between the last and the first */
		int from = open && !g->me ? -1 : last, dst = open && g->me == np - 1 ? -1 : next;
		TRY(coll_permute(c, site, from, dst, n, x, to));
		for (int64_t i = 0; i < n; i++)
			if (to[i] != (char)(np == 1 && !open ? byte(site, me, i) : from < 0 ? 0 : byte(site, from, i)))
				return differs("received", kind, a, n, i);
		break;
	}
	default:
		TRY(coll_barrier(c, g, site));
	}
	return NULL;
}

static void moves(struct dev *d, struct coll *c, char *x, char *y)
{
	static const int64_t sizes[] = { 0, 1, 13, 4096, 4097, 70001 };
	struct coll_group g = { d->n, d->pe, everybody };
	uint32_t site = 0;

	for (size_t s = 0; s < NELEM(sizes); s++)
		for (int kind = 0; kind < COLL_COUNT; kind++)
			for (int a = 0; a < COLL_ALGOS && !d->err; a++)
				if (kind != COLL_all_reduce && kind != COLL_reduce_scatter && kind != COLL_scan && prog_algo_has((enum coll_algo)a, (enum coll_kind)kind) &&
				    !(d->chaos && (sizes[s] > 5000 || sizes[s] == 4096) && (d->n > 3 || a == COLL_slot)))
					d->err = move(c, &g, ++site, kind, a, sizes[s], x, y);
}

static void test_moves(void **state) { all_worlds(moves); }

/* Groups drawn at random, in any order of ranks: many under way at once, overlapping. */
static void groups(struct dev *d, struct coll *c, char *x, char *y)
{
	uint64_t s = d->seed * 77 + 1;

	for (uint32_t round = 1; round < (uint32_t)draws(d->chaos ? 40 : 400) && !d->err; round++) {
		int pe[MAXP], n = 0, me = -1;
		for (int i = 0; i < d->n; i++)
			pe[i] = i;
		for (int i = d->n - 1; i > 0; i--) {
			int k = (int)(rnd(&s) % (uint64_t)(i + 1)), t = pe[i];
			pe[i] = pe[k];
			pe[k] = t;
		}
		n = 1 + (int)(rnd(&s) % (uint64_t)d->n);
		for (int i = 0; i < n; i++)
			if (pe[i] == d->pe)
				me = i;
		int kind = (int)(rnd(&s) % COLL_COUNT), a = (int)(rnd(&s) % COLL_ALGOS);
		int64_t bytes = (int64_t)(rnd(&s) % 4 == 0 ? rnd(&s) % 30000 : rnd(&s) % 300);
		if (!prog_algo_has((enum coll_algo)a, (enum coll_kind)kind))
			a = COLL_auto;
		if (me < 0)
			continue;
		struct coll_group g = { n, me, pe };
		if (kind == COLL_all_reduce || kind == COLL_reduce_scatter || kind == COLL_scan) {
			static const struct coll_red sum = { RED_add, DT_f32, NULL };
			int64_t count = bytes / 4;
			bool scatter = kind == COLL_reduce_scatter;
			char *want = mem_alloc((size_t)count * 4 + 4);
			coll_use(c, (enum coll_kind)kind, (enum coll_algo)a);
			fill(DT_f32, d->pe, 0, count * (scatter ? n : 1), x);
			expect(&sum, pe, n, kind == COLL_scan ? me : n - 1, scatter ? count * me : 0, count, want);
			d->err = kind == COLL_all_reduce ? coll_all_reduce(c, &g, round, &sum, count, x, y)
			       : scatter ? coll_reduce_scatter(c, &g, round, &sum, count, x, y) : coll_scan(c, &g, round, &sum, false, count, x, y);
			if (!d->err && memcmp(y, want, (size_t)count * 4))
				d->err = ERR(INTERNAL, "round %u: %s by %s among %d differs", round, prog_coll_name[kind], prog_algo_name[a], n);
			free(want);
		} else
			d->err = move(c, &g, round, kind, a, bytes, x, y);
	}
}

static void test_groups(void **state) { all_worlds(groups); }

/* --- the rest ----------------------------------------------------------------------------------- */

/* Exclusive scans; operands outside the heap, and such that overlap the result. */
static void odd(struct dev *d, struct coll *c, char *x, char *y)
{
	static const struct coll_red sum = { RED_add, DT_i32, NULL }, low = { RED_min, DT_f64, NULL }, none = { RED_fn, DT_i32, NULL };
	const int N = d->chaos ? 1100 : 9000;
	struct coll_group g = { d->n, d->pe, everybody }, bad = { 0, 0, everybody };
	int32_t *mine = mem_alloc((size_t)N * 4 * MAXP), *got = mem_alloc((size_t)N * 4 * MAXP);
	double one = d->pe, least = 0;
	uint32_t site = 0;

	for (int a = 0; a < COLL_ALGOS && !d->err; a++) {
		if (prog_algo_has((enum coll_algo)a, COLL_scan)) {
			coll_use(c, COLL_scan, (enum coll_algo)a);
			for (int i = 0; i < N; i++)
				((int32_t *)x)[i] = d->pe + 1 + i;
			d->err = coll_scan(c, &g, ++site, &sum, true, N, x, x);
			for (int i = 0; i < N && !d->err; i++)
				if (((int32_t *)x)[i] != d->pe * (d->pe + 1) / 2 + d->pe * i)
					d->err = ERR(INTERNAL, "exclusive scan by %s: element %d", prog_algo_name[a], i);
			if (!d->err)
				d->err = coll_scan(c, &g, ++site, &low, true, 1, &one, &least);
			if (!d->err && least != (d->pe ? 0 : __builtin_inf()))
				d->err = ERR(INTERNAL, "exclusive minimum by %s", prog_algo_name[a]);
		}
		for (int kind = 0; kind < 2 && !d->err; kind++) {
			enum coll_kind k = kind ? COLL_all_gather : COLL_all_reduce;
			if (!prog_algo_has((enum coll_algo)a, k))
				continue;
			coll_use(c, k, (enum coll_algo)a);
			for (int i = 0; i < N; i++)
				mine[i] = ((int32_t *)y)[d->pe * N + i] = d->pe + i;
			if (!kind)
				d->err = coll_all_reduce(c, &g, ++site, &sum, N, mine, got);
			else                      /* from its own place in the result */
				d->err = coll_all_gather(c, &g, ++site, N * 4, y + (size_t)d->pe * N * 4, y);
			for (int i = 0; i < N && !d->err; i++)
				if (kind ? ((int32_t *)y)[(d->n - 1) * N + i] != d->n - 1 + i : got[i] != d->n * (d->n - 1) / 2 + d->n * i)
					d->err = ERR(INTERNAL, "%s by %s from elsewhere: element %d", prog_coll_name[k], prog_algo_name[a], i);
		}
		/* shifted by a few bytes over itself */
		if (!d->err && prog_algo_has((enum coll_algo)a, COLL_permute)) {
			coll_use(c, COLL_permute, (enum coll_algo)a);
			for (int i = 0; i < N; i++)
				x[i] = (char)(d->pe * 3 + i);
			int from = (d->pe + d->n - 1) % d->n;
			d->err = coll_permute(c, ++site, from, (d->pe + 1) % d->n, N, x, x + 5);
			for (int i = 0; i < N && !d->err; i++)
				if (x[i + 5] != (char)(from * 3 + i))
					d->err = ERR(INTERNAL, "permute by %s over itself: byte %d", prog_algo_name[a], i);
		}
	}
	struct coll_red no_op = { RED_COUNT, DT_f32, NULL }, no_type = { RED_add, DT_COUNT, NULL };
	struct { struct err *e; const char *says; } refused[] = {
		{ coll_scan(c, &g, 1, &none, true, 4, x, y), "reduction 'fn' of i32 without its function (fn)" },
		{ coll_all_reduce(c, &g, 1, &no_op, 4, x, y), "there is no reduction " },
		{ coll_all_reduce(c, &g, 1, &no_type, 4, x, y), "reduction 'add' of elements of a type 34, which there is not" },
		{ coll_all_reduce(c, &g, 1, &sum, 5, x, NULL), "a collective of 20 bytes to NULL" },
		{ coll_all_gather(c, &g, 1, 24, NULL, y), "a collective of 24 bytes from NULL" },
		{ coll_barrier(c, &bad, 1), "a collective of 0 members of which this is 0" },
		{ coll_broadcast(c, &g, 1, d->n, 4, x, y), "a broadcast from rank" },
	};
	for (size_t i = 0; i < NELEM(refused); i++) {
		const struct err *e = refused[i].e;
		if ((!e || strncmp(e->msg, refused[i].says, strlen(refused[i].says))) && !d->err)
			d->err = ERR(INTERNAL, "'%s' should have been refused: %s", refused[i].says, e ? e->msg : "no error");
		err_free(refused[i].e);
	}
	free(mine);
	free(got);
}

static void test_odd(void **state) { all_worlds(odd); }

/* A heap without room for the whole staging ring serves with less. */
static void staged(struct dev *d, struct coll *c, char *x, char *y)
{
	struct coll_group g = { d->n, d->pe, everybody };

	for (uint32_t site = 1; site < 40 && !d->err; site++)
		d->err = move(c, &g, site, site & 1 ? COLL_all_to_all : COLL_permute, COLL_stage, 20000, x, y);
}

static void test_tight(void **state)
{
	launch(2, false, 5, (64 + 32) << 10, staged);
	launch(3, false, 6, (2 * 64 + 32) << 10, staged);
}

/* --- launches that fail ------------------------------------------------------------------------- */

struct half { pthread_t t; struct sym_world *w; int pe, n; enum coll_algo algo; };
enum { LAUNCHES = 60, CALLS = 8 };

/* Sums of any size, below and above what one message holds; in some launches one or more leave early. */
static void *half_main(void *v)
{
	struct half *d = v;
	struct sym_ep *ep = sym_ep_of(d->w, d->pe);
	struct coll_group g = { d->n, d->pe, everybody };
	struct coll_red sum = { RED_add, DT_i32, NULL };
	struct coll_table t;
	int32_t *x = mem_alloc(MOST), *y = mem_alloc(MOST);
	bool few = d->algo == COLL_slot;
	uint64_t both = 4711;
	int peer[MAXP], npeer = 0, good = 0;

	for (int i = 0; i < d->n; i++)
		if (i != d->pe)
			peer[npeer++] = i;
	coll_table_init(&t);
	struct coll *c = coll_new(d->w, d->pe, &t);
	coll_use(c, COLL_all_reduce, d->algo);
	for (int k = 0; k < LAUNCHES; k++) {
		struct sym_launch l = { .prog = 9, .peer = peer, .npeer = npeer };
		int leaves[MAXP], whole = CALLS;
		struct err *e = NULL;
		for (int i = 0; i < d->n; i++) {
			leaves[i] = rnd(&both) % (2 * (uint64_t)d->n) ? CALLS : (int)(rnd(&both) % CALLS);
			whole = MIN(whole, leaves[i]);
		}
		sym_begin(ep, &l);
		for (int i = 0; i < CALLS; i++) {
			int64_t n = 1 + (int64_t)(rnd(&both) % (few ? i % 4 ? 20 : 300 : i % 3 ? 2000 : MOST / 4));
			if (!e && i == leaves[d->pe])
				e = ERR(CANCELLED, "enough");
			for (int64_t j = 0; j < n && !e; j++)
				x[j] = (int32_t)(j * (d->pe + 1) + i + k);
			if (!e)
				e = coll_all_reduce(c, &g, 1, &sum, n, x, y);
			for (int64_t j = 0; j < n && !e; j++)
				if (y[j] != (int32_t)(d->n * (d->n + 1) / 2 * j + d->n * (i + k)))
					WRONG("PE %d, launch %d, call %d, element %lld of %lld: %d", d->pe, k, i, (long long)j, (long long)n, y[j]);
			if (!e && i > whole)
				WRONG("PE %d, launch %d: call %d went well without all", d->pe, k, i);
			if (!e && i % 3 == 1)
				e = coll_barrier(c, &g, 2);
		}
		good += !e;
		if (whole == CALLS && e)
			WRONG("PE %d, launch %d: %s", d->pe, k, e->msg);
		sym_end(ep, e);
		err_free(e);
	}
	CHECK(good > LAUNCHES / 4 && good < LAUNCHES);
	coll_free(c);
	free(x);
	free(y);
	return NULL;
}

static void broken(int n, enum coll_algo a, bool chaos)
{
	struct sym_opts o = { .nlocal = n, .threads = n, .chaos = chaos, .seed = 11 };
	struct half d[MAXP];
	struct sym_world *w;

	assert_null(sym_open(&o, &w));
	for (int i = 0; i < n; i++) {
		d[i] = (struct half){ .w = w, .pe = i, .n = n, .algo = a };
		pthread_create(&d[i].t, NULL, half_main, &d[i]);
	}
	for (int i = 0; i < n; i++)
		pthread_join(d[i].t, NULL);
	sym_close(w);
}

static void test_broken(void **state) { broken(2, COLL_stage, false); }

static void test_broken_slot(void **state)
{
	broken(2, COLL_slot, false);
	broken(3, COLL_slot, false);
	broken(5, COLL_slot, false);
	broken(4, COLL_slot, true);
	broken(4, COLL_loan, false);
	broken(3, COLL_two_shot, false);
}

/* PE 1 leaves every second launch before it has read what PE 0 has put for it: that must not come over what is put next. */
static void *late_main(void *v)
{
	enum { ROUNDS = 60, BEFORE = 85, NOW = 125 };
	static const struct coll_red sum = { RED_add, DT_i32, NULL };
	struct half *d = v;
	struct sym_ep *ep = sym_ep_of(d->w, d->pe);
	struct coll_group g = { 2, d->pe, everybody };
	struct sym_launch l = { .prog = 4, .peer = (int[]){ !d->pe }, .npeer = 1 };
	struct coll *c = coll_new(d->w, d->pe, NULL);
	int32_t x[2 * BEFORE], y[NOW];

	for (int j = 0; j < 2 * BEFORE; j++)
		x[j] = d->pe + j;
	for (int i = 0; i < ROUNDS; i++) {
		sym_begin(ep, &l);
		struct err *e = d->pe ? ERR(CANCELLED, "enough") : coll_reduce_scatter(c, &g, 1, &sum, BEFORE, x, y);
		sym_end(ep, e);
		CHECK(e);
		err_free(e);
		sym_begin(ep, &l);
		CHECK_OK(coll_all_reduce(c, &g, 1, &sum, NOW, x, y));
		for (int j = 0; j < NOW; j++)
			if (y[j] != 1 + 2 * j)
				WRONG("PE %d, round %d, element %d: %d", d->pe, i, j, y[j]);
		sym_end(ep, NULL);
	}
	coll_free(c);
	return NULL;
}

static void test_late(void **state)
{
	struct sym_opts o = { .nlocal = 2, .threads = 2, .chaos = true, .seed = 2 };
	struct half d[2];
	struct sym_world *w;

	assert_null(sym_open(&o, &w));
	for (int i = 0; i < 2; i++) {
		d[i] = (struct half){ .w = w, .pe = i };
		pthread_create(&d[i].t, NULL, late_main, &d[i]);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(d[i].t, NULL);
	sym_close(w);
}

/* --- members that are in different calls --------------------------------------------------------- */

enum { DIFFER = COLL_COUNT * COLL_ALGOS };
struct differ { pthread_t t; struct sym_world *w; int pe, n; };

/* The same site, but the last PE has one element more; in the end it is in another collective. */
static void *differ_main(void *v)
{
	static const struct coll_red sum = { RED_add, DT_i32, NULL };
	struct differ *d = v;
	struct sym_ep *ep = sym_ep_of(d->w, d->pe);
	struct coll_group g = { d->n, d->pe, everybody };
	struct coll *c = coll_new(d->w, d->pe, NULL);
	char *x = mem_alloc(MOST), *y = mem_alloc(MOST);
	int peer[MAXP], npeer = 0;

	for (int i = 0; i < d->n; i++)
		if (i != d->pe)
			peer[npeer++] = i;
	for (int k = 0; k <= DIFFER; k++) {
		int kind = k % COLL_COUNT, a = k / COLL_COUNT;
		bool odd = d->pe == d->n - 1;
		int64_t n = (k % 3 ? 16 : 3000) + odd;
		struct err *e = NULL;
		if (kind == COLL_barrier || (k < DIFFER && !prog_algo_has((enum coll_algo)a, (enum coll_kind)kind)) || a == COLL_mpi)
			continue;
		if (k < DIFFER)
			CHECK_OK(coll_use(c, (enum coll_kind)kind, (enum coll_algo)a));
		sym_begin(ep, &(struct sym_launch){ .prog = 3, .name = "differ", .peer = peer, .npeer = npeer });
		for (int turn = 0; turn < 2 && !e; turn++)       /* a broadcast's root hears of it as a member of the next */
			switch (k == DIFFER ? odd ? COLL_all_gather : COLL_all_reduce : kind) {
			case COLL_all_reduce: e = coll_all_reduce(c, &g, 1, &sum, n, x, y); break;
			case COLL_reduce_scatter: e = coll_reduce_scatter(c, &g, 1, &sum, n, x, y); break;
			case COLL_all_gather: e = coll_all_gather(c, &g, 1, 4 * n, x, y); break;
			case COLL_all_to_all: e = coll_all_to_all(c, &g, 1, 4 * n, x, y); break;
			case COLL_permute: e = coll_permute(c, 1, (d->pe + 1) % d->n, (d->pe + d->n - 1) % d->n, 4 * n, x, y); break;
			case COLL_broadcast: e = coll_broadcast(c, &g, 1, turn % d->n, 4 * n, x, y); break;
			default: e = coll_scan(c, &g, 1, &sum, false, n, x, y); break;
			}
		if (!e)                           /* or here */
			e = coll_barrier(c, &g, 2);
		if (!e || !strstr(e->msg, "diverged"))
			WRONG("%s by %s among %d, PE %d: %s", prog_coll_name[kind], prog_algo_name[a % COLL_ALGOS], d->n, d->pe, e ? e->msg : "no error");
		sym_end(ep, e);
		err_free(e);
	}
	coll_free(c);
	free(x);
	free(y);
	return NULL;
}

static void test_differ(void **state)
{
	for (int n = 2; n < 5; n++) {
		struct differ d[MAXP];
		struct sym_world *w;
		assert_null(sym_open(&(struct sym_opts){ .nlocal = n, .threads = n }, &w));
		for (int i = 0; i < n; i++) {
			d[i] = (struct differ){ .w = w, .pe = i, .n = n };
			pthread_create(&d[i].t, NULL, differ_main, &d[i]);
		}
		for (int i = 0; i < n; i++)
			pthread_join(d[i].t, NULL);
		sym_close(w);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest t[] = {
		cmocka_unit_test(test_reductions), cmocka_unit_test(test_moves), cmocka_unit_test(test_groups), cmocka_unit_test(test_odd), cmocka_unit_test(test_tight),
		cmocka_unit_test(test_late), cmocka_unit_test(test_differ), cmocka_unit_test(test_broken), cmocka_unit_test(test_broken_slot),
	};

	return cmocka_run_group_tests(t, NULL, NULL);
}
