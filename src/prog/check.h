/* What the files of the race and lifetime check share (check.c): check.c calls the others, check_loan.c those before it, check_reach.c
 * check_state.c. */
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

/* Bytes lo .. hi-1 of a space (-1: constants) that a loan has lent, and that are not awaited.  age: how often it has lent since;
 * told: lent, not only shown; many: in a turn that stands for many. */
struct lent { uint32_t loan; uint8_t age; bool told, many; int space; int64_t lo, hi; };

/* What a path through the program changes.  Of a program with loans: held, per collective: whether it is lent something (0, 1, or 2: on
 * some paths); hop, per buffer: how many links away is what a LENT one shows. */
struct state { struct range *reg; uint8_t *set; struct space *space; ARR(struct lent) lent; uint8_t *held; int32_t *hop; };

/* The states that paths to here may leave, no two with the same registers while there are few. */
struct worlds { int n; struct state *w[WORLDS]; };

struct frame;                            /* a block that is being run */

/* A loan on one device: times it was begun, and given back up to; the blocks around the beginning; the clock of the last return. */
struct loan_of { uint32_t begun, given; int depth; uint32_t *clock; };

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
	struct loan_of *loan;            /* per collective */
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
	bool loans;                      /* the program has some */
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

/* Touch bytes lo .. hi-1 of the buffer's storage on device d.  PRECONDITION: a race, or no value to read. */
struct err *ck_touch(struct check *ck, struct device *dv, int d, int64_t lo, int64_t hi, const struct access *x);

/* From here on buffer b, which is lent, has no value: what reads it on other lanes must be done. */
struct err *ck_forget(struct check *ck, struct device *dv, int d, uint32_t b, int lane);
/* Peers have read these bytes up to now, on that lane. */
void ck_note_read(struct check *ck, struct device *dv, int d, const struct lent *x, int lane);
void ck_take_up(uint32_t *clock, const uint32_t *other, int n);

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
/* Where the n bytes of an operand lie: space, lo, hi, many of x. */
struct err *ck_where(const struct check *ck, const struct device *dv, const struct prog_opnd *o, int64_t n, struct lent *x);
/* Do two operands of one command meet?  Only when both addresses are known. */
bool ck_meet(const struct check *ck, const struct device *dv, const struct prog_opnd *a, const struct reach *ra,
             const struct prog_opnd *b, const struct reach *rb, bool *equal);

/* --- check_loan.c ------------------------------------------------------------------- */

/* A loan's command for the state dv->s.  times: turns since it was begun that this one stands for. */
struct err *ck_loan(struct check *ck, int d, const struct prog_cmd *c, int64_t times);
/* Then for the device: must it stand there until others have come? */
bool ck_loan_meets(const struct check *ck, int d, const struct prog_cmd *c);
/* All who must be at lend or next are: what d's clock takes up of the others' on that lane, as they were before, width each. */
void ck_loan_pass(struct check *ck, int d, const struct prog_cmd *c, const uint32_t *before);
/* A device that has not given back what this wait is for, or -1; then what its clock takes up. */
int ck_loan_owed(const struct check *ck, int d, const struct prog_cmd *c);
void ck_loan_back(struct check *ck, int d, const struct prog_cmd *c);
/* At the end of the program. */
struct err *ck_loan_end(const struct check *ck, const struct state *s);

#endif
