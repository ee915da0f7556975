/* Between host.c, ffi.c and catch.c. */
#ifndef RONDO_RT_HOST_H
#define RONDO_RT_HOST_H

#include "impl.h"

/* Call an XLA FFI handler; *checked: its version is known to be right. */
struct err *ffi_call(void *handler, _Atomic bool *checked, const struct rt_custom_call *call);

/* fn(arg) into *result.  UNKNOWN, as XLA has it, with what the exception says if fn throws one; nothing else is caught. */
struct err *catch_call(void *(*fn)(void *), void *arg, void **result);

#endif
