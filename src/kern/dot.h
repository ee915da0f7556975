/* The product of two arrays: what dot.c shares with convolution. */
#ifndef RONDO_KERN_DOT_H
#define RONDO_KERN_DOT_H

#include "matmul.h"

/* A group of dimensions: where element i is on either side. */
struct axis { int64_t n; struct matmul_axis of[2]; };
/* How elements of an operand become the type of the computation: through first (NULL: they are). */
struct side { int es, cs; bool complex; kern_strip *first; };

struct dot {
	enum dtype ct;               /* f32, f64, i32 or i64 */
	int cs;
	bool complex, nt, direct_a, direct_b, direct_c;
	struct side l, r;
	kern_strip *store;
	struct axis bl, br, m, n, kl, kr;    /* side 0: the operand, 1: the result */
	kern_gemm *gemm;
	kern_gemm_nt *gemm_nt;
	int64_t mb, nb;
	int levels;                  /* of long sums */
	size_t sums, a_bytes, b_bytes;   /* of scratch: those of sums, of packed blocks */
	kern_strip *add;             /* NULL: one level */
};
/* The type products of l and r are summed in. */
enum dtype dot_type(enum dtype l, enum dtype r, enum dtype out, enum dtype acc);

#endif
