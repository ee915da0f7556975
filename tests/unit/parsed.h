/* A test's own program. */
#ifndef PARSED_H
#define PARSED_H

#include "ir/ir.h"

/* The module that text is; the test fails where it is none. */
static struct ir_module *parsed(const char *text)
{
	struct ir_module *m;
	struct err *e = ir_parse(text, strlen(text), &m);
	if (!e)
		e = ir_verify(m);
	if (e)
		fail_msg("%s\n%s", e->msg, text);
	return m;
}

#endif
