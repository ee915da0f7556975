/* IR -> prog: where values lie, commands, memory, and then machine code. */
#ifndef RONDO_LOWER_H
#define RONDO_LOWER_H

#include "../ir/ir.h"
#include "../prog/prog.h"

enum lower_tier { TIER_AUTO, TIER_REF, TIER_GEN };
struct lower_opts {
	int ndev;                    /* partitions */
	enum lower_tier tier;        /* what groups become: whatever pays, reference kernels, generated code */
	uint64_t fingerprint;        /* of the program, the same in all processes of a job */
	bool (*custom_known)(const char *target);   /* NULL: every custom call is accepted and resolved at run time */
};

/* Needs a module whose calls are inlined, of one device's shards, with groups (IR_fused) or without; it is not changed.  The prog is
 * owned by the caller.  UNIMPLEMENTED names the op that cannot be run. */
struct err *lower_module(const struct lower_opts *o, struct ir_module *m, struct prog **out);

#endif
