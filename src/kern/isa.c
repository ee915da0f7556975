/* Which instruction set runs: what this machine has, and RONDO_ISA allows. */
#include "impl.h"

const struct kern_isa *kern_isa_get(void)
{
	static const struct kern_isa *isa;
	const struct kern_isa *i = __atomic_load_n(&isa, __ATOMIC_RELAXED);
	if (i)
		return i;
	i = &kern_isa_base;
#if defined(__x86_64__)
	const struct cpu_info *c = cpu_get();
	const char *top = conf_str(CONF_ISA);
	bool v3 = c->avx2 && __builtin_cpu_supports("fma") && strcmp(top, "base");
	bool v4 = v3 && c->avx512 && strcmp(top, "avx2");
	i = v4 ? &kern_isa_v4 : v3 ? &kern_isa_v3 : i;
#endif
	__atomic_store_n(&isa, i, __ATOMIC_RELAXED);
	return i;
}

const char *kern_isa(void)
{
	const struct cpu_info *c = cpu_get();
	const char *top = conf_str(CONF_ISA), *have = kern_isa_get()->name;
	if (strcmp(have, "avx512") || !c->avx512_bf16 || !strcmp(top, "avx512"))
		return have;
	return c->amx_bf16 && strcmp(top, "avx512_bf16") ? "amx" : "avx512_bf16";
}
