/* Which instruction set runs: what this machine has, and RONDO_ISA allows. */
#include "impl.h"

const struct kern_isa *kern_isa_get(void)
{
#if defined(__x86_64__)
	const struct cpu_info *c = cpu_get();
	return c->avx512 ? &kern_isa_v4 : c->avx2 ? &kern_isa_v3 : &kern_isa_base;
#else
	return &kern_isa_base;
#endif
}

const char *kern_isa(void)
{
	const struct cpu_info *c = cpu_get();
	return c->amx_bf16 && c->avx512_bf16 ? "amx" : c->avx512_bf16 ? "avx512_bf16" : kern_isa_get()->name;
}
