/* The walk: loops with roles, branches, regions that are no expression, collectives in step. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "eval/eval.h"
#include "hlo/hlo.h"
#include "pass/pass.h"

enum { MOST = 64 };
static float out[8][MOST];      /* results of the last run: [device * results + result] */
static int nout;

/* Run the text on ndev positions; in: each parameter's elements as f32 or i32, one after the other, all
 * positions the same but for "+ device" on the first element of the first.  NULL, or the error. */
static struct err *go(const char *text, int ndev, const float *in, bool verify)
{
	struct ir_module *m;
	struct err *e = ir_parse(text, strlen(text), &m);
	if (e)
		return e;
	if (verify && (e = ir_verify(m)))
		goto done;
	const struct ir_fn *fn = ir_main(m);
	struct eval_array a[64] = { 0 }, r[64] = { 0 };
	int np = (int)fn->nparam, nr = (int)fn->result.n;
	for (int d = 0; d < ndev; d++) {
		const float *p = in;
		for (int i = 0; i < np; i++) {
			const struct ir_type_info *t = ir_vtype(m, fn, (ir_val)(1 + i));
			struct eval_array *x = &a[d * np + i];
			x->bytes = (size_t)t->bytes;
			x->p = calloc(1, x->bytes + 16);
			for (int64_t k = 0; k < t->count; k++) {
				float v = *p++ + (i == 0 && k == 0 ? (float)d : 0);
				kern_elem(ELEM_convert, DT_f32, (enum dtype)t->dtype)(1, (char *)x->p + k * dtype_info[t->dtype].bytes, &v, NULL, NULL);
			}
		}
	}
	struct eval_opts o = { .ndev = ndev, .max_iter = 1000 };
	e = eval_main(m, &o, a, r);
	nout = nr;
	for (int i = 0; i < ndev * nr && !e; i++) {
		assert_true(i < 8);
		int64_t n = (int64_t)(r[i].bytes / dtype_info[r[i].dtype].bytes);
		kern_elem(ELEM_convert, r[i].dtype, DT_f32)(n, out[i], r[i].p, NULL, NULL);
	}
	for (int i = 0; i < ndev * MAX(np, nr); i++) {
		if (i < ndev * np)
			free(a[i].p);
		if (i < ndev * nr)
			eval_array_free(&r[i]);
	}
done:
	ir_module_free(m);
	return e;
}
static void run(const char *text, int ndev, const float *in)
{
	struct err *e = go(text, ndev, in, true);
	if (e)
		fail_msg("%s", e->msg);
}
static void is(int i, int n, const float *want)
{
	for (int k = 0; k < n; k++)
		if (out[i][k] != want[k])
			fail_msg("result %d element %d: %g, not %g", i, k, out[i][k], want[k]);
}
#define IS(i, ...) is(i, (int)(sizeof((float[]){ __VA_ARGS__ }) / 4), (float[]){ __VA_ARGS__ })

static void roles(void **state)
{
	static const char text[] =
		"module @m partitions=1 replicas=1\n"
		"fn @main(%1: f32[], %2: f32[3,2], %3: f32[3], %4: f32[4]) -> (f32[], f32[4], f32[4]) {\n"
		"  %5, %6, %7 = loop %1, %1, %2, %3, %4, %4 trip=3 body=@body role=[carry,const,in,in_rev,out,out_rev] : f32[], f32[4], f32[4]\n"
		"  return %5, %6, %7\n}\n"
		"fn @body(%1: i32[], %2: f32[], %3: f32[], %4: f32[2], %5: f32[]) -> (f32[], f32[], f32[]) {\n"
		"  %6 = slice %4 start=[1] limit=[2] stride=[1] : f32[1]\n"
		"  %7 = reshape %6 : f32[]\n"
		"  %8 = add %2, %7 : f32[]\n"
		"  %9 = multiply %5, %3 : f32[]\n"
		"  %10 = convert %1 : f32[]\n"
		"  return %8, %9, %10\n}\n";
	run(text, 1, (float[]){ 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, -1, -2, -3, -4 });
	IS(0, 10 + 2 + 4 + 6);
	IS(1, 90, 80, 70, -4);
	IS(2, 2, 1, 0, -4);
}

static void whiles(void **state)
{
	static const char text[] =
		"module @m partitions=1 replicas=1\n"
		"fn @main(%1: i32[], %2: f32[5]) -> (i32[], f32[5], f32[5]) {\n"
		"  %3 = constant data=0 : i32[]\n"
		"  %4, %5 = loop %3, %2, %1 trip=-1 cond=@cond body=@body role=[carry,carry,const] : i32[], f32[5]\n"
		"  return %4, %5, %2\n}\n"
		"fn @cond(%1: i32[], %2: f32[5], %3: i32[]) -> (pred[]) {\n"
		"  %4 = compare_lt %1, %3 : pred[]\n  return %4\n}\n"
		"fn @body(%1: i32[], %2: i32[], %3: f32[5], %4: i32[]) -> (i32[], f32[5]) {\n"
		"  %5 = constant data=1 : i32[]\n"
		"  %6 = add %2, %5 : i32[]\n"
		"  %7 = constant data=7 : f32[1]\n"
		"  %8 = dynamic_update_slice %3, %7, %2 : f32[5]\n"
		"  return %6, %8\n}\n";
	/* the operand is still read afterwards: updates must not reach it */
	run(text, 1, (float[]){ 3, 1, 2, 3, 4, 5 });
	IS(0, 3);
	IS(1, 7, 7, 7, 4, 5);
	IS(2, 1, 2, 3, 4, 5);
	/* each device its own number of turns */
	run(text, 2, (float[]){ 1, 1, 2, 3, 4, 5 });
	IS(1, 7, 2, 3, 4, 5);
	IS(4, 7, 7, 3, 4, 5);
	struct err *e = go(text, 1, (float[]){ 5000, 1, 2, 3, 4, 5 }, true);
	assert_non_null(e);
	assert_int_equal(e->code, ERR_OUT_OF_RANGE);
	err_free(e);
}

static void branches(void **state)
{
	static const char text[] =
		"module @m partitions=1 replicas=1\n"
		"fn @main(%1: i32[], %2: f32[2]) -> (f32[2]) {\n"
		"  %3 = case %1, %2 branch=[@a,@b] : f32[2]\n  return %3\n}\n"
		"fn @a(%1: f32[2]) -> (f32[2]) {\n  %2 = add %1, %1 : f32[2]\n  return %2\n}\n"
		"fn @b(%1: f32[2]) -> (f32[2]) {\n  %2 = negate %1 : f32[2]\n  return %2\n}\n";
	run(text, 1, (float[]){ 0, 3, 4 });
	IS(0, 6, 8);
	run(text, 1, (float[]){ -9, 3, 4 });
	IS(0, -3, -4);
	run(text, 3, (float[]){ 0, 3, 4 });
	IS(0, 6, 8);
	IS(1, -3, -4);
	IS(2, -3, -4);
}

static void regions(void **state)
{
	/* the reducer loops: acc + 2 x, one x at a time */
	static const char text[] =
		"module @m partitions=1 replicas=1\n"
		"fn @main(%1: f32[2,3], %2: f32[]) -> (f32[2], f32[2,3]) {\n"
		"  %3 = reduce %1, %2 dims=[1] redop=fn fn=@add : f32[2]\n"
		"  %4 = sort %1 dim=1 stable=1 fn=@less : f32[2,3]\n"
		"  return %3, %4\n}\n"
		"fn @add(%1: f32[], %2: f32[]) -> (f32[]) {\n"
		"  %3 = loop %1, %2 trip=2 body=@turn role=[carry,const] : f32[]\n  return %3\n}\n"
		"fn @turn(%1: i32[], %2: f32[], %3: f32[]) -> (f32[]) {\n  %4 = add %2, %3 : f32[]\n  return %4\n}\n"
		"fn @less(%1: f32[], %2: f32[]) -> (pred[]) {\n"
		"  %3 = constant data=0 : f32[]\n"
		"  %4 = loop %3, %1 trip=2 body=@turn role=[carry,const] : f32[]\n"
		"  %5 = add %2, %2 : f32[]\n"
		"  %6 = compare_gt %4, %5 : pred[]\n  return %6\n}\n";
	run(text, 1, (float[]){ 1, 2, 3, 4, 5, 6, 100 });
	IS(0, 112, 130);
	IS(1, 3, 2, 1, 6, 5, 4);
}

static void collectives(void **state)
{
	static const char text[] =
		"module @m partitions=4 replicas=1\n"
		"fn @main(%1: f32[4]) -> (f32[34]) {\n"
		"  %2 = all_reduce %1 group=[[0,2],[1,3]] redop=add : f32[4]\n"
		"  %3 = all_gather %1 dim=0 group=[[3,1],[0,2]] : f32[8]\n"
		"  %4 = reduce_scatter %1 dim=0 group=[[0,1,2,3]] redop=max : f32[1]\n"
		"  %5 = all_to_all %1 split=0 concat=0 group=[[0,1],[2,3]] : f32[4]\n"
		"  %6 = collective_permute %1 pairs=[0,1,1,2] : f32[4]\n"
		"  %7 = collective_broadcast %1 group=[[2,0],[3,1]] : f32[4]\n"
		"  %8 = partition_id : u32[]\n"
		"  %9 = convert %8 : f32[]\n"
		"  %10 = reshape %9 : f32[1]\n"
		"  %11 = reshape %1 : f32[2,2]\n"
		"  %12 = all_to_all %11 split=0 concat=1 group=[[0,1],[2,3]] : f32[1,4]\n"
		"  %13 = reshape %12 : f32[4]\n"
		"  %14 = all_reduce %1 group=[[0,1,2]] redop=fn fn=@second : f32[4]\n"
		"  %15 = concatenate %2, %3, %4, %5, %6, %7, %10, %13, %14 dim=0 : f32[34]\n"
		"  return %15\n}\n"
		"fn @second(%1: f32[], %2: f32[]) -> (f32[]) {\n"
		"  %3 = constant data=10 : f32[]\n  %4 = multiply %1, %3 : f32[]\n  %5 = add %4, %2 : f32[]\n  return %5\n}\n";
	/* device d holds d, 5, 6, 7 */
	run(text, 4, (float[]){ 0, 5, 6, 7 });
	IS(0, 2, 10, 12, 14, 0, 5, 6, 7, 2, 5, 6, 7, 3, 0, 5, 1, 5, 0, 0, 0, 0, 2, 5, 6, 7, 0, 0, 5, 1, 5, 12, 555, 666, 777);
	IS(1, 4, 10, 12, 14, 3, 5, 6, 7, 1, 5, 6, 7, 5, 6, 7, 6, 7, 0, 5, 6, 7, 3, 5, 6, 7, 1, 6, 7, 6, 7, 12, 555, 666, 777);
	IS(3, 4, 10, 12, 14, 3, 5, 6, 7, 1, 5, 6, 7, 7, 6, 7, 6, 7, 0, 0, 0, 0, 3, 5, 6, 7, 3, 6, 7, 6, 7, 3, 5, 6, 7);
	/* a collective that not all reach */
	static const char split[] =
		"module @m partitions=2 replicas=1\n"
		"fn @main(%1: i32[], %2: f32[]) -> (f32[]) {\n  %3 = case %1, %2 branch=[@a,@b] : f32[]\n  return %3\n}\n"
		"fn @a(%1: f32[]) -> (f32[]) {\n  %2 = all_reduce %1 group=[[0,1]] redop=add : f32[]\n  return %2\n}\n"
		"fn @b(%1: f32[]) -> (f32[]) {\n  return %1\n}\n";
	struct err *e = go(split, 2, (float[]){ 0, 1 }, true);
	assert_non_null(e);
	assert_int_equal(e->code, ERR_INVALID);
	err_free(e);
}

static void manual(void **state)
{
	/* one position stands for the whole: the body still runs on each device's piece */
	static const char text[] =
		"module @m partitions=4 replicas=1\n"
		"mesh @mesh = [\"a\"=2,\"b\"=2]\n"
		"fn @main(%1: f32[4]) -> (f32[4], f32[2]) {\n"
		"  %2 = manual %1 in=[@[{\"a\"}]] out=[@[{\"a\"}]] axes=[0] body=@shift : f32[4]\n"
		"  %3 = manual %1 in=[@[{\"a\",\"b\"}]] out=[@[{\"b\"}]] axes=[0,1] body=@sum : f32[2]\n"
		"  return %2, %3\n}\n"
		"fn @shift(%1: f32[2]) -> (f32[2]) {\n"
		"  %2 = collective_permute %1 pairs=[0,2,2,0,1,3,3,1] : f32[2]\n  return %2\n}\n"
		"fn @sum(%1: f32[1]) -> (f32[1]) {\n"
		"  %2 = all_reduce %1 group=[[0,2],[1,3]] redop=add : f32[1]\n  return %2\n}\n";
	run(text, 1, (float[]){ 1, 2, 3, 4 });
	IS(0, 3, 4, 1, 2);
	IS(1, 4, 6);
}

static void errors(void **state)
{
	static const char text[] =
		"module @m partitions=1 replicas=1\n"
		"fn @main(%1: f32[2]) -> (f32[2]) {\n  %2 = custom_call %1 target=\"nowhere\" api=4 effect=0 : f32[2]\n  return %2\n}\n";
	struct err *e = go(text, 1, (float[]){ 1, 2 }, false);
	assert_non_null(e);
	assert_int_equal(e->code, ERR_UNIMPLEMENTED);
	assert_non_null(strstr(e->msg, "nowhere"));
	err_free(e);
}

/* Run module m, which is freed, as run does its text. */
static void run_module(struct ir_module *m, const float *in)
{
	struct str s = {0};
	ir_print(&s, m);
	ir_module_free(m);
	run(s.p, 1, in);
	str_free(&s);
}

static void householder(void **state)
{
	struct str s = {0};
	struct ir_module *m;
	float in[12] = { 3, 1, 4, -1, 5, 9, -2, 6, 0, 0, 0, 0 };
	assert_null(str_read_file(&s, "tests/hlo/qr.mlirbc"));
	assert_null(hlo_read(s.p, s.n, &m));
	str_free(&s);
	run_module(m, in);
	IS(0, 1);
	IS(1, 1);
}

/* bf16: after every addition, in windows of 32 whose padding lies on both sides. */
static void rounding(void **state)
{
	static const char text[] =
		"module @m partitions=1 replicas=1\n"
		"fn @main(%1: bf16[2,70]) -> (bf16[2]) {\n"
		"  %2 = constant data=0 : bf16[]\n"
		"  %3 = reduce %1, %2 dims=[1] redop=add : bf16[2]\n"
		"  return %3\n"
		"}\n";
	float in[140], want[2];
	for (int i = 0; i < 140; i++)
		in[i] = bf16_to_f32(f32_to_bf16((float)(i * i % 37) / 7));
	for (int r = 0; r < 2; r++) {
		float all = 0;
		for (int w = 0; w < 3; w++) {
			float part = 0;
			for (int i = MAX(0, 32 * w - 13); i < MIN(70, 32 * w + 19); i++)
				part = bf16_to_f32(f32_to_bf16(part + in[70 * r + i]));
			all = bf16_to_f32(f32_to_bf16(all + part));
		}
		want[r] = all;
	}
	struct ir_module *m;
	struct pass_opts o;
	assert_null(ir_parse(text, strlen(text), &m));
	assert_null(conf_set("EXCESS_PRECISION", "0"));
	pass_opts_from_conf(&o);
	o.stop = "round";
	assert_null(pass_run(&o, m));
	assert_null(conf_set("EXCESS_PRECISION", "1"));
	run_module(m, in);
	is(0, 2, want);
}

/* Bounds of a reshape hold all of its elements, and no more where the operand has one dimension, of which they are a run. */
static void reshapes(void **state)
{
	static const char *const shape[] = { "24", "2,3,4", "4,6", "1,24,1", "6,1,4", "3,2,2,2", "8,3", "1,1,2,12" };
	for (size_t i = 0; i < NELEM(shape) * NELEM(shape) * 3; i++) {
		struct str s = {0};
		struct ir_module *m;
		struct arena a;
		const char *from = shape[i / 3 % NELEM(shape)], *to = shape[i / 3 / NELEM(shape)];
		int dim = (int)(i % 3), commas = 0;
		for (const char *c = from; *c; c++)
			commas += *c == ',';
		dim = MIN(dim, commas);
		str_addf(&s, "module @m partitions=1 replicas=1\nfn @main() -> (i32[%s]) {\n  %%1 = iota dim=%d : i32[%s]\n  %%2 = reshape %%1 : i32[%s]\n  return %%2\n}\n", to, dim, from, to);
		assert_null(ir_parse(s.p, s.n, &m));
		arena_init(&a);
		const struct ir_fn *fn = ir_main(m);
		const struct ir_type_info *t = ir_vtype(m, fn, 2), *f = ir_vtype(m, fn, 1);
		int64_t lo[IR_MAX_RANK], hi[IR_MAX_RANK], work = 1 << 30, each = 1;
		const struct eval_bounds b = { m, fn, 0, NULL, eval_known(&a, m, fn), &work };
		for (int k = dim + 1; k < f->rank; k++)
			each *= f->dim[k];
		for (uint32_t seed = 1; seed < 200; seed++) {
			uint32_t x = seed * 2654435761u;
			int64_t least = 24, most = -1, n = 1;
			for (int k = 0; k < t->rank; k++, x = x * 1664525u + 1013904223u) {
				lo[k] = (x >> 8) % t->dim[k];
				hi[k] = lo[k] + 1 + (x >> 16) % (t->dim[k] - lo[k]);
				n *= hi[k] - lo[k];
			}
			for (int64_t e = 0; e < 24; e++) {
				int64_t left = e, v = e / each % f->dim[dim];
				bool in = true;
				for (int k = t->rank; k-- > 0; left /= t->dim[k])
					in &= left % t->dim[k] >= lo[k] && left % t->dim[k] < hi[k];
				least = in ? MIN(least, v) : least;
				most = in ? MAX(most, v) : most;
			}
			struct kern_bound is = eval_bound(&b, 2, lo, hi);
			assert_true(!is.nan && is.lo <= (double)least && is.hi >= (double)most);
			if (f->rank == 1 && most - least + 1 == n)
				assert_true(is.lo == (double)least && is.hi == (double)most);
		}
		arena_fini(&a);
		ir_module_free(m);
		str_free(&s);
	}
}

int main(void)
{
	const struct CMUnitTest t[] = {
		cmocka_unit_test(householder), cmocka_unit_test(rounding),
		cmocka_unit_test(roles), cmocka_unit_test(whiles), cmocka_unit_test(branches), cmocka_unit_test(regions),
		cmocka_unit_test(collectives), cmocka_unit_test(manual), cmocka_unit_test(errors), cmocka_unit_test(reshapes),
	};
	return cmocka_run_group_tests(t, NULL, NULL);
}
