/* The ops that take the place of a region: operands brought into the layout of docs/attention.md, the function of scalars that was
 * between q . k and exp, what is left of coefficients beside the ops. */
#include "impl.h"

#include <math.h>

/* --- operands and results ------------------------------------------------------ */

/* Leaf f as queries (heads, T), as keys (S), with its vector. */
static ir_val vectors(struct env *e, int f, bool queries)
{
	const struct cand *c = e->m->c;
	const struct fac *x = fac_of(c, f);
	uint64_t set = c->batch | (queries ? c->left : c->right);
	uint8_t want[ATOMS];
	int64_t dim[ATOMS];
	int n = place_order(e->m, set, want), nb = place_extents(e, dim);
	for (int i = 0; i < e->nplaced; i++)
		if (e->placed[i].f == f && e->placed[i].queries == queries)
			return e->placed[i].v;
	ir_val v = e->get(e, (ir_val)x->a, x->b);
	int64_t vec = place_vector(e, v, lab_of(c, x->b));
	v = place_as(e, v, x->b, want, n, set);
	if (e->m->widen)
		v = ir_convert(&e->b, v, score_sums(e));
	if (!queries)
		dim[nb] = dim[nb + 2];
	dim[nb + (queries ? 2 : 1)] = vec;
	v = ir_reshape(&e->b, v, nb + (queries ? 3 : 2), dim);
	if (e->nplaced < (int)NELEM(e->placed)) {
		e->placed[e->nplaced].f = f;
		e->placed[e->nplaced].queries = queries;
		e->placed[e->nplaced++].v = v;
	}
	return v;
}

/* Leaf (v, lab) as [B.., G, T, S], or [B.., G, T] of rows, with extents of 1 where it is the same. */
static ir_val matrix(struct env *e, ir_val v, int lab, bool rows)
{
	const struct cand *c = e->m->c;
	uint64_t heads = c->left & ~(e->m->t ? (uint64_t)1 << e->m->t : 0), fill = 0, has = lab_of(c, lab)->set;
	uint8_t want[ATOMS];
	int64_t dim[ATOMS];
	if (has & heads)
		fill |= heads;
	if (has & c->right)
		fill |= c->right;
	int n = place_order(e->m, c->batch | c->left | (rows ? 0 : c->right), want), nb = place_extents(e, dim);
	for (int i = 0, k = 0; i < c->naxis; i++)
		if (c->batch >> i & 1) {
			if (!(has >> i & 1))
				dim[k] = 1;
			k++;
		}
	if (!(has & heads))
		dim[nb] = 1;
	if (!(e->m->t && has >> e->m->t & 1))
		dim[nb + 1] = 1;
	if (!(has & c->right))
		dim[nb + 2] = 1;
	v = place_as(e, v, lab, want, n, fill);
	return ir_reshape(&e->b, v, nb + (rows ? 2 : 3), dim);
}

/* --- the ops' operands ---------------------------------------------------------------- */

static void forward(struct env *e, int i);

/* [B.., G, T] as [B.., G, T, 1]. */
static ir_val column(struct env *e, ir_val l, enum dtype as)
{
	const struct ir_type_info *t = ir_vtype(e->b.m, e->b.fn, l);
	int64_t dim[ATOMS];
	int rank = t->rank;
	memcpy(dim, t->dim, sizeof *dim * (size_t)rank);
	dim[rank] = 1;
	return ir_reshape(&e->b, ir_convert(&e->b, l, as), rank + 1, dim);
}

/* [P, n], P the axes of set, as [B.., 1, 1, n], of which each head that shares keys has its own, or not. */
static ir_val as_table(struct env *e, ir_val v, uint64_t set)
{
	int64_t dim[ATOMS];
	int nb = place_extents(e, dim), k = 0;
	v = ir_convert(&e->b, v, score_sums(e));
	for (int i = 1; i < e->m->c->naxis; i++)
		if (e->m->c->batch >> i & 1 && !(set >> i & 1))
			dim[k++] = 1;
		else
			k += e->m->c->batch >> i & 1;
	dim[nb + 2] = ir_vtype(e->b.m, e->b.fn, v)->dim[1] * (set & e->m->c->left ? dim[nb] : 1);
	dim[nb] = dim[nb + 1] = 1;
	return ir_reshape(&e->b, v, nb + 3, dim);
}

/* The axes of a batch and of heads that lab has; of heads all or none. */
static uint64_t apart_of(const struct match *m, int lab)
{
	uint64_t set = lab_of(m->c, lab)->set & (m->c->batch | place_heads(m));
	return set & place_heads(m) ? set | place_heads(m) : set;
}

static ir_val extra(struct env *e, const struct extra *x, int fwd)
{
	if (x->table) {
		uint64_t set = apart_of(e->m, x->lab);
		return as_table(e, x->apart ? look_apart(e, x->v, x->lab, set) : place_each(e, e->get(e, x->v, x->lab), x->lab, set, true), set);
	}
	if (x->sums)
		return column(e, e->o[fwd][1], x->as);
	if (x->top) {
		forward(e, x->top - 1);
		return column(e, e->o[x->top - 1][2], score_sums(e));
	}
	if (!x->index)
		return matrix(e, e->get(e, x->v, x->lab), x->lab, false);
	struct lab l = { .rank = (uint8_t)x->n };
	int64_t dim[ATOMS], all = 1;
	for (int i = 0; i < x->n; i++) {
		l.n[i] = 1;
		l.axis[i][0] = x->axis[i];
		all *= dim[i] = e->size[x->axis[i]];
	}
	ir_val at = x->part ? ir_reshape(&e->b, ir_iota(&e->b, ir_tensor(e->b.m, DT_i32, 1, &all), 0), x->n, dim) : e->index(e, x->n, x->axis);
	return matrix(e, at, lab_add(e->m->c, &l), false);
}

/* --- the ops --------------------------------------------------------------------------- */

/* [B.., G, T] spread over the vectors of v. */
static ir_val spread(struct ir_b *b, ir_val x, ir_val v)
{
	const struct ir_type_info *t = ir_vtype(b->m, b->fn, v);
	enum dtype dt = ir_vtype(b->m, b->fn, x)->dtype;
	int64_t dims[ATOMS], dim[ATOMS];
	int rank = t->rank;
	memcpy(dim, t->dim, sizeof *dim * (size_t)rank);
	for (int d = 0; d + 1 < rank; d++)
		dims[d] = d;
	return ir_broadcast(b, x, ir_tensor(b->m, dt, rank, dim), dims);
}

/* The type of what exits of this kind and op are made from: the widest of theirs, dt if there are none. */
static enum dtype given_as(const struct env *e, enum exit_kind kind, int op, enum dtype dt)
{
	enum dtype most = DT_token;
	size_t n = e->m->exit.n, all = n + e->m->more.n;
	for (size_t i = 0; i < all && e->wide == DT_token; i++) {
		const struct exit *x = i < n ? &e->m->exit.p[i] : &e->m->more.p[i - n];
		bool summed = x->kind == EXIT_DX && kind == EXIT_DQ;
		enum dtype own = summed || x->more || i >= n ? score_sums(e) : (enum dtype)ir_vtype(e->m->c->m, e->m->c->fn, x->v)->dtype;
		if ((x->kind == kind || summed) && x->op == op && (most == DT_token || dtype_info[own].bytes > dtype_info[most].bytes))
			most = own;
	}
	return most == DT_token || dtype_info[most].bytes < dtype_info[dt].bytes ? dt : most;
}

static void forward(struct env *e, int i)
{
	const struct fwd *f = &e->m->fwd.p[i];
	const struct fac x = *fac_of(e->m->c, e->m->x);
	struct scalar s;
	if (e->o[i][0])
		return;
	ir_val in[3 + MOST_EXTRA];
	in[0] = vectors(e, x.a, true);
	in[1] = vectors(e, x.b, false);
	int64_t dim[ATOMS], nb = place_extents(e, dim);
	if (f->v) {
		in[2] = vectors(e, f->v, false);
	} else {                         /* nobody wants o */
		const struct ir_type_info *k = ir_vtype(e->b.m, e->b.fn, in[1]);
		memcpy(dim, k->dim, sizeof *dim * (size_t)(k->rank - 1));
		dim[nb + 1] = 1;
		enum dtype dt = (enum dtype)k->dtype;
		in[2] = ir_const_f(&e->b, ir_tensor(e->b.m, dt, (int)nb + 2, dim), 0);
		nb = place_extents(e, dim);
	}
	int64_t fn = score_function(e, f, 0, -1, false, &s);
	for (int k = 0; k < s.nextra; k++)
		in[3 + k] = extra(e, &s.extra[k], i);
	ir_type t[3];
	dim[nb + 2] = ir_vtype(e->b.m, e->b.fn, in[2])->dim[nb + 1];
	enum dtype ot = given_as(e, EXIT_O, i, (enum dtype)ir_vtype(e->b.m, e->b.fn, in[0])->dtype);
	bool apart = ot == DT_bf16;      /* where no gradient asks for more pass_attention puts it together again, or what is for a gradient is dropped */
	t[0] = ir_tensor(e->b.m, apart ? DT_f32 : ot, (int)nb + 3, dim);
	t[1] = t[2] = ir_tensor(e->b.m, f->part ? score_sums(e) : DT_f64, (int)nb + 2, dim);
	ir_val o = ir_emit_raw(&e->b, f->part ? IR_attention_part : IR_attention, (uint32_t)(3 + s.nextra), in, f->part ? 3 : 2, t, &fn, 1);
	e->o[i][0] = o;
	e->o[i][1] = o + 1;
	if (apart)
		e->o[i][5] = attn_two_parts(&e->b, o, &e->o[i][4]);
	if (apart && !f->part)           /* what a part gives is multiplied by what its rows have elsewhere before it is rounded */
		e->o[i][0] = e->o[i][5];
	e->infinite |= s.infinite;
	if (f->part) {
		e->o[i][2] = o + 1;
		e->o[i][3] = o + 2;
		ir_val m = ir_convert(&e->b, o + 1, DT_f64), z = ir_convert(&e->b, o + 2, DT_f64);
		e->o[i][1] = ir_bin(&e->b, ELEM_add, m, ir_un(&e->b, ELEM_log, z));
	}
}

/* Rows of attention i that have no key; 0: there are none. */
static ir_val empty_rows(struct env *e, int i)
{
	ir_val l = e->o[i][1], none;
	if (!e->infinite)
		return 0;
	none = ir_const_f(&e->b, e->b.fn->val.p[l].type, -INFINITY);
	return ir_bin(&e->b, ELEM_compare_eq, l, none);
}

/* v, NaN where `on`, [B.., G, T], is true. */
static ir_val nan_where(struct env *e, ir_val on, ir_val v)
{
	ir_val nan = ir_const_f(&e->b, e->b.fn->val.p[v].type, NAN);
	if (ir_vtype(e->b.m, e->b.fn, v)->rank != ir_vtype(e->b.m, e->b.fn, on)->rank)
		on = spread(&e->b, on, v);
	return ir_select(&e->b, on, nan, v);
}

/* The same of v, [B.., S, ..], where any row of a batch is. */
static ir_val nan_where_any(struct env *e, ir_val on, ir_val v)
{
	struct ir_b *b = &e->b;
	const struct ir_type_info *t = ir_vtype(b->m, b->fn, v);
	int rank = t->rank;
	int64_t dims[ATOMS], full[ATOMS], rows[2] = { rank - 2, rank - 1 };
	memcpy(full, t->dim, sizeof *full * (size_t)rank);
	for (int d = 0; d < rank - 2; d++)
		dims[d] = d;
	bool no = false;
	ir_val none = ir_const(b, ir_scalar(b->m, DT_pred), &no, 1);
	on = ir_reduce1(b, RED_or, on, none, 2, rows);
	on = ir_broadcast(b, on, ir_tensor(b->m, DT_pred, rank, full), dims);
	ir_val nan = ir_const_f(b, b->fn->val.p[v].type, NAN);
	return ir_select(b, on, nan, v);
}

/* Is what polynomial p is made of the highest score of rows, which samples have as the program does? */
static bool of_highest(const struct match *m, int p)
{
	const struct poly *x = poly_of(m->c, p);
	for (int i = 0; i < x->n; i++)
		for (int k = 0; k < x->m[i].n; k++) {
			const struct fac *f = fac_of(m->c, x->m[i].f[k].f);
			for (size_t j = 0; j < m->exit.n && f->kind == FAC_LEAF; j++)
				if (m->exit.p[j].kind == EXIT_M && m->exit.p[j].v == (ir_val)f->a)
					return true;
		}
	return false;
}

/* As the program has it where a row has no key: 0/0; or -inf less -inf, where a gradient's l is the program's. */
static ir_val with_empty(struct env *e, const struct exit *x, int fwd, ir_val v)
{
	static const int bit[] = { [EXIT_O] = EMPTY_O, [EXIT_L] = EMPTY_L, [EXIT_DELTA] = 0, [EXIT_DQ] = EMPTY_DQ, [EXIT_DK] = EMPTY_DK, [EXIT_DV] = EMPTY_DV, [EXIT_DX] = 0, [EXIT_TALLY] = 0 };
	if (x->kind >= EXIT_DQ && e->m->bwd.p[x->op].given) {
		if (of_highest(e->m, e->m->bwd.p[x->op].less) && !(e->m->empty & bit[x->kind]))
			return v;
		ir_val l = e->d[x->op][3], none = l ? ir_const_f(&e->b, e->b.fn->val.p[l].type, -INFINITY) : 0;
		ir_val gone = l ? ir_bin(&e->b, ELEM_compare_eq, l, none) : 0;
		return !l ? v : x->kind == EXIT_DQ ? nan_where(e, gone, v) : nan_where_any(e, gone, v);
	}
	ir_val on = e->m->empty & bit[x->kind] ? empty_rows(e, fwd) : 0;
	return !on ? v : x->kind == EXIT_DK || x->kind == EXIT_DV ? nan_where_any(e, on, v) : nan_where(e, on, v);
}

/* A polynomial of rows, 0 if it is none, as [B.., G, T] of the type of the sums, or, spread, as t whose leading dimensions these are. */
static ir_val rows(struct env *e, int p, ir_type t)
{
	struct ir_b *b = &e->b;
	const struct poly x = *poly_of(e->m->c, p);
	ir_val sum = 0;
	int64_t dims[ATOMS];
	for (int d = 0; d < ATOMS; d++)
		dims[d] = d;
	for (int i = 0; i < x.n; i++) {
		double c = x.m[i].c;
		ir_val v = fabs(c) != 1 || !x.m[i].n ? ir_const_f(b, t, c) : 0;      /* 0: c alone */
		bool minus = !v && c < 0;
		for (int k = 0; k < x.m[i].n; k++) {
			const struct fac f = *fac_of(e->m->c, x.m[i].f[k].f);
			if (f.mask)
				continue;
			ir_val r = ir_convert(b, matrix(e, e->get(e, (ir_val)f.a, f.b), f.b, true), score_sums(e));
			bool below;
			r = score_power(b, ir_broadcast(b, r, t, dims), x.m[i].f[k].pow, &below);
			if (!v && below)
				v = ir_const_f(b, t, 1);
			v = v ? ir_bin(b, below ? ELEM_divide : ELEM_multiply, v, r) : r;
		}
		for (int k = 0; k < x.m[i].n; k++) {
			const struct fac f = *fac_of(e->m->c, x.m[i].f[k].f);
			if (!f.mask)
				continue;
			const struct ir_type_info *ti = ir_type_of(b->m, t);
			int64_t dim[ATOMS];
			int rank = ti->rank;
			memcpy(dim, ti->dim, sizeof *dim * (size_t)rank);
			ir_val on = matrix(e, e->get(e, (ir_val)f.a, f.b), f.b, true), zero = ir_const_f(b, t, 0);
			on = ir_broadcast(b, on, ir_tensor(b->m, DT_pred, rank, dim), dims);
			v = v ? v : ir_const_f(b, t, 1);
			v = ir_select(b, on, v, zero);
		}
		if (minus && !sum)
			v = ir_un(b, ELEM_negate, v);
		sum = sum ? ir_bin(b, minus ? ELEM_subtract : ELEM_add, sum, v) : v;
	}
	return sum ? sum : ir_const_f(b, t, 0);
}

/* The type of [B.., G, T] of the sums. */
static ir_type row_type(const struct env *e)
{
	int64_t dim[ATOMS];
	int nb = place_extents(e, dim);
	return ir_tensor(e->b.m, score_sums(e), nb + 2, dim);
}

/* coef exp(lift) Z^pow of exit x, which has one of the last two, [B.., G, T]: Z = z exp(m) of an attention, whose m may be as large as it likes. */
static ir_val lifted(struct env *e, const struct exit *x, int fwd)
{
	struct ir_b *b = &e->b;
	ir_type t = row_type(e);
	for (int i = 0; i < e->nlifted; i++)
		if (e->lifted[i].fwd == fwd && e->lifted[i].coef == x->coef && e->lifted[i].lift == x->lift && e->lifted[i].pow == x->pow)
			return e->lifted[i].v;
	ir_val up = x->lift ? rows(e, x->lift, t) : 0, k = 0;
	if (x->pow) {
		ir_val m = e->o[fwd][2], n = ir_const_f(b, t, x->pow);
		bool below;
		m = x->pow == 1 ? m : ir_bin(b, ELEM_multiply, m, n);
		up = up ? ir_bin(b, ELEM_add, m, up) : m;
		k = score_power(b, e->o[fwd][3], x->pow, &below);
		ir_val one = below ? ir_const_f(b, t, 1) : 0;
		k = below ? ir_bin(b, ELEM_divide, one, k) : k;
	}
	up = up ? ir_un(b, ELEM_exponential, up) : 0;
	k = !k ? up : up ? ir_bin(b, ELEM_multiply, k, up) : k;
	if (!poly_is_one(e->m->c, x->coef)) {
		ir_val c = rows(e, x->coef, t);
		k = ir_bin(b, ELEM_multiply, k, c);
	}
	if (e->nlifted < (int)NELEM(e->lifted)) {
		e->lifted[e->nlifted].fwd = fwd;
		e->lifted[e->nlifted].coef = x->coef;
		e->lifted[e->nlifted].lift = x->lift;
		e->lifted[e->nlifted].pow = x->pow;
		e->lifted[e->nlifted++].v = k;
	}
	return k;
}

static ir_val delta_of(struct env *e, int i, ir_val *d_o)
{
	const struct bwd *w = &e->m->bwd.p[i];
	struct ir_b *b = &e->b;
	forward(e, w->fwd);
	*d_o = vectors(e, w->d_o, true);
	ir_val wide = ir_convert(b, *d_o, score_sums(e)), below = e->o[w->fwd][4], y;
	ir_val o = below ? attn_whole(b, e->o[w->fwd][5], below) : ir_convert(b, e->o[w->fwd][0], score_sums(e));
	y = ir_bin(b, ELEM_multiply, wide, o);
	int64_t last = ir_vtype(b->m, b->fn, y)->rank - 1;
	ir_val zero = ir_const_f(b, ir_scalar(b->m, score_sums(e)), 0);
	return ir_reduce1(b, RED_add, y, zero, 1, &last);
}

/* r of rows, if f chooses scores: 0 in rows without a key, in which none is chosen. */
static ir_val where_chosen(struct env *e, const struct fwd *f, ir_val r)
{
	struct ir_b *b = &e->b;
	const struct mono masks = poly_of(e->m->c, f->masks)->m[0];
	int of;
	for (int i = 0; i < masks.n && !f->score; i++) {
		const struct fac x = *fac_of(e->m->c, masks.f[i].f);
		if (!match_top(e->m, (ir_val)x.a, x.b, &of))
			continue;
		forward(e, of);
		ir_val m = e->o[of][2], none = ir_const_f(b, b->fn->val.p[m].type, -INFINITY), zero = ir_const_f(b, b->fn->val.p[r].type, 0);
		ir_val on = ir_bin(b, ELEM_compare_eq, m, none);
		return ir_select(b, ir_vtype(b->m, b->fn, on)->rank == ir_vtype(b->m, b->fn, r)->rank ? on : spread(b, on, r), zero, r);
	}
	return r;
}

/* l, d_o and delta of a gradient whose rows are the program's. */
static void given(struct env *e, const struct bwd *w, ir_val *in)
{
	struct cand *c = e->m->c;
	struct ir_b *b = &e->b;
	ir_type t = row_type(e);
	in[0] = rows(e, poly_mul(c, poly_const(c, -1), w->less), t);
	in[1] = vectors(e, w->d_o, true);
	if (!poly_is_one(c, w->r)) {
		enum dtype dt = (enum dtype)ir_vtype(b->m, b->fn, in[1])->dtype;
		if (!e->m->fwd.p[w->fwd].score && e->wide == DT_token)      /* as q is read: chosen scores are multiplied as those that they were chosen of */
			dt = (enum dtype)ir_vtype(c->m, c->fn, (ir_val)fac_of(c, w->d_o)->a)->dtype;
		ir_val r = spread(b, where_chosen(e, &e->m->fwd.p[w->fwd], rows(e, w->r, t)), in[1]), wide = ir_convert(b, in[1], score_sums(e));
		in[1] = ir_convert(b, ir_bin(b, ELEM_multiply, wide, r), dt);
	}
	in[2] = rows(e, poly_mul(c, poly_const(c, -1), w->rest), t);
}

static void backward(struct env *e, int i)
{
	const struct bwd *w = &e->m->bwd.p[i];
	const struct fwd *f = &e->m->fwd.p[w->fwd];
	const struct fac x = *fac_of(e->m->c, e->m->x);
	struct ir_b *b = &e->b;
	struct scalar s;
	ir_val in[6 + MOST_EXTRA];
	if (e->d[i][0])
		return;
	int64_t fn = score_function(e, f, w->slope ? w->slope : poly_const(e->m->c, 1), i, w->given, &s);
	if (w->given) {
		given(e, w, &in[3]);
	} else {
		forward(e, w->fwd);
		in[3] = e->o[w->fwd][1];
		in[5] = delta_of(e, i, &in[4]);
		ir_type sums = b->fn->val.p[in[5]].type;
		if (w->rest) {
			ir_val more = rows(e, w->rest, sums);
			in[5] = ir_bin(b, ELEM_subtract, in[5], more);
		}
		if (score_hides(&s.fill, score_sums(e))) {
			int64_t dim[ATOMS], nb = place_extents(e, dim);
			ir_val part = score_dead(b, in[3], score_sums(e), &s.fill, dim[nb + 2]);
			in[5] = ir_bin(b, ELEM_multiply, in[5], part);
		}
	}
	in[0] = vectors(e, x.a, true);
	in[1] = vectors(e, x.b, false);
	in[2] = vectors(e, f->v, false);
	for (int k = 0; k < s.nextra; k++)
		in[6 + k] = extra(e, &s.extra[k], w->fwd);
	ir_type *t = ARENA_NEW(e->m->c->a, ir_type, 3 + e->m->tally.n);
	uint32_t n = 3;
	for (int k = 0; k < 3; k++) {
		const struct ir_type_info *like = ir_vtype(b->m, b->fn, in[k]);
		int64_t dim[ATOMS];
		int rank = like->rank;
		enum dtype dt = given_as(e, EXIT_DQ + (enum exit_kind)k, i, (enum dtype)like->dtype);
		memcpy(dim, like->dim, sizeof *dim * (size_t)rank);
		t[k] = ir_tensor(b->m, dt, rank, dim);
	}
	for (size_t k = 0; k < e->m->tally.n; k++) {
		const struct tally *y = &e->m->tally.p[k];
		int64_t dim[ATOMS];
		int nb = place_extents(e, dim);
		dim[nb + 2] = y->n * (y->apart ? dim[nb] : 1);
		dim[nb] = dim[nb + 1] = 1;
		if (y->bwd == i)
			t[n++] = ir_tensor(b->m, score_sums(e), nb + 3, dim);
	}
	ir_val g = ir_emit_raw(b, IR_attention_grad, (uint32_t)(6 + s.nextra), in, n, t, &fn, 1);
	for (int k = 0; k < 3; k++)
		e->d[i][k] = g + (ir_val)k;
	e->d[i][4] = g + 3;
	e->d[i][3] = w->given && s.infinite && poly_is_one(e->m->c, f->masks) ? in[3] : 0;
}

/* [B.., G, T]: the sum of q dq over the vectors. */
static ir_val along_q(struct env *e, ir_val dq)
{
	struct ir_b *b = &e->b;
	ir_val q = ir_convert(b, vectors(e, fac_of(e->m->c, e->m->x)->a, true), score_sums(e)), zero = ir_const_f(b, ir_scalar(b->m, score_sums(e)), 0);
	int64_t last = ir_vtype(b->m, b->fn, q)->rank - 1;
	dq = ir_convert(b, dq, score_sums(e));
	return ir_reduce1(b, RED_add, ir_bin(b, ELEM_multiply, q, dq), zero, 1, &last);
}

/* v, [B.., G, T], summed over the axes that lab has not: in the order of those that it has. */
static ir_val sum_to(struct env *e, ir_val v, int lab)
{
	struct ir_b *b = &e->b;
	uint8_t axis[ATOMS];
	int64_t dim[ATOMS], over[ATOMS];
	int n = place_order(e->m, e->m->c->batch | e->m->c->left, axis), nover = 0;
	for (int i = 0; i < n; i++) {
		dim[i] = e->size[axis[i]];
		if (!(lab_of(e->m->c, lab)->set >> axis[i] & 1))
			over[nover++] = i;
	}
	v = ir_reshape(b, v, n, dim);
	ir_val zero = ir_const_f(b, ir_scalar(b->m, score_sums(e)), 0);
	return nover ? ir_reduce1(b, RED_add, v, zero, nover, over) : v;
}

/* v, of whose dimensions at[] says which one an axis is, in the layout of lab and of type t. */
static ir_val turned(struct env *e, ir_val v, int lab, const int *at, ir_type t)
{
	struct ir_b *b = &e->b;
	const struct lab *l = lab_of(e->m->c, lab);
	int64_t perm[ATOMS], shape[MAX_RANK];
	int np = 0;
	for (int d = 0; d < l->rank; d++)
		for (int k = 0; k < l->n[d]; k++)
			perm[np++] = at[l->axis[d][k]];
	assert(np == ir_vtype(b->m, b->fn, v)->rank);
	v = ir_transpose(b, v, perm);
	const struct ir_type_info *to = ir_type_of(b->m, t);
	int rank = to->rank;
	enum dtype dt = (enum dtype)to->dtype;
	memcpy(shape, to->dim, sizeof *shape * (size_t)rank);
	v = ir_reshape(b, v, rank, shape);
	return ir_convert(b, v, dt);
}

/* v, [B.., G, T] or [B.., S] and a vector behind if lab has one, in the layout of lab and of type t. */
static ir_val unplace(struct env *e, ir_val v, int lab, ir_type t)
{
	struct ir_b *b = &e->b;
	const struct lab *l = lab_of(e->m->c, lab);
	const struct ir_type_info *have = ir_vtype(b->m, b->fn, v);
	int64_t dim[ATOMS], vec = have->rank ? have->dim[have->rank - 1] : 1;
	uint8_t want[ATOMS];
	int n = place_order(e->m, l->set, want), at[ATOMS];
	for (int i = 0; i < n; i++) {
		dim[i] = e->size[want[i]];
		at[want[i]] = i;
	}
	if (l->set & 1) {
		at[VEC] = n;
		dim[n++] = vec;
	}
	return turned(e, ir_reshape(b, v, n, dim), lab, at, t);
}

/* [B.., G, T] or [B.., S], and a vector: what exit x is, or of a sum the first part. */
static ir_val one_exit(struct env *e, const struct exit *x, ir_type t)
{
	struct cand *c = e->m->c;
	struct ir_b *b = &e->b;
	ir_val v = 0, d_o;
	int fwd = 0;
	switch (x->kind) {
	case EXIT_O: case EXIT_L: case EXIT_M:
		fwd = x->op;
		forward(e, fwd);
		v = with_empty(e, x, fwd, e->o[fwd][x->kind - EXIT_O]);
		break;
	case EXIT_Z:
		forward(e, x->op);
		return lifted(e, x, x->op);
	case EXIT_DELTA:
		fwd = e->m->bwd.p[x->op].fwd;
		v = delta_of(e, x->op, &d_o);
		break;
	case EXIT_DQ: case EXIT_DK: case EXIT_DV:
		backward(e, x->op);
		v = with_empty(e, x, e->m->bwd.p[x->op].fwd, e->d[x->op][x->kind - EXIT_DQ]);
		break;
	case EXIT_DX:
		backward(e, x->op);
		v = along_q(e, e->d[x->op][0]);
		break;
	default:
		return ir_const_f(b, t, x->value);
	}
	if (x->lift || x->pow) {
		ir_val k = where_chosen(e, &e->m->fwd.p[fwd], lifted(e, x, fwd));
		v = ir_convert(b, v, score_sums(e));
		k = ir_vtype(b->m, b->fn, v)->rank == ir_vtype(b->m, b->fn, k)->rank ? k : spread(b, k, v);
		v = ir_bin(b, ELEM_multiply, v, k);
	} else if (!poly_is_one(c, x->coef)) {
		const struct ir_type_info *have = ir_vtype(b->m, b->fn, v);
		int64_t dim[ATOMS];
		int rank = have->rank;
		memcpy(dim, have->dim, sizeof *dim * (size_t)rank);
		ir_type wide = ir_tensor(b->m, score_sums(e), rank, dim);
		v = ir_convert(b, v, score_sums(e));
		ir_val k = rows(e, x->coef, wide);
		v = ir_bin(b, ELEM_multiply, v, k);
	}
	return x->kind == EXIT_DX ? sum_to(e, v, x->lab) : v;
}

/* The tally of exit x as [P, N], P the axes of own: summed over all others of the batch. */
static ir_val tally(struct env *e, const struct exit *x, const struct tallied *y, uint64_t own)
{
	struct ir_b *b = &e->b;
	const struct tally *is = &e->m->tally.p[y->tally];
	uint8_t axis[ATOMS];
	int64_t dim[ATOMS], over[ATOMS], flat[2] = { 1, is->n };
	int n = place_order(e->m, e->m->c->batch | (is->apart ? place_heads(e->m) : 0), axis), nover = 0;
	ir_val v = e->d[x->op][4];
	for (const struct tally *k = e->m->tally.p; k < is; k++)
		v += k->bwd == x->op;
	for (int i = 0; i < n; i++) {
		dim[i] = e->size[axis[i]];
		if (own >> axis[i] & 1)
			flat[0] *= dim[i];
		else
			over[nover++] = i;
	}
	dim[n] = is->n;
	v = ir_reshape(b, v, n + 1, dim);
	ir_val zero = ir_const_f(b, ir_scalar(b->m, score_sums(e)), 0);
	return ir_reshape(b, nover ? ir_reduce1(b, RED_add, v, zero, nover, over) : v, 2, flat);
}

/* Element by element of a table, or the sum over distances. */
static ir_val tallied(struct env *e, const struct exit *x, ir_type t)
{
	struct ir_b *b = &e->b;
	const struct cand *c = e->m->c;
	const struct tallied y = e->m->tallied.p[x->tallied];
	uint64_t own = lab_of(c, x->lab)->set & ~c->tables;
	uint8_t axis[ATOMS];
	int64_t dim[ATOMS];
	int n = place_order(e->m, own, axis), at[ATOMS];
	backward(e, x->op);
	ir_val v = tally(e, x, &y, own);
	int64_t p = ir_vtype(b->m, b->fn, v)->dim[0], l = ir_vtype(b->m, b->fn, v)->dim[1], all[2] = { y.at.n, p };
	for (int i = 0; i < y.nby; i++) {
		ir_val f = ir_convert(b, look_apart(e, y.by[i].v, y.by[i].lab, own), score_sums(e));
		v = ir_bin(b, ELEM_multiply, v, f);
	}
	ir_val k = ir_const_f(b, b->fn->val.p[v].type, poly_of(c, x->coef)->m[0].c), zero = ir_const_f(b, ir_scalar(b->m, score_sums(e)), 0);
	v = ir_bin(b, ELEM_multiply, v, k);
	if (!y.at.table) {
		v = ir_reduce1(b, RED_add, v, zero, 1, (int64_t[]){ 1 });
	} else {
		v = ir_transpose(b, v, (int64_t[]){ 1, 0 });
		if (y.at.index) {
			static const int64_t w[] = { 1, 1, 1, 0, 0, 0, 1, 0, 1, 0, 0, RED_add, 0 };
			int64_t places[2] = { l, 1 };
			ir_type sums = ir_tensor(b->m, score_sums(e), 2, all);
			ir_val none = ir_const_f(b, sums, 0), where = ir_reshape(b, look_apart(e, y.at.index, y.at.index_lab, 0), 2, places);
			v = ir_emit(b, IR_scatter, 3, (ir_val[]){ none, where, v }, sums, w, NELEM(w));
		}
		at[y.at.axis] = 0;
		dim[0] = y.at.n;
	}
	bool table = y.at.table;
	for (int i = 0; i < n; i++) {
		at[axis[i]] = i + table;
		dim[i + table] = e->size[axis[i]];
	}
	return turned(e, ir_reshape(b, v, n + table, dim), x->lab, at, t);
}

ir_val emit_exit(struct env *e, const struct exit *x, ir_type t)
{
	if (x->kind == EXIT_TALLY)
		return tallied(e, x, t);
	ir_val v = one_exit(e, x, t);
	if (x->kind == EXIT_CONST)
		return v;
	for (const struct exit *p = x; p->more; ) {
		p = &e->m->more.p[p->more];
		v = ir_convert(&e->b, v, score_sums(e));
		ir_val w = ir_convert(&e->b, one_exit(e, p, t), score_sums(e));
		v = ir_bin(&e->b, ELEM_add, v, w);
	}
	return unplace(e, v, x->lab, t);
}

/* --- what is read -------------------------------------------------------------------------- */

struct seen { void (*leaf)(void *, ir_val, int); void *user; };

static void leaf_fac(const struct cand *c, int f, const struct seen *s)
{
	if (f && fac_of(c, f)->kind == FAC_LEAF)
		s->leaf(s->user, (ir_val)fac_of(c, f)->a, fac_of(c, f)->b);
}

static bool leaves(struct match *m, int fwd, int slope, int bwd, bool given, const struct seen *s)
{
	struct cand *c = m->c;
	const struct fac x = *fac_of(c, m->x);
	struct env e = { .b = { c->m }, .m = m, .wide = DT_token };
	struct scalar f;
	leaf_fac(c, x.a, s);
	leaf_fac(c, x.b, s);
	leaf_fac(c, m->fwd.p[fwd].v, s);
	if (!score_function(&e, &m->fwd.p[fwd], slope, bwd, given, &f)) {
		cand_fail(c, ir_def(c->fn, c->seed)->loc, f.why);
		return false;
	}
	ir_fn_drop(c->m);
	for (int i = 0; i < f.nextra; i++)
		if (f.extra[i].top && !leaves(m, f.extra[i].top - 1, 0, -1, false, s))
			return false;
		else if (f.extra[i].apart)
			look_leaves(m, f.extra[i].v, f.extra[i].lab, s->leaf, s->user);
		else if (!f.extra[i].index && !f.extra[i].sums && !f.extra[i].top)
			s->leaf(s->user, f.extra[i].v, f.extra[i].lab);
	return true;
}

static void leaf_poly(const struct cand *c, int p, const struct seen *s)
{
	for (int i = 0; p > 0 && i < poly_of(c, p)->n; i++)
		for (int k = 0; k < poly_of(c, p)->m[i].n; k++)
			leaf_fac(c, poly_of(c, p)->m[i].f[k].f, s);
}

bool emit_leaves(struct match *m, const struct exit *x, void (*leaf)(void *user, ir_val v, int lab), void *user)
{
	struct seen s = { leaf, user };
	if (x->kind == EXIT_CONST)
		return true;
	if (x->more && !emit_leaves(m, &m->more.p[x->more], leaf, user))
		return false;
	leaf_poly(m->c, x->coef, &s);
	leaf_poly(m->c, x->lift, &s);
	if (x->kind < EXIT_DELTA)
		return leaves(m, x->op, 0, -1, false, &s);
	const struct bwd *w = &m->bwd.p[x->op];
	leaf_fac(m->c, w->d_o, &s);
	leaf_poly(m->c, w->rest, &s);
	leaf_poly(m->c, w->less, &s);
	leaf_poly(m->c, w->r, &s);
	const struct tallied *y = x->kind == EXIT_TALLY ? &m->tallied.p[x->tallied] : NULL;
	for (int i = 0; y && i < y->nby; i++)
		look_leaves(m, y->by[i].v, y->by[i].lab, leaf, user);
	if (y && y->at.index)
		look_leaves(m, y->at.index, y->at.index_lab, leaf, user);
	return (w->given || leaves(m, w->fwd, 0, -1, false, &s)) && (x->kind == EXIT_DELTA || leaves(m, w->fwd, w->slope ? w->slope : poly_const(m->c, 1), x->op, w->given, &s));
}
