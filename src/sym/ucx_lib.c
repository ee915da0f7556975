/* UCX itself: loaded when it is needed, and started as suits what we do with it. */
#include "ucx.h"

#if __has_include(<ucp/api/ucp.h>)

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define PLUGGED 0x10000 /* IFF_LOWER_UP, which only linux/if.h has */
enum { SETTLE_S = 5 };

struct ucx_calls ucx;

static struct err *load(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static void *lib;
	struct err *e = NULL;

	pthread_mutex_lock(&lock);
	if (!lib) {
		lib = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
		const char *missing = NULL;
		void *f = NULL;
#define X(name) \
		if (lib && !(f = dlsym(lib, #name))) \
			missing = #name; \
		else if (lib) \
			memcpy(&ucx.name, &f, sizeof f);
		UCP(X)
		X(ucs_status_string)
#undef X
		if (!lib)
			e = ERR(UNAVAILABLE, "cannot load UCX, the road to other hosts (package libucx0): %s", dlerror());
		else if (missing) {
			e = ERR(UNAVAILABLE, "this UCX has no function '%s'", missing);
			dlclose(lib);
			lib = NULL;
		}
	}
	pthread_mutex_unlock(&lock);
	return e;
}

struct err *ucx_fail(const char *what, ucs_status_t s) { return ERR(UNAVAILABLE, "UCX: %s: %s", what, ucx.ucs_status_string(s)); }

/* Over TCP a message that fills a slot goes and comes in one piece.  Longer ones are asked for by who receives them, and
 * received where they go.  It is progress that connects, so nobody has to answer who leaves before he has made any.  What the
 * environment says is left alone. */
static void tune(ucp_config_t *conf)
{
	static const char *const row[][2] = { { "TCP_TX_SEG_SIZE", "256k" }, { "TCP_RX_SEG_SIZE", "256k" }, { "RNDV_THRESH", "72k" }, { "RNDV_SCHEME", "put_zcopy" },
		{ "TCP_CONN_NB", "y" } };
	unsigned major, minor, release;
	char name[64];

	ucx.ucp_get_version(&major, &minor, &release);
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		bool tcp = !strncmp(row[i][0], "TCP_", 4);
		snprintf(name, sizeof name, "UCX_%s", row[i][0]);
		/* Up to 1.16 the names of a transport's settings go without its own. */
		if (!getenv(name))
			ucx.ucp_config_modify(conf, row[i][0] + (tcp && major == 1 && minor < 17 ? 4 : 0), row[i][1]);
	}
}

/* An interface whose cable was just put in: the kernel takes up to a second to say that it runs, and until then UCX neither
 * takes it nor looks again. */
static bool settling(void)
{
	struct ifaddrs *all = NULL;
	bool yes = false;

	if (getifaddrs(&all))
		return false;
	for (struct ifaddrs *i = all; i && !yes; i = i->ifa_next)
		yes = i->ifa_addr && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6) &&
		      (i->ifa_flags & (IFF_UP | IFF_RUNNING | PLUGGED)) == (IFF_UP | PLUGGED);
	freeifaddrs(all);
	return yes;
}

struct err *ucx_start(struct ucx *x)
{
	TRY(load());
	for (double until = clock_s() + SETTLE_S; settling() && clock_s() < until;)
		nanosleep(&(struct timespec){ 0, 20 * REST_NS }, NULL);
	ucp_config_t *conf;
	ucs_status_t s = ucx.ucp_config_read(NULL, NULL, &conf);

	if (s != UCS_OK)
		return ucx_fail("configuration", s);
	/* 1.13 aborts for an answer to a request to connect that is not sent yet when the other process or the worker goes, but on an
	 * endpoint that has asked itself.  So ours ask at once, whatever the environment says; and no progress is made before all are
	 * there, for whoever asks for one that is not gets one that the library makes. */
	ucx.ucp_config_modify(conf, "RESOLVE_REMOTE_EP_ID", "y");
	/* What is gone is found by asking, where nothing is on its way to it. */
	if (!getenv("UCX_KEEPALIVE_INTERVAL"))
		ucx.ucp_config_modify(conf, "KEEPALIVE_INTERVAL", "1s");
	/* It takes shared files without a look at whether they can be made, and does not start. */
	if (!getenv("UCX_TLS") && access("/dev/shm", W_OK))
		ucx.ucp_config_modify(conf, "TLS", "^posix");
	tune(conf);
	ucp_params_t p = { .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
	                   .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP, .estimated_num_eps = (size_t)x->w->nproc };
	s = ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &p, conf, &x->ctx);
	ucx.ucp_config_release(conf);
	if (s != UCS_OK)
		return ucx_fail("start", s);
	ucp_worker_params_t wp = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SERIALIZED };
	s = ucx.ucp_worker_create(x->ctx, &wp, &x->worker);
	if (s == UCS_OK)
		s = ucx.ucp_worker_get_efd(x->worker, &x->efd);
	if (s != UCS_OK)
		return ucx_fail("worker", s);
	x->stop = eventfd(0, EFD_CLOEXEC);
	return x->stop < 0 ? ERR(EXHAUSTED, "eventfd: %s", strerror(errno)) : NULL;
}

/* A line of what UCX prints of itself names a transport and a device, "rc_mlx5/mlx5_0:1". */
static bool is_fabric(const char *line)
{
	static const char *const known[] = { "tcp", "self", "sysv", "posix", "cma", "knem", "xpmem", "memory" };
	const char *slash = strchr(line, '/'), *p = slash;

	if (!strstr(line, "resource") || !slash)
		return false;
	while (p > line && p[-1] != ' ')
		p--;
	for (size_t i = 0; i < NELEM(known); i++)
		if ((size_t)(slash - p) == strlen(known[i]) && !memcmp(p, known[i], (size_t)(slash - p)))
			return false;
	return slash > p;
}

bool sym_ucx_fabric(void)
{
	ucp_params_t p = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP };
	DIR *d = opendir("/sys/class/infiniband");
	ucp_config_t *conf;
	ucp_context_h ctx;
	bool found = false;
	char *text = NULL, *save;
	size_t n;

	for (struct dirent *f; d && !found && (f = readdir(d));)
		found = f->d_name[0] != '.';
	if (d)
		closedir(d);
	if (!found)                       /* the library takes its time, and much of the process */
		return false;
	struct err *e = load();
	if (e) {
		log_line(LOG_WARN, "there is a fabric, but not the library for it: TCP is used; %s", e->msg);
		err_free(e);
		return false;
	}
	if (ucx.ucp_config_read(NULL, NULL, &conf) != UCS_OK)
		return false;
	ucs_status_t s = ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &p, conf, &ctx);
	ucx.ucp_config_release(conf);
	FILE *f = s == UCS_OK ? open_memstream(&text, &n) : NULL;
	if (f) {
		ucx.ucp_context_print_info(ctx, f);
		fclose(f);
	}
	if (s == UCS_OK)
		ucx.ucp_cleanup(ctx);
	found = false;
	for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line && !found; line = strtok_r(NULL, "\n", &save))
		found = is_fabric(line);
	free(text);
	return found;
}

#else

bool sym_ucx_fabric(void) { return false; }

#endif
