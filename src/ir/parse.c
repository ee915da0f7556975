/* Text -> module: the reverse of print.c. */
#include "text.h"

#include <stdlib.h>

/* --- the text -------------------------------------------------------------- */

struct ps {
	const char *start, *p, *end;
	struct ir_module *m;
	struct arena a;              /* names, while parsing */
	struct map fn, mesh;         /* name -> id, index + 1 */
	ARR(uint8_t) defined;        /* by function id */
	struct ir_fn *f;             /* the function being read */
	struct map val;              /* its values by their number */
};

static struct err *fail(const struct ps *s, const char *at, const char *fmt, ...) PRINTF(3, 4);
static struct err *fail(const struct ps *s, const char *at, const char *fmt, ...)
{
	struct str t = {0};
	va_list ap;
	va_start(ap, fmt);
	str_vaddf(&t, fmt, ap);
	va_end(ap);
	int line = 1, col = 1;
	for (const char *c = s->start; c < at; c++) {
		col = *c == '\n' ? 1 : col + 1;
		line += *c == '\n';
	}
	struct err *e = ERR(INVALID, "line %d, column %d: %s", line, col, t.p);
	str_free(&t);
	return e;
}

static void skip(struct ps *s)
{
	while (s->p < s->end) {
		if (*s->p == '#' || (*s->p == '/' && s->end - s->p > 1 && s->p[1] == '/'))
			while (s->p < s->end && *s->p != '\n')
				s->p++;
		else if (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r')
			s->p++;
		else
			break;
	}
}

static bool word_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static bool peek(struct ps *s, const char *t)
{
	skip(s);
	size_t n = strlen(t);
	if ((size_t)(s->end - s->p) < n || memcmp(s->p, t, n) != 0)
		return false;
	/* a keyword ends where the word ends */
	return !word_char(t[n - 1]) || s->p + n == s->end || !word_char(s->p[n]);
}

static bool accept(struct ps *s, const char *t)
{
	if (!peek(s, t))
		return false;
	s->p += strlen(t);
	return true;
}

static struct err *expect(struct ps *s, const char *t)
{
	return accept(s, t) ? NULL : fail(s, s->p, "'%s' expected", t);
}

static struct err *word(struct ps *s, const char **p, size_t *n)
{
	skip(s);
	*p = s->p;
	while (s->p < s->end && word_char(*s->p))
		s->p++;
	*n = (size_t)(s->p - *p);
	return *n ? NULL : fail(s, s->p, "a word expected");
}

static struct err *integer(struct ps *s, int64_t *out)
{
	skip(s);
	const char *at = s->p;
	bool neg = s->p < s->end && *s->p == '-';
	s->p += neg;
	uint64_t v = 0;
	int n = 0;
	for (; s->p < s->end && *s->p >= '0' && *s->p <= '9'; s->p++, n++) {
		if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(*s->p - '0'), &v))
			return fail(s, at, "a number that is too large");
	}
	if (!n)
		return fail(s, at, "a number expected");
	if (v > (uint64_t)INT64_MAX + neg)
		return fail(s, at, "a number that is too large");
	*out = neg ? (int64_t)(0 - v) : (int64_t)v;
	return NULL;
}

static int hex(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "text" with \" \\ \hh. */
static struct err *quoted(struct ps *s, const char **out, size_t *n)
{
	struct str t = {0};
	skip(s);
	const char *at = s->p;
	TRY(expect(s, "\""));
	for (;; s->p++) {
		if (s->p == s->end || *s->p == '\n')
			break;
		if (*s->p == '"') {
			s->p++;
			*out = arena_str(&s->a, t.p ? t.p : "", t.n);
			*n = t.n;
			str_free(&t);
			return NULL;
		}
		char c = *s->p;
		if (c == '\\') {
			if (s->end - s->p < 3)
				break;
			if (s->p[1] == '"' || s->p[1] == '\\') {
				c = *++s->p;
			} else {
				int hi = hex(s->p[1]), lo = hex(s->p[2]);
				if (hi < 0 || lo < 0)
					break;
				c = (char)(hi << 4 | lo);
				s->p += 2;
			}
		}
		str_addn(&t, &c, 1);
	}
	str_free(&t);
	return fail(s, at, "a string that does not end or has an unknown escape");
}

/* A string without NUL, interned. */
static struct err *string(struct ps *s, ir_str *out)
{
	const char *p, *at = s->p;
	size_t n;
	TRY(quoted(s, &p, &n));
	if (memchr(p, 0, n))
		return fail(s, at, "a name with a zero byte");
	*out = ir_intern(s->m, p, n);
	return NULL;
}

/* @word or @"text" */
static struct err *name(struct ps *s, const char **p, size_t *n)
{
	TRY(expect(s, "@"));
	const char *at = s->p;
	if (s->p < s->end && *s->p == '"') {
		TRY(quoted(s, p, n));
		return memchr(*p, 0, *n) ? fail(s, at, "a name with a zero byte") : NULL;
	}
	*p = s->p;
	while (s->p < s->end && (word_char(*s->p) || *s->p == '.' || *s->p == '-' || *s->p == '$'))
		s->p++;
	*n = (size_t)(s->p - *p);
	return *n ? NULL : fail(s, s->p, "a name expected");
}

static struct err *dtype(struct ps *s, enum dtype *out)
{
	const char *p;
	size_t n;
	TRY(word(s, &p, &n));
	int dt = dtype_by_name(p, n);
	if (dt <= 0)
		return fail(s, p, "'%.*s' is no element type", (int)MIN(n, 40), p);
	*out = (enum dtype)dt;
	return NULL;
}

static struct err *type(struct ps *s, ir_type *out)
{
	enum dtype dt;
	int64_t dim[IR_MAX_RANK], n = 1;
	int rank = 0;
	skip(s);
	const char *at = s->p;
	TRY(dtype(s, &dt));
	if (dt != DT_token) {
		TRY(expect(s, "["));
		while (!accept(s, "]")) {
			if (rank)
				TRY(expect(s, ","));
			if (rank == IR_MAX_RANK)
				return fail(s, at, "a type of rank above %d", IR_MAX_RANK);
			TRY(integer(s, &dim[rank]));
			int64_t d = MAX(dim[rank], 1);
			if (dim[rank] < 0 || d > ((int64_t)1 << 48) / n)
				return fail(s, at, "a type with a negative extent or more than 2^48 elements");
			n *= d;
			rank++;
		}
	}
	*out = ir_tensor(s->m, dt, rank, dim);
	return NULL;
}

/* --- shardings ------------------------------------------------------------------ */

/* Axes up to '}' or '?'. */
static struct err *axis_refs(struct ps *s, const struct ir_mesh *mesh, struct ir_axis_ref **out, int *n, bool *open)
{
	struct ir_axis_ref r[64];
	*n = 0;
	*open = false;
	TRY(expect(s, "{"));
	while (!accept(s, "}")) {
		if (*n || *open)
			TRY(expect(s, ","));
		if (accept(s, "?")) {
			*open = true;
			continue;
		}
		ir_str id;
		const char *at = s->p;
		TRY(string(s, &id));
		int a = 0;
		while (a < mesh->naxis && mesh->axis[a].name != id)
			a++;
		if (a == mesh->naxis || *n == (int)NELEM(r))
			return fail(s, at, "the mesh has no axis '%s', or too many are named", ir_text(s->m, id));
		int64_t full = mesh->axis[a].size;
		r[*n] = (struct ir_axis_ref){ (uint16_t)a, 1, full };
		if (accept(s, ":")) {
			TRY(expect(s, "("));
			TRY(integer(s, &r[*n].pre));
			TRY(expect(s, ")"));
			TRY(integer(s, &r[*n].size));
			if (r[*n].pre < 1 || r[*n].size < 1 || r[*n].pre > full || r[*n].size > full || full % (r[*n].pre * r[*n].size))
				return fail(s, at, "a part that does not divide its axis");
		}
		++*n;
	}
	*out = arena_copy(&s->a, r, sizeof *r * (size_t)*n);
	return NULL;
}

static struct err *shard(struct ps *s, ir_shard *out)
{
	*out = 0;
	if (accept(s, "none"))
		return NULL;
	skip(s);
	const char *at = s->p, *p;
	size_t n;
	struct ir_shard_info h = { .part_op = RED_add };
	if (s->end - s->p > 1 && s->p[1] == '[') {
		s->p++;
		if (!s->m->mesh.n)
			return fail(s, at, "a sharding without a mesh");
	} else {
		TRY(name(s, &p, &n));
		uint64_t *v = map_get(&s->mesh, p, n);
		if (!v)
			return fail(s, at, "no mesh '%.*s'", (int)MIN(n, 100), p);
		h.mesh = (uint32_t)(*v - 1);
	}
	const struct ir_mesh *mesh = &s->m->mesh.p[h.mesh];
	struct ir_dim_shard dim[IR_MAX_RANK] = {0};
	h.dim = dim;
	TRY(expect(s, "["));
	while (!peek(s, "]") && !peek(s, ";")) {
		int64_t prio = 0;
		if (h.rank)
			TRY(expect(s, ","));
		if (h.rank == IR_MAX_RANK)
			return fail(s, at, "a sharding of too many dimensions");
		struct ir_dim_shard *d = &dim[h.rank++];
		TRY(axis_refs(s, mesh, &d->axis, &d->naxis, &d->open));
		if (s->p < s->end && *s->p == 'p') {
			s->p++;
			TRY(integer(s, &prio));
			if (prio < 1 || prio > 1 << 20)
				return fail(s, at, "a priority out of range");
			d->priority = (int)prio;
		}
	}
	while (accept(s, ";")) {
		bool open;
		if (accept(s, "replicated")) {
			TRY(expect(s, "="));
			TRY(axis_refs(s, mesh, &h.repl, &h.nrepl, &open));
			continue;
		}
		TRY(word(s, &p, &n));
		int r = 0;
		while (r < RED_COUNT && (strlen(redop_name[r]) != n || memcmp(redop_name[r], p, n) != 0))
			r++;
		if (r == RED_COUNT)
			return fail(s, p, "no operation '%.*s'", (int)MIN(n, 40), p);
		h.part_op = (enum redop)r;
		TRY(expect(s, "="));
		TRY(axis_refs(s, mesh, &h.part, &h.npart, &open));
	}
	TRY(expect(s, "]"));
	const char *twice = ir_shard_twice(s->m, &h);
	if (twice)
		return fail(s, at, "a sharding by axis '%s' twice", twice);
	*out = ir_shard_add(s->m, &h);
	return NULL;
}

static struct err *mesh(struct ps *s)
{
	const char *p, *at = s->p;
	size_t n;
	struct ir_mesh x = { .ndev = 1 };
	struct ir_mesh_axis axis[64];
	TRY(name(s, &p, &n));
	x.name = ir_intern(s->m, p, n);
	uint64_t *slot = map_put(&s->mesh, p, n);
	if (*slot)
		return fail(s, at, "two meshes '%.*s'", (int)MIN(n, 100), p);
	*slot = s->m->mesh.n + 1;
	TRY(expect(s, "="));
	TRY(expect(s, "["));
	while (!accept(s, "]")) {
		if (x.naxis)
			TRY(expect(s, ","));
		if (x.naxis == (int)NELEM(axis))
			return fail(s, at, "a mesh of more than %zu axes", NELEM(axis));
		struct ir_mesh_axis *a = &axis[x.naxis++];
		TRY(string(s, &a->name));
		TRY(expect(s, "="));
		TRY(integer(s, &a->size));
		if (a->size < 1 || a->size > 1 << 20 || x.ndev * a->size > 1 << 20)
			return fail(s, at, "a mesh of more than 2^20 devices, or an axis of none");
		x.ndev *= a->size;
		for (int i = 0; i + 1 < x.naxis; i++)
			if (axis[i].name == a->name)
				return fail(s, at, "a mesh with two axes '%s'", ir_text(s->m, a->name));
	}
	x.axis = arena_copy(&s->m->arena, axis, sizeof *axis * (size_t)x.naxis);
	if (accept(s, "ids")) {
		TRY(expect(s, "="));
		TRY(expect(s, "["));
		x.id = ARENA_NEW(&s->m->arena, int64_t, x.ndev);
		uint8_t *seen = ARENA_NEW(&s->a, uint8_t, x.ndev);
		for (int64_t i = 0; i < x.ndev; i++) {
			if (i)
				TRY(expect(s, ","));
			TRY(integer(s, &x.id[i]));
			if (x.id[i] < 0 || x.id[i] >= (x.naxis ? x.ndev : 1 << 20) || (x.naxis && seen[x.id[i]]))
				return fail(s, s->p, "device ids that are no permutation");
			if (x.naxis)
				seen[x.id[i]] = 1;
		}
		TRY(expect(s, "]"));
	}
	arr_push(&s->m->mesh, x);
	return NULL;
}

/* --- attributes -------------------------------------------------------------------- */

/* One element's text: up to a delimiter, or to the closing bracket of a complex number. */
static struct err *element(struct ps *s, enum dtype dt, void *out)
{
	skip(s);
	const char *at = s->p;
	if (s->p < s->end && *s->p == '(') {
		while (s->p < s->end && *s->p != ')' && *s->p != '\n')
			s->p++;
		s->p += s->p < s->end;
	} else {
		while (s->p < s->end && (word_char(*s->p) || *s->p == '.' || *s->p == '-' || *s->p == '+'))
			s->p++;
	}
	if (!ir_elem_parse(dt, at, (size_t)(s->p - at), out))
		return fail(s, at, "'%.*s' is no %s", (int)MIN((size_t)(s->p - at), 40), at, dtype_info[dt].name);
	return NULL;
}

static struct err *elements(struct ps *s, enum dtype dt, struct str *out)
{
	char e[16];
	TRY(expect(s, "["));
	for (size_t i = 0; !accept(s, "]"); i++) {
		if (i)
			TRY(expect(s, ","));
		TRY(element(s, dt, e));
		str_addn(out, e, dtype_info[dt].bytes);
	}
	return NULL;
}

static struct err *data(struct ps *s, enum dtype dt, struct str *out)
{
	char e[16];
	skip(s);
	if (s->end - s->p > 1 && s->p[0] == 'x' && s->p[1] == '"') {
		for (s->p += 2;; s->p += 2) {
			if (s->p < s->end && *s->p == '"') {
				s->p++;
				return NULL;
			}
			int hi = s->end - s->p > 1 ? hex(s->p[0]) : -1, lo = hi < 0 ? -1 : hex(s->p[1]);
			if (lo < 0)
				return fail(s, s->p, "hexadecimal digits expected");
			e[0] = (char)(hi << 4 | lo);
			str_addn(out, e, 1);
		}
	}
	if (peek(s, "["))
		return elements(s, dt, out);
	TRY(element(s, dt, e));
	str_addn(out, e, dtype_info[dt].bytes);
	return NULL;
}

/* Where a value that can only be read later ends: at a space outside brackets and strings. */
static void pass_over(struct ps *s)
{
	int depth = 0;
	bool in = false;
	for (; s->p < s->end && *s->p != '\n'; s->p++) {
		if (*s->p == '"')
			in = !in;
		else if (in)
			continue;
		else if (*s->p == '[' || *s->p == '(')
			depth++;
		else if (*s->p == ']' || *s->p == ')')
			depth--;
		else if (*s->p == ' ' && depth <= 0)
			break;
	}
}

/* Where the dtype of what lies from here to its end is said: ":f32" behind the value. */
static struct err *dict(struct ps *s, int depth, struct str *out)
{
	TRY(expect(s, "{"));
	if (depth > 32)
		return fail(s, s->p, "dictionaries nested deeper than 32");
	for (int i = 0; !accept(s, "}"); i++) {
		const char *key, *text;
		size_t key_n, n;
		uint8_t head[4] = {0};
		struct str v = {0};
		struct err *e = NULL;
		if (i)
			TRY(expect(s, ","));
		TRY(quoted(s, &key, &key_n));
		TRY(expect(s, "="));
		uint32_t count = 0, kn = (uint32_t)key_n;
		if (peek(s, "\"")) {
			TRY(quoted(s, &text, &n));
			head[0] = 2;
			count = (uint32_t)n;
			str_addn(&v, text, n);
		} else if (peek(s, "{")) {
			head[0] = 3;
			e = dict(s, depth + 1, &v);
			count = (uint32_t)v.n;
		} else {
			const char *begin = s->p, *end;
			enum dtype dt;
			int deep = 0;
			for (; s->p < s->end && *s->p != '\n' && (*s->p != ':' || deep); s->p++)
				deep += *s->p == '[' || *s->p == '(' ? 1 : *s->p == ']' || *s->p == ')' ? -1 : 0;
			TRY(expect(s, ":"));
			TRY(dtype(s, &dt));
			if (dt == DT_token)
				return fail(s, s->p, "a dictionary with tokens");
			end = s->p;
			s->p = begin;
			head[0] = peek(s, "[");
			head[1] = (uint8_t)dt;
			e = data(s, dt, &v);
			count = (uint32_t)(v.n / dtype_info[dt].bytes);
			s->p = end;
		}
		if (!e) {
			str_addn(out, (char *)&kn, 4);
			str_addn(out, key, key_n);
			str_addn(out, (char *)head, 4);
			str_addn(out, (char *)&count, 4);
			str_addn(out, v.p ? v.p : "", v.n);
		}
		str_free(&v);
		TRY(e);
	}
	return NULL;
}

static struct err *group(struct ps *s, ir_group *out)
{
	*out = 0;
	if (accept(s, "none"))
		return NULL;
	ARR(int64_t) id = {0};
	int rows = 0;
	size_t cols = 0;
	struct err *e;
	skip(s);
	const char *at = s->p;
	TRY_GOTO(e, expect(s, "["), out);
	while (!accept(s, "]")) {
		size_t before = id.n;
		if (rows)
			TRY_GOTO(e, expect(s, ","), out);
		TRY_GOTO(e, expect(s, "["), out);
		while (!accept(s, "]")) {
			int64_t v;
			if (id.n > before)
				TRY_GOTO(e, expect(s, ","), out);
			TRY_GOTO(e, integer(s, &v), out);
			if (v < -1 || v > 1 << 20) {
				e = fail(s, at, "a group with device %lld", (long long)v);
				goto out;
			}
			arr_push(&id, v);
		}
		if (rows && id.n - before != cols) {
			e = fail(s, at, "rows of different length: -1 fills them up");
			goto out;
		}
		cols = id.n - before;
		rows++;
	}
	e = NULL;
	*out = ir_group_add(s->m, rows, (int)cols, id.p);
out:
	arr_free(&id);
	return e;
}

static struct err *function(struct ps *s, int64_t *out)
{
	const char *p;
	size_t n;
	*out = 0;
	if (accept(s, "none"))
		return NULL;
	TRY(name(s, &p, &n));
	uint64_t *v = map_put(&s->fn, p, n);
	if (!*v) {
		struct ir_fn *f = ir_fn_new(s->m, arena_str(&s->a, p, n));
		*v = f->id;
		while (s->defined.n <= f->id)
			arr_push(&s->defined, 0);
	}
	*out = (int64_t)*v;
	return NULL;
}

typedef ARR(int64_t) words;

static struct err *item(struct ps *s, char kind, bool role, int64_t *v)
{
	ir_shard h;
	const char *p;
	size_t n;
	if (kind == 'F')
		return function(s, v);
	if (kind == 'H') {
		TRY(shard(s, &h));
		*v = h;
		return NULL;
	}
	if (!role)
		return integer(s, v);
	TRY(word(s, &p, &n));
	for (*v = 0; *v < (int64_t)NELEM(ir_role_name); ++*v)
		if (strlen(ir_role_name[*v]) == n && memcmp(ir_role_name[*v], p, n) == 0)
			return NULL;
	return fail(s, p, "no role '%.*s'", (int)MIN(n, 40), p);
}

static struct err *attribute(struct ps *s, char kind, bool role, words *w)
{
	int64_t v = 0;
	const char *p;
	size_t n;
	ir_str id;
	ir_group g;
	ir_shard h;
	enum dtype dt;
	switch (kind) {
	case 'I':
	case 'F':
	case 'H':
		arr_push(w, 0);
		TRY(expect(s, "["));
		while (!accept(s, "]")) {
			if (w->p[0])
				TRY(expect(s, ","));
			TRY(item(s, kind, role, &v));
			arr_push(w, v);
			w->p[0]++;
		}
		return NULL;
	case 'i':
		TRY(integer(s, &v));
		break;
	case 'f':
		TRY(function(s, &v));
		break;
	case 't':
		TRY(dtype(s, &dt));
		v = dt;
		break;
	case 'R':
		TRY(word(s, &p, &n));
		while (v < RED_COUNT && (strlen(redop_name[v]) != n || memcmp(redop_name[v], p, n) != 0))
			v++;
		if (v == RED_COUNT)
			return fail(s, p, "no operation '%.*s'", (int)MIN(n, 40), p);
		break;
	case 's':
		TRY(string(s, &id));
		v = id;
		break;
	case 'g':
		TRY(group(s, &g));
		v = g;
		break;
	case 'h':
		TRY(shard(s, &h));
		v = h;
		break;
	case 'D': {
		struct str b = {0};
		struct err *e = dict(s, 0, &b);
		if (!e && b.n)
			v = ir_blob_add(s->m, b.p, b.n);
		str_free(&b);
		TRY(e);
		break;
	}
	}
	arr_push(w, v);
	return NULL;
}

/* --- operations and functions ------------------------------------------------------- */

static struct err *number(struct ps *s, int64_t *out)
{
	TRY(expect(s, "%"));
	return integer(s, out);
}

static struct err *use(struct ps *s, ir_val *out)
{
	int64_t v;
	skip(s);
	const char *at = s->p;
	TRY(number(s, &v));
	uint64_t *slot = map_get(&s->val, &v, sizeof v);
	if (!slot)
		return fail(s, at, "%%%lld is not defined here", (long long)v);
	*out = (ir_val)*slot;
	return NULL;
}

static struct err *define(struct ps *s, const char *at, int64_t v, ir_val id)
{
	uint64_t *slot = map_put(&s->val, &v, sizeof v);
	if (*slot)
		return fail(s, at, "%%%lld is defined twice", (long long)v);
	*slot = id;
	return NULL;
}

/* What an op is made of, while it is read. */
struct parts {
	ARR(int64_t) out;
	ARR(ir_val) in;
	ARR(ir_type) type;
	ARR(ir_shard) shard;
	words attr[16], all;
	const char *data;
};

static void parts_free(struct parts *q)
{
	arr_free(&q->out);
	arr_free(&q->in);
	arr_free(&q->type);
	arr_free(&q->shard);
	arr_free(&q->all);
	for (size_t i = 0; i < NELEM(q->attr); i++)
		arr_free(&q->attr[i]);
}

/* What is behind "loc(". */
static struct err *location(struct ps *s, ir_loc *out)
{
	ir_str file = 0, label = 0;
	int64_t line;
	ir_loc more;
	TRY(string(s, &file));
	TRY(expect(s, ":"));
	TRY(integer(s, &line));
	if (line < 0 || line > INT32_MAX)
		return fail(s, s->p, "line %lld", (long long)line);
	if (!peek(s, ")") && !peek(s, ","))
		TRY(string(s, &label));
	*out = ir_loc_add(s->m, file, (int)line, label);
	if (!accept(s, ","))
		return expect(s, ")");
	TRY(location(s, &more));
	*out = ir_loc_also(s->m, *out, more);
	return NULL;
}

static struct err *operation(struct ps *s, struct parts *q)
{
	const char *p, *at;
	size_t n;
	int64_t v;
	ir_val u;
	skip(s);
	at = s->p;
	if (peek(s, "%")) {
		do {
			TRY(number(s, &v));
			arr_push(&q->out, v);
		} while (accept(s, ","));
		TRY(expect(s, "="));
	}
	TRY(word(s, &p, &n));
	int kind = ir_kind_by_name(p, n);
	if (!kind)
		return fail(s, p, "no operation '%.*s'", (int)MIN(n, 40), p);
	const struct ir_kind_info *k = ir_info(kind);
	if (peek(s, "%"))
		do {
			TRY(use(s, &u));
			arr_push(&q->in, u);
		} while (accept(s, ","));
	while (!peek(s, ":") && !peek(s, "loc") && !peek(s, "}") && !peek(s, "%")) {
		const char *begin = s->p;
		if (s->p == s->end || !word_char(*s->p))
			break;
		TRY(word(s, &p, &n));
		if (!peek(s, "=")) {    /* the next operation, one without results */
			s->p = begin;
			break;
		}
		s->p++;
		int a = 0;
		while (a < k->nattr && (strlen(ir_at_name[k->attr[a].name]) != n || memcmp(ir_at_name[k->attr[a].name], p, n) != 0))
			a++;
		if (a == k->nattr)
			return fail(s, p, "'%s' has no attribute '%.*s'", k->name, (int)MIN(n, 40), p);
		if (q->attr[a].n || (k->attr[a].kind == 'b' && q->data))
			return fail(s, p, "attribute '%.*s' is there twice", (int)MIN(n, 40), p);
		if (k->attr[a].kind == 'b') {
			q->data = s->p;
			pass_over(s);
		} else {
			TRY(attribute(s, k->attr[a].kind, kind == IR_loop, &q->attr[a]));
		}
	}
	if (accept(s, ":"))
		do {
			ir_type t;
			ir_shard h = 0;
			TRY(type(s, &t));
			arr_push(&q->type, t);
			if (peek(s, "@"))
				TRY(shard(s, &h));
			arr_push(&q->shard, h);
		} while (accept(s, ","));
	if (q->type.n != q->out.n)
		return fail(s, at, "%zu results and %zu types", q->out.n, q->type.n);
	if ((k->nin >= 0 && q->in.n != (size_t)k->nin) || (k->nout >= 0 && q->out.n != (size_t)k->nout))
		return fail(s, at, "'%s' with %zu operands and %zu results", k->name, q->in.n, q->out.n);
	ir_loc loc = 0;
	if (accept(s, "loc")) {
		TRY(expect(s, "("));
		TRY(location(s, &loc));
	}
	const char *behind = s->p;
	for (int a = 0; a < k->nattr; a++) {
		if (k->attr[a].kind == 'b') {
			struct str b = {0};
			struct err *e = NULL;
			enum dtype dt = q->type.n ? ir_type_of(s->m, q->type.p[0])->dtype : DT_token;
			if (!q->data || dt == DT_token)
				return fail(s, at, "no data");
			s->p = q->data;
			e = data(s, dt, &b);
			v = e ? 0 : ir_blob_add(s->m, b.p ? b.p : "", b.n);
			str_free(&b);
			TRY(e);
			arr_push(&q->all, v);
		} else if (q->attr[a].n) {
			for (size_t i = 0; i < q->attr[a].n; i++)
				arr_push(&q->all, q->attr[a].p[i]);
		} else {
			arr_push(&q->all, k->attr[a].kind == 't' ? DT_token : 0);
		}
	}
	s->p = behind;
	struct ir_b b = { s->m, s->f, loc };
	ir_val first = ir_emit_raw(&b, (enum ir_kind)kind, (uint32_t)q->in.n, q->in.p, (uint32_t)q->out.n, q->type.p, q->all.p,
	                           (uint32_t)q->all.n);
	for (size_t i = 0; i < q->out.n; i++) {
		TRY(define(s, at, q->out.p[i], first + (ir_val)i));
		ir_shard_set(s->f, first + (ir_val)i, q->shard.p[i]);
	}
	return NULL;
}

/* sharding=.. alias=N donor memory=".." name=".." */
static struct err *argument(struct ps *s, struct ir_arg *a)
{
	int64_t v;
	*a = (struct ir_arg){ .alias = -1 };
	for (;;) {
		if (accept(s, "sharding")) {
			TRY(expect(s, "="));
			TRY(shard(s, &a->shard));
		} else if (accept(s, "alias")) {
			TRY(expect(s, "="));
			TRY(integer(s, &v));
			if (v < 0 || v > INT32_MAX)
				return fail(s, s->p, "alias %lld", (long long)v);
			a->alias = (int32_t)v;
		} else if (accept(s, "donor")) {
			a->donor = true;
		} else if (accept(s, "memory")) {
			TRY(expect(s, "="));
			TRY(string(s, &a->memory_kind));
		} else if (accept(s, "layout")) {
			TRY(expect(s, "="));
			TRY(string(s, &a->layout));
		} else if (accept(s, "name")) {
			TRY(expect(s, "="));
			TRY(string(s, &a->name));
		} else {
			return NULL;
		}
	}
}

/* A function: parameters, operations, results. */
struct body { ARR(struct ir_arg) in, out; ARR(ir_type) type; };

static struct err *fn_text(struct ps *s, struct body *q)
{
	int64_t id, v;
	ir_type t;
	struct ir_arg a;
	skip(s);
	const char *at = s->p;
	TRY(function(s, &id));
	if (!id || s->defined.p[id])
		return fail(s, at, "a function without a name, or defined twice");
	s->defined.p[id] = 1;
	s->f = s->m->fn.p[id];
	TRY(expect(s, "("));
	while (!accept(s, ")")) {
		ir_shard h = 0;
		if (s->f->nparam)
			TRY(expect(s, ","));
		skip(s);
		at = s->p;
		TRY(number(s, &v));
		TRY(expect(s, ":"));
		TRY(type(s, &t));
		TRY(define(s, at, v, ir_param(s->f, t)));
		if (peek(s, "@"))
			TRY(shard(s, &h));
		ir_shard_set(s->f, s->f->nparam, h);
		TRY(argument(s, &a));
		arr_push(&q->in, a);
	}
	TRY(expect(s, "->"));
	TRY(expect(s, "("));
	while (!accept(s, ")")) {
		if (q->type.n)
			TRY(expect(s, ","));
		TRY(type(s, &t));
		TRY(argument(s, &a));
		arr_push(&q->type, t);
		arr_push(&q->out, a);
	}
	TRY(expect(s, "{"));
	while (!accept(s, "return")) {
		struct parts o = {0};
		struct err *e = operation(s, &o);
		parts_free(&o);
		TRY(e);
	}
	skip(s);
	at = s->p;
	if (!peek(s, "}"))
		do {
			ir_val u;
			TRY(use(s, &u));
			ir_result(s->f, u);
		} while (accept(s, ","));
	TRY(expect(s, "}"));
	if (s->f->result.n != q->type.n)
		return fail(s, at, "%zu results where %zu are said", s->f->result.n, q->type.n);
	for (size_t i = 0; i < q->type.n; i++)
		if (s->f->val.p[s->f->result.p[i]].type != q->type.p[i])
			return fail(s, at, "result %zu has another type than is said", i);
	if (id == 1) {
		s->m->arg = arena_copy(&s->m->arena, q->in.p, q->in.n * sizeof *q->in.p);
		s->m->res = arena_copy(&s->m->arena, q->out.p, q->out.n * sizeof *q->out.p);
	}
	return NULL;
}

static struct err *module(struct ps *s)
{
	const char *p;
	size_t n;
	int64_t v;
	if (accept(s, "module")) {
		if (peek(s, "@\"\"")) {
			s->p += 3;
		} else {
			TRY(name(s, &p, &n));
			s->m->name = ir_intern(s->m, p, n);
		}
		static const char *const what[2] = { "partitions", "replicas" };
		for (int i = 0; i < 2; i++)
			if (accept(s, what[i])) {
				TRY(expect(s, "="));
				TRY(integer(s, &v));
				if (v < 1 || v > 1 << 20)
					return fail(s, s->p, "%lld %s", (long long)v, what[i]);
				*(i ? &s->m->num_replicas : &s->m->num_partitions) = (int)v;
			}
	}
	while (accept(s, "mesh"))
		TRY(mesh(s));
	while (accept(s, "fn")) {
		struct body q = {0};
		struct err *e = fn_text(s, &q);
		arr_free(&q.in);
		arr_free(&q.out);
		arr_free(&q.type);
		map_free(&s->val);
		TRY(e);
	}
	skip(s);
	if (s->p != s->end)
		return fail(s, s->p, "'module', 'mesh' or 'fn' expected");
	for (size_t i = 1; i < s->m->fn.n; i++)
		if (!s->defined.p[i])
			return fail(s, s->p, "function '%s' is named but not there", ir_text(s->m, s->m->fn.p[i]->name));
	return ir_verify(s->m);
}

struct err *ir_parse(const char *text, size_t n, struct ir_module **out)
{
	struct ps s = { .start = text, .p = text, .end = text + n };
	*out = NULL;
	arena_init(&s.a);
	s.m = ir_module_new();
	arr_push(&s.defined, 0);
	struct err *e = module(&s);
	map_free(&s.fn);
	map_free(&s.mesh);
	map_free(&s.val);
	arr_free(&s.defined);
	arena_fini(&s.a);
	if (e)
		ir_module_free(s.m);
	else
		*out = s.m;
	return e;
}
