/* What may lie where a cache looks: none of it is read without end, waited for, or written into; and what is written takes its place. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/base.h"
#include "plan/plan.h"

enum { MOST = 100 };

static char dir[64], path[80];

static void fresh(void) { snprintf(path, sizeof path, "%s/entry", dir); remove(path); }
static void fifo(void) { assert_int_equal(mkfifo(path, 0600), 0); }
static void full(void) { assert_int_equal(symlink("/dev/full", path), 0); }
static void zero(void) { assert_int_equal(symlink("/dev/zero", path), 0); }
static void folder(void) { assert_int_equal(mkdir(path, 0700), 0); }
static void large(void)
{
	fclose(fopen(path, "w"));
	assert_int_equal(truncate(path, (off_t)1 << 38), 0);
}

static void (*const odd[])(void) = { fifo, full, zero, folder, large };

static void entries(void **state)
{
	for (size_t i = 0; i < NELEM(odd); i++) {
		struct str s = { 0 };
		fresh();
		odd[i]();
		struct err *e = str_read_entry(&s, path, MOST);
		assert_non_null(e);
		assert_int_equal(e->code, ERR_DATA_LOSS);
		assert_int_equal(s.n, 0);
		err_free(e);
		e = str_write_entry(path, "what is kept", 12);
		assert_int_equal(!e, odd[i] != folder);
		err_free(e);
		if (odd[i] != folder) {
			assert_null(str_read_entry(&s, path, MOST));
			assert_string_equal(s.p, "what is kept");
		}
		str_free(&s);
	}
	fresh();
}

/* An entry of the cache of so many bytes that was used so long ago. */
static void kept(const char *name, size_t n, long seconds_ago)
{
	char at[128], *bytes = mem_alloc(n);
	struct timespec t[2] = { { .tv_sec = time(NULL) - seconds_ago }, { .tv_sec = time(NULL) - seconds_ago } };

	snprintf(at, sizeof at, "%s/%s", dir, name);
	assert_null(cache_write(at, bytes, n));
	assert_int_equal(utimensat(AT_FDCWD, at, t, 0), 0);
	free(bytes);
}

static bool there(const char *name)
{
	char at[128];
	snprintf(at, sizeof at, "%s/%s", dir, name);
	return !access(at, F_OK);
}

/* The folder has a bound: what was not used for longest goes, and nothing that is not ours. */
static void bound(void **state)
{
	static const char *const name[] = { "00000000000000000000000000000001.rondo", "gen-0000000000000002", "00000000000000000000000000000003.rondo",
	                                    "00000000000000000000000000000004.rondo", "00000000000000000000000000000005.rondo" };
	static const char *const other[] = { "gen-2", "0000000000000000000000000000001.rondo", "machine-x.table", "00000000000000000000000000000001.rondo.bak" };
	struct str s = { 0 };
	char at[128];

	assert_null(conf_set("CACHE_SIZE", "1M"));
	for (size_t i = 0; i < NELEM(other); i++)
		kept(other[i], 60000, 900000);
	kept("gen-0000000000000009.7.ab.tmp", 10, 900000);             /* whoever wrote it has died */
	kept("gen-0000000000000008.7.ab.tmp", 10, 10);
	for (size_t i = 0; i < 4; i++)
		kept(name[i], 250000, 90000 - 10000 * (long)i);
	for (size_t i = 0; i < 4; i++)
		assert_true(there(name[i]));                           /* 1,000,000 of 1,048,576 bytes */
	snprintf(at, sizeof at, "%s/%s", dir, name[0]);
	assert_null(cache_read(&s, at, 1 << 20));                      /* the first is used again */
	assert_int_equal(s.n, 250000);
	kept(name[4], 250000, 0);                                       /* 1,250,000: two go, until an eighth is free */
	assert_true(there(name[0]) && !there(name[1]) && !there(name[2]) && there(name[3]) && there(name[4]));
	for (size_t i = 0; i < NELEM(other); i++)
		assert_true(there(other[i]));
	assert_false(there("gen-0000000000000009.7.ab.tmp"));
	assert_true(there("gen-0000000000000008.7.ab.tmp"));
	assert_null(conf_set("CACHE_SIZE", "0"));                      /* none */
	for (size_t i = 0; i < NELEM(name); i++)
		kept(name[i], 80000, 10);
	for (size_t i = 0; i < NELEM(name); i++)
		assert_true(there(name[i]));
	assert_null(conf_set("CACHE_SIZE", "4G"));
	str_free(&s);
	snprintf(at, sizeof at, "rm -f %s/*", dir);
	assert_int_equal(system(at), 0);
}

/* The machine table, which is read when a client is made. */
static void table(void **state)
{
	struct plan_table *t = mem_alloc(sizeof *t);
	struct str at = { 0 };

	conf_set("CACHE", dir);
	plan_table_path(&at, false);
	assert_null(plan_table_get(t));
	uint64_t none = plan_table_hash(t);
	for (size_t i = 0; i < NELEM(odd); i++) {
		snprintf(path, sizeof path, "%s", at.p);
		odd[i]();
		assert_null(plan_table_get(t));
		assert_int_equal(t->source, PLAN_DEFAULT);
		assert_true(plan_table_hash(t) == none);
		remove(path);
	}
	str_free(&at);
	free(t);
}

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(entries), cmocka_unit_test(bound), cmocka_unit_test(table) };

	snprintf(dir, sizeof dir, "/tmp/rondo-entry-XXXXXX");
	if (!mkdtemp(dir))
		return 1;
	alarm(200);
	int failed = cmocka_run_group_tests(t, NULL, NULL);
	rmdir(dir);
	return failed;
}
