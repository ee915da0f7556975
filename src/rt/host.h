/* Between host.c and ffi.c. */
#ifndef RONDO_RT_HOST_H
#define RONDO_RT_HOST_H

#include "impl.h"

/* Call an XLA FFI handler. */
struct err *ffi_call(void *handler, const struct rt_custom_call *call);

#endif
