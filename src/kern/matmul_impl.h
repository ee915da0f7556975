/* A product as it was planned: what matmul_plan.c decides, matmul.c and matmul_few.c run. */
#ifndef RONDO_KERN_MATMUL_IMPL_H
#define RONDO_KERN_MATMUL_IMPL_H

#include "matmul.h"

enum { MATMUL_FEW = 8 /* rows of run_few */, MATMUL_FEW_COLS = 4096 /* and columns of a tile */, MATMUL_SLAB = 32, MATMUL_PACK_MOST = 48 << 20 };

struct matmul {
	const struct matmul_variant *v;
	int64_t b, m, n, k;
	struct matmul_side l, r;             /* free: rows of l, columns of r */
	enum dtype out, sum;             /* sum: f32 or i32 */
	int oes;
	struct matmul_axis om, on, ob;   /* result offsets, elements */
	bool on_unit;
	int64_t chain;                   /* so many steps make one sum (matmul_micro) */
	int64_t ko, kc, nc, nb, mb;      /* blocks: contraction in L2 and in L1, columns in L2; columns and rows of a tile */
	int64_t nblk, mblk, npanel;      /* per batch */
	size_t panel, rpanel;            /* bytes of a packed lhs or rhs panel over all k */
	bool share_rhs;                  /* several tiles read a column block: it is packed once, in phase 0 */
	bool lazy;                       /* lhs is packed as it is needed */
	bool keep;                       /* and kept while the tile's blocks of columns pass by */
	bool slab;                       /* few rows: all of lhs is packed, rhs is taken kc rows at a time */
	enum { BY_ROWS, BY_DOTS, BY_TURNED } few;    /* few rows: rhs lies row by row, column by column, or as short columns, which are turned */
	bool ahead;                      /* what is read next of rhs, row by row, is asked for before */
	bool in_place;                   /* its rows are read where they lie, ldb bytes apart */
	int64_t ldb;
	bool next;                       /* packed rows are asked for while those before are multiplied */
	bool along;                      /* and so few rows of lhs that whole rows of it are read, MATMUL_ALONG at a time */
	bool tall;                       /* few columns: rows of lhs are read where they lie */
	int64_t together;                /* then: so many elements along k, and again so many elsewhere */
	int64_t l_turn;                  /* few rows, 4 bytes an element, lie side by side, and the next of the contraction so far on; 0: not so */
	int64_t l_step;                  /* rows of lhs are so far apart, elements; 0: not evenly */
	int64_t npanel_r;                /* rhs panels per batch */
	size_t a_bytes, b_bytes, c_bytes;   /* per-thread blocks */
	size_t apanel;                   /* bytes of a kept lhs panel */
	int levels; size_t c_level;      /* of long sums; bytes of one */
	int64_t run;                     /* so many blocks of ko make one number for the levels */
	bool apart;                      /* that number is made beside them: a micro-kernel for tiles goes on from the sum it finds */
	int il, ir;                      /* which operand is lhs, rhs: exchanged for few columns */
	void (*lay)(const struct prog_kern *k, const void *arg, char *const *ptr, char *to, int64_t t0, int64_t t1, int64_t tiles);
	const void *lay_arg;
	size_t lay_bytes;
	int lay_of;
};


void matmul_run_few(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr, int64_t t0, int64_t t1, void *scratch);
void matmul_run_packed(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr, int64_t t0, int64_t t1, void *scratch);
/* c, rows of ldc numbers, to rows m0 .. m0 + mn and columns n0 .. n0 + nn of a batch's result.  Of PARTS it is written over. */
void matmul_store(const struct matmul *p, char *out, int64_t m0, int64_t mn, int64_t n0, int64_t nn, float *c, int64_t ldc);

static inline bool matmul_float(enum dtype dt) { return dt == DT_f32 || dt == DT_bf16 || dt == DT_f16; }
static inline int64_t matmul_pad(int64_t n, int64_t a) { return (n + a - 1) / a * a; }
static inline size_t matmul_es(const struct matmul *p) { return (size_t)p->v->es; }
static inline char *matmul_align(void *p) { return (char *)(((uintptr_t)p + 63) & ~(uintptr_t)63); }

#endif
