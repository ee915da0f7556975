/* Kernels that follow a sum over devices part by part (prog.h: enum prog_then): what reads every element of the sum once more does that while
 * it is in the caches, instead of in a pass of its own over memory.  If it reads nothing but the sum and constants, the device that has
 * reduced a part runs it for all, and the others fetch what it has made.
 *
 * Decided when it is known where everything lies and what the tiles of the code read.  The kernel is the next command, or a later one
 * that nothing in between keeps from moving up: no command there touches what it writes, or writes what it reads.  What is dear is rather a
 * pass of its own, which devices that wait can share; what all get from who has reduced it is done once, however dear. */
#include "lw.h"

enum { FAR = 256 };                  /* commands that are looked at */

static void cmd_operands(const struct prog *p, const struct prog_cmd *c, uint32_t *nin, uint32_t *nout)
{
	*nout = c->op == CMD_KERN ? p->kern[c->id].nout : c->op == CMD_COLL ? p->coll[c->id].nin : c->op == CMD_CUSTOM ? p->custom[c->id].nout
	      : c->op == CMD_NEXT ? c->nopnd - 1 : c->op == CMD_ST;
	*nin = c->nopnd - *nout;
}

/* Commands that read each buffer. */
static int *readers(struct arena *a, const struct prog *p)
{
	int *n = ARENA_NEW(a, int, p->nbuf);
	for (uint32_t b = 0; b < p->nblock; b++)
		for (uint32_t i = 0; i < p->block[b].n; i++) {
			uint32_t nin, nout;
			cmd_operands(p, &p->block[b].cmd[i], &nin, &nout);
			const struct prog_opnd *o = &p->opnd[p->block[b].cmd[i].opnd];
			for (uint32_t k = 0; k < nin; k++) {
				uint32_t j = 0;
				while (j < k && o[j].buf != o[k].buf)
					j++;
				n[o[k].buf] += j == k;
			}
		}
	return n;
}

/* May two buffers share bytes? */
static bool meet(const struct prog *p, uint32_t x, uint32_t y)
{
	int64_t a, b;
	return prog_space(p, x, &a) == prog_space(p, y, &b) && a < b + p->buf[y].size && b < a + p->buf[x].size;
}

static bool begin_alike(const struct prog *p, const struct prog_opnd *x, const struct prog_opnd *y)
{
	struct prog_opnd u = *x, v = *y;
	int64_t a, b;
	if (prog_space(p, u.buf, &a) != prog_space(p, v.buf, &b))
		return false;
	u.off += a;
	v.off += b;
	u.buf = v.buf;
	return prog_same_opnd(&u, &v);
}

/* Do parts of kernel command c leave the operand of collective r alone, which peers may still read? */
static bool clear(const struct prog *p, const struct prog_cmd *r, const struct prog_cmd *c)
{
	const struct prog_kern *k = &p->kern[c->id];
	const struct prog_opnd *x = &p->opnd[r->opnd], *z = &p->opnd[c->opnd + k->nin];
	for (uint32_t i = 0; i < k->nout; i++)
		if (meet(p, z[i].buf, x->buf) && !(begin_alike(p, &z[i], x) && prog_then_over(p, r, c, i)))
			return false;
	return true;
}

static enum prog_then way(const struct prog *p, const struct prog_cmd *r, const struct prog_cmd *c, const int *reads)
{
	const struct prog_kern *k = &p->kern[c->id];
	const struct prog_opnd *sum = &p->opnd[r->opnd + 1];
	bool own = p->coll[r->id].kind == COLL_reduce_scatter, dear = k->flops > k->bytes;
	bool gone = p->buf[sum->buf].kind == BUF_TEMP && reads[sum->buf] == 1;
	bool over = !own && k->nout && prog_same_opnd(&p->opnd[c->opnd + k->nin], sum);
	if ((gone || over) && !(own && dear) && !prog_follows_not(p, r, c, THEN_all) && clear(p, r, c))
		return THEN_all;
	return !dear && !prog_follows_not(p, r, c, THEN_each) && clear(p, r, c) ? THEN_each : THEN_none;
}

/* May kernel command c run before m, which comes before it? */
static bool passes(const struct prog *p, const struct prog_cmd *c, const struct prog_cmd *m)
{
	uint32_t in = p->kern[c->id].nin, nin, nout;
	cmd_operands(p, m, &nin, &nout);
	for (uint32_t i = 0; i < nin + nout; i++)
		for (uint32_t j = 0; j < c->nopnd; j++)
			if ((i >= nin || j >= in) && meet(p, p->opnd[m->opnd + i].buf, p->opnd[c->opnd + j].buf))
				return false;
	return true;
}

/* Can command j of the block be the next after i?  What other lanes have begun in this block (lane.c) may be under way until it is awaited. */
static bool moves(const struct prog *p, const struct prog_block *b, uint32_t i, uint32_t j)
{
	bool awaits = false;
	for (uint32_t m = i + 1; m < j; m++) {
		awaits |= b->cmd[m].op == CMD_AWAIT;
		if ((b->cmd[m].op == CMD_KERN || b->cmd[m].op == CMD_COLL) && !passes(p, &b->cmd[j], &b->cmd[m]))
			return false;
	}
	for (uint32_t m = 0; m < i && awaits; m++)
		if (b->cmd[m].lane && b->cmd[m].op == CMD_COLL && !passes(p, &b->cmd[j], &b->cmd[m]))
			return false;
	return true;
}

static void follow(const struct prog *p, struct prog_block *b, uint32_t i, const int *reads)
{
	for (uint32_t j = i + 1; j < b->n && j <= i + FAR; j++) {
		struct prog_cmd c = b->cmd[j];
		if (c.op != CMD_KERN && c.op != CMD_COLL && c.op != CMD_MARK && c.op != CMD_AWAIT)
			return;
		if (c.op != CMD_KERN || c.imm)
			continue;
		c.imm = way(p, &b->cmd[i], &c, reads);
		if (!c.imm || !moves(p, b, i, j))
			continue;
		memmove(&b->cmd[i + 2], &b->cmd[i + 1], sizeof c * (j - i - 1));
		b->cmd[i + 1] = c;
		return;
	}
}

void lw_follow(struct arena *tmp, struct prog *p)
{
	const int *reads = readers(tmp, p);
	for (uint32_t b = 0; b < p->nblock; b++)
		for (uint32_t i = 0; i < p->block[b].n; i++)
			if (p->block[b].cmd[i].op == CMD_COLL)
				follow(p, &p->block[b], i, reads);
}
