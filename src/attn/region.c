/* Candidates: from a product to what leaves its region.  The region can be replaced if all that is needed of it, by results, effects and
 * ops around, is something that the ops give. */
#include "impl.h"

#include <stdlib.h>

static void drop(struct cand *c)
{
	arr_free(&c->lab);
	arr_free(&c->node);
	arr_free(&c->fac);
	arr_free(&c->poly);
	map_free(&c->index);
}

static void free_match(struct match *m)
{
	drop(m->c);
	arr_free(&m->fwd);
	arr_free(&m->bwd);
	arr_free(&m->exit);
	arr_free(&m->more);
	arr_free(&m->tally);
	arr_free(&m->tallied);
}

static void start(struct match *m)
{
	struct cand *c = m->c;
	drop(c);
	m->fwd.n = m->bwd.n = m->exit.n = m->more.n = m->tally.n = m->tallied.n = 0;
	c->left = c->right = c->batch = c->tables = 0;
	c->again = c->wide = m->far = false;
	c->depth = 0;
	c->why = NULL;
	room_clear(c->room);
	arr_push(&c->lab, (struct lab){0});
	arr_push(&c->node, (struct node){0});
	arr_push(&c->fac, (struct fac){0});
	arr_push(&c->poly, (struct poly){0});
	arr_push(&m->more, (struct exit){0});
}

/* Keys are what the first sum or maximum of the region, or else, which is a guess, the first product, is over.  0: it is not told, 1 the right side,
 * -1 the left one. */
static int keys(const struct cand *c, bool *guess)
{
	for (int pass = 0; pass < 2; pass++)
		for (int i = 1; i < c->room->ntouched; i++) {
			const struct ir_op *o = ir_def(c->fn, c->room->touched[i]);
			if (o->kind != (pass ? IR_dot : IR_reduce) || o->nout != 1)
				continue;
			uint64_t in = 0, out = lab_of(c, c->of[o->out])->set;
			for (uint32_t k = 0; k < o->nin; k++)
				if (c->of[ir_in(c->fn, o, k)])
					in |= lab_of(c, c->of[ir_in(c->fn, o, k)])->set;
			if ((in & c->right || !c->right) && (in & c->left || !c->left) && in & ~out & (c->right | c->left)) {
				*guess = pass;
				return in & ~out & c->right ? 1 : -1;
			}
		}
	return 0;
}

/* An exponential of a matrix: without one it is no attention, and nobody wants to know. */
static bool has_exponential(const struct cand *c)
{
	for (int i = 0; i < c->room->ntouched; i++) {
		const struct ir_op *o = ir_def(c->fn, c->room->touched[i]);
		if ((o->kind == IR_exponential || o->kind == IR_power) && cand_is_region(c, lab_of(c, c->of[o->out])->set))
			return true;
	}
	return false;
}

/* What rounds between the product and what leaves the region, weights to bf16 say: 0: nothing does.  Without excess precision it rounds where the
 * program says, and an attention rounds elsewhere. */
static ir_val rounded(const struct cand *c)
{
	for (int i = 0; i < c->room->ntouched && !conf_int(CONF_EXCESS_PRECISION); i++) {
		ir_val v = c->room->touched[i];
		const struct dtype_info *t = &dtype_info[ir_vtype(c->m, c->fn, v)->dtype];
		if (t->cls == DT_FLOAT && t->bytes < 4 && !(lab_of(c, c->of[v])->set & 1))
			return v;
	}
	return 0;
}

/* --- what is needed ---------------------------------------------------------------- */

struct need { struct match *m; bool *seen; ARR(struct { ir_val v; ir_loc by; }) queue; ir_loc by; };

static void push(struct need *n, ir_val v)
{
	if (!n->seen[v]) {
		n->seen[v] = true;
		arr_reserve(&n->queue, 1);
		n->queue.p[n->queue.n].v = v;
		n->queue.p[n->queue.n++].by = n->by;
	}
}

static void push_leaf(void *user, ir_val v, int lab) { push(user, v); }

/* The operand of the region if o multiplies or divides one by a number from outside, not known here; 0: it does not. */
static ir_val scaled(const struct cand *c, const struct ir_op *o)
{
	for (uint32_t k = 0; k < (o->kind == IR_multiply ? 2 : o->kind == IR_divide ? 1 : 0); k++) {
		ir_val in = ir_in(c->fn, o, k), by = ir_in(c->fn, o, !k);
		if (c->of[in] && !c->of[by] && !c->near[by] && !ir_splat(c->m, c->fn, by))
			return in;
	}
	return 0;
}

/* The exit that v is; false: it is none. */
static bool leaves(struct need *n, ir_val v)
{
	struct cand *c = n->m->c;
	const struct ir_op *o = ir_def(c->fn, v);
	struct exit x;
	if (!c->of[v] || !o || o->nout != 1 || v == c->seed || cand_is_region(c, lab_of(c, c->of[v])->set))
		return false;
	/* Rows are exits themselves, not views of them: one that others are made from must be the exit, for the check. */
	if ((o->kind == IR_broadcast || o->kind == IR_reshape || o->kind == IR_transpose) && !(lab_of(c, c->of[v])->set & 1) && c->of[ir_in(c->fn, o, 0)])
		return false;
	/* How a result lies is said behind it. */
	if (o->kind == IR_sharding_constraint && c->of[ir_in(c->fn, o, 0)])
		return false;
	/* A gradient is one whatever it is multiplied with: the same op gives all of these. */
	ir_val in = scaled(c, o);
	if (in && match_exit(n->m, in, c->of[in], &x) && x.kind >= EXIT_DQ)
		return false;
	if (!match_exit(n->m, v, c->of[v], &x))
		return false;
	if (!emit_leaves(n->m, &x, push_leaf, n))
		return false;
	arr_push(&n->m->exit, x);
	return true;
}

static bool visit(struct need *n, ir_val v, ir_loc by)
{
	struct cand *c = n->m->c;
	const struct ir_op *o = ir_def(c->fn, v);
	if (leaves(n, v))
		return true;
	if (c->of[v] && (v == c->seed || cand_is_region(c, lab_of(c, c->of[v])->set))) {
		cand_fail(c, by, by ? "a matrix of queries by keys is needed elsewhere" : "a matrix of queries by keys is a result of the function or of the loop's body");
		return false;
	}
	if (!o)
		return true;
	n->by = o->loc;
	for (uint32_t k = 0; k < o->nin; k++)
		if (o->kind != IR_optimization_barrier || o->out + k == v)
			push(n, ir_in(c->fn, o, k));
	return true;
}

static bool needs(struct match *m)
{
	struct cand *c = m->c;
	struct need n = { .m = m, .seen = c->room->seen };
	bool ok = true;
	memset(n.seen, 0, c->fn->val.n);
	for (size_t i = 0; i < c->fn->result.n; i++)
		push(&n, c->fn->result.p[i]);
	for (size_t i = 0; i < c->fn->op.n; i++) {
		const struct ir_op *o = &c->fn->op.p[i];
		n.by = o->loc;
		for (uint32_t k = 0; k < o->nin && ir_effect(c->m, c->fn, o); k++)
			push(&n, ir_in(c->fn, o, k));
	}
	while (ok && n.queue.n) {
		n.queue.n--;
		ok = visit(&n, n.queue.p[n.queue.n].v, n.queue.p[n.queue.n].by);
	}
	arr_free(&n.queue);
	return ok && !c->again;
}

/* --- one candidate ---------------------------------------------------------------------- */

/* The axis of a set that has the largest extent; 0: it has none. */
static int longest(const struct cand *c, uint64_t of)
{
	int t = 0;
	for (int i = 1; i < c->naxis; i++)
		if (of >> i & 1 && (!t || c->axis[i].size >= c->axis[t].size))
			t = i;
	return t;
}

/* The axes of the largest extent on the side of queries, beside those that are heads, are the queries, the others heads. */
static int queries(const struct cand *c, uint64_t heads)
{
	int t = longest(c, c->left & ~heads);
	return t ? t : longest(c, c->left);
}

/* Axes of a batch that queries have and keys have not, which are heads that share keys; if there are none, one may have to be split first (c->again).  Of one
 * dimension, the last: what is a batch beside heads may be cut otherwise. */
static uint64_t shared(struct cand *c, int dot)
{
	const struct fac x = *fac_of(c, dot), q = *fac_of(c, x.a), k = *fac_of(c, x.b);
	uint64_t lacks = c->batch & q.set & ~k.set, heads = 0;
	if (!lacks)
		axes_repeats(c, (ir_val)k.a, k.b);
	for (int i = c->naxis, dim = -1; i-- > 1;)
		if (lacks >> i & 1 && (dim < 0 || c->axis[i].dim == dim)) {
			dim = c->axis[i].dim;
			heads |= (uint64_t)1 << i;
		}
	return heads;
}

/* Axes, sides, and, if the whole is asked for, exits.  False: nothing that anybody would take for an attention. */
static bool settle(struct match *m, bool whole)
{
	struct cand *c = m->c;
	bool swap = false, guess = false, turned = false, apart = false;      /* turned: what was guessed did not do; apart: nor did keys that heads share */
	uint64_t heads = 0;              /* that share keys: of queries, not of a batch */
	const char *why = NULL;
	ir_loc where = 0;
	if (!axes_promise(c))
		return false;
	for (int turn = 0; turn < 16; turn++) {
		heads = c->again ? 0 : heads;            /* axes are others */
		start(m);
		if (!axes_start(c))
			return false;
		c->batch &= ~heads;
		if (swap) {
			uint64_t t = c->left;
			c->left = c->right;
			c->right = t;
		}
		if (!c->right) {                 /* one key, or one query and the other side is keys */
			c->of[c->seed] = 0;
			if (swap)
				return false;
			swap = true;
			continue;
		}
		c->left |= heads;
		axes_flood(c);
		if (c->again)
			continue;
		int side = turned ? 1 : keys(c, &guess);
		if (!side || (side < 0 && swap))
			return false;
		if (side < 0) {
			swap = true;
			continue;
		}
		axes_near(c);
		if (!has_exponential(c))
			return false;
		ir_val narrow = rounded(c);
		if (narrow) {
			cand_fail(c, ir_def(c->fn, narrow)->loc, "it rounds on its way, and RONDO_EXCESS_PRECISION=0 asks for just that");
			return true;
		}
		int p = form_of(c, c->seed, c->of[c->seed]);
		if (c->again)
			continue;
		const struct mono *x = p > 0 ? &poly_of(c, p)->m[0] : NULL;
		if (!x || poly_of(c, p)->n != 1 || x->n != 1 || x->exp || fac_of(c, x->f[0].f)->kind != FAC_DOT) {
			cand_fail(c, ir_def(c->fn, c->seed)->loc, "it is no product of vectors of queries and of keys");
			return true;
		}
		m->x = x->f[0].f;
		m->t = queries(c, heads);
		if (!apart && !heads && ((heads = shared(c, m->x)) || c->again))
			continue;
		for (int i = 0; i < c->room->ntouched; i++)      /* the sums that there are */
			form_of(c, c->room->touched[i], c->of[c->room->touched[i]]);
		if (c->again)
			continue;
		if (!whole || needs(m))
			return true;
		if (c->again)
			continue;
		if (heads) {
			apart = true;
			heads = 0;
			continue;
		}
		if (turned) {
			c->why = why;
			c->where = where;
		}
		if (!guess || turned)
			return true;
		why = c->why;
		where = c->where;
		swap = !swap;
		turned = true;
	}
	return false;
}

/* An attention and one that is equal but for values and weights: what is the same of both is taken of the one with values. */
static void share(struct match *m)
{
	struct cand *c = m->c;
	for (size_t i = 0; i < m->exit.n; i++) {
		struct exit *x = &m->exit.p[i];
		if (x->kind != EXIT_L && x->kind != EXIT_M && x->kind != EXIT_Z)
			continue;
		for (size_t k = 0; k < m->exit.n; k++) {
			const struct exit *o = &m->exit.p[k];
			struct fwd *f = o->kind == EXIT_O ? &m->fwd.p[o->op] : NULL;
			if (!f || f->score != m->fwd.p[x->op].score || f->masks != m->fwd.p[x->op].masks)
				continue;
			f->part |= m->fwd.p[x->op].part;
			x->op = o->op;
			break;
		}
	}
	/* A gradient of values, and one of scores: as whole, if weights are the same. */
	for (size_t i = 0; i < m->exit.n; i++) {
		struct exit *x = &m->exit.p[i];
		if (x->kind != EXIT_DV || m->bwd.p[x->op].slope || !m->bwd.p[x->op].given)
			continue;
		const struct bwd *b = &m->bwd.p[x->op];
		const struct fwd f = m->fwd.p[b->fwd];
		int own = poly_mul(c, f.masks, f.weight);
		for (size_t k = 0; k < m->bwd.n; k++) {
			struct bwd *g = &m->bwd.p[k];
			const struct fwd h = m->fwd.p[g->fwd];
			if (!g->slope || !g->given || g->d_o != b->d_o || g->less != b->less || g->r != b->r || h.score != f.score)
				continue;
			int all = poly_mul(c, h.masks, h.weight), fewer = poly_mul(c, f.masks, h.weight);
			double r = own > 0 && all > 0 ? poly_of(c, own)->m[0].c / poly_of(c, all)->m[0].c : 0;
			if (r != 0 && poly_add(c, own, all, -r) && !poly_add(c, own, fewer, -r) && poly_mul(c, f.masks, h.masks) == h.masks) {
				g->slope = poly_mul(c, g->slope, h.masks);      /* scores are masked, too, where they turn back */
				m->fwd.p[b->fwd].v = h.v;
				m->fwd.p[b->fwd].weight = h.weight;
				g->fwd = b->fwd;
				all = fewer;
			}
			if (r == 0 || poly_add(c, own, all, -r))
				continue;
			x->op = (int)k;
			x->coef = poly_mul(c, poly_const(c, r), x->coef);
			break;
		}
	}
}

static bool find_values(struct match *m)
{
	bool any = false;
	share(m);
	for (size_t i = 0; i < m->exit.n; i++)
		any |= m->exit.p[i].kind == EXIT_O || m->exit.p[i].kind >= EXIT_DQ;
	for (size_t i = 0; i < m->bwd.n; i++)            /* a gradient of values alone takes those of the output */
		for (size_t k = 0; k < m->fwd.n && !m->fwd.p[m->bwd.p[i].fwd].v; k++)
			m->fwd.p[m->bwd.p[i].fwd].v = m->fwd.p[k].v;
	for (size_t i = 0; i < m->bwd.n; i++)
		if (!m->fwd.p[m->bwd.p[i].fwd].v)
			any = false;
	return any;
}

static bool is_bf16(const struct cand *c, int f) { return ir_vtype(c->m, c->fn, (ir_val)fac_of(c, f)->a)->dtype == DT_bf16; }

/* Where the highest scores are chosen, all ops must multiply q and k alike: kernels do so otherwise if values are bf16 as well. */
static bool multiplies_alike(const struct match *m)
{
	const struct cand *c = m->c;
	const struct fac *x = fac_of(c, m->x);
	bool chosen = false, all = true;
	for (size_t i = 0; i < m->fwd.n; i++) {
		chosen |= !m->fwd.p[i].score;
		all &= !m->fwd.p[i].v || is_bf16(c, m->fwd.p[i].v);
	}
	return !chosen || all || !is_bf16(c, x->a) || !is_bf16(c, x->b);
}

/* --- a plan --------------------------------------------------------------------------------- */

/* What a match is when it is emitted. */
struct own { struct match *m; struct env e; int64_t size[ATOMS]; const struct attn_exit *at; const ir_val *in; };
struct own_exit { struct own *own; struct exit x; };

static ir_val got(struct env *e, ir_val v, int lab)
{
	const struct own *w = e->user;
	for (int i = 0; i < w->at->nin; i++)
		if (w->at->in[i] == v)
			return w->in[i];
	assert(!"a value that the exit does not read");
	return 0;
}

static ir_val index_of(struct env *e, int n, const uint8_t *axis)
{
	int64_t dim[ATOMS], all = 1;
	for (int i = 0; i < n; i++)
		all *= dim[i] = e->size[axis[i]];
	ir_val v = ir_iota(&e->b, ir_tensor(e->b.m, DT_i32, 1, &all), 0);
	return ir_reshape(&e->b, v, n, dim);
}

struct leaf_list { struct arena *a; ir_val *p; int n, cap; };

static void list_leaf(void *user, ir_val v, int lab)
{
	struct leaf_list *l = user;
	for (int i = 0; i < l->n; i++)
		if (l->p[i] == v)
			return;
	if (l->n == l->cap) {
		ir_val *p = ARENA_NEW(l->a, ir_val, l->cap = 2 * l->cap + 16);
		if (l->n)
			memcpy(p, l->p, sizeof *p * (size_t)l->n);
		l->p = p;
	}
	l->p[l->n++] = v;
}

static void add_exit(struct arena *a, struct own *w, const struct exit *e, struct attn_plan *out)
{
	struct own_exit *x = ARENA_NEW(a, struct own_exit, 1);
	struct leaf_list l = { .a = a };
	*x = (struct own_exit){ w, *e };
	emit_leaves(w->m, &x->x, list_leaf, &l);
	arr_push(&out->exit, ((struct attn_exit){ x->x.v, l.p, l.n, x }));
}

static void plan(struct arena *a, struct match *m, struct attn_plan *out)
{
	struct own *w = ARENA_NEW(a, struct own, 1);
	struct cand *c = m->c;
	w->m = m;
	c->of = arena_copy(a, c->of, sizeof *c->of * c->fn->val.n);      /* the next candidate clears them */
	c->near = arena_copy(a, c->near, sizeof *c->near * c->fn->val.n);
	for (int i = 0; i < m->c->naxis; i++)
		w->size[i] = m->c->axis[i].size;
	w->e = (struct env){ .m = m, .size = w->size, .get = got, .index = index_of, .user = w, .wide = DT_token };
	w->e.o = (ir_val (*)[OF_FWD])ARENA_NEW(a, ir_val, OF_FWD * (m->fwd.n + 1));
	w->e.d = (ir_val (*)[OF_BWD])ARENA_NEW(a, ir_val, OF_BWD * (m->bwd.n + 1));
	for (size_t i = 0; i < m->exit.n; i++)
		add_exit(a, w, &m->exit.p[i], out);
}

/* Is w made of v by views and barriers alone? */
static bool is_view_of(const struct ir_fn *fn, ir_val w, ir_val v)
{
	for (const struct ir_op *o; w != v; w = ir_in(fn, o, w - o->out))
		if (!(o = ir_def(fn, w)) || (o->kind != IR_reshape && o->kind != IR_transpose && o->kind != IR_optimization_barrier))
			return false;
	return true;
}

/* What leaves one attention as a view, and comes into another one without that view, leaves it so, too. */
static void add_seen_through(struct arena *a, const struct ir_fn *fn, struct attn_plan *p)
{
	bool *given = ARENA_NEW(a, bool, fn->val.n);
	for (size_t i = 0; i < p->exit.n; i++)
		given[p->exit.p[i].v] = true;
	for (size_t i = 0, n = p->exit.n; i < n; i++)
		for (int j = 0; j < p->exit.p[i].nin; j++) {
			ir_val v = p->exit.p[i].in[j];
			for (size_t k = 0; k < n && !given[v]; k++) {
				const struct own_exit *w = p->exit.p[k].own;
				struct exit x = w->x;
				if (!w->own->m->c->of[v] || !is_view_of(fn, x.v, v))
					continue;
				x.v = v;
				x.lab = w->own->m->c->of[v];
				given[v] = true;
				add_exit(a, w->own, &x, p);
			}
		}
}

ir_val attn_emit(const struct attn_exit *x, struct ir_b *b, const ir_val *in)
{
	struct own_exit *o = x->own;
	o->own->e.b = *b;
	o->own->e.b.loc = ir_def(o->own->m->c->fn, o->own->m->c->seed)->loc;
	o->own->at = x;
	o->own->in = in;
	return emit_exit(&o->own->e, &o->x, o->own->m->c->fn->val.p[x->v].type);
}

void attn_plan_free(struct attn_plan *p)
{
	for (size_t i = 0; i < p->exit.n; i++)
		free_match(((struct own_exit *)p->exit.p[i].own)->own->m);
	arr_free(&p->exit);
}

/* A product whose result has dimensions of both sides, and is large enough. */
static bool is_seed(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, bool all)
{
	enum { LEAST = 32 * 32 };        /* queries times keys */
	if (o->kind != IR_dot || dtype_info[ir_vtype(m, fn, o->out)->dtype].cls != DT_FLOAT)
		return false;
	const struct ir_axes *x = ir_axes_of(a, m, fn, o);
	int64_t free[2] = { 1, 1 };
	for (int f = 0; f < x->nfactor; f++) {
		int in[2] = { ir_axes_find(x, 0, f), ir_axes_find(x, 1, f) };
		for (int s = 0; s < 2 && x->factor[f].kind == FACTOR_EACH; s++)
			if (in[s] >= 0 && in[!s] < 0)
				free[s] *= x->factor[f].size;
	}
	return (free[0] > 1 || free[1] > 1) && free[0] > 0 && free[1] > 0 && (all || free[0] * free[1] >= LEAST);
}

static struct match *candidate(struct arena *a, struct ir_module *m, const struct ir_fn *fn, struct room *room, ir_val seed)
{
	struct match *x = ARENA_NEW(a, struct match, 1);
	x->c = ARENA_NEW(a, struct cand, 1);
	*x->c = (struct cand){ .a = a, .m = m, .fn = fn, .room = room, .seed = seed, .of = room->of, .near = room->near, .kin = room->kin };
	return x;
}

/* NULL: it has no exponential, hence no attention. */
static struct room *room_of(struct arena *a, const struct ir_fn *fn)
{
	for (size_t i = 0; i < fn->op.n; i++)
		if (fn->op.p[i].kind == IR_exponential || fn->op.p[i].kind == IR_power) {
			struct room *r = ARENA_NEW(a, struct room, 1);
			room_make(r, a, fn);
			return r;
		}
	return NULL;
}

void attn_around(struct arena *a, struct ir_module *m, const struct ir_fn *fn, bool all, bool *around)
{
	struct room *room = room_of(a, fn);
	for (size_t i = 0; i < fn->op.n && room; i++) {
		if (!is_seed(a, m, fn, &fn->op.p[i], all))
			continue;
		struct match *x = candidate(a, m, fn, room, fn->op.p[i].out);
		bool told = settle(x, false);
		for (int k = 0; k < room->ntouched && told; k++)
			around[room->touched[k]] |= !(lab_of(x->c, x->c->of[room->touched[k]])->set & 1);
		free_match(x);
	}
}

void attn_find(struct arena *a, struct ir_module *m, const struct ir_fn *fn, bool all, struct attn_record *rec, struct attn_plan *out)
{
	struct room *room = room_of(a, fn);
	for (size_t i = 0; i < fn->op.n && room; i++) {
		const struct ir_op *o = &fn->op.p[i];
		if (!is_seed(a, m, fn, o, all))
			continue;
		struct match *x = candidate(a, m, fn, room, o->out);
		struct cand *c = x->c;
		bool told = settle(x, true);
		if (told && !c->why && !find_values(x))
			cand_fail(c, o->loc, "nothing that an attention gives is needed of it");
		if (told && !c->why) {
			const char *bad = check_match(x);
			if (bad || !multiplies_alike(x))
				cand_fail(c, o->loc, bad ? bad : "its highest scores are chosen beside values of another type");
		}
		if (told && rec)
			arr_push(&rec->said, ((struct attn_said){ o->loc, c->why, c->where }));
		if (told && !c->why) {
			plan(a, x, out);
		} else {
			free_match(x);
		}
	}
	add_seen_through(a, fn, out);
	if (room)
		map_free(&room->checked);
}
