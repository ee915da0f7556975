/* Functions that are never right here: a use is a compile error. */
#pragma GCC poison strcpy strcat sprintf vsprintf strtok gets strncpy strdup strndup asprintf vasprintf

/* All memory comes from mem.c, so that tests can refuse any of it. */
#include <stdlib.h>
#define malloc mem_malloc
#define calloc mem_calloc
#define realloc mem_realloc
#define aligned_alloc mem_aligned_alloc
#define posix_memalign mem_posix_memalign
#define free mem_free
