/* Text -> program.  Recursive descent over words; the text is what print.c writes, with any amount of
 * space between words and '#' comments to the end of a line. */
#include "impl.h"

#include <ctype.h>
#include <stdlib.h>

struct in {
	const char *p, *end;
	int line;
	struct prog *prog;
	struct arena *a;
	struct err *e;            /* the first error; everything after it is a no-op */
	ARR(struct prog_opnd) opnd;
	ARR(uint32_t) sub;
	ARR(struct prog_block) block;
	ARR(struct prog_site) site;
	ARR(struct prog_arg) arg, res;
	ARR(struct prog_buf) buf;
	ARR(struct prog_table) table;
	ARR(struct prog_group) group;
	ARR(struct prog_code) code;
	ARR(struct prog_kern) kern;
	ARR(struct prog_coll) coll;
	ARR(struct prog_custom) custom;
	int depth;
};

#define FAIL(in, ...) do { if (!(in)->e) (in)->e = err_wrap(ERR(INVALID, __VA_ARGS__), "line %d", (in)->line); } while (0)

static void space(struct in *in)
{
	for (; in->p < in->end; in->p++) {
		if (*in->p == '#')
			while (in->p < in->end && *in->p != '\n')
				in->p++;
		if (in->p == in->end)
			return;
		if (*in->p == '\n')
			in->line++;
		else if (*in->p != ' ' && *in->p != '\t' && *in->p != '\r')
			return;
	}
}

static bool is_word(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

/* The next word or single character, not taken. */
static size_t peek(struct in *in)
{
	space(in);
	size_t n = 0;
	while (in->p + n < in->end && is_word(in->p[n]))
		n++;
	return n ? n : in->p < in->end;
}

static bool have(struct in *in, const char *word)
{
	size_t n = peek(in);
	if (in->e || n != strlen(word) || memcmp(in->p, word, n) != 0)
		return false;
	in->p += n;
	return true;
}

static void want(struct in *in, const char *word)
{
	if (in->e || have(in, word))
		return;
	size_t n = peek(in);
	FAIL(in, "'%s' expected before '%.*s'", word, (int)MIN(n, 40), in->p);
}

static int64_t number(struct in *in)
{
	space(in);
	bool minus = in->p < in->end && *in->p == '-';
	in->p += minus || (in->p < in->end && *in->p == '+');
	uint64_t v = 0;
	int n = 0;
	for (; !in->e && in->p < in->end && isdigit((unsigned char)*in->p); in->p++, n++)
		if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(*in->p - '0'), &v) || v > (uint64_t)INT64_MAX + minus)
			FAIL(in, "a number is too large");
	if (!n)
		FAIL(in, "a number is expected before '%.*s'", (int)MIN(peek(in), 40), in->p);
	return minus ? (int64_t)(0 - v) : (int64_t)v;
}

static int64_t ranged(struct in *in, int64_t lo, int64_t hi)
{
	int64_t v = number(in);
	if (v < lo || v > hi) {
		FAIL(in, "%ld is outside %ld..%ld", (long)v, (long)lo, (long)hi);
		return lo;
	}
	return v;
}

static int hexdigit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* A word of hexadecimal digits as bytes in the arena. */
static uint8_t *bytes(struct in *in, size_t *n)
{
	size_t len = peek(in);
	*n = len / 2;
	uint8_t *out = arena_alloc(in->a, len / 2 + 1);
	for (size_t i = 0; i < len / 2; i++) {
		int a = hexdigit(in->p[2 * i]), b = hexdigit(in->p[2 * i + 1]);
		if (a < 0 || b < 0) {
			FAIL(in, "hexadecimal digits expected before '%.*s'", (int)MIN(len, 40), in->p);
			return out;
		}
		out[i] = (uint8_t)(a << 4 | b);
	}
	if (len % 2)
		FAIL(in, "an odd number of hexadecimal digits");
	in->p += len;
	return out;
}

static uint64_t word64(struct in *in)
{
	uint64_t v = 0;
	size_t n;
	uint8_t *b = bytes(in, &n);
	if (n > 8)
		FAIL(in, "a hash has 16 digits");
	for (size_t i = 0; i < MIN(n, 8); i++)
		v = v << 8 | b[i];
	return v;
}

static char *string(struct in *in)
{
	space(in);
	struct str s = {0};
	str_add(&s, "");
	if (in->p == in->end || *in->p != '"')
		FAIL(in, "a string is expected");
	for (in->p++; !in->e; in->p++) {
		if (in->p >= in->end || *in->p == '\n') {
			FAIL(in, "a string has no end");
		} else if (*in->p == '"') {
			in->p++;
			break;
		} else if (*in->p != '\\') {
			str_addn(&s, in->p, 1);
		} else if (in->end - in->p > 3 && in->p[1] == 'x' && hexdigit(in->p[2]) >= 0 && hexdigit(in->p[3]) >= 0) {
			char c = (char)(hexdigit(in->p[2]) << 4 | hexdigit(in->p[3]));
			str_addn(&s, &c, 1);
			in->p += 3;
		} else if (in->end - in->p > 1 && (in->p[1] == '"' || in->p[1] == '\\')) {
			str_addn(&s, ++in->p, 1);
		} else {
			FAIL(in, "a string has an unknown escape");
		}
	}
	if (in->p > in->end)
		in->p = in->end;
	char *out = arena_str(in->a, s.p, s.n);
	str_free(&s);
	return out;
}

static int64_t *list(struct in *in, int64_t *n)
{
	ARR(int64_t) v = {0};
	want(in, "[");
	if (!have(in, "]")) {
		do
			arr_push(&v, number(in));
		while (have(in, ","));
		want(in, "]");
	}
	int64_t *out = arena_copy(in->a, v.p, v.n * sizeof *v.p);
	*n = (int64_t)v.n;
	arr_free(&v);
	return out;
}

static int64_t *list_of(struct in *in, int64_t n)
{
	int64_t got, *v = list(in, &got);
	if (got == n)
		return v;
	FAIL(in, "a list has %ld entries instead of %ld", (long)got, (long)n);
	return ARENA_NEW(in->a, int64_t, n);
}

static uint8_t dtype(struct in *in)
{
	size_t n = peek(in);
	int dt = dtype_by_name(in->p, n);
	if (dt < 0) {
		FAIL(in, "unknown type '%.*s'", (int)MIN(n, 40), in->p);
		return DT_f32;
	}
	in->p += n;
	return (uint8_t)dt;
}

/* Index of the next word among names; n if it is none of them. */
static unsigned pick(struct in *in, const char *what, const char *const *name, unsigned n)
{
	size_t len = peek(in);
	for (unsigned i = 0; i < n; i++)
		if (name[i] && strlen(name[i]) == len && memcmp(name[i], in->p, len) == 0) {
			in->p += len;
			return i;
		}
	FAIL(in, "unknown %s '%.*s'", what, (int)MIN(len, 40), in->p);
	return 0;
}

static void view(struct in *in, struct prog_view *v)
{
	uint8_t dt = dtype(in);
	int64_t rank, *dim = list(in, &rank);
	if (rank > MAX_RANK) {
		FAIL(in, "a view has rank %ld", (long)rank);
		rank = 0;
	}
	int64_t size = 1;
	for (int64_t d = 0; d < rank; d++)
		if (dim[d] < 0 || __builtin_mul_overflow(size, MAX(dim[d], 1), &size)) {
			FAIL(in, "a view has an impossible extent");
			rank = 0;
		}
	prog_view_make(in->a, v, dt, (int)rank, dim);
	if (have(in, ":"))
		v->stride = list_of(in, rank);
	if (have(in, "@"))
		v->off = number(in);
}

static struct prog_view *views(struct in *in, uint16_t *nin, uint16_t *nout)
{
	ARR(struct prog_view) v = {0};
	for (int side = 0; side < 2; side++) {
		size_t before = v.n;
		want(in, "(");
		if (!have(in, ")")) {
			do {
				struct prog_view one;
				view(in, &one);
				arr_push(&v, one);
			} while (have(in, ",") && v.n < UINT16_MAX);
			want(in, ")");
		}
		*(side ? nout : nin) = (uint16_t)(v.n - before);
		if (!side) {
			want(in, "-");
			want(in, ">");
		}
	}
	struct prog_view *out = arena_copy(in->a, v.p, v.n * sizeof *v.p);
	arr_free(&v);
	return out;
}

static void imm(struct in *in, uint8_t out[16])
{
	size_t n;
	uint8_t *b = bytes(in, &n);
	if (n > 16)
		FAIL(in, "an element has at most 16 bytes");
	memcpy(out, b, MIN(n, 16));
}

static uint16_t expr_reg(struct in *in)
{
	want(in, "%");
	return (uint16_t)ranged(in, 0, UINT16_MAX);
}

static struct prog_expr *expr(struct in *in)
{
	struct prog_expr *x = ARENA_NEW(in->a, struct prog_expr, 1);
	ARR(uint8_t) type = {0};
	ARR(struct prog_ins) ins = {0};
	ARR(uint16_t) out = {0};
	want(in, "(");
	if (!have(in, ")")) {
		do
			arr_push(&type, dtype(in));
		while (have(in, ",") && type.n < UINT16_MAX);
		want(in, ")");
	}
	want(in, "{");
	if (!have(in, "}")) {
		do {
			struct prog_ins s = {0};
			if (expr_reg(in) != type.n + ins.n)
				FAIL(in, "register %zu of the expression comes next", type.n + ins.n);
			want(in, "=");
			if (have(in, "imm")) {
				s.fn = EXPR_IMM;
			} else if (have(in, "round")) {
				s.fn = EXPR_ROUND;
			} else if (have(in, "look")) {
				s.fn = EXPR_LOOK;
			} else {
				const char *name[ELEM_COUNT];
				for (int i = 0; i < ELEM_COUNT; i++)
					name[i] = elem_info[i].name;
				s.fn = (uint16_t)pick(in, "function", name, ELEM_COUNT);
			}
			s.from = dtype(in);
			for (int k = 0; k < prog_ins_nin(s.fn); k++)
				s.src[k] = expr_reg(in);
			want(in, "-");
			want(in, ">");
			s.to = dtype(in);
			if (s.fn >= ELEM_COUNT)
				imm(in, s.imm);
			arr_push(&ins, s);
		} while (have(in, ";") && ins.n + type.n < UINT16_MAX);
		want(in, "}");
	}
	want(in, "(");
	if (!have(in, ")")) {
		do
			arr_push(&out, expr_reg(in));
		while (have(in, ",") && out.n < UINT16_MAX);
		want(in, ")");
	}
	x->nin = (uint16_t)type.n;
	x->n = (uint16_t)ins.n;
	x->nout = (uint16_t)out.n;
	x->in_type = arena_copy(in->a, type.p, type.n);
	x->ins = arena_copy(in->a, ins.p, ins.n * sizeof *ins.p);
	x->out = arena_copy(in->a, out.p, out.n * sizeof *out.p);
	arr_free(&type);
	arr_free(&ins);
	arr_free(&out);
	return x;
}

static void index_is(struct in *in, const char *what, size_t n)
{
	int64_t i = number(in);
	if (i != (int64_t)n)
		FAIL(in, "%s %zu comes next", what, n);
}

static struct prog_arg arg(struct in *in)
{
	struct prog_arg a = {.alias = -1};
	a.dtype = dtype(in);
	int64_t rank;
	a.dim = list(in, &rank);
	if (rank > MAX_RANK) {
		FAIL(in, "an array has rank %ld", (long)rank);
		rank = 0;
	}
	a.rank = (uint8_t)rank;
	if (have(in, "global"))
		a.global_dim = list_of(in, rank);
	want(in, "bytes");
	a.bytes = number(in);
	if (have(in, "alias"))
		a.alias = (int32_t)ranged(in, -2, INT32_MAX);
	if (have(in, "sharding"))
		a.sharding = bytes(in, &a.nsharding);
	if (have(in, "memory"))
		a.memory_kind = string(in);
	if (have(in, "layout"))
		a.layout = string(in);
	return a;
}

static struct prog_buf buf(struct in *in)
{
	static const char *const kind[] = {"arg", "out", "temp", "const", "lent"};
	struct prog_buf b = {.alias = -1};
	b.kind = (uint8_t)pick(in, "kind of buffer", kind, NELEM(kind));
	if (b.kind == BUF_LENT)
		b.index = (uint32_t)ranged(in, 0, UINT32_MAX);
	if (b.kind < BUF_TEMP) {
		b.index = (uint32_t)ranged(in, 0, UINT32_MAX);
	} else {
		want(in, "at");
		b.off = number(in);
	}
	want(in, "size");
	b.size = number(in);
	if (have(in, "alias"))
		b.alias = (int32_t)ranged(in, -1, INT32_MAX);
	if (have(in, "peer"))
		b.bits = BUF_PEER;
	return b;
}

static void data(struct in *in)
{
	int64_t n = ranged(in, 0, in->end - in->p);
	char *p = arena_alloc(in->a, (size_t)n + 64);
	p += 64 - ((uintptr_t)p & 63);
	for (int64_t at = 0; at < n && !in->e;) {
		size_t k;
		uint8_t *b = bytes(in, &k);
		if (!k || (int64_t)k > n - at) {
			FAIL(in, "%ld bytes of constants, %ld more expected", (long)at, (long)(n - at));
			break;
		}
		memcpy(p + at, b, k);
		at += (int64_t)k;
	}
	in->prog->data = p;
	in->prog->ndata = n;
}

static struct prog_group group(struct in *in)
{
	struct prog_group g = {0};
	int nrow = (int)ranged(in, 0, 1 << 20), ncol = (int)ranged(in, 0, 1 << 20);
	int64_t n, *id = list(in, &n);
	if (n != (int64_t)nrow * ncol) {
		FAIL(in, "a group of %d rows and %d columns has %ld entries", nrow, ncol, (long)n);
		return g;
	}
	prog_group_make(in->a, &g, in->prog->ndev, nrow, ncol, id);
	return g;
}

static struct prog_kern kern(struct in *in)
{
	struct prog_kern k = {.code = -1};
	k.id = (uint16_t)pick(in, "kernel", prog_kern_name, KERN_COUNT);
	k.v = views(in, &k.nin, &k.nout);
	if (have(in, "attr")) {
		int64_t n;
		k.attr = list(in, &n);
		k.nattr = (uint32_t)n;
	}
	if (have(in, "imm"))
		imm(in, k.imm);
	if (have(in, "code"))
		k.code = (int32_t)ranged(in, 0, INT32_MAX);
	if (have(in, "tiles"))
		k.tiles = number(in);
	if (have(in, "of"))
		k.block = number(in);
	k.times = have(in, "times") ? number(in) : k.block > 0;
	k.open = have(in, "open");
	if (have(in, "flops"))
		k.flops = number(in);
	if (have(in, "bytes"))
		k.bytes = number(in);
	if (have(in, "expr"))
		k.expr = expr(in);
	return k;
}

static struct prog_coll coll(struct in *in)
{
	struct prog_coll c = {0};
	c.kind = (uint8_t)pick(in, "collective", prog_coll_name, COLL_COUNT);
	c.dtype = dtype(in);
	want(in, "n");
	c.nin = (uint16_t)ranged(in, 0, UINT16_MAX / 2);
	want(in, "algo");
	c.algo = (uint8_t)pick(in, "algorithm", prog_algo_name, COLL_ALGOS);
	if (c.kind != COLL_permute) {
		want(in, "group");
		c.group = (uint32_t)ranged(in, 0, UINT32_MAX);
	}
	if (c.kind == COLL_permute || have(in, "pairs")) {
		if (c.kind == COLL_permute)
			want(in, "pairs");
		c.pairs = (uint32_t)ranged(in, 0, UINT32_MAX);
	}
	want(in, "redop");
	c.redop = (uint8_t)pick(in, "reduction", redop_name, RED_COUNT);
	want(in, "outer");
	c.outer = number(in);
	want(in, "inner");
	c.inner = number(in);
	if (have(in, "to")) {
		c.outer2 = number(in);
		c.inner2 = number(in);
	}
	if (have(in, "hops"))
		c.hops = (uint16_t)ranged(in, 0, UINT16_MAX);
	if (have(in, "boxes")) {
		int64_t n;
		c.box = list(in, &n);
		c.nbox = (uint32_t)MIN(n, UINT32_MAX);
	}
	if (have(in, "slices")) {
		c.slices = ranged(in, 1, INT64_MAX);
		want(in, "of");
		c.row = ranged(in, 1, INT64_MAX);
	}
	if (have(in, "expr"))
		c.expr = expr(in);
	return c;
}

static struct prog_custom custom(struct in *in)
{
	struct prog_custom c = {0};
	c.target = string(in);
	want(in, "api");
	c.api = (int)ranged(in, INT32_MIN, INT32_MAX);
	c.effect = have(in, "effect");
	if (have(in, "dict"))
		c.dict = bytes(in, &c.ndict);
	c.v = views(in, &c.nin, &c.nout);
	return c;
}

/* --- commands ------------------------------------------------------------- */

/* A letter and a number in one word: r3, b12. */
static uint32_t name(struct in *in, char letter)
{
	size_t n = peek(in);
	if (in->e || n < 2 || *in->p != letter) {
		FAIL(in, "'%c' and a number expected before '%.*s'", letter, (int)MIN(n, 40), in->p);
		return 0;
	}
	in->p++;
	return (uint32_t)ranged(in, 0, letter == 'r' ? UINT16_MAX : UINT32_MAX);
}

static void opnd(struct in *in)
{
	struct prog_opnd o = {0};
	o.buf = name(in, 'b');
	int terms = 0;
	while (!in->e && peek(in) && (*in->p == '+' || *in->p == '-')) {
		if (in->end - in->p > 1 && in->p[0] == '-' && in->p[1] == '>')
			break;
		if (in->end - in->p > 1 && in->p[1] == 'r') {
			in->p++;
			if (terms == 2) {
				FAIL(in, "an address has at most two register terms");
				break;
			}
			o.reg[terms] = (uint16_t)name(in, 'r');
			want(in, "*");
			o.mul[terms++] = number(in);
		} else {
			o.off += number(in);
		}
	}
	arr_push(&in->opnd, o);
}

static void opnds(struct in *in, struct prog_cmd *c)
{
	c->opnd = (uint32_t)in->opnd.n;
	for (int side = 0; side < 2; side++) {
		want(in, "(");
		if (!have(in, ")")) {
			do
				opnd(in);
			while (have(in, ","));
			want(in, ")");
		}
		if (!side) {
			want(in, "-");
			want(in, ">");
		}
	}
	c->nopnd = (uint32_t)in->opnd.n - c->opnd;
}

static uint32_t block(struct in *in);

static struct prog_cmd cmd(struct in *in)
{
	static const char *const op[] = {"kern", "set", "add", "mul", "min", "max", "ld", "st", "table", "loop", "while", "case",
	                                 "coll", "custom", "mark", "await", "lend", "next", "back", "wait", "then"};
	static const uint8_t code[] = {CMD_KERN, CMD_SET, CMD_ADD, CMD_MUL, CMD_MIN, CMD_MAX, CMD_LD, CMD_ST, CMD_TABLE, CMD_LOOP,
	                               CMD_WHILE, CMD_CASE, CMD_COLL, CMD_CUSTOM, CMD_MARK, CMD_AWAIT, CMD_LEND, CMD_NEXT, CMD_BACK, CMD_WAIT, CMD_KERN};
	struct prog_cmd c = {0};
	unsigned word = pick(in, "command", op, NELEM(op));
	c.op = code[word];
	if (word == NELEM(op) - 1)
		c.imm = have(in, "all") ? THEN_all : THEN_each;
	bool sets = c.op >= CMD_SET && c.op <= CMD_TABLE && c.op != CMD_ST;
	if (sets) {
		c.reg[0] = (uint16_t)name(in, 'r');
		want(in, "=");
	}
	switch (c.op) {
	case CMD_KERN:
		c.id = (uint32_t)ranged(in, 0, (int64_t)in->kern.n - 1);
		if (!in->e)
			want(in, prog_kern_name[in->kern.p[c.id].id]);
		opnds(in, &c);
		break;
	case CMD_COLL:
		c.id = (uint32_t)ranged(in, 0, (int64_t)in->coll.n - 1);
		if (!in->e)
			want(in, prog_coll_name[in->coll.p[c.id].kind]);
		opnds(in, &c);
		break;
	case CMD_CUSTOM:
		c.id = (uint32_t)ranged(in, 0, (int64_t)in->custom.n - 1);
		string(in);
		opnds(in, &c);
		break;
	case CMD_SET: c.imm = number(in); break;
	case CMD_ADD:
		c.reg[1] = (uint16_t)name(in, 'r');
		want(in, "+");
		c.reg[2] = (uint16_t)name(in, 'r');
		c.imm = number(in);
		break;
	case CMD_MUL: case CMD_MIN: case CMD_MAX:
		c.reg[1] = (uint16_t)name(in, 'r');
		want(in, c.op == CMD_MUL ? "*" : ",");
		c.imm = number(in);
		break;
	case CMD_LD:
		c.dtype = dtype(in);
		c.opnd = (uint32_t)in->opnd.n;
		c.nopnd = 1;
		opnd(in);
		break;
	case CMD_ST:
		c.dtype = dtype(in);
		c.opnd = (uint32_t)in->opnd.n;
		c.nopnd = 1;
		opnd(in);
		want(in, "=");
		c.reg[1] = (uint16_t)name(in, 'r');
		c.imm = number(in);
		break;
	case CMD_TABLE: c.imm = number(in); break;
	case CMD_LOOP:
		c.reg[0] = (uint16_t)name(in, 'r');
		want(in, "<");
		if (peek(in) && *in->p == 'r')
			c.reg[1] = (uint16_t)name(in, 'r'), c.imm = -1;
		else
			c.imm = ranged(in, 0, INT64_MAX);
		break;
	case CMD_WHILE: case CMD_CASE: c.reg[0] = (uint16_t)name(in, 'r'); break;
	case CMD_LEND:
		c.id = (uint32_t)ranged(in, 0, UINT32_MAX);
		want(in, "(");
		c.opnd = (uint32_t)in->opnd.n;
		c.nopnd = 1;
		opnd(in);
		want(in, ")");
		break;
	case CMD_NEXT:
		c.id = (uint32_t)ranged(in, 0, UINT32_MAX);
		c.imm = have(in, "by") ? number(in) : 1;
		opnds(in, &c);
		break;
	case CMD_BACK: c.id = (uint32_t)ranged(in, 0, UINT32_MAX); break;
	case CMD_WAIT:
		c.id = (uint32_t)ranged(in, 0, UINT32_MAX);
		c.imm = have(in, "but") ? number(in) : 0;
		break;
	default: c.imm = number(in); break;
	}
	if (have(in, "lane"))
		c.lane = (uint8_t)ranged(in, 0, 255);
	if (have(in, "site"))
		c.site = (uint32_t)ranged(in, 0, UINT32_MAX);
	ARR(uint32_t) sub = {0};
	while (!in->e && peek(in) && *in->p == '{')
		arr_push(&sub, block(in));
	c.block = (uint32_t)in->sub.n;
	c.nblock = (uint32_t)sub.n;
	for (size_t i = 0; i < sub.n; i++)
		arr_push(&in->sub, sub.p[i]);
	arr_free(&sub);
	return c;
}

static uint32_t block(struct in *in)
{
	ARR(struct prog_cmd) c = {0};
	uint32_t id = (uint32_t)in->block.n;
	arr_push(&in->block, (struct prog_block){0});
	if (++in->depth > 256)
		FAIL(in, "blocks nest deeper than 256");
	want(in, "{");
	while (!in->e && !have(in, "}"))
		arr_push(&c, cmd(in));
	in->depth--;
	in->block.p[id].n = (uint32_t)c.n;
	in->block.p[id].cmd = arena_copy(in->a, c.p, c.n * sizeof *c.p);
	arr_free(&c);
	return id;
}

static struct prog_site site(struct in *in)
{
	struct prog_site s = { .text = string(in) };
	if (have(in, "in"))
		s.scope = string(in);
	return s;
}

static void table(struct in *in)
{
	static const char *const row[] = {"site", "arg", "res", "buf", "data", "table", "group", "code", "kern", "coll", "custom"};
	unsigned r = pick(in, "row", row, NELEM(row));
	switch (r) {
	case 0: index_is(in, "site", in->site.n); arr_push(&in->site, site(in)); break;
	case 1: index_is(in, "arg", in->arg.n); arr_push(&in->arg, arg(in)); break;
	case 2: index_is(in, "res", in->res.n); arr_push(&in->res, arg(in)); break;
	case 3: index_is(in, "buf", in->buf.n); arr_push(&in->buf, buf(in)); break;
	case 4: data(in); break;
	case 5: index_is(in, "table", in->table.n); arr_push(&in->table, (struct prog_table){list_of(in, in->prog->ndev)}); break;
	case 6: index_is(in, "group", in->group.n); arr_push(&in->group, group(in)); break;
	case 7: {
		struct prog_code c = {0};
		index_is(in, "code", in->code.n);
		c.symbol = string(in);
		want(in, "key");
		c.key = word64(in);
		arr_push(&in->code, c);
		break;
	}
	case 8: index_is(in, "kern", in->kern.n); arr_push(&in->kern, kern(in)); break;
	case 9: index_is(in, "coll", in->coll.n); arr_push(&in->coll, coll(in)); break;
	case 10: index_is(in, "custom", in->custom.n); arr_push(&in->custom, custom(in)); break;
	}
}

/* The growing array becomes the program's table. */
#define MOVE(field) do { \
	p->n##field = (uint32_t)in.field.n; \
	p->field = arena_copy(&p->arena, in.field.p, in.field.n * sizeof *in.field.p); \
	arr_free(&in.field); } while (0)

struct err *prog_parse(const char *text, size_t n, struct prog **out)
{
	struct prog *p = prog_new();
	struct in in = {.p = text, .end = text + n, .line = 1, .prog = p, .a = &p->arena};
	*out = NULL;
	want(&in, "prog");
	p->name = string(&in);
	want(&in, "devices");
	p->ndev = (int)ranged(&in, 1, 1 << 20);
	want(&in, "registers");
	p->nreg = (uint32_t)ranged(&in, 1, 65536);
	want(&in, "zone");
	p->zone = number(&in);
	if (have(&in, "far"))
		p->far = number(&in);
	want(&in, "flops");
	p->flops = number(&in);
	want(&in, "fingerprint");
	p->fingerprint = word64(&in);
	want(&in, "comm");
	p->comm_hash = word64(&in);
	while (!in.e && !have(&in, "run"))
		table(&in);
	if (!in.e)
		block(&in);
	if (!in.e && peek(&in))
		FAIL(&in, "text after the program");
	MOVE(opnd);
	MOVE(sub);
	MOVE(block);
	MOVE(site);
	MOVE(arg);
	MOVE(res);
	MOVE(buf);
	MOVE(table);
	MOVE(group);
	MOVE(code);
	MOVE(kern);
	MOVE(coll);
	MOVE(custom);
	struct err *e = in.e ? in.e : valid_prog(p);
	if (e) {
		prog_free(p);
		return e;
	}
	*out = p;
	return NULL;
}
