#define ISA_LEVEL 1
#define ISA_NAME base
#define ISA_TEXT "base"
#include "isa.h"
