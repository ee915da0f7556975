/* Combining operands in rank order. */
#include <stdlib.h>

#include "impl.h"

enum { FETCH = 128 << 10 };       /* bytes asked for at a time of another host */

struct err *acc_check(const struct coll_red *r)
{
	if ((unsigned)r->op >= RED_COUNT)
		return ERR(INVALID, "there is no reduction %d", (int)r->op);
	if (r->dtype <= 0 || r->dtype >= DT_COUNT || !dtype_info[r->dtype].bytes)
		return ERR(INVALID, "reduction '%s' of elements of a type %d, which there is not", redop_name[r->op], (int)r->dtype);
	if (r->op == RED_fn && !r->fn)
		return ERR(INVALID, "reduction '%s' of %s without its function (fn)", redop_name[r->op], dtype_info[r->dtype].name);
	if (r->op == RED_fn || (r->op == RED_lse && dtype_info[r->dtype].cls == DT_FLOAT) ||
	    (redop_elem[r->op] != ELEM_COUNT && kern_elem(redop_elem[r->op], r->dtype, r->dtype)))
		return NULL;
	return ERR(UNIMPLEMENTED, "reduction '%s' of %s", redop_name[r->op], dtype_info[r->dtype].name);
}

int acc_spread(const struct coll_red *r, int n)
{
	bool sum = r->op == RED_add || r->op == RED_mul || r->op == RED_lse;

	return sum && n > 2 && dtype_info[r->dtype].cls == DT_FLOAT && dtype_info[r->dtype].bytes < 4 ? 4 / dtype_info[r->dtype].bytes : 1;
}

struct err *acc_init(struct acc *a, struct coll *c, const struct coll_red *r, int n)
{
	enum dtype dt = r->dtype;

	*a = (struct acc){ .r = *r, .c = c, .elem = dtype_info[dt].bytes, .wide = dtype_info[dt].bytes * acc_spread(r, n) };
	if (a->wide != a->elem) {
		a->widen = kern_elem(ELEM_convert, dt, DT_f32);
		a->narrow = kern_elem(ELEM_convert, DT_f32, dt);
	}
	if (!a->widen && redop_elem[r->op] != ELEM_COUNT)
		a->pair = kern_elem(redop_elem[r->op], dt, dt);
	return r->op == RED_fn ? keep(&c->region, kern_expr_scratch(r->fn)) : NULL;
}

kern_strip *acc_look_up(struct coll *c, const struct coll_red *r, int n)
{
	struct acc a;

	if (r->op == RED_fn)
		return NULL;
	err_free(acc_init(&a, c, r, n));          /* takes no memory */
	c->pair.op = (uint8_t)r->op;
	c->pair.dtype = (uint8_t)r->dtype;
	c->pair.many = n > 2;
	return c->pair.kern = a.pair;
}

void acc_first(const struct acc *a, void *sum, const void *x, int64_t n)
{
	if (a->widen)
		a->widen(n, sum, x, NULL, NULL);
	else
		memcpy(sum, x, (size_t)(n * a->elem));
}

void acc_add(const struct acc *a, void *sum, const void *x, int64_t n, void *tmp)
{
	if (a->widen) {
		a->widen(n, tmp, x, NULL, NULL);
		kern_combine(a->r.op, DT_f32, n, sum, tmp);
	} else if (a->r.op == RED_fn) {
		for (int64_t i = 0; i < n; i += KERN_STRIP) {
			int64_t k = MIN(n - i, KERN_STRIP);
			void *out[1] = { tmp };
			const void *in[2] = { (char *)sum + i * a->elem, (const char *)x + i * a->elem };
			kern_expr(a->r.fn, k, out, in, 0, a->c->region.p);
			memcpy((char *)sum + i * a->elem, tmp, (size_t)(k * a->elem));
		}
	} else
		kern_combine(a->r.op, a->r.dtype, n, sum, x);
}

void acc_last(const struct acc *a, void *dst, const void *sum, int64_t n)
{
	if (a->narrow)
		a->narrow(n, dst, sum, NULL, NULL);
	else
		memcpy(dst, sum, (size_t)(n * a->elem));
}

static inline const void *look(struct sym_ep *ep, const struct where *w, int64_t off, int64_t n, void *buf)
{
	return w->p ? w->p + off : sym_at(ep, w->pe, w->off + (size_t)off, (size_t)n, buf);
}

void acc_more(const struct acc *a, struct sym_ep *ep, const char *before, const struct where *w, int n, int64_t off, int64_t bytes, char *part, char *done)
{
	_Alignas(64) char sum[4 * PIECE], tmp[4 * PIECE], buf[PIECE];

	for (int64_t o = 0; o < bytes; o += PIECE) {
		int64_t len = MIN(bytes - o, PIECE), count = len / a->elem, wo = o / a->elem * a->wide;
		int k = 0;
		if (a->pair && n + (before != NULL) > 1) {        /* the first two in one pass, the last to where the result goes */
			char *to = (part ? part : done) + o;
			const void *x = before ? before + o : look(ep, &w[k++], off + o, len, buf);
			for (; k < n; k++, x = sum)
				a->pair(count, k == n - 1 ? to : sum, x, look(ep, &w[k], off + o, len, x == buf ? tmp : buf), NULL);
			continue;
		}
		if (before)
			memcpy(sum, before + wo, (size_t)(count * a->wide));
		for (; k < n; k++) {
			const void *x = look(ep, &w[k], off + o, len, buf);
			if (k || before)
				acc_add(a, sum, x, count, tmp);
			else
				acc_first(a, sum, x, count);
		}
		if (part)
			memcpy(part + wo, sum, (size_t)(count * a->wide));
		else
			acc_last(a, done + o, sum, count);
	}
}

/* Operands of other hosts are fetched in pieces, the next one while one is combined. */
static void combine_far(const struct acc *a, struct sym_ep *ep, const struct where *w, int n, int64_t off, char *dst, int64_t bytes, int nfar, int64_t piece)
{
	struct where here[MAX_ROW];
	char *room = a->c->fetched.p;
	_Atomic uint32_t left[2] = { 0, 0 };

	for (int64_t o = -piece; o < bytes; o += piece) {
		int64_t next = o + piece;
		int h = (int)(next / piece) & 1, far = 0;
		for (int k = 0; k < n && next < bytes; k++)
			if (!w[k].p && !sym_maps(ep, w[k].pe))
				sym_get_nb(ep, w[k].pe, room + (h * nfar + far++) * piece, w[k].off + (size_t)(off + next), (size_t)MIN(piece, bytes - next), &left[h]);
		if (o < 0)
			continue;
		sym_get_wait(ep, &left[!h]);
		far = 0;
		for (int k = 0; k < n; k++)
			here[k] = !w[k].p && !sym_maps(ep, w[k].pe) ? (struct where){ room + (!h * nfar + far++) * piece - (off + o), -1, 0 } : w[k];
		acc_more(a, ep, NULL, here, n, off + o, MIN(piece, bytes - o), NULL, dst + o);
	}
}

void acc_all(const struct acc *a, struct sym_ep *ep, const struct where *w, int n, int64_t off, char *dst, int64_t bytes)
{
	int64_t piece = MIN(bytes, FETCH);
	int nfar = 0;

	for (int k = 0; k < n; k++)
		nfar += !w[k].p && !sym_maps(ep, w[k].pe);
	bool far = nfar && bytes > PIECE;
	struct err *none = far ? keep(&a->c->fetched, (size_t)(2 * nfar * piece)) : NULL;
	if (far && !none)
		combine_far(a, ep, w, n, off, dst, bytes, nfar, piece);
	else
		acc_more(a, ep, NULL, w, n, off, bytes, NULL, dst);
	err_free(none);                   /* without memory they come one after the other */
}
