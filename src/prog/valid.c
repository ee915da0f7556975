/* Every index of a program, once: what stands between bytes from outside and a walk without checks. */
#include "impl.h"

#include <stdlib.h>

static bool is_dtype(unsigned dt)
{
	return dt < DT_COUNT && dtype_info[dt].name;
}

/* The products of extents that everything computes with stay far from overflow. */
static bool is_shape(int rank, const int64_t *dim, int bytes)
{
	int64_t n = bytes > 0 ? bytes : 1;
	for (int d = 0; d < rank; d++) {
		if (dim[d] < 0)
			return false;
		if (__builtin_mul_overflow(n, MAX(dim[d], 1), &n) || n > INT64_MAX / 4)
			return false;
	}
	return true;
}

static struct err *valid_view(const struct prog_view *v, const char *what, uint32_t id)
{
	if (!is_dtype(v->dtype))
		return ERR(INVALID, "%s %u has a view of unknown type %d", what, id, v->dtype);
	if (v->rank > MAX_RANK)
		return ERR(INVALID, "%s %u has a view of rank %d", what, id, v->rank);
	if (!is_shape(v->rank, v->dim, dtype_info[v->dtype].bytes))
		return ERR(INVALID, "%s %u has a view with an impossible extent", what, id);
	__int128 lo = v->off, hi = v->off;
	for (int d = 0; d < v->rank; d++) {
		__int128 step = (__int128)v->stride[d] * MAX(v->dim[d] - 1, 0);
		*(step < 0 ? &lo : &hi) += step;
	}
	if (lo < INT64_MIN / 64 || hi > INT64_MAX / 64)
		return ERR(INVALID, "%s %u has a view whose addresses overflow", what, id);
	return NULL;
}

static enum dtype reg_type(const struct prog_expr *x, int r) { return (enum dtype)(r < x->nin ? x->in_type[r] : x->ins[r - x->nin].to); }

/* A table is as long as each look at it says, and is nothing else. */
static struct err *valid_look(const struct prog_expr *x, int i, const char *what, uint32_t id)
{
	const struct prog_ins *s = &x->ins[i];
	int32_t n;
	memcpy(&n, s->imm, sizeof n);
	bool ok = s->src[0] < x->nin && reg_type(x, s->src[0]) == s->to && s->from == s->to && reg_type(x, s->src[1]) == DT_i32 && n > 0;
	for (int k = 0; k < x->n && ok; k++)
		for (int j = 0; j < prog_ins_nin(x->ins[k].fn); j++)
			ok &= x->ins[k].src[j] != s->src[0] || (j == 0 && x->ins[k].fn == EXPR_LOOK && !memcmp(x->ins[k].imm, s->imm, sizeof n));
	for (int k = 0; k < x->nout; k++)
		ok &= x->out[k] != s->src[0];
	return ok ? NULL : ERR(INVALID, "%s %u: instruction %d of its expression looks at what is no table of %d elements", what, id, i, (int)n);
}

/* tables: there may be such. */
static struct err *valid_expr(const struct prog_expr *x, bool tables, const char *what, uint32_t id)
{
	if (!x)
		return NULL;
	if ((unsigned)x->nin + x->n > UINT16_MAX)
		return ERR(INVALID, "%s %u has an expression with too many registers", what, id);
	for (int i = 0; i < x->nin; i++)
		if (!is_dtype(x->in_type[i]))
			return ERR(INVALID, "%s %u has an expression input of unknown type", what, id);
	for (int i = 0; i < x->n; i++) {
		const struct prog_ins *s = &x->ins[i];
		int nin = prog_ins_nin(s->fn);
		if (nin < 0 || !is_dtype(s->from) || !is_dtype(s->to) || (s->fn == EXPR_LOOK && !tables))
			return ERR(INVALID, "%s %u: instruction %d of its expression is unknown", what, id, i);
		for (int k = 0; k < nin; k++)
			if (s->src[k] >= x->nin + i)
				return ERR(INVALID, "%s %u: instruction %d of its expression reads register %d before it is set", what, id, i, s->src[k]);
	}
	for (int i = 0; i < x->n; i++)
		TRY(x->ins[i].fn == EXPR_LOOK ? valid_look(x, i, what, id) : NULL);
	for (int i = 0; i < x->nout; i++)
		if (x->out[i] >= x->nin + x->n)
			return ERR(INVALID, "%s %u: result %d of its expression is register %d of %d", what, id, i, x->out[i], x->nin + x->n);
	return NULL;
}

static struct err *valid_arg(const struct prog *p, const struct prog_arg *a, const char *what, uint32_t i, uint32_t nalias)
{
	if (!is_dtype(a->dtype) || a->rank > MAX_RANK)
		return ERR(INVALID, "%s %u has an unknown type", what, i);
	if (!is_shape(a->rank, a->dim, dtype_info[a->dtype].bytes) || (a->global_dim && !is_shape(a->rank, a->global_dim, dtype_info[a->dtype].bytes)))
		return ERR(INVALID, "%s %u has an impossible extent", what, i);
	const struct layout *layout;
	if (a->layout && !layout_read(a->layout, a->rank, &layout))
		return ERR(INVALID, "%s %u has the layout '%s', which arrays of rank %d have not", what, i, a->layout, a->rank);
	if (a->bytes < 0 || a->alias < -2 || (a->alias >= 0 && (uint32_t)a->alias >= nalias))
		return ERR(INVALID, "%s %u has alias %d, %ld bytes", what, i, a->alias, (long)a->bytes);
	return NULL;
}

static struct err *valid_buf(const struct prog *p, uint32_t i)
{
	const struct prog_buf *b = &p->buf[i];
	if (b->kind > BUF_LENT || b->size < 0 || b->off < 0)
		return ERR(INVALID, "buffer %u has an impossible kind, size or offset", i);
	if ((b->kind == BUF_ARG && b->index >= p->narg) || (b->kind == BUF_OUT && b->index >= p->nres))
		return ERR(INVALID, "buffer %u stands for %s %u, which is not there", i, b->kind == BUF_ARG ? "argument" : "result", b->index);
	if (b->kind == BUF_ARG && b->size > p->arg[b->index].bytes)
		return ERR(INVALID, "buffer %u of %ld bytes is larger than argument %u of %ld", i, (long)b->size, b->index, (long)p->arg[b->index].bytes);
	if (b->kind == BUF_OUT && b->size > p->res[b->index].bytes)
		return ERR(INVALID, "buffer %u of %ld bytes is larger than result %u of %ld", i, (long)b->size, b->index, (long)p->res[b->index].bytes);
	bool lodges = b->kind == BUF_TEMP && b->alias >= 0;
	if (lodges && ((uint32_t)b->alias >= p->nbuf || p->buf[b->alias].kind != BUF_OUT || p->buf[b->alias].alias >= 0))
		return ERR(INVALID, "buffer %u lies in buffer %d, which is no result with storage of its own", i, b->alias);
	int64_t room = lodges ? p->buf[b->alias].size : b->kind == BUF_TEMP ? p->zone : b->kind == BUF_LENT ? p->zone + p->far : p->ndata;
	if (b->kind == BUF_LENT && (b->index >= p->ncoll || !p->coll[b->index].hops || b->size < loan_bytes(&p->coll[b->index])))
		return ERR(INVALID, "buffer %u of %ld bytes is for what collective %u lends, which is no loan, or more", i, (long)b->size, b->index);
	if (b->kind >= BUF_TEMP && (b->off > room || b->size > room - b->off))
		return ERR(INVALID, "buffer %u, %ld bytes at %ld, lies outside the %ld bytes of %s", i, (long)b->size, (long)b->off, (long)room,
		           lodges ? "its result" : b->kind == BUF_CONST ? "the constants" : "the zone");
	if (b->kind >= BUF_TEMP && b->off % 64)
		return ERR(INVALID, "buffer %u at %ld is not aligned to 64", i, (long)b->off);
	if (b->kind == BUF_OUT && b->alias >= 0) {
		if ((uint32_t)b->alias >= p->nbuf || p->buf[b->alias].kind != BUF_ARG)
			return ERR(INVALID, "buffer %u takes the storage of buffer %d, which is no argument", i, b->alias);
		if (p->buf[b->alias].size < b->size)
			return ERR(INVALID, "buffer %u is larger than the argument whose storage it takes", i);
	} else if (b->alias < -1) {
		return ERR(INVALID, "buffer %u has alias %d", i, b->alias);
	}
	return NULL;
}

static struct err *valid_group(const struct prog *p, uint32_t i)
{
	const struct prog_group *g = &p->group[i];
	struct err *e = NULL;
	uint8_t *seen = mem_alloc((size_t)p->ndev);
	for (int64_t k = 0; k < (int64_t)g->nrow * g->ncol && !e; k++) {
		if (g->id[k] < -1 || g->id[k] >= p->ndev)
			e = ERR(INVALID, "group %u names position %ld of %d", i, (long)g->id[k], p->ndev);
		else if (g->id[k] >= 0 && seen[g->id[k]]++)
			e = ERR(INVALID, "group %u names position %ld twice", i, (long)g->id[k]);
	}
	free(seen);
	return e;
}

static struct err *valid_boxes(const struct prog *p, const struct prog_coll *c, uint32_t i)
{
	const struct prog_group *g = &p->group[c->group];
	const int64_t *v = c->box;
	int64_t rank = v[0], n[2] = { dtype_info[c->dtype].bytes, dtype_info[c->dtype].bytes };
	bool bad = c->kind != COLL_all_to_all || c->outer != 1 || c->outer2 != 1 || rank < 0 || rank > PROG_BOX_RANK || c->nbox < 1 + 2 * rank ||
	           (c->nbox - 1 - 2 * rank) % (2 + 3 * rank);
	for (int64_t d = 0; d < 2 * rank && !bad; d++)
		bad = v[1 + d] < 0 || __builtin_mul_overflow(n[d / rank], v[1 + d], &n[d / rank]);
	bad = bad || n[0] != c->inner || n[1] != c->inner2;
	const int64_t *end = v + c->nbox, *x = v + 1, *y = bad ? end : x + rank, *first = bad ? end : y + rank;
	for (const int64_t *r = first; r < end && !bad; r += 2 + 3 * rank) {
		bad = r[0] < 0 || r[0] >= p->ndev || r[1] < 0 || r[1] >= p->ndev || g->row[r[0]] < 0 || g->row[r[0]] != g->row[r[1]];
		for (int64_t d = 0; d < rank && !bad; d++) {
			int64_t from = r[2 + d], to = r[2 + rank + d], size = r[2 + 2 * rank + d];
			bad = from < 0 || to < 0 || size < 0 || from > x[d] || to > y[d] || size > x[d] - from || size > y[d] - to;
		}
	}
	return bad ? ERR(INVALID, "collective %u moves boxes that are not in its arrays, or not between members of a group", i) : NULL;
}

static struct err *valid_links(const struct prog *p, const struct prog_coll *c, uint32_t i)
{
	if (c->pairs >= p->ntable || p->ntable - c->pairs < 2)
		return ERR(INVALID, "collective %u has pairs in table %u of %u", i, c->pairs, p->ntable);
	const int64_t *from = p->table[c->pairs].v, *to = p->table[c->pairs + 1].v;
	for (int d = 0; d < p->ndev; d++)
		if (from[d] < -1 || from[d] >= p->ndev || to[d] < -1 || to[d] >= p->ndev)
			return ERR(INVALID, "collective %u pairs position %d with one outside 0..%d", i, d, p->ndev - 1);
	if (c->hops && (c->nin != 1 || c->hops >= p->ndev))
		return ERR(INVALID, "collective %u lends %u operands to %u devices of %d", i, c->nin, c->hops, p->ndev);
	if (c->kind == COLL_permute)
		return NULL;
	const struct prog_group *g = &p->group[c->group];
	if (c->kind != COLL_all_gather || c->hops != g->ncol - 1)
		return ERR(INVALID, "collective %u of %d members lends to %u of them", i, g->ncol, c->hops);
	for (int d = 0; d < p->ndev; d++)
		for (int way = 0; way < 2; way++) {
			int64_t want = g->row[d] < 0 ? -1 : g->id[(int64_t)g->row[d] * g->ncol + (g->rank[d] + (way ? 1 : g->ncol - 1)) % g->ncol];
			if (want < 0 || (way ? to : from)[d] != want)
				return ERR(INVALID, "collective %u pairs position %d with %ld, which is not its neighbour in the group", i, d, (long)(way ? to : from)[d]);
		}
	return NULL;
}

static struct err *valid_coll(const struct prog *p, uint32_t i)
{
	const struct prog_coll *c = &p->coll[i];
	if (c->kind >= COLL_COUNT || c->algo >= COLL_ALGOS || !is_dtype(c->dtype) || !dtype_info[c->dtype].bytes || c->redop >= RED_softmax)
		return ERR(INVALID, "collective %u has an unknown kind, algorithm, type or reduction", i);
	if (c->kind != COLL_permute && c->group >= p->ngroup)
		return ERR(INVALID, "collective %u has group %u of %u", i, c->group, p->ngroup);
	if (prog_has_links(c))
		TRY(valid_links(p, c, i));
	int64_t one, two;
	if (c->outer < 0 || c->inner < 0 || c->outer2 < 0 || c->inner2 < 0 || __builtin_mul_overflow(c->outer, c->inner, &one) ||
	    __builtin_mul_overflow(c->outer2, c->inner2, &two) || one > INT64_MAX / 65536 || two > INT64_MAX / 65536)
		return ERR(INVALID, "collective %u moves an impossible number of bytes", i);
	if (c->nbox)
		TRY(valid_boxes(p, c, i));
	bool sliced = c->slices || c->row;
	if (sliced && (c->kind != COLL_all_to_all || c->nbox || c->nin != 1 || c->outer != 1 || c->outer2 != 1 || c->slices < 1 || c->row < 1 || c->inner % c->row ||
	               c->inner2 % c->row || c->slices > INT64_MAX / 65536 || c->slices % MAX(p->group[c->group].ncol, 1)))
		return ERR(INVALID, "collective %u moves slices that are not as many of each member, or not of rows of its arrays", i);
	return valid_expr(c->expr, false, "collective", i);
}

/* Is operand k of c all of a LENT buffer of its loan? */
static bool lent_whole(const struct prog *p, const struct prog_cmd *c, uint32_t k)
{
	const struct prog_opnd *o = &p->opnd[c->opnd + k];
	return p->buf[o->buf].kind == BUF_LENT && p->buf[o->buf].index == c->id && !o->off && !o->reg[0] && !o->reg[1];
}

static struct err *valid_loan(const struct prog *p, const struct prog_cmd *c, uint32_t b, uint32_t i)
{
	const struct prog_coll *l = &p->coll[c->id];
	const struct prog_opnd *o = &p->opnd[c->opnd];
	if (!l->hops)
		return ERR(INVALID, "command %u of block %u is of collective %u, which is no loan", i, b, c->id);
	if (c->imm < 0 || c->imm > 1)
		return ERR(INVALID, "command %u of block %u has the number %ld, not 0 or 1", i, b, (long)c->imm);
	bool own = c->op == CMD_LEND || c->op == CMD_NEXT, lent = own && p->buf[o->buf].kind == BUF_LENT && p->buf[o->buf].index == c->id;
	if (lent && (c->op == CMD_LEND || !lent_whole(p, c, 0)))
		return ERR(INVALID, "command %u of block %u takes b%u, which the loan itself shows, or a part of it", i, b, o->buf);
	for (uint32_t k = 1; c->op == CMD_NEXT && k < c->nopnd; k++) {
		if (!lent_whole(p, c, k))
			return ERR(INVALID, "command %u of block %u shows in b%u what is lent, which is no buffer for that", i, b, o[k].buf);
		for (uint32_t j = 1; j < k; j++)
			if (o[j].buf == o[k].buf)
				return ERR(INVALID, "command %u of block %u shows two things in b%u", i, b, o[k].buf);
	}
	if (c->op == CMD_NEXT && l->kind != COLL_permute && (lent || !c->imm))
		return ERR(INVALID, "command %u of block %u goes on with what all have lent", i, b);
	if (c->op == CMD_NEXT && lent && (o[0].buf == o[1].buf || !c->imm) && p->buf[o->buf].size < 2 * loan_half(l))
		return ERR(INVALID, "command %u of block %u goes on in b%u, which has no two halves", i, b, o->buf);
	return NULL;
}

static struct err *valid_then(const struct prog *p, uint32_t b, uint32_t i)
{
	const struct prog_cmd *c = &p->block[b].cmd[i];
	if (c->imm < 0 || c->imm > THEN_all)
		return ERR(INVALID, "command %u of block %u follows in the unknown way %ld", i, b, (long)c->imm);
	const char *why = i ? prog_follows_not(p, c - 1, c, (enum prog_then)c->imm) : "nothing is before it";
	return why ? ERR(INVALID, "command %u of block %u cannot follow part by part: %s", i, b, why) : NULL;
}

static struct err *valid_cmd(const struct prog *p, uint32_t b, uint32_t i)
{
	const struct prog_cmd *c = &p->block[b].cmd[i];
	for (int k = 0; k < 3; k++)
		if (c->reg[k] >= p->nreg)
			return ERR(INVALID, "command %u of block %u has register %d of %u", i, b, c->reg[k], p->nreg);
	if (c->site && c->site >= p->nsite)
		return ERR(INVALID, "command %u of block %u has site %u of %u", i, b, c->site, p->nsite);
	if (c->opnd > p->nopnd || c->nopnd > p->nopnd - c->opnd)
		return ERR(INVALID, "command %u of block %u has operands outside the table", i, b);
	if (c->block > p->nsub || c->nblock > p->nsub - c->block)
		return ERR(INVALID, "command %u of block %u has blocks outside the table", i, b);
	uint32_t nopnd = 0, least = 0, most = 0, ids = UINT32_MAX;
	switch (c->op) {
	case CMD_KERN: ids = p->nkern; nopnd = c->id < ids ? kern_nopnd(&p->kern[c->id]) : 0; break;
	case CMD_COLL: ids = p->ncoll; nopnd = c->id < ids ? coll_nopnd(&p->coll[c->id]) : 0; break;
	case CMD_CUSTOM: ids = p->ncustom; nopnd = c->id < ids ? custom_nopnd(&p->custom[c->id]) : 0; break;
	case CMD_LD: case CMD_ST: nopnd = 1; break;
	case CMD_LOOP: least = most = 1; break;
	case CMD_WHILE: least = most = 2; break;
	case CMD_CASE: least = 1; most = UINT32_MAX; break;
	case CMD_TABLE:
		if (c->imm < 0 || c->imm >= p->ntable)
			return ERR(INVALID, "command %u of block %u reads table %ld of %u", i, b, (long)c->imm, p->ntable);
		break;
	case CMD_MARK: case CMD_AWAIT:
		if (c->imm < 0 || c->imm >= PROG_MARKS)
			return ERR(INVALID, "command %u of block %u is about mark %ld of %d", i, b, (long)c->imm, PROG_MARKS);
		break;
	case CMD_LEND: ids = p->ncoll; nopnd = 1; break;
	case CMD_NEXT: ids = p->ncoll; nopnd = c->id < ids ? 1 + loan_shows(p, &p->coll[c->id]) : 0; break;
	case CMD_BACK: case CMD_WAIT: ids = p->ncoll; break;
	case CMD_SET: case CMD_ADD: case CMD_MUL: case CMD_MIN: case CMD_MAX: break;
	default: return ERR(INVALID, "command %u of block %u has the unknown operation %d", i, b, c->op);
	}
	if (ids != UINT32_MAX && c->id >= ids)
		return ERR(INVALID, "command %u of block %u names entry %u of a table of %u", i, b, c->id, ids);
	if (c->nopnd != nopnd)
		return ERR(INVALID, "command %u of block %u has %u operands instead of %u", i, b, c->nopnd, nopnd);
	if (is_loan(c->op))
		TRY(valid_loan(p, c, b, i));
	else if (c->op == CMD_KERN && c->imm)
		TRY(valid_then(p, b, i));
	else if (c->op == CMD_COLL && p->coll[c->id].hops)
		return ERR(INVALID, "command %u of block %u runs collective %u, which is a loan", i, b, c->id);
	if (c->nblock < least || c->nblock > most)
		return ERR(INVALID, "command %u of block %u has %u blocks", i, b, c->nblock);
	if ((c->op == CMD_LD || c->op == CMD_ST) && (!is_dtype(c->dtype) || dtype_info[c->dtype].cls == DT_NONE || dtype_info[c->dtype].cls > DT_UINT))
		return ERR(INVALID, "command %u of block %u moves a register through a type that is no integer", i, b);
	bool sets = c->op >= CMD_SET && c->op <= CMD_LOOP && c->op != CMD_ST;
	if (sets && !c->reg[0])
		return ERR(INVALID, "command %u of block %u sets register 0", i, b);
	return NULL;
}

/* Blocks form a tree: each is the body of one command at most, and block 0 of none. */
static struct err *valid_tree(const struct prog *p)
{
	uint8_t *seen = mem_alloc(p->nblock);
	uint32_t *stack = mem_alloc(sizeof *stack * p->nblock);
	struct err *e = NULL;
	uint32_t n = 0;
	seen[0] = 1;
	stack[n++] = 0;
	while (n && !e) {
		const struct prog_block *k = &p->block[stack[--n]];
		for (uint32_t i = 0; i < k->n && !e; i++)
			for (uint32_t j = 0; j < k->cmd[i].nblock && !e; j++) {
				uint32_t b = p->sub[k->cmd[i].block + j];
				if (b >= p->nblock)
					e = ERR(INVALID, "a command has block %u of %u", b, p->nblock);
				else if (seen[b])
					e = ERR(INVALID, "block %u is used twice", b);
				else
					seen[b] = 1, stack[n++] = b;
			}
	}
	free(seen);
	free(stack);
	return e;
}

/* Bounds the recursion over blocks. */
enum { MOST_DEPTH = 256 };

static int depth(const struct prog *p, uint32_t b, int at)
{
	int most = at;
	for (uint32_t i = 0; i < p->block[b].n && at <= MOST_DEPTH; i++)
		for (uint32_t k = 0; k < p->block[b].cmd[i].nblock; k++) {
			int d = depth(p, p->sub[p->block[b].cmd[i].block + k], at + 1);
			most = MAX(most, d);
		}
	return most;
}

struct err *valid_prog(const struct prog *p)
{
	if (p->ndev < 1 || p->ndev > 1 << 20)
		return ERR(INVALID, "a program for %d devices", p->ndev);
	if (p->nreg < 1 || p->nreg > 65536)
		return ERR(INVALID, "a program with %u registers", p->nreg);
	if (p->nblock < 1)
		return ERR(INVALID, "a program without a block");
	if (p->zone < 0 || p->ndata < 0 || p->far < 0 || p->zone > INT64_MAX / 4 || p->far > INT64_MAX / 4)
		return ERR(INVALID, "a program with a negative size");
	for (uint32_t i = 0; i < p->narg; i++)
		TRY(valid_arg(p, &p->arg[i], "argument", i, p->nres));
	for (uint32_t i = 0; i < p->nres; i++)
		TRY(valid_arg(p, &p->res[i], "result", i, p->narg));
	for (uint32_t i = 0; i < p->nkern; i++) {
		const struct prog_kern *k = &p->kern[i];
		if (k->id >= KERN_COUNT)
			return ERR(INVALID, "kernel %u has the unknown kind %d", i, k->id);
		if (k->code < -1 || (k->code >= 0 && (uint32_t)k->code >= p->ncode) || (k->id == KERN_gen && k->code < 0) || k->tiles < 0)
			return ERR(INVALID, "kernel %u has code %d of %u", i, k->code, p->ncode);
		if (k->block < 0 || k->times < 0 || !k->block != !k->times)
			return ERR(INVALID, "kernel %u has tiles of %ld elements, %ld times", i, (long)k->block, (long)k->times);
		for (uint32_t j = 0; j < kern_nopnd(k); j++)
			TRY(valid_view(&k->v[j], "kernel", i));
		TRY(valid_expr(k->expr, k->id == KERN_attention || k->id == KERN_attention_grad || k->id == KERN_attention_grad_add, "kernel", i));
	}
	for (uint32_t i = 0; i < p->ncustom; i++)
		for (uint32_t j = 0; j < custom_nopnd(&p->custom[i]); j++)
			TRY(valid_view(&p->custom[i].v[j], "custom call", i));
	for (uint32_t i = 0; i < p->ngroup; i++)
		TRY(valid_group(p, i));
	for (uint32_t i = 0; i < p->ncoll; i++)
		TRY(valid_coll(p, i));
	for (uint32_t i = 0; i < p->nbuf; i++)
		TRY(valid_buf(p, i));
	for (uint32_t i = 0; i < p->nopnd; i++) {
		const struct prog_opnd *o = &p->opnd[i];
		if (o->buf >= p->nbuf || o->reg[0] >= p->nreg || o->reg[1] >= p->nreg)
			return ERR(INVALID, "operand %u names buffer %u of %u", i, o->buf, p->nbuf);
	}
	for (uint32_t b = 0; b < p->nblock; b++)
		for (uint32_t i = 0; i < p->block[b].n; i++)
			TRY(valid_cmd(p, b, i));
	TRY(valid_tree(p));
	if (depth(p, 0, 0) > MOST_DEPTH)
		return ERR(INVALID, "blocks nest deeper than %d", MOST_DEPTH);
	return NULL;
}
