#define ISA_LEVEL 3
#define ISA_NAME v3
#define ISA_TEXT "avx2"
#if defined(__x86_64__)
#include "isa.h"
#else
typedef int kern_isa_v3_is_for_x86;
#endif
