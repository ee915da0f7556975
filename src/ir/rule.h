/* Inside ir: what region.c, shape.c and verify.c share. */
#ifndef RONDO_IR_RULE_H
#define RONDO_IR_RULE_H

#include "ir.h"

struct shape { enum dtype dtype; int rank; int64_t dim[IR_MAX_RANK]; };

/* The op under examination. */
struct at {
	const struct ir_module *m;
	const struct ir_fn *fn;
	const struct ir_op *o;
	const int64_t *w[AT_COUNT];  /* attributes: value, or count and items */
	const struct ir_type_info *in[4];    /* types of the first operands */
};

#define BAD(...) return ERR(INVALID, __VA_ARGS__)
#define NEED(cond, ...) do { if (!(cond)) BAD(__VA_ARGS__); } while (0)

static inline const struct ir_type_info *operand(const struct at *a, uint32_t i)
{
	return ir_vtype(a->m, a->fn, ir_in(a->fn, a->o, i));
}

static inline ir_type operand_t(const struct at *a, uint32_t i)
{
	return a->fn->val.p[ir_in(a->fn, a->o, i)].type;
}

static inline ir_type result_t(const struct at *a, uint32_t i)
{
	return a->fn->val.p[a->o->out + i].type;
}

static inline int cls(const struct ir_type_info *t)
{
	return dtype_info[t->dtype].cls;
}

static inline bool whole(const struct ir_type_info *t)
{
	return cls(t) == DT_INT || cls(t) == DT_UINT;
}

static inline bool same_dims(const struct ir_type_info *x, const struct ir_type_info *y)
{
	return x->rank == y->rank && (x->rank == 0 || memcmp(x->dim, y->dim, sizeof *x->dim * x->rank) == 0);
}

static inline void like(struct shape *s, const struct ir_type_info *t)
{
	s->dtype = t->dtype;
	s->rank = t->rank;
	if (t->rank)
		memcpy(s->dim, t->dim, sizeof *t->dim * t->rank);
}

static inline int64_t num(const struct at *a, enum ir_at k)
{
	return a->w[k][0];
}

static inline int count(const struct at *a, enum ir_at k)
{
	return (int)a->w[k][0];
}

static inline const int64_t *list(const struct at *a, enum ir_at k)
{
	return a->w[k] + 1;
}

/* List k holds different numbers below limit. */
static inline struct err *axes(const struct at *a, enum ir_at k, int limit)
{
	const int64_t *p = list(a, k);
	for (int i = 0; i < count(a, k); i++)
		NEED(p[i] >= 0 && p[i] < limit && !in_list(p, i, p[i]), "%s: %lld is out of [0, %d) or there twice",
		     ir_at_name[k], (long long)p[i], limit);
	return NULL;
}

static inline struct err *length(const struct at *a, enum ir_at k, int n)
{
	NEED(count(a, k) == n, "%s has %d entries, not %d", ir_at_name[k], count(a, k), n);
	return NULL;
}

/* Entries of list k lie in [lo, hi]. */
static inline struct err *range(const struct at *a, enum ir_at k, int64_t lo, int64_t hi)
{
	for (int i = 0; i < count(a, k); i++)
		NEED(list(a, k)[i] >= lo && list(a, k)[i] <= hi, "%s: %lld is not in %lld .. %lld", ir_at_name[k],
		     (long long)list(a, k)[i], (long long)lo, (long long)hi);
	return NULL;
}

static inline struct err *within(const struct at *a, enum ir_at k, int64_t lo, int64_t hi)
{
	NEED(num(a, k) >= lo && num(a, k) <= hi, "%s is %lld, out of [%lld, %lld]", ir_at_name[k], (long long)num(a, k), (long long)lo, (long long)hi);
	return NULL;
}

/* --- region.c --- */
struct err *ru_sig_count(const struct at *a, int64_t f, uint32_t np, uint32_t nr);        /* f exists, takes np values, gives nr */
ir_type ru_param_t(const struct at *a, int64_t f, uint32_t i);
ir_type ru_ret_t(const struct at *a, int64_t f, uint32_t i);
struct err *ru_is_type(const struct at *a, ir_type t, ir_type want, const char *what, uint32_t i);
bool ru_scalar_of(const struct at *a, ir_type t, enum dtype dt);
/* The reducer in attributes redop and fn takes n operands: f(x0 .., y0 ..) of 2n scalars gives n of the same dtypes.
 * overwrite: no function means that the last one wins. */
struct err *ru_reducer(const struct at *a, uint32_t n, bool overwrite);
/* Parameters of f have the types of operands from on; its results are the op's. */
struct err *ru_callee(const struct at *a, int64_t f, uint32_t from);
struct err *ru_loop(const struct at *a);
struct err *ru_manual(const struct at *a);
/* Attributes and operands of attention and attention_grad (docs/attention.md). */
struct err *ru_attention(const struct at *a);
struct err *ru_shard_fits(const struct at *a, int64_t h, ir_type t);

/* --- shape.c --- */
/* The shape of result i.  *known false: the op states it (s may still hold what is known of it); then the rules are
 * in check. */
struct err *ru_shape(const struct at *a, uint32_t i, struct shape *s, bool *known);
struct err *ru_reduce_in(const struct at *a);
struct err *ru_scatter(const struct at *a);
struct err *ru_sort(const struct at *a);

#endif
