/* The algebra of axes and their parts, and shardings seen on factors. */
#include "impl.h"

bool ref_before(struct ir_axis_ref a, struct ir_axis_ref b, struct ir_axis_ref *out)
{
	*out = a;
	if (!ir_axes_overlap(a, b))
		return true;
	out->size = b.pre % a.pre ? 1 : gcd_of(a.size, b.pre / a.pre);
	return out->size > 1;
}

int64_t axes_size(struct axes l)
{
	int64_t n = 1;
	for (int i = 0; i < l.n; i++)
		n *= l.p[i].size;
	return n;
}

bool axes_equal(struct axes a, struct axes b)
{
	bool same = a.n == b.n;
	for (int i = 0; same && i < a.n; i++)
		same = ref_equal(a.p[i], b.p[i]);
	return same;
}

bool axes_begin(struct axes a, struct axes b)
{
	for (int i = 0; i < a.n; i++)
		if (i >= b.n || !(ref_equal(a.p[i], b.p[i]) || (i == a.n - 1 && ref_begins(a.p[i], b.p[i]))))
			return false;
	return true;
}

struct axes axes_without(struct arena *a, struct axes l, struct axes taken)
{
	for (int i = 0; i < l.n; i++) {
		struct ir_axis_ref r = l.p[i], s;
		bool some = true;
		for (int k = 0; some && k < taken.n; k++) {
			some = ref_before(r, taken.p[k], &s);
			r = s;
		}
		if (some && ref_equal(r, l.p[i]))
			continue;
		struct ir_axis_ref *p = ARENA_NEW(a, struct ir_axis_ref, i + 1);
		memcpy(p, l.p, sizeof *p * (size_t)i);
		p[i] = r;
		return (struct axes){ i + some, p };
	}
	return l;
}

struct axes axes_join(struct arena *a, struct axes l, struct axes r)
{
	if (!r.n)
		return l;
	struct ir_axis_ref *p = ARENA_NEW(a, struct ir_axis_ref, l.n + r.n);
	int n = 0;
	for (int i = 0; i < l.n + r.n; i++) {
		struct ir_axis_ref x = i < l.n ? l.p[i] : r.p[i - l.n];
		if (n && p[n - 1].axis == x.axis && p[n - 1].pre * p[n - 1].size == x.pre)
			p[n - 1].size *= x.size;
		else
			p[n++] = x;
	}
	return (struct axes){ n, p };
}

struct axes axes_common(struct arena *a, struct axes x, struct axes y)
{
	struct ir_axis_ref *q = ARENA_NEW(a, struct ir_axis_ref, MIN(x.n, y.n) + 1);
	int n = 0;
	while (n < x.n && n < y.n && ref_equal(x.p[n], y.p[n])) {
		q[n] = x.p[n];
		n++;
	}
	if (n < x.n && n < y.n && (ref_begins(x.p[n], y.p[n]) || ref_begins(y.p[n], x.p[n]))) {
		q[n] = ref_begins(x.p[n], y.p[n]) ? x.p[n] : y.p[n];
		n++;
	}
	return (struct axes){ n, q };
}

struct axes axes_rest(struct arena *a, struct axes x, struct axes h)
{
	struct ir_axis_ref *q = ARENA_NEW(a, struct ir_axis_ref, x.n + 1);
	int n = 0;
	for (int i = 0; i < x.n; i++) {
		if (i < h.n && ref_equal(x.p[i], h.p[i]))
			continue;
		q[n] = x.p[i];
		if (i < h.n) {                               /* the beginning has a major part of it */
			q[n].pre *= h.p[i].size;
			q[n].size /= h.p[i].size;
		}
		n++;
	}
	return (struct axes){ n, q };
}

bool axes_among(struct axes x, struct axes y)
{
	for (int i = 0; i < x.n; i++) {
		bool one = false;
		for (int k = 0; k < y.n; k++)
			one |= ref_equal(x.p[i], y.p[k]);
		if (!one)
			return false;
	}
	return true;
}

struct axes axes_but(struct arena *a, struct axes l, struct axes gone)
{
	struct ir_axis_ref *q = ARENA_NEW(a, struct ir_axis_ref, l.n + 1);
	int n = 0;
	for (int i = 0; i < l.n; i++)
		if (!axes_among((struct axes){ 1, &l.p[i] }, gone))
			q[n++] = l.p[i];
	return (struct axes){ n, q };
}

/* --- factors -------------------------------------------------------------------- */

/* A dimension of size 32 that is 4 factors of 8 and is cut by x (2), y (8) is cut in the first factor by x and the major half of y,
 * in the second by the other half.  Where the sizes have nothing in common the rest fits no factor. */
static void spread(struct arena *a, const struct ir_axes *x, const struct ir_axes_dim *d, struct axes l, bool open, struct factor_axes *out)
{
	struct ir_axis_ref *rest = ARENA_NEW(a, struct ir_axis_ref, l.n + 1);
	int from = 0;
	if (l.n)
		memcpy(rest, l.p, sizeof *rest * (size_t)l.n);
	bool over = false;
	for (int k = 0; k < d->n; k++) {
		struct factor_axes *f = &out[d->factor[k]];
		*f = (struct factor_axes){ .has = true, .closed = !open || over, .minor = k == d->n - 1 };
		if (over)
			continue;
		if (f->minor) {
			f->axes = (struct axes){ l.n - from, rest + from };
			continue;
		}
		struct ir_axis_ref *p = ARENA_NEW(a, struct ir_axis_ref, l.n - from + 1);
		int64_t left = x->factor[d->factor[k]].size, g;
		int n = 0;
		while (from < l.n && (g = gcd_of(rest[from].size, left)) > 1) {
			p[n] = rest[from];
			p[n++].size = g;
			left /= g;
			if (rest[from].size > g) {
				rest[from].pre *= g;
				rest[from].size /= g;
			} else {
				from++;
			}
		}
		f->axes = (struct axes){ n, p };
		if (left > 1 && from < l.n) {
			f->over = (struct axes){ l.n - from, rest + from };
			over = true;
		}
	}
}

struct axes factors_of(struct arena *a, const struct ir_module *m, const struct ir_axes *x, int tensor, ir_shard h, struct factor_axes *out)
{
	memset(out, 0, sizeof *out * (size_t)x->nfactor);
	const struct ir_shard_info *s = &m->shard.p[h];
	struct axes taken = {0};
	for (int d = 0; d < x->rank[tensor]; d++) {
		bool given = h && d < s->rank;
		struct axes l = given ? (struct axes){ s->dim[d].naxis, s->dim[d].axis } : (struct axes){0};
		if (x->dim[tensor][d].n)
			spread(a, x, &x->dim[tensor][d], l, !given || s->dim[d].open, out);
		else
			taken = axes_join(a, taken, l);
	}
	if (h && (s->nrepl || s->npart)) {
		taken = axes_join(a, taken, (struct axes){ s->nrepl, s->repl });
		taken = axes_join(a, taken, (struct axes){ s->npart, s->part });
	}
	return taken;
}

ir_shard factors_to(struct arena *a, struct ir_module *m, const struct ir_axes *x, int tensor, ir_shard h, uint32_t mesh, const struct factor_axes *f)
{
	struct ir_shard_info n = { .mesh = mesh, .rank = x->rank[tensor] };
	if (h)
		n = m->shard.p[h];
	struct ir_dim_shard *dim = ARENA_NEW(a, struct ir_dim_shard, n.rank + 1);
	for (int d = 0; d < n.rank; d++) {
		if (h)
			dim[d] = n.dim[d];
		else
			dim[d].open = true;
		const struct ir_axes_dim *k = &x->dim[tensor][d];
		struct axes l = {0};
		for (int i = 0; i < k->n; i++) {
			const struct factor_axes *g = &f[k->factor[i]];
			l = axes_join(a, axes_join(a, l, g->axes), g->over);
			if (g->over.n || axes_size(g->axes) != x->factor[k->factor[i]].size)
				break;
		}
		if (k->n) {
			dim[d].naxis = l.n;
			dim[d].axis = (struct ir_axis_ref *)l.p;
		}
	}
	n.dim = dim;
	return ir_shard_add(m, &n);
}
