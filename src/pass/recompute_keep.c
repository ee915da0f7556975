/* Attention that is done again under jax.checkpoint, whose output and sums are kept instead: a loop that goes back over another one has them from
 * stacks, what is not in a loop from where it was done. */
#include "recompute.h"

/* Functions of scalars that say the same. */
static bool same_function(const struct ir_module *m, ir_fnid f, ir_fnid g)
{
	struct str s[2] = {{0}};
	ir_fn_bytes(&s[0], m, ir_fn_of(m, f), NULL, NULL);
	ir_fn_bytes(&s[1], m, ir_fn_of(m, g), NULL, NULL);
	bool same = s[0].n == s[1].n && !memcmp(s[0].p, s[1].p, s[0].n);
	str_free(&s[0]);
	str_free(&s[1]);
	return same;
}

static bool same_attention(struct edits *w, struct edit *e, struct edit *f, const struct ir_op *o, const struct ir_op *p)
{
	if (o->nin != p->nin || e->l.body->val.p[o->out].type != f->l.body->val.p[p->out].type ||
	    !same_function(w->m, (ir_fnid)ir_attr(e->l.body, o, AT_fn), (ir_fnid)ir_attr(f->l.body, p, AT_fn)))
		return false;
	for (uint32_t k = 0; k < o->nin; k++)
		if (!recompute_same(w, e, ir_in(e->l.body, o, k), ir_in(f->l.body, p, k)))
			return false;
	return true;
}

/* Loop e does attention o of its body, which loop f has done. */
static void keep(struct edits *w, struct edit *e, struct edit *f, const struct ir_op *o)
{
	for (size_t i = 0; i < f->l.body->op.n; i++) {
		const struct ir_op *p = &f->l.body->op.p[i];
		if (p->kind != IR_attention || !same_attention(w, e, f, o, p))
			continue;
		int here[ATTN_BETWEEN], there[ATTN_BETWEEN];
		const struct ir_op *parts = attn_parts_of(w->m, e->l.body, o, here), *made = attn_parts_of(w->m, f->l.body, p, there);
		if (!parts != !made)
			continue;
		if (!e->drop)
			e->drop = ARENA_NEW(w->a, bool, e->l.body->op.n);
		e->drop[o - e->l.body->op.p] = true;
		for (int k = 0; parts && k < ATTN_BETWEEN; k++)
			e->drop[here[k]] = true;
		if (parts) {
			e->drop[parts - e->l.body->op.p] = true;
			recompute_take(w, e, parts->out, made->out);
			recompute_take(w, e, parts->out + 1, made->out + 1);
		} else {
			recompute_take(w, e, o->out, p->out);
		}
		recompute_take(w, e, o->out + 1, p->out + 1);
		w->any = true;
		return;
	}
}

static void find_outputs(struct edits *w, void *none)
{
	(void)none;
	for (uint32_t i = 0; i < w->fn->op.n; i++) {
		if (w->fn->op.p[i].kind != IR_loop)
			continue;
		struct edit *e = recompute_edit(w, i);
		for (int k = 0; k < e->l.n && !e->l.cond && !e->first; k++) {
			int r;
			struct edit *f = recompute_maker(w, e, k, &r);
			if (f)
				recompute_follows(w, e, f, r, k);
		}
		for (size_t k = 0; k < e->l.body->op.n && e->first; k++)
			if (e->l.body->op.p[k].kind == IR_attention)
				keep(w, e, e->first, &e->l.body->op.p[k]);
	}
}

/* --- in straight-line code ------------------------------------------------------------------------------------- */

struct again {
	ARR(uint32_t) number;    /* per value: those of the same are made by the same ops of the same values; barriers do not count */
	struct map seen;
	int *twin;               /* per op: the one before it that has done this; -1: none has */
};

static uint32_t number_of(struct again *g, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	struct str key = {0};
	uint32_t head[2] = { o->kind, o->nout };

	str_addn(&key, (char *)head, sizeof head);
	for (uint32_t k = 0; k < o->nin; k++)
		str_addn(&key, (char *)&g->number.p[ir_in(fn, o, k)], sizeof *g->number.p);
	for (uint32_t k = 0; k < o->nout; k++)
		str_addn(&key, (const char *)&fn->val.p[o->out + k].type, sizeof(ir_type));
	if (o->kind == IR_attention)
		ir_fn_bytes(&key, m, ir_fn_of(m, (ir_fnid)ir_attr(fn, o, AT_fn)), NULL, NULL);
	else
		str_addn(&key, (char *)&fn->attr.p[o->attr], sizeof(int64_t) * ir_attr_words(fn, o));
	uint64_t *first = map_put(&g->seen, key.p, key.n);
	if (!*first)
		*first = o->out;
	str_free(&key);
	return (uint32_t)*first;
}

/* p does what o has done; where both give their output in two parts, these are the same, too. */
static void twins(struct again *g, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, const struct ir_op *p)
{
	int first[ATTN_BETWEEN], second[ATTN_BETWEEN];
	const struct ir_op *made = attn_parts_of(m, fn, o, first), *parts = attn_parts_of(m, fn, p, second);

	if (!made != !parts)
		return;
	g->twin[p - fn->op.p] = (int)(o - fn->op.p);
	for (int k = 0; parts && k < ATTN_BETWEEN; k++)
		g->twin[second[k]] = first[k];
	if (parts)
		g->twin[parts - fn->op.p] = (int)(made - fn->op.p);
}

static bool find_again(struct rewrite *r)
{
	struct again *g = r->user;
	const struct ir_fn *fn = r->from;
	bool any = false;
	ir_fnid held;

	map_free(&g->seen);
	g->number.n = 0;
	g->twin = ARENA_NEW(r->a, int, fn->op.n);
	for (uint32_t v = 0; v < fn->val.n; v++)
		arr_push(&g->number, v);
	memset(g->twin, -1, fn->op.n * sizeof *g->twin);
	for (uint32_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		const struct ir_kind_info *info = ir_info(o->kind);
		if (o->kind == IR_optimization_barrier) {
			for (uint32_t k = 0; k < o->nout; k++)
				g->number.p[o->out + k] = g->number.p[ir_in(fn, o, k)];
			continue;
		}
		if (!o->nout || !(info->flags & IR_PURE) || info->flags & (IR_EFFECT | IR_COLL) || (o->kind != IR_attention && ir_regions(fn, o, &held, 1)))
			continue;
		uint32_t first = number_of(g, r->m, fn, o);
		for (uint32_t k = 0; k < o->nout; k++)
			g->number.p[o->out + k] = first + k;
		if (first == o->out || o->kind != IR_attention)
			continue;
		twins(g, r->m, fn, ir_def(fn, first), o);
		any |= g->twin[i] >= 0;
	}
	return any;
}

static ir_val take_again(struct rewrite *r, const struct ir_op *o, const ir_val *in)
{
	const struct again *g = r->user;
	int twin = g->twin[o - r->from->op.p];

	if (twin < 0)
		return 0;
	for (uint32_t k = 0; k < o->nout; k++)
		r->map[o->out + k] = r->map[r->from->op.p[twin].out + k];
	return REWRITE_MAPPED;
}

void pass_keep_outputs(struct ir_module *m)
{
	struct recomputed done = {0};
	struct again g = {0};
	if (!pass_has(m, IR_attention))
		return;
	recompute_everywhere(m, find_outputs, NULL, &done);
	arr_free(&done);
	pass_rewrite(m, take_again, find_again, &g);
	pass_drop(m);
	map_free(&g.seen);
	arr_free(&g.number);
}
