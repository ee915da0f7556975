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
struct ring_record;
struct pass_opts {
	int ndev;                     /* partitions */
	int parts;                    /* of these each device of the program as it is read stands for so many (pass_repro_parts); 0, 1: for itself */
	enum lower_tier tier;
	const char *dump;             /* folder for the text after each pass, NULL = none */
	bool check;                   /* verify after each pass, race check of the result */
	const char *stop;             /* name of the pass to stop after (rondo opt), NULL = all */
	uint64_t fingerprint;
	int64_t save;                 /* bytes, over all devices, by which a program is too large: so many are made again, if they can be, instead of kept */
	struct attn_record *attention;/* gets what became of each product that looked like an attention; NULL: nobody asks */
	struct ring_record *rings;    /* gets how each attention has what other devices have; NULL: nobody asks */
	struct spmd_record *record;   /* gets why the partitioner did what it did; NULL: nobody asks */
	struct plan_on plan;             /* prices, by which ways are chosen; zeros: the default table, one host */
	const struct spmd_maker *maker;             /* of the program, who may be asked; NULL: nobody */
	/* Bytes that a launch takes of each device at most, arguments, results, constants and what kernels and collectives work in with it; 0: not known. */
	int64_t (*needs)(const void *of, struct prog *p);
	const void *of;               /* who is asked that; NULL: nobody */
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

/* --- repro.c: RONDO_REPRO ------------------------------------------------------------------- */

/* How many devices each one of m, which has ndev, is to stand for; 1: m is compiled as it is, without that setting, without a mesh, or if it communicates
 * by itself, of which the log hears.  UNIMPLEMENTED or INVALID says what cannot be. */
struct err *pass_repro_parts(const struct ir_module *m, int ndev, int *parts);

/* --- account.c: what a launch of a compiled program is expected to take ----------------- */

enum pass_sort { PASS_COMPUTES, PASS_MOVES, PASS_CALLS, PASS_SORTS };       /* kernels, collectives, host code: what that takes nobody knows */
/* Commands that run the same from the same line, in all of a launch, on one device. */
struct pass_cost {
	enum pass_sort sort;
	const char *name, *work;         /* the kernel or collective; what that is, in words */
	const struct prog_site *site;    /* NULL: no line */
	const struct prog_view *made;    /* a kernel's first result; NULL: none */
	bool in_place;                   /* what moves is read where it lies: bytes are not copied */
	double times, ns, limit;         /* ns at the rates of the machine table, on one core, operands in memory; limit: by operations or bytes alone */
	double flops, bytes;             /* bytes read and written, or that a device gets */
};
struct pass_account {
	const struct prog *p;            /* borrowed */
	double ns[PASS_SORTS];           /* in all */
	bool guessed;                    /* a loop turns until a condition holds: IR_TURNS times are assumed */
	struct pass_cost *cost, *line;   /* the heaviest first; of one line and operation together, where shapes differ without one */
	size_t n, nline;
	int64_t arg, res, shared;        /* bytes of arguments, results, of those in the storage of arguments */
	struct prog_live live;
};
void pass_account(struct arena *a, const struct prog *p, const struct plan_on *on, struct pass_account *to);
/* Of a device: what the program says; what it needs at most, if that is known. */
static inline int64_t pass_account_said(const struct pass_account *t) { return t->arg + t->res - t->shared + t->p->zone + t->p->ndata; }
static inline int64_t pass_account_bytes(const struct pass_account *t) { return MAX(t->p->needs, pass_account_said(t)); }

/* --- told.c: what RONDO_EXPLAIN leaves of each program in a folder ------------------------------ */

/* A file NAME.why, or NAME.2.why, .. if there is one: the words of pass_explain, the program, what it was compiled for.  Launches of p are counted
 * there from now on.  UNAVAILABLE names the file. */
struct err *pass_told_write(const char *folder, const struct str *text, const struct plan_on *on, struct prog *p);
struct pass_told { struct prog *prog; struct str text; int64_t launches, process; int cores, *host; };      /* owned; host: by position, NULL: all on one */
bool pass_told_is(const void *p, size_t n);          /* is it such a file? */
struct err *pass_told_read(const void *p, size_t n, struct pass_told *out);       /* DATA_LOSS; *out is empty then */
void pass_told_free(struct pass_told *t);

/* --- words.c: numbers as a person reads them ------------------------------------------------ */

void pass_add_bytes(struct str *s, double n);
void pass_add_time(struct str *s, double ns);
void pass_add_shape(struct str *s, const struct prog_view *v);       /* f32[8,16]; nothing of NULL */
void pass_add_like(struct str *s, const struct prog_like *x);        /* 1.0 MB x12 */
void pass_add_needs(struct str *s, const struct pass_account *t);    /* 1.0 MB at most */
void pass_add_memory(struct str *s, const struct pass_account *t);   /* arguments 1.0 MB, results .., constants .. */

#endif
