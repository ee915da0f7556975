/* Modules: canonical text, inference, and what the verifier and the parser refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "ir/ir.h"

static struct ir_module *parse(const char *text)
{
	struct ir_module *m = NULL;
	struct err *e = ir_parse(text, strlen(text), &m);
	if (e) {
		print_error("%s\n%s", e->msg, text);
		fail();
	}
	return m;
}

static void refuse(const char *text, const char *part)
{
	struct ir_module *m = NULL;
	struct err *e = ir_parse(text, strlen(text), &m);
	if (!e) {
		print_error("this is taken:\n%s", text);
		fail();
	}
	assert_int_equal(e->code, ERR_INVALID);
	if (!strstr(e->msg, part)) {
		print_error("'%s' does not say '%s'\n", e->msg, part);
		fail();
	}
	err_free(e);
}

static char *canonical(const char *text)
{
	struct ir_module *m = parse(text);
	struct str s = {0};
	ir_print_canonical(&s, m, ir_main(m));
	ir_module_free(m);
	return s.p;
}

static void same(const char *a, const char *b, bool equal)
{
	char *x = canonical(a), *y = canonical(b);
	if ((strcmp(x, y) == 0) != equal) {
		print_error("%s%s", x, y);
		fail();
	}
	free(x);
	free(y);
}

/* Conversions wrap on the way, also one that is undone later. */
static void constants(void **state)
{
	struct ir_module *m = ir_module_new();
	struct ir_fn *fn = ir_fn_new(m, "f");
	struct ir_b b = { m, fn, 0 };
	static const struct { enum dtype from, to[3]; int n; int64_t v, got; bool none; } c[] = {
		{ DT_i32, { DT_u8 }, 1, 300, 44, false },
		{ DT_i32, { DT_u8, DT_i32 }, 2, -1, 255, false },
		{ DT_i64, { DT_i8, DT_u16, DT_i64 }, 3, 200, 65480, false },
		{ DT_i32, { DT_u32, DT_i64 }, 2, -2, 4294967294, false },
		{ DT_u32, { DT_i32 }, 1, 4294967295, -1, false },
		{ DT_i32, { DT_pred, DT_i32 }, 2, 6, 1, false },
		{ DT_i32, { DT_f32, DT_i32 }, 2, 6, 6, true },
		{ DT_i64, { DT_u64 }, 1, -1, 0, true },             /* more than an int64_t holds */
		{ DT_i64, { DT_u64, DT_i32 }, 2, -1, -1, false },
		{ DT_u64, { DT_u64 }, 0, INT64_MIN, 0, true },
		{ DT_u4, { DT_i4, DT_i32 }, 2, 9, -7, false },
	};
	for (size_t i = 0; i < NELEM(c); i++) {
		int64_t v = 0, dim[1] = { 3 };
		ir_val x = ir_const_i(&b, ir_scalar(m, c[i].from), c[i].v);
		for (int k = 0; k < c[i].n; k++)
			x = ir_convert(&b, x, c[i].to[k]);
		x = ir_splat_of(&b, x, ir_tensor(m, ir_vtype(m, fn, x)->dtype, 1, dim));
		bool is = ir_const_int(m, fn, x, &v);
		if (is == c[i].none || (is && v != c[i].got))
			fail_msg("constant %zu is %lld", i, (long long)v);
	}
	ir_module_free(m);
}

static void canonical_text(void **state)
{
	(void)state;
	const char *a = "module @a\nfn @main(%1: f32[2], %2: f32[]) -> (f32[]) {\n  %3 = sine %1 : f32[2] loc(\"x.py\":1)\n"
	                "  %4 = cosine %1 : f32[2]\n  %5 = reduce %4, %2 dims=[0] redop=fn fn=@f : f32[]\n  return %5\n}\n"
	                "fn @f(%1: f32[], %2: f32[]) -> (f32[]) {\n  %3 = atan2 %1, %2 : f32[]\n  return %3\n}\n";
	/* other names, locations, dead code, numbers */
	const char *b = "module @b\nfn @start(%7: f32[2], %8: f32[]) -> (f32[]) {\n  %9 = cosine %7 : f32[2] loc(\"y.py\":2 \"n\")\n"
	                "  %1 = reduce %9, %8 dims=[0] redop=fn fn=@g : f32[]\n  return %1\n}\n"
	                "fn @g(%1: f32[], %2: f32[]) -> (f32[]) {\n  %4 = atan2 %1, %2 : f32[] loc(\"z\":1)\n  return %4\n}\n";
	/* the reducer's operands the other way */
	const char *c = "module @b\nfn @start(%7: f32[2], %8: f32[]) -> (f32[]) {\n  %9 = cosine %7 : f32[2]\n"
	                "  %1 = reduce %9, %8 dims=[0] redop=fn fn=@g : f32[]\n  return %1\n}\n"
	                "fn @g(%1: f32[], %2: f32[]) -> (f32[]) {\n  %4 = atan2 %2, %1 : f32[]\n  return %4\n}\n";
	same(a, b, true);
	same(a, c, false);
	same("fn @a() -> (f32[2]) {\n  %1 = constant data=0 : f32[2]\n  return %1\n}\n",
	     "fn @a() -> (f32[2]) {\n  %1 = constant data=-0 : f32[2]\n  return %1\n}\n", false);
	same("fn @a() -> (f32[2]) {\n  %1 = constant data=0x7fc00001 : f32[2]\n  return %1\n}\n",
	     "fn @a() -> (f32[2]) {\n  %1 = constant data=0x7fc00000 : f32[2]\n  return %1\n}\n", false);
	/* axes by number and size, not by name */
	const char *s = "mesh @%s = [\"%s\"=2,\"y\"=%d]\nfn @a(%%1: f32[8]) -> (f32[8]) {\n  %%2 = manual %%1 in=[@[{\"%s\"}]] out=[@[{\"%s\"}]] "
	                "axes=[0] body=@h : f32[8]\n  return %%2\n}\nfn @h(%%1: f32[4]) -> (f32[4]) {\n  return %%1\n}\n";
	char t[3][600];
	snprintf(t[0], sizeof t[0], s, "m", "x", 2, "x", "x");
	snprintf(t[1], sizeof t[1], s, "n", "z", 2, "z", "z");
	snprintf(t[2], sizeof t[2], s, "m", "x", 4, "x", "x");
	same(t[0], t[1], true);
	same(t[0], t[2], false);
}

#define OP(params, op) "module @m partitions=4\nfn @main(" params ") -> () {\n  %9 = " op "\n  return\n}\n"

static void refused_operations(void **state)
{
	(void)state;
	refuse(OP("%1: f32[2], %2: f32[3]", "add %1, %2 : f32[2]"), "operand 1 is f32[3], not f32[2]");
	refuse(OP("%1: f32[2]", "and %1, %1 : f32[2]"), "cannot be f32");
	refuse(OP("%1: f32[2]", "compare_lt %1, %1 : f32[2]"), "result 0 is pred[2]");
	refuse(OP("%1: c64[2]", "compare_lt %1, %1 : pred[2]"), "cannot be c64");
	refuse(OP("%1: pred[], %2: f32[2]", "select %1, %2, %2 : f32[2]"), "operand 0");
	refuse(OP("%1: f32[2]", "bitcast %1 : f64[2]"), "width");
	refuse(OP("", "constant data=[1,2] : f32[3]"), "8 bytes");
	refuse(OP("", "constant data=300 : u8[]"), "'300' is no u8");
	refuse(OP("", "iota dim=1 : i32[4]"), "dim 1");
	refuse(OP("%1: f32[2]", "broadcast %1 dims=[1] : f32[2,3]"), "extent 2 becomes 3");
	refuse(OP("%1: f32[2]", "broadcast %1 dims=[2] : f32[2,3]"), "dims");
	refuse(OP("%1: f32[6]", "reshape %1 : f32[5]"), "number");
	refuse(OP("%1: f32[2,3]", "transpose %1 perm=[0,0] : f32[2,2]"), "perm");
	refuse(OP("%1: f32[5]", "slice %1 start=[0] limit=[6] stride=[1] : f32[6]"), "dimension 0");
	refuse(OP("%1: f32[5]", "slice %1 start=[0] limit=[5] stride=[0] : f32[5]"), "dimension 0");
	refuse(OP("%1: f32[5], %2: f32[]", "dynamic_slice %1, %2 size=[1] : f32[1]"), "integer scalar");
	refuse(OP("%1: f32[5], %2: i32[]", "dynamic_slice %1, %2 size=[6] : f32[6]"), "size 6");
	refuse(OP("%1: f32[5], %2: f32[6], %3: i32[]", "dynamic_update_slice %1, %2, %3 : f32[5]"), "larger");
	refuse(OP("%1: f32[5,2], %2: f32[5,3]", "concatenate %1, %2 dim=0 : f32[10,2]"), "dimension 1");
	refuse(OP("%1: f32[5], %2: f32[]", "pad %1, %2 low=[-6] high=[0] interior=[0] : f32[0]"), "negative");
	refuse(OP("%1: f32[5], %2: f32[]", "pad %1, %2 low=[0] high=[0] interior=[4611686018427387904] : f32[0]"), "is not in 0 ..");
	refuse(OP("%1: f32[2,3], %2: f32[4,5]", "dot %1, %2 lc=[1] rc=[0] precision=0 components=1 : f32[2,5]"), "3 and 4");
	refuse(OP("%1: f32[2,3], %2: f32[3,5]", "dot %1, %2 lc=[1] rc=[0] precision=7 components=1 : f32[2,5]"), "precision");
	refuse(OP("%1: f32[2,3]", "cholesky %1 lower=1 : f32[2,3]"), "square");
	refuse(OP("%1: f32[8]", "fft %1 kind=0 length=[8] : c64[8]"), "f32");
	refuse(OP("%1: f32[8]", "top_k %1 k=9 : f32[9]"), "results");
	refuse(OP("%1: f32[8]", "collective_permute %1 pairs=[0,1,2,1] : f32[8]"), "target twice");
	refuse(OP("%1: f32[8]", "all_reduce %1 group=[[0,0]] redop=add : f32[8]"), "twice");
	refuse(OP("%1: f32[8]", "all_reduce %1 redop=add : f32[8]"), "no groups");
	refuse(OP("%1: f32[8]", "reduce_scatter %1 dim=0 group=[[0,1,2]] redop=add : f32[2]"), "split in 3");
	refuse(OP("%1: f32[8], %2: f32[]", "reduce %1, %2 dims=[0] redop=fn : f32[]"), "no function");
	refuse(OP("%1: f32[8], %2: i32[]", "reduce %1, %2 dims=[0] redop=add : f32[]"), "initial value");
	refuse(OP("%1: token", "negate %1 : token"), "cannot be token");
	refuse(OP("%1: i4[3]", "bitcast_convert %1 : i16[3]"), "extents");
	refuse(OP("%1: f32[3]", "sharding_constraint %1 sharding=@[{}] : f32[3]"), "without a mesh");
}

static void refused_text(void **state)
{
	(void)state;
	refuse("", "no function");
	refuse("module", "'@' expected");
	refuse("fn @a() -> () {", "expected");
	refuse("fn @a(%1: f32[) -> () {\n  return\n}", "number expected");
	refuse("fn @a(%1: f32[-2]) -> () {\n  return\n}", "negative");
	refuse("fn @a(%1: f32[4294967296,4294967296]) -> () {\n  return\n}", "2^48");
	refuse("fn @a(%1: f33[2]) -> () {\n  return\n}", "element type");
	refuse("fn @a(%1: f32[2], %1: f32[2]) -> () {\n  return\n}", "twice");
	refuse("fn @a() -> () {\n  return\n}\nfn @a() -> () {\n  return\n}", "twice");
	refuse("mesh @m = [\"x\"=0]", "axis of none");
	refuse("mesh @m = [\"x\"=2] ids=[0,0]", "permutation");
	refuse("mesh @m = [\"x\"=2]\nmesh @m = []", "two meshes");
	refuse("mesh @m = [\"x\"=4]\nfn @a(%1: f32[2] @[{\"x\":(3)2}]) -> () {\n  return\n}", "divide");
	refuse("mesh @m = [\"x\"=4]\nfn @a(%1: f32[2] @[{\"y\"}]) -> () {\n  return\n}", "no axis");
	refuse("fn @a(%1: f32[2] alias=0) -> () {\n  return\n}", "aliases output 0 of 0");
	refuse("fn @a() -> () {\n  %1 = constant data=x\"0\" : f32[]\n  return\n}", "hexadecimal");
	refuse("fn @a() -> () {\n  %1 = constant data=99999999999999999999 : i64[]\n  return\n}", "no i64");
	refuse("fn @a(%1: f32[2]) -> () {\n  %2 = loop %1 trip=-1 body=@b cond=@c role=[carryy] : f32[2]\n  return\n}", "role");
}

/* Broken modules that the parser cannot make. */
static void refused_modules(void **state)
{
	(void)state;
	const char *text = "fn @a(%1: f32[2,3]) -> (f32[3,2]) {\n  %2 = transpose %1 perm=[1,0] : f32[3,2]\n  %3 = negate %2 : f32[3,2]\n  return %3\n}\n";
	for (int k = 0; k < 9; k++) {
		struct ir_module *m = parse(text);
		struct ir_fn *fn = ir_main(m);
		assert_null(ir_verify(m));
		switch (k) {
		case 0: fn->ref.p[1] = 3; break;                  /* negate of itself */
		case 1: fn->ref.p[0] = 77; break;
		case 2: fn->attr.p[0] = 1000; break;              /* longer than there are words */
		case 3: fn->attr.p[0] = -1; break;
		case 4: fn->op.p[1].kind = IR_COUNT; break;
		case 5: fn->val.p[2].type = 99; break;
		case 6: fn->result.p[0] = 0; break;
		case 7: fn->op.p[1].out = 2; break;
		case 8: ir_shard_set(fn, 3, 5); break;
		}
		struct err *e = ir_verify(m);
		if (!e) {
			print_error("broken module %d verifies\n", k);
			fail();
		}
		err_free(e);
		ir_module_free(m);
	}
}

/* A long chain of calls must not need a deep stack; nor many operations much time. */
static void large(void **state)
{
	(void)state;
	struct str s = {0};
	int n = 20000;
	for (int i = 0; i < n; i++)
		str_addf(&s, i + 1 < n ? "fn @f%d(%%1: f32[]) -> (f32[]) {\n  %%2 = call %%1 fn=@f%d : f32[]\n  return %%2\n}\n"
		                       : "fn @f%d(%%1: f32[]) -> (f32[]) {\n  return %%1\n}\n", i, i + 1);
	struct ir_module *m = parse(s.p);
	struct str t = {0};
	ir_print(&t, m);
	assert_false(ir_effect(m, ir_main(m), &ir_main(m)->op.p[0]));
	ir_module_free(m);
	/* a graph of calls with 3^40 paths */
	s.n = 0;
	for (int i = 0; i < 40; i++)
		str_addf(&s, "fn @f%d(%%1: f32[]) -> (f32[]) {\n  %%2 = call %%1 fn=@f%d : f32[]\n  %%3 = call %%2 fn=@f%d : f32[]\n"
		             "  %%4 = call %%3 fn=@f%d : f32[]\n  return %%4\n}\n", i, i + 1, i + 1, i + 1);
	str_add(&s, "fn @f40(%1: f32[]) -> (f32[]) {\n  sharding_group %1 id=1\n  return %1\n}\n");
	m = parse(s.p);
	assert_true(ir_effect(m, ir_main(m), &ir_main(m)->op.p[0]));
	ir_module_free(m);
	s.n = 0;
	str_add(&s, "fn @f(%1: f32[8]) -> (f32[8]) {\n");
	n = 100000;
	for (int i = 1; i <= n; i++)
		str_addf(&s, "  %%%d = sine %%%d : f32[8]\n", i + 1, i);
	str_addf(&s, "  return %%%d\n}\n", n + 1);
	m = parse(s.p);
	assert_int_equal(ir_main(m)->op.n, n);
	t.n = 0;
	ir_print(&t, m);
	ir_module_free(m);
	str_free(&s);
	str_free(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(constants), cmocka_unit_test(canonical_text), cmocka_unit_test(refused_operations), cmocka_unit_test(refused_text),
		cmocka_unit_test(refused_modules), cmocka_unit_test(large),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
