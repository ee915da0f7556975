/* What a recording says of a program's instructions: names, lines, scopes, work, peers, limits.  Made when the program is first recorded. */
#include "impl.h"

/* Is it code on this device?  NULL: no. */
static const struct kernel *kernel_of(const struct ins *i)
{
	return i->op == I_CODE || i->op == I_COPY || i->op == I_KERN || i->op == I_SPLIT ? i->ref : NULL;
}

static bool exchanges(const struct ins *i)
{
	return i->op == I_COLL || i->op == I_THEN || i->op == I_BEGIN || i->op == I_LEND || i->op == I_BACK || i->op == I_WAIT || (i->op == I_NEXT && i->r0);
}

static bool takes_time(const struct ins *i) { return kernel_of(i) || exchanges(i) || i->op == I_CUSTOM || i->op == I_AWAIT; }

/* XLA's words, by which tools sort; else ours. */
static const char *sort_of(const struct ins *i)
{
	static const char *const of_coll[COLL_COUNT] = {
		[COLL_all_reduce] = "all-reduce", [COLL_all_gather] = "all-gather", [COLL_reduce_scatter] = "reduce-scatter",
		[COLL_all_to_all] = "all-to-all", [COLL_permute] = "collective-permute", [COLL_broadcast] = "collective-broadcast",
	};
	const struct kernel *k = kernel_of(i);
	const struct prog_coll *c = exchanges(i) ? i->ref : NULL;

	if (k)
		return k->k->id == KERN_gen || k->k->id == KERN_elem ? "loop fusion" : prog_kern_name[k->k->id];
	if (c && c->slices)
		return "ragged-all-to-all";
	if (c)
		return of_coll[c->kind] ? of_coll[c->kind] : prog_coll_name[c->kind];
	return i->op == I_CUSTOM ? "custom-call" : "async-done";
}

static const char *name_of(const struct ins *i)
{
	const struct kernel *k = kernel_of(i);

	if (k)
		return k->k->code >= 0 ? "fused" : prog_kern_name[k->k->id];
	switch (i->op) {
	case I_CUSTOM: return ((const struct prog_custom *)i->ref)->target;
	case I_AWAIT: return "await";
	case I_LEND: return "lend";
	case I_BACK: return "give back";
	case I_WAIT: return "await loan";
	default: return prog_coll_name[((const struct prog_coll *)i->ref)->kind];
	}
}

/* --- what communicates -------------------------------------------------------------- */

/* Members of the group of a position, in rank order; returns how many. */
static int members(const struct prog *p, const struct prog_coll *c, int pos, int64_t *out)
{
	const struct prog_group *g = &p->group[c->group];
	int n = 0;

	if (g->row[pos] < 0) {
		out[0] = pos;
		return 1;
	}
	for (int k = 0; k < g->ncol; k++)
		if (g->id[(int64_t)g->row[pos] * g->ncol + k] >= 0)
			out[n++] = g->id[(int64_t)g->row[pos] * g->ncol + k];
	return n;
}

static void peers(struct str *s, const struct rt_exec *x, const struct prog_coll *c, int pos, int64_t *room)
{
	enum { MANY = 32 };

	s->n = 0;
	if (c->kind == COLL_permute) {
		int64_t from = x->p->table[c->pairs].v[pos], to = x->p->table[c->pairs + 1].v[pos];
		if (from >= 0)
			str_addf(s, "from %d", x->id[from]);
		if (to >= 0)
			str_addf(s, "%sto %d", from >= 0 ? " " : "", x->id[to]);
		if (from < 0 && to < 0)
			str_add(s, "none");
		return;
	}
	int n = members(x->p, c, pos, room);
	for (int k = 0; k < MIN(n, MANY); k++)
		str_addf(s, "%s%d", k ? "," : "", x->id[room[k]]);
	if (n > MANY)
		str_addf(s, ",.. (%d)", n);
}

/* on: for prices; room: an entry for each position; waits: for what moves meanwhile. */
static void communicates(struct rt_trace_op *o, struct arena *a, const struct rt_exec *x, const struct ins *i, bool waits, const struct plan_on *on, int64_t *room)
{
	const struct prog_coll *c = i->ref;
	const char **peer = ARENA_NEW(a, const char *, x->nlocal);
	struct str s = { 0 };
	double bytes;
	bool in_place;

	for (int k = 0; k < x->nlocal; k++) {
		peers(&s, x, c, x->pos[k], room);
		peer[k] = k && !strcmp(peer[k - 1], s.p) ? peer[k - 1] : arena_str(a, s.p, s.n);
	}
	str_free(&s);
	o->peer = peer;
	if (i->op == I_LEND || i->op == I_BACK || i->op == I_WAIT || waits)
		return;
	o->limit_ns = plan_prog_coll(on, x->p, c, x->pos[0], &bytes, &in_place);
	o->bytes = (int64_t)bytes;
}

/* --- all ------------------------------------------------------------------------------- */

static void computes(struct rt_trace_op *o, const struct rt_exec *x, const struct kernel *k)
{
	o->flops = k->k->flops;
	o->bytes = k->k->bytes;
	for (int i = 0; !k->k->bytes && i < k->k->nin + k->k->nout; i++)
		o->bytes += prog_view_bytes(&k->k->v[i]);
	o->limit_ns = plan_kern_limit(&x->c->here, k->k) / (k->split ? 1 + x->dev[0]->nworker : 1);
}

static const char *kept(struct arena *a, const char *text) { return arena_str(a, text, strlen(text)); }

static struct err *make(void *v)
{
	struct rt_exec *x = v;
	struct trace_prog *t = mem_alloc(sizeof *t);
	struct arena *a = &t->arena;
	static _Atomic uint64_t serial;
	uint64_t id = x->p->fingerprint;
	int64_t *room = mem_alloc((size_t)MAX(x->p->ndev, 1) * sizeof *room);
	int *host = mem_alloc((size_t)MAX(x->p->ndev, 1) * sizeof *host);
	struct plan_on on = rt_client_plan(x->c, x->p->ndev, x->id, host);
	const struct ins **begun = mem_alloc((size_t)MAX(x->nmark, 1) * sizeof *begun), *last = NULL;       /* the collective before each mark */
	uint32_t n = 1;

	arena_init(a);
	t->of = ARENA_NEW(a, uint32_t, x->nins);
	for (uint32_t i = 0; i < x->nins; i++) {
		if (takes_time(&x->ins[i]) && !(i && x->ins[i - 1].op == I_THEN))
			t->of[i] = n++;
		last = x->ins[i].op == I_BEGIN ? &x->ins[i] : last;
		if (x->ins[i].op == I_MARK)
			begun[x->ins[i].imm] = last;
	}
	id = id ? hash_bytes(x->name, strlen(x->name), id) : atomic_fetch_add(&serial, 1) + 1;
	t->p = (struct rt_trace_prog){ kept(a, x->name), id << 1 >> 1 ? id << 1 >> 1 : 1, n };
	t->op = ARENA_NEW(a, struct rt_trace_op, n);
	t->op[0] = (struct rt_trace_op){ .prog = &t->p, .name = t->p.name, .sort = "launch", .site = "", .flops = x->p->flops };
	for (uint32_t i = 0; i < x->nins; i++) {
		const struct ins *is = &x->ins[i], *of = is->op != I_AWAIT ? is : is->r0 ? NULL : begun[is->imm];
		struct rt_trace_op *o = &t->op[t->of[i]];
		if (!t->of[i])
			continue;
		const struct prog_site *site = of && of->site < x->p->nsite ? &x->p->site[of->site] : NULL;
		*o = (struct rt_trace_op){ .prog = &t->p, .number = t->of[i], .name = kept(a, name_of(is)), .sort = sort_of(of ? of : is),
		                           .site = kept(a, site ? site->text : ""), .scope = site && site->scope ? kept(a, site->scope) : NULL };
		if (kernel_of(is))
			computes(o, x, kernel_of(is));
		else if (of && exchanges(of))
			communicates(o, a, x, of, of != is, &on, room);
		if (is->op == I_THEN)         /* what follows is done within */
			o->flops = kernel_of(is + 1)->k->flops;
	}
	mem_free(room);
	mem_free(host);
	mem_free(begun);
	struct trace_prog *first = NULL;
	if (atomic_compare_exchange_strong(&x->said, &first, t))
		trace_prog_keep(t);
	else {
		arena_fini(a);
		mem_free(t);
	}
	return NULL;
}

struct trace_prog *exec_said(struct rt_exec *x)
{
	struct trace_prog *t = atomic_load(&x->said);

	if (!t)
		err_free(mem_guard(make, x, true));
	return t ? t : atomic_load(&x->said);
}
