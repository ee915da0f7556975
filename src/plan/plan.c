/* Prices. */
#include "plan.h"

const char *const plan_way_meaning[PLAN_WAYS] = {
#define RATE(id, start, op, point, add, byte, meaning) [PLAN_##id] = meaning,
#define COMPILE(first, op, add)
#define ROAD(wait, byte, own, product)
#include "rates.def"
#undef RATE
#undef COMPILE
#undef ROAD
};

static const struct rate { double start, op, point, add, byte; } rate[PLAN_WAYS] = {
#define RATE(id, start, op, point, add, byte, meaning) [PLAN_##id] = { start, op, point, add, byte },
#define COMPILE(first, op, add)
#define ROAD(wait, byte, own, product)
#include "rates.def"
#undef RATE
#undef COMPILE
#undef ROAD
};

double plan_time(const struct plan_work *w, enum plan_way way)
{
	const struct rate *r = &rate[way];
	return r->start + r->op * w->ops + r->point * w->flops + r->add * w->adds + r->byte * w->bytes;
}

double plan_compile_time(double nops, double adds)
{
#define RATE(id, start, op, point, add, byte, meaning)
#define ROAD(wait, byte, own, product)
#define COMPILE(first, op, add) static const double of_first = first, of_op = op, of_add = add;
#include "rates.def"
#undef RATE
#undef COMPILE
#undef ROAD
	return of_first + of_op * nops + of_add * adds;
}

#define RATE(id, start, op, point, add, byte, meaning)
#define COMPILE(first, op, add)
#define ROAD(wait, byte, own, product) static const double of_wait = wait, of_byte = byte, of_own = own, of_product = product;
#include "rates.def"
#undef RATE
#undef COMPILE
#undef ROAD

double plan_move_time(int n, double bytes) { return n > 1 ? of_wait * (n - 1) + of_byte * bytes : 0; }

double plan_sum_time(int n, double bytes)
{
	return MIN(plan_move_time(n, bytes * (n - 1)), 2 * plan_move_time(n, bytes * (n - 1) / n));
}

double plan_part_time(double products, double bytes) { return of_product * products + of_own * bytes; }

/* What a group that is left without code costs is so at most one part in twenty of a short program, if making it takes 2 ms; of a long
 * one 2 us.  START: a launch of a program that does nothing. */
double plan_launches(double ns, double ops)
{
	enum { LEAST = 1000, LIFE = 40000000, START = 4000, EAGER = 4 };
	return ops <= EAGER ? LEAST : MAX(LEAST, LIFE / (START + ns));
}

bool plan_worth_compiling(const struct plan_work *w, enum plan_way otherwise, double nops, double adds, double runs)
{
	return runs * (plan_time(w, otherwise) - plan_time(w, PLAN_gen)) > plan_compile_time(nops, adds);
}

/* Multiplications and additions a nanosecond, of the micro-kernels of src/kern. */
static double product_rate(enum dtype dt)
{
	const struct cpu_info *c = cpu_get();
	return dt == DT_bf16 && c->amx_bf16 ? 600 : dt == DT_f32 || dt == DT_bf16 ? c->avx512 ? 100 : 50 : 10;
}

static double kern_time(const struct prog_kern *k, bool near)
{
	struct plan_work w = { .adds = (double)k->flops, .bytes = (double)k->bytes, .ops = 1 };
	bool product = (k->id == KERN_dot || k->id == KERN_convolution || k->id == KERN_attention || k->id == KERN_attention_grad) && k->nin;

	for (int i = 0; !k->bytes && i < k->nin + k->nout; i++)
		w.bytes += (double)prog_view_bytes(&k->v[i]);
	if (product)
		w.adds = 0;
	near = near && (product || k->id == KERN_gen) && w.bytes <= (double)cpu_get()->l2;
	return plan_time(&w, near ? PLAN_gen : PLAN_cold) + (product ? (double)k->flops / product_rate((enum dtype)k->v[0].dtype) : 0);
}

double plan_kern_time(const struct prog_kern *k) { return kern_time(k, false); }
double plan_kern_near(const struct prog_kern *k) { return kern_time(k, true); }
