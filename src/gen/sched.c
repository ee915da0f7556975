/* Group -> schedule.
 *
 * Every value is asked for at a *flat* index: a linear form over the loop variables that counts the
 * value's elements in row-major order.  An elementwise operation or a reshape passes the form on; any view
 * maps it through strides.  Mapping cuts the form into digits (the coordinates of runs of dimensions that
 * stay together), which is exact if each digit provably stays inside its dimension.  Where it does not, the
 * walk asks for a loop variable to be split, or for its range to be cut (concatenate, pad), and starts
 * again: loops come out as few and as long as the group allows.  What cannot be made linear becomes an
 * integer node (division, clamped index) that the form refers to.
 *
 * Groups with reductions: the kept dimensions of the largest reduction are the outer loops, and each
 * reduction must be read at exactly one place per outer iteration.  Reductions of one level (number of
 * reductions below) share a nest, and results that need no later reduction are stored along the way. */
#include "want.h"

#include <stdlib.h>

/* The graph as it stands becomes the schedule's. */
static void finish(struct cx *cx)
{
	struct gen_sched *s = cx->s;
	s->node = arena_copy(cx->a, cx->node.p, cx->node.n * sizeof *cx->node.p);
	s->nnode = (uint32_t)cx->node.n;
	s->lin = arena_copy(cx->a, cx->lin.p, cx->lin.n * sizeof *cx->lin.p);
	s->nlin = (uint32_t)cx->lin.n;
	s->buf = arena_copy(cx->a, cx->buf.p, cx->buf.n * sizeof *cx->buf.p);
	s->nbuf = (int)cx->buf.n;
	gen_shape(cx->a, s);
}

/* The runs of the anchor's operand, dimensions that are reduced or kept together: extents, axes. */
static int anchor_runs(const struct cx *cx, int64_t *ext, bool *reduced)
{
	const struct ir_type_info *t = ir_vtype(cx->m, cx->fn, ir_in(cx->fn, cx->anchor, 0));
	int nd, n = 0;
	const int64_t *dims = ir_attrs(cx->fn, cx->anchor, AT_dims, &nd);
	for (int d = 0; d < t->rank; d++) {
		bool r = in_list(dims, nd, d);
		if (t->dim[d] == 1)
			continue;
		if (n && reduced[n - 1] == r) {
			ext[n - 1] *= t->dim[d];
		} else {
			reduced[n] = r;
			ext[n++] = t->dim[d];
		}
	}
	return n;
}

/* The axes of the domain: kept runs are outer axes, reduced runs the first inner set. */
static void make_axes(struct cx *cx)
{
	int64_t ext[IR_MAX_RANK], most = 0;
	bool reduced[IR_MAX_RANK];
	if (!cx->anchor) {
		for (size_t i = 0; i < cx->fn->result.n; i++)
			most = MAX(most, ir_vtype(cx->m, cx->fn, cx->fn->result.p[i])->count);
		gs_axis_new(cx, most, true);
		return;
	}
	int n = anchor_runs(cx, ext, reduced);
	for (int i = 0; i < n; i++)
		if (!reduced[i])
			gs_axis_new(cx, ext[i], true);
	struct axset *x = &cx->set[cx->nset++];
	for (int i = 0; i < n; i++)
		if (reduced[i]) {
			x->ext[x->n] = ext[i];
			x->axis[x->n++] = gs_axis_new(cx, ext[i], false);
		}
}

/* The flat index of an element of the domain (full) and of one of its rows, and their numbers. */
struct domain { struct gen_lin full, row; int64_t nfull, nrow; uint16_t inner; };

static struct domain domain_of(struct cx *cx)
{
	struct domain d = { .nfull = 1, .nrow = 1 };
	if (!cx->anchor) {
		d.full = gs_axis_lin(cx, 0);
		d.nfull = cx->axis[0].ext;
		return d;
	}
	int64_t ext[IR_MAX_RANK];
	bool reduced[IR_MAX_RANK];
	int n = anchor_runs(cx, ext, reduced), red = cx->set[0].n, kept = n - red;
	for (int i = n - 1; i >= 0; i--) {
		struct gen_lin x = gs_axis_lin(cx, reduced[i] ? cx->set[0].axis[--red] : --kept);
		gs_lin_add(cx, &d.full, &x, d.nfull);
		d.nfull *= ext[i];
		if (!reduced[i]) {
			gs_lin_add(cx, &d.row, &x, d.nrow);
			d.nrow *= ext[i];
		}
	}
	for (int v = 0; v < cx->s->nvar; v++)
		for (int i = 0; i < cx->set[0].n; i++)
			if (cx->s->var[v].axis == cx->set[0].axis[i])
				d.inner |= (uint16_t)(1u << v);
	return d;
}

/* One attempt; false: stopped (failed, or to be started again). */
static bool attempt(struct cx *cx)
{
	const struct ir_module *m = cx->m;
	const struct ir_fn *fn = cx->fn;
	struct gen_sched *s = cx->s;
	cx->stop = cx->restart = false;
	cx->depth = 0;
	gs_clear(cx);
	cx->buf.n = fn->nparam + fn->result.n;
	memset(s, 0, sizeof *s);
	s->t = cx->t;
	s->m = m;
	s->fn = fn;
	memset(cx->lo, 0, sizeof cx->lo);
	for (int i = 0; i < GEN_NV; i++)
		cx->hi[i] = 1;
	struct gen_node none = { .kind = GN_CONST, .dtype = DT_pred };
	gs_node_put(cx, &none);
	gs_lin_const(cx, 0);
	gs_make_vars(cx);
	struct domain dom = domain_of(cx);
	if (cx->stop)
		return false;

	struct seg g, gi;
	if (!gs_seg_init(cx, &g, s->outer)) {
		cx->nobrk = cx->restart = true;
		cx->nbrk = 0;
		return false;
	}
	ARR(struct gen_body) body = { 0 };
	do {
		gs_seg_set(cx, &g);
		struct gen_body nb = { 0 };
		arr_push(&body, nb);
		s->body = body.p;
		s->nbody = (int)body.n;
		memcpy(body.p[body.n - 1].lo, cx->lo, sizeof cx->lo);
		memcpy(body.p[body.n - 1].hi, cx->hi, sizeof cx->hi);
		cx->red.n = 0;
		for (size_t i = 0; i < fn->result.n && !cx->stop; i++) {
			ir_val v = fn->result.p[i];
			const struct ir_type_info *t = ir_vtype(m, fn, v);
			bool is_row = cx->anchor && t->count == dom.nrow && dom.nrow != dom.nfull;
			if (t->count != dom.nfull && !is_row) {
				gs_fail(cx, "results of unrelated shapes");
				break;
			}
			const struct prog_view *w = cx->view ? &cx->view[fn->nparam + i] : NULL;
			if (is_row)
				gi.nv = 0;
			else if (!gs_seg_init(cx, &gi, dom.inner)) {
				cx->nobrk = cx->stop = cx->restart = true;
				cx->nbrk = 0;
				break;
			}
			do {
				gs_seg_set(cx, &gi);
				uint32_t lin = gs_lin_put(cx, is_row ? dom.row : dom.full);
				uint32_t x = gs_want(cx, v, lin);
				if (cx->stop)
					break;
				int64_t st[IR_MAX_RANK];
				gen_strides(t->rank, t->dim, st);
				struct gen_lin l = gs_map_strided(cx, lin, t->rank, t->dim, w ? w->off : 0, w ? w->stride : st);
				if (cx->stop)
					break;
				gs_nest_store(cx, &s->body[s->nbody - 1], (int)i, x, gs_lin_put(cx, l), is_row ? 0 : dom.inner);
			} while (gs_seg_next(&gi));
			/* back to the whole range of the inner variables */
			for (int k = 0; k < s->nvar; k++)
				if (dom.inner >> k & 1) {
					cx->lo[k] = 0;
					cx->hi[k] = s->var[k].ext;
				}
		}
		struct gen_body *b = &body.p[body.n - 1];
		b->nred = (int)cx->red.n;
		b->red = arena_copy(cx->a, cx->red.p, cx->red.n * sizeof *cx->red.p);
		/* nests in order of level */
		for (int i = 1; i < b->nnest; i++)
			for (int k = i; k > 0 && b->nest[k].level < b->nest[k - 1].level; k--) {
				struct gen_nest t = b->nest[k];
				b->nest[k] = b->nest[k - 1];
				b->nest[k - 1] = t;
			}
		for (int i = 0; i < b->nnest; i++)
			b->nlevel = MAX(b->nlevel, b->nest[i].level + 1);
		for (int i = 0; i < b->nred; i++)
			b->nlevel = MAX(b->nlevel, b->red[i].level + 1);
	} while (!cx->stop && gs_seg_next(&g));
	s->body = arena_copy(cx->a, body.p, body.n * sizeof *body.p);
	s->nbody = (int)body.n;
	arr_free(&body);
	return !cx->stop;
}

/* Reductions of at most how many elements are straight-line code?  Of results of the rows beside results of the whole even a short one has to be a loop.
 * Several of one row to results of the rows alone: each loop would begin and go across its lanes anew, straight-line code reads the row once. */
static int64_t unroll_of(const struct gen_target *t, const struct ir_module *m, const struct ir_fn *fn, const uint8_t *live)
{
	int64_t results = ir_vtype(m, fn, fn->result.p[0])->count;
	int n = 0;
	for (size_t i = 1; i < fn->result.n; i++)
		if (ir_vtype(m, fn, fn->result.p[i])->count != results)
			return 1;
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		n += o->kind == IR_reduce && o->nout == 1 && live[o->out] && ir_vtype(m, fn, o->out)->count == results;
	}
	return n > 1 ? t->unroll + t->unroll / 2 : t->unroll;
}

struct gen_sched *gen_schedule(struct arena *a, const struct gen_target *t, const struct ir_module *m, const struct ir_fn *fn,
                               const struct prog_view *view, const char **why)
{
	struct cx cx = { .a = a, .t = t, .m = m, .fn = fn, .view = view, .s = ARENA_NEW(a, struct gen_sched, 1) };
	struct gen_sched *out = NULL;
	for (size_t i = 0; i < fn->nparam + fn->result.n; i++) {
		const struct ir_type_info *ty = ir_vtype(m, fn, i < fn->nparam ? (ir_val)i + 1 : fn->result.p[i - fn->nparam]);
		struct gen_buf b = { ty->dtype, NULL, 0, ty->count, i >= fn->nparam };
		arr_push(&cx.buf, b);
	}
	uint8_t *live = ir_live(a, m, fn, NULL);
	cx.unroll = unroll_of(t, m, fn, live);
	/* the largest reduction decides */
	int64_t most = 0;
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		if (o->kind != IR_reduce)
			continue;
		bool used = false;
		for (uint32_t j = 0; j < o->nout; j++)
			used |= live[o->out + j];
		const struct ir_type_info *ti = ir_vtype(m, fn, ir_in(fn, o, 0)), *to = ir_vtype(m, fn, o->out);
		if (!used || ti->count == 0 || ti->count / to->count <= cx.unroll)
			continue;
		if (ti->count > most) {
			most = ti->count;
			cx.anchor = o;
		}
	}
	if (cx.anchor) {
		const struct ir_type_info *ti = ir_vtype(m, fn, ir_in(fn, cx.anchor, 0)), *to = ir_vtype(m, fn, cx.anchor->out);
		int64_t ext[IR_MAX_RANK];
		bool reduced[IR_MAX_RANK];
		int n = anchor_runs(&cx, ext, reduced);
		/* tiles are rows, or lie side by side where vectors go across */
		if (ti->count > 1 << 20 && to->count < (n && reduced[n - 1] ? 4 : 64)) {
			*why = "more than a million elements reduced into very few: one thread would do it all";
			goto done;
		}
	}
	make_axes(&cx);
	if (cx.stop) {
		*why = cx.why;
		goto done;
	}
	if (!cx.anchor && cx.axis[0].ext == 0) {      /* nothing to do */
		*cx.s = (struct gen_sched){ .t = t, .m = m, .fn = fn, .lane = -1, .low = -1, .weave = -1, .width = 1 };
		out = cx.s;
		goto done;
	}
	for (int tries = 0; tries < 100 && !out; tries++) {
		cx.why = NULL;
		if (attempt(&cx)) {
			finish(&cx);
			out = cx.s;
		} else if (!cx.restart) {
			break;
		}
	}
	if (!out)
		*why = cx.why ? cx.why : "loops that cannot be found";
done:
	gs_clear(&cx);
	arr_free(&cx.node);
	arr_free(&cx.lin);
	arr_free(&cx.red);
	arr_free(&cx.buf);
	return out;
}
