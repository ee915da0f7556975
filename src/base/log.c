#include "base.h"

void log_line(enum log_level l, const char *fmt, ...)
{
	if (conf_int(CONF_LOG) < (int64_t)l)
		return;
	struct str s = {0};
	str_add(&s, "rondo: ");
	va_list ap;
	va_start(ap, fmt);
	str_vaddf(&s, fmt, ap);
	va_end(ap);
	str_add(&s, "\n");
	fwrite(s.p, 1, s.n, stderr);
	str_free(&s);
}
