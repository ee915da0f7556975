/* What the files of the race and lifetime check share (check.c): check.c calls check_reach.c and check_state.c, check_reach.c
 * calls check_state.c. */
#ifndef RONDO_PROG_CHECK_H
#define RONDO_PROG_CHECK_H

#include "impl.h"

enum { LANES = PROG_LANES, RUNS = 16, WORLDS = 32 };
enum { NONE = 0xffffffff, MAYBE = 0xfffffffe, LOST = 0xfffffffd };    /* owners of a byte that no buffer has */

struct range { int64_t lo, hi; };

/* Bytes that a view touches, from its operand's address: all of [lo, hi), or n runs, or (n = 0) some of it. */
struct reach { int64_t lo, hi; int n; int64_t run[RUNS], len; };

struct seg { int64_t lo, hi; uint32_t owner; uint32_t wrote[LANES], read[LANES]; };
struct space { ARR(struct seg) seg; };

/* What a path through the program changes. */
struct state { struct range *reg; uint8_t *set; struct space *space; };

/* The states that paths to here may leave, no two with the same registers while there are few. */
struct worlds { int n; struct state *w[WORLDS]; };

struct frame;                            /* a block that is being run */

struct device {
	struct worlds now;
	struct state *s;                 /* the one of now that a command is run for */
	ARR(struct frame) frame;
	uint32_t *clock;                 /* [lane][device * LANES + lane] */
	struct map mark;                 /* id -> 1 + index into marks */
	ARR(uint32_t *) marks;
	const struct prog_cmd *wait;     /* the collective it stands at */
	bool done;
	int loops, mids;                 /* depth of repetition; of turns that stand for many */
};

struct check {
	const struct prog *p;
	struct arena a;
	int ndev, width, nspace, nlane;
	struct reach **kern, **custom;   /* per view of each */
	struct device *dev;
	int32_t **team;                  /* per collective: the team of each device; -1 alone */
	uint32_t *owner;                 /* per buffer: the buffer that stands for its argument */
	uint32_t **pos;                  /* per block: where its commands, and its end, stand in the text */
	uint32_t *last;                  /* per register: where in the text it is dead from */
	uint64_t work;
};

/* --- check_state.c: states, and what they know of each byte ----------------------- */

struct access {
	uint32_t buf;
	bool write;
	bool some;        /* not every byte of the range: nothing is said about bytes that were never written */
	bool many;        /* a turn that stands for many: ranges of different lanes may overlap without a conflict */
	int lane;
};

/* Where in the text each register is dead from, turns of loops taken into account: ck->pos and ck->last. */
void ck_lives(struct check *ck);

/* Into w what holds on the paths of from as well. */
void ck_worlds_join(const struct check *ck, struct worlds *w, const struct worlds *from);
void ck_worlds_free(const struct check *ck, struct worlds *w);
/* w becomes from, which is empty then. */
void ck_worlds_take(const struct check *ck, struct worlds *w, struct worlds *from);
/* Registers that nothing reads from position at on are no difference. */
void ck_worlds_merge(const struct check *ck, struct worlds *w, uint32_t at);

/* The piece of storage that holds a buffer, and where in it the buffer begins. */
int ck_space_of(const struct check *ck, uint32_t buf, int64_t *base);
/* Touch bytes lo .. hi-1 of the buffer's storage on device d.  PRECONDITION: a race, or no value to read. */
struct err *ck_touch(struct check *ck, struct device *dv, int d, int64_t lo, int64_t hi, const struct access *x);

/* --- check_reach.c: which bytes an operand is ---------------------------------------- */

void ck_reach(const struct prog_view *v, struct reach *r);
/* Elements of a result must lie apart: by stride, each dimension steps over all smaller ones. */
bool ck_apart(const struct prog_view *v);
bool ck_same_view(const struct prog_view *a, const struct prog_view *b);

struct range ck_times(struct range a, int64_t k);
struct range ck_plus(struct range a, struct range b);
/* A register of the state dv->s, or over all states.  PRECONDITION: it is not set on every path. */
struct err *ck_reg(const struct device *dv, uint16_t r, struct range *out);
struct err *ck_reg_any(struct device *dv, uint16_t r, struct range *out);

/* Access what a view reaches from an operand. */
struct err *ck_use(struct check *ck, int d, const struct prog_cmd *c, const struct prog_opnd *o, const struct reach *r, bool write, bool some);
/* Do two operands of one command meet?  Only when both addresses are known. */
bool ck_meet(const struct check *ck, const struct device *dv, const struct prog_opnd *a, const struct reach *ra,
             const struct prog_opnd *b, const struct reach *rb, bool *equal);

#endif
