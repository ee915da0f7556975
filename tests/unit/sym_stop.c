/* What must stop while it waits for the network does so at once, though the other process does not move; and what it has given up
 * touches nothing of it afterwards. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "leave.h"
#include "sym/sym.h"
#include "thread_check.h"

/* MUCH is more than both sockets hold.  Who is not prompt waits for the other process, which does not move before. */
enum { MUCH = 48 << 20, AFTER_MS = 200, PROMPT_S = 30, SITE = 1, YIELDED = 7, KEPT = 9 };

/* act NULL: one_sided.  goes_on: another launch succeeds. */
struct scene { const char *road; bool chaos; void (*act)(struct sym_world *w, struct sym_ep *ep, size_t off); bool goes_on; };

static char dir[64];
static pid_t other;
static _Atomic int stop;
static int told[2];                    /* a pipe: the second process is so far */

static void reads_long(struct sym_world *w, struct sym_ep *ep, size_t off);

static void world_open(const struct scene *s, int i, struct kv **kv, struct sym_world **w)
{
	conf_set("PROCESSES", "2");
	conf_set("PROCESS", i ? "1" : "0");
	conf_set("TRANSPORT", s->road);
	conf_set("TIMEOUT", s->act == reads_long && !i ? "2" : "0");
	CHECK_OK(sym_boot_env(kv));
	CHECK_OK(sym_open(&(struct sym_opts){ .nlocal = 1, .boot = *kv, .threads = 1, .chaos = s->chaos, .seed = (uint64_t)i }, w));
}

static void *soon(void *v)
{
	nanosleep(&(struct timespec){ 0, AFTER_MS * 1000000 }, NULL);
	atomic_store(&stop, 1);
	return NULL;
}

/* Until no thread of it runs. */
static void other_stopped(void)
{
	char path[40], line[200] = "";

	snprintf(path, sizeof path, "/proc/%d/stat", other);
	while (!strstr(line, ") T ")) {
		FILE *f = fopen(path, "r");
		CHECK(f && fgets(line, sizeof line, f));
		fclose(f);
	}
}

static void other_stops(void)
{
	kill(other, SIGSTOP);
	other_stopped();
}

/* Stop the other process, wait for it by x, and be stopped. */
#define GIVEN_UP(x) do { \
		pthread_t t_; \
		other_stops(); \
		pthread_create(&t_, NULL, soon, NULL); \
		double since_ = clock_s(); \
		x; \
		CHECK(clock_s() - since_ < PROMPT_S); \
		pthread_join(t_, NULL); \
	} while (0)

static char *filled(int v) { return memset(malloc(MUCH), v, MUCH); }
static bool all_are(const char *x, char v) { return x[0] == v && !memcmp(x, x + 1, MUCH - 1); }

static char *kept;

/* A read that does not come. */
static void reads(struct sym_world *w, struct sym_ep *ep, size_t off)
{
	kept = filled(1);
	GIVEN_UP(sym_get(ep, 1, kept, off, MUCH));
	memset(kept, KEPT, MUCH);
}

/* Of which nothing comes for RONDO_TIMEOUT seconds. */
static void reads_long(struct sym_world *w, struct sym_ep *ep, size_t off)
{
	kept = filled(1);
	other_stops();
	double since = clock_s();
	sym_get(ep, 1, kept, off, MUCH);
	CHECK(clock_s() - since < PROMPT_S);
	memset(kept, KEPT, MUCH);
}

static void reads_nb(struct sym_world *w, struct sym_ep *ep, size_t off)
{
	_Atomic uint32_t left = 0;

	kept = filled(1);
	GIVEN_UP(sym_get_nb(ep, 1, kept, off, MUCH, &left); sym_get_wait(ep, &left));
	CHECK(!atomic_load(&left));
	memset(kept, KEPT, MUCH);
}

/* One of which some has come; on a busy machine all of it may have. */
static void reads_on(struct sym_world *w, struct sym_ep *ep, size_t off)
{
	_Atomic uint32_t left = 0;

	kept = filled(1);
	sym_get_nb(ep, 1, kept, off, MUCH, &left);
	nanosleep(&(struct timespec){ 0, 2000000 }, NULL);
	GIVEN_UP(sym_get_wait(ep, &left));
	CHECK(!atomic_load(&left));
	memset(kept, KEPT, MUCH);
}

/* Without memory there is nothing to ask by, nor to keep what does not go. */
static bool refuse(size_t n) { return n < MUCH; }

static void reads_poor(struct sym_world *w, struct sym_ep *ep, size_t off)
{
	mem_refuse(refuse);
	reads_nb(w, ep, off);
	mem_refuse(NULL);
}

static void writes_poor(struct sym_world *w, struct sym_ep *ep, size_t off)
{
	enum { MANY = 100, EACH = 1 << 10 };
	static char word[MANY][EACH];
	_Atomic uint32_t left = 0;
	char *src = filled(YIELDED);

	mem_refuse(refuse);
	GIVEN_UP(sym_put_nb(ep, 1, off, src, MUCH, &left); for (int i = 0; i < MANY; i++) sym_put_nb(ep, 1, off, word[i], EACH, &left); sym_get_wait(ep, &left));
	mem_refuse(NULL);
	CHECK(!atomic_load(&left));
	free(src);
}

/* A write that is not taken, and a message behind it. */
static void writes(struct sym_world *w, struct sym_ep *ep, size_t off)
{
	char *src = filled(YIELDED);
	_Atomic uint32_t left = 0;

	GIVEN_UP(sym_put_nb(ep, 1, off, src, MUCH, &left); sym_get_wait(ep, &left));
	CHECK(!atomic_load(&left));
	memset(src, KEPT, MUCH);
	free(src);
}

static void writes_and_tells(struct sym_world *w, struct sym_ep *ep, size_t off)
{
	char *src = filled(YIELDED), *slot = filled(YIELDED);

	GIVEN_UP(sym_put(ep, 1, off, src, MUCH); CHECK_OK(sym_slot_put(ep, 1, SITE, slot, SYM_SLOT)));
	memset(src, KEPT, MUCH);
	memset(slot, KEPT, MUCH);
	free(src);
	free(slot);
}

/* Where RONDO_TIMEOUT is short it is for what the test waits for, not for a process that a busy machine lets wait. */
static void tells(void) { CHECK(write(told[1], "", 1) == 1); }
static void hears(void) { CHECK(read(told[0], &(char){ 0 }, 1) == 1); }

/* Another launch of both. */
static void exchange(struct sym_ep *ep, int peer)
{
	struct sym_msg m;

	sym_begin(ep, &(struct sym_launch){ .prog = 2, .name = "two", .peer = &peer, .npeer = 1 });
	CHECK_OK(sym_slot_put(ep, peer, SITE, "ok", 3));
	CHECK_OK(sym_recv(ep, peer, SITE, SYM_SLOT_MSG, &m));
	CHECK(m.n == 3 && !memcmp(m.data, "ok", 3));
	sym_end(ep, NULL);
}

static int second(const struct scene *s)
{
	struct sym_world *w;
	struct sym_block *b;
	struct sym_msg m;
	struct kv *kv;
	int peer = 0;

	world_open(s, 1, &kv, &w);
	struct sym_ep *ep = sym_ep_of(w, 1);
	CHECK_OK(sym_alloc(sym_heap_of(w, 1), MUCH, "block", -1, &b));
	char *at = sym_ep_base(ep) + b->off;
	memset(at, YIELDED, MUCH);
	sym_begin(ep, &(struct sym_launch){ .prog = 1, .name = "one", .peer = &peer, .npeer = 1 });
	CHECK_OK(sym_tell(ep, 0, SITE, SYM_GRANT, b->off, MUCH));
	tells();
	struct err *e = sym_recv(ep, 0, SITE, SYM_READY, &m);
	CHECK(e && (e->code == ERR_ABORTED || e->code == ERR_INTERNAL || (!s->goes_on && e->code == ERR_UNAVAILABLE)));
	sym_end(ep, e);
	err_free(e);
	if (s->goes_on) {
		tells();
		exchange(ep, 0);
		CHECK(all_are(at, YIELDED));      /* nothing that was written over at the other side has come */
	}
	sym_free(b);
	sym_close(w);
	sym_boot_free(kv);
	return 0;
}

static int first(const struct scene *s)
{
	struct sym_world *w;
	struct sym_msg m;
	struct kv *kv;
	int peer = 1;

	world_open(s, 0, &kv, &w);
	struct sym_ep *ep = sym_ep_of(w, 0);
	sym_begin(ep, &(struct sym_launch){ .prog = 1, .name = "one", .peer = &peer, .npeer = 1, .stop = &stop });
	hears();
	CHECK_OK(sym_recv(ep, 1, SITE, SYM_GRANT, &m));
	sym_return(ep, 1, true);
	s->act(w, ep, m.off);
	struct err *e = sym_lost(ep);             /* what it has not waited for it cannot have succeeded with */
	if (!e && s->act == reads_on)
		e = ERR(ABORTED, "all has come");
	CHECK(e && (e->code == (s->act == reads_long ? ERR_DEADLINE : ERR_ABORTED) || (!s->goes_on && e->code == ERR_UNAVAILABLE)));
	sym_quit(ep, e, NULL, NULL);
	err_free(e);
	kill(other, SIGCONT);
	if (s->goes_on) {
		hears();
		exchange(ep, 1);
		CHECK_OK(sym_clear_wait(ep));
	}
	CHECK(!kept || all_are(kept, KEPT));
	free(kept);
	sym_close(w);
	sym_boot_free(kv);
	return 0;
}

/* A stream that is cancelled, a context of a world that is: what they read is zeros, what they have written may be written over. */
static void *cancelled(void *v)
{
	nanosleep(&(struct timespec){ 0, AFTER_MS * 1000000 }, NULL);
	sym_cancel(v);
	return NULL;
}

static int one_sided(const struct scene *s, int i)
{
	struct sym_stream *stream;
	struct sym_world *w;
	struct sym_ctx *c;
	static struct sym_mem *m;           /* who frees it waits for all, of whom one waits for the other to leave */
	struct kv *kv;
	pthread_t t;

	world_open(s, i, &kv, &w);
	CHECK_OK(sym_mem_new(sym_team_world(w, i), MUCH, "memory", &m));
	CHECK_OK(sym_ctx_new(w, i, SYM_PRIVATE, &c));
	if (i) {
		struct err *e = sym_wait_until(c, m, 0, SYM_U64, SYM_EQ, 1, 0, NULL);
		CHECK(e && e->code == ERR_UNAVAILABLE);
		err_free(e);
	} else {
		char *x = filled(1), *y = filled(1);
		CHECK_OK(sym_stream_new(w, 0, "stream", &stream));
		other_stops();
		sym_stream_get(stream, x, m, 0, MUCH, 1);
		nanosleep(&(struct timespec){ 0, AFTER_MS * 1000000 }, NULL);
		double since = clock_s();
		sym_stream_cancel(stream);
		struct err *e = sym_stream_sync(stream);
		CHECK(e && e->code == ERR_CANCELLED && clock_s() - since < PROMPT_S);
		CHECK(all_are(x, 0) || all_are(x, 1));      /* it may not have begun to read */
		err_free(e);
		sym_stream_free(stream);
		pthread_create(&t, NULL, cancelled, w);
		sym_ctx_get_nbi(c, x, m, 0, MUCH, 1);
		sym_ctx_get(c, y, m, 0, MUCH, 1);
		e = sym_ctx_quiet(c);
		CHECK(e && e->code == ERR_CANCELLED && clock_s() - since < 2 * PROMPT_S);
		CHECK(all_are(x, 0) && all_are(y, 0));
		err_free(e);
		pthread_join(t, NULL);
		memset(x, KEPT, MUCH);
		kill(other, SIGCONT);
		nanosleep(&(struct timespec){ 0, AFTER_MS * 1000000 }, NULL);
		CHECK(all_are(x, KEPT));
		free(x);
		free(y);
	}
	sym_ctx_free(c);
	sym_close(w);
	sym_boot_free(kv);
	return 0;
}

/* One stops when it has asked for much, for good, and the one that it asked leaves: the answer is taken back. */
static void asks(struct sym_world *w, struct sym_ep *ep, size_t off)
{
	_Atomic uint32_t left = 0;

	sym_get_nb(ep, 0, filled(1), off, MUCH, &left);
	raise(SIGSTOP);
}

static int asked(const struct scene *s, int i)
{
	struct sym_world *w;
	struct sym_block *b;
	struct sym_msg m;
	struct kv *kv;
	int peer = !i;

	world_open(s, i, &kv, &w);
	struct sym_ep *ep = sym_ep_of(w, i);
	sym_begin(ep, &(struct sym_launch){ .prog = 1, .name = "one", .peer = &peer, .npeer = 1 });
	if (i) {
		CHECK_OK(sym_recv(ep, 0, SITE, SYM_GRANT, &m));
		s->act(w, ep, m.off);
		return 1;
	}
	CHECK_OK(sym_alloc(sym_heap_of(w, 0), MUCH, "block", -1, &b));
	CHECK_OK(sym_tell(ep, 1, SITE, SYM_GRANT, b->off, MUCH));
	other_stopped();
	nanosleep(&(struct timespec){ 0, AFTER_MS * 1000000 }, NULL);
	struct err *e = ERR(ABORTED, "it leaves");
	sym_quit(ep, e, NULL, NULL);
	err_free(e);
	sym_free(b);
	double since = clock_s();
	sym_close(w);
	CHECK(clock_s() - since < PROMPT_S);
	sym_boot_free(kv);
	kill(other, SIGKILL);
	return 0;
}

static void run(const struct scene *s)
{
	char cmd[100];
	pid_t pid[2];
	int st, bad = 0;

	snprintf(dir, sizeof dir, "/tmp/rondo-stop-XXXXXX");
	assert_non_null(mkdtemp(dir));
	conf_set("RENDEZVOUS", dir);
	fflush(NULL);
	assert_int_equal(pipe(told), 0);
	for (int i = 1; i >= 0; i--) {
		if ((pid[i] = fork())) {
			other = pid[i];
			continue;
		}
		close(told[!i]);
		alarm(200);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		leave(s->act == asks ? asked(s, i) : !s->act ? one_sided(s, i) : i ? second(s) : first(s));
	}
	close(told[0]);
	close(told[1]);
	assert_int_equal(waitpid(pid[0], &st, 0), pid[0]);
	bad += st;
	if (st) {                                 /* it may be stopped */
		kill(pid[1], SIGKILL);
		waitpid(pid[1], &st, 0);
	} else {
		assert_int_equal(waitpid(pid[1], &st, 0), pid[1]);
		if (s->act == asks)
			st = !WIFSIGNALED(st) || WTERMSIG(st) != SIGKILL;
	}
	snprintf(cmd, sizeof cmd, "rm -r %s", dir);
	assert_int_equal(system(cmd), 0);
	assert_int_equal(bad + st, 0);
}

static void tcp(void **state)
{
	run(&(struct scene){ "tcp", false, reads, true });
	run(&(struct scene){ "tcp", false, NULL, true });
	run(&(struct scene){ "tcp", false, reads_nb, true });
	run(&(struct scene){ "tcp", false, reads_on, true });
	run(&(struct scene){ "tcp", false, writes, true });
	run(&(struct scene){ "tcp", false, writes_and_tells, true });
	run(&(struct scene){ "tcp", false, reads_poor, true });
	run(&(struct scene){ "tcp", false, writes_poor, false });
	run(&(struct scene){ "tcp", false, asks, false });
}

static void chaos(void **state)
{
	run(&(struct scene){ "tcp", true, reads, true });
	run(&(struct scene){ "tcp", true, NULL, true });
	run(&(struct scene){ "tcp", true, reads_nb, true });
	run(&(struct scene){ "tcp", true, writes, true });
}

static void ucx(void **state)
{
	run(&(struct scene){ "ucx", false, reads, true });
	run(&(struct scene){ "ucx", false, reads_long, true });
	run(&(struct scene){ "ucx", false, NULL, true });
	run(&(struct scene){ "ucx", false, reads_nb, true });
	run(&(struct scene){ "ucx", false, writes, false });
	for (int i = 0; i < 3; i++)
		run(&(struct scene){ "ucx", false, asks, false });
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(tcp), cmocka_unit_test(chaos), cmocka_unit_test(ucx) };

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
