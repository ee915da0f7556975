/* The nests of a body: one for all that is done over the same range at the same level. */
#include "want.h"

static struct gen_nest *nest_get(struct cx *cx, struct gen_body *b, uint16_t vars, uint16_t level)
{
	for (int i = 0; i < b->nnest; i++) {
		struct gen_nest *x = &b->nest[i];
		bool same = x->vars == vars && x->level == level;
		for (int v = 0; same && v < cx->s->nvar; v++)
			same = !(vars >> v & 1) || (x->lo[v] == cx->lo[v] && x->hi[v] == cx->hi[v]);
		if (same)
			return x;
	}
	struct gen_nest *nw = ARENA_NEW(cx->a, struct gen_nest, b->nnest + 1);
	if (b->nnest)
		memcpy(nw, b->nest, (size_t)b->nnest * sizeof *nw);
	b->nest = nw;
	struct gen_nest *x = &nw[b->nnest++];
	x->vars = vars;
	x->level = level;
	memcpy(x->lo, cx->lo, sizeof x->lo);
	memcpy(x->hi, cx->hi, sizeof x->hi);
	return x;
}

void gs_nest_red(struct cx *cx, struct gen_body *b, int red, const uint32_t *node, int n, uint16_t vars, uint16_t level)
{
	struct gen_nest *x = nest_get(cx, b, vars, level);
	void *old = x->red;
	x->red = arena_alloc(cx->a, sizeof *x->red * (size_t)(x->nred + 1));
	if (x->nred)
		memcpy(x->red, old, sizeof *x->red * (size_t)x->nred);
	x->red[x->nred].red = red;
	memcpy(x->red[x->nred++].node, node, sizeof *node * (size_t)n);
}

void gs_nest_store(struct cx *cx, struct gen_body *b, int res, uint32_t node, uint32_t lin, uint16_t vars)
{
	struct gen_nest *x = nest_get(cx, b, vars, cx->node.p[node].level);
	void *old = x->st;
	x->st = arena_alloc(cx->a, sizeof *x->st * (size_t)(x->nst + 1));
	if (x->nst)
		memcpy(x->st, old, sizeof *x->st * (size_t)x->nst);
	x->st[x->nst++] = (struct gen_store){ res, node, lin };
}
