/* Instructions on tiles (AMX), and what they mean, in C, for machines that have none: sources of kernels are included with each.
 *     #define TILES amx_           or model_
 *     #include "attention_tiles.h"     which uses TILE(load)(4, p, ld) ...
 * Tiles have 16 rows of 64 bytes; rows in memory are ld bytes apart.
 * The clobbers keep what is stored before a tile is loaded from there, and vector work between the products where it was written. */
#ifndef RONDO_KERN_TILES_H
#define RONDO_KERN_TILES_H

#include <stdint.h>
#include <string.h>

#include "../base/base.h"

#define TILES_JOIN2(a, b) a##b
#define TILES_JOIN(a, b) TILES_JOIN2(a, b)
#define TILE(op) TILES_JOIN(TILES, op)

#define amx_zero(t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")
#define amx_load(t, p, ld) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t :: "r"(p), "r"((int64_t)(ld)) : "memory")
/* What is loaded once does not drive out of the nearest cache what is loaded again. */
#define amx_stream(t, p, ld) __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #t :: "r"(p), "r"((int64_t)(ld)) : "memory")
#define amx_store(t, p, ld) __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" :: "r"(p), "r"((int64_t)(ld)) : "memory")
/* c += a b: 16 x 16 f32, of 16 rows of 32 bf16 and 16 pairs of rows of 16 columns. */
#define amx_bf16(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")

/* The same on tiles of the calling thread that are memory; functions, since what uses them is written out many times. */
void model_zero(int t);
void model_load(int t, const void *p, int64_t ld);
void model_store(int t, void *p, int64_t ld);
#define model_stream model_load
void model_bf16(int c, int a, int b);

#endif
