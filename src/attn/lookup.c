/* Learned numbers that scores get by position: a table that is indexed by what follows from positions, numbers of heads times a function of the distance.
 *
 * A gather of single elements is read in the score function, from a table that is an operand as a whole.  What depends on the distance of a key and a query alone is
 * made once for each distance, and the function reads that by the distance.  Backward, the op sums dx up by an index: that of the gather, or again the distance, for which the
 * rest, a scatter or a product with a function of the distance, is done outside. */
#include "impl.h"

/* --- what depends on the distance alone ---------------------------------------------------- */

/* The one axis of keys; 0: there are several. */
static int key_axis(const struct cand *c) { return c->right && !(c->right & (c->right - 1)) ? __builtin_ctzll(c->right) : 0; }

int64_t look_distances(const struct match *m) { return m->c->axis[m->t].size + m->c->axis[key_axis(m->c)].size - 1; }

/* v = of[0] * key's index + of[1] * query's index + of[2]. */
static bool linear(const struct match *m, ir_val v, int lab, double *of, int *steps)
{
	struct cand *c = m->c;
	const struct ir_op *o = ir_def(c->fn, v);
	const void *p = ir_splat(c->m, c->fn, v);
	enum dtype dt = (enum dtype)ir_vtype(c->m, c->fn, v)->dtype;
	double a[3], b[3];
	memset(of, 0, 3 * sizeof *of);
	if ((dt != DT_i32 && dt != DT_i64 && dt != DT_f32 && dt != DT_f64) || !o || --*steps < 0)
		return false;
	if (p) {
		of[2] = dtype_real(dt, p);
		return true;
	}
	int l[3] = { 0, lab, lab };
	for (uint32_t k = 0; k < o->nin && k < 2 && ir_is_elem(o->kind); k++)
		l[k] = ir_vtype(c->m, c->fn, ir_in(c->fn, o, k))->rank ? lab : lab_add(c, &(struct lab){0});
	switch (o->kind) {
	case IR_iota: {
		int d = (int)ir_attr(c->fn, o, AT_dim);
		const struct lab *x = lab_of(c, lab);
		if (x->n[d] == 1)
			of[0] = x->axis[d][0] == key_axis(c), of[1] = x->axis[d][0] == m->t;
		return !x->n[d] || of[0] != 0 || of[1] != 0;
	}
	case IR_add: case IR_subtract:
		if (!linear(m, ir_in(c->fn, o, 0), l[0], a, steps) || !linear(m, ir_in(c->fn, o, 1), l[1], b, steps))
			return false;
		for (int i = 0; i < 3; i++)
			of[i] = o->kind == IR_add ? a[i] + b[i] : a[i] - b[i];
		return true;
	case IR_negate:
		if (!linear(m, ir_in(c->fn, o, 0), l[0], a, steps))
			return false;
		for (int i = 0; i < 3; i++)
			of[i] = -a[i];
		return true;
	case IR_convert: case IR_optimization_barrier: case IR_sharding_constraint:
		return linear(m, ir_in(c->fn, o, v - o->out), lab, of, steps);
	case IR_broadcast: case IR_transpose: case IR_reshape:
		l[0] = 0;
		l[1] = lab;
		return axes_through(c, (uint32_t)(o - c->fn->op.p), l, false) && linear(m, ir_in(c->fn, o, 0), l[0], of, steps);
	default:
		return false;
	}
}

static bool is_distance(const struct match *m, ir_val v, int lab, double *of)
{
	int steps = 64;
	return linear(m, v, lab, of, &steps) && of[0] != 0 && of[0] == -of[1];
}

/* Labs of what v is made of by op o, element by element or by a view; false: it is made otherwise. */
static bool through(struct cand *c, const struct ir_op *o, ir_val v, int lab, int *l)
{
	if (o->kind == IR_broadcast || o->kind == IR_transpose || o->kind == IR_reshape) {
		l[0] = 0;
		l[1] = lab;
		return axes_through(c, (uint32_t)(o - c->fn->op.p), l, false);
	}
	for (uint32_t k = 0; k < o->nin && k < 3; k++)
		l[k] = ir_vtype(c->m, c->fn, ir_in(c->fn, o, k))->rank ? lab : lab_add(c, &(struct lab){0});
	return ir_is_elem(o->kind) || o->kind == IR_reduce_precision;
}

static bool by_distance(const struct match *m, ir_val v, int lab, int *steps)
{
	struct cand *c = m->c;
	const struct ir_op *o = ir_def(c->fn, v);
	double of[3];
	struct look x;
	int l[4];
	if (!m->t || !key_axis(c) || --*steps < 0)
		return false;
	if (!(lab_of(c, lab)->set & (c->right | (uint64_t)1 << m->t)) || ir_splat(c->m, c->fn, v) || is_distance(m, v, lab, of))
		return !(lab_of(c, lab)->set & 1);
	if (!o || c->of[v])
		return false;
	if (o->kind == IR_optimization_barrier || o->kind == IR_sharding_constraint)
		return by_distance(m, ir_in(c->fn, o, v - o->out), lab, steps);
	if (o->kind == IR_gather)
		return look_of(c, o, lab, &x) && !(lab_of(c, x.table_lab)->set >> m->t & 1) && by_distance(m, x.index, x.index_lab, steps);
	if (!through(c, o, v, lab, l))
		return false;
	for (uint32_t k = 0; k < o->nin; k++)
		if (!by_distance(m, ir_in(c->fn, o, k), l[k], steps))
			return false;
	return true;
}

bool look_by_distance(const struct match *m, ir_val v, int lab)
{
	int steps = 400;
	return by_distance(m, v, lab, &steps);
}

/* Is something looked up in v, a matrix? */
static bool looks(struct cand *c, ir_val v, int lab, int *steps)
{
	const struct ir_op *o = ir_def(c->fn, v);
	struct look x;
	int l[4];
	if (!o || --*steps < 0 || !cand_is_region(c, lab_of(c, lab)->set))
		return false;
	if (o->kind == IR_gather)
		return look_of(c, o, lab, &x);
	if (o->kind == IR_optimization_barrier || o->kind == IR_sharding_constraint)
		return looks(c, ir_in(c->fn, o, v - o->out), lab, steps);
	bool any = false, can = through(c, o, v, lab, l);
	for (uint32_t k = 0; k < o->nin && can && !any; k++)
		any = looks(c, ir_in(c->fn, o, k), l[k], steps);
	return any;
}

bool look_is_made(const struct match *m, ir_val v, int lab)
{
	struct cand *c = m->c;
	const struct ir_op *o = ir_def(c->fn, v);
	int steps = 200, l[4];
	double fill;
	if (!o || dtype_info[ir_vtype(c->m, c->fn, v)->dtype].cls != DT_FLOAT || !look_by_distance(m, v, lab) || !looks(c, v, lab, &steps))
		return false;
	/* masks are seen by the function itself */
	if (o->kind == IR_add || o->kind == IR_subtract)
		for (uint32_t k = 0; k < 2; k++) {
			steps = 200;
			if (through(c, o, v, lab, l) && cand_is_region(c, lab_of(c, l[k])->set) && !looks(c, ir_in(c->fn, o, k), l[k], &steps))
				return false;
		}
	for (uint32_t k = 1; k < 3 && o->kind == IR_select; k++) {
		const void *p = ir_splat(c->m, c->fn, ir_in(c->fn, o, k));
		fill = p ? dtype_real((enum dtype)ir_vtype(c->m, c->fn, v)->dtype, p) : 0;
		if (fill <= -FILL)
			return false;
	}
	return true;
}

/* --- one value for each distance ------------------------------------------------------------- */

/* Values [P, L]: P: the axes of a set, in order; L: distances, the last query and the first key first.  Without leaf: they are emitted at e. */
struct apart {
	struct env *e;
	struct match *m;
	void (*leaf)(void *user, ir_val v, int lab);
	void *user;
	uint64_t set;
	int64_t p, l;
	struct { ir_val v; int lab; ir_val to; } node[MOST_NODE];
	int nnode;
};

static enum dtype own_type(const struct apart *x, ir_val v)
{
	const struct cand *c = x->m->c;
	enum dtype dt = (enum dtype)ir_vtype(c->m, c->fn, v)->dtype;
	return x->e->wide != DT_token && dtype_info[dt].cls == DT_FLOAT ? x->e->wide : dt;
}

static ir_type all_type(const struct apart *x, enum dtype dt) { return ir_tensor(x->m->c->m, dt, 2, (int64_t[]){ x->p, x->l }); }

/* A leaf without queries and keys, as [P, ..] with what a table has behind. */
static ir_val given(struct apart *x, ir_val v, int lab, int64_t n)
{
	struct ir_b *b = &x->e->b;
	if (!n)
		form_strip(x->m->c, &v, &lab);
	ir_val y = place_each(x->e, x->e->get(x->e, v, lab), lab, x->set, n > 0);
	enum dtype dt = (enum dtype)ir_vtype(b->m, b->fn, y)->dtype;
	if (n)
		return y;
	y = ir_reshape(b, y, 1, &x->p);
	return ir_broadcast(b, y, all_type(x, dt), (int64_t[]){ 0 });
}

static ir_val apart(struct apart *x, ir_val v, int lab);

static ir_val taken(struct apart *x, const struct look *k)
{
	struct ir_b *b = &x->e->b;
	ir_val at = apart(x, k->index, k->index_lab);
	if (x->leaf) {
		x->leaf(x->user, k->table, k->table_lab);
		return 1;
	}
	ir_val table = given(x, k->table, k->table_lab, k->n);
	int64_t dim[3] = { x->p, x->l, 1 };
	at = ir_reshape(b, at, 3, dim);
	static const int64_t w[] = { 0, 1, 1, 1, 0, 1, 0, 1, 1, 2, 2, 1, 1, 0 };
	return ir_emit(b, IR_gather, 2, (ir_val[]){ table, at }, all_type(x, (enum dtype)ir_vtype(b->m, b->fn, table)->dtype), w, NELEM(w));
}

static ir_val made(struct apart *x, ir_val v, int lab)
{
	struct cand *c = x->m->c;
	struct ir_b *b = x->leaf ? NULL : &x->e->b;
	const struct ir_op *o = ir_def(c->fn, v);
	const void *p = ir_splat(c->m, c->fn, v);
	double of[3];
	int l[4];
	if (p) {
		enum dtype dt = x->leaf ? DT_token : own_type(x, v);
		return x->leaf ? 1 : dtype_info[dt].cls == DT_FLOAT ? ir_const_f(b, all_type(x, dt), dtype_real((enum dtype)ir_vtype(c->m, c->fn, v)->dtype, p)) :
		       ir_const(b, all_type(x, dt), p, dtype_info[dt].bytes);
	}
	if (!(lab_of(c, lab)->set & (c->right | (uint64_t)1 << x->m->t))) {
		if (!x->leaf)
			return given(x, v, lab, 0);
		form_strip(c, &v, &lab);
		x->leaf(x->user, v, lab);
		return 1;
	}
	if (is_distance(x->m, v, lab, of)) {
		if (x->leaf)
			return 1;
		ir_type t = all_type(x, DT_i32);
		ir_val i = ir_iota(b, t, 1), less = ir_const_i(b, t, c->axis[x->m->t].size - 1);
		enum dtype dt = own_type(x, v);
		i = ir_convert(b, ir_bin(b, ELEM_subtract, i, less), dt);
		t = all_type(x, dt);
		ir_val by = dtype_info[dt].cls == DT_FLOAT ? ir_const_f(b, t, of[0]) : ir_const_i(b, t, (int64_t)of[0]);
		i = ir_bin(b, ELEM_multiply, i, by);
		ir_val more = dtype_info[dt].cls == DT_FLOAT ? ir_const_f(b, t, of[2]) : ir_const_i(b, t, (int64_t)of[2]);
		return ir_bin(b, ELEM_add, i, more);
	}
	if (o->kind == IR_optimization_barrier || o->kind == IR_sharding_constraint)
		return apart(x, ir_in(c->fn, o, v - o->out), lab);
	struct look k;
	if (o->kind == IR_gather && look_of(c, o, lab, &k))
		return taken(x, &k);
	if (!through(c, o, v, lab, l))
		return 0;
	ir_val in[3];
	for (uint32_t j = 0; j < o->nin; j++)
		in[j] = apart(x, ir_in(c->fn, o, j), l[j]);
	if (x->leaf || !ir_is_elem(o->kind)) {
		if (x->leaf || o->kind != IR_reduce_precision || x->e->wide != DT_token)
			return x->leaf ? 1 : in[0];
		uint32_t n;
		const int64_t *w = ir_attr_copy(c->a, c->fn, o, &n);
		return ir_emit(b, IR_reduce_precision, 1, in, all_type(x, own_type(x, v)), w, n);
	}
	if (o->kind == IR_convert)
		return ir_convert(b, in[0], own_type(x, v));
	if (o->kind == IR_bitcast) {             /* of the program's own types */
		in[0] = ir_convert(b, in[0], (enum dtype)ir_vtype(c->m, c->fn, ir_in(c->fn, o, 0))->dtype);
		return ir_convert(b, ir_bitcast(b, in[0], (enum dtype)ir_vtype(c->m, c->fn, v)->dtype), own_type(x, v));
	}
	return ir_emit(b, (enum ir_kind)o->kind, o->nin, in, all_type(x, own_type(x, v)), NULL, 0);
}

static ir_val apart(struct apart *x, ir_val v, int lab)
{
	for (int i = 0; i < x->nnode; i++)
		if (x->node[i].v == v && x->node[i].lab == lab)
			return x->node[i].to;
	ir_val to = made(x, v, lab);
	if (x->nnode < MOST_NODE) {
		x->node[x->nnode].v = v;
		x->node[x->nnode].lab = lab;
		x->node[x->nnode++].to = to;
	}
	return to;
}

ir_val look_apart(struct env *e, ir_val v, int lab, uint64_t set)
{
	struct apart *x = ARENA_NEW(e->m->c->a, struct apart, 1);
	*x = (struct apart){ .e = e, .m = e->m, .set = set, .p = 1, .l = look_distances(e->m) };
	for (int i = 1; i < e->m->c->naxis; i++)
		x->p *= set >> i & 1 ? e->size[i] : 1;
	return apart(x, v, lab);
}

void look_leaves(struct match *m, ir_val v, int lab, void (*leaf)(void *user, ir_val v, int lab), void *user)
{
	struct apart *x = ARENA_NEW(m->c->a, struct apart, 1);
	*x = (struct apart){ .m = m, .leaf = leaf, .user = user };
	apart(x, v, lab);
}
