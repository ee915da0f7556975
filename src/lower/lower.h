/* IR -> prog: where values lie, commands, memory, and then machine code. */
#ifndef RONDO_LOWER_H
#define RONDO_LOWER_H

#include "../ir/ir.h"
#include "../plan/plan.h"
#include "../prog/prog.h"

enum lower_tier { TIER_AUTO, TIER_REF, TIER_GEN };
struct lower_opts {
	const struct plan_on *plan;  /* the prices; NULL: the default table, one host */
	int ndev;                    /* partitions */
	enum lower_tier tier;        /* what groups become: whatever pays, reference kernels, generated code */
	uint64_t fingerprint;        /* of the program, the same in all processes of a job */
	bool (*custom_known)(const char *target);   /* NULL: every custom call is accepted and resolved at run time */
	struct map *lent;            /* gets those results of collectives that are read where they lie (lower_is_lent); NULL: nobody asks */
};

/* Is result v of an op of fn, which lower_module has seen, read where it lies? */
bool lower_is_lent(const struct map *lent, const struct ir_fn *fn, ir_val v);

/* How a group runs, and why. */
struct lower_choice {
	bool code;               /* as generated code, else as expression or op by op */
	const char *why;         /* static text, if not */
	double runs;             /* in all launches, of all that run the group */
	struct plan_work work;   /* one run */
	enum plan_way otherwise; /* without code */
	double nops, adds;       /* of its text: what compiling it takes */
};
/* Per function: how often it is expected to run in all launches that the program is compiled for; owned by the arena. */
double *lower_runs(struct arena *a, const struct plan_table *t, const struct ir_module *m);
struct lower_choice lower_choose(enum lower_tier tier, const struct plan_table *t, const struct ir_module *m, const struct ir_fn *g, double runs);
/* Per function, of the groups (IR_fused) of a module; array of m->fn.n, owned by the arena. */
struct lower_choice *lower_choices(struct arena *a, enum lower_tier tier, const struct plan_table *t, const struct ir_module *m);

/* Needs a module whose calls are inlined, of one device's shards, with groups (IR_fused) or without; it is not changed.  The prog is
 * owned by the caller.  choice: lower_choices', or NULL; what the generator refused in the end is noted there.  UNIMPLEMENTED names the
 * op that cannot be run. */
struct err *lower_module(const struct lower_opts *o, struct ir_module *m, struct lower_choice *choice, struct prog **out);

#endif
