/* Groups that span hosts: each process is one, with some devices.  By levels every collective gives the bits that messages from all to
 * all give, for any spread of members over hosts and any order of ranks; and ends as the others do when a member fails or dies. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "draws.h"
#include "leave.h"

#include "coll/coll.h"
#include "counted.h"

enum { MAXP = 8, GROUPS = 5, CAP = 8 << 20 };
enum end { WELL, FAILS, DIES };
struct job { int nproc, ndev[MAXP]; enum end end; const char *road; };        /* NULL: tcp */
static char dir[64];

/* Allocations of this thread, but for those of libraries: UCX takes memory as it likes. */
static _Thread_local long taken;
COUNTING(taken)

static void say(const char *what, struct err *e)
{
	fprintf(stderr, "process %d: %s: %s\n", (int)getpid(), what, e ? e->msg : "wrong");
	_exit(1);
}

static uint64_t mixed(uint64_t a)
{
	a *= 0x9e3779b97f4a7c15u;
	a ^= a >> 29;
	a *= 0xbf58476d1ce4e5b9u;
	return a ^ a >> 32;
}

/* In order; backwards; every other one first; without the first; in no order. */
static struct prog *make_prog(int n)
{
	struct prog *p = prog_new();
	int64_t id[GROUPS][MAXP];

	for (int i = 0; i < n; i++) {
		id[0][i] = i;
		id[1][i] = n - 1 - i;
		id[2][i] = i < (n + 1) / 2 ? 2 * i : 2 * (i - (n + 1) / 2) + 1;
		id[3][i] = i + 1;
		id[4][i] = i;
	}
	for (int i = n - 1; i > 0; i--) {
		int j = (int)(mixed((uint64_t)(100 + i)) % (uint64_t)(i + 1));
		int64_t t = id[4][i];
		id[4][i] = id[4][j];
		id[4][j] = t;
	}
	p->ndev = n;
	p->group = ARENA_NEW(&p->arena, struct prog_group, GROUPS);
	p->ngroup = GROUPS;
	for (int g = 0; g < GROUPS; g++)
		prog_group_make(&p->arena, &p->group[g], n, 1, n - (g == 3), id[g]);
	p->coll = ARENA_NEW(&p->arena, struct prog_coll, 1);      /* all talk to all */
	p->ncoll = 1;
	p->coll[0] = (struct prog_coll){ .kind = COLL_all_reduce, .group = 0 };
	return p;
}

/* acc * 0.5 + x: neither commutative nor associative. */
static uint8_t fn_types[2] = { DT_f32, DT_f32 };
static struct prog_ins fn_ins[3] = { { .fn = EXPR_IMM, .from = DT_f32, .to = DT_f32, .imm = { 0, 0, 0, 0x3f } },
                                     { .fn = ELEM_multiply, .from = DT_f32, .to = DT_f32, .src = { 0, 2 } },
                                     { .fn = ELEM_add, .from = DT_f32, .to = DT_f32, .src = { 3, 1 } } };
static uint16_t fn_res[1] = { 4 };
static struct prog_expr fn = { .nin = 2, .nout = 1, .n = 3, .in_type = fn_types, .ins = fn_ins, .out = fn_res };

static const struct { enum redop op; enum dtype dt; } reds[] = {
	{ RED_add, DT_f32 }, { RED_add, DT_bf16 }, { RED_fn, DT_f32 }, { RED_add, DT_u8 }, { RED_max, DT_i64 }, { RED_mul, DT_f64 }, { RED_lse, DT_f16 }, { RED_add, DT_c128 },
};

/* Numbers of many sizes, so that each order of adding them gives other bits. */
static void fill(char *x, enum dtype dt, int64_t n, uint64_t seed)
{
	for (int64_t i = 0; i < n; i++) {
		uint64_t r = mixed(seed + (uint64_t)i);
		float f = ((float)(r & 0xffff) - 32768.f) / (float)(1 << (r >> 16) % 20);
		if (dt == DT_bf16)
			((uint16_t *)(void *)x)[i] = f32_to_bf16(f);
		else if (dt == DT_f32)
			((float *)(void *)x)[i] = f;
		else if (dt == DT_f64 || dt == DT_c128)
			for (int k = 0; k < dtype_info[dt].bytes / 8; k++)
				((double *)(void *)x)[i * dtype_info[dt].bytes / 8 + k] = 1 + (double)f / 40000 / (k + 1);
		else if (dt == DT_f16)
			((uint16_t *)(void *)x)[i] = (uint16_t)(r & 0xbbff);      /* finite */
		else
			memcpy(x + i * dtype_info[dt].bytes, &r, (size_t)dtype_info[dt].bytes);
	}
}

struct dev { pthread_t t; struct sym_world *w; const struct job *job; struct prog *p; int pe; _Atomic int *stop; struct err *err; };

/* One collective by messages, and by levels. */
static struct err *same(struct coll_cx *cx, struct prog_coll *c, uint32_t site, char *x, char *y, char *z, int64_t nx, int64_t ny, uint64_t seed, bool in_place)
{
	int64_t es = dtype_info[c->dtype].bytes;
	char *ptr[2] = { x, y };

	fill(x, (enum dtype)c->dtype, nx / es, seed + (uint64_t)cx->pos * 1000003);
	memset(y, 1, (size_t)ny);
	c->algo = COLL_slot;
	TRY(coll_run(cx, c, site, ptr, false, NULL));
	ptr[1] = in_place ? x : z;
	if (!in_place)
		memset(z, 2, (size_t)ny);
	c->algo = seed % 3 ? COLL_levels : COLL_auto;
	TRY(coll_run(cx, c, site, ptr, in_place, NULL));
	for (int64_t i = 0; i < ny; i++)
		if (ptr[1][i] != y[i])
			return ERR(INTERNAL, "%s of %s, group %u, rows %lld of %lld bytes: byte %lld of %lld differs", prog_coll_name[c->kind], dtype_info[c->dtype].name, c->group,
			           (long long)c->outer, (long long)c->inner, (long long)i, (long long)ny);
	return NULL;
}

/* What was done before takes no memory from the C library when it is done again: sums, gathers and exchanges by every algorithm, between hosts. */
static struct err *steady(struct coll_cx *cx, char *x, char *y)
{
	static const enum coll_kind kinds[] = { COLL_all_reduce, COLL_reduce_scatter, COLL_all_gather, COLL_all_to_all };
	static const int64_t sizes[] = { 64, 20000, 300000 };
	char *ptr[2] = { x, y };

	for (uint32_t i = 0; i < COLL_ALGOS * NELEM(kinds) * NELEM(sizes); i++) {
		enum coll_algo a = (enum coll_algo)(i / NELEM(kinds) / NELEM(sizes));
		struct prog_coll c = { .kind = (uint8_t)kinds[i % NELEM(kinds)], .group = 0, .nin = 1, .outer = 1, .redop = RED_add, .dtype = DT_f32, .algo = (uint8_t)a,
		                       .inner = sizes[i / NELEM(kinds) % NELEM(sizes)], .outer2 = 1, .inner2 = sizes[i / NELEM(kinds) % NELEM(sizes)] };
		if (!prog_algo_has(a, kinds[i % NELEM(kinds)]) || a == COLL_mpi)
			continue;
		int took = 0;
		for (int turn = 0; turn < 8; turn++) {
			long before = taken;
			TRY(coll_run(cx, &c, 1000 + i, ptr, false, NULL));
			took += turn > 1 && taken != before;
		}
		if (took > 3)                     /* more messages under way than ever before take some, once */
			return ERR(INTERNAL, "%s by %s of %lld bytes took memory in %d of 6 turns", prog_coll_name[c.kind], prog_algo_name[a], (long long)c.inner, took);
	}
	return NULL;
}

static void *device(void *v)
{
	static const int64_t sizes[] = { 1, 7, 5001, 40003, 150000 };
	struct dev *d = v;
	struct sym_ep *ep = sym_ep_of(d->w, d->pe);
	struct sym_heap *h = sym_heap_of(d->w, d->pe);
	struct coll *cc = coll_new(d->w, d->pe, NULL);
	int pe[MAXP], peer[MAXP], n = d->p->ndev;
	struct sym_block *b[3];
	char *own = malloc(CAP);
	uint64_t seed = 1;

	for (int i = 0; i < n; i++)
		pe[i] = i;
	struct coll_cx cx = { cc, d->p, pe, d->pe };
	struct sym_launch l = { .prog = 42, .peer = peer, .npeer = coll_peers(d->p, pe, d->pe, peer), .stop = d->stop };
	for (int i = 0; i < 3; i++)
		if ((d->err = sym_alloc(h, CAP, NULL, -1, &b[i])))
			say("memory", d->err);
	sym_begin(ep, &l);
	for (uint32_t round = 0; round < 3 * GROUPS * NELEM(sizes) && !d->err; round++) {
		if (round % 16 == 15) {                   /* a new launch */
			sym_end(ep, NULL);
			sym_begin(ep, &l);
		}
		uint32_t end = d->job->nproc == 2 ? 60 : 34;          /* from there on nothing is left out: somebody waits for the last one */
		if (d->job->end != WELL && round == end && d->pe == n - 1) {
			if (d->job->end == DIES)
				raise(SIGKILL);
			d->err = ERR(CANCELLED, "on purpose");
			break;
		}
		struct prog_coll c = { .kind = (uint8_t[]){ COLL_all_reduce, COLL_reduce_scatter, COLL_all_gather }[round % 3], .group = round / 3 % GROUPS, .nin = 1, .outer = 1 };
		const struct prog_group *g = &d->p->group[c.group];
		for (size_t k = 0; k < NELEM(reds) && !d->err; k++) {
			int64_t count = sizes[round / 3 / GROUPS], nx, ny;
			seed++;
			if ((count > 10000 && k != round * 5 / 3 % NELEM(reds)) || !(drawn(seed) || (d->job->end != WELL && round >= end)))        /* of much data one type */
				continue;
			c.outer = c.kind == COLL_all_reduce ? 1 : 1 + (int64_t)(seed % 3);
			c.redop = (uint8_t)reds[k].op;
			c.dtype = (uint8_t)reds[k].dt;
			c.expr = reds[k].op == RED_fn ? &fn : NULL;
			c.inner = (count + c.outer - 1) / c.outer * dtype_info[c.dtype].bytes;
			if (c.kind != COLL_all_reduce)
				c.inner = MIN(c.inner, (int64_t)(CAP / MAXP / 3) & ~(int64_t)15);
			nx = ny = c.outer * c.inner;
			nx *= c.kind == COLL_reduce_scatter ? g->ncol : 1;
			ny *= c.kind == COLL_all_gather ? g->ncol : 1;
			if (g->row[d->pe] < 0)
				continue;
			/* Here and there outside the heap, or in place. */
			char *base = sym_base(h), *x = base + b[0]->off, *y = base + b[1]->off, *z = base + b[2]->off;
			uint64_t out = mixed(seed * 64 + (uint64_t)d->pe) % 8;
			x = out == 1 ? own : x;
			z = out == 2 ? own : z;
			d->err = same(&cx, &c, round, x, y, z, nx, ny, seed, c.kind == COLL_all_reduce && seed % 4 == 0);
		}
	}
	if (!d->err && d->job->end == WELL)
		d->err = steady(&cx, sym_base(h) + b[0]->off, sym_base(h) + b[1]->off);
	if (d->err && d->job->end == WELL)
		say("differs", d->err);
	if (d->err) {
		atomic_store(d->stop, 1);
		for (int i = sym_first(d->w); i < n && sym_proc_of(d->w, i) == sym_proc(d->w); i++)
			sym_ring(d->w, i);
	}
	sym_end(ep, d->err);
	coll_free(cc);
	for (int i = 0; i < 3; i++)
		sym_free(b[i]);
	free(own);
	return NULL;
}

/* The devices of this process.  An error of one of them: owned. */
static struct err *devices(struct sym_world *w, const struct job *j)
{
	struct prog *p = make_prog(sym_npe(w));
	struct err *first = NULL;
	struct dev d[MAXP];
	_Atomic int stop = 0;
	int n = 0;

	for (int pe = sym_first(w); pe < sym_npe(w) && sym_proc_of(w, pe) == sym_proc(w); pe++, n++) {
		d[n] = (struct dev){ .w = w, .job = j, .p = p, .pe = pe, .stop = &stop };
		pthread_create(&d[n].t, NULL, device, &d[n]);
	}
	for (int k = 0; k < n; k++) {
		pthread_join(d[k].t, NULL);
		if (!d[k].err && j->end != WELL)
			say("nothing was wrong", NULL);
		if (!first || (d[k].err && d[k].err->code == ERR_UNAVAILABLE)) {
			err_free(first);
			first = d[k].err;
		} else
			err_free(d[k].err);
	}
	prog_free(p);
	return first;
}

static void process(const struct job *j, int i)
{
	struct sym_world *w;
	struct kv *kv;
	char text[40];

	conf_set("PROCESSES", (snprintf(text, sizeof text, "%d", j->nproc), text));
	conf_set("PROCESS", (snprintf(text, sizeof text, "%d", i), text));
	conf_set("TRANSPORT", j->road ? j->road : "tcp");
	struct err *e = sym_boot_env(&kv);
	if (!e)
		e = sym_open(&(struct sym_opts){ .nlocal = j->ndev[i], .boot = kv, .threads = j->ndev[i] }, &w);
	if (e)
		say("open", e);
	for (int pe = 0; pe < sym_npe(w); pe++)
		for (int k = 0; k < sym_npe(w); k++)
			if ((sym_host_of(w, pe) == sym_host_of(w, k)) != (sym_proc_of(w, pe) == sym_proc_of(w, k)))
				say("hosts", NULL);
	e = devices(w, j);
	if (j->end == FAILS && e->code != ERR_ABORTED && e->code != ERR_CANCELLED)
		say("what a failure gives", e);
	snprintf(text, sizeof text, "process %d (", j->nproc - 1);
	if (j->end == DIES && (e->code != ERR_UNAVAILABLE || !strstr(e->msg, text)))
		say("what a death gives", e);
	err_free(e);
	sym_close(w);
	sym_boot_free(kv);
	leave(0);
}

static void run(const struct job *j)
{
	pid_t pid[MAXP];
	char cmd[100];
	int st;

	snprintf(dir, sizeof dir, "/tmp/rondo-levels-XXXXXX");
	assert_non_null(mkdtemp(dir));
	conf_set("RENDEZVOUS", dir);
	fflush(NULL);
	for (int i = 0; i < j->nproc; i++)
		if (!(pid[i] = fork())) {
			alarm(300);
			process(j, i);
		}
	for (int i = 0; i < j->nproc; i++) {
		assert_int_equal(waitpid(pid[i], &st, 0), pid[i]);
		if (j->end == DIES && i == j->nproc - 1)
			assert_true(WIFSIGNALED(st) && WTERMSIG(st) == SIGKILL);
		else
			assert_int_equal(st, 0);
	}
	snprintf(cmd, sizeof cmd, "rm -r %s", dir);
	assert_int_equal(system(cmd), 0);
}

static void spreads(void **state)
{
	static const struct job row[] = { { 2, { 2, 2 } }, { 2, { 1, 3 } }, { 3, { 3, 1, 2 } }, { 4, { 2, 1, 1, 2 } }, { 2, { 4, 4 } }, { 1, { 4 } }, { 2, { 2, 2 }, WELL, "ucx" } };

	for (size_t i = 0; i < NELEM(row); i++)
		run(&row[i]);
}

static void ends(void **state)
{
	static const struct job row[] = { { 2, { 2, 2 }, FAILS }, { 3, { 2, 2, 1 }, FAILS }, { 2, { 2, 2 }, DIES }, { 3, { 2, 1, 2 }, DIES } };

	for (size_t i = 0; i < NELEM(row); i++)
		run(&row[i]);
}

/* As one process of a job that somebody else started: coll_levels member DEVICES. */
static int member(int ndev)
{
	static const struct job j = { .end = WELL };
	struct sym_world *w = NULL;
	struct kv *kv;
	struct err *e = sym_boot_env(&kv);

	if (!e)
		e = sym_open(&(struct sym_opts){ .nlocal = ndev, .boot = kv, .threads = ndev }, &w);
	if (e)
		say("open", e);
	printf("joined\n");
	fflush(stdout);
	err_free(devices(w, &j));
	sym_close(w);
	sym_boot_free(kv);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "member"))
		return member(atoi(argv[2]));
	const struct CMUnitTest t[] = { cmocka_unit_test(spreads), cmocka_unit_test(ends) };

	return cmocka_run_group_tests(t, NULL, NULL);
}
