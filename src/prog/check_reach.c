/* Check: which bytes a view is, what is known of registers and addresses, and what an operand of a command touches. */
#include "check.h"

/* --- views ----------------------------------------------------------------- */

/* Put one more to n dimensions that lie by stride. */
static void by_step(int64_t *step, int64_t *size, int n, int64_t s, int64_t dim)
{
	for (; n > 0 && step[n - 1] > s; n--) {
		step[n] = step[n - 1];
		size[n] = size[n - 1];
	}
	step[n] = s;
	size[n] = dim;
}

/* Dimensions by stride, those that touch nothing new left out, neighbours joined. */
void ck_reach(const struct prog_view *v, struct reach *r)
{
	int64_t size[MAX_RANK], step[MAX_RANK], b = dtype_info[v->dtype].bytes, lo = v->off * b;
	int n = 0;
	*r = (struct reach){.n = 1};
	for (int d = 0; d < v->rank; d++) {
		if (v->dim[d] == 0)
			return;
		if (v->dim[d] == 1 || v->stride[d] == 0)
			continue;
		int64_t s = v->stride[d] * b;
		if (s < 0) {
			lo += s * (v->dim[d] - 1);
			s = -s;
		}
		by_step(step, size, n++, s, v->dim[d]);
	}
	int64_t len = b, last = lo;
	int k = 0;
	for (; k < n && step[k] <= len; k++)
		len += step[k] * (size[k] - 1);
	for (int j = k; j < n; j++)
		last += step[j] * (size[j] - 1);
	r->lo = lo;
	r->hi = last + len;
	r->len = len;
	r->run[0] = lo;
	for (; k < n; k++) {
		if (r->n * size[k] > RUNS || step[k] < r->run[r->n - 1] + len - lo) {
			r->n = 0;
			return;
		}
		int before = r->n;
		for (int64_t i = 1; i < size[k]; i++)
			for (int j = 0; j < before; j++)
				r->run[r->n++] = r->run[j] + i * step[k];
	}
}

bool ck_apart(const struct prog_view *v)
{
	int64_t size[MAX_RANK], step[MAX_RANK], span = 1;
	int n = 0;
	for (int d = 0; d < v->rank; d++) {
		if (v->dim[d] == 0)
			return true;
		if (v->dim[d] == 1)
			continue;
		int64_t s = v->stride[d] < 0 ? -v->stride[d] : v->stride[d];
		by_step(step, size, n++, s, v->dim[d]);
	}
	for (int k = 0; k < n; k++) {
		if (step[k] < span)
			return false;
		span += step[k] * (size[k] - 1);
	}
	return true;
}

bool ck_same_view(const struct prog_view *a, const struct prog_view *b)
{
	if (a->rank != b->rank || a->off != b->off || dtype_info[a->dtype].bytes != dtype_info[b->dtype].bytes)
		return false;
	for (int d = 0; d < a->rank; d++)
		if (a->dim[d] != b->dim[d] || (a->dim[d] > 1 && a->stride[d] != b->stride[d]))
			return false;
	return true;
}

/* --- addresses -------------------------------------------------------------- */

static int64_t clip(__int128 v)
{
	return v < INT64_MIN ? INT64_MIN : v > INT64_MAX ? INT64_MAX : (int64_t)v;
}

struct range ck_times(struct range a, int64_t k)
{
	__int128 x = (__int128)a.lo * k, y = (__int128)a.hi * k;
	return (struct range){clip(MIN(x, y)), clip(MAX(x, y))};
}

struct range ck_plus(struct range a, struct range b)
{
	return (struct range){clip((__int128)a.lo + b.lo), clip((__int128)a.hi + b.hi)};
}

struct err *ck_reg(const struct device *dv, uint16_t r, struct range *out)
{
	*out = r ? dv->s->reg[r] : (struct range){0, 0};
	return r && !dv->s->set[r] ? ERR(PRECONDITION, "register r%d is read before it is set on every path", r) : NULL;
}

/* Over all states. */
struct err *ck_reg_any(struct device *dv, uint16_t r, struct range *out)
{
	for (int i = 0; i < dv->now.n; i++) {
		struct range x;
		dv->s = dv->now.w[i];
		TRY(ck_reg(dv, r, &x));
		*out = i ? (struct range){MIN(out->lo, x.lo), MAX(out->hi, x.hi)} : x;
	}
	return NULL;
}

static struct err *address(const struct device *dv, const struct prog_opnd *o, struct range *out)
{
	*out = (struct range){o->off, o->off};
	for (int k = 0; k < 2; k++) {
		if (!o->reg[k])
			continue;
		struct range r;
		TRY(ck_reg(dv, o->reg[k], &r));
		*out = ck_plus(*out, ck_times(r, o->mul[k]));
	}
	return NULL;
}

struct err *ck_use(struct check *ck, int d, const struct prog_cmd *c, const struct prog_opnd *o, const struct reach *r, bool write, bool some)
{
	struct device *dv = &ck->dev[d];
	const struct prog_buf *b = &ck->p->buf[o->buf];
	struct range at;
	TRY(address(dv, o, &at));
	if (r->hi <= r->lo)
		return NULL;
	struct range all = ck_plus(at, (struct range){r->lo, r->hi});
	if (all.lo < 0 || all.hi > b->size)
		return ERR(PRECONDITION, "%s bytes %ld..%ld of b%u, which has %ld", write ? "writes" : "reads", (long)all.lo, (long)all.hi, o->buf, (long)b->size);
	if (b->kind == BUF_CONST)
		return write ? ERR(PRECONDITION, "writes the constant b%u", o->buf) : NULL;
	if (b->kind == BUF_LENT && write && c->op != CMD_NEXT)
		return ERR(PRECONDITION, "writes b%u, which is lent", o->buf);
	if (b->kind == BUF_ARG && write)
		return ERR(PRECONDITION, "writes the argument b%u", o->buf);
	bool point = at.lo == at.hi;
	struct access x = {.buf = o->buf, .write = write, .some = some || !point || r->n == 0, .many = dv->mids && !point, .lane = c->lane};
	if (!point || r->n == 0)
		return ck_touch(ck, dv, d, all.lo, all.hi, &x);
	for (int i = 0; i < r->n; i++)
		TRY(ck_touch(ck, dv, d, at.lo + r->run[i], at.lo + r->run[i] + r->len, &x));
	return NULL;
}

struct err *ck_where(const struct check *ck, const struct device *dv, const struct prog_opnd *o, int64_t n, struct lent *x)
{
	int64_t base;
	struct range at;
	TRY(address(dv, o, &at));
	x->space = prog_space(ck->p, o->buf, &base);
	x->lo = base + at.lo;
	x->hi = base + at.hi + n;
	x->many = at.lo != at.hi;
	return NULL;
}

bool ck_meet(const struct check *ck, const struct device *dv, const struct prog_opnd *a, const struct reach *ra,
                 const struct prog_opnd *b, const struct reach *rb, bool *equal)
{
	struct range x, y;
	int64_t bx, by;
	err_free(address(dv, a, &x));
	err_free(address(dv, b, &y));
	*equal = false;
	if (ck->p->buf[a->buf].kind == BUF_CONST || ck->p->buf[b->buf].kind == BUF_CONST)
		return false;
	if (x.lo != x.hi || y.lo != y.hi || prog_space(ck->p, a->buf, &bx) != prog_space(ck->p, b->buf, &by))
		return false;
	bx += x.lo;
	by += y.lo;
	*equal = bx == by;
	if (ra->lo >= ra->hi || rb->lo >= rb->hi || bx + ra->hi <= by + rb->lo || by + rb->hi <= bx + ra->lo)
		return false;
	if (!ra->n || !rb->n)
		return *equal;
	for (int i = 0; i < ra->n; i++)
		for (int j = 0; j < rb->n; j++)
			if (bx + ra->run[i] < by + rb->run[j] + rb->len && by + rb->run[j] < bx + ra->run[i] + ra->len)
				return true;
	return false;
}
