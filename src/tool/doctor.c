/* rondo doctor: what was found here, whether it works, and what to do about what does not. */
#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../gen/gen.h"
#include "../kern/kern.h"
#include "../plan/plan.h"

static const char *no_jax;

static const struct opt opts[] = {
	{"no-jax", NULL, "look at the machine alone, not at Python and JAX", &no_jax},
};

enum { GB = 1000000000 };

static int complaints;

/* One thing that was found; python/rondo/doctor.py writes such lines, too. */
static void PRINTF(3, 4) found(bool good, const char *what, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	printf("  %-5s  %-14s ", good ? "ok" : "BAD", what);
	vprintf(fmt, ap);
	printf("\n");
	va_end(ap);
	complaints += !good;
	fflush(stdout);
}

static void advise(const char *what) { printf("         %-14s -> %s\n", "", what); }

static void machine(void)
{
	const struct cpu_info *c = cpu_get();
	long online = sysconf(_SC_NPROCESSORS_ONLN);
	bool there = c->cores <= online;
	found(c->avx2 && there, "processor", "%s, %d of %ld cores usable, kernels use %s", c->name, c->cores, online, kern_isa());
	if (!there)
		advise("RONDO_CORES says more than there are: threads would wait for each other's time; leave it 0");
	if (!c->avx2 && conf_is_set(CONF_ISA))
		advise("RONDO_ISA lets nothing run but plain C code, which is slow: leave it unset");
	else if (!c->avx2)
		advise("without AVX2 everything runs in plain C code, which is slow: use a processor from 2013 or later, or a virtual machine that shows what it has");
	found(true, "caches", "%zu KiB first, %zu KiB second, %.1f MiB last", c->l1 >> 10, c->l2 >> 10, (double)c->l3 / (1 << 20));
	bool enough = c->ram >= GB;
	found(enough, "memory", "%.1f GB that this process may use", (double)c->ram / GB);
	if (!enough)
		advise("give the container or the job at least 1 GB (docker run --memory, Slurm --mem)");
	struct statvfs v;
	if (statvfs("/dev/shm", &v) == 0)
		found(true, "/dev/shm", "%.1f GB free; only UCX uses it, devices share memory without", (double)v.f_bavail * (double)v.f_frsize / GB);
	else
		found(true, "/dev/shm", "not there; only UCX would use it, devices share memory without");
	struct rlimit r;
	if (getrlimit(RLIMIT_AS, &r) == 0 && r.rlim_cur != RLIM_INFINITY) {
		bool wide = r.rlim_cur >= (rlim_t)16 * GB;
		found(wide, "address space", "limited to %.1f GB", (double)r.rlim_cur / GB);
		if (!wide)
			advise("ulimit -v unlimited: heaps of devices take address space long before they take memory");
	}
}

static void settings(void)
{
	const char *bad = conf_complaints();
	if (!*bad)
		found(true, "settings", "RONDO_..: none is unknown or out of its range");
	for (const char *end; *bad; bad = end + 1) {
		end = strchr(bad, '\n');
		found(false, "settings", "%.*s", (int)(end - bad), bad);
		advise("'rondo help settings' lists them all");
	}
}

/* Can what a setting names be written?  It is tried, and nothing is left of that.  NULL: yes. */
static const char *unwritable(const char *path, bool folder)
{
	struct str s = {0};
	struct stat st;
	bool there = !stat(path, &st), dir = there && S_ISDIR(st.st_mode);

	if (folder && !there)
		return mkdir(path, 0777) || rmdir(path) ? strerror(errno) : NULL;
	if (folder && !dir)
		return strerror(ENOTDIR);
	str_add(&s, path);
	if (dir)
		str_addf(&s, "/rondo-doctor-%d", (int)getpid());
	int fd = open(s.p, O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666);
	bool made = dir || !there;       /* into what is there nothing is written */
	const char *why = fd < 0 || (made && write(fd, s.p, s.n) < 0) ? strerror(errno) : NULL;
	if (fd >= 0)
		close(fd);
	if (fd >= 0 && made)
		unlink(s.p);
	str_free(&s);
	return why;
}

static void cache(void)
{
	struct str s = {0};
	if (!*conf_str(CONF_CACHE)) {
		found(true, "cache", "none is kept, as RONDO_CACHE says");
		return;
	}
	bool made = conf_cache(&s, true);
	if (s.n > 1)
		s.p[--s.n] = '\0';               /* the slash at its end */
	const char *why = made ? unwritable(s.p, true) : s.p ? strerror(errno) : "there is no HOME";
	found(!why, "cache", why ? "'%s' cannot be written, every program is compiled anew: %s" : "%s", s.p ? s.p : conf_str(CONF_CACHE), why);
	if (why)
		advise("set RONDO_CACHE to a folder of yours, on a disk that has room, or empty for none");
	str_free(&s);
}

/* What is written on the way, which the self-test is not to add to. */
static struct err *outputs(void)
{
	static const struct { const char *name; enum conf_id id; bool folder; } out[] = {
		{ "TRACE", CONF_TRACE, false }, { "EXPLAIN", CONF_EXPLAIN, false }, { "DUMP", CONF_DUMP, true },
	};

	for (size_t i = 0; i < NELEM(out); i++) {
		const char *to = conf_str(out[i].id), *why = NULL;
		bool path = out[i].id != CONF_EXPLAIN || strpbrk(to, "/.");
		if (*to && path)
			why = unwritable(to, out[i].folder);
		else if (*to && strcmp(to, "0") && strcmp(to, "1"))
			why = "that is neither 0, nor 1, nor a path, which has a / or a . in it";
		if (*to) {
			char name[20];
			snprintf(name, sizeof name, "RONDO_%s", out[i].name);
			found(!why, name, why ? "'%s' cannot be written: %s" : "%s", to, why);
			if (why)
				advise(out[i].folder ? "name a folder of yours; it is made if what is above it is there" : "name a file that can be made, or a folder that is there");
			TRY(conf_set(out[i].name, ""));
		}
	}
	return NULL;
}

/* Can programs be compiled? */
static bool tables(void)
{
	struct plan_table *t = mem_alloc(sizeof *t);
	struct str s = {0};
	struct err *e = plan_table_get(t);
	if (e) {
		found(false, "machine table", "%s", e->msg);
		advise(strstr(e->msg, "'RONDO_COLL'") ? "unset RONDO_COLL, or name an algorithm that there is" : "unset RONDO_TABLE, or 'rondo bench machine' measures a new one");
	} else {
		plan_table_where(&s, t);
		found(true, "machine table", "%s", s.p);
	}
	bool good = !e;
	err_free(e);
	str_free(&s);
	free(t);
	return good;
}

static void generator(void)
{
	struct err *e = gen_load();
	if (e) {
		found(false, "code generator", "%s", e->msg);
		advise("install the package again, or unset RONDO_GEN_PATH; until then reference kernels run, which are slow");
	} else {
		found(true, "code generator", "LLVM 19 loads");
	}
	err_free(e);
}

/* The tail of the product is generated code; the collective goes over two devices. */
static const char product[] =
	"module @product\n\nfn @main(%1: f32[192,256], %2: f32[256,128]) -> (f32[192,128]) {\n"
	"  %3 = dot %1, %2 lc=[1] rc=[0] components=1 : f32[192,128]\n  %4 = tanh %3 : f32[192,128]\n  %5 = add %4, %3 : f32[192,128]\n  return %5\n}\n";
static const char collective[] =
	"module @collective partitions=2\n\nfn @main(%1: f32[4096]) -> (f32[4096]) {\n"
	"  %2 = all_reduce %1 group=[[0,1]] redop=add : f32[4096]\n  return %2\n}\n";

static void self_test(const char *what, const char *text, enum lower_tier t)
{
	double s;
	struct err *e = run_check(text, t, &s);
	if (e) {
		found(false, "self-test", "%s: %s", what, e->msg);
		advise(e->code != ERR_INTERNAL ? "see what the message names" : "run it again with RONDO_ISA=avx2: if that is right, what is wrong is the kernels for this processor; please report both outputs");
	} else {
		found(true, "self-test", "%s: as the oracle has it, %.0f us", what, s * 1e6);
	}
	err_free(e);
}

/* Python and JAX are for Python to look at; what it writes is taken over. */
static struct err *python(void)
{
	const char *python = getenv("RONDO_PYTHON");
	struct str s = {0};
	str_addf(&s, "'%s' -m rondo.doctor %s 2>&1", python && *python && !strchr(python, '\'') ? python : "python3", RONDO_RELEASE);
	fflush(stdout);
	FILE *f = popen(s.p, "r");
	str_free(&s);
	if (!f)
		return ERR(UNAVAILABLE, "no process can be started");
	char line[1024], last[1024] = "";
	bool all = false;
	while (fgets(line, sizeof line, f)) {
		int n;
		if (sscanf(line, "complaints %d", &n) == 1) {
			complaints += n;
			all = true;
		} else if (line[0] == ' ' && line[1] == ' ') {
			fputs(line, stdout);
		} else {
			line[strcspn(line, "\n")] = '\0';
			snprintf(last, sizeof last, "%s", line);
		}
	}
	pclose(f);
	if (!all) {
		found(false, "Python", "%s could not look at JAX: %s", python && *python ? python : "python3", *last ? last : "it ended");
		advise("in the environment that is meant: pip install rondo (from a checkout: pip install .), and run its own 'rondo doctor'");
	}
	return NULL;
}

static struct err *run(char **file, int nfile, int *status)
{
	printf("rondo %s\n", RONDO_RELEASE);
	machine();
	settings();
	if (!conf_is_set(CONF_LOG))
		TRY(conf_set("LOG", "0"));            /* what a warning would say is said here */
	cache();
	TRY(outputs());
	bool compiles = tables();
	generator();
	if (compiles) {
		self_test("a product and what follows", product, TIER_GEN);
		self_test("a sum over two devices", collective, TIER_AUTO);
	}
	struct err *e = no_jax ? NULL : python();
	if (!e && complaints)
		printf("%d complaint%s\n", complaints, complaints > 1 ? "s" : "");
	else if (!e)
		printf("all is well\n");
	*status = complaints > 0;
	return e;
}

const struct command cmd_doctor = {"doctor", "[options]", "what was found here, whether it works, and what to do about what does not", opts, NELEM(opts), 0, 0, run};
