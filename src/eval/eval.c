/* The walk.  Positions that run the same function walk it in step, as a team, so a collective sees every
 * member's value at once; a branch or loop whose condition differs between positions splits the team, and
 * a collective inside it is then an error if its group is not whole.  Values are counted blocks: one that
 * nobody else holds is updated in place. */
#include <stdlib.h>

#include "walk.h"

void eval_array_free(struct eval_array *a)
{
	free(a->p);
	a->p = NULL;
}

/* --- per function ------------------------------------------------------------ */

static struct plan_fn *plan_of(struct walk *w, const struct ir_fn *fn)
{
	struct plan_fn *p = w->fn[fn->id];
	if (p)
		return p;
	p = w->fn[fn->id] = ARENA_NEW(&w->a, struct plan_fn, 1);
	p->op = ARENA_NEW(&w->a, struct ready, fn->op.n + 1);
	p->last = ARENA_NEW(&w->a, uint32_t, fn->val.n + 1);
	for (size_t i = 0; i < fn->op.n; i++)
		for (uint32_t j = 0; j < fn->op.p[i].nin; j++)
			p->last[ir_in(fn, &fn->op.p[i], j)] = (uint32_t)i + 1;
	for (size_t i = 0; i < fn->result.n; i++)
		p->last[fn->result.p[i]] = UINT32_MAX;
	return p;
}

static void plans_free(struct walk *w)
{
	for (size_t f = 0; f < w->m->fn.n; f++)
		if (w->fn[f])
			for (size_t i = 0; i < w->m->fn.p[f]->op.n; i++)
				for (int j = 0; j < w->fn[f]->op[i].n; j++)
					if (w->fn[f]->op[i].state)
						kern_release(w->fn[f]->op[i].state[j]);
}

static size_t bytes_of(const struct walk *w, const struct ir_fn *fn, ir_val v)
{
	return (size_t)ir_vtype(w->m, fn, v)->bytes;
}

/* --- kernels ------------------------------------------------------------------- */

static void need(void **p, size_t *have, size_t n)
{
	if (n <= *have)
		return;
	free(*p);
	*p = NULL;
	*have = 0;
	*p = mem_aligned(64, n);
	*have = n;
}

static void run_kernel(struct walk *w, const struct prog_kern *k, struct kern_state *s, char **ptr)
{
	need(&w->scratch, &w->nscratch, kern_scratch(k, s));
	need(&w->shared, &w->nshared, kern_shared(k, s));
	ptr[k->nin + k->nout] = w->shared;
	for (int ph = 0; ph < kern_phases(k, s); ph++)
		kern_run(k, s, ph, ptr, 0, kern_tiles(k, s), w->scratch);
}

/* Has the op a region that may be too much for a kernel?  Then it is walked element by element. */
static bool is_regional(const struct ir_fn *fn, const struct ir_op *o)
{
	switch (o->kind) {
	case IR_reduce: return ir_attr(fn, o, AT_fn) != 0;
	case IR_reduce_window: return ir_attr(fn, o, AT_fn) != 0;
	case IR_scatter: return ir_attr(fn, o, AT_fn) != 0;
	case IR_sort: case IR_select_and_scatter: return true;
	default: return false;
	}
}

static struct err *prepare(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, struct ready *r)
{
	if (r->done)
		return NULL;
	struct err *e = eval_steps(&w->a, w->m, fn, o, &r->step, &r->n);
	if (!e) {
		r->state = ARENA_NEW(&w->a, struct kern_state *, r->n + 1);
		for (int i = 0; i < r->n && !e; i++)
			e = kern_prepare(&r->step[i].k, &r->state[i]);
	}
	if (e && e->code == ERR_UNIMPLEMENTED && is_regional(fn, o)) {
		err_free(e);
		e = NULL;
		for (int i = 0; i < r->n && r->state; i++)
			kern_release(r->state[i]);
		r->n = 0;
		r->general = true;
	}
	r->done = !e;
	return e;
}

static struct err *run_op(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, struct ready *r, int pos,
                          struct blk **in, const bool *dies, struct blk **out)
{
	TRY(prepare(w, fn, o, r));
	if (r->general)
		return walk_region(w, fn, o, pos, in, out);
	if (!r->n) {
		for (uint32_t j = 0; j < o->nout; j++)
			out[j] = j < o->nin && in[j] ? blk_ref(in[j]) : blk_new(bytes_of(w, fn, o->out + j));
		return NULL;
	}
	for (int i = 0; i < r->n; i++) {
		struct eval_step *s = &r->step[i];
		if (s->init) {
			int from = s->arg[0], to = ~s->arg[1];
			/* nobody else reads it any more: take it */
			bool only = dies[from] && in[from]->ref == 1;
			for (uint32_t j = 0; j < o->nin; j++)
				only &= (int)j == from || in[j] != in[from];
			if (only) {
				out[to] = blk_ref(in[from]);
				continue;
			}
		}
		char *ptr[512];
		int n = s->k.nin + s->k.nout;
		if (n >= 511)
			return ERR(UNIMPLEMENTED, "'%s' with %d operands", ir_info(o->kind)->name, s->k.nin);
		for (int j = 0; j < n; j++) {
			int a = s->arg[j];
			if (a < 0 && !out[~a])
				out[~a] = blk_new(bytes_of(w, fn, o->out + (uint32_t)~a));
			ptr[j] = a < 0 ? out[~a]->p : in[a]->p;
		}
		run_kernel(w, &s->k, r->state[i], ptr);
	}
	return NULL;
}

/* --- control flow ---------------------------------------------------------------- */

static void unref_all(struct blk **b, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		blk_unref(b[i]);
		b[i] = NULL;
	}
}

static bool truth(const struct blk *b) { return b->p[0] != 0; }

static struct blk *iteration(int64_t i)
{
	struct blk *b = blk_new(4);
	int32_t v = (int32_t)i;
	memcpy(b->p, &v, 4);
	return b;
}

static struct blk *writable(struct blk *b)
{
	if (b->ref == 1)
		return b;
	struct blk *c = blk_new(b->n);
	memcpy(c->p, b->p, b->n);
	b->ref--;
	return c;
}

/* While: members leave the team as their condition fails. */
static struct err *run_while(struct walk *w, const struct ir_op *o, const struct ir_loop *l, struct team t, struct blk **in, struct blk **out)
{
	size_t n = (size_t)l->n, np = l->body->nparam, nr = (size_t)l->nmade;
	/* state of each member: all operands */
	struct blk **st = mem_alloc(sizeof *st * (size_t)t.n * n + 8), **bin = mem_alloc(sizeof *bin * (size_t)t.n * (n + 1) + 8),
	           **res = mem_alloc(sizeof *res * (size_t)t.n * (nr + 1) + 8);
	int *who = mem_alloc(sizeof *who * (size_t)t.n + 8), *pos = mem_alloc(sizeof *pos * (size_t)t.n + 8), live = t.n;
	for (size_t i = 0; i < (size_t)t.n * n; i++) {
		st[i] = in[i];     /* taken */
		in[i] = NULL;
	}
	for (int i = 0; i < t.n; i++)
		who[i] = i;
	struct err *e = NULL;
	for (int64_t it = 0; live; it++) {
		if (w->opt->max_iter && it > w->opt->max_iter) {
			e = ERR(OUT_OF_RANGE, "loop ran more than %lld times", (long long)w->opt->max_iter);
			break;
		}
		for (int i = 0; i < live; i++) {
			pos[i] = t.pos[who[i]];
			for (size_t j = 0; j < n; j++)
				bin[(size_t)i * n + l->x[j].asked - 1] = blk_ref(st[(size_t)who[i] * n + j]);
		}
		TRY_GOTO(e, walk_fn(w, l->cond, (struct team){ live, pos }, bin, res), out);
		int k = 0;
		for (int i = 0; i < live; i++) {
			if (truth(res[i]))
				who[k++] = who[i];
			blk_unref(res[i]);
			res[i] = NULL;
		}
		live = k;
		if (!live)
			break;
		for (int i = 0; i < live; i++) {
			struct blk **b = &bin[(size_t)i * np];
			pos[i] = t.pos[who[i]];
			b[IR_LOOP_TURN - 1] = iteration(it);
			for (size_t j = 0; j < n; j++) {
				/* carries are handed over: the body may update them in place */
				struct blk **s = &st[(size_t)who[i] * n + j];
				b[l->x[j].param - 1] = l->x[j].role == ROLE_CARRY ? *s : blk_ref(*s);
				if (l->x[j].role == ROLE_CARRY)
					*s = NULL;
			}
		}
		TRY_GOTO(e, walk_fn(w, l->body, (struct team){ live, pos }, bin, res), out);
		for (int i = 0; i < live; i++)
			for (size_t r = 0; r < nr; r++) {
				st[(size_t)who[i] * n + (size_t)l->made[r]] = res[(size_t)i * nr + r];
				res[(size_t)i * nr + r] = NULL;
			}
	}
	for (int i = 0; i < t.n && !e; i++)
		for (size_t r = 0; r < nr; r++)
			out[(size_t)i * o->nout + r] = blk_ref(st[(size_t)i * n + (size_t)l->made[r]]);
out:
	unref_all(st, (size_t)t.n * n);
	unref_all(res, (size_t)t.n * (nr + 1));
	free(st);
	free(bin);
	free(res);
	free(who);
	free(pos);
	return e;
}

static struct err *run_counted(struct walk *w, const struct ir_fn *fn, const struct ir_loop *l, struct team t, struct blk **in, struct blk **out)
{
	size_t n = (size_t)l->n, np = l->body->nparam, nr = (size_t)l->nmade;
	struct blk **bin = mem_alloc(sizeof *bin * (size_t)t.n * np), **res = mem_alloc(sizeof *res * (size_t)t.n * nr + 8);
	struct err *e = NULL;
	for (int i = 0; i < t.n; i++)
		for (size_t r = 0; r < nr; r++) {
			struct blk **x = &in[(size_t)i * n + (size_t)l->made[r]];
			out[(size_t)i * nr + r] = *x;     /* taken */
			*x = NULL;
		}
	for (int64_t it = 0; it < l->trip && !e; it++) {
		for (int i = 0; i < t.n; i++) {
			struct blk **b = &bin[(size_t)i * np];
			b[IR_LOOP_TURN - 1] = iteration(it);
			for (size_t j = 0; j < n; j++) {
				const struct ir_loop_operand *k = &l->x[j];
				struct blk *x = in[(size_t)i * n + j], **to = &b[k->param - 1];
				if (k->role == ROLE_CARRY) {
					struct blk **s = &out[(size_t)i * nr + (size_t)k->result];
					*to = *s;
					*s = NULL;
				} else if (k->role == ROLE_CONST) {
					*to = blk_ref(x);
				} else if (ir_role_is_in(k->role)) {
					const struct ir_type_info *ty = ir_vtype(w->m, fn, k->v);
					size_t row = ty->rank && ty->dim[0] ? (size_t)(ty->bytes / ty->dim[0]) : 0;
					*to = blk_new(row);
					memcpy((*to)->p, x->p + row * (size_t)(ir_role_is_reversed(k->role) ? l->trip - 1 - it : it), row);
				}
			}
		}
		e = walk_fn(w, l->body, t, bin, res);
		for (int i = 0; i < t.n && !e; i++)
			for (size_t r = 0; r < nr; r++) {
				const struct ir_loop_operand *k = &l->x[l->made[r]];
				struct blk **y = &out[(size_t)i * nr + r], *x = res[(size_t)i * nr + r];
				res[(size_t)i * nr + r] = NULL;
				if (k->role == ROLE_CARRY) {
					*y = x;
					continue;
				}
				*y = writable(*y);
				memcpy((*y)->p + x->n * (size_t)(ir_role_is_reversed(k->role) ? l->trip - 1 - it : it), x->p, x->n);
				blk_unref(x);
			}
	}
	unref_all(res, (size_t)t.n * nr);
	free(bin);
	free(res);
	return e;
}

static struct err *run_loop(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, struct team t, struct blk **in, struct blk **out)
{
	struct arena a;
	arena_init(&a);
	const struct ir_loop l = ir_loop_view(&a, w->m, fn, o);
	struct err *e = l.cond ? run_while(w, o, &l, t, in, out) : run_counted(w, fn, &l, t, in, out);
	arena_fini(&a);
	return e;
}

static struct err *run_case(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, struct team t,
                            struct blk *const *in, struct blk **out)
{
	int nb;
	const int64_t *branch = ir_attrs(fn, o, AT_branch, &nb);
	int *pos = mem_alloc(sizeof *pos * (size_t)t.n), *who = mem_alloc(sizeof *who * (size_t)t.n);
	struct blk **bin = mem_alloc(sizeof *bin * (size_t)t.n * o->nin), **res = mem_alloc(sizeof *res * (size_t)t.n * o->nout + 8);
	struct err *e = NULL;
	for (int b = 0; b < nb && !e; b++) {
		int n = 0;
		for (int i = 0; i < t.n; i++) {
			const struct ir_type_info *ty = ir_vtype(w->m, fn, ir_in(fn, o, 0));
			int64_t ix = 0;
			if (ty->bytes == 1) {
				ix = in[(size_t)i * o->nin]->p[0];
			} else {
				int32_t v;
				memcpy(&v, in[(size_t)i * o->nin]->p, 4);
				ix = v;
			}
			if (ix < 0 || ix >= nb)
				ix = nb - 1;
			if (ix != b)
				continue;
			who[n] = i;
			pos[n] = t.pos[i];
			for (uint32_t j = 1; j < o->nin; j++)
				bin[(size_t)n * (o->nin - 1) + j - 1] = blk_ref(in[(size_t)i * o->nin + j]);
			n++;
		}
		if (!n)
			continue;
		e = walk_fn(w, ir_fn_of(w->m, (ir_fnid)branch[b]), (struct team){ n, pos }, bin, res);
		for (int i = 0; i < n && !e; i++)
			for (uint32_t j = 0; j < o->nout; j++) {
				out[(size_t)who[i] * o->nout + j] = res[(size_t)i * o->nout + j];
				res[(size_t)i * o->nout + j] = NULL;
			}
	}
	free(pos);
	free(who);
	free(bin);
	free(res);
	return e;
}

static struct err *run_custom(struct walk *w, const struct ir_fn *fn, const struct ir_op *o, struct blk *const *in, struct blk **out)
{
	const char *target = ir_text(w->m, (ir_str)ir_attr(fn, o, AT_target));
	if (!w->opt->custom)
		return ERR(UNIMPLEMENTED, "custom_call '%s' has no implementation here", target);
	struct eval_array *a = mem_alloc(sizeof *a * (o->nin + o->nout + 1)), *r = a + o->nin;
	for (uint32_t i = 0; i < o->nin + o->nout; i++) {
		const struct ir_type_info *t = ir_vtype(w->m, fn, i < o->nin ? ir_in(fn, o, i) : o->out + i - o->nin);
		a[i].dtype = (enum dtype)t->dtype;
		a[i].rank = t->rank;
		memcpy(a[i].dim, t->dim, sizeof *t->dim * t->rank);
		a[i].bytes = (size_t)t->bytes;
		if (i >= o->nin)
			out[i - o->nin] = blk_new((size_t)t->bytes);
		a[i].p = i < o->nin ? in[i]->p : out[i - o->nin]->p;
	}
	size_t nd = 0;
	ir_blob d = (ir_blob)ir_attr(fn, o, AT_config);
	const void *dict = d ? ir_blob_data(w->m, d, &nd) : NULL;
	struct err *e = w->opt->custom(w->opt->user, target, dict, nd, (int)o->nin, a, (int)o->nout, r);
	free(a);
	return e;
}

/* --- a function -------------------------------------------------------------------- */

static struct blk *constant(struct walk *w, const struct ir_fn *fn, const struct ir_op *o)
{
	const struct ir_type_info *t = ir_vtype(w->m, fn, o->out);
	size_t n, es = dtype_info[t->dtype].bytes;
	const void *p = ir_blob_data(w->m, (ir_blob)ir_attr(fn, o, AT_data), &n);
	struct blk *b = blk_new((size_t)t->bytes);
	if (n >= (size_t)t->bytes)
		memcpy(b->p, p, (size_t)t->bytes);
	else
		for (int64_t i = 0; i < t->count; i++)
			memcpy(b->p + (size_t)i * es, p, es);
	return b;
}

struct err *walk_fn(struct walk *w, const struct ir_fn *fn, struct team t, struct blk **args, struct blk **results)
{
	struct plan_fn *p = plan_of(w, fn);
	size_t nv = fn->val.n;
	struct blk **v = mem_alloc(sizeof *v * nv * (size_t)t.n + 8);
	struct err *e = NULL;
	for (int i = 0; i < t.n; i++)
		for (uint32_t j = 0; j < fn->nparam; j++) {
			struct blk **x = &args[(size_t)i * fn->nparam + j];
			if (p->last[1 + j])
				v[(size_t)i * nv + 1 + j] = *x;
			else
				blk_unref(*x);
			*x = NULL;
		}
	for (size_t k = 0; k < fn->op.n && !e; k++) {
		const struct ir_op *o = &fn->op.p[k];
		struct blk **in = mem_alloc(sizeof *in * (size_t)t.n * (o->nin + o->nout + 1)), **out = in + (size_t)t.n * o->nin;
		bool *dies = mem_alloc(o->nin + 1);
		for (uint32_t j = 0; j < o->nin; j++)
			dies[j] = p->last[ir_in(fn, o, j)] == k + 1;
		for (int i = 0; i < t.n; i++)
			for (uint32_t j = 0; j < o->nin; j++)
				in[(size_t)i * o->nin + j] = blk_ref(v[(size_t)i * nv + ir_in(fn, o, j)]);
		/* values that end here are held by in alone */
		for (int i = 0; i < t.n; i++)
			for (uint32_t j = 0; j < o->nin; j++)
				if (dies[j]) {
					ir_val x = ir_in(fn, o, j);
					blk_unref(v[(size_t)i * nv + x]);
					v[(size_t)i * nv + x] = NULL;
				}
		unsigned flags = ir_info(o->kind)->flags;
		switch (o->kind) {
		case IR_constant:
			out[0] = constant(w, fn, o);
			for (int i = 1; i < t.n; i++)
				out[i] = blk_ref(out[0]);
			break;
		case IR_partition_id:
			for (int i = 0; i < t.n; i++) {
				out[i] = blk_new(4);
				uint32_t id = (uint32_t)t.pos[i];
				memcpy(out[i]->p, &id, 4);
			}
			break;
		case IR_call: case IR_fused:
			e = walk_fn(w, ir_fn_of(w->m, (ir_fnid)ir_attr(fn, o, AT_fn)), t, in, out);
			break;
		case IR_case:
			e = run_case(w, fn, o, t, in, out);
			break;
		case IR_loop:
			e = run_loop(w, fn, o, t, in, out);
			break;
		case IR_manual:
			e = walk_manual(w, fn, o, t, in, out);
			break;
		case IR_custom_call:
			for (int i = 0; i < t.n && !e; i++)
				e = run_custom(w, fn, o, in + (size_t)i * o->nin, out + (size_t)i * o->nout);
			break;
		default:
			if (flags & IR_COLL) {
				e = walk_coll(w, fn, o, t, in, out);
				break;
			}
			for (int i = 0; i < t.n && !e; i++)
				e = run_op(w, fn, o, &p->op[k], t.pos[i], in + (size_t)i * o->nin, dies, out + (size_t)i * o->nout);
		}
		for (int i = 0; i < t.n; i++)
			for (uint32_t j = 0; j < o->nout; j++) {
				struct blk **x = &v[(size_t)i * nv + o->out + j];
				*x = out[(size_t)i * o->nout + j];
				if (!p->last[o->out + j]) {
					blk_unref(*x);
					*x = NULL;
				}
			}
		unref_all(in, (size_t)t.n * o->nin);
		free(in);
		free(dies);
		if (e && o->loc) {
			const struct ir_loc_info *l = &w->m->loc.p[o->loc];
			if (l->line)
				e = err_wrap(e, "%s:%d", ir_text(w->m, l->file), l->line);
		}
	}
	for (int i = 0; i < t.n && !e; i++)
		for (size_t j = 0; j < fn->result.n; j++)
			results[(size_t)i * fn->result.n + j] = blk_ref(v[(size_t)i * nv + fn->result.p[j]]);
	unref_all(v, nv * (size_t)t.n);
	free(v);
	return e;
}

/* --- entry --------------------------------------------------------------------------- */

static struct err *run(const struct ir_module *m, const struct ir_fn *fn, const struct eval_opts *opt,
                       const struct eval_array *args, struct eval_array *res)
{
	struct walk w = { .m = m, .opt = opt, .ndev = MAX(1, opt->ndev) };
	arena_init(&w.a);
	w.fn = ARENA_NEW(&w.a, struct plan_fn *, m->fn.n + 1);
	size_t np = fn->nparam, nr = fn->result.n, nd = (size_t)w.ndev;
	struct blk **in = mem_alloc(sizeof *in * nd * np + 8), **out = mem_alloc(sizeof *out * nd * nr + 8);
	int *pos = mem_alloc(sizeof *pos * nd);
	struct err *e = NULL;
	unsigned fp = cpu_set_ftz();
	for (size_t i = 0; i < nd; i++)
		pos[i] = (int)i;
	for (size_t i = 0; i < nd * np; i++) {
		const struct ir_type_info *t = ir_vtype(m, fn, (ir_val)(1 + i % np));
		if (args[i].bytes != (size_t)t->bytes) {
			e = ERR(INVALID, "argument %zu has %zu bytes, not %lld", i % np, args[i].bytes, (long long)t->bytes);
			goto done;
		}
		in[i] = blk_new((size_t)t->bytes);
		memcpy(in[i]->p, args[i].p ? args[i].p : "", (size_t)t->bytes);
	}
	TRY_GOTO(e, walk_fn(&w, fn, (struct team){ w.ndev, pos }, in, out), done);
	for (size_t i = 0; i < nd * nr; i++) {
		const struct ir_type_info *t = ir_vtype(m, fn, fn->result.p[i % nr]);
		res[i].dtype = (enum dtype)t->dtype;
		res[i].rank = t->rank;
		memcpy(res[i].dim, t->dim, sizeof *t->dim * t->rank);
		res[i].bytes = (size_t)t->bytes;
		res[i].p = mem_alloc((size_t)t->bytes + 1);
		memcpy(res[i].p, out[i]->p, (size_t)t->bytes);
	}
done:
	cpu_restore_fp(fp);
	unref_all(in, nd * np);
	unref_all(out, nd * nr);
	plans_free(&w);
	free(in);
	free(out);
	free(pos);
	free(w.scratch);
	free(w.shared);
	arena_fini(&w.a);
	return e;
}

struct err *eval_main(const struct ir_module *m, const struct eval_opts *o,
                      const struct eval_array *args, struct eval_array *res)
{
	return run(m, ir_main(m), o, args, res);
}

struct err *eval_fn(const struct ir_module *m, const struct ir_fn *fn, const struct eval_array *args, struct eval_array *res)
{
	struct eval_opts o = { .ndev = 1 };
	return run(m, fn, &o, args, res);
}
