/* A client of NDEV devices, programs from text, vectors of f32: what the tests of rt share. */
#ifndef RT_HELP_H
#define RT_HELP_H

#include "rt/rt.h"

static struct rt_client *cl;

static void ok(struct err *e)
{
	if (e)
		fail_msg("%s", e->msg);
}

static int setup(void **state)
{
	struct rt_opts o = { .ndev = NDEV };

	ok(rt_client_new(&o, &cl));
	return 0;
}

static int teardown(void **state)
{
	rt_client_free(cl);
	return 0;
}

/* Loaded on devices dev. */
static struct rt_exec *load(const char *text, const int *dev)
{
	struct prog *p;
	struct rt_exec *x;

	ok(prog_parse(text, strlen(text), &p));
	ok(rt_exec_new(cl, p, dev, &x));
	return x;
}

/* f32[n] on device d. */
static struct rt_buffer *vec(int d, int64_t n, const float *v)
{
	struct rt_shape s = { DT_f32, 1, { n } };
	struct rt_buffer *b;

	ok(rt_buffer_from_host(rt_client_device(cl, d), 0, &s, v, NULL, &b));
	return b;
}

/* x, of one argument and one result, runs once on device 0, and is waited for. */
static inline void once(struct rt_exec *x, int64_t n, const float *v)
{
	struct rt_buffer *a = vec(0, n, v), *out;
	struct rt_event *done;

	ok(rt_exec_run(x, &a, NULL, 0, 0, &out, &done));
	ok(rt_event_wait(done));
	rt_event_unref(done);
	rt_buffer_unref(out);
	rt_buffer_unref(a);
}

static struct err *get(struct rt_buffer *b, int64_t n, float *v)
{
	struct rt_event *e = rt_buffer_to_host(b, 0, n * 4, v);
	struct err *err = rt_event_wait(e);

	rt_event_unref(e);
	return err;
}

#endif
