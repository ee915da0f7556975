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

/* --- one table for several attentions -------------------------------------------------------------
 *
 * Its gradient is one scatter of the sum of what each gives, matrices of queries by keys.  It becomes the sum of a scatter for each, which each attention makes of its own. */

enum { TERMS = 64, PATH = 16, DEEP = 256 };
struct term { ir_val v; int npath, path[PATH]; };        /* ops from the scatter's operand down to v */
struct sum { int op, nterm; struct term *term; const ir_val *in; size_t nin; };
struct apart {
	struct arena *a;
	const struct ir_module *m;
	const struct ir_fn *fn;
	const bool *around;
	struct sum *sum;
	int nsum, nmade;
	ir_val *made;            /* the new scatters */
	int path[PATH], npath, steps;
};

static bool matrix(const struct apart *x, ir_val v) { return x->around[v] && !ir_splat(x->m, x->fn, v); }

/* The operand that op o passes on, times or in another shape; 0: it does something else. */
static ir_val passes(const struct apart *x, const struct ir_op *o)
{
	switch (o->kind) {
	case IR_reshape: case IR_transpose: case IR_convert: case IR_negate: case IR_sharding_constraint:
		return ir_in(x->fn, o, 0);
	case IR_reduce:
		return o->nout == 1 && (enum redop)ir_attr(x->fn, o, AT_redop) == RED_add && ir_splat(x->m, x->fn, ir_in(x->fn, o, 1)) ? ir_in(x->fn, o, 0) : 0;
	case IR_add: case IR_multiply: {
		ir_val v[2] = { ir_in(x->fn, o, 0), ir_in(x->fn, o, 1) };
		const void *p = ir_splat(x->m, x->fn, v[0]) ? ir_splat(x->m, x->fn, v[0]) : ir_splat(x->m, x->fn, v[1]);
		bool zero = p && dtype_real((enum dtype)ir_vtype(x->m, x->fn, o->out)->dtype, p) == 0;
		return p && zero == (o->kind == IR_add) ? v[ir_splat(x->m, x->fn, v[0]) ? 1 : 0] : 0;
	}
	default:
		return 0;
	}
}

static bool adds(const struct apart *x, const struct ir_op *o) { return o->kind == IR_add && matrix(x, ir_in(x->fn, o, 0)) && matrix(x, ir_in(x->fn, o, 1)); }

/* Is there a sum of matrices in v? */
static bool has_sum(struct apart *x, ir_val v)
{
	for (int depth = 0; depth < PATH; depth++) {
		const struct ir_op *o = ir_def(x->fn, v);
		if (!o || !matrix(x, v) || adds(x, o))
			return o && matrix(x, v);
		if (!(v = passes(x, o)))
			return false;
	}
	return false;
}

/* Terms of v into s.  False: there are too many. */
static bool terms(struct apart *x, ir_val v, struct sum *s)
{
	const struct ir_op *o = ir_def(x->fn, v);
	if (has_sum(x, v)) {
		if (--x->steps < 0)
			return false;
		if (adds(x, o))
			return terms(x, ir_in(x->fn, o, 0), s) && terms(x, ir_in(x->fn, o, 1), s);
		if (x->npath == PATH)
			return false;
		x->path[x->npath++] = (int)(o - x->fn->op.p);
		bool ok = terms(x, passes(x, o), s);
		x->npath--;
		return ok;
	}
	if (s->nterm == TERMS)
		return false;
	struct term *t = &s->term[s->nterm++];
	t->v = v;
	t->npath = x->npath;
	memcpy(t->path, x->path, sizeof *x->path * (size_t)x->npath);
	return true;
}

/* The terms, indices and the zeros, and what the ops on the way read besides. */
static void list_in(struct apart *x, struct sum *s)
{
	ir_val *in = ARENA_NEW(x->a, ir_val, (size_t)s->nterm * (1 + 2 * PATH) + 2);
	const struct ir_op *o = &x->fn->op.p[s->op];
	in[s->nin++] = ir_in(x->fn, o, 0);
	in[s->nin++] = ir_in(x->fn, o, 1);
	for (int i = 0; i < s->nterm; i++) {
		in[s->nin++] = s->term[i].v;
		for (int k = 0; k < s->term[i].npath; k++) {
			const struct ir_op *p = &x->fn->op.p[s->term[i].path[k]];
			for (uint32_t j = 0; j < p->nin; j++)
				if (ir_in(x->fn, p, j) != passes(x, p))
					in[s->nin++] = ir_in(x->fn, p, j);
		}
	}
	s->in = in;
}

static ir_val given(const struct sum *s, const ir_val *in, ir_val v)
{
	size_t i = 0;
	while (s->in[i] != v)
		i++;
	return in[i];
}

static void take_apart(void *user, struct ir_b *b, int k, const ir_val *in, ir_val *out)
{
	struct apart *x = user;
	const struct sum *s = &x->sum[k];
	const struct ir_op *o = &x->fn->op.p[s->op];
	*out = 0;
	for (int i = 0; i < s->nterm; i++) {
		const struct term *t = &s->term[i];
		ir_val v = given(s, in, t->v);
		for (int j = t->npath; j-- > 0;) {
			const struct ir_op *p = &x->fn->op.p[t->path[j]];
			ir_val of[2] = { 0, 0 };
			for (uint32_t n = 0; n < p->nin; n++)
				of[n] = ir_in(x->fn, p, n) == passes(x, p) ? v : given(s, in, ir_in(x->fn, p, n));
			v = ir_clone(b, x->fn, p, of);
		}
		ir_val one = ir_clone(b, x->fn, o, (ir_val[]){ in[0], in[1], v });
		x->made[x->nmade++] = one;
		*out = *out ? ir_bin(b, ELEM_add, *out, one) : one;
	}
}

/* Does v follow from positions alone? */
static bool of_positions(const struct ir_fn *fn, ir_val v, int *steps)
{
	const struct ir_op *o = ir_def(fn, v);
	bool yes = o && --*steps > 0;
	for (uint32_t k = 0; yes && k < o->nin; k++)
		yes = of_positions(fn, ir_in(fn, o, k), steps);
	return yes;
}

/* A scatter to a table, of elements that positions name: that of an embedding is asked no further. */
static bool may_be(const struct ir_fn *fn, const struct ir_op *o)
{
	int steps = 200;
	return o->kind == IR_scatter && o->nout == 1 && (enum redop)ir_attr(fn, o, AT_redop) == RED_add && of_positions(fn, ir_in(fn, o, 1), &steps);
}

/* fn with such sums taken apart; NULL: it has none. */
static struct ir_fn *apart(struct ir_module *m, struct arena *a, const struct ir_fn *fn, bool all, struct apart *x)
{
	bool *around = ARENA_NEW(a, bool, fn->val.n);
	int n = 0, any = 0;
	for (size_t i = 0; i < fn->op.n; i++)
		n += may_be(fn, &fn->op.p[i]);
	if (!n)
		return NULL;
	*x = (struct apart){ .a = a, .m = m, .fn = fn, .around = around, .sum = ARENA_NEW(a, struct sum, n) };
	attn_around(a, m, fn, all, around);
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		if (!may_be(fn, o) || !has_sum(x, ir_in(fn, o, 2)))
			continue;
		const void *zero = ir_splat(m, fn, ir_in(fn, o, 0));
		if (!zero || dtype_info[ir_vtype(m, fn, o->out)->dtype].cls != DT_FLOAT || dtype_real((enum dtype)ir_vtype(m, fn, o->out)->dtype, zero) != 0)
			continue;
		struct sum *s = &x->sum[x->nsum];
		*s = (struct sum){ .op = (int)i, .term = ARENA_NEW(a, struct term, TERMS) };
		x->steps = DEEP;
		if (!terms(x, ir_in(fn, o, 2), s))
			continue;
		list_in(x, s);
		any += s->nterm;
		x->nsum++;
	}
	if (!x->nsum)
		return NULL;
	x->made = ARENA_NEW(a, ir_val, any);
	struct region *r = ARENA_NEW(a, struct region, x->nsum);
	for (int i = 0; i < x->nsum; i++)
		r[i] = (struct region){ .op = &x->sum[i].op, .nop = 1, .in = x->sum[i].in, .nin = x->sum[i].nin, .out = &fn->op.p[x->sum[i].op].out, .nout = 1 };
	return pass_replace_regions(m, a, fn, r, x->nsum, &(struct region_change){ .region = take_apart, .user = x, .in_order = true });
}

static bool leaves_all(const struct attn_plan *p, const struct apart *x)
{
	for (int i = 0; i < x->nmade; i++) {
		size_t k = 0;
		while (k < p->exit.n && p->exit.p[k].v != x->made[i])
			k++;
		if (k == p->exit.n)
			return false;
	}
	return true;
}

/* --- what is found ---------------------------------------------------------------------------------- */

static void in_function(struct ir_module *m, ir_fnid f, bool all, struct attn_record *rec)
{
	struct arena a;
	const struct ir_fn *fn = ir_fn_of(m, f);
	arena_init(&a);
	struct attn_plan p = {0};
	struct apart x;
	const struct ir_fn *parted = apart(m, &a, fn, all, &x);
	size_t said = rec ? rec->said.n : 0;
	attn_find(&a, m, parted ? parted : fn, all, rec, &p);
	if (parted && leaves_all(&p, &x)) {
		fn = parted;
	} else if (parted) {                     /* it stays as it is */
		attn_plan_free(&p);
		p = (struct attn_plan){0};
		if (rec)
			rec->said.n = said;
		attn_find(&a, m, fn, all, rec, &p);
	}
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
