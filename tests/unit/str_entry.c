/* What may lie where a cache looks: none of it is read without end, waited for, or written into; and what is written takes its place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/stat.h>
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

/* The machine table, which is read when a client is made. */
static void table(void **state)
{
	struct plan_table *t = mem_alloc(sizeof *t);
	struct str at = { 0 };

	conf_set("CACHE", dir);
	plan_table_path(&at, false);
	for (size_t i = 0; i < NELEM(odd); i++) {
		snprintf(path, sizeof path, "%s", at.p);
		odd[i]();
		assert_null(plan_table_get(t));
		assert_int_equal(t->source, PLAN_DEFAULT);
		assert_true(plan_table_hash(t) == plan_table_hash(plan_default()));
		remove(path);
	}
	str_free(&at);
	free(t);
}

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(entries), cmocka_unit_test(table) };

	snprintf(dir, sizeof dir, "/tmp/rondo-entry-XXXXXX");
	if (!mkdtemp(dir))
		return 1;
	alarm(200);
	int failed = cmocka_run_group_tests(t, NULL, NULL);
	rmdir(dir);
	return failed;
}
