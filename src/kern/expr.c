/* Expressions over strips, and the elementwise kernel.
 *
 * A plan is an expression with its strip functions looked up and its registers given slots in a scratch
 * small enough for the first-level cache; slots are used again when their value is dead.  The kernel walks
 * the index space in chunks of at most KERN_STRIP elements: an operand that is dense over the chunk is read
 * in place, any other is gathered into a slot first.  An operand that is dense along another dimension (a
 * transposed view) is turned a block of TURN_ROWS rows at a time, so that whole cache lines are used. */
#include <stdlib.h>

#include "impl.h"

struct err *plan_make(struct arena *a, const struct prog_expr *e, struct plan **out)
{
	struct plan *p = ARENA_NEW(a, struct plan, 1);
	int nreg = e->nin + e->n;
	p->nin = e->nin;
	p->nout = e->nout;
	p->ins = ARENA_NEW(a, struct plan_ins, e->n + 1);
	p->out = ARENA_NEW(a, uint16_t, e->nout + 1);
	p->out_type = ARENA_NEW(a, uint8_t, e->nout + 1);
	p->in_type = ARENA_NEW(a, uint8_t, e->nin + 1);
	if (e->nin)
		memcpy(p->in_type, e->in_type, e->nin);
	p->const_slot = ARENA_NEW(a, uint16_t, e->n + 1);
	p->const_imm = arena_alloc(a, 16 * (size_t)(e->n + 1));
	p->const_bytes = ARENA_NEW(a, uint8_t, e->n + 1);
	p->slot_off = ARENA_NEW(a, size_t, nreg + 1);
	int *last = ARENA_NEW(a, int, nreg + 1), *slot = ARENA_NEW(a, int, nreg + 1);
	uint8_t *bytes = ARENA_NEW(a, uint8_t, nreg + 1), *pinned = ARENA_NEW(a, uint8_t, nreg + 1);
	int (*spare)[2] = arena_alloc(a, sizeof *spare * (size_t)(nreg + 1)), nspare = 0;
	for (int i = 0; i < nreg; i++)
		last[i] = -1;
	for (int i = 0; i < e->n; i++) {
		const struct prog_ins *x = &e->ins[i];
		int nin = prog_ins_nin(x->fn);
		if (nin < 0)
			return ERR(INVALID, "expression has no function %d", x->fn);
		for (int j = 0; j < nin; j++) {
			if (x->src[j] >= e->nin + i)
				return ERR(INVALID, "expression reads register %d before it is set", x->src[j]);
			last[x->src[j]] = i;
		}
	}
	for (int i = 0; i < e->nout; i++) {
		if (e->out[i] >= nreg)
			return ERR(INVALID, "expression has no register %d", e->out[i]);
		pinned[e->out[i]] = 1;
	}
	size_t off = 0;
	p->nslot = e->nin;
	for (int i = 0; i < e->nin; i++) {
		slot[i] = i;
		pinned[i] = 1;
	}
	for (int i = 0; i < e->n; i++) {
		const struct prog_ins *x = &e->ins[i];
		int r = e->nin + i, es = dt_bytes(x->to), s = -1;
		if (es <= 0)
			return ERR(INVALID, "expression has a result without a type");
		bool own = pinned[r] || x->fn == EXPR_IMM;
		if (!own)
			for (int j = 0; j < nspare; j++)
				if (spare[j][1] == es) {
					s = spare[j][0];
					spare[j][0] = spare[--nspare][0];
					spare[j][1] = spare[nspare][1];
					break;
				}
		if (s < 0) {
			s = p->nslot++;
			p->slot_off[s] = off;
			off += (size_t)es * KERN_STRIP;
		}
		slot[r] = s;
		bytes[r] = (uint8_t)es;
		if (x->fn == EXPR_IMM) {
			p->const_slot[p->nconst] = (uint16_t)s;
			p->const_bytes[p->nconst] = (uint8_t)es;
			memcpy(p->const_imm[p->nconst++], x->imm, 16);
			pinned[r] = 1;
			continue;
		}
		struct plan_ins *y = &p->ins[p->n++];
		y->out = (uint16_t)s;
		y->from = x->from;
		int nin = prog_ins_nin(x->fn);
		for (int j = 0; j < nin; j++)
			y->src[j] = (uint16_t)slot[x->src[j]];
		for (int j = nin; j < 3; j++)
			y->src[j] = y->src[0];
		if (x->fn == EXPR_ROUND) {
			if (dtype_info[x->from].cls != DT_FLOAT)
				return ERR(UNIMPLEMENTED, "reduce_precision of '%s'", dtype_info[x->from].name);
			y->round_e = x->imm[0];
			y->round_m = x->imm[1];
		} else if (x->fn == EXPR_LOOK) {
			int32_t n;
			memcpy(&n, x->imm, sizeof n);
			if (n < 1 || (es != 4 && es != 8))
				return ERR(UNIMPLEMENTED, "a table of %d elements of %d bytes", (int)n, es);
			y->look = kern_isa_get()->look[es == 8];
			y->most = n - 1;
		} else {
			y->fn = kern_elem((enum elem)x->fn, x->from, x->to);
			if (!y->fn)
				return ERR(UNIMPLEMENTED, "'%s' has no meaning for '%s'", elem_info[x->fn].name,
				           x->from < DT_COUNT && dtype_info[x->from].name ? dtype_info[x->from].name : "?");
		}
		for (int j = 0; j < nin; j++) {
			int q = x->src[j];
			if (last[q] == i && !pinned[q]) {
				pinned[q] = 1;
				spare[nspare][0] = slot[q];
				spare[nspare++][1] = bytes[q];
			}
		}
		if (last[r] < 0 && !pinned[r]) {
			pinned[r] = 1;
			spare[nspare][0] = s;
			spare[nspare++][1] = es;
		}
	}
	for (int i = 0; i < e->nout; i++) {
		int r = e->out[i];
		p->out[i] = (uint16_t)slot[r];
		p->out_type[i] = r < e->nin ? e->in_type[r] : e->ins[r - e->nin].to;
	}
	p->scratch = ((size_t)p->nslot * sizeof(void *) + 63) / 64 * 64;
	for (int s = p->nin; s < p->nslot; s++)
		p->slot_off[s] += p->scratch;
	p->scratch += off;
	*out = p;
	return NULL;
}

void plan_start(const struct plan *p, char *scratch)
{
	char **ptr = (char **)(void *)scratch;
	for (int s = p->nin; s < p->nslot; s++)
		ptr[s] = scratch + p->slot_off[s];
	for (int i = 0; i < p->nconst; i++)
		fill_bytes(p->const_bytes[i], KERN_STRIP, ptr[p->const_slot[i]], p->const_imm[i]);
}

void plan_run(const struct plan *p, int64_t n, const void *const *in, void *const *want, const void **result, char *scratch)
{
	const void **ptr = (const void **)(void *)scratch;
	for (int i = 0; i < p->nin; i++)
		ptr[i] = in[i];
	/* outputs that an instruction makes are made in place */
	if (want)
		for (int i = 0; i < p->nout; i++) {
			int s = p->out[i];
			bool made = want[i] && s >= p->nin;
			for (int j = 0; j < p->nconst && made; j++)
				made = p->const_slot[j] != s;
			for (int j = 0; j < i && made; j++)
				made = p->out[j] != s;
			if (made)
				ptr[s] = want[i];
		}
	for (int i = 0; i < p->n; i++) {
		const struct plan_ins *x = &p->ins[i];
		void *o = (void *)(uintptr_t)ptr[x->out];
		if (x->fn)
			x->fn(n, o, ptr[x->src[0]], ptr[x->src[1]], ptr[x->src[2]]);
		else if (x->look)
			x->look(n, ptr[x->src[1]], x->most, ptr[x->src[0]], o);
		else
			round_precision(x->from, x->round_e, x->round_m, n, o, ptr[x->src[0]]);
	}
	for (int i = 0; i < p->nout; i++) {
		result[i] = ptr[p->out[i]];
		if (want && want[i] && result[i] != want[i])
			memmove(want[i], result[i], (size_t)(n * dt_bytes(p->out_type[i])));
	}
	for (int i = 0; i < p->nout; i++)
		if (p->out[i] >= p->nin)
			ptr[p->out[i]] = scratch + p->slot_off[p->out[i]];
}

kern_strip *plan_single(const struct plan *p)
{
	if (p->n != 1 || p->nconst || p->nout != 1 || p->nin < 1 || p->nin > 3 || p->out[0] != p->ins[0].out || !p->ins[0].fn)
		return NULL;
	for (int i = 0; i < 3; i++)
		if (p->ins[0].src[i] != (i < p->nin ? i : 0))
			return NULL;
	return p->ins[0].fn;
}

/* --- the public form -------------------------------------------------------- */

/* The plan is made anew in each call: it costs about as much as a few strips. */
static size_t splat_bytes(const struct prog_expr *e) { return (size_t)e->nin * KERN_STRIP * 16; }

size_t kern_expr_scratch(const struct prog_expr *e)
{
	return splat_bytes(e) + ((size_t)(e->nin + e->n) * sizeof(void *) + 128) + (size_t)e->n * KERN_STRIP * 16;
}

void kern_expr(const struct prog_expr *e, int64_t n, void *const *out, const void *const *in, uint64_t splat, void *scratch_)
{
	struct arena a;
	arena_init(&a);
	struct plan *p;
	struct err *err = plan_make(&a, e, &p);
	assert(!err);
	if (err) {
		err_free(err);
		arena_fini(&a);
		return;
	}
	char *wide = scratch_, *scratch = wide + splat_bytes(e);
	const void **src = arena_alloc(&a, sizeof *src * (size_t)(e->nin + 1)), **res = arena_alloc(&a, sizeof *res * (size_t)(e->nout + 1));
	void **dst = arena_alloc(&a, sizeof *dst * (size_t)(e->nout + 1));
	plan_start(p, scratch);
	for (int i = 0; i < e->nin; i++)
		if (i < 64 && splat >> i & 1) {
			fill_bytes(dt_bytes(e->in_type[i]), KERN_STRIP, wide + (size_t)i * KERN_STRIP * 16, in[i]);
			src[i] = wide + (size_t)i * KERN_STRIP * 16;
		}
	for (int64_t i = 0; i < n; i += KERN_STRIP) {
		for (int j = 0; j < e->nin; j++)
			if (!(j < 64 && splat >> j & 1))
				src[j] = (const char *)in[j] + i * dt_bytes(e->in_type[j]);
		for (int j = 0; j < e->nout; j++)
			dst[j] = (char *)out[j] + i * dt_bytes(p->out_type[j]);
		plan_run(p, MIN(n - i, KERN_STRIP), src, dst, res, scratch);
	}
	arena_fini(&a);
}

/* --- the kernel --------------------------------------------------------------- */

enum { DENSE, SCALAR, ROWS, TURN };
enum { TILE = 32768, TURN_ROWS = 16 };

struct elem_priv {
	struct plan *p;
	struct loop l;
	kern_strip *single;
	uint8_t *mode, *bytes;       /* per view */
	size_t *buf;                 /* offset of a view's strip in the scratch */
	size_t lists;                /* offset of the pointer lists */
	bool flat;                   /* every view is DENSE or SCALAR */
	bool last_only;              /* one output, made by the last instruction */
	int turn;                    /* dimension that turned operands are dense along, or -1 */
	int64_t odim[LOOP_RANK];     /* extents of the dimensions outside a block; 1 for those inside */
	int64_t rblocks, cblocks, units, per_tile;
};

/* n elements from position ix on, between view and contiguous strip. */
static void pack(const struct loop *l, const int64_t *stride, int es, int64_t n, const int64_t *ix0, char *view, char *strip, bool back)
{
	int64_t ix[LOOP_RANK];
	int r = l->rank;
	memcpy(ix, ix0, sizeof *ix * (size_t)r);
	while (n > 0) {
		int64_t m = MIN(n, l->dim[r - 1] - ix[r - 1]);
		char *v = view + offset_of(r, stride, ix);
		if (back)
			move_strided(es, m, v, stride[r - 1], strip, es);
		else
			move_strided(es, m, strip, es, v, stride[r - 1]);
		strip += m * es;
		n -= m;
		ix[r - 1] = 0;
		index_next(r - 1, l->dim, ix);
	}
}

/* Where each view begins.  True if an output lies on an operand: it is made only when all operands of the strip have been read. */
static bool bases(const struct prog_kern *k, const struct elem_priv *q, char *const *ptr, char **base)
{
	bool late = false;
	for (int i = 0; i < k->nin + k->nout; i++)
		base[i] = view_at(k, ptr, i);
	for (int j = k->nin; j < k->nin + k->nout && !q->last_only; j++)
		for (int i = 0; i < k->nin; i++)
			late |= ptr[i] == ptr[j];
	return late;
}

static void elem_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                     int64_t t0, int64_t t1, void *scratch_)
{
	const struct elem_priv *q = s->priv;
	const struct plan *p = q->p;
	const struct loop *l = &q->l;
	int nv = k->nin + k->nout, r = l->rank;
	char *scratch = scratch_;
	char **base = (char **)(void *)(scratch + q->lists);
	const void **in = (const void **)(base + nv), **res = in + k->nin;
	void **want = (void **)(uintptr_t)(res + k->nout);
	const char **held = (const char **)(void *)(want + k->nout);
	int64_t lo = t0 * TILE, hi = MIN(t1 * TILE, l->count), inner = l->dim[r - 1], ix[LOOP_RANK];
	bool late = bases(k, q, ptr, base);
	for (int i = 0; i < k->nin; i++) {
		held[i] = NULL;
		if (q->mode[i] == SCALAR) {
			fill_bytes(q->bytes[i], MIN(KERN_STRIP, hi - lo), scratch + q->buf[i], base[i]);
			in[i] = scratch + q->buf[i];
		}
	}
	if (q->single && q->flat) {
		bool splat = false;
		for (int i = 0; i < k->nin; i++)
			splat |= q->mode[i] == SCALAR;
		int64_t step = splat ? KERN_STRIP : hi - lo;
		for (int64_t i = lo; i < hi; i += step) {
			const void *x[3] = { NULL, NULL, NULL };
			for (int j = 0; j < k->nin; j++)
				x[j] = q->mode[j] == SCALAR ? in[j] : base[j] + i * q->bytes[j];
			for (int j = k->nin; j < 3; j++)     /* x * x: an operand that is read twice is given once */
				x[j] = x[0];
			q->single(MIN(step, hi - i), base[k->nin] + i * q->bytes[k->nin], x[0], x[1], x[2]);
		}
		return;
	}
	plan_start(p, scratch);
	if (!q->flat)
		index_of(r, l->dim, lo, ix);
	for (int64_t i = lo; i < hi;) {
		int64_t n = MIN(hi - i, KERN_STRIP), left = inner;
		if (!q->flat) {
			left = inner - ix[r - 1];
			if (inner >= KERN_STRIP / 4)
				n = MIN(n, left);
		}
		for (int j = 0; j < k->nin; j++) {
			if (q->mode[j] == DENSE) {
				in[j] = base[j] + i * q->bytes[j];
			} else if (q->mode[j] == ROWS) {
				const int64_t *st = l->stride[j];
				int es = q->bytes[j];
				char *buf = scratch + q->buf[j];
				if (n <= left) {
					char *at = base[j] + offset_of(r, st, ix);
					in[j] = buf;
					if (st[r - 1] == es && n > 1) {
						in[j] = at;
					} else if (st[r - 1] == 0 && n > 1) {
						if (held[j] != at) {
							fill_bytes(es, MIN(KERN_STRIP, inner), buf, at);
							held[j] = at;
						}
					} else {
						move_strided(es, n, buf, es, at, st[r - 1]);
						held[j] = NULL;
					}
				} else {
					pack(l, st, es, n, ix, base[j], buf, false);
					in[j] = buf;
					held[j] = NULL;
				}
			}
		}
		for (int j = 0; j < k->nout; j++) {
			int v = k->nin + j;
			want[j] = !late && q->mode[v] == DENSE ? base[v] + i * q->bytes[v] : NULL;
		}
		plan_run(p, n, in, want, res, scratch);
		for (int j = 0; j < k->nout; j++) {
			int v = k->nin + j;
			if (q->mode[v] != DENSE)
				pack(l, l->stride[v], q->bytes[v], n, ix, base[v], (char *)(uintptr_t)res[j], true);
			else if (!want[j])
				memmove(base[v] + i * q->bytes[v], res[j], (size_t)(n * q->bytes[v]));
		}
		i += n;
		if (!q->flat) {
			ix[r - 1] += n;
			if (ix[r - 1] >= inner) {
				if (ix[r - 1] == inner) {
					ix[r - 1] = 0;
					index_next(r - 1, l->dim, ix);
				} else {
					index_of(r, l->dim, i, ix);
				}
			}
		}
	}
}

/* The same where operands are turned: block by block of TURN_ROWS rows and KERN_STRIP columns. */
static void turn_run(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                     int64_t t0, int64_t t1, void *scratch_)
{
	const struct elem_priv *q = s->priv;
	const struct loop *l = &q->l;
	const struct kern_isa *isa = kern_isa_get();
	int nv = k->nin + k->nout, c = l->rank - 1, d = q->turn;
	char *scratch = scratch_;
	char **base = (char **)(void *)(scratch + q->lists);
	const void **in = (const void **)(base + nv), **res = in + k->nin;
	void **want = (void **)(uintptr_t)(res + k->nout);
	bool late = bases(k, q, ptr, base);
	for (int i = 0; i < k->nin; i++)
		if (q->mode[i] == SCALAR) {
			fill_bytes(q->bytes[i], MIN(KERN_STRIP, l->dim[c]), scratch + q->buf[i], base[i]);
			in[i] = scratch + q->buf[i];
		}
	plan_start(q->p, scratch);
	for (int64_t u = t0 * q->per_tile; u < MIN(t1 * q->per_tile, q->units); u++) {
		int64_t ix[LOOP_RANK], c0 = u % q->cblocks * KERN_STRIP, r0 = u / q->cblocks % q->rblocks * TURN_ROWS;
		int64_t n = MIN(KERN_STRIP, l->dim[c] - c0), rows = MIN(TURN_ROWS, l->dim[d] - r0);
		index_of(l->rank, q->odim, u / q->cblocks / q->rblocks, ix);
		ix[c] = c0;
		ix[d] = r0;
		for (int j = 0; j < k->nin; j++)
			if (q->mode[j] == TURN) {
				int es = q->bytes[j];
				isa->transpose[es == 1 ? 0 : es == 2 ? 1 : es == 4 ? 2 : 3](n, rows, base[j] + offset_of(l->rank, l->stride[j], ix),
				                                                          l->stride[j][c] / es, scratch + q->buf[j], KERN_STRIP);
			}
		for (int64_t r = 0; r < rows; r++) {
			ix[d] = r0 + r;
			for (int j = 0; j < k->nin; j++) {
				const int64_t *st = l->stride[j];
				int es = q->bytes[j];
				char *buf = scratch + q->buf[j];
				if (q->mode[j] == SCALAR)
					continue;
				if (q->mode[j] == TURN) {
					in[j] = buf + r * KERN_STRIP * es;
					continue;
				}
				char *at = base[j] + offset_of(l->rank, st, ix);
				in[j] = at;
				if (st[c] != es && n > 1) {
					if (st[c])
						move_strided(es, n, buf, es, at, st[c]);
					else
						fill_bytes(es, n, buf, at);
					in[j] = buf;
				}
			}
			for (int j = 0; j < k->nout; j++) {
				int v = k->nin + j;
				want[j] = !late && l->stride[v][c] == q->bytes[v] ? base[v] + offset_of(l->rank, l->stride[v], ix) : NULL;
			}
			plan_run(q->p, n, in, want, res, scratch);
			for (int j = 0; j < k->nout; j++) {
				int v = k->nin + j;
				if (!want[j])
					move_strided(q->bytes[v], n, base[v] + offset_of(l->rank, l->stride[v], ix), l->stride[v][c], res[j], q->bytes[v]);
			}
		}
	}
}

/* Operands to turn, if any: dense along one common dimension that is not the last. */
static void turn_make(const struct prog_kern *k, struct kern_state *s, struct elem_priv *q)
{
	struct loop *l = &q->l;
	int c = l->rank - 1;
	q->turn = -1;
	if (l->dim[c] < 16)
		return;
	for (int j = 0; j < k->nin; j++) {
		int64_t es = q->bytes[j], st = l->stride[j][c];
		if (q->mode[j] != ROWS || st == es || st == 0 || st % es || es > 8)
			continue;
		for (int d = 0; d < c; d++)
			if (l->stride[j][d] == es && l->dim[d] >= 4 && (q->turn < 0 || q->turn == d)) {
				q->turn = d;
				q->mode[j] = TURN;
			}
	}
	if (q->turn < 0)
		return;
	q->units = 1;
	for (int d = 0; d <= c; d++) {
		q->odim[d] = d == c || d == q->turn ? 1 : l->dim[d];
		q->units *= q->odim[d];
	}
	q->rblocks = (l->dim[q->turn] + TURN_ROWS - 1) / TURN_ROWS;
	q->cblocks = (l->dim[c] + KERN_STRIP - 1) / KERN_STRIP;
	q->units *= q->rblocks * q->cblocks;
	if (!l->count)
		q->units = 0;
	q->per_tile = MAX(1, TILE / (MIN(TURN_ROWS, l->dim[q->turn]) * MIN(KERN_STRIP, l->dim[c])));
	s->tiles = (q->units + q->per_tile - 1) / q->per_tile;
	s->run = turn_run;
}

/* The walk shared by elem and reduce_precision. */
static struct err *elem_make(const struct prog_kern *k, struct kern_state *s, const struct prog_expr *e)
{
	int nv = k->nin + k->nout;
	if (!e || e->nin != k->nin || e->nout != k->nout || !k->nout)
		return ERR(INVALID, "elementwise kernel with %d operands and %d results has an expression of other numbers", k->nin, k->nout);
	const struct prog_view **v = arena_alloc(&s->a, sizeof *v * (size_t)nv);
	struct elem_priv *q = ARENA_NEW(&s->a, struct elem_priv, 1);
	q->mode = ARENA_NEW(&s->a, uint8_t, nv);
	q->bytes = ARENA_NEW(&s->a, uint8_t, nv);
	q->buf = ARENA_NEW(&s->a, size_t, nv);
	for (int i = 0; i < nv; i++) {
		v[i] = &k->v[i];
		q->bytes[i] = (uint8_t)dt_bytes(k->v[i].dtype);
	}
	loop_make(&s->a, &q->l, nv, v);
	TRY(plan_make(&s->a, e, &q->p));
	q->single = plan_single(q->p);
	q->flat = true;
	q->last_only = k->nout == 1 && q->p->n && q->p->ins[q->p->n - 1].out == q->p->out[0];
	size_t off = (q->p->scratch + 63) & ~(size_t)63;
	for (int i = 0; i < nv; i++) {
		bool dense = true, scalar = true;
		int64_t st = q->bytes[i];
		for (int d = q->l.rank; d-- > 0;) {
			dense &= q->l.stride[i][d] == st;
			scalar &= q->l.stride[i][d] == 0;
			st *= q->l.dim[d];
		}
		if (q->l.count == 1)
			dense = true;
		q->mode[i] = dense ? DENSE : scalar ? SCALAR : ROWS;
		q->flat &= q->mode[i] != ROWS;
	}
	s->tiles = (q->l.count + TILE - 1) / TILE;
	s->run = elem_run;
	turn_make(k, s, q);
	for (int i = 0; i < k->nin; i++) {
		q->buf[i] = off;
		off += (size_t)KERN_STRIP * q->bytes[i] * (q->mode[i] == TURN ? TURN_ROWS : 1);
	}
	q->lists = (off + 63) & ~(size_t)63;
	s->scratch = q->lists + sizeof(void *) * (size_t)(3 * nv + 4);
	s->priv = q;
	return NULL;
}

struct err *kern_make_elem(const struct prog_kern *k, struct kern_state *s)
{
	return elem_make(k, s, k->expr);
}

struct err *kern_make_reduce_precision(const struct prog_kern *k, struct kern_state *s)
{
	struct prog_expr *e = ARENA_NEW(&s->a, struct prog_expr, 1);
	e->nin = e->nout = e->n = 1;
	e->in_type = ARENA_NEW(&s->a, uint8_t, 1);
	e->in_type[0] = k->v[0].dtype;
	e->ins = ARENA_NEW(&s->a, struct prog_ins, 1);
	e->ins[0].fn = EXPR_ROUND;
	e->ins[0].from = e->ins[0].to = k->v[0].dtype;
	e->ins[0].imm[0] = (uint8_t)k->attr[0];
	e->ins[0].imm[1] = (uint8_t)k->attr[1];
	e->out = ARENA_NEW(&s->a, uint16_t, 1);
	e->out[0] = 1;
	return elem_make(k, s, e);
}
