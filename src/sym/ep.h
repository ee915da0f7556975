/* Inside an endpoint: what its parts share.  ep.c sends and takes lines, ep_wait.c says what a wait for one looks at, and what ends it. */
#ifndef RONDO_SYM_EP_H
#define RONDO_SYM_EP_H

#include <sched.h>

#include "impl.h"

/* Where the peers of an endpoint show something, in their control zones. */
#define SEAT(ep, field) (offsetof(struct sym_control, seat) + (size_t)(ep)->which * sizeof(struct sym_seat) + offsetof(struct sym_seat, field))

/* What this PE writes in the control zone of another. */
#define FROM_ME(ep, field) ((ep)->mine + offsetof(struct sym_from, field))
#define WORD_OF_ME(ep, field) ((ep)->words + offsetof(struct sym_ret, field))

/* Errors, and the texts that they are made of: site is the command that this PE is at. */
struct err *ep_stranger(const struct sym_ep *ep, int pe);                                        /* it has no message in this launch */
struct err *ep_halted(const struct sym_ep *ep);                                                  /* is this PE not to wait any more, for whomever? */
struct err *ep_diverged(struct sym_ep *ep, int pe, uint32_t site, const struct sym_line *l);     /* the peer is elsewhere: at l, or at the end */
struct err *ep_other_size(struct sym_ep *ep, int pe, uint32_t site, size_t its, size_t n);       /* it gives other bytes where all give the same */
/* The peer's next line is of another site: it has diverged; or a death has ended the launch for it, and what was to come before is missing. */
struct err *ep_other_line(struct sym_ep *ep, int pe, uint32_t site, const struct sym_line *l);
struct err *ep_absent(struct sym_ep *ep, int pe, uint32_t site);                                 /* it has left the launch and will do no more of it */
extern const struct sym_waits ep_waits;                                                          /* for a peer */

static inline bool ep_is_pe(const struct sym_ep *ep, int pe) { return (unsigned)pe < (unsigned)ep->world->npe; }

static inline struct err *ep_are_pes(const struct sym_ep *ep, const int *pe, int n)
{
	for (int i = 0; i < n; i++)
		if (__builtin_expect(!ep_is_pe(ep, pe[i]), 0))
			return ep_stranger(ep, pe[i]);
	return NULL;
}

/* More threads than cores. */
static inline bool ep_crowd(const struct sym_world *w) { return w->spins < SYM_BRISK && !w->net; }

/* Was the peer seen last on the core that this thread runs on? */
static inline bool ep_beside(const struct sym_ep *ep, int pe)
{
	const struct sym_control *its = ep->to[pe].control;

	return its && atomic_load_explicit(&its->cpu[ep->which], memory_order_relaxed) == ep->cpu;
}

static inline void ep_show_cpu(struct sym_ep *ep)
{
	int cpu = sched_getcpu() + 1;

	if (cpu != ep->cpu)
		atomic_store_explicit(&ep->me->cpu[ep->which], ep->cpu = cpu, memory_order_relaxed);
}

static inline void ep_word(struct sym_ep *ep, int pe, size_t off, uint64_t v)
{
	const struct sym_peer *p = &ep->world->peer[pe];

	if (p->mapped) {
		atomic_store_explicit((_Atomic uint64_t *)(p->base + off), v, memory_order_release);
		sym_notify(ep->world, pe);
	} else
		VIA(ep, ep->world->tr->line(ep->world, ep->pe, pe, off, &v, 1));
}

static inline struct sym_line *ep_post_at(struct sym_control *c, int which, uint64_t tick) { return &c->post[which][tick % SYM_POSTS]; }

/* What pe posts when this PE has made as many as now. */
static inline uint64_t ep_post_tick(const struct sym_ep *ep, int pe) { return ep->post[pe] + ep->posts; }

static inline bool ep_posted(const struct sym_ep *ep, int pe, uint64_t tick)
{
	return atomic_load_explicit(&ep_post_at(ep->to[pe].control, ep->which, tick)->first, memory_order_acquire) == tick;
}

/* SYM_WAIT of an endpoint, at command site. */
#define WAIT(e, cond, peer, site_) \
	SYM_WAIT(e, cond, ((struct sym_wait){ .of = &ep_waits, .world = ep->world, .me = ep->me, .ep = ep, .spins = &ep->spins, .site = (site_) }), peer)

#endif
