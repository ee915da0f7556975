/* Text and binary forms of a program: same text back, same bytes back, and nothing but an error for bytes
 * and text that were damaged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "prog/prog.h"

static struct str sample;

static struct prog *parsed(const char *text, size_t n)
{
	struct prog *p;
	struct err *e = prog_parse(text, n, &p);
	if (e)
		fail_msg("%s", e->msg);
	return p;
}

static void text_comes_back(void **state)
{
	struct prog *p = parsed(sample.p, sample.n);
	struct str s = {0};
	prog_print(&s, p);
	assert_string_equal(s.p, sample.p);
	assert_int_equal(p->group[1].row[3], 1);
	assert_int_equal(p->group[1].rank[3], 0);
	assert_int_equal(p->opnd[p->nopnd - 1].buf, 9);
	str_free(&s);
	prog_free(p);
}

static void bytes_come_back(void **state)
{
	struct prog *p = parsed(sample.p, sample.n), *q;
	uint8_t obj[300];
	for (size_t i = 0; i < sizeof obj; i++)
		obj[i] = (uint8_t)i;
	p->code[0].obj = arena_copy(&p->arena, obj, sizeof obj);
	p->code[0].nobj = sizeof obj;
	struct str a = {0}, b = {0}, s = {0};
	prog_save(&a, p);
	assert_null(prog_load(a.p, a.n, &q));
	prog_save(&b, q);
	assert_int_equal(a.n, b.n);
	assert_memory_equal(a.p, b.p, a.n);
	prog_print(&s, q);
	assert_string_equal(s.p, sample.p);
	assert_int_equal(q->code[0].nobj, sizeof obj);
	assert_memory_equal(q->code[0].obj, obj, sizeof obj);
	assert_int_equal((uintptr_t)q->data % 64, 0);
	assert_true(prog_comm_hash(p) == prog_comm_hash(q));
	assert_true(prog_comm_hash(p) != 0);
	str_free(&a);
	str_free(&b);
	str_free(&s);
	prog_free(p);
	prog_free(q);
}

static void reseal(struct str *s)
{
	uint32_t version;
	memcpy(&version, s->p + 8, 4);
	uint64_t len = s->n - 32, hash = hash_bytes(s->p + 32, len, version);
	memcpy(s->p + 16, &len, 8);
	memcpy(s->p + 24, &hash, 8);
}

/* Damage with and without a checksum that fits: never more than an error. */
static void damage_is_an_error(void **state)
{
	struct prog *p = parsed(sample.p, sample.n), *q;
	struct str good = {0};
	prog_save(&good, p);
	for (size_t n = 0; n < good.n; n++) {
		char *cut = mem_alloc(n);
		memcpy(cut, good.p, n);
		struct err *e = prog_load(cut, n, &q);
		assert_non_null(e);
		assert_int_equal(e->code, ERR_DATA_LOSS);
		err_free(e);
		free(cut);
	}
	uint64_t fresh = (uint64_t)time(NULL), seed = 1;
	int refused = 0;
	printf("seeds 1 and %llu\n", (unsigned long long)fresh);
	for (int round = 0; round < 40000; round++) {
		seed = round == 20000 ? fresh : seed;
		struct str bad = {0};
		str_addn(&bad, good.p, good.n);
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		size_t at = 32 + (size_t)(seed >> 33) % (bad.n - 32);
		bad.p[at] = (char)(seed >> 24);
		if (round % 4 == 3)
			bad.n -= (size_t)(seed >> 40) % (bad.n - 33);
		bool changed = bad.n != good.n || memcmp(bad.p, good.p, good.n) != 0;
		if (round % 8 == 0 && changed) {
			struct err *e = prog_load(bad.p, bad.n, &q);
			assert_non_null(e);
			err_free(e);
		}
		reseal(&bad);
		struct err *e = prog_load(bad.p, bad.n, &q);
		if (e) {
			assert_int_equal(e->code, ERR_DATA_LOSS);
			refused++;
			err_free(e);
		} else {
			struct str s = {0};
			prog_print(&s, q);
			prog_comm_hash(q);
			str_free(&s);
			prog_free(q);
		}
		str_free(&bad);
	}
	assert_true(refused > 2000 && refused < 40000);
	str_free(&good);
	prog_free(p);
}

static void bad_text_is_an_error(void **state)
{
	struct prog *q;
	for (size_t n = 0; n + 2 < sample.n; n++) {
		struct err *e = prog_parse(sample.p, n, &q);
		assert_non_null(e);
		assert_int_equal(e->code, ERR_INVALID);
		err_free(e);
	}
	uint64_t fresh = (uint64_t)time(NULL), seed = 7;
	printf("seeds 7 and %llu\n", (unsigned long long)fresh);
	for (int round = 0; round < 40000; round++) {
		seed = round == 20000 ? fresh : seed;
		struct str bad = {0};
		str_addn(&bad, sample.p, sample.n);
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		bad.p[(size_t)(seed >> 33) % bad.n] = "0 9-9(){}[]\",%rbx\n"[(seed >> 20) % 18];
		struct err *e = prog_parse(bad.p, bad.n, &q);
		if (!e)
			prog_free(q);
		err_free(e);
		str_free(&bad);
	}
	const char *text = "prog \"f\" devices 1 registers 1 zone 0 flops 0 fingerprint 00 comm 00\nkern 0 nonsense () -> ()";
	struct err *e = prog_parse(text, strlen(text), &q);
	assert_non_null(e);
	assert_string_equal(e->msg, "line 2: unknown kernel 'nonsense'");
	err_free(e);
}

/* The text s, of these rows and commands, is a program, or what is wrong with it is said.  Frees s. */
static void parses(struct str *s, const char *rows, const char *run, const char *wrong)
{
	struct prog *q;
	struct err *e = prog_parse(s->p, s->n, &q);

	if ((e == NULL) != (wrong == NULL) || (e && !strstr(e->msg, wrong)))
		fail_msg("%s %s: %s", rows, run, e ? e->msg : "passed");
	if (!e)
		prog_free(q);
	err_free(e);
	str_free(s);
}

/* What no loan can be. */
static void bad_loans(void **state)
{
#define GATHER(hops) "buf 4 lent 2 at 0 size 64\nbuf 5 lent 2 at 64 size 64\ngroup 0 1 2 [0,1]\ncoll 2 all_gather f32 n 1 algo auto group 0 pairs 0 redop add outer 1 inner 64 " hops "\n"
	static const struct { const char *rows, *run, *wrong; } t[] = {
		{ "", "lend 1 (b0) next 1 by 0 (b0) -> (b2) next 1 (b2) -> (b2) next 1 (b2) -> (b3) next 1 by 0 (b2) -> (b3) back 1 wait 1 but 1", NULL },
		{ "buf 4 lent 0 at 0 size 64\n", "", "buffer 4 of 64 bytes is for what collective 0 lends, which is no loan" },
		{ "buf 4 lent 7 at 0 size 64\n", "", "collective 7 lends" },
		{ "buf 4 lent 1 at 0 size 32\n", "", "buffer 4 of 32 bytes" },
		{ "buf 4 lent 1 at 192 size 128\n", "", "outside the 256 bytes of the zone" },
		{ "buf 4 temp at 128 size 64\n", "", "outside the 64 bytes of the zone" },
		{ "coll 2 permute f32 n 1 algo auto pairs 0 redop add outer 1 inner 64 hops 2\n", "", "lends 1 operands to 2 devices of 2" },
		{ "coll 2 permute f32 n 2 algo auto pairs 0 redop add outer 1 inner 64 hops 1\n", "", "lends 2 operands" },
		{ "group 0 1 2 [0,1]\ncoll 2 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 64 hops 1\n", "", "of 2 members lends to 1 of them" },
		{ GATHER("hops 1"), "lend 2 (b0) next 2 (b0) -> (b4, b5) back 2 wait 2", NULL },
		{ GATHER(""), "", "buffer 4 of 64 bytes is for what collective 2 lends, which is no loan" },
		{ GATHER("hops 1"), "lend 2 (b0) next 2 (b0) -> (b4) back 2 wait 2", "has 2 operands instead of 3" },
		{ GATHER("hops 1"), "lend 2 (b0) next 2 (b0) -> (b4, b4) back 2 wait 2", "shows two things in b4" },
		{ GATHER("hops 1"), "lend 2 (b0) next 2 (b0) -> (b4, b2) back 2 wait 2", "shows in b2 what is lent, which is no buffer for that" },
		{ GATHER("hops 1"), "next 2 by 0 (b0) -> (b4, b5)", "goes on with what all have lent" },
		{ GATHER("hops 1"), "lend 2 (b0) next 2 (b4) -> (b4, b5)", "goes on with what all have lent" },
		{ "group 0 1 2 [1,0]\ntable 2 [0,1]\ntable 3 [0,1]\ncoll 2 all_gather f32 n 1 algo auto group 0 pairs 2 redop add outer 1 inner 64 hops 1\n", "", "which is not its neighbour in the group" },
		{ "group 0 2 1 [0,1]\ncoll 2 all_gather f32 n 1 algo auto group 0 pairs 0 redop add outer 1 inner 64 hops 1\n", "", "of 1 members lends to 1 of them" },
		{ "group 0 1 2 [0,1]\ncoll 2 all_reduce f32 n 1 algo auto group 0 pairs 0 redop add outer 1 inner 64 hops 1\n", "", "of 2 members lends to 1 of them" },
		{ "", "coll 1 permute (b0) -> (b1)", "runs collective 1, which is a loan" },
		{ "", "lend 0 (b0)", "collective 0, which is no loan" },
		{ "", "lend 9 (b0)", "names entry 9" },
		{ "", "back 0", "no loan" },
		{ "", "wait 1 but 2", "has the number 2" },
		{ "", "next 1 by 2 (b0) -> (b2)", "has the number 2" },
		{ "", "lend 1 (b2)", "takes b2, which the loan itself shows" },
		{ "", "next 1 (b0) -> (b1)", "shows in b1 what is lent, which is no buffer for that" },
		{ "", "next 1 (b0) -> (b2+4)", "which is no buffer for that" },
		{ "", "next 1 (b2+4) -> (b3)", "or a part of it" },
		{ "", "next 1 (b3) -> (b3)", "goes on in b3, which has no two halves" },
		{ "", "next 1 by 0 (b3) -> (b2)", "which has no two halves" },
	};
	for (size_t i = 0; i < NELEM(t); i++) {
		struct str s = {0};
		str_addf(&s, "prog \"t\" devices 2 registers 1 zone 64 far 192 flops 0 fingerprint 00 comm 00\narg 0 f32[16] bytes 64\nres 0 f32[16] bytes 64\nbuf 0 arg 0 size 64\n"
		             "buf 1 out 0 size 64\nbuf 2 lent 1 at 64 size 128\nbuf 3 lent 1 at 192 size 64\ntable 0 [1,0]\ntable 1 [1,0]\n"
		             "coll 0 permute f32 n 1 algo auto pairs 0 redop add outer 1 inner 64\ncoll 1 permute f32 n 1 algo auto pairs 0 redop add outer 1 inner 64 hops 1\n"
		             "%srun { %s }", t[i].rows, t[i].run);
		parses(&s, t[i].rows, t[i].run, t[i].wrong);
	}
}

/* What cannot follow a sum. */
static void bad_followers(void **state)
{
#define SUM "coll 0 all_reduce (b0) -> (b2) "
#define LONG "kern 12 gen (f32[48]) -> (f32[48]) code 0 tiles 1 of 48\ncoll 4 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 192\n"
	static const struct { const char *rows, *run, *wrong; } t[] = {
		{ "", SUM "then 0 gen (b2) -> (b1)", NULL },
		{ "", SUM "then all 0 gen (b2) -> (b1)", NULL },
		{ "", SUM "then all 2 gen (b2, b4) -> (b1)", NULL },
		{ "", SUM "then 11 gen (b2) -> (b1)", NULL },
		{ "", "coll 2 reduce_scatter (b3) -> (b2) then 6 gen (b2) -> (b3)", NULL },
		{ "", "coll 2 reduce_scatter (b3) -> (b2) then all 2 gen (b2, b0) -> (b1)", NULL },
		{ "", "then 0 gen (b2) -> (b1)", "command 0 of block 0 cannot follow part by part: nothing is before it" },
		{ "", SUM "loop r1 < 2 { then 0 gen (b2) -> (b1) }", "nothing is before it" },
		{ "", SUM "kern 1 copy (b2) -> (b3) then 0 gen (b2) -> (b1)", "no collective of its lane" },
		{ "", "coll 0 all_reduce (b0) -> (b2) lane 1 then 0 gen (b2) -> (b1)", "no collective of its lane" },
		{ "", "coll 1 all_gather (b0) -> (b2) then 0 gen (b2) -> (b1)", "no all_reduce or reduce_scatter" },
		{ "", "coll 3 all_reduce (b0, b0) -> (b2, b3) then 0 gen (b2) -> (b1)", "of one array" },
		{ "", SUM "then 1 copy (b2) -> (b1)", "its tiles are not parts of arrays" },
		{ "", SUM "then 3 gen (b2) -> (b1)", "its tiles are not parts of arrays" },
		{ "", SUM "then 0 gen (b3) -> (b1)", "it does not read the sum" },
		{ "", SUM "then 2 gen (b2, b2+64) -> (b1)", "the storage of the sum in another way" },
		{ "", SUM "then 4 gen (b2) -> (b1)", "in another type or order" },
		{ "", SUM "then 5 gen (b2) -> (b1)", "in another type or order" },
		{ "", SUM "then 7 gen (b2) -> (b1)", "in another type or order" },
		{ "", SUM "then 8 gen (b2) -> (b3)", "the sum is not its largest array" },
		{ "", SUM "then 6 gen (b2) -> (b3)", "several times the same" },
		{ "", SUM "then all 2 gen (b2, b0) -> (b1)", "more than the sum and constants" },
		{ "", SUM "then all 9 gen (b2) -> (b1, b3)", "not like the sum" },
		{ "", SUM "then all 10 gen (b2) -> (b1)", "not like the sum" },
		{ "", SUM "then all 11 gen (b2) -> (b1)", "end within a line" },
		{ LONG, "coll 4 all_reduce (b3) -> (b2) then 12 gen (b2) -> (b3)", NULL },
		{ LONG, "coll 4 all_reduce (b3) -> (b2) then all 12 gen (b2) -> (b3)", "not like the sum" },      /* a unit is no whole number of its parts */
		{ "kern 12 gen (f32[16]) -> (f32[16]) code 0 tiles 1 of 16 times 0\n", "", "kernel 12 has tiles of 16 elements, 0 times" },
		{ "kern 12 gen (f32[16]) -> (f32[16]) code 0 tiles 1 times 2\n", "", "kernel 12 has tiles of 0 elements, 2 times" },
	};
#undef LONG
#undef SUM
	for (size_t i = 0; i < NELEM(t); i++) {
		struct str s = {0};
		str_addf(&s, "prog \"t\" devices 2 registers 2 zone 512 flops 0 fingerprint 00 comm 00\narg 0 f32[16] bytes 64\nres 0 f32[16] bytes 64\nbuf 0 arg 0 size 64\n"
		             "buf 1 out 0 size 64\nbuf 2 temp at 0 size 256\nbuf 3 temp at 256 size 256\nbuf 4 const at 0 size 64\ndata 64\n"
		             "  0000000000000000000000000000000000000000000000000000000000000000\n  0000000000000000000000000000000000000000000000000000000000000000\n"
		             "group 0 1 2 [0,1]\ncode 0 \"f\" key 00\n"
		             "kern 0 gen (f32[16]) -> (f32[16]) code 0 tiles 1 of 16\nkern 1 copy (f32[16]) -> (f32[16])\nkern 2 gen (f32[16], f32[16]) -> (f32[16]) code 0 tiles 1 of 16\n"
		             "kern 3 gen (f32[16]) -> (f32[16]) code 0 tiles 1\nkern 4 gen (i32[16]) -> (f32[16]) code 0 tiles 1 of 16\nkern 5 gen (f32[8]) -> (f32[16]) code 0 tiles 1 of 16\n"
		             "kern 6 gen (f32[16]) -> (f32[32]) code 0 tiles 2 of 16 times 2\nkern 7 gen (f32[16]:[-1]@15) -> (f32[16]) code 0 tiles 1 of 16\n"
		             "kern 8 gen (f32[16]) -> (f32[64]) code 0 tiles 4 of 16\nkern 9 gen (f32[16]) -> (f32[16], f32[16]) code 0 tiles 1 of 16\n"
		             "kern 10 gen (f32[16]) -> (bf16[16]) code 0 tiles 1 of 16\nkern 11 gen (f32[16]) -> (f32[16]) code 0 tiles 2 of 8\n"
		             "coll 0 all_reduce f32 n 1 algo auto group 0 redop add outer 1 inner 64\ncoll 1 all_gather f32 n 1 algo auto group 0 redop add outer 1 inner 64\n"
		             "coll 2 reduce_scatter f32 n 1 algo auto group 0 redop add outer 1 inner 64\ncoll 3 all_reduce f32 n 2 algo auto group 0 redop add outer 1 inner 64\n"
		             "%srun { %s }", t[i].rows, t[i].run);
		parses(&s, t[i].rows, t[i].run, t[i].wrong);
	}
}

static void views(void **state)
{
	struct arena a;
	arena_init(&a);
	struct prog_view v;
	prog_view_make(&a, &v, DT_f32, 3, (int64_t[]){2, 3, 4});
	assert_true(prog_view_dense(&v));
	assert_int_equal(prog_view_bytes(&v), 96);
	v.stride[0] = -24;
	assert_false(prog_view_dense(&v));
	assert_int_equal(prog_view_bytes(&v), 4 * (24 + 8 + 3 + 1));
	v.dim[1] = 0;
	assert_int_equal(prog_view_bytes(&v), 0);
	assert_true(prog_view_dense(&v));
	arena_fini(&a);
}

int main(void)
{
	struct err *e = str_read_file(&sample, "tests/golden/prog/everything.prog");
	if (e) {
		fprintf(stderr, "%s\n", e->msg);
		return 1;
	}
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(text_comes_back), cmocka_unit_test(bytes_come_back), cmocka_unit_test(damage_is_an_error),
		cmocka_unit_test(bad_text_is_an_error), cmocka_unit_test(bad_loans), cmocka_unit_test(bad_followers), cmocka_unit_test(views),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	str_free(&sample);
	return failed;
}
