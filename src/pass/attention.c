/* Attention -> the ops attention and attention_grad: src/attn finds it, here the functions are rebuilt. */
#include "passes.h"

static void give(void *user, struct ir_b *b, int k, const ir_val *in, ir_val *out)
{
	const struct attn_plan *p = user;
	*out = attn_emit(&p->exit.p[k], b, in);
}

/* A barrier is without what nobody reads any more. */
static ir_val less(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	if (o->kind != IR_optimization_barrier)
		return 0;
	ir_val *x = ARENA_NEW(r->a, ir_val, o->nin + 1);
	ir_type *t = ARENA_NEW(r->a, ir_type, o->nin + 1);
	uint32_t n = 0;
	for (uint32_t k = 0; k < o->nin; k++)
		if (r->live[o->out + k] & 1) {
			t[n] = r->from->val.p[o->out + k].type;
			x[n++] = in[k];
		}
	if (n == o->nin)
		return 0;
	ir_val v = ir_emit_raw(&r->b, IR_optimization_barrier, n, x, n, t, NULL, 0);
	for (uint32_t k = 0; k < o->nin; k++)
		r->map[o->out + k] = r->live[o->out + k] & 1 ? v++ : 0;
	return REWRITE_MAPPED;
}

static void in_function(struct ir_module *m, ir_fnid f, bool all, struct attn_record *rec)
{
	struct arena a;
	const struct ir_fn *fn = ir_fn_of(m, f);
	arena_init(&a);
	struct attn_plan p = {0};
	attn_find(&a, m, fn, all, rec, &p);
	int n = (int)p.exit.n, *op = ARENA_NEW(&a, int, n + 1);
	struct region *r = ARENA_NEW(&a, struct region, n + 1);
	for (int i = 0; i < n; i++) {
		op[i] = (int)fn->val.p[p.exit.p[i].v].def;
		r[i] = (struct region){ .op = &op[i], .nop = 1, .in = p.exit.p[i].in, .nin = (size_t)p.exit.p[i].nin, .out = &p.exit.p[i].v, .nout = 1 };
	}
	if (n) {
		struct ir_fn *g = pass_replace_regions(m, &a, fn, r, n, &(struct region_change){ .region = give, .user = &p, .in_order = true });
		pass_replace(m, f, ir_rebuild(m, g));
	}
	attn_plan_free(&p);
	arena_fini(&a);
}

static void in_module(struct ir_module *m, bool all, struct attn_record *rec)
{
	struct arena a;
	int n;
	arena_init(&a);
	const ir_fnid *f = ir_reachable(&a, m, &n);
	for (int k = 0; k < n; k++)
		in_function(m, f[k], all, rec);
	arena_fini(&a);
}

/* --- results: o in two parts, and no l that nobody reads ---------------------------------------------------------------------- */

struct parted {
	bool late;               /* the op gives both parts, where both are read, and o alone where that is all that is read */
	const struct ir_op **part;                 /* per op: what gives the two parts of this attention; NULL: it stays */
	bool *between;           /* per op: the new op does what it did */
	ir_val *given;           /* per value of the old function that is one of two parts: the new one */
};

static bool only_o(const struct ir_fn *fn, const struct ir_op *o) { return o->kind == IR_attention && o->nout == 2 && !fn->val.p[o->out + 1].nuse; }

static bool find_parts(struct rewrite *r)
{
	struct parted *p = r->user;
	const struct ir_fn *fn = r->from;
	bool any = false;
	p->part = ARENA_NEW(r->a, const struct ir_op *, fn->op.n);
	p->between = ARENA_NEW(r->a, bool, fn->op.n);
	p->given = ARENA_NEW(r->a, ir_val, fn->val.n);
	for (size_t i = 0; i < fn->op.n; i++) {
		int between[ATTN_BETWEEN];
		any |= p->late && only_o(fn, &fn->op.p[i]);
		const struct ir_op *part = fn->op.p[i].kind == IR_attention ? attn_parts_of(r->m, fn, &fn->op.p[i], between) : NULL;
		if (!part || (!p->late && fn->val.p[part->out + 1].nuse))
			continue;
		any = true;
		p->part[i] = part;
		p->between[part - fn->op.p] = true;
		for (int k = 0; k < ATTN_BETWEEN; k++)
			p->between[between[k]] = true;
	}
	return any;
}

static ir_val put_parts(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	struct parted *p = r->user;
	size_t i = (size_t)(o - r->from->op.p);
	if (p->between[i]) {
		for (uint32_t k = 0; k < o->nout; k++)
			r->map[o->out + k] = p->given[o->out + k];
		return REWRITE_MAPPED;
	}
	if (!p->part[i] && p->late && only_o(r->from, o)) {
		r->map[o->out] = ir_emit_raw(&r->b, IR_attention, o->nin, in, 1, &r->from->val.p[o->out].type, r->from->attr.p + o->attr, ir_attr_words(r->from, o));
		r->map[o->out + 1] = 0;
		return REWRITE_MAPPED;
	}
	if (!p->part[i])
		return 0;
	const struct ir_op *part = p->part[i];
	const struct ir_value *v = r->from->val.p;
	ir_val y = ir_emit_raw(&r->b, IR_attention, o->nin, in, v[part->out + 1].nuse ? 3 : 2, (ir_type[]){ v[part->out].type, v[o->out + 1].type, v[part->out + 1].type },
	                       r->from->attr.p + o->attr, ir_attr_words(r->from, o));
	p->given[part->out] = y;
	p->given[part->out + 1] = y + 2;
	r->map[o->out] = 0;
	r->map[o->out + 1] = y + 1;
	return REWRITE_MAPPED;
}

void pass_attention_parts(struct ir_module *m, bool late)
{
	if (!pass_has(m, IR_attention))
		return;
	pass_rewrite(m, put_parts, find_parts, &(struct parted){ .late = late });
	pass_drop(m);
}

/* What was left as it is is looked at again. */
static void forget_left(struct attn_record *r)
{
	size_t n = 0;
	for (size_t i = 0; i < r->said.n; i++)
		if (!r->said.p[i].why)
			r->said.p[n++] = r->said.p[i];
	r->said.n = n;
}

struct err *pass_attention(const struct pass_opts *o, struct ir_module *m)
{
	const char *how = conf_str(CONF_ATTENTION);
	struct recomputed again = {0};
	bool all = !strcmp(how, "on");
	if (!strcmp(how, "off") || !pass_has(m, IR_dot))
		return NULL;
	if (o->attention)
		forget_left(o->attention);
	pass_parts(m);
	pass_recompute(o, m, all, &again);
	in_module(m, all, o->attention);
	if (pass_recompute_undo(m, &again))
		in_module(m, all, o->attention);      /* the loops that are back */
	pass_keep_outputs(m);
	pass_attention_parts(m, false);
	if (pass_has(m, IR_attention) && pass_has(m, IR_optimization_barrier)) {
		pass_rewrite(m, less, NULL, NULL);
		pass_drop(m);
	}
	return NULL;
}

void pass_explain_attention(struct str *s, const struct ir_module *m, const struct attn_record *r)
{
	if (!r->said.n)
		return;
	str_add(s, "attention: products that look like q . k, by the line of the product\n");
	for (size_t i = 0; i < r->said.n; i++) {
		const struct attn_said *x = &r->said.p[i];
		str_add(s, "  ");
		pass_add_place(s, m, x->where);
		str_addf(s, x->why ? "  left as it is: %s" : "  one operation", x->why);
		if (x->why && x->by && x->by != x->where) {
			str_add(s, ", ");
			pass_add_place(s, m, x->by);
		}
		str_add(s, "\n");
	}
}
