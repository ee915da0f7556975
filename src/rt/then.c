/* Kernels that follow an all_reduce or a reduce_scatter part by part (prog.h: enum prog_then).
 *
 * Of a reduce_scatter each device runs it for its own block.  A kernel that makes the same several times over (it repeats the block)
 * may write over the operand: each device writes its own block of that, which nobody else reads, part by part, and copies it to
 * the others when all have read theirs. */
#include "impl.h"

void then_init(const struct prog *p, const struct prog_cmd *r, const struct prog_cmd *c, struct ins *i)
{
	i->r0 = c->imm == THEN_all;
	i->imm = 0;
	for (int v = 0; v < p->kern[c->id].nin; v++)
		if (p->opnd[c->opnd + (uint32_t)v].buf == p->opnd[r->opnd + 1].buf)
			i->imm |= (int64_t)1 << v;
}

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

/* A reduce_scatter: c by its follower k. */
static struct err *scattered(struct frame *f, const struct ins *i, const struct prog_coll *c, struct follow *u, char **ptr)
{
	const struct prog_group *g = &f->x->p->group[c->group];
	int64_t n = c->outer * c->inner;
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
	}
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

	for (uint32_t j = 0; j < 2; j++)
		ptr[j] = opnd_at(&o[j], f->c->base, f->c->reg);
	for (uint32_t j = 0; j < i[1].nopnd; j++)
		ptr[2 + j] = opnd_at(&ko[j], f->c->base, f->c->reg);
	struct follow u = { k, ptr + 2, (uint64_t)i[1].imm, k->k->block * dtype_info[c->dtype].bytes, k->k->times, true };
	if (c->kind == COLL_reduce_scatter)
		return scattered(f, i, c, &u, ptr);
	struct coll_then t = { .run = follow, .user = &u, .unit = u.unit, .out = i[1].r0 ? ptr[2 + k->k->nin] : NULL };
	return coll_run(&f->coll, c, (uint32_t)i->imm, ptr, i->r0, &t);
}
