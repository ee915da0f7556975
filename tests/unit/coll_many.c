/* Groups in which no member sends to each other one: every collective on 17 to 34 PEs, of the world and of parts of it, operands
 * in the heaps and outside, in place and not; what 128 devices of one process take. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "thread_check.h"

#include "coll/coll.h"
#include "rt/rt.h"

enum { MOST = 34, BYTES = 6000 };

static void ok(struct err *e) { CHECK_OK(e); }

struct dev { pthread_t t; struct sym_world *w; int pe, n; };

static int32_t value(int pe, int64_t i) { return pe * 1009 + (int32_t)(i * 7 % 613); }

static void fill(int32_t *x, int pe, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		x[i] = value(pe, i);
}

/* All collectives of count elements among g. */
static void round_of(struct coll *c, const struct coll_group *g, int64_t count, int32_t *x, int32_t *y, bool place)
{
	const struct coll_red add = { RED_add, DT_i32, NULL };
	int self = g->pe[g->me], n = g->n;
	int64_t bytes = count * 4, sum = 0;

	for (int k = 0; k < n; k++)
		sum += g->pe[k];
	fill(x, self, count);
	int32_t *to = place ? x : y;
	ok(coll_all_reduce(c, g, 1, &add, count, x, to));
	for (int64_t i = 0; i < count; i++)
		CHECK(to[i] == sum * 1009 + n * (i * 7 % 613));
	fill(x, self, count * n);
	ok(coll_reduce_scatter(c, g, 2, &add, count, x, y));
	for (int64_t i = 0; i < count; i++)
		CHECK(y[i] == sum * 1009 + n * ((g->me * count + i) * 7 % 613));
	fill(x, self, count);
	ok(coll_all_gather(c, g, 3, bytes, x, y));
	for (int k = 0; k < n; k++)
		for (int64_t i = 0; i < count; i++)
			CHECK(y[k * count + i] == value(g->pe[k], i));
	fill(x, self, count * n);
	ok(coll_all_to_all(c, g, 4, bytes, x, y));
	for (int k = 0; k < n; k++)
		for (int64_t i = 0; i < count; i++)
			CHECK(y[k * count + i] == value(g->pe[k], g->me * count + i));
	fill(x, self, count);
	int root = (int)(count % n);
	to = place ? x : y;
	ok(coll_broadcast(c, g, 5, root, bytes, x, to));
	for (int64_t i = 0; i < count; i++)
		CHECK(to[i] == value(g->pe[root], i));
	fill(x, self, count);
	ok(coll_scan(c, g, 6, &add, false, count, x, to));
	sum = 0;
	for (int k = 0; k <= g->me; k++)
		sum += g->pe[k];
	for (int64_t i = 0; i < count; i++)
		CHECK(to[i] == sum * 1009 + (g->me + 1) * (i * 7 % 613));
	fill(x, self, count);
	int from = g->pe[(g->me + n - 3) % n], next = g->pe[(g->me + 3) % n];
	ok(coll_permute(c, 7, from, next, bytes, x, to));
	for (int64_t i = 0; i < count; i++)
		CHECK(to[i] == value(from, i));
	ok(coll_barrier(c, g, 8));
}

static void *device(void *v)
{
	static const int64_t count[] = { 1, 7, 40, 900, BYTES / 4 };
	struct dev *d = v;
	struct sym_ep *ep = sym_ep_of(d->w, d->pe);
	struct sym_heap *h = sym_heap_of(d->w, d->pe);
	struct coll *c = coll_new(d->w, d->pe, NULL);
	int peer[MOST], npeer = 0, world[MOST], odd[MOST], nodd = 0;
	struct sym_block *b[2];
	char *out[2];

	for (int i = 0; i < d->n; i++) {
		world[i] = i * 5 % d->n;          /* n is no multiple of 5 */
		if (i != d->pe)
			peer[npeer++] = i;
		if (i % 2 == d->pe % 2)
			odd[nodd++] = i;
	}
	for (int k = 0; k < 2; k++) {
		ok(sym_alloc(h, (size_t)BYTES * MOST, NULL, -1, &b[k]));
		out[k] = malloc((size_t)BYTES * MOST);
	}
	char *x = sym_base(h) + b[0]->off, *y = sym_base(h) + b[1]->off;
	for (int turn = 0; turn < 2; turn++) {
		struct sym_launch l = { .prog = 7, .peer = peer, .npeer = npeer };
		struct coll_group all = { d->n, 0, world }, half = { nodd, d->pe / 2, odd };
		while (world[all.me] != d->pe)
			all.me++;
		sym_begin(ep, &l);
		for (size_t i = 0; i < NELEM(count); i++) {
			round_of(c, &all, count[i], (void *)x, (void *)y, turn);
			round_of(c, &half, count[i], (void *)x, (void *)y, turn);
		}
		/* One of all has its operands outside its heap. */
		bool outside = d->pe == 2;
		round_of(c, &all, 900, (void *)(outside ? out[0] : x), (void *)(outside ? out[1] : y), turn);
		sym_end(ep, NULL);
	}
	for (int k = 0; k < 2; k++) {
		sym_free(b[k]);
		free(out[k]);
	}
	coll_free(c);
	return NULL;
}

static void every(void **state)
{
	static const int npe[] = { 17, 24, MOST };

	for (size_t k = 0; k < NELEM(npe); k++) {
		struct dev d[MOST];
		struct sym_world *w;
		ok(sym_open(&(struct sym_opts){ .nlocal = npe[k], .threads = npe[k] }, &w));
		for (int i = 0; i < npe[k]; i++) {
			d[i] = (struct dev){ .w = w, .pe = i, .n = npe[k] };
			pthread_create(&d[i].t, NULL, device, &d[i]);
		}
		for (int i = 0; i < npe[k]; i++)
			pthread_join(d[i].t, NULL);
		sym_close(w);
	}
}

/* One member fails: all others hear of it, whoever they wait for. */
static void *failing(void *v)
{
	struct dev *d = v;
	struct sym_ep *ep = sym_ep_of(d->w, d->pe);
	struct coll *c = coll_new(d->w, d->pe, NULL);
	int peer[MOST], npeer = 0, world[MOST];
	int32_t x[100] = { 0 }, y[100];

	for (int i = 0; i < d->n; i++) {
		world[i] = i;
		if (i != d->pe)
			peer[npeer++] = i;
	}
	struct sym_launch l = { .prog = 7, .peer = peer, .npeer = npeer };
	const struct coll_red add = { RED_add, DT_i32, NULL };
	sym_begin(ep, &l);
	struct err *e = d->pe == 3 ? ERR(INTERNAL, "it was to fail") : coll_all_reduce(c, &(struct coll_group){ d->n, d->pe, world }, 1, &add, 100, x, y);
	CHECK(e);
	CHECK(strstr(e->msg, "it was to fail"));
	sym_end(ep, e);
	err_free(e);
	sym_begin(ep, &l);
	ok(coll_all_reduce(c, &(struct coll_group){ d->n, d->pe, world }, 1, &add, 100, x, y));
	sym_end(ep, NULL);
	coll_free(c);
	return NULL;
}

static void one_fails(void **state)
{
	struct dev d[MOST];
	struct sym_world *w;

	ok(sym_open(&(struct sym_opts){ .nlocal = 24, .threads = 24 }, &w));
	for (int i = 0; i < 24; i++) {
		d[i] = (struct dev){ .w = w, .pe = i, .n = 24 };
		pthread_create(&d[i].t, NULL, failing, &d[i]);
	}
	for (int i = 0; i < 24; i++)
		pthread_join(d[i].t, NULL);
	sym_close(w);
}

/* Bytes of memory that the process holds. */
static int64_t held(void)
{
	long n = 0, all;
	FILE *f = fopen("/proc/self/statm", "r");

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%ld %ld", &all, &n), 2);
	fclose(f);
	return n * sysconf(_SC_PAGESIZE);
}

/* So many devices of one process: start, first launch, in so much memory; gives the bytes of a device. */
static int64_t crowd(int n)
{
	struct str s = { 0 };
	int64_t before = held();
	struct rt_client *cl;
	struct rt_exec *x;
	struct prog *p;
	int *dev = mem_alloc((size_t)n * sizeof *dev);
	struct rt_buffer **a = mem_alloc((size_t)n * sizeof *a), **out = mem_alloc((size_t)n * sizeof *out);
	struct rt_event **done = mem_alloc((size_t)n * sizeof *done);

	str_addf(&s, "prog \"sum\" devices %d registers 1 zone 64 flops 0 fingerprint 01 comm 00\n"
	             "arg 0 f32[8] bytes 32\nres 0 f32[8] bytes 32\nbuf 0 arg 0 size 32\nbuf 1 out 0 size 32\ngroup 0 1 %d [", n, n);
	for (int i = 0; i < n; i++)
		str_addf(&s, "%s%d", i ? "," : "", i), dev[i] = i;
	str_add(&s, "]\ncoll 0 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 32\nrun {\n coll 0 all_reduce (b0) -> (b1)\n}\n");
	ok(rt_client_new(&(struct rt_opts){ .ndev = n }, &cl));
	ok(prog_parse(s.p, s.n, &p));
	ok(rt_exec_new(cl, p, dev, &x));
	for (int i = 0; i < n; i++) {
		float v[8] = { (float)i };
		ok(rt_buffer_from_host(rt_client_device(cl, i), 0, &(struct rt_shape){ DT_f32, 1, { 8 } }, v, NULL, &a[i]));
	}
	for (int k = 0; k < 3; k++) {
		ok(rt_exec_run(x, a, NULL, 0, k, out, done));
		for (int i = 0; i < n; i++) {
			float v[8];
			ok(rt_event_wait(done[i]));
			struct rt_event *e = rt_buffer_to_host(out[i], 0, 32, v);
			ok(rt_event_wait(e));
			assert_true(v[0] == (float)(n * (n - 1) / 2));
			rt_event_unref(e);
			rt_event_unref(done[i]);
			rt_buffer_unref(out[i]);
		}
	}
	int64_t each = (held() - before) / n;
	for (int i = 0; i < n; i++)
		rt_buffer_unref(a[i]);
	rt_exec_unref(x);
	rt_client_free(cl);
	str_free(&s);
	free(dev);
	free(a);
	free(out);
	free(done);
	return each;
}

/* Memory grows with the devices, not with their pairs: a device takes as much among 128 as among 32. */
static void memory(void **state)
{
	int64_t few = crowd(32), many = crowd(128);

	print_message("a device among 32 takes %lld KB, among 128 %lld KB\n", (long long)few >> 10, (long long)many >> 10);
	assert_true(many < 2 * few + (1 << 20));
	assert_true(many < 8 << 20);
}

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(every), cmocka_unit_test(one_fails), cmocka_unit_test(memory) };

	return cmocka_run_group_tests(t, NULL, NULL);
}
