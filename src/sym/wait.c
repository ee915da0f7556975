/* Sleeping until a word changes. */
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sym.h"

void sym_sleep(_Atomic uint32_t *word, uint32_t seen, int64_t ns)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };

	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, ns < 0 ? NULL : &t, NULL, 0);
}

void sym_wake(_Atomic uint32_t *word, int n)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

int sym_spins(int threads) { return threads <= cpu_get()->cores ? 2000 : 20; }
