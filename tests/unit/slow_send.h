/* A network that is slow to send: each call of send takes up to slow_send microseconds before, and as many after.  Libraries find this one first, for
 * libc has one of that name. */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static _Atomic int slow_send;

static void slow_wait(void)
{
	static _Thread_local unsigned seed;
	int most = atomic_load(&slow_send), was = errno;

	if (most)
		usleep((unsigned)rand_r(&seed) % (unsigned)most);
	errno = was;
}

__attribute__((visibility("default"))) ssize_t send(int fd, const void *p, size_t n, int flags)
{
	void *next = dlsym(RTLD_NEXT, "send");
	ssize_t (*real)(int, const void *, size_t, int);

	memcpy(&real, &next, sizeof real);
	slow_wait();
	ssize_t sent = real(fd, p, n, flags);
	slow_wait();
	return sent;
}
