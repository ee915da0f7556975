/* Every elementwise function of every element type, against the oracle; mathematics of f32 against libm. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "draws.h"
#include "gen_run.h"

static const int types[] = { DT_pred, DT_i4, DT_u4, DT_i8, DT_u8, DT_i16, DT_u16, DT_i32, DT_u32, DT_i64, DT_u64, DT_bf16, DT_f16, DT_f32, DT_f64 };

static bool defined(enum elem k, int dt)
{
	int c = dtype_info[dt].cls;
	bool fl = c == DT_FLOAT, in = c == DT_INT || c == DT_UINT;
	switch ((int)k) {
	case ELEM_complex: case ELEM_convert: case ELEM_bitcast: case ELEM_select: return false;
	case ELEM_add: case ELEM_multiply: case ELEM_maximum: case ELEM_minimum: case ELEM_clamp: return true;
	case ELEM_and: case ELEM_or: case ELEM_xor: case ELEM_not: return !fl;
	case ELEM_subtract: case ELEM_divide: case ELEM_remainder: case ELEM_power: case ELEM_abs: case ELEM_sign: case ELEM_negate: return fl || in;
	case ELEM_shift_left: case ELEM_shift_right_logical: case ELEM_shift_right_arithmetic: case ELEM_mulhi: case ELEM_popcnt: case ELEM_count_leading_zeros: return in;
	default:
		if (elem_info[k].flags & EL_PRED && elem_info[k].nin == 2)
			return true;
		return fl;
	}
}

static double limit(enum elem k, int dt)
{
	if (dtype_info[dt].cls != DT_FLOAT)
		return 0;
	switch ((int)k) {
	case ELEM_exponential: case ELEM_exponential_minus_one: case ELEM_log: case ELEM_log_plus_one: case ELEM_logistic: case ELEM_tanh:
	case ELEM_tan: case ELEM_sine: case ELEM_cosine: case ELEM_rsqrt: case ELEM_cbrt: case ELEM_erf: case ELEM_power: case ELEM_atan2:
		return dt == DT_bf16 || dt == DT_f16 ? 1.01 : 4;
	default:
		return 0;
	}
}

/* A few functions go into one group, since a group by itself costs more than a function does. */
enum { A_FEW = 8 };

/* A group of functions: what each result is called, and how far off it may be. */
struct group { struct ir_module *m; struct ir_fn *fn; struct ir_b b; ir_val in[3]; int n; char name[3 * A_FEW][48]; double most[3 * A_FEW]; };

static void group_new(struct group *g, const ir_type *in, int nin, struct ir_module *m)
{
	*g = (struct group){ .m = m, .fn = ir_fn_new(m, "f") };
	for (int i = 0; i < nin; i++)
		g->in[i] = ir_param(g->fn, in[i]);
	g->b = (struct ir_b){ m, g->fn, 0 };
}

static void group_result(struct group *g, ir_val v, double most, const char *what, int from, int to)
{
	ir_result(g->fn, v);
	snprintf(g->name[g->n], sizeof g->name[0], "%s %s %s", what, dtype_info[from].name, dtype_info[to].name);
	g->most[g->n++] = most;
}

/* Run and free it. */
static bool group_check(struct group *g)
{
	struct gen_case c = { g->m, g->fn, NULL, NULL, NULL };
	bool ok = !g->n || case_run(&c, true);
	if (!ok)
		printf("in the group of %s\n", g->name[0]);
	for (int r = 0; ok && r < g->n; r++) {
		const struct ir_type_info *t = ir_vtype(c.m, c.fn, c.fn->result.p[r]);
		int b = dtype_info[t->dtype].bytes, shown = 0;
		for (int64_t i = 0; i < t->count && shown < 3; i++) {
			const void *one = (char *)c.got[r] + i * b, *two = (char *)c.want[r].p + i * b;
			double u = ulps(t->dtype, one, two);
			if (dtype_info[t->dtype].cls == DT_FLOAT && as_double(t->dtype, one) == 0 && as_double(t->dtype, two) == 0 &&
			    !signbit(as_double(t->dtype, one)) != !signbit(as_double(t->dtype, two)))
				u = 1e9;
			if (u > g->most[r]) {
				uint64_t got = 0, w = 0, x[3] = { 0 };
				memcpy(&got, (char *)c.got[r] + i * b, (size_t)b);
				memcpy(&w, (char *)c.want[r].p + i * b, (size_t)b);
				for (uint32_t k = 0; k < c.fn->nparam && k < 3; k++)
					memcpy(&x[k], (char *)c.arg[k].p + i * dtype_info[c.arg[k].dtype].bytes, dtype_info[c.arg[k].dtype].bytes);
				printf("%s element %d: got %llx, want %llx (%g ulp) of %llx %llx %llx\n", g->name[r], (int)i, (unsigned long long)got, (unsigned long long)w, u,
				       (unsigned long long)x[0], (unsigned long long)x[1], (unsigned long long)x[2]);
				shown++;
			}
		}
		ok = !shown;
	}
	if (g->n)
		case_free(&c);
	ir_module_free(g->m);
	return ok;
}

static bool all_elems(void)
{
	static const int ext[] = { 333, 64, 129, 256, 127, 65, 63, 128, 32, 8, 16, 1, 2 };
	bool ok = true;
	int round = 0;
	for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
		int64_t n[1] = { 333 };
		int dt = types[t];
		for (int k = 0; k < ELEM_COUNT; round++) {
			n[0] = pick(2) ? 333 : ext[round % (int)NELEM(ext)];
			struct ir_module *m = ir_module_new();
			ir_type ty = ir_tensor(m, (enum dtype)dt, 1, n), truth = ir_tensor(m, DT_pred, 1, n);
			struct group g;
			group_new(&g, (ir_type[]){ ty, ty, ty }, 3, m);
			for (; k < ELEM_COUNT && g.n < A_FEW; k++)
				if (defined((enum elem)k, dt))
					group_result(&g, ir_emit_raw(&g.b, ir_of_elem((enum elem)k), elem_info[k].nin, g.in, 1, elem_info[k].flags & EL_PRED ? &truth : &ty, NULL, 0),
					             limit((enum elem)k, dt), elem_info[k].name, dt, dt);
			ok &= group_check(&g);
		}
		/* conversions to every type, bitcasts, select, reduce_precision */
		for (size_t u = 0; u < sizeof types / sizeof *types;) {
			struct ir_module *m = ir_module_new();
			ir_type a = ir_tensor(m, (enum dtype)dt, 1, n), p = ir_tensor(m, DT_pred, 1, n);
			struct group g;
			group_new(&g, (ir_type[]){ a, a, p }, 3, m);
			for (; u < sizeof types / sizeof *types && g.n < A_FEW; u++) {
				int to = types[u];
				ir_type z = ir_tensor(m, (enum dtype)to, 1, n);
				group_result(&g, ir_emit_raw(&g.b, ir_of_elem(ELEM_convert), 1, g.in, 1, &z, NULL, 0), 0, "convert", dt, to);
				if (dtype_info[dt].bits == dtype_info[to].bits)
					group_result(&g, ir_emit_raw(&g.b, ir_of_elem(ELEM_bitcast), 1, g.in, 1, &z, NULL, 0), 0, "bitcast", dt, to);
				if (dtype_info[dt].cls == DT_FLOAT) {
					int64_t em[2] = { 3 + pick(6), 1 + pick(12) };
					group_result(&g, ir_emit_raw(&g.b, IR_reduce_precision, 1, g.in, 1, &a, em, 2), 0, "reduce_precision", dt, dt);
				}
			}
			group_result(&g, ir_select(&g.b, g.in[2], g.in[0], g.in[1]), 0, "select", dt, dt);
			ok &= group_check(&g);
		}
	}
	return ok;
}

/* What moves numbers without computing keeps subnormals, though arithmetic takes them for zero. */
static bool subnormals(void)
{
	static const int from[] = { DT_f32, DT_bf16, DT_f32, DT_bf16, DT_bf16 }, to[] = { DT_bf16, DT_f32, DT_f32, DT_bf16, DT_bf16 };
	static const int64_t how[][2] = { { 0 }, { 0 }, { 8, 7 }, { 8, 4 }, { 7, 7 } };
	bool ok = true;
	fill_low = true;
	for (int i = 0; i < 5; i++) {
		struct ir_module *m = ir_module_new();
		int64_t n[1] = { 3333 };
		ir_type a = ir_tensor(m, (enum dtype)from[i], 1, n), z = ir_tensor(m, (enum dtype)to[i], 1, n);
		struct group g;
		group_new(&g, &a, 1, m);
		ir_val r = ir_emit_raw(&g.b, how[i][0] ? IR_reduce_precision : ir_of_elem(ELEM_convert), 1, g.in, 1, &z, how[i][0] ? how[i] : NULL, how[i][0] ? 2 : 0);
		group_result(&g, r, 0, "low", from[i], to[i]);
		group_result(&g, ir_emit_raw(&g.b, ir_of_elem(ELEM_negate), 1, &r, 1, &z, NULL, 0), 0, "minus low", from[i], to[i]);
		ok &= group_check(&g);
	}
	fill_low = false;
	return ok;
}

static double f_exp(double x, double y) { return exp(x); }
static double f_expm1(double x, double y) { return expm1(x); }
static double f_log(double x, double y) { return log(x); }
static double f_log1p(double x, double y) { return log1p(x); }
static double f_tanh(double x, double y) { return tanh(x); }
static double f_logistic(double x, double y) { return 1 / (1 + exp(-x)); }
static double f_sin(double x, double y) { return sin(x); }
static double f_cos(double x, double y) { return cos(x); }
static double f_tan(double x, double y) { return tan(x); }
static double f_erf(double x, double y) { return erf(x); }
static double f_cbrt(double x, double y) { return cbrt(x); }
static double f_rsqrt(double x, double y) { return 1 / sqrt(x); }
static double f_pow(double x, double y) { return pow(x, y); }
static double f_atan2(double x, double y) { return atan2(x, y); }

/* One function of n numbers as generated code. */
struct one { struct ir_module *m; struct rt_code *code; prog_code_fn *fn; int64_t tiles; int nin; };

/* fixed: operand `which` is this number instead. */
static bool one_new(struct one *o, enum elem k, enum dtype dt, int64_t n, const double *fixed, int which)
{
	*o = (struct one){ .m = ir_module_new(), .nin = elem_info[k].nin - (fixed != NULL) };
	struct ir_fn *g = ir_fn_new(o->m, "f");
	ir_type ty = ir_tensor(o->m, dt, 1, &n);
	ir_val in[3];
	struct ir_b b = { o->m, g, 0 };
	for (int i = 0; i < elem_info[k].nin; i++)
		in[i] = fixed && i == which ? 0 : ir_param(g, ty);
	if (fixed)
		in[which] = ir_const_f(&b, ty, *fixed);
	ir_result(g, ir_emit_raw(&b, ir_of_elem(k), elem_info[k].nin, in, 1, &ty, NULL, 0));
	struct gen_out out;
	struct err *e = gen_group(o->m, g, NULL, &out);
	if (!e)
		e = rt_code_load(out.obj, out.nobj, &o->code);
	if (e) {
		printf("%s\n", e->msg);
		return false;
	}
	o->fn = (prog_code_fn *)(uintptr_t)rt_code_symbol(o->code, out.symbol);
	o->tiles = out.tiles;
	return true;
}

static void one_run(struct one *o, void *z, void *x, void *y)
{
	char *ptr[3] = { x, o->nin > 1 ? y : z, z };
	unsigned fp = cpu_set_ftz();
	o->fn(ptr, 0, o->tiles);
	cpu_restore_fp(fp);
}

static void one_free(struct one *o)
{
	rt_code_free(o->code);
	ir_module_free(o->m);
}

static const struct { enum elem k; double (*f)(double, double); double most; } maths[] = {
	{ ELEM_exponential, f_exp, 2 }, { ELEM_exponential_minus_one, f_expm1, 2 }, { ELEM_log, f_log, 2 }, { ELEM_log_plus_one, f_log1p, 2 },
	{ ELEM_tanh, f_tanh, 2 }, { ELEM_logistic, f_logistic, 2 }, { ELEM_sine, f_sin, 2 }, { ELEM_cosine, f_cos, 2 }, { ELEM_tan, f_tan, 2 },
	{ ELEM_erf, f_erf, 2 }, { ELEM_cbrt, f_cbrt, 1 }, { ELEM_rsqrt, f_rsqrt, 1.5 }, { ELEM_power, f_pow, 2 }, { ELEM_atan2, f_atan2, 2 },
	{ ELEM_remainder, fmod, 0 },
};

static bool accuracy(void)
{
	bool ok = true;
	const int N = draws(1 << 17);
	float *x = malloc((size_t)N * 4), *y = malloc((size_t)N * 4), *z = malloc((size_t)N * 4);
	for (size_t i = 0; i < NELEM(maths); i++) {
		struct one o;
		if (!one_new(&o, maths[i].k, DT_f32, N, NULL, 0))
			return false;
		for (int k = 0; k < N; k++) {
			uint32_t u = (uint32_t)rng(), v = (uint32_t)rng();
			memcpy(&x[k], &u, 4);
			memcpy(&y[k], &v, 4);
			if (k % 2)
				x[k] = (float)(((double)pick(1 << 24) / (1 << 24) - 0.5) * ldexp(1, pick(14) - 5));
			if (k % 4)
				y[k] = (float)(((double)pick(1 << 24) / (1 << 24) - 0.5) * ldexp(1, pick(10) - 3));
			if (maths[i].k == ELEM_remainder && k % 8 > 4)        /* close to a multiple */
				x[k] = nextafterf((float)((double)y[k] * (1 + pick(1 << (1 + pick(25))))), k % 8 == 5 ? INFINITY : k % 8 == 6 ? -INFINITY : 0);
		}
		one_run(&o, z, x, y);
		double worst = 0, at = 0, at2 = 0;
		for (int k = 0; k < N; k++) {
			if ((x[k] != 0 && fabsf(x[k]) < 1.2e-38f) || (o.nin > 1 && y[k] != 0 && fabsf(y[k]) < 1.2e-38f))
				continue;
			double w = maths[i].f((double)x[k], (double)y[k]);
			float wf = (float)w;
			if (fabs(w) < 1.2e-38)
				continue;
			double u;
			if (w != w || isinf(wf) || z[k] != z[k] || isinf(z[k])) {
				u = (w != w) == (z[k] != z[k]) && (w != w || z[k] == wf || fabs(w) > 3.402823e38) ? 0 : 1e9;
			} else {
				int ex;
				frexp(w, &ex);
				u = fabs((double)z[k] - w) / ldexp(1, ex - 24);
			}
			if (u > worst) {
				worst = u;
				at = (double)x[k];
				at2 = (double)y[k];
			}
		}
		printf("%-24s %.3f ulp (at %.9g %.9g)\n", elem_info[maths[i].k].name, worst, at, at2);
		ok &= worst <= maths[i].most;
		one_free(&o);
	}
	free(x);
	free(y);
	free(z);
	return ok;
}

/* How many of n results z are not what the kernel gives; some are shown. */
static int unlike(enum elem k, enum dtype dt, int n, const void *x, const void *y, const void *z, const void *want)
{
	int b = dtype_info[dt].bytes, shown = 0;
	for (int j = 0; memcmp(z, want, (size_t)n * (size_t)b) && j < n && shown < 3; j++) {
		const char *one = (const char *)z + j * b, *two = (const char *)want + j * b;
		double p = as_double(dt, one), q = as_double(dt, two);
		if (!memcmp(one, two, (size_t)b) || (isnan(p) && isnan(q)))
			continue;
		printf("%s %s of %a %a: %a generated, %a by the kernel\n", elem_info[k].name, dtype_info[dt].name, as_double(dt, (const char *)x + j * b),
		       as_double(dt, (const char *)y + j * b), p, q);
		shown++;
	}
	return shown;
}

/* Operands, what came and what should have. */
static bool all_freed(uint32_t *of[4])
{
	for (int i = 0; i < 4; i++)
		free(of[i]);
	return true;
}

/* The larger and the smaller of a constant and all numbers of 16 bits, and as many of f32. */
static bool constants(void)
{
	static const enum dtype dts[] = { DT_bf16, DT_f16, DT_f32 };
	static const double fixed[] = { 0, -0.0, 1, -3, 0x1p-14, INFINITY, -INFINITY, NAN };
	enum { N = 1 << 16 };
	uint32_t *x = malloc(N * 4), *y = malloc(N * 4), *z = malloc(N * 4), *want = malloc(N * 4);
	int wrong = 0;
	for (size_t i = 0; i < NELEM(fixed) * NELEM(dts) * 4; i++) {
		enum elem k = i % 2 ? ELEM_maximum : ELEM_minimum;
		enum dtype dt = dts[i / 4 % NELEM(dts)];
		double c = fixed[i / 4 / NELEM(dts)];
		int which = i / 2 % 2;
		for (int j = 0; j < N; j++) {
			uint32_t u = j < 4 ? (uint32_t)j << 31 : (uint32_t)rng();
			float f = (float)c;
			if (dt == DT_f32)
				memcpy(&y[j], &f, 4), x[j] = j % 8 == 7 ? y[j] : u;
			else
				((uint16_t *)x)[j] = (uint16_t)j, ((uint16_t *)y)[j] = dt == DT_bf16 ? f32_to_bf16(f) : f32_to_f16(f);
		}
		struct one o;
		if (!one_new(&o, k, dt, N, &c, which))
			return false;
		one_run(&o, z, x, NULL);
		unsigned fp = cpu_set_ftz();
		kern_elem(k, dt, dt)(N, want, which ? x : y, which ? y : x, NULL);
		cpu_restore_fp(fp);
		wrong += unlike(k, dt, N, x, y, z, want);
		one_free(&o);
	}
	return all_freed((uint32_t *[]){ x, y, z, want }) && !wrong;
}

static bool whole;         /* every f32 there is: minutes */

/* A price decides what is compiled, and numbers shall not depend on it: the functions are the same, bit for bit, as kernels.  All
 * numbers of 16 bits; of f32, a run of numbers in each of many places. */
static bool same_bits(void)
{
	static const enum dtype dts[] = { DT_bf16, DT_f16, DT_f32 };
	enum { N = 1 << 16 };
	uint32_t *x = malloc(N * 4), *y = malloc(N * 4), *z = malloc(N * 4), *want = malloc(N * 4);
	int wrong = 0;
	for (size_t i = 0; i < NELEM(maths) * NELEM(dts); i++) {
		enum elem k = maths[i / NELEM(dts)].k;
		enum dtype dt = dts[i % NELEM(dts)];
		int b = dtype_info[dt].bytes, shown = 0;
		kern_strip *kernel = kern_elem(k, dt, dt);
		struct one o;
		if (!one_new(&o, k, dt, N, NULL, 0))
			return false;
		for (int turn = 0, turns = b == 2 && o.nin == 1 ? 1 : whole && o.nin == 1 ? 1 << 16 : whole ? 1 << 12 : draws(24); turn < turns; turn++) {
			for (uint32_t j = 0; j < N; j++) {
				uint32_t u = turns == 1 << 16 ? (uint32_t)turn << 16 | j : b == 2 ? j : (uint32_t)rng(), v = (uint32_t)rng();
				if (b == 2)
					((uint16_t *)x)[j] = (uint16_t)u, ((uint16_t *)y)[j] = (uint16_t)v;
				else
					x[j] = u, y[j] = v;
			}
			one_run(&o, z, x, y);
			unsigned fp = cpu_set_ftz();
			kernel(N, want, x, y, NULL);
			cpu_restore_fp(fp);
			shown += unlike(k, dt, N, x, y, z, want);
		}
		wrong += shown;
		one_free(&o);
	}
	return all_freed((uint32_t *[]){ x, y, z, want }) && !wrong;
}

static void elems(void **state) { assert_int_equal(each_target(all_elems), 0); }
static void low(void **state) { assert_int_equal(each_target(subnormals), 0); }
static void mathematics(void **state) { assert_int_equal(each_target(accuracy), 0); }
static void with_constants(void **state) { assert_int_equal(each_target(constants), 0); }
static void kernels(void **state) { assert_int_equal(each_target(same_bits), 0); }

/* With "all": every f32 in `kernels`. */
int main(int argc, char **argv)
{
	whole = argc > 1 && !strcmp(argv[1], "all");
	const struct CMUnitTest tests[] = { cmocka_unit_test(elems), cmocka_unit_test(low), cmocka_unit_test(mathematics),
		cmocka_unit_test(with_constants), cmocka_unit_test(kernels) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
