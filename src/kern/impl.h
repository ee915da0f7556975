/* What the files of this folder share. */
#ifndef RONDO_KERN_IMPL_H
#define RONDO_KERN_IMPL_H

#include "kern.h"

/* A prepared kernel.  make fills run and what differs from: 1 tile, 1 phase, no scratch, nothing shared. */
struct kern_state {
	void (*run)(const struct prog_kern *k, const struct kern_state *s, int phase,
	            char *const *ptr, int64_t t0, int64_t t1, void *scratch);
	void (*release)(struct kern_state *s);   /* for what is not in the arena; may be NULL */
	int64_t tiles;
	size_t scratch, shared;
	int phases;
	void *priv;
	struct arena a;
};
typedef struct err *kern_make(const struct prog_kern *k, struct kern_state *s);
kern_make kern_make_elem, kern_make_copy, kern_make_fill, kern_make_iota, kern_make_dynamic_slice,
          kern_make_dynamic_update, kern_make_pad, kern_make_gather, kern_make_scatter, kern_make_reduce,
          kern_make_reduce_window, kern_make_select_and_scatter, kern_make_sort, kern_make_top_k,
          kern_make_cumulative, kern_make_dot, kern_make_attention, kern_make_attention_grad, kern_make_attention_grad_add, kern_make_convolution, kern_make_cholesky,
          kern_make_triangular_solve, kern_make_fft, kern_make_rng_bits, kern_make_rng,
          kern_make_reduce_precision;

/* --- per instruction set (isa.h) ---------------------------------------- */

/* Types with strips of their own; the others go through one of them. */
enum nat { NAT_pred, NAT_i8, NAT_i16, NAT_i32, NAT_i64, NAT_u8, NAT_u16, NAT_u32, NAT_u64, NAT_f32, NAT_f64, NAT_COUNT };
enum nat kern_nat(enum dtype dt);            /* NAT_COUNT: none */

/* Sum and the like of n contiguous elements; n >= 1. */
typedef void kern_fold(int64_t n, const void *x, void *out);
/* c[m][n] += a[m][k] b[k][n], the sum over k as one number; row strides in elements. */
typedef void kern_gemm(int64_t m, int64_t n, int64_t k, const void *a, int64_t lda, const void *b, int64_t ldb,
                       void *c, int64_t ldc);
/* c[m][n] += a[m][k] b[n][k]^T. */
typedef kern_gemm kern_gemm_nt;

/* To i16 in the order of the numbers, NaN beyond all on the side that is sought, 0 above -0; and back, with subnormals flushed. */
typedef kern_strip *kern_key[2];

/* to[at[i]] = f(to[at[i]], up[i]) for n rows of w elements in order: at in bytes, KERN_NOWHERE for what is dropped; updates lie us bytes
 * apart, a row's elements behind each other. */
/* out[i] = the table's element idx[i], clamped to 0 .. most. */
typedef void kern_look(int64_t n, const int32_t *idx, int32_t most, const void *table, void *out);
typedef void kern_each(int64_t n, int64_t w, char *to, const int64_t *at, const char *up, int64_t us);
#define KERN_NOWHERE (INT64_MIN / 2)             /* and what is added to it: anything below half of it */

/* A float format of at most 8 bits, for conversion from f32: codes of what is not a plain number. */
struct small_fmt { int mbits, bias, sign; uint32_t top, over, neg_over, pos_inf, neg_inf, pos_nan, neg_nan; bool one_zero; };

/* A float format's bits to fewer: to nearest even (half and the odd bit are added, keep stays, of drop bits none), then exponents above over to infinity, below
 * least to zero.  What NaN gets: quiet. */
struct rounding { uint64_t inf, sign, half, odd, keep, over, least, quiet; int drop; };

struct kern_isa {
	const char *name;
	kern_strip *const *elem[NAT_COUNT];              /* by enum elem */
	kern_strip *conv[NAT_COUNT][NAT_COUNT];          /* [from][to] */
	kern_strip *on_complex[2][ELEM_COUNT];              /* c64, c128: NULL where complex.c does it */
	kern_strip *bf16_f32, *f32_bf16, *f16_f32, *f32_f16;
	kern_fold *fold[RED_COUNT][NAT_COUNT];           /* add, mul, min, max; NULL elsewhere */
	kern_each *each[RED_COUNT][DT_COUNT];            /* add, mul, min, max, and, or, xor; NULL elsewhere */
	kern_each *put[5];                               /* overwrite 1, 2, 4, 8, 16 bytes */
	kern_look *look[2];                              /* of elements of 4 and of 8 bytes */
	void (*place_i32)(int64_t n, const int32_t *idx, int64_t most, int64_t step, int64_t *at);     /* at[i] += idx[i] * step, if 0 <= idx[i] <= most */
	kern_gemm *gemm_f32, *gemm_f64, *gemm_i32, *gemm_i64;
	kern_gemm_nt *gemm_nt_f32, *gemm_nt_f64, *gemm_nt_i32, *gemm_nt_i64;
	/* of integers, modulo 2^32; row of the type: sum of x[i] * row[i]; c[0..n) += sum over 4 rows of x[r] * row[r][0..n) */
	uint32_t (*dot_int[NAT_COUNT])(int64_t n, const uint32_t *x, const void *row);
	void (*axpy4_int[NAT_COUNT])(int64_t n, const uint32_t *x, const char *const *row, uint32_t *c);
	kern_key key16[2][2];        /* for the larger, for the smaller of two; of bf16, of f16 */
	/* n keys that sort as unsigned words; kind 0 unsigned, 1 signed, 2 float; at most 4 bytes each */
	void (*keys32)(int kind, int es, uint32_t flip, int64_t n, const void *x, uint32_t *out);
	void (*round[3])(const struct rounding *r, int64_t n, void *out, const void *in);       /* words of 2, 4, 8 bytes */
	void (*small)(const struct small_fmt *f, int64_t n, uint8_t *out, const float *in);
	void (*philox)(int64_t n, const uint32_t key[2], uint64_t c0, uint64_t c1, uint32_t *out);
	void (*threefry)(int64_t n, const uint32_t key[2], uint64_t c, uint32_t *o0, uint32_t *o1);
	/* transforms, see fft_pass.h: of floats, of doubles.  pass: done transforms are finished, m terms remain */
	void (*fft_pass[2])(int r, int64_t done, int64_t m, int64_t lanes, const void *a, void *o, const void *w);
	void (*fft_spin[2])(int64_t n, int64_t lanes, void *x, const void *w, double f, bool conj);
	void (*fft_weigh[2])(int64_t n, int64_t lanes, void *x, const void *w, int64_t ws);
	void (*fft_pairs[2])(int64_t h, int64_t lanes, const void *in, void *out, const void *w, bool back);
	void (*fft_half[2])(int r, int64_t done, int64_t m, int64_t lanes, const void *a, void *o, const void *w);
	void (*fft_widen[2])(int64_t n, const void *in, void *out);
	/* of each k = 2, 3 or 4 elements of es bytes the first, n in all */
	void (*every)(int es, int64_t n, int64_t k, char *restrict dst, const char *restrict src);
	/* each of n rows of dim elements of es bytes, one behind the other, from its last to its first */
	void (*flip)(int64_t n, int64_t dim, int es, const char *in, char *out);
	/* out[j * os + i] = in[i * is + j], i < ni, j < nj; 1, 2, 4, 8 bytes */
	void (*transpose[4])(int64_t ni, int64_t nj, const void *in, int64_t is, void *out, int64_t os);
};
enum { RADIX_MOST = 127 };                       /* largest prime factor that has a pass */
extern const struct kern_isa kern_isa_base, kern_isa_v3, kern_isa_v4;
const struct kern_isa *kern_isa_get(void);       /* the best this machine and RONDO_ISA allow (isa.c) */

/* --- views and loops (loop.c) ------------------------------------------- */

static inline int dt_bytes(int dt) { return dtype_info[dt].bytes; }
static inline char *view_at(const struct prog_kern *k, char *const *ptr, int i)
{ return ptr[i] + k->v[i].off * dt_bytes(k->v[i].dtype); }
int64_t view_count(const struct prog_view *v);

/* The index space of several views of equal shape with dimensions of extent 1 dropped and neighbours
 * that every view walks evenly merged.  At least one dimension.  Strides in bytes. */
struct loop { int rank; int64_t *dim; int64_t **stride; int64_t count; };   /* stride[view][dim] */
void loop_make(struct arena *a, struct loop *l, int nview, const struct prog_view *const *v);

/* Multi-index of linear position lin (row-major). */
static inline void index_of(int rank, const int64_t *dim, int64_t lin, int64_t *ix)
{
	for (int d = rank; d-- > 0;) {
		ix[d] = lin % dim[d];
		lin /= dim[d];
	}
}
static inline int64_t offset_of(int rank, const int64_t *stride, const int64_t *ix)
{
	int64_t o = 0;
	for (int d = 0; d < rank; d++)
		o += stride[d] * ix[d];
	return o;
}
/* Next index of the first rank dimensions; false after the last. */
static inline bool index_next(int rank, const int64_t *dim, int64_t *ix)
{
	for (int d = rank; d-- > 0;) {
		if (++ix[d] < dim[d])
			return true;
		ix[d] = 0;
	}
	return false;
}
enum { LOOP_RANK = MAX_RANK };

typedef struct { uint64_t a, b; } w16;       /* an element of 16 bytes */
/* M(T) for elements of es bytes, T of their size. */
#define BY_SIZE(es, M)                 \
	switch (es) {                      \
	case 1: M(uint8_t) break;          \
	case 2: M(uint16_t) break;         \
	case 4: M(uint32_t) break;         \
	case 8: M(uint64_t) break;         \
	default: M(w16) break;             \
	}
/* n elements of es bytes from stride ss to stride ds (bytes). */
void move_strided(int es, int64_t n, char *dst, int64_t ds, const char *src, int64_t ss);
void fill_bytes(int es, int64_t n, char *dst, const void *value);   /* contiguous */

/* Reading an integer scalar of any type. */
int64_t load_int(enum dtype dt, const void *p);

/* --- long sums (loop.c) ------------------------------------------------- */

/* A long sum goes through levels, so that its error grows with the logarithm of its length: SUM_RADIX blocks are added
 * up in level 0, as many sums of level 0 in level 1, and so on.  What a block is, and so the order, depends on shapes
 * alone.  The levels of n elements lie step bytes apart, level 0 first. */
enum { SUM_RADIX = 16 };
int sum_levels(int64_t blocks);
/* Does block i begin a sum of level 0, in place of what is there? */
static inline bool sum_starts(int64_t i) { return i % SUM_RADIX == 0; }
/* Block i is in level 0. */
void sum_carry(int64_t i, kern_strip *add, int64_t n, int bytes, char *levels, size_t step);
/* All are: the whole sum to level 0. */
void sum_close(int64_t blocks, kern_strip *add, int64_t n, int bytes, char *levels, size_t step);

/* --- expressions (expr.c) ----------------------------------------------- */

/* A prog_expr made ready to run: strips looked up, registers given slots.  Slots 0 .. nin-1 are inputs. */
struct plan_ins { kern_strip *fn; kern_look *look; int32_t most; uint16_t out, src[3]; uint8_t round_e, round_m, from; };
struct plan {
	int nin, nout, n, nslot, nconst;
	struct plan_ins *ins;
	uint16_t *out;            /* slot of each output */
	uint8_t *out_type, *in_type;
	uint16_t *const_slot; uint8_t (*const_imm)[16]; uint8_t *const_bytes;
	size_t *slot_off;         /* of slots nin ..: bytes from the start of the scratch, for KERN_STRIP elements */
	size_t scratch;
};
struct err *plan_make(struct arena *a, const struct prog_expr *e, struct plan **out);
/* Fill the constants; once per scratch. */
void plan_start(const struct plan *p, char *scratch);
/* n <= KERN_STRIP.  in: nin pointers.  result: nout pointers to where the outputs are (inside scratch,
 * or an input); if want is not NULL, want[i] non-NULL asks for output i to be put there. */
void plan_run(const struct plan *p, int64_t n, const void *const *in, void *const *want, const void **result, char *scratch);
/* A single function of the operands in order, or NULL. */
kern_strip *plan_single(const struct plan *p);

/* The function of a known reduction as an expression (acc, x) -> acc, and as a row of elem.def. */
struct prog_expr *redop_expr(struct arena *a, enum redop op, enum dtype dt);
enum dtype acc_type(enum dtype dt);          /* what sums of dt are kept in */

/* Strips through f32, for small floats: see kern_elem. */
void conv_any(enum dtype from, enum dtype to, int64_t n, void *out, const void *in);
extern kern_strip *const kern_complex64[ELEM_COUNT], *const kern_complex128[ELEM_COUNT];
void round_precision(enum dtype dt, int ebits, int mbits, int64_t n, void *out, const void *in);

#endif
