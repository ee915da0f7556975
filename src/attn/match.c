/* What the values that leave the region are: outputs, logarithms of sums, gradients of an attention, read off their normal forms. */
#include "impl.h"

#include <math.h>

/* Is it 1 for some scores, 0 for others, by what they are? */
static bool is_choice(const struct cand *c, const struct fac *f)
{
	return f->mask && f->kind == FAC_LEAF && c->near[f->a] && cand_is_region(c, f->set);
}

/* A sum over keys of exponentials, some of which are masked out, or of those that are chosen. */
static bool is_normaliser(const struct cand *c, const struct fac *f)
{
	if (f->kind != FAC_SUM || f->over != c->right || f->set & 1)
		return false;
	const struct mono *b = &poly_of(c, f->a)->m[0];
	bool some = b->exp;
	if (b->c != 1)
		return false;
	for (int i = 0; i < b->n; i++) {
		if (!fac_of(c, b->f[i].f)->mask)
			return false;
		some |= is_choice(c, fac_of(c, b->f[i].f));
	}
	return some;
}

/* The factor of m that is a normaliser to this power; -1: there is none. */
static int normaliser(const struct cand *c, const struct mono *m, int pow)
{
	for (int i = 0; i < m->n; i++)
		if (m->f[i].pow == pow && is_normaliser(c, fac_of(c, m->f[i].f)))
			return i;
	return -1;
}

/* Takes exp(score) and the masks of normaliser z off m. */
static bool take_weights(const struct cand *c, struct mono *m, int z)
{
	const struct mono *b = &poly_of(c, fac_of(c, z)->a)->m[0];
	if (m->exp != b->exp)
		return false;
	m->exp = 0;
	for (int i = 0; i < b->n; i++) {
		int k = mono_find(m, b->f[i].f);
		if (k < 0)
			return false;
		mono_take(m, k);
	}
	return true;
}

/* The one factor of m that is a vector; -1: none, or several. */
static int vector(const struct cand *c, const struct mono *m)
{
	int at = -1;
	for (int i = 0; i < m->n; i++)
		if (fac_of(c, m->f[i].f)->set & 1) {
			if (at >= 0 || m->f[i].pow != 1)
				return -1;
			at = i;
		}
	return at;
}

/* Only leaves, none of which is a vector or has one of the axes. */
static bool plain(const struct cand *c, const struct mono *m, uint64_t axes)
{
	if (m->exp || !isfinite(m->c))
		return false;
	for (int i = 0; i < m->n; i++) {
		const struct fac *f = fac_of(c, m->f[i].f);
		if (f->kind != FAC_LEAF || f->set & (axes | 1))
			return false;
	}
	return true;
}

static int poly_of_mono(struct cand *c, struct mono m) { return poly_mono(c, &m); }

/* The sum over keys that b, a monomial with exp(score) that is summed over keys, belongs to: one that divides t, or of those that the region has the
 * one with the most masks of b; where there is none, all masks of b are its own.  0: b has no exponential. */
static int normaliser_of(struct cand *c, const struct mono *t, const struct mono *b)
{
	struct mono one = { .c = 1, .exp = b->exp };
	int n = normaliser(c, t, -1), best = 0, most = -1;
	if (n >= 0 || !b->exp)
		return n >= 0 ? t->f[n].f : 0;
	for (int f = 1; f < (int)c->fac.n; f++) {
		struct mono rest = *b;
		if (is_normaliser(c, fac_of(c, f)) && take_weights(c, &rest, f) && b->n - rest.n > most) {
			best = f;
			most = b->n - rest.n;
		}
	}
	if (best)
		return best;
	for (int i = 0; i < b->n; i++)
		if (fac_of(c, b->f[i].f)->mask && fac_of(c, b->f[i].f)->set & c->right)
			one.f[one.n++] = b->f[i];
	struct fac z = { .kind = FAC_SUM, .a = poly_mono(c, &one), .over = c->right, .set = mono_set(c, &one) & ~c->right };
	return fac_add(c, &z);
}

/* Is p a sum of products of leaves of rows? */
static bool of_rows(const struct cand *c, int p)
{
	for (int i = 0; p > 0 && i < poly_of(c, p)->n; i++)
		if (!plain(c, &poly_of(c, p)->m[i], c->right))
			return false;
	return p >= 0;
}

/* Takes normaliser z, to any power, and the exponential of rows off t, of which only a coefficient stays. */
static bool take_lift(const struct cand *c, struct mono *t, int z, struct exit *out)
{
	int n = mono_find(t, z);
	out->pow = n < 0 ? 0 : t->f[n].pow;
	if (n >= 0)
		mono_take(t, n);
	out->lift = t->exp;
	t->exp = 0;
	return plain(c, t, c->right) && of_rows(c, out->lift);
}

static int fwd_add(struct match *m, struct fwd f)
{
	for (size_t i = 0; i < m->fwd.n; i++) {
		struct fwd *g = &m->fwd.p[i];
		if (g->score != f.score || g->masks != f.masks || poly_add(m->c, g->weight, f.weight, -1) || (g->v && f.v && g->v != f.v))
			continue;
		g->v = g->v ? g->v : f.v;
		g->part |= f.part;
		return (int)i;
	}
	arr_push(&m->fwd, f);
	return (int)m->fwd.n - 1;
}

/* The attention with normaliser z, weights w (a polynomial) and values v (0: any); x: what is given of it. */
static int fwd_of(struct match *m, int z, int w, int v, const struct exit *x)
{
	const struct mono *b = &poly_of(m->c, fac_of(m->c, z)->a)->m[0];
	struct mono masks = *b;
	masks.exp = 0;
	int score = b->exp;
	return fwd_add(m, (struct fwd){ score, poly_mono(m->c, &masks), w, v, x && x->pow });
}

/* sum over keys of p w v, times what is the same for all keys. */
static bool output(struct match *m, int p, struct exit *out)
{
	struct cand *c = m->c;
	const struct poly x = *poly_of(c, p);
	struct mono coef = {0};
	int weight = 0, z = 0, v = 0;
	*out = (struct exit){ .kind = EXIT_O };
	for (int i = 0; i < x.n; i++) {
		struct mono t = x.m[i];
		struct exit own;
		int s = vector(c, &t);
		if (s < 0)
			return false;
		const struct fac *sum = fac_of(c, t.f[s].f);
		if (sum->kind != FAC_SUM || sum->over != c->right || !(sum->set & c->left) != !c->left)
			return false;
		struct mono b = poly_of(c, sum->a)->m[0];
		int zf = normaliser_of(c, &t, &b);
		mono_take(&t, s);
		if (!zf || !take_weights(c, &b, zf) || !take_lift(c, &t, zf, &own))
			return false;
		int vec = vector(c, &b);
		if (vec < 0 || fac_of(c, b.f[vec].f)->kind != FAC_LEAF || fac_of(c, b.f[vec].f)->set & c->left)
			return false;
		int vf = b.f[vec].f;
		mono_take(&b, vec);
		for (int k = 0; k < b.n; k++)            /* else it is a gradient */
			if (fac_of(c, b.f[k].f)->kind == FAC_DOT && b.f[k].f != m->x)
				return false;
		if (i && (zf != z || vf != v || own.pow + 1 != out->pow || own.lift != out->lift || t.n != coef.n || memcmp(t.f, coef.f, sizeof t.f[0] * (size_t)t.n)))
			return false;
		if (!i) {
			coef = t;
			z = zf;
			v = vf;
			out->lift = own.lift;
			out->pow = own.pow + 1;
		}
		b.c *= t.c / coef.c;
		weight = poly_add(c, weight, poly_mono(c, &b), 1);
	}
	if (weight <= 0)
		return false;
	out->op = fwd_of(m, z, weight, v, out);
	out->coef = poly_mono(c, &coef);
	return true;
}

/* A power of the sum of exponentials, times what is the same for all keys. */
static bool sum(struct match *m, int p, struct exit *out)
{
	struct cand *c = m->c;
	struct mono t = poly_of(c, p)->m[0];
	int z = 0;
	for (int i = 0; i < t.n && !z; i++)
		z = is_normaliser(c, fac_of(c, t.f[i].f)) ? t.f[i].f : 0;
	*out = (struct exit){ .kind = EXIT_Z };
	if (poly_of(c, p)->n != 1 || !z || !take_lift(c, &t, z, out))
		return false;
	out->op = fwd_of(m, z, poly_const(c, 1), 0, out);
	out->coef = poly_mono(c, &t);
	return true;
}

/* The highest score, or that times a positive constant: o is a maximum over keys. */
static bool highest(struct match *m, const struct ir_op *o, int lab, struct exit *out)
{
	struct cand *c = m->c;
	ir_val v = ir_in(c->fn, o, 0);
	const void *least = ir_splat(c->m, c->fn, ir_in(c->fn, o, 1));
	if (o->nout != 1 || (enum redop)ir_attr(c->fn, o, AT_redop) != RED_max || !c->of[v] || (lab_of(c, c->of[v])->set & ~lab_of(c, lab)->set) != c->right || !least ||
	    dtype_real((enum dtype)ir_vtype(c->m, c->fn, v)->dtype, least) != -INFINITY)
		return false;
	int p = form_of(c, v, c->of[v]);
	for (int f = 1; p > 0 && f < (int)c->fac.n; f++) {
		if (!is_normaliser(c, fac_of(c, f)) || poly_of(c, fac_of(c, f)->a)->m[0].n)
			continue;
		int score = poly_of(c, fac_of(c, f)->a)->m[0].exp;
		double k = poly_of(c, p)->m[0].c / poly_of(c, score)->m[0].c;
		if (!(k > 0) || poly_add(c, p, score, -k))
			continue;
		*out = (struct exit){ .kind = EXIT_M, .coef = poly_const(c, k), .pow = 1 };
		out->op = fwd_of(m, f, poly_const(c, 1), 0, out);
		out->pow = 0;
		return true;
	}
	int score = 0, rest = 0;
	if (p > 0)
		poly_part(c, p, c->right, &score, &rest);
	if (score <= 0 || rest)
		return false;
	*out = (struct exit){ .kind = EXIT_M, .coef = poly_const(c, 1) };      /* of exponentials there is no sum */
	out->op = fwd_add(m, (struct fwd){ score, poly_const(c, 1), poly_const(c, 1), 0, true });
	return true;
}

bool match_top(struct match *m, ir_val v, int lab, int *fwd)
{
	struct cand *c = m->c;
	const struct ir_op *o = ir_def(c->fn, v), *by;
	struct exit x;
	for (uint32_t k = 0; o && o->kind == IR_compare_eq && k < 2; k++) {
		ir_val row = ir_in(c->fn, o, k), in;
		int l = lab;
		for (form_strip(c, &row, &l); (by = ir_def(c->fn, row)) && by->kind == IR_convert; form_strip(c, &row, &l))
			row = ir_in(c->fn, by, 0);
		if (!by || by->kind != IR_reduce || !highest(m, by, l, &x))
			continue;
		in = ir_in(c->fn, by, 0);
		if (form_of(c, in, c->of[in]) != form_of(c, ir_in(c->fn, o, 1 - k), lab))
			continue;
		*fwd = x.op;
		return true;
	}
	return false;
}

static bool logarithm(struct match *m, int p, struct exit *out)
{
	struct cand *c = m->c;
	const struct mono *t = &poly_of(c, p)->m[0];
	if (poly_of(c, p)->n != 1 || t->n != 1 || t->exp || t->f[0].pow != 1 || fac_of(c, t->f[0].f)->kind != FAC_LOG)
		return false;
	int z = fac_of(c, t->f[0].f)->a;
	if (!is_normaliser(c, fac_of(c, z)))
		return false;
	double k = t->c;
	*out = (struct exit){ .kind = EXIT_L, .op = fwd_of(m, z, poly_const(c, 1), 0, NULL), .coef = poly_const(c, k) };
	return true;
}

/* The factor of m that is the sum over keys of exp(score) w y, before it is divided by that of exp(score); -1: there is none. */
static int inner(const struct cand *c, const struct mono *m)
{
	for (int i = 0; i < m->n; i++) {
		const struct fac *f = fac_of(c, m->f[i].f);
		if (m->f[i].pow != 1 || f->kind != FAC_SUM || f->over != c->right || f->set & 1)
			continue;
		const struct mono *b = &poly_of(c, f->a)->m[0];
		for (int k = 0; b->exp && k < b->n; k++)
			if (fac_of(c, b->f[k].f)->kind == FAC_DOT)
				return i;
	}
	return -1;
}

/* Takes sum s, normalised by z, apart: weights w, y = d_o . v. */
static bool inner_parts(struct match *m, int s, int z, int *w, int *y)
{
	struct cand *c = m->c;
	struct mono b = poly_of(c, fac_of(c, s)->a)->m[0];
	if (!take_weights(c, &b, z))
		return false;
	int at = -1;
	for (int i = 0; i < b.n; i++)
		if (fac_of(c, b.f[i].f)->kind == FAC_DOT && b.f[i].f != m->x && b.f[i].pow == 1)
			at = at < 0 ? i : -2;
	if (at < 0)
		return false;
	*y = b.f[at].f;
	mono_take(&b, at);
	*w = poly_mono(c, &b);
	return true;
}

/* The gradient with this attention and this d_o of which only delta or dv are known yet. */
static int bwd_of(struct match *m, struct bwd b)
{
	size_t i = 0;
	for (; i < m->bwd.n; i++) {
		const struct bwd *g = &m->bwd.p[i];
		if (g->fwd == b.fwd && g->d_o == b.d_o && g->given == b.given && g->less == b.less && g->r == b.r)
			return (int)i;
	}
	arr_push(&m->bwd, b);
	return (int)i;
}

static bool delta(struct match *m, int p, struct exit *out)
{
	struct cand *c = m->c;
	struct mono t = poly_of(c, p)->m[0];
	int s = inner(c, &t), w, y;
	if (poly_of(c, p)->n != 1 || s < 0)
		return false;
	int sf = t.f[s].f, zf = normaliser_of(c, &t, &poly_of(c, fac_of(c, sf)->a)->m[0]);
	mono_take(&t, s);
	*out = (struct exit){ .kind = EXIT_DELTA };
	if (!zf || !take_lift(c, &t, zf, out) || !inner_parts(m, sf, zf, &w, &y))
		return false;
	const struct fac *d = fac_of(c, y);
	int d_o = d->a;
	out->pow++;
	out->op = bwd_of(m, (struct bwd){ .fwd = fwd_of(m, zf, w, d->b, out), .d_o = d_o });
	out->coef = poly_mono(c, &t);
	return true;
}

/* What is summed in p, over keys or over queries, and the vector that it is multiplied with; over: the axes. */
static int integrand(struct match *m, int p, int *vec, uint64_t *over)
{
	struct cand *c = m->c;
	int sum = 0;
	const struct poly x = *poly_of(c, p);
	*vec = 0;
	for (int i = 0; i < x.n; i++) {
		struct mono t = x.m[i];
		int s = vector(c, &t);
		if (s < 0)
			return -1;
		const struct fac *f = fac_of(c, t.f[s].f), one = { .kind = FAC_SUM, .a = poly_fac(c, t.f[s].f) };      /* of one query: no sum */
		f = fac_of(c, t.f[s].f);
		if (f->kind == FAC_LEAF && !c->left)
			f = &one;
		if (f->kind != FAC_SUM)
			return -1;
		struct mono b = poly_of(c, f->a)->m[0];
		int v = vector(c, &b);
		if (v < 0 || fac_of(c, b.f[v].f)->kind != FAC_LEAF || (*vec && (*vec != b.f[v].f || *over != f->over)))
			return -1;
		*vec = b.f[v].f;
		*over = f->over;
		mono_take(&b, v);
		mono_take(&t, s);
		if (!mono_mul(c, &t, &b, &t))
			return -1;
		sum = poly_add(c, sum, poly_mono(c, &t), 1);
	}
	return sum;
}

/* p = P w d_o: the gradient of values. */
static bool values(struct match *m, int p, int d_o, struct exit *out)
{
	struct cand *c = m->c;
	const struct poly x = *poly_of(c, p);
	int w = 0, z = 0;
	for (int i = 0; i < x.n; i++) {
		struct mono t = x.m[i];
		int n = normaliser(c, &t, -1);
		if (n < 0 || (i && t.f[n].f != z) || fac_of(c, d_o)->set & c->right)
			return false;
		z = t.f[n].f;
		mono_take(&t, n);
		if (!take_weights(c, &t, z) || !plain(c, &t, 0))
			return false;
		w = poly_add(c, w, poly_mono(c, &t), 1);
	}
	if (w <= 0)
		return false;
	double k = poly_of(c, w)->m[0].c;
	for (size_t i = 0; i < m->fwd.n; i++) {          /* one that is there differs by a constant */
		double s = k / poly_of(c, m->fwd.p[i].weight)->m[0].c;
		if (!poly_add(c, w, m->fwd.p[i].weight, -s) && poly_of(c, fac_of(c, z)->a)->m[0].exp == m->fwd.p[i].score)
			k = s;
	}
	w = poly_mul(c, poly_const(c, 1 / k), w);
	int f = fwd_of(m, z, w, 0, NULL);
	*out = (struct exit){ .kind = EXIT_DV, .op = bwd_of(m, (struct bwd){ .fwd = f, .d_o = d_o }), .coef = poly_const(c, k) };
	return true;
}

/* The factor P = exp(score) masks / Z, as a polynomial. */
static int weights(struct cand *c, int z)
{
	struct mono p = poly_of(c, fac_of(c, z)->a)->m[0], one = { .c = 1, .n = 1 };
	one.f[0].f = (int16_t)z;
	one.f[0].pow = -1;
	return mono_mul(c, &p, &one, &p) ? poly_mono(c, &p) : -1;
}

/* The constant of the product in scores, behind what is chosen or added to it, which is that of the slope, too; 0: there is none.
 * left: values to look at. */
static double product_scale(struct cand *c, int score, int x, int *left)
{
	const struct poly p = *poly_of(c, score);
	for (int i = 0; i < p.n; i++)
		if (mono_find(&p.m[i], x) >= 0)
			return p.m[i].c;
	for (int i = 0; i < p.n && *left > 0; i++)
		for (int k = 0; k < p.m[i].n; k++) {
			const struct fac f = *fac_of(c, p.m[i].f[k].f);
			const struct ir_op *o = f.kind == FAC_LEAF && !f.mask ? ir_def(c->fn, (ir_val)f.a) : NULL;
			for (uint32_t j = 0; o && ir_is_elem(o->kind) && j < o->nin && --*left > 0; j++) {
				ir_val v = ir_in(c->fn, o, j);
				bool same = ir_vtype(c->m, c->fn, v)->rank == ir_vtype(c->m, c->fn, o->out)->rank && dtype_info[ir_vtype(c->m, c->fn, v)->dtype].cls == DT_FLOAT;
				int in = same ? form_of(c, v, f.b) : 0;
				double scale = in > 0 ? p.m[i].c * product_scale(c, in, x, left) : 0;
				if (scale != 0)
					return scale;
			}
		}
	return 0;
}

/* A gradient of scores: one of which less is known may be the same. */
static int bwd_whole(struct match *m, struct bwd b)
{
	size_t i = 0;
	for (; i < m->bwd.n; i++) {
		struct bwd *g = &m->bwd.p[i];
		if (g->fwd != b.fwd || g->d_o != b.d_o || g->given != b.given || g->less != b.less || g->r != b.r ||
		    (g->slope && (poly_add(m->c, g->slope, b.slope, -1) || g->rest != b.rest)))
			continue;
		*g = b;
		return (int)i;
	}
	arr_push(&m->bwd, b);
	return (int)i;
}

static bool take_all(struct mono *m, const struct mono *what)
{
	for (int i = 0; i < what->n; i++) {
		int at = mono_find(m, what->f[i].f);
		if (at < 0 || m->f[at].pow != what->f[i].pow)
			return false;
		mono_take(m, at);
	}
	return true;
}

/* Takes out of all of *p the unknowns that are the same for a whole batch, and gives them. */
static int of_batch(struct cand *c, int *p)
{
	const struct poly x = *poly_of(c, *p);
	struct mono out = { .c = 1 };
	for (int k = 0; k < x.m[0].n; k++) {
		const struct fac *f = fac_of(c, x.m[0].f[k].f);
		bool all = f->kind == FAC_LEAF && !f->mask && !(f->set & (c->left | c->right | 1));
		for (int i = 1; i < x.n && all; i++) {
			int at = mono_find(&x.m[i], x.m[0].f[k].f);
			all = at >= 0 && x.m[i].f[at].pow == x.m[0].f[k].pow;
		}
		if (all)
			out.f[out.n++] = x.m[0].f[k];
	}
	for (int i = *p = 0; i < x.n; i++) {
		struct mono t = x.m[i];
		take_all(&t, &out);
		*p = poly_add(c, *p, poly_mono(c, &t), 1);
	}
	return poly_mono(c, &out);
}

/* p = coef P (w y - delta + rest) slope: the attention it belongs to. */
static bool scores(struct match *m, int p, int *op, int *coef)
{
	struct cand *c = m->c;
	const struct poly x = *poly_of(c, p);
	int z = 0, s = 0, slope = 0, with_y = 0, w, y;
	for (int i = 0; i < x.n; i++) {
		struct mono t = x.m[i];
		int k = inner(c, &t), n = normaliser(c, &t, -2);
		if (k < 0 || n < 0) {
			with_y = poly_add(c, with_y, poly_of_mono(c, t), 1);
			continue;
		}
		int zf = t.f[n].f, sf = t.f[k].f;
		mono_take(&t, mono_find(&t, zf));
		mono_take(&t, mono_find(&t, sf));
		if ((s && (s != sf || z != zf)) || !take_weights(c, &t, zf))
			return false;
		s = sf;
		z = zf;
		t.c = -t.c;
		slope = poly_add(c, slope, poly_mono(c, &t), 1);
	}
	if (slope <= 0 || with_y <= 0 || !inner_parts(m, s, z, &w, &y))
		return false;
	int P = weights(c, z), rest = poly_add(c, with_y, poly_mul(c, poly_mul(c, P, slope), poly_mul(c, w, poly_fac(c, y))), -1), more = 0;
	if (rest < 0)
		return false;
	int fwd = fwd_of(m, z, w, fac_of(c, y)->b, NULL);
	int left = 64;
	double own = poly_of(c, slope)->m[0].c, its = product_scale(c, m->fwd.p[fwd].score, m->x, &left), scale = its ? own / its : own;
	scale = fabs(scale - 1) <= 1e-6 ? 1 : scale;         /* constants are rounded to the program's types */
	for (int i = 0; i < poly_of(c, rest)->n; i++) {          /* a cotangent of l: the same for all keys */
		struct mono t = poly_of(c, rest)->m[i];
		const struct mono *q = &poly_of(c, slope)->m[0];
		int n = normaliser(c, &t, -1);
		if (poly_of(c, slope)->n != 1 || n < 0 || t.f[n].f != z)
			return false;
		mono_take(&t, n);
		if (!take_weights(c, &t, z))
			return false;
		for (int k = 0; k < q->n; k++) {
			int at = mono_find(&t, q->f[k].f);
			if (at < 0 || t.f[at].pow != q->f[k].pow)
				return false;
			mono_take(&t, at);
		}
		t.c /= q->c;
		if (!plain(c, &t, c->right))
			return false;
		more = poly_add(c, more, poly_mono(c, &t), 1);
	}
	slope = poly_mul(c, poly_const(c, 1 / scale), slope);
	*coef = poly_mul(c, poly_const(c, scale), of_batch(c, &slope));
	struct bwd b = { .fwd = fwd, .d_o = fac_of(c, y)->a, .slope = slope, .rest = more };
	*op = bwd_whole(m, b);
	return true;
}

/* --- gradients whose l and delta are the program's --------------------------------------- */

/* Monomial t, in which an exponential of scores is not normalised: *key: what has keys, with exp(score); *row: what has none; *less: its exponent of rows. */
static bool apart(struct cand *c, struct mono t, struct mono *key, struct mono *row, int *less)
{
	int score = 0;
	*less = 0;
	if (!t.exp)
		return false;
	poly_part(c, t.exp, c->right, &score, less);
	*key = (struct mono){ .c = t.c, .exp = score };
	*row = (struct mono){ .c = 1 };
	for (int i = 0; i < t.n; i++) {
		const struct fac *f = fac_of(c, t.f[i].f);
		struct mono *to = f->set & c->right ? key : row;
		if ((f->kind != FAC_LEAF && f->kind != FAC_DOT) || f->set & 1)
			return false;
		to->f[to->n++] = t.f[i];
	}
	return score > 0 && of_rows(c, *less);
}

/* The factors that both have, of masks of keys. */
static struct mono masks_of(const struct cand *c, const struct mono *a, const struct mono *b)
{
	struct mono m = { .c = 1 };
	for (int i = 0; i < a->n; i++)
		if (fac_of(c, a->f[i].f)->mask && mono_find(b, a->f[i].f) >= 0)
			m.f[m.n++] = a->f[i];
	return m;
}

/* p = exp(score - l) w r d_o. */
static bool given_values(struct match *m, int p, int d_o, struct exit *out)
{
	struct cand *c = m->c;
	const struct poly x = *poly_of(c, p);
	struct mono masks = {0}, first = {0};
	int w = 0, score = 0, less = 0;
	for (int i = 0; i < x.n; i++) {
		struct mono key, row;
		int own;
		if (!apart(c, x.m[i], &key, &row, &own) || fac_of(c, d_o)->set & c->right)
			return false;
		if (!i) {
			first = row;
			less = own;
			score = key.exp;
			masks = masks_of(c, &key, &key);
		}
		if (own != less || key.exp != score || row.n != first.n || !take_all(&row, &first) || !take_all(&key, &masks))
			return false;
		key.exp = 0;
		if (!plain(c, &key, 0))
			return false;
		w = poly_add(c, w, poly_mono(c, &key), 1);
	}
	if (w <= 0)
		return false;
	double k = poly_of(c, w)->m[0].c;
	int f = fwd_add(m, (struct fwd){ score, poly_mono(c, &masks), poly_mul(c, poly_const(c, 1 / k), w), 0, false });
	*out = (struct exit){ .kind = EXIT_DV, .coef = poly_const(c, k) };
	out->op = bwd_of(m, (struct bwd){ .fwd = f, .d_o = d_o, .given = true, .less = less, .r = poly_mono(c, &first) });
	return true;
}

/* p = rows times keys; keys begins with coefficient 1.  False: it is no such product. */
static bool product(struct cand *c, int p, int *rows, int *keys)
{
	const struct poly x = *poly_of(c, p);
	struct mono k0 = {0}, r0 = {0};
	double c0 = 0;
	*rows = *keys = 0;
	for (int i = 0; i < x.n; i++) {
		struct mono key = { .c = 1 }, row = { .c = 1 }, k1, r1;
		for (int j = 0; j < x.m[i].n; j++) {
			struct mono *to = fac_of(c, x.m[i].f[j].f)->set & c->right ? &key : &row;
			to->f[to->n++] = x.m[i].f[j];
		}
		if (!i) {
			k0 = key;
			r0 = row;
			c0 = x.m[i].c;
		}
		k1 = key;
		r1 = row;
		if (row.n == r0.n && take_all(&r1, &r0)) {
			key.c = x.m[i].c / c0;
			*keys = poly_add(c, *keys, poly_mono(c, &key), 1);
		}
		if (key.n == k0.n && take_all(&k1, &k0)) {
			row.c = x.m[i].c;
			*rows = poly_add(c, *rows, poly_mono(c, &row), 1);
		}
	}
	if (*rows <= 0 || *keys <= 0)
		return false;
	double k = poly_of(c, *keys)->m[0].c;
	*keys = poly_mul(c, poly_const(c, 1 / k), *keys);
	*rows = poly_mul(c, poly_const(c, k), *rows);
	return !poly_add(c, p, poly_mul(c, *rows, *keys), -1);
}

/* p = coef exp(score - l) (r w y - delta) slope. */
static bool given_scores(struct match *m, int p, int *op, int *coef)
{
	struct cand *c = m->c;
	const struct poly x = *poly_of(c, p);
	struct mono masks = {0};
	int score = 0, less = 0, y = 0, with = 0, without = 0;
	for (int i = 0; i < x.n; i++) {
		struct mono key, row;
		int own;
		if (!apart(c, x.m[i], &key, &row, &own))
			return false;
		masks = i ? masks_of(c, &masks, &key) : masks_of(c, &key, &key);
		if (i && (own != less || key.exp != score))
			return false;
		less = own;
		score = key.exp;
	}
	for (int i = 0; i < x.n; i++) {
		struct mono t = x.m[i];
		int at = -1;
		t.exp = 0;
		take_all(&t, &masks);
		for (int k = 0; k < t.n; k++)
			if (fac_of(c, t.f[k].f)->kind == FAC_DOT && t.f[k].f != m->x && t.f[k].pow == 1)
				at = at < 0 ? k : -2;
		if (at == -2 || (at >= 0 && y && y != t.f[at].f))
			return false;
		if (at >= 0) {
			y = t.f[at].f;
			mono_take(&t, at);
		}
		int *to = at >= 0 ? &with : &without;
		*to = poly_add(c, *to, poly_mono(c, &t), 1);
	}
	int r, w = poly_const(c, 1), slope, rest = 0;
	if (!y || with <= 0 || without < 0 || !product(c, with, &r, &slope) || poly_of(c, r)->n != 1)
		return false;
	if (without) {                   /* what weights have beside the slope is seen by what is without them */
		int all = slope, one;
		if (!product(c, without, &rest, &slope))
			return false;
		struct mono s = poly_of(c, slope)->m[0];
		if (slope != all && poly_of(c, slope)->n != 1)
			return false;
		for (int i = w = 0; slope != all && i < poly_of(c, all)->n; i++) {
			struct mono t = poly_of(c, all)->m[i];
			if (!take_all(&t, &s) || !plain(c, &t, 0))
				return false;
			one = poly_mono(c, &t);
			w = poly_add(c, w, one, 1);
		}
		w = slope == all ? poly_const(c, 1) : w;
	}
	struct mono first = poly_of(c, r)->m[0];
	double scale = first.c;
	first.c = 1;
	*coef = poly_mul(c, poly_const(c, scale), of_batch(c, &slope));
	const struct fac *d = fac_of(c, y);
	struct bwd b = { .d_o = d->a, .slope = slope, .rest = poly_mul(c, poly_const(c, 1 / scale), rest), .given = true, .less = less, .r = poly_mono(c, &first) };
	if (w <= 0 || b.rest < 0 || !of_rows(c, b.rest) || !plain(c, &first, c->right))
		return false;
	b.fwd = fwd_add(m, (struct fwd){ score, poly_mono(c, &masks), w, d->b, false });
	*op = bwd_whole(m, b);
	return true;
}

/* Are there rows enough on each device?  Kernels for a few rows add products up in another order than those for gradients, and a score is no longer the number that was the highest. */
static bool has_rows(const struct cand *c)
{
	enum { LEAST = 32 };
	int64_t n = 1;
	for (int i = 1; i < c->naxis; i++)
		n *= c->left >> i & 1 ? c->axis[i].size : 1;
	return n >= LEAST * MAX(1, c->m->num_partitions);
}

/* p: what goes back through the choice of some scores, of the highest one of each row, say: numbers of rows times a slope where they are chosen, with queries (over keys) or keys
 * summed up.  The chosen of a row are an attention, too, whose scores are 0 there and -inf elsewhere. */
static bool chosen(struct match *m, int p, bool keys, struct exit *out)
{
	struct cand *c = m->c;
	const struct fac x = *fac_of(c, m->x);
	const struct poly all = *poly_of(c, p);
	struct mono masks = { .c = 1 };
	int rest = 0, r, w;
	for (int k = 0; k < all.m[0].n; k++)
		if (is_choice(c, fac_of(c, all.m[0].f[k].f)))
			masks.f[masks.n++] = all.m[0].f[k];
	for (int i = 0; i < all.n; i++) {
		struct mono t = all.m[i];
		if (!take_all(&t, &masks))
			return false;
		rest = poly_add(c, rest, poly_mono(c, &t), 1);
	}
	if (!has_rows(c) || !masks.n || rest <= 0 || !product(c, rest, &r, &w) || !of_rows(c, r))
		return false;
	for (int i = 0; i < poly_of(c, w)->n; i++)
		if (!plain(c, &poly_of(c, w)->m[i], 0))
			return false;
	int f = fwd_add(m, (struct fwd){ 0, poly_mono(c, &masks), w, x.b, true });
	struct mono first = poly_of(c, r)->m[0];
	double k = first.c;
	first.c = 1;
	if (!keys && poly_of(c, r)->n != 1)
		return false;
	*out = keys ? (struct exit){ .kind = EXIT_O, .op = f, .coef = r, .pow = 1 } : (struct exit){ .kind = EXIT_DV, .coef = poly_const(c, k) };
	if (!keys)
		out->op = bwd_of(m, (struct bwd){ .fwd = f, .d_o = x.a, .given = true, .r = poly_mono(c, &first) });
	return true;
}

/* Adds y to what exit *x is. */
static void and_more(struct match *m, struct exit *x, struct exit y)
{
	y.more = x->more;
	x->more = (int)m->more.n;
	arr_push(&m->more, y);
}

static bool gradient(struct match *m, int p, struct exit *out)
{
	struct cand *c = m->c;
	const struct fac *x = fac_of(c, m->x);
	int vec, op, k, through = 0, without = 0;
	uint64_t over = 0;
	p = integrand(m, p, &vec, &over);
	if (p <= 0)
		return false;
	const struct poly all = *poly_of(c, p);
	for (int i = 0; i < all.n; i++)
		*(all.m[i].exp ? &through : &without) = poly_add(c, all.m[i].exp ? through : without, poly_mono(c, &all.m[i]), 1);
	struct exit more;
	bool both = through > 0 && without > 0;
	p = both ? through : p;
	if (!both && over == c->left && (values(m, p, vec, out) || given_values(m, p, vec, out)))
		return true;
	if (over != c->left && over != c->right)
		return false;
	if (vec != (over == c->right ? x->b : x->a) || (!scores(m, p, &op, &k) && !given_scores(m, p, &op, &k)))
		return false;
	*out = (struct exit){ .kind = over == c->right ? EXIT_DQ : EXIT_DK, .op = op, .coef = k };
	if (both && !chosen(m, without, over == c->right, &more))
		return false;
	if (both)
		and_more(m, out, more);
	return true;
}

/* o, a sum over keys, as deltas and sums of exponentials with coefficients of rows each: what goes back to a maximum. */
static bool several(struct match *m, const struct ir_op *o, int lab, struct exit *out)
{
	struct cand *c = m->c;
	ir_val in = ir_in(c->fn, o, 0);
	if ((enum redop)ir_attr(c->fn, o, AT_redop) != RED_add || !c->of[in] || (lab_of(c, c->of[in])->set & ~lab_of(c, lab)->set) != c->right)
		return false;
	c->opaque = true;
	int p = form_of(c, in, c->of[in]);
	c->opaque = false;
	p = poly_sum(c, p, c->right);
	if (p <= 0)
		return false;
	const struct poly all = *poly_of(c, p);
	struct exit one;
	for (int i = 0; i < all.n; i++) {
		int own = poly_mono(c, &all.m[i]);
		if (!delta(m, own, &one) && !sum(m, own, &one))
			return false;
		if (i)
			and_more(m, out, one);
		else
			*out = one;
	}
	return all.n > 1;
}

/* The gradient of what q . k is multiplied with, of rows or of more than these together: p = sum over keys (and others) of a gradient of scores times q . k,
 * which is the sum of q dq. */
static bool factor(struct match *m, int p, struct exit *out)
{
	struct cand *c = m->c;
	const struct poly x = *poly_of(c, p);
	int all = 0;
	uint64_t over = 0;
	*out = (struct exit){ .kind = EXIT_DX };
	for (int i = 0; i < x.n; i++) {
		struct mono t = x.m[i], b;
		int s = -1;
		for (int k = 0; k < t.n; k++) {
			const struct fac *f = fac_of(c, t.f[k].f);
			if (t.f[k].pow == 1 && f->kind == FAC_SUM && f->over & c->right && !(f->set & 1) && mono_find(&poly_of(c, f->a)->m[0], m->x) >= 0)
				s = k;
		}
		if (s < 0 || (i && over != fac_of(c, t.f[s].f)->over))
			return false;
		over = fac_of(c, t.f[s].f)->over;
		b = poly_of(c, fac_of(c, t.f[s].f)->a)->m[0];
		int at = mono_find(&b, m->x);
		mono_take(&t, s);
		if (b.f[at].pow != 1)
			return false;
		mono_take(&b, at);
		if (!mono_mul(c, &t, &b, &t))
			return false;
		all = poly_add(c, all, poly_mono(c, &t), 1);
	}
	return all > 0 && (scores(m, all, &out->op, &out->coef) || given_scores(m, all, &out->op, &out->coef));
}

/* Finds or adds what dx is to be summed up by. */
static int tally_add(struct match *m, struct tally t)
{
	size_t i = 0;
	for (; i < m->tally.n; i++) {
		const struct tally *x = &m->tally.p[i];
		if (x->bwd == t.bwd && x->index == t.index && x->lab == t.lab && x->n == t.n && x->apart == t.apart)
			return (int)i;
	}
	arr_push(&m->tally, t);
	return (int)i;
}

/* From v on towards the gradient of scores that it is made of: sums over batches and heads, constants, factors of the distance.  The constant; 0: it is none such. */
static double towards(struct match *m, ir_val *v, int *lab, uint64_t *gone, struct tallied *out)
{
	struct cand *c = m->c;
	double k = 1, x;
	for (int steps = 0; steps < 40; steps++) {
		const struct ir_op *o = ir_def(c->fn, *v);
		ir_val to = 0, by = 0;
		for (uint32_t i = 0; o && i < o->nin; i++)
			if (c->of[ir_in(c->fn, o, i)])
				to = to ? to : ir_in(c->fn, o, i);
			else
				by = ir_in(c->fn, o, i);
		switch (o ? o->kind : IR_COUNT) {
		case IR_convert:
			if (!to || dtype_info[ir_vtype(c->m, c->fn, to)->dtype].cls != DT_FLOAT)
				return k;
			break;
		case IR_reshape: case IR_transpose: case IR_broadcast:
			if (!to || lab_of(c, c->of[to])->set != lab_of(c, *lab)->set)
				return k;
			break;
		case IR_optimization_barrier: case IR_sharding_constraint:
			to = ir_in(c->fn, o, *v - o->out);
			break;
		case IR_negate:
			k = -k;
			break;
		case IR_reduce:
			if (!to || o->nout != 1 || (enum redop)ir_attr(c->fn, o, AT_redop) != RED_add || !by || !ir_splat(c->m, c->fn, by) ||
			    dtype_real((enum dtype)ir_vtype(c->m, c->fn, by)->dtype, ir_splat(c->m, c->fn, by)) != 0)
				return k;
			*gone |= lab_of(c, c->of[to])->set & ~lab_of(c, *lab)->set;
			break;
		case IR_add: case IR_multiply: case IR_divide: {
			const void *p = by ? ir_splat(c->m, c->fn, by) : NULL;
			if (!to || !by || (o->kind == IR_divide && (!p || to != ir_in(c->fn, o, 0))))
				return k;
			x = p ? dtype_real((enum dtype)ir_vtype(c->m, c->fn, by)->dtype, p) : 0;
			if (o->kind == IR_add ? !p || x != 0 : p ? !isfinite(x) || x == 0 : out->nby == (int)NELEM(out->by) || !look_by_distance(m, by, *lab))
				return k;
			if (o->kind != IR_add && p)
				k = o->kind == IR_multiply ? k * x : k / x;
			if (o->kind == IR_multiply && !p) {
				out->by[out->nby].v = by;
				out->by[out->nby++].lab = *lab;
			}
			break;
		}
		default:
			return k;
		}
		if (!to || !c->of[to])
			return k;
		*v = to;
		*lab = c->of[to];
	}
	return 0;
}

/* Gradients of what is looked up, or of what a function of the distance is multiplied with. */
static bool tallied(struct match *m, ir_val v, int lab, struct exit *out)
{
	struct cand *c = m->c;
	const struct ir_op *o = ir_def(c->fn, v);
	struct tallied t = { 0 };
	uint64_t gone = 0, own = lab_of(c, lab)->set & ~c->tables, both = c->right | (m->t ? (uint64_t)1 << m->t : 0);
	ir_val at = v;
	int l = lab, coef;
	if (!o)
		return false;
	if (lab_of(c, lab)->set & c->tables) {
		if (o->kind != IR_scatter || !c->of[at = ir_in(c->fn, o, 2)] || !look_back(c, o, l = c->of[at], &t.at))
			return false;
		gone = both;
	}
	double k = towards(m, &at, &l, &gone, &t);
	if (k == 0 || (gone & both) != both || own & both || !cand_is_region(c, lab_of(c, l)->set) || lab_of(c, l)->set & 1)
		return false;
	for (int i = 0; i < t.nby; i++)          /* of what is summed, but the distance, they have nothing */
		if (lab_of(c, t.by[i].lab)->set & ~(own | both))
			return false;
	int p = form_of(c, at, l);
	*out = (struct exit){ .kind = EXIT_TALLY };
	if (p <= 0 || (!scores(m, p, &out->op, &coef) && !given_scores(m, p, &out->op, &coef)) || poly_of(c, coef)->n != 1 || poly_of(c, coef)->m[0].n || poly_of(c, coef)->m[0].exp)
		return false;
	struct tally by = { .bwd = out->op, .n = look_distances(m), .apart = own & place_heads(m) };
	if (by.apart && (own & place_heads(m)) != place_heads(m))
		return false;
	bool table = t.at.table, far = !table || look_by_distance(m, t.at.index, t.at.index_lab);
	if (table && far && lab_of(c, t.at.index_lab)->set & ~both)
		far = false;
	if (!far && (!table || t.nby))
		return false;
	if (!far) {
		by.index = t.at.index;
		by.lab = t.at.index_lab;
		by.n = t.at.n;
		t.at.index = 0;
	} else if (!m->t || c->right & (c->right - 1)) {
		return false;
	}
	m->far |= far;
	t.tally = tally_add(m, by);
	out->tallied = (int)m->tallied.n;
	arr_push(&m->tallied, t);
	out->coef = poly_mul(c, poly_const(c, k), coef);
	return true;
}

bool match_exit(struct match *m, ir_val v, int lab, struct exit *out)
{
	struct cand *c = m->c;
	int p = form_of(c, v, lab);
	bool found = false;
	if (p < 0 || dtype_info[ir_vtype(c->m, c->fn, v)->dtype].cls != DT_FLOAT)
		return false;
	const struct poly *x = poly_of(c, p);
	if (!p || (x->n == 1 && !x->m[0].n && !x->m[0].exp)) {
		*out = (struct exit){ .kind = EXIT_CONST, .value = p ? x->m[0].c : 0 };
		found = true;
	} else if (lab_of(c, lab)->set & 1) {
		found = output(m, p, out) || gradient(m, p, out);
		c->opaque = !found;
		p = found ? 0 : form_of(c, v, lab);
		c->opaque = false;
		found = found || (p > 0 && (output(m, p, out) || gradient(m, p, out)));
	} else if (!(lab_of(c, lab)->set & c->right)) {
		const struct ir_op *o = ir_def(c->fn, v);
		bool sums = o && o->kind == IR_reduce;
		found = logarithm(m, p, out) || delta(m, p, out) || sum(m, p, out) || factor(m, p, out) || (sums && (highest(m, o, lab, out) || several(m, o, lab, out))) || tallied(m, v, lab, out);
	}
	out->v = v;
	out->lab = lab;
	return found;
}
