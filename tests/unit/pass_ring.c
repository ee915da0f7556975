/* Attention over hosts goes round these where each has as many devices, one after the other, in the order of the group; what a mask of positions hides from
 * all of a host does not come to it; rows are exchanged for heads where that takes less; and numbers are those of the program that gathers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "eval/eval.h"
#include "parsed.h"
#include "pass/pass.h"

enum { MOST = 8, LEN = 512 };

/* Permutes that an attention over n devices on these hosts becomes; the order of the group is turned by `first`. */
static int permutes(int n, const int *host, int first)
{
	struct str s = {0}, group = {0};
	int found = 0;
	for (int i = 0; i < n; i++)
		str_addf(&group, "%s%d", i ? "," : "", (i + first) % n);
	str_addf(&s, "module @m partitions=%d replicas=1\nfn @main(%%1: f32[2,1,%d,64], %%2: f32[2,%d,64], %%3: f32[2,%d,64]) -> (f32[2,1,%d,64]) {\n", n, LEN, LEN, LEN, LEN);
	for (int i = 2; i < 4; i++)
		str_addf(&s, "  %%%d = all_gather %%%d dim=1 group=[[%s]] : f32[2,%d,64]\n", i + 2, i, group.p, n * LEN);
	str_addf(&s, "  %%6, %%7 = attention %%1, %%4, %%5 fn=@score : f32[2,1,%d,64], f32[2,1,%d]\n  return %%6\n}\nfn @score(%%1: f32[]) -> (f32[]) {\n  return %%1\n}\n", LEN, LEN);
	struct ir_module *m = parsed(s.p);
	struct pass_opts o = { .ndev = n, .plan = { .ndev = n, .host = host }, .stop = "ring", .check = true };
	assert_null(pass_run(&o, m));
	for (size_t i = 0; i < ir_main(m)->op.n; i++)
		found += ir_main(m)->op.p[i].kind == IR_collective_permute;
	ir_module_free(m);
	str_free(&s);
	str_free(&group);
	return found;
}

static void hosts(void **state)
{
	static const struct { int n, host[MOST], turns; } is[] = {
		{ 4, { 0, 0, 1, 1 }, 2 },
		{ 4, { 1, 1, 0, 0 }, 2 },
		{ 3, { 0, 1, 2 }, 3 },
		{ 6, { 2, 2, 0, 0, 1, 1 }, 3 },
		{ 8, { 0, 0, 1, 1, 0, 0, 1, 1 }, 4 },     /* it comes back */
		{ 4, { 0, 0, 0, 0 }, 1 },
		{ 3, { 0, 0, 1 }, 1 },
		{ 3, { 0, 1, 1 }, 1 },
		{ 4, { 0, 1, 1, 1 }, 1 },
		{ 4, { 0, 1, 1, 0 }, 1 },
		{ 5, { 0, 0, 1, 1, 1 }, 1 },
		{ 6, { 0, 0, 1, 1, 1, 1 }, 1 },
		{ 6, { 0, 1, 1, 0, 2, 2 }, 1 },
	};
	for (size_t i = 0; i < NELEM(is); i++)
		assert_int_equal(permutes(is[i].n, is[i].host, 0), 2 * (is[i].turns - 1));      /* keys and values */
	assert_int_equal(permutes(4, is[0].host, 2), 2);
	assert_int_equal(permutes(4, is[0].host, 1), 0);
	assert_int_equal(permutes(4, is[9].host, 1), 2);
	assert_int_equal(permutes(4, NULL, 0), 0);
}

/* --- masks ------------------------------------------------------------------------------------- */

enum { ROWS = 64, DEEP = 32, ARGS = 6, HEADS = 4 };
enum what { FORWARD, KEYS, QUERIES };       /* an attention; a gradient whose keys, or queries, are gathered */
struct mask { int before, behind; };        /* a query t sees the keys t - behind .. t + before */

static bool sees(struct mask x, int t, int s) { return s <= t + x.before && s >= t - x.behind; }

/* The program of n devices and so many heads; far: positions of what is gathered are gathered, too; apart: where a device's own begin is an operand beside where they are in it. */
static void write_program(struct str *s, enum what what, int n, int heads, struct mask x, const char *fill, bool far, bool apart)
{
	struct str group = {0};
	int t = what == QUERIES ? n * ROWS : ROWS, k = what == QUERIES ? ROWS : n * ROWS, at = what == FORWARD ? 4 : 7;
	for (int i = 0; i < n; i++)
		str_addf(&group, "%s%d", i ? "," : "", i);
	str_addf(s, "module @m partitions=%d replicas=1\nfn @main(%%1: f32[%d,1,%d,%d], %%2: f32[%d,%d,%d], %%3: f32[%d,%d,%d]", n, heads, ROWS, DEEP, heads, ROWS, DEEP, heads, ROWS, DEEP);
	if (what != FORWARD)
		str_addf(s, ", %%4: f32[%d,1,%d], %%5: f32[%d,1,%d,%d], %%6: f32[%d,1,%d]", heads, ROWS, heads, ROWS, DEEP, heads, ROWS);
	str_addf(s, ") -> (f32[%d,1,%d,%d]", heads, ROWS, DEEP);
	if (what == FORWARD)
		str_addf(s, ", f32[%d,1,%d]) {\n", heads, ROWS);
	else
		str_addf(s, ", f32[%d,%d,%d], f32[%d,%d,%d]) {\n", heads, ROWS, DEEP, heads, ROWS, DEEP);
	/* at: the device's first position; its positions as queries and as keys; those of all */
	str_addf(s, "  %%%d = partition_id : u32[]\n  %%%d = convert %%%d : i32[]\n  %%%d = constant data=%d : i32[]\n  %%%d = multiply %%%d, %%%d : i32[]\n", at, at + 1, at, at + 2, ROWS,
	         at + 3, at + 1, at + 2);
	str_addf(s, "  %%%d = iota dim=0 : i32[%d]\n  %%%d = broadcast %%%d dims=[] : i32[%d]\n  %%%d = add %%%d, %%%d : i32[%d]\n", at + 4, ROWS, at + 5, at + 3, ROWS, at + 6, at + 4, at + 5, ROWS);
	if (far)
		str_addf(s, "  %%%d = all_gather %%%d dim=0 group=[[%s]] : i32[%d]\n", at + 7, at + 6, group.p, n * ROWS);
	else
		str_addf(s, "  %%%d = iota dim=0 : i32[%d]\n", at + 7, n * ROWS);
	int own = apart ? at + 4 : at + 6;
	str_addf(s, "  %%%d = reshape %%%d : i32[1,1,%d,1]\n  %%%d = reshape %%%d : i32[1,1,1,%d]\n", at + 8, what == QUERIES ? at + 7 : own, t, at + 9, what == QUERIES ? own : at + 7, k);
	int from = at + 10, in[ARGS] = { 1, 2, 3, 4, 5, 6 };
	char more[16] = "";
	if (apart) {
		str_addf(s, "  %%%d = reshape %%%d : i32[1,1,1,1]\n", from, at + 3);
		snprintf(more, sizeof more, ", %%%d", from++);
	}
	for (int i = 0; i < (what == FORWARD ? 3 : ARGS); i++) {
		bool key = i == 1 || i == 2;
		if (key == (what == QUERIES))
			continue;
		str_addf(s, "  %%%d = all_gather %%%d dim=%d group=[[%s]] : f32[%d,%s%d%s]\n", from, i + 1, key ? 1 : 2, group.p, heads, key ? "" : "1,", n * ROWS, i == 3 || i == 5 ? "" : ",32");
		in[i] = from++;
	}
	str_addf(s, "  %%%d, %%%d", from, from + 1);
	if (what == FORWARD) {
		str_addf(s, " = attention %%%d, %%%d, %%%d, %%%d, %%%d%s fn=@score : f32[%d,1,%d,%d], f32[%d,1,%d]\n  return %%%d, %%%d\n}\n", in[0], in[1], in[2], at + 8, at + 9, more, heads, t, DEEP, heads, t, from, from + 1);
	} else {
		str_addf(s, ", %%%d = attention_grad %%%d, %%%d, %%%d, %%%d, %%%d, %%%d, %%%d, %%%d%s fn=@score : f32[%d,1,%d,%d], f32[%d,%d,%d], f32[%d,%d,%d]\n", from + 2, in[0], in[1], in[2], in[3], in[4],
		         in[5], at + 8, at + 9, more, heads, t, DEEP, heads, k, DEEP, heads, k, DEEP);
		if (what == QUERIES)
			str_addf(s, "  %%%d = reduce_scatter %%%d dim=2 group=[[%s]] redop=add : f32[%d,1,%d,%d]\n  return %%%d, %%%d, %%%d\n}\n", from + 3, from, group.p, heads, ROWS, DEEP, from + 3, from + 1, from + 2);
		else
			str_addf(s, "  %%%d = reduce_scatter %%%d dim=1 group=[[%s]] redop=add : f32[%d,%d,%d]\n  %%%d = reduce_scatter %%%d dim=1 group=[[%s]] redop=add : f32[%d,%d,%d]\n  return %%%d, %%%d, %%%d\n}\n",
			         from + 3, from + 1, group.p, heads, ROWS, DEEP, from + 4, from + 2, group.p, heads, ROWS, DEEP, from, from + 3, from + 4);
	}
	int q = apart && what != QUERIES ? 21 : 2, key = apart && what == QUERIES ? 21 : 3;
	str_addf(s, "fn @score(%%1: f32[], %%2: i32[], %%3: i32[]%s) -> (f32[]%s) {\n", apart ? ", %20: i32[]" : "", what == FORWARD ? "" : ", f32[]");
	if (apart)
		str_addf(s, "  %%21 = add %%%d, %%20 : i32[]\n", what == QUERIES ? 3 : 2);
	str_addf(s, "  %%4 = constant data=%d : i32[]\n  %%5 = constant data=%d : i32[]\n", x.before, x.behind);
	str_addf(s, "  %%6 = add %%%d, %%4 : i32[]\n  %%7 = compare_le %%%d, %%6 : pred[]\n  %%8 = subtract %%%d, %%%d : i32[]\n  %%9 = compare_le %%8, %%5 : pred[]\n  %%10 = and %%7, %%9 : pred[]\n", q, key, q, key);
	str_addf(s, "  %%11 = constant data=0.25 : f32[]\n  %%12 = multiply %%1, %%11 : f32[]\n  %%13 = constant data=%s : f32[]\n  %%14 = select %%10, %%12, %%13 : f32[]\n", fill);
	if (what != FORWARD)
		str_addf(s, "  %%15 = constant data=0 : f32[]\n  %%16 = select %%10, %%11, %%15 : f32[]\n");
	str_addf(s, "  return %s\n}\n", what == FORWARD ? "%14" : "%14, %16");
	str_free(&group);
}

/* How often a block goes over to another host at least, by what each pair of positions sees: as often do sums go back. */
static int least(enum what what, int n, int hosts, struct mask x)
{
	int d = n / hosts, count = 0;
	for (int b = 0; b < n; b++)
		for (int h = 0; h < hosts; h++) {
			bool any = false;
			for (int i = 0; i < d * ROWS && h != b / d; i++)
				for (int j = 0; j < ROWS && !any; j++) {
					int other = h * d * ROWS + i, one = b * ROWS + j;
					any = what == QUERIES ? sees(x, one, other) : sees(x, other, one);
				}
			count += any;
		}
	return count;
}

/* Pairs of permutes of floats of rank r. */
static int moved(const struct ir_module *m, int rank)
{
	const struct ir_fn *fn = ir_main(m);
	int n = 0, words;
	for (size_t i = 0; i < fn->op.n; i++)
		if (fn->op.p[i].kind == IR_collective_permute && ir_vtype(m, fn, fn->op.p[i].out)->rank == rank && ir_vtype(m, fn, fn->op.p[i].out)->dtype == DT_f32) {
			ir_attrs(fn, &fn->op.p[i], AT_pairs, &words);
			n += words / 2;
		}
	return n;
}

static void values(const struct ir_module *m, int n, struct eval_array *res)
{
	static float data[MOST][ARGS][HEADS * ROWS * DEEP];
	const struct ir_fn *fn = ir_main(m);
	struct eval_array a[MOST * ARGS];
	uint32_t seed = 1;
	for (int d = 0; d < n; d++)
		for (uint32_t k = 0; k < fn->nparam; k++) {
			const struct ir_type_info *t = ir_vtype(m, fn, 1 + k);
			for (int i = 0; i < t->count; i++) {
				seed = seed * 1664525u + 1013904223u;
				data[d][k][i] = (float)(seed >> 8) / (1 << 23) - 1;
			}
			a[(uint32_t)d * fn->nparam + k] = (struct eval_array){ .dtype = DT_f32, .rank = t->rank, .p = data[d][k], .bytes = (size_t)t->bytes };
			memcpy(a[(uint32_t)d * fn->nparam + k].dim, t->dim, sizeof *t->dim * (size_t)t->rank);
		}
	struct err *e = eval_main(m, &(struct eval_opts){ .ndev = n }, a, res);
	if (e)
		fail_msg("%s", e->msg);
}

/* m gives what it gave, n * results arrays, which are freed. */
static void gives(const struct ir_module *m, int n, int results, struct eval_array *want, const char *text)
{
	struct eval_array got[MOST * 3];
	values(m, n, got);
	for (int k = 0; k < n * results; k++) {
		for (size_t i = 0; i < want[k].bytes / 4; i++) {
			float a = ((float *)want[k].p)[i], b = ((float *)got[k].p)[i];
			if (!(a == b || fabsf(a - b) <= 1e-4f * fmaxf(1, fabsf(a))))
				fail_msg("device %d, result %d, element %zu: %g, not %g\n%s", k / results, k % results, i, (double)b, (double)a, text);
		}
		eval_array_free(&want[k]);
		eval_array_free(&got[k]);
	}
}

/* all: even what the mask hides travels. */
static void masked(enum what what, int n, int hosts, struct mask x, const char *fill, bool far, bool all)
{
	struct str s = {0};
	struct eval_array want[MOST * 3];
	int host[MOST], results = what == FORWARD ? 2 : 3, blocks = all ? n * (hosts - 1) : least(what, n, hosts, x);
	for (int i = 0; i < n; i++)
		host[i] = i / (n / hosts);
	write_program(&s, what, n, 1, x, fill, far, false);
	struct ir_module *m = parsed(s.p);
	values(m, n, want);
	struct pass_opts o = { .ndev = n, .plan = { .ndev = n, .host = host }, .stop = "ring", .check = true };
	assert_null(pass_run(&o, m));
	/* keys and values, and their sums, have three dimensions; queries, cotangents and dq four */
	int have = moved(m, what == QUERIES ? 4 : 3), should = (what == FORWARD ? 2 : what == KEYS ? 4 : 3) * blocks;
	if (have != should)
		fail_msg("%d blocks go over, not %d (before %d, behind %d, %s)\n%s", have, should, x.before, x.behind, fill, s.p);
	gives(m, n, results, want, s.p);
	ir_module_free(m);
	str_free(&s);
}

static void masks(void **state)
{
	enum { FAR = 1 << 20 };
	static const struct mask is[] = {
		{ 0, FAR }, { 0, 0 }, { 0, 1 }, { 0, 10 }, { 0, ROWS - 1 }, { 0, ROWS }, { 0, ROWS + 1 }, { 0, 2 * ROWS }, { FAR, 0 }, { 7, 7 }, { ROWS, ROWS }, { FAR, FAR },
		{ 100, FAR }, { -1, FAR }, { -ROWS, FAR }, { -ROWS - 1, 3 * ROWS }, { FAR, 1 },
	};
	static const int on[][2] = { { 2, 2 }, { 4, 2 }, { 3, 3 }, { 4, 4 }, { 8, 4 } };
	for (size_t i = 0; i < NELEM(is); i++)
		for (size_t k = 0; k < NELEM(on); k++)
			for (enum what w = FORWARD; w <= QUERIES; w++) {
				int n = on[k][0], hosts = on[k][1];
				bool empty = is[i].before < 0;           /* rows without any key: their weights are not 0 where a number is filled in */
				masked(w, n, hosts, is[i], "-inf", (i + k) % 2, false);
				masked(w, n, hosts, is[i], "-2.3819763e+38", (i + k) % 2, empty);
				if (k == 2)
					masked(w, n, hosts, is[i], "-1e30", false, true);
			}
}

/* --- work that a mask deals unevenly ---------------------------------------------------------- */

/* Of what each of n devices calculates, the most over the mean: in hundredths. */
static int uneven(int n, struct mask x, bool shared)
{
	int64_t work[MOST] = { 0 }, most = 0, all = 0;
	for (int t = 0; t < n * ROWS; t++)
		for (int s = 0; s < n * ROWS; s++)
			work[shared && t % ROWS >= ROWS / 2 ? n - 1 - t / ROWS : t / ROWS] += sees(x, t, s);
	for (int k = 0; k < n; k++) {
		most = MAX(most, work[k]);
		all += work[k];
	}
	return (int)(100 * n * most / MAX(all, 1));
}

/* Up to a pass, as this plan says; gives how many ops of this kind there are then. */
static int becomes(const char *pass, const struct plan_on *on, enum ir_kind kind, enum what what, int heads, struct mask x, const char *fill, bool far, bool apart)
{
	struct str s = {0};
	struct eval_array want[MOST * 3];
	int found = 0, n = on->ndev;
	write_program(&s, what, n, heads, x, fill, far, apart);
	struct ir_module *m = parsed(s.p);
	values(m, n, want);
	struct pass_opts o = { .ndev = n, .plan = *on, .stop = pass, .check = true };
	assert_null(pass_run(&o, m));
	for (size_t i = 0; i < ir_main(m)->op.n; i++)
		found += ir_main(m)->op.p[i].kind == kind;
	gives(m, n, what == FORWARD ? 2 : 3, want, s.p);
	ir_module_free(m);
	str_free(&s);
	return found;
}

static int become(const char *pass, const struct plan_on *on, enum ir_kind kind, enum what what, struct mask x, const char *fill, bool far, bool apart)
{
	return becomes(pass, on, kind, what, 1, x, fill, far, apart);
}

/* On one host with `cores`; gives how many permutes there are. */
static int balanced(enum what what, int n, int cores, struct mask x, const char *fill, bool far, bool apart)
{
	return become("balance", &(struct plan_on){ .ndev = n, .cores = cores }, IR_collective_permute, what, x, fill, far, apart);
}

/* What goes over: of a forward pass queries and their positions, o and l; of a gradient queries, l, do, delta, positions and dq, or keys, values, positions,
 * dk and dv. */
static void halves(void **state)
{
	enum { FAR = 1 << 20 };
	static const struct { struct mask mask; bool goes; } is[] = {
		{ { 0, FAR }, true }, { { FAR, 0 }, true }, { { FAR, FAR }, false }, { { -1, FAR }, true }, { { ROWS / 2, FAR }, true },
	};
	static const int permutes[] = { [FORWARD] = 4, [KEYS] = 6, [QUERIES] = 5 };
	assert_null(conf_set("ATTENTION", "on"));    /* where something is gained, however small it is */
	for (size_t i = 0; i < NELEM(is); i++)
		for (int n = 2; n <= MOST; n += 1 + (n > 3))
			for (enum what w = FORWARD; w <= QUERIES; w++)
				for (int apart = 0; apart < 2; apart++) {
					bool far = (i + (size_t)n) % 2;
					assert_int_equal(balanced(w, n, 0, is[i].mask, "-inf", far, apart), is[i].goes ? permutes[w] + apart : 0);
				}
	/* A window is even but for its end; devices that share cores take from each other what there is. */
	balanced(FORWARD, 4, 0, (struct mask){ 0, 10 }, "-inf", false, false);
	balanced(QUERIES, 4, 0, (struct mask){ 0, 2 * ROWS }, "-inf", false, false);
	assert_int_equal(balanced(FORWARD, 4, 2, (struct mask){ 0, FAR }, "-inf", false, false), 0);
	assert_int_equal(balanced(FORWARD, 4, 3, (struct mask){ 0, FAR }, "-inf", false, false), permutes[FORWARD]);
	/* Between hosts, then round these; a number that might stand in a row alone, -1e30, hides nothing. */
	static const int on[][2] = { { 2, 2 }, { 4, 2 }, { 3, 3 }, { 4, 4 }, { 8, 4 } };
	static const char *const fill[] = { "-inf", "-2.3819763e+38", "-1e30" };
	for (size_t i = 0; i < NELEM(on) * NELEM(fill) * 3; i++) {
		int n = on[i % NELEM(on)][0], host[MOST], way = (int)(i / NELEM(on) % 3);
		enum what w = (enum what)(i / NELEM(on) / 3);
		for (int k = 0; k < n; k++)
			host[k] = k / (n / on[i % NELEM(on)][1]);
		struct plan_on far = { .ndev = n, .host = host };
		struct mask causal = { 0, FAR };
		assert_int_equal(become("balance", &far, IR_collective_permute, w, causal, fill[way], false, false), way < 2 ? permutes[w] : 0);
		become("ring", &far, IR_collective_permute, w, causal, fill[way], i % 2, i / 2 % 2);
	}
	assert_null(conf_set("ATTENTION", "auto"));
	assert_int_equal(balanced(FORWARD, 4, 0, (struct mask){ 0, FAR }, "-inf", false, false), 0);
	for (int n = 2; n <= MOST; n++)
		assert_in_range(uneven(n, (struct mask){ 0, FAR }, true), 100, 100);
}

/* RONDO_RING: what is gathered comes from neighbour to neighbour, with or without a barrier behind each hop; or all of it before. */
static void asked(void **state)
{
	enum { FAR = 1 << 20 };
	static const struct mask is[] = { { 0, FAR }, { FAR, FAR }, { 0, 10 }, { 0, ROWS + 1 } };
	for (size_t i = 0; i < NELEM(is); i++)
		for (int n = 2; n <= 5; n++)
			for (enum what w = FORWARD; w <= QUERIES; w++)
				for (enum plan_ring how = PLAN_RING_GATHER; how <= PLAN_RING_BARRIER; how++) {
					struct plan_on on = { .ndev = n, .ring = how };
					int left = become("ring", &on, IR_all_gather, w, is[i], "-inf", false, false), hops = 0;
					assert_int_equal(left, how == PLAN_RING_GATHER ? w == QUERIES ? 4 : 2 : 0);
					int sent = become("ring", &on, IR_collective_permute, w, is[i], "-inf", false, false);
					assert_int_equal(sent > 0, how != PLAN_RING_GATHER);
					int met = become("ring", &on, IR_all_reduce, w, is[i], "-inf", false, false);
					for (int t = 1; t < n; t++)                      /* after t hops somebody sees what came */
						hops += is[i].before == FAR || is[i].behind > (t - 1) * ROWS;
					assert_int_equal(met, how == PLAN_RING_BARRIER ? hops : 0);
				}
}

/* --- rows for heads ------------------------------------------------------------------------ */

/* Operands and results of an attention or a gradient, but for its mask. */
static int arrays(enum what w) { return w == FORWARD ? 5 : 9; }

/* What is asked for is done wherever as many heads as hosts divide, in as many parts as there are heads for a host; on one host as if each device were one.  In hosts of several devices what a triangle leaves uneven is
 * dealt there. */
static void exchanged(void **state)
{
	enum { FAR = 1 << 20 };
	static const struct mask is[] = { { 0, FAR }, { FAR, FAR }, { 0, 10 }, { 0, ROWS + 1 }, { -1, FAR } };
	static const struct { int n, hosts; } on[] = { { 2, 2 }, { 4, 2 }, { 4, 4 }, { 8, 4 }, { 8, 2 }, { 4, 1 }, { 3, 3 }, { 6, 3 } };
	assert_null(conf_set("ATTENTION", "on"));
	for (size_t i = 0; i < NELEM(is) * NELEM(on); i++)
		for (enum what w = FORWARD; w <= QUERIES; w++) {
			int n = on[i % NELEM(on)].n, hosts = on[i % NELEM(on)].hosts, host[MOST], far = (int)i % 2, apart = (int)(i / 2 % 2);
			struct mask x = is[i / NELEM(on)];
			const char *fill = i % 3 ? "-inf" : "-2.3819763e+38";
			int each = hosts > 1 ? hosts : n;
			bool divides = HEADS % each == 0, one = hosts == 1 || hosts == n;
			for (int k = 0; k < n; k++)
				host[k] = k / (n / hosts);
			struct plan_on plan = { .ndev = n, .host = hosts > 1 ? host : NULL, .ring = PLAN_RING_HEADS };
			assert_int_equal(becomes("ring", &plan, IR_all_to_all, w, HEADS, x, fill, far, apart), divides ? arrays(w) * HEADS / each : 0);
			int sent = becomes("ring", &plan, IR_collective_permute, w, HEADS, x, fill, far, apart);
			assert_true(divides || sent);
			assert_true(!divides || !one || !sent);
			if (divides && !one && !is[i / NELEM(on)].before && x.behind == FAR)
				assert_true(sent);
			becomes(NULL, &plan, IR_all_to_all, w, HEADS, x, fill, far, apart);
		}
	assert_null(conf_set("ATTENTION", "auto"));
}

/* By itself it is done where a link is slow and it is less that travels, of two hosts only for a gradient whose keys would (7 blocks by halves, not 4); not where heads do not
 * divide, nor in order. */
static void priced(void **state)
{
	struct plan_table slow = *plan_default();
	const struct mask all = { 1 << 20, 1 << 20 };
	int host[MOST] = { 0, 1, 2, 3, 0, 0, 0, 0 };
	slow.rate[PLAN_far_byte] = 100;
	for (enum what w = FORWARD; w <= QUERIES; w++)
		for (int n = 2; n <= 4; n++) {
			struct plan_on plan = { .table = &slow, .ndev = n, .host = host };
			bool is = n == 4 || (n == 2 && w == KEYS);
			assert_int_equal(becomes("ring", &plan, IR_all_to_all, w, HEADS, all, "-inf", false, false), is ? arrays(w) : 0);
			assert_int_equal(becomes("ring", &plan, IR_all_to_all, w, 1, all, "-inf", false, false), 0);
			plan.ring = PLAN_RING_IN_ORDER;
			assert_int_equal(becomes("ring", &plan, IR_all_to_all, w, HEADS, all, "-inf", false, false), 0);
			plan.ring = PLAN_RING_AUTO;
			plan.table = NULL;
			assert_int_equal(becomes("ring", &plan, IR_all_to_all, w, HEADS, all, "-inf", false, false), 0);
		}
}

/* What comes into one host at once shares its link: as many blocks as come, each once. */
static void links(void **state)
{
	static const struct { const char *pairs; int host[4], into; } is[] = {
		{ "0,2", { 0, 0, 1, 1 }, 1 }, { "0,2,1,3", { 0, 0, 1, 1 }, 2 }, { "0,2,1,3,2,0,3,1", { 0, 0, 1, 1 }, 2 }, { "0,1,1,2,2,3,3,0", { 0, 0, 1, 1 }, 1 },
		{ "0,1,1,2,2,3,3,0", { 0, 1, 2, 3 }, 1 }, { "0,3,1,2", { 0, 0, 0, 1 }, 1 },
	};
	const double *r = plan_default()->rate;
	for (size_t i = 0; i < NELEM(is); i++) {
		struct str s = {0};
		str_addf(&s, "module @m partitions=4 replicas=1\nfn @main(%%1: f32[65536]) -> (f32[65536]) {\n  %%2 = collective_permute %%1 pairs=[%s] : f32[65536]\n  return %%2\n}\n", is[i].pairs);
		struct ir_module *m = parsed(s.p);
		const struct ir_fn *fn = ir_main(m);
		double ns = spmd_coll_time(&(struct plan_on){ .ndev = 4, .host = is[i].host }, m, fn, &fn->op.p[0]), want = r[PLAN_far_wait] + r[PLAN_far_byte] * is[i].into * 4 * 65536;
		assert_true(fabs(ns - want) < 1e-6 * want);
		ir_module_free(m);
		str_free(&s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(hosts), cmocka_unit_test(masks), cmocka_unit_test(halves), cmocka_unit_test(asked), cmocka_unit_test(exchanged),
	                                    cmocka_unit_test(priced), cmocka_unit_test(links) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
