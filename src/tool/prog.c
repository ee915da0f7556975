/* rondo prog: the compiled program: its text, its check, its sizes. */
#include "tool.h"

static const char *tier, *devices, *hosts, *check, *stats, *save, *plain;

static const struct opt opts[] = {
	{"check", NULL, "only check addresses, lifetimes and races", &check},
	{"stats", NULL, "only counts and sizes", &stats},
	{"L", NULL, "leave out where commands come from and what they cost", &plain},
	{"save", "FILE", "write the binary form", &save},
	{"devices", "N", "partitions; the program says by itself", &devices},
	{"hosts", "N", "as many hosts, which have equal parts of the devices one after the other (1)", &hosts},
	{"tier", "T", "ref, gen or auto", &tier},
};

static void size(const char *what, int64_t n)
{
	struct str s = {0};
	pass_add_bytes(&s, (double)n);
	printf("%s%s", what, s.p);
	str_free(&s);
}

static void print_stats(const struct prog *p)
{
	int64_t ncmd = 0, code = 0, args = 0, res = 0;
	int64_t kern[KERN_COUNT] = {0};
	for (uint32_t i = 0; i < p->nblock; i++) {
		ncmd += p->block[i].n;
		for (uint32_t k = 0; k < p->block[i].n; k++)
			if (p->block[i].cmd[k].op == CMD_KERN)
				kern[p->kern[p->block[i].cmd[k].id].id]++;
	}
	for (uint32_t i = 0; i < p->ncode; i++)
		code += (int64_t)p->code[i].nobj;
	for (uint32_t i = 0; i < p->narg; i++)
		args += p->arg[i].bytes;
	for (uint32_t i = 0; i < p->nres; i++)
		res += p->res[i].bytes;
	printf("'%s' for %d device%s\n", p->name, p->ndev, p->ndev > 1 ? "s" : "");
	printf("  commands   %ld in %u blocks, %u registers, %u collectives, %u calls to the host\n", (long)ncmd, p->nblock, p->nreg - 1, p->ncoll, p->ncustom);
	size("  memory     arguments ", args);
	size(", results ", res);
	size(", temporary ", p->zone);
	size(", constants ", p->ndata);
	printf("\n  code       %u groups", p->ncode);
	size(", ", code);
	printf("\n");
	printf("  work       %.3g floating point operations\n", (double)p->flops);
	printf("  kernels   ");
	for (int i = 0; i < KERN_COUNT; i++)
		if (kern[i])
			printf(" %s %ld", prog_kern_name[i], (long)kern[i]);
	printf("\n");
}

static void strip(struct prog *p)
{
	p->nsite = 0;
	p->flops = 0;
	for (uint32_t i = 0; i < p->nkern; i++)
		p->kern[i].flops = p->kern[i].bytes = 0;
	for (uint32_t i = 0; i < p->nblock; i++)
		for (uint32_t k = 0; k < p->block[i].n; k++)
			p->block[i].cmd[k].site = 0;
}

static struct err *run(char **file, int nfile, int *status)
{
	struct prog *p;
	struct pass_opts o;
	struct str s = {0};
	TRY(source_opts(tier, devices, hosts, NULL, &o));
	o.check = false;
	TRY(source_prog(file[0], &o, &p));
	struct err *e = NULL;
	if (save) {
		prog_save(&s, p);
		e = str_write_file(save, s.p, s.n);
		str_free(&s);
	}
	if (!e && !check && !stats) {
		if (plain)
			strip(p);
		prog_print(&s, p);
		fputs(s.p, stdout);
	}
	if (!e && stats)
		print_stats(p);
	if (!e && (check || stats)) {
		double t = clock_s();
		e = prog_check(p);
		t = clock_s() - t;
		if (!e && stats)
			printf("  check      right (%.1f ms)\n", t * 1e3);
		else if (!e)
			printf("right\n");
	}
	str_free(&s);
	prog_free(p);
	return e;
}

const struct command cmd_prog = {"prog", "FILE [options]", "compile; print, check or save the compiled program", opts, NELEM(opts), 1, 1, run};
