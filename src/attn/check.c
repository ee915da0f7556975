/* The check on every compile: the region and the ops on samples, by the oracle.  In f64 they must agree; in the program's own types the ops
 * may not be much further off than the program.  Rows without a key that counts are tried, too. */
#include "impl.h"

#include <math.h>
#include <stdlib.h>

struct rng { uint64_t s; };

/* What leaves are filled with: anything, or such that the second row, or all of the second batch (of one: the first), or half of the keys,
 * or all (NONE), do not count, since what is compared is less than all others, or more. */
enum mode { ALIVE, LOW, HIGH, NONE };

static uint64_t draw(struct rng *r)
{
	r->s = r->s * 6364136223846793005u + 1442695040888963407u;
	uint64_t x = r->s ^ r->s >> 29;
	return x * 0xbf58476d1ce4e5b9u >> 11;
}

static double normal(struct rng *r)
{
	double s = 0;
	for (int i = 0; i < 12; i++)
		s += (double)(draw(r) & 0xfffff) / 0x100000;
	return s - 6;
}

/* --- data ------------------------------------------------------------------------------ */

static int64_t size_of(const struct sample *s, int axis, int64_t extent) { return axis == VEC ? extent : s->size[axis]; }

/* Where element i of a leaf of such extents is along axis k of dimension d. */
static int64_t place(const struct sample *s, const struct lab *l, const int64_t *dim, int64_t i, int d, int k)
{
	for (int e = l->rank - 1; e > d; e--)
		i /= dim[e];
	i %= dim[d];
	for (int j = l->n[d] - 1; j > k; j--)
		i /= size_of(s, l->axis[d][j], dim[d]);
	return i % size_of(s, l->axis[d][k], dim[d]);
}

/* How far it is along the axes of a set: 0 at the begin of all; -1: the leaf has none of them. */
static int64_t along(const struct sample *s, const struct lab *l, const int64_t *dim, int64_t i, uint64_t axes)
{
	int64_t at = -1;
	for (int d = 0; d < l->rank; d++)
		for (int k = 0; k < l->n[d]; k++)
			if (axes >> l->axis[d][k] & 1)
				at = MAX(at, 0) + place(s, l, dim, i, d, k);
	return at;
}

/* What element i of leaf n is in the program on a device, if it follows from indices alone; NaN: it does not. */
static double follows(const struct sample *s, int n, const int64_t *dim, int64_t i, int64_t device)
{
	const struct cand *c = s->m->c;
	const struct lab *l = lab_of(c, s->leaf[n].lab);
	const struct ir_type_info *t = ir_vtype(c->m, c->fn, s->leaf[n].v);
	int64_t lo[IR_MAX_RANK], hi[IR_MAX_RANK], work = 1 << 12;
	for (int d = 0; d < t->rank; d++) {
		lo[d] = 0;
		for (int k = 0; k < l->n[d]; k++) {
			int a = l->axis[d][k];
			int64_t at = place(s, l, dim, i, d, k);
			lo[d] = lo[d] * (a == VEC ? t->dim[d] : c->axis[a].size) + (a == VEC ? at : s->index[a][at]);
		}
		hi[d] = lo[d] + 1;
	}
	struct eval_bounds b = { c->m, c->fn, device, NULL, s->known, &work };
	struct kern_bound is = eval_bound(&b, s->leaf[n].v, lo, hi);
	return is.nan || is.lo != is.hi ? NAN : is.lo;
}

/* Finds out what follows from indices, on the first device and on the last.  Returns the last mode of rows without keys that there is to try: the
 * first one, if nothing that a mask is made of is drawn and there is one device. */
static enum mode learn(struct sample *s)
{
	const struct cand *c = s->m->c;
	int64_t last = MAX(1, c->m->num_partitions) - 1;
	bool drawn = false;
	for (int i = 0; i < s->nleaf; i++) {
		const struct ir_type_info *t = ir_type_of(c->m, sample_type(s, s->leaf[i].v, s->leaf[i].lab));
		const struct lab *l = lab_of(c, s->leaf[i].lab);
		bool vector = l->set & 1 && dtype_info[t->dtype].cls == DT_FLOAT;
		for (int k = 0; k < (last ? 2 : 1); k++) {
			double *is = s->leaf[i].is[k] = ARENA_NEW(c->a, double, t->count + 1);
			for (int64_t n = 0; n < t->count; n++) {
				is[n] = vector ? NAN : follows(s, i, t->dim, n, k ? last : 0);
				drawn |= !vector && isnan(is[n]);
			}
		}
		if (!last)
			s->leaf[i].is[1] = s->leaf[i].is[0];
	}
	return drawn ? NONE : last ? HIGH : LOW;
}

static bool in_poly(const struct cand *c, int p, ir_val v)
{
	for (int i = 0; p > 0 && i < poly_of(c, p)->n; i++)
		for (int k = 0; k < poly_of(c, p)->m[i].n; k++)
			if (fac_of(c, poly_of(c, p)->m[i].f[k].f)->kind == FAC_LEAF && (ir_val)fac_of(c, poly_of(c, p)->m[i].f[k].f)->a == v)
				return true;
	return false;
}

/* May leaf v be 0: is it no number that all is divided by, the sum of a row's exponentials say? */
static bool may_vanish(const struct match *m, ir_val v, const struct lab *l)
{
	if (!l->set)
		return false;
	for (size_t i = 0; i < m->exit.n; i++)
		if (in_poly(m->c, m->exit.p[i].coef, v))
			return false;
	for (size_t i = 0; i < m->bwd.n; i++)
		if (in_poly(m->c, m->bwd.p[i].r, v) || in_poly(m->c, m->bwd.p[i].rest, v))
			return false;
	return true;
}

static bool is_endless(const struct match *m, ir_val v)
{
	for (int i = 0; i < MOST_FILL && m->endless[i]; i++)
		if (m->endless[i] == v)
			return true;
	return false;
}

/* An element of a leaf of n.  zero: rows may be without keys by numbers that are 0, too. */
static double element(const struct sample *s, struct rng *r, enum dtype dt, const struct lab *l, const struct eval_array *x, int64_t i, int64_t n, enum mode mode, bool zero)
{
	const struct cand *c = s->m->c;
	bool rows = l->set & c->left, dead = mode != ALIVE;
	uint64_t those = rows ? c->left : c->batch;
	int64_t key = along(s, l, x->dim, i, c->right), at = along(s, l, x->dim, i, those);
	int64_t last_key = along(s, l, x->dim, n - 1, c->right), last = along(s, l, x->dim, n - 1, those);
	bool one = at < 0 && key < 0;                     /* for all rows */
	bool half = !rows && key >= 0 && (mode == NONE || (2 * key <= last_key) == (mode == LOW));      /* of the keys */
	bool mine = dead && (one || half || (at >= 0 && at == MIN(1, last)));
	switch (dtype_info[dt].cls) {
	case DT_PRED:
		return mine ? one && mode == HIGH : key == 0 && !dead ? 1 : draw(r) % 10 < 7;
	case DT_INT: case DT_UINT:
		if (dtype_info[dt].cls == DT_UINT && dtype_info[dt].bytes >= 4)      /* random bits, mostly */
			return (double)(draw(r) & 0xffffffff);
		if (mine)                                /* a position, a segment, a length */
			return mode == HIGH ? dtype_info[dt].bytes >= 4 ? 1 << 24 : 99 : half || dtype_info[dt].cls == DT_UINT ? 0 : -1;
		return dead && draw(r) % 2 ? (double)(draw(r) % 40) : (double)(draw(r) % 4);
	default: {
		double v = normal(r);
		return l->set & 1 || !dead || !zero ? v : (mine && !one) || draw(r) % 2 ? 0 : v;
	}
	}
}

/* Arrays for all leaves, in the program's types, or all floats, with the same values, in f64. */
static void fill(const struct sample *s, const struct ir_fn *fn, enum mode mode, struct eval_array *out)
{
	const struct cand *c = s->m->c;
	struct rng r = { 42 };
	for (int i = 0; i < s->nleaf; i++) {
		const struct ir_type_info *t = ir_vtype(c->m, fn, (ir_val)i + 1);
		enum dtype own = (enum dtype)ir_vtype(c->m, c->fn, s->leaf[i].v)->dtype, dt = (enum dtype)t->dtype;
		out[i] = (struct eval_array){ .dtype = dt, .rank = t->rank, .bytes = (size_t)t->bytes, .p = mem_aligned(64, (size_t)t->bytes + 1) };
		memcpy(out[i].dim, t->dim, sizeof *t->dim * t->rank);
		bool zero = may_vanish(s->m, s->leaf[i].v, lab_of(c, s->leaf[i].lab));
		for (int64_t k = 0; k < t->count; k++) {
			char buf[16], *to = (char *)out[i].p + (size_t)k * dtype_info[dt].bytes;
			double v = mode == ALIVE && !s->m->far ? NAN : s->leaf[i].is[mode == HIGH][k];
			if (isnan(v)) {
				v = element(s, &r, own, lab_of(c, s->leaf[i].lab), &out[i], k, t->count, mode, zero);
				if (mode != ALIVE && v == 0 && is_endless(s->m, s->leaf[i].v))
					v = -INFINITY;
			}
			kern_elem(ELEM_convert, DT_f64, own)(1, buf, &v, NULL, NULL);
			kern_elem(ELEM_convert, own, dt)(1, to, buf, NULL, NULL);
		}
	}
}

/* --- runs --------------------------------------------------------------------------------- */

struct run { int n; double **v; int64_t *count; };

/* The results of fn as f64, in the candidate's arena. */
static struct err *results(const struct sample *s, const struct ir_fn *fn, enum mode mode, struct run *out)
{
	const struct cand *c = s->m->c;
	struct eval_array *in = mem_alloc(sizeof *in * (size_t)(s->nleaf + 1)), *res = mem_alloc(sizeof *res * (fn->result.n + 1));
	memset(res, 0, sizeof *res * (fn->result.n + 1));
	fill(s, fn, mode, in);
	struct err *e = eval_fn(c->m, fn, in, res);
	out->n = (int)fn->result.n;
	out->v = ARENA_NEW(c->a, double *, out->n + 1);
	out->count = ARENA_NEW(c->a, int64_t, out->n + 1);
	for (int i = 0; i < out->n && !e; i++) {
		enum dtype dt = (enum dtype)ir_vtype(c->m, fn, fn->result.p[i])->dtype;
		out->count[i] = ir_vtype(c->m, fn, fn->result.p[i])->count;
		out->v[i] = ARENA_NEW(c->a, double, out->count[i] + 1);
		kern_elem(ELEM_convert, dt, DT_f64)(out->count[i], out->v[i], res[i].p, NULL, NULL);
	}
	for (int i = 0; i < s->nleaf; i++)
		eval_array_free(&in[i]);
	for (int i = 0; i < out->n; i++)
		eval_array_free(&res[i]);
	mem_free(in);
	mem_free(res);
	return e;
}

/* Both functions, made and dropped. */
static struct err *both(struct sample *s, bool wide, enum mode mode, struct run *was, struct run *is)
{
	struct ir_module *m = s->m->c->m;
	size_t have = m->fn.n;
	s->wide = wide;
	struct ir_fn *a = sample_old(s), *b = s->why ? NULL : sample_new(s);
	struct err *e = s->why ? ERR(INTERNAL, "%s", s->why) : results(s, a, mode, was);
	if (!e)
		e = results(s, b, mode, is);
	while (m->fn.n > have)
		ir_fn_drop(m);
	return e;
}

/* --- comparisons ------------------------------------------------------------------------------ */

/* The greatest difference where both are numbers, and the greatest number.  *odd: one is a number where the other one is none (gradients: where
 * only the new one is none). */
static void differ(const double *was, const double *is, int64_t n, bool gradient, double *diff, double *most, bool *odd)
{
	for (int64_t i = 0; i < n; i++) {
		if (isnan(was[i]) || isinf(was[i])) {
			*odd |= !gradient && !(isnan(was[i]) ? isnan(is[i]) : was[i] == is[i]);
			continue;
		}
		*odd |= !isfinite(is[i]);
		*diff = fmax(*diff, fabs(was[i] - is[i]));
		*most = fmax(*most, fabs(was[i]));
	}
}

static bool is_gradient(const struct exit *x) { return x->kind >= EXIT_DELTA; }

/* In f64.  *odd: an exit that is NaN, or not, where the program is not, or is; -1: there is none. */
static const char *equal(struct match *m, const struct run *was, const struct run *is, bool dead, int *odd)
{
	*odd = -1;
	for (int i = 0; i < was->n; i++) {
		double diff = 0, most = 0;
		bool strange = false;
		differ(was->v[i], is->v[i], was->count[i], !dead && is_gradient(&m->exit.p[i]), &diff, &most, &strange);
		if (strange && *odd < 0)
			*odd = i;
		if (strange || !(diff <= (1e-9 + (dead && m->added < 0x1p57 ? 0x1p-50 * m->added : 0)) * fmax(most, 1)))
			return dead ? "an attention gives other values in rows without a key that counts" : "an attention gives other values";
	}
	return NULL;
}

/* Finds out what the program makes of rows without any key: each kind of exit is NaN there, or is not. */
static struct err *try_empty(struct sample *s, enum mode mode, const char **bad)
{
	static const int bit[] = { [EXIT_O] = EMPTY_O, [EXIT_L] = EMPTY_L, [EXIT_DQ] = EMPTY_DQ, [EXIT_DK] = EMPTY_DK, [EXIT_DV] = EMPTY_DV, [EXIT_DX] = 0, [EXIT_TALLY] = 0 };
	struct match *m = s->m;
	struct run was, is;
	int odd = -1;
	for (;;) {
		TRY(both(s, true, mode, &was, &is));
		*bad = equal(m, &was, &is, true, &odd);
		int b = *bad && odd >= 0 ? bit[m->exit.p[odd].kind] : 0;
		if (!b || m->empty & b)
			return NULL;
		m->empty |= b;
	}
}

/* In the program's types: was, is; exact: was in f64. */
static const char *precise(struct match *m, const struct run *was, const struct run *is, const struct run *exact)
{
	const struct cand *c = m->c;
	for (int i = 0; i < was->n; i++) {
		double old = 0, new = 0, most = 0;
		bool odd = false;
		differ(exact->v[i], was->v[i], was->count[i], true, &old, &most, &odd);
		odd = false;
		differ(exact->v[i], is->v[i], was->count[i], true, &new, &most, &odd);
		enum dtype dt = (enum dtype)ir_vtype(c->m, c->fn, m->exit.p[i].v)->dtype;
		int some = dt == DT_f64 || dt == DT_f32 ? 16 : 2;        /* of sums: what they are made of may be larger than what is left of it */
		some *= m->exit.p[i].kind >= EXIT_DX ? 16 : 1;           /* all of the scores' */
		double eps = dt == DT_f64 ? 0x1p-52 : dt == DT_f32 ? 0x1p-23 : dt == DT_bf16 ? 0x1p-8 : dt == DT_f16 ? 0x1p-10 : 0x1p-2;
		if (odd || !(new <= 2 * old + some * eps * most))
			return "an attention gives less exact values";
	}
	return NULL;
}

/* What the check depends on, as bytes: both functions, in the program's types, and what their operands are filled with. */
static void key_of(struct sample *s, struct str *key)
{
	struct match *m = s->m;
	struct cand *c = m->c;
	size_t have = c->m->fn.n;
	s->wide = false;
	ir_fn_bytes(key, c->m, sample_old(s), NULL, NULL);
	if (!s->why)
		ir_fn_bytes(key, c->m, sample_new(s), NULL, NULL);
	while (c->m->fn.n > have)
		ir_fn_drop(c->m);
	for (int i = 0; i < s->nleaf; i++) {
		const struct lab *l = lab_of(c, s->leaf[i].lab);
		str_addn(key, (const char *)l, sizeof *l);
		str_addn(key, (const char *)&ir_vtype(c->m, c->fn, s->leaf[i].v)->dtype, 1);
		str_addf(key, "%d", is_endless(m, s->leaf[i].v));
		const struct ir_type_info *t = ir_type_of(c->m, sample_type(s, s->leaf[i].v, s->leaf[i].lab));
		for (int k = 0; k < 2; k++)
			str_addn(key, (const char *)s->leaf[i].is[k], sizeof *s->leaf[i].is[k] * (size_t)t->count);
	}
	for (int i = 0; i < c->naxis; i++) {
		str_addn(key, (const char *)&s->size[i], sizeof s->size[i]);
		str_addn(key, (const char *)&c->axis[i], sizeof c->axis[i]);
	}
	for (size_t i = 0; i < m->exit.n; i++)
		str_addn(key, (const char *)&m->exit.p[i].kind, sizeof m->exit.p[i].kind);
	uint64_t sides[3] = { c->left, c->right, c->batch };
	str_addn(key, (const char *)sides, sizeof sides);
	str_addn(key, (const char *)&c->wide, sizeof c->wide);
}

/* empty: the last mode of rows without keys. */
static const char *compared(struct sample *s, enum mode empty)
{
	struct match *m = s->m;
	struct run was, is, own[2];
	int odd;
	const char *bad = NULL;
	struct err *e = NULL;
	for (enum mode mode = LOW; mode <= empty && !bad; mode++)
		TRY_GOTO(e, try_empty(s, mode, &bad), out);
	if (bad)
		return bad;
	TRY_GOTO(e, both(s, true, ALIVE, &was, &is), out);
	bad = equal(m, &was, &is, false, &odd);
	if (bad)
		return bad;
	for (int k = 0; k < 2; k++) {    /* in the types of what is read, if that will do */
		m->widen = k || m->c->wide;
		TRY_GOTO(e, both(s, false, ALIVE, &own[0], &own[1]), out);
		bad = precise(m, &own[0], &own[1], &was);
		if (!bad || m->widen)
			break;
	}
	return bad;
out:
	bad = arena_str(m->c->a, e->msg, strlen(e->msg));
	err_free(e);
	return bad;
}

const char *check_match(struct match *m)
{
	struct sample s;
	struct str key = {0};
	sample_start(&s, m);
	if (!sample_leaves(&s))
		return s.why;
	enum mode empty = learn(&s);
	key_of(&s, &key);
	uint64_t *at = s.why ? NULL : map_put(&m->c->room->checked, key.p, key.n);
	struct verdict *v = at ? (struct verdict *)(uintptr_t)*at : NULL;
	str_free(&key);
	if (s.why)
		return s.why;
	if (!v) {
		v = ARENA_NEW(m->c->a, struct verdict, 1);
		*at = (uintptr_t)v;
		v->why = compared(&s, empty);
		v->empty = m->empty;
		v->widen = m->widen;
	}
	m->empty = v->empty;
	m->widen = v->widen;
	return v->why;
}
