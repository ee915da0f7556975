/* An attention whose operands are gathered from the members of a group, so that it can be done in turns: for ring_find.c, ring_seen.c, ring_loop.c,
 * ring_hosts.c, balance.c, ring_heads.c, ring.c. */
#ifndef RONDO_PASS_RING_H
#define RONDO_PASS_RING_H

#include "passes.h"

/* Views between a gather and its reader; operands. */
enum { RING_VIEWS = 8, RING_IN = 64 };

/* What is gathered: keys, values and what is theirs; or queries and what is theirs, of a gradient. */
enum ring_side { RING_KEYS, RING_QUERIES };
/* How an operand is on each device: the same in all turns, gathered from blocks, or of the whole side anyhow. */
enum ring_way { RING_FIXED, RING_ROUND, RING_WHOLE };
/* What an operand is along what each device has of its own: the same on all members, as far as it goes; a row for each of the own ones; or one value for all of
 * these, which may be another on each member. */
enum ring_own { RING_SAME, RING_ROWS, RING_EACH };
/* The two ways round, to those before in a row and to those behind, cyclically. */
enum ring_round { RING_BEFORE, RING_BEHIND };
/* From the collective on, or up to it, in order. */
struct ring_chain { const struct ir_op *end; int n; const struct ir_op *view[RING_VIEWS]; };

struct ring {
	int op[(RING_IN + 4) * (RING_VIEWS + 1) + 4], nop;   /* that give way, in order */
	const struct ir_op *att;             /* attention, attention_grad, attention_grad_add */
	enum ring_side side;
	ir_group group;
	int64_t members, len;                /* of a row of the group; of the side that each has */
	uint32_t nmust;                      /* operands of which none may be there whole: all but those that scores are made from */
	enum ring_way way[RING_IN];
	int dim[RING_IN];                    /* the operand's dimension that is the side; -1: none */
	struct ring_chain from[RING_IN];     /* of what is gathered */
	struct ring_chain to[3];             /* of results that are scattered; no end: the others */
	int nres;
	const int *hop[2];                   /* of each member's block, how far it goes each way (ring_reach) */
	int64_t row[2][2];                   /* of a block that goes that way, the first row that is seen where it goes, and behind the last one (ring_reach) */
	double hidden;                       /* scores up to it have no weight, as each row has others; -INFINITY: none are known (ring_reach) */
	int heads, parts;                    /* the dimension of all operands of products that hosts have parts of, instead of rows, and in how many parts it goes (ring_heads) */
	ir_val in[RING_IN], out[3];          /* what the region reads and gives */
};

/* The attention that op i is, if all that is gathered for it, and scattered of it, is so among the rows of one group that has every device.
 * In r->op are it and what scatters; what gathers, which others may read, is added by ring_take where nobody does.  *r is big: the caller's, on no stack. */
bool ring_find(const struct ir_module *m, const struct ir_fn *fn, int i, struct ring *r);
/* Has a program any at all? */
bool ring_any(const struct ir_module *m);
/* Shall even what gains nothing be done?  RONDO_ATTENTION says so. */
bool ring_small_too(void);
/* The operand that the second parameter of the score function is. */
uint32_t ring_first_extra(const struct ring *r);
/* Op gives way as well; of its operands' chains. */
void ring_take(struct ring *r, int op);
/* Fills in, per operand, what it is of the own side; false: of some, which has an element for each of what is gathered, it is not known what it is on others. */
bool ring_owned(const struct ir_module *m, const struct ir_fn *fn, const struct ring *r, enum ring_own *own);

/* Emits at b, of fn's ops: x, one of n equal blocks of what is gathered for operand k, as the attention reads it. */
ir_val ring_read(struct ir_b *b, const struct ir_fn *fn, const struct ring *r, int k, ir_val x, int64_t n);
/* x[k], the own block of each result: in the types, and as the views, that their readers want. */
void ring_give(struct ir_b *b, const struct ir_fn *fn, const struct ring *r, ir_val *x);
/* Block `which` (a scalar, i32) of len along dimension d of x. */
ir_val ring_block(struct ir_b *b, ir_val x, int d, int64_t len, ir_val which);
/* The number in its row of the device that runs it, over `by`; and (own + turn) modulo n. */
ir_val ring_own(struct ir_b *b, const struct ring *r, int by);
ir_val ring_whose(struct ir_b *b, ir_val own, ir_val turn, int64_t n);
/* x, of which dimension d is 1, for each of n. */
ir_val ring_for_each(struct ir_b *b, ir_val x, int d, int64_t n);
/* x goes from each member k of a row to member to[k], from which none if that is negative; 0: from none at all.  loc: of the collective that it stands for,
 * by which rondo explain knows what that is. */
ir_val ring_send(struct ir_b *b, const struct ring *r, ir_val x, const int *to, ir_loc loc);
/* The score function with -inf, and a slope of 0, where one more parameter is false, or where it hides (r->hidden). */
ir_fnid ring_there(struct ir_b *b, const struct ir_fn *fn, const struct ring *r);
/* The same where a score is no more than `hidden`. */
ir_fnid ring_hidden(struct ir_b *b, const struct ir_fn *fn, const struct ring *r, double hidden);
/* The type in which results are added up: as that of an op's value v, f64 if the attention has such an operand, else f32; its dimension d, if any, is n. */
ir_type ring_sum_type(struct ir_b *b, const struct ir_fn *fn, const struct ring *r, ir_val v, int d, int64_t n);
/* Dimension of result k that is the side; -1: none. */
int ring_result_dim(const struct ir_module *m, const struct ir_fn *fn, const struct ring *r, int k);
/* Dimension of operand k, of result k, that is the other side, of which each device has its own: queries where keys are gathered; -1: none. */
int ring_own_dim(const struct ir_module *m, const struct ir_fn *fn, const struct ring *r, uint32_t k);
int ring_own_result_dim(const struct ir_module *m, const struct ir_fn *fn, const struct ring *r, int k);

/* ring_seen.c: of part i, of `own`, of member k and part j, of `parts`, of member b, at [k * own + i][b * parts + j]: can anything that is calculated with
 * the former, on k, depend on the latter, which is gathered from b?  Yes in one row of the group is yes.  Owned by the arena.  hidden: gets a number such that scores up
 * to it might as well be -inf; -INFINITY: there is none. */
const bool *ring_seen(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ring *r, int own, int parts, double *hidden);
/* Fills in r->row, and r->hop, owned by the arena, where places have d members each: to all places that see any of a block, by as few hops as can be, and of such
 * ways one in as few turns as can be, to places before its own where that is the same; all: as if everybody saw everything. */
void ring_reach(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, struct ring *r, int d, bool all);
int ring_far(const struct ring *r, int way);             /* the most hops */

/* ring_said.c: how an attention gets what it gathers, for who asks: what is not known is 0.  In place, where it is copied only if that cannot be lent. */
enum ring_road { RING_IN_PLACE, RING_GATHERED, RING_LOOP, RING_HOSTS, RING_HEADS };
struct ring_said {
	ir_loc where;
	bool back, exchanged;                /* a gradient; halves of uneven work are exchanged */
	enum ring_side side;
	enum ring_road road;
	int members, hosts, turns, cores;    /* turns: of rows for heads parts */
	double busy, dealt;                  /* the work of the device that has most, over the mean; the same with halves exchanged */
	double saves, takes;                 /* nanoseconds of the exchange */
	double open, gathered, heads;        /* nanoseconds that turns over hosts are not beside computing; of gathering all; of exchanging rows for heads */
	double late, bytes;                  /* of the first two: waiting for the busiest device, or the exchange of halves; bytes that come into a host for heads */
};
struct ring_record { ARR(struct ring_said) said; };
/* That of all attentions of a line, or of all gradients; of what a host does of one, too.  Borrowed until the next.  NULL: nobody asks. */
struct ring_said *ring_said(const struct pass_opts *o, const struct ir_module *m, const struct ring *r);

/* ring_loop.c: turns of one device's block each, in a loop; where devices map each other's memory. */
bool ring_loops(const struct pass_opts *o, struct arena *a, const struct ir_module *m, const struct ir_fn *fn, struct ring *r);
int ring_loop_turns(const struct ring *r);
void ring_loop(struct ir_b *b, const struct ir_fn *fn, const struct ring *r, const ir_val *in, ir_val *out);

/* ring_hosts.c: turns of one host's blocks each. */
/* Devices of the group on each host, if all rows have as many of each, side by side; 0: they have not, or there is one host.  One, wherever they are, where all is sent. */
int ring_per_host(const struct pass_opts *o, const struct ir_module *m, const struct ring *r);
/* Nanoseconds that no computing hides, in turns, where all blocks go to all hosts if `all`; and of gathering all.  false: turns cannot be. */
bool ring_price(const struct pass_opts *o, struct arena *a, const struct ir_module *m, const struct ir_fn *fn, struct ring *r, bool all, double *open, double *gathered);
bool ring_hosts(const struct pass_opts *o, struct arena *a, const struct ir_module *m, const struct ir_fn *fn, struct ring *r, struct ring_said *said);
void ring_turns(const struct pass_opts *o, struct ir_b *b, const struct ir_fn *fn, const struct ring *r, const ir_val *in, ir_val *out);

/* balance.c: nanoseconds that r takes longer because of a mask: what the device with most work takes longer than if all had as much, between hosts a part of that, since
 * little is known of the link by which it might be less; or, if pairs exchange halves (*all: all blocks go to all hosts then), that. */
double ring_uneven(const struct pass_opts *o, struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ring *r, bool *all);

/* ring_heads.c: hosts exchange rows for heads.  May change how r has operands of scores, and what it gives. */
bool ring_heads(const struct pass_opts *o, struct arena *a, const struct ir_module *m, const struct ir_fn *fn, struct ring *r, struct ring_said *said);
void ring_heads_emit(const struct pass_opts *o, struct ir_b *b, const struct ir_fn *fn, struct ring *r, const ir_val *in, ir_val *out);

#endif
