/* What instructions on tiles mean. */
#include "tiles.h"

_Thread_local unsigned char tiles_model[8][16][64];

void model_bf16(int c, int a, int b)
{
	for (int i = 0; i < 16; i++)
		for (int j = 0; j < 16; j++) {
			float sum, even = 0, odd = 0;
			uint16_t x[2], y[2];
			for (int k = 0; k < 16; k++) {
				memcpy(x, &tiles_model[a][i][4 * k], 4);
				memcpy(y, &tiles_model[b][k][4 * j], 4);
				even += bf16_to_f32(x[0]) * bf16_to_f32(y[0]);
				odd += bf16_to_f32(x[1]) * bf16_to_f32(y[1]);
			}
			memcpy(&sum, &tiles_model[c][i][4 * j], 4);
			sum += even + odd;
			memcpy(&tiles_model[c][i][4 * j], &sum, 4);
		}
}
