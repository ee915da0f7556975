/* The values of a schedule's nodes: each is emitted once per scope, at the outermost open loop whose variables it
 * needs, as a vector if it depends on the lane and as a scalar if it does not. */
#include "emit.h"

#include <stdlib.h>

/* --- linear forms ------------------------------------------------------- */

static bool in_lane(const struct em *e, uint16_t mask)
{
	return e->lane >= 0 && e->width > 1 && (mask >> e->lane & 1 || (e->low >= 0 && mask >> e->low & 1));
}

static int scope_of(const struct em *e, uint16_t mask)
{
	for (int s = e->nscope - 1; s > 0; s--)
		if ((unsigned)e->scope[s].var & mask)
			return s;
	return 0;
}

static int node_scope(const struct em *e, const struct gen_node *n)
{
	int s = scope_of(e, n->mask);
	return n->level ? MAX(s, e->body_scope) : s;
}

/* Is n the same in all turns of the lane loop, each of its vectors what the period has there? */
static bool is_pattern(const struct em *e, const struct gen_node *n)
{
	return in_lane(e, n->mask) && !(n->mask >> e->lane & 1);
}

/* 0, 1, 2, .. per lane; lanes past the end of a partial vector repeat the last one, so that whatever is
 * indexed by them exists. */
static LV iota(struct em *e)
{
	if (e->iota)
		return e->iota;
	LV v[256];
	for (int i = 0; i < e->width; i++)
		v[i] = LLVMConstInt(e->i64, (unsigned)i, false);
	return LLVMConstVector(v, (unsigned)e->width);
}

enum { KEY_NODE = 1, KEY_SPLAT, KEY_SUM, KEY_PTR };
static LV *memo(struct em *e, int scope, int kind, uint32_t a, uint32_t b)
{
	uint32_t key[4] = { (uint32_t)kind, a, b, (uint32_t)e->width };
	uint64_t *p = map_put(&e->scope[scope].memo, key, sizeof key);
	return (LV *)p;
}

static LV memo_get(struct em *e, int scope, int kind, uint32_t a, uint32_t b)
{
	uint32_t key[4] = { (uint32_t)kind, a, b, (uint32_t)e->width };
	uint64_t *p = map_get(&e->scope[scope].memo, key, sizeof key);
	return p ? (LV)(uintptr_t)*p : NULL;
}

static void memo_set(struct em *e, int scope, int kind, uint32_t a, uint32_t b, LV v)
{
	*(uint64_t *)memo(e, scope, kind, a, b) = (uint64_t)(uintptr_t)v;
}

/* What scope s adds to the scalar part of l, in scope s; NULL: nothing. */
static LV lin_part(struct em *e, const struct gen_lin *l, int s)
{
	LV sum = NULL;
	for (int v = 0; v < GEN_NV; v++) {
		if (!l->k[v] || v == e->low || scope_of(e, (uint16_t)(1u << v)) != s)
			continue;
		int old = em_enter(e, s);
		LV t = e->var[v];
		if (l->k[v] != 1)
			t = LLVMBuildMul(e->b, t, em_ki(e->i64, l->k[v]), "");
		sum = sum ? LLVMBuildAdd(e->b, sum, t, "") : t;
		em_enter(e, old);
	}
	for (int j = 0; j < GEN_NT; j++) {
		if (!l->tk[j])
			continue;
		const struct gen_node *n = &e->s->node[l->tn[j]];
		if (in_lane(e, n->mask) || node_scope(e, n) != s)
			continue;
		LV t = em_get(e, l->tn[j]);
		int old = em_enter(e, s);
		if (l->tk[j] != 1)
			t = LLVMBuildMul(e->b, t, em_ki(e->i64, l->tk[j]), "");
		sum = sum ? LLVMBuildAdd(e->b, sum, t, "") : t;
		em_enter(e, old);
	}
	return sum;
}

/* The scalar part of a form: its value in lane 0 without vector terms. */
static LV lin_scalar(struct em *e, uint32_t id)
{
	const struct gen_lin *l = &e->s->lin[id];
	LV sum = em_ki(e->i64, l->c);
	for (int s = 0; s < e->nscope; s++) {
		LV have = memo_get(e, s, KEY_SUM, id, 0);
		if (have) {
			sum = have;
			continue;
		}
		LV part = lin_part(e, l, s);
		if (!part)
			continue;
		int old = em_enter(e, s);
		sum = LLVMBuildAdd(e->b, sum, part, "");
		em_enter(e, old);
		memo_set(e, s, KEY_SUM, id, 0, sum);
	}
	return sum;
}

/* The same as an address in buffer buf. */
LV em_lin_ptr(struct em *e, int buf, uint32_t id)
{
	const struct gen_lin *l = &e->s->lin[id];
	LT t = em_mem(e, e->s->buf[buf].dtype);
	LV p = e->bufp[buf];
	for (int s = 0; s < e->nscope; s++) {
		LV have = memo_get(e, s, KEY_PTR, id, (uint32_t)buf);
		if (have) {
			p = have;
			continue;
		}
		LV part = lin_part(e, l, s);
		if (!part && (s || !l->c))
			continue;
		int old = em_enter(e, s);
		if (s == 0 && l->c)
			part = part ? LLVMBuildAdd(e->b, part, em_ki(e->i64, l->c), "") : em_ki(e->i64, l->c);
		p = em_gep(e, t, p, part);
		em_enter(e, old);
		memo_set(e, s, KEY_PTR, id, (uint32_t)buf, p);
	}
	return p;
}

/* Where lane i of vector phase of a turn lies from the scalar part of l, as far as that is known. */
static int64_t lane_at(const struct em *e, const struct gen_lin *l, int phase, int i)
{
	if (e->low < 0)
		return l->k[e->lane] * i;
	int64_t at = (int64_t)phase * e->width + i, period = e->s->var[e->low].ext;
	return l->k[e->lane] * (at / period) + l->k[e->low] * (at % period);
}

/* The same of all lanes. */
static LV lanes_at(struct em *e, const struct gen_lin *l)
{
	if (e->low < 0)
		return LLVMBuildMul(e->b, iota(e), em_ki(em_vec(e->i64, e->width), l->k[e->lane]), "");
	LV v[256];
	for (int i = 0; i < e->width; i++)
		v[i] = em_ki(e->i64, lane_at(e, l, e->phase, i));
	LV all = LLVMConstVector(v, (unsigned)e->width);
	if (!e->rem)
		return all;
	LV last = LLVMBuildExtractElement(e->b, all, LLVMBuildSub(e->b, e->rem, em_ki(e->i64, 1), ""), "");
	return em_sel(e, e->mask, all, em_splat(e, last, e->width));
}

/* The lanes' offsets from the scalar part (i64 vector); NULL: they are lane_at, and all of them 0 where *known is not set. */
static LV lin_lanes(struct em *e, const struct gen_lin *l, bool *known)
{
	LV sum = NULL;
	*known = e->lane >= 0 && e->width > 1 && (l->k[e->lane] || (e->low >= 0 && l->k[e->low]));
	for (int j = 0; j < GEN_NT; j++) {
		if (!l->tk[j] || !in_lane(e, e->s->node[l->tn[j]].mask))
			continue;
		LV t = em_get(e, l->tn[j]);
		if (l->tk[j] != 1)
			t = LLVMBuildMul(e->b, t, em_ki(LLVMTypeOf(t), l->tk[j]), "");
		sum = sum ? LLVMBuildAdd(e->b, sum, t, "") : t;
	}
	if (sum && *known)
		sum = LLVMBuildAdd(e->b, sum, lanes_at(e, l), "");
	return sum;
}

/* Value of a form as i64 (vector if it varies over the lanes). */
static LV lin_value(struct em *e, uint32_t id)
{
	bool known;
	LV v = lin_lanes(e, &e->s->lin[id], &known), s = lin_scalar(e, id);
	if (!v && !known)
		return s;
	if (!v)
		v = lanes_at(e, &e->s->lin[id]);
	return LLVMBuildAdd(e->b, v, em_splat(e, s, e->width), "");
}

/* --- memory ------------------------------------------------------------- */

static LV all_true(struct em *e) { return em_ki(em_vec(e->i1, e->width), 1); }

static LV gather(struct em *e, LT t, LV p, LV off)
{
	unsigned size = LLVMGetTypeKind(t) == LLVMIntegerTypeKind ? LLVMGetIntTypeWidth(t) / 8 : LLVMGetTypeKind(t) == LLVMDoubleTypeKind ? 8 : 4;
	LT vt = em_vec(t, e->width);
	if (e->t->gather_from && (int)size >= e->t->gather_from) {
		LT pt = em_vec(e->ptr, e->width), over[2] = { vt, pt };
		unsigned id = LLVMLookupIntrinsicID("llvm.masked.gather", 18);
		LV f = LLVMGetIntrinsicDeclaration(e->m, id, over, 2);
		LT ft = LLVMIntrinsicGetType(e->c, id, over, 2);
		LV a[4] = { em_gep(e, t, p, off), LLVMConstInt(e->i32, size, false), all_true(e), LLVMGetPoison(vt) };
		return LLVMBuildCall2(e->b, ft, f, a, 4, "");
	}
	LV out = LLVMGetPoison(vt);
	for (int i = 0; i < e->width; i++) {
		LV li = LLVMConstInt(e->i32, (unsigned)i, false), o = LLVMBuildExtractElement(e->b, off, li, "");
		LV x = LLVMBuildLoad2(e->b, t, em_gep(e, t, p, o), "");
		LLVMSetAlignment(x, size);
		out = LLVMBuildInsertElement(e->b, out, x, li, "");
	}
	return out;
}

static LV step_to(struct em *e, LT t, LV p, int64_t off) { return off ? em_gep(e, t, p, em_ki(e->i64, off)) : p; }

static LV vload(struct em *e, LT t, unsigned size, LV p, int64_t off)
{
	LV x = LLVMBuildLoad2(e->b, em_vec(t, e->width), step_to(e, t, p, off), "");
	LLVMSetAlignment(x, size);
	return x;
}

/* A full vector of bf16 as f32, even elements before odd ones: both are in the same words, where widening would take a shuffle for each register. */
static LV halves(struct em *e, LV p)
{
	int w = e->width, idx[256];
	LV u = LLVMBuildLoad2(e->b, em_vec(e->i32, w / 2), p, "");
	LLVMSetAlignment(u, 2);
	LV even = LLVMBuildShl(e->b, u, em_ki(LLVMTypeOf(u), 16), ""), odd = LLVMBuildAnd(e->b, u, em_ki(LLVMTypeOf(u), (int32_t)0xffff0000), "");
	for (int i = 0; i < w; i++)
		idx[i] = i;
	return LLVMBuildBitCast(e->b, em_shuffle(e, even, odd, idx, w), em_vec(e->f32, w), "");
}

/* Every k-th element from p: k loads that touch nothing past the last one, merged. */
static LV strided(struct em *e, LT t, unsigned size, LV p, int k)
{
	int w = e->width, idx[256];
	LV out = NULL;
	for (int j = 0; j < k; j++) {
		int64_t at = MIN((int64_t)w * j, (int64_t)(w - 1) * k + 1 - w);
		bool any = false;
		for (int l = 0; l < w; l++) {
			int64_t pos = (int64_t)l * k - at;
			bool mine = (int64_t)l * k / w == j;
			any |= mine;
			idx[l] = mine ? (int)pos + (out ? w : 0) : out ? l : -1;
		}
		if (!any)
			continue;
		LV x = vload(e, t, size, p, at);
		out = em_shuffle(e, out ? out : x, out ? x : NULL, idx, w);
	}
	return out;
}

/* The elements of a full vector that lie as lane_at says, if few loads that touch nothing but what is between the first and the last
 * element of a turn have them; else NULL. */
static LV patterned(struct em *e, LT t, unsigned size, LV p, const struct gen_lin *l)
{
	int w = e->width, idx[256], phases = gen_lane_turn(e->s, w) * (int)e->s->var[e->low].ext / w;
	int64_t lo = INT64_MAX, hi = INT64_MIN, first = INT64_MAX, last = INT64_MIN;
	for (int f = 0; f < phases; f++)
		for (int i = 0; i < w; i++) {
			int64_t at = lane_at(e, l, f, i);
			lo = MIN(lo, at);
			hi = MAX(hi, at);
			if (f == e->phase) {
				first = MIN(first, at);
				last = MAX(last, at);
			}
		}
	if (last - first >= (int64_t)GEN_SOURCES * w)
		return NULL;
	LV out = NULL;
	int64_t n = MIN(hi - lo + 1, w);
	for (int64_t from = first; from <= last; from += n) {
		int64_t at = MIN(from, hi + 1 - n);
		bool any = false;
		for (int i = 0; i < w; i++) {
			int64_t pos = lane_at(e, l, e->phase, i);
			bool mine = pos >= from && pos < from + n;
			any |= mine;
			idx[i] = mine ? (int)(pos - at) + (out ? w : 0) : out ? i : -1;
		}
		if (!any)
			continue;
		LV x = LLVMBuildLoad2(e->b, em_vec(t, (int)n), step_to(e, t, p, at), "");
		LLVMSetAlignment(x, size);
		out = em_shuffle(e, out ? out : x, out ? x : NULL, idx, w);
	}
	return out;
}

static LV masked_load(struct em *e, LT t, unsigned size, LV p)
{
	LT vt = em_vec(t, e->width), over[2] = { vt, e->ptr };
	unsigned id = LLVMLookupIntrinsicID("llvm.masked.load", 16);
	LV f = LLVMGetIntrinsicDeclaration(e->m, id, over, 2);
	LT ft = LLVMIntrinsicGetType(e->c, id, over, 2);
	LV a[4] = { p, LLVMConstInt(e->i32, size, false), e->mask, LLVMConstNull(vt) };
	return LLVMBuildCall2(e->b, ft, f, a, 4, "");
}

static void masked_store(struct em *e, LV x, unsigned size, LV p, LV mask)
{
	LT over[2] = { LLVMTypeOf(x), e->ptr };
	unsigned id = LLVMLookupIntrinsicID("llvm.masked.store", 17);
	LV f = LLVMGetIntrinsicDeclaration(e->m, id, over, 2);
	LV a[4] = { x, p, LLVMConstInt(e->i32, size, false), mask };
	LLVMBuildCall2(e->b, LLVMIntrinsicGetType(e->c, id, over, 2), f, a, 4, "");
}

/* Ask for the cache lines of a vector that lies off bytes from p. */
static void fetch(struct em *e, LV p, int64_t off, unsigned size)
{
	LT over = e->ptr;
	unsigned id = LLVMLookupIntrinsicID("llvm.prefetch", 13);
	LV f = LLVMGetIntrinsicDeclaration(e->m, id, &over, 1);
	LT ft = LLVMIntrinsicGetType(e->c, id, &over, 1);
	for (unsigned line = 0; line < e->width * size; line += (unsigned)e->t->line) {
		LV a[4] = { em_gep(e, e->i8, p, em_ki(e->i64, off + line)), em_ki(e->i32, 0), em_ki(e->i32, 3), em_ki(e->i32, 1) };
		LLVMBuildCall2(e->b, ft, f, a, 4, "");
	}
}

/* Is n all that is read along the lane, and does each turn of the loops, the lane's inmost, go on where the last one ended? */
static bool is_stream(const struct em *e, const struct gen_node *n)
{
	const struct gen_sched *s = e->s;
	const struct gen_lin *l = &s->lin[n->lin];
	int64_t next = 1;
	int v[2 * GEN_NV], k = 0;
	for (uint32_t i = 1; i < s->nnode; i++)
		if (s->node[i].kind == GN_LOAD && s->node[i].mask >> e->lane & 1 && &s->node[i] != n)
			return false;
	for (int j = 0; j < GEN_NT; j++)
		if (l->tk[j])
			return false;
	v[k++] = e->lane;
	for (int i = s->nvar - 1; e->nest && i >= 0; i--)
		if (e->nest->vars >> i & 1 && i != e->lane)
			v[k++] = i;
	for (int i = s->norder - 1; i >= 0; i--)
		if (s->order[i] != e->lane)
			v[k++] = s->order[i];
	for (int i = 0; i < k; next *= s->var[v[i++]].ext)
		if (l->k[v[i]] != next)
			return false;
	return true;
}

/* Walking down columns crosses a page a turn, which the hardware does not foresee; nor does it go on by itself from page to page. */
static void fetch_ahead(struct em *e, const struct gen_node *n, LV p, unsigned size)
{
	const struct gen_sched *s = e->s;
	if (s->down >= 0)
		return;
	if (e->t->stream && s->bytes >= e->t->stream_from && e->low < 0 && is_stream(e, n)) {
		fetch(e, p, e->t->stream, size);
		return;
	}
	if (s->lane < 0 || !e->nest || !e->nest->vars)
		return;
	int v = s->nvar - 1;
	while (v > 0 && !(e->nest->vars >> v & 1 && e->nest->hi[v] - e->nest->lo[v] > 1))
		v--;
	int64_t step = s->lin[n->lin].k[v] * size;
	if (e->t->ahead && e->nest->vars >> v & 1 && llabs(step) >= e->t->ahead_from)
		fetch(e, p, e->t->ahead * step, size);
}

static LV load(struct em *e, const struct gen_node *n)
{
	int buf = (int)n->a[0];
	LT t = em_mem(e, n->dtype);
	unsigned size = dtype_info[n->dtype].bytes;
	const struct gen_lin *l = &e->s->lin[n->lin];
	for (int i = 0; i < e->ntr; i++)
		if (&e->s->node[e->tr[i].node] == n) {
			LV row = LLVMBuildSub(e->b, e->var[e->s->across], e->tr_first, "");
			row = LLVMBuildMul(e->b, row, em_ki(e->i64, e->width), "");
			LV y = LLVMBuildLoad2(e->b, em_vec(t, e->width), em_gep(e, t, e->tr[i].mem, row), "");
			LLVMSetAlignment(y, size);
			return em_from_mem(e, n->dtype, y);
		}
	bool known, even = false;
	LV p = em_lin_ptr(e, buf, n->lin), v = lin_lanes(e, l, &known), x;
	if (!v && !known) {
		x = LLVMBuildLoad2(e->b, t, p, "");
		LLVMSetAlignment(x, size);
		return em_from_mem(e, n->dtype, x);
	}
	int64_t k = 0, at = 0;
	if (!v && gen_lane_even(e->s, l, e->lane, e->low)) {
		k = lane_at(e, l, 0, 1);
		at = lane_at(e, l, e->phase, 0);
		even = true;
	}
	if (k == 1 && !e->rem) {
		fetch_ahead(e, n, p, size);
		if (e->halves)
			return halves(e, step_to(e, t, p, at));
		x = vload(e, t, size, p, at);
	} else if (k == 1 && (int)size >= e->t->mask_from)
		x = masked_load(e, t, size, step_to(e, t, p, at));
	else if (k == -1 && !e->rem) {
		int idx[256];
		for (int i = 0; i < e->width; i++)
			idx[i] = e->width - 1 - i;
		x = vload(e, t, size, p, at + 1 - e->width);
		x = em_shuffle(e, x, NULL, idx, e->width);
	} else if (k >= 2 && k <= 16 && !e->rem) {
		x = strided(e, t, size, step_to(e, t, p, at), (int)k);
	} else {
		x = v || even || e->rem ? NULL : patterned(e, t, size, p, l);
		if (!x)
			x = gather(e, t, p, v ? v : lanes_at(e, l));
	}
	return em_from_mem(e, n->dtype, x);
}

/* Is every full vector that goes to form l of elements of size bytes a number of whole cache lines? */
static bool whole_lines(const struct em *e, const struct gen_lin *l, unsigned size)
{
	int64_t lo = (e->nest && e->nest->vars >> e->lane & 1 ? e->nest->lo[e->lane] : e->body->lo[e->lane]) * (e->low < 0 ? 1 : e->s->var[e->low].ext);
	unsigned line = (unsigned)e->t->line;
	if (e->width * size % line || (l->c + lo) * size % line)
		return false;
	for (int v = 0; v < GEN_NV; v++)
		if (v != e->lane && v != e->low && l->k[v] * size % line)
			return false;
	for (int j = 0; j < GEN_NT; j++)
		if (l->tk[j])
			return false;
	return true;
}

static void past_caches(struct em *e, LV st)
{
	LLVMMetadataRef one = LLVMValueAsMetadata(LLVMConstInt(e->i32, 1, false));
	LLVMSetAlignment(st, (unsigned)e->t->line);
	LLVMSetMetadata(st, LLVMGetMDKindIDInContext(e->c, "nontemporal", 11), LLVMMetadataAsValue(e->c, LLVMMDNodeInContext2(e->c, &one, 1)));
}

void em_store(struct em *e, const struct gen_store *st)
{
	int buf = (int)e->s->fn->nparam + st->res, dt = e->s->buf[buf].dtype;
	LT t = em_mem(e, dt);
	unsigned size = dtype_info[dt].bytes;
	LV x = em_get(e, st->node), p = em_lin_ptr(e, buf, st->lin);
	const struct gen_lin *l = &e->s->lin[st->lin];
	bool known;
	LV v = lin_lanes(e, l, &known);
	if (!v && !known) {         /* one element: all lanes agree */
		if (em_lanes(x))
			x = LLVMBuildExtractElement(e->b, x, em_ki(e->i32, 0), "");
		LLVMSetAlignment(LLVMBuildStore(e->b, em_to_mem(e, dt, x), p), size);
		return;
	}
	x = em_to_mem(e, dt, em_splat(e, x, e->width));
	if (!v && gen_lane_even(e->s, l, e->lane, e->low) && lane_at(e, l, 0, 1) == 1) {
		p = step_to(e, t, p, lane_at(e, l, e->phase, 0));
		if (!e->rem) {
			LV w = LLVMBuildStore(e->b, x, p);
			LLVMSetAlignment(w, size);
			if (e->past && whole_lines(e, l, size))
				past_caches(e, w);
			return;
		}
		masked_store(e, x, size, p, e->mask);
		return;
	}
	if (!v)
		v = lanes_at(e, l);
	/* lanes past the end repeat the last address: give them its value too */
	if (e->rem) {
		LT pt = em_vec(e->ptr, e->width), over[2] = { LLVMTypeOf(x), pt };
		unsigned id = LLVMLookupIntrinsicID("llvm.masked.scatter", 19);
		LV f = LLVMGetIntrinsicDeclaration(e->m, id, over, 2);
		LV a[4] = { x, em_gep(e, t, p, v), LLVMConstInt(e->i32, size, false), e->mask };
		LLVMBuildCall2(e->b, LLVMIntrinsicGetType(e->c, id, over, 2), f, a, 4, "");
		return;
	}
	for (int i = 0; i < e->width; i++) {
		LV li = LLVMConstInt(e->i32, (unsigned)i, false), o = LLVMBuildExtractElement(e->b, v, li, "");
		LV s = LLVMBuildStore(e->b, LLVMBuildExtractElement(e->b, x, li, ""), em_gep(e, t, p, o));
		LLVMSetAlignment(s, size);
	}
}

LV em_stored(struct em *e, const struct gen_store *st)
{
	return em_to_mem(e, e->s->buf[e->s->fn->nparam + (uint32_t)st->res].dtype, em_splat(e, em_get(e, st->node), e->width));
}

void em_weave(struct em *e, const struct gen_store *st, const LV *x, int n)
{
	int buf = (int)e->s->fn->nparam + st->res, dt = e->s->buf[buf].dtype, w = e->width, idx[256];
	LT t = em_mem(e, dt);
	unsigned size = dtype_info[dt].bytes;
	LV p = em_lin_ptr(e, buf, st->lin), ids[256];
	for (int m = 0; m < n; m++) {
		LV out = x[m * w % n];
		for (int i = 0; i < w; i++)
			idx[i] = (m * w + i) / n;
		out = em_shuffle(e, out, NULL, idx, w);
		for (int k = 1; k < n; k++) {
			int j = (m * w + k) % n;
			for (int i = 0; i < w; i++)
				idx[i] = (m * w + i) % n == j ? w + (m * w + i) / n : i;
			out = em_shuffle(e, out, x[j], idx, w);
		}
		LV to = step_to(e, t, p, (int64_t)m * w);
		if (!e->rem) {
			LLVMSetAlignment(LLVMBuildStore(e->b, out, to), size);
			continue;
		}
		LV left = LLVMBuildSub(e->b, LLVMBuildMul(e->b, e->rem, em_ki(e->i64, n), ""), em_ki(e->i64, (int64_t)m * w), "");
		for (int i = 0; i < w; i++)
			ids[i] = LLVMConstInt(e->i32, (unsigned)i, false);
		LV mask = LLVMBuildICmp(e->b, LLVMIntSLT, LLVMConstVector(ids, (unsigned)w), em_splat(e, LLVMBuildTrunc(e->b, left, e->i32, ""), w), "");
		masked_store(e, out, size, to, mask);
	}
}

/* Place of this turn in a buffer of node n over those of the nest's inner variables that it depends on; the lane has stride 1. */
static LV kept_at(struct em *e, const struct gen_node *n, LT t, LV mem)
{
	LV off = em_ki(e->i64, 0);
	int64_t st = 1;
	for (int pass = 0; pass < 2; pass++)
		for (int v = e->s->nvar - 1; v >= 0; v--) {
			if (!(e->nest->vars & n->mask & 1u << v) || (v == e->lane) != (pass == 0))
				continue;
			off = LLVMBuildAdd(e->b, off, LLVMBuildMul(e->b, e->var[v], em_ki(e->i64, st), ""), "");
			st *= e->s->var[v].ext;
		}
	return em_gep(e, t, mem, off);
}

/* The buffers have room for a whole vector after the last element. */
static LV kept_load(struct em *e, const struct gen_node *n, LV mem)
{
	LT t = em_mem(e, n->dtype);
	LV p = kept_at(e, n, t, mem), x;
	bool vec = in_lane(e, n->mask);
	x = LLVMBuildLoad2(e->b, vec ? em_vec(t, e->width) : t, p, "");
	LLVMSetAlignment(x, dtype_info[n->dtype].bytes);
	return em_from_mem(e, n->dtype, x);
}

void em_kept_store(struct em *e, uint32_t id, LV mem)
{
	const struct gen_node *n = &e->s->node[id];
	LT t = em_mem(e, n->dtype);
	LV x = em_to_mem(e, n->dtype, em_get(e, id)), p = kept_at(e, n, t, mem);
	LLVMSetAlignment(LLVMBuildStore(e->b, x, p), dtype_info[n->dtype].bytes);
}

/* --- nodes -------------------------------------------------------------- */

/* Value of node id as a vector, if vec. */
LV em_get_as(struct em *e, uint32_t id, bool vec)
{
	LV x = em_get(e, id);
	if (!vec || em_lanes(x) || e->width <= 1)
		return x;
	const struct gen_node *n = &e->s->node[id];
	if (LLVMIsConstant(x))
		return em_splat(e, x, e->width);
	int s = node_scope(e, n);
	LV have = memo_get(e, s, KEY_SPLAT, id, 0);
	if (!have) {
		int old = em_enter(e, s);
		have = em_splat(e, x, e->width);
		em_enter(e, old);
		memo_set(e, s, KEY_SPLAT, id, 0, have);
	}
	return have;
}

static LV emit_node(struct em *e, uint32_t id)
{
	const struct gen_node *n = &e->s->node[id];
	LLVMBuilderRef b = e->b;
	switch (n->kind) {
	case GN_CONST:
		return em_const(e, n->dtype, n->imm, 0);
	case GN_LOAD:
		return load(e, n);
	case GN_LIN: {
		LV v = lin_value(e, n->lin);
		if (n->dtype == DT_i64 || n->dtype == DT_u64)
			return v;
		if (n->hi > INT32_MAX || n->lo < INT32_MIN)
			return em_elem(e, ELEM_convert, DT_i64, n->dtype, &v);
		LV w = LLVMBuildTrunc(b, v, em_like(v, e->i32), "");
		return em_elem(e, ELEM_convert, DT_i32, n->dtype, &w);
	}
	case GN_DIV: case GN_MOD: {
		LV v = lin_value(e, n->lin);
		int64_t top = n->imm[0] * (n->kind == GN_DIV ? n->hi + 1 : 1);
		LT t = LLVMTypeOf(v);
		bool small = n->kind == GN_DIV && top < INT32_MAX;
		if (small)
			v = LLVMBuildTrunc(b, v, em_like(v, e->i32), "");
		LV d = em_ki(LLVMTypeOf(v), n->imm[0]);
		LV r = n->kind == GN_DIV ? LLVMBuildUDiv(b, v, d, "") : LLVMBuildURem(b, v, d, "");
		return small ? LLVMBuildZExt(b, r, t, "") : r;
	}
	case GN_INR: {
		LV v = lin_value(e, n->lin);
		LT t = LLVMTypeOf(v);
		LV x = LLVMBuildSub(b, v, em_ki(t, n->imm[0]), "");
		return LLVMBuildICmp(b, LLVMIntULT, x, em_ki(t, n->imm[1] - n->imm[0]), "");
	}
	case GN_LCLAMP: {
		LV v = lin_value(e, n->lin);
		LT t = LLVMTypeOf(v);
		v = em_sel(e, LLVMBuildICmp(b, LLVMIntSLT, v, em_ki(t, 0), ""), em_ki(t, 0), v);
		return em_sel(e, LLVMBuildICmp(b, LLVMIntSGT, v, em_ki(t, n->hi), ""), em_ki(t, n->hi), v);
	}
	case GN_CLAMP:
		return em_index(e, n->from, em_get(e, n->a[0]), n->hi);
	case GN_ROUND:
		return em_reduce_precision(e, n->from, em_get(e, n->a[0]), (int)n->lo, (int)n->hi);
	case GN_ELEM: {
		LV a[3] = { NULL, NULL, NULL };
		bool vec = in_lane(e, n->mask);
		for (int i = 0; i < elem_info[n->elem].nin; i++)
			a[i] = em_get_as(e, n->a[i], vec);
		return em_elem(e, n->elem, n->from, n->dtype, a);
	}
	default:
		assert(!"node");
		return NULL;
	}
}

LV em_get(struct em *e, uint32_t id)
{
	const struct gen_node *n = &e->s->node[id];
	if (n->kind == GN_RED)
		return e->red[n->lo][n->hi];
	int s = node_scope(e, n);
	uint32_t phase = in_lane(e, n->mask) ? (uint32_t)e->phase : 0;
	LV have = memo_get(e, s, KEY_NODE, id, phase);
	if (have)
		return have;
	int old = em_enter(e, s);
	LV v = NULL, rem = e->rem;
	if (is_pattern(e, n))       /* made before the loop, where all of it is there */
		e->rem = NULL;
	for (int i = 0; e->nest && i < e->nest->nuse; i++)
		if (e->nest->use[i].node == id)
			v = kept_load(e, n, e->kept[e->nest->use[i].nest][e->nest->use[i].keep]);
	if (!v)
		v = emit_node(e, id);
	e->rem = rem;
	em_enter(e, old);
	memo_set(e, s, KEY_NODE, id, phase, v);
	return v;
}
