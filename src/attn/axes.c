/* Axes: which dimensions of the values around a product q . k are those of the product.
 *
 * The product's dimensions are the axes; every value that is made from it has some of them, in some order, several of them in one
 * dimension where a reshape has merged them.  What an op does with dimensions is asked of its rule (ir_axes_of).  Where a
 * reshape takes a dimension apart, the axis is two from the start: the candidate is begun anew with it split. */
#include "impl.h"

const char *cand_fail(struct cand *c, ir_loc where, const char *why)
{
	if (!c->why) {
		c->why = why;
		c->where = where;
	}
	return c->why;
}

int lab_add(struct cand *c, const struct lab *l)
{
	struct { char tag; struct lab l; } key;
	memset(&key, 0, sizeof key);
	key.tag = 'l';
	key.l.rank = l->rank;
	for (int d = 0; d < l->rank; d++) {
		key.l.n[d] = l->n[d];
		for (int k = 0; k < l->n[d]; k++) {
			key.l.axis[d][k] = l->axis[d][k];
			key.l.set |= (uint64_t)1 << l->axis[d][k];
		}
	}
	uint64_t *id = map_put(&c->index, &key, sizeof key);
	if (!*id) {
		*id = c->lab.n;
		arr_push(&c->lab, key.l);
	}
	return (int)*id;
}

static const struct ir_axes *rule_of(struct cand *c, uint32_t op)
{
	struct ir_axes **rule = &c->room->rule[op];
	if (!*rule)
		*rule = ir_axes_of(c->a, c->m, c->fn, &c->fn->op.p[op]);
	return *rule;
}

/* What is known of a factor: its axes; n -1: nothing. */
struct known { int n; uint8_t axis[LAB_ATOMS]; };

static int64_t extent(const struct cand *c, const struct known *k)
{
	int64_t n = 1;
	for (int i = 0; i < k->n; i++)
		n *= c->axis[k->axis[i]].size;
	return n;
}

/* Axis x is to be two, of which the first one has extent `first`. */
static void split(struct cand *c, int x, int64_t first)
{
	int d = c->axis[x].dim, n = 0, at = -1;
	for (int i = 1; i <= x; i++)
		if (c->axis[i].dim == d && c->axis[i].side != SIDE_VEC)
			at = n++;
	if (c->nsplit[d] >= LAB_ATOMS || at < 0)
		return;
	int64_t *s = c->split[d];
	if (!c->nsplit[d]) {
		s[0] = c->axis[x].size;
		c->nsplit[d] = 1;
	}
	for (int i = c->nsplit[d]; i > at + 1; i--)
		s[i] = s[i - 1];
	s[at + 1] = s[at] / first;
	s[at] = first;
	c->nsplit[d]++;
	c->again = true;
}

/* The axes of dimension d of lab l go to the dimension's factors. */
static bool deal(struct cand *c, const struct ir_axes *x, const struct ir_axes_dim *to, const struct lab *l, int d, struct known *k)
{
	int at = 0, n = l->n[d];
	const uint8_t *axis = l->axis[d];
	for (int i = 0; i < to->n; i++) {
		const struct ir_factor *f = &x->factor[to->factor[i]];
		struct known mine = {0};
		if (f->size == 1)
			continue;
		while (at < n && extent(c, &mine) < f->size) {
			if (axis[at] == VEC) {
				if (mine.n || i + 1 < to->n)
					return false;
				mine.axis[mine.n++] = axis[at++];
				break;
			}
			mine.axis[mine.n++] = axis[at++];
		}
		if (!(mine.n == 1 && mine.axis[0] == VEC) && extent(c, &mine) != f->size) {
			int last = mine.n ? mine.axis[mine.n - 1] : 0;
			int64_t before = mine.n ? extent(c, &mine) / c->axis[last].size : 0;
			if (before && f->size % before == 0 && c->axis[last].size % (f->size / before) == 0 && (c->parting || (l->set & c->right && l->set & c->left)))
				split(c, last, f->size / before);
			return false;
		}
		if (mine.n && (f->kind != FACTOR_EACH && f->kind != FACTOR_SUM))
			return false;
		struct known *old = &k[to->factor[i]];
		if (old->n >= 0 && (old->n != mine.n || memcmp(old->axis, mine.axis, (size_t)mine.n)))
			return false;
		*old = mine;
	}
	return at == n;
}

bool axes_through(struct cand *c, uint32_t op, int *lab, bool vec)
{
	const struct ir_axes *x = rule_of(c, op);
	int nt = x->nin + x->nout;
	struct known *k = ARENA_NEW(c->a, struct known, x->nfactor + 1);
	for (int f = 0; f < x->nfactor; f++)
		k[f].n = -1;
	for (int t = 0; t < nt; t++)
		for (int d = 0; lab[t] && d < x->rank[t]; d++)
			if (!deal(c, x, &x->dim[t][d], lab_of(c, lab[t]), d, k))
				return false;
	for (int t = 0; t < nt; t++) {
		struct lab l = { .rank = (uint8_t)x->rank[t] };
		bool fresh = false;
		if (lab[t])
			continue;
		if (x->rank[t] > LAB_RANK)
			return false;
		for (int d = 0; d < x->rank[t]; d++) {
			const struct ir_axes_dim *from = &x->dim[t][d];
			for (int i = 0; i < from->n; i++) {
				const struct known *f = &k[from->factor[i]];
				if (f->n < 0 && x->factor[from->factor[i]].size == 1)
					continue;
				if (f->n < 0 && (!vec || fresh || from->n > 1))
					return false;
				if (f->n < 0) {
					fresh = true;
					l.axis[d][l.n[d]++] = VEC;
				}
				for (int j = 0; j < f->n; j++) {
					if (l.n[d] == LAB_ATOMS)
						return false;
					l.axis[d][l.n[d]++] = f->axis[j];
				}
			}
		}
		lab[t] = lab_add(c, &l);
	}
	return true;
}

/* --- elements of a table ---------------------------------------------------------------------- */

/* The axis that stands for a table's n elements, of neither side. */
static int table_axis(struct cand *c, int64_t n)
{
	for (int i = 1; i < c->naxis; i++)
		if (c->axis[i].side == SIDE_TABLE && c->axis[i].size == n)
			return i;
	if (c->naxis == ATOMS || n < 2)
		return 0;
	c->axis[c->naxis] = (struct axis){ .size = n, .side = SIDE_TABLE };
	c->tables |= (uint64_t)1 << c->naxis;
	return c->naxis++;
}

/* Labs of indices and table, of which places has the dimensions of v that are places, and window those of the table but for `dim`, in order. */
static bool labs_of(struct cand *c, ir_val v, int lab, const int64_t *window, int nwindow, ir_val table, int64_t dim, int64_t index_dim, struct look *out)
{
	const struct ir_type_info *t = ir_vtype(c->m, c->fn, table), *at = ir_vtype(c->m, c->fn, out->index);
	const struct lab of = *lab_of(c, lab);
	struct lab index = { .rank = at->rank }, held = { .rank = t->rank };
	int axis = table_axis(c, t->dim[dim]), i = 0, w = 0;
	if (!axis || at->rank > LAB_RANK || t->rank > LAB_RANK || t->rank != nwindow + 1 || (index_dim < at->rank && at->dim[index_dim] != 1) || of.set & 1)
		return false;
	for (int d = 0; d < ir_vtype(c->m, c->fn, v)->rank; d++) {
		bool inside = in_list(window, nwindow, d);
		if (inside ? w == dim : i == index_dim)
			(*(inside ? &w : &i))++;
		int to = inside ? w++ : i++;
		struct lab *l = inside ? &held : &index;
		if (to >= l->rank)
			return false;
		l->n[to] = of.n[d];
		memcpy(l->axis[to], of.axis[d], of.n[d]);
	}
	held.n[dim] = 1;
	held.axis[dim][0] = (uint8_t)axis;
	out->n = t->dim[dim];
	out->axis = axis;
	out->index_lab = lab_add(c, &index);
	out->table_lab = lab_add(c, &held);
	return !(lab_of(c, out->table_lab)->set & c->right);
}

bool look_of(struct cand *c, const struct ir_op *o, int lab, struct look *out)
{
	int nw, n, nmap, nsize;
	const int64_t *window = ir_attrs(c->fn, o, AT_offset_dims, &nw), *gone = ir_attrs(c->fn, o, AT_collapsed, &n), *map = ir_attrs(c->fn, o, AT_index_map, &nmap),
	              *size = ir_attrs(c->fn, o, AT_size, &nsize);
	const struct ir_type_info *t = ir_vtype(c->m, c->fn, ir_in(c->fn, o, 0));
	if (n != 1 || nmap != 1 || *gone != *map || ir_attrs_n(c->fn, o, AT_obatch) || size[*map] != 1)
		return false;
	for (int d = 0; d < nsize; d++)
		if (d != *map && size[d] != t->dim[d])
			return false;
	*out = (struct look){ .table = ir_in(c->fn, o, 0), .index = ir_in(c->fn, o, 1) };
	return labs_of(c, o->out, lab, window, nw, out->table, *map, ir_attr(c->fn, o, AT_index_dim), out);
}

/* The same of a scatter that adds to zeros; lab: of what is added. */
bool look_back(struct cand *c, const struct ir_op *o, int lab, struct look *out)
{
	int nw, n, nmap;
	if (o->kind != IR_scatter || o->nout != 1 || (enum redop)ir_attr(c->fn, o, AT_redop) != RED_add || ir_attrs_n(c->fn, o, AT_ibatch))
		return false;
	const int64_t *window = ir_attrs(c->fn, o, AT_window_dims, &nw), *gone = ir_attrs(c->fn, o, AT_inserted, &n), *map = ir_attrs(c->fn, o, AT_to_operand, &nmap);
	const void *zero = ir_splat(c->m, c->fn, ir_in(c->fn, o, 0));
	const struct ir_type_info *t = ir_vtype(c->m, c->fn, o->out), *up = ir_vtype(c->m, c->fn, ir_in(c->fn, o, 2));
	if (n != 1 || nmap != 1 || *gone != *map || !zero || dtype_info[t->dtype].cls != DT_FLOAT || dtype_real((enum dtype)t->dtype, zero) != 0)
		return false;
	for (int d = 0, k = 0; d < t->rank; d++)
		if (d != *map && (k >= nw || up->dim[window[k++]] != t->dim[d]))
			return false;
	*out = (struct look){ .table = o->out, .index = ir_in(c->fn, o, 1) };
	return labs_of(c, ir_in(c->fn, o, 2), lab, window, nw, o->out, *map, ir_attr(c->fn, o, AT_index_dim), out);
}

/* --- around the product ------------------------------------------------------------------------- */

/* The product's own axes. */
bool axes_start(struct cand *c)
{
	const struct ir_op *o = ir_def(c->fn, c->seed);
	const struct ir_axes *x = rule_of(c, (uint32_t)(o - c->fn->op.p));
	const struct ir_type_info *t = ir_vtype(c->m, c->fn, c->seed);
	struct lab l = { .rank = t->rank };
	if (t->rank > LAB_RANK)
		return false;
	c->axis[VEC] = (struct axis){ .side = SIDE_VEC };
	c->naxis = 1;
	for (int d = 0; d < t->rank; d++) {
		int f = x->dim[2][d].n ? x->dim[2][d].factor[0] : -1;
		bool in[2] = { f >= 0 && ir_axes_find(x, 0, f) >= 0, f >= 0 && ir_axes_find(x, 1, f) >= 0 };
		int n = c->nsplit[d] ? c->nsplit[d] : 1;
		for (int i = 0; i < n && t->dim[d] > 1; i++) {
			if (c->naxis == ATOMS)
				return false;
			int64_t size = c->nsplit[d] ? c->split[d][i] : t->dim[d];
			uint8_t side = in[0] && in[1] ? SIDE_BATCH : in[0] ? SIDE_LEFT : SIDE_RIGHT;
			*(side == SIDE_BATCH ? &c->batch : side == SIDE_LEFT ? &c->left : &c->right) |= (uint64_t)1 << c->naxis;
			c->axis[c->naxis] = (struct axis){ .size = size, .side = side, .dim = (uint8_t)d };
			l.axis[d][l.n[d]++] = (uint8_t)c->naxis++;
		}
	}
	c->of[c->seed] = lab_add(c, &l);
	return true;
}

/* Ops whose result has the axes of what they read. */
static bool flows(const struct cand *c, const struct ir_op *o)
{
	switch (o->kind) {
	case IR_broadcast: case IR_transpose: case IR_reshape: case IR_dot: case IR_optimization_barrier: case IR_sharding_constraint: case IR_reduce_precision:
		return true;
	case IR_reduce:
		return o->nout == 1;
	default:
		return ir_is_elem(o->kind);
	}
}

/* What a sum is over: axes of op i's operands that no result has. */
static bool sums_well(struct cand *c, const struct ir_op *o, const int *lab)
{
	uint64_t gone = 0, stays = lab_of(c, lab[o->nin])->set;
	if (o->kind != IR_dot && o->kind != IR_reduce)
		return true;
	if (o->kind == IR_reduce && cand_is_region(c, stays) && !(gone & (c->right | 1)))      /* on its way to a tally */
		return true;
	for (uint32_t i = 0; i < o->nin; i++)
		gone |= lab_of(c, lab[i])->set & ~stays;
	uint64_t vec = (uint64_t)1 << VEC;
	if (o->kind == IR_reduce && c->right && (gone & c->right) == c->right)
		return !(gone & vec);
	return !(gone & c->batch) && !(gone & ~vec && gone & vec) && !(gone & c->left && gone & c->right);
}

/* Ops that read v are to be looked at. */
static void rouse(struct cand *c, ir_val v)
{
	for (uint32_t u = ir_use_first(c->fn, v); u; u = ir_use_next(c->fn, u))
		c->room->pending[ir_use_op(c->fn, u) / 64] |= (uint64_t)1 << ir_use_op(c->fn, u) % 64;
}

/* The next op that is to be looked at, in order, from op i on; -1: there is none. */
static int64_t next_op(struct cand *c, int64_t i)
{
	int64_t words = (int64_t)c->fn->op.n / 64 + 1;
	for (int64_t w = i / 64; w < words; w++) {
		uint64_t *bits = &c->room->pending[w];
		if (!*bits)
			continue;
		int b = __builtin_ctzll(*bits);
		*bits &= *bits - 1;
		return 64 * w + b;
	}
	return -1;
}

static void touch(struct cand *c, ir_val v, int lab)
{
	c->of[v] = lab;
	c->room->touched[c->room->ntouched++] = v;
	rouse(c, v);
}

static void flood_op(struct cand *c, const struct ir_op *o)
{
	int lab[66] = {0};
	bool any = false, region = false;
	struct look back;
	if (o->kind == IR_scatter && o->nout == 1 && c->of[ir_in(c->fn, o, 2)] && look_back(c, o, c->of[ir_in(c->fn, o, 2)], &back))
		touch(c, o->out, back.table_lab);
	if (o->nin > 64 || !flows(c, o))
		return;
	if (o->kind == IR_optimization_barrier) {
		for (uint32_t j = 0; j < o->nin; j++)
			if (c->of[ir_in(c->fn, o, j)] && !(lab_of(c, c->of[ir_in(c->fn, o, j)])->set & c->tables))
				touch(c, o->out + j, c->of[ir_in(c->fn, o, j)]);
		return;
	}
	for (uint32_t j = 0; j < o->nin; j++) {
		lab[j] = c->of[ir_in(c->fn, o, j)];
		any |= lab[j] != 0;
	}
	for (uint32_t j = 0; j < o->nin && any; j++)
		any = !(lab_of(c, lab[j])->set & c->tables);
	if (!any || ir_vtype(c->m, c->fn, o->out)->rank > LAB_RANK)
		return;
	/* A product with vectors outside makes vectors; what a broadcast adds is said by who reads it. */
	for (uint32_t j = 0; j < o->nin; j++)
		region |= lab[j] && lab_of(c, lab[j])->set & c->right;
	if (axes_through(c, (uint32_t)(o - c->fn->op.p), lab, o->kind == IR_dot && region) && sums_well(c, o, lab))
		touch(c, o->out, lab[o->nin]);
}

void axes_flood(struct cand *c)
{
	touch(c, c->seed, c->of[c->seed]);
	for (int64_t i = 0; (i = next_op(c, i)) >= 0; )
		if (!c->again)           /* else the rest is only cleared */
			flood_op(c, &c->fn->op.p[i]);
}

static bool is_view(const struct ir_op *o)
{
	return o->kind == IR_broadcast || o->kind == IR_transpose || o->kind == IR_reshape || o->kind == IR_reduce;
}

/* What is made element by element from values around the product. */
void axes_near(struct cand *c)
{
	struct room *r = c->room;
	for (int i = 0; i < r->ntouched; i++) {
		c->near[r->touched[i]] = true;
		rouse(c, r->touched[i]);
	}
	for (int64_t i = 0; (i = next_op(c, i)) >= 0; ) {
		const struct ir_op *o = &c->fn->op.p[i];
		if ((!is_view(o) && !ir_is_elem(o->kind)) || c->near[o->out])
			continue;
		c->near[o->out] = true;
		r->nigh[r->nnigh++] = o->out;
		rouse(c, o->out);
	}
}

void axes_repeats(struct cand *c, ir_val v, int lab)
{
	const struct ir_op *o = ir_def(c->fn, v), *from = o;
	while (from && (from->kind == IR_reshape || from->kind == IR_transpose))
		from = ir_def(c->fn, ir_in(c->fn, from, 0));
	if (!from || from == o || from->kind != IR_broadcast)
		return;
	int l[2] = { 0, lab };
	c->parting = true;
	axes_through(c, (uint32_t)(o - c->fn->op.p), l, false);
	c->parting = false;
}

bool axes_promise(struct cand *c)
{
	/* Made element by element from the product; from an exponential of that; from a difference with fewer values; from an exponential of that. */
	enum { PLAIN = 1, EXP = 2, LESS = 4, RATIO = 8 };
	struct room *r = c->room;
	int n = 0;
	bool found = false;
	r->mark[c->seed] = PLAIN;
	r->queue[n++] = c->seed;
	for (int i = 0; i < n && !found; i++) {
		ir_val v = r->queue[i];
		for (uint32_t u = ir_use_first(c->fn, v); u && !found; u = ir_use_next(c->fn, u)) {
			const struct ir_op *o = &c->fn->op.p[ir_use_op(c->fn, u)];
			if (o->kind == IR_reduce) {
				found = o->nout == 1 && r->mark[v] & EXP && (enum redop)ir_attr(c->fn, o, AT_redop) == RED_add;
				continue;
			}
			if (o->kind == IR_dot)
				found = r->mark[v] & RATIO;
			if (o->kind == IR_dot || !flows(c, o))
				continue;
			ir_val out = o->kind == IR_optimization_barrier ? o->out + ir_use_operand(c->fn, u) : o->out;
			uint8_t mark = r->mark[v];
			const struct ir_op *with = o->kind == IR_subtract ? ir_def(c->fn, ir_in(c->fn, o, 1)) : NULL;
			if (with && with->kind == IR_broadcast)
				mark |= LESS;
			if (o->kind == IR_exponential || o->kind == IR_power)
				mark |= mark & LESS ? EXP | RATIO : EXP;
			if ((r->mark[out] | mark) != r->mark[out]) {
				r->mark[out] |= mark;
				r->queue[n++] = out;
			}
		}
	}
	for (int i = 0; i < n; i++)
		r->mark[r->queue[i]] = 0;
	return found;
}

void room_make(struct room *r, struct arena *a, const struct ir_fn *fn)
{
	size_t n = fn->val.n;
	*r = (struct room){ .rule = ARENA_NEW(a, struct ir_axes *, fn->op.n + 1), .of = ARENA_NEW(a, int, n), .near = ARENA_NEW(a, bool, n), .kin = ARENA_NEW(a, bool, n),
	                    .seen = ARENA_NEW(a, bool, n), .pending = ARENA_NEW(a, uint64_t, fn->op.n / 64 + 1),
	                    .touched = ARENA_NEW(a, ir_val, n), .nigh = ARENA_NEW(a, ir_val, n),
	                    .mark = ARENA_NEW(a, uint8_t, n), .queue = ARENA_NEW(a, ir_val, 4 * n) };
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		bool passes = is_view(o) || ir_is_elem(o->kind) || o->kind == IR_sharding_constraint || o->kind == IR_reduce_precision;
		r->looks |= o->kind == IR_gather;
		if (o->kind == IR_dot)
			r->kin[o->out] = true;
		for (uint32_t k = 0; passes && k < o->nin; k++)
			r->kin[o->out] |= r->kin[ir_in(fn, o, k)];
		for (uint32_t k = 0; o->kind == IR_optimization_barrier && k < o->nin; k++)
			r->kin[o->out + k] = r->kin[ir_in(fn, o, k)];
	}
}

void room_clear(struct room *r)
{
	for (int i = 0; i < r->ntouched; i++) {
		r->of[r->touched[i]] = 0;
		r->near[r->touched[i]] = false;
	}
	for (int i = 0; i < r->nnigh; i++)
		r->near[r->nigh[i]] = false;
	r->ntouched = r->nnigh = 0;
}
