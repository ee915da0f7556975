/* Making and freeing programs, views, groups, and the hash of what is communicated. */
#include "impl.h"

#include <stdlib.h>
#include <sys/mman.h>

const char *const prog_kern_name[KERN_COUNT] = {
#define KERN(id, operands, attrs, meaning) [KERN_##id] = #id,
#include "kern.def"
#undef KERN
};

const char *const prog_algo_name[COLL_ALGOS] = {
#define ALGO(id, name, kinds, meaning) [COLL_##id] = name,
#include "../base/algo.def"
#undef ALGO
};
const char *const prog_coll_name[COLL_COUNT] = {
#define COLL(id, text) [COLL_##id] = text,
#include "../base/coll.def"
#undef COLL
};

struct prog *prog_new(void)
{
	struct prog *p = mem_alloc(sizeof *p);
	arena_init(&p->arena);
	p->name = arena_str(&p->arena, "", 0);
	p->ndev = 1;
	p->nreg = 1;
	return p;
}

void prog_free(struct prog *p)
{
	if (!p)
		return;
	if (p->launches.map)
		munmap(p->launches.map, p->launches.size);
	arena_fini(&p->arena);
	free(p);
}

int64_t prog_view_bytes(const struct prog_view *v)
{
	int64_t span = 1;
	for (int d = 0; d < v->rank; d++) {
		if (v->dim[d] == 0)
			return 0;
		span += (v->dim[d] - 1) * (v->stride[d] < 0 ? -v->stride[d] : v->stride[d]);
	}
	return span * dtype_info[v->dtype].bytes;
}

int64_t prog_view_count(const struct prog_view *v)
{
	int64_t n = 1;
	for (int d = 0; d < v->rank; d++)
		n *= v->dim[d];
	return n;
}

bool prog_view_dense(const struct prog_view *v)
{
	int64_t want = 1;
	for (int d = v->rank - 1; d >= 0; d--) {
		if (v->dim[d] == 0)
			return true;
		if (v->dim[d] != 1 && v->stride[d] != want)
			return false;
		want *= v->dim[d];
	}
	return true;
}

void prog_view_make(struct arena *a, struct prog_view *v, enum dtype dt, int rank, const int64_t *dim)
{
	v->dtype = (uint8_t)dt;
	v->rank = (uint8_t)rank;
	v->off = 0;
	v->dim = arena_copy(a, dim, sizeof *dim * (size_t)rank);
	v->stride = ARENA_NEW(a, int64_t, rank);
	int64_t step = 1;
	for (int d = rank - 1; d >= 0; d--) {
		v->stride[d] = step;
		step *= dim[d];
	}
}

void prog_group_make(struct arena *a, struct prog_group *g, int ndev, int nrow, int ncol, const int64_t *id)
{
	g->nrow = nrow;
	g->ncol = ncol;
	g->id = arena_copy(a, id, sizeof *id * (size_t)nrow * (size_t)ncol);
	g->row = ARENA_NEW(a, int32_t, ndev);
	g->rank = ARENA_NEW(a, int32_t, ndev);
	for (int i = 0; i < ndev; i++)
		g->row[i] = g->rank[i] = -1;
	for (int r = 0; r < nrow; r++)
		for (int k = 0, rank = 0; k < ncol; k++) {
			int64_t pos = id[(int64_t)r * ncol + k];
			if (pos < 0 || pos >= ndev)
				continue;
			g->row[pos] = r;
			g->rank[pos] = rank++;
		}
}

/* --- communication hash --------------------------------------------------- */

static uint64_t add(uint64_t h, int64_t v)
{
	return hash_bytes(&v, sizeof v, h);
}

static uint64_t hash_coll(const struct prog *p, const struct prog_coll *c, uint64_t h)
{
	int64_t w[] = {c->kind, c->algo, c->dtype, c->redop, c->nin, c->outer, c->inner, c->outer2, c->inner2};
	h = hash_bytes(w, sizeof w, h);
	h = c->nbox ? hash_bytes(c->box, sizeof *c->box * c->nbox, h) : h;
	h = c->slices ? add(add(h, c->slices), c->row) : h;
	if (c->kind == COLL_permute) {
		h = hash_bytes(p->table[c->pairs].v, sizeof(int64_t) * (size_t)p->ndev, h);
	} else {
		const struct prog_group *g = &p->group[c->group];
		h = add(add(h, g->nrow), g->ncol);
		h = hash_bytes(g->id, sizeof *g->id * (size_t)g->nrow * (size_t)g->ncol, h);
	}
	for (int i = 0; c->expr && i < c->expr->n; i++)
		h = add(h, c->expr->ins[i].fn);
	return h;
}

/* A block without communication leaves h as it is, so that what happens inside a device does not show. */
static uint64_t hash_block(const struct prog *p, uint32_t b, uint64_t h)
{
	for (uint32_t i = 0; i < p->block[b].n; i++) {
		const struct prog_cmd *c = &p->block[b].cmd[i];
		if (c->op == CMD_COLL || is_loan(c->op))
			h = hash_coll(p, &p->coll[c->id], add(h, c->lane));
		if (is_loan(c->op))
			h = add(add(add(h, c->op), c->imm), p->coll[c->id].hops);
		if (c->op == CMD_KERN && c->imm == THEN_all && p->coll[c[-1].id].kind == COLL_all_reduce)      /* who makes what */
			h = add(add(h, CMD_KERN), p->kern[c->id].block);
		uint64_t in = h;
		for (uint32_t k = 0; k < c->nblock; k++) {
			uint64_t one = hash_block(p, p->sub[c->block + k], h);
			if (one != h)
				in = add(add(in, (int64_t)one), k);
		}
		if (in != h)
			h = add(add(in, c->op), c->op == CMD_LOOP ? c->imm : 0);
	}
	return h;
}

int prog_space(const struct prog *p, uint32_t buf, int64_t *base)
{
	const struct prog_buf *b = &p->buf[buf];
	*base = b->kind == BUF_CONST ? b->off : 0;
	if (b->kind == BUF_CONST)
		return -1;
	if (b->kind == BUF_TEMP || b->kind == BUF_LENT) {
		*base = b->off;
		if (b->alias < 0)
			return 0;
		b = &p->buf[b->alias];
	}
	if (b->kind == BUF_OUT && b->alias >= 0)
		b = &p->buf[b->alias];
	return 1 + (int)b->index + (b->kind == BUF_OUT ? (int)p->narg : 0);
}

bool prog_same_opnd(const struct prog_opnd *a, const struct prog_opnd *b)
{
	return a->buf == b->buf && a->off == b->off && a->reg[0] == b->reg[0] && a->reg[1] == b->reg[1] && (!a->reg[0] || a->mul[0] == b->mul[0]) &&
	       (!a->reg[1] || a->mul[1] == b->mul[1]);
}

bool prog_in_place(const struct prog *p, const struct prog_cmd *c)
{
	uint32_t n = p->coll[c->id].nin, in = coll_nin(&p->coll[c->id]);

	for (uint32_t i = 0; i < n; i++) {
		const struct prog_opnd *a = &p->opnd[c->opnd + i], *b = &p->opnd[c->opnd + in + i];
		if (!prog_same_opnd(a, b))
			return false;
	}
	return true;
}

void prog_slice_clip(int64_t w[SLICE_NUMBERS], int64_t have, int64_t room)
{
	enum { FAR = 62 };            /* arrays have fewer than 2^62 rows: nothing overflows */
	int64_t far = (int64_t)1 << FAR, from = MAX(-far, MIN(w[SLICE_FROM], far)), to = MAX(-far, MIN(w[SLICE_TO], far));
	int64_t first = MAX(0, MAX(-from, -to)), end = MIN(MAX(w[SLICE_ROWS], 0), MIN(have - from, room - to));

	w[SLICE_ROWS] = MAX(0, end - first);
	w[SLICE_FROM] = w[SLICE_ROWS] ? from + first : 0;
	w[SLICE_TO] = w[SLICE_ROWS] ? to + first : 0;
}

int prog_cycle(const int64_t *from, const int64_t *to, int pos, int *out, bool *open)
{
	int first = pos, at = pos, n = 0;

	for (int k = 0; from[at] >= 0 && from[at] != pos; k++) {
		if (k == COLL_CYCLE)
			return 0;
		at = (int)from[at];
		first = MIN(first, at);
	}
	*open = from[at] < 0;
	first = at = *open ? at : first;
	do {
		if (n == COLL_CYCLE)
			return 0;
		out[n++] = at;
		at = to[at] < 0 ? first : (int)to[at];
	} while (at != first);
	return n;
}

int prog_link(const int64_t *link, int pos, int k)
{
	int at = pos;

	while (k-- > 0 && at >= 0) {
		at = (int)link[at];
		if (at == pos)
			return pos;
	}
	return at;
}

uint64_t prog_comm_hash(const struct prog *p)
{
	return p->ncoll && p->nblock ? hash_block(p, 0, (uint64_t)p->ndev) : 0;
}

void prog_sizes(const struct prog *p, int64_t *arg, int64_t *res, int64_t *shared)
{
	*arg = *res = *shared = 0;
	for (uint32_t i = 0; i < p->narg; i++)
		*arg += p->arg[i].bytes;
	for (uint32_t i = 0; i < p->nres; i++)
		*res += p->res[i].bytes;
	for (uint32_t i = 0; i < p->nbuf; i++)
		if (p->buf[i].kind == BUF_OUT && p->buf[i].alias >= 0)
			*shared += p->buf[i].size;
}

static void run_block(const struct prog *p, uint32_t b, int64_t times, int64_t turns, int64_t *kern, int64_t *coll)
{
	for (uint32_t i = 0; i < p->block[b].n; i++) {
		const struct prog_cmd *c = &p->block[b].cmd[i];
		int64_t n = c->op == CMD_WHILE ? turns : c->op == CMD_LOOP ? c->imm : 1;
		if (c->op == CMD_KERN)
			kern[c->id] += times;
		if ((c->op == CMD_COLL || (c->op == CMD_NEXT && c->imm)) && coll)
			coll[c->id] += times;
		if (n < 0 || __builtin_mul_overflow(times, n, &n) || n > (int64_t)1 << 48)
			n = times;
		for (uint32_t k = 0; k < c->nblock; k++)
			run_block(p, p->sub[c->block + k], n, turns, kern, coll);
	}
}

void prog_runs(const struct prog *p, int64_t turns, int64_t *kern, int64_t *coll)
{
	run_block(p, 0, 1, turns, kern, coll);
}
