/* The custom calls Qr and ProductOfElementaryHouseholderReflectors, which JAX sends where it has no LAPACK, as loops
 * over columns.  Conventions are LAPACK's (geqrf, orgqr): reflector j is H = I - tau v v', v has a one at row j and
 * lies below the diagonal; a column that needs no reflection has tau 0. */
#include "wire.h"

/* The body of a loop over matrices [.., m, n], vectors over rows [.., m], over columns [.., n], scalars [..]. */
struct house {
	struct ir_b b;
	int rank;                    /* of a matrix */
	ir_type whole, rows, cols, one;
	ir_val j;                    /* column, i32 */
};

static ir_val num(struct house *s, ir_type t, double v) { return ir_const_f(&s->b, t, v); }

/* x broadcast to type t, its dimensions in order but for one of t's. */
static ir_val spread(struct house *s, ir_val x, ir_type t, int without)
{
	int64_t dims[IR_MAX_RANK];
	int n = ir_vtype(s->b.m, s->b.fn, x)->rank;
	for (int i = 0; i < n; i++)
		dims[i] = i + (i >= without);
	return ir_broadcast(&s->b, x, t, dims);
}

static ir_val sum(struct house *s, ir_val x, int dim)
{
	int64_t d = dim;
	enum dtype dt = ir_vtype(s->b.m, s->b.fn, x)->dtype;
	return ir_reduce1(&s->b, RED_add, x, ir_const_f(&s->b, ir_scalar(s->b.m, dt), 0), 1, &d);
}

/* Compare positions along dimension dim of type t with j. */
static ir_val where(struct house *s, enum elem e, ir_type t, int dim)
{
	const struct ir_type_info *i = ir_type_of(s->b.m, t);
	int64_t extent[IR_MAX_RANK];
	memcpy(extent, i->dim, sizeof *extent * i->rank);
	ir_type it = ir_tensor(s->b.m, DT_i32, i->rank, extent);
	ir_val at = ir_iota(&s->b, it, dim);
	return ir_bin(&s->b, e, at, ir_splat_of(&s->b, s->j, it));
}

/* Column j of a, [.., m]. */
static ir_val column(struct house *s, ir_val a)
{
	ir_val mine = where(s, ELEM_compare_eq, s->whole, s->rank - 1);
	return sum(s, ir_select(&s->b, mine, a, num(s, s->whole, 0)), s->rank - 1);
}

/* The reflector whose part below the diagonal is x. */
static ir_val reflector(struct house *s, ir_val x)
{
	int d = s->rank - 2;
	ir_val at = where(s, ELEM_compare_eq, s->rows, d), one = num(s, s->rows, 1), below = where(s, ELEM_compare_gt, s->rows, d), zero = num(s, s->rows, 0);
	return ir_select(&s->b, at, one, ir_select(&s->b, below, x, zero));
}

/* a - tau v (v' a) */
static ir_val reflect(struct house *s, ir_val a, ir_val v, ir_val tau)
{
	ir_val tall = spread(s, v, s->whole, s->rank - 1), w = sum(s, ir_bin(&s->b, ELEM_multiply, tall, a), s->rank - 2);
	w = ir_bin(&s->b, ELEM_multiply, w, spread(s, tau, s->cols, s->rank - 2));
	return ir_bin(&s->b, ELEM_subtract, a, ir_bin(&s->b, ELEM_multiply, tall, spread(s, w, s->whole, s->rank - 2)));
}

/* a, taus -> a with column j reflected onto the diagonal and the reflector below it, taus with its factor. */
static void factor(struct house *s, ir_val a, ir_val taus, ir_type tt, ir_val next[2])
{
	struct ir_b *b = &s->b;
	int d = s->rank - 2;
	ir_val x = column(s, a), zero = num(s, s->rows, 0), at = where(s, ELEM_compare_eq, s->rows, d), below = where(s, ELEM_compare_gt, s->rows, d);
	ir_val alpha = sum(s, ir_select(b, at, x, zero), d), rest = ir_select(b, below, x, zero), none = num(s, s->one, 0);
	/* the norm of the rest and alpha, scaled so that squares neither overflow nor vanish */
	int64_t dim = d;
	ir_val size = ir_un(b, ELEM_abs, rest), least = ir_const_f(b, ir_scalar(b->m, ir_type_of(b->m, s->one)->dtype), 0), one = num(s, s->one, 1);
	ir_val most = ir_reduce1(b, RED_max, size, least, 1, &dim);
	ir_val still = ir_bin(b, ELEM_compare_eq, most, none);
	most = ir_bin(b, ELEM_maximum, most, ir_un(b, ELEM_abs, alpha));
	most = ir_select(b, ir_bin(b, ELEM_compare_eq, most, none), one, most);
	ir_val y = ir_bin(b, ELEM_divide, rest, spread(s, most, s->rows, d)), z = ir_bin(b, ELEM_divide, alpha, most);
	ir_val yy = sum(s, ir_bin(b, ELEM_multiply, y, y), d), zz = ir_bin(b, ELEM_multiply, z, z);
	ir_val norm = ir_bin(b, ELEM_multiply, ir_un(b, ELEM_sqrt, ir_bin(b, ELEM_add, yy, zz)), most);
	ir_val up = ir_bin(b, ELEM_compare_ge, alpha, none), down = ir_un(b, ELEM_negate, norm), beta = ir_select(b, up, down, norm);
	beta = ir_select(b, still, alpha, beta);
	ir_val tau = ir_select(b, still, none, ir_bin(b, ELEM_divide, ir_bin(b, ELEM_subtract, beta, alpha), beta));
	ir_val under = ir_select(b, still, one, ir_bin(b, ELEM_subtract, alpha, beta));
	ir_val v = reflector(s, ir_bin(b, ELEM_divide, x, spread(s, under, s->rows, d)));
	ir_val mine = ir_select(b, below, v, x);
	mine = ir_select(b, at, spread(s, beta, s->rows, d), mine);
	ir_val here = where(s, ELEM_compare_eq, s->whole, d + 1), now = ir_select(b, here, spread(s, mine, s->whole, d + 1), a);
	ir_val right = where(s, ELEM_compare_gt, s->whole, d + 1), its = where(s, ELEM_compare_eq, tt, d);
	next[0] = ir_select(b, right, reflect(s, a, v, tau), now);
	next[1] = ir_select(b, its, spread(s, tau, tt, d), taus);
}

static enum dtype real_matrix(const struct ir_type_info *t)
{
	return t->rank >= 2 && (t->dtype == DT_f32 || t->dtype == DT_f64) ? (enum dtype)t->dtype : DT_token;
}

struct err *householder(struct hlo *h, const struct wop *o, bool product)
{
	struct ir_module *m = h->m;
	uint32_t nin, nout;
	ir_val *in;
	ir_type *rt;
	TRY(op_ins(h, o, &nin, &in));
	TRY(op_outs(h, o, &nout, &rt));
	if (nin != 1 + product || nout != 2u - product)
		return bad_op(h, "it has %u operands and %u results", nin, nout);
	struct ir_type_info t = *ir_vtype(m, h->b.fn, in[0]);
	enum dtype dt = real_matrix(&t);
	if (dt == DT_token)
		return no_op(h, "matrices of '%s'", dtype_info[t.dtype].name ? dtype_info[t.dtype].name : "none");
	ir_type at = h->b.fn->val.p[in[0]].type, tt = product ? h->b.fn->val.p[in[1]].type : rt[1];
	int64_t dim[IR_MAX_RANK];
	memcpy(dim, t.dim, sizeof *dim * (size_t)t.rank);
	int r = t.rank;
	int64_t rows = dim[r - 2], cols = dim[r - 1], trip = ir_type_of(m, tt)->rank == r - 1 ? ir_type_of(m, tt)->dim[r - 2] : -1;
	struct house s = { .rank = r, .whole = at };
	s.one = ir_tensor(m, dt, r - 2, dim);
	s.rows = ir_tensor(m, dt, r - 1, dim);
	dim[r - 2] = trip;
	if (trip < 0 || trip > MIN(rows, cols) || (!product && trip != MIN(rows, cols)) || ir_tensor(m, dt, r - 1, dim) != tt || rt[0] != at)
		return bad_op(h, "its factors or results do not fit its matrix");
	dim[r - 2] = cols;
	s.cols = ir_tensor(m, dt, r - 1, dim);
	struct ir_loop_new l = {0};
	s.b = h->b;
	if (product) {               /* from the last reflector to the first, on the first columns of the identity */
		memcpy(dim, t.dim, sizeof *dim * (size_t)r);
		ir_type grid = ir_tensor(m, DT_i32, r, dim);
		ir_val row = ir_iota(&s.b, grid, r - 2), col = ir_iota(&s.b, grid, r - 1), diagonal = ir_bin(&s.b, ELEM_compare_eq, row, col);
		ir_val one = num(&s, at, 1), zero = num(&s, at, 0);
		ir_loop_add(&l, ir_select(&s.b, diagonal, one, zero), ROLE_CARRY);
		ir_loop_add(&l, in[0], ROLE_CONST);
		ir_loop_add(&l, in[1], ROLE_CONST);
	} else {
		ir_loop_add(&l, in[0], ROLE_CARRY);
		ir_loop_add(&l, ir_const_f(&s.b, tt, 0), ROLE_CARRY);
	}
	ir_loop_open(&l, &h->b, trip, product ? "reflect" : "factor", NULL);
	s.b = (struct ir_b){ m, l.body, h->b.loc };
	ir_val carry = l.x.p[0].param, other = l.x.p[1].param, next[2];
	s.j = IR_LOOP_TURN;
	if (product) {
		s.j = ir_bin(&s.b, ELEM_subtract, ir_const_i(&s.b, ir_scalar(m, DT_i32), trip - 1), s.j);
		ir_val here = where(&s, ELEM_compare_eq, tt, r - 2), tau = sum(&s, ir_select(&s.b, here, l.x.p[2].param, num(&s, tt, 0)), r - 2);
		next[0] = reflect(&s, carry, reflector(&s, column(&s, other)), tau);
	} else {
		factor(&s, carry, other, tt, next);
	}
	for (int k = 0; k < 2 - product; k++)
		ir_loop_give(&l, k, next[k]);
	ir_val first = ir_loop_close(&l, NULL);
	return op_bind(h, o, 2 - product, (ir_val[]){ first, first + 1 });
}
