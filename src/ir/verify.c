/* The rules of each operation: what its operands, attributes and functions must be, and the shape of its results.
 * One function says both (ru_shape), so that ir_infer and ir_verify cannot disagree; check holds the rules that do not
 * bear on a result's shape. */
#include "rule.h"

#include <stdlib.h>

/* --- one op ------------------------------------------------------------------------- */

/* Every attribute word names something that exists. */
static struct err *attributes(struct at *a)
{
	const struct ir_kind_info *k = ir_info(a->o->kind);
	size_t w = a->o->attr, end = a->fn->attr.n;
	for (int i = 0; i < k->nattr; i++) {
		char kind = k->attr[i].kind;
		const char *name = ir_at_name[k->attr[i].name];
		bool is_list = kind == 'I' || kind == 'F' || kind == 'H';
		NEED(w < end && (!is_list || (a->fn->attr.p[w] >= 0 && (uint64_t)a->fn->attr.p[w] < end - w)), "its attributes are cut short");
		const int64_t *word = a->w[k->attr[i].name] = a->fn->attr.p + w;
		int64_t n = is_list ? word[0] : 1, limit;
		switch (kind) {
		case 'f': case 'F': limit = (int64_t)a->m->fn.n; break;
		case 't': limit = DT_COUNT; break;
		case 'R': limit = a->o->kind == IR_all_reduce || a->o->kind == IR_reduce_scatter ? RED_COUNT : RED_softmax; break;
		case 'b': case 'D': limit = (int64_t)a->m->nblob; break;
		case 's': limit = (int64_t)a->m->str.n; break;
		case 'g': limit = (int64_t)a->m->group.n; break;
		case 'h': case 'H': limit = (int64_t)a->m->shard.n; break;
		default: limit = 0; break;
		}
		for (int64_t j = 0; j < n && limit; j++)
			NEED(word[is_list + j] >= 0 && word[is_list + j] < limit, "%s names what does not exist", name);
		NEED(kind != 't' || dtype_info[word[0]].name, "%s is no element type", name);
		w += is_list ? 1 + (size_t)n : 1;
	}
	return NULL;
}

/* Boxes of the operand and of the result, between members of one group. */
static struct err *boxes(const struct at *a, const struct ir_type_info *x, const struct ir_type_info *y)
{
	const struct ir_group_info *g = &a->m->group.p[num(a, AT_group)];
	const int64_t *w = list(a, AT_boxes);
	int n = count(a, AT_boxes), rank = x->rank, row = 2 + 3 * rank;
	NEED(x->dtype == y->dtype && x->dtype != DT_token && y->rank == rank && n % row == 0, "a result of another type or rank, or boxes of another one");
	for (const int64_t *end = w + n; w < end; w += row) {
		int at[2] = { -1, -1 };
		for (int i = 0; i < g->nrow * g->ncol; i++)
			for (int k = 0; k < 2; k++)
				at[k] = g->id[i] == w[k] ? i / g->ncol : at[k];
		NEED(w[0] >= 0 && w[1] >= 0 && at[0] >= 0 && at[0] == at[1], "device %lld gets a box of device %lld, which is not in its group", (long long)w[0], (long long)w[1]);
		for (int d = 0; d < rank; d++) {
			int64_t from = w[2 + d], to = w[2 + rank + d], size = w[2 + 2 * rank + d];
			NEED(from >= 0 && to >= 0 && size >= 0 && from <= x->dim[d] && to <= y->dim[d] && size <= x->dim[d] - from && size <= y->dim[d] - to,
			     "%lld elements along dimension %d, from %lld to %lld", (long long)size, d, (long long)from, (long long)to);
		}
	}
	return NULL;
}

/* Operands of a joint reducer are pairs; what is cut is cut of both. */
static struct err *pairs(const struct at *a)
{
	NEED(a->o->nin % 2 == 0, "operation '%s' of %u operands, which are no pairs", redop_name[num(a, AT_redop)], a->o->nin);
	for (uint32_t i = 0; i < a->o->nin; i += 2) {
		NEED(ir_is_pair(a->m, operand_t(a, i), operand_t(a, i + 1)), "operands %u and %u are no array and the logarithms of its weights", i, i + 1);
		NEED(a->o->kind == IR_all_reduce || num(a, AT_dim) < operand(a, i + 1)->rank, "dimension %lld is one of operand %u alone", (long long)num(a, AT_dim), i);
	}
	return NULL;
}

/* A rule of factors (ir_axes_of): a dimension that has any is their product, and no tensor has one twice. */
static struct err *stated(const struct at *a)
{
	enum { MOST = 4 * IR_MAX_RANK };
	int n = count(a, AT_rule), at = 1;
	const int64_t *w = list(a, AT_rule);
	if (!n)
		return NULL;
	NEED(w[0] >= 0 && w[0] <= (n - 1) / 3, "a rule of %lld factors", (long long)w[0]);
	for (int f = 0; f < w[0]; f++, at += 3)
		NEED(w[at] >= 0 && w[at + 1] >= 0 && w[at + 1] <= FACTOR_WHOLE && w[at + 2] >= 0 && w[at + 2] <= 1, "factor %d of its rule", f);
	for (uint32_t t = 0; t < a->o->nin + a->o->nout; t++) {
		const struct ir_type_info *ty = t < a->o->nin ? operand(a, t) : &a->m->type.p[result_t(a, t - a->o->nin)];
		int64_t had[MOST];
		int nhad = 0;
		for (int d = 0; d < ty->rank; d++) {
			NEED(at < n && w[at] >= 0 && w[at] < n - at && w[at] <= MOST - nhad, "its rule is cut short");
			int k = (int)w[at++];
			int64_t left = ty->dim[d];
			for (int i = 0; i < k; i++, at++) {
				NEED(w[at] >= 0 && w[at] < w[0], "a factor that its rule does not have");
				for (int j = 0; j < nhad; j++)
					NEED(had[j] != w[at], "a factor twice in tensor %u of its rule", t);
				had[nhad++] = w[at];
				int64_t size = w[1 + 3 * w[at]];
				NEED(size ? left % size == 0 : !left, "dimension %d of tensor %u of its rule", d, t);
				left = size ? left / size : 1;
			}
			NEED(!k || left == 1, "dimension %d of tensor %u of its rule", d, t);
		}
	}
	NEED(at == n, "a rule of more tensors than it has");
	return NULL;
}

/* Rules about results that the op states itself, and of ops without results. */
static struct err *check(const struct at *a)
{
	const struct ir_op *o = a->o;
	const struct ir_type_info *r = o->nout ? &a->m->type.p[result_t(a, 0)] : NULL, *x = o->nin ? a->in[0] : NULL;
	switch (o->kind) {
	case IR_convert:
		NEED(same_dims(x, r) && cls(r) != DT_NONE, "its result has other extents");
		return NULL;
	case IR_bitcast:
		NEED(same_dims(x, r) && dtype_info[x->dtype].bits == dtype_info[r->dtype].bits, "its result has other extents or width");
		return NULL;
	case IR_constant: {
		size_t n, e = dtype_info[r->dtype].bytes;
		ir_blob_data(a->m, (ir_blob)num(a, AT_data), &n);
		NEED(cls(r) != DT_NONE && num(a, AT_data) && (n == e || n == (size_t)r->bytes), "%zu bytes for a value of %lld", n, (long long)r->bytes);
		return NULL;
	}
	case IR_iota:
		NEED(num(a, AT_dim) >= 0 && num(a, AT_dim) < r->rank && cls(r) != DT_NONE && cls(r) != DT_PRED, "dim %lld of rank %d", (long long)num(a, AT_dim),
		     r->rank);
		return NULL;
	case IR_broadcast:
		TRY(length(a, AT_dims, x->rank));
		TRY(axes(a, AT_dims, r->rank));
		NEED(x->dtype == r->dtype && x->dtype != DT_token, "its result has another element type");
		for (int d = 0; d < x->rank; d++)
			NEED(x->dim[d] == 1 || x->dim[d] == r->dim[list(a, AT_dims)[d]], "dimension %d of extent %lld becomes %lld", d, (long long)x->dim[d],
			     (long long)r->dim[list(a, AT_dims)[d]]);
		return NULL;
	case IR_reshape:
		NEED(x->dtype == r->dtype && x->count == r->count && x->dtype != DT_token, "its result has another number or type of elements");
		return NULL;
	case IR_rng_bit_generator:
		r = &a->m->type.p[result_t(a, 1)];
		NEED(whole(r) || cls(r) == DT_FLOAT, "bits of type %s", dtype_info[r->dtype].name);
		return NULL;
	case IR_rng:
		TRY(within(a, AT_distribution, 1, 2));
		NEED(x->rank == 0 && a->in[1]->rank == 0 && x->dtype == a->in[1]->dtype && x->dtype == r->dtype && x->dtype != DT_token,
		     "its bounds are not scalars of the result's type");
		return NULL;
	case IR_bitcast_convert: {
		int p = dtype_info[x->dtype].bits, q = dtype_info[r->dtype].bits;
		const struct ir_type_info *wide = p > q ? x : r, *thin = p > q ? r : x;
		NEED(p && q && p != q && MAX(p, q) % MIN(p, q) == 0, "from %d bits to %d", p, q);
		NEED(thin->rank == wide->rank + 1 && thin->dim[wide->rank] == MAX(p, q) / MIN(p, q) &&
		     (wide->rank == 0 || memcmp(thin->dim, wide->dim, sizeof *wide->dim * wide->rank) == 0), "its result has other extents");
		return NULL;
	}
	case IR_dot:
		for (uint32_t i = 0; i < 2; i++)
			NEED((cls(operand(a, i)) == DT_COMPLEX) == (cls(r) == DT_COMPLEX), "%s operand %u and a result of type %s", dtype_info[operand(a, i)->dtype].name, i,
			     dtype_info[r->dtype].name);
		return NULL;
	case IR_custom_call:
		NEED(count(a, AT_alias) % 3 == 0, "aliases that are no triples");
		for (int i = 0; i < count(a, AT_alias); i += 3)
			NEED(list(a, AT_alias)[i] >= 0 && list(a, AT_alias)[i] < o->nout && list(a, AT_alias)[i + 1] >= 0 && list(a, AT_alias)[i + 1] < o->nin, "alias %d", i / 3);
		NEED(count(a, AT_on) <= 1 && (!count(a, AT_on) || list(a, AT_on)[0] >= 0), "a device that it is on");
		return stated(a);
	case IR_redistribute:
		return boxes(a, operand(a, 0), r);
	case IR_after_all:
		for (uint32_t i = 0; i < o->nin; i++)
			NEED(operand(a, i)->dtype == DT_token, "operand %u is no token", i);
		return NULL;
	case IR_all_reduce:
	case IR_reduce_scatter: {
		if (num(a, AT_redop) != RED_fn) {
			NEED(!num(a, AT_fn), "a function beside operation '%s'", redop_name[num(a, AT_redop)]);
			return num(a, AT_redop) == RED_softmax ? pairs(a) : NULL;
		}
		for (uint32_t i = 0; i < o->nin; i++) {
			int64_t f = num(a, AT_fn);
			enum dtype dt = operand(a, i)->dtype;
			TRY(ru_sig_count(a, f, 2, 1));
			NEED(ru_scalar_of(a, ru_param_t(a, f, 0), dt) && ru_scalar_of(a, ru_param_t(a, f, 1), dt) && ru_scalar_of(a, ru_ret_t(a, f, 0), dt),
			     "its function does not combine operand %u", i);
		}
		return NULL;
	}
	case IR_manual:
		return ru_manual(a);
	case IR_call:
	case IR_fused:
		return o->nout ? NULL : ru_callee(a, num(a, AT_fn), 0);
	case IR_loop:
		return o->nout ? NULL : ru_loop(a);
	case IR_case:
		NEED(o->nin >= 1 && ru_scalar_of(a, operand_t(a, 0), DT_i32) && count(a, AT_branch) >= 1, "no i32 index or no branches");
		for (int k = 0; k < count(a, AT_branch) && !o->nout; k++)
			TRY(ru_callee(a, list(a, AT_branch)[k], 1));
		return NULL;
	case IR_scatter:
		return o->nout ? NULL : ru_scatter(a);
	case IR_reduce:
	case IR_reduce_window:
		return o->nout ? NULL : ru_reduce_in(a);
	case IR_sort:
		return o->nout ? NULL : ru_sort(a);
	default:
		return NULL;
	}
}

static struct err *start(struct at *a, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	*a = (struct at){ .m = m, .fn = fn, .o = o };
	NEED(o->kind > 0 && o->kind < IR_COUNT, "operation %d does not exist", o->kind);
	const struct ir_kind_info *k = ir_info(o->kind);
	NEED((k->nin < 0 || o->nin == (uint32_t)k->nin) && (k->nout < 0 || o->nout == (uint32_t)k->nout), "it has %u operands and %u results",
	     o->nin, o->nout);
	for (uint32_t i = 0; i < o->nin && i < NELEM(a->in); i++)
		a->in[i] = operand(a, i);
	return attributes(a);
}

static struct err *op_err(struct err *e, const struct ir_op *o)
{
	return err_wrap(e, "%s", o->kind > 0 && o->kind < IR_COUNT ? ir_info(o->kind)->name : "?");
}

struct err *ir_verify_op(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	struct at a;
	struct shape s;
	bool known;
	struct err *e = start(&a, m, fn, o);
	for (uint32_t i = 0; i < o->nout && !e; i++) {
		e = ru_shape(&a, i, &s, &known);
		const struct ir_type_info *t = &m->type.p[result_t(&a, i)];
		if (e || s.rank < 0 || (!known && (ir_is_elem(o->kind) || o->kind == IR_rng_bit_generator)))
			continue;
		bool ok = s.rank == t->rank && (s.rank == 0 || memcmp(s.dim, t->dim, sizeof *s.dim * (size_t)s.rank) == 0);
		if (!ok || (known && s.dtype != t->dtype)) {
			struct str b = {0};
			str_add(&b, dtype_info[known ? (int)s.dtype : t->dtype].name);
			str_add(&b, "[");
			for (int d = 0; d < s.rank; d++)
				str_addf(&b, d ? ",%lld" : "%lld", (long long)s.dim[d]);
			str_add(&b, "], not ");
			ir_print_type(&b, m, result_t(&a, i));
			e = ERR(INVALID, "result %u is %s", i, b.p);
			str_free(&b);
		} else if (!known && t->dtype == DT_token) {
			e = ERR(INVALID, "result %u is a token", i);
		}
	}
	if (!e)
		e = check(&a);
	return e ? op_err(e, o) : NULL;
}

struct err *ir_infer(struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, ir_type *out)
{
	struct at a;
	struct shape s;
	bool known;
	struct err *e = start(&a, m, fn, o);
	for (uint32_t i = 0; i < o->nout && !e; i++) {
		e = ru_shape(&a, i, &s, &known);
		out[i] = !e && known ? ir_tensor(m, s.dtype, s.rank, s.dim) : 0;
		for (uint32_t k = 0; k < o->nin && k < NELEM(a.in); k++)
			a.in[k] = operand(&a, k);    /* the table of types may have moved */
	}
	return e ? op_err(e, o) : NULL;
}

/* --- functions and modules -------------------------------------------------------------- */

/* The lists of readers say what the operands say. */
static struct err *uses(const struct ir_fn *fn)
{
	size_t listed = 0;
	uint64_t counted = 0;
	NEED(fn->use.n == fn->ref.n, "%zu readers of %zu operands", fn->use.n, fn->ref.n);
	for (ir_val v = 1; v < fn->val.n; v++) {
		counted += fn->val.p[v].nuse;
		for (uint32_t u = ir_use_first(fn, v), last = UINT32_MAX; u; last = u, u = ir_use_next(fn, u)) {
			NEED(u <= fn->ref.n && u < last && fn->ref.p[u - 1] == v && ir_use_op(fn, u) < fn->op.n, "value %u has a reader that reads another one", v);
			const struct ir_op *o = &fn->op.p[ir_use_op(fn, u)];
			NEED(u > o->in && u <= o->in + o->nin, "value %u has a reader whose operand it is not", v);
			listed++;
		}
	}
	NEED(listed == fn->ref.n && counted == fn->ref.n + fn->result.n, "%zu readers are listed and %llu counted, of %zu operands and %zu results", listed,
	     (unsigned long long)counted, fn->ref.n, fn->result.n);
	return NULL;
}

/* A value that is one part of a joint sum stands before or behind the other one, made by the same op. */
static struct err *tuples(const struct ir_module *m, const struct ir_fn *fn)
{
	for (ir_val v = 1; v < fn->shard.n; v++) {
		if (!ir_shard_joint(m, ir_shard_of(fn, v)))
			continue;
		NEED(v + 1 < fn->val.n && ir_shard_pair(m, ir_shard_of(fn, v), ir_shard_of(fn, v + 1)) && fn->val.p[v].def == fn->val.p[v + 1].def &&
		     ir_is_pair(m, fn->val.p[v].type, fn->val.p[v + 1].type), "value %u is a part of a joint sum, of which value %u is not the other part", v, v + 1);
		v++;
	}
	return NULL;
}

static struct err *verify_fn(const struct ir_module *m, const struct ir_fn *fn)
{
	NEED(fn->val.n >= 1 && fn->nparam < fn->val.n, "%u parameters of %zu values", fn->nparam, fn->val.n);
	ir_val next = fn->nparam + 1;
	for (size_t i = 1; i < fn->val.n; i++) {
		const struct ir_value *v = &fn->val.p[i];
		NEED(v->type > 0 && v->type < m->type.n, "value %zu has no type", i);
		NEED(ir_shard_of(fn, (ir_val)i) < m->shard.n, "value %zu has a sharding that does not exist", i);
		const struct ir_shard_info *h = &m->shard.p[ir_shard_of(fn, (ir_val)i)];
		NEED(!ir_shard_of(fn, (ir_val)i) || h->rank == m->type.p[v->type].rank || (h->rank == 0 && !m->mesh.p[h->mesh].naxis),
		     "value %zu: a sharding of rank %d for a value of rank %d", i, h->rank, m->type.p[v->type].rank);
		NEED((v->def == IR_PARAM) == (i <= fn->nparam), "value %zu and the parameters disagree", i);
	}
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		NEED(o->out == next || !o->nout, "operation %zu: its results begin at %u, not %u", i, o->out, next);
		NEED(o->nout <= fn->val.n - next, "operation %zu: more results than values", i);
		NEED(o->in <= fn->ref.n && o->nin <= fn->ref.n - o->in, "operation %zu: operands that do not exist", i);
		NEED(o->loc < m->loc.n, "operation %zu: a location that does not exist", i);
		for (uint32_t k = 0; k < o->nin; k++)
			NEED(ir_in(fn, o, k) > 0 && ir_in(fn, o, k) < next, "operation %zu (%s): operand %u is not defined before it", i,
			     ir_info(o->kind)->name, k);
		for (uint32_t k = 0; k < o->nout; k++)
			NEED(fn->val.p[next + k].def == i, "operation %zu: result %u says another operation made it", i, k);
		struct err *e = ir_verify_op(m, fn, o);
		if (e) {
			struct str s = {0};
			struct at a;
			struct err *unsafe = start(&a, m, fn, o);
			if (!unsafe)
				ir_print_op(&s, m, fn, o);
			err_free(unsafe);
			if (s.n > 300)
				s.n = 300;
			e = s.n ? err_wrap(e, "operation %zu, '%.*s'", i, (int)s.n, s.p) : err_wrap(e, "operation %zu", i);
			str_free(&s);
			return e;
		}
		next += o->nout;
	}
	TRY(uses(fn));
	TRY(tuples(m, fn));
	NEED(next == fn->val.n, "%zu values, of which operations make up to %u", fn->val.n, next);
	for (size_t i = 0; i < fn->result.n; i++)
		NEED(fn->result.p[i] > 0 && fn->result.p[i] < next, "result %zu is not defined", i);
	return NULL;
}

/* No function holds itself. */
static struct err *acyclic(const struct ir_module *m)
{
	struct frame { ir_fnid f; size_t op; int next; };
	ARR(struct frame) stack = {0};
	uint8_t *state = mem_alloc(m->fn.n);
	struct err *e = NULL;
	ir_fnid few[16], *r = few;
	int cap = NELEM(few);
	for (ir_fnid root = 1; root < m->fn.n && !e; root++) {
		if (state[root])
			continue;
		struct frame f = { root, 0, 0 };
		arr_push(&stack, f);
		state[root] = 1;
		while (stack.n && !e) {
			struct frame *t = &stack.p[stack.n - 1];
			const struct ir_fn *fn = m->fn.p[t->f];
			if (t->op == fn->op.n) {
				state[t->f] = 2;
				stack.n--;
				continue;
			}
			const struct ir_op *o = &fn->op.p[t->op];
			int n = 0;
			if (!(ir_info(o->kind)->flags & IR_ELEM))
				while ((n = ir_regions(fn, o, r, cap)) == cap) {
					ir_fnid *more = mem_alloc((size_t)cap * 2 * sizeof *more);
					if (r != few)
						free(r);
					r = more;
					cap *= 2;
				}
			if (t->next == n) {
				t->op++;
				t->next = 0;
				continue;
			}
			ir_fnid g = r[t->next++];
			if (state[g] == 1)
				e = ERR(INVALID, "function '%s' holds itself", ir_text(m, m->fn.p[g]->name));
			if (state[g] == 0) {
				state[g] = 1;
				f = (struct frame){ g, 0, 0 };
				arr_push(&stack, f);
			}
		}
	}
	if (r != few)
		free(r);
	arr_free(&stack);
	free(state);
	return e;
}

struct err *ir_verify(const struct ir_module *m)
{
	NEED(m->fn.n >= 2, "the module has no function, of which the first is its program");
	for (size_t i = 1; i < m->fn.n; i++) {
		struct err *e = verify_fn(m, m->fn.p[i]);
		if (e)
			return err_wrap(e, "function '%s'", ir_text(m, m->fn.p[i]->name));
	}
	TRY(acyclic(m));
	const struct ir_fn *fn = ir_main(m);
	for (uint32_t i = 0; i < fn->nparam && m->arg; i++) {
		NEED(m->arg[i].shard < m->shard.n && m->arg[i].memory_kind < m->str.n && m->arg[i].layout < m->str.n && m->arg[i].name < m->str.n, "argument %u", i);
		NEED(m->arg[i].alias < (int64_t)fn->result.n, "argument %u aliases output %d of %zu", i, m->arg[i].alias, fn->result.n);
	}
	for (size_t i = 0; i < fn->result.n && m->res; i++)
		NEED(m->res[i].shard < m->shard.n && m->res[i].memory_kind < m->str.n && m->res[i].layout < m->str.n && m->res[i].name < m->str.n, "result %zu", i);
	return NULL;
}
