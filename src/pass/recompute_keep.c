/* Attention that a loop has done and a later one does again: its output and its sums are stacked instead. */
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

void pass_keep_outputs(struct ir_module *m)
{
	struct recomputed done = {0};
	if (pass_has(m, IR_attention))
		recompute_everywhere(m, find_outputs, NULL, &done);
	arr_free(&done);
}
