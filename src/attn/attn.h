/* Attention as programs write it -> the ops attention and attention_grad (docs/attention.md).
 *
 * A candidate is a product q . k of which something like an exponential is summed over keys.  axes.c says which dimensions of the values around
 * it are queries and keys, poly.c and form.c bring them into a normal form, match.c reads off it what leaves the region, region.c asks
 * that nothing else does, lookup.c has what is looked up by position, place.c and emit.c write the ops, parts.c keeps o precise for gradients, check.c runs both on samples.  No templates: what is not arithmetic in the normal form is
 * an unknown, and a program that cannot be brought to the ops' form stays as it is. */
#ifndef RONDO_ATTN_H
#define RONDO_ATTN_H

#include "../base/base.h"
#include "../ir/ir.h"
#include "../eval/eval.h"

/* What became of one candidate. */
struct attn_said { ir_loc where; const char *why; ir_loc by; };      /* why NULL: recognised; else the reason, and the op that is it (0: none) */
struct attn_record { ARR(struct attn_said) said; };

/* A value that the ops give in the place of what made it: value `v` of the function is what attn_emit makes from values in (nin of them). */
struct attn_exit { ir_val v; const ir_val *in; int nin; void *own; };
struct attn_plan { ARR(struct attn_exit) exit; };

/* around[v]: v is a matrix of queries by keys, or rows of sums over keys, of something that may be an attention.  fn->val.n entries. */
void attn_around(struct arena *a, struct ir_module *m, const struct ir_fn *fn, bool all, bool *around);
/* The attentions of fn that are worth it: with `all` even small ones.  Functions that fn's attentions need are added to m only by attn_emit.
 * rec: gets what became of each candidate; NULL: nobody asks.  The plan ends with attn_plan_free, before its arena. */
void attn_find(struct arena *a, struct ir_module *m, const struct ir_fn *fn, bool all, struct attn_record *rec, struct attn_plan *out);
void attn_plan_free(struct attn_plan *p);
/* Emits exit x: in are x->in in the new function.  Exits of a plan are emitted into one function, in an order in which each one's values are there. */
ir_val attn_emit(const struct attn_exit *x, struct ir_b *b, const ir_val *in);

/* --- parts.c --- */
/* o, of f32, as bf16 and a byte of what that lacks; and the sum of the two. */
ir_val attn_two_parts(struct ir_b *b, ir_val o, ir_val *below);
ir_val attn_whole(struct ir_b *b, ir_val high, ir_val below);
enum { ATTN_BETWEEN = 8 };
/* The op that gives the two parts of o's first result if o is an attention and nothing else reads that; NULL: there is none.  between: the ops
 * that make them, which nothing else reads either. */
const struct ir_op *attn_parts_of(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, int between[ATTN_BETWEEN]);

#endif
