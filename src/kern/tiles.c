/* What instructions on tiles mean. */
#include "tiles.h"

/* The calling thread's tiles: 16 rows of f32, or of pairs of bf16. */
static _Thread_local union { float f[16][16]; uint16_t pair[16][16][2]; } tile[8];

void model_zero(int t) { memset(&tile[t], 0, sizeof tile[t]); }

void model_load(int t, const void *p, int64_t ld)
{
	for (int i = 0; i < 16; i++)
		memcpy(tile[t].f[i], (const char *)p + i * ld, sizeof tile[t].f[i]);
}

void model_store(int t, void *p, int64_t ld)
{
	for (int i = 0; i < 16; i++)
		memcpy((char *)p + i * ld, tile[t].f[i], sizeof tile[t].f[i]);
}

void model_bf16(int c, int a, int b)
{
	for (int i = 0; i < 16; i++) {
		float even[16] = { 0 }, odd[16] = { 0 };
		for (int k = 0; k < 16; k++) {
			const uint16_t *x = tile[a].pair[i][k];
			for (int j = 0; j < 16; j++) {
				even[j] += bf16_to_f32(x[0]) * bf16_to_f32(tile[b].pair[k][j][0]);
				odd[j] += bf16_to_f32(x[1]) * bf16_to_f32(tile[b].pair[k][j][1]);
			}
		}
		for (int j = 0; j < 16; j++)
			tile[c].f[i][j] += even[j] + odd[j];
	}
}
