/* RONDO_TRACE=file: a timeline of commands for Perfetto (the JSON form of Chrome's tracer); a folder gets a file of each process.
 *
 * It is written when a client is closed and when the process ends.  `rondo trace` reads it back: an event a line, with all that is
 * known of its command. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "impl.h"

static char *path;
static struct rt_trace *all;              /* since the first client began */

static void begin(void)
{
	struct str s = { 0 };

	if (!*conf_str(CONF_TRACE))
		return;
	conf_file(CONF_TRACE, &s, "rondo", "json");
	int fd = open(s.p, O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666);
	if (fd < 0) {
		conf_useless(CONF_TRACE, "there will be no timeline, since the file cannot be written: %s", strerror(errno));
		str_free(&s);
		return;
	}
	close(fd);
	struct err *e = rt_trace_new(&all);
	if (!e)
		e = rt_trace_start(all);
	if (e) {
		log_line(LOG_WARN, "no timeline: %s", e->msg);
		err_free(e);
		rt_trace_free(all);
		str_free(&s);
		return;
	}
	char *at = s.p[0] == '/' ? NULL : getcwd(NULL, 0);             /* the program may go elsewhere */
	if (at) {
		struct str whole = { 0 };
		str_addf(&whole, "%s/%s", at, s.p);
		str_free(&s);
		s = whole;
		free(at);
	}
	path = s.p;
	atexit(timeline_write);
}

void timeline_begin(void)
{
	static struct mem_once once;

	mem_once(&once, begin);
}

void timeline_disown(void) { path = NULL; }

static void text(struct str *s, const char *p)
{
	for (; *p; p++) {
		if (*p == '"' || *p == '\\')
			str_add(s, "\\");
		if ((unsigned char)*p < 32)
			str_addf(s, "\\u%04x", *p);
		else
			str_addn(s, p, 1);
	}
}

static void said(struct str *s, const char *key, const char *value)
{
	str_addf(s, ",\"%s\":\"", key);
	text(s, value);
	str_add(s, "\"");
}

/* What is known of a command, as the rest of an event. */
static void facts(struct str *s, const struct rt_trace_event *e)
{
	const struct rt_trace_op *o = e->op;

	str_add(s, "\",\"args\":{\"program\":\"");
	text(s, o->prog->name);
	str_addf(s, "\",\"number\":%u,\"step\":%u", o->number, e->step);
	if (e->begins)
		str_add(s, ",\"begins\":1");
	if (o->number) {
		said(s, "what", o->name);
		if (*o->site)
			said(s, "source", o->site);
		if (o->scope)
			said(s, "scope", o->scope);
		if (o->peer)
			said(s, "peers", o->peer[e->local]);
		if (o->bytes)
			str_addf(s, ",\"bytes\":%lld", (long long)o->bytes);
		if (o->limit_ns > 0)
			str_addf(s, ",\"limit_us\":%.4g", o->limit_ns / 1e3);
	}
	if (o->flops)
		str_addf(s, ",\"flops\":%lld", (long long)o->flops);
	if (e->moved)
		str_addf(s, ",\"%s\":%lld", e->moved > 0 ? "bytes copied" : "bytes read in place", llabs((long long)e->moved));
	str_add(s, "}},\n");
}

static void thread(struct str *s, int device, unsigned tid, const char *name)
{
	str_addf(s, "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%u,\"args\":{\"name\":\"%s\"}},\n", device, tid, name);
}

static void event(struct str *s, int device, const struct rt_trace_event *e, unsigned tid, uint64_t t0)
{
	str_addf(s, "{\"ph\":\"X\",\"pid\":%d,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"", device, tid,
	         (double)(e->t0 - t0) / 1e3, (double)(e->t1 - e->t0) / 1e3);
	text(s, e->op->name);
	if (*e->op->site) {
		str_add(s, " ");
		text(s, e->op->site);
	}
	facts(s, e);
}

enum { BESIDE = 32 };

struct writing { struct rt_trace_read r; size_t dev, ev; uint64_t lost, until[BESIDE]; unsigned nbeside; bool begun; struct str s; };

/* Events of one thread do not overlap, or Perfetto drops them: of what is under way at once each has a thread of its own.  They come as they end. */
static unsigned thread_of(struct writing *w, const struct rt_trace_event *e, bool *fresh)
{
	unsigned k = 0;

	*fresh = false;
	if (e->lane != RT_LANE_BESIDE)
		return e->lane;
	while (k < BESIDE - 1 && w->until[k] > e->t0)
		k++;
	*fresh = k >= w->nbeside;
	w->nbeside = MAX(w->nbeside, k + 1);
	w->until[k] = e->t1;
	return RT_LANE_BESIDE + k;
}

/* The next part of the file: what is there would take several times its own memory as a whole. */
static bool next(void *v, const void **p, size_t *n)
{
	enum { SOME = 1 << 16 };
	static const char *const lane[RT_LANES] = { "launches", "compute", "communication", "host", "under way" };
	struct writing *w = v;
	struct str *s = &w->s;

	s->n = 0;
	if (!w->begun)
		str_add(s, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
	w->begun = true;
	for (; s->n < SOME && w->dev < w->r.ndev; w->ev++) {
		const struct rt_trace_device *d = &w->r.dev[w->dev];
		if (w->ev == 0) {
			str_addf(s, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"device %d\"}},\n", d->id, d->id);
			for (unsigned k = 0; k < RT_LANES; k++)
				thread(s, d->id, k, lane[k]);
			memset(w->until, 0, sizeof w->until);
			w->nbeside = 1;
		}
		if (w->ev < d->n) {
			bool fresh;
			unsigned tid = thread_of(w, &d->ev[w->ev], &fresh);
			if (fresh)
				thread(s, d->id, tid, lane[RT_LANE_BESIDE]);
			event(s, d->id, &d->ev[w->ev], tid, w->r.t0);
		} else {
			w->dev++;
			w->ev = (size_t)-1;
		}
	}
	if (w->dev == w->r.ndev) {
		str_addf(s, "{\"ph\":\"M\",\"name\":\"lost\",\"pid\":0,\"args\":{\"events\":%llu}}]}\n", (unsigned long long)w->lost);
		w->dev++;
	}
	*p = s->p;
	*n = s->n;
	return s->n;
}

static struct err *make(void *v)
{
	static bool warned;
	struct writing w = { 0 };

	rt_trace_read(all, &w.r);
	for (size_t i = 0; i < w.r.ndev; i++)
		w.lost += w.r.dev[i].lost;
	if (w.lost && !warned)
		log_line(LOG_WARN, "the timeline '%s' lacks %llu events, which found no room", path, (unsigned long long)w.lost);
	warned |= w.lost > 0;
	struct err *e = str_write_parts(path, next, &w);
	str_free(&w.s);
	rt_trace_read_free(&w.r);
	return e;
}

void timeline_write(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static bool told;                     /* it is tried as clients end, and at the end */

	if (!path)
		return;
	pthread_mutex_lock(&lock);
	struct err *e = mem_guard(make, NULL, true);
	if (e && !told)
		log_line(LOG_WARN, "no timeline: %s", e->msg);
	told |= e != NULL;
	pthread_mutex_unlock(&lock);
	err_free(e);
}
