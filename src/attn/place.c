/* Values in the layouts of the ops (docs/attention.md): a dimension for each axis, in their order. */
#include "impl.h"

/* Extent of the vector dimension of v (e's); 1: it has none. */
int64_t place_vector(const struct env *e, ir_val v, const struct lab *l)
{
	const struct ir_type_info *t = ir_vtype(e->b.m, e->b.fn, v);
	for (int d = 0; d < l->rank; d++) {
		int64_t n = t->dim[d];
		bool has = false;
		for (int k = 0; k < l->n[d]; k++) {
			if (l->axis[d][k] == VEC)
				has = true;
			else
				n /= e->size[l->axis[d][k]];
		}
		if (has)
			return n;
	}
	return 1;
}

/* Axes of a set, the batch first, then the heads of queries, queries, keys. */
int place_order(const struct match *m, uint64_t set, uint8_t *out)
{
	const struct cand *c = m->c;
	int n = 0;
	uint64_t t = m->t ? (uint64_t)1 << m->t : 0, part[4] = { c->batch, c->left & ~t, t, c->right };
	for (int p = 0; p < 4; p++)
		for (int i = 1; i < c->naxis; i++)
			if (set & part[p] & (uint64_t)1 << i)
				out[n++] = (uint8_t)i;
	return n;
}

/* v with a dimension for each axis of `want`, in order, and one for the vector if it has one; fill: missing ones are repeated, others are 1. */
ir_val place_as(struct env *e, ir_val v, int lab, const uint8_t *want, int nwant, uint64_t fill)
{
	struct ir_b *b = &e->b;
	const struct lab *l = lab_of(e->m->c, lab);
	int64_t dim[ATOMS] = {0}, perm[ATOMS], to[ATOMS], full[ATOMS], vec = place_vector(e, v, l);
	int at[ATOMS], n = 0, np = 0, nt = 0;
	for (int i = 0; i < ATOMS; i++)
		at[i] = -1;
	for (int d = 0; d < l->rank; d++)
		for (int k = 0; k < l->n[d]; k++) {
			at[l->axis[d][k]] = n;
			dim[n++] = l->axis[d][k] == VEC ? vec : e->size[l->axis[d][k]];
		}
	enum dtype dt = ir_vtype(b->m, b->fn, v)->dtype;
	v = ir_reshape(b, v, n, dim);
	bool all = true, more = false;
	for (int i = 0; i <= nwant; i++) {
		int x = i < nwant ? want[i] : VEC;
		if (x == VEC && at[VEC] < 0)
			continue;
		if (at[x] >= 0) {
			to[np] = nt;
			perm[np++] = at[x];
		} else {
			all = false;
			more |= fill >> x & 1;
		}
		full[nt++] = x == VEC ? vec : at[x] >= 0 || fill >> x & 1 ? e->size[x] : 1;
	}
	assert(np == n);
	v = ir_transpose(b, v, perm);
	if (all)
		return v;
	return more ? ir_broadcast(b, v, ir_tensor(b->m, dt, nt, full), to) : ir_reshape(b, v, nt, full);
}

/* Extents [B.., G, T, S] of the ops; returns the number of batch dimensions. */
int place_extents(const struct env *e, int64_t *dim)
{
	const struct cand *c = e->m->c;
	int nb = 0;
	for (int i = 1; i < c->naxis; i++)
		if (c->batch >> i & 1)
			dim[nb++] = e->size[i];
	dim[nb] = dim[nb + 1] = dim[nb + 2] = 1;
	for (int i = 1; i < c->naxis; i++)
		if ((c->left | c->right) >> i & 1)
			dim[nb + (c->right >> i & 1 ? 2 : i == e->m->t ? 1 : 0)] *= e->size[i];
	return nb;
}

ir_val place_each(struct env *e, ir_val v, int lab, uint64_t set, bool table)
{
	const struct cand *c = e->m->c;
	uint8_t want[ATOMS];
	int64_t dim[2] = { 1, 1 };
	int n = place_order(e->m, set, want);
	for (int i = 0; i < n; i++)
		dim[0] *= e->size[want[i]];
	if (table)
		want[n] = (uint8_t)__builtin_ctzll(lab_of(c, lab)->set & c->tables);
	v = place_as(e, v, lab, want, n + table, set);
	dim[1] = table ? e->size[want[n]] : 1;
	return ir_reshape(&e->b, v, 1 + table, dim);
}
