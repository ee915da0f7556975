/* Collectives over pair channels.
 *
 *   up to one slot (4 KB)   the data travels in the message: one cache-line transfer of latency for the smallest
 *   above                   loans: every device says where its operand lies and the others read it in place
 *
 * A large all-reduce is two-shot: device r reduces slice r of all operands into its own result, says so, and
 * all read the other slices from there.  It needs no copy and works in place: slice r of an operand is read by
 * device r alone, and when device r says its slice is done nobody reads that slice of any operand any more. */
#include <stdlib.h>

#include "../kern/kern.h"
#include "coll.h"

enum { CHUNK = 8192, MAX_ROW = 1024 };

/* The devices that take part, in rank order. */
struct row { int n, me; const int64_t *id; const int *pe; };

static inline int pe_of(const struct row *r, int k) { return r->pe[r->id[k]]; }

static struct row row_of(const struct coll_cx *cx, const struct prog_coll *c)
{
	static const int64_t none[1] = { -1 };
	const struct prog_group *g = &cx->p->group[c->group];
	struct row r = { 1, 0, none, cx->pe };

	if (g->row[cx->pos] < 0)
		return r;
	r.id = g->id + (int64_t)g->row[cx->pos] * g->ncol;
	r.me = g->rank[cx->pos];
	for (r.n = 0; r.n < g->ncol && r.id[r.n] >= 0; r.n++) { }
	return r;
}

/* --- combining ------------------------------------------------------------------ */

/* Sums and products of narrow floats over more than two devices are kept in f32 and rounded once. */
struct acc {
	const struct prog_coll *c;
	kern_strip *widen, *narrow;   /* NULL: in the element type */
	kern_strip *pair;             /* two operands at once, from where they are to where the result goes; or NULL */
	int64_t elem;
	void *scratch;                /* of a region */
};

static void acc_init(struct acc *a, const struct prog_coll *c, int n)
{
	static const uint8_t pair[RED_COUNT] = {
#define REDOP(id, text, elem) [RED_##id] = elem,
#include "../base/redop.def"
#undef REDOP
	};
	enum dtype dt = c->dtype;
	bool sum = c->redop == RED_add || c->redop == RED_mul;

	*a = (struct acc){ .c = c, .elem = dtype_info[dt].bytes };
	if (sum && n > 2 && dtype_info[dt].cls == DT_FLOAT && dtype_info[dt].bytes < 4) {
		a->widen = kern_elem(ELEM_convert, dt, DT_f32);
		a->narrow = kern_elem(ELEM_convert, DT_f32, dt);
	}
	if (!a->widen && pair[c->redop] != ELEM_COUNT)
		a->pair = kern_elem((enum elem)pair[c->redop], dt, dt);
	if (c->redop == RED_fn)
		a->scratch = aligned_alloc(64, (kern_expr_scratch(c->expr) + 127) & ~(size_t)63);
}

static void acc_fini(struct acc *a) { free(a->scratch); }

/* sum: CHUNK / elem elements of up to 4 bytes more width than the data; tmp as large. */
static void acc_first(const struct acc *a, void *sum, const void *x, int64_t n)
{
	if (a->widen)
		a->widen(n, sum, x, NULL, NULL);
	else
		memcpy(sum, x, (size_t)(n * a->elem));
}

static void acc_add(const struct acc *a, void *sum, const void *x, int64_t n, void *tmp)
{
	if (a->widen) {
		a->widen(n, tmp, x, NULL, NULL);
		kern_combine(a->c->redop, DT_f32, n, sum, tmp);
	} else if (a->c->redop == RED_fn) {
		for (int64_t i = 0; i < n; i += KERN_STRIP) {
			int64_t k = MIN(n - i, KERN_STRIP);
			void *out[1] = { tmp };
			const void *in[2] = { (char *)sum + i * a->elem, (const char *)x + i * a->elem };
			kern_expr(a->c->expr, k, out, in, 0, a->scratch);
			memcpy((char *)sum + i * a->elem, tmp, (size_t)(k * a->elem));
		}
	} else
		kern_combine(a->c->redop, a->c->dtype, n, sum, x);
}

static void acc_last(const struct acc *a, void *dst, const void *sum, int64_t n)
{
	if (a->narrow)
		a->narrow(n, dst, sum, NULL, NULL);
	else
		memcpy(dst, sum, (size_t)(n * a->elem));
}

/* --- lending ---------------------------------------------------------------------- */

/* An operand that others may read: in the heap, and no part of the result is written while they do. */
struct loan { size_t off; struct sym_block *staged; };

static bool overlap(const char *a, int64_t na, const char *b, int64_t nb)
{
	return (uintptr_t)a < (uintptr_t)b + (uintptr_t)nb && (uintptr_t)b < (uintptr_t)a + (uintptr_t)na;
}

static struct err *loan_make(struct coll_cx *cx, char *x, int64_t n, bool stage, struct loan *out)
{
	char *base = sym_ep_base(cx->ep);
	uint64_t off = (uint64_t)((uintptr_t)x - (uintptr_t)base);

	out->staged = NULL;
	if (off < sym_span(cx->heap) && !stage) {
		out->off = off;
		return NULL;
	}
	TRY(sym_alloc(cx->heap, (size_t)n, "staging of a collective", -1, &out->staged));
	out->off = out->staged->off;
	memcpy(base + out->off, x, (size_t)n);
	return NULL;
}

/* Tell all of the row where something lies, and learn where theirs is. */
static struct err *exchange(struct coll_cx *cx, const struct row *r, uint32_t site, size_t off, size_t n, size_t *at)
{
	struct sym_msg m;

	for (int k = 1; k < r->n; k++)
		TRY(sym_tell(cx->ep, pe_of(r, (r->me + k) % r->n), site, SYM_LEND, off, n));
	for (int k = 1; k < r->n; k++) {
		int j = (r->me + k) % r->n;
		TRY(sym_recv(cx->ep, pe_of(r, j), site, SYM_LEND, &m));
		at[j] = m.off;
	}
	at[r->me] = off;
	return NULL;
}

/* Done with what the others lent; wait until they are done with what this device lent. */
static struct err *give_back(struct coll_cx *cx, const struct row *r)
{
	for (int k = 0; k < r->n; k++)
		if (k != r->me)
			sym_return(cx->ep, pe_of(r, k), true);
	for (int k = 0; k < r->n; k++)
		if (k != r->me)
			TRY(sym_settle(cx->ep, pe_of(r, k)));
	return NULL;
}

/* --- streams of blocks: rows of inner bytes, step bytes apart ------------------------- */

struct strided { char *p; int64_t inner, step; };

/* n bytes from src (whose rows lie in pe's heap at off, or here if pe < 0) to dst.  Rows differ in length. */
static void stream(struct coll_cx *cx, struct strided dst, int pe, size_t off, struct strided src, int64_t n)
{
	int64_t di = 0, si = 0, done = 0;

	if (!n)
		return;
	for (;;) {
		int64_t k = MIN(MIN(dst.inner - di, src.inner - si), n - done);
		if (pe < 0)
			memcpy(dst.p + di, src.p + si, (size_t)k);
		else
			sym_get(cx->ep, pe, dst.p + di, off + (size_t)si, (size_t)k);
		if ((done += k) >= n)
			return;
		if ((di += k) == dst.inner) {
			di = 0;
			dst.p += dst.step;
		}
		if ((si += k) == src.inner) {
			si = 0;
			src.p += src.step;
			off += (size_t)src.step;
		}
	}
}

static inline struct strided dense(void *p, int64_t n) { return (struct strided){ p, n, n }; }

/* --- the collectives -------------------------------------------------------------------- */

static struct err *all_reduce_slot(struct coll_cx *cx, const struct prog_coll *c, uint32_t site, char *const *ptr, const struct row *r)
{
	_Alignas(64) char mine[SYM_SLOT], sum[4 * SYM_SLOT], tmp[4 * SYM_SLOT];
	size_t each = (size_t)c->inner, n = each * c->nin;
	struct acc a;
	struct err *e = NULL;
	struct sym_msg m;
	void *room;

	for (int i = 0; i < c->nin; i++)
		memcpy(mine + each * (size_t)i, ptr[i], each);
	for (int k = 1; k < r->n; k++) {
		int pe = pe_of(r, (r->me + k) % r->n);
		TRY(sym_slot_room(cx->ep, pe, n, &room));
		memcpy(room, mine, n);
		sym_slot_send(cx->ep, pe, site, n);
	}
	acc_init(&a, c, r->n);
	for (int k = 0; k < r->n; k++) {
		const void *x = mine;
		if (k != r->me) {
			TRY_GOTO(e, sym_recv(cx->ep, pe_of(r, k), site, SYM_SLOT_MSG, &m), out);
			x = m.data;
		}
		if (k)
			acc_add(&a, sum, x, (int64_t)n / a.elem, tmp);
		else
			acc_first(&a, sum, x, (int64_t)n / a.elem);
		if (k != r->me)
			sym_return(cx->ep, pe_of(r, k), false);
	}
	acc_last(&a, mine, sum, (int64_t)n / a.elem);
	for (int i = 0; i < c->nin; i++)
		memcpy(ptr[c->nin + i], mine + each * (size_t)i, each);
out:
	acc_fini(&a);
	return e;
}

/* dst[0 .. n) = x[0][..] op x[1][..] ..., where operand k lies at at[k] + off. */
static void reduce_range(struct coll_cx *cx, const struct acc *a, const struct row *r, const size_t *at, size_t off, char *dst, int64_t n)
{
	_Alignas(64) char sum[4 * CHUNK], tmp[4 * CHUNK], buf[CHUNK];

	for (int64_t o = 0; o < n; o += CHUNK) {
		int64_t len = MIN(n - o, CHUNK);
		int k = 0;
		if (a->pair) {            /* the first two in one pass; two devices need no more */
			const void *x = sym_at(cx->ep, pe_of(r, 0), at[0] + off + (size_t)o, (size_t)len, buf);
			const void *y = sym_at(cx->ep, pe_of(r, 1), at[1] + off + (size_t)o, (size_t)len, x == buf ? tmp : buf);
			a->pair(len / a->elem, r->n == 2 ? dst + o : sum, x, y, NULL);
			if (r->n == 2)
				continue;
			k = 2;
		}
		for (; k < r->n; k++) {
			const void *x = sym_at(cx->ep, pe_of(r, k), at[k] + off + (size_t)o, (size_t)len, buf);
			if (k)
				acc_add(a, sum, x, len / a->elem, tmp);
			else
				acc_first(a, sum, x, len / a->elem);
		}
		acc_last(a, dst + o, sum, len / a->elem);
	}
}

static struct err *all_reduce_large(struct coll_cx *cx, const struct prog_coll *c, uint32_t site, char *x, char *y, const struct row *r)
{
	int64_t elem = dtype_info[c->dtype].bytes, n = c->inner, count = n / elem, q = (count + r->n - 1) / r->n;
	size_t at[MAX_ROW], res[MAX_ROW];
	struct loan l = { 0 }, out = { 0 };
	struct acc a;
	struct err *e;

	q = (q * elem + 63) / 64 * 64;
	acc_init(&a, c, r->n);
	/* In place is fine; an overlap that is not exact is not. */
	TRY_GOTO(e, loan_make(cx, x, n, x != y && overlap(x, n, y, n), &l), out);
	TRY_GOTO(e, loan_make(cx, y, 0, false, &out), out);
	if (out.staged) {             /* the result is not in the heap: work on a copy */
		sym_free(out.staged);
		TRY_GOTO(e, sym_alloc(cx->heap, (size_t)n, "staging of a collective", -1, &out.staged), out);
		out.off = out.staged->off;
	}
	char *dst = sym_ep_base(cx->ep) + out.off;
	TRY_GOTO(e, exchange(cx, r, site, l.off, (size_t)n, at), out);
	int64_t lo = MIN(r->me * q, n), hi = MIN(lo + q, n);
	reduce_range(cx, &a, r, at, (size_t)lo, dst + lo, hi - lo);
	for (int k = 0; k < r->n; k++)
		if (k != r->me)
			sym_return(cx->ep, pe_of(r, k), false);
	for (int k = 1; k < r->n; k++)
		TRY_GOTO(e, sym_tell(cx->ep, pe_of(r, (r->me + k) % r->n), site, SYM_LEND, out.off, (size_t)n), out);
	for (int k = 1; k < r->n; k++) {
		int j = (r->me + k) % r->n;
		struct sym_msg m;
		TRY_GOTO(e, sym_recv(cx->ep, pe_of(r, j), site, SYM_LEND, &m), out);
		res[j] = m.off;
		lo = MIN(j * q, n), hi = MIN(lo + q, n);
		if (hi > lo)
			sym_get(cx->ep, pe_of(r, j), dst + lo, res[j] + (size_t)lo, (size_t)(hi - lo));
		sym_return(cx->ep, pe_of(r, j), true);
	}
	TRY_GOTO(e, give_back(cx, r), out);
	if (out.staged)
		memcpy(y, dst, (size_t)n);
out:
	acc_fini(&a);
	sym_free(l.staged);
	sym_free(out.staged);
	return e;
}

/* result [outer] rows of inner = sum over k of block me of operand k [outer][n] of inner. */
static struct err *reduce_scatter(struct coll_cx *cx, const struct prog_coll *c, uint32_t site, char *x, char *y, const struct row *r)
{
	int64_t n = c->outer * c->inner, step = c->inner * r->n;
	struct acc a;
	struct err *e = NULL;
	struct loan l = { 0 };

	acc_init(&a, c, r->n);
	if (n <= SYM_SLOT) {
		_Alignas(64) char mine[SYM_SLOT], sum[4 * SYM_SLOT], tmp[4 * SYM_SLOT];
		struct sym_msg m;
		void *room;
		for (int k = 1; k < r->n; k++) {
			int j = (r->me + k) % r->n;
			TRY_GOTO(e, sym_slot_room(cx->ep, pe_of(r, j), (size_t)n, &room), out);
			stream(cx, dense(room, n), -1, 0, (struct strided){ x + j * c->inner, c->inner, step }, n);
			sym_slot_send(cx->ep, pe_of(r, j), site, (size_t)n);
		}
		stream(cx, dense(mine, n), -1, 0, (struct strided){ x + r->me * c->inner, c->inner, step }, n);
		for (int k = 0; k < r->n; k++) {
			const void *s = mine;
			if (k != r->me) {
				TRY_GOTO(e, sym_recv(cx->ep, pe_of(r, k), site, SYM_SLOT_MSG, &m), out);
				s = m.data;
			}
			if (k)
				acc_add(&a, sum, s, n / a.elem, tmp);
			else
				acc_first(&a, sum, s, n / a.elem);
			if (k != r->me)
				sym_return(cx->ep, pe_of(r, k), false);
		}
		acc_last(&a, y, sum, n / a.elem);
		goto out;
	}
	size_t at[MAX_ROW];
	TRY_GOTO(e, loan_make(cx, x, n * r->n, overlap(x, n * r->n, y, n), &l), out);
	TRY_GOTO(e, exchange(cx, r, site, l.off, (size_t)(n * r->n), at), out);
	for (int64_t o = 0; o < c->outer; o++)
		reduce_range(cx, &a, r, at, (size_t)(o * step + r->me * c->inner), y + o * c->inner, c->inner);
	e = give_back(cx, r);
out:
	acc_fini(&a);
	sym_free(l.staged);
	return e;
}

/* Block j of this device's operand goes to device j, as the blocks of all devices to this one: what all-gather
 * and all-to-all share.  The block for device j starts at x + j * send and has n bytes in rows; that of device
 * k is written to y + k * place. */
static struct err *blocks(struct coll_cx *cx, uint32_t site, char *x, int64_t nx, int64_t send, struct strided from,
                          char *y, int64_t ny, int64_t place, struct strided to, int64_t n, const struct row *r)
{
	struct sym_msg m;
	struct err *e = NULL;
	struct loan l = { 0 };
	void *room;

#define FROM(base) ((struct strided){ (base), from.inner, from.step })
#define TO(k) ((struct strided){ y + (k) * place, to.inner, to.step })
	if (n <= SYM_SLOT) {
		_Alignas(64) char mine[SYM_SLOT];
		for (int k = 1; k < r->n; k++) {
			int j = (r->me + k) % r->n;
			TRY(sym_slot_room(cx->ep, pe_of(r, j), (size_t)n, &room));
			stream(cx, dense(room, n), -1, 0, FROM(x + j * send), n);
			sym_slot_send(cx->ep, pe_of(r, j), site, (size_t)n);
		}
		stream(cx, dense(mine, n), -1, 0, FROM(x + r->me * send), n);
		stream(cx, TO(r->me), -1, 0, dense(mine, n), n);
		for (int k = 1; k < r->n; k++) {
			int j = (r->me + k) % r->n;
			TRY(sym_recv(cx->ep, pe_of(r, j), site, SYM_SLOT_MSG, &m));
			stream(cx, TO(j), -1, 0, dense((void *)(uintptr_t)m.data, n), n);
			sym_return(cx->ep, pe_of(r, j), false);
		}
		return NULL;
	}
	size_t at[MAX_ROW];
	TRY_GOTO(e, loan_make(cx, x, nx, overlap(x, nx, y, ny), &l), out);
	TRY_GOTO(e, exchange(cx, r, site, l.off, (size_t)nx, at), out);
	for (int k = 0; k < r->n; k++) {
		int j = (r->me + k) % r->n;
		stream(cx, TO(j), pe_of(r, j), at[j] + (size_t)(r->me * send), FROM(NULL), n);
	}
	e = give_back(cx, r);
out:
	sym_free(l.staged);
	return e;
#undef FROM
#undef TO
}

/* n bytes at x to device dst, n bytes from device src to y; -1 none. */
static struct err *shift(struct coll_cx *cx, uint32_t site, char *x, char *y, int64_t n, int src, int dst)
{
	int self = sym_ep_pe(cx->ep);
	struct sym_msg m;
	struct loan l = { 0 };
	struct err *e = NULL;
	void *room;

	if (src == self || dst == self) {
		if (x != y)
			memmove(y, x, (size_t)n);
		return NULL;
	}
	if (n <= SYM_SLOT) {
		if (dst >= 0) {
			TRY(sym_slot_room(cx->ep, dst, (size_t)n, &room));
			memcpy(room, x, (size_t)n);
			sym_slot_send(cx->ep, dst, site, (size_t)n);
		}
		if (src >= 0) {
			TRY(sym_recv(cx->ep, src, site, SYM_SLOT_MSG, &m));
			memcpy(y, m.data, (size_t)n);
			sym_return(cx->ep, src, false);
		}
	} else {
		if (dst >= 0) {
			TRY(loan_make(cx, x, n, y && overlap(x, n, y, n), &l));
			TRY_GOTO(e, sym_tell(cx->ep, dst, site, SYM_LEND, l.off, (size_t)n), out);
		}
		if (src >= 0) {
			TRY_GOTO(e, sym_recv(cx->ep, src, site, SYM_LEND, &m), out);
			sym_get(cx->ep, src, y, m.off, (size_t)n);
			sym_return(cx->ep, src, true);
		}
		if (dst >= 0)
			e = sym_settle(cx->ep, dst);
	}
	if (!e && src < 0 && y)
		memset(y, 0, (size_t)n);
out:
	sym_free(l.staged);
	return e;
}

static struct err *broadcast(struct coll_cx *cx, uint32_t site, char *x, char *y, int64_t n, const struct row *r)
{
	struct sym_msg m;
	struct loan l = { 0 };
	struct err *e = NULL;
	void *room;

	if (r->me) {
		bool small = n <= SYM_SLOT;
		int root = pe_of(r, 0);
		TRY(sym_recv(cx->ep, root, site, small ? SYM_SLOT_MSG : SYM_LEND, &m));
		if (small)
			memcpy(y, m.data, (size_t)n);
		else
			sym_get(cx->ep, root, y, m.off, (size_t)n);
		sym_return(cx->ep, root, !small);
		return NULL;
	}
	if (n > SYM_SLOT)
		TRY(loan_make(cx, x, n, x != y && overlap(x, n, y, n), &l));
	for (int k = 1; k < r->n; k++) {
		int pe = pe_of(r, k);
		if (n > SYM_SLOT) {
			TRY_GOTO(e, sym_tell(cx->ep, pe, site, SYM_LEND, l.off, (size_t)n), out);
			continue;
		}
		TRY_GOTO(e, sym_slot_room(cx->ep, pe, (size_t)n, &room), out);
		memcpy(room, x, (size_t)n);
		sym_slot_send(cx->ep, pe, site, (size_t)n);
	}
	if (x != y)
		memmove(y, x, (size_t)n);
	for (int k = 1; k < r->n && n > SYM_SLOT; k++)
		TRY_GOTO(e, sym_settle(cx->ep, pe_of(r, k)), out);
out:
	sym_free(l.staged);
	return e;
}

struct err *coll_run(struct coll_cx *cx, const struct prog_coll *c, uint32_t site, char *const *ptr)
{
	char *const *res = ptr + c->nin;
	struct row r;

	if (c->kind == COLL_permute) {
		int64_t src = cx->p->table[c->pairs].v[cx->pos], dst = cx->p->table[c->pairs + 1].v[cx->pos];
		for (int i = 0; i < c->nin && c->inner && c->outer; i++)
			TRY(shift(cx, site, ptr[i], res[i], c->outer * c->inner, src < 0 ? -1 : cx->pe[src], dst < 0 ? -1 : cx->pe[dst]));
		return NULL;
	}
	r = row_of(cx, c);
	if (!c->inner || !c->outer)
		return NULL;
	if (r.n == 1) {
		bool none = c->kind == COLL_broadcast && cx->p->group[c->group].row[cx->pos] < 0;
		for (int i = 0; i < c->nin; i++)
			if (none)
				memset(res[i], 0, (size_t)(c->outer * c->inner));
			else if (res[i] != ptr[i])
				memmove(res[i], ptr[i], (size_t)(c->outer * c->inner));
		return NULL;
	}
	if (c->kind == COLL_all_reduce && c->inner * c->nin <= SYM_SLOT)
		return all_reduce_slot(cx, c, site, ptr, &r);
	for (int i = 0; i < c->nin; i++) {
		char *x = ptr[i], *y = res[i];
		int64_t in = c->inner, n = c->outer * in;
		switch ((enum coll_kind)c->kind) {
		case COLL_all_reduce:
			TRY(all_reduce_large(cx, c, site, x, y, &r));
			break;
		case COLL_reduce_scatter:
			TRY(reduce_scatter(cx, c, site, x, y, &r));
			break;
		case COLL_all_gather:
			TRY(blocks(cx, site, x, n, 0, dense(NULL, n), y, n * r.n, in, (struct strided){ NULL, in, in * r.n }, n, &r));
			break;
		case COLL_all_to_all:
			TRY(blocks(cx, site, x, n * r.n, in, (struct strided){ NULL, in, in * r.n },
			           y, n * r.n, c->inner2, (struct strided){ NULL, c->inner2, c->inner2 * r.n }, n, &r));
			break;
		case COLL_broadcast:
			TRY(broadcast(cx, site, x, y, n, &r));
			break;
		default:
			return ERR(UNIMPLEMENTED, "collective %d has no implementation", c->kind);
		}
	}
	return NULL;
}

struct err *coll_check(const struct prog *p, const struct prog_coll *c)
{
	bool sum = c->kind == COLL_all_reduce || c->kind == COLL_reduce_scatter;

	if (c->kind >= COLL_COUNT)
		return ERR(INVALID, "collective of kind %d", c->kind);
	if (sum && (c->redop == RED_lse || (c->redop == RED_fn && !c->expr)))
		return ERR(UNIMPLEMENTED, "%s with reduction '%s'", c->kind == COLL_all_reduce ? "all_reduce" : "reduce_scatter", redop_name[c->redop]);
	if (c->kind != COLL_permute && p->group[c->group].ncol > MAX_ROW)
		return ERR(UNIMPLEMENTED, "a collective over %d devices", p->group[c->group].ncol);
	return NULL;
}

int coll_peers(const struct prog *p, const int *pe, int pos, int *out)
{
	bool *seen = mem_alloc((size_t)MAX(p->ndev, 1));
	int n = 0;

	for (uint32_t i = 0; i < p->ncoll; i++) {
		const struct prog_coll *c = &p->coll[i];
		if (c->kind == COLL_permute) {
			for (int k = 0; k < 2; k++) {
				int64_t o = p->table[c->pairs + (uint32_t)k].v[pos];
				if (o >= 0)
					seen[o] = true;
			}
			continue;
		}
		const struct prog_group *g = &p->group[c->group];
		if (g->row[pos] >= 0)
			for (int k = 0; k < g->ncol; k++) {
				int64_t o = g->id[(int64_t)g->row[pos] * g->ncol + k];
				if (o >= 0)
					seen[o] = true;
			}
	}
	for (int i = 0; i < p->ndev; i++)
		if (seen[i] && i != pos)
			out[n++] = pe[i];
	free(seen);
	return n;
}
