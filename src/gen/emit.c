/* Schedule -> LLVM IR -> object.  The IR is explicit vector code in loops; LLVM only promotes the
 * accumulators to registers and generates code (a short pass list: compile time counts). */
#include "emit.h"

#include <llvm-c/Analysis.h>
#include <llvm-c/Transforms/PassBuilder.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* --- scopes and loops --------------------------------------------------- */

static void scope_push(struct em *e, unsigned vars, LLVMBasicBlockRef bb)
{
	struct em_scope *s = &e->scope[e->nscope];
	memset(s, 0, sizeof *s);
	s->var = (int)vars;
	e->cur = e->nscope++;
	em_at(e, bb);
}

static void scope_pop(struct em *e)
{
	map_free(&e->scope[--e->nscope].memo);
	e->cur = e->nscope - 1;
}

/* A scope of one turn. */
static LLVMBasicBlockRef turn_open(struct em *e, unsigned vars)
{
	LLVMBasicBlockRef bb = em_block(e, "turn");
	scope_push(e, vars, bb);
	return bb;
}

static void turn_close(struct em *e, LLVMBasicBlockRef bb, LV guard)
{
	LLVMBasicBlockRef out = em_block(e, "out");
	LLVMBuildBr(e->b, out);
	scope_pop(e);
	LLVMPositionBuilderAtEnd(e->b, e->scope[e->cur].block);
	if (guard)
		LLVMBuildCondBr(e->b, guard, bb, out);
	else
		LLVMBuildBr(e->b, bb);
	em_at(e, out);
}

struct loop { LLVMBasicBlockRef head; LV phi, lo; };

static struct loop loop_open(struct em *e, unsigned vars, LV lo)
{
	struct loop l = { em_block(e, "loop"), NULL, lo };
	scope_push(e, vars, l.head);
	l.phi = LLVMBuildPhi(e->b, e->i64, "");
	return l;
}

/* Runs while i + step < end.  guard: NULL = at least one turn for sure. */
static void loop_close(struct em *e, struct loop *l, int64_t step, LV end, LV guard)
{
	LLVMBasicBlockRef latch = e->scope[e->cur].block, out = em_block(e, "out");
	LV next = LLVMBuildAdd(e->b, l->phi, em_ki(e->i64, step), "");
	LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, next, end, ""), l->head, out);
	scope_pop(e);
	LLVMBasicBlockRef pre = e->scope[e->cur].block;
	LLVMPositionBuilderAtEnd(e->b, pre);
	if (guard)
		LLVMBuildCondBr(e->b, guard, l->head, out);
	else
		LLVMBuildBr(e->b, l->head);
	LV in[2] = { l->lo, next };
	LLVMBasicBlockRef ib[2] = { pre, latch };
	LLVMAddIncoming(l->phi, in, ib, 2);
	em_at(e, out);
}

/* --- reductions --------------------------------------------------------- */

/* A reducer's result over the given inputs. */
static LV region_value(struct em *e, uint32_t id, const LV *arg, struct map *done)
{
	const struct gen_node *n = &e->s->node[id];
	if (n->kind == GN_ARG)
		return arg[n->lo];
	uint64_t *hit = map_get(done, &id, sizeof id);
	if (hit)
		return (LV)(uintptr_t)*hit;
	LV v;
	int w = em_lanes(arg[0]);
	if (n->kind == GN_CONST) {
		v = em_const(e, n->dtype, n->imm, w);
	} else {
		LV a[3] = { NULL, NULL, NULL };
		for (int i = 0; i < elem_info[n->elem].nin; i++)
			a[i] = region_value(e, n->a[i], arg, done);
		v = em_elem(e, n->elem, n->from, n->dtype, a);
	}
	*map_put(done, &id, sizeof id) = (uint64_t)(uintptr_t)v;
	return v;
}

/* The largest of many floats: an integer that has their order takes one instruction and one cycle a turn. */
static bool is_order(const struct gen_red *r)
{
	return (r->redop == RED_max || r->redop == RED_min) && dtype_info[r->acc[0]].cls == DT_FLOAT;
}

static LT acc_type(struct em *e, const struct gen_red *r, int k)
{
	return is_order(r) ? em_order_type(e, r->acc[k]) : em_reg(e, r->acc[k]);
}

static void combine(struct em *e, const struct gen_red *r, LV *acc, const LV *x)
{
	if (r->redop != RED_fn) {
		for (int k = 0; k < r->n; k++)
			acc[k] = em_redop(e, (enum redop)r->redop, r->acc[k], acc[k], x[k]);
		return;
	}
	LV arg[2 * GEN_MAX_OUT], out[GEN_MAX_OUT];
	for (int k = 0; k < r->n; k++) {
		arg[k] = acc[k];
		arg[r->n + k] = x[k];
	}
	struct map done = { 0 };
	for (int k = 0; k < r->n; k++)
		out[k] = region_value(e, r->fn[k], arg, &done);
	map_free(&done);
	memcpy(acc, out, sizeof *acc * (size_t)r->n);
}

/* As combine, of what accumulators hold. */
static void combine_acc(struct em *e, const struct gen_red *r, LV *acc, const LV *x)
{
	if (!is_order(r)) {
		combine(e, r, acc, x);
		return;
	}
	for (int k = 0; k < r->n; k++)
		acc[k] = em_larger(e, r->redop == RED_max, acc[k], x[k]);
}

/* All lanes of acc into one, by halves: always the same tree. */
static void across(struct em *e, const struct gen_red *r, LV *acc)
{
	int w = em_lanes(acc[0]), idx[256];
	while (w > 1) {
		LV hi[GEN_MAX_OUT];
		for (int k = 0; k < r->n; k++) {
			LV x = acc[k];
			for (int i = 0; i < w / 2; i++)
				idx[i] = i + w / 2;
			hi[k] = em_shuffle(e, x, NULL, idx, w / 2);
			for (int i = 0; i < w / 2; i++)
				idx[i] = i;
			acc[k] = em_shuffle(e, x, NULL, idx, w / 2);
		}
		combine_acc(e, r, acc, hi);
		w /= 2;
	}
	for (int k = 0; k < r->n; k++)
		if (em_lanes(acc[k]))
			acc[k] = LLVMBuildExtractElement(e->b, acc[k], em_ki(e->i32, 0), "");
}

/* --- nests -------------------------------------------------------------- */

struct acc { LV mem[GEN_MAX_OUT]; };

static void actions(struct em *e, const struct gen_body *b, const struct gen_nest *x, struct acc *acc)
{
	for (int i = 0; i < x->nred; i++) {
		const struct gen_red *r = &b->red[x->red[i].red];
		LV v[GEN_MAX_OUT], a[GEN_MAX_OUT], old[GEN_MAX_OUT];
		for (int k = 0; k < r->n; k++) {
			v[k] = em_get_as(e, x->red[i].node[k], e->width > 1);
			v[k] = em_splat(e, is_order(r) ? em_order(e, r->acc[k], r->redop == RED_max, v[k]) : v[k], e->width > 1 ? e->width : 0);
			a[k] = old[k] = LLVMBuildLoad2(e->b, em_vec(acc_type(e, r, k), e->width > 1 ? e->width : 0), acc[i].mem[k], "");
		}
		combine_acc(e, r, a, v);
		for (int k = 0; k < r->n; k++) {
			if (e->mask && e->inner)
				a[k] = em_sel(e, e->mask, a[k], old[k]);
			LLVMBuildStore(e->b, a[k], acc[i].mem[k]);
		}
	}
	for (int i = 0; i < x->nkeep; i++)
		em_kept_store(e, x->keep[i], e->kept[x - b->nest][i]);
	for (int i = 0; i < x->nst; i++)          /* results may lie over operands: all is read first */
		em_get(e, x->st[i].node);
	for (int i = 0; i < x->nst; i++)
		em_store(e, &x->st[i]);
}

static int pow2_at_least(int64_t n)
{
	int w = 1;
	while (w < n)
		w *= 2;
	return w;
}

/* Lanes for a loop of ext turns (lo, hi constant). */
static int lanes_for(const struct em *e, int64_t ext)
{
	int w = e->s->width;
	if (ext < w)
		w = pow2_at_least(ext);
	if (!e->t->masks && ext % w && ext % (w / 2) == 0 && w / 2 >= 4)
		w /= 2;
	return w;
}

/* What follows is of a vector of which only the first rem lanes are there. */
static void part_open(struct em *e, LV rem, bool more)
{
	int w = e->width;
	if (more)
		rem = em_sel(e, LLVMBuildICmp(e->b, LLVMIntSLT, rem, em_ki(e->i64, w), ""), rem, em_ki(e->i64, w));
	LV ids[256];
	for (int i = 0; i < w; i++)
		ids[i] = LLVMConstInt(e->i64, (unsigned)i, false);
	LV all = LLVMConstVector(ids, (unsigned)w);
	for (int i = 0; i < w; i++)
		ids[i] = LLVMConstInt(e->i32, (unsigned)i, false);
	LV all32 = LLVMConstVector(ids, (unsigned)w);
	e->rem = rem;
	e->mask = LLVMBuildICmp(e->b, LLVMIntULT, all32, em_splat(e, LLVMBuildTrunc(e->b, rem, e->i32, ""), w), "");
	LV last = em_splat(e, LLVMBuildSub(e->b, rem, em_ki(e->i64, 1), ""), w);
	e->iota = em_sel(e, LLVMBuildICmp(e->b, LLVMIntULT, all, last, ""), all, last);
}

/* The lane loop: full vectors, then partial ones.  what(e, arg) makes the body.  full: the range is a
 * multiple of what a turn takes for sure.  With a period a turn is as many vectors as end where one does. */
static void lane_loop(struct em *e, int v, LV lo, LV hi, int64_t known, bool full, void (*what)(struct em *, void *), void *arg)
{
	int w = e->width, turn = e->low < 0 ? w : gen_lane_turn(e->s, w);
	int64_t period = e->low < 0 ? 1 : e->s->var[e->low].ext;
	int phases = (int)(turn * period / w);
	bool main = known < 0 || known >= turn, tail = !full && (known < 0 || known % turn);
	if (main) {
		LV end = LLVMBuildSub(e->b, hi, em_ki(e->i64, turn - 1), "");
		LV guard = known < 0 ? LLVMBuildICmp(e->b, LLVMIntSLT, lo, end, "") : NULL;
		if (known == turn && !guard) {
			LLVMBasicBlockRef bb = turn_open(e, 1u << v);
			e->var[v] = lo;
			for (e->phase = 0; e->phase < phases; e->phase++)
				what(e, arg);
			turn_close(e, bb, NULL);
		} else {
			struct loop l = loop_open(e, 1u << v, lo);
			e->var[v] = l.phi;
			for (e->phase = 0; e->phase < phases; e->phase++)
				what(e, arg);
			loop_close(e, &l, turn, end, guard);
		}
		e->phase = 0;
	}
	if (!tail)
		return;
	/* start of the rest: lo + (hi - lo) / turn * turn */
	LV n = LLVMBuildSub(e->b, hi, lo, ""), done = LLVMBuildAnd(e->b, n, em_ki(e->i64, -(int64_t)turn), ""), at = LLVMBuildAdd(e->b, lo, done, "");
	LV rest = LLVMBuildMul(e->b, LLVMBuildSub(e->b, n, done, ""), em_ki(e->i64, period), "");
	for (; e->phase < phases && (known < 0 || known % turn * period > e->phase * w); e->phase++) {
		LV rem = LLVMBuildSub(e->b, rest, em_ki(e->i64, e->phase * w), ""), any = known < 0 ? LLVMBuildICmp(e->b, LLVMIntSGT, rem, em_ki(e->i64, 0), "") : NULL;
		LLVMBasicBlockRef bb = turn_open(e, 1u << v);
		e->var[v] = at;
		part_open(e, rem, phases > 1);
		what(e, arg);
		e->rem = e->mask = e->iota = NULL;
		turn_close(e, bb, any);
	}
	e->phase = 0;
}

/* Float sums add up a run of turns in one number.  Runs of f32 add up in f64, so that only the last rounding counts; those of f64 add up, as
 * many as there are turns in a run, in another number, and so on: errors grow with the logarithm of the length. */
enum { SUM_RUN = 128, SUM_RUN_F32 = 16 };

/* run: 0: there are no long sums; wide: f64 ones of f32; open: this is within a run of those. */
struct nest_cx { const struct gen_body *b; const struct gen_nest *x; struct acc *acc; int64_t run; bool wide, open; };
static void nest_turn(struct em *e, void *p)
{
	struct nest_cx *n = p;
	actions(e, n->b, n->x, n->acc);
}

static bool is_sum(const struct gen_red *r)
{
	return r->redop == RED_add && dtype_info[r->acc[0]].cls == DT_FLOAT;
}

static bool is_f32_sum(const struct gen_red *r) { return is_sum(r) && r->acc[0] == DT_f32; }

/* Accumulators of reduction r that hold nothing yet; wide: of f64. */
static void acc_clear(struct em *e, const struct gen_red *r, struct acc *acc, bool wide)
{
	int w = e->width > 1 ? e->width : 0;
	for (int k = 0; k < r->n; k++) {
		if (wide) {
			acc->mem[k] = em_alloca(e, em_vec(e->f64, w));
			LLVMBuildStore(e->b, em_identity(e, RED_add, DT_f64, w), acc->mem[k]);
			continue;
		}
		acc->mem[k] = em_alloca(e, em_vec(acc_type(e, r, k), w));
		LV first = r->redop == RED_fn ? em_splat(e, em_get(e, r->init[k]), w) : em_identity(e, (enum redop)r->redop, r->acc[k], w);
		if (is_order(r))
			first = em_order(e, r->acc[k], r->redop == RED_max, first);
		LLVMBuildStore(e->b, first, acc->mem[k]);
	}
}

/* What follows adds to sums of its own, until acc_close adds them to those there are. */
static struct acc *acc_open(struct em *e, struct nest_cx *n)
{
	const struct gen_nest *x = n->x;
	struct acc *outer = n->acc;
	n->acc = mem_alloc(sizeof *n->acc * (size_t)(x->nred + 1));
	for (int i = 0; i < x->nred; i++)
		if (is_sum(&n->b->red[x->red[i].red]))
			acc_clear(e, &n->b->red[x->red[i].red], &n->acc[i], false);
		else
			n->acc[i] = outer[i];
	n->open = true;
	return outer;
}

static void acc_close(struct em *e, struct nest_cx *n, struct acc *outer, bool open)
{
	const struct gen_nest *x = n->x;
	int w = e->width > 1 ? e->width : 0;
	for (int i = 0; i < x->nred; i++) {
		const struct gen_red *r = &n->b->red[x->red[i].red];
		if (!is_sum(r))
			continue;
		bool wide = n->wide && !open && is_f32_sum(r);
		LV part = LLVMBuildLoad2(e->b, em_vec(em_reg(e, r->acc[0]), w), n->acc[i].mem[0], "");
		LV sum = LLVMBuildLoad2(e->b, em_vec(wide ? e->f64 : em_reg(e, r->acc[0]), w), outer[i].mem[0], "");
		if (wide)
			part = LLVMBuildFPExt(e->b, part, em_vec(e->f64, w), "");
		LLVMBuildStore(e->b, em_redop(e, RED_add, wide ? DT_f64 : r->acc[0], sum, part), outer[i].mem[0]);
	}
	free(n->acc);
	n->acc = outer;
	n->open = open;
}

/* Turns that go into one sum, of at most n that add `each` numbers to it; 0: all may.  Of f64, a power of the run so large that few
 * are left. */
static int64_t sum_block(const struct nest_cx *n, int64_t turns, int64_t each)
{
	if (!n->run || (n->wide && (n->open || each >= n->run)))
		return 0;
	int64_t b = MAX(n->run / each, 1);
	if (n->wide)
		return b;
	if (turns <= 2 * b)
		return 0;
	while (turns > 2 * b * n->run)
		b *= n->run;
	return b;
}

/* End of the block of step turns that begins at lo, of those before hi. */
static LV block_end(struct em *e, LV lo, int64_t step, LV hi)
{
	LV end = LLVMBuildAdd(e->b, lo, em_ki(e->i64, step), "");
	return em_sel(e, LLVMBuildICmp(e->b, LLVMIntSLT, end, hi, ""), end, hi);
}

/* The lane loop over turns vectors at most; known: elements, -1 if that depends. */
static void lane_sums(struct em *e, struct nest_cx *n, int lane, LV lo, LV hi, int64_t known, int64_t turns, bool full)
{
	int64_t block = sum_block(n, turns, 1);
	if (!block) {
		lane_loop(e, lane, lo, hi, known, full, nest_turn, n);
		return;
	}
	struct loop l = loop_open(e, 0, lo);
	bool open = n->open;
	struct acc *outer = acc_open(e, n);
	lane_sums(e, n, lane, l.phi, block_end(e, l.phi, block * e->width, hi), -1, block, full);
	acc_close(e, n, outer, open);
	loop_close(e, &l, block * e->width, hi, NULL);
}

static void nest_loops(struct em *e, struct nest_cx *n, int v, int lane);

/* The loop over variable v: turns at most, each of which adds inner numbers. */
static void var_sums(struct em *e, struct nest_cx *n, int v, int lane, LV lo, LV hi, int64_t turns, int64_t inner)
{
	bool apart = n->run && !n->wide && inner >= n->run / 4, open = n->open;       /* each turn has sums of its own */
	int64_t block = sum_block(n, turns, apart ? 1 : inner), step = block ? block : 1;
	struct loop l = loop_open(e, block ? 0 : 1u << v, lo);
	struct acc *outer = block || apart ? acc_open(e, n) : NULL;
	if (block) {
		var_sums(e, n, v, lane, l.phi, block_end(e, l.phi, block, hi), block, inner);
	} else {
		e->var[v] = l.phi;
		nest_loops(e, n, v + 1, lane);
	}
	if (outer)
		acc_close(e, n, outer, open);
	loop_close(e, &l, step, hi, NULL);
}

static void nest_loops(struct em *e, struct nest_cx *n, int v, int lane)
{
	const struct gen_nest *x = n->x;
	for (; v < e->s->nvar; v++)
		if (x->vars >> v & 1 && v != lane) {
			if (x->hi[v] - x->lo[v] == 1) {
				e->var[v] = em_ki(e->i64, x->lo[v]);
				continue;
			}
			int64_t inner = lane < 0 ? 1 : (x->hi[lane] - x->lo[lane] + e->width - 1) / e->width;
			for (int u = v + 1; u < e->s->nvar; u++)
				inner *= x->vars >> u & 1 && u != lane ? x->hi[u] - x->lo[u] : 1;
			var_sums(e, n, v, lane, em_ki(e->i64, x->lo[v]), em_ki(e->i64, x->hi[v]), x->hi[v] - x->lo[v], inner);
			return;
		}
	if (lane < 0) {
		nest_turn(e, n);
		return;
	}
	int64_t ext = x->hi[lane] - x->lo[lane];
	lane_sums(e, n, lane, em_ki(e->i64, x->lo[lane]), em_ki(e->i64, x->hi[lane]), ext, (ext + e->width - 1) / e->width, ext % e->width == 0);
}

/* How the sums of n's nest are cut into runs; lane: its variable along which lanes are added up, -1: none. */
static void sum_run(const struct em *e, struct nest_cx *n, int lane)
{
	const struct gen_nest *x = n->x;
	int64_t turns = 1, least = lane < 0 ? 8 : 2 * SUM_RUN_F32;
	for (int v = 0; v < e->s->nvar; v++)
		if (x->vars >> v & 1)
			turns *= v == lane ? (x->hi[v] - x->lo[v] + e->width - 1) / e->width : x->hi[v] - x->lo[v];
	bool narrow = false, any = false;
	for (int i = 0; i < x->nred; i++) {
		narrow |= is_f32_sum(&n->b->red[x->red[i].red]);
		any |= is_sum(&n->b->red[x->red[i].red]);
	}
	n->wide = narrow && turns >= least;
	n->run = !any ? 0 : n->wide ? MAX(4, MIN(SUM_RUN_F32, turns / 8)) : SUM_RUN;
}

/* Where the sums of reduction r in mem are of the lanes at hand. */
static LV sums_at(struct em *e, const struct gen_red *r, LV mem)
{
	return em_gep(e, is_f32_sum(r) ? e->f64 : acc_type(e, r, 0), mem, LLVMBuildSub(e->b, e->var[e->s->lane], e->sums_lo, ""));
}

/* Is what n is made of along the lane nothing but dense bf16, and does the order of its elements matter to nobody? */
static bool any_order(const struct em *e, uint32_t id, bool *seen)
{
	const struct gen_node *n = &e->s->node[id];
	if (!(n->mask >> e->lane & 1) || seen[id])
		return true;
	seen[id] = true;
	if (n->kind == GN_LOAD) {
		const struct gen_lin *l = &e->s->lin[n->lin];
		bool dense = n->dtype == DT_bf16 && l->k[e->lane] == 1;
		for (int j = 0; j < GEN_NT; j++)
			dense &= !l->tk[j] || !(e->s->node[l->tn[j]].mask >> e->lane & 1);
		return dense;
	}
	bool ok = n->kind == GN_ELEM || n->kind == GN_ROUND;
	for (int i = 0; ok && i < (n->kind == GN_ELEM ? elem_info[n->elem].nin : 1); i++)
		ok = any_order(e, n->a[i], seen);
	return ok;
}

/* Reductions along the lane take elements in any order; what is ordered by bits is not widened. */
static bool in_halves(const struct em *e, const struct gen_body *b, const struct gen_nest *x)
{
	bool ok = e->inner && e->lane >= 0 && !x->nst && !x->nkeep && !x->nuse && x->nred && 2 * e->width >= e->t->vbytes;
	bool *seen = ok ? mem_alloc(e->s->nnode) : NULL;
	for (int i = 0; ok && i < x->nred; i++) {
		const struct gen_red *r = &b->red[x->red[i].red];
		ok = r->n == 1 && r->redop != RED_fn && !(is_order(r) && r->acc[0] == DT_bf16) && any_order(e, x->red[i].node[0], seen);
	}
	free(seen);
	return ok;
}

static void nest(struct em *e, const struct gen_body *b, const struct gen_nest *x)
{
	int lane = -1;
	bool outer = e->s->lane >= 0;
	int64_t inner_ext = 1;
	if (!outer) {
		lane = gen_nest_lane(e->s, x);
		e->lane = lane;
		e->width = 1;
		if (lane >= 0) {
			inner_ext = x->hi[lane] - x->lo[lane];
			e->width = lanes_for(e, inner_ext);
			if (e->width < 2)
				e->lane = lane = -1;
		}
	}
	int w = e->width > 1 ? e->width : 0;
	e->inner = !outer;
	struct acc *acc = mem_alloc(sizeof *acc * (size_t)(x->nred + 1));
	LV part[GEN_MAX_OUT];
	struct nest_cx n = { .b = b, .x = x, .acc = acc };
	sum_run(e, &n, outer ? -1 : lane);
	bool sums = e->sums && x->vars;
	for (int i = 0; i < x->nred; i++)
		if (sums)
			acc[i].mem[0] = sums_at(e, &b->red[x->red[i].red], e->sums[i][0]);
		else
			acc_clear(e, &b->red[x->red[i].red], &acc[i], n.wide && is_f32_sum(&b->red[x->red[i].red]));
	int index = (int)(x - b->nest);
	if (x->nkeep) {
		e->kept[index] = mem_alloc(sizeof(LV) * (size_t)x->nkeep);
		int64_t count = gen_kept_count(e->s, x);
		for (int i = 0; i < x->nkeep; i++) {
			LV mem = em_alloca(e, LLVMArrayType2(em_mem(e, e->s->node[x->keep[i]].dtype), (uint64_t)count + 128));
			LLVMSetAlignment(mem, (unsigned)e->t->line);
			e->kept[index][i] = mem;
		}
	}
	e->nest = x;
	e->halves = in_halves(e, b, x);
	if (!sums)
		nest_loops(e, &n, 0, outer ? -1 : lane);
	e->halves = false;
	e->nest = NULL;
	for (int i = 0; i < x->nred; i++) {
		int id = x->red[i].red;
		const struct gen_red *r = &b->red[id];
		bool wide = n.wide && is_f32_sum(r);
		for (int k = 0; k < r->n; k++)
			part[k] = LLVMBuildLoad2(e->b, em_vec(wide ? e->f64 : acc_type(e, r, k), w), acc[i].mem[k], "");
		if (!outer && w)
			across(e, r, part);
		if (wide)
			part[0] = LLVMBuildFPTrunc(e->b, part[0], em_like(part[0], e->f32), "");
		for (int k = 0; k < r->n && is_order(r); k++)
			part[k] = em_unorder(e, r->acc[k], r->redop == RED_max, part[k]);
		if (e->part[id][0]) {
			LV sum[GEN_MAX_OUT];
			memcpy(sum, e->part[id], sizeof *sum * (size_t)r->n);
			combine(e, r, sum, part);
			memcpy(part, sum, sizeof *sum * (size_t)r->n);
		}
		memcpy(e->part[id], part, sizeof *part * (size_t)r->n);
	}
	free(acc);
	if (!outer) {
		e->lane = -1;
		e->width = 1;
	}
}

static void body_turn(struct em *e, void *p)
{
	const struct gen_body *b = p;
	LLVMBasicBlockRef bb = turn_open(e, 0);
	e->body_scope = e->cur;
	e->body = b;
	memset(e->red, 0, sizeof e->red);
	memset(e->part, 0, sizeof e->part);
	int next = 0;
	for (int level = 0; level < b->nlevel; level++) {
		for (int i = 0; i < b->nred; i++) {
			const struct gen_red *r = &b->red[i];
			if (r->level != level)
				continue;
			LV acc[GEN_MAX_OUT];
			int w = e->s->lane >= 0 && e->width > 1 ? e->width : 0;
			for (int k = 0; k < r->n; k++)
				acc[k] = em_splat(e, em_get(e, r->init[k]), w);
			if (r->redop == RED_fn)
				memcpy(acc, e->part[i], sizeof *acc * (size_t)r->n);
			else
				combine(e, r, acc, e->part[i]);
			memcpy(e->red[i], acc, sizeof *acc * (size_t)r->n);
		}
		for (; next < b->nnest && b->nest[next].level == level; next++)
			nest(e, b, &b->nest[next]);
	}
	for (int i = 0; i < b->nnest && i < (int)NELEM(e->kept); i++) {
		free(e->kept[i]);
		e->kept[i] = NULL;
	}
	turn_close(e, bb, NULL);
}

/* --- columns, some rows at a time ------------------------------------------ */

enum { DOWN_ROWS = 8, DOWN_COLUMNS = 1024 };

/* Sums of no rows at all; those of rows from first on, n of them, go to what there is. */
struct down { const struct gen_body *b; LV first; int64_t n; };
static void down_turn(struct em *e, void *p)
{
	const struct down *d = p;
	const struct gen_nest *x = d->b->nest;
	LV acc[GEN_MAX_OUT];
	int v = e->s->down, w = e->width;
	LLVMBasicBlockRef bb = turn_open(e, 0);
	e->body_scope = e->cur;
	e->body = d->b;
	e->nest = x;
	for (int i = 0; i < x->nred; i++) {
		const struct gen_red *r = &d->b->red[x->red[i].red];
		acc[i] = em_identity(e, (enum redop)r->redop, r->acc[0], w);
		acc[i] = is_order(r) ? em_order(e, r->acc[0], r->redop == RED_max, acc[i]) : acc[i];
	}
	for (int64_t k = 0; k < d->n; k++) {
		LLVMBasicBlockRef row = turn_open(e, 1u << v);
		e->var[v] = LLVMBuildAdd(e->b, d->first, em_ki(e->i64, k), "");
		for (int i = 0; i < x->nred; i++) {
			const struct gen_red *r = &d->b->red[x->red[i].red];
			LV y = em_get_as(e, x->red[i].node[0], true);
			y = em_splat(e, is_order(r) ? em_order(e, r->acc[0], r->redop == RED_max, y) : y, w);
			combine_acc(e, r, &acc[i], &y);
		}
		turn_close(e, row, NULL);
	}
	for (int i = 0; i < x->nred; i++) {
		const struct gen_red *r = &d->b->red[x->red[i].red];
		bool wide = is_f32_sum(r);
		LV at = sums_at(e, r, e->sums[i][0]);
		LT t = em_vec(wide ? e->f64 : acc_type(e, r, 0), w);
		if (wide)
			acc[i] = LLVMBuildFPExt(e->b, acc[i], t, "");
		if (d->n) {
			LV sum = LLVMBuildLoad2(e->b, t, at, "");
			if (wide)
				acc[i] = LLVMBuildFAdd(e->b, sum, acc[i], "");
			else
				combine_acc(e, r, &sum, &acc[i]);
			acc[i] = wide ? acc[i] : sum;
		}
		LLVMBuildStore(e->b, acc[i], at);
	}
	e->nest = NULL;
	turn_close(e, bb, NULL);
}

/* The lane loop over some columns: rows go in turns of a few, and what there is of each column at the end is done with. */
static void down_loops(struct em *e, const struct gen_body *b, LV lo, LV hi, int64_t known, bool full, void (*what)(struct em *, void *), void *arg)
{
	const struct gen_nest *x = b->nest;
	int v = e->s->down, lane = e->s->lane;
	int64_t n = x->hi[v] - x->lo[v], whole = n / DOWN_ROWS * DOWN_ROWS;
	LV mem[64][GEN_MAX_OUT];
	for (int i = 0; i < x->nred; i++) {
		const struct gen_red *r = &b->red[x->red[i].red];
		mem[i][0] = em_alloca(e, LLVMArrayType2(is_f32_sum(r) ? e->f64 : acc_type(e, r, 0), DOWN_COLUMNS + 256));
		LLVMSetAlignment(mem[i][0], (unsigned)MAX(e->t->line, e->width * 8));      /* of a vector of f64 */
	}
	struct loop part = { 0 };
	bool all = known >= 0 && known <= DOWN_COLUMNS;
	if (!all) {
		part = loop_open(e, 0, lo);
		lo = part.phi;
	}
	LV end = all ? hi : block_end(e, lo, DOWN_COLUMNS, hi);
	known = all ? known : -1;
	full &= all || DOWN_COLUMNS % e->width == 0;
	e->sums = mem;
	e->sums_lo = lo;
	lane_loop(e, lane, lo, end, known, full, down_turn, &(struct down){ b });
	struct loop rows = loop_open(e, 0, em_ki(e->i64, x->lo[v]));
	lane_loop(e, lane, lo, end, known, full, down_turn, &(struct down){ b, rows.phi, DOWN_ROWS });
	loop_close(e, &rows, DOWN_ROWS, em_ki(e->i64, x->lo[v] + whole), NULL);
	if (whole < n)
		lane_loop(e, lane, lo, end, known, full, down_turn, &(struct down){ b, em_ki(e->i64, x->lo[v] + whole), n - whole });
	lane_loop(e, lane, lo, end, known, full, what, arg);
	e->sums = NULL;
	if (!all)
		loop_close(e, &part, DOWN_COLUMNS, hi, NULL);
}

/* All turns of s->weave. */
static void weave_turn(struct em *e)
{
	const struct gen_sched *s = e->s;
	int u = s->weave, n = (int)s->var[u].ext;
	LV x[GEN_MAX_OUT][GEN_WOVEN];
	for (int b = 0; b < s->nbody; b++)
		for (int64_t j = s->body[b].lo[u]; j < s->body[b].hi[u]; j++) {
			LLVMBasicBlockRef bb = turn_open(e, 1u << u);
			e->body_scope = e->cur;
			e->body = &s->body[b];
			e->var[u] = em_ki(e->i64, j);
			for (int i = 0; i < s->body[b].nest->nst; i++)
				x[i][j] = em_stored(e, &s->body[b].nest->st[i]);
			turn_close(e, bb, NULL);
		}
	e->var[u] = em_ki(e->i64, 0);
	for (int i = 0; i < s->body[0].nest->nst; i++)
		em_weave(e, &s->body[0].nest->st[i], x[i], n);
}

/* --- tiles -------------------------------------------------------------- */

struct tile { LV at[GEN_NV]; };

static void outer_loops(struct em *e, const struct gen_body *b, const struct tile *t, int i);
struct rest { const struct gen_body *b; const struct tile *t; int i; };
static void rest_turn(struct em *e, void *p)
{
	struct rest *r = p;
	outer_loops(e, r->b, r->t, r->i);
}

/* The block of node n from row first of s->across on, transposed into mem: row u - first has the lanes. */
static void transpose_block(struct em *e, const struct gen_node *n, LV mem)
{
	LT t = em_mem(e, n->dtype);
	unsigned size = dtype_info[n->dtype].bytes;
	const struct gen_lin *l = &e->s->lin[n->lin];
	int64_t k = l->k[e->lane];
	int q = e->t->transpose[size == 8 ? 3 : size / 2];
	q = MIN(q, e->width);
	int bits = 0;
	while (1 << bits < q)
		bits++;
	LV p = em_lin_ptr(e, (int)n->a[0], n->lin), row[16], next[16];
	struct loop a = loop_open(e, 0, em_ki(e->i64, 0));       /* lanes, q at a time */
	struct loop c = loop_open(e, 0, em_ki(e->i64, 0));       /* along */
	for (int i = 0; i < q; i++) {
		LV j = LLVMBuildAdd(e->b, a.phi, em_ki(e->i64, i), "");
		if (e->rem) {
			LV top = LLVMBuildSub(e->b, e->rem, em_ki(e->i64, 1), "");
			j = em_sel(e, LLVMBuildICmp(e->b, LLVMIntSLT, j, top, ""), j, top);
		}
		LV off = LLVMBuildAdd(e->b, LLVMBuildMul(e->b, j, em_ki(e->i64, k), ""), c.phi, "");
		row[i] = LLVMBuildLoad2(e->b, em_vec(t, q), em_gep(e, t, p, off), "");
		LLVMSetAlignment(row[i], size);
	}
	/* a perfect shuffle of row i and row i + q/2, as often as q has bits, transposes */
	int lo[16], hi[16];
	for (int i = 0; i < q; i++) {
		lo[i] = i / 2 + (i % 2 ? q : 0);
		hi[i] = lo[i] + q / 2;
	}
	for (int s = 0; s < bits; s++) {
		for (int i = 0; i < q / 2; i++) {
			next[2 * i] = em_shuffle(e, row[i], row[i + q / 2], lo, q);
			next[2 * i + 1] = em_shuffle(e, row[i], row[i + q / 2], hi, q);
		}
		memcpy(row, next, sizeof row);
	}
	for (int i = 0; i < q; i++) {
		LV off = LLVMBuildAdd(e->b, LLVMBuildMul(e->b, LLVMBuildAdd(e->b, c.phi, em_ki(e->i64, i), ""), em_ki(e->i64, e->width), ""), a.phi, "");
		LLVMSetAlignment(LLVMBuildStore(e->b, row[i], em_gep(e, t, mem, off)), size);
	}
	loop_close(e, &c, q, em_ki(e->i64, e->s->across_block), NULL);
	loop_close(e, &a, q, em_ki(e->i64, e->width), NULL);
}

/* s->across in blocks; its transposed loads go through buffers.  The last block starts early enough to be
 * whole, so that nothing past the end of a row is read. */
static void across_loops(struct em *e, const struct gen_body *b)
{
	const struct gen_sched *s = e->s;
	int v = s->across;
	int64_t blk = s->across_block, blo = b->lo[v], bhi = b->hi[v];
	if (bhi - blo < blk || e->width < 4) {
		struct loop l = loop_open(e, 1u << v, e->across_lo);
		e->var[v] = l.phi;
		body_turn(e, (void *)b);
		loop_close(e, &l, 1, e->across_hi, NULL);
		return;
	}
	struct loop outer = loop_open(e, 0, e->across_lo);
	LV most = em_ki(e->i64, bhi - blk), up = LLVMBuildAdd(e->b, outer.phi, em_ki(e->i64, blk), "");
	LV first = em_sel(e, LLVMBuildICmp(e->b, LLVMIntSLT, outer.phi, most, ""), outer.phi, most);
	LV end = em_sel(e, LLVMBuildICmp(e->b, LLVMIntSLT, up, e->across_hi, ""), up, e->across_hi);
	e->ntr = 0;
	LLVMBasicBlockRef bb = turn_open(e, 1u << v);
	e->var[v] = first;
	bool *used = mem_alloc(s->nnode);
	gen_body_nodes(s, b, used);
	for (uint32_t k = 1; k < s->nnode; k++)
		if (used[k] && gen_across(s, &s->node[k]) && e->ntr < (int)NELEM(e->tr)) {
			LV mem = em_alloca(e, LLVMArrayType2(em_mem(e, s->node[k].dtype), (uint64_t)(blk * e->width)));
			LLVMSetAlignment(mem, (unsigned)e->t->line);
			transpose_block(e, &s->node[k], mem);
			e->tr[e->ntr].node = k;
			e->tr[e->ntr++].mem = mem;
		}
	free(used);
	turn_close(e, bb, NULL);
	e->tr_first = first;
	struct loop l = loop_open(e, 1u << v, outer.phi);
	e->var[v] = l.phi;
	body_turn(e, (void *)b);
	loop_close(e, &l, 1, end, NULL);
	e->ntr = 0;
	loop_close(e, &outer, blk, e->across_hi, NULL);
}

static void outer_loops(struct em *e, const struct gen_body *b, const struct tile *t, int i)
{
	const struct gen_sched *s = e->s;
	if (i == s->norder) {
		if (s->weave >= 0)
			weave_turn(e);
		else if (s->across >= 0)
			across_loops(e, b);
		else
			body_turn(e, (void *)b);
		return;
	}
	int v = s->order[i];
	int64_t ext = s->var[v].ext, blo = b->lo[v], bhi = b->hi[v];
	bool cut = blo > 0 || bhi < ext, lane = v == s->lane;
	LV lo = em_ki(e->i64, blo), hi = em_ki(e->i64, bhi), guard = NULL;
	int64_t known = bhi - blo;
	int turn = gen_lane_turn(s, MAX(s->width, 1));
	bool full = known % turn == 0;
	if (i < s->split && !cut && !lane && v != s->across) {
		/* one value a tile: it belongs to the tile's scope if all bodies agree */
		LLVMBasicBlockRef bb = s->nbody > 1 ? turn_open(e, 1u << v) : NULL;
		e->var[v] = t->at[i];
		outer_loops(e, b, t, i + 1);
		if (bb)
			turn_close(e, bb, NULL);
		return;
	}
	if (i < s->split || (i == s->split && s->block < ext)) {
		int64_t blk = i < s->split ? 1 : s->block;
		LV tl = i < s->split ? t->at[i] : LLVMBuildMul(e->b, t->at[i], em_ki(e->i64, blk), "");
		LV th = LLVMBuildAdd(e->b, tl, em_ki(e->i64, blk), "");
		lo = blo > 0 ? em_sel(e, LLVMBuildICmp(e->b, LLVMIntSGT, tl, lo, ""), tl, lo) : tl;
		hi = bhi < ext || ext % blk ? em_sel(e, LLVMBuildICmp(e->b, LLVMIntSLT, th, hi, ""), th, hi) : th;
		known = -1;
		full = blo % turn == 0 && bhi % turn == 0 && blk % turn == 0;
		if (cut)
			guard = LLVMBuildICmp(e->b, LLVMIntSLT, lo, hi, "");
	}
	if (lane) {
		int w = s->width;
		e->lane = v;
		e->low = s->low;
		e->width = known >= 0 ? lanes_for(e, known * (s->low < 0 ? 1 : s->var[s->low].ext)) : w;
		if (known >= 0)
			full = known % gen_lane_turn(s, e->width) == 0;
		if (e->width > 1) {
			/* an empty range gives no full vector and no partial one: (hi - lo) & -w could be negative */
			if (guard)
				hi = em_sel(e, guard, hi, lo);
			struct rest r = { b, t, i + 1 };
			if (s->down >= 0)
				down_loops(e, b, lo, hi, known, full, rest_turn, &r);
			else
				lane_loop(e, v, lo, hi, known, full, rest_turn, &r);
			e->lane = e->low = -1;
			e->width = 1;
			return;
		}
		e->lane = -1;
		e->width = 1;
	}
	if (v == s->across) {
		/* its loop is inside the lane's; an empty range must not get there */
		LLVMBasicBlockRef bb = guard ? turn_open(e, 0) : NULL;
		e->across_lo = lo;
		e->across_hi = hi;
		outer_loops(e, b, t, i + 1);
		if (bb)
			turn_close(e, bb, guard);
		return;
	}
	if (known == 1) {
		e->var[v] = lo;
		outer_loops(e, b, t, i + 1);
		return;
	}
	struct loop l = loop_open(e, 1u << v, lo);
	e->var[v] = l.phi;
	outer_loops(e, b, t, i + 1);
	loop_close(e, &l, 1, hi, guard);
}

static void all_tiles(struct em *e, LV t0, LV t1, LV some)
{
	const struct gen_sched *s = e->s;
	unsigned decoded = 0;
	for (int i = 0; i < s->split; i++)
		if (s->nbody == 1 && s->order[i] != s->across)
			decoded |= 1u << s->order[i];
	struct loop l = loop_open(e, decoded, t0);
	struct tile t;
	LV rest = l.phi;
	if (s->repeats) {               /* what is read for one repetition is still in the cache for the next */
		LV times = em_ki(e->i64, s->var[s->order[0]].ext);
		t.at[0] = LLVMBuildURem(e->b, rest, times, "");
		t.at[1] = LLVMBuildUDiv(e->b, rest, times, "");
	}
	for (int i = s->split; i >= 0 && s->norder && !s->repeats; i--) {
		int64_t ext = s->var[s->order[i]].ext, n = i == s->split ? (ext + s->block - 1) / s->block : ext;
		if (i == 0) {
			t.at[i] = rest;
		} else {
			t.at[i] = LLVMBuildURem(e->b, rest, em_ki(e->i64, n), "");
			rest = LLVMBuildUDiv(e->b, rest, em_ki(e->i64, n), "");
		}
	}
	for (int b = 0; b < (s->weave < 0 ? s->nbody : 1); b++)
		outer_loops(e, &s->body[b], &t, 0);
	loop_close(e, &l, 1, t1, some);
}

static void kernel(struct em *e)
{
	const struct gen_sched *s = e->s;
	scope_push(e, 0, em_block(e, "entry"));
	/* allocas and the operands' addresses go to the entry block, which ends by itself */
	e->bufp = mem_alloc(sizeof *e->bufp * (size_t)(s->nbuf + 1));
	int nptr = (int)(s->fn->nparam + s->fn->result.n);
	for (int i = 0; i < s->nbuf; i++)
		e->bufp[i] = i < nptr ? e->code->operand(e, i) : e->code->constant(e, s->buf[i].data, s->buf[i].n);
	LLVMBasicBlockRef body = em_block(e, "body");
	LLVMBuildBr(e->b, body);
	em_at(e, body);
	for (int v = 0; v < GEN_NV; v++)
		e->var[v] = em_ki(e->i64, 0);

	if (s->past) {
		/* two versions: addresses of results decide */
		LV any = em_ki(e->i64, 0);
		for (int i = (int)s->fn->nparam; i < nptr; i++)
			any = LLVMBuildOr(e->b, any, LLVMBuildPtrToInt(e->b, e->bufp[i], e->i64, ""), "");
		any = LLVMBuildAnd(e->b, any, em_ki(e->i64, e->t->line - 1), "");
		LV lines = LLVMBuildICmp(e->b, LLVMIntEQ, any, em_ki(e->i64, 0), "");
		e->past = true;
		all_tiles(e, e->t0, e->t1, LLVMBuildAnd(e->b, lines, LLVMBuildICmp(e->b, LLVMIntSLT, e->t0, e->t1, ""), ""));
		e->past = false;
		all_tiles(e, e->t0, e->t1, LLVMBuildAnd(e->b, LLVMBuildNot(e->b, lines, ""), LLVMBuildICmp(e->b, LLVMIntSLT, e->t0, e->t1, ""), ""));
		e->code->fence(e);
	} else {
		all_tiles(e, e->t0, e->t1, LLVMBuildICmp(e->b, LLVMIntSLT, e->t0, e->t1, ""));
	}
	LLVMBuildRetVoid(e->b);
	scope_pop(e);
	free(e->bufp);
}

/* --- the object --------------------------------------------------------- */

/* Target machines are not for two threads at once: a pool of them. */
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static struct { struct { const struct gen_target *t; LLVMTargetMachineRef tm; } p[64]; size_t n; } pool;

static LLVMTargetMachineRef machine_take(const struct em *e, char **msg)
{
	LLVMTargetMachineRef tm = NULL;
	pthread_mutex_lock(&pool_lock);
	for (size_t i = pool.n; !tm && i-- > 0;)
		if (pool.p[i].t == e->t) {
			tm = pool.p[i].tm;
			pool.p[i] = pool.p[--pool.n];
		}
	pthread_mutex_unlock(&pool_lock);
	return tm ? tm : e->code->machine(e->t, msg);
}

static void machine_give(const struct gen_target *t, LLVMTargetMachineRef tm)
{
	pthread_mutex_lock(&pool_lock);
	bool room = pool.n < NELEM(pool.p);
	if (room) {
		pool.p[pool.n].t = t;
		pool.p[pool.n++].tm = tm;
	}
	pthread_mutex_unlock(&pool_lock);
	if (!room)
		LLVMDisposeTargetMachine(tm);
}

/* Has the row of t all that it should have? */
static struct err *complete(const struct gen_target *t)
{
	const struct em_code *c = em_code_of(t);
#define HOOK(type, hook, args, needed) if ((needed) && !c->hook) return ERR(INTERNAL, "target '%s' lacks the hook '" #hook "'", t->name);
#include "hook.def"
#undef HOOK
	return NULL;
}

/* What LLVM holds of one group, given back also when memory runs out. */
struct llvm { LLVMTargetMachineRef tm; struct em *e; char *msg; };

static void llvm_end(void *v)
{
	struct llvm *l = v;
	LLVMDisposeMessage(l->msg);
	if (l->e && l->e->b)
		LLVMDisposeBuilder(l->e->b);
	if (l->e && l->e->m)
		LLVMDisposeModule(l->e->m);
	if (l->e && l->e->c)
		LLVMContextDispose(l->e->c);
	if (l->tm)
		machine_give(l->e->t, l->tm);
}

static void buffer_end(void *mb) { LLVMDisposeMemoryBuffer(mb); }

static struct err *group(struct arena *a, const struct gen_target *t, const struct ir_module *m, const struct ir_fn *fn, const struct prog_view *view,
                         struct gen_out *out)
{
	if (t->lacks)
		return ERR(UNAVAILABLE, "%s", t->lacks);
	TRY(complete(t));
	struct arena tmp;
	arena_init(&tmp);
	struct err *error = NULL;
	const char *why = NULL;
	bool tiny = gen_has_control(m, fn);
	int64_t most = tiny ? gen_tiny_most(t, m, fn, &why) : 0;
	struct gen_sched *s = tiny ? NULL : gen_schedule(&tmp, t, m, fn, view, &why);
	if (tiny ? !most : !s) {
		arena_fini(&tmp);
		return ERR(UNIMPLEMENTED, "group cannot be compiled: %s", why);
	}
	char *msg = NULL;
	struct em *e = mem_alloc(sizeof *e);
	e->t = t;
	e->code = em_code_of(t);
	LLVMTargetMachineRef tm = machine_take(e, &msg);
	if (!tm) {
		error = ERR(UNAVAILABLE, "LLVM has no code generator for '%s': %s", t->name, msg ? msg : "");
		LLVMDisposeMessage(msg);
		free(e);
		arena_fini(&tmp);
		return error;
	}
	struct llvm l = { tm, e, NULL };
	struct mem_undo undo;
	mem_undo(&undo, llvm_end, &l);
	e->c = LLVMContextCreate();
	e->m = LLVMModuleCreateWithNameInContext("group", e->c);
	e->b = LLVMCreateBuilderInContext(e->c);
	e->s = s;
	e->lane = e->low = -1;
	e->width = 1;
	e->i1 = LLVMInt1TypeInContext(e->c);
	e->i8 = LLVMInt8TypeInContext(e->c);
	e->i16 = LLVMInt16TypeInContext(e->c);
	e->i32 = LLVMInt32TypeInContext(e->c);
	e->i64 = LLVMInt64TypeInContext(e->c);
	e->f32 = LLVMFloatTypeInContext(e->c);
	e->f64 = LLVMDoubleTypeInContext(e->c);
	e->ptr = LLVMPointerTypeInContext(e->c, 0);
	e->vd = LLVMVoidTypeInContext(e->c);
	LLVMTargetDataRef td = LLVMCreateTargetDataLayout(tm);
	LLVMSetModuleDataLayout(e->m, td);
	LLVMDisposeTargetData(td);
	e->code->begin(e);
	em_attr(e, "denormal-fp-math", "preserve-sign,preserve-sign");
	unsigned nounwind = LLVMGetEnumAttributeKindForName("nounwind", 8);
	LLVMAddAttributeAtIndex(e->f, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, LLVMCreateEnumAttribute(e->c, nounwind, 0));

	double c0 = clock_s();
	if (tiny)
		error = em_tiny(e, m, fn, most, view);
	else
		kernel(e);
	double c1 = clock_s();
	if (*conf_str(CONF_DUMP)) {
		static atomic_int count;
		char path[512];
		snprintf(path, sizeof path, "%s/gen-%d.ll", conf_str(CONF_DUMP), atomic_fetch_add(&count, 1));
		char *text = LLVMPrintModuleToString(e->m);      /* a file that LLVM writes itself ends the process where the disk is full */
		struct err *lost = str_write_file(path, text, strlen(text));
		if (lost)
			conf_useless(CONF_DUMP, "a text is not written: %s", lost->msg);
		err_free(lost);
		LLVMDisposeMessage(text);
	}
	if (conf_int(CONF_CHECK)) {
		if (LLVMVerifyModule(e->m, LLVMReturnStatusAction, &msg))
			error = ERR(INTERNAL, "generated code is malformed: %s", msg);
		LLVMDisposeMessage(msg);
	}
	if (!error) {
		LLVMPassBuilderOptionsRef po = LLVMCreatePassBuilderOptions();
		LLVMErrorRef le = LLVMRunPasses(e->m, tiny ? "function(mem2reg,early-cse,loop-mssa(licm))" : "function(mem2reg,early-cse)", tm, po);
		LLVMDisposePassBuilderOptions(po);
		if (le) {
			char *text = LLVMGetErrorMessage(le);
			error = ERR(INTERNAL, "LLVM refused its passes: %s", text);
			LLVMDisposeErrorMessage(text);
		}
	}
	double c2 = clock_s();
	if (!error) {
		LLVMMemoryBufferRef mb;
		if (e->code->object(tm, e->m, &mb, &msg)) {
			error = ERR(INTERNAL, "LLVM made no object: %s", msg);
		} else {
			out->nobj = LLVMGetBufferSize(mb);
			struct mem_undo u;
			mem_undo(&u, buffer_end, mb);
			out->obj = arena_copy(a, LLVMGetBufferStart(mb), out->nobj);
			mem_done(&u);
			LLVMDisposeMemoryBuffer(mb);
		}
	}
	log_line(LOG_DEBUG, "gen: emit %.2f ms, passes %.2f ms, code %.2f ms, %zu bytes", (c1 - c0) * 1e3, (c2 - c1) * 1e3,
	         (clock_s() - c2) * 1e3, out->nobj);
	out->symbol = GEN_SYMBOL;
	out->tiles = tiny ? 1 : s->tiles;
	out->block = tiny ? 0 : s->linear || s->repeats ? s->block : s->rows;
	out->times = out->block && s->repeats ? s->var[s->order[0]].ext : out->block > 0;
	int64_t *over = ARENA_NEW(a, int64_t, fn->nparam);
	for (uint32_t r = 0; tiny && r < fn->result.n; r++) {
		int k = gen_loop_over(&tmp, m, fn, r);
		if (k >= 0)
			over[k] |= (int64_t)1 << r;
	}
	out->under = s && s->under ? arena_copy(a, s->under, sizeof *s->under * fn->nparam) : over;
	mem_done(&undo);
	llvm_end(&l);
	free(e);
	arena_fini(&tmp);
	return error;
}

/* This file brings its own copy of src/base: memory and settings are those of who loads it. */
static void join(const struct mem_home *m, struct conf_value *v)
{
	mem_join(m);
	conf_join(v);
}

__attribute__((visibility("default"))) const struct gen_api rondo_gen = { join, group };
