/* Matrix products at the speed of the machine: what dot.c hands over. */
#ifndef RONDO_KERN_MATMUL_H
#define RONDO_KERN_MATMUL_H

#include "impl.h"

/* Fill s for KERN_dot k if a fast form exists for its types and size; false: dot.c does it. */
bool kern_matmul(const struct prog_kern *k, struct kern_state *s);

/* A packed product: micro adds the product of MR rows and NR columns of packed panels to c.
 *   f32:  a [k][MR], b [k][NR], or b rows of ldb where they lie (steps = k)
 *   bf16: a [k/2][MR][2], b [k/2][NR][2]                   (steps = k/2), "pairs"
 *   tiles: a [k/32][MR/16][16][32], b [k/32][NR/16][16][16][2]   (steps = k/32) */
struct matmul_variant {
	const char *name;
	bool bf16;               /* panels are bf16, else f32 */
	bool tiles;              /* AMX layout */
	int mr, nr, kstep;       /* kstep: k per step; packed k is padded with zeros */
	bool (*has)(void);       /* can this machine run it */
	bool (*best)(void);      /* is it the one to choose here, asked in order of the table */
	void (*micro)(int64_t steps, const void *a, const void *b, int64_t ldb, float *c, int64_t ldc, bool add);   /* ldb: f32 only */
	void (*begin)(void);     /* per thread and run, or NULL */
	void (*end)(void);
};
extern const struct matmul_variant matmul_variant[];
extern const int matmul_nvariant;
/* Tests: use this variant wherever its panel type allows; NULL = choose. */
extern const struct matmul_variant *matmul_force;

#endif
