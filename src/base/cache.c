/* The folder of compiled programs and generated code: its entries, and its bound. */
#include "base.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
	LOOKS = 32,              /* the folder is looked through when the process has written this part of the bound, and at its first entry */
	USED_S = 3600,           /* an entry that is read has been used: noted if that was so long ago */
	STALE_S = 86400,         /* what is being written for so long has been left by who died */
};

struct file { int64_t when, bytes; char name[64]; };
struct files { ARR(struct file) a; };

/* Is it ours?  *half: not yet, or never, an entry. */
static bool ours(const char *name, bool *half)
{
	size_t hex = 0, gen = strncmp(name, "gen-", 4) ? 0 : 4;
	while (isxdigit((unsigned char)name[gen + hex]))
		hex++;
	const char *rest = name + gen + hex, *end = gen ? "" : ".rondo";
	size_t n = strlen(rest), k = strlen(end);
	if (hex != (gen ? 16 : 32) || n < k || strncmp(rest, end, k))
		return false;
	*half = n > k;
	return !*half || (rest[k] == '.' && n > 4 && !strcmp(rest + n - 4, ".tmp"));
}

static int by_age(const void *a, const void *b)
{
	const struct file *x = a, *y = b;
	return x->when != y->when ? (x->when < y->when ? -1 : 1) : strcmp(x->name, y->name);
}

static void shut(void *d) { closedir(d); }
static void drop(void *f) { arr_free(&((struct files *)f)->a); }

/* The oldest go until an eighth of the bound is free.  Others may do the same at the same time. */
static void prune(const char *folder, int64_t bound)
{
	struct files f = { 0 };
	struct mem_undo u[2];
	struct stat st;
	int64_t all = 0, now = time(NULL);
	DIR *d = opendir(folder);
	if (!d)
		return;
	mem_undo(&u[0], shut, d);
	mem_undo(&u[1], drop, &f);
	for (struct dirent *e; (e = readdir(d));) {
		bool half;
		if (!ours(e->d_name, &half) || fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
			continue;
		if (half) {
			if (now - st.st_mtime > STALE_S)
				unlinkat(dirfd(d), e->d_name, 0);
			continue;
		}
		struct file x = { .when = st.st_mtime, .bytes = st.st_size };
		memcpy(x.name, e->d_name, strlen(e->d_name) + 1);
		arr_push(&f.a, x);
		all += x.bytes;
	}
	if (all > bound) {
		qsort(f.a.p, f.a.n, sizeof *f.a.p, by_age);
		for (size_t i = 0; i < f.a.n && all > bound - bound / 8; i++)
			if (!unlinkat(dirfd(d), f.a.p[i].name, 0))
				all -= f.a.p[i].bytes;
	}
	mem_done(&u[1]);
	mem_done(&u[0]);
	drop(&f);
	closedir(d);
}

struct err *cache_write(const char *path, const void *p, size_t n)
{
	static _Atomic int64_t since = INT64_MAX / 2;
	int64_t bound = conf_int(CONF_CACHE_SIZE);
	struct err *e = str_write_entry(path, p, n);
	const char *slash = strrchr(path, '/');
	if (!e && slash && bound && atomic_fetch_add(&since, (int64_t)n) + (int64_t)n > bound / LOOKS) {
		struct str folder = { 0 };
		atomic_store(&since, 0);
		str_addn(&folder, path, (size_t)(slash - path));
		prune(folder.p, bound);
		str_free(&folder);
	}
	return e;
}

struct err *cache_read(struct str *s, const char *path, int64_t most)
{
	struct stat st;
	struct err *e = str_read_entry(s, path, most);
	if (!e && !stat(path, &st) && time(NULL) - st.st_mtime > USED_S)
		utimensat(AT_FDCWD, path, NULL, 0);
	return e;
}
