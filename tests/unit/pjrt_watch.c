/* What takes long is said on a terminal, and nowhere else; what is short is not. */
#define _XOPEN_SOURCE 700
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "pjrt/impl.h"

#define END "."        /* after the last of what is said */

static char said[4096];

/* What standard error, as the other end of to, says while something takes so long. */
static void watched(int from, int to, int after, watch_look *look, unsigned ms)
{
	struct watch w;
	int old = dup(2);
	ssize_t n;

	assert_true(dup2(to, 2) == 2);
	watch_open(&w, after, look, NULL);
	watch_say(&w, "compiling 'jit_step'");
	usleep(ms * 1000);
	watch_close(&w);
	dup2(old, 2);
	close(old);
	assert_true(write(to, END, 1) == 1);        // a terminal hands on later what was written to it
	for (size_t at = 0;; at += (size_t)n) {
		n = read(from, said + at, sizeof said - 1 - at);
		assert_true(n > 0);
		if (said[at + (size_t)n - 1] == END[0]) {
			said[at + (size_t)n - 1] = 0;
			return;
		}
	}
}

static bool now_and_then(void *user, char *text, size_t n)
{
	static int times;

	snprintf(text, n, "waiting for %d", ++times);
	return times == 2;
}

static void terminal(void **state)
{
	int from = posix_openpt(O_RDWR | O_NOCTTY);
	if (from < 0 || grantpt(from) || unlockpt(from))
		skip();
	int to = open(ptsname(from), O_RDWR | O_NOCTTY);
	assert_true(to >= 0);
	watched(from, to, 5, NULL, 100);
	assert_string_equal(said, "");
	watched(from, to, 5, NULL, 6300);
	assert_non_null(strstr(said, "rondo: compiling 'jit_step', 5 s"));
	assert_non_null(strstr(said, "6 s"));
	assert_string_equal(said + strlen(said) - 4, "\r\033[K");
	watched(from, to, 1, now_and_then, 3300);
	assert_string_equal(said, "\r\033[Krondo: waiting for 2, 2 s \r\033[K");
	close(to);
	close(from);
}

static void file(void **state)
{
	int p[2];
	assert_int_equal(pipe(p), 0);
	watched(p[0], p[1], 1, NULL, 1300);
	assert_string_equal(said, "");
	close(p[0]);
	close(p[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(terminal), cmocka_unit_test(file) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
