/* Shardings flow along the factors of operations, forward and backward, until none changes (Shardy's propagation: the order of its
 * strategies, and what each of them may do, are those of its documentation and of what it prints).
 *
 * Nothing is rewritten.  Values that are one place in the source program share a *cell*, which has the sharding: what a loop carries
 * from turn to turn, what goes into and out of a manual computation.  A *link* is an operation, or such an edge, with its factors and the
 * cells of its tensors. */
#include "impl.h"

#include <stdlib.h>

enum { NOWHERE = 0, FORWARD = 1, BACKWARD = 2, BOTH = 3 };
/* When a link's factors begin to propagate, and where to. */
enum link_class { LINK_THRU, LINK_SLICE, LINK_OTHER, LINK_BROADCAST };
enum { PRIORITIES = 5 };

struct cell { ir_shard sh; int rank; int64_t count; uint32_t def, origin; ARR(uint32_t) use; };
/* manual: axes of the mesh that lie before all others in the cell's dimensions and are not seen here. */
struct tensor { uint32_t cell; uint64_t manual; };
struct member { int64_t group; struct tensor t; const int64_t *dim; ir_loc loc; };
struct link { const struct ir_axes *x; struct tensor *t; uint8_t cls; bool elem, single; const struct ir_op *op; };

struct prop {
	struct ir_module *m;
	struct arena *a, *tmp;           /* tmp: of one step */
	ARR(struct cell) cell;           /* cell.p[0]: none */
	ARR(struct link) link;           /* link.p[0]: none */
	struct tensor **of;              /* [function][value] */
	ARR(struct member) member;       /* of sharding groups */
	ARR(uint32_t) stack;
	uint8_t *on;                     /* per link: is it on the stack? */
	int priority;
	bool aggressive;
	struct spmd_record *rec;         /* NULL: nobody asks why */
};

/* --- cells and links ---------------------------------------------------------------- */

static uint32_t cell_new(struct prop *p, int rank, int64_t count, ir_shard h)
{
	struct cell c = { .sh = h, .rank = rank, .count = count };
	arr_push(&p->cell, c);
	return (uint32_t)p->cell.n - 1;
}

/* What cell c is given is said by o (NULL: main's border). */
static void given(struct prop *p, uint32_t c, enum spmd_source by, const struct ir_op *o, uint32_t index)
{
	if (p->rec)
		p->cell.p[c].origin = record_given(p->rec, p->m, p->cell.p[c].sh, by, o, index);
}

static struct tensor *tensor_of(struct prop *p, const struct ir_fn *fn, ir_val v) { return &p->of[fn->id][v]; }

static struct tensor own(struct prop *p, const struct ir_fn *fn, ir_val v)
{
	const struct ir_type_info *t = ir_vtype(p->m, fn, v);
	struct tensor r = { .cell = cell_new(p, t->rank, t->count, ir_shard_of(fn, v)) };
	given(p, r.cell, SPMD_GIVEN, ir_def(fn, v), 0);
	return r;
}

/* v as an operand.  What is made of one number lies everywhere as it is wanted: its readers say nothing to each other. */
static struct tensor used(struct prop *p, const struct ir_fn *fn, ir_val v)
{
	const struct ir_type_info *t = ir_vtype(p->m, fn, v);
	if (!ir_splat(p->m, fn, v) || ir_shard_of(fn, v))
		return *tensor_of(p, fn, v);
	return (struct tensor){ .cell = cell_new(p, t->rank, t->count, 0) };
}

static void link_new(struct prop *p, const struct ir_axes *x, struct tensor *t, enum link_class cls, bool elem, bool single, const struct ir_op *op)
{
	uint32_t id = (uint32_t)p->link.n;
	struct link l = { x, t, (uint8_t)cls, elem, single, op };
	arr_push(&p->link, l);
	for (int i = 0; i < x->nin + x->nout; i++) {
		struct cell *c = &p->cell.p[t[i].cell];
		if (i >= x->nin && !c->def)
			c->def = id;
		else if (!c->use.n || c->use.p[c->use.n - 1] != id)
			arr_push(&c->use, id);
	}
}

/* nin tensors become one: all are of shape dim, the sources behind in_more, and the target behind out_more, dimensions of size *more that are
 * theirs alone. */
static struct ir_axes *identity(struct prop *p, int nin, int rank, const int64_t *dim, int in_more, int out_more, const int64_t *more)
{
	struct ir_axes *x = ARENA_NEW(p->a, struct ir_axes, 1);
	x->nin = nin;
	x->nout = 1;
	x->nfactor = rank + in_more + out_more;
	x->factor = ARENA_NEW(p->a, struct ir_factor, x->nfactor + 1);
	x->rank = ARENA_NEW(p->a, int, nin + 1);
	x->dim = ARENA_NEW(p->a, struct ir_axes_dim *, nin + 1);
	int *id = ARENA_NEW(p->a, int, x->nfactor + 1);
	for (int f = 0; f < x->nfactor; f++) {
		id[f] = f;
		x->factor[f] = f < rank ? (struct ir_factor){ dim[f], FACTOR_EACH, false } : (struct ir_factor){ *more, FACTOR_WHOLE, true };
	}
	for (int t = 0; t <= nin; t++) {
		int extra = t < nin ? in_more : out_more;
		x->rank[t] = rank + extra;
		x->dim[t] = ARENA_NEW(p->a, struct ir_axes_dim, x->rank[t] + 1);
		for (int d = 0; d < x->rank[t]; d++)
			x->dim[t][d] = (struct ir_axes_dim){ 1, &id[d < extra ? rank + d : d - extra] };
	}
	return x;
}

/* o: what the edge is of; NULL: a border of main, or a group of shardings. */
static void edge(struct prop *p, int nin, const struct tensor *src, struct tensor to, const struct ir_type_info *t, const struct ir_op *o)
{
	struct tensor *all = ARENA_NEW(p->a, struct tensor, nin + 1);
	memcpy(all, src, sizeof *all * (size_t)nin);
	all[nin] = to;
	link_new(p, identity(p, nin, t->rank, t->dim, 0, 0, NULL), all, LINK_THRU, false, true, o);
}

/* What loop o takes in a turn from a stack of type t, or puts there. */
static void turn_of_stack(struct prop *p, struct tensor from, struct tensor to, const struct ir_type_info *t, bool taken, const struct ir_op *o)
{
	struct tensor *two = ARENA_NEW(p->a, struct tensor, 2);
	two[0] = from;
	two[1] = to;
	link_new(p, identity(p, 1, t->rank - 1, t->dim + 1, taken, !taken, t->dim), two, LINK_SLICE, false, true, o);
}

static void walk(struct prop *p, const struct ir_fn *fn);

/* A counted loop, or one with a condition: each operand is one cell inside and, if it is carried or made, as a result. */
static void loop(struct prop *p, const struct ir_fn *fn, const struct ir_op *o)
{
	struct ir_loop l = ir_loop_view(p->a, p->m, fn, o);
	*tensor_of(p, l.body, IR_LOOP_TURN) = own(p, l.body, IR_LOOP_TURN);
	for (int k = 0; k < l.n; k++) {
		const struct ir_loop_operand *q = &l.x[k];
		if (ir_role_is_in(q->role)) {
			*tensor_of(p, l.body, q->param) = own(p, l.body, q->param);
			continue;
		}
		struct tensor c = own(p, fn, q->result >= 0 ? o->out + (uint32_t)q->result : q->v);
		if (q->result < 0)
			p->cell.p[c.cell].sh = p->cell.p[c.cell].origin = 0;
		if (q->param)
			*tensor_of(p, l.body, q->param) = c;
		if (l.cond && q->asked)
			*tensor_of(p, l.cond, q->asked) = c;
		if (q->result >= 0)
			*tensor_of(p, fn, o->out + (uint32_t)q->result) = c;
	}
	walk(p, l.body);
	if (l.cond)
		walk(p, l.cond);
	for (int k = 0; k < l.n; k++) {
		const struct ir_loop_operand *q = &l.x[k];
		const struct ir_type_info *t = ir_vtype(p->m, fn, q->v);
		struct tensor out = used(p, fn, q->v), c;
		if (t->dtype == DT_token)
			continue;
		if (ir_role_is_in(q->role)) {
			turn_of_stack(p, out, *tensor_of(p, l.body, q->param), t, true, o);
			continue;
		}
		c = q->result >= 0 ? *tensor_of(p, fn, o->out + (uint32_t)q->result) : *tensor_of(p, l.body, q->param);
		struct tensor src[2] = { out, q->role == ROLE_CARRY ? *tensor_of(p, l.body, l.body->result.p[q->result]) : out };
		edge(p, q->role == ROLE_CARRY ? 2 : 1, src, c, t, o);
		if (ir_role_is_out(q->role))
			turn_of_stack(p, *tensor_of(p, l.body, l.body->result.p[q->result]), c, t, false, o);
	}
}

static void branches(struct prop *p, const struct ir_fn *fn, const struct ir_op *o)
{
	int n;
	const int64_t *f = ir_attrs(fn, o, AT_branch, &n);
	for (int k = 0; k < n; k++) {
		const struct ir_fn *b = ir_fn_of(p->m, (ir_fnid)f[k]);
		for (uint32_t i = 0; i < b->nparam; i++)
			*tensor_of(p, b, i + 1) = *tensor_of(p, fn, ir_in(fn, o, i + 1));
		walk(p, b);
	}
	for (uint32_t r = 0; r < o->nout; r++) {
		struct tensor *src = ARENA_NEW(p->a, struct tensor, n), c = own(p, fn, o->out + r);
		for (int k = 0; k < n; k++) {
			const struct ir_fn *b = ir_fn_of(p->m, (ir_fnid)f[k]);
			src[k] = *tensor_of(p, b, b->result.p[r]);
		}
		*tensor_of(p, fn, o->out + r) = c;
		if (ir_vtype(p->m, fn, o->out + r)->dtype != DT_token)
			edge(p, n, src, c, ir_vtype(p->m, fn, o->out + r), o);
	}
}

/* Inside, the manual axes are not seen; a dimension's come before all others in it.  Those that an operand or a result does not name
 * may not be added to it. */
static ir_shard with_manual(struct prop *p, ir_shard h, const int64_t *axes, int n)
{
	struct ir_shard_info i = p->m->shard.p[h];
	const struct ir_mesh *mesh = &p->m->mesh.p[i.mesh];
	struct ir_axis_ref *repl = ARENA_NEW(p->a, struct ir_axis_ref, i.nrepl + n);
	int nrepl = 0;
	if (i.nrepl)
		memcpy(repl, i.repl, sizeof *repl * (size_t)(nrepl = i.nrepl));
	for (int k = 0; k < n; k++) {
		bool named = false;
		for (int d = 0; d < i.rank; d++)
			for (int q = 0; q < i.dim[d].naxis; q++)
				named |= i.dim[d].axis[q].axis == axes[k];
		for (int q = 0; q < i.nrepl; q++)
			named |= i.repl[q].axis == axes[k];
		for (int q = 0; q < i.npart; q++)
			named |= i.part[q].axis == axes[k];
		if (!named)
			repl[nrepl++] = (struct ir_axis_ref){ (uint16_t)axes[k], 1, mesh->axis[axes[k]].size };
	}
	i.nrepl = nrepl;
	i.repl = repl;
	return ir_shard_add(p->m, &i);
}

static void manual(struct prop *p, const struct ir_fn *fn, const struct ir_op *o)
{
	int n, na;
	const int64_t *in = ir_attrs(fn, o, AT_in, &n), *axes = ir_attrs(fn, o, AT_axes, &na), *out = ir_attrs(fn, o, AT_out, &n);
	const struct ir_fn *b = ir_fn_of(p->m, (ir_fnid)ir_attr(fn, o, AT_body));
	uint64_t mask = 0;
	for (int k = 0; k < na; k++)
		mask |= 1ull << axes[k];
	for (uint32_t i = 0; i < o->nin; i++) {
		const struct ir_type_info *t = ir_vtype(p->m, fn, ir_in(fn, o, i));
		struct tensor c = { cell_new(p, t->rank, t->count, with_manual(p, (ir_shard)in[i], axes, na)), 0 };
		given(p, c.cell, SPMD_IN, o, i);
		if (t->dtype != DT_token)
			edge(p, 1, tensor_of(p, fn, ir_in(fn, o, i)), c, t, o);
		c.manual = mask;
		*tensor_of(p, b, i + 1) = c;
	}
	walk(p, b);
	for (uint32_t r = 0; r < o->nout; r++) {
		const struct ir_type_info *t = ir_vtype(p->m, fn, o->out + r), *local = ir_vtype(p->m, b, b->result.p[r]);
		struct tensor c = { cell_new(p, t->rank, t->count, with_manual(p, (ir_shard)out[r], axes, na)), 0 }, inner = { c.cell, mask };
		given(p, c.cell, SPMD_OUT, o, r);
		*tensor_of(p, fn, o->out + r) = c;
		if (t->dtype != DT_token)
			edge(p, 1, tensor_of(p, b, b->result.p[r]), inner, local, o);
	}
}

static enum link_class class_of(enum ir_kind k)
{
	switch (k) {
	case IR_broadcast: return LINK_BROADCAST;
	case IR_dynamic_slice: case IR_dynamic_update_slice: return LINK_SLICE;
	case IR_reshape: case IR_transpose: case IR_sharding_constraint: case IR_optimization_barrier: case IR_reduce_precision: return LINK_THRU;
	default: return ir_is_elem(k) ? LINK_THRU : LINK_OTHER;
	}
}

static void walk(struct prop *p, const struct ir_fn *fn)
{
	for (uint32_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		switch ((enum ir_kind)o->kind) {
		case IR_loop: loop(p, fn, o); continue;
		case IR_case: branches(p, fn, o); continue;
		case IR_manual: manual(p, fn, o); continue;
		case IR_sharding_group: {
			struct member g = { ir_attr(fn, o, AT_id), *tensor_of(p, fn, ir_in(fn, o, 0)), ir_vtype(p->m, fn, ir_in(fn, o, 0))->dim, o->loc };
			arr_push(&p->member, g);
			continue;
		}
		default: break;
		}
		bool single = true;      /* no operand but scalars has another reader */
		struct tensor *t = ARENA_NEW(p->a, struct tensor, o->nin + o->nout + 1);
		for (uint32_t k = 0; k < o->nin; k++) {
			ir_val v = ir_in(fn, o, k);
			t[k] = used(p, fn, v);
			single &= ir_vtype(p->m, fn, v)->rank == 0 || fn->val.p[v].nuse == 1;
		}
		for (uint32_t k = 0; k < o->nout; k++) {
			t[o->nin + k] = *tensor_of(p, fn, o->out + k) = own(p, fn, o->out + k);
			if (o->kind == IR_sharding_constraint) {
				p->cell.p[t[o->nin].cell].sh = (ir_shard)ir_attr(fn, o, AT_sharding);
				given(p, t[o->nin].cell, SPMD_CONSTRAINT, o, 0);
			}
		}
		const struct ir_axes *x = ir_axes_of(p->a, p->m, fn, o);
		if (o->kind == IR_optimization_barrier) {
			for (uint32_t k = 0; k < o->nout; k++)
				if (ir_vtype(p->m, fn, o->out + k)->dtype != DT_token)
					edge(p, 1, &t[k], t[o->nin + k], ir_vtype(p->m, fn, o->out + k), o);
			continue;
		}
		bool links = false;
		for (int f = 0; f < x->nfactor && !links; f++) {
			int n = 0;
			for (int k = 0; k < x->nin + x->nout; k++)
				n += ir_axes_find(x, k, f) >= 0;
			links = n > 1;
		}
		if (links)
			link_new(p, x, t, class_of((enum ir_kind)o->kind), ir_is_elem((enum ir_kind)o->kind), single, o);
	}
}

/* --- one step --------------------------------------------------------------------------- */

static int direction(const struct prop *p, const struct link *l, int f)
{
	int d = NOWHERE;
	if (l->x->factor[f].blocked)
		return NOWHERE;
	if ((l->cls == LINK_THRU || l->cls == LINK_SLICE) && (p->priority >= 1 || l->single))
		d |= l->cls == LINK_THRU ? BOTH : FORWARD;
	if (p->priority >= 2 && (l->x->factor[f].kind == FACTOR_EACH || p->priority >= 3))
		d |= l->cls == LINK_BROADCAST ? BACKWARD : BOTH;
	return p->priority >= 4 ? BOTH : d;
}

/* The sharding of a tensor as its op sees it. */
static ir_shard seen(struct prop *p, struct tensor t)
{
	ir_shard h = p->cell.p[t.cell].sh;
	if (!h || !t.manual)
		return h;
	struct ir_shard_info n = p->m->shard.p[h];
	struct ir_dim_shard *dim = ARENA_NEW(p->tmp, struct ir_dim_shard, n.rank + 1);
	for (int d = 0; d < n.rank; d++) {
		dim[d] = n.dim[d];
		while (dim[d].naxis && t.manual >> dim[d].axis->axis & 1) {
			dim[d].axis++;
			dim[d].naxis--;
		}
	}
	n.dim = dim;
	return ir_shard_add(p->m, &n);
}

/* And back. */
static ir_shard unseen(struct prop *p, struct tensor t, ir_shard h)
{
	if (!t.manual)
		return h;
	struct ir_shard_info n = p->m->shard.p[h];
	const struct ir_shard_info *whole = &p->m->shard.p[p->cell.p[t.cell].sh];
	struct ir_dim_shard *dim = ARENA_NEW(p->tmp, struct ir_dim_shard, n.rank + 1);
	for (int d = 0; d < n.rank; d++) {
		int k = 0;
		dim[d] = n.dim[d];
		while (k < whole->dim[d].naxis && t.manual >> whole->dim[d].axis[k].axis & 1)
			k++;
		struct axes l = axes_join(p->tmp, (struct axes){ k, whole->dim[d].axis }, (struct axes){ n.dim[d].naxis, n.dim[d].axis });
		dim[d].naxis = l.n;
		dim[d].axis = (struct ir_axis_ref *)l.p;
	}
	n.dim = dim;
	return ir_shard_add(p->m, &n);
}

/* What a step works on: the link's tensors on its factors. */
struct step {
	struct prop *p;
	const struct link *l;
	int n, nf;
	uint32_t mesh;
	ir_shard *sh;                    /* as seen */
	struct axes *taken;              /* of each tensor: axes that none of its factors may have */
	struct factor_axes *f;           /* [tensor * nf + factor] */
};
static struct factor_axes *at(const struct step *s, int t, int f) { return &s->f[t * s->nf + f]; }

/* Add to *all what l goes on with, *grows: whether it still may; keep what both agree on. */
static void agree(struct arena *a, struct axes *all, struct axes l, bool *grows, bool may)
{
	struct ir_axis_ref *p = ARENA_NEW(a, struct ir_axis_ref, all->n + l.n);
	int n = 0;
	bool more = *grows && may;
	for (int i = 0; i < MAX(all->n, l.n); i++) {
		if (i >= l.n) {                            /* the rest stays */
			p[n++] = all->p[i];
			continue;
		}
		if (i >= all->n) {
			if (!more)
				break;
			p[n++] = l.p[i];
			continue;
		}
		struct ir_axis_ref o = all->p[i], w = l.p[i];
		if (ref_equal(o, w)) {
			p[n++] = o;
			continue;
		}
		if (ref_begins(w, o)) {
			if (i == l.n - 1) {
				p[n++] = o;
				continue;
			}
			p[n++] = w;
		} else if (ref_begins(o, w)) {
			if (more && i == all->n - 1) {
				p[n++] = w;
				continue;
			}
			p[n++] = o;
		}
		*grows = false;
		break;
	}
	*all = (struct axes){ n, p };
}

static struct axes compatible(const struct step *s, int f, int dir)
{
	struct axes all = {0};
	bool grows = true;
	if (dir == NOWHERE)
		return all;
	int nin = s->l->x->nin, first = dir == BACKWARD ? nin : 0;
	for (int i = 0; i < s->n; i++) {
		int t = (first + i) % s->n;
		bool source = t < nin ? dir & FORWARD : dir & BACKWARD;
		if (at(s, t, f)->has)
			agree(s->p->tmp, &all, at(s, t, f)->axes, &grows, source);
	}
	return all;
}

/* The part of l that factor f of tensor t can take: it has it already, or is open and of a size that divides.  If the tensor does not
 * have the factor, all of it. */
static struct axes fits(const struct step *s, int t, int f, struct axes l)
{
	const struct factor_axes *have = at(s, t, f);
	if (!have->has)
		return l;
	struct axes r = axes_without(s->p->tmp, l, s->taken[t]);
	struct ir_axis_ref *p = ARENA_NEW(s->p->tmp, struct ir_axis_ref, r.n + 1);
	int64_t size = 1, whole = s->l->x->factor[f].size;
	int n = 0;
	for (int i = 0; i < r.n; i++) {
		struct ir_axis_ref x = r.p[i], old = i < have->axes.n ? have->axes.p[i] : (struct ir_axis_ref){ 0, 1, 1 };
		if (i < have->axes.n && (ref_equal(x, old) || ref_begins(x, old))) {
			p[n++] = x;
			size *= x.size;
			continue;
		}
		bool goes_on = i >= have->axes.n || (i == have->axes.n - 1 && ref_begins(old, x));
		if (goes_on && !have->closed && !have->over.n) {
			if (have->minor) {
				p[n++] = x;
				size *= x.size;
				continue;
			}
			int64_t g = whole % size ? 1 : gcd_of(whole / size, x.size);
			if (g == x.size) {
				p[n++] = x;
				size *= x.size;
				continue;
			}
			if (g > 1 && !(i < have->axes.n && g < old.size)) {
				x.size = g;
				p[n++] = x;
				break;
			}
		}
		if (i < have->axes.n && ref_begins(old, x))
			p[n++] = old;
		break;
	}
	return (struct axes){ n, p };
}

/* Without what other factors of the tensor have. */
static struct axes apart(const struct step *s, int t, int f, struct axes l)
{
	for (int g = 0; g < s->nf; g++)
		if (g != f && at(s, t, g)->has) {
			l = axes_without(s->p->tmp, l, at(s, t, g)->axes);
			l = axes_without(s->p->tmp, l, at(s, t, g)->over);
		}
	return l;
}

static bool longer(struct axes l, const struct factor_axes *f)
{
	return f->has && !axes_equal(l, f->axes) && axes_begin(f->axes, l);
}

/* Only what no tensor of the op objects to. */
static bool basic(struct step *s)
{
	bool any = false;
	for (int f = 0; f < s->nf; f++) {
		int dir = direction(s->p, s->l, f);
		struct axes l = compatible(s, f, dir);
		for (int t = 0; l.n && t < s->n; t++)
			l = apart(s, t, f, fits(s, t, f, l));
		for (int t = 0; l.n && t < s->n; t++)
			if (longer(l, at(s, t, f)) && (t < s->l->x->nin ? dir & BACKWARD : dir & FORWARD)) {
				at(s, t, f)->axes = l;
				any = true;
			}
	}
	return any;
}

/* Each factor's axes as if it were alone; then each tensor takes what it can, the factor of the largest source first. */
static bool aggressive(struct step *s)
{
	struct want { struct axes l; int f, dir, src; int64_t count; } *w = ARENA_NEW(s->p->tmp, struct want, s->nf + 1);
	int n = 0, nin = s->l->x->nin;
	bool any = false;
	for (int f = 0; f < s->nf; f++) {
		struct want v = { .f = f, .dir = direction(s->p, s->l, f), .count = -1 };
		v.l = compatible(s, f, v.dir);
		if (!v.l.n)
			continue;
		for (int t = 0; t < s->n; t++)
			if (at(s, t, f)->has && axes_begin(v.l, at(s, t, f)->axes) && s->p->cell.p[s->l->t[t].cell].count > v.count) {
				v.count = s->p->cell.p[s->l->t[t].cell].count;
				v.src = t;
			}
		int i = n++;
		for (; i > 0; i--) {
			const struct want *u = &w[i - 1];
			int64_t a = axes_size(v.l), b = axes_size(u->l);
			bool before = v.count != u->count ? v.count > u->count : s->l->elem && a != b ? a > b : v.src < u->src;
			if (!before)
				break;
			w[i] = w[i - 1];
		}
		w[i] = v;
	}
	for (int i = 0; i < s->n; i++) {
		int t = (nin + i) % s->n;             /* results first */
		for (int k = 0; k < n; k++) {
			if (!(t < nin ? w[k].dir & BACKWARD : w[k].dir & FORWARD))
				continue;
			struct axes l = apart(s, t, w[k].f, fits(s, t, w[k].f, w[k].l));
			if (s->l->elem && t < nin) {
				struct axes r = at(s, nin, w[k].f)->axes;
				if (axes_begin(r, l))
					l = r;
			}
			if (longer(l, at(s, t, w[k].f))) {
				at(s, t, w[k].f)->axes = l;
				any = true;
			}
		}
	}
	return any;
}

static void push(struct prop *p, uint32_t l, uint32_t but)
{
	if (!l || l == but || p->on[l])
		return;
	p->on[l] = 1;
	arr_push(&p->stack, l);
}

/* Axes that tensor t of the step has now, in h, come from one that had them in the same factors. */
static void grown(const struct step *s, int t, ir_shard h)
{
	const struct ir_axes *x = s->l->x;
	struct spmd_record *rec = s->p->rec;
	uint32_t *newest = &s->p->cell.p[s->l->t[t].cell].origin;
	const struct ir_shard_info *now = &s->p->m->shard.p[h];
	for (int d = 0; d < now->rank; d++)
		for (int i = 0; i < now->dim[d].naxis; i++) {
			struct ir_axis_ref r = now->dim[d].axis[i];
			uint32_t from = 0;
			bool had = record_cut_by(s->p->m, s->sh[t], d, r);
			for (int u = 0; u < s->n && !had && !from; u++)
				for (int k = 0; k < x->dim[t][d].n && !from && u != t; k++) {
					int e = ir_axes_find(x, u, x->dim[t][d].factor[k]);
					if (e >= 0)
						from = spmd_origin_of(rec, s->p->cell.p[s->l->t[u].cell].origin, e, r);
				}
			if (!had)
				*newest = record_flow(rec, *newest, d, r, s->l->op, from);
		}
}

static void step(struct prop *p, uint32_t id)
{
	arena_reset(p->tmp);
	const struct link *l = &p->link.p[id];
	struct step s = { .p = p, .l = l, .n = l->x->nin + l->x->nout, .nf = l->x->nfactor };
	bool any = false;
	for (int t = 0; t < s.n; t++) {
		ir_shard h = p->cell.p[l->t[t].cell].sh;
		if (!h)
			continue;
		const struct ir_mesh *mesh = &p->m->mesh.p[p->m->shard.p[h].mesh];
		if (!mesh->naxis && !mesh->id)             /* the empty mesh fits all */
			continue;
		if (!mesh->naxis || (any && s.mesh != p->m->shard.p[h].mesh))
			return;
		s.mesh = p->m->shard.p[h].mesh;
		any = true;
	}
	if (!any)
		return;
	s.sh = ARENA_NEW(p->tmp, ir_shard, s.n);
	s.taken = ARENA_NEW(p->tmp, struct axes, s.n);
	s.f = ARENA_NEW(p->tmp, struct factor_axes, s.n * s.nf + 1);
	for (int t = 0; t < s.n; t++) {
		s.sh[t] = seen(p, l->t[t]);
		s.taken[t] = factors_of(p->tmp, p->m, l->x, t, s.sh[t], at(&s, t, 0));
	}
	if (!(p->aggressive ? aggressive(&s) : basic(&s)))
		return;
	for (int i = 0; i < s.n; i++) {
		int t = (l->x->nin + i) % s.n;
		struct cell *c = &p->cell.p[l->t[t].cell];
		ir_shard h = factors_to(p->tmp, p->m, l->x, t, s.sh[t], s.mesh, at(&s, t, 0));
		if (h == s.sh[t])
			continue;
		if (p->rec)
			grown(&s, t, h);
		c->sh = unseen(p, l->t[t], h);
		for (size_t u = 0; u < c->use.n; u++)
			push(p, c->use.p[c->use.n - 1 - u], id);
		push(p, c->def, id);
	}
}

/* Until no link changes anything.  Those of the results, from `results` on, come first and last: they only pass on. */
static void to_fixpoint(struct prop *p, size_t results)
{
	for (size_t i = results; i < p->link.n; i++)
		step(p, (uint32_t)i);
	for (size_t i = results; i-- > 1;)
		push(p, (uint32_t)i, 0);
	while (p->stack.n) {
		uint32_t l = p->stack.p[--p->stack.n];
		p->on[l] = 0;
		if (l < results)
			step(p, l);
	}
	for (size_t i = results; i < p->link.n; i++)
		step(p, (uint32_t)i);
}

/* --- what is given ------------------------------------------------------------------------ */

static bool closed(const struct ir_module *m, ir_shard h)
{
	const struct ir_shard_info *s = &m->shard.p[h];
	for (int d = 0; d < s->rank; d++)
		if (s->dim[d].open)
			return false;
	return true;
}

/* What a reader of a value says of it: a constraint, or a manual computation that takes it. */
static ir_shard said(const struct ir_fn *fn, uint32_t use)
{
	const struct ir_op *o = &fn->op.p[ir_use_op(fn, use)];
	int n;
	if (o->kind == IR_sharding_constraint)
		return (ir_shard)ir_attr(fn, o, AT_sharding);
	return o->kind == IR_manual ? (ir_shard)ir_attrs(fn, o, AT_in, &n)[ir_use_operand(fn, use)] : 0;
}

/* A closed constraint, with no other one beside it, is also what its operand is, unless that has come through a loop, a case or a barrier:
 * closedness does not propagate. */
static void constrain(struct prop *p, const struct ir_fn *fn)
{
	for (ir_val v = 1; v < fn->val.n; v++) {
		const struct ir_op *made = ir_def(fn, v);
		ir_shard h = 0;
		uint32_t by = 0;
		bool one = !made || (made->kind != IR_loop && made->kind != IR_case && made->kind != IR_optimization_barrier);
		for (uint32_t u = ir_use_first(fn, v); u; u = ir_use_next(fn, u)) {
			ir_shard s = said(fn, u);
			one &= !s || !h || s == h;
			h = s ? s : h;
			by = s ? u : by;
		}
		struct tensor *t = tensor_of(p, fn, v);
		if (h && one && closed(p->m, h) && t->cell && !t->manual && !p->cell.p[t->cell].sh) {
			const struct ir_op *o = &fn->op.p[ir_use_op(fn, by)];
			p->cell.p[t->cell].sh = h;
			given(p, t->cell, o->kind == IR_manual ? SPMD_IN : SPMD_CONSTRAINT, o, ir_use_operand(fn, by));
		}
	}
}

/* A function that two ops hold becomes two, since its values may lie otherwise in each. */
static void part_company(struct ir_module *m, struct ir_fn *fn, bool *held)
{
	static const enum ir_at regions[] = { AT_body, AT_cond, AT_branch };
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		if (o->kind != IR_loop && o->kind != IR_case && o->kind != IR_manual)
			continue;
		for (size_t k = 0; k < NELEM(regions); k++) {
			if (!ir_has_attr((enum ir_kind)o->kind, regions[k]))
				continue;
			int n = 1;
			int64_t one = regions[k] == AT_branch ? 0 : ir_attr(fn, o, regions[k]);
			const int64_t *f = regions[k] == AT_branch ? ir_attrs(fn, o, AT_branch, &n) : &one;
			for (int j = 0; j < n; j++) {
				ir_fnid id = (ir_fnid)f[j];
				if (!id)
					continue;
				if (held[id]) {
					struct ir_fn *copy = ir_rebuild(m, ir_fn_of(m, id));
					if (regions[k] == AT_branch)
						fn->attr.p[f - fn->attr.p + j] = copy->id;
					else
						ir_attr_set(fn, &fn->op.p[i], regions[k], copy->id);
					part_company(m, copy, held);
					continue;
				}
				held[id] = true;
				part_company(m, m->fn.p[id], held);
			}
		}
	}
}

/* Members of a group become one cell, and so do groups that have a member in common.  Those that are given different shardings keep them
 * and propagate to each other. */
static struct err *groups(struct prop *p, const ir_fnid *fn, int nfn)
{
	for (size_t i = 1; i < p->member.n; i++) {
		struct member *g = &p->member.p[i], *f = g;
		for (size_t k = 0; k < i && f == g; k++)
			f = p->member.p[k].group == g->group ? &p->member.p[k] : g;
		uint32_t from = g->t.cell, to = f->t.cell;
		struct cell *x = &p->cell.p[from], *y = &p->cell.p[to];
		if (from == to)
			continue;
		const struct ir_loc_info *l = &p->m->loc.p[g->loc];
		if (x->rank != y->rank || g->t.manual != f->t.manual) {
			struct err *e = ERR(UNIMPLEMENTED, "a sharding group of values of different %s", x->rank != y->rank ? "ranks" : "manual computations");
			return l->file ? err_wrap(e, "%s:%d", ir_text(p->m, l->file), l->line) : e;
		}
		if (x->sh && y->sh && x->sh != y->sh) {
			struct ir_type_info t = { .rank = (uint8_t)x->rank, .dim = g->dim };
			edge(p, 1, &f->t, g->t, &t, NULL);
			continue;
		}
		if (!y->sh) {
			y->sh = x->sh;
			y->origin = x->origin;
		}
		for (size_t u = 0; u < x->use.n; u++)
			arr_push(&y->use, x->use.p[u]);
		if (x->def)
			arr_push(&y->use, x->def);
		for (size_t k = 1; k < p->link.n; k++)
			for (int t = 0; t < p->link.p[k].x->nin + p->link.p[k].x->nout; t++)
				if (p->link.p[k].t[t].cell == from)
					p->link.p[k].t[t].cell = to;
		for (int k = 0; k < nfn; k++)
			for (ir_val v = 1; v < ir_fn_of(p->m, fn[k])->val.n; v++)
				if (p->of[fn[k]][v].cell == from)
					p->of[fn[k]][v].cell = to;
		for (size_t k = 0; k < p->member.n; k++)
			if (p->member.p[k].t.cell == from)
				p->member.p[k].t.cell = to;
	}
	return NULL;
}

/* Each value's origins, for the record; m->res has cells still. */
static void tell(struct prop *p, const ir_fnid *fn, int nfn)
{
	struct spmd_record *r = p->rec;
	size_t nres = ir_main(p->m)->result.n;
	r->of = ARENA_NEW(&r->a, uint32_t *, p->m->fn.n);
	r->result = ARENA_NEW(&r->a, uint32_t, nres + 1);
	for (int i = 0; i < nfn; i++) {
		size_t n = ir_fn_of(p->m, fn[i])->val.n;
		r->of[fn[i]] = ARENA_NEW(&r->a, uint32_t, n);
		for (ir_val v = 1; v < n; v++)
			r->of[fn[i]][v] = p->cell.p[p->of[fn[i]][v].cell].origin;
	}
	for (size_t i = 0; i < nres; i++)
		r->result[i] = p->cell.p[p->m->res[i].shard].origin;
}

struct err *spmd_propagate(struct ir_module *m, struct spmd_record *rec)
{
	struct arena a, tmp;
	arena_init(&a);
	arena_init(&tmp);
	struct prop p = { .m = m, .a = &a, .tmp = &tmp, .rec = rec };
	arr_push(&p.cell, (struct cell){0});
	arr_push(&p.link, (struct link){0});
	part_company(m, ir_main(m), ARENA_NEW(&a, bool, m->fn.n));
	p.of = ARENA_NEW(&a, struct tensor *, m->fn.n);
	int nfn;
	const ir_fnid *all = ir_reachable(&a, m, &nfn);
	for (int i = 0; i < nfn; i++)
		p.of[all[i]] = ARENA_NEW(&a, struct tensor, ir_fn_of(m, all[i])->val.n);
	struct ir_fn *fn = ir_main(m);
	for (uint32_t i = 0; i < fn->nparam; i++) {
		*tensor_of(&p, fn, i + 1) = own(&p, fn, i + 1);
		p.cell.p[tensor_of(&p, fn, i + 1)->cell].sh = m->arg[i].shard;
		given(&p, tensor_of(&p, fn, i + 1)->cell, SPMD_ARGUMENT, NULL, i);
	}
	walk(&p, fn);
	struct err *e = groups(&p, all, nfn);
	size_t results = p.link.n;
	for (size_t i = 0; !e && i < fn->result.n; i++) {
		const struct ir_type_info *t = ir_vtype(m, fn, fn->result.p[i]);
		struct tensor c = { cell_new(&p, t->rank, t->count, m->res[i].shard), 0 };
		given(&p, c.cell, SPMD_RESULT, NULL, (uint32_t)i);
		if (t->dtype != DT_token)
			edge(&p, 1, tensor_of(&p, fn, fn->result.p[i]), c, t, NULL);
		m->res[i].shard = c.cell;
	}
	for (int i = 0; !e && i < nfn; i++)
		constrain(&p, ir_fn_of(m, all[i]));
	p.on = ARENA_NEW(&a, uint8_t, p.link.n);
	for (p.priority = 0; !e && p.priority < PRIORITIES; p.priority++)
		for (int k = 0; k < 2; k++) {
			p.aggressive = k;
			to_fixpoint(&p, results);
		}
	if (rec && !e)
		tell(&p, all, nfn);
	for (int i = 0; !e && i < nfn; i++) {
		struct ir_fn *f = ir_fn_of(m, all[i]);
		for (ir_val v = 1; v < f->val.n; v++)
			if (p.of[all[i]][v].cell)
				ir_shard_set(f, v, seen(&p, p.of[all[i]][v]));
	}
	for (uint32_t i = 0; !e && i < fn->nparam; i++)
		m->arg[i].shard = p.cell.p[tensor_of(&p, fn, i + 1)->cell].sh;
	for (size_t i = 0; !e && i < fn->result.n; i++)
		m->res[i].shard = p.cell.p[m->res[i].shard].sh;
	for (size_t i = 0; i < p.cell.n; i++)
		arr_free(&p.cell.p[i].use);
	arr_free(&p.cell);
	arr_free(&p.link);
	arr_free(&p.stack);
	arr_free(&p.member);
	arena_fini(&a);
	arena_fini(&tmp);
	return e;
}
