/* Which factors of an op are cut, by which axes: of all that its operands and results speak for, what moves the fewest bytes and computes
 * least twice. */
#include "impl.h"

#include <math.h>

enum { MOST = 6, MOST_TURNED = 3, MOST_IDLE = 2 };   /* lists that are tried in all combinations; of those that turn an operand; of axes that are idle */

/* Times that differ by the rounding of their sums alone are equal: the first of them is taken. */
static bool less(double a, double b) { return a < b - fabs(b) * 1e-12; }

struct way { int f; struct axes l; double weight; };

/* The beginning of l that divides the factor. */
static struct axes dividing(struct axes l, int64_t size)
{
	int64_t n = 1;
	for (int i = 0; i < l.n; i++) {
		n *= l.p[i].size;
		if (!size || size % n)
			return (struct axes){ i, l.p };
	}
	return l;
}

bool part_contiguous(const struct ir_axes *x, const struct axes *f)
{
	for (int t = 0; t < x->nin + x->nout; t++)
		for (int d = 0; d < x->rank[t]; d++)
			for (int k = 1; k < x->dim[t][d].n; k++) {
				int before = x->dim[t][d].factor[k - 1];
				if (f[x->dim[t][d].factor[k]].n && axes_size(f[before]) != x->factor[before].size)
					return false;
			}
	return true;
}

/* Do all dimensions divide?  A window's operand need not have the extent of its result. */
static bool even(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, const struct axes *f)
{
	for (int t = 0; t < x->nin + x->nout; t++)
		for (int d = 0; d < x->rank[t]; d++) {
			int64_t parts = 1;
			for (int k = 0; k < x->dim[t][d].n; k++)
				parts *= axes_size(f[x->dim[t][d].factor[k]]);
			if (ir_vtype(m, fn, t < x->nin ? ir_in(fn, o, (uint32_t)t) : o->out + (uint32_t)(t - x->nin))->dim[d] % parts)
				return false;
		}
	return true;
}

const struct ir_axes *part_op_axes(struct part *p, const struct values *v, const struct ir_op *o)
{
	struct ir_axes **x = &v->axes[o - v->fn->op.p];
	return *x ? *x : (*x = part_rule(p, v->fn, o));
}

static bool is_move(const struct values *v, const struct move *m, ir_val x, ir_shard h)
{
	return m->from == v->map[x] && m->lay == v->sh[x] && m->t == v->fn->val.p[x].type && m->sh == h;
}

/* Does it take time to calculate, and not just to read and write? */
static bool multiplies(const struct ir_op *o)
{
	return o->kind == IR_dot || o->kind == IR_convolution || o->kind == IR_attention || o->kind == IR_attention_grad;
}

/* Are there few ops from one of fn to another, or, as between a product and its gradients where nothing but a loss is made of it, next to no work? */
static bool is_near(const struct ir_fn *fn, size_t from, size_t to)
{
	enum { MOST_WORK = 2 };
	int work = 0;
	for (size_t i = to - from < PART_NEAR ? to : from; i < to && work <= MOST_WORK; i++)
		work += multiplies(&fn->op.p[i]) || fn->op.p[i].kind == IR_loop || fn->op.p[i].kind == IR_case;
	return work <= MOST_WORK;
}

ir_val part_copy(const struct values *v, ir_val x, ir_shard h)
{
	if (!v->map[x])
		return 0;
	if (is_move(v, &v->kept[x], x, h))
		return v->kept[x].to;
	if (is_move(v, &v->turn[x], x, h))
		return v->turn[x].to;
	for (int i = 0; i < v->nmoved; i++)
		if (is_move(v, &v->moved[i], x, h) && is_near(v->into, v->moved[i].at, v->at))
			return v->moved[i].to;
	return 0;
}

/* Does it take next to nothing to do o for all elements? */
static bool is_cheap(const struct ir_op *o)
{
	switch ((enum ir_kind)o->kind) {
	case IR_convert: case IR_add: case IR_subtract: case IR_multiply: case IR_and: case IR_or: case IR_not: case IR_select:
	case IR_compare_eq: case IR_compare_ne: case IR_compare_lt: case IR_compare_le: case IR_compare_gt: case IR_compare_ge:
		return true;
	default:
		return false;
	}
}

static bool counts(const struct part *p, const struct ir_fn *fn, ir_val v, bool whole, int *left)
{
	const struct ir_op *o = ir_def(fn, v);
	if (!o || !(*left)--)
		return false;
	if (o->kind == IR_iota)
		return true;
	bool view = o->kind == IR_reshape || o->kind == IR_transpose || o->kind == IR_broadcast, any = false;
	if (view ? !whole : !is_cheap(o))
		return false;
	for (uint32_t k = 0; k < o->nin; k++) {
		bool one = ir_splat(p->m, fn, ir_in(fn, o, k)) != NULL;
		any |= !one;
		if (!one && !counts(p, fn, ir_in(fn, o, k), whole, left))
			return false;
	}
	return any;
}

bool part_counts(const struct part *p, const struct ir_fn *fn, ir_val v, ir_shard h)
{
	int left = 8;
	bool whole = true;
	for (int d = 0; d < ir_vtype(p->m, fn, v)->rank; d++)
		whole &= ir_shard_parts(p->m, h, d) == 1;
	return counts(p, fn, v, whole, &left);
}

/* What is asked about an op.  ahead: results cost what their readers take, else what bringing them to where propagation has them does, and
 * operands what is saved to those that read them next, who find what was brought elsewhere. */
enum { KNOWN = 24 };
struct query {
	struct part *p;
	const struct values *v;
	const struct ir_op *o;
	const struct ir_axes *x;
	const ir_shard *have;
	uint32_t mesh;
	double ops;
	bool ahead, leaves;
	struct { ir_val v; ir_shard h; double ns; } known[KNOWN];
	int nknown;
};
struct cost { double ns, bytes; };

static double readers_next(struct query *q, ir_val x, ir_shard have, ir_shard h);

/* Nanoseconds of all that happens to result v which is made as h, or how much more readers of operand number t take that is read as h. */
static double afterwards(struct query *q, ir_val v, int t, ir_shard h)
{
	for (int i = 0; i < q->nknown; i++)
		if (q->known[i].v == v && q->known[i].h == h)
			return q->known[i].ns;
	double s;
	if (t < q->x->nin)
		s = readers_next(q, v, q->have[t], h);
	else {
		ir_shard to = part_place(q->p, q->v, v, h);
		s = part_travel(q->p, q->v->fn->val.p[v].type, h, to).ns + part_readers(q->p, q->v, v, to);
	}
	if (q->nknown < KNOWN) {
		q->known[q->nknown].v = v;
		q->known[q->nknown].h = h;
		q->known[q->nknown++].ns = s;
	}
	return s;
}

static void travels(struct cost *c, struct travel t)
{
	c->ns += t.ns;
	c->bytes += t.bytes;
}

/* Two of those that look at each other's parts, on two hosts if some do. */
static struct plan_group neighbours(struct query *q, const struct axes *f)
{
	struct plan_group g = { 2, 1, 2, 0 };
	for (int i = 0; i < q->x->nfactor; i++) {
		struct plan_group all = along_can(q->p, q->v->fn, q->o, q->x, i) ? part_spread(q->p, q->mesh, f[i]) : g;
		if (all.hosts > 1)
			g = (struct plan_group){ 2, 2, 1, 0, MAX(g.beside, all.beside) };
	}
	return g;
}

/* Apart from what is the same for every choice; bytes less than nothing: it is no choice. */
static struct cost price(struct query *q, const struct axes *f)
{
	struct part *p = q->p;
	const struct ir_axes *x = q->x;
	const struct ir_fn *fn = q->v->fn;
	struct cost c = { 0 };
	double parts = 1, along = along_bytes(p, fn, q->o, x, f);
	if (along < 0)
		return (struct cost){ 0, -1 };
	if (along > 0)
		travels(&c, (struct travel){ along, plan_move_time(p->plan, COLL_permute, neighbours(q, f), along) });
	for (int i = 0; i < x->nfactor; i++)
		parts *= (double)axes_size(f[i]);
	for (int t = 0; t < x->nin + x->nout; t++) {
		ir_shard h = part_shard(p, x, t, q->mesh, f);
		ir_val v = t < x->nin ? ir_in(fn, q->o, (uint32_t)t) : q->o->out + (uint32_t)(t - x->nin);
		ir_type ty = fn->val.p[v].type;
		double local = (double)ir_type_of(p->m, ty)->bytes;
		for (int d = 0; d < x->rank[t]; d++)
			local /= (double)ir_shard_parts(p->m, h, d);
		if (q->o->kind != IR_reshape)        /* memory is read and written */
			c.ns += plan_part_time(p->plan->table, DT_f32, 0, local);
		if (t < x->nin) {
			bool same = part_copy(q->v, v, h) != 0 || part_counts(p, fn, v, h);       /* counted where it is read */
			for (int i = 0; i < t && !same; i++)
				same = ir_in(fn, q->o, (uint32_t)i) == v && part_shard(p, x, i, q->mesh, f) == h;
			if (!same)
				travels(&c, part_travel(p, ty, q->have[t], h));
			if (q->ahead && h != q->have[t] && q->v->map[v] && fn->val.p[v].nuse > 1 && !part_sum(p, q->have[t]))
				c.ns += afterwards(q, v, t, h);
			continue;
		}
		struct axes sums = part_sums(p, x, t - x->nin, f);
		double n = (double)axes_size(sums);
		if (n > 1 && q->leaves)
			h = part_with_sum(p, h, q->mesh, sums, x->rank[t]);
		else if (n > 1 && q->o->kind != IR_top_k)    /* of candidates along_bytes tells */
			travels(&c, (struct travel){ 2 * local * (n - 1) / n, plan_sum_time(p->plan, part_spread(p, q->mesh, sums), local) });
		if (q->ahead)
			c.ns += afterwards(q, v, t, h);
		else
			travels(&c, part_travel(p, ty, h, q->v->want[v]));
	}
	c.ns += plan_part_time(p->plan->table, x->nin ? (enum dtype)ir_vtype(p->m, fn, ir_in(fn, q->o, 0))->dtype : DT_f32, q->ops / parts, 0);
	return c;
}

/* Can o be cut along dimension d of tensor t, which has l, and by that alone, without looking at others' parts? */
static bool as_it_lies(struct query *q, int t, int d, struct axes l, const struct factor_axes *seen)
{
	const struct ir_axes *x = q->x;
	struct axes *f = ARENA_NEW(&q->p->a, struct axes, x->nfactor + 1);
	int64_t parts = 1;
	for (int k = 0; k < x->dim[t][d].n; k++) {
		int g = x->dim[t][d].factor[k];
		f[g] = dividing(seen[g].axes, x->factor[g].size);
		parts *= axes_size(f[g]);
		if (f[g].n && (!part_can(q->p, q->v->fn, q->o, x, g) || (along_can(q->p, q->v->fn, q->o, x, g) && !along_near(q->o))))
			return false;
	}
	return parts == axes_size(l) && part_contiguous(x, f) && even(q->p->m, q->v->fn, q->o, x, f);
}

/* Is dimension d of operand t, which is summed over, cut into n, and that of the operand that it is multiplied with not, and would a part of it that travels
 * be small beside the result, whose parts are added up else? */
static bool cut_alone(struct query *q, int t, int d, int64_t n)
{
	const struct ir_axes *x = q->x;
	const struct ir_module *m = q->p->m;
	int f = x->dim[t][d].n == 1 && t < x->nin ? x->dim[t][d].factor[0] : -1;
	if (f < 0 || x->factor[f].kind != FACTOR_SUM || q->o->kind != IR_dot)
		return false;
	int e = ir_axes_find(x, !t, f);
	return e >= 0 && ir_shard_parts(m, part_summed(q->p, q->have[!t]), e) == 1 && ir_vtype(m, q->v->fn, ir_in(q->v->fn, q->o, (uint32_t)t))->bytes / n < ir_vtype(m, q->v->fn, q->o->out)->bytes / 4;
}

/* The longest beginning of l, of which a part of an axis may be the last, that divides n; *left: what follows. */
static struct axes beginning(struct arena *a, struct axes l, int64_t n, struct axes *left)
{
	struct ir_axis_ref *r = ARENA_NEW(a, struct ir_axis_ref, l.n + 1), *after = ARENA_NEW(a, struct ir_axis_ref, l.n + 1);
	int k = 0;
	for (; k < l.n && n % l.p[k].size == 0; k++) {
		r[k] = l.p[k];
		n /= l.p[k].size;
	}
	int some = 0;
	*left = (struct axes){ l.n - k, after };
	memcpy(after, l.p + k, sizeof *after * (size_t)(l.n - k));
	if (k < l.n && gcd_of(n, l.p[k].size) > 1) {
		int64_t size = gcd_of(n, l.p[k].size);
		r[k] = (struct ir_axis_ref){ l.p[k].axis, l.p[k].pre, size };
		after[0] = (struct ir_axis_ref){ l.p[k].axis, l.p[k].pre * size, l.p[k].size / size };
		some = 1;
	}
	return (struct axes){ k + some, r };
}

/* Along what else o might be cut by the axes l of dimension d of tensor t, which it needs whole: they go to factors of that tensor which are
 * there, from the skip-th on, behind what cuts these already, as far as that divides. */
static int turned(struct query *q, int t, int d, struct axes l, const struct factor_axes *seen, int skip, struct way *out, int room)
{
	const struct ir_axes *x = q->x;
	int n = 0;
	double weight = (double)ir_vtype(q->p->m, q->v->fn, t < x->nin ? ir_in(q->v->fn, q->o, (uint32_t)t) : q->o->out + (uint32_t)(t - x->nin))->bytes;
	for (int e = 0; e < x->rank[t] && l.n && n < room; e++) {
		int g = x->dim[t][e].n ? x->dim[t][e].factor[0] : -1;
		if (e == d || g < 0 || x->factor[g].kind != FACTOR_EACH || !part_can(q->p, q->v->fn, q->o, x, g))
			continue;
		struct axes own = dividing(seen[g].axes, x->factor[g].size), left, more = beginning(&q->p->a, l, x->factor[g].size / axes_size(own), &left);
		if (!more.n || skip-- > 0)
			continue;
		out[n++] = (struct way){ g, axes_join(&q->p->a, own, more), weight };
		l = left;
	}
	return l.n && q->ops ? 0 : n;                /* an operand is not moved about so that a part of a product is done twice less */
}

static bool listed(const struct way *way, int n, struct way w)
{
	for (int i = 0; i < n; i++)
		if (way[i].f == w.f && axes_equal(way[i].l, w.l))
			return true;
	return false;
}

/* The axes of the mesh by which nothing of o lies, and no manual computation around. */
static struct axes idle_axes(struct query *q)
{
	const struct part *p = q->p;
	const struct ir_mesh *mesh = &p->m->mesh.p[q->mesh];
	struct ir_axis_ref *idle = ARENA_NEW(&q->p->a, struct ir_axis_ref, mesh->naxis + 1);
	int n = 0;
	for (int a = 0; a < mesh->naxis && !(p->apart.n && p->apart_of != q->mesh); a++) {
		bool used = mesh->axis[a].size == 1;
		for (int i = 0; i < p->apart.n; i++)
			used |= p->apart.p[i].axis == a;
		for (int t = 0; t < q->x->nin + q->x->nout && !used; t++) {
			ir_shard h = t < q->x->nin ? q->have[t] : q->v->want[q->o->out + (uint32_t)(t - q->x->nin)];
			const struct ir_shard_info *i = &p->m->shard.p[h];
			used = h && i->mesh != q->mesh;
			for (int d = 0; d < i->rank && h; d++)
				for (int k = 0; k < i->dim[d].naxis; k++)
					used |= i->dim[d].axis[k].axis == a;
			for (int k = 0; h && k < i->npart; k++)
				used |= i->part[k].axis == a;
		}
		if (!used)
			idle[n++] = (struct ir_axis_ref){ (uint16_t)a, 1, mesh->axis[a].size };
	}
	return (struct axes){ n, idle };
}

/* Devices that would calculate the same may share the largest factors that nothing else cuts. */
static int shared_out(struct query *q, struct way *way, int n)
{
	const struct ir_axes *x = q->x;
	struct axes idle = idle_axes(q);
	for (int some = 0; some < MOST_IDLE && idle.n; some++) {
		int best = -1;
		for (int f = 0; f < x->nfactor; f++) {
			bool free = x->factor[f].kind == FACTOR_EACH && (best < 0 || x->factor[f].size > x->factor[best].size) && dividing(idle, x->factor[f].size).n == idle.n;
			for (int i = 0; i < n && free; i++)
				free = way[i].f != f;
			if (free && part_can(q->p, q->v->fn, q->o, x, f) && !along_can(q->p, q->v->fn, q->o, x, f))
				best = f;
		}
		if (best < 0)
			break;
		way[n++] = (struct way){ best, idle, 0 };
	}
	return n;
}

/* The least price of all ways, and that way. */
static struct axes *choose(struct query *q, struct cost *least)
{
	struct part *p = q->p;
	const struct ir_axes *x = q->x;
	const struct ir_op *o = q->o;
	const struct ir_fn *fn = q->v->fn;
	struct axes *best = ARENA_NEW(&p->a, struct axes, x->nfactor + 1), *try = ARENA_NEW(&p->a, struct axes, x->nfactor + 1);
	struct factor_axes *seen = ARENA_NEW(&p->a, struct factor_axes, x->nfactor + 1);
	struct way way[MOST + MOST_TURNED + MOST_IDLE], other[MOST_TURNED];
	int n = 0, nother = 0;
	q->mesh = 0;
	for (int i = 0; i < x->nin + x->nout && !q->mesh; i++) {
		ir_shard h = i < x->nin ? q->have[i] : q->v->want[o->out + (uint32_t)(i - x->nin)];
		if (h)
			q->mesh = p->m->shard.p[h].mesh;
	}
	for (int t = 0; t < x->nin + x->nout; t++) {
		ir_val v = t < x->nin ? ir_in(fn, o, (uint32_t)t) : o->out + (uint32_t)(t - x->nin);
		ir_shard h = part_summed(p, t < x->nin ? q->have[t] : q->v->want[v]);
		if (!h || p->m->shard.p[h].mesh != q->mesh)
			continue;
		double weight = (double)ir_vtype(p->m, fn, v)->bytes;
		factors_of(&p->a, p->m, x, t, h, seen);
		for (int f = 0; f < x->nfactor; f++) {
			struct axes l = seen[f].has ? dividing(seen[f].axes, x->factor[f].size) : (struct axes){0};
			if (!l.n || !part_can(p, fn, o, x, f))
				continue;
			int k = 0;
			while (k < n && !(way[k].f == f && axes_equal(way[k].l, l)))
				k++;
			if (k < n) {
				way[k].weight += weight;
				continue;
			}
			if (n == MOST) {                         /* the lightest gives way */
				for (int i = k = 0; i < n; i++)
					k = way[i].weight < way[k].weight ? i : k;
				if (way[k].weight >= weight)
					continue;
				n--;
				way[k] = way[n];
			}
			way[n++] = (struct way){ f, l, weight };
		}
		for (int d = 0; d < x->rank[t] && nother < MOST_TURNED; d++) {
			struct axes l = part_axes(p, h, d);
			if (!l.n || (as_it_lies(q, t, d, l, seen) && !cut_alone(q, t, d, axes_size(l))))
				continue;
			for (int skip = 0; skip < 2 && nother < MOST_TURNED; skip++) {
				struct way w[MOST_TURNED];
				int k = turned(q, t, d, l, seen, skip, w, MOST_TURNED - nother);
				for (int i = 0; i < k; i++)
					if (!listed(other, nother, w[i]))
						other[nother++] = w[i];
			}
		}
	}
	for (int i = 0; i < nother; i++)
		if (!listed(way, n, other[i]))
			way[n++] = other[i];
	if (q->ops && n)
		n = shared_out(q, way, n);
	*least = (struct cost){ 0, -1 };
	for (unsigned set = 0; set < 1u << n; set++) {
		memset(try, 0, sizeof *try * (size_t)x->nfactor);
		bool legal = true;
		for (int i = 0; i < n && legal; i++) {
			if (!(set >> i & 1))
				continue;
			legal = !try[way[i].f].n;
			for (int k = 0; k < i && legal; k++)
				for (int a = 0; set >> k & 1 && a < way[i].l.n; a++)
					for (int c = 0; c < way[k].l.n; c++)
						legal &= !ir_axes_overlap(way[i].l.p[a], way[k].l.p[c]);
			try[way[i].f] = way[i].l;
		}
		if (!legal || !part_contiguous(x, try) || !even(p->m, fn, o, x, try))
			continue;
		struct cost c = price(q, try);
		if (c.bytes >= 0 && p->rec)
			why_try(p, o, x, try, c.ns);
		if (c.bytes >= 0 && (least->bytes < 0 || less(c.ns, least->ns))) {
			*least = c;
			memcpy(best, try, sizeof *try * (size_t)x->nfactor);
		}
	}
	return best;
}

static struct query query(struct part *p, const struct values *v, const struct ir_op *o, const struct ir_axes *x, const ir_shard *have)
{
	return (struct query){ .p = p, .v = v, .o = o, .x = x, .have = have, .leaves = part_leaves(p, v->fn, o),
	                       .ops = multiplies(o) ? ir_cost_of(p->m, v->fn, o).flops : 0 };
}

struct axes *part_choose(struct part *p, const struct values *v, const struct ir_op *o, const struct ir_axes *x, const ir_shard *have, uint32_t *mesh)
{
	struct query q = query(p, v, o, x, have);
	struct cost least;
	struct axes *f = choose(&q, &least);
	if (least.bytes > 0) {                       /* else nothing can be better */
		q.ahead = true;
		f = choose(&q, &least);
	}
	*mesh = q.mesh;
	return f;
}

/* --- who reads a value ----------------------------------------------------------------------- */

struct values *part_values_new(struct part *p, const struct ir_fn *fn)
{
	size_t n = fn->val.n;
	struct values *v = ARENA_NEW(&p->a, struct values, 1);
	ir_shard *want = ARENA_NEW(&p->a, ir_shard, n), *end = ARENA_NEW(&p->a, ir_shard, n);
	for (ir_val x = 1; x < n; x++) {
		want[x] = shard_settled(&p->a, p->m, ir_shard_of(fn, x), ir_vtype(p->m, fn, x), false);
		end[x] = (ir_shard)PART_ANY;
	}
	*v = (struct values){ .fn = fn, .map = ARENA_NEW(&p->a, ir_val, n), .sh = ARENA_NEW(&p->a, ir_shard, n), .want = want, .end = end,
	                      .axes = ARENA_NEW(&p->a, struct ir_axes *, fn->op.n + 1), .row = ARENA_NEW(&p->a, bool, n) };
	return v;
}

const struct values *part_values(struct part *p, const struct ir_fn *fn)
{
	if (!p->values[fn->id])
		p->values[fn->id] = part_values_new(p, fn);
	return p->values[fn->id];
}

const struct values *part_body(struct part *p, const struct ir_loop *l)
{
	const struct ir_fn *fn = l->body;
	const struct values *v = part_values(p, fn);
	bool fresh = false;
	for (int k = 0; k < l->n; k++)
		if (ir_role_is_in(l->x[k].role)) {
			fresh |= !v->row[l->x[k].param];
			v->row[l->x[k].param] = true;
		}
	for (size_t i = 0; i < fn->op.n && fresh; i++) {
		const struct ir_op *o = &fn->op.p[i];
		bool each = o->kind == IR_optimization_barrier, seen = o->nin == 1 && (ir_info(o->kind)->flags & IR_VIEW || o->kind == IR_convert || o->kind == IR_sharding_constraint);
		for (uint32_t k = 0; k < o->nout && (each || seen); k++)
			v->row[o->out + k] = v->row[ir_in(fn, o, k)];
	}
	return v;
}

/* h without what rows are spread by: that cuts dimension d instead, if d is one (not 0) that it divides. */
static ir_shard whole_rows(struct part *p, const struct ir_type_info *t, ir_shard h, int d)
{
	struct axes rows = part_axes(p, h, 0);
	if (!d || !rows.n || t->dim[d] % (ir_shard_parts(p->m, h, d) * axes_size(rows)))
		return part_shifted(p, part_shifted(p, h, t->rank - 1, 1), t->rank, -1);
	struct ir_shard_info n = p->m->shard.p[h];
	struct ir_dim_shard *dim = ARENA_NEW(&p->a, struct ir_dim_shard, t->rank);
	memcpy(dim, n.dim, sizeof *dim * t->rank);
	struct axes l = axes_join(&p->a, (struct axes){ dim[d].naxis, dim[d].axis }, rows);
	dim[d] = (struct ir_dim_shard){ .naxis = l.n, .axis = (struct ir_axis_ref *)l.p };
	dim[0] = (struct ir_dim_shard){0};
	n.dim = dim;
	return ir_shard_add(p->m, &n);
}

/* Rows themselves are not spread over devices.  What they were spread by cuts another dimension, so that less travels before the loop, but perhaps a part
 * in each turn; or nothing: all rows are gathered before it, if there is room and it takes less than half, which is worth the memory. */
ir_shard part_stack_place(struct part *p, const struct values *body, ir_val row, ir_type t, ir_shard h, double turns, double *ns)
{
	const struct ir_type_info ti = *ir_type_of(p->m, t);
	ir_shard whole = whole_rows(p, &ti, h, 0), best = whole;
	*ns = part_travel(p, t, h, whole).ns + turns * part_readers(p, body, row, part_shifted(p, whole, ti.rank - 1, 1));
	bool room = part_local(p, t, whole) - part_local(p, t, h) <= p->spare;
	double all = *ns;
	for (int d = 1; d < ti.rank; d++) {
		ir_shard at = whole_rows(p, &ti, h, d);
		if (at == whole)
			continue;
		double s = part_travel(p, t, h, at).ns + turns * part_readers(p, body, row, part_shifted(p, at, ti.rank - 1, 1));
		if (best == whole ? !room || all >= s / 2 : less(s, *ns)) {
			best = at;
			*ns = s;
		}
	}
	return best;
}

/* What a loop reads of operand k that lies as h: of stacks a slice each turn. */
static double loop_reads(struct part *p, const struct values *v, const struct ir_op *o, uint32_t k, ir_shard h)
{
	const struct ir_loop l = ir_loop_view(&p->a, p->m, v->fn, o);
	const struct ir_loop_operand *q = &l.x[k];
	double turns = l.trip < 0 ? IR_TURNS : (double)l.trip;
	if (!q->param)
		return 0;
	const struct values *body = part_body(p, &l);
	ir_shard to = body->want[q->param];
	double ns;
	if (ir_role_is_in(q->role)) {
		part_stack_place(p, body, q->param, v->fn->val.p[q->v].type, part_summed(p, h), turns, &ns);
		return ns;
	}
	ns = part_travel(p, l.body->val.p[q->param].type, h, to).ns;
	if (q->role == ROLE_CARRY || part_sum(p, h))
		return ns;
	return MIN(turns * part_readers(p, body, q->param, h), ns + turns * part_readers(p, body, q->param, to));
}

/* Does o move elements of its operand k, which lies as h, along dimensions that are cut?  Then it waits, where they lie, for who reads it, and *ns is what those
 * take that come from other devices' parts. */
static bool moves_on(struct part *p, const struct ir_fn *fn, const struct ir_op *o, uint32_t k, ir_shard h, double *ns)
{
	const struct ir_type_info *t = ir_vtype(p->m, fn, ir_in(fn, o, k));
	bool any = false;
	*ns = 0;
	for (int d = 0, n; d < t->rank && o->nout == 1; d++) {
		struct axes l = part_axes(p, h, d);
		if (!l.n || !view_moves(p, fn, o, d))
			continue;
		int64_t part = t->dim[d] / axes_size(l), by = part;
		if (o->kind == IR_slice && ir_attrs(fn, o, AT_stride, &n)[d] == 1)
			by = ir_attrs(fn, o, AT_start, &n)[d];
		if (o->kind == IR_pad && !ir_attrs(fn, o, AT_interior, &n)[d])
			by = llabs(ir_attrs(fn, o, AT_low, &n)[d]);
		if (o->kind == IR_concatenate) {
			by = 0;
			for (uint32_t i = 0; i < k; i++)
				by += ir_vtype(p->m, fn, ir_in(fn, o, i))->dim[d];
		}
		struct plan_group g = part_spread(p, p->m->shard.p[h].mesh, l), two = g.hosts > 1 ? (struct plan_group){ 2, 2, 1, 0, g.beside } : (struct plan_group){ 2, 1, 2, 0 };
		if (by)
			*ns += plan_move_time(p->plan, COLL_permute, two, part_local(p, fn->val.p[ir_in(fn, o, k)].type, h) * (double)MIN(by, part) / (double)MAX(part, 1));
		any = true;
	}
	return any;
}

/* Nanoseconds of op number i, whose operand k lies as h; *to: where it brings that. */
static double reads(struct part *p, const struct values *v, uint32_t i, uint32_t k, ir_shard h, ir_shard *to)
{
	const struct ir_op *o = &v->fn->op.p[i];
	ir_type t = v->fn->val.p[ir_in(v->fn, o, k)].type;
	*to = part_summed(p, h);
	switch ((enum ir_kind)o->kind) {
	case IR_optimization_barrier: case IR_sharding_constraint:
		*to = v->want[o->out + k];
		return part_travel(p, t, h, *to).ns;
	case IR_loop:
		return loop_reads(p, v, o, k, h);
	case IR_manual: case IR_case: case IR_sharding_group: case IR_inspect_sharding:
		return 0;
	default:
		break;
	}
	double ns;
	if (moves_on(p, v->fn, o, k, *to, &ns))
		return ns;
	ir_shard *have = ARENA_NEW(&p->a, ir_shard, o->nin + 1);
	for (uint32_t j = 0; j < o->nin; j++) {
		ir_val y = ir_in(v->fn, o, j);
		have[j] = y == ir_in(v->fn, o, k) ? h : v->map[y] ? v->sh[y] : v->want[y];
	}
	const struct ir_axes *x = part_op_axes(p, v, o);
	struct query q = query(p, v, o, x, have);
	struct cost least;
	const struct axes *f = choose(&q, &least);
	*to = part_shard(p, x, (int)k, q.mesh, f);
	return least.ns;
}

double part_readers(struct part *p, const struct values *v, ir_val x, ir_shard h)
{
	enum { MOST_READERS = 8 };
	struct { uint32_t op, k; ir_shard to; } r[MOST_READERS];
	int n = 0;
	ir_type t = v->fn->val.p[x].type;
	double s = v->end[x] == (ir_shard)PART_ANY ? 0 : part_travel(p, t, h, v->end[x]).ns;
	for (uint32_t u = ir_use_first(v->fn, x); u; u = ir_use_next(v->fn, u)) {
		uint32_t op = ir_use_op(v->fn, u);
		if (n && r[n - 1].op == op)
			continue;
		if (n == MOST_READERS)               /* the first ones count */
			memmove(r, r + 1, sizeof *r * (size_t)--n);
		r[n].op = op;
		r[n++].k = ir_use_operand(v->fn, u);
	}
	for (int i = n; i-- > 0;) {                  /* as they come; one makes a sum that is still to be made, and a copy serves all that are near */
		bool again = false;
		s += reads(p, v, r[i].op, r[i].k, h, &r[i].to);
		for (int j = i + 1; j < n && !again; j++)
			again = r[j].to == r[i].to && (v->row[x] || is_near(v->fn, r[j].op, r[i].op));
		if (again)
			s -= part_travel(p, t, h, r[i].to).ns;
		if (part_sum(p, h))
			h = part_finished(p, h, r[i].to, ir_type_of(p->m, t)->rank);
	}
	return s;
}

/* How much longer those take that read x behind the op, if that has it brought from how it lies to h. */
static double readers_next(struct query *q, ir_val x, ir_shard have, ir_shard h)
{
	enum { MOST_NEXT = 4 };
	const struct values *v = q->v;
	struct { uint32_t op, k; } r[MOST_NEXT];
	uint32_t own = (uint32_t)(q->o - v->fn->op.p);
	ir_type t = v->fn->val.p[x].type;
	struct values with = *v;
	struct move *moved = ARENA_NEW(&q->p->a, struct move, v->nmoved + 1);
	int n = 0;
	double s = 0;
	for (uint32_t u = ir_use_first(v->fn, x); u; u = ir_use_next(v->fn, u)) {
		uint32_t op = ir_use_op(v->fn, u);
		if (op <= own || (!v->row[x] && !is_near(v->fn, own, op)) || (n && r[n - 1].op == op))
			continue;
		if (n == MOST_NEXT)
			memmove(r, r + 1, sizeof *r * (size_t)--n);
		r[n].op = op;
		r[n++].k = ir_use_operand(v->fn, u);
	}
	if (v->nmoved)
		memcpy(moved, v->moved, sizeof *moved * (size_t)v->nmoved);
	moved[with.nmoved++] = (struct move){ v->map[x], v->map[x], t, have, h, v->at };
	with.moved = moved;
	for (int i = 0; i < n; i++) {
		ir_shard to;
		s += reads(q->p, &with, r[i].op, r[i].k, have, &to) - reads(q->p, v, r[i].op, r[i].k, have, &to);
	}
	return s;
}

/* May x wait as parts of a sum?  If its function gives such parts, or they are read soon, or take no more than the sum would. */
static bool waits(struct part *p, const struct values *v, ir_val x, ir_shard h, ir_shard to)
{
	if (v->end[x] != (ir_shard)PART_ANY && part_sum(p, v->end[x]) == part_sum(p, h))
		return true;
	uint32_t first = UINT32_MAX, made = v->fn->val.p[x].def;
	for (uint32_t u = ir_use_first(v->fn, x); u; u = ir_use_next(v->fn, u))
		first = ir_use_op(v->fn, u);
	if (made != IR_PARAM && first != UINT32_MAX && first - made < PART_NEAR)
		return true;
	return part_local(p, v->fn->val.p[x].type, h) <= part_local(p, v->fn->val.p[x].type, to);
}

ir_shard part_place(struct part *p, const struct values *v, ir_val x, ir_shard h)
{
	ir_shard to = v->want[x], stay = h;
	ir_type t = v->fn->val.p[x].type;
	struct travel go = part_travel(p, t, h, to), sent = { 0, 0 };
	if (h == to || part_sum(p, to) || (!part_sum(p, h) && go.bytes == 0))
		return to;
	if (part_sum(p, h) && !waits(p, v, x, h, to)) {
		stay = part_summed(p, h);
		sent = part_travel(p, t, h, stay);
	}
	return !less(go.ns + part_readers(p, v, x, to), sent.ns + part_readers(p, v, x, stay)) ? stay : to;
}
