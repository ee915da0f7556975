/* There is no memory at the k-th allocation, for every k: compile, load, launch and join give an error that says so, nothing is
 * held any more (the leak sanitizer looks), and the next attempt works. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <pthread.h>
#include <dirent.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "ir/ir.h"
#include "pass/pass.h"
#include "rt/rt.h"
#include "slow_send.h"

enum { NDEV = 2, SLOWLY = 12 };

static struct rt_client *cl;

static void ok(struct err *e)
{
	if (e)
		fail_msg("%s", e->msg);
}

static struct err *get(struct rt_buffer *b, int64_t n, float *v)
{
	struct rt_event *e = rt_buffer_to_host(b, 0, n * 4, v);
	struct err *err = rt_event_wait(e);

	rt_event_unref(e);
	return err;
}

static int teardown(void **state)
{
	rt_client_free(cl);
	return 0;
}

/* --- refusing ----------------------------------------------------------------------- */

static _Atomic long count, first;
static _Atomic bool all;            /* also those that follow */

static bool refuse(size_t n)
{
	long k = atomic_fetch_add(&count, 1) + 1, f = atomic_load(&first);

	return atomic_load(&all) ? k >= f : k == f;
}

static void refuse_from(long k)
{
	atomic_store(&count, 0);
	atomic_store(&first, k);
	mem_refuse(refuse);
}

/* True if all was allowed. */
static bool allow(void)
{
	mem_refuse(NULL);
	return atomic_load(&count) < atomic_load(&first);
}

static void says_so(struct err *e, long k)
{
	if (e->code != ERR_EXHAUSTED || !strstr(e->msg, "memory"))
		fail_msg("allocation %ld: error %d, %s", k, (int)e->code, e->msg);
	err_free(e);
}

/* There was something to refuse: the hook is where memory is taken. */
static void counted(const char *what, long k)
{
	print_message("%s: %ld\n", what, k);
	assert_true(k > 1);
}

/* --- the parts ----------------------------------------------------------------------- */

struct task { const char *text; int ndev; enum lower_tier tier; struct prog *p; struct rt_exec *x; };

static struct err *compile(void *v)
{
	struct task *t = v;
	struct pass_opts o = { .ndev = t->ndev, .tier = t->tier };
	struct ir_module *m;

	TRY(ir_parse(t->text, strlen(t->text), &m));
	struct err *e = pass_compile(&o, m, &t->p);
	ir_module_free(m);
	return e;
}

static struct err *load_it(void *v)
{
	static const int dev[NDEV] = { 0, 1 };
	struct task *t = v;

	return rt_exec_new(cl, t->p, dev, &t->x);
}

static void compiles(struct task *t)
{
	for (long k = 1;; k++) {
		refuse_from(k);
		struct err *e = mem_guard(compile, t, true);
		bool whole = allow();
		if (e) {
			says_so(e, k);
			assert_false(whole);
		} else if (whole)
			return counted("compile", k);
		else
			prog_free(t->p);
	}
}

static void loads(struct task *t)
{
	for (long k = 1;; k++) {
		refuse_from(k);
		struct err *e = mem_guard(load_it, t, true);
		bool whole = allow();
		if (e) {
			says_so(e, k);
			assert_false(whole);
			ok(mem_guard(compile, t, true));           /* the program was taken */
		} else if (whole)
			return counted("load", k);
		else {
			rt_exec_unref(t->x);
			ok(mem_guard(compile, t, true));
		}
	}
}

static void launches(struct task *t, int64_t n)
{
	float *in = calloc((size_t)n, sizeof *in), *got = malloc((size_t)n * sizeof *got), *want[NDEV] = { 0 };

	for (int64_t i = 0; i < n; i++)
		in[i] = (float)(i % 17);
	for (long k = 0;; k++) {
		struct rt_buffer *arg[NDEV], *out[NDEV] = { 0 };
		struct rt_event *done[NDEV];
		bool well = true;
		for (int d = 0; d < t->ndev; d++) {
			struct rt_shape s = { DT_f32, 1, { n } };
			if (t->ndev == 1)
				s = (struct rt_shape){ DT_f32, 2, { 256, 512 } };
			ok(rt_buffer_from_host(rt_client_device(cl, d), 0, &s, in, NULL, &arg[d]));
		}
		refuse_from(k ? k : 1 << 30);
		struct err *e = rt_exec_run(t->x, arg, NULL, 0, 1, out, done);
		for (int d = 0; d < t->ndev && !e; d++) {
			struct err *why = rt_event_wait(done[d]);
			well &= !why;
			if (why)
				says_so(why, k);
		}
		bool whole = allow();
		if (e) {
			says_so(e, k);
			well = false;
		}
		for (int d = 0; d < t->ndev; d++) {
			if (well) {
				ok(get(out[d], n, got));
				if (!k) {
					want[d] = malloc((size_t)n * sizeof *got);
					memcpy(want[d], got, (size_t)n * sizeof *got);
				}
				assert_memory_equal(got, want[d], (size_t)n * sizeof *got);
			}
			rt_buffer_unref(arg[d]);
			if (!e) {
				rt_buffer_unref(out[d]);
				rt_event_unref(done[d]);
			}
		}
		assert_true(well || !whole);
		if (k && whole) {
			counted("launch", k);
			break;
		}
	}
	free(in);
	free(got);
	free(want[0]);
	free(want[1]);
}

static const char softmax[] =
	"module @softmax partitions=1 replicas=1\n"
	"fn @main(%1: f32[256,512]) -> (f32[256,512]) {\n"
	"  %2 = constant data=-inf : f32[]\n"
	"  %3 = reduce %1, %2 dims=[1] redop=max : f32[256]\n"
	"  %4 = broadcast %3 dims=[0] : f32[256,512]\n"
	"  %5 = subtract %1, %4 : f32[256,512]\n"
	"  %6 = exponential %5 : f32[256,512]\n"
	"  %7 = constant data=0 : f32[]\n"
	"  %8 = reduce %6, %7 dims=[1] redop=add : f32[256]\n"
	"  %9 = broadcast %8 dims=[0] : f32[256,512]\n"
	"  %10 = divide %6, %9 : f32[256,512]\n"
	"  return %10\n"
	"}\n";

static const char gather[] =
	"module @gather partitions=2 replicas=1\n"
	"fn @main(%1: f32[2048]) -> (f32[2048]) {\n"
	"  %2 = loop %1 trip=3 body=@body role=[carry] : f32[2048]\n"
	"  return %2\n"
	"}\n"
	"fn @body(%1: i32[], %2: f32[2048]) -> (f32[2048]) {\n"
	"  %3 = all_gather %2 dim=0 group=[[0,1]] : f32[4096]\n"
	"  %4 = slice %3 start=[2048] limit=[4096] stride=[1] : f32[2048]\n"
	"  %5 = all_reduce %4 group=[[0,1]] redop=add : f32[2048]\n"
	"  %6 = sine %5 : f32[2048]\n"
	"  return %6\n"
	"}\n";

/* What goes round is lent, and read where it lies. */
static const char ring[] =
	"module @ring partitions=2 replicas=1\n"
	"fn @main(%1: f32[2048]) -> (f32[2048]) {\n"
	"  %2, %3 = loop %1, %1 trip=3 body=@body role=[carry,carry] : f32[2048], f32[2048]\n"
	"  return %3\n"
	"}\n"
	"fn @body(%1: i32[], %2: f32[2048], %3: f32[2048]) -> (f32[2048], f32[2048]) {\n"
	"  %4 = add %3, %2 : f32[2048]\n"
	"  %5 = collective_permute %2 pairs=[0,1,1,0] : f32[2048]\n"
	"  return %5, %4\n"
	"}\n";

static void one(const char *text, int ndev, enum lower_tier tier, int64_t n)
{
	for (int rest = 0; rest < 2; rest++) {
		struct task t = { text, ndev, tier, NULL, NULL };
		atomic_store(&all, rest);
		compiles(&t);
		loads(&t);
		launches(&t, n);
		rt_exec_unref(t.x);
	}
}

static void one_device(void **state)
{
	one(softmax, 1, TIER_REF, 256 * 512);
	one(softmax, 1, TIER_GEN, 256 * 512);
}

static void two_devices(void **state)
{
	one(gather, 2, TIER_AUTO, 2048);
	one(ring, 2, TIER_REF, 2048);
}

/* --- donated states: what goes from launch to launch together -------------------------------- */

static const char states[] =
	"module @states partitions=1 replicas=1\n"
	"fn @main(%1: f32[2048] alias=0, %2: f32[2048] alias=1, %3: f32[2048]) -> (f32[2048], f32[2048]) {\n"
	"  %4 = add %1, %3 : f32[2048]\n"
	"  %5 = add %2, %4 : f32[2048]\n"
	"  return %4, %5\n"
	"}\n";

/* A launch that could not be leaves the states as they were, and the next one takes them. */
static void donates(void **state)
{
	static const float one[2048] = { 1, 1 };
	const struct rt_shape s = { DT_f32, 1, { 2048 } };

	for (int rest = 0; rest < 2; rest++) {
		struct task t = { states, 1, TIER_REF, NULL, NULL };
		ok(mem_guard(compile, &t, true));
		ok(mem_guard(load_it, &t, true));
		for (long k = 1, whole = 0; !whole; k++) {
			struct rt_buffer *arg[3], *out[2];
			struct rt_event *done;
			float x[2];
			int refused = 0;
			for (int i = 0; i < 3; i++)
				ok(rt_buffer_from_host(rt_client_device(cl, 0), 0, &s, one, NULL, &arg[i]));
			atomic_store(&all, rest);
			refuse_from(k);
			for (int turn = 0; turn < 4; turn++) {
				struct err *e = rt_exec_run(t.x, arg, NULL, 0, turn, out, &done);
				if (e) {
					mem_refuse(NULL);
					says_so(e, k);
					assert_false(rt_buffer_deleted(arg[0]) || rt_buffer_deleted(arg[1]) || refused++);
					turn--;
					continue;
				}
				ok(rt_event_wait(done));
				rt_event_unref(done);
				for (int i = 0; i < 2; i++) {
					assert_true(rt_buffer_deleted(arg[i]));
					rt_buffer_unref(arg[i]);
					arg[i] = out[i];
				}
			}
			whole = allow();
			ok(get(arg[1], 2, x));
			assert_true(x[0] == 15 && x[1] == 15);
			for (int i = 0; i < 3; i++)
				rt_buffer_unref(arg[i]);
			if (whole)
				counted("states", k);
		}
		rt_exec_unref(t.x);
	}
}

/* --- saying so ----------------------------------------------------------------------------------- */

/* What is said on stderr: text, cut off behind `most` bytes and the name. */
static void said(const char *text, size_t most)
{
	char got[2048];
	int old = dup(2), f = memfd_create("said", 0);
	size_t n = strlen(text);

	assert_true(old >= 0 && f >= 0 && dup2(f, 2) == 2);
	log_line(LOG_WARN, "%s %d", text, 7);
	dup2(old, 2);
	close(old);
	ssize_t k = pread(f, got, sizeof got, 0);
	close(f);
	n = MIN(n + 2, most);
	assert_int_equal(k, (ssize_t)(n + strlen("rondo: \n")));
	assert_memory_equal(got, "rondo: ", 7);
	assert_memory_equal(got + 7, text, MIN(n, strlen(text)));
	assert_int_equal(got[k - 1], '\n');
}

/* A line of the log is said without memory as well, a long one as far as it goes; and nothing is jumped over. */
static void says(void **state)
{
	char text[1200];

	memset(text, 'x', sizeof text - 1);
	for (size_t n = sizeof text - 1; n > 480; n -= n > 530 ? 100 : 1) {
		text[n] = '\0';
		said(text, n + 2);
		atomic_store(&all, true);
		refuse_from(1);
		said(text, 504);
		mem_refuse(NULL);
	}
}

/* --- joining -------------------------------------------------------------------------------- */

/* Two processes, here threads, of which the second has no memory.  The store is theirs. */
static pthread_mutex_t store = PTHREAD_MUTEX_INITIALIZER;
static struct { char key[64]; struct str value; } pair[256];
static int npair;
static _Thread_local bool poor;

static bool refuse_poor(size_t n) { return poor && refuse(n); }

static struct str *find(const char *key)
{
	for (int i = 0; i < npair; i++)
		if (!strcmp(pair[i].key, key))
			return &pair[i].value;
	return NULL;
}

static struct err *kv_put(void *user, const char *key, const void *value, size_t n)
{
	bool was = poor;

	poor = false;
	pthread_mutex_lock(&store);
	bool old = find(key);
	if (!old && npair < (int)NELEM(pair)) {
		snprintf(pair[npair].key, sizeof pair->key, "%s", key);
		bool stays = mem_persist(true);
		str_addn(&pair[npair++].value, value, n);
		mem_persist(stays);
	}
	pthread_mutex_unlock(&store);
	poor = was;
	return old ? ERR(ALREADY_EXISTS, "'%s'", key) : NULL;
}

static struct err *kv_get(void *user, const char *key, int ms, struct str *out)
{
	double until = clock_s() + ms / 1e3;
	struct str v = { 0 };
	bool found;

	do {
		pthread_mutex_lock(&store);
		struct str *at = find(key);
		if ((found = at))
			v = *at;              /* it stays, and where it is */
		pthread_mutex_unlock(&store);
		if (!found)
			usleep(200);
	} while (!found && clock_s() < until);
	if (!found)
		return ERR(DEADLINE, "nobody has written '%s'", key);
	str_addn(out, v.p, v.n);
	return NULL;
}

struct side { pthread_t t; struct kv kv; struct rt_client *c; struct err *e; };

static struct err *joins_it(void *v)
{
	struct side *s = v;

	return rt_client_new(&(struct rt_opts){ .ndev = 2, .boot = &s->kv }, &s->c);
}

static void *side_main(void *v)
{
	struct side *s = v;

	poor = s->kv.process == 1;
	s->e = mem_guard(joins_it, s, false);
	poor = false;
	return NULL;
}

/* Threads and descriptors of this process, the one that counts among them. */
static int entries(const char *path)
{
	DIR *d = opendir(path);
	int n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* It says so, the other hears of it at once, and nothing is left of either.  What a library keeps for itself is there after a join that had
 * all memory (k 0).  When it is the first message that there is no memory for, the two are just connecting: that is done again, SLOWLY times, at
 * any moment of it. */
static void join_by(const char *road, bool rest)
{
	ok(conf_set("TRANSPORT", road));
	atomic_store(&all, rest);
	int slowly = SLOWLY;
	bool again = false;
	for (long k = 0, over = 0; !over; k += !again) {
		int threads = entries("/proc/self/task"), open = entries("/proc/self/fd");
		struct side s[2];
		refuse_from(k ? k : 1L << 30);
		mem_refuse(refuse_poor);
		atomic_store(&slow_send, again ? 2000 : 0);
		for (int i = 0; i < 2; i++) {
			s[i] = (struct side){ .kv = { i, 2, NULL, kv_put, kv_get } };
			assert_int_equal(pthread_create(&s[i].t, NULL, side_main, &s[i]), 0);
		}
		for (int i = 0; i < 2; i++)
			pthread_join(s[i].t, NULL);
		bool whole = allow();
		over = k && whole;
		again = (again || (s[1].e && strstr(s[1].e->msg, "for messages"))) && slowly-- > 0;
		if (!k && s[1].e && (s[1].e->code == ERR_UNIMPLEMENTED || strstr(s[1].e->msg, "cannot load UCX"))) {
			print_message("SKIP joins by %s: %s\n", road, s[1].e->msg);
			err_free(s[1].e);
			err_free(s[0].e);
			over = 1;
		} else if (whole) {
			ok(s[0].e);
			ok(s[1].e);
			if (k)
				counted(road, k);
		} else if (s[1].e)
			says_so(s[1].e, k);
		if (s[0].e) {
			if (s[0].e->code != ERR_UNAVAILABLE || !strstr(s[0].e->msg, "memory"))
				fail_msg("allocation %ld: the other process: %s", k, s[0].e->msg);
			err_free(s[0].e);
		}
		rt_client_free(s[1].c);
		rt_client_free(s[0].c);
		while (npair > 0)
			str_free(&pair[--npair].value);
		int t = 0, f = 0;
		for (int i = 0; i < 2000 && (!i || t || f); i++) {       /* a thread that was joined may be seen for a moment */
			usleep(i ? 1000 : 0);
			t = k ? entries("/proc/self/task") - threads : 0;
			f = k ? entries("/proc/self/fd") - open : 0;
		}
		if (t || f)
			fail_msg("%s, allocation %ld: %d threads and %d descriptors more than before", road, k, t, f);
	}
	ok(conf_set("TRANSPORT", "auto"));
}

/* By mapped memory and by each of the networks; only that allocation, and all that follow. */
static void joins(void **state)
{
	double since = clock_s();

	for (int i = 0; i < 6; i++)
		join_by((const char *const[]){ "shm", "tcp", "ucx" }[i / 2], i % 2);
	assert_true(clock_s() - since < 300);
}

static struct err *client_new(void *v)
{
	struct rt_opts o = { .ndev = NDEV };

	return rt_client_new(&o, v);
}

static int start(void **state)
{
	conf_init();
	setenv("UCX_LOG_LEVEL", "fatal", 0);   /* it says that the other side has gone */
	err_free(conf_set("CACHE", ""));
	err_free(conf_set("CORES", "12"));     /* devices with workers, on a small machine, too */
	ok(mem_guard(client_new, &cl, false));
	return 0;
}

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(one_device), cmocka_unit_test(two_devices), cmocka_unit_test(donates), cmocka_unit_test(says), cmocka_unit_test(joins) };

	return cmocka_run_group_tests(t, start, teardown);
}
