/* Elements moved along a cut dimension, by random chains of operations: each device has those that it shall have, and got from others exactly
 * those that it lacked; few chains are none that can be done so, and get all, or half as much
 * for something on the way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "draws.h"
#include "eval/eval.h"
#include "spmd/spmd.h"

enum { PROGRAMS = 3000, MOST = 400, DEVICES = 8 };
static uint64_t state;
static int below(int n) { return (int)((state = state * 6364136223846793005u + 1442695040888963407u) >> 33) % n; }

/* A value of the program, and which element of main's argument each of its elements is: -1 for a constant. */
struct chain { struct str text; int value, n, at[MOST]; };

static void line(struct chain *c, const char *what, ...)
{
	va_list a;
	char s[256];
	va_start(a, what);
	vsnprintf(s, sizeof s, what, a);
	va_end(a);
	str_addf(&c->text, "  %%%d = %s : i32[%d]\n", c->value, s, c->n);
}

static void slice(struct chain *c, int lo, int hi, int step)
{
	int n = 0, from = c->value++;
	for (int i = lo; i < hi; i += step)
		c->at[n++] = c->at[i];
	c->n = n;
	line(c, "slice %%%d start=[%d] limit=[%d] stride=[%d]", from, lo, hi, step);
}

static void pad(struct chain *c, int lo, int hi, int gap)
{
	int old[MOST], n = c->n + (c->n - 1) * gap + lo + hi, from = c->value++;
	memcpy(old, c->at, sizeof old);
	for (int i = 0; i < n; i++) {
		int k = i - lo;
		c->at[i] = k >= 0 && k % (gap + 1) == 0 && k / (gap + 1) < c->n ? old[k / (gap + 1)] : -1;
	}
	c->n = n;
	line(c, "pad %%%d, %%2 low=[%d] high=[%d] interior=[%d]", from, lo, hi, gap);
}

static void turn(struct chain *c, int k)
{
	int old[MOST], from = c->value, n = c->n;
	memcpy(old, c->at, sizeof old);
	slice(c, k, n, 1);
	int a = c->value++;
	c->n = k;
	line(c, "slice %%%d start=[0] limit=[%d] stride=[1]", from, k);
	int b = c->value++;
	c->n = n;
	for (int i = 0; i < n; i++)
		c->at[i] = old[(i + k) % n];
	line(c, "concatenate %%%d, %%%d dim=0", a, b);
}

static void backwards(struct chain *c)
{
	for (int i = 0; i < c->n / 2; i++) {
		int x = c->at[i];
		c->at[i] = c->at[c->n - 1 - i];
		c->at[c->n - 1 - i] = x;
	}
	int from = c->value++;
	line(c, "reverse %%%d dims=[0]", from);
}

static void program(struct chain *c, int size, int parts)
{
	*c = (struct chain){ .value = 3, .n = size };
	str_addf(&c->text, "  %%2 = constant data=-1 : i32[]\n  %%3 = reverse %%1 dims=[0] : i32[%d]\n", size);
	for (int i = 0; i < size; i++)
		c->at[i] = size - 1 - i;
	for (int steps = 1 + below(4); steps > 0 || c->n % parts; steps--) {
		int n = c->n, k = below(n);
		if (steps <= 0) {
			pad(c, 0, parts - n % parts, 0);
			break;
		}
		switch (below(5)) {
		case 0: slice(c, k, k + 1 + below(n - k), 1 + (below(3) ? 0 : below(3))); break;
		case 1: {
			int lo = below(n + 4) - n / 2, hi = below(n + 4) - n / 2, gap = below(4) ? 0 : 1 + below(2);
			if (n + (n - 1) * gap + lo + hi >= 1 && n + (n - 1) * gap + lo + hi < MOST / 2)
				pad(c, lo, hi, gap);
			break;
		}
		case 2: if (k) turn(c, k); break;
		case 3: backwards(c); break;
		default: if (k < 4 && k < n) { slice(c, 0, n - k, 1); pad(c, k, 0, 0); }
		}
	}
}

static void moved(void **unused)
{
	(void)unused;
	static const int parts_of[] = { 2, 3, 4, 6, 8 };
	int gathered = 0, ways = 0, count = draws(PROGRAMS);
	static struct chain c;
	for (int seed = 0; seed < count; seed++) {
		state = (uint64_t)seed;
		below(2);
		int parts = parts_of[below(NELEM(parts_of))], size = parts * (1 + below(6));
		program(&c, size, parts);
		struct str s = {0};
		str_addf(&s, "module @m partitions=%d\n\nmesh @mesh = [\"x\"=%d]\n\nfn @main(%%1: i32[%d] sharding=@[{\"x\"}]) -> (i32[%d] sharding=@[{\"x\"}]) {\n%s  return %%%d\n}\n",
		         parts, parts, size, c.n, c.text.p, c.value);
		struct ir_module *m;
		struct err *e = ir_parse(s.p, s.n, &m);
		if (!e)
			e = spmd_partition(m, parts, NULL, NULL, NULL);
		if (!e)
			e = ir_verify(m);
		if (e)
			fail_msg("%s\n%s", e->msg, s.p);
		const struct ir_fn *fn = ir_main(m);
		int got[DEVICES] = {0}, part = size / parts, own = c.n / parts;
		bool all = false, way = false;
		for (size_t i = 0; i < fn->op.n; i++) {
			const struct ir_op *o = &fn->op.p[i];
			all |= o->kind == IR_all_gather || o->kind == IR_all_to_all;
			int n = 0;
			const int64_t *pairs = o->kind == IR_collective_permute ? ir_attrs(fn, o, AT_pairs, &n) : NULL;
			for (int k = 0; k < n; k += 2)
				got[pairs[k + 1]] += (int)ir_vtype(m, fn, o->out)->count;
		}
		for (int d = 0; d < parts; d++) {
			int lacks = 0;
			for (int i = d * own; i < (d + 1) * own; i++)
				lacks += c.at[i] >= 0 && c.at[i] / part != d;
			way |= !all && got[d] > lacks;
			if (!all && (got[d] < lacks || 2 * got[d] > MAX(2 * lacks, 3 * (size - part))))
				fail_msg("device %d lacks %d and gets %d\n%s", d, lacks, got[d], s.p);
		}
		gathered += all || way;
		ways += way;
		struct eval_array in[DEVICES] = {0}, out[DEVICES] = {0};
		int32_t v[MOST];
		for (int i = 0; i < size; i++)
			v[i] = i;
		for (int d = 0; d < parts; d++)
			in[d] = (struct eval_array){ .dtype = DT_i32, .rank = 1, .dim = { part }, .p = v + d * part, .bytes = sizeof *v * (size_t)part };
		e = eval_main(m, &(struct eval_opts){ .ndev = parts }, in, out);
		if (e)
			fail_msg("%s\n%s", e->msg, s.p);
		for (int d = 0; d < parts; d++) {
			for (int i = 0; i < own; i++)
				if (((int32_t *)out[d].p)[i] != c.at[d * own + i])
					fail_msg("element %d of device %d is %d, not %d\n%s", i, d, ((int32_t *)out[d].p)[i], c.at[d * own + i], s.p);
			eval_array_free(&out[d]);
		}
		ir_module_free(m);
		str_free(&s);
		str_free(&c.text);
	}
	assert_true(ways < count / 60 + 20);      /* one in a hundred is moved first where its parts are, since its pieces are no boxes then */
	assert_true(gathered < count / 20);      /* pieces with gaps among others, and what takes too many rounds */
}

int main(void)
{
	return cmocka_run_group_tests((const struct CMUnitTest[]){ cmocka_unit_test(moved) }, NULL, NULL);
}
