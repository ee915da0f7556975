/* Commands, blocks of them, their operands; copies. */
#include "lw.h"

#include <assert.h>

struct prog_cmd *lw_cmd(struct lw *w, enum prog_op op)
{
	cmd_list *c = (cmd_list *)w->cur;
	arr_push(c, ((struct prog_cmd){ .op = (uint8_t)op, .lane = (uint8_t)w->lane, .site = w->site_now }));
	w->now[w->lane][w->lane]++;
	return &c->p[c->n - 1];
}

int lw_mark(struct lw *w)
{
	struct mark m;
	lw_cmd(w, CMD_MARK)->imm = (int64_t)w->mark.n;
	memcpy(m.done, w->now[w->lane], sizeof m.done);
	arr_push(&w->mark, m);
	return (int)w->mark.n - 1;
}

void lw_await(struct lw *w, int mark)
{
	int *now = w->now[w->lane];
	lw_cmd(w, CMD_AWAIT)->imm = mark;
	for (int l = 0; l < PROG_LANES; l++)
		now[l] = MAX(now[l], w->mark.p[mark].done[l]);
}

/* --- what other lanes are still at ------------------------------------------------- */

/* The first n are done. */
static void land(struct lw *w, size_t n)
{
	if (n <= w->landed)
		return;
	lw_await(w, w->flight.p[n - 1].mark);
	w->landed = n;
}

void lw_meets(struct lw *w, int nin, int n, struct place *const *pl)
{
	size_t last = 0;
	for (size_t i = w->landed; i < w->flight.n && !w->lane; i++)
		for (int k = 0; k < n; k++) {
			const struct flight *g = &w->flight.p[i];
			if (lw_shares(w, pl[k]->store, g->out) || (k >= nin && (lw_shares(w, pl[k]->store, g->in[0]) || lw_shares(w, pl[k]->store, g->in[1]))))
				last = i + 1;
		}
	land(w, last);
	for (int k = nin; k < n && !w->lane; k++)
		lw_loans_write(w, pl[k]->store);
}

void lw_land_since(struct lw *w, size_t first)
{
	if (w->flight.n > first)
		land(w, w->flight.n);
}

struct sky lw_sky(struct lw *w, bool talks)
{
	struct sky s;
	if (talks)
		land(w, w->flight.n);
	s.landed = w->landed;
	memcpy(s.now, w->now[0], sizeof s.now);
	return s;
}

void lw_sky_again(struct lw *w, const struct sky *s, bool talks)
{
	if (talks)                    /* what was begun on the way is done at the end of its block */
		return;
	w->landed = s->landed;
	memcpy(w->now[0] + 1, s->now + 1, sizeof s->now - sizeof *s->now);
}

/* --- what is lent ------------------------------------------------------------------ */

void lw_touch(struct lw *w, const int *store, int n)
{
	w->now[w->lane][w->lane]--;
	for (int k = 0; k < n; k++)
		lw_store_touch(w, store[k]);
	w->now[w->lane][w->lane]++;
}

struct prog_cmd *lw_loan_cmd(struct lw *w, const struct loan *l, enum prog_op op, int64_t imm)
{
	struct prog_cmd *c = lw_cmd(w, op);
	c->id = l->coll;
	c->imm = imm;
	return c;
}

void lw_loan_await(struct lw *w, struct loan *l, int but)
{
	lw_loan_cmd(w, l, CMD_WAIT, but);
	lw_touch(w, l->in, l->nin);
	l->owed &= but;
}

void lw_loan_await_turn(struct lw *w, struct loan *l)
{
	lw_loan_await(w, l, l->kind == LOAN_made || l->now);
	l->before = false;
}

void lw_loans_write(struct lw *w, int store)
{
	size_t left = 0;
	for (size_t i = 0; i < w->open.n; i++) {
		struct loan *l = w->open.p[i];
		bool met = false;
		if (l->before && store == l->other)
			lw_loan_await_turn(w, l);
		for (int k = 0; k < l->nin && store != l->other; k++)
			met |= lw_shares(w, store, l->in[k]);
		assert(!met || !l->held);        /* its value is alive then (lw_loans_plan): nothing takes its place */
		if (met && l->owed)
			lw_loan_await(w, l, 0);
		if (l->held || l->owed || l->before)
			w->open.p[left++] = l;
	}
	w->open.n = left;
}

/* --- registers, blocks, operands ----------------------------------------------------- */

uint32_t lw_table_new(struct lw *w)
{
	arr_push(&w->table, ((struct prog_table){ ARENA_NEW(&w->p->arena, int64_t, w->p->ndev) }));
	return (uint32_t)w->table.n - 1;
}

uint16_t lw_reg_new(struct lw *w)
{
	return (uint16_t)w->nreg++;
}

uint32_t lw_block_begin(struct lw *w, cmd_list *mine, void **saved)
{
	*saved = w->cur;
	*mine = (cmd_list){0};
	w->cur = (void *)mine;
	arr_push(&w->block, ((struct prog_block){0}));
	return (uint32_t)w->block.n - 1;
}

void lw_block_end(struct lw *w, uint32_t id, cmd_list *mine, void *saved)
{
	w->block.p[id].n = (uint32_t)mine->n;
	w->block.p[id].cmd = arena_copy(&w->p->arena, mine->p, mine->n * sizeof *mine->p);
	arr_free(mine);
	w->cur = saved;
}

void lw_loop_begin(struct lw *w)
{
	arr_push(&w->loops, ((struct loop_frame){0}));
	memcpy(w->loops.p[w->loops.n - 1].now, w->now[w->lane], sizeof w->loops.p->now);
}

void lw_loop_end(struct lw *w)
{
	struct loop_frame l = w->loops.p[--w->loops.n];
	int lane = w->lane;
	for (size_t i = 0; i < l.extend.n; i++) {
		const struct store *s = &w->store.p[l.extend.p[i]];
		for (w->lane = 0; w->lane < PROG_LANES; w->lane++)
			if (s->life.last[w->lane] >= 0)
				lw_store_touch(w, l.extend.p[i]);
	}
	w->lane = lane;
	arr_free(&l.extend);
}

void lw_view_from(struct lw *w, struct prog_view *v, const struct place *p)
{
	v->dtype = (uint8_t)p->dtype;
	v->rank = (uint8_t)p->rank;
	v->off = 0;
	v->dim = arena_copy(&w->p->arena, p->dim, sizeof *p->dim * (size_t)p->rank);
	v->stride = arena_copy(&w->p->arena, p->stride, sizeof *p->stride * (size_t)p->rank);
}

void lw_emit_kern(struct lw *w, struct prog_kern *k, struct place *const *pl)
{
	int n = k->nin + k->nout;
	lw_meets(w, k->nin, n, pl);
	if (!k->bytes)
		for (int i = 0; i < n; i++) {
			int64_t c = dtype_info[k->v[i].dtype].bytes;
			for (int d = 0; d < k->v[i].rank; d++)
				c *= k->v[i].dim[d];
			k->bytes += c;
		}
	arr_push(&w->kern, *k);
	uint32_t first = (uint32_t)w->opnd.n;
	struct prog_cmd *c = lw_cmd(w, CMD_KERN);
	c->id = (uint32_t)w->kern.n - 1;
	c->opnd = first;
	c->nopnd = (uint32_t)n;
	w->now[w->lane][w->lane]--;         /* operands are used at the command's own time */
	for (int i = 0; i < n; i++)
		arr_push(&w->opnd, lw_place_opnd(w, pl[i]));
	w->now[w->lane][w->lane]++;
}

void lw_emit_copy(struct lw *w, struct place *src, struct place *dst)
{
	struct prog_kern k = { .id = KERN_copy, .nin = 1, .nout = 1, .code = -1 };
	if (lw_place_bytes(dst) == 0)
		return;
	k.v = ARENA_NEW(&w->p->arena, struct prog_view, 2);
	lw_view_from(w, &k.v[0], src);
	lw_view_from(w, &k.v[1], dst);
	lw_emit_kern(w, &k, (struct place *[]){ src, dst });
}

struct place *lw_copy(struct lw *w, struct place *p)
{
	struct place *q = lw_temp(w, p->dtype, p->rank, p->dim);
	lw_emit_copy(w, p, q);
	return q;
}

uint32_t lw_opnds(struct lw *w, struct prog_cmd *c, int n, struct place *const *pl)
{
	uint32_t first = (uint32_t)w->opnd.n;
	w->now[w->lane][w->lane]--;
	for (int i = 0; i < n; i++)
		arr_push(&w->opnd, lw_place_opnd(w, pl[i]));
	w->now[w->lane][w->lane]++;
	c->opnd = first;
	c->nopnd = (uint32_t)n;
	return first;
}

struct place *lw_temp(struct lw *w, enum dtype dt, int rank, const int64_t *dim)
{
	int64_t n = dtype_info[dt].bytes;
	for (int i = 0; i < rank; i++)
		n *= dim[i];
	return lw_place_new(w, lw_store_new(w, BUF_TEMP, n, 0), dt, rank, dim);
}

uint32_t lw_group(struct lw *w, ir_group id)
{
	struct prog_group g = {0};
	int nd = w->p->ndev;
	int64_t *all = ARENA_NEW(w->tmp, int64_t, nd);
	const struct ir_group_info everyone = { 1, nd, all }, *i = &w->m->group.p[id];
	if (!id || !i->nrow) {
		for (int d = 0; d < nd; d++)
			all[d] = d;
		i = &everyone;
	}
	g.nrow = i->nrow;
	g.ncol = i->ncol;
	g.id = arena_copy(&w->p->arena, i->id, sizeof *g.id * (size_t)(g.nrow * g.ncol));
	g.row = ARENA_NEW(&w->p->arena, int32_t, nd);
	g.rank = ARENA_NEW(&w->p->arena, int32_t, nd);
	for (int d = 0; d < nd; d++)
		g.row[d] = g.rank[d] = -1;
	for (int r = 0; r < g.nrow; r++)
		for (int c = 0; c < g.ncol; c++) {
			int64_t d = g.id[r * g.ncol + c];
			if (d >= 0 && d < nd) {
				g.row[d] = r;
				g.rank[d] = c;
			}
		}
	for (size_t k = 0; k < w->group.n; k++)
		if (w->group.p[k].nrow == g.nrow && w->group.p[k].ncol == g.ncol &&
		    !memcmp(w->group.p[k].id, g.id, sizeof *g.id * (size_t)(g.nrow * g.ncol)))
			return (uint32_t)k;
	arr_push(&w->group, g);
	return (uint32_t)w->group.n - 1;
}
