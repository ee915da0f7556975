/* The binary form.  One description of the format serves both directions: each visit_* function names the
 * fields in order, and struct io writes or reads them.  Numbers are LEB128 (zigzag), so a program is mostly
 * its constants and code objects.
 *
 *     "RONDOPRG"  u32 version  u32 0  u64 length of the rest  u64 hash of the rest  rest
 */
#include "impl.h"

#include <stdlib.h>

enum { VERSION = 10, HEAD = 32 };
static const char magic[8] = "RONDOPRG";

struct io {
	struct str *w;            /* writing, if not NULL */
	const uint8_t *p, *end;   /* reading */
	struct arena *a;
	bool bad;
};

static int64_t num(struct io *io, int64_t v)
{
	if (io->w) {
		uint64_t z = ((uint64_t)v << 1) ^ (uint64_t)(v >> 63);
		uint8_t b[10];
		size_t n = 0;
		for (; z >= 128; z >>= 7)
			b[n++] = (uint8_t)(z | 128);
		b[n++] = (uint8_t)z;
		str_addn(io->w, (char *)b, n);
		return v;
	}
	uint64_t z = 0;
	for (int shift = 0;; shift += 7) {
		if (io->p == io->end || shift > 63) {
			io->bad = true;
			io->p = io->end;
			return 0;
		}
		uint8_t b = *io->p++;
		z |= (uint64_t)(b & 127) << shift;
		if (b < 128)
			break;
	}
	return (int64_t)(z >> 1) ^ -(int64_t)(z & 1);
}

/* A field of any integer type; a value that does not fit is bad. */
#define N(field) do { \
	int64_t v_ = num(io, (int64_t)(field)); \
	if (!io->w) { (field) = (__typeof__(field))v_; io->bad |= (int64_t)(field) != v_; } } while (0)

/* Number of entries: what follows has at least a byte each, so a wild count is caught here. */
static int64_t count(struct io *io, int64_t n)
{
	n = num(io, n);
	if (!io->w && (n < 0 || n > io->end - io->p)) {
		io->bad = true;
		return 0;
	}
	return n;
}

/* Table of n entries: n is written or read, the array made when reading, then each entry visited. */
#define TABLE(n, p, each) do { \
	int64_t n_ = count(io, (int64_t)(n)); \
	if (!io->w) { \
		(n) = (__typeof__(n))n_; io->bad |= (int64_t)(n) != n_; \
		(p) = arena_alloc(io->a, sizeof *(p) * (size_t)n_); } \
	for (int64_t i_ = 0; i_ < n_ && !io->bad; i_++) each(io, &(p)[i_]); } while (0)

static void raw(struct io *io, void *p, size_t n)
{
	if (io->w) {
		str_addn(io->w, p, n);
	} else if ((size_t)(io->end - io->p) < n) {
		io->bad = true;
	} else {
		memcpy(p, io->p, n);
		io->p += n;
	}
}

static void *blob(struct io *io, void *p, size_t *n, size_t align)
{
	int64_t k = count(io, (int64_t)*n);
	if (io->w) {
		str_addn(io->w, p, *n);
		return p;
	}
	*n = (size_t)k;
	char *q = arena_alloc(io->a, (size_t)k + align);
	q += (align - ((uintptr_t)q & (align - 1))) & (align - 1);
	raw(io, q, (size_t)k);
	return k ? q : NULL;
}

/* NULL is told from "". */
static void text(struct io *io, char **s)
{
	bool there = *s != NULL;
	N(there);
	if (!there)
		return;
	size_t n = io->w ? strlen(*s) : 0;
	char *p = blob(io, *s, &n, 1);
	if (!io->w)
		*s = arena_str(io->a, p, n);
}

static void visit_i64(struct io *io, int64_t *v) { N(*v); }
static void visit_u32(struct io *io, uint32_t *v) { N(*v); }
static void visit_u16(struct io *io, uint16_t *v) { N(*v); }
static void visit_u8(struct io *io, uint8_t *v) { N(*v); }

static void visit_view(struct io *io, struct prog_view *v)
{
	N(v->dtype);
	N(v->off);
	uint8_t rank = v->rank;
	TABLE(v->rank, v->dim, visit_i64);
	rank = v->rank;
	TABLE(rank, v->stride, visit_i64);
	io->bad |= rank != v->rank;
}

static void visit_ins(struct io *io, struct prog_ins *s)
{
	N(s->fn);
	N(s->from);
	N(s->to);
	for (int k = 0; k < 3; k++)
		N(s->src[k]);
	if (s->fn >= ELEM_COUNT)
		raw(io, s->imm, 16);
}

static void visit_expr(struct io *io, struct prog_expr **x)
{
	bool there = *x != NULL;
	N(there);
	if (!there || io->bad)
		return;
	if (!io->w)
		*x = ARENA_NEW(io->a, struct prog_expr, 1);
	TABLE((*x)->nin, (*x)->in_type, visit_u8);
	TABLE((*x)->n, (*x)->ins, visit_ins);
	TABLE((*x)->nout, (*x)->out, visit_u16);
}

/* nin + nout views. */
static void visit_views(struct io *io, uint16_t *nin, uint16_t *nout, struct prog_view **v)
{
	N(*nin);
	N(*nout);
	uint32_t n = (uint32_t)*nin + *nout;
	TABLE(n, *v, visit_view);
	io->bad |= n != (uint32_t)*nin + *nout;
}

static void visit_kern(struct io *io, struct prog_kern *k)
{
	N(k->id);
	visit_views(io, &k->nin, &k->nout, &k->v);
	TABLE(k->nattr, k->attr, visit_i64);
	visit_expr(io, &k->expr);
	raw(io, k->imm, 16);
	N(k->code);
	N(k->tiles);
	N(k->block);
	N(k->times);
	N(k->open);
	N(k->flops);
	N(k->bytes);
}

static void visit_buf(struct io *io, struct prog_buf *b)
{
	N(b->kind);
	N(b->bits);
	N(b->index);
	N(b->size);
	N(b->off);
	N(b->alias);
}

static void visit_opnd(struct io *io, struct prog_opnd *o)
{
	N(o->buf);
	N(o->off);
	for (int k = 0; k < 2; k++) {
		N(o->reg[k]);
		N(o->mul[k]);
	}
}

static void visit_cmd(struct io *io, struct prog_cmd *c)
{
	N(c->op);
	N(c->lane);
	N(c->dtype);
	for (int k = 0; k < 3; k++)
		N(c->reg[k]);
	N(c->site);
	N(c->id);
	N(c->imm);
	N(c->nopnd);
	N(c->opnd);
	N(c->nblock);
	N(c->block);
}

static void visit_block(struct io *io, struct prog_block *b) { TABLE(b->n, b->cmd, visit_cmd); }

static void visit_coll(struct io *io, struct prog_coll *c)
{
	N(c->kind);
	N(c->algo);
	N(c->dtype);
	N(c->redop);
	N(c->nin);
	N(c->hops);
	N(c->group);
	N(c->pairs);
	visit_expr(io, &c->expr);
	N(c->outer);
	N(c->inner);
	N(c->outer2);
	N(c->inner2);
	TABLE(c->nbox, c->box, visit_i64);
	N(c->slices);
	N(c->row);
	io->bad |= c->nin > UINT16_MAX / 2;
}

static void visit_custom(struct io *io, struct prog_custom *c)
{
	text(io, &c->target);
	N(c->api);
	N(c->effect);
	c->dict = blob(io, c->dict, &c->ndict, 16);
	visit_views(io, &c->nin, &c->nout, &c->v);
	io->bad |= !c->target;
}

static void visit_site(struct io *io, struct prog_site *s)
{
	text(io, &s->text);
	text(io, &s->scope);
	io->bad |= !s->text;
}

static void visit_code(struct io *io, struct prog_code *c)
{
	text(io, &c->symbol);
	c->obj = blob(io, c->obj, &c->nobj, 64);
	N(c->key);
	io->bad |= !c->symbol;
}

static void visit_arg(struct io *io, struct prog_arg *a)
{
	bool global = a->global_dim != NULL;
	N(a->dtype);
	TABLE(a->rank, a->dim, visit_i64);
	N(global);
	uint8_t rank = a->rank;
	if (global) {
		TABLE(rank, a->global_dim, visit_i64);
		io->bad |= rank != a->rank;
	}
	N(a->bytes);
	N(a->alias);
	a->sharding = blob(io, a->sharding, &a->nsharding, 16);
	text(io, &a->memory_kind);
	text(io, &a->layout);
}

static void visit_prog(struct io *io, struct prog *p)
{
	text(io, &p->name);
	io->bad |= !p->name;
	N(p->ndev);
	N(p->nreg);
	N(p->zone);
	N(p->far);
	N(p->flops);
	N(p->fingerprint);
	N(p->comm_hash);
	TABLE(p->nsite, p->site, visit_site);
	TABLE(p->narg, p->arg, visit_arg);
	TABLE(p->nres, p->res, visit_arg);
	TABLE(p->nbuf, p->buf, visit_buf);
	size_t n = (size_t)p->ndata;
	p->data = blob(io, p->data, &n, 64);
	p->ndata = (int64_t)n;
	TABLE(p->ncode, p->code, visit_code);
	TABLE(p->nkern, p->kern, visit_kern);
	TABLE(p->nopnd, p->opnd, visit_opnd);
	TABLE(p->nsub, p->sub, visit_u32);
	TABLE(p->nblock, p->block, visit_block);
	TABLE(p->ncoll, p->coll, visit_coll);
	TABLE(p->ncustom, p->custom, visit_custom);
	/* Tables have an entry per device, groups are made from their rows. */
	int64_t ntable = count(io, p->ntable);
	if (!io->w) {
		io->bad |= p->ndev < 1 || p->ndev > 1 << 20;
		p->ntable = (uint32_t)ntable;
		p->table = ARENA_NEW(io->a, struct prog_table, ntable);
	}
	for (int64_t i = 0; i < ntable && !io->bad; i++) {
		int ndev = p->ndev;
		TABLE(ndev, p->table[i].v, visit_i64);
		io->bad |= ndev != p->ndev;
	}
	int64_t ngroup = count(io, p->ngroup);
	if (!io->w) {
		/* Each group costs memory per device: no more of them than any program has. */
		io->bad |= ngroup > (1 << 26) / MAX(p->ndev, 1);
		p->ngroup = (uint32_t)ngroup;
		p->group = ARENA_NEW(io->a, struct prog_group, ngroup);
	}
	for (int64_t i = 0; i < ngroup && !io->bad; i++) {
		struct prog_group *g = &p->group[i];
		N(g->nrow);
		N(g->ncol);
		int64_t nid = (int64_t)g->nrow * g->ncol;
		TABLE(nid, g->id, visit_i64);
		io->bad |= g->nrow < 0 || g->ncol < 0 || nid != (int64_t)g->nrow * g->ncol;
		if (!io->w && !io->bad)
			prog_group_make(io->a, g, p->ndev, g->nrow, g->ncol, g->id);
	}
}

void prog_save(struct str *s, const struct prog *p)
{
	struct str body = {0};
	struct io io = {.w = &body};
	/* The visitors write through their pointers only when reading. */
	visit_prog(&io, (struct prog *)p);
	uint8_t head[HEAD] = {0};
	uint64_t version = VERSION, n = body.n, hash = hash_bytes(body.p, body.n, VERSION);
	memcpy(head, magic, 8);
	memcpy(head + 8, &version, 8);
	memcpy(head + 16, &n, 8);
	memcpy(head + 24, &hash, 8);
	str_addn(s, (char *)head, HEAD);
	str_addn(s, body.p, body.n);
	str_free(&body);
}

struct err *prog_load(const void *data, size_t n, struct prog **out)
{
	const uint8_t *b = data;
	uint64_t version, len, hash;
	*out = NULL;
	if (n < HEAD || memcmp(b, magic, 8) != 0)
		return ERR(DATA_LOSS, "%zu bytes are no compiled program", n);
	memcpy(&version, b + 8, 8);
	memcpy(&len, b + 16, 8);
	memcpy(&hash, b + 24, 8);
	if (version != VERSION)
		return ERR(DATA_LOSS, "a compiled program of version %llu, this is version %d", (unsigned long long)version, VERSION);
	if (len != n - HEAD || hash_bytes(b + HEAD, len, VERSION) != hash)
		return ERR(DATA_LOSS, "a compiled program was cut or changed: %zu bytes of %zu, checksum differs", n - HEAD, (size_t)len);
	struct prog *p = prog_new();
	struct io io = {.p = b + HEAD, .end = b + n, .a = &p->arena};
	visit_prog(&io, p);
	struct err *e = io.bad || io.p != io.end ? ERR(DATA_LOSS, "a compiled program is malformed at byte %zu", (size_t)(io.p - b)) : NULL;
	if (!e && (e = valid_prog(p)) != NULL) {
		e->code = ERR_DATA_LOSS;
		e = err_wrap(e, "a compiled program is malformed");
	}
	if (e) {
		prog_free(p);
		return e;
	}
	*out = p;
	return NULL;
}
