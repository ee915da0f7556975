/* Kernels that follow an all_reduce or a reduce_scatter part by part.
 *
 * psum(x) * c, or an optimizer that takes the sum of the gradients, reads every element of the sum once more.  A kernel
 * whose element i depends on elements i alone (struct prog_kern: block) may do that for each part of the sum when that
 * part is there, instead of in a pass of its own over memory.  If it reads nothing but the sum and constants, the
 * device that has reduced a part runs it for all, and the others fetch what it has made.
 *
 * The kernel is the next command, or a later one that nothing in between keeps from moving up: no command there
 * touches what it writes, or writes what it reads.
 *
 * Who makes what is agreed: the decisions for kernels of the sum alone are part of the program's identity.
 *
 * Of a reduce_scatter each device runs it for its own block.  A kernel that makes the same several times over (it repeats the block)
 * may write over the operand: each device writes its own block of that, which nobody else reads, part by part, and copies it to
 * the others when all have read theirs. */
#include "impl.h"

enum { LEAST = 128 << 10, FAR = 256 };    /* bytes that are worth it; commands that are looked at */

static bool same_opnd(const struct prog_opnd *a, const struct prog_opnd *b)
{
	return a->buf == b->buf && a->off == b->off && a->reg[0] == b->reg[0] && a->reg[1] == b->reg[1] &&
	       (!a->reg[0] || a->mul[0] == b->mul[0]) && (!a->reg[1] || a->mul[1] == b->mul[1]);
}

static int64_t elements(const struct prog_view *v)
{
	int64_t n = 1;

	for (int i = 0; i < v->rank; i++)
		n *= v->dim[i];
	return n;
}

/* May two buffers share bytes? */
static bool bufs_meet(const struct prog *p, uint32_t x, uint32_t y)
{
	const struct prog_buf *a = &p->buf[x], *b = &p->buf[y];
	bool za = a->kind == BUF_LENT || a->kind == BUF_TEMP, zb = b->kind == BUF_LENT || b->kind == BUF_TEMP;

	if (x == y)
		return true;
	if (za && zb)
		return a->alias == b->alias && a->off < b->off + b->size && b->off < a->off + a->size;
	return (b->kind < BUF_CONST && b->alias == (int32_t)x) || (a->kind < BUF_CONST && a->alias == (int32_t)y);
}

static void cmd_operands(const struct prog *p, const struct prog_cmd *c, uint32_t *nin, uint32_t *nout)
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

/* Does kernel command c follow collective command r, as far as the two alone can tell? */
static bool fits(const struct prog *p, const struct prog_cmd *r, const struct prog_cmd *c, struct then *t)
{
	const struct prog_coll *red = &p->coll[r->id];
	const struct prog_kern *k = &p->kern[c->id];
	const struct prog_opnd *sum = &p->opnd[r->opnd + 1], *o = &p->opnd[c->opnd];
	int64_t es = dtype_info[red->dtype].bytes, n = red->outer * red->inner / es, times;

	if (k->id != KERN_gen || !k->block || k->block * es % 64 || COLL_UNIT % (k->block * es) || k->nin > 60 || !k->nout)
		return false;
	*t = (struct then){ .pure = k->nout == 1 && dtype_info[k->v[k->nin].dtype].bytes == es };
	for (int i = 0; i < k->nin; i++) {
		if (o[i].buf == sum->buf) {
			if (!same_opnd(&o[i], sum) || k->v[i].dtype != red->dtype || elements(&k->v[i]) != n)
				return false;
			t->sums |= (uint64_t)1 << i;
			continue;
		}
		if (bufs_meet(p, o[i].buf, sum->buf))
			return false;
		t->pure &= p->buf[o[i].buf].kind == BUF_CONST;
	}
	times = elements(&k->v[k->nin]) / n;
	if (times != 1 && (red->kind != COLL_reduce_scatter || !t->pure || times < 1 || times > COLL_CYCLE))
		return false;
	for (int i = k->nin; i < k->nin + k->nout; i++)
		if (elements(&k->v[i]) != n * times)
			return false;
	t->times = (uint16_t)times;
	return t->sums != 0;
}

/* May c run before m, which comes before it? */
static bool passes(const struct prog *p, const struct prog_cmd *c, const struct prog_cmd *m)
{
	const struct prog_kern *k = &p->kern[c->id];
	uint32_t nin, nout;

	if (m->op != CMD_KERN && m->op != CMD_COLL)
		return false;
	cmd_operands(p, m, &nin, &nout);
	if (nin + nout != m->nopnd)
		return false;
	for (uint32_t i = 0; i < nin + nout; i++) {
		uint32_t b = p->opnd[m->opnd + i].buf;
		for (uint32_t j = 0; j < c->nopnd; j++)
			if ((i >= nin || j >= k->nin) && bufs_meet(p, b, p->opnd[c->opnd + j].buf))
				return false;
	}
	return true;
}

/* Commands that read the buffer, in the whole program. */
static int readers(const struct prog *p, uint32_t buf)
{
	int n = 0;

	for (uint32_t b = 0; b < p->nblock; b++)
		for (uint32_t i = 0; i < p->block[b].n; i++) {
			const struct prog_cmd *c = &p->block[b].cmd[i];
			uint32_t nin, nout;
			bool reads = false;
			cmd_operands(p, c, &nin, &nout);
			for (uint32_t k = 0; k < nin && k < c->nopnd; k++)
				reads |= p->opnd[c->opnd + k].buf == buf;
			n += reads;
		}
	return n;
}

bool then_plan(const struct rt_exec *x, uint32_t b, uint32_t i, uint32_t *at, struct then *out, uint64_t *hash)
{
	const struct prog *p = x->p;
	const struct prog_block *blk = &p->block[b];
	const struct prog_cmd *r = &blk->cmd[i];
	const struct prog_coll *red = &p->coll[r->id];

	bool own = r->op == CMD_COLL && red->kind == COLL_reduce_scatter;      /* no device runs it for another */
	if (r->op != CMD_COLL || (red->kind != COLL_all_reduce && !own) || red->nin != 1 || r->nopnd != 2 || red->outer * red->inner < LEAST || !x->nlocal)
		return false;
	for (int k = 0; k < p->ndev; k++)
		if (!sym_mapped(x->c->world, x->id[k]))
			return false;
	for (uint32_t j = i + 1; j < blk->n && j < i + FAR; j++) {
		const struct prog_cmd *c = &blk->cmd[j];
		if (c->op == CMD_MARK || c->op == CMD_AWAIT)
			continue;
		if (c->op == CMD_KERN && fits(p, r, c, out)) {
			const struct prog_kern *k = &p->kern[c->id];
			const struct prog_opnd *sum = &p->opnd[r->opnd + 1], *o = &p->opnd[c->opnd];
			for (uint32_t m = i + 1; m < j; m++)
				if (blk->cmd[m].op != CMD_MARK && blk->cmd[m].op != CMD_AWAIT && !passes(p, c, &blk->cmd[m]))
					return false;
			/* The sum itself is nowhere then: nobody else may want it. */
			bool kept = p->buf[sum->buf].kind != BUF_TEMP || readers(p, sum->buf) != 1;
			out->pure &= (!own && same_opnd(&o[k->nin], sum)) || !kept;
			/* With threads that share a kernel's work, its own pass is shorter than what the walk alone would take. */
			if ((!out->pure || own) && (x->dev[0]->nworker || k->flops > k->bytes))
				return false;
			*at = j;
			uint32_t w[2] = { r->id, (uint32_t)k->block };   /* where the commands stand may differ */
			if (out->pure && !own)
				*hash = hash_bytes(w, sizeof w, *hash + 2) | 1;
			return true;
		}
		if (c->op != CMD_KERN && c->op != CMD_COLL)
			return false;
	}
	return false;
}

/* --- as it runs -------------------------------------------------------------------------- */

/* times, all: how often the kernel makes the same; does it make all of that, or the first alone? */
struct follow { const struct kernel *k; char **ptr; uint64_t sums; int64_t unit, times; bool all; };

static char *back(const char *p, int64_t n) { return (char *)((uintptr_t)p - (uintptr_t)n); }

static void follow(void *v, const char *at, char *to, int64_t lo, int64_t hi)
{
	struct follow *u = v;
	int64_t t0 = lo / u->unit, t1 = (hi + u->unit - 1) / u->unit;

	for (int i = 0; i < u->k->k->nin; i++)
		if (u->sums >> i & 1)
			u->ptr[i] = back(at, lo);
	if (to)
		u->ptr[u->k->k->nin] = back(to, lo);
	if (u->all)
		u->k->code(u->ptr, t0 * u->times, t1 * u->times);
	for (int64_t t = t0; t < t1 && !u->all; t++)
		u->k->code(u->ptr, t * u->times, t * u->times + 1);
}

static bool apart(const char *a, const char *b, int64_t na, int64_t nb)
{
	return (uintptr_t)a + (uintptr_t)na <= (uintptr_t)b || (uintptr_t)b + (uintptr_t)nb <= (uintptr_t)a;
}

/* Must the kernel of t wait until all is done?  x, nx: what the others may still read; y: the sum. */
static bool waits(const struct kernel *k, char *const *res, int64_t elems, const char *x, int64_t nx, const char *y, int64_t ny, bool over)
{
	for (int v = k->k->nin; v < k->k->nin + k->k->nout; v++) {
		const char *r = res[v];
		int64_t nr = elems * dtype_info[k->k->v[v].dtype].bytes;
		if (!apart(x, r, nx, nr) && (!over || x != r || nr != nx))
			return true;
		if (!apart(y, r, ny, nr) && (y != r || nr != ny))
			return true;
	}
	return false;
}

/* A reduce_scatter: c by its follower k. */
static struct err *scattered(struct frame *f, const struct ins *i, const struct prog_coll *c, struct follow *u, char **ptr)
{
	const struct prog_group *g = &f->x->p->group[c->group];
	int64_t n = c->outer * c->inner, elems = n / dtype_info[c->dtype].bytes;
	int rank = g->rank[f->pos], members = 0;
	char *res = u->ptr[u->k->k->nin];
	struct coll_then t = { .run = follow, .user = u, .unit = u->unit, .alone = i[1].r0 };

	for (int k = 0; k < g->ncol && rank >= 0; k++)
		members += g->id[(int64_t)g->row[f->pos] * g->ncol + k] >= 0;
	/* Over the operand: its own block of that now, the others when nobody reads them. */
	bool over = u->times > 1 && members == u->times && res == ptr[0] && c->outer == 1 && dtype_info[u->k->k->v[u->k->k->nin].dtype].bytes == dtype_info[c->dtype].bytes;
	if (over) {
		u->all = false;
		u->ptr[u->k->k->nin] = res + rank * n;
	} else
		t.late = rank < 0 || waits(u->k, u->ptr, elems * u->times, ptr[0], n * members, ptr[1], n, false);
	TRY(coll_run(&f->coll, c, (uint32_t)i->imm, ptr, false, &t));
	for (int k = 0; k < members && over; k++)
		if (k != rank)
			memcpy(res + k * n, res + rank * n, (size_t)n);
	return NULL;
}

struct err *then_run(struct frame *f, const struct ins *i)
{
	const struct prog_coll *c = i->ref;
	const struct kernel *k = i[1].ref;
	const struct prog_opnd *o = f->x->p->opnd + i->opnd, *ko = f->x->p->opnd + i[1].opnd;
	char **ptr = f->c->ptr;
	int64_t es = dtype_info[c->dtype].bytes, n = c->outer * c->inner;

	for (uint32_t j = 0; j < 2; j++)
		ptr[j] = opnd_at(&o[j], f->c->base, f->c->reg);
	for (uint32_t j = 0; j < i[1].nopnd; j++)
		ptr[2 + j] = opnd_at(&ko[j], f->c->base, f->c->reg);
	struct follow u = { k, ptr + 2, (uint64_t)i[1].imm, k->k->block * es, i[1].r1, true };
	if (c->kind == COLL_reduce_scatter)
		return scattered(f, i, c, &u, ptr);
	struct coll_then t = { .run = follow, .user = &u, .unit = u.unit };
	if (i[1].r0)
		t.out = ptr[2 + k->k->nin];
	else
		t.late = waits(k, u.ptr, n / es, ptr[0], n, ptr[1], n, true);
	return coll_run(&f->coll, c, (uint32_t)i->imm, ptr, i->r0, &t);
}
