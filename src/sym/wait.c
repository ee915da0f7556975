/* Waiting for a word in a PE's own heap that others write.
 *
 * A wait polls, then does other work, then yields, then sleeps on the PE's bell.  A writer looks for sleepers after it stored
 * its word; to keep a fence out of that path, the sleeper makes every running thread execute one (membarrier)
 * between raising its flag and its last look.  Where there are more threads than cores sleeping is what is common: the writer has the fence. */
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "impl.h"

enum { YIELDS = 100, NET_POLLS = 2000, YIELD_EVERY = 8, NAP_NS = 100000000, MIN_SPINS = 500, WARN_S = 20, GRACE_MS = 500 };

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

void sym_sleep_in(_Atomic uint32_t *word, uint32_t seen, int64_t ns, uint32_t bits)
{
	uint64_t until = clock_ns() + (uint64_t)MAX(ns, 0);
	struct timespec t = { (time_t)(until / 1000000000), (long)(until % 1000000000) };

	syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, seen, ns < 0 ? NULL : &t, NULL, bits);
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
 * and the process had clearly less of the cores meanwhile than its threads would have used, it sleeps for a while. */
enum { LONG_NS = 1500000, MARK_NS = 5000000, ASIDE_LEAST_NS = 20000000, ASIDE_MOST_NS = 500000000 };
static _Atomic uint64_t aside, lately; /* until then; and for how long */
static _Atomic uint64_t mark, used;    /* a moment not long ago, and the process' time on cores up to then */
static _Atomic int share;              /* of a core, in thousandths, that the process uses at least while its threads all compute or poll */

static uint64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void sym_share(double cores) { atomic_store(&share, (int)(550 * cores)); }

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
	if (t - m > MARK_NS && atomic_compare_exchange_strong(&mark, &m, t))
		atomic_store(&used, cpu_ns());
	sched_yield();
	uint64_t now = clock_ns();
	if (now - t < LONG_NS)
		return true;
	m = atomic_load(&mark);
	if (now - m > LONG_NS && (double)(cpu_ns() - atomic_load(&used)) * 1000 < (double)(now - m) * atomic_load(&share))
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

/* The thread does something else meanwhile, if there is anything. */
static bool did_else(void)
{
	struct sym_halt mine = sym_halt;
	const struct sym_ep *ep = mine.ep;

	if (!ep || !((ep->away && ep->away(ep->away_user)) || (ep->l.help && ep->l.help(ep->l.user))))
		return false;
	sym_halt = mine;
	return true;
}

bool sym_net_await(struct sym_world *w, _Atomic uint32_t *left)
{
	enum { POLLS = 50, AWAKE = 4000, DOZE_NS = 500000 };
	double since = 0;
	bool warned = false;

	for (int k = 0; atomic_load_explicit(left, memory_order_acquire); k++)
		if (k > POLLS && sym_halted(w)) {       /* what is as good as there has come by then */
			sym_halt.gave_up = true;
			return false;
		} else if ((w->net && w->net->poll(w)) || (k > POLLS && did_else()))
			k = MIN(k, POLLS);
		else if (k > AWAKE) {
			since = since ? since : clock_s();
			if (!warned && clock_s() - since > WARN_S) {
				log_line(LOG_WARN, "process %d has waited %d s for data that another host sends or takes", w->proc, WARN_S);
				warned = true;
			}
			nanosleep(&(struct timespec){ 0, DOZE_NS }, NULL);
		} else if (k > POLLS)
			sched_yield();
	return true;
}

void sym_net_get(struct sym_world *w, int from, int pe, void *dst, size_t off, size_t n)
{
	_Atomic uint32_t left = 1;

	w->net->get_nb(w, from, pe, dst, off, n, &left);
	if (!sym_net_await(w, &left))
		w->net->forget(w, &left);
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

bool sym_wait_poll(struct sym_wait *w, int *spins, int most)
{
	if (++w->n < *spins) {
		sym_pause();
		return true;
	}
	/* The peer may be waiting for this very core (two threads on one, or another process in the way): polling
	 * then wastes what it needs. */
	if (w->n == *spins)
		w->n = most, *spins = MAX(*spins - *spins / 4, MIN(most, MIN_SPINS));
	return false;
}

static _Atomic int resting;            /* waits of this process that are armed */

bool sym_resting(void) { return atomic_load(&resting) > 0; }
bool sym_rests(const struct sym_ep *ep) { return atomic_load(&ep->me->sleepers) > 0; }

static void arm(struct sym_control *me, struct sym_wait *w)
{
	w->bell = atomic_load(&me->bell);
	atomic_fetch_add(&resting, 1);
	atomic_fetch_add(&me->sleepers, 1);
	w->armed = true;
}

static void disarm(struct sym_control *me, struct sym_wait *w)
{
	if (w->armed) {
		atomic_fetch_sub(&me->sleepers, 1);
		atomic_fetch_sub(&resting, 1);
	}
	w->armed = false;
}

void sym_wait_again(struct sym_control *me, struct sym_wait *w)
{
	w->n = 0;
	disarm(me, w);
}

double sym_wait_rest(struct sym_world *world, struct sym_control *me, struct sym_wait *w)
{
	if (world->net && world->net->poll(world)) {
		sym_wait_again(me, w);
		return 0;
	}
	/* A look at the network takes as long as a yield, which is for those who have no core of their own. */
	if (w->n < world->spins + (world->net ? NET_POLLS : YIELDS) && ((world->roomy && w->n % YIELD_EVERY) || sym_give_way()))
		return 0;
	if (!w->armed) {
		if (!w->since)
			w->since = clock_s();
		arm(me, w);
		if (!world->fence)
			sym_barrier(world->shared);
		return 0;                 /* the caller looks once more */
	}
	sym_nap(&me->bell, w->bell, NAP_NS, world->shared);
	disarm(me, w);
	w->n = world->spins;
	return clock_s() - w->since;
}

void sym_wait_over(struct sym_control *me, struct sym_wait *w, int *spins, int most)
{
	if (w->n && w->n < *spins)
		*spins = MIN(*spins + *spins / 8 + 1, most);
	disarm(me, w);
}

/* --- waits that no endpoint is part of ------------------------------------------------ */

static struct err *peer_gone(const struct sym_watch *x, int pe)
{
	int proc = x->w->peer[pe].proc;
	struct sym_process *p = &x->w->process[proc];

	return ERR(UNAVAILABLE, "process %d (pid %d) %s: PE %d waited for its PE %d in %s", proc, p->pid,
	           atomic_load(&p->life) == SYM_DEAD ? "has died" : "has left the job", x->pe, pe, x->what);
}

/* Is there a reason to wait no more?  The writer itself must be there.  Another's death ends the wait a little later: it
 * may have died, or left, after it had done its part. */
static struct err *hopeless(const struct sym_watch *x, struct sym_wait *w)
{
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
	for (int i = 0; i < x->team->n; i++) {
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

static struct err *late(const struct sym_watch *x, double waited, bool fail)
{
	char who[32] = "any of its team";

	if (x->from >= 0)
		snprintf(who, sizeof who, "PE %d", x->from);
	if (fail)
		return ERR(DEADLINE, "PE %d has waited %.0f s for %s in %s", x->pe, waited, who, x->what);
	log_line(LOG_WARN, "PE %d has waited %.0f s for %s in %s", x->pe, waited, who, x->what);
	return NULL;
}

struct err *sym_wait_turn(const struct sym_watch *x, struct sym_wait *w)
{
	struct sym_world *world = x->w;
	struct sym_control *me = sym_control_of(world, x->pe);

	if (!learnt || learnt > world->spins)
		learnt = world->spins;
	if (sym_wait_poll(w, &learnt, world->spins))
		return NULL;
	TRY(hopeless(x, w));
	double waited = sym_wait_rest(world, me, w);
	if (world->patience && waited > world->patience)
		return late(x, waited, true);
	if (waited > WARN_S && !w->warned) {
		w->warned = true;
		late(x, waited, false);
	}
	return NULL;
}

void sym_wait_done(const struct sym_watch *x, struct sym_wait *w)
{
	sym_wait_over(sym_control_of(x->w, x->pe), w, &learnt, x->w->spins);
}
