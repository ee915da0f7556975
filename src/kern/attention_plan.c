/* What an attention is, from its views, and how its fast kernels see it. */
#include "attention.h"

#include <math.h>

long long att_tiles_done, att_tiles_left;

/* Views of what is in pieces: the first ones stand as ever, the others behind the operands of scores, those of a view side by side. */
static int first_piece(const struct attention *x, int i)
{
	int at = x->first + x->nextra, keys = x->keys.n - 1, rows = x->rows.n - 1;
	return at + (i == ATT_K ? 0 : i == ATT_V ? keys : i == ATT_Q ? 2 * keys : 2 * keys + rows);
}

/* Of which view operand i is a piece. */
static int piece_of(const struct attention *x, int i)
{
	return i < first_piece(x, ATT_V) ? ATT_K : i < first_piece(x, ATT_Q) ? ATT_V : i < first_piece(x, ATT_DO) ? ATT_Q : ATT_DO;
}

int32_t attention_table(const struct prog_expr *e, int input)
{
	int32_t n = 0, own;
	bool scalar = false;
	for (int i = 0; i < e->n; i++)
		for (int j = 0; j < prog_ins_nin(e->ins[i].fn); j++) {
			if (e->ins[i].src[j] != input)
				continue;
			if (e->ins[i].fn != EXPR_LOOK || j) {
				scalar = true;
				continue;
			}
			memcpy(&own, e->ins[i].imm, sizeof own);
			if (own < 1 || (n && own != n))
				return -1;
			n = own;
		}
	for (int i = 0; i < e->nout; i++)
		scalar |= e->out[i] == input;
	return n && scalar ? -1 : n;
}

/* Tables, which are the same for all queries and keys of a batch, are as long as the function says, and sums by an index are of the type of sums. */
static struct err *check_tables(const struct prog_kern *k, const struct attention *x)
{
	for (int i = 0; i < x->nextra + x->ntally; i++) {
		const struct prog_view *v = &k->v[i < x->nextra ? x->first + i : k->nin + 3 + i - x->nextra];
		int32_t n = i < x->nextra ? attention_table(k->expr, 1 + i) : 0;
		if (n < 0 || v->rank != x->nb + 3 || ((n || i >= x->nextra) && (v->dim[x->nb] != 1 || v->dim[x->nb + 1] != 1)) || (n && v->dim[x->nb + 2] != n) || v->dim[x->nb + 2] > INT32_MAX ||
		    (i >= x->nextra && ((enum dtype)v->dtype != x->sum || x->fn->out_type[x->nout - x->ntally + i - x->nextra] != DT_i32)))
			return ERR(INVALID, "kernel '%s' of a table that is none", prog_kern_name[k->id]);
	}
	return NULL;
}

struct err *attention_make(const struct prog_kern *k, struct arena *a, struct attention *x)
{
	bool add = k->id == KERN_attention_grad_add, grad = add || k->id == KERN_attention_grad;
	int first = grad ? ATT_GRAD_EXTRA : ATT_EXTRA, least = grad ? 2 : 1;
	int64_t keys = k->nattr > 0 ? k->attr[0] : 1, rows = k->nattr > 1 ? k->attr[1] : 1, nextra = k->nin - first - 2 * (keys - 1) - (grad ? 2 : 1) * (rows - 1);
	if (keys < 1 || keys > k->nin || rows < 1 || rows > k->nin)
		return ERR(INVALID, "kernel '%s' of %lld and %lld pieces", prog_kern_name[k->id], (long long)keys, (long long)rows);
	bool below = !grad && k->nout == 3 && k->v[k->nin + 2].dtype == DT_i8, part = !grad && k->nout == 3 && !below;
	int tallies = grad && !add ? k->nout - 3 : 0;
	*x = (struct attention){ .grad = grad, .add = add, .part = part, .log = !grad && !part && k->nout > 1, .below = below, .first = first, .nextra = (int)nextra, .ntally = tallies, .sum = DT_f32 };
	if (nextra < 0 || k->nout < (grad ? 3 : 1) || k->nout > 3 + tallies || tallies > ATT_TALLIES || !k->expr || k->expr->nin != 1 + nextra || k->expr->nout < least + tallies ||
	    k->expr->nout > least + 1 + tallies)
		return ERR(INVALID, "kernel '%s' with %d operands, %d results and no function for them", prog_kern_name[k->id], k->nin, k->nout);
	const struct prog_view *q = &k->v[ATT_Q], *key = &k->v[ATT_K], *v = &k->v[ATT_V];
	x->nb = q->rank - 3;
	x->nout = k->expr->nout;
	x->weighted = x->nout - tallies > least;
	if (x->nb < 0 || key->rank != x->nb + 2 || v->rank != x->nb + 2)
		return ERR(INVALID, "kernel '%s' of ranks %d, %d and %d", prog_kern_name[k->id], q->rank, key->rank, v->rank);
	if (x->below && k->v[k->nin].dtype != DT_bf16)
		return ERR(INVALID, "kernel '%s' of o in two parts, whose upper one is no bf16", prog_kern_name[k->id]);
	x->batch = 1;
	for (int d = 0; d < x->nb; d++)
		x->batch *= q->dim[d];
	x->g = q->dim[x->nb];
	x->rows.n = (int)rows;
	x->rows.len = q->dim[x->nb + 1];
	x->t = x->rows.len * rows;
	x->d = q->dim[x->nb + 2];
	x->keys.n = (int)keys;
	x->keys.len = key->dim[x->nb];
	x->s = x->keys.len * keys;
	x->e = v->dim[x->nb + 1];
	for (int i = 0; i < 3; i++)
		x->sum = k->v[i].dtype == DT_f64 ? DT_f64 : x->sum;
	for (int i = first + x->nextra; i < k->nin; i++) {
		const struct prog_view *p = &k->v[i], *as = &k->v[piece_of(x, i)];
		size_t n = sizeof *p->dim * (size_t)as->rank;
		if (p->dtype != as->dtype || p->rank != as->rank || memcmp(p->dim, as->dim, n) || memcmp(p->stride, as->stride, n))
			return ERR(INVALID, "kernel '%s' of pieces that are not alike", prog_kern_name[k->id]);
	}
	TRY(plan_make(a, k->expr, &x->fn));
	return check_tables(k, x);
}

char *attention_at(const struct prog_kern *k, char *const *ptr, const struct attention *x, int i, int64_t b)
{
	const struct prog_view *v = &k->v[i];
	int64_t at = v->off, ix[MAX_RANK];
	index_of(x->nb, k->v[ATT_Q].dim, b, ix);
	for (int d = 0; d < x->nb; d++)
		at += v->dim[d] == 1 ? 0 : v->stride[d] * ix[d];
	return ptr[i] + at * dt_bytes(v->dtype);
}

char *attention_piece(const struct prog_kern *k, char *const *ptr, const struct attention *x, int i, int64_t b, int64_t j, int64_t *row, int64_t *left)
{
	bool keys = i == ATT_K || i == ATT_V;
	int64_t n = keys ? x->keys.n : x->rows.n, len = keys ? x->keys.len : x->rows.len, all = keys ? x->s : x->t, at, in;
	*row = j;
	*left = INT64_MAX;
	if (n == 1 || !len)
		return attention_at(k, ptr, x, i, b);
	at = MIN(j % all / len, n - 1);
	in = j % all - at * len;
	*row = j / all * len + in;
	*left = len - in;
	return attention_at(k, ptr, x, at ? first_piece(x, i) + (int)at - 1 : i, b);
}

/* --- fast kernels -------------------------------------------------------------------- */

/* Do batches share keys or values? */
static bool shares(const struct prog_kern *k, const struct attention *x)
{
	for (int d = 0; d < x->nb; d++)
		for (int i = ATT_K; i <= ATT_V && k->v[ATT_Q].dim[d] > 1; i++)
			if (k->v[i].dim[d] == 1 || !k->v[i].stride[d])
				return true;
	return false;
}

/* What v's instructions multiply: bf16 only where all operands of products are.  Keys are read where they lie for a few rows that no others share them with. */
static bool suits(const struct att_variant *v, const struct prog_kern *k, const struct attention *x)
{
	bool grad = x->grad;
	if (v->few ? grad || x->g * x->t > v->mr || shares(k, x) : !v->micro)
		return false;
	if (v->es == 4)
		return true;
	return k->v[ATT_Q].dtype == DT_bf16 && k->v[ATT_K].dtype == DT_bf16 && k->v[ATT_V].dtype == DT_bf16 && (!grad || k->v[ATT_DO].dtype == DT_bf16);
}

static const struct att_variant *choose(const struct prog_kern *k, const struct attention *x)
{
	if (att_force)
		return suits(att_force, k, x) ? att_force : NULL;
	for (int i = 0; i < att_nvariant; i++)
		if (att_variant[i].has() && att_variant[i].best() && suits(&att_variant[i], k, x))
			return &att_variant[i];
	return NULL;
}

static bool types_fit(const struct prog_kern *k, const struct attention *x)
{
	if (x->sum != DT_f32 || k->expr->in_type[0] != DT_f32)
		return false;
	for (int i = 0; i < x->nout - x->ntally; i++)
		if (x->fn->out_type[i] != DT_f32)
			return false;
	for (int i = 0; i < k->nin + k->nout; i++) {
		enum dtype dt = (enum dtype)k->v[i].dtype;
		bool other = (i >= x->first && i < x->first + x->nextra) || (x->below && i == k->nin + 2);
		if (other ? dt_bytes(dt) > 8 : dtype_info[dt].cls != DT_FLOAT || !kern_elem(ELEM_convert, dt, DT_f32) || !kern_elem(ELEM_convert, DT_f32, dt))
			return false;
	}
	return true;
}

bool att_plan_make(const struct prog_kern *k, const struct attention *x, bool turned, struct arena *a, struct att_plan *p)
{
	*p = (struct att_plan){ .x = *x, .turned = turned, .rows = x->g * x->t };
	if (!types_fit(k, x) || x->batch < 1 || p->rows < 1 || x->s < 1 || x->d < 1 || x->e < 1)
		return false;
	p->v = choose(k, x);
	if (!p->v)
		return false;
	p->dk = att_pad(x->d, p->v->kstep);
	p->ek = att_pad(x->e, p->v->kstep);
	p->dc = att_pad(x->d, ATT_COLS);
	p->ec = att_pad(x->e, ATT_COLS);
	p->extra = ARENA_NEW(a, struct att_extra, x->nextra + 1);
	p->fn_base = att_room(&p->fn_bytes, (int64_t)sizeof(void *) * (1 + x->nextra));
	p->fn_table = att_room(&p->fn_bytes, (int64_t)sizeof(struct kern_bound) * x->nextra);
	for (int i = 0; i < x->nextra; i++) {
		const struct prog_view *v = &k->v[x->first + i];
		const int64_t *dim = v->dim + x->nb, *st = v->stride + x->nb;
		int es = dt_bytes(v->dtype);
		struct att_extra *e = &p->extra[i];
		*e = (struct att_extra){ .view = x->first + i, .es = es, .dt = (enum dtype)v->dtype, .sg = dim[0] == 1 ? 0 : st[0] * es,
		                         .st = dim[1] == 1 ? 0 : st[1] * es, .ss = dim[2] == 1 ? 0 : st[2] * es };
		e->table = attention_table(k->expr, 1 + i);
		if (e->table) {
			e->at = st[2] == 1 ? 0 : att_room(&p->fn_bytes, (int64_t)es * e->table);
			e->ss = 0;
		}
		e->by_row = e->sg || e->st;
		e->by_key = e->ss != 0;
	}
	att_range_make(a, k->expr, x, &p->range);
	p->raw = p->v->es == 2;
	if (p->range.pred && !turned)
		err_free(plan_make(a, att_range_pred(a, &p->range), &p->mask));      /* of what was made already */
	p->fn_have = att_room(&p->fn_bytes, 8);
	p->fn_in = att_room(&p->fn_bytes, att_pad((int64_t)sizeof(void *) * (1 + x->nextra), 64) + x->nextra * KERN_STRIP * 8);
	p->fn_mem = att_room(&p->fn_bytes, (int64_t)x->fn->scratch);
	p->fn_mask = att_room(&p->fn_bytes, p->mask ? (int64_t)p->mask->scratch : 0);
	p->fn_reg = att_room(&p->fn_bytes, (int64_t)sizeof(struct att_bound) * (k->expr->nin + k->expr->n));
	return true;
}
