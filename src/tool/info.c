/* rondo info: this machine, this build, these settings. */
#include "tool.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../gen/gen.h"
#include "../kern/kern.h"
#include "../plan/plan.h"

static const char *only_table;

static const struct opt opts[] = {
	{"table", NULL, "nothing but the machine table, as RONDO_TABLE takes it from a file", &only_table},
};

static void bytes(const char *what, int64_t n)
{
	struct str s = {0};
	pass_add_bytes(&s, (double)n);
	printf("  %-14s %s\n", what, s.p);
	str_free(&s);
}

static void limit(const char *what, int which)
{
	struct rlimit r;
	if (getrlimit((__rlimit_resource_t)which, &r) != 0)
		return;
	if (r.rlim_cur == RLIM_INFINITY)
		printf("  %-14s none\n", what);
	else
		bytes(what, (int64_t)r.rlim_cur);
}

/* Which machine table is in use, and its rates. */
static struct err *table(void)
{
	struct plan_table *t = mem_alloc(sizeof *t);
	struct str s = {0};
	struct err *e = only_table ? plan_table_get(t) : NULL;
	if (!only_table)
		plan_table_use(t);
	if (!e && only_table) {
		plan_table_print(&s, t);
		fputs(s.p, stdout);
	} else if (!e) {
		plan_table_where(&s, t);
		printf("machine table    %s\n", s.p);
		s.n = 0;
		plan_machine(&s);
		printf("  %-14s %s\n", "this machine", s.p);
		for (int i = 0; i < PLAN_WAYS; i++)
			printf("  %-14s %.4g ns, %.4g an op, %.4g an element's operation, %.4g an addition, %.4g a byte: %s\n", plan_way_name[i], t->way[i][0], t->way[i][1], t->way[i][2],
			       t->way[i][3], t->way[i][4], plan_way_meaning[i]);
		for (int i = 0; i < PLAN_RATES; i++)
			printf("  %-14s %.4g ns: %s\n", plan_rate_name[i], t->rate[i], plan_rate_meaning[i]);
		for (int i = 0; i < COLL_TOPOS; i++)
			if (t->members[i])
				printf("  collectives among %d devices (%s) were measured\n", t->members[i], prog_topo_name[i]);
	}
	str_free(&s);
	free(t);
	return e;
}

static struct err *run(char **file, int nfile, int *status)
{
	if (only_table)
		return table();
	const struct cpu_info *c = cpu_get();
	char isa[128] = "";
	const struct { bool on; const char *name; } have[] = {{c->avx2, "avx2"}, {c->avx512, "avx512"}, {c->avx512_bf16, "avx512_bf16"},
	                                                     {c->avx512_fp16, "avx512_fp16"}, {c->amx_bf16, "amx_bf16"}, {c->amx_int8, "amx_int8"}};
	for (size_t i = 0; i < NELEM(have); i++)
		if (have[i].on)
			snprintf(isa + strlen(isa), sizeof isa - strlen(isa), "%s%s", isa[0] ? " " : "", have[i].name);
	printf("machine\n  %-14s %s\n  %-14s %d usable (%s)\n  %-14s %s\n  %-14s %s\n", "processor", c->name, "cores", c->cores, conf_int(CONF_CORES) ? "as RONDO_CORES says" : "affinity mask and cgroup quota",
	       "instructions", isa[0] ? isa : "base only", "kernels use", kern_isa());
	printf("  %-14s %zu KiB\n  %-14s %zu KiB\n  %-14s %zu KiB\n", "L1 data", c->l1 >> 10, "L2", c->l2 >> 10, "L3", c->l3 >> 10);
	bytes("memory", c->ram);
	printf("limits\n");
	limit("locked memory", RLIMIT_MEMLOCK);
	limit("address space", RLIMIT_AS);
	struct err *e = gen_load();
	printf("code generator   %s\n", e ? e->msg : "LLVM 19");
	err_free(e);
	printf("settings (RONDO_...)\n");
	static const struct { enum conf_id id; const char *name, *kind, *dflt; } row[] = {
#define CONF(id, kind, dflt, accepted, help) {CONF_##id, #id, #kind, dflt},
#include "../base/conf.def"
	};
	for (size_t i = 0; i < NELEM(row); i++) {
		bool text = strcmp(row[i].kind, "STR") == 0;
		if (text)
			printf("  %-16s \"%s\"", row[i].name, conf_str(row[i].id));
		else
			printf("  %-16s %ld", row[i].name, (long)conf_int(row[i].id));
		printf("%s\n", conf_is_set(row[i].id) ? "   (set)" : "");
	}
	return table();
}

const struct command cmd_info = {"info", "[options]", "this machine, its machine table, libraries, settings", opts, NELEM(opts), 0, 0, run};
