#include "base.h"

#include <stdlib.h>

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
	return e ? err_new(e->code, e->file, e->line, "%s", e->msg) : NULL;
}

void err_free(struct err *e)
{
	if (e)
		free(e->msg);
	free(e);
}
