/* rondo bench coll: every collective by every algorithm, between the PEs of this machine, puts with a signal, reads of
 * what a peer has written; the table of what is fastest where, and a plot. */
#include "tool.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../coll/coll.h"
#include "../kern/kern.h"
#include "../plan/plan.h"
#include "../sym/sym.h"
#include "bench.h"

/* What is measured: the collectives; an all_reduce between two passes of a program over its data, which reads the
 * result and writes the operand anew, into another buffer or where it is, and one of buffers outside the heaps; what has
 * no algorithms (COLL_auto): those passes alone, puts with a signal, reads of a peer's fresh data that is lent, the same without a library,
 * the processor time of a PE that waits for a second. */
enum { OP_FRESH = COLL_COUNT, OP_PLACE, OP_ANY, OP_PASS, OP_PASS_PLACE, OP_PUT_SIGNAL, OP_PEER_READ, OP_PLAIN_READ, OP_IDLE, OPS };
static const char *const op_name[OPS] = {
#define COLL(id, text) [COLL_##id] = text,
#include "../base/coll.def"
#undef COLL
	[OP_FRESH] = "all_reduce_fresh", [OP_PLACE] = "all_reduce_place", [OP_ANY] = "all_reduce_any", [OP_PASS] = "pass_fresh", [OP_PASS_PLACE] = "pass_place",
	[OP_PUT_SIGNAL] = "put_signal", [OP_PEER_READ] = "peer_read", [OP_PLAIN_READ] = "plain_read", [OP_IDLE] = "idle",
};
static bool mpi;                  /* is there that road? */
static enum coll_kind kind_of(int op) { return op < COLL_COUNT ? (enum coll_kind)op : COLL_all_reduce; }
static bool op_has(int op, int a) { return op >= OP_PASS ? a == COLL_auto : (a != COLL_mpi || mpi) && prog_algo_has((enum coll_algo)a, kind_of(op)); }
static bool one_size(int op) { return op == COLL_barrier || op == OP_IDLE; }

enum { MAX_PE = 64, MAX_SIZES = 32, MAX_ROUNDS = 101, TURNS = 4000 };

/* Time of one turn, in seconds: [kind][size][algorithm], 0 where it was not measured. */
struct result { double s[OPS][MAX_SIZES][COLL_ALGOS]; };

struct bench {
	struct sym_world *w;
	struct plan_table plan;               /* this machine's */
	struct coll_table table;
	struct plan_gauge gauge;
	int npe, nsize, rounds;
	int64_t size[MAX_SIZES];
	bool op[OPS], algo[COLL_ALGOS];
	double budget;                        /* seconds for each algorithm at each size */
	double until;                         /* clock_s() at which there is no time left; 0: it takes what it takes */
	struct result *r;                     /* by PE 0 */
	double floor[MAX_ROUNDS];             /* of an exchange of one line, seconds; measured between the others */
	double way[MAX_ROUNDS];               /* of a line there and one back, half */
	int nfloor;
	struct err *err[MAX_PE];              /* by local PE */
	_Atomic int stop;
	bool progress, pin;
};
struct pe { struct bench *b; int pe; pthread_t t; struct sym_ctx *ctx; struct sym_mem *data, *flag; uint64_t said; struct coll *c; struct sym_ep *ep; struct coll_group g; char *x, *y, *own; _Atomic int64_t *line, *other, *all[MAX_PE]; };

/* --- one PE -------------------------------------------------------------------------- */

static int64_t operand(enum coll_kind k, int64_t n, int npe) { return k == COLL_reduce_scatter || k == COLL_all_to_all ? n * npe : n; }
static int64_t result(enum coll_kind k, int64_t n, int npe) { return k == COLL_all_gather || k == COLL_all_to_all ? n * npe : k == COLL_barrier ? 0 : n; }

static const struct coll_red sum = { RED_add, DT_f32, NULL };

static struct err *turn(struct coll *c, const struct coll_group *g, enum coll_kind k, int64_t n, char *x, char *y)
{
	int next = (g->me + 1) % g->n, last = (g->me + g->n - 1) % g->n;

	switch (k) {
	case COLL_all_reduce: return coll_all_reduce(c, g, 1, &sum, n / 4, x, y);
	case COLL_reduce_scatter: return coll_reduce_scatter(c, g, 1, &sum, n / 4, x, y);
	case COLL_all_gather: return coll_all_gather(c, g, 1, n, x, y);
	case COLL_all_to_all: return coll_all_to_all(c, g, 1, n, x, y);
	case COLL_permute: return coll_permute(c, 1, g->pe[last], g->pe[next], n, x, y);
	case COLL_broadcast: return coll_broadcast(c, g, 1, 0, n, x, y);
	case COLL_scan: return coll_scan(c, g, 1, &sum, false, n / 4, x, y);
	default: return coll_barrier(c, g, 1);
	}
}

/* PE 0 puts and signals, PE 1 answers likewise: half of a turn is one way. */
static struct err *ping(struct pe *p, int64_t n, int turns, double *s)
{
	TRY(coll_barrier(p->c, &p->g, 2));
	double t = clock_s();
	for (int i = 0; i < turns && p->pe < 2; i++) {
		p->said++;
		if (p->pe)
			TRY(sym_wait_until(p->ctx, p->flag, 0, SYM_U64, SYM_GE, (int64_t)p->said, 0, NULL));
		sym_ctx_put_signal(p->ctx, p->data, 0, p->x, (size_t)n, p->flag, 0, SYM_SET, p->said, !p->pe);
		if (!p->pe)
			TRY(sym_wait_until(p->ctx, p->flag, 0, SYM_U64, SYM_GE, (int64_t)p->said, 1, NULL));
	}
	*s = (clock_s() - t) / turns / 2;
	return sym_ctx_quiet(p->ctx);
}

/* What a program does between two sums: all of one is read, all of the next written. */
static void pass(float *to, const float *from, int64_t n) { kern_elem(ELEM_negate, DT_f32, DT_f32)(n, to, from, NULL, NULL); }

/* Data is used where it lies. */
static void use(const char *p, int64_t n)
{
	enum { STRIP = 1024 };
	_Alignas(64) float out[STRIP];
	kern_strip *k = kern_elem(ELEM_negate, DT_f32, DT_f32);

	for (int64_t i = 0; i < n; i += sizeof out)
		k(MIN(n - i, (int64_t)sizeof out) / 4, out, p + i, NULL, NULL);
}

/* PE 1 writes, PE 0 reads: from the message that lends it to its return, or (plain) no more than the reading. */
static struct err *reading(struct pe *p, bool plain, int64_t n, int turns, double *s)
{
	struct sym_msg m;
	double t = 0, begin;

	for (int i = 0; i < turns; i++) {
		size_t off = (size_t)(p->x - sym_ep_base(p->ep));
		if (p->pe == 1)
			memset(p->x, i + 1, (size_t)n);
		if (p->pe == 1 && plain)
			TRY(sym_tell(p->ep, 0, 6, SYM_LEND, off, (size_t)n));
		if (!p->pe && plain)
			TRY(sym_recv(p->ep, 1, 6, SYM_LEND, &m));
		TRY(coll_barrier(p->c, &p->g, 7));
		if (p->pe == 1 && !plain)
			TRY(sym_tell(p->ep, 0, 6, SYM_LEND, off, (size_t)n));
		begin = clock_s();
		if (!p->pe && !plain)
			TRY(sym_recv(p->ep, 1, 6, SYM_LEND, &m));
		if (!p->pe) {
			use(sym_at(p->ep, 1, m.off, (size_t)n, p->y), n);
			if (!plain)
				sym_return(p->ep, 1, true);
			t += clock_s() - begin;
			if (plain)
				sym_return(p->ep, 1, true);
		} else if (p->pe == 1)
			TRY(sym_settle(p->ep, (int[]){ 0 }, 1));
	}
	*s = t / turns;
	return NULL;
}

/* PE 1 lets PE 0 wait for a second.  *s: processor time of its process meanwhile. */
static struct err *idle(struct pe *p, double *s)
{
	struct timespec t, second = { 1, 0 };
	struct sym_msg m;
	void *room;

	TRY(coll_barrier(p->c, &p->g, 8));
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	*s = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
	if (p->pe == 1) {
		nanosleep(&second, NULL);
		TRY(sym_slot_room(p->ep, 0, 0, &room));
		sym_slot_send(p->ep, 0, 9, 0);
	} else if (!p->pe) {
		TRY(sym_recv(p->ep, 1, 9, SYM_SLOT_MSG, &m));
		sym_return(p->ep, 1, false);
	}
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	*s = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec - *s;
	return coll_barrier(p->c, &p->g, 8);
}

/* Every turn takes what the one before has made: as operand where it is as large, else copied there. */
static struct err *batch(struct pe *p, int op, int64_t n, int turns, double *s)
{
	switch (op) {
	case OP_PUT_SIGNAL: return ping(p, n, turns, s);
	case OP_PEER_READ: case OP_PLAIN_READ: return reading(p, op == OP_PLAIN_READ, n, turns, s);
	case OP_IDLE: return idle(p, s);
	}
	enum coll_kind k = kind_of(op);
	int64_t nx = operand(k, n, p->g.n), ny = result(k, n, p->g.n);
	char *x = op == OP_ANY ? p->own : p->x, *y = op == OP_ANY ? p->own + p->b->size[p->b->nsize - 1] : op == OP_PLACE || op == OP_PASS_PLACE ? x : p->y;

	TRY(coll_barrier(p->c, &p->g, 2));
	double t = clock_s();
	for (int i = 0; i < turns; i++) {
		if (op == OP_FRESH || op == OP_PLACE || op == OP_PASS || op == OP_PASS_PLACE)
			pass((float *)x, (const float *)y, n / 4);
		if (op == OP_PASS || op == OP_PASS_PLACE)
			continue;
		TRY(turn(p->c, &p->g, k, n, x, y));
		if (op == OP_FRESH || op == OP_PLACE)
			continue;
		if (nx == ny) {
			char *was = x;
			x = y;
			y = was;
		} else
			for (int64_t o = 0; o < nx && ny; o += ny)
				memcpy(x + o, y, (size_t)MIN(ny, nx - o));
	}
	*s = (clock_s() - t) / turns;
	return NULL;
}

enum { FLOOR = 3 };        /* the site of the barrier and of the bare exchanges after it */

/* More PEs than cores: each writes a line, looks at those of all, and gives way to who must write and is on its own core. */
static struct err *exchange_in_crowd(struct pe *p)
{
	enum { TIMES = 2000, POLLS = 100 };
	struct bench *b = p->b;
	int64_t from = atomic_load_explicit(p->line, memory_order_relaxed);
	double t = clock_s();

	unsigned yields = 0;
	for (int64_t i = 1; i <= TIMES; i++) {
		int cpu = sched_getcpu();
		atomic_store_explicit(p->line + 1, cpu, memory_order_relaxed);
		atomic_store_explicit(p->line, from + i, memory_order_release);
		for (int polls = 0;; ) {
			int who = -1;
			for (int k = 0; k < b->npe; k++)
				if (atomic_load_explicit(p->all[k], memory_order_acquire) < from + i) {
					who = k;
					if (atomic_load_explicit(p->all[k] + 1, memory_order_relaxed) == cpu)
						break;
				}
			if (who < 0)
				break;
			if (atomic_load_explicit(p->all[who] + 1, memory_order_relaxed) != cpu && polls++ < POLLS)
				continue;
			polls = 0;
			if (++yields % 64 == 0)
				TRY(sym_check(p->ep, who, FLOOR, 0));
			sched_yield();
			atomic_store_explicit(p->line + 1, cpu = sched_getcpu(), memory_order_relaxed);
		}
	}
	if (!p->pe)
		b->floor[b->nfloor++ % MAX_ROUNDS] = (clock_s() - t) / TIMES;
	return NULL;
}

/* Until the other PE of two has written n. */
static struct err *other_wrote(struct pe *p, int64_t n)
{
	for (unsigned polls = 1; atomic_load_explicit(p->other, memory_order_acquire) < n; polls++)
		if (polls % 4096 == 0)
			TRY(sym_check(p->ep, !p->pe, FLOOR, 0));
	return NULL;
}

/* What the caches allow: two PEs write a line each and wait for the other's, again and again; at once, and by turns. */
static struct err *exchange(struct pe *p)
{
	enum { TIMES = 2000 };
	struct bench *b = p->b;

	TRY(coll_barrier(p->c, &p->g, FLOOR));
	if (p->all[0])
		return exchange_in_crowd(p);
	if (!p->other)
		return NULL;
	int64_t from = atomic_load_explicit(p->line, memory_order_relaxed);
	double t = clock_s();
	for (int64_t i = 1; i <= TIMES; i++) {
		atomic_store_explicit(p->line, from + i, memory_order_release);
		TRY(other_wrote(p, from + i));
	}
	double both = (clock_s() - t) / TIMES;
	from += TIMES;
	t = clock_s();
	for (int64_t i = 1; i <= TIMES; i++) {
		if (!p->pe)
			atomic_store_explicit(p->line, from + i, memory_order_release);
		TRY(other_wrote(p, from + i));
		if (p->pe)
			atomic_store_explicit(p->line, from + i, memory_order_release);
	}
	if (!p->pe) {
		b->way[b->nfloor % MAX_ROUNDS] = (clock_s() - t) / TIMES / 2;
		b->floor[b->nfloor++ % MAX_ROUNDS] = both;
	}
	return NULL;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* All of them find the same. */
static struct err *in_time(struct pe *p)
{
	double now = clock_s();
	TRY(coll_use(p->c, COLL_broadcast, COLL_slot));
	TRY(coll_broadcast(p->c, &p->g, 4, 0, sizeof now, &now, &now));
	return now < p->b->until ? NULL : ERR(DEADLINE, "there was no time for all collectives among %d PEs: this machine is slower than it should be, or was not quiet", p->b->npe);
}

static struct err *all_of(struct pe *p)
{
	struct bench *b = p->b;
	double sample[COLL_ALGOS][MAX_ROUNDS], s;
	int done = 0, total = 0;

	/* Once round the windows and the staging ring: the first touch of their pages is nobody's time. */
	TRY(coll_use(p->c, COLL_permute, COLL_stage));
	TRY(coll_use(p->c, COLL_broadcast, COLL_stage));
	for (int64_t o = 0, n = MIN(b->size[b->nsize - 1], b->table.chunk); o <= b->table.ring; o += n)
		for (int k = 0; k < 2; k++)
			TRY(turn(p->c, &p->g, k ? COLL_broadcast : COLL_permute, n, p->x, p->y));
	for (int k = 0; k < OPS; k++)
		total += b->op[k] ? one_size(k) ? 1 : b->nsize : 0;
	for (int k = 0; k < OPS; k++)
		for (int i = 0; b->op[k] && i < (one_size(k) ? 1 : b->nsize); i++, done++) {
			int turns[COLL_ALGOS] = { 0 };
			if (b->until > 0)
				TRY(in_time(p));
			else
				TRY(exchange(p));
			for (int round = -1; round < b->rounds; round++)         /* the first one counts nothing but turns */
				for (int a = 0; a < COLL_ALGOS; a++) {
					if (!op_has(k, a) || (!b->algo[a] && k < OP_PASS) || ((k == OP_PEER_READ || k == OP_PLAIN_READ) && !sym_near(b->w)))
						continue;
					if (k < OP_PASS)
						TRY(coll_use(p->c, kind_of(k), (enum coll_algo)a));
					if (k == OP_IDLE) {
						if (round < 0)
							TRY(batch(p, k, 0, 1, &s));
						turns[a] = 1;
						sample[a][MAX(round, 0)] = s;
					} else if (round < 0) {
						TRY(batch(p, k, b->size[i], 2, &s));
						TRY(batch(p, k, b->size[i], 2, &s));
						if (k != COLL_broadcast)
							TRY(coll_use(p->c, COLL_broadcast, COLL_slot));
						TRY(coll_broadcast(p->c, &p->g, 4, 0, sizeof s, &s, &s));        /* all make as many turns */
						turns[a] = (int)fmin(fmax(b->budget / b->rounds / fmax(s, 1e-9), 2), TURNS);
					} else
						TRY(batch(p, k, b->size[i], turns[a], &sample[a][round]));
				}
			for (int a = 0; a < COLL_ALGOS && !p->pe; a++)
				if (turns[a])
					b->r->s[k][i][a] = plan_gauge_add(&b->gauge, sample[a], b->rounds);
			if (!p->pe && b->progress)
				str_progress(stderr, "bench coll", (double)(done + 1) / total);
		}
	return NULL;
}

void bench_pin(int i)
{
	cpu_set_t may, one;

	if (sched_getaffinity(0, sizeof may, &may))
		return;
	for (int c = 0, k = 0; c < CPU_SETSIZE; c++)
		if (CPU_ISSET(c, &may) && k++ == i % CPU_COUNT(&may)) {
			CPU_ZERO(&one);
			CPU_SET(c, &one);
			pthread_setaffinity_np(pthread_self(), sizeof one, &one);
			return;
		}
}

static void *pe_main(void *v)
{
	struct pe *p = v;
	struct bench *b = p->b;
	struct sym_heap *h = sym_heap_of(b->w, p->pe);
	int all[MAX_PE], peer[MAX_PE], npeer = 0;
	size_t most = (size_t)b->size[b->nsize - 1] * (size_t)b->npe;
	struct sym_block *x = NULL, *y = NULL, *line = NULL;
	struct err *e = NULL;
	int64_t off[MAX_PE];

	if (b->pin)
		bench_pin(p->pe);
	for (int i = 0; i < b->npe; i++)
		if ((all[i] = i) != p->pe)
			peer[npeer++] = i;
	struct sym_launch l = { .prog = 1, .name = "bench", .peer = peer, .npeer = npeer, .stop = &b->stop };
	p->ep = sym_ep_of(b->w, p->pe);
	p->g = (struct coll_group){ b->npe, p->pe, all };
	p->c = coll_new(b->w, p->pe, &b->table);
	sym_begin(p->ep, &l);
	TRY_GOTO(e, sym_alloc(h, most, "the benchmark's operand", -1, &x), out);
	TRY_GOTO(e, sym_alloc(h, most, "the benchmark's result", -1, &y), out);
	TRY_GOTO(e, sym_alloc(h, 128, "the benchmark's line", -1, &line), out);
	p->x = memset(sym_base(h) + x->off, 0, most);
	p->y = memset(sym_base(h) + y->off, 0, most);
	p->line = memset(sym_base(h) + line->off, 0, 128);
	int64_t mine = (int64_t)line->off;
	TRY_GOTO(e, coll_all_gather(p->c, &p->g, 5, sizeof mine, &mine, off), out);
	if (p->pe < 2 && b->npe >= 2 && b->npe <= cpu_get()->cores && sym_mapped(b->w, !p->pe))
		p->other = (_Atomic int64_t *)(uintptr_t)sym_at(p->ep, !p->pe, (size_t)off[!p->pe], 8, NULL);
	for (int k = 0; k < b->npe && b->npe > cpu_get()->cores && sym_near(b->w); k++)
		p->all[k] = (_Atomic int64_t *)(uintptr_t)sym_at(p->ep, k, (size_t)off[k], 16, NULL);
	if (b->op[OP_ANY]) {
		p->own = aligned_alloc(2 << 20, (2 * (size_t)b->size[b->nsize - 1] + (4 << 20)) & ~(size_t)((2 << 20) - 1));
		if (!p->own)
			e = ERR(EXHAUSTED, "out of memory for the benchmark's own buffers");
		TRY_GOTO(e, e, out);
		madvise(p->own, 2 * (size_t)b->size[b->nsize - 1], MADV_HUGEPAGE);
		memset(p->own, 0, 2 * (size_t)b->size[b->nsize - 1]);
	}
	if (b->op[OP_PUT_SIGNAL]) {
		struct sym_team *t = sym_team_world(b->w, p->pe);
		TRY_GOTO(e, sym_ctx_new(b->w, p->pe, SYM_PRIVATE, &p->ctx), out);
		TRY_GOTO(e, sym_mem_new(t, (size_t)b->size[b->nsize - 1], "the benchmark's target", &p->data), out);
		TRY_GOTO(e, sym_mem_new(t, 64, "the benchmark's signal", &p->flag), out);
	}
	e = all_of(p);
	if (!e) {
		sym_mem_free(p->flag);
		sym_mem_free(p->data);
	}
out:
	if (e)
		atomic_store(&b->stop, 1);
	sym_end(p->ep, e);
	b->err[p->pe - sym_first(b->w)] = e;
	sym_ctx_free(p->ctx);
	coll_free(p->c);
	free(p->own);
	sym_free(x);
	sym_free(y);
	sym_free(line);
	return NULL;
}

/* --- the table ------------------------------------------------------------------------- */

/* What decides: of an all_reduce what it is in a program, if that was measured, without what the program does with its data. */
static double time_of(const struct bench *b, enum coll_kind k, int i, int a)
{
	const struct result *r = b->r;
	if (k != COLL_all_reduce || !b->op[OP_FRESH] || !b->op[OP_PLACE])
		return r->s[k][i][a];
	double both = r->s[OP_FRESH][i][a] + r->s[OP_PLACE][i][a], alone = r->s[OP_PASS][i][COLL_auto] + r->s[OP_PASS_PLACE][i][COLL_auto];
	return fmax(both - alone, both / 10) / 2;
}

/* What kind of group these PEs are to a collective. */
static enum coll_topo topo_of(const struct bench *b, enum coll_kind k)
{
	int pe[MAX_PE];

	for (int i = 0; i < b->npe; i++)
		pe[i] = i;
	return sym_near(b->w) ? coll_topo_of(&b->table, false, b->npe, b->npe) : coll_topo_far(b->w, k, &sum, b->npe, pe);
}

/* The curves of what was measured, which take the place of those that t has of such groups. */
static void curves(const struct bench *b, struct plan_table *t)
{
	for (int k = 0; k < COLL_COUNT; k++) {
		enum coll_topo topo = topo_of(b, (enum coll_kind)k);
		bool any = false;
		for (int a = 1; a < COLL_ALGOS; a++)
			any |= (b->op[k] || (k == COLL_all_reduce && b->op[OP_FRESH] && b->op[OP_PLACE])) && time_of(b, (enum coll_kind)k, 0, a) > 0;
		if (!any)
			continue;
		if (t->members[topo] != b->npe)      /* curves of another number of members do not go with these */
			memset(t->ns[topo], 0, sizeof t->ns[topo]);
		t->members[topo] = b->npe;
		memset(t->ns[topo][k], 0, sizeof t->ns[topo][k]);
		for (int a = 1; a < COLL_ALGOS; a++)
			for (int i = 0; i < (one_size(k) ? 1 : b->nsize) && time_of(b, (enum coll_kind)k, i, a) > 0; i++)
				t->ns[topo][k][a][i] = (float)(time_of(b, (enum coll_kind)k, i, a) * 1e9);
	}
}

static const char *human(int64_t n, char text[16])
{
	static const char unit[] = " KMG";
	int u = 0;

	while (n >= 1024 && n % 1024 == 0 && u < 3)
		n /= 1024, u++;
	snprintf(text, 16, u ? "%lld%c" : "%lld", (long long)n, unit[u]);
	return text;
}

/* 0: none was measured */
static int fastest(const double *s)
{
	int best = 0;
	for (int a = 1; a < COLL_ALGOS; a++)
		if (s[a] > 0 && (!best || s[a] < s[best]))
			best = a;
	return best;
}

static void print_results(const struct bench *b, bool tty)
{
	char text[16];

	printf(tty ? "%-15s %8s  %-10s %12s %10s\n" : "%s\t%s\t%s\t%s\t%s\n", "collective", "bytes", "algorithm", "microseconds", "GB/s");
	for (int k = 0; k < OPS; k++)
		for (int i = 0; b->op[k] && i < (one_size(k) ? 1 : b->nsize); i++) {
			const double *s = b->r->s[k][i];
			int best = fastest(s);
			for (int a = 0; a < COLL_ALGOS; a++) {
				int64_t n = one_size(k) ? 0 : b->size[i];
				if (s[a] <= 0)
					continue;
				if (tty)
					printf("%-15s %8s  %s%-10s%s %12.3f %10.3f\n", op_name[k], human(n, text), a == best ? "\033[1m" : "", prog_algo_name[a], a == best ? "\033[0m" : "",
					       s[a] * 1e6, (double)n / s[a] / 1e9);
				else
					printf("%s\t%lld\t%s\t%.3f\t%.3f\n", op_name[k], (long long)n, prog_algo_name[a], s[a] * 1e6, (double)n / s[a] / 1e9);
			}
		}
}

/* --- the plot ---------------------------------------------------------------------------- */

static const char *const colour[COLL_ALGOS] = { "#888", "#1f77b4", "#2ca02c", "#ff7f0e", "#d62728", "#9467bd", "#8c564b", "#17becf", "#bcbd22", "#e377c2", "#7f7f00", "#000" };

/* One panel a collective, time over bytes, both logarithmic, each as high as its own times; a ring on the fastest road at each size, which a table
 * written of it takes, a dot on the one that is taken now.  Dashed: a line there and back, and a read of so many bytes that a peer has just written, if that was measured; no road that moves
 * them once is faster. */
static void plot(struct str *s, const struct bench *b)
{
	enum { W = 360, H = 250, LEFT = 66, TOP = 34, RIGHT = 14, BOTTOM = 50, COLUMNS = 3, HEAD = 30 };
	const char *dashed = "fill=\"none\" stroke=\"#444\" stroke-dasharray=\"4 3\"";
	double floor_s = b->nfloor ? b->floor[MIN(b->nfloor, MAX_ROUNDS) / 2] : 0;
	bool used[COLL_ALGOS] = { false };
	int panels = 0;
	char text[16];

	for (int k = 0; k < OPS; k++)
		panels += b->op[k] && !one_size(k);
	if (!panels)
		return;
	double x0 = log2((double)b->size[0]), x1 = fmax(log2((double)b->size[b->nsize - 1]), x0 + 1);
	int columns = MIN(panels, COLUMNS), rows = (panels + columns - 1) / columns, at = 0;
	str_addf(s, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"11\">\n"
	         "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"12\" y=\"20\" font-size=\"13\">%s, %d PEs</text>\n",
	         columns * W + 10, rows * H + HEAD + 44, cpu_get()->name, b->npe);
	for (int k = 0; k < OPS; k++) {
		if (!b->op[k] || one_size(k))
			continue;
		const double *read = b->r->s[OP_PLAIN_READ][0] + COLL_auto;
		double lo = 1e9, hi = 0;
		for (int i = 0; i < b->nsize; i++)
			for (int a = 0; a < COLL_ALGOS; a++)
				if (b->r->s[k][i][a] > 0)
					lo = fmin(lo, b->r->s[k][i][a]), hi = fmax(hi, b->r->s[k][i][a]);
		lo = floor_s > 0 ? fmin(lo, floor_s) : lo;
		double y0 = floor(log10(lo)), y1 = fmax(ceil(log10(hi)), y0 + 1), left = at % columns * W + LEFT, top = at / columns * H + HEAD + TOP, w = W - LEFT - RIGHT, h = H - TOP - BOTTOM;
		at++;
#define X(v) (left + w * (log2((double)(v)) - x0) / (x1 - x0))
#define Y(v) (top + h * (1 - (log10(v) - y0) / (y1 - y0)))
		str_addf(s, "<text x=\"%.1f\" y=\"%.1f\" font-weight=\"bold\">%s</text>\n", left, top - 8, op_name[k]);
		if (hi <= 0) {
			str_addf(s, "<text x=\"%.1f\" y=\"%.1f\">not measured</text>\n", left, top + h / 2);
			continue;
		}
		str_addf(s, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" fill=\"#555\">bytes</text>\n", left + w / 2, top + h + 30);
		str_addf(s, "<text transform=\"translate(%.1f %.1f) rotate(-90)\" text-anchor=\"middle\" fill=\"#555\">microseconds a turn</text>\n", left - 52, top + h / 2);
		for (double d = y0; d <= y1; d++)
			str_addf(s, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\" fill=\"#555\">%g</text>\n", left, left + w,
			         Y(pow(10, d)), Y(pow(10, d)), left - 5, Y(pow(10, d)) + 4, pow(10, d + 6));
		for (int i = 0; i < b->nsize; i++)
			if (i % MAX(b->nsize / 6, 1) == 0)
				str_addf(s, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#eee\"/><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" fill=\"#555\">%s</text>\n", X(b->size[i]),
				         X(b->size[i]), top, top + h, X(b->size[i]), top + h + 15, human(b->size[i], text));
		if (floor_s > 0)
			str_addf(s, "<path %s d=\"M%.1f %.1f H%.1f\"/>\n", dashed, left, Y(floor_s), left + w);
		str_addf(s, "<polyline %s points=\"", dashed);
		for (int i = 0; i < b->nsize; i++, read += COLL_ALGOS)
			if (*read > 0 && log10(*read) > y0 && log10(*read) < y1)
				str_addf(s, "%.1f,%.1f ", X(b->size[i]), Y(*read));
		str_add(s, "\"/>\n");
		for (int a = 0; a < COLL_ALGOS; a++) {
			bool any = false;
			for (int i = 0; i < b->nsize; i++)
				any |= b->r->s[k][i][a] > 0;
			if (!any)
				continue;
			used[a] = true;
			str_addf(s, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\" points=\"", colour[a]);
			for (int i = 0; i < b->nsize; i++)
				if (b->r->s[k][i][a] > 0)
					str_addf(s, "%.1f,%.1f ", X(b->size[i]), Y(b->r->s[k][i][a]));
			str_add(s, "\"/>\n");
		}
		for (int i = 0; i < b->nsize; i++) {
			int best = fastest(b->r->s[k][i]);
			if (best)
				str_addf(s, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"white\" stroke=\"%s\" stroke-width=\"1.6\"/>\n", X(b->size[i]), Y(b->r->s[k][i][best]), colour[best]);
			enum coll_kind kind = k < COLL_COUNT ? (enum coll_kind)k : COLL_all_reduce;
			int now = k <= OP_ANY ? (int)coll_choose(&b->table, kind, topo_of(b, kind), b->size[i]) : COLL_auto;
			if (now != COLL_auto && b->r->s[k][i][now] > 0)
				str_addf(s, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2\" fill=\"%s\"/>\n", X(b->size[i]), Y(b->r->s[k][i][now]), colour[now]);
		}
	}
#undef X
#undef Y
	int x = 14, y = rows * H + HEAD + 24;
	for (int a = 0; a < COLL_ALGOS; a++)
		if (used[a]) {
			str_addf(s, "<line x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"3\"/><text x=\"%d\" y=\"%d\">%s</text>\n", x, x + 18, y - 4, y - 4, colour[a], x + 23, y, prog_algo_name[a]);
			x += 90;
		}
	str_addf(s, "<text x=\"14\" y=\"%d\" fill=\"#555\">ring: the fastest; dot: what the machine table takes; dashed: a line there and back%s</text>\n</svg>\n", y + 16, b->op[OP_PLAIN_READ] ? ", a read of so many bytes of a peer" : "");
}

/* --- the command --------------------------------------------------------------------------- */

/* What was measured; of other groups the table says what it said. */
static struct err *write_table(struct bench *b)
{
	struct str path = { 0 };

	curves(b, &b->plan);
	struct err *e = plan_table_store(&b->plan, &b->gauge, &path);
	if (!e)
		printf("# wrote %s\n", path.p);
	str_free(&path);
	return e;
}

static struct err *pick(const char *opt, const char *list, const char *const *name, int n, bool *on)
{
	char copy[256], *save;

	for (int i = 0; i < n; i++)
		on[i] = !list;
	if (!list)
		return NULL;
	snprintf(copy, sizeof copy, "%s", list);
	for (char *w = strtok_r(copy, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
		int i = 0;
		while (i < n && strcmp(name[i], w))
			i++;
		if (i == n) {
			struct str all = {0};
			str_words(&all, name, (size_t)n);
			struct err *e = ERR(INVALID, "option '%s' has no '%s'%s: it is one of %s", opt, w, args_hint(w, name, (size_t)n), all.p);
			str_free(&all);
			return e;
		}
		on[i] = true;
	}
	for (int i = 0; i < n; i++)
		if (on[i])
			return NULL;
	return ERR(INVALID, "option '%s' names nothing", opt);
}

/* Is there something to measure, to draw and to write of what was named? */
static struct err *fits(const struct bench *b, const struct bench_coll_opts *o)
{
	bool draws = false, compares = false;

	for (int k = 0; k < OPS; k++) {
		int n = 0;
		for (int a = 0; a < COLL_ALGOS && b->op[k]; a++)
			n += op_has(k, a) && (b->algo[a] || k >= OP_PASS);
		if (b->op[k] && o->op && !n)
			return ERR(INVALID, "'%s' cannot be done by '%s'", op_name[k], o->algo);
		draws |= b->op[k] && !one_size(k);
		compares |= k < COLL_COUNT && n > b->algo[COLL_auto];
	}
	if (o->plot && !draws)
		return ERR(INVALID, "option '--plot': '%s' has one size only", o->op);
	return o->write && !compares ? ERR(INVALID, "option '--write' needs a collective, and algorithms for it") : NULL;
}

/* Among the PEs of w: those of this process are threads. */
static struct err *measure(struct bench *b, int nlocal)
{
	int first = sym_first(b->w), started = 0;
	struct err *e = NULL;

	if (b->npe < 2 || b->npe > MAX_PE)
		return ERR(INVALID, "a benchmark of collectives among %d PEs", b->npe);
	b->pin = true;
	b->r = mem_alloc(sizeof *b->r);
	struct pe *p = mem_lines(sizeof *p * (size_t)nlocal);
	for (; started < nlocal && !e; started++) {
		p[started] = (struct pe){ .b = b, .pe = first + started };
		if (pthread_create(&p[started].t, NULL, pe_main, &p[started])) {
			e = ERR(EXHAUSTED, "cannot start a thread");
			sym_cancel(b->w);         /* the others would wait for it */
			break;
		}
	}
	for (int i = 0; i < started; i++) {
		pthread_join(p[i].t, NULL);
		if (b->err[i] && !e)
			e = b->err[i];
		else
			err_free(b->err[i]);
	}
	free(p);
	return e;
}

struct err *bench_coll_curves(struct plan_table *t, struct plan_gauge *g, int pes, int64_t most, int rounds, double budget, double until)
{
	struct bench *b = mem_alloc(sizeof *b);
	struct sym_opts so = { .nlocal = pes, .threads = pes };
	struct err *e;

	*b = (struct bench){ .plan = *t, .gauge = *g, .npe = pes, .rounds = rounds, .budget = budget, .until = until };
	for (int i = 0; i < PLAN_SIZES && plan_size[i] <= most; i++)
		b->size[b->nsize++] = plan_size[i];
	for (int k = 0; k < COLL_COUNT; k++)
		b->op[k] = k != COLL_all_reduce;
	b->op[OP_FRESH] = b->op[OP_PLACE] = b->op[OP_PASS] = b->op[OP_PASS_PLACE] = true;
	for (int a = 1; a < COLL_ALGOS; a++)
		b->algo[a] = true;
	coll_table_from(&b->table, b->plan.rule);
	TRY_GOTO(e, sym_open(&so, &b->w), out);
	TRY_GOTO(e, measure(b, pes), out);
	curves(b, t);
	*g = b->gauge;
out:
	sym_close(b->w);
	free(b->r);
	free(b);
	return e;
}

struct err *bench_coll(const struct bench_coll_opts *o)
{
	static struct bench b;             /* it holds tables */
	b = (struct bench){ .rounds = 9, .budget = 0.03 };
	int64_t most = 16 << 20, least = 8, pes = 2, rounds = b.rounds;
	struct kv *boot = NULL;
	struct err *e = NULL;
	bool tty = isatty(1);

	TRY(arg_int("pes", o->pes, 2, MAX_PE, &pes));
	TRY(arg_int("min", o->least, 8, 1 << 30, &least));
	TRY(arg_int("max", o->most, 8, 1 << 30, &most));
	TRY(arg_int("rounds", o->rounds, 1, MAX_ROUNDS, &rounds));
	TRY(pick("--op", o->op, op_name, OPS, b.op));
	TRY(pick("--algorithm", o->algo, prog_algo_name, COLL_ALGOS, b.algo));
	if (!o->algo)
		b.algo[COLL_auto] = false;
	if (least > most)
		return ERR(INVALID, "option '--min' is above '--max'");
	if (least % 8)
		return ERR(INVALID, "option '--min' cannot be '%s': a multiple of 8", o->least);
	struct str folder = { 0 };
	bool keeps = !o->write || conf_cache(&folder, true);
	str_free(&folder);
	if (!keeps)
		return ERR(PRECONDITION, "RONDO_CACHE is '%s': there is no place for the table", conf_str(CONF_CACHE));
	b.rounds = (int)rounds;
	if (o->write && (o->least || o->fine))
		return ERR(INVALID, "option '--write' measures the sizes that the table has, up to '--max'");
	for (int i = 0; i < PLAN_SIZES && plan_size[i] <= most && o->write; i++)
		b.size[b.nsize++] = plan_size[i];
	for (int64_t n = least; n <= most && b.nsize < MAX_SIZES && !o->write; n *= o->fine || n < 64 ? 2 : 4)
		b.size[b.nsize++] = n;
	TRY(plan_table_get(&b.plan));
	coll_table_from(&b.table, b.plan.rule);
	/* As one of several processes, of one PE each; else with threads. */
	TRY(sym_boot_env(&boot));
	if (boot && o->pes) {
		sym_boot_free(boot);
		return ERR(INVALID, "option '--pes' is for PEs as threads: here every process is one");
	}
	struct sym_opts so = { .nlocal = boot ? 1 : (int)pes, .threads = boot ? 1 : (int)pes, .boot = boot };
	TRY_GOTO(e, sym_open(&so, &b.w), out);
	if (b.algo[COLL_mpi]) {
		struct err *no = coll_mpi_open(b.w);
		if (no && o->algo)
			e = no;
		else
			err_free(no);
		if (e)
			goto out;
		mpi = coll_mpi_ready(b.w);
	}
	TRY_GOTO(e, fits(&b, o), out);
	b.npe = sym_npe(b.w);
	b.progress = isatty(2) && !sym_first(b.w);
	e = measure(&b, so.nlocal);
	if (e || sym_first(b.w))
		goto out;
	printf("# %s, %d cores, %d PEs as %s; a turn takes the result of the one before; medians of %d interleaved rounds\n", cpu_get()->name, cpu_get()->cores, b.npe,
	       boot ? "processes" : "threads", b.rounds);
	if (b.nfloor) {
		int n = MIN(b.nfloor, MAX_ROUNDS);
		qsort(b.floor, (size_t)n, sizeof(double), by_value);
		qsort(b.way, (size_t)n, sizeof(double), by_value);
		printf("# exchange of one cache line between %s PEs: median %.3f us, from %.3f to %.3f\n", b.npe > 2 ? "all" : "two", b.floor[n / 2] * 1e6, b.floor[0] * 1e6, b.floor[n - 1] * 1e6);
		if (b.way[n / 2] > 0)
			printf("# one cache line there and one back: median of one way %.3f us\n", b.way[n / 2] * 1e6);
	}
	print_results(&b, tty);
	if (o->write)
		TRY_GOTO(e, write_table(&b), out);
	if (o->plot) {
		struct str s = { 0 };
		plot(&s, &b);
		e = str_write_file(o->plot, s.p ? s.p : "", s.n);
		if (!e)
			printf("# drew %s\n", o->plot);
		str_free(&s);
	}
out:
	free(b.r);
	sym_close(b.w);
	sym_boot_free(boot);
	return e;
}
