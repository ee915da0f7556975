/* MLIR bytecode, version 6: container, types, attributes, operations.
 * The format is LLVM's mlir/docs/BytecodeFormat.md; codes of attributes and types are those of the
 * builtin, vhlo and sdy dialects. */
#include "wire.h"

#include <stdlib.h>

/* --- cursor ------------------------------------------------------------ */

struct cur cur_of(const struct hlo *h, size_t at, size_t n)
{
	return (struct cur){ .p = h->p, .pos = at, .end = at + n };
}

static uint64_t fail(struct cur *c)
{
	if (!c->bad) {
		c->bad = true;
		c->bad_at = c->pos;
	}
	c->pos = c->end;
	return 0;
}

uint8_t cur_byte(struct cur *c)
{
	return c->pos < c->end ? c->p[c->pos++] : (uint8_t)fail(c);
}

uint64_t cur_varint(struct cur *c)
{
	if (c->pos >= c->end)
		return fail(c);
	uint8_t b = c->p[c->pos];
	if (b & 1) {
		c->pos++;
		return b >> 1;
	}
	int extra = b ? __builtin_ctz(b) : 8;
	if (c->end - c->pos < (size_t)extra + 1)
		return fail(c);
	uint64_t v = 0;
	memcpy(&v, c->p + c->pos + (extra == 8), (size_t)(extra == 8 ? 8 : extra + 1));
	c->pos += (size_t)extra + 1;
	return extra == 8 ? v : v >> (extra + 1);
}

int64_t cur_svarint(struct cur *c)
{
	uint64_t v = cur_varint(c);
	return (int64_t)(v >> 1 ^ (~(v & 1) + 1));
}

uint32_t cur_index(struct cur *c, uint64_t limit)
{
	size_t at = c->pos;
	uint64_t v = cur_varint(c);
	if (v < limit)
		return (uint32_t)v;
	c->pos = at;
	return (uint32_t)fail(c);
}

uint32_t cur_count(struct cur *c)
{
	return cur_index(c, c->end - c->pos + 1);
}

struct err *bad_at(size_t at, const char *fmt, ...)
{
	struct str s = {0};
	va_list ap;
	va_start(ap, fmt);
	str_vaddf(&s, fmt, ap);
	va_end(ap);
	struct err *e = ERR(INVALID, "malformed bytecode at byte %zu: %s", at, s.p);
	str_free(&s);
	return e;
}

struct err *cur_err(const struct cur *c, const char *what)
{
	return c->bad ? bad_at(c->bad_at, "%s is cut short or names what does not exist", what) : NULL;
}

static struct span bytes(struct cur *c, uint64_t n)
{
	if (n > c->end - c->pos) {
		fail(c);
		return (struct span){0};
	}
	struct span s = { (uint32_t)c->pos, (uint32_t)n };
	c->pos += n;
	return s;
}

const char *span_text(struct hlo *h, struct span s)
{
	return arena_str(&h->a, (const char *)h->p + s.at, s.n);
}

ir_str span_intern(struct hlo *h, struct span s)
{
	return ir_intern(h->m, (const char *)h->p + s.at, strnlen((const char *)h->p + s.at, s.n));
}

bool span_is(const struct hlo *h, struct span s, const char *text)
{
	return strlen(text) == s.n && memcmp(h->p + s.at, text, s.n) == 0;
}

const char *op_name(struct hlo *h, const struct wop *o)
{
	struct opname *n = &h->opname[o->name];
	static const char *const of[] = { "builtin.", "vhlo.", "sdy.", "stablehlo.", "" };
	return arena_printf(&h->a, "%s%.*s", of[n->dialect], (int)n->text.n, h->p + n->text.at);
}

static struct err *of_op(struct err *e, const struct hlo *h)
{
	if (!h->cur)
		return e;
	const struct opname *n = &h->opname[h->cur->name];
	ir_loc l = ir_loc_inside(h->m, loc_get((struct hlo *)h, h->cur->loc), h->b.loc);
	const struct ir_loc_info *i = &h->m->loc.p[l];
	if (i->line)
		return err_wrap(e, "%s:%d: '%.*s'", ir_text(h->m, i->file), i->line, (int)n->text.n, h->p + n->text.at);
	return err_wrap(e, "'%.*s' at byte %u", (int)n->text.n, h->p + n->text.at, h->cur->at);
}

struct err *bad_op(const struct hlo *h, const char *fmt, ...)
{
	struct str s = {0};
	va_list ap;
	va_start(ap, fmt);
	str_vaddf(&s, fmt, ap);
	va_end(ap);
	struct err *e = of_op(ERR(INVALID, "%s", s.p), h);
	str_free(&s);
	return e;
}

struct err *no_op(const struct hlo *h, const char *fmt, ...)
{
	struct str s = {0};
	va_list ap;
	va_start(ap, fmt);
	str_vaddf(&s, fmt, ap);
	va_end(ap);
	struct err *e = of_op(ERR(UNIMPLEMENTED, "%s", s.p), h);
	str_free(&s);
	return e;
}

/* --- container --------------------------------------------------------- */

enum section { S_STRING, S_DIALECT, S_ATTR_TYPE, S_ATTR_TYPE_OFFSET, S_IR, S_RESOURCE, S_RESOURCE_OFFSET, S_VERSIONS,
               S_PROPERTIES, S_COUNT };

/* A section's header; its contents as a cursor. */
static int section(struct cur *c, struct cur *out)
{
	uint8_t id = cur_byte(c);
	uint64_t n = cur_varint(c);
	if (id & 0x80) {
		uint64_t align = cur_varint(c);
		if (!align || align & (align - 1))
			fail(c);
		while (!c->bad && c->pos & (align - 1))
			if (cur_byte(c) != 0xCB)
				fail(c);
	}
	struct span s = bytes(c, n);
	*out = (struct cur){ .p = c->p, .pos = s.at, .end = (size_t)s.at + s.n };
	return c->bad ? -1 : id & 0x7f;
}

static struct err *read_strings(struct hlo *h, struct cur c)
{
	uint32_t n = cur_count(&c);
	h->str = ARENA_NEW(&h->a, struct span, n);
	h->nstr = n;
	for (uint32_t i = n; i-- > 0 && !c.bad;)
		h->str[i].n = cur_count(&c);
	for (uint32_t i = 0; i < n && !c.bad; i++) {
		h->str[i] = bytes(&c, h->str[i].n);
		if (h->str[i].n == 0 || h->p[h->str[i].at + h->str[i].n - 1] != 0)
			fail(&c);
		else
			h->str[i].n--;
	}
	return cur_err(&c, "string section");
}

static struct err *read_dialects(struct hlo *h, struct cur c, int version)
{
	uint32_t n = cur_count(&c);
	h->ndialect = n;
	h->dialect = ARENA_NEW(&h->a, uint8_t, n);
	for (uint32_t i = 0; i < n && !c.bad; i++) {
		uint64_t v = cur_varint(&c);
		if (v >> 1 >= h->nstr) {
			fail(&c);
			break;
		}
		struct span s = h->str[v >> 1];
		h->dialect[i] = span_is(h, s, "builtin") ? D_BUILTIN : span_is(h, s, "vhlo") ? D_VHLO :
		                span_is(h, s, "sdy") ? D_SDY : span_is(h, s, "stablehlo") ? D_STABLEHLO : D_OTHER;
		struct cur skip;
		if (v & 1 && section(&c, &skip) < 0)
			break;
	}
	uint32_t total = version >= 4 ? cur_count(&c) : 0;
	h->opname = ARENA_NEW(&h->a, struct opname, total);
	while (c.pos < c.end && !c.bad) {
		uint32_t d = cur_index(&c, h->ndialect), k = cur_count(&c);
		for (uint32_t i = 0; i < k && !c.bad; i++) {
			uint64_t v = cur_varint(&c);
			if (h->nname >= total || v >> 1 >= h->nstr) {
				fail(&c);
				break;
			}
			struct opname *o = &h->opname[h->nname++];
			o->dialect = h->dialect[d];
			o->text = h->str[v >> 1];
		}
	}
	return cur_err(&c, "dialect section");
}

static struct err *read_entries(struct hlo *h, struct cur c, struct cur data)
{
	uint32_t n[2];
	n[0] = cur_count(&c);
	n[1] = cur_count(&c);
	h->nattr = n[0];
	h->ntype = n[1];
	h->attr = ARENA_NEW(&h->a, struct entry, n[0]);
	h->type = ARENA_NEW(&h->a, struct entry, n[1]);
	h->wt = ARENA_NEW(&h->a, struct wtype, n[1]);
	h->loc = ARENA_NEW(&h->a, ir_loc, n[0]);
	h->shard = ARENA_NEW(&h->a, ir_shard, n[0]);
	h->blob = ARENA_NEW(&h->a, ir_blob, n[0]);
	for (int side = 0; side < 2; side++) {
		struct entry *e = side ? h->type : h->attr;
		for (uint32_t k = 0; k < n[side] && !c.bad;) {
			uint32_t d = cur_index(&c, h->ndialect), group = cur_count(&c);
			if (!group || group > n[side] - k)
				fail(&c);
			for (; group > 0 && !c.bad; group--, k++) {
				uint64_t v = cur_varint(&c);
				struct span s = bytes(&data, v >> 1);
				if (data.bad)
					fail(&c);
				e[k] = (struct entry){ s.at, s.n, c.bad ? D_OTHER : h->dialect[d], v & 1 };
			}
		}
	}
	return cur_err(&c, "table of attributes and types");
}

static struct err *read_properties(struct hlo *h, struct cur c)
{
	uint32_t n = cur_count(&c);
	h->prop = ARENA_NEW(&h->a, struct span, n);
	h->nprop = n;
	for (uint32_t i = 0; i < n && !c.bad; i++)
		h->prop[i] = bytes(&c, cur_varint(&c));
	return cur_err(&c, "properties section");
}

/* --- operations -------------------------------------------------------- */

/* Numbers of values are relative to the innermost isolated region.  A region owns the numbers [lo, hi),
 * of which the first are defined: they lie on the stack h->scope from base on. */
struct scope { uint64_t lo, hi; size_t base; const struct scope *up; };

static uint32_t value_new(struct hlo *h, uint32_t type)
{
	arr_push(&h->vtype, type);
	return (uint32_t)h->vtype.n - 1;
}

static uint32_t value_find(struct hlo *h, const struct scope *s, uint64_t number)
{
	size_t top = h->scope.n;
	for (; s; s = s->up) {
		if (number >= s->lo && number < s->hi)
			return number - s->lo < top - s->base ? h->scope.p[s->base + (number - s->lo)] : 0;
		top = s->base;
	}
	return 0;
}

static void skip_use_order(struct cur *c, uint64_t nvalue)
{
	uint64_t n = nvalue == 1 ? 1 : cur_count(c);
	for (uint64_t i = 0; i < n && !c->bad; i++) {
		if (nvalue != 1)
			cur_varint(c);
		uint64_t k = cur_varint(c) >> 1;
		if (k > c->end - c->pos)
			fail(c);
		for (uint64_t j = 0; j < k && !c->bad; j++)
			cur_varint(c);
	}
}

static struct err *read_region(struct hlo *h, struct cur *c, uint32_t region, const struct scope *up, int depth);

static struct err *read_op(struct hlo *h, struct cur *c, struct scope *s, int depth)
{
	struct wop o = { .at = (uint32_t)c->pos };
	size_t self = h->op.n;
	o.name = cur_index(c, h->nname);
	uint8_t mask = cur_byte(c);
	o.loc = cur_index(c, h->nattr);
	if (mask & 1)
		o.dict = cur_index(c, h->nattr) + 1;
	if (mask & 0x40)
		o.prop = cur_index(c, h->nprop) + 1;
	if (mask & 2) {
		o.nout = cur_count(c);
		o.out = (uint32_t)h->vtype.n;
		if (o.nout > s->hi - s->lo - (h->scope.n - s->base))
			fail(c);
		for (uint32_t i = 0; i < o.nout && !c->bad; i++)
			value_new(h, cur_index(c, h->ntype));
	}
	if (mask & 4) {
		o.nin = cur_count(c);
		o.in = (uint32_t)h->ref.n;
		for (uint32_t i = 0; i < o.nin && !c->bad; i++) {
			uint32_t v = value_find(h, s, cur_varint(c));
			if (!v)
				fail(c);
			arr_push(&h->ref, v);
		}
	}
	if (mask & 8 && cur_varint(c))
		return bad_at(o.at, "an operation with successor blocks");
	if (mask & 0x20)
		skip_use_order(c, o.nout);
	if (c->bad)
		return cur_err(c, "operation");
	for (uint32_t i = 0; i < o.nout; i++)
		arr_push(&h->scope, o.out + i);
	arr_push(&h->op, o);
	if (mask & 0x10) {
		uint64_t v = cur_varint(c);
		struct cur inner, *from = c;
		bool isolated = v & 1;
		if (v >> 1 > c->end - c->pos)
			fail(c);
		if (isolated && section(c, &inner) != S_IR)
			fail(c);
		if (c->bad)
			return cur_err(c, "operation");
		if (isolated)
			from = &inner;
		uint32_t n = (uint32_t)(v >> 1), first = (uint32_t)h->region.n;
		for (uint32_t i = 0; i < n; i++)
			arr_push(&h->region, ((struct wregion){ .isolated = isolated }));
		h->op.p[self].nregion = n;
		h->op.p[self].region = first;
		for (uint32_t i = 0; i < n; i++)
			TRY(read_region(h, from, first + i, isolated ? NULL : s, depth + 1));
	}
	h->op.p[self].end = (uint32_t)h->op.n;
	return NULL;
}

static struct err *read_region(struct hlo *h, struct cur *c, uint32_t region, const struct scope *up, int depth)
{
	if (depth > MAX_DEPTH)
		return ERR(UNIMPLEMENTED, "regions nested deeper than %d at byte %zu", MAX_DEPTH, c->pos);
	struct scope s = { .lo = up ? up->hi : 0, .base = h->scope.n, .up = up };
	struct wregion r = h->region.p[region];
	r.first = r.end = (uint32_t)h->op.n;
	r.arg = (uint32_t)h->vtype.n;
	size_t at = c->pos;
	uint64_t nblock = cur_varint(c);
	if (nblock > 1)
		return ERR(UNIMPLEMENTED, "region with %llu blocks at byte %zu", (unsigned long long)nblock, at);
	if (nblock) {
		s.hi = s.lo + cur_count(c);
		uint64_t v = cur_varint(c), nop = v >> 1;
		if (v & 1) {
			r.narg = cur_count(c);
			r.loc = (uint32_t)h->argloc.n;
			if (r.narg > s.hi - s.lo)
				fail(c);
			for (uint32_t i = 0; i < r.narg && !c->bad; i++) {
				uint64_t t = cur_varint(c);
				if (t >> 1 >= h->ntype)
					fail(c);
				uint32_t loc = t & 1 ? cur_index(c, h->nattr) + 1 : 0;
				arr_push(&h->argloc, loc);
				if (!c->bad)
					arr_push(&h->scope, value_new(h, (uint32_t)(t >> 1)));
			}
			if (cur_byte(c))
				skip_use_order(c, r.narg);
		}
		TRY(cur_err(c, "block"));
		for (uint64_t i = 0; i < nop; i++)
			TRY(read_op(h, c, &s, depth));
	}
	TRY(cur_err(c, "region"));
	h->scope.n = s.base;
	r.end = (uint32_t)h->op.n;
	h->region.p[region] = r;
	return NULL;
}

struct err *wire_read(struct hlo *h)
{
	static const uint8_t magic[4] = { 0x4d, 0x4c, 0xef, 0x52 };
	if (h->n < 5 || memcmp(h->p, magic, 4) != 0)
		return ERR(INVALID, "not MLIR bytecode: it does not begin with the magic number");
	if (h->n > UINT32_MAX / 2)
		return ERR(UNIMPLEMENTED, "a program of %zu bytes", h->n);
	struct cur c = cur_of(h, 4, h->n - 4), s[S_COUNT];
	bool has[S_COUNT] = {0};
	uint64_t version = cur_varint(&c);
	if (version != 6)
		return ERR(UNIMPLEMENTED, "bytecode version %llu: only version 6 (StableHLO 0.15 and later) is read",
		           (unsigned long long)version);
	while (cur_byte(&c) != 0)
		;
	while (c.pos < c.end && !c.bad) {
		struct cur in;
		size_t at = c.pos;
		int id = section(&c, &in);
		if (id < 0)
			break;
		if (id >= S_COUNT || has[id])
			return bad_at(at, "section %d is unknown or there twice", id);
		has[id] = true;
		s[id] = in;
	}
	TRY(cur_err(&c, "a section"));
	static const char *const names[S_COUNT] = { "string", "dialect", "attribute", "attribute offset", "ir" };
	for (int i = 0; i <= S_IR; i++)
		if (!has[i])
			return bad_at(h->n, "there is no %s section", names[i]);
	TRY(read_strings(h, s[S_STRING]));
	TRY(read_dialects(h, s[S_DIALECT], (int)version));
	TRY(read_entries(h, s[S_ATTR_TYPE_OFFSET], s[S_ATTR_TYPE]));
	if (has[S_PROPERTIES])
		TRY(read_properties(h, s[S_PROPERTIES]));
	arr_reserve(&h->op, (s[S_IR].end - s[S_IR].pos) / 8);
	arr_push(&h->vtype, 0u);
	/* the section is a block of its own: one op, no arguments */
	struct scope top = { 0 };
	uint64_t v = cur_varint(&s[S_IR]);
	if (v != 2)
		return bad_at(s[S_IR].pos, "not exactly one operation at the top");
	return read_op(h, &s[S_IR], &top, 0);
}

void wire_free(struct hlo *h)
{
	arr_free(&h->op);
	arr_free(&h->ref);
	arr_free(&h->region);
	arr_free(&h->argloc);
	arr_free(&h->vtype);
	arr_free(&h->scope);
	arr_free(&h->func);
	arr_free(&h->callee);
	arr_free(&h->tuple);
	arr_free(&h->captured);
	arr_free(&h->word);
	map_free(&h->func_map);
	map_free(&h->mesh_map);
	arena_fini(&h->a);
}

/* --- types ------------------------------------------------------------- */

/* The element type that has this code, 0 if none. */
static int dtype_of_code(bool vhlo, uint32_t code)
{
	static const int16_t rows[][3] = {
#define DTYPE(id, name, value, cls, bits, bytes, wire_vhlo, wire_builtin) { value, wire_vhlo, wire_builtin },
#include "../base/dtype.def"
#undef DTYPE
	};
	for (size_t i = 0; i < NELEM(rows); i++)
		if (rows[i][vhlo ? 1 : 2] == (int)code)
			return rows[i][0];
	return 0;
}

/* "f32[8,16]" */
static const char *shape(struct hlo *h, enum dtype dt, int rank, const int64_t *dim)
{
	struct str s = {0};
	str_addf(&s, "%s[", dtype_info[dt].name);
	for (int i = 0; i < rank; i++)
		str_addf(&s, dim[i] == INT64_MIN ? "%s?" : "%s%lld", i ? "," : "", (long long)dim[i]);
	str_add(&s, "]");
	const char *text = arena_str(&h->a, s.p, s.n);
	str_free(&s);
	return text;
}

struct err *type_make(struct hlo *h, size_t at, enum dtype dt, int rank, const int64_t *dim, ir_type *out)
{
	int64_t most = (int64_t)1 << 48;
	bool zero = false;
	for (int i = 0; i < rank; i++) {
		if (dim[i] == INT64_MIN)
			return no_op(h, "%s, an array whose dimension %d is dynamic", shape(h, dt, rank, dim), i);
		if (dim[i] < 0)
			return bad_at(at, "extent %lld of a tensor", (long long)dim[i]);
		zero |= dim[i] == 0;
	}
	int64_t n = 1;
	for (int i = 0; i < rank; i++) {
		int64_t d = zero ? MAX(dim[i], 1) : dim[i];
		if (d > most / n)
			return no_op(h, "%s, an array of more than 2^48 elements", shape(h, dt, rank, dim));
		n *= d;
	}
	*out = ir_tensor(h->m, dt, rank, dim);
	return NULL;
}

static struct err *element(struct hlo *h, uint32_t type, enum dtype *dt)
{
	const struct wtype *w;
	TRY(type_get(h, type, &w));
	if (w->kind == W_INDEX) {           /* layouts of custom calls are lists of it */
		*dt = DT_i64;
		return NULL;
	}
	if (w->kind != W_ELEMENT || w->dtype == DT_token)
		return bad_at(h->type[type].at, "not the type of an element");
	*dt = (enum dtype)w->dtype;
	return NULL;
}

static struct err *tensor_type(struct hlo *h, struct cur *c, struct wtype *w)
{
	int64_t dim[IR_MAX_RANK];
	size_t at = c->pos;
	uint32_t rank = cur_count(c);
	if (rank > IR_MAX_RANK)
		return no_op(h, "an array of rank %u, of %d at most", rank, IR_MAX_RANK);
	for (uint32_t i = 0; i < rank; i++)
		dim[i] = cur_svarint(c);
	uint32_t elem = cur_index(c, h->ntype);
	TRY(cur_err(c, "tensor type"));
	enum dtype dt;
	TRY(element(h, elem, &dt));
	w->leaves = 1;
	TRY(type_make(h, at, dt, (int)rank, dim, &w->t));
	w->kind = W_TENSOR;
	return NULL;
}

static struct err *complex_type(struct hlo *h, struct cur *c, struct wtype *w)
{
	uint32_t elem = cur_index(c, h->ntype);
	TRY(cur_err(c, "complex type"));
	enum dtype dt;
	TRY(element(h, elem, &dt));
	if (dt != DT_f32 && dt != DT_f64)
		return ERR(UNIMPLEMENTED, "complex numbers of '%s'", dtype_info[dt].name);
	w->kind = W_ELEMENT;
	w->dtype = dt == DT_f32 ? DT_c64 : DT_c128;
	return NULL;
}

static uint32_t *type_list(struct hlo *h, struct cur *c, uint32_t *n)
{
	*n = cur_count(c);
	uint32_t *p = ARENA_NEW(&h->a, uint32_t, *n);
	for (uint32_t i = 0; i < *n && !c->bad; i++)
		p[i] = cur_index(c, h->ntype);
	return p;
}

static struct err *list_type(struct hlo *h, struct cur *c, struct wtype *w, bool function)
{
	uint32_t *in = type_list(h, c, &w->nin), *out = function ? type_list(h, c, &w->nout) : NULL;
	TRY(cur_err(c, "list of types"));
	w->list = ARENA_NEW(&h->a, uint32_t, w->nin + w->nout);
	if (w->nin)
		memcpy(w->list, in, w->nin * sizeof *in);
	if (w->nout)
		memcpy(w->list + w->nin, out, w->nout * sizeof *out);
	uint64_t leaves = 0;
	for (uint32_t i = 0; i < w->nin && !function; i++) {
		const struct wtype *m;
		TRY(type_get(h, w->list[i], &m));
		leaves += m->leaves;
		if (leaves > 65536)
			return ERR(UNIMPLEMENTED, "tuple of more than 65536 tensors");
	}
	w->leaves = (uint32_t)leaves;
	w->kind = function ? W_FUNCTION : W_TUPLE;
	return NULL;
}

static struct err *no_type(const struct hlo *h, uint32_t type, const char *what)
{
	return ERR(UNIMPLEMENTED, "%s type at byte %u", what, h->type[type].at);
}

static struct err *type_read(struct hlo *h, uint32_t type, struct wtype *w)
{
	const struct entry *e = &h->type[type];
	struct cur c = cur_of(h, e->at, e->n);
	if (!e->custom || (e->dialect > D_VHLO && e->dialect != D_STABLEHLO))
		return no_type(h, type, "unknown");
	uint32_t code = cur_index(&c, 64);
	TRY(cur_err(&c, "type"));
	bool vhlo = e->dialect == D_VHLO, token = e->dialect == D_STABLEHLO;
	if (token && code != 0)
		return no_type(h, type, "unknown");
	int dt = token ? DT_token : dtype_of_code(vhlo, code);
	if (dt) {
		w->kind = W_ELEMENT;
		w->dtype = (uint8_t)dt;
		if (w->dtype == DT_token) {
			w->leaves = 1;
			w->t = ir_scalar(h->m, DT_token);
		}
		return NULL;
	}
	if (vhlo)
		switch (code) {
		case 1: return complex_type(h, &c, w);
		case 8: return list_type(h, &c, w, true);
		case 9: w->kind = W_INDEX; w->dtype = DT_i64; return NULL;
		case 20: return tensor_type(h, &c, w);
		case 21: {
			uint32_t enc = cur_index(&c, h->nattr);
			(void)enc;    /* bounds or token-like type extensions; extents decide */
			return tensor_type(h, &c, w);
		}
		case 23: return list_type(h, &c, w, false);
		case 24: case 30: return no_type(h, type, "quantized");
		case 25: return no_type(h, type, "unranked tensor");
		case 33: w->kind = W_NONE; return NULL;
		case 34: w->kind = W_TF32; w->dtype = DT_f32; return NULL;
		case 41: return no_type(h, type, "buffer");
		case 42: return list_type(h, &c, w, false);    /* a future: what it will be */
		default: return no_type(h, type, "unknown vhlo");
		}
	switch (code) {
	case 0: {
		uint64_t v = cur_varint(&c), width = v >> 2;
		TRY(cur_err(&c, "type"));
		bool u = (v & 3) == 2;
		int d = width == 1 ? DT_pred : width == 2 ? (u ? DT_u2 : DT_i2) : width == 4 ? (u ? DT_u4 : DT_i4) :
		        width == 8 ? (u ? DT_u8 : DT_i8) : width == 16 ? (u ? DT_u16 : DT_i16) :
		        width == 32 ? (u ? DT_u32 : DT_i32) : width == 64 ? (u ? DT_u64 : DT_i64) : 0;
		if (!d)
			return no_type(h, type, "integer of unusual width");
		w->kind = W_ELEMENT;
		w->dtype = (uint8_t)d;
		return NULL;
	}
	case 1: w->kind = W_INDEX; w->dtype = DT_i64; return NULL;
	case 2: return list_type(h, &c, w, true);
	case 9: return complex_type(h, &c, w);
	case 12: w->kind = W_NONE; return NULL;
	case 13: return tensor_type(h, &c, w);
	case 15: return list_type(h, &c, w, false);
	default: return no_type(h, type, "unknown builtin");
	}
}

struct err *type_get(struct hlo *h, uint32_t type, const struct wtype **out)
{
	struct wtype *w = &h->wt[type];
	*out = w;
	if (w->kind == W_OPEN)
		return bad_at(h->type[type].at, "a type that holds itself");
	if (w->kind != W_UNKNOWN)
		return NULL;
	if (h->type_depth > 32)
		return ERR(UNIMPLEMENTED, "types nested deeper than 32");
	struct wtype read = {0};
	w->kind = W_OPEN;
	h->type_depth++;
	struct err *e = type_read(h, type, &read);
	h->type_depth--;
	*w = read;
	if (e)
		w->kind = W_UNKNOWN;
	return e;
}

struct err *type_tensor(struct hlo *h, uint32_t type, ir_type *out)
{
	const struct wtype *w;
	TRY(type_get(h, type, &w));
	if (w->kind == W_TUPLE)
		return ERR(UNIMPLEMENTED, "tuple where a tensor is taken (type at byte %u)", h->type[type].at);
	if (!w->t)
		return bad_at(h->type[type].at, "not a tensor type");
	*out = w->t;
	return NULL;
}

/* --- attributes -------------------------------------------------------- */

struct err *attr_open(struct hlo *h, uint32_t attr, struct cur *c, int *dialect, int *code)
{
	const struct entry *e = &h->attr[attr];
	*c = cur_of(h, e->at, e->n);
	*dialect = e->dialect;
	if (!e->custom || e->dialect > D_SDY)
		return ERR(UNIMPLEMENTED, "attribute in text form or of an unknown dialect at byte %u", e->at);
	*code = (int)cur_index(c, 256);
	return cur_err(c, "attribute");
}

static struct err *not_a(const struct hlo *h, uint32_t attr, const char *what)
{
	return bad_at(h->attr[attr].at, "attribute %u is not %s", attr, what);
}

/* Bits of an integer or float of the given type. */
static struct err *bits_of(struct hlo *h, struct cur *c, uint8_t *dtype, int64_t *out)
{
	uint32_t type = cur_index(c, h->ntype);
	TRY(cur_err(c, "number"));
	const struct wtype *w;
	TRY(type_get(h, type, &w));
	if (w->kind != W_ELEMENT && w->kind != W_INDEX && w->kind != W_TF32)
		return bad_at(c->pos, "a number of a type that has none");
	*dtype = w->dtype;
	int bits = dtype_info[w->dtype].bits;
	if (bits > 64 || !bits)
		return ERR(UNIMPLEMENTED, "number of type '%s' as an attribute", dtype_info[w->dtype].name);
	if (bits <= 8) {
		uint8_t b = cur_byte(c);
		*out = dtype_info[w->dtype].cls == DT_INT && bits == 8 ? (int8_t)b : b;
	} else {
		*out = cur_svarint(c);
	}
	return cur_err(c, "number");
}

struct err *attr_int(struct hlo *h, uint32_t attr, int64_t *out)
{
	struct cur c;
	int d, code;
	uint8_t dt;
	TRY(attr_open(h, attr, &c, &d, &code));
	if ((d == D_VHLO && code == 9) || (d == D_BUILTIN && code == 8)) {
		TRY(bits_of(h, &c, &dt, out));
		if (dtype_info[dt].cls == DT_FLOAT)
			return not_a(h, attr, "an integer");
		return NULL;
	}
	if (d == D_VHLO && ((code >= 2 && code <= 5) || code == 7 || (code >= 11 && code <= 13) || code == 16)) {
		*out = (int64_t)cur_varint(&c);
		if (*out < 0 || (code == 2 && *out > 1))
			return not_a(h, attr, "a boolean or an enumerator");
		return cur_err(&c, "attribute");
	}
	if (d == D_BUILTIN && code == 7) {    /* unit */
		*out = 1;
		return NULL;
	}
	return not_a(h, attr, "an integer");
}

struct err *attr_float(struct hlo *h, uint32_t attr, double *out)
{
	struct cur c;
	int d, code;
	uint8_t dt;
	int64_t v;
	TRY(attr_open(h, attr, &c, &d, &code));
	if (!((d == D_VHLO && code == 8) || (d == D_BUILTIN && code == 9)))
		return not_a(h, attr, "a float");
	TRY(bits_of(h, &c, &dt, &v));
	float f;
	switch (dt) {
	case DT_f64: memcpy(out, &v, 8); return NULL;
	case DT_f32: memcpy(&f, &v, 4); *out = f; return NULL;
	case DT_f16: *out = f16_to_f32((uint16_t)v); return NULL;
	case DT_bf16: *out = bf16_to_f32((uint16_t)v); return NULL;
	default: return not_a(h, attr, "a float");
	}
}

struct err *attr_str(struct hlo *h, uint32_t attr, struct span *out)
{
	for (int i = 0; i < 4; i++) {
		struct cur c;
		int d, code;
		TRY(attr_open(h, attr, &c, &d, &code));
		if ((d == D_VHLO && code == 14) || (d == D_BUILTIN && (code == 2 || code == 3))) {
			uint32_t s = cur_index(&c, h->nstr);
			TRY(cur_err(&c, "string"));
			*out = h->str[s];
			return NULL;
		}
		if (d != D_BUILTIN || code != 4)
			break;
		attr = cur_index(&c, h->nattr);
		TRY(cur_err(&c, "symbol"));
	}
	return not_a(h, attr, "a string");
}

static struct err *indices(struct hlo *h, struct cur *c, uint32_t each, uint32_t *n, uint32_t **out)
{
	*n = cur_count(c);
	uint32_t *p = ARENA_NEW(&h->a, uint32_t, (size_t)*n * each);
	for (size_t i = 0; i < (size_t)*n * each && !c->bad; i++)
		p[i] = cur_index(c, h->nattr);
	*out = p;
	return cur_err(c, "list of attributes");
}

struct err *attr_list(struct hlo *h, uint32_t attr, uint32_t *n, uint32_t **out)
{
	struct cur c;
	int d, code;
	TRY(attr_open(h, attr, &c, &d, &code));
	if (!((d == D_VHLO && code == 1) || (d == D_BUILTIN && code == 0)))
		return not_a(h, attr, "a list");
	return indices(h, &c, 1, n, out);
}

struct err *attr_dict(struct hlo *h, uint32_t attr, uint32_t *n, uint32_t **out)
{
	struct cur c;
	int d, code;
	TRY(attr_open(h, attr, &c, &d, &code));
	if (!((d == D_VHLO && code == 6) || (d == D_BUILTIN && code == 1)))
		return not_a(h, attr, "a dictionary");
	return indices(h, &c, 2, n, out);
}

struct err *attr_type(struct hlo *h, uint32_t attr, uint32_t *type)
{
	struct cur c;
	int d, code;
	TRY(attr_open(h, attr, &c, &d, &code));
	if (!((d == D_VHLO && code == 17) || (d == D_BUILTIN && code == 6)))
		return not_a(h, attr, "a type");
	*type = cur_index(&c, h->ntype);
	return cur_err(&c, "type attribute");
}

struct err *attr_tensor(struct hlo *h, uint32_t attr, ir_type *t, const uint8_t **p, size_t *n)
{
	struct cur c;
	int d, code;
	TRY(attr_open(h, attr, &c, &d, &code));
	if (d == D_BUILTIN && code == 16)
		return ERR(UNIMPLEMENTED, "constant kept as a resource at byte %u", h->attr[attr].at);
	if (!((d == D_VHLO && code == 15) || (d == D_BUILTIN && code == 18)))
		return not_a(h, attr, "a tensor");
	uint32_t type = cur_index(&c, h->ntype);
	struct span s = bytes(&c, cur_varint(&c));
	TRY(cur_err(&c, "tensor"));
	TRY(type_tensor(h, type, t));
	*p = h->p + s.at;
	*n = s.n;
	const struct ir_type_info *i = ir_type_of(h->m, *t);
	size_t all = (size_t)i->bytes, e = dtype_info[i->dtype].bytes;
	if (i->dtype == DT_pred)
		all = ((size_t)i->count + 7) / 8;
	if (i->dtype == DT_token || (s.n != all && s.n != e))
		return bad_at(h->attr[attr].at, "a tensor of %zu bytes where its type wants %zu or %zu", *n, all, e);
	return NULL;
}

struct err *attr_ints2(struct hlo *h, uint32_t attr, int *n, int64_t **out, int *rank, int64_t dim[2])
{
	struct cur c;
	int d, code;
	uint32_t k, *list;
	*rank = 1;
	TRY(attr_open(h, attr, &c, &d, &code));
	if ((d == D_VHLO && code == 1) || (d == D_BUILTIN && code == 0)) {
		TRY(indices(h, &c, 1, &k, &list));
		int64_t *v = ARENA_NEW(&h->a, int64_t, k);
		for (uint32_t i = 0; i < k; i++)
			TRY(attr_int(h, list[i], &v[i]));
		*n = (int)k;
		*out = v;
		dim[0] = k;
		return NULL;
	}
	if (d == D_BUILTIN && code == 17) {    /* element type, count, raw bytes */
		enum dtype dt;
		uint32_t type = cur_index(&c, h->ntype);
		uint64_t count = cur_varint(&c);
		struct span s = bytes(&c, cur_varint(&c));
		TRY(cur_err(&c, "dense array"));
		TRY(element(h, type, &dt));
		int e = dtype_info[dt].bytes, sh = 64 - 8 * e;
		if ((dtype_info[dt].cls != DT_INT && dtype_info[dt].cls != DT_UINT) || dtype_info[dt].bits < 8 || count > s.n ||
		    count * (uint64_t)e != s.n)
			return not_a(h, attr, "a list of integers");
		int64_t *v = ARENA_NEW(&h->a, int64_t, count);
		for (uint64_t i = 0; i < count; i++) {
			memcpy(&v[i], h->p + s.at + i * (uint64_t)e, (size_t)e);
			if (dtype_info[dt].cls == DT_INT)
				v[i] = (int64_t)((uint64_t)v[i] << sh) >> sh;
		}
		*n = (int)count;
		*out = v;
		dim[0] = (int64_t)count;
		return NULL;
	}
	ir_type t;
	const uint8_t *p;
	size_t bytes_n;
	TRY(attr_tensor(h, attr, &t, &p, &bytes_n));
	const struct ir_type_info *i = ir_type_of(h->m, t);
	const struct dtype_info *e = &dtype_info[i->dtype];
	if ((e->cls != DT_INT && e->cls != DT_UINT && e->cls != DT_PRED) || i->rank > 2)
		return not_a(h, attr, "a list of integers");
	if (i->count > (1 << 24))
		return ERR(UNIMPLEMENTED, "list of %lld integers", (long long)i->count);
	int64_t *v = ARENA_NEW(&h->a, int64_t, i->count);
	for (int64_t j = 0; j < i->count; j++) {
		if (e->cls == DT_PRED) {
			v[j] = bytes_n == 1 && (*p == 0xff || i->count > 8) ? *p != 0 : p[j / 8] >> (j % 8) & 1;
			continue;
		}
		memcpy(&v[j], p + (bytes_n == e->bytes ? 0 : (size_t)j * e->bytes), e->bytes);
		if (e->cls == DT_INT && e->bytes < 8) {
			int sh = 64 - e->bits;
			v[j] = (int64_t)((uint64_t)v[j] << sh) >> sh;
		}
	}
	*n = (int)i->count;
	*out = v;
	*rank = i->rank;
	for (int j = 0; j < i->rank; j++)
		dim[j] = i->dim[j];
	return NULL;
}

struct err *attr_ints(struct hlo *h, uint32_t attr, int *n, int64_t **out)
{
	int rank;
	int64_t dim[2];
	return attr_ints2(h, attr, n, out, &rank, dim);
}

/* Is it a file of an installed package? */
static bool of_library(const struct hlo *h, struct span s)
{
	static const char *const part[] = { "/site-packages/", "/dist-packages/" };
	for (size_t i = 0; i < NELEM(part); i++)
		if (memmem(h->p + s.at, s.n, part[i], strlen(part[i])))
			return true;
	return false;
}

/* The innermost line that is no library's (if all are, of those) and the outermost name: NameLoc(op name, CallSite(callee, caller)). */
ir_loc loc_get(struct hlo *h, uint32_t attr)
{
	enum { MOST = 64 };
	if (attr >= h->nattr)
		return 0;
	if (h->loc[attr])
		return h->loc[attr] - 1;
	ir_str file = 0, name = 0;
	int64_t line = 0;
	uint32_t next[MOST] = { attr };
	int n = 1;
	for (int step = 0; step < MOST && n; step++) {
		struct cur c;
		struct span s;
		int d, code;
		struct err *e = attr_open(h, next[--n], &c, &d, &code);
		if (e || d != D_BUILTIN) {
			err_free(e);
			continue;
		}
		if (code == 11 || code == 22) {
			uint32_t f = cur_index(&c, h->nattr);
			if (code == 22 && cur_count(&c) == 0)
				continue;
			uint64_t l = cur_varint(&c);
			e = c.bad ? NULL : attr_str(h, f, &s);
			if (c.bad || e) {
				err_free(e);
				continue;
			}
			bool library = of_library(h, s);
			if (!library || !file) {
				file = span_intern(h, s);
				line = l > INT32_MAX ? 0 : (int64_t)l;
			}
			if (!library)
				break;
		} else if (code == 14) {
			uint32_t text = cur_index(&c, h->nattr), of = cur_index(&c, h->nattr);
			if (c.bad)
				continue;
			next[n++] = of;
			e = attr_str(h, text, &s);
			if (!e && !name)
				name = span_intern(h, s);
			err_free(e);
		} else if (code == 10) {
			uint32_t callee = cur_index(&c, h->nattr), caller = cur_index(&c, h->nattr);
			if (!c.bad && n + 2 <= MOST) {
				next[n++] = caller;
				next[n++] = callee;
			}
		} else if ((code == 12 || code == 13) && cur_count(&c)) {
			uint32_t first = cur_index(&c, h->nattr);
			if (!c.bad)
				next[n++] = first;
		}
	}
	h->loc[attr] = ir_loc_add(h->m, file, (int)line, name) + 1;
	return h->loc[attr] - 1;
}

/* --- properties -------------------------------------------------------- */

struct err *op_props(struct hlo *h, const struct wop *o, uint32_t *out)
{
	int n = h->opname[o->name].row->nprop;
	if (n == 0)
		return NULL;
	if (!o->prop)
		return bad_op(h, "it has no properties");
	struct span s = h->prop[o->prop - 1];
	struct cur c = cur_of(h, s.at, s.n);
	for (int i = 0; i < n; i++)
		out[i] = cur_index(&c, h->nattr);
	if (c.bad)
		return bad_op(h, "its properties at byte %u are cut short or name what does not exist", s.at);
	if (c.pos != c.end)
		return bad_op(h, "its properties at byte %u are longer than this version knows", s.at);
	return NULL;
}

struct err *op_discardable(struct hlo *h, const struct wop *o, const char *name, uint32_t *out)
{
	uint32_t n, *kv;
	struct span s;
	*out = UINT32_MAX;
	if (!o->dict)
		return NULL;
	TRY(attr_dict(h, o->dict - 1, &n, &kv));
	for (uint32_t i = 0; i < n; i++) {
		TRY(attr_str(h, kv[2 * i], &s));
		if (span_is(h, s, name))
			*out = kv[2 * i + 1];
	}
	return NULL;
}
