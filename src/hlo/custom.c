/* Custom calls and composites. */
#include "wire.h"

#include <stdlib.h>

/* --- the dictionary blob (ir.h) ------------------------------------------- */

struct item { struct span key; uint32_t value; const uint8_t *p; };

static int by_key(const void *a, const void *b)
{
	const struct item *x = a, *y = b;
	int c = memcmp(x->p + x->key.at, y->p + y->key.at, MIN(x->key.n, y->key.n));
	return c ? c : (x->key.n > y->key.n) - (x->key.n < y->key.n);
}

static void entry(struct str *s, const char *name, uint32_t name_n, uint8_t kind, uint8_t dtype, uint32_t count,
                  const void *p, size_t n)
{
	uint8_t head[4] = { kind, dtype, 0, 0 };
	str_addn(s, (char *)&name_n, 4);
	str_addn(s, name, name_n);
	str_addn(s, (char *)head, 4);
	str_addn(s, (char *)&count, 4);
	str_addn(s, p, n);
}

static struct err *dict(struct hlo *h, uint32_t attr, int depth, struct str *s);

/* A number with its type: its stored bytes. */
static struct err *scalar(struct hlo *h, uint32_t attr, enum dtype *dt, uint8_t out[8], size_t *n)
{
	struct cur c;
	int d, code;
	int64_t v;
	double f;
	const struct wtype *w;
	TRY(attr_open(h, attr, &c, &d, &code));
	bool number = d == D_VHLO ? code == 8 || code == 9 : d == D_BUILTIN && (code == 8 || code == 9);
	if (!number) {
		TRY(attr_int(h, attr, &v));    /* booleans, units, enumerators */
		*dt = DT_pred;
		out[0] = v != 0;
		*n = 1;
		return NULL;
	}
	uint32_t type = cur_index(&c, h->ntype);
	TRY(cur_err(&c, "number"));
	TRY(type_get(h, type, &w));
	*dt = (enum dtype)w->dtype;
	*n = dtype_info[*dt].bytes;
	if (dtype_info[*dt].cls == DT_FLOAT) {
		TRY(attr_float(h, attr, &f));
		float g = (float)f;
		uint16_t half = *dt == DT_f16 ? f32_to_f16(g) : f32_to_bf16(g);
		memcpy(out, *dt == DT_f64 ? (void *)&f : *dt == DT_f32 ? (void *)&g : (void *)&half, *n);
		return NULL;
	}
	TRY(attr_int(h, attr, &v));
	memcpy(out, &v, *n);
	return NULL;
}

static struct err *value(struct hlo *h, const char *key, uint32_t key_n, uint32_t attr, int depth, struct str *s)
{
	struct cur c;
	int d, code;
	struct span t;
	TRY(attr_open(h, attr, &c, &d, &code));
	if ((d == D_VHLO && code == 14) || (d == D_BUILTIN && (code == 2 || code == 3 || code == 4))) {
		TRY(attr_str(h, attr, &t));
		entry(s, key, key_n, 2, 0, t.n, h->p + t.at, t.n);
		return NULL;
	}
	if ((d == D_VHLO && code == 6) || (d == D_BUILTIN && code == 1)) {
		struct str in = {0};
		struct err *e = dict(h, attr, depth + 1, &in);
		if (!e)
			entry(s, key, key_n, 3, 0, (uint32_t)in.n, in.p, in.n);
		str_free(&in);
		return e;
	}
	if ((d == D_VHLO && code == 15) || (d == D_BUILTIN && code == 18)) {
		ir_type ty;
		const uint8_t *p;
		size_t n;
		TRY(attr_tensor(h, attr, &ty, &p, &n));
		const struct ir_type_info *i = ir_type_of(h->m, ty);
		size_t e = dtype_info[i->dtype].bytes;
		if (i->count > (1 << 24))
			return ERR(UNIMPLEMENTED, "an attribute of %lld numbers", (long long)i->count);
		uint8_t *all = mem_alloc((size_t)i->bytes);
		for (int64_t k = 0; k < i->count; k++) {
			if (i->dtype == DT_pred)
				all[k] = n == 1 && (*p == 0xff || i->count > 8) ? *p != 0 : p[k / 8] >> (k % 8) & 1;
			else
				memcpy(all + (size_t)k * e, p + (n == e ? 0 : (size_t)k * e), e);
		}
		entry(s, key, key_n, 1, i->dtype, (uint32_t)i->count, all, (size_t)i->bytes);
		free(all);
		return NULL;
	}
	if ((d == D_VHLO && code == 1) || (d == D_BUILTIN && code == 0)) {
		/* numbers of one type are an array, anything else a dictionary with keys 0, 1, .. */
		uint32_t n, *list;
		TRY(attr_list(h, attr, &n, &list));
		struct str in = {0};
		struct err *e = NULL;
		enum dtype dt = DT_i64, first = DT_i64;
		bool plain = true;
		for (uint32_t i = 0; i < n && plain && !e; i++) {
			uint8_t b[8];
			size_t k;
			int d2, code2;
			struct cur c2;
			TRY_GOTO(e, attr_open(h, list[i], &c2, &d2, &code2), out);
			plain = d2 == D_VHLO ? code2 == 2 || code2 == 8 || code2 == 9 : d2 == D_BUILTIN && (code2 == 8 || code2 == 9);
			if (!plain)
				break;
			TRY_GOTO(e, scalar(h, list[i], &dt, b, &k), out);
			if (i && dt != first)
				plain = false;
			first = dt;
			str_addn(&in, (char *)b, k);
		}
		if (plain) {
			entry(s, key, key_n, 1, (uint8_t)first, n, in.p, in.n);
		} else {
			in.n = 0;
			if (depth > 16) {
				e = ERR(UNIMPLEMENTED, "attributes nested deeper than 16");
				goto out;
			}
			for (uint32_t i = 0; i < n; i++) {
				char name[16];
				int k = snprintf(name, sizeof name, "%06u", i);
				TRY_GOTO(e, value(h, name, (uint32_t)k, list[i], depth + 1, &in), out);
			}
			entry(s, key, key_n, 3, 0, (uint32_t)in.n, in.p ? in.p : "", in.n);
		}
out:
		str_free(&in);
		return e;
	}
	if (d == D_BUILTIN && code == 17) {
		int n;
		int64_t *v;
		TRY(attr_ints(h, attr, &n, &v));
		entry(s, key, key_n, 1, DT_i64, (uint32_t)n, v, (size_t)n * 8);
		return NULL;
	}
	enum dtype dt;
	uint8_t b[8];
	size_t n;
	TRY(scalar(h, attr, &dt, b, &n));
	entry(s, key, key_n, 0, (uint8_t)dt, 1, b, n);
	return NULL;
}

static struct err *dict(struct hlo *h, uint32_t attr, int depth, struct str *s)
{
	uint32_t n, *kv;
	if (depth > 16)
		return ERR(UNIMPLEMENTED, "attributes nested deeper than 16");
	TRY(attr_dict(h, attr, &n, &kv));
	struct item *it = ARENA_NEW(&h->a, struct item, n);
	for (uint32_t i = 0; i < n; i++) {
		it[i] = (struct item){ .value = kv[2 * i + 1], .p = h->p };
		TRY(attr_str(h, kv[2 * i], &it[i].key));
	}
	if (n)
		qsort(it, n, sizeof *it, by_key);
	for (uint32_t i = 0; i < n; i++) {
		TRY(value(h, (const char *)h->p + it[i].key.at, it[i].key.n, it[i].value, depth, s));
		if (s->n > UINT32_MAX / 2)
			return ERR(UNIMPLEMENTED, "attributes of more than 2 GB");
	}
	return NULL;
}

/* --- custom calls ---------------------------------------------------------- */

static bool is_dict(struct hlo *h, uint32_t attr)
{
	struct cur c;
	int d, code;
	struct err *e = attr_open(h, attr, &c, &d, &code);
	err_free(e);
	return !e && ((d == D_VHLO && code == 6) || (d == D_BUILTIN && code == 1));
}

/* What is given to whoever cuts the call is told apart from what the call itself is given (ir_key). */
static bool has_key(const struct hlo *h, struct span target) { return span_is(h, target, "CustomSPMDPartitioning"); }

static struct err *config_of(struct hlo *h, const struct wop *o, struct span target, uint32_t backend, ir_blob *out)
{
	struct str s = {0};
	struct err *e = NULL;
	uint32_t attr;
	TRY(op_discardable(h, o, "mhlo.backend_config", &attr));
	if (attr == UINT32_MAX && is_dict(h, backend))
		attr = backend;
	*out = 0;
	if (attr != UINT32_MAX && is_dict(h, attr)) {
		e = dict(h, attr, 0, &s);
	} else {
		struct span t;
		TRY(attr_str(h, backend, &t));
		int64_t key = has_key(h, target) ? ir_key_add(h->m, h->p + t.at, t.n) : 0;
		if (has_key(h, target))
			entry(&s, "key", 3, 0, DT_i64, 1, &key, sizeof key);
		else if (t.n)
			entry(&s, "", 0, 2, 0, t.n, h->p + t.at, t.n);
	}
	if (!e && s.n)
		*out = ir_blob_add(h->m, s.p, s.n);
	str_free(&s);
	return e;
}

/* The integer or boolean of a dictionary. */
static bool config_int(const struct hlo *h, ir_blob b, const char *name, int64_t *out)
{
	size_t n;
	if (!b)
		return false;
	const uint8_t *p = ir_blob_data(h->m, b, &n);
	struct ir_dict_it it = { .p = p, .end = p + n };
	while (ir_dict_next(&it))
		if (it.kind == 0 && it.name_n == strlen(name) && memcmp(it.name, name, it.name_n) == 0 &&
		    dtype_info[it.dtype].cls != DT_FLOAT) {
			*out = 0;
			memcpy(out, it.data, dtype_info[it.dtype].bytes);
			if (dtype_info[it.dtype].cls == DT_INT && dtype_info[it.dtype].bytes == 4)
				*out = (int32_t)*out;
			return true;
		}
	return false;
}

/* Comparator of (value, value, index, index): 1 if it is "first value is greater", -1 if less, 0 if else. */
static int direction(const struct hlo *h, ir_fnid f)
{
	const struct ir_fn *fn = ir_fn_of(h->m, f);
	if (fn->nparam != 4 || fn->result.n != 1)
		return 0;
	const struct ir_op *o = ir_def(fn, fn->result.p[0]);
	if (!o || o->nin != 2)
		return 0;
	ir_val a = ir_in(fn, o, 0), b = ir_in(fn, o, 1);
	bool gt = o->kind == IR_compare_gt || o->kind == IR_total_gt, lt = o->kind == IR_compare_lt || o->kind == IR_total_lt;
	if (a == 1 && b == 2)
		return gt ? 1 : lt ? -1 : 0;
	if (a == 2 && b == 1)
		return gt ? -1 : lt ? 1 : 0;
	return 0;
}

/* Sort with the call's own comparator and keep the front; the largest of the last dimension is top_k. */
static struct err *approx_top_k(struct hlo *h, const struct wop *o, uint32_t called, ir_blob config)
{
	uint32_t n, *list, nin, nout;
	ir_val *in;
	ir_type *t;
	int64_t dim, fallback;
	struct wfunc *g;
	ir_fnid before;
	TRY(attr_list(h, called, &n, &list));
	TRY(op_ins(h, o, &nin, &in));
	TRY(op_outs(h, o, &nout, &t));
	if (n != 1 || nin != 4 || nout != 2 || !config_int(h, config, "reduction_dim", &dim) ||
	    !config_int(h, config, "is_fallback", &fallback) || !fallback)
		return no_op(h, "a form of ApproxTopK that no JAX program has");
	TRY(func_find(h, list[0], &g));
	TRY(func_fn(h, g, true, &before));
	struct ir_fn *fn = h->b.fn;
	const struct ir_type_info *x = ir_vtype(h->m, fn, in[0]), *r = ir_type_of(h->m, t[0]);
	if (dim < 0)
		dim += x->rank;
	if (dim < 0 || dim >= x->rank || r->rank != x->rank || fn->val.p[in[0]].type == 0)
		return bad_op(h, "its dimension %lld does not exist", (long long)dim);
	int64_t k = r->dim[dim];
	if (k > x->dim[dim])
		return bad_op(h, "it wants %lld of %lld elements", (long long)k, (long long)x->dim[dim]);
	const struct ir_op *def = ir_def(fn, in[1]);
	ir_val v[2];
	if (dim == x->rank - 1 && direction(h, before) == 1 && def && def->kind == IR_iota && ir_attr(fn, def, AT_dim) == dim &&
	    ir_vtype(h->m, fn, in[1])->dtype == DT_i32 && dtype_info[x->dtype].cls != DT_COMPLEX) {
		TRY(op_emit_t(h, IR_top_k, 1, in, 2, t, 1, &k, v));
		v[1] = v[0] + 1;
		return op_bind(h, o, 2, v);
	}
	ir_type st[2] = { fn->val.p[in[0]].type, fn->val.p[in[1]].type };
	TRY(op_emit_t(h, IR_sort, 2, in, 2, st, 3, (int64_t[]){ dim, 1, before }, v));
	v[1] = v[0] + 1;
	int64_t start[IR_MAX_RANK] = {0}, limit[IR_MAX_RANK], stride[IR_MAX_RANK];
	for (int d = 0; d < x->rank; d++) {
		limit[d] = x->dim[d];
		stride[d] = 1;
	}
	limit[dim] = k;
	for (int i = 0; i < 2; i++)
		v[i] = ir_slice(&h->b, v[i], start, limit, stride);
	return op_bind(h, o, 2, v);
}

/* Calls whose result is their operand.  SPMDFullToShardShape and the like change shapes and are not among them. */
static bool is_identity(const struct hlo *h, struct span t)
{
	return span_is(h, t, "Sharding") || span_is(h, t, "LayoutConstraint") || span_is(h, t, "annotate_device_placement");
}

/* The layouts of a call's operands or results: order[i * IR_MAX_RANK + k] is the dimension of value i stored k-th from
 * the outside.  NULL: all are row-major. */
static struct err *layouts(struct hlo *h, uint32_t attr, uint32_t n, const ir_type *t, int64_t **order)
{
	uint32_t count, *list;
	bool plain = true;
	*order = NULL;
	TRY(attr_list(h, attr, &count, &list));
	if (!count)
		return NULL;
	if (count != n)
		return bad_op(h, "it has %u layouts for %u values", count, n);
	int64_t *out = ARENA_NEW(&h->a, int64_t, (size_t)n * IR_MAX_RANK);
	for (uint32_t i = 0; i < n; i++) {
		int rank = ir_type_of(h->m, t[i])->rank, k;
		int64_t *minor;
		uint64_t seen = 0;
		TRY(attr_ints(h, list[i], &k, &minor));
		if (k != rank && k)
			return bad_op(h, "a layout of %d dimensions for a value of rank %d", k, rank);
		for (int d = 0; d < k; d++) {
			if (minor[d] < 0 || minor[d] >= rank || seen >> minor[d] & 1)
				return bad_op(h, "a layout is no order of the dimensions");
			seen |= 1ull << minor[d];
			out[i * IR_MAX_RANK + (uint32_t)(k - 1 - d)] = minor[d];
			plain &= minor[d] == k - 1 - d;
		}
		for (int d = k; d < rank; d++)
			out[i * IR_MAX_RANK + (uint32_t)d] = d;
	}
	*order = plain ? NULL : out;
	return NULL;
}

/* A handler sees its own extents over bytes in the order of the layout. */
static ir_val to_layout(struct hlo *h, ir_val v, const int64_t *order)
{
	const struct ir_type_info *t = ir_vtype(h->m, h->b.fn, v);
	int64_t dim[IR_MAX_RANK];
	int rank = t->rank;
	memcpy(dim, t->dim, sizeof *dim * (size_t)rank);
	return ir_reshape(&h->b, ir_transpose(&h->b, v, order), rank, dim);
}

static ir_val from_layout(struct hlo *h, ir_val v, const int64_t *order)
{
	const struct ir_type_info *t = ir_vtype(h->m, h->b.fn, v);
	int64_t dim[IR_MAX_RANK], back[IR_MAX_RANK];
	int rank = t->rank;
	for (int i = 0; i < rank; i++) {
		dim[i] = t->dim[order[i]];
		back[order[i]] = i;
	}
	return ir_transpose(&h->b, ir_reshape(&h->b, v, rank, dim), back);
}

/* --- sharding rules ------------------------------------------------------------------ */

enum { RULE_DIM = 8, RULE_TENSOR, RULE };    /* codes of sdy */

static struct err *open_rule(struct hlo *h, uint32_t attr, int want, struct cur *c)
{
	int d, code;
	TRY(attr_open(h, attr, c, &d, &code));
	return d == D_SDY && code == want ? NULL : bad_at(h->attr[attr].at, "attribute %u is no part of a sharding rule", attr);
}

/* The factors in the list at c get kind (or are blocked). */
static struct err *factors(struct cur *c, int64_t n, int64_t *w, int kind, bool blocked)
{
	for (uint32_t k = cur_count(c); k > 0 && !c->bad; k--) {
		int64_t f = cur_svarint(c);
		if (f < 0 || f >= n)
			return bad_at(c->pos, "factor %lld of %lld in a sharding rule", (long long)f, (long long)n);
		if (blocked)
			w[3 * f + 2] = 1;
		else
			w[3 * f + 1] = kind;
	}
	return cur_err(c, "sharding rule");
}

/* The tensors that one side of the rule maps; there must be n of them. */
static struct err *mappings(struct hlo *h, struct cur *c, uint32_t n)
{
	uint32_t k = cur_count(c);
	TRY(cur_err(c, "sharding rule"));
	if (k != n)
		return bad_at(c->pos, "a sharding rule of %u tensors for %u", k, n);
	for (uint32_t i = 0; i < n; i++) {
		struct cur t, d;
		uint32_t a = cur_index(c, h->nattr);
		TRY(cur_err(c, "sharding rule"));
		TRY(open_rule(h, a, RULE_TENSOR, &t));
		for (uint32_t nd = cur_count(&t); nd > 0; nd--) {
			a = cur_index(&t, h->nattr);
			TRY(cur_err(&t, "sharding rule"));
			TRY(open_rule(h, a, RULE_DIM, &d));
			uint32_t nf = cur_count(&d);
			for (w_int(h, nf); nf > 0; nf--)
				w_int(h, cur_svarint(&d));
			TRY(cur_err(&d, "sharding rule"));
		}
		TRY(cur_err(&t, "sharding rule"));
	}
	return NULL;
}

/* A rule of so many operands and results, as the words of attribute rule, length first. */
static struct err *rule_words(struct hlo *h, uint32_t attr, uint32_t nin, uint32_t nout)
{
	struct cur c;
	size_t start = h->word.n;
	w_int(h, 0);
	TRY(open_rule(h, attr, RULE, &c));
	uint32_t n = cur_count(&c);
	TRY(cur_err(&c, "sharding rule"));
	w_int(h, n);
	for (uint32_t f = 0; f < n; f++) {
		w_int(h, cur_svarint(&c));
		w_int(h, FACTOR_EACH);
		w_int(h, 0);
	}
	TRY(mappings(h, &c, nin));
	TRY(mappings(h, &c, nout));
	static const enum ir_factor_kind kind[] = { FACTOR_SUM, FACTOR_WHOLE, FACTOR_MOVED };
	for (size_t k = 0; k < NELEM(kind); k++)
		TRY(factors(&c, n, h->word.p + start + 2, kind[k], false));
	TRY(factors(&c, n, h->word.p + start + 2, 0, true));
	h->word.p[start] = (int64_t)(h->word.n - start - 1);
	return NULL;
}

/* Attribute on, from the sharding that all results have. */
static struct err *only_device(struct hlo *h, uint32_t attr)
{
	uint32_t n = 0;
	ir_shard *s;
	if (attr != UINT32_MAX)
		TRY(shard_per_value(h, attr, &n, &s));
	const struct ir_mesh *m = n ? &h->m->mesh.p[h->m->shard.p[s[0]].mesh] : NULL;
	bool one = m && !m->naxis && m->id;
	w_int(h, one);
	if (one)
		w_int(h, m->id[0]);
	return NULL;
}

/* Who looks at a value's sharding; the result, which some forms have, is the value. */
static struct err *inspect(struct hlo *h, const struct wop *o, uint32_t backend, ir_val v)
{
	struct span key;
	TRY(attr_str(h, backend, &key));
	int64_t number = ir_key_add(h->m, h->p + key.at, key.n);
	TRY(op_emit_t(h, IR_inspect_sharding, 1, &v, 0, NULL, 1, &number, &(ir_val){0}));
	return op_bind(h, o, o->nout, &v);
}

/* Each result's list of tiles is empty. */
static struct err *not_tiled(struct hlo *h, uint32_t tilings)
{
	uint32_t n, *list, k, *tile;
	TRY(attr_list(h, tilings, &n, &list));
	for (uint32_t i = 0; i < n; i++) {
		TRY(attr_list(h, list[i], &k, &tile));
		if (k)
			return no_op(h, "a result in tiles");
	}
	return NULL;
}

struct err *conv_custom_call(struct hlo *h, const struct wop *o)
{
	/* api, config, target, called, effect, operand layouts, aliases, result layouts; since version 2 tilings of the results */
	uint32_t p[9], n, nalias, *alias;
	struct span target;
	ir_val *in;
	ir_blob config;
	int64_t api, effect;
	bool half;
	TRY(op_props(h, o, p));
	TRY(attr_str(h, p[2], &target));
	if (h->opname[o->name].row->nprop == 9)
		TRY(not_tiled(h, p[8]));
	TRY(attr_int(h, p[0], &api));
	TRY(attr_int(h, p[4], &effect));
	TRY(op_ins(h, o, &n, &in));
	if (n == 1 && o->nout == 1 && is_identity(h, target))
		return op_bind(h, o, 1, in);
	if (n == 1 && o->nout <= 1 && span_is(h, target, "InspectSharding"))
		return inspect(h, o, p[1], in[0]);
	TRY(half_known(h, o, target, p[3], &half));
	if (half)
		return NULL;
	if (span_is(h, target, "ragged_all_to_all"))
		return ragged_all_to_all(h, o, p[1]);
	TRY(config_of(h, o, target, p[1], &config));
	if (span_is(h, target, "ApproxTopK"))
		return approx_top_k(h, o, p[3], config);
	if (span_is(h, target, "Qr") || span_is(h, target, "ProductOfElementaryHouseholderReflectors"))
		return householder(h, o, target.n > 2);
	TRY(attr_list(h, p[6], &nalias, &alias));
	w_begin(h);
	w_int(h, span_intern(h, target));
	w_int(h, api);
	w_int(h, effect);
	w_int(h, config);
	size_t at = h->word.n;
	w_int(h, 0);
	for (uint32_t i = 0; i < nalias; i++) {
		/* output tuple indices, operand, operand tuple indices */
		struct cur c;
		int d, code;
		TRY(attr_open(h, alias[i], &c, &d, &code));
		if (d != D_VHLO || code != 10)
			return bad_op(h, "its aliases are not a list of them");
		uint32_t k = cur_count(&c);
		int64_t out = 0;
		for (uint32_t j = 0; j < k && !c.bad; j++)
			out = cur_svarint(&c);
		int64_t operand = cur_svarint(&c);
		uint32_t q = cur_count(&c);
		if (c.bad)
			return cur_err(&c, "alias");
		if (k > 1 || q || out < 0 || out >= o->nout || operand < 0 || operand >= n)
			return no_op(h, "an alias between output %lld and operand %lld", (long long)out, (long long)operand);
		w_int(h, out);
		w_int(h, operand);
		w_int(h, 0);
		h->word.p[at] += 3;
	}
	uint32_t nout, rule, pinned;
	ir_type *rt, *it = ARENA_NEW(&h->a, ir_type, n + 1);
	int64_t *order;
	TRY(op_outs(h, o, &nout, &rt));
	TRY(op_discardable(h, o, "sdy.sharding", &pinned));
	TRY(only_device(h, pinned));
	TRY(op_discardable(h, o, "sdy.sharding_rule", &rule));
	if (rule == UINT32_MAX)
		w_int(h, 0);
	else
		TRY(rule_words(h, rule, n, nout));
	for (uint32_t i = 0; i < n; i++)
		it[i] = h->b.fn->val.p[in[i]].type;
	TRY(layouts(h, p[5], n, it, &order));
	for (uint32_t i = 0; i < n && order; i++)
		in[i] = to_layout(h, in[i], order + i * IR_MAX_RANK);
	TRY(layouts(h, p[7], nout, rt, &order));
	if (!order)
		return op_emit(h, o, IR_custom_call, n, in, (uint32_t)h->word.n, h->word.p);
	ir_val *v = ARENA_NEW(&h->a, ir_val, nout);
	TRY(op_emit_t(h, IR_custom_call, n, in, nout, rt, (uint32_t)h->word.n, h->word.p, v));
	for (uint32_t i = 1; i < nout; i++)
		v[i] = v[0] + i;
	for (uint32_t i = 0; i < nout; i++)
		v[i] = from_layout(h, v[i], order + i * IR_MAX_RANK);
	return op_bind(h, o, nout, v);
}

/* --- composites ------------------------------------------------------------ */

/* chlo.scan: inputs cut along a dimension, and carries, through the body: a counted loop with stacks. */
struct scan { int64_t dim, trip; bool reverse; uint32_t nin, ncarry, nout; };

/* v with dimension d moved to the front (or from there). */
static ir_val bring(struct hlo *h, ir_val v, int64_t d, bool back)
{
	int64_t perm[IR_MAX_RANK];
	int rank = ir_vtype(h->m, h->b.fn, v)->rank;
	for (int64_t i = 0; i < rank; i++)
		perm[i] = back ? (i < d ? i + 1 : i == d ? 0 : i) : (i == 0 ? d : i <= d ? i - 1 : i);
	return ir_transpose(&h->b, v, perm);
}

static struct err *scan(struct hlo *h, const struct wop *o, struct scan s, ir_val *in)
{
	uint32_t ncap, *cap;
	ir_fnid inner;
	TRY(op_captures(h, o, &ncap, &cap));
	TRY(region_fn(h, o->region, "scan", false, ncap, cap, false, &inner));
	const struct ir_fn *g = ir_fn_of(h->m, inner);
	ir_val *more = ARENA_NEW(&h->a, ir_val, ncap);
	ncap = region_operands(h, ncap, cap, more);
	if (g->nparam != s.nin + s.ncarry + ncap || g->result.n != s.nout + s.ncarry)
		return bad_op(h, "its body takes %u values and gives %zu", g->nparam, g->result.n);
	ir_val *arg = ARENA_NEW(&h->a, ir_val, g->nparam), *res = ARENA_NEW(&h->a, ir_val, g->result.n);
	struct ir_loop_new l = {0};
	/* operands: carries, inputs, captures, outputs */
	for (uint32_t i = 0; i < s.ncarry; i++)
		ir_loop_add(&l, in[s.nin + i], ROLE_CARRY);
	for (uint32_t i = 0; i < s.nin; i++)
		ir_loop_add(&l, bring(h, in[i], s.dim, false), s.reverse ? ROLE_IN_REV : ROLE_IN);
	for (uint32_t i = 0; i < ncap; i++)
		ir_loop_add(&l, more[i], ROLE_CONST);
	for (uint32_t i = 0; i < s.nout; i++) {
		const struct ir_type_info *r = ir_vtype(h->m, g, g->result.p[i]);
		int64_t dim[IR_MAX_RANK] = { s.trip };
		int rank = r->rank;
		ir_type t;
		struct err *e = rank >= IR_MAX_RANK || s.dim > rank ? bad_op(h, "a result of rank %d cut along dimension %lld", rank, (long long)s.dim) : NULL;
		if (!e) {
			memcpy(dim + 1, r->dim, sizeof *dim * (size_t)rank);
			e = type_make(h, o->at, (enum dtype)r->dtype, rank + 1, dim, &t);
		}
		if (e) {
			arr_free(&l.x);
			return e;
		}
		ir_loop_add(&l, ir_splat_of(&h->b, ir_const_i(&h->b, ir_scalar(h->m, ir_type_of(h->m, t)->dtype), 0), t), s.reverse ? ROLE_OUT_REV : ROLE_OUT);
	}
	ir_loop_open(&l, &h->b, s.trip, "scan_body", NULL);
	struct ir_b b = { h->m, l.body, h->b.loc };
	uint32_t ncarry = s.ncarry, from_in = ncarry + s.nin, from_out = from_in + ncap;
	for (uint32_t i = 0; i < g->nparam; i++)     /* the function takes inputs, carries, captures */
		arg[i] = l.x.p[i < s.nin ? ncarry + i : i < from_in ? i - s.nin : i].param;
	ir_inline(&b, inner, arg, res);
	for (uint32_t i = 0; i < ncarry; i++)
		ir_loop_give(&l, (int)i, res[s.nout + i]);
	for (uint32_t i = 0; i < s.nout; i++)
		ir_loop_give(&l, (int)(from_out + i), res[i]);
	ir_val first = ir_loop_close(&l, NULL);
	ir_val *out = ARENA_NEW(&h->a, ir_val, s.ncarry + s.nout);
	for (uint32_t i = 0; i < s.nout; i++)
		out[i] = bring(h, first + s.ncarry + i, s.dim, true);
	for (uint32_t i = 0; i < s.ncarry; i++)
		out[s.nout + i] = first + i;
	return op_bind(h, o, s.nout + s.ncarry, out);
}

/* *done stays false if it is a form that only the decomposition knows. */
static struct err *scan_known(struct hlo *h, const struct wop *o, uint32_t attrs, uint32_t nin, ir_val *in, uint32_t nout,
                              bool *done)
{
	struct scan s = { .trip = -1 };
	uint32_t n, *kv;
	struct span key;
	int64_t v;
	bool segments = false;
	if (o->nregion != 1)
		return NULL;
	TRY(attr_dict(h, attrs, &n, &kv));
	for (uint32_t i = 0; i < n; i++) {
		TRY(attr_str(h, kv[2 * i], &key));
		if (span_is(h, key, "dimension")) {
			TRY(attr_int(h, kv[2 * i + 1], &s.dim));
		} else if (span_is(h, key, "is_reverse")) {
			TRY(attr_int(h, kv[2 * i + 1], &v));
			s.reverse = v != 0;
		} else if (span_is(h, key, "scan_dim_size")) {
			TRY(attr_int(h, kv[2 * i + 1], &s.trip));
		} else if (span_is(h, key, "operandSegmentSizes") || span_is(h, key, "resultSegmentSizes")) {
			int k;
			int64_t *size;
			TRY(attr_ints(h, kv[2 * i + 1], &k, &size));
			if (k != 2 || size[0] < 0 || size[1] < 0 || size[0] > INT32_MAX || size[1] > INT32_MAX)
				return NULL;
			if (span_is(h, key, "resultSegmentSizes"))
				s.nout = (uint32_t)size[0];
			s.nin = span_is(h, key, "operandSegmentSizes") ? (uint32_t)size[0] : s.nin;
			segments = true;
		} else if (!span_is(h, key, "is_associative")) {
			return NULL;
		}
	}
	if (!segments || s.nin > nin || s.nout > nout || nin - s.nin != nout - s.nout)
		return NULL;
	s.ncarry = nin - s.nin;
	for (uint32_t i = 0; i < s.nin; i++) {
		const struct ir_type_info *t = ir_vtype(h->m, h->b.fn, in[i]);
		if (s.dim < 0 || s.dim >= t->rank)
			return bad_op(h, "dimension %lld of rank %d", (long long)s.dim, t->rank);
		if (s.trip >= 0 && s.trip != t->dim[s.dim])
			return bad_op(h, "inputs of two lengths");
		s.trip = t->dim[s.dim];
	}
	if (s.trip < 0 || s.dim < 0 || s.trip > INT32_MAX)
		return NULL;
	*done = true;
	return scan(h, o, s, in);
}

struct err *composite_known(struct hlo *h, const struct wop *o, bool *done)
{
	uint32_t p[4], n, *kv, nin, nout;    /* attributes, decomposition, name, version */
	struct span name, key;
	ir_val *in;
	ir_type *t;
	*done = false;
	TRY(op_props(h, o, p));
	TRY(attr_str(h, p[2], &name));
	bool erf = span_is(h, name, "chlo.erf"), mulhi = span_is(h, name, "chlo.mulhi"), top_k = span_is(h, name, "chlo.top_k"),
	     is_scan = span_is(h, name, "chlo.scan");
	if (!erf && !mulhi && !top_k && !is_scan)
		return NULL;
	TRY(op_ins(h, o, &nin, &in));
	TRY(op_outs(h, o, &nout, &t));
	for (uint32_t i = 0; i < nin; i++)
		if (!ir_vtype(h->m, h->b.fn, in[i])->dtype || ir_vtype(h->m, h->b.fn, in[i])->dtype == DT_token)
			return NULL;
	if (is_scan)
		return scan_known(h, o, p[0], nin, in, nout, done);
	const struct ir_type_info *x = nin ? ir_vtype(h->m, h->b.fn, in[0]) : NULL;
	if ((erf && nin == 1 && nout == 1 && dtype_info[x->dtype].cls == DT_FLOAT) || (mulhi && nin == 2 && nout == 1)) {
		*done = true;
		return op_emit(h, o, erf ? IR_erf : IR_mulhi, nin, in, 0, NULL);
	}
	if (!top_k || nin != 1 || nout != 2 || dtype_info[x->dtype].cls == DT_COMPLEX || ir_type_of(h->m, t[1])->dtype != DT_i32)
		return NULL;
	int64_t k = -1, largest = 1;
	TRY(attr_dict(h, p[0], &n, &kv));
	for (uint32_t i = 0; i < n; i++) {
		TRY(attr_str(h, kv[2 * i], &key));
		if (span_is(h, key, "k"))
			TRY(attr_int(h, kv[2 * i + 1], &k));
		else if (span_is(h, key, "largest"))
			TRY(attr_int(h, kv[2 * i + 1], &largest));
		else
			return NULL;    /* something new: the decomposition knows */
	}
	if (k < 0 || !largest)
		return NULL;
	*done = true;
	return op_emit(h, o, IR_top_k, 1, in, 1, &k);
}
