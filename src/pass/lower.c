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
#include "lower.h"

/* --- commands ------------------------------------------------------------ */

struct prog_cmd *lw_cmd(struct lw *w, enum prog_op op)
{
	cmd_list *c = (cmd_list *)w->cur;
	arr_push(c, ((struct prog_cmd){ .op = (uint8_t)op, .site = w->site_now }));
	w->now++;
	return &c->p[c->n - 1];
}

uint16_t lw_reg_new(struct lw *w)
{
	return (uint16_t)w->nreg++;
}

uint32_t lw_block_begin(struct lw *w, cmd_list *mine, void **saved)
{
	*saved = w->cur;
	*mine = (cmd_list){0};
	w->cur = (void *)mine;
	arr_push(&w->block, ((struct prog_block){0}));
	return (uint32_t)w->block.n - 1;
}

void lw_block_end(struct lw *w, uint32_t id, cmd_list *mine, void *saved)
{
	w->block.p[id].n = (uint32_t)mine->n;
	w->block.p[id].cmd = arena_copy(&w->p->arena, mine->p, mine->n * sizeof *mine->p);
	arr_free(mine);
	w->cur = saved;
}

void lw_loop_begin(struct lw *w)
{
	arr_push(&w->loops, ((struct loop_frame){ .start = w->now }));
}

void lw_loop_end(struct lw *w)
{
	struct loop_frame l = w->loops.p[--w->loops.n];
	for (size_t i = 0; i < l.extend.n; i++)
		pass_store_touch(w, l.extend.p[i]);
	arr_free(&l.extend);
}

static void site_of(struct lw *w, const struct ir_op *o)
{
	const struct ir_loc_info *l = &w->m->loc.p[o->loc];
	struct str s = {0};
	const char *file = ir_text(w->m, l->file), *base = strrchr(file, '/');
	if (*file)
		str_addf(&s, "%s:%d ", base ? base + 1 : file, l->line);
	str_add(&s, ir_info(o->kind)->name);
	uint64_t *id = map_put(&w->site_map, s.p, s.n);
	if (!*id) {
		arr_push(&w->site, ((struct prog_site){ arena_str(&w->p->arena, s.p, s.n) }));
		*id = w->site.n;
	}
	w->site_now = (uint32_t)*id - 1;
	str_free(&s);
}

void lw_view_from(struct lw *w, struct prog_view *v, const struct place *p)
{
	v->dtype = (uint8_t)p->dtype;
	v->rank = (uint8_t)p->rank;
	v->off = 0;
	v->dim = arena_copy(&w->p->arena, p->dim, sizeof *p->dim * (size_t)p->rank);
	v->stride = arena_copy(&w->p->arena, p->stride, sizeof *p->stride * (size_t)p->rank);
}

void lw_emit_kern(struct lw *w, struct prog_kern *k, struct place *const *pl)
{
	int n = k->nin + k->nout;
	if (!k->bytes)
		for (int i = 0; i < n; i++) {
			int64_t c = dtype_info[k->v[i].dtype].bytes;
			for (int d = 0; d < k->v[i].rank; d++)
				c *= k->v[i].dim[d];
			k->bytes += c;
		}
	arr_push(&w->kern, *k);
	uint32_t first = (uint32_t)w->opnd.n;
	struct prog_cmd *c = lw_cmd(w, CMD_KERN);
	c->id = (uint32_t)w->kern.n - 1;
	c->opnd = first;
	c->nopnd = (uint32_t)n;
	w->now--;                           /* operands are used at the command's own time */
	for (int i = 0; i < n; i++)
		arr_push(&w->opnd, pass_place_opnd(w, pl[i]));
	w->now++;
}

void lw_emit_copy(struct lw *w, struct place *src, struct place *dst)
{
	struct prog_kern k = { .id = KERN_copy, .nin = 1, .nout = 1, .code = -1 };
	if (pass_place_bytes(dst) == 0)
		return;
	k.v = ARENA_NEW(&w->p->arena, struct prog_view, 2);
	lw_view_from(w, &k.v[0], src);
	lw_view_from(w, &k.v[1], dst);
	lw_emit_kern(w, &k, (struct place *[]){ src, dst });
}

uint32_t lw_opnds(struct lw *w, struct prog_cmd *c, int n, struct place *const *pl)
{
	uint32_t first = (uint32_t)w->opnd.n;
	w->now--;
	for (int i = 0; i < n; i++)
		arr_push(&w->opnd, pass_place_opnd(w, pl[i]));
	w->now++;
	c->opnd = first;
	c->nopnd = (uint32_t)n;
	return first;
}

struct place *lw_temp(struct lw *w, enum dtype dt, int rank, const int64_t *dim)
{
	int64_t n = dtype_info[dt].bytes;
	for (int i = 0; i < rank; i++)
		n *= dim[i];
	return pass_place_new(w, pass_store_new(w, BUF_TEMP, n, 0), dt, rank, dim);
}

/* --- single ops ------------------------------------------------------------ */

static bool takes_strides(enum kern_id k)
{
	return k == KERN_elem || k == KERN_copy || k == KERN_dot || k == KERN_reduce || k == KERN_dynamic_slice ||
	       k == KERN_dynamic_update || k == KERN_pad;
}

static bool full_view(const struct prog_view *v, const struct place *p)
{
	return v->off == 0 && v->rank == p->rank && prog_view_dense(v) && v->dtype == p->dtype &&
	       !memcmp(v->dim, p->dim, sizeof *p->dim * (size_t)p->rank);
}

static struct err *lower_steps(struct lw *w, struct frame *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	struct eval_step *st;
	int n;
	TRY(eval_steps(&w->p->arena, w->m, f->fn, o, &st, &n));
	if (n == 0 && o->nout == 1 && o->nin >= 1) {
		f->at[o->out] = pass_place_reshape(w, lw_dense(w, f, ir_in(f->fn, o, 0)), ir_vtype(w->m, f->fn, o->out)->dtype,
		                              ir_vtype(w->m, f->fn, o->out)->rank, ir_vtype(w->m, f->fn, o->out)->dim);
		return NULL;
	}
	struct place *stolen[64] = {0};
	for (int s = 0; s < n; s++)              /* the operand an in-place result starts from */
		if (st[s].init && ~st[s].arg[1] < (int)NELEM(stolen)) {
			int r = ~st[s].arg[1];
			ir_val x = ir_in(f->fn, o, (uint32_t)st[s].arg[0]);
			stolen[r] = lw_steal(w, f, i, x);
		}
	for (uint32_t k = 0; k < o->nout; k++)
		f->at[o->out + k] = k < NELEM(stolen) && stolen[k] ? stolen[k] : lw_result_at(w, f, i, o->out + k);
	for (int s = 0; s < n; s++) {
		struct prog_kern *k = &st[s].k;
		struct place **pl = ARENA_NEW(w->tmp, struct place *, k->nin + k->nout);
		if (st[s].init && ~st[s].arg[1] < (int)NELEM(stolen) && stolen[~st[s].arg[1]])
			continue;
		for (int a = 0; a < k->nin + k->nout; a++) {
			if (st[s].arg[a] < 0) {
				pl[a] = f->at[o->out + (uint32_t)~st[s].arg[a]];
				continue;
			}
			ir_val v = ir_in(f->fn, o, (uint32_t)st[s].arg[a]);
			struct place *p = f->at[v];
			if (!pass_place_dense(p) && full_view(&k->v[a], p) && takes_strides(k->id))
				memcpy(k->v[a].stride, p->stride, sizeof *p->stride * (size_t)p->rank);
			else
				p = lw_dense(w, f, v);
			pl[a] = p;
		}
		lw_emit_kern(w, k, pl);
	}
	return NULL;
}

struct err *lower_constant(struct lw *w, struct frame *f, const struct ir_op *o)
{
	size_t n;
	const struct ir_type_info *t = ir_vtype(w->m, f->fn, o->out);
	const char *p = ir_blob_data(w->m, (ir_blob)ir_attr(f->fn, o, AT_data), &n);
	size_t e = dtype_info[t->dtype].bytes;
	if (t->bytes == 0) {
		f->at[o->out] = lw_temp(w, t->dtype, t->rank, t->dim);
		return NULL;
	}
	bool splat = n == e;
	uint64_t *id = map_put(&w->const_map, p, n);
	if (!*id) {
		while (w->data.n & 63)
			arr_push(&w->data, 0);
		int s = pass_store_new(w, BUF_CONST, (int64_t)n, 0);
		w->store.p[s].depth = 0;
		w->buf.p[w->store.p[s].buf].off = (int64_t)w->data.n;
		arr_reserve(&w->data, n);
		memcpy(w->data.p + w->data.n, p, n);
		w->data.n += n;
		*id = (uint64_t)s + 1;
	}
	struct place *q = pass_place_new(w, (int)*id - 1, t->dtype, t->rank, t->dim);
	if (splat)
		memset(q->stride, 0, sizeof *q->stride * (size_t)q->rank);
	f->at[o->out] = q;
	return NULL;
}

static uint32_t table_new(struct lw *w)
{
	arr_push(&w->table, ((struct prog_table){ ARENA_NEW(&w->p->arena, int64_t, w->p->ndev) }));
	return (uint32_t)w->table.n - 1;
}

static uint32_t group_new(struct lw *w, ir_group id)
{
	struct prog_group g = {0};
	int nd = w->p->ndev;
	int64_t *all = ARENA_NEW(w->tmp, int64_t, nd);
	const struct ir_group_info everyone = { 1, nd, all }, *i = &w->m->group.p[id];
	if (!id || !i->nrow) {
		for (int d = 0; d < nd; d++)
			all[d] = d;
		i = &everyone;
	}
	g.nrow = i->nrow;
	g.ncol = i->ncol;
	g.id = arena_copy(&w->p->arena, i->id, sizeof *g.id * (size_t)(g.nrow * g.ncol));
	g.row = ARENA_NEW(&w->p->arena, int32_t, nd);
	g.rank = ARENA_NEW(&w->p->arena, int32_t, nd);
	for (int d = 0; d < nd; d++)
		g.row[d] = g.rank[d] = -1;
	for (int r = 0; r < g.nrow; r++)
		for (int c = 0; c < g.ncol; c++) {
			int64_t d = g.id[r * g.ncol + c];
			if (d >= 0 && d < nd) {
				g.row[d] = r;
				g.rank[d] = c;
			}
		}
	for (size_t k = 0; k < w->group.n; k++)
		if (w->group.p[k].nrow == g.nrow && w->group.p[k].ncol == g.ncol &&
		    !memcmp(w->group.p[k].id, g.id, sizeof *g.id * (size_t)(g.nrow * g.ncol)))
			return (uint32_t)k;
	arr_push(&w->group, g);
	return (uint32_t)w->group.n - 1;
}

static int64_t product(const int64_t *d, int n)
{
	int64_t p = 1;
	for (int i = 0; i < n; i++)
		p *= d[i];
	return p;
}

static struct err *lower_coll(struct lw *w, struct frame *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	const struct ir_fn *fn = f->fn;
	for (uint32_t k = 0; k < o->nin; k++) {  /* one command an operand: they may differ in size */
		struct prog_coll c = { .nin = 1, .outer = 1, .outer2 = 1 };
		const struct ir_type_info *t = ir_vtype(w->m, fn, ir_in(fn, o, k)), *rt = ir_vtype(w->m, fn, o->out + k);
		int64_t e = dtype_info[t->dtype].bytes;
		int d;
		c.dtype = t->dtype;
		c.redop = RED_add;
		c.inner = c.inner2 = t->bytes;
		if (ir_has_attr(o->kind, AT_group))
			c.group = group_new(w, (ir_group)ir_attr(fn, o, AT_group));
		if (ir_has_attr(o->kind, AT_redop))
			c.redop = (uint8_t)ir_attr(fn, o, AT_redop);
		switch (o->kind) {
		case IR_all_reduce:
			c.kind = COLL_all_reduce;
			break;
		case IR_reduce_scatter:
			c.kind = COLL_reduce_scatter;
			d = (int)ir_attr(fn, o, AT_dim);
			c.outer = product(t->dim, d);
			c.inner = product(rt->dim + d, rt->rank - d) * e;
			break;
		case IR_all_gather:
			c.kind = COLL_all_gather;
			d = (int)ir_attr(fn, o, AT_dim);
			c.outer = product(t->dim, d);
			c.inner = product(t->dim + d, t->rank - d) * e;
			break;
		case IR_all_to_all: {
			c.kind = COLL_all_to_all;
			d = (int)ir_attr(fn, o, AT_split);
			int d2 = (int)ir_attr(fn, o, AT_concat);
			int64_t n = w->group.p[c.group].ncol;
			c.outer = product(t->dim, d);
			c.inner = n ? product(t->dim + d, t->rank - d) * e / n : 0;
			c.outer2 = product(rt->dim, d2);
			c.inner2 = n ? product(rt->dim + d2, rt->rank - d2) * e / n : 0;
			break;
		}
		case IR_collective_broadcast:
			c.kind = COLL_broadcast;
			break;
		case IR_collective_permute: {
			c.kind = COLL_permute;
			int n;
			const int64_t *p = ir_attrs(fn, o, AT_pairs, &n);
			c.pairs = table_new(w);
			table_new(w);
			for (int x = 0; x < w->p->ndev; x++)
				w->table.p[c.pairs].v[x] = w->table.p[c.pairs + 1].v[x] = -1;
			for (int x = 0; x + 1 < n; x += 2) {
				if (p[x] < 0 || p[x] >= w->p->ndev || p[x + 1] < 0 || p[x + 1] >= w->p->ndev)
					return ERR(INVALID, "collective_permute names device %lld of %d", (long long)MAX(p[x], p[x + 1]), w->p->ndev);
				w->table.p[c.pairs].v[p[x + 1]] = p[x];
				w->table.p[c.pairs + 1].v[p[x]] = p[x + 1];
			}
			break;
		}
		default:
			return ERR(INTERNAL, "'%s' is no collective", ir_info(o->kind)->name);
		}
		if (c.redop == RED_fn)
			TRY(eval_expr(&w->p->arena, w->m, (ir_fnid)ir_attr(fn, o, AT_fn), &c.expr));
		struct place *in = lw_dense(w, f, ir_in(fn, o, k));
		struct place *out = f->at[o->out + k] = lw_result_at(w, f, i, o->out + k);
		if (pass_place_bytes(out) == 0 && pass_place_bytes(in) == 0)
			continue;
		if (w->store.p[in->store].donated_to == out->store && in->off == out->off)
			in = out;                        /* one name, if it is in place */
		w->buf.p[w->store.p[in->store].buf].bits |= BUF_PEER;
		w->buf.p[w->store.p[out->store].buf].bits |= BUF_PEER;
		arr_push(&w->coll, c);
		struct prog_cmd *q = lw_cmd(w, CMD_COLL);
		q->id = (uint32_t)w->coll.n - 1;
		lw_opnds(w, q, 2, (struct place *[]){ in, out });
	}
	return NULL;
}

static struct err *lower_custom(struct lw *w, struct frame *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	const char *target = ir_text(w->m, (ir_str)ir_attr(f->fn, o, AT_target));
	if (w->opts->custom_known && !w->opts->custom_known(target))
		return ERR(UNIMPLEMENTED, "custom call '%s' has no handler here", target);
	struct prog_custom c = { .target = arena_str(&w->p->arena, target, strlen(target)), .api = (int)ir_attr(f->fn, o, AT_api),
	                         .effect = ir_attr(f->fn, o, AT_effect) != 0, .nin = (uint16_t)o->nin, .nout = (uint16_t)o->nout };
	const void *d = ir_blob_data(w->m, (ir_blob)ir_attr(f->fn, o, AT_config), &c.ndict);
	c.dict = arena_copy(&w->p->arena, d, c.ndict);
	int n = (int)(o->nin + o->nout);
	c.v = ARENA_NEW(&w->p->arena, struct prog_view, n);
	struct place **pl = ARENA_NEW(w->tmp, struct place *, n);
	for (uint32_t k = 0; k < o->nin; k++)
		lw_view_from(w, &c.v[k], pl[k] = lw_dense(w, f, ir_in(f->fn, o, k)));
	for (uint32_t k = 0; k < o->nout; k++)
		lw_view_from(w, &c.v[o->nin + k], pl[o->nin + k] = f->at[o->out + k] = lw_result_at(w, f, i, o->out + k));
	arr_push(&w->custom, c);
	struct prog_cmd *q = lw_cmd(w, CMD_CUSTOM);
	q->id = (uint32_t)w->custom.n - 1;
	lw_opnds(w, q, n, pl);
	return NULL;
}

/* --- functions ---------------------------------------------------------------- */

static struct err *lower_op(struct lw *w, struct frame *f, int i)
{
	const struct ir_op *o = &f->fn->op.p[i];
	const struct ir_fn *fn = f->fn;
	if (lw_is_alias(w, fn, o)) {
		for (uint32_t k = 0; k < o->nout; k++) {
			ir_val x = ir_in(fn, o, k);
			if (o->kind == IR_optimization_barrier || o->kind == IR_sharding_constraint) {
				f->at[o->out + k] = f->at[x];
			} else if (!(f->at[o->out] = pass_place_view(w, fn, o, f->at[x]))) {
				f->at[o->out] = pass_place_view(w, fn, o, lw_dense(w, f, x));
				f->root[o->out] = f->root[x];
			}
		}
		return NULL;
	}
	switch (o->kind) {
	case IR_constant:
		return lower_constant(w, f, o);
	case IR_fused:
		return lower_fused(w, f, i);
	case IR_loop:
		return lower_loop(w, f, i);
	case IR_case:
		return lower_case(w, f, i);
	case IR_custom_call:
		return lower_custom(w, f, i);
	case IR_create_token:
	case IR_after_all:
	case IR_replica_id:
	case IR_partition_id: {
		const struct ir_type_info *t = ir_vtype(w->m, fn, o->out);
		struct place *p = f->at[o->out] = lw_result_at(w, f, i, o->out);
		if (!t->bytes)
			return NULL;
		uint16_t r = 0;
		if (o->kind == IR_partition_id) {
			uint32_t tab = table_new(w);
			for (int d = 0; d < w->p->ndev; d++)
				w->table.p[tab].v[d] = d;
			r = lw_reg_new(w);
			struct prog_cmd *c = lw_cmd(w, CMD_TABLE);
			c->reg[0] = r;
			c->imm = tab;
		}
		struct prog_cmd *c = lw_cmd(w, CMD_ST);
		c->reg[1] = r;
		c->dtype = t->dtype;
		lw_opnds(w, c, 1, &p);
		return NULL;
	}
	case IR_infeed: case IR_outfeed: case IR_send: case IR_recv:
		return ERR(UNIMPLEMENTED, "'%s' cannot be run", ir_info(o->kind)->name);
	default:
		if (ir_info(o->kind)->flags & IR_COLL)
			return lower_coll(w, f, i);
		return lower_steps(w, f, i);
	}
}

struct err *lower_ops(struct lw *w, struct frame *f)
{
	for (size_t i = 0; i < f->fn->op.n; i++) {
		f->stepping = (int)i;
		site_of(w, &f->fn->op.p[i]);
		struct err *e = lower_op(w, f, (int)i);
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
	a->global_dim = arena_copy(pa, t->dim, sizeof *t->dim * t->rank);
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

/* Which output takes each donated parameter's memory: the one it names, else the first free one of the
 * same type. */
static void choose_donations(struct lw *w, const struct ir_fn *fn)
{
	struct prog *p = w->p;
	bool *taken = ARENA_NEW(w->tmp, bool, p->nres);
	for (int round = 0; round < 2; round++)
		for (uint32_t a = 0; a < p->narg; a++) {
			const struct ir_arg *i = &w->m->arg[a];
			if (round == 0 && i->alias >= 0 && (uint32_t)i->alias < p->nres && !taken[i->alias] &&
			    p->arg[a].bytes == p->res[i->alias].bytes) {
				p->arg[a].alias = i->alias;
				taken[i->alias] = true;
			}
			if (round == 1 && i->donor && p->arg[a].alias < 0) {
				p->arg[a].alias = -2;
				for (uint32_t r = 0; r < p->nres; r++)
					if (!taken[r] && fn->val.p[fn->result.p[r]].type == fn->val.p[a + 1].type) {
						p->arg[a].alias = (int32_t)r;
						taken[r] = true;
						break;
					}
			}
		}
}

struct err *pass_lower(const struct pass_opts *opts, struct ir_module *m, struct prog **out)
{
	struct arena tmp;
	arena_init(&tmp);
	struct lw w = { .opts = opts, .tmp = &tmp, .m = m, .nreg = 1 };
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
		f.at[a + 1] = pass_place_new(&w, pass_store_new(&w, BUF_ARG, t->bytes, a), t->dtype, t->rank, t->dim);
	}
	struct place **res = ARENA_NEW(&tmp, struct place *, p->nres);
	for (uint32_t r = 0; r < p->nres; r++) {
		const struct ir_type_info *t = ir_vtype(m, fn, fn->result.p[r]);
		res[r] = pass_place_new(&w, pass_store_new(&w, BUF_OUT, t->bytes, r), t->dtype, t->rank, t->dim);
	}
	for (uint32_t a = 0; a < p->narg; a++)
		if (p->arg[a].alias >= 0) {
			int s = res[p->arg[a].alias]->store;
			w.store.p[f.at[a + 1]->store].donated_to = s;
			w.buf.p[w.store.p[s].buf].alias = (int32_t)w.store.p[f.at[a + 1]->store].buf;
			f.steal[a + 1] = true;
		}
	for (uint32_t r = 0; r < p->nres; r++) {
		ir_val v = fn->result.p[r];
		if (!f.target[v] && ir_def(fn, v) && f.root[v] == v)
			f.target[v] = res[r];
	}
	lw_targets_back(&f);
	cmd_list list;
	void *saved;
	uint32_t main_blk = lw_block_begin(&w, &list, &saved);
	w.now = 1;
	e = lower_ops(&w, &f);
	if (!e) {
		struct move *mv = ARENA_NEW(&tmp, struct move, p->nres);
		for (uint32_t r = 0; r < p->nres; r++)
			mv[r] = (struct move){ f.at[fn->result.p[r]], res[r] };
		lw_move_all(&w, mv, (int)p->nres);
		lw_block_end(&w, main_blk, &list, saved);
		pass_memory_plan(&w);
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
		for (uint32_t k = 0; k < p->nkern; k++)
			p->flops += p->kern[k].flops;
		p->comm_hash = prog_comm_hash(p);
		if (w.nreg > 65000)
			e = ERR(UNIMPLEMENTED, "the program needs %d registers, of 65000", w.nreg);
	}
	arr_free(&w.buf); arr_free(&w.kern); arr_free(&w.opnd); arr_free(&w.sub); arr_free(&w.block);
	arr_free(&w.coll); arr_free(&w.custom); arr_free(&w.site); arr_free(&w.table); arr_free(&w.code);
	arr_free(&w.group); arr_free(&w.store); arr_free(&w.data);
	for (size_t i = 0; i < w.loops.n; i++)
		arr_free(&w.loops.p[i].extend);
	arr_free(&w.loops);
	map_free(&w.site_map); map_free(&w.code_map); map_free(&w.const_map);
	arena_fini(&tmp);
	if (e) {
		prog_free(p);
		return e;
	}
	*out = p;
	return NULL;
}
