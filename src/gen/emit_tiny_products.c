/* Products of small values (emit_tiny.h): dots and convolutions, whose terms are known one by one (gen_products). */
#include "emit_tiny.h"

/* An operand of products. */
struct factor { struct tv *v; const struct ir_type_info *ti; LV ssa; int64_t *place; int from, in; };   /* place: of elements in memory; from, in: its type, the sum's */

static struct factor factor(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, uint32_t k, struct tv *val, enum dtype in)
{
	ir_val v = ir_in(fn, o, k);
	struct factor f = { .v = &val[v], .ti = ir_vtype(t->m, fn, v), .in = in };
	f.from = f.ti->dtype;
	if (f.v->ptr && !f.v->ssa && f.ti->count > t->most) {
		int64_t st[IR_MAX_RANK];
		gen_strides(f.ti->rank, f.ti->dim, st);
		f.place = tiny_positions(&t->a, f.ti->rank, f.ti->dim, f.v->stride ? f.v->stride : st);
	} else if (!f.v->splat) {
		f.ssa = tiny_ssa(t, f.v, f.ti);
	}
	return f;
}

/* Is x made before the innermost loop, or from what is? */
static bool before_loop(const struct tiny *t, LV x, int deep)
{
	if (!t->head || !LLVMIsAInstruction(x))
		return true;
	LLVMBasicBlockRef b = LLVMGetInstructionParent(x), in = t->head;
	while (in && in != b)
		in = LLVMGetNextBasicBlock(in);
	return !in || (deep && LLVMIsAShuffleVectorInst(x) && before_loop(t, LLVMGetOperand(x, 0), deep - 1) && before_loop(t, LLVMGetOperand(x, 1), deep - 1));
}

/* What a vector of n elements at these positions takes, in vector instructions; they are shuffled before the loop, if they are known there. */
static int64_t fetch_cost(const struct tiny *t, const struct factor *f, int64_t n, const int64_t *at, int64_t step)
{
	int64_t regs = (n * dtype_info[f->in].bytes + t->e->t->vbytes - 1) / t->e->t->vbytes;
	bool run = true, same = true;
	for (int64_t i = 1; i < n; i++) {
		run &= at[i * step] == at[0] + i;
		same &= at[i * step] == at[0];
	}
	if (f->place) {
		int64_t first, pos[256];
		for (int64_t i = 0; i < n; i++)
			pos[i] = f->place[at[i * step] < 0 ? 0 : at[i * step]];
		return same ? 1 : run ? regs : tiny_near_by(n, pos, &first) ? 4 * regs : 2 * n;
	}
	return !f->ssa || before_loop(t, f->ssa, 4) ? 0 : same ? 1 : run ? regs : 3 * regs;
}

/* Elements at[i * step], i < n, of an operand, as the sum's type; -1: any.  so are the spare lanes. */
static LV fetch(struct tiny *t, const struct factor *f, int64_t n, const int64_t *at, int64_t step)
{
	struct em *e = t->e;
	int64_t idx[256], first = 0;
	LV x;
	while (first < n - 1 && at[first * step] < 0)
		first++;
	for (int64_t i = 0; i < n; i++)
		idx[i] = at[at[i * step] < 0 ? first * step : i * step];
	if (f->v->splat) {
		x = em_splat(e, f->v->splat, tiny_lanes(n));
	} else if (f->place) {
		for (int64_t i = 0; i < n; i++)
			idx[i] = f->place[idx[i]];
		x = tiny_load(t, f->from, n, f->v->ptr, idx);
	} else {
		x = tiny_pick(e, f->ssa, idx, n);
	}
	return f->from == f->in ? x : em_elem(e, ELEM_convert, f->from, f->in, &x);
}

static LV plus(struct em *e, int dt, LV x, LV y) { return em_elem(e, ELEM_add, dt, dt, (LV[]){ x, y }); }

/* x * y + z, rounded once; z NULL: x * y. */
static LV times(struct em *e, int dt, LV x, LV y, LV z)
{
	if (z && dtype_info[dt].cls == DT_FLOAT)
		return em_intr(e, "llvm.fma", x, 2, (LV[]){ y, z });
	x = em_elem(e, ELEM_multiply, dt, dt, (LV[]){ x, y });
	return z ? plus(e, dt, x, z) : x;
}

/* Which of n elements there are, as <lanes x i1>; NULL: all.  spare: do the spare lanes count? */
static LV there(struct em *e, int64_t n, const int64_t *at, bool spare)
{
	LV m[256];
	int w = tiny_lanes(n);
	bool all = true;
	for (int i = 0; i < MAX(w, 1); i++) {
		bool is = i < n ? !at || at[i] >= 0 : spare;
		all &= is;
		m[i] = LLVMConstInt(e->i1, is, false);
	}
	return all ? NULL : w ? LLVMConstVector(m, (unsigned)w) : m[0];
}

/* The elements of the result are lanes, and term after term is added. */
static LV by_terms(struct tiny *t, const struct gen_products *p, const struct factor *f, int dt)
{
	enum { CHAINS = 4 };
	struct em *e = t->e;
	LV sum[CHAINS] = { NULL };
	int chains = p->terms >= 2 * CHAINS ? CHAINS : p->terms >= CHAINS ? 2 : 1, c = 0;
	for (int64_t k = 0; k < p->terms; k++) {
		const int64_t *at = p->at[0] + k * p->n;
		LV in = there(e, p->n, at, true);
		if (in && LLVMIsNull(in))
			continue;
		LV x = fetch(t, &f[0], p->n, at, 1), y = fetch(t, &f[1], p->n, p->at[1] + k * p->n, 1), s = times(e, dt, x, y, sum[c]);
		sum[c] = in ? em_sel(e, in, s, sum[c] ? sum[c] : LLVMConstNull(LLVMTypeOf(s))) : s;
		c = (c + 1) % chains;
	}
	for (int step = 1; step < chains; step *= 2)
		for (int i = 0; i + step < chains; i += 2 * step)
			sum[i] = sum[i] && sum[i + step] ? plus(e, dt, sum[i], sum[i + step]) : sum[i];
	return sum[0];
}

/* The sums of pairs of neighbours in a, then in b (NULL: there is none). */
static LV pairs(struct em *e, int dt, LV a, LV b)
{
	LV y[2];
	int n = b ? em_lanes(a) : em_lanes(a) / 2, v[256];
	for (int odd = 0; odd < 2; odd++) {
		for (int j = 0; j < n; j++)
			v[j] = 2 * j + odd;
		y[odd] = n > 1 ? em_shuffle(e, a, b, v, n) : tiny_lane(e, a, odd);
	}
	return plus(e, dt, y[0], y[1]);
}

static LV beside(struct em *e, LV a, LV b)
{
	int n = em_lanes(a), v[256];
	if (!n)
		return LLVMBuildInsertElement(e->b, em_splat(e, a, 2), b, em_ki(e->i32, 1), "");
	for (int j = 0; j < 2 * n; j++)
		v[j] = j;
	return em_shuffle(e, a, b, v, 2 * n);
}

/* The terms are lanes.  Elements i .. i + n of the result, n a power of two, those from p->n on whatever they are: of the vectors of their products
 * neighbours are added up until there is a lane for each.  left: lanes that are to be left of an element, a power of two. */
static LV by_elements(struct tiny *t, const struct gen_products *p, const struct factor *f, int dt, int64_t i, int64_t n, int left)
{
	struct em *e = t->e;
	int most = e->t->vbytes / dtype_info[dt].bytes, w = MIN(MAX(tiny_lanes(p->terms), 1), most), v[256];
	if (n > 1) {
		/* while they fit into a vector, else side by side */
		bool together = n * left <= w;
		int each = together ? left * 2 : left;
		LV a = by_elements(t, p, f, dt, i, n / 2, each), b = i + n / 2 < p->n ? by_elements(t, p, f, dt, i + n / 2, n / 2, each) : a;
		return together ? pairs(e, dt, a, b) : beside(e, a, b);
	}
	LV x = times(e, dt, fetch(t, &f[0], p->terms, p->at[0] + i, p->n), fetch(t, &f[1], p->terms, p->at[1] + i, p->n), NULL), in = there(e, p->terms, NULL, false);
	if (in)
		x = em_sel(e, in, x, LLVMConstNull(LLVMTypeOf(x)));
	for (int k = em_lanes(x); k > most; k /= 2) {        /* halves, as far as they are whole registers */
		for (int j = 0; j < k; j++)
			v[j] = j;
		x = plus(e, dt, em_shuffle(e, x, NULL, v, k / 2), em_shuffle(e, x, NULL, v + k / 2, k / 2));
	}
	for (; w > left; w /= 2)
		x = pairs(e, dt, x, NULL);
	return x;
}

void tiny_products(struct tiny *t, const struct ir_fn *fn, const struct ir_op *o, struct tv *val)
{
	struct em *e = t->e;
	const struct ir_type_info *to = ir_vtype(t->m, fn, o->out);
	enum dtype dt = gen_products_sum(ir_vtype(t->m, fn, ir_in(fn, o, 0))->dtype, to->dtype);
	struct gen_products p;
	gen_products_of(&t->a, t->m, fn, o, &p);
	if (!p.terms) {
		val[o->out].ssa = LLVMConstNull(tiny_reg(e, to));
		return;
	}
	const struct factor f[2] = { factor(t, fn, o, 0, val, dt), factor(t, fn, o, 1, val, dt) };
	int64_t size = dtype_info[dt].bytes, regs = (p.n * size + e->t->vbytes - 1) / e->t->vbytes, cost[2] = { 0, 3 * p.n };
	bool all = p.terms <= 256;
	for (int64_t k = 0; k < p.terms; k++)
		for (int s = 0; s < 2; s++)
			cost[0] += fetch_cost(t, &f[s], p.n, p.at[s] + k * p.n, 1) + regs;
	regs = (p.terms * size + e->t->vbytes - 1) / e->t->vbytes;
	for (int64_t i = 0; i < p.n && all; i++) {
		for (int s = 0; s < 2; s++)
			cost[1] += fetch_cost(t, &f[s], p.terms, p.at[s] + i, p.n) + regs;
		for (int64_t k = 0; k < p.terms; k++)
			all &= p.at[0][k * p.n + i] >= 0;
	}
	LV x = all && cost[1] < cost[0] ? by_elements(t, &p, f, dt, 0, MAX(tiny_lanes(p.n), 1), 1) : by_terms(t, &p, f, dt);
	val[o->out].ssa = em_round(e, to->dtype, x ? x : LLVMConstNull(tiny_reg(e, to)));
}
