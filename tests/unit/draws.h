/* How many cases a test draws, or how large they are. */
#ifndef DRAWS_H
#define DRAWS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* Of n, which is what CI draws without sanitizers: DRAWS percent, rounded up, if that is set (make check does). */
static inline int draws(int n)
{
	const char *percent = getenv("DRAWS");
	return percent ? (n * atoi(percent) + 99) / 100 : n;
}

/* Is case i of a list among them?  All processes and threads agree. */
static inline bool drawn(uint64_t i)
{
	return (i * 0x9e3779b97f4a7c15u >> 32) % 100 < (uint64_t)draws(100);
}

#endif
