/* Giving way: beside processes that keep the cores, waits sleep instead, and yield again when these are gone. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "sym/impl.h"

enum { MOST = 64, SECONDS = 100 };

/* Seconds until yields are (not) answered so; less than 0: never. */
static double until(bool yields)
{
	double t = clock_s();
	while (clock_s() - t < SECONDS)
		if (sym_give_way() == yields)
			return clock_s() - t;
	return -1;
}

static void beside_others(void **state)
{
	int n = MIN(2 * cpu_get()->cores, MOST);
	pid_t hog[MOST], self = getpid();
	(void)state;
	sym_share(cpu_get()->cores, cpu_get()->cores);
	for (int i = 0; i < n; i++)
		if (!(hog[i] = fork())) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			while (getppid() == self)
				for (volatile int k = 0; k < 1000000; k++)
					;
			_exit(0);
		}
	double slept = until(false);
	for (int i = 0; i < n; i++) {
		kill(hog[i], SIGKILL);
		waitpid(hog[i], NULL, 0);
	}
	assert_true(slept >= 0);
	assert_true(until(true) >= 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(beside_others) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
