/* Long programs: compiling one that is four times as long takes not much more than four times as long, whatever it is a chain of,
 * and its memory grows as it does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <cmocka.h>

#include "draws.h"
#include "pass/pass.h"

static struct ir_b b;
static const int64_t dim[1] = { 64 };

static ir_val reversed(ir_val x)
{
	int64_t w[2] = { 1, 0 };
	return ir_emit(&b, IR_reverse, 1, &x, b.fn->val.p[x].type, w, 2);
}

static ir_val sliced(ir_val x, int64_t start, int64_t limit)
{
	return ir_slice(&b, x, &start, &limit, (int64_t[]){ 1 });
}

/* One link each: a chain of n of them is the program. */
static ir_val sine(ir_val x, int i) { return ir_un(&b, ELEM_sine, x); }
static ir_val diamond(ir_val x, int i) { return ir_bin(&b, ELEM_maximum, x, reversed(x)); }
static ir_val reverse(ir_val x, int i) { return i % 2 ? ir_un(&b, ELEM_negate, reversed(x)) : reversed(x); }
static ir_val two_ways(ir_val x, int i) { return ir_bin(&b, ELEM_add, ir_un(&b, ELEM_sine, x), ir_un(&b, ELEM_cosine, x)); }
static ir_val turned(ir_val x, int i)
{
	ir_val half[2] = { sliced(x, 1, 64), sliced(x, 0, 1) };
	int64_t d = 0;
	return ir_emit(&b, IR_concatenate, 2, half, b.fn->val.p[x].type, &d, 1);
}
static ir_val normal(ir_val x, int i)
{
	ir_val zero = ir_const_f(&b, ir_scalar(b.m, DT_f32), 0), sum = ir_reduce1(&b, RED_add, x, zero, 1, (int64_t[]){ 0 });
	return ir_bin(&b, ELEM_divide, x, ir_splat_of(&b, sum, b.fn->val.p[x].type));
}
static ir_val updated(ir_val x, int i)
{
	ir_val in[3] = { x, ir_un(&b, ELEM_negate, sliced(x, 3, 5)), ir_const_i(&b, ir_scalar(b.m, DT_i32), i % 60) };
	return ir_emit(&b, IR_dynamic_update_slice, 3, in, b.fn->val.p[x].type, NULL, 0);
}
static ir_val product(ir_val x, int i)
{
	ir_val y = ir_reshape(&b, x, 2, (int64_t[]){ 8, 8 });
	return ir_reshape(&b, ir_un(&b, ELEM_tanh, ir_dot(&b, y, y, DT_f32, 0, NULL, NULL, 1, (int64_t[]){ 1 }, (int64_t[]){ 0 })), 1, dim);
}
/* From few elements to many and back. */
static ir_val outer(ir_val x, int i)
{
	ir_val zero = ir_const_f(&b, ir_scalar(b.m, DT_f32), 0);
	ir_val y = ir_reduce1(&b, RED_add, ir_reshape(&b, x, 2, (int64_t[]){ 8, 8 }), zero, 1, (int64_t[]){ 1 });
	return ir_reshape(&b, ir_dot(&b, y, y, DT_f32, 0, NULL, NULL, 0, NULL, NULL), 1, dim);
}
static ir_val scanned(ir_val x, int i)
{
	struct ir_fn *g = ir_fn_new(b.m, "body");
	struct ir_b outer = b;
	ir_type t = b.fn->val.p[x].type;
	ir_param(g, ir_scalar(b.m, DT_i32));
	ir_param(g, t);
	ir_val mask = ir_param(g, t);
	b.fn = g;
	ir_result(g, ir_bin(&b, ELEM_multiply, ir_un(&b, ELEM_sine, 2), mask));
	b = outer;
	ir_val in[2] = { x, ir_convert(&b, ir_iota(&b, ir_tensor(b.m, DT_i32, 1, dim), 0), DT_f32) };
	int64_t w[6] = { 3, 0, g->id, 2, ROLE_CARRY, ROLE_CONST };
	return ir_emit_raw(&b, IR_loop, 2, in, 1, &t, w, 6);
}
/* Views only, of which each is a view of all before it. */
static ir_val viewed(ir_val x, int i)
{
	return i % 2 ? reversed(x) : sliced(x, i % 4 == 0, ir_vtype(b.m, b.fn, x)->dim[0] - (i % 4 == 2));
}

static const struct kind { const char *name; ir_val (*link)(ir_val, int); int long_by; bool all; } kinds[] = {
	{ "sine", sine, 10000, false }, { "diamond", diamond, 10000, false }, { "reverse", reverse, 10000, false }, { "two ways", two_ways, 10000, false },
	{ "turned", turned, 10000, false }, { "normal", normal, 10000, false }, { "updated", updated, 10000, false }, { "product", product, 10000, false }, { "outer", outer, 2000, false },
	{ "scanned", scanned, 1000, false }, { "viewed", viewed, 10000, false }, { "viewed by all", viewed, 8000, true },
};

/* Seconds of this process that compiling takes. */
static double compile(const struct kind *k, int n, bool check)
{
	struct ir_module *m = ir_module_new();
	struct ir_fn *fn = ir_fn_new(m, "main");
	int64_t wide[1] = { k->link == viewed ? 2 * n + 64 : 64 };
	b = (struct ir_b){ m, fn, 0 };
	ir_val x = ir_param(fn, ir_tensor(m, DT_f32, 1, wide)), all = 0;
	for (int i = 0; i < n; i++) {
		x = k->link(x, i);
		if (k->all && i % 2) {           /* something reads each */
			ir_val zero = ir_const_f(&b, ir_scalar(m, DT_f32), 0), part = ir_un(&b, ELEM_sine, sliced(x, 0, 16 + i % 64));
			part = ir_reduce1(&b, RED_add, part, zero, 1, (int64_t[]){ 0 });      /* in a group of its own, as its length is */
			all = all ? ir_bin(&b, ELEM_add, all, part) : part;
		}
	}
	ir_result(fn, ir_un(&b, ELEM_sine, x));
	if (all)
		ir_result(fn, all);
	m->arg = ARENA_NEW(&m->arena, struct ir_arg, 1);
	m->res = ARENA_NEW(&m->arena, struct ir_arg, 2);
	m->arg[0].alias = m->res[0].alias = m->res[1].alias = -1;
	struct pass_opts o = { .ndev = 1, .tier = TIER_AUTO };
	struct prog *p;
	clock_t t = clock();
	struct err *e = pass_compile(&o, m, &p);
	t = clock() - t;
	if (e)
		fail_msg("%s of %d: %s", k->name, n, e->msg);
	e = check ? prog_check(p) : NULL;
	if (e)
		fail_msg("%s of %d: %s", k->name, n, e->msg);
	prog_free(p);
	ir_module_free(m);
	return (double)t / CLOCKS_PER_SEC;
}

#ifdef __SANITIZE_ADDRESS__
enum { MOST_KB = 1 << 21 };                  /* what was freed is kept for a while */
#else
enum { MOST_KB = 1 << 20 };
#endif

static long peak_kb(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return u.ru_maxrss;
}

static void chains(void **state)
{
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		const struct kind *k = &kinds[i];
		int n = draws(k->long_by);
		double part, whole;
		for (int turn = 0; turn < 3; turn++) {       /* other programs may have taken the caches away from one of the two */
			part = compile(k, n / 4, false), whole = compile(k, n, true);
			if (whole < 8 * part + 0.2)
				break;
		}
		print_message("%-14s %6d: %.3f s, %.1f times as long as a quarter of it; %ld MB\n", k->name, n, whole, whole / part, peak_kb() >> 10);
		assert_true(whole < 8 * part + 0.2);
		assert_true(whole < 20);
		assert_true(peak_kb() < MOST_KB);
	}
}

/* Short ones have another memory plan. */
static void links(void **state)
{
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		compile(&kinds[i], 40, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(links), cmocka_unit_test(chains) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
