/* Settings with values that are of no use: each gives one line that names the setting, the value and what is accepted, and the
 * default stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/base.h"
#include "leave.h"

static const struct { const char *name, *kind, *dflt, *accepted; } row[] = {
#define CONF(id, kind, dflt, accepted, help) { #id, #kind, dflt, accepted },
#include "base/conf.def"
};

/* What a process that begins with this setting writes to its standard error; it ends with 1 if the default does not hold. */
static int begin(size_t i, const char *value, char *out, size_t n)
{
	char name[64];
	int fd[2], st;
	size_t got = 0;
	ssize_t k;

	snprintf(name, sizeof name, "RONDO_%s", row[i].name);
	assert_int_equal(pipe(fd), 0);
	fflush(NULL);
	pid_t p = fork();
	if (!p) {
		dup2(fd[1], 2);
		setenv(name, value, 1);
		leave(strcmp(conf_str((enum conf_id)i), row[i].dflt) ? 1 : 0);
	}
	close(fd[1]);
	while (got < n - 1 && (k = read(fd[0], out + got, n - 1 - got)) > 0)
		got += (size_t)k;
	out[got] = '\0';
	close(fd[0]);
	assert_int_equal(waitpid(p, &st, 0), p);
	assert_true(WIFEXITED(st));
	return WEXITSTATUS(st);
}

static void refused(void **state)
{
	static const char *const bad[] = { "abc", "-1", "99999999999999999999999", "2 ", " ", "0x", "\xff" };
	static const char *const small[] = { "8", "1", "0.5", "1023K", "0.5M", "1048575" };
	static const char *const nowhere[] = { "tcp://host", "tcp://host:", "tcp://:12", "tcp://host:0", "tcp://host:65536", "tcp://host:1x", "http://host:12" };
	char out[4096], want[128], much[10001] = "";

	for (size_t i = 0; i < NELEM(row); i++) {
		if (!strcmp(row[i].kind, "STR") && !*row[i].accepted)
			continue;
		for (size_t k = 0; k < NELEM(bad); k++) {
			int st = begin(i, bad[k], out, sizeof out);
			snprintf(want, sizeof want, "rondo: setting 'RONDO_%s' cannot be '%s', which is ignored: %s", row[i].name, bad[k], row[i].accepted);
			if (st || strncmp(out, want, strlen(want)) || strchr(out, '\n') != out + strlen(out) - 1)
				fail_msg("RONDO_%s='%s' gives %d and '%s'", row[i].name, bad[k], st, out);
		}
		memset(much, 'q', sizeof much - 1);      /* one line, of which what is accepted is a part, whatever there is */
		much[0] = '\n';
		assert_int_equal(begin(i, much, out, sizeof out), 0);
		snprintf(want, sizeof want, "..', which is ignored: %s", row[i].accepted);
		assert_non_null(strstr(out, want));
		assert_ptr_equal(strchr(out, '\n'), out + strlen(out) - 1);
		if (!strcmp(row[i].kind, "SIZE"))       /* a letter was forgotten */
			for (size_t k = 0; k < NELEM(small); k++) {
				snprintf(want, sizeof want, "rondo: setting 'RONDO_%s' cannot be '%s', which is ignored: %s; ", row[i].name, small[k], row[i].accepted);
				assert_int_equal(begin(i, small[k], out, sizeof out), 0);
				assert_true(!strncmp(out, want, strlen(want)));
			}
		for (size_t k = 0; k < NELEM(nowhere) && !strcmp(row[i].kind, "PLACE"); k++) {
			snprintf(want, sizeof want, "rondo: setting 'RONDO_%s' cannot be '%s', which is ignored: %s; ", row[i].name, nowhere[k], row[i].accepted);
			assert_int_equal(begin(i, nowhere[k], out, sizeof out), 0);
			assert_true(!strncmp(out, want, strlen(want)));
		}
		assert_int_equal(begin(i, "", out, sizeof out), 0);
		assert_string_equal(out, "");
	}
}

static void taken(void **state)
{
	static const struct { enum conf_id id; const char *text; } good[] = { { CONF_DEVICES, "8" }, { CONF_MEMORY, "1.5G" }, { CONF_MEMORY, "512MB" }, { CONF_MEMORY, "1M" }, { CONF_CACHE_SIZE, "0" },
		{ CONF_TIER, "ref" }, { CONF_CHECK, "yes" }, { CONF_LOG, "3" }, { CONF_CACHE, "/nowhere" }, { CONF_EXCESS_PRECISION, "off" },
		{ CONF_RENDEZVOUS, "tcp://host:1" }, { CONF_RENDEZVOUS, "tcp://[::1]:65535/" }, { CONF_RENDEZVOUS, "./here" } };
	char out[4096];

	for (size_t i = 0; i < NELEM(good); i++) {
		assert_int_equal(begin((size_t)good[i].id, good[i].text, out, sizeof out), 1);
		assert_string_equal(out, "");
	}
}

int main(void)
{
	const struct CMUnitTest t[] = { cmocka_unit_test(refused), cmocka_unit_test(taken) };

	return cmocka_run_group_tests(t, NULL, NULL);
}
