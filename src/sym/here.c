/* Who waits for a process that has not been met hears of its end all the same, on the same machine: key "here/<process>"
 * of the store says which process of which machine it is, as soon as it is known that it will come (python/rondo/early.py
 * writes it under JAX, before there are devices):
 *
 *     PID START BOOT NAMESPACE      /proc/PID/stat (22), /proc/sys/kernel/random/boot_id, /proc/self/ns/pid
 *
 * Of any machine, and from before it has said so: "gone/<process>" is there once it has ended, where somebody watches
 * (python/rondo/coordinator.py).  One that cannot join says why under "gave_up/<process>". */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "impl.h"

enum { STATUS_S = 20, SLICE_MS = 8, SLICE_MOST_MS = 250 };

struct here { int pid; unsigned long long start; char boot[40], space[40]; };

/* When a process was started, in ticks; 0: it is no more, or that is not known.  *dead: nothing of it runs any more. */
static unsigned long long start_of(int pid, bool *dead)
{
	char path[40], state = '?';
	struct str s = { 0 };
	unsigned long long start = 0;
	int threads = 0;

	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	struct err *e = str_read_file(&s, path);
	const char *p = e ? NULL : strrchr(s.p, ')');             /* the name before it may hold anything */
	if (p)
		sscanf(p + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d %*d %llu", &state, &threads, &start);
	*dead = kill(pid, 0) && errno == ESRCH;
	*dead |= state == 'X' || (state == 'Z' && threads <= 1);  /* with others left, its first thread alone has ended */
	err_free(e);
	str_free(&s);
	return start;
}

/* false: this machine does not say. */
static bool here_now(struct here *h)
{
	struct str s = { 0 };
	bool dead;

	*h = (struct here){ .pid = getpid(), .start = start_of(getpid(), &dead) };
	struct err *e = str_read_file(&s, "/proc/sys/kernel/random/boot_id");
	bool ok = !e && sscanf(s.p, "%39s", h->boot) == 1 && readlink("/proc/self/ns/pid", h->space, sizeof h->space - 1) > 0 && h->start;
	err_free(e);
	str_free(&s);
	return ok;
}

void sym_here(const struct kv *kv)
{
	struct here h;
	char key[32], text[160];

	if (!here_now(&h))
		return;
	snprintf(key, sizeof key, "here/%d", kv->process);
	snprintf(text, sizeof text, "%d %llu %s %s", h.pid, h.start, h.boot, h.space);
	err_free(kv->put(kv->user, key, text, strlen(text)));      /* it may be there */
}

struct err *sym_claim(const struct kv *kv, const char *key, const void *value, size_t n)
{
	struct err *e = kv->put(kv->user, key, value, n);

	return e && e->code == ERR_ALREADY_EXISTS ? err_wrap(e, "there is a process %d already: another job has this address, or two processes have one number", kv->process) : e;
}

void sym_give_up(const struct kv *kv, const struct err *why)
{
	char key[32];

	snprintf(key, sizeof key, "gave_up/%d", kv->process);
	err_free(kv->put(kv->user, key, why->msg, strlen(why->msg)));      /* it may have said so */
}

struct err *sym_gave_up(const struct kv *kv, int who)
{
	struct str s = { 0 };
	char key[32];

	snprintf(key, sizeof key, "gave_up/%d", who);
	struct err *e = kv->get(kv->user, key, 1, &s);
	struct err *why = e ? NULL : ERR(UNAVAILABLE, "process %d could not join the job: %.*s", who, (int)s.n, s.p);
	err_free(e);
	str_free(&s);
	return why;
}

struct err *sym_missing(const struct kv *kv, int who)
{
	struct here mine, its = { 0 };
	struct str s = { 0 };
	char key[32];

	TRY(sym_gave_up(kv, who));
	snprintf(key, sizeof key, "gone/%d", who);
	struct err *e = kv->get(kv->user, key, 1, &s);
	bool dead = !e;
	err_free(e);
	str_free(&s);
	/* Of one that has ended only its number is wanted, which it may never have said. */
	snprintf(key, sizeof key, "here/%d", who);
	e = kv->get(kv->user, key, dead ? 500 : 1, &s);
	bool said = !e && sscanf(s.p, "%d %llu %39s %39s", &its.pid, &its.start, its.boot, its.space) == 4;
	if (said && !dead && here_now(&mine) && !strcmp(its.boot, mine.boot) && !strcmp(its.space, mine.space)) {
		unsigned long long start = start_of(its.pid, &dead);
		dead |= start && start != its.start;             /* another one has its number now */
	}
	err_free(e);
	str_free(&s);
	if (!dead)
		return NULL;
	return said ? ERR(UNAVAILABLE, "process %d (pid %d) has died before it joined the job", who, its.pid)
	            : ERR(UNAVAILABLE, "process %d has died before it joined the job", who);
}

int sym_slice(struct sym_coming *c, double until)
{
	c->ms = c->ms ? MIN(2 * c->ms, SLICE_MOST_MS) : SLICE_MS;
	return (int)MAX(MIN((until - clock_s()) * 1000, c->ms), 1);
}

struct err *sym_coming(const struct kv *kv, int who, double until, struct sym_coming *c)
{
	TRY(sym_missing(kv, who));
	double now = clock_s();
	if (now >= until)
		return ERR(UNAVAILABLE, "process %d of %d has not joined the job within %lld s", who, kv->nprocess, (long long)conf_int(CONF_JOIN_TIMEOUT));
	if (!c->since)
		c->since = now;
	if (!c->said && now - c->since >= STATUS_S) {
		log_line(LOG_WARN, "process %d waits for process %d of %d to join the job", kv->process, who, kv->nprocess);
		c->said = true;
	}
	return NULL;
}
