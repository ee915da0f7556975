/* RONDO_TRACE=file: a timeline of commands for Perfetto (the JSON form of Chrome's tracer); a folder gets a file of each process.
 *
 * It is written when a client is closed and when the process ends.  `rondo trace` reads it back: an event a line, with all that is
 * known of its command. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "impl.h"

static char *path;
static struct rt_trace *all;              /* since the first client began */

static void begin(void)
{
	const char *p = conf_str(CONF_TRACE);

	if (!*p)
		return;
	struct str s = { 0 };
	struct stat st;
	str_add(&s, p);
	if (!stat(p, &st) && S_ISDIR(st.st_mode))      /* each process of a job has a file of its own there */
		str_addf(&s, "/rondo-%d.json", (int)getpid());
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
		str_free(&s);
		return;
	}
	path = s.p;
	atexit(timeline_write);
}

void timeline_begin(void)
{
	static struct mem_once once;

	mem_once(&once, begin);
}

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

static struct err *make(void *v)
{
	static const char *const lane[RT_LANES] = { "launches", "compute", "communication", "host", "under way" };
	struct str *s = v;
	struct rt_trace_read r;

	rt_trace_read(all, &r);
	str_add(s, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
	for (size_t i = 0; i < r.ndev; i++) {
		const struct rt_trace_device *d = &r.dev[i];
		str_addf(s, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"device %d\"}},\n", d->id, d->id);
		for (int k = 0; k < RT_LANES; k++)
			str_addf(s, "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}},\n", d->id, k, lane[k]);
		for (size_t k = 0; k < d->n; k++) {
			const struct rt_trace_event *e = &d->ev[k];
			str_addf(s, "{\"ph\":\"X\",\"pid\":%d,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"", d->id, e->lane,
			         (double)(e->t0 - r.t0) / 1e3, (double)(e->t1 - e->t0) / 1e3);
			text(s, e->op->name);
			if (*e->op->site) {
				str_add(s, " ");
				text(s, e->op->site);
			}
			facts(s, e);
		}
	}
	str_addf(s, "{\"ph\":\"M\",\"name\":\"lost\",\"pid\":0,\"args\":{\"events\":%llu}}]}\n", (unsigned long long)r.lost);
	rt_trace_read_free(&r);
	return NULL;
}

void timeline_write(void)
{
	static bool told;                     /* it is tried as clients end, and at the end */
	struct str s = { 0 };

	if (!path)
		return;
	struct err *e = mem_guard(make, &s, false);
	if (!e)
		e = str_write_file(path, s.p, s.n);
	if (e && !told)
		log_line(LOG_WARN, "no timeline: %s", e->msg);
	told |= e != NULL;
	err_free(e);
	str_free(&s);
}
