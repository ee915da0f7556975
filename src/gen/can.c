/* What can be compiled: asked by the compiler for every group it thinks of, so it must be cheap. */
#include "sched.h"

/* Beyond this a group's code would be too long. */
enum { MAX_OPS = 1500 };

bool gen_has_control(const struct ir_module *m, const struct ir_fn *fn)
{
	for (size_t i = 0; i < fn->op.n; i++)
		if (fn->op.p[i].kind == IR_loop || fn->op.p[i].kind == IR_case || fn->op.p[i].kind == IR_call)
			return true;
	return false;
}

static bool elem_can(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	int from = ir_vtype(m, fn, ir_in(fn, o, o->nin > 1 ? 1 : 0))->dtype;
	enum elem e = ir_elem(o->kind);
	if (!gen_elem_ok(e) || !gen_dtype_ok(from))
		return false;
	if (e == ELEM_bitcast) {
		int to = ir_vtype(m, fn, o->out)->dtype;
		return dtype_info[from].bits == dtype_info[to].bits;
	}
	return true;
}


/* --- control flow ----------------------------------------------------------------------------
 *
 * A value of at most `most` elements is in registers.  A larger one is memory: a parameter, or what a loop makes of one.  An update
 * writes that memory where it is, so whatever reads what it held before has to come before it; then there is one value in it at any time. */

/* ops, work: operations, and vectors of values, seen so far; room: bytes on the stack. */
struct tiny { const struct gen_target *t; const struct ir_module *m; struct arena *a; int64_t most, room; int ops, work; const char *why; };

/* Of one function, per value: */
struct held {
	const struct ir_fn *fn;
	bool *large;             /* it is memory: */
	ir_val *root;            /* the value that this was first */
	int *state;              /* how often it had been written when it was this value */
	int *now;                /* of a root: how often so far */
	bool *own;               /* of a root: may it be written? */
};

enum { MOST_ROWS = 8, MOST_PRODUCTS = 1024, SPACE = 1 << 16, SPACE_ALL = 1 << 18 };      /* places of an op; its products; bytes of a value on the stack, and of all */

static bool refuse(struct tiny *t, const char *why)
{
	t->why = t->why ? t->why : why;
	return false;
}

static bool tiny_fn(struct tiny *t, const struct ir_fn *fn, int depth, const bool *own, ir_val *home, bool *wrote);

/* Is the memory of operand k one that o may write: ours, and no other operand's? */
static bool alone(const struct held *h, const struct ir_op *o, uint32_t k)
{
	ir_val r = h->root[ir_in(h->fn, o, k)];
	for (uint32_t j = 0; j < o->nin; j++) {
		ir_val v = ir_in(h->fn, o, j);
		if (j != k && h->large[v] && h->root[v] == r)
			return false;
	}
	return h->own[r];
}

/* v is what memory r holds from here on. */
static void written(struct held *h, ir_val v, ir_val r)
{
	h->root[v] = r;
	h->state[v] = ++h->now[r];
}

static bool tiny_loop(struct tiny *t, struct held *h, const struct ir_op *o, int depth)
{
	const struct ir_module *m = t->m;
	const struct ir_fn *fn = h->fn;
	struct ir_loop l = ir_loop_view(t->a, m, fn, o);
	bool *own = ARENA_NEW(t->a, bool, l.body->nparam + 1), *wrote = ARENA_NEW(t->a, bool, MAX(l.body->nparam, l.n) + 1);
	bool *none = ARENA_NEW(t->a, bool, l.n + 1);
	ir_val *home = ARENA_NEW(t->a, ir_val, l.nmade + 2);
	for (int k = 0; k < l.n; k++) {
		ir_val v = l.x[k].v;
		int64_t bytes = ir_vtype(m, fn, v)->bytes;
		bool carry = l.x[k].role == ROLE_CARRY && h->large[v];
		if (carry)
			own[l.x[k].param] = true;
		if (carry && depth && !alone(h, o, (uint32_t)k))
			return refuse(t, "a loop over large values that something else reads");
		if ((carry && !depth) || ir_role_is_out(l.x[k].role)) {
			bool res = false;        /* is the function's result, or takes room on the stack */
			for (size_t r = 0; r < fn->result.n; r++)
				res |= fn->result.p[r] == o->out + (ir_val)l.x[k].result;
			res &= !depth;
			t->room += res ? 0 : bytes;
			if (!res && (bytes > SPACE || t->room > SPACE_ALL))
				return refuse(t, "a large stack inside control flow");
		}
	}
	if (!tiny_fn(t, l.body, depth + 1, own, home, wrote) || (l.cond && !tiny_fn(t, l.cond, depth + 1, none, home + l.nmade, wrote)))
		return false;
	for (int j = 0; j < l.nmade; j++) {
		const struct ir_loop_operand *x = &l.x[l.made[j]];
		if (ir_vtype(m, l.body, l.body->result.p[j])->count > t->most && (j >= l.ncarry || home[j] != x->param))
			return refuse(t, "a loop over large values");
		if (depth && j < l.ncarry && h->large[x->v])
			written(h, o->out + (ir_val)j, h->root[x->v]);
	}
	return true;
}

/* Branches, or a call; operands from first on are the functions' parameters. */
static bool tiny_branches(struct tiny *t, struct held *h, const struct ir_op *o, int n, const int64_t *f, uint32_t first, int depth)
{
	bool *own = ARENA_NEW(t->a, bool, o->nin + 1), *any = ARENA_NEW(t->a, bool, o->nin + 1), *wrote = ARENA_NEW(t->a, bool, o->nin + 1);
	ir_val *home = ARENA_NEW(t->a, ir_val, o->nout + 1), *same = ARENA_NEW(t->a, ir_val, o->nout + 1);
	for (uint32_t k = first; k < o->nin; k++)
		own[k - first + 1] = h->large[ir_in(h->fn, o, k)] && alone(h, o, k);
	for (int i = 0; i < n; i++) {
		if (!tiny_fn(t, ir_fn_of(t->m, (ir_fnid)f[i]), depth + 1, own, home, wrote))
			return false;
		for (uint32_t k = 1; k + first <= o->nin; k++)
			any[k] |= wrote[k];
		for (uint32_t r = 0; r < o->nout; r++) {
			if (i && same[r] != home[r])
				return refuse(t, "branches that give different large values");
			same[r] = home[r];
		}
	}
	for (uint32_t k = first; k < o->nin; k++)
		if (any[k - first + 1])
			h->now[h->root[ir_in(h->fn, o, k)]]++;
	for (uint32_t r = 0; r < o->nout; r++) {
		if (!h->large[o->out + r])
			continue;
		ir_val x = h->root[ir_in(h->fn, o, same[r] - 1 + first)];
		h->root[o->out + r] = x;
		h->state[o->out + r] = h->now[x];
	}
	return true;
}

/* Rows of a gather or scatter are written out one by one. */
static bool few_rows(struct tiny *t, const struct ir_fn *fn, ir_val index, int64_t index_dim, int64_t elements)
{
	const struct ir_type_info *ti = ir_vtype(t->m, fn, index);
	int64_t rows = 1;
	for (int d = 0; d < ti->rank; d++)
		rows *= d == index_dim ? 1 : ti->dim[d];
	t->work += (int)MIN(rows * 4 + elements, 4096);
	return rows <= MOST_ROWS || refuse(t, "gather or scatter of many rows");
}

/* Products are written out, too. */
static bool few_products(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o)
{
	enum dtype x = ir_vtype(t->m, fn, ir_in(fn, o, 0))->dtype, y = ir_vtype(t->m, fn, ir_in(fn, o, 1))->dtype;
	const struct ir_type_info *to = ir_vtype(t->m, fn, o->out);
	int64_t terms = gen_products_terms(t->a, t->m, fn, o);
	if (x != y || gen_products_sum(x, to->dtype) == DT_token ||
	    (o->kind == IR_dot && (ir_attr(fn, o, AT_components) != 1 || ir_attr(fn, o, AT_acc) != DT_token)))
		return refuse(t, "products that generated code does not have");
	if (terms > MOST_PRODUCTS || to->count > MOST_PRODUCTS || terms * to->count > MOST_PRODUCTS)
		return refuse(t, "a product of large operands");
	int64_t lanes = 1;
	while (lanes < to->count)
		lanes *= 2;
	t->work += (int)(terms * lanes / 3 + 1);
	return true;
}

/* Control flow over values of which each is small, or memory that is read and written in small parts.  own, per parameter: may its
 * memory be written?  home, per result: if it is large, the parameter whose memory it is; wrote, per parameter: has it been written? */
static bool tiny_fn(struct tiny *t, const struct ir_fn *fn, int depth, const bool *own, ir_val *home, bool *wrote)
{
	const struct ir_module *m = t->m;
	if (depth > 12 || (t->ops += (int)fn->op.n) > 600 || fn->val.n > 4096)
		return refuse(t, "control flow with too many operations");
	if (!gen_types(m, fn))
		return refuse(t, "an element type that generated code does not have");
	struct held *h = &(struct held){ .fn = fn };
	h->large = ARENA_NEW(t->a, bool, fn->val.n);
	h->root = ARENA_NEW(t->a, ir_val, fn->val.n);
	h->state = ARENA_NEW(t->a, int, fn->val.n);
	h->now = ARENA_NEW(t->a, int, fn->val.n);
	h->own = ARENA_NEW(t->a, bool, fn->val.n);
	for (ir_val v = 1; v < fn->val.n; v++) {
		h->large[v] = ir_vtype(m, fn, v)->count > t->most;
		h->root[v] = v;
		h->own[v] = v <= fn->nparam && own && own[v];
	}
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		const struct ir_type_info *to = o->nout ? ir_vtype(m, fn, o->out) : NULL;
		int n;
		bool large_in = false, large_out = false;
		t->work += to ? (int)((MIN(to->count, t->most) + 15) / 16) : 0;
		if (t->work > 4000)
			return refuse(t, "control flow with too many operations");
		for (uint32_t k = 0; k < o->nin; k++) {
			ir_val v = ir_in(fn, o, k);
			large_in |= h->large[v];
			if (h->large[v] && h->state[v] != h->now[h->root[v]])
				return refuse(t, "a large value that is read after its update");
		}
		for (uint32_t k = 0; k < o->nout; k++)
			large_out |= h->large[o->out + k];
		switch (o->kind) {
		case IR_loop:
			if (!tiny_loop(t, h, o, depth))
				return false;
			continue;
		case IR_case: {
			const int64_t *f = ir_attrs(fn, o, AT_branch, &n);
			if (!tiny_branches(t, h, o, n, f, 1, depth))
				return false;
			continue;
		}
		case IR_call:
			if (!tiny_branches(t, h, o, 1, &(int64_t){ ir_attr(fn, o, AT_fn) }, 0, depth))
				return false;
			continue;
		case IR_constant: case IR_broadcast:
			if (large_out && (o->kind == IR_constant ? ir_splat(m, fn, o->out) != NULL : ir_vtype(m, fn, ir_in(fn, o, 0))->count == 1))
				continue;
			break;
		case IR_dynamic_slice: case IR_slice: case IR_transpose: case IR_reverse:
			if (!large_out)
				continue;             /* a part of what is in memory */
			break;
		case IR_gather:
			if (!few_rows(t, fn, ir_in(fn, o, 1), ir_attr(fn, o, AT_index_dim), to->count))
				return false;
			if (!large_out && !h->large[ir_in(fn, o, 1)])
				continue;
			break;
		case IR_dot: case IR_convolution:
			if (!few_products(t, fn, o))
				return false;
			if (!large_out)
				continue;
			break;
		case IR_reshape:
			if (large_in && h->own[h->root[ir_in(fn, o, 0)]]) {      /* dense, as all that may be written */
				h->root[o->out] = h->root[ir_in(fn, o, 0)];
				h->state[o->out] = h->state[ir_in(fn, o, 0)];
				continue;
			}
			break;
		case IR_dynamic_update_slice: case IR_scatter: {
			if (o->kind == IR_scatter) {
				ir_fnid f = (ir_fnid)ir_attr(fn, o, AT_fn);
				if (o->nin != 3)
					return refuse(t, "a scatter of several operands");
				if (!few_rows(t, fn, ir_in(fn, o, 1), ir_attr(fn, o, AT_index_dim), ir_vtype(m, fn, ir_in(fn, o, 2))->count))
					return false;
				if (f && !tiny_fn(t, ir_fn_of(m, f), depth + 1, NULL, (ir_val[2]){ 0 }, (bool[4]){ 0 }))
					return false;
				if (f)
					t->work += 4 * (int)MIN(ir_vtype(m, fn, ir_in(fn, o, 2))->count, 4096);
			}
			bool parts = true;
			for (uint32_t k = 1; k < o->nin; k++)
				parts &= !h->large[ir_in(fn, o, k)];
			if (large_in && parts && alone(h, o, 0)) {
				written(h, o->out, h->root[ir_in(fn, o, 0)]);
				continue;
			}
			break;
		}
		case IR_reduce: {
			enum redop r = (enum redop)ir_attr(fn, o, AT_redop);
			ir_val given[16] = { 0 };
			bool put[32] = { 0 };
			if (o->nin > 16)
				return refuse(t, "reduction of many operands");
			if (r == RED_lse || (r == RED_fn && !tiny_fn(t, ir_fn_of(m, (ir_fnid)ir_attr(fn, o, AT_fn)), depth + 1, NULL, given, put)))
				return refuse(t, "a reducer that generated code does not have");
			t->work += (int)ir_vtype(m, fn, ir_in(fn, o, 0))->count * (r == RED_fn ? 4 : 1);
			break;
		}
		case IR_iota: case IR_concatenate: case IR_pad: case IR_reduce_precision: case IR_sharding_constraint:
			break;
		case IR_bitcast_convert:
			if (ir_vtype(m, fn, ir_in(fn, o, 0))->count != to->count ||
			    dtype_info[ir_vtype(m, fn, ir_in(fn, o, 0))->dtype].bits != dtype_info[to->dtype].bits)
				return refuse(t, "bitcast_convert to another width");
			break;
		default:
			if (ir_is_elem(o->kind) && elem_can(m, fn, o))
				break;
			return refuse(t, "an operation that generated code does not have");
		}
		if (large_in || large_out)
			return refuse(t, "control flow over large values");
	}
	for (ir_val v = 1; v <= fn->nparam; v++)
		if (depth)
			wrote[v] = h->now[v] > 0;
	/* a large result has to be a parameter's memory; of the whole, what a loop made, or a parameter */
	for (size_t r = 0; r < fn->result.n && depth; r++) {
		ir_val v = fn->result.p[r], x = h->root[v];
		home[r] = h->large[v] ? x : 0;
		if (h->large[v] && (x > fn->nparam || h->state[v] != h->now[x]))
			return refuse(t, "control flow over large values");
	}
	return true;
}

int64_t gen_tiny_most(const struct gen_target *g, const struct ir_module *m, const struct ir_fn *fn, const char **why)
{
	/* What is read and written in parts is better in memory, even where registers have room for it. */
	const int64_t most[] = { MIN(16, g->tiny), g->tiny };
	for (size_t i = 0; i < NELEM(most); i++) {
		struct arena a;
		arena_init(&a);
		struct tiny x = { .t = g, .m = m, .a = &a, .most = most[i] };
		bool ok = tiny_fn(&x, fn, 0, NULL, NULL, NULL);
		*why = x.why;
		arena_fini(&a);
		if (ok)
			return most[i];
	}
	return 0;
}

int gen_loop_over(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, uint32_t r)
{
	const struct ir_op *o = fn->op.n == 1 ? &fn->op.p[0] : NULL;
	ir_val v = fn->result.p[r];
	if (!o || o->kind != IR_loop || v < o->out || r > 62)
		return -1;
	for (size_t k = 0; k < fn->result.n; k++)
		if (k != r && fn->result.p[k] == v)
			return -1;
	const struct ir_loop l = ir_loop_view(a, m, fn, o);
	return (int)l.x[l.made[v - o->out]].v - 1;
}

bool gen_types(const struct ir_module *m, const struct ir_fn *fn)
{
	for (size_t v = 1; v < fn->val.n; v++)
		if (!gen_dtype_ok(ir_vtype(m, fn, (ir_val)v)->dtype))
			return false;
	return true;
}

bool gen_can(const struct ir_module *m, const struct ir_fn *fn, const char **why)
{
	const struct gen_target *t = gen_target_get();
	const char *dummy;
	if (!why)
		why = &dummy;
	*why = NULL;
	if (fn->op.n > MAX_OPS)
		*why = "more operations than one kernel should have";
	if (!*why && !gen_types(m, fn))
		*why = "an element type that generated code does not have";
	if (*why)
		return false;
	if (gen_has_control(m, fn))
		return gen_tiny_most(t, m, fn, why) > 0;
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		switch (o->kind) {
		case IR_constant: case IR_iota: case IR_broadcast: case IR_reshape: case IR_transpose: case IR_reverse:
		case IR_slice: case IR_dynamic_slice: case IR_concatenate: case IR_pad: case IR_gather: case IR_reduce:
		case IR_reduce_precision: case IR_sharding_constraint:
			continue;
		case IR_bitcast_convert:
			if (ir_vtype(m, fn, ir_in(fn, o, 0))->count == ir_vtype(m, fn, o->out)->count &&
			    dtype_info[ir_vtype(m, fn, ir_in(fn, o, 0))->dtype].bits == dtype_info[ir_vtype(m, fn, o->out)->dtype].bits)
				continue;
			*why = "bitcast_convert to another width";
			return false;
		default:
			if (ir_is_elem(o->kind) && elem_can(m, fn, o))
				continue;
			*why = "an operation that generated code does not have";
			return false;
		}
	}
	struct arena a;
	arena_init(&a);
	bool ok = gen_schedule(&a, t, m, fn, NULL, why) != NULL;
	arena_fini(&a);
	return ok;
}
