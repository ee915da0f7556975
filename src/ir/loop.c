/* Loops: how their operands, the parameters and results of their body and condition, and their own results are numbered.
 * Nothing else in the tree counts them. */
#include "ir.h"

#include <stdlib.h>

struct ir_loop ir_loop_view(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	assert(o->kind == IR_loop);
	struct ir_loop l = { .trip = ir_attr(fn, o, AT_trip), .body = ir_fn_of(m, (ir_fnid)ir_attr(fn, o, AT_body)) };
	ir_fnid cond = (ir_fnid)ir_attr(fn, o, AT_cond);
	const int64_t *role = ir_attrs(fn, o, AT_role, &l.n);
	l.cond = cond ? ir_fn_of(m, cond) : NULL;
	l.x = ARENA_NEW(a, struct ir_loop_operand, l.n);
	l.made = ARENA_NEW(a, int, l.n);
	ir_val param = IR_LOOP_TURN + 1;
	for (int k = 0; k < l.n; k++)
		l.x[k] = (struct ir_loop_operand){ .v = ir_in(fn, o, (uint32_t)k), .role = (enum ir_role)role[k], .result = -1,
		                                   .param = ir_role_is_out((enum ir_role)role[k]) ? 0 : param++,
		                                   .asked = l.cond ? (ir_val)k + 1 : 0 };
	for (int out = 0; out < 2; out++) {
		for (int k = 0; k < l.n; k++)
			if (out ? ir_role_is_out(l.x[k].role) : l.x[k].role == ROLE_CARRY) {
				l.made[l.nmade] = k;
				l.x[k].result = l.nmade++;
			}
		l.ncarry = out ? l.ncarry : l.nmade;
	}
	return l;
}

/* --- a new one -------------------------------------------------------------------- */

int ir_loop_add(struct ir_loop_new *l, ir_val v, enum ir_role role)
{
	struct ir_loop_operand x = { .v = v, .role = role, .result = -1 };
	arr_push(&l->x, x);
	return (int)l->x.n - 1;
}

/* The type of what the body sees of an operand. */
static ir_type seen(struct ir_b *b, const struct ir_loop_operand *x)
{
	const struct ir_type_info *t = ir_vtype(b->m, b->fn, x->v);
	return x->role <= ROLE_CONST ? b->fn->val.p[x->v].type : ir_tensor(b->m, (enum dtype)t->dtype, t->rank - 1, t->dim + 1);
}

void ir_loop_open(struct ir_loop_new *l, struct ir_b *b, int64_t trip, const char *body, const char *cond)
{
	l->b = b;
	l->trip = trip;
	l->body = ir_fn_new(b->m, body);
	l->cond = trip < 0 ? ir_fn_new(b->m, cond) : NULL;
	ir_param(l->body, ir_scalar(b->m, DT_i32));
	for (size_t k = 0; k < l->x.n; k++) {
		struct ir_loop_operand *x = &l->x.p[k];
		x->param = ir_role_is_out(x->role) ? 0 : ir_param(l->body, seen(b, x));
		x->asked = l->cond ? ir_param(l->cond, b->fn->val.p[x->v].type) : 0;
	}
	l->next = mem_alloc((l->x.n + 1) * sizeof *l->next);
}

void ir_loop_give(struct ir_loop_new *l, int k, ir_val v)
{
	assert(v && (l->x.p[k].role == ROLE_CARRY || ir_role_is_out(l->x.p[k].role)));
	l->next[k] = v;
}

ir_val ir_loop_close(struct ir_loop_new *l, int *result)
{
	uint32_t n = (uint32_t)l->x.n;
	int64_t *w = mem_alloc((n + 4) * sizeof *w);
	ir_val *in = mem_alloc((n + 1) * sizeof *in);
	ir_type *t = mem_alloc((n + 1) * sizeof *t);
	int nmade = 0;
	for (int out = 0; out < 2; out++)
		for (uint32_t k = 0; k < n; k++) {
			struct ir_loop_operand *x = &l->x.p[k];
			if (!(out ? ir_role_is_out(x->role) : x->role == ROLE_CARRY))
				continue;
			ir_result(l->body, l->next[k]);
			t[nmade] = l->b->fn->val.p[x->v].type;
			if (result)
				result[k] = nmade;
			nmade++;
		}
	w[0] = l->trip;
	w[1] = l->cond ? l->cond->id : 0;
	w[2] = l->body->id;
	w[3] = n;
	for (uint32_t k = 0; k < n; k++) {
		in[k] = l->x.p[k].v;
		w[4 + k] = l->x.p[k].role;
	}
	ir_val first = ir_emit_raw(l->b, IR_loop, n, in, (uint32_t)nmade, t, w, n + 4);
	free(w);
	free(in);
	free(t);
	free(l->next);
	arr_free(&l->x);
	return first;
}

int64_t ir_attention_table(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, uint32_t k)
{
	bool add = o->kind == IR_attention_grad_add, grad = add || o->kind == IR_attention_grad;
	uint32_t first = grad ? 6 : 3, n = o->nin - (add ? 3 : 0);
	if ((!grad && o->kind != IR_attention && o->kind != IR_attention_part) || k < first || k >= n)
		return 0;
	const struct ir_fn *f = ir_fn_of(m, (ir_fnid)ir_attr(fn, o, AT_fn));
	const struct ir_type_info *t = 1 + k - first < f->nparam ? ir_vtype(m, f, (ir_val)(2 + k - first)) : NULL;
	return t && t->rank == 1 ? t->dim[0] : 0;
}

/* Operand k of an attention that may lie in several arrays: keys, values, queries, cotangents. */
static bool in_arrays(const struct ir_op *o, uint32_t k)
{
	bool grad = o->kind == IR_attention_grad || o->kind == IR_attention_grad_add;
	return (grad || o->kind == IR_attention || o->kind == IR_attention_part) && (k < 3 || (grad && k == 4));
}

/* Do attentions alone read v, and, if they may, permutes? */
static bool attended(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, ir_val v, bool permutes)
{
	uint32_t n = 0;
	bool yes = true;
	for (uint32_t u = ir_use_first(fn, v); u && yes; u = ir_use_next(fn, u), n++) {
		const struct ir_op *o = &fn->op.p[ir_use_op(fn, u)];
		const struct ir_loop l = o->kind == IR_loop ? ir_loop_view(a, m, fn, o) : (struct ir_loop){ 0 };
		for (int k = 0; k < l.n && yes; k++)
			yes = l.x[k].v != v || (l.x[k].role == ROLE_CONST && !l.x[k].asked && l.x[k].param && attended(a, m, l.body, l.x[k].param, permutes));
		for (uint32_t k = 0; k < o->nin && yes && o->kind != IR_loop; k++)
			yes = ir_in(fn, o, k) != v || in_arrays(o, k) || (permutes && o->kind == IR_collective_permute);
	}
	return yes && n && n == fn->val.p[v].nuse;
}

bool ir_attended(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, ir_val v) { return attended(a, m, fn, v, true); }

bool ir_side_by_side(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	return o->kind == IR_concatenate && o->nin == 2 && ir_attr(fn, o, AT_dim) == ir_vtype(m, fn, o->out)->rank - 2 &&
	       fn->val.p[ir_in(fn, o, 0)].type == fn->val.p[ir_in(fn, o, 1)].type && attended(a, m, fn, o->out, false);
}
