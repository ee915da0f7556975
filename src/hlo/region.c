/* Regions as functions: their operations one after the other, each by the row of its name.
 *
 * Calls are inlined as they are met, with a stack of our own (a chain of calls may be long, and threads
 * that compile have small stacks); those of a function that is kept stay calls, and all do when the program has grown
 * past MOST_OPS.  Regions recurse, at most MAX_DEPTH deep. */
#include "wire.h"

#include <stdlib.h>

enum { MOST_OPS = 1 << 21 };

/* --- what comes from outside -------------------------------------------- */

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

struct err *op_captures(struct hlo *h, const struct wop *o, uint32_t *n, uint32_t **out)
{
	ARR(uint32_t) c = {0};
	for (uint32_t r = 0; r < o->nregion; r++) {
		const struct wregion *g = &h->region.p[o->region + r];
		if (g->isolated)
			continue;
		for (uint32_t i = g->first; i < g->end; i++) {
			const struct wop *p = &h->op.p[i];
			for (uint32_t k = 0; k < p->nin; k++)
				if (h->ref.p[p->in + k] < g->arg)
					arr_push(&c, h->ref.p[p->in + k]);
		}
	}
	if (c.n)
		qsort(c.p, c.n, sizeof *c.p, by_number);
	uint32_t k = 0;
	for (size_t i = 0; i < c.n; i++)
		if (i == 0 || c.p[i] != c.p[i - 1])
			c.p[k++] = c.p[i];
	*n = k;
	*out = arena_copy(&h->a, c.p, k * sizeof *c.p);
	arr_free(&c);
	for (uint32_t i = 0; i < k; i++)
		if ((*out)[i] - o->out < o->nout || !h->vm[(*out)[i]])
			return bad_op(h, "its region uses a value that is not defined yet");
	return NULL;
}

const struct ir_op *value_origin(const struct hlo *h, const struct ir_fn **fn, ir_val *v)
{
	for (size_t i = h->captured.n; i-- > 0 && !ir_def(*fn, *v);) {
		const struct capture *c = &h->captured.p[i];
		if (c->fn == *fn && c->param == *v) {
			*fn = c->up;
			*v = c->from;
		}
	}
	return ir_def(*fn, *v);
}

/* Copy a constant, or what broadcasts, reshapes and converts of one make, from fn into the current function. */
static struct err *copy_const(struct hlo *h, const struct ir_fn *fn, ir_val v, ir_val *out)
{
	const struct ir_op *o = value_origin(h, &fn, &v);
	ir_val in = 0;
	if (o && (o->kind == IR_broadcast || o->kind == IR_reshape || o->kind == IR_convert)) {
		const struct ir_fn *of = fn;
		ir_val src = ir_in(fn, o, 0);
		const struct ir_op *p = value_origin(h, &of, &src);
		if (p && p->kind == IR_constant)
			TRY(copy_const(h, of, src, &in));
	}
	if (!o || (o->kind != IR_constant && o->kind != IR_iota && !in))
		return no_op(h, "a region that uses a computed value from outside it");
	*out = ir_clone(&h->b, fn, o, &in);
	return NULL;
}

/* A constant that is one element many times: a region that uses it has its own, which then is known there. */
static const struct ir_op *own_constant(const struct hlo *h, const struct ir_fn *fn, ir_val v)
{
	const struct ir_op *o = v & TUPLE ? NULL : ir_def(fn, v);
	return o && o->kind == IR_constant && ir_splat(h->m, fn, v) ? o : NULL;
}

uint32_t region_operands(const struct hlo *h, uint32_t ncap, const uint32_t *cap, ir_val *out)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < ncap; i++)
		if (!own_constant(h, h->b.fn, h->vm[cap[i]]))
			out[n++] = h->vm[cap[i]];
	return n;
}

/* --- regions and functions ---------------------------------------------- */

static struct err *run(struct hlo *h, uint32_t first, uint32_t end, uint32_t *n, ir_val **out);

struct err *region_fn(struct hlo *h, uint32_t region, const char *name, bool iter, uint32_t ncap, const uint32_t *cap,
                      bool reducer, ir_fnid *out)
{
	struct wregion g = h->region.p[region];
	if (h->depth >= MAX_DEPTH)
		return no_op(h, "regions nested deeper than %d", MAX_DEPTH);
	struct ir_b up = h->b;
	struct wop *cur = h->cur;
	bool was = h->reducer;
	uint32_t n, k, *old = ARENA_NEW(&h->a, uint32_t, ncap);
	ir_type *t;
	ir_val *v, *res = NULL;
	struct err *e;
	TRY(vals_types(h, g.arg, g.narg, &n, &t));
	h->b.fn = ir_fn_new(h->m, name);
	h->depth++;
	h->reducer |= reducer;
	*out = h->b.fn->id;
	if (iter)
		ir_param(h->b.fn, ir_scalar(h->m, DT_i32));
	v = ARENA_NEW(&h->a, ir_val, n);
	for (uint32_t i = 0; i < n; i++)
		v[i] = ir_param(h->b.fn, t[i]);
	for (uint32_t i = 0; i < ncap; i++) {
		old[i] = h->vm[cap[i]];
		if (reducer || (old[i] & TUPLE) || own_constant(h, up.fn, old[i]))
			continue;
		h->vm[cap[i]] = ir_param(h->b.fn, up.fn->val.p[old[i]].type);
		arr_push(&h->captured, ((struct capture){ h->b.fn, up.fn, h->vm[cap[i]], old[i] }));
	}
	for (uint32_t i = 0; i < ncap; i++) {
		if (old[i] & TUPLE) {
			e = no_op(h, "a region that uses a tuple from outside it");
			goto out;
		}
		if (reducer || own_constant(h, up.fn, old[i]))
			TRY_GOTO(e, copy_const(h, up.fn, old[i], &h->vm[cap[i]]), out);
	}
	TRY_GOTO(e, vals_bind(h, g.arg, g.narg, n, v), out);
	TRY_GOTO(e, run(h, g.first, g.end, &k, &res), out);
	for (uint32_t i = 0; i < k; i++)
		ir_result(h->b.fn, res[i]);
out:
	for (uint32_t i = 0; i < ncap; i++)
		h->vm[cap[i]] = old[i];
	h->b = up;
	h->cur = cur;
	h->reducer = was;
	h->depth--;
	return e;
}

struct err *region_reducer(struct hlo *h, const struct wop *o, uint32_t k, const char *name, enum redop *r, ir_fnid *f)
{
	uint32_t n, *cap;
	TRY(op_captures(h, o, &n, &cap));
	TRY(region_fn(h, o->region + k, name, false, n, cap, true, f));
	*r = ir_region_redop(h->m, *f);
	if (*r != RED_fn)
		*f = 0;
	return NULL;
}

struct err *func_find(struct hlo *h, uint32_t attr, struct wfunc **out)
{
	struct span s;
	TRY(attr_str(h, attr, &s));
	uint64_t *i = map_get(&h->func_map, h->p + s.at, s.n);
	if (!i)
		return bad_at(h->attr[attr].at, "no function '%.*s'", (int)MIN(s.n, 200), h->p + s.at);
	*out = &h->func.p[*i];
	return NULL;
}

const struct wregion *func_body(const struct hlo *h, const struct wfunc *f)
{
	return &h->region.p[h->op.p[f->op].region];
}

struct err *func_fn(struct hlo *h, struct wfunc *f, bool reducer, ir_fnid *out)
{
	if (f->active)
		return bad_op(h, "function '%.*s' calls itself", (int)MIN(f->text.n, 200), h->p + f->text.at);
	f->active = true;
	ir_loc loc = h->b.loc;
	h->b.loc = 0;                /* it stands for all its calls */
	struct err *e = region_fn(h, h->op.p[f->op].region, span_text(h, f->text), false, 0, NULL, reducer, out);
	h->b.loc = loc;
	f->active = false;
	return e;
}

struct err *func_callee(struct hlo *h, const struct wop *o, struct wfunc **out)
{
	const struct op_row *row = h->opname[o->name].row;
	uint32_t p[4];
	*out = NULL;
	if (row && !row->conv && (row->kind == ROW_CALL || row->kind == ROW_COMPOSITE)) {
		TRY(op_props(h, o, p));
		return func_find(h, p[row->kind == ROW_COMPOSITE ? 1 : 0], out);
	}
	return NULL;
}

/* Translate operations [first, end), the last of which returns the n values out. */
static struct err *run(struct hlo *h, uint32_t first, uint32_t end, uint32_t *n, ir_val **out)
{
	struct frame { uint32_t i, end, call; struct wfunc *f; ir_loc loc; };      /* loc: of the call; no f: of what is started */
	ARR(struct frame) stack = {0};
	struct err *e = NULL;
	struct frame at = { first, end, 0, NULL, h->b.loc };
	arr_push(&stack, at);
	*n = UINT32_MAX;
	while (stack.n) {
		struct frame *f = &stack.p[stack.n - 1];
		if (f->i >= f->end) {
			e = bad_op(h, "the region around it does not end with a return");
			goto out;
		}
		struct wop *o = &h->op.p[f->i];
		f->i = o->end;
		h->cur = o;
		const struct op_row *row = h->opname[o->name].row;
		if (!row) {
			e = no_op(h, "operation '%s'", op_name(h, o));
			goto out;
		}
		if ((row->nin >= 0 && o->nin != (uint32_t)row->nin) || (row->nout >= 0 && o->nout != (uint32_t)row->nout) ||
		    (row->nregion >= 0 && o->nregion != (uint32_t)row->nregion)) {
			e = bad_op(h, "it has %u operands, %u results, %u regions", o->nin, o->nout, o->nregion);
			goto out;
		}
		h->b.loc = ir_loc_inside(h->m, loc_get(h, o->loc), f->loc);
		if (row->conv) {
			h->emitted++;
			TRY_GOTO(e, row->conv(h, o), out);
			continue;
		}
		if (row->kind == ROW_CALL || row->kind == ROW_COMPOSITE) {
			bool done = false;
			struct wfunc *g;
			if (row->kind == ROW_COMPOSITE)
				TRY_GOTO(e, composite_known(h, o, &done), out);
			if (done)
				continue;
			TRY_GOTO(e, func_callee(h, o, &g), out);
			uint32_t k;
			ir_val *v;
			TRY_GOTO(e, op_ins(h, o, &k, &v), out);
			if (g->keep || (h->emitted > MOST_OPS && g->size > 8)) {
				if (!g->fn)
					TRY_GOTO(e, func_fn(h, g, false, &g->fn), out);
				h->cur = o;
				int64_t id = g->fn;
				TRY_GOTO(e, op_emit(h, o, IR_call, k, v, 1, &id), out);
				continue;
			}
			if (g->active) {
				e = bad_op(h, "function '%.*s' calls itself", (int)MIN(g->text.n, 200), h->p + g->text.at);
				goto out;
			}
			const struct wregion *r = func_body(h, g);
			TRY_GOTO(e, vals_bind(h, r->arg, r->narg, k, v), out);
			g->active = true;
			at = (struct frame){ r->first, r->end, (uint32_t)(o - h->op.p), g, h->b.loc };
			arr_push(&stack, at);
			continue;
		}
		if (row->kind == ROW_ASYNC) {      /* done at once: what a future will be is known here */
			const struct wregion *r = &h->region.p[o->region];
			uint32_t k;
			ir_val *v;
			TRY_GOTO(e, op_ins(h, o, &k, &v), out);
			TRY_GOTO(e, vals_bind(h, r->arg, r->narg, r->narg ? k : 0, v), out);
			at = (struct frame){ r->first, r->end, (uint32_t)(o - h->op.p), NULL, f->loc };
			arr_push(&stack, at);
			continue;
		}
		if (row->kind != ROW_RETURN) {
			e = bad_op(h, "it cannot stand here");
			goto out;
		}
		uint32_t k;
		ir_val *v;
		TRY_GOTO(e, op_ins(h, o, &k, &v), out);
		if (f->i != f->end) {
			e = bad_op(h, "operations after the return");
			goto out;
		}
		if (stack.n == 1) {
			*n = k;
			*out = v;
			break;
		}
		if (f->f)
			f->f->active = false;
		uint32_t call = f->call;
		stack.n--;
		h->cur = &h->op.p[call];
		TRY_GOTO(e, op_bind(h, h->cur, k, v), out);
	}
out:
	for (size_t i = 1; i < stack.n; i++)
		if (stack.p[i].f)
			stack.p[i].f->active = false;
	arr_free(&stack);
	return e;
}
