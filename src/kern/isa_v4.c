#define ISA_LEVEL 4
#define ISA_NAME v4
#define ISA_TEXT "avx512"
#if defined(__x86_64__)
#include "isa.h"
#else
typedef int kern_isa_v4_is_for_x86;
#endif
