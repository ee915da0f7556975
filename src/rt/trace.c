/* RONDO_TRACE=file: a timeline of commands for Perfetto (the JSON form of Chrome's tracer); a folder gets a file of each process.
 *
 * Each device records into its own list; the file is written when a client is closed and when the process
 * ends.  A program with very many commands fills the list: what comes later is only counted. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "impl.h"

enum { MAX_EVENTS = 1 << 20 };

struct event { const char *name; uint64_t t0, t1; int64_t permuted; uint32_t kind; };
struct trace { struct event *ev; size_t n, cap; uint64_t lost; int id; struct trace *next; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct trace *traces;
static char *path;
static uint64_t start;

static void trace_flush(void) { trace_write(); }

static void trace_init(void)
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
	start = clock_ns();
	path = s.p;
	atexit(trace_flush);
}

bool trace_on(void)
{
	static struct mem_once once;

	mem_once(&once, trace_init);
	return path != NULL;
}

struct trace *trace_new(int device)
{
	struct trace *t = mem_alloc(sizeof *t);

	t->id = device;
	pthread_mutex_lock(&lock);
	t->next = traces;
	traces = t;
	pthread_mutex_unlock(&lock);
	return t;
}

void trace_add(struct trace *t, enum trace_kind k, const char *name, uint64_t t0, uint64_t t1, int64_t permuted)
{
	pthread_mutex_lock(&lock);
	if (t->n == MAX_EVENTS)
		t->lost++;
	else {
		if (t->n == t->cap) {
			struct event *more = realloc(t->ev, MAX(2 * t->cap, 1024) * sizeof *t->ev);
			t->ev = more ? more : t->ev;
			t->cap = more ? MAX(2 * t->cap, 1024) : t->cap;
		}
		if (t->n < t->cap)
			t->ev[t->n++] = (struct event){ name, t0, t1, permuted, k };
		else
			t->lost++;
	}
	pthread_mutex_unlock(&lock);
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

void trace_write(void)
{
	static const char *const lane[TRACE_KINDS] = { "launches", "compute", "communication", "host", "under way" };
	struct str s = { 0 };
	uint64_t lost = 0;

	if (!path)
		return;
	pthread_mutex_lock(&lock);
	str_add(&s, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
	for (struct trace *t = traces; t; t = t->next) {
		str_addf(&s, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"device %d\"}},\n", t->id, t->id);
		for (int k = 0; k < TRACE_KINDS; k++)
			str_addf(&s, "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}},\n", t->id, k, lane[k]);
		for (size_t i = 0; i < t->n; i++) {
			const struct event *e = &t->ev[i];
			str_addf(&s, "{\"ph\":\"X\",\"pid\":%d,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"", t->id, e->kind,
			         (double)(e->t0 - start) / 1e3, (double)(e->t1 - e->t0) / 1e3);
			text(&s, e->name);
			if (e->permuted)
				str_addf(&s, "\",\"args\":{\"%s\":%lld}},\n", e->permuted > 0 ? "bytes copied" : "bytes read in place", llabs((long long)e->permuted));
			else
				str_add(&s, "\"},\n");
		}
		lost += t->lost;
	}
	pthread_mutex_unlock(&lock);
	str_addf(&s, "{\"ph\":\"M\",\"name\":\"lost\",\"pid\":0,\"args\":{\"events\":%llu}}]}\n", (unsigned long long)lost);
	struct err *e = str_write_file(path, s.p, s.n);
	static bool said;
	if (e && !said)                       /* it is tried as clients end, and at the end */
		log_line(LOG_WARN, "no timeline: %s", e->msg);
	said |= e != NULL;
	err_free(e);
	str_free(&s);
}
