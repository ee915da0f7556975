/* The module: its symbols, which functions stay calls, main and what is said of its arguments.
 *
 * A function stays a call if inlining would copy it often: it is called more than KEEP_CALLS times and holds
 * more than KEEP_OPS operations. */
#include "hlo.h"
#include "wire.h"

#include <stdlib.h>

enum { KEEP_CALLS = 16, KEEP_OPS = 200 };

/* Symbols of the module body: functions, and meshes. */
static struct err *read_symbols(struct hlo *h, const struct wregion *body)
{
	for (uint32_t i = body->first; i < body->end; i = h->op.p[i].end) {
		struct wop *o = &h->op.p[i];
		const struct op_row *row = h->opname[o->name].row;
		uint32_t p[5];
		h->cur = o;
		if (!row || row->conv || (row->kind != ROW_FUNC && row->kind != ROW_MESH))
			return no_op(h, "operation '%s' at the top of the module", op_name(h, o));
		if (row->kind == ROW_MESH) {
			TRY(mesh_add(h, o));
			continue;
		}
		TRY(op_props(h, o, p));
		struct wfunc f = { .name = p[3], .op = i, .arg_attrs = p[0], .res_attrs = p[2] };
		struct span vis;
		TRY(attr_str(h, p[3], &f.text));
		TRY(attr_str(h, p[4], &vis));
		f.is_public = !span_is(h, vis, "private");
		TRY(attr_type(h, p[1], &f.type));
		if (o->nregion != 1 || !h->region.p[o->region].isolated)
			return bad_op(h, "a function without one body of its own");
		const struct wtype *w;
		TRY(type_get(h, f.type, &w));
		if (w->kind != W_FUNCTION)
			return bad_op(h, "a function whose type is not that of one");
		uint64_t *slot = map_put(&h->func_map, h->p + f.text.at, f.text.n);
		if (*slot)
			return bad_op(h, "two functions '%.*s'", (int)MIN(f.text.n, 200), h->p + f.text.at);
		*slot = h->func.n;
		arr_push(&h->func, f);
	}
	return NULL;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX / 2 - b ? UINT64_MAX / 2 : a + b;
}

/* How often each function would be copied, and how large it is; which are kept as calls. */
static struct err *plan_calls(struct hlo *h, uint32_t root)
{
	for (size_t i = 1; i < h->func.n; i++) {
		struct wfunc *f = &h->func.p[i];
		const struct wregion *r = func_body(h, f);
		f->call = (uint32_t)h->callee.n;
		f->size = r->end - r->first;
		for (uint32_t k = r->first; k < r->end; k++) {
			struct wfunc *g;
			h->cur = &h->op.p[k];
			TRY(func_callee(h, &h->op.p[k], &g));
			if (g)
				arr_push(&h->callee, (uint32_t)(g - h->func.p));
		}
		f->ncall = (uint32_t)h->callee.n - f->call;
	}
	/* depth first from root, callees before callers */
	struct visit { uint32_t f, next; };
	ARR(struct visit) stack = {0};
	ARR(uint32_t) order = {0};
	struct err *e = NULL;
	struct visit v = { root, 0 };
	arr_push(&stack, v);
	h->func.p[root].seen = F_OPEN;
	while (stack.n) {
		struct visit *t = &stack.p[stack.n - 1];
		struct wfunc *f = &h->func.p[t->f];
		if (t->next < f->ncall) {
			uint32_t g = h->callee.p[f->call + t->next++];
			if (h->func.p[g].seen == F_OPEN) {
				e = bad_at(h->op.p[h->func.p[g].op].at, "function '%.*s' calls itself", (int)MIN(h->func.p[g].text.n, 200),
				           h->p + h->func.p[g].text.at);
				goto out;
			}
			if (h->func.p[g].seen == F_UNSEEN) {
				h->func.p[g].seen = F_OPEN;
				v = (struct visit){ g, 0 };
				arr_push(&stack, v);
			}
			continue;
		}
		for (uint32_t k = 0; k < f->ncall; k++)
			f->size = plus(f->size, h->func.p[h->callee.p[f->call + k]].size);
		f->seen = F_DONE;
		arr_push(&order, t->f);
		stack.n--;
	}
	h->func.p[root].count = 1;
	for (size_t i = order.n; i-- > 0;) {
		struct wfunc *f = &h->func.p[order.p[i]];
		f->keep = order.p[i] != root && f->count > KEEP_CALLS && f->size > KEEP_OPS;
		for (uint32_t k = 0; k < f->ncall; k++) {
			struct wfunc *g = &h->func.p[h->callee.p[f->call + k]];
			g->count = plus(g->count, f->keep ? 1 : f->count);
		}
	}
out:
	h->cur = NULL;
	arr_free(&stack);
	arr_free(&order);
	return e;
}

/* Attributes of main's parameters (or results), one dictionary each. */
static struct err *read_args(struct hlo *h, uint32_t attr, uint32_t n, bool param, struct ir_arg *out)
{
	uint32_t k, *list;
	TRY(attr_list(h, attr, &k, &list));
	for (uint32_t i = 0; i < n; i++)
		out[i].alias = -1;
	if (k > n)
		return bad_at(h->attr[attr].at, "%u dictionaries for %u %s", k, n, param ? "arguments" : "results");
	for (uint32_t i = 0; i < k; i++) {
		uint32_t m, *kv;
		TRY(attr_dict(h, list[i], &m, &kv));
		for (uint32_t j = 0; j < m; j++) {
			struct span s;
			int64_t v;
			TRY(attr_str(h, kv[2 * j], &s));
			if (span_is(h, s, "sdy.sharding")) {
				TRY(shard_get(h, kv[2 * j + 1], &out[i].shard));
			} else if (span_is(h, s, "mhlo.memory_kind")) {
				TRY(attr_str(h, kv[2 * j + 1], &s));
				out[i].memory_kind = span_intern(h, s);
			} else if (span_is(h, s, "mhlo.layout_mode")) {
				TRY(attr_str(h, kv[2 * j + 1], &s));
				out[i].layout = span_intern(h, s);
			} else if (!param && span_is(h, s, "jax.result_info")) {
				TRY(attr_str(h, kv[2 * j + 1], &s));
				out[i].name = span_intern(h, s);
			} else if (param && span_is(h, s, "tf.aliasing_output")) {
				TRY(attr_int(h, kv[2 * j + 1], &v));
				if (v < 0 || v > INT32_MAX)
					return bad_at(h->attr[kv[2 * j + 1]].at, "an argument that aliases output %lld", (long long)v);
				out[i].alias = (int32_t)v;
			} else if (param && span_is(h, s, "jax.buffer_donor")) {
				TRY(attr_int(h, kv[2 * j + 1], &v));
				out[i].donor = v != 0;
			} else if (span_is(h, s, "mhlo.sharding")) {
				return ERR(UNIMPLEMENTED, "attribute 'mhlo.sharding': only Shardy's shardings are read (jax_use_shardy_partitioner)");
			}
		}
	}
	return NULL;
}

/* The line where v is made or, of a parameter, first read. */
static const struct ir_loc_info *line_of(const struct ir_module *m, const struct ir_fn *fn, ir_val v)
{
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		for (uint32_t k = 0; k < o->nin + o->nout; k++)
			if ((k < o->nin ? ir_in(fn, o, k) : o->out + k - o->nin) == v && m->loc.p[o->loc].line)
				return &m->loc.p[o->loc];
	}
	return NULL;
}

/* What JAX can be asked for instead of layout `text`: its order alone. */
static void untiled(struct str *s, const char *text, int rank)
{
	size_t n = strcspn(text, ":}");
	char order[256];
	const struct layout *l;
	snprintf(order, sizeof order, "%.*s}", (int)MIN(n, sizeof order - 2), text);
	if (rank > 1 && layout_read(order, rank, &l)) {
		l = layout_of(l, rank);
		for (int d = 0; d < rank; d++)
			str_addf(s, "%s%lld", d ? ", " : "Layout((", (long long)l->minor[rank - 1 - d]);
		str_add(s, ")), or ");
	}
	str_add(s, "none");
}

/* How a, which is v, lies in memory is said in words of this compiler, or refused. */
static struct err *read_layout(struct hlo *h, struct ir_arg *a, const struct ir_fn *fn, ir_val v, const char *what, uint32_t i)
{
	int rank = ir_vtype(h->m, fn, v)->rank;
	const char *text = ir_text(h->m, a->layout);
	const struct layout *l;
	if (!a->layout || !strcmp(text, "auto"))
		return NULL;
	if (!layout_read(text, rank, &l)) {
		const char *name = strcmp(ir_text(h->m, a->name), what) ? ir_text(h->m, a->name) : "";
		struct str s = {0};
		str_addf(&s, "%s %u%s%s of program '%s', ", what, i, *name ? " " : "", name, ir_text(h->m, h->m->name));
		ir_print_type(&s, h->m, fn->val.p[v].type);
		str_addf(&s, ", has the layout '%s': those that order the dimensions are known, without tiles; instead: ", text);
		untiled(&s, text, rank);
		struct err *e = ERR(UNIMPLEMENTED, "%s", s.p);
		str_free(&s);
		const struct ir_loc_info *at = line_of(h->m, fn, v);
		return at ? err_wrap(e, "%s:%d", ir_text(h->m, at->file), at->line) : e;
	}
	a->layout = l ? ir_intern(h->m, l->text, strlen(l->text)) : 0;
	return NULL;
}

static struct err *read_module(struct hlo *h)
{
	struct wop *top = &h->op.p[0];
	h->cur = top;
	if (!h->opname[top->name].row || h->opname[top->name].row->kind != ROW_MODULE || h->opname[top->name].row->conv ||
	    top->nregion != 1)
		return bad_op(h, "the operation at the top is not a module");
	if (top->prop) {    /* optional name, optional visibility */
		struct span s = h->prop[top->prop - 1];
		struct cur c = cur_of(h, s.at, s.n);
		uint64_t v = cur_varint(&c);
		if (v & 1 && v >> 1 < h->nattr) {
			TRY(attr_str(h, (uint32_t)(v >> 1), &s));
			h->m->name = span_intern(h, s);
		}
	}
	static const char *const counts[2] = { "mhlo.num_partitions", "mhlo.num_replicas" };
	h->m->num_partitions = MAX(h->part_of, 1);
	for (int i = h->part_of > 0; i < 2; i++) {
		uint32_t attr;
		int64_t v;
		TRY(op_discardable(h, top, counts[i], &attr));
		if (attr == UINT32_MAX)
			continue;
		TRY(attr_int(h, attr, &v));
		if (v < 1 || v > 1 << 20)
			return bad_op(h, "%s is %lld", counts[i], (long long)v);
		*(i ? &h->m->num_replicas : &h->m->num_partitions) = (int)v;
	}
	arr_push(&h->func, ((struct wfunc){0}));
	TRY(read_symbols(h, &h->region.p[top->region]));
	h->cur = NULL;
	uint32_t root = 0;
	uint64_t *named = map_get(&h->func_map, "main", 4);
	if (named)
		root = (uint32_t)*named;
	for (uint32_t i = 1; i < h->func.n && !root; i++)
		if (h->func.p[i].is_public)
			root = i;
	if (!root)
		return ERR(INVALID, "the module has no public function");
	TRY(plan_calls(h, root));
	struct wfunc *f = &h->func.p[root];
	ir_fnid id;
	h->b = (struct ir_b){ h->m, NULL, 0 };
	TRY(func_fn(h, f, false, &id));
	struct ir_fn *fn = ir_fn_of(h->m, id);
	const struct wtype *w;
	TRY(type_get(h, f->type, &w));
	if (w->nin != fn->nparam || w->nout != fn->result.n)
		return bad_at(h->op.p[f->op].at, "main's type has %u arguments and %u results, its body %u and %zu (tuples are not taken)",
		              w->nin, w->nout, fn->nparam, fn->result.n);
	for (uint32_t i = 0; i < w->nin + w->nout; i++) {
		ir_type t;
		TRY(type_tensor(h, w->list[i], &t));
		if (fn->val.p[i < w->nin ? i + 1 : fn->result.p[i - w->nin]].type != t)
			return bad_at(h->op.p[f->op].at, "main's type differs from its body");
	}
	h->m->arg = ARENA_NEW(&h->m->arena, struct ir_arg, w->nin + 1);
	h->m->res = ARENA_NEW(&h->m->arena, struct ir_arg, w->nout + 1);
	TRY(read_args(h, f->arg_attrs, w->nin, true, h->m->arg));
	TRY(read_args(h, f->res_attrs, w->nout, false, h->m->res));
	const struct wregion *r = &h->region.p[h->op.p[f->op].region];
	for (uint32_t i = 0; i < w->nin && i < r->narg; i++) {
		uint32_t at = h->argloc.p[r->loc + i];
		ir_loc l = at ? loc_get(h, at - 1) : 0;
		h->m->arg[i].name = h->m->loc.p[l].name;
	}
	for (uint32_t i = 0; i < w->nin; i++)
		TRY(read_layout(h, &h->m->arg[i], fn, i + 1, "argument", i));
	for (uint32_t i = 0; i < w->nout; i++)
		TRY(read_layout(h, &h->m->res[i], fn, fn->result.p[i], "result", i));
	for (uint32_t i = 0; i < w->nin; i++)
		if (h->m->arg[i].alias >= (int32_t)w->nout)
			return bad_at(h->op.p[f->op].at, "argument %u aliases output %d of %u", i, h->m->arg[i].alias, w->nout);
	return NULL;
}

struct err *hlo_read(const void *p, size_t n, struct ir_module **out)
{
	return hlo_read_part(p, n, 0, out);
}

struct err *hlo_read_part(const void *p, size_t n, int partitions, struct ir_module **out)
{
	struct hlo h = { .p = p, .n = n, .part_of = partitions };
	*out = NULL;
	arena_init(&h.a);
	h.m = ir_module_new();
	struct err *e = wire_read(&h);
	if (!e) {
		for (uint32_t i = 0; i < h.nname; i++)
			h.opname[i].row = op_row_find(h.opname[i].dialect, (const char *)p + h.opname[i].text.at, h.opname[i].text.n);
		h.vm = ARENA_NEW(&h.a, uint32_t, h.vtype.n);
		e = read_module(&h);
	}
	if (e)
		ir_module_free(h.m);
	else
		*out = h.m;
	wire_free(&h);
	return e;
}
