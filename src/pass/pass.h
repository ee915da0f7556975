/* The compiler: ir -> prog.  compile.c names every pass in order. */
#ifndef RONDO_PASS_H
#define RONDO_PASS_H

#include "../base/base.h"
#include "../ir/ir.h"
#include "../lower/lower.h"
#include "../plan/plan.h"
#include "../prog/prog.h"
#include "../spmd/spmd.h"

struct spmd_record;
struct attn_record;
struct pass_opts {
	int ndev;                     /* partitions */
	enum lower_tier tier;
	const char *dump;             /* folder for the text after each pass, NULL = none */
	bool check;                   /* verify after each pass, race check of the result */
	const char *stop;             /* name of the pass to stop after (rondo opt), NULL = all */
	uint64_t fingerprint;
	struct attn_record *attention;/* gets what became of each product that looked like an attention; NULL: nobody asks */
	struct spmd_record *record;   /* gets why the partitioner did what it did; NULL: nobody asks */
	struct plan_on plan;             /* prices, by which ways are chosen; zeros: the default table, one host */
	const struct spmd_maker *maker;             /* of the program, who may be asked; NULL: nobody */
	bool (*custom_known)(const char *target);   /* NULL: every custom call is accepted and resolved at run time */
};
void pass_opts_from_conf(struct pass_opts *o);

/* Compile m (taken apart in the process; still to be freed by the caller).  prog is owned. */
struct err *pass_compile(const struct pass_opts *o, struct ir_module *m, struct prog **out);
/* The same from bytecode, which read (hlo_read) decodes, with the cache on disk.  The fingerprint of a program of
 * several devices is that of what it says, without source locations. */
typedef struct err *pass_reader(const void *p, size_t n, struct ir_module **out);
struct err *pass_compile_cached(const struct pass_opts *o, pass_reader *read, const void *code, size_t n, struct prog **out);
/* Run the passes up to and including o->stop on m, which then holds the result. */
struct err *pass_run(const struct pass_opts *o, struct ir_module *m);
/* One pass alone.  INVALID if m has not what it needs. */
struct err *pass_run_only(const struct pass_opts *o, struct ir_module *m, const char *name);
const char *const *pass_names(void);              /* NULL-terminated, in order */
/* One rewrite of pass canon, or all (NULL), to a fixpoint, on a module without calls. */
struct err *pass_canon_only(struct ir_module *m, const char *only);
/* Name of rewrite i, what it takes and what it gives; NULL behind the last one. */
const char *pass_rewrite_name(int i, const char **from, const char **to);
enum {
	PASS_ALL = 1,            /* every value and communication, not only those of weight */
	PASS_SHARDED = 2,        /* nothing but what lies where and what travels; there is no prog then */
};
/* What the compiler decided: what lies where, why, and what travels, of a program of several devices; roles of loops, groups, kernels, memory.
 * Compiles m, as pass_compile; out: NULL: the prog is not kept.  pass_compile writes the same where RONDO_EXPLAIN says. */
struct err *pass_explain(struct str *s, const struct pass_opts *o, struct ir_module *m, unsigned flags, struct prog **out);

#endif
