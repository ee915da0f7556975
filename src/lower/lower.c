/* IR -> prog: every value gets a place (storage and strides), every op becomes commands.
 *
 * Views are free: slice, transpose, broadcast, reverse, reshape and loop slices only change the place.
 * A kernel that cannot read a strided operand gets a dense copy, made once per value.
 *
 * Updates in place: a dynamic_update_slice or scatter takes the storage of its
 * operand when that dies there; loop carries live in one storage that the body's last op writes; results of
 * the program are written straight into their output buffers, and a donated argument's output is the
 * argument's memory.  "Dies" is decided by the position of the last reader of the value or of any view of
 * it, so all other readers are earlier in the program. */
#include "lw.h"

static struct err *lower_op(struct lw *w, struct frame *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	const struct ir_fn *fn = f->fn;
	if (lw_is_alias(w, fn, o)) {
		for (uint32_t k = 0; k < o->nout; k++) {
			ir_val x = ir_in(fn, o, k);
			if (o->kind == IR_optimization_barrier || o->kind == IR_sharding_constraint) {
				f->at[o->out + k] = f->at[x];
			} else if (!(f->at[o->out] = lw_place_view(w, fn, o, f->at[x])) && !lw_reshape_into(w, f, i)) {
				f->at[o->out] = lw_place_view(w, fn, o, lw_dense(w, f, x));
				f->root[o->out] = f->root[x];
			}
		}
		return NULL;
	}
	switch (o->kind) {
	case IR_constant:
		return lower_constant(w, f, o);
	case IR_concatenate:
		return lw_side_by_side(w, f, o) ? NULL : lower_steps(w, f, i);
	case IR_fused:
		return lower_fused(w, f, i);
	case IR_loop:
		return lower_loop(w, f, i);
	case IR_case:
		return lower_case(w, f, i);
	case IR_custom_call:
		return lower_custom(w, f, i);
	case IR_create_token: case IR_after_all: case IR_replica_id: case IR_partition_id:
		return lower_scalar(w, f, i);
	case IR_infeed: case IR_outfeed: case IR_send: case IR_recv:
		return ERR(UNIMPLEMENTED, "'%s' cannot be run", ir_info(o->kind)->name);
	default:
		if (ir_info(o->kind)->flags & IR_COLL)
			return lower_coll(w, f, i);
		return lower_steps(w, f, i);
	}
}

static void site_of(struct lw *w, const struct ir_op *o)
{
	const struct ir_loc_info *l = &w->m->loc.p[o->loc];
	struct str s = {0};
	ir_loc_lines(&s, w->m, o->loc);
	str_addf(&s, "%s%s", s.n ? " " : "", ir_info(o->kind)->name);
	size_t n = s.n;
	const char *scope = ir_text(w->m, l->name);
	str_addf(&s, "\n%s", scope);
	uint64_t *id = map_put(&w->site_map, s.p, s.n);
	if (!*id) {
		struct arena *a = &w->p->arena;
		arr_push(&w->site, ((struct prog_site){ arena_str(a, s.p, n), *scope ? arena_str(a, scope, strlen(scope)) : NULL }));
		*id = w->site.n;
	}
	w->site_now = (uint32_t)*id - 1;
	str_free(&s);
}

struct err *lower_ops(struct lw *w, struct frame *f)
{
	for (size_t i = 0; i < f->fn->op.n; i++) {
		f->stepping = (int)i;
		site_of(w, &f->fn->op.p[i]);
		struct err *e = lower_op(w, f, (int)i);
		if (!e)
			lw_loans_after(w, f, (int)i);
		const struct ir_op *op = &f->fn->op.p[i];
		for (uint32_t k = 0; !e && k < op->nout; k++)
			if (f->at[op->out + k] && f->root[op->out + k] == op->out + k) {
				struct store *s = &w->store.p[f->at[op->out + k]->store];
				s->holder = f->id;
				s->held = op->out + k;
			}
		if (e) {
			const struct ir_loc_info *l = &w->m->loc.p[f->fn->op.p[i].loc];
			if (l->file && !strstr(e->msg, ir_text(w->m, l->file)))
				e = err_wrap(e, "%s:%d", ir_text(w->m, l->file), l->line);
			return e;
		}
	}
	return NULL;
}

static void describe(struct lw *w, struct prog_arg *a, const struct ir_type_info *t, const struct ir_arg *i)
{
	struct arena *pa = &w->p->arena;
	a->dtype = t->dtype;
	a->rank = t->rank;
	a->bytes = t->bytes;
	a->dim = arena_copy(pa, t->dim, sizeof *t->dim * t->rank);
	if (i->layout) {                         /* t is as it lies */
		const struct layout *l;
		layout_read(ir_text(w->m, i->layout), t->rank, &l);
		a->layout = arena_str(pa, l->text, strlen(l->text));
		for (int k = 0; k < t->rank; k++)
			a->dim[l->minor[k]] = t->dim[t->rank - 1 - k];
	}
	a->global_dim = arena_copy(pa, a->dim, sizeof *a->dim * t->rank);
	for (int d = 0; d < t->rank; d++)
		a->global_dim[d] *= ir_shard_parts(w->m, i->shard, d);
	a->alias = -1;
	struct str s = {0};
	spmd_op_sharding(&s, w->m, i->shard, t->rank, w->p->ndev);
	a->sharding = arena_copy(pa, s.p, s.n);
	a->nsharding = s.n;
	str_free(&s);
	if (i->memory_kind) {
		const char *k = ir_text(w->m, i->memory_kind);
		a->memory_kind = arena_str(pa, k, strlen(k));
	}
}

static bool same_memory(const struct prog_arg *a, const struct prog_arg *r)
{
	const char *x = a->memory_kind, *y = r->memory_kind;
	return !strcmp(x && *x ? x : "device", y && *y ? y : "device");
}

/* Which output takes each donated parameter's memory: the one it names, else the first free one of the same type.  One of as many bytes uses
 * it up as well (-2), as JAX's users know it; a parameter that is of no use stays its owner's. */
static void choose_donations(struct lw *w, const struct ir_fn *fn)
{
	struct prog *p = w->p;
	bool *taken = ARENA_NEW(w->tmp, bool, p->nres);
	for (int round = 0; round < 3; round++)
		for (uint32_t a = 0; a < p->narg; a++) {
			const struct ir_arg *i = &w->m->arg[a];
			if (round == 0 && i->alias >= 0 && (uint32_t)i->alias < p->nres && !taken[i->alias] &&
			    p->arg[a].bytes == p->res[i->alias].bytes) {
				p->arg[a].alias = i->alias;
				taken[i->alias] = true;
			}
			for (uint32_t r = 0; round && i->donor && p->arg[a].alias == -1 && r < p->nres; r++)
				if (!taken[r] && p->arg[a].bytes == p->res[r].bytes && same_memory(&p->arg[a], &p->res[r])) {
					bool alike = fn->val.p[fn->result.p[r]].type == fn->val.p[a + 1].type;
					if (round == 1 && !alike)
						continue;
					p->arg[a].alias = alike ? (int32_t)r : -2;
					taken[r] = true;
					break;
				}
		}
}

/* One layout of the program.  *again: parts of it have no code, and choice says so. */
static struct err *lay_out(const struct lower_opts *opts, struct ir_module *m, struct lower_choice *choice, bool *again, struct prog **out)
{
	struct arena tmp;
	arena_init(&tmp);
	struct lw w = { .opts = opts, .tmp = &tmp, .m = m, .nreg = 1, .choice = choice };
	struct prog *p = w.p = prog_new();
	const struct ir_fn *fn = ir_main(m);
	const char *name = ir_text(m, m->name);
	struct err *e = NULL;
	p->name = arena_str(&p->arena, name, strlen(name));
	p->ndev = MAX(1, opts->ndev);
	p->fingerprint = opts->fingerprint;
	p->narg = fn->nparam;
	p->nres = (uint32_t)fn->result.n;
	p->arg = ARENA_NEW(&p->arena, struct prog_arg, p->narg);
	p->res = ARENA_NEW(&p->arena, struct prog_arg, p->nres);
	for (uint32_t a = 0; a < p->narg; a++)
		describe(&w, &p->arg[a], ir_vtype(m, fn, a + 1), &m->arg[a]);
	for (uint32_t r = 0; r < p->nres; r++)
		describe(&w, &p->res[r], ir_vtype(m, fn, fn->result.p[r]), &m->res[r]);
	choose_donations(&w, fn);

	struct frame f;
	lw_frame_init(&w, &f, fn);
	for (uint32_t a = 0; a < p->narg; a++) {
		const struct ir_type_info *t = ir_vtype(m, fn, a + 1);
		f.at[a + 1] = lw_place_new(&w, lw_store_new(&w, BUF_ARG, t->bytes, a), t->dtype, t->rank, t->dim);
	}
	struct place **res = ARENA_NEW(&tmp, struct place *, p->nres);
	for (uint32_t r = 0; r < p->nres; r++) {
		const struct ir_type_info *t = ir_vtype(m, fn, fn->result.p[r]);
		res[r] = lw_place_new(&w, lw_store_new(&w, BUF_OUT, t->bytes, r), t->dtype, t->rank, t->dim);
	}
	for (uint32_t a = 0; a < p->narg; a++)
		if (p->arg[a].alias >= 0) {
			int s = res[p->arg[a].alias]->store;
			w.store.p[f.at[a + 1]->store].donated_to = s;
			w.buf.p[w.store.p[s].buf].alias = (int32_t)w.store.p[f.at[a + 1]->store].buf;
			f.steal[a + 1] = true;
		}
	for (uint32_t r = 0; r < p->nres; r++)
		lw_target(&w, &f, fn->result.p[r], res[r]);
	lw_targets_back(&w, &f);
	lw_loans_plan(&w, &f);
	cmd_list list;
	void *saved;
	uint32_t main_blk = lw_block_begin(&w, &list, &saved);
	e = lower_ops(&w, &f);
	if (!e) {
		struct move *mv = ARENA_NEW(&tmp, struct move, p->nres);
		for (uint32_t r = 0; r < p->nres; r++)
			mv[r] = (struct move){ f.at[fn->result.p[r]], res[r] };
		lw_loans_moves(&w, &f, mv, (int)p->nres);
		lw_move_all(&w, mv, (int)p->nres);
		lw_land_since(&w, 0);
		lw_loans_close(&w, &f);
		lw_block_end(&w, main_blk, &list, saved);
		lw_memory_plan(&w);
		e = lw_code(&w, again);
	}
	if (!e) {
#define TAKE(field, n_field) do { p->n_field = (uint32_t)w.field.n; \
		p->field = arena_copy(&p->arena, w.field.p, w.field.n * sizeof *w.field.p); } while (0)
		TAKE(buf, nbuf);
		TAKE(kern, nkern);
		TAKE(opnd, nopnd);
		TAKE(sub, nsub);
		TAKE(block, nblock);
		TAKE(coll, ncoll);
		TAKE(custom, ncustom);
		TAKE(site, nsite);
		TAKE(table, ntable);
		TAKE(code, ncode);
		TAKE(group, ngroup);
#undef TAKE
		p->nreg = (uint32_t)w.nreg;
		p->ndata = (int64_t)w.data.n;
		char *d = arena_alloc(&p->arena, w.data.n + 64);
		d += -(uintptr_t)d & 63;
		if (w.data.n)
			memcpy(d, w.data.p, w.data.n);
		p->data = d;
		p->flops = (int64_t)MIN(ir_cost_of_fn(m, fn).flops, 9e18);
		lw_follow(&tmp, p);
		p->comm_hash = prog_comm_hash(p);
		if (w.nreg > 65000)
			e = ERR(UNIMPLEMENTED, "the program needs %d registers, of 65000", w.nreg);
	}
	arr_free(&w.buf); arr_free(&w.kern); arr_free(&w.opnd); arr_free(&w.sub); arr_free(&w.block);
	arr_free(&w.coll); arr_free(&w.custom); arr_free(&w.site); arr_free(&w.table); arr_free(&w.code);
	arr_free(&w.group); arr_free(&w.store); arr_free(&w.mark); arr_free(&w.flight); arr_free(&w.open); arr_free(&w.data); arr_free(&w.pending);
	for (size_t i = 0; i < w.loops.n; i++)
		arr_free(&w.loops.p[i].extend);
	arr_free(&w.loops);
	map_free(&w.site_map); map_free(&w.code_map); map_free(&w.const_map);
	arena_fini(&tmp);
	if (e || *again)
		prog_free(p);
	else
		*out = p;
	return e;
}

struct err *lower_module(const struct lower_opts *o, struct ir_module *m, struct lower_choice *choice, struct prog **out)
{
	static const struct plan_on alike;
	struct lower_opts mine = *o;
	mine.plan = o->plan ? o->plan : &alike;
	struct arena a;
	arena_init(&a);
	bool again = true;
	choice = choice ? choice : lower_choices(&a, o->tier, mine.plan->table, m);
	struct err *e = NULL;
	while (again && !e) {
		again = false;
		e = lay_out(&mine, m, choice, &again, out);
	}
	arena_fini(&a);
	return e;
}
