/* The region and the ops that are to take its place, both as functions of samples: of each axis some indices, borders among them, with what is
 * known of them (their numbers) as it is.  Sampling is exact, since a region is elementwise operations and sums along its axes. */
#include "impl.h"

#include <stdlib.h>

enum { ROWS = 24, KEYS = 40, FEW = 2, LONG = 16 };

/* n of `all` indices: the first and the last ones, and some between, ascending. */
static int64_t *indices(struct arena *a, int64_t all, int64_t n, uint64_t *seed)
{
	int64_t *p = ARENA_NEW(a, int64_t, n + 1), edge = n >= 8 ? n / 3 : (n + 1) / 2, mid = n - 2 * edge;
	for (int64_t i = 0; i < n; i++) {
		*seed = *seed * 6364136223846793005u + 1442695040888963407u;
		int64_t span = all - 2 * edge, step = mid > 0 ? span / mid : 0;
		p[i] = n == all || i < edge ? i : i >= n - edge ? all - n + i : edge + (i - edge) * step + (step > 1 ? (int64_t)((*seed >> 33) % (uint64_t)step) : 0);
	}
	return p;
}

void sample_start(struct sample *s, struct match *m)
{
	struct cand *c = m->c;
	uint64_t seed = 1;
	int nright = 0;
	*s = (struct sample){ .m = m, .known = eval_known(c->a, c->m, c->fn) };
	for (int i = 1; i < c->naxis; i++)
		nright += c->right >> i & 1;
	for (int i = 1; i < c->naxis; i++) {
		int64_t most = c->tables >> i & 1 ? c->axis[i].size : c->right >> i & 1 ? (nright > 1 ? 7 : KEYS) : i == m->t ? ROWS : FEW;
		s->size[i] = MIN(c->axis[i].size, most);
		s->index[i] = indices(c->a, c->axis[i].size, s->size[i], &seed);
	}
}

ir_type sample_type(const struct sample *s, ir_val v, int lab)
{
	const struct cand *c = s->m->c;
	const struct ir_type_info *t = ir_vtype(c->m, c->fn, v);
	const struct lab *l = lab_of(c, lab);
	int64_t dim[LAB_RANK];
	for (int d = 0; d < t->rank; d++) {
		int64_t rest = t->dim[d];
		bool vec = false;
		dim[d] = 1;
		for (int k = 0; k < l->n[d]; k++) {
			vec |= l->axis[d][k] == VEC;
			if (l->axis[d][k] != VEC) {
				dim[d] *= s->size[l->axis[d][k]];
				rest /= c->axis[l->axis[d][k]].size;
			}
		}
		dim[d] *= vec ? MIN(rest, LONG) : 1;
	}
	enum dtype dt = (enum dtype)t->dtype;
	if (s->wide && dtype_info[dt].cls == DT_FLOAT)
		dt = DT_f64;
	return ir_tensor(c->m, dt, t->rank, dim);
}

/* --- leaves ------------------------------------------------------------------------- */

static int find(const struct sample *s, ir_val v, int lab)
{
	for (int i = 0; i < s->nleaf; i++)
		if (s->leaf[i].lab == lab && form_same(s->m->c->fn, s->leaf[i].v, v))
			return i;
	return -1;
}

/* The exit that v is if it is the highest scores of rows: these are what the scores say, though others are made from them; NULL: it is none. */
static const struct exit *highest(const struct sample *s, ir_val v, int lab)
{
	for (size_t i = 0; i < s->m->exit.n; i++) {
		const struct exit *x = &s->m->exit.p[i];
		if (x->kind == EXIT_M && x->v == v && x->lab == lab)
			return x;
	}
	return NULL;
}

static void add_leaf(void *user, ir_val v, int lab)
{
	struct sample *s = user;
	if (find(s, v, lab) >= 0 || highest(s, v, lab) || ir_splat(s->m->c->m, s->m->c->fn, v))
		return;
	if (s->nleaf == SAMPLE_LEAVES) {
		s->why = "it reads too many values";
		return;
	}
	s->leaf[s->nleaf].v = v;
	s->leaf[s->nleaf++].lab = lab;
}

/* --- the region --------------------------------------------------------------------------- */

static ir_val old(struct sample *s, ir_val v, int lab);

/* Labs of the operands of v's op; false: it is a leaf. */
static bool operands(struct sample *s, const struct ir_op *o, int lab, int *l)
{
	struct cand *c = s->m->c;
	int none = lab_add(c, &(struct lab){0});
	l[o->nin] = lab;
	switch (o->kind) {
	case IR_reduce:
		if (o->nout != 1 || ir_attr(c->fn, o, AT_fn))
			return false;
		l[0] = c->of[ir_in(c->fn, o, 0)];
		l[1] = none;
		return axes_through(c, (uint32_t)(o - c->fn->op.p), l, true);
	case IR_dot:
		l[0] = c->of[ir_in(c->fn, o, 0)];
		l[1] = c->of[ir_in(c->fn, o, 1)];
		return axes_through(c, (uint32_t)(o - c->fn->op.p), l, true);
	case IR_gather: case IR_scatter: {
		struct look x;
		l[2] = o->kind == IR_scatter ? c->of[ir_in(c->fn, o, 2)] : lab;
		if (!l[2] || !(o->kind == IR_scatter ? look_back(c, o, l[2], &x) : look_of(c, o, lab, &x)))
			return false;
		l[0] = x.table_lab;
		l[1] = x.index_lab;
		return true;
	}
	case IR_broadcast: case IR_transpose: case IR_reshape:
		return axes_through(c, (uint32_t)(o - c->fn->op.p), l, false);
	case IR_optimization_barrier:
		for (uint32_t k = 0; k < o->nin; k++)
			l[k] = lab;
		return true;
	case IR_sharding_constraint: case IR_reduce_precision:
		l[0] = lab;
		return true;
	default:
		for (uint32_t k = 0; k < o->nin && k < 3; k++)
			l[k] = ir_vtype(c->m, c->fn, ir_in(c->fn, o, k))->rank ? lab : none;
		return ir_is_elem(o->kind);
	}
}

static ir_val numbers(struct sample *s, ir_type t, const struct lab *l, int d)
{
	struct cand *c = s->m->c;
	const struct ir_type_info *x = ir_type_of(c->m, t);
	int64_t n = x->dim[d], dims[1] = { d };
	int32_t *p = ARENA_NEW(c->a, int32_t, n + 1);
	for (int64_t i = 0; i < n; i++) {
		int64_t rest = i, at = 0, unit = 1;
		for (int k = l->n[d] - 1; k >= 0; k--) {
			int a = l->axis[d][k];
			int64_t size = a == VEC ? n : s->size[a], j = rest % size;
			rest /= size;
			at += (a == VEC ? j : s->index[a][j]) * unit;
			unit *= a == VEC ? n : c->axis[a].size;
		}
		p[i] = (int32_t)at;
	}
	enum dtype dt = (enum dtype)x->dtype;
	int64_t dim[LAB_RANK];
	int rank = x->rank;
	memcpy(dim, x->dim, sizeof *dim * (size_t)rank);
	ir_val v = ir_const(&s->b, ir_tensor(c->m, DT_i32, 1, &n), p, (size_t)n * 4);
	v = ir_broadcast(&s->b, v, ir_tensor(c->m, DT_i32, rank, dim), dims);
	return ir_convert(&s->b, v, dt);
}

static ir_val elementwise(struct sample *s, const struct ir_op *o, ir_val v, const ir_val *in, ir_type t)
{
	struct cand *c = s->m->c;
	if (o->kind == IR_convert)
		return ir_convert(&s->b, in[0], (enum dtype)ir_type_of(c->m, t)->dtype);
	if (o->kind == IR_bitcast) {             /* of the program's own types */
		ir_val x = ir_convert(&s->b, in[0], (enum dtype)ir_vtype(c->m, c->fn, ir_in(c->fn, o, 0))->dtype);
		const struct ir_type_info *i = ir_type_of(c->m, t);
		int64_t dim[LAB_RANK];
		int rank = i->rank;
		enum dtype to = (enum dtype)i->dtype, own = (enum dtype)ir_vtype(c->m, c->fn, v)->dtype;
		memcpy(dim, i->dim, sizeof *dim * (size_t)rank);
		x = ir_emit_raw(&s->b, IR_bitcast, 1, &x, 1, (ir_type[]){ ir_tensor(c->m, own, rank, dim) }, NULL, 0);
		return ir_convert(&s->b, x, to);
	}
	return ir_emit_raw(&s->b, (enum ir_kind)o->kind, o->nin, in, 1, &t, NULL, 0);
}

static ir_val make(struct sample *s, ir_val v, int lab)
{
	struct cand *c = s->m->c;
	const struct ir_op *o = ir_def(c->fn, v);
	ir_type t = sample_type(s, v, lab);
	const void *p = ir_splat(c->m, c->fn, v);
	int l[66] = {0}, leaf = v == s->root ? -1 : find(s, v, lab);
	if (p && s->list)
		return 1;
	if (p && dtype_info[ir_type_of(c->m, t)->dtype].cls == DT_FLOAT)
		return ir_const_f(&s->b, t, dtype_real((enum dtype)ir_vtype(c->m, c->fn, v)->dtype, p));
	if (p)
		return ir_const(&s->b, t, p, dtype_info[ir_type_of(c->m, t)->dtype].bytes);
	if (leaf >= 0)
		return (ir_val)leaf + 1;
	if (o && o->kind == IR_iota)
		return s->list ? 1 : numbers(s, t, lab_of(c, lab), (int)ir_attr(c->fn, o, AT_dim));
	if (!o || o->nin > 64 || o->kind == IR_constant || !operands(s, o, lab, l)) {
		assert(s->list);
		add_leaf(s, v, lab);
		return 1;
	}
	if (o->kind == IR_optimization_barrier || o->kind == IR_sharding_constraint)
		return old(s, ir_in(c->fn, o, v - o->out), lab);
	ir_val in[64];
	for (uint32_t k = 0; k < o->nin; k++)
		in[k] = old(s, ir_in(c->fn, o, k), l[k]);
	if (s->list || s->why)
		return 1;
	if (ir_is_elem(o->kind))
		return elementwise(s, o, v, in, t);
	if (o->kind == IR_reshape) {
		const struct ir_type_info *x = ir_type_of(c->m, t);
		int64_t dim[LAB_RANK];
		memcpy(dim, x->dim, sizeof *dim * x->rank);
		return ir_reshape(&s->b, in[0], x->rank, dim);
	}
	if (o->kind == IR_reduce_precision && s->wide)
		return in[0];
	uint32_t n;
	int64_t *w = ir_attr_copy(c->a, c->fn, o, &n);
	for (int d = 0; o->kind == IR_gather && d < ir_vtype(c->m, s->b.fn, in[0])->rank; d++) {
		int64_t *size = ir_attr_word(IR_gather, w, AT_size) + 1;
		size[d] = size[d] > 1 ? ir_vtype(c->m, s->b.fn, in[0])->dim[d] : 1;
	}
	if (o->kind == IR_dot && s->wide) {
		*ir_attr_word(IR_dot, w, AT_acc) = *ir_attr_word(IR_dot, w, AT_ltype) = *ir_attr_word(IR_dot, w, AT_rtype) = DT_token;
		*ir_attr_word(IR_dot, w, AT_components) = 1;
	}
	return ir_emit_raw(&s->b, (enum ir_kind)o->kind, o->nin, in, 1, &t, w, n);
}

static ir_val old(struct sample *s, ir_val v, int lab)
{
	struct cand *c = s->m->c;
	struct { char tag; ir_val v; int lab, turn; } key;
	if (s->why || s->depth > 400) {
		s->why = s->why ? s->why : "its region is too deep";
		return 1;
	}
	memset(&key, 0, sizeof key);
	key.tag = 's';
	key.v = v;
	key.lab = lab;
	key.turn = s->turn;
	uint64_t *have = map_get(&c->index, &key, sizeof key);
	if (have)
		return (ir_val)*have;
	s->depth++;
	ir_val to = make(s, v, lab);
	s->depth--;
	*map_put(&c->index, &key, sizeof key) = to;
	return to;
}

/* An exit, which may be what others are made from, too. */
static ir_val root(struct sample *s, const struct exit *x)
{
	s->root = x->v;
	ir_val v = make(s, x->v, x->lab);
	s->root = 0;
	return v;
}

/* --- both -------------------------------------------------------------------------------- */

static ir_val got(struct env *e, ir_val v, int lab)
{
	struct sample *s = e->user;
	int i = find(s, v, lab);
	const struct exit *x = highest(s, v, lab);
	if (i >= 0)
		return (ir_val)i + 1;
	if (x)
		return emit_exit(e, x, sample_type(s, v, lab));
	s->b = e->b;                     /* a constant */
	return make(s, v, lab);
}

static ir_val index_of(struct env *e, int n, const uint8_t *axis)
{
	struct sample *s = e->user;
	struct lab l = { .rank = 1, .n = { (uint8_t)n } };
	int64_t dim[ATOMS], all = 1;
	for (int i = 0; i < n; i++) {
		l.axis[0][i] = axis[i];
		all *= dim[i] = s->size[axis[i]];
	}
	s->b = e->b;
	return ir_reshape(&e->b, numbers(s, ir_tensor(e->b.m, DT_i32, 1, &all), &l, 0), n, dim);
}

static struct ir_fn *begin(struct sample *s, const char *name)
{
	struct ir_fn *fn = ir_fn_new(s->m->c->m, name);
	for (int i = 0; i < s->nleaf; i++)
		ir_param(fn, sample_type(s, s->leaf[i].v, s->leaf[i].lab));
	s->b = (struct ir_b){ s->m->c->m, fn, 0 };
	s->turn++;
	return fn;
}

bool sample_leaves(struct sample *s)
{
	s->list = true;
	for (size_t i = 0; i < s->m->exit.n && !s->why; i++) {
		emit_leaves(s->m, &s->m->exit.p[i], add_leaf, s);
		s->turn++;
		s->b = (struct ir_b){ s->m->c->m, NULL, 0 };
	}
	for (size_t i = 0; i < s->m->exit.n && !s->why; i++)
		root(s, &s->m->exit.p[i]);
	s->list = false;
	return !s->why;
}

struct ir_fn *sample_old(struct sample *s)
{
	struct ir_fn *fn = begin(s, "old");
	for (size_t i = 0; i < s->m->exit.n; i++)
		ir_result(fn, root(s, &s->m->exit.p[i]));
	return fn;
}

struct ir_fn *sample_new(struct sample *s)
{
	struct match *m = s->m;
	struct ir_fn *fn = begin(s, "new");
	struct env e = { .b = s->b, .m = m, .size = s->size, .get = got, .index = index_of, .user = s, .wide = s->wide ? DT_f64 : DT_token };
	e.o = (ir_val (*)[OF_FWD])ARENA_NEW(m->c->a, ir_val, OF_FWD * (m->fwd.n + 1));
	e.d = (ir_val (*)[OF_BWD])ARENA_NEW(m->c->a, ir_val, OF_BWD * (m->bwd.n + 1));
	for (size_t i = 0; i < m->exit.n; i++)
		ir_result(fn, emit_exit(&e, &m->exit.p[i], sample_type(s, m->exit.p[i].v, m->exit.p[i].lab)));
	return fn;
}
