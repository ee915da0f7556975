/* The text of an error is UTF-8 whatever was put into it, and does nothing to a terminal. */
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/base.h"

static void table(void **state)
{
	static const struct { const char *in, *out; } c[] = {
		{ "a line\n\tand \"another\"", NULL }, { "m\xc3\xbcller \xe2\x82\xac \xf0\x9f\x98\x80", NULL }, { "", NULL },
		{ "sharding_c\xcenstraint", "sharding_c?nstraint" }, { "\x1b[2Jgone\x7f\r\x01", "?[2Jgone???" }, { "cut \xe2\x82", "cut ??" },
		{ "\xc0\xaf \xe0\x80\xaf \xed\xa0\x80 \xf4\x90\x80\x80 \xff", "?? ??? ??? ???? ?" },
	};
	for (size_t i = 0; i < NELEM(c); i++) {
		const char *want = c[i].out ? c[i].out : c[i].in;
		struct err *e = ERR(INVALID, "%s", c[i].in);
		assert_string_equal(e->msg, want);
		e = err_wrap(e, "in '%s'", c[i].in);
		assert_int_equal(strlen(e->msg), strlen("in '': ") + 2 * strlen(want));
		assert_string_equal(e->msg + strlen(e->msg) - strlen(want), want);
		assert_memory_equal(e->msg + 4, want, strlen(want));
		err_free(e);
	}
}

static void any(void **state)
{
	unsigned seed = (unsigned)getpid();
	assert_non_null(setlocale(LC_CTYPE, "C.UTF-8"));        /* part of every glibc that this builds with */
	print_message("seed %u\n", seed);
	for (int i = 0; i < 20000; i++) {
		char in[24];
		int n = rand_r(&seed) % (int)sizeof in;
		for (int k = 0; k < n; k++)
			in[k] = (char)(rand_r(&seed) % 3 ? 0x80 + rand_r(&seed) % 128 : 1 + rand_r(&seed) % 127);
		in[n] = 0;
		struct err *e = ERR(INVALID, "%s", in);
		assert_int_equal(strlen(e->msg), n);
		assert_true(mbstowcs(NULL, e->msg, 0) != (size_t)-1);
		for (int k = 0; k < n; k++)
			assert_true(e->msg[k] == in[k] || e->msg[k] == '?');
		err_free(e);
	}
}

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(table), cmocka_unit_test(any) };
	return cmocka_run_group_tests(t, NULL, NULL);
}
