/* The end of a forked process.  exit() would do what is its parent's to do; leaks are looked for all the same. */
#ifndef LEAVE_H
#define LEAVE_H

#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

static _Noreturn void leave(int status)
{
#ifdef __SANITIZE_ADDRESS__
	__lsan_do_leak_check();
#endif
	_exit(status);
}

#endif
