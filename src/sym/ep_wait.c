/* What ends the waits of an endpoint, and what is said of a peer that does not come. */
#include <stdlib.h>

#include "ep.h"

enum { APART_S = 2, ALONE_S = 1, AFTER_S = 1 };

/* name: of the program, if it is known. */
static void where(struct sym_ep *ep, struct str *s, uint32_t prog, uint32_t site, const char *name)
{
	if (ep->l.describe && ep->l.describe(ep->l.user, prog, site, s))
		return;
	str_addf(s, "command %u of program ", site);
	if (name && *name)
		str_addf(s, "'%s'", name);
	else
		str_addf(s, "%08x", prog);
}

/* A word of pe's control zone, which pe may be writing; with it, what pe wrote before.  0 if pe has gone. */
static uint64_t shown(struct sym_ep *ep, int pe, size_t off)
{
	uint64_t v = 0;

	if (ep->world->peer[pe].mapped)
		return atomic_load_explicit((_Atomic uint64_t *)(void *)(ep->world->peer[pe].base + off), memory_order_acquire);
	VIA(ep, ep->world->tr->amo(ep->world, ep->pe, pe, SYM_FETCH, sizeof v, off, 0, 0, &v));
	return v;
}

/* A text of it, of n bytes at most, which are whole words. */
static void text_of(struct sym_ep *ep, int pe, size_t off, char *out, size_t n)
{
	for (size_t k = 0; k < n; k += sizeof(uint64_t)) {
		uint64_t v = shown(ep, pe, off + k);
		memcpy(out + k, &v, sizeof v);
		if (memchr(out + k, '\0', sizeof v))
			return;
	}
	out[n - 1] = '\0';
}

static uint64_t status_of(struct sym_ep *ep, int pe) { return shown(ep, pe, SEAT(ep, status)); }

/* The status of a peer that is in this launch of the two, but in another program; 0: it is not, or not yet. */
static uint64_t apart(struct sym_ep *ep, int pe)
{
	struct chan *c = &ep->chan[pe];

	if (CHAN_LOAD(&c->ret->closed) != c->epoch - 1)
		return 0;
	uint64_t st = status_of(ep, pe);     /* all launches before this are closed there: it is in this one, or in one without this PE */
	if (!st || st >> 32 == ep->l.prog)
		return 0;
	uint64_t with = shown(ep, pe, sym_with_off(ep->world->npe, ep->which) + (size_t)ep->pe / 64 * sizeof with);
	return with >> ep->pe % 64 & 1 ? st : 0;
}

/* Where the peer is. */
static void whereabouts(struct sym_ep *ep, int pe, struct str *s)
{
	uint64_t st = status_of(ep, pe);
	char text[256];

	if (st) {
		text_of(ep, pe, SEAT(ep, name), text, sizeof ep->seat->name);
		str_add(s, "at ");
		where(ep, s, (uint32_t)(st >> 32), (uint32_t)st, text);
		return;
	}
	text_of(ep, ep->world->process[ep->world->peer[pe].proc].first, offsetof(struct sym_control, phase), text, sizeof text);
	str_add(s, text[0] ? text : "in no program with others");
}

static struct err *late(struct sym_ep *ep, int peer, uint32_t site, double waited, bool fail)
{
	struct str mine = { 0 }, its = { 0 };
	struct err *e = NULL;

	where(ep, &mine, ep->l.prog, site, ep->l.name);
	whereabouts(ep, peer, &its);
	if (fail)
		e = ERR(DEADLINE, "device %d has waited %.0f s at %s for device %d, which is %s", ep->pe, waited, mine.p, peer, its.p);
	else
		log_line(LOG_WARN, "device %d has waited %.0f s at %s for device %d, which is %s", ep->pe, waited, mine.p, peer, its.p);
	str_free(&mine);
	str_free(&its);
	return e;
}

/* "process P (pid N) has died", and of which death that may be a consequence. */
static void add_end(struct str *s, const struct sym_world *w, int proc)
{
	int first = atomic_load(&w->died) - 1;

	str_addf(s, "process %d (pid %d) %s", proc, w->process[proc].pid, atomic_load(&w->process[proc].life) == SYM_DEAD ? "has died" : "has left the job");
	if (first >= 0 && first != proc)
		str_addf(s, " after process %d (pid %d) had died", first, w->process[first].pid);
}

/* The peer's process is no more: dead, or gone in order. */
static struct err *peer_gone(struct sym_ep *ep, int peer, uint32_t site)
{
	struct sym_world *w = ep->world;
	struct str end = { 0 }, mine = { 0 };

	add_end(&end, w, w->peer[peer].proc);
	where(ep, &mine, ep->l.prog, site, ep->l.name);
	struct err *e = ERR(UNAVAILABLE, "%s: device %d waited for its device %d at %s", end.p, ep->pe, peer, mine.p);
	str_free(&end);
	str_free(&mine);
	return e;
}

struct err *ep_halted(const struct sym_ep *ep)
{
	if (ep->l.stop && atomic_load_explicit(ep->l.stop, memory_order_acquire))
		return ERR(ABORTED, "launch aborted");
	if (sym_stop && atomic_load_explicit(sym_stop, memory_order_acquire))
		return ERR(CANCELLED, "device %d was cancelled", ep->pe);
	if (atomic_load_explicit(&ep->world->gone, memory_order_acquire) < 0)
		return ERR(CANCELLED, "device %d was cancelled, as all of its world", ep->pe);
	return NULL;
}

/* pe has failed a launch, and said why.  One that heard it from a third says so itself. */
static struct err *peer_failed(struct sym_ep *ep, int pe)
{
	char why[sizeof ep->seat->why];

	if (ep->world->peer[pe].mapped)
		text_of(ep, pe, SEAT(ep, why), why, sizeof why);
	else
		memcpy(why, ep->from[pe].why, sizeof why);
	why[sizeof why - 1] = '\0';
	return strstr(why, "device ") == why ? ERR(ABORTED, "%s", why) : ERR(ABORTED, "device %d failed: %s", pe, why);
}

/* Of the launches with this PE, the last that it has closed, if it has failed that; else 0.  Those behind it may have gone well here, where nothing
 * had to be waited for. */
static uint64_t failed_last(const struct sym_ep *ep, int pe)
{
	const struct sym_ret *r = ep->chan[pe].ret;
	uint64_t failed = atomic_load_explicit(&r->failed, memory_order_acquire);

	return failed == CHAN_LOAD(&r->closed) ? failed : 0;
}

static bool a_death(struct sym_world *w)
{
	bool any = false;

	for (int k = 0; k < w->nproc && atomic_load_explicit(&w->gone, memory_order_acquire) && !any; k++)
		any = atomic_load(&w->process[k].life) == SYM_DEAD;
	return any;
}

/* Is there a reason to wait no more?  may_go: that the peer's process is gone is none. */
static struct err *hopeless(struct sym_ep *ep, int peer, uint32_t site, bool may_go)
{
	struct sym_world *w = ep->world;
	int gone = atomic_load_explicit(&w->gone, memory_order_acquire), life = gone ? atomic_load(&w->process[w->peer[peer].proc].life) : SYM_HERE;

	TRY(ep_halted(ep));
	if (life == SYM_LEFT && failed_last(ep, peer))
		return peer_failed(ep, peer);
	return life != SYM_HERE && !may_go ? peer_gone(ep, peer, site) : NULL;
}

struct err *ep_stranger(const struct sym_ep *ep, int pe) { return ERR(INVALID, "device %d exchanges no messages with device %d in this launch", ep->pe, pe); }

struct err *ep_diverged(struct sym_ep *ep, int pe, uint32_t site, const struct sym_line *l)
{
	struct str mine = { 0 }, its = { 0 };
	char name[sizeof ep->seat->name];

	where(ep, &mine, ep->l.prog, site, ep->l.name);
	if (l && (uint32_t)(l->what >> 32) == ep->l.prog && ((uint32_t)(l->what >> 8) & 0xffffff) == (site & 0xffffff)) {
		struct err *e = ERR(INTERNAL, "devices have diverged: at %s device %d and device %d do not exchange as many bytes, or not in the same way", mine.p, ep->pe, pe);
		str_free(&mine);
		return e;
	}
	if (l) {
		text_of(ep, pe, SEAT(ep, name), name, sizeof name);
		where(ep, &its, (uint32_t)(l->what >> 32), (uint32_t)(l->what >> 8) & 0xffffff, name);
	} else
		str_add(&its, "the end of the program");
	struct err *e = ERR(INTERNAL, "devices have diverged: device %d is at %s, device %d at %s", ep->pe, mine.p, pe, its.p);
	str_free(&mine);
	str_free(&its);
	return e;
}

/* The launch's peer whose process has died; -1: none has. */
static int dead_peer(const struct sym_ep *ep)
{
	const struct sym_world *w = ep->world;

	for (int i = 0; i < ep->l.npeer && atomic_load_explicit(&w->gone, memory_order_acquire) > 0; i++)
		if (atomic_load(&w->process[w->peer[ep->l.peer[i]].proc].life) == SYM_DEAD)
			return ep->l.peer[i];
	return -1;
}

struct err *ep_other_line(struct sym_ep *ep, int pe, uint32_t site, const struct sym_line *l)
{
	const struct sym_line its = *l;
	double until = clock_s() + AFTER_S;
	struct err *e = NULL;
	int dead;

	WAIT(e, (dead = dead_peer(ep)) >= 0 || clock_s() > until, pe, site);
	TRY(e);
	return dead >= 0 ? peer_gone(ep, dead, site) : ep_diverged(ep, pe, site, &its);
}

struct err *ep_other_size(struct sym_ep *ep, int pe, uint32_t site, size_t its, size_t n)
{
	struct str mine = { 0 };

	where(ep, &mine, ep->l.prog, site, ep->l.name);
	struct err *e = ERR(INTERNAL, "devices have diverged: at %s device %d gives %zu bytes, device %d %zu", mine.p, ep->pe, n, pe, its);
	str_free(&mine);
	return e;
}

struct err *ep_absent(struct sym_ep *ep, int pe, uint32_t site)
{
	struct chan *c = &ep->chan[pe];

	if (ep->l.stop && atomic_load(ep->l.stop))
		return ERR(ABORTED, "launch aborted");
	if (atomic_load_explicit(&c->ret->failed, memory_order_acquire) < c->epoch)      /* later ones may have failed since */
		return ep_diverged(ep, pe, site, NULL);
	return peer_failed(ep, pe);
}

struct err *sym_check(struct sym_ep *ep, int pe, uint32_t site, double waited)
{
	struct sym_world *w = ep->world;
	TRY(ep_are_pes(ep, &pe, 1));
	struct chan *c = &ep->chan[pe];
	bool left = chan_left(c), well = left && atomic_load_explicit(&c->ret->failed, memory_order_acquire) < c->epoch;
	/* Who has left the launch well has done its part, and may leave the job, now or while it is looked at; who has failed has said why. */
	const _Atomic int *life = &w->process[w->peer[pe].proc].life;
	struct err *e = hopeless(ep, pe, site, left && (!well || atomic_load(life) == SYM_LEFT));

	if (e && e->code == ERR_UNAVAILABLE && left && (!well || atomic_load(life) == SYM_LEFT)) {
		err_free(e);
		e = NULL;
	}
	TRY(e);
	if (left && !well)
		return ep_absent(ep, pe, site);
	return w->patience && waited > w->patience ? late(ep, pe, site, waited, true) : NULL;
}

struct err *sym_lost(struct sym_ep *ep)
{
	int proc = atomic_load_explicit(&ep->lost, memory_order_relaxed) - 1;

	if (proc + 1 == SYM_LATE)
		return ERR(DEADLINE, "device %d has waited more than %.0f s for data that another host sends or takes", ep->pe, ep->world->patience);
	if (proc + 1 == SYM_GAVE_UP) {
		struct err *e = ep_halted(ep);
		return e ? e : ERR(ABORTED, "launch aborted");
	}
	if (proc < 0)
		return NULL;
	struct str end = { 0 };
	add_end(&end, ep->world, proc);
	struct err *e = ERR(UNAVAILABLE, "%s: device %d did not get all data from it", end.p, ep->pe);
	str_free(&end);
	return e;
}

void sym_away(struct sym_ep *ep, bool (*away)(void *user), void *user)
{
	ep->away = away;
	ep->away_user = user;
}

void sym_sleeps_soon(struct sym_ep *ep, bool yes) { ep->soon = yes; }

/* Who goes to sleep tells of all that it has returned: what others wait for in turn may be waiting for room. */
static void tell_returns(struct sym_ep *ep)
{
	for (int i = 0; i < ep->l.npeer; i++) {
		struct chan *c = &ep->chan[ep->l.peer[i]];
		if (chan_owes(c))
			ep_word(ep, ep->l.peer[i], WORD_OF_ME(ep, returned), chan_tick(c, c->done));
	}
}

/* The peer's next post, if it has made it: it waits for this PE's. */
static const struct sym_line *ahead(const struct sym_ep *ep, int pe)
{
	uint64_t tick = ep->met ? ep_post_tick(ep, pe) + 1 : 0;

	return ep->met && ep_posted(ep, pe, tick) ? ep_post_at(ep->to[pe].control, ep->which, tick) : NULL;
}

double sym_waited(const struct sym_ep *ep)
{
	double since = atomic_load_explicit(&ep->since, memory_order_relaxed);
	return since ? clock_s() - since : 0;
}

static struct err *peer_hopeless(struct sym_wait *w) { return hopeless(w->ep, w->peer, w->site, false); }
static struct err *peer_late(struct sym_wait *w, double waited, bool fail) { return late(w->ep, w->peer, w->site, waited, fail); }

/* After a death: has it failed what went well here?  Unless its user goes on at once, it comes no more.  Where that failed here, too, both users
 * know, and what they launch then may begin late; but who has failed that as well has nothing to wait for. */
static bool comes_no_more(struct sym_ep *ep, int pe)
{
	uint64_t its = failed_last(ep, pe), mine = ep->swap[pe].failed;

	return its && (mine < its || mine == ep->chan[pe].epoch) && a_death(ep->world);
}

/* Is the peer somewhere else? */
static struct err *peer_rested(struct sym_wait *w, double waited)
{
	struct sym_ep *ep = w->ep;

	if (w->armed)
		tell_returns(ep);
	if (ep_crowd(ep->world))
		ep_show_cpu(ep);
	if (!waited)
		return NULL;
	if (comes_no_more(ep, w->peer)) {
		w->dead = w->dead ? w->dead : clock_s();
		if (clock_s() - w->dead > ALONE_S)
			return peer_failed(ep, w->peer);
	}
	const struct sym_line *post = ahead(ep, w->peer);
	if (post && post == w->ahead)     /* seen twice: what it has sent before may just have come */
		return ep_diverged(ep, w->peer, w->site, post);
	w->ahead = post;
	if (ep->most && waited > ep->most)        /* where the peer is is not asked: it may not answer */
		return ERR(DEADLINE, "device %d has not done for %.0f s with what device %d has sent it", w->peer, waited, ep->pe);
	if (waited > APART_S && waited > w->look) {
		uint64_t st = apart(ep, w->peer);
		if (st && st == w->apart)         /* seen twice, since it may have changed between two words that were read */
			return ep_diverged(ep, w->peer, w->site, &(struct sym_line){ .what = st >> 32 << 32 | (st & 0xffffff) << 8 });
		w->apart = st;
		w->look = waited + 1;
	}
	return NULL;
}

const struct sym_waits ep_waits = { peer_hopeless, peer_rested, peer_late };

/* --- for something that no peer does -------------------------------------------------- */

static struct err *own_hopeless(struct sym_wait *w) { return ep_halted(w->ep); }

/* Whoever is gone, or has failed, would be waited for next. */
static struct err *own_rested(struct sym_wait *w, double waited)
{
	struct sym_ep *ep = w->ep;

	if (w->armed)
		tell_returns(ep);
	for (int i = 0; i < ep->l.npeer && waited; i++)
		TRY(sym_check(ep, ep->l.peer[i], 0, 0));
	return NULL;
}

static struct err *own_late(struct sym_wait *w, double waited, bool fail)
{
	if (fail)
		return ERR(DEADLINE, "device %d has waited %.0f s for %s of program '%s'", w->ep->pe, waited, (const char *)w->what, w->ep->l.name ? w->ep->l.name : "");
	log_line(LOG_WARN, "device %d has waited %.0f s for %s of program '%s'", w->ep->pe, waited, (const char *)w->what, w->ep->l.name ? w->ep->l.name : "");
	return NULL;
}

struct err *sym_wait_own(struct sym_ep *ep, bool (*come)(void *user), void *user, const char *what)
{
	static const struct sym_waits own = { own_hopeless, own_rested, own_late };
	struct err *e = NULL;

	SYM_WAIT(e, come(user), ((struct sym_wait){ .of = &own, .world = ep->world, .me = ep->me, .ep = ep, .spins = &ep->spins, .what = what }), -1);
	return e;
}

void sym_has_come(struct sym_world *w, int pe) { sym_notify(w, pe); }
