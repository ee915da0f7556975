/* What a program of several devices takes of their memory is what rt_exec_zone says of it: also what its collectives stage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { NDEV = 3, BYTES = 3 << 20 };
#include "rt_help.h"

/* Of BYTES by a collective and an algorithm, the result as large as the operand but for a gather's. */
static char *text_of(const char *coll, const char *algo, int64_t times)
{
	struct str s = { 0 };

	str_addf(&s, "prog \"%s\" devices %d registers 1 zone 64 flops 0 fingerprint 07 comm 00\n", coll, NDEV);
	str_addf(&s, "arg 0 f32[%d] bytes %d\nres 0 f32[%lld] bytes %lld\nbuf 0 arg 0 size %d\nbuf 1 out 0 size %lld\n", BYTES / 4, BYTES, (long long)times * BYTES / 4,
	         (long long)times * BYTES, BYTES, (long long)times * BYTES);
	str_addf(&s, "group 0 1 %d [0,1,2]\ncoll 0 %s f32 n 1 algo %s group 0 redop add outer 1 inner %d\nrun {\n coll 0 %s (b0) -> (b1)\n}\n", NDEV, coll, algo, BYTES, coll);
	return s.p;
}

static void takes(const char *coll, const char *algo, int64_t times, bool more)
{
	static const int dev[NDEV] = { 0, 1, 2 };
	static float v[BYTES / 4];
	float first;
	struct rt_buffer *a[NDEV], *out[NDEV];
	struct rt_event *done[NDEV];

	for (int i = 0; i < BYTES / 4; i++)
		v[i] = 1;
	setup(NULL);
	char *text = text_of(coll, algo, times);
	struct rt_exec *x = load(text, dev);
	int64_t before[NDEV], said = rt_exec_zone(x) + times * BYTES;
	for (int d = 0; d < NDEV; d++) {
		a[d] = vec(d, BYTES / 4, v);
		before[d] = rt_device_stats(rt_client_device(cl, d)).in_use;
	}
	ok(rt_exec_run(x, a, NULL, 0, 0, out, done));
	for (int d = 0; d < NDEV; d++)
		ok(rt_event_wait(done[d]));
	for (int d = 0; d < NDEV; d++) {
		int64_t took = rt_device_stats(rt_client_device(cl, d)).peak - before[d];
		if (took > said + said / 100)
			fail_msg("%s by %s: device %d took %lld bytes, said were %lld", coll, algo, d, (long long)took, (long long)said);
		ok(get(out[d], 1, &first));
		assert_true(first == (!strcmp(coll, "all_reduce") ? NDEV : !strcmp(coll, "scan") ? d + 1 : 1));
		rt_event_unref(done[d]);
		rt_buffer_unref(a[d]);
		rt_buffer_unref(out[d]);
	}
	assert_true((rt_exec_zone(x) > 4096) == more);
	rt_exec_unref(x);
	free(text);
	teardown(NULL);
}

static void sums(void **state)
{
	takes("all_reduce", "two_shot", 1, false);
	takes("all_reduce", "loan", 1, false);
	takes("all_reduce", "stage", 1, true);
	takes("all_reduce", "push", 1, true);
	takes("all_reduce", "ring", 1, true);
	takes("scan", "stage", 1, true);
	takes("scan", "ring", 1, true);
}

static void moves(void **state)
{
	takes("all_gather", "direct", NDEV, false);
	takes("all_gather", "ring", NDEV, false);
	takes("all_gather", "stage", NDEV, true);
	takes("broadcast", "stage", 1, true);
	takes("broadcast", "direct", 1, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(sums), cmocka_unit_test(moves) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
