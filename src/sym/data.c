/* Bytes of another PE's heap, by memory where it is mapped, else by the transport. */
#include "impl.h"

#include <string.h>

const struct sym_transport *sym_road_to(struct sym_ep *ep, int pe)
{
	const struct sym_transport *tr = ep->world->tr;
	uint64_t failed = MAX(ep->swap[pe].failed, atomic_load_explicit(&ep->chan[pe].ret->failed, memory_order_acquire));

	failed = MIN(failed, ep->chan[pe].epoch - 1);     /* the peer may have left this one already */
	if (failed > ep->to[pe].fenced) {
		VIA(ep, tr->fence(ep->world, ep->pe, pe));
		ep->to[pe].fenced = failed;
	}
	return tr;
}

void sym_get(struct sym_ep *ep, int pe, void *dst, size_t off, size_t n)
{
	const struct sym_peer *p = &ep->world->peer[pe];

	if (p->mapped)
		copy_shared(COPY_MESSAGE, dst, p->base + off, n);
	else
		VIA(ep, ep->world->tr->get(ep->world, ep->pe, pe, dst, off, n));
}

void sym_get_nb(struct sym_ep *ep, int pe, void *dst, size_t off, size_t n, _Atomic uint32_t *left)
{
	const struct sym_peer *p = &ep->world->peer[pe];

	if (p->mapped) {
		copy_shared(COPY_MESSAGE, dst, p->base + off, n);
		return;
	}
	atomic_fetch_add_explicit(left, 1, memory_order_relaxed);
	VIA(ep, ep->world->tr->get_nb(ep->world, ep->pe, pe, dst, off, n, left));
}

void sym_get_wait(struct sym_ep *ep, _Atomic uint32_t *left)
{
	struct sym_world *w = ep->world;

	VIA(ep, if (!sym_net_await(w, left)) w->tr->forget(w, left));
}

const void *sym_at(struct sym_ep *ep, int pe, size_t off, size_t n, void *buf)
{
	const struct sym_peer *p = &ep->world->peer[pe];

	if (p->mapped)
		return p->base + off;
	VIA(ep, ep->world->tr->get(ep->world, ep->pe, pe, buf, off, n));
	return buf;
}

int sym_whose(const struct sym_ep *ep, const void *p, size_t *off)
{
	const struct sym_world *w = ep->world;

	for (int k = 0; k < w->npe; k++) {
		int pe = (ep->pe + k) % w->npe;
		const struct sym_region *r = sym_local(w, pe) ? &w->region : &w->process[w->peer[pe].proc].region;
		*off = (uintptr_t)p - (uintptr_t)w->peer[pe].base;
		if ((!k || w->peer[pe].mapped) && *off < r->each)
			return pe;
	}
	return -1;
}

void sym_put(struct sym_ep *ep, int pe, size_t off, const void *src, size_t n)
{
	const struct sym_peer *p = &ep->world->peer[pe];

	if (p->mapped) {
		copy_shared(COPY_MESSAGE, p->base + off, src, n);
		return;
	}
	const struct sym_transport *tr = sym_road_to(ep, pe);
	VIA(ep, tr->put(ep->world, ep->pe, pe, off, src, n));
}

void sym_put_nb(struct sym_ep *ep, int pe, size_t off, const void *src, size_t n, _Atomic uint32_t *left)
{
	const struct sym_peer *p = &ep->world->peer[pe];

	if (p->mapped) {
		copy_shared(COPY_MESSAGE, p->base + off, src, n);
		return;
	}
	atomic_fetch_add_explicit(left, 1, memory_order_relaxed);
	const struct sym_transport *tr = sym_road_to(ep, pe);
	VIA(ep, tr->put_nb(ep->world, ep->pe, pe, off, src, n, left));
}

bool sym_maps(const struct sym_ep *ep, int pe) { return ep->world->peer[pe].mapped; }
char *sym_ep_base(const struct sym_ep *ep) { return (char *)ep->me; }
int sym_ep_pe(const struct sym_ep *ep) { return ep->pe; }
