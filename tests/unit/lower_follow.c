/* Which kernels follow a sum over devices part by part, and what keeps them from it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lower/lw.h"

/* b0, b1: arguments, b2: result; b3 .. b5: temporaries, b6 over the second half of b5 and what is behind it; b7: a constant. */
static const char rows[] =
	"prog \"t\" devices 2 registers 3 zone 2048 flops 0 fingerprint 00 comm 00\n"
	"arg 0 f32[64] bytes 256\narg 1 f32[64] bytes 256\nres 0 f32[64] bytes 256\n"
	"buf 0 arg 0 size 256\nbuf 1 arg 1 size 256\nbuf 2 out 0 size 256\nbuf 3 temp at 0 size 256\nbuf 4 temp at 256 size 256\nbuf 5 temp at 512 size 256\n"
	"buf 6 temp at 640 size 256\nbuf 7 const at 0 size 256\ndata 256\n%stable 0 [1,0]\ntable 1 [1,0]\ngroup 0 1 2 [0,1]\ncode 0 \"f\" key 00\n"
	"kern 0 copy (f32[64]) -> (f32[64])\n"
	"kern 1 gen (f32[64]) -> (f32[64]) attr [1] code 0 tiles 4 of 16 bytes 9\n"                     /* of the sum alone */
	"kern 2 gen (f32[64], f32[64]) -> (f32[64]) attr [1,1] code 0 tiles 4 of 16 bytes 9\n"          /* and of something else */
	"kern 3 gen (f32[64], f32[64]) -> (f32[64]) attr [1,1] code 0 tiles 4 of 16 flops 99 bytes 9\n" /* the same, dear */
	"kern 4 gen (f32[64]) -> (f32[64]) attr [1] code 0 tiles 4 of 16 flops 99 bytes 9\n"
	"kern 5 gen (f32[64]) -> (f32[64]) attr [0] code 0 tiles 4\n"                                   /* no parts */
	"kern 6 gen (f32[32]) -> (f32[64]) attr [0] code 0 tiles 4 of 16 times 2 bytes 9\n"
	"coll 0 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 256\n"
	"coll 1 permute f32 n 1 algo auto pairs 0 redop add outer 1 inner 256\n"
	"coll 2 reduce_scatter f32 n 1 algo auto group 0 redop add outer 1 inner 128\n"
	"run {\n%s\n}\n";

static void follows(void **state)
{
#define SUM "coll 0 all_reduce (b0) -> (b3)\n"
#define OWN "coll 0 all_reduce (b4) -> (b3)\n"
#define SAME NULL
	static const struct { const char *run, *want; } t[] = {
		{ SUM "kern 2 gen (b3, b1) -> (b2)", SUM "then 2 gen (b3, b1) -> (b2)" },
		/* The sum is nowhere else. */
		{ SUM "kern 1 gen (b3) -> (b2)", SUM "then all 1 gen (b3) -> (b2)" },
		{ SUM "kern 2 gen (b3, b7) -> (b2)", SUM "then all 2 gen (b3, b7) -> (b2)" },
		{ SUM "kern 1 gen (b3) -> (b3)\nkern 0 copy (b3) -> (b2)", SUM "then all 1 gen (b3) -> (b3)\nkern 0 copy (b3) -> (b2)" },
		{ SUM "kern 1 gen (b3) -> (b4)\nkern 0 copy (b3) -> (b2)", SUM "then 1 gen (b3) -> (b4)\nkern 0 copy (b3) -> (b2)" },
		{ "coll 0 all_reduce (b0) -> (b2)\nkern 1 gen (b2) -> (b4)", "coll 0 all_reduce (b0) -> (b2)\nthen 1 gen (b2) -> (b4)" },
		/* What is dear: for all once, not by each. */
		{ SUM "kern 4 gen (b3) -> (b2)", SUM "then all 4 gen (b3) -> (b2)" },
		{ SUM "kern 3 gen (b3, b1) -> (b2)", SAME },
		{ SUM "kern 5 gen (b3) -> (b2)", SAME },
		/* Over the operand, part for part or otherwise. */
		{ "kern 0 copy (b0) -> (b4)\n" OWN "kern 2 gen (b3, b1) -> (b4)", "kern 0 copy (b0) -> (b4)\n" OWN "then 2 gen (b3, b1) -> (b4)" },
		{ "kern 0 copy (b0) -> (b5)\ncoll 0 all_reduce (b5) -> (b3)\nkern 2 gen (b3, b1) -> (b6)", SAME },
		{ "set r1 = 1\ncoll 0 all_reduce (b4+r1*0) -> (b3)\nkern 2 gen (b3, b1) -> (b4)", SAME },
		/* From further away, past what has nothing to do with it. */
		{ SUM "kern 0 copy (b1) -> (b4)\nkern 2 gen (b3, b1) -> (b2)", SUM "then 2 gen (b3, b1) -> (b2)\nkern 0 copy (b1) -> (b4)" },
		{ SUM "coll 0 all_reduce (b1) -> (b4)\nkern 2 gen (b3, b1) -> (b2)", SUM "then 2 gen (b3, b1) -> (b2)\ncoll 0 all_reduce (b1) -> (b4)" },
		{ SUM "mark 0\nkern 0 copy (b1) -> (b4)\nkern 2 gen (b3, b1) -> (b2)", SUM "then 2 gen (b3, b1) -> (b2)\nmark 0\nkern 0 copy (b1) -> (b4)" },
		{ SUM "kern 0 copy (b1) -> (b4)\nkern 2 gen (b3, b4) -> (b2)", SAME },
		{ SUM "kern 0 copy (b2) -> (b4)\nkern 2 gen (b3, b1) -> (b2)", SAME },
		{ SUM "kern 0 copy (b1) -> (b5)\nkern 2 gen (b3, b1) -> (b6)", SAME },
		{ SUM "kern 0 copy (b3) -> (b4)\nkern 2 gen (b3, b1) -> (b3)", SAME },
		{ SUM "set r1 = 0\nkern 2 gen (b3, b1+r1*4) -> (b2)", SAME },
		{ SUM "loop r1 < 2 {\n}\nkern 2 gen (b3, b1) -> (b2)", SAME },
		/* Two of one sum: the first; one for two sums, which follows the second. */
		{ SUM "kern 2 gen (b3, b1) -> (b4)\nkern 2 gen (b3, b1) -> (b2)", SUM "then 2 gen (b3, b1) -> (b4)\nkern 2 gen (b3, b1) -> (b2)" },
		{ SUM "coll 0 all_reduce (b1) -> (b4)\nkern 2 gen (b3, b4) -> (b2)", SUM "coll 0 all_reduce (b1) -> (b4)\nthen 2 gen (b3, b4) -> (b2)" },
		/* Another lane: what goes on there is no place for it; what was begun there is there when it is awaited. */
		{ "coll 0 all_reduce (b0) -> (b3) lane 1\nkern 2 gen (b3, b1) -> (b2)", SAME },
		{ "coll 1 permute (b1) -> (b4) lane 1\nmark 0 lane 1\n" SUM "await 0\nkern 2 gen (b3, b4) -> (b2)", SAME },
		{ "coll 1 permute (b1) -> (b4) lane 1\nmark 0 lane 1\n" SUM "await 0\nkern 2 gen (b3, b1) -> (b2)",
		  "coll 1 permute (b1) -> (b4) lane 1\nmark 0 lane 1\n" SUM "then 2 gen (b3, b1) -> (b2)\nawait 0" },
		{ "coll 1 permute (b1) -> (b4) lane 1\nmark 0 lane 1\nawait 0\n" SUM "kern 2 gen (b3, b4) -> (b2)",
		  "coll 1 permute (b1) -> (b4) lane 1\nmark 0 lane 1\nawait 0\n" SUM "then 2 gen (b3, b4) -> (b2)" },
		/* A block that was scattered, made anew as often as there are members: also over the operand. */
		{ "coll 2 reduce_scatter (b4) -> (b3)\nkern 6 gen (b3) -> (b4)", "coll 2 reduce_scatter (b4) -> (b3)\nthen all 6 gen (b3) -> (b4)" },
		{ "coll 2 reduce_scatter (b5) -> (b3)\nkern 6 gen (b3) -> (b6)", SAME },
	};
#undef SUM
#undef OWN
	char zeros[] = "  0000000000000000000000000000000000000000000000000000000000000000\n";
	struct str data = {0};
	for (int i = 0; i < 8; i++)
		str_add(&data, zeros);
	for (size_t i = 0; i < NELEM(t); i++) {
		struct str s = {0}, want = {0}, got = {0};
		struct prog *p, *q;
		struct arena a;
		arena_init(&a);
		str_addf(&s, rows, data.p, t[i].run);
		str_addf(&want, rows, data.p, t[i].want ? t[i].want : t[i].run);
		struct err *e = prog_parse(s.p, s.n, &p);
		if (e)
			fail_msg("%s: %s", t[i].run, e->msg);
		e = prog_parse(want.p, want.n, &q);
		if (e)
			fail_msg("%s: %s", want.p, e->msg);
		lw_follow(&a, p);
		want.n = 0;
		prog_print(&want, q);
		prog_print(&got, p);
		assert_string_equal(strstr(got.p, "run {"), strstr(want.p, "run {"));
		arena_fini(&a);
		prog_free(p);
		prog_free(q);
		str_free(&s);
		str_free(&want);
		str_free(&got);
	}
	str_free(&data);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(follows) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
