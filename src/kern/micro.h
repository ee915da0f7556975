/* Which micro-kernels of products and of attention run here, and the tile registers that some of them share. */
#ifndef RONDO_KERN_MICRO_H
#define RONDO_KERN_MICRO_H

#include <stdbool.h>

/* What the CPU, the operating system and RONDO_ISA allow; any thread may ask. */
bool micro_always(void);
bool micro_never(void);
bool micro_avx2(void);
bool micro_avx512(void);
bool micro_vnni(void);
bool micro_bf16(void);
bool micro_amx(void);         /* tiles of bf16; asks the kernel for the registers, once */
bool micro_amx_i8(void);
/* Are pairs of bf16 faster than f32?  vdpbf16ps is twice as fast on AMD and half as fast on Intel (measured). */
bool micro_bf16_pays(void);
/* Is it faster to ask for eight rows that are read side by side before they are needed, in runs of some KB?  It is on Zen 4; Intel's cores do so by themselves, and are
 * disturbed (1x4096x14336 f32 on two cores of a Xeon: 8.7 ms for 10.0, in runs twice as long; 1x4096x4096 1.8 for 2.4). */
bool micro_fetch_pays(void);
/* Do they do so by themselves if the runs are long, and of no more rows than a few (MATMUL_ALONG)?  It is so from Zen 5 on (4096x14336 by 1, 2, 4, 8 rows of f32 on one core: 8.9, 12.3, 12.1,
 * 9.1 ms, and 7.5, 7.3, 9.4, 7.6; by 1, 2, 4 of bf16: 6.9, 6.7, 6.0, and 3.8, 4.2, 4.8). */
bool micro_streams_pay(void);
/* Are packed rows asked for before they are multiplied, by vector instructions, too?  (f32 2048x2048x2048 on one core of Zen 5: 75 % of its peak, and 87 %; bf16 84, and 97 %.) */
bool micro_next_pays(void);

/* The calling thread's tile registers: eight tiles of 16 rows of 64 bytes between begin and end.  Tiles 0-3 are the result (2 x 2 blocks of
 * 16 x 16 f32 or i32), 4-5 lhs, 6-7 rhs. */
void micro_tiles_begin(void);
void micro_tiles_end(void);

#endif
