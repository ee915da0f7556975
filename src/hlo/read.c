/* Functions and regions: from the flat arrays of wire.c to functions of ir.
 *
 * Calls are inlined as they are met, with a stack of our own (a chain of calls may be long, and threads
 * that compile have small stacks).  A function stays a call if inlining would copy it often: it is called
 * more than KEEP_CALLS times and holds more than KEEP_OPS operations, or the program has grown past
 * MOST_OPS.  Regions recurse, at most MAX_DEPTH deep. */
#include "hlo.h"
#include "wire.h"

#include <stdlib.h>

enum { KEEP_CALLS = 16, KEEP_OPS = 200, MOST_OPS = 1 << 21 };

/* --- operands and results ---------------------------------------------- */

static uint32_t leaves(struct hlo *h, uint32_t value)
{
	uint32_t v = h->vm[value];
	return v & TUPLE ? h->tuple.p[v & ~TUPLE] : 1;
}

struct err *op_ins(struct hlo *h, const struct wop *o, uint32_t *n, ir_val **out)
{
	uint32_t k = 0;
	for (uint32_t i = 0; i < o->nin; i++)
		k += leaves(h, h->ref.p[o->in + i]);
	ir_val *p = ARENA_NEW(&h->a, ir_val, k);
	*n = k;
	*out = p;
	for (uint32_t i = 0; i < o->nin; i++) {
		uint32_t v = h->vm[h->ref.p[o->in + i]];
		if (!v)
			return bad_op(h, "operand %u is not defined", i);
		if (v & TUPLE) {
			uint32_t at = v & ~TUPLE, c = h->tuple.p[at];
			for (uint32_t j = 0; j < c; j++)
				*p++ = h->tuple.p[at + 1 + j];
		} else {
			*p++ = v;
		}
	}
	return NULL;
}

struct err *op_ins_n(struct hlo *h, const struct wop *o, uint32_t n, ir_val *out)
{
	if (o->nin != n)
		return bad_op(h, "it has %u operands, not %u", o->nin, n);
	for (uint32_t i = 0; i < n; i++) {
		out[i] = h->vm[h->ref.p[o->in + i]];
		if (!out[i] || out[i] & TUPLE)
			return bad_op(h, "operand %u is not a tensor", i);
	}
	return NULL;
}

/* Append the types that a wire type flattens to. */
static struct err *flatten(struct hlo *h, uint32_t type, ir_type *out, uint32_t *n)
{
	const struct wtype *w;
	TRY(type_get(h, type, &w));
	if (w->kind == W_TUPLE) {
		for (uint32_t i = 0; i < w->nin; i++)
			TRY(flatten(h, w->list[i], out, n));
		return NULL;
	}
	if (!w->t)
		return bad_at(h->type[type].at, "not the type of a value");
	out[(*n)++] = w->t;
	return NULL;
}

static struct err *types_of(struct hlo *h, uint32_t first, uint32_t count, uint32_t *n, ir_type **out)
{
	uint64_t k = 0;
	for (uint32_t i = 0; i < count; i++) {
		const struct wtype *w;
		TRY(type_get(h, h->vtype.p[first + i], &w));
		k += w->leaves;
	}
	if (k > (1u << 24))
		return ERR(UNIMPLEMENTED, "more than 2^24 results");
	*out = ARENA_NEW(&h->a, ir_type, k);
	*n = 0;
	for (uint32_t i = 0; i < count; i++)
		TRY(flatten(h, h->vtype.p[first + i], *out, n));
	return NULL;
}

struct err *op_outs(struct hlo *h, const struct wop *o, uint32_t *n, ir_type **out)
{
	return types_of(h, o->out, o->nout, n, out);
}

struct err *op_out1(struct hlo *h, const struct wop *o, ir_type *out)
{
	if (o->nout != 1)
		return bad_op(h, "it has %u results, not 1", o->nout);
	return type_tensor(h, h->vtype.p[o->out], out);
}

/* Give the ir values v to the wire values first .. first+count-1, whose types they must have. */
static struct err *bind(struct hlo *h, uint32_t first, uint32_t count, uint32_t n, const ir_val *v)
{
	uint32_t at = 0;
	for (uint32_t i = 0; i < count; i++) {
		const struct wtype *w;
		TRY(type_get(h, h->vtype.p[first + i], &w));
		if (w->leaves > n - at)
			return bad_op(h, "it gives %u values where more are wanted", n);
		if (w->kind == W_TUPLE) {
			h->vm[first + i] = TUPLE | (uint32_t)h->tuple.n;
			arr_push(&h->tuple, w->leaves);
			uint32_t k = 0;
			ir_type *t = ARENA_NEW(&h->a, ir_type, w->leaves);
			TRY(flatten(h, h->vtype.p[first + i], t, &k));
			for (uint32_t j = 0; j < w->leaves; j++) {
				if (h->b.fn->val.p[v[at + j]].type != t[j])
					return bad_op(h, "member %u has another type than its tuple says", j);
				arr_push(&h->tuple, v[at + j]);
			}
		} else {
			ir_type t;
			TRY(type_tensor(h, h->vtype.p[first + i], &t));
			if (h->b.fn->val.p[v[at]].type != t) {
				struct str a = {0};
				ir_print_type(&a, h->m, h->b.fn->val.p[v[at]].type);
				str_add(&a, " where ");
				ir_print_type(&a, h->m, t);
				struct err *e = bad_op(h, "value %u is a %s is said", i, a.p);
				str_free(&a);
				return e;
			}
			h->vm[first + i] = v[at];
		}
		at += w->leaves;
	}
	return at == n ? NULL : bad_op(h, "it gives %u values where %u are wanted", n, at);
}

struct err *op_bind(struct hlo *h, const struct wop *o, uint32_t n, const ir_val *v)
{
	TRY(bind(h, o->out, o->nout, n, v));
	if (!o->dict || h->reducer || !o->nout)
		return NULL;
	uint32_t attr, k;
	ir_shard *s;
	TRY(op_discardable(h, o, "sdy.sharding", &attr));
	if (attr == UINT32_MAX)
		return NULL;
	TRY(shard_per_value(h, attr, &k, &s));
	for (uint32_t i = 0; i < k && i < n; i++)
		if (ir_def(h->b.fn, v[i]) && !shard_says_nothing(h, s[i]))
			ir_shard_set(h->b.fn, v[i], s[i]);
	return NULL;
}

struct err *op_emit_t(struct hlo *h, enum ir_kind k, uint32_t nin, const ir_val *in, uint32_t nout, const ir_type *t,
                      uint32_t nattr, const int64_t *attr, ir_val *out)
{
	const struct ir_kind_info *i = ir_info(k);
	if (i->nin >= 0 && nin != (uint32_t)i->nin)
		return bad_op(h, "it has %u operands, not %d", nin, i->nin);
	if (i->nout >= 0 && nout != (uint32_t)i->nout)
		return bad_op(h, "it has %u results, not %d", nout, i->nout);
	struct ir_fn *fn = h->b.fn;
	*out = ir_emit_raw(&h->b, k, nin, in, nout, t, attr, nattr);
	struct err *e = ir_verify_op(h->m, fn, &fn->op.p[fn->op.n - 1]);
	if (!e)
		return NULL;
	struct err *say = bad_op(h, "%s", e->msg);
	say->code = e->code;
	err_free(e);
	return say;
}

struct err *op_emit(struct hlo *h, const struct wop *o, enum ir_kind k, uint32_t nin, const ir_val *in,
                    uint32_t nattr, const int64_t *attr)
{
	uint32_t n;
	ir_type one, *t = &one;
	ir_val first, *v = &first;
	if (o->nout == 1 && h->wt[h->vtype.p[o->out]].kind == W_TENSOR) {
		one = h->wt[h->vtype.p[o->out]].t;
		n = 1;
	} else {
		TRY(op_outs(h, o, &n, &t));
	}
	TRY(op_emit_t(h, k, nin, in, n, t, nattr, attr, &first));
	if (n != 1) {
		v = ARENA_NEW(&h->a, ir_val, n);
		for (uint32_t i = 0; i < n; i++)
			v[i] = first + i;
	}
	return op_bind(h, o, n, v);
}

/* --- regions ----------------------------------------------------------- */

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
	TRY(types_of(h, g.arg, g.narg, &n, &t));
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
		if (reducer || (old[i] & TUPLE))
			continue;
		h->vm[cap[i]] = ir_param(h->b.fn, up.fn->val.p[old[i]].type);
		arr_push(&h->captured, ((struct capture){ h->b.fn, up.fn, h->vm[cap[i]], old[i] }));
	}
	for (uint32_t i = 0; i < ncap; i++) {
		if (old[i] & TUPLE) {
			e = no_op(h, "a region that uses a tuple from outside it");
			goto out;
		}
		if (reducer)
			TRY_GOTO(e, copy_const(h, up.fn, old[i], &h->vm[cap[i]]), out);
	}
	TRY_GOTO(e, bind(h, g.arg, g.narg, n, v), out);
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

/* --- functions --------------------------------------------------------- */

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

static const struct wregion *body_of(const struct hlo *h, const struct wfunc *f)
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

/* The function that o calls, NULL if it calls none (a composite may be an operation). */
static struct err *callee_of(struct hlo *h, const struct wop *o, struct wfunc **out)
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
	struct frame { uint32_t i, end, call; struct wfunc *f; ir_loc loc; };      /* loc: of the call */
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
			TRY_GOTO(e, callee_of(h, o, &g), out);
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
			const struct wregion *r = body_of(h, g);
			TRY_GOTO(e, bind(h, r->arg, r->narg, k, v), out);
			g->active = true;
			at = (struct frame){ r->first, r->end, (uint32_t)(o - h->op.p), g, h->b.loc };
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
		f->f->active = false;
		uint32_t call = f->call;
		stack.n--;
		h->cur = &h->op.p[call];
		TRY_GOTO(e, op_bind(h, h->cur, k, v), out);
	}
out:
	for (size_t i = 1; i < stack.n; i++)
		stack.p[i].f->active = false;
	arr_free(&stack);
	return e;
}

/* Symbols of the module body: functions, and meshes. */
static struct err *read_symbols(struct hlo *h, const struct wregion *body)
{
	for (uint32_t i = body->first; i < body->end; i = h->op.p[i].end) {
		struct wop *o = &h->op.p[i];
		const struct op_row *row = h->opname[o->name].row;
		uint32_t p[5];
		h->cur = o;
		if (!row || row->conv || (row->kind != ROW_FUNC && row->kind != ROW_MESH))
			return no_op(h, "operation '%s' at the top of the module", op_name(h, o));
		if (row->kind == ROW_MESH) {
			TRY(mesh_add(h, o));
			continue;
		}
		TRY(op_props(h, o, p));
		struct wfunc f = { .name = p[3], .op = i, .arg_attrs = p[0], .res_attrs = p[2] };
		struct span vis;
		TRY(attr_str(h, p[3], &f.text));
		TRY(attr_str(h, p[4], &vis));
		f.is_public = !span_is(h, vis, "private");
		TRY(attr_type(h, p[1], &f.type));
		if (o->nregion != 1 || !h->region.p[o->region].isolated)
			return bad_op(h, "a function without one body of its own");
		const struct wtype *w;
		TRY(type_get(h, f.type, &w));
		if (w->kind != W_FUNCTION)
			return bad_op(h, "a function whose type is not that of one");
		uint64_t *slot = map_put(&h->func_map, h->p + f.text.at, f.text.n);
		if (*slot)
			return bad_op(h, "two functions '%.*s'", (int)MIN(f.text.n, 200), h->p + f.text.at);
		*slot = h->func.n;
		arr_push(&h->func, f);
	}
	return NULL;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX / 2 - b ? UINT64_MAX / 2 : a + b;
}

/* How often each function would be copied, and how large it is; which are kept as calls. */
static struct err *plan_calls(struct hlo *h, uint32_t root)
{
	for (size_t i = 1; i < h->func.n; i++) {
		struct wfunc *f = &h->func.p[i];
		const struct wregion *r = body_of(h, f);
		f->call = (uint32_t)h->callee.n;
		f->size = r->end - r->first;
		for (uint32_t k = r->first; k < r->end; k++) {
			struct wfunc *g;
			h->cur = &h->op.p[k];
			TRY(callee_of(h, &h->op.p[k], &g));
			if (g)
				arr_push(&h->callee, (uint32_t)(g - h->func.p));
		}
		f->ncall = (uint32_t)h->callee.n - f->call;
	}
	/* depth first from root, callees before callers */
	struct visit { uint32_t f, next; };
	ARR(struct visit) stack = {0};
	ARR(uint32_t) order = {0};
	struct err *e = NULL;
	struct visit v = { root, 0 };
	arr_push(&stack, v);
	h->func.p[root].seen = F_OPEN;
	while (stack.n) {
		struct visit *t = &stack.p[stack.n - 1];
		struct wfunc *f = &h->func.p[t->f];
		if (t->next < f->ncall) {
			uint32_t g = h->callee.p[f->call + t->next++];
			if (h->func.p[g].seen == F_OPEN) {
				e = bad_at(h->op.p[h->func.p[g].op].at, "function '%.*s' calls itself", (int)MIN(h->func.p[g].text.n, 200),
				           h->p + h->func.p[g].text.at);
				goto out;
			}
			if (h->func.p[g].seen == F_UNSEEN) {
				h->func.p[g].seen = F_OPEN;
				v = (struct visit){ g, 0 };
				arr_push(&stack, v);
			}
			continue;
		}
		for (uint32_t k = 0; k < f->ncall; k++)
			f->size = plus(f->size, h->func.p[h->callee.p[f->call + k]].size);
		f->seen = F_DONE;
		arr_push(&order, t->f);
		stack.n--;
	}
	h->func.p[root].count = 1;
	for (size_t i = order.n; i-- > 0;) {
		struct wfunc *f = &h->func.p[order.p[i]];
		f->keep = order.p[i] != root && f->count > KEEP_CALLS && f->size > KEEP_OPS;
		for (uint32_t k = 0; k < f->ncall; k++) {
			struct wfunc *g = &h->func.p[h->callee.p[f->call + k]];
			g->count = plus(g->count, f->keep ? 1 : f->count);
		}
	}
out:
	h->cur = NULL;
	arr_free(&stack);
	arr_free(&order);
	return e;
}

/* Attributes of main's parameters (or results), one dictionary each. */
static struct err *read_args(struct hlo *h, uint32_t attr, uint32_t n, bool param, struct ir_arg *out)
{
	uint32_t k, *list;
	TRY(attr_list(h, attr, &k, &list));
	for (uint32_t i = 0; i < n; i++)
		out[i].alias = -1;
	if (k > n)
		return bad_at(h->attr[attr].at, "%u dictionaries for %u %s", k, n, param ? "arguments" : "results");
	for (uint32_t i = 0; i < k; i++) {
		uint32_t m, *kv;
		TRY(attr_dict(h, list[i], &m, &kv));
		for (uint32_t j = 0; j < m; j++) {
			struct span s;
			int64_t v;
			TRY(attr_str(h, kv[2 * j], &s));
			if (span_is(h, s, "sdy.sharding")) {
				TRY(shard_get(h, kv[2 * j + 1], &out[i].shard));
			} else if (span_is(h, s, "mhlo.memory_kind")) {
				TRY(attr_str(h, kv[2 * j + 1], &s));
				out[i].memory_kind = span_intern(h, s);
			} else if (param && span_is(h, s, "tf.aliasing_output")) {
				TRY(attr_int(h, kv[2 * j + 1], &v));
				if (v < 0 || v > INT32_MAX)
					return bad_at(h->attr[kv[2 * j + 1]].at, "an argument that aliases output %lld", (long long)v);
				out[i].alias = (int32_t)v;
			} else if (param && span_is(h, s, "jax.buffer_donor")) {
				TRY(attr_int(h, kv[2 * j + 1], &v));
				out[i].donor = v != 0;
			} else if (span_is(h, s, "mhlo.sharding")) {
				return ERR(UNIMPLEMENTED, "attribute 'mhlo.sharding': only Shardy's shardings are read (jax_use_shardy_partitioner)");
			}
		}
	}
	return NULL;
}

static struct err *read_module(struct hlo *h)
{
	struct wop *top = &h->op.p[0];
	h->cur = top;
	if (!h->opname[top->name].row || h->opname[top->name].row->kind != ROW_MODULE || h->opname[top->name].row->conv ||
	    top->nregion != 1)
		return bad_op(h, "the operation at the top is not a module");
	if (top->prop) {    /* optional name, optional visibility */
		struct span s = h->prop[top->prop - 1];
		struct cur c = cur_of(h, s.at, s.n);
		uint64_t v = cur_varint(&c);
		if (v & 1 && v >> 1 < h->nattr) {
			TRY(attr_str(h, (uint32_t)(v >> 1), &s));
			h->m->name = span_intern(h, s);
		}
	}
	static const char *const counts[2] = { "mhlo.num_partitions", "mhlo.num_replicas" };
	for (int i = 0; i < 2; i++) {
		uint32_t attr;
		int64_t v;
		TRY(op_discardable(h, top, counts[i], &attr));
		if (attr == UINT32_MAX)
			continue;
		TRY(attr_int(h, attr, &v));
		if (v < 1 || v > 1 << 20)
			return bad_op(h, "%s is %lld", counts[i], (long long)v);
		*(i ? &h->m->num_replicas : &h->m->num_partitions) = (int)v;
	}
	arr_push(&h->func, ((struct wfunc){0}));
	TRY(read_symbols(h, &h->region.p[top->region]));
	h->cur = NULL;
	uint32_t root = 0;
	uint64_t *named = map_get(&h->func_map, "main", 4);
	if (named)
		root = (uint32_t)*named;
	for (uint32_t i = 1; i < h->func.n && !root; i++)
		if (h->func.p[i].is_public)
			root = i;
	if (!root)
		return ERR(INVALID, "the module has no public function");
	TRY(plan_calls(h, root));
	struct wfunc *f = &h->func.p[root];
	ir_fnid id;
	h->b = (struct ir_b){ h->m, NULL, 0 };
	TRY(func_fn(h, f, false, &id));
	struct ir_fn *fn = ir_fn_of(h->m, id);
	const struct wtype *w;
	TRY(type_get(h, f->type, &w));
	if (w->nin != fn->nparam || w->nout != fn->result.n)
		return bad_at(h->op.p[f->op].at, "main's type has %u arguments and %u results, its body %u and %zu (tuples are not taken)",
		              w->nin, w->nout, fn->nparam, fn->result.n);
	for (uint32_t i = 0; i < w->nin + w->nout; i++) {
		ir_type t;
		TRY(type_tensor(h, w->list[i], &t));
		if (fn->val.p[i < w->nin ? i + 1 : fn->result.p[i - w->nin]].type != t)
			return bad_at(h->op.p[f->op].at, "main's type differs from its body");
	}
	h->m->arg = ARENA_NEW(&h->m->arena, struct ir_arg, w->nin + 1);
	h->m->res = ARENA_NEW(&h->m->arena, struct ir_arg, w->nout + 1);
	TRY(read_args(h, f->arg_attrs, w->nin, true, h->m->arg));
	TRY(read_args(h, f->res_attrs, w->nout, false, h->m->res));
	for (uint32_t i = 0; i < w->nin; i++)
		if (h->m->arg[i].alias >= (int32_t)w->nout)
			return bad_at(h->op.p[f->op].at, "argument %u aliases output %d of %u", i, h->m->arg[i].alias, w->nout);
	return NULL;
}

struct err *hlo_read(const void *p, size_t n, struct ir_module **out)
{
	struct hlo h = { .p = p, .n = n };
	*out = NULL;
	arena_init(&h.a);
	h.m = ir_module_new();
	struct err *e = wire_read(&h);
	if (!e) {
		h.vm = ARENA_NEW(&h.a, uint32_t, h.vtype.n);
		e = read_module(&h);
	}
	if (e)
		ir_module_free(h.m);
	else
		*out = h.m;
	wire_free(&h);
	return e;
}
