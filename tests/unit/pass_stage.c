/* What holds between passes: facts of the stages, and functions that nobody holds leave. */
#include <dirent.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

#include "pass/passes.h"

static struct ir_module *read(const char *text)
{
	struct ir_module *m;
	struct err *e = ir_parse(text, strlen(text), &m);
	if (e)
		print_message("%s\n", e->msg);
	assert_null(e);
	return m;
}

static const char CALLS[] =
	"module @m\n"
	"mesh @one = [] ids=[0]\n"
	"fn @main(%1: f32[8]) -> (f32[8]) {\n"
	"  %2 = call %1 fn=@twice : f32[8]\n"
	"  %3 = sharding_constraint %2 sharding=@one[] : f32[8]\n"
	"  return %3\n"
	"}\n"
	"fn @unused(%1: f32[8]) -> (f32[8]) {\n"
	"  %2 = call %1 fn=@twice : f32[8]\n"
	"  return %2\n"
	"}\n"
	"fn @twice(%1: f32[8]) -> (f32[8]) {\n"
	"  %2 = call %1 fn=@once : f32[8]\n"
	"  return %2\n"
	"}\n"
	"fn @never(%1: f32[8]) -> (f32[8]) {\n"
	"  return %1\n"
	"}\n"
	"fn @once(%1: f32[8]) -> (f32[8]) {\n"
	"  %2 = add %1, %1 : f32[8]\n"
	"  return %2\n"
	"}\n";

static void breaks(const struct ir_module *m, unsigned facts, const char *op, const char *by)
{
	struct err *e = pass_holds(m, facts);
	assert_non_null(e);
	assert_non_null(strstr(e->msg, op));
	assert_non_null(strstr(e->msg, by));
	err_free(e);
}

static void facts(void **state)
{
	struct ir_module *m = read(CALLS);
	const struct pass_opts o = { .ndev = 1 };
	assert_null(pass_holds(m, 0));
	breaks(m, NO_CALL, "'call'", "'inline'");
	breaks(m, LOCAL, "'sharding_constraint'", "'partition'");
	assert_null(pass_inline(&o, m));
	ir_sweep(m);
	assert_null(pass_holds(m, NO_CALL));
	breaks(m, NO_CALL | LOCAL, "'sharding_constraint'", "'partition'");
	assert_null(spmd_partition(m, 1, NULL, NULL, NULL));
	ir_sweep(m);
	assert_null(pass_holds(m, NO_CALL | LOCAL));
	ir_module_free(m);
}

static void sweep(void **state)
{
	struct ir_module *m = read(CALLS);
	assert_int_equal(m->fn.n, 6);
	ir_sweep(m);
	assert_int_equal(m->fn.n, 4);
	static const char *const name[] = { "main", "twice", "once" };
	for (ir_fnid f = 1; f < 4; f++) {
		assert_int_equal(m->fn.p[f]->id, f);
		assert_string_equal(ir_text(m, m->fn.p[f]->name), name[f - 1]);
	}
	assert_int_equal(ir_attr(m->fn.p[1], &m->fn.p[1]->op.p[0], AT_fn), 2);
	assert_int_equal(ir_attr(m->fn.p[2], &m->fn.p[2]->op.p[0], AT_fn), 3);
	assert_null(ir_verify(m));
	int n;
	struct arena a;
	arena_init(&a);
	const ir_fnid *f = ir_reachable(&a, m, &n);
	assert_int_equal(n, 3);
	assert_int_equal(f[0], 3);           /* held ones first */
	assert_int_equal(f[2], 1);
	arena_fini(&a);
	ir_module_free(m);
}

/* After every pass of a real program nothing is left that main does not reach. */
static void swept(void **state)
{
	for (int i = 0; pass_names()[i]; i++) {
		struct ir_module *m = read(CALLS);
		struct pass_opts o = { .ndev = 1, .check = true, .stop = pass_names()[i] };
		struct arena a;
		int n;
		assert_null(pass_run(&o, m));
		arena_init(&a);
		ir_reachable(&a, m, &n);
		assert_int_equal(n + 1, m->fn.n);
		arena_fini(&a);
		ir_module_free(m);
	}
}

static const char MIXED[] =
	"module @m\n"
	"fn @main(%1: f32[8], %2: f32[8]) -> (f32[8], f32[8]) {\n"
	"  %3 = add %1, %2 : f32[8]\n"
	"  %4 = sine %3 : f32[8]\n"
	"  %5 = multiply %3, %1 : f32[8]\n"
	"  %6 = cosine %5 : f32[8]\n"
	"  %7 = negate %6 : f32[8]\n"
	"  %8 = tanh %1 : f32[8]\n"
	"  return %4, %7\n"
	"}\n";

static void other_sums(void *user, struct ir_b *b, int k, const ir_val *in, ir_val *out)
{
	assert_int_equal(k, 0);
	++*(int *)user;
	out[0] = ir_bin(b, ELEM_subtract, in[0], in[1]);
	out[1] = ir_bin(b, ELEM_divide, in[0], in[1]);
}

/* Two ops that give two values, with a reader of the first between them, become two others; what nobody needs is left out. */
static void regions(void **state)
{
	struct ir_module *m = read(MIXED);
	struct arena a;
	int times = 0;
	arena_init(&a);
	const int op[2] = { 0, 2 };
	const ir_val in[2] = { 1, 2 }, out[2] = { 3, 5 };
	const struct region r = { op, 2, in, out, 2, 2 };
	pass_replace(m, 1, pass_replace_regions(m, &a, ir_main(m), &r, 1, &(struct region_change){ other_sums, NULL, &times }));
	ir_sweep(m);
	assert_int_equal(times, 1);
	assert_null(ir_verify(m));
	struct str s = {0};
	ir_print_fn(&s, m, ir_main(m));
	assert_non_null(strstr(s.p, "  %3 = subtract %1, %2 : f32[8]\n  %4 = divide %1, %2 : f32[8]\n  %5 = sine %3 : f32[8]\n  %6 = cosine %4 : f32[8]\n  %7 = negate %6 : f32[8]\n  return %5, %7"));
	str_free(&s);
	arena_fini(&a);
	ir_module_free(m);
}

/* Who reads a value is known at any time, also when emission goes back. */
static void readers(void **state)
{
	struct ir_module *m = read(MIXED);
	struct ir_fn *fn = ir_main(m);
	uint32_t u = ir_use_first(fn, 3);
	assert_int_equal(ir_use_op(fn, u), 2);
	assert_int_equal(ir_use_operand(fn, u), 0);
	u = ir_use_next(fn, u);
	assert_int_equal(ir_use_op(fn, u), 1);
	assert_int_equal(ir_use_next(fn, u), 0);
	assert_int_equal(fn->val.p[4].nuse, 1);      /* a result */
	assert_int_equal(ir_use_first(fn, 4), 0);
	assert_int_equal(fn->val.p[8].nuse, 0);
	struct ir_b b = { m, fn, 0 };
	struct ir_mark before = ir_mark(fn);
	ir_bin(&b, ELEM_add, ir_bin(&b, ELEM_multiply, 3, 3), 1);
	assert_int_equal(fn->val.p[3].nuse, 4);
	assert_null(ir_verify(m));
	ir_go_back(fn, before);
	assert_int_equal(fn->val.p[3].nuse, 2);
	assert_int_equal(ir_use_op(fn, ir_use_first(fn, 3)), 2);
	assert_null(ir_verify(m));
	fn->val.p[3].nuse++;
	struct err *e = ir_verify(m);
	assert_non_null(e);
	assert_non_null(strstr(e->msg, "readers"));
	err_free(e);
	ir_module_free(m);
}

/* Text stands for bytecode here. */
static struct err *reader(const void *p, size_t n, struct ir_module **out) { return ir_parse(p, n, out); }

static uint64_t fingerprint_by(struct plan_on plan, const char *text)
{
	struct prog *p;
	const struct pass_opts o = { .ndev = 2, .plan = plan };
	assert_null(pass_compile_cached(&o, reader, text, strlen(text), &p));
	uint64_t r = p->fingerprint;
	prog_free(p);
	return r;
}

static uint64_t fingerprint(const char *text) { return fingerprint_by((struct plan_on){ 0 }, text); }

static int entries(const char *dir)
{
	DIR *d = opendir(dir);
	int n = 0;
	for (struct dirent *f; d && (f = readdir(d));)
		n += strstr(f->d_name, ".rondo") != NULL;
	if (d)
		closedir(d);
	return n;
}

/* What was compiled by one machine table, or for other hosts, is not taken for another, and is known as another program. */
static void tables(void **state)
{
	enum { LEAST = 4096 };
	static const int host[2] = { 0, 1 };
	char dir[] = "/tmp/rondo-stage-XXXXXX", cmd[64];
	struct plan_table *t = mem_alloc(sizeof *t);
	struct str s = { 0 };
	assert_non_null(mkdtemp(dir));
	conf_set("CACHE", dir);
	while (s.n < LEAST)                          /* shorter ones are not kept */
		str_add(&s, "# nothing but a remark\n");
	str_add(&s, "module @m partitions=2\nfn @main(%1: f32[8]) -> (f32[8]) {\n  %2 = sine %1 : f32[8]\n  return %2\n}\n");
	*t = *plan_default();
	uint64_t one = fingerprint(s.p), same = fingerprint_by((struct plan_on){ .table = t }, s.p);
	assert_true(one == same && entries(dir) == 1);
	t->rate[PLAN_wait] *= 2;
	const struct plan_on on[] = { { .table = t }, { .host = host }, { .cores = 2 }, { .ndev = 2 }, { .ring = PLAN_RING_SENT } };
	uint64_t other[NELEM(on)];
	for (size_t i = 0; i < NELEM(on); i++) {
		other[i] = fingerprint_by(on[i], s.p);
		assert_true(other[i] != one && entries(dir) == (int)i + 2);
		for (size_t k = 0; k < i; k++)
			assert_true(other[i] != other[k]);
	}
	assert_true(fingerprint(s.p) == one && entries(dir) == (int)NELEM(on) + 1);
	conf_set("CACHE", "");
	snprintf(cmd, sizeof cmd, "rm -r %s", dir);
	assert_int_equal(system(cmd), 0);
	str_free(&s);
	free(t);
}

/* What a program says is the same, whatever its arguments are called and wherever it stands. */
static void meanings(void **state)
{
	uint64_t one = fingerprint("module @m partitions=2\nfn @main(%1: f32[8]) -> (f32[8]) {\n  %2 = sine %1 : f32[8] loc(\"a.py\":3)\n  return %2\n}\n");
	uint64_t same = fingerprint("module @m partitions=2\nfn @main(%1: f32[8] name=\"x\") -> (f32[8] name=\"y\") {\n  %2 = sine %1 : f32[8] loc(\"b.py\":4)\n  return %2\n}\n");
	uint64_t other = fingerprint("module @m partitions=2\nfn @main(%1: f32[8]) -> (f32[8]) {\n  %2 = cosine %1 : f32[8] loc(\"a.py\":3)\n  return %2\n}\n");
	assert_true(one && one == same && one != other);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(facts), cmocka_unit_test(sweep), cmocka_unit_test(swept), cmocka_unit_test(regions), cmocka_unit_test(readers), cmocka_unit_test(meanings), cmocka_unit_test(tables) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
