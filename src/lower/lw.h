/* Inside lower.  In the order of who uses whom: choose.c (which groups become code), place.c (places and views of them), cmd.c (commands), frame.c (where the values of a
 * function may lie), gather.c (all_gathers that are read in place), loan.c (their commands, and permutes that are), lane.c (what is done beside computing), steps.c (single ops), group.c (fused groups) and flow.c (loops and branches), whose functions' ops lower.c walks;
 * then memory.c (offsets), code.c (machine code) and follow.c (kernels that follow a sum). */
#ifndef RONDO_LOWER_LW_H
#define RONDO_LOWER_LW_H

#include "lower.h"
#include "../eval/eval.h"
#include "../gen/gen.h"
#include "../spmd/spmd.h"

struct frame;

/* From when to when something is needed, in commands of each lane.  What one lane knows of another it has from the marks that it awaited.
 * A turn of a loop begins when all lanes are done with the one before: who uses several in a loop makes them meet at its end. */
struct life {
	int born[PROG_LANES];    /* commands of each lane that were done, as the lane knew in which it was made */
	int last[PROG_LANES];    /* the last command of each lane that uses it, -1: none */
};

/* Storage: the buffer of one or several values. */
struct store {
	uint32_t buf;            /* index into lw->buf */
	struct life life;
	int depth;               /* loops that were open when it was made */
	bool fixed;              /* read-only for this program: constants, arguments that are not donated */
	int donated_to;          /* argument: store of the output that takes its memory, -1 none */
	uint32_t holder;         /* the value whose bytes it holds: id of its frame, and root */
	ir_val held;
	bool twin;               /* a second name of another store's buffer */
	bool begun;              /* a result's: something has touched it, its life is from there on */
	bool far;                /* what is lent: needed only where it is copied */
	int under;               /* the store of a result that is made of this one element by element, when nobody else wants it any more; 0, which is an argument's: none */
};

/* What is lent and shown (loan.c): a permute, others of the same links that go on from it; an all_gather, whose parts are shown each by itself, in rank
 * order; or the carry of a loop. */
enum loan_kind { LOAN_once, LOAN_all, LOAN_round, LOAN_made };
struct loan {
	enum loan_kind kind;
	struct loan *next;       /* of its frame, the one before */
	const struct ir_fn *fn;  /* where its op is: the frame's, or the body of the loop */
	ir_val y, x;             /* what that makes; what is lent, or shown in the first turn, of the frame */
	int hops, last;          /* from how far it is read; the op of the frame behind which it goes back */
	uint32_t coll;
	bool closed;             /* the links have no ends */
	int in[2], nin;          /* stores that are lent */
	int *shown, nshown, capshown;        /* stores of what is shown */
	bool held, owed;         /* it is to be given back; what was lent is to be awaited */
	/* of what is lent again in each turn, from two halves: */
	int other;               /* a store whose writes are to the half that the turn before has lent; -1 */
	bool before, now;        /* that is to be awaited; this turn has lent */
	/* round, made: */
	struct loan *peer;       /* of the same loop */
	int loop, operand, step; /* op of the frame, its operand; op of the body behind which it goes on */
	ir_val param, z;         /* of the body: the carry, what the permute reads */
	bool two;                /* in a turn both what it was and what it becomes are read */
	int links;               /* permutes a turn; made: 1 */
	bool own;                /* what the loop gives is copied behind it */
	struct place *at, *half; /* what is shown; made: where z is */
	struct place *from;      /* what is shown of it furthest away, so far in this turn */
	struct place *beyond;    /* two: what it becomes is shown there */
};

/* Where a value lies: base(store) + off + reg terms, element strides. */
struct place {
	int store;
	int64_t off;             /* bytes */
	int rank;
	enum dtype dtype;
	const int64_t *dim;      /* the type's */
	int64_t *stride;         /* elements, rank entries, owned by the arena */
	uint16_t reg[2];
	int64_t mul[2];
	/* Of a value that attention alone reads: it lies in so many places, one after the other along its last dimension but one, whose strides are these; 0: in one. */
	struct place *const *piece;
	int npiece;
};

/* A function being lowered. */
struct frame {
	uint32_t id;             /* of this lowering of fn, from 1 on: what a store is held for outlives the frame */
	const struct ir_fn *fn;
	struct place **at;       /* per value; NULL = not made yet */
	ir_val *root;            /* per value: the value whose bytes it shows, through views */
	int *last;               /* per root: index of the last op that reads it; INT_MAX for results */
	struct place **target;   /* per value: where the result is wanted, NULL = anywhere */
	bool *steal;             /* per parameter: its storage may be overwritten after its last use */
	int stepping;            /* index of the op being lowered */
	struct loan *loan;       /* those that end in its block, the last one first */
	struct loan *ring;       /* of the loop around, that go on in each turn */
	struct loan **lent;      /* per value: the loan that shows it; NULL: there are none */
	bool *pieces;            /* per value: a concatenation that may stay in pieces, or what comes from elsewhere to be one; NULL: there are none */
};

/* now: when it began. */
struct loop_frame { ARR(int) extend; int now[PROG_LANES]; };
struct mark { int done[PROG_LANES]; };
/* A collective of lane 1: the mark behind it, the stores that it reads and writes. */
struct flight { int mark, in[2], out; };

/* A kernel whose code is still to be made. */
struct pending { uint32_t kern; ir_fnid fn; };

struct lw {
	const struct lower_opts *opts;
	struct arena *tmp;
	struct ir_module *m;
	struct prog *p;
	ARR(struct prog_buf) buf;
	ARR(struct prog_kern) kern;
	ARR(struct prog_opnd) opnd;
	ARR(uint32_t) sub;
	ARR(struct prog_block) block;
	ARR(struct prog_coll) coll;
	ARR(struct prog_custom) custom;
	ARR(struct prog_site) site;
	ARR(struct prog_table) table;
	ARR(struct prog_code) code;
	ARR(struct prog_group) group;
	ARR(struct store) store;
	ARR(struct pending) pending;
	struct lower_choice *choice;    /* per function */
	ARR(char) data;
	ARR(struct loop_frame) loops;
	struct map site_map, code_map, const_map;
	struct { struct prog_cmd *p; size_t n, cap; } *cur;   /* block being filled */
	int lane;                /* that commands go to */
	int now[PROG_LANES][PROG_LANES];     /* [lane][other]: commands of the other one that are known to be done; of itself: all so far */
	ARR(struct mark) mark;   /* by number */
	ARR(struct flight) flight;
	size_t landed;           /* of these, lane 0 knows so many to be done */
	ARR(struct loan *) open; /* loans that may be in the way of a write */
	int nreg;
	uint32_t nframe;         /* frames so far */
	uint32_t site_now;
};
typedef struct { struct prog_cmd *p; size_t n, cap; } cmd_list;
struct move { struct place *src, *dst; };

/* --- lower.c --- */
struct err *lower_ops(struct lw *w, struct frame *f);                 /* all of f, in order */

/* --- cmd.c --- */
struct prog_cmd *lw_cmd(struct lw *w, enum prog_op op);               /* the next command; valid until the next one */
uint32_t lw_opnds(struct lw *w, struct prog_cmd *c, int n, struct place *const *pl);      /* c's operands */
uint16_t lw_reg_new(struct lw *w);
uint32_t lw_group(struct lw *w, ir_group id);                         /* the program's group; 0: of all */
/* What this lane has done and knows of, for a lane that awaits it. */
int lw_mark(struct lw *w);
void lw_await(struct lw *w, int mark);
/* Before a command of lane 0 that reads nin places, and writes those behind them: awaits what is under way there, and what was lent of
 * what is written. */
void lw_meets(struct lw *w, int nin, int n, struct place *const *pl);
/* A loan's command; wait, but for the last time, or for what the turn before has lent; whatever was lent of this store. */
struct prog_cmd *lw_loan_cmd(struct lw *w, const struct loan *l, enum prog_op op, int64_t imm);
void lw_loan_await(struct lw *w, struct loan *l, int but);
void lw_loan_await_turn(struct lw *w, struct loan *l);
void lw_loans_write(struct lw *w, int store);
void lw_touch(struct lw *w, const int *store, int n);               /* the last command uses them */
uint32_t lw_table_new(struct lw *w);                                  /* a number for each device */
/* At the end of a block: awaits what was begun in it, when there had been so many flights before. */
void lw_land_since(struct lw *w, size_t first);
/* What is under way where a block begins that may not run, or again; talks: there are collectives in it, and nothing is. */
struct sky { size_t landed; int now[PROG_LANES]; };
struct sky lw_sky(struct lw *w, bool talks);
void lw_sky_again(struct lw *w, const struct sky *s, bool talks);      /* behind it, and before another one in its place */
/* Commands up to lw_block_end go to a block of their own, the result. */
uint32_t lw_block_begin(struct lw *w, cmd_list *mine, void **saved);
void lw_block_end(struct lw *w, uint32_t id, cmd_list *mine, void *saved);
/* What was made before lw_loop_begin and is used in the loop lives to lw_loop_end, in each lane that uses it. */
void lw_loop_begin(struct lw *w);
void lw_loop_end(struct lw *w);
void lw_view_from(struct lw *w, struct prog_view *v, const struct place *p);
void lw_emit_kern(struct lw *w, struct prog_kern *k, struct place *const *pl);
void lw_emit_copy(struct lw *w, struct place *src, struct place *dst);
struct place *lw_copy(struct lw *w, struct place *p);               /* dense, in a temporary */
struct place *lw_temp(struct lw *w, enum dtype dt, int rank, const int64_t *dim);

/* --- lane.c --- */
bool lw_beside(const struct lw *w, const struct frame *f, int i);     /* shall collective i of f go on while lane 0 computes? */
/* The command between them goes to lane 1, and has these operands; also: a second one that it reads, or in again. */
void lw_begin_beside(struct lw *w);
void lw_end_beside(struct lw *w, const struct place *in, const struct place *also, const struct place *out);
bool lw_talks(const struct lw *w, const struct ir_fn *fn);            /* is there a collective in it, or in what it holds? */

/* --- loan.c --- */
/* After lw_frame_init: what of f is lent; in `body`, of loop i of f, after its lw_frame_init and before its plan: carries that go round. */
void lw_loans_plan(struct lw *w, struct frame *f);
void lw_rings(struct lw *w, struct frame *f, int i, struct frame *body);
/* The links of permute o into c.  INVALID: they name devices that are not there. */
struct err *lw_permute(struct lw *w, const struct ir_fn *fn, const struct ir_op *o, struct prog_coll *c);
/* Permute i of f, whose operand k is lent: where its result is shown. */
struct place *lw_loan(struct lw *w, struct frame *f, int i, uint32_t k);
/* Where a carry is shown before the loop; half: of what is made, where, and other: the half that nothing is made in before the second turn. */
struct place *lw_ring_begin(struct lw *w, struct frame *f, struct loan *l, struct place *half, struct place *other);
void lw_ring_target(struct lw *w, struct frame *body, struct loan *l);      /* what it hands on is wanted where it is lent */
bool lw_is_lent(const struct lw *w, const struct place *p);
bool lw_loans_of(const struct frame *b, ir_val param);               /* is what is lent in b the value of its parameter? */
/* Carry `param` of b, a loop's body, is in two halves, of which `other` is written. */
void lw_loans_halves(struct lw *w, struct frame *b, ir_val param, const struct place *other);
void lw_loans_over(struct lw *w, struct frame *f, int i, struct frame *body);      /* behind loop i: what its last turn has lent is f's */
void lw_loans_after(struct lw *w, struct frame *f, int i);          /* behind op i: what goes back, or on; INT_MAX: behind the results */
void lw_loans_settle(struct lw *w, struct frame *f);                /* before a collective: awaits what its storage is wanted from */
void lw_loans_enter(struct lw *w, struct frame *f);                 /* before another block: awaits what is back */
/* Before the results of f's block move to their places: if one of these is lent still, as what a carry or a donated argument was, what is shown
 * is copied first, and goes back. */
void lw_loans_moves(struct lw *w, struct frame *f, struct move *mv, int n);
void lw_loans_close(struct lw *w, struct frame *f);                 /* at the end of f's block: all goes back, and is awaited */

/* --- gather.c --- */
/* Per value: is it an all_gather's result that is read where it lies? */
bool *lw_gathers(struct lw *w, const struct frame *f);
/* Which concatenations nobody but attention reads: their operands stay until it has. */
void lw_pieces_plan(struct lw *w, struct frame *f);
/* Concatenation o stays in pieces.  False: it does not. */
bool lw_side_by_side(struct lw *w, struct frame *f, const struct ir_op *o);
/* If o is an attention that reads such, or what is gathered: kernel k, and its places, of all the arrays that they are. */
void lw_in_pieces(struct lw *w, struct frame *f, const struct ir_op *o, struct prog_kern *k, struct place ***pl);

/* --- steps.c, group.c, flow.c: op i of f --- */
struct err *lower_steps(struct lw *w, struct frame *f, int i);        /* as eval does it, kernel by kernel */
struct err *lower_constant(struct lw *w, struct frame *f, const struct ir_op *o);
struct err *lower_coll(struct lw *w, struct frame *f, int i);
struct err *lower_custom(struct lw *w, struct frame *f, int i);
struct err *lower_scalar(struct lw *w, struct frame *f, int i);       /* tokens, and the number of the device */
struct err *lower_fused(struct lw *w, struct frame *f, int i);
struct err *lower_loop(struct lw *w, struct frame *f, int i);
struct err *lower_case(struct lw *w, struct frame *f, int i);

/* --- frame.c --- */
void lw_frame_init(struct lw *w, struct frame *f, const struct ir_fn *fn);
void lw_roots(const struct lw *w, const struct ir_fn *fn, ir_val *root, int *last);        /* as of struct frame, an entry for each value */
/* Do o's results show its operands' bytes? */
bool lw_is_alias(const struct lw *w, const struct ir_fn *fn, const struct ir_op *o);
/* A dense place for v, copying once if it lies strided. */
struct place *lw_dense(struct lw *w, struct frame *f, ir_val v);
/* How often operands of op o show the value behind root r. */
int lw_uses(const struct frame *f, const struct ir_op *o, ir_val r);
/* May op i write over the storage of operand v?  Gives the place to write, or NULL. */
struct place *lw_steal(struct lw *w, struct frame *f, int i, ir_val v);
/* May op i write at t, where a result is wanted?  Nothing that still shows the old contents may be read at or after i. */
bool lw_free_at(struct lw *w, struct frame *f, int i, const struct place *t);
/* Group g reads operand k only at the index at which it writes all its results, which are made of operands. */
bool lw_same_index(const struct lw *w, const struct ir_fn *g, uint32_t k);
/* A collective that may leave each result over its operand. */
bool lw_in_place(const struct lw *w, const struct ir_fn *fn, const struct ir_op *o);
/* Place for result v of op i: where it is wanted, else over an operand that dies, else new. */
struct place *lw_result_at(struct lw *w, struct frame *f, int i, ir_val v);
/* Value v of f is wanted at t: what makes it, behind views that strides can say, leaves it there if it can.  A wish that is there stays. */
void lw_target(struct lw *w, struct frame *f, ir_val v, struct place *t);
/* Result v of o, if that writes any strides: where the one view of it that is read is dense, rows in one piece. */
void lw_lay_as_read(struct lw *w, struct frame *f, const struct ir_op *o, ir_val v);
/* Op i, a reshape that strides cannot say: a copy where it is wanted, its own.  False: it is not, or that is not free. */
bool lw_reshape_into(struct lw *w, struct frame *f, int i);
/* Push the wish for a place backwards through updates in place. */
void lw_targets_back(struct lw *w, struct frame *f);
/* Does src already lie where dst wants it?  An argument donated to an output does. */
bool lw_same_place(const struct lw *w, const struct place *a, const struct place *b);
/* Copies that happen at once: a source that an earlier one overwrites (or its own, when they overlap) goes to a
 * temporary first. */
void lw_move_all(struct lw *w, struct move *mv, int n);

/* --- place.c --- */
bool lw_shares(const struct lw *w, int a, int b);                   /* may two stores have bytes in common (an output and the argument donated to it)? */
int lw_store_new(struct lw *w, enum prog_buf_kind kind, int64_t bytes, uint32_t index);
void lw_store_touch(struct lw *w, int store);                       /* read or written by the next command of this lane */
struct place *lw_place_new(struct lw *w, int store, enum dtype dt, int rank, const int64_t *dim);    /* dense, off 0 */
struct place *lw_place_like(struct lw *w, const struct place *p);
bool lw_place_dense(const struct place *p);                         /* row-major without gaps; registers may be set */
bool lw_place_block(const struct place *p);                         /* the same, dimensions in any order: all of a block of memory */
int64_t lw_place_bytes(const struct place *p);
struct prog_opnd lw_place_opnd(struct lw *w, const struct place *p);
/* The view op o of operand place p as a place on the same storage; NULL if strides cannot say it. */
struct place *lw_place_view(struct lw *w, const struct ir_fn *fn, const struct ir_op *o, const struct place *p);
/* p with type dt, rank, dim by reshaping; NULL if strides cannot say it. */
struct place *lw_place_reshape(struct lw *w, const struct place *p, enum dtype dt, int rank, const int64_t *dim);

/* --- memory.c --- */
/* Offsets of the TEMP buffers in the program zone, or in results that are not begun yet: of two that overlap, one is not made before all
 * lanes are known to be done with the other.  Sets p->zone. */
void lw_memory_plan(struct lw *w);

/* --- follow.c --- */
/* Which kernels of p, whose code is there, follow what is before them. */
void lw_follow(struct arena *tmp, struct prog *p);

/* --- code.c --- */
/* The code of all that is pending.  *again: the generator refused some, which are marked: the program must be laid out anew. */
struct err *lw_code(struct lw *w, bool *again);

#endif
