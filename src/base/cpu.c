#include "base.h"

#include <cpuid.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>
#include <xmmintrin.h>

static struct cpu_info info;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t xgetbv0(void)
{
	uint32_t a, d;
	__asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
	return (uint64_t)d << 32 | a;
}

static void kind(void)
{
	unsigned a, b, c, d;
	info.amd = __get_cpuid(0, &a, &b, &c, &d) && b == 0x68747541;
	info.zen5 = info.amd && __get_cpuid(1, &a, &b, &c, &d) && (a >> 8 & 15) + (a >> 20 & 255) >= 0x1a;
}

static void features(void)
{
	unsigned a, b, c, d;
	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1u << 27))
		return;
	bool fma = c >> 12 & 1;
	uint64_t xcr = xgetbv0();
	bool ymm = (xcr & 6) == 6, zmm = (xcr & 0xe6) == 0xe6, tile = (xcr & 0x60000) == 0x60000;
	if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
		return;
	unsigned last = a;
	info.avx2 = ymm && fma && b >> 5 & 1;
	info.avx512 = zmm && info.avx2 && (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1);
	info.avx512_vbmi = info.avx512 && c >> 1 & 1;
	info.avx512_fp16 = info.avx512 && d >> 23 & 1;
	bool amx = tile && info.avx512 && d >> 24 & 1;
	info.amx_bf16 = amx && d >> 22 & 1;
	info.amx_int8 = amx && d >> 25 & 1;
	if (last >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
		info.avx512_bf16 = info.avx512 && a >> 5 & 1;
}

/* RONDO_ISA lowers what the CPU says. */
static void lower(void)
{
	enum { ANY, BASE, AVX2, AVX512, AVX512_BF16, AMX };        /* as conf.def says */
	int64_t most = conf_int(CONF_ISA);
	if (most == ANY)
		return;
	if (most < AMX) info.amx_bf16 = info.amx_int8 = false;
	if (most < AVX512_BF16) info.avx512_bf16 = info.avx512_vbmi = info.avx512_fp16 = false;
	if (most < AVX512) info.avx512 = false;
	if (most < AVX2) info.avx2 = false;
}

/* The first numbers of a file, -1 for what is none ("max"); how many there are. */
static int read_nums(const char *path, int64_t v[2])
{
	FILE *f = fopen(path, "r");
	char word[2][32];
	int n = f ? fscanf(f, "%31s %31s", word[0], word[1]) : 0;

	for (int i = 0; i < n; i++)
		v[i] = word[i][0] >= '0' && word[i][0] <= '9' ? strtoll(word[i], NULL, 10) : -1;
	if (f)
		fclose(f);
	return MAX(n, 0);
}

static void quota(int64_t us, int64_t period, int *cores)
{
	if (us > 0 && period > 0)
		*cores = MIN(*cores, (int)MAX(1, (us + period - 1) / period));
}

/* What the control groups from the process' own up to the root of what it sees allow.  root: where the hierarchy is
 * mounted; path: of the group in it; v1: the older kind, a hierarchy for each controller. */
static void group_limits(const char *root, const char *path, bool v1, int *cores, int64_t *ram)
{
	char dir[4200], file[4300];
	int64_t v[2], period[2];

	snprintf(dir, sizeof dir, "%s%s", root, strcmp(path, "/") ? path : "");
	for (;;) {
		snprintf(file, sizeof file, "%s/%s", dir, v1 ? "memory.limit_in_bytes" : "memory.max");
		if (read_nums(file, v) >= 1 && v[0] > 0)
			*ram = MIN(*ram, v[0]);
		snprintf(file, sizeof file, "%s/%s", dir, v1 ? "cpu.cfs_quota_us" : "cpu.max");
		int n = read_nums(file, v);
		if (!v1 && n == 2)
			quota(v[0], v[1], cores);
		snprintf(file, sizeof file, "%s/cpu.cfs_period_us", dir);
		if (v1 && n >= 1 && read_nums(file, period) >= 1)
			quota(v[0], period[0], cores);
		char *slash = strrchr(dir, '/');
		if (strlen(dir) <= strlen(root) || !slash)
			return;
		*slash = '\0';
	}
}

static void cgroups(int *cores, int64_t *ram)
{
	FILE *f = fopen("/proc/self/cgroup", "r");
	char line[4200], root[64];

	while (f && fgets(line, sizeof line, f)) {
		char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
		if (!path)
			continue;
		*path++ = '\0';
		path[strcspn(path, "\n")] = '\0';
		names++;
		if (!*names)
			group_limits("/sys/fs/cgroup", path, false, cores, ram);
		for (char *rest = names, *name; *names && (name = strsep(&rest, ","));)
			if (!strcmp(name, "memory") || !strcmp(name, "cpu")) {
				snprintf(root, sizeof root, "/sys/fs/cgroup/%s", name);
				group_limits(root, path, true, cores, ram);
			}
	}
	if (f)
		fclose(f);
}

/* The first word of dir/indexN/name. */
static bool cache_says(const char *dir, int n, const char *name, char out[32])
{
	char path[300];

	snprintf(path, sizeof path, "%s/index%d/%s", dir, n, name);
	FILE *f = fopen(path, "r");
	bool ok = f && fscanf(f, "%31s", out) == 1;
	if (f)
		fclose(f);
	return ok;
}

void cpu_caches(const char *dir, size_t size[3])
{
	char level[32], type[32], text[32], unit;
	unsigned long long n;

	memset(size, 0, 3 * sizeof *size);
	for (int i = 0; cache_says(dir, i, "level", level); i++) {
		int l = atoi(level);
		if (l < 1 || l > 3 || !cache_says(dir, i, "type", type) || !strcmp(type, "Instruction") || !cache_says(dir, i, "size", text))
			continue;
		int got = sscanf(text, "%llu%c", &n, &unit);
		if (got >= 1)
			size[l - 1] = (size_t)n << (got < 2 ? 0 : unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0);
	}
}

static void model(char *out, size_t n)
{
	unsigned r[4] = { 0 }, a = 0, b, c, d;
	char vendor[13] = "";

	if (__get_cpuid(0, &r[3], &r[0], &r[2], &r[1]))
		memcpy(vendor, r, 12);
	__get_cpuid(1, &a, &b, &c, &d);
	unsigned family = a >> 8 & 15, kind = a >> 4 & 15;
	if (family == 15 || family == 6)
		kind |= a >> 12 & 0xf0;
	if (family == 15)
		family += a >> 20 & 255;
	snprintf(out, n, "%s %u.%u.%u", vendor, family, kind, a & 15);
}

static void machine(void)
{
	info = (struct cpu_info){0};
	kind();
	features();
	lower();
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
	info.ram = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
	cgroups(&n, &info.ram);
	if (conf_int(CONF_CORES) > 0)
		n = (int)MIN(conf_int(CONF_CORES), 1024);
	info.cores = MAX(1, n);
	/* sysconf asks the processor, which under a hypervisor may speak of the whole host's. */
	size_t cache[3];
	long l1 = sysconf(_SC_LEVEL1_DCACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE), l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
	cpu_caches("/sys/devices/system/cpu/cpu0/cache", cache);
	info.l1 = cache[0] ? cache[0] : l1 > 0 ? (size_t)l1 : 32 << 10;
	info.l2 = cache[1] ? cache[1] : l2 > 0 ? (size_t)l2 : 1 << 20;
	info.l3 = cache[2] ? cache[2] : l3 > 0 ? (size_t)l3 : 8 << 20;
	model(info.model, sizeof info.model);
	unsigned r[12] = {0};
	for (unsigned i = 0; i < 3; i++)
		__get_cpuid(0x80000002u + i, &r[i * 4], &r[i * 4 + 1], &r[i * 4 + 2], &r[i * 4 + 3]);
	memcpy(info.name, r, 48);
}

const struct cpu_info *cpu_get(void)
{
	pthread_once(&once, machine);
	return &info;
}

bool cpu_lower(const struct cpu_info *other)
{
#define OF(set) offsetof(struct cpu_info, set)
	static const size_t set[] = { OF(avx2), OF(avx512), OF(avx512_bf16), OF(avx512_vbmi), OF(avx512_fp16), OF(amx_bf16), OF(amx_int8) };
#undef OF
	bool same = true;
	cpu_get();
	for (size_t i = 0; i < NELEM(set); i++) {
		bool *own = (bool *)((char *)&info + set[i]), its = *(const bool *)((const char *)other + set[i]);
		same &= its || !*own;
		*own &= its;
	}
	info.amd &= other->amd;
	info.zen5 &= other->zen5;
	info.l1 = MIN(info.l1, other->l1);
	info.l2 = MIN(info.l2, other->l2);
	info.l3 = MIN(info.l3, other->l3);
	return same;
}

unsigned cpu_set_ftz(void)
{
	unsigned old = _mm_getcsr();
	if ((old & 0x8040) != 0x8040)
		_mm_setcsr(old | 0x8040);
	return old;
}

void cpu_restore_fp(unsigned mxcsr)
{
	if (_mm_getcsr() != mxcsr)
		_mm_setcsr(mxcsr);
}
