/* Waiting: for a word in a PE's own heap that others write, for the network, for another stream; what an endpoint waits for is in ep_wait.c.
 *
 * A wait polls, then does other work, then yields, then sleeps on the PE's bell.  A writer looks for sleepers after it stored
 * its word; to keep a fence out of that path, the sleeper makes every running thread execute one (membarrier)
 * between raising its flag and its last look.  That interrupts all cores, so it sleeps for a moment before: most sleeps end within it, and a
 * writer that overlooks the flag, between its store and when that is seen, costs no more. */
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ep.h"

enum { YIELDS = 100, NET_POLLS = 2000, YIELD_EVERY = 8, NAP_NS = 100000000, BRIEF_NS = 500000, DOZE_NS = 500000, MIN_SPINS = 500, WARN_S = 20, GRACE_MS = 500, HELP_EVERY = 64 };

_Thread_local _Atomic int *sym_stop;
_Thread_local struct sym_halt sym_halt;
static _Thread_local int learnt;       /* how often this thread polls before it rests */

void sym_nap(_Atomic uint32_t *word, uint32_t seen, int64_t ns, bool shared)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };

	syscall(SYS_futex, word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, seen, ns < 0 ? NULL : &t, NULL, 0);
}

void sym_rouse(_Atomic uint32_t *word, bool shared)
{
	syscall(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void sym_sleep(_Atomic uint32_t *word, uint32_t seen, int64_t ns) { sym_nap(word, seen, ns, false); }

/* What this process' threads have slept in all so far: sum + n * now. */
static struct { atomic_flag lock; int n; int64_t sum; } asleep = { .lock = ATOMIC_FLAG_INIT };

static int64_t sleeps(int more)
{
	int64_t now = (int64_t)clock_ns();

	while (atomic_flag_test_and_set_explicit(&asleep.lock, memory_order_acquire))
		sched_yield();
	asleep.n += more;
	asleep.sum -= more * now;
	int64_t ns = asleep.sum + asleep.n * now;
	atomic_flag_clear_explicit(&asleep.lock, memory_order_release);
	return ns;
}

void sym_sleep_in(_Atomic uint32_t *word, uint32_t seen, int64_t ns, uint32_t bits)
{
	uint64_t until = clock_ns() + (uint64_t)MAX(ns, 0);
	struct timespec t = { (time_t)(until / 1000000000), (long)(until % 1000000000) };

	sleeps(1);
	syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, seen, ns < 0 ? NULL : &t, NULL, bits);
	sleeps(-1);
}

void sym_wake_in(_Atomic uint32_t *word, uint32_t bits)
{
	syscall(SYS_futex, word, FUTEX_WAKE_BITSET_PRIVATE, INT_MAX, NULL, NULL, bits);
}

void sym_wake(_Atomic uint32_t *word, int n)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* --- giving way ----------------------------------------------------------------- */

/* Who yields goes behind all who want the core.  If that is a thread of another process which computes, it has the core for a whole slice of
 * the scheduler each time, and what was waited for came long before; who sleeps instead is woken in front of it.  So where a yield took long,
 * and the process had clearly less of the cores meanwhile than its threads would have used, which do not while they sleep, it sleeps for a while. */
/* What the other threads have run is counted by the kernel when its clock ticks: in a window of a few ms it would be missed. */
enum { LONG_NS = 1500000, MARK_NS = 50000000, WINDOW_NS = 20000000, ASIDE_LEAST_NS = 20000000, ASIDE_MOST_NS = 500000000 };
static _Atomic uint64_t aside, lately; /* until then; and for how long */
static _Atomic uint64_t mark, used;    /* a moment not long ago, and the process' time on cores up to then */
static _Atomic int64_t rested;         /* what its threads had slept up to then */
static _Atomic int share;              /* of a core, in thousandths, that the process uses at least while its threads all compute or poll */
static _Atomic int surplus;            /* threads beyond its cores, in thousandths: so many may sleep, and it would use as much */

static uint64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void sym_share(double cores, int threads)
{
	atomic_store(&share, (int)(550 * cores));
	atomic_store(&surplus, (int)(1000 * MAX(threads - cores, 0)));
}

/* Has it had less of the cores since the mark than it would have used? */
static bool lacks(double ns)
{
	double idle = (double)(sleeps(0) - atomic_load(&rested)) - ns * atomic_load(&surplus) / 1000;

	return (double)(cpu_ns() - atomic_load(&used)) + MAX(idle, 0) < ns * atomic_load(&share) / 1000;
}

/* Longer each time, while the other process is still there when it is tried again. */
static void step_aside(uint64_t now)
{
	uint64_t end = atomic_load(&aside), n = atomic_load(&lately);

	if (now < end)
		return;
	n = end && now - end < ASIDE_MOST_NS ? MIN(2 * n, ASIDE_MOST_NS) : ASIDE_LEAST_NS;
	atomic_store(&lately, n);
	atomic_store(&aside, now + n);
}

bool sym_aside(void) { return clock_ns() < atomic_load_explicit(&aside, memory_order_relaxed); }

bool sym_give_way(void)
{
	uint64_t t = clock_ns(), m = atomic_load_explicit(&mark, memory_order_relaxed);

	if (t < atomic_load_explicit(&aside, memory_order_relaxed))
		return false;
	if (t - m > MARK_NS && atomic_compare_exchange_strong(&mark, &m, t)) {
		atomic_store(&used, cpu_ns());
		atomic_store(&rested, sleeps(0));
	}
	sched_yield();
	uint64_t now = clock_ns();
	if (now - t < LONG_NS)
		return true;
	m = atomic_load(&mark);
	if (now - m > WINDOW_NS && lacks((double)(now - m)))
		step_aside(now);
	return true;
}

int sym_spins(int threads) { return threads <= cpu_get()->cores ? 2000 : 4; }

double sym_pause_s(void)
{
	enum { TIMES = 64 };
	double t = clock_s();

	for (int i = 0; i < TIMES; i++)
		sym_pause();
	return MAX((clock_s() - t) / TIMES, 1e-10);
}

bool sym_halted(const struct sym_world *w)
{
	return atomic_load_explicit(&w->gone, memory_order_acquire) < 0 || (sym_stop && atomic_load_explicit(sym_stop, memory_order_acquire)) ||
	       (sym_halt.stop && atomic_load_explicit(sym_halt.stop, memory_order_acquire));
}

/* --- bells ----------------------------------------------------------------------- */

bool sym_barrier_init(bool shared)
{
	return !syscall(SYS_membarrier, shared ? MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED : MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
}

void sym_barrier(bool shared)
{
	syscall(SYS_membarrier, shared ? MEMBARRIER_CMD_GLOBAL_EXPEDITED : MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

void sym_ring(struct sym_world *w, int pe)
{
	struct sym_control *p = sym_control_of(w, pe);

	atomic_fetch_add(&p->bell, 1);
	sym_rouse(&p->bell, w->shared);
}

/* --- one wait ---------------------------------------------------------------------- */

static _Atomic int resting;            /* waits of this process that are armed */

bool sym_resting(void) { return atomic_load(&resting) > 0; }
bool sym_rests(const struct sym_ep *ep) { return atomic_load(&ep->me->sleepers) > 0; }

static void arm(struct sym_wait *w)
{
	w->bell = atomic_load(&w->me->bell);
	atomic_fetch_add(&resting, 1);
	atomic_fetch_add(&w->me->sleepers, 1);
	w->armed = true;
	w->sure = w->world->fence;
}

static void disarm(struct sym_wait *w)
{
	if (w->armed) {
		atomic_fetch_sub(&w->me->sleepers, 1);
		atomic_fetch_sub(&resting, 1);
	}
	w->armed = false;
}

/* Something was done: poll anew. */
static void again(struct sym_wait *w)
{
	w->n = 0;
	disarm(w);
}

/* fn may wait for transports itself. */
static bool did(bool (*fn)(void *user), void *user)
{
	struct sym_halt mine = sym_halt;
	bool done = fn(user);

	sym_halt = mine;
	return done;
}

/* In a crowd: who waits for a thread of its own core gives way to it at once; for one of another core it polls for about
 * as long as giving way takes, each time anew. */
static inline bool poll_in_crowd(struct sym_wait *w)
{
	enum { BRISK = 10, POLLS = 40 };

	if (w->peer >= 0 && !ep_beside(w->ep, w->peer) && w->polls++ < POLLS) {
		if (w->polls > BRISK)
			sym_pause();
		return true;
	}
	w->polls = 0;
	w->n = MAX(w->n + 1, w->world->spins);
	return false;
}

static inline bool of_network(const struct sym_wait *w) { return !w->me && !w->word; }

/* Look again at once? */
static inline __attribute__((always_inline)) bool polls(struct sym_wait *w, bool net)
{
	enum { LOOKS = 50 };
	struct sym_world *world = w->world;
	int most = world->spins, *spins = w->spins;

	if (net) {                        /* a look there is no pause */
		bool some = world->net && world->net->poll(world);
		if (some) {
			w->n = MIN(w->n, LOOKS);
			w->since = world->net->asks ? w->since : 0;
		}
		return ++w->n < LOOKS || (some && !sym_halted(world));
	}
	if (w->ep && ep_crowd(world))
		return poll_in_crowd(w);
	if (++w->n < (spins ? *spins : most)) {
		sym_pause();
		return true;
	}
	/* The peer may be waiting for this very core (two threads on one, or another process in the way): polling
	 * then wastes what it needs. */
	if (spins && w->n == *spins)
		w->n = most, *spins = MAX(*spins - *spins / 4, MIN(most, MIN_SPINS));
	return false;
}

/* Yield, or sleep; makes the network progress.  Gives the seconds waited so far after a sleep, else 0. */
static double rest(struct sym_wait *w)
{
	struct sym_world *world = w->world;

	if (w->me && world->net && world->net->poll(world)) {
		again(w);
		return 0;
	}
	/* A look at the network takes as long as a yield, which is for those who have no core of their own. */
	if (w->n < world->spins + (world->net ? NET_POLLS : YIELDS) && ((world->roomy && w->n % YIELD_EVERY) || sym_give_way()))
		return 0;
	if (!w->since) {
		w->since = clock_s();
		if (w->ep)
			atomic_store_explicit(&w->ep->since, w->since, memory_order_relaxed);
	}
	if (!w->me) {
		sleeps(1);
		if (w->word)
			sym_sleep(w->word, 0, NAP_NS);
		else if (w->ep)
			sym_nap(&w->ep->me->bell, w->bell, DOZE_NS, world->shared);
		else
			nanosleep(&(struct timespec){ 0, DOZE_NS }, NULL);
		sleeps(-1);
		return clock_s() - w->since;
	}
	if (!w->armed) {
		arm(w);
		return 0;                 /* the caller looks once more */
	}
	sleeps(1);
	sym_nap(&w->me->bell, w->bell, w->sure ? NAP_NS : BRIEF_NS, world->shared);
	sleeps(-1);
	if (!w->sure && atomic_load(&w->me->bell) == w->bell) {
		sym_barrier(world->shared);
		w->sure = true;           /* and so it does here */
	} else {
		disarm(w);
		w->n = world->spins;
	}
	return clock_s() - w->since;
}

struct err *sym_wait_turn(struct sym_wait *w)
{
	struct sym_ep *ep = w->ep;
	bool net = of_network(w);         /* who goes away lets it progress before */

	if (net && ep)
		w->bell = atomic_load(&ep->me->bell);
	if (ep && ep->soon)
		w->n = MAX(w->n, w->world->spins + NET_POLLS);
	if ((net && polls(w, true)) || (ep && ep->away && did(ep->away, ep->away_user)))
		return NULL;
	if (!net && polls(w, false)) {
		if (ep && ep->l.help && w->n % HELP_EVERY == 0 && did(ep->l.help, ep->l.user))
			w->n = HELP_EVERY - 1;        /* there may be more */
		return NULL;
	}
	TRY(w->of->hopeless(w));
	if (ep && ep->l.help && did(ep->l.help, ep->l.user)) {
		again(w);
		return NULL;
	}
	double waited = rest(w);
	if (w->of->rested)
		TRY(w->of->rested(w, waited));
	if (w->world->patience && waited > w->world->patience)
		return w->of->late(w, waited, true);
	if (waited > WARN_S && !w->warned) {
		w->warned = true;
		w->of->late(w, waited, false);
	}
	return NULL;
}

void sym_wait_over(struct sym_wait *w)
{
	if (w->spins && w->n && w->n < *w->spins)
		*w->spins = MIN(*w->spins + *w->spins / 8 + 1, w->world->spins);
	disarm(w);
	if (w->since && w->ep)
		atomic_store_explicit(&w->ep->since, 0, memory_order_relaxed);
}

/* --- for the network ------------------------------------------------------------------- */

static struct err *halted(struct sym_wait *w) { return sym_halted(w->world) ? ERR(CANCELLED, "a wait for the network was cancelled") : NULL; }

static struct err *silent(struct sym_wait *w, double waited, bool fail)
{
	if (fail)
		return ERR(DEADLINE, "process %d has waited %.0f s for data that another host sends or takes", w->world->proc, waited);
	log_line(LOG_WARN, "process %d has waited %.0f s for data that another host sends or takes", w->world->proc, waited);
	return NULL;
}

bool sym_net_until(struct sym_world *w, bool (*come)(void *user), void *user)
{
	static const struct sym_waits network = { halted, NULL, silent };
	struct err *e = NULL;

	/* What is as good as there has come by the time it is looked whether to go on. */
	SYM_WAIT(e, come(user), ((struct sym_wait){ .of = &network, .world = w, .ep = sym_halt.ep }), -1);
	if (!e)
		return true;
	sym_halt.gave_up = (int)e->code;
	err_free(e);
	return false;
}

static bool is_down(void *left) { return !atomic_load_explicit((_Atomic uint32_t *)left, memory_order_acquire); }

bool sym_net_await(struct sym_world *w, _Atomic uint32_t *left) { return sym_net_until(w, is_down, left); }

void sym_net_get(struct sym_world *w, int from, int pe, void *dst, size_t off, size_t n)
{
	_Atomic uint32_t left = 1;

	w->net->get_nb(w, from, pe, dst, off, n, &left);
	if (!sym_net_await(w, &left))
		w->net->forget(w, &left);
}

/* --- for a word of a team, for another stream -------------------------------------------- */

static struct err *peer_gone(const struct sym_watch *x, int pe)
{
	int proc = x->w->peer[pe].proc;
	struct sym_process *p = &x->w->process[proc];

	return ERR(UNAVAILABLE, "process %d (pid %d) %s: PE %d waited for its PE %d in %s", proc, p->pid,
	           atomic_load(&p->life) == SYM_DEAD ? "has died" : "has left the job", x->pe, pe, x->what);
}

/* The writer itself must be there.  Another's death ends the wait a little later: it may have died, or left, after it had done its part. */
static struct err *hopeless(struct sym_wait *w)
{
	const struct sym_watch *x = w->what;
	struct sym_world *world = x->w;
	int gone = atomic_load_explicit(&world->gone, memory_order_acquire), here = 0, dead = -1;

	if (sym_stop && atomic_load_explicit(sym_stop, memory_order_acquire))
		return ERR(CANCELLED, "PE %d was cancelled in %s", x->pe, x->what);
	if (gone < 0)
		return ERR(CANCELLED, "PE %d was cancelled in %s, as all of its world", x->pe, x->what);
	if (!gone)
		return NULL;
	if (x->from >= 0 && atomic_load(&world->process[world->peer[x->from].proc].life) != SYM_HERE)
		return peer_gone(x, x->from);
	for (int i = 0; i < (x->team ? x->team->n : 0); i++) {
		int pe = x->team->pe_of[i], life = atomic_load(&world->process[world->peer[pe].proc].life);
		here += life == SYM_HERE && pe != x->pe;
		if (life != SYM_HERE && (dead < 0 || life == SYM_DEAD))
			dead = pe;
	}
	if (dead < 0 || (here && atomic_load(&world->process[world->peer[dead].proc].life) == SYM_LEFT))
		return NULL;
	if (!w->dead)
		w->dead = clock_s();
	return clock_s() - w->dead < GRACE_MS / 1000. ? NULL : peer_gone(x, dead);
}

static struct err *late(struct sym_wait *w, double waited, bool fail)
{
	const struct sym_watch *x = w->what;
	char who[32] = "another stream";

	if (x->from >= 0)
		snprintf(who, sizeof who, "PE %d", x->from);
	else if (x->team)
		snprintf(who, sizeof who, "any of its team");
	if (fail)
		return ERR(DEADLINE, "PE %d has waited %.0f s for %s in %s", x->pe, waited, who, x->what);
	log_line(LOG_WARN, "PE %d has waited %.0f s for %s in %s", x->pe, waited, who, x->what);
	return NULL;
}

static const struct sym_waits word = { hopeless, NULL, late };

struct sym_wait sym_wait_watch(const struct sym_watch *x)
{
	if (!learnt || learnt > x->w->spins)
		learnt = x->w->spins;
	return (struct sym_wait){ .of = &word, .world = x->w, .me = sym_control_of(x->w, x->pe), .spins = &learnt, .brisk = x->w->spins < SYM_BRISK ? 0 : SYM_BRISK, .what = x };
}

struct err *sym_wait_mark(struct sym_world *w, int pe, _Atomic uint32_t *done)
{
	const struct sym_watch x = { w, pe, NULL, -1, "a wait for its event" };
	struct err *e = NULL;

	SYM_WAIT(e, atomic_load_explicit(done, memory_order_acquire), ((struct sym_wait){ .of = &word, .world = w, .word = done, .what = &x }), -1);
	return e;
}
