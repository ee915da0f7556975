/* Slices, pads, concatenations and reversals as maps of indices.
 *
 * Values of such operations along dimensions that are cut are not made where they stand: their extents need not divide into parts, and what
 * the next one leaves out need not be moved.  They are kept as pieces of the values that they are made of.  What reads one of them in another
 * way has it put together on each device (halo.c) from what that device has and from what it lacks. */
#include "impl.h"

static struct run still(int64_t n) { return (struct run){ 0, n, 1, 0, 1 }; }
static bool is_still(const struct run *r, int64_t n) { return !r->first && r->n == n && r->step == 1 && !r->from && r->by == 1; }
static bool covers(const struct run *r, int64_t n) { return !r->first && r->n == n && r->step == 1; }

static struct view *view_new(struct part *p, int rank, const int64_t *dim, int npiece, int nsource)
{
	struct view *v = ARENA_NEW(&p->a, struct view, 1);
	*v = (struct view){ .rank = rank, .dim = arena_copy(&p->a, dim, sizeof *dim * (size_t)rank), .piece = ARENA_NEW(&p->a, struct piece, npiece + 1),
	                    .source = ARENA_NEW(&p->a, struct source, nsource + 1) };
	return v;
}

static struct run *add_piece(struct part *p, struct view *v, int source)
{
	struct run *r = ARENA_NEW(&p->a, struct run, v->rank + 1);
	for (int d = 0; d < v->rank; d++)
		r[d] = still(v->dim[d]);
	v->piece[v->npiece++] = (struct piece){ source, r };
	return r;
}

static struct view *of_one(struct part *p, const struct ir_type_info *t, struct source s)
{
	struct view *v = view_new(p, t->rank, t->dim, 1, 1);
	s.dim = v->dim;
	v->source[v->nsource++] = s;
	add_piece(p, v, 0);
	return v;
}

struct view *view_of(struct part *p, const struct ir_type_info *t, ir_val x, ir_shard sh) { return of_one(p, t, (struct source){ .v = x, .sh = sh }); }
struct view *view_fill(struct part *p, const struct ir_type_info *t, ir_val x) { return of_one(p, t, (struct source){ .v = x, .fill = true }); }

/* --- composing --------------------------------------------------------------------------------- */

/* What of r is within n elements. */
static bool clip(struct run *r, int64_t n)
{
	int64_t k = r->first < 0 ? (-r->first + r->step - 1) / r->step : 0;
	r->first += k * r->step;
	r->from += k * r->by;
	r->n = MIN(r->n - k, r->first < n ? (n - 1 - r->first) / r->step + 1 : 0);
	if (r->n == 1)
		r->step = 1;
	return r->n > 0;
}

static bool sliced(struct run *r, int64_t start, int64_t stride, int64_t n)
{
	int64_t every = stride / gcd_of(stride, r->step), k = 0;
	while (k < every && (r->first + r->step * k - start) % stride)
		k++;
	if (k == every || k >= r->n)
		return false;
	*r = (struct run){ (r->first + r->step * k - start) / stride, (r->n - k + every - 1) / every, r->step * every / stride, r->from + r->by * k, r->by * every };
	return clip(r, n);
}

static void reversed(struct run *r, int64_t n)
{
	*r = (struct run){ n - 1 - (r->first + r->step * (r->n - 1)), r->n, r->step, r->from + r->by * (r->n - 1), -r->by };
}

static bool padded(struct run *r, int64_t low, int64_t interior, int64_t n)
{
	r->first = low + (interior + 1) * r->first;
	r->step *= interior + 1;
	return clip(r, n);
}

static bool same_fill(const struct ir_b *b, ir_val x, ir_val y)
{
	const void *p = ir_splat(b->m, b->fn, x), *q = ir_splat(b->m, b->fn, y);
	return x == y || (p && q && !memcmp(p, q, dtype_info[ir_vtype(b->m, b->fn, x)->dtype].bytes));
}

bool view_moves(struct part *p, const struct ir_fn *fn, const struct ir_op *o, int d)
{
	const struct ir_type_info *t = o->nin ? ir_vtype(p->m, fn, ir_in(fn, o, 0)) : NULL;
	int n;
	switch ((enum ir_kind)o->kind) {
	case IR_slice:
		return ir_attrs(fn, o, AT_start, &n)[d] || ir_attrs(fn, o, AT_limit, &n)[d] < t->dim[d] || ir_attrs(fn, o, AT_stride, &n)[d] > 1;
	case IR_pad:
		return ir_attrs(fn, o, AT_low, &n)[d] || ir_attrs(fn, o, AT_high, &n)[d] || ir_attrs(fn, o, AT_interior, &n)[d];
	case IR_concatenate:
		return ir_attr(fn, o, AT_dim) == d;
	case IR_reverse: {
		const int64_t *dims = ir_attrs(fn, o, AT_dims, &n);
		for (int i = 0; i < n; i++)
			if (dims[i] == d)
				return true;
		return false;
	}
	default:
		return false;
	}
}

/* Piece q of one operand, moved along all dimensions; false: nothing of it is left. */
static bool moved(const struct ir_fn *fn, const struct ir_op *o, const struct view *in, const struct view *out, struct run *r)
{
	int n;
	for (int d = 0; d < out->rank; d++)
		switch ((enum ir_kind)o->kind) {
		case IR_slice:
			if (!sliced(&r[d], ir_attrs(fn, o, AT_start, &n)[d], ir_attrs(fn, o, AT_stride, &n)[d], out->dim[d]))
				return false;
			break;
		case IR_pad:
			if (!padded(&r[d], ir_attrs(fn, o, AT_low, &n)[d], ir_attrs(fn, o, AT_interior, &n)[d], out->dim[d]))
				return false;
			break;
		default: {
			const int64_t *dims = ir_attrs(fn, o, AT_dims, &n);
			for (int i = 0; i < n; i++)
				if (dims[i] == d)
					reversed(&r[d], in->dim[d]);
		}
		}
	return true;
}

/* If one of the pieces has a step: are there no others but what is around it? */
static bool boxes(const struct view *v)
{
	int steps = 0, data = 0;
	for (int k = 0; k < v->npiece; k++) {
		data += !v->source[v->piece[k].source].fill;
		for (int d = 0; d < v->rank; d++)
			steps += v->piece[k].run[d].step > 1;
	}
	return !steps || (v->npiece <= 2 && data == 1);
}

struct view *view_moved(struct part *p, const struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, struct view *const *in)
{
	const struct ir_type_info *t = ir_vtype(p->m, fn, o->out);
	int npiece = 1, nsource = 1, operands = o->kind == IR_pad ? 1 : (int)o->nin;
	for (int i = 0; i < operands; i++) {
		npiece += in[i]->npiece;
		nsource += in[i]->nsource;
	}
	struct view *v = view_new(p, t->rank, t->dim, npiece, nsource);
	ir_val under = 0;                        /* all that is around the pieces, and between them */
	if (o->kind == IR_pad) {
		v->source[v->nsource++] = (struct source){ .v = under = in[1]->source[0].v, .fill = true };
		add_piece(p, v, 0);
	}
	int64_t at = 0;
	for (int i = 0; i < operands; i++) {
		const struct view *x = in[i];
		int first = v->nsource;
		memcpy(&v->source[first], x->source, sizeof *x->source * (size_t)x->nsource);
		v->nsource += x->nsource;
		for (int k = 0; k < x->npiece; k++) {
			const struct source *s = &x->source[x->piece[k].source];
			if (s->fill && under && same_fill(b, s->v, under))
				continue;
			struct run *r = add_piece(p, v, first + x->piece[k].source);
			memcpy(r, x->piece[k].run, sizeof *r * (size_t)v->rank);
			if (o->kind == IR_concatenate)
				r[ir_attr(fn, o, AT_dim)].first += at;
			else if (!moved(fn, o, x, v, r))
				v->npiece--;
		}
		if (o->kind == IR_concatenate)
			at += x->dim[ir_attr(fn, o, AT_dim)];
	}
	for (int k = v->npiece - 1; k > 0; k--) {       /* what is under a piece that covers all is not seen */
		bool all = true;
		for (int d = 0; all && d < v->rank; d++)
			all = covers(&v->piece[k].run[d], v->dim[d]);
		if (all) {
			v->piece += k;
			v->npiece -= k;
			break;
		}
	}
	return boxes(v) ? v : NULL;
}

struct view *view_longer(struct part *p, const struct ir_b *b, const struct view *x, const int64_t *dim, ir_val fill)
{
	struct view *v = view_new(p, x->rank, dim, x->npiece + 1, x->nsource + 1);
	if (!memcmp(dim, x->dim, sizeof *dim * (size_t)x->rank))
		fill = 0;
	memcpy(v->source, x->source, sizeof *x->source * (size_t)x->nsource);
	v->nsource = x->nsource;
	if (fill) {
		v->source[v->nsource++] = (struct source){ .v = fill, .fill = true };
		add_piece(p, v, x->nsource);
	}
	for (int k = 0; k < x->npiece; k++) {
		const struct source *q = &v->source[x->piece[k].source];
		if (fill && q->fill && same_fill(b, q->v, fill))
			continue;
		struct run *r = add_piece(p, v, x->piece[k].source);
		memcpy(r, x->piece[k].run, sizeof *r * (size_t)v->rank);
		for (int d = 0; d < v->rank && !fill; d++)       /* what is behind it there will do */
			if (is_still(&r[d], x->dim[d]) && (q->fill || q->dim[d] == dim[d]))
				r[d] = still(dim[d]);
	}
	return boxes(v) ? v : NULL;
}

/* --- making it ---------------------------------------------------------------------------------- */

/* Along d, where all of it is here: r of x, n elements with the fill around. */
static ir_val along(struct part *p, struct ir_b *b, ir_val x, int d, struct run r, int64_t n, ir_val fill)
{
	const struct ir_type_info *t = ir_vtype(p->m, b->fn, x);
	int rank = t->rank;
	enum dtype dt = t->dtype;
	int64_t lo[IR_MAX_RANK] = {0}, hi[IR_MAX_RANK], step[IR_MAX_RANK], w[3 * (IR_MAX_RANK + 1)] = {0};
	if (is_still(&r, t->dim[d]) && n == r.n)
		return x;
	for (int k = 0; k < rank; k++) {
		hi[k] = t->dim[k];
		step[k] = 1;
	}
	step[d] = MAX(1, r.by < 0 ? -r.by : r.by);
	lo[d] = r.by < 0 ? r.from + r.by * (r.n - 1) : r.from;
	hi[d] = lo[d] + step[d] * (r.n - 1) + 1;
	x = ir_slice(b, x, lo, hi, step);
	if (r.by < 0)
		x = ir_emit(b, IR_reverse, 1, &x, b->fn->val.p[x].type, (int64_t[]){ 1, d }, 2);
	if (covers(&r, n))
		return x;
	for (int k = 0; k < 3; k++)
		w[k * (rank + 1)] = rank;
	w[1 + d] = r.first;
	w[rank + 2 + d] = n - 1 - (r.first + r.step * (r.n - 1));
	w[2 * rank + 3 + d] = r.step - 1;
	memcpy(hi, ir_vtype(p->m, b->fn, x)->dim, sizeof *hi * (size_t)rank);
	hi[d] = n;
	return ir_emit(b, IR_pad, 2, (ir_val[]){ x, fill }, ir_tensor(p->m, dt, rank, hi), w, 3 * ((uint32_t)rank + 1));
}

/* What there is to know of a view before it is made. */
struct making { const struct view *v; ir_shard to; bool moved[IR_MAX_RANK]; int ndata, ncut, cut; ir_val fill; bool fills; };

/* Can it be put together along one dimension after the other? */
static bool studied(struct part *p, const struct ir_b *b, const struct view *v, ir_shard to, struct making *k)
{
	*k = (struct making){ .v = v, .to = to, .cut = -1 };
	bool partial = false, one = true;        /* does a piece leave out places; is there one fill */
	for (int i = 0; i < v->npiece; i++) {
		const struct source *s = &v->source[v->piece[i].source];
		for (int d = 0; d < v->rank && !s->fill; d++)
			k->moved[d] |= !is_still(&v->piece[i].run[d], v->dim[d]) || s->dim[d] != v->dim[d];
		k->ndata += !s->fill;
		if (s->fill) {
			one &= !k->fills || same_fill(b, k->fill, s->v);
			k->fill = s->v;
			k->fills = true;
		}
	}
	for (int d = 0; d < v->rank; d++) {
		if (v->dim[d] > INT32_MAX)
			return false;
		if (k->moved[d] && ir_shard_parts(p->m, to, d) > 1) {
			k->ncut++;
			k->cut = d;
		}
	}
	for (int i = 0; i < v->npiece; i++)
		for (int d = 0; d < v->rank; d++)
			if (d != k->cut || k->ncut > 1) {
				bool all = covers(&v->piece[i].run[d], v->dim[d]);
				partial |= !all;
				if (!all && v->source[v->piece[i].source].fill)
					return false;
			}
	if (!k->ndata || part_sum(p, to))
		return false;
	if (k->ndata == 1)
		return one;
	/* others would be overwritten by what is around a piece */
	return k->ncut == 1 && (!partial || (one && k->fills && k->ndata < 2));
}

/* Do axes of l cut h, but not along d?  What lies so is gathered, or cut along d. */
static bool cut_elsewhere(struct part *p, ir_shard h, int rank, int d, struct axes l)
{
	for (int e = 0; e < rank; e++) {
		struct axes of = part_axes(p, h, e);
		for (int i = 0; i < of.n && e != d; i++)
			for (int k = 0; k < l.n; k++)
				if (ir_axes_overlap(of.p[i], l.p[k]))
					return true;
	}
	return false;
}

/* How the source of a view comes to where it is put together. */
static ir_shard near(struct part *p, const struct making *k, const struct source *s)
{
	struct ir_shard_info n = { .mesh = p->m->shard.p[k->to].mesh, .rank = k->v->rank };
	n.dim = ARENA_NEW(&p->a, struct ir_dim_shard, n.rank + 1);
	for (int d = 0; d < n.rank; d++) {
		struct axes l = part_axes(p, k->to, d);
		if (k->moved[d] && (s->dim[d] % axes_size(l) || (ir_shard_parts(p->m, s->sh, d) == 1 && !cut_elsewhere(p, s->sh, n.rank, d, l))))
			continue;
		n.dim[d].naxis = l.n;
		n.dim[d].axis = (struct ir_axis_ref *)l.p;
	}
	ir_shard h = ir_shard_add(p->m, &n);
	return ir_shard_replicated(p->m, h) ? 0 : h;
}

static bool same_source(const struct source *a, const struct source *b, int rank)
{
	return a->v == b->v && a->sh == b->sh && a->fill == b->fill && !memcmp(a->dim, b->dim, sizeof *a->dim * (size_t)rank);
}

/* Parts of one value that is turned round along several dimensions that are cut: each is turned and goes at once to the device on the other side.
 * done: these dimensions.  0: there are not several. */
static ir_val turned_round(struct part *p, struct ir_b *b, const struct making *k, ir_shard lies, ir_val v, bool *done)
{
	uint32_t mesh = p->m->shard.p[k->to].mesh;
	struct axes l = {0};
	int64_t dims[IR_MAX_RANK + 1] = {0};
	for (int d = 0; d < k->v->rank && k->v->npiece == 1; d++) {
		const struct run *r = &k->v->piece[0].run[d];
		int64_t n = k->v->dim[d];
		done[d] = k->moved[d] && ir_shard_parts(p->m, k->to, d) > 1 && ir_shard_parts(p->m, lies, d) > 1 && covers(r, n) && r->by == -1 && r->from == n - 1 &&
		          k->v->source[k->v->piece[0].source].dim[d] == n;
		if (!done[d])
			continue;
		dims[++dims[0]] = d;
		l = axes_join(&p->a, l, part_axes(p, k->to, d));
	}
	if (dims[0] < 2) {
		memset(done, 0, sizeof *done * IR_MAX_RANK);
		return 0;
	}
	ir_type t = b->fn->val.p[v].type;
	v = ir_emit(b, IR_reverse, 1, &v, t, dims, (uint32_t)dims[0] + 1);
	ir_group group = part_group(p, mesh, l);
	const struct ir_group_info *g = &p->m->group.p[group];
	int64_t *w = ARENA_NEW(&p->a, int64_t, 2 * p->ndev + 1);
	for (int row = 0; row < g->nrow; row++)
		for (int i = 0; i < g->ncol; i++) {
			w[++w[0]] = g->id[row * g->ncol + g->ncol - 1 - i];
			w[++w[0]] = g->id[row * g->ncol + i];
		}
	return ir_emit_raw(b, IR_collective_permute, 1, &v, 1, &t, w, (uint32_t)w[0] + 1);
}

/* The elements of x's source q that x shows: of dim[d] along d, from element lo[d] on; as many more behind them as it takes to divide as `to`. */
static void shown(struct part *p, const struct making *k, const struct source *q, int64_t *lo, int64_t *n, int64_t *dim)
{
	const struct view *v = k->v;
	for (int d = 0; d < v->rank; d++) {
		int64_t from = q->dim[d], end = 0, parts = ir_shard_parts(p->m, k->to, d);
		for (int i = 0; i < v->npiece; i++) {
			const struct run *r = &v->piece[i].run[d];
			int64_t last = r->from + r->by * (r->n - 1);
			if (!same_source(&v->source[v->piece[i].source], q, v->rank))
				continue;
			from = MIN(from, MIN(r->from, last));
			end = MAX(end, MAX(r->from, last) + 1);
		}
		lo[d] = k->moved[d] ? from : 0;
		n[d] = k->moved[d] ? end - from : q->dim[d];
		dim[d] = (n[d] + parts - 1) / parts * parts;
	}
}

/* It, where of a source of which much would come to be cut there comes, in one step, what is shown of it. */
static const struct view *cropped(struct part *p, struct ir_b *b, const struct making *k)
{
	const struct view *v = k->v;
	struct view *c = NULL;
	for (int i = 0; i < v->nsource; i++) {
		const struct source *q = &v->source[i];
		int64_t lo[IR_MAX_RANK], n[IR_MAX_RANK], dim[IR_MAX_RANK];
		bool again = q->fill;
		for (int j = 0; j < i && !again; j++)
			again = same_source(&v->source[j], q, v->rank);
		double bytes = again ? 0 : part_travel(p, ir_tensor(p->m, (enum dtype)ir_vtype(p->m, b->fn, q->v)->dtype, v->rank, q->dim), q->sh, near(p, k, q)).bytes;
		if (again || bytes < (double)part_worth(p))
			continue;
		shown(p, k, q, lo, n, dim);
		struct run *all = ARENA_NEW(&p->a, struct run, v->rank + 1);
		for (int d = 0; d < v->rank; d++)
			all[d] = (struct run){ 0, n[d], 1, lo[d], 1 };
		ir_val x = part_boxes(p, b, q->v, q->sh, q->dim, 1, &(struct piece){ 0, all }, dim, k->to, (int64_t)(bytes / 2));
		if (!x)
			continue;
		if (!c) {
			c = arena_copy(&p->a, v, sizeof *v);
			c->source = arena_copy(&p->a, v->source, sizeof *v->source * (size_t)v->nsource);
			c->piece = arena_copy(&p->a, v->piece, sizeof *v->piece * (size_t)v->npiece);
		}
		for (int j = 0; j < c->npiece; j++) {
			struct piece *at = &c->piece[j];
			if (!same_source(&v->source[at->source], q, v->rank))
				continue;
			struct run *r = arena_copy(&p->a, at->run, sizeof *r * (size_t)v->rank);
			for (int d = 0; d < v->rank; d++) {
				r[d].from -= lo[d];
				if (v->npiece == 1 && dim[d] == v->dim[d] && is_still(&r[d], n[d]))     /* what is behind it there will do */
					r[d] = still(dim[d]);
			}
			at->run = r;
			c->source[at->source] = (struct source){ .v = x, .sh = k->to, .dim = arena_copy(&p->a, dim, sizeof *dim * (size_t)v->rank) };
		}
	}
	return c ? c : v;
}

/* The cut dimension, not done yet, along which least is left of x, a device's part: the others bring less then.  -1: there is none. */
static int next_along(struct part *p, const struct making *k, ir_val x, const struct ir_b *b, const bool *done)
{
	const struct ir_type_info *t = ir_vtype(p->m, b->fn, x);
	int best = -1;
	double least = 0;
	for (int d = 0; d < k->v->rank; d++) {
		int64_t parts = ir_shard_parts(p->m, k->to, d);
		double left = (double)k->v->dim[d] / (double)parts / (double)t->dim[d];
		if (!k->moved[d] || parts == 1 || done[d] || (best >= 0 && left >= least))
			continue;
		best = d;
		least = left;
	}
	return best;
}

/* Are pieces x and y, of one source, the same along the dimensions that are not cut? */
static bool alike_here(struct part *p, const struct making *k, const struct piece *x, const struct piece *y)
{
	for (int d = 0; d < k->v->rank; d++)
		if (k->moved[d] && ir_shard_parts(p->m, k->to, d) == 1 && memcmp(&x->run[d], &y->run[d], sizeof *x->run))
			return false;
	return true;
}

static ir_val put_together(struct part *p, struct ir_b *b, const struct making *k)
{
	const struct view *v = k->v;
	uint32_t mesh = p->m->shard.p[k->to].mesh;
	struct strip *s = ARENA_NEW(&p->a, struct strip, v->npiece + 1);
	ir_shard *lies = ARENA_NEW(&p->a, ir_shard, v->nsource + 1);
	ir_val *here = ARENA_NEW(&p->a, ir_val, v->nsource + 1), whole = 0;
	for (int i = 0; i < v->nsource; i++)
		if (!v->source[i].fill) {
			int j = 0;
			while (!same_source(&v->source[j], &v->source[i], v->rank))
				j++;
			lies[i] = j < i ? lies[j] : near(p, k, &v->source[i]);
			here[i] = j < i ? here[j] : part_reshard(p, b, v->source[i].v, v->source[i].sh, lies[i]);
		}
	for (int i = 0; i < v->npiece; i++) {
		const struct source *q = &v->source[v->piece[i].source];
		s[i] = (struct strip){ .v = q->v, .fill = q->fill };
		if (q->fill)
			continue;
		s[i].v = here[v->piece[i].source];
		int j = 0;
		while (j < i && !(here[v->piece[j].source] == s[i].v && alike_here(p, k, &v->piece[i], &v->piece[j])))
			j++;
		for (int d = 0; d < v->rank && j == i; d++)
			if (k->moved[d] && ir_shard_parts(p->m, k->to, d) == 1)
				s[i].v = along(p, b, s[i].v, d, v->piece[i].run[d], v->dim[d], k->fill);
		s[i].v = s[j].v;
		whole = s[i].v;
	}
	bool done[IR_MAX_RANK] = {0};
	ir_val turned = whole ? turned_round(p, b, k, lies[v->piece[0].source], whole, done) : 0;
	if (turned)
		s[0].v = whole = turned;
	for (int d; (d = next_along(p, k, whole, b, done)) >= 0; done[d] = true) {
		struct axes l = part_axes(p, k->to, d);
		int64_t parts = axes_size(l), *start = ARENA_NEW(&p->a, int64_t, parts);
		for (int r = 0; r < parts; r++)
			start[r] = r * (v->dim[d] / parts);
		for (int i = 0; i < v->npiece; i++) {
			s[i].run = v->piece[i].run[d];
			s[i].cut = !s[i].fill && ir_shard_parts(p->m, lies[v->piece[i].source], d) > 1;
			s[i].part = s[i].fill ? 0 : ir_vtype(p->m, b->fn, s[i].v)->dim[d];
			if (s[i].fill && k->ncut > 1)
				s[i].run = still(v->dim[d]);
		}
		struct halo *h = halo_plan(p, mesh, l, d, v->npiece, s, start, v->dim[d] / parts);
		if (!h || halo_fetched(h) > halo_gathered(h))
			return 0;
		whole = halo_emit(p, b, h);
		for (int i = 0; i < v->npiece; i++)
			s[i].v = s[i].fill ? s[i].v : whole;
	}
	return whole;
}

/* It, if it is one value as it is. */
static ir_val unmoved(struct part *p, struct ir_b *b, const struct view *v, ir_shard to)
{
	const struct source *q = &v->source[v->piece[0].source];
	bool same = v->npiece == 1 && !q->fill;
	for (int d = 0; same && d < v->rank; d++)
		same = is_still(&v->piece[0].run[d], v->dim[d]) && q->dim[d] == v->dim[d];
	return same ? part_reshard(p, b, q->v, q->sh, to) : 0;
}

static bool apart(const struct run *a, const struct run *b, int rank)
{
	for (int d = 0; d < rank; d++)
		if (a[d].first + a[d].n <= b[d].first || b[d].first + b[d].n <= a[d].first)
			return true;
	return false;
}

ir_val view_boxes(struct part *p, struct ir_b *b, const struct view *v, ir_shard to, int64_t less)
{
	const struct source *q = &v->source[v->piece[0].source];
	if (part_sum(p, q->sh) || part_sum(p, to))
		return 0;
	for (int i = 0; i < v->npiece; i++) {
		const struct run *r = v->piece[i].run;
		if (v->source[v->piece[i].source].fill || !same_source(&v->source[v->piece[i].source], q, v->rank))
			return 0;
		for (int d = 0; d < v->rank; d++)
			if (r[d].n > 1 && (r[d].step != 1 || r[d].by != 1))
				return 0;
		for (int k = 0; k < i; k++)
			if (!apart(r, v->piece[k].run, v->rank))
				return 0;
	}
	return part_boxes(p, b, q->v, q->sh, q->dim, v->npiece, v->piece, v->dim, to, less);
}

/* It, if it is of one source of which much would come to be cut there, in one step. */
static ir_val together(struct part *p, struct ir_b *b, const struct making *k)
{
	const struct source *q = &k->v->source[k->v->piece[0].source];
	if (q->fill)
		return 0;
	double bytes = part_travel(p, ir_tensor(p->m, (enum dtype)ir_vtype(p->m, b->fn, q->v)->dtype, k->v->rank, q->dim), q->sh, near(p, k, q)).bytes;
	return view_boxes(p, b, k->v, k->to, (int64_t)(bytes / 2));
}

ir_val view_emit(struct part *p, struct ir_b *b, const struct view *v, ir_shard to)
{
	struct making k;
	const struct source *q = &v->source[v->piece[0].source];
	ir_val r = unmoved(p, b, v, to);
	if (r)
		return r;
	bool none = q->fill;
	for (int i = 1; i < v->npiece; i++) {
		const struct source *other = &v->source[v->piece[i].source];
		none &= other->fill && same_fill(b, q->v, other->v);
	}
	if (none) {                              /* of what it was made of nothing is left */
		ir_type t = ir_tensor(p->m, (enum dtype)ir_vtype(p->m, b->fn, q->v)->dtype, v->rank, v->dim);
		return ir_splat_of(b, q->v, part_type(p, t, to, DT_token));
	}
	if (!to || !studied(p, b, v, to, &k))
		return 0;
	r = together(p, b, &k);
	if (r)
		return r;
	struct part_mark at = part_mark(p, b);
	v = cropped(p, b, &k);
	r = unmoved(p, b, v, to);
	if (!r && studied(p, b, v, to, &k))
		r = put_together(p, b, &k);
	if (!r)
		part_go_back(p, b, at);
	return r;
}

bool view_moved_along(const struct view *v, int d)
{
	for (int i = 0; i < v->npiece; i++) {
		const struct source *q = &v->source[v->piece[i].source];
		if (!q->fill && (!is_still(&v->piece[i].run[d], v->dim[d]) || q->dim[d] != v->dim[d]))
			return true;
	}
	return false;
}

ir_val view_cut_out(struct part *p, struct ir_b *b, const struct view *v, ir_shard to)
{
	const struct source *q = &v->source[v->piece[0].source];
	const struct run *r = v->piece[0].run;
	bool all = v->npiece == 1 && !q->fill;
	for (int d = 0; d < v->rank && all; d++)
		all = covers(&r[d], v->dim[d]);
	if (!all)
		return 0;
	ir_val x = part_reshard(p, b, q->v, q->sh, to);
	for (int d = 0; d < v->rank; d++)
		if (view_moved_along(v, d))
			x = along(p, b, x, d, r[d], v->dim[d], 0);
	return x;
}

ir_val view_some(struct part *p, struct ir_b *b, const struct view *v, ir_val none, ir_shard *lies, struct axes *l)
{
	const struct source *q = &v->source[v->piece[0].source];
	const struct run *r = v->piece[0].run;
	struct ir_shard_info n = { .mesh = p->m->shard.p[q->sh].mesh, .rank = v->rank };
	if (v->npiece > 1 || q->fill)
		return 0;
	ir_val x = q->v;
	*l = (struct axes){0};
	n.dim = ARENA_NEW(&p->a, struct ir_dim_shard, v->rank + 1);
	for (int d = 0; d < v->rank; d++) {
		struct axes cut = part_axes(p, q->sh, d);
		if (!covers(&r[d], v->dim[d]))
			return 0;
		if (!view_moved_along(v, d)) {
			n.dim[d] = (struct ir_dim_shard){ .naxis = cut.n, .axis = (struct ir_axis_ref *)cut.p };
		} else if (!cut.n) {
			x = along(p, b, x, d, r[d], v->dim[d], 0);
		} else {
			x = halo_some(p, b, x, n.mesh, cut, d, &r[d], none);
			*l = axes_join(&p->a, *l, cut);
		}
	}
	ir_shard h = ir_shard_add(p->m, &n);
	*lies = ir_shard_replicated(p->m, h) ? 0 : h;
	return x;
}
