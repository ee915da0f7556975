/* What a launch of a compiled program is expected to take, command by command, and what memory it holds meanwhile: read off the program and the
 * machine table alone. */
#include "passes.h"

#include <stdlib.h>

struct walk {
	const struct prog *p;
	const struct plan_on *on;
	struct arena *a;
	struct pass_account *to;
	struct map seen;         /* rows by kernel or collective, and site */
	ARR(struct pass_cost) cost;
	int64_t now;
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

/* --- time --------------------------------------------------------------------------- */

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

/* --- memory ---------------------------------------------------------------------------- */

static void touch(struct walk *w, const struct prog_cmd *c)
{
	for (uint32_t k = 0; k < c->nopnd; k++) {
		struct pass_held *h = &w->to->held[w->p->opnd[c->opnd + k].buf];
		if (h->first < 0)
			*h = (struct pass_held){ w->now, w->now, c->site };
		h->last = w->now;
	}
}

/* What was there before a loop and is used in it is there until it ends. */
static void lives(struct walk *w, uint32_t b)
{
	for (uint32_t i = 0; i < w->p->block[b].n; i++) {
		const struct prog_cmd *c = &w->p->block[b].cmd[i];
		int64_t begin = w->now++;
		touch(w, c);
		for (uint32_t k = 0; k < c->nblock; k++)
			lives(w, w->p->sub[c->block + k]);
		for (uint32_t k = 0; k < w->p->nbuf && (c->op == CMD_LOOP || c->op == CMD_WHILE); k++)
			if (w->to->held[k].first >= 0 && w->to->held[k].first <= begin && w->to->held[k].last > begin)
				w->to->held[k].last = w->now - 1;
	}
}

static bool temporary(const struct walk *w, uint32_t k) { return w->p->buf[k].kind == BUF_TEMP && w->p->buf[k].alias < 0 && w->to->held[k].first >= 0; }

/* Temporary bytes by command, and the command with most of them. */
static void bytes(struct walk *w)
{
	struct pass_account *to = w->to;
	int64_t sum = 0, *more = ARENA_NEW(w->a, int64_t, w->now + 2);
	to->ncmd = w->now;
	to->live = more;
	for (uint32_t k = 0; k < w->p->nbuf; k++)
		if (temporary(w, k)) {
			more[to->held[k].first] += w->p->buf[k].size;
			more[to->held[k].last + 1] -= w->p->buf[k].size;
		}
	for (int64_t i = 0; i < w->now; i++) {
		more[i] = sum += more[i];
		if (sum > to->most) {
			to->most = sum;
			to->peak = i;
		}
	}
}

static const char *site(const struct prog *p, uint32_t s) { return s < p->nsite && p->site[s].text[0] ? p->site[s].text : "(no line)"; }

static int larger(const void *x, const void *y)
{
	const struct pass_like *a = x, *b = y;
	int64_t m = a->bytes * a->n, n = b->bytes * b->n;
	int by_site = strcmp(a->site, b->site);
	return m != n ? (m < n) - (m > n) : by_site ? by_site : (a->bytes < b->bytes) - (a->bytes > b->bytes);
}

/* Those that are alive at the peak; such of one size from one line are one entry. */
static void alive(struct walk *w)
{
	struct pass_account *to = w->to;
	struct pass_like *x = to->like = ARENA_NEW(w->a, struct pass_like, w->p->nbuf + 1);
	for (uint32_t k = 0; k < w->p->nbuf; k++) {
		const struct pass_held *h = &to->held[k];
		if (!temporary(w, k) || h->first > to->peak || h->last < to->peak || !w->p->buf[k].size)
			continue;
		size_t j = 0;
		while (j < to->nlike && (x[j].bytes != w->p->buf[k].size || strcmp(x[j].site, site(w->p, h->site))))
			j++;
		x[j] = (struct pass_like){ w->p->buf[k].size, x[j].n + 1, site(w->p, h->site) };
		to->nlike += j == to->nlike;
	}
	qsort(x, to->nlike, sizeof *x, larger);
}

void pass_account(struct arena *a, const struct prog *p, const struct plan_on *on, struct pass_account *to)
{
	struct walk w = { .p = p, .on = on, .a = a, .to = to };
	*to = (struct pass_account){ .p = p, .held = ARENA_NEW(a, struct pass_held, p->nbuf + 1) };
	for (uint32_t k = 0; k < p->nbuf; k++)
		to->held[k].first = -1;
	prog_sizes(p, &to->arg, &to->res, &to->shared);
	if (p->nblock) {
		costs(&w, 0, 1);
		lives(&w, 0);
	}
	bytes(&w);
	alive(&w);
	to->n = w.cost.n;
	to->cost = arena_copy(a, w.cost.p, sizeof *to->cost * w.cost.n);
	qsort(to->cost, to->n, sizeof *to->cost, heavier);
	for (size_t i = 0; i < to->n; i++)
		to->ns[to->cost[i].sort] += to->cost[i].ns;
	arr_free(&w.cost);
	map_free(&w.seen);
}
