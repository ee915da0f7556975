/* Which factors of an op are cut, by which axes: of all that its operands and results speak for, what moves the fewest bytes and computes
 * least twice. */
#include "impl.h"

enum { MOST = 6 };                           /* lists that are tried in all combinations */
static const double BYTES = 4e9, OPS = 2e10; /* that a device receives, and calculates, in a second */

struct way { int f; struct axes l; double weight; };

/* The beginning of l that divides the factor. */
static struct axes dividing(struct axes l, int64_t size)
{
	int64_t n = 1;
	for (int i = 0; i < l.n; i++) {
		n *= l.p[i].size;
		if (!size || size % n)
			return (struct axes){ i, l.p };
	}
	return l;
}

/* A factor behind another one of its dimension is cut only where that one is cut to the end. */
static bool contiguous(const struct ir_axes *x, const struct axes *f)
{
	for (int t = 0; t < x->nin + x->nout; t++)
		for (int d = 0; d < x->rank[t]; d++)
			for (int k = 1; k < x->dim[t][d].n; k++) {
				int before = x->dim[t][d].factor[k - 1];
				if (f[x->dim[t][d].factor[k]].n && axes_size(f[before]) != x->factor[before].size)
					return false;
			}
	return true;
}

/* Seconds, apart from what is the same for every choice. */
static double price(struct part *p, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, const ir_shard *have, const ir_shard *want,
                    uint32_t mesh, const struct axes *f, double ops)
{
	double s = 0, parts = 1, sums = 1;
	for (int i = 0; i < x->nfactor; i++) {
		parts *= (double)axes_size(f[i]);
		if (x->factor[i].kind == FACTOR_SUM)
			sums *= (double)axes_size(f[i]);
	}
	for (int t = 0; t < x->nin + x->nout; t++) {
		ir_shard h = part_shard(p, x, t, mesh, f);
		ir_type ty = fn->val.p[t < x->nin ? ir_in(fn, o, (uint32_t)t) : o->out + (uint32_t)(t - x->nin)].type;
		double local = (double)ir_type_of(p->m, ty)->bytes;
		for (int d = 0; d < x->rank[t]; d++)
			local /= (double)ir_shard_parts(p->m, h, d);
		s += local / BYTES / 8;              /* memory is read and written */
		if (t < x->nin) {
			s += part_bytes(p, ty, have[t], h) / BYTES;
			continue;
		}
		s += part_bytes(p, ty, h, want[t - x->nin]) / BYTES;
		double finer = 1;                    /* a sum that each device needs a part of is not sent back */
		for (int d = 0; d < x->rank[t]; d++)
			finer *= (double)ir_shard_parts(p->m, want[t - x->nin], d) / (double)ir_shard_parts(p->m, h, d);
		if (sums > 1)
			s += (finer > 1 ? 1 : 2) * local * (sums - 1) / sums / BYTES;
	}
	return s + ops / parts / OPS;
}

struct axes *part_choose(struct part *p, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, const ir_shard *have,
                         const ir_shard *want, uint32_t *mesh)
{
	struct axes *best = ARENA_NEW(&p->a, struct axes, x->nfactor + 1), *try = ARENA_NEW(&p->a, struct axes, x->nfactor + 1);
	struct factor_axes *seen = ARENA_NEW(&p->a, struct factor_axes, x->nfactor + 1);
	struct way way[MOST];
	int n = 0;
	*mesh = 0;
	for (int i = 0; i < x->nin + x->nout && !*mesh; i++) {
		int t = (x->nin + i) % (x->nin + x->nout);
		ir_shard h = t < x->nin ? have[t] : want[t - x->nin];
		if (h)
			*mesh = p->m->shard.p[h].mesh;
	}
	for (int t = 0; t < x->nin + x->nout; t++) {
		ir_shard h = part_summed(p, t < x->nin ? have[t] : want[t - x->nin]);
		if (!h || p->m->shard.p[h].mesh != *mesh)
			continue;
		double weight = (double)ir_vtype(p->m, fn, t < x->nin ? ir_in(fn, o, (uint32_t)t) : o->out + (uint32_t)(t - x->nin))->bytes;
		factors_of(&p->a, p->m, x, t, h, seen);
		for (int f = 0; f < x->nfactor; f++) {
			struct axes l = seen[f].has ? dividing(seen[f].axes, x->factor[f].size) : (struct axes){0};
			if (!l.n || !part_can(p, fn, o, x, f))
				continue;
			int k = 0;
			while (k < n && !(way[k].f == f && axes_equal(way[k].l, l)))
				k++;
			if (k < n) {
				way[k].weight += weight;
				continue;
			}
			if (n == MOST) {                         /* the lightest gives way */
				for (int i = k = 0; i < n; i++)
					k = way[i].weight < way[k].weight ? i : k;
				if (way[k].weight >= weight)
					continue;
				n--;
				way[k] = way[n];
			}
			way[n++] = (struct way){ f, l, weight };
		}
	}
	double least = -1, ops = o->kind == IR_dot || o->kind == IR_convolution ? ir_cost_of(p->m, fn, o).flops : 0;
	for (unsigned set = 0; set < 1u << n; set++) {
		memset(try, 0, sizeof *try * (size_t)x->nfactor);
		bool legal = true;
		for (int i = 0; i < n && legal; i++) {
			if (!(set >> i & 1))
				continue;
			legal = !try[way[i].f].n;
			for (int k = 0; k < i && legal; k++)
				for (int a = 0; set >> k & 1 && a < way[i].l.n; a++)
					for (int c = 0; c < way[k].l.n; c++)
						legal &= !ir_axes_overlap(way[i].l.p[a], way[k].l.p[c]);
			try[way[i].f] = way[i].l;
		}
		if (!legal || !contiguous(x, try))
			continue;
		double s = price(p, fn, o, x, have, want, *mesh, try, ops);
		if (least < 0 || s < least) {
			least = s;
			memcpy(best, try, sizeof *try * (size_t)x->nfactor);
		}
	}
	return best;
}
