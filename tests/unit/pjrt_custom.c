/* What a partition of a custom call brings as bytes: shardings as XLA writes them, and what is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#include "pjrt/impl.h"

static struct err *read(struct arena *a, const char *hex, struct spmd_tiles *t, size_t n)
{
	char b[256];
	size_t k = strlen(hex) / 2;
	for (size_t i = 0; i < k; i++) {
		unsigned v;
		assert_int_equal(sscanf(hex + 2 * i, "%2x", &v), 1);
		b[i] = (char)v;
	}
	char *own = malloc(k + 1);               /* a read behind the end is seen */
	memcpy(own, b, k);
	struct err *e = pjrt_shardings_read((struct span){ own, k }, a, t, n);
	free(own);
	return e;
}

/* devices: as text, tile by tile. */
static void lies(const char *hex, int n, const int64_t *dim, const char *devices)
{
	struct arena a;
	struct spmd_tiles t;
	struct str s = {0};
	arena_init(&a);
	assert_null(read(&a, hex, &t, 1));
	assert_int_equal(t.n, n);
	int64_t all = 1;
	for (int i = 0; i < n; i++)
		assert_int_equal(t.dim[i], dim[i]);
	for (int i = 0; i < n; i++)
		all *= dim[i];
	for (int64_t i = 0; n && i < all; i++)
		str_addf(&s, "%d", (int)t.device[i]);
	assert_string_equal(s.p ? s.p : "", devices);
	str_free(&s);
	arena_fini(&a);
}

static void tiles(void **state)
{
	(void)state;
	lies("", 0, NULL, "");                                                             /* {replicated} */
	lies("08031a0304010230014a0108520100", 3, (int64_t[]){ 4, 1, 2 }, "01234567");     /* {devices=[4,1,2]<=[8] last_tile_dim_replicate} */
	lies("08031a0208014a02040252020100", 2, (int64_t[]){ 8, 1 }, "02461357");          /* {devices=[8,1]<=[4,2]T(1,0)} */
	lies("08031a0301020430014a02040252020100", 3, (int64_t[]){ 1, 2, 4 }, "02461357"); /* {devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate} */
	lies("08031a020202220403010002", 2, (int64_t[]){ 2, 2 }, "3102");                  /* {devices=[2,2]3,1,0,2} */
	lies("08031802180220032001200020024200", 2, (int64_t[]){ 2, 2 }, "3102");          /* the same, not packed */
}

static void tuples(void **state)
{
	struct arena a;
	struct spmd_tiles t[2];
	(void)state;
	arena_init(&a);
	assert_null(read(&a, "08022a00" "2a0b" "08031a01024a0102520100", t, 2));
	assert_int_equal(t[0].n, 0);
	assert_int_equal(t[1].n, 1);
	assert_int_equal(t[1].device[1], 1);
	arena_fini(&a);
}

static void malformed(void **state)
{
	static const char *const bad[] = {
		"08", "0801", "0804", "1a", "1a05", "0803", "2a00", "08031a0202", "08031a0102", "08031a01022201", "08031a010222020001" "4a0104520100",
		"08031a01024a0102", "08031a01024a0102520101", "08031a010052010048", "08031a01ff", "08031a0102220200014201" "04", "08031a0affffffffffffffffff01",
		"08031a01024a0affffffffffffffffff01520100", "0803ff",
	};
	(void)state;
	for (size_t i = 0; i < NELEM(bad); i++) {
		struct arena a;
		struct spmd_tiles t;
		arena_init(&a);
		struct err *e = read(&a, bad[i], &t, 1);
		if (!e)
			print_error("'%s' is taken\n", bad[i]);
		assert_non_null(e);
		err_free(e);
		arena_fini(&a);
	}
	srand(1);
	for (int round = 0; round < 20000; round++) {       /* any bytes give tiles of as many devices as there are, or an error */
		char b[24];
		size_t n = (size_t)rand() % sizeof b;
		struct arena a;
		struct spmd_tiles t[2];
		memcpy(b, (char[24]){ 8, 3, 0x1a, 2, 2, 2, 0x22, 4, 3, 1, 0, 2, 0x4a, 1, 4, 0x52, 1, 0 }, sizeof b);
		for (int k = rand() % 4; k >= 0; k--)
			b[rand() % (int)sizeof b] = (char)rand();
		arena_init(&a);
		struct err *e = pjrt_shardings_read((struct span){ b, n }, &a, t, 1 + (size_t)rand() % 2);
		err_free(e);
		arena_fini(&a);
	}
}

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(tiles), cmocka_unit_test(tuples), cmocka_unit_test(malformed) };
	return cmocka_run_group_tests(t, NULL, NULL);
}
