/* Clients of several processes: one program over all, processes of different size, one that dies, fails, goes
 * another way or has no part. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "leave.h"
#include "plan/plan.h"
#include "rt/rt.h"
#include "sym/sym.h"

enum { MAXP = 4, TOTAL = 5 };
static const int ndev[3] = { 2, 1, 2 };       /* devices of each process */

static struct rt_client *cl;
static struct kv *kv;
static bool refusing, tables;

static void die(const char *what, const char *text)
{
	fprintf(stderr, "process %d: %s: %s\n", kv ? kv->process : -1, what, text);
	_exit(1);
}

static void ok(const char *what, struct err *e)
{
	if (e)
		die(what, e->msg);
}

/* A machine table of its own for each process, in which another algorithm is the fastest and all rates are others. */
static void made(struct plan_table *t, int proc)
{
	static const enum coll_algo best[3][2] = { { COLL_slot, COLL_direct }, { COLL_ring, COLL_stage }, { COLL_two_shot, COLL_slot } };

	*t = *plan_default();
	t->rate[PLAN_wait] *= proc + 2;
	for (int topo = 0; topo < COLL_TOPOS; topo++) {
		t->members[topo] = TOTAL;
		for (int i = 0; i < PLAN_SIZES; i++) {
			t->ns[topo][COLL_all_reduce][best[proc][0]][i] = (float)(1000 * (i + 1));
			t->ns[topo][COLL_permute][best[proc][1]][i] = (float)(1000 * (i + 1));
		}
	}
	plan_rules_all(t);
}

static void table_of(const char *dir, int proc)
{
	struct plan_table *t = mem_alloc(sizeof *t);
	struct str s = { 0 }, path = { 0 };

	made(t, proc);
	plan_table_print(&s, t);
	str_addf(&path, "%s/table.%d", dir, proc);
	ok("write", str_write_file(path.p, s.p, s.n));
	conf_set("TABLE", path.p);
	str_free(&path);
	str_free(&s);
	free(t);
}

static void start(const char *dir, int proc, int nproc)
{
	char text[32];

	conf_set("RENDEZVOUS", dir);
	conf_set("PROCESSES", (snprintf(text, sizeof text, "%d", nproc), text));
	conf_set("PROCESS", (snprintf(text, sizeof text, "%d", proc), text));
	ok("boot", sym_boot_env(&kv));
	if (tables)
		table_of(dir, proc);
	if (refusing)
		return;
	struct rt_opts o = { .ndev = ndev[proc], .boot = kv };
	ok("open", rt_client_new(&o, &cl));
}

static void end(void)
{
	double t = clock_s();

	rt_client_free(cl);
	sym_boot_free(kv);
	if (clock_s() - t > 60)
		die("close", "it took too long");
	leave(0);
}

/* turns times: maximum over all, then pass to the neighbour.  swap: the other way round. */
static struct rt_exec *ring(int n, int turns, const int *dev, bool swap, size_t bytes)
{
	static const char *const body[2] = { "coll 0 all_reduce (b1) -> (b2) site 1\n", "coll 1 permute (b1) -> (b1) site 2\n" };
	struct str s = { 0 };
	struct prog *p;
	struct rt_exec *x;

	str_addf(&s, "prog \"ring\" devices %d registers 4 zone %zu flops 0 fingerprint 01 comm 00\n"
	             "site 0 \"\"\nsite 1 \"train.py:3 psum\"\nsite 2 \"train.py:4 ppermute\"\n"
	             "arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\nbuf 0 arg 0 size 16\nbuf 1 out 0 size 16\nbuf 2 temp at 0 size 16\n", n, MAX(bytes, 64));
	for (int k = 0; k < 2; k++) {
		str_addf(&s, "table %d [", k);
		for (int i = 0; i < n; i++)
			str_addf(&s, "%s%d", i ? "," : "", (i + (k ? 1 : n - 1)) % n);
		str_add(&s, "]\n");
	}
	str_addf(&s, "group 0 1 %d [", n);
	for (int i = 0; i < n; i++)
		str_addf(&s, "%s%d", i ? "," : "", i);
	str_addf(&s, "]\nkern 0 copy (f32[4]) -> (f32[4])\n"
	             "coll 0 all_reduce f32 n 1 algo auto group 0 redop max outer 1 inner 16\n"
	             "coll 1 permute f32 n 1 algo auto pairs 0 redop add outer 1 inner 16\n"
	             "run {\n kern 0 copy (b0) -> (b1)\n loop r1 < %d {\n %s %s }\n}\n", turns, body[swap], body[!swap]);
	ok("parse", prog_parse(s.p, s.n, &p));
	p->comm_hash = prog_comm_hash(p);
	str_free(&s);
	ok("load", rt_exec_new(cl, p, dev, &x));
	return x;
}

/* Device id starts with the value id: what comes out?  The first error of a device is given. */
static struct err *launch(struct rt_exec *x, float *v)
{
	struct rt_shape s = { DT_f32, 1, { 4 } };
	struct rt_buffer *a[TOTAL], *out[TOTAL];
	struct rt_event *done[TOTAL];
	struct err *e = NULL;
	int n = rt_exec_nlocal(x);

	for (int i = 0; i < n; i++) {
		float id = (float)rt_device_id(rt_exec_device(x, i)), w[4] = { id, id, id, id };
		ok("buffer", rt_buffer_from_host(rt_exec_device(x, i), 0, &s, w, NULL, &a[i]));
	}
	e = rt_exec_run(x, a, NULL, 0, 7, out, done);
	bool refused = e != NULL;
	for (int i = 0; i < n; i++) {
		float r[4];
		if (refused) {
			rt_buffer_unref(a[i]);
			continue;
		}
		struct err *one = rt_event_wait(done[i]);
		if (!one) {
			struct rt_event *got = rt_buffer_to_host(out[i], 0, 16, r);
			one = rt_event_wait(got);
			rt_event_unref(got);
			v[i] = r[0];
		}
		if (!e)
			e = one;
		else
			err_free(one);
		rt_event_unref(done[i]);
		rt_buffer_unref(out[i]);
		rt_buffer_unref(a[i]);
	}
	return e;
}

static void says(struct err *e, enum err_code code, const char *const *text, size_t n)
{
	if (!e)
		die("launch", "went well");
	for (size_t i = 0; i < n; i++)
		if (e->code != code || !strstr(e->msg, text[i]))
			die("another error", e->msg);
	err_free(e);
}
#define SAYS(e, code, ...) says((e), ERR_##code, (const char *const[]){ __VA_ARGS__ }, NELEM(((const char *const[]){ __VA_ARGS__ })))

/* --- what the processes of a test do ------------------------------------------------- */

static void together(int proc)
{
	static const int dev[TOTAL] = { 3, 0, 2, 4, 1 };
	int first = proc ? proc == 1 ? 2 : 3 : 0;
	float v[TOTAL];

	if (rt_client_nplace(cl) != TOTAL || rt_client_process(cl) != proc || rt_client_ndev(cl) != ndev[proc])
		die("shape", "wrong");
	for (int i = 0; i < TOTAL; i++) {
		const struct rt_place *p = rt_client_place(cl, i);
		if (p->process != (i < 2 ? 0 : i < 3 ? 1 : 2) || p->local != i - (i < 2 ? 0 : i < 3 ? 2 : 3) || !p->kind[0] || p->cores < 1)
			die("place", "wrong");
	}
	if (rt_device_id(rt_client_device(cl, 0)) != first || rt_client_place(cl, TOTAL) || rt_client_place(cl, -1))
		die("first", "wrong");
	struct rt_exec *x = ring(TOTAL, 203, dev, false, 0);
	for (int k = 0; k < 5; k++) {
		ok("launch", launch(x, v));
		for (int i = 0; i < rt_exec_nlocal(x); i++) {
			int pos = rt_exec_position(x, i);
			if (v[i] != (float)dev[(pos + TOTAL * 50 - 203) % TOTAL])
				die("result", "wrong");
		}
	}
	rt_exec_unref(x);
	/* Part of the devices: one process has no part in it. */
	static const int two[2] = { 4, 0 };
	x = ring(2, 10, two, false, 0);
	if (rt_exec_nlocal(x) != (proc != 1))
		die("part", "wrong");
	ok("part", launch(x, v));
	rt_exec_unref(x);
}

static const int all[TOTAL] = { 0, 1, 2, 3, 4 };

enum { BIG = 1 << 18 };           /* elements of what is read in place */

static const char *road;          /* RONDO_TRANSPORT, or NULL */

/* A ring of all devices, a turn of a loop at a time: before the loop, body and after it bring what is in b0 to b1 of the device `links` further
 * on in each turn, reading what `shown` others have.  lends: nothing is copied for that where devices map each other. */
static void rounds(const char *before, const char *body, const char *after, int links, int shown, bool lends)
{
	struct str s = { 0 };
	struct prog *p;
	struct rt_exec *x;
	int64_t copied, lent, turns = 42, none, first, n4 = 4 * BIG;

	/* b2, b3: temporaries; b4, b5, b7: what loan 1 and 2 show, b4 in two halves; b6: a temporary in two halves; b8 ..: what all lend by loan 3. */
	str_addf(&s, "prog \"in_place\" devices %d registers 3 zone %lld far %lld flops 0 fingerprint 02 comm 00\nsite 0 \"\"\n"
	             "group 0 1 5 [0,1,2,3,4]\narg 0 f32[%d] bytes %lld\nres 0 f32[%d] bytes %lld\nbuf 0 arg 0 size %lld\nbuf 1 out 0 size %lld\nbuf 2 temp at 0 size %lld\n"
	             "buf 3 temp at %lld size %lld\nbuf 4 lent 1 at %lld size %lld\nbuf 5 lent 2 at %lld size %lld\nbuf 6 temp at %lld size %lld\n"
	             "buf 7 lent 1 at %lld size %lld\n", TOTAL, (long long)(4 * n4), (long long)(9 * n4), BIG, (long long)n4, BIG, (long long)n4, (long long)n4, (long long)n4,
	         (long long)n4, (long long)n4, (long long)n4, (long long)(4 * n4), (long long)(2 * n4), (long long)(6 * n4), (long long)n4, (long long)(2 * n4),
	         (long long)(2 * n4), (long long)(7 * n4), (long long)n4);
	for (int k = 0; k < TOTAL; k++)
		str_addf(&s, "buf %d lent 3 at %lld size %lld\n", 8 + k, (long long)((8 + k) * n4), (long long)n4);
	for (int k = 0; k < 2; k++) {
		str_addf(&s, "table %d [", k);
		for (int i = 0; i < TOTAL; i++)
			str_addf(&s, "%s%d", i ? "," : "", (i + (k ? 1 : TOTAL - 1)) % TOTAL);
		str_add(&s, "]\n");
	}
	str_addf(&s, "kern 0 copy (f32[%d]) -> (f32[%d])\n", BIG, BIG);
	for (int k = 0; k < 3; k++)
		str_addf(&s, "coll %d permute f32 n 1 algo %s pairs 0 redop add outer 1 inner %lld hops %d\n", k, k ? "auto" : "direct", (long long)n4, k ? TOTAL - 1 : 0);
	str_addf(&s, "coll 3 all_gather f32 n 1 algo auto group 0 pairs 0 redop add outer 1 inner %lld hops %d\n", (long long)n4, TOTAL - 1);
	str_addf(&s, "run {\n kern 0 copy (b0) -> (b1)\n%s loop r1 < %d {\n %s\n }\n%s}\n", before, (int)turns, body, after);
	ok("parse", prog_parse(s.p, s.n, &p));
	str_free(&s);
	ok("check", prog_check(p));
	ok("load", rt_exec_new(cl, p, all, &x));
	rt_permuted(&none, &first);

	struct rt_shape shape = { DT_f32, 1, { BIG } };
	struct rt_buffer *a[TOTAL], *out[TOTAL];
	struct rt_event *done[TOTAL];
	float *v = mem_alloc(BIG * sizeof *v);
	int n = rt_exec_nlocal(x);
	for (int i = 0; i < n; i++) {
		for (int k = 0; k < BIG; k++)
			v[k] = (float)(rt_exec_position(x, i) * 1000 + k % 1000);
		ok("buffer", rt_buffer_from_host(rt_exec_device(x, i), 0, &shape, v, NULL, &a[i]));
	}
	ok("run", rt_exec_run(x, a, NULL, 0, 1, out, done));
	for (int i = 0; i < n; i++) {
		ok("launch", rt_event_wait(done[i]));
		struct rt_event *got = rt_buffer_to_host(out[i], 0, 4 * BIG, v);
		ok("read", rt_event_wait(got));
		int from = (rt_exec_position(x, i) + TOTAL * 100 - links * (int)turns) % TOTAL;
		for (int k = 0; k < BIG; k++)
			if (v[k] != (float)(from * 1000 + k % 1000))
				die("in place", "wrong value");
		rt_event_unref(got);
		rt_event_unref(done[i]);
		rt_buffer_unref(out[i]);
		rt_buffer_unref(a[i]);
	}
	rt_permuted(&copied, &lent);
	lends &= !road;
	if (copied - none != (lends ? 0 : shown * turns * n * n4) || lent - first != (lends ? shown * turns * n * n4 : 0))
		die("in place", "bytes were copied");
	free(v);
	rt_exec_unref(x);
}

/* What the neighbour has, read twice where it lies, then one's own is written; lent on; lent once for all turns; written in two halves, while what
 * the turn before has lent is still read; and in one buffer, by all that are in the ring. */
static void in_place(int proc)
{
	static const char lend[] = "lend 1 (b1) next 1 (b1) -> (b7) ";
	char text[700];

	snprintf(text, sizeof text, "%s kern 0 copy (b7) -> (b3)\n kern 0 copy (b7) -> (b3) back 1 wait 1 kern 0 copy (b3) -> (b1)", lend);
	rounds("", text, "", 1, 1, true);
	snprintf(text, sizeof text, "%s lend 2 (b7) next 2 (b7) -> (b5) kern 0 copy (b5) -> (b3) back 2 wait 2 back 1 wait 1 kern 0 copy (b3) -> (b1)", lend);
	rounds("", text, "", 2, 2, true);
	rounds("lend 1 (b0) next 1 by 0 (b0) -> (b4)", "next 1 (b4) -> (b4)", "kern 0 copy (b4) -> (b1) back 1 wait 1", 1, 1, true);
	snprintf(text, sizeof text, "lend 1 (b6+r2*%d) next 1 (b6+r2*%d) -> (b7) wait 1 but 1 kern 0 copy (b7) -> (b6+%d+r2*-%d) back 1 mul r2 = r2 * -1 add r2 = r2 + r0 +1", 4 * BIG, 4 * BIG, 4 * BIG, 4 * BIG);
	rounds("set r2 = 0 kern 0 copy (b0) -> (b6)", text, "kern 0 copy (b6) -> (b1) wait 1", 1, 1, true);
	/* All lend to all: the one before in rank order. */
	rounds("table r2 = 0", "lend 3 (b1) next 3 (b1) -> (b8, b9, b10, b11, b12) case r2 { kern 0 copy (b8) -> (b3) } { kern 0 copy (b9) -> (b3) } { kern 0 copy (b10) -> (b3) } "
	       "{ kern 0 copy (b11) -> (b3) } { kern 0 copy (b12) -> (b3) } back 3 wait 3 kern 0 copy (b3) -> (b1)", "", 1, TOTAL - 1, true);
	rounds("", "coll 0 permute (b1) -> (b1)", "", 1, 1, false);
	rounds("", "coll 0 permute (b1) -> (b1)\n kern 0 copy (b1) -> (b2)\n kern 0 copy (b2) -> (b1)", "", 1, 1, false);
}

static void death(int proc)
{
	float v[TOTAL];
	struct rt_exec *x = ring(TOTAL, 100000000, all, false, 0);

	if (proc == 2) {
		alarm(1);             /* SIGALRM kills */
		launch(x, v);
		die("alarm", "did not come");
	}
	double t = clock_s();
	SAYS(launch(x, v), UNAVAILABLE, "process 2 (pid ", "has died", "train.py:", "program 'ring'");
	if (clock_s() - t > 60)
		die("death", "was noticed late");
	/* The others can go on without it. */
	static const int rest[3] = { 2, 1, 0 };
	struct rt_exec *y = ring(3, 100, rest, false, 0);
	ok("the rest", launch(y, v));
	rt_exec_unref(y);
	rt_exec_unref(x);
}

static _Atomic bool over;

static struct err *lasts(void *user, const struct rt_custom_call *c)
{
	while (!atomic_load(&over))
		usleep(1000);
	return NULL;
}

/* A device whose argument is not there hears of a death, too. */
static void ungiven(int proc)
{
	static const char text[] =
		"prog \"lasts\" devices 1 registers 1 zone 0 flops 0 fingerprint 26 comm 00\n"
		"arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\nbuf 0 arg 0 size 16\nbuf 1 out 0 size 16\n"
		"custom 0 \"lasts\" api 4 (f32[4]) -> (f32[4])\nrun {\n custom 0 \"lasts\" (b0) -> (b1)\n}\n";
	static const float zero[4];
	struct rt_shape s = { DT_f32, 1, { 4 } };
	struct rt_buffer *a[2], *made, *out[2];
	struct rt_event *done[2];
	struct prog *p;
	struct rt_exec *y, *x = ring(TOTAL, 100000000, all, false, 0);
	float v[TOTAL];

	if (proc == 2) {
		alarm(1);             /* SIGALRM kills */
		launch(x, v);
		die("alarm", "did not come");
	}
	if (ndev[proc] < 2) {
		struct err *e = launch(x, v);
		if (!e)
			die("launch", "went well");
		err_free(e);
		rt_exec_unref(x);
		return;
	}
	rt_custom_register("lasts", lasts, NULL);
	int dev = rt_device_id(rt_exec_device(x, 0));
	ok("parse", prog_parse(text, sizeof text - 1, &p));
	ok("load", rt_exec_new(cl, p, &dev, &y));
	for (int i = 0; i < 2; i++)
		ok("buffer", rt_buffer_from_host(rt_exec_device(x, i), 0, &s, zero, NULL, &a[i]));
	ok("run", rt_exec_run(y, a, NULL, 0, 0, &made, done));
	rt_event_unref(done[0]);
	rt_buffer_unref(a[1]);
	ok("copy", rt_buffer_copy(made, rt_exec_device(x, 1), 0, &a[1]));
	ok("launch", rt_exec_run(x, a, NULL, 0, 7, out, done));
	SAYS(rt_event_wait(done[1]), UNAVAILABLE, "process 2 (pid ", "has died", "program 'ring'");
	atomic_store(&over, true);
	err_free(rt_event_wait(done[0]));
	for (int i = 0; i < 2; i++) {
		rt_event_unref(done[i]);
		rt_buffer_unref(out[i]);
		rt_buffer_unref(a[i]);
	}
	rt_buffer_unref(made);
	rt_exec_unref(x);
	rt_exec_unref(y);
}

static void poor(int proc)
{
	float v[TOTAL];
	struct rt_exec *x = ring(TOTAL, 10, all, false, proc == 1 ? (size_t)1 << 50 : 0);
	struct err *e = launch(x, v);

	if (proc == 1)
		SAYS(e, EXHAUSTED, "out of memory");
	else
		SAYS(e, ABORTED, "device 2", "out of memory");
	rt_exec_unref(x);
	x = ring(TOTAL, 10, all, false, 0);
	ok("afterwards", launch(x, v));
	rt_exec_unref(x);
}

static struct err *fails(void *user, const struct rt_custom_call *c) { return ERR(INTERNAL, "it was to fail"); }
static struct err *passes(void *user, const struct rt_custom_call *c) { return NULL; }

/* A device whose launch has failed is not held up by one that has not come to it; nor is its client. */
static void unheld(int proc)
{
	static const char text[] =
		"prog \"held\" devices %d registers 1 zone 64 flops 0 fingerprint 03 comm %s\n"
		"arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\nbuf 0 arg 0 size 16\nbuf 1 out 0 size 16\nbuf 2 temp at 0 size 16\n%s"
		"custom 0 \"stumbles\" api 4 (f32[4]) -> (f32[4])\nkern 0 copy (f32[4]) -> (f32[4])\n"
		"run {\n custom 0 \"stumbles\" (b0) -> (b2)\n%s kern 0 copy (b0) -> (b1)\n}\n";
	static const int mine[1] = { 0 };
	struct str one = { 0 }, together_ = { 0 };
	struct prog *p;
	struct rt_exec *x, *alone;
	float v[TOTAL];

	rt_custom_register("stumbles", proc ? passes : fails, NULL);
	str_addf(&together_, text, TOTAL, "00", "group 0 1 5 [0,1,2,3,4]\ncoll 0 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 16\n", "coll 0 all_reduce (b0) -> (b2)\n");
	ok("parse", prog_parse(together_.p, together_.n, &p));
	p->comm_hash = prog_comm_hash(p);
	ok("load", rt_exec_new(cl, p, all, &x));
	if (proc) {
		ok("the first goes on alone", kv->get(kv->user, "alone", 100000, &one));
		SAYS(launch(x, v), ABORTED, "it was to fail");
	} else {
		SAYS(launch(x, v), INTERNAL, "it was to fail");
		rt_custom_register("stumbles", passes, NULL);
		str_addf(&one, text, 1, "00", "", "");
		ok("parse", prog_parse(one.p, one.n, &p));
		ok("load", rt_exec_new(cl, p, mine, &alone));
		ok("alone", launch(alone, v));
		ok("alone", kv->put(kv->user, "alone", "1", 1));
		rt_exec_unref(alone);
		rt_exec_unref(x);
		str_free(&one);
		str_free(&together_);
		end();
	}
	rt_exec_unref(x);
	str_free(&one);
	str_free(&together_);
}

static struct err *stumbles(void *user, const struct rt_custom_call *c)
{
	memcpy(c->out[0], c->in[0], 16);
	return user ? fails(NULL, c) : NULL;
}

/* A device fails before it has given back what it was lent: who lent it does not wait for that, and all others have what they want. */
static void kept(int proc)
{
	enum { LIMIT_S = 60 };
	struct str s = { 0 };
	struct prog *p;
	struct rt_exec *x;
	float v[TOTAL];

	alarm(LIMIT_S);
	rt_custom_register("stumbles", stumbles, proc == 1 ? &s : NULL);
	str_addf(&s, "prog \"kept\" devices %d registers 1 zone 192 flops 0 fingerprint 04 comm 00\n"
	             "arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\nbuf 0 arg 0 size 16\nbuf 1 out 0 size 16\nbuf 2 temp at 0 size 16\nbuf 3 lent 0 at 64 size 16\nbuf 4 temp at 128 size 16\n"
	             "table 0 [4,0,1,2,3]\ntable 1 [1,2,3,4,0]\nkern 0 copy (f32[4]) -> (f32[4])\ncustom 0 \"stumbles\" api 4 (f32[4]) -> (f32[4])\n"
	             "coll 0 permute f32 n 1 algo auto pairs 0 redop add outer 1 inner 16 hops 1\n"
	             "run {\n kern 0 copy (b0) -> (b2)\n lend 0 (b2)\n next 0 (b2) -> (b3)\n custom 0 \"stumbles\" (b3) -> (b4)\n back 0\n wait 0\n"
	             " kern 0 copy (b4) -> (b1)\n}\n", TOTAL);
	ok("parse", prog_parse(s.p, s.n, &p));
	p->comm_hash = prog_comm_hash(p);
	ok("check", prog_check(p));
	ok("load", rt_exec_new(cl, p, all, &x));
	struct err *e = launch(x, v);
	if (proc == 1)
		SAYS(e, INTERNAL, "it was to fail");
	else
		ok("the others", e);
	for (int i = 0; i < rt_exec_nlocal(x) && proc != 1; i++)
		if (v[i] != (float)((rt_exec_position(x, i) + TOTAL - 1) % TOTAL))
			die("kept", "wrong value");
	rt_exec_unref(x);
	x = ring(TOTAL, 10, all, false, 0);
	ok("afterwards", launch(x, v));
	rt_exec_unref(x);
	str_free(&s);
}

static void apart(int proc)
{
	float v[TOTAL];
	struct rt_exec *x = ring(TOTAL, 10, all, proc == 1, 0);
	struct err *e = launch(x, v);

	if (!e)
		die("apart", "went well");
	if (e->code == ERR_INTERNAL)
		SAYS(e, INTERNAL, "devices have diverged", "differs from this device's first in command 1", "permute", "all_reduce by max of f32");
	else
		SAYS(e, ABORTED, "devices have diverged");
	rt_exec_unref(x);
}

/* One process has two devices the other way round. */
static void turned(int proc)
{
	static const int other[TOTAL] = { 1, 0, 2, 3, 4 };
	float v[TOTAL];
	struct rt_exec *x = ring(TOTAL, 10, proc == 2 ? other : all, false, 0);
	struct err *e = launch(x, v);

	if (!e)
		die("turned", "went well");
	if (e->code == ERR_INTERNAL)
		SAYS(e, INTERNAL, "devices have diverged", "these in another order: at position 0 here device");
	else
		SAYS(e, ABORTED, "devices have diverged");
	rt_exec_unref(x);
}

/* The three have tables that differ: all go by that of process 0. */
static void tabled(int proc)
{
	struct plan_table *t = mem_alloc(sizeof *t);
	struct plan_on p = { t, TOTAL, 0, NULL };
	int host[TOTAL];

	made(t, 0);
	struct plan_on got = rt_client_plan(cl, TOTAL, all, host);
	if (plan_table_hash(got.table) != plan_table_hash(t))
		die("table", "it is not process 0's");
	p.cores = got.cores;
	p.host = got.host;
	if (plan_hash(&got, TOTAL) != plan_hash(&p, TOTAL))
		die("plan", "it is not process 0's");
	if (got.table->source != (proc ? PLAN_JOB : PLAN_FILE))
		die("table", "it says that it is from elsewhere");
	free(t);
	together(proc);
}

/* --- starting them ---------------------------------------------------------------------- */

static void with(void (*fn)(int proc), int victim)
{
	char dir[] = "/tmp/rondo-rt-XXXXXX", cmd[64];
	pid_t pid[3];

	assert_non_null(mkdtemp(dir));
	fflush(NULL);
	for (int i = 0; i < 3; i++)
		if (!(pid[i] = fork())) {
			if (i != victim)
				alarm(300);
			if (road)
				setenv("RONDO_TRANSPORT", road, 1);
			start(dir, i, 3);
			fn(i);
			end();
		}
	for (int i = 0; i < 3; i++) {
		int st;
		assert_int_equal(waitpid(pid[i], &st, 0), pid[i]);
		if (i == victim)
			assert_true(WIFSIGNALED(st));
		else
			assert_int_equal(st, 0);
	}
	snprintf(cmd, sizeof cmd, "rm -r %s", dir);
	assert_int_equal(system(cmd), 0);
}

/* One process cannot: the others hear of it and do not wait. */
static void refused(int proc)
{
	enum { ROOM = 100000000 };
	struct str s = { 0 };

	if (proc == 1) {
		ok("statm", str_read_file(&s, "/proc/self/statm"));
		rlim_t most = strtoull(s.p, NULL, 10) * (rlim_t)sysconf(_SC_PAGESIZE) + ROOM;
		setrlimit(RLIMIT_AS, &(struct rlimit){ most, most });
		str_free(&s);
		SAYS(rt_client_new(&(struct rt_opts){ .ndev = 1, .boot = kv }, &cl), EXHAUSTED, "address space");
	} else
		SAYS(rt_client_new(&(struct rt_opts){ .ndev = 1, .boot = kv }, &cl), UNAVAILABLE, "process 1 could not join the job", "address space");
	sym_boot_free(kv);
	leave(0);
}

static void test_together(void **state) { with(together, -1); }
static void test_in_place(void **state) { with(in_place, -1); }
static void test_far(void **state)
{
	road = "tcp";
	with(in_place, -1);
	road = NULL;
}
static void test_refused(void **state)
{
	refusing = true;
	with(refused, -1);
	refusing = false;
}
static void test_tabled(void **state)
{
	tables = true;
	with(tabled, -1);
	tables = false;
}
static void test_death(void **state) { with(death, 2); }
static void test_ungiven(void **state) { with(ungiven, 2); }
static void test_poor(void **state) { with(poor, -1); }
static struct err *taken_put(void *user, const char *key, const void *value, size_t n) { return ERR(ALREADY_EXISTS, "'%s' is there", key); }
static struct err *taken_get(void *user, const char *key, int ms, struct str *out) { return ERR(NOT_FOUND, "nothing"); }

/* The store is another job's: that is said, at once. */
static void test_taken(void **state)
{
	struct kv other = { .process = 1, .nprocess = 2, .put = taken_put, .get = taken_get };
	struct err *e = rt_client_new(&(struct rt_opts){ .ndev = 1, .boot = &other }, &cl);

	assert_non_null(e);
	assert_int_equal(e->code, ERR_ALREADY_EXISTS);
	assert_non_null(strstr(e->msg, "another job has this address"));
	err_free(e);
	other.process = 0;
	e = sym_open(&(struct sym_opts){ .nlocal = 1, .boot = &other }, &(struct sym_world *){ NULL });
	assert_non_null(e);
	err_free(e);
}

static void test_unheld(void **state) { with(unheld, -1); }
static void test_kept(void **state) { with(kept, -1); }
static void test_apart(void **state) { with(apart, -1); }
static void test_turned(void **state) { with(turned, -1); }

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_together), cmocka_unit_test(test_tabled), cmocka_unit_test(test_in_place), cmocka_unit_test(test_far), cmocka_unit_test(test_death), cmocka_unit_test(test_ungiven), cmocka_unit_test(test_poor), cmocka_unit_test(test_unheld), cmocka_unit_test(test_kept), cmocka_unit_test(test_taken), cmocka_unit_test(test_apart), cmocka_unit_test(test_turned), cmocka_unit_test(test_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
