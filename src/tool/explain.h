/* What `rondo explain` shows: programs with what they are expected to take. */
#ifndef RONDO_TOOL_EXPLAIN_H
#define RONDO_TOOL_EXPLAIN_H

#include "tool.h"

/* One program. */
struct explained {
	char *name;                      /* as it is called, of several of one name with a number; owned */
	struct pass_account account;
	double launches;                 /* that were counted; < 0: none was asked for */
	const char *text;                /* all that was decided, in words; borrowed */
	int warnings;                    /* that it has */
};

static inline double explained_ns(const struct explained *x) { return x->account.ns[PASS_COMPUTES] + x->account.ns[PASS_MOVES]; }
static inline double explained_all(const struct explained *x) { return explained_ns(x) * (x->launches < 0 ? 1 : x->launches); }

/* The costliest programs, and of the first of them what takes its time and memory; of one program that alone.  At most `lines` lines, for a
 * terminal of so many columns. */
void explain_screen(const struct explained *x, size_t n, const char *title, int lines, int columns);
/* "jit_step on 2 devices: 6 launches of 1.2 ms, 30.1 us of it communication" */
void explain_head(struct str *s, const struct explained *x);
/* What a row says besides numbers: line and operation, bytes that travel each time, and the shape if it has no more than so many letters then.  Shared by
 * all that shows rows. */
void explain_what(struct str *s, const struct pass_cost *c, int room);
/* "98 %": how near it is to the limit of the machine table, if that is known. */
void explain_share(struct str *s, const struct pass_cost *c);
/* All programs in one file of HTML that needs nothing else. */
struct err *explain_html(const char *path, const struct explained *x, size_t n, const char *title);

#endif
