/* The table of `rondo trace`: what timelines (src/rt/timeline.c) say of a step, in the width of a terminal. */
#include "tool.h"

#include <errno.h>
#include <stdlib.h>

/* --- reading -------------------------------------------------------------- */

/* What is behind "key": in an event's line; NULL: it has no such key.  Quotes inside texts are escaped: no text looks like a key. */
static const char *value(const char *line, const char *key)
{
	char want[40];
	int n = snprintf(want, sizeof want, "\"%s\":", key);
	const char *p = strstr(line, want);

	return p ? p + n : NULL;
}

static double number(const char *line, const char *key)
{
	const char *p = value(line, key);
	return p ? strtod(p, NULL) : 0;
}

static void text(struct str *s, const char *line, const char *key)
{
	const char *p = value(line, key);

	s->n = 0;
	str_addn(s, "", 0);
	for (p = p && *p == '"' ? p + 1 : ""; *p && *p != '"'; p++) {
		if (*p == '\\' && p[1])
			p++;
		str_addn(s, p, 1);
	}
}

enum { LAUNCH, COMPUTE, COMM, HOST, BESIDE, LANES };       /* threads of a device in a timeline, in their order; of what is under way at once the others follow */

/* Of all devices and steps. */
struct row { char *name, *scope; double us, limit, times, bytes; bool comm; };
struct rows { struct map of; ARR(struct row) r; };
struct span { double from, to; };
struct device { int id; bool begun; double steps, first, end, last; double lane[LANES]; ARR(struct span) computes, beside; };
struct table {
	struct rows op, line;
	ARR(struct device) dev;
	size_t dev0;                      /* the first of this file: processes that are no job have devices of the same numbers */
	ARR(double) step;                 /* durations, us */
	char *program;                    /* whose launches begin steps */
	double lost;
	bool any;
};

static char *copy(const char *p)
{
	struct str s = {0};
	str_add(&s, p);
	return s.p;
}

static struct row *row_of(struct rows *t, const char *key, const char *name, const char *scope)
{
	uint64_t *at = map_put(&t->of, key, strlen(key));

	if (!*at) {
		arr_push(&t->r, ((struct row){ .name = copy(name), .scope = copy(scope) }));
		*at = t->r.n;
	}
	return &t->r.p[*at - 1];
}

static void row_add(struct row *r, const char *line, double us, bool comm)
{
	r->us += us;
	r->limit += number(line, "limit_us");
	r->bytes += number(line, "bytes");
	r->times++;
	r->comm = comm;
}

static struct device *device_of(struct table *t, int id)
{
	for (size_t i = t->dev0; i < t->dev.n; i++)
		if (t->dev.p[i].id == id)
			return &t->dev.p[i];
	arr_push(&t->dev, ((struct device){ .id = id }));
	return &t->dev.p[t->dev.n - 1];
}

static void launch(struct table *t, struct device *d, const char *line, double ts, double dur, struct str *s)
{
	if (value(line, "begins")) {
		if (d->begun)
			arr_push(&t->step, ts - d->last);
		else
			d->first = ts;
		d->begun = true;
		d->last = ts;
		d->steps++;
		if (!t->program) {
			text(s, line, "program");
			t->program = copy(s->p);
		}
	}
	d->end = d->begun ? MAX(d->end, ts + dur) : d->end;
}

static void event(struct table *t, const char *line, struct str *s, struct str *key)
{
	int lane = (int)MIN(number(line, "tid"), BESIDE);
	double ts = number(line, "ts"), dur = number(line, "dur");
	struct device *d = device_of(t, (int)number(line, "pid"));

	t->any = true;
	if (lane == LAUNCH)
		launch(t, d, line, ts, dur, s);
	if (!number(line, "step") || lane < LAUNCH)
		return;
	if (lane == COMPUTE)
		arr_push(&d->computes, ((struct span){ ts, ts + dur }));
	if (lane == BESIDE)
		arr_push(&d->beside, ((struct span){ ts, ts + dur }));
	else
		d->lane[lane] += dur;
	if (lane == LAUNCH || lane == BESIDE)
		return;
	key->n = 0;
	text(s, line, "program");
	str_addf(key, "%s#%d", s->p, (int)number(line, "number"));
	text(s, line, "source");
	char where[200], name[300];
	const char *end = strrchr(s->p, ' ');      /* the op's name follows */
	snprintf(where, sizeof where, "%.*s", end ? (int)(end - s->p) : 9, end ? s->p : "(no line)");
	text(s, line, "what");
	snprintf(name, sizeof name, "%.80s  %s", s->p, where);
	text(s, line, "scope");
	row_add(row_of(&t->op, key->p, name, s->p), line, dur, lane == COMM);
	if (lane == COMM)
		row_add(row_of(&t->line, where, where, ""), line, dur, true);
}

static struct err *read_one(struct table *t, const char *path)
{
	FILE *f = fopen(path, "r");
	char *line = NULL;
	size_t cap = 0;
	struct str s = {0}, key = {0};
	bool first = true, ours = false;

	if (!f)
		return ERR(NOT_FOUND, "cannot open '%s': %s", path, strerror(errno));
	t->dev0 = t->dev.n;
	while (getline(&line, &cap, f) > 0) {
		if (first)
			ours = !strncmp(line, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[", 39);
		first = false;
		if (!strncmp(line, "{\"ph\":\"X\"", 9))
			event(t, line, &s, &key);
		else if (strstr(line, "\"name\":\"lost\""))
			t->lost += number(line, "events");
	}
	free(line);
	fclose(f);
	str_free(&s);
	str_free(&key);
	return ours ? NULL : ERR(INVALID, "'%s' is no timeline that RONDO_TRACE has written", path);
}

/* --- writing -------------------------------------------------------------- */

enum { FIRST = 16 };              /* letters of time and share */

static int by_time(const void *a, const void *b)
{
	const struct row *x = a, *y = b;
	return x->us < y->us ? 1 : x->us > y->us ? -1 : strcmp(x->name, y->name);
}

static double over(const struct row *r) { return r->limit > 0 && !r->comm ? MAX(r->us - r->limit, 0) : 0; }

static int by_distance(const void *a, const void *b)
{
	double x = over(a), y = over(b);
	return x < y ? 1 : x > y ? -1 : by_time(a, b);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static void head(const char *text, int columns)
{
	printf("\n");
	screen_put(columns, INK_HEAD, text);
	printf("\n");
}

/* Per step of a device: n of all devices' steps. */
static void print(const struct row *r, double n, double step, int columns, double ms)
{
	char share[16] = "";
	int scope = (int)strlen(r->scope);

	if (r->limit > 0)
		snprintf(share, sizeof share, "%.0f %%", MIN(100 * r->limit / r->us, 999));
	int room = screen_row(columns, INK_END, FIRST, "%9.3f %6.1f %7.4g %9s", ms / n / 1e3, 100 * ms / n / step, r->times / n, share);
	room = screen_put_site(room, INK_END, r->name) - 2;
	if (scope && room > 10)                   /* its end tells most */
		printf("  %s%s", scope <= room ? "" : "..", r->scope + (scope > room ? scope - (room - 2) : 0));
	printf("\n");
}

static void list(struct rows *t, int (*order)(const void *, const void *), const char *title, const char *what, double n, double step, int64_t top)
{
	int columns = screen_width(100);

	qsort(t->r.p, t->r.n, sizeof *t->r.p, order);
	if (!t->r.n || (order == by_distance && !(over(&t->r.p[0]) > 0)))
		return;
	head(title, columns);
	screen_put(screen_row(columns, INK_END, FIRST, "%9s %6s %7s %9s", "ms", "%", "times", "of limit"), INK_END, what);
	printf("\n");
	for (size_t i = 0; i < t->r.n && i < (size_t)top; i++) {
		double ms = order == by_distance ? over(&t->r.p[i]) : t->r.p[i].us;
		if (ms > 0)
			print(&t->r.p[i], n, step, columns, ms);
	}
}

static int by_begin(const void *a, const void *b)
{
	const struct span *x = a, *y = b;
	return x->from < y->from ? -1 : x->from > y->from;
}

/* How long it computes while anything is under way. */
static double overlapped(struct device *d)
{
	double all = 0, until = 0;            /* what is under way has been looked at up to there */

	if (!d->computes.n || !d->beside.n)
		return 0;
	qsort(d->computes.p, d->computes.n, sizeof *d->computes.p, by_begin);
	qsort(d->beside.p, d->beside.n, sizeof *d->beside.p, by_begin);
	for (size_t b = 0, c = 0; b < d->beside.n; b++) {
		double from = MAX(d->beside.p[b].from, until), to = d->beside.p[b].to;
		if (from >= to)
			continue;
		while (c < d->computes.n && d->computes.p[c].to <= from)
			c++;
		for (size_t k = c; k < d->computes.n && d->computes.p[k].from < to; k++)
			all += MIN(d->computes.p[k].to, to) - MAX(d->computes.p[k].from, from);
		until = MAX(until, to);
	}
	return all;
}

static void summary(struct table *t, double n, double step)
{
	double lane[LANES] = {0}, all = 0;

	for (size_t i = 0; i < t->dev.n; i++)
		t->dev.p[i].lane[BESIDE] = overlapped(&t->dev.p[i]);
	for (size_t i = 0; i < t->dev.n; i++)
		for (int k = 0; k < LANES; k++)
			lane[k] += t->dev.p[i].lane[k] / n;
	for (int k = COMPUTE; k < BESIDE; k++)
		all += lane[k];
	double steps = n / (double)t->dev.n;
	printf("%s: %.0f step%s on %zu device%s, %.3f ms%s\n", t->program, steps, steps > 1 ? "s" : "", t->dev.n, t->dev.n > 1 ? "s" : "", step / 1e3, steps > 1 ? " each" : "");
	if (t->step.n) {
		qsort(t->step.p, t->step.n, sizeof *t->step.p, by_value);
		printf("from %.3f to %.3f ms, half of them below %.3f\n", t->step.p[0] / 1e3, t->step.p[t->step.n - 1] / 1e3, t->step.p[t->step.n / 2] / 1e3);
	}
	printf("\nof that a device\n%7.1f %%  computes\n%7.1f %%  waits for communication\n%7.1f %%  calls the host\n%7.1f %%  has nothing to do\n",
	       100 * lane[COMPUTE] / step, 100 * lane[COMM] / step, 100 * lane[HOST] / step, MAX(100 - 100 * all / step, 0));
	if (lane[BESIDE] > 0)
		printf("%7.1f %%  has communication under way while it computes\n", 100 * lane[BESIDE] / step);
	if (t->lost > 0)
		printf("%.0f events found no room and are missing here\n", t->lost);
}

struct err *trace_table(char *const *file, size_t nfile, int64_t top)
{
	struct table t = {0};
	struct err *e = NULL;
	double n = 0, span = 0;

	for (size_t i = 0; i < nfile && !e; i++)
		e = read_one(&t, file[i]);
	for (size_t i = 0; i < t.dev.n; i++) {
		n += t.dev.p[i].steps;
		span += t.dev.p[i].end - t.dev.p[i].first;
	}
	if (!e && !(n > 0))
		e = ERR(NOT_FOUND, t.any ? "the timeline has no launch from begin to end" : "the program has run nothing on Rondo");
	if (!e) {
		double step = span / n;
		summary(&t, n, step);
		list(&t.line, by_time, "exposed communication of a step, by line", "line", n, step, top);
		list(&t.op, by_time, "operations of a step, by time", "operation, line, scope", n, step, top);
		list(&t.op, by_distance, "operations of a step, by time beyond the limit of the machine table", "operation, line, scope", n, step, top);
	}
	for (struct rows *r = &t.op; r; r = r == &t.op ? &t.line : NULL) {
		for (size_t i = 0; i < r->r.n; i++) {
			mem_free(r->r.p[i].name);
			mem_free(r->r.p[i].scope);
		}
		arr_free(&r->r);
		map_free(&r->of);
	}
	for (size_t i = 0; i < t.dev.n; i++) {
		arr_free(&t.dev.p[i].computes);
		arr_free(&t.dev.p[i].beside);
	}
	arr_free(&t.dev);
	arr_free(&t.step);
	mem_free(t.program);
	return e;
}
