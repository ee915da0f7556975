/* Collectives and manual computations, by looking at every member's value. */
#include <math.h>
#include <stdlib.h>

#include "walk.h"

/* The members of position pos's group, as indices into the team, in rank order.  0: pos is alone. */
static struct err *members(struct walk *w, ir_group g, struct team t, int pos, int *out, int *n)
{
	int64_t ids[1];
	const int64_t *row = NULL;
	int len = 0;
	*n = 0;
	if (!g) {
		for (int i = 0; i < t.n; i++)
			out[i] = i;
		if (t.n != w->ndev)
			return ERR(INVALID, "collective over all devices is reached by %d of %d", t.n, w->ndev);
		*n = t.n;
		return NULL;
	}
	const struct ir_group_info *gi = &w->m->group.p[g];
	for (int r = 0; r < gi->nrow && !row; r++)
		for (int c = 0; c < gi->ncol; c++)
			if (gi->id[r * gi->ncol + c] == pos) {
				row = &gi->id[r * gi->ncol];
				len = gi->ncol;
			}
	if (!row) {
		ids[0] = pos;
		row = ids;
		len = 1;
	}
	for (int c = 0; c < len; c++) {
		if (row[c] < 0)
			continue;
		int at = -1;
		for (int i = 0; i < t.n; i++)
			if (t.pos[i] == row[c])
				at = i;
		if (at < 0)
			return ERR(INVALID, "collective waits for device %lld, which does not reach it", (long long)row[c]);
		out[(*n)++] = at;
	}
	return NULL;
}

/* acc (bytes of dt, n elements) = combination of x[0 .. cnt-1] in order; small floats are summed in f32. */
static struct err *combine(struct walk *w, enum redop r, const struct prog_expr *e, enum dtype dt, int64_t n, int cnt,
                           const char *const *x, char *acc)
{
	size_t es = dtype_info[dt].bytes;
	if (r == RED_fn) {
		size_t need = kern_expr_scratch(e);
		char *scratch = mem_aligned(64, need);
		char *tmp = mem_alloc((size_t)n * es + 1);
		memcpy(acc, x[0], (size_t)n * es);
		for (int i = 1; i < cnt; i++) {
			void *out[1] = { tmp };
			const void *in[2] = { acc, x[i] };
			kern_expr(e, n, out, in, 0, scratch);
			memcpy(acc, tmp, (size_t)n * es);
		}
		free(tmp);
		free(scratch);
		return NULL;
	}
	bool wide = dtype_info[dt].cls == DT_FLOAT && dtype_info[dt].bits <= 16 && r != RED_lse;
	enum elem fn = ELEM_COUNT;
	switch (r) {
#define REDOP(id, text, el) case RED_##id: fn = el; break;
#include "../base/redop.def"
#undef REDOP
	default: break;
	}
	if (r != RED_lse && (fn == ELEM_COUNT || !kern_elem(fn, dt, dt)))
		return ERR(UNIMPLEMENTED, "reduction '%s' of '%s'", redop_name[r], dtype_info[dt].name);
	if (!wide) {
		memcpy(acc, x[0], (size_t)n * es);
		for (int i = 1; i < cnt; i++)
			kern_combine(r, dt, n, acc, x[i]);
		return NULL;
	}
	kern_strip *up = kern_elem(ELEM_convert, dt, DT_f32), *down = kern_elem(ELEM_convert, DT_f32, dt);
	float *sum = mem_alloc((size_t)n * 4 + 1), *y = mem_alloc((size_t)n * 4 + 1);
	up(n, sum, x[0], NULL, NULL);
	for (int i = 1; i < cnt; i++) {
		up(n, y, x[i], NULL, NULL);
		kern_combine(r, DT_f32, n, sum, y);
	}
	down(n, acc, sum, NULL, NULL);
	free(sum);
	free(y);
	return NULL;
}

static void widened(enum dtype dt, int64_t n, const char *x, double *y)
{
	if (dt == DT_f64)
		memcpy(y, x, (size_t)n * sizeof *y);
	else
		kern_elem(ELEM_convert, dt, DT_f64)(n, y, x, NULL, NULL);
}

static void narrowed(enum dtype dt, int64_t n, const double *x, char *y)
{
	if (dt == DT_f64)
		memcpy(y, x, (size_t)n * sizeof *x);
	else
		kern_elem(ELEM_convert, DT_f64, dt)(n, y, x, NULL, NULL);
}

/* The joint reducer softmax of redop.def: x[i], of type to, are cnt arrays, y[i], of type tl, the logarithms of their weights. */
static void join(const struct ir_type_info *to, const struct ir_type_info *tl, int cnt, const char *const *x, const char *const *y, char *o, char *l)
{
	int64_t rows = tl->count, wide = rows ? to->count / rows : 0;
	double *most = mem_alloc((size_t)rows * 8 + 1), *sum = mem_alloc((size_t)rows * 8 + 1), *w = mem_alloc((size_t)rows * 8 + 1);
	double *acc = mem_alloc((size_t)to->count * 8 + 1), *part = mem_alloc((size_t)to->count * 8 + 1);
	for (int i = 0; i < cnt; i++) {
		widened(tl->dtype, rows, y[i], w);
		for (int64_t r = 0; r < rows; r++)
			most[r] = !i || w[r] > most[r] || w[r] != w[r] ? w[r] : most[r];
	}
	for (int i = 0; i < cnt; i++) {
		widened(tl->dtype, rows, y[i], w);
		widened(to->dtype, to->count, x[i], part);
		for (int64_t r = 0; r < rows; r++) {
			double e = w[r] == -INFINITY ? 0 : exp(w[r] - most[r]);
			sum[r] += e;
			for (int64_t k = r * wide; k < (r + 1) * wide && e != 0; k++)
				acc[k] += e * part[k];
		}
	}
	for (int64_t r = 0; r < rows; r++) {
		for (int64_t k = r * wide; k < (r + 1) * wide; k++)
			acc[k] = sum[r] == 0 ? 0 : acc[k] / sum[r];
		most[r] += log(sum[r]);
	}
	narrowed(to->dtype, to->count, acc, o);
	narrowed(tl->dtype, rows, most, l);
	free(most);
	free(sum);
	free(w);
	free(acc);
	free(part);
}

/* Copy a box of a dense array: blocks of `width` bytes, `rows` of them. */
static void rows_copy(char *dst, size_t ds, const char *src, size_t ss, size_t width, size_t rows)
{
	for (size_t i = 0; i < rows; i++)
		memcpy(dst + i * ds, src + i * ss, width);
}

/* Bytes of one step along dim (inner), number of outer rows. */
static void split(const struct ir_type_info *t, int64_t dim, size_t *inner, size_t *outer)
{
	*inner = dtype_info[t->dtype].bytes;
	*outer = 1;
	for (int d = 0; d < t->rank; d++)
		*(d > dim ? inner : outer) *= d == dim ? 1 : (size_t)t->dim[d];
}

/* Block rank of n along dim of the whole array, whose parts are of type to. */
static void block(const struct ir_type_info *to, int64_t dim, int n, int rank, const char *whole, char *out)
{
	size_t inner, outer;
	split(to, dim, &inner, &outer);
	inner *= (size_t)to->dim[dim];
	rows_copy(out, inner, whole + (size_t)rank * inner, inner * (size_t)n, inner, outer);
}

/* all_reduce and reduce_scatter by softmax. */
static struct err *walk_joint(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, struct team t, struct blk *const *in, struct blk **out)
{
	int *who = mem_alloc(sizeof *who * (size_t)t.n), n, rank = 0;
	const char **x = mem_alloc(2 * sizeof *x * (size_t)t.n), **y = x + t.n;
	struct err *e = NULL;
	for (int i = 0; i < t.n && !e; i++) {
		TRY_GOTO(e, members(w, (ir_group)ir_attr(fn, o, AT_group), t, t.pos[i], who, &n), done);
		for (int k = 0; k < n; k++)
			rank = who[k] == i ? k : rank;
		for (uint32_t j = 0; j < o->nout; j += 2) {
			const struct ir_type_info *to = ir_vtype(w->m, fn, ir_in(fn, o, j)), *tl = ir_vtype(w->m, fn, ir_in(fn, o, j + 1));
			struct blk *b[2];
			for (int k = 0; k < n; k++) {
				x[k] = in[(size_t)who[k] * o->nin + j]->p;
				y[k] = in[(size_t)who[k] * o->nin + j + 1]->p;
			}
			for (uint32_t k = 0; k < 2; k++)
				b[k] = out[(size_t)i * o->nout + j + k] = blk_new((size_t)ir_vtype(w->m, fn, o->out + j + k)->bytes);
			if (o->kind == IR_all_reduce) {
				join(to, tl, n, x, y, b[0]->p, b[1]->p);
				continue;
			}
			char *whole = mem_alloc((size_t)to->bytes + 1), *logs = mem_alloc((size_t)tl->bytes + 1);
			join(to, tl, n, x, y, whole, logs);
			block(ir_vtype(w->m, fn, o->out + j), ir_attr(fn, o, AT_dim), n, rank, whole, b[0]->p);
			block(ir_vtype(w->m, fn, o->out + j + 1), ir_attr(fn, o, AT_dim), n, rank, logs, b[1]->p);
			free(whole);
			free(logs);
		}
	}
done:
	free(who);
	free(x);
	return e;
}

/* One box of x, of type ti, to y: first element in x, in y, extents. */
static void box_copy(char *y, const struct ir_type_info *to, const char *x, const struct ir_type_info *ti, const int64_t *box)
{
	int rank = ti->rank;
	const int64_t *from = box, *at = box + rank, *size = box + 2 * rank;
	int64_t i[IR_MAX_RANK] = {0}, e = dtype_info[ti->dtype].bytes, all = 1;
	for (int d = 0; d < rank; d++)
		all *= size[d];
	for (; all > 0; all--) {
		int64_t ox = 0, oy = 0;
		for (int d = 0; d < rank; d++) {
			ox = ox * ti->dim[d] + from[d] + i[d];
			oy = oy * to->dim[d] + at[d] + i[d];
		}
		memcpy(y + oy * e, x + ox * e, (size_t)e);
		for (int d = rank; d-- > 0 && ++i[d] == size[d];)
			i[d] = 0;
	}
}

/* The output of each, with the rows that its slices name written over it. */
static struct err *walk_ragged(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, struct team t, struct blk *const *in, struct blk **out)
{
	const struct ir_type_info *tx = ir_vtype(w->m, fn, ir_in(fn, o, 0)), *ty = ir_vtype(w->m, fn, o->out), *ts = ir_vtype(w->m, fn, ir_in(fn, o, 2));
	int *who = mem_alloc(sizeof *who * (size_t)t.n), n;
	struct err *e = NULL;
	for (int i = 0; i < t.n && !e; i++) {
		struct blk *const *mine = in + (size_t)i * o->nin;
		struct blk *b = out[i] = blk_new((size_t)ty->bytes);
		memcpy(b->p, mine[1]->p, b->n);
		if ((e = members(w, (ir_group)ir_attr(fn, o, AT_group), t, t.pos[i], who, &n)) || !ty->bytes || !tx->bytes)
			continue;
		const int64_t row = ty->bytes / ty->dim[0], each = ts->dim[0] / n;
		for (int64_t k = 0; k < each * n; k++) {
			int64_t s[SLICE_NUMBERS];
			memcpy(s, mine[2]->p + (size_t)k * sizeof s, sizeof s);
			prog_slice_clip(s, tx->dim[0], ty->dim[0]);
			memcpy(b->p + s[SLICE_TO] * row, in[(size_t)who[k / each] * o->nin]->p + s[SLICE_FROM] * row, (size_t)(s[SLICE_ROWS] * row));
		}
	}
	free(who);
	return e;
}

struct err *walk_coll(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, struct team t,
                      struct blk *const *in, struct blk **out)
{
	if (ir_has_attr(o->kind, AT_redop) && ir_attr(fn, o, AT_redop) == RED_softmax)
		return walk_joint(w, fn, o, t, in, out);
	if (o->kind == IR_ragged_all_to_all)
		return walk_ragged(w, fn, o, t, in, out);
	int *who = mem_alloc(sizeof *who * (size_t)t.n), n;
	const char **x = mem_alloc(sizeof *x * (size_t)t.n);
	struct prog_expr *expr = NULL;
	struct err *e = NULL;
	enum redop r = RED_fn;
	if (o->kind == IR_all_reduce || o->kind == IR_reduce_scatter) {
		r = (enum redop)ir_attr(fn, o, AT_redop);
		ir_fnid f = (ir_fnid)ir_attr(fn, o, AT_fn);
		if (r == RED_fn && f) {
			r = ir_region_redop(w->m, f);
			if (r == RED_fn)
				TRY_GOTO(e, eval_expr(&w->a, w->m, f, &expr), done);
		}
		if (r == RED_fn && !expr) {
			e = ERR(INVALID, "'%s' has neither a reduction nor a function", ir_info(o->kind)->name);
			goto done;
		}
	}
	for (int i = 0; i < t.n; i++)
		for (uint32_t j = 0; j < o->nout; j++) {
			const struct ir_type_info *ti = ir_vtype(w->m, fn, ir_in(fn, o, j)), *to = ir_vtype(w->m, fn, o->out + j);
			struct blk *b = out[(size_t)i * o->nout + j] = blk_new((size_t)to->bytes);
			int rank = 0, pos = t.pos[i];
			size_t inner, outer;
#define SRC(m) (in[(size_t)(m) * o->nin + j]->p)
			if (o->kind == IR_collective_permute) {
				int np;
				const int64_t *pair = ir_attrs(fn, o, AT_pairs, &np);
				memset(b->p, 0, b->n);
				for (int k = 0; k + 1 < np; k += 2)
					if (pair[k + 1] == pos) {
						int from = -1;
						for (int m = 0; m < t.n; m++)
							if (t.pos[m] == pair[k])
								from = m;
						if (from < 0) {
							e = ERR(INVALID, "permute waits for device %lld, which does not reach it", (long long)pair[k]);
							goto done;
						}
						memcpy(b->p, SRC(from), b->n);
					}
				continue;
			}
			TRY_GOTO(e, members(w, (ir_group)ir_attr(fn, o, AT_group), t, pos, who, &n), done);
			for (int k = 0; k < n; k++) {
				x[k] = SRC(who[k]);
				if (who[k] == i)
					rank = k;
			}
			switch (o->kind) {
			case IR_all_reduce:
				TRY_GOTO(e, combine(w, r, expr, (enum dtype)ti->dtype, ti->count, n, x, b->p), done);
				break;
			case IR_collective_broadcast:
				memcpy(b->p, x[0], b->n);
				break;
			case IR_all_gather:
				split(ti, ir_attr(fn, o, AT_dim), &inner, &outer);
				inner *= (size_t)ti->dim[ir_attr(fn, o, AT_dim)];
				for (int k = 0; k < n; k++)
					rows_copy(b->p + (size_t)k * inner, inner * (size_t)n, x[k], inner, inner, outer);
				break;
			case IR_reduce_scatter: {
				int64_t dim = ir_attr(fn, o, AT_dim);
				char *sum = mem_alloc((size_t)ti->bytes + 1);
				e = combine(w, r, expr, (enum dtype)ti->dtype, ti->count, n, x, sum);
				if (!e)
					block(to, dim, n, rank, sum, b->p);
				free(sum);
				if (e)
					goto done;
				break;
			}
			case IR_redistribute: {
				int nw, rank_ = ti->rank;
				const int64_t *p = ir_attrs(fn, o, AT_boxes, &nw);
				memset(b->p, 0, b->n);
				for (const int64_t *end = p + nw; p < end; p += 2 + 3 * rank_) {
					int from = -1;
					for (int m = 0; m < n; m++)
						from = t.pos[who[m]] == p[1] ? who[m] : from;
					if (p[0] == pos && from < 0) {
						e = ERR(INVALID, "a box of device %lld is waited for, which does not reach it", (long long)p[1]);
						goto done;
					}
					if (p[0] == pos)
						box_copy(b->p, to, SRC(from), ti, p + 2);
				}
				break;
			}
			case IR_all_to_all: {
				int64_t sd = ir_attr(fn, o, AT_split), cd = ir_attr(fn, o, AT_concat);
				/* my block of member k's operand, then along the result's dimension */
				struct ir_type_info bt = *ti;
				int64_t dim[IR_MAX_RANK];
				memcpy(dim, ti->dim, sizeof *dim * ti->rank);
				dim[sd] /= n;
				bt.dim = dim;
				size_t bytes = (size_t)(ti->bytes / n), bi, bo;
				char *block = mem_alloc(bytes + 1);
				for (int k = 0; k < n; k++) {
					split(&bt, sd, &inner, &outer);
					inner *= (size_t)dim[sd];
					rows_copy(block, inner, x[k] + (size_t)rank * inner, inner * (size_t)n, inner, outer);
					split(&bt, cd, &bi, &bo);
					bi *= (size_t)dim[cd];
					rows_copy(b->p + (size_t)k * bi, bi * (size_t)n, block, bi, bi, bo);
				}
				free(block);
				break;
			}
			default:
				e = ERR(UNIMPLEMENTED, "collective '%s'", ir_info(o->kind)->name);
				goto done;
			}
		}
done:
	free(who);
	free(x);
	return e;
}

/* --- manual -------------------------------------------------------------------------- */

/* Coordinates of a position in a mesh; false if it is not in it. */
static bool coords(const struct ir_mesh *mesh, int pos, int64_t *c)
{
	int64_t lin = -1;
	for (int64_t i = 0; i < mesh->ndev; i++)
		if ((mesh->id ? mesh->id[i] : i) == pos)
			lin = i;
	if (lin < 0)
		return false;
	for (int a = mesh->naxis; a-- > 0;) {
		c[a] = lin % mesh->axis[a].size;
		lin /= mesh->axis[a].size;
	}
	return true;
}

/* Who walks the body of a manual computation: n members, member i at coordinates c + i * mesh->naxis.  manual: per axis. */
struct places { const struct ir_mesh *mesh; bool *manual; int n; int64_t *c; };

static const int64_t *place(const struct places *p, int i) { return p->c + (size_t)i * (size_t)p->mesh->naxis; }

/* Number of pieces dimension d of sharding s has along the manual axes, and which is member i's. */
static void piece(const struct places *p, const struct ir_dim_shard *d, int i, int64_t *n, int64_t *at)
{
	const int64_t *c = place(p, i);
	*n = 1;
	*at = 0;
	for (int k = 0; k < d->naxis; k++) {
		const struct ir_axis_ref *r = &d->axis[k];
		if (!p->manual[r->axis])
			continue;
		int64_t size = p->mesh->axis[r->axis].size, rest = size / (r->pre * r->size);
		*at = *at * r->size + c[r->axis] / rest % r->size;
		*n *= r->size;
	}
}

/* Copy between a whole array and member i's piece of it.  to_piece: from whole to piece. */
static void piece_copy(const struct places *p, const struct ir_shard_info *s, int i, const struct ir_type_info *whole, char *pw, char *pp, bool to_piece)
{
	int64_t dim[IR_MAX_RANK], start[IR_MAX_RANK], ix[IR_MAX_RANK] = { 0 };
	size_t es = dtype_info[whole->dtype].bytes;
	int64_t count = 1;
	for (int d = 0; d < whole->rank; d++) {
		int64_t n = 1, at = 0;
		if (s && d < s->rank)
			piece(p, &s->dim[d], i, &n, &at);
		dim[d] = whole->dim[d] / n;
		start[d] = at * dim[d];
		count *= dim[d];
	}
	int r = whole->rank;
	int64_t row = r ? dim[r - 1] : 1;
	for (int64_t k = 0; k < count; k += row) {
		int64_t lin = 0;
		for (int d = 0; d < r; d++)
			lin = lin * whole->dim[d] + start[d] + ix[d];
		if (to_piece)
			memcpy(pp + (size_t)k * es, pw + (size_t)lin * es, (size_t)row * es);
		else
			memcpy(pw + (size_t)lin * es, pp + (size_t)k * es, (size_t)row * es);
		for (int d = r - 1; d-- > 0;) {
			if (++ix[d] < dim[d])
				break;
			ix[d] = 0;
		}
	}
}

/* Which of the parts of a partial value member i has; 0 if it is not partial. */
static int64_t part_of(const struct places *p, const struct ir_shard_info *s, int i)
{
	int64_t n = 1, at = 0;
	if (s && s->npart)
		piece(p, &(struct ir_dim_shard){ .naxis = s->npart, .axis = s->part }, i, &n, &at);
	return at;
}

/* Do members i and j have the same piece of a value with sharding s? */
static bool same_piece(const struct places *p, const struct ir_shard_info *s, int i, int j)
{
	for (int k = 0; s && k < s->rank; k++) {
		int64_t n, a, b;
		piece(p, &s->dim[k], i, &n, &a);
		piece(p, &s->dim[k], j, &n, &b);
		if (a != b)
			return false;
	}
	return true;
}

/* Piece p of a partial value that is given as a whole: the first part has it, the others what adds nothing. */
static struct err *no_part(const struct ir_shard_info *s, const struct ir_type_info *t, char *p)
{
	char id[16];
	if (s->part_op == RED_softmax)
		return ERR(UNIMPLEMENTED, "an operand of a manual computation that is partial by 'softmax'");
	kern_identity(s->part_op, (enum dtype)t->dtype, id);
	for (int64_t i = 0; i < t->count; i++)
		memcpy(p + i * dtype_info[t->dtype].bytes, id, dtype_info[t->dtype].bytes);
	return NULL;
}

/* A result of a manual computation: its sharding, its type, and what the members' bodies gave, each `step` behind the one before. */
struct manual_result { const struct ir_shard_info *s; const struct ir_type_info *whole, *local; struct blk *const *res; size_t step; };

/* Whole result r, from the pieces of those that take (per member), into out.  pair: r and the one behind it are a joint sum, and so are out's. */
static struct err *whole_of(struct walk *w, const struct places *p, const bool *take, const struct manual_result *r, bool pair, struct blk *const *out)
{
	const struct ir_shard_info *s = r->s;
	const char **x = mem_alloc(2 * sizeof *x * (size_t)p->n), **y = x + p->n;
	struct err *e = NULL;
	for (int k = 0; k < p->n && !e; k++) {   /* each piece once, by the first that has it */
		bool first = take[k];
		for (int q = 0; q < k && first; q++)
			first = !take[q] || !same_piece(p, s, k, q);
		if (!first)
			continue;
		int cnt = 0;
		for (int q = k; q < p->n; q++) {
			bool more = take[q] && same_piece(p, s, k, q);
			for (int i = k; i < q && more; i++)       /* a copy of a part that counts already */
				more = !take[i] || !same_piece(p, s, k, i) || part_of(p, s, i) != part_of(p, s, q);
			if (!more)
				continue;
			x[cnt] = r[0].res[(size_t)q * r->step]->p;
			y[cnt++] = pair ? r[1].res[(size_t)q * r->step]->p : NULL;
		}
		char *sum[2] = { NULL, NULL };
		for (int h = 0; h <= pair; h++)
			sum[h] = mem_alloc((size_t)r[h].local->bytes + 1);
		if (pair)
			join(r[0].local, r[1].local, cnt, x, y, sum[0], sum[1]);
		else if (s && s->npart)
			e = combine(w, s->part_op, NULL, (enum dtype)r->local->dtype, r->local->count, cnt, x, sum[0]);
		else
			memcpy(sum[0], x[0], (size_t)r->local->bytes);
		for (int h = 0; h <= pair && !e; h++)
			piece_copy(p, r[h].s, k, r[h].whole, out[h]->p, sum[h], false);
		free(sum[0]);
		free(sum[1]);
	}
	free(x);
	return e;
}

/* Every position of the mesh walks the body on its pieces along the manual axes.  A team of one stands for
 * all positions alike (a program that is not partitioned); in a larger team each member cuts its own value. */
struct err *walk_manual(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, struct team t,
                        struct blk *const *in, struct blk **out)
{
	int nin, nout, naxis;
	const int64_t *is = ir_attrs(fn, o, AT_in, &nin), *os = ir_attrs(fn, o, AT_out, &nout), *ax = ir_attrs(fn, o, AT_axes, &naxis);
	const struct ir_fn *body = ir_fn_of(w->m, (ir_fnid)ir_attr(fn, o, AT_body));
	const struct ir_mesh *mesh = NULL;
	for (int i = 0; i < nin + nout && !mesh; i++) {
		int64_t s = i < nin ? is[i] : os[i - nin];
		if (s)
			mesh = &w->m->mesh.p[w->m->shard.p[s].mesh];
	}
	if (!mesh || nin != (int)o->nin || nout != (int)o->nout)
		return ERR(INVALID, "manual computation without shardings");
	bool spread = t.n == 1 && mesh->ndev > 1;
	int n = spread ? (int)mesh->ndev : t.n;
	struct places p = { mesh, mem_alloc((size_t)mesh->naxis + 1), n, mem_alloc(sizeof *p.c * (size_t)n * (size_t)(mesh->naxis + 1)) };
	for (int i = 0; i < naxis; i++)
		if (ax[i] >= 0 && ax[i] < mesh->naxis)
			p.manual[ax[i]] = true;
	bool *take = mem_alloc((size_t)n + 1);
	int *pos = mem_alloc(sizeof *pos * (size_t)n), ndev = w->ndev;
	struct blk **bin = mem_alloc(sizeof *bin * (size_t)n * (size_t)(nin + 1)), **res = mem_alloc(sizeof *res * (size_t)n * (size_t)(nout + 1));
	struct manual_result *r = mem_alloc(sizeof *r * (size_t)(nout + 1));
	struct err *e = NULL;
	for (int i = 0; i < n; i++) {
		pos[i] = spread ? (int)(mesh->id ? mesh->id[i] : i) : t.pos[i];
		if (!coords(mesh, pos[i], p.c + (size_t)i * (size_t)mesh->naxis)) {
			e = ERR(INVALID, "manual computation over a mesh without device %d", pos[i]);
			goto done;
		}
	}
	for (int i = 0; i < n; i++)
		for (int j = 0; j < nin; j++) {
			const struct ir_type_info *local = ir_vtype(w->m, body, (ir_val)(1 + j)), *whole = ir_vtype(w->m, fn, ir_in(fn, o, (uint32_t)j));
			const struct ir_shard_info *s = is[j] ? &w->m->shard.p[is[j]] : NULL;
			struct blk *b = bin[(size_t)i * nin + j] = blk_new((size_t)local->bytes);
			piece_copy(&p, s, i, whole, in[(size_t)(spread ? 0 : i) * nin + j]->p, b->p, true);
			if (part_of(&p, s, i))
				TRY_GOTO(e, no_part(s, local, b->p), done);
		}
	w->ndev = n;
	e = walk_fn(w, body, (struct team){ n, pos }, bin, res);
	w->ndev = ndev;
	if (e)
		goto done;
	for (int j = 0; j < nout; j++)
		r[j] = (struct manual_result){ os[j] ? &w->m->shard.p[os[j]] : NULL, ir_vtype(w->m, fn, o->out + (uint32_t)j), ir_vtype(w->m, body, body->result.p[j]),
		                               res + j, (size_t)nout };
	/* each member's result is made of the pieces of those that differ from it along the manual axes only */
	for (int i = 0; i < t.n && !e; i++) {
		for (int k = 0; k < n; k++) {
			take[k] = true;
			for (int a = 0; a < mesh->naxis; a++)
				take[k] &= p.manual[a] || place(&p, k)[a] == place(&p, i)[a];
		}
		for (int j = 0; j < nout; j++)
			out[(size_t)i * nout + j] = blk_new((size_t)r[j].whole->bytes);
		for (int j = 0; j < nout && !e; j++) {
			bool pair = ir_shard_joint(w->m, (ir_shard)os[j]);
			e = whole_of(w, &p, take, r + j, pair, out + (size_t)i * nout + j);
			j += pair;
		}
	}
done:
	for (size_t i = 0; i < (size_t)n * (size_t)(nin + 1); i++)
		blk_unref(bin[i]);
	for (size_t i = 0; i < (size_t)n * (size_t)(nout + 1); i++)
		blk_unref(res[i]);
	free(p.manual);
	free(p.c);
	free(take);
	free(pos);
	free(r);
	free(bin);
	free(res);
	return e;
}
