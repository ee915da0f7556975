/* Groups of ops as one command: generated code, or an expression for the strip kernel; else their ops one by one. */
#include "lw.h"

/* Groups small enough, or too cheap to compile: the expression form of a pointwise group.  Views are
 * taken on operands and constants only.  False if the group does not have that form. */
static bool lower_strip(struct lw *w, struct frame *f, int i, const struct ir_fn *g)
{
	const struct ir_op *o = &f->fn->op.p[i];
	if (g->result.n > 16)
		return false;
	const struct ir_type_info *rt = ir_vtype(w->m, g, g->result.p[0]);
	enum { OUTER = 0, INNER = 1 };
	struct place **at = ARENA_NEW(w->tmp, struct place *, g->val.n);
	uint16_t *reg = ARENA_NEW(w->tmp, uint16_t, g->val.n);
	bool *inner = ARENA_NEW(w->tmp, bool, g->val.n);
	ARR(struct place *) in = {0};
	struct prog_expr *x = ARENA_NEW(&w->p->arena, struct prog_expr, 1);
	bool ok = true;
	for (size_t r = 0; r < g->result.n; r++) {
		const struct ir_type_info *t = ir_vtype(w->m, g, g->result.p[r]);
		ok &= t->rank == rt->rank && !memcmp(t->dim, rt->dim, sizeof *t->dim * t->rank);
	}
	for (uint32_t k = 0; k < o->nin; k++)
		at[k + 1] = f->at[ir_in(f->fn, o, k)];
	/* pass 1: places of operands seen through views, which values are computed */
	for (size_t j = 0; j < g->op.n && ok; j++) {
		const struct ir_op *q = &g->op.p[j];
		if (q->kind == IR_constant) {
			struct frame fake = { .fn = g, .at = at };
			err_free(lower_constant(w, &fake, q));
		} else if (ir_is_elem(q->kind)) {
			const struct ir_type_info *t = ir_vtype(w->m, g, q->out);
			ok &= t->rank == rt->rank && !memcmp(t->dim, rt->dim, sizeof *t->dim * t->rank);
			inner[q->out] = true;
		} else if (lw_is_alias(w, g, q) && q->nin == 1 && at[ir_in(g, q, 0)] && !inner[ir_in(g, q, 0)]) {
			at[q->out] = lw_place_view(w, g, q, at[ir_in(g, q, 0)]);
			ok &= at[q->out] != NULL;
		} else {
			ok = false;
		}
	}
	for (size_t r = 0; r < g->result.n && ok; r++)
		ok &= inner[g->result.p[r]];
	if (!ok) {
		arr_free(&in);
		return false;
	}
	/* pass 2: registers: inputs first, then instructions */
	for (int phase = 0; phase < 2; phase++) {
		for (size_t j = 0; j < g->op.n; j++) {
			const struct ir_op *q = &g->op.p[j];
			if (!inner[q->out] || !ir_is_elem(q->kind))
				continue;
			if (phase) {
				struct prog_ins *s = &x->ins[x->n];
				s->fn = (uint16_t)ir_elem(q->kind);
				s->from = ir_vtype(w->m, g, ir_in(g, q, q->kind == IR_select ? 1 : 0))->dtype;
				s->to = ir_vtype(w->m, g, q->out)->dtype;
				for (uint32_t k = 0; k < q->nin; k++)
					s->src[k] = reg[ir_in(g, q, k)];
				reg[q->out] = (uint16_t)(x->nin + x->n++);
				continue;
			}
			for (uint32_t k = 0; k < q->nin; k++) {
				ir_val v = ir_in(g, q, k);
				if (inner[v] || reg[v])
					continue;
				arr_push(&in, at[v]);
				reg[v] = (uint16_t)in.n;      /* +1, so that 0 means none yet */
			}
		}
		if (!phase) {
			if (in.n > 60 || g->op.n > 4000) {
				arr_free(&in);
				return false;
			}
			x->nin = (uint16_t)in.n;
			x->in_type = ARENA_NEW(&w->p->arena, uint8_t, in.n);
			x->ins = ARENA_NEW(&w->p->arena, struct prog_ins, g->op.n);
			for (size_t v = 0; v < g->val.n; v++)
				if (reg[v])
					reg[v]--;
			for (size_t k = 0; k < in.n; k++)
				x->in_type[k] = (uint8_t)in.p[k]->dtype;
		}
	}
	x->nout = (uint16_t)g->result.n;
	x->out = ARENA_NEW(&w->p->arena, uint16_t, x->nout);
	struct prog_kern k = { .id = KERN_elem, .nin = x->nin, .nout = x->nout, .expr = x, .code = -1 };
	k.v = ARENA_NEW(&w->p->arena, struct prog_view, k.nin + k.nout);
	k.flops = (int64_t)MIN(w->choice[g->id].work.adds, 9e18);
	k.bytes = (int64_t)MIN(w->choice[g->id].work.bytes, 9e18);
	struct place **pl = ARENA_NEW(w->tmp, struct place *, k.nin + k.nout);
	for (int a = 0; a < k.nin; a++) {
		pl[a] = in.p[a];
		lw_view_from(w, &k.v[a], pl[a]);
	}
	for (int r = 0; r < k.nout; r++) {
		x->out[r] = reg[g->result.p[r]];
		f->at[o->out + (uint32_t)r] = pl[k.nin + r] = lw_result_at(w, f, i, o->out + (uint32_t)r);
		lw_view_from(w, &k.v[k.nin + r], pl[k.nin + r]);
	}
	lw_emit_kern(w, &k, pl);
	arr_free(&in);
	return true;
}

/* A group without a kernel of its own: its ops one by one. */
static struct err *lower_apart(struct lw *w, struct frame *f, int i, const struct ir_fn *g)
{
	const struct ir_op *o = &f->fn->op.p[i];
	struct frame in;
	lw_frame_init(w, &in, g);
	for (uint32_t k = 0; k < o->nin; k++)
		in.at[k + 1] = f->at[ir_in(f->fn, o, k)];
	for (uint32_t k = 0; k < o->nout; k++) {
		struct place *t = f->target[o->out + k];
		if (t && lw_free_at(w, f, i, t))
			lw_target(w, &in, g->result.p[k], t);
	}
	lw_targets_back(w, &in);
	TRY(lower_ops(w, &in));
	for (uint32_t k = 0; k < o->nout; k++) {
		ir_val v = g->result.p[k];
		struct place *p = in.at[v];
		bool own = in.root[v] > g->nparam && !w->store.p[p->store].fixed;
		for (uint32_t j = 0; j < k; j++)
			own &= f->at[o->out + j]->store != p->store;
		if (!own) {                          /* a result is storage of its own */
			struct place *q = lw_temp(w, p->dtype, p->rank, p->dim);
			lw_emit_copy(w, p, q);
			p = q;
		}
		f->at[o->out + k] = p;
	}
	return NULL;
}

enum { COPIED = 16384 };     /* bytes */

/* Is there a loop of which only data tell how often it turns? */
static bool is_open(const struct lw *w, const struct ir_fn *g)
{
	for (size_t i = 0; i < g->op.n; i++) {
		const struct ir_op *o = &g->op.p[i];
		ir_fnid held[64];
		int n = ir_regions(g, o, held, NELEM(held));
		if (n == NELEM(held) || (o->kind == IR_loop && ir_attr(g, o, AT_trip) < 0))
			return true;
		while (n--)
			if (is_open(w, ir_fn_of(w->m, held[n])))
				return true;
	}
	return false;
}

struct err *lower_fused(struct lw *w, struct frame *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	const struct ir_fn *g = ir_fn_of(w->m, (ir_fnid)ir_attr(f->fn, o, AT_fn));
	if (!w->choice[g->id].code) {
		if (lower_strip(w, f, i, g))
			return NULL;
		return lower_apart(w, f, i, g);
	}
	int n = (int)(o->nin + o->nout);
	struct prog_kern k = { .id = KERN_gen, .nin = (uint16_t)o->nin, .nout = (uint16_t)o->nout, .code = -1, .open = is_open(w, g),
	                       .flops = (int64_t)MIN(w->choice[g->id].work.adds, 9e18), .bytes = (int64_t)MIN(w->choice[g->id].work.bytes, 9e18) };
	k.v = ARENA_NEW(&w->p->arena, struct prog_view, n);
	struct place **pl = ARENA_NEW(w->tmp, struct place *, n);
	for (uint32_t j = 0; j < o->nin; j++) {
		pl[j] = f->at[ir_in(f->fn, o, j)];
		lw_view_from(w, &k.v[j], pl[j]);
	}
	for (uint32_t j = 0; j < o->nout; j++) {
		const struct ir_type_info *t = ir_vtype(w->m, f->fn, o->out + j);
		prog_view_make(&w->p->arena, &k.v[o->nin + j], t->dtype, t->rank, t->dim);
	}
	for (uint32_t j = 0; j < o->nout; j++) {
		f->at[o->out + j] = pl[o->nin + j] = lw_result_at(w, f, i, o->out + j);
		/* what a loop begins with, as long as it lies elsewhere: a copy that threads share, and of one element often a filling */
		const int over = gen_loop_over(w->tmp, w->m, g, j);
		if (over >= 0 && pl[o->nin + j]->store != pl[over]->store && ir_vtype(w->m, f->fn, o->out + j)->bytes >= COPIED) {
			lw_emit_copy(w, pl[over], pl[o->nin + j]);
			lw_view_from(w, &k.v[over], pl[over] = pl[o->nin + j]);
		}
	}
	arr_push(&w->pending, ((struct pending){ (uint32_t)w->kern.n, g->id }));
	lw_emit_kern(w, &k, pl);
	return NULL;
}
