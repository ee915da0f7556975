/* sort and top_k.
 *
 * A comparator that is a lexicographic order of keys, each a function of one operand compared in a total
 * order, is recognised in the expression: "before" is lt(f(a), f(b)) or gt, or lt | (eq & before') and so on;
 * JAX makes no other.  The keys are computed strip by strip and turned into unsigned integers, and the rows
 * sort by integers: a key of at most 32 bits is joined with its index, or with the element itself, into one
 * 64-bit word; words are sorted by least significant digits, stably.  Several keys: one pass per key, last key
 * first.  A long row goes over tiles, digit by digit (Zagha and Blelloch, "Radix sort for vector
 * multiprocessors", 1991); where there is one operand with one key its elements themselves move, between the result and as much memory.
 * Any other comparator runs as an expression inside a merge sort of indices. */
#include <stdlib.h>

#include "impl.h"

enum { MAX_OPS = 64, MAX_KEYS = 16, RUNS = 16, RADIX_MIN = 48, LONG = 1 << 17 };

struct key { int op; bool down; enum dtype dt; struct plan *p; bool same; };   /* same: the operand itself */

struct sort {
	int nop, dim, nkey, rank;
	struct key key[MAX_KEYS];
	struct plan *p;              /* general comparator */
	int64_t n, rows, per_tile;
	bool wide, values;           /* keys of 64 bits; one operand of at most 32 bits */
	/* a long row over tiles: */
	int64_t run;                 /* elements of a tile */
	int digits, phases;          /* of a key, of eight bits; of a row */
	bool move;                   /* elements move, not words */
};

/* --- recognition ------------------------------------------------------------------- */

/* Is register y of e the same function of input 2i+1 as register x of 2i?  op gets i. */
static bool same_function(const struct prog_expr *e, int x, int y, int *op, int depth)
{
	if (depth > 200)
		return false;
	if (x < e->nin || y < e->nin) {
		if (x >= e->nin || y >= e->nin || (x & 1) || y != x + 1)
			return false;
		if (*op >= 0 && *op != x / 2)
			return false;
		*op = x / 2;
		return true;
	}
	const struct prog_ins *a = &e->ins[x - e->nin], *b = &e->ins[y - e->nin];
	if (a->fn != b->fn || a->from != b->from || a->to != b->to)
		return false;
	if (a->fn == EXPR_IMM)
		return !memcmp(a->imm, b->imm, 16);
	if (a->fn == EXPR_ROUND && memcmp(a->imm, b->imm, 2))
		return false;
	int n = a->fn == EXPR_ROUND ? 1 : elem_info[a->fn].nin;
	for (int i = 0; i < n; i++)
		if (!same_function(e, a->src[i], b->src[i], op, depth + 1))
			return false;
	return true;
}

/* Register r compares one function of a_i with the same of b_i: x gets the register of a's side. */
static bool is_compare(const struct prog_expr *e, int r, enum elem *fn, int *x, int *op)
{
	if (r < e->nin)
		return false;
	const struct prog_ins *c = &e->ins[r - e->nin];
	if (c->fn >= ELEM_COUNT || !(elem_info[c->fn].flags & EL_PRED) || elem_info[c->fn].nin != 2)
		return false;
	*op = -1;
	*fn = (enum elem)c->fn;
	*x = c->src[0];
	if (same_function(e, c->src[0], c->src[1], op, 0) && *op >= 0)
		return true;
	*op = -1;
	*fn = elem_mirrored(*fn);
	*x = c->src[1];
	return same_function(e, c->src[1], c->src[0], op, 0) && *op >= 0;
}

static bool before_of(enum elem fn, bool *down)
{
	*down = fn == ELEM_total_gt || fn == ELEM_compare_gt;
	return *down || fn == ELEM_total_lt || fn == ELEM_compare_lt;
}

/* The part of e that register r needs, as an expression of input 2 op. */
static struct err *cut_plan(struct arena *a, const struct prog_expr *e, int r, int op, struct key *k)
{
	k->op = op;
	k->same = r == 2 * op;
	if (k->same) {
		k->dt = e->in_type[r];
		return NULL;
	}
	k->dt = e->ins[r - e->nin].to;
	struct prog_expr *s = ARENA_NEW(a, struct prog_expr, 1);
	s->nin = s->nout = 1;
	s->in_type = arena_copy(a, &e->in_type[2 * op], 1);
	s->ins = ARENA_NEW(a, struct prog_ins, e->n);
	s->out = ARENA_NEW(a, uint16_t, 1);
	uint8_t *need = ARENA_NEW(a, uint8_t, e->nin + e->n);
	uint16_t *map = ARENA_NEW(a, uint16_t, e->nin + e->n);
	need[r] = 1;
	for (int i = e->n; i-- > 0;) {
		const struct prog_ins *x = &e->ins[i];
		int n = prog_ins_nin(x->fn);
		for (int j = 0; j < n && need[e->nin + i]; j++)
			need[x->src[j]] = 1;
	}
	for (int i = 0; i < e->n; i++) {
		if (!need[e->nin + i])
			continue;
		struct prog_ins x = e->ins[i];
		for (int j = 0; j < 3; j++)
			x.src[j] = map[x.src[j]];
		map[e->nin + i] = (uint16_t)(1 + s->n);
		s->ins[s->n++] = x;
	}
	s->out[0] = map[r];
	return plan_make(a, s, &k->p);
}

static bool key_type(enum dtype dt, enum elem fn)
{
	int cls = dtype_info[dt].cls;
	if (cls == DT_FLOAT)
		return (dt == DT_f16 || dt == DT_bf16 || dt == DT_f32 || dt == DT_f64) && fn >= ELEM_total_eq && fn <= ELEM_total_lt;
	return cls == DT_PRED || ((cls == DT_INT || cls == DT_UINT) && dtype_info[dt].bits >= 8);
}

/* r = before(key) | (eq(key) & r'), any number of times. */
static struct err *recognise(struct arena *a, struct sort *q, const struct prog_expr *e)
{
	int r = e->out[0];
	q->nkey = 0;
	while (q->nkey < MAX_KEYS) {
		enum elem fn;
		int x, op;
		bool down;
		if (is_compare(e, r, &fn, &x, &op)) {
			if (!before_of(fn, &down))
				break;
			struct key *k = &q->key[q->nkey];
			TRY(cut_plan(a, e, x, op, k));
			k->down = down;
			if (!key_type(k->dt, fn))
				break;
			q->nkey++;
			return NULL;
		}
		if (r < e->nin || e->ins[r - e->nin].fn != ELEM_or)
			break;
		const struct prog_ins *o = &e->ins[r - e->nin];
		bool found = false;
		for (int side = 0; side < 2 && !found; side++) {
			int c = o->src[side], b = o->src[!side];
			if (!is_compare(e, c, &fn, &x, &op) || !before_of(fn, &down) || b < e->nin || e->ins[b - e->nin].fn != ELEM_and)
				continue;
			struct key *k = &q->key[q->nkey];
			TRY(cut_plan(a, e, x, op, k));
			k->down = down;
			if (!key_type(k->dt, fn))
				continue;
			for (int s2 = 0; s2 < 2 && !found; s2++) {
				enum elem f2;
				int x2, op2, eq = e->ins[b - e->nin].src[s2];
				if (!is_compare(e, eq, &f2, &x2, &op2) || op2 != op || x2 != x)
					continue;
				if (f2 != ELEM_total_eq && (f2 != ELEM_compare_eq || dtype_info[k->dt].cls == DT_FLOAT))
					continue;
				r = e->ins[b - e->nin].src[!s2];
				found = true;
			}
		}
		if (!found)
			break;
		q->nkey++;
	}
	q->nkey = 0;
	return NULL;
}

/* --- keys ---------------------------------------------------------------------------- */

static void to_unsigned32(enum dtype dt, bool down, int64_t n, const void *x, uint32_t *out)
{
	int bits = dtype_info[dt].bits, cls = dtype_info[dt].cls, es = dt_bytes(dt);
	int kind = cls == DT_FLOAT ? 2 : cls == DT_INT ? 1 : 0;
	uint32_t flip = !down ? 0 : es == 4 ? UINT32_MAX : (1u << 8 * es) - 1;
	if (es > 1 || cls == DT_PRED || (bits == 8 && cls != DT_FLOAT)) {
		kern_isa_get()->keys32(kind, es, cls == DT_PRED && down ? 1 : flip, n, x, out);
		return;
	}
	for (int64_t i = 0; i < n; i += KERN_STRIP) {
		float f[KERN_STRIP];
		uint8_t y[KERN_STRIP];
		int64_t m = MIN(n - i, KERN_STRIP);
		if (cls == DT_FLOAT) {       /* small floats: as their values, as sort has them */
			conv_any(dt, DT_f32, m, f, (const char *)x + i);
			kern_isa_get()->keys32(2, 4, down ? UINT32_MAX : 0, m, f, out + i);
			continue;
		}
		/* integers of fewer than eight bits: at the top of a byte */
		for (int64_t j = 0; j < m; j++)
			y[j] = (uint8_t)(((const uint8_t *)x)[i + j] << (8 - bits));
		kern_isa_get()->keys32(kind, 1, flip, m, y, out + i);
	}
}
/* n keys as unsigned integers in the order wanted. */
static void to_unsigned(enum dtype dt, bool down, int64_t n, const char *x, uint64_t *out)
{
	int bits = dtype_info[dt].bits, cls = dtype_info[dt].cls;
	uint64_t top = cls == DT_PRED ? 0 : (uint64_t)1 << (bits - 1), flip = down ? (bits == 64 ? UINT64_MAX : cls == DT_PRED ? 1 : ((uint64_t)1 << bits) - 1) : 0;
#define KEYS(T) for (int64_t i = 0; i < n; i++) { T t; memcpy(&t, x + i * (int64_t)sizeof t, sizeof t); uint64_t u = t; \
		if (cls == DT_FLOAT) u = u & top ? ~u & ((top << 1) - 1) : u | top; \
		else if (cls == DT_INT) u ^= top; \
		out[i] = u ^ flip; }
	switch (dt_bytes(dt)) {
	case 1: KEYS(uint8_t) break;
	case 2: KEYS(uint16_t) break;
	case 4: KEYS(uint32_t) break;
	default: KEYS(uint64_t) break;
	}
}

struct pair { uint64_t key; uint64_t idx; };

/* --- sorting words --------------------------------------------------------------------- */

static void insertion(uint64_t *p, int64_t n)
{
	for (int64_t i = 1; i < n; i++) {
		uint64_t v = p[i];
		int64_t j = i;
		for (; j && p[j - 1] > v; j--)
			p[j] = p[j - 1];
		p[j] = v;
	}
}
static void sift(uint64_t *p, int64_t i, int64_t n)
{
	for (int64_t c; (c = 2 * i + 1) < n; i = c) {
		c += c + 1 < n && p[c + 1] > p[c];
		if (p[i] >= p[c])
			return;
		uint64_t t = p[i];
		p[i] = p[c];
		p[c] = t;
	}
}
static void heap_sort(uint64_t *p, int64_t n)
{
	for (int64_t i = n / 2; i-- > 0;)
		sift(p, i, n);
	while (n-- > 1) {
		uint64_t t = p[0];
		p[0] = p[n];
		p[n] = t;
		sift(p, 0, n);
	}
}
static uint64_t median(uint64_t a, uint64_t b, uint64_t c)
{
	return a < b ? b < c ? b : a < c ? c : a : a < c ? a : b < c ? c : b;
}
/* Hoare's partition: p[0 .. i) <= p[i ..); both parts not empty. */
static int64_t partition(uint64_t *p, int64_t n)
{
	uint64_t v = median(p[0], p[n / 2], p[n - 1]);
	int64_t i = -1, j = n;
	for (;;) {
		while (p[++i] < v) {}
		while (p[--j] > v) {}
		if (i >= j)
			return j + 1 < n ? j + 1 : n - 1;
		uint64_t t = p[i];
		p[i] = p[j];
		p[j] = t;
	}
}
static void quick(uint64_t *p, int64_t n, int depth)
{
	while (n > 24) {
		if (!depth--) {
			heap_sort(p, n);
			return;
		}
		int64_t m = partition(p, n);
		if (m < n - m) {
			quick(p, m, depth);
			p += m;
			n -= m;
		} else {
			quick(p + m, n - m, depth);
			n = m;
		}
	}
	insertion(p, n);
}
/* The smallest k of p to the front, in any order. */
static void select_k(uint64_t *p, int64_t n, int64_t k)
{
	int depth = 80;
	while (n > 24 && depth--) {
		int64_t m = partition(p, n);
		if (k <= m) {
			n = m;
		} else {
			p += m;
			n -= m;
			k -= m;
		}
	}
	if (n > 24)
		heap_sort(p, n);
	else
		insertion(p, n);
}

/* Least significant digit, on the upper 32 bits of words, stable. */
static void radix32(uint64_t *p, uint64_t *t, int64_t n)
{
	uint32_t count[4][256];
	memset(count, 0, sizeof count);
	for (int64_t i = 0; i < n; i++) {
		uint32_t k = (uint32_t)(p[i] >> 32);
		count[0][k & 255]++;
		count[1][k >> 8 & 255]++;
		count[2][k >> 16 & 255]++;
		count[3][k >> 24]++;
	}
	uint64_t *a = p, *b = t;
	for (int d = 0; d < 4; d++) {
		uint32_t *c = count[d], sum = 0;
		int shift = 32 + 8 * d;
		if (c[a[0] >> shift & 255] == (uint32_t)n)
			continue;
		for (int i = 0; i < 256; i++) {
			uint32_t v = c[i];
			c[i] = sum;
			sum += v;
		}
		for (int64_t i = 0; i < n; i++)
			b[c[a[i] >> shift & 255]++] = a[i];
		uint64_t *s = a;
		a = b;
		b = s;
	}
	if (a != p)
		memcpy(p, a, sizeof *p * (size_t)n);
}

/* Stable, by the upper half: the lower half is not looked at. */
static void sort_words(uint64_t *p, uint64_t *t, int64_t n)
{
	if (n >= RADIX_MIN && n < UINT32_MAX) {
		radix32(p, t, n);
		return;
	}
	for (int64_t i = 1; i < n; i++) {
		uint64_t v = p[i];
		int64_t j = i;
		for (; j && p[j - 1] >> 32 > v >> 32; j--)
			p[j] = p[j - 1];
		p[j] = v;
	}
}

/* The same for (key, index) pairs of 64 bits each. */
static void sort_pairs(struct pair *p, struct pair *t, int64_t n)
{
	if (n < RADIX_MIN) {
		for (int64_t i = 1; i < n; i++) {
			struct pair v = p[i];
			int64_t j = i;
			for (; j && p[j - 1].key > v.key; j--)
				p[j] = p[j - 1];
			p[j] = v;
		}
		return;
	}
	uint32_t count[8][256];
	memset(count, 0, sizeof count);
	for (int64_t i = 0; i < n; i++)
		for (int d = 0; d < 8; d++)
			count[d][p[i].key >> (8 * d) & 255]++;
	struct pair *a = p, *b = t;
	for (int d = 0; d < 8; d++) {
		uint32_t *c = count[d], sum = 0;
		if (c[a[0].key >> (8 * d) & 255] == (uint32_t)n)
			continue;
		for (int i = 0; i < 256; i++) {
			uint32_t v = c[i];
			c[i] = sum;
			sum += v;
		}
		for (int64_t i = 0; i < n; i++)
			b[c[a[i].key >> (8 * d) & 255]++] = a[i];
		struct pair *s = a;
		a = b;
		b = s;
	}
	if (a != p)
		memcpy(p, a, sizeof *p * (size_t)n);
}

/* --- the kernel ------------------------------------------------------------------------- */

/* Bytes before operand op's row. */
static int64_t row_off(const struct prog_kern *k, const struct sort *q, int op, int64_t row)
{
	const struct prog_view *v = &k->v[op];
	int64_t off = 0;
	for (int d = q->rank; d-- > 0;) {
		if (d == q->dim)
			continue;
		off += row % v->dim[d] * v->stride[d];
		row /= v->dim[d];
	}
	return off * dt_bytes(v->dtype);
}

/* Keys of elements perm[0 .. n) (NULL: lo, lo + 1, ..) of a row. */
static void make_keys(const struct prog_kern *k, const struct sort *q, const struct key *key, const char *row, int64_t lo, int64_t n,
                      const uint32_t *perm, uint64_t *out, char *scratch)
{
	const struct prog_view *v = &k->v[key->op];
	int es = dt_bytes(v->dtype);
	int64_t st = v->stride[q->dim] * es;
	char *x = scratch, *plan = x + KERN_STRIP * 16;
	if (key->p)
		plan_start(key->p, plan);
	for (int64_t i = 0; i < n; i += KERN_STRIP) {
		int64_t m = MIN(n - i, KERN_STRIP);
		if (perm)
			for (int64_t j = 0; j < m; j++)
				memcpy(x + j * es, row + perm[i + j] * st, (size_t)es);
		else
			move_strided(es, m, x, es, row + (lo + i) * st, st);
		const void *res = x, *in = x;
		if (key->p)
			plan_run(key->p, m, &in, NULL, &res, plan);
		if (dtype_info[key->dt].bits > 32) {
			to_unsigned(key->dt, key->down, m, res, out + i);
			continue;
		}
		uint32_t k32[KERN_STRIP];
		to_unsigned32(key->dt, key->down, m, res, k32);
		for (int64_t j = 0; j < m; j++)
			out[i + j] = k32[j];
	}
}

/* out element i = in element perm[i], for all operands of a row; out may be in if spare has room for n elements. */
static void place(const struct prog_kern *k, const struct sort *q, char *const *ptr, int64_t row, int64_t lo, int64_t n, const uint32_t *perm, char *spare)
{
	for (int op = 0; op < q->nop; op++) {
		int es = dt_bytes(k->v[op].dtype);
		const char *in = view_at(k, ptr, op) + row_off(k, q, op, row);
		char *out = view_at(k, ptr, q->nop + op) + row_off(k, q, q->nop + op, row);
		int64_t is = k->v[op].stride[q->dim] * es, os = k->v[q->nop + op].stride[q->dim] * es, to = os;
		char *end = out + lo * os;
		bool over = in == out;
		out = over ? spare : end;
		os = over ? es : os;
#define PLACE(T) for (int64_t i = 0; i < n; i++) memcpy(out + i * os, in + (int64_t)perm[i] * is, sizeof(T))
		switch (es) {
		case 1: PLACE(uint8_t); break;
		case 2: PLACE(uint16_t); break;
		case 4: PLACE(uint32_t); break;
		case 8: PLACE(uint64_t); break;
		default: PLACE(struct pair); break;
		}
		if (over)
			move_strided(es, n, end, to, spare, es);
	}
}

/* One operand alone: words of the key and the element's own bits, so nothing is looked up afterwards. */
static void make_words(const struct prog_kern *k, const struct sort *q, const char *row, int64_t lo, int64_t n, uint64_t *out, char *scratch)
{
	int es = dt_bytes(k->v[0].dtype);
	int64_t st = k->v[0].stride[q->dim] * es;
	make_keys(k, q, &q->key[0], row, lo, n, NULL, out, scratch);
#define WORDS(T) for (int64_t i = 0; i < n; i++) { T t; memcpy(&t, row + (lo + i) * st, sizeof t); out[i] = out[i] << 32 | t; }
	if (es == 1)
		WORDS(uint8_t)
	else if (es == 2)
		WORDS(uint16_t)
	else
		WORDS(uint32_t)
}
static void place_words(const struct prog_kern *k, const struct sort *q, char *out, int64_t n, const uint64_t *w)
{
	int es = dt_bytes(k->v[1].dtype);
	int64_t st = k->v[1].stride[q->dim] * es;
	if (es == 4)
		for (int64_t i = 0; i < n; i++)
			memcpy(out + i * st, &w[i], 4);
	else
		for (int64_t i = 0; i < n; i++)
			memcpy(out + i * st, &w[i], (size_t)es);
}

/* One row by keys: perm gets the order. */
static void sort_row(const struct prog_kern *k, const struct sort *q, char *const *ptr, int64_t row, uint32_t *perm, uint64_t *w, char *scratch)
{
	int64_t n = q->n;
	for (int64_t i = 0; i < n; i++)
		perm[i] = (uint32_t)i;
	for (int j = q->nkey; j-- > 0;) {
		const struct key *key = &q->key[j];
		bool first = j == q->nkey - 1;
		const char *in = view_at(k, ptr, key->op) + row_off(k, q, key->op, row);
		if (dtype_info[key->dt].bits <= 32) {
			uint64_t *p = w, *t = w + n;
			make_keys(k, q, key, in, 0, n, first ? NULL : perm, p, scratch);
			for (int64_t i = 0; i < n; i++)
				p[i] = p[i] << 32 | perm[i];
			sort_words(p, t, n);
			for (int64_t i = 0; i < n; i++)
				perm[i] = (uint32_t)p[i];
		} else {
			struct pair *p = (struct pair *)(void *)w, *t = p + n;
			uint64_t *keys = (uint64_t *)(void *)t;
			make_keys(k, q, key, in, 0, n, first ? NULL : perm, keys, scratch);
			for (int64_t i = 0; i < n; i++)
				p[i] = (struct pair){ keys[i], perm[i] };
			sort_pairs(p, t, n);
			for (int64_t i = 0; i < n; i++)
				perm[i] = (uint32_t)p[i].idx;
		}
	}
}

struct cmp { const struct prog_kern *k; const struct sort *q; const char **row; char *plan; const void **in; };
static bool before(const struct cmp *c, uint32_t a, uint32_t b)
{
	for (int op = 0; op < c->q->nop; op++) {
		int64_t st = c->k->v[op].stride[c->q->dim] * dt_bytes(c->k->v[op].dtype);
		c->in[2 * op] = c->row[op] + a * st;
		c->in[2 * op + 1] = c->row[op] + b * st;
	}
	const void *res;
	plan_run(c->q->p, 1, c->in, NULL, &res, c->plan);
	return *(const uint8_t *)res != 0;
}
static void merge_sort(const struct cmp *c, uint32_t *p, uint32_t *t, int64_t n)
{
	uint32_t *a = p, *b = t;
	for (int64_t s = 0; s < n; s += 8)
		for (int64_t i = s + 1; i < MIN(s + 8, n); i++) {
			uint32_t v = a[i];
			int64_t j = i;
			for (; j > s && before(c, v, a[j - 1]); j--)
				a[j] = a[j - 1];
			a[j] = v;
		}
	for (int64_t w = 8; w < n; w *= 2) {
		for (int64_t s = 0; s < n; s += 2 * w) {
			int64_t m = MIN(s + w, n), e = MIN(s + 2 * w, n), i = s, j = m, o = s;
			while (i < m && j < e)
				b[o++] = before(c, a[j], a[i]) ? a[j++] : a[i++];
			while (i < m)
				b[o++] = a[i++];
			while (j < e)
				b[o++] = a[j++];
		}
		uint32_t *s = a;
		a = b;
		b = s;
	}
	if (a != p)
		memcpy(p, a, sizeof *p * (size_t)n);
}

/* What a row of n takes: words, and indices, per element. */
struct space { int words, perms; };
static struct space space_of(const struct sort *q)
{
	return !q->nkey ? (struct space){ 0, 2 } : q->values ? (struct space){ 2, 0 } : (struct space){ q->wide ? 4 : 2, 1 };
}

static void sort_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                     int64_t t0, int64_t t1, void *scratch_)
{
	const struct sort *q = s->priv;
	int64_t n = q->n;
	struct space of = space_of(q);
	uint64_t *w = scratch_;
	uint32_t *perm = (uint32_t *)(w + of.words * n);
	char *scratch = (char *)(w + of.words * n + (of.perms * n + 1) / 2);
	for (int64_t row = t0 * q->per_tile; row < MIN(t1 * q->per_tile, q->rows); row++) {
		if (q->values) {
			make_words(k, q, view_at(k, ptr, 0) + row_off(k, q, 0, row), 0, n, w, scratch);
			sort_words(w, w + n, n);
			place_words(k, q, view_at(k, ptr, 1) + row_off(k, q, 1, row), n, w);
			continue;
		}
		if (q->nkey) {
			sort_row(k, q, ptr, row, perm, w, scratch);
		} else {
			const char *rows[MAX_OPS];
			const void *in[2 * MAX_OPS];
			for (int op = 0; op < q->nop; op++)
				rows[op] = view_at(k, ptr, op) + row_off(k, q, op, row);
			plan_start(q->p, scratch);
			struct cmp c = { k, q, rows, scratch, in };
			for (int64_t i = 0; i < n; i++)
				perm[i] = (uint32_t)i;
			merge_sort(&c, perm, perm + n, n);
		}
		place(k, q, ptr, row, 0, n, perm, q->nkey ? (char *)w : (char *)(perm + n));        /* of four bytes an element at most */
	}
}

/* --- a long row, over tiles --------------------------------------------------------------
 * Rows come one after the other, and of a row its digits, for each of them a phase that counts and one that moves. */

/* My first place for each value of a digit: behind all smaller ones, and the same in tiles before mine. */
static void first_places(uint32_t (*count)[256], int64_t t, uint32_t *at)
{
	uint32_t sum = 0;
	for (int v = 0; v < 256; v++) {
		uint32_t less = 0, all = 0;
		for (int64_t u = 0; u < RUNS; u++) {
			less += u < t ? count[u][v] : 0;
			all += count[u][v];
		}
		at[v] = sum + less;
		sum += all;
	}
}

/* A digit of each of n <= KERN_STRIP elements that lie side by side. */
static void digits_of(const struct sort *q, int64_t n, const void *x, int digit, uint8_t *out, char *scratch)
{
	const struct key *key = &q->key[0];
	const void *res = x;
	uint32_t k32[KERN_STRIP];
	uint64_t k64[KERN_STRIP];
	if (key->p) {
		plan_start(key->p, scratch);
		plan_run(key->p, n, &x, NULL, &res, scratch);
	}
	if (q->wide) {
		to_unsigned(key->dt, key->down, n, res, k64);
		for (int64_t i = 0; i < n; i++)
			out[i] = (uint8_t)(k64[i] >> 8 * digit);
		return;
	}
	to_unsigned32(key->dt, key->down, n, res, k32);
	for (int64_t i = 0; i < n; i++)
		out[i] = (uint8_t)(k32[i] >> 8 * digit);
}

/* Of elements that move, digit d is read from and written to places so that the last one is written to the result: shared is as much memory,
 * twice if the result's elements do not lie side by side, then the counts of each tile. */
static void move_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr, int64_t t0, int64_t t1, void *scratch)
{
	const struct sort *q = s->priv;
	int es = dt_bytes(k->v[0].dtype), digit = phase % q->phases / 2;
	int64_t n = q->n, row = phase / q->phases, is = k->v[0].stride[q->dim] * es, os = k->v[1].stride[q->dim] * es;
	char *in = view_at(k, ptr, 0) + row_off(k, q, 0, row), *out = view_at(k, ptr, 1) + row_off(k, q, 1, row), *other = ptr[2];
	char *beside = os == es ? out : other + n * es;
	_Alignas(64) char x[KERN_STRIP * 8];
	uint32_t (*count)[256] = (uint32_t (*)[256])(void *)(ptr[2] + s->shared - RUNS * sizeof *count), at[256];
	bool last = digit == q->digits - 1, even = (q->digits - digit) % 2 == 0;      /* as many are left */
	const char *from = !digit ? in : even ? beside : other;
	char *to = last ? out : even ? other : beside;
	int64_t fs = digit ? es : is, ts = last ? os : es;
	for (int64_t t = t0; t < t1; t++) {
		int64_t hi = MIN((t + 1) * q->run, n);
		uint8_t d[KERN_STRIP];
		if (phase & 1)
			first_places(count, t, at);
		else
			memset(count[t], 0, sizeof count[t]);
		for (int64_t i = t * q->run, m; i < hi; i += m) {
			const char *p = from + i * fs;
			m = MIN(hi - i, KERN_STRIP);
			if (fs != es) {
				move_strided(es, m, x, es, p, fs);
				p = x;
			}
			digits_of(q, m, p, digit, d, scratch);
			if (!(phase & 1)) {
				for (int64_t j = 0; j < m; j++)
					count[t][d[j]]++;
				continue;
			}
#define MOVE(T) for (int64_t j = 0; j < m; j++) memcpy(to + at[d[j]]++ * ts, p + j * (int64_t)sizeof(T), sizeof(T))
			switch (es) {
			case 1: MOVE(uint8_t); break;
			case 2: MOVE(uint16_t); break;
			case 4: MOVE(uint32_t); break;
			default: MOVE(uint64_t); break;
			}
		}
	}
}

/* Words of a key of at most 32 bits and an index.  shared: two arrays of words, then the counts of each tile. */
static void split_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                      int64_t t0, int64_t t1, void *scratch)
{
	const struct sort *q = s->priv;
	int64_t n = q->n, run = q->run, row = phase / q->phases;
	uint64_t *a = (uint64_t *)(void *)ptr[2 * q->nop], *b = a + n;
	uint32_t (*count)[256] = (uint32_t (*)[256])(void *)(b + n), at[256];
	phase %= q->phases;
	int digit = phase / 2, shift = 32 + 8 * digit;
	const uint64_t *from = digit & 1 ? b : a;
	uint64_t *to = digit & 1 ? a : b;
	for (int64_t t = t0; t < t1; t++) {
		int64_t lo = t * run, hi = MIN(lo + run, n);
		if (phase == 0 && lo < hi) {
			make_keys(k, q, &q->key[0], view_at(k, ptr, q->key[0].op) + row_off(k, q, q->key[0].op, row), lo, hi - lo, NULL, a + lo, scratch);
			for (int64_t i = lo; i < hi; i++)
				a[i] = a[i] << 32 | (uint64_t)i;
		}
		if (digit == q->digits) {
			uint32_t *perm = scratch;
			for (int64_t i = lo; i < hi; i += 4096) {
				int64_t m = MIN(4096, hi - i);
				for (int64_t j = 0; j < m; j++)
					perm[j] = (uint32_t)from[i + j];
				place(k, q, ptr, row, i, m, perm, NULL);
			}
			continue;
		}
		if (!(phase & 1)) {
			memset(count[t], 0, sizeof count[t]);
			for (int64_t i = lo; i < hi; i++)
				count[t][from[i] >> shift & 255]++;
			continue;
		}
		first_places(count, t, at);
		for (int64_t i = lo; i < hi; i++)
			to[at[from[i] >> shift & 255]++] = from[i];
	}
}

struct err *kern_make_sort(const struct prog_kern *k, struct kern_state *s)
{
	struct sort *q = ARENA_NEW(&s->a, struct sort, 1);
	q->nop = k->nin;
	q->rank = k->v[0].rank;
	q->dim = (int)k->attr[0];
	if (q->nop > MAX_OPS)
		return ERR(UNIMPLEMENTED, "sort of %d operands", q->nop);
	if (!k->expr || k->expr->nin != 2 * q->nop || k->expr->nout != 1)
		return ERR(INVALID, "sort of %d operands without a comparator for them", q->nop);
	if (q->dim < 0 || q->dim >= q->rank)
		return ERR(INVALID, "sort along dimension %d of %d", q->dim, q->rank);
	q->n = k->v[0].dim[q->dim];
	if (q->n > (int64_t)UINT32_MAX / 2)
		return ERR(UNIMPLEMENTED, "sort of %lld elements, more than %lld", (long long)q->n, (long long)UINT32_MAX / 2);
	TRY(recognise(&s->a, q, k->expr));
	size_t plan = 0;
	for (int i = 0; i < q->nkey; i++) {
		plan = MAX(plan, q->key[i].p ? q->key[i].p->scratch : 0);
		q->wide |= dtype_info[q->key[i].dt].bits > 32;
	}
	if (!q->nkey) {
		TRY(plan_make(&s->a, k->expr, &q->p));
		plan = q->p->scratch;
	}
	q->values = q->nop == 1 && q->nkey == 1 && !q->wide && dt_bytes(k->v[0].dtype) <= 4;
	int64_t count = view_count(&k->v[0]);
	q->rows = q->n && count ? count / q->n : 0;
	q->per_tile = MAX(1, 8192 / MAX(1, q->n));
	s->tiles = (q->rows + q->per_tile - 1) / q->per_tile;
	struct space of = space_of(q);
	s->scratch = (size_t)(q->n + 1) * (size_t)(8 * of.words + 4 * of.perms) + 64 + KERN_STRIP * 16 + plan;
	s->run = sort_run;
	s->priv = q;
	if (q->nkey != 1 || q->n < LONG || !q->rows)
		return NULL;
	int es = dt_bytes(k->v[0].dtype);
	q->move = q->nop == 1 && es <= 8;
	if (q->wide && !q->move)
		return NULL;
	q->run = (q->n + RUNS - 1) / RUNS;
	q->digits = (dtype_info[q->key[0].dt].bits + 7) / 8;
	q->digits += q->digits % 2 && prog_sort_over(q->nop, (enum dtype)k->v[0].dtype);      /* the first one is not written to the result */
	q->phases = 2 * q->digits + !q->move;
	s->tiles = RUNS;
	s->phases = (int)q->rows * q->phases;
	s->shared = (size_t)q->n * (q->move ? (k->v[1].stride[q->dim] == 1 ? 1 : 2) * (size_t)es : 16);
	s->shared = ((s->shared + 63) & ~(size_t)63) + RUNS * 256 * 4;
	s->scratch = KERN_STRIP * 16 + plan + 4096 * 4 + 64;
	s->run = q->move ? move_run : split_run;
	return NULL;
}

/* --- top_k ------------------------------------------------------------------------------ */

enum { FEW = 16 };         /* so many are kept in order */
struct topk { int64_t n, k, rows, per_tile; enum dtype dt; bool wide; };

/* m more keys, numbered from `at`, among the k least, `have` so far, of w, which is in order.  How many there are. */
static int64_t keep_least(uint64_t *w, int64_t have, int64_t k, const uint32_t *key, int64_t m, int64_t at)
{
	uint64_t limit = have == k ? w[k - 1] : UINT64_MAX;

	for (int64_t j = 0; j < m; j++) {
		uint64_t v = (uint64_t)key[j] << 32 | (uint64_t)(at + j);
		if (v >= limit)
			continue;
		int64_t i = have < k ? have++ : k - 1;
		for (; i && w[i - 1] > v; i--)
			w[i] = w[i - 1];
		w[i] = v;
		if (have == k)
			limit = w[k - 1];
	}
	return have;
}

static void topk_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                     int64_t t0, int64_t t1, void *scratch)
{
	const struct topk *q = s->priv;
	const struct prog_view *in = &k->v[0], *val = &k->v[1], *idx = &k->v[2];
	int r = in->rank, es = dt_bytes(in->dtype);
	int64_t n = q->n, ix[LOOP_RANK];
	uint64_t *keys = scratch, *w = keys + KERN_STRIP;
	char *x = (char *)(w + (q->wide ? 4 : 1) * n + 64);
	for (int64_t row = t0 * q->per_tile; row < MIN(t1 * q->per_tile, q->rows); row++) {
		index_of(r - 1, in->dim, row, ix);
		const char *src = view_at(k, ptr, 0) + offset_of(r - 1, in->stride, ix) * es;
		int64_t st = in->stride[r - 1] * es, have = 0;
		struct pair *p = (struct pair *)(void *)w;
		/* few wanted: keep about 4 k candidates, and only those below the worst of the best k */
		uint64_t limit = UINT64_MAX;
		int64_t room = !q->wide && q->k * 4 + KERN_STRIP < n ? q->k * 4 + KERN_STRIP : n;
		for (int64_t i = 0; i < n; i += KERN_STRIP) {
			int64_t m = MIN(n - i, KERN_STRIP);
			const char *from = src + i * st;
			if (st != es) {
				move_strided(es, m, x, es, from, st);
				from = x;
			}
			if (q->wide) {
				to_unsigned(q->dt, true, m, from, keys);
				for (int64_t j = 0; j < m; j++)
					p[i + j] = (struct pair){ keys[j], (uint64_t)(i + j) };
				continue;
			}
			uint32_t *k32 = (uint32_t *)(void *)keys, best = UINT32_MAX;
			to_unsigned32(q->dt, true, m, from, k32);
			for (int64_t j = 0; j < m; j++)
				best = MIN(best, k32[j]);
			if (best > limit >> 32)
				continue;
			if (q->k <= FEW) {
				have = keep_least(w, have, q->k, k32, m, i);
				limit = have == q->k ? w[have - 1] : UINT64_MAX;
				continue;
			}
			if (room < n && have + m > room) {
				select_k(w, have, q->k);
				have = q->k;
				limit = 0;
				for (int64_t j = 0; j < have; j++)
					limit = MAX(limit, w[j]);
			}
			for (int64_t j = 0; j < m; j++) {
				uint64_t v = (uint64_t)k32[j] << 32 | (uint64_t)(i + j);
				w[have] = v;
				have += v < limit;
			}
		}
		if (q->wide) {
			sort_pairs(p, p + n, n);
		} else if (q->k > FEW) {
			if (have > q->k)
				select_k(w, have, q->k);
			quick(w, q->k, 64);
		}
		char *vo = view_at(k, ptr, 1) + offset_of(r - 1, val->stride, ix) * es;
		char *io = view_at(k, ptr, 2) + offset_of(r - 1, idx->stride, ix) * dt_bytes(idx->dtype);
		for (int64_t j = 0; j < q->k; j++) {
			int64_t at = q->wide ? (int64_t)p[j].idx : (int64_t)(uint32_t)w[j];
			memcpy(vo + j * val->stride[r - 1] * es, src + at * st, (size_t)es);
			if (dt_bytes(idx->dtype) == 8) {
				memcpy(io + j * idx->stride[r - 1] * 8, &at, 8);
			} else {
				int32_t a32 = (int32_t)at;
				memcpy(io + j * idx->stride[r - 1] * 4, &a32, 4);
			}
		}
	}
}

struct err *kern_make_top_k(const struct prog_kern *k, struct kern_state *s)
{
	struct topk *q = ARENA_NEW(&s->a, struct topk, 1);
	const struct prog_view *in = &k->v[0];
	q->dt = in->dtype;
	if (in->rank < 1 || dtype_info[q->dt].cls == DT_COMPLEX || dtype_info[q->dt].cls == DT_NONE || dt_bytes(k->v[2].dtype) < 4)
		return ERR(UNIMPLEMENTED, "top_k of '%s'", dtype_info[q->dt].name);
	q->n = in->dim[in->rank - 1];
	q->k = k->attr[0];
	q->wide = dtype_info[q->dt].bits > 32;
	if (q->k < 0 || q->k > q->n)
		return ERR(INVALID, "top_k of %lld among %lld", (long long)q->k, (long long)q->n);
	if (q->n > (int64_t)UINT32_MAX / 2)
		return ERR(UNIMPLEMENTED, "top_k among %lld elements, more than %lld", (long long)q->n, (long long)UINT32_MAX / 2);
	int64_t count = view_count(in);
	q->rows = q->n && q->k ? count / q->n : 0;
	q->per_tile = MAX(1, 8192 / MAX(1, q->n));
	s->tiles = (q->rows + q->per_tile - 1) / q->per_tile;
	s->scratch = (size_t)(KERN_STRIP + (q->wide ? 4 : 1) * q->n + KERN_STRIP + 64) * 8 + KERN_STRIP * 16;
	s->priv = q;
	s->run = topk_run;
	return NULL;
}
