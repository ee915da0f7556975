/* The operation being translated: its operands and results, its attribute words, and what it becomes. */
#include "wire.h"

#include <stdlib.h>

/* --- operands and results ---------------------------------------------- */

static uint32_t leaves(struct hlo *h, uint32_t value)
{
	uint32_t v = h->vm[value];
	return v & TUPLE ? h->tuple.p[v & ~TUPLE] : 1;
}

struct err *op_ins(struct hlo *h, const struct wop *o, uint32_t *n, ir_val **out)
{
	uint32_t k = 0;
	for (uint32_t i = 0; i < o->nin; i++)
		k += leaves(h, h->ref.p[o->in + i]);
	ir_val *p = ARENA_NEW(&h->a, ir_val, k);
	*n = k;
	*out = p;
	for (uint32_t i = 0; i < o->nin; i++) {
		uint32_t v = h->vm[h->ref.p[o->in + i]];
		if (!v)
			return bad_op(h, "operand %u is not defined", i);
		if (v & TUPLE) {
			uint32_t at = v & ~TUPLE, c = h->tuple.p[at];
			for (uint32_t j = 0; j < c; j++)
				*p++ = h->tuple.p[at + 1 + j];
		} else {
			*p++ = v;
		}
	}
	return NULL;
}

struct err *op_ins_n(struct hlo *h, const struct wop *o, uint32_t n, ir_val *out)
{
	if (o->nin != n)
		return bad_op(h, "it has %u operands, not %u", o->nin, n);
	for (uint32_t i = 0; i < n; i++) {
		out[i] = h->vm[h->ref.p[o->in + i]];
		if (!out[i] || out[i] & TUPLE)
			return bad_op(h, "operand %u is not a tensor", i);
	}
	return NULL;
}

/* Append the types that a wire type flattens to. */
static struct err *flatten(struct hlo *h, uint32_t type, ir_type *out, uint32_t *n)
{
	const struct wtype *w;
	TRY(type_get(h, type, &w));
	if (w->kind == W_TUPLE) {
		for (uint32_t i = 0; i < w->nin; i++)
			TRY(flatten(h, w->list[i], out, n));
		return NULL;
	}
	if (!w->t)
		return bad_at(h->type[type].at, "not the type of a value");
	out[(*n)++] = w->t;
	return NULL;
}

struct err *vals_types(struct hlo *h, uint32_t first, uint32_t count, uint32_t *n, ir_type **out)
{
	uint64_t k = 0;
	for (uint32_t i = 0; i < count; i++) {
		const struct wtype *w;
		TRY(type_get(h, h->vtype.p[first + i], &w));
		k += w->leaves;
	}
	if (k > (1u << 24))
		return ERR(UNIMPLEMENTED, "more than 2^24 results");
	*out = ARENA_NEW(&h->a, ir_type, k);
	*n = 0;
	for (uint32_t i = 0; i < count; i++)
		TRY(flatten(h, h->vtype.p[first + i], *out, n));
	return NULL;
}

struct err *op_outs(struct hlo *h, const struct wop *o, uint32_t *n, ir_type **out)
{
	return vals_types(h, o->out, o->nout, n, out);
}

struct err *op_out1(struct hlo *h, const struct wop *o, ir_type *out)
{
	if (o->nout != 1)
		return bad_op(h, "it has %u results, not 1", o->nout);
	return type_tensor(h, h->vtype.p[o->out], out);
}

struct err *vals_bind(struct hlo *h, uint32_t first, uint32_t count, uint32_t n, const ir_val *v)
{
	uint32_t at = 0;
	for (uint32_t i = 0; i < count; i++) {
		const struct wtype *w;
		TRY(type_get(h, h->vtype.p[first + i], &w));
		if (w->leaves > n - at)
			return bad_op(h, "it gives %u values where more are wanted", n);
		if (w->kind == W_TUPLE) {
			h->vm[first + i] = TUPLE | (uint32_t)h->tuple.n;
			arr_push(&h->tuple, w->leaves);
			uint32_t k = 0;
			ir_type *t = ARENA_NEW(&h->a, ir_type, w->leaves);
			TRY(flatten(h, h->vtype.p[first + i], t, &k));
			for (uint32_t j = 0; j < w->leaves; j++) {
				if (h->b.fn->val.p[v[at + j]].type != t[j])
					return bad_op(h, "member %u has another type than its tuple says", j);
				arr_push(&h->tuple, v[at + j]);
			}
		} else {
			ir_type t;
			TRY(type_tensor(h, h->vtype.p[first + i], &t));
			if (h->b.fn->val.p[v[at]].type != t) {
				struct str a = {0};
				ir_print_type(&a, h->m, h->b.fn->val.p[v[at]].type);
				str_add(&a, " where ");
				ir_print_type(&a, h->m, t);
				struct err *e = bad_op(h, "value %u is a %s is said", i, a.p);
				str_free(&a);
				return e;
			}
			h->vm[first + i] = v[at];
		}
		at += w->leaves;
	}
	return at == n ? NULL : bad_op(h, "it gives %u values where %u are wanted", n, at);
}

struct err *op_bind(struct hlo *h, const struct wop *o, uint32_t n, const ir_val *v)
{
	TRY(vals_bind(h, o->out, o->nout, n, v));
	if (!o->dict || h->reducer || !o->nout)
		return NULL;
	uint32_t attr, k;
	ir_shard *s;
	TRY(op_discardable(h, o, "sdy.sharding", &attr));
	if (attr == UINT32_MAX)
		return NULL;
	TRY(shard_per_value(h, attr, &k, &s));
	for (uint32_t i = 0; i < k && i < n; i++)
		if (ir_def(h->b.fn, v[i]) && !shard_says_nothing(h, s[i])) {
			const struct ir_shard_info *t = &h->m->shard.p[s[i]];
			int rank = ir_vtype(h->m, h->b.fn, v[i])->rank;
			if (t->rank != rank && (t->rank || h->m->mesh.p[t->mesh].naxis))
				return bad_op(h, "a sharding of rank %d for a value of rank %d", t->rank, rank);
			ir_shard_set(h->b.fn, v[i], s[i]);
		}
	return NULL;
}

struct err *op_emit_t(struct hlo *h, enum ir_kind k, uint32_t nin, const ir_val *in, uint32_t nout, const ir_type *t,
                      uint32_t nattr, const int64_t *attr, ir_val *out)
{
	const struct ir_kind_info *i = ir_info(k);
	if (i->nin >= 0 && nin != (uint32_t)i->nin)
		return bad_op(h, "it has %u operands, not %d", nin, i->nin);
	if (i->nout >= 0 && nout != (uint32_t)i->nout)
		return bad_op(h, "it has %u results, not %d", nout, i->nout);
	struct ir_fn *fn = h->b.fn;
	*out = ir_emit_raw(&h->b, k, nin, in, nout, t, attr, nattr);
	struct err *e = ir_verify_op(h->m, fn, &fn->op.p[fn->op.n - 1]);
	if (!e)
		return NULL;
	struct err *say = bad_op(h, "%s", e->msg);
	say->code = e->code;
	err_free(e);
	return say;
}

struct err *op_emit(struct hlo *h, const struct wop *o, enum ir_kind k, uint32_t nin, const ir_val *in,
                    uint32_t nattr, const int64_t *attr)
{
	uint32_t n;
	ir_type one, *t = &one;
	ir_val first, *v = &first;
	if (o->nout == 1 && h->wt[h->vtype.p[o->out]].kind == W_TENSOR) {
		one = h->wt[h->vtype.p[o->out]].t;
		n = 1;
	} else {
		TRY(op_outs(h, o, &n, &t));
	}
	TRY(op_emit_t(h, k, nin, in, n, t, nattr, attr, &first));
	if (n != 1) {
		v = ARENA_NEW(&h->a, ir_val, n);
		for (uint32_t i = 0; i < n; i++)
			v[i] = first + i;
	}
	return op_bind(h, o, n, v);
}

struct err *op_emit_words(struct hlo *h, const struct wop *o, enum ir_kind k)
{
	uint32_t n;
	ir_val *in;
	TRY(op_ins(h, o, &n, &in));
	return op_emit(h, o, k, n, in, (uint32_t)h->word.n, h->word.p);
}

struct err *op_same(struct hlo *h, const struct wop *o)
{
	uint32_t n;
	ir_val *in;
	TRY(op_ins(h, o, &n, &in));
	return op_bind(h, o, n, in);
}

void op_widen(struct hlo *h, ir_val *v, ir_type result)
{
	enum dtype dt = ir_type_of(h->m, result)->dtype, from = ir_vtype(h->m, h->b.fn, *v)->dtype;
	if (from != dt && dt != DT_token && from != DT_token)
		*v = ir_convert(&h->b, *v, dt);
}

struct err *op_ins_widened(struct hlo *h, const struct wop *o, uint32_t per, uint32_t *n, ir_val **in)
{
	uint32_t k;
	ir_type *t;
	TRY(op_ins(h, o, n, in));
	TRY(op_outs(h, o, &k, &t));
	if (*n != per * k)
		return bad_op(h, "it has %u operands and %u results", *n, k);
	for (uint32_t i = 0; i < *n; i++)
		op_widen(h, &(*in)[i], t[i % k]);
	return NULL;
}

/* --- attribute words ---------------------------------------------------- */

void w_begin(struct hlo *h)
{
	h->word.n = 0;
}

void w_int(struct hlo *h, int64_t v)
{
	arr_push(&h->word, v);
}

void w_list(struct hlo *h, int n, const int64_t *v)
{
	w_int(h, n);
	for (int i = 0; i < n; i++)
		w_int(h, v[i]);
}

struct err *w_attr_int(struct hlo *h, uint32_t attr)
{
	int64_t v;
	TRY(attr_int(h, attr, &v));
	w_int(h, v);
	return NULL;
}

struct err *w_attr_list(struct hlo *h, uint32_t attr)
{
	int n;
	int64_t *v;
	TRY(attr_ints(h, attr, &n, &v));
	w_list(h, n, v);
	return NULL;
}

/* Column k of a list of pairs. */
static struct err *w_attr_column(struct hlo *h, uint32_t attr, int k)
{
	int n, rank;
	int64_t *v, dim[2];
	TRY(attr_ints2(h, attr, &n, &v, &rank, dim));
	if (n && (rank != 2 || dim[1] != 2))
		return bad_op(h, "a list of pairs is not one");
	w_int(h, n / 2);
	for (int i = 0; i < n / 2; i++)
		w_int(h, v[2 * i + k]);
	return NULL;
}

static struct err *w_precision(struct hlo *h, uint32_t attr)
{
	uint32_t n, *list;
	int64_t most = 0, v;
	TRY(attr_list(h, attr, &n, &list));
	for (uint32_t i = 0; i < n; i++) {
		TRY(attr_int(h, list[i], &v));
		most = MAX(most, v);
	}
	w_int(h, most);
	return NULL;
}

struct err *w_props(struct hlo *h, const uint32_t *p, const char *words)
{
	for (const char *w = words; *w;) {
		char kind = *w++;
		long k = strtol(w, (char **)&w, 10);
		uint32_t attr = p[k];
		w += *w == ' ';
		switch (kind) {
		case 'i':
			TRY(w_attr_int(h, attr));
			break;
		case 'l':
			TRY(w_attr_list(h, attr));
			break;
		case 'd': {
			int n;
			int64_t *v;
			TRY(attr_ints(h, p[k + 2], &n, &v));
			w_int(h, n + 2);
			TRY(w_attr_int(h, p[k]));
			TRY(w_attr_int(h, p[k + 1]));
			for (int i = 0; i < n; i++)
				w_int(h, v[i]);
			break;
		}
		case 'c':
			TRY(w_attr_column(h, attr, 0));
			TRY(w_attr_column(h, attr, 1));
			break;
		default:
			TRY(w_precision(h, attr));
		}
	}
	return NULL;
}
