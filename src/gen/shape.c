/* The shape of the loops of a schedule: which variable is vectorised, the order of the others, how the work
 * is cut into tiles, what is kept between the nests of a row. */
#include "sched.h"

#include <stdlib.h>

int gen_node_cost(const struct gen_node *n)
{
	if (n->kind == GN_DIV || n->kind == GN_MOD)
		return 12;
	if (n->kind != GN_ELEM)
		return n->kind == GN_CONST || n->kind == GN_RED ? 0 : 1;
	return elem_work(n->elem, n->from);
}

/* --- the lane ------------------------------------------------------------- */

/* once: what an operation is worth that is the same in all of the lane */
struct score { const struct gen_sched *s; uint32_t *seen; uint32_t stamp; int lane, low; bool loops; double mem, ops, once; int64_t bytes; int least; };      /* least: bytes of the narrowest element */

enum { FAR = 4096 };         /* bytes */
enum { DOWN_LINES = 32, DOWN_FEW = 8, DOWN_LONG = 64, DOWN_LEAST = 128, DOWN_SUMS = 4 };      /* lines of a row that are read at once, and that it has; rows; reductions */
#define SHORT_USE 0.375      /* of dense rows of two or three elements memory takes part of the time */
/* Vectors until a period ends where one does: each is code of its own, which so many elements pay for; work per row that is dearer done for each element. */
enum { PHASES = 8, PHASE_WORTH = 4096, ROW_WORK = 16 };

static int64_t low_ext(const struct gen_sched *s, int low) { return low < 0 ? 1 : s->var[low].ext; }

int gen_lane_turn(const struct gen_sched *s, int width)
{
	return width / (int)gcd_of(width, low_ext(s, s->low));
}

bool gen_lane_even(const struct gen_sched *s, const struct gen_lin *l, int lane, int low)
{
	return low < 0 || l->k[lane] == l->k[low] * s->var[low].ext;
}

static bool in_lane(const struct score *c, uint16_t mask)
{
	return c->lane >= 0 && (mask >> c->lane & 1 || (c->low >= 0 && mask >> c->low & 1));
}

/* Is n made once for all turns of the lane? */
static bool is_period(const struct score *c, const struct gen_node *n) { return in_lane(c, n->mask) && !(n->mask >> c->lane & 1); }

/* Loads of vectors that one vector is made of, whose period lies apart; 0: they are gathered. */
static double sources(const struct score *c, const struct gen_lin *l)
{
	int64_t w = c->s->width, p = c->s->var[c->low].ext, far = llabs(l->k[c->lane]) * (w / p) + llabs(l->k[c->low]) * (p - 1);
	return far < GEN_SOURCES * w ? (double)(far / w + 1) : 0;
}

static void score_node(struct score *c, uint32_t id);

static void score_access(struct score *c, uint32_t lin, int dt, bool load)
{
	const struct gen_lin *l = &c->s->lin[lin];
	bool vec = false;
	for (int j = 0; j < GEN_NT; j++)
		if (l->tk[j]) {
			score_node(c, l->tn[j]);
			vec |= in_lane(c, c->s->node[l->tn[j]].mask);
		}
	int64_t k = c->lane >= 0 ? l->k[c->lane] : 0;
	int strided = load ? c->s->t->gather_cost : c->s->t->scatter_cost;
	double w = (double)dtype_info[dt].bytes / 4 + 0.5, n = 0;
	bool even = c->low < 0 || gen_lane_even(c->s, l, c->lane, c->low), apart = !even && k && load && !vec;
	if (apart)
		n = sources(c, l);
	else if (even && c->low >= 0)
		k = l->k[c->low];
	/* rows as lanes: their lines do not stay in the first cache from turn to turn where they lie far apart, and perhaps in one set of it */
	if (c->loops && !apart && llabs(k) * dtype_info[dt].bytes >= FAR)
		strided *= 4;
	c->mem += n > 0 ? n * (w + 0.5) : c->lane < 0 ? w : vec || apart ? strided : k == 0 ? 0.2 : k == 1 ? w : k == -1 ? w + 0.5 : strided;
	c->bytes += dtype_info[dt].bytes;
	c->least = MIN(c->least, dtype_info[dt].bytes);
}

static void score_node(struct score *c, uint32_t id)
{
	if (c->seen[id] == c->stamp)
		return;
	c->seen[id] = c->stamp;
	const struct gen_node *n = &c->s->node[id];
	c->ops += gen_node_cost(n) * (c->lane >= 0 && !in_lane(c, n->mask) ? c->once : is_period(c, n) ? 0.1 : 1);
	switch (n->kind) {
	case GN_LOAD:
		score_access(c, n->lin, n->dtype, true);
		break;
	case GN_LIN: case GN_DIV: case GN_MOD: case GN_INR: case GN_LCLAMP:
		for (int j = 0; j < GEN_NT; j++)
			if (c->s->lin[n->lin].tk[j])
				score_node(c, c->s->lin[n->lin].tn[j]);
		break;
	case GN_ELEM:
		for (int i = 0; i < elem_info[n->elem].nin; i++)
			score_node(c, n->a[i]);
		break;
	case GN_ROUND: case GN_CLAMP:
		score_node(c, n->a[0]);
		break;
	default:
		break;
	}
}

static void score_nest(struct score *c, const struct gen_nest *x)
{
	c->stamp++;
	for (int i = 0; i < x->nred; i++) {
		for (int k = 0; k < 1 || (k < GEN_MAX_OUT && x->red[i].node[k]); k++)
			score_node(c, x->red[i].node[k]);
		c->ops += 1;
	}
	for (int i = 0; i < x->nst; i++) {
		score_node(c, x->st[i].node);
		score_access(c, x->st[i].lin, c->s->node[x->st[i].node].dtype, false);
	}
}

/* The variable that should be the lane of nest x, inside or outside; low: with its period. */
static double lane_cost(struct score *c, const struct gen_nest *x, int lane, int low, int width)
{
	/* a short one takes fewer registers, and what is the same in it is made, as a scalar, for few */
	int64_t ext = lane >= 0 ? c->s->var[lane].ext * low_ext(c->s, low) : 1, w = width, one = width / c->s->t->vectors;
	while (w > 4 && w / 2 >= ext)
		w /= 2;
	int64_t turns = (ext + w - 1) / w;
	c->lane = lane;
	c->low = low;
	c->loops = x->vars != 0;
	c->mem = c->ops = 0;
	c->once = turns < 3 ? 3.0 / (double)turns : 1;
	c->bytes = 0;
	c->least = 8;
	score_nest(c, x);
	double e = 1;
	for (int v = 0; v < c->s->nvar; v++)
		if (x->vars >> v & 1)
			e *= (double)(x->hi[v] - x->lo[v]);
	if (lane < 0)
		return e * (c->mem * 8 + c->ops * (x->vars ? 8 : 1));
	double use = (double)ext / (double)(turns * MAX(w, one)), part = use < SHORT_USE && ext < 4 && c->least >= 4 && !x->nred ? SHORT_USE : use;
	return e * (c->mem / part + c->ops * 0.5 / use);
}

int gen_nest_lane(const struct gen_sched *s, const struct gen_nest *x)
{
	int best = -1;
	double cost = 0;
	uint32_t *seen = mem_alloc(sizeof *seen * (s->nnode + 1));
	struct score c = { .s = s, .seen = seen };
	for (int v = 0; v < s->nvar; v++) {
		if (!(x->vars >> v & 1) || x->hi[v] - x->lo[v] < 2)
			continue;
		double k = lane_cost(&c, x, v, -1, s->width);
		if (best < 0 || k <= cost) {
			best = v;
			cost = k;
		}
	}
	free(seen);
	return best;
}

/* --- what is worth keeping between nests of one row ---------------------- */

int64_t gen_kept_count(const struct gen_sched *s, const struct gen_nest *x)
{
	int64_t count = 1;
	for (int v = 0; v < s->nvar; v++)
		if (x->vars >> v & 1)
			count *= s->var[v].ext;
	return count;
}

struct reach { const struct gen_sched *s; uint16_t vars; uint32_t *stamp, now; uint8_t *cost; };

static int operands(const struct gen_sched *s, const struct gen_node *n, uint32_t *out)
{
	int k = 0;
	if (n->kind == GN_ELEM)
		for (int i = 0; i < elem_info[n->elem].nin; i++)
			out[k++] = n->a[i];
	else if (n->kind == GN_ROUND || n->kind == GN_CLAMP)
		out[k++] = n->a[0];
	if (n->kind == GN_LOAD || n->kind == GN_LIN || n->kind == GN_DIV || n->kind == GN_MOD || n->kind == GN_INR || n->kind == GN_LCLAMP)
		for (int j = 0; j < GEN_NT; j++)
			if (s->lin[n->lin].tk[j])
				out[k++] = s->lin[n->lin].tn[j];
	return k;
}

/* Mark what id needs; the cost of making it anew per element, up to 255. */
static int reach(struct reach *r, uint32_t id)
{
	const struct gen_node *n = &r->s->node[id];
	if (!(n->mask & r->vars))
		return 0;
	if (r->stamp[id] == r->now)
		return r->cost[id];
	r->stamp[id] = r->now;
	uint32_t in[GEN_NT + 3];
	int c = gen_node_cost(n);
	for (int k = operands(r->s, n, in); k-- > 0;)
		c += reach(r, in[k]);
	r->cost[id] = (uint8_t)MIN(c, 255);
	return r->cost[id];
}

struct keep { struct arena *a; const struct gen_sched *s; struct gen_nest *from, *to; int at; const uint32_t *stamp; uint32_t now; const uint8_t *cost; uint32_t *seen; uint32_t turn; int64_t room; int64_t count; };

static void keep_walk(struct keep *k, uint32_t id)
{
	const struct gen_sched *s = k->s;
	const struct gen_node *n = &s->node[id];
	if (!(n->mask & k->to->vars) || k->seen[id] == k->turn)
		return;
	k->seen[id] = k->turn;
	for (int i = 0; i < k->to->nuse; i++)
		if (k->to->use[i].node == id)
			return;
	int64_t size = k->count * dtype_info[n->dtype].bytes;
	if (n->kind == GN_ELEM && k->stamp[id] == k->now && k->cost[id] >= 12 && size <= k->room) {
		int i = 0;
		while (i < k->from->nkeep && k->from->keep[i] != id)
			i++;
		if (i == k->from->nkeep) {
			k->room -= size;
			uint32_t *nw = ARENA_NEW(k->a, uint32_t, i + 1);
			if (i)
				memcpy(nw, k->from->keep, (size_t)i * sizeof *nw);
			nw[i] = id;
			k->from->keep = nw;
			k->from->nkeep++;
		}
		struct gen_use *u = ARENA_NEW(k->a, struct gen_use, k->to->nuse + 1);
		if (k->to->nuse)
			memcpy(u, k->to->use, (size_t)k->to->nuse * sizeof *u);
		u[k->to->nuse++] = (struct gen_use){ k->at, i, id };
		k->to->use = u;
		return;
	}
	uint32_t in[GEN_NT + 3];
	for (int j = operands(s, n, in); j-- > 0;)
		keep_walk(k, in[j]);
}

static void red_roots(const struct gen_nest *x, const struct gen_body *b, void (*what)(void *, uint32_t), void *arg)
{
	for (int i = 0; i < x->nred; i++)
		for (int k = 0; k < b->red[x->red[i].red].n; k++)
			what(arg, x->red[i].node[k]);
}

static void nest_roots(const struct gen_nest *x, const struct gen_body *b, void (*what)(void *, uint32_t), void *arg)
{
	red_roots(x, b, what, arg);
	for (int i = 0; i < x->nst; i++)
		what(arg, x->st[i].node);
}

struct mark { const struct gen_sched *s; bool *used; };
static void mark(void *m_, uint32_t id)
{
	const struct mark *m = m_;
	uint32_t in[GEN_NT + 3];
	if (m->used[id])
		return;
	m->used[id] = true;
	for (int k = operands(m->s, &m->s->node[id], in); k-- > 0;)
		mark(m_, in[k]);
}
void gen_body_nodes(const struct gen_sched *s, const struct gen_body *b, bool *used)
{
	struct mark m = { s, used };
	memset(used, 0, s->nnode * sizeof *used);
	for (int i = 0; i < b->nnest; i++)
		nest_roots(&b->nest[i], b, mark, &m);
	for (int i = 0; i < b->nred; i++)
		for (int k = 0; k < b->red[i].n; k++)
			mark(&m, b->red[i].init[k]);
}

static void root_reach(void *r, uint32_t id) { reach(r, id); }
static void root_keep(void *k, uint32_t id) { keep_walk(k, id); }

/* Dear values of a row (say, exponentials) that a later nest over the same range needs again stay in a
 * buffer, if the row is short enough for the caches.  Both nests must have the same lane: along it the buffer is dense. */
static void keep_between(struct arena *a, const struct gen_sched *s, struct gen_body *b)
{
	uint32_t *stamp = mem_alloc(sizeof *stamp * s->nnode), *seen = mem_alloc(sizeof *seen * s->nnode);
	uint8_t *cost = mem_alloc(s->nnode);
	struct reach r = { s, 0, stamp, 0, cost };
	int64_t room = s->t->kept;
	uint32_t turn = 0;
	for (int i = 0; i < MIN(b->nnest, 64); i++) {
		struct gen_nest *x = &b->nest[i];
		if (!x->vars)
			continue;
		int lane = gen_nest_lane(s, x);
		r.vars = x->vars;
		r.now++;
		nest_roots(x, b, root_reach, &r);
		for (int j = i + 1; j < b->nnest; j++) {
			struct gen_nest *y = &b->nest[j];
			bool same = y->vars == x->vars && gen_nest_lane(s, y) == lane;
			for (int v = 0; v < s->nvar; v++)
				if (x->vars >> v & 1)
					same &= y->lo[v] == x->lo[v] && y->hi[v] == x->hi[v];
			if (!same)
				continue;
			struct keep k = { a, s, x, y, i, stamp, r.now, cost, seen, ++turn, room, gen_kept_count(s, x) };
			nest_roots(y, b, root_keep, &k);
			room = k.room;
		}
	}
	free(stamp);
	free(seen);
	free(cost);
}

/* --- the order of the outer loops ---------------------------------------- */

bool gen_across(const struct gen_sched *s, const struct gen_node *n)
{
	if (s->across < 0 || n->kind != GN_LOAD)
		return false;
	const struct gen_lin *l = &s->lin[n->lin];
	if (llabs(l->k[s->lane]) <= 4 || l->k[s->across] != 1)
		return false;
	for (int j = 0; j < GEN_NT; j++)
		if (l->tk[j] && s->node[l->tn[j]].mask & (1u << s->lane | 1u << s->across))
			return false;
	return true;
}

/* What is saved where n, which depends on the lane, is made once for all turns of another loop; 0: too little to ask for another order. */
static int node_dear(const struct gen_sched *s, const struct gen_node *n)
{
	int cost = n->kind == GN_LOAD && llabs(s->lin[n->lin].k[s->lane]) > 1 ? s->t->gather_cost : gen_node_cost(n);
	return cost >= 6 ? cost : 0;
}

/* A variable that goes inside the lane loop: one along which transposed loads run, or one that dear values
 * do not depend on (the angles of a rotation that all heads share). */
static int inside_lane(struct gen_sched *s)
{
	if (s->lane < 0)
		return -1;
	for (int b = 0; b < s->nbody; b++)
		for (int i = 0; i < s->body[b].nnest; i++)
			if (s->body[b].nest[i].vars)
				return -1;
	if (s->var[s->lane].ext >= 8)
		for (int v = 0; v < s->nvar; v++) {
			if (!(s->outer >> v & 1) || v == s->lane || s->var[v].ext < s->t->across)
				continue;
			s->across = v;
			int n = 0;
			for (uint32_t i = 1; i < s->nnode; i++)
				n += gen_across(s, &s->node[i]);
			if (n && n <= 8) {
				s->across_block = s->t->across;
				return v;
			}
		}
	s->across = -1;
	int best = -1, gain = 15;
	for (int v = 0; v < s->nvar; v++) {
		if (!(s->outer >> v & 1) || v == s->lane || s->var[v].ext < 2 || s->var[v].ext > 256)
			continue;
		int g = 0;
		for (uint32_t i = 1; i < s->nnode; i++)
			if (s->node[i].mask >> s->lane & 1 && !(s->node[i].mask >> v & 1))
				g += node_dear(s, &s->node[i]);
		if (g > gain) {
			gain = g;
			best = v;
		}
	}
	return best;
}

/* Is l just variable v, and (times >= 0) as many elements for each turn of that one? */
static bool is_var(const struct gen_sched *s, const struct gen_lin *l, int v, int times)
{
	bool ok = !l->c;
	for (int i = 0; i < GEN_NV; i++)
		ok &= l->k[i] == (i == v ? 1 : i == times ? s->var[v].ext : 0);
	for (int j = 0; j < GEN_NT; j++)
		ok &= !l->tk[j];
	return ok;
}

/* Does l go through a buffer of so many elements row by row: in each turn of v, of ext turns, through its own part? */
static bool by_rows(const struct gen_sched *s, const struct gen_lin *l, int v, int64_t count)
{
	int64_t row = count / s->var[v].ext, lo = l->c, hi = l->c;
	for (int j = 0; j < GEN_NT; j++)
		if (l->tk[j])
			return false;
	for (int i = 0; i < s->nvar; i++)
		if (i != v)
			*(l->k[i] < 0 ? &lo : &hi) += l->k[i] * (s->var[i].ext - 1);
	return count % s->var[v].ext == 0 && l->k[v] == row && lo >= 0 && hi < row;
}

/* Tiles that are rows: elements of the largest array in each; 0: they are not.  A smaller operand may be read as it likes, one of as many
 * elements only in the tile's own rows. */
static int64_t rows(struct arena *a, const struct gen_sched *s)
{
	int v = s->norder ? s->order[0] : -1;
	int64_t all = 0;
	if (v < 0 || s->nbody != 1 || s->split || s->across >= 0 || (v == s->lane && s->low < 0) || s->body[0].lo[v] || s->body[0].hi[v] != s->var[v].ext)
		return 0;
	for (int b = 0; b < s->nbuf; b++)
		all = MAX(all, s->buf[b].data ? 0 : s->buf[b].count);
	bool *used = ARENA_NEW(a, bool, s->nnode), ok = all > 0 && all % s->var[v].ext == 0;
	gen_body_nodes(s, &s->body[0], used);
	for (uint32_t i = 0; i < s->nnode && ok; i++) {
		const struct gen_node *n = &s->node[i];
		if (used[i] && n->kind == GN_LOAD && !s->buf[n->a[0]].data && s->buf[n->a[0]].count == all)
			ok = by_rows(s, &s->lin[n->lin], v, all);
	}
	for (int i = 0; i < s->body[0].nnest && ok; i++)
		for (int k = 0; k < s->body[0].nest[i].nst && ok; k++) {
			const struct gen_store *st = &s->body[0].nest[i].st[k];
			ok = by_rows(s, &s->lin[st->lin], v, s->buf[s->fn->nparam + (uint32_t)st->res].count);
		}
	return ok ? s->block * (all / s->var[v].ext) : 0;
}

/* Is element i of every result made of elements i of the operands alone (and of operands of one element)?  times >= 0: the
 * results are that, once for each turn of this variable. */
static bool linear(const struct gen_sched *s, int times)
{
	int depth = times < 0 ? 1 : 2;
	if (s->nbody != 1 || s->norder != depth || s->lane < 0 || s->order[depth - 1] != s->lane || s->across >= 0)
		return false;
	const struct gen_body *b = &s->body[0];
	int v = s->lane;
	int64_t ext = s->var[v].ext, all = ext;
	if (times >= 0) {
		all *= s->var[times].ext;
		if (s->split != 1 || b->lo[times] || b->hi[times] != s->var[times].ext)
			return false;
	}
	if (b->nred || b->lo[v] || b->hi[v] != ext)
		return false;
	for (int i = 0; i < b->nnest; i++) {
		if (b->nest[i].vars)
			return false;
		for (int k = 0; k < b->nest[i].nst; k++)
			if (!is_var(s, &s->lin[b->nest[i].st[k].lin], v, times))
				return false;
	}
	for (int i = 0; i < s->nbuf; i++)
		if (s->buf[i].result && s->buf[i].count != all)
			return false;
	for (uint32_t i = 1; i < s->nnode; i++) {
		const struct gen_node *n = &s->node[i];
		if (n->kind != GN_LOAD || s->buf[n->a[0]].data || s->buf[n->a[0]].count == 1)
			continue;
		if (s->buf[n->a[0]].count != ext || !is_var(s, &s->lin[n->lin], v, -1))
			return false;
	}
	return true;
}

/* from: the first store of the nest that is still to come: a result that is stored lies over what it may lie over */
struct under { const struct gen_sched *s; const struct gen_nest *nest; int from; uint32_t *seen, turn; };

static void root_under(void *arg, uint32_t id)
{
	struct under *u = arg;
	const struct gen_node *n = &u->s->node[id];
	if (u->seen[id] == u->turn)
		return;
	u->seen[id] = u->turn;
	if (n->kind == GN_LOAD && n->a[0] < u->s->fn->nparam) {
		int64_t same = 0;
		for (int i = u->from; u->nest && i < u->nest->nst; i++)
			same |= (int64_t)(u->nest->st[i].lin == n->lin) << u->nest->st[i].res;
		u->s->under[n->a[0]] &= same;
	}
	uint32_t in[GEN_NT + 3];
	for (int k = operands(u->s, n, in); k-- > 0;)
		root_under(u, in[k]);
}

/* From the loads as they will be emitted, not from the operations: the program's check relies on it. */
static void find_under(struct arena *a, struct gen_sched *s)
{
	struct under u = { .s = s, .seen = ARENA_NEW(a, uint32_t, s->nnode + 1) };
	s->under = ARENA_NEW(a, int64_t, s->fn->nparam + 1);
	for (uint32_t k = 0; k < s->fn->nparam; k++)
		s->under[k] = ((int64_t)1 << s->fn->result.n) - 1;
	for (int b = 0; b < s->nbody; b++) {
		for (int i = 0; i < s->body[b].nnest; i++) {
			u.nest = &s->body[b].nest[i];
			u.turn++;
			u.from = 0;
			red_roots(u.nest, &s->body[b], root_under, &u);
			for (int k = 0; k < u.nest->nst; k++)         /* all values before the first of them is stored */
				root_under(&u, u.nest->st[k].node);
			for (; u.from < u.nest->nst; u.from++) {
				const struct gen_store *st = &u.nest->st[u.from];
				for (int j = 0; j < GEN_NT; j++)     /* what the address of a result is made of */
					if (s->lin[st->lin].tk[j])
						root_under(&u, s->lin[st->lin].tn[j]);
			}
		}
		u.nest = NULL;
		u.turn++;
		for (int i = 0; i < s->body[b].nred; i++)
			for (int k = 0; k < s->body[b].red[i].n; k++)
				root_under(&u, s->body[b].red[i].init[k]);
	}
}

static int64_t outer_count(const struct gen_sched *s)
{
	int64_t n = 1;
	for (int v = 0; v < s->nvar; v++)
		n *= s->outer >> v & 1 ? s->var[v].ext : 1;
	return n;
}

/* Can u, few turns all of which are in every body, be the period of v? */
static bool can_period(const struct gen_sched *s, int v, int u)
{
	if (u == v || !(s->outer >> v & s->outer >> u & 1) || s->var[v].ext < 2 || s->var[u].ext < 2 || s->var[u].ext >= s->width)
		return false;
	int64_t phases = s->var[u].ext / gcd_of(s->var[u].ext, s->width / s->t->vectors);
	if (phases > 1 && (phases > PHASES || outer_count(s) < phases * PHASE_WORTH))
		return false;
	for (int b = 0; b < s->nbody; b++)
		if (s->body[b].lo[u] || s->body[b].hi[u] != s->var[u].ext)
			return false;
	return true;
}

/* Are results made of vectors along s->lane that lie side by side along u, in order of it, and is there nothing else to do? */
static bool can_weave(const struct gen_sched *s, int u)
{
	int64_t n = s->var[u].ext, have = 0;
	if (u == s->lane || !(s->outer >> u & 1) || n < 2 || n > GEN_WOVEN || s->body->nest->nst > GEN_MAX_OUT)
		return false;
	if (s->nbody == 1 && outer_count(s) < n * PHASE_WORTH)
		return false;
	for (int b = 0; b < s->nbody; b++) {
		const struct gen_body *y = &s->body[b];
		have += y->hi[u] - y->lo[u];
		if (y->nred || y->nnest != 1 || y->nest->vars || y->nest->nst != s->body->nest->nst || (b && y->lo[u] != s->body[b - 1].hi[u]))
			return false;
		for (int v = 0; v < s->nvar; v++)
			if (v != u && s->outer >> v & 1 && (y->lo[v] || y->hi[v] != s->var[v].ext))
				return false;
		for (int i = 0; i < y->nest->nst; i++) {
			const struct gen_store *st = &y->nest->st[i], *first = &s->body->nest->st[i];
			const struct gen_lin *l = &s->lin[st->lin], *f = &s->lin[first->lin];
			bool one = y->hi[u] - y->lo[u] == 1;
			if (st->res != first->res || l->k[s->lane] != n || l->k[u] != !one || l->c != f->c + (one ? y->lo[u] : 0))
				return false;
			for (int v = 0; v < s->nvar; v++)
				if (v != u && l->k[v] != f->k[v])
					return false;
			for (int j = 0; j < GEN_NT; j++)
				if (l->tk[j])
					return false;
		}
	}
	return s->body->lo[u] == 0 && have == n;
}

/* What is to be done once for each turn of s->lane, all of u: of vectors that run on from row to row it is done for each element. */
static int row_work(const struct gen_sched *s, int u)
{
	int work = 0;
	for (uint32_t i = 1; i < s->nnode; i++)
		work += s->node[i].mask >> s->lane & 1 && !(s->node[i].mask >> u & 1) ? gen_node_cost(&s->node[i]) : 0;
	return work;
}

static double lane_costs(struct score *c, int lane, int low)
{
	double k = 0;
	for (int b = 0; b < c->s->nbody; b++)
		for (int i = 0; i < c->s->body[b].nnest; i++)
			k += lane_cost(c, &c->s->body[b].nest[i], lane, low, c->s->width);
	return k;
}

/* Bytes of the smallest element that is read. */
static int narrowest(const struct gen_sched *s)
{
	int least = 8;
	for (uint32_t i = 1; i < s->nnode; i++)
		if (s->node[i].kind == GN_LOAD && s->node[i].mask >> s->lane & 1)
			least = MIN(least, dtype_info[s->node[i].dtype].bytes);
	return least;
}

/* The variable that s->down may be: columns of many rows, and nothing is left of a turn but what goes into a few reductions, whose sums may be
 * grouped so. */
static int down_of(const struct gen_sched *s)
{
	const struct gen_body *b = s->body;
	const struct gen_nest *x = b->nest;
	int v = -1;
	if (s->nbody != 1 || !b->nnest || s->weave >= 0 || x->level || x->nkeep || x->nst || s->var[s->lane].ext < DOWN_LONG * s->t->vbytes / narrowest(s))
		return -1;
	for (int i = 1; i < b->nnest; i++)
		if (b->nest[i].vars)
			return -1;
	for (int i = 0; i < x->nred; i++) {
		const struct gen_red *r = &b->red[x->red[i].red];
		enum dtype acc = (enum dtype)r->acc[0];
		if (r->redop > RED_xor || r->redop == RED_mul || r->n != 1 || dtype_info[acc].cls == DT_COMPLEX || (r->redop == RED_add && dtype_info[acc].cls == DT_FLOAT && acc != DT_f32))
			return -1;
	}
	for (int u = 0; u < s->nvar; u++)
		if (x->vars >> u & 1 && x->hi[u] - x->lo[u] > 1) {
			if (v >= 0)
				return -1;
			v = u;
		}
	return v >= 0 && x->nred && x->nred <= DOWN_SUMS && x->hi[v] - x->lo[v] >= DOWN_LEAST ? v : -1;
}

/* Lines of each row that a tile has at least: fewer if there were few tiles. */
static int64_t down_lines(const struct gen_sched *s)
{
	int64_t lines = DOWN_LINES;
	while (lines > DOWN_FEW && s->var[s->lane].ext < DOWN_FEW * lines * s->width)
		lines /= 2;
	return lines;
}

void gen_shape(struct arena *a, struct gen_sched *s)
{
	const struct gen_target *t = s->t;
	find_under(a, s);
	for (uint32_t i = 1; i < s->nnode; i++)
		if (s->node[i].kind == GN_ELEM || s->node[i].kind == GN_LOAD)
			s->wide |= dtype_info[s->node[i].dtype].bytes == 8;
	s->width = t->vbytes * t->vectors / (s->wide ? 8 : 4);

	/* which loop is vectorised */
	struct score c = { .s = s, .seen = ARENA_NEW(a, uint32_t, s->nnode + 1) };
	bool inner_ok = false;      /* is there an inner loop at all */
	double inner = 0, best = 0;
	int lane = -1;
	for (int b = 0; b < s->nbody; b++)
		for (int i = 0; i < s->body[b].nnest; i++) {
			const struct gen_nest *x = &s->body[b].nest[i];
			double k = -1;
			for (int v = 0; v < s->nvar; v++)
				if (x->vars >> v & 1 && x->hi[v] - x->lo[v] > 1) {
					double y = lane_cost(&c, x, v, -1, s->width);
					if (k < 0 || y < k)
						k = y;
				}
			inner += k < 0 ? lane_cost(&c, x, -1, -1, s->width) * 2 : k;
			inner_ok |= x->vars != 0;
		}
	for (int v = s->nvar - 1; v >= 0; v--) {
		if (!(s->outer >> v & 1) || s->var[v].ext < 2)
			continue;
		double k = lane_costs(&c, v, -1);
		if (lane < 0 || k < best) {
			lane = v;
			best = k;
		}
	}
	int low = -1;
	double alone = best;
	for (int v = 0; v < s->nvar && lane >= 0; v++)
		for (int u = 0; u < s->nvar; u++) {
			if (!can_period(s, v, u))
				continue;
			double k = lane_costs(&c, v, u);
			if (k < best && k < 0.8 * alone) {
				lane = v;
				low = u;
				best = k;
			}
		}
	s->lane = lane >= 0 && (!inner_ok || best < inner) ? lane : -1;
	s->down = -1;
	s->low = s->lane < 0 || (low >= 0 && row_work(s, low) >= ROW_WORK && can_weave(s, low)) ? -1 : low;
	if (s->low >= 0 && gen_lane_turn(s, s->width) * low_ext(s, low) > s->width)
		s->width /= t->vectors;         /* a turn is several vectors */
	s->weave = -1;
	for (int u = 0; u < s->nvar && s->lane >= 0 && s->low < 0 && s->weave < 0; u++)
		if (can_weave(s, u))
			s->weave = u;
	if (s->weave >= 0)
		s->width /= t->vectors;
	if (s->lane >= 0 && s->low < 0 && inner_ok) {
		/* columns: several cache lines of a row at once, if the work per element is so small that the
		 * accumulators stay in registers */
		int ops = 0;
		for (uint32_t i = 1; i < s->nnode; i++)
			ops += s->node[i].mask >> s->lane & 1 ? gen_node_cost(&s->node[i]) : 0;
		if (ops <= 10 && (s->down = down_of(s)) >= 0)
			s->width = t->vbytes / narrowest(s);
		else if (ops <= 10 && s->nbody == 1 && (s->var[s->lane].ext >= 16 * s->width || s->var[s->lane].ext % (s->width * t->columns) == 0))
			s->width *= t->columns;
	}
	if (s->lane >= 0) {
		while (s->width > 4 && s->width / 2 >= s->var[s->lane].ext * low_ext(s, s->low))
			s->width /= 2;
	}

	/* order and tiles */
	double work = 0;
	for (int b = 0; b < s->nbody; b++) {
		double o = 1;
		for (int v = 0; v < s->nvar; v++)
			if (s->outer >> v & 1)
				o *= (double)(s->body[b].hi[v] - s->body[b].lo[v]);
		for (int i = 0; i < s->body[b].nnest; i++) {
			const struct gen_nest *x = &s->body[b].nest[i];
			double e = o;
			for (int v = 0; v < s->nvar; v++)
				if (x->vars >> v & 1)
					e *= (double)(x->hi[v] - x->lo[v]);
			c.lane = c.low = -1;
			c.ops = c.mem = 0;
			c.bytes = 0;
			score_nest(&c, x);
			work += e * ((double)c.bytes + c.ops);
		}
	}
	for (int b = 0; b < s->nbuf; b++)
		s->bytes += b < (int)(s->fn->nparam + s->fn->result.n) ? s->buf[b].count * dtype_info[s->buf[b].dtype].bytes : 0;
	s->across = -1;
	int last = s->low < 0 && s->weave < 0 ? inside_lane(s) : -1;
	for (int v = 0; v < s->nvar; v++)
		if (s->outer >> v & 1 && v != s->lane && v != s->low && v != s->weave && v != last && s->var[v].ext > 1)
			s->order[s->norder++] = (uint8_t)v;
	if (s->across >= 0)
		s->order[s->norder++] = (uint8_t)last;
	if (s->lane >= 0)
		s->order[s->norder++] = (uint8_t)s->lane;
	if (last >= 0 && s->across < 0)
		s->order[s->norder++] = (uint8_t)last;
	for (int b = 0; b < s->nbody && s->lane < 0; b++)
		keep_between(a, s, &s->body[b]);
	int turn = gen_lane_turn(s, s->width);
	double want_tiles = work / (double)t->work;
	if (want_tiles > t->tiles)
		want_tiles = MIN(t->tiles + (want_tiles - t->tiles) / 8, t->tiles_most);
	s->tiles = 1;
	s->split = 0;
	s->block = s->norder ? s->var[s->order[0]].ext : 1;
	int64_t have = 1;
	for (int i = 0; i < s->norder; i++) {
		int64_t ext = s->var[s->order[i]].ext;
		if (s->order[i] == last && i > 0 && s->order[i - 1] == s->lane)
			break;
		s->split = i;
		s->block = ext;
		s->tiles = have;
		if ((double)have * 1.5 >= want_tiles)
			break;
		int64_t need = (int64_t)(want_tiles / (double)have + 0.5);
		int64_t blk = MAX((ext + need - 1) / need, 1);
		if (s->order[i] == s->lane)
			blk = (blk + turn - 1) / turn * turn;
		if (s->order[i] == s->lane && s->down >= 0)
			blk = MAX(blk, down_lines(s) * turn);
		if (s->order[i] == s->across)
			blk = (blk + 2 * s->across_block - 1) / (2 * s->across_block) * (2 * s->across_block);
		s->block = blk;
		s->tiles = have * ((ext + blk - 1) / blk);
		if (blk > 1)
			break;
		have *= ext;
	}
	s->linear = linear(s, -1);
	s->repeats = s->norder == 2 && s->var[s->order[1]].ext >= 32 * t->chunk && linear(s, s->order[0]);
	if (s->repeats) {
		s->block = t->chunk;
		s->tiles = s->var[s->order[0]].ext * ((s->var[s->lane].ext + t->chunk - 1) / t->chunk);
	}
	if (s->linear && (s->block > t->chunk || s->var[s->lane].ext >= 32 * t->chunk)) {
		s->block = t->chunk;
		s->tiles = (s->var[s->lane].ext + t->chunk - 1) / t->chunk;
	}
	s->rows = s->linear || s->repeats ? 0 : rows(a, s);
	int64_t written = 0;
	for (int b = 0; b < s->nbuf; b++) {
		if (s->buf[b].count == 0 && s->buf[b].result)
			s->tiles = 0;
		written += s->buf[b].result ? s->buf[b].count * dtype_info[s->buf[b].dtype].bytes : 0;
	}
	/* too much for the caches: results need not pass through them */
	s->past = t->past && s->bytes >= t->past && written >= t->past / 4;
}
