/* Inside tool: the subcommands of rondo, one file each. */
#ifndef RONDO_TOOL_TOOL_H
#define RONDO_TOOL_TOOL_H

#include "../base/base.h"
#include "../ir/ir.h"

/* A subcommand takes the arguments after its name and returns the exit status. */
typedef int tool_fn(int argc, char **argv);
struct tool_cmd { const char *name; tool_fn *run; const char *args, *help; };

tool_fn tool_opt;

/* Read a program from a file: bytecode, or our text. */
struct err *tool_read(const char *path, struct ir_module **out);
/* Print the error to stderr, free it; returns the exit status 1. */
int tool_fail(struct err *e);
/* Print how the subcommand is used; returns the exit status 2. */
int tool_usage(const char *name);

#endif
