/* rondo bench machine: the machine table.  Rates of one core, what cores hand each other, compiling, and the curves of collectives among as many
 * groups as this machine has cores for; it is stored if the machine was quiet. */
#include "tool.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../gen/gen.h"
#include "../kern/kern.h"
#include "../rt/rt.h"
#include "bench.h"

enum { REPEATS = 7, MOST_S = 60 };

/* --- others ------------------------------------------------------------------------- */

struct spin { pthread_t t; int core; double wall, own; };

static double thread_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *spin(void *v)
{
	enum { SPIN_MS = 200 };
	struct spin *s = v;
	bench_pin(s->core);
	double from = clock_s(), own = thread_s();
	while (clock_s() - from < SPIN_MS / 1e3) { }
	s->wall = clock_s() - from;
	s->own = thread_s() - own;
	return NULL;
}

/* Cores that others take: what threads that want a core each do not get. */
static double others(void)
{
	enum { MOST = 256 };
	struct spin s[MOST];
	int n = MIN(cpu_get()->cores, MOST), started = 0;
	double lost = 0;
	for (; started < n; started++) {
		s[started].core = started;
		if (pthread_create(&s[started].t, NULL, spin, &s[started]))
			break;
	}
	for (int i = 0; i < started; i++) {
		pthread_join(s[i].t, NULL);
		lost += fmax(1 - s[i].own / s[i].wall, 0);
	}
	return lost;
}

/* --- kernels --------------------------------------------------------------------------- */

/* Nanoseconds of a run of the kernel, median of repeats, each long enough to be timed. */
static struct err *kernel(struct plan_gauge *g, const char *text, double *ns)
{
	double sample[REPEATS];
	TRY(bench_kernel(text, REPEATS, 0.02, sample));
	*ns = plan_gauge_add(g, sample, REPEATS) * 1e9;
	return NULL;
}

#define DOT(t, r, n) "dot (" t "[" n "," n "], " t "[" n "," n "]) -> (" r "[" n "," n "]) attr [0,1,1,0,0,23,23,23,1]"

static struct err *products(struct plan_table *t, struct plan_gauge *g)
{
	static const struct { enum plan_rate rate; const char *text; double n; } of[] = {
		{ PLAN_dot_f32, DOT("f32", "f32", "512"), 512 }, { PLAN_dot_bf16, DOT("bf16", "bf16", "512"), 512 },
		{ PLAN_dot_i8, DOT("i8", "i32", "512"), 512 }, { PLAN_dot_f64, DOT("f64", "f64", "256"), 256 },
	};
	for (size_t i = 0; i < NELEM(of); i++) {
		double ns;
		TRY(kernel(g, of[i].text, &ns));
		t->rate[of[i].rate] = ns / (2 * of[i].n * of[i].n * of[i].n);
	}
	return NULL;
}

/* The strip kernel: of 8 elements it is its start and an op; one addition and twelve tell what an op on an element and an addition take, and how
 * much longer it is on memory that is in no cache, what a byte of that takes. */
#define ADDS(n, body, last) "elem (f32[" n "]) -> (f32[" n "]) expr (f32) { " body " } (" last ")"
#define ONE "%1 = add f32 %0 %0 -> f32"
#define TWELVE ONE "; %2 = add f32 %1 %0 -> f32; %3 = add f32 %2 %0 -> f32; %4 = add f32 %3 %0 -> f32; %5 = add f32 %4 %0 -> f32; %6 = add f32 %5 %0 -> f32; " \
	"%7 = add f32 %6 %0 -> f32; %8 = add f32 %7 %0 -> f32; %9 = add f32 %8 %0 -> f32; %10 = add f32 %9 %0 -> f32; %11 = add f32 %10 %0 -> f32; %12 = add f32 %11 %0 -> f32"

static struct err *elements(struct plan_table *t, struct plan_gauge *g)
{
	enum { N = 4096, LARGE = 16 << 20 };
	const double EXP = elem_info[ELEM_exponential].work;     /* in additions */
	double few, one, twelve, exps, copy;
	TRY(kernel(g, ADDS("8", ONE, "%1"), &few));
	TRY(kernel(g, ADDS("4096", ONE, "%1"), &one));
	TRY(kernel(g, ADDS("4096", TWELVE, "%12"), &twelve));
	TRY(kernel(g, ADDS("4096", "%1 = exponential f32 %0 -> f32", "%1"), &exps));
	TRY(kernel(g, "copy (f32[4194304]) -> (f32[4194304])", &copy));
	double *strips = t->way[PLAN_strips], *apart = t->way[PLAN_apart], op = fmax((twelve - one) / (11 * N), 1e-4);
	double add = fmax((exps - one) / ((EXP - 1) * N), 1e-4), was = strips[2] + strips[3], now = op;
	strips[3] = fmin(add, now / 2);
	strips[2] = now - strips[3];
	strips[0] = fmax(few - strips[1], 1);
	apart[2] *= now / was;                   /* they go through the same loops */
	apart[3] *= now / was;
	t->rate[PLAN_own_byte] = copy / (2. * LARGE);
	return NULL;
}

/* --- what cores hand each other ------------------------------------------------------------ */

enum { BALLS = 2000, READ = 1 << 20, WAKES = 40 };
struct pair {
	_Alignas(128) atomic_int ball;
	_Alignas(128) atomic_int go;
	_Alignas(128) atomic_bool there;
	char *mem;
	pthread_mutex_t lock;
	pthread_cond_t bell;
	bool rung, over;
	double hand[REPEATS], read[REPEATS], wake[REPEATS], rung_at;
};

static volatile uint64_t kept;

static double reading(const char *p)
{
	double t = clock_s();
	uint64_t x = 0;
	for (size_t i = 0; i < READ / 8; i++)
		x += ((const uint64_t *)(const void *)p)[i];
	kept = x;
	return clock_s() - t;
}

static void *second(void *v)
{
	struct pair *p = v;
	bench_pin(1);
	for (int r = 0; r < REPEATS; r++) {
		for (int i = 0; i < BALLS; i++) {
			while (atomic_load_explicit(&p->ball, memory_order_acquire) != 2 * i + 1) { }
			atomic_store_explicit(&p->ball, 2 * i + 2, memory_order_release);
		}
		while (atomic_load_explicit(&p->go, memory_order_acquire) != r + 1) { }
		p->read[r] = reading(p->mem);
		atomic_store_explicit(&p->there, true, memory_order_release);
	}
	for (int r = 0; r < REPEATS; r++)
		for (int i = 0; i < WAKES; i++) {
			pthread_mutex_lock(&p->lock);
			while (!p->rung)
				pthread_cond_wait(&p->bell, &p->lock);
			p->wake[r] += (clock_s() - p->rung_at) / WAKES;
			p->rung = false;
			pthread_mutex_unlock(&p->lock);
			atomic_store_explicit(&p->there, true, memory_order_release);
		}
	return NULL;
}

static void first(struct pair *p)
{
	const struct timespec nap = { 0, 200000 };
	for (int r = 0; r < REPEATS; r++) {
		atomic_store_explicit(&p->ball, 0, memory_order_release);
		double t = clock_s();
		for (int i = 0; i < BALLS; i++) {
			atomic_store_explicit(&p->ball, 2 * i + 1, memory_order_release);
			while (atomic_load_explicit(&p->ball, memory_order_acquire) != 2 * i + 2) { }
		}
		p->hand[r] = (clock_s() - t) / BALLS;
		memset(p->mem, r + 1, READ);
		atomic_store_explicit(&p->there, false, memory_order_relaxed);
		atomic_store_explicit(&p->go, r + 1, memory_order_release);
		while (!atomic_load_explicit(&p->there, memory_order_acquire)) { }
	}
	for (int i = 0; i < REPEATS * WAKES; i++) {
		atomic_store_explicit(&p->there, false, memory_order_relaxed);
		nanosleep(&nap, NULL);               /* it sleeps by now */
		pthread_mutex_lock(&p->lock);
		p->rung = true;
		p->rung_at = clock_s();
		pthread_cond_signal(&p->bell);
		pthread_mutex_unlock(&p->lock);
		while (!atomic_load_explicit(&p->there, memory_order_acquire))
			sched_yield();
	}
}

/* Handing work over and learning that it is done took 4 us where a line's way there and back takes 0.17 (Zen 4): claims and counts of a pool, on
 * lines that all threads write. */
static struct err *between_cores(struct plan_table *t, struct plan_gauge *g)
{
	enum { TRIPS = 24 };
	struct pair *p = mem_lines(sizeof *p);
	pthread_t id;
	p->mem = mem_lines(READ);
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->bell, NULL);
	struct err *e = pthread_create(&id, NULL, second, p) ? ERR(EXHAUSTED, "cannot start a thread") : NULL;
	if (!e) {
		bench_pin(0);
		first(p);
		pthread_join(id, NULL);
		t->rate[PLAN_hand] = TRIPS * plan_gauge_add(g, p->hand, REPEATS) * 1e9;
		t->rate[PLAN_shared_byte] = plan_gauge_add(g, p->read, REPEATS) * 1e9 / READ;
		t->rate[PLAN_wake] = plan_gauge_add(g, p->wake, REPEATS) * 1e9;
	}
	pthread_cond_destroy(&p->bell);
	pthread_mutex_destroy(&p->lock);
	free(p->mem);
	free(p);
	return e;
}

/* --- compiling ---------------------------------------------------------------------------------- */

/* A group of n ops on `size` elements of f32 becomes code, in *seconds: each adds to or multiplies what came before, the last one by a number
 * that no other group has.  out: owned, or NULL. */
static struct err *compiling(int n, int size, int which, double *seconds, struct prog **out)
{
	struct pass_opts o;
	struct str s = { 0 };
	struct ir_module *m = NULL;
	struct prog *p = NULL;
	str_addf(&s, "module @chain\n\nfn @main(%%1: f32[%d]) -> (f32[%d]) {\n", size, size);
	for (int i = 2; i <= n; i++)
		str_addf(&s, "  %%%d = %s %%%d, %%1 : f32[%d]\n", i, i % 2 ? "multiply" : "add", i - 1, size);
	str_addf(&s, "  %%%d = constant data=%d : f32[%d]\n  %%%d = maximum %%%d, %%%d : f32[%d]\n  return %%%d\n}\n", n + 1, which + 2, size, n + 2, n, n + 1, size, n + 2);
	pass_opts_from_conf(&o);
	o.tier = TIER_GEN;
	o.dump = NULL;
	struct err *e = ir_parse(s.p, s.n, &m);
	if (!e) {
		double t = clock_s();
		e = pass_compile(&o, m, &p);
		*seconds = clock_s() - t;
	}
	if (out && !e)
		*out = p;
	else
		prog_free(p);
	ir_module_free(m);
	str_free(&s);
	return e;
}

/* Seconds of a launch of such a program, repeats times. */
static struct err *launching(struct rt_client *c, int n, int size, double *sample)
{
	enum { TURNS = 200 };
	const struct rt_shape shape = { DT_f32, 1, { size } };
	struct rt_buffer *x = NULL, *y;
	struct rt_event *done;
	struct rt_exec *exec = NULL;
	struct prog *p;
	double unused;
	float *data = mem_alloc(sizeof *data * (size_t)size);
	struct err *e = compiling(n, size, 0, &unused, &p);
	TRY_GOTO(e, e, out);
	TRY_GOTO(e, rt_exec_new(c, p, (int[]){ 0 }, &exec), out);
	TRY_GOTO(e, rt_buffer_from_host(rt_client_device(c, 0), 0, &shape, data, NULL, &x), out);
	for (int r = 0; r < REPEATS; r++) {
		double t = clock_s();
		for (int i = 0; i < TURNS && !e; i++) {
			TRY_GOTO(e, rt_exec_run(exec, &x, NULL, 0, 0, &y, &done), out);
			e = rt_event_wait(done);
			rt_event_unref(done);
			rt_buffer_unref(y);
		}
		TRY_GOTO(e, e, out);
		sample[r] = (clock_s() - t) / TURNS;
	}
out:
	rt_buffer_unref(x);
	rt_exec_unref(exec);
	free(data);
	return e;
}

/* What an op on an element takes, and a byte: by three programs, of which one is longer and one has more ops.  The launch is in all of them. */
static struct err *running(struct plan_table *t, struct plan_gauge *g)
{
	enum { FEW = 1024, MANY = 16384, OPS = 24 };
	double sample[REPEATS], few, many, ops, *gen = t->way[PLAN_gen];
	const struct rt_opts o = { .ndev = 1 };
	struct rt_client *c;
	TRY(rt_client_new(&o, &c));
	struct err *e = launching(c, 1, FEW, sample);
	TRY_GOTO(e, e, out);
	few = plan_gauge_add(g, sample, REPEATS) * 1e9;
	TRY_GOTO(e, launching(c, 1, MANY, sample), out);
	many = plan_gauge_add(g, sample, REPEATS) * 1e9;
	TRY_GOTO(e, launching(c, OPS, MANY, sample), out);
	ops = plan_gauge_add(g, sample, REPEATS) * 1e9;
	double op = fmax((ops - many) / ((double)MANY * (OPS - 1)), 1e-4), each = (many - few) / (MANY - FEW), was = gen[2] + gen[3];
	gen[2] *= op / was;
	gen[3] *= op / was;
	gen[4] = fmax(each - 2 * op, 0) / (2 * sizeof(float));
out:
	rt_client_free(c);
	return e;
}

/* What a chain of adds takes is told by two lengths; by what it is more than the table says of them, all of it is. */
static struct err *code(struct plan_table *t, struct plan_gauge *g)
{
	enum { SHORT = 8, LONG = 108, SIZE = 4096 };
	double few[REPEATS], many[REPEATS];
	struct err *no = gen_load();
	if (no) {                        /* nothing will be compiled, whatever it takes */
		err_free(no);
		return NULL;
	}
	for (int i = -1; i < REPEATS; i++) {     /* the first one loads LLVM */
		TRY(compiling(SHORT, SIZE, i + 1, &few[MAX(i, 0)], NULL));
		TRY(compiling(LONG, SIZE, i + 1, &many[MAX(i, 0)], NULL));
	}
	double *r = t->rate, a = plan_gauge_add(g, few, REPEATS) * 1e9, b = plan_gauge_add(g, many, REPEATS) * 1e9;
	double each = fmax((b - a) / (LONG - SHORT), 1), was = r[PLAN_compile_op] + r[PLAN_compile_add];
	r[PLAN_compile_op] *= each / was;
	r[PLAN_compile_add] *= each / was;
	r[PLAN_compile_first] = fmax(a - SHORT * each, a / 10);
	return running(t, g);
}

/* --- collectives --------------------------------------------------------------------------------- */

static struct err *collectives(struct plan_table *t, struct plan_gauge *g, double until)
{
	int cores = cpu_get()->cores;
	const struct { int pes; int64_t most; double budget; } of[] = {
		{ cores >= 2 ? 2 : 0, 16 << 20, 0.006 }, { cores >= 3 ? MIN(cores, 8) : 0, 4 << 20, 0.006 },
		{ cores < COLL_ROUNDS / 2 ? 2 * cores : 0, 1 << 20, 0.006 }, { COLL_ROUNDS, 16 << 10, 0.004 },
	};
	for (size_t i = 0; i < NELEM(of); i++)
		if (of[i].pes > 1) {
			str_progress(stderr, "bench machine", 0.3 + 0.7 * (double)i / NELEM(of));
			double start = clock_s();
			TRY(bench_coll_curves(t, g, of[i].pes, of[i].most, 5, of[i].budget, until));
			log_line(LOG_INFO, "collectives among %d threads took %.1f s", of[i].pes, clock_s() - start);
		}
	/* What one line and one byte take where nothing else is known: of two that exchange what they have. */
	const enum coll_kind k = COLL_all_gather;
	double least = 0, slope = 0, large = (double)plan_size[9], half = large / 4;
	for (int a = 1; a < COLL_ALGOS && t->members[COLL_PAIR]; a++) {
		double start = plan_curve(t, COLL_PAIR, k, (enum coll_algo)a, 0), byte = (plan_curve(t, COLL_PAIR, k, (enum coll_algo)a, large) - plan_curve(t, COLL_PAIR, k, (enum coll_algo)a, half)) / (large - half);
		least = start > 0 && (!least || start < least) ? start : least;
		slope = byte > 0 && (!slope || byte < slope) ? byte : slope;
	}
	if (least > 0 && slope > 0) {
		t->rate[PLAN_wait] = least;
		t->rate[PLAN_byte] = slope;
	}
	return NULL;
}

/* --- the command ------------------------------------------------------------------------------------ */

struct err *bench_machine(void)
{
	struct plan_table *t = mem_alloc(sizeof *t);
	struct plan_gauge g = { 0 };
	struct str path = { 0 };
	double from = clock_s();
	struct err *e;

	TRY_GOTO(e, plan_table_get(t), out);
	for (int i = 0; i < COLL_TOPOS; i++)         /* what was measured between hosts stays */
		if (i != COLL_FAR && i != COLL_HOSTS) {
			t->members[i] = 0;
			memset(t->ns[i], 0, sizeof t->ns[i]);
		}
	g.others = others();
	TRY_GOTO(e, plan_gauge_load(&g), out);
	TRY_GOTO(e, products(t, &g), out);
	TRY_GOTO(e, elements(t, &g), out);
	if (cpu_get()->cores > 1)
		TRY_GOTO(e, between_cores(t, &g), out);
	TRY_GOTO(e, code(t, &g), out);
	log_line(LOG_INFO, "rates took %.1f s", clock_s() - from);
	TRY_GOTO(e, collectives(t, &g, from + MOST_S), out);
	g.others = fmax(g.others, others());
	printf("# measured in %.0f s: %d things, of which the repeats of %d disagree\n", clock_s() - from, g.n, g.unsteady);
	for (int i = 0; i < PLAN_WAYS; i++)
		printf("%s\t%.4g\t%.4g\t%.4g\t%.4g\t%.4g\tns\t%s\n", plan_way_name[i], t->way[i][0], t->way[i][1], t->way[i][2], t->way[i][3], t->way[i][4], plan_way_meaning[i]);
	for (int i = 0; i < PLAN_RATES; i++)
		printf("%s\t%.4g\tns\t%s\n", plan_rate_name[i], t->rate[i], plan_rate_meaning[i]);
	TRY_GOTO(e, plan_table_store(t, &g, &path), out);
	printf("# wrote %s\n", path.p);
out:
	str_free(&path);
	free(t);
	return e;
}
