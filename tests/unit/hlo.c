/* The reader: whole programs there and back, and bytes that are not programs. */
#include "base/base.h"
#include "eval/eval.h"
#include "hlo/hlo.h"
#include "ir/ir.h"

#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h>

#include "draws.h"

typedef void visit(const char *path, const struct str *s);

static int each(const char *dir, int depth, visit *f)
{
	DIR *d = opendir(dir);
	int n = 0;
	if (!d)
		return 0;
	for (struct dirent *e; (e = readdir(d));) {
		char path[4096];
		size_t k = strlen(e->d_name);
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
		if (k > 7 && strcmp(e->d_name + k - 7, ".mlirbc") == 0) {
			struct str s = {0};
			assert_null(str_read_file(&s, path));
			f(path, &s);
			str_free(&s);
			n++;
		} else if (depth) {
			n += each(path, depth - 1, f);
		}
	}
	closedir(d);
	return n;
}

static void print_err(const char *path, struct err *e)
{
	if (e) {
		print_error("%s: %s\n", path, e->msg);
		fail();
	}
}

/* A module prints, parses back to the same text, and means the same. */
static void there_and_back(const char *path, const struct ir_module *m)
{
	struct str a = {0}, b = {0}, ca = {0}, cb = {0};
	struct ir_module *back = NULL;
	print_err(path, ir_verify(m));
	ir_print(&a, m);
	print_err(path, ir_parse(a.p, a.n, &back));
	ir_print(&b, back);
	assert_string_equal(a.p, b.p);
	ir_print_canonical(&ca, m, ir_main(m));
	ir_print_canonical(&cb, back, ir_main(back));
	assert_string_equal(ca.p, cb.p);
	ir_module_free(back);
	str_free(&a);
	str_free(&b);
	str_free(&ca);
	str_free(&cb);
}

static void read_all(const char *path, const struct str *s)
{
	struct ir_module *m = NULL;
	const char *name = strrchr(path, '/') + 1;
	struct err *e = hlo_read(s->p, s->n, &m);
	static const struct { const char *name; enum err_code code; } refused[] = {
		{ "dynamic_shape.mlirbc", ERR_UNIMPLEMENTED }, { "reducer_computed.mlirbc", ERR_UNIMPLEMENTED }, { "recursion.mlirbc", ERR_INVALID },
		{ "halves_unknown.mlirbc", ERR_UNIMPLEMENTED }, { "mesh_groups_overlap.mlirbc", ERR_INVALID }, { "tiles.mlirbc", ERR_UNIMPLEMENTED }, { "ragged_no_groups.mlirbc", ERR_INVALID },
		{ "ragged_lists.mlirbc", ERR_INVALID },
	};
	size_t i = 0;
	while (i < NELEM(refused) && strcmp(name, refused[i].name))
		i++;
	if (i < NELEM(refused)) {
		assert_non_null(e);
		assert_int_equal(e->code, refused[i].code);
		err_free(e);
	} else {
		print_err(path, e);
		there_and_back(path, m);
	}
	ir_module_free(m);
}

static void own_programs(void **state)
{
	(void)state;
	assert_true(each("tests/hlo", 0, read_all) > 10);
}

static void corpus(void **state)
{
	(void)state;
	const char *dir = getenv("RONDO_CORPUS") ? getenv("RONDO_CORPUS") : "../shared/programs";
	if (access(dir, R_OK))
		skip();
	assert_true(each(dir, 2, read_all) > 0);
}

/* No beginning of a program is a program. */
static void cut(const char *path, const struct str *s)
{
	for (size_t n = 0; n < s->n; n++) {
		struct ir_module *m = NULL;
		char *p = malloc(n ? n : 1);    /* so that a sanitizer sees a read past the end */
		memcpy(p, s->p, n);
		struct err *e = hlo_read(p, n, &m);
		free(p);
		if (!e) {
			print_error("%s is read with %zu of %zu bytes\n", path, n, s->n);
			fail();
		}
		err_free(e);
	}
}

static void truncated(void **state)
{
	(void)state;
	each("tests/hlo", 0, cut);
}

/* A byte that is wrong gives an error, or another program that is sound.  Where not all values are drawn, other runs have others. */
static void spoil(const char *path, const struct str *s)
{
	uint8_t *p = malloc(s->n);
	memcpy(p, s->p, s->n);
	for (size_t i = 0; i < s->n; i++) {
		const uint8_t old = p[i], try[] = { 0, 0xff, (uint8_t)(old ^ 1), (uint8_t)(old + 2), (uint8_t)(old - 2), (uint8_t)(old ^ 0x80) };
		for (int k = 0; k < draws(NELEM(try)); k++) {
			struct ir_module *m = NULL;
			p[i] = try[(i + (size_t)getpid() + (size_t)k) % NELEM(try)];
			struct err *e = hlo_read(p, s->n, &m);
			if (!e) {
				struct str t = {0};
				e = ir_verify(m);
				if (e) {
					print_error("%s with byte %zu = %d: %s\n", path, i, p[i], e->msg);
					fail();
				}
				ir_print(&t, m);
				str_free(&t);
				ir_module_free(m);
			}
			err_free(e);
		}
		p[i] = old;
	}
	free(p);
}

static void corrupted(void **state)
{
	(void)state;
	each("tests/hlo", 0, spoil);
}

/* What a fuzzer found: an error, or a program that is sound. */
static void found_one(const char *path, const struct str *s)
{
	struct ir_module *m = NULL;
	struct err *e = hlo_read(s->p, s->n, &m);
	if (!e)
		there_and_back(path, m);
	ir_module_free(m);
	err_free(e);
}

static void found(void **state)
{
	(void)state;
	assert_true(each("tests/hlo/found", 0, found_one) > 0);
}

static void expect_err(const void *p, size_t n, enum err_code code, const char *part)
{
	struct ir_module *m = NULL;
	struct err *e = hlo_read(p, n, &m);
	assert_non_null(e);
	assert_int_equal(e->code, code);
	if (!strstr(e->msg, part)) {
		print_error("'%s' does not say '%s'\n", e->msg, part);
		fail();
	}
	err_free(e);
}

static void not_bytecode(void **state)
{
	(void)state;
	expect_err("", 0, ERR_INVALID, "magic");
	expect_err("module {}", 9, ERR_INVALID, "magic");
	expect_err("ML\xefR\x09StableHLO_v0.14.0", 20, ERR_UNIMPLEMENTED, "version 4");
}

/* Collectives with a root: what the root has arrives bit by bit, -0 and NaN included; what is reduced only the root has. */
static void roots(void **state)
{
	(void)state;
	struct str s = {0};
	struct ir_module *m;
	assert_null(str_read_file(&s, "tests/hlo/roots.mlirbc"));
	print_err("roots", hlo_read(s.p, s.n, &m));
	enum { NDEV = 4, NIN = 4, NOUT = 5 };
	struct eval_array in[NDEV * NIN], out[NDEV * NOUT] = {0};
	static float a[NDEV][3], c[NDEV][4];
	static int32_t r[2] = { 1, 0 }, second[1] = { 1 };
	for (int d = 0; d < NDEV; d++) {
		for (int k = 0; k < 4; k++)
			c[d][k] = (float)(10 * d + k);
		memcpy(a[d], (float[]){ -0.0f, d ? __builtin_nanf("7") : 5, (float)d }, sizeof a[d]);
		in[d * NIN] = (struct eval_array){ DT_f32, 1, { 3 }, a[d], sizeof a[d] };
		in[d * NIN + 1] = (struct eval_array){ DT_c64, 1, { 2 }, c[d], sizeof c[d] };
		in[d * NIN + 2] = (struct eval_array){ DT_i32, 1, { 2 }, r, sizeof r };
		in[d * NIN + 3] = (struct eval_array){ DT_i32, 1, { 1 }, second, sizeof second };
	}
	print_err("roots", eval_main(m, &(struct eval_opts){ .ndev = NDEV, .max_iter = 1 }, in, out));
	static const int first[NDEV] = { 2, 1, 2, 1 }, other[NDEV] = { 0, 3, 0, 3 };      /* of groups [2, 0] and [1, 3] */
	for (int d = 0; d < NDEV; d++) {
		const struct eval_array *o = out + d * NOUT;
		assert_memory_equal(o[0].p, a[first[d]], sizeof a[0]);
		assert_memory_equal(o[1].p, a[other[d]], sizeof a[0]);
		assert_memory_equal(o[2].p, c[first[d]], sizeof c[0]);
		float most = d == 2 ? 2 : d == 1 ? 3 : 0, sum = d == 0 ? 2 : d == 3 ? 4 : 0;
		assert_true(((float *)o[3].p)[2] == most);
		assert_true(((float *)o[4].p)[2] == sum);
	}
	for (int i = 0; i < NDEV * NOUT; i++)
		eval_array_free(&out[i]);
	ir_module_free(m);
	str_free(&s);
}

static void kept_calls(void **state)
{
	(void)state;
	struct str s = {0}, t = {0};
	struct ir_module *m = NULL;
	assert_null(str_read_file(&s, "tests/hlo/kept_calls.mlirbc"));
	assert_null(hlo_read(s.p, s.n, &m));
	assert_int_equal(ir_main(m)->op.n, 20);
	assert_int_equal(ir_main(m)->op.p[0].kind, IR_call);
	assert_int_equal(m->fn.n, 3);    /* none, main, the function: once */
	ir_module_free(m);
	str_free(&s);
	str_free(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(own_programs), cmocka_unit_test(corpus), cmocka_unit_test(truncated),
		cmocka_unit_test(corrupted), cmocka_unit_test(found), cmocka_unit_test(not_bytecode), cmocka_unit_test(roots), cmocka_unit_test(kept_calls),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
