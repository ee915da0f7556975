/* Permutes whose result is read where it lies.
 *
 * A permute of many bytes lends its operand; the receiver copies it and gives the loan back.  The copy can go when
 * the result is a temporary that only later commands of the same block read: these read the sender's memory
 * instead, and the loan goes back after the last of them.  Then the sender must leave its operand alone until it is
 * back, and no device may wait for a loan that its debtor gives back only after a wait for this one.  So, in the
 * block of the permute:
 *
 *   permute X -> T        lends X; T is where the peer's X lies
 *   ..                    no communication, no host code
 *   last reader of T      the loan is given back
 *   ..                    no communication, no write to the storage of X
 *   here                  waits until X is back: before the first of these, at the latest at the end of the block
 *
 * On the wire it is the copying permute: a loan, and its return.  A device that reads in place returns it without waiting for
 * anybody, so each takes the decision for itself: another may copy.  It is only taken where all the program's devices see
 * each other's memory. */
#include "impl.h"

enum { WORK = 1 << 24 };          /* commands looked at, at most */

struct seen { int reads; bool writes_t, writes_x, comm; };

bool bufs_meet(const struct prog *p, uint32_t x, uint32_t y)
{
	const struct prog_buf *a = &p->buf[x], *b = &p->buf[y];

	if (x == y)
		return true;
	if (a->kind == BUF_TEMP && b->kind == BUF_TEMP)
		return a->alias == b->alias && a->off < b->off + b->size && b->off < a->off + a->size;
	return (b->kind < BUF_CONST && b->alias == (int32_t)x) || (a->kind < BUF_CONST && a->alias == (int32_t)y);
}

void cmd_operands(const struct prog *p, const struct prog_cmd *c, uint32_t *nin, uint32_t *nout)
{
	*nin = *nout = 0;
	switch (c->op) {
	case CMD_KERN: *nin = p->kern[c->id].nin, *nout = p->kern[c->id].nout; break;
	case CMD_COLL: *nin = *nout = p->coll[c->id].nin; break;
	case CMD_CUSTOM: *nin = p->custom[c->id].nin, *nout = p->custom[c->id].nout; break;
	case CMD_LD: *nin = c->nopnd; break;
	case CMD_ST: *nout = c->nopnd; break;
	default: *nin = c->nopnd; break;
	}
}

/* What command c does with T and with the storage of X, what it encloses included. */
static void look(const struct prog *p, const struct prog_cmd *c, uint32_t t, uint32_t x, struct seen *s, int64_t *work, int depth)
{
	uint32_t nin, nout;

	cmd_operands(p, c, &nin, &nout);
	*work += 1;
	s->comm |= c->op == CMD_COLL || c->op == CMD_CUSTOM || depth > 64 || *work > WORK || nin + nout != c->nopnd;
	for (uint32_t k = 0; k < c->nopnd; k++) {
		uint32_t b = p->opnd[c->opnd + k].buf;
		if (k < nin)
			s->reads += b == t;
		else {
			s->writes_t |= b == t;
			s->writes_x |= bufs_meet(p, x, b);
		}
	}
	for (uint32_t k = 0; k < c->nblock && !s->comm; k++) {
		const struct prog_block *b = &p->block[p->sub[c->block + k]];
		for (uint32_t i = 0; i < b->n; i++)
			look(p, &b->cmd[i], t, x, s, work, depth + 1);
	}
}

/* Readers and writers of each buffer in the whole program. */
static void count(const struct prog *p, int *reads, int *writes)
{
	for (uint32_t b = 0; b < p->nblock; b++)
		for (uint32_t i = 0; i < p->block[b].n; i++) {
			const struct prog_cmd *c = &p->block[b].cmd[i];
			uint32_t nin, nout;
			cmd_operands(p, c, &nin, &nout);
			for (uint32_t k = 0; k < c->nopnd; k++)
				(k < nin ? reads : writes)[p->opnd[c->opnd + k].buf]++;
		}
}

static bool fits(const struct rt_exec *x, const struct prog_cmd *c, const int *writes)
{
	const struct prog *p = x->p;
	const struct prog_coll *k = &p->coll[c->id];

	if (c->op != CMD_COLL || k->kind != COLL_permute || k->nin != 1 || c->nopnd != 2)
		return false;
	const struct prog_opnd *from = &p->opnd[c->opnd], *to = from + 1;
	const struct prog_buf *t = &p->buf[to->buf];
	return t->kind == BUF_TEMP && !to->off && !to->reg[0] && !to->reg[1] && t->size == k->outer * k->inner && writes[to->buf] == 1 &&
	       !bufs_meet(p, from->buf, to->buf) && coll_lends(x->dev[0]->coll, k);
}

bool lend_plan(const struct rt_exec *x, uint8_t *const *mark)
{
	const struct prog *p = x->p;
	int64_t work = 0;
	bool any = false;

	if (!p->ncoll || !x->nlocal)
		return false;
	for (int i = 0; i < p->ndev; i++)
		if (!sym_mapped(x->c->world, x->id[i]))
			return false;
	int *reads = mem_alloc(sizeof *reads * (size_t)MAX(p->nbuf, 1)), *writes = mem_alloc(sizeof *writes * (size_t)MAX(p->nbuf, 1));
	count(p, reads, writes);
	for (uint32_t b = 0; b < p->nblock; b++) {
		const struct prog_block *blk = &p->block[b];
		for (uint32_t i = 0; i < blk->n; i++) {
			if (!fits(x, &blk->cmd[i], writes))
				continue;
			uint32_t t = p->opnd[blk->cmd[i].opnd + 1].buf, from = p->opnd[blk->cmd[i].opnd].buf, last = 0, k = i + 1;
			int left = reads[t];
			bool ok = left > 0;
			for (; k < blk->n && left > 0 && ok; k++) {
				struct seen s = { 0 };
				look(p, &blk->cmd[k], t, from, &s, &work, 0);
				left -= s.reads;
				ok = !s.comm && !s.writes_t && !s.writes_x;
				last = s.reads ? k : last;
			}
			if (!ok || left)
				continue;
			for (; k < blk->n; k++) {
				struct seen s = { 0 };
				look(p, &blk->cmd[k], t, from, &s, &work, 0);
				if (s.comm || s.writes_x)
					break;
			}
			mark[b][i] |= LEND_HERE;
			mark[b][last] |= LEND_BACK;
			mark[b][k] |= LEND_WAIT;
			any = true;
		}
	}
	free(reads);
	free(writes);
	return any;
}
