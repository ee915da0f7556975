#include "base.h"

/* Whoever has no memory may say so: a long line is cut off then. */
void log_line(enum log_level l, const char *fmt, ...)
{
	static const char head[] = "rondo: ";
	enum { HEAD = sizeof head - 1 };
	char few[512], *text = few;
	va_list ap, again;

	if (conf_int(CONF_LOG) < (int64_t)l)
		return;
	va_start(ap, fmt);
	va_copy(again, ap);
	int n = vsnprintf(few + HEAD, sizeof few - HEAD, fmt, ap);
	n = MAX(n, 0);
	if (HEAD + (size_t)n >= sizeof few) {
		char *all = mem_try(HEAD + (size_t)n + 1);
		if (all)
			vsnprintf((text = all) + HEAD, (size_t)n + 1, fmt, again);
		else
			n = sizeof few - 1 - HEAD;
	}
	va_end(ap);
	va_end(again);
	memcpy(text, head, HEAD);
	text[HEAD + n] = '\n';                /* over the end */
	fwrite(text, 1, HEAD + (size_t)n + 1, stderr);
	if (text != few)
		free(text);
}
