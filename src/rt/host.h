/* Between host.c and ffi.c. */
#ifndef RONDO_RT_HOST_H
#define RONDO_RT_HOST_H

#include "impl.h"

/* Call an XLA FFI handler; *checked: its version is known to be right. */
struct err *ffi_call(void *handler, _Atomic bool *checked, const struct rt_custom_call *call);

#endif
