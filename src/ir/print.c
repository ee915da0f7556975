/* Text of a module.  docs/ir.md has the grammar; parse.c reads it back.
 *
 * Functions are printed from main on, in the order in which they are first named; what nothing
 * reaches is not printed.  Names that are taken get the function's number. */
#include "text.h"

#include <stdlib.h>

/* --- small pieces ------------------------------------------------------- */

static void add_int(struct str *s, int64_t v)
{
	char b[24], *p = b + sizeof b;
	uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
	do
		*--p = (char)('0' + u % 10);
	while (u /= 10);
	if (v < 0)
		*--p = '-';
	str_addn(s, p, (size_t)(b + sizeof b - p));
}

static void add_hex(struct str *s, const void *p, size_t n)
{
	static const char digit[] = "0123456789abcdef";
	const uint8_t *b = p;
	char buf[128];
	for (size_t i = 0; i < n;) {
		size_t k = 0;
		for (; i < n && k < sizeof buf; i++) {
			buf[k++] = digit[b[i] >> 4];
			buf[k++] = digit[b[i] & 15];
		}
		str_addn(s, buf, k);
	}
}

static void add_quoted(struct str *s, const char *p, size_t n)
{
	str_add(s, "\"");
	for (size_t i = 0; i < n; i++) {
		uint8_t c = (uint8_t)p[i];
		if (c == '"' || c == '\\')
			str_addf(s, "\\%c", c);
		else if (c < 32 || c == 127)
			str_addf(s, "\\%02x", c);
		else
			str_addn(s, p + i, 1);
	}
	str_add(s, "\"");
}

static bool plain_name(const char *p)
{
	if (!*p)
		return false;
	for (; *p; p++)
		if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '_' || *p == '.' ||
		      *p == '-' || *p == '$'))
			return false;
	return true;
}

static void add_name(struct str *s, const char *p)
{
	str_add(s, "@");
	if (plain_name(p))
		str_add(s, p);
	else
		add_quoted(s, p, strlen(p));
}

static void add_data(struct str *s, const struct ir_module *m, ir_blob b, enum dtype dt)
{
	size_t n, e = dtype_info[dt].bytes;
	const uint8_t *p = ir_blob_data(m, b, &n);
	if (e && n == e) {
		ir_elem_print(s, dt, p);
	} else if (e && n % e == 0 && n / e <= IR_LIST_MAX) {
		str_add(s, "[");
		for (size_t i = 0; i < n; i += e) {
			if (i)
				str_add(s, ",");
			ir_elem_print(s, dt, p + i);
		}
		str_add(s, "]");
	} else {
		str_add(s, "x\"");
		add_hex(s, p, n);
		str_add(s, "\"");
	}
}

/* --- types, shardings, groups, dictionaries ----------------------------------- */

void ir_print_type(struct str *s, const struct ir_module *m, ir_type t)
{
	const struct ir_type_info *i = &m->type.p[t];
	str_add(s, dtype_info[i->dtype].name ? dtype_info[i->dtype].name : "none");
	if (i->dtype == DT_token)
		return;
	str_add(s, "[");
	for (int d = 0; d < i->rank; d++) {
		if (d)
			str_add(s, ",");
		add_int(s, i->dim[d]);
	}
	str_add(s, "]");
}

/* How to name things: NULL in ctx fields means as they are. */
struct ctx {
	const struct ir_module *m;
	const char **fn_name;        /* by function id */
	ir_val *val;                 /* new number of a value; NULL = its own */
	bool canonical;
};

static void add_refs(struct str *s, const struct ctx *c, const struct ir_mesh *mesh, int n, const struct ir_axis_ref *a)
{
	for (int i = 0; i < n; i++) {
		if (i)
			str_add(s, ",");
		bool known = a[i].axis < mesh->naxis;
		int64_t full = known ? mesh->axis[a[i].axis].size : 0;
		if (c->canonical || !known) {
			str_add(s, "#");
			add_int(s, a[i].axis);
		} else {
			const char *name = ir_text(c->m, mesh->axis[a[i].axis].name);
			add_quoted(s, name, strlen(name));
		}
		if (a[i].pre != 1 || a[i].size != full)
			str_addf(s, ":(%lld)%lld", (long long)a[i].pre, (long long)a[i].size);
	}
}

static void add_mesh_axes(struct str *s, const struct ctx *c, const struct ir_mesh *mesh)
{
	str_add(s, "[");
	for (int i = 0; i < mesh->naxis; i++) {
		if (i)
			str_add(s, ",");
		if (!c->canonical) {
			const char *name = ir_text(c->m, mesh->axis[i].name);
			add_quoted(s, name, strlen(name));
			str_add(s, "=");
		}
		add_int(s, mesh->axis[i].size);
	}
	str_add(s, "]");
	if (mesh->id) {
		str_add(s, " ids=[");
		for (int64_t i = 0; i < mesh->ndev; i++) {
			if (i)
				str_add(s, ",");
			add_int(s, mesh->id[i]);
		}
		str_add(s, "]");
	}
}

static void add_shard(struct str *s, const struct ctx *c, ir_shard h)
{
	if (!h) {
		str_add(s, "none");
		return;
	}
	const struct ir_shard_info *i = &c->m->shard.p[h];
	const struct ir_mesh *mesh = &c->m->mesh.p[i->mesh];
	if (c->canonical) {
		str_add(s, "@");
		add_mesh_axes(s, c, mesh);
	} else if (i->mesh == 0) {
		str_add(s, "@");
	} else {
		add_name(s, ir_text(c->m, mesh->name));
	}
	str_add(s, "[");
	for (int d = 0; d < i->rank; d++) {
		const struct ir_dim_shard *x = &i->dim[d];
		if (d)
			str_add(s, ",");
		str_add(s, "{");
		add_refs(s, c, mesh, x->naxis, x->axis);
		if (x->open)
			str_add(s, x->naxis ? ",?" : "?");
		str_add(s, "}");
		if (x->priority) {
			str_add(s, "p");
			add_int(s, x->priority);
		}
	}
	if (i->nrepl) {
		str_add(s, "; replicated={");
		add_refs(s, c, mesh, i->nrepl, i->repl);
		str_add(s, "}");
	}
	if (i->npart) {
		str_addf(s, "; %s={", redop_name[i->part_op]);
		add_refs(s, c, mesh, i->npart, i->part);
		str_add(s, "}");
	}
	str_add(s, "]");
}

void ir_print_shard(struct str *s, const struct ir_module *m, ir_shard h)
{
	add_shard(s, &(struct ctx){ .m = m }, h);
}

static void axis(struct str *s, const struct ir_module *m, const struct ir_mesh *mesh, struct ir_axis_ref r)
{
	const struct ir_mesh_axis *x = &mesh->axis[r.axis];
	str_addf(s, "'%s'", ir_text(m, x->name));
	if (r.size != x->size)
		str_addf(s, ":(%lld)%lld", (long long)r.pre, (long long)r.size);
}

void ir_print_axes(struct str *s, const struct ir_module *m, const struct ir_mesh *mesh, int n, const struct ir_axis_ref *r)
{
	for (int i = 0; i < n; i++) {
		str_add(s, i ? ", " : "");
		axis(s, m, mesh, r[i]);
	}
}

void ir_print_spec(struct str *s, const struct ir_module *m, ir_shard h)
{
	const struct ir_shard_info *i = &m->shard.p[h];
	const struct ir_mesh *mesh = h ? &m->mesh.p[i->mesh] : NULL;
	bool some = false;
	for (int d = 0; h && d < i->rank; d++)
		some |= i->dim[d].naxis > 0;
	str_add(s, "P(");
	for (int d = 0; some && d < i->rank; d++) {
		int n = i->dim[d].naxis;
		str_add(s, d ? ", " : "");
		str_add(s, n > 1 ? "(" : n ? "" : "None");
		ir_print_axes(s, m, mesh, n, i->dim[d].axis);
		str_add(s, n > 1 ? ")" : "");
	}
	if (h && i->npart) {
		str_add(s, some ? ", unreduced={" : "unreduced={");
		ir_print_axes(s, m, mesh, i->npart, i->part);
		str_add(s, "}");
	}
	str_add(s, ")");
}

static void add_group(struct str *s, const struct ir_module *m, ir_group g)
{
	if (!g) {
		str_add(s, "none");
		return;
	}
	const struct ir_group_info *i = &m->group.p[g];
	str_add(s, "[");
	for (int r = 0; r < i->nrow; r++) {
		str_add(s, r ? ",[" : "[");
		for (int k = 0; k < i->ncol; k++) {
			if (k)
				str_add(s, ",");
			add_int(s, i->id[(int64_t)r * i->ncol + k]);
		}
		str_add(s, "]");
	}
	str_add(s, "]");
}

static void add_dict(struct str *s, const uint8_t *p, size_t n, int depth)
{
	struct ir_dict_it it = { .p = p, .end = p + n };
	bool first = true;
	str_add(s, "{");
	while (depth < 64 && ir_dict_next(&it)) {
		if (!first)
			str_add(s, ", ");
		first = false;
		add_quoted(s, it.name, it.name_n);
		str_add(s, "=");
		size_t e = it.kind <= 1 ? dtype_info[it.dtype].bytes : 1;
		if (it.kind == 1)
			str_add(s, "[");
		for (uint32_t i = 0; it.kind <= 1 && i < it.count; i++) {
			if (i)
				str_add(s, ",");
			ir_elem_print(s, it.dtype, it.data + i * e);
		}
		if (it.kind == 1)
			str_add(s, "]");
		if (it.kind <= 1) {
			str_add(s, ":");
			str_add(s, dtype_info[it.dtype].name);
		} else if (it.kind == 2) {
			add_quoted(s, (const char *)it.data, it.count);
		} else {
			add_dict(s, it.data, it.count, depth + 1);
		}
	}
	str_add(s, "}");
}

/* --- operations ----------------------------------------------------------------- */

static void add_fn(struct str *s, const struct ctx *c, int64_t f)
{
	if (!f)
		str_add(s, "none");
	else
		add_name(s, c->fn_name && c->fn_name[f] ? c->fn_name[f] : ir_text(c->m, c->m->fn.p[f]->name));
}

static void add_val(struct str *s, const struct ctx *c, ir_val v)
{
	str_add(s, "%");
	add_int(s, c->val ? c->val[v] : v);
}

static void add_attr(struct str *s, const struct ctx *c, const struct ir_fn *fn, const struct ir_op *o, char kind,
                     const int64_t *w, bool role)
{
	switch (kind) {
	case 'i':
		add_int(s, *w);
		break;
	case 'I':
	case 'F':
	case 'H':
		str_add(s, "[");
		for (int64_t i = 1; i <= w[0]; i++) {
			if (i > 1)
				str_add(s, ",");
			if (kind == 'F')
				add_fn(s, c, w[i]);
			else if (kind == 'H')
				add_shard(s, c, (ir_shard)w[i]);
			else if (role && w[i] >= 0 && w[i] < (int64_t)NELEM(ir_role_name))
				str_add(s, ir_role_name[w[i]]);
			else
				add_int(s, w[i]);
		}
		str_add(s, "]");
		break;
	case 'f':
		add_fn(s, c, *w);
		break;
	case 't':
		str_add(s, dtype_info[*w].name);
		break;
	case 'R':
		str_add(s, redop_name[*w]);
		break;
	case 'b':
		add_data(s, c->m, (ir_blob)*w, c->m->type.p[fn->val.p[o->out].type].dtype);
		break;
	case 's':
		add_quoted(s, ir_text(c->m, (ir_str)*w), strlen(ir_text(c->m, (ir_str)*w)));
		break;
	case 'g':
		add_group(s, c->m, (ir_group)*w);
		break;
	case 'h':
		add_shard(s, c, (ir_shard)*w);
		break;
	case 'D': {
		size_t n;
		const uint8_t *p = ir_blob_data(c->m, (ir_blob)*w, &n);
		add_dict(s, p, n, 0);
		break;
	}
	}
}

/* What may be left out: it is what the parser takes for what is missing. */
static bool missing(char kind, const int64_t *w)
{
	switch (kind) {
	case 'I': case 'F': case 'H': case 'f': case 's': case 'g': case 'h': case 'D': return *w == 0;
	case 't': return *w == DT_token;
	default: return false;
	}
}

static void add_op(struct str *s, const struct ctx *c, const struct ir_fn *fn, const struct ir_op *o)
{
	const struct ir_kind_info *k = ir_info(o->kind);
	for (uint32_t i = 0; i < o->nout; i++) {
		if (i)
			str_add(s, ", ");
		add_val(s, c, o->out + i);
	}
	str_add(s, o->nout ? " = " : "");
	str_add(s, k->name);
	for (uint32_t i = 0; i < o->nin; i++) {
		str_add(s, i ? ", " : " ");
		add_val(s, c, ir_in(fn, o, i));
	}
	const int64_t *w = k->nattr ? fn->attr.p + o->attr : NULL;
	for (int i = 0; i < k->nattr; i++) {
		char kind = k->attr[i].kind;
		bool list = kind == 'I' || kind == 'F' || kind == 'H';
		if (!missing(kind, w)) {
			str_addf(s, " %s=", ir_at_name[k->attr[i].name]);
			add_attr(s, c, fn, o, kind, w, o->kind == IR_loop);
		}
		w += list ? 1 + w[0] : 1;
	}
	for (uint32_t i = 0; i < o->nout; i++) {
		const struct ir_value *v = &fn->val.p[o->out + i];
		str_add(s, i ? ", " : " : ");
		ir_print_type(s, c->m, v->type);
		if (ir_shard_of(fn, o->out + i) && !c->canonical) {
			str_add(s, " ");
			add_shard(s, c, ir_shard_of(fn, o->out + i));
		}
	}
	for (ir_loc at = c->canonical ? 0 : o->loc; at; at = c->m->loc.p[at].more) {
		const struct ir_loc_info *l = &c->m->loc.p[at];
		const char *file = ir_text(c->m, l->file), *name = ir_text(c->m, l->name);
		str_add(s, at == o->loc ? " loc(" : " ");
		add_quoted(s, file, strlen(file));
		str_add(s, ":");
		add_int(s, l->line);
		if (l->name) {
			str_add(s, " ");
			add_quoted(s, name, strlen(name));
		}
		str_add(s, l->more ? "," : ")");
	}
}

void ir_print_op(struct str *s, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	add_op(s, &(struct ctx){ .m = m }, fn, o);
}

/* --- functions --------------------------------------------------------------------- */

/* What main's argument or result says about itself. */
static void add_arg(struct str *s, const struct ctx *c, const struct ir_arg *a)
{
	if (a->shard) {
		str_add(s, " sharding=");
		add_shard(s, c, a->shard);
	}
	if (a->alias >= 0) {
		str_add(s, " alias=");
		add_int(s, a->alias);
	}
	if (a->donor)
		str_add(s, " donor");
	const struct { const char *what; ir_str text; } said[] = { { "memory", a->memory_kind }, { "layout", a->layout }, { "name", a->name } };
	for (size_t i = 0; i < NELEM(said); i++)
		if (said[i].text) {
			str_addf(s, " %s=", said[i].what);
			add_quoted(s, ir_text(c->m, said[i].text), strlen(ir_text(c->m, said[i].text)));
		}
}

static void add_function(struct str *s, const struct ctx *c, const struct ir_fn *fn)
{
	bool main_fn = fn == ir_main(c->m) && !c->canonical;
	str_add(s, "fn ");
	add_fn(s, c, fn->id);
	str_add(s, "(");
	for (uint32_t i = 1; i <= fn->nparam; i++) {
		if (i > 1)
			str_add(s, ", ");
		add_val(s, c, i);
		str_add(s, ": ");
		ir_print_type(s, c->m, fn->val.p[i].type);
		if (ir_shard_of(fn, (ir_val)i) && !c->canonical) {
			str_add(s, " ");
			add_shard(s, c, ir_shard_of(fn, (ir_val)i));
		}
		if (main_fn && c->m->arg)
			add_arg(s, c, &c->m->arg[i - 1]);
	}
	str_add(s, ") -> (");
	for (size_t i = 0; i < fn->result.n; i++) {
		if (i)
			str_add(s, ", ");
		ir_print_type(s, c->m, fn->val.p[fn->result.p[i]].type);
		if (main_fn && c->m->res)
			add_arg(s, c, &c->m->res[i]);
	}
	str_add(s, ") {\n");
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		if (c->val && o->nout && !c->val[o->out])
			continue;
		str_add(s, "  ");
		add_op(s, c, fn, o);
		str_add(s, "\n");
	}
	str_add(s, "  return");
	for (size_t i = 0; i < fn->result.n; i++) {
		str_add(s, i ? ", " : " ");
		add_val(s, c, fn->result.p[i]);
	}
	str_add(s, "\n}\n");
}

void ir_print_fn(struct str *s, const struct ir_module *m, const struct ir_fn *fn)
{
	add_function(s, &(struct ctx){ .m = m }, fn);
}

/* Functions that root reaches, in the order in which they are first named. */
struct order { ARR(ir_fnid) fn; uint8_t *seen; };

static void visit_ops(struct order *q, const struct ir_fn *fn, const ir_val *val)
{
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		const struct ir_kind_info *k = ir_info(o->kind);
		if (k->flags & IR_ELEM || (val && o->nout && !val[o->out]))
			continue;
		for (int a = 0, n; a < k->nattr; a++) {
			const int64_t *f = ir_attr_nth(fn, o, a, &n);
			for (int j = 0; j < n && (k->attr[a].kind == 'f' || k->attr[a].kind == 'F'); j++)
				if (f[j] && !q->seen[f[j]]) {
					q->seen[f[j]] = 1;
					arr_push(&q->fn, (ir_fnid)f[j]);
				}
		}
	}
}

void ir_print(struct str *s, const struct ir_module *m)
{
	struct ctx c = { .m = m };
	str_add(s, "module ");
	add_name(s, ir_text(m, m->name));
	str_addf(s, " partitions=%d replicas=%d\n", m->num_partitions, m->num_replicas);
	for (size_t i = 0; i < m->mesh.n; i++) {
		str_add(s, "mesh ");
		add_name(s, ir_text(m, m->mesh.p[i].name));
		str_add(s, " = ");
		add_mesh_axes(s, &c, &m->mesh.p[i]);
		str_add(s, "\n");
	}
	if (m->fn.n < 2)
		return;
	struct order q = { .seen = mem_alloc(m->fn.n) };
	struct arena a;
	struct map used = {0};
	arena_init(&a);
	c.fn_name = ARENA_NEW(&a, const char *, m->fn.n);
	arr_push(&q.fn, ir_main(m)->id);
	q.seen[ir_main(m)->id] = 1;
	for (size_t i = 0; i < q.fn.n; i++) {
		const struct ir_fn *fn = m->fn.p[q.fn.p[i]];
		const char *name = ir_text(m, fn->name);
		for (size_t k = i; map_get(&used, name, strlen(name)); k++)
			name = arena_printf(&a, "%s.%zu", ir_text(m, fn->name), k);
		*map_put(&used, name, strlen(name)) = 1;
		c.fn_name[q.fn.p[i]] = name;
		visit_ops(&q, fn, NULL);
	}
	for (size_t i = 0; i < q.fn.n; i++) {
		str_add(s, "\n");
		add_function(s, &c, m->fn.p[q.fn.p[i]]);
	}
	arr_free(&q.fn);
	free(q.seen);
	map_free(&used);
	arena_fini(&a);
}

/* Values that results and effects need, numbered from 1. */
static ir_val *number(struct arena *a, const struct ir_module *m, const struct ir_fn *fn)
{
	uint8_t *live = ir_live(a, m, fn, NULL);
	ir_val *val = ARENA_NEW(a, ir_val, fn->val.n), next = 1;
	for (uint32_t i = 1; i <= fn->nparam; i++)
		val[i] = next++;
	for (size_t i = 0; i < fn->op.n; i++) {
		const struct ir_op *o = &fn->op.p[i];
		bool need = ir_effect(m, fn, o);
		for (uint32_t k = 0; k < o->nout; k++)
			need |= live[o->out + k] != 0;
		for (uint32_t k = 0; k < o->nout && need; k++)
			val[o->out + k] = next++;
	}
	return val;
}

void ir_print_canonical(struct str *s, const struct ir_module *m, const struct ir_fn *fn)
{
	struct arena a;
	arena_init(&a);
	struct ctx c = { .m = m, .canonical = true };
	struct order q = { .seen = ARENA_NEW(&a, uint8_t, m->fn.n) };
	c.fn_name = ARENA_NEW(&a, const char *, m->fn.n);
	arr_push(&q.fn, fn->id);
	q.seen[fn->id] = 1;
	ARR(ir_val *) val = {0};
	for (size_t i = 0; i < q.fn.n; i++) {
		const struct ir_fn *g = m->fn.p[q.fn.p[i]];
		c.fn_name[q.fn.p[i]] = arena_printf(&a, "%zu", i);
		arr_push(&val, number(&a, m, g));
		visit_ops(&q, g, val.p[i]);
	}
	for (size_t i = 0; i < q.fn.n; i++) {
		c.val = val.p[i];
		add_function(s, &c, m->fn.p[q.fn.p[i]]);
	}
	arr_free(&val);
	arr_free(&q.fn);
	arena_fini(&a);
}
