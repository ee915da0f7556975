#include "base.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct err_watch { _Atomic int ref; _Atomic bool heard; const char *what; };

static char *vtext(const char *fmt, va_list ap)
{
	struct str s = {0};
	str_vaddf(&s, fmt, ap);
	return s.p;
}

struct err *err_new(enum err_code code, const char *file, int line, const char *fmt, ...)
{
	struct err *e = mem_alloc(sizeof *e);
	va_list ap;
	va_start(ap, fmt);
	e->code = code;
	e->file = file;
	e->line = line;
	e->msg = vtext(fmt, ap);
	va_end(ap);
	return e;
}

struct err *err_wrap(struct err *e, const char *fmt, ...)
{
	if (!e)
		return NULL;
	va_list ap;
	va_start(ap, fmt);
	struct str s = {0};
	str_vaddf(&s, fmt, ap);
	va_end(ap);
	str_addf(&s, ": %s", e->msg);
	free(e->msg);
	e->msg = s.p;
	return e;
}

struct err *err_copy(const struct err *e)
{
	if (!e)
		return NULL;
	struct err *c = err_new(e->code, e->file, e->line, "%s", e->msg);
	c->watch = e->watch;
	if (c->watch)
		atomic_fetch_add(&c->watch->ref, 1);
	return c;
}

void err_watch(struct err *e, const char *what)
{
	if (e->watch)
		return;
	e->watch = mem_alloc(sizeof *e->watch);
	atomic_init(&e->watch->ref, 1);
	e->watch->what = what;
}

void err_heard(const struct err *e)
{
	if (e && e->watch)
		atomic_store(&e->watch->heard, true);
}

/* Of a loop that fails at every turn a line now and then is enough. */
static void watch_end(const struct err *e)
{
	enum { EVERY_S = 10 };
	static _Atomic uint64_t next;

	if (atomic_fetch_sub(&e->watch->ref, 1) > 1)
		return;
	if (!atomic_load(&e->watch->heard)) {
		uint64_t now = clock_ns(), due = atomic_load(&next);
		bool first = now >= due && atomic_compare_exchange_strong(&next, &due, now + EVERY_S * (uint64_t)1000000000);
		log_line(first ? LOG_WARN : LOG_INFO, "%s: %s", e->watch->what, e->msg);
	}
	free(e->watch);
}

void err_free(struct err *e)
{
	if (!e)
		return;
	if (e->watch)
		watch_end(e);
	free(e->msg);
	free(e);
}
