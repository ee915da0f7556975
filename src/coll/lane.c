/* Collectives under way while their PE's thread computes.
 *
 * An algorithm is a text of steps with waits in between, and stays one: it runs on a stack of its own (base: fibers), and where it would
 * wait it leaves to the thread that entered it, which goes on with its own work and enters it again from time to time.  Who wants the
 * result lets it wait like any other.  Lines between two PEs are in one order, so the collectives of a lane follow each other, and
 * whoever runs another collective of the PE lets those of the lane end before. */
#include <stdlib.h>

#include "impl.h"

/* Bytes of stack, of which only what is used is ever there: tables of MAX_ROW members, and pieces of partial results.  Under a
 * sanitizer frames are several times as large. */
enum { STACK = 1 << 20, LOOK_NS = 500 };

struct coll_lane {
	struct coll *c;
	struct fiber *fiber;
	uint64_t begun, done, want;       /* tasks; how many must be done before the thread goes on: all others may wait */
	uint64_t looked;                  /* when it was entered last, ns */
	bool (*back)(void *user);         /* the thread wants to go on; NULL: it does not say so */
	void *back_user;
	struct err *err;                  /* of a task: those after it are not done */
	const void *failed;
	void (*ended)(void *user, const void *what, uint64_t t0, uint64_t t1);
	void *user;
	uint64_t since[COLL_FLIGHT];      /* begun, where somebody asks */
	struct coll_task task[COLL_FLIGHT];
};

static struct err *run(void *v)
{
	const struct coll_task *j = v;

	return coll_run((struct coll_cx *)(uintptr_t)&j->cx, j->c, j->site, j->ptr, j->in_place, NULL);
}

/* The fiber: tasks one after the other. */
static void tasks(void *v)
{
	struct coll_lane *l = v;

	for (;;) {
		struct coll_task *j = &l->task[l->done % COLL_FLIGHT];
		if (!l->err && (l->err = mem_guard(run, j, false)))
			l->failed = j->what;
		if (l->ended)
			l->ended(l->user, j->what, l->since[l->done % COLL_FLIGHT], clock_ns());
		l->done++;
		if (l->done == l->begun || l->done == l->want)
			fiber_leave(l->fiber);
	}
}

/* Instead of a wait. */
static bool away(void *v)
{
	struct coll_lane *l = v;

	if (l->done < l->want && !(l->back && l->back(l->back_user)))
		return false;
	fiber_leave(l->fiber);
	return true;
}

static void enter(struct coll_lane *l)
{
	sym_away(l->c->ep, away, l);
	fiber_enter(l->fiber);
	sym_away(l->c->ep, NULL, NULL);
}

struct err *coll_lane_new(struct coll *c, struct coll_lane **out)
{
	struct coll_lane *l = malloc(sizeof *l);
	struct err *e = l ? NULL : ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", sizeof *l);

	if (!e) {
		*l = (struct coll_lane){ .c = c };
		e = fiber_new(STACK, tasks, l, &l->fiber);
	}
	if (e)
		free(l);
	else
		*out = l;
	return e;
}

void coll_lane_free(struct coll_lane *l)
{
	if (!l)
		return;
	fiber_free(l->fiber);
	free(l);
}

uint64_t coll_begun(const struct coll_lane *l) { return l->begun; }
bool coll_flying(const struct coll_lane *l) { return l->done < l->begun; }

void coll_begin(struct coll_lane *l, const struct coll_task *j)
{
	if (l->begun - l->done == COLL_FLIGHT)
		coll_finish(l, l->done + 1);
	if (l->ended)
		l->since[l->begun % COLL_FLIGHT] = clock_ns();
	l->task[l->begun++ % COLL_FLIGHT] = *j;
	if (l->begun - l->done == 1)
		enter(l);
}

void coll_look(struct coll_lane *l)
{
	uint64_t now = clock_ns();

	if (now - l->looked < LOOK_NS || !coll_flying(l))
		return;
	enter(l);
	l->looked = clock_ns();
}

void coll_finish(struct coll_lane *l, uint64_t n)
{
	l->want = n;
	while (l->done < n)
		enter(l);
	l->want = 0;
}

void coll_stay(struct coll_lane *l, bool (*back)(void *user), void *user)
{
	l->back = back;
	l->back_user = user;
	l->want = l->begun;
	sym_sleeps_soon(l->c->ep, true);
	while (coll_flying(l) && !back(user))
		enter(l);
	sym_sleeps_soon(l->c->ep, false);
	l->want = 0;
	l->back = NULL;
}

struct err *coll_lane_error(struct coll_lane *l, const void **what)
{
	struct err *e = l->err;

	l->err = NULL;
	*what = l->failed;
	return e;
}

void coll_lane_watch(struct coll_lane *l, void (*ended)(void *user, const void *what, uint64_t t0, uint64_t t1), void *user)
{
	l->ended = ended;
	l->user = user;
}
