#include "micro.h"

#include <cpuid.h>
#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../base/base.h"

/* The kernel gives a process the tile registers only on request. */
static bool tiles_granted;
static void request_tiles(void)
{
	enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
	tiles_granted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
}

static bool has_tiles(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, request_tiles);
	return tiles_granted;
}

bool micro_always(void) { return true; }
bool micro_never(void) { return false; }
bool micro_avx2(void) { return cpu_get()->avx2; }
bool micro_avx512(void) { return cpu_get()->avx512; }
bool micro_vnni(void) { return cpu_get()->avx512 && __builtin_cpu_supports("avx512vnni"); }
bool micro_bf16(void) { return cpu_get()->avx512_bf16; }
bool micro_amx(void) { return cpu_get()->amx_bf16 && has_tiles(); }
bool micro_amx_i8(void) { return cpu_get()->amx_int8 && micro_amx(); }

bool micro_bf16_pays(void) { return cpu_get()->amd; }
bool micro_fetch_pays(void) { return cpu_get()->amd && !cpu_get()->zen5; }
bool micro_streams_pay(void) { return cpu_get()->zen5; }
bool micro_next_pays(void) { return cpu_get()->amd; }

/* A constant, since gcc 12 does not see that the instruction reads all of it. */
struct tile_config { uint8_t palette, start, reserved[14]; uint16_t colsb[16]; uint8_t rows[16]; };
static const struct tile_config config __attribute__((aligned(64))) = {
	.palette = 1, .colsb = { 64, 64, 64, 64, 64, 64, 64, 64 }, .rows = { 16, 16, 16, 16, 16, 16, 16, 16 },
};

__attribute__((target("amx-tile"))) void micro_tiles_begin(void) { _tile_loadconfig(&config); }
__attribute__((target("amx-tile"))) void micro_tiles_end(void) { _tile_release(); }
