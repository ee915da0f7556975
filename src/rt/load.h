/* Loads the objects that the code generator makes: ELF relocatable files for x86-64. */
#ifndef RONDO_RT_LOAD_H
#define RONDO_RT_LOAD_H

#include "../base/base.h"

struct rt_code;

/* Map obj (n bytes, borrowed until it returns) into executable memory.  Undefined symbols are functions of
 * libc and libm.  DATA_LOSS if the bytes are not such an object, NOT_FOUND names a symbol nobody has. */
struct err *rt_code_load(const void *obj, size_t n, struct rt_code **out);    /* owned */
void *rt_code_symbol(const struct rt_code *c, const char *name);              /* NULL: no such symbol */
void rt_code_free(struct rt_code *c);                                         /* NULL is fine; nobody runs in it any more */

#endif
