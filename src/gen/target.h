/* What code is generated for: a target is a row of a table, and nothing but its row knows which one it is.
 *
 * The scheduler and the emitter ask the row for what the machine can and how much it has room for (struct gen_target, without
 * LLVM), and let it write what is special (struct em_code in emit.h).  A row holds both.  host.def is the table of the
 * processor that this process runs on. */
#ifndef RONDO_GEN_TARGET_H
#define RONDO_GEN_TARGET_H

#include "../base/base.h"

struct gen_target {
	int id;                     /* place of its row */
	const char *name;           /* of the host's rows: as RONDO_ISA calls them.  Part of the key of what was compiled */
	const char *lacks;          /* why no code is made for it; NULL: code is made */
	bool (*here)(const struct cpu_info *);        /* does its code run on this machine? */
	const char *triple, *cpu, *features;          /* as LLVM calls them */

	/* vectors */
	int vbytes;                 /* of a register; wider vectors are not legal */
	int vectors;                /* registers of one value in a turn of the lane's loop */
	int columns;                /* times as many where columns are summed, so that a row is read several cache lines at once */
	bool masks;                 /* a partial vector costs what a full one does */
	int mask_from;              /* bytes: elements from this size on are loaded under a mask, smaller ones one by one */
	int gather_from;            /* bytes: elements from this size on are gathered by an instruction; 0: none are */
	int gather_cost, scatter_cost;                /* of a vector whose elements lie apart, in loads of a dense one */
	int transpose[4];           /* rows of a block that shuffles transpose, for elements of 1, 2, 4, 8 bytes; powers of two, at most 16 */
	int scales;                 /* lanes of f32 that scale of struct em_code takes; 0: it has none */

	/* memory */
	int line;                   /* bytes of a cache line */
	int64_t chunk;              /* elements: so many of a few operands stay in the first cache */
	int64_t kept;               /* bytes of dear values that are kept from one nest to the next */
	int64_t across;             /* turns of a block of loads that is transposed; a multiple of all of transpose */
	int64_t past;               /* bytes: the results of a kernel that moves so many go past the caches; 0: never */
	int ahead, ahead_from;      /* a loop whose turns lie ahead_from bytes or more apart fetches so many turns ahead; 0: none */
	int stream;                 /* bytes: what is read from one end to the other is fetched so far ahead; 0: hardware does better */
	int64_t stream_from;        /* bytes that a kernel moves in all, from which that pays */

	/* work */
	int64_t work;               /* bytes and operations of a tile */
	int tiles, tiles_most;      /* more than so many tiles are larger ones, up to the second number of them */
	int64_t unroll;             /* reductions of at most so many elements are straight-line code */
	int tiny;                   /* elements of a value that control flow keeps in registers; at most 256 */
};

/* Row i, NULL after the last.  Each asks more of the machine than the one before. */
const struct gen_target *gen_target_row(int i);
/* What this process generates code for: the last row that runs here, as far as RONDO_ISA allows. */
const struct gen_target *gen_target_get(void);

#endif
