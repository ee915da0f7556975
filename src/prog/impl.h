/* What the files of prog share. */
#ifndef RONDO_PROG_IMPL_H
#define RONDO_PROG_IMPL_H

#include "prog.h"

/* Every id, index, count and range of p points at something: after this no walk over p leaves its
 * tables or fails to end.  Says nothing about what the commands do (prog_check). */
struct err *valid_prog(const struct prog *p);

/* The line of a command without its blocks, as in the text form. */
void print_cmd(struct str *s, const struct prog *p, const struct prog_cmd *c);

/* Operands then results of a collective or a kernel: what a command on it must bring. */
static inline uint32_t coll_nin(const struct prog_coll *c) { return c->nin + (c->slices > 0); }
static inline uint32_t coll_nopnd(const struct prog_coll *c) { return coll_nin(c) + c->nin; }
static inline uint32_t kern_nopnd(const struct prog_kern *k) { return (uint32_t)k->nin + k->nout; }
static inline uint32_t custom_nopnd(const struct prog_custom *c) { return (uint32_t)c->nin + c->nout; }
static inline bool is_loan(unsigned op) { return op >= CMD_LEND && op <= CMD_WAIT; }
/* Bytes that permute c moves; of one of the two halves of a buffer for it. */
/* Of which position its links say who gives to whom. */
static inline bool prog_has_links(const struct prog_coll *c) { return c->kind == COLL_permute || c->hops; }
/* Buffers that a `next` of a loan shows it in. */
static inline uint32_t loan_shows(const struct prog *p, const struct prog_coll *c) { return c->kind == COLL_permute ? 1 : (uint32_t)p->group[c->group].ncol; }
static inline int64_t loan_bytes(const struct prog_coll *c) { return c->outer * c->inner; }
static inline int64_t loan_half(const struct prog_coll *c) { return (loan_bytes(c) + 63) & ~(int64_t)63; }
static inline int64_t group_size(const struct prog_group *g, int row)
{
	int64_t n = 0;
	for (int i = 0; i < g->ncol; i++)
		n += g->id[(int64_t)row * g->ncol + i] >= 0;
	return n;
}

#endif
