/* Atomics on words of mapped memory. */
#include "impl.h"

#define ON(type) { \
		_Atomic type *x = p; \
		type a = (type)v, seen = (type)cond; \
		switch (op) { \
		case SYM_FETCH: return atomic_load(x); \
		case SYM_SET: case SYM_SWAP: return atomic_exchange(x, a); \
		case SYM_ADD: return atomic_fetch_add(x, a); \
		case SYM_AND: return atomic_fetch_and(x, a); \
		case SYM_OR: return atomic_fetch_or(x, a); \
		case SYM_XOR: return atomic_fetch_xor(x, a); \
		case SYM_CAS: atomic_compare_exchange_strong(x, &seen, a); return seen; \
		} \
	}

uint64_t sym_amo_at(void *p, int bytes, enum sym_amo op, uint64_t v, uint64_t cond)
{
	if (bytes == 4)
		ON(uint32_t)
	else
		ON(uint64_t)
	return 0;
}
