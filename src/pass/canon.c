/* Canonical form: the rewrites of rewrites.def, each function until none applies to it any more. */
#include "rewrites.h"

#include <pthread.h>
#include <stdlib.h>

enum { FOLD_BYTES = 4096 };

static bool is_const(const struct ir_fn *fn, ir_val v)
{
	const struct ir_op *o = ir_def(fn, v);
	return o && o->kind == IR_constant;
}

/* All operands constant and small, or of an elementwise op each the same in all elements: run the op, there on one element. */
ir_val rw_fold(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	struct ir_module *m = r->m;
	unsigned flags = ir_info(o->kind)->flags;
	if (o->nout != 1 || o->nin == 0 || !(flags & IR_PURE) || flags & (IR_BARRIER | IR_COLL) || o->kind == IR_broadcast)
		return 0;
	if (!(flags & (IR_ELEM | IR_VIEW)) && o->kind != IR_concatenate && o->kind != IR_reduce && o->kind != IR_dynamic_slice)
		return 0;
	ir_type t = r->from->val.p[o->out].type;
	bool large = ir_type_of(m, t)->bytes > FOLD_BYTES, splats = flags & IR_ELEM;
	if (ir_type_of(m, t)->bytes == 0)
		return 0;
	for (uint32_t k = 0; k < o->nin; k++) {
		if (!is_const(r->b.fn, in[k]) || ir_vtype(m, r->b.fn, in[k])->bytes == 0)
			return 0;
		large |= ir_vtype(m, r->b.fn, in[k])->bytes > FOLD_BYTES;
		splats &= ir_splat(m, r->b.fn, in[k]) != NULL;
	}
	if (large && !splats)
		return 0;
	ir_type made = splats ? ir_scalar(m, (enum dtype)ir_type_of(m, t)->dtype) : t;
	struct ir_fn *f = ir_fn_new(m, "");
	struct ir_b b = { m, f, 0 };
	struct eval_array *a = ARENA_NEW(r->a, struct eval_array, o->nin), out = {0};
	ir_val *p = ARENA_NEW(r->a, ir_val, o->nin);
	for (uint32_t k = 0; k < o->nin; k++) {
		const struct ir_type_info *ti = ir_vtype(m, r->b.fn, in[k]);
		p[k] = ir_param(f, splats ? ir_scalar(m, (enum dtype)ti->dtype) : r->b.fn->val.p[in[k]].type);
		size_t n;
		const char *d = ir_blob_data(m, (ir_blob)ir_attr(r->b.fn, ir_def(r->b.fn, in[k]), AT_data), &n);
		a[k].dtype = ti->dtype;
		a[k].rank = splats ? 0 : ti->rank;
		memcpy(a[k].dim, ti->dim, sizeof *ti->dim * (size_t)a[k].rank);
		a[k].bytes = splats ? (size_t)dtype_info[ti->dtype].bytes : (size_t)ti->bytes;
		a[k].p = arena_alloc(r->a, a[k].bytes);
		for (size_t at = 0; at < a[k].bytes; at += n)
			memcpy((char *)a[k].p + at, d, n);
	}
	uint32_t words;
	const int64_t *w = ir_attr_copy(r->a, r->from, o, &words);
	ir_result(f, ir_emit_raw(&b, o->kind, o->nin, p, 1, &made, w, words));
	struct err *e = eval_fn(m, f, a, &out);
	ir_val v = 0;
	if (!e) {
		size_t es = dtype_info[out.dtype].bytes;
		bool splat = true;
		for (size_t i = es; i < out.bytes && splat; i += es)
			splat = !memcmp(out.p, (char *)out.p + i, es);
		v = ir_const(&r->b, t, out.p, splat ? es : out.bytes);
	}
	err_free(e);
	eval_array_free(&out);
	ir_fn_drop(m);                         /* the scratch function was the last one */
	return v;
}

/* dot without contraction: both operands broadcast to the result, multiplied in its type. */
ir_val rw_dot_as_multiply(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	struct ir_module *m = r->m;
	const struct ir_axes *ax = ir_axes_of(r->a, m, r->from, o);
	ir_type t = r->from->val.p[o->out].type;
	enum dtype dt = ir_type_of(m, t)->dtype;
	for (int f = 0; f < ax->nfactor; f++)
		if (ax->factor[f].kind == FACTOR_SUM || dt == DT_pred)
			return 0;
	ir_val x[2];
	for (int s = 0; s < 2; s++) {
		int64_t dims[IR_MAX_RANK];
		for (int d = ir_vtype(m, r->b.fn, in[s])->rank; d-- > 0;)
			dims[d] = ir_axes_find(ax, 2, ax->dim[s][d].factor[0]);
		x[s] = pass_spread(&r->b, in[s], t, dims);
	}
	return ir_bin(&r->b, ELEM_multiply, x[0], x[1]);
}

/* A result without elements is a constant: who reads it waits for nobody, and who makes nothing else is dead, such as a call of
 * LAPACK on an empty matrix, which LAPACK does not take. */
ir_val rw_empty(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	unsigned flags = ir_info(o->kind)->flags;
	bool custom = o->kind == IR_custom_call && !ir_attr(r->from, o, AT_effect), any = false;
	if (o->kind == IR_constant || !(custom || (flags & IR_PURE && !(flags & (IR_BARRIER | IR_COLL)))))
		return 0;
	for (uint32_t k = 0; k < o->nout; k++)
		any |= !ir_vtype(r->m, r->from, o->out + k)->count;
	if (!any)
		return 0;
	ir_val v = o->nout > 1 ? ir_clone(&r->b, r->from, o, in) : 0;
	for (uint32_t k = 0; k < o->nout; k++) {
		ir_type t = r->from->val.p[o->out + k].type;
		r->map[o->out + k] = ir_type_of(r->m, t)->count ? v + k : ir_const(&r->b, t, NULL, 0);
	}
	return REWRITE_MAPPED;
}

/* Every device alone: what it sends comes back to it. */
ir_val rw_alone(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct ir_group_info *g = &r->m->group.p[ir_attr(r->from, o, AT_group)];
	if (!g->nrow ? r->m->num_partitions > 1 : g->ncol > 1)
		return 0;
	for (uint32_t k = 0; k < o->nout; k++) {
		if (r->b.fn->val.p[in[k]].type != r->from->val.p[o->out + k].type)
			return 0;
		r->map[o->out + k] = in[k];
	}
	return REWRITE_MAPPED;
}

ir_val rw_known_branch(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	int64_t i;
	int n;
	const int64_t *f = ir_attrs(r->from, o, AT_branch, &n);
	ir_val index = in[0];
	for (const struct ir_op *d; (d = ir_def(r->b.fn, index)) && d->kind == IR_optimization_barrier; )
		index = ir_in(r->b.fn, d, index - d->out);
	if (n > 1 && !ir_const_int(r->m, r->b.fn, index, &i))
		return 0;
	i = n == 1 || i < 0 || i >= n ? n - 1 : i;
	ir_val *out = ARENA_NEW(r->a, ir_val, o->nout + 1);
	ir_inline(&r->b, (ir_fnid)f[i], in + 1, out);
	for (uint32_t k = 0; k < o->nout; k++)
		r->map[o->out + k] = out[k];
	return REWRITE_MAPPED;
}

/* --- the table -------------------------------------------------------------------------------- */

#define KINDS(...) (const uint16_t[]){ __VA_ARGS__, 0 }
static const struct rule { const char *name, *from, *to; rewrite_op *apply; const uint16_t *on; } rule[] = {
#define REWRITE(id, kinds, from, to) { #id, from, to, rw_##id, kinds },
#include "rewrites.def"
#undef REWRITE
};
#undef KINDS
enum { RULES = NELEM(rule) };

const char *pass_rewrite_name(int i, const char **from, const char **to)
{
	if (i >= RULES)
		return NULL;
	*from = rule[i].from;
	*to = rule[i].to;
	return rule[i].name;
}

typedef uint8_t rules_of[IR_COUNT][RULES + 1];       /* per kind: numbers of its rules + 1, 0 ends */
struct canon {
	const uint8_t (*of)[RULES + 1];
	ARR(uint8_t) rests;                  /* per function: nothing applied to it last time */
	bool any;                            /* one applied this time */
};

static void table_make(rules_of of, const char *only)
{
	int n[IR_COUNT] = {0};
	for (int i = 0; i < RULES; i++)
		for (int k = 1; k < IR_COUNT; k++) {
			bool on = !rule[i].on[0];
			for (const uint16_t *p = rule[i].on; *p; p++)
				on |= *p == k;
			if (on && (!only || !strcmp(only, rule[i].name)))
				of[k][n[k]++] = (uint8_t)(i + 1);
		}
}

static rules_of all;
static void make_all(void) { table_make(all, NULL); }

static bool begin(struct rewrite *r)
{
	struct canon *c = r->user;
	while (c->rests.n <= r->from->id)
		arr_push(&c->rests, (uint8_t)0);
	bool go = !c->rests.p[r->from->id];
	c->rests.p[r->from->id] = 1;
	return go;
}

static ir_val on_op(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	struct canon *c = r->user;
	for (const uint8_t *k = c->of[o->kind]; *k; k++) {
		ir_val v = rule[*k - 1].apply(r, o, in);
		if (v) {
			c->rests.p[r->from->id] = 0;
			c->any = true;
			return v;
		}
	}
	return 0;
}

struct err *pass_canon_only(struct ir_module *m, const char *only)
{
	enum { MOST = 64 };                  /* rules only ever simplify, but a bound costs nothing */
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	rules_of one = {0};
	struct canon c = { .of = only ? one : all, .any = true };
	if (only)
		table_make(one, only);
	else
		pthread_once(&once, make_all);
	for (int i = 0; i < MOST && c.any; i++) {
		c.any = false;
		pass_rewrite(m, on_op, begin, &c);
	}
	arr_free(&c.rests);
	return NULL;
}

struct err *pass_canon(const struct pass_opts *o, struct ir_module *m)
{
	return pass_canon_only(m, NULL);
}
