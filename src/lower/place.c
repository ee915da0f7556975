/* Where values lie: storage with a life, and views of it. */
#include "lw.h"

int lw_store_new(struct lw *w, enum prog_buf_kind kind, int64_t bytes, uint32_t index)
{
	struct prog_buf b = { .kind = (uint8_t)kind, .index = index, .size = bytes, .alias = -1 };
	arr_push(&w->buf, b);
	struct store s = { .buf = (uint32_t)w->buf.n - 1, .depth = (int)w->loops.n,
	                   .fixed = kind == BUF_ARG || kind == BUF_CONST || kind == BUF_LENT, .donated_to = -1 };
	memcpy(s.life.born, w->now[w->lane], sizeof s.life.born);
	for (int l = 0; l < PROG_LANES; l++)
		s.life.last[l] = l == w->lane ? w->now[l][l] : -1;
	arr_push(&w->store, s);
	return (int)w->store.n - 1;
}

/* Storage made before a loop and used inside it is needed until the loop ends: the next turn reads it
 * again.  What a result is first touched by begins its life; a loop's turn may have done so before the present one. */
void lw_store_touch(struct lw *w, int store)
{
	struct store *s = &w->store.p[store];
	if (w->buf.p[s->buf].kind == BUF_OUT && !s->begun)
		memcpy(s->life.born, (int)w->loops.n > s->depth ? w->loops.p[s->depth].now : w->now[w->lane], sizeof s->life.born);
	s->begun = true;
	s->life.last[w->lane] = MAX(s->life.last[w->lane], w->now[w->lane][w->lane]);
	if ((int)w->loops.n > s->depth)
		arr_push(&w->loops.p[s->depth].extend, store);
}

bool lw_shares(const struct lw *w, int a, int b)
{
	uint32_t x = w->store.p[a].buf, y = w->store.p[b].buf;
	return a == b || w->buf.p[x].alias == (int)y || w->buf.p[y].alias == (int)x;      /* halves of a buffer lie apart */
}

static int64_t *dense_strides(struct arena *a, int rank, const int64_t *dim)
{
	int64_t *s = ARENA_NEW(a, int64_t, rank), n = 1;
	for (int i = rank; i-- > 0;) {
		s[i] = n;
		n *= dim[i];
	}
	return s;
}

struct place *lw_place_new(struct lw *w, int store, enum dtype dt, int rank, const int64_t *dim)
{
	struct place *p = ARENA_NEW(w->tmp, struct place, 1);
	p->store = store;
	p->dtype = dt;
	p->rank = rank;
	p->dim = dim;
	p->stride = dense_strides(w->tmp, rank, dim);
	return p;
}

struct place *lw_place_like(struct lw *w, const struct place *p)
{
	struct place *q = arena_copy(w->tmp, p, sizeof *p);
	q->stride = arena_copy(w->tmp, p->stride, sizeof *p->stride * (size_t)p->rank);
	return q;
}

bool lw_place_dense(const struct place *p)
{
	int64_t n = 1;
	for (int i = p->rank; i-- > 0;) {
		if (p->dim[i] == 0)
			return true;
		if (p->dim[i] != 1 && p->stride[i] != n)
			return false;
		n *= p->dim[i];
	}
	return true;
}

bool lw_place_block(const struct place *p)
{
	int64_t n = 1, all = lw_place_bytes(p) / dtype_info[p->dtype].bytes;
	for (int k = 0; k < p->rank; k++)        /* dimensions from the nearest on */
		for (int d = 0; d < p->rank; d++)
			if (p->dim[d] != 1 && p->stride[d] == n && n < all) {
				n *= p->dim[d];
				break;
			}
	return n == all;
}

int64_t lw_place_bytes(const struct place *p)
{
	int64_t n = dtype_info[p->dtype].bytes;
	for (int i = 0; i < p->rank; i++)
		n *= p->dim[i];
	return n;
}

struct prog_opnd lw_place_opnd(struct lw *w, const struct place *p)
{
	lw_store_touch(w, p->store);
	struct prog_opnd o = { .buf = w->store.p[p->store].buf, .off = p->off };
	for (int i = 0; i < 2; i++) {
		o.reg[i] = p->reg[i];
		o.mul[i] = p->mul[i];
	}
	return o;
}

/* Strides for a reshape without a copy: walk both shapes from the right over blocks of equal
 * product; inside a block the old dimensions must be contiguous with each other. */
struct place *lw_place_reshape(struct lw *w, const struct place *p, enum dtype dt, int rank, const int64_t *dim)
{
	struct place *q = lw_place_like(w, p);
	q->dtype = dt;
	q->rank = rank;
	q->dim = dim;
	if (lw_place_dense(p)) {
		q->stride = dense_strides(w->tmp, rank, dim);
		return q;
	}
	if (dtype_info[dt].bytes != dtype_info[p->dtype].bytes)
		return NULL;
	int64_t *s = ARENA_NEW(w->tmp, int64_t, rank);
	int i = p->rank - 1, j = rank - 1;
	while (j >= 0) {
		if (dim[j] == 1) {
			s[j--] = 0;
			continue;
		}
		while (i >= 0 && p->dim[i] == 1)
			i--;
		if (i < 0)
			return NULL;
		/* block of old dimensions lo..i and new ones down from j with equal product */
		int64_t have = p->dim[i], want = dim[j], step = p->stride[i];
		int lo = i, first = j;
		while (have != want) {
			if (have < want) {
				do
					lo--;
				while (lo >= 0 && p->dim[lo] == 1);
				if (lo < 0 || p->stride[lo] != step * have)
					return NULL;
				have *= p->dim[lo];
			} else {
				if (--first < 0)
					return NULL;
				want *= dim[first];
			}
		}
		int64_t n = step;
		for (; j >= first; j--) {
			s[j] = n;
			n *= dim[j];
		}
		i = lo - 1;
	}
	q->stride = s;
	return q;
}

struct place *lw_place_view(struct lw *w, const struct ir_fn *fn, const struct ir_op *o, const struct place *p)
{
	const struct ir_type_info *t = ir_vtype(w->m, fn, o->out);
	if (o->kind == IR_reshape || o->kind == IR_bitcast_convert)
		return lw_place_reshape(w, p, t->dtype, t->rank, t->dim);
	struct place *q = lw_place_like(w, p);
	int64_t off = 0;
	q->dtype = t->dtype;
	q->rank = t->rank;
	q->dim = t->dim;
	q->stride = ARENA_NEW(w->tmp, int64_t, t->rank);
	if (o->kind == IR_bitcast)
		memcpy(q->stride, p->stride, sizeof *p->stride * (size_t)p->rank);
	else if (!ir_view(w->m, fn, o, p->stride, &off, q->stride))
		return NULL;
	q->off += off * dtype_info[p->dtype].bytes;
	return q;
}
