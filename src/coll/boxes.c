/* An all_to_all whose blocks are boxes of arrays: each member puts its operand into all results, so that it reads one array and what several want
 * once, or, where boxes are in shorter pieces in results than in operands, its result together, straight from where the operands lie.
 *
 * All boxes of a result (an operand) go on together, some rows of each at a time: those that lie side by side in it have the same lines
 * and pages, which are then in the caches.  Where rows of several boxes make up the lines of a large result, they are woven in a buffer that stays
 * in the nearest cache, and go on from there past all of them. */
#include <stdlib.h>

#include "impl.h"

/* Boxes that are copied together; bytes of one before the next one's turn, and if it is in pieces shorter than a page; a result of so many bytes is
 * in no core's cache when it is read: what fills its lines goes past the caches, and no line is read to be written; turns that are fetched ahead while others are
 * woven; a core that reads a shorter piece fetches what lies beside it, too; shorter pieces that are written take longer. */
enum { TOGETHER = 32, LINE = 64, PAGE = 4 << 10, SLAB = 32 << 10, LITTLE = 1 << 10, WEAVE = 4 << 10, LARGE = 4 << 20, AHEAD = 2, FETCHED = 256, PUT = 128 };

/* Rows that are copied: loops around them, outermost first, and how far they have come.  woven: with the rows of so many boxes, itself the first, it
 * makes up longer ones. */
struct box { char *to; const char *from, *start; int64_t row, left, slab; bool past; int woven, n; int64_t len[PROG_BOX_RANK], by_to[PROG_BOX_RANK], by_from[PROG_BOX_RANK], at[PROG_BOX_RANK]; };

/* The box of a row of c, in arrays at y and x.  packed: x has the box alone. */
static void box_init(struct box *b, const struct prog_coll *c, const int64_t *r, char *y, bool y_packed, const char *x, bool x_packed)
{
	int64_t rank = c->box[0], e = dtype_info[c->dtype].bytes, sx = e, sy = e;
	const int64_t *dx = c->box + 1, *dy = dx + rank, *from = r + 2, *to = from + rank, *size = to + rank;

	*b = (struct box){ .to = y, .from = x, .row = e, .left = 1, .woven = 1 };
	int k = PROG_BOX_RANK;                    /* the next loop, from the innermost one, is k - 1 */
	for (int64_t d = rank; d-- > 0;) {
		if (!x_packed)
			b->from += from[d] * sx;
		if (!y_packed)
			b->to += to[d] * sy;
		bool rows = k == PROG_BOX_RANK;
		if (size[d] == 1) {
			/* no loop */
		} else if (rows && sx == b->row && sy == b->row) {
			b->row *= size[d];
		} else if (!rows && sx == b->by_from[k] * b->len[k] && sy == b->by_to[k] * b->len[k]) {
			b->len[k] *= size[d];
		} else {
			k--;
			b->len[k] = size[d];
			b->by_from[k] = sx;
			b->by_to[k] = sy;
		}
		sx *= x_packed ? size[d] : dx[d];
		sy *= y_packed ? size[d] : dy[d];
		b->left *= size[d] > 0;
	}
	b->n = PROG_BOX_RANK - k;
	memmove(b->len, b->len + k, sizeof *b->len * (size_t)b->n);
	memmove(b->by_to, b->by_to + k, sizeof *b->by_to * (size_t)b->n);
	memmove(b->by_from, b->by_from + k, sizeof *b->by_from * (size_t)b->n);
	for (int d = 0; d < b->n; d++)
		b->left *= b->len[d];
	b->left = b->row ? b->left : 0;
	b->slab = SLAB;
}

/* Bytes that lie side by side, where rows are `by` apart. */
static int64_t piece(const struct box *b, const int64_t *by)
{
	int64_t n = b->row;
	for (int d = b->n; d-- > 0 && by[d] == n;)
		n *= b->len[d];
	return n;
}

/* b goes into a result of so many bytes, with others of the same operand, if it is given, or else of the same result: where lines or pages of that are
 * read or filled by several boxes, they take short turns. */
static void box_tune(struct box *b, int64_t bytes, bool give)
{
	int64_t whole = piece(b, b->by_to);
	uintptr_t at = (uintptr_t)b->to | (uintptr_t)whole;
	for (int d = 0; d < b->n; d++)
		at |= b->by_to[d] < whole ? 0 : (uintptr_t)b->by_to[d];
	b->past = bytes >= LARGE && at % LINE == 0 && b->row % 16 == 0;
	b->slab = (give || !b->past) && piece(b, give ? b->by_from : b->by_to) < PAGE ? LITTLE : SLAB;
}

/* n rows of a size that the compiler knows are moved without a call for each. */
static inline __attribute__((always_inline)) void rows_of(char *to, int64_t by_to, const char *from, int64_t by_from, int64_t n, size_t row)
{
	for (; n > 0; n--, to += by_to, from += by_from)
		memcpy(to, from, row);
}

static void rows(char *to, int64_t by_to, const char *from, int64_t by_from, int64_t n, int64_t row)
{
	switch (row) {
	case 1: rows_of(to, by_to, from, by_from, n, 1); break;
	case 2: rows_of(to, by_to, from, by_from, n, 2); break;
	case 4: rows_of(to, by_to, from, by_from, n, 4); break;
	case 8: rows_of(to, by_to, from, by_from, n, 8); break;
	case 16: rows_of(to, by_to, from, by_from, n, 16); break;
	case 32: rows_of(to, by_to, from, by_from, n, 32); break;
	case 64: rows_of(to, by_to, from, by_from, n, 64); break;
	case 128: rows_of(to, by_to, from, by_from, n, 128); break;
	case 256: rows_of(to, by_to, from, by_from, n, 256); break;
	default: rows_of(to, by_to, from, by_from, n, (size_t)row); break;
	}
}

/* The rows of a woven box and those that go with it, side by side. */
static void weave(const struct box *b, int64_t by_from, int64_t n)
{
	_Alignas(LINE) char line[WEAVE];
	int64_t all = b->woven * b->row, most = WEAVE / all, last = b->n - 1, ahead = 0;

	if (by_from == b->row)                    /* where the next turns read, or the same turn of the next rows but one */
		ahead = AHEAD * (last && b->by_from[last - 1] != by_from * b->len[last] ? b->by_from[last - 1] : MIN(n, most) * by_from);

	for (int64_t o = 0; o < n; o += most) {
		int64_t some = MIN(most, n - o);
		for (int i = 0; i < b->woven; i++) {
			const char *from = b[i].start + (b->from - b->start) + o * by_from;
			for (int64_t p = 0; ahead && p < some * b->row; p += LINE)
				__builtin_prefetch(from + ahead + p);
			rows(line + i * b->row, all, from, by_from, some, b->row);
		}
		copy_rows_past(b->to + o * all, 0, line, 0, 1, (size_t)(some * all));
	}
}

static void some_rows(const struct box *b, int64_t by_to, int64_t by_from, int64_t n)
{
	if (b->woven > 1)
		weave(b, by_from, n);
	else if (b->past)
		copy_rows_past(b->to, by_to, b->from, by_from, n, (size_t)b->row);
	else
		rows(b->to, by_to, b->from, by_from, n, b->row);
}

/* Some more rows of b, about as many as a slab has. */
static void box_go_on(struct box *b)
{
	int last = b->n - 1;
	int64_t want = MAX(b->slab / b->row, 1);

	while (want > 0 && b->left > 0) {
		int64_t n = last < 0 ? 1 : MIN(b->len[last] - b->at[last], want);
		some_rows(b, last < 0 ? 0 : b->by_to[last], last < 0 ? 0 : b->by_from[last], n);
		want -= n;
		b->left -= n;
		for (int d = last; d >= 0; d--) {
			int64_t k = d == last ? n : 1;
			b->to += k * b->by_to[d];
			b->from += k * b->by_from[d];
			if ((b->at[d] += k) < b->len[d])
				break;
			b->to -= b->len[d] * b->by_to[d];
			b->from -= b->len[d] * b->by_from[d];
			b->at[d] = 0;
		}
	}
}

static int by_place(const void *x, const void *y)
{
	const struct box *a = x, *b = y;
	return a->to < b->to ? -1 : a->to > b->to;
}

static bool goes_with(const struct box *a, const struct box *b)
{
	size_t n = sizeof *a->len * (size_t)a->n;
	return b->to == a->to + a->row && b->row == a->row && b->n == a->n && b->left == a->left && !memcmp(b->len, a->len, n) && !memcmp(b->by_to, a->by_to, n) &&
	       !memcmp(b->by_from, a->by_from, n);
}

/* Boxes whose rows make up whole lines of a large result become one. */
static void boxes_weave(struct box *b, int n, int64_t bytes)
{
	if (bytes < LARGE)
		return;
	qsort(b, (size_t)n, sizeof *b, by_place);
	for (int i = 0, k; i < n; i += k) {
		struct box *x = &b[i];
		for (k = 1; i + k < n && goes_with(&b[i + k - 1], &b[i + k]); k++)
			;
		int64_t all = k * x->row;
		uintptr_t at = (uintptr_t)x->to;
		for (int d = 0; d < x->n; d++)
			at |= (uintptr_t)x->by_to[d];
		if (k == 1 || !x->n || all > WEAVE || x->by_to[x->n - 1] != all || at % LINE)
			continue;
		x->woven = k;
		x->slab = WEAVE / k;
		for (int j = 0; j < k; j++) {
			x[j].start = x[j].from;
			x[j].left = j ? 0 : x[j].left;
		}
	}
}

static void boxes_copy(struct box *b, int n, int64_t bytes)
{
	boxes_weave(b, n, bytes);
	for (bool more = true; more;) {
		more = false;
		for (int i = 0; i < n; i++)
			if (b[i].left) {
				box_go_on(&b[i]);
				more |= b[i].left > 0;
			}
	}
	copy_rows_end();
}

static void box_whole(const struct prog_coll *c, const int64_t *r, char *y, bool y_packed, const char *x, bool x_packed)
{
	struct box b;

	box_init(&b, c, r, y, y_packed, x, x_packed);
	boxes_copy(&b, 1, 0);
}

struct rows { const int64_t *first, *end; int64_t by; };
static struct rows rows_all(const struct prog_coll *c) { return (struct rows){ c->box + 1 + 2 * c->box[0], c->box + c->nbox, 2 + 3 * c->box[0] }; }

static int64_t bytes_of(const struct prog_coll *c, const int64_t *r)
{
	int64_t n = dtype_info[c->dtype].bytes;

	for (int64_t d = 0; d < c->box[0]; d++)
		n *= r[2 + 2 * c->box[0] + d];
	return n;
}

static int rank_of(const struct call *q, const struct coll_cx *cx, int64_t pos)
{
	int k = 0;

	while (k < q->n && q->pe[k] != cx->pe[pos])
		k++;
	return k;
}

/* Does it take no longer to write the boxes of all members in pieces of results than to read them in pieces of operands?  A line that several
 * write goes from core to core. */
static bool is_given(const struct prog_coll *c)
{
	const struct rows w = rows_all(c);
	double read = 0, written = 0;

	for (const int64_t *r = w.first; r < w.end; r += w.by) {
		struct box b;
		double n = (double)bytes_of(c, r);
		box_init(&b, c, r, NULL, false, NULL, false);
		if (!b.left)
			continue;
		read += n * FETCHED / (double)MIN(piece(&b, b.by_from), FETCHED);
		written += n * PUT / (double)MIN(piece(&b, b.by_to), PUT) * (piece(&b, b.by_to) < LINE ? 4 : 1);
	}
	return written <= read;
}

/* Operands lie where all can read them, results perhaps where all can write them. */
static struct err *boxes_near(const struct call *q, const struct coll_cx *cx, const struct prog_coll *c, const char *x, char *y)
{
	enum { ELSEWHERE = -1 };
	const struct rows w = rows_all(c);
	bool give = q->n > 1 && is_given(c), here = give && loan_here(q, y);
	size_t at[MAX_ROW], to[MAX_ROW];
	struct box b[TOGETHER];
	struct loan l = { 0 };
	struct err *e = NULL;
	int n = 0;

	if (q->n > 1) {
		TRY(loan_make(q, x, c->inner, false, &l));
		TRY_GOTO(e, loan_exchange(q, c->inner, l.off, here ? (size_t)(y - (char *)sym_ep_base(q->ep)) : (size_t)ELSEWHERE, at, to), out);
	}
	for (int k = 0; k < q->n && give; k++)
		give = to[k] != (size_t)ELSEWHERE;
	for (const int64_t *r = w.first; r < w.end; r += w.by) {
		if (r[give] != cx->pos)
			continue;
		int k = rank_of(q, cx, r[!give]);
		const char *from = r[1] == cx->pos ? x : sym_at(q->ep, q->pe[k], at[k], (size_t)c->inner, NULL);
		char *into = r[0] == cx->pos ? y : (char *)(uintptr_t)sym_at(q->ep, q->pe[k], to[k], (size_t)c->inner2, NULL);
		box_init(&b[n], c, r, into, false, from, false);
		box_tune(&b[n], c->inner2, give);
		if (++n == TOGETHER) {
			boxes_copy(b, n, c->inner2);
			n = 0;
		}
	}
	boxes_copy(b, n, c->inner2);
	if (q->n > 1)
		e = ready_all(q);
out:
	loan_end(q, &l, e);
	return e;
}

struct err *move_rows(const struct call *q, const struct blocks *b)
{
	size_t at[MAX_ROW];
	struct box x[TOGETHER];
	struct loan l;
	struct err *e;
	int64_t row = MIN(b->from.inner, b->to.inner);
	int n = 0;

	TRY(loan_make(q, b->x, b->nx, false, &l));
	TRY_GOTO(e, loan_exchange(q, b->n, l.off, 0, at, NULL), out);
	for (int j = 0; j < q->n; j++) {
		const char *from = j == q->me ? b->x : sym_at(q->ep, q->pe[j], at[j], (size_t)b->nx, NULL);
		x[n] = (struct box){ .to = b->y + j * b->place, .from = from + q->me * b->send, .row = row, .left = b->n / row, .woven = 1, .n = 1, .len = { b->n / row },
		                     .by_to = { b->to.inner > row ? row : b->to.step }, .by_from = { b->from.inner > row ? row : b->from.step } };
		box_tune(&x[n], b->ny, false);
		if (++n == TOGETHER) {
			boxes_copy(x, n, b->ny);
			n = 0;
		}
	}
	boxes_copy(x, n, b->ny);
	e = ready_all(q);
out:
	loan_end(q, &l, e);
	return e;
}

/* Short rows would each be a message: who has them packs them, in the order of the boxes. */
static struct err *boxes_far(const struct call *q, const struct coll_cx *cx, const struct prog_coll *c, const char *x, char *y)
{
	const struct rows w = rows_all(c);
	size_t at[MAX_ROW];
	int64_t all = 0, most = 0, o = 0;
	struct loan l = { 0 };
	struct err *e = NULL;

	for (const int64_t *r = w.first; r < w.end; r += w.by) {
		int64_t n = r[0] != r[1] ? bytes_of(c, r) : 0;
		all += r[1] == cx->pos ? n : 0;
		most = r[0] == cx->pos ? MAX(most, n) : most;
	}
	TRY(keep(&q->c->room, (size_t)most));
	char *got = q->c->room.p;
	if (all) {
		TRY_GOTO(e, sym_alloc(q->c->heap, (size_t)all, "staging of a collective", -1, &l.copy), out);
		l.off = l.copy->off;
	}
	for (const int64_t *r = w.first; r < w.end; r += w.by)
		if (r[1] == cx->pos && r[0] != r[1]) {
			box_whole(c, r, sym_ep_base(q->ep) + l.off + o, true, x, false);
			o += bytes_of(c, r);
		}
	TRY_GOTO(e, loan_exchange(q, c->inner, l.off, 0, at, NULL), out);
	for (const int64_t *r = w.first; r < w.end; r += w.by) {
		if (r[0] == cx->pos && r[1] == cx->pos) {
			box_whole(c, r, y, false, x, false);
			continue;
		}
		int k = rank_of(q, cx, r[1]);
		int64_t n = r[0] != r[1] ? bytes_of(c, r) : 0;
		if (r[0] == cx->pos && n) {
			sym_get(q->ep, q->pe[k], got, at[k], (size_t)n);
			box_whole(c, r, y, false, got, true);
		}
		if (k < q->n)
			at[k] += (size_t)n;
	}
	e = ready_all(q);
out:
	loan_end(q, &l, e);
	return e;
}

struct err *move_boxes(const struct call *q, const struct coll_cx *cx, const struct prog_coll *c, bool far, const char *x, char *y)
{
	return (far ? boxes_far : boxes_near)(q, cx, c, x, y);
}
