/* The checker: programs that are right pass, and each way to be wrong is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "prog/prog.h"

/* Two devices; a: argument, o: result, t, u: temporaries, v: over t's storage, c: constant, d: donated into e. */
static const char tables[] =
	"prog \"t\" devices 2 registers 8 zone 8192 flops 0 fingerprint 00 comm 00\n"
	"arg 0 f32[16,4] bytes 256\narg 1 i32[] bytes 4\narg 2 f32[16,4] bytes 256 alias 1\n"
	"res 0 f32[16,4] bytes 256\nres 1 f32[16,4] bytes 256 alias 2\n"
	"buf 0 arg 0 size 256\n"        /* b0 = a */
	"buf 1 out 0 size 256\n"        /* b1 = o */
	"buf 2 temp at 0 size 256\n"    /* b2 = t */
	"buf 3 temp at 256 size 256\n"  /* b3 = u */
	"buf 4 temp at 128 size 256\n"  /* b4 = v, over t and u */
	"buf 5 const at 0 size 64\n"    /* b5 = c */
	"buf 6 arg 1 size 4\n"
	"buf 7 arg 2 size 256\n"        /* b7 = d */
	"buf 8 out 1 size 256 alias 7\n"
	"data 64\n"
	"  0000000000000000000000000000000000000000000000000000000000000000\n"
	"  0000000000000000000000000000000000000000000000000000000000000000\n"
	"table 0 [1,0]\ntable 1 [1,0]\ntable 2 [0,1]\n"
	"group 0 1 2 [0,1]\n"
	"kern 0 copy (f32[16,4]) -> (f32[16,4])\n"
	"kern 1 copy (f32[4]) -> (f32[4])\n"
	"kern 2 cumulative (f32[16,4]) -> (f32[16,4]) attr [0,0,0]\n"
	"kern 3 copy (f32[16,2]:[4,1]) -> (f32[16,2]:[4,1])\n"
	"kern 4 dynamic_update (f32[1,4], i32[], i32[]) -> (f32[16,4])\n"
	"kern 5 fill () -> (f32[16,4]) imm 00\n"
	"kern 6 copy (f32[16,2]:[4,1]) -> (f32[16,2]:[4,1]@2)\n"
	"coll 0 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 256\n"
	"coll 1 permute f32 n 1 algo auto pairs 0 redop add outer 1 inner 256\n"
	"coll 2 all_gather f32 n 1 algo auto group 0 redop add outer 1 inner 256\n";

#define OUT "kern 0 copy (b0) -> (b1) "

static void check_rows(const char *rows, const char *body, const char *wrong)
{
	struct str s = {0};
	struct prog *p;
	str_addf(&s, "%s%srun { %s }", tables, rows, body);
	struct err *e = prog_parse(s.p, s.n, &p);
	if (e)
		fail_msg("%s in: %s", e->msg, body);
	e = prog_check(p);
	if (e && !wrong)
		fail_msg("refused: %s: %s", body, e->msg);
	if (!e && wrong)
		fail_msg("passed: %s, though %s", body, wrong);
	if (e && !strstr(e->msg, wrong))
		fail_msg("'%s' expected, not: %s", wrong, e->msg);
	err_free(e);
	prog_free(p);
	str_free(&s);
}

static void check(const char *body, const char *wrong)
{
	check_rows("", body, wrong);
}

static void rows(void **state)
{
	check_rows("kern 7 copy (f32[64]) -> (f32[64]:[0])\n", OUT, "kernel 7 copy: elements of result 0 overlap");
	check_rows("table 3 [1,-1]\ntable 4 [1,0]\ncoll 3 permute f32 n 1 algo auto pairs 3 redop add outer 1 inner 256\n", OUT, "collective 3 pairs position");
	check_rows("coll 3 all_reduce f32 n 1 algo auto group 0 redop fn outer 1 inner 256\n", OUT, "by a function that is not given");
	check_rows("buf 9 out 1 size 256 alias 7\n", OUT, "take the storage of argument 2");
	check_rows("buf 9 out 1 size 256 alias 0\n", OUT, "argument 0, which is not donated");
}

static void addresses(void **state)
{
	check(OUT, NULL);
	check(OUT "kern 1 copy (b0+240) -> (b2)", NULL);
	check(OUT "kern 1 copy (b0+244) -> (b2)", "reads bytes 244..260 of b0, which has 256");
	check(OUT "kern 1 copy (b0-4) -> (b2)", "reads bytes -4..12");
	check(OUT "loop r1 < 16 { kern 1 copy (b0+r1*16) -> (b2) }", NULL);
	check(OUT "loop r1 < 17 { kern 1 copy (b0+r1*16) -> (b2) }", "reads bytes 256..272");
	check(OUT "loop r1 < 10000000000 { kern 1 copy (b0+r1*16) -> (b2) }", "of b0, which has 256");
	check(OUT "ld r1 = i32 b6 kern 1 copy (b0+r1*16) -> (b2)", "reads bytes -34359738368");
	check(OUT "ld r1 = i32 b6 min r1 = r1, 15 max r1 = r1, 0 kern 1 copy (b0+r1*16) -> (b2)", NULL);
	check(OUT "ld r1 = i32 b6 min r1 = r1, 16 max r1 = r1, 0 kern 1 copy (b0+r1*16) -> (b2)", "reads bytes 0..272");
	check(OUT "table r2 = 0 kern 1 copy (b0+r2*240) -> (b2)", NULL);
	check(OUT "table r2 = 0 kern 1 copy (b0+r2*244) -> (b2)", "device 0");
	check(OUT "kern 1 copy (b0+r2*244) -> (b2)", "register r2 is read before it is set");
	check(OUT "case r1 { set r2 = 1 } { }", "register r1");
	check(OUT "kern 1 copy (b0) -> (b5)", "writes the constant b5");
	check(OUT "kern 1 copy (b0+16) -> (b0)", "writes the argument b0");
}

static void lifetimes(void **state)
{
	check("", "result 0: bytes 0..256 of b1 are read but were never written");
	check("kern 1 copy (b0) -> (b1)", "result 0: bytes 16..256 of b1");
	check("kern 0 copy (b2) -> (b1)", "b2 are read but were never written");
	check("kern 0 copy (b0) -> (b2) kern 0 copy (b2) -> (b1)", NULL);
	check("kern 0 copy (b0) -> (b2) kern 0 copy (b0) -> (b3) kern 0 copy (b2) -> (b1)", NULL);
	check("kern 0 copy (b0) -> (b2) kern 0 copy (b0) -> (b4) kern 0 copy (b2) -> (b1)", "bytes 128..256 of b2 are read but temporary b4 has overwritten them");
	check("kern 0 copy (b0) -> (b4) kern 0 copy (b0) -> (b2) kern 0 copy (b2) -> (b1)", NULL);
	check("kern 5 fill () -> (b8) kern 0 copy (b7) -> (b1)", "b7 are read but result b8 has overwritten them");
	check("kern 0 copy (b7) -> (b1) kern 5 fill () -> (b8)", NULL);
	check(OUT "kern 4 dynamic_update (b0, b6, b6) -> (b8)", NULL);
	check("kern 4 dynamic_update (b0, b6, b6) -> (b1)", "never written");
	check("kern 5 fill () -> (b1) kern 4 dynamic_update (b0, b6, b6) -> (b1)", NULL);
	/* So are sums that a gradient is added to. */
	const char *add = "kern 7 attention_grad_add (f32[1,2,4], f32[16,4], f32[16,4], f32[1,2], f32[1,2,4], f32[1,2]) -> (f32[1,2,4], f32[16,4], f32[16,4]) expr (f32) { } (%0, %0)\n";
	check_rows(add, "kern 5 fill () -> (b1) kern 5 fill () -> (b2) kern 5 fill () -> (b8) kern 7 attention_grad_add (b0, b0, b0, b0, b0, b0) -> (b2, b1, b8)", NULL);
	check_rows(add, "kern 5 fill () -> (b2) kern 7 attention_grad_add (b0, b0, b0, b0, b0, b0) -> (b2, b1, b8)", "b1 are read but were never written");
	/* In halves, in slices, in columns. */
	check("loop r1 < 16 { kern 1 copy (b0+r1*16) -> (b1+r1*16) }", NULL);
	check("kern 3 copy (b0) -> (b1) kern 3 copy (b0) -> (b1+8)", NULL);
	/* Slices backwards, written in a loop of which some turns are left out. */
	check("loop r1 < 16 { kern 1 copy (b0+r1*16) -> (b2+r1*16) } loop r1 < 16 { kern 1 copy (b2+240+r1*-16) -> (b1+r1*16) }", NULL);
	check("kern 1 copy (b0) -> (b2) loop r1 < 15 { kern 1 copy (b2+r1*16) -> (b2+16+r1*16) } kern 0 copy (b2) -> (b1)", NULL);
}

static void overlaps(void **state)
{
	check("kern 0 copy (b0) -> (b2) kern 0 copy (b2) -> (b2) kern 0 copy (b2) -> (b1)", NULL);
	check("kern 0 copy (b0) -> (b2) kern 2 cumulative (b2) -> (b2) kern 0 copy (b2) -> (b1)", "result b2 overlaps operand b2");
	check("kern 0 copy (b0) -> (b2) kern 1 copy (b2) -> (b2+4) kern 0 copy (b2) -> (b1)", "overlaps");
	check("kern 0 copy (b0) -> (b2) kern 6 copy (b2) -> (b2) kern 0 copy (b2) -> (b1)", NULL);
	/* Generated code says of which operands it reads no element but the one that it writes next, of which result. */
	const char *code = "code 0 \"g\" key 01\nkern 7 gen (f32[16,4], f32[16,4]) -> (f32[16,4], f32[16,4]) attr [2,0] code 0 tiles 1\n";
#define GEN(a, b, x, y) "kern 0 copy (b0) -> (b2) kern 0 copy (b0) -> (b3) kern 7 gen (" a ", " b ") -> (" x ", " y ") kern 0 copy (" x ") -> (b1)"
	check_rows(code, GEN("b2", "b0", "b3", "b2"), NULL);
	check_rows(code, GEN("b2", "b0", "b2", "b3"), "result b2 is written over operand b2, of which the code reads other elements later");
	check_rows(code, GEN("b0", "b2", "b3", "b2"), "result b2 is written over operand b2");
	check_rows(code, GEN("b2", "b2", "b3", "b2"), "result b2 is written over operand b2");
	check_rows(code, "kern 0 copy (b0) -> (b2) kern 7 gen (b2, b0) -> (b3, b4) kern 0 copy (b3) -> (b1)", "result b4 overlaps");
#undef GEN
}

static void control(void **state)
{
	const char *two = "ld r1 = pred b6 ";
	char text[1000];
#define TWO(rest, wrong) (snprintf(text, sizeof text, "%s%s", two, rest), check(text, wrong))
	TWO("case r1 { kern 0 copy (b0) -> (b1) } { kern 0 copy (b7) -> (b1) }", NULL);
	TWO("case r1 { kern 0 copy (b0) -> (b1) } { }", "not every path");
	TWO("kern 0 copy (b0) -> (b2) case r1 { kern 0 copy (b2) -> (b1) kern 0 copy (b0) -> (b4) } { kern 0 copy (b2) -> (b1) }", NULL);
	TWO("kern 0 copy (b0) -> (b2) case r1 { kern 0 copy (b0) -> (b4) } { } kern 0 copy (b2) -> (b1)", "overwritten them on some path");
	TWO("case r1 { set r2 = 1 } { } " OUT "kern 1 copy (b0+r2*16) -> (b2)", "register r2");
	TWO("case r1 { set r2 = 1 } { set r2 = 3 } " OUT "kern 1 copy (b0+r2*80) -> (b2)", NULL);
	TWO("case r1 { set r2 = 1 } { set r2 = 4 } " OUT "kern 1 copy (b0+r2*80) -> (b2)", "reads bytes 320..336");
	check("set r1 = 7 case r1 { } { kern 0 copy (b0) -> (b1) }", NULL);
	check("set r1 = 0 case r1 { } { kern 0 copy (b0) -> (b1) }", "never written");
	/* An index below the first block takes the last: here no path but that of 0 writes.  The case before it is not gone into. */
#define INDEX "set r2 = 0 ld r1 = i32 b6 min r1 = r1, 0 max r1 = r1, -1 case r2 { } { kern 0 copy (b0) -> (b1) } case r1 { kern 0 copy (b0) -> (b1) } "
	check(INDEX "{ }", "not every path");
	check(INDEX "{ kern 0 copy (b7) -> (b1) }", NULL);
#undef INDEX
	/* A carry that keeps its storage; one whose storage the body gives away. */
	check("kern 5 fill () -> (b1) while r1 { ld r1 = pred b6 } { kern 0 copy (b1) -> (b2) kern 0 copy (b2) -> (b1) }", NULL);
	check("kern 5 fill () -> (b2) while r1 { ld r1 = pred b6 } { kern 0 copy (b2) -> (b3) kern 0 copy (b0) -> (b4) } kern 0 copy (b2) -> (b1)", "overwritten");
	check("while r1 { ld r1 = pred b6 } { kern 0 copy (b0) -> (b1) }", "not every path");
	check(OUT "while r1 { } { }", "register r1");
	check("ld r1 = i32 b6 loop r2 < r1 { kern 0 copy (b0) -> (b1) }", "not every path");
	check("ld r1 = i32 b6 max r1 = r1, 1 loop r2 < r1 { kern 0 copy (b0) -> (b1) }", NULL);
	/* The result that a donated argument becomes is the argument where nothing was written; the argument has gone where something was. */
	TWO(OUT "case r1 { kern 5 fill () -> (b8) } { }", NULL);
	TWO(OUT "case r1 { } { kern 5 fill () -> (b8) } kern 0 copy (b8) -> (b2)", NULL);
	TWO("case r1 { kern 5 fill () -> (b8) } { } kern 0 copy (b7) -> (b1)", "b7 are read but result b8 has overwritten them");
	TWO("case r1 { } { kern 5 fill () -> (b8) } kern 0 copy (b7) -> (b1)", "b7 are read but result b8 has overwritten them");
	check(OUT "while r1 { ld r1 = pred b6 } { kern 0 copy (b8) -> (b2) kern 0 copy (b0) -> (b8) }", NULL);
	check(OUT "while r1 { ld r1 = pred b6 } { kern 0 copy (b7) -> (b2) kern 0 copy (b0) -> (b8) }", "b7 are read but result b8 has overwritten them");
#undef TWO
}

/* A carry in two halves of a buffer that take turns: after a while, which one holds it is known to its register alone. */
static void halves(void **state)
{
	char text[1000];
#define HALVES(before, in, out, after) (snprintf(text, sizeof text, OUT "kern 0 copy (b0) -> (b2) set r3 = 0 " before " kern 1 copy (b0) -> (b3) while r1 { ld r1 = pred b6 } " \
		"{ kern 1 copy (b3+r3*100) -> (b2) kern 1 copy (b2) -> (" out ") mul r3 = r3 * -1 add r3 = r3 + r0 +1 } %s kern 1 copy (" in ") -> (b2)", after), text)
	/* u = b3, 256 bytes: halves of 16 bytes, at 0 and 100; the rest of it is never written. */
	check(HALVES("", "b3+r3*100", "b3+100+r3*-100", ""), NULL);
	check(HALVES("", "b3+100+r3*-100", "b3+100+r3*-100", ""), "not every path has written");
	check(HALVES("", "b3+r3*100", "b3+r3*100", ""), "never written");
	check(HALVES("", "b3+r3*96", "b3+100+r3*-100", ""), "never written");
	check(HALVES("", "b3+r3*100", "b3+100+r3*-100", "kern 1 copy (b0) -> (b3+r3*100)"), NULL);
	/* v lies over both: it must not come between. */
	check(HALVES("", "b3+r3*100", "b3+100+r3*-100", "kern 0 copy (b0) -> (b4)"), "overwritten");
	check(HALVES("kern 0 copy (b0) -> (b4)", "b3+r3*100", "b3+100+r3*-100", ""), NULL);
	/* More of them than states are kept for: a register that nothing reads any more is no difference. */
	struct str s = {0};
	str_add(&s, OUT);
	for (int i = 0; i < 40; i++)
		str_add(&s, "set r3 = 0 set r2 = -1 kern 1 copy (b0) -> (b3) while r1 { ld r1 = pred b6 } "
		            "{ add r2 = r2 + r0 +1 kern 1 copy (b3+r3*100) -> (b3+100+r3*-100) mul r3 = r3 * -1 add r3 = r3 + r0 +1 } kern 1 copy (b3+r3*100) -> (b2) ");
	check(s.p, NULL);
	str_free(&s);
#undef HALVES
}

static void lanes(void **state)
{
	check("kern 0 copy (b0) -> (b2) lane 1 kern 0 copy (b2) -> (b1)", "race: lane 0 reads bytes 0..256 of the storage of b2 while lane 1 may still write them");
	check("kern 0 copy (b0) -> (b2) lane 1 mark 1 lane 1 await 1 kern 0 copy (b2) -> (b1)", NULL);
	check("kern 0 copy (b0) -> (b2) mark 1 lane 1 await 1 kern 0 copy (b2) -> (b1) lane 1", "race");
	check("kern 0 copy (b0) -> (b2) lane 1 await 1 mark 1 lane 1 kern 0 copy (b2) -> (b1)", "awaits mark 1 before it is made");
	/* The reader must be done before the storage is written again. */
	check(OUT "kern 0 copy (b0) -> (b2) mark 1 await 1 lane 1 kern 0 copy (b2) -> (b3) lane 1 kern 0 copy (b0) -> (b2)", "race: lane 0 writes");
	check(OUT "kern 0 copy (b0) -> (b2) mark 1 await 1 lane 1 kern 0 copy (b2) -> (b3) lane 1 mark 2 lane 1 await 2 kern 0 copy (b0) -> (b2)", NULL);
	/* Through the peer: lane 1's work is known to lane 0 once both devices passed collectives on the two. */
	check("kern 0 copy (b0) -> (b2) lane 1 coll 0 all_reduce (b0) -> (b3) lane 1 kern 0 copy (b2) -> (b1)", "race");
	/* Double buffering in a loop. */
	check(OUT "kern 1 copy (b0) -> (b2) lane 1 mark 1 lane 1 loop r1 < 15 {"
	      " await 1 mark 2 await 2 lane 1 kern 1 copy (b0+16+r1*16) -> (b2+16+r1*16) lane 1 mark 1 lane 1 kern 1 copy (b2+r1*16) -> (b3) }", NULL);
	check(OUT "kern 1 copy (b0) -> (b2) lane 1 mark 1 lane 1 loop r1 < 15 {"
	      " await 1 mark 2 await 2 lane 1 kern 1 copy (b0+16+r1*16) -> (b2+16+r1*16) lane 1 mark 1 lane 1 kern 1 copy (b2+16+r1*16) -> (b3) }", "race");
}

static void collectives(void **state)
{
	check(OUT "coll 0 all_reduce (b0) -> (b2)", NULL);
	check(OUT "coll 1 permute (b0) -> (b2)", NULL);
	check(OUT "coll 2 all_gather (b0) -> (b2)", "writes bytes 0..512 of b2");
	check("coll 1 permute (b2) -> (b1)", "never written");
	/* In place: it writes what all of its cycle hold. */
	check("kern 0 copy (b0) -> (b2) coll 1 permute (b2) -> (b2) kern 0 copy (b2) -> (b1)", NULL);
	check(OUT "kern 0 copy (b0) -> (b2) loop r1 < 5 { coll 1 permute (b2) -> (b2) }", NULL);
	check(OUT "kern 0 copy (b0) -> (b2) coll 1 permute (b2) -> (b4)", "result b4 overlaps operand b2");
	check(OUT "coll 1 permute (b0) -> (b0)", "writes the argument b0");
	check("kern 0 copy (b0) -> (b2) mark 1 await 1 lane 1 kern 0 copy (b2) -> (b1) lane 1 coll 1 permute (b2) -> (b2)", "race: lane 0 writes");
	check("kern 0 copy (b0) -> (b2) mark 1 await 1 lane 1 kern 0 copy (b2) -> (b1) lane 1 mark 2 lane 1 await 2 coll 1 permute (b2) -> (b2)", NULL);
	/* Devices that take different ways. */
	check(OUT "table r1 = 2 case r1 { coll 0 all_reduce (b0) -> (b2) } { coll 0 all_reduce (b0) -> (b2) }", "waits for device 1, which stands at 'coll 0");
	check(OUT "table r1 = 2 case r1 { coll 0 all_reduce (b0) -> (b2) } { }", "waits for device 1, which has ended");
	check(OUT "table r1 = 2 loop r2 < r1 { coll 0 all_reduce (b0) -> (b2) }", "which has ended");
	check(OUT "loop r2 < 5 { coll 0 all_reduce (b0) -> (b2) coll 1 permute (b2) -> (b3) }", NULL);
}

/* b9, b10: what loan 3 shows; b11: in two halves; b12: what loan 4 shows; b13: a temporary in two halves. */
/* What follows a sum part by part: what it makes leaves alone what peers still read of the operand; a sum that only it has read is gone. */
static void followers(void **state)
{
	static const char more[] = "buf 9 temp at 1024 size 512\ncode 0 \"f\" key 00\n"
		"kern 7 gen (f32[16,4]) -> (f32[16,4]) attr [1] code 0 tiles 4 of 16\nkern 8 gen (f32[16,4]) -> (i16[16,4]) attr [0] code 0 tiles 4 of 16\n"
		"kern 9 gen (f32[8,4]) -> (f32[16,4]) attr [0] code 0 tiles 4 of 16 times 2\nkern 10 gen (f32[16,4]) -> (f32[8,4]) attr [0] code 0 tiles 8 of 8\n"
		"coll 3 reduce_scatter f32 n 1 algo auto group 0 redop add outer 1 inner 128\ncoll 4 reduce_scatter f32 n 1 algo auto group 0 redop add outer 2 inner 64\n";
#define SUM "kern 0 copy (b0) -> (b9) coll 0 all_reduce (b9) -> (b2) "
#define PART "kern 0 copy (b0) -> (b9) coll 3 reduce_scatter (b9) -> (b2) "
	static const struct { const char *run, *wrong; } t[] = {
		{ SUM "then 7 gen (b2) -> (b1)", NULL },
		{ SUM "then 7 gen (b2) -> (b2) kern 0 copy (b2) -> (b1)", NULL },
		{ SUM "then 7 gen (b2) -> (b9) kern 0 copy (b9) -> (b1)", NULL },
		{ SUM "then 7 gen (b2) -> (b3) kern 0 copy (b2) -> (b1)", NULL },
		{ "coll 0 all_reduce (b7) -> (b2) then 7 gen (b2) -> (b8) " OUT, NULL },
		{ "kern 0 copy (b0) -> (b2) coll 0 all_reduce (b2) -> (b2) then 7 gen (b2) -> (b2) kern 0 copy (b2) -> (b1)", NULL },
		{ SUM "kern 7 gen (b2) -> (b9+64) kern 0 copy (b9+64) -> (b1)", NULL },
		{ SUM "then 7 gen (b2) -> (b9+64) kern 0 copy (b9+64) -> (b1)", "result b9 lies over b9, of which peers may read other parts when a part follows" },
		{ SUM "then 8 gen (b2) -> (b9) " OUT, "lies over b9, of which peers may read" },
		{ SUM "then 10 gen (b2) -> (b9) " OUT, "lies over b9, of which peers may read" },
		{ "set r1 = 1 " SUM "then 7 gen (b2) -> (b9+r1*64) " OUT, "lies over b9, of which peers may read" },
		{ "set r1 = 4 " SUM "then 7 gen (b2) -> (b9+r1*64) " OUT, NULL },
		{ PART "then 9 gen (b2) -> (b9) kern 0 copy (b9) -> (b1)", NULL },
		{ PART "then 9 gen (b2) -> (b9+64) kern 0 copy (b9+64) -> (b1)", "lies over b9, of which peers may read" },
		{ PART "then 9 gen (b2) -> (b9+256) kern 0 copy (b9+256) -> (b1)", NULL },
		{ "kern 0 copy (b0) -> (b9) coll 4 reduce_scatter (b9) -> (b2) then 9 gen (b2) -> (b9) " OUT, "lies over b9, of which peers may read" },
		{ SUM "then all 7 gen (b2) -> (b1)", NULL },
		{ SUM "then all 7 gen (b2) -> (b2) kern 0 copy (b2) -> (b1)", NULL },
		{ SUM "then all 7 gen (b2) -> (b3) kern 0 copy (b2) -> (b1)", "of b2 are read but were never written" },
		{ PART "then all 9 gen (b2) -> (b3) kern 1 copy (b2) -> (b3) " OUT, "never written" },
	};
#undef PART
#undef SUM
	for (size_t i = 0; i < NELEM(t); i++)
		check_rows(more, t[i].run, t[i].wrong);
}

static void loans(void **state)
{
	const char *rows = "buf 9 lent 3 at 1024 size 256\nbuf 10 lent 3 at 1280 size 256\nbuf 11 lent 3 at 2048 size 512\nbuf 12 lent 4 at 3072 size 256\n"
		"buf 13 temp at 4096 size 512\n"
		"coll 3 permute f32 n 1 algo auto pairs 0 redop add outer 1 inner 256 hops 1\n"
		"coll 4 permute f32 n 1 algo auto pairs 0 redop add outer 1 inner 256 hops 1\n";
#define LOAN(body, wrong) check_rows(rows, body, wrong)
#define T "kern 0 copy (b0) -> (b2) "
	LOAN(T "lend 3 (b2) next 3 (b2) -> (b9) kern 0 copy (b9) -> (b1) back 3 wait 3", NULL);
	LOAN("lend 3 (b0) next 3 (b0) -> (b9) kern 0 copy (b9) -> (b1) back 3 wait 3", NULL);
	/* What is read before it is lent, or after it went back; whose bytes something else has. */
	LOAN(T "lend 3 (b2) kern 0 copy (b9) -> (b1) next 3 (b2) -> (b9) back 3 wait 3", "b9 are read but were never written");
	LOAN(T "lend 3 (b2) next 3 (b2) -> (b9) back 3 kern 0 copy (b9) -> (b1) wait 3", "b9 are read but were never written");
	LOAN("lend 3 (b2) next 3 (b2) -> (b9) kern 0 copy (b9) -> (b1) back 3 wait 3", "b2 are read but were never written");
	LOAN(OUT T "lend 3 (b2) next 3 (b0) -> (b9) back 3 wait 3", "b0 is not what was lent");
	LOAN(OUT T "lend 3 (b2) next 3 (b3) -> (b9) back 3 wait 3", "b3 are read but were never written");
	LOAN(OUT T "kern 0 copy (b0) -> (b13) lend 3 (b2) next 3 (b13) -> (b9) back 3 wait 3", "b13 is not what was lent");
	LOAN(OUT T "next 3 (b2) -> (b9) back 3 wait 3", "nothing was lent");
	LOAN(OUT T "next 3 by 0 (b2) -> (b9) next 3 (b9) -> (b10) back 3 wait 3", "b9 was shown, but not lent");
	/* What is lent changes. */
	LOAN(OUT T "lend 3 (b2) next 3 (b2) -> (b9) back 3 kern 0 copy (b0) -> (b2) wait 3", "b2 changes while collective 3 lends bytes of it");
	LOAN(OUT T "lend 3 (b2) next 3 (b2) -> (b9) back 3 kern 0 copy (b0) -> (b4) wait 3", "b4 changes while collective 3 lends");
	LOAN(OUT T "lend 3 (b2) next 3 (b2) -> (b9) back 3 kern 0 copy (b0) -> (b3) wait 3 kern 0 copy (b0) -> (b4)", NULL);
	LOAN(OUT T "lend 3 (b2) next 3 (b2) -> (b9) kern 0 copy (b9) -> (b2) back 3 wait 3", "b2 changes while collective 3 lends");
	LOAN("kern 0 copy (b7) -> (b1) lend 3 (b7) next 3 (b7) -> (b9) back 3 kern 5 fill () -> (b8) wait 3", "b8 changes while collective 3 lends");
	LOAN("kern 0 copy (b7) -> (b1) lend 3 (b7) next 3 (b7) -> (b9) back 3 wait 3 kern 5 fill () -> (b8)", NULL);
	LOAN(OUT T "lend 3 (b2) next 3 (b2) -> (b9) kern 0 copy (b0) -> (b9) back 3 wait 3", "writes b9, which is lent");
	LOAN(OUT T "lend 3 (b2) next 3 (b2) -> (b9) coll 0 all_reduce (b9) -> (b3) back 3 wait 3", "b9, which is lent, may not be where peers can read it");
	/* What is not given back, or not awaited, or awaited too soon. */
	LOAN(OUT T "lend 3 (b2) next 3 (b2) -> (b9) back 3", "what collective 3 lends is not awaited");
	LOAN(OUT T "lend 3 (b2) next 3 (b2) -> (b9)", "what collective 3 was lent is not given back");
	LOAN(OUT T "lend 3 (b2) next 3 (b2) -> (b9) wait 3 back 3", "waits for what devices give back only after it");
	LOAN(OUT "back 3", "nothing was lent");
	LOAN(OUT T "lend 3 (b2) back 3 back 3 wait 3", "nothing was lent");
	LOAN(OUT T "lend 3 (b2) lend 3 (b2) back 3 wait 3", "what was lent before is not given back");
	LOAN(OUT T "lend 3 (b2) back 3 lend 3 (b2) back 3 wait 3", NULL);
	LOAN(OUT T "lend 3 (b2) back 3 lend 3 (b2) back 3 lend 3 (b2) back 3 wait 3", "two times before is not awaited");
	LOAN(OUT T "lend 3 (b2) back 3 lend 3 (b2) back 3 wait 3 but 1 lend 3 (b2) back 3 wait 3", NULL);
	LOAN(OUT T "lend 3 (b2) back 3 wait 3 but 1", "is not awaited");
	LOAN(OUT T "ld r1 = pred b6 lend 3 (b2) case r1 { back 3 } { } wait 3", "waits for what");
	LOAN(OUT T "ld r1 = pred b6 lend 3 (b2) case r1 { back 3 } { } back 3 wait 3", "nothing was lent on some path");
	LOAN(OUT T "ld r1 = pred b6 case r1 { lend 3 (b2) back 3 } { } wait 3", NULL);
	LOAN(OUT T "ld r1 = pred b6 case r1 { lend 3 (b2) back 3 } { } kern 0 copy (b0) -> (b2) wait 3", "changes while");
	LOAN(OUT T "ld r1 = pred b6 lend 3 (b2) back 3 case r1 { wait 3 } { } ", "is not awaited");
	/* Several at once, other communication between; lent on. */
	LOAN(OUT T "lend 3 (b2) lend 4 (b0) next 3 (b2) -> (b9) coll 0 all_reduce (b0) -> (b3) next 4 (b0) -> (b12) kern 0 copy (b12) -> (b3) kern 0 copy (b9) -> (b3) back 3 back 4 wait 4 wait 3", NULL);
	LOAN(OUT T "lend 3 (b2) next 3 (b2) -> (b9) lend 4 (b9) next 4 (b9) -> (b12) kern 0 copy (b12) -> (b3) back 4 wait 4 back 3 wait 3", NULL);
	LOAN(OUT T "lend 3 (b2) next 3 (b2) -> (b9) lend 4 (b9) next 4 (b9) -> (b12) back 4 back 3 wait 4 wait 3", "b9 changes while collective 4 lends");
	LOAN(OUT T "lend 3 (b2) next 3 (b2) -> (b9) next 3 (b9) -> (b10) kern 0 copy (b10) -> (b3) kern 0 copy (b9) -> (b3) back 3 wait 3", NULL);
	/* Goes round in a loop: a value of its own first. */
	LOAN(OUT "lend 3 (b0) next 3 by 0 (b0) -> (b11) loop r1 < 7 { kern 0 copy (b11) -> (b2) next 3 (b11) -> (b11) } kern 0 copy (b11) -> (b2) back 3 wait 3", NULL);
	LOAN(OUT "lend 3 (b0) next 3 by 0 (b0) -> (b11) loop r1 < 7 { kern 0 copy (b11) -> (b2) next 3 (b11) -> (b11) back 3 } wait 3", "b11 are read but were never written");
	/* What is made of it is lent in the next turn, from the other half. */
#define HALVES(before, write, after) "set r2 = 0 kern 0 copy (b0) -> (b13) loop r1 < 7 { lend 3 (b13+r2*256) next 3 (b13+r2*256) -> (b9) " before \
		" kern 0 copy (b9) -> (b13+256+r2*-256) back 3 " after " mul r2 = r2 * -1 add r2 = r2 + r0 +1 } " write
	LOAN(OUT HALVES("wait 3 but 1", "wait 3", ""), NULL);
	LOAN(OUT HALVES("", "wait 3", "wait 3"), NULL);
	LOAN(OUT HALVES("", "wait 3", ""), "b13 changes while collective 3 lends");
	LOAN(OUT HALVES("wait 3 but 1", "", ""), "is not awaited");
	LOAN(OUT HALVES("wait 3", "", ""), "waits for what devices give back only after it");
	LOAN(OUT HALVES("wait 3 but 1", "", "wait 3"), NULL);
#undef HALVES
	/* Lanes: who reads it must be done before it goes back; who writes it has to know of the wait. */
	LOAN(OUT T "lend 3 (b2) next 3 (b2) -> (b9) mark 1 await 1 lane 1 kern 0 copy (b9) -> (b3) lane 1 back 3 wait 3", "race: lane 0 writes");
	LOAN(OUT T "lend 3 (b2) next 3 (b2) -> (b9) mark 1 await 1 lane 1 kern 0 copy (b9) -> (b3) lane 1 mark 2 lane 1 await 2 back 3 wait 3", NULL);
	LOAN(OUT T "lend 3 (b2) next 3 (b2) -> (b9) kern 0 copy (b9) -> (b3) lane 1 back 3 wait 3", "race: lane 1 reads");
	LOAN(OUT T "mark 3 await 3 lane 1 lend 3 (b2) back 3 wait 3 kern 0 copy (b0) -> (b2) lane 1", "race: lane 1 writes");
	LOAN(OUT T "mark 3 await 3 lane 1 lend 3 (b2) back 3 wait 3 mark 4 await 4 lane 1 kern 0 copy (b0) -> (b2) lane 1", NULL);
	LOAN(OUT T "lend 3 (b2) back 3 mark 3 await 3 lane 1 wait 3 kern 0 copy (b0) -> (b2) lane 1", "race: lane 1 writes");
	/* Devices that take different ways. */
	LOAN(OUT "lend 3 (b0) table r1 = 2 case r1 { back 3 wait 3 coll 0 all_reduce (b0) -> (b2) } { coll 0 all_reduce (b0) -> (b2) back 3 wait 3 }", "waits for device 1, which stands at 'coll 0");
	LOAN(OUT "table r1 = 2 case r1 { lend 3 (b0) back 3 wait 3 } { }", "waits for device 1, which has ended");
	LOAN(OUT "table r1 = 2 lend 3 (b0) case r1 { next 3 (b0) -> (b9) } { } back 3 wait 3", "waits for device 1, which stands at 'wait 3'");
	/* What all lend to all: b9 and b10, in rank order. */
	const char *gather = "buf 9 lent 3 at 1024 size 256\nbuf 10 lent 3 at 1280 size 256\ncoll 3 all_gather f32 n 1 algo auto group 0 pairs 0 redop add outer 1 inner 256 hops 1\n";
#define ALL(body, wrong) check_rows(gather, body, wrong)
	ALL(T "lend 3 (b2) next 3 (b2) -> (b9, b10) kern 0 copy (b9) -> (b1) kern 0 copy (b10) -> (b1) back 3 wait 3", NULL);
	ALL(OUT T "next 3 (b2) -> (b9, b10) back 3 wait 3", "nothing was lent");
	ALL(OUT T "lend 3 (b2) next 3 (b0) -> (b9, b10) back 3 wait 3", "b0 is not what was lent");
	ALL(T "lend 3 (b2) next 3 (b2) -> (b9, b10) back 3 kern 0 copy (b10) -> (b1) wait 3", "b10 are read but were never written");
	ALL(OUT T "lend 3 (b2) next 3 (b2) -> (b9, b10) back 3 kern 0 copy (b0) -> (b2) wait 3", "b2 changes while collective 3 lends bytes of it");
	ALL(OUT T "lend 3 (b2) next 3 (b2) -> (b9, b10) kern 0 copy (b0) -> (b10) back 3 wait 3", "writes b10, which is lent");
	ALL(OUT T "lend 3 (b2) next 3 (b2) -> (b9, b10) back 3", "what collective 3 lends is not awaited");
	ALL(OUT T "lend 3 (b2) next 3 (b2) -> (b9, b10) mark 1 await 1 lane 1 kern 0 copy (b10) -> (b3) lane 1 back 3 wait 3", "race: lane 0 writes");
	ALL(OUT T "loop r1 < 5 { lend 3 (b2) next 3 (b2) -> (b9, b10) kern 0 copy (b9) -> (b3) back 3 wait 3 kern 0 copy (b3) -> (b2) }", NULL);
	ALL(OUT T "table r1 = 2 lend 3 (b2) case r1 { next 3 (b2) -> (b9, b10) } { } back 3 wait 3", "waits for device 1, which stands at 'wait 3'");
#undef ALL
#undef T
#undef LOAN
}

/* Four devices in a ring: how far along it what is lent is read. */
static void hops(void **state)
{
	static const char rows[] = "prog \"ring\" devices 4 registers 8 zone 4096 far 512 flops 0 fingerprint 00 comm 00\narg 0 f32[16,4] bytes 256\narg 1 i32[] bytes 4\nres 0 f32[16,4] bytes 256\n"
		"buf 0 arg 0 size 256\nbuf 1 out 0 size 256\nbuf 2 temp at 0 size 256\nbuf 3 lent 0 at 4096 size 512\nbuf 4 lent 0 at 2048 size 256\nbuf 5 arg 1 size 4\n"
		"table 0 [3,0,1,2]\ntable 1 [1,2,3,0]\nkern 0 copy (f32[16,4]) -> (f32[16,4])\ncoll 0 permute f32 n 1 algo auto pairs 0 redop add outer 1 inner 256 hops %d\nrun { " OUT "%s }";
	static const struct { int hops; const char *body, *wrong; } t[] = {
		{ 1, "lend 0 (b0) next 0 (b0) -> (b3) back 0 wait 0", NULL },
		{ 1, "lend 0 (b0) next 0 (b0) -> (b3) next 0 (b3) -> (b4) back 0 wait 0", "b4 is what is 2 links away, but it is lent to 1" },
		{ 2, "lend 0 (b0) next 0 (b0) -> (b3) next 0 (b3) -> (b4) back 0 wait 0", NULL },
		{ 2, "lend 0 (b0) next 0 by 0 (b0) -> (b3) loop r1 < 2 { next 0 (b3) -> (b3) } back 0 wait 0", NULL },
		{ 2, "lend 0 (b0) next 0 by 0 (b0) -> (b3) loop r1 < 3 { next 0 (b3) -> (b3) } back 0 wait 0", "links away" },
		{ 3, "lend 0 (b0) next 0 by 0 (b0) -> (b3) loop r1 < 3 { next 0 (b3) -> (b3) } back 0 wait 0", NULL },
		{ 3, "lend 0 (b0) next 0 by 0 (b0) -> (b3) loop r1 < 1000 { next 0 (b3) -> (b3) } back 0 wait 0", NULL },
		{ 2, "lend 0 (b0) next 0 by 0 (b0) -> (b3) loop r1 < 1000 { next 0 (b3) -> (b3) } back 0 wait 0", "links away" },
		{ 3, "lend 0 (b0) next 0 by 0 (b0) -> (b3) while r1 { ld r1 = pred b5 } { next 0 (b3) -> (b3) } back 0 wait 0", NULL },
		{ 2, "lend 0 (b0) next 0 by 0 (b0) -> (b3) while r1 { ld r1 = pred b5 } { next 0 (b3) -> (b3) } back 0 wait 0", "links away" },
		/* Lent anew in each turn of a loop around. */
		{ 2, "loop r2 < 50 { lend 0 (b0) next 0 by 0 (b0) -> (b3) loop r1 < 2 { next 0 (b3) -> (b3) } back 0 wait 0 }", NULL },
		{ 2, "loop r2 < 50 { lend 0 (b0) next 0 by 0 (b0) -> (b3) loop r1 < 20 { next 0 (b3) -> (b3) } back 0 wait 0 }", "links away" },
		{ 2, "loop r2 < 50 { lend 0 (b0) next 0 by 0 (b0) -> (b3) loop r1 < 2 { next 0 (b3) -> (b3) } back 0 }", "is not awaited" },
	};
	for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
		char text[4000];
		struct prog *p;
		snprintf(text, sizeof text, rows, t[i].hops, t[i].body);
		struct err *e = prog_parse(text, strlen(text), &p);
		if (e)
			fail_msg("%s in: %s", e->msg, t[i].body);
		e = prog_check(p);
		if ((e == NULL) != (t[i].wrong == NULL) || (e && !strstr(e->msg, t[i].wrong)))
			fail_msg("hops %d, %s: %s", t[i].hops, t[i].body, e ? e->msg : "passed");
		err_free(e);
		prog_free(p);
	}
}

/* Something must be fast enough to run on every program: 10^4 commands, 8 devices. */
static void fast(void **state)
{
	struct str s = {0};
	int n = 10000;
	str_addf(&s, "prog \"big\" devices 8 registers 2 zone %d flops 0 fingerprint 00 comm 00\narg 0 f32[16] bytes 64\nres 0 f32[16] bytes 64\n"
	         "buf 0 arg 0 size 64\nbuf 1 out 0 size 64\n", 64 * n);
	for (int i = 0; i < n; i++)
		str_addf(&s, "buf %d temp at %d size 64\n", i + 2, 64 * (i * 7919 % n));
	str_add(&s, "group 0 1 8 [0,1,2,3,4,5,6,7]\nkern 0 copy (f32[16]) -> (f32[16])\ncoll 0 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 64\nrun {\n");
	str_add(&s, "kern 0 copy (b0) -> (b2)\n");
	for (int i = 1; i < n; i++)
		str_addf(&s, i % 10 ? "kern 0 copy (b%d) -> (b%d)\n" : "coll 0 all_reduce (b%d) -> (b%d)\n", i + 1, i + 2);
	str_addf(&s, "kern 0 copy (b%d) -> (b1) }\n", n + 1);
	struct prog *p;
	struct err *e = prog_parse(s.p, s.n, &p);
	if (e)
		fail_msg("%s", e->msg);
	clock_t t = clock();         /* of this process: what else runs does not matter */
	e = prog_check(p);
	t = clock() - t;
	if (e)
		fail_msg("%s", e->msg);
	print_message("10^4 commands on 8 devices: %.3f s\n", (double)t / CLOCKS_PER_SEC);
	assert_true(t < 20 * CLOCKS_PER_SEC);
	prog_free(p);
	str_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows), cmocka_unit_test(addresses), cmocka_unit_test(lifetimes), cmocka_unit_test(overlaps), cmocka_unit_test(control), cmocka_unit_test(halves),
		cmocka_unit_test(lanes), cmocka_unit_test(collectives), cmocka_unit_test(followers), cmocka_unit_test(loans), cmocka_unit_test(hops), cmocka_unit_test(fast),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
