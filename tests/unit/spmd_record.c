/* What the partitioner tells of itself: random sharded programs are cut with a record and without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "draws.h"
#include "pass/passes.h"
#include "spmd/spmd.h"

enum { PROGRAMS = 400, OPS = 14, SIZE = 12 };
static uint64_t state;
static int below(int n) { return (int)((state = state * 6364136223846793005u + 1442695040888963407u) >> 33) % n; }

/* The axes, each at most once, over both dimensions. */
static void sharding(struct str *s)
{
	static const char *const way[] = { "{},{}", "{\"x\"},{}", "{},{\"x\"}", "{\"y\"},{}", "{},{\"y\"}", "{\"x\"},{\"y\"}", "{\"y\"},{\"x\"}", "{\"x\",\"y\"},{}", "{},{\"y\",\"x\"}" };
	str_addf(s, "@[%s]", way[below(NELEM(way))]);
}

/* One op, or a few, on values of main from 1 to *n; *last: the newest of 12 x 12. */
static void op(struct str *s, int *n, int *whole, int *nwhole)
{
	int a = whole[below(*nwhole)], b = whole[below(*nwhole)], d = below(2), r = ++*n;
	switch (below(16)) {
	case 0: str_addf(s, "%%%d = sine %%%d", r, a); break;
	case 1: str_addf(s, "%%%d = add %%%d, %%%d", r, a, b); break;
	case 2: case 3: str_addf(s, "%%%d = dot %%%d, %%%d lc=[%d] rc=[%d] components=1", r, a, b, d, below(2)); break;
	case 4: str_addf(s, "%%%d = transpose %%%d perm=[1,0]", r, a); break;
	case 5: str_addf(s, "%%%d = reverse %%%d dims=[%d]", r, a, d); break;
	case 6: str_addf(s, "%%%d = cumulative %%%d dim=%d redop=add", r, a, d); break;
	case 7: str_addf(s, "%%%d = sort %%%d dim=%d stable=1 fn=@less", r, a, d); break;
	case 8: {
		str_addf(s, "%%%d = reduce %%%d, %%3 dims=[%d] redop=%s : f32[12] loc(\"p.py\":%d)\n", r, a, d, below(2) ? "add" : "max", r);
		str_addf(s, "  %%%d = broadcast %%%d dims=[%d]", ++*n, r, below(2));
		break;
	}
	case 9:
		str_addf(s, "%%%d = reshape %%%d : f32[144] loc(\"p.py\":%d)\n", r, a, r);
		str_addf(s, "  %%%d = reshape %%%d", ++*n, r);
		break;
	case 10:
		str_addf(s, "%%%d = sharding_constraint %%%d sharding=", r, a);
		sharding(s);
		break;
	case 11: {
		int k = 1 + below(11);
		str_addf(s, "%%%d = slice %%%d start=[%d,0] limit=[12,12] stride=[1,1] : f32[%d,12] loc(\"p.py\":%d)\n", r, a, k, 12 - k, r);
		str_addf(s, "  %%%d = %s %%%d : f32[%d,12] loc(\"p.py\":%d)\n", r + 1, below(2) ? "sine" : "negate", r, 12 - k, r + 1);
		str_addf(s, "  %%%d = slice %%%d start=[0,0] limit=[%d,12] stride=[1,1] : f32[%d,12] loc(\"p.py\":%d)\n", r + 2, b, k, k, r + 2);
		str_addf(s, "  %%%d = concatenate %%%d, %%%d dim=0", *n += 3, r + 1, r + 2);
		break;
	}
	case 12: str_addf(s, "%%%d = pad %%%d, %%3 low=[%d,0] high=[%d,0] interior=[0,0]", r, a, 5 - 2 * d, 2 * d - 5); break;
	case 13:
		str_addf(s, "%%%d = reduce_window %%%d, %%3 window=[%s] stride=[1,1] base_dilation=[1,1] window_dilation=[1,1] low=[%s] high=[%s] redop=add", r, a,
		         d ? "1,3" : "5,1", d ? "0,1" : "4,0", d ? "0,1" : "0,0");
		break;
	case 14: str_addf(s, "%%%d = loop %%%d, %%%d trip=3 body=@turn role=[carry,const]", r, a, b); break;
	default: str_addf(s, "%%%d = case %%4, %%%d, %%%d branch=[@one,@other]", r, a, b); break;
	}
	whole[(*nwhole)++] = *n;
	str_addf(s, " : f32[12,12] loc(\"p.py\":%d \"jit(f)/op\")\n", *n);
}

static void program(struct str *s)
{
	int whole[OPS + 2] = { 1, 2 }, nwhole = 2, n = 4;
	str_add(s, "module @m partitions=6\n\nmesh @mesh = [\"x\"=2, \"y\"=3]\n\nfn @main(%1: f32[12,12] sharding=");
	sharding(s);
	str_add(s, ", %2: f32[12,12] sharding=");
	sharding(s);
	str_add(s, ", %3: f32[], %4: i32[]) -> (f32[12,12]");
	if (below(2)) {
		str_add(s, " sharding=");
		sharding(s);
	}
	str_add(s, ") {\n");
	for (int i = 0; i < OPS; i++) {
		str_add(s, "  ");
		op(s, &n, whole, &nwhole);
	}
	str_addf(s, "  return %%%d\n}\n\n", n);
	str_add(s, "fn @less(%1: f32[], %2: f32[]) -> (pred[]) {\n  %3 = compare_lt %1, %2 : pred[]\n  return %3\n}\n\n"
	           "fn @turn(%1: i32[], %2: f32[12,12], %3: f32[12,12]) -> (f32[12,12]) {\n"
	           "  %4 = dot %2, %3 lc=[1] rc=[1] components=1 : f32[12,12] loc(\"p.py\":101)\n  %5 = cosine %4 : f32[12,12] loc(\"p.py\":102)\n  return %5\n}\n\n"
	           "fn @one(%1: f32[12,12], %2: f32[12,12]) -> (f32[12,12]) {\n"
	           "  %3 = dot %1, %2 lc=[0] rc=[0] components=1 : f32[12,12] loc(\"p.py\":103)\n  return %3\n}\n\n"
	           "fn @other(%1: f32[12,12], %2: f32[12,12]) -> (f32[12,12]) {\n  %3 = cosine %2 : f32[12,12] loc(\"p.py\":104)\n  return %3\n}\n");
}

static struct ir_module *cut(const struct str *text, struct spmd_record *r)
{
	struct ir_module *m;
	struct err *e = ir_parse(text->p, text->n, &m);
	if (!e)
		e = ir_verify(m);
	if (!e)
		e = spmd_partition(m, 6, NULL, NULL, r);
	if (e)
		fail_msg("%s\n%s", e->msg, text->p);
	ir_sweep(m);
	return m;
}

/* Bytes that come into some device by collective o, counted: each member of its group, or each pair. */
static double counted(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	double in = (double)ir_vtype(m, fn, ir_in(fn, o, 0))->bytes, most = 0;
	int n;
	if (o->kind == IR_collective_permute) {
		const int64_t *w = ir_attrs(fn, o, AT_pairs, &n);
		for (int i = 0; i < n; i += 2)
			most = w[i] != w[i + 1] ? in : most;
		return most;
	}
	n = m->group.p[ir_attr(fn, o, AT_group)].ncol;
	for (int k = 1; k < n; k++)              /* from each other member */
		most += o->kind == IR_all_gather ? in : o->kind == IR_all_reduce ? 2 * in / n : in / n;
	return most;
}

static void told(const struct ir_module *m, const struct spmd_record *r, const char *text)
{
	double *moved = calloc(r->move.n, sizeof *moved);
	int *seen = calloc(r->comm.n, sizeof *seen);
	for (size_t f = 1; f < m->fn.n; f++)
		for (size_t i = 0; i < m->fn.p[f]->op.n; i++) {
			const struct ir_op *o = &m->fn.p[f]->op.p[i];
			if (!(ir_info((enum ir_kind)o->kind)->flags & IR_COLL))
				continue;
			uint32_t move = spmd_move_of(r, o->loc);
			if (!move)
				fail_msg("a communication that nothing is said of\n%s", text);
			for (size_t k = 1; k < r->comm.n; k++)
				seen[k] += r->comm.p[k].loc == o->loc;
			moved[move] += pass_coll_bytes(m, m->fn.p[f], o);
			assert_true(counted(m, m->fn.p[f], o) - pass_coll_bytes(m, m->fn.p[f], o) < 1e-6 && pass_coll_bytes(m, m->fn.p[f], o) - counted(m, m->fn.p[f], o) < 1e-6);
		}
	for (size_t k = 1; k < r->comm.n; k++)
		if (seen[k] != 1)
			fail_msg("a communication is told of that is there %d times\n%s", seen[k], text);
	for (size_t i = 1; i < r->move.n; i++) {
		const struct spmd_move *q = &r->move.p[i];
		if (moved[i] + 1e-6 < q->need)       /* what is not moved can not be there */
			fail_msg("line %d: %g bytes move, %g are lacking\n%s", m->loc.p[q->loc].line, moved[i], q->need, text);
		if (q->reason != SPMD_WRITTEN && q->reason != SPMD_LOCAL && q->k < 0)
			fail_msg("line %d: which operand or result moves is not told\n%s", m->loc.p[q->loc].line, text);
		assert_true(q->reason >= SPMD_ENTERS || q->op);
	}
	free(moved);
	free(seen);
}

/* Every axis that a value is cut by comes from an annotation, by ops that have places. */
static void traced(const struct ir_module *m, const struct spmd_record *r, const char *text)
{
	for (size_t i = 1; i < r->value.n; i++) {
		const struct spmd_value *v = &r->value.p[i];
		const struct ir_shard_info *h = &m->shard.p[v->said];
		for (int d = 0; v->said && d < h->rank; d++)
			for (int k = 0; k < h->dim[d].naxis; k++) {
				uint32_t at = spmd_origin_of(r, v->origin, d, h->dim[d].axis[k]);
				while (at && r->origin.p[at].source == SPMD_OP) {
					if (r->origin.p[at].from >= at)
						fail_msg("an origin is older than where it comes from\n%s", text);
					at = r->origin.p[at].from;
				}
				if (!at)
					fail_msg("value %zu, line %d: nothing says where an axis of dimension %d is from\n%s", i, m->loc.p[v->loc].line, d, text);
			}
	}
}

static void random_programs(void **unused)
{
	(void)unused;
	for (int i = 0; i < draws(PROGRAMS); i++) {
		struct str text = {0}, with = {0}, without = {0};
		struct spmd_record r;
		state = (uint64_t)i * 77 + 1;
		for (int k = 0; k < 8; k++)
			below(2);
		program(&text);
		spmd_record_init(&r);
		struct ir_module *a = cut(&text, &r), *b = cut(&text, NULL);
		ir_print(&with, a);
		ir_print(&without, b);
		if (strcmp(with.p, without.p))
			fail_msg("who asks gets another program\n%s\n%s\n%s", text.p, with.p, without.p);
		told(a, &r, text.p);
		traced(a, &r, text.p);
		ir_module_free(a);
		ir_module_free(b);
		spmd_record_fini(&r);
		str_free(&text);
		str_free(&with);
		str_free(&without);
	}
}

/* And through all passes: the text names each, in no more columns than a screen has. */
static void texts(void **unused)
{
	(void)unused;
	for (int i = 0; i < draws(PROGRAMS) / 8; i++) {
		struct str text = {0}, s = {0};
		struct pass_opts o;
		struct ir_module *m;
		state = (uint64_t)i * 131 + 7;
		program(&text);
		pass_opts_from_conf(&o);
		o.ndev = 6;
		assert_null(ir_parse(text.p, text.n, &m));
		assert_null(pass_explain(&s, &o, m, PASS_ALL | PASS_SHARDED, NULL));
		int rows = 0, there = 0;
		for (const char *p = s.p; *p; p = strchr(p, '\n') + 1) {
			size_t n = strcspn(p, "\n");
			if (n > 120)
				fail_msg("%zu columns: %.*s", n, (int)n, p);
			rows += strspn(p, " ") >= 2 && strspn(p, " ") <= 3 && strspn(p + strspn(p, " "), "0123456789") && p[strspn(p, " 0123456789")] == '.';
		}
		int n;
		struct arena a;
		arena_init(&a);
		const ir_fnid *f = ir_reachable(&a, m, &n);
		for (int k = 0; k < n; k++)
			for (size_t q = 0; q < ir_fn_of(m, f[k])->op.n; q++)
				there += (ir_info((enum ir_kind)ir_fn_of(m, f[k])->op.p[q].kind)->flags & IR_COLL) != 0;
		arena_fini(&a);
		if (rows != there)
			fail_msg("%d lines for %d communications\n%s", rows, there, s.p);
		ir_module_free(m);
		str_free(&text);
		str_free(&s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_programs),
		cmocka_unit_test(texts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
