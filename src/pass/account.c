/* What a launch of a compiled program is expected to take, command by command, and what memory it holds meanwhile: read off the program and the
 * machine table alone. */
#include "passes.h"

#include <stdlib.h>

struct walk {
	const struct prog *p;
	const struct plan_on *on;
	struct pass_account *to;
	struct map seen;         /* rows by kernel or collective, and site */
	ARR(struct pass_cost) cost;
};

static const char *work_of(const struct prog_kern *k)
{
	switch (k->id) {
	case KERN_gen: return "generated code";
	case KERN_dot: case KERN_convolution: case KERN_attention: case KERN_attention_grad: case KERN_attention_grad_add: return "matrix kernel";
	case KERN_copy: case KERN_fill: case KERN_iota: case KERN_pad: case KERN_dynamic_slice: case KERN_dynamic_update: return "data movement";
	case KERN_elem: return "strips of vector code";
	default: return "kernel of its own";
	}
}

/* The row of a command: one for all of the same kernel, collective or call from the same line. */
static struct pass_cost *row(struct walk *w, const struct prog_cmd *c, enum pass_sort sort)
{
	uint32_t key[3] = { sort, c->id, c->site };
	uint64_t *at = map_put(&w->seen, key, sizeof key);
	if (!*at) {
		arr_push(&w->cost, ((struct pass_cost){ .sort = sort, .site = c->site < w->p->nsite ? &w->p->site[c->site] : NULL }));
		*at = w->cost.n;
	}
	return &w->cost.p[*at - 1];
}

static void kernel(struct walk *w, const struct prog_cmd *c, double times)
{
	const struct prog_kern *k = &w->p->kern[c->id];
	struct pass_cost *r = row(w, c, PASS_COMPUTES);
	r->name = prog_kern_name[k->id];
	r->work = work_of(k);
	r->made = k->nout ? &k->v[k->nin] : NULL;
	r->times += times;
	r->ns += times * plan_kern_time(w->on->table, k);
	r->limit += times * plan_kern_limit(w->on->table, k);
	r->flops += times * (double)k->flops;
	for (int i = 0; !k->bytes && i < k->nin + k->nout; i++)
		r->bytes += times * (double)prog_view_bytes(&k->v[i]);
	r->bytes += times * (double)k->bytes;
}

/* At a device that takes part, if one does. */
static void collective(struct walk *w, const struct prog_cmd *c, double times)
{
	const struct prog_coll *x = &w->p->coll[c->id];
	struct pass_cost *r = row(w, c, PASS_MOVES);
	double bytes;
	int pos = 0;
	while (x->kind != COLL_permute && pos + 1 < w->p->ndev && w->p->group[x->group].row[pos] < 0)
		pos++;
	r->name = prog_coll_name[x->kind];
	r->work = "communication";
	r->ns += times * plan_prog_coll(w->on, w->p, x, pos, &bytes, &r->in_place);
	r->limit = r->ns;
	r->bytes += times * bytes;
	r->times += times;
}

static void custom(struct walk *w, const struct prog_cmd *c, double times)
{
	struct pass_cost *r = row(w, c, PASS_CALLS);
	r->name = w->p->custom[c->id].target;
	r->work = "host code";
	r->times += times;
}

static void costs(struct walk *w, uint32_t b, double times)
{
	for (uint32_t i = 0; i < w->p->block[b].n; i++) {
		const struct prog_cmd *c = &w->p->block[b].cmd[i];
		bool turns = c->op == CMD_WHILE || (c->op == CMD_LOOP && c->imm < 0);
		if (c->op == CMD_KERN)
			kernel(w, c, times);
		else if (c->op == CMD_COLL || (c->op == CMD_NEXT && c->imm))
			collective(w, c, times);
		else if (c->op == CMD_CUSTOM)
			custom(w, c, times);
		w->to->guessed |= turns;
		for (uint32_t k = 0; k < c->nblock; k++)
			costs(w, w->p->sub[c->block + k], times * (turns ? IR_TURNS : c->op == CMD_LOOP ? (double)c->imm : 1));
	}
}

static int heavier(const void *a, const void *b)
{
	const struct pass_cost *x = a, *y = b;
	return x->ns < y->ns ? 1 : x->ns > y->ns ? -1 : (x->site > y->site) - (x->site < y->site);
}

static bool same_shape(const struct prog_view *a, const struct prog_view *b)
{
	return a && b && a->dtype == b->dtype && a->rank == b->rank && !memcmp(a->dim, b->dim, sizeof *a->dim * a->rank);
}

/* Rows of one operation of one line are one, without a scope where theirs differ. */
static void lines(struct arena *a, struct pass_account *to)
{
	struct map seen = {0};
	to->line = ARENA_NEW(a, struct pass_cost, to->n);
	for (size_t i = 0; i < to->n; i++) {
		const struct pass_cost *c = &to->cost[i];
		struct str key = {0};
		str_addf(&key, "%d%d %s %s", c->sort, c->in_place, c->site && c->site->text[0] ? c->site->text : c->name, c->sort == PASS_COMPUTES ? "" : c->name);
		uint64_t *at = map_put(&seen, key.p, key.n);
		str_free(&key);
		if (!*at) {
			*at = ++to->nline;
			to->line[*at - 1] = *c;
			continue;
		}
		struct pass_cost *l = &to->line[*at - 1];
		l->made = same_shape(l->made, c->made) ? l->made : NULL;
		if (l->site && l->site->scope && (!c->site || !c->site->scope || strcmp(l->site->scope, c->site->scope)))
			l->site = arena_copy(a, &(struct prog_site){ l->site->text, NULL }, sizeof *l->site);
		l->times += c->times;
		l->ns += c->ns;
		l->limit += c->limit;
		l->flops += c->flops;
		l->bytes += c->bytes;
	}
	map_free(&seen);
	qsort(to->line, to->nline, sizeof *to->line, heavier);
}

void pass_account(struct arena *a, const struct prog *p, const struct plan_on *on, struct pass_account *to)
{
	struct walk w = { .p = p, .on = on, .to = to };
	*to = (struct pass_account){ .p = p };
	prog_sizes(p, &to->arg, &to->res, &to->shared);
	prog_live(a, p, &to->live);
	if (p->nblock)
		costs(&w, 0, 1);
	to->n = w.cost.n;
	to->cost = arena_copy(a, w.cost.p, sizeof *to->cost * w.cost.n);
	qsort(to->cost, to->n, sizeof *to->cost, heavier);
	for (size_t i = 0; i < to->n; i++)
		to->ns[to->cost[i].sort] += to->cost[i].ns;
	lines(a, to);
	arr_free(&w.cost);
	map_free(&w.seen);
}
