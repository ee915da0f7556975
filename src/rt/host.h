/* Between host.c, ffi.c, blas.c and catch.c. */
#ifndef RONDO_RT_HOST_H
#define RONDO_RT_HOST_H

#include "impl.h"

/* The attributes of c, in a, as handlers want them. */
struct err *ffi_attributes(struct arena *a, const struct prog_custom *c, struct ffi_attrs **out);
/* Call an XLA FFI handler with these attributes; *checked: its version is known to be right. */
struct err *ffi_call(void *handler, _Atomic bool *checked, const struct rt_custom_call *call, const struct ffi_attrs *attrs);

/* fn(arg) into *result.  UNKNOWN, as XLA has it, with what the exception says if fn throws one; nothing else is caught. */
struct err *catch_call(void *(*fn)(void *), void *arg, void **result);

/* Around a call of LAPACK, on any thread: all OpenBLAS of this process have at most so many threads for each call until the last caller has left. */
void blas_enter(int threads);
void blas_leave(void);

#endif
