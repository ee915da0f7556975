/* Every table that hangs on ops.def, elem.def, redop.def or dtype.def has all its entries: each operation has an
 * example here, which verifies, keeps its text, and has kernels or is known to be run otherwise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "eval/eval.h"
#include "ir/ir.h"
#include "kern/kern.h"
#include "plan/plan.h"

/* How an operation runs. */
enum how {
	KERNEL,      /* eval_steps knows it: kernels, or nothing to do */
	WALK,        /* control flow, collectives, device positions, calls: the walker does it */
	NONE,        /* not executable here */
};

struct example { enum how how; const char *params, *op, *extra; };

#define FN "fn @g(%1: f32[], %2: f32[]) -> (f32[]) {\n  %3 = atan2 %1, %2 : f32[]\n  return %3\n}\n"
#define GE "fn @ge(%1: f32[], %2: f32[]) -> (pred[]) {\n  %3 = compare_ge %1, %2 : pred[]\n  return %3\n}\n"
#define HALF "fn @half(%1: f32[]) -> (f32[]) {\n  %2 = constant data=0.5 : f32[]\n  %3 = multiply %1, %2 : f32[]\n  return %3\n}\n"
#define HALVES "fn @halves(%1: f32[]) -> (f32[], f32[]) {\n  %2 = constant data=0.5 : f32[]\n  %3 = multiply %1, %2 : f32[]\n  return %3, %2\n}\n"
#define SUM "fn @sum(%1: f32[], %2: f32[]) -> (f32[]) {\n  %3 = add %1, %2 : f32[]\n  return %3\n}\n"

/* params: of main; op: without the results, which are %9, %10 ..; extra: other functions. */
static const struct example of[IR_COUNT] = {
#define ELEM(id, nin, flags, work, slow, meaning) [IR_##id] = { KERNEL, NULL, NULL, "" },
#include "base/elem.def"
#undef ELEM
	[IR_constant] = { KERNEL, "", "constant data=[1,2] : f32[2]", "" },
	[IR_iota] = { KERNEL, "", "iota dim=1 : i32[2,3]", "" },
	[IR_broadcast] = { KERNEL, "%1: f32[3]", "broadcast %1 dims=[1] : f32[2,3]", "" },
	[IR_reshape] = { KERNEL, "%1: f32[2,3]", "reshape %1 : f32[6]", "" },
	[IR_transpose] = { KERNEL, "%1: f32[2,3]", "transpose %1 perm=[1,0] : f32[3,2]", "" },
	[IR_reverse] = { KERNEL, "%1: f32[2,3]", "reverse %1 dims=[1] : f32[2,3]", "" },
	[IR_slice] = { KERNEL, "%1: f32[5]", "slice %1 start=[1] limit=[5] stride=[3] : f32[2]", "" },
	[IR_dynamic_slice] = { KERNEL, "%1: f32[5], %2: i32[]", "dynamic_slice %1, %2 size=[2] : f32[2]", "" },
	[IR_dynamic_update_slice] = { KERNEL, "%1: f32[5], %2: f32[2], %3: i64[]", "dynamic_update_slice %1, %2, %3 : f32[5]", "" },
	[IR_concatenate] = { KERNEL, "%1: f32[2,3], %2: f32[2,1]", "concatenate %1, %2, %1 dim=1 : f32[2,7]", "" },
	[IR_pad] = { KERNEL, "%1: f32[3], %2: f32[]", "pad %1, %2 low=[-1] high=[2] interior=[1] : f32[6]", "" },
	[IR_gather] = { KERNEL, "%1: f32[5,3], %2: i32[4,1]",
	                "gather %1, %2 offset_dims=[1] collapsed=[0] index_map=[0] index_dim=1 size=[1,3] sorted=0 : f32[4,3]", "" },
	[IR_scatter] = { KERNEL, "%1: f32[5,3], %2: i32[4,1], %3: f32[4,3]",
	                 "scatter %1, %2, %3 window_dims=[1] inserted=[0] to_operand=[0] index_dim=1 sorted=0 unique=0 redop=add : f32[5,3]", "" },
	[IR_reduce] = { KERNEL, "%1: f32[2,3], %2: f32[]", "reduce %1, %2 dims=[0] redop=max : f32[3]", "" },
	[IR_reduce_window] = { KERNEL, "%1: f32[5], %2: f32[]",
	                       "reduce_window %1, %2 window=[2] stride=[2] base_dilation=[1] window_dilation=[1] low=[0] high=[1] redop=add : f32[3]", "" },
	[IR_select_and_scatter] = { KERNEL, "%1: f32[4], %2: f32[2], %3: f32[]",
	                            "select_and_scatter %1, %2, %3 window=[2] stride=[2] low=[0] high=[0] select=@ge scatter=@sum : f32[4]", GE SUM },
	[IR_sort] = { KERNEL, "%1: f32[5]", "sort %1 dim=0 stable=1 fn=@ge : f32[5]", GE },
	[IR_top_k] = { KERNEL, "%1: f32[5]", "top_k %1 k=2 : f32[2], i32[2]", "" },
	[IR_cumulative] = { KERNEL, "%1: f32[5]", "cumulative %1 dim=0 reverse=1 redop=mul : f32[5]", "" },
	[IR_dot] = { KERNEL, "%1: f32[2,3], %2: f32[3,4]", "dot %1, %2 lc=[1] rc=[0] precision=0 components=1 : f32[2,4]", "" },
	[IR_convolution] = { KERNEL, "%1: f32[1,8,2], %2: f32[3,2,4]",
	                     "convolution %1, %2 lhs=[0,2,1] rhs=[1,2,0] out=[0,2,1] stride=[1] low=[1] high=[1] lhs_dilation=[1] rhs_dilation=[1] "
	                     "reversal=[0] feature_groups=1 batch_groups=1 precision=0 : f32[1,8,4]", "" },
	[IR_attention] = { KERNEL, "%1: f32[1,2,3], %2: f32[4,3], %3: f32[4,5]", "attention %1, %2, %3 fn=@half : f32[1,2,5], f32[1,2]", HALF },
	[IR_attention_part] = { KERNEL, "%1: f32[1,2,3], %2: f32[4,3], %3: f32[4,5]", "attention_part %1, %2, %3 fn=@half : f32[1,2,5], f32[1,2], f32[1,2]", HALF },
	[IR_attention_grad] = { KERNEL, "%1: f32[1,2,3], %2: f32[4,3], %3: f32[4,5], %4: f32[1,2], %5: f32[1,2,5], %6: f32[1,2]",
	                        "attention_grad %1, %2, %3, %4, %5, %6 fn=@halves : f32[1,2,3], f32[4,3], f32[4,5]", HALVES },
	[IR_attention_grad_add] = { KERNEL, "%1: f32[1,2,3], %2: f32[4,3], %3: f32[4,5], %4: f32[1,2], %5: f32[1,2,5], %6: f32[1,2], %7: f32[1,2,3], %8: f32[4,3], %9: f32[4,5]",
	                            "attention_grad_add %1, %2, %3, %4, %5, %6, %7, %8, %9 fn=@halves : f32[1,2,3], f32[4,3], f32[4,5]", HALVES },
	[IR_cholesky] = { KERNEL, "%1: f32[3,3]", "cholesky %1 lower=1 : f32[3,3]", "" },
	[IR_triangular_solve] = { KERNEL, "%1: f32[3,3], %2: f32[3,2]", "triangular_solve %1, %2 left=1 lower=1 unit=0 trans=1 : f32[3,2]", "" },
	[IR_fft] = { KERNEL, "%1: f32[8]", "fft %1 kind=2 length=[8] : c64[5]", "" },
	[IR_rng_bit_generator] = { KERNEL, "%1: u64[2]", "rng_bit_generator %1 algorithm=2 : u64[2], u32[5]", "" },
	[IR_rng] = { KERNEL, "%1: f32[], %2: f32[]", "rng %1, %2 distribution=1 : f32[5]", "" },
	[IR_reduce_precision] = { KERNEL, "%1: f32[5]", "reduce_precision %1 exponent=5 mantissa=10 : f32[5]", "" },
	[IR_bitcast_convert] = { KERNEL, "%1: f32[5]", "bitcast_convert %1 : u8[5,4]", "" },
	[IR_custom_call] = { WALK, "%1: f32[5]", "custom_call %1 target=\"t\" api=4 effect=0 : f32[5]", "" },
	[IR_optimization_barrier] = { KERNEL, "%1: f32[5]", "optimization_barrier %1 : f32[5]", "" },
	[IR_create_token] = { KERNEL, "", "create_token : token", "" },
	[IR_after_all] = { KERNEL, "%1: token", "after_all %1, %1 : token", "" },
	[IR_partition_id] = { WALK, "", "partition_id : u32[]", "" },
	[IR_replica_id] = { KERNEL, "", "replica_id : u32[]", "" },
	[IR_all_reduce] = { WALK, "%1: f32[5]", "all_reduce %1 group=[[0,1]] redop=add : f32[5]", "" },
	[IR_all_gather] = { WALK, "%1: f32[5]", "all_gather %1 dim=0 group=[[0,1]] : f32[10]", "" },
	[IR_reduce_scatter] = { WALK, "%1: f32[4]", "reduce_scatter %1 dim=0 group=[[0,1]] redop=add : f32[2]", "" },
	[IR_all_to_all] = { WALK, "%1: f32[4,3]", "all_to_all %1 split=0 concat=1 group=[[0,1]] : f32[2,6]", "" },
	[IR_redistribute] = { WALK, "%1: f32[4]", "redistribute %1 boxes=[0,1,2,0,1,1,1,0,0,1] group=[[0,1]] : f32[1]", "" },
	[IR_ragged_all_to_all] = { WALK, "%1: f32[4,3], %2: f32[7,3], %3: i64[2,3]", "ragged_all_to_all %1, %2, %3 group=[[0,1]] : f32[7,3]", "" },
	[IR_collective_permute] = { WALK, "%1: f32[5]", "collective_permute %1 pairs=[0,1,1,0] : f32[5]", "" },
	[IR_collective_broadcast] = { WALK, "%1: f32[5]", "collective_broadcast %1 group=[[0,1]] : f32[5]", "" },
	[IR_infeed] = { NONE, "%1: token", "infeed %1 config=\"c\" : f32[5], token", "" },
	[IR_outfeed] = { NONE, "%1: f32[5], %2: token", "outfeed %1, %2 config=\"c\" : token", "" },
	[IR_send] = { NONE, "%1: f32[5], %2: token", "send %1, %2 channel=1 kind=2 : token", "" },
	[IR_recv] = { NONE, "%1: token", "recv %1 channel=1 kind=3 : f32[5], token", "" },
	[IR_sharding_constraint] = { KERNEL, "%1: f32[4]", "sharding_constraint %1 sharding=@[{\"x\"}] : f32[4]", "" },
	[IR_sharding_group] = { KERNEL, "%1: f32[4]", "sharding_group %1 id=3", "" },
	[IR_inspect_sharding] = { KERNEL, "%1: f32[4]", "inspect_sharding %1 key=0", "" },
	[IR_manual] = { WALK, "%1: f32[4]", "manual %1 in=[@[{\"x\"}]] out=[@[{\"x\"}]] axes=[0] body=@h : f32[4]",
	                "fn @h(%1: f32[2]) -> (f32[2]) {\n  return %1\n}\n" },
	[IR_call] = { WALK, "%1: f32[], %2: f32[]", "call %1, %2 fn=@g : f32[]", FN },
	[IR_case] = { WALK, "%1: i32[], %2: f32[], %3: f32[]", "case %1, %2, %3 branch=[@g,@sum] : f32[]", FN SUM },
	[IR_loop] = { WALK, "%1: f32[], %2: f32[]", "loop %1, %2 trip=3 body=@b role=[carry,const] : f32[]",
	              "fn @b(%1: i32[], %2: f32[], %3: f32[]) -> (f32[]) {\n  %4 = add %2, %3 : f32[]\n  return %4\n}\n" },
	[IR_fused] = { WALK, "%1: f32[], %2: f32[]", "fused %1, %2 fn=@g : f32[]", FN },
};

static struct ir_module *parse(const struct str *s)
{
	struct ir_module *m = NULL;
	struct err *e = ir_parse(s->p, s->n, &m);
	if (e) {
		print_error("%s\n%s", e->msg, s->p);
		fail();
	}
	return m;
}

static struct ir_module *example(int kind)
{
	const struct example *x = &of[kind];
	struct str s = {0};
	int n = 0;
	for (const char *c = strstr(x->op, " : "); c && *c; c++)    /* results: commas outside brackets */
		n += c[0] == ']' ? (c[1] == ',' || !c[1]) : strncmp(c, "token", 5) == 0;
	str_addf(&s, "module @m partitions=4\nmesh @x = [\"x\"=2]\nfn @main(%s) -> () {\n  ", x->params);
	for (int i = 0; i < n; i++)
		str_addf(&s, i ? ", %%%d" : "%%%d", 10 + i);
	str_addf(&s, "%s%s\n  return\n}\n%s", n ? " = " : "", x->op, x->extra);
	struct ir_module *m = parse(&s);
	str_free(&s);
	return m;
}

/* The op is the only one that matters in main. */
static const struct ir_op *the_op(const struct ir_module *m)
{
	return &ir_main(m)->op.p[0];
}

static void every_operation(void **state)
{
	(void)state;
	int bad = 0;
	for (int k = 1; k < IR_COUNT; k++) {
		const char *name = ir_info(k)->name;
		if (ir_is_elem(k))
			continue;
		if (!of[k].op) {
			print_error("no example of '%s' in tests/unit/tables.c\n", name);
			fail();
		}
		struct ir_module *m = example(k);
		const struct ir_op *o = the_op(m);
		assert_int_equal(o->kind, k);
		bool has = eval_has_kernel(m, ir_main(m), o);
		if (has != (of[k].how == KERNEL)) {
			print_error("'%s' has %s kernel\n", name, has ? "a" : "no");
			bad++;
		}
		/* what can be inferred is what it has */
		ir_type t[4] = {0};
		assert_true(o->nout <= NELEM(t));
		assert_null(ir_infer(m, ir_main(m), o, t));
		for (uint32_t i = 0; i < o->nout; i++)
			assert_true(t[i] == 0 || t[i] == ir_main(m)->val.p[o->out + i].type);
		ir_module_free(m);
	}
	assert_int_equal(bad, 0);
}

/* Does this verify: fn of dtype from to dtype to? */
static struct ir_module *elem_module(enum elem e, enum dtype from, enum dtype to)
{
	struct str s = {0};
	const char *f = dtype_info[from].name;
	int n = elem_info[e].nin;
	str_add(&s, "module @m partitions=4\nfn @main(");
	for (int i = 0; i < n; i++)
		str_addf(&s, "%s%%%d: %s[3]", i ? ", " : "", i + 1, e == ELEM_select && i == 0 ? "pred" : f);
	str_addf(&s, ") -> () {\n  %%9 = %s", elem_info[e].name);
	for (int i = 0; i < n; i++)
		str_addf(&s, "%s%%%d", i ? ", " : " ", i + 1);
	str_addf(&s, " : %s[3]\n  return\n}\n", dtype_info[to].name);
	struct ir_module *m = NULL;
	err_free(ir_parse(s.p, s.n, &m));
	str_free(&s);
	return m;
}

static void every_elementwise_function(void **state)
{
	(void)state;
	int bad = 0, seen = 0;
	for (int e = 0; e < ELEM_COUNT; e++)
		for (int from = 1; from < DT_COUNT; from++)
			for (int to = 1; to < DT_COUNT; to++) {
				if (!dtype_info[from].name || !dtype_info[to].name || from == DT_token || to == DT_token)
					continue;
				if (!(elem_info[e].flags & (EL_CONV | EL_PRED | EL_REAL)) && from != to)
					continue;
				struct ir_module *m = elem_module(e, from, to);
				if (!m)
					continue;
				seen++;
				if (!eval_has_kernel(m, ir_main(m), the_op(m)) && bad++ < 20)
					print_error("no kernel of '%s' from %s to %s\n", elem_info[e].name, dtype_info[from].name, dtype_info[to].name);
				ir_module_free(m);
			}
	assert_true(seen > 1500);
	assert_int_equal(bad, 0);
}

/* --- prices ------------------------------------------------------------------------ */

static bool sane(double x) { return x >= 0 && x < 1e9; }

/* Who reads the table of costs finds each operation in it: what does not cost anything says so. */
static void every_cost(void **state)
{
	(void)state;
	for (int k = 1; k < IR_COUNT; k++) {
		if (ir_is_elem(k))
			continue;
		struct ir_module *m = example(k);
		struct ir_cost c = ir_cost_of(m, ir_main(m), the_op(m));
		bool free = ir_info(k)->flags & (IR_VIEW | IR_BARRIER) || of[k].how == NONE || k == IR_constant || k == IR_create_token || k == IR_after_all ||
		            k == IR_partition_id || k == IR_replica_id || k == IR_sharding_constraint || k == IR_sharding_group || k == IR_inspect_sharding || k == IR_manual;
		if (!sane(c.flops) || !sane(c.adds) || !sane(c.bytes) || (c.ops > 0) == free || (c.adds > 0) == free || c.adds < c.flops) {
			print_error("'%s' costs %g operations, %g additions, %g bytes, in %g ops\n", ir_info(k)->name, c.flops, c.adds, c.bytes, c.ops);
			fail();
		}
		ir_module_free(m);
	}
	for (int e = 0; e < ELEM_COUNT; e++) {
		assert_true(elem_work(e, DT_f32) >= 1);
		assert_true(elem_work(e, DT_f64) >= elem_work(e, DT_f32));
	}
}

static void costs_by_hand(void **state)
{
	(void)state;
	static const struct { int kind; double flops, bytes; } x[] = {
		{ IR_dot, 2 * 2 * 3 * 4, 4 * (6 + 12 + 8) },
		{ IR_convolution, 2 * (8 * 3 - 2) * 2 * 4, 4 * (16 + 24 + 32) },        /* two of the windows see an element of padding */
		{ IR_reduce, 6, 4 * (6 + 1 + 3) },
		{ IR_reduce_window, 3, 4 * (5 + 1 + 3) },
		{ IR_gather, 0, 4 * (4 + 12 + 12) },
		{ IR_scatter, 12, 4 * (4 + 12 + 24) },
		{ IR_dynamic_slice, 0, 4 * (1 + 2 + 2) },
		{ IR_dynamic_update_slice, 0, 4 * (2 + 2) + 8 },
		{ IR_sort, 5 * 3, 4 * (5 + 5) },
		{ IR_cumulative, 5, 4 * (5 + 5) },
		{ IR_cholesky, 9, 4 * (9 + 9) },
		{ IR_triangular_solve, 9 * 2, 4 * (9 + 6 + 6) },
		{ IR_fft, 5 * 8 * 3 / 2, 4 * 8 + 8 * 5 },
		{ IR_broadcast, 0, 0 },
		{ IR_all_reduce, 5, 4 * (5 + 5) },
		{ IR_loop, 3, 3 * 4 * 3 },
	};
	for (size_t i = 0; i < NELEM(x); i++) {
		struct ir_module *m = example(x[i].kind);
		struct ir_cost c = ir_cost_of(m, ir_main(m), the_op(m));
		if (c.flops != x[i].flops || c.bytes != x[i].bytes) {
			print_error("'%s': %g operations, %g bytes, not %g, %g\n", ir_info(x[i].kind)->name, c.flops, c.bytes, x[i].flops, x[i].bytes);
			fail();
		}
		ir_module_free(m);
	}
}

/* A broadcast is its operand, equal elements nothing, a loop its turns; a branch is the dearest one; a group what lies around it. */
static void costs_of_functions(void **state)
{
	(void)state;
	struct str s = {0};
	str_add(&s, "module @m\nfn @main(%1: f32[8], %2: f32[4,8], %3: pred[], %4: i32[]) -> (f32[4,8], f32[8]) {\n  %5 = broadcast %1 dims=[1] : f32[4,8]\n"
		"  %6 = add %5, %2 : f32[4,8]\n  %7 = constant data=2 : f32[4,8]\n  %8 = fused %6, %7 fn=@g : f32[4,8]\n"
		"  %9 = loop %1, %3 trip=-1 cond=@go body=@b role=[carry,const] : f32[8]\n  %10 = case %4, %9 branch=[@b1,@b2] : f32[8]\n  return %8, %10\n}\n"
		"fn @g(%1: f32[4,8], %2: f32[4,8]) -> (f32[4,8]) {\n  %3 = exponential %1 : f32[4,8]\n  %4 = multiply %3, %2 : f32[4,8]\n  return %4\n}\n"
		"fn @go(%1: f32[8], %2: pred[]) -> (pred[]) {\n  return %2\n}\n"
		"fn @b(%1: i32[], %2: f32[8], %3: pred[]) -> (f32[8]) {\n  %4 = add %2, %2 : f32[8]\n  return %4\n}\n"
		"fn @b1(%1: f32[8]) -> (f32[8]) {\n  return %1\n}\nfn @b2(%1: f32[8]) -> (f32[8]) {\n  %2 = tanh %1 : f32[8]\n  return %2\n}\n");
	struct ir_module *m = parse(&s);
	const struct ir_fn *fn = ir_main(m);
	double flops = 0;
	for (size_t i = 0; i < fn->op.n; i++) {
		struct ir_cost c = ir_cost_of(m, fn, &fn->op.p[i]);
		flops += c.flops;
		switch (fn->op.p[i].kind) {
		case IR_add: assert_true(c.flops == 32 && c.bytes == 32 + 128 + 128); break;
		case IR_fused: assert_true(c.flops == 64 && c.adds == 32 * (16 + 1) && c.bytes == 3 * 128 && c.ops == 2); break;
		case IR_loop: assert_true(c.flops == 8 * IR_TURNS); break;
		case IR_case: assert_true(c.flops == 8 && c.adds == 8 * 16); break;
		}
	}
	assert_true(ir_cost_of_fn(m, fn).flops == flops);
	struct arena a;
	arena_init(&a);
	const double *runs = ir_runs(&a, m);
	for (size_t f = 1; f < m->fn.n; f++) {
		const char *name = ir_text(m, m->fn.p[f]->name);
		assert_true(runs[f] == (!strcmp(name, "b") || !strcmp(name, "go") ? IR_TURNS : !strncmp(name, "b", 1) ? 0.5 : 1));
	}
	arena_fini(&a);
	ir_module_free(m);
	str_free(&s);
}

/* Little work seldom is not worth its code, much or often is; a program that takes long is launched a thousand times. */
static void prices(void **state)
{
	(void)state;
	const struct plan_work few = { 16, 16, 128, 2 }, many = { 2e6, 2e6, 8e6, 2 };
	assert_false(plan_worth_compiling(NULL, &few, PLAN_strips, 2, 2, plan_launches(0, 5)));
	assert_true(plan_worth_compiling(NULL, &few, PLAN_strips, 2, 2, plan_launches(0, 5) * 1000));
	assert_true(plan_worth_compiling(NULL, &many, PLAN_strips, 2, 2, plan_launches(1e6, 5)));
	assert_false(plan_worth_compiling(NULL, &many, PLAN_strips, 2, 2, 1));
	assert_true(plan_launches(1e12, 5) == 1000 && plan_launches(0, 1) == 1000 && plan_launches(0, 5) > 1000);
	for (int way = 0; way < PLAN_WAYS; way++)
		assert_true(plan_time(NULL, &many, way) > plan_time(NULL, &few, way));
}

/* Reductions by each operation of each type that has it. */
static void every_reduction(void **state)
{
	(void)state;
	int bad = 0;
	for (int r = 0; r < RED_COUNT; r++)
		for (int dt = 1; dt < DT_COUNT; dt++) {
			if (!dtype_info[dt].name || dt == DT_token || redop_elem[r] == ELEM_COUNT)
				continue;
			bool bits = r == RED_and || r == RED_or || r == RED_xor;
			int c = dtype_info[dt].cls;
			if (bits && c != DT_PRED && c != DT_INT && c != DT_UINT)
				continue;
			struct str s = {0};
			const char *t = dtype_info[dt].name;
			str_addf(&s, "module @m\nfn @main(%%1: %s[4,3], %%2: %s[]) -> () {\n  %%3 = reduce %%1, %%2 dims=[0] redop=%s : %s[3]\n  return\n}\n",
			         t, t, redop_name[r], t);
			struct ir_module *m = parse(&s);
			if (!eval_has_kernel(m, ir_main(m), the_op(m)) && bad++ < 20)
				print_error("no reduction by '%s' of %s\n", redop_name[r], t);
			char id[16];
			kern_identity(r, dt, id);
			ir_module_free(m);
			str_free(&s);
		}
	assert_int_equal(bad, 0);
}

/* What changes nothing does so for every value of the small types and for some of the others. */
static void every_identity(void **state)
{
	(void)state;
	for (int r = 0; r < RED_COUNT; r++)
		for (int dt = 1; dt < DT_COUNT; dt++) {
			int c = dtype_info[dt].cls, bits = dtype_info[dt].bits;
			if (!dtype_info[dt].name || (c != DT_INT && c != DT_UINT && c != DT_FLOAT) || redop_elem[r] == ELEM_COUNT ||
			    ((r == RED_and || r == RED_or || r == RED_xor) && c == DT_FLOAT) || (dt == DT_f8e8m0fnu && r == RED_add) || dt == DT_i1)     /* which have no 0, no 1 */
				continue;
			for (int k = -128; k < 128; k++) {
				char x[16] = { (char)k }, y[16];
				double v = k, w;
				if (bits < 8 && (c == DT_INT ? k < -(1 << (bits - 1)) || k >= 1 << (bits - 1) : k < 0 || k >= 1 << bits))
					continue;
				if (bits > 8)
					kern_elem(ELEM_convert, DT_f64, (enum dtype)dt)(1, x, &v, NULL, NULL);
				kern_identity((enum redop)r, (enum dtype)dt, y);
				kern_combine((enum redop)r, (enum dtype)dt, 1, y, x);
				kern_elem(ELEM_convert, (enum dtype)dt, DT_f64)(1, &v, x, NULL, NULL);
				kern_elem(ELEM_convert, (enum dtype)dt, DT_f64)(1, &w, y, NULL, NULL);
				if (!(v == w || (v != v && w != w)))
					fail_msg("%s of the identity and %g of %s is %g", redop_name[r], v, dtype_info[dt].name, w);
			}
		}
}

static void every_row_prints(void **state)
{
	(void)state;
	for (int k = 1; k < IR_COUNT; k++) {
		const struct ir_kind_info *i = ir_info(k);
		assert_non_null(i->name);
		assert_true(i->meaning[0]);
		assert_int_equal(ir_kind_by_name(i->name, strlen(i->name)), k);
		for (int a = 0; a < i->nattr; a++)
			assert_non_null(strchr("iIfFtRbsghHD", i->attr[a].kind));
	}
	for (int d = 1; d < DT_COUNT; d++)
		if (dtype_info[d].name)
			assert_int_equal(dtype_by_name(dtype_info[d].name, strlen(dtype_info[d].name)), d);
	for (int r = 0; r < RED_COUNT; r++)
		assert_non_null(redop_name[r]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_row_prints), cmocka_unit_test(every_operation), cmocka_unit_test(every_cost), cmocka_unit_test(costs_by_hand), cmocka_unit_test(costs_of_functions), cmocka_unit_test(prices),
		cmocka_unit_test(every_elementwise_function), cmocka_unit_test(every_reduction), cmocka_unit_test(every_identity),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
