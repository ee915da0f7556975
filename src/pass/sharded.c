/* What the partitioner decided, in words: how values lie on the devices and from which annotation that came, what travels and why, and
 * what travels only because an op could not be cut.  What travels is read off the program after all passes; why, off the partitioner's
 * record. */
#include "passes.h"

#include <stdlib.h>

enum { MOST = 40 };     /* of a section's entries, the heaviest are shown */

struct told { struct str *s; struct arena *a; const struct ir_module *m; const struct spmd_record *r; const struct pass_opts *o; const struct map *lent; bool all; };

/* --- words --------------------------------------------------------------------------- */

/* JAX's name of what is at l, without the jit around all of it, its last letters if it is long. */
static const char *scope(const struct ir_module *m, ir_loc l, size_t most)
{
	const char *n = l && m->loc.p[l].name ? ir_text(m, m->loc.p[l].name) : "", *cut = strchr(n, '/');
	if (cut && !strncmp(n, "jit(", 4))
		n = cut + 1;
	while (strlen(n) > most && (cut = strchr(n, '/')))
		n = cut + 1;
	return strlen(n) > most ? "" : n;
}

static bool gradient(const struct ir_module *m, ir_loc l) { return l && m->loc.p[l].name && strstr(ir_text(m, m->loc.p[l].name), "transpose("); }

static const char *op_name(uint16_t op) { return op == IR_manual ? "shard_map" : op == IR_sharding_constraint ? "constraint" : op ? ir_info((enum ir_kind)op)->name : ""; }

/* "dot at train.py:12" */
static void op_at(struct str *s, const struct ir_module *m, uint16_t op, ir_loc l)
{
	struct str t = {0};
	ir_loc_lines(&t, m, l);
	str_addf(s, t.n ? "%s at %s" : "%s", op_name(op), t.p);
	str_free(&t);
}

/* "argument 3 params['w1']": the end of the name if it is long. */
static void border(struct str *s, const struct ir_module *m, bool result, uint32_t index)
{
	enum { ROOM = 16 };
	const struct ir_arg *a = result ? m->res : m->arg;
	const char *name = a && a[index].name ? ir_text(m, a[index].name) : "";
	if (result && !strncmp(name, "result", 6))       /* so JAX calls all of them, and behind it which */
		name += 6;
	size_t n = strlen(name);
	const char *end = n > ROOM ? name + n - ROOM + 2 : name, *key = strchr(end, '[');
	end = n > ROOM && key ? key : end;
	str_addf(s, "%s %u", result ? "result" : "argument", index);
	if (n)
		str_addf(s, n > ROOM ? " ..%s" : " %s", end);
}

/* n blanks at least, up to column to of what began at from. */
static void tab(struct str *s, size_t from, size_t to)
{
	do
		str_add(s, " ");
	while (s->n - from < to);
}

/* --- values ------------------------------------------------------------------------------ */

/* The ops between an annotation and value v, the annotation's end first. */
static void way(struct str *s, const struct told *t, const struct spmd_value *v, uint32_t at)
{
	const struct spmd_origin *o = t->r->origin.p, *hop[3] = {0};      /* the two next to the annotation, the one next to the value */
	uint32_t all = 0, n = 0;
	while (o[at].source == SPMD_OP && o[at].from && (!o[at].op || (o[at].op == v->op && o[at].loc == v->loc)))
		at = o[at].from;                 /* v's own op goes without saying */
	for (uint32_t i = at; i && o[i].source == SPMD_OP; i = o[i].from)
		all += o[i].op != 0;
	for (uint32_t i = at; i && o[i].source == SPMD_OP; i = o[i].from)
		if (o[i].op) {
			int k = ++n == 1 ? 2 : n == all ? 0 : 1;
			hop[k] = &o[i];
		}
	for (int i = 0; i < 3; i++) {
		if (i == 2 && all > 3)
			str_addf(s, " > %u more", all - 3);
		if (!hop[i])
			continue;
		struct str p = {0};
		ir_loc_lines(&p, t->m, hop[i]->loc);
		str_addf(s, p.n ? " > %s %s" : " > %s", op_name(hop[i]->op), p.p);
		str_free(&p);
	}
}

static void annotation(struct str *s, const struct told *t, const struct spmd_origin *o)
{
	struct str p = {0};
	ir_loc_lines(&p, t->m, o->loc);
	const char *at = p.n ? p.p : "(no line)";
	switch ((enum spmd_source)o->source) {
	case SPMD_ARGUMENT: case SPMD_RESULT: border(s, t->m, o->source == SPMD_RESULT, o->index); break;
	case SPMD_CONSTRAINT: str_addf(s, "constraint %s", at); break;
	case SPMD_IN: str_addf(s, "in_specs[%u] of shard_map %s", o->index, at); break;
	case SPMD_OUT: str_addf(s, "out_specs[%u] of shard_map %s", o->index, at); break;
	case SPMD_GIVEN: str_addf(s, "sharding of %s %s", op_name(o->op), at); break;
	case SPMD_OP: str_add(s, "a group of values that lie alike"); break;
	}
	str_free(&p);
}

/* 'data': argument 0 > dot train.py:31; .. */
static void because(struct str *s, const struct told *t, const struct spmd_value *v)
{
	const struct ir_shard_info *h = &t->m->shard.p[v->lies];
	struct str before = {0}, now = {0};
	bool any = false;
	for (int d = 0; v->lies && d < h->rank; d++)
		for (int i = 0; i < h->dim[d].naxis; i++) {
			uint32_t at = spmd_origin_of(t->r, v->origin, d, h->dim[d].axis[i]), from = at;
			while (from && t->r->origin.p[from].source == SPMD_OP && t->r->origin.p[from].from)
				from = t->r->origin.p[from].from;
			if (!at)
				continue;
			now.n = 0;
			annotation(&now, t, &t->r->origin.p[from]);
			way(&now, t, v, at);
			if (before.n == now.n && !memcmp(before.p, now.p, now.n)) {
				str_add(s, ", ");
			} else {
				if (any)
					str_addf(s, " from %s; ", before.p);
				before.n = 0;
				str_addn(&before, now.p, now.n);
			}
			ir_print_axes(s, t->m, &t->m->mesh.p[h->mesh], 1, &h->dim[d].axis[i]);
			any = true;
		}
	if (any)
		str_addf(s, " from %s", before.p);
	if (v->lies != v->said) {
		str_add(s, any ? "; as it is made, annotations say " : "as it is made, annotations say ");
		ir_print_spec(s, t->m, v->said);
	}
	str_free(&before);
	str_free(&now);
}

static bool own_annotation(const struct told *t, const struct spmd_value *v)
{
	if (v->lies != v->said)
		return false;
	enum spmd_source by = v->result ? SPMD_RESULT : v->op ? SPMD_CONSTRAINT : SPMD_ARGUMENT;
	const struct ir_shard_info *h = &t->m->shard.p[v->lies];
	for (int d = 0; v->lies && d < h->rank; d++)
		for (int i = 0; i < h->dim[d].naxis; i++) {
			const struct spmd_origin *o = &t->r->origin.p[spmd_origin_of(t->r, v->origin, d, h->dim[d].axis[i])];
			if (o->source != by || (by != SPMD_CONSTRAINT && o->index != v->index) || (by == SPMD_CONSTRAINT && o->loc != v->loc))
				return false;
		}
	return true;
}

static double local_bytes(const struct ir_module *m, ir_type type, ir_shard h)
{
	double n = (double)ir_type_of(m, type)->bytes;
	for (int d = 0; d < ir_type_of(m, type)->rank; d++)
		n /= (double)ir_shard_parts(m, h, d);
	return n;
}

/* Is it of interest if not all are asked for? */
static bool matters(const struct told *t, const struct spmd_value *v)
{
	if (!v->op || ir_type_of(t->m, v->type)->rank == 0 || v->inside)
		return !v->op;
	switch ((enum ir_kind)v->op) {
	case IR_dot: case IR_convolution: case IR_gather: case IR_scatter: case IR_sort: case IR_top_k: case IR_fft: case IR_loop: case IR_manual:
	case IR_custom_call: case IR_sharding_constraint: case IR_rng_bit_generator:
		return true;
	default:
		return false;
	}
}

struct weight { uint32_t i; double n; };
static int heavier(const void *a, const void *b)
{
	const struct weight *x = a, *y = b;
	return x->n < y->n ? 1 : x->n > y->n ? -1 : x->i < y->i ? -1 : x->i > y->i;
}

static void value(const struct told *t, const struct spmd_value *v)
{
	struct str *s = t->s, why = {0};
	size_t from = s->n;
	str_add(s, "  ");
	if (v->op) {
		ir_loc_lines(s, t->m, v->loc);
		str_addf(s, s->n > from + 2 ? " %s" : "%s", op_name(v->op));
		if (v->index)
			str_addf(s, ".%u", v->index);
	} else {
		border(s, t->m, v->result, v->index);
	}
	tab(s, from, 30);
	ir_print_type(s, t->m, v->type);
	tab(s, from, 52);
	size_t n = s->n;
	pass_add_bytes(s, local_bytes(t->m, v->type, v->lies));
	tab(s, n, 10);
	ir_print_spec(s, t->m, v->lies);
	const char *name = v->op ? scope(t->m, v->loc, 40) : "";
	if (*name && s->n - from + strlen(name) + 2 < PASS_WIDTH)
		str_addf(s, "  %s", name);
	str_add(s, "\n");
	if (!own_annotation(t, v))
		because(&why, t, v);
	if (why.n)
		pass_add_wrapped(s, why.p, 6);
	str_free(&why);
}

static void values(const struct told *t)
{
	struct weight *w = ARENA_NEW(t->a, struct weight, t->r->value.n + 1);
	bool *shown = ARENA_NEW(t->a, bool, t->r->value.n + 1);
	size_t n = 0, left = 0;
	for (uint32_t i = 1; i < t->r->value.n; i++) {
		const struct spmd_value *v = &t->r->value.p[i];
		if (ir_type_of(t->m, v->type)->dtype != DT_token && (t->all || matters(t, v)))
			w[n++] = (struct weight){ i, (double)ir_type_of(t->m, v->type)->bytes };
	}
	qsort(w, n, sizeof *w, heavier);
	for (size_t i = 0; i < n; i++) {
		shown[w[i].i] = t->all || i < MOST;
		left += !shown[w[i].i];
	}
	str_addf(t->s, "values: their types, bytes of a device, how they lie, and which annotation says so through which operations\n");
	for (uint32_t i = 1; i < t->r->value.n; i++)
		if (shown[i])
			value(t, &t->r->value.p[i]);
	if (left)
		str_addf(t->s, "  and %zu smaller ones (--all)\n", left);
}

/* --- what travels ------------------------------------------------------------------------ */

/* One collective of the program: what a device gets each time, and how often a launch does it; lent: who wants that reads it where it lies. */
struct trip { const struct ir_fn *fn; const struct ir_op *o; double bytes, runs; uint32_t move; bool lent; };

static enum coll_kind kind_of(const struct ir_op *o)
{
	switch ((enum ir_kind)o->kind) {
	case IR_all_gather: return COLL_all_gather;
	case IR_reduce_scatter: return COLL_reduce_scatter;
	case IR_all_to_all: case IR_redistribute: case IR_ragged_all_to_all: return COLL_all_to_all;
	case IR_collective_permute: return COLL_permute;
	case IR_collective_broadcast: return COLL_broadcast;
	default: return COLL_all_reduce;
	}
}

static int members(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	return o->kind == IR_collective_permute ? 2 : m->group.p[ir_attr(fn, o, AT_group)].ncol;
}

/* What comes into the device that gets most. */
static double boxes_bytes(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	const struct ir_type_info *t = ir_vtype(m, fn, o->out);
	int n, row = 2 + 3 * t->rank;
	const int64_t *w = ir_attrs(fn, o, AT_boxes, &n);
	double most = 0, one = 0;
	for (int i = 0; i < n; i += row) {       /* those of one target follow each other */
		double size = dtype_info[t->dtype].bytes;
		for (int d = 0; d < t->rank; d++)
			size *= (double)w[i + 2 + 2 * t->rank + d];
		one = (i && w[i] == w[i - row] ? one : 0) + (w[i] != w[i + 1] ? size : 0);
		most = MAX(most, one);
	}
	return most;
}

double pass_coll_bytes(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	double in = 0, out = 0, n = members(m, fn, o);
	int pairs, moved = 0;
	if (o->kind == IR_redistribute)
		return boxes_bytes(m, fn, o);
	for (uint32_t k = 0; k < o->nin; k++)
		in += (double)ir_vtype(m, fn, ir_in(fn, o, k))->bytes;
	for (uint32_t k = 0; k < o->nout; k++)
		out += (double)ir_vtype(m, fn, o->out + k)->bytes;
	switch (kind_of(o)) {
	case COLL_all_gather: return out - in;
	case COLL_reduce_scatter: return in - out;
	case COLL_all_to_all: return n > 0 ? (o->kind == IR_ragged_all_to_all ? MIN((double)ir_vtype(m, fn, ir_in(fn, o, 0))->bytes, out) : out) * (n - 1) / n : 0;
	case COLL_permute: {
		const int64_t *w = ir_attrs(fn, o, AT_pairs, &pairs);
		for (int i = 0; i + 1 < pairs; i += 2)
			moved |= w[i] != w[i + 1];
		return moved ? out : 0;
	}
	case COLL_broadcast: return n > 1 ? out : 0;
	default: return n > 0 ? 2 * out * (n - 1) / n : 0;
	}
}

static bool lent(const struct told *t, const struct ir_fn *fn, const struct ir_op *o)
{
	bool all = t->lent;
	for (uint32_t k = 0; k < o->nout && all; k++)
		all = lower_is_lent(t->lent, fn, o->out + k);
	return all;
}

static struct trip *trips(const struct told *t, size_t *n)
{
	int nfn;
	ARR(struct trip) all = {0};
	const ir_fnid *f = ir_reachable(t->a, t->m, &nfn);
	const double *runs = ir_runs(t->a, t->m);
	for (int i = nfn; i-- > 0;) {
		const struct ir_fn *fn = ir_fn_of(t->m, f[i]);
		for (size_t k = 0; k < fn->op.n; k++) {
			const struct ir_op *o = &fn->op.p[k];
			if (ir_info((enum ir_kind)o->kind)->flags & IR_COLL)
				arr_push(&all, ((struct trip){ fn, o, pass_coll_bytes(t->m, fn, o), runs[f[i]], spmd_move_of(t->r, o->loc), lent(t, fn, o) }));
		}
	}
	*n = all.n;
	struct trip *r = arena_copy(t->a, all.p, sizeof *r * all.n);
	arr_free(&all);
	return r;
}

static double per_run(const struct told *t, const struct trip *q, enum coll_algo *by, double *other, enum coll_algo *how)
{
	const struct plan_on *p = &t->o->plan;
	enum coll_kind k = kind_of(q->o);
	const struct ir_group_info *g = q->o->kind == IR_collective_permute ? NULL : &t->m->group.p[ir_attr(q->fn, q->o, AT_group)];
	struct plan_group n;
	if (g) {
		n = plan_groups_of(p, g->nrow, g->ncol, g->id);
	} else {
		int nid;
		const int64_t *id = ir_attrs(q->fn, q->o, AT_pairs, &nid);
		n = plan_pairs_of(p, nid / 2, id);
	}
	double all = (double)ir_vtype(t->m, q->fn, k == COLL_reduce_scatter ? q->o->out : ir_in(q->fn, q->o, 0))->bytes;
	if (q->lent) {                   /* the waits alone */
		*how = COLL_auto;
		*other = 0;
		return plan_coll_time(p, k, n, 0, COLL_auto);
	}
	double unit = k == COLL_all_to_all && n.n ? (q->o->kind != IR_all_to_all && n.n > 1 ? q->bytes / (n.n - 1) : all / n.n) : all;
	*by = plan_coll_algo(p, k, n, unit);
	*how = plan_coll_other(p, k, n, unit);
	*other = *how ? plan_coll_time(p, k, n, unit, *how) : 0;
	return plan_coll_time(p, k, n, unit, COLL_auto);
}

/* The axes along which the devices of one group, or of a pair, differ, if a mesh has such. */
static void along(struct str *s, const struct told *t, const struct trip *q)
{
	const struct ir_module *m = t->m;
	int n = 0;
	const int64_t *id;
	int rows, cols;
	if (q->o->kind == IR_collective_permute) {
		id = ir_attrs(q->fn, q->o, AT_pairs, &n);
		cols = 2;
		rows = n / 2;
	} else {
		const struct ir_group_info *g = &m->group.p[ir_attr(q->fn, q->o, AT_group)];
		id = g->id;
		rows = g->nrow;
		cols = g->ncol;
	}
	for (size_t k = 0; k < m->mesh.n; k++) {
		const struct ir_mesh *mesh = &m->mesh.p[k];
		if (!mesh->naxis || mesh->ndev != t->o->ndev)
			continue;
		bool by[64] = {false};
		int64_t all = 1, inv = 0;
		for (int r = 0; r < rows; r++)
			for (int c = 1; c < cols; c++) {
				int64_t x = id[r * cols], y = id[r * cols + c];
				if (x < 0 || y < 0)
					continue;
				for (int64_t i = 0; mesh->id && i < mesh->ndev; i++) {
					inv = mesh->id[i] == id[r * cols] ? x = i : inv;
					inv = mesh->id[i] == id[r * cols + c] ? y = i : inv;
				}
				for (int a = mesh->naxis; a-- > 0; x /= mesh->axis[a].size, y /= mesh->axis[a].size)
					by[a & 63] |= x % mesh->axis[a].size != y % mesh->axis[a].size;
			}
		int count = 0;
		for (int a = 0; a < mesh->naxis; a++)
			all *= by[a & 63] ? mesh->axis[a].size : 1;
		if (q->o->kind != IR_collective_permute && all != cols)
			continue;
		for (int a = 0; a < mesh->naxis; a++)
			if (by[a & 63])
				str_addf(s, count++ ? ", '%s'" : " over '%s'", ir_text(m, mesh->axis[a].name));
		if (q->o->kind != IR_collective_permute || count)
			return;
	}
	if (q->o->kind == IR_collective_permute)
		str_addf(s, " over %d pairs", rows);
	else
		str_addf(s, " in groups of %d", cols);
}

static void whose(struct str *s, const struct told *t, const struct spmd_move *q, const char *what, const char *why)
{
	str_addf(s, "%s %d of ", what, q->k);
	op_at(s, t->m, q->op, q->loc);
	str_add(s, why);
}

/* Why move q is; what it says of where things lie, too. */
static void reason(struct str *s, const struct told *t, const struct spmd_move *q)
{
	const struct ir_shard_info *h = &t->m->shard.p[q->from];
	bool sum = q->type && q->from && h->npart;
	switch ((enum spmd_reason)q->reason) {
	case SPMD_WRITTEN:
		str_add(s, "the program says so");
		return;
	case SPMD_LOCAL:
		str_add(s, q->op == IR_rng ? "all devices get the numbers of one: " : "");
		op_at(s, t->m, q->op, q->loc);
		str_add(s, q->op == IR_rng ? "" : ", of which each device does a part");
		return;
	case SPMD_SHARED:
		whose(s, t, q, "half of operand", ": a mask leaves some devices more work than others, who take it over");
		return;
	case SPMD_RETURNED:
		whose(s, t, q, "half of result", ", from the device that has taken the work over");
		return;
	case SPMD_TRADED:
		whose(s, t, q, "operand", ": each host has all rows of some heads");
		return;
	case SPMD_GIVEN_BACK:
		whose(s, t, q, "result", ", from the host that has all rows of these heads");
		return;
	case SPMD_OPERAND:
		str_addf(s, q->op == IR_sharding_constraint ? "the " : "operand %d of ", q->k);
		op_at(s, t->m, q->op, q->loc);
		break;
	case SPMD_MADE:
		str_addf(s, q->op == IR_sharding_constraint ? "the " : q->k ? "result %d of " : "the result of ", q->k);
		op_at(s, t->m, q->op, q->loc);
		break;
	case SPMD_ENTERS: str_addf(s, "parameter %d of a loop's turn or a branch", q->k); break;
	case SPMD_LEAVES:
		if (q->inside)
			str_addf(s, "result %d of a loop's turn or a branch", q->k);
		else
			border(s, t->m, true, (uint32_t)q->k);
		break;
	}
	if (sum) {
		str_add(s, ": parts of a sum over ");
		ir_print_axes(s, t->m, &t->m->mesh.p[h->mesh], h->npart, h->part);
		if (q->maker) {
			str_add(s, ", made by ");
			op_at(s, t->m, q->maker, q->maker_loc);
		}
		bool of_gradient = gradient(t->m, q->maker ? q->maker_loc : q->loc);
		str_addf(s, "%s%s are added, to ", of_gradient ? ", a gradient" : "", of_gradient || q->maker ? "," : "");
	} else {
		str_add(s, ": from ");
		ir_print_spec(s, t->m, q->from);
		str_add(s, " to ");
	}
	ir_print_spec(s, t->m, q->to);
	if (q->cannot >= 0)
		str_addf(s, "; it is not done in parts along dimension %d", q->cannot);
}

static void trip(const struct told *t, const struct trip *q, int rank)
{
	struct str *s = t->s, why = {0};
	size_t from = s->n, at;
	str_addf(s, "  %2d. ", rank);
	at = s->n;
	pass_add_bytes(s, q->bytes);
	if (q->runs != 1)
		str_addf(s, " x%.4g", q->runs);
	tab(s, at, 14);
	str_add(s, ir_info((enum ir_kind)q->o->kind)->name);
	str_add(s, " ");
	ir_print_type(s, t->m, q->fn->val.p[ir_in(q->fn, q->o, 0)].type);
	if (q->o->nout > 1)
		str_addf(s, " and %u more", q->o->nout - 1);
	along(s, t, q);
	tab(s, from, 70);
	at = s->n;
	ir_loc_lines(s, t->m, q->o->loc);
	if (s->n == at)
		str_add(s, "(no line)");
	const char *name = scope(t->m, q->o->loc, 44);
	if (*name && s->n - from + strlen(name) + 2 < PASS_WIDTH)
		str_addf(s, "  %s", name);
	str_add(s, "\n");
	const struct spmd_move *x = &t->r->move.p[q->move];
	enum coll_algo by, how;
	double other;
	pass_add_time(&why, per_run(t, q, &by, &other, &how) * q->runs);
	if (q->o->kind == IR_ragged_all_to_all)
		str_add(&why, " if all rows go, as many to each: data tell, and what they name is read where it lies");
	else if (q->lent)
		str_add(&why, " of waits: it is read where it lies, nothing is copied");
	else
		str_addf(&why, " by %s", prog_algo_name[by]);
	if (how && q->o->kind != IR_ragged_all_to_all) {
		str_add(&why, " (next best: ");
		pass_add_time(&why, other * q->runs);
		str_addf(&why, " by %s)", prog_algo_name[how]);
	}
	str_add(&why, "; ");
	if (q->move)
		reason(&why, t, x);
	else
		str_add(&why, "the program says so");
	if (q->move && x->others)
		str_addf(&why, "; in one exchange with %u more %s of this group", x->others, x->others > 1 ? "sums" : "sum");
	pass_add_wrapped(s, why.p, 6);
	if (q->move && x->way) {
		const struct spmd_way *w = &t->r->way.p[x->way];
		why.n = 0;
		str_addf(&why, "the %s and what moves for it: ", op_name(x->op));
		pass_add_time(&why, w->chosen);
		str_add(&why, "; next best: ");
		pass_add_time(&why, w->other);
		str_add(&why, " as ");
		for (int i = 0; i < w->n; i++) {
			str_add(&why, i == w->nin ? " -> " : i ? ", " : "");
			ir_print_spec(&why, t->m, w->lies[i]);
		}
		pass_add_wrapped(s, why.p, 6);
	}
	str_free(&why);
}

static void totals(const struct told *t, const struct trip *q, size_t n)
{
	double bytes[2][COLL_COUNT] = {0}, count[2][COLL_COUNT] = {0};
	const char *name[COLL_COUNT];
	bool first = true;
	for (size_t i = 0; i < n; i++) {
		bytes[q[i].lent][kind_of(q[i].o)] += q[i].bytes * q[i].runs;
		count[q[i].lent][kind_of(q[i].o)] += q[i].runs;
		name[kind_of(q[i].o)] = ir_info((enum ir_kind)q[i].o->kind)->name;
	}
	struct str s = {0};
	str_add(&s, "in all");
	for (int k = 0; k < 2 * COLL_COUNT; k++) {
		int l = k / COLL_COUNT, kind = k % COLL_COUNT;
		if (count[l][kind] > 0) {
			str_addf(&s, "%s %.4g %s ", first ? ":" : ",", count[l][kind], name[kind]);
			pass_add_bytes(&s, bytes[l][kind]);
			str_add(&s, l ? " read in place" : "");
			first = false;
		}
	}
	pass_add_wrapped(t->s, s.p, 2);
	str_free(&s);
}

/* --- warnings -------------------------------------------------------------------------------- */

static int64_t parts_of(const struct ir_module *m, ir_shard h)
{
	int64_t n = 1;
	for (int d = 0; d < m->shard.p[h].rank; d++)
		n *= ir_shard_parts(m, h, d);
	return n;
}

static int warnings(const struct told *t, const struct trip *q, size_t n)
{
	int found = 0;
	struct str w = {0};
	double *moved = ARENA_NEW(t->a, double, t->r->move.n + 1), *runs = ARENA_NEW(t->a, double, t->r->move.n + 1);
	for (size_t i = 0; i < n; i++) {
		moved[q[i].move] += q[i].lent ? 0 : q[i].bytes;
		runs[q[i].move] = q[i].runs;
	}
	for (uint32_t i = 1; i < t->r->move.n; i++) {
		const struct spmd_move *x = &t->r->move.p[i];
		w.n = 0;
		if (x->reason == SPMD_OPERAND && x->cannot >= 0 && moved[i] > 0) {
			op_at(&w, t->m, x->op, x->loc);
			str_addf(&w, " is not done in parts along dimension %d: ", x->cannot);
			pass_add_bytes(&w, moved[i]);
			if (runs[i] != 1)
				str_addf(&w, " x%.4g", runs[i]);
			str_addf(&w, " go into each device to have operand %d as ", x->k);
			ir_print_spec(&w, t->m, x->to);
			if (parts_of(t->m, x->advice) >= parts_of(t->m, x->from)) {
				str_add(&w, "; avoided by jax.lax.with_sharding_constraint(operand, ");
				ir_print_spec(&w, t->m, x->advice);
				str_add(&w, ") where it is made");
			} else {
				str_add(&w, "; it has no other dimension that could be cut instead");
			}
		} else if (x->need >= 0 && moved[i] > x->need * 1.01) {
			reason(&w, t, x);
			str_add(&w, " moves ");
			pass_add_bytes(&w, moved[i]);
			str_add(&w, " where ");
			pass_add_bytes(&w, x->need);
			str_addf(&w, " would do; avoided by jax.lax.with_sharding_constraint(%s, ", x->reason == SPMD_OPERAND ? "operand" : "result");
			ir_print_spec(&w, t->m, x->to);
			str_add(&w, ") where it is made");
		} else {
			continue;
		}
		if (!found++)
			str_add(t->s, "warnings\n");
		pass_add_wrapped(t->s, w.p, 2);
	}
	for (uint32_t i = 1; i < t->r->uneven.n; i++) {
		const struct spmd_uneven *u = &t->r->uneven.p[i];
		w.n = 0;
		str_add(&w, "the ");
		op_at(&w, t->m, IR_sharding_constraint, u->loc);
		str_add(&w, " asks for ");
		ir_print_spec(&w, t->m, u->asked);
		str_add(&w, ", into whose parts ");
		ir_print_type(&w, t->m, u->type);
		str_add(&w, " does not divide: it lies as ");
		ir_print_spec(&w, t->m, u->lies);
		str_add(&w, "; avoided by padding it, or by another dimension");
		if (!found++)
			str_add(t->s, "warnings\n");
		pass_add_wrapped(t->s, w.p, 2);
	}
	str_free(&w);
	return found;
}

static void communication(const struct told *t)
{
	size_t n;
	const struct trip *q = trips(t, &n);
	double all[2] = {0}, ns = 0, other;
	enum coll_algo by, how;
	struct weight *w = ARENA_NEW(t->a, struct weight, n + 1);
	for (size_t i = 0; i < n; i++) {
		w[i] = (struct weight){ (uint32_t)i, q[i].bytes * q[i].runs };
		all[q[i].lent] += w[i].n;
		ns += per_run(t, &q[i], &by, &other, &how) * q[i].runs;
	}
	qsort(w, n, sizeof *w, heavier);
	if (!n) {
		str_add(t->s, "communication: none\n");
	} else {
		str_add(t->s, "communication: ");
		pass_add_bytes(t->s, all[0]);
		str_add(t->s, " into each device, ");
		if (all[1] > 0) {
			pass_add_bytes(t->s, all[1]);
			str_add(t->s, " read in place, ");
		}
		str_add(t->s, "about ");
		pass_add_time(t->s, ns);
		str_add(t->s, "; the heaviest first\n");
	}
	for (size_t i = 0; i < n && (t->all || i < MOST); i++)
		trip(t, &q[w[i].i], (int)i + 1);
	if (n > MOST && !t->all)
		str_addf(t->s, "  and %zu lighter ones (--all)\n", n - MOST);
	if (n)
		totals(t, q, n);
	warnings(t, q, n);
}

static void meshes(const struct told *t)
{
	bool any = false;
	for (size_t k = 0; k < t->m->mesh.n; k++) {
		const struct ir_mesh *mesh = &t->m->mesh.p[k];
		if (!mesh->naxis)
			continue;
		str_add(t->s, any ? ", " : "mesh ");
		for (int a = 0; a < mesh->naxis; a++)
			str_addf(t->s, "%s'%s'=%lld", a ? " x " : "", ir_text(t->m, mesh->axis[a].name), (long long)mesh->axis[a].size);
		any = true;
	}
	str_add(t->s, any ? "\n" : "");
}

void pass_explain_sharded(struct str *s, struct arena *a, const struct ir_module *m, const struct spmd_record *r, const struct pass_opts *o, const struct map *of, bool all)
{
	struct told t = { s, a, m, r, o, of, all };
	bool cut = false;
	for (uint32_t i = 1; i < r->value.n; i++)
		cut |= r->value.p[i].lies != 0;
	if (o->ndev > 1) {
		meshes(&t);
		if (cut || all)
			values(&t);
		else
			str_add(s, "values: none is sharded\n");
	}
	communication(&t);
}
