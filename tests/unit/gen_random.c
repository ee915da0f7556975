/* Random groups against the oracle: chains of views and elementwise operations, rows with reductions. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "draws.h"
#include "gen_run.h"
#include "pass/pass.h"
#include "rt/rt.h"

#include <time.h>

static struct ir_module *m;
static struct ir_fn *fn;
static struct ir_b b;
static int budget;

static ir_type tens(int dt, int rank, const int64_t *dim) { return ir_tensor(m, (enum dtype)dt, rank, dim); }

static int small_type(void)
{
	static const int t[] = { DT_i32, DT_i32, DT_f32, DT_f32, DT_i8, DT_u16, DT_bf16, DT_u32, DT_i64, DT_f64, DT_f16, DT_pred, DT_u8, DT_i4 };
	return t[pick((int)(sizeof t / sizeof *t))];
}

static ir_val make(int dt, int rank, const int64_t *dim, int depth);
static int wide_ints;                /* converts of wide integers so far */

static ir_val scalar_const(int dt)
{
	char buf[8] = { 0 };
	fill_random(dt, 1, buf, false);
	return ir_const(&b, ir_scalar(m, (enum dtype)dt), buf, dtype_info[dt].bytes);
}

static ir_val leaf(int dt, int rank, const int64_t *dim)
{
	ir_type t = tens(dt, rank, dim);
	const struct ir_type_info *ti = ir_type_of(m, t);
	switch (pick(8)) {
	case 0:
		if (rank && dt != DT_pred)
			return ir_iota(&b, t, pick(rank));
		break;
	case 1:
		return ir_splat_of(&b, scalar_const(dt), t);
	case 2:
		if (ti->count <= 600) {
			char *buf = malloc((size_t)ti->bytes + 16);
			fill_random(dt, ti->count, buf, false);
			ir_val v = ir_const(&b, t, buf, (size_t)ti->bytes);
			free(buf);
			return v;
		}
		break;
	}
	/* an old parameter of this type, else a new one: the caller made a few beforehand */
	for (ir_val v = 1; v <= fn->nparam; v++)
		if (fn->val.p[v].type == t && pick(2))
			return v;
	return 0;
}


/* Parameters cannot be added after operations: what is missing is made of reshaped pieces of a long one. */
static ir_val param_piece(int dt, int rank, const int64_t *dim)
{
	ir_type t = tens(dt, rank, dim);
	int64_t n = ir_type_of(m, t)->count;
	for (ir_val v = 1; v <= fn->nparam; v++) {
		const struct ir_type_info *ti = ir_vtype(m, fn, v);
		if (ti->dtype != dt || ti->rank != 1 || ti->count < n)
			continue;
		int64_t s[1] = { pick((int)(ti->count - n + 1)) }, l[1] = { s[0] + n }, st[1] = { 1 };
		if (pick(3) == 0)
			s[0] = 0, l[0] = n;
		return ir_reshape(&b, ir_slice(&b, v, s, l, st), rank, dim);
	}
	return ir_splat_of(&b, scalar_const(dt), t);
}

static ir_val arith(int dt, int rank, const int64_t *dim, int depth)
{
	static const enum elem fl[] = { ELEM_add, ELEM_subtract, ELEM_multiply, ELEM_maximum, ELEM_minimum, ELEM_negate, ELEM_abs, ELEM_clamp, ELEM_floor };
	static const enum elem in[] = { ELEM_add, ELEM_subtract, ELEM_multiply, ELEM_maximum, ELEM_minimum, ELEM_xor, ELEM_and, ELEM_shift_left, ELEM_shift_right_logical, ELEM_divide, ELEM_remainder, ELEM_not, ELEM_clamp };
	static const enum elem pr[] = { ELEM_and, ELEM_or, ELEM_xor, ELEM_not };
	int c = dtype_info[dt].cls;
	enum elem k = c == DT_FLOAT ? fl[pick((int)(sizeof fl / sizeof *fl))] : c == DT_PRED ? pr[pick(4)] : in[pick((int)(sizeof in / sizeof *in))];
	ir_val x[3];
	ir_type t = tens(dt, rank, dim);
	for (int i = 0; i < elem_info[k].nin; i++)
		x[i] = make(dt, rank, dim, depth - 1);
	return ir_emit(&b, ir_of_elem(k), elem_info[k].nin, x, t, NULL, 0);
}

/* Numbers whose products' sum is, in any order, about the same. */
static ir_val bounded(ir_val x)
{
	ir_type t = fn->val.p[x].type;
	if (dtype_info[ir_type_of(m, t)->dtype].cls != DT_FLOAT)
		return x;
	return ir_bin(&b, ELEM_maximum, ir_bin(&b, ELEM_minimum, x, ir_const_f(&b, t, 8)), ir_const_f(&b, t, -8));
}

static void shuffled(int n, int64_t *p)
{
	for (int i = 0; i < n; i++)
		p[i] = i;
	for (int i = n - 1; i > 0; i--) {
		int j = pick(i + 1);
		int64_t s = p[i];
		p[i] = p[j];
		p[j] = s;
	}
}

/* A product with these extents, of operands whose dimensions are in any order. */
static ir_val a_dot(int dt, int rank, const int64_t *dim, int depth)
{
	static const int sums[] = { 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33 };
	int nb = pick(rank + 1), nl = pick(rank - nb + 1), nc = pick(3);
	int64_t gone[2], at[2][2 * IR_MAX_RANK], lists[4][IR_MAX_RANK];
	ir_val x[2];
	for (int i = 0; i < nc; i++)
		gone[i] = sums[pick(nc > 1 ? 5 : 11)];
	for (int s = 0; s < 2; s++) {
		int n = nb + (s ? rank - nb - nl : nl) + nc, from = s ? nb + nl : nb, free = n - nb - nc, rise[IR_MAX_RANK], k = 0;
		int64_t ext[2 * IR_MAX_RANK];
		shuffled(n, at[s]);
		for (int d = 0; d < n; d++)          /* free ones keep their order */
			for (int i = nb; i < nb + free; i++)
				if (at[s][i] == d)
					rise[k++] = d;
		for (int i = 0; i < free; i++)
			at[s][nb + i] = rise[i];
		for (int i = 0; i < n; i++)
			ext[at[s][i]] = i < nb ? dim[i] : i < nb + free ? dim[from + i - nb] : gone[i - nb - free];
		memcpy(lists[s], at[s], sizeof *at[s] * (size_t)nb);
		memcpy(lists[2 + s], at[s] + nb + free, sizeof *at[s] * (size_t)nc);
		x[s] = bounded(make(dt, n, ext, depth - 1));
	}
	return ir_dot(&b, x[0], x[1], (enum dtype)dt, nb, lists[0], lists[1], nc, lists[2], lists[3]);
}

static ir_val a_convolution(int dt, int rank, const int64_t *dim, int depth)
{
	int n = rank - 2;
	int64_t p[3][IR_MAX_RANK], at[6][IR_MAX_RANK], x[IR_MAX_RANK], k[IR_MAX_RANK], w[80], *q = w, fg = 1, bg = 1;
	for (int i = 0; i < 3; i++)
		shuffled(rank, p[i]);
	int64_t features = dim[p[2][1]];
	if (features % 2 == 0 || pick(2))
		*(pick(2) ? &fg : &bg) = features % 2 ? features : pick(2) ? 2 : features;
	k[p[1][0]] = 1 + pick(3);
	k[p[1][1]] = features;
	x[p[0][0]] = dim[p[2][0]] * bg;
	x[p[0][1]] = k[p[1][0]] * fg;
	for (int i = 0; i < n; i++) {
		int64_t window = k[p[1][2 + i]] = 1 + pick(4), have = x[p[0][2 + i]] = 1 + pick(6);
		at[0][i] = 1 + pick(2);              /* stride, low, high, dilations, reversal */
		at[1][i] = pick(4) - 1;
		at[3][i] = pick(3) ? 1 : 2 + pick(2);
		at[4][i] = pick(3) ? 1 : 2 + pick(2);
		at[5][i] = pick(2);
		at[2][i] = (dim[p[2][2 + i]] - 1) * at[0][i] + (window - 1) * at[4][i] + 1 - ((have - 1) * at[3][i] + 1) - at[1][i];
	}
	for (int l = 0; l < 9; l++) {
		*q++ = l < 3 ? rank : n;
		for (int i = 0; i < (l < 3 ? rank : n); i++)
			*q++ = l < 3 ? p[l][i] : at[l - 3][i];
	}
	*q++ = fg;
	*q++ = bg;
	*q++ = 0;
	ir_val in[2] = { bounded(make(dt, rank, x, depth - 1)), 0 };
	in[1] = bounded(make(dt, rank, k, depth - 1));
	return ir_emit(&b, IR_convolution, 2, in, tens(dt, rank, dim), w, (uint32_t)(q - w));
}

static bool with_products;           /* they are compiled with what is around them in loops alone */

static ir_val make(int dt, int rank, const int64_t *dim, int depth)
{
	ir_type t = tens(dt, rank, dim);
	int64_t count = ir_type_of(m, t)->count;
	if (depth <= 0 || budget-- <= 0) {
		ir_val v = leaf(dt, rank, dim);
		return v ? v : param_piece(dt, rank, dim);
	}
	int64_t d2[IR_MAX_RANK], p[IR_MAX_RANK], q[IR_MAX_RANK], r[IR_MAX_RANK];
	switch (pick(18)) {
	case 0: {              /* broadcast */
		int n = 0;
		for (int d = 0; d < rank; d++)
			if (pick(2)) {
				d2[n] = pick(5) ? dim[d] : 1;
				p[n++] = d;
			}
		return ir_broadcast(&b, make(dt, n, d2, depth - 1), t, p);
	}
	case 1: {              /* transpose */
		shuffled(rank, p);
		for (int d = 0; d < rank; d++)
			d2[p[d]] = dim[d];
		return ir_transpose(&b, make(dt, rank, d2, depth - 1), p);
	}
	case 2: {              /* reverse */
		int n = 0;
		for (int d = 0; d < rank; d++)
			if (pick(2))
				p[n++] = d;
		if (!n)
			break;
		ir_val x = make(dt, rank, dim, depth - 1);
		int64_t words[IR_MAX_RANK + 1] = { n };
		memcpy(words + 1, p, sizeof *p * (size_t)n);
		return ir_emit(&b, IR_reverse, 1, &x, t, words, (uint32_t)n + 1);
	}
	case 3: {              /* slice */
		for (int d = 0; d < rank; d++) {
			r[d] = pick(4) ? 1 : 2 + pick(2);
			p[d] = pick(3) ? 0 : pick(4);
			q[d] = p[d] + (dim[d] - 1) * r[d] + 1;
			d2[d] = q[d] + (pick(3) ? 0 : pick(4));
		}
		return ir_slice(&b, make(dt, rank, d2, depth - 1), p, q, r);
	}
	case 4: case 5: {      /* reshape */
		int n = 0;
		int64_t rest = count;
		static const int f[] = { 2, 3, 4, 5, 7, 8, 16 };
		for (int i = 0; i < 3 && rest > 1; i++) {
			int k = f[pick(7)];
			if (rest % k == 0) {
				d2[n++] = k;
				rest /= k;
			}
		}
		d2[n++] = rest;
		if (pick(2) && n > 1) {
			int64_t s = d2[0];
			d2[0] = d2[n - 1];
			d2[n - 1] = s;
		}
		return ir_reshape(&b, make(dt, n, d2, depth - 1), rank, dim);
	}
	case 6: case 7: {      /* concatenate */
		if (!rank)
			break;
		int d = pick(rank);
		if (dim[d] < 2)
			break;
		ir_val x[2];
		memcpy(d2, dim, sizeof *dim * (size_t)rank);
		d2[d] = 1 + pick((int)dim[d] - 1);
		if (dim[d] % 2 == 0 && pick(2))
			d2[d] = dim[d] / 2;
		x[0] = make(dt, rank, d2, depth - 1);
		d2[d] = dim[d] - d2[d];
		x[1] = make(dt, rank, d2, depth - 1);
		int64_t w[1] = { d };
		return ir_emit(&b, IR_concatenate, 2, x, t, w, 1);
	}
	case 8: case 9: {      /* pad */
		int64_t w[3 * (IR_MAX_RANK + 1)];
		int64_t *lo = w + 1, *hi = w + rank + 2, *in = w + 2 * rank + 3;
		w[0] = w[rank + 1] = w[2 * rank + 2] = rank;
		for (int d = 0; d < rank; d++) {
			in[d] = pick(5) ? 0 : 1 + pick(2);
			int64_t n = 1 + pick((int)((dim[d] - 1) / (in[d] + 1)) + 1), ext = (n - 1) * (in[d] + 1) + 1;
			if (pick(2) && !in[d])
				n = ext = dim[d] - (dim[d] > 3 && pick(2) ? pick(3) : 0);
			d2[d] = n;
			lo[d] = pick((int)(dim[d] - ext) + 1);
			if (pick(6) == 0 && ext < dim[d]) {     /* negative: the operand is cut */
				lo[d] = -(int64_t)pick(2);
			}
			hi[d] = dim[d] - ext - lo[d];
		}
		ir_val x[2];
		x[0] = make(dt, rank, d2, depth - 1);
		x[1] = scalar_const(dt);
		return ir_emit(&b, IR_pad, 2, x, t, w, (uint32_t)(3 * (rank + 1)));
	}
	case 10: {             /* convert */
		int from = small_type();
		if (dtype_info[from].cls == DT_FLOAT && dtype_info[dt].cls != DT_FLOAT)
			break;
		wide_ints += dtype_info[from].cls != DT_FLOAT && dtype_info[from].bits > 16;
		return ir_convert(&b, make(from, rank, dim, depth - 1), (enum dtype)dt);
	}
	case 11: {             /* select of a comparison */
		int ct = pick(2) ? DT_i32 : DT_u16;
		ir_val x = make(ct, rank, dim, depth - 1), y = make(ct, rank, dim, depth - 1);
		return ir_select(&b, ir_bin(&b, pick(2) ? ELEM_compare_lt : ELEM_compare_eq, x, y), make(dt, rank, dim, depth - 1), make(dt, rank, dim, depth - 1));
	}
	case 12: {             /* dynamic_slice */
		ir_val x[IR_MAX_RANK + 1];
		int64_t w[IR_MAX_RANK + 1] = { rank };
		if (!rank)
			break;
		for (int d = 0; d < rank; d++) {
			d2[d] = dim[d] + (pick(2) ? pick(4) : 0);
			w[d + 1] = dim[d];
		}
		x[0] = make(dt, rank, d2, depth - 1);
		int64_t none[1];
		for (int d = 0; d < rank; d++)
			x[d + 1] = make(DT_i32, 0, none, 1);
		return ir_emit(&b, IR_dynamic_slice, (uint32_t)rank + 1, x, t, w, (uint32_t)rank + 1);
	}
	case 13: {             /* gather: rows (or elements, if rank is 1) of a table */
		if (!rank)
			break;
		int nb = 1 + pick(rank);
		int64_t rows = 1 + pick(9), td[IR_MAX_RANK], id[IR_MAX_RANK];
		td[0] = rows;
		for (int d = nb; d < rank; d++)
			td[d - nb + 1] = dim[d];
		memcpy(id, dim, sizeof *dim * (size_t)nb);
		id[nb] = 1;
		ir_val x[2];
		x[0] = make(dt, rank - nb + 1, td, depth - 1);
		x[1] = make(pick(3) ? DT_i32 : DT_u8, nb + 1, id, depth - 1);
		int64_t w[64];
		int n = 0;
		w[n++] = rank - nb;
		for (int d = nb; d < rank; d++)
			w[n++] = d;
		w[n++] = 1; w[n++] = 0;          /* collapsed */
		w[n++] = 0; w[n++] = 0;          /* batching */
		w[n++] = 1; w[n++] = 0;          /* index map */
		w[n++] = nb;                     /* index dim */
		w[n++] = rank - nb + 1;
		w[n++] = 1;
		for (int d = nb; d < rank; d++)
			w[n++] = dim[d];
		w[n++] = 0;
		return ir_emit(&b, IR_gather, 2, x, t, w, (uint32_t)n);
	}
	case 14: {             /* a short reduction */
		if (rank > 3)
			break;
		int at = pick(rank + 1);
		for (int d = 0, k = 0; k <= rank; k++)
			d2[k] = k == at ? 2 + pick(6) : dim[d++];
		int64_t dims[1] = { at };
		enum redop op = dtype_info[dt].cls == DT_PRED ? RED_or : pick(2) ? RED_max : RED_add;
		char id[16];
		kern_identity(op, (enum dtype)dt, id);
		int had = wide_ints;
		ir_val x = make(dt, rank + 1, d2, depth - 1);
		if (op == RED_add && dtype_info[dt].cls == DT_FLOAT && wide_ints > had) {      /* sums of numbers near 2^31 that cancel are what the order makes them */
			ir_type xt = fn->val.p[x].type;
			x = ir_bin(&b, ELEM_maximum, ir_bin(&b, ELEM_minimum, x, ir_const_f(&b, xt, 32)), ir_const_f(&b, xt, -32));
		}
		return ir_reduce1(&b, op, x, ir_const(&b, ir_scalar(m, (enum dtype)dt), id, dtype_info[dt].bytes), 1, dims);
	}
	case 15: {
		int c = dtype_info[dt].cls;
		if (!with_products || count > 400 || rank > 3 || c == DT_PRED || (c != DT_FLOAT && dtype_info[dt].bits < 32))
			break;
		return rank > 1 && pick(2) ? a_convolution(dt, rank, dim, depth) : a_dot(dt, rank, dim, depth);
	}
	default:
		break;
	}
	return arith(dt, rank, dim, depth);
}

/* Extents round which code changes its shape: vectors, their rests, powers of two and their neighbours. */
static const int extents[] = { 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 127, 128, 129, 256 };

/* One of them, or any number, of at most room. */
static int64_t extent(int64_t room)
{
	int n = 1;
	while (n < (int)NELEM(extents) && extents[n] <= room)
		n++;
	return pick(5) ? extents[pick(n)] : 1 + pick((int)MIN(room, 256));
}

/* Extents of at most room elements in all, 64 first as often as not: the products of them are what is kept. */
static void extents_of(int rank, int64_t *dim, int64_t room)
{
	for (int d = 0; d < rank; d++)
		dim[d] = d == 0 && pick(4) == 0 ? MIN(64, room) : extent(room), room = MAX(room / dim[d], 1);
	for (int d = rank - 1; d > 0; d--) {
		int e = pick(d + 1);
		int64_t t = dim[d];
		dim[d] = dim[e];
		dim[e] = t;
	}
}

static int refused, ran;
static bool one(uint64_t seed, void (*build)(void));

static bool same_results(struct gen_case *c, uint64_t seed)
{
	bool ok = true;
	for (size_t r = 0; ok && r < c->fn->result.n; r++) {
		const struct ir_type_info *t = ir_vtype(m, c->fn, c->fn->result.p[r]);
		int es = dtype_info[t->dtype].bytes;
		for (int64_t i = 0; ok && i < t->count; i++) {
			const char *g = (char *)c->got[r] + i * es, *w = (char *)c->want[r].p + i * es;
			double u = ulps(t->dtype, g, w);
			if (u > 0 && dtype_info[t->dtype].cls == DT_FLOAT) {
				double x = as_double(t->dtype, g), y = as_double(t->dtype, w);
				double tol = t->dtype == DT_bf16 ? 0.02 : t->dtype == DT_f16 ? 3e-3 : 1e-4;
				if (fabs(x - y) <= tol * fmax(fmax(fabs(x), fabs(y)), 1))
					u = 0;
			}
			if (u > 0) {
				printf("seed %llu result %zu element %lld of %lld (%s): ", (unsigned long long)seed, r, (long long)i, (long long)t->count, dtype_info[t->dtype].name);
				if (dtype_info[t->dtype].cls == DT_FLOAT)
					printf("got %g, want %g\n", as_double(t->dtype, g), as_double(t->dtype, w));
				else
					printf("got %02x.., want %02x..\n", (uint8_t)*g, (uint8_t)*w);
				ok = false;
			}
		}
	}
	return ok;
}

static bool compare(struct gen_case *c, uint64_t seed) { return case_run(c, false) && same_results(c, seed); }

static bool one(uint64_t seed, void (*build)(void))
{
	rng_state = seed * 0x9e3779b97f4a7c15ull + 1;
	rng();
	m = ir_module_new();
	fn = ir_fn_new(m, "g");
	build();
	const char *why = NULL;
	bool ok = true;
	if (getenv("VERBOSE")) {       /* before anything that may not come back */
		struct str s = { 0 };
		ir_print(&s, m);
		fprintf(stderr, "seed %llu\n%s\n", (unsigned long long)seed, s.p);
		str_free(&s);
	}
	struct err *ve = ir_verify(m);
	if (ve) {
		printf("seed %llu: the test's own program is wrong: %s\n", (unsigned long long)seed, ve->msg);
		err_free(ve);
		ir_module_free(m);
		return false;
	}
	if (!gen_can(m, fn, &why)) {
		refused++;
		if (getenv("VERBOSE"))
			printf("seed %llu refused: %s\n", (unsigned long long)seed, why);
	} else {
		ran++;
		struct gen_case c = { m, fn, NULL, NULL, NULL };
		ok = compare(&c, seed);
		case_free(&c);
		if (!ok) {
			struct str s = { 0 };
			ir_print(&s, m);
			printf("%s\n", s.p);
			str_free(&s);
		}
	}
	ir_module_free(m);
	return ok;
}

static void params(void)
{
	static const int t[] = { DT_i32, DT_f32, DT_i8, DT_u16, DT_bf16, DT_u32, DT_i64, DT_f64, DT_f16, DT_pred, DT_u8, DT_i4 };
	int64_t n[1] = { 200000 };
	for (size_t i = 0; i < sizeof t / sizeof *t; i++)
		ir_param(fn, tens(t[i], 1, n));
	ir_param(fn, ir_scalar(m, DT_i32));
	b = (struct ir_b){ m, fn, 0 };
}

static void build_point(void)
{
	int rank = pick(4);
	int64_t dim[4];
	extents_of(rank, dim, 1 << 13);
	params();
	budget = 4 + pick(14);
	ir_result(fn, make(small_type(), rank, dim, 5));
	if (pick(3) == 0) {
		budget = 5;
		ir_result(fn, make(small_type(), rank, dim, 3));
	}
}

/* Values of a matrix and of its rows (or columns), reductions and broadcasts between them. */
static void build_row(void)
{
	int64_t full[3], kept[3], rd[3], kd[3];
	int rank = 2 + pick(2), nr = 0, nk = 0, mode = pick(4);
	extents_of(rank, full, 1 << 14);
	if (pick(6) == 0)
		full[rank - 1] = 512 + pick(700), full[0] = MIN(full[0], 8);
	for (int d = 0; d < rank; d++) {
		bool red = mode == 0 ? d == rank - 1 : mode == 1 ? d == 0 : mode == 2 ? d > 0 : pick(2);
		if (red) {
			rd[nr++] = d;
		} else {
			kd[nk] = d;
			kept[nk++] = full[d];
		}
	}
	static const int types[] = { DT_f32, DT_f32, DT_bf16, DT_i32, DT_f64, DT_f16 };
	int dt = types[pick(6)];
	ir_type tf = tens(dt, rank, full), tr = tens(dt, nk, kept);
	int64_t turn[3], turned[3];
	for (int d = 0; d < rank; d++) {
		turn[d] = (d + 1) % rank;
		turned[turn[d]] = full[d];
	}
	ir_val f[16], r[16];
	int nf = 0, nrow = 0;
	f[nf++] = ir_param(fn, tf);
	f[nf++] = ir_param(fn, pick(2) ? tf : tens(dt, rank, turned));
	r[nrow++] = ir_param(fn, tr);
	b = (struct ir_b){ m, fn, 0 };
	if (fn->val.p[f[1]].type != tf)
		f[1] = ir_transpose(&b, f[1], turn);
	static const enum elem ops[] = { ELEM_add, ELEM_subtract, ELEM_multiply, ELEM_maximum, ELEM_minimum };
	/* dear enough to be kept from one loop over the row to the next; of one sign, for the sake of the sums */
#define DEAR(x) (pick(2) ? ir_un(&b, ELEM_logistic, x) : ir_un(&b, ELEM_exponential, ir_bin(&b, ELEM_minimum, x, ir_const_f(&b, tf, 0))))
	if (dtype_info[dt].cls == DT_FLOAT && pick(2))
		f[nf++] = DEAR(ir_bin(&b, ops[pick(5)], f[0], f[1]));
	int steps = 3 + pick(8);
	for (int i = 0; i < steps && nf < 14 && nrow < 15; i++) {
		switch (pick(dtype_info[dt].cls == DT_FLOAT ? 7 : 5)) {
		case 5: case 6:
			f[nf] = DEAR(f[pick(nf)]);
			nf++;
			break;
		case 0: case 1: {
			static const enum redop red[] = { RED_add, RED_max, RED_min, RED_add };
			char id[16];
			enum redop op = red[pick(4)];
			kern_identity(op, (enum dtype)dt, id);
			ir_val x = ir_reduce1(&b, op, f[pick(nf)], ir_const(&b, ir_scalar(m, (enum dtype)dt), id, dtype_info[dt].bytes), nr, rd);
			if (op == RED_add && dt != DT_i32)       /* keep sizes down */
				x = ir_bin(&b, ELEM_multiply, x, ir_const_f(&b, tr, 0.0625));
			r[nrow++] = x;
			break;
		}
		case 2:
			f[nf++] = ir_broadcast(&b, r[pick(nrow)], tf, kd);
			break;
		case 3:
			r[nrow] = ir_bin(&b, ops[pick(5)], r[pick(nrow)], r[pick(nrow)]);
			nrow++;
			break;
		default:
			f[nf] = ir_bin(&b, ops[pick(5)], f[pick(nf)], f[pick(nf)]);
			nf++;
			break;
		}
	}
	ir_val last = f[nf - 1];
	if (pick(2))           /* the whole, after the sums over it */
		last = ir_bin(&b, ELEM_multiply, f[MIN(2, nf - 1)], ir_broadcast(&b, r[nrow - 1], tf, kd));
	ir_result(fn, last);
	if (pick(2))
		ir_result(fn, r[nrow - 1]);
}

/* Dear values of a whole array, one operand turned, that are needed again after the sum over all of it: what is kept in between is an
 * array over two or three loops, of any extents, or over some of them. */
static int64_t kept_dim[3];
static int kept_rank, kept_some;
static void build_kept(void)
{
	int64_t turned[3], perm[3], all[3] = { 0, 1, 2 };
	for (int d = 0; d < kept_rank; d++) {
		perm[d] = kept_rank - 1 - d;
		turned[perm[d]] = kept_dim[d];
	}
	ir_type t = tens(DT_f32, kept_rank, kept_dim), s = ir_scalar(m, DT_f32);
	ir_val x = ir_param(fn, t), y = ir_param(fn, tens(DT_f32, kept_rank, turned));
	int64_t some = kept_some;            /* the dimension of a value that is spread over the others; kept_rank: there is none */
	ir_val z = some < kept_rank ? ir_param(fn, tens(DT_f32, 1, &kept_dim[some])) : 0;
	b = (struct ir_b){ m, fn, 0 };
	ir_val u = ir_un(&b, ELEM_logistic, ir_bin(&b, ELEM_subtract, x, ir_transpose(&b, y, perm)));
	if (z) {
		z = ir_un(&b, ELEM_logistic, ir_broadcast(&b, z, t, &some));
		u = pick(2) ? z : ir_bin(&b, ELEM_add, u, z);
	}
	ir_val sum = ir_reduce1(&b, RED_add, u, ir_const_f(&b, s, 0), kept_rank, all);
	ir_result(fn, ir_bin(&b, ELEM_multiply, u, ir_broadcast(&b, sum, t, all)));
}

static bool kept(void)
{
	static const int64_t ext[] = { 1, 2, 8, 16, 32, 63, 64, 65, 127, 128, 129, 256 };
	bool ok = true;
	for (int i = 0; i < (int)NELEM(ext); i++)
		for (int how = 0; how < 3; how++) {
			int64_t e = ext[i], dim[3][3] = { { 64, e }, { e, 64 }, { 8, 8, MIN(e, 129) } };
			kept_rank = how < 2 ? 2 : 3;
			memcpy(kept_dim, dim[how], sizeof kept_dim);
			for (kept_some = 0; kept_some <= kept_rank; kept_some++)
				ok &= one(400000 + (uint64_t)(12 * i + 4 * how + kept_some), build_kept);
		}
	return ok;
}

/* Every second, third, .. element of a short array that ends where memory does. */
static int64_t every_dim[2];
static void build_every(void)
{
	int64_t turned[2] = { every_dim[1], every_dim[0] }, perm[2] = { 1, 0 }, last[1] = { 1 }, first[1] = { 0 };
	ir_type t = tens(DT_f32, 2, every_dim), s = ir_scalar(m, DT_f32);
	ir_val x = ir_param(fn, t), y = ir_param(fn, tens(DT_f32, 2, turned));
	b = (struct ir_b){ m, fn, 0 };
	ir_val z = ir_bin(&b, ELEM_minimum, x, ir_transpose(&b, y, perm)), u = ir_un(&b, ELEM_exponential, ir_bin(&b, ELEM_minimum, z, ir_const_f(&b, t, 0)));
	ir_val sum = ir_reduce1(&b, RED_add, x, ir_const_f(&b, s, 0), 1, last);
	ir_result(fn, ir_bin(&b, ELEM_multiply, u, ir_broadcast(&b, sum, t, first)));
}

static bool every(void)
{
	bool ok = true;
	for (every_dim[0] = 2; every_dim[0] <= 17; every_dim[0] += every_dim[0] < 5 ? 1 : 3)
		for (every_dim[1] = 2; every_dim[1] <= 17; every_dim[1]++)
			for (uint64_t k = 0; k < 6; k++)
				ok &= one(500000 + 10000 * k + (uint64_t)(every_dim[0] * 100 + every_dim[1]), build_every);
	return ok;
}

/* Rows of a few elements beside something for each place in a row and for each row, what stands elsewhere in the row, and sums of it. */
static int64_t period_dim[3];
static void build_period(void)
{
	static const int types[] = { DT_f32, DT_f32, DT_bf16, DT_i32, DT_u8, DT_f64, DT_f16, DT_i8, DT_pred };
	static const enum elem ops[] = { ELEM_add, ELEM_multiply, ELEM_maximum, ELEM_minimum };
	int rank = period_dim[2] ? 3 : 2;
	int dt = types[pick(9)];
	int64_t n = period_dim[0], p = period_dim[1], dim[3] = { n, p }, at[2] = { rank - 1, 0 };
	if (rank == 3) {
		dim[1] = period_dim[2];
		dim[2] = p;
	}
	ir_type t = tens(dt, rank, dim);
	ir_val x[24], scale = ir_param(fn, tens(dt, 1, &p)), row = ir_param(fn, tens(dt, 1, dim)), other = ir_param(fn, tens(dt, 1, &p));
	ir_val index = ir_param(fn, tens(DT_i32, 2, (int64_t[]){ n, 1 }));
	ir_val turned = ir_param(fn, tens(dt, 2, (int64_t[]){ p, n }));
	int k = 0, steps = 2 + pick(6);
	x[k++] = ir_param(fn, t);
	x[k++] = ir_param(fn, t);
	b = (struct ir_b){ m, fn, 0 };
	if (rank == 2)
		x[k++] = ir_transpose(&b, turned, (int64_t[]){ 1, 0 });
	x[k++] = ir_broadcast(&b, dt == DT_pred ? scale : ir_bin(&b, ops[pick(4)], scale, other), t, &at[0]);
	x[k++] = ir_broadcast(&b, row, t, &at[1]);
	if (dt != DT_pred)
		x[k++] = ir_iota(&b, t, pick(rank));
	for (int i = 0; i < steps; i++) {
		ir_val u = x[pick(k)], v = x[pick(k)];
		switch (pick(10)) {
		case 0: case 1: {
			int64_t w[2] = { 1, pick(3) ? rank - 1 : pick(rank) };
			x[k++] = ir_emit(&b, IR_reverse, 1, &u, t, w, 2);
			break;
		}
		case 2: {      /* the last of each row first */
			if (rank == 3)
				break;
			int64_t zero[2] = { 0, 0 }, one[2] = { 1, 1 }, cut[2] = { 0, p - 1 }, end[2] = { n, p - 1 }, d = 1;
			ir_val part[2] = { ir_slice(&b, u, cut, dim, one), ir_slice(&b, v, zero, end, one) };
			x[k++] = p > 1 ? ir_emit(&b, IR_concatenate, 2, part, t, &d, 1) : u;
			break;
		}
		case 3: {      /* columns side by side, each something else */
			if (rank == 3)
				break;
			ir_val part[17];
			int64_t one[2] = { n, 1 }, step[2] = { 1, 1 }, d = 1;
			for (int64_t c = 0; c < p; c++) {
				ir_val col = ir_slice(&b, x[pick(k)], (int64_t[]){ 0, c }, (int64_t[]){ n, c + 1 }, step), more = ir_reshape(&b, row, 2, one);
				part[c] = dt == DT_pred ? ir_bin(&b, ELEM_xor, col, more) : ir_bin(&b, ops[pick(4)], col, more);
			}
			x[k++] = p > 1 ? ir_emit(&b, IR_concatenate, (uint32_t)p, part, t, &d, 1) : u;
			break;
		}
		case 4: {
			if (rank == 3 || dt == DT_pred)
				break;
			int64_t w[14] = { 1, 1, 1, 0, 0, 0, 1, 0, 1, 2, 1, p };
			x[k++] = ir_emit(&b, IR_gather, 2, (ir_val[]){ u, index }, t, w, 13);
			break;
		}
		case 5: {
			if (dtype_info[dt].cls != DT_FLOAT)
				break;
			ir_val sum = ir_reduce1(&b, RED_max, u, ir_const_f(&b, ir_scalar(m, (enum dtype)dt), 0), 1, (int64_t[]){ rank - 1 });
			x[k++] = ir_broadcast(&b, sum, t, (int64_t[]){ 0, 1 });
			break;
		}
		default:
			x[k++] = dt == DT_pred ? ir_bin(&b, pick(2) ? ELEM_and : ELEM_xor, u, v) : ir_bin(&b, ops[pick(4)], u, v);
		}
	}
	ir_result(fn, x[k - 1]);
	if (pick(2))
		ir_result(fn, ir_bin(&b, dt == DT_pred ? ELEM_or : ELEM_maximum, x[pick(k)], x[pick(k)]));
}

static bool period(void)
{
	static const int64_t rows[] = { 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 130, 4096, 4099, 4107, 4111 };
	bool ok = true;
	for (size_t r = 0; r < NELEM(rows); r++)
		for (int64_t p = 1; p <= 17; p += p < 8 ? 1 : 2)
			for (uint64_t k = 0; k < (rows[r] > 1000 ? 2 : 4); k++) {
				period_dim[0] = rows[r];
				period_dim[1] = p;
				period_dim[2] = k == 3 ? 5 : 0;
				uint64_t at = 10000 * k + (uint64_t)(rows[r] * 20 + p);
				ok &= !drawn(at) || one(600000 + at, build_period);
			}
	return ok;
}

/* Operands of the results' shape, read at the index of the result or at another: which of them may be the result's array? */
static void build_over(void)
{
	static const int types[] = { DT_f32, DT_i32, DT_bf16, DT_f64 }, ext[] = { 5, 8, 33, 64, 65 };
	static const enum elem ops[] = { ELEM_add, ELEM_subtract, ELEM_maximum };
	int64_t dim[2] = { ext[pick(5)] }, turn[2] = { 1, 0 }, half[2];
	dim[1] = dim[0];
	int dt = types[pick(4)];
	ir_type t = tens(dt, 2, dim);
	ir_val x[24];
	int n = 0, steps = 2 + pick(6), kept = pick(6) ? 0 : pick(2) + 1;
	while (n < 3)
		x[n++] = ir_param(fn, t);
	b = (struct ir_b){ m, fn, 0 };
	for (int i = 0; i < steps; i++) {
		ir_val u = x[pick(n)], v = x[pick(n)];
		switch (pick(9)) {
		case 0:
			x[n++] = ir_broadcast(&b, u, t, turn);
			break;
		case 1:
			x[n++] = ir_transpose(&b, u, turn);
			break;
		case 2: {
			int64_t w[2] = { 1, pick(2) };
			x[n++] = ir_emit(&b, IR_reverse, 1, &u, t, w, 2);
			break;
		}
		case 3: {      /* the first rows of one, the last of another */
			int64_t zero[2] = { 0, 0 }, one[2] = { 1, 1 }, d = pick(2), cut[2] = { 0, 0 };
			half[0] = half[1] = dim[0];
			cut[d] = half[d] = 1 + pick((int)dim[0] - 1);
			ir_val part[2] = { ir_slice(&b, u, zero, half, one), ir_slice(&b, v, cut, dim, one) };
			x[n++] = ir_emit(&b, IR_concatenate, 2, part, t, &d, 1);
			break;
		}
		default:
			x[n++] = ir_bin(&b, ops[pick(3)], u, v);
		}
	}
	ir_result(fn, x[n - 1]);
	while (kept-- > 0)
		ir_result(fn, x[3 + pick(n - 3)]);
}

/* Parts of a result that are read along its columns: each by itself, since addresses in one part mean nothing in another. */
static bool text_on(const char *text, uint64_t seed)
{
	rng_state = seed;                                     /* of the layouts of operands and result, and of what is in them */
	struct err *e = ir_parse(text, strlen(text), &m);
	if (e) {
		printf("%s\n", e->msg);
		return false;
	}
	struct gen_case c = { m, ir_main(m), NULL, NULL, NULL };
	bool ok = compare(&c, seed);
	case_free(&c);
	ir_module_free(m);
	return ok;
}

/* Values of 15 elements in vectors of 16: the spare lane of a divisor. */
static bool spare(void)
{
	static const char *const type[] = { "i4", "i8", "i32", "i64", "u32" };
	static const char text[] =
		"module @\"\" partitions=1 replicas=1\n"
		"fn @main(%%1: i32[], %%2: %1$s[15], %%3: %1$s[15]) -> (%1$s[15]) {\n"
		"  %%4 = case %%1, %%2, %%3 branch=[@same,@quotient] : %1$s[15]\n"
		"  return %%4\n"
		"}\n"
		"fn @same(%%1: %1$s[15], %%2: %1$s[15]) -> (%1$s[15]) {\n"
		"  return %%1\n"
		"}\n"
		"fn @quotient(%%1: %1$s[15], %%2: %1$s[15]) -> (%1$s[15]) {\n"
		"  %%3 = constant data=[1,2,3,4,5,6,7,5,3,2,5,6,7,3,2] : %1$s[3,5]\n"
		"  %%4 = transpose %%3 perm=[1,0] : %1$s[5,3]\n"
		"  %%5 = reshape %%4 : %1$s[15]\n"
		"  %%6 = divide %%1, %%5 : %1$s[15]\n"
		"  %%7 = remainder %%2, %%5 : %1$s[15]\n"
		"  %%8 = add %%6, %%7 : %1$s[15]\n"
		"  return %%8\n"
		"}\n";
	bool ok = true;
	for (size_t i = 0; i < NELEM(type); i++)
		for (uint64_t seed = 1; seed <= 8; seed++) {
			char own[2048];
			snprintf(own, sizeof own, text, type[i]);
			ok &= text_on(own, seed);
		}
	return ok;
}

/* The text on 24 seeds, so far apart. */
static bool text_often(const char *text, uint64_t apart)
{
	bool ok = true;
	for (uint64_t seed = 1; seed <= 24; seed++)
		ok &= text_on(text, seed * apart);
	return ok;
}

static bool parts(void)
{
	static const char text[] =
		"module @\"\" partitions=1 replicas=1\n"
		"fn @g(%1: pred[760], %2: pred[1007]) -> (pred[33,129]) {\n"
		"  %3 = iota dim=0 : i32[14,129]\n"
		"  %4 = convert %3 : pred[14,129]\n"
		"  %5 = reshape %1 : pred[19,40]\n"
		"  %6 = reshape %2 : pred[19,53]\n"
		"  %7 = constant data=false : pred[]\n"
		"  %8 = pad %6, %7 low=[0,20] high=[0,16] interior=[0,0] : pred[19,89]\n"
		"  %9 = concatenate %5, %8 dim=1 : pred[19,129]\n"
		"  %10 = concatenate %4, %9 dim=0 : pred[33,129]\n"
		"  return %10\n"
		"}\n";
	return text_often(text, 1);
}

/* The second result reads what the first must therefore not lie over. */
static bool behind(void)
{
	static const char text[] =
		"module @\"\" partitions=1 replicas=1\n"
		"fn @g(%1: f32[15], %2: f32[15,16]) -> (f32[15,16], f32[15,16]) {\n"
		"  %3 = broadcast %1 dims=[0] : f32[15,16]\n"
		"  %4 = constant data=0 : f32[]\n"
		"  %5 = reduce %3, %4 dims=[1] redop=max : f32[15]\n"
		"  %6 = broadcast %5 dims=[0] : f32[15,16]\n"
		"  %7 = maximum %2, %6 : f32[15,16]\n"
		"  return %6, %7\n"
		"}\n";
	return text_often(text, 0x9e3779b97f4a7c15u);
}

/* argmax and argmin as JAX writes them: two operands and a reducer of comparisons. */
static void build_arg(void)
{
	int64_t dim[2] = { 1 + pick(40), 9 + pick(200) }, red[1] = { pick(2) }, kept[1] = { dim[1 - red[0]] };
	int dt = pick(2) ? DT_f32 : DT_i32;
	ir_type s = ir_scalar(m, (enum dtype)dt), si = ir_scalar(m, DT_i32);
	struct ir_fn *g = ir_fn_new(m, "pick");
	ir_val a0 = ir_param(g, s), a1 = ir_param(g, si), x0 = ir_param(g, s), x1 = ir_param(g, si);
	struct ir_b rb = { m, g, 0 };
	ir_val gt = ir_bin(&rb, ELEM_compare_gt, a0, x0), eq = ir_bin(&rb, ELEM_compare_eq, a0, x0), lt = ir_bin(&rb, ELEM_compare_lt, a1, x1);
	ir_val first = ir_bin(&rb, ELEM_or, gt, ir_bin(&rb, ELEM_and, eq, lt));
	ir_result(g, ir_select(&rb, gt, a0, x0));
	ir_result(g, ir_select(&rb, first, a1, x1));
	ir_val x = ir_param(fn, tens(dt, 2, dim));
	b = (struct ir_b){ m, fn, 0 };
	ir_val in[4] = { x, ir_iota(&b, tens(DT_i32, 2, dim), (int)red[0]), 0, 0 };
	char id[16];
	kern_identity(RED_max, (enum dtype)dt, id);
	in[2] = ir_const(&b, s, id, dtype_info[dt].bytes);
	in[3] = ir_const_i(&b, si, 0);
	ir_type out[2] = { tens(dt, 1, kept), tens(DT_i32, 1, kept) };
	int64_t w[4] = { 1, red[0], RED_fn, g->id };
	ir_val v = ir_emit_raw(&b, IR_reduce, 4, in, 2, out, w, 4);
	ir_result(fn, v);
	ir_result(fn, v + 1);
}

/* A loop (counted with stacks, or while) and branches over small values. */
static void build_loop(void)
{
	static const int t[] = { DT_i32, DT_f32, DT_i8, DT_u16, DT_bf16, DT_u32, DT_i64, DT_f64, DT_f16, DT_pred, DT_u8, DT_i4 };
	struct ir_fn *outer = fn, *body = ir_fn_new(m, "body"), *cond = NULL;
	bool counted = pick(3) > 0;
	with_products = true;
	int64_t trip = counted ? pick(5) : -1, role[64], n = 0;
	ir_type ty[64];
	int64_t flat[1] = { 96 };
	for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
		role[n] = ROLE_CONST;
		ty[n++] = tens(t[i], 1, flat);
	}
	int ncarry = 1 + pick(3), nio = counted ? pick(3) : 0;
	int64_t dim[64][3];
	int rank[64], dt[64];
	for (int i = 0; i < ncarry + 2 * nio; i++) {
		rank[i] = pick(3);
		dt[i] = t[pick(12)];
		for (int d = 0; d < rank[i]; d++)
			dim[i][d] = 1 + pick(5);
		if (i < ncarry) {
			role[n] = ROLE_CARRY;
			ty[n++] = tens(dt[i], rank[i], dim[i]);
		} else {
			int64_t sd[4] = { MAX(trip, 1) + pick(2) };
			memcpy(sd + 1, dim[i], sizeof *sd * (size_t)rank[i]);
			role[n] = i < ncarry + nio ? ROLE_IN + pick(2) : ROLE_OUT + pick(2);
			ty[n++] = tens(dt[i], rank[i] + 1, sd);
		}
	}
	ir_type i32 = ir_scalar(m, DT_i32);
	if (!counted) {            /* a counter of its own */
		role[n] = ROLE_CARRY;
		ty[n++] = i32;
	}
	ir_val arg[64];
	for (int k = 0; k < n; k++)
		arg[k] = ir_param(outer, ty[k]);
	/* the body */
	fn = body;
	ir_param(body, i32);
	ir_val last = 0;
	for (int k = 0, j = 0; k < n; k++) {
		if (role[k] == ROLE_CARRY || role[k] == ROLE_CONST)
			last = ir_param(body, ty[k]);
		else if (role[k] == ROLE_IN || role[k] == ROLE_IN_REV)
			ir_param(body, tens(dt[ncarry + j], rank[ncarry + j], dim[ncarry + j]));
		j += role[k] == ROLE_IN || role[k] == ROLE_IN_REV;
	}
	b = (struct ir_b){ m, body, 0 };
	int nres = 0;
	ir_val res[64];
	for (int i = 0; i < ncarry; i++) {
		budget = 6;
		res[nres++] = make(dt[i], rank[i], dim[i], 3);
		if (pick(3) == 0) {    /* a branch */
			struct ir_fn *br[2];
			for (int k = 0; k < 2; k++) {
				br[k] = ir_fn_new(m, "branch");
				ir_val p = ir_param(br[k], tens(dt[i], rank[i], dim[i]));
				struct ir_b bb = { m, br[k], 0 };
				ir_result(br[k], k && dt[i] != DT_pred ? ir_bin(&bb, ELEM_add, p, p) : p);
			}
			ir_val in[2] = { 1, res[i] };
			int64_t w[3] = { 2, br[0]->id, br[1]->id };
			ir_type ct = tens(dt[i], rank[i], dim[i]);
			res[i] = ir_emit_raw(&b, IR_case, 2, in, 1, &ct, w, 3);
		}
	}
	if (!counted)
		res[nres++] = ir_bin(&b, ELEM_add, last, ir_const_i(&b, i32, 1));
	for (int i = 0; i < nio; i++) {
		budget = 4;
		res[nres++] = make(dt[ncarry + nio + i], rank[ncarry + nio + i], dim[ncarry + nio + i], 2);
	}
	for (int i = 0; i < nres; i++)
		ir_result(body, res[i]);
	with_products = false;
	if (!counted) {
		cond = ir_fn_new(m, "cond");
		for (int k = 0; k < n; k++)
			last = ir_param(cond, ty[k]);
		struct ir_b cb = { m, cond, 0 };
		/* the counter starts anywhere: run while its low bits are not full */
		ir_result(cond, ir_bin(&cb, ELEM_compare_ne, ir_bin(&cb, ELEM_and, last, ir_const_i(&cb, i32, 3)), ir_const_i(&cb, i32, 3)));
	}
	fn = outer;
	b = (struct ir_b){ m, fn, 0 };
	ir_type rt[64];
	int nrt = 0;
	for (int k = 0; k < n; k++)
		if (role[k] == ROLE_CARRY)
			rt[nrt++] = ty[k];
	for (int k = 0; k < n; k++)
		if (role[k] == ROLE_OUT || role[k] == ROLE_OUT_REV)
			rt[nrt++] = ty[k];
	int64_t w[70] = { trip, cond ? cond->id : 0, body->id, n };
	memcpy(w + 4, role, sizeof *role * (size_t)n);
	ir_val v = ir_emit_raw(&b, IR_loop, (uint32_t)n, arg, (uint32_t)nrt, rt, w, (uint32_t)n + 4);
	for (int i = 0; i < nrt; i++)
		ir_result(fn, v + (uint32_t)i);
}

/* --- whole programs: loops in loops, branches and what is updated in place, compiled and run on both tiers --------------------- */

static const int flat_type[] = { DT_i32, DT_f32, DT_i8, DT_u16, DT_u32, DT_i64, DT_f64, DT_pred, DT_u8 };
enum { NFLAT = 9, FLAT = 300 };
/* What the function that is being built may use: its values, long vectors to take pieces of, an index. */
struct scope { ir_val v[96], flat[NFLAT], index; int n; };
static struct scope *at;

static void keep(ir_val v)
{
	if (at->n < 96)
		at->v[at->n++] = v;
}

/* The last value of type t, or another one; 0: there is none. */
static ir_val of_type(ir_type t, bool last)
{
	ir_val found = 0;
	for (int i = at->n - 1; i >= 0; i--)
		if (fn->val.p[at->v[i]].type == t && (!found || pick(2))) {
			found = at->v[i];
			if (last)
				break;
		}
	return found;
}

static ir_val combine(int dt, ir_val x, ir_val y)
{
	static const enum elem num[] = { ELEM_add, ELEM_subtract, ELEM_maximum, ELEM_minimum }, pred[] = { ELEM_and, ELEM_or, ELEM_xor };
	return ir_bin(&b, dtype_info[dt].cls == DT_PRED ? pred[pick(3)] : num[pick(4)], x, y);
}

/* A start: the index of the loop or near it, or a number that may be outside. */
static ir_val start(int64_t extent)
{
	ir_type i32 = ir_scalar(m, DT_i32);
	if (!at->index || pick(3) == 0)
		return ir_const_i(&b, i32, pick((int)extent + 3) - 1);
	ir_val k = ir_const_i(&b, i32, pick((int)extent + 1));
	return pick(3) ? at->index : pick(2) ? ir_bin(&b, ELEM_subtract, k, at->index) : ir_bin(&b, ELEM_add, k, at->index);
}

/* Another value of x's type. */
static ir_val again(ir_val x)
{
	ir_type t = fn->val.p[x].type;
	const struct ir_type_info ti = *ir_type_of(m, t);
	int rank = ti.rank, dt = ti.dtype, d = rank ? pick(rank) : 0;
	int64_t dim[IR_MAX_RANK], lo[IR_MAX_RANK] = { 0 }, hi[IR_MAX_RANK], one[IR_MAX_RANK], w[3 * (IR_MAX_RANK + 1)] = { 0 };
	memcpy(dim, ti.dim, sizeof *dim * (size_t)rank);
	for (int k = 0; k < rank; k++) {
		hi[k] = dim[k];
		one[k] = 1;
	}
	int64_t n = rank ? dim[d] : 1;
	bool sums = dt == DT_f32 || dt == DT_f64 || dt == DT_i32 || dt == DT_u32 || dt == DT_i64;
	switch (rank ? pick(sums ? 11 : 10) : 9) {
	case 0: {              /* moved along, or spread out and cut, to the extent that it had */
		int64_t in = pick(3) == 0, by = in ? 0 : pick(2) ? 1 : -1;
		w[0] = w[rank + 1] = w[2 * rank + 2] = rank;
		w[1 + d] = by;
		w[rank + 2 + d] = in ? -(n - 1) : -by;
		w[2 * rank + 3 + d] = in;
		ir_val p[2] = { x, scalar_const(dt) };
		return ir_emit(&b, IR_pad, 2, p, t, w, (uint32_t)(3 * (rank + 1)));
	}
	case 1: {
		int64_t r[2] = { 1, d };
		return ir_emit(&b, IR_reverse, 1, &x, t, r, 2);
	}
	case 2: {              /* less the largest along some dimensions, leading ones at times */
		int64_t red[IR_MAX_RANK], kept[IR_MAX_RANK];
		int nr = 0, nk = 0, lead = pick(2) ? 1 + pick(rank) : 0;
		for (int k = 0; k < rank; k++)
			if (lead ? k < lead : k == d || pick(2))
				red[nr++] = k;
			else
				kept[nk++] = k;
		enum redop op = dt == DT_pred ? RED_or : pick(2) ? RED_max : RED_min;
		char id[16];
		kern_identity(op, (enum dtype)dt, id);
		ir_val r = ir_reduce1(&b, op, x, ir_const(&b, ir_scalar(m, (enum dtype)dt), id, dtype_info[dt].bytes), nr, red);
		return combine(dt, x, ir_broadcast(&b, r, t, kept));
	}
	case 3: case 4: {      /* a part of it, or of another, written somewhere */
		ir_val from = of_type(t, false), p[IR_MAX_RANK + 2] = { x };
		lo[d] = pick((int)n);
		hi[d] = lo[d] + 1 + pick((int)(n - lo[d]));
		p[1] = combine(dt, ir_slice(&b, x, lo, hi, one), ir_slice(&b, from ? from : x, lo, hi, one));
		for (int k = 0; k < rank; k++)
			p[2 + k] = start(dim[k]);
		return ir_emit(&b, IR_dynamic_update_slice, (uint32_t)rank + 2, p, t, NULL, 0);
	}
	case 5: {              /* a row from somewhere, over all of it */
		ir_val p[IR_MAX_RANK + 1] = { x };
		int64_t row[IR_MAX_RANK], all[IR_MAX_RANK];
		int nk = 0;
		w[0] = rank;
		for (int k = 0; k < rank; k++) {
			p[1 + k] = start(dim[k]);
			w[1 + k] = k == d ? 1 : dim[k];
			if (k != d) {
				all[nk] = k;
				row[nk++] = dim[k];
			}
		}
		ir_val r = ir_emit(&b, IR_dynamic_slice, (uint32_t)rank + 1, p, ir_tensor(m, (enum dtype)dt, rank, w + 1), w, (uint32_t)rank + 1);
		return combine(dt, x, ir_broadcast(&b, ir_reshape(&b, r, nk, row), t, all));
	}
	case 6: {              /* turned round */
		if (n < 2)
			break;
		int64_t cut[IR_MAX_RANK] = { 0 }, a = d;
		cut[d] = 1 + pick((int)n - 1);
		ir_val p[2] = { ir_slice(&b, x, cut, dim, one), 0 };
		hi[d] = cut[d];
		p[1] = ir_slice(&b, x, lo, hi, one);
		return ir_emit(&b, IR_concatenate, 2, p, t, &a, 1);
	}
	case 7:                /* with itself turned over */
		for (int e = 0; e < rank; e++)
			if (e != d && dim[e] == n) {
				int64_t p[IR_MAX_RANK];
				for (int k = 0; k < rank; k++)
					p[k] = k == d ? e : k == e ? d : k;
				return combine(dt, x, pick(2) ? ir_transpose(&b, x, p) : ir_broadcast(&b, x, t, p));
			}
		break;
	case 8:
		budget = 5;
		return combine(dt, x, make(dt, rank, dim, 2));
	case 10: {             /* times a square matrix, either way round */
		const int64_t square[2] = { n, n };
		ir_val a = of_type(tens(dt, 2, square), false), p[2] = { x, a };
		int64_t gone[2] = { d, pick(2) }, perm[IR_MAX_RANK];
		int first = pick(2), out = 0;
		if (!a)
			break;
		ir_val y = ir_dot(&b, bounded(p[first]), bounded(p[!first]), (enum dtype)dt, 0, NULL, NULL, 1, &gone[first], &gone[!first]);
		for (int k = 0; k < rank; k++)           /* what a leaves stands before or behind all that x leaves */
			perm[k] = k == d ? (first ? 0 : rank - 1) : first + out++;
		return ir_transpose(&b, y, perm);
	}
	}
	ir_val y = of_type(t, false);
	return combine(dt, x, y ? y : x);
}

/* One of x's slices along some dimension, from somewhere. */
static ir_val one_slice(ir_val x)
{
	const struct ir_type_info ti = *ir_type_of(m, fn->val.p[x].type);
	int rank = ti.rank, d = pick(rank), nk = 0;
	int64_t w[IR_MAX_RANK + 1] = { rank }, left[IR_MAX_RANK];
	ir_val p[IR_MAX_RANK + 1] = { x };
	for (int k = 0; k < rank; k++) {
		p[1 + k] = start(ti.dim[k]);
		w[1 + k] = k == d ? 1 : ti.dim[k];
		if (k != d)
			left[nk++] = ti.dim[k];
	}
	return ir_reshape(&b, ir_emit(&b, IR_dynamic_slice, (uint32_t)rank + 1, p, ir_tensor(m, (enum dtype)ti.dtype, rank, w + 1), w, (uint32_t)rank + 1), nk, left);
}

static int rank_of(const struct ir_fn *f, ir_val v) { return ir_type_of(m, f->val.p[v].type)->rank; }

static void flow_steps(int depth, int n);

/* A function of its own: parameters from k on are values, the long vectors come first. */
static struct ir_fn *enter(const char *name, struct scope *s, ir_type index, int nflat, const ir_type *ty, int n)
{
	struct ir_fn *f = ir_fn_new(m, name);
	*s = (struct scope){ 0 };
	if (index)
		s->index = ir_param(f, index);
	for (int k = 0; k < n; k++) {
		ir_val v = ir_param(f, ty[k]);
		if (k < nflat)
			s->flat[k] = v;
		else
			s->v[s->n++] = v;
	}
	return f;
}

static void flow_loop(int depth)
{
	struct scope *outer = at, in;
	struct ir_fn *of = fn;
	ir_type i32 = ir_scalar(m, DT_i32), ty[40], inner[40], rt[8];
	int64_t role[48], trip = pick(4) ? pick(5) : -1;
	ir_val arg[40];
	int n = 0, ncarry = 1 + pick(4);
	for (; n < NFLAT; n++) {
		arg[n] = at->flat[n];
		role[n] = ROLE_CONST;
	}
	arg[n] = at->v[pick(at->n)];
	for (int i = 1; i < ncarry; i++) {
		ir_val same = of_type(fn->val.p[arg[n]].type, false);
		arg[n + i] = pick(3) ? same : at->v[pick(at->n)];
	}
	for (int i = 0; i < ncarry; i++)
		role[n++] = ROLE_CARRY;
	if (pick(2)) {
		arg[n] = at->v[pick(at->n)];
		role[n++] = ROLE_CONST;
	}
	if (trip < 0) {                  /* a counter that starts anywhere */
		arg[n] = ir_const_i(&b, i32, pick(9));
		role[n++] = ROLE_CARRY;
	}
	for (int k = 0; k < n; k++)
		inner[k] = ty[k] = of->val.p[arg[k]].type;
	ir_val stack = at->v[pick(at->n)];
	struct ir_type_info st = *ir_type_of(m, of->val.p[stack].type);
	if (trip >= 0 && st.rank && st.dim[0] >= trip && pick(3)) {
		arg[n] = stack;
		role[n] = pick(2) ? ROLE_IN : ROLE_IN_REV;
		inner[n++] = ir_tensor(m, (enum dtype)st.dtype, st.rank - 1, st.dim + 1);
	}
	fn = enter("body", &in, i32, NFLAT, inner, n);
	at = &in;
	b = (struct ir_b){ m, fn, 0 };
	ir_val carry[8], res[8];
	for (int i = 0; i < ncarry; i++)
		res[i] = carry[i] = in.v[i];
	flow_steps(depth - 1, 1 + pick(4));
	for (int i = 0; i < ncarry; i++) {       /* some change places */
		int j = pick(ncarry);
		if (ty[NFLAT + i] == ty[NFLAT + j]) {
			ir_val v = res[i];
			res[i] = res[j];
			res[j] = v;
		}
	}
	for (int i = 0; i < ncarry; i++) {
		if (pick(3))
			res[i] = of_type(ty[NFLAT + i], pick(2));
		ir_result(fn, res[i]);
	}
	ir_val count = trip < 0 ? fn->nparam : 0;
	if (count)
		ir_result(fn, ir_bin(&b, ELEM_add, count, ir_const_i(&b, i32, 1)));
	struct ir_fn *body = fn, *cond = NULL;
	if (count) {
		struct scope cs;
		cond = enter("cond", &cs, 0, NFLAT, ty, n);
		struct ir_b cb = { m, cond, 0 };
		ir_result(cond, ir_bin(&cb, ELEM_compare_ne, ir_bin(&cb, ELEM_and, cond->nparam, ir_const_i(&cb, i32, 3)), ir_const_i(&cb, i32, 3)));
	}
	fn = of;
	at = outer;
	b = (struct ir_b){ m, fn, 0 };
	int nr = 0;
	for (int k = 0; k < n; k++)
		if (role[k] == ROLE_CARRY)
			rt[nr++] = ty[k];
	int64_t w[56] = { trip, cond ? cond->id : 0, body->id, n };
	memcpy(w + 4, role, sizeof *role * (size_t)n);
	ir_val v = ir_emit_raw(&b, IR_loop, (uint32_t)n, arg, (uint32_t)nr, rt, w, (uint32_t)n + 4);
	for (int i = 0; i < ncarry; i++)
		keep(v + (uint32_t)i);
}

static void flow_case(int depth)
{
	struct scope *outer = at, in;
	struct ir_fn *of = fn;
	ir_type ty[40], rt[2];
	ir_val arg[40], index = at->index && pick(2) ? at->index : of_type(ir_scalar(m, DT_i32), false);
	int n = 0, nbranch = 2 + pick(3), nr = 1 + pick(2), more = 1 + pick(3);
	int64_t w[8] = { nbranch };
	arg[n++] = index ? index : ir_const_i(&b, ir_scalar(m, DT_i32), pick(5) - 1);
	for (int k = 0; k < NFLAT; k++)
		arg[n++] = at->flat[k];
	for (int k = 0; k < more; k++)
		arg[n++] = at->v[pick(at->n)];
	for (int k = 0; k < n; k++)
		ty[k] = of->val.p[arg[k]].type;
	for (int i = 0; i < nr; i++)
		rt[i] = ty[1 + NFLAT + pick(more)];
	for (int k = 0; k < nbranch; k++) {
		fn = enter("branch", &in, 0, NFLAT, ty + 1, n - 1);
		at = &in;
		b = (struct ir_b){ m, fn, 0 };
		flow_steps(depth - 1, pick(4));
		for (int i = 0; i < nr; i++)
			ir_result(fn, of_type(rt[i], pick(3) != 0));
		w[1 + k] = fn->id;
	}
	fn = of;
	at = outer;
	b = (struct ir_b){ m, fn, 0 };
	ir_val v = ir_emit_raw(&b, IR_case, (uint32_t)n, arg, (uint32_t)nr, rt, w, (uint32_t)nbranch + 1);
	for (int i = 0; i < nr; i++)
		keep(v + (uint32_t)i);
}

/* Rows that long vectors name, each a part of a value or an element, some beyond it, are combined with it one after the other. */
static void flow_scatter(ir_val x)
{
	const struct ir_type_info t = *ir_vtype(m, fn, x);
	int64_t w[64], dim[8] = { FLAT }, column[2] = { FLAT, 1 };
	int n = 0, k = 0, parts = t.rank > 1 && pick(2), ncomp = parts ? 1 : t.rank;
	ir_val part[8], update;
	while (k < NFLAT && flat_type[k] != t.dtype)
		k++;
	if (k == NFLAT || !t.count || t.count > 4096)
		return;
	for (int d = 0; d < ncomp; d++) {
		ir_type lt = tens(DT_i32, 1, dim);
		ir_val i = pick(5) ? at->flat[0] : ir_iota(&b, lt, 0);
		i = ir_bin(&b, ELEM_remainder, i, ir_const_i(&b, lt, t.dim[d] + 2));
		if (pick(3))
			i = ir_select(&b, ir_bin(&b, ELEM_compare_lt, i, ir_const_i(&b, lt, 0)), ir_bin(&b, ELEM_add, i, ir_const_i(&b, lt, t.dim[d])), i);
		part[d] = ir_reshape(&b, i, 2, column);
	}
	int64_t last = 1, all[2] = { FLAT, ncomp };
	ir_val index = ncomp == 1 ? part[0] : ir_emit(&b, IR_concatenate, (uint32_t)ncomp, part, tens(DT_i32, 2, all), &last, 1);
	for (int d = 1; d < t.rank; d++)
		dim[d] = t.dim[d];
	update = pick(4) ? at->flat[k] : ir_splat_of(&b, scalar_const(t.dtype), tens(t.dtype, 1, dim));
	if (parts)
		update = ir_broadcast(&b, update, tens(t.dtype, t.rank, dim), (int64_t[]){ 0 });
	w[n++] = parts ? t.rank - 1 : 0;
	for (int d = 1; d < t.rank && parts; d++)
		w[n++] = d;
	w[n++] = ncomp;
	for (int d = 0; d < ncomp; d++)
		w[n++] = d;
	w[n++] = 0;                          /* no batches */
	w[n++] = 0;
	w[n++] = ncomp;
	for (int d = 0; d < ncomp; d++)
		w[n++] = d;
	static const enum redop num[] = { RED_add, RED_max, RED_min, RED_fn }, bits[] = { RED_and, RED_or, RED_fn };
	enum redop op = dtype_info[t.dtype].cls == DT_PRED ? bits[pick(3)] : num[pick(4)];
	struct ir_fn *of = fn;
	w[n++] = 1;                          /* where the index vector is */
	w[n++] = 0;
	w[n++] = 0;
	w[n++] = op;
	w[n++] = 0;
	if (op == RED_fn && pick(3)) {
		fn = ir_fn_new(m, "combine");
		ir_val a = ir_param(fn, ir_scalar(m, (enum dtype)t.dtype)), c = ir_param(fn, ir_scalar(m, (enum dtype)t.dtype));
		b = (struct ir_b){ m, fn, 0 };
		a = combine(t.dtype, a, pick(2) ? c : scalar_const(t.dtype));
		ir_result(fn, pick(2) ? a : combine(t.dtype, c, a));
		w[n - 1] = fn->id;
		fn = of;
		b = (struct ir_b){ m, fn, 0 };
	}
	ir_type type = of->val.p[x].type;
	keep(ir_emit_raw(&b, IR_scatter, 3, (ir_val[]){ x, index, update }, 1, &type, w, (uint32_t)n));
}

static void flow_steps(int depth, int n)
{
	while (n-- > 0) {
		int k = pick(11);
		ir_val v = at->v[pick(at->n)];
		if (k == 10 && rank_of(fn, v))
			flow_scatter(v);
		else if (k == 9 && rank_of(fn, v))
			keep(one_slice(v));
		else if (k < 2 && depth > 0)
			flow_loop(depth);
		else if (k < 4 && depth > 0)
			flow_case(depth);
		else
			keep(again(at->v[pick(3) ? pick(at->n) : at->n - 1]));
	}
}

static void build_flow(void)
{
	static const int ext[] = { 1, 2, 3, 5, 8, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 256 };
	static struct scope top;
	int64_t n[1] = { FLAT }, dim[3];
	top = (struct scope){ 0 };
	at = &top;
	for (int k = 0; k < NFLAT; k++)
		at->flat[k] = ir_param(fn, tens(flat_type[k], 1, n));
	keep(ir_param(fn, ir_scalar(m, DT_i32)));
	for (int i = 1 + pick(3); i > 0; i--) {
		int rank = 1 + pick(3), dt = flat_type[pick(NFLAT)];
		for (int d = 0; d < rank; d++)
			dim[d] = ext[pick(rank > 2 ? 9 : rank > 1 ? 12 : 16)];
		if (rank > 1 && pick(2))
			dim[1] = dim[0];
		ir_type t = tens(dt, rank, dim);
		keep(ir_param(fn, t));
		if (pick(2))
			keep(ir_param(fn, t));
		if (rank == 2 && dim[0] == dim[1])
			keep(ir_param(fn, tens(dt, 1, dim)));
	}
	b = (struct ir_b){ m, fn, 0 };
	int params = at->n;
	with_products = true;
	flow_steps(3, 3 + pick(6));
	with_products = false;
	for (int i = at->n - 1; i >= params; i--)
		if (i == at->n - 1 || pick(3) == 0)
			ir_result(fn, at->v[i]);
	m->arg = ARENA_NEW(&m->arena, struct ir_arg, fn->nparam);
	m->res = ARENA_NEW(&m->arena, struct ir_arg, fn->result.n);
	for (uint32_t i = 0; i < fn->nparam; i++)
		m->arg[i].alias = -1;
	for (size_t i = 0; i < fn->result.n; i++)
		m->res[i].alias = -1;
}

static bool say(uint64_t seed, const char *what, struct err *e)
{
	printf("seed %llu: %s: %s\n", (unsigned long long)seed, what, e->msg);
	err_free(e);
	return false;
}

/* The module as it stands, compiled for a tier and run; c->got is filled. */
static bool flow_run(struct rt_client *cl, struct gen_case *c, enum lower_tier tier, uint64_t seed)
{
	struct pass_opts o = { .ndev = 1, .tier = tier, .check = true };
	int np = (int)c->fn->nparam, nr = (int)c->fn->result.n;
	struct rt_buffer *in[64], *out[96];
	struct rt_event *done;
	struct prog *p;
	struct rt_exec *x;
	struct err *e = pass_compile(&o, m, &p);
	if (e)
		return say(seed, tier == TIER_GEN ? "compile, gen" : "compile, ref", e);
	if ((e = rt_exec_new(cl, p, (int[]){ 0 }, &x)))
		return say(seed, "load", e);
	for (int i = 0; i < np && !e; i++) {
		struct rt_shape s = { c->arg[i].dtype, c->arg[i].rank, { 0 } };
		memcpy(s.dim, c->arg[i].dim, sizeof *s.dim * (size_t)s.rank);
		e = rt_buffer_from_host(rt_client_device(cl, 0), 0, &s, c->arg[i].p, NULL, &in[i]);
	}
	if (!e && !(e = rt_exec_run(x, in, NULL, 0, 0, out, &done))) {
		e = rt_event_wait(done);
		rt_event_unref(done);
		for (int i = 0; i < nr; i++) {
			if (!e) {
				struct rt_event *got = rt_buffer_to_host(out[i], 0, (int64_t)c->want[i].bytes, c->got[i]);
				e = rt_event_wait(got);
				rt_event_unref(got);
			}
			rt_buffer_unref(out[i]);
		}
		for (int i = 0; i < np; i++)
			rt_buffer_unref(in[i]);
	}
	rt_exec_unref(x);
	return e ? say(seed, "run", e) : true;
}

static struct rt_client *flow_client;

static bool flow_one(uint64_t seed)
{
	struct gen_case c = { 0 };
	bool ok = true;
	int np = 0, nr = 0;
	for (int tier = 0; tier < 2 && ok; tier++) {     /* compiling takes the module apart: it is built again from its seed */
		rng_state = seed * 0x9e3779b97f4a7c15ull + 1;
		rng();
		m = ir_module_new();
		fn = ir_fn_new(m, "flow");
		build_flow();
		struct err *e = ir_verify(m);
		if (!e && !tier) {
			struct eval_opts o = { .ndev = 1, .max_iter = 1000 };
			np = (int)fn->nparam;
			nr = (int)fn->result.n;
			c = (struct gen_case){ m, fn, calloc((size_t)np, sizeof *c.arg), calloc((size_t)nr, sizeof *c.want), calloc((size_t)nr, sizeof *c.got) };
			for (int i = 0; i < np; i++) {
				const struct ir_type_info *t = ir_vtype(m, fn, (ir_val)i + 1);
				array_of(t, &c.arg[i]);
				fill_random(t->dtype, t->count, c.arg[i].p, false);
			}
			e = eval_main(m, &o, c.arg, c.want);
			for (int i = 0; i < nr && !e; i++)
				c.got[i] = malloc(c.want[i].bytes + 1);
		}
		struct str text = { 0 };
		ir_print(&text, m);
		if (getenv("VERBOSE"))
			printf("seed %llu\n%s\n", (unsigned long long)seed, text.p);
		c.m = m;
		c.fn = fn;
		if (e) {
			ok = say(seed, "the test's own program is wrong", e);
		} else {
			/* types of results are asked for after the module has been compiled: of a function that is as it was */
			struct ir_module *taken = m, *plain;
			ok = flow_run(flow_client, &c, tier ? TIER_GEN : TIER_REF, seed);
			e = ok ? ir_parse(text.p, text.n, &plain) : NULL;
			if (e)
				ok = say(seed, "the text does not come back", e);
			else if (ok) {
				struct gen_case k = c;
				k.m = m = plain;
				k.fn = fn = ir_main(plain);
				ok = same_results(&k, seed);
				if (!ok)
					printf("on tier %s\n", tier ? "gen" : "ref");
				ir_module_free(plain);
			}
			m = taken;
		}
		if (!ok)
			printf("%s\n", text.p);
		str_free(&text);
		ir_module_free(m);
	}
	for (int i = 0; i < nr; i++) {
		eval_array_free(&c.want[i]);
		free(c.got[i]);
	}
	for (int i = 0; i < np; i++)
		eval_array_free(&c.arg[i]);
	free(c.arg);
	free(c.want);
	free(c.got);
	return ok;
}

static bool many(const char *what, uint64_t first, int n, void (*build)(void))
{
	const char *only = getenv("SEED"), *count = getenv("COUNT");
	bool ok = true;
	refused = ran = 0;
	if (only)
		return one(strtoull(only, NULL, 10), build);
	n = count ? atoi(count) : draws(n);
	int bad = 0;
	uint64_t fresh = (uint64_t)time(NULL) * 1000000;     /* the same seeds as ever, then as many that never ran */
	for (int i = 0; i < 2 * n && bad < 3; i++)
		if (!one((i < n ? first : fresh) + (uint64_t)i, build)) {
			ok = false;
			bad++;
		}
	printf("%s: %d ran, %d refused; fresh seeds from %llu\n", what, ran, refused, (unsigned long long)fresh);
	return ok;
}

static bool points(void) { return many("point", 1, 60, build_point); }
static bool rows(void) { return many("row", 100000, 60, build_row); }
static bool args(void) { return many("arg", 200000, 10, build_arg); }

static bool over(void)
{
	bool ok = many("over", 400000, 80, build_over);
	printf("over: %d pairs were one array\n", case_shared);
	return ok && (case_shared >= draws(20) || getenv("SEED") || getenv("COUNT"));
}
static bool loops(void) { return many("loop", 300000, 60, build_loop); }

/* Code of all instruction sets runs on this machine's: flow is about places, not about instructions, so it runs once. */
static void test_flow(void **state)
{
	const char *only = getenv("SEED"), *count = getenv("COUNT");
	uint64_t fresh = (uint64_t)time(NULL) * 1000000;
	int n = count ? atoi(count) : draws(150), bad = 0;
	struct rt_opts o = { .ndev = 1 };
	setenv("RONDO_CACHE", "", 1);
	assert_null(rt_client_new(&o, &flow_client));
	if (only)
		bad += !flow_one(strtoull(only, NULL, 10));
	for (int i = 0; !only && i < n && bad < 3; i++)
		bad += !flow_one(fresh + (uint64_t)i);
	rt_client_free(flow_client);
	printf("flow: seeds from %llu\n", (unsigned long long)fresh);
	assert_int_equal(bad, 0);
}

static void test_points(void **state) { assert_int_equal(each_target(points), 0); }
static void test_rows(void **state) { assert_int_equal(each_target(rows), 0); }
static void test_kept(void **state) { assert_int_equal(each_target(kept), 0); }
static void test_every(void **state) { assert_int_equal(each_target(every), 0); }
static void test_period(void **state) { assert_int_equal(each_target(period), 0); }
static void test_behind(void **state) { assert_int_equal(each_target(behind), 0); }
static void test_parts(void **state) { assert_int_equal(each_target(parts), 0); }
static void test_args(void **state) { assert_int_equal(each_target(args), 0); }
static void test_spare(void **state) { assert_int_equal(each_target(spare), 0); }
static void test_over(void **state) { assert_int_equal(each_target(over), 0); }
static void test_loops(void **state) { assert_int_equal(each_target(loops), 0); }

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_points), cmocka_unit_test(test_rows), cmocka_unit_test(test_kept), cmocka_unit_test(test_every), cmocka_unit_test(test_period), cmocka_unit_test(test_behind), cmocka_unit_test(test_parts),
		cmocka_unit_test(test_spare), cmocka_unit_test(test_args), cmocka_unit_test(test_loops), cmocka_unit_test(test_over), cmocka_unit_test(test_flow) };
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
