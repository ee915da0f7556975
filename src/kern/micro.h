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

/* The calling thread's tile registers: eight tiles of 16 rows of 64 bytes between begin and end.  Tiles 0-3 are the result (2 x 2 blocks of
 * 16 x 16 f32 or i32), 4-5 lhs, 6-7 rhs. */
void micro_tiles_begin(void);
void micro_tiles_end(void);

#endif
