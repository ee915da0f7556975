/* LAPACK's own threads.  jaxlib's handlers call the LAPACK of SciPy, an OpenBLAS that gives every call a thread for each core: where several
 * devices share the cores, and do the same at the same time, these wait for each other, spinning, for up to thirty times as long as
 * one thread takes; where processes have cores of their own, an array that all have gets other bits in each.  While any device is in
 * LAPACK, OpenBLAS gets as many threads as the job has agreed on (job.c); afterwards what it had, as the program's own calls of NumPy
 * and SciPy are no affair of ours. */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include "host.h"

enum { LIBS = 8, NAME = 1000 };

struct blas { int (*get)(void); void (*set)(int); int was; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;        /* of what follows */
static struct blas blas[LIBS];
static int nblas = -1;                                          /* not looked for yet */
static int inside;

struct names { int n; char name[LIBS][NAME]; };

static int is_openblas(struct dl_phdr_info *l, size_t size, void *p)
{
	struct names *s = p;

	if (s->n < LIBS && l->dlpi_name && strlen(l->dlpi_name) < NAME && strstr(l->dlpi_name, "openblas"))
		memcpy(s->name[s->n++], l->dlpi_name, strlen(l->dlpi_name) + 1);
	return 0;
}

/* All that are loaded: names first, as the list of libraries is locked while it is walked. */
static void look(void)
{
	static const char *const prefix[] = { "", "scipy_" }, *const suffix[] = { "", "64_" };
	struct names s = { 0 };

	dl_iterate_phdr(is_openblas, &s);
	nblas = 0;
	for (int i = 0; i < s.n; i++) {
		void *lib = dlopen(s.name[i], RTLD_LAZY | RTLD_NOLOAD);
		for (int k = 0; lib && k < 4; k++) {
			char get[64], set[64];
			snprintf(get, sizeof get, "%sopenblas_get_num_threads%s", prefix[k / 2], suffix[k % 2]);
			snprintf(set, sizeof set, "%sopenblas_set_num_threads%s", prefix[k / 2], suffix[k % 2]);
			struct blas b = { (int (*)(void))dlsym(lib, get), (void (*)(int))dlsym(lib, set), 0 };
			if (b.get && b.set) {
				blas[nblas++] = b;
				break;
			}
		}
	}
}

void blas_enter(int threads)
{
	pthread_mutex_lock(&lock);
	if (!inside++) {
		if (nblas < 0)
			look();
		for (int i = 0; i < nblas; i++)
			if ((blas[i].was = blas[i].get()) > threads)
				blas[i].set(threads);
	}
	pthread_mutex_unlock(&lock);
}

void blas_leave(void)
{
	pthread_mutex_lock(&lock);
	if (!--inside)
		for (int i = 0; i < nblas; i++)
			blas[i].set(blas[i].was);
	pthread_mutex_unlock(&lock);
}
