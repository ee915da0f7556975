/* Sums of monomials, hashed: equal ones have equal numbers.  Polynomial 0 is zero, 1 is one. */
#include "impl.h"

#include <math.h>
#include <stdlib.h>

int fac_add(struct cand *c, const struct fac *f)
{
	struct { char tag; struct fac f; } key;
	memset(&key, 0, sizeof key);
	key.tag = 'f';
	key.f.kind = f->kind;
	key.f.a = f->a;
	key.f.b = f->b;
	key.f.over = f->over;
	uint64_t *id = map_put(&c->index, &key, sizeof key);
	if (!*id) {
		*id = c->fac.n;
		arr_push(&c->fac, *f);
	}
	return (int)*id;
}

static int by_factor(const void *a, const void *b)
{
	const struct { int16_t f, pow; } *x = a, *y = b;
	return x->f - y->f;
}

static int by_form(const struct mono *a, const struct mono *b)
{
	if (a->exp != b->exp)
		return a->exp < b->exp ? -1 : 1;
	if (a->n != b->n)
		return a->n < b->n ? -1 : 1;
	for (int i = 0; i < a->n; i++) {
		if (a->f[i].f != b->f[i].f)
			return a->f[i].f < b->f[i].f ? -1 : 1;
		if (a->f[i].pow != b->f[i].pow)
			return a->f[i].pow < b->f[i].pow ? -1 : 1;
	}
	return 0;
}

static int by_form_q(const void *a, const void *b) { return by_form(a, b); }

/* n monomials, which are the caller's and may change. */
static int intern(struct cand *c, struct mono *m, int n)
{
	int k = 0;
	qsort(m, (size_t)n, sizeof *m, by_form_q);
	for (int i = 0; i < n; i++) {
		if (k && !by_form(&m[k - 1], &m[i])) {
			double big = fmax(fabs(m[k - 1].c), fabs(m[i].c));
			m[k - 1].c += m[i].c;
			if (fabs(m[k - 1].c) <= 1e-6 * big)      /* constants are rounded to the program's types */
				k--;
			continue;
		}
		if (m[i].c != 0)
			m[k++] = m[i];
	}
	if (!k)
		return 0;
	struct str key = {0};
	str_addn(&key, "p", 1);
	for (int i = 0; i < k; i++) {
		str_addn(&key, (const char *)&m[i].c, sizeof m[i].c);
		str_addn(&key, (const char *)&m[i].exp, sizeof m[i].exp);
		str_addn(&key, (const char *)&m[i].n, sizeof m[i].n);
		str_addn(&key, (const char *)m[i].f, sizeof m[i].f[0] * (size_t)m[i].n);
	}
	uint64_t *id = map_put(&c->index, key.p, key.n);
	str_free(&key);
	if (!*id) {
		struct poly p = { .n = k, .m = ARENA_NEW(c->a, struct mono, k) };
		memcpy(p.m, m, sizeof *m * (size_t)k);
		*id = c->poly.n;
		arr_push(&c->poly, p);
	}
	return (int)*id;
}

int poly_mono(struct cand *c, const struct mono *m)
{
	struct mono x = *m;
	return isnan(x.c) ? -1 : intern(c, &x, 1);
}

int poly_const(struct cand *c, double v)
{
	return poly_mono(c, &(struct mono){ .c = v });
}

int poly_fac(struct cand *c, int fac)
{
	return poly_mono(c, &(struct mono){ .c = 1, .n = 1, .f = { { (int16_t)fac, 1 } } });
}

int poly_add(struct cand *c, int a, int b, double scale)
{
	if (a < 0 || b < 0)
		return -1;
	const struct poly x = *poly_of(c, a), y = *poly_of(c, b);
	struct mono m[2 * MONOMIALS];
	if (x.n + y.n > 2 * MONOMIALS)
		return -1;
	for (int i = 0; i < x.n; i++)
		m[i] = x.m[i];
	for (int i = 0; i < y.n; i++) {
		m[x.n + i] = y.m[i];
		m[x.n + i].c *= scale;
		if (isnan(m[x.n + i].c))
			return -1;
	}
	int p = intern(c, m, x.n + y.n);
	return poly_of(c, p)->n > MONOMIALS ? -1 : p;
}

bool mono_mul(struct cand *c, const struct mono *a, const struct mono *b, struct mono *out)
{
	struct mono m = *a;
	m.c *= b->c;
	m.exp = poly_add(c, a->exp, b->exp, 1);
	if (m.exp < 0 || isnan(m.c))
		return false;
	for (int i = 0; i < b->n; i++) {
		int k = mono_find(&m, b->f[i].f);
		if (k < 0 && m.n == FACTORS)
			return false;
		if (k < 0) {
			m.f[m.n].f = b->f[i].f;
			m.f[m.n++].pow = b->f[i].pow;
			continue;
		}
		m.f[k].pow += b->f[i].pow;
		if (fac_of(c, m.f[k].f)->mask)
			m.f[k].pow = 1;
		if (!m.f[k].pow)
			mono_take(&m, k);
	}
	qsort(m.f, (size_t)m.n, sizeof m.f[0], by_factor);
	*out = m;
	return true;
}

int poly_mul(struct cand *c, int a, int b)
{
	if (a < 0 || b < 0)
		return -1;
	const struct poly x = *poly_of(c, a), y = *poly_of(c, b);
	if (x.n * y.n > 4 * MONOMIALS)
		return -1;
	struct mono *m = ARENA_NEW(c->a, struct mono, x.n * y.n + 1);
	for (int i = 0; i < x.n; i++)
		for (int j = 0; j < y.n; j++)
			if (!mono_mul(c, &x.m[i], &y.m[j], &m[i * y.n + j]))
				return -1;
	int p = intern(c, m, x.n * y.n);
	return poly_of(c, p)->n > MONOMIALS ? -1 : p;
}

bool mono_power(struct mono *m, int n)
{
	if (m->c == 0)
		return false;
	m->c = pow(m->c, n);
	for (int i = 0; i < m->n; i++)
		m->f[i].pow = (int16_t)(m->f[i].pow * n);
	return true;
}

void mono_take(struct mono *m, int i)
{
	for (m->n--; i < m->n; i++)
		m->f[i] = m->f[i + 1];
}

int mono_find(const struct mono *m, int f)
{
	for (int i = 0; i < m->n; i++)
		if (m->f[i].f == f)
			return i;
	return -1;
}

uint64_t mono_set(const struct cand *c, const struct mono *m)
{
	uint64_t s = m->exp > 0 ? poly_set(c, m->exp) : 0;
	for (int i = 0; i < m->n; i++)
		s |= fac_of(c, m->f[i].f)->set;
	return s;
}

uint64_t poly_set(const struct cand *c, int p)
{
	uint64_t s = 0;
	for (int i = 0; p > 0 && i < poly_of(c, p)->n; i++)
		s |= mono_set(c, &poly_of(c, p)->m[i]);
	return s;
}

/* exp of a: what is a whole multiple of the logarithm of a sum is a power of the sum. */
int poly_exp(struct cand *c, int a)
{
	struct mono m = { .c = 1 };
	if (a < 0)
		return -1;
	const struct poly x = *poly_of(c, a);
	for (int i = 0; i < x.n; i++) {
		const struct mono *t = &x.m[i];
		const struct fac *f = t->n == 1 && !t->exp ? fac_of(c, t->f[0].f) : NULL;
		struct mono one = { .c = 1 };
		if (f && f->kind == FAC_LOG && t->f[0].pow == 1 && t->c == nearbyint(t->c) && fabs(t->c) < 8) {
			one.n = 1;
			one.f[0].f = (int16_t)f->a;
			one.f[0].pow = (int16_t)t->c;
		} else if (!t->n && !t->exp && isfinite(t->c)) {
			one.c = exp(t->c);
			if (one.c == 0 || !isfinite(one.c))
				one = (struct mono){ .c = 1, .exp = poly_mono(c, t) };
		} else {
			one.exp = poly_mono(c, t);
		}
		if (one.exp < 0 || !mono_mul(c, &m, &one, &m))
			return -1;
	}
	return poly_mono(c, &m);
}

bool poly_is_one(const struct cand *c, int p)
{
	return p > 0 && poly_of(c, p)->n == 1 && !poly_of(c, p)->m[0].n && !poly_of(c, p)->m[0].exp && poly_of(c, p)->m[0].c == 1;
}

void poly_part(struct cand *c, int p, uint64_t axes, int *with, int *without)
{
	*with = *without = 0;
	const struct poly x = *poly_of(c, p);
	for (int i = 0; i < x.n; i++) {
		int *to = mono_set(c, &x.m[i]) & axes ? with : without;
		*to = poly_add(c, *to, poly_mono(c, &x.m[i]), 1);
	}
}

static int64_t extent(const struct cand *c, uint64_t axes)
{
	int64_t n = 1;
	for (int i = 1; i < c->naxis; i++)
		n *= axes >> i & 1 ? c->axis[i].size : 1;
	return n;
}

/* Sum of each monomial over axes: what has none of them goes before the sum. */
int poly_sum(struct cand *c, int p, uint64_t over)
{
	int sum = 0;
	if (p < 0)
		return -1;
	const struct poly x = *poly_of(c, p);
	for (int i = 0; i < x.n; i++) {
		struct mono in = { .c = 1 }, out = { .c = x.m[i].c };
		if (x.m[i].exp)
			poly_part(c, x.m[i].exp, over, &in.exp, &out.exp);
		for (int k = 0; k < x.m[i].n; k++) {
			struct mono *to = fac_of(c, x.m[i].f[k].f)->set & over ? &in : &out;
			to->f[to->n++] = x.m[i].f[k];
		}
		struct fac f = { .kind = FAC_SUM, .over = over };
		const struct fac *inner = in.n == 1 && !in.exp && in.f[0].pow == 1 ? fac_of(c, in.f[0].f) : NULL;
		if (!in.n && !in.exp) {
			out.c *= (double)extent(c, over);
		} else {
			struct mono one = in;
			if (inner && inner->kind == FAC_SUM && !(inner->over & c->right) && !(over & c->right)) {
				f.over |= inner->over;         /* one sum after the other */
				one = poly_of(c, inner->a)->m[0];
			}
			f.a = poly_mono(c, &one);
			if (f.a < 0 || out.n == FACTORS)
				return -1;
			f.set = mono_set(c, &one) & ~f.over;
			struct mono s = { .c = 1, .n = 1 };
			s.f[0].f = (int16_t)fac_add(c, &f);
			s.f[0].pow = 1;
			if (!mono_mul(c, &out, &s, &out))
				return -1;
		}
		sum = poly_add(c, sum, poly_mono(c, &out), 1);
	}
	return sum;
}

/* q . k of two factors that are vectors, or a sum of such products; 0: no. */
static int product(struct cand *c, int f, int g)
{
	const struct fac *x = fac_of(c, f), *y = fac_of(c, g);
	struct fac out = {0};
	if (x->kind == FAC_SUM) {
		const struct fac *t = x;
		int u = f;
		x = y, y = t;
		f = g, g = u;
	}
	if (x->kind != FAC_LEAF)
		return 0;
	if (y->kind == FAC_SUM) {
		struct mono m = poly_of(c, y->a)->m[0];
		uint64_t over = y->over;
		if (over & c->left && x->set & c->left)
			return 0;
		for (int i = 0; i < m.n; i++)
			if (fac_of(c, m.f[i].f)->set & 1) {
				int d = m.f[i].pow == 1 ? product(c, f, m.f[i].f) : 0;
				if (!d)
					return 0;
				mono_take(&m, i);
				struct mono one = { .c = 1, .n = 1 };
				one.f[0].f = (int16_t)d;
				one.f[0].pow = 1;
				if (!mono_mul(c, &m, &one, &m))
					return 0;
				out = (struct fac){ .kind = FAC_SUM, .a = poly_mono(c, &m), .over = over };
				out.set = mono_set(c, &m) & ~over;
				return fac_add(c, &out);
			}
		return 0;
	}
	if (y->kind != FAC_LEAF)
		return 0;
	bool turn = y->set & c->left || x->set & c->right;
	if (turn ? y->set & c->right || x->set & c->left : x->set & c->right || y->set & c->left)
		return 0;
	if (!((x->set | y->set) & c->right))     /* two rows */
		return 0;
	out = (struct fac){ .kind = FAC_DOT, .a = turn ? g : f, .b = turn ? f : g, .set = (x->set | y->set) & ~(uint64_t)1 };
	return fac_add(c, &out);
}

/* Sum over the dimension of vectors, of which each monomial is to have two; -1: another one. */
int poly_contract(struct cand *c, int p)
{
	int sum = 0;
	if (p < 0)
		return -1;
	const struct poly x = *poly_of(c, p);
	for (int i = 0; i < x.n; i++) {
		struct mono m = x.m[i];
		int v[2], n = 0;
		for (int k = 0; k < m.n; k++)
			if (fac_of(c, m.f[k].f)->set & 1) {
				if (n == 2 || m.f[k].pow != 1)
					return -1;
				v[n++] = m.f[k].f;
			}
		int f = n == 2 && !(m.exp && poly_set(c, m.exp) & 1) ? product(c, v[0], v[1]) : 0;
		if (!f)
			return -1;
		for (int k = 0; k < 2; k++)
			mono_take(&m, mono_find(&m, v[k]));
		struct mono one = { .c = 1, .n = 1 };
		one.f[0].f = (int16_t)f;
		one.f[0].pow = 1;
		if (!mono_mul(c, &m, &one, &m))
			return -1;
		sum = poly_add(c, sum, poly_mono(c, &m), 1);
	}
	return sum;
}
