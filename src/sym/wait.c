/* Sleeping until a word changes. */
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "impl.h"

void sym_nap(_Atomic uint32_t *word, uint32_t seen, int64_t ns, bool shared)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };

	syscall(SYS_futex, word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, seen, ns < 0 ? NULL : &t, NULL, 0);
}

void sym_rouse(_Atomic uint32_t *word, bool shared)
{
	syscall(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void sym_sleep(_Atomic uint32_t *word, uint32_t seen, int64_t ns) { sym_nap(word, seen, ns, false); }

void sym_wake(_Atomic uint32_t *word, int n)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

int sym_spins(int threads) { return threads <= cpu_get()->cores ? 2000 : 20; }
