/* What attention reads in pieces: all_gathers that are read where they lie, of keys and values, or of queries and cotangents of a gradient; and
 * what is put side by side for it alone, half of an own array and half of another device's (pass/balance.c).
 *
 * The kernels of attention read these in as many arrays as there are (docs/attention.md: pieces), so those of other devices need not
 * come together first: each is lent to all of the group (loan.c), and what no query counts is never read.  That is so where nothing else
 * reads the result, the devices of each group are on one host, and the attention reads both of the two so.  All this is decided by the ops
 * and the machine table alone: it is the same in all processes. */
#include "lw.h"

#include <limits.h>

enum { LEAST = 16 << 10 };      /* bytes of a device that are worth it */

/* Operands that may be in pieces together: keys and values, queries and cotangents. */
static const uint32_t pair[2][2] = { { 1, 2 }, { 0, 4 } };

static int npair(const struct ir_op *o) { return o->kind == IR_attention || o->kind == IR_attention_part ? 1 : o->kind == IR_attention_grad || o->kind == IR_attention_grad_add ? 2 : 0; }

/* How many operands must be in as many pieces, and may be put side by side: a forward pass has no cotangents beside its queries. */
static int members(const struct ir_op *o, int q) { return q >= npair(o) ? 1 : 2; }

static bool in_pair(const struct ir_op *o, uint32_t k)
{
	for (int i = 0; i < npair(o); i++)
		if (k == pair[i][0] || k == pair[i][1])
			return true;
	return false;
}

static bool may(struct lw *w, const struct frame *f, const struct ir_op *o, uint32_t k)
{
	uint32_t group = lw_group(w, (ir_group)ir_attr(f->fn, o, AT_group));
	const struct prog_group *g = &w->group.p[group];
	ir_val y = o->out + k;
	if (f->root[y] != y || f->last[y] < 0 || f->last[y] == INT_MAX || ir_vtype(w->m, f->fn, ir_in(f->fn, o, k))->bytes < LEAST)
		return false;
	for (int d = 0; d < w->p->ndev; d++)
		if (g->row[d] < 0)
			return false;
	return g->ncol > 1 && g->nrow * g->ncol == w->p->ndev && plan_groups_of(w->opts->plan, g->nrow, g->ncol, g->id).hosts == 1;
}

bool *lw_gathers(struct lw *w, const struct frame *f)
{
	const struct ir_fn *fn = f->fn;
	bool *yes = ARENA_NEW(w->tmp, bool, fn->val.n), again = false;
	int *dim = ARENA_NEW(w->tmp, int, fn->val.n);
	if (w->opts->plan->ring >= PLAN_RING_GATHER)
		return yes;
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		for (uint32_t k = 0; k < o->nin && o->kind == IR_all_gather; k++)
			if (may(w, f, o, k)) {
				yes[o->out + k] = again = true;
				dim[o->out + k] = (int)ir_attr(fn, o, AT_dim);
			}
		for (uint32_t k = 0; k < o->nin && again; k++) {
			ir_val v = ir_in(fn, o, k), y = f->root[v];
			int d = dim[v];
			if (!yes[y] || (in_pair(o, k) && d == ir_vtype(w->m, fn, v)->rank - 2))
				continue;
			if (o->nin == 1 && lw_is_alias(w, fn, o) && (d = ir_view_dim(w->m, fn, o, d)) >= 0)
				dim[o->out] = d;
			else
				yes[y] = false;
		}
	}
	while (again) {                          /* both of a pair, in as many parts */
		again = false;
		for (size_t i = 0; i < fn->op.n; i++)
			for (int q = 0; q < npair(&fn->op.p[i]); q++) {
				const struct ir_op *o = &fn->op.p[i];
				ir_val a = f->root[ir_in(fn, o, pair[q][0])], b = f->root[ir_in(fn, o, pair[q][1])];
				if (yes[a] != yes[b] || (yes[a] && ir_attr(fn, ir_def(fn, a), AT_group) != ir_attr(fn, ir_def(fn, b), AT_group))) {
					yes[a] = yes[b] = false;
					again = true;
				}
			}
	}
	return yes;
}

void lw_pieces_plan(struct lw *w, struct frame *f)
{
	const struct ir_fn *fn = f->fn;
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		if (!ir_side_by_side(w->tmp, w->m, fn, o))
			continue;
		f->pieces = f->pieces ? f->pieces : ARENA_NEW(w->tmp, bool, fn->val.n);
		f->pieces[o->out] = true;
		for (uint32_t k = 0; k < 2; k++) {
			ir_val r = f->root[ir_in(fn, o, k)];
			f->pieces[ir_in(fn, o, k)] = true;
			f->last[r] = MAX(f->last[r], f->last[o->out]);
		}
	}
}

bool lw_side_by_side(struct lw *w, struct frame *f, const struct ir_op *o)
{
	if (!f->pieces || !f->pieces[o->out])
		return false;
	const struct ir_type_info *t = ir_vtype(w->m, f->fn, o->out);
	struct place *a = f->at[ir_in(f->fn, o, 0)], *b = f->at[ir_in(f->fn, o, 1)];
	for (int d = 0; d < t->rank; d++)
		if (t->dim[d] > 1 && a->stride[d] != b->stride[d])
			return false;
	struct place *p = lw_place_like(w, a), **piece = ARENA_NEW(w->tmp, struct place *, 2);
	p->dim = t->dim;
	p->piece = piece;
	p->npiece = 2;
	piece[0] = a;
	piece[1] = b;
	f->at[o->out] = p;
	return true;
}

/* A copy of what lies in pieces, in one. */
static struct place *together(struct lw *w, const struct place *p)
{
	struct place *all = lw_temp(w, p->dtype, p->rank, p->dim);
	for (int i = 0; i < p->npiece; i++) {
		struct place *to = lw_place_like(w, all);
		to->dim = p->piece[i]->dim;
		to->off += i * to->dim[p->rank - 2] * all->stride[p->rank - 2] * dtype_info[p->dtype].bytes;
		lw_emit_copy(w, p->piece[i], to);
	}
	return all;
}

void lw_in_pieces(struct lw *w, struct frame *f, const struct ir_op *o, struct prog_kern *k, struct place ***pl)
{
	const struct loan *l[2][2] = { 0 };
	int64_t n[2] = { 1, 1 };
	if (!npair(o) || k->id == KERN_copy)     /* of what is added to */
		return;
	for (int q = 0; q < npair(o) && f->lent; q++) {
		for (int a = 0; a < 2; a++)
			l[q][a] = f->lent[f->root[ir_in(f->fn, o, pair[q][a])]];
		n[q] = l[q][0] && l[q][0]->kind == LOAN_all ? l[q][0]->nshown : 1;
	}
	for (int q = 0; q < 2; q++) {
		struct place **x[2] = { &(*pl)[pair[q][0]], &(*pl)[pair[q][1]] };
		int side = members(o, q);
		bool alike = side == 1 || (*x[0])->npiece == (*x[1])->npiece;
		for (int a = 0; a < side; a++)
			if ((*x[a])->npiece && !alike) {
				*x[a] = together(w, *x[a]);
				k->v[pair[q][a]].stride = arena_copy(&w->p->arena, (*x[a])->stride, sizeof *(*x[a])->stride * (size_t)(*x[a])->rank);
			}
		n[q] = (*x[0])->npiece ? (*x[0])->npiece : n[q];
	}
	int nin = k->nin, more = (int)(members(o, 0) * (n[0] - 1) + members(o, 1) * (n[1] - 1)), at = nin;
	if (!more)
		return;
	struct prog_view *v = ARENA_NEW(&w->p->arena, struct prog_view, nin + more + k->nout);
	struct place **p = ARENA_NEW(w->tmp, struct place *, nin + more + k->nout);
	memcpy(v, k->v, sizeof *v * (size_t)nin);
	memcpy(v + nin + more, k->v + nin, sizeof *v * (size_t)k->nout);
	memcpy(p, *pl, sizeof *p * (size_t)nin);
	memcpy(p + nin + more, *pl + nin, sizeof **pl * (size_t)k->nout);
	for (int q = 0; q < 2; q++)
		for (int a = 0; a < members(o, q) && n[q] > 1; a++) {
			struct place *whole = p[pair[q][a]];
			struct prog_view is = v[pair[q][a]];
			is.dim = arena_copy(&w->p->arena, is.dim, sizeof *is.dim * is.rank);
			is.dim[is.rank - 2] /= n[q];
			is.stride = arena_copy(&w->p->arena, whole->stride, sizeof *whole->stride * is.rank);
			for (int x = 0; x < n[q]; x++) {
				int i = x ? at++ : (int)pair[q][a];
				v[i] = is;
				p[i] = lw_place_like(w, whole->npiece ? whole->piece[x] : whole);
				p[i]->store = whole->npiece ? p[i]->store : l[q][a]->shown[x];
				p[i]->dim = is.dim;
			}
		}
	k->nin = (uint16_t)(nin + more);
	k->v = v;
	k->attr = arena_copy(&w->p->arena, n, sizeof n);
	k->nattr = 2;
	*pl = p;
}
