#include "base.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct err_watch { _Atomic int ref; _Atomic bool heard; const char *what; };

/* When there is no memory even for an error. */
static struct err no_memory(void)
{
	static char text[] = "out of host memory";

	return (struct err){ .code = ERR_EXHAUSTED, .file = __FILE__, .line = __LINE__, .msg = text, .fixed = true };
}

/* What is no UTF-8 (RFC 3629, section 4), and control characters but ends of lines and tabs, become '?': a damaged file's names come to
 * terminals so, and to Python, which takes no other text. */
static void readable(char *s)
{
	for (unsigned char *p = (unsigned char *)s; *p;) {
		unsigned char c = *p, d = p[1];
		int n = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
		bool good = n > 1 ? !(c == 0xe0 && d < 0xa0) && !(c == 0xed && d > 0x9f) && !(c == 0xf0 && d < 0x90) && !(c == 0xf4 && d > 0x8f)
		                  : n == 1 && ((c >= ' ' && c != 0x7f) || c == '\n' || c == '\t');
		for (int i = 1; i < n && good; i++)
			good = (p[i] & 0xc0) == 0x80;
		if (!good)
			*p = '?';
		p += good ? n : 1;
	}
}

/* "<text><tail>"; NULL if there is no memory. */
static char *vtext(const char *fmt, va_list ap, const char *tail)
{
	va_list again;
	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, ap);
	size_t head = n < 0 ? 0 : (size_t)n, more = strlen(tail);
	char *p = mem_try(head + more + 1);
	if (p) {
		vsnprintf(p, head + 1, fmt, again);
		memcpy(p + head, tail, more + 1);
		readable(p);
	}
	va_end(again);
	return p;
}

struct err *err_new(enum err_code code, const char *file, int line, const char *fmt, ...)
{
	static struct err none;
	struct err *e = mem_try(sizeof *e);
	va_list ap;
	va_start(ap, fmt);
	char *text = e ? vtext(fmt, ap, "") : NULL;
	va_end(ap);
	if (!text) {
		free(e);
		none = no_memory();
		return &none;
	}
	*e = (struct err){ .code = code, .file = file, .line = line, .msg = text };
	return e;
}

struct err *err_wrap(struct err *e, const char *fmt, ...)
{
	if (!e || e->fixed)
		return e;
	va_list ap;
	va_start(ap, fmt);
	char *text = vtext(fmt, ap, ": "), *both = text ? mem_try(strlen(text) + strlen(e->msg) + 1) : NULL;
	va_end(ap);
	if (both) {                          /* else the error as it is */
		memcpy(both, text, strlen(text));
		memcpy(both + strlen(text), e->msg, strlen(e->msg) + 1);
		free(e->msg);
		e->msg = both;
	}
	free(text);
	return e;
}

struct err *err_copy(const struct err *e)
{
	if (!e)
		return NULL;
	struct err *c = err_new(e->code, e->file, e->line, "%s", e->msg);
	if (!c->fixed)
		c->watch = e->watch;
	if (c->watch)
		atomic_fetch_add(&c->watch->ref, 1);
	return c;
}

void err_watch(struct err *e, const char *what)
{
	if (e->watch || e->fixed || !(e->watch = mem_try(sizeof *e->watch)))
		return;
	atomic_init(&e->watch->heard, false);
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
	if (!e || e->fixed)
		return;
	if (e->watch)
		watch_end(e);
	free(e->msg);
	free(e);
}
