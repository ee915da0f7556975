/* How many random cases a test draws. */
#ifndef DRAWS_H
#define DRAWS_H

#include <stdlib.h>

/* Of n, which is what CI draws: DRAWS percent, rounded up, if that is set (make check does). */
static inline int draws(int n)
{
	const char *percent = getenv("DRAWS");
	return percent ? (n * atoi(percent) + 99) / 100 : n;
}

#endif
