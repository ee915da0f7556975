/* Programs that run on what they made before: the results that have the storage of the parameters go from launch to launch together, and
 * what happens to a single one of them is right all the same. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { NDEV = 2, STATES = 5, LEN = 8, ALL = STATES + 1 };
#include "rt_help.h"
#include "draws.h"

/* Each state has the last parameter added to it, which is not given away. */
static struct rt_exec *program(int ndev)
{
	static const int dev[NDEV] = { 0, 1 };
	struct str s = { 0 };

	str_addf(&s, "prog \"step\" devices %d registers 2 zone 0 flops 0 fingerprint 25 comm 00\n", ndev);
	for (int i = 0; i < ALL; i++)
		str_addf(&s, i < STATES ? "arg %d f32[8] bytes 32 alias %d\n" : "arg %d f32[8] bytes 32\n", i, i);
	for (int i = 0; i < STATES; i++)
		str_addf(&s, "res %d f32[8] bytes 32\n", i);
	for (int i = 0; i < ALL; i++)
		str_addf(&s, "buf %d arg %d size 32\n", i, i);
	for (int i = 0; i < STATES; i++)
		str_addf(&s, "buf %d out %d size 32 alias %d\n", ALL + i, i, i);
	str_add(&s, "kern 0 elem (f32[8], f32[8]) -> (f32[8]) expr (f32, f32) { %2 = add f32 %0 %1 -> f32 } (%2)\nrun {\n");
	for (int i = 0; i < STATES; i++)
		str_addf(&s, " kern 0 elem (b%d, b%d) -> (b%d)\n", i, STATES, ALL + i);
	str_add(&s, "}\n");
	struct rt_exec *x = load(s.p, dev);
	str_free(&s);
	return x;
}

/* A program and what it is given next, by device: states of 10 i, then the step. */
struct chain { struct rt_exec *x; int ndev; struct rt_buffer *a[NDEV * ALL], *out[NDEV * STATES]; };

static struct rt_buffer *full(int d, float v)
{
	float x[LEN];

	for (int i = 0; i < LEN; i++)
		x[i] = v;
	return vec(d, LEN, x);
}

static void begin(struct chain *c, int ndev)
{
	*c = (struct chain){ .x = program(ndev), .ndev = ndev };
	for (int d = 0; d < ndev; d++)
		for (int i = 0; i < ALL; i++)
			c->a[d * ALL + i] = full(d, i < STATES ? 10.0f * (float)i : 1);
}

static void end(struct chain *c)
{
	for (int i = 0; i < c->ndev * ALL; i++)
		rt_buffer_unref(c->a[i]);
	rt_exec_unref(c->x);
}

static struct err *launch(struct chain *c)
{
	struct rt_event *done[NDEV];
	struct err *e = rt_exec_run(c->x, c->a, NULL, 0, 0, c->out, done);

	for (int d = 0; d < c->ndev && !e; d++)
		rt_event_unref(done[d]);
	return e;
}

/* The results for the states, which are dropped. */
static void turn(struct chain *c)
{
	for (int d = 0; d < c->ndev; d++)
		for (int i = 0; i < STATES; i++) {
			rt_buffer_unref(c->a[d * ALL + i]);
			c->a[d * ALL + i] = c->out[d * STATES + i];
		}
}

static void step(struct chain *c)
{
	ok(launch(c));
	turn(c);
}

static void holds(struct rt_buffer *b, float v)
{
	float x[LEN];

	ok(get(b, LEN, x));
	for (int i = 0; i < LEN; i++)
		assert_true(x[i] == v);
}

/* All states have gone n steps. */
static void gone(struct chain *c, int n)
{
	for (int d = 0; d < c->ndev; d++)
		for (int i = 0; i < STATES; i++)
			holds(c->a[d * ALL + i], 10.0f * (float)i + (float)n);
}

static uint64_t place(struct rt_buffer *b)
{
	ok(rt_event_wait(rt_buffer_ready(b)));
	return rt_buffer_addr(b);
}

/* --- one after the other ------------------------------------------------------------- */

/* Two sets of results take turns, in the storage that was there at first. */
static void turns(int ndev)
{
	struct chain c;
	struct rt_buffer *was[2][NDEV * ALL] = { { 0 } };
	uint64_t at[NDEV * ALL];

	begin(&c, ndev);
	for (int i = 0; i < ndev * ALL; i++)
		at[i] = place(c.a[i]);
	for (int k = 0; k < 40; k++) {
		ok(launch(&c));
		for (int i = 0; i < ndev * ALL; i++)
			assert_true(rt_buffer_deleted(c.a[i]) == (i % ALL < STATES));
		turn(&c);
		for (int i = 0; i < ndev * ALL; i++) {
			assert_true(!rt_buffer_deleted(c.a[i]) && place(c.a[i]) == at[i]);
			if (k > 3 && spare_keeps())
				assert_ptr_equal(c.a[i], was[k % 2][i]);
			was[k % 2][i] = c.a[i];
		}
	}
	gone(&c, 40);
	end(&c);
}

static void turns_one(void **state) { turns(1); }
static void turns_two(void **state) { turns(2); }

/* Results that somebody keeps, though their storage has gone on, are deleted, and stay so: no launch makes something of them. */
static void kept(void **state)
{
	struct chain c;
	struct rt_buffer *old[20];

	begin(&c, 1);
	for (int k = 0; k < 20; k++) {
		old[k] = rt_buffer_ref(c.a[k % STATES]);
		step(&c);
		for (int i = 0; i <= k; i++)
			assert_true(rt_buffer_deleted(old[i]) && !rt_buffer_host_ptr(old[i]));
	}
	gone(&c, 20);
	for (int k = 0; k < 20; k++)
		rt_buffer_unref(old[k]);
	step(&c);
	gone(&c, 21);
	end(&c);
}

/* The program goes first, and then its results one by one; what they had is given back. */
static void outlives(void **state)
{
	int64_t before = rt_device_stats(rt_client_device(cl, 1)).in_use;
	struct chain c;

	begin(&c, 2);
	for (int k = 0; k < 6; k++)
		step(&c);
	rt_exec_unref(c.x);
	gone(&c, 6);
	for (int i = 0; i < 2 * ALL; i++)
		rt_buffer_unref(c.a[i]);
	assert_int_equal(rt_device_stats(rt_client_device(cl, 1)).in_use, before);
}

/* Dropped while they are made. */
static void dropped(void **state)
{
	struct chain c;
	int64_t before = rt_device_stats(rt_client_device(cl, 1)).in_use;

	for (int k = 0; k < draws(300); k++) {
		begin(&c, 2);
		for (int i = 0; i < k % 4; i++)
			step(&c);
		if (k % 3)
			rt_buffer_delete(c.a[ALL + k % STATES]);
		struct rt_event *last = rt_event_ref(rt_buffer_ready(c.a[ALL]));
		end(&c);
		ok(rt_event_wait(last));
		rt_event_unref(last);
	}
	begin(&c, 2);                              /* and one more, behind all of them: whoever ends a launch has let go by then */
	step(&c);
	gone(&c, 1);
	end(&c);
	assert_int_equal(rt_device_stats(rt_client_device(cl, 1)).in_use, before);
}

/* Two sets of states go through one program, in turns. */
static void two_chains(void **state)
{
	for (int ndev = 1; ndev <= 2; ndev++) {
		struct chain c[2];
		begin(&c[0], ndev);
		begin(&c[1], ndev);
		struct rt_exec *own = c[1].x;
		c[1].x = c[0].x;
		for (int k = 0; k < 20; k++)
			step(&c[k % 3 == 0]);
		gone(&c[0], 13);
		gone(&c[1], 7);
		c[1].x = own;
		end(&c[0]);
		end(&c[1]);
	}
}

/* --- single ones ----------------------------------------------------------------------- */

enum { WARM = 3, CASES = 9 };

/* One thing happens to state `which` after some launches; the next ones are right. */
static void single(int ndev, int what, int which)
{
	struct chain c;
	struct rt_buffer *more = NULL, *b;
	float v = 10.0f * (float)which + WARM;

	begin(&c, ndev);
	for (int k = 0; k < WARM; k++)
		step(&c);
	struct rt_buffer **at = &c.a[(ndev - 1) * ALL + which];
	b = rt_buffer_ref(*at);
	switch (what) {
	case 0:                                    /* read */
		holds(b, v);
		break;
	case 1:                                    /* seen from outside: it is not taken, and keeps its value */
	case 2: {
		ok(rt_event_wait(rt_buffer_ready(b)));
		rt_buffer_hold(b);
		uint64_t was = place(b);
		if (what == 2)
			rt_buffer_release(b);
		step(&c);
		assert_true(rt_buffer_deleted(b) == (what == 2));
		assert_true((place(*at) == was) == (what == 2));
		if (what == 1) {
			holds(b, v);
			rt_buffer_release(b);
		}
		gone(&c, WARM + 1);
		break;
	}
	case 3: {                                  /* shown by another */
		struct rt_shape s = { DT_i32, 2, { 4, 2 } };
		ok(rt_buffer_bitcast(b, &s, &more));
		step(&c);
		assert_false(rt_buffer_deleted(b));
		holds(more, v);
		gone(&c, WARM + 1);
		break;
	}
	case 4: {                                  /* deleted: nothing is launched, the others are as they were */
		rt_buffer_delete(b);
		struct err *e = launch(&c);
		assert_non_null(e);
		assert_non_null(strstr(e->msg, "deleted"));
		err_free(e);
		assert_true(rt_buffer_deleted(b) && !rt_buffer_deleted(c.a[(which + 1) % STATES]));
		rt_buffer_unref(*at);
		*at = full(ndev - 1, v);
		break;
	}
	case 5: {                                  /* for another parameter */
		struct rt_buffer **to = &c.a[(ndev - 1) * ALL + (which + 1) % STATES], *t = *to;
		*to = *at;
		*at = t;
		step(&c);
		holds(*to, v + 1);
		t = *to;
		*to = *at;
		*at = t;
		gone(&c, WARM + 1);
		break;
	}
	case 6: {                                  /* for the one that is read only, as well */
		struct rt_buffer *one = c.a[(ndev - 1) * ALL + STATES];
		c.a[(ndev - 1) * ALL + STATES] = b;
		ok(launch(&c));
		assert_false(rt_buffer_deleted(b));
		holds(c.out[(ndev - 1) * STATES + which], 2 * v);
		holds(b, v);
		c.a[(ndev - 1) * ALL + STATES] = one;
		for (int i = 0; i < ndev * STATES; i++)
			rt_buffer_unref(c.out[i]);
		rt_buffer_unref(b);
		end(&c);
		return;
	}
	case 7: {                                  /* the caller wants to keep it */
		struct rt_event *done[NDEV];
		int64_t no = which;
		ok(rt_exec_run(c.x, c.a, &no, 1, 0, c.out, done));
		for (int d = 0; d < ndev; d++)
			rt_event_unref(done[d]);
		turn(&c);
		holds(b, v);
		gone(&c, WARM + 1);
		break;
	}
	case 8:                                    /* copied elsewhere */
		ok(rt_buffer_copy(b, rt_client_device(cl, 0), 1, &more));
		step(&c);
		holds(more, v);
		gone(&c, WARM + 1);
		break;
	}
	rt_buffer_unref(b);
	if (more)
		rt_buffer_unref(more);
	int n = what == 0 || what == 4 ? WARM : WARM + 1;
	for (int k = 0; k < 5; k++)
		step(&c);
	gone(&c, n + 5);
	end(&c);
}

static void singles(void **state)
{
	for (int ndev = 1; ndev <= 2; ndev++)
		for (int what = 0; what < CASES; what++)
			for (int which = 0; which < STATES; which++)
				single(ndev, what, which);
}

/* A launch that fails: its results say why, the next states come from outside. */
static void fails(void **state)
{
	struct chain c;

	for (int ndev = 1; ndev <= 2; ndev++) {
		begin(&c, ndev);
		for (int k = 0; k < WARM; k++)
			step(&c);
		struct rt_shape s = { DT_f32, 1, { LEN } };
		struct rt_buffer *one = c.a[STATES];
		c.a[STATES] = rt_buffer_error(rt_client_device(cl, 0), 0, &s, ERR(INTERNAL, "no step"));
		for (int k = 0; k < 3; k++) {
			step(&c);
			struct err *e = rt_event_wait(rt_buffer_ready(c.a[k]));
			assert_non_null(e);
			assert_non_null(strstr(e->msg, "no step"));
			err_free(e);
		}
		rt_buffer_unref(c.a[STATES]);
		c.a[STATES] = one;
		for (int d = 0; d < ndev; d++)
			for (int i = 0; i < STATES; i++) {
				rt_buffer_unref(c.a[d * ALL + i]);
				c.a[d * ALL + i] = full(d, 10.0f * (float)i);
			}
		for (int k = 0; k < WARM; k++)
			step(&c);
		gone(&c, WARM);
		end(&c);
	}
}

/* --- threads ---------------------------------------------------------------------------- */

/* One launches and hands on a reference to a state, others do with it what may be done: all that they read is of one step. */
struct shared { pthread_mutex_t lock; struct rt_buffer *b; atomic_bool over; int which; };

static void *meddle(void *user)
{
	struct shared *s = user;

	for (unsigned k = 0; !atomic_load(&s->over); k++) {
		float x[LEN];
		pthread_mutex_lock(&s->lock);
		struct rt_buffer *b = s->b ? rt_buffer_ref(s->b) : NULL;
		pthread_mutex_unlock(&s->lock);
		if (!b)
			continue;
		struct err *e = NULL;
		struct rt_buffer *other = NULL;
		struct rt_shape shape = { DT_f32, 2, { 4, 2 } };
		switch (k % 4) {
		case 0:
			e = get(b, LEN, x);
			break;
		case 1:
			if (!(e = rt_buffer_bitcast(b, &shape, &other)))
				e = get(other, LEN, x);
			break;
		case 2:
			if (!(e = rt_buffer_copy(b, rt_client_device(cl, 1), 0, &other)))
				e = get(other, LEN, x);
			break;
		default:
			rt_buffer_hold(b);
			e = get(b, LEN, x);
			rt_buffer_release(b);
		}
		for (int i = 1; i < LEN && !e; i++)
			if (x[i] != x[0])
				abort();
		err_free(e);                             /* it went meanwhile */
		if (other)
			rt_buffer_unref(other);
		rt_buffer_unref(b);
	}
	return NULL;
}

static void threads(void **state)
{
	for (int ndev = 1; ndev <= 2; ndev++) {
		struct chain c;
		struct shared s = { .lock = PTHREAD_MUTEX_INITIALIZER };
		pthread_t t[2];
		begin(&c, ndev);
		for (int i = 0; i < 2; i++)
			pthread_create(&t[i], NULL, meddle, &s);
		int n = draws(4000);
		for (int k = 0; k < n; k++) {
			ok(launch(&c));
			pthread_mutex_lock(&s.lock);
			if (s.b)
				rt_buffer_unref(s.b);
			s.b = k % 5 ? rt_buffer_ref(c.out[k % STATES]) : NULL;
			pthread_mutex_unlock(&s.lock);
			turn(&c);
		}
		atomic_store(&s.over, true);
		for (int i = 0; i < 2; i++)
			pthread_join(t[i], NULL);
		if (s.b)
			rt_buffer_unref(s.b);
		gone(&c, n);
		end(&c);
	}
}

/* What has the storage of a parameter, but lies otherwise than that shall, is refused for it. */
static void lies_otherwise(void **state)
{
	static const int dev[1] = { 0 };
	struct rt_exec *x = load("prog \"turns\" devices 1 registers 1 zone 0 flops 0 fingerprint 26 comm 00\narg 0 f32[2,4] bytes 32 alias 0\n"
	                         "res 0 f32[2,4] bytes 32 alias 0 layout \"{0,1}\"\nbuf 0 arg 0 size 32\nbuf 1 out 0 size 32 alias 0\n"
	                         "kern 0 elem (f32[8]) -> (f32[8]) expr (f32) { %1 = negate f32 %0 -> f32 } (%1)\nrun {\n kern 0 elem (b0) -> (b1)\n}\n", dev);
	struct rt_shape s = { DT_f32, 2, { 2, 4 } };
	struct rt_buffer *a, *out, *none;
	struct rt_event *done;
	float v[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, got[8];

	ok(rt_buffer_from_host(rt_client_device(cl, 0), 0, &s, v, NULL, &a));
	ok(rt_exec_run(x, &a, NULL, 0, 0, &out, &done));
	ok(rt_event_wait(done));
	rt_event_unref(done);
	done = rt_buffer_read(out, NULL, got);
	ok(rt_event_wait(done));
	rt_event_unref(done);
	assert_true(got[0] == -1 && got[1] == -3 && got[3] == -7 && got[4] == -2 && got[7] == -8);      /* as it lies, by columns: 1 2, 3 4, .. */
	struct err *e = rt_exec_run(x, &out, NULL, 0, 0, &none, &done);
	assert_non_null(e);
	assert_non_null(strstr(e->msg, "lies in memory as {0,1}, the program wants it as {1,0}"));
	err_free(e);
	rt_buffer_unref(a);
	rt_buffer_unref(out);
	rt_exec_unref(x);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(turns_one), cmocka_unit_test(turns_two), cmocka_unit_test(kept), cmocka_unit_test(outlives),
		cmocka_unit_test(dropped), cmocka_unit_test(two_chains), cmocka_unit_test(singles), cmocka_unit_test(fails), cmocka_unit_test(threads), cmocka_unit_test(lies_otherwise) };
	return cmocka_run_group_tests(tests, setup, teardown);
}
