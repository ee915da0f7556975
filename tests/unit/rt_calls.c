/* Launches and host callbacks: what is queued behind a program that calls back runs meanwhile, and overwrites nothing that another one reads. */
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { NDEV = 2, CORES = 3, CALLS = 3 };
#include "rt_help.h"

static const int dev0[] = { 0 }, dev1[] = { 1 }, both[] = { 0, 1 };

static sem_t held, let_go[CALLS];

static int fresh(void **state)
{
	sem_init(&held, 0, 0);
	for (int i = 0; i < CALLS; i++)
		sem_init(&let_go[i], 0, 0);
	return 0;
}

/* Gives its argument when it is let go: its first element says by which. */
static struct err *hold(void *user, const struct rt_custom_call *c)
{
	struct timespec until;

	sem_post(&held);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 60;
	if (sem_timedwait(&let_go[(int)((const float *)c->in[0])[0]], &until))
		return ERR(ABORTED, "nobody came");
	memcpy(c->out[0], c->in[0], 16);
	return NULL;
}

/* The host code of that name, as a program of one device. */
static struct rt_exec *load_call(const char *name, const int *dev)
{
	char text[512];

	snprintf(text, sizeof text,
	         "prog \"calls\" devices 1 registers 1 zone 0 flops 0 fingerprint 01 comm 00\n"
	         "arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\n"
	         "buf 0 arg 0 size 16\nbuf 1 out 0 size 16\n"
	         "custom 0 \"%1$s\" api 4 (f32[4]) -> (f32[4])\n"
	         "run {\n custom 0 \"%1$s\" (b0) -> (b1)\n}\n", name);
	return load(text, dev);
}

static const char add[] =
	"prog \"add\" devices 1 registers 1 zone 0 flops 0 fingerprint 01 comm 00\n"
	"arg 0 f32[4] bytes 16 alias 0\narg 1 f32[4] bytes 16\nres 0 f32[4] bytes 16\n"
	"buf 0 arg 0 size 16\nbuf 1 arg 1 size 16\nbuf 2 out 0 size 16 alias 0\n"
	"kern 0 elem (f32[4], f32[4]) -> (f32[4]) expr (f32, f32) { %2 = add f32 %0 %1 -> f32 } (%2)\n"
	"run {\n kern 0 elem (b2, b1) -> (b2)\n}\n";

/* It donates nothing. */
static const char twice[] =
	"prog \"twice\" devices %d registers 1 zone 0 flops 0 fingerprint 01 comm 00\n"
	"arg 0 f32[4] bytes 16\nres 0 f32[4] bytes 16\n"
	"buf 0 arg 0 size 16\nbuf 1 out 0 size 16\n"
	"kern 0 elem (f32[4], f32[4]) -> (f32[4]) expr (f32, f32) { %%2 = add f32 %%0 %%1 -> f32 } (%%2)\n"
	"run {\n kern 0 elem (b0, b0) -> (b1)\n}\n";

static struct rt_exec *load_twice(int n, const int *dev)
{
	char text[sizeof twice];

	snprintf(text, sizeof text, twice, n);
	return load(text, dev);
}

static const float zero[4] = { 0 }, v[4] = { 1, 2, 3, 4 };

/* That comes to pass, and soon. */
static void soon(struct rt_event *e)
{
	for (int i = 0; i < 20000 && !rt_event_ready(e); i++)
		usleep(1000);
	assert_true(rt_event_ready(e));
	ok(rt_event_wait(e));
	rt_event_unref(e);
}

static void not_yet(struct rt_event *e)
{
	usleep(20000);
	assert_false(rt_event_ready(e));
}

static void is(struct rt_buffer *b, float first, float last)
{
	float r[4];

	ok(get(b, 4, r));
	assert_true(r[0] == first && r[3] == last);
	rt_buffer_unref(b);
}

/* Steps that each donate what the last one made run; one that donates what the program reads that calls does not. */
static void behind_a_call(void **state)
{
	struct rt_exec *x = load_call("hold", dev0), *plus = load(add, dev0);
	struct rt_buffer *a = vec(0, 4, zero), *got, *one = vec(0, 4, v), *sum[9] = { vec(0, 4, v) }, *last, *b = vec(0, 4, v), *kept, *later;
	struct rt_event *done, *added[8], *over, *read, *wrote;

	ok(rt_exec_run(x, &a, NULL, 0, 0, &got, &done));
	for (int i = 0; i < 8; i++) {
		if (i == 4)
			sem_wait(&held);         /* four before it is called, perhaps, and four behind */
		ok(rt_exec_run(plus, (struct rt_buffer *[]){ sum[i], one }, NULL, 0, i, &sum[i + 1], &added[i]));
		assert_true(rt_buffer_deleted(sum[i]));
	}
	ok(rt_exec_run(plus, (struct rt_buffer *[]){ a, one }, NULL, 0, 0, &last, &over));
	assert_true(rt_buffer_deleted(a));
	for (int i = 0; i < 8; i++)
		soon(added[i]);
	assert_false(rt_event_ready(done));
	not_yet(over);
	/* One that runs beside it is read from until it has ended, also when what it ran beside has. */
	ok(rt_exec_run(x, &b, NULL, 0, 0, &kept, &read));
	sem_wait(&held);
	ok(rt_exec_run(plus, (struct rt_buffer *[]){ b, one }, NULL, 0, 0, &later, &wrote));
	assert_true(rt_buffer_deleted(b));
	sem_post(&let_go[0]);
	soon(done);
	soon(over);
	not_yet(wrote);
	sem_post(&let_go[1]);
	soon(read);
	soon(wrote);
	is(kept, 1, 4);
	is(later, 2, 8);
	is(got, 0, 0);
	is(sum[8], 9, 36);
	is(last, 1, 4);
	for (int i = 0; i < 8; i++)
		rt_buffer_unref(sum[i]);
	rt_buffer_unref(b);
	rt_buffer_unref(a);
	rt_buffer_unref(one);
	rt_exec_unref(x);
	rt_exec_unref(plus);
}

/* What a step writes over is read by launches before it, which go first, and its result by those behind it. */
static void read_between_steps(void **state)
{
	enum { N = 12 };
	struct rt_exec *x = load_call("hold", dev0), *plus = load(add, dev0), *two = load_twice(1, dev0);
	struct rt_buffer *a = vec(0, 4, zero), *got, *one = vec(0, 4, v), *sum[N + 1] = { vec(0, 4, v) }, *seen[N];
	struct rt_event *done, *added[N], *looked[N];

	ok(rt_exec_run(x, &a, NULL, 0, 0, &got, &done));
	sem_wait(&held);
	for (int i = 0; i < N; i++) {
		ok(rt_exec_run(two, &sum[i], NULL, 0, i, &seen[i], &looked[i]));
		ok(rt_exec_run(plus, (struct rt_buffer *[]){ sum[i], one }, NULL, 0, i, &sum[i + 1], &added[i]));
		assert_true(rt_buffer_deleted(sum[i]));
		rt_buffer_unref(sum[i]);
	}
	for (int i = 0; i < N; i++) {
		soon(looked[i]);
		soon(added[i]);
		is(seen[i], 2 * (float)(i + 1), 8 * (float)(i + 1));
	}
	assert_false(rt_event_ready(done));
	is(sum[N], N + 1, 4 * (N + 1));
	/* One that waits for the call reads it: the step after that waits as well. */
	struct rt_buffer *b = vec(0, 4, v), *first, *then;
	struct rt_event *reads, *writes;
	ok(rt_exec_run(plus, (struct rt_buffer *[]){ got, b }, NULL, 0, 0, &first, &reads));
	ok(rt_exec_run(plus, (struct rt_buffer *[]){ b, one }, NULL, 0, 0, &then, &writes));
	not_yet(writes);
	sem_post(&let_go[0]);
	soon(done);
	soon(reads);
	soon(writes);
	is(first, 1, 4);
	is(then, 2, 8);
	rt_buffer_unref(b);
	rt_buffer_unref(got);
	rt_buffer_unref(a);
	rt_buffer_unref(one);
	rt_exec_unref(x);
	rt_exec_unref(plus);
	rt_exec_unref(two);
}

/* Each of several callbacks waits for a launch behind all of them. */
static void several_calls(void **state)
{
	struct rt_exec *x = load_call("hold", dev0), *plus = load(add, dev0);
	struct rt_buffer *a[CALLS], *got[CALLS], *b = vec(0, 4, v), *one = vec(0, 4, v), *sum;
	struct rt_event *done[CALLS], *added;

	for (int i = 0; i < CALLS; i++) {
		a[i] = vec(0, 4, (float[]){ (float)i, 0, 0, 7 });
		ok(rt_exec_run(x, &a[i], NULL, 0, i, &got[i], &done[i]));
	}
	ok(rt_exec_run(plus, (struct rt_buffer *[]){ b, one }, NULL, 0, 0, &sum, &added));
	soon(added);
	is(sum, 2, 8);
	for (int i = CALLS - 1; i >= 0; i--) {
		assert_false(rt_event_ready(done[i]));
		sem_post(&let_go[i]);
		soon(done[i]);
		is(got[i], (float)i, 7);
		rt_buffer_unref(a[i]);
	}
	rt_buffer_unref(b);
	rt_buffer_unref(one);
	rt_exec_unref(x);
	rt_exec_unref(plus);
}

/* A launch of another device waits for the result; what is behind that runs, of this device or of both. */
static void another_device_waits(void **state)
{
	struct rt_exec *x = load_call("hold", dev0), *here = load_twice(1, dev1), *two = load_twice(2, both);
	struct rt_buffer *a = vec(0, 4, zero), *b = vec(1, 4, v), *arg[2] = { vec(0, 4, v), vec(1, 4, v) }, *got, *there, *sum, *more, *out[2];
	struct rt_event *done, *waits, *added, *each[2];

	ok(rt_exec_run(x, &a, NULL, 0, 0, &got, &done));
	ok(rt_buffer_copy(got, rt_client_device(cl, 1), 0, &there));
	ok(rt_exec_run(here, &there, NULL, 0, 0, &sum, &waits));
	ok(rt_exec_run(here, &b, NULL, 0, 0, &more, &added));
	ok(rt_exec_run(two, arg, NULL, 0, 0, out, each));
	soon(added);
	is(more, 2, 8);
	for (int i = 0; i < 2; i++) {
		soon(each[i]);
		is(out[i], 2, 8);
		rt_buffer_unref(arg[i]);
	}
	assert_false(rt_event_ready(done));
	assert_false(rt_event_ready(waits));
	sem_post(&let_go[0]);
	soon(done);
	soon(waits);
	is(sum, 0, 0);
	rt_buffer_unref(got);
	rt_buffer_unref(there);
	rt_buffer_unref(a);
	rt_buffer_unref(b);
	rt_exec_unref(x);
	rt_exec_unref(here);
	rt_exec_unref(two);
}

static struct rt_exec *inner;
static int inner_n;
static pthread_mutex_t all_queued = PTHREAD_MUTEX_INITIALIZER;
static struct rt_buffer *inner_arg[NDEV], *inner_out[NDEV];

/* A callback that launches a program. */
static struct err *nest(void *user, const struct rt_custom_call *c)
{
	struct rt_event *done[NDEV];
	struct err *e = NULL;

	pthread_mutex_lock(&all_queued);
	pthread_mutex_unlock(&all_queued);
	TRY(rt_exec_run(inner, inner_arg, NULL, 0, 0, inner_out, done));
	for (int i = 0; i < inner_n; i++) {
		struct err *w = rt_event_wait(done[i]);
		rt_event_unref(done[i]);
		e = e ? e : w;
	}
	memcpy(c->out[0], c->in[0], 16);
	return e;
}

/* What a callback launches on another device runs on the callback's thread: launches of that device overwrite nothing that it reads. */
static void within_a_call(void **state)
{
	struct rt_exec *x = load_call("nest", dev0), *plus = load(add, dev1);
	struct rt_buffer *a = vec(0, 4, zero), *got, *one = vec(1, 4, v), *sum, *b = vec(1, 4, v), *other;
	struct rt_event *done, *wrote, *added;

	inner = load_call("hold", dev1);
	inner_n = 1;
	inner_arg[0] = vec(1, 4, v);
	ok(rt_exec_run(x, &a, NULL, 0, 0, &got, &done));
	sem_wait(&held);
	ok(rt_exec_run(plus, (struct rt_buffer *[]){ inner_arg[0], one }, NULL, 0, 0, &sum, &wrote));
	ok(rt_exec_run(plus, (struct rt_buffer *[]){ b, one }, NULL, 0, 0, &other, &added));
	soon(added);
	not_yet(wrote);
	sem_post(&let_go[1]);
	soon(wrote);
	soon(done);
	is(inner_out[0], 1, 4);
	is(sum, 2, 8);
	is(other, 2, 8);
	is(got, 0, 0);
	rt_buffer_unref(inner_arg[0]);
	rt_buffer_unref(a);
	rt_buffer_unref(b);
	rt_buffer_unref(one);
	rt_exec_unref(inner);
	rt_exec_unref(x);
	rt_exec_unref(plus);
}

/* What it launches is of its own device and another one, and one of the arguments is made by a launch behind the program that calls. */
static void with_what_is_behind(void **state)
{
	struct rt_exec *first = load_call("hold", dev0), *x = load_call("nest", dev0), *plus = load(add, dev0);
	struct rt_buffer *a = vec(0, 4, zero), *kept, *got, *b = vec(0, 4, v), *sum;
	struct rt_event *held_up, *done, *added, *made;

	inner = load_twice(2, both);
	inner_n = 2;
	inner_arg[1] = vec(1, 4, v);
	ok(rt_exec_run(first, &a, NULL, 0, 0, &kept, &held_up));      /* till all are queued */
	sem_wait(&held);
	pthread_mutex_lock(&all_queued);
	ok(rt_exec_run(x, &a, NULL, 0, 0, &got, &done));
	ok(rt_exec_run(first, &kept, NULL, 0, 0, &sum, &added));      /* it waits for the first one */
	ok(rt_exec_run(plus, (struct rt_buffer *[]){ b, sum }, NULL, 0, 0, &inner_arg[0], &made));
	pthread_mutex_unlock(&all_queued);
	not_yet(done);
	sem_post(&let_go[0]);
	sem_post(&let_go[0]);
	soon(held_up);
	soon(added);
	soon(made);
	soon(done);
	is(inner_out[0], 2, 8);
	is(inner_out[1], 2, 8);
	is(got, 0, 0);
	rt_buffer_unref(kept);
	rt_buffer_unref(sum);
	rt_buffer_unref(inner_arg[0]);
	rt_buffer_unref(inner_arg[1]);
	rt_buffer_unref(a);
	rt_buffer_unref(b);
	rt_exec_unref(inner);
	rt_exec_unref(first);
	rt_exec_unref(x);
	rt_exec_unref(plus);
}

enum { THREADS = 2, ROUNDS = 200 };
static struct rt_exec *calls_on[NDEV], *add_on[NDEV], *twice_on[NDEV];

static void *asks(void *seed)
{
	unsigned r = (unsigned)(uintptr_t)seed;

	for (int n = 0; n < ROUNDS; n++) {
		int d = rand_r(&r) % NDEV;
		struct rt_buffer *a = vec(d, 4, zero), *got;
		struct rt_event *done;
		ok(rt_exec_run(calls_on[d], &a, NULL, 0, n, &got, &done));
		rt_buffer_unref(a);
		soon(done);
		is(got, 0, 0);
	}
	return NULL;
}

static void *answers(void *seed)
{
	unsigned r = (unsigned)(uintptr_t)seed;

	for (int n = 0; n < ROUNDS; n++) {
		enum { STEPS = 6 };
		int d = rand_r(&r) % NDEV, nread = 0;
		struct rt_buffer *sum = vec(d, 4, v), *one = vec(d, 4, v), *read[STEPS];
		float want[STEPS];
		struct rt_event *e;
		usleep((unsigned)rand_r(&r) % 2000);
		for (int i = 0; i < STEPS; i++) {
			if (rand_r(&r) % 2) {
				ok(rt_exec_run(twice_on[d], &sum, NULL, 0, i, &read[nread], &e));
				rt_event_unref(e);
				want[nread++] = 2 * (float)(i + 1);
			}
			struct rt_buffer *next;
			ok(rt_exec_run(add_on[d], (struct rt_buffer *[]){ sum, one }, NULL, 0, i, &next, &e));
			rt_event_unref(e);
			rt_buffer_unref(sum);
			sum = next;
		}
		for (int i = 0; i < nread; i++)
			is(read[i], want[i], 4 * want[i]);
		is(sum, STEPS + 1, 4 * (STEPS + 1));
		rt_buffer_unref(one);
		sem_post(&let_go[0]);
	}
	return NULL;
}

/* Threads whose callbacks wait for what other threads launch. */
static void many(void **state)
{
	pthread_t t[2 * THREADS];
	unsigned seed = (unsigned)clock_ns();

	print_message("seed %u\n", seed);
	for (int d = 0; d < NDEV; d++) {
		calls_on[d] = load_call("hold", &d);
		add_on[d] = load(add, &d);
		twice_on[d] = load_twice(1, &d);
	}
	for (int i = 0; i < 2 * THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, i % 2 ? asks : answers, (void *)(uintptr_t)(seed + 1000 * (unsigned)i)), 0);
	for (int i = 0; i < 2 * THREADS; i++)
		pthread_join(t[i], NULL);
	for (int d = 0; d < NDEV; d++) {
		rt_exec_unref(calls_on[d]);
		rt_exec_unref(add_on[d]);
		rt_exec_unref(twice_on[d]);
	}
}

int main(void)
{
	ok(conf_set("CORES", "3"));              /* before the machine is looked at */
	rt_custom_register("hold", hold, NULL);
	rt_custom_register("nest", nest, NULL);
	const struct CMUnitTest t[] = {
		cmocka_unit_test_setup(behind_a_call, fresh), cmocka_unit_test_setup(read_between_steps, fresh), cmocka_unit_test_setup(several_calls, fresh),
		cmocka_unit_test_setup(another_device_waits, fresh), cmocka_unit_test_setup(within_a_call, fresh), cmocka_unit_test_setup(with_what_is_behind, fresh),
		 cmocka_unit_test_setup(many, fresh),
	};

	return cmocka_run_group_tests(t, setup, teardown);
}
