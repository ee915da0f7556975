#include "target.h"

#define FACTS(...) __VA_ARGS__

#define TARGET(id, runs, facts, code) static bool id##_here(const struct cpu_info *c) { return runs; }
#include "host.def"
#undef TARGET

enum {
#define TARGET(id, runs, facts, code) ROW_##id,
#include "host.def"
#undef TARGET
	ROWS
};

static const struct gen_target row[ROWS] = {
#define TARGET(id, runs, facts, code) { ROW_##id, #id, .here = id##_here, facts },
#include "host.def"
#undef TARGET
};

const struct gen_target *gen_target_row(int i)
{
	return i < ROWS ? &row[i] : NULL;
}

const struct gen_target *gen_target_get(void)
{
	int i = ROWS - 1;
	while (i > 0 && !row[i].here(cpu_get()))
		i--;
	return &row[i];
}
