/* Whole files. */
#include "base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void shut(void *f) { fclose(f); }

/* f, taken. */
static struct err *read_all(struct str *s, const char *path, FILE *f)
{
	char buf[1 << 16];
	size_t n;
	struct mem_undo u;
	mem_undo(&u, shut, f);
	while ((n = fread(buf, 1, sizeof buf, f)) > 0)
		str_addn(s, buf, n);
	mem_done(&u);
	struct err *e = ferror(f) ? ERR(DATA_LOSS, "cannot read '%s': %s", path, strerror(errno)) : NULL;
	fclose(f);
	if (!e && !s->p)
		str_addn(s, "", 0);
	return e;
}

struct err *str_read_file(struct str *s, const char *path)
{
	struct stat st;
	char shown[STR_SHOWN];
	FILE *f = fopen(path, "rb");
	if (!f)
		return ERR(NOT_FOUND, "cannot open '%s': %s", str_shown(path, shown), strerror(errno));
	if (!fstat(fileno(f), &st) && S_ISCHR(st.st_mode)) {
		fclose(f);
		return ERR(INVALID, "'%s' is a device, not a file", path);
	}
	return read_all(s, path, f);
}

struct err *str_read_entry(struct str *s, const char *path, int64_t most)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);          /* nobody may ever write into a pipe */
	struct stat st;
	struct err *e = NULL;
	if (fd < 0 || fstat(fd, &st))
		e = ERR(NOT_FOUND, "cannot open '%s': %s", path, strerror(errno));
	else if (!S_ISREG(st.st_mode))
		e = ERR(DATA_LOSS, "'%s' is not a file", path);
	else if (st.st_size > most)
		e = ERR(DATA_LOSS, "'%s' has %lld bytes, more than %lld", path, (long long)st.st_size, (long long)most);
	FILE *f = e ? NULL : fdopen(fd, "rb");
	if (!f && !e)
		e = ERR(EXHAUSTED, "cannot open '%s': %s", path, strerror(errno));
	if (!f && fd >= 0)
		close(fd);
	return e ? e : read_all(s, path, f);
}

struct writing { FILE *f; const char *unlink; };

/* No memory for a part. */
static void give_up(void *v)
{
	struct writing *w = v;
	fclose(w->f);
	if (w->unlink)
		unlink(w->unlink);
}

static struct err *write_all(const char *path, bool (*next)(void *, const void **, size_t *), void *arg, bool device)
{
	struct str tmp = {0};
	str_addf(&tmp, "%s.%d.%llx.tmp", path, (int)getpid(), (unsigned long long)clock_ns());
	struct err *e = NULL;
	struct writing w = { fopen(device ? path : tmp.p, "wb"), device ? NULL : tmp.p };
	if (!w.f) {
		e = ERR(UNAVAILABLE, "cannot create '%s': %s", path, strerror(errno));
	} else {
		const void *p;
		size_t n;
		bool ok = true;
		struct mem_undo u;
		mem_undo(&u, give_up, &w);
		while (ok && next(arg, &p, &n))
			ok = fwrite(p, 1, n, w.f) == n;
		mem_done(&u);
		ok = fclose(w.f) == 0 && ok;
		if (!ok || (!device && rename(tmp.p, path) != 0)) {
			e = ERR(UNAVAILABLE, "cannot write '%s': %s", path, strerror(errno));
			if (!device)
				unlink(tmp.p);
		}
	}
	str_free(&tmp);
	return e;
}

struct err *str_write_parts(const char *path, bool (*next)(void *arg, const void **p, size_t *n), void *arg)
{
	struct stat st;
	return write_all(path, next, arg, stat(path, &st) == 0 && !S_ISREG(st.st_mode));      /* a device, or a pipe, stays */
}

struct whole { const void *p; size_t n; bool done; };

static bool once(void *v, const void **p, size_t *n)
{
	struct whole *w = v;
	bool more = !w->done;
	*p = w->p;
	*n = w->n;
	w->done = true;
	return more;
}

struct err *str_write_file(const char *path, const void *p, size_t n) { return str_write_parts(path, once, &(struct whole){ p, n, false }); }
struct err *str_write_entry(const char *path, const void *p, size_t n) { return write_all(path, once, &(struct whole){ p, n, false }, false); }
